/* SPDX-License-Identifier: MIT-0 */
/* dpar_points.h - exchanges values of unstructured meshes, by global ids or by index lists.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 * It is for finite elements, polyhedral meshes, sparse matrices and graphs. A vector of a rank has the rank's own
 * values first. Behind them it has ghosts, which are copies of values that other ranks own, named by their ids. In
 * this program the points of a ring are distributed round-robin, and each rank reads the neighbours of its points:
 *
 *     #include "dpar_points.h"
 *     #include <stdio.h>
 *     static int ring(dpar_comm *world, void *unused)
 *     {
 *         const int64_t whole = 10 * (int64_t)world->size;
 *         int64_t own[10], ghost[20], i;
 *         dpar_points_desc desc = {0};
 *         dpar_points *points = NULL;
 *         dpar_why why;
 *         double *x;
 *         (void)unused;
 *         for (i = 0; i < 10; i++) {
 *             own[i] = world->rank + i * world->size;      rank r owns r, r + size, r + 2 size, ...
 *             ghost[2 * i] = (own[i] + 1) % whole;
 *             ghost[2 * i + 1] = (own[i] + whole - 1) % whole;
 *         }
 *         desc.own_count = 10;
 *         desc.own_id = own;
 *         desc.ghost_count = 20;
 *         desc.ghost_id = ghost;
 *         if (dpar_points_make(world, &desc, &points, &why) < 0) {
 *             return dpar_fail(world, &why);
 *         }
 *         x = (double *)dpar_points_array(points, DPAR_F64, 1);     x[10 + 20]; any array of yours works, too
 *         if (x == NULL) {
 *             return dpar_fail(world, NULL);
 *         }
 *         for (i = 0; i < 10; i++) {
 *             x[i] = (double)own[i];
 *         }
 *         if (dpar_points_exchange(points, x) < 0) {                sets x[10 .. 29]
 *             return dpar_fail(world, NULL);
 *         }
 *         printf("the neighbours of %g are %g and %g\n", x[1], x[12], x[13]);
 *         if (dpar_points_free(points) < 0) {
 *             return dpar_fail(world, NULL);
 *         }
 *         return 0;
 *     }
 *     int main(int argc, char **argv)
 *     {
 *         return dpar_launch_main(argc, argv, ring, NULL);          --ranks 4, or under mpiexec, srun, torchrun
 *     }
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. yours.c -o yours && ./yours --ranks 4
 *
 * Other functions that you may need:
 *
 *     dpar_points_reduce(points, b)                   adds the ghosts of b to their owners' values (assembly)
 *     dpar_points_to_local(points, ids, count, index)             converts ids to local indices, as for matrix columns
 *     dpar_points_interior_rows(points, rows, begin, column, row, &interior)     finds the rows that read no ghost
 *     dpar_points_begin(points, fields, count)        starts an exchange of several vectors; compute those rows, then
 *     dpar_points_end(points)                         finish it
 *
 * dpar_points_make also takes consecutive ids, known owners, or index lists: see dpar_points_desc.
 */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar_comm.h")
#error dpar_points.h needs dpar_comm.h beside it, of the same release
#endif
#endif
#include "dpar_comm.h"
#endif
#if DPAR_VERSION != 200
#error dpar_points.h and dpar.h are of different versions: take all headers from one release
#endif

#ifndef DPAR_POINTS_H
#define DPAR_POINTS_H

/* ==== points/points.h ==== */

/* points - exchanges values of unstructured meshes, by lists of ids or indices, for finite
 * elements, finite volumes on polyhedra, sparse matrices and graphs. An exchange is planned once.
 * Then any vectors can be exchanged, as often as you like, in one message per peer.
 *
 * A vector of a rank has `own_count` values, and behind them `ghost_count` ghosts, which are copies
 * of values that other ranks own. Local index i is an own value if i < own_count, and ghost
 * i - own_count otherwise. There are two ways to describe what is exchanged.
 *
 * By ids: numbers of your choice for all points of the job. Each rank lists the ids that it owns
 * and those that it reads. dpar finds the owners of the latter:
 *
 *     dpar_points_desc desc = {0};
 *     desc.own_count = n;                     own_id NULL: consecutive ids from rank to rank
 *     desc.ghost_count = m;
 *     desc.ghost_id = needed;                 in any order, repeats allowed
 *
 * By lists of both sides, as HPCG, PETSc and hypre have them: which own values are sent to which
 * rank, and how many are received from which rank (dpar_points_lists).
 *
 *     dpar_points_make(comm, &desc, &points, &why);           each call returns a dpar_status
 *     field[0].type = field[1].type = DPAR_F64;
 *     field[0].data = x;                      x[n + m]
 *     field[1].data = u;                      u[3 * (n + m)], three together at each point
 *     field[1].components = 3;
 *     dpar_points_begin(points, field, 2);
 *     ... rows that read no ghost: dpar_points_interior_rows ...
 *     dpar_points_end(points);
 *     ... the other rows ...
 *     dpar_points_free(points);
 *
 * Vectors are passed to each call and may differ from call to call. Vectors of dpar_comm_alloc are
 * exchanged fastest, because peers in a node read long runs in place. Others are packed into memory
 * that peers read. Between nodes values are sent in messages.
 *
 * Between begin and end own values may be read but not written, and ghosts must be neither read nor
 * written. Several plans may be in progress at a time, if none writes what another one reads.
 *
 * Memory. A plan takes 1 KiB, which you may provide (desc.memory). Plans by ids need another 24 to
 * 48 bytes there for each ghost and for each own id that own_id lists; plans by lists need a bit
 * for each ghost. The rest always comes from dpar_comm_alloc. It is 1.2 KiB per peer, and 4 bytes
 * for each value sent and each ghost. Instead of the latter it is 8 bytes for each run if runs are
 * long, and nothing if there is one run. Packed values take three times their bytes, four times
 * with messages. During make up to 64 bytes per id and 48 bytes per rank of the communicator are
 * needed.
 *
 * Plans share none of this memory. Four levels of a multigrid, each half as fine, take 1.4 times
 * the memory of the finest. If they shared it, each exchange would have to wait until all ranks had
 * read the one before, which costs small ones a fifth of their time. */

/* The order of ghosts behind the own values. */
enum {
    DPAR_POINTS_ORDER_GIVEN,   /* the order of ghost_id */
    DPAR_POINTS_ORDER_BY_OWNER /* by the owner's rank, then by id, so that what a peer sends is one
                            run that needs no unpacking. dpar_points_to_local finds the place of an
                            id */
};

/* How values are exchanged. */
enum {
    DPAR_POINTS_AUTO,     /* DIRECT if peers' memory can be reached, otherwise messages */
    DPAR_POINTS_MESSAGES, /* one message per peer */
    DPAR_POINTS_PACKED,   /* packed by their owner into memory that the peer reads */
    DPAR_POINTS_DIRECT    /* long runs are read in place, others are packed */
};

/* The lists of both sides of an exchange, as many codes have them already. The first
 * `send_count[0]` entries of send_index are the values for peer[0], the next `send_count[1]` those
 * for peer[1], and so on. Likewise the first `receive_count[0]` entries of receive_index receive
 * the values of peer[0], in the order of its list. All arrays are copied. */
typedef struct dpar_points_lists {
    int32_t peer_count;
    const int32_t *peer;          /* [peer_count] ranks, each once, in any order; may include this
                                     rank */
    const int64_t *send_count;    /* [peer_count] number of values sent to each peer */
    const int64_t *receive_count; /* [peer_count] number of values received from each peer; must
                                     equal what the peer sends (DPAR_E_MISMATCH) */
    const int32_t *send_index;    /* local indices of own values; a value may be sent to several
                                     peers */
    const int32_t *receive_index; /* local indices of ghosts, each once; NULL means own_count,
                                     own_count + 1, ... */
} dpar_points_lists;

/* The points of this rank. Zero it, then set own_count, and either ids or lists. All ranks pass ids
 * or all pass lists, with the same order, method, run_bytes and tag; otherwise all get
 * DPAR_E_MISMATCH. */
typedef struct dpar_points_desc {
    int64_t own_count;       /* number of values that this rank owns: 0 to 2^31 - 1, with ghosts */
    const int64_t *own_id;   /* [own_count] any numbers, each once in the job, in any order. NULL on
                                all ranks selects consecutive ids from 0, rank after rank, or the
                                elements that `layout` gives this rank */
    int64_t ghost_count;     /* number of values that this rank reads; may include its own ids */
    const int64_t *ghost_id; /* [ghost_count] */
    const int32_t *owner;    /* [ghost_count] the rank that owns each ghost, if you know it. NULL on
                                all ranks looks it up */
    const dpar_layout *layout;      /* defines the owners; may be NULL. Ids are then the elements of
                                       its whole array in C order, owned by its primary copies */
    int32_t order;                  /* DPAR_POINTS_ORDER_GIVEN or DPAR_POINTS_ORDER_BY_OWNER */
    int32_t method;                 /* DPAR_POINTS_AUTO, _MESSAGES, _PACKED or _DIRECT */
    const dpar_points_lists *lists; /* replaces the ids; own_count and ghost_count must be set */
    int64_t run_bytes; /* for DIRECT: the least average bytes of the runs of a list that is read in
                          place; 0 selects 64 */
    int32_t tag;       /* of the messages; your own between begin and end must have another one */
    int32_t timers;    /* 1 keeps times for dpar_points_report */
    void *memory;      /* for the plan, aligned to 64; NULL lets make allocate it */
    int64_t bytes;     /* size of memory. memory NULL and bytes 1 ask for the size that is needed */
} dpar_points_desc;

/* A vector over own values and ghosts. Zero it, then set type and data, and what else differs.
 * Component k of local index i is
 *
 *     data[i * stride + k * component_stride] */
typedef struct dpar_points_field {
    int32_t type;             /* DPAR_F64, ...; any type that has bytes; no default */
    int32_t components;       /* elements at each point; 0 selects 1 */
    int64_t stride;           /* elements between points; 0 selects components, or 1 if
                                 component_stride is set */
    int64_t component_stride; /* elements between components; 0 selects 1. For planes it is the
                                 length of a plane */
    void *data;
    void *ghosts; /* NULL if ghosts follow the own values; otherwise ghost g is
                     ghosts[g * stride + ...] */
} dpar_points_field;

/* A plan of exchanges of points. You may read these fields; the rest is private. */
typedef struct dpar_points {
    dpar_comm *comm;
    int64_t own_count, ghost_count; /* values of this rank */
    int64_t first_id;               /* the id of own value 0 if ids are consecutive; otherwise 0 */
    int64_t global_count;           /* own values of all ranks together */
    int32_t peer_count; /* ranks that this rank sends to or receives from, including itself */
} dpar_points;

/* Plans exchanges. The arrays of desc are not used after the call, except for desc.memory, which
 * belongs to the plan until dpar_points_free.
 *
 * Collective over comm. All errors are returned on all ranks. Fails with DPAR_E_ARG if an index is
 * out of range, comm has a device's memory, or an id has two owners or none ("id 17, ghost 3 of
 * rank 2, is owned by no rank"). If `owner` or `layout` defines the owner, a second one is not
 * looked for. Fails with DPAR_E_MISMATCH if ranks describe different kinds of plans, or a rank
 * sends other values than its peer receives. Fails with DPAR_E_RANGE above 2^31 - 1 values on a
 * rank, with DPAR_E_MEMORY, or as the communicator. Fails with DPAR_E_ROOM if desc.bytes is set and
 * too small on some rank; why->bytes is then the number that this rank needs.
 *
 * Ids in own_id are looked up in a distributed directory, unless `owner` or `layout` is given: rank
 * hash(id) mod size knows the owner. No rank knows all ids. Consecutive ids need an all-gather of 8
 * bytes per rank instead. Costs three all-to-alls and O(own ids + ghosts + size) per rank, once and
 * not in each step. */
DPAR_API dpar_status dpar_points_make(dpar_comm *comm, const dpar_points_desc *desc,
                                      dpar_points **points, dpar_why *why);
/* Destroys a plan. NULL does nothing. Collective: a barrier over its communicator. Fails with
 * DPAR_E_ARG if an exchange is in progress; the plan then stays. After an exchange that failed it
 * returns that exchange's status. */
DPAR_API dpar_status dpar_points_free(dpar_points *points);

/* ---- exchanges ---- */

/* Starts an exchange, which copies owners' values to the ghosts of several vectors.
 *
 * fields: [count] vectors, read before begin returns. All ranks pass the same count, types and
 *         components; strides and addresses may differ.
 *
 * Collective, in the same order on all ranks of the plan's communicator, but ranks wait only for
 * their peers. Fails with DPAR_E_ARG if there is no plan or no vector, if a type has no bytes, or
 * if an exchange has not ended. The message is in points->comm->why. This rank has then begun
 * nothing, and the others wait for it. Fails with DPAR_E_MISMATCH if ranks pass different vectors
 * or operations; between ranks that send messages this is noticed only if sizes differ. Fails with
 * DPAR_E_PEER or DPAR_E_TIMEOUT as comm.h describes, which breaks the communicator.
 *
 * Costs O(values sent and received). The first exchange with more bytes per point than any before
 * allocates memory for them (dpar_comm_alloc). */
DPAR_API dpar_status dpar_points_begin(dpar_points *points, const dpar_points_field *fields,
                                       int32_t count);
/* Starts the adjoint (transpose) of an exchange: owners' values are combined with those of all
 * their ghosts, and the ghosts become 0. Until dpar_points_end neither own values nor ghosts may be
 * read or written.
 *
 * op: DPAR_SUM, DPAR_MAX or DPAR_MIN.
 *
 * Ghosts are combined in ascending order of ranks, and those of one rank in their order, as in
 *
 *     ((own op rank 0's first) op rank 0's second) op rank 3's first
 *
 * The order does not depend on arrival or engine. F16 and BF16 are rounded after each step.
 * Collective. Fails as dpar_points_begin, and with DPAR_E_ARG if a type cannot be combined. */
DPAR_API dpar_status dpar_points_reduce_begin(dpar_points *points, const dpar_points_field *fields,
                                              int32_t count, int32_t op);
/* Advances an exchange as far as possible without waiting. Returns DPAR_OK if all has arrived (end
 * must still be called), or DPAR_MORE if not yet. Local. Fails as begin, but never with
 * DPAR_E_TIMEOUT. */
DPAR_API dpar_status dpar_points_test(dpar_points *points);
/* Waits until ghosts (of an adjoint: own values) are complete and own values may be written again.
 * Returns DPAR_OK if no exchange is in progress. Fails as begin. */
DPAR_API dpar_status dpar_points_end(dpar_points *points);
/* Runs an exchange: dpar_points_begin and dpar_points_end in one call. */
DPAR_API dpar_status dpar_points_exchange_many(dpar_points *points, const dpar_points_field *fields,
                                               int32_t count);
/* Runs an adjoint: dpar_points_reduce_begin and dpar_points_end in one call. Followed by
 * dpar_points_exchange_many, it gives the result to all ranks that have the point, which is the
 * assembly of finite elements. */
DPAR_API dpar_status dpar_points_reduce_many(dpar_points *points, const dpar_points_field *fields,
                                             int32_t count, int32_t op);

/* ---- numbering ---- */

/* Converts ids that this rank owns or reads to local indices, as for the columns of matrices and
 * the corners of elements.
 *
 * ids:   [count].
 * index: [count] receives the index of each id, or the first one if ghost_id repeats it, or -1 if
 *        the rank neither owns nor reads the id. Must not overlap ids.
 *
 * Only for plans by ids. Local. Fails with DPAR_E_ARG if any id is neither owned nor read, for a
 * plan by lists and for NULL; the message is in points->comm->why. Costs O(count). */
DPAR_API dpar_status dpar_points_to_local(const dpar_points *points, const int64_t *ids,
                                          int64_t count, int32_t *index);
/* Sorts the rows of a sparse matrix into those that read no ghost, which can be computed between
 * begin and end, and the others. Elements of a mesh are rows too, with their corners as columns.
 *
 * begin:    [rows + 1], where the columns of each row begin.
 * column:   [begin[rows]], local indices; row i has column[begin[i] .. begin[i + 1] - 1].
 * row:      [rows], receives the rows that read no ghost, then the others, both ascending.
 * interior: receives the number of rows that read no ghost.
 *
 * Local. Fails with DPAR_E_ARG if a column is no local index, begin descends, or a pointer is NULL;
 * the message is in points->comm->why. Costs O(columns). */
DPAR_API dpar_status dpar_points_interior_rows(const dpar_points *points, int64_t rows,
                                               const int64_t *begin, const int32_t *column,
                                               int32_t *row, int64_t *interior);

/* ---- reports ---- */

/* The traffic between this rank and one peer in each exchange. Values are counted once, with all
 * their components in all vectors. They are sent in one message each way, or through shared
 * memory. */
typedef struct dpar_points_traffic {
    int32_t rank;   /* of the peer */
    int32_t method; /* DPAR_POINTS_MESSAGES, or PACKED if memory is shared; also PACKED if vectors
                       of dpar_comm_alloc with long runs are then read in place (DIRECT) */
    int64_t send_count, receive_count; /* number of values */
    int64_t send_runs;                 /* runs of consecutive indices among the values sent */
    int64_t receive_runs;              /* the same of those received; with 1 nothing is unpacked */
} dpar_points_traffic;
/* Describes the traffic with peer k of points->peer_count, in ascending order of ranks. Returns 1,
 * or 0 if there is no such peer. Local. Costs O(1). */
DPAR_API int dpar_points_peer(const dpar_points *points, int32_t k, dpar_points_traffic *traffic);
/* Lists the traffic of this rank in an exchange as a table, with a line for each peer. If
 * desc.timers was set, it includes the times of the phases in microseconds per exchange. Local.
 * Costs O(peers). */
DPAR_API void dpar_points_report(const dpar_points *points, dpar_text *out);
/* Draws how many values each rank sends to each other as a matrix, whose rows send and whose
 * columns receive. All ranks get it; `out` may be NULL on ranks that do not need it. Collective.
 * Fails with DPAR_E_RANGE above 64 ranks. Costs an all-gather of 8 bytes for each pair of ranks. */
DPAR_API dpar_status dpar_points_draw(const dpar_points *points, dpar_text *out);

/* ==== points/points_simple.h ==== */

/* points_simple - allocates and exchanges one vector, for codes that need no more:
 *
 *     dpar_points_make(comm, &desc, &points, &why);
 *     dpar_points_to_local(points, column_id, entries, column);    local columns of the matrix
 *     x = dpar_points_array(points, DPAR_F64, 1);
 *     ...
 *     dpar_points_exchange(points, x);        the ghosts of x become their owners' values
 *     ...
 *     dpar_points_free(points);
 *
 * If elements add to points that other ranks own, dpar_points_reduce(points, b) adds the ghosts of
 * b to their owners' values. The messages of these functions are in points->comm->why. */

/* Allocates a zeroed vector for own values and ghosts, in registered memory that peers read
 * directly. Returns NULL on failure, with the message in points->comm->why. The vector can be used
 * until dpar_comm_release or the end of the communicator's world. Not collective. */
DPAR_API void *dpar_points_array(dpar_points *points, int32_t type, int32_t components);
/* Copies owners' values to the ghosts of x.
 *
 * x: [own_count + ghost_count], in any memory. For other types use dpar_points_exchange_many.
 *
 * Collective. Errors and cost are those of dpar_points_exchange_many. */
DPAR_API dpar_status dpar_points_exchange(dpar_points *points, double *x);
/* Adds the ghosts of x to their owners' values; the ghosts become 0. Collective. Errors, cost and
 * the order of sums are those of dpar_points_reduce_begin. */
DPAR_API dpar_status dpar_points_reduce(dpar_points *points, double *x);

/* ==== points/points_check.h ==== */

/* points_check - checks whether exchanges of points brought the right values, for tests and for
 * codes that may have forgotten an exchange.
 *
 *     dpar_points_check(points, fields, count, DPAR_POINTS_POISON, &why);     sets ghosts to NaN
 *     dpar_points_exchange_many(points, fields, count);
 *     dpar_points_check(points, fields, count, DPAR_POINTS_UNFILLED, &why);   fails if one is left
 *     ... steps ...
 *     dpar_points_check(points, fields, count, DPAR_POINTS_STALE, &why);      fails if one is old
 */

/* What to check. 0 is not allowed. */
enum {
    /* Checks nothing, but sets all ghosts to NaN (integers: all bits 1). Local. */
    DPAR_POINTS_POISON = 1,
    /* Finds a ghost that still has that value, in vectors whose own values do not have it. Returns
     * DPAR_E_ARG with vector, index and rank. Local. */
    DPAR_POINTS_UNFILLED,
    /* Finds a ghost that differs from its owner's value in any bit. Returns DPAR_E_MISMATCH on all
     * ranks with the first one: vector, index, both ranks. Changes nothing. Collective: it
     * exchanges into a copy of the ghosts (dpar_comm_alloc). */
    DPAR_POINTS_STALE
};
/* Checks vectors between exchanges. Returns DPAR_OK if nothing was found, or the error that the
 * enumerator documents. Fails with DPAR_E_ARG if vectors are described wrongly, for STALE on all
 * ranks; otherwise as the communicator. Costs O(values). */
DPAR_API dpar_status dpar_points_check(dpar_points *points, const dpar_points_field *fields,
                                       int32_t count, int32_t what, dpar_why *why);

/* ==== points/points_part.h ==== */

/* points_part - partitions points, or the centres of elements, into parts of equal weight along
 * Hilbert's curve. Each part is compact in space, so that it is a good partition to start from.
 *
 *     dpar_points_partition_desc desc = {0};
 *     desc.dims = 3;
 *     desc.count = n;
 *     desc.position = xyz;                              x, y, z of each
 *     desc.id = id;                                     different on all ranks
 *     dpar_points_partition(comm, &desc, owner, NULL, &why);      owner[i]: new owner of point i
 *     dpar_points_migration_make(...);                  points_move.h
 *
 * A partition of ParMETIS or Scotch is an array of the same form, with the new owner of each local
 * point or element: `part` of ParMETIS_V3_PartMeshKway, partloctab of SCOTCH_dgraphPart. If idx_t
 * or SCOTCH_Num has 64 bits, convert it. The functions that follow accept either. */

/* The points of this rank that are to be partitioned. Zero it, then set the fields that you need.
 */
typedef struct dpar_points_partition_desc {
    int32_t dims;           /* 2 or 3 */
    int32_t parts;          /* at most 2^20; 0 selects the number of ranks */
    int64_t count;          /* points of this rank: 0 to 2^31 - 1 */
    const double *position; /* [count][dims] coordinates, finite */
    const double *weight;   /* [count] finite and not negative; NULL selects 1 for each */
    const int64_t *id;      /* [count] each once in the job, to order points at the same place. NULL
                               numbers them from rank to rank */
} dpar_points_partition_desc;

/* Computes which part each point should belong to. The points of all ranks are ordered along the
 * curve, those at the same place by id. Part k begins where the sum of weights reaches k / parts of
 * the total: before or behind the point in which that happens, whichever is nearer.
 *
 * owner: [count], receives the part of each point. It does not depend on how points are
 * distributed over the ranks, if they have ids, and is the same on all machines with IEEE doubles.
 * key:   [count], receives the position of each point on the curve, for
 * dpar_points_migration_make's order; may be NULL.
 *
 * The weight of a part therefore differs from the mean by less than the largest weight of a point.
 * That is less than 1 % for parts of 100 points or more of equal weight. Parts may be empty if a
 * point weighs more than the mean. Points of the same place and id are not separated.
 *
 * Coordinates are rounded within the smallest cube that holds all points, to 2^31 steps a side in 2
 * dims and 2^21 in 3. Weights are rounded to multiples of the largest one / 2^k. k is at most 52,
 * and the number of all points times 2^k is at most 2^61.
 *
 * Collective. All errors are returned on all ranks. Fails with DPAR_E_ARG if dims or parts are out
 * of range, a coordinate or weight is not finite, a weight is negative, all weights are 0, or a
 * pointer is NULL. Fails with DPAR_E_RANGE for too many points, DPAR_E_MISMATCH if ranks pass
 * different dims or parts, DPAR_E_MEMORY, or as the communicator.
 *
 * Costs a sort of this rank's points, O(points), and a search of the cuts by counting: about 25
 * all-reduces of 56 bytes per part, and 20 more if points coincide or have long ids. No rank holds
 * all points. Needs 56 bytes per point and 100 per part during the call. */
DPAR_API dpar_status dpar_points_partition(dpar_comm *comm, const dpar_points_partition_desc *desc,
                                           int32_t *owner, int64_t *key, dpar_why *why);

/* ==== points/points_move.h ==== */

/* points_move - moves a mesh to new owners: points with their ids, elements with the ids of their
 * corners, and any values of both.
 *
 *     dpar_points_migration_desc desc = {0};
 *     desc.point_count = n;
 *     desc.id = id;
 *     desc.element_count = m;
 *     desc.corner_count = 4;
 *     desc.corner = corner;                        ids of 4 points each
 *     desc.element_owner = owner;                  of dpar_points_partition, METIS, Scotch, yours
 *     dpar_points_migration_make(comm, &desc, &moved, &why);
 *     field.type = DPAR_F64;
 *     field.components = 3;
 *     field.data = xyz;                            [n][3], the old values
 *     field.ghosts = xyz_new;                      [moved->desc.own_count][3]
 *     dpar_points_exchange_many(moved->points, &field, 1);   moves values, any number of times
 *     dpar_points_make(comm, &moved->desc, &points, &why);   for the exchanges from now on
 *     ... moved->corner[4 * e + k]: local indices ...
 *
 * Each point moves with an element that has it.
 *
 * A movement is a plan of points.h, whose own values are the old ones and whose ghosts are the new
 * ones. It can do all that such a plan can: move several vectors of any type in one message per
 * peer. To move values back, set the old array to 0 and call dpar_points_reduce_many with
 * DPAR_SUM. */

/* This rank's piece of a mesh, and its new owners. Zero it, then set the fields that you need. All
 * ranks give owner, or all give element_owner, or both; a rank without points may leave owner out.
 */
typedef struct dpar_points_migration_desc {
    int64_t point_count;   /* number of points of this rank */
    const int64_t *id;     /* [point_count] each once in the job. NULL on all ranks selects
                              consecutive ids from 0, rank after rank */
    const int32_t *owner;  /* [point_count] the new owner of each. If NULL, a point is given
                              to one of the ranks that get an element with it; without an
                              element it stays */
    const int64_t *order;  /* [point_count] sorts the points of each new owner, ascending; ties are
                              sorted by id. NULL sorts by id */
    int64_t element_count; /* number of elements of this rank */
    int32_t corner_count;  /* corners of each element, 1 to 64, the same on all ranks with elements.
                              For mixed shapes it is the largest number; repeat the last corner */
    const int64_t *corner; /* [element_count][corner_count] ids of points, of any rank */
    const int64_t *element_id;    /* [element_count] like id */
    const int32_t *element_owner; /* [element_count] like owner. If NULL, an element is given to the
                                     rank that gets most of its corners, the smallest such rank */
    const int64_t *element_order; /* [element_count] like order */
} dpar_points_migration_desc;

/* What this rank has after the movement. You may change method, tag, timers, memory and bytes of
 * desc. If you change its order from GIVEN, the indices in `corner` no longer apply. All arrays
 * belong to this struct. */
typedef struct dpar_points_migration {
    dpar_points_desc desc; /* for dpar_points_make: the rank's points, with those that its elements
                              read as ghosts: by owner's rank, then by id, with their owners */
    int64_t element_count;
    int64_t *element_id;         /* [element_count] */
    int32_t *corner;             /* [element_count][corner_count] local indices: own points, then
                                    ghosts */
    dpar_points *points;         /* plan from old points (own values) to new points (ghosts) */
    dpar_points *element_points; /* the same for elements; NULL if no rank has any */
    dpar_comm *comm;             /* private, as are all fields that follow */
    void *memory[3];
} dpar_points_migration;

/* Plans the movement of a mesh, moves ids and corners, and converts the corners to local indices.
 * The plans in `moved` then move values.
 *
 * moved: free it with dpar_points_migration_free.
 *
 * The result depends on ids, corners, owners and orders only, not on how points and elements were
 * distributed before, except for points without elements, which stay. If several ranks could get a
 * point, a hash of rank and id selects one, so that no rank gets all of them.
 *
 * Collective. All errors are returned on all ranks. Fails with DPAR_E_ARG if an owner is no rank,
 * an id is on two ranks or none, neither owner nor element_owner is given, or a pointer is NULL.
 * Fails with DPAR_E_MISMATCH if some ranks give what others do not, or another number of corners;
 * with DPAR_E_RANGE, DPAR_E_MEMORY, or as the communicator.
 *
 * Costs sorting what the rank has and gets, O(n), and about 12 all-to-alls. Needs 80 bytes per
 * corner and per point during the call. Keeps 4 bytes per corner, 12 per ghost, 8 per id, and the
 * two plans. */
DPAR_API dpar_status dpar_points_migration_make(dpar_comm *comm,
                                                const dpar_points_migration_desc *desc,
                                                dpar_points_migration **moved, dpar_why *why);
/* Destroys the result of a movement: its plans, then its arrays. Plans that were made from its desc
 * do not need it. NULL does nothing. Collective. Errors are those of dpar_points_free. */
DPAR_API dpar_status dpar_points_migration_free(dpar_points_migration *moved);

#endif /* DPAR_POINTS_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_POINTS_IMPLEMENTATION)) && \
    !defined(DPAR_POINTS_IMPLEMENTATION_DONE)
#define DPAR_POINTS_IMPLEMENTATION_DONE

/* ==== points/points_list.h ==== */

/* points_list - lists of local indices as runs, and the loops that copy and combine what they name.
 * Private: the floor of points. */

/* Indices in order: one run, pairs (first, how many), or each by itself. */
enum { DPARI_PT_ONE, DPARI_PT_RUNS, DPARI_PT_EACH };
typedef struct dpari_pt_list {
    int64_t count, runs;
    int32_t kind, first;
    int32_t step;      /* EACH: from one index to the next; 0: not always the same */
    const int32_t *at; /* ONE: NULL */
} dpari_pt_list;

/* What lies at an index: `size` bytes at `at + index * stride`. */
typedef struct dpari_pt_side {
    unsigned char *at;
    int64_t stride;
} dpari_pt_side;

/* The kind of these indices and their runs, without memory; the numbers that it needs. */
DPARI_INTERNAL int64_t dpari_pt_measure(dpari_pt_list *l, const int32_t *index, int64_t n);
/* The same indices written to `at`, of so many numbers. */
DPARI_INTERNAL void dpari_pt_fill(dpari_pt_list *l, const int32_t *index, int32_t *at);
/* The list of 0, 1, ... n - 1. */
DPARI_INTERNAL dpari_pt_list dpari_pt_dense(int64_t n);
/* The next run of a list: *cursor begins at 0, *within too. Indices left in it; *first: where. */
DPARI_INTERNAL int64_t dpari_pt_next(const dpari_pt_list *l, int64_t cursor, int64_t within,
                                     int32_t *first);

/* Element k of list `into` becomes element k of list `from`. `size` bytes each. */
DPARI_INTERNAL void dpari_pt_move(const dpari_pt_list *into, dpari_pt_side to,
                                  const dpari_pt_list *from, dpari_pt_side of, int64_t size);
/* Zeroes what a list names. */
DPARI_INTERNAL void dpari_pt_clear(const dpari_pt_list *l, dpari_pt_side to, int64_t size);
/* Each element that a list names becomes itself op the next of `of`, one after another: an index
 * may come twice. `n` numbers of a type at each. */
DPARI_INTERNAL void dpari_pt_combine(const dpari_pt_list *l, dpari_pt_side to, dpari_pt_side of,
                                     int32_t n, int32_t type, int32_t op);

/* ==== points/points_plan.h ==== */

/* points_plan - what a plan of points is made of, and where things lie in it. Private: the floor of
 * these, lowest first,
 *
 *     points_list     lists of indices, the loops over them
 *     points_owner    who owns an id, who reads it
 *     points_wait     waiting for peers
 *     points_run      exchanges: begin, test, end
 *     points          checks, plans, numbering
 *     points_check    poison, stale ghosts
 *     points_simple   few lines
 *
 * How an exchange runs. Forward each rank gives its peers values of its own, which they take into
 * ghosts; adjoint they give ghosts, which their owner takes. What is given is packed into staging
 * memory, peer after peer, twice: exchanges take turns. With ranks that do not share memory one
 * message each way goes. Ranks that do tell each other in two words,
 *
 *     ready = exchange << 16 | kind    what I give is packed, or lies where my turn says
 *     done  = exchange                 I have taken all that I take
 *
 * and staging memory of a turn is written again when those who read it are done with the exchange
 * before the last. A peer that is ready for one is done with all before it: where each gives and
 * takes nobody looks at `done` for that, nor is woken by it. Forward long runs of a vector in
 * registered memory are not packed: the turn has the vector's address, its reader has the giver's
 * list, and the giver waits at the end until it is done. Both decide so by the same numbers.
 *
 * Staging memory grows with the vectors. Where it lies is told anew with each exchange. */

enum {
    DPARI_PT_PAD = 16,        /* bytes: a vector begins there in what is packed for a peer */
    DPARI_PT_RUN_BYTES = 64,  /* runs that are read where they lie */
    DPARI_PT_CROWDED = 65536, /* bytes that are, where ranks share cores: as of halos, measured */
    DPARI_PT_BITE = 1024,     /* bytes gathered before they are copied to memory that ranks share */
    DPARI_PT_MOST = 4096,     /* vectors of an exchange */
    DPARI_PT_PACKING = 0,     /* what the time goes to */
    DPARI_PT_COPYING,
    DPARI_PT_WAITING
};

/* What a rank says to its peers; registered memory. */
typedef struct dpari_pt_line {
    uint64_t ready;
    uint64_t turns; /* ref of the memory of both turns, as long as no peer reads it: in each the */
    int64_t turn_bytes; /* places of the vectors, then what is packed */
    char room_0[DPARI_LINE - 24];
    uint64_t done;
    char room_1[DPARI_LINE - 8];
} dpari_pt_line;

/* The kind in a rank's word: the operation, a hash of what the vectors hold, and whether peers find
 * places in its turn, for some vector is not packed. */
enum { DPARI_PT_OP = 3, DPARI_PT_KIND = 0x7fff, DPARI_PT_LENT = 0x8000 };

/* A vector as the exchange under way sees it: `pieces` passes of `size` bytes at each point. */
typedef struct dpari_pt_vector {
    unsigned char *own, *ghosts;
    int64_t stride, component; /* bytes between points, between passes (of one: between numbers) */
    int64_t size, point;       /* of a pass; of all of them at a point */
    int32_t pieces, numbers;   /* passes; numbers of `type` in each */
    int32_t type;
    uint64_t ref; /* of own, where peers may read it */
} dpari_pt_vector;

/* The same for the peers, in a turn's memory. */
typedef struct dpari_pt_place {
    uint64_t ref; /* 0: packed */
    int64_t stride, component, size;
} dpari_pt_place;

/* What two ranks tell each other at init. */
typedef struct dpari_pt_record {
    int64_t line;                          /* ref */
    int64_t number;                        /* which peer the other is to this one, */
    int64_t sends, receives;               /* values to it, from it, */
    int64_t sends_before, receives_before; /* and to and from peers before it */
    int64_t runs, kind, first, at;         /* the list of what is sent; at: ref */
} dpari_pt_record;
enum { DPARI_PT_WORDS = sizeof(dpari_pt_record) / sizeof(int64_t) };

typedef struct dpari_pt_peer {
    int32_t rank;
    int32_t world;                         /* its number where memory is shared; -1: messages */
    dpari_pt_list send, receive;           /* own values, ghosts */
    int64_t sends_before, receives_before; /* values of peers before it */
    dpari_pt_line *line;
    dpari_pt_record theirs;
    dpari_pt_list source; /* the list by which it gives, where this rank reads its vectors */
    int64_t seen;         /* the last exchange that it was ready for */
    uint64_t turns;       /* its line's, */
    unsigned char *at;    /* here */
    int32_t taken;
    int32_t lends;          /* its turn says where its vectors lie */
    int32_t reads;          /* it reads vectors of the exchange under way where they lie */
    unsigned char *arrives; /* messages: where, */
    int32_t in_place;       /* and that is the vector itself */
} dpari_pt_peer;

/* An id and where it lies; at < 0: free. */
typedef struct dpari_pt_entry {
    int64_t id;
    int64_t at;
} dpari_pt_entry;

/* Ids of this rank, by hashing with steps of one. */
typedef struct dpari_pt_table {
    dpari_pt_entry *entry;
    int64_t mask; /* entries - 1; -1: there are none */
} dpari_pt_table;

typedef struct dpari_points {
    dpar_points head; /* first: the handle */
    dpar_comm *node;
    void *owned;        /* memory of this struct that make has allocated; NULL: the caller's */
    dpari_world *world; /* NULL: messages alone */
    int32_t way, tag, timers;
    int32_t listed;      /* planned by lists: there are no ids */
    int32_t hashed;      /* own ids are in the table */
    int32_t given_owner; /* the caller said who owns each ghost */
    int32_t self;        /* the peer that is the rank itself; -1: none */
    int32_t shared;      /* peers that share memory, itself apart; */
    int32_t oneway;      /* some of them only give to this rank or only take */
    int32_t lent;        /* some has lent it vectors in the exchange under way */
    int32_t messages_to; /* peers that do not */
    int64_t run_bytes;
    dpar_layout rule; /* of own_id NULL */
    int32_t ruled;
    dpari_pt_table table;
    dpari_pt_peer *peer;
    dpar_call *call;
    dpar_work *work;         /* receives, then sends */
    unsigned char *lists;    /* registered: what follows, and peers, call, work */
    dpari_pt_record *record; /* [2 * peers] */
    int32_t *numbers;        /* of lists */
    dpari_pt_line *line;
    int64_t sends, receives; /* values in all */
    unsigned char *staging;  /* registered: vectors, two turns, what arrives */
    int64_t staging_vectors, staging_turn;
    dpari_pt_vector *vector;
    unsigned char *turns, *aside, *arrivals; /* aside: one peer's values, this rank's alone */
    int32_t vectors;
    dpar_points_field named; /* the only vector of the exchange before; type 0: there were more */
    int64_t point;           /* bytes at a point, of all of them */
    int64_t count;           /* exchanges begun */
    uint64_t kind;           /* of the one under way */
    int32_t active, adjoint, op, stage;
    int32_t receives_posted, sends_posted;
    int32_t again; /* what is posted for the next, if it is like this one */
    double looked;
    double seconds[3];
} dpari_points;

/* Of a handle. */
DPARI_FN dpari_points *dpari_pt_of(const dpar_points *p)
{
    return (dpari_points *)(uintptr_t)p;
}

/* Where the values for peer number k begin in what is packed, `before` values for those before it:
 * a multiple of DPARI_LINE. Each vector may take up to DPARI_PT_PAD bytes more. */
DPARI_FN int64_t dpari_pt_begins(int64_t before, int64_t k, int64_t point, int64_t vectors)
{
    const int64_t at = before * point + k * (DPARI_PT_PAD * vectors + DPARI_LINE);
    return at / DPARI_LINE * DPARI_LINE;
}

/* Bytes of a vector in what is packed, with those behind it. */
DPARI_FN int64_t dpari_pt_block(int64_t values, int64_t point)
{
    return (values * point + DPARI_PT_PAD - 1) / DPARI_PT_PAD * DPARI_PT_PAD;
}

/* True if `values` values of a sender's vector, in `runs` runs, are read in place. */
DPARI_FN int dpari_pt_is_direct(const dpari_points *x, uint64_t ref, int64_t size, int64_t values,
                                int64_t runs)
{
    return ref != 0 && x->way != DPAR_POINTS_PACKED && values * size >= runs * x->run_bytes &&
           (!x->world->crowded || values * size >= DPARI_PT_CROWDED);
}

/* ==== points/points_owner.h ==== */

/* points_owner - who owns an id, and who reads it: the lists of both sides of an exchange. Private.
 *
 * Three rounds, each an all-to-all of counts and one of numbers:
 *
 *     register   every rank tells rank hash(id) mod size, the id's home, that it owns it
 *     ask        every rank asks the homes of its ghosts, which answer with the owner
 *     tell       every rank tells the owners which ids it reads, in the order of its ghosts
 *
 * Where owners are known otherwise (consecutive ids, a list, a rule) the third is all there is.
 * What a rank finds wrong in a round all hear at its end. */

/* What goes to each rank and comes from each, by rank. Own memory, until dpari_pt_both_free. */
typedef struct dpari_pt_both {
    int64_t *sends, *receives; /* [size] */
    int32_t *send_at;          /* own values, for rank 0, for rank 1, ... */
    int32_t *receive_at;       /* ghosts, from rank 0, ... */
    int64_t sent;              /* values in send_at */
    void *pages[2];
    int64_t bytes[2];
} dpari_pt_both;

/* Numbers of entries for n ids. */
DPARI_INTERNAL int64_t dpari_pt_table_room(int64_t n);
/* Where an own id lies; -1: it is none. */
DPARI_INTERNAL int64_t dpari_pt_own_index(const dpari_points *x, int64_t id);
/* Where an id of this rank lies: own, or a ghost; -1: it has none such. */
DPARI_INTERNAL int64_t dpari_pt_index(const dpari_points *x, int64_t id);

/* By ids: fills x's table and head.first, too. COLLECTIVE. */
DPARI_INTERNAL dpar_status dpari_pt_by_ids(dpari_points *x, const dpar_points_desc *d,
                                           dpari_pt_both *both, dpar_why *why);
/* By lists that were checked. COLLECTIVE. */
DPARI_INTERNAL dpar_status dpari_pt_by_lists(dpari_points *x, const dpar_points_desc *d,
                                             dpari_pt_both *both, dpar_why *why);
DPARI_INTERNAL void dpari_pt_both_free(dpari_pt_both *both);
/* Returns st; if it is an error, *why receives the message of c. */
DPARI_INTERNAL dpar_status dpari_pt_said(const dpar_comm *c, dpar_status st, dpar_why *why);

/* ==== points/points_wait.h ==== */

/* points_wait - waiting for peers that share memory: they are gone, late, or do something else.
 * Private. */

/* How the plan's communicators broke; OK. */
DPARI_INTERNAL dpar_status dpari_pt_broken(const dpari_points *x);
/* Waits until *word of peer i is at least value. Unless wait is 1, returns DPAR_MORE if it is not
 * yet. Errors break the communicator; PEEK does not look for errors. */
enum { DPARI_PT_PEEK = -1 };
DPARI_INTERNAL dpar_status dpari_pt_await(dpari_points *x, int32_t i, const uint64_t *word,
                                          uint64_t value, int wait);
/* The peer runs another exchange than this rank: E_MISMATCH. */
DPARI_INTERNAL dpar_status dpari_pt_differs(dpari_points *x, int32_t i, uint64_t kind);
/* dpari_at gave NULL for this ref of a peer. */
DPARI_INTERNAL dpar_status dpari_pt_unreachable(dpari_points *x, uint64_t ref);
/* Timers: 0 where there are none. */
DPARI_INTERNAL double dpari_pt_clock(const dpari_points *x);
DPARI_INTERNAL void dpari_pt_count(dpari_points *x, int32_t phase, double began);

/* ==== points/points_order.h ==== */

/* points_order - what partitions and movements share: sorting, the curve, numbers from rank to
 * rank, pages for a while. Private: it stands on comm alone. */

/* What is sorted: by key, then by id. `at` says where it was. */
typedef struct dpari_po_item {
    int64_t key, id, at;
} dpari_po_item;

/* Compares an item with a key and an id: -1 if it is before them, 0 if equal, 1 if behind. */
DPARI_FN int32_t dpari_po_compare(const dpari_po_item *a, int64_t key, int64_t id)
{
    return a->key != key ? (a->key < key ? -1 : 1) : a->id != id ? (a->id < id ? -1 : 1) : 0;
}
/* Sorts n items, equal ones as they are; spare: room for n. Returns where they are then: one of
 * both. O(n): a pass for each byte
 * in which they differ. */
DPARI_INTERNAL dpari_po_item *dpari_po_sort(dpari_po_item *item, dpari_po_item *spare, int64_t n);

/* Pages that are needed for a while. Zero it; dpari_po_free gives all of them back. */
enum { DPARI_PO_PAGES = 8 };
typedef struct dpari_po_pages {
    void *at[DPARI_PO_PAGES];
    int64_t bytes[DPARI_PO_PAGES];
    int32_t used;
} dpari_po_pages;
/* n things of so many bytes, zeroed. Nothing after a failure: *st, with a message. */
DPARI_INTERNAL void *dpari_po_take(dpari_po_pages *p, int64_t n, int64_t bytes, dpar_status *st,
                                   dpar_why *why);
DPARI_INTERNAL void dpari_po_free(dpari_po_pages *p);

/* Returns the position of a cell on Hilbert's curve, through a square of 2^31 cells a side or a
 * cube of 2^21. Returns -1 if dims is not 2 or 3, or the cell is outside. Consecutive cells of the
 * curve share a side. */
DPARI_INTERNAL int64_t dpari_points_curve(int32_t dims, const uint32_t *cell);

/* E_ARG: the communicator reaches a device's memory alone. */
DPARI_INTERNAL dpar_status dpari_po_host(const dpar_comm *c, dpar_why *why);
/* st, with the message of c where it is an error. */
DPARI_INTERNAL dpar_status dpari_po_said(const dpar_comm *c, dpar_status st, dpar_why *why);
/* How many come before this rank's n, numbered from rank to rank. COLLECTIVE. */
DPARI_INTERNAL dpar_status dpari_po_first(dpar_comm *c, int64_t n, int64_t *first, dpar_why *why);

/* ==== points/points_list.c ==== */

/* Stores lists of local indices as runs, and copies, compares and combines what they name.
 *
 * A list of consecutive indices needs only its first one, a list of long runs 8 bytes each, and
 * others 4 bytes an index. There is a loop for each form and element size. Called by points_run.c
 * and points_check.c. */

/* ---- lists ---- */

enum { DPARI_PT_LONG = 4 }; /* indices of a run on average from which pairs pay */

DPARI_INTERNAL int64_t dpari_pt_measure(dpari_pt_list *l, const int32_t *index, int64_t n)
{
    int64_t i;
    l->count = n;
    l->runs = n > 0;
    l->first = n > 0 ? index[0] : 0;
    l->at = NULL;
    l->step = n > 1 ? index[1] - index[0] : 0;
    for (i = 1; i < n; i++) {
        l->runs += index[i] != index[i - 1] + 1;
        l->step = (int64_t)index[i] - index[i - 1] == l->step ? l->step : 0;
    }
    l->kind = l->runs <= 1                   ? DPARI_PT_ONE
              : l->runs <= n / DPARI_PT_LONG ? DPARI_PT_RUNS
                                             : DPARI_PT_EACH;
    l->step = l->kind == DPARI_PT_EACH ? l->step : 0;
    return l->kind == DPARI_PT_ONE ? 0 : l->kind == DPARI_PT_RUNS ? 2 * l->runs : n;
}

DPARI_INTERNAL void dpari_pt_fill(dpari_pt_list *l, const int32_t *index, int32_t *at)
{
    int64_t i, r = -1;
    if (l->kind == DPARI_PT_ONE) {
        return;
    }
    l->at = at;
    if (l->kind == DPARI_PT_EACH) {
        dpari_kern_copy(at, index, l->count * (int64_t)sizeof *at, 0);
        return;
    }
    for (i = 0; i < l->count; i++) {
        if (i == 0 || index[i] != index[i - 1] + 1) {
            r++;
            at[2 * r] = index[i];
            at[2 * r + 1] = 0;
        }
        at[2 * r + 1]++;
    }
}

DPARI_INTERNAL dpari_pt_list dpari_pt_dense(int64_t n)
{
    dpari_pt_list l;
    l.count = n;
    l.runs = 1;
    l.kind = DPARI_PT_ONE;
    l.first = 0;
    l.step = 0;
    l.at = NULL;
    return l;
}

DPARI_INTERNAL int64_t dpari_pt_next(const dpari_pt_list *l, int64_t cursor, int64_t within,
                                     int32_t *first)
{
    if (l->kind == DPARI_PT_EACH) {
        *first = l->at[cursor];
        return 1;
    }
    if (l->kind == DPARI_PT_RUNS) {
        *first = l->at[2 * cursor] + (int32_t)within;
        return l->at[2 * cursor + 1] - within;
    }
    *first = l->first + (int32_t)within;
    return l->count - within;
}

/* ---- copies ---- */

/* Inlined for each size that is a constant. */
DPARI_ALWAYS_INLINE void dpari_pt_gather(unsigned char *to, int64_t step, const unsigned char *from,
                                         int64_t stride, const int32_t *at, int64_t n, size_t size)
{
    int64_t k;
    for (k = 0; k < n; k++) {
        dpari_elements_bits(to + k * step, from + at[k] * stride, size);
    }
}

DPARI_ALWAYS_INLINE void dpari_pt_scatter(unsigned char *to, int64_t stride,
                                          const unsigned char *from, int64_t step,
                                          const int32_t *at, int64_t n, size_t size)
{
    int64_t k;
    for (k = 0; k < n; k++) {
        dpari_elements_bits(to + at[k] * stride, from + k * step, size);
    }
}

DPARI_ALWAYS_INLINE void dpari_pt_row(unsigned char *to, int64_t step, const unsigned char *from,
                                      int64_t stride, int64_t n, size_t size)
{
    int64_t k;
    for (k = 0; k < n; k++) {
        dpari_elements_bits(to + k * step, from + k * stride, size);
    }
}

/* Four at a time: three instructions a value in place of seven. */
static void dpari_pt_gather_doubles(unsigned char *to, const unsigned char *from, const int32_t *at,
                                    int64_t n)
{
    int64_t k;
    for (k = 0; k + 4 <= n; k += 4) {
        dpari_elements_bits(to + 8 * k, from + INT64_C(8) * at[k], 8);
        dpari_elements_bits(to + 8 * k + 8, from + INT64_C(8) * at[k + 1], 8);
        dpari_elements_bits(to + 8 * k + 16, from + INT64_C(8) * at[k + 2], 8);
        dpari_elements_bits(to + 8 * k + 24, from + INT64_C(8) * at[k + 3], 8);
    }
    dpari_pt_gather(to + 8 * k, 8, from, 8, at + k, n - k, 8);
}

/* The same from places that are equally far apart. */
static void dpari_pt_gather_strided(unsigned char *to, const unsigned char *from, int64_t stride,
                                    int64_t n)
{
    int64_t k;
    for (k = 0; k + 4 <= n; k += 4) {
        dpari_elements_bits(to, from, 8);
        dpari_elements_bits(to + 8, from + stride, 8);
        dpari_elements_bits(to + 16, from + 2 * stride, 8);
        dpari_elements_bits(to + 24, from + 3 * stride, 8);
        to += 32;
        from += 4 * stride;
    }
    dpari_pt_row(to, 8, from, stride, n - k, 8);
}

static void dpari_pt_gather_any(unsigned char *to, int64_t step, const unsigned char *from,
                                int64_t stride, const int32_t *at, int64_t n, int64_t size)
{
    if (size == 8 && step == 8 && stride == 8) {
        dpari_pt_gather_doubles(to, from, at, n);
    } else if (size == 8) {
        dpari_pt_gather(to, step, from, stride, at, n, 8);
    } else if (size == 4) {
        dpari_pt_gather(to, step, from, stride, at, n, 4);
    } else if (size == 24) {
        dpari_pt_gather(to, step, from, stride, at, n, 24);
    } else {
        dpari_pt_gather(to, step, from, stride, at, n, (size_t)size);
    }
}

static void dpari_pt_scatter_any(unsigned char *to, int64_t stride, const unsigned char *from,
                                 int64_t step, const int32_t *at, int64_t n, int64_t size)
{
    if (size == 8) {
        dpari_pt_scatter(to, stride, from, step, at, n, 8);
    } else if (size == 4) {
        dpari_pt_scatter(to, stride, from, step, at, n, 4);
    } else if (size == 24) {
        dpari_pt_scatter(to, stride, from, step, at, n, 24);
    } else {
        dpari_pt_scatter(to, stride, from, step, at, n, (size_t)size);
    }
}

static void dpari_pt_row_any(unsigned char *to, int64_t step, const unsigned char *from,
                             int64_t stride, int64_t n, int64_t size)
{
    if (step == size && stride == size) {
        dpari_elements_bits(to, from, (size_t)(n * size));
    } else if (size == 8) {
        dpari_pt_row(to, step, from, stride, n, 8);
    } else if (size == 4) {
        dpari_pt_row(to, step, from, stride, n, 4);
    } else {
        dpari_pt_row(to, step, from, stride, n, (size_t)size);
    }
}

/* Run after run, each as far as both lists have it in one piece. */
static void dpari_pt_move_runs(const dpari_pt_list *into, dpari_pt_side to,
                               const dpari_pt_list *from, dpari_pt_side of, int64_t size)
{
    int64_t k, n, a = 0, in_a = 0, b = 0, in_b = 0;
    for (k = 0; k < into->count; k += n) {
        int32_t at, source;
        const int64_t left = dpari_pt_next(into, a, in_a, &at);
        const int64_t more = dpari_pt_next(from, b, in_b, &source);
        n = dpari_least(left, more);
        dpari_pt_row_any(to.at + at * to.stride, to.stride, of.at + source * of.stride, of.stride,
                         n, size);
        a += left == n;
        in_a = left == n ? 0 : in_a + n;
        b += more == n;
        in_b = more == n ? 0 : in_b + n;
    }
}

DPARI_INTERNAL void dpari_pt_move(const dpari_pt_list *into, dpari_pt_side to,
                                  const dpari_pt_list *from, dpari_pt_side of, int64_t size)
{
    if (into->kind == DPARI_PT_ONE && from->step != 0 && size == 8 && to.stride == 8) {
        dpari_pt_gather_strided(to.at + into->first * to.stride, of.at + from->first * of.stride,
                                from->step * of.stride, from->count);
    } else if (into->kind == DPARI_PT_ONE && from->kind == DPARI_PT_EACH) {
        dpari_pt_gather_any(to.at + into->first * to.stride, to.stride, of.at, of.stride, from->at,
                            from->count, size);
    } else if (into->kind == DPARI_PT_EACH && from->kind == DPARI_PT_ONE) {
        dpari_pt_scatter_any(to.at, to.stride, of.at + from->first * of.stride, of.stride, into->at,
                             from->count, size);
    } else {
        dpari_pt_move_runs(into, to, from, of, size);
    }
}

DPARI_INTERNAL void dpari_pt_clear(const dpari_pt_list *l, dpari_pt_side to, int64_t size)
{
    int64_t k, n, i, cursor = 0;
    for (k = 0; k < l->count; k += n, cursor++) {
        int32_t at;
        n = dpari_pt_next(l, cursor, 0, &at);
        for (i = 0; i < n; i++) {
            dpari_zero(to.at + (at + i) * to.stride, (size_t)size);
        }
    }
}

/* ---- sums ---- */

/* The numbers of a run lie together on both sides. */
static void dpari_pt_combine_row(unsigned char *to, const unsigned char *of, int64_t n,
                                 int32_t type, int32_t op)
{
    void *out[1];
    const void *in[2];
    out[0] = to;
    in[0] = to;
    in[1] = of;
    dpari_kern_reduce(out, 1, in, 2, n, type, op, 0);
}

DPARI_ALWAYS_INLINE void dpari_pt_add_f64(unsigned char *to, const unsigned char *of)
{
    double a, b;
    dpari_elements_bits(&a, to, 8);
    dpari_elements_bits(&b, of, 8);
    a += b;
    dpari_elements_bits(to, &a, 8);
}

static void dpari_pt_sum_f64(const dpari_pt_list *l, dpari_pt_side to, dpari_pt_side of, int32_t n)
{
    int64_t k;
    int32_t i;
    for (k = 0; k < l->count; k++) {
        for (i = 0; i < n; i++) {
            dpari_pt_add_f64(to.at + l->at[k] * to.stride + 8 * i, of.at + k * of.stride + 8 * i);
        }
    }
}

DPARI_INTERNAL void dpari_pt_combine(const dpari_pt_list *l, dpari_pt_side to, dpari_pt_side of,
                                     int32_t n, int32_t type, int32_t op)
{
    const int64_t size = n * (int64_t)dpar_type_bytes(type);
    int64_t k, run, i, cursor = 0;
    if (type == DPAR_F64 && op == DPAR_SUM && l->kind == DPARI_PT_EACH) {
        dpari_pt_sum_f64(l, to, of, n);
        return;
    }
    for (k = 0; k < l->count; k += run, cursor++) {
        int32_t first;
        unsigned char *at;
        run = dpari_pt_next(l, cursor, 0, &first);
        at = to.at + first * to.stride;
        if (to.stride == size && of.stride == size) {
            dpari_pt_combine_row(at, of.at + k * size, run * n, type, op);
            continue;
        }
        for (i = 0; i < run; i++) {
            dpari_pt_combine_row(at + i * to.stride, of.at + (k + i) * of.stride, n, type, op);
        }
    }
}

/* ==== points/points_owner.c ==== */

/* Finds the owner of each ghost, and which ranks read each own value. points_owner.h has the three
 * rounds of messages; points.c calls it when a plan is made. */

/* ---- tables of ids ----------------------------------------------------------------------------
 */

DPARI_INTERNAL int64_t dpari_pt_table_room(int64_t n)
{
    int64_t room = 2;
    while (room < n + n / 2) {
        room *= 2;
    }
    return n > 0 ? room : 0;
}

static void dpari_pt_table_init(dpari_pt_table *t, dpari_pt_entry *entry, int64_t n)
{
    int64_t i;
    t->entry = entry;
    t->mask = dpari_pt_table_room(n) - 1;
    for (i = 0; i <= t->mask; i++) {
        entry[i].at = -1;
    }
}

/* Twice: ids may differ in high bits alone, as those that are packed of several numbers, and once
 * does not bring these down. */
static uint64_t dpari_pt_hash(uint64_t seed, int64_t id)
{
    return dpari_hash(dpari_hash(seed, id), 0);
}

/* Where the id is, or the free entry where it would be. */
static dpari_pt_entry *dpari_pt_seek(const dpari_pt_table *t, int64_t id)
{
    int64_t i = (int64_t)(dpari_pt_hash(1, id) >> 16) & t->mask;
    while (t->entry[i].at >= 0 && t->entry[i].id != id) {
        i = (i + 1) & t->mask;
    }
    return &t->entry[i];
}

static int64_t dpari_pt_find(const dpari_pt_table *t, int64_t id)
{
    return t->mask < 0 ? -1 : dpari_pt_seek(t, id)->at;
}

/* Puts it there unless it is there already; what was there, or -1. */
static int64_t dpari_pt_put(dpari_pt_table *t, int64_t id, int64_t at)
{
    dpari_pt_entry *e = dpari_pt_seek(t, id);
    const int64_t was = e->at;
    if (was < 0) {
        e->id = id;
        e->at = at;
    }
    return was;
}

/* Element `id` of the rule's array, in C order. 0: it has no such element. */
static int dpari_pt_element(const dpar_layout *l, int64_t id, int64_t *index)
{
    int32_t d;
    for (d = l->dims - 1; d >= 0 && id >= 0; d--) {
        if (l->extent[d] == 0) {
            return 0;
        }
        index[d] = id % l->extent[d];
        id /= l->extent[d];
    }
    return id == 0;
}

static int64_t dpari_pt_ruled_index(const dpari_points *x, int64_t id)
{
    int64_t index[DPAR_MAX_DIMS], local[DPAR_MAX_DIMS], shape[DPAR_MAX_DIMS], at = 0;
    int32_t d;
    if (!dpari_pt_element(&x->rule, id, index) ||
        dpar_layout_owner(&x->rule, index, 0, local) != x->head.comm->rank) {
        return -1;
    }
    dpar_layout_local(&x->rule, x->head.comm->rank, shape, NULL);
    for (d = 0; d < x->rule.dims; d++) {
        at = at * shape[d] + local[d];
    }
    return at;
}

DPARI_INTERNAL int64_t dpari_pt_own_index(const dpari_points *x, int64_t id)
{
    int64_t at;
    if (x->ruled && !x->hashed) {
        return dpari_pt_ruled_index(x, id);
    }
    if (!x->hashed) {
        at = id - x->head.first_id;
        return id >= x->head.first_id && at < x->head.own_count ? at : -1;
    }
    at = dpari_pt_find(&x->table, id);
    return at < x->head.own_count ? at : -1;
}

DPARI_INTERNAL int64_t dpari_pt_index(const dpari_points *x, int64_t id)
{
    const int64_t at = x->hashed ? -1 : dpari_pt_own_index(x, id);
    return at >= 0 ? at : dpari_pt_find(&x->table, id);
}

/* ---- mail -------------------------------------------------------------------------------------
 *
 * Numbers for other ranks, sorted by rank, and what comes of theirs. */
typedef struct dpari_pt_mail {
    dpar_comm *c;
    int64_t *count; /* [4 * size]: out, where; in, where */
    int64_t *out, *in;
    int64_t outs, ins;
    void *memory;
} dpari_pt_mail;

static void dpari_pt_add_up(const int64_t *count, int64_t *at, int32_t n, int64_t *all)
{
    int32_t i;
    *all = 0;
    for (i = 0; i < n; i++) {
        at[i] = *all;
        *all += count[i];
    }
}

DPARI_INTERNAL dpar_status dpari_pt_said(const dpar_comm *c, dpar_status st, dpar_why *why)
{
    return st == DPAR_OK ? st : dpari_repeat(st, why, c->why.text);
}

/* Begins an all-to-all of n numbers: counts them by destination, exchanges the counts and allocates
 * both sides. m->count + size then has the place of the next number for each rank. st is an error
 * from before. Collective. */
static dpar_status dpari_pt_open(dpari_pt_mail *m, dpar_comm *c, const int32_t *to, int64_t n,
                                 dpar_status st, dpar_why *why)
{
    const int32_t p = c->size;
    void *counts = NULL;
    int64_t i;
    dpari_zero(m, sizeof *m);
    m->c = c;
    if (st == DPAR_OK) {
        st = dpari_pt_said(c, dpar_comm_alloc(c, 4 * (int64_t)sizeof(int64_t) * p, &counts), why);
    }
    m->count = (int64_t *)counts;
    st = dpari_agree_on(c, st, "points", NULL, NULL, why);
    if (st != DPAR_OK) {
        return st;
    }
    for (i = 0; i < n; i++) {
        m->count[to[i]]++;
    }
    st = dpari_pt_said(c, dpar_all_to_all(c, m->count, m->count + 2 * p, 1, DPAR_I64, NULL), why);
    if (st == DPAR_OK) {
        dpari_pt_add_up(m->count, m->count + p, p, &m->outs);
        dpari_pt_add_up(m->count + 2 * p, m->count + 3 * p, p, &m->ins);
        st = dpari_pt_said(
            c, dpar_comm_alloc(c, (int64_t)sizeof(int64_t) * (m->outs + m->ins + 1), &m->memory),
            why);
    }
    m->out = (int64_t *)m->memory;
    m->in = m->out ? m->out + m->outs : NULL;
    return dpari_agree_on(c, st, "points", NULL, NULL, why);
}

/* out to their ranks; back: answers, which take the place of what came in. */
static dpar_status dpari_pt_go(dpari_pt_mail *m, int back, dpar_why *why)
{
    int64_t *n = m->count, *in = m->count + 2 * m->c->size;
    dpar_status st;
    if (back) {
        st = dpar_all_to_all_v(m->c, m->in, in, NULL, m->out, n, NULL, DPAR_I64, NULL);
    } else {
        st = dpar_all_to_all_v(m->c, m->out, n, NULL, m->in, in, NULL, DPAR_I64, NULL);
    }
    return dpari_pt_said(m->c, st, why);
}

static void dpari_pt_close(dpari_pt_mail *m)
{
    dpar_comm_release(m->c, m->memory);
    dpar_comm_release(m->c, m->count);
}

/* ---- owners -----------------------------------------------------------------------------------
 */

static dpar_status dpari_pt_nobody(const dpari_points *x, int64_t id, int64_t ghost, dpar_why *why)
{
    return dpari_wrong(why, "id %ld, ghost %ld of rank %d, is owned by no rank", id, ghost,
                       x->head.comm->rank);
}

/* The last rank whose first id is not above. */
static int32_t dpari_pt_holder(const int64_t *first, int32_t n, int64_t id)
{
    int32_t low = 0, high = n;
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (first[middle] <= id) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Ids go on from rank to rank. */
static dpar_status dpari_pt_by_range(dpari_points *x, const dpar_points_desc *d, int32_t *owner,
                                     dpar_why *why)
{
    dpar_comm *c = x->head.comm;
    const int64_t bytes = (int64_t)sizeof(int64_t) * 2 * c->size;
    int64_t *count, g, all = 0;
    void *memory = NULL;
    dpar_status st = dpari_pt_said(c, dpar_comm_alloc(c, bytes, &memory), why);
    st = dpari_agree_on(c, st, "points", NULL, NULL, why);
    if (st != DPAR_OK) {
        dpar_comm_release(c, memory);
        return st;
    }
    count = (int64_t *)memory;
    st = dpari_pt_said(c, dpar_all_gather(c, &d->own_count, count, 1, DPAR_I64, NULL), why);
    dpari_pt_add_up(count, count + c->size, c->size, &all);
    x->head.first_id = count[c->size + c->rank];
    for (g = 0; g < d->ghost_count && st == DPAR_OK; g++) {
        const int64_t id = d->ghost_id[g];
        if (id < 0 || id >= all) {
            st = dpari_pt_nobody(x, id, g, why);
        } else {
            owner[g] = dpari_pt_holder(count + c->size, c->size, id);
        }
    }
    dpar_comm_release(c, memory);
    return st;
}

static dpar_status dpari_pt_by_owner(const dpari_points *x, const dpar_points_desc *d,
                                     int32_t *owner, dpar_why *why)
{
    int64_t g, index[DPAR_MAX_DIMS];
    for (g = 0; g < d->ghost_count; g++) {
        owner[g] = d->owner ? d->owner[g]
                   : dpari_pt_element(d->layout, d->ghost_id[g], index)
                       ? dpar_layout_owner(d->layout, index, 0, NULL)
                       : -1;
        if (!d->owner && owner[g] < 0) {
            return dpari_pt_nobody(x, d->ghost_id[g], g, why);
        }
        if (owner[g] < 0 || owner[g] >= x->head.comm->size) {
            return dpari_wrong(why, "ghost %ld, id %ld: its owner is rank %d of %d", g,
                               d->ghost_id[g], owner[g], x->head.comm->size);
        }
    }
    return DPAR_OK;
}

static int32_t dpari_pt_home(int64_t id, int32_t ranks)
{
    return (int32_t)((dpari_pt_hash(0, id) >> 20) % (uint64_t)ranks);
}

/* Computes the home of each of n ids; it is later replaced by the place in what is sent there. */
static void dpari_pt_homes(const int64_t *id, int64_t n, int32_t ranks, int32_t *home)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        home[i] = dpari_pt_home(id[i], ranks);
    }
}

/* Puts the numbers of each where they go, and in place of the rank its place. */
static void dpari_pt_deal(dpari_pt_mail *m, const int64_t *number, int64_t n, int32_t *to)
{
    int64_t i, *next = m->count + m->c->size;
    for (i = 0; i < n; i++) {
        const int64_t at = next[to[i]]++;
        m->out[at] = number[i];
        to[i] = (int32_t)at;
    }
}

/* Enters the ids that owners have registered into the table of this home. */
static dpar_status dpari_pt_note(dpari_pt_table *t, const dpari_pt_mail *m, dpar_why *why)
{
    const int64_t *n = m->count + 2 * m->c->size;
    dpar_status st = DPAR_OK;
    int64_t k = 0, end = 0;
    int32_t r;
    for (r = 0; r < m->c->size; r++) {
        for (end += n[r]; k < end; k++) {
            const int64_t was = dpari_pt_put(t, m->in[k], r);
            if (was == r) {
                st = dpari_wrong(why, "id %ld is twice among the own ids of rank %d", m->in[k], r);
            } else if (was >= 0) {
                st = dpari_wrong(why, "id %ld is owned by two ranks, %ld and %d", m->in[k], was, r);
            }
        }
    }
    return st;
}

/* Runs rounds 1 and 2. `to` has as many elements as the larger of own and ghosts. */
static dpar_status dpari_pt_by_directory(dpari_points *x, const dpar_points_desc *d, int32_t *owner,
                                         int32_t *to, dpar_why *why)
{
    dpar_comm *c = x->head.comm;
    dpari_pt_mail m;
    dpari_pt_table t;
    int64_t bytes = 0, i;
    void *pages = NULL;
    dpar_status st;
    dpari_pt_homes(d->own_id, d->own_count, c->size, to);
    st = dpari_pt_open(&m, c, to, d->own_count, DPAR_OK, why);
    if (st == DPAR_OK) {
        dpari_pt_deal(&m, d->own_id, d->own_count, to);
        st = dpari_pt_go(&m, 0, why);
        bytes = dpari_pt_table_room(m.ins + 1) * (int64_t)sizeof(dpari_pt_entry);
        pages = st == DPAR_OK ? dpari_os_pages(bytes) : NULL;
    }
    if (pages) {
        dpari_pt_table_init(&t, (dpari_pt_entry *)pages, m.ins + 1);
        st = dpari_pt_note(&t, &m, why);
    } else if (st == DPAR_OK) {
        st = dpari_say(DPAR_E_MEMORY, why, "no memory for %ld ids", m.ins);
    }
    dpari_pt_close(&m);
    dpari_pt_homes(d->ghost_id, d->ghost_count, c->size, to);
    st = dpari_pt_open(&m, c, to, d->ghost_count, st, why);
    if (st == DPAR_OK) {
        dpari_pt_deal(&m, d->ghost_id, d->ghost_count, to);
        st = dpari_pt_go(&m, 0, why);
        for (i = 0; i < m.ins && st == DPAR_OK; i++) {
            m.in[i] = dpari_pt_find(&t, m.in[i]);
        }
        st = st == DPAR_OK ? dpari_pt_go(&m, 1, why) : st;
        for (i = 0; i < d->ghost_count && st == DPAR_OK; i++) {
            owner[i] = (int32_t)m.out[to[i]];
            st = owner[i] < 0 ? dpari_pt_nobody(x, d->ghost_id[i], i, why) : st;
        }
    }
    dpari_pt_close(&m);
    if (pages) {
        dpari_os_unmap(pages, bytes);
    }
    return st;
}

/* ---- order ------------------------------------------------------------------------------------
 */

/* Sorts id[0 .. n - 1] and what goes with each, by id, equal ones as they are; spare: n of each. */
static void dpari_pt_sort(int64_t *id, int32_t *with, int64_t n, int64_t *spare,
                          int32_t *spare_with)
{
    int64_t width, i, low;
    for (i = 1; i < n && id[i - 1] <= id[i]; i++) {
    }
    for (width = 1; width < n && i < n; width *= 2) {
        for (low = 0; low < n; low += 2 * width) {
            const int64_t middle = dpari_least(low + width, n);
            const int64_t high = dpari_least(low + 2 * width, n);
            int64_t a = low, b = middle, k;
            for (k = low; k < high; k++) {
                const int64_t from = b >= high || (a < middle && id[a] <= id[b]) ? a++ : b++;
                spare[k] = id[from];
                spare_with[k] = with[from];
            }
        }
        for (low = 0; low < n; low++) {
            id[low] = spare[low];
            with[low] = spare_with[low];
        }
    }
}

/* ---- lists of both sides ----------------------------------------------------------------------
 */

DPARI_INTERNAL void dpari_pt_both_free(dpari_pt_both *both)
{
    int32_t i;
    for (i = 0; i < 2; i++) {
        if (both->pages[i]) {
            dpari_os_unmap(both->pages[i], both->bytes[i]);
        }
    }
}

/* Pages for n numbers of 4 bytes and `more` of 8. */
static dpar_status dpari_pt_pages(dpari_pt_both *both, int32_t i, int64_t n, int64_t more,
                                  dpar_why *why)
{
    both->bytes[i] = 4 * n + 8 * more + 8;
    both->pages[i] = dpari_os_pages(both->bytes[i]);
    return both->pages[i]
               ? DPAR_OK
               : dpari_say(DPAR_E_MEMORY, why, "no memory: %ld bytes are needed for a while",
                           both->bytes[i]);
}

/* Sets the counts of both sides, and the list of what is sent. */
static dpar_status dpari_pt_set_both(dpari_pt_both *both, const dpari_pt_mail *m, int32_t size,
                                     dpar_why *why)
{
    const dpar_status st = dpari_pt_pages(both, 1, m->ins, 2 * size, why);
    int32_t r;
    if (st != DPAR_OK) {
        return st;
    }
    both->sends = (int64_t *)both->pages[1];
    both->receives = both->sends + size;
    both->send_at = (int32_t *)(void *)(both->receives + size);
    both->sent = m->ins;
    for (r = 0; r < size; r++) {
        both->receives[r] = m->count[r];
        both->sends[r] = m->count[2 * size + r];
    }
    return st;
}

/* Round 3, the owner's part: the ids that others read, as own values. */
static dpar_status dpari_pt_look_up(const dpari_points *x, const dpari_pt_mail *m,
                                    dpari_pt_both *both, dpar_why *why)
{
    int64_t k = 0, end = 0;
    int32_t r;
    for (r = 0; r < m->c->size; r++) {
        for (end += both->sends[r]; k < end; k++) {
            const int64_t at = dpari_pt_own_index(x, m->in[k]);
            if (at < 0) {
                return dpari_wrong(
                    why, "id %ld, which rank %d reads, is not among the own ids of rank %d",
                    m->in[k], r, m->c->rank);
            }
            both->send_at[k] = (int32_t)at;
        }
    }
    return DPAR_OK;
}

/* Sets the places of ghosts, in the order of what each rank sends, and enters them in the table.
 * `to` has their places in m->out. */
static void dpari_pt_set_places(dpari_points *x, const dpar_points_desc *d, dpari_pt_mail *m,
                                const int32_t *to, int32_t *spare, int64_t *spare_id,
                                dpari_pt_both *both)
{
    int64_t g, at = 0;
    int32_t r;
    for (g = 0; g < d->ghost_count; g++) {
        both->receive_at[to[g]] = (int32_t)g;
    }
    for (r = 0; r < m->c->size && d->order == DPAR_POINTS_ORDER_BY_OWNER; r++) {
        dpari_pt_sort(m->out + at, both->receive_at + at, m->count[r], spare_id, spare);
        at += m->count[r];
    }
    for (g = 0; g < d->ghost_count; g++) {
        const int sorted = d->order == DPAR_POINTS_ORDER_BY_OWNER;
        (void)dpari_pt_put(&x->table, sorted ? m->out[g] : d->ghost_id[g], d->own_count + g);
        both->receive_at[g] = sorted ? (int32_t)g : both->receive_at[g];
    }
}

/* Own ids into the table. */
static dpar_status dpari_pt_enter(dpari_points *x, const dpar_points_desc *d, dpar_why *why)
{
    int64_t i;
    dpari_pt_table_init(&x->table, x->table.entry, (x->hashed ? d->own_count : 0) + d->ghost_count);
    for (i = 0; i < d->own_count && x->hashed; i++) {
        const int64_t was = dpari_pt_put(&x->table, d->own_id[i], i);
        if (was >= 0) {
            return dpari_wrong(why, "id %ld is twice among the own ids of rank %d: %ld and %ld",
                               d->own_id[i], x->head.comm->rank, was, i);
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_by_ids(dpari_points *x, const dpar_points_desc *d,
                                                      dpari_pt_both *both, dpar_why *why)
{
    const int64_t most = dpari_most(d->own_count, d->ghost_count);
    dpari_pt_mail m;
    int32_t *owner, *to;
    int64_t *spare;
    dpar_status st = dpari_pt_pages(both, 0, 2 * d->ghost_count + most, d->ghost_count, why);
    st = st == DPAR_OK ? dpari_pt_enter(x, d, why) : st;
    st = dpari_agree_on(x->head.comm, st, "points", NULL, NULL, why);
    if (st != DPAR_OK) {
        return st;
    }
    spare = (int64_t *)both->pages[0];
    both->receive_at = (int32_t *)(void *)(spare + d->ghost_count);
    owner = both->receive_at + d->ghost_count;
    to = owner + d->ghost_count;
    st = x->given_owner || x->ruled ? dpari_pt_by_owner(x, d, owner, why)
         : x->hashed                ? dpari_pt_by_directory(x, d, owner, to, why)
                                    : dpari_pt_by_range(x, d, owner, why);
    st = dpari_pt_open(&m, x->head.comm, owner, d->ghost_count, st, why);
    if (st == DPAR_OK) {
        dpari_pt_deal(&m, d->ghost_id, d->ghost_count, owner);
        dpari_pt_set_places(x, d, &m, owner, to, spare, both);
        st = dpari_pt_go(&m, 0, why);
        st = st == DPAR_OK ? dpari_pt_set_both(both, &m, x->head.comm->size, why) : st;
        st = st == DPAR_OK ? dpari_pt_look_up(x, &m, both, why) : st;
        st = dpari_agree_on(x->head.comm, st, "points", NULL, NULL, why);
    }
    dpari_pt_close(&m);
    return st;
}

/* The lists of the caller, sorted by rank. */
static void dpari_pt_sort_lists(const dpar_points_desc *d, dpari_pt_both *both, int32_t size)
{
    const dpar_points_lists *l = d->lists;
    int64_t *send_next = (int64_t *)both->pages[0], *receive_next = send_next + size;
    int64_t all, s = 0, r = 0, k;
    int32_t i;
    dpari_pt_add_up(both->sends, send_next, size, &all);
    dpari_pt_add_up(both->receives, receive_next, size, &all);
    for (i = 0; i < l->peer_count; i++) {
        int64_t *send = &send_next[l->peer[i]], *receive = &receive_next[l->peer[i]];
        for (k = 0; k < l->send_count[i]; k++) {
            both->send_at[(*send)++] = l->send_index[s++];
        }
        for (k = 0; k < l->receive_count[i]; k++, r++) {
            both->receive_at[(*receive)++] =
                l->receive_index ? l->receive_index[r] - (int32_t)d->own_count : (int32_t)r;
        }
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_by_lists(dpari_points *x, const dpar_points_desc *d,
                                                        dpari_pt_both *both, dpar_why *why)
{
    const dpar_points_lists *l = d->lists;
    const int32_t size = x->head.comm->size;
    int64_t sent = 0, *told = NULL;
    dpar_status st;
    int32_t i;
    for (i = 0; i < l->peer_count; i++) {
        sent += l->send_count[i];
    }
    st = dpari_pt_pages(both, 0, d->ghost_count, 4 * size, why);
    st = st == DPAR_OK ? dpari_pt_pages(both, 1, sent, 2 * size, why) : st;
    st = dpari_agree_on(x->head.comm, st, "points", NULL, NULL, why);
    if (st != DPAR_OK) {
        return st;
    }
    told = (int64_t *)both->pages[0] + 2 * size;
    both->receive_at = (int32_t *)(void *)(told + 2 * size);
    both->sends = (int64_t *)both->pages[1];
    both->receives = both->sends + size;
    both->send_at = (int32_t *)(void *)(both->receives + size);
    both->sent = sent;
    for (i = 0; i < l->peer_count; i++) {
        both->sends[l->peer[i]] = l->send_count[i];
        both->receives[l->peer[i]] = l->receive_count[i];
    }
    st = dpari_pt_said(x->head.comm,
                       dpar_all_to_all(x->head.comm, both->sends, told, 1, DPAR_I64, NULL), why);
    for (i = 0; i < size && st == DPAR_OK; i++) {
        if (told[i] != both->receives[i]) {
            st = dpari_say(DPAR_E_MISMATCH, why,
                           "rank %d sends %ld values to rank %d, which receives %ld", i, told[i],
                           x->head.comm->rank, both->receives[i]);
        }
    }
    st = dpari_agree_on(x->head.comm, st, "points", NULL, NULL, why);
    if (st == DPAR_OK) {
        dpari_pt_sort_lists(d, both, size);
    }
    return st;
}

/* ==== points/points_wait.c ==== */

/* Waits for peers that share memory, and reports those that have died, are late or do something
 * else. It uses the waits of ../comm/group.h. Called by points_run.c. */

#define DPARI_PT_LOOK_EVERY 10e-3 /* seconds between two looks at peers while one tests */

DPARI_INTERNAL double dpari_pt_clock(const dpari_points *x)
{
    return x->timers ? dpari_os_now() : 0.0;
}

DPARI_INTERNAL void dpari_pt_count(dpari_points *x, int32_t phase, double began)
{
    if (x->timers) {
        x->seconds[phase] += dpari_os_now() - began;
    }
}

DPARI_INTERNAL dpar_status dpari_pt_broken(const dpari_points *x)
{
    return x->head.comm->status != DPAR_OK ? x->head.comm->status : x->node->status;
}

/* The rank in the plan's communicator of one of the world; -1: no peer. */
static int32_t dpari_pt_rank_of(const dpari_points *x, int32_t world)
{
    int32_t i;
    for (i = 0; i < x->head.peer_count; i++) {
        if (x->peer[i].world == world) {
            return x->peer[i].rank;
        }
    }
    return -1;
}

static void dpari_pt_put_kind(dpar_text *t, uint64_t kind)
{
    static const char name[4][20] = {"a forward exchange", "an adjoint (sum)", "an adjoint (max)",
                                     "an adjoint (min)"};
    dpar_text_put(t, name[kind & DPARI_PT_OP]);
}

static dpar_status dpari_pt_break(dpari_points *x, dpar_status status, const char *text)
{
    status = dpari_group_break(dpari_group_of(x->node), status, text);
    if (x->node != x->head.comm) {
        dpar_comm_abort(x->head.comm, status, x->node->why.text);
    }
    return status;
}

static void dpari_pt_begin_sentence(const dpari_points *x, dpar_text *t, dpar_why *why)
{
    dpar_text_init(t, why->text, sizeof why->text);
    dpari_text_print(t, "points exchange #%ld of %d %s: ", x->count, x->vectors,
                     x->vectors == 1 ? "vector" : "vectors");
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_differs(dpari_points *x, int32_t i, uint64_t kind)
{
    dpar_why why;
    dpar_text t;
    dpari_pt_begin_sentence(x, &t, &why);
    dpari_text_print(&t, "rank %d runs ", x->peer[i].rank);
    dpari_pt_put_kind(&t, kind);
    dpari_text_print(&t, ", rank %d ", x->head.comm->rank);
    dpari_pt_put_kind(&t, x->kind);
    dpar_text_put(&t, (kind & DPARI_PT_OP) == (x->kind & DPARI_PT_OP) ? " of other vectors" : "");
    return dpari_pt_break(x, DPAR_E_MISMATCH, why.text);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_unreachable(dpari_points *x, uint64_t ref)
{
    const dpar_status status = dpari_group_unmapped(x->node, ref);
    if (x->node != x->head.comm) {
        dpar_comm_abort(x->head.comm, status, x->node->why.text);
    }
    return status;
}

static DPARI_COLD dpar_status dpari_pt_fail(dpari_points *x, dpar_status status, int32_t i,
                                            const dpari_peer_wait *q)
{
    const dpari_group *g = dpari_group_of(x->node);
    const dpari_pt_peer *p = &x->peer[i];
    const int32_t late = status == DPAR_E_TIMEOUT ? dpari_pt_rank_of(x, q->who) : p->rank;
    dpar_why why;
    dpar_text t;
    dpari_pt_begin_sentence(x, &t, &why);
    if (late >= 0) {
        dpari_text_print(&t, "rank %d", late);
    } else {
        dpari_text_print(&t, "rank %d of the world", q->who);
    }
    dpari_put_place(&t, g);
    if (status == DPAR_E_PEER && dpari_rank_state(x->world, p->world) == DPARI_RANK_HERE) {
        dpar_text_put(&t, " closed the communicator or returned");
        dpari_put_failed(&t, x->world, p->world);
    } else if (status == DPAR_E_PEER) {
        dpari_put_ending(&t, x->world, p->world);
    } else if (status == DPAR_E_TIMEOUT) {
        dpari_text_print(&t, " did not come in %.1f s", q->waited);
        if (q->links > 0) {
            dpari_text_print(&t, "; rank %d waits for it", p->rank);
        }
    } else {
        dpari_put_crossed(&t, g, p->world, q->in);
        dpar_text_put(&t, " instead");
    }
    return dpari_pt_break(x, status, why.text);
}

/* Messages and other work that is under way. */
static void dpari_pt_progress(void *exchange)
{
    dpari_points *x = (dpari_points *)exchange;
    int32_t i;
    dpari_shm_progress_all(x->node);
    if (x->node != x->head.comm) {
        for (i = 0; i < x->receives_posted + x->sends_posted; i++) {
            (void)dpar_test(&x->work[i]);
        }
        (void)x->head.comm->engine.progress(x->head.comm, 0);
    }
}

static DPARI_COLD dpar_status dpari_pt_await_slowly(dpari_points *x, int32_t i,
                                                    const uint64_t *word, uint64_t value)
{
    const double began = dpari_pt_clock(x);
    dpari_peer_wait q;
    dpar_status status;
    dpari_zero(&q, sizeof q);
    q.comm = x->head.comm;
    q.group = dpari_group_of(x->node);
    q.peer = x->peer[i].world;
    q.ready = &x->peer[i].line->ready;
    q.shift = 16;
    q.count = x->count;
    q.progress = dpari_pt_progress;
    q.exchange = x;
    status = dpari_peer_await(&q, word, value);
    dpari_pt_count(x, DPARI_PT_WAITING, began);
    return status == DPAR_OK || dpari_pt_broken(x) != DPAR_OK ? status
                                                              : dpari_pt_fail(x, status, i, &q);
}

DPARI_INTERNAL dpar_status dpari_pt_await(dpari_points *x, int32_t i, const uint64_t *word,
                                          uint64_t value, int wait)
{
    double now;
    dpar_status st;
    if (DPARI_LOAD(word) >= value) {
        return DPAR_OK;
    }
    if (wait == DPARI_PT_PEEK) {
        return DPAR_MORE;
    }
    if (wait) {
        return dpari_pt_await_slowly(x, i, word, value);
    }
    now = dpari_os_now();
    if (now - x->looked < DPARI_PT_LOOK_EVERY) {
        return DPAR_MORE;
    }
    x->looked = now;
    st = dpari_peer_look(x->head.comm, dpari_group_of(x->node), x->peer[i].world);
    if (st == DPAR_E_PEER && DPARI_LOAD(word) < value) {
        st = dpari_pt_fail(x, st, i, NULL);
    }
    return st == DPAR_OK || DPARI_LOAD(word) >= value ? DPAR_MORE : st;
}

/* ==== points/points_run.c ==== */

/* Runs exchanges of points: begin, test and end, forward and adjoint.
 *
 * points_plan.h has the protocol. Values are packed peer after peer into staging memory, published
 * by `ready` or posted as messages, and taken into ghosts, or combined into owners in the order of
 * ranks. Long runs in registered memory are read in place. */

enum { DPARI_PT_TAKING, DPARI_PT_LEAVING };

/* ---- vectors ----------------------------------------------------------------------------------
 */

/* A vector as the caller names it: E_ARG with a message in c->why. */
static dpar_status dpari_pt_check_vector(const dpari_points *x, const dpar_points_field *v,
                                         int32_t i)
{
    dpar_comm *c = x->head.comm;
    const int32_t n = v->components > 0 ? v->components : 1;
    const int64_t own = x->head.own_count, all = own + x->head.ghost_count;
    if (dpar_type_bytes(v->type) == 0 || v->components < 0 || v->components > 1 << 20) {
        return dpari_comm_wrong(c, "vector %d: %d components of %s", i, v->components,
                                dpar_type_name(v->type));
    }
    if (v->stride < 0 || v->component_stride < 0 || v->stride > INT64_C(1) << 31 ||
        v->component_stride > INT64_C(1) << 40 ||
        (v->component_stride <= 1 && v->stride > 0 && v->stride < n)) {
        return dpari_comm_wrong(c, "vector %d: stride %ld, component_stride %ld for %d components",
                                i, v->stride, v->component_stride, n);
    }
    if ((!v->data && (own > 0 || (all > 0 && !v->ghosts))) ||
        (!v->ghosts && !v->data && all > own)) {
        return dpari_comm_wrong(c, "vector %d: data is NULL, %ld values lie there", i,
                                v->ghosts ? own : all);
    }
    return DPAR_OK;
}

static void dpari_pt_place_vector(const dpari_points *x, const dpar_points_field *v,
                                  dpari_pt_vector *to)
{
    to->own = (unsigned char *)v->data;
    to->ghosts = v->ghosts ? (unsigned char *)v->ghosts
                           : (v->data ? to->own + x->head.own_count * to->stride : NULL);
}

static void dpari_pt_set_vector(const dpari_points *x, const dpar_points_field *v,
                                dpari_pt_vector *to)
{
    const int64_t bytes = dpar_type_bytes(v->type);
    const int32_t n = v->components > 0 ? v->components : 1;
    const int together = v->component_stride <= 1;
    const int64_t stride = v->stride > 0 ? v->stride : together ? n : 1;
    to->type = v->type;
    to->pieces = together ? 1 : n;
    to->numbers = together ? n : 1;
    to->size = bytes * to->numbers;
    to->point = bytes * n;
    to->stride = bytes * stride;
    to->component = together ? bytes : bytes * v->component_stride;
    dpari_pt_place_vector(x, v, to);
    to->ref = 0;
    if (x->shared > 0 && x->way != DPAR_POINTS_PACKED && v->data) {
        to->ref = dpari_ref(x->world, v->data, 1);
    }
}

/* Returns the bytes at the beginning of a turn, which hold the vectors' places. Packed values
 * follow. */
static int64_t dpari_pt_places_bytes(int64_t n)
{
    const int64_t bytes = n * (int64_t)sizeof(dpari_pt_place);
    return (bytes + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
}

static int64_t dpari_pt_packed_bytes(const dpari_points *x, int64_t n, int64_t point)
{
    return dpari_pt_begins(dpari_most(x->sends, x->receives), x->head.peer_count, point, n) +
           DPARI_LINE;
}

/* Waits until peers have taken what they were given in exchange `last`. */
static dpar_status dpari_pt_await_done(dpari_points *x, int64_t last)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    for (i = 0; i < x->head.peer_count && st == DPAR_OK && last > 0; i++) {
        if (x->peer[i].world >= 0 && i != x->self && x->peer[i].seen <= last) {
            st = dpari_pt_await(x, i, &x->peer[i].line->done, (uint64_t)last, 1);
        }
    }
    return st;
}

/* Staging memory for n vectors of so many bytes a point. */
static DPARI_COLD dpar_status dpari_pt_grow(dpari_points *x, int64_t n, int64_t point)
{
    const int64_t head = dpari_room_up(n * (int64_t)sizeof(dpari_pt_vector)) + DPARI_LINE;
    const int64_t places = dpari_pt_places_bytes(n), packed = dpari_pt_packed_bytes(x, n, point);
    const int64_t vectors = (head + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
    const int beside = x->messages_to > 0; /* what arrives, and what is packed beside */
    dpar_comm *of = x->world ? x->node : x->head.comm;
    void *memory = NULL;
    dpar_status st = dpari_pt_await_done(x, x->count);
    if (st != DPAR_OK) {
        return st;
    }
    dpar_comm_release(of, x->staging);
    x->staging = NULL;
    st = dpar_comm_alloc(of, vectors + 2 * (places + packed) + (beside + 1) * packed, &memory);
    if (st != DPAR_OK) {
        dpar_why why = of->why;
        return dpari_comm_wrong_all(x->head.comm, st, &why);
    }
    x->staging = (unsigned char *)memory;
    x->vector = (dpari_pt_vector *)memory;
    x->staging_vectors = n;
    x->staging_turn = places + packed;
    x->turns = x->staging + vectors;
    x->aside = x->turns + 2 * x->staging_turn;
    x->arrivals = x->aside + packed;
    if (x->shared > 0) {
        x->line->turns = dpari_ref(x->world, x->turns, 1);
        x->line->turn_bytes = x->staging_turn;
    }
    return DPAR_OK;
}

/* What ranks must name alike. */
static uint64_t dpari_pt_kind(const dpari_points *x, const dpar_points_field *v, int32_t n)
{
    uint64_t h = dpari_hash(0, n);
    int32_t i;
    for (i = 0; i < n; i++) {
        h = dpari_hash(h, v[i].type + 64 * (int64_t)(v[i].components > 0 ? v[i].components : 1));
    }
    return (h & (DPARI_PT_KIND - DPARI_PT_OP)) | (uint64_t)(!x->adjoint         ? 0
                                                            : x->op == DPAR_SUM ? 1
                                                            : x->op == DPAR_MAX ? 2
                                                                                : 3);
}

/* True if there is one vector, with the type, components and strides of the one before, so that it
 * need not be checked again. Its address may differ. (Plans whose peers read in place are excluded,
 * because memory at the same address may be other memory by now.) */
static int dpari_pt_is_named(const dpari_points *x, const dpar_points_field *v, int32_t n)
{
    const dpar_points_field *a = &x->named;
    return n == 1 && x->vectors == 1 && x->shared == 0 && v && v->data && v->type == a->type &&
           !v->ghosts == !a->ghosts && v->components == a->components && v->stride == a->stride &&
           v->component_stride == a->component_stride;
}

/* Checks and stores the vectors that the caller passes. */
static dpar_status dpari_pt_name(dpari_points *x, const dpar_points_field *v, int32_t n)
{
    dpar_comm *c = x->head.comm;
    dpar_status st = DPAR_OK;
    int64_t point = 0;
    int32_t i;
    if (dpari_pt_is_named(x, v, n)) {
        dpari_pt_place_vector(x, v, x->vector);
        return DPAR_OK;
    }
    x->named.type = DPAR_TYPE_NONE;
    x->again = 0;
    if (n < 1 || n > DPARI_PT_MOST || !v) {
        return dpari_comm_wrong(c, "points exchange of %d vectors: 1 to %d are possible", v ? n : 0,
                                (int32_t)DPARI_PT_MOST);
    }
    for (i = 0; i < n && st == DPAR_OK; i++) {
        st = dpari_pt_check_vector(x, &v[i], i);
        point += st == DPAR_OK
                     ? dpar_type_bytes(v[i].type) * (v[i].components > 0 ? v[i].components : 1)
                     : 0;
    }
    if (st == DPAR_OK &&
        (n > x->staging_vectors ||
         dpari_pt_places_bytes(n) + dpari_pt_packed_bytes(x, n, point) > x->staging_turn)) {
        st = dpari_pt_grow(x, n, point);
    }
    for (i = 0; i < n && st == DPAR_OK; i++) {
        dpari_pt_set_vector(x, &v[i], &x->vector[i]);
    }
    x->vectors = n;
    x->point = point;
    if (st == DPAR_OK && n == 1) {
        x->named = v[0];
    }
    return st;
}

/* ---- giving -----------------------------------------------------------------------------------
 */

/* Messages have left when an exchange ends: they alone need no second turn. */
static unsigned char *dpari_pt_turn(const dpari_points *x)
{
    return x->turns + (x->shared > 0 ? x->count & 1 : 0) * x->staging_turn;
}

static unsigned char *dpari_pt_packed(const dpari_points *x)
{
    return dpari_pt_turn(x) + dpari_pt_places_bytes(x->vectors);
}

/* Returns where the values that this rank packs for a peer begin, counted over all peers, */
static int64_t dpari_pt_out_at(const dpari_points *x, int32_t i)
{
    const dpari_pt_peer *p = &x->peer[i];
    return dpari_pt_begins(x->adjoint ? p->receives_before : p->sends_before, i, x->point,
                           x->vectors);
}

/* and where a peer has packed those for this rank, in the peer's memory. */
static int64_t dpari_pt_in_at(const dpari_points *x, int32_t i)
{
    const dpari_pt_record *r = &x->peer[i].theirs;
    return dpari_pt_begins(x->adjoint ? r->receives_before : r->sends_before, r->number, x->point,
                           x->vectors);
}

/* The list that a rank gives by, and takes by. */
static const dpari_pt_list *dpari_pt_gives(const dpari_points *x, const dpari_pt_peer *p)
{
    return x->adjoint ? &p->receive : &p->send;
}

static const dpari_pt_list *dpari_pt_takes(const dpari_points *x, const dpari_pt_peer *p)
{
    return x->adjoint ? &p->send : &p->receive;
}

static dpari_pt_side dpari_pt_side_of(const dpari_pt_vector *v, int ghosts, int32_t piece)
{
    dpari_pt_side s;
    s.at = (ghosts ? v->ghosts : v->own) + piece * v->component;
    s.stride = v->stride;
    return s;
}

static dpari_pt_side dpari_pt_dense_side(const dpari_pt_vector *v, unsigned char *at, int32_t piece)
{
    dpari_pt_side s;
    s.at = at + piece * v->size;
    s.stride = v->point;
    return s;
}

/* All of a message is one piece of the vector: it need not be packed. */
static int dpari_pt_is_whole(const dpari_points *x, const dpari_pt_list *l)
{
    return x->vectors == 1 && l->kind == DPARI_PT_ONE && x->vector[0].pieces == 1 &&
           x->vector[0].stride == x->vector[0].size;
}

/* Returns the packed bytes of `values` values of all vectors. */
static int64_t dpari_pt_bytes(const dpari_points *x, int64_t values)
{
    int64_t bytes = 0;
    int32_t i;
    if (x->vectors == 1) {
        return values * x->point;
    }
    for (i = 0; i < x->vectors && values > 0; i++) {
        bytes += dpari_pt_block(values, x->vector[i].point);
    }
    return bytes;
}

/* True if a peer reads this vector in place. */
static int dpari_pt_lends(const dpari_points *x, const dpari_pt_peer *p, const dpari_pt_vector *v)
{
    return !x->adjoint && p->world >= 0 &&
           dpari_pt_is_direct(x, v->ref, v->size, p->send.count, p->send.runs);
}

/* Prefetches all these lines of 64 bytes for writing. If only one line of a pair were prefetched,
 * the hardware would fetch the other one for reading only, and a write to it would wait twice
 * (measured: 4.5 us instead of 2.5 for 8 KiB). */
static void dpari_pt_own_lines(const unsigned char *at, int64_t bytes)
{
#if defined(__GNUC__)
    int64_t k;
    for (k = 0; k < bytes; k += 64) {
#if defined(__x86_64__)
        __asm__ volatile("prefetchw %0" : : "m"(at[k]));
#else
        __builtin_prefetch(at + k, 1);
#endif
    }
#else
    (void)at;
    (void)bytes;
#endif
}

/* Into memory that another core read before: its cache has the lines, which come a bite ahead of
 * the copy. Scattered values are first gathered beside, then written at once. */
static void dpari_pt_pack_shared(const dpari_points *x, const dpari_pt_vector *v,
                                 const dpari_pt_list *l, dpari_pt_side mine, unsigned char *to)
{
    const int64_t all = l->count * v->size, bite = dpari_most(DPARI_PT_BITE / v->size, 1);
    const int beside = l->kind == DPARI_PT_EACH || v->stride != v->size;
    dpari_pt_list part = *l;
    int64_t k;
    dpari_pt_own_lines(to, dpari_least(all, bite * v->size));
    for (k = 0; k < l->count; k += part.count) {
        const int64_t at = k * v->size, next = at + bite * v->size;
        dpari_pt_list dense;
        part.count = dpari_least(bite, l->count - k);
        part.at = l->kind == DPARI_PT_EACH ? l->at + k : NULL;
        part.first = (int32_t)(l->first + k * (l->step != 0 ? l->step : 1));
        dense = dpari_pt_dense(part.count);
        dpari_pt_own_lines(to + next, dpari_least(all - next, bite * v->size));
        dpari_pt_move(&dense, dpari_pt_dense_side(v, beside ? x->aside : to + at, 0), &part, mine,
                      v->size);
        if (beside) {
            dpari_elements_bits(to + at, x->aside, (size_t)(part.count * v->size));
        }
    }
}

/* A vector into what is packed for a peer, which may share the memory. */
static void dpari_pt_pack_vector(dpari_points *x, const dpari_pt_vector *v, const dpari_pt_list *l,
                                 unsigned char *to, int shared)
{
    const dpari_pt_list dense = dpari_pt_dense(l->count);
    const int bites = shared && l->kind != DPARI_PT_RUNS && v->pieces == 1;
    const int aside = shared && !bites;
    int32_t piece;
    for (piece = 0; piece < v->pieces; piece++) {
        const dpari_pt_side mine = dpari_pt_side_of(v, x->adjoint, piece);
        if (bites) {
            dpari_pt_pack_shared(x, v, l, mine, to);
        } else {
            dpari_pt_move(&dense, dpari_pt_dense_side(v, aside ? x->aside : to, piece), l, mine,
                          v->size);
        }
        if (x->adjoint) {
            dpari_pt_clear(l, mine, v->size);
        }
    }
    if (aside) {
        dpari_elements_bits(to, x->aside, (size_t)(l->count * v->point));
    }
}

/* Packs what peer i gets of the vectors, but for those that it reads where they lie. Returns where.
 */
static unsigned char *dpari_pt_pack(dpari_points *x, int32_t i)
{
    dpari_pt_peer *p = &x->peer[i];
    const dpari_pt_list *l = dpari_pt_gives(x, p);
    unsigned char *const out = dpari_pt_packed(x) + dpari_pt_out_at(x, i), *to = out;
    int32_t k;
    p->reads = 0;
    for (k = 0; k < x->vectors && l->count > 0; k++) {
        const dpari_pt_vector *v = &x->vector[k];
        if (dpari_pt_lends(x, p, v)) {
            p->reads = 1;
        } else {
            dpari_pt_pack_vector(x, v, l, to, p->world >= 0 && i != x->self);
        }
        to += x->vectors == 1 ? 0 : dpari_pt_block(l->count, v->point);
    }
    return out;
}

/* Publishes that all is packed, and the references of vectors that are read in place. */
static void dpari_pt_tell(dpari_points *x)
{
    dpari_pt_place *place = (dpari_pt_place *)(void *)dpari_pt_turn(x);
    uint64_t word = (uint64_t)x->count << 16 | x->kind;
    int32_t i, k;
    for (i = 0; i < x->head.peer_count; i++) {
        word |= x->peer[i].reads ? (uint64_t)DPARI_PT_LENT : 0;
    }
    for (k = 0; k < x->vectors && (word & DPARI_PT_LENT); k++) {
        place[k].ref = x->vector[k].ref;
        place[k].stride = x->vector[k].stride;
        place[k].component = x->vector[k].component;
        place[k].size = x->vector[k].size;
    }
    dpari_publish(x->world, &x->line->ready, word);
}

/* ---- messages ---------------------------------------------------------------------------------
 */

static void dpari_pt_call(dpari_points *x, int32_t n, const dpari_pt_peer *p, int32_t kind,
                          unsigned char *at, int64_t bytes)
{
    dpar_call *call = &x->call[n]; /* zero but for what is said here */
    call->kind = kind;
    call->type = DPAR_U8;
    call->root = p->rank;
    call->tag = x->tag;
    call->count = bytes;
    call->in = kind == DPAR_CALL_SEND ? at : NULL;
    call->out = kind == DPAR_CALL_SEND ? NULL : at;
}

/* Receives come first, so that what arrives has its place: into the ghosts where they are one
 * piece. */
static dpar_status dpari_pt_receive(dpari_points *x)
{
    int32_t i, n = 0;
    for (i = 0; i < x->head.peer_count; i++) {
        dpari_pt_peer *p = &x->peer[i];
        const dpari_pt_list *l = dpari_pt_takes(x, p);
        if (p->world >= 0 || l->count == 0) {
            continue;
        }
        p->in_place = !x->adjoint && dpari_pt_is_whole(x, l);
        p->arrives = p->in_place ? x->vector[0].ghosts + l->first * x->vector[0].stride
                                 : x->arrivals + dpari_pt_begins(x->adjoint ? p->sends_before
                                                                            : p->receives_before,
                                                                 i, x->point, x->vectors);
        dpari_pt_call(x, n++, p, DPAR_CALL_RECV, p->arrives, dpari_pt_bytes(x, l->count));
    }
    x->receives_posted = n;
    return n > 0 ? dpari_batch_checked(x->head.comm, x->call, n, x->work) : DPAR_OK;
}

/* Packs for those that get messages, and sends. */
static dpar_status dpari_pt_send(dpari_points *x)
{
    int32_t i, n = x->receives_posted;
    for (i = 0; i < x->head.peer_count; i++) {
        dpari_pt_peer *p = &x->peer[i];
        const dpari_pt_list *l = dpari_pt_gives(x, p);
        unsigned char *from;
        if (p->world >= 0 || l->count == 0) {
            continue;
        }
        if (!x->adjoint && dpari_pt_is_whole(x, l)) {
            from = x->vector[0].own + l->first * x->vector[0].stride;
        } else {
            from = dpari_pt_pack(x, i);
        }
        dpari_pt_call(x, n++, p, DPAR_CALL_SEND, from, dpari_pt_bytes(x, l->count));
    }
    x->sends_posted = n - x->receives_posted;
    return x->sends_posted > 0 ? dpari_batch_checked(x->head.comm, x->call + x->receives_posted,
                                                     x->sends_posted, x->work + x->receives_posted)
                               : DPAR_OK;
}

/* ---- messages of the exchange before, posted again --------------------------------------------
 *
 * A solver runs one exchange over and over: forward, of one vector, by messages alone, into ghosts
 * that lie in one piece each. Its calls stay; where the vector lies is put into them. */

static int dpari_pt_may_repeat(const dpari_points *x)
{
    int32_t i;
    for (i = 0; i < x->head.peer_count; i++) {
        if (x->peer[i].world >= 0 || (x->peer[i].receive.count > 0 && !x->peer[i].in_place)) {
            return 0;
        }
    }
    return x->vectors == 1 && x->vector[0].pieces == 1 && !x->adjoint;
}

static dpar_status dpari_pt_post_again(dpari_points *x)
{
    const dpari_pt_vector *v = x->vector;
    dpar_call *call = x->call;
    dpar_status st;
    int32_t i;
    for (i = 0; i < x->head.peer_count; i++) {
        const dpari_pt_list *l = &x->peer[i].receive;
        x->peer[i].taken = 0;
        if (l->count > 0) {
            call++->out = v->ghosts + l->first * v->stride;
        }
    }
    st = dpari_batch_checked(x->head.comm, x->call, x->receives_posted, x->work);
    for (i = 0; i < x->head.peer_count && st == DPAR_OK; i++) {
        const dpari_pt_list *l = &x->peer[i].send;
        if (l->count > 0 && dpari_pt_is_whole(x, l)) {
            call++->in = v->own + l->first * v->stride;
        } else if (l->count > 0) {
            const dpari_pt_list dense = dpari_pt_dense(l->count);
            unsigned char *to = (unsigned char *)(uintptr_t)call++->in;
            dpari_pt_move(&dense, dpari_pt_dense_side(v, to, 0), l, dpari_pt_side_of(v, 0, 0),
                          v->size);
        }
    }
    return st != DPAR_OK ? st
                         : dpari_batch_checked(x->head.comm, x->call + x->receives_posted,
                                               x->sends_posted, x->work + x->receives_posted);
}

/* ---- taking -----------------------------------------------------------------------------------
 */

/* What was packed, into ghosts, or combined with own values. */
static void dpari_pt_unpack(const dpari_points *x, const dpari_pt_peer *p, unsigned char *from)
{
    const dpari_pt_list *l = dpari_pt_takes(x, p);
    const dpari_pt_list dense = dpari_pt_dense(l->count);
    int32_t k, piece;
    for (k = 0; k < x->vectors; k++) {
        const dpari_pt_vector *v = &x->vector[k];
        for (piece = 0; piece < v->pieces; piece++) {
            const dpari_pt_side mine = dpari_pt_side_of(v, !x->adjoint, piece);
            const dpari_pt_side theirs = dpari_pt_dense_side(v, from, piece);
            if (x->adjoint) {
                dpari_pt_combine(l, mine, theirs, v->numbers, v->type, x->op);
            } else {
                dpari_pt_move(l, mine, &dense, theirs, v->size);
            }
        }
        from += x->vectors == 1 ? 0 : dpari_pt_block(l->count, v->point);
    }
}

/* A vector of the giver, read where it lies by its list: in the shorter passes of both. */
static dpar_status dpari_pt_read(dpari_points *x, const dpari_pt_peer *p, const dpari_pt_vector *v,
                                 const dpari_pt_place *place)
{
    const int64_t size = dpari_least(v->size, place->size);
    unsigned char *at = (unsigned char *)dpari_at(x->world, place->ref);
    dpari_pt_side theirs;
    int32_t piece;
    if (at == NULL) {
        return dpari_pt_unreachable(x, place->ref);
    }
    for (piece = 0; piece < v->point / size; piece++) {
        theirs.at = at + piece * place->component;
        theirs.stride = place->stride;
        dpari_pt_move(&p->receive, dpari_pt_side_of(v, 1, piece), &p->source, theirs, size);
    }
    return DPAR_OK;
}

/* The turn of a peer that is ready; NULL: there are no addresses for it. */
static unsigned char *dpari_pt_their_turn(const dpari_points *x, dpari_pt_peer *p)
{
    if (p->turns != p->line->turns) {
        p->at = (unsigned char *)dpari_at(x->world, p->line->turns);
        if (p->at == NULL) {
            return NULL;
        }
        p->turns = p->line->turns;
    }
    return p->at + (x->count & 1) * p->line->turn_bytes;
}

/* From a rank that shares memory and is ready. */
static dpar_status dpari_pt_take_shared(dpari_points *x, int32_t i)
{
    dpari_pt_peer *p = &x->peer[i];
    unsigned char *turn = dpari_pt_their_turn(x, p);
    const dpari_pt_place *place = (const dpari_pt_place *)(const void *)turn;
    unsigned char *from;
    const dpari_pt_list dense = dpari_pt_dense(p->receive.count);
    int32_t k, piece;
    dpar_status st = DPAR_OK;
    if (turn == NULL) {
        return dpari_pt_unreachable(x, p->line->turns);
    }
    from = turn + dpari_pt_places_bytes(x->vectors) + dpari_pt_in_at(x, i);
    if (x->adjoint) {
        dpari_pt_unpack(x, p, from);
        return DPAR_OK;
    }
    for (k = 0; k < x->vectors && p->receive.count > 0 && st == DPAR_OK; k++) {
        const dpari_pt_vector *v = &x->vector[k];
        if (p->lends &&
            dpari_pt_is_direct(x, place[k].ref, place[k].size, p->source.count, p->source.runs)) {
            st = dpari_pt_read(x, p, v, &place[k]);
        } else {
            for (piece = 0; piece < v->pieces; piece++) {
                dpari_pt_move(&p->receive, dpari_pt_side_of(v, 1, piece), &dense,
                              dpari_pt_dense_side(v, from, piece), v->size);
            }
        }
        from += x->vectors == 1 ? 0 : dpari_pt_block(p->receive.count, v->point);
    }
    return st;
}

/* This rank's own values that it reads as ghosts: at once, or of an adjoint out of what it packed.
 */
static void dpari_pt_take_self(dpari_points *x)
{
    const dpari_pt_peer *p = &x->peer[x->self];
    int32_t k, piece;
    if (x->adjoint) {
        dpari_pt_unpack(x, p, dpari_pt_packed(x) + dpari_pt_out_at(x, x->self));
        return;
    }
    for (k = 0; k < x->vectors; k++) {
        const dpari_pt_vector *v = &x->vector[k];
        for (piece = 0; piece < v->pieces; piece++) {
            dpari_pt_move(&p->receive, dpari_pt_side_of(v, 1, piece), &p->send,
                          dpari_pt_side_of(v, 0, piece), v->size);
        }
    }
}

/* Waits until the peer is ready, and checks that it runs the same exchange. */
static dpar_status dpari_pt_meet(dpari_points *x, int32_t i, int wait)
{
    dpari_pt_peer *p = &x->peer[i];
    const dpar_status st = dpari_pt_await(x, i, &p->line->ready, (uint64_t)x->count << 16, wait);
    const uint64_t word = DPARI_LOAD(&p->line->ready);
    if (st != DPAR_OK) {
        return st;
    }
    p->seen = (int64_t)(word >> 16);
    p->lends = (word & DPARI_PT_LENT) != 0 && p->seen == x->count;
    x->lent |= p->lends;
    return p->seen == x->count && (word & DPARI_PT_KIND) != x->kind
               ? dpari_pt_differs(x, i, word & DPARI_PT_KIND)
               : st;
}

/* Work n of messages: who is to wait need not test before, as messages go on by themselves. */
static dpar_status dpari_pt_message(dpari_points *x, int32_t n, int wait)
{
    const double began = dpari_pt_clock(x);
    const dpar_status st = wait == DPARI_PT_PEEK ? DPAR_MORE
                           : wait                ? dpar_wait(&x->work[n])
                                                 : dpar_test(&x->work[n]);
    dpari_pt_count(x, DPARI_PT_WAITING, began);
    return st;
}

/* All messages of an exchange that was posted again. */
static dpar_status dpari_pt_end_again(dpari_points *x)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    for (i = 0; i < x->receives_posted + x->sends_posted && st == DPAR_OK; i++) {
        st = dpari_pt_message(x, i, 1);
    }
    return st;
}

/* Takes from peer i, whose message is work n. */
static dpar_status dpari_pt_take(dpari_points *x, int32_t i, int32_t n, int wait)
{
    dpari_pt_peer *p = &x->peer[i];
    dpar_status st = i == x->self    ? DPAR_OK
                     : p->world >= 0 ? dpari_pt_meet(x, i, wait)
                                     : dpari_pt_message(x, n, wait);
    double began;
    if (st != DPAR_OK) {
        return st;
    }
    began = dpari_pt_clock(x);
    if (i == x->self) {
        dpari_pt_take_self(x);
    } else if (p->world >= 0) {
        st = dpari_pt_take_shared(x, i);
    } else if (!p->in_place) {
        dpari_pt_unpack(x, p, p->arrives);
    }
    dpari_pt_count(x, DPARI_PT_COPYING, began);
    p->taken = st == DPAR_OK;
    return st;
}

/* From all peers: forward as they come, adjoint in the order of their ranks. */
static dpar_status dpari_pt_take_all(dpari_points *x, int wait)
{
    dpar_status all = DPAR_OK;
    int32_t i, pass, n;
    for (pass = !wait                          ? 0
                : x->adjoint || x->shared == 0 ? 1
                                               : DPARI_PT_PEEK;
         pass <= wait; pass += 2) {
        all = DPAR_OK;
        for (i = 0, n = 0; i < x->head.peer_count; i++) {
            dpari_pt_peer *p = &x->peer[i];
            const int comes = dpari_pt_takes(x, p)->count > 0;
            const int32_t message = n;
            dpar_status st;
            n += comes && p->world < 0;
            if (p->taken || !comes) {
                continue;
            }
            st = dpari_pt_take(x, i, message, pass);
            if (st == DPAR_MORE && !x->adjoint) {
                all = DPAR_MORE;
            } else if (st != DPAR_OK) {
                return st;
            }
        }
        if (all == DPAR_OK) {
            break;
        }
    }
    return all;
}

/* Waits until peers have read this rank's vectors, and until messages have been sent. */
static dpar_status dpari_pt_leave(dpari_points *x, int wait)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    for (i = 0; i < x->head.peer_count && st == DPAR_OK; i++) {
        if (x->peer[i].reads && i != x->self) {
            st = dpari_pt_await(x, i, &x->peer[i].line->done, (uint64_t)x->count, wait);
        }
    }
    for (i = 0; i < x->sends_posted && st == DPAR_OK; i++) {
        st = dpari_pt_message(x, x->receives_posted + i, wait);
    }
    return st;
}

/* ---- exchanges --------------------------------------------------------------------------------
 */

/* The ranks of a node that gave up: messages of the others may never come. */
static void dpari_pt_break_both(dpari_points *x)
{
    if (x->node->status != DPAR_OK && x->head.comm->status == DPAR_OK) {
        dpar_comm_abort(x->head.comm, x->node->status, x->node->why.text);
    }
}

/* It failed: nothing of it stays under way. */
static DPARI_COLD dpar_status dpari_pt_drop(dpari_points *x, dpar_status st)
{
    dpari_pt_break_both(x);
    if (dpari_pt_broken(x) != DPAR_OK) {
        (void)dpar_wait_all(x->work, x->receives_posted + x->sends_posted);
    }
    x->receives_posted = x->sends_posted = 0;
    x->active = x->again = 0;
    return st;
}

/* Packs for peers that share memory, once they have taken what the staging memory held before, and
 * publishes it. */
static dpar_status dpari_pt_offer(dpari_points *x)
{
    dpar_status st = dpari_pt_await_done(x, x->count - 2);
    double began;
    int32_t i;
    if (st != DPAR_OK) {
        return st;
    }
    began = dpari_pt_clock(x);
    for (i = 0; i < x->head.peer_count; i++) {
        if (x->peer[i].world >= 0 && (i != x->self || x->adjoint)) {
            (void)dpari_pt_pack(x, i);
        }
    }
    dpari_pt_count(x, DPARI_PT_PACKING, began);
    if (x->shared > 0) {
        dpari_pt_tell(x);
    }
    return st;
}

static dpar_status dpari_pt_start(dpari_points *x)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    if (x->again) {
        return dpari_pt_post_again(x);
    }
    x->receives_posted = x->sends_posted = 0;
    for (i = 0; i < x->head.peer_count; i++) {
        x->peer[i].taken = x->peer[i].reads = 0;
    }
    if (x->messages_to > 0) {
        st = dpari_pt_receive(x);
    }
    if (st == DPAR_OK && (x->shared > 0 || x->self >= 0)) {
        st = dpari_pt_offer(x);
    }
    if (st == DPAR_OK && x->messages_to > 0) {
        st = dpari_pt_send(x);
    }
    if (st == DPAR_OK && x->self >= 0 && !x->adjoint) {
        st = dpari_pt_take(x, x->self, 0, 0);
    }
    x->again = dpari_pt_may_repeat(x);
    return st;
}

static dpar_status dpari_pt_begin(dpari_points *x, const dpar_points_field *v, int32_t n,
                                  int32_t op)
{
    dpar_status st = DPAR_OK;
    if (x->shared > 0) { /* the others may have given this rank up */
        st = dpari_group_broken(dpari_group_of(x->node));
    }
    st = st == DPAR_OK ? dpari_pt_broken(x) : st;
    if (st != DPAR_OK) {
        dpari_pt_break_both(x);
        return st;
    }
    if (x->active) {
        return dpari_comm_wrong(x->head.comm, "points exchange %ld has not ended", x->count);
    }
    st = dpari_pt_name(x, v, n);
    st = st == DPAR_OK ? dpari_rest_post(x->head.comm) : st;
    if (st != DPAR_OK) {
        return st;
    }
    x->adjoint = op != DPAR_COPY;
    x->again = x->again && !x->adjoint;
    x->op = op;
    x->kind = x->shared > 0 ? dpari_pt_kind(x, v, n) : 0;
    x->count++;
    x->active = 1;
    x->stage = DPARI_PT_TAKING;
    x->lent = 0;
    st = dpari_pt_start(x);
    return st == DPAR_OK ? st : dpari_pt_drop(x, st);
}

/* This rank has taken all: somebody may wait for that. */
static void dpari_pt_say_done(dpari_points *x)
{
    if (x->lent || x->oneway) {
        dpari_publish(x->world, &x->line->done, (uint64_t)x->count);
    } else {
        DPARI_STORE(&x->line->done, (uint64_t)x->count);
    }
}

/* As far as it goes. What its communicator was closed with has gone: nothing is looked at. */
static dpar_status dpari_pt_further(dpari_points *x, int wait)
{
    dpar_status st = DPAR_OK;
    if (x->active && x->head.comm->status != DPAR_OK && dpari_ended_is(x->head.comm)) {
        x->active = x->receives_posted = x->sends_posted = 0;
    }
    if (!x->active) {
        return dpari_pt_broken(x);
    }
    if (x->again && wait) {
        st = dpari_pt_end_again(x);
        x->stage = DPARI_PT_LEAVING;
    } else if (x->stage == DPARI_PT_TAKING) {
        st = dpari_pt_take_all(x, wait);
        if (st == DPAR_OK && x->shared > 0) { /* a peer that had timed out may have written again */
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            st = dpari_group_broken(dpari_group_of(x->node));
        }
        if (st < DPAR_OK && x->shared > 0) {
            dpari_pt_break_both(x);
        } else if (st == DPAR_OK && x->shared > 0) {
            dpari_pt_say_done(x);
        }
        x->stage = st == DPAR_OK ? DPARI_PT_LEAVING : x->stage;
    }
    st = st == DPAR_OK ? dpari_pt_leave(x, wait) : st;
    x->active = st != DPAR_OK;
    return st == DPAR_OK || st == DPAR_MORE ? st : dpari_pt_drop(x, st);
}

DPAR_API dpar_status dpar_points_begin(dpar_points *p, const dpar_points_field *v, int32_t n)
{
    return p ? dpari_pt_begin(dpari_pt_of(p), v, n, DPAR_COPY) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_points_reduce_begin(dpar_points *p, const dpar_points_field *v, int32_t n,
                                              int32_t op)
{
    int32_t i;
    if (!p) {
        return DPAR_E_ARG;
    }
    if (op != DPAR_SUM && op != DPAR_MAX && op != DPAR_MIN) {
        return dpari_comm_wrong(p->comm, "operation %d: sum, max and min are possible", op);
    }
    for (i = 0; i < n && v; i++) {
        if (!dpari_type_can_reduce(v[i].type)) {
            return dpari_comm_wrong(p->comm, "vector %d of %s cannot be combined", i,
                                    dpar_type_name(v[i].type));
        }
    }
    return dpari_pt_begin(dpari_pt_of(p), v, n, op);
}

DPAR_API dpar_status dpar_points_test(dpar_points *p)
{
    return p ? dpari_pt_further(dpari_pt_of(p), 0) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_points_end(dpar_points *p)
{
    return p ? dpari_pt_further(dpari_pt_of(p), 1) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_points_exchange_many(dpar_points *p, const dpar_points_field *v,
                                               int32_t n)
{
    const dpar_status st = dpar_points_begin(p, v, n);
    return st == DPAR_OK ? dpar_points_end(p) : st;
}

DPAR_API dpar_status dpar_points_reduce_many(dpar_points *points, const dpar_points_field *fields,
                                             int32_t count, int32_t op)
{
    const dpar_status status = dpar_points_reduce_begin(points, fields, count, op);
    return status == DPAR_OK ? dpar_points_end(points) : status;
}

DPAR_API DPARI_COLD dpar_status dpar_points_free(dpar_points *p)
{
    dpari_points *x = dpari_pt_of(p);
    dpar_comm *comm, *of;
    dpar_status st;
    if (!p) {
        return DPAR_OK;
    }
    comm = x->head.comm;
    of = x->world ? x->node : x->head.comm;
    if (x->head.comm->status != DPAR_OK && dpari_ended_is(x->head.comm)) {
        x->active = x->receives_posted = x->sends_posted = 0;
    }
    st = dpari_pt_broken(x);
    if (x->active && st == DPAR_OK) {
        return dpari_comm_wrong(x->head.comm, "points exchange %ld has not ended", x->count);
    }
    if (st == DPAR_OK) {
        st = dpar_barrier(x->head.comm, NULL); /* peers may still look at this rank's words */
    } else if (x->active) {
        st = dpari_pt_drop(x, st);
    }
    dpar_comm_release(of, x->staging);
    dpar_comm_release(of, x->lists);
    dpar_comm_release(comm, x->owned);
    return st;
}

/* ==== points/points.c ==== */

/* Plans exchanges of points: checks the description, compares it between ranks, and divides memory.
 *
 * Ids become lists of local indices for both sides (points_owner.c), and lists become runs
 * (points_list.c). Peers that share memory find each other and exchange references to staging
 * memory. The file also converts ids, sorts rows, and writes reports. points_plan.h explains how
 * the exchange then runs. */

/* ---- checks -----------------------------------------------------------------------------------
 */

/* Own ids are named one by one. */
static int dpari_pt_hashes(const dpar_points_desc *d)
{
    return !d->lists && d->own_id && d->own_count > 0;
}

static int64_t dpari_pt_named(const dpar_points_desc *d)
{
    return d->lists ? 0 : (dpari_pt_hashes(d) ? d->own_count : 0) + d->ghost_count;
}

/* One peer of the lists: s values go to those before it. */
static dpar_status dpari_pt_check_list(const dpar_comm *c, const dpar_points_desc *d, int32_t i,
                                       int64_t s, dpar_why *why)
{
    const dpar_points_lists *l = d->lists;
    int64_t k;
    int32_t j;
    if (l->peer[i] < 0 || l->peer[i] >= c->size || l->send_count[i] < 0 ||
        l->send_count[i] > INT32_MAX - s || l->receive_count[i] < 0 ||
        l->receive_count[i] > INT32_MAX) {
        return dpari_wrong(
            why, "peer %d, rank %d of %d: %ld values go to it, or how many come from it is wrong",
            i, l->peer[i], c->size, l->send_count[i]);
    }
    for (j = 0; j < i; j++) {
        if (l->peer[j] == l->peer[i]) {
            return dpari_wrong(why, "rank %d is twice among the peers: %d and %d", l->peer[i], j,
                               i);
        }
    }
    for (k = s; k < s + l->send_count[i]; k++) {
        if (l->send_index[k] < 0 || l->send_index[k] >= d->own_count) {
            return dpari_wrong(why, "send_index[%ld], to rank %d, is %d: own values are %ld ", k,
                               l->peer[i], l->send_index[k], d->own_count);
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_pt_check_lists(const dpar_comm *c, const dpar_points_desc *d,
                                        dpar_why *why)
{
    const dpar_points_lists *l = d->lists;
    int64_t s = 0, r = 0, k;
    int32_t i;
    if (l->peer_count < 0 ||
        (l->peer_count > 0 && (!l->peer || !l->send_count || !l->receive_count))) {
        return dpari_wrong(why, "lists of %d peers: an array of them is NULL", l->peer_count);
    }
    for (i = 0; i < l->peer_count; i++) {
        dpar_status st;
        if (l->send_count[i] > 0 && !l->send_index) {
            return dpari_wrong(why, "send_index is NULL");
        }
        st = dpari_pt_check_list(c, d, i, s, why);
        if (st != DPAR_OK) {
            return st;
        }
        s += l->send_count[i];
        r += l->receive_count[i];
        if (r > d->ghost_count) {
            break;
        }
    }
    if (r != d->ghost_count) {
        return dpari_wrong(why, "%ld values are received, %ld sent: ghosts are %ld", r, s,
                           d->ghost_count);
    }
    for (k = 0; k < r && l->receive_index; k++) {
        if (l->receive_index[k] < d->own_count ||
            l->receive_index[k] >= d->own_count + d->ghost_count) {
            return dpari_wrong(why, "receive_index[%ld] is %d: ghosts are %ld to %ld", k,
                               l->receive_index[k], d->own_count,
                               d->own_count + d->ghost_count - 1);
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_pt_check_rule(const dpar_comm *c, const dpar_points_desc *d, dpar_why *why)
{
    const int64_t own =
        dpar_layout_is_primary(d->layout, c->rank) ? dpar_layout_count(d->layout, c->rank) : 0;
    if (!d->own_id && own != d->own_count) {
        return dpari_wrong(why, "the layout gives rank %d %ld values, own_count is %ld", c->rank,
                           own, d->own_count);
    }
    return DPAR_OK;
}

/* Checks the description of this rank, except for the contents of own_id and ghost_id. */
static dpar_status dpari_pt_check(const dpar_comm *c, const dpar_points_desc *d, dpar_why *why)
{
    if (d->own_count < 0 || d->ghost_count < 0) {
        return dpari_wrong(why, "own_count is %ld, ghost_count %ld", d->own_count, d->ghost_count);
    }
    if (d->own_count > INT32_MAX || d->ghost_count > INT32_MAX - d->own_count) {
        return dpari_say(DPAR_E_RANGE, why,
                         "%ld own values and %ld ghosts: %d together are possible", d->own_count,
                         d->ghost_count, (int32_t)INT32_MAX);
    }
    if (d->order < 0 || d->order > DPAR_POINTS_ORDER_BY_OWNER || d->method < 0 ||
        d->method > DPAR_POINTS_DIRECT || d->tag < 0 || d->run_bytes < 0) {
        return dpari_wrong(why, "order is %d, method %d, tag %d, run_bytes %ld", d->order,
                           d->method, d->tag, d->run_bytes);
    }
    if (c->mem && !c->node && !dpari_world_of(c)) {
        return dpari_wrong(
            why, "points: values are the host's, the communicator's memory is a device's");
    }
    if (d->lists) {
        return dpari_pt_check_lists(c, d, why);
    }
    if (d->ghost_count > 0 && !d->ghost_id) {
        return dpari_wrong(why, "ghost_id is NULL, ghost_count is %ld", d->ghost_count);
    }
    return d->layout ? dpari_pt_check_rule(c, d, why) : DPAR_OK;
}

/* Places where nothing or more than one value is received. seen: a bit a ghost, zeroed. */
static dpar_status dpari_pt_check_places(const dpar_points_desc *d, uint64_t *seen, dpar_why *why)
{
    int64_t k;
    for (k = 0; k < d->ghost_count && d->lists->receive_index; k++) {
        const int64_t g = d->lists->receive_index[k] - d->own_count;
        if (seen[g / 64] >> g % 64 & 1) {
            return dpari_wrong(why, "receive_index names %ld twice", g + d->own_count);
        }
        seen[g / 64] |= UINT64_C(1) << g % 64;
    }
    return DPAR_OK;
}

/* ---- memory -----------------------------------------------------------------------------------
 */

static dpari_points *dpari_pt_layout(const dpar_points_desc *d, void *memory, int64_t *bytes)
{
    dpari_room r;
    dpari_points *x;
    dpari_pt_entry *entry;
    const int64_t bits = d->lists ? (d->ghost_count + 63) / 64 : 0;
    r.at = (unsigned char *)memory;
    r.used = 0;
    x = (dpari_points *)dpari_room_take(&r, 1, sizeof *x);
    entry = (dpari_pt_entry *)dpari_room_take(&r, dpari_pt_table_room(dpari_pt_named(d)) + bits,
                                              sizeof *entry);
    if (x) {
        x->table.entry = entry;
        x->table.mask = -1;
    }
    *bytes = r.used;
    return x;
}

/* ---- agreeing ---------------------------------------------------------------------------------
 */

typedef struct dpari_pt_given {
    const dpar_points_desc *d;
    int64_t all[5]; /* largest of all ranks: see dpari_pt_kinds */
} dpari_pt_given;

static DPARI_COLD void dpari_pt_state(dpari_facts *f, const void *given)
{
    const dpar_points_desc *d = ((const dpari_pt_given *)given)->d;
    f->of = NULL;
    dpari_fact(f, "lists (0: ids)", 0, d->lists != NULL);
    dpari_fact(f, "order", 0, d->order);
    dpari_fact(f, "method", 0, d->method);
    dpari_fact(f, "run_bytes", 0, d->run_bytes);
    dpari_fact(f, "tag", 0, d->tag);
    dpari_fact(f, "layout (0: none)", 0, d->layout != NULL);
    if (d->layout) {
        dpari_fact_hash(f, "the layout", 0, dpari_hash_layout(0, d->layout));
    }
}

/* What ranks that have points give: a rank without any says nothing. */
static dpar_status dpari_pt_kinds(dpar_comm *c, dpari_pt_given *g, dpar_why *why)
{
    const dpar_points_desc *d = g->d;
    dpar_status st;
    g->all[0] = d->own_count > 0 && d->own_id;
    g->all[1] = d->own_count > 0 && !d->own_id;
    g->all[2] = d->ghost_count > 0 && d->owner;
    g->all[3] = d->ghost_count > 0 && !d->owner;
    st = dpar_all_reduce(c, g->all, g->all, 4, DPAR_I64, DPAR_MAX, NULL);
    g->all[4] = d->own_count;
    st = st == DPAR_OK ? dpar_all_reduce(c, &g->all[4], &g->all[4], 1, DPAR_I64, DPAR_SUM, NULL)
                       : st;
    if (st != DPAR_OK) {
        return dpari_repeat(st, why, c->why.text);
    }
    if (!d->lists && ((g->all[0] && g->all[1]) || (g->all[2] && g->all[3]))) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "points: %s is NULL on some ranks and given on others",
                         g->all[0] && g->all[1] ? "own_id" : "owner");
    }
    return DPAR_OK;
}

/* ---- planning ---------------------------------------------------------------------------------
 */

/* Numbers of all lists, and the peers. */
static int64_t dpari_pt_count_peers(const dpari_points *x, const dpari_pt_both *b, int32_t *peers)
{
    int64_t numbers = 0, s = 0, r = 0;
    dpari_pt_list l;
    int32_t i;
    *peers = 0;
    for (i = 0; i < x->head.comm->size; i++) {
        numbers += dpari_pt_measure(&l, b->send_at + s, b->sends[i]);
        numbers += dpari_pt_measure(&l, b->receive_at + r, b->receives[i]);
        s += b->sends[i];
        r += b->receives[i];
        *peers += b->sends[i] + b->receives[i] > 0;
    }
    return numbers;
}

/* Registered memory: line, peers, calls, works, records, lists. */
static dpar_status dpari_pt_alloc(dpari_points *x, int32_t peers, int64_t numbers, dpar_why *why)
{
    dpar_comm *of = x->world ? x->node : x->head.comm;
    void *memory = NULL;
    dpari_room r;
    dpar_status st;
    int32_t pass;
    r.at = NULL;
    for (pass = 0; pass < 2; pass++) {
        r.used = 0;
        x->line = (dpari_pt_line *)dpari_room_take(&r, 2, sizeof *x->line);
        x->peer = (dpari_pt_peer *)dpari_room_take(&r, peers, sizeof *x->peer);
        x->call = (dpar_call *)dpari_room_take(&r, 2 * peers, sizeof *x->call);
        x->work = (dpar_work *)dpari_room_take(&r, 2 * peers, sizeof *x->work);
        x->record = (dpari_pt_record *)dpari_room_take(&r, 2 * peers, sizeof *x->record);
        x->numbers = (int32_t *)dpari_room_take(&r, numbers, sizeof *x->numbers);
        if (pass == 0) {
            st = dpar_comm_alloc(of, r.used, &memory);
            if (st != DPAR_OK) {
                return dpari_repeat(st, why, of->why.text);
            }
            x->lists = r.at = (unsigned char *)memory;
        }
    }
    x->head.peer_count = peers;
    return DPAR_OK;
}

static void dpari_pt_set_list(dpari_pt_list *l, const int32_t *index, int64_t n, int32_t **at)
{
    const int64_t numbers = dpari_pt_measure(l, index, n);
    dpari_pt_fill(l, index, *at);
    *at += numbers;
}

static void dpari_pt_set_peers(dpari_points *x, const dpari_pt_both *b)
{
    int32_t i, n = 0, *at = x->numbers;
    for (i = 0; i < x->head.comm->size; i++) {
        dpari_pt_peer *p = &x->peer[n];
        if (b->sends[i] + b->receives[i] == 0) {
            continue;
        }
        p->rank = i;
        p->world = i == x->head.comm->rank ? 0 : -1;
        p->sends_before = x->sends;
        p->receives_before = x->receives;
        dpari_pt_set_list(&p->send, b->send_at + x->sends, b->sends[i], &at);
        dpari_pt_set_list(&p->receive, b->receive_at + x->receives, b->receives[i], &at);
        x->self = i == x->head.comm->rank ? n : x->self;
        x->sends += b->sends[i];
        x->receives += b->receives[i];
        n++;
    }
}

/* Finds the peers that share memory with this rank. Collective over the node. */
static dpar_status dpari_pt_find_node(dpari_points *x, dpar_why *why)
{
    const dpari_group *g = dpari_group_of(x->node);
    void *memory = NULL;
    int32_t *told, i, k;
    dpar_status st;
    if (!x->world) {
        return DPAR_OK;
    }
    st = dpar_comm_alloc(x->node, (int64_t)sizeof(int32_t) * x->node->size, &memory);
    st = dpari_agree_on(x->node, st, "points", NULL, NULL, NULL);
    told = (int32_t *)memory;
    if (st == DPAR_OK) {
        st = dpar_all_gather(x->node, &x->head.comm->rank, told, 1, DPAR_I32, NULL);
    }
    for (i = 0; i < x->node->size && st == DPAR_OK; i++) {
        for (k = 0; k < x->head.peer_count; k++) {
            if (x->peer[k].rank == told[i]) {
                x->peer[k].world = g->world_rank[i];
            }
        }
    }
    dpar_comm_release(x->node, memory);
    if (st != DPAR_OK && x->node != x->head.comm) { /* other nodes would wait for this one */
        dpar_comm_abort(x->head.comm, st, x->node->why.text);
    }
    return st == DPAR_OK ? st : dpari_repeat(st, why, x->node->why.text);
}

static void dpari_pt_say(const dpari_points *x, int32_t i, dpari_pt_record *r)
{
    const dpari_pt_peer *p = &x->peer[i];
    r->line = p->world >= 0 && x->world ? (int64_t)dpari_ref(x->world, x->line, 1) : 0;
    r->number = i;
    r->sends = p->send.count;
    r->receives = p->receive.count;
    r->sends_before = p->sends_before;
    r->receives_before = p->receives_before;
    r->runs = p->send.runs;
    r->kind = p->send.kind;
    r->first = p->send.first;
    r->at = r->line && p->send.at ? (int64_t)dpari_ref(x->world, p->send.at, 1) : 0;
}

/* Reads what a peer has published about its memory. */
static dpar_status dpari_pt_hear(dpari_points *x, int32_t i)
{
    dpari_pt_peer *p = &x->peer[i];
    const dpari_pt_record *r = &p->theirs;
    if (r->line == 0 || p->world < 0) { /* one of the two does not reach the other's memory */
        p->world = -1;
        x->messages_to++;
        return DPAR_OK;
    }
    x->shared++;
    x->oneway |= p->send.count == 0 || p->receive.count == 0;
    p->line = (dpari_pt_line *)dpari_at(x->world, (uint64_t)r->line);
    if (p->line == NULL) {
        return dpari_pt_unreachable(x, (uint64_t)r->line);
    }
    p->source.count = r->sends;
    p->source.runs = r->runs;
    p->source.kind = (int32_t)r->kind;
    p->source.first = (int32_t)r->first;
    p->source.step = 0;
    p->source.at = r->at ? (const int32_t *)dpari_at(x->world, (uint64_t)r->at) : NULL;
    return r->at && p->source.at == NULL ? dpari_pt_unreachable(x, (uint64_t)r->at) : DPAR_OK;
}

/* Exchanges references to staging memory with the peers. */
static dpar_status dpari_pt_swap(dpari_points *x, dpar_why *why)
{
    dpari_pt_record *mine = x->record, *theirs = x->record + x->head.peer_count;
    int32_t i, pass, n = 0;
    dpar_status st = DPAR_OK;
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < x->head.peer_count; i++) {
            dpar_call *call = &x->call[n];
            if (i == x->self) {
                continue;
            }
            dpari_zero(call, sizeof *call);
            call->kind = pass ? DPAR_CALL_SEND : DPAR_CALL_RECV;
            call->type = DPAR_I64;
            call->root = x->peer[i].rank;
            call->tag = x->tag;
            call->count = DPARI_PT_WORDS;
            call->in = pass ? &mine[i] : NULL;
            call->out = pass ? NULL : &theirs[i];
            dpari_pt_say(x, i, &mine[i]);
            n++;
        }
    }
    if (n > 0) {
        st = dpar_batch(x->head.comm, x->call, n, x->work);
        st = st == DPAR_OK ? dpar_wait_all(x->work, n) : st;
    }
    for (i = 0; i < x->head.peer_count && st == DPAR_OK; i++) {
        if (i != x->self) {
            x->peer[i].theirs = theirs[i];
            st = dpari_pt_hear(x, i);
        }
    }
    return st == DPAR_OK ? st : dpari_repeat(st, why, x->head.comm->why.text);
}

static dpar_status dpari_pt_plan(dpari_points *x, const dpari_pt_both *both, dpar_why *why)
{
    int32_t peers;
    const int64_t numbers = dpari_pt_count_peers(x, both, &peers);
    dpar_status st = both->sent > INT32_MAX
                         ? dpari_say(DPAR_E_RANGE, why, "%ld values are sent: %d are possible",
                                     both->sent, (int32_t)INT32_MAX)
                         : dpari_pt_alloc(x, peers, numbers, why);
    st = dpari_agree_on(x->head.comm, st, "points", NULL, NULL, why);
    if (st == DPAR_OK) {
        dpari_pt_set_peers(x, both);
        st = dpari_pt_find_node(x, why);
        st = st == DPAR_OK ? dpari_pt_swap(x, why) : st;
        st = dpari_agree_on(x->head.comm, st, "points", NULL, NULL, why);
    }
    if (st != DPAR_OK && x->lists) {
        dpar_comm_release(x->world ? x->node : x->head.comm, x->lists);
    }
    return st;
}

/* Sets *memory to what the plan may use: the caller's, or what is allocated here, which *owned then
 * is as well. */
static dpar_status dpari_pt_take_memory(dpar_comm *comm, const dpar_points_desc *desc, int64_t need,
                                        void **memory, void **owned, dpar_why *why)
{
    dpar_status status;
    if (desc->memory == NULL && desc->bytes == 0) {
        status = dpar_comm_alloc(comm, need, owned);
        *memory = *owned;
        return dpari_pt_said(comm, status, why);
    }
    if (desc->bytes < need) {
        return dpari_say(DPAR_E_ROOM, why,
                         "points: desc.bytes is %ld, but the plan needs %ld bytes of memory",
                         desc->bytes, need);
    }
    if (desc->memory == NULL || (uintptr_t)desc->memory % DPARI_ROOM_ALIGN != 0) {
        return dpari_wrong(
            why,
            "points: desc.memory is NULL, or not aligned to %d bytes, but desc.bytes "
            "is %ld",
            (int32_t)DPARI_ROOM_ALIGN, desc->bytes);
    }
    *memory = desc->memory;
    return DPAR_OK;
}

static void dpari_pt_set(dpari_points *x, dpar_comm *c, const dpari_pt_given *g)
{
    const dpar_points_desc *d = g->d;
    x->head.comm = c;
    x->head.own_count = d->own_count;
    x->head.ghost_count = d->ghost_count;
    x->head.global_count = g->all[4];
    x->node = c->node ? c->node : c;
    x->world = d->method == DPAR_POINTS_MESSAGES ? NULL : dpari_world_of(x->node);
    x->way = d->method;
    x->tag = d->tag;
    x->timers = d->timers;
    x->listed = d->lists != NULL;
    x->hashed = !d->lists && g->all[0] != 0;
    x->given_owner = g->all[2] != 0;
    x->run_bytes = d->run_bytes > 0 ? d->run_bytes : (int64_t)DPARI_PT_RUN_BYTES;
    x->self = -1;
    if (d->layout) {
        x->rule = *d->layout;
        x->ruled = 1;
    }
}

/* Finds the lists of both sides, and makes the plan of them. */
static dpar_status dpari_pt_connect(dpari_points *x, const dpar_points_desc *desc, dpar_why *why)
{
    dpari_pt_both both;
    dpar_status status;
    dpari_zero(&both, sizeof both);
    if (desc->lists) {
        status = dpari_pt_check_places(desc, (uint64_t *)(void *)x->table.entry, why);
        status = dpari_agree_on(x->head.comm, status, "points", NULL, NULL, why);
        if (status == DPAR_OK) {
            status = dpari_pt_by_lists(x, desc, &both, why);
        }
    } else {
        status = dpari_pt_by_ids(x, desc, &both, why);
    }
    if (status == DPAR_OK) {
        status = dpari_pt_plan(x, &both, why);
    }
    dpari_pt_both_free(&both);
    return status;
}

/* Checks what this rank passes, and takes the memory of the plan. Local. */
static dpar_status dpari_pt_prepare(dpar_comm *comm, const dpar_points_desc *desc,
                                    dpar_points **points, int64_t *need, void **memory,
                                    void **owned, dpar_why *why)
{
    dpar_status status;
    if (!desc || !points) {
        return dpari_wrong(why, "dpar_points_make: desc or points is NULL");
    }
    status = dpari_pt_check(comm, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    (void)dpari_pt_layout(desc, NULL, need);
    return dpari_pt_take_memory(comm, desc, *need, memory, owned, why);
}

DPAR_API DPARI_COLD dpar_status dpar_points_make(dpar_comm *comm, const dpar_points_desc *desc,
                                                 dpar_points **points, dpar_why *why)
{
    dpari_pt_given given;
    dpari_points *x;
    void *memory = NULL, *owned = NULL;
    int64_t need = 0;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_points_make: comm is NULL");
    }
    dpari_zero(&given, sizeof given);
    given.d = desc;
    status = dpari_pt_prepare(comm, desc, points, &need, &memory, &owned, why);
    status = dpari_agree_on(comm, status, "points", dpari_pt_state, &given, why);
    if (status == DPAR_E_ROOM) {
        dpari_needs_bytes(why, need); /* of this rank, also if another one has too little */
    }
    if (status == DPAR_OK) {
        status = dpari_pt_kinds(comm, &given, why);
    }
    if (status == DPAR_OK) {
        dpari_zero(memory, (size_t)need);
        x = dpari_pt_layout(desc, memory, &need);
        x->owned = owned;
        dpari_pt_set(x, comm, &given);
        status = dpari_pt_connect(x, desc, why);
    }
    if (status != DPAR_OK) {
        dpar_comm_release(comm, owned);
        return status;
    }
    *points = &x->head;
    return DPAR_OK;
}

/* ---- numbering --------------------------------------------------------------------------------
 */

DPAR_API dpar_status dpar_points_to_local(const dpar_points *p, const int64_t *ids, int64_t n,
                                          int32_t *at)
{
    const dpari_points *x = dpari_pt_of(p);
    int64_t i, lost = -1;
    if (!p) {
        return DPAR_E_ARG;
    }
    if (x->listed || (n > 0 && (!ids || !at))) {
        return dpari_comm_wrong(
            p->comm, "points have no ids (planned by lists: %d), or an array is NULL", x->listed);
    }
    for (i = 0; i < n; i++) {
        at[i] = (int32_t)dpari_pt_index(x, ids[i]);
        lost = at[i] < 0 && lost < 0 ? i : lost;
    }
    return lost < 0
               ? DPAR_OK
               : dpari_comm_wrong(p->comm, "ids[%ld] is %ld: rank %d neither owns nor reads it",
                                  lost, ids[lost], p->comm->rank);
}

/* Tests whether row i reads a ghost. Returns 1, 0, or -1 if a column is no local index. */
static int dpari_pt_reads_ghost(const dpar_points *p, const int64_t *begin, const int32_t *column,
                                int64_t i)
{
    int64_t k;
    int reads = 0;
    for (k = begin[i]; k < begin[i + 1]; k++) {
        if (column[k] < 0 || column[k] >= p->own_count + p->ghost_count) {
            return -1;
        }
        reads |= column[k] >= p->own_count;
    }
    return reads;
}

DPAR_API dpar_status dpar_points_interior_rows(const dpar_points *p, int64_t rows,
                                               const int64_t *begin, const int32_t *column,
                                               int32_t *row, int64_t *core)
{
    int64_t i, n = 0, rim;
    if (!p) {
        return DPAR_E_ARG;
    }
    if (rows < 0 || rows > INT32_MAX || !core || (rows > 0 && (!begin || !row))) {
        return dpari_comm_wrong(p->comm, "%ld rows, or begin, row or core is NULL", rows);
    }
    for (i = 0; i < rows; i++) {
        const int reads = begin[i + 1] < begin[i] || (begin[i + 1] > begin[i] && !column)
                              ? -1
                              : dpari_pt_reads_ghost(p, begin, column, i);
        if (reads < 0) {
            return dpari_comm_wrong(
                p->comm, "row %ld (columns %ld to %ld) names what is no local index below %ld", i,
                begin[i], begin[i + 1] - 1, p->own_count + p->ghost_count);
        }
        n += !reads;
    }
    *core = n;
    rim = n;
    for (i = 0, n = 0; i < rows; i++) {
        if (dpari_pt_reads_ghost(p, begin, column, i)) {
            row[rim++] = (int32_t)i;
        } else {
            row[n++] = (int32_t)i;
        }
    }
    return DPAR_OK;
}

/* ---- what goes where --------------------------------------------------------------------------
 */

DPAR_API int dpar_points_peer(const dpar_points *p, int32_t k, dpar_points_traffic *t)
{
    const dpari_points *x = dpari_pt_of(p);
    if (!p || !t || k < 0 || k >= p->peer_count) {
        return 0;
    }
    t->rank = x->peer[k].rank;
    t->method = x->peer[k].world < 0 ? DPAR_POINTS_MESSAGES : DPAR_POINTS_PACKED;
    t->send_count = x->peer[k].send.count;
    t->receive_count = x->peer[k].receive.count;
    t->send_runs = x->peer[k].send.runs;
    t->receive_runs = x->peer[k].receive.runs;
    return 1;
}

DPAR_API DPARI_COLD void dpar_points_report(const dpar_points *p, dpar_text *out)
{
    const dpari_points *x = dpari_pt_of(p);
    dpar_points_traffic t;
    int32_t k;
    if (!p) {
        return;
    }
    dpari_text_print(out, "rank %d: %ld own values, %ld ghosts, %ld exchanges\n", p->comm->rank,
                     p->own_count, p->ghost_count, x->count);
    dpar_text_put(out, "  rank way          sends      runs  receives      runs\n");
    for (k = 0; dpar_points_peer(p, k, &t); k++) {
        dpari_text_print(out, "%6d %-8s %9ld %9ld %9ld %9ld\n", t.rank,
                         k == x->self                       ? "itself"
                         : t.method == DPAR_POINTS_MESSAGES ? "messages"
                                                            : "memory",
                         t.send_count, t.send_runs, t.receive_count, t.receive_runs);
    }
    if (x->timers && x->count > 0) {
        dpari_text_print(out, "us an exchange: packing %.2f, copying %.2f, waiting %.2f\n",
                         x->seconds[DPARI_PT_PACKING] * 1e6 / (double)x->count,
                         x->seconds[DPARI_PT_COPYING] * 1e6 / (double)x->count,
                         x->seconds[DPARI_PT_WAITING] * 1e6 / (double)x->count);
    }
}

enum { DPARI_PT_DRAWN = 64 };

DPAR_API DPARI_COLD dpar_status dpar_points_draw(const dpar_points *p, dpar_text *out)
{
    const dpari_points *x = dpari_pt_of(p);
    int64_t row[DPARI_PT_DRAWN] = {0}, *all;
    void *memory = NULL;
    dpar_comm *c;
    dpar_status st;
    int32_t i, k;
    if (!p) {
        return DPAR_E_ARG;
    }
    c = p->comm;
    if (c->size > DPARI_PT_DRAWN) {
        return dpari_comm_say(c, DPAR_E_RANGE, "%d ranks: a matrix of %d is drawn", c->size,
                              (int32_t)DPARI_PT_DRAWN);
    }
    for (i = 0; i < p->peer_count; i++) {
        row[x->peer[i].rank] = x->peer[i].send.count;
    }
    st = dpar_comm_alloc(c, (int64_t)sizeof *row * c->size * c->size, &memory);
    st = dpari_agree_on(c, st, "points", NULL, NULL, NULL);
    all = (int64_t *)memory;
    st = st == DPAR_OK ? dpar_all_gather(c, row, all, c->size, DPAR_I64, NULL) : st;
    for (i = -1; i < c->size && st == DPAR_OK && out; i++) {
        if (i < 0) {
            dpar_text_put(out, "values from\\to");
        } else {
            dpari_text_print(out, "%14d", i);
        }
        for (k = 0; k < c->size; k++) {
            if (i < 0) {
                dpari_text_print(out, " %9d", k);
            } else if (all[i * c->size + k] == 0) {
                dpar_text_put(out, "         .");
            } else {
                dpari_text_print(out, " %9ld", all[i * c->size + k]);
            }
        }
        dpar_text_put(out, "\n");
    }
    dpar_comm_release(c, memory);
    return st;
}

/* ==== points/points_check.c ==== */

/* Checks the ghosts of vectors: sets them to NaN, finds those that are still NaN, or compares them
 * with their owners' values. It implements dpar_points_check.
 *
 * To compare, it exchanges into a copy of the ghosts and looks for the first difference. */

/* Returns the address of an element of a vector. */
static unsigned char *dpari_pt_number(const dpar_points *p, const dpar_points_field *v,
                                      int64_t index, int32_t component)
{
    const int64_t bytes = dpar_type_bytes(v->type);
    const int64_t n = v->components > 0 ? v->components : 1;
    const int64_t stride = v->stride > 0 ? v->stride : v->component_stride <= 1 ? n : 1;
    const int64_t apart = v->component_stride > 0 ? v->component_stride : 1;
    const int64_t within = component * apart;
    return index < p->own_count || !v->ghosts
               ? (unsigned char *)v->data + bytes * (index * stride + within)
               : (unsigned char *)v->ghosts + bytes * ((index - p->own_count) * stride + within);
}

static int dpari_pt_is_poison(const unsigned char *at, int64_t bytes)
{
    int64_t i;
    for (i = 0; i < bytes && at[i] == 0xff; i++) {
    }
    return i == bytes;
}

/* All bits 1: a NaN of any float. The first poisoned number of a vector in [from, to); -1: none.
 * write: makes all so instead. */
static int64_t dpari_pt_poison(const dpar_points *p, const dpar_points_field *v, int64_t from,
                               int64_t to, int write)
{
    const int64_t bytes = dpar_type_bytes(v->type);
    int64_t i, b;
    int32_t k;
    for (i = from; i < to; i++) {
        for (k = 0; k < (v->components > 0 ? v->components : 1); k++) {
            unsigned char *at = dpari_pt_number(p, v, i, k);
            for (b = 0; b < bytes && write; b++) {
                at[b] = 0xff;
            }
            if (!write && dpari_pt_is_poison(at, bytes)) {
                return i;
            }
        }
    }
    return -1;
}

static dpar_status dpari_pt_unfilled(const dpar_points *p, const dpar_points_field *v, int32_t n,
                                     dpar_why *why)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        const int64_t at =
            dpari_pt_poison(p, &v[i], p->own_count, p->own_count + p->ghost_count, 0);
        if (at >= 0 && dpari_pt_poison(p, &v[i], 0, p->own_count, 0) < 0) {
            return dpari_wrong(why,
                               "vector %d: ghost %ld, local index %ld of rank %d, is not filled", i,
                               at - p->own_count, at, p->comm->rank);
        }
    }
    return DPAR_OK;
}

/* Returns the first ghost of a vector that differs from the value that was received, or -1. */
static int64_t dpari_pt_stale(const dpar_points *p, const dpar_points_field *v,
                              const dpar_points_field *copy)
{
    const int64_t bytes = dpar_type_bytes(v->type);
    int64_t i, b;
    int32_t k;
    for (i = p->own_count; i < p->own_count + p->ghost_count; i++) {
        for (k = 0; k < (v->components > 0 ? v->components : 1); k++) {
            const unsigned char *here = dpari_pt_number(p, v, i, k);
            const unsigned char *came = dpari_pt_number(p, copy, i, k);
            for (b = 0; b < bytes; b++) {
                if (here[b] != came[b]) {
                    return i;
                }
            }
        }
    }
    return -1;
}

/* One vector at a time: own values as they lie, ghosts into a dense copy of the same strides. */
static dpar_status dpari_pt_compare(dpar_points *p, const dpar_points_field *v, int32_t i,
                                    dpar_why *why)
{
    dpar_points_field copy = *v;
    const int64_t n = v->components > 0 ? v->components : 1;
    const int64_t stride = v->stride > 0 ? v->stride : v->component_stride <= 1 ? n : 1;
    const int64_t apart = v->component_stride > 0 ? v->component_stride : 1;
    const int64_t numbers =
        (p->ghost_count > 0 ? p->ghost_count - 1 : 0) * stride + (n - 1) * apart + 1;
    int64_t at = -1;
    dpar_status st = dpar_comm_alloc(p->comm, numbers * dpar_type_bytes(v->type), &copy.ghosts);
    st = dpari_agree(p->comm, st, NULL);
    st = st == DPAR_OK ? dpar_points_exchange_many(p, &copy, 1) : st;
    if (st == DPAR_OK) {
        at = dpari_pt_stale(p, v, &copy);
    } else {
        st = dpari_repeat(st, why, p->comm->why.text);
    }
    if (at >= 0) {
        st = dpari_say(DPAR_E_MISMATCH, why,
                       "vector %d: ghost %ld, local index %ld of rank %d, is not its owner's value",
                       i, at - p->own_count, at, p->comm->rank);
    }
    dpar_comm_release(p->comm, copy.ghosts);
    return dpari_agree(p->comm, st, why);
}

/* Vectors as an exchange would take them. */
static dpar_status dpari_pt_check_named(const dpar_points *p, const dpar_points_field *v, int32_t n,
                                        dpar_why *why)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        if (dpar_type_bytes(v[i].type) == 0 || v[i].components < 0 || v[i].stride < 0 ||
            v[i].component_stride < 0 ||
            (!v[i].data && (p->own_count > 0 || !v[i].ghosts) &&
             p->own_count + p->ghost_count > 0)) {
            return dpari_wrong(why, "vector %d: %d components of %s, or data is NULL", i,
                               v[i].components, dpar_type_name(v[i].type));
        }
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_points_check(dpar_points *p, const dpar_points_field *v,
                                                  int32_t n, int32_t what, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    if (!p || n < 0 || (n > 0 && !v) || what < DPAR_POINTS_POISON || what > DPAR_POINTS_STALE) {
        return dpari_wrong(why, "points: check %d of %d vectors", what, n);
    }
    st = dpari_pt_check_named(p, v, n, why);
    st = what == DPAR_POINTS_STALE ? dpari_agree(p->comm, st, why) : st;
    if (st == DPAR_OK && what == DPAR_POINTS_UNFILLED) {
        return dpari_pt_unfilled(p, v, n, why);
    }
    for (i = 0; i < n && st == DPAR_OK; i++) {
        if (what == DPAR_POINTS_POISON) {
            (void)dpari_pt_poison(p, &v[i], p->own_count, p->own_count + p->ghost_count, 1);
        } else {
            st = dpari_pt_compare(p, &v[i], i, why);
        }
    }
    return st;
}

/* ==== points/points_simple.c ==== */

/* Allocates vectors, and exchanges one vector of doubles. points_run.c does the work. */

DPAR_API DPARI_COLD void *dpar_points_array(dpar_points *p, int32_t type, int32_t components)
{
    void *memory = NULL;
    int64_t bytes;
    if (!p) {
        return NULL;
    }
    if (components < 0 || dpar_type_bytes(type) == 0 ||
        !dpari_mul(p->own_count + p->ghost_count,
                   dpar_type_bytes(type) * (int64_t)(components > 0 ? components : 1), &bytes)) {
        (void)dpari_comm_wrong(p->comm, "an array of %d components of %s", components,
                               dpar_type_name(type));
        return NULL;
    }
    (void)dpar_comm_alloc(p->comm, bytes, &memory); /* NULL if it fails */
    return memory;
}

/* x as the one vector of an exchange. */
static dpar_points_field dpari_pt_doubles(double *x)
{
    dpar_points_field v;
    dpari_zero(&v, sizeof v);
    v.type = DPAR_F64;
    v.data = x;
    return v;
}

DPAR_API dpar_status dpar_points_exchange(dpar_points *p, double *x)
{
    const dpar_points_field v = dpari_pt_doubles(x);
    return dpar_points_exchange_many(p, &v, 1);
}

DPAR_API dpar_status dpar_points_reduce(dpar_points *p, double *x)
{
    const dpar_points_field v = dpari_pt_doubles(x);
    return dpar_points_reduce_many(p, &v, 1, DPAR_SUM);
}

/* ==== points/points_order.c ==== */

/* Sorts, numbers items from rank to rank, and allocates temporary pages, for partitions and
 * movements (points_part.c, points_move.c). */

/* A byte of a number, so that numbers ascend with their bytes: the sign is turned. */
DPARI_FN size_t dpari_po_digit(const dpari_po_item *item, int by_id, int32_t shift)
{
    const uint64_t v = (uint64_t)(by_id ? item->id : item->key) ^ UINT64_C(1) << 63;
    return (size_t)(v >> shift & 255u);
}

/* Deals the items out by one byte, in their order. 0: all have the same one, nothing was done. */
static int dpari_po_deal(const dpari_po_item *item, dpari_po_item *out, int64_t n, int by_id,
                         int32_t shift)
{
    int64_t next[256], i, all = 0;
    int32_t k;
    dpari_zero(next, sizeof next);
    for (i = 0; i < n; i++) {
        next[dpari_po_digit(&item[i], by_id, shift)]++;
    }
    if (next[dpari_po_digit(item, by_id, shift)] == n) {
        return 0;
    }
    for (k = 0; k < 256; k++) {
        const int64_t count = next[k];
        next[k] = all;
        all += count;
    }
    for (i = 0; i < n; i++) {
        out[next[dpari_po_digit(&item[i], by_id, shift)]++] = item[i];
    }
    return 1;
}

DPARI_INTERNAL dpari_po_item *dpari_po_sort(dpari_po_item *item, dpari_po_item *spare, int64_t n)
{
    int32_t by_id, shift;
    int64_t i;
    for (by_id = 1; by_id >= 0; by_id--) { /* what decides less first */
        for (i = 1; i < n && (by_id ? item[i - 1].id <= item[i].id
                                    : dpari_po_compare(&item[i - 1], item[i].key, item[i].id) <= 0);
             i++) {
        }
        for (shift = 0; shift < 64 && i < n; shift += 8) {
            if (dpari_po_deal(item, spare, n, by_id, shift)) {
                dpari_po_item *const t = item;
                item = spare;
                spare = t;
            }
        }
    }
    return item;
}

DPARI_INTERNAL DPARI_COLD void *dpari_po_take(dpari_po_pages *p, int64_t n, int64_t bytes,
                                              dpar_status *st, dpar_why *why)
{
    int64_t all = 0;
    void *at = NULL;
    if (*st != DPAR_OK) {
        return NULL;
    }
    if (dpari_mul(n, bytes, &all) && p->used < DPARI_PO_PAGES) {
        at = dpari_os_pages(all + 8);
    }
    if (!at) {
        *st = dpari_say(DPAR_E_MEMORY, why, "no memory: %ld times %ld bytes are needed for a while",
                        n, bytes);
        return NULL;
    }
    p->at[p->used] = at;
    p->bytes[p->used++] = all + 8;
    return at;
}

DPARI_INTERNAL DPARI_COLD void dpari_po_free(dpari_po_pages *p)
{
    while (p->used > 0) {
        p->used--;
        dpari_os_unmap(p->at[p->used], p->bytes[p->used]);
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_po_host(const dpar_comm *c, dpar_why *why)
{
    return !c->mem || c->node || dpari_world_of(c)
               ? DPAR_OK
               : dpari_wrong(why,
                             "points lie in the host's memory, the communicator's is a device's");
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_po_said(const dpar_comm *c, dpar_status st,
                                                    dpar_why *why)
{
    return st == DPAR_OK ? st : dpari_repeat(st, why, c->why.text);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_po_first(dpar_comm *c, int64_t n, int64_t *first,
                                                     dpar_why *why)
{
    dpari_po_pages pages;
    dpar_status st = DPAR_OK;
    int64_t *all;
    int32_t r;
    dpari_zero(&pages, sizeof pages);
    all = (int64_t *)dpari_po_take(&pages, c->size, 8, &st, why);
    st = dpari_agree(c, st, why);
    if (st == DPAR_OK) {
        st = dpari_po_said(c, dpar_all_gather(c, &n, all, 1, DPAR_I64, NULL), why);
    }
    for (r = 0, *first = 0; r < c->rank && st == DPAR_OK; r++) {
        *first += all[r];
    }
    dpari_po_free(&pages);
    return st;
}

/* ==== points/points_part.c ==== */

/* Partitions points along Hilbert's curve. It implements dpar_points_partition.
 *
 * Each rank sorts its points by their place on the curve and sums their weights. The cuts between
 * parts are then searched for by all ranks together. Every cut has a bracket that is divided in
 * eight: each rank counts its weights below the seven probes, an all-reduce adds them up, and one
 * eighth remains. If several points are at the place of a cut, their ids are searched in the same
 * way. Integers throughout, so that the result does not depend on the distribution of points. */

enum {
    DPARI_PC_PROBES = 7,        /* counts of each cut in a round: a bracket becomes an eighth */
    DPARI_PC_PARTS = 1 << 20,   /* at most */
    DPARI_PC_WEIGHT_BITS = 61,  /* of all weights together */
    DPARI_PC_MANTISSA_BITS = 52 /* a weight has no more */
};

/* ---- the curve --------------------------------------------------------------------------------
 */

DPARI_FN int32_t dpari_pc_bits(int32_t dims)
{
    return dims == 2 ? 31 : 21;
}

/* The transform is J. Skilling's, "Programming the Hilbert curve" (AIP Conf. Proc. 707, 2004, p.
 * 381). From the coarsest level on: at each, the digit that says which half of every dim the cell
 * is in, as Gray's code counts. Below it the curve is mirrored or two of its dims are exchanged, as
 * that half says. */
DPARI_INTERNAL int64_t dpari_points_curve(int32_t dims, const uint32_t *cell)
{
    uint32_t x[3] = {0, 0, 0}, level, flip = 0;
    int64_t place = 0;
    int32_t d;
    if (dims < 2 || dims > 3) {
        return -1;
    }
    for (d = 0; d < dims; d++) {
        x[d] = cell[d];
        if (x[d] >> dpari_pc_bits(dims) != 0) {
            return -1;
        }
    }
    for (level = UINT32_C(1) << (dpari_pc_bits(dims) - 1); level > 0; level >>= 1) {
        const uint32_t below = level - 1;
        uint32_t code = 0;
        for (d = 0; d < dims; d++) {
            code ^= (x[d] & level) != 0;
            place = place * 2 + (int64_t)(code ^ flip);
        }
        flip ^= code;
        for (d = 0; d < dims; d++) {
            const uint32_t change = (x[0] ^ x[d]) & below;
            if ((x[d] & level) != 0) {
                x[0] ^= below;
            } else {
                x[0] ^= change;
                x[d] ^= change;
            }
        }
    }
    return place;
}

/* ---- what is cut ------------------------------------------------------------------------------
 */

/* A cut: the first point of a part, by place and id. */
typedef struct dpari_pc_cut {
    int64_t key, id;
    int64_t low, high; /* what is searched lies between these */
    int64_t weight;    /* of the points before the part begins */
    int32_t behind;    /* 1: the part begins behind that point */
} dpari_pc_cut;

typedef struct dpari_pc {
    dpar_comm *c;
    const dpar_points_partition_desc *d;
    int32_t parts;
    double low[3], half; /* the cube: its corner, half its side */
    double largest;      /* weight */
    double steps;        /* weights of it become so many */
    int64_t first;       /* id of point 0, where they have none */
    int64_t points;      /* of all ranks */
    int64_t weight;      /* in steps, of all ranks */
    dpari_po_item *item; /* sorted: place, id, index */
    int64_t *before;     /* [points + 1] weight of the sorted ones before each */
    dpari_pc_cut *cut;   /* [parts - 1] */
    int64_t *count;      /* [parts - 1][DPARI_PC_PROBES] */
    dpari_po_pages pages;
} dpari_pc;

static DPARI_COLD void dpari_pc_state(dpari_facts *f, const void *given)
{
    const dpar_points_partition_desc *d = (const dpar_points_partition_desc *)given;
    dpari_fact(f, "dims", 0, d->dims);
    dpari_fact(f, "parts", 0, d->parts);
}

static DPARI_COLD dpar_status dpari_pc_check(const dpar_points_partition_desc *d,
                                             const int32_t *owner, dpar_why *why)
{
    int64_t i;
    int32_t k;
    if (!d || d->dims < 2 || d->dims > 3) {
        return dpari_wrong(why, "%d dims: there are 2 or 3", d ? d->dims : 0);
    }
    if (d->count < 0 || d->parts < 0 || d->parts > DPARI_PC_PARTS ||
        (d->count > 0 && (!d->position || !owner))) {
        return dpari_wrong(why, "%ld points, %d parts, position or owner is NULL", d->count,
                           d->parts);
    }
    if (d->count > INT32_MAX) {
        return dpari_say(DPAR_E_RANGE, why, "%ld points on a rank: at most 2^31 - 1", d->count);
    }
    for (i = 0; i < d->count; i++) {
        for (k = 0; k < d->dims; k++) {
            if (!dpari_finite(d->position[i * d->dims + k])) {
                return dpari_wrong(why, "point %ld: coordinate %d is not finite", i, k);
            }
        }
        if (d->weight && !(d->weight[i] >= 0 && dpari_finite(d->weight[i]))) {
            return dpari_wrong(why, "point %ld: its weight is negative or not finite", i);
        }
    }
    return DPAR_OK;
}

/* The cube of all points, the largest weight, the number of points. */
static dpar_status dpari_pc_measure(dpari_pc *x, dpar_why *why)
{
    const dpar_points_partition_desc *d = x->d;
    const double none = 1.7976931348623157e308;
    double least[7] = {none, none, none, none, none, none, 0.0}; /* low, -high, -weight */
    int64_t i, all;
    int32_t k;
    dpar_status st;
    for (i = 0; i < d->count; i++) {
        for (k = 0; k < d->dims; k++) {
            least[k] = dpari_leastf(least[k], d->position[i * d->dims + k]);
            least[3 + k] = dpari_leastf(least[3 + k], -d->position[i * d->dims + k]);
        }
        least[6] = dpari_leastf(least[6], d->weight ? -d->weight[i] : -1.0);
    }
    st = dpar_all_reduce(x->c, least, least, 7, DPAR_F64, DPAR_MIN, NULL);
    if (st == DPAR_OK) {
        st = dpar_all_reduce(x->c, &d->count, &x->points, 1, DPAR_I64, DPAR_SUM, NULL);
    }
    if (st != DPAR_OK) {
        return dpari_po_said(x->c, st, why);
    }
    if (x->points > 0 && !(least[6] < 0)) {
        return dpari_wrong(why, "the weights of all %ld points are 0", x->points);
    }
    x->largest = -least[6];
    for (k = 0; k < d->dims; k++) { /* halves: no difference is infinite */
        x->low[k] = least[k];
        x->half = dpari_mostf(x->half, -least[3 + k] / 2 - least[k] / 2);
    }
    x->steps = 1.0;
    for (all = x->points, k = 0;
         k < DPARI_PC_MANTISSA_BITS && all <= INT64_C(1) << (DPARI_PC_WEIGHT_BITS - 1); k++) {
        all *= 2;
        x->steps *= 2;
    }
    return DPAR_OK;
}

static int64_t dpari_pc_place(const dpari_pc *x, const double *at)
{
    const double side = (double)(UINT32_C(1) << dpari_pc_bits(x->d->dims));
    uint32_t cell[3];
    int32_t k;
    for (k = 0; k < x->d->dims; k++) {
        const double share = x->half > 0 ? (at[k] / 2 - x->low[k] / 2) / x->half : 0.0;
        cell[k] = (uint32_t)dpari_leastf(share * side, side - 1);
    }
    return dpari_points_curve(x->d->dims, cell);
}

static int64_t dpari_pc_steps(const dpari_pc *x, int64_t i)
{
    return (int64_t)((x->d->weight ? x->d->weight[i] / x->largest : 1.0) * x->steps + 0.5);
}

/* Own points along the curve, and their weights. */
static dpar_status dpari_pc_line_up(dpari_pc *x, dpar_why *why)
{
    const dpar_points_partition_desc *d = x->d;
    const int64_t n = d->count, cuts = x->parts - 1;
    dpar_status st = DPAR_OK;
    dpari_po_item *item = (dpari_po_item *)dpari_po_take(&x->pages, 2 * n, sizeof *item, &st, why);
    int64_t i;
    x->before = (int64_t *)dpari_po_take(&x->pages, n + 1, 8, &st, why);
    x->cut = (dpari_pc_cut *)dpari_po_take(&x->pages, cuts, sizeof *x->cut, &st, why);
    x->count = (int64_t *)dpari_po_take(&x->pages, DPARI_PC_PROBES * cuts, 8, &st, why);
    if (st != DPAR_OK) {
        return st;
    }
    for (i = 0; i < n; i++) {
        item[i].key = dpari_pc_place(x, d->position + i * d->dims);
        item[i].id = d->id ? d->id[i] : x->first + i;
        item[i].at = i;
    }
    x->item = dpari_po_sort(item, item + n, n);
    for (i = 0; i < n; i++) {
        x->before[i + 1] = x->before[i] + dpari_pc_steps(x, x->item[i].at);
    }
    return DPAR_OK;
}

/* ---- cuts -------------------------------------------------------------------------------------
 */

/* How many own points come before (key, id); with = 1: and are there. */
static int64_t dpari_pc_rank(const dpari_pc *x, int64_t key, int64_t id, int32_t with)
{
    int64_t low = 0, high = x->d->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (dpari_po_compare(&x->item[middle], key, id) < with) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* ceil(times k T / parts) without overflow: times <= 2, k < parts <= 2^20, T <= 2^61. */
static int64_t dpari_pc_share(const dpari_pc *x, int64_t k, int64_t times)
{
    return times * (x->weight / x->parts) * k +
           dpari_ceil_div(times * (x->weight % x->parts) * k, x->parts);
}

/* Where probe j of a bracket is: low + an eighth of it, two eighths, ..., below high. */
static int64_t dpari_pc_probe(const dpari_pc_cut *cut, int64_t j)
{
    const uint64_t span = (uint64_t)cut->high - (uint64_t)cut->low;
    const uint64_t part = span / (DPARI_PC_PROBES + 1) + 1;
    uint64_t at = part * (uint64_t)(j + 1) - 1;
    at = at < span ? at : span - 1;
    return (int64_t)((uint64_t)cut->low + at);
}

static DPARI_COLD dpar_status dpari_pc_add(dpari_pc *x, int64_t each, dpar_why *why)
{
    return dpari_po_said(
        x->c,
        dpar_all_reduce(x->c, x->count, x->count, each * (x->parts - 1), DPAR_I64, DPAR_SUM, NULL),
        why);
}

/* Searches for each cut the smallest number in its bracket up to which points weigh as much as it
 * wants: places, then ids at its place. */
static dpar_status dpari_pc_search(dpari_pc *x, int by_id, dpar_why *why)
{
    const int64_t cuts = x->parts - 1;
    dpar_status st = DPAR_OK;
    int64_t i, j, open = cuts;
    while (open > 0 && st == DPAR_OK) {
        for (i = open = 0; i < cuts; i++) {
            const dpari_pc_cut *cut = &x->cut[i];
            open += cut->low < cut->high;
            for (j = 0; j < DPARI_PC_PROBES; j++) {
                const int64_t at = cut->low < cut->high ? dpari_pc_probe(cut, j) : cut->low;
                x->count[i * DPARI_PC_PROBES + j] =
                    x->before[by_id ? dpari_pc_rank(x, cut->key, at, 1)
                                    : dpari_pc_rank(x, at, INT64_MAX, 1)];
            }
        }
        st = open > 0 ? dpari_pc_add(x, DPARI_PC_PROBES, why) : st;
        for (i = 0; i < cuts && open > 0 && st == DPAR_OK; i++) {
            dpari_pc_cut *cut = &x->cut[i];
            const dpari_pc_cut was = *cut;
            if (was.low == was.high) {
                continue;
            }
            for (j = 0; j < DPARI_PC_PROBES && x->count[i * DPARI_PC_PROBES + j] < cut->weight;
                 j++) {
            }
            cut->low = j > 0 ? dpari_pc_probe(&was, j - 1) + 1 : was.low;
            cut->high = j < DPARI_PC_PROBES ? dpari_pc_probe(&was, j) : was.high;
        }
    }
    return st;
}

/* Finds the smallest and largest id at the place of each cut, over all ranks. The places are known
 * by now. */
static DPARI_COLD dpar_status dpari_pc_ids(dpari_pc *x, dpar_why *why)
{
    const int64_t cuts = x->parts - 1;
    dpar_status st;
    int64_t i;
    for (i = 0; i < cuts; i++) {
        dpari_pc_cut *cut = &x->cut[i];
        int64_t first, last;
        cut->key = cut->low;
        first = dpari_pc_rank(x, cut->key, INT64_MIN, 0);
        last = dpari_pc_rank(x, cut->key, INT64_MAX, 1);
        x->count[2 * i] = first < last ? x->item[first].id : INT64_MAX;
        x->count[2 * i + 1] = first < last ? ~x->item[last - 1].id : INT64_MAX; /* falls with it */
    }
    st = dpar_all_reduce(x->c, x->count, x->count, 2 * cuts, DPAR_I64, DPAR_MIN, NULL);
    for (i = 0; i < cuts && st == DPAR_OK; i++) {
        x->cut[i].low = x->count[2 * i];
        x->cut[i].high = ~x->count[2 * i + 1];
    }
    return dpari_po_said(x->c, st, why);
}

/* Decides for each cut whether the part begins before or behind its point: the cut is behind it if
 * the middle of the point's weight is before the cut. */
static DPARI_COLD dpar_status dpari_pc_sides(dpari_pc *x, dpar_why *why)
{
    const int64_t cuts = x->parts - 1;
    dpar_status st;
    int64_t i;
    for (i = 0; i < cuts; i++) {
        dpari_pc_cut *cut = &x->cut[i];
        cut->id = cut->low;
        x->count[i] = x->before[dpari_pc_rank(x, cut->key, cut->id, 0)] +
                      x->before[dpari_pc_rank(x, cut->key, cut->id, 1)];
    }
    st = dpari_pc_add(x, 1, why);
    for (i = 0; i < cuts && st == DPAR_OK; i++) {
        x->cut[i].behind = x->count[i] < dpari_pc_share(x, i + 1, 2);
    }
    return st;
}

static DPARI_COLD dpar_status dpari_pc_cuts(dpari_pc *x, dpar_why *why)
{
    dpar_status st =
        dpar_all_reduce(x->c, &x->before[x->d->count], &x->weight, 1, DPAR_I64, DPAR_SUM, NULL);
    int32_t i;
    if (st != DPAR_OK || x->parts == 1 || x->points == 0) {
        return dpari_po_said(x->c, st, why);
    }
    for (i = 0; i < x->parts - 1; i++) {
        x->cut[i].high = INT64_MAX;
        x->cut[i].weight = dpari_pc_share(x, i + 1, 1);
    }
    st = dpari_pc_search(x, 0, why);
    st = st == DPAR_OK ? dpari_pc_ids(x, why) : st;
    st = st == DPAR_OK ? dpari_pc_search(x, 1, why) : st;
    return st == DPAR_OK ? dpari_pc_sides(x, why) : st;
}

/* Parts of own points: both go on along the curve. */
static void dpari_pc_deal(const dpari_pc *x, int32_t *owner, int64_t *key)
{
    int32_t part = 0;
    int64_t i;
    for (i = 0; i < x->d->count; i++) {
        const dpari_po_item *item = &x->item[i];
        while (part < x->parts - 1 &&
               dpari_po_compare(item, x->cut[part].key, x->cut[part].id) >= x->cut[part].behind) {
            part++;
        }
        owner[item->at] = part;
        if (key) {
            key[item->at] = item->key;
        }
    }
}

DPAR_API DPARI_COLD dpar_status dpar_points_partition(dpar_comm *c,
                                                      const dpar_points_partition_desc *d,
                                                      int32_t *owner, int64_t *key, dpar_why *why)
{
    dpari_pc x;
    dpar_status st;
    if (!c) {
        return dpari_wrong(why, "no communicator");
    }
    dpari_zero(&x, sizeof x);
    st = dpari_po_host(c, why);
    st = st == DPAR_OK ? dpari_pc_check(d, owner, why) : st;
    st = dpari_agree_on(c, st, "partition", dpari_pc_state, d, why);
    if (st != DPAR_OK) {
        return st;
    }
    x.c = c;
    x.d = d;
    x.parts = d->parts > 0 ? d->parts : c->size;
    st = dpari_po_first(c, d->count, &x.first, why);
    st = st == DPAR_OK ? dpari_pc_measure(&x, why) : st;
    if (st == DPAR_OK) {
        st = dpari_agree(c, dpari_pc_line_up(&x, why), why);
    }
    st = st == DPAR_OK ? dpari_pc_cuts(&x, why) : st;
    if (st == DPAR_OK) {
        dpari_pc_deal(&x, owner, key);
    }
    dpari_po_free(&x.pages);
    return st;
}

/* ==== points/points_move.c ==== */

/* Moves a mesh to new owners. It implements dpar_points_migration_make.
 *
 * If points have no owner, each rank that gets elements bids for their points by a hash of id and
 * rank. An adjoint exchange with DPAR_MIN over a plan of the old mesh finds the least bid, which
 * gets the point. Points and elements are then sorted at their new owners, and for each a plan from
 * old to new places is made. These plans move ids and corners, and corners are converted to local
 * indices at the end. No rank has the whole mesh. */

/* What the ranks say of what they give: the largest of each over all of them. */
enum {
    DPARI_PM_OWNER, /* a rank with points gives it; the next: one does not */
    DPARI_PM_NO_OWNER,
    DPARI_PM_ELEMENT_OWNER,
    DPARI_PM_NO_ELEMENT_OWNER,
    DPARI_PM_ID,
    DPARI_PM_NO_ID,
    DPARI_PM_ELEMENT_ID,
    DPARI_PM_NO_ELEMENT_ID,
    DPARI_PM_CORNERS, /* and their negative */
    DPARI_PM_NO_CORNERS,
    DPARI_PM_SAID,
    DPARI_PM_MOST_CORNERS = 64
};

typedef struct dpari_pm {
    dpar_comm *c;
    const dpar_points_migration_desc *d;
    dpar_points_migration *to;
    int64_t said[DPARI_PM_SAID];
    int32_t corners;        /* of all ranks with elements; 0: there are none */
    int64_t slots;          /* corners of own elements */
    int64_t reads;          /* distinct ids among them, */
    int64_t *reading;       /* [reads] ascending; */
    int32_t *slot;          /* [slots] which of them each is */
    dpar_points *old;       /* exchanges of the mesh as it lies: the reads are ghosts */
    int32_t *owner;         /* [points + reads] who is to have each */
    int32_t *element_owner; /* [elements] */
    dpari_po_pages pages;
} dpari_pm;

/* ---- what is given --------------------------------------------------------------------------- */

static dpar_status dpari_pm_check_owners(const dpar_comm *comm, const int32_t *owner, int64_t count,
                                         const char *what, dpar_why *why)
{
    int64_t i;
    if (!owner) {
        return DPAR_OK;
    }
    for (i = 0; i < count; i++) {
        if (owner[i] < 0 || owner[i] >= comm->size) {
            return dpari_wrong(why, "%s %ld: its owner is to be rank %d of %d", what, i, owner[i],
                               comm->size);
        }
    }
    return DPAR_OK;
}

/* Checks what this rank gives, without the other ranks. */
static DPARI_COLD dpar_status dpari_pm_check(const dpar_comm *comm,
                                             const dpar_points_migration_desc *desc, dpar_why *why)
{
    dpar_status status = dpari_po_host(comm, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (!desc) {
        return dpari_wrong(why, "%ld points, %ld elements", (int64_t)0, (int64_t)0);
    }
    if (desc->point_count < 0 || desc->element_count < 0) {
        return dpari_wrong(why, "%ld points, %ld elements", desc->point_count, desc->element_count);
    }
    if (desc->element_count > 0 &&
        (!desc->corner || desc->corner_count < 1 || desc->corner_count > DPARI_PM_MOST_CORNERS)) {
        return dpari_wrong(why, "corner is NULL, or %d corners are not 1 to %d", desc->corner_count,
                           (int32_t)DPARI_PM_MOST_CORNERS);
    }
    if (desc->point_count > INT32_MAX ||
        (desc->element_count > 0 &&
         desc->element_count > (INT32_MAX - desc->point_count) / desc->corner_count)) {
        return dpari_say(DPAR_E_RANGE, why,
                         "%ld points and %ld elements of %d corners: 2^31 - 1 numbers are possible",
                         desc->point_count, desc->element_count, desc->corner_count);
    }
    status = dpari_pm_check_owners(comm, desc->owner, desc->point_count, "point", why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_pm_check_owners(comm, desc->element_owner, desc->element_count, "element", why);
}

/* An optional array must be given by all ranks that have points (or elements), or by none. `given`
 * is one of the pairs in dpari_pm.said. */
static DPARI_COLD dpar_status dpari_pm_some(const int64_t *given, const char *what, dpar_why *why)
{
    if (given[0] && given[1]) {
        return dpari_say(DPAR_E_MISMATCH, why, "%s is given on some ranks, NULL on others", what);
    }
    return DPAR_OK;
}

/* Compares what all ranks said. The result is the same on all of them. */
static DPARI_COLD dpar_status dpari_pm_compare(const int64_t *said, dpar_why *why)
{
    static const char name[4][16] = {"owner", "element_owner", "id", "element_id"};
    int32_t i;
    for (i = 0; i < 4; i++) { /* pairs from DPARI_PM_OWNER on */
        const dpar_status status = dpari_pm_some(said + 2 * i, name[i], why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    if (said[DPARI_PM_CORNERS] > 0 && said[DPARI_PM_CORNERS] != -said[DPARI_PM_NO_CORNERS]) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "elements have %ld corners on one rank, %ld on another",
                         -said[DPARI_PM_NO_CORNERS], said[DPARI_PM_CORNERS]);
    }
    if ((said[DPARI_PM_NO_OWNER] || said[DPARI_PM_NO_ELEMENT_OWNER]) && !said[DPARI_PM_OWNER] &&
        !said[DPARI_PM_ELEMENT_OWNER]) {
        return dpari_wrong(why, "neither owner nor element_owner is given");
    }
    return DPAR_OK;
}

/* Checks that all ranks describe the same kind of movement. Collective; all ranks get the same
 * message. */
static DPARI_COLD dpar_status dpari_pm_alike(dpari_pm *move, dpar_why *why)
{
    const dpar_points_migration_desc *desc = move->d;
    int64_t *said = move->said;
    const int points = desc->point_count > 0, elements = desc->element_count > 0;
    dpar_status status;
    said[DPARI_PM_OWNER] = points && desc->owner;
    said[DPARI_PM_NO_OWNER] = points && !desc->owner;
    said[DPARI_PM_ELEMENT_OWNER] = elements && desc->element_owner;
    said[DPARI_PM_NO_ELEMENT_OWNER] = elements && !desc->element_owner;
    said[DPARI_PM_ID] = points && desc->id;
    said[DPARI_PM_NO_ID] = points && !desc->id;
    said[DPARI_PM_ELEMENT_ID] = elements && desc->element_id;
    said[DPARI_PM_NO_ELEMENT_ID] = elements && !desc->element_id;
    said[DPARI_PM_CORNERS] = elements ? desc->corner_count : 0;
    said[DPARI_PM_NO_CORNERS] = elements ? -desc->corner_count : -INT32_MAX;
    status = dpar_all_reduce(move->c, said, said, DPARI_PM_SAID, DPAR_I64, DPAR_MAX, NULL);
    if (status != DPAR_OK) {
        return dpari_po_said(move->c, status, why);
    }
    move->corners = (int32_t)said[DPARI_PM_CORNERS];
    move->slots = desc->element_count * move->corners;
    return dpari_pm_compare(said, why);
}

/* ---- the mesh as it lies --------------------------------------------------------------------- */

/* Distinct ids among n, ascending, into id[]; which[i]: which of them number i is. */
static int64_t dpari_pm_distinct(const int64_t *of, int64_t n, dpari_po_item *item, int64_t *id,
                                 int32_t *which)
{
    int64_t i, distinct = 0;
    for (i = 0; i < n; i++) {
        item[i].key = of[i];
        item[i].id = 0;
        item[i].at = i;
    }
    item = dpari_po_sort(item, item + n, n);
    for (i = 0; i < n; i++) {
        if (i == 0 || item[i].key != item[i - 1].key) {
            id[distinct++] = item[i].key;
        }
        which[item[i].at] = (int32_t)(distinct - 1);
    }
    return distinct;
}

/* Lists the distinct points that own elements read. Local; takes the memory of the whole move. */
static dpar_status dpari_pm_read(dpari_pm *move, dpar_why *why)
{
    const dpar_points_migration_desc *desc = move->d;
    dpar_status status = DPAR_OK;
    dpari_po_pages pages;
    dpari_po_item *item;
    dpari_zero(&pages, sizeof pages);
    item = (dpari_po_item *)dpari_po_take(&pages, 2 * move->slots, sizeof *item, &status, why);
    move->reading = (int64_t *)dpari_po_take(&move->pages, move->slots, 8, &status, why);
    move->slot = (int32_t *)dpari_po_take(&move->pages, move->slots, 4, &status, why);
    move->element_owner =
        (int32_t *)dpari_po_take(&move->pages, desc->element_count, 4, &status, why);
    if (status == DPAR_OK) {
        move->reads = dpari_pm_distinct(desc->corner, move->slots, item, move->reading, move->slot);
        move->owner = (int32_t *)dpari_po_take(&move->pages, desc->point_count + move->reads, 4,
                                               &status, why);
    }
    dpari_po_free(&pages);
    return status;
}

/* Makes the plan of the mesh as it is, whose ghosts are the points that own elements read. */
static DPARI_COLD dpar_status dpari_pm_plan(dpari_pm *move, dpar_why *why)
{
    dpar_points_desc desc;
    dpari_zero(&desc, sizeof desc);
    desc.own_count = move->d->point_count;
    if (move->said[DPARI_PM_ID]) { /* all ranks must give ids then, also those without points */
        desc.own_id = move->d->id ? move->d->id : move->reading;
    }
    desc.ghost_count = move->reads;
    desc.ghost_id = move->reading;
    return dpar_points_make(move->c, &desc, &move->old, why);
}

/* ---- owners ---------------------------------------------------------------------------------- */

/* What a rank bids for a point: the least gets it. A hash, then the rank. */
static int64_t dpari_pm_bid(int64_t id, int32_t rank)
{
    return (int64_t)(dpari_hash(dpari_hash(0, id), rank) >> 33 << 31) | rank;
}

/* Gives each point to one of the ranks that will have an element with it. */
static dpar_status dpari_pm_bids(dpari_pm *move, dpar_why *why)
{
    const dpar_points_migration_desc *desc = move->d;
    const int64_t all = desc->point_count + move->reads;
    dpari_po_pages pages;
    dpar_points_field field;
    dpar_status status = DPAR_OK;
    int64_t i, k, *bid;
    dpari_zero(&pages, sizeof pages);
    bid = (int64_t *)dpari_po_take(&pages, all, 8, &status, why);
    status = dpari_agree(move->c, status, why);
    if (status != DPAR_OK) {
        dpari_po_free(&pages);
        return status;
    }
    for (i = 0; i < all; i++) {
        bid[i] = INT64_MAX;
    }
    for (i = 0; i < desc->element_count; i++) {
        for (k = i * move->corners; k < (i + 1) * move->corners; k++) {
            const int64_t at = desc->point_count + move->slot[k];
            const int64_t mine = dpari_pm_bid(move->reading[move->slot[k]], desc->element_owner[i]);
            bid[at] = dpari_least(bid[at], mine);
        }
    }
    dpari_zero(&field, sizeof field);
    field.type = DPAR_I64;
    field.data = bid;
    status = dpar_points_reduce_begin(move->old, &field, 1, DPAR_MIN);
    if (status == DPAR_OK) {
        status = dpar_points_end(move->old);
    }
    if (status == DPAR_OK) {
        for (i = 0; i < desc->point_count; i++) { /* a point that nobody bids for stays */
            move->owner[i] = bid[i] == INT64_MAX ? move->c->rank : (int32_t)(bid[i] & INT32_MAX);
        }
    }
    dpari_po_free(&pages);
    return dpari_po_said(move->c, status, why);
}

/* The rank that is to have most of an element's corners. */
static int32_t dpari_pm_majority(const dpari_pm *x, int64_t element)
{
    const int32_t *slot = x->slot + element * x->corners, *owner = x->owner + x->d->point_count;
    int32_t i, k, best = INT32_MAX, most = 0;
    for (i = 0; i < x->corners; i++) {
        int32_t n = 0;
        for (k = 0; k < x->corners; k++) {
            n += owner[slot[k]] == owner[slot[i]];
        }
        if (n > most || (n == most && owner[slot[i]] < best)) {
            most = n;
            best = owner[slot[i]];
        }
    }
    return best;
}

/* Who is to have each point, those that own elements read, and each element. */
static dpar_status dpari_pm_owners(dpari_pm *move, dpar_why *why)
{
    const dpar_points_migration_desc *desc = move->d;
    dpar_points_field field;
    dpar_status status;
    int64_t i;
    if (move->said[DPARI_PM_NO_OWNER]) {
        status = dpari_pm_bids(move, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    if (move->said[DPARI_PM_OWNER]) {
        for (i = 0; i < desc->point_count; i++) {
            move->owner[i] = desc->owner[i];
        }
    }
    dpari_zero(&field, sizeof field);
    field.type = DPAR_I32;
    field.data = move->owner;
    status = dpar_points_exchange_many(move->old, &field, 1);
    if (status != DPAR_OK) {
        return dpari_po_said(move->c, status, why);
    }
    for (i = 0; i < desc->element_count; i++) {
        if (move->said[DPARI_PM_ELEMENT_OWNER]) {
            move->element_owner[i] = desc->element_owner[i];
        } else {
            move->element_owner[i] = dpari_pm_majority(move, i);
        }
    }
    return DPAR_OK;
}

/* ---- things that move ------------------------------------------------------------------------ */

/* n things with ids, or numbered from `first`, their new owners; and what came of it. */
typedef struct dpari_pm_move {
    int64_t n;
    const int64_t *id, *order;
    const int32_t *owner;
    int64_t first;
    int64_t came; /* things of this rank afterwards, */
    void *ids;    /* and their ids, of dpar_comm_alloc */
    dpar_points *plan;
    /* while it is planned */
    int64_t *sends, *receives; /* [size] */
    int64_t *twice;            /* [2 * size] */
    int32_t *peer;             /* [size] */
    int64_t *out, *in;         /* [2 * n], [2 * came] order and id of each */
    int32_t *send_at, *receive_at;
    dpari_po_item *item;
    dpari_po_pages pages;
} dpari_pm_move;

/* Sorts items by the rank that gets them, in their order, and sends the counts to all ranks. */
static dpar_status dpari_pm_send(dpar_comm *c, dpari_pm_move *m, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int64_t i, at = 0;
    int32_t r;
    m->sends = (int64_t *)dpari_po_take(&m->pages, 5 * (int64_t)c->size, 8, &st, why);
    m->out = (int64_t *)dpari_po_take(&m->pages, 2 * m->n, 8, &st, why);
    m->send_at = (int32_t *)dpari_po_take(&m->pages, m->n, 4, &st, why);
    st = dpari_agree(c, st, why);
    if (st != DPAR_OK) {
        return st;
    }
    m->receives = m->sends + c->size;
    m->twice = m->receives + c->size;
    m->peer = (int32_t *)(void *)(m->twice + 2 * c->size);
    for (i = 0; i < m->n; i++) {
        m->sends[m->owner[i]]++;
    }
    for (r = 0; r < c->size; r++) { /* twice: where the next for r goes */
        m->twice[r] = at;
        at += m->sends[r];
    }
    for (i = 0; i < m->n; i++) {
        const int64_t id = m->id ? m->id[i] : m->first + i;
        at = m->twice[m->owner[i]]++;
        m->send_at[at] = (int32_t)i;
        m->out[2 * at] = m->order ? m->order[i] : id;
        m->out[2 * at + 1] = id;
    }
    return dpari_po_said(c, dpar_all_to_all(c, m->sends, m->receives, 1, DPAR_I64, NULL), why);
}

/* Receives orders and ids, and computes the place of each item. */
static dpar_status dpari_pm_receive(dpar_comm *c, dpari_pm_move *m, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int64_t i;
    int32_t r;
    for (r = 0; r < c->size; r++) {
        m->twice[r] = 2 * m->sends[r];
        m->twice[c->size + r] = 2 * m->receives[r];
        m->came += m->receives[r];
    }
    if (m->n + m->came > INT32_MAX) {
        st =
            dpari_say(DPAR_E_RANGE, why, "%ld go from and %ld come to rank %d: together at most %d",
                      m->n, m->came, c->rank, (int32_t)INT32_MAX);
    }
    m->in = (int64_t *)dpari_po_take(&m->pages, 2 * m->came, 8, &st, why);
    m->receive_at = (int32_t *)dpari_po_take(&m->pages, m->came, 4, &st, why);
    m->item = (dpari_po_item *)dpari_po_take(&m->pages, 2 * m->came, sizeof *m->item, &st, why);
    if (st == DPAR_OK) {
        st = dpari_po_said(c, dpar_comm_alloc(c, 8 * m->came + 8, &m->ids), why);
    }
    st = dpari_agree(c, st, why);
    if (st == DPAR_OK) {
        st = dpari_po_said(c,
                           dpar_all_to_all_v(c, m->out, m->twice, NULL, m->in, m->twice + c->size,
                                             NULL, DPAR_I64, NULL),
                           why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    for (i = 0; i < m->came; i++) {
        m->item[i].key = m->in[2 * i];
        m->item[i].id = m->in[2 * i + 1];
        m->item[i].at = i;
    }
    m->item = dpari_po_sort(m->item, m->item + m->came, m->came);
    for (i = 0; i < m->came; i++) {
        ((int64_t *)m->ids)[i] = m->item[i].id;
        m->receive_at[m->item[i].at] = (int32_t)(m->n + i);
    }
    return DPAR_OK;
}

/* Makes the plan from the old places of items to the new ones. */
static DPARI_COLD dpar_status dpari_pm_move_lists(dpar_comm *comm, dpari_pm_move *things,
                                                  dpar_why *why)
{
    dpar_points_desc desc;
    dpar_points_lists lists;
    int32_t r;
    dpar_status status = dpari_pm_send(comm, things, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_pm_receive(comm, things, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&desc, sizeof desc);
    dpari_zero(&lists, sizeof lists);
    for (r = 0; r < comm->size; r++) {
        if (things->sends[r] + things->receives[r] > 0) {
            things->sends[lists.peer_count] = things->sends[r];
            things->receives[lists.peer_count] = things->receives[r];
            things->peer[lists.peer_count] = r;
            lists.peer_count++;
        }
    }
    lists.peer = things->peer;
    lists.send_count = things->sends;
    lists.receive_count = things->receives;
    lists.send_index = things->send_at;
    lists.receive_index = things->receive_at;
    desc.own_count = things->n;
    desc.ghost_count = things->came;
    desc.lists = &lists;
    return dpar_points_make(comm, &desc, &things->plan, why);
}

/* The same, and gives back the memory that planning took. */
static DPARI_COLD dpar_status dpari_pm_move_plan(dpar_comm *comm, dpari_pm_move *things,
                                                 dpar_why *why)
{
    const dpar_status status = dpari_pm_move_lists(comm, things, why);
    dpari_po_free(&things->pages);
    return status;
}

/* ---- the mesh as it is to lie ---------------------------------------------------------------- */

typedef struct dpari_pm_new {
    int64_t slots;
    int64_t *corner;     /* [slots] ids */
    int32_t *owner;      /* [slots] who has each */
    int64_t *reading;    /* [slots] distinct ones */
    int32_t *slot;       /* [slots] */
    int32_t *local;      /* [slots] of each distinct one: local index */
    dpari_po_item *item; /* [2 * the larger of slots and own points] */
    dpari_po_pages pages;
} dpari_pm_new;

/* Elements' corners, with their owners, go where the elements go. */
static dpar_status dpari_pm_corners(dpari_pm *move, dpari_pm_new *mesh, dpar_why *why)
{
    const int64_t own = move->to->desc.own_count;
    dpari_po_pages pages;
    dpar_points_field field[2];
    dpar_status status = DPAR_OK;
    int32_t *owner;
    int64_t i;
    dpari_zero(&pages, sizeof pages);
    owner = (int32_t *)dpari_po_take(&pages, move->slots, 4, &status, why);
    if (!dpari_mul(move->to->element_count, move->corners, &mesh->slots) ||
        mesh->slots > INT32_MAX) {
        status = dpari_say(DPAR_E_RANGE, why, "%ld elements of %d corners come to rank %d",
                           move->to->element_count, move->corners, move->c->rank);
    }
    mesh->corner = (int64_t *)dpari_po_take(&mesh->pages, mesh->slots, 8, &status, why);
    mesh->owner = (int32_t *)dpari_po_take(&mesh->pages, mesh->slots, 4, &status, why);
    mesh->reading = (int64_t *)dpari_po_take(&mesh->pages, mesh->slots, 8, &status, why);
    mesh->slot = (int32_t *)dpari_po_take(&mesh->pages, mesh->slots, 4, &status, why);
    mesh->local = (int32_t *)dpari_po_take(&mesh->pages, mesh->slots, 4, &status, why);
    mesh->item = (dpari_po_item *)dpari_po_take(&mesh->pages, 2 * dpari_most(mesh->slots, own),
                                                sizeof *mesh->item, &status, why);
    status = dpari_agree(move->c, status, why);
    if (status == DPAR_OK) {
        for (i = 0; i < move->slots; i++) {
            owner[i] = move->owner[move->d->point_count + move->slot[i]];
        }
        dpari_zero(field, sizeof field);
        field[0].type = DPAR_I64;
        field[1].type = DPAR_I32;
        field[0].components = field[1].components = move->corners;
        field[0].data = move->reading; /* only read; any address where there are no elements */
        if (move->slots > 0) {
            field[0].data = (void *)(uintptr_t)move->d->corner;
        }
        field[1].data = owner;
        field[0].ghosts = mesh->corner;
        field[1].ghosts = mesh->owner;
        status = dpar_points_exchange_many(move->to->element_points, field, 2);
        status = dpari_po_said(move->c, status, why);
    }
    dpari_po_free(&pages);
    return status;
}

/* Local indices of those distinct ids that are own points; -1 of the others, and how many. */
static int64_t dpari_pm_own(const dpari_pm *x, const dpari_pm_new *n, int64_t reads)
{
    const dpar_points_desc *d = &x->to->desc;
    dpari_po_item *item = n->item;
    int64_t i, k = 0, others = 0;
    for (i = 0; i < d->own_count; i++) {
        item[i].key = d->own_id[i];
        item[i].id = 0;
        item[i].at = i;
    }
    item = dpari_po_sort(item, item + d->own_count, d->own_count);
    for (i = 0; i < reads; i++) {
        while (k < d->own_count && item[k].key < n->reading[i]) {
            k++;
        }
        n->local[i] = k < d->own_count && item[k].key == n->reading[i] ? (int32_t)item[k].at : -1;
        others += n->local[i] < 0;
    }
    return others;
}

/* Ghosts by owner, then id; corners become local indices. `memory`: of their arrays. */
static void dpari_pm_number(dpari_pm *x, const dpari_pm_new *n, int64_t reads, int64_t *memory)
{
    dpar_points_desc *d = &x->to->desc;
    int64_t *const id = memory;
    int32_t *const owner = (int32_t *)(void *)(id + d->ghost_count);
    dpari_po_item *item = n->item;
    int64_t i, k = 0;
    x->to->corner = owner + d->ghost_count;
    for (i = 0; i < n->slots; i++) { /* the owner of each distinct id, for a while */
        x->to->corner[n->slot[i]] = n->owner[i];
    }
    for (i = 0; i < reads; i++) {
        if (n->local[i] < 0) {
            item[k].key = x->to->corner[i];
            item[k].id = n->reading[i];
            item[k++].at = i;
        }
    }
    item = dpari_po_sort(item, item + k, k);
    for (i = 0; i < k; i++) {
        id[i] = item[i].id;
        owner[i] = (int32_t)item[i].key;
        n->local[item[i].at] = (int32_t)(d->own_count + i);
    }
    for (i = 0; i < n->slots; i++) {
        x->to->corner[i] = n->local[n->slot[i]];
    }
    d->ghost_id = id;
    d->owner = owner;
}

/* Moves the corners and converts them to local indices. Collective; its scratch stays in `mesh`. */
static DPARI_COLD dpar_status dpari_pm_convert(dpari_pm *move, dpari_pm_new *mesh, dpar_why *why)
{
    void **memory = &move->to->memory[2];
    int64_t reads, ghosts;
    dpar_status status = dpari_pm_corners(move, mesh, why);
    if (status != DPAR_OK) {
        return status;
    }
    reads = dpari_pm_distinct(mesh->corner, mesh->slots, mesh->item, mesh->reading, mesh->slot);
    ghosts = dpari_pm_own(move, mesh, reads);
    status = dpar_comm_alloc(move->c, 12 * ghosts + 4 * mesh->slots + 8, memory);
    if (status == DPAR_OK) {
        move->to->desc.ghost_count = ghosts;
        dpari_pm_number(move, mesh, reads, (int64_t *)*memory);
    }
    return dpari_agree(move->c, dpari_po_said(move->c, status, why), why);
}

static DPARI_COLD dpar_status dpari_pm_renumber(dpari_pm *move, dpar_why *why)
{
    dpari_pm_new mesh;
    dpar_status status;
    dpari_zero(&mesh, sizeof mesh);
    status = dpari_pm_convert(move, &mesh, why);
    dpari_po_free(&mesh.pages);
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Moves points. What is allocated belongs to the result also after a failure, which frees it. */
static DPARI_COLD dpar_status dpari_pm_go_points(dpari_pm *move, dpar_why *why)
{
    dpar_points_migration *to = move->to;
    dpari_pm_move points;
    dpar_status status;
    dpari_zero(&points, sizeof points);
    points.n = move->d->point_count;
    points.id = move->d->id;
    points.order = move->d->order;
    points.owner = move->owner;
    points.first = move->old->first_id;
    status = dpari_pm_move_plan(move->c, &points, why);
    to->points = points.plan;
    to->memory[0] = points.ids;
    to->desc.own_count = points.came;
    to->desc.own_id = (const int64_t *)points.ids;
    return status;
}

/* Moves elements, likewise. */
static DPARI_COLD dpar_status dpari_pm_go_elements(dpari_pm *move, dpar_why *why)
{
    dpar_points_migration *to = move->to;
    dpari_pm_move elements;
    dpar_status status;
    dpari_zero(&elements, sizeof elements);
    elements.n = move->d->element_count;
    elements.id = move->d->element_id;
    elements.order = move->d->element_order;
    elements.owner = move->element_owner;
    status = dpari_po_first(move->c, elements.n, &elements.first, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_pm_move_plan(move->c, &elements, why);
    to->element_points = elements.plan;
    to->memory[1] = elements.ids;
    to->element_count = elements.came;
    to->element_id = (int64_t *)elements.ids;
    return status;
}

/* Chooses owners and moves the mesh to them. Collective: each step ends with the same status on all
 * ranks. */
static DPARI_COLD dpar_status dpari_pm_go(dpari_pm *move, dpar_why *why)
{
    dpar_status status = dpari_pm_owners(move, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_pm_go_points(move, why);
    if (status != DPAR_OK || move->corners == 0) {
        return status;
    }
    status = dpari_pm_go_elements(move, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_pm_renumber(move, why);
}

/* Plans the mesh as it is, moves it, and frees that plan. */
static DPARI_COLD dpar_status dpari_pm_run(dpari_pm *move, dpar_why *why)
{
    dpar_status closed;
    dpar_status status = dpari_pm_plan(move, why);
    if (status != DPAR_OK) {
        return status;
    }
    move->to->comm = move->c;
    status = dpari_pm_go(move, why);
    closed = dpar_points_free(move->old);
    if (status == DPAR_OK) {
        status = dpari_po_said(move->c, closed, why);
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_points_migration_make(dpar_comm *c,
                                                           const dpar_points_migration_desc *d,
                                                           dpar_points_migration **moved,
                                                           dpar_why *why)
{
    dpari_pm move;
    void *memory = NULL;
    dpar_status status;
    if (!c) {
        return dpari_wrong(why, "no communicator");
    }
    dpari_zero(&move, sizeof move);
    move.c = c;
    move.d = d;
    status = moved ? dpari_pm_check(c, d, why) : dpari_wrong(why, "moved is NULL");
    status = dpari_agree(c, status, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_pm_alike(&move, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_po_said(c, dpar_comm_alloc(c, sizeof *move.to, &memory), why);
    if (status == DPAR_OK) {
        status = dpari_pm_read(&move, why);
    }
    status = dpari_agree(c, status, why);
    move.to = (dpar_points_migration *)memory;
    if (status == DPAR_OK) {
        status = dpari_pm_run(&move, why);
    }
    dpari_po_free(&move.pages);
    if (status == DPAR_OK) {
        *moved = move.to;
    } else if (move.to && move.to->comm) { /* begun: it owns plans and arrays */
        (void)dpar_points_migration_free(move.to);
    } else {
        dpar_comm_release(c, memory);
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_points_migration_free(dpar_points_migration *moved)
{
    dpar_comm *comm;
    dpar_status points, element_points;
    int32_t i;
    if (!moved) {
        return DPAR_OK;
    }
    comm = moved->comm;
    points = dpar_points_free(moved->points);
    element_points = dpar_points_free(moved->element_points);
    for (i = 0; i < 3; i++) {
        dpar_comm_release(comm, moved->memory[i]);
    }
    dpar_comm_release(comm, moved);
    return points != DPAR_OK ? points : element_points;
}

#endif /* DPAR_POINTS_IMPLEMENTATION */
