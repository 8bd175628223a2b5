/* SPDX-License-Identifier: MIT-0 */
/* launch_private - private: what other engines call of launch.c. */
#ifndef DPARI_COMM_LAUNCH_PRIVATE_H
#define DPARI_COMM_LAUNCH_PRIVATE_H

#include "../base/arith.h"
#include "job.h"
#include "launch.h"

/* The world of a job whose ranks are all on this node: they meet and join. COLLECTIVE over the job.
 */
DPARI_API dpar_status dpari_job_join(const dpar_launcher_info *job, const dpar_world_desc *options,
                                     dpar_comm **world, dpar_why *why);
/* Checks whether joining would fail on this rank before it meets the others, which would then wait
 * for it in vain. Local. */
DPARI_API dpar_status dpari_job_try(const dpar_launcher_info *job, const dpar_world_desc *options,
                                    dpar_why *why);

/* The deadline of DPAR_TIMEOUT, in seconds; what the options say where it is not set. E_ARG: it is
 * no number. */
DPARI_API dpar_status dpari_timeout_here(const dpari_site *site, dpar_world_desc *o, dpar_why *why);

/* Of a job that failed: */
typedef struct dpari_verdict {
    int32_t said;   /* 1: one of its ranks has said why (dpari_shm_speaks) */
    int32_t result; /* what the rank returned that failed first; 1: nothing, or it did not start */
} dpari_verdict;
/* dpar_launch, and more of what went wrong. */
DPARI_API dpar_status dpari_launch_judged(int32_t n, dpar_main fn, void *arg,
                                          const dpar_world_desc *options, dpari_verdict *verdict,
                                          dpar_why *why);
/* The same with ranks that are new processes of this program, started with the arguments `words`,
 * which end in NULL. Each finds its segment by dpari_job_join. */
DPARI_API dpar_status dpari_launch_programs(int32_t n, char **words, const dpar_world_desc *options,
                                            dpari_verdict *verdict, dpar_why *why);

#endif
