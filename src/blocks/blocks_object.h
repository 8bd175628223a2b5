/* SPDX-License-Identifier: MIT-0 */
/* blocks_object - the data of blocks, their arrays and their plans. Private.
 *
 * The geometry of an exchange is that of ../index/halo.h: each block is a rank of a dpar_halo,
 * whose mesh is the grid of blocks. Its lists of transfers say which box each block gets from which
 * other block. The owners of the two blocks decide how the box travels.
 *
 * A plan exchanges arrays of certain shapes, forward or with one operation of the adjoint. An item
 * of a plan is a box that this rank takes for one of its blocks, or packs for a peer. */
#ifndef DPARI_BLOCKS_BLOCKS_OBJECT_H
#define DPARI_BLOCKS_BLOCKS_OBJECT_H

#include "../exchange/exchange.h"
#include "../host/strided.h"
#include "../index/halo.h"
#include "blocks.h"

/* What arrays have in common if the same plan can exchange them. */
typedef struct dpari_blocks_shape {
    struct dpari_blocks_shape *next;
    dpar_blocks_field field; /* components, strides and component_stride are set */
    int32_t number;          /* counted from 0, the same on all ranks */
    int32_t type;
    int32_t attached; /* 1 if the user has made the blocks */
    int32_t strided;  /* 1 if the user has set strides */
    int64_t bytes;    /* of a block with its halo, a multiple of 64; not if attached */
    int64_t origin;   /* bytes from its beginning to its first own point */
    dpar_halo halo;   /* of the grid whose ranks are blocks */
} dpari_blocks_shape;

typedef struct dpari_blocks_plan dpari_blocks_plan;

typedef struct dpari_blocks_array {
    dpar_blocks_array head; /* the public struct; it must be first */
    struct dpari_blocks_array *next;
    const dpari_blocks_shape *shape;
    unsigned char *memory;      /* of all blocks; NULL if attached */
    unsigned char *next_memory; /* the same two while blocks move */
    void **next_block;
    dpari_blocks_plan *plan; /* that exchanges it at present; NULL if none does */
    int64_t stamp;           /* number of the last call that has checked it */
} dpari_blocks_array;

/* A box that is copied or combined. Addresses are in bytes. */
typedef struct dpari_blocks_item {
    int32_t array;    /* index among the arrays of the exchange */
    int32_t slot;     /* which of this rank's blocks has the box */
    int32_t other;    /* taken from this rank itself: the block that it is taken from */
    int32_t peer;     /* index of the peer; -1 for this rank itself */
    int32_t direct;   /* 1 if a peer reads the box in the array, 0 if it is packed */
    int64_t mine_at;  /* from the first own point of the block */
    int64_t other_at; /* from the first own point of the other block; or from the beginning of the
                         peer's array; or from that of the packed values */
    dpari_stride move;
} dpari_blocks_item;

/* What this rank and a peer exchange in a plan. */
typedef struct dpari_blocks_pair {
    int64_t give, gives; /* first of the items that this rank packs for it, and their number */
    int64_t take, takes; /* first of the items that this rank takes from it, and their number */
    int64_t out_at;      /* where the packed values for it begin in a turn of plan->out */
    int64_t in_at;       /* where its message arrives in plan->in */
    int32_t reads;       /* 1 if this rank reads its arrays in place */
    const unsigned char *packed; /* shares memory: its packed values for this rank, first turn */
    int64_t turn;                /* shares memory: bytes from there to the second turn */
    const uint64_t *table;       /* shares memory: [2][arrays] references to its arrays */
    const unsigned char **base;  /* [arrays] its arrays, in the exchange in progress */
} dpari_blocks_pair;

struct dpari_blocks_plan {
    dpari_blocks_plan *next;
    dpari_exchange x;
    int32_t number;
    int32_t arrays;
    int32_t op;                       /* DPAR_COPY if it is forward */
    int32_t in_use;                   /* 1 from begin to end */
    int32_t wide;                     /* dpari_cpu_wide, which takes 50 us on a virtual machine */
    const dpari_blocks_shape **shape; /* [arrays] */
    dpari_blocks_array **array;       /* [arrays] those of the exchange in progress */
    dpari_blocks_pair *pair;          /* [peers] */
    dpari_blocks_item *item;
    int64_t items;
    int64_t own, owns;     /* first of the items that this rank takes from itself; their number */
    int64_t takes;         /* an adjoint takes items 0 .. takes - 1 in this order */
    int64_t clear, clears; /* of the adjoint: items of boxes that peers have read in place */
    uint64_t *table;       /* [2][arrays] references to this rank's arrays; peers read it */
    unsigned char *out;    /* [2][turn] packed values */
    unsigned char *in;     /* messages */
    int64_t turn, in_bytes;
    int64_t *records; /* what peers send each other while the plan is made */
    void *tables;     /* the memory of all this but this struct, `out`, `in` and the line */
};

typedef struct dpari_blocks {
    dpar_blocks head; /* the public struct; it must be first */
    int64_t low[DPAR_MAX_DIMS], high[DPAR_MAX_DIMS];
    int32_t *owner, *slot; /* [total] of each block: its rank, and its index among the rank's */
    dpar_block *block;     /* [count] */
    dpar_halo halo;        /* of cells */
    dpari_blocks_shape *shapes;
    dpari_blocks_array *arrays;
    dpari_blocks_plan *plans;
    int32_t shapes_known, plans_made, in_use; /* in_use: exchanges that have not ended */
    int32_t order;                            /* of desc */
    int64_t stamp;
} dpari_blocks;

/* Returns the object of a handle. */
DPARI_FN dpari_blocks *dpari_blocks_of(const dpar_blocks *blocks)
{
    return (dpari_blocks *)(uintptr_t)blocks;
}
DPARI_FN dpari_blocks_array *dpari_blocks_array_of(const dpar_blocks_array *array)
{
    return (dpari_blocks_array *)(uintptr_t)array;
}

#endif
