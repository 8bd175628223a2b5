/* SPDX-License-Identifier: MIT-0 */
/* world - the ranks that share one mapping: the layout of their shared memory, how they join and
 * how they end. Private. wait.h, heap.h and flight.h have the other functions of a world; group.h,
 * collectives.h, p2p.h and shm.h build on them.
 *
 *     [head][dpari_rank x ranks][channel refs, ranks x ranks][heap of rank 0][heap of rank 1]...
 *
 * This is one sparse file. When they start, all ranks map everything that precedes the heaps. A
 * heap consists of extents. An extent is a range of the file that the heap's rank makes when it
 * needs one and lists in its dpari_rank. The first is small and each later one at least doubles the
 * heap, so that a few are enough. A rank maps its own extents when it makes them, and an extent of
 * another rank when it first needs an address in it. Only mapped extents take addresses, which
 * matters because sites limit them (ulimit -v).
 *
 * A `ref` names a byte of a heap to all ranks, because their addresses differ. It consists of the
 * rank, the number of the extent, and the offset in the extent; 0 is no ref. An offset within one
 * allocation may be added to a ref. If the ranks are threads, a ref is the address itself, and all
 * memory has one. The world does not know what is stored behind the refs that ranks exchange. */
#ifndef DPARI_COMM_WORLD_H
#define DPARI_COMM_WORLD_H

#include "comm.h"
#include "options.h"
#include "os.h"

enum {
    DPARI_LINE = 128,      /* two cache lines, because the prefetcher fetches lines in pairs */
    DPARI_FLIGHTS = 32,    /* operations of each rank that the flight recorder keeps */
    DPARI_MAX_RANKS = 1024 /* ranks on one node */
};
/* A ref has the rank in 10 bits, the number of its extent in 6, and the offset in 48. */
enum { DPARI_EXTENTS = 64 /* of one rank; number 0 is not used */, DPARI_REF_BITS = 48 };
#define DPARI_REF_OFFSET ((UINT64_C(1) << DPARI_REF_BITS) - 1)

/* One operation in the flight recorder. It has 64 bytes, and only its own rank writes it. */
enum { DPARI_FLIGHT_POSTED = 1, DPARI_FLIGHT_DONE, DPARI_FLIGHT_FAILED };
typedef struct dpari_flight {
    int64_t sequence; /* number of a collective in its communicator; of a message, among all
                         operations of its rank */
    int64_t count;
    uint32_t comm;                     /* number of the communicator; 0 is the world */
    int32_t kind, type, op, root, tag; /* as in dpar_call */
    int32_t state;                     /* DPARI_FLIGHT_x */
    int32_t varies;                    /* 1 if the pieces have different sizes */
    int64_t padding[2];
} dpari_flight;

enum { DPARI_RANK_AWAY, DPARI_RANK_HERE, DPARI_RANK_LEFT, DPARI_RANK_DEAD };

/* A piece of a heap: a range of the file, or of addresses if the ranks are threads. */
typedef struct dpari_extent {
    int64_t begin, bytes;
} dpari_extent;

/* dpari_rank.ending of a rank that crashed and is still writing its core file. */
#define DPARI_ENDING_DUMPS INT32_MIN

/* The shared record of one rank, which all ranks may read. */
typedef struct dpari_rank {
    uint32_t state; /* DPARI_RANK_x */
    int32_t pid;
    int32_t ending;  /* if DEAD: exit status, -signal or DPARI_ENDING_DUMPS; 0 if unknown */
    int32_t reads;   /* number of bits set in can_read; 0 if it has not tried to read yet */
    uint64_t probe;  /* address of the word that proves which process it is (dpari_world_word) */
    uint64_t member; /* ref of its first shared structure; not 0 once it has arrived */
    uint64_t cpus[DPARI_CPU_WORDS]; /* a bit for each CPU that it may run on */
    int32_t cache;   /* first CPU of the last-level cache that all of `cpus` share; -1 if none */
    uint32_t behind; /* 1 if others continue without it (dpar_comm_shrink) */
    int32_t cpu;     /* where it ran when it last waited; -1 if unknown */
    int32_t quota;   /* processors that its control group may use; INT32_MAX if unlimited */
    uint64_t group;  /* identifies the control group with this quota */
    uint64_t pid_space, user_space;          /* its namespaces, for messages; 0 if unknown */
    uint64_t can_read[DPARI_MAX_RANKS / 64]; /* a bit for each rank whose memory it can read, and
                                                for itself */
    char padding_0[DPARI_LINE - 72];
    uint32_t bell;     /* the futex word on which it sleeps */
    uint32_t asleep;   /* 1 if it must be woken. The rank that clears it also decrements sleepers */
    int32_t waits_for; /* the rank that must wake it; -1 if any rank may */
    uint32_t beat;     /* time at which it last reported that it waits, by the head's `clock` */
    int32_t needs;     /* the rank that it waited for at `beat`; -1 if several, unknown, or if it no
                          longer waits */
    char padding_1[DPARI_LINE - 20];
    uint64_t flights; /* operations recorded so far */
    uint32_t owes; /* messages that are done on its side, but that it must still report to a peer */
    char padding_2[DPARI_LINE - 12];
    dpari_flight flight[DPARI_FLIGHTS]; /* a ring buffer */
    dpari_extent extent[DPARI_EXTENTS]; /* of its heap, from 1 on; written before any ref into it */
    uint64_t pids;    /* its PID namespace if its /proc belongs to that namespace; 0 otherwise */
    uint32_t extents; /* extents made so far */
    char padding_3[DPARI_LINE - 12];
} dpari_rank;

/* The beginning of the file. */
typedef struct dpari_world_head {
    uint64_t magic; /* written last, when the rest is complete */
    uint32_t version, ranks;
    int64_t bytes;      /* size of the file */
    int64_t heap_bytes; /* the most bytes of dpar_comm_alloc that one rank may have at a time */
    int64_t slot_bytes; /* as in dpar_world_desc, made larger if there are many ranks */
    int64_t heap_begin; /* offset of the first heap in the file */
    int32_t plain;      /* dpar_world_desc.disable */
    int32_t threads;    /* 1 if the ranks are threads of one process, or there is only one */
    uint64_t nonce;     /* random number, so that the words of dpari_world_word differ between
                           worlds */
    int64_t part_bytes; /* size of the file's range for the heap of one rank */
    int64_t taking;     /* bytes that ranks are about to allocate from the system */
    char padding_0[DPARI_LINE - 80];
    uint32_t sleepers; /* ranks that are asleep or about to be */
    uint32_t said;     /* the highest `turn` of dpari_world_speaks */
    char padding_1[DPARI_LINE - 8];
    uint32_t clock; /* ms. Waiting ranks advance it by the time that has passed on their own clocks,
                       which may differ (time namespaces) */
    char padding_2[DPARI_LINE - 4];
} dpari_world_head;

/* The shared memory of a world, which is made before its ranks start. */
typedef struct dpari_segment {
    char *base;    /* address of the mapping of everything that precedes the heaps */
    int64_t bytes; /* bytes mapped there */
    int fd;        /* -1 if the memory is private to this process (threads, one rank) */
} dpari_segment;

/* An allocation, or a piece of memory that was released and is kept for the next allocation. */
typedef struct dpari_used {
    int64_t begin, bytes; /* offset in the file, or in the file that there would be, and size */
    int64_t users;        /* bytes that count against heap_bytes; 0 if kept */
    int32_t kept;         /* 1 if it is kept */
    int16_t dumped;       /* 1 if it is in core files */
    int16_t large;        /* 1 if the system was asked for large pages in all of it */
} dpari_used;

/* An extent of this rank's own heap. */
typedef struct dpari_own {
    int64_t begin, bytes; /* as in dpari_used */
    int64_t fresh;        /* from this offset on, nothing was ever allocated, so it is all zero */
} dpari_own;

/* Why the last allocation failed. */
enum {
    DPARI_LACKS_NOTHING,
    DPARI_LACKS_HEAP,      /* heap_bytes are in use */
    DPARI_LACKS_PLACE,     /* no gap in the heap is large enough, and it can have no more extents */
    DPARI_LACKS_PIECES,    /* there are DPARI_MAX_USED allocations already */
    DPARI_LACKS_MEMORY,    /* memory of the machine or of a control group */
    DPARI_LACKS_ADDRESSES, /* addresses of this process */
    DPARI_LACKS_FILE       /* the file cannot grow; dpari_world.number has the reason */
};
enum {
    DPARI_MAX_USED = 1 << 16, /* the most allocations that one rank may have at a time */
    /* The most of them that are in core files, because each may split a mapping and the system
     * limits the number of mappings. */
    DPARI_DUMPED = 1024
};
/* The most bytes of released memory that a rank keeps. It is the largest threshold from which
 * malloc of glibc gives memory back to the system. All ranks of a node together keep at most 1 /
 * DPARI_KEPT_SHARE of the memory that was available when they started. */
enum { DPARI_KEPT_MOST = 1 << 26, DPARI_KEPT_SHARE = 32 };

/* What dpari_world_close does with the segment: leaves it, closes it, or only closes the file, so
 * that the memory stays mapped. */
enum { DPARI_OWNS_NOTHING, DPARI_OWNS_SEGMENT, DPARI_OWNS_FILE };

/* A world as one rank sees it, in private memory of the rank. */
typedef struct dpari_world {
    dpari_segment segment;
    dpari_world_head *head;
    dpari_rank *rank;  /* [size] the shared records */
    uint64_t *channel; /* [to * size + from]: a ref that rank `from` publishes for rank `to`; 0 if
                          none yet */
    int32_t me, size;
    int32_t threads;    /* 1 if the ranks are threads of this process, or there is only one */
    int32_t owns;       /* DPARI_OWNS_x */
    int32_t crowded;    /* 1 if there are more ranks than cores */
    int32_t wide;       /* 1 + dpari_cpu_wide, kept by plans of halos; 0 if it is not known yet */
    int32_t thrifty;    /* 1 if spinning uses up the processor quota that other ranks need */
    int32_t slow_yield; /* number of waits for which slow yields are remembered, reduced by fast
                           yields */
    int32_t sleepy;     /* number of coming waits that sleep early, because other programs use the
                           cores */
    int32_t worked;     /* number of consecutive waits for which spinning would have been long
                           enough */
    int32_t cpu;        /* what this rank has published in rank[me].cpu */
    double moved;       /* when it last moved to another CPU because it shared one */
    int32_t vain;       /* number of consecutive waits that spun without success */
    double timeout_s;   /* 0 if there is no deadline */
    char **view; /* [rank * DPARI_EXTENTS + number]: where this rank has mapped that extent, NULL if
                    it has not. Any thread may map one (compare and swap) */
    dpari_own own[DPARI_EXTENTS]; /* this rank's extents, from index 1 on, ascending */
    int32_t owns_extents;
    dpari_used *used; /* [DPARI_MAX_USED + 2] allocations in this rank's heap and the pieces that
                         are kept, ascending. An allocation within a piece adds two elements */
    int32_t used_count;
    int64_t users;     /* bytes that count against heap_bytes */
    int64_t kept;      /* bytes of the pieces that are kept; together with `users` never more than
                          heap_bytes */
    int64_t kept_most; /* the most bytes that may be kept */
    int32_t lacks;     /* DPARI_LACKS_x of the last allocation that failed */
    int number;        /* errno of that failure */
    int64_t fresh;     /* from this offset on, nothing in the heap was ever allocated */
    int64_t floor;    /* nothing before this offset is allocated again, because a rank that was left
                        behind may still write there */
    uint64_t *probe;  /* a page with the word of this rank; fork does not copy it */
    uint32_t clock;   /* the head's clock when this rank last looked at it */
    double clock_at;  /* dpari_os_now at that look */
    uint32_t waiting; /* 1 while the user's thread waits and thus notices changes at once */
} dpari_world;

/* Appends how a rank ended: " was killed by signal 9". Waits up to 20 ms until that is known. */
DPARI_API void dpari_put_ending(dpar_text *text, const dpari_world *world, int32_t rank);
/* Decides which rank prints a report. Returns 1 to the first rank of this world that calls it with
 * this turn (1, 2, ...), unless a rank has called it with a later turn. Returns 0 to all others. */
DPARI_API int dpari_world_speaks(dpari_world *world, uint32_t turn);
/* Returns the state of a rank in the job, and notices its death (DPARI_RANK_DEAD). */
DPARI_API uint32_t dpari_rank_state(dpari_world *world, int32_t rank);

/* ---- of this header's own modules ---- */

DPARI_FN int64_t dpari_in_units(int64_t bytes, int64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Return the head of a segment and its ranks. */
DPARI_FN dpari_world_head *dpari_segment_head(const dpari_segment *segment)
{
    return (dpari_world_head *)(void *)segment->base;
}

DPARI_FN dpari_rank *dpari_segment_ranks(const dpari_segment *segment)
{
    return (dpari_rank *)(void *)(segment->base + sizeof(dpari_world_head));
}

/* Makes the memory for `ranks` ranks (1 .. DPARI_MAX_RANKS) and maps it. NULL options select the
 * defaults. Fails with DPAR_E_ARG or DPAR_E_SYSTEM and a message. */
DPARI_INTERNAL dpar_status dpari_segment_make(dpari_segment *segment, int32_t ranks,
                                              const dpar_world_desc *options, dpar_why *why);
/* Maps a segment that another process made and passed on as `fd`, which the segment then owns.
 * Checks size, magic and version before it uses any other field. */
DPARI_INTERNAL dpar_status dpari_segment_open(dpari_segment *segment, int fd, dpar_why *why);
DPARI_INTERNAL void dpari_segment_close(dpari_segment *segment);

/* Returns the deadline of an operation that the options select, in seconds; 0 if there is none. */
DPARI_INTERNAL double dpari_world_timeout(const dpar_world_desc *options);
/* Makes this rank's view of the world in a segment, without announcing the rank to the others. own:
 * DPARI_OWNS_x. Returns NULL if there is no memory. */
DPARI_INTERNAL dpari_world *dpari_world_make(const dpari_segment *segment, int32_t me, int32_t own,
                                             const dpar_world_desc *options);
/* Announces this rank to the others and publishes `member`, the ref of its first shared structure
 * (not 0). Returns when all ranks have arrived, so that their `member` can be read. Fails with
 * DPAR_E_TIMEOUT (the message names the missing ranks), DPAR_E_PEER (a rank died) or
 * DPAR_E_SYSTEM. COLLECTIVE. */
DPARI_INTERNAL dpar_status dpari_world_enter(dpari_world *world, uint64_t member, dpar_why *why);
/* Records that a rank has ended, with an exit status or by -signal, and wakes all others, so that
 * all waits for it end at once. ending: 0 if unknown. A rank that left in order stays
 * DPARI_RANK_LEFT. */
DPARI_INTERNAL void dpari_segment_ended(const dpari_segment *segment, int32_t rank, int32_t ending);
/* True if any rank has printed an error. */
DPARI_INTERNAL int dpari_segment_said(const dpari_segment *segment);
/* True if the rank has left in order, by closing the world's communicator. */
DPARI_INTERNAL int dpari_segment_has_left(const dpari_segment *segment, int32_t rank);
/* True if others continue without the rank (dpar_comm_shrink). */
DPARI_INTERNAL int dpari_segment_is_behind(const dpari_segment *segment, int32_t rank);
/* Returns a number that changes with each operation that the rank begins, and while it waits. */
DPARI_INTERNAL uint64_t dpari_segment_pulse(const dpari_segment *segment, int32_t rank);
/* Announces that this rank leaves, and frees its view of the world. */
DPARI_INTERNAL void dpari_world_close(dpari_world *world);

/* Copies the bytes at a ref, without a dpari_world. Returns 0 if they cannot be read. */
DPARI_INTERNAL int dpari_segment_copy(const dpari_segment *segment, uint64_t ref, void *to,
                                      int64_t bytes);

/* Appends which ranks cannot be read, if any: "; 2 of 3 other ranks cannot be read: rank 2 (another
 * PID namespace), ...". */
DPARI_INTERNAL void dpari_put_unread(dpar_text *text, dpari_world *world);

/* True if `reader` may read the memory of `rank` (process_vm_readv). Each rank tries all others
 * when it enters. */
DPARI_INTERNAL int dpari_world_reads(const dpari_world *world, int32_t reader, int32_t rank);
/* Copies from a rank's private memory. Returns 0, or -1 and errno. After a failure
 * dpari_world_reads is false for the two ranks, so that reading is not tried again. */
DPARI_INTERNAL int dpari_world_read(dpari_world *world, int32_t rank, void *to, uint64_t from,
                                    int64_t bytes);
/* Does what dpari_put_ending does, but does not wait. */
DPARI_INTERNAL void dpari_put_end(dpar_text *text, const dpari_rank *record);

#endif
