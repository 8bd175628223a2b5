/* SPDX-License-Identifier: MIT-0 */
/* state - private: the data of the engine: worlds, communicators, operations, the side channel. */
#ifndef DPARI_NCCL_STATE_H
#define DPARI_NCCL_STATE_H

#include "../base/arith.h"
#include "../base/type.h"
#include "../comm/comm.h"
#include "../comm/engine.h"
#include "../comm/os.h"
#include "../comm/record.h"
#include "library.h"
#include "nccl_make.h"
#include "system.h"

enum {
    DPARI_NCCL_ADDRESSES = 6, /* the most addresses of rank 0 that other ranks try */
    DPARI_NCCL_PENDING = 1,   /* work->phase: the message is not enqueued yet, */
    DPARI_NCCL_ENQUEUED = 2,  /* is in progress, */
    DPARI_NCCL_FINISHED = 3   /* or has ended */
};

typedef struct dpari_nccl_ctx dpari_nccl_ctx;
typedef struct dpari_nccl_world dpari_nccl_world;

/* The same as CUstreamBatchMemOpParams of cuda.h, which is not required. tests/gpu/link.c compares
 * the two. */
typedef struct dpari_nccl_stream_op {
    int32_t operation, room_0;
    uint64_t address, value;
    uint32_t flags, room_1;
    uint64_t alias, room_2;
} dpari_nccl_stream_op;

enum { DPARI_NCCL_WAIT_32 = 1, DPARI_NCCL_WRITE_32 = 2, DPARI_NCCL_WAIT_EQ = 1 };
typedef int dpari_nccl_stream_ops(cudaStream_t stream, unsigned count, dpari_nccl_stream_op *ops,
                                  unsigned flags);

/* An enqueued operation: a collective, or a group of messages that begin together. */
typedef struct dpari_nccl_slot {
    cudaEvent_t ready, done; /* `ready` is recorded on the compute stream before the operation, and
                                `done` on the world's stream after it */
    struct dpari_nccl_slot *next;
    dpari_nccl_ctx *ctx;
    dpar_call call;           /* the call; of a group of messages, the first one's */
    int64_t sequence, number; /* numbers of the collective and of the record */
    int32_t works;            /* works that still refer to this slot */
    int32_t flying;           /* 1 until `done` was seen to be reached */
    int32_t capture;          /* 1: captured in a graph, so that its events cannot be queried */
    int32_t told;     /* 1 + seconds of waiting after which this was last reported to rank 0; 0 if
                         it was not */
    int32_t messages; /* 1: a group of messages */
    int32_t meets;    /* number of ranks whose devices synchronise in it; 0 for other operations */
    double since;     /* time from which it is at the head of the stream and only other ranks can
                         delay it; negative before that */
} dpari_nccl_slot;

/* The position of a rank in a communicator, as that rank reports it. */
typedef struct dpari_nccl_note {
    uint64_t comm;     /* name of the communicator */
    dpari_record last; /* in state DPAR_MORE if the rank waits in it */
    int32_t varies;    /* 1: it has counts for each rank, so that `count` is not compared */
    int32_t room;
} dpari_nccl_note;

/* ---- the side channel ---- */

#define DPARI_NCCL_MAGIC UINT64_C(0x647061726e63636c)

/* Messages of the side channel. A connection begins with the first three of them; see
 * dpari_nccl_prove. */
enum {
    DPARI_NCCL_HELLO = 1, /* from a rank: a random number */
    DPARI_NCCL_CHALLENGE, /* from rank 0: its random number, and its proof */
    DPARI_NCCL_PROOF,     /* from the rank: its proof */
    DPARI_NCCL_NOTE,      /* the position of a rank: dpari_nccl_note */
    DPARI_NCCL_ASK,       /* asks a rank for its note */
    DPARI_NCCL_WANT,      /* asks rank 0 for the notes of all ranks: NOTEs, then END */
    DPARI_NCCL_END,
    DPARI_NCCL_BROKEN, /* a communicator is broken; the reason is in `text` */
    DPARI_NCCL_DEAD,   /* the rank in `status` is gone */
    DPARI_NCCL_BYE     /* the sender leaves in order */
};

enum { DPARI_NCCL_TEXT = 256 };
/* 128 bits: a random number, a key or a proof. */
typedef struct dpari_nccl_bits {
    uint64_t word[2];
} dpari_nccl_bits;

/* A message of the side channel: the same bytes in each direction. */
typedef struct dpari_nccl_message {
    uint64_t magic, job;
    int32_t kind, rank, size, status;
    dpari_nccl_note note;
    char text[DPARI_NCCL_TEXT];
} dpari_nccl_message;

typedef struct dpari_nccl_address {
    int32_t family; /* AF_INET, AF_INET6 */
    unsigned char at[16];
} dpari_nccl_address;

/* What rank 0 sends to all ranks: before they make NCCL's communicator, or over it if NCCL makes
 * the id from NCCL_COMM_ID. */
typedef struct dpari_nccl_card {
    uint64_t magic, job;   /* job: a number that no other run of the job has */
    int32_t size, version; /* number of ranks; version of NCCL */
    int32_t options; /* the fields of dpar_nccl_desc that must be equal on all ranks, as bits */
    int32_t port, addresses; /* where rank 0 listens; 0 addresses if there is no side channel */
    int32_t ending;          /* 1: rank 0 could not begin */
    ncclUniqueId id;
    dpari_nccl_address address[DPARI_NCCL_ADDRESSES];
    dpari_nccl_bits key; /* of the proofs (proof.h) */
} dpari_nccl_card;

/* States of a connection. */
enum {
    DPARI_NCCL_AWAY,  /* not connected yet */
    DPARI_NCCL_HERE,  /* connected and proved */
    DPARI_NCCL_LOST,  /* lost a moment ago; may connect again */
    DPARI_NCCL_GONE,  /* lost for longer: the rank counts as dead */
    DPARI_NCCL_LEFT,  /* the rank left in order */
    DPARI_NCCL_KNOCKS /* on ranks other than 0: connected, but rank 0 has not answered yet */
};
/* A connection of the side channel: rank 0 has one to each rank, and each other rank has one to
 * rank 0. */
typedef struct dpari_nccl_link {
    int fd;
    int32_t state;
    int32_t before; /* while `state` is KNOCKS: the state to return to if nobody answers */
    int32_t got;    /* bytes of `in` that have arrived */
    double lost;    /* time at which it was lost, or, if it was never connected, last tried */
    dpari_nccl_bits drawn; /* on ranks other than 0: the random number in the last HELLO */
    dpari_nccl_message in;
} dpari_nccl_link;

/* A connection to rank 0 that has not yet proved that it belongs to the job. */
typedef struct dpari_nccl_knock {
    int fd;
    int32_t rank;                 /* the rank that it claims to be; 0 before its HELLO */
    int32_t got;                  /* bytes of `in` that have arrived */
    double since;                 /* time at which it was accepted */
    dpari_nccl_bits theirs, ours; /* the random numbers of both sides */
    dpari_nccl_message in;
} dpari_nccl_knock;

/* The side channel of a rank. */
typedef struct dpari_nccl_side {
    int listener;            /* on rank 0: the socket that listens, or -1 */
    int32_t local;           /* 1: all ranks are on this node, and rank 0 listens only there */
    dpari_nccl_knock *knock; /* [knocks_room] on rank 0, the oldest first; `knocks` are in use */
    int32_t knocks, knocks_room;
    int32_t links; /* number of links; 0 if there is no side channel */
    dpari_nccl_link *link;
    dpari_nccl_note *note; /* [size] the last note of each rank, */
    int32_t *known;        /* [size] and 1 if it has sent one */
    struct pollfd *polls;  /* for dpari_nccl_side_wait */
    double asked;          /* time at which all ranks were last asked for notes */
    int32_t wanting;       /* 1: WANT was sent, */
    int32_t answered;      /* and 1 if its answer is complete */
    dpari_nccl_card card;
} dpari_nccl_side;

/* Seconds within which a lost connection of the side channel may be restored. */
enum { DPARI_NCCL_GRACE = 1 };

/* ---- memory, worlds, communicators ---- */

/* Device memory that is allocated, registered or lent. */
typedef struct dpari_nccl_memory {
    struct dpari_nccl_memory *next;
    dpari_nccl_ctx *ctx; /* the communicator with which it is registered, or NULL */
    void *memory, *base, *handle;
    size_t bytes; /* size, if it is from dpar_comm_alloc */
    dpari_nccl_window window;
    int32_t owned;     /* 1: from dpar_comm_alloc */
    int32_t mem_alloc; /* 1: from ncclMemAlloc, otherwise from cudaMalloc */
    char **near;       /* lent memory: [size] addresses at which this device reaches each rank's
                          memory, NULL if it does not. NULL for other memory */
    int64_t flags;     /* offset of the flags in it, in bytes */
    int32_t turns;     /* exchanges so far, outside of graphs */
    int32_t part;      /* the part that the last exchange used */
} dpari_nccl_memory;

/* A part of the page-locked memory for messages that is in use. */
typedef struct dpari_nccl_used {
    int64_t begin, bytes;
} dpari_nccl_used;

/* What all communicators share that were split from one. */
struct dpari_nccl_world {
    dpari_nccl_api api;
    dpar_engine engine; /* of all its communicators */
    dpar_nccl_desc options;
    char *log; /* a copy of desc.log_file, because the caller may free its own */
    int32_t device, rank, size;
    int32_t own_stream;
    cudaStream_t stream;        /* stream on which all operations run */
    cudaStream_t freeing;       /* stream on which the flags of ranks that will not come are set;
                                   NULL if nothing is lent */
    dpari_nccl_stream_ops *ops; /* the driver's cuStreamBatchMemOp, or NULL if it has none */
    dpari_nccl_slot *slots, *spare;
    dpari_nccl_slot *flying, *last; /* operations in progress, in the order of the stream */
    dpari_nccl_slot *entering;      /* the operation that is being enqueued */
    dpari_nccl_ctx *comms;          /* in the order in which they were made */
    dpari_nccl_ctx *closed;         /* closed communicators that a thread may still abort */
    dpari_ended kept;               /* other closed communicators, to which plans may still refer */
    dpari_nccl_memory *memory;
    char *scratch;           /* device memory */
    char *staging, *letters; /* page-locked memory for collectives, and for messages */
    dpari_nccl_used *used;   /* the parts of `letters` in use, in ascending order */
    int32_t used_count;
    dpari_nccl_side side;
    uint64_t *node; /* [size] a number for the machine of each rank; NULL if not known */
    pthread_mutex_t lock;
    dpari_thread thread;
    int32_t watched; /* 1: there is a watchdog */
    uint32_t frees;  /* 1: operations wait for flags of ranks that will not come */
    uint32_t ending; /* 1: the watchdog has to end */
    double period;   /* seconds between two turns of the watchdog */
    double looked;   /* when the deadline of an operation was last checked */
    int wake[2];     /* a pipe that wakes the watchdog */
};

/* The part of an operation on host memory that is exchanged with one rank. */
typedef struct dpari_nccl_piece {
    const char *from;
    char *to;
    int64_t give, take; /* bytes */
} dpari_nccl_piece;

/* A communicator. */
struct dpari_nccl_ctx {
    dpar_comm comm;
    dpari_nccl_world *world;
    dpari_nccl_ctx *next;
    ncclComm_t nccl;  /* NULL once it was aborted */
    ncclComm_t made;  /* where a split stores the new communicator, which NCCL may do later */
    uint64_t name;    /* its name in the side channel; 0 for the world's first communicator */
    int64_t sequence; /* collectives so far */
    int64_t splits;   /* splits so far */
    int64_t records;
    double remote;               /* time since which NCCL reports a lost rank; 0 if it does not */
    dpar_work *pending, *newest; /* messages that were posted and are not enqueued yet */
    int32_t *member;             /* [size] the rank in the world of each rank */
    dpari_nccl_piece *piece;     /* [size] */
    const void **parts;          /* [size] */
    int32_t told;                /* 1: the other ranks know that it is broken */
    int32_t lends;               /* 1: some of its memory was lent */
    int32_t ends;                /* 1: the thread `ending` aborts `ended`; 2: that thread has been
                                    joined */
    ncclComm_t ended;
    dpari_thread ending;
    dpari_record ring[DPARI_RECORDS];
};

/* Returns the state of a communicator. */
DPARI_FN dpari_nccl_ctx *dpari_nccl_ctx_of(const dpar_comm *comm)
{
    return (dpari_nccl_ctx *)comm->context;
}

DPARI_FN int64_t dpari_nccl_bytes(int32_t type, int64_t n)
{
    return n * dpar_type_bytes(type);
}

/* Stores the slot in the work: work->state[0] holds it, and work->state[2] the page-locked memory
 * of a message. */
DPARI_FN void dpari_nccl_keep(dpar_work *work, dpari_nccl_slot *slot)
{
    memcpy(&work->state[0], &slot, sizeof slot);
}

DPARI_FN dpari_nccl_slot *dpari_nccl_slot_of(const dpar_work *work)
{
    dpari_nccl_slot *slot;
    memcpy(&slot, &work->state[0], sizeof slot);
    return slot;
}

DPARI_FN void dpari_nccl_set_letter(dpar_work *work, char *letter)
{
    memcpy(&work->state[2], &letter, sizeof letter);
}

DPARI_FN char *dpari_nccl_letter_of(const dpar_work *work)
{
    char *letter;
    memcpy(&letter, &work->state[2], sizeof letter);
    return letter;
}

/* The lock protects everything that both the watchdog and the callers' threads use. */
DPARI_FN void dpari_nccl_lock(dpari_nccl_world *world)
{
    (void)pthread_mutex_lock(&world->lock);
}

DPARI_FN void dpari_nccl_unlock(dpari_nccl_world *world)
{
    (void)pthread_mutex_unlock(&world->lock);
}

#endif
