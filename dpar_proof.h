/* SPDX-License-Identifier: MIT-0 */
/* dpar_proof.h - proves on one core that an exchange between N ranks is correct, before the job runs.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 * It walks the same transfer lists that the ranks will execute and checks every message of every rank. This program
 * proves the halo exchange of a grid on 4096 ranks, which takes a few milliseconds:
 *
 *     #include "dpar_proof.h"
 *     #include <stdio.h>
 *     int main(void)
 *     {
 *         static int64_t memory[1 << 20];
 *         static char text[2000];
 *         const int32_t parts[2] = {64, 64};
 *         const int64_t cells[2] = {720, 1440};
 *         const dpar_placement cut[2] = {dpar_shard(0), dpar_shard(1)};
 *         dpar_mesh mesh;
 *         dpar_halo halo = {0};
 *         dpar_proof_desc desc = {0};
 *         dpar_proof_report report;
 *         dpar_text out;
 *         dpar_why why;
 *         halo.low[0] = halo.high[0] = halo.low[1] = halo.high[1] = 1;
 *         halo.periodic = 1 << 1;
 *         desc.memory = memory;
 *         desc.bytes = sizeof memory;
 *         if (dpar_mesh_init(&mesh, "y x", parts, DPAR_ORDER_LAST_FASTEST, 0, &why) < 0 ||
 *             dpar_layout_init(&halo.grid, &mesh, 2, cells, cut, &why) < 0 ||
 *             dpar_proof_halo(&halo, &desc, &report, &why) < 0) {
 *             puts(why.text);
 *             return 1;
 *         }
 *         dpar_text_init(&out, text, sizeof text);
 *         dpar_proof_draw(&report, &out);
 *         fputs(text, stdout);
 *         return 0;
 *     }
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. yours.c -o yours && ./yours
 *
 * dpar_proof_transfers, dpar_proof_redistribute and dpar_proof_points prove other exchanges, and
 * dpar_proof_order proves that an order of sends and receives cannot deadlock. All functions are local, compute in
 * integers, and use memory of the caller. */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar.h")
#error dpar_proof.h needs dpar.h beside it, of the same release
#endif
#endif
#include "dpar.h"
#endif
#if DPAR_VERSION != 200
#error dpar_proof.h and dpar.h are of different versions: take all headers from one release
#endif

#ifndef DPAR_PROOF_H
#define DPAR_PROOF_H

/* ==== proof/proof.h ==== */

/* proof - what is proved about an exchange, and the report of a proof.
 *
 * A proof visits all ranks on one core and compares the list of each rank with those of its peers.
 * It either succeeds and reports what the exchange costs, or fails with DPAR_E_MISMATCH and a
 * message that names the ranks, the point and the numbers of one counterexample. */

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

/* ==== proof/proof_halo.h ==== */

/* proof_halo - proves the halo exchange of a whole grid. */

/* Proves that an exchange in the mode DPAR_HALO_FORWARD fills all halos of a grid, on all ranks.
 *
 * halo:  any grid that dpar_halo_check accepts: uneven cuts, folds, poles, cubed spheres, faces of
 *        cells, windows, masked blocks.
 * desc:  memory; `owner` if ranks own several blocks; `next` for lists of your own.
 *
 * Proves facts 1 and 2 of dpar_proof_transfers, and
 *
 * 3. The blocks are disjoint and cover the grid.
 * 4. Each halo point that is the image of a point with an owner is received exactly once, from that
 *    owner, from the right place in its array. No other point is written; in particular, no rank's
 *    own points, except those that a row on a fold holds twice.
 *
 * For fact 4 the source of a point is computed from the rules of halo.h (periodic dims, folds,
 * poles, edges of a cube), and its owner from the boxes of dpar_halo_owned. The walk that makes
 * the lists is not used.
 *
 * Fails as dpar_proof_transfers and dpar_halo_check do. A grid of 1440 x 720 x 100 cells on
 * 1,048,576 ranks with edges and corners takes about a minute on one core. Grids with masked
 * blocks cost O(points of their local arrays), and halo->owner costs O(blocks) per rank.
 */
DPAR_API dpar_status dpar_proof_halo(const dpar_halo *halo, const dpar_proof_desc *desc,
                                     dpar_proof_report *report, dpar_why *why);

/* ==== proof/proof_redistribute.h ==== */

/* proof_redistribute - proves the redistribution of an array. */

/* Proves that dpar_redistribute_first lists a correct redistribution, on all ranks.
 *
 * per_node:  as in dpar_redistribute_first.
 * desc:      memory and progress; `owner` and `next` must be NULL.
 *
 * Proves fact 1 of dpar_proof_transfers, and that each element of each rank's part of `to` is
 * received exactly once, from a rank that holds this element in `from`. From Partial sources it is
 * received once from each coordinate along the Partial axes, and exactly one of these transfers has
 * the op DPAR_COPY. Both sides of a transfer are computed with
 * dpar_layout_global.
 *
 * Fails as dpar_proof_transfers and dpar_redistribute_check do.
 */
DPAR_API dpar_status dpar_proof_redistribute(const dpar_layout *from, const dpar_layout *to,
                                             int32_t per_node, const dpar_proof_desc *desc,
                                             dpar_proof_report *report, dpar_why *why);

/* ==== proof/proof_points.h ==== */

/* proof_points - proves exchanges by index lists, as those of unstructured meshes. */

/* Proves an exchange by index lists, for desc->ranks ranks.
 *
 * desc:  ranks, index_of, and memory of at least one bit per ghost of the rank that has most;
 *        point_bytes and progress are optional.
 *
 * Proves that a rank receives from each peer as many values as that peer sends, and that only own
 * values are sent. Each ghost is received exactly once, and nothing else is written. If there are
 * ids, each ghost receives the value with its id.
 *
 * Fails as dpar_proof_transfers does. Costs O(values), and O(peers^2) per rank.
 */
DPAR_API dpar_status dpar_proof_points(const dpar_proof_desc *desc, dpar_proof_report *report,
                                       dpar_why *why);

/* ==== proof/proof_order.h ==== */

/* proof_order - proves that ranks which send and receive in a given order cannot deadlock. */

/* What a rank does next. */
enum {
    DPAR_PROOF_SEND,      /* sends a message to `peer` and waits until it is sent (MPI_Send) */
    DPAR_PROOF_RECV,      /* receives a message from `peer` and waits for it (MPI_Recv) */
    DPAR_PROOF_POST_SEND, /* begins to send (MPI_Isend; ncclSend) */
    DPAR_PROOF_POST_RECV, /* begins to receive */
    DPAR_PROOF_WAIT       /* waits until all messages of the rank are done (MPI_Waitall) */
};

/* How messages are transported. The names mean the same as those of dpar_schedule_check. */
enum {
    /* A message is transferred when both of its ends have been posted (MPI_Ssend; Infiniband). */
    DPAR_PROOF_BLOCKING,
    /* A send is done at once while at most `capacity` messages from this rank to this peer have
     * been sent but not received. */
    DPAR_PROOF_EAGER,
    /* Messages wait in queues, and a message is transferred once it is the first in its queue on
     * both ranks. RANK: one queue per rank (one NCCL communicator). */
    DPAR_PROOF_RANK,
    DPAR_PROOF_PAIR /* one queue per peer (NCCL communicators of 2 ranks) */
};

/* One action of a rank. */
typedef struct dpar_proof_action {
    int32_t kind; /* DPAR_PROOF_SEND, ... */
    int32_t peer; /* the other rank; ignored by WAIT */
    /* Consecutive actions with the same group other than 0 enter a queue together, as between
     * ncclGroupStart and ncclGroupEnd. */
    int32_t group;
} dpar_proof_action;

/* The actions of all ranks. */
typedef struct dpar_proof_order_desc {
    int32_t ranks;
    const int64_t *first; /* [ranks + 1], the index of each rank's first action; the last entry is
                             the number of all actions */
    const dpar_proof_action *action;
    int32_t transport; /* DPAR_PROOF_BLOCKING, ... */
    int32_t capacity;  /* of EAGER, in messages per pair of ranks, 0 or more */
    void *memory;      /* working memory, aligned as for int64_t */
    int64_t bytes;     /* its size */
} dpar_proof_order_desc;

/* Proves that all ranks reach the end of their actions, however fast each of them is.
 *
 * The k-th send from a to b is received by the k-th receive of b from a. The ranks are run on one
 * core, as far as they get. Because a message that can be transferred can still be transferred
 * later, the speed of ranks does not change how far that is, and one run proves all runs.
 *
 * Fails with DPAR_E_STUCK if ranks wait for each other; the message names the cycle. Fails with
 * DPAR_E_MISMATCH if a send or receive has no partner, DPAR_E_ARG if an action is not valid, and
 * DPAR_E_ROOM, with the needed size in why->bytes, if the memory is too small. Costs O(actions x
 * (log(actions of a rank) + messages between two waits)).
 */
DPAR_API dpar_status dpar_proof_order(const dpar_proof_order_desc *order, dpar_why *why);

#endif /* DPAR_PROOF_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_PROOF_IMPLEMENTATION)) && \
    !defined(DPAR_PROOF_IMPLEMENTATION_DONE)
#define DPAR_PROOF_IMPLEMENTATION_DONE

/* ==== proof/proof_lists.h ==== */

/* proof_lists - private: compares the transfer lists of all ranks, and adds up what they send.
 *
 * A unit is what has a list: a rank, or a block if ranks own several blocks. Units are visited in
 * the order of ranks. For each unit the receives are walked and compared with the sends of each
 * peer. The sends of a unit are needed once per peer, so they are kept in a log: a ring of memory,
 * in which the newest lists overwrite the oldest. If a list is needed again after that, it is
 * walked again, so that the size of the log changes the time of a proof but not its result. */

/* The transfers of a unit in one direction. */
typedef struct dpari_prove_list {
    int32_t unit;
    int64_t count;
    const int64_t *head;   /* the words of dpari_prove_source.describe */
    const int64_t *key;    /* [count] peer << 32 | number in the list, in ascending order */
    const int64_t *record; /* [count] records in the order of the list */
} dpari_prove_list;

/* Makes the lists of units. The functions get `of` as their first argument. */
typedef struct dpari_prove_source {
    void *of;
    int32_t units;
    int32_t dims;         /* most dims of a transfer */
    int32_t head;         /* number of words that describe a unit */
    const int32_t *owner; /* [units] the rank of each unit, or -1; NULL if units are ranks */
    int32_t ranks;
    int32_t owners; /* 1 if `check` and `complete` prove where each point comes from */
    /* Begins a list. */
    dpar_status (*first)(void *of, int32_t unit, int32_t direction, dpar_why *why);
    /* Advances to the next transfer. Returns DPAR_MORE, or DPAR_OK at the end of the list. */
    dpar_status (*next)(void *of, dpar_transfer *transfer, dpar_why *why);
    /* Writes `head` words that describe a unit, which lists keep. May be NULL. */
    void (*describe)(void *of, int32_t unit, int64_t *head);
    /* Checks a receive of `mine` from the unit of `theirs`. May be NULL. */
    dpar_status (*check)(void *of, const dpari_prove_list *mine, const dpari_prove_list *theirs,
                         const int64_t *record, dpar_why *why);
    /* Checks that nothing is missing. points: the sum of all receives of the unit. May be NULL. */
    dpar_status (*complete)(void *of, const dpari_prove_list *mine, int64_t points, dpar_why *why);
    /* True if two receives from these units may write the same element. NULL allows it unless both
     * copy. */
    int (*may_overlap)(void *of, const int32_t *peer, const int32_t *op);
} dpari_prove_source;

/* A record is a word with the peer and small fields, then for each dim the extent, the index in
 * this unit's array, and the index in the peer's array. */
enum { DPARI_PROVE_EXTENT, DPARI_PROVE_MINE, DPARI_PROVE_THEIRS };
DPARI_INTERNAL int64_t dpari_prove_word(const int64_t *record, int32_t field, int32_t d);
/* The small fields of a record. */
DPARI_INTERNAL uint32_t dpari_prove_flip(const int64_t *record);
DPARI_INTERNAL int32_t dpari_prove_turn(const int64_t *record);
DPARI_INTERNAL int32_t dpari_prove_op(const int64_t *record);
/* Returns the dim of the sender that arrives in the receiver's dim d. */
DPARI_INTERNAL int32_t dpari_prove_from(const int64_t *record, int32_t d);
/* Returns the number of elements of a record, or -1 above 2^63 - 1. */
DPARI_INTERNAL int64_t dpari_prove_volume(const dpari_prove_source *source, const int64_t *record);
/* Returns record number k of a list in the order of its keys, and sets *peer. */
DPARI_INTERNAL const int64_t *dpari_prove_record(const dpari_prove_source *source,
                                                 const dpari_prove_list *list, int64_t k,
                                                 int32_t *peer);
/* Appends "(1, 2, 3)". */
DPARI_INTERNAL void dpari_prove_put_point(dpar_text *out, int32_t dims, const int64_t *at);
/* Appends "rank 3", or "block 7 of rank 3". */
DPARI_INTERNAL void dpari_prove_put_unit(dpar_text *out, const dpari_prove_source *source,
                                         int32_t unit);
/* Begins the message of a refutation. */
DPARI_INTERNAL void dpari_prove_refute(dpar_text *out, dpar_why *why, const char *what);
/* Sorts keys in ascending order. */
DPARI_INTERNAL void dpari_prove_sort(int64_t *key, int64_t count);
/* Adds a number of a rank to a range. Returns 0 if the sum exceeds 2^63 - 1. */
DPARI_INTERNAL int dpari_prove_count(dpar_proof_range *range, int32_t rank, int64_t value);
/* Fails with DPAR_E_ROOM and the needed size. */
DPARI_INTERNAL dpar_status dpari_prove_no_room(dpar_why *why, int64_t has, int64_t needed);
/* Returns the result of desc->progress: DPAR_OK, or DPAR_MORE if it cancels. */
DPARI_INTERNAL dpar_status dpari_prove_advance(const dpar_proof_desc *desc, int64_t done,
                                               int64_t total);

/* A source whose lists come from the caller's function `next`. */
typedef struct dpari_prove_caller {
    int (*next)(void *lists, int32_t rank, int32_t direction, int64_t n, dpar_transfer *transfer);
    void *lists;
    int64_t number;
    int32_t unit, direction;
} dpari_prove_caller;
DPARI_INTERNAL dpar_status dpari_prove_caller_first(void *of, int32_t unit, int32_t direction,
                                                    dpar_why *why);
DPARI_INTERNAL dpar_status dpari_prove_caller_next(void *of, dpar_transfer *transfer,
                                                   dpar_why *why);

/* Proves the lists of all units. */
DPARI_INTERNAL dpar_status dpari_prove_run(const dpari_prove_source *source,
                                           const dpar_proof_desc *desc, dpar_proof_report *report,
                                           dpar_why *why);

/* ==== proof/proof_image.h ==== */

/* proof_image - private: computes where the value of a halo point comes from, by the rules of
 * halo.h. It uses the definitions of periodic dims, folds, poles and cubed spheres point by point,
 * and none of the code that lists transfers. */

/* The points of one rank: those that it owns and those in its local array, as half-open ranges. */
typedef struct dpari_prove_block {
    int64_t has; /* 1 if the rank has an array */
    int64_t own[DPAR_MAX_DIMS][2], box[DPAR_MAX_DIMS][2];
} dpari_prove_block;

/* Sets the block of a rank. */
DPARI_INTERNAL void dpari_prove_block_of(const dpar_halo *halo, int32_t rank,
                                         dpari_prove_block *block);
/* Computes q, the point whose value point p of a local array receives, and the quarter turns of
 * vectors. Returns 0 if p receives nothing. */
DPARI_INTERNAL int dpari_prove_image(const dpar_halo *halo, const dpari_prove_block *block,
                                     const int64_t *p, int64_t *q, int32_t *turn);
/* Returns a number that changes where the rule for points of dim d changes: at the ends of the
 * block, of the grid, and of the row on a fold. The rule is the same for all points between two
 * points with the same number. */
DPARI_INTERNAL int32_t dpari_prove_rule(const dpar_halo *halo, const dpari_prove_block *block,
                                        int32_t d, int64_t i);
/* Returns the block that owns point q of a grid, for the copy of the grid to which the block at
 * coord[] belongs. Overwrites coord[]. */
DPARI_INTERNAL int32_t dpari_prove_owner(const dpar_halo *halo, const int64_t *q, int32_t *coord);
/* Counts the points of a local array that receive a value, if all blocks exist. Returns -1 above
 * 2^63 - 1. */
DPARI_INTERNAL int64_t dpari_prove_due(const dpar_halo *halo, const dpari_prove_block *block);
/* Proves that the ranges of points that the parts of dim d own are disjoint and cover the dim. */
DPARI_INTERNAL dpar_status dpari_prove_cut(const dpar_halo *halo, int32_t d, dpar_why *why);

/* ==== proof/proof_lists.c ==== */

/* Compares the lists of all units. That no send is left over follows from counting: each receive
 * has been matched with a different send, so that there are as many sends as receives only if every
 * send has been matched. */

/* ---- records --------------------------------------------------------------------------------- */

/* The positions of the small fields in the first word of a record, whose upper half is the peer. A
 * flip has 6 bits, a dim and the number of dims 3. */
enum { DPARI_PROVE_SWAP = 8, DPARI_PROVE_TURN = 16, DPARI_PROVE_OP = 20, DPARI_PROVE_DIMS = 24 };

static int64_t dpari_prove_words(const dpari_prove_source *source)
{
    return 1 + 3 * (int64_t)source->dims;
}

DPARI_INTERNAL int64_t dpari_prove_word(const int64_t *record, int32_t field, int32_t d)
{
    return record[1 + 3 * d + field];
}

DPARI_INTERNAL uint32_t dpari_prove_flip(const int64_t *record)
{
    return (uint32_t)record[0] & 0x3fu;
}

DPARI_INTERNAL int32_t dpari_prove_turn(const int64_t *record)
{
    return (int32_t)(record[0] >> DPARI_PROVE_TURN) & 3;
}

DPARI_INTERNAL int32_t dpari_prove_op(const int64_t *record)
{
    return (int32_t)(record[0] >> DPARI_PROVE_OP) & 0xf;
}

DPARI_INTERNAL int32_t dpari_prove_from(const int64_t *record, int32_t d)
{
    const int32_t a = (int32_t)(record[0] >> DPARI_PROVE_SWAP) & 7;
    const int32_t b = (int32_t)(record[0] >> (DPARI_PROVE_SWAP + 3)) & 7;
    if (d == a) {
        return b;
    }
    return d == b ? a : d;
}

DPARI_INTERNAL int64_t dpari_prove_volume(const dpari_prove_source *source, const int64_t *record)
{
    int64_t volume = 1;
    int32_t d;
    for (d = 0; d < source->dims; d++) {
        if (!dpari_mul(volume, dpari_prove_word(record, DPARI_PROVE_EXTENT, d), &volume)) {
            return -1;
        }
    }
    return volume;
}

/* Writes a transfer as a record. */
static void dpari_prove_pack(const dpari_prove_source *source, const dpar_transfer *t,
                             int64_t *record)
{
    const int swaps = t->swap[0] != t->swap[1];
    const int32_t a = swaps ? (int32_t)dpari_least(t->swap[0], t->swap[1]) : 0;
    const int32_t b = swaps ? t->swap[0] + t->swap[1] - a : 0;
    int32_t d;
    record[0] = (int64_t)t->peer << 32 | (int64_t)t->flip | (int64_t)a << DPARI_PROVE_SWAP |
                (int64_t)b << (DPARI_PROVE_SWAP + 3) | (int64_t)t->turn << DPARI_PROVE_TURN |
                (int64_t)t->op << DPARI_PROVE_OP | (int64_t)t->dims << DPARI_PROVE_DIMS;
    for (d = 0; d < source->dims; d++) {
        const int used = d < t->dims;
        record[1 + 3 * d + DPARI_PROVE_EXTENT] = used ? t->extent[d] : 1;
        record[1 + 3 * d + DPARI_PROVE_MINE] = used ? t->mine[d] : 0;
        record[1 + 3 * d + DPARI_PROVE_THEIRS] = used ? t->theirs[d] : 0;
    }
}

DPARI_INTERNAL const int64_t *dpari_prove_record(const dpari_prove_source *source,
                                                 const dpari_prove_list *list, int64_t k,
                                                 int32_t *peer)
{
    *peer = (int32_t)(list->key[k] >> 32);
    return list->record + (list->key[k] & INT64_C(0xffffffff)) * dpari_prove_words(source);
}

/* ---- messages -------------------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD void dpari_prove_put_point(dpar_text *out, int32_t dims,
                                                     const int64_t *at)
{
    int32_t d;
    for (d = 0; d < dims; d++) {
        dpari_text_say(out, d == 0 ? "(%ld" : ", %ld", at[d]);
    }
    dpar_text_put(out, dims > 0 ? ")" : "()");
}

DPARI_INTERNAL DPARI_COLD void dpari_prove_put_unit(dpar_text *out,
                                                    const dpari_prove_source *source, int32_t unit)
{
    if (source->owner != NULL) {
        dpari_text_say(out, "block %d of rank %d", unit, source->owner[unit]);
        return;
    }
    dpari_text_say(out, "rank %d", unit);
}

DPARI_INTERNAL DPARI_COLD void dpari_prove_refute(dpar_text *out, dpar_why *why, const char *what)
{
    dpari_text_why(out, why);
    dpar_text_put(out, what);
}

/* Appends a field of a record, such as "4 x 8" or "(0, 1)". */
static DPARI_COLD void dpari_prove_put_field(dpar_text *out, const int64_t *record, int32_t field)
{
    const int32_t dims = (int32_t)(record[0] >> DPARI_PROVE_DIMS) & 7;
    int64_t value[DPAR_MAX_DIMS];
    int32_t d;
    for (d = 0; d < dims; d++) {
        value[d] = dpari_prove_word(record, field, d);
        if (field == DPARI_PROVE_EXTENT) {
            dpari_text_say(out, d == 0 ? "%ld" : " x %ld", value[d]);
        }
    }
    if (field != DPARI_PROVE_EXTENT) {
        dpari_prove_put_point(out, dims, value);
    }
}

/* Appends "send 3 of rank 0 to rank 2". */
static DPARI_COLD void dpari_prove_put_send(dpar_text *out, const dpari_prove_source *source,
                                            int64_t number, int32_t from, int32_t to)
{
    dpari_text_say(out, "send %ld of ", number);
    dpari_prove_put_unit(out, source, from);
    dpar_text_put(out, " to ");
    dpari_prove_put_unit(out, source, to);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_prove_no_room(dpar_why *why, int64_t has,
                                                          int64_t needed)
{
    dpari_needs_bytes(why, needed);
    return dpari_say(DPAR_E_ROOM, why,
                     "a proof with %ld bytes of memory cannot hold its lists: try %ld bytes", has,
                     needed);
}

/* ---- sorting and counting -------------------------------------------------------------------- */

/* Moves the key at `i` down to its place in a heap whose root is the largest key. */
static void dpari_prove_sift(int64_t *key, int64_t i, int64_t count)
{
    const int64_t moved = key[i];
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= count) {
            break;
        }
        child += child + 1 < count && key[child + 1] > key[child];
        if (key[child] <= moved) {
            break;
        }
        key[i] = key[child];
        i = child;
    }
    key[i] = moved;
}

DPARI_INTERNAL void dpari_prove_sort(int64_t *key, int64_t count)
{
    int64_t i;
    for (i = count / 2 - 1; i >= 0; i--) {
        dpari_prove_sift(key, i, count);
    }
    for (i = count - 1; i > 0; i--) {
        const int64_t largest = key[0];
        key[0] = key[i];
        key[i] = largest;
        dpari_prove_sift(key, 0, i);
    }
}

/* Adds b to *a. Returns 0 if the sum exceeds 2^63 - 1. */
static int dpari_prove_add(int64_t *a, int64_t b)
{
    if (*a > INT64_MAX - b) {
        return 0;
    }
    *a += b;
    return 1;
}

DPARI_INTERNAL int dpari_prove_count(dpar_proof_range *range, int32_t rank, int64_t value)
{
    if (rank == 0 || value < range->least) {
        range->least = value;
        range->least_rank = rank;
    }
    if (rank == 0 || value > range->most) {
        range->most = value;
        range->most_rank = rank;
    }
    return dpari_prove_add(&range->total, value);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_prove_advance(const dpar_proof_desc *desc, int64_t done,
                                                          int64_t total)
{
    if (desc->progress != NULL && desc->progress(desc->context, done, total) != 0) {
        return DPAR_MORE;
    }
    return DPAR_OK;
}

/* ---- the state of a proof -------------------------------------------------------------------- */

/* Bytes that a rank exchanges with a peer; several entries with the same peer are added. */
typedef struct dpari_prove_flow {
    int64_t peer, out, in;
} dpari_prove_flow;
enum { DPARI_PROVE_FLOW = 3 }; /* its words */

typedef struct dpari_prove_state {
    const dpari_prove_source *source;
    const dpar_proof_desc *desc;
    int64_t point_bytes;
    int32_t *first, *unit; /* with owners: [ranks + 1] and [units], the units of each rank */
    int64_t *slot;         /* [slots] 1 + the position of a list in the log */
    int64_t slots;
    int64_t *area; /* the receives of a unit from below, the flows of a rank from above */
    int64_t area_words, area_used; /* of these, words used by the receives */
    dpari_prove_flow *flow;        /* [flows], in the area, the newest first */
    int64_t flows;
    int64_t *log;
    int64_t log_words, end; /* positions in the log never decrease; `end` is that of the next */
    int64_t sends, receives, points;
    dpar_why *why;
} dpari_prove_state;

/* The words in front of each list in the log: its unit and its count. */
enum { DPARI_PROVE_FRONT = 2 };

/* Divides the memory. An eighth of it or less goes to tables. */
static DPARI_COLD dpar_status dpari_prove_divide(dpari_prove_state *state)
{
    const dpari_prove_source *source = state->source;
    int64_t words = state->desc->bytes / 8, tables = 0, needed;
    int64_t *at = (int64_t *)state->desc->memory;
    if (source->owner != NULL) {
        tables = ((int64_t)source->ranks + source->units) / 2 + 2;
    }
    needed = tables + 64 * (source->head + 2 * dpari_prove_words(source)) + 1024;
    if (at == NULL || words < needed) {
        return dpari_prove_no_room(state->why, state->desc->bytes, 8 * needed);
    }
    if (source->owner != NULL) {
        state->first = (int32_t *)(void *)at;
        state->unit = state->first + source->ranks + 1;
        at += tables;
        words -= tables;
    }
    state->slot = at;
    state->slots = dpari_least(words / 32, source->units) + 1;
    dpari_zero(state->slot, (size_t)state->slots * 8);
    state->area = at + state->slots;
    state->area_words = words / 4;
    state->flow = (dpari_prove_flow *)(void *)(state->area + state->area_words);
    state->log = state->area + state->area_words;
    state->log_words = words - state->slots - state->area_words;
    return DPAR_OK;
}

/* Sorts the units by their ranks. */
static DPARI_COLD dpar_status dpari_prove_group(dpari_prove_state *state)
{
    const dpari_prove_source *source = state->source;
    int32_t i;
    if (source->owner == NULL) {
        return DPAR_OK;
    }
    dpari_zero(state->first, ((size_t)source->ranks + 1) * 4);
    for (i = 0; i < source->units; i++) {
        if (source->owner[i] < -1 || source->owner[i] >= source->ranks) {
            return dpari_wrong(state->why, "owner[%d] is %d, but must be -1 to %d", i,
                               source->owner[i], source->ranks - 1);
        }
        if (source->owner[i] >= 0) {
            state->first[source->owner[i] + 1]++;
        }
    }
    for (i = 0; i < source->ranks; i++) {
        state->first[i + 1] += state->first[i];
    }
    for (i = source->units - 1; i >= 0; i--) { /* uses first[rank + 1] as the place of the next */
        if (source->owner[i] >= 0) {
            state->unit[--state->first[source->owner[i] + 1]] = i;
        }
    }
    for (i = 0; i < source->ranks; i++) { /* first[rank + 1] is now where the rank begins */
        state->first[i] = state->first[i + 1];
    }
    state->first[source->ranks] = 0;
    for (i = 0; i < source->units; i++) {
        state->first[source->ranks] += source->owner[i] >= 0;
    }
    return DPAR_OK;
}

/* Returns the rank that owns a unit. */
static int32_t dpari_prove_rank(const dpari_prove_source *source, int32_t unit)
{
    return source->owner == NULL ? unit : source->owner[unit];
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Checks what a list of the caller may have wrong. */
static DPARI_COLD dpar_status dpari_prove_invalid(const dpari_prove_state *state, int32_t unit,
                                                  int32_t direction, int64_t number,
                                                  const dpar_transfer *t)
{
    dpar_text out;
    dpari_text_why(&out, state->why);
    dpari_prove_put_unit(&out, state->source, unit);
    dpari_text_say(&out,
                   direction == DPAR_TRANSFER_SEND ? ", send %ld: " : ", receive %ld: ", number);
    dpari_text_say(&out,
                   "peer is %d of %d, dims is %d of at most %d, flip is %ld, swap is %d and %d, "
                   "turn is %d, op is %d, ",
                   t->peer, state->source->units, t->dims, state->source->dims, (int64_t)t->flip,
                   t->swap[0], t->swap[1], t->turn, t->op);
    dpar_text_put(&out, "or an extent is below 1 or an index below 0");
    return DPAR_E_ARG;
}

static DPARI_COLD int dpari_prove_is_valid(const dpari_prove_source *source, const dpar_transfer *t)
{
    int32_t d;
    if (t->peer < 0 || t->peer >= source->units || t->dims < 0 || t->dims > source->dims ||
        t->flip >> source->dims != 0 || t->turn < 0 || t->turn > 3 || t->op < 0 ||
        t->op >= DPAR_OP_COUNT || dpari_prove_rank(source, t->peer) < 0) {
        return 0;
    }
    for (d = 0; d < 2; d++) {
        if (t->swap[d] < 0 || (t->swap[d] > 0 && t->swap[d] >= source->dims)) {
            return 0;
        }
    }
    for (d = 0; d < t->dims; d++) {
        if (t->extent[d] < 1 || t->mine[d] < 0 || t->theirs[d] < 0) {
            return 0;
        }
    }
    return 1;
}

/* Walks a list into `words` words from `at` on. Returns DPAR_E_ROOM without a message if it does
 * not fit. */
static dpar_status dpari_prove_load(const dpari_prove_state *state, int32_t unit, int32_t direction,
                                    int64_t *at, int64_t words, dpari_prove_list *list)
{
    const dpari_prove_source *source = state->source;
    const int64_t step = dpari_prove_words(source);
    int64_t *record = at + source->head, *key, n = 0, k;
    dpar_transfer t;
    dpar_status status;
    words -= source->head;
    if (words < 0) {
        return DPAR_E_ROOM;
    }
    if (source->describe != NULL) {
        source->describe(source->of, unit, at);
    }
    status = source->first(source->of, unit, direction, state->why);
    if (status != DPAR_OK) {
        return status;
    }
    for (n = 0; (status = source->next(source->of, &t, state->why)) == DPAR_MORE; n++) {
        if (n == INT32_MAX || (n + 1) * (step + 1) > words) {
            return DPAR_E_ROOM;
        }
        if (!dpari_prove_is_valid(source, &t)) {
            return dpari_prove_invalid(state, unit, direction, n, &t);
        }
        dpari_prove_pack(source, &t, record + n * step);
    }
    key = record + n * step; /* keys follow the records, because their number was not known */
    for (k = 0; k < n; k++) {
        key[k] = (record[k * step] >> 32 << 32) | k;
    }
    dpari_prove_sort(key, n);
    list->unit = unit;
    list->count = n;
    list->head = at;
    list->key = key;
    list->record = record;
    return status;
}

/* Returns the sends of a unit, from the log if they are there. */
static DPARI_COLD dpar_status dpari_prove_sends(dpari_prove_state *state, int32_t unit,
                                                dpari_prove_list *list)
{
    const dpari_prove_source *source = state->source;
    int64_t *slot = &state->slot[unit % state->slots], place = *slot - 1, *at;
    int32_t turn;
    if (*slot > 0 && state->end - place <= state->log_words) {
        at = state->log + place % state->log_words;
        if (at[0] == unit) {
            list->unit = unit;
            list->count = at[1];
            list->head = at + DPARI_PROVE_FRONT;
            list->record = list->head + source->head;
            list->key = list->record + list->count * dpari_prove_words(source);
            return DPAR_OK;
        }
    }
    for (turn = 0; turn < 2; turn++) { /* at the end of the log a list may need the second turn */
        const int64_t left = state->log_words - state->end % state->log_words;
        dpar_status status = DPAR_E_ROOM;
        at = state->log + state->end % state->log_words;
        if (left > DPARI_PROVE_FRONT) {
            status = dpari_prove_load(state, unit, DPAR_TRANSFER_SEND, at + DPARI_PROVE_FRONT,
                                      left - DPARI_PROVE_FRONT, list);
        }
        if (status == DPAR_OK) {
            at[0] = unit;
            at[1] = list->count;
            *slot = state->end + 1;
            state->end +=
                DPARI_PROVE_FRONT + source->head + list->count * (dpari_prove_words(source) + 1);
            return DPAR_OK;
        }
        if (status != DPAR_E_ROOM) {
            return status;
        }
        state->end += left;
    }
    return dpari_prove_no_room(state->why, state->desc->bytes, 2 * state->desc->bytes);
}

/* Walks the receives of a unit. */
static DPARI_COLD dpar_status dpari_prove_receives(dpari_prove_state *state, int32_t unit,
                                                   dpari_prove_list *list)
{
    const dpar_status status =
        dpari_prove_load(state, unit, DPAR_TRANSFER_RECV, state->area,
                         state->area_words - DPARI_PROVE_FLOW * state->flows, list);
    if (status == DPAR_E_ROOM) {
        return dpari_prove_no_room(state->why, state->desc->bytes, 2 * state->desc->bytes);
    }
    state->area_used = state->source->head + list->count * (dpari_prove_words(state->source) + 1);
    return status;
}

/* Returns the index of the first key with at least this peer. */
static int64_t dpari_prove_find(const dpari_prove_list *list, int64_t peer)
{
    int64_t low = 0, high = list->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (list->key[middle] >> 32 < peer) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* ---- fact 1: every message has its partner --------------------------------------------------- */

/* Writes that transfer `number` between two units has no partner. */
static DPARI_COLD dpar_status dpari_prove_alone(const dpari_prove_state *state, int is_send,
                                                int64_t number, int32_t from, int32_t to,
                                                const int64_t *record)
{
    dpar_text out;
    dpari_prove_refute(&out, state->why, "partner: ");
    if (is_send) {
        dpari_prove_put_send(&out, state->source, number, from, to);
    } else {
        dpari_text_say(&out, "receive %ld of ", number);
        dpari_prove_put_unit(&out, state->source, to);
        dpar_text_put(&out, " from ");
        dpari_prove_put_unit(&out, state->source, from);
    }
    dpar_text_put(&out, " (");
    dpari_prove_put_field(&out, record, DPARI_PROVE_EXTENT);
    dpar_text_put(&out, is_send ? " points) has no receive" : " points) has no send");
    return DPAR_E_MISMATCH;
}

/* Compares send number `number` of a pair of units with the receive of the same number. */
static dpar_status dpari_prove_pair(const dpari_prove_state *state, int64_t number, int32_t from,
                                    int32_t to, const int64_t *send, const int64_t *receive)
{
    static const char begins[3][24] = {" has ", " reads from ", " writes to "};
    static const char ends[3][32] = {" points, but its receive has ", ", but its receive expects ",
                                     ", but its receive writes to "};
    dpar_text out;
    int32_t field, d, differs = -1;
    for (field = 2; field >= 0; field--) {
        const int32_t other = field == 0 ? field : 3 - field;
        for (d = 0; d < state->source->dims; d++) {
            if (dpari_prove_word(send, field, d) != dpari_prove_word(receive, other, d)) {
                differs = field;
            }
        }
    }
    if (differs < 0 && (uint32_t)send[0] == (uint32_t)receive[0]) {
        return DPAR_OK;
    }
    dpari_prove_refute(&out, state->why, "partner: ");
    dpari_prove_put_send(&out, state->source, number, from, to);
    if (differs < 0) {
        dpar_text_put(&out, " has other dims, flip, swap, turn or op than its receive");
        return DPAR_E_MISMATCH;
    }
    dpar_text_put(&out, begins[differs]);
    dpari_prove_put_field(&out, send, differs);
    dpar_text_put(&out, ends[differs]);
    dpari_prove_put_field(&out, receive, differs == 0 ? 0 : 3 - differs);
    return DPAR_E_MISMATCH;
}

/* Adds the bytes of a transfer to the flows of a rank. */
static dpar_status dpari_prove_add_flow(dpari_prove_state *state, int32_t peer,
                                        const int64_t *record, int sends)
{
    int64_t bytes = dpari_prove_volume(state->source, record);
    dpari_prove_flow *flow = state->flow;
    if (state->flows == 0 || flow->peer != peer) {
        const int64_t left =
            state->area_words - state->area_used - DPARI_PROVE_FLOW * (state->flows + 1);
        if (left < 0) {
            return dpari_prove_no_room(state->why, state->desc->bytes, 2 * state->desc->bytes);
        }
        flow = --state->flow;
        state->flows++;
        flow->peer = peer;
        flow->out = flow->in = 0;
    }
    if (!dpari_mul(bytes, state->point_bytes, &bytes) ||
        !dpari_prove_add(sends ? &flow->out : &flow->in, bytes)) {
        return dpari_say(DPAR_E_RANGE, state->why, "messages with rank %d exceed 2^63 - 1 bytes",
                         peer);
    }
    return DPAR_OK;
}

/* Compares the receives of a unit from one peer, which begin at key `k`, with that peer's sends.
 * Sets *points to their elements. */
static dpar_status dpari_prove_group_of(dpari_prove_state *state, const dpari_prove_list *mine,
                                        int64_t *k, int64_t *points)
{
    const dpari_prove_source *source = state->source;
    dpari_prove_list theirs;
    int32_t peer = (int32_t)(mine->key[*k] >> 32), other;
    int64_t at, number;
    dpar_status status = dpari_prove_sends(state, peer, &theirs);
    if (status != DPAR_OK) {
        return status;
    }
    at = dpari_prove_find(&theirs, mine->unit);
    for (number = 0; *k < mine->count && mine->key[*k] >> 32 == peer; number++, (*k)++) {
        const int64_t *receive = dpari_prove_record(source, mine, *k, &other), *send;
        if (at + number >= theirs.count || theirs.key[at + number] >> 32 != mine->unit) {
            return dpari_prove_alone(state, 0, number, peer, mine->unit, receive);
        }
        send = dpari_prove_record(source, &theirs, at + number, &other);
        status = dpari_prove_pair(state, number, peer, mine->unit, send, receive);
        if (status == DPAR_OK && source->check != NULL) {
            status = source->check(source->of, mine, &theirs, receive, state->why);
        }
        if (status == DPAR_OK) {
            status = dpari_prove_add_flow(state, dpari_prove_rank(source, peer), receive, 0);
        }
        if (status != DPAR_OK) {
            return status;
        }
        if (!dpari_prove_add(points, dpari_prove_volume(source, receive))) {
            return dpari_say(DPAR_E_RANGE, state->why, "rank %d receives more than 2^63 - 1 points",
                             dpari_prove_rank(source, mine->unit));
        }
    }
    if (at + number < theirs.count && theirs.key[at + number] >> 32 == mine->unit) {
        const int64_t *send = dpari_prove_record(source, &theirs, at + number, &other);
        return dpari_prove_alone(state, 1, number, peer, mine->unit, send);
    }
    return DPAR_OK;
}

/* Finds a send that has no receive. There is one, because there are more sends than receives. */
static DPARI_COLD dpar_status dpari_prove_left_over(dpari_prove_state *state)
{
    const dpari_prove_source *source = state->source;
    dpari_prove_list sends, receives;
    int32_t unit, peer, other;
    int64_t k;
    state->flows = 0;
    for (unit = 0; unit < source->units; unit++) {
        for (k = 0;; k++) {
            dpar_status status = DPAR_OK;
            if (dpari_prove_rank(source, unit) >= 0) {
                status = dpari_prove_sends(state, unit, &sends);
            } else {
                sends.count = 0;
            }
            if (status != DPAR_OK || k >= sends.count) {
                if (status != DPAR_OK) {
                    return status;
                }
                break;
            }
            (void)dpari_prove_record(source, &sends, k, &peer);
            status = dpari_prove_receives(state, peer, &receives);
            if (status != DPAR_OK) {
                return status;
            }
            other = unit;
            if (dpari_prove_find(&receives, other) ==
                dpari_prove_find(&receives, (int64_t)other + 1)) {
                const int64_t *record = dpari_prove_record(source, &sends, k, &peer);
                return dpari_prove_alone(state, 1, 0, unit, peer, record);
            }
        }
    }
    return dpari_say(DPAR_E_MISMATCH, state->why, "partner: the lists of a rank change");
}

/* ---- fact 2: nothing is written twice -------------------------------------------------------- */

/* True if the boxes that two receives write have an element in common. */
static int dpari_prove_meet(const dpari_prove_source *source, const int64_t *a, const int64_t *b)
{
    int32_t d;
    for (d = 0; d < source->dims; d++) {
        const int64_t a0 = dpari_prove_word(a, DPARI_PROVE_MINE, d);
        const int64_t b0 = dpari_prove_word(b, DPARI_PROVE_MINE, d);
        const int64_t a1 = a0 + dpari_prove_word(a, DPARI_PROVE_EXTENT, dpari_prove_from(a, d));
        const int64_t b1 = b0 + dpari_prove_word(b, DPARI_PROVE_EXTENT, dpari_prove_from(b, d));
        if (a1 <= b0 || b1 <= a0) {
            return 0;
        }
    }
    return 1;
}

static dpar_status dpari_prove_twice(const dpari_prove_state *state, const dpari_prove_list *mine,
                                     int64_t i, int64_t j)
{
    const dpari_prove_source *source = state->source;
    int32_t peer[2], op[2], d;
    int64_t at[DPAR_MAX_DIMS];
    const int64_t *a = dpari_prove_record(source, mine, i, &peer[0]);
    const int64_t *b = dpari_prove_record(source, mine, j, &peer[1]);
    dpar_text out;
    if (!dpari_prove_meet(source, a, b)) {
        return DPAR_OK;
    }
    op[0] = dpari_prove_op(a);
    op[1] = dpari_prove_op(b);
    if (source->may_overlap == NULL ? op[0] != DPAR_COPY || op[1] != DPAR_COPY
                                    : source->may_overlap(source->of, peer, op)) {
        return DPAR_OK;
    }
    for (d = 0; d < source->dims; d++) {
        at[d] = dpari_most(dpari_prove_word(a, DPARI_PROVE_MINE, d),
                           dpari_prove_word(b, DPARI_PROVE_MINE, d));
    }
    dpari_prove_refute(&out, state->why, "twice: index ");
    dpari_prove_put_point(&out, source->dims, at);
    dpar_text_put(&out, " of the array of ");
    dpari_prove_put_unit(&out, source, mine->unit);
    dpar_text_put(&out, " is received from ");
    dpari_prove_put_unit(&out, source, peer[0]);
    dpar_text_put(&out, " and from ");
    dpari_prove_put_unit(&out, source, peer[1]);
    return DPAR_E_MISMATCH;
}

/* Lists of at most this length are compared pair by pair, without sorting. */
enum { DPARI_PROVE_FEW = 64 };

/* Returns the dim in which the receives begin at the largest distance, in units of their extents,
 * so that few of them overlap in it. *least and *shift receive the first index, and by how many
 * bits a distance is shifted to the right to fit into 31 bits. */
static DPARI_COLD int32_t dpari_prove_longest(const dpari_prove_source *source,
                                              const dpari_prove_list *mine, int64_t *least,
                                              int32_t *shift)
{
    int64_t best = -1, k;
    int32_t d, longest = 0, peer;
    for (d = 0; d < source->dims; d++) {
        int64_t first = INT64_MAX, last = 0, extent = 1;
        for (k = 0; k < mine->count; k++) {
            const int64_t *record = dpari_prove_record(source, mine, k, &peer);
            const int64_t at = dpari_prove_word(record, DPARI_PROVE_MINE, d);
            first = dpari_least(first, at);
            last = dpari_most(last, at);
            extent = dpari_most(
                extent, dpari_prove_word(record, DPARI_PROVE_EXTENT, dpari_prove_from(record, d)));
        }
        if ((last - first) / extent > best) {
            best = (last - first) / extent;
            longest = d;
            *least = first;
            *shift = 0;
            while ((last - first) >> *shift > INT32_MAX) {
                (*shift)++;
            }
        }
    }
    return longest;
}

/* Checks that no two receives of a unit write the same element. Long lists are sorted along a dim,
 * and each receive is compared with those that begin before it ends. */
static DPARI_COLD dpar_status dpari_prove_disjoint(const dpari_prove_state *state,
                                                   const dpari_prove_list *mine)
{
    const dpari_prove_source *source = state->source;
    int64_t *key = state->area + state->area_used, i, j, least = 0;
    int32_t shift = 0, d, peer;
    dpar_status status = DPAR_OK;
    if (mine->count <= DPARI_PROVE_FEW) {
        for (i = 0; i < mine->count; i++) {
            for (j = i + 1; j < mine->count && status == DPAR_OK; j++) {
                status = dpari_prove_twice(state, mine, i, j);
            }
        }
        return status;
    }
    if (state->area_used + mine->count > state->area_words - DPARI_PROVE_FLOW * state->flows) {
        return dpari_prove_no_room(state->why, state->desc->bytes, 2 * state->desc->bytes);
    }
    d = dpari_prove_longest(source, mine, &least, &shift);
    for (i = 0; i < mine->count; i++) {
        const int64_t *record = dpari_prove_record(source, mine, i, &peer);
        key[i] = (dpari_prove_word(record, DPARI_PROVE_MINE, d) - least) >> shift << 32 | i;
    }
    dpari_prove_sort(key, mine->count);
    for (i = 0; i < mine->count; i++) {
        const int64_t mine_i = key[i] & INT64_C(0xffffffff);
        const int64_t *record = dpari_prove_record(source, mine, mine_i, &peer);
        const int64_t last =
            dpari_prove_word(record, DPARI_PROVE_MINE, d) - least +
            dpari_prove_word(record, DPARI_PROVE_EXTENT, dpari_prove_from(record, d)) - 1;
        for (j = i + 1; j < mine->count && key[j] >> 32 <= last >> shift; j++) {
            status = dpari_prove_twice(state, mine, mine_i, key[j] & INT64_C(0xffffffff));
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    return status;
}

/* ---- lists of the caller --------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_prove_caller_first(void *of, int32_t unit,
                                                               int32_t direction, dpar_why *why)
{
    dpari_prove_caller *caller = (dpari_prove_caller *)of;
    (void)why;
    caller->unit = unit;
    caller->direction = direction;
    caller->number = 0;
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_prove_caller_next(void *of, dpar_transfer *transfer,
                                                              dpar_why *why)
{
    dpari_prove_caller *caller = (dpari_prove_caller *)of;
    (void)why;
    dpari_zero(transfer, sizeof *transfer);
    if (caller->next(caller->lists, caller->unit, caller->direction, caller->number, transfer)) {
        caller->number++;
        return DPAR_MORE;
    }
    return DPAR_OK;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

/* Proves the lists of one unit. */
static dpar_status dpari_prove_unit(dpari_prove_state *state, int32_t unit)
{
    const dpari_prove_source *source = state->source;
    dpari_prove_list mine, sends;
    int64_t k = 0, points = 0;
    int32_t peer;
    dpar_status status = dpari_prove_receives(state, unit, &mine);
    while (status == DPAR_OK && k < mine.count) {
        status = dpari_prove_group_of(state, &mine, &k, &points);
    }
    if (status == DPAR_OK) {
        status = dpari_prove_disjoint(state, &mine);
    }
    if (status == DPAR_OK && source->complete != NULL) {
        status = source->complete(source->of, &mine, points, state->why);
    }
    if (status == DPAR_OK) {
        status = dpari_prove_sends(state, unit, &sends);
    }
    for (k = 0; status == DPAR_OK && k < sends.count; k++) {
        const int64_t *record = dpari_prove_record(source, &sends, k, &peer);
        status = dpari_prove_add_flow(state, dpari_prove_rank(source, peer), record, 1);
    }
    if (status != DPAR_OK) {
        return status;
    }
    state->receives += mine.count;
    state->sends += sends.count;
    if (!dpari_prove_add(&state->points, points)) {
        return dpari_say(DPAR_E_RANGE, state->why, "all ranks receive more than 2^63 - 1 points");
    }
    return DPAR_OK;
}

/* Adds the flows of a rank to the report, those with the same peer together. */
static DPARI_COLD dpar_status dpari_prove_report_rank(dpari_prove_state *state, int32_t rank,
                                                      dpar_proof_report *report)
{
    const int64_t lines = 128; /* two cache lines, to which plans round up */
    int64_t *key = state->area, i, j, sent = 0, received = 0, copied = 0, staging = 0;
    int64_t messages = 0, peers = 0;
    int fits = 1;
    if (state->flows * (DPARI_PROVE_FLOW + 1) > state->area_words) {
        return dpari_prove_no_room(state->why, state->desc->bytes, 2 * state->desc->bytes);
    }
    for (i = 0; i < state->flows; i++) {
        key[i] = state->flow[i].peer << 32 | i;
    }
    dpari_prove_sort(key, state->flows);
    for (i = 0; i < state->flows; i = j) {
        const int64_t peer = key[i] >> 32;
        int64_t out = 0, in = 0, most;
        for (j = i; j < state->flows && key[j] >> 32 == peer; j++) {
            const dpari_prove_flow *flow = &state->flow[key[j] & INT64_C(0xffffffff)];
            fits &= dpari_prove_add(&out, flow->out) & dpari_prove_add(&in, flow->in);
        }
        if (peer == rank) {
            copied = out;
            continue;
        }
        peers++;
        messages += out > 0;
        most = dpari_most(out, in);
        fits &= dpari_prove_add(&sent, out) & dpari_prove_add(&received, in);
        fits &=
            most <= INT64_MAX / 4 && dpari_prove_add(&staging, (most + lines - 1) / lines * lines);
    }
    fits &= staging <= INT64_MAX / 3;
    fits &= dpari_prove_count(&report->messages, rank, messages) &
            dpari_prove_count(&report->peers, rank, peers) &
            dpari_prove_count(&report->sent, rank, sent) &
            dpari_prove_count(&report->received, rank, received) &
            dpari_prove_count(&report->copied, rank, copied);
    if (!fits || !dpari_prove_count(&report->staging, rank, 3 * staging)) {
        return dpari_say(DPAR_E_RANGE, state->why, "the bytes of ranks 0 to %d exceed 2^63 - 1",
                         rank);
    }
    state->flow += state->flows;
    state->flows = 0;
    return DPAR_OK;
}

/* Calls the caller's function after this many units. */
enum { DPARI_PROVE_EVERY = 4096 };

static DPARI_COLD dpar_status dpari_prove_all(dpari_prove_state *state, dpar_proof_report *report)
{
    const dpari_prove_source *source = state->source;
    int32_t rank, last = 0;
    int64_t k;
    for (rank = 0; rank < source->ranks; rank++) {
        const int64_t first = source->owner == NULL ? rank : state->first[rank];
        const int64_t end = source->owner == NULL ? (int64_t)rank + 1 : state->first[rank + 1];
        dpar_status status = DPAR_OK;
        for (k = first; k < end && status == DPAR_OK; k++) {
            const int32_t unit = source->owner == NULL ? rank : state->unit[k];
            status = dpari_prove_unit(state, unit);
        }
        report->blocks += end - first;
        if (status == DPAR_OK) {
            status = dpari_prove_report_rank(state, rank, report);
        }
        if (status == DPAR_OK && rank + 1 - last >= DPARI_PROVE_EVERY) {
            last = rank + 1;
            status = dpari_prove_advance(state->desc, last, source->ranks);
        }
        if (status != DPAR_OK) {
            return status;
        }
    }
    if (state->sends != state->receives) {
        return dpari_prove_left_over(state);
    }
    return dpari_prove_advance(state->desc, source->ranks, source->ranks);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_prove_run(const dpari_prove_source *source,
                                                      const dpar_proof_desc *desc,
                                                      dpar_proof_report *report, dpar_why *why)
{
    dpari_prove_state state;
    dpar_proof_report result;
    dpar_status status;
    dpari_zero(&state, sizeof state);
    dpari_zero(&result, sizeof result);
    if (desc->point_bytes < 0 || desc->bytes < 0 || source->ranks < 1) {
        return dpari_wrong(why,
                           "desc has point_bytes %ld, bytes %ld and %d ranks: must be at least 0, "
                           "0 and 1",
                           desc->point_bytes, desc->bytes, source->ranks);
    }
    state.source = source;
    state.desc = desc;
    state.why = why;
    state.point_bytes = desc->point_bytes > 0 ? desc->point_bytes : 8;
    status = dpari_prove_divide(&state);
    if (status == DPAR_OK) {
        status = dpari_prove_group(&state);
    }
    if (status == DPAR_OK) {
        status = dpari_prove_all(&state, &result);
    }
    if (status != DPAR_OK) {
        return status;
    }
    result.ranks = source->ranks;
    result.owners = source->owners;
    result.transfers = state.sends;
    result.points = state.points;
    *report = result;
    return DPAR_OK;
}

/* ==== proof/proof.c ==== */

/* Proves lists of the caller, and writes reports. */

/* ---- lists of the caller --------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_proof_transfers(const dpar_proof_desc *desc,
                                                     dpar_proof_report *report, dpar_why *why)
{
    dpari_prove_source source;
    dpari_prove_caller caller;
    if (desc == NULL || report == NULL || desc->next == NULL || desc->owner != NULL) {
        return dpari_wrong(why,
                           "dpar_proof_transfers: desc, desc->next and report must be set, and "
                           "desc->owner must be NULL");
    }
    dpari_zero(&source, sizeof source);
    dpari_zero(&caller, sizeof caller);
    caller.next = desc->next;
    caller.lists = desc->lists;
    source.of = &caller;
    source.units = source.ranks = desc->ranks;
    source.dims = DPAR_MAX_DIMS;
    source.first = dpari_prove_caller_first;
    source.next = dpari_prove_caller_next;
    return dpari_prove_run(&source, desc, report, why);
}

/* ---- reports --------------------------------------------------------------------------------- */

/* Appends a line of the table. */
static DPARI_COLD void dpari_prove_put_range(dpar_text *out, const char *name,
                                             const dpar_proof_range *range)
{
    dpari_text_say(out, "  %s", name);
    dpari_text_column(out, 24);
    dpari_text_say(out, "%12ld %12ld  rank %d", range->least, range->most, range->most_rank);
    dpari_text_column(out, 68);
    dpari_text_say(out, "%16ld\n", range->total);
}

DPAR_API DPARI_COLD void dpar_proof_draw(const dpar_proof_report *report, dpar_text *out)
{
    if (report == NULL || out == NULL) {
        return;
    }
    if (report->ranks < 1) {
        dpar_text_put(out, "Nothing is proved.\n");
        return;
    }
    dpari_text_say(out, "PROVED for %d ranks", report->ranks);
    if (report->blocks != report->ranks) {
        dpari_text_say(out, " with %ld blocks", report->blocks);
    }
    dpari_text_say(out, ": %ld transfers of %ld points.\n", report->transfers, report->points);
    dpar_text_put(out, "Each send has its receive, with the same bytes.\n");
    dpar_text_put(out, report->owners ? "Each point that is due comes once, from its owner.\n"
                                      : "No point is written twice.\n");
    dpar_text_put(out, "Ranks that post their messages before they wait cannot deadlock.\n\n");
    dpar_text_put(out, "  of a rank                    least         most");
    dpari_text_column(out, 79);
    dpar_text_put(out, "total\n");
    dpari_prove_put_range(out, "messages sent", &report->messages);
    dpari_prove_put_range(out, "peers", &report->peers);
    dpari_prove_put_range(out, "bytes sent", &report->sent);
    dpari_prove_put_range(out, "bytes received", &report->received);
    dpari_prove_put_range(out, "bytes copied", &report->copied);
    dpari_prove_put_range(out, "bytes of staging", &report->staging);
}

/* ==== proof/proof_image.c ==== */

/* Computes the source of a halo point. Each rule is written down as halo.h defines it. */

DPARI_INTERNAL DPARI_COLD void dpari_prove_block_of(const dpar_halo *halo, int32_t rank,
                                                    dpari_prove_block *block)
{
    dpar_box box, own;
    int owns;
    int32_t d;
    dpari_zero(block, sizeof *block);
    block->has = dpar_halo_box(halo, rank, &box);
    if (!block->has) {
        return;
    }
    owns = dpar_halo_owned(halo, rank, &own);
    for (d = 0; d < halo->grid.dims; d++) {
        block->box[d][0] = box.lo[d];
        block->box[d][1] = box.hi[d];
        block->own[d][0] = owns ? own.lo[d] : box.lo[d];
        block->own[d][1] = owns ? own.hi[d] : box.lo[d];
    }
}

/* ---- where the rules of a dim change --------------------------------------------------------- */

/* True if dim d is the y or x of a cubed sphere. */
static int dpari_prove_on_face(const dpar_halo *halo, int32_t d)
{
    return halo->cube && d >= halo->grid.dims - 2;
}

/* True if the last row of dim d is on a fold, so that its points are held twice. */
static int dpari_prove_has_seam(const dpar_halo *halo, int32_t d)
{
    return halo->folds && halo->on_row && d == halo->fold;
}

/* Sets [at[0], at[1]) to the points of a face of a cubed sphere that are not beyond its edges by
 * their position. The points on an edge that another face owns are not beyond it. */
static void dpari_prove_face_points(const dpar_halo *halo, int32_t d, int64_t *at)
{
    at[0] = halo->points[d] == DPAR_HALO_AT_HIGH_FACES ? -1 : 0;
    at[1] = halo->grid.extent[d] + (halo->points[d] == DPAR_HALO_AT_LOW_FACES);
}

/* Sets at[] to the points of dim d at which a rule may begin. Returns their number. */
enum { DPARI_PROVE_STARTS = 7 };
static int32_t dpari_prove_starts(const dpar_halo *halo, const dpari_prove_block *block, int32_t d,
                                  int64_t *at)
{
    int32_t n = 0;
    at[n++] = block->own[d][0];
    at[n++] = block->own[d][1];
    if ((halo->periodic >> d & 1u) != 0) {
        return n;
    }
    at[n++] = 0;
    at[n++] = dpar_halo_points(halo, d);
    if (dpari_prove_has_seam(halo, d)) {
        at[n++] = dpar_halo_points(halo, d) - 1;
    }
    if (dpari_prove_on_face(halo, d)) {
        dpari_prove_face_points(halo, d, at + n);
        n += 2;
    }
    return n;
}

DPARI_INTERNAL int32_t dpari_prove_rule(const dpar_halo *halo, const dpari_prove_block *block,
                                        int32_t d, int64_t i)
{
    int64_t at[DPARI_PROVE_STARTS];
    int32_t n = dpari_prove_starts(halo, block, d, at), rule = 0;
    while (n > 0) {
        rule += i >= at[--n];
    }
    return rule;
}

/* ---- images ---------------------------------------------------------------------------------- */

/* Returns in how many dims a halo point may be outside the own points. */
static int32_t dpari_prove_outside(const dpar_halo *halo)
{
    int32_t d;
    for (d = 0; d < halo->grid.dims; d++) {
        if (halo->window[d].kernel != 0) {
            return halo->grid.dims;
        }
    }
    return dpari_stencil_axes(halo->shape, halo->grid.dims);
}

/* Returns the direction of axis a (0 is x, 1 is y, 2 is outwards) of a face of the cube: 1, 2, 3
 * for X, Y, Z, and negative numbers for the opposite ones. This is the table in halo.h. */
static int32_t dpari_prove_axis(int32_t face, int32_t a)
{
    static const int8_t axes[3][6] = {
        {2, -1, -1, -3, -3, 2}, {3, 3, -2, -2, 1, 1}, {1, 2, 3, -1, -2, -3}};
    return axes[a][face];
}

/* Returns which heading on a face has a direction: 0 to 3 for x, y, -x and -y. */
static int32_t dpari_prove_heading(int32_t face, int32_t direction)
{
    int32_t heading;
    for (heading = 0; heading < 3; heading++) {
        const int32_t axis = dpari_prove_axis(face, heading % 2);
        if (direction == (heading < 2 ? axis : -axis)) {
            break;
        }
    }
    return heading;
}

/* Returns the face beyond the edge of a face in this heading. A path over the edge turns inwards on
 * the cube. *turn receives the quarter turns of vectors that come from there. */
static int32_t dpari_prove_next_face(int32_t face, int32_t heading, int32_t *turn)
{
    const int32_t axis = dpari_prove_axis(face, heading % 2);
    int32_t next = 0;
    while (dpari_prove_axis(next, 2) != (heading < 2 ? axis : -axis)) {
        next++;
    }
    *turn = (4 + heading - dpari_prove_heading(next, -dpari_prove_axis(face, 2))) % 4;
    return next;
}

/* Moves a position over an edge of a face, in dim k of at[] (0 is y, 1 is x), in half cells. half:
 * the position of points in their cells. */
static DPARI_COLD void dpari_prove_over_edge(int64_t n, int32_t k, int64_t *face, int64_t *at,
                                             int32_t *half, int32_t *turn)
{
    const int up = at[k] > n;
    int32_t quarter = 0;
    *face = dpari_prove_next_face((int32_t)*face, 1 - k + (up ? 0 : 2), &quarter);
    *turn = (*turn + quarter) % 4;
    at[k] += up ? -2 * n : 2 * n;
    if (quarter != 0) {
        const int64_t across = at[k];
        const int32_t was = half[k];
        at[k] = 2 * n - at[1 - k];
        at[1 - k] = across;
        half[k] = half[1 - k];
        half[1 - k] = was;
    }
}

/* Sets q to the point of a cubed sphere at the position of p. Returns 0 if p is beyond two edges,
 * where three faces meet. A point on an edge may need two steps, because the face beyond the edge
 * may not own it either. */
static DPARI_COLD int dpari_prove_on_cube(const dpar_halo *halo, const int64_t *p, int64_t *q,
                                          int32_t *turn)
{
    const int32_t y = halo->grid.dims - 2;
    const int64_t n = halo->grid.extent[y];
    int64_t at[2];
    int32_t half[2], k, hops;
    for (k = 0; k < 2; k++) {
        half[k] = 1;
        if (halo->points[y + k] != DPAR_HALO_AT_CELLS) {
            half[k] = halo->points[y + k] == DPAR_HALO_AT_LOW_FACES ? 0 : 2;
        }
        at[k] = 2 * p[y + k] + half[k];
    }
    for (hops = 0; hops < 3; hops++) {
        int beyond[2], ends[2];
        for (k = 0; k < 2; k++) {
            beyond[k] = at[k] < 0 || at[k] > 2 * n;
            ends[k] = at[k] < half[k] || at[k] - half[k] >= 2 * n;
        }
        if (beyond[0] && beyond[1]) {
            return 0;
        }
        if (!ends[0] && !ends[1]) {
            break;
        }
        k = ends[1];
        if (beyond[0] || beyond[1]) {
            k = beyond[1];
        }
        dpari_prove_over_edge(n, k, &q[0], at, half, turn);
    }
    q[y] = (at[0] - half[0]) / 2;
    q[y + 1] = (at[1] - half[1]) / 2;
    return 1;
}

/* Returns the row of which row i of the folded dim is an image. *beyond receives 1 if it is beyond
 * a fold, 2 if it is beyond a pole, otherwise 0. */
static int64_t dpari_prove_row(const dpar_halo *halo, int64_t i, int32_t *beyond)
{
    const int64_t n = dpar_halo_points(halo, halo->fold);
    *beyond = 0;
    if (i >= n && halo->folds) {
        *beyond = 1;
        return 2 * (n - 1) + 1 - halo->on_row - i;
    }
    if (i >= n && (halo->poles & DPAR_HALO_POLE_HIGH) != 0) {
        *beyond = 2;
        return 2 * (n - 1) + 1 - ((halo->pole_rows & DPAR_HALO_POLE_HIGH) != 0) - i;
    }
    if (i < 0 && (halo->poles & DPAR_HALO_POLE_LOW) != 0) {
        *beyond = 2;
        return ((halo->pole_rows & DPAR_HALO_POLE_LOW) != 0) - 1 - i;
    }
    return i;
}

DPARI_INTERNAL int dpari_prove_image(const dpar_halo *halo, const dpari_prove_block *block,
                                     const int64_t *p, int64_t *q, int32_t *turn)
{
    const int bends = halo->folds || halo->poles != 0;
    int32_t d, outside = 0, beyond = 0;
    int seam = 0;
    *turn = 0;
    for (d = 0; d < halo->grid.dims; d++) {
        const int64_t n = dpar_halo_points(halo, d);
        outside += p[d] < block->own[d][0] || p[d] >= block->own[d][1];
        q[d] = p[d];
        if ((halo->periodic >> d & 1u) != 0) {
            q[d] -= dpari_floor_div(p[d], n) * n;
        } else if (bends && d == halo->fold) {
            q[d] = dpari_prove_row(halo, p[d], &beyond);
        }
        if ((q[d] < 0 || q[d] >= n) && !dpari_prove_on_face(halo, d)) {
            return 0;
        }
        seam |= dpari_prove_has_seam(halo, d) && p[d] == n - 1;
    }
    if (outside > dpari_prove_outside(halo)) {
        return 0;
    }
    if (beyond != 0 || seam) {
        const int64_t columns = dpar_halo_points(halo, halo->mirror), column = q[halo->mirror];
        int64_t to = columns - 1 + halo->shift - column;
        if (beyond == 2) {
            to = column + columns / 2;
        }
        to -= dpari_floor_div(to, columns) * columns;
        if (beyond != 0 || to < column) { /* on the fold, the earlier column of a pair counts */
            q[halo->mirror] = to;
            *turn = 2;
            return 1;
        }
    }
    return outside > 0 && (!halo->cube || dpari_prove_on_cube(halo, p, q, turn));
}

/* ---- owners ---------------------------------------------------------------------------------- */

/* Returns the cell whose owner owns point i of a dim. */
static int64_t dpari_prove_cell(const dpar_halo *halo, int32_t d, int64_t i)
{
    if (dpar_halo_points(halo, d) == halo->grid.extent[d]) {
        return i;
    }
    return halo->points[d] == DPAR_HALO_AT_LOW_FACES ? dpari_least(i, halo->grid.extent[d] - 1)
                                                     : dpari_most(i - 1, 0);
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_prove_owner(const dpar_halo *halo, const int64_t *q,
                                                    int32_t *coord)
{
    int32_t d;
    for (d = 0; d < halo->grid.dims; d++) {
        (void)dpar_layout_locate(&halo->grid, d, dpari_prove_cell(halo, d, q[d]), coord, NULL,
                                 NULL);
    }
    return dpar_mesh_rank(&halo->grid.mesh, coord);
}

/* True if axis i cuts dim d. */
static DPARI_COLD int dpari_prove_cuts(const dpar_halo *halo, int32_t i, int32_t d)
{
    return halo->grid.axis[i].kind == DPAR_PLACEMENT_SHARD && halo->grid.axis[i].dim == d;
}

/* Advances coord[] to the next part of dim d. Returns 0 after the last one. */
static DPARI_COLD int dpari_prove_next_part(const dpar_halo *halo, int32_t d, int32_t *coord)
{
    int32_t i;
    for (i = 0; i < halo->grid.mesh.axes; i++) {
        if (!dpari_prove_cuts(halo, i, d)) {
            continue;
        }
        if (++coord[i] < halo->grid.mesh.axis[i].size) {
            return 1;
        }
        coord[i] = 0;
    }
    return 0;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_prove_cut(const dpar_halo *halo, int32_t d,
                                                      dpar_why *why)
{
    int32_t coord[DPAR_MAX_AXES] = {0};
    int64_t own[2], box[2], i, parts = 0;
    for (i = 0; i < dpar_halo_points(halo, d); i = own[1]) {
        if (!dpar_layout_locate(&halo->grid, d, dpari_prove_cell(halo, d, i), coord, NULL, NULL) ||
            !dpari_halo_range(halo, coord, d, own, box) || own[0] != i || own[1] <= i) {
            return dpari_say(DPAR_E_MISMATCH, why,
                             "blocks: point %ld of dim %d does not begin the block of its owner", i,
                             d);
        }
        parts++;
    }
    dpari_zero(coord, sizeof coord);
    do { /* no part of the dim owns points besides those that were visited */
        parts -= dpari_halo_range(halo, coord, d, own, box) && own[1] > own[0];
    } while (dpari_prove_next_part(halo, d, coord));
    if (parts != 0) {
        return dpari_say(DPAR_E_MISMATCH, why, "blocks: the parts of dim %d overlap", d);
    }
    return DPAR_OK;
}

/* ---- counting -------------------------------------------------------------------------------- */

/* A range of points of a dim to which one rule applies. */
typedef struct dpari_prove_piece {
    int64_t lo, hi;
    int32_t outside; /* 1 if it is outside the own points */
    int32_t beyond;  /* 1 if it is beyond an edge of a cube's face */
    int32_t seam;    /* 1 if it is the row on a fold */
} dpari_prove_piece;
enum { DPARI_PROVE_PIECES = DPARI_PROVE_STARTS + 1 };

/* True if point i of a dim may receive a value, as far as this dim decides. */
static int dpari_prove_may_receive(const dpar_halo *halo, int32_t d, int64_t i)
{
    int32_t beyond = 0;
    if ((halo->periodic >> d & 1u) != 0 || dpari_prove_on_face(halo, d)) {
        return 1;
    }
    if ((halo->folds || halo->poles != 0) && d == halo->fold) {
        i = dpari_prove_row(halo, i, &beyond);
    }
    return i >= 0 && i < dpar_halo_points(halo, d);
}

/* Divides the local array along dim d into pieces, without those that receive nothing. Returns
 * their number. */
static int32_t dpari_prove_pieces(const dpar_halo *halo, const dpari_prove_block *block, int32_t d,
                                  dpari_prove_piece *piece)
{
    int64_t at[DPARI_PROVE_STARTS], face[2] = {INT64_MIN, INT64_MAX}, lo = block->box[d][0], hi;
    const int32_t starts = dpari_prove_starts(halo, block, d, at);
    int32_t n = 0, k;
    if (dpari_prove_on_face(halo, d)) {
        dpari_prove_face_points(halo, d, face);
    }
    for (; lo < block->box[d][1]; lo = hi) {
        hi = block->box[d][1];
        for (k = 0; k < starts; k++) {
            hi = at[k] > lo ? dpari_least(hi, at[k]) : hi;
        }
        if (!dpari_prove_may_receive(halo, d, lo)) {
            continue;
        }
        piece[n].lo = lo;
        piece[n].hi = hi;
        piece[n].outside = lo < block->own[d][0] || lo >= block->own[d][1];
        piece[n].beyond = lo < face[0] || lo >= face[1];
        piece[n].seam = dpari_prove_has_seam(halo, d) && lo == dpar_halo_points(halo, d) - 1;
        n++;
    }
    return n;
}

/* Counts the own columns whose point on the fold is held by an earlier column, too. */
static DPARI_COLD int64_t dpari_prove_later_columns(const dpar_halo *halo,
                                                    const dpari_prove_piece *piece)
{
    const int64_t columns = dpar_halo_points(halo, halo->mirror);
    int64_t i, n = 0;
    for (i = piece->lo; i < piece->hi; i++) {
        const int64_t to = columns - 1 + halo->shift - i;
        n += to - dpari_floor_div(to, columns) * columns < i;
    }
    return n;
}

DPARI_INTERNAL int64_t dpari_prove_due(const dpar_halo *halo, const dpari_prove_block *block)
{
    dpari_prove_piece piece[DPAR_MAX_DIMS][DPARI_PROVE_PIECES];
    int32_t pieces[DPAR_MAX_DIMS], at[DPAR_MAX_DIMS] = {0}, d;
    const int32_t dims = halo->grid.dims, most = dpari_prove_outside(halo);
    int64_t due = 0;
    for (d = 0; d < dims; d++) {
        pieces[d] = dpari_prove_pieces(halo, block, d, piece[d]);
        if (pieces[d] == 0) {
            return 0;
        }
    }
    do {
        int64_t points = 1;
        int32_t outside = 0, beyond = 0, seam = 0;
        for (d = 0; d < dims; d++) {
            const dpari_prove_piece *one = &piece[d][at[d]];
            outside += one->outside;
            beyond += one->beyond;
            seam |= one->seam;
        }
        for (d = 0; d < dims && outside <= most && beyond < 2 && (outside > 0 || seam); d++) {
            const dpari_prove_piece *one = &piece[d][at[d]];
            int64_t count = one->hi - one->lo;
            if (outside == 0 && d == halo->mirror) {
                count = dpari_prove_later_columns(halo, one);
            }
            if (!dpari_mul(points, count, &points) || points > INT64_MAX - due) {
                return -1;
            }
        }
        due += d == dims ? points : 0;
        for (d = dims - 1; d >= 0 && ++at[d] == pieces[d]; d--) {
            at[d] = 0;
        }
    } while (d >= 0);
    return due;
}

/* ==== proof/proof_halo.c ==== */

/* Proves the halo exchange of a grid. A received box is checked at two opposite corners: within one
 * rule, each dim of the source counts up or down with one dim of the box. If the sources of both
 * corners are at the right places, and as far from each other as the corners are, then the points
 * between them have the right sources, too. The points of a row on a fold and those of fields on
 * faces of a cubed sphere are checked one by one, because there the direction depends on the point.
 */

/* What a list keeps about its unit: its block, and that of the partner field. */
typedef struct dpari_prove_unit_head {
    dpari_prove_block block, partner;
} dpari_prove_unit_head;

typedef struct dpari_prove_grid {
    dpari_prove_caller caller; /* the first member, because the caller's functions get `of` */
    dpar_halo halo, partner;   /* without owners if units are blocks */
    const int32_t *mask;       /* [blocks] -1 for a block that does not exist; NULL if all exist */
    const int32_t *owner;      /* [blocks] if units are blocks, otherwise NULL */
    const dpari_prove_unit_head *head; /* of the list that is walked */
    const dpari_prove_source *source;
    dpar_halo_cursor walk;
    int32_t direction, unit;
} dpari_prove_grid;

/* ---- walks ----------------------------------------------------------------------------------- */

static DPARI_COLD void dpari_prove_describe(void *of, int32_t unit, int64_t *words)
{
    dpari_prove_grid *grid = (dpari_prove_grid *)of;
    dpari_prove_unit_head *head = (dpari_prove_unit_head *)(void *)words;
    dpari_prove_block_of(&grid->halo, unit, &head->block);
    if (grid->halo.partner != NULL) {
        dpari_prove_block_of(&grid->partner, unit, &head->partner);
    }
    grid->head = head;
}

static dpar_status dpari_prove_halo_first(void *of, int32_t unit, int32_t direction, dpar_why *why)
{
    dpari_prove_grid *grid = (dpari_prove_grid *)of;
    grid->direction = direction;
    grid->unit = unit;
    return dpar_halo_first(&grid->walk, &grid->halo, unit, direction, DPAR_HALO_FORWARD, why);
}

/* Advances the walk, and checks that a transfer has the same place in the array and in the grid. */
static dpar_status dpari_prove_halo_next(void *of, dpar_transfer *t, dpar_why *why)
{
    dpari_prove_grid *grid = (dpari_prove_grid *)of;
    const dpari_prove_block *block = &grid->head->block;
    int32_t d;
    do {
        if (!dpar_halo_next(&grid->walk, t)) {
            return DPAR_OK;
        }
    } while (grid->owner != NULL && grid->owner[t->peer] < 0);
    if (grid->direction == DPAR_TRANSFER_SEND && grid->halo.partner != NULL && t->turn % 2 != 0) {
        block = &grid->head->partner;
    }
    for (d = 0; d < t->dims; d++) {
        if (block->box[d][0] + t->mine[d] != t->global[d]) {
            dpar_text out;
            dpari_prove_refute(&out, why, "global: a transfer of ");
            dpari_prove_put_unit(&out, grid->source, grid->unit);
            dpari_text_say(&out, " has global index %ld in dim %d, but %ld + %ld in its array",
                           t->global[d], d, block->box[d][0], t->mine[d]);
            return DPAR_E_MISMATCH;
        }
    }
    return DPAR_MORE;
}

/* ---- fact 4: from the owner ------------------------------------------------------------------ */

/* A receive that is checked. */
typedef struct dpari_prove_received {
    const dpari_prove_grid *grid;
    const dpari_prove_list *mine, *theirs;
    const dpari_prove_block *here, *there; /* `there` may be that of the partner field */
    const int64_t *record;
    dpar_why *why;
} dpari_prove_received;

/* Begins the message "owner: point (0, -1) of rank 2 is received from rank 1, ". */
static DPARI_COLD void dpari_prove_begin_owner(dpar_text *out, const dpari_prove_received *r,
                                               const int64_t *p)
{
    dpari_prove_refute(out, r->why, "owner: point ");
    dpari_prove_put_point(out, r->grid->halo.grid.dims, p);
    dpar_text_put(out, " of ");
    dpari_prove_put_unit(out, r->grid->source, r->mine->unit);
    dpar_text_put(out, " is received from ");
    dpari_prove_put_unit(out, r->grid->source, r->theirs->unit);
    dpar_text_put(out, ", ");
}

/* Returns the point that the sender sends for index i[] of the receiver's box in dim d of the
 * receiver. */
static int64_t dpari_prove_sent(const dpari_prove_received *r, int32_t d, int64_t i)
{
    const int32_t s = dpari_prove_from(r->record, d);
    const int64_t extent = dpari_prove_word(r->record, DPARI_PROVE_EXTENT, s);
    const int backwards = (int)(dpari_prove_flip(r->record) >> d & 1u);
    return r->there->box[s][0] + dpari_prove_word(r->record, DPARI_PROVE_THEIRS, s) +
           (backwards ? extent - 1 - i : i);
}

/* Checks the point at index i[] of a received box. */
static dpar_status dpari_prove_point(const dpari_prove_received *r, const int64_t *i)
{
    const int32_t dims = r->grid->halo.grid.dims;
    int64_t p[DPAR_MAX_DIMS] = {0}, q[DPAR_MAX_DIMS], sent[DPAR_MAX_DIMS];
    int32_t d, turn, wrong = 0, foreign = 0;
    dpar_text out;
    for (d = 0; d < dims; d++) {
        p[d] = r->here->box[d][0] + dpari_prove_word(r->record, DPARI_PROVE_MINE, d) + i[d];
        sent[dpari_prove_from(r->record, d)] = dpari_prove_sent(r, d, i[d]);
    }
    if (!dpari_prove_image(&r->grid->halo, r->here, p, q, &turn)) {
        dpari_prove_begin_owner(&out, r, p);
        dpar_text_put(&out, "but it is not a halo point with an image");
        return DPAR_E_MISMATCH;
    }
    for (d = 0; d < dims; d++) {
        wrong |= q[d] != sent[d];
        foreign |= q[d] < r->there->own[d][0] || q[d] >= r->there->own[d][1];
    }
    if (wrong) {
        dpari_prove_begin_owner(&out, r, p);
        dpar_text_put(&out, "which sends point ");
        dpari_prove_put_point(&out, dims, sent);
        dpar_text_put(&out, " in place of ");
        dpari_prove_put_point(&out, dims, q);
        return DPAR_E_MISMATCH;
    }
    if (foreign) {
        dpari_prove_begin_owner(&out, r, p);
        dpar_text_put(&out, "which does not own the point ");
        dpari_prove_put_point(&out, dims, q);
        dpar_text_put(&out, " that it sends");
        return DPAR_E_MISMATCH;
    }
    if (turn != dpari_prove_turn(r->record) ||
        (dpari_prove_from(r->record, dims - 1) != dims - 1) != (turn % 2 != 0)) {
        dpari_prove_begin_owner(&out, r, p);
        dpari_text_say(&out, "after %d quarter turns, but must be turned %d times",
                       dpari_prove_turn(r->record), turn);
        return DPAR_E_MISMATCH;
    }
    return DPAR_OK;
}

/* Checks that a received box is within the local array and, unless each of its points is checked,
 * that one rule applies to all of them. Sets last[] to the index of its last point. */
static DPARI_COLD dpar_status dpari_prove_extent_of(const dpari_prove_received *r, int each,
                                                    int64_t *last)
{
    const dpar_halo *halo = &r->grid->halo;
    int64_t p[DPAR_MAX_DIMS];
    int32_t d, wrong = -1;
    dpar_text out;
    for (d = 0; d < halo->grid.dims; d++) {
        const int32_t s = dpari_prove_from(r->record, d);
        last[d] = dpari_prove_word(r->record, DPARI_PROVE_EXTENT, s) - 1;
        p[d] = r->here->box[d][0] + dpari_prove_word(r->record, DPARI_PROVE_MINE, d);
        if (last[d] >= r->here->box[d][1] - p[d] ||
            (!each && dpari_prove_rule(halo, r->here, d, p[d]) !=
                          dpari_prove_rule(halo, r->here, d, p[d] + last[d]))) {
            wrong = d;
        }
    }
    if (wrong < 0) {
        return DPAR_OK;
    }
    dpari_prove_begin_owner(&out, r, p);
    dpari_text_say(&out,
                   "and %ld points of dim %d with it, which reach past the array, the grid or the "
                   "block",
                   last[wrong] + 1, wrong);
    return DPAR_E_MISMATCH;
}

/* Advances i[] to the next index up to last[]. Returns 0 after the last one. */
static DPARI_COLD int dpari_prove_next_index(int32_t dims, const int64_t *last, int64_t *i)
{
    int32_t d;
    for (d = dims - 1; d >= 0; d--) {
        if (++i[d] <= last[d]) {
            return 1;
        }
        i[d] = 0;
    }
    return 0;
}

static dpar_status dpari_prove_check_receive(void *of, const dpari_prove_list *mine,
                                             const dpari_prove_list *theirs, const int64_t *record,
                                             dpar_why *why)
{
    const dpari_prove_grid *grid = (const dpari_prove_grid *)of;
    const dpar_halo *halo = &grid->halo;
    const dpari_prove_unit_head *head = (const dpari_prove_unit_head *)(const void *)theirs->head;
    int64_t first[DPAR_MAX_DIMS] = {0}, last[DPAR_MAX_DIMS];
    dpari_prove_received r;
    dpar_status status;
    dpar_text out;
    int each;
    if (dpari_prove_op(record) != DPAR_COPY) {
        dpari_prove_refute(&out, why, "owner: a receive of ");
        dpari_prove_put_unit(&out, grid->source, mine->unit);
        dpari_text_say(&out, " has op %d, but halo cells must be copied (DPAR_COPY)",
                       dpari_prove_op(record));
        return DPAR_E_MISMATCH;
    }
    r.grid = grid;
    r.mine = mine;
    r.theirs = theirs;
    r.here = &((const dpari_prove_unit_head *)(const void *)mine->head)->block;
    r.there = &head->block;
    r.record = record;
    r.why = why;
    if (halo->partner != NULL && dpari_prove_turn(record) % 2 != 0) {
        r.there = &head->partner;
    }
    each = halo->partner != NULL;
    if (halo->folds && halo->on_row) {
        const int32_t d = halo->fold;
        const int64_t row = r.here->box[d][0] + dpari_prove_word(record, DPARI_PROVE_MINE, d);
        each |= row == dpar_halo_points(halo, d) - 1;
    }
    status = dpari_prove_extent_of(&r, each, last);
    if (status == DPAR_OK) {
        status = dpari_prove_point(&r, first);
    }
    while (each && status == DPAR_OK && dpari_prove_next_index(halo->grid.dims, last, first)) {
        status = dpari_prove_point(&r, first);
    }
    return status == DPAR_OK ? dpari_prove_point(&r, last) : status;
}

/* ---- fact 4: nothing is missing -------------------------------------------------------------- */

/* Advances p[] to the next point of a local array. Returns 0 after the last one. */
static DPARI_COLD int dpari_prove_next_point(const dpari_prove_block *block, int32_t dims,
                                             int64_t *p)
{
    int32_t d;
    for (d = dims - 1; d >= 0; d--) {
        if (++p[d] < block->box[d][1]) {
            return 1;
        }
        p[d] = block->box[d][0];
    }
    return 0;
}

/* True if point p is in a received box. */
static DPARI_COLD int dpari_prove_is_received(const dpari_prove_grid *grid,
                                              const dpari_prove_list *mine,
                                              const dpari_prove_block *block, const int64_t *p)
{
    int64_t k;
    int32_t d, peer;
    for (k = 0; k < mine->count; k++) {
        const int64_t *record = dpari_prove_record(grid->source, mine, k, &peer);
        for (d = 0; d < grid->halo.grid.dims; d++) {
            const int64_t i =
                p[d] - block->box[d][0] - dpari_prove_word(record, DPARI_PROVE_MINE, d);
            if (i < 0 ||
                i >= dpari_prove_word(record, DPARI_PROVE_EXTENT, dpari_prove_from(record, d))) {
                break;
            }
        }
        if (d == grid->halo.grid.dims) {
            return 1;
        }
    }
    return 0;
}

/* Visits all points of a local array. With `count`, adds up those that must be received. Otherwise
 * it writes the message about the first one that is not. */
static DPARI_COLD dpar_status dpari_prove_visit(const dpari_prove_grid *grid,
                                                const dpari_prove_list *mine,
                                                const dpari_prove_block *block, int64_t *count,
                                                dpar_why *why)
{
    const dpar_halo *halo = &grid->halo;
    int64_t p[DPAR_MAX_DIMS], q[DPAR_MAX_DIMS];
    int32_t coord[DPAR_MAX_AXES] = {0}, d, turn;
    dpar_text out;
    for (d = 0; d < halo->grid.dims; d++) {
        p[d] = block->box[d][0];
    }
    (void)dpari_halo_coords(halo, mine->unit, coord);
    do {
        const dpar_halo *from = halo;
        if (!dpari_prove_image(halo, block, p, q, &turn)) {
            continue;
        }
        from = halo->partner != NULL && turn % 2 != 0 ? halo->partner : halo;
        if (grid->mask != NULL && grid->mask[dpari_prove_owner(from, q, coord)] < 0) {
            continue;
        }
        if (count != NULL) {
            (*count)++;
        } else if (!dpari_prove_is_received(grid, mine, block, p)) {
            dpari_prove_refute(&out, why, "missing: point ");
            dpari_prove_put_point(&out, halo->grid.dims, p);
            dpar_text_put(&out, " of ");
            dpari_prove_put_unit(&out, grid->source, mine->unit);
            dpar_text_put(&out, ", an image of point ");
            dpari_prove_put_point(&out, halo->grid.dims, q);
            dpar_text_put(&out, ", is not received");
            return DPAR_E_MISMATCH;
        }
    } while (dpari_prove_next_point(block, halo->grid.dims, p));
    return DPAR_OK;
}

static dpar_status dpari_prove_halo_complete(void *of, const dpari_prove_list *mine, int64_t points,
                                             dpar_why *why)
{
    const dpari_prove_grid *grid = (const dpari_prove_grid *)of;
    const dpari_prove_block *block =
        &((const dpari_prove_unit_head *)(const void *)mine->head)->block;
    int64_t due = 0;
    dpar_status status;
    if (!block->has) {
        return DPAR_OK; /* a receive would have been outside of its array */
    }
    if (grid->mask == NULL) {
        due = dpari_prove_due(&grid->halo, block);
    } else {
        (void)dpari_prove_visit(grid, mine, block, &due, why);
    }
    if (due == points) {
        return DPAR_OK;
    }
    status = dpari_prove_visit(grid, mine, block, NULL, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_say(DPAR_E_MISMATCH, why, "missing: rank %d receives %ld points, but %ld are due",
                     mine->unit, points, due);
}

static int dpari_prove_never(void *of, const int32_t *peer, const int32_t *op)
{
    (void)of;
    (void)peer;
    (void)op;
    return 0;
}

/* ---- a whole grid ---------------------------------------------------------------------------- */

/* Sets the number of ranks and of units, and what depends on the owners of blocks. */
static DPARI_COLD dpar_status dpari_prove_owners(dpari_prove_grid *grid, dpari_prove_source *source,
                                                 const dpar_proof_desc *desc, dpar_why *why)
{
    const dpar_mesh *mesh = &grid->halo.grid.mesh;
    int64_t last = mesh->first_rank;
    int32_t i;
    dpar_status status;
    if (desc->owner != NULL) {
        grid->halo.owner = grid->partner.owner = desc->owner;
    }
    status = dpar_halo_check(&grid->halo, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < mesh->axes; i++) {
        last += (int64_t)(mesh->axis[i].size - 1) * mesh->axis[i].stride;
    }
    source->ranks = source->units = (int32_t)last + 1;
    if (grid->halo.owner == NULL) {
        return DPAR_OK;
    }
    for (i = 0; i < mesh->size; i++) {
        if (grid->halo.owner[i] < 0) {
            grid->mask = grid->halo.owner;
        }
    }
    if (desc->owner != NULL) {
        grid->owner = source->owner = desc->owner;
        source->ranks = desc->ranks;
        source->units = mesh->size;
        grid->halo.owner = grid->partner.owner = NULL;
        return DPAR_OK;
    }
    source->ranks = desc->ranks;
    for (i = 0; i < mesh->size; i++) {
        source->ranks = (int32_t)dpari_most(source->ranks, (int64_t)grid->halo.owner[i] + 1);
    }
    source->units = source->ranks;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_proof_halo(const dpar_halo *halo, const dpar_proof_desc *desc,
                                                dpar_proof_report *report, dpar_why *why)
{
    dpari_prove_grid grid;
    dpari_prove_source source;
    dpar_status status;
    int32_t d;
    if (halo == NULL || desc == NULL || report == NULL) {
        return dpari_wrong(why, "dpar_proof_halo: halo, desc and report must not be NULL");
    }
    dpari_zero(&grid, sizeof grid);
    dpari_zero(&source, sizeof source);
    grid.halo = *halo;
    if (halo->partner != NULL) {
        grid.partner = *halo->partner;
        grid.halo.partner = &grid.partner;
    }
    grid.source = &source;
    status = dpari_prove_owners(&grid, &source, desc, why);
    for (d = 0; status == DPAR_OK && d < halo->grid.dims; d++) {
        status = dpari_prove_cut(&grid.halo, d, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    source.of = &grid;
    source.dims = halo->grid.dims;
    source.head = sizeof(dpari_prove_unit_head) / sizeof(int64_t);
    source.describe = dpari_prove_describe;
    source.check = dpari_prove_check_receive;
    source.complete = dpari_prove_halo_complete;
    source.may_overlap = dpari_prove_never;
    source.first = dpari_prove_halo_first;
    source.next = dpari_prove_halo_next;
    if (desc->next != NULL) {
        grid.caller.next = desc->next;
        grid.caller.lists = desc->lists;
        source.first = dpari_prove_caller_first;
        source.next = dpari_prove_caller_next;
    }
    source.owners = 1;
    return dpari_prove_run(&source, desc, report, why);
}

/* ==== proof/proof_redistribute.c ==== */

/* Proves the redistribution of an array, with dpar_layout_global for both sides of a transfer. */

typedef struct dpari_prove_move {
    const dpari_prove_source *source;
    const dpar_layout *from, *to;
    int32_t per_node, unit, direction;
    uint32_t sums;         /* axes of `from` whose partial values are combined */
    uint32_t begins;       /* axes of `to` on which only coordinate 0 receives values */
    int64_t contributions; /* number of values that are combined to one */
    dpar_redistribute_cursor walk;
} dpari_prove_move;

static DPARI_COLD dpar_status dpari_prove_move_first(void *of, int32_t unit, int32_t direction,
                                                     dpar_why *why)
{
    dpari_prove_move *move = (dpari_prove_move *)of;
    const dpar_status status =
        dpar_redistribute_first(&move->walk, move->from, move->to, unit, direction, move->per_node);
    move->unit = unit;
    move->direction = direction;
    if (status < 0) {
        return dpari_say(status, why, "per_node is %d: see dpar_redistribute_first",
                         move->per_node);
    }
    return DPAR_OK;
}

/* Returns the global index at a local index of a rank, if at least `count` indices from there on
 * are consecutive in both. Otherwise returns -1. */
static DPARI_COLD int64_t dpari_prove_global(const dpar_layout *layout, int32_t rank, int32_t d,
                                             int64_t local, int64_t count)
{
    int64_t run = 0, global = dpar_layout_global(layout, rank, d, local, &run);
    return run < count ? -1 : global;
}

static DPARI_COLD dpar_status dpari_prove_move_next(void *of, dpar_transfer *t, dpar_why *why)
{
    dpari_prove_move *move = (dpari_prove_move *)of;
    const dpar_layout *here = move->direction == DPAR_TRANSFER_SEND ? move->from : move->to;
    int32_t d;
    if (!dpar_redistribute_next(&move->walk, t)) {
        return DPAR_OK;
    }
    for (d = 0; d < t->dims; d++) {
        const int64_t global = dpari_prove_global(here, move->unit, d, t->mine[d], t->extent[d]);
        if (global != t->global[d]) {
            return dpari_say(DPAR_E_MISMATCH, why,
                             "global: a transfer of rank %d has global index %ld in dim %d, but "
                             "its local index %ld is %ld",
                             move->unit, t->global[d], d, t->mine[d], global);
        }
    }
    return DPAR_MORE;
}

static DPARI_COLD dpar_status dpari_prove_move_check(void *of, const dpari_prove_list *mine,
                                                     const dpari_prove_list *theirs,
                                                     const int64_t *record, dpar_why *why)
{
    const dpari_prove_move *move = (const dpari_prove_move *)of;
    int32_t d;
    for (d = 0; d < move->to->dims; d++) {
        const int64_t extent = dpari_prove_word(record, DPARI_PROVE_EXTENT, d);
        const int64_t at = dpari_prove_word(record, DPARI_PROVE_MINE, d);
        const int64_t there = dpari_prove_word(record, DPARI_PROVE_THEIRS, d);
        const int64_t wanted = dpari_prove_global(move->to, mine->unit, d, at, extent);
        const int64_t sent = dpari_prove_global(move->from, theirs->unit, d, there, extent);
        if (wanted < 0 || sent != wanted) {
            return dpari_say(DPAR_E_MISMATCH, why,
                             "owner: rank %d receives %ld elements of dim %d from rank %d, which "
                             "begin at element %ld in place of %ld (-1: there are fewer)",
                             mine->unit, extent, d, theirs->unit, sent, wanted);
        }
    }
    return DPAR_OK;
}

static DPARI_COLD dpar_status dpari_prove_move_complete(void *of, const dpari_prove_list *mine,
                                                        int64_t points, dpar_why *why)
{
    const dpari_prove_move *move = (const dpari_prove_move *)of;
    int64_t count = dpar_layout_count(move->to, mine->unit), due, copied = 0, k;
    int32_t coord[DPAR_MAX_AXES] = {0}, i, peer;
    (void)dpar_mesh_coords(&move->to->mesh, mine->unit, coord);
    for (i = 0; i < move->to->mesh.axes; i++) {
        if ((move->begins >> i & 1u) != 0 && coord[i] != 0) {
            count = 0;
        }
    }
    if (!dpari_mul(count, move->contributions, &due)) {
        return dpari_say(DPAR_E_RANGE, why, "rank %d receives more than 2^63 - 1 elements",
                         mine->unit);
    }
    for (k = 0; k < mine->count; k++) {
        const int64_t *record = dpari_prove_record(move->source, mine, k, &peer);
        copied +=
            dpari_prove_op(record) == DPAR_COPY ? dpari_prove_volume(move->source, record) : 0;
    }
    if (points == due && copied == count) {
        return DPAR_OK;
    }
    return dpari_say(DPAR_E_MISMATCH, why,
                     "missing: rank %d receives %ld elements, %ld of them as copies, but %ld and "
                     "%ld are due",
                     mine->unit, points, copied, due, count);
}

/* Receives may write the same elements if they bring different contributions to their sums. */
static DPARI_COLD int dpari_prove_move_overlap(void *of, const int32_t *peer, const int32_t *op)
{
    const dpari_prove_move *move = (const dpari_prove_move *)of;
    int32_t a[DPAR_MAX_AXES] = {0}, b[DPAR_MAX_AXES] = {0}, i, differs = 0;
    (void)dpar_mesh_coords(&move->from->mesh, peer[0], a);
    (void)dpar_mesh_coords(&move->from->mesh, peer[1], b);
    for (i = 0; i < move->from->mesh.axes; i++) {
        differs |= (move->sums >> i & 1u) != 0 && a[i] != b[i];
    }
    return differs && (op[0] != DPAR_COPY || op[1] != DPAR_COPY);
}

/* True if the sums along axis i of both layouts stay as they are. dpar_redistribute_check has
 * compared their ops. */
static DPARI_COLD int dpari_prove_stays(const dpar_layout *from, const dpar_layout *to, int32_t i)
{
    return from->mesh.axes == to->mesh.axes && from->mesh.first_rank == to->mesh.first_rank &&
           from->axis[i].kind == DPAR_PLACEMENT_PARTIAL &&
           to->axis[i].kind == DPAR_PLACEMENT_PARTIAL &&
           from->mesh.axis[i].size == to->mesh.axis[i].size &&
           from->mesh.axis[i].stride == to->mesh.axis[i].stride;
}

/* Returns the number of ranks from 0 to the last one of a mesh. */
static DPARI_COLD int64_t dpari_prove_ranks_of(const dpar_mesh *mesh)
{
    int64_t last = mesh->first_rank;
    int32_t i;
    for (i = 0; i < mesh->axes; i++) {
        last += (int64_t)(mesh->axis[i].size - 1) * mesh->axis[i].stride;
    }
    return last + 1;
}

DPAR_API DPARI_COLD dpar_status dpar_proof_redistribute(const dpar_layout *from,
                                                        const dpar_layout *to, int32_t per_node,
                                                        const dpar_proof_desc *desc,
                                                        dpar_proof_report *report, dpar_why *why)
{
    dpari_prove_move move;
    dpari_prove_source source;
    dpar_status status;
    int32_t i;
    if (from == NULL || to == NULL || desc == NULL || report == NULL || desc->owner != NULL ||
        desc->next != NULL) {
        return dpari_wrong(why, "dpar_proof_redistribute: from, to, desc and report must be set, "
                                "and desc->owner and desc->next must be NULL");
    }
    status = dpar_redistribute_check(from, to, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&move, sizeof move);
    dpari_zero(&source, sizeof source);
    move.from = from;
    move.to = to;
    move.per_node = per_node;
    move.source = &source;
    move.contributions = 1;
    for (i = 0; i < from->mesh.axes; i++) {
        if (from->axis[i].kind == DPAR_PLACEMENT_PARTIAL && !dpari_prove_stays(from, to, i)) {
            move.sums |= (uint32_t)1 << i;
            move.contributions *= from->mesh.axis[i].size;
        }
    }
    for (i = 0; i < to->mesh.axes; i++) {
        if (to->axis[i].kind == DPAR_PLACEMENT_PARTIAL && !dpari_prove_stays(from, to, i)) {
            move.begins |= (uint32_t)1 << i;
        }
    }
    source.of = &move;
    source.units = source.ranks =
        (int32_t)dpari_most(dpari_prove_ranks_of(&from->mesh), dpari_prove_ranks_of(&to->mesh));
    source.dims = to->dims;
    source.first = dpari_prove_move_first;
    source.next = dpari_prove_move_next;
    source.check = dpari_prove_move_check;
    source.complete = dpari_prove_move_complete;
    source.may_overlap = dpari_prove_move_overlap;
    source.owners = 1;
    return dpari_prove_run(&source, desc, report, why);
}

/* ==== proof/proof_points.c ==== */

/* Proves exchanges by index lists. A bit per ghost marks those that have been received. */

typedef struct dpari_prove_points_state {
    const dpar_proof_desc *desc;
    int32_t named; /* 1 if all values that were compared have ids */
    int64_t bytes,
        sends; /* bytes of a value; number of messages whose receive is not yet checked */
    dpar_why *why;
} dpari_prove_points_state;

/* Checks the counts of the lists of a rank. */
static DPARI_COLD dpar_status dpari_prove_index_check(const dpari_prove_points_state *state,
                                                      int32_t rank, const dpar_proof_index *index)
{
    int32_t i;
    if (index->peer_count > 0 &&
        (index->peer == NULL || index->send_count == NULL || index->receive_count == NULL)) {
        return dpari_wrong(state->why,
                           "rank %d: peer, send_count or receive_count is NULL, but it has %d "
                           "peers",
                           rank, index->peer_count);
    }
    if (index->own_count < 0 || index->ghost_count < 0 || index->peer_count < 0 ||
        index->own_count > INT32_MAX || index->ghost_count > INT32_MAX - index->own_count) {
        return dpari_wrong(state->why,
                           "rank %d has %ld own values, %ld ghosts and %d peers: must be at least "
                           "0, and together at most 2^31 - 1",
                           rank, index->own_count, index->ghost_count, index->peer_count);
    }
    for (i = 0; i < index->peer_count; i++) {
        if (index->peer[i] < 0 || index->peer[i] >= state->desc->ranks ||
            index->send_count[i] < 0 || index->receive_count[i] < 0) {
            return dpari_wrong(state->why,
                               "rank %d: peer %d of %d ranks, %ld sent and %ld received values: "
                               "no such rank, or a count below 0",
                               rank, index->peer[i], state->desc->ranks, index->send_count[i],
                               index->receive_count[i]);
        }
        if (index->send_count[i] > 0 && index->send_index == NULL) {
            return dpari_wrong(state->why,
                               "rank %d: send_index is NULL, but %ld values are sent to rank %d",
                               rank, index->send_count[i], index->peer[i]);
        }
    }
    return DPAR_OK;
}

/* Finds a peer in the lists of a rank. Returns its number or -1, and sets *first to the number of
 * values that the rank sends to the peers before it. */
static DPARI_COLD int32_t dpari_prove_peer(const dpar_proof_index *index, int32_t rank,
                                           int64_t *first)
{
    int32_t i;
    *first = 0;
    for (i = 0; i < index->peer_count; i++) {
        if (index->peer[i] == rank) {
            return i;
        }
        *first += index->send_count[i];
    }
    return -1;
}

/* Returns the local index of receive number k of a rank. */
static DPARI_COLD int64_t dpari_prove_ghost(const dpar_proof_index *index, int64_t k)
{
    return index->receive_index != NULL ? index->receive_index[k] : index->own_count + k;
}

/* Checks value k of a message: its ghost is a ghost that has not been received, its source is an
 * own value of the sender, and both have the same id. */
static DPARI_COLD dpar_status dpari_prove_value(dpari_prove_points_state *state,
                                                const int32_t *rank, const dpar_proof_index *mine,
                                                const dpar_proof_index *theirs, int64_t ghost,
                                                int64_t source)
{
    unsigned char *mark = (unsigned char *)state->desc->memory;
    const int64_t bit = ghost - mine->own_count;
    if (source < 0 || source >= theirs->own_count) {
        return dpari_say(DPAR_E_MISMATCH, state->why,
                         "owner: rank %d sends its local index %ld to rank %d, but owns only 0 to "
                         "%ld",
                         rank[1], source, rank[0], theirs->own_count - 1);
    }
    if (bit < 0 || bit >= mine->ghost_count) {
        return dpari_say(DPAR_E_MISMATCH, state->why,
                         "owner: rank %d receives local index %ld from rank %d, but its ghosts "
                         "are %ld to %ld",
                         rank[0], ghost, rank[1], mine->own_count,
                         mine->own_count + mine->ghost_count - 1);
    }
    if ((mark[bit / 8] >> bit % 8 & 1) != 0) {
        return dpari_say(DPAR_E_MISMATCH, state->why,
                         "twice: rank %d receives local index %ld a second time, from rank %d",
                         rank[0], ghost, rank[1]);
    }
    mark[bit / 8] = (unsigned char)(mark[bit / 8] | 1 << bit % 8);
    if (mine->id == NULL || theirs->id == NULL) {
        state->named = 0;
        return DPAR_OK;
    }
    if (mine->id[ghost] != theirs->id[source]) {
        return dpari_say(DPAR_E_MISMATCH, state->why,
                         "owner: rank %d receives id %ld from rank %d into local index %ld, which "
                         "has id %ld",
                         rank[0], theirs->id[source], rank[1], ghost, mine->id[ghost]);
    }
    return DPAR_OK;
}

/* Checks that a peer is listed once. */
static DPARI_COLD dpar_status dpari_prove_once(const dpari_prove_points_state *state, int32_t rank,
                                               const dpar_proof_index *index)
{
    int32_t i, k;
    for (i = 0; i < index->peer_count; i++) {
        for (k = 0; k < i; k++) {
            if (index->peer[k] == index->peer[i]) {
                return dpari_wrong(state->why, "rank %d lists peer %d twice", rank, index->peer[i]);
            }
        }
    }
    return DPAR_OK;
}

/* Checks the receives of a rank against the sends of its peers. */
static DPARI_COLD dpar_status dpari_prove_points_rank(dpari_prove_points_state *state, int32_t rank,
                                                      const dpar_proof_index *mine)
{
    const int64_t marks = mine->ghost_count / 8 + 1;
    int64_t at = 0, k, first;
    int32_t i, pair[2];
    dpar_status status = dpari_prove_once(state, rank, mine);
    if (status != DPAR_OK) {
        return status;
    }
    if (state->desc->memory == NULL || state->desc->bytes < marks) {
        return dpari_prove_no_room(state->why, state->desc->bytes, marks);
    }
    dpari_zero(state->desc->memory, (size_t)marks);
    pair[0] = rank;
    for (i = 0; i < mine->peer_count; i++) {
        dpar_proof_index theirs;
        int64_t sent = 0;
        int32_t number;
        pair[1] = mine->peer[i];
        dpari_zero(&theirs, sizeof theirs);
        state->desc->index_of(state->desc->lists, pair[1], &theirs);
        status = dpari_prove_index_check(state, pair[1], &theirs);
        if (status != DPAR_OK) {
            return status;
        }
        number = dpari_prove_peer(&theirs, rank, &first);
        sent = number >= 0 ? theirs.send_count[number] : 0;
        if (sent != mine->receive_count[i]) {
            return dpari_say(DPAR_E_MISMATCH, state->why,
                             "partner: rank %d receives %ld values from rank %d, which sends %ld",
                             rank, mine->receive_count[i], pair[1], sent);
        }
        state->sends -= sent > 0;
        for (k = 0; k < sent && status == DPAR_OK; k++) {
            status = dpari_prove_value(state, pair, mine, &theirs, dpari_prove_ghost(mine, at + k),
                                       theirs.send_index[first + k]);
        }
        if (status != DPAR_OK) {
            return status;
        }
        at += sent;
    }
    for (k = 0; k < mine->ghost_count && !mine->unsent_ghosts; k++) {
        if ((((unsigned char *)state->desc->memory)[k / 8] >> k % 8 & 1) == 0) {
            return dpari_say(DPAR_E_MISMATCH, state->why,
                             "missing: rank %d does not receive local index %ld", rank,
                             mine->own_count + k);
        }
    }
    return DPAR_OK;
}

/* Adds the messages of a rank to the report. Returns 0 if a sum exceeds 2^63 - 1. */
static DPARI_COLD int dpari_prove_points_add(dpari_prove_points_state *state, int32_t rank,
                                             const dpar_proof_index *mine,
                                             dpar_proof_report *report)
{
    const int64_t bytes = state->bytes, limit = INT64_MAX / 8 / bytes;
    int64_t sent = 0, received = 0, copied = 0, messages = 0, peers = 0, staging = 0;
    int32_t i;
    for (i = 0; i < mine->peer_count; i++) {
        const int64_t out = mine->send_count[i], in = mine->receive_count[i];
        report->transfers += out > 0;
        state->sends += out > 0;
        if (out > limit || in > limit || report->points > INT64_MAX - in) {
            return 0;
        }
        report->points += in;
        if (mine->peer[i] == rank) {
            copied += out * bytes;
            continue;
        }
        peers += out > 0 || in > 0;
        messages += out > 0;
        sent += out * bytes;
        received += in * bytes;
        staging += 3 * ((dpari_most(out, in) * bytes + 127) / 128 * 128);
        if (sent > INT64_MAX / 8 || received > INT64_MAX / 8) {
            return 0;
        }
    }
    return dpari_prove_count(&report->messages, rank, messages) &
           dpari_prove_count(&report->peers, rank, peers) &
           dpari_prove_count(&report->sent, rank, sent) &
           dpari_prove_count(&report->received, rank, received) &
           dpari_prove_count(&report->copied, rank, copied) &
           dpari_prove_count(&report->staging, rank, staging);
}

/* Finds a message that no rank receives. */
static DPARI_COLD dpar_status dpari_prove_unreceived(const dpari_prove_points_state *state)
{
    dpar_proof_index mine, theirs;
    int64_t first;
    int32_t rank, i;
    for (rank = 0; rank < state->desc->ranks; rank++) {
        dpari_zero(&mine, sizeof mine);
        state->desc->index_of(state->desc->lists, rank, &mine);
        for (i = 0; i < mine.peer_count; i++) {
            dpari_zero(&theirs, sizeof theirs);
            state->desc->index_of(state->desc->lists, mine.peer[i], &theirs);
            if (mine.send_count[i] > 0 && dpari_prove_peer(&theirs, rank, &first) < 0) {
                return dpari_say(DPAR_E_MISMATCH, state->why,
                                 "partner: rank %d sends %ld values to rank %d, which receives "
                                 "none",
                                 rank, mine.send_count[i], mine.peer[i]);
            }
        }
    }
    return dpari_say(DPAR_E_MISMATCH, state->why, "partner: the lists of a rank change");
}

DPAR_API DPARI_COLD dpar_status dpar_proof_points(const dpar_proof_desc *desc,
                                                  dpar_proof_report *report, dpar_why *why)
{
    dpari_prove_points_state state;
    dpar_proof_report result;
    dpar_status status = DPAR_OK;
    int32_t rank;
    if (desc == NULL || desc->index_of == NULL || report == NULL || desc->ranks < 1 ||
        desc->point_bytes < 0) {
        return dpari_wrong(why,
                           "dpar_proof_points: desc, desc->index_of and report must be set, and "
                           "desc->ranks and desc->point_bytes be at least 1 and 0");
    }
    dpari_zero(&state, sizeof state);
    dpari_zero(&result, sizeof result);
    state.desc = desc;
    state.why = why;
    state.named = 1;
    state.bytes = desc->point_bytes > 0 ? desc->point_bytes : 8;
    for (rank = 0; rank < desc->ranks && status == DPAR_OK; rank++) {
        dpar_proof_index mine;
        dpari_zero(&mine, sizeof mine);
        desc->index_of(desc->lists, rank, &mine);
        status = dpari_prove_index_check(&state, rank, &mine);
        if (status == DPAR_OK && !dpari_prove_points_add(&state, rank, &mine, &result)) {
            status =
                dpari_say(DPAR_E_RANGE, why, "ranks 0 to %d exchange more than 2^60 bytes", rank);
        }
        if (status == DPAR_OK) {
            status = dpari_prove_points_rank(&state, rank, &mine);
        }
        if (status == DPAR_OK && (rank % 1024 == 1023 || rank == desc->ranks - 1)) {
            status = dpari_prove_advance(desc, (int64_t)rank + 1, desc->ranks);
        }
    }
    if (status == DPAR_OK && state.sends != 0) {
        status = dpari_prove_unreceived(&state);
    }
    if (status != DPAR_OK) {
        return status;
    }
    result.ranks = desc->ranks;
    result.owners = state.named;
    result.blocks = desc->ranks;
    *report = result;
    return DPAR_OK;
}

/* ==== proof/proof_order.c ==== */

/* Runs the actions of all ranks on one core, as far as they get. A rank runs until an action has to
 * wait. When a message is transferred, the rank at its other end may go on, and is put on a stack.
 * Nothing that has become possible becomes impossible later, so the order in which ranks run does
 * not matter. */

/* What is known of an action. */
typedef struct dpari_prove_step {
    int64_t partner; /* the other end of its message; -1 for WAIT */
    int64_t place;   /* its position in `queued`, where the actions of a queue are consecutive */
    int64_t buffer;  /* EAGER, for sends: the earlier send that must have been received; or -1 */
    int32_t rank;
    int32_t posted, done; /* 1 if it has begun, and if its message has been transferred */
} dpari_prove_step;

typedef struct dpari_prove_run_state {
    const dpar_proof_order_desc *order;
    dpari_prove_step *step; /* [actions] */
    int64_t *key;           /* [actions] used to sort the actions of a rank */
    int64_t *queued;        /* [actions] actions, queue after queue */
    int64_t *queue;         /* [actions] for each position, where its queue begins */
    int64_t *head;          /* [actions] at the beginning of a queue: its first message not done */
    int64_t *next;          /* [ranks] the action that each rank is at */
    int32_t *stack;         /* [ranks] ranks that may go on */
    int32_t *stacked;       /* [ranks] 1 if it is on the stack */
    int64_t stack_count;
    dpar_why *why;
} dpari_prove_run_state;

/* ---- messages and their partners ------------------------------------------------------------- */

static DPARI_COLD int dpari_prove_is_send(const dpar_proof_action *action)
{
    return action->kind == DPAR_PROOF_SEND || action->kind == DPAR_PROOF_POST_SEND;
}

static DPARI_COLD const char *dpari_prove_kind_name(int32_t kind)
{
    switch (kind) {
    case DPAR_PROOF_SEND: return "send to";
    case DPAR_PROOF_RECV: return "receive from";
    case DPAR_PROOF_POST_SEND: return "posted send to";
    default: return "posted receive from";
    }
}

static DPARI_COLD dpar_status dpari_prove_order_check(const dpar_proof_order_desc *order,
                                                      dpar_why *why)
{
    int32_t rank;
    int64_t k;
    if (order == NULL || order->first == NULL || order->action == NULL || order->ranks < 1 ||
        order->transport < DPAR_PROOF_BLOCKING || order->transport > DPAR_PROOF_PAIR ||
        order->capacity < 0) {
        return dpari_wrong(why, "dpar_proof_order: first and action must be set, ranks at least 1, "
                                "transport a DPAR_PROOF_x and capacity at least 0");
    }
    for (rank = 0; rank < order->ranks; rank++) {
        if (order->first[rank] < 0 || order->first[rank + 1] < order->first[rank] ||
            order->first[rank + 1] - order->first[rank] > INT32_MAX) {
            return dpari_wrong(why, "first[%d] is %ld and first[%d] is %ld: they must ascend", rank,
                               order->first[rank], rank + 1, order->first[rank + 1]);
        }
        for (k = order->first[rank]; k < order->first[rank + 1]; k++) {
            const dpar_proof_action *action = &order->action[k];
            if (action->kind < DPAR_PROOF_SEND || action->kind > DPAR_PROOF_WAIT ||
                (action->kind != DPAR_PROOF_WAIT &&
                 (action->peer < 0 || action->peer >= order->ranks || action->peer == rank))) {
                return dpari_wrong(
                    why,
                    "action %ld of rank %d: kind is %d and peer is %d, but must be a "
                    "DPAR_PROOF_x and another rank below %d",
                    k - order->first[rank], rank, action->kind, action->peer, order->ranks);
            }
        }
    }
    return order->first[0] == 0
               ? DPAR_OK
               : dpari_wrong(why, "first[0] is %ld, but must be 0", order->first[0]);
}

/* Divides the memory of the caller. */
static DPARI_COLD dpar_status dpari_prove_order_room(dpari_prove_run_state *state)
{
    const dpar_proof_order_desc *order = state->order;
    const int64_t actions = order->first[order->ranks], ranks = order->ranks;
    const int64_t each = (int64_t)sizeof(dpari_prove_step) + 4 * 8;
    int64_t needed = INT64_MAX;
    if (actions <= (INT64_MAX - 16 * ranks) / each) {
        needed = actions * each + 16 * ranks;
    }
    if (order->memory == NULL || order->bytes < needed) {
        return dpari_prove_no_room(state->why, order->bytes, needed);
    }
    state->step = (dpari_prove_step *)order->memory;
    state->key = (int64_t *)(void *)(state->step + actions);
    state->queued = state->key + actions;
    state->queue = state->queued + actions;
    state->head = state->queue + actions;
    state->next = state->head + actions;
    state->stack = (int32_t *)(void *)(state->next + ranks);
    state->stacked = state->stack + ranks;
    dpari_zero(order->memory, (size_t)needed);
    return DPAR_OK;
}

/* Returns the first action of `rank` whose sort key is at least `key`, as a position in state->key.
 */
static DPARI_COLD int64_t dpari_prove_order_find(const dpari_prove_run_state *state, int32_t rank,
                                                 int64_t key)
{
    int64_t low = state->order->first[rank], high = state->order->first[rank + 1];
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (state->key[middle] < key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Sorts the messages of each rank by direction, peer and place. The key is 2 peer + direction, and
 * below it the number of the action. WAITs come last. */
static DPARI_COLD void dpari_prove_order_sort(dpari_prove_run_state *state)
{
    const dpar_proof_order_desc *order = state->order;
    int32_t rank;
    int64_t k;
    for (rank = 0; rank < order->ranks; rank++) {
        const int64_t first = order->first[rank];
        for (k = first; k < order->first[rank + 1]; k++) {
            const dpar_proof_action *action = &order->action[k];
            int64_t group = UINT32_MAX >> 1;
            if (action->kind != DPAR_PROOF_WAIT) {
                group = action->peer;
            }
            state->key[k] = group << 32 | (int64_t)dpari_prove_is_send(action) << 31 | (k - first);
        }
        dpari_prove_sort(state->key + first, order->first[rank + 1] - first);
    }
}

/* Finds the partner of each message, and for EAGER the send whose place in the buffer each send
 * takes. */
static DPARI_COLD dpar_status dpari_prove_partners(dpari_prove_run_state *state)
{
    const dpar_proof_order_desc *order = state->order;
    const int64_t number = INT64_C(0x7fffffff);
    int32_t rank;
    int64_t k, i;
    for (rank = 0; rank < order->ranks; rank++) {
        const int64_t first = order->first[rank], end = order->first[rank + 1];
        for (k = first; k < end; k = i) {
            const int64_t group = state->key[k] >> 31;
            const int32_t peer = (int32_t)(group >> 1), sends = (int32_t)(group & 1);
            int64_t there;
            if (peer == INT32_MAX) {
                for (i = k; i < end; i++) {
                    state->step[first + (state->key[i] & number)].partner = -1;
                    state->step[first + (state->key[i] & number)].rank = rank;
                }
                continue;
            }
            there =
                dpari_prove_order_find(state, peer, (int64_t)rank << 32 | (int64_t)!sends << 31);
            for (i = k; i < end && state->key[i] >> 31 == group; i++) {
                const int64_t other = there + (i - k);
                dpari_prove_step *step = &state->step[first + (state->key[i] & number)];
                if (other >= order->first[peer + 1] ||
                    state->key[other] >> 31 != ((int64_t)rank << 1 | !sends)) {
                    return dpari_say(DPAR_E_MISMATCH, state->why,
                                     "partner: action %ld of rank %d, a %s rank %d, has no partner "
                                     "among the actions of that rank",
                                     state->key[i] & number, rank,
                                     sends ? "send to" : "receive from", peer);
                }
                step->partner = order->first[peer] + (state->key[other] & number);
                step->rank = rank;
                step->buffer = -1;
                if (sends && i - k >= order->capacity) {
                    /* with capacity 0 a send waits for its own receive */
                    step->buffer = first + (state->key[i - order->capacity] & number);
                }
            }
        }
    }
    return DPAR_OK;
}

/* Lists the queues of RANK and PAIR. Messages of the same group count as one place. */
static DPARI_COLD void dpari_prove_queues(dpari_prove_run_state *state)
{
    const dpar_proof_order_desc *order = state->order;
    const int64_t number = INT64_C(0x7fffffff);
    int32_t rank;
    int64_t k, begin;
    for (rank = 0; rank < order->ranks; rank++) {
        const int64_t first = order->first[rank], end = order->first[rank + 1];
        for (k = first; k < end; k++) { /* sorts by queue, then by the number of the action */
            const dpar_proof_action *action = &order->action[k];
            int64_t queue = order->transport == DPAR_PROOF_PAIR ? action->peer : 0;
            if (action->kind == DPAR_PROOF_WAIT) {
                queue = INT32_MAX;
            }
            state->key[k] = queue << 31 | (k - first);
        }
        dpari_prove_sort(state->key + first, end - first);
        begin = first;
        for (k = first; k < end; k++) {
            if (state->key[k] >> 31 != state->key[begin] >> 31) {
                begin = k;
            }
            state->queued[k] = first + (state->key[k] & number);
            state->queue[k] = begin;
            state->head[k] = k;
            state->step[state->queued[k]].place = k;
        }
    }
}

/* ---- the run --------------------------------------------------------------------------------- */

/* True if all messages in front of this one in its queue are done. */
static DPARI_COLD int dpari_prove_is_first(const dpari_prove_run_state *state, int64_t action)
{
    const dpari_prove_step *step = &state->step[action];
    int64_t *head = &state->head[state->queue[step->place]];
    int64_t front;
    const int32_t group = state->order->action[action].group;
    while (*head < step->place && state->step[state->queued[*head]].done) {
        (*head)++;
    }
    if (*head >= step->place) {
        return 1;
    }
    for (front = *head; front < step->place && group != 0; front++) {
        if (state->order->action[state->queued[front]].group != group) {
            return 0;
        }
    }
    return front == step->place;
}

static DPARI_COLD void dpari_prove_wake(dpari_prove_run_state *state, int32_t rank)
{
    if (!state->stacked[rank]) {
        state->stacked[rank] = 1;
        state->stack[state->stack_count++] = rank;
    }
}

/* Transfers the message of an action if both of its ends allow it. Returns 1 if it is done. */
static DPARI_COLD int dpari_prove_transfer(dpari_prove_run_state *state, int64_t action)
{
    dpari_prove_step *step = &state->step[action], *other = &state->step[step->partner];
    const int queues = state->order->transport >= DPAR_PROOF_RANK;
    if (step->done) {
        return 1;
    }
    if (!step->posted || !other->posted) {
        return 0;
    }
    if (queues &&
        (!dpari_prove_is_first(state, action) || !dpari_prove_is_first(state, step->partner))) {
        return 0;
    }
    step->done = other->done = 1;
    dpari_prove_wake(state, step->rank);
    dpari_prove_wake(state, other->rank);
    return 1;
}

/* True if the rank need not wait for this action any more. */
static DPARI_COLD int dpari_prove_completes(dpari_prove_run_state *state, int64_t action)
{
    const dpari_prove_step *step = &state->step[action];
    if (dpari_prove_transfer(state, action)) {
        return 1;
    }
    return state->order->transport == DPAR_PROOF_EAGER &&
           dpari_prove_is_send(&state->order->action[action]) &&
           (step->buffer < 0 || state->step[step->buffer].done);
}

/* Returns the action for which a WAIT or a blocking action at `at` has to wait, or -1. */
static DPARI_COLD int64_t dpari_prove_waits(dpari_prove_run_state *state, int32_t rank, int64_t at)
{
    const int32_t kind = state->order->action[at].kind;
    int64_t k;
    if (kind == DPAR_PROOF_SEND || kind == DPAR_PROOF_RECV) {
        return dpari_prove_completes(state, at) ? -1 : at;
    }
    if (kind != DPAR_PROOF_WAIT) {
        (void)dpari_prove_transfer(state, at);
        return -1;
    }
    for (k = at - 1; k >= state->order->first[rank]; k--) {
        if (state->order->action[k].kind == DPAR_PROOF_WAIT) {
            return -1; /* an earlier WAIT has waited for what is before it */
        }
        if (!dpari_prove_completes(state, k)) {
            return k;
        }
    }
    return -1;
}

/* Runs a rank until it has to wait. */
static DPARI_COLD void dpari_prove_run_rank(dpari_prove_run_state *state, int32_t rank)
{
    int64_t *at = &state->next[rank];
    int64_t k;
    while (*at < state->order->first[rank + 1]) {
        state->step[*at].posted = 1;
        if (dpari_prove_waits(state, rank, *at) >= 0) {
            break;
        }
        (*at)++;
    }
    /* A message of this rank may have become the first in its queue. */
    for (k = *at - 1; state->order->transport >= DPAR_PROOF_RANK && k >= state->order->first[rank];
         k--) {
        if (state->order->action[k].kind != DPAR_PROOF_WAIT) {
            (void)dpari_prove_transfer(state, k);
        }
    }
}

/* Returns the action at which a rank is stuck: that for which it waits or, if it has reached its
 * end, its first message that is not done. */
static DPARI_COLD int64_t dpari_prove_stuck_at(dpari_prove_run_state *state, int32_t rank)
{
    int64_t k = state->order->first[rank];
    if (state->next[rank] < state->order->first[rank + 1]) {
        return dpari_prove_waits(state, rank, state->next[rank]);
    }
    while (state->step[k].partner < 0 || state->step[k].done) {
        k++; /* ends, because another rank waits for this one */
    }
    return k;
}

/* Appends "rank 0 waits at action 1 for its send to rank 2". */
static DPARI_COLD void dpari_prove_put_stuck(dpari_prove_run_state *state, int32_t rank,
                                             dpar_text *out)
{
    const int64_t on = dpari_prove_stuck_at(state, rank);
    const dpar_proof_action *action = &state->order->action[on];
    dpari_text_say(out, "rank %d waits at action %ld for its %s rank %d", rank,
                   state->next[rank] - state->order->first[rank],
                   dpari_prove_kind_name(action->kind), action->peer);
}

/* Returns the rank for which a stuck rank waits. */
static DPARI_COLD int32_t dpari_prove_waits_for(dpari_prove_run_state *state, int32_t rank)
{
    int64_t on = dpari_prove_stuck_at(state, rank);
    if (state->order->transport >= DPAR_PROOF_RANK && !dpari_prove_is_first(state, on)) {
        on = state->queued[state->head[state->queue[state->step[on].place]]];
    } else if (state->order->transport == DPAR_PROOF_EAGER && state->step[on].buffer >= 0 &&
               dpari_prove_is_send(&state->order->action[on])) {
        on = state->step[on].buffer;
    }
    return state->order->action[on].peer;
}

/* Writes a cycle of ranks that wait for each other. */
static DPARI_COLD dpar_status dpari_prove_stuck(dpari_prove_run_state *state, int32_t rank)
{
    int32_t i, begin, ranks = 0;
    dpar_text out;
    for (i = 0; i < state->order->ranks; i++) { /* goes on until it is within a cycle */
        rank = dpari_prove_waits_for(state, rank);
    }
    begin = rank;
    do {
        ranks++;
        rank = dpari_prove_waits_for(state, rank);
    } while (rank != begin);
    dpari_text_why(&out, state->why);
    dpari_text_say(&out, "%d rank%s wait for each other: ", ranks, ranks == 1 ? "" : "s");
    for (i = 0; i < ranks && i < 3; i++) {
        dpar_text_put(&out, i == 0 ? "" : "; ");
        dpari_prove_put_stuck(state, rank, &out);
        rank = dpari_prove_waits_for(state, rank);
    }
    dpar_text_put(&out, ranks > 3 ? "; ..." : "");
    return DPAR_E_STUCK;
}

DPAR_API DPARI_COLD dpar_status dpar_proof_order(const dpar_proof_order_desc *order, dpar_why *why)
{
    dpari_prove_run_state state;
    dpar_status status = dpari_prove_order_check(order, why);
    int32_t rank;
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&state, sizeof state);
    state.order = order;
    state.why = why;
    status = dpari_prove_order_room(&state);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_prove_order_sort(&state);
    status = dpari_prove_partners(&state);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_prove_queues(&state);
    for (rank = order->ranks - 1; rank >= 0; rank--) {
        state.next[rank] = order->first[rank];
        dpari_prove_wake(&state, rank);
    }
    while (state.stack_count > 0) {
        rank = state.stack[--state.stack_count];
        state.stacked[rank] = 0;
        dpari_prove_run_rank(&state, rank);
    }
    for (rank = 0; rank < order->ranks; rank++) {
        if (state.next[rank] < order->first[rank + 1]) {
            return dpari_prove_stuck(&state, rank);
        }
    }
    return DPAR_OK;
}

#endif /* DPAR_PROOF_IMPLEMENTATION */
