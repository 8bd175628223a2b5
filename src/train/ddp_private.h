/* SPDX-License-Identifier: MIT-0 */
/* ddp_private - private: what a ddp and a zero1 are made of, and what they use of each other. */
#ifndef DPARI_TRAIN_DDP_PRIVATE_H
#define DPARI_TRAIN_DDP_PRIVATE_H

#include "../base/arith.h"
#include "ddp.h"
#include "zero1.h"

struct dpar_ddp {
    /* what dpar_ddp_ready touches */
    uint8_t *seen;      /* the last pass since zero in which each was ready, 0: none; before them
                           a 0 */
    int32_t open;       /* params while a pass is under way, else 0 */
    int32_t pass;       /* 1 .. 255 */
    int32_t latest;     /* the last parameter that is not ready */
    int32_t edge;       /* with `latest` before this one the next bucket leaves */
    dpar_status status; /* of this pass */
    dpar_comm *c;
    dpar_ddp_desc desc;
    int64_t *count;        /* [params] elements of each */
    int64_t *start;        /* [params + 1] where each begins, in elements of `buffer`; with arrays
                              of `copy`: one that is sent in place takes no elements there */
    void **array;          /* [params] the caller's arrays; NULL: all are in `buffer` */
    uint8_t *used;         /* desc.track_used: on any rank, after the end */
    dpar_bucket *bucket;   /* lo, hi: as start */
    int32_t *works;        /* [buckets] works of this pass up to the end of each bucket */
    dpar_work *work;       /* in the order in which they are posted */
    unsigned char *buffer; /* all gradients; NULL with arrays */
    unsigned char *copy;   /* what is sent from a copy, in elements of copy_type; or NULL */
    int32_t copy_type;
    int32_t through;  /* the all-reduce rounds F32 to the wire type */
    int32_t owns;     /* dpar allocated the buffer */
    int32_t made;     /* dpar allocated the memory of this struct */
    int64_t found;    /* desc.check_finite: which element of the buffer is not */
    int32_t pinned;   /* a device can write it */
    int64_t elements; /* of the buffer; with arrays of the copy */
    int32_t params, buckets;
    int32_t next;         /* the bucket whose turn it is */
    int32_t posted, back; /* buckets of this pass, and of these those that are back */
    int32_t work_count;   /* works of this pass */
    int32_t last;         /* this pass reduces */
    int32_t under_way;
    int32_t alone;     /* the bucket that is sent is the only one, and awaited at once */
    int32_t scatter;   /* zero1: each bucket of this pass is sent only to the owners of its parts */
    int32_t ended;     /* zero1: averages are there that no step has used yet */
    dpar_zero1 *zero1; /* or NULL */
};

struct dpar_zero1 {
    dpar_ddp *ddp;
    unsigned char *weights;
    const dpar_optimizer *optimizer;
    int32_t kind, moments, moment_type; /* of the optimizer */
    int32_t pinned;                     /* a device can write *squares */
    unsigned char *moment[2];           /* the second lies behind the first */
    int64_t steps;
    dpar_zero1_group *group;
    int32_t groups;
    double *squares; /* of this rank's gradients: in memory of its own, as CUDA copies no array of
                        which a part is pinned */
    int64_t share;   /* elements of a rank's share, but for the last ones */
    int64_t *count;  /* [ranks] elements of each rank's share */
};

/* Ends a pass, or a whole one if none is under way. scatter: 1 if each rank needs only its share of
 * the averages. */
DPARI_INTERNAL dpar_status dpari_ddp_finish(dpar_ddp *d, int32_t scatter);
/* The address of bucket k's elements where all gradients are in one buffer, and the bucket; NULL if
 * there is none. For tests and benchmarks. */
DPARI_INTERNAL void *dpari_ddp_bucket(const dpar_ddp *d, int32_t k, dpar_bucket *bucket);
/* The first element of this rank's share. */
DPARI_INTERNAL int64_t dpari_ddp_first(const dpar_zero1 *z);
/* Gathers the shares of all ranks in all of data[elements]. hash: of what all ranks must have given
 * alike, which is checked (E_MISMATCH). Collective. */
DPARI_INTERNAL dpar_status dpari_ddp_gather(const dpar_zero1 *z, void *data, uint64_t hash);

#endif
