/* SPDX-License-Identifier: MIT-0 */
/* points_plan - the structs of a plan of points, and how an exchange runs. Private. The modules of
 * points that make and run it, lowest first, are
 *
 *     points_order    sorts, and allocates temporary memory
 *     points_mail     sends items whose counts only the senders know
 *     points_list     stores lists of indices, and copies the values at these indices
 *     points_widen    copies a description, with 32-bit ids and counts converted to 64 bits
 *     points_shared   combines the values of ids that have no owner
 *     points_owner    finds out which ranks own and read an id
 *     points_sharers  finds out which ranks share an id
 *     points_run      packs and takes the values of exchanges that ../exchange runs
 *     points          checks descriptions, makes plans, converts ids
 *     points_check    finds ghosts that are poisoned or stale
 *     points_simple   exchanges one vector
 *
 * How an exchange runs. In a forward exchange, each rank sends own values to its peers, which store
 * them in their ghosts. In an adjoint, each rank sends ghosts to their owners, which combine them
 * with own values. Values are packed into staging memory, one peer after the other. ../exchange
 * waits for peers, publishes that values are packed, and posts messages.
 *
 * In a forward exchange, vectors in registered memory with long runs are not packed. The sender
 * writes the address of the vector into its turn. The receiver knows the sender's list from
 * planning and reads the vector in place, and the sender's end waits until the receiver is done.
 * Sender and receiver decide this by the same numbers (dpari_pt_is_direct), so that no message is
 * needed.
 *
 * The staging memory grows with the vectors, so that the receiver reads its address in each
 * exchange. */
#ifndef DPARI_POINTS_POINTS_PLAN_H
#define DPARI_POINTS_POINTS_PLAN_H

#include "../exchange/exchange.h"
#include "points.h"
#include "points_list.h"

enum {
    DPARI_PT_PAD = 16,        /* packed vectors begin at multiples of this number of bytes */
    DPARI_PT_RUN_BYTES = 64,  /* the default of desc.run_bytes */
    DPARI_PT_CROWDED = 65536, /* if ranks share cores, the least bytes of a list that is read in
                                 place; the same limit as for halos, where it was measured */
    DPARI_PT_BITE = 1024,     /* bytes gathered in private memory before they are copied to memory
                                 that ranks share */
    DPARI_PT_MOST = 4096,     /* the most vectors of an exchange */
    /* Indices of dpari_exchange_line.place: the reference to the memory of both turns, which
     * changes only while no peer reads it, and the bytes of one turn. A turn holds the places of
     * the vectors, then the packed values. */
    DPARI_PT_TURNS = 0,
    DPARI_PT_TURN_BYTES = 1
};

/* A vector in the current exchange. Each point has one piece if its components are adjacent,
 * otherwise one piece for each component. */
typedef struct dpari_pt_vector {
    unsigned char *own, *ghosts;
    int64_t stride, component; /* bytes between points, and between components */
    int64_t size, point;       /* bytes of a piece, and bytes of all pieces of a point */
    int32_t pieces, numbers;   /* pieces per point, and numbers of `type` per piece */
    int32_t type;
    uint64_t ref; /* reference to own if peers may read it in place, otherwise 0 */
} dpari_pt_vector;

/* The data by which peers read a vector in place. It is written into a turn. */
typedef struct dpari_pt_place {
    uint64_t ref; /* 0 if the vector is not in registered memory */
    int64_t stride, component, size;
} dpari_pt_place;

/* The record that each rank sends to each peer during planning. References are 0 if the peer cannot
 * reach this rank's memory. */
typedef struct dpari_pt_record {
    int64_t line;                          /* reference to the sender's line */
    int64_t number;                        /* index of the receiver among the sender's peers */
    int64_t sends, receives;               /* number of values to the receiver and from it */
    int64_t sends_before, receives_before; /* the same for the sender's peers before the receiver */
    int64_t runs, kind, first, at;         /* the sender's list; `at` is a reference */
} dpari_pt_record;
enum { DPARI_PT_WORDS = sizeof(dpari_pt_record) / sizeof(int64_t) };

/* What a plan knows of a peer, in addition to its dpari_exchange_peer. */
typedef struct dpari_pt_peer {
    dpari_pt_list send, receive;           /* own values that it gets, ghosts that it owns */
    int64_t sends_before, receives_before; /* number of values to and from the peers before it */
    dpari_pt_record theirs;
    dpari_pt_list source;   /* the peer's own list of what it sends, to read its vectors in place */
    uint64_t turns;         /* the reference to its turns when they were mapped last */
    unsigned char *mapped;  /* the address of these turns in this process */
    unsigned char *arrives; /* address where its message is received */
    int32_t in_place;       /* 1 if that address is in the ghosts, so that nothing is unpacked */
} dpari_pt_peer;

/* An id and its local index; at < 0 if the entry is free. */
typedef struct dpari_pt_entry {
    int64_t id;
    int64_t at;
} dpari_pt_entry;

/* A hash table with linear probing of this rank's ids: those of ghosts, and own ids if own_id lists
 * them. */
typedef struct dpari_pt_table {
    dpari_pt_entry *entry;
    int64_t mask; /* number of entries - 1; -1 if there are none */
} dpari_pt_table;

/* What a plan of shared ids has in addition. */
typedef struct dpari_pt_shared {
    void *memory;          /* of all of this; NULL if the ids have owners */
    int32_t op;            /* of the exchange in progress */
    dpari_pt_side *source; /* [peers + 1] where the values from each peer are, then own values */
    const void **in;       /* addresses of the values of an id, and of its results */
    void **out;
    /* Records of ids (points_shared.c): those that only this rank has, then from `shared` to `end`
     * those that it shares. */
    const int32_t *local, *shared, *end;
} dpari_pt_shared;

typedef struct dpari_points {
    dpar_points head; /* the public struct; it must be first */
    dpari_exchange x;
    void *owned; /* memory of this struct if make has allocated it; NULL if the caller has */
    int32_t method;
    int32_t listed;      /* 1 if the plan was made from lists, so that there are no ids */
    int32_t hashed;      /* 1 if own ids are in the table */
    int32_t given_owner; /* 1 if the caller passed the owner of each ghost */
    int32_t messages_to; /* number of peers that do not share memory */
    int64_t run_bytes;
    dpar_layout layout; /* a copy of desc.layout if has_layout is 1 */
    int32_t has_layout;
    dpari_pt_table table;
    dpari_pt_peer *peer;
    dpari_pt_shared shared;
    unsigned char *lists;    /* registered memory of the line, the peers, records and numbers */
    dpari_pt_record *record; /* [2 * peers]: records to send, then records received */
    int32_t *numbers;        /* the pairs and indices of the lists of all peers */
    int64_t sends, receives; /* number of values that this rank sends and receives in an exchange */
    unsigned char *staging;  /* registered memory of vector, turns, aside and arrivals */
    int64_t staging_vectors; /* number of vectors for which it is large enough */
    int64_t staging_turn;    /* bytes of a turn */
    dpari_pt_vector *vector;
    unsigned char *turns, *arrivals;
    unsigned char *aside;         /* memory that no peer reads, for packing the values of a peer */
    int32_t vectors;              /* number of vectors in the current exchange */
    dpar_points_field last_field; /* the vector of the last exchange; type 0 if it had several */
    int64_t point;                /* bytes per point of all vectors together */
    int64_t first_ghost; /* the local index where the array of ghosts begins: own_count, or 0 if
                            own values and ghosts are mixed */
    uint64_t *received;  /* a bit for each local index from first_ghost on: 1 if exchanges set it;
                            NULL if they set all of them */
    int32_t mixed;       /* 1 if own values and ghosts are mixed in one array */
} dpari_points;

/* Returns the plan of a handle. */
DPARI_FN dpari_points *dpari_pt_of(const dpar_points *points)
{
    return (dpari_points *)(uintptr_t)points;
}

/* True if exchanges set the value at local index i. */
DPARI_FN int dpari_pt_is_received(const dpari_points *plan, int64_t i)
{
    const int64_t g = i - plan->first_ghost;
    if (g < 0 || !plan->received) {
        return g >= 0;
    }
    return (int)(plan->received[g / 64] >> g % 64 & 1);
}

/* Notes that exchanges set the value of ghost g, which counts from first_ghost on. Returns 1 if
 * this was noted before. */
DPARI_FN int dpari_pt_set_received(dpari_points *plan, int64_t g)
{
    const uint64_t bit = UINT64_C(1) << g % 64;
    int before;
    if (!plan->received) {
        return 0;
    }
    before = (plan->received[g / 64] & bit) != 0;
    plan->received[g / 64] |= bit;
    return before;
}

/* True if the exchange in progress is an adjoint. */
DPARI_FN int dpari_pt_is_adjoint(const dpari_points *plan)
{
    return plan->x.mode == DPARI_EXCHANGE_ADJOINT;
}

/* Returns the number of components of a vector. */
DPARI_FN int32_t dpari_pt_components(const dpar_points_field *field)
{
    return field->components > 0 ? field->components : 1;
}

/* Returns the number of elements from one point of a vector to the next. */
DPARI_FN int64_t dpari_pt_stride(const dpar_points_field *field)
{
    if (field->stride > 0) {
        return field->stride;
    }
    return field->component_stride <= 1 ? dpari_pt_components(field) : 1;
}

/* Returns the offset of the values of peer k in a turn, which is a multiple of DPARI_LINE. The
 * peers before it have `before` values, and each of their vectors may take up to DPARI_PT_PAD more
 * bytes. Sender and receiver compute the same offset, so that offsets need not be sent. */
DPARI_FN int64_t dpari_pt_begins(int64_t before, int64_t k, int64_t point, int64_t vectors)
{
    const int64_t at = before * point + k * (DPARI_PT_PAD * vectors + DPARI_LINE);
    return at / DPARI_LINE * DPARI_LINE;
}

/* Returns the number of bytes that a vector takes in a turn, with padding up to the next vector. */
DPARI_FN int64_t dpari_pt_block(int64_t values, int64_t point)
{
    return (values * point + DPARI_PT_PAD - 1) / DPARI_PT_PAD * DPARI_PT_PAD;
}

/* True if a vector of which `values` values in `runs` runs are sent is read in place. The sender
 * and the receiver call it with the same arguments. */
DPARI_FN int dpari_pt_is_direct(const dpari_points *plan, uint64_t ref, int64_t size,
                                int64_t values, int64_t runs)
{
    return ref != 0 && plan->method != DPAR_POINTS_PACKED &&
           values * size >= runs * plan->run_bytes &&
           (!plan->x.world->crowded || values * size >= DPARI_PT_CROWDED);
}

#endif
