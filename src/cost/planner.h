/* SPDX-License-Identifier: MIT-0 */
/* planner - walks every legal way to spread a job and keeps the best, with reasons.
 * dpar_plan_search (plan_text.h) is the short way.
 *
 *     dpar_plan best;
 *     dpar_planner_desc search = {0};                            the whole cluster, a free batch
 *     search.top = &best;
 *     search.top_room = 1;
 *     dpar_planner_init(&planner, &job, &search, &why);
 *     while ((st = dpar_planner_run(&planner, 100000, &why)) == DPAR_MORE) {
 *         planner.progress                                 0..1
 *     } */
#ifndef DPARI_COST_PLANNER_H
#define DPARI_COST_PLANNER_H

#include "memory.h"
#include "step.h"

/* A configuration and its price. */
typedef struct dpar_plan {
    dpar_strategy strategy;
    dpar_memory_usage memory;
    dpar_step_cost step;
    int32_t fits; /* 1: memory.lower fits the GPU (of plans that a search found, memory.upper), and
                   * what is offloaded the node's memory */
} dpar_plan;

/* Prices one configuration: is it legal, what does it hold, how long is its step? global_batch 0:
 * any. O(layer classes), about 300 ns.
 *
 * E_DIVIDE, E_ARG, ... with a sentence: it is not legal; *rule (may be NULL) says which rule it
 * breaks. E_MEMORY, with *plan written: it does not fit. */
DPAR_API dpar_status dpar_plan_price(const dpar_job *job, const dpar_strategy *s,
                                     int64_t global_batch, dpar_plan *plan, int32_t *rule,
                                     dpar_why *why);

/* How much is searched. */
enum {
    /* The usual choices. tp: divisors of a node, with sequence parallelism. cp, micro-batch: powers
     * of two. Pipelines: 1F1B, or interleaved in chunks of equal length. (Those of the last round
     * may be one shorter, and a fixed vp may cut as it likes.) ZeRO 0 and 1; without pipelines 2
     * and 3 too. etp 1. Overlap as the stack has it. Grids are cut where the surface is least. No
     * offload: of activations it can be a few percent faster on paper.
     *
     * When only the top is wanted (no front), what cannot reach it is left unpriced and counted in
     * `cut`. With a front everything is priced. */
    DPAR_SPACE_USUAL,
    /* Every divisor for tp (across nodes too), cp, pp, ep and micro-batch; vp as above; sp 0/1; all
     * kinds of cp; all schedules. ZeRO 0 to 3, HSDP, the offloads, three overlaps, every cut of a
     * grid.
     *
     * Branch and bound: what cannot change the top, nor the front where one is wanted, is counted
     * in `cut`. The bounds never pass the truth, so the plans are those of the full walk. Without
     * top and front everything is priced.
     *
     * It holds Calculon's space but for two choices: its network for each degree (here that follows
     * from the placement) and how it splits an all-reduce of TP. */
    DPAR_SPACE_WHOLE
};

/* What is searched. Zero it: all of the cluster, a free batch, the usual space. */
typedef struct dpar_planner_desc {
    int32_t gpus;          /* 0: all of the cluster */
    int64_t global_batch;  /* samples a step; 0: free, four micro-batches a pipeline stage */
    int32_t space;         /* DPAR_SPACE_* */
    dpar_strategy fixed;   /* values of the fields whose bits are set in fixed_fields */
    uint32_t fixed_fields; /* bits DPAR_STRATEGY_FIELD_* */
    double memory_bytes;   /* limit a GPU; 0: what the GPU has */
    /* Read by dpar_planner_init alone: where its plans go, filled as it searches. */
    dpar_plan *top;   /* [top_room]: best first; may be NULL */
    dpar_plan *front; /* [front_room]: Pareto front of step time x memory; may be NULL */
    int32_t top_room, front_room;
} dpar_planner_desc;

/* Why a good-looking neighbour of the winner was not taken. */
typedef struct dpar_plan_rejection {
    dpar_strategy strategy;
    int32_t rule;      /* DPAR_STRATEGY_RULE_*; NONE: legal, but slower */
    double seconds;    /* predicted step, 0 if it was not priced */
    double bytes_over; /* for DPAR_STRATEGY_RULE_MEMORY */
    char text[160];
} dpar_plan_rejection;

/* The state of a search. You own it and the slots for plans. Nothing else is allocated: O(1) memory
 * whatever the space. */
typedef struct dpar_planner {
    dpar_job job; /* the pointers must outlive the search */
    dpar_planner_desc search;
    dpar_plan *top; /* best first, by samples/s (fixed batch: by step time) */
    int32_t top_room, tops;
    dpar_plan *front; /* Pareto front of step time x memory, fastest first */
    int32_t front_room, fronts;
    int64_t evaluated; /* configurations priced: memory, and time where it fits */
    int64_t rejected[DPAR_STRATEGY_RULE_COUNT]; /* configurations by the rule that they break; those
                                     of MEMORY were priced */
    int64_t cut;               /* legal, but not priced: bounds say that they would not be kept */
    int64_t walked;            /* evaluated + cut + rejected by other rules than MEMORY */
    double progress;           /* share of the space that is done, 0..1 */
    int64_t state[64];         /* private: where the walk is */
    struct dpari_kinds *kinds; /* private: of dpar_plan_recommend */
    double slack;              /* private: so much slower than the plans kept is still priced */
    /* private: prices of layers, shared by many configurations */
    double layers[DPAR_MAX_LAYER_CLASSES * 32];
} dpar_planner;

/* Makes a search ready. The cluster must already have search->gpus GPUs. E_ARG, E_RANGE with a
 * sentence: a job or a search that cannot be. */
DPAR_API dpar_status dpar_planner_init(dpar_planner *p, const dpar_job *job,
                                       const dpar_planner_desc *search, dpar_why *why);
/* Searches on for about `budget` configurations. MORE: call again; what was found so far is valid,
 * so you may show progress, look at the clock, or stop. DONE: the space is exhausted. E_NONE:
 * exhausted and nothing fits; *why says what came nearest. Deterministic: ties go to the canonical
 * order. O(budget x layer classes). */
DPAR_API dpar_status dpar_planner_run(dpar_planner *p, int64_t budget, dpar_why *why);

/* Neighbours of a plan at the same batch, each with the reason why it was not chosen: slower by how
 * much, over memory by how much, or the rule that it breaks. They have twice or half of tp, pp,
 * micro-batch, vp, ep or cp, or another ZeRO stage, recomputation or shard group. Writes and
 * returns at most 18. Costs at most 18 times dpar_plan_price. */
DPAR_API int32_t dpar_plan_neighbours(const dpar_job *job, const dpar_plan *plan,
                                      int64_t global_batch, dpar_plan_rejection *out, int32_t room);

/* The legal configuration nearest to `s`, which is `s` itself when it is legal. Memory does not
 * count. Nearest: fewest and smallest changes; a change of a degree counts as its ratio. E_NONE:
 * none is near, and *why says what is wrong with `s`. About 200 checks. */
DPAR_API dpar_status dpar_strategy_nearest(const dpar_job *job, const dpar_strategy *s,
                                           int64_t global_batch, dpar_strategy *near_one,
                                           dpar_why *why);

/* The fewest GPUs of this cluster's kind on which the job fits, and the best plan there: parts of a
 * node, then whole nodes. Leave global_batch 0 (free) unless it must be kept: a fixed one forbids
 * the sizes that do not divide it. E_NONE: most_gpus are not enough. Some tenths of a ms a size in
 * the usual space.
 *
 * It first looks for a size that is enough: each number of nodes up to 32, then steps of a
 * sixteenth. Then it tries every smaller one, so the answer is the least of all. A cluster without
 * a network gets one NIC of 25 GB/s a GPU beyond its node. */
DPAR_API dpar_status dpar_plan_smallest(const dpar_job *job, const dpar_planner_desc *search,
                                        int32_t most_gpus, dpar_plan *plan, dpar_why *why);

#endif
