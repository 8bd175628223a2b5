/* SPDX-License-Identifier: MIT-0 */
/* memory - bytes a rank, by term and by stage. */
#ifndef DPARI_COST_MEMORY_H
#define DPARI_COST_MEMORY_H

#include "strategy.h"

enum {
    DPAR_MEM_WEIGHTS,
    DPAR_MEM_GRADIENTS,
    DPAR_MEM_MASTER,
    DPAR_MEM_OPTIMIZER,
    DPAR_MEM_ACTIVATIONS,   /* kept from forward to backward, all micro-batches in flight */
    DPAR_MEM_LOGITS,        /* last stage: logits and loss, beyond TRANSIENT */
    DPAR_MEM_GATHERED,      /* ZeRO-3: units gathered at once */
    DPAR_MEM_BUCKETS,       /* gradient buckets in flight */
    DPAR_MEM_HALO,          /* halo cells and their buffers */
    DPAR_MEM_TRANSIENT,     /* alive only while one layer's backward runs */
    DPAR_MEM_COMM,          /* the communication library's buffers */
    DPAR_MEM_CONTEXT,       /* runtime context and library workspaces */
    DPAR_MEM_FRAGMENTATION, /* the allocator's reserve over what is allocated */
    DPAR_MEMS
};

typedef struct dpar_memory {
    double term[DPAR_MEMS]; /* of the worst stage, bytes */
    double allocated;       /* sum without COMM, CONTEXT and FRAGMENTATION: the allocator's peak */
    double total;           /* sum of all terms: the expected use */
    double lower, upper;    /* with 3 % and 10 % of fragmentation */
    double first, last;     /* totals of the first and of the last stage */
    int32_t worst;          /* pipeline rank of the worst stage */
    double host;            /* bytes of host memory a rank, by offloading (not to NVMe) */
    double params;          /* weights of the worst stage's rank, before ZeRO */
} dpar_memory;

/* "weights", ...: the names in JSON; "?" for a number that is none. */
DPAR_API const char *dpar_memory_name(int32_t term);

/* Bytes of one pipeline rank, by term, into m->term, total, ...; m->worst is that rank. rank of
 * 0..pp-1; a rank outside is taken as the nearest one. O(layer classes). */
DPAR_API void dpar_memory_of_stage(const dpar_job *job, const dpar_strategy *s, int32_t rank,
                                   dpar_memory *m);

/* Does it fit? The upper figure into `limit` bytes of a GPU (0: what the GPU has), and what is
 * offloaded by all GPUs of a node into the node's memory. */
DPAR_API int32_t dpar_memory_fits(const dpar_job *job, const dpar_memory *m, double limit);

/* Memory of the rank that needs the most. The strategy must have passed dpar_strategy_check.
 * O(layer classes). Formulas and their sources: memory.c. */
DPAR_API void dpar_memory_of(const dpar_job *job, const dpar_strategy *s, dpar_memory *m);

/* ZeRO's table: bytes a rank of `params` parameters over d ranks at stage 0..3 (Rajbhandari 2020).
 */
DPAR_API double dpar_zero_bytes(const dpar_recipe *r, double params, int32_t stage, int32_t d);

/* Micro-batches whose activations pipeline rank `rank` of 0..pp-1 holds, in full-stage units, by
 * schedule; 0 for a rank, degree or schedule that is none. */
DPAR_API double dpar_in_flight(int32_t schedule, int32_t pp, int32_t vp, int32_t rank,
                               int32_t micro_batches);

#endif
