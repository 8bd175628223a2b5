/* SPDX-License-Identifier: MIT-0 */
/* planner - searches all legal strategies of a job and keeps the best plans, with reasons.
 * dpar_plan_search (plan_text.h) does it all in one call.
 *
 *     dpar_plan best;
 *     dpar_planner_desc search = {0};                            the whole cluster, any batch
 *     search.top = &best;
 *     search.top_capacity = 1;
 *     dpar_planner_init(&planner, &job, &search, &why);
 *     while ((st = dpar_planner_run(&planner, 100000, &why)) == DPAR_MORE) {
 *         show(planner.progress);                          0..1
 *     } */
#ifndef DPARI_COST_PLANNER_H
#define DPARI_COST_PLANNER_H

#include "memory.h"
#include "step.h"

/* A strategy and its price. */
typedef struct dpar_plan {
    dpar_strategy strategy;
    dpar_memory_usage memory;
    dpar_step_cost step;
    /* 1 if memory.lower fits into the GPU and the offloaded bytes into the node's memory. A search
     * is stricter: it keeps a plan only if memory.upper without memory.late fits. */
    int32_t fits;
} dpar_plan;

/* Prices one strategy: checks that it is legal and predicts its memory and its time.
 *
 * global_batch: samples per step that the strategy must have; 0 if it is free.
 * plan:         the result; also written if the plan does not fit.
 * rule:         receives the rule that the strategy breaks, DPAR_STRATEGY_RULE_*; may be NULL.
 *
 * O(layer classes), about 300 ns. Fails with DPAR_E_DIVIDE, DPAR_E_ARG or another status if the
 * strategy is not legal, and with DPAR_E_MEMORY if it does not fit. The message has the numbers. */
DPAR_API dpar_status dpar_plan_price(const dpar_job *job, const dpar_strategy *strategy,
                                     int64_t global_batch, dpar_plan *plan, int32_t *rule,
                                     dpar_why *why);

/* The spaces of a search. */
enum {
    /* The strategies that are usual in practice. tp divides a node and comes with sequence
     * parallelism. cp and micro-batch are powers of two. Pipelines are 1F1B, or interleaved with
     * chunks of equal length, except that the last chunk of a rank may be one layer shorter. If vp
     * is fixed, chunks may have other lengths. ZeRO is 0 or 1, without pipelines also 2 or 3. etp
     * is 1. Overlap is as in the software stack. Grids are cut where the surface is smallest.
     * Nothing is offloaded, although offloading activations can be a few per cent faster on paper.
     *
     * If no Pareto front is wanted (dpar_planner_desc.front), the search does not price strategies
     * that cannot be among the best (`top`); it counts them in `cut`. Otherwise it prices all. */
    DPAR_SPACE_USUAL,
    /* All strategies. tp (also across nodes), cp, pp, ep and micro-batch take every divisor, and vp
     * is as above. The options are sp 0 and 1, all kinds of cp, all schedules, ZeRO 0 to 3, HSDP,
     * the offloads, three overlaps, and every cut of a grid.
     *
     * The search is branch and bound: strategies that cannot change the top, or the front if one is
     * wanted, are counted in `cut`. The bounds are safe, so the plans found are those of the full
     * walk. Without top and front it prices everything.
     *
     * The space includes that of Calculon except for two choices: which network each degree uses
     * (here that follows from where its ranks are) and how an all-reduce of TP is split. */
    DPAR_SPACE_WHOLE
};

/* Describes a search. Zero selects the whole cluster, a free batch and the usual space. */
typedef struct dpar_planner_desc {
    int32_t gpus;          /* GPUs of the cluster; 0 selects all of them */
    int64_t global_batch;  /* samples per step; 0 selects four micro-batches per pipeline stage */
    int32_t space;         /* DPAR_SPACE_* */
    dpar_strategy fixed;   /* values of the fields whose bits are set in fixed_fields */
    uint32_t fixed_fields; /* bits 1 << DPAR_STRATEGY_FIELD_* of the fields that are fixed */
    double memory_bytes;   /* limit per GPU; 0 selects the memory of the GPU */
    /* Where the search writes its plans. Only dpar_planner_init reads these fields. */
    dpar_plan *top;   /* [top_capacity] the best plans, best first; may be NULL */
    dpar_plan *front; /* [front_capacity] Pareto front of step time x memory; may be NULL */
    int32_t top_capacity, front_capacity; /* capacities */
} dpar_planner_desc;

/* A neighbour of a plan, and the reason why it was not chosen. */
typedef struct dpar_plan_rejection {
    dpar_strategy strategy;
    int32_t rule;      /* DPAR_STRATEGY_RULE_*; NONE if it is legal but slower */
    double seconds;    /* predicted time of a step; 0 if it was not priced */
    double bytes_over; /* bytes by which it exceeds the GPU; only for DPAR_STRATEGY_RULE_MEMORY */
    char text[160];    /* the reason in words */
} dpar_plan_rejection;

/* The state of a search. The caller owns it and the arrays for the plans. A search allocates
 * nothing else, whatever the size of the space. */
typedef struct dpar_planner {
    dpar_job job; /* the objects that it points to must outlive the search */
    dpar_planner_desc search;
    dpar_plan *top; /* best first: by samples/s, which for a fixed batch is by step time */
    int32_t top_capacity, top_count;
    dpar_plan *front; /* Pareto front of step time x memory, fastest first */
    int32_t front_capacity, front_count;
    int64_t evaluated; /* strategies that were priced: their memory, and their time if they fit */
    int64_t rejected[DPAR_STRATEGY_RULE_COUNT]; /* strategies by the rule that they break; those of
                                     MEMORY were priced */
    int64_t cut;               /* legal strategies not priced, because a bound excludes them */
    int64_t walked;            /* evaluated + cut + rejected by rules other than MEMORY */
    double progress;           /* share of the space that is done, 0..1 */
    int64_t state[64];         /* private: the position of the walk */
    struct dpari_kinds *kinds; /* private: used by dpar_plan_recommend */
    double slack; /* private: strategies up to this factor slower than the kept ones are priced */
    /* private: prices of layers, shared by many strategies */
    double layers[DPAR_MAX_LAYER_CLASSES * 32];
} dpar_planner;

/* Prepares a search. If search->gpus is not 0, it must be the number of GPUs of the cluster
 * (dpar_cluster_resize). Local. Costs O(sqrt(gpus)) for each divisor of the number of GPUs and of
 * the batch. Fails with DPAR_E_ARG or DPAR_E_RANGE if a number of the job or of the search is not
 * allowed. */
DPAR_API dpar_status dpar_planner_init(dpar_planner *planner, const dpar_job *job,
                                       const dpar_planner_desc *search, dpar_why *why);
/* Continues a search for about `budget` strategies. Returns DPAR_MORE while there are more to
 * visit, and DPAR_DONE at the end. Between calls the plans found so far are valid: the caller may
 * show the progress, look at the clock, or stop.
 *
 * The result is deterministic: of equally good plans, the one visited first is kept. Local.
 * O(budget x layer classes). If top_capacity is at least 1, the function fails with DPAR_E_NONE at
 * the end if no strategy fits or none is legal; the message says which plan came nearest, or which
 * rule most strategies break. */
DPAR_API dpar_status dpar_planner_run(dpar_planner *planner, int64_t budget, dpar_why *why);

/* Lists the neighbours of a plan at the same batch, each with the reason why it was not chosen: how
 * much slower it is, how much memory it lacks, or which rule it breaks. Returns their number, at
 * most `capacity` and at most 18.
 *
 * global_batch: samples per step; 0 if it is free.
 * plans:        [capacity], receives the neighbours.
 *
 * A neighbour has twice or half of tp, pp, micro-batch, vp, ep or cp, or another ZeRO stage,
 * recomputation or shard group. Costs at most 18 times dpar_plan_price. */
DPAR_API int32_t dpar_plan_neighbours(const dpar_job *job, const dpar_plan *plan,
                                      int64_t global_batch, dpar_plan_rejection *plans,
                                      int32_t capacity);

/* Finds the legal strategy nearest to `strategy`, which is `strategy` itself if it is legal. Memory
 * is not considered. The nearest strategy has the fewest and smallest changes; a change of a degree
 * counts as the ratio of its values.
 *
 * global_batch: samples per step that the result must have; 0 if it is free.
 * near_one:     written on success only.
 *
 * About 200 checks. Fails with DPAR_E_NONE if it finds no legal strategy; the message says which
 * rule `strategy` breaks. */
DPAR_API dpar_status dpar_strategy_nearest(const dpar_job *job, const dpar_strategy *strategy,
                                           int64_t global_batch, dpar_strategy *near_one,
                                           dpar_why *why);

/* Finds the smallest number of GPUs on which a job fits, and the best plan there. The GPUs are a
 * part of one node of the cluster's kind, or whole nodes.
 *
 * search:    set global_batch only if it must be kept, because a fixed batch excludes the sizes
 *            that do not divide it.
 * most_gpus: the largest size to try.
 * plan:      the result; dpar_strategy_ranks of its strategy is the number of GPUs.
 *
 * The function first looks for a size that suffices. It tries each number of nodes up to 32, and
 * from then on increases the number by a sixteenth each time. Then it tries every smaller size, so
 * the answer is the smallest of all. If the cluster has no network, sizes of several nodes are
 * priced with one NIC of 25 GB/s per GPU.
 *
 * Takes some tenths of a millisecond per size in the usual space. Fails with DPAR_E_NONE if
 * most_gpus are not enough. */
DPAR_API dpar_status dpar_plan_smallest(const dpar_job *job, const dpar_planner_desc *search,
                                        int32_t most_gpus, dpar_plan *plan, dpar_why *why);

#endif
