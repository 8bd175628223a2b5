/* SPDX-License-Identifier: MIT-0 */
/* recommend - recommends one strategy in words, as an engineer would, and gives the reason.
 *
 *     dpar_plan_recommend(&job, &search, &advice, &why);
 *     puts(advice.name);                                   "TP=4 + FSDP=4"
 *     puts(advice.why);                                    the reason */
#ifndef DPARI_COST_RECOMMEND_H
#define DPARI_COST_RECOMMEND_H

#include "planner.h"

/* Bits of dpar_advice.warnings: common mistakes. */
enum {
    DPAR_WARN_FSDP_NEEDLESS = 1, /* the model fits without FSDP, which only adds traffic */
    DPAR_WARN_TP_ACROSS = 2,     /* TP across nodes, or over PCIe */
    DPAR_WARN_FEW_MICRO = 4,     /* fewer than 4 x pp micro-batches */
    DPAR_WARN_ACTIVATIONS = 8,   /* activations dominate, and FSDP does not shard them */
    DPAR_WARN_DDP_STATE = 16,    /* the replicated state does not fit */
    DPAR_WARN_LEARNING_RATE = 32 /* the global batch was scaled, so scale the learning rate */
};
/* A recommended plan, with the reason and the alternatives in words. */
typedef struct dpar_advice {
    dpar_plan plan;
    char name[64];       /* "TP=4 + FSDP=4" */
    char why[400];       /* the reason */
    char runner_up[256]; /* a simpler plan, how much slower it is and what it saves; may be empty */
    char fastest[256];   /* the fastest plan and what it needs in addition; empty if it is `plan` */
    double slower;       /* time of `plan` / time of the fastest plan - 1; 0.03 is 3 % slower */
    int32_t warnings;    /* bits DPAR_WARN_* of the plan */
    char warning_text[400];
} dpar_advice;
/* Recommends the simplest plan that is nearly as fast as the fastest one.
 *
 * job:    the workload, the machine and the precision.
 * search: fields that it fixes are fixed in the recommended plan too. If another plan would be
 *         recommended with nothing fixed, runner_up names that plan.
 * advice: the result.
 *
 * The function prices all usual plans and keeps the best of each kind. A kind is a combination of
 * tensor, sequence, pipeline and domain parallelism, sharding and recomputation; expert parallelism
 * does not count, because codes with experts have it anyway. Of the kinds that are at most 5 %
 * slower than the fastest, it takes the one with the least time after a penalty of 4.8 % for each
 * kind of parallelism and 1.6 % for each option.
 *
 * It recommends tensor parallelism over PCIe or between nodes, and experts cut over ranks, only if
 * no other plan fits or all others take more than twice as long. If such a plan is the fastest,
 * `fastest` says how much faster it is.
 *
 * The times come from closed formulas; dpar_plan_simulate computes the time of the schedule. Takes
 * milliseconds: one search, or two if something is fixed.
 *
 * Fails with DPAR_E_MEMORY if nothing fits; *advice then has the plan that comes nearest, how much
 * memory it lacks, and how many GPUs would hold it. Fails with DPAR_E_NONE if no legal plan divides
 * the batch, and with DPAR_E_ARG if a number is not allowed or search->gpus is not the number of
 * the cluster's GPUs. */
DPAR_API dpar_status dpar_plan_recommend(const dpar_job *job, const dpar_planner_desc *search,
                                         dpar_advice *advice, dpar_why *why);

#endif
