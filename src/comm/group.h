/* SPDX-License-Identifier: MIT-0 */
/* group - ranks of a world that have a communicator in common: who they are, where their words lie,
 * how it breaks, and messages about that. Private. What the words say is told in coll.c; coll and
 * p2p advance the operations of a group, shm decides when and for how long. */
#ifndef DPARI_COMM_GROUP_H
#define DPARI_COMM_GROUP_H

#include "comm.h"
#include "pace.h"
#include "world.h"

enum { DPARI_INLINE = 120 }; /* bytes of payload in an entry */

/* What a rank tells all others when it enters a collective: word = sequence << 32 | fingerprint. */
typedef struct dpari_entry {
    uint64_t word;
    uint64_t payload[15];
} dpari_entry;

typedef struct dpari_word {
    uint64_t word; /* sequence << 32 | step */
    uint64_t room[15];
} dpari_word;

/* How a communicator broke: claimed by the first who sees it, then filled, then published. The
 * record lies in the member of rank 0, and each rank copies it into its comm.status and comm.why
 * when it looks (dpari_group_broken). */
enum { DPARI_ABORT_NONE, DPARI_ABORT_CLAIMED, DPARI_ABORT_SET };
typedef struct dpari_abort {
    uint32_t state;
    dpar_status status;
    int64_t from; /* the first collective that counts as failed: those before it can end */
    char text[DPARI_WHY_TEXT];
} dpari_abort;

/* Who goes on after it broke. Each rank says that it has come, or that it will not; when all have,
 * or are gone, or the deadline is over, it writes down whom it has seen. The first such list
 * counts, whoever wrote it may die after that: so all that go on have the same. */
enum { DPARI_VOTE_NONE, DPARI_VOTE_STAYS, DPARI_VOTE_LEAVES };
typedef struct dpari_vote {
    uint64_t word; /* DPARI_VOTE_x */
    uint32_t
        decided; /* in the member of rank 0: 1 + the rank whose list counts; 0: none does yet */
    uint32_t room_0;
    uint64_t member;      /* of its next communicator: its part of it, */
    int64_t sequence, id; /* how far that has counted, the least name that it may have */
    uint64_t stay[DPARI_MAX_RANKS / 64]; /* its list: a bit a rank of this communicator */
    uint64_t room_1[11];
} dpari_vote;

/* A rank's part of a communicator, in its own heap, read by the others; slots follow it. */
typedef struct dpari_member {
    dpari_entry entry[2];          /* by parity of the sequence number */
    dpari_word a, b, c;            /* progress inside a collective */
    dpari_entry up[2], down;       /* of a leader: gate.h; entries, */
    dpari_word up_last, down_last; /* and the last words of a collective */
    dpari_abort abort;             /* that of rank 0 counts */
    uint64_t next;   /* while it waits for its next communicator: the spare behind it */
    int64_t counted; /* and how far it has counted */
    uint64_t room[14];
    dpari_vote vote;
} dpari_member;

/* How many ranks are cut into clusters (gate.h); private memory, the same on all of them. */
enum { DPARI_CLUSTER = 8 };
typedef struct dpari_levels {
    int32_t clusters;            /* 0: they are not */
    int32_t most;                /* ranks that a cluster has at most */
    int32_t own, count;          /* this rank's own, its ranks, */
    int32_t mine[DPARI_CLUSTER]; /* ascending: the first leads */
    int32_t doubt;               /* a wait was long or in vain: now each word counts */
    int32_t *leader, *place;     /* of each rank: who leads its cluster, and which it is there */
    int32_t *leaders;
} dpari_levels;

/* A communicator as one rank sees it; private memory. */
typedef struct dpari_group {
    dpar_comm comm; /* first: a dpar_comm of this engine is one of these */
    dpari_world *world;
    uint32_t id;             /* the same on its ranks, of no other */
    int32_t blocker;         /* the world's rank that the last step waits for; -1: several */
    int64_t sequence;        /* of the last collective posted */
    int64_t broken_from;     /* broken: the first one that failed */
    dpar_work *first, *last; /* posted collectives, in order */
    dpar_work *finished;     /* messages that are done and that nobody has asked for yet */
    int64_t slot_bytes;
    int32_t all_cma;              /* each of its ranks may read the others' memory */
    dpari_pace pace[DPARI_PACES]; /* of broadcasts of private memory with this root; */
    dpari_pace sums[DPARI_PACES]; /* rank 0: of reductions of private memory; */
    int64_t timed;                /* 1 + the one that is being timed; 0: none, */
    int32_t timed_way;
    double timed_from;
    uint64_t member_ref;
    dpari_member **member; /* of each rank */
    int32_t *world_rank;   /* of each rank */
    dpari_levels levels;
    const void **in; /* scratch: an address a rank */
    void **out;
    const int32_t *called; /* by which numbers messages call its ranks; NULL: their own, */
    const char *place;     /* and which node's memory it is */
} dpari_group;

/* Of a communicator of this engine. */
DPARI_FN dpari_group *dpari_group_of(dpar_comm *c)
{
    return (dpari_group *)(void *)c;
}

/* Where a piece begins in a rank's array, and its length. */
typedef struct dpari_piece {
    int64_t begin, bytes;
} dpari_piece;

/* ---- how it breaks ---- */

/* Breaks it for all with this status and text (the first to come wins); returns what counts. */
DPARI_API dpar_status dpari_group_break(dpari_group *g, dpar_status status, const char *text);
/* The abort record, if it is set: status into comm.status, text into comm.why. OK: it is whole. */
DPARI_API dpar_status dpari_group_broken(dpari_group *g);

/* ---- whom a rank really waits for ----
 *
 * Ranks that wait say so many times a second, and for whom (world.h): one that has not for `quiet`
 * seconds does something else, or nothing. The chain of waits from that rank on, within the
 * communicator, ends at such a one; *links: after so many steps. Ranks of the world. */
DPARI_API int32_t dpari_group_culprit(const dpari_group *g, int32_t world_rank, double quiet,
                                      int32_t *links);
/* An engine of several nodes has this one for the ranks of a node: messages say "rank number[r] on
 * place" (number NULL: as ever, but for dpari_put_place). Both stay the caller's. */
DPARI_API void dpari_group_call(dpar_comm *c, const int32_t *number, const char *place);
/* " on n2", or nothing. */
DPARI_API void dpari_put_place(dpar_text *t, const dpari_group *g);
/* Tests whether one of the ranks has ended. If so, appends the message "rank 3 on n2 has ended (in
 * ...)". */
DPARI_API int dpari_group_ended(dpar_comm *c, dpar_text *t);
/* dpari_at gave NULL for this ref: breaks the communicator, which is of this engine, with a
 * message that says so. */
DPARI_API dpar_status dpari_group_unmapped(dpar_comm *c, uint64_t ref);
/* True if this rank of the world has begun to close the communicator and has completed its
 * messages. It neither sends nor receives any more. */
DPARI_API int dpari_group_closes(const dpari_group *g, int32_t world_rank);
/* For a deadline: a quarter of it, a second at most. */
DPARI_API double dpari_quiet(double timeout);
/* Tests whether a rank waits for this one in a collective of g that this one has not called, as it
 * has reported within the last `quiet` seconds. If so, *sequence is the number of that
 * collective. */
DPARI_API int dpari_group_crossed(const dpari_group *g, int32_t world_rank, double quiet,
                                  int64_t *sequence);
/* " called barrier #7": that collective. */
DPARI_API void dpari_put_crossed(dpar_text *t, const dpari_group *g, int32_t world_rank,
                                 int64_t sequence);

/* ---- an exchange waits for one of its peers ---- */

typedef struct dpari_peer_wait {
    dpar_comm *comm;                  /* the exchange's, whose deadline counts */
    dpari_group *group;               /* the ranks of this machine, the peer among them */
    int32_t peer;                     /* of the world */
    int32_t shift;                    /* the peer has begun exchange number */
    const uint64_t *ready;            /* *ready >> shift; */
    int64_t count;                    /* this rank is in that one */
    void (*progress)(void *exchange); /* of messages and other work under way */
    void *exchange;
    /* Who does not come: the peer that is waited for, or, if that itself waits for another, that
     * one, and so on. Begins with zeros. */
    int32_t who;    /* of the world */
    int32_t links;  /* 0: the peer; 1: whom that waits for; ... */
    double since;   /* nobody else came under suspicion; 0: not yet */
    int64_t in;     /* the collective that the peer waits in, */
    double crossed; /* and since when; 0: in none */
    double waited;  /* seconds, when it failed */
} dpari_peer_wait;
/* Time has passed: E_PEER where the peer sends nothing more, or how the communicator broke. */
DPARI_API dpar_status dpari_peer_look(const dpar_comm *comm, dpari_group *g, int32_t peer);
/* Waits until *word >= value. E_PEER: the peer is gone. E_MISMATCH: it has not begun this exchange
 * and waits in a collective that this rank has not called. E_TIMEOUT: the deadline is over, and
 * p->who did not come. */
DPARI_API dpar_status dpari_peer_await(dpari_peer_wait *p, const uint64_t *word, uint64_t value);

/* ---- of this header's own modules ---- */

/* Says that this rank goes on with those that do (its vote's other fields are filled in), or not.
 */
DPARI_INTERNAL void dpari_vote_cast(dpari_group *g, uint64_t word);
/* How many ranks have said something or are gone. look: asks the system who lives. */
DPARI_INTERNAL int32_t dpari_vote_known(const dpari_group *g, int look);
/* The list that counts, this rank's where there is none yet. */
DPARI_INTERNAL const uint64_t *dpari_vote_decide(dpari_group *g);
DPARI_INTERNAL int dpari_vote_is_decided(const dpari_group *g);
DPARI_INTERNAL int dpari_vote_stays(const uint64_t *stay, int32_t rank);

/* Behind a member: two tables of pieces (one a parity), then the staging memory, two slots. */
DPARI_INTERNAL int64_t dpari_member_bytes(const dpari_world *w);
DPARI_INTERNAL dpari_piece *dpari_table(const dpari_group *g, int32_t rank, int64_t parity);
DPARI_INTERNAL char *dpari_staging(const dpari_group *g, int32_t rank);

/* The rank is gone: breaks the communicator with a message that says so, of this operation. */
DPARI_INTERNAL dpar_status dpari_fail_peer(dpari_group *g, const dpar_work *k, int32_t rank);
/* dpari_at gave NULL for this ref: breaks the communicator with a message that says so. */
DPARI_INTERNAL dpar_status dpari_fail_unmapped(dpari_group *g, const dpar_work *k, uint64_t ref);
/* How the world's communicator broke; 0: it did not. For whoever watches the ranks. */
DPARI_INTERNAL int dpari_segment_broke(const dpari_segment *s, dpar_why *why);

/* ---- messages ---- */

/* "all-reduce #12 (4 f32, sum) of group 3 of 4 ranks: " */
DPARI_INTERNAL void dpari_put_work(dpar_text *t, const dpari_group *g, const dpar_work *k);
/* "all-reduce #12 (4 f32, sum)" */
DPARI_INTERNAL void dpari_put_flight_of(dpar_text *t, const dpari_group *g, const dpari_flight *f);
/* "rank 2 (6 in the world)", "rank 6 on n2" */
DPARI_INTERNAL void dpari_put_rank(dpar_text *t, const dpari_group *g, int32_t rank);

/* The rank in the communicator of one of the world; -1: none. */
DPARI_INTERNAL int32_t dpari_group_rank(const dpari_group *g, int32_t world_rank);

#endif
