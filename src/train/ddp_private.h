/* SPDX-License-Identifier: MIT-0 */
/* ddp_private - private: what a ddp is made of. */
#ifndef DPARI_TRAIN_DDP_PRIVATE_H
#define DPARI_TRAIN_DDP_PRIVATE_H

#include "ddp.h"

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
    dpar_ddp_desc options;
    int64_t *numel, *start; /* of each; start in elements of the buffer */
    uint8_t *used;          /* options.unused: on any rank, after the end */
    dpar_bucket *bucket;
    dpar_work *work;              /* of each bucket */
    unsigned char *buffer, *copy; /* copy: in type wire, of what travels; or NULL */
    int64_t found;                /* options.finite: which element of the buffer is not */
    int32_t pinned;               /* a device can write it */
    int64_t elements;
    int32_t params, buckets;
    int32_t next;         /* the bucket whose turn it is */
    int32_t posted, back; /* buckets of this pass, and of these those that are back */
    int32_t last;         /* this pass reduces */
    int32_t under_way;
    dpar_status (*ends)(dpar_ddp *d); /* of one that lies over the caller's gradients: its end */
};

#endif
