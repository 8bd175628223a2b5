/* SPDX-License-Identifier: MIT-0 */
/* fsdp_place - private: the structs of an fsdp, what memory a description needs, and where the
 * arrays of each unit are in it. */
#ifndef DPARI_TRAIN_FSDP_PLACE_H
#define DPARI_TRAIN_FSDP_PLACE_H

#include "../base/arith.h"
#include "../comm/comm.h"
#include "../index/flat.h"
#include "../index/index_private.h"
#include "fsdp.h"

/* A unit: parameters that are gathered and reduced together. */
typedef struct dpari_fsdp_unit {
    dpari_flat flat;
    int64_t shard_at; /* first element of its shard in arrays that hold this rank's shards */
    /* the same in arrays that hold shards of units that are not frozen: gradients and moments */
    int64_t trained_at;
    /* index of its first element among the elements of all units without padding, so that random
     * numbers do not depend on the number of ranks */
    uint64_t key;
    int32_t first, last; /* its parameters are first <= i < last */
    int32_t slot;        /* slot that holds or receives its weights, or -1 */
    int32_t bucket;      /* bucket in which its gradients are computed or reduced, or -1 */
    int32_t used;        /* 1 between unshard and reshard */
    int32_t state;       /* of its gradients in this pass: DPARI_FSDP_NONE, ... */
    int32_t fresh;       /* 1 if its gradients count as 0, whatever the memory contains */
    int32_t adds;        /* 1 if backward of this pass adds to the contents of the bucket */
    int32_t frozen;      /* 1 if it has neither gradients nor moments (desc.frozen) */
    int32_t resident;    /* 1 if it is in use during a whole pass (desc.resident) */
    int32_t own_slot;    /* the only slot that can hold its weights, or -1 for any of the pool */
    int32_t own_bucket; /* the only bucket that can hold its gradients, or -1 for any of the pool */
    dpar_work across;   /* the reduction of its shard over replicas */
} dpari_fsdp_unit;

/* States of a unit's gradients in a pass: no backward yet, being computed, ready. */
enum { DPARI_FSDP_NONE, DPARI_FSDP_OPEN, DPARI_FSDP_DONE };

/* The largest number of elements, so that sizes of several arrays in bytes stay below 2^63. */
#define DPARI_FSDP_MOST (INT64_C(1) << 50)

/* Memory for the weights (a slot) or the gradients (a bucket) of a unit. */
typedef struct dpari_fsdp_slot {
    int64_t at;   /* its first element in fsdp->weights or fsdp->grads */
    int32_t unit; /* the unit in it, or -1 if it is free */
    /* bucket: 0 if no reduction was posted; otherwise larger than in buckets posted earlier */
    int32_t sent;
    /* bucket: 1 if the reduction writes directly into the shard, so that nothing is added */
    int32_t straight;
    dpar_work work; /* the all-gather or reduce-scatter of the unit */
} dpari_fsdp_slot;

struct dpar_fsdp {
    dpar_comm *shard, *replicas;    /* replicas: NULL if there are none */
    dpar_fsdp_desc desc;            /* with the defaults filled in */
    dpari_fsdp_unit *unit;          /* [units] */
    dpari_fsdp_slot *slot, *bucket; /* [slots], [buckets] */
    int64_t *count;                 /* [params] elements of each parameter */
    int64_t *start;                 /* [params] first element of each parameter in its unit */
    int32_t *home;                  /* [params] the unit of each parameter */
    int32_t *group_of;              /* [params] the group of each parameter, or -1 */
    int32_t *array_of;              /* [params] the array of each parameter; NULL without arrays */
    dpar_fsdp_array *array;         /* [desc.arrays] copy of desc.array */
    dpar_optimizer_group *group;    /* [desc.groups] copy of desc.group */
    unsigned char *memory;          /* the registered memory, which contains the arrays below */
    unsigned char *weights;         /* of compute_type: all whole units, or the pool of slots */
    unsigned char *sums;            /* shards of reduced gradients; unused if these stay whole */
    unsigned char *master;          /* of desc.type: shards of the master weights */
    unsigned char *moment[2];       /* shards of the optimizer's moments */
    unsigned char *grads;           /* of gradient_type: all whole gradients, or the buckets */
    /* Elements of the largest unit that uses the pool, including padding: of all, and of those that
     * are not frozen. Resident units do not use it. */
    int64_t largest, largest_trained;
    int64_t resident_sum;         /* elements of all resident units */
    int64_t resident_trained_sum; /* of those that are not frozen */
    int64_t shard_sum;            /* elements of all shards of this rank */
    int64_t trained_sum;          /* elements of its shards of units that are not frozen */
    int32_t units, params;
    int32_t full;         /* number of units that use the pool and have elements */
    int32_t full_trained; /* number of these that are not frozen */
    int32_t residents;    /* number of resident units */
    int32_t slots, buckets;
    /* Slots and buckets of the pool come first. 0 if each unit has its own. */
    int32_t pool_slots, pool_buckets;
    int64_t steps;      /* steps of the optimizer so far */
    double squares;     /* sum of the squares of this rank's gradients */
    int32_t pinned;     /* 1 if a device can write `squares` */
    int32_t last;       /* 1 in and after the last micro-batch of a step, and if all gradients are 0
                           (dpar_fsdp_zero) */
    int32_t under_way;  /* 1 during a pass */
    dpar_status status; /* first error of this pass, or DPAR_OK */
};

/* True if weights stay whole, so that each unit always has the slot of the same number. */
DPARI_INTERNAL int dpari_fsdp_weights_whole(const dpar_fsdp_desc *desc);
/* True if gradients stay whole until the last micro-batch, so that each unit always has the bucket
 * of the same number. */
DPARI_INTERNAL int dpari_fsdp_gradients_whole(const dpar_fsdp_desc *desc);
/* Returns the type of the optimizer's moments. */
DPARI_INTERNAL int32_t dpari_fsdp_moment_type(const dpar_fsdp_desc *desc);
/* Returns the elements of a shard of a unit of `total` elements. If moments are 8-bit codes, shards
 * are whole blocks, so that the blocks do not depend on the number of ranks. */
DPARI_INTERNAL int64_t dpari_fsdp_shard(const dpar_fsdp_desc *desc, int64_t total, int32_t shards);
/* Returns the number of parameters of unit u if there are no arrays. */
DPARI_INTERNAL int32_t dpari_fsdp_params(const dpar_fsdp_desc *desc, int32_t u);
/* Returns the number of slices of an array. */
DPARI_INTERNAL int32_t dpari_fsdp_slices(const dpar_fsdp_array *array);
/* Returns the length of desc->group_of: the number of arrays, or `params` without arrays. */
DPARI_INTERNAL int32_t dpari_fsdp_listed(const dpar_fsdp_desc *desc, int64_t params);
/* Reports where the parameters of unit u are listed, whose first parameter has number `first`: at
 * some of the places *begin .. *end - 1 of desc->count, or of desc->array if there are arrays. */
DPARI_INTERNAL void dpari_fsdp_range(const dpar_fsdp_desc *desc, int32_t u, int64_t first,
                                     int64_t *begin, int64_t *end);
/* Returns the number of elements of the parameter of unit u at this place. Returns -1 if the unit
 * has no part of this array. */
DPARI_INTERNAL int64_t dpari_fsdp_elements(const dpar_fsdp_desc *desc, int32_t u, int64_t place);
/* Returns flags[u], or 0 if there are no flags: desc->frozen or desc->resident. */
DPARI_INTERNAL int32_t dpari_fsdp_flag(const int32_t *flags, int32_t u);
/* Checks a descriptor, and computes the numbers in `fsdp` and the sizes. */
DPARI_INTERNAL dpar_status dpari_fsdp_plan(dpar_fsdp *fsdp, int32_t shards,
                                           const dpar_fsdp_desc *desc, dpar_fsdp_sizes *sizes,
                                           dpar_why *why);
/* Places the arrays of an fsdp after its struct in memory, and sets *bytes to the total size. If
 * memory is NULL, only computes the size. */
DPARI_INTERNAL void dpari_fsdp_place(dpar_fsdp *fsdp, void *memory, int64_t *bytes);
/* Computes where each unit and parameter is, and empties slots and buckets. */
DPARI_INTERNAL dpar_status dpari_fsdp_fill_in(dpar_fsdp *fsdp, dpar_why *why);
/* True if fsdp is not NULL and unit u exists. */
DPARI_INTERNAL int dpari_fsdp_is_unit(const dpar_fsdp *fsdp, int32_t u);
/* Return the addresses of the whole weights in a slot and of the whole gradients in a bucket. */
DPARI_INTERNAL unsigned char *dpari_fsdp_slot_at(const dpar_fsdp *fsdp, int32_t slot);
DPARI_INTERNAL unsigned char *dpari_fsdp_bucket_at(const dpar_fsdp *fsdp, int32_t bucket);
/* Returns the bytes from the beginning of a whole unit to this rank's shard. */
DPARI_INTERNAL int64_t dpari_fsdp_own(const dpar_fsdp *fsdp, int32_t u, int32_t type);
/* Returns the address of this rank's shard of unit u's masters. */
DPARI_INTERNAL unsigned char *dpari_fsdp_master_at(const dpar_fsdp *fsdp, int32_t u);
/* Returns the address of this rank's shard of unit u's reduced gradients. Sets *type to its type.
 */
DPARI_INTERNAL unsigned char *dpari_fsdp_reduced_at(const dpar_fsdp *fsdp, int32_t u,
                                                    int32_t *type);
/* Returns the same address as dpari_fsdp_reduced_at. If the gradients only count as 0, sets their
 * memory to 0. */
DPARI_INTERNAL unsigned char *dpari_fsdp_settled(const dpar_fsdp *fsdp, int32_t u, int32_t *type);
/* Returns the address of this rank's shard of moment k of unit u, which is not frozen. */
DPARI_INTERNAL unsigned char *dpari_fsdp_moment_at(const dpar_fsdp *fsdp, int32_t k, int32_t u);
/* Returns the index of the first element of this rank's shard among the elements of all units. */
DPARI_INTERNAL uint64_t dpari_fsdp_key(const dpar_fsdp *fsdp, int32_t u);

#endif
