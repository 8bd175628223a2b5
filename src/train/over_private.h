/* SPDX-License-Identifier: MIT-0 */
/* over_private - private: what a ddp over the caller's gradients is made of, for zero1. */
#ifndef DPARI_TRAIN_OVER_PRIVATE_H
#define DPARI_TRAIN_OVER_PRIVATE_H

#include "../base/arith.h"
#include "ddp_private.h"
#include "over.h"
#include "zero1.h"

/* Elements lo <= i < hi of all, array after array. */
typedef struct dpari_span {
    int64_t lo, hi;
} dpari_span;

/* Spans that neither meet nor touch, ascending. */
typedef struct dpari_spans {
    dpari_span *at;
    int32_t count, room;
} dpari_spans;

typedef struct dpari_over_array {
    unsigned char *data;
    int64_t first;  /* its first element among all; behind the last array: all elements */
    int64_t packed; /* among those of short arrays, which travel as one; -1: it is long */
} dpari_over_array;

/* The state of zero1; all zero before its first step. */
typedef struct dpari_zero1 {
    int32_t kind, moments, moment_type; /* of the optimizer; kind 0: there is no state yet */
    int32_t pinned;
    unsigned char *moment[2]; /* the second lies behind the first */
    int64_t steps;
    dpar_zero1_group *group;
    int32_t groups;
    double *squares; /* of this rank's gradients: a device writes it, once it is pinned; in memory
                        of its own, as CUDA copies no array of which a part is pinned */
} dpari_zero1;

typedef struct dpari_over {
    dpar_ddp d; /* first: what the caller has. Of it: c, options.type, status, under_way, last */
    int64_t elements, bucket_bytes;
    int32_t arrays, hint; /* hint: the array of which something was done last */
    dpari_over_array *array;
    unsigned char *pack; /* registered: of all short arrays; NULL: there are none */
    dpari_spans seen;    /* done in this pass */
    dpari_spans fresh;   /* rank 0, in the first pass: those that are in no bucket yet */
    dpari_span *bucket;  /* what travels, in this order; known after the first pass */
    dpar_work *work;
    int32_t planned, buckets, next, posted; /* next: the bucket whose turn it is; posted: works */
    int32_t open;                           /* something of this pass was done */
    int32_t scatter;                        /* what leaves early goes to its owner alone */
    int32_t ended;                          /* averages are there that zero1 has not used yet */
    int64_t share;                          /* elements of a rank's share, but for the last ones */
    int64_t *count;                         /* [ranks]: of each */
    dpari_zero1 zero1;
} dpari_over;

/* Ends a pass. scatter: 1: each rank needs its share alone. */
DPARI_INTERNAL dpar_status dpari_over_finish(dpari_over *o, int32_t scatter);
/* Its handle, if d lies over the caller's gradients; else NULL, and the sentence. */
DPARI_INTERNAL dpari_over *dpari_over_of(dpar_ddp *d);
/* Where this rank's share begins. */
DPARI_INTERNAL int64_t dpari_over_first(const dpari_over *o);
/* The shares of all ranks come to all of data[elements]. hash: of what they must have given alike:
 * E_MISMATCH. COLLECTIVE. */
DPARI_INTERNAL dpar_status dpari_over_gather(dpari_over *o, void *data, uint64_t hash);

#endif
