/* SPDX-License-Identifier: MIT-0 */
/* ddp_private - private: the structs of a ddp and a zero1, and the functions of ddp.c that zero1.c,
 * the tests and the benchmarks call. */
#ifndef DPARI_TRAIN_DDP_PRIVATE_H
#define DPARI_TRAIN_DDP_PRIVATE_H

#include "../base/arith.h"
#include "ddp.h"
#include "wire_blocks.h"
#include "zero1.h"

struct dpar_ddp {
    /* dpar_ddp_ready uses the fields down to `status`, which are therefore kept together. */

    /* [params] number of the last pass since dpar_ddp_zero in which each parameter was ready; 0 if
     * none. seen[-1] is 0, so that the backward search in dpar_ddp_ready stops there. */
    uint8_t *seen;
    int32_t open;   /* params during a pass, otherwise 0 */
    int32_t pass;   /* number of the pass, 1 to 255; after 255 comes 2 */
    int32_t latest; /* the largest parameter that is not ready yet; -1 if all are */
    /* first parameter of the next bucket, which is sent once `latest` is below it; -1 if no bucket
     * is left or this pass sends nothing */
    int32_t edge;
    dpar_status status; /* first error of this pass, or DPAR_OK */
    dpar_comm *comm;
    dpar_ddp_desc desc;
    int64_t *count; /* [params] elements of each parameter */
    /* [params + 1] first element of each parameter in `buffer`, or in `copy` with desc.arrays. An
     * array that is sent in place has no elements in `copy`: start[i] == start[i + 1]. */
    int64_t *start;
    void **array; /* [params] the caller's arrays; NULL if all gradients are in `buffer` */
    /* [params] with desc.track_used: 1 if any rank reported the parameter, valid after the pass */
    uint8_t *used;
    dpar_bucket *bucket;   /* [buckets] lo and hi are positions like those in `start` */
    int32_t *works;        /* [buckets] works posted in this pass up to the end of each bucket */
    dpar_work *work;       /* works of this pass, in the order in which they were posted */
    unsigned char *buffer; /* all gradients in one array; NULL with desc.arrays */
    unsigned char *copy;   /* of type copy_type: gradients that are sent from a copy, or NULL */
    int32_t copy_type;
    int32_t through; /* 1 if the all-reduce itself rounds F32 to the wire type, without a copy */
    dpari_wire_blocks blocks; /* with an 8-bit wire_type; blocks.sent is NULL otherwise */
    int32_t owns;             /* 1 if dpar allocated `buffer` */
    int32_t made;             /* 1 if dpar allocated the memory of this struct */
    /* Results of one operation, which a device can write if `pinned` is 1. */
    union {
        /* with desc.check_finite: position (like those in `start`) of the first element that is not
         * finite, or -1 */
        int64_t found;
        double squares; /* sum of the squares of this rank's part of the gradients */
    } result;
    int32_t pinned;
    int64_t elements; /* size of `buffer`, or of `copy` with desc.arrays */
    int32_t params, buckets;
    int32_t next;       /* the bucket to be posted next */
    int32_t posted;     /* buckets that were posted in this pass */
    int32_t back;       /* buckets of this pass whose reduction was waited for */
    int32_t work_count; /* works that were posted in this pass */
    int32_t first_work; /* the first work that is waited for last: 0, or of the gathers of codes */
    int32_t last;       /* 1 if this pass sends the gradients */
    int32_t under_way;  /* 1 during a pass */
    int32_t alone;      /* 1 while the only bucket is sent by a call that waits for it */
    /* 1 if a zero1 exists and each part of a bucket is sent only to the rank that owns it */
    int32_t scatter;
    /* 1 if dpar_ddp_end or dpar_zero1_norm has computed averages that no zero1 step has used yet */
    int32_t ended;
    dpar_zero1 *zero1; /* NULL if there is none */
};

struct dpar_zero1 {
    dpar_ddp *ddp;
    unsigned char *weights;
    const dpar_optimizer *optimizer;
    int32_t kind, moments, moment_type; /* of the optimizer when the zero1 was made */
    /* [moments] this rank's share of each moment, of moment_type; both are in one allocation */
    unsigned char *moment[2];
    int64_t steps;           /* steps of the optimizer so far, including desc.steps */
    dpar_zero1_group *group; /* [groups] copy of desc.group */
    int32_t groups;
    int64_t share;  /* elements of each rank's share; the last ranks may have fewer */
    int64_t *count; /* [ranks] elements that each rank really has */
};

/* What differs if the collectives of a step with zero1 do not match. */
#define DPARI_ZERO1_ALIKE "zero1: rate, clip, factor or the optimizer's numbers, or dpar_ddp_end"

/* Ends the pass in progress. If there is none, runs a whole pass in which nothing was reported.
 * scatter: 1 if each rank needs only the averages of its share. */
DPARI_INTERNAL dpar_status dpari_ddp_finish(dpar_ddp *ddp, int32_t scatter);
/* Returns the address of the elements of bucket k, or NULL if there is no such bucket. Requires
 * that all gradients are in one buffer. bucket: set to the bucket; may be NULL. Only tests and
 * benchmarks call it. */
DPARI_INTERNAL void *dpari_ddp_bucket(const dpar_ddp *ddp, int32_t k, dpar_bucket *bucket);
/* Makes ddp->result writable by a device, if there is one. */
DPARI_INTERNAL dpar_status dpari_ddp_pin(dpar_ddp *ddp);
/* Computes the sum of the squares of this rank's part of the gradients, and waits for it. The parts
 * are as large as the shares of a zero1. duplicate: [params] 1 for parameters to omit; NULL if
 * there are none. */
DPARI_INTERNAL dpar_status dpari_ddp_squares(dpar_ddp *ddp, const uint8_t *duplicate,
                                             double *squares);
/* Returns the first element of this rank's share in the flat array. */
DPARI_INTERNAL int64_t dpari_ddp_first(const dpar_zero1 *zero1);
/* Gathers the shares of all ranks into data[elements] on all ranks. Collective. Fails with
 * DPAR_E_MISMATCH if the ranks pass different hashes. */
DPARI_INTERNAL dpar_status dpari_ddp_gather(const dpar_zero1 *zero1, void *data, uint64_t hash);

#endif
