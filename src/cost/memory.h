/* SPDX-License-Identifier: MIT-0 */
/* memory - predicts the bytes that a rank needs, by term. dpar_plan_price fills in the struct.
 *
 *     plan.memory.total <= cluster.gpu.memory_bytes                  true if the plan fits
 *     plan.memory.term[DPAR_MEMORY_ACTIVATIONS]
 *
 * ZeRO divides the state of a parameter among its ranks: master weights and moments from stage 1
 * on, gradients from stage 2 on, weights from stage 3 on (Rajbhandari 2020). The formulas and their
 * sources are in memory.c. */
#ifndef DPARI_COST_MEMORY_H
#define DPARI_COST_MEMORY_H

#include "strategy.h"

/* The terms of a rank's memory. */
enum {
    DPAR_MEMORY_WEIGHTS,
    DPAR_MEMORY_GRADIENTS,
    DPAR_MEMORY_MASTER,        /* master copies of the weights */
    DPAR_MEMORY_OPTIMIZER,     /* moments of the optimizer */
    DPAR_MEMORY_ACTIVATIONS,   /* kept from forward to backward, for all micro-batches in flight */
    DPAR_MEMORY_LOGITS,        /* the last stage's logits and loss, less what TRANSIENT includes */
    DPAR_MEMORY_GATHERED,      /* ZeRO-3: weights that are gathered at the same time */
    DPAR_MEMORY_BUCKETS,       /* gradient buckets in flight */
    DPAR_MEMORY_HALO,          /* halo cells and their buffers */
    DPAR_MEMORY_TRANSIENT,     /* exists only during the backward of one layer */
    DPAR_MEMORY_COMM,          /* buffers of the communication library */
    DPAR_MEMORY_CONTEXT,       /* runtime context and library workspaces */
    DPAR_MEMORY_FRAGMENTATION, /* memory that the allocator reserves beyond what is allocated */
    DPAR_MEMORY_COUNT          /* number of terms */
};

/* The moment at which a rank holds the most. */
enum {
    DPAR_MEMORY_PEAK_LAYER, /* in the backward of a layer */
    DPAR_MEMORY_PEAK_LOSS   /* while the loss is computed */
};

/* The memory of one rank in bytes, by term. */
typedef struct dpar_memory_usage {
    double term[DPAR_MEMORY_COUNT]; /* indexed by DPAR_MEMORY_*, for the worst stage */
    double allocated; /* sum without COMM, CONTEXT and FRAGMENTATION: the allocator's peak */
    double total;     /* sum of all terms: the expected use */
    /* The range of the total. It assumes 3 % to 10 % of fragmentation in place of the expected 5 %;
     * with ZeRO-3 in DeepSpeed 12 % to 25 % in place of 20 %. `lower` does not include `late`. */
    double lower, upper;
    double late;        /* part of GATHERED that is released late, but at once if the memory is
                           needed */
    double first, last; /* totals of the first and of the last stage */
    int32_t worst;      /* pipeline rank of the stage that needs the most */
    int32_t moment;     /* DPAR_MEMORY_PEAK_*: when this stage needs the most */
    double host;        /* bytes of host memory per rank that offloading takes, NVMe not included */
    double params;      /* number of weights on a rank of the worst stage, before ZeRO divides
                           them */
} dpar_memory_usage;

/* Returns the name of a term as in the JSON output ("weights", ...), or "?" if there is no such
 * term. The text is static. O(1). */
DPAR_API const char *dpar_memory_name(int32_t term);
/* Predicts the memory of one pipeline rank.
 *
 * strategy: a strategy that dpar_plan_price accepts.
 * rank:     0..pp-1; a value outside selects the nearest one.
 * memory:   the result; `first` and `last` are this rank's total.
 *
 * O(layer classes). */
DPAR_API void dpar_memory_stage(const dpar_job *job, const dpar_strategy *strategy, int32_t rank,
                                dpar_memory_usage *memory);

#endif
