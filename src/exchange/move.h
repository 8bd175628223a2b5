/* SPDX-License-Identifier: MIT-0 */
/* move - moves an array from one layout to another, or the boxes of two lists of transfers (for
 * halos or checkpoints), over any communicator. Rank n of a mesh is rank n of the communicator.
 * Arrays are in the memory of the communicator (comm->mem: a device's, otherwise the host's), dense
 * in C order.
 *
 *     dpar_redistribute_desc move = {0};
 *     move.type = DPAR_F32;
 *     move.from = &rows;                          layouts, dpar_layout_init
 *     move.to = &columns;
 *     move.in = mine;                             this rank's part of rows
 *     move.out = theirs;                          becomes its part of columns
 *     dpar_redistribute(world, &move, &why);
 *
 * The boxes that one rank sends to another form one stream, in the order of the list. Small boxes
 * share a message, large ones are cut into pieces. A move proceeds in rounds, and in each round a
 * stream has at most one message in progress. A rank therefore needs memory for one message per
 * peer, and no second copy of an array. Contiguous boxes are sent and received in place. Boxes that
 * a rank sends to itself are copied.
 *
 * Reductions combine in the order of the receiving list. A DPAR_COPY stores the first part, and
 * each op that follows combines another part: ((x0 op x1) op x2). Consecutive boxes from different
 * ranks with the same place and extents are reduced together: F16 and BF16 are added in f32 and
 * rounded once. The result does not depend on which rank is first.
 *
 * In a device's memory comm->mem packs, unpacks and adds boxes, in stream order. If the caller
 * provides scratch in both memories, the host waits for the device only where large boxes are
 * combined: for small messages in which receivers tell senders when to send. Without scratch the
 * end of a move waits for the device. Boxes of one message must not write the same elements. */
#ifndef DPARI_EXCHANGE_MOVE_H
#define DPARI_EXCHANGE_MOVE_H

#include "../comm/comm.h"
#include "../index/redistribute.h"

/* A move: of an array from one layout to another (from, to), or of the boxes of two lists (send,
 * receive). Zero it, then set the fields that you need. Fields type, ranks_per_node, tag and
 * piece_bytes must be equal on all ranks. */
typedef struct dpar_redistribute_desc {
    int32_t type;                 /* of the elements, DPAR_F32, ...; no default */
    int32_t ranks_per_node;       /* for layouts: ranks per node, as in dpar_redistribute_first */
    int32_t tag;                  /* of the messages */
    const dpar_layout *from;      /* for layouts: `in` is this rank's part of `from` */
    const dpar_layout *to;        /* for layouts: `out` becomes this rank's part of `to` */
    const dpar_transfer *send;    /* for lists: [sends] boxes of `in` and where they are sent */
    const dpar_transfer *receive; /* for lists: [receives] boxes that are received in `out` */
    int64_t send_count, receive_count;
    const void *in; /* NULL on a rank without a part */
    void *out;
    const int64_t *in_shape;  /* [dims] shape of the array `in`. For layouts, NULL selects the local
                                 shape; a larger shape is padding behind it in each dim */
    const int64_t *out_shape; /* [dims] the same for `out`; padding is left unchanged */
    int64_t piece_bytes;      /* the most bytes of a message; 0 selects 64 KiB .. 1 MiB */
    void *scratch; /* host memory, aligned to 64. If NULL, dpar_comm_alloc provides it (for a
                      device, the system) for the time of the call, which is as fast from the
                      second call on */
    int64_t scratch_bytes; /* size of scratch; 0 if dpar allocates it. If it is too small, the move
                              fails with DPAR_E_ROOM, and why.bytes is the size that this rank
                              needs. To query that size, set this to 1 and scratch to NULL */
    void *device_scratch;  /* for a device: as many bytes of its memory. If NULL, dpar_comm_alloc
                              provides them until the move is done */
    int64_t device_scratch_bytes;
} dpar_redistribute_desc;

/* Moves an array from one layout to another. Each rank passes its part of `from` in `in` and
 * receives its part of `to` in `out`; a rank without a part passes NULL.
 *
 * Partial sources are reduced; DPAR_AVG divides the sum by their number. If only `to` is partial,
 * ranks to which nobody sends elements get zeros. Replicas share the sends as dpar.h chooses. If
 * that could change results, as in 16-bit sums and averages, copy 0 sends everything.
 *
 * Collective over comm, including ranks without a part. Fails on all ranks, before anything is
 * moved, with DPAR_E_MISMATCH if layouts, type or tag differ between ranks, DPAR_E_ROOM if scratch
 * is too small, and DPAR_E_MEMORY if there is none. Fails with DPAR_E_ARG as
 * dpar_redistribute_check, or if a mesh has ranks that comm does not have, or `in` and `out`
 * overlap. Otherwise fails as the communicator.
 *
 * Costs O(its transfers + its elements). Sends the bytes of the transfers to other ranks, and small
 * messages in which receivers tell senders when to send. Each rank walks its transfers twice and
 * needs 104 bytes for each during the call. */
DPAR_API dpar_status dpar_redistribute(dpar_comm *comm, const dpar_redistribute_desc *move,
                                       dpar_why *why);

/* Moves the boxes of two lists: the boxes send[] of the array in[in_shape] to other ranks, and
 * those that arrive into the boxes receive[] of out[out_shape].
 *
 * The k-th send from rank a to rank b is the k-th receive of b from a, and has the same extents
 * (halo.h, redistribute.h). All boxes have the dims of the shapes. `in` may equal `out`, as for
 * halos, if no box that is sent is also written; otherwise the two must not overlap. DPAR_AVG must
 * directly follow a DPAR_COPY, or another DPAR_AVG, to the same box.
 *
 * Collective over comm: ranks without transfers pass empty lists. Before anything is sent, ranks
 * compare type, tag and piece_bytes, and each list with those of its peers. Fails on all ranks with
 * DPAR_E_MISMATCH if they do not match; the message names both ranks and the difference.
 * DPAR_E_ARG, DPAR_E_ROOM and DPAR_E_MEMORY of one rank are also returned on all ranks, and nothing
 * is moved.
 *
 * Costs O(sends + receives + elements + ranks), plus two small all-reduces and an all-to-all of 16
 * bytes per rank. */
DPAR_API dpar_status dpar_transfers_exchange(dpar_comm *comm, const dpar_redistribute_desc *move,
                                             dpar_why *why);

#endif
