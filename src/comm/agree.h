/* SPDX-License-Identifier: MIT-0 */
/* agree - private: compares the arguments of all ranks before they make a plan together, reports
 * wrong calls, and divides the caller's memory into pieces. */
#ifndef DPARI_COMM_AGREE_H
#define DPARI_COMM_AGREE_H

#include "../base/arith.h"
#include "../index/layout.h"
#include "comm.h"

/* Continue the hash h with a number, or with all fields of a layout, and return it. */
DPARI_API uint64_t dpari_hash(uint64_t h, int64_t v);
DPARI_API uint64_t dpari_hash_layout(uint64_t h, const dpar_layout *layout);

/* Makes all ranks fail if one has failed. A rank that has failed passes its status as st, and gets
 * it back with its own *why. The other ranks return the worst status, and write "rank 2: " and the
 * message of that rank, or the text of the status if its why is NULL. COLLECTIVE: one all-reduce of
 * 24 bytes, and a broadcast if a rank has failed. */
DPARI_API dpar_status dpari_agree(dpar_comm *comm, dpar_status st, dpar_why *why);

/* Returns where a message is written: to `why`, or to comm->why if `why` is NULL, where
 * dpar_fail(comm, NULL) finds it. Removes an older message from comm->why then, so that it is not
 * reported as the cause of a failure that has no message. A communicator that has failed keeps the
 * message of its failure. */
DPARI_API dpar_why *dpari_why_of(dpar_comm *comm, dpar_why *why);

/* Facts are the arguments that must be equal on all ranks, as a sequence of numbers with names. A
 * function of type dpari_state adds them in a fixed order, from the arguments in `given`. It is
 * called several times, because only the hash of all facts and one of the facts are stored. In
 * messages, `index` replaces a '#' in the name. */
typedef struct dpari_facts {
    uint64_t hash;       /* hash of all facts so far */
    int64_t count;       /* number of facts so far */
    const char *of;      /* prefix for the names of the facts added next, such as "field #: "; NULL
                            if none */
    int64_t of_index;    /* the number that replaces the '#' in `of` */
    int64_t keep;        /* position of the fact to store, counted from 0 */
    uint64_t before;     /* hash of the facts before the stored one; of all facts if none is
                            stored */
    int64_t value;       /* value of the stored fact */
    const char *name;    /* its name; NULL if there are at most `keep` facts */
    const char *kept_of; /* its prefix */
    int64_t index, kept_of_index; /* the numbers that replace a '#' in its name and prefix */
    int32_t kind;                 /* number, type, real or hash (agree.c) */
} dpari_facts;
typedef void dpari_state(dpari_facts *f, const void *given);

/* Add one fact. */
DPARI_API void dpari_fact(dpari_facts *facts, const char *name, int64_t index, int64_t value);
DPARI_API void dpari_fact_type(dpari_facts *facts, const char *name, int64_t index, int32_t type);
DPARI_API void dpari_fact_real(dpari_facts *facts, const char *name, int64_t index, double value);
/* Adds the hash of a value that is too long for a message. If it differs, the message names the
 * fact and the ranks, but no values. */
DPARI_API void dpari_fact_hash(dpari_facts *facts, const char *name, int64_t index, uint64_t hash);

/* Returns the hash of the plan's name and of all its facts, which is never 0. */
DPARI_API uint64_t dpari_facts_hash(const char *plan, dpari_state *state, const void *given);

/* Does what dpari_agree does, and also compares the facts if no rank has failed. If they differ,
 * all ranks fail with DPAR_E_MISMATCH, and the message names the first fact in which two ranks
 * differ: "halo: field 0: halo.low[1] is 2 on rank 0, 1 on rank 3".
 *
 * plan:  name of the kind of plan; the message begins with it.
 * state: NULL if there is nothing to compare.
 * given: read only if st is DPAR_OK.
 *
 * COLLECTIVE. Costs what dpari_agree costs and, if facts differ, about 2 log2(number of facts)
 * small broadcasts. */
DPARI_API dpar_status dpari_agree_on(dpar_comm *comm, dpar_status st, const char *plan,
                                     dpari_state *state, const void *given, dpar_why *why);

DPARI_API uint64_t dpari_hash_real(uint64_t h, double v);

/* Posts a collective whose tag is a hash of arguments that must be equal on all ranks. Engines that
 * compare calls thus compare these arguments too, at no cost. If they differ, comm->why begins with
 * `what`. */
DPARI_API dpar_status dpari_post_alike(dpar_comm *comm, dpar_call *call, uint64_t hash,
                                       const char *what, dpar_work *work);

/* Reports a wrong call of this rank: returns st and writes the message into comm->why, as dpari_say
 * does. If the communicator is broken, returns its status and keeps its message, which describes
 * the first error. */
DPARI_API dpar_status dpari_comm_say(dpar_comm *comm, dpar_status st, const char *form, ...)
    DPARI_PRINTF(3, 4);
/* The same with DPAR_E_ARG. */
DPARI_API dpar_status dpari_comm_wrong(dpar_comm *comm, const char *form, ...) DPARI_PRINTF(2, 3);
/* Reports a failure of this rank in a call in which other ranks may already wait: breaks the
 * communicator, so that all ranks fail with st and this message. */
DPARI_API dpar_status dpari_comm_wrong_all(dpar_comm *comm, dpar_status st, const char *form, ...)
    DPARI_PRINTF(3, 4);

enum { DPARI_ROOM_ALIGN = 64 };
DPARI_FN int64_t dpari_room_up(int64_t bytes)
{
    return dpari_ceil_div(bytes, DPARI_ROOM_ALIGN) * DPARI_ROOM_ALIGN;
}

/* Memory that is divided into pieces at multiples of DPARI_ROOM_ALIGN. If `at` is NULL, the bytes
 * are only counted. */
typedef struct dpari_room {
    unsigned char *at;
    int64_t used;
} dpari_room;
DPARI_FN dpari_room dpari_room_of(void *memory)
{
    dpari_room room;
    room.at = (unsigned char *)memory;
    room.used = 0;
    return room;
}
DPARI_API void *dpari_room_take(dpari_room *r, int64_t n, size_t bytes);

#endif
