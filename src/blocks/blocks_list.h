/* SPDX-License-Identifier: MIT-0 */
/* blocks_list - lists the boxes that this rank's blocks exchange with other blocks, and prepares
 * their copies. Private. */
#ifndef DPARI_BLOCKS_BLOCKS_LIST_H
#define DPARI_BLOCKS_BLOCKS_LIST_H

#include "blocks_object.h"

/* A box that goes from one block to another. */
typedef struct dpari_blocks_box {
    int32_t rank;     /* the other rank, or this one */
    int32_t to, from; /* numbers of the block whose halo gets the box, and of the one it is from */
    int32_t array;    /* index of the shape */
    int32_t part;     /* component of a turned vector, or -1 for all components */
    int32_t takes;    /* 1 if this rank takes the box, 0 if it gives it */
    int32_t turn;     /* quarter turns of vectors */
    int32_t peer;     /* index of that rank among the peers; -1 if it is this one */
    int32_t direct;   /* 1 if the box is read in place, 0 if it is packed */
    int64_t packed;   /* bytes from the beginning of the packed values */
    int64_t place;    /* position in the list that was made */
    int64_t extent[DPARI_STRIDE_DIMS]; /* in the order of the dims of `from`, then components */
    int64_t to_at, from_at;            /* bytes from the first own points of the two blocks */
    int64_t to_step[DPARI_STRIDE_DIMS], from_step[DPARI_STRIDE_DIMS]; /* elements */
} dpari_blocks_box;

/* The boxes of a plan. */
typedef struct dpari_blocks_list {
    dpari_blocks_box *box;
    int64_t count;
    int64_t *sorted; /* [count] indices of boxes, by dpari_blocks_sort */
} dpari_blocks_list;

/* Lists all boxes of a plan, those that this rank takes in the order in which an adjoint combines
 * them. Sorts them by the other rank, and then in an order that both ranks find. Allocates
 * list->box, which dpari_object_release frees. Local. */
DPARI_INTERNAL dpar_status dpari_blocks_list_boxes(const dpari_blocks *blocks,
                                                   const dpari_blocks_plan *plan,
                                                   dpari_blocks_list *list, dpar_why *why);
/* Returns the bytes that are contiguous in the array from which a box is read. */
DPARI_INTERNAL int64_t dpari_blocks_run(const dpari_blocks_plan *plan, const dpari_blocks_box *box);
/* Prepares the copy of an item. packed: 1 if one side is packed values. shares: 1 if the other rank
 * shares memory. clears: 1 to only set the box of the item to 0. */
DPARI_INTERNAL void dpari_blocks_prepare(const dpari_blocks_plan *plan, const dpari_blocks_box *box,
                                         int32_t packed, int32_t shares, int32_t clears,
                                         dpari_blocks_item *item);

#endif
