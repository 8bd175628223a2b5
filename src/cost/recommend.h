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
    DPAR_WARN_TP_ACROSS = 2,     /* TP across nodes */
    DPAR_WARN_FEW_MICRO = 4,     /* fewer micro-batches than 4 pp */
    DPAR_WARN_ACTIVATIONS = 8,   /* activations dominate: FSDP does not shard them */
    DPAR_WARN_DDP_STATE = 16,    /* replicated state does not fit */
    DPAR_WARN_LEARNING_RATE = 32 /* the global batch was scaled: scale the learning rate */
};
typedef struct dpar_advice {
    dpar_plan plan;
    char name[48]; /* "TP=4 + FSDP=4" */
    char why[400];
    char runner_up[200];
    int32_t warnings; /* bits DPAR_WARN_* of the plan */
    char warning_text[400];
} dpar_advice;
/* The simplest good strategy. DDP whenever it fits. Else every kind of parallelism that the
 * flowchart "does it fit? parameters or activations?" offers is priced at its best. The first of
 * them, simplest first, that is at most 30 % slower than the fastest is taken. The model errs by
 * about as much between kinds, and fewer kinds are fewer things to go wrong.
 *
 * What search->fixed fixes binds the answer, and the warnings judge it. runner_up then says what
 * would be recommended with nothing fixed, where that is another one. E_MEMORY when nothing fits:
 * *advice then has what comes nearest, by how much it misses, and how many GPUs would hold it.
 * E_NONE: no way divides the batch, or what is fixed is not legal. E_ARG: a batch below 0, or gpus
 * that are not the cluster's. About 30 searches, 60 where something is fixed: milliseconds. */
DPAR_API dpar_status dpar_plan_recommend(const dpar_job *job, const dpar_search *search,
                                         dpar_advice *advice, dpar_why *why);

#endif
