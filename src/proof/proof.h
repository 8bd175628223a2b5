/* SPDX-License-Identifier: MIT-0 */
/* proof - what is proved about an exchange, and the report of a proof.
 *
 * A proof visits all ranks on one core and compares the list of each rank with those of its peers.
 * It either succeeds and reports what the exchange costs, or fails with DPAR_E_MISMATCH and a
 * message that names the ranks, the point and the numbers of one counterexample. */
#ifndef DPARI_PROOF_PROOF_H
#define DPARI_PROOF_PROOF_H

#include "../base/text.h"
#include "../index/halo.h"
#include "../index/redistribute.h"

/* The index lists of one rank, for dpar_proof_points, in the form of dpar_points_lists. */
typedef struct dpar_proof_index {
    int64_t own_count, ghost_count; /* number of own values, and of ghosts after them */
    int32_t peer_count;
    const int32_t *peer;          /* [peer_count] ranks, each once */
    const int64_t *send_count;    /* [peer_count] number of values sent to each peer */
    const int64_t *receive_count; /* [peer_count] number of values received from each peer */
    const int32_t *send_index;    /* local indices of own values, peer after peer */
    const int32_t *receive_index; /* local indices of ghosts; NULL means own_count, ... in order */
    /* [own_count + ghost_count], the global id of each local index, or NULL. If both ranks of a
     * message have ids, they are compared value by value. */
    const int64_t *id;
    int32_t unsent_ghosts; /* 1 allows ghosts that no rank sends */
} dpar_proof_index;

/* What to prove, and with which memory. Zero it, then set memory, bytes and what you need. */
typedef struct dpar_proof_desc {
    /* Working memory, aligned as for int64_t, and its size in bytes. It keeps lists that are needed
     * again, so that more memory makes a proof faster; 64 MiB are enough for a million ranks in
     * three dims. If it cannot hold the lists of two ranks, the proof fails with DPAR_E_ROOM. */
    void *memory;
    int64_t bytes;
    int64_t point_bytes; /* bytes of a point, all fields together; 0 selects 8 */
    int32_t ranks;       /* number of ranks; dpar_proof_halo needs it only with `owner`, and
                            dpar_proof_redistribute never */
    /* For dpar_proof_halo: [ranks of halo->grid.mesh], the rank that owns each block, if ranks own
     * several blocks. -1 means that a block does not exist. NULL selects halo->owner, or a block
     * per rank. */
    const int32_t *owner;
    /* Lists to be proved. dpar_proof_transfers needs them; dpar_proof_halo proves them in place of
     * the library's own lists, which shows whether a hand-written exchange fills the halo. With
     * `owner` they are the lists of blocks, and peers are blocks.
     *
     * Sets *transfer to transfer n of a rank's list, and returns 1, or 0 if the list has no
     * transfer n. direction: DPAR_TRANSFER_RECV or DPAR_TRANSFER_SEND. It is called with n = 0, 1,
     * 2, ... in this order. A list may be requested several times and must then be the same. */
    int (*next)(void *lists, int32_t rank, int32_t direction, int64_t n, dpar_transfer *transfer);
    /* For dpar_proof_points: sets *index to the lists of a rank. Their arrays must stay valid until
     * the proof returns. */
    void (*index_of)(void *lists, int32_t rank, dpar_proof_index *index);
    void *lists; /* passed to `next` and `index_of` */
    /* Is called from time to time with the number of ranks that have been checked, and of all
     * ranks. A result other than 0 cancels the proof. May be NULL. */
    int (*progress)(void *context, int64_t done, int64_t total);
    void *context; /* passed to `progress` */
} dpar_proof_desc;

/* The least, the most and the sum of a number over all ranks. */
typedef struct dpar_proof_range {
    int64_t least, most, total;
    int32_t least_rank, most_rank; /* the first rank with each */
} dpar_proof_range;

/* The result of a proof: counts over all ranks. */
typedef struct dpar_proof_report {
    int32_t ranks;             /* number of ranks */
    int64_t blocks;            /* number of blocks; equals ranks unless desc.owner was set */
    int64_t transfers;         /* number of boxes or index lists that are sent */
    int64_t points;            /* number of points that are received, with copies in a rank */
    int32_t owners;            /* 1 if it was proved from which rank each point must come */
    dpar_proof_range messages; /* sent to other ranks, one per peer */
    dpar_proof_range peers;    /* other ranks that a rank sends to or receives from */
    dpar_proof_range sent;     /* bytes sent to other ranks */
    dpar_proof_range received; /* bytes received from other ranks */
    dpar_proof_range copied;   /* bytes copied within a rank */
    /* Bytes of staging memory that a plan registers if it sends messages: two halves for packed
     * values and the space for arrivals, each rounded up to 128 bytes per peer. In shared memory it
     * needs two thirds or less. */
    dpar_proof_range staging;
} dpar_proof_report;

/* Proves transfer lists of any kind, for desc->ranks ranks.
 *
 * 1. The k-th send from a to b and the k-th receive of b from a are the same transfer: the same
 *    box, the same places in both arrays, the same flip, swap, turn and op. No send or receive is
 *    left over.
 * 2. No two receives of a rank write the same element, unless all but one of them combine values
 *    (op other than DPAR_COPY).
 *
 * From 1 it follows that an exchange which posts all receives and sends before it waits cannot
 * deadlock, because each of them has its partner and none waits for another one. dpar_proof_order
 * proves other orders.
 *
 * Fails with DPAR_E_MISMATCH and a counterexample, DPAR_E_ARG if a transfer is not valid,
 * DPAR_E_RANGE if a sum exceeds 2^63 - 1, or DPAR_E_ROOM if desc->bytes is too small; why->bytes is
 * then a size to try next. Returns DPAR_MORE if `progress` cancelled it. *report is written only on
 * success. Costs O(transfers x log(transfers of a rank)) if the memory holds the lists of peers
 * until all of them have been visited.
 */
DPAR_API dpar_status dpar_proof_transfers(const dpar_proof_desc *desc, dpar_proof_report *report,
                                          dpar_why *why);

/* Writes the report as a table: the verdict, then a line per number with the least, the most, the
 * rank with the most, and the sum. If the report is zero, the verdict is "Nothing is proved." */
DPAR_API void dpar_proof_draw(const dpar_proof_report *report, dpar_text *out);

#endif
