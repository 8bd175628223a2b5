/* SPDX-License-Identifier: MIT-0 */
/* ddp_private - private: the structs of a ddp and a zero1, and the functions of ddp.c that zero1.c
 * calls. */
#ifndef DPARI_TRAIN_DDP_PRIVATE_H
#define DPARI_TRAIN_DDP_PRIVATE_H

#include "../base/arith.h"
#include "ddp.h"
#include "zero1.h"

struct dpar_ddp {
    /* the fields that dpar_ddp_ready uses, kept together */
    /* [params] the last pass since dpar_ddp_zero in which each was ready, or 0; a 0 precedes them,
     * at which a search backwards stops */
    uint8_t *seen;
    int32_t open;       /* params while a pass is under way, otherwise 0 */
    int32_t pass;       /* number of the pass, 1 to 255 */
    int32_t latest;     /* the last parameter that is not ready */
    int32_t edge;       /* once `latest` is below this parameter, the next bucket is sent */
    dpar_status status; /* of this pass; the first error stays */
    dpar_comm *comm;
    dpar_ddp_desc desc;
    int64_t *count; /* [params] elements of each */
    /* [params + 1] where each begins, in elements of `buffer`, or of `copy` with arrays; an array
     * that is sent in place has no elements there */
    int64_t *start;
    void **array; /* [params] the caller's arrays; NULL if all gradients are in `buffer` */
    /* [params] with desc.track_used: 1 if any rank reported it, valid after the end */
    uint8_t *used;
    dpar_bucket *bucket;   /* lo and hi count as `start` does */
    int32_t *works;        /* [buckets] works of this pass up to the end of each bucket */
    dpar_work *work;       /* in the order in which they are posted */
    unsigned char *buffer; /* all gradients; NULL with arrays */
    unsigned char *copy;   /* gradients that are sent from a copy, as copy_type; or NULL */
    int32_t copy_type;
    int32_t through; /* 1 if the all-reduce itself rounds F32 to the wire type */
    int32_t owns;    /* 1 if dpar allocated the buffer */
    int32_t made;    /* 1 if dpar allocated the memory of this struct */
    /* desc.check_finite: the first element of the buffer that is not finite, or -1 */
    int64_t found;
    int32_t pinned;   /* 1 if a device can write `found` */
    int64_t elements; /* of the buffer, or of the copy with arrays */
    int32_t params, buckets;
    int32_t next;         /* the bucket to be posted next */
    int32_t posted, back; /* buckets of this pass that were posted, and those that have arrived */
    int32_t work_count;   /* works of this pass so far */
    int32_t last;         /* 1 if this pass reduces */
    int32_t under_way;    /* 1 within a pass */
    int32_t alone;        /* 1 while the only bucket is sent by a call that waits for it */
    /* zero1: 1 if buckets of this pass are sent only to the owners of their parts */
    int32_t scatter;
    int32_t ended;     /* zero1: 1 if there are averages that no step has used yet */
    dpar_zero1 *zero1; /* or NULL */
};

struct dpar_zero1 {
    dpar_ddp *ddp;
    unsigned char *weights;
    const dpar_optimizer *optimizer;
    int32_t kind, moments, moment_type; /* of the optimizer */
    int32_t pinned;                     /* 1 if a device can write *squares */
    unsigned char *moment[2];           /* the second follows the first in memory */
    int64_t steps;
    dpar_zero1_group *group;
    int32_t groups;
    /* sum for this rank's gradients; in memory of its own, because CUDA does not copy an array of
     * which a part is pinned */
    double *squares;
    int64_t share;  /* elements of a rank's share; the last shares may be shorter */
    int64_t *count; /* [ranks] elements of each rank's share */
};

/* Ends a pass; if none is under way, runs a whole one. scatter: 1 if each rank needs only its share
 * of the averages. */
DPARI_INTERNAL dpar_status dpari_ddp_finish(dpar_ddp *ddp, int32_t scatter);
/* The address of bucket k's elements where all gradients are in one buffer, and the bucket; NULL if
 * there is none. For tests and benchmarks. */
DPARI_INTERNAL void *dpari_ddp_bucket(const dpar_ddp *ddp, int32_t k, dpar_bucket *bucket);
/* The first element of this rank's share. */
DPARI_INTERNAL int64_t dpari_ddp_first(const dpar_zero1 *zero1);
/* Gathers the shares of all ranks into data[elements] on all ranks. hash: of the values that all
 * ranks must have given alike; DPAR_E_MISMATCH if it differs. Collective. */
DPARI_INTERNAL dpar_status dpari_ddp_gather(const dpar_zero1 *zero1, void *data, uint64_t hash);

#endif
