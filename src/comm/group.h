/* SPDX-License-Identifier: MIT-0 */
/* group - a communicator of the shared-memory engine: its ranks, the memory through which they
 * synchronise, how it breaks, and messages about that. Private. collectives.c explains the words
 * that the ranks publish. collectives.c and p2p.c advance the operations of a group step by step;
 * shm.c decides when to take steps and how long to wait. */
#ifndef DPARI_COMM_GROUP_H
#define DPARI_COMM_GROUP_H

#include "comm.h"
#include "copy_choice.h"
#include "world.h"

enum { DPARI_INLINE = 120 }; /* bytes of payload in an entry */

/* What a rank publishes when it enters a collective. */
typedef struct dpari_entry {
    uint64_t word;        /* sequence << 32 | fingerprint of the call */
    uint64_t payload[15]; /* small input, or a dpari_offer (collectives.c) */
} dpari_entry;

typedef struct dpari_word {
    uint64_t word; /* sequence << 32 | step */
    uint64_t padding[15];
} dpari_word;

/* Why a communicator broke. The first rank that notices claims the record, fills it in, and then
 * publishes it. The record in the member of rank 0 counts. Each rank copies it into its comm.status
 * and comm.why when it looks (dpari_group_broken). */
enum { DPARI_ABORT_NONE, DPARI_ABORT_CLAIMED, DPARI_ABORT_SET };
typedef struct dpari_abort {
    uint32_t state;
    dpar_status status;
    int64_t from; /* the first collective that counts as failed; earlier ones can still complete */
    char text[DPARI_WHY_TEXT];
} dpari_abort;

/* How the ranks agree who continues after the communicator broke (dpar_comm_shrink). Each rank
 * votes to stay or to leave. Once all have voted or ended, or the deadline has passed, a rank
 * writes a list of the ranks that it has seen stay. The first rank to enter its number in `decided`
 * has the list that counts for all, even if that rank dies afterwards. */
enum { DPARI_VOTE_NONE, DPARI_VOTE_STAYS, DPARI_VOTE_LEAVES };
typedef struct dpari_vote {
    uint64_t word;    /* DPARI_VOTE_x */
    uint32_t decided; /* used only in the member of rank 0: 1 + the rank whose list counts; 0 before
                         the decision */
    uint32_t padding_0;
    uint64_t member;                     /* ref of the rank's member in the next communicator */
    int64_t sequence;                    /* the last sequence number that this member has used */
    int64_t id;                          /* the smallest id that the next communicator may have */
    uint64_t stay[DPARI_MAX_RANKS / 64]; /* the list, a bit for each rank of this communicator */
    uint64_t padding_1[11];
} dpari_vote;

/* A rank's part of a communicator. It is in the rank's own heap and the other ranks read it. Its
 * tables and slots follow it (dpari_table, dpari_staging). */
typedef struct dpari_member {
    dpari_entry entry[2];          /* by parity of the sequence number */
    dpari_word a, b, c;            /* progress inside a collective (collectives.c) */
    dpari_entry up[2], down;       /* entries that a cluster's leader passes on (arrival.h) */
    dpari_word up_last, down_last; /* the same for the last words of a collective */
    dpari_abort abort;             /* only that of rank 0 is used */
    uint64_t next;                 /* in the list of unused members: ref of the next one */
    int64_t counted;               /* in that list: the last sequence number that this member has
                                      used */
    uint64_t padding[14];
    dpari_vote vote;
} dpari_member;

/* How many ranks are divided into clusters (arrival.h). Private memory, the same on all ranks. */
enum { DPARI_CLUSTER = 8 };
typedef struct dpari_levels {
    int32_t clusters;            /* 0 if the group is too small for clusters */
    int32_t most;                /* the most ranks that a cluster may have */
    int32_t own, count;          /* this rank's cluster, and the number of its ranks */
    int32_t mine[DPARI_CLUSTER]; /* its ranks, ascending; the first one leads it */
    int32_t doubt; /* 1 if this collective has waited long, so that it checks every word instead */
    int32_t *leader, *place; /* [size] the leader of each rank's cluster, its position there */
    int32_t *leaders;        /* [clusters] */
} dpari_levels;

/* A communicator as one rank sees it, in private memory of the rank. */
typedef struct dpari_group {
    dpar_comm comm; /* must be first: dpari_group_of casts a dpar_comm of this engine */
    dpari_world *world;
    uint32_t id;             /* the same on its ranks, and different from any other's */
    int32_t blocker;         /* the rank of the world that the last step waits for; -1 if several */
    int64_t sequence;        /* number of the last collective posted */
    int64_t broken_from;     /* if broken, the first collective that failed */
    dpar_work *first, *last; /* posted collectives, in order */
    dpar_work *finished;     /* messages that are done and were not tested or waited for yet */
    int64_t slot_bytes;
    int32_t all_cma;              /* 1 if each of its ranks can read the others' memory */
    dpari_pace pace[DPARI_PACES]; /* times of broadcasts of private memory from this rank */
    dpari_pace sums[DPARI_PACES]; /* on rank 0: times of reductions of private memory */
    int64_t timed;                /* 1 + the collective that is being timed; 0 if none */
    int32_t timed_way;            /* the method that it uses, DPARI_BY_x */
    double timed_from;            /* s, when it began */
    uint64_t member_ref;          /* ref of this rank's member */
    dpari_member **member;        /* [size] */
    int32_t *world_rank;          /* [size] */
    dpari_levels levels;
    const void **in;       /* [size] scratch memory for addresses */
    void **out;            /* [size] the same */
    const int32_t *called; /* [size] numbers of the ranks in messages; NULL for their own */
    const char *place;     /* the name of their node in messages, or NULL */
} dpari_group;

/* Returns the group of a communicator of this engine. */
DPARI_FN dpari_group *dpari_group_of(dpar_comm *comm)
{
    return (dpari_group *)(void *)comm;
}

/* Where a piece begins in a rank's array, and its length, in bytes. */
typedef struct dpari_piece {
    int64_t begin, bytes;
} dpari_piece;

/* ---- how it breaks ---- */

/* Breaks the communicator on all ranks with this status and text, unless another rank was first.
 * Returns the status that counts. */
DPARI_API dpar_status dpari_group_break(dpari_group *group, dpar_status status, const char *text);
/* Copies the abort record, if it is set, into comm.status and comm.why. Returns comm.status, so
 * DPAR_OK if the communicator is not broken. */
DPARI_API dpar_status dpari_group_broken(dpari_group *group);

/* ---- finding the rank that all wait for ----
 *
 * Ranks that wait report many times a second that they do, and for which rank (wait.h). A rank
 * that has not reported for `quiet` seconds is the cause: it does other work, or nothing. This
 * function follows the chain of waits from a rank on, within the communicator, until it reaches
 * such a rank. *links is the number of steps. All ranks are numbers of the world. */
DPARI_API int32_t dpari_group_culprit(const dpari_group *group, int32_t world_rank, double quiet,
                                      int32_t *links);
/* Makes messages name the ranks as "rank number[r] on place". Used by an engine for several nodes
 * that runs this one within each node. NULL for number keeps their own numbers. Both arrays must
 * exist as long as the communicator. */
DPARI_API void dpari_group_call(dpar_comm *comm, const int32_t *number, const char *place);
/* Appends " on n2" if the group has such a place. */
DPARI_API void dpari_put_place(dpar_text *text, const dpari_group *group);
/* Tests whether one of the ranks has ended. If so, appends the message "rank 3 on n2 has ended (in
 * ...)". */
DPARI_API int dpari_group_ended(dpar_comm *comm, dpar_text *text);
/* Breaks the communicator because dpari_at returned NULL for this ref. work: the operation that
 * needs it, which the message then names; NULL if there is none. */
DPARI_API dpar_status dpari_group_unmapped(dpari_group *group, const dpar_work *work, uint64_t ref);
/* True if this rank of the world has begun to close the communicator and has completed its
 * messages. It neither sends nor receives any more. */
DPARI_API int dpari_group_closes(const dpari_group *group, int32_t world_rank);
/* Returns the seconds without a report after which a rank counts as quiet: a quarter of the
 * deadline, but at least 0.06 and at most 1. */
DPARI_API double dpari_quiet(double timeout);
/* Tests whether a rank waits for this one in a collective of the group that this one has not
 * called, as it has reported within the last `quiet` seconds. If so, *sequence is the number of
 * that collective. */
DPARI_API int dpari_group_crossed(const dpari_group *group, int32_t world_rank, double quiet,
                                  int64_t *sequence);
/* Appends the collective of dpari_group_crossed: " called barrier #7". */
DPARI_API void dpari_put_crossed(dpar_text *text, const dpari_group *group, int32_t world_rank,
                                 int64_t sequence);

/* ---- of this header's own modules ---- */

/* Publishes this rank's vote. If it stays, the other fields of the vote are filled in before. */
DPARI_INTERNAL void dpari_vote_cast(dpari_group *group, uint64_t word);
/* Counts the ranks that have voted or, if `look` is set, ended. */
DPARI_INTERNAL int32_t dpari_vote_known(const dpari_group *group, int look);
/* Returns the list that counts. Proposes the list of this rank if there is none yet. */
DPARI_INTERNAL const uint64_t *dpari_vote_decide(dpari_group *group);
DPARI_INTERNAL int dpari_vote_is_decided(const dpari_group *group);
DPARI_INTERNAL int dpari_vote_stays(const uint64_t *stay, int32_t rank);

/* The memory of a member: the struct, two tables of pieces (one for each parity), and the staging
 * memory, which is two slots. */
DPARI_INTERNAL int64_t dpari_member_bytes(const dpari_world *world);
DPARI_INTERNAL dpari_piece *dpari_table(const dpari_group *group, int32_t rank, int64_t parity);
DPARI_INTERNAL char *dpari_staging(const dpari_group *group, int32_t rank);

/* Breaks the communicator because a rank that the operation needs has ended or left. */
DPARI_INTERNAL dpar_status dpari_fail_peer(dpari_group *group, const dpar_work *work, int32_t rank);
/* Copies the message with which the world's communicator broke to *why, for the process that
 * supervises the ranks. Returns 0 if it is not broken. */
DPARI_INTERNAL int dpari_segment_broke(const dpari_segment *segment, dpar_why *why);

/* ---- messages ---- */

/* Appends "all-reduce #12 (4 f32, sum) of group 3 of 4 ranks: ". */
DPARI_INTERNAL void dpari_put_work(dpar_text *text, const dpari_group *group,
                                   const dpar_work *work);
/* Appends "all-reduce #12 (4 f32, sum)". */
DPARI_INTERNAL void dpari_put_flight_of(dpar_text *text, const dpari_group *group,
                                        const dpari_flight *flight);
/* Appends "rank 2 (6 in the world)" or "rank 6 on n2". */
DPARI_INTERNAL void dpari_put_rank(dpar_text *text, const dpari_group *group, int32_t rank);

/* Returns the number in the communicator of a rank of the world, or -1 if it is not in it. */
DPARI_INTERNAL int32_t dpari_group_rank(const dpari_group *group, int32_t world_rank);

#endif
