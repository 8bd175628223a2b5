/* SPDX-License-Identifier: MIT-0 */
/* launch_private - private: functions of launch.c that other engines and simple.c call. */
#ifndef DPARI_COMM_LAUNCH_PRIVATE_H
#define DPARI_COMM_LAUNCH_PRIVATE_H

#include "../base/arith.h"
#include "job.h"
#include "launch.h"

/* Joins the ranks of a job, which must all be on this node. COLLECTIVE over the job. */
DPARI_API dpar_status dpari_job_join(const dpar_launcher_info *job, const dpar_world_desc *options,
                                     dpar_comm **world, dpar_why *why);
/* Checks whether dpari_job_join would fail on this rank alone, before the other ranks wait for it.
 * Local. */
DPARI_API dpar_status dpari_job_try(const dpar_launcher_info *job, const dpar_world_desc *options,
                                    dpar_why *why);

/* If the variable DPAR_TIMEOUT is set, replaces the deadline in the options by its value, in
 * seconds. Fails with DPAR_E_ARG if it is not a number. */
DPARI_API dpar_status dpari_timeout_here(const dpari_site *site, dpar_world_desc *o, dpar_why *why);

/* How a job failed. Set by the launch. */
typedef struct dpari_verdict {
    int32_t said;   /* 1 if one of its ranks has printed the reason (dpari_shm_speaks) */
    int32_t result; /* what the rank that failed first returned; 1 if it did not return */
} dpari_verdict;
/* Does what dpar_launch does, and also sets *verdict. */
DPARI_API dpar_status dpari_launch_verdict(int32_t n, dpar_main fn, void *arg,
                                           const dpar_world_desc *options, dpari_verdict *verdict,
                                           dpar_why *why);
/* Does the same with ranks that are new processes of this program, started with the arguments
 * `words`, which end with NULL. Each finds its segment by dpari_job_join. */
DPARI_API dpar_status dpari_launch_programs(int32_t n, char **words, const dpar_world_desc *options,
                                            dpari_verdict *verdict, dpar_why *why);

#endif
