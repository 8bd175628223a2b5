/* SPDX-License-Identifier: MIT-0 */
/* move - moves an array from one layout to another, or carries out any transfer lists of yours
 * (halos, checkpoints), over any communicator. Rank n of a mesh is rank n of the communicator.
 * Arrays lie in the memory of the communicator (comm->mem: a device's, else the host's), dense in C
 * order of a shape.
 *
 *     dpar_redistribute_desc move = {0};
 *     move.type = DPAR_F32;
 *     move.from = &rows;                          layouts, dpar_layout_init
 *     move.to = &columns;
 *     move.in = mine;                             this rank's part of rows
 *     move.out = theirs;                          becomes its part of columns
 *     dpar_redistribute(world, &move, &why);
 *
 * What one rank sends another is one stream: its boxes in the order of the list. Small boxes share
 * a message, large ones go in pieces. Moves go on in rounds, and in each round a stream has at most
 * one message under way. So a rank needs the memory of a message for each peer, and no second copy
 * of an array. Boxes that are contiguous are sent and received where they lie. What a rank sends to
 * itself is copied.
 *
 * Reductions go in the order of the receiving list: a DPAR_COPY puts the first part there, each op
 * that follows combines ((x0 op x1) op x2). Boxes that follow each other with the same place and
 * extents, from different ranks, are reduced at once: F16 and BF16 add in f32 and round once. The
 * result depends neither on the way of moving nor on who comes first.
 *
 * In a device's memory comm->mem packs, unpacks and adds boxes, in stream order. With scratch of
 * both memories nothing waits, but for small lists of who sends when, where large boxes are
 * combined. Without it the end of a move waits. No two boxes of a message may be one place. */
#ifndef DPARI_COMM_MOVE_H
#define DPARI_COMM_MOVE_H

#include "../index/redistribute.h"
#include "comm.h"

/* How messages travel. */
enum {
    DPAR_MOVE_AUTO,      /* the best way; today P2P */
    DPAR_MOVE_P2P,       /* sends and receives between the ranks that the transfers name */
    DPAR_MOVE_COLLECTIVE /* an all-to-all a round, over all ranks of the communicator */
};

/* What is moved: an array from one layout to another (from, to), or the boxes of two lists. Zero it
 * and fill in what is needed. how, per_node, tag and piece_bytes are the same on all ranks. */
typedef struct dpar_redistribute_desc {
    int32_t type;                 /* of the elements; must be said: DPAR_F32, ... */
    int32_t how;                  /* DPAR_MOVE_x */
    int32_t per_node;             /* layouts: ranks of a node, as dpar_redistribute_first */
    int32_t tag;                  /* of the messages */
    const dpar_layout *from;      /* layouts: `in` is this rank's part of one */
    const dpar_layout *to;        /* `out` becomes its part of the other */
    const dpar_transfer *send;    /* lists: [sends] boxes of `in` and where they go */
    const dpar_transfer *receive; /* [receives] boxes that come into `out` */
    int64_t sends, receives;
    const void *in; /* NULL for a rank without a part */
    void *out;
    const int64_t *in_shape;  /* shape of the array that `in` is. Layouts: NULL: the local shape; a
                                 larger one has the local shape in its corner (padding) */
    const int64_t *out_shape; /* the same for out; elements beyond the local shape stay */
    int64_t piece_bytes;      /* bytes of a message at most; 0: 64 KiB .. 1 MiB */
    void *scratch; /* of the host. NULL: dpar_comm_alloc gives it (on a device: pages of the system)
                      and takes it back */
    int64_t scratch_bytes; /* aligned to 64; dpar_move_bytes says how many are needed */
    void *there; /* on a device: as many bytes of its memory. NULL: dpar_comm_alloc gives it, and
                    takes it back when all is done */
    int64_t there_bytes;
} dpar_redistribute_desc;

/* Moves an array: `in` holds this rank's part of `from`, `out` gets its part of `to`. A rank
 * without a part gives NULL. COLLECTIVE over c, whose other ranks call it too. O(its transfers +
 * its elements); what crosses is what dpar_transfers_total counts, and small messages of who sends
 * when. Each rank walks its transfers two times and keeps 96 bytes for each while it runs.
 *
 * Partial sources are reduced (DPAR_AVG: the sum over their number). Where a sum begins, ranks that
 * hold none of it get zeros. Replicas send as dpar.h chose, except that copy 0 sends all where
 * shares would cut 16-bit sums or averages apart.
 *
 * All ranks return E_MISMATCH, E_ARG, E_ROOM and E_MEMORY alike, and nothing was moved. E_MISMATCH:
 * layouts, type or how it travels differ between ranks. E_ARG: as dpar_redistribute_check, a mesh
 * has ranks that c does not have, or in and out overlap. E_ROOM: scratch is too small. E_MEMORY:
 * there is none. Else errors of the communicator. */
DPAR_API dpar_status dpar_redistribute(dpar_comm *c, const dpar_redistribute_desc *move,
                                       dpar_why *why);

/* Moves lists: the boxes of in[in_shape] to where send[] says, those of receive[] into
 * out[out_shape]. The k-th send from a to b is the k-th receive of b from a, with the same extents
 * (halo.h, redistribute.h). All have the dims of the shapes. in may be out (halos), when no box
 * that is sent is also written to; else they do not overlap. DPAR_AVG only comes right behind a
 * DPAR_COPY to the same box and its other parts.
 *
 * COLLECTIVE over c: ranks without transfers call it with empty lists. Before anything is sent,
 * type, tag and how it travels are compared on all ranks, and each list with those of its peers.
 * E_MISMATCH, on all ranks: the sentence names both ranks and what does not fit. E_ARG, E_ROOM and
 * E_MEMORY of one rank are told to all, and nothing was moved. O(sends + receives + elements +
 * ranks), and two small all-reduces and an all-to-all of 16 bytes a rank. */
DPAR_API dpar_status dpar_transfers_exchange(dpar_comm *c, const dpar_redistribute_desc *move,
                                             dpar_why *why);

/* Bytes of scratch that either uses on this rank, at most: with from and to those of
 * dpar_redistribute, else those of dpar_transfers_exchange. It does not look at arrays. Errors as
 * theirs; E_RANGE: more than 2^62 bytes or elements. Local; walks the rank's transfers. O(its
 * transfers). */
DPAR_API dpar_status dpar_move_bytes(const dpar_comm *c, const dpar_redistribute_desc *move,
                                     int64_t *bytes, dpar_why *why);

#endif
