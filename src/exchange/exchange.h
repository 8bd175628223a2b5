/* SPDX-License-Identifier: MIT-0 */
/* exchange - runs the exchanges of halos and of points. Private.
 *
 * A plan (of a halo, of points) knows which values go to which rank and how they are packed. It
 * contains a dpari_exchange, which knows the peers and does the rest: waits for them, publishes
 * what this rank has packed, posts messages, takes what has arrived, and ends with an error that
 * names the rank at fault. The plan passes functions that pack and take.
 *
 * An exchange has one or more steps, one after the other. In each step this rank packs, publishes
 * `ready` and posts messages, takes what the peers have sent, and waits for the peers that read its
 * arrays. There are two modes: forward, and the adjoint, in which values go back and are combined.
 *
 * Values are packed into staging memory, which has two halves, called turns, that exchanges use
 * alternately. Peers that do not share memory get one message each. Peers that share memory read
 * the turn. Each rank publishes two words for them:
 *
 *     ready = exchange << 16 | kind    my values are packed, and my arrays may be read
 *     done  = exchange                 I have taken all values that are for me
 *
 * Before a rank packs into a turn again, its readers must be done with the values that the turn
 * holds, which are those of the exchange before the last one. Usually it need not wait for `done`,
 * because a peer that is ready for an exchange is done with all exchanges before it. It waits for
 * `done` if a peer only receives from it or reads its arrays in place. Only then does the peer wake
 * it at once. A plan also waits for `done` before it replaces its staging memory.
 *
 * Peers whose devices reach each other's memory (dpar_engine.alloc_shared) neither send messages
 * nor publish words. They synchronize their streams before a rank packs and after it has packed. */
#ifndef DPARI_EXCHANGE_EXCHANGE_H
#define DPARI_EXCHANGE_EXCHANGE_H

#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/os.h"
#include "../comm/world.h"

enum {
    DPARI_EXCHANGE_FORWARD, /* modes: as DPAR_HALO_FORWARD and DPAR_HALO_ADJOINT */
    DPARI_EXCHANGE_ADJOINT,
    DPARI_EXCHANGE_PACKING = 0, /* phases that are timed: indices of dpari_exchange.seconds */
    DPARI_EXCHANGE_COPYING,
    DPARI_EXCHANGE_WAITING
};

/* The words that a rank publishes to its peers, one struct for each step that may be in progress.
 * `done` is in a cache line of its own, because it is written at other times than `ready`. */
typedef struct dpari_exchange_line {
    uint64_t ready;
    uint64_t place[2]; /* words of the plan, by which peers find its memory; the plan changes them
                          only while no peer reads them: between exchanges, before `ready` */
    char padding_0[DPARI_LINE - 24];
    uint64_t done;
    char padding_1[DPARI_LINE - 8];
} dpari_exchange_line;

typedef struct dpari_exchange_peer {
    int32_t rank;    /* in the communicator */
    int32_t world;   /* its rank in the world; -1 if it does not share memory with this rank */
    int32_t reached; /* 1 if this rank's device reads its packed values, so that it sends none */
    int32_t lends;   /* 1 if it lends arrays to be read in place in the exchange in progress */
    int64_t seen;    /* number of the last exchange for which it was ready */
    dpari_exchange_line *line; /* its lines; NULL unless it shares memory */
} dpari_exchange_peer;

/* What a peer and this rank exchange in one step. Arrays are indexed by mode. The plan fills it in,
 * and may change it between exchanges and while it packs. */
typedef struct dpari_exchange_flow {
    int64_t in_bytes[2], out_bytes[2]; /* packed bytes; 0 if there is no message */
    int32_t takes[2];                  /* 1 if this rank takes values of the peer */
    int32_t lends[2]; /* 1 if the peer reads arrays of this rank in place, so that the exchange ends
                         after the peer is done */
    int32_t packed;   /* 1 if the peer reads packed values of this rank in some exchange */
    int32_t taken;    /* private: 1 if the values of the exchange in progress have been taken */
} dpari_exchange_flow;

typedef struct dpari_exchange_step {
    int32_t modes; /* bits of the modes that have this step: 1 << DPARI_EXCHANGE_FORWARD, ... */
    int32_t line;  /* number of the dpari_exchange_line in which ranks publish its progress */
    int32_t meets; /* 1 if values are exchanged with another rank that shares memory */
    int32_t alone; /* 1 if no other rank takes part */
} dpari_exchange_step;

/* The kind of an exchange in the word `ready`: the operation (0 is forward, 1 sum, 2 max, 3 min), a
 * hash of what is exchanged, and whether some array is read in place. */
enum { DPARI_EXCHANGE_OP = 3, DPARI_EXCHANGE_KIND = 0x7fff, DPARI_EXCHANGE_LENT = 0x8000 };

typedef struct dpari_exchange {
    /* Set by the plan. */
    dpar_comm *comm;
    dpar_comm *node;    /* comm->node, or comm if that is NULL */
    dpari_world *world; /* memory shared in the node; NULL if only messages are used */
    void *plan;         /* passed to the functions */
    /* Packs the values of step s for the peers that share memory, and may pack all others. NULL if
     * there is nothing to pack. */
    dpar_status (*pack)(void *plan, int32_t s);
    /* Returns where the message from peer i arrives, or with `sends` the address of the message to
     * it, which it packs unless `pack` has. */
    unsigned char *(*message)(void *plan, int32_t s, int32_t i, int sends);
    /* Takes values that this rank sends to itself, at the beginning of step s. May be NULL if no
     * step is `alone`. */
    void (*take_own)(void *plan, int32_t s);
    /* Takes the values of peer i, which have arrived. An adjoint takes the peers in the order of
     * ranks. */
    dpar_status (*take)(void *plan, int32_t s, int32_t i);
    /* Does what must wait until the values of all peers have arrived. May be NULL. */
    dpar_status (*finish)(void *plan, int32_t s);
    const char *name; /* for messages: "halo", "points" */
    const char *end;  /* for messages: the public function that ends an exchange */
    const char *item; /* what is exchanged: "field", "vector" */
    int32_t items;    /* the number of them */
    int32_t peers, steps, tag, timers;
    int32_t self;     /* index of this rank among its peers; -1 if it is not one of them */
    int32_t together; /* 1 if receives and sends are posted at once, after packing; otherwise the
                         receives are posted before */
    int32_t early;    /* the step that a forward exchange offers before the first one; 0 if none */
    int32_t shared;   /* number of other peers that share memory with this rank */
    int32_t oneway;   /* 1 if such a peer only sends to this rank or only receives from it */
    int32_t lends;    /* 1 if some peer reads arrays of this rank in place in this exchange */
    int32_t reached;  /* number of peers whose memory this rank's device reads */
    unsigned char *memory;     /* the memory that these devices read */
    dpari_exchange_peer *peer; /* in ascending order of ranks */
    dpari_exchange_flow *flow; /* [peers][steps] */
    dpari_exchange_step *step;
    dpari_exchange_line *line; /* of this rank */
    int32_t *rank_of; /* ranks in comm of the ranks of the node, or of the peers that are reached */
    dpar_call *call;  /* [2 * peers] receives, then sends */
    dpar_work *work;  /* [2 * peers + 1] of them, and of a synchronization of devices */
    /* Set by the functions below; plans may read them. */
    int64_t count; /* number of exchanges begun */
    int32_t active, mode, op;
    double seconds[3]; /* spent in each phase */
    /* Private. */
    uint64_t kind;
    int32_t left;     /* 1 if dpari_exchange_post_rest was left in the communicator (engine.h) */
    int32_t lent;     /* 1 if a peer lends arrays to be read in place in this exchange */
    int32_t now;      /* the step in progress */
    int32_t next;     /* the step after it */
    int32_t stage;    /* of the step in progress: DPARI_EXCHANGE_TAKING, ... (exchange.c) */
    int32_t receives; /* numbers of messages of this step: those that are received, and all */
    int32_t posted;
    int32_t part;  /* with devices that are reached: the part of the staging memory in use */
    double looked; /* time of the last check that peers are alive, in seconds */
} dpari_exchange;

/* Takes the memory of the tables for at most `peers` peers and `nodes` ranks of a node. With
 * room->at NULL, only counts bytes. */
DPARI_API void dpari_exchange_room(dpari_exchange *x, dpari_room *room, int64_t peers,
                                   int64_t steps, int64_t nodes);
/* Finds the peers that share memory with this rank. Collective over the node. */
DPARI_API dpar_status dpari_exchange_find_node(dpari_exchange *x);
/* Sends `words` words to each peer and receives as many, in the order of peers. Returns the status
 * of the messages. Collective. */
DPARI_API dpar_status dpari_exchange_records(const dpari_exchange *x, const int64_t *mine,
                                             int64_t *theirs, int64_t words);

/* Checks that an exchange may begin: nothing is broken, and the last one has ended. Then posts the
 * messages that another exchange still has to post, because peers that the plan waits for may need
 * them. */
DPARI_API dpar_status dpari_exchange_may_begin(dpari_exchange *x);
/* Checks that no exchange is in progress. caller: how the message begins, such as "f: ", or "". */
DPARI_API dpar_status dpari_exchange_is_over(const dpari_exchange *x, const char *caller);
/* Waits until the peers that share memory have taken all values of exchange `last`. */
DPARI_API dpar_status dpari_exchange_await_done(dpari_exchange *x, int64_t last);
/* Begins an exchange, after dpari_exchange_may_begin. op: DPAR_COPY for a forward exchange, or the
 * operation of the adjoint. hash: of what is exchanged, compared with that of the peers. */
DPARI_API dpar_status dpari_exchange_begin(dpari_exchange *x, int32_t op, uint64_t hash);
/* Advances the exchange in progress, to its end if wait is 1. Otherwise returns DPAR_MORE instead
 * of waiting. */
DPARI_API dpar_status dpari_exchange_advance(dpari_exchange *x, int wait);
/* Ends what is in progress before the plan is freed, so that no peer reads this rank's memory any
 * more. Refuses with DPAR_E_ARG if an exchange has not ended; `*refused` is then 1. Collective. */
DPARI_API dpar_status dpari_exchange_close(dpari_exchange *x, const char *caller, int32_t *refused);

/* Breaks the communicators, because dpari_at returned NULL for a reference of a peer. Returns the
 * status that counts. */
DPARI_API dpar_status dpari_exchange_unmapped(dpari_exchange *x, uint64_t ref);
/* Writes the average times of the phases of an exchange: "packing 1.2 us, copying ...". */
DPARI_API void dpari_exchange_put_times(const dpari_exchange *x, dpar_text *out);
/* Rounds a number of bytes up to whole lines, so that no two pieces of memory share one. */
DPARI_FN int64_t dpari_exchange_lines(int64_t bytes)
{
    return (bytes + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
}
/* Returns the time in seconds if the plan has timers, otherwise 0. */
DPARI_FN double dpari_exchange_clock(const dpari_exchange *x)
{
    return x->timers ? dpari_os_now() : 0.0;
}
/* Adds the time since `began` to a phase if the plan has timers. */
DPARI_FN void dpari_exchange_time(dpari_exchange *x, int32_t phase, double began)
{
    if (x->timers) {
        x->seconds[phase] += dpari_os_now() - began;
    }
}
/* Returns the part of the staging memory that the exchange in progress uses. */
DPARI_FN int64_t dpari_exchange_turn(const dpari_exchange *x)
{
    return x->reached > 0 ? x->part : x->count & 1;
}
/* True if peer i gets messages. */
DPARI_FN int dpari_exchange_sends(const dpari_exchange *x, int32_t i)
{
    return x->peer[i].world < 0 && !x->peer[i].reached;
}

#endif
