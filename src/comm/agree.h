/* SPDX-License-Identifier: MIT-0 */
/* agree - private: what ranks compare before they plan something together, and the caller's memory
 * in pieces. */
#ifndef DPARI_COMM_AGREE_H
#define DPARI_COMM_AGREE_H

#include "../base/arith.h"
#include "../index/layout.h"
#include "comm.h"

/* A hash h, of 0 and more numbers, with one more. */
DPARI_API uint64_t dpari_hash(uint64_t h, int64_t v);
DPARI_API uint64_t dpari_hash_layout(uint64_t h, const dpar_layout *l);

/* All ranks hear how the worst of them fares: a rank that fails keeps its own status and *why, the
 * others get the worst status and "rank 2: " before its message (its status in words, where its
 * why is NULL). COLLECTIVE: one all-reduce of 24 bytes; a broadcast when one fails. */
DPARI_API dpar_status dpari_agree(dpar_comm *c, dpar_status st, dpar_why *why);

/* What all ranks must have given alike: numbers with names, one after another. A function states
 * them, of what was given, each time the same ones; '#' in a name stands for `index`. */
typedef struct dpari_facts {
    uint64_t hash;    /* of all so far */
    int64_t count;    /* so many */
    const char *of;   /* "field #: ", what the names that follow begin with; NULL: nothing */
    int64_t of_index; /* its '#' */
    int64_t keep;     /* the one that is remembered, */
    uint64_t before;  /* with the hash of those before it, */
    int64_t value;
    const char *name; /* NULL: there are no more than `keep` */
    const char *kept_of;
    int64_t index, kept_of_index;
    int32_t kind;
} dpari_facts;
typedef void dpari_state(dpari_facts *f, const void *given);

DPARI_API void dpari_fact(dpari_facts *f, const char *name, int64_t index, int64_t value);
DPARI_API void dpari_fact_type(dpari_facts *f, const char *name, int64_t index, int32_t type);
DPARI_API void dpari_fact_real(dpari_facts *f, const char *name, int64_t index, double value);
/* Of what is too long for a message. */
DPARI_API void dpari_fact_hash(dpari_facts *f, const char *name, int64_t index, uint64_t hash);

/* Of what all state for this kind of plan, never 0. */
DPARI_API uint64_t dpari_facts_hash(const char *plan, dpari_state *state, const void *given);

/* As dpari_agree; where all are well and not all state the same, E_MISMATCH with the first in which
 * two of them differ: "halo: field 0: halo.low[1] is 2 on rank 0, 1 on rank 3". plan: its kind,
 * what the message begins with. given is read when st is OK; state NULL: there is nothing to
 * compare. COLLECTIVE; where they differ, some broadcasts more: the logarithm of the number of
 * facts, twice.
 */
DPARI_API dpar_status dpari_agree_on(dpar_comm *c, dpar_status st, const char *plan,
                                     dpari_state *state, const void *given, dpar_why *why);

DPARI_API uint64_t dpari_hash_real(uint64_t h, double v);

/* Posts a collective whose tag tells what its ranks must have given alike, as a hash: engines that
 * compare calls compare it too, at no cost. what: what c->why begins with where they differ. */
DPARI_API dpar_status dpari_post_alike(dpar_comm *c, dpar_call *call, uint64_t hash,
                                       const char *what, dpar_work *work);

/* Reports a call that one rank makes wrongly: returns st, with a message in c->why, as dpari_say
 * does. On a broken communicator it returns that one's status and keeps its message, which says
 * what went wrong first. */
DPARI_API dpar_status dpari_comm_say(dpar_comm *c, dpar_status st, const char *form, ...)
    DPARI_PRINTF(3, 4);
/* The same with DPAR_E_ARG. */
DPARI_API dpar_status dpari_comm_wrong(dpar_comm *c, const char *form, ...) DPARI_PRINTF(2, 3);
/* The same of a call in which other ranks wait: it breaks the communicator, so that all hear. */
DPARI_API dpar_status dpari_comm_wrong_all(dpar_comm *c, dpar_status st, const dpar_why *why);

enum { DPARI_ROOM_ALIGN = 64 };
DPARI_FN int64_t dpari_room_up(int64_t bytes)
{
    return dpari_ceil_div(bytes, DPARI_ROOM_ALIGN) * DPARI_ROOM_ALIGN;
}

/* Memory handed out in pieces that begin at multiples of that. at NULL: counted alone. */
typedef struct dpari_room {
    unsigned char *at;
    int64_t used;
} dpari_room;
DPARI_API void *dpari_room_take(dpari_room *r, int64_t n, size_t bytes);

#endif
