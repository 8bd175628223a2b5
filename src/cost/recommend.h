/* SPDX-License-Identifier: MIT-0 */
/* recommend - one strategy in words, as an engineer would put it, and why.
 *
 *     dpar_plan_recommend(&job, &search, &advice, &why);
 *     puts(advice.name), puts(advice.why);                 "TP=4 + FSDP=4", and the reason */
#ifndef DPARI_COST_RECOMMEND_H
#define DPARI_COST_RECOMMEND_H

#include "planner.h"

/* Warnings of common mistakes, bits of dpar_advice.warnings. */
enum {
    DPAR_WARN_FSDP_NEEDLESS = 1, /* the model fits: FSDP only adds traffic */
    DPAR_WARN_TP_ACROSS = 2,     /* TP across nodes, or over PCIe */
    DPAR_WARN_FEW_MICRO = 4,     /* fewer micro-batches than 4 pp */
    DPAR_WARN_ACTIVATIONS = 8,   /* activations dominate: FSDP does not shard them */
    DPAR_WARN_DDP_STATE = 16,    /* replicated state does not fit */
    DPAR_WARN_LEARNING_RATE = 32 /* the global batch was scaled: scale the learning rate */
};
typedef struct dpar_advice {
    dpar_plan plan;
    char name[64]; /* "TP=4 + FSDP=4" */
    char why[400];
    char runner_up[256]; /* a simpler plan: how much slower, what it saves; may be empty */
    char fastest[256];   /* where the plan is not the fastest: what is, and what it needs more */
    double slower;       /* than that one, as a share: 0.03 */
    int32_t warnings;    /* bits DPAR_WARN_* of the plan */
    char warning_text[400];
} dpar_advice;
/* The simplest plan near the fastest. All usual plans are priced and the best of each kind is kept.
 * What makes a kind are tensor, sequence, pipeline and domain parallelism, sharding and
 * recomputation. Expert parallelism is free: codes with experts have it. Of the kinds at most 5 %
 * slower than the fastest it is the one with the least time, where a kind of parallelism more
 * counts 4.8 % and an option 1.6 %.
 *
 * Tensor parallelism over PCIe or between nodes, and cut experts, are left to where nothing else
 * fits or all else takes twice as long. `fastest` then says by how much they would be faster.
 *
 * What search->fixed fixes binds the answer, and the warnings judge it. runner_up then says what
 * would be recommended with nothing fixed, where that is another one. E_MEMORY when nothing fits:
 * *advice then has what comes nearest, by how much it misses, and how many GPUs would hold it.
 * E_NONE: no way divides the batch, or what is fixed is not legal. E_ARG: a batch below 0, or gpus
 * that are not the cluster's. One search, two where something is fixed: milliseconds.
 *
 * The plan's times are those of the closed forms; dpar_plan_simulate has the schedule's own. */
DPAR_API dpar_status dpar_plan_recommend(const dpar_job *job, const dpar_planner_desc *search,
                                         dpar_advice *advice, dpar_why *why);

#endif
