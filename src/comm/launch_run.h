/* SPDX-License-Identifier: MIT-0 */
/* launch_run - private: what other engines call of launch.c. */
#ifndef DPARI_COMM_LAUNCH_RUN_H
#define DPARI_COMM_LAUNCH_RUN_H

#include "../base/arith.h"
#include "launch.h"

/* The world of a job whose ranks are all on this node: they meet and join. COLLECTIVE over the job.
 */
DPARI_DOOR dpar_status dpari_job_join(const dpar_start *job, const dpar_options *options,
                                      dpar_comm **world, dpar_why *why);
/* Would it fail on this rank before it meets the others, who would then wait in vain? Local. */
DPARI_DOOR dpar_status dpari_job_try(const dpar_start *job, const dpar_options *options,
                                     dpar_why *why);

#endif
