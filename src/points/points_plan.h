/* SPDX-License-Identifier: MIT-0 */
/* points_plan - what a plan of points is made of, and where things lie in it. Private: the floor of
 * these, lowest first,
 *
 *     points_list     lists of indices, the loops over them
 *     points_owner    who owns an id, who reads it
 *     points_wait     waiting for peers
 *     points_run      exchanges: begin, test, end
 *     points          checks, plans, numbering
 *     points_check    poison, stale ghosts
 *     points_simple   few lines
 *
 * How an exchange runs. Forward each rank gives its peers values of its own, which they take into
 * ghosts; adjoint they give ghosts, which their owner takes. What is given is packed into staging
 * memory, peer after peer, twice: exchanges take turns. With ranks that do not share memory one
 * message each way goes. Ranks that do tell each other in two words,
 *
 *     ready = exchange << 16 | kind    what I give is packed, or lies where my turn says
 *     done  = exchange                 I have taken all that I take
 *
 * and staging memory of a turn is written again when those who read it are done with the exchange
 * before the last. A peer that is ready for one is done with all before it: where each gives and
 * takes nobody looks at `done` for that, nor is woken by it. Forward long runs of a vector in
 * registered memory are not packed: the turn has the vector's address, its reader has the giver's
 * list, and the giver waits at the end until it is done. Both decide so by the same numbers.
 *
 * Staging memory grows with the vectors. Where it lies is told anew with each exchange. */
#ifndef DPARI_POINTS_POINTS_PLAN_H
#define DPARI_POINTS_POINTS_PLAN_H

#include "../comm/world.h"
#include "points.h"
#include "points_list.h"

enum {
    DPARI_PT_PAD = 16,        /* bytes: a vector begins there in what is packed for a peer */
    DPARI_PT_RUN_BYTES = 64,  /* runs that are read where they lie */
    DPARI_PT_CROWDED = 65536, /* bytes that are, where ranks share cores: as of halos, measured */
    DPARI_PT_BITE = 1024,     /* bytes gathered before they are copied to memory that ranks share */
    DPARI_PT_MOST = 4096,     /* vectors of an exchange */
    DPARI_PT_PACKING = 0,     /* what the time goes to */
    DPARI_PT_COPYING,
    DPARI_PT_WAITING
};

/* What a rank says to its peers; registered memory. */
typedef struct dpari_pt_line {
    uint64_t ready;
    uint64_t turns; /* ref of the memory of both turns, as long as no peer reads it: in each the */
    int64_t turn_bytes; /* places of the vectors, then what is packed */
    char room_0[DPARI_LINE - 24];
    uint64_t done;
    char room_1[DPARI_LINE - 8];
} dpari_pt_line;

/* The kind in a rank's word: the operation, a hash of what the vectors hold, and whether peers find
 * places in its turn, for some vector is not packed. */
enum { DPARI_PT_OP = 3, DPARI_PT_KIND = 0x7fff, DPARI_PT_LENT = 0x8000 };

/* A vector as the exchange under way sees it: `pieces` passes of `size` bytes at each point. */
typedef struct dpari_pt_vector {
    unsigned char *own, *ghosts;
    int64_t stride, component; /* bytes between points, between passes (of one: between numbers) */
    int64_t size, point;       /* of a pass; of all of them at a point */
    int32_t pieces, numbers;   /* passes; numbers of `type` in each */
    int32_t type;
    uint64_t ref; /* of own, where peers may read it */
} dpari_pt_vector;

/* The same for the peers, in a turn's memory. */
typedef struct dpari_pt_place {
    uint64_t ref; /* 0: packed */
    int64_t stride, component, size;
} dpari_pt_place;

/* What two ranks tell each other at init. */
typedef struct dpari_pt_record {
    int64_t line;                          /* ref */
    int64_t number;                        /* which peer the other is to this one, */
    int64_t sends, receives;               /* values to it, from it, */
    int64_t sends_before, receives_before; /* and to and from peers before it */
    int64_t runs, kind, first, at;         /* the list of what is sent; at: ref */
} dpari_pt_record;
enum { DPARI_PT_WORDS = sizeof(dpari_pt_record) / sizeof(int64_t) };

typedef struct dpari_pt_peer {
    int32_t rank;
    int32_t world;                         /* its number where memory is shared; -1: messages */
    dpari_pt_list send, receive;           /* own values, ghosts */
    int64_t sends_before, receives_before; /* values of peers before it */
    dpari_pt_line *line;
    dpari_pt_record theirs;
    dpari_pt_list source; /* the list by which it gives, where this rank reads its vectors */
    int64_t seen;         /* the last exchange that it was ready for */
    uint64_t turns;       /* its line's, */
    unsigned char *at;    /* here */
    int32_t taken;
    int32_t lends;          /* its turn says where its vectors lie */
    int32_t reads;          /* it reads vectors of the exchange under way where they lie */
    unsigned char *arrives; /* messages: where, */
    int32_t in_place;       /* and that is the vector itself */
} dpari_pt_peer;

/* An id and where it lies; at < 0: free. */
typedef struct dpari_pt_entry {
    int64_t id;
    int64_t at;
} dpari_pt_entry;

/* Ids of this rank, by hashing with steps of one. */
typedef struct dpari_pt_table {
    dpari_pt_entry *entry;
    int64_t mask; /* entries - 1; -1: there are none */
} dpari_pt_table;

typedef struct dpari_points {
    dpar_points head; /* first: the handle */
    dpar_comm *node;
    void *owned;        /* memory of this struct that make has allocated; NULL: the caller's */
    dpari_world *world; /* NULL: messages alone */
    int32_t way, tag, timers;
    int32_t listed;      /* planned by lists: there are no ids */
    int32_t hashed;      /* own ids are in the table */
    int32_t given_owner; /* the caller said who owns each ghost */
    int32_t self;        /* the peer that is the rank itself; -1: none */
    int32_t shared;      /* peers that share memory, itself apart; */
    int32_t oneway;      /* some of them only give to this rank or only take */
    int32_t lent;        /* some has lent it vectors in the exchange under way */
    int32_t messages_to; /* peers that do not */
    int64_t run_bytes;
    dpar_layout rule; /* of own_id NULL */
    int32_t ruled;
    dpari_pt_table table;
    dpari_pt_peer *peer;
    dpar_call *call;
    dpar_work *work;         /* receives, then sends */
    unsigned char *lists;    /* registered: what follows, and peers, call, work */
    dpari_pt_record *record; /* [2 * peers] */
    int32_t *numbers;        /* of lists */
    dpari_pt_line *line;
    int64_t sends, receives; /* values in all */
    unsigned char *staging;  /* registered: vectors, two turns, what arrives */
    int64_t staging_vectors, staging_turn;
    dpari_pt_vector *vector;
    unsigned char *turns, *aside, *arrivals; /* aside: one peer's values, this rank's alone */
    int32_t vectors;
    dpar_points_field named; /* the only vector of the exchange before; type 0: there were more */
    int64_t point;           /* bytes at a point, of all of them */
    int64_t count;           /* exchanges begun */
    uint64_t kind;           /* of the one under way */
    int32_t active, adjoint, op, stage;
    int32_t receives_posted, sends_posted;
    int32_t again; /* what is posted for the next, if it is like this one */
    double looked;
    double seconds[3];
} dpari_points;

/* Of a handle. */
DPARI_FN dpari_points *dpari_pt_of(const dpar_points *p)
{
    return (dpari_points *)(uintptr_t)p;
}

/* Where the values for peer number k begin in what is packed, `before` values for those before it:
 * a multiple of DPARI_LINE. Each vector may take up to DPARI_PT_PAD bytes more. */
DPARI_FN int64_t dpari_pt_begins(int64_t before, int64_t k, int64_t point, int64_t vectors)
{
    const int64_t at = before * point + k * (DPARI_PT_PAD * vectors + DPARI_LINE);
    return at / DPARI_LINE * DPARI_LINE;
}

/* Bytes of a vector in what is packed, with those behind it. */
DPARI_FN int64_t dpari_pt_block(int64_t values, int64_t point)
{
    return (values * point + DPARI_PT_PAD - 1) / DPARI_PT_PAD * DPARI_PT_PAD;
}

/* True if `values` values of a sender's vector, in `runs` runs, are read in place. */
DPARI_FN int dpari_pt_is_direct(const dpari_points *x, uint64_t ref, int64_t size, int64_t values,
                                int64_t runs)
{
    return ref != 0 && x->way != DPAR_POINTS_PACKED && values * size >= runs * x->run_bytes &&
           (!x->world->crowded || values * size >= DPARI_PT_CROWDED);
}

#endif
