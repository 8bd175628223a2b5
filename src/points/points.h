/* SPDX-License-Identifier: MIT-0 */
/* points - values that ranks own and values that they read of others, by lists of ids or indices:
 * finite elements, finite volumes on polyhedra, sparse matrices, graphs. What goes where is planned
 * once. Then any vectors are exchanged, as often as you like, in one message a peer.
 *
 * A rank has `own` values and behind them `ghosts`, copies of others' values. Local index i is own
 * value i below own, ghost i - own from there on. Points may be named in two ways.
 *
 * By ids, numbers of yours for all points of the job. A rank says which it owns and which it reads.
 * Whom it reads them from is found out:
 *
 *     d.own = n;                              own_id NULL: ids go on from rank to rank, 0, 1, ...
 *     d.ghosts = m, d.ghost_id = needed;      in any order, repeats allowed
 *
 * By lists for both sides, as HPCG, PETSc and hypre have them: which own values go to whom, and how
 * many come from whom (dpar_points_lists).
 *
 *     bad = dpar_points_bytes(c, &d, &bytes, &why);
 *     bad = bad || dpar_comm_alloc(c, bytes, &memory);
 *     bad = bad || dpar_points_init(memory, bytes, c, &d, &p, &why);
 *     v[0].type = v[1].type = DPAR_F64;
 *     v[0].data = x;                          x[n + m]
 *     v[1].data = u, v[1].components = 3;     u[3 * (n + m)], three together at each point
 *     bad = bad || dpar_points_begin(p, v, 2);
 *     ... rows that read no ghost: dpar_points_interior_rows ...
 *     bad = bad || dpar_points_end(p);
 *     ... the other rows ...
 *     bad = bad || dpar_points_close(p);
 *
 * Vectors are named in each call: nothing is bound, and they may differ from call to call. Vectors
 * of dpar_comm_alloc are the fastest: peers in a node read long runs where they lie. Others are
 * packed into memory that peers read. Between nodes messages go.
 *
 * Between begin and end own values may be read and must not be written, ghosts must be neither read
 * nor written. Several plans may be under way at a time, if what one writes no other reads.
 *
 * Memory. Of the caller: 1 KiB, and with ids 24 to 48 bytes for each ghost and for each own id that
 * own_id names (lists: a bit a ghost). The rest is of dpar_comm_alloc. It is 1.2 KiB a peer, and 4
 * bytes a value sent and a ghost (8 a run where runs are long, 0 where there is one). The packed
 * values take their bytes three times, four times with messages. init takes up to 64 bytes an id
 * for a while, and 48 bytes a rank of the communicator.
 *
 * Plans share none of this. Four levels of a multigrid, each half as fine, take 1.4 times what the
 * finest takes alone. If they shared it each exchange would wait until all have read the one
 * before, which costs small ones a fifth of their time. */
#ifndef DPARI_POINTS_POINTS_H
#define DPARI_POINTS_POINTS_H

#include "../base/text.h"
#include "../comm/comm.h"
#include "../index/layout.h"

/* Where ghosts lie behind the own values. */
enum {
    DPAR_POINTS_ORDER_GIVEN,   /* in the order of ghost_id */
    DPAR_POINTS_ORDER_BY_OWNER /* by the owner's rank, then by id: what comes from a peer is one run
                            that needs no unpacking. dpar_points_to_local says where each is */
};

/* How values travel. */
enum {
    DPAR_POINTS_AUTO,     /* DIRECT where peers' memory can be reached, else messages */
    DPAR_POINTS_MESSAGES, /* one message a peer */
    DPAR_POINTS_PACKED,   /* packed by their owner into memory that the peer reads */
    DPAR_POINTS_DIRECT    /* long runs are read where they lie, the others packed */
};

/* Both sides of an exchange, as many codes have them already. Peer k gets `sends[k]` own values,
 * those at the next so many of send_at. The next `receives[k]` places of receive_at get its values,
 * in the order of its list. All arrays are copied. */
typedef struct dpar_points_lists {
    int32_t peers;
    const int32_t *peer;       /* [peers] ranks, each once, in any order; oneself, too */
    const int64_t *sends;      /* [peers] */
    const int64_t *receives;   /* [peers]; what two ranks say of each other fits, else E_MISMATCH */
    const int32_t *send_at;    /* local indices of own values; a value may go to several */
    const int32_t *receive_at; /* local indices of ghosts, each once. NULL: own, own + 1, ... */
} dpar_points_lists;

/* Points of this rank. Zero it and fill in own and either ids or lists. Ranks give the same kind,
 * order, way, run_bytes and tag; E_MISMATCH on all ranks where they do not. */
typedef struct dpar_points_desc {
    int64_t own;             /* values that this rank owns: 0 .. 2^31 - 1, with the ghosts */
    const int64_t *own_id;   /* [own] any numbers, each once in the job, in any order. NULL on all
                                ranks: consecutive, rank after rank, from 0; or with a rule, what
                                it gives this rank */
    int64_t ghosts;          /* values of others that it reads; its own ids are allowed, too */
    const int64_t *ghost_id; /* [ghosts] */
    const int32_t *owner;    /* [ghosts] who has each, where you know. NULL on all ranks otherwise:
                                it is looked up */
    const dpar_layout *rule; /* NULL; or who has what: ids are the elements of this array in C
                                order, of its whole shape. Its primary copies own them */
    int32_t order;           /* DPAR_POINTS_x */
    int32_t way;             /* DPAR_POINTS_x */
    const dpar_points_lists *lists; /* in place of ids; ghosts and own count */
    int64_t run_bytes; /* DIRECT: lists whose runs have so many bytes on average are read where they
                          lie; 0: 64 */
    int32_t tag;       /* of the messages; your own between begin and end have another */
    int32_t timers;    /* 1: keep times for dpar_points_report */
} dpar_points_desc;

/* A vector over own values and ghosts: element `component` of local index i is at
 * data[i * stride + component * component_stride]. Zero it, say type and data, and what differs. */
typedef struct dpar_points_field {
    int32_t type;             /* DPAR_F64, ...: any that has bytes; must be said */
    int32_t components;       /* elements at each point; 0: 1 */
    int64_t stride;           /* elements between points; 0: components (1 with component_stride) */
    int64_t component_stride; /* elements between components; 0: 1. Planes: how long one is */
    void *data;
    void *ghosts; /* NULL: behind the own values. Else ghost g is ghosts[g * stride + ...] */
} dpar_points_field;

/* A plan: a handle. Read these, leave the rest. */
typedef struct dpar_points {
    dpar_comm *comm;
    int64_t own, ghosts; /* values of this rank */
    int64_t first;       /* consecutive ids: that of own value 0; else 0 */
    int64_t whole;       /* own values of all ranks */
    int32_t peers;       /* that it sends to or receives from, itself too */
} dpar_points;

/* Bytes that init needs on this rank of your memory, aligned to 64; give it back after close.
 * E_ARG, E_RANGE: the description itself is wrong. Local. O(1). */
DPAR_API dpar_status dpar_points_bytes(const dpar_comm *c, const dpar_points_desc *d,
                                       int64_t *bytes, dpar_why *why);
/* Plans exchanges. COLLECTIVE over c. The arrays of d are read here alone.
 *
 * What any rank gives wrongly all ranks hear, with a sentence. E_ARG: an index out of its range, an
 * id that no rank owns, or two ("id 17, which rank 2 reads, is owned by nobody"); or a
 * communicator whose memory is a device's. Where `owner` or `rule` says who has an id, nobody looks
 * for a second owner. E_MISMATCH: ranks describe different kinds of plans, or what one sends is not
 * what the other receives. E_RANGE: more than 2^31 - 1 values on a rank. E_ROOM, E_MEMORY, and
 * errors of the communicator.
 *
 * Without `owner` and `rule` an id that own_id names is looked up in a directory: rank hash(id) mod
 * size knows who owns it. No rank knows all ids. Consecutive ids need an all-gather of 8 bytes a
 * rank instead. Costs three all-to-alls, O(own_id + ghosts + size) a rank: once, not each step. */
DPAR_API dpar_status dpar_points_init(void *memory, int64_t bytes, dpar_comm *c,
                                      const dpar_points_desc *d, dpar_points **plan, dpar_why *why);
/* Closes a plan: gives what it has of dpar_comm_alloc back, a barrier over its communicator.
 * COLLECTIVE. NULL is fine. E_ARG while an exchange is under way; after one that failed: its
 * status. */
DPAR_API dpar_status dpar_points_close(dpar_points *p);

/* ---- exchanges ---- */

/* Starts an exchange: ghosts of n vectors get what their owners have now. v is read before begin
 * returns. COLLECTIVE, in the same order on all ranks of the plan's communicator, with the same n,
 * types and components. (Strides and addresses may differ.) Ranks wait for their peers alone.
 *
 * The first exchange of vectors that have more bytes a point than any before takes memory for them
 * from dpar_comm_alloc. O(values sent and received).
 *
 * E_ARG, its sentence in c->why: no plan, no vectors, a type without bytes, an exchange that has
 * not ended. Then this rank has begun nothing, and the others wait. E_MISMATCH: ranks name
 * different vectors or operations; where messages go between them, only if these have other sizes.
 * E_PEER, E_TIMEOUT as comm.h: they break the communicator. */
DPAR_API dpar_status dpar_points_begin(dpar_points *p, const dpar_points_field *v, int32_t n);
/* Starts the transpose: each owner's value becomes itself op what ranks have for it in their
 * ghosts, and all ghosts become 0. op: DPAR_SUM, DPAR_MAX, DPAR_MIN. Until end neither own values
 * nor ghosts may be read or written. COLLECTIVE.
 *
 * The order is that of the ranks, ascending, and of one rank's ghosts in their order: (((own op
 * rank 0's first) op its second) op rank 3's) ... It never depends on arrival or engine. F16 and
 * BF16 are rounded after each. Errors as begin; E_ARG: such a type does not combine. */
DPAR_API dpar_status dpar_points_reduce_begin(dpar_points *p, const dpar_points_field *v, int32_t n,
                                              int32_t op);
/* Goes on as far as it can without waiting. OK: all has come (call end all the same). MORE: not
 * yet. Local; errors as begin, but never E_TIMEOUT. */
DPAR_API dpar_status dpar_points_test(dpar_points *p);
/* Returns when ghosts (of an adjoint: own values) are whole and own values may be written again. OK
 * when nothing is under way. Errors as begin. */
DPAR_API dpar_status dpar_points_end(dpar_points *p);
/* begin and end in one. */
DPAR_API dpar_status dpar_points_exchange_many(dpar_points *p, const dpar_points_field *v,
                                               int32_t n);
/* Combines what all who hold a point have for it, and gives the result to all of them: an adjoint,
 * then an exchange. This is the assembly of finite elements. COLLECTIVE. */
DPAR_API dpar_status dpar_points_assemble(dpar_points *p, const dpar_points_field *v, int32_t n,
                                          int32_t op);

/* ---- numbering ---- */

/* Local indices of n ids that this rank owns or reads: at[i] is where ids[i] lies in a vector; of
 * an id that ghost_id repeats the first place. It renumbers columns of matrices and corners of
 * elements. ids and `at` do not overlap. Plans of ids alone. Local. O(n).
 *
 * E_ARG, its sentence in c->why, at[] is then -1 there: an id that this rank neither owns nor
 * reads, a plan of lists, NULL. */
DPAR_API dpar_status dpar_points_to_local(const dpar_points *p, const int64_t *ids, int64_t n,
                                          int32_t *at);
/* Which rows of a sparse matrix read no ghost? row[0 .. *core - 1], ascending, do not: they are
 * computed between begin and end. row[*core .. rows - 1], ascending, do. Row i has the columns
 * column[begin[i] .. begin[i + 1] - 1], local indices. Elements of a mesh are rows, too, their
 * corners columns. Local. O(columns).
 *
 * E_ARG, its sentence in c->why: a column that is no local index, begin that descends, NULL. */
DPAR_API dpar_status dpar_points_interior_rows(const dpar_points *p, int64_t rows,
                                               const int64_t *begin, const int32_t *column,
                                               int32_t *row, int64_t *core);

/* ---- what goes where ---- */

/* What goes between this rank and one peer at each exchange: values, each with all its components
 * of all vectors; in one message each way, or in shared memory. */
typedef struct dpar_points_traffic {
    int32_t rank;
    int32_t way;             /* DPAR_POINTS_MESSAGES; PACKED where memory is shared. Of a vector in
                                memory of dpar_comm_alloc whose runs are long: DIRECT */
    int64_t sends, receives; /* values */
    int64_t send_runs;       /* pieces of consecutive indices that the sent ones are in, */
    int64_t receive_runs;    /* and the received ones; 1: nothing is unpacked */
} dpar_points_traffic;
/* Peer k of p->peers, ascending by rank. 1; 0 past the last. Local. O(1). */
DPAR_API int dpar_points_peer(const dpar_points *p, int32_t k, dpar_points_traffic *t);
/* What this rank moves in an exchange, as a table: a line a peer. With d.timers the times of the
 * phases, us an exchange. Local. O(peers). */
DPAR_API void dpar_points_report(const dpar_points *p, dpar_text *out);
/* Who sends how many values to whom, as a matrix of all ranks: rows send, columns receive. On all
 * ranks; out NULL where it is not wanted. COLLECTIVE: an all-gather of 8 bytes for each pair of
 * ranks. E_RANGE: more than 64 ranks. */
DPAR_API dpar_status dpar_points_draw(const dpar_points *p, dpar_text *out);

#endif
