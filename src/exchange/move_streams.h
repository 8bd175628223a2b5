/* SPDX-License-Identifier: MIT-0 */
/* move_streams - the data of a move: its transfers as items, grouped by peer into streams, and the
 * memory for them. Private. */
#ifndef DPARI_EXCHANGE_MOVE_STREAMS_H
#define DPARI_EXCHANGE_MOVE_STREAMS_H

#include "../comm/agree.h"
#include "../index/redistribute.h"
#include "move.h"
#include "move_items.h"

/* All data from one rank to another, cut into messages. The present message is the one that was cut
 * last. */
typedef struct dpari_move_stream {
    int32_t peer, ops;           /* ops: 1 if a box is combined, so that the receiver decides when
                                    messages are sent */
    int32_t loaded, fresh;       /* for receives: 1 if the present message has parts that are not
                                    combined yet; 1 if it is received in this round */
    int64_t first, last;         /* first and last item; -1 if there is none */
    int64_t elements, messages;  /* of the whole stream */
    int64_t item, offset;        /* where the next message begins: its item, and the element in
                                    it */
    int64_t message;             /* number of the next message */
    int64_t m_item, m_offset;    /* where the present message begins */
    int64_t m_count;             /* its number of elements */
    const unsigned char *memory; /* its address; NULL if it was received directly into the array */
    int64_t take, take_offset;   /* item and element of its next part to combine */
    int64_t take_at;             /* number of elements of the message before that part */
    int64_t stamp;               /* dpari_move.stamp of the last group that has an item of this
                                    stream */
    unsigned char *slot;         /* memory for one message */
    int32_t *round;              /* [messages] round in which each message is sent; NULL if message
                                    k is sent in round k */
    dpar_work work;
} dpari_move_stream;

/* The sends or the receives of a move. */
typedef struct dpari_move_side {
    dpari_move_array array;
    dpari_move_item *item;
    int64_t items;
    dpari_move_stream *stream;
    int32_t streams;
    int32_t *of_peer; /* [ranks] 1 + the stream of each peer; 0 if there is none */
} dpari_move_side;

/* The transfers of a move: two lists, or the walks over a redistribution. */
typedef struct dpari_move_source {
    const dpar_transfer *list[2]; /* DPAR_TRANSFER_RECV, DPAR_TRANSFER_SEND */
    int64_t count[2], at;         /* at: number of transfers that have been walked */
    const dpar_layout *from, *to; /* NULL if there are two lists */
    int32_t rank, per_node, direction;
    dpar_redistribute_cursor walk;
    dpar_transfer transfer[2]; /* the current one and the one before it */
    int32_t continues;         /* 1 if it is another part of the same box as that one */
} dpari_move_source;

/* Totals of the transfers of one direction. */
typedef struct dpari_move_totals {
    int64_t items, elements;
    int64_t own;     /* elements of them from this rank to itself */
    int32_t own_ops; /* 1 if a transfer from this rank to itself is combined */
    int32_t ops;     /* 1 if a transfer is combined */
    int32_t apart; /* 1 if such a transfer does not directly follow another part of the same box */
} dpari_move_totals;

typedef struct dpari_move {
    dpar_comm *comm;
    const dpar_redistribute_desc *desc; /* the caller's, or `none` if that is NULL, which fails in
                                           the agreement, so that all ranks learn of it */
    dpar_redistribute_desc none;
    dpari_move_source source;
    dpari_move_totals sum[2]; /* DPAR_TRANSFER_RECV, DPAR_TRANSFER_SEND */
    dpari_move_boxes boxes;
    int64_t piece, alone;    /* the most elements of a message; boxes with `alone` or more elements
                                share no message */
    dpari_move_side out, in; /* sends, receives */
    int64_t head;            /* the first receive that is not complete */
    int64_t stamp;
    const void **part; /* [2 (receiving streams + 1)] addresses of parts that are reduced together,
                          and the same again as scratch */
    int64_t *word;     /* [4 * ranks] numbers by which lists are compared: own ones, received
                          ones */
    /* Scratch in the host's memory and, if the arrays are on a device, in the device's memory. */
    void *scratch, *there;
    int64_t bytes;             /* bytes of each that are needed; also set if the caller's scratch is
                                  too small */
    unsigned char *next;       /* the unused rest of scratch */
    unsigned char *next_there; /* for a device: the unused rest of its scratch, which holds
                                  messages */
    unsigned char *zero;       /* memory for dpari_array_zero */
} dpari_move;

/* Begins a move: checks the fields of desc that lists and layouts have in common. desc: may be
 * NULL. */
DPARI_INTERNAL dpar_status dpari_move_init(dpari_move *move, dpar_comm *comm,
                                           const dpar_redistribute_desc *desc, dpar_why *why);
/* Adds the arguments that must be equal on all ranks, for lists and for layouts. given: the
 * move. */
DPARI_INTERNAL void dpari_move_state(dpari_facts *facts, const void *given);
/* Walks the transfers of move->source in both directions and adds up what they move. */
DPARI_INTERNAL dpar_status dpari_move_count(dpari_move *move, dpar_why *why);
/* Returns the most bytes of scratch that move->sum needs, or -1 if that is more than 2^62. */
DPARI_INTERNAL int64_t dpari_move_bytes(const dpari_move *move);
/* Provides that many bytes of scratch: the caller's, or memory of the communicator. */
DPARI_INTERNAL dpar_status dpari_move_scratch(dpari_move *move, int64_t bytes, dpar_why *why);
/* Makes the streams in scratch. */
DPARI_INTERNAL void dpari_move_build(dpari_move *move);
/* Releases scratch at the end of a move that ended with `status`. Returns it. */
DPARI_INTERNAL dpar_status dpari_move_end(const dpari_move *move, dpar_status status,
                                          dpar_why *why);
/* Copies the message of a failed call on the communicator. Returns status. */
DPARI_INTERNAL dpar_status dpari_move_failed(const dpari_move *move, dpar_status status,
                                             dpar_why *why);
/* True if `in` and `out`, of these sizes, overlap. */
DPARI_INTERNAL int dpari_move_overlaps(const dpari_move *move, int64_t in_bytes, int64_t out_bytes);

/* Cuts the next message of a stream: a piece of a large box, or several small boxes. Both ends cut
 * equally, because only the extents decide. */
DPARI_INTERNAL void dpari_stream_cut(const dpari_move *move, const dpari_move_side *side,
                                     dpari_move_stream *stream);
/* Begins with the first message again. */
DPARI_INTERNAL void dpari_stream_rewind(dpari_move_stream *stream);

#endif
