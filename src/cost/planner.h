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
    int32_t fits; /* its upper figure into the GPU, what is offloaded into the node's memory */
} dpar_plan;

/* Prices one configuration: is it legal, what does it hold, how long is its step? E_DIVIDE, E_ARG,
 * ... with a sentence when it is not legal, and *rule (may be NULL) says which rule it breaks;
 * E_MEMORY (with *plan written) when it does not fit. global_batch 0: any. O(layer classes), about
 * 300 ns. */
DPAR_API dpar_status dpar_plan_price(const dpar_job *job, const dpar_strategy *s,
                                     int64_t global_batch, dpar_plan *plan, int32_t *rule,
                                     dpar_why *why);

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

/* What is searched. Zero-initialise it: all of the cluster, a free batch, the usual space. */
typedef struct dpar_search {
    int32_t gpus;          /* 0: all of the cluster */
    int64_t global_batch;  /* samples a step; 0: free, four micro-batches a pipeline stage */
    int32_t space;         /* DPAR_SPACE_* */
    dpar_strategy fixed;   /* values of the fields whose bits are set in fixed_fields */
    uint32_t fixed_fields; /* bits DPAR_FIELD_* */
    double memory_bytes;   /* limit a GPU; 0: what the GPU has */
    /* dpar_planner alone: where its plans go, filled as it walks. */
    dpar_plan *top;   /* [top_room]: best first; may be NULL */
    dpar_plan *front; /* [front_room]: Pareto front of step time x memory; may be NULL */
    int32_t top_room, front_room;
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
    double progress;              /* share of the space behind the walk, 0..1 */
    int64_t state[64];            /* private: where the walk is */
    double layers[DPAR_MAX_LAYERS * 32]; /* private: their prices, shared by many configurations */
} dpar_planner;

/* Makes a search ready. E_ARG, E_RANGE with a sentence for a job or a search that cannot be. The
 * cluster must have search->gpus GPUs already. */
DPAR_API dpar_status dpar_planner_init(dpar_planner *p, const dpar_job *job,
                                       const dpar_search *search, dpar_why *why);
/* Walks on for about `budget` configurations. MORE: call again (show progress, look at the clock,
 * or stop: what was found so far is valid). DONE: the space is exhausted. E_NONE: exhausted and
 * nothing fits; then *why says what came nearest. Deterministic: ties go to the canonical order.
 * O(budget x layer classes). */
DPAR_API dpar_status dpar_planner_run(dpar_planner *p, int64_t budget, dpar_why *why);

/* One-step neighbours of a plan (twice or half of tp, pp, micro-batch, vp, ep, cp; another ZeRO
 * stage, recomputation, shard group) at the same batch, each with the reason why it was not chosen:
 * slower by how much, over memory by how much, or the rule that it breaks. At most 18; returns how
 * many were written. Costs at most 18 times dpar_plan_price. */
DPAR_API int32_t dpar_plan_neighbours(const dpar_job *job, const dpar_plan *plan,
                                      int64_t global_batch, dpar_rejected *out, int32_t room);

/* The legal configuration nearest to `s` (memory apart): fewest and smallest changes, a change of a
 * degree counting as its ratio. `s` itself when it is legal. E_NONE if none is near: then *why says
 * what is wrong with `s`. About 200 checks. */
DPAR_API dpar_status dpar_strategy_nearest(const dpar_job *job, const dpar_strategy *s,
                                           int64_t global_batch, dpar_strategy *near_one,
                                           dpar_why *why);

/* The fewest GPUs of this cluster's kind on which the job fits, and the best plan there: parts of a
 * node, then whole nodes. First a size that is enough is looked for (each number of nodes up to 32,
 * then steps of a sixteenth), then every smaller one, so the answer is the least of all. Leave
 * global_batch 0 (free) unless it must be kept: a fixed one forbids the sizes that do not divide
 * it. A cluster without a network gets one NIC of 25 GB/s a GPU beyond its node. E_NONE when
 * most_gpus are not enough. Some tenths of a ms a size in the usual space. */
DPAR_API dpar_status dpar_plan_smallest(const dpar_job *job, const dpar_search *search,
                                        int32_t most_gpus, dpar_plan *plan, dpar_why *why);

#endif
