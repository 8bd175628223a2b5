/* SPDX-License-Identifier: MIT-0 */
/* memory - how many bytes a rank needs, by term. dpar_plan_price fills it in.
 *
 *     plan.memory.total <= cluster.gpu.memory_bytes                  does it fit?
 *     plan.memory.term[DPAR_MEMORY_ACTIVATIONS]
 *
 * ZeRO divides the bytes of a parameter over its ranks: from stage 1 on master and moments, from 2
 * on gradients, from 3 on weights (Rajbhandari 2020). Formulas and their sources: memory.c. */
#ifndef DPARI_COST_MEMORY_H
#define DPARI_COST_MEMORY_H

#include "strategy.h"

enum {
    DPAR_MEMORY_WEIGHTS,
    DPAR_MEMORY_GRADIENTS,
    DPAR_MEMORY_MASTER,
    DPAR_MEMORY_OPTIMIZER,
    DPAR_MEMORY_ACTIVATIONS,   /* kept from forward to backward, all micro-batches in flight */
    DPAR_MEMORY_LOGITS,        /* last stage: logits and loss, beyond TRANSIENT */
    DPAR_MEMORY_GATHERED,      /* ZeRO-3: what is gathered at once */
    DPAR_MEMORY_BUCKETS,       /* gradient buckets in flight */
    DPAR_MEMORY_HALO,          /* halo cells and their buffers */
    DPAR_MEMORY_TRANSIENT,     /* alive only while one layer's backward runs */
    DPAR_MEMORY_COMM,          /* the communication library's buffers */
    DPAR_MEMORY_CONTEXT,       /* runtime context and library workspaces */
    DPAR_MEMORY_FRAGMENTATION, /* the allocator's reserve over what is allocated */
    DPAR_MEMORY_COUNT
};

/* When a rank holds the most. */
enum {
    DPAR_MEMORY_PEAK_LAYER,
    DPAR_MEMORY_PEAK_LOSS
}; /* in the backward of a layer, or at the loss */

/* Bytes of a rank, by term. */
typedef struct dpar_memory_usage {
    double term[DPAR_MEMORY_COUNT]; /* of the worst stage, bytes */
    double allocated;    /* sum without COMM, CONTEXT and FRAGMENTATION: the allocator's peak */
    double total;        /* sum of all terms: the expected use */
    double lower, upper; /* the total with 3 % and with 10 % of fragmentation */
    double late;         /* of GATHERED: what is let go of late, and given back to make room */
    double first, last;  /* totals of the first and of the last stage */
    int32_t worst;       /* pipeline rank of the worst stage */
    int32_t moment;      /* DPAR_MEMORY_PEAK_*: when that is */
    double host;         /* bytes of host memory a rank, by offloading (not to NVMe) */
    double params;       /* weights of the worst stage's rank, before ZeRO */
} dpar_memory_usage;

/* The name of a term, as in JSON: "weights", ...; "?" for any other number. Static text. O(1). */
DPAR_API const char *dpar_memory_name(int32_t term);
/* The memory of one pipeline rank (the nearest one to `rank`), for a strategy that dpar_plan_price
 * takes: totals of the others are in no field. O(layer classes). */
DPAR_API void dpar_memory_stage(const dpar_job *job, const dpar_strategy *s, int32_t rank,
                                dpar_memory_usage *m);

#endif
