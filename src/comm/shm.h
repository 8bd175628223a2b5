/* SPDX-License-Identifier: MIT-0 */
/* shm - the shared-memory engine: communicators over a world. Private. The protocol, and why two
 * parities are enough, is at the top of shm.c; tests/model has it as a model. */
#ifndef DPARI_COMM_SHM_H
#define DPARI_COMM_SHM_H

#include "comm.h"
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

/* How a communicator broke: claimed by the first who sees it, then filled, then published. */
enum { DPARI_ABORT_NONE, DPARI_ABORT_CLAIMED, DPARI_ABORT_SET };
typedef struct dpari_abort {
    uint32_t state;
    dpar_status status;
    int64_t from; /* the first collective that counts as failed: those before it can end */
    char text[sizeof(dpar_why)];
} dpari_abort;

/* A rank's part of a communicator, in its own heap, read by the others; slots follow it. */
typedef struct dpari_member {
    dpari_entry entry[2]; /* by parity of the sequence number */
    dpari_word a, b, c;   /* progress inside a collective */
    dpari_abort abort;    /* that of rank 0 counts */
    uint64_t next;        /* while it waits for its next communicator: the spare behind it */
    int64_t counted;      /* and how far it has counted */
    uint64_t room[14];
} dpari_member;

typedef struct dpari_shm {
    dpar_comm comm; /* first: a dpar_comm is one of these */
    dpari_world *world;
    struct dpari_shm *next;  /* of the world's open ones */
    int64_t bytes;           /* of this */
    uint32_t id;             /* the same on its ranks, of no other */
    int64_t sequence;        /* of the last collective posted */
    int64_t broken_from;     /* broken: the first one that failed */
    dpar_work *first, *last; /* posted collectives, in order */
    dpar_work *finished;     /* messages that are done and that nobody has asked for yet */
    int64_t slot_bytes;
    int32_t closing; /* the barrier that ends it is under way */
    int32_t all_cma; /* each of its ranks may read the others' memory */
    uint64_t member_ref;
    dpari_member **member; /* of each rank */
    int32_t *world_rank;   /* of each rank */
    const void **in;       /* scratch: an address a rank */
    void **out;
} dpari_shm;

/* Behind a member: two tables of pieces (one a parity), then the staging memory, two slots. */
typedef struct dpari_piece {
    int64_t begin, bytes;
} dpari_piece;
DPARI_API int64_t dpari_table_bytes(const dpari_world *w);
DPARI_API dpari_piece *dpari_table(const dpari_shm *s, int32_t rank, int64_t parity);
DPARI_API char *dpari_staging(const dpari_shm *s, int32_t rank);

/* The world's communicator; its parts are already in the rank blocks. */
DPARI_API dpar_status dpari_shm_make(dpari_world *w, int32_t size, const int32_t *world_rank,
                                     const uint64_t *member, int32_t rank, uint32_t id,
                                     int64_t sequence, dpari_shm **out);
/* Room for a member, its tables and slots in this rank's heap. One that was used before (members
 * are never given back, see shm.c) has counted to *sequence. */
DPARI_API dpar_status dpari_member_make(dpari_world *w, uint64_t *ref, int64_t *sequence);

/* A step of the collective that is first in the queue, from phase 0 on: OK done, MORE
 * (world->blocker: for whom), negative: failed. missing: has that rank not done what k waits for?
 */
DPARI_API dpar_status dpari_coll_advance(dpari_shm *s, dpar_work *k);
DPARI_API int dpari_coll_missing(const dpari_shm *s, const dpar_work *k, int32_t rank);

/* Messages. start: OK done already, MORE under way (the channels remember it until it is done).
 * advance: the state of one. progress: looks at all channels of the world. */
DPARI_API dpar_status dpari_p2p_open(dpari_world *w);
DPARI_API void dpari_p2p_close(dpari_world *w);
DPARI_API dpar_status dpari_p2p_start(dpari_shm *s, const dpar_call *call, dpar_work *k);
DPARI_API dpar_status dpari_p2p_advance(dpari_shm *s, dpar_work *k);
DPARI_API void dpari_p2p_progress(dpari_world *w);
/* Forgets works that cannot end: their communicator is broken or closed. */
DPARI_API int32_t dpari_p2p_forget(dpari_shm *s);

/* The rank is gone: breaks the communicator with a sentence that says so, of this operation. */
DPARI_API dpar_status dpari_fail_peer(dpari_shm *s, const dpar_work *k, int32_t rank);
/* "all-reduce #12 (4 f32, sum) of group 3 of 4 ranks: " */
DPARI_API void dpari_put_work(dpar_text *t, const dpari_shm *s, const dpar_work *k);
/* How the world's communicator broke; 0: it did not. For whoever watches the ranks. */
DPARI_API int dpari_segment_broke(const dpari_segment *s, dpar_why *why);
/* "rank 2 (6 in the world)" */
DPARI_API void dpari_put_rank(dpar_text *t, const dpari_shm *s, int32_t rank);
/* Whom a rank really waits for. Ranks that wait say so many times a second, and for whom (world.h):
 * one that has not for `quiet` seconds does something else, or nothing. The chain of waits from
 * that rank on, within the communicator, ends at such a one; *links: after so many steps. Ranks of
 * the world. */
DPARI_API int32_t dpari_shm_culprit(const dpari_shm *s, int32_t world_rank, double now,
                                    double quiet, int32_t *links);
/* For a deadline: a quarter of it, a second at most. */
DPARI_API double dpari_quiet(double timeout);
/* " (failed: all-reduce #3 (...))": the last operation of that rank that failed, if one did. */
DPARI_API void dpari_put_failed(dpar_text *t, const dpari_shm *s, int32_t world_rank);
/* " was killed by signal 9"; waits a moment until it is known. */
DPARI_API void dpari_put_ending(dpar_text *t, const dpari_shm *s, int32_t world_rank);
/* One round of progress on all that is posted, for waits outside of this engine. */
DPARI_API void dpari_shm_progress_all(dpari_shm *s);
/* Breaks it for all with this status and text (the first to come wins); returns what counts. */
DPARI_API dpar_status dpari_shm_break(dpari_shm *s, dpar_status status, const char *text);
/* The abort record, if it is set: status into comm.status, text into comm.why. OK: it is whole. */
DPARI_API dpar_status dpari_shm_broken(dpari_shm *s);

#endif
