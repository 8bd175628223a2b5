/* SPDX-License-Identifier: MIT-0 */
/* move_items - the boxes of a move, one item for each transfer: checks them, copies parts of them
 * to messages and back, and combines parts. Private. */
#ifndef DPARI_EXCHANGE_MOVE_ITEMS_H
#define DPARI_EXCHANGE_MOVE_ITEMS_H

#include "../base/arith.h"
#include "../base/box.h"
#include "../comm/comm.h"
#include "../host/mem.h"

enum {
    DPARI_MOVE_BOXES = 64,      /* boxes that a device moves in one call */
    DPARI_MOVE_BOXES_HERE = 8,  /* boxes that the host moves in one call, which prepares equal ones
                                   once */
    DPARI_MOVE_STAGE = 1 << 16, /* bytes of one part in `stage` */
    DPARI_MOVE_ZERO = 64        /* bytes of memory for dpari_array_zero */
};

/* The boxes that are copied next, in the memory of the communicator. A copy is done at the latest
 * in dpari_boxes_flush. */
typedef struct dpari_move_boxes {
    dpar_comm *comm;
    int32_t type, bytes;  /* of the elements */
    int32_t count, most;  /* number of boxes in `box`, and the most that it holds */
    dpar_mem_box *box;    /* [most] */
    unsigned char *stage; /* for a device: memory in which parts are reduced together */
} dpari_move_boxes;

/* A local array. One of the two pointers is set, depending on whether it is read or written. */
typedef struct dpari_move_array {
    int32_t dims;
    int64_t step[DPAR_MAX_DIMS]; /* distance of two neighbours along each dim, in elements */
    const unsigned char *from;
    unsigned char *to;
} dpari_move_array;

/* A box of a list, and its place in the stream with its peer. */
typedef struct dpari_move_item {
    int64_t extent[DPAR_MAX_DIMS], volume;
    int64_t at;   /* offset in the array, in elements, of the first element of its message */
    int64_t done; /* for receives: number of elements that have been stored or combined */
    int64_t next; /* next item of the same stream; -1 for the last one */
    int32_t stream, op;
    int32_t continues; /* 1 if it is another part of the same box as the item before it */
    uint32_t flip;     /* bit d is set if dim d of the message runs backwards in the array */
    int32_t swap[2];   /* two dims of the message that are exchanged in the array; equal if none
                          are */
} dpari_move_item;

/* Checks the shape of an array of elements of `bytes` bytes, and computes its steps and its number
 * of elements. */
DPARI_INTERNAL dpar_status dpari_array_init(dpari_move_array *array, int32_t dims,
                                            const int64_t *shape, int32_t bytes, int64_t *elements,
                                            dpar_why *why);
/* Checks a transfer of elements of `type`: that its box is inside the array, and its op. arrives: 1
 * for a receive, 0 for a send. */
DPARI_INTERNAL dpar_status dpari_transfer_check(const dpar_transfer *t, int32_t dims,
                                                const int64_t *shape, int32_t type, int arrives,
                                                dpar_why *why);
/* True if b is another part of the same box as a, the transfer directly before it. */
DPARI_INTERNAL int dpari_transfer_continues(const dpar_transfer *a, const dpar_transfer *b);
/* Makes the item of a transfer from or to the array. */
DPARI_INTERNAL void dpari_item_init(dpari_move_item *it, const dpar_transfer *t,
                                    const dpari_move_array *array);
/* Returns the number of elements of a box that are contiguous in the array. Contiguous runs begin
 * at multiples of it. */
DPARI_INTERNAL int64_t dpari_item_run(const dpari_move_array *array, const dpari_move_item *it);
/* Returns the position of element i in the array. */
DPARI_INTERNAL int64_t dpari_item_at(const dpari_move_array *array, const dpari_move_item *it,
                                     int64_t i);

/* Copies the boxes that are waiting. A failure on a device breaks the communicator. */
DPARI_INTERNAL void dpari_boxes_flush(dpari_move_boxes *boxes);
/* Copy elements [begin, end) of a box from the array to a message, and back. */
DPARI_INTERNAL void dpari_item_pack(dpari_move_boxes *boxes, const dpari_move_array *array,
                                    const dpari_move_item *it, int64_t begin, int64_t end,
                                    unsigned char *message);
DPARI_INTERNAL void dpari_item_unpack(dpari_move_boxes *boxes, const dpari_move_array *array,
                                      const dpari_move_item *it, int64_t begin, int64_t end,
                                      const unsigned char *message);
/* Combines parts: elements x of [begin, end) become x op part[1] op ... op part[parts - 1], where
 * each part begins at element `begin`. part[0] and part[parts ..] are scratch of this function. */
DPARI_INTERNAL void dpari_item_combine(dpari_move_boxes *boxes, const dpari_move_array *array,
                                       const dpari_move_item *it, int64_t begin, int64_t end,
                                       const void **part, int32_t parts, int32_t op);
/* Copies a box of one array to the corresponding box of another array. */
DPARI_INTERNAL void dpari_item_copy(dpari_move_boxes *boxes, const dpari_move_array *to,
                                    const dpari_move_item *there, const dpari_move_array *from,
                                    const dpari_move_item *here);
/* Sets the first elements along each dim of an array to zero. zero: DPARI_MOVE_ZERO bytes of the
 * communicator's memory, aligned to 64. */
DPARI_INTERNAL void dpari_array_zero(dpari_move_boxes *boxes, const dpari_move_array *array,
                                     const int64_t *extent, unsigned char *zero);

#endif
