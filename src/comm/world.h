/* SPDX-License-Identifier: MIT-0 */
/* world - the ranks that share one mapping: who they are, their memory, how one waits for another,
 * what each did last. Private: the floor of the shared-memory engine, which group.h, coll.h, p2p.h
 * and shm.h stand on.
 *
 *     [head][dpari_rank x ranks][channel refs, ranks x ranks][heap of rank 0][heap of rank 1]...
 *
 * That is one sparse file. All ranks map the head, with what precedes the heaps, when they start. A
 * heap is given out in extents, ranges of the file that its rank makes as it needs them and lists
 * in its dpari_rank: the first is small, and each later one at least doubles the heap, so that a
 * few are enough. A rank maps its own extents when it makes them, and another rank's when it first
 * needs an address there. Addresses are taken only for what is used, because sites limit them
 * (ulimit -v).
 *
 * A `ref` names a byte of a heap to all ranks (their addresses differ): rank, number of the extent
 * and offset in it; 0 for none. An offset within one allocation may be added to a ref. Where the
 * ranks are threads a ref is the address itself, and all memory has one. What the refs that ranks
 * leave for each other lead to is not the world's matter. */
#ifndef DPARI_COMM_WORLD_H
#define DPARI_COMM_WORLD_H

#include "comm.h"
#include "options.h"
#include "os.h"

enum {
    DPARI_LINE = 128,      /* two cache lines: the prefetcher fetches in pairs */
    DPARI_FLIGHTS = 32,    /* operations that the recorder keeps of a rank */
    DPARI_MAX_RANKS = 1024 /* of one node */
};
/* A ref: the rank in 10 bits, the number of its extent in 6, the offset in 48. */
enum { DPARI_EXTENTS = 64 /* of one rank; number 0 stands for none */, DPARI_REF_BITS = 48 };
#define DPARI_REF_OFFSET ((UINT64_C(1) << DPARI_REF_BITS) - 1)

/* One operation in the flight recorder; 64 bytes, written by its rank alone. */
enum { DPARI_FLIGHT_POSTED = 1, DPARI_FLIGHT_DONE, DPARI_FLIGHT_FAILED };
typedef struct dpari_flight {
    int64_t sequence; /* of its communicator; messages: of the rank */
    int64_t count;
    uint32_t comm; /* which communicator */
    int32_t kind, type, op, root, tag;
    int32_t state;
    int32_t varies;
    int64_t room[2];
} dpari_flight;

enum { DPARI_RANK_AWAY, DPARI_RANK_HERE, DPARI_RANK_LEFT, DPARI_RANK_DEAD };

/* A piece of a heap: a range of the file; of addresses where the ranks are threads. */
typedef struct dpari_extent {
    int64_t begin, bytes;
} dpari_extent;

/* dpari_rank.ending of a rank that crashed and is still writing its core file. */
#define DPARI_ENDING_DUMPS INT32_MIN

/* What all may read about a rank. */
typedef struct dpari_rank {
    uint32_t state; /* DPARI_RANK_x */
    int32_t pid;    /* of its process */
    int32_t ending; /* DEAD: exit status, -signal, DPARI_ENDING_DUMPS; 0 where nobody knows */
    int32_t reads; /* ranks whose memory it has proved to read, itself too; 0: not tried, or none */
    uint64_t probe;  /* address of the word that proves who it is (dpari_world_word) */
    uint64_t member; /* ref of what it shows first: it has come */
    uint64_t cpus[DPARI_CPU_WORDS];
    int32_t cache;   /* the last-level cache of all these CPUs, by its first; -1: not one */
    uint32_t behind; /* 1: others have gone on without it (dpar_comm_shrink) */
    int32_t cpu;     /* where it ran when it last waited; -1: not known */
    int32_t quota;   /* processors that its control group may use; INT32_MAX: no quota */
    uint64_t group;  /* the same for ranks under one quota */
    uint64_t pid_space, user_space;          /* its namespaces, for messages; 0: not known */
    uint64_t can_read[DPARI_MAX_RANKS / 64]; /* a bit for each rank that `reads` counts */
    char room_0[DPARI_LINE - 72];
    uint32_t bell;     /* it sleeps on this word */
    uint32_t asleep;   /* 1: ring it; claimed by whoever takes it off the count of sleepers */
    int32_t waits_for; /* the rank whose news it needs; -1: anyone's */
    uint32_t beat;     /* when it last said that it waits, by the head's `clock`; */
    int32_t needs;     /* for this rank; -1: for several, it does not know, or it has stopped */
    char room_1[DPARI_LINE - 20];
    uint64_t flights; /* operations recorded so far */
    uint32_t owes;    /* what it has still to say of messages that are done on its side */
    char room_2[DPARI_LINE - 12];
    dpari_flight flight[DPARI_FLIGHTS];
    dpari_extent extent[DPARI_EXTENTS]; /* of its heap, from 1 on: written before any ref into it */
    uint64_t pids; /* the namespace of its pid, where /proc shows that one; 0: unknown */
    uint32_t extents;
    char room_3[DPARI_LINE - 12];
} dpari_rank;

typedef struct dpari_world_head {
    uint64_t magic;
    uint32_t version, ranks;
    int64_t bytes;      /* of the file */
    int64_t heap_bytes; /* that a rank's users may have in use */
    int64_t slot_bytes, heap_begin;
    int32_t plain, threads;
    uint64_t nonce;     /* random: no other world has the words of this one's ranks */
    int64_t part_bytes; /* of the file for the heap of one rank */
    int64_t taking;     /* bytes that ranks are about to take of the system's memory */
    char room_0[DPARI_LINE - 80];
    uint32_t sleepers; /* ranks that are asleep now */
    uint32_t said;     /* the highest `turn` of dpari_world_speaks */
    char room_1[DPARI_LINE - 8];
    uint32_t clock; /* ms, set forward by ranks that wait, each by how much time has passed for it:
                       their own clocks may differ (time namespaces) */
    char room_2[DPARI_LINE - 4];
} dpari_world_head;

/* Shared memory for a world, made before its ranks are. */
typedef struct dpari_segment {
    char *base;    /* the head and what precedes the heaps, mapped; */
    int64_t bytes; /* so many */
    int fd;        /* -1: memory of this process alone (threads, one rank) */
} dpari_segment;

/* An allocation. */
typedef struct dpari_used {
    int64_t begin, bytes; /* in the file, or as if there were one */
    int64_t users;        /* bytes that count against heap_bytes */
} dpari_used;

/* An extent of this rank's own heap. */
typedef struct dpari_own {
    int64_t begin, bytes; /* as in dpari_used */
    int64_t fresh;        /* from here on it was never given out */
} dpari_own;

/* Why the last allocation failed. */
enum {
    DPARI_LACKS_NOTHING,
    DPARI_LACKS_HEAP,      /* heap_bytes are in use */
    DPARI_LACKS_PLACE,     /* no gap in the heap is large enough, and it can have no more extents */
    DPARI_LACKS_PIECES,    /* DPARI_MAX_USED allocations */
    DPARI_LACKS_MEMORY,    /* of the machine or of a control group */
    DPARI_LACKS_ADDRESSES, /* of this process */
    DPARI_LACKS_FILE       /* the file cannot grow: see number */
};
enum {
    DPARI_MAX_USED = 1 << 16, /* allocations of one rank at a time */
    DPARI_DUMPED = 1024 /* of these are in core files: each may split a mapping, whose number the
                           system limits */
};

enum { DPARI_OWNS_NOTHING, DPARI_OWNS_SEGMENT, DPARI_OWNS_FILE /* its memory stays mapped */ };

/* A world as one rank sees it, in memory of its own. */
typedef struct dpari_world {
    dpari_segment segment;
    dpari_world_head *head;
    dpari_rank *rank;  /* of each */
    uint64_t *channel; /* [to * ranks + from]: a ref that `from` leaves there for `to`; 0: none */
    int32_t me, size;
    int32_t threads; /* ranks are threads of this process */
    int32_t owns;    /* what of the segment goes at the end: DPARI_OWNS_... */
    int32_t crowded; /* more ranks than cores */
    int32_t thrifty; /* spinning uses up the quota of processor time that other ranks need */
    int32_t dear;    /* waits that a dear yield is remembered for, less the cheap ones since */
    int32_t sleepy;  /* so many waits to come go to sleep soon: yields are dear here */
    int32_t worked;  /* waits in a row that slept about as long as work lasts */
    int32_t cpu;     /* what this rank has published of it: rank[me].cpu */
    double moved;    /* when it last moved to another CPU, because it shared one */
    int32_t vain;    /* waits in a row that spun in vain */
    double timeout_s;
    char **view;      /* [rank * DPARI_EXTENTS + number]: where this rank sees that extent; NULL:
                         it is not mapped. Any thread may map one (compare and swap) */
    dpari_own own[DPARI_EXTENTS]; /* this rank's extents, from 1 on, ascending */
    int32_t owns_extents;
    dpari_used *used; /* allocations in this rank's heap, ascending */
    int32_t used_count;
    int64_t users;    /* bytes that count against heap_bytes */
    int32_t lacks;    /* of the last allocation that failed: DPARI_LACKS_x, */
    int number;       /* and the error number */
    int64_t fresh;    /* heap from here on was never given out */
    int64_t floor;    /* what lies before is not given out again: a rank that was left behind may
                         still write there */
    uint64_t *probe;  /* a page with the word of this rank, not handed on by fork */
    uint32_t clock;   /* the head's, as last seen, */
    double clock_at;  /* and when that was, of dpari_os_now */
    uint32_t waiting; /* the user's thread is in a wait, and will see at once what it is told */
} dpari_world;

/* ---- memory ---- */

/* True if the addresses [low, high) are within one allocation of this rank, or outside its heap. If
 * not, *within is the number of bytes of the allocation that holds low, or 0 if none does. Costs
 * O(log allocations). */
DPARI_API int dpari_heap_holds(const dpari_world *w, int64_t low, int64_t high, int64_t *within);
/* What every rank can turn into the address of `at`; 0 where [at, at + bytes) is not memory that
 * all can reach. And back, for this rank. */
DPARI_API uint64_t dpari_ref(const dpari_world *w, const void *at, int64_t bytes);
DPARI_API void *dpari_at(const dpari_world *w, uint64_t ref); /* NULL: no addresses are left */
/* "mapping 4194304 bytes of rank 3's memory: out of addresses (...)": why dpari_at gave NULL. */
DPARI_API void dpari_put_unmapped(dpar_text *t, const dpari_world *w, uint64_t ref);

/* ---- waiting ----
 *
 *     dpari_zero(&t, sizeof t);
 *     while (!condition) {
 *         if (dpari_wait_turn(w, &t, peer) == DPAR_MORE) { look whether peers live, time is up }
 *     }
 *     dpari_wait_end(w, &t);
 *
 * A turn spins. Then it yields if the peer needs this very core: because there are more ranks than
 * cores, or because the peer was last seen on this CPU. If there is a core for each, one of the two
 * moves to another one. Then it sleeps. Before it sleeps it returns once, so that the condition is
 * looked at after the others were told. MORE: time has passed. */
typedef struct dpari_wait {
    int32_t turns;
    int32_t told; /* counted among the sleepers */
    int32_t peer; /* for whose news */
    uint32_t bell;
    int32_t shares;  /* 1 + the rank that was last seen on this rank's CPU; 0: none of interest */
    int32_t resumed; /* how often this process was suspended and continued in the wait */
    double began;    /* 0: not yet slow. Later by the time for which this process was suspended */
    double looked;   /* at the clock, last */
} dpari_wait;
DPARI_API dpar_status dpari_wait_turn(dpari_world *w, dpari_wait *t, int32_t peer);
/* Tells all who look that this rank waits, and for whom: after a turn in which time has passed. */
DPARI_API void dpari_wait_says(dpari_world *w, int32_t needs);
DPARI_API void dpari_wait_end(dpari_world *w, dpari_wait *t);

/* Stores the word and wakes who sleeps for it. */
DPARI_API void dpari_publish(dpari_world *w, uint64_t *word, uint64_t value);

/* " was killed by signal 9": how a rank that is not here any more ended. Waits a moment until that
 * is known. */
DPARI_API void dpari_put_ending(dpar_text *t, const dpari_world *w, int32_t rank);
/* " (failed: all-reduce #3 (...))": the last operation of a rank that failed, if one did. */
DPARI_API void dpari_put_failed(dpar_text *t, const dpari_world *w, int32_t rank);
/* 1 for the first in this world that asks with this turn (1, 2, ...), or a later one. */
DPARI_API int dpari_world_speaks(dpari_world *w, uint32_t turn);
/* Returns the state of a rank in the job, and notices its death (DPARI_RANK_DEAD). */
DPARI_API uint32_t dpari_rank_state(dpari_world *w, int32_t rank);

/* ---- of this header's own modules ---- */

/* Memory for `ranks` ranks (1 .. DPARI_MAX_RANKS), mapped here. options NULL: defaults. E_ARG,
 * E_SYSTEM with a message. */
DPARI_INTERNAL dpar_status dpari_segment_make(dpari_segment *s, int32_t ranks,
                                              const dpar_world_desc *options, dpar_why *why);
/* Maps a segment that another process made and handed over as `fd` (which it then owns). Checks
 * size, magic and version before it looks at anything else. */
DPARI_INTERNAL dpar_status dpari_segment_open(dpari_segment *s, int fd, dpar_why *why);
DPARI_INTERNAL void dpari_segment_close(dpari_segment *s);

/* This rank's view of the segment's world, nobody told so far; NULL: no memory. own: the segment is
 * closed with it. */
DPARI_INTERNAL dpari_world *dpari_world_make(const dpari_segment *s, int32_t me, int32_t own,
                                             const dpar_world_desc *options);
/* Becomes rank `me` for all to see, with the ref of what it shows them first (not 0); returns when
 * all ranks have come and what they show can be read (E_TIMEOUT names the missing, E_PEER a dead
 * one, E_SYSTEM). COLLECTIVE. */
DPARI_INTERNAL dpar_status dpari_world_enter(dpari_world *w, uint64_t member, dpar_why *why);
/* For whoever watches the ranks (dpar_launch): this one has ended, with an exit status, or by
 * -signal. All waits for it end at once. A rank that left in order stays LEFT. */
DPARI_INTERNAL void dpari_segment_ended(const dpari_segment *s, int32_t rank, int32_t ending);
/* True if any of its ranks has printed an error. */
DPARI_INTERNAL int dpari_segment_said(const dpari_segment *s);
/* True if the rank has left in order, by closing the world's communicator. */
DPARI_INTERNAL int dpari_segment_has_left(const dpari_segment *s, int32_t rank);
/* True if others have gone on without the rank (dpar_comm_shrink). */
DPARI_INTERNAL int dpari_segment_is_behind(const dpari_segment *s, int32_t rank);
/* A number that changes with each operation that it begins, and while it waits in one. */
DPARI_INTERNAL uint64_t dpari_segment_pulse(const dpari_segment *s, int32_t rank);
/* Says that this rank leaves; ends its view of the world. */
DPARI_INTERNAL void dpari_world_close(dpari_world *w);

/* Zeroed memory of this rank's heap, which all ranks can reach. users: 1 where it counts against
 * heap_bytes, 0 for the library's own. E_MEMORY: see w->lacks, w->number. */
DPARI_INTERNAL dpar_status dpari_heap_alloc(dpari_world *w, int64_t bytes, int users,
                                            void **memory);
DPARI_INTERNAL void dpari_heap_release(dpari_world *w, void *memory);
/* What was lacking then, with numbers; where it was nothing of the heap, or w is NULL, private
 * memory was. */
DPARI_INTERNAL void dpari_put_lack(dpar_text *t, const dpari_world *w);
/* Copies bytes from behind a ref, without a world; 0 where there is none. */
DPARI_INTERNAL int dpari_segment_copy(const dpari_segment *s, uint64_t ref, void *to,
                                      int64_t bytes);

/* Seconds since a rank last said that it waits, as far as ranks that wait have counted them. */
DPARI_INTERNAL double dpari_beat_age(dpari_world *w, int32_t rank);
/* "; 2 of 3 other ranks cannot be read: rank 2 (another PID namespace), ...", or nothing. */
DPARI_INTERNAL void dpari_put_unread(dpar_text *t, dpari_world *w);

/* True if `reader` may read the memory of `rank` (process_vm_readv). Each rank tries all others
 * when it enters. */
DPARI_INTERNAL int dpari_world_reads(const dpari_world *w, int32_t reader, int32_t rank);
/* Copies from a rank's private memory. 0, or -1 with errno when that is not possible, or not any
 * more: this rank does not try again then. */
DPARI_INTERNAL int dpari_world_read(dpari_world *w, int32_t rank, void *to, uint64_t from,
                                    int64_t bytes);
/* Wakes all: something happened that everyone must look at. */
DPARI_INTERNAL void dpari_ring_all(const dpari_segment *s);

/* dpari_put_ending without the wait. */
DPARI_INTERNAL void dpari_put_end(dpar_text *t, const dpari_rank *r);

/* Begins a record; its number, to end it with its state (unless it was written over by then). */
DPARI_INTERNAL int64_t dpari_flight_begin(dpari_world *w, uint32_t comm, int64_t sequence,
                                          const dpar_call *call);
enum { DPARI_FLIGHT_LAST = -1, DPARI_FLIGHT_LAST_FAILED = -2 }; /* instead of a sequence */
/* The record of that operation, copied; 0 when it is not (or no longer) there. */
DPARI_INTERNAL int dpari_flight_find(const dpari_world *w, int32_t rank, uint32_t comm,
                                     int64_t sequence, dpari_flight *out);
/* Reads one while it may be written: word by word, so that none tears. */
DPARI_INTERNAL void dpari_flight_copy(uint64_t *to, const uint64_t *from);
DPARI_INTERNAL void dpari_flight_end(dpari_world *w, int64_t number, int32_t state);
/* "all-reduce #12 (1024 f32, sum)". */
DPARI_INTERNAL void dpari_flight_text(dpar_text *t, const dpari_flight *f);
/* " (in all-reduce #12 (...))": the last operation of a rank, and how far it is. */
DPARI_INTERNAL void dpari_put_last(dpar_text *t, const dpari_world *w, int32_t rank);

#endif
