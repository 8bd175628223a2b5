/* SPDX-License-Identifier: MIT-0 */
/* planner - walks every legal way to spread a job and keeps the best, with reasons. */
#ifndef DPARI_COST_PLANNER_H
#define DPARI_COST_PLANNER_H

#include "memory.h"
#include "step.h"

typedef struct dpar_plan {
    dpar_strategy strategy;
    dpar_memory memory;
    dpar_step step;
    int32_t fits; /* dpar_memory_fits */
} dpar_plan;

/* Prices one configuration: check, memory and step in one call. E_DIVIDE, E_ARG, ... when it is
 * not legal; E_MEMORY (with *plan written) when it does not fit. */
DPAR_API dpar_status dpar_plan_of(const dpar_job *job, const dpar_strategy *s, int64_t global_batch,
                                  dpar_plan *plan, int32_t *rule, dpar_why *why);

/* How much is walked. */
enum {
    /* tp: divisors of a node; cp, micro-batch: powers of two; sequence parallelism with tp; 1F1B or
     * interleaved in chunks of equal length (those of the last round may be one shorter, and a
     * vp that is fixed may cut as it likes); ZeRO 0 and 1, without pipelines 2 and 3 too; overlap
     * as the stack has it; no offload (of activations it can be a few percent faster on paper); etp
     * 1; grids cut where the surface is least. When only the top is wanted (no front), what cannot
     * reach it is cut unpriced and counted in `cut`. */
    DPAR_SPACE_USUAL,
    /* Every divisor for tp (across nodes too), cp, pp, ep, micro-batch; vp as above; sp 0/1, all
     * kinds of cp, all schedules, ZeRO 0 to 3, HSDP, the offloads, three overlaps, every cut of a
     * grid. Everything is priced. It holds Calculon's space but for its choice of network for each
     * degree (here that follows from the placement) and for how it splits an all-reduce of TP. */
    DPAR_SPACE_WHOLE
};

typedef struct dpar_search {
    int32_t gpus;          /* 0: all of the cluster */
    int64_t global_batch;  /* samples a step; 0: free, four micro-batches a pipeline stage */
    int32_t space;         /* DPAR_SPACE_* */
    dpar_strategy fixed;   /* values of the fields whose bits are set in fixed_fields */
    uint32_t fixed_fields; /* bits DPAR_FIELD_* */
    double memory_bytes;   /* limit a GPU; 0: what the GPU has */
} dpar_search;

/* Why a good-looking neighbour of the winner was not taken. */
typedef struct dpar_rejected {
    dpar_strategy strategy;
    int32_t rule;      /* DPAR_RULE_*; NONE: legal, but slower */
    double seconds;    /* predicted step, 0 if it was not priced */
    double bytes_over; /* for DPAR_RULE_MEMORY */
    char text[160];
} dpar_rejected;

/* State of a search. The caller owns it and the slots; nothing else is allocated: O(1) memory
 * whatever the space. */
typedef struct dpar_planner {
    dpar_job job; /* the pointers must outlive the search */
    dpar_search search;
    dpar_plan *top; /* best first, by samples/s (fixed batch: by step time) */
    int32_t top_room, tops;
    dpar_plan *front; /* Pareto front of step time x memory, fastest first */
    int32_t front_room, fronts;
    int64_t evaluated;            /* configurations priced (time and memory) */
    int64_t rejected[DPAR_RULES]; /* configurations by the rule they break; MEMORY: priced ones */
    int64_t cut;                  /* legal, unpriced: their compute alone is slower than all kept */
    int64_t walked;               /* evaluated + cut + rejected by other rules than MEMORY */
    int64_t state[64];            /* private: where the walk is */
    double layers[DPAR_MAX_LAYERS * 32]; /* private: their prices, shared by many configurations */
} dpar_planner;

/* Begins a search; top and front are filled as it goes (front may be NULL). E_ARG, E_RANGE with a
 * sentence for a job or a search that cannot be. The cluster must have search->gpus GPUs already.
 */
DPAR_API dpar_status dpar_planner_init(dpar_planner *p, const dpar_job *job,
                                       const dpar_search *search, dpar_plan *top, int32_t top_room,
                                       dpar_plan *front, int32_t front_room, dpar_why *why);
/* Walks on for about `budget` configurations. MORE: call again (show progress, look at the clock,
 * or stop: what was found so far is valid). DONE: the space is exhausted. E_NONE: exhausted and
 * nothing fits; then *why says what came nearest. Deterministic: ties go to the canonical order. */
DPAR_API dpar_status dpar_planner_run(dpar_planner *p, int64_t budget, dpar_why *why);
/* Share of the space behind the walk, 0..1. */
DPAR_API double dpar_planner_progress(const dpar_planner *p);

/* One-step neighbours of a plan (twice or half of tp, pp, micro-batch, vp, ep, cp; another ZeRO
 * stage, recomputation, shard group) at the same batch, each with the reason why it was not chosen:
 * slower by how much, over memory by how much, or the rule that it breaks. At most 18; returns how
 * many were written. */
DPAR_API int32_t dpar_plan_neighbours(const dpar_job *job, const dpar_plan *plan,
                                      int64_t global_batch, dpar_rejected *out, int32_t room);

/* The legal configuration nearest to `s` (memory apart): fewest and smallest changes, a change of a
 * degree counting as its ratio. `s` itself when it is legal. E_NONE if none is near: then *why says
 * what is wrong with `s`. About 200 checks. */
DPAR_API dpar_status dpar_nearest_legal(const dpar_job *job, const dpar_strategy *s,
                                        int64_t global_batch, dpar_strategy *near_one,
                                        dpar_why *why);

/* The fewest GPUs of this cluster's kind on which the job fits, and the best plan there: parts of a
 * node, then whole nodes. First a size that is enough is looked for (each number of nodes up to 32,
 * then steps of a sixteenth), then every smaller one, so the answer is the least of all. Leave
 * global_batch 0 (free) unless it must be kept: a fixed one forbids the sizes that do not divide
 * it. A cluster without a network gets one NIC of 25 GB/s a GPU beyond its node. E_NONE when
 * most_gpus are not enough. Some tenths of a ms a size in the usual space. */
DPAR_API dpar_status dpar_smallest_machine(const dpar_job *job, const dpar_search *search,
                                           int32_t most_gpus, dpar_plan *plan, dpar_why *why);

/* One strategy in words, as an engineer would put it: names (DDP, FSDP, HSDP, TP, PP, SP, domain
 * parallel...), why (what did not fit, by how many GB), what the runner-up would cost, and the
 * warnings of common mistakes. */
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
    int32_t warnings; /* bits DPAR_WARN_* of the plan or of what the user asked */
    char warning_text[400];
} dpar_advice;
/* Every kind of parallelism that the flowchart "does it fit? parameters or activations?" offers is
 * priced at its best; the first of them, simplest first, that is at most 30 % slower than the
 * fastest is taken (the model errs by about as much between kinds, and fewer kinds are fewer things
 * to go wrong); DDP whenever it fits. What search->fixed asks for is judged by the warnings and
 * does not bind the answer. E_MEMORY when nothing fits: *advice then holds what comes nearest, by
 * how much it misses, and how many GPUs would hold it. E_NONE when no way divides the batch. About
 * 30 searches: milliseconds. */
DPAR_API dpar_status dpar_recommend(const dpar_job *job, const dpar_search *search,
                                    dpar_advice *advice, dpar_why *why);

#endif
