/* SPDX-License-Identifier: MIT-0 */
/* dpar_points.h - exchanges values of unstructured meshes, by global ids or by index lists.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 * It is for finite elements, polyhedral meshes, sparse matrices and graphs. On each rank, a vector holds the rank's own
 * values first and then its ghosts, which are copies of values that other ranks own. Points are identified by ids. In
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
 *         x = (double *)dpar_points_array(points, DPAR_F64, 1);     x[10 + 20]; an array of your own works too
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
 *     dpar_points_combine(points, x)                  adds the values that have the same id (desc.shared)
 *     dpar_points_to_local(points, ids, count, index)             converts ids to local indices, as for matrix columns
 *     dpar_points_interior_rows(points, rows, begin, column, row, &interior)     finds the rows that read no ghost
 *     dpar_points_begin(points, x)                    starts the exchange; compute these rows meanwhile
 *     dpar_points_end(points)                         waits until the exchange is complete
 *
 * dpar_points_make also takes consecutive ids, known owners, ids that ranks share without an owner,
 * and index lists: see dpar_points_desc.
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

/* points - exchanges values of unstructured meshes, described by ids or by index lists, for finite
 * elements, finite volumes on polyhedra, sparse matrices and graphs. An exchange is planned once.
 * Any vectors can then be exchanged as often as you like, with one message per peer.
 *
 * On each rank, a vector holds `own_count` own values and then `ghost_count` ghosts, which are
 * copies of values that other ranks own. Local index i is an own value if i < own_count, otherwise
 * it is ghost i - own_count. There are three ways to describe an exchange.
 *
 * By ids, which are numbers that you choose for all points of the job. Each rank lists the ids that
 * it owns and those that it reads, and dpar finds out which ranks own the latter:
 *
 *     dpar_points_desc desc = {0};
 *     desc.own_count = n;                     own_id stays NULL: ids are consecutive over the ranks
 *     desc.ghost_count = m;
 *     desc.ghost_id = needed;                 in any order, repeats allowed
 *
 * By lists, as HPCG, PETSc and hypre have them: each rank lists which own values it sends to which
 * rank, and how many values it receives from which rank (dpar_points_lists). The exchange is then
 * the same:
 *
 *     dpar_points_make(comm, &desc, &points, &why);           each call returns a dpar_status
 *     field[0].type = field[1].type = DPAR_F64;
 *     field[0].data = x;                      x[n + m]
 *     field[1].data = u;                      u[3 * (n + m)], three adjacent values per point
 *     field[1].components = 3;
 *     dpar_points_begin_many(points, field, 2);
 *     ... rows that read no ghost: dpar_points_interior_rows ...
 *     dpar_points_end(points);
 *     ... the other rows ...
 *     dpar_points_free(points);
 *
 * In some codes own values and ghosts are mixed in one array, for example because a tile is stored
 * with its border. Set mixed_count to the size of the array in place of own_count and ghost_count,
 * and list the places that are sent and received. All places that are not received are own values.
 *
 *     desc.mixed_count = 6 * 6;               a tile of 4 x 4 values with a border
 *     desc.lists = &lists;                    receive_index has the places of the border
 *
 * If no rank sends some of the ghosts, such as those of cells outside a wall, set unsent_ghosts
 * to 1. Exchanges then leave these ghosts as they are, and you fill them.
 *
 * By shared ids, which have no owners, such as those of the corners of elements (desc.shared).
 * There are no ghosts then: an id may occur several times, on one rank and on others, and
 * dpar_points_combine_many replaces all values that have the same id by their sum, in one exchange.
 *
 * Vectors are passed to each call and may differ from call to call. Vectors from dpar_comm_alloc
 * are exchanged fastest, because peers in the same node read long runs in place. Other vectors are
 * packed into memory that those peers read. Between nodes values are sent in messages.
 *
 * Between begin and end own values may be read but not written, and ghosts must be neither read nor
 * written. Several plans may be in progress at a time if no plan writes values that another reads.
 *
 * Memory. A plan takes 1 KiB, which you may provide (desc.memory). Plans by ids need another 24 to
 * 48 bytes there for each ghost and for each own id that own_id lists. Plans by lists or with
 * unsent ghosts need a bit for each ghost, or for each place of a mixed array. All other memory
 * comes from dpar_comm_alloc. It is 1.2 KiB per peer and the memory of the lists, which is 4 bytes
 * for each value sent and each ghost. Lists of long runs take only 8 bytes per run, and a list that
 * is a single run takes none. Packed values take three times their bytes, or four times with
 * messages. dpar_points_make temporarily needs up to 64 bytes per id, 72 if ids have 32 bits, and
 * 48 bytes per rank of the communicator.
 *
 * Plans of shared ids also keep 4 bytes for each value whose id occurs several times, and 8 bytes
 * for each sharer of an id, but no lists of runs. dpar_points_make then temporarily needs up to
 * 250 bytes per value.
 *
 * Plans share none of this memory. Four levels of a multigrid, each half as fine as the one before,
 * take 1.4 times the memory of the finest. If they shared memory, each exchange would have to wait
 * until all ranks had read the values of the previous one, which makes small exchanges a fifth
 * slower. */

/* The order of ghosts in a vector. */
enum {
    DPAR_POINTS_ORDER_GIVEN,   /* the order of ghost_id */
    DPAR_POINTS_ORDER_BY_OWNER /* by the owner's rank, then by id, so that the values from a peer
                            are one run and need no unpacking. dpar_points_to_local finds the index
                            of an id */
};

/* How values are exchanged. */
enum {
    DPAR_POINTS_AUTO,     /* DIRECT if peers' memory can be reached, otherwise messages */
    DPAR_POINTS_MESSAGES, /* one message per peer */
    DPAR_POINTS_PACKED,   /* packed by their owner into memory that the peer reads */
    DPAR_POINTS_DIRECT    /* long runs are read in place, others are packed */
};

/* The values that this rank sends and receives in an exchange, as many codes list them already. The
 * first send_count[0] entries of send_index are the values for peer[0], the next send_count[1]
 * those for peer[1], and so on. In the same way, the first receive_count[0] entries of
 * receive_index are the ghosts that receive the values from peer[0], in the order of that peer's
 * send_index. All arrays are copied. Counts have 64 or 32 bits, as in your code. */
typedef struct dpar_points_lists {
    int32_t peer_count;
    const int32_t *peer;            /* [peer_count] ranks, each once, in any order; may include this
                                       rank */
    const int64_t *send_count;      /* [peer_count] number of values sent to each peer */
    const int64_t *receive_count;   /* [peer_count] number of values received from each peer; must
                                       equal what the peer sends (DPAR_E_MISMATCH) */
    const int32_t *send_index;      /* local indices of own values; a value may be sent to several
                                       peers */
    const int32_t *receive_index;   /* local indices of ghosts, each once; NULL means own_count,
                                       own_count + 1, ... With mixed_count it must be set, and may
                                       have any index that is not in send_index */
    const int32_t *send_count32;    /* replaces send_count if your counts have 32 bits */
    const int32_t *receive_count32; /* replaces receive_count in the same way */
} dpar_points_lists;

/* The points of this rank. Zero it, then set own_count, and either ids or lists. All ranks must
 * pass ids or all must pass lists, with the same order, method, run_bytes and tag; otherwise all
 * get DPAR_E_MISMATCH. */
typedef struct dpar_points_desc {
    int64_t own_count;       /* number of values that this rank owns; own_count + ghost_count must
                                be 0 to 2^31 - 1 */
    const int64_t *own_id;   /* [own_count] any numbers, in any order, each once in the job (unless
                                `shared` is set). NULL on all ranks selects consecutive ids from 0,
                                rank after rank, or the elements that `layout` assigns to this
                                rank */
    int64_t ghost_count;     /* number of values that this rank reads */
    const int64_t *ghost_id; /* [ghost_count] their ids, which may include own ids */
    const int32_t *owner;    /* [ghost_count] the rank that owns each ghost, if you know it. NULL on
                                all ranks looks the owners up */
    const dpar_layout *layout;      /* defines the owners; may be NULL. Ids are then the elements of
                                       its whole array in C order, owned by its primary copies */
    int32_t order;                  /* DPAR_POINTS_ORDER_GIVEN or DPAR_POINTS_ORDER_BY_OWNER */
    int32_t method;                 /* DPAR_POINTS_AUTO, _MESSAGES, _PACKED or _DIRECT */
    const dpar_points_lists *lists; /* replaces the ids; own_count and ghost_count must be set */
    int64_t run_bytes; /* for DIRECT: a list is read in place if its runs have at least this many
                          bytes on average; 0 selects 64 */
    int32_t tag;       /* of the messages; your own messages between begin and end must have another
                          one */
    int32_t shared;    /* 1: own_id lists shared ids. Each is 0 or more and may occur any number of
                          times, on one rank and on several; -1 means that a value has no id.
                          dpar_points_combine_many combines values that have the same id */
    int32_t timers;    /* 1 keeps times for dpar_points_report */
    void *memory;      /* for the plan, aligned to 64; NULL lets dpar_points_make allocate it */
    int64_t bytes;     /* size of memory. With memory NULL and bytes 1, dpar_points_make fails with
                          DPAR_E_ROOM, and why->bytes is the size that is needed */
    int64_t mixed_count;       /* with lists: size of an array in which own values and ghosts are
                                  mixed, up to 2^31 - 1. own_count and ghost_count must then be 0,
                                  and local indices are places of the array. 0: not mixed */
    int32_t unsent_ghosts;     /* 1 allows ghosts that no rank sends: ids that no rank owns, whose
                                  `owner` is then -1, or ghosts that are not in receive_index.
                                  Exchanges leave them as they are, and
                                  DPAR_POINTS_ORDER_BY_OWNER puts them last. 0 makes them an error.
                                  Not needed with mixed_count */
    const int32_t *own_id32;   /* replaces own_id if your ids have 32 bits */
    const int32_t *ghost_id32; /* replaces ghost_id in the same way */
} dpar_points_desc;

/* A vector over own values and ghosts. Zero it, then set type, data and the other fields that you
 * need. Component k of local index i is
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
    void *ghosts; /* NULL if ghosts follow the own values or are mixed with them; otherwise ghost g
                     is ghosts[g * stride + ...]. With mixed_count, the ghost with local index i is
                     then ghosts[i * stride + ...] */
} dpar_points_field;

/* A plan for exchanging values of points. All fields are read-only. */
typedef struct dpar_points {
    dpar_comm *comm;
    int64_t own_count, ghost_count; /* number of own values and ghosts of this rank. In a mixed
                                       array the ghosts are the places in receive_index, and all
                                       others are own values */
    int64_t first_id;               /* the id of own value 0 if ids are consecutive; otherwise 0 */
    int64_t global_count;           /* number of own values of all ranks together */
    int32_t peer_count;             /* number of ranks that this rank sends to or receives from,
                                       including this rank if it reads its own ids */
} dpar_points;

/* Plans exchanges. The arrays of desc are not used after the call, except for desc.memory, which
 * belongs to the plan until dpar_points_free.
 *
 * Collective over comm. All errors are returned on all ranks. Fails with DPAR_E_ARG if an index is
 * out of range, comm has a device's memory, or an id has two owners or none ("id 17, ghost 3 of
 * rank 2, is owned by no rank"). A second owner is not detected if `owner` or `layout` defines the
 * owners. Lists fail with DPAR_E_ARG, too, if an index is received twice, or both sent and
 * received, since the result would depend on the order. Fails with DPAR_E_MISMATCH if ranks
 * describe different kinds of plans, or if a rank sends more or fewer values than its peer
 * receives. Fails with DPAR_E_RANGE if a rank has more than 2^31 - 1 values, with DPAR_E_MEMORY, or
 * with an error of the communicator. Fails with DPAR_E_ROOM if desc.bytes is set and too small on
 * some rank; why->bytes is then the number that this rank needs.
 *
 * Ids in own_id are looked up in a distributed directory, unless `owner` or `layout` is set: rank
 * hash(id) mod size knows the owner of id, and no rank knows all ids. Consecutive ids need an
 * all-gather of 8 bytes per rank instead. Costs three all-to-alls and O(own ids + ghosts + size)
 * per rank.
 *
 * Shared ids are looked up in the same directory, with two all-to-alls. All ranks that share an id
 * become peers, and the directory sends s^2 pairs for an id that s ranks have. */
DPAR_API dpar_status dpar_points_make(dpar_comm *comm, const dpar_points_desc *desc,
                                      dpar_points **points, dpar_why *why);
/* Destroys a plan. NULL does nothing. Collective. Fails with DPAR_E_ARG if an exchange is in
 * progress; the plan then still exists. If an exchange has failed, returns the status of that
 * exchange. Costs a barrier over the plan's communicator. */
DPAR_API dpar_status dpar_points_free(dpar_points *points);

/* ---- exchanges ---- */

/* Starts an exchange, which copies owners' values to the ghosts of several vectors.
 *
 * fields: [count] vectors; not read after the call returns. All ranks must pass the same count,
 *         types and components; strides and addresses may differ.
 *
 * Collective. All ranks of the plan's communicator must begin exchanges in the same order, but each
 * waits only for its peers. Fails with DPAR_E_ARG if there is no plan or no vector, if the elements
 * of a type have no whole number of bytes, or if an exchange has not ended. Only the rank that
 * makes such a call gets this error. It has begun nothing, and its peers wait for it until the
 * deadline. Fails with DPAR_E_MISMATCH if ranks pass different vectors or operations; ranks that
 * send messages to each other detect this only if sizes differ. Fails with DPAR_E_PEER or
 * DPAR_E_TIMEOUT as comm.h describes, which breaks the communicator. The message is in
 * points->comm->why.
 *
 * Costs O(values sent and received). An exchange with more bytes per point than all exchanges
 * before it allocates memory (dpar_comm_alloc). */
DPAR_API dpar_status dpar_points_begin_many(dpar_points *points, const dpar_points_field *fields,
                                            int32_t count);
/* Starts the adjoint (transpose) of an exchange: owners' values are combined with those of all
 * their ghosts, and the ghosts become 0, except for unsent ghosts. Until dpar_points_end neither
 * own values nor ghosts may be read or written.
 *
 * op: DPAR_SUM, DPAR_MAX or DPAR_MIN.
 *
 * Ghosts are combined in ascending order of ranks, and the ghosts of one rank in their order, as in
 *
 *     ((own op rank 0's first) op rank 0's second) op rank 3's first
 *
 * The order does not depend on arrival or engine. F16 and BF16 are rounded after each operation.
 * Collective. Errors and cost are those of dpar_points_begin_many. Also fails with DPAR_E_ARG if op
 * is not one of these, or if a type cannot be combined. */
DPAR_API dpar_status dpar_points_reduce_begin_many(dpar_points *points,
                                                   const dpar_points_field *fields, int32_t count,
                                                   int32_t op);
/* Advances an exchange as far as possible without waiting. Returns DPAR_OK if everything has
 * arrived (dpar_points_end must still be called), otherwise DPAR_MORE. Local. Errors are those of
 * dpar_points_begin_many except for DPAR_E_TIMEOUT. Costs O(peers + values that it moves). */
DPAR_API dpar_status dpar_points_test(dpar_points *points);
/* Waits until the ghosts, or the own values of an adjoint, are complete and own values may be
 * written again. Returns DPAR_OK if no exchange is in progress. Collective. Errors and cost are
 * those of dpar_points_begin_many. */
DPAR_API dpar_status dpar_points_end(dpar_points *points);
/* Runs an exchange: dpar_points_begin_many and dpar_points_end in one call. */
DPAR_API dpar_status dpar_points_exchange_many(dpar_points *points, const dpar_points_field *fields,
                                               int32_t count);
/* Runs an adjoint: dpar_points_reduce_begin_many and dpar_points_end in one call. If
 * dpar_points_exchange_many follows, all ranks that have a point get the result, which is the
 * assembly of finite elements. */
DPAR_API dpar_status dpar_points_reduce_many(dpar_points *points, const dpar_points_field *fields,
                                             int32_t count, int32_t op);

/* Starts to combine the values that have the same id, in plans of shared ids (desc.shared). All
 * these values, on all ranks, are replaced by the result. Until dpar_points_end they may be neither
 * read nor written. Values whose id is -1 or occurs only once in the job are not changed.
 *
 * op: DPAR_SUM, DPAR_AVG (the mean), DPAR_PRODUCT, DPAR_MAX, DPAR_MIN, or DPAR_COPY, which replaces
 *     all values by the first one on the lowest rank that has the id.
 *
 * The values of one rank are combined in the order of their indices, and then the results of the
 * ranks in ascending order of ranks. So all ranks get the same bits (except for those of a NaN):
 *
 *     (rank 0's value 3 op rank 0's value 8) op rank 2's value 5 op rank 7's value 0
 *
 * F16 and BF16 are combined in F32. The result of each rank is rounded, and then that of all ranks.
 * A mean is the sum divided by the number of values; for integers it is rounded towards zero. Sums
 * of F64 are fast. Other types and operations take about 30 ns for each number of each id.
 *
 * Each rank sends its results to all ranks that share their ids, in one message per peer, or
 * through shared memory. This suits the vertices of a mesh, each of which few ranks share. An id
 * that all ranks have makes all of them peers, and costs size - 1 messages per rank. Use
 * dpar_all_reduce for such values, and give them the id -1.
 *
 * Collective. Errors and cost are those of dpar_points_begin_many. Also fails with DPAR_E_ARG if
 * the plan has no shared ids, if op is not one of these, or if a type cannot be combined. */
DPAR_API dpar_status dpar_points_combine_begin_many(dpar_points *points,
                                                    const dpar_points_field *fields, int32_t count,
                                                    int32_t op);
/* Combines values: dpar_points_combine_begin_many and dpar_points_end in one call. */
DPAR_API dpar_status dpar_points_combine_many(dpar_points *points, const dpar_points_field *fields,
                                              int32_t count, int32_t op);

/* ---- numbering ---- */

/* Converts ids that this rank owns or reads to local indices, as for the columns of matrices and
 * the corners of elements.
 *
 * ids:   [count].
 * index: [count] receives the index of each id, or the first one if ghost_id repeats it, or -1 if
 *        the rank neither owns nor reads the id. Must not overlap ids.
 *
 * Local. Fails with DPAR_E_ARG if any id is neither owned nor read, and if a pointer is NULL. Also
 * fails with DPAR_E_ARG for a plan by lists, which have no ids, and for a plan of shared ids. The
 * message is in points->comm->why. Costs O(count). */
DPAR_API dpar_status dpar_points_to_local(const dpar_points *points, const int64_t *ids,
                                          int64_t count, int32_t *index);
/* Converts ids of 32 bits as dpar_points_to_local does, but index may be the array of ids. */
DPAR_API dpar_status dpar_points_to_local32(const dpar_points *points, const int32_t *ids,
                                            int64_t count, int32_t *index);
/* Sorts the rows of a sparse matrix into those that read no ghost, which can be computed between
 * begin and end, and the others. Elements of a mesh are rows too, with their corners as columns.
 * Unsent ghosts do not count as ghosts here, because exchanges do not change them.
 *
 * begin:    [rows + 1], index in `column` of the first entry of each row.
 * column:   [begin[rows]], local indices; row i has column[begin[i] .. begin[i + 1] - 1].
 * row:      [rows], receives the rows that read no ghost, then the others, both ascending.
 * interior: receives the number of rows that read no ghost.
 *
 * Local. Fails with DPAR_E_ARG if a column is not a local index, begin descends, or a pointer is
 * NULL; the message is in points->comm->why. Costs O(columns). */
DPAR_API dpar_status dpar_points_interior_rows(const dpar_points *points, int64_t rows,
                                               const int64_t *begin, const int32_t *column,
                                               int32_t *row, int64_t *interior);
/* Sorts rows as dpar_points_interior_rows does, for matrices whose `begin` has 32 bits. */
DPAR_API dpar_status dpar_points_interior_rows32(const dpar_points *points, int64_t rows,
                                                 const int32_t *begin, const int32_t *column,
                                                 int32_t *row, int64_t *interior);

/* ---- reports ---- */

/* The traffic between this rank and one peer in each exchange. A value is counted once for all its
 * components in all vectors. Values are sent in one message in each direction, or through shared
 * memory. */
typedef struct dpar_points_traffic {
    int32_t rank;   /* of the peer */
    int32_t method; /* DPAR_POINTS_MESSAGES, or DPAR_POINTS_PACKED if memory is shared, even if
                       vectors with long runs are then read in place (DIRECT) */
    int64_t send_count, receive_count; /* number of values */
    int64_t send_runs;    /* number of runs of consecutive indices among the values sent */
    int64_t receive_runs; /* the same for the values received; if it is 1, nothing is unpacked */
} dpar_points_traffic;
/* Describes the traffic with peer k, from 0 to points->peer_count - 1 in ascending order of ranks.
 * Returns 1, or 0 if there is no such peer. Local. Costs O(1). */
DPAR_API int dpar_points_peer(const dpar_points *points, int32_t k, dpar_points_traffic *traffic);
/* Lists the traffic of this rank in an exchange as a table, with a line for each peer. If
 * desc.timers was set, it includes the times of the phases in microseconds per exchange. Local.
 * Costs O(peers). */
DPAR_API void dpar_points_report(const dpar_points *points, dpar_text *out);
/* Draws how many values each rank sends to each other rank, as a matrix with one row per sender and
 * one column per receiver. All ranks get it; `out` may be NULL on ranks that do not need it.
 * Collective. Fails with DPAR_E_RANGE if there are more than 64 ranks. Costs an all-gather of 8
 * bytes for each pair of ranks. */
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

/* Allocates a zeroed vector for own values and ghosts, in registered memory that peers read in
 * place. Returns NULL on failure, with the message in points->comm->why. The vector can be used
 * until dpar_comm_release or until the communicator's world is closed. Local. Costs O(values). */
DPAR_API void *dpar_points_array(dpar_points *points, int32_t type, int32_t components);
/* Copies owners' values to the ghosts of x.
 *
 * x: [own_count + ghost_count], in any memory. For other types use dpar_points_exchange_many.
 *
 * Collective. Errors and cost are those of dpar_points_exchange_many. */
DPAR_API dpar_status dpar_points_exchange(dpar_points *points, double *x);
/* Adds the ghosts of x to their owners' values, and sets the ghosts to 0. Collective. Errors, cost
 * and the order of sums are those of dpar_points_reduce_begin_many. */
DPAR_API dpar_status dpar_points_reduce(dpar_points *points, double *x);
/* Adds the values of x that have the same id, on all ranks, and stores each sum at all of them, for
 * plans of shared ids (desc.shared).
 *
 * x: [own_count], in any memory. For other types and operations use dpar_points_combine_many.
 *
 * Collective. Errors, cost and the order of sums are those of dpar_points_combine_begin_many. */
DPAR_API dpar_status dpar_points_combine(dpar_points *points, double *x);
/* Starts dpar_points_exchange, which dpar_points_end completes, so that you can compute meanwhile.
 * Until then own values may be read but not written, and ghosts must be neither read nor written.
 * Collective. Errors and cost are those of dpar_points_begin_many. */
DPAR_API dpar_status dpar_points_begin(dpar_points *points, double *x);
/* Starts dpar_points_reduce, which dpar_points_end completes. Until then x must be neither read nor
 * written. Collective. Errors and cost are those of dpar_points_reduce_begin_many. */
DPAR_API dpar_status dpar_points_reduce_begin(dpar_points *points, double *x);
/* Starts dpar_points_combine, which dpar_points_end completes. Until then x must be neither read
 * nor written. Collective. Errors and cost are those of dpar_points_combine_begin_many. */
DPAR_API dpar_status dpar_points_combine_begin(dpar_points *points, double *x);

/* ==== points/points_check.h ==== */

/* points_check - checks whether ghosts have their owners' values, for tests and for codes that may
 * have forgotten an exchange.
 *
 *     dpar_points_check(points, fields, count, DPAR_POINTS_POISON, &why);     sets ghosts to NaN
 *     dpar_points_exchange_many(points, fields, count);
 *     dpar_points_check(points, fields, count, DPAR_POINTS_UNFILLED, &why);   fails if any is NaN
 *     ... steps ...
 *     dpar_points_check(points, fields, count, DPAR_POINTS_STALE, &why);      fails if any is old
 */

/* The checks of dpar_points_check. 0 is not allowed. */
enum {
    /* Checks nothing, but sets all ghosts to NaN (integers to all bits 1), except for those that no
     * rank sends. Local. */
    DPAR_POINTS_POISON = 1,
    /* Finds a ghost that still has the value set by DPAR_POINTS_POISON. Vectors in which own values
     * have it too are not checked. Returns DPAR_E_ARG, and the message names vector, index and
     * rank. Local. */
    DPAR_POINTS_UNFILLED,
    /* Finds a ghost that differs from its owner's value in any bit. Returns DPAR_E_MISMATCH on all
     * ranks, and the message names vector, index and rank of the first such ghost. Changes nothing.
     * Collective, because it exchanges into a copy of the ghosts (dpar_comm_alloc). */
    DPAR_POINTS_STALE
};
/* Checks vectors between exchanges. Returns DPAR_OK if no wrong ghost was found, or the error that
 * the enumerator documents. Also fails with DPAR_E_ARG if vectors are described wrongly (with STALE
 * on all ranks), or with an error of the communicator. Costs O(values). */
DPAR_API dpar_status dpar_points_check(dpar_points *points, const dpar_points_field *fields,
                                       int32_t count, int32_t what, dpar_why *why);

/* ==== points/points_part.h ==== */

/* points_part - partitions points, or the centres of elements, into parts of equal weight along
 * Hilbert's curve. Parts are compact in space, so that few values need to be exchanged.
 *
 *     dpar_points_partition_desc desc = {0};
 *     desc.dims = 3;
 *     desc.count = n;
 *     desc.position = xyz;                              [n][3] x, y, z of each point
 *     desc.id = id;                                     different on all ranks
 *     dpar_points_partition(comm, &desc, owner, NULL, &why);      owner[i]: new owner of point i
 *     dpar_points_migration_make(...);                  points_move.h
 *
 * ParMETIS and Scotch return a partition as an array of the same form, with the new owner of each
 * local point or element: `part` of ParMETIS_V3_PartMeshKway, partloctab of SCOTCH_dgraphPart.
 * dpar_points_migration_make accepts that too. If idx_t or SCOTCH_Num has 64 bits, convert it. */

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
 * curve, and points at the same place by id. Part k begins where the sum of weights reaches
 * k / parts of the total: before or after the point at which that happens, whichever is nearer.
 *
 * owner: [count], receives the part of each point. It does not depend on how points are
 * distributed over the ranks, if they have ids, and is the same on all machines with IEEE doubles.
 * key:   [count], receives the position of each point on the curve, for
 * dpar_points_migration_make's order; may be NULL.
 *
 * The weight of a part therefore differs from the mean by less than the largest weight of a point.
 * That is less than 1 % for parts of 100 points or more of equal weight. Parts may be empty if a
 * point weighs more than the mean. Points with the same place and id are not separated.
 *
 * Coordinates are rounded within the smallest cube that holds all points, to 2^31 steps per side in
 * 2 dims and 2^21 in 3. Weights are rounded to multiples of (largest weight) / 2^k, where k is at
 * most 52, and small enough that the number of all points times 2^k is at most 2^61.
 *
 * Collective. All errors are returned on all ranks. Fails with DPAR_E_ARG if dims or parts are out
 * of range, a coordinate or weight is not finite, a weight is negative, all weights are 0, or a
 * pointer is NULL. Fails with DPAR_E_RANGE for too many points, DPAR_E_MISMATCH if ranks pass
 * different dims or parts, with DPAR_E_MEMORY, or with an error of the communicator.
 *
 * Costs a sort of this rank's points, O(points), and a search for the cuts between parts: about 25
 * all-reduces of 56 bytes per part, and 20 more if points coincide or have long ids. No rank holds
 * all points. Temporarily needs 56 bytes per point and 100 per part. */
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
 *     desc.corner = corner;                        [m][4] ids of points
 *     desc.element_owner = owner;                  from dpar_points_partition, METIS, Scotch, ...
 *     dpar_points_migration_make(comm, &desc, &moved, &why);
 *     field.type = DPAR_F64;
 *     field.components = 3;
 *     field.data = xyz;                            [n][3], the old values
 *     field.ghosts = xyz_new;                      [moved->desc.own_count][3]
 *     dpar_points_exchange_many(moved->points, &field, 1);   moves values, any number of times
 *     dpar_points_make(comm, &moved->desc, &points, &why);   for the exchanges from now on
 *     ... moved->corner[4 * e + k]: local indices ...
 *
 * Each point moves to a rank that gets an element with this point.
 *
 * moved->points is a plan of points.h whose own values are the old values and whose ghosts are the
 * new ones. Like any such plan it can move several vectors of any type in one message per peer. To
 * move values back, set the old array to 0 and call dpar_points_reduce_many with DPAR_SUM. */

/* This rank's piece of a mesh, and its new owners. Zero it, then set the fields that you need. All
 * ranks must pass owner, or all must pass element_owner, or both. A rank without points may leave
 * out owner. */
typedef struct dpar_points_migration_desc {
    int64_t point_count;   /* number of points of this rank */
    const int64_t *id;     /* [point_count] each once in the job. NULL on all ranks selects
                              consecutive ids from 0, rank after rank */
    const int32_t *owner;  /* [point_count] the new owner of each. If NULL, a point moves to one of
                              the ranks that get an element with it; a point without elements
                              stays */
    const int64_t *order;  /* [point_count] sorts the points of each new owner, ascending; ties are
                              sorted by id. NULL sorts by id */
    int64_t element_count; /* number of elements of this rank */
    int32_t corner_count;  /* corners of each element, 1 to 64, the same on all ranks with elements.
                              For mixed shapes it is the largest number; repeat the last corner */
    const int64_t *corner; /* [element_count][corner_count] ids of points, of any rank */
    const int64_t *element_id;    /* [element_count] like id */
    const int32_t *element_owner; /* [element_count] like owner. If NULL, an element moves to the
                                     rank that gets most of its corners, the smallest if several
                                     ranks get as many */
    const int64_t *element_order; /* [element_count] like order */
} dpar_points_migration_desc;

/* The points and elements of this rank after the movement. You may change method, tag, timers,
 * memory and bytes of desc. If you change desc.order, the indices in `corner` are no longer valid.
 * All arrays belong to this struct. */
typedef struct dpar_points_migration {
    dpar_points_desc desc; /* for dpar_points_make. Ghosts are the points of other ranks that the
                              elements of this rank read, sorted by owner, then by id; their owners
                              are in desc.owner */
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
 * The result depends only on ids, corners, owners and orders, and not on how points and elements
 * were distributed before, except that points without elements stay where they are. If several
 * ranks could get a point, a hash of rank and id selects one, so that no rank gets all of them.
 *
 * Collective. All errors are returned on all ranks. Fails with DPAR_E_ARG if an owner is not a
 * rank, an id is on two ranks or none, owner and element_owner are both NULL, or another pointer is
 * NULL. Fails with DPAR_E_MISMATCH if only some ranks pass an optional array, or if ranks pass
 * different numbers of corners; with DPAR_E_RANGE, DPAR_E_MEMORY, or an error of the communicator.
 *
 * Costs sorting the points and elements that the rank has before and after, O(n), and about 12
 * all-to-alls. Temporarily needs 80 bytes per corner and per point. The result takes 4 bytes per
 * corner, 12 per ghost, 8 per id, and the two plans. */
DPAR_API dpar_status dpar_points_migration_make(dpar_comm *comm,
                                                const dpar_points_migration_desc *desc,
                                                dpar_points_migration **moved, dpar_why *why);
/* Destroys the result of a movement: its plans and arrays. Plans that were made from its desc do
 * not need it. NULL does nothing. Collective. Errors are those of dpar_points_free. Costs a barrier
 * per plan. */
DPAR_API dpar_status dpar_points_migration_free(dpar_points_migration *moved);

#endif /* DPAR_POINTS_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* Private functions that the headers above this one call. */
#ifndef DPARI_POINTS_INTERNAL_H
#define DPARI_POINTS_INTERNAL_H

/* ==== points/points_list.h ==== */

/* points_list - stores lists of local indices as runs, and copies, clears and combines the values
 * at these indices. Private: the lowest module of points. */

/* How a list stores its indices: as one run of consecutive indices, as a pair (first index, number
 * of indices) for each of several runs, or one by one. */
enum { DPARI_PT_ONE, DPARI_PT_RUNS, DPARI_PT_EACH };
typedef struct dpari_pt_list {
    int64_t count, runs; /* number of indices, and number of runs of consecutive indices */
    int32_t kind, first; /* DPARI_PT_ONE, ..., and the first index */
    int32_t step;        /* for EACH: the distance between indices if it is constant, otherwise 0 */
    const int32_t *at;   /* the pairs or indices; NULL for ONE */
} dpari_pt_list;

/* Where the values of a list are: `size` bytes at `at + index * stride` for each index. */
typedef struct dpari_pt_side {
    unsigned char *at;
    int64_t stride; /* bytes */
} dpari_pt_side;

/* ==== points/points_plan.h ==== */

/* points_plan - the structs of a plan of points, and how an exchange runs. Private. The modules of
 * points that make and run it, lowest first, are
 *
 *     points_order    sorts, and allocates temporary memory
 *     points_mail     sends items whose counts only the senders know
 *     points_list     stores lists of indices, and copies the values at these indices
 *     points_widen    copies a description, with 32-bit ids and counts converted to 64 bits
 *     points_shared   combines the values of ids that have no owner
 *     points_owner    finds out which ranks own and read an id
 *     points_sharers  finds out which ranks share an id
 *     points_run      packs and takes the values of exchanges that ../exchange runs
 *     points          checks descriptions, makes plans, converts ids
 *     points_check    finds ghosts that are poisoned or stale
 *     points_simple   exchanges one vector
 *
 * How an exchange runs. In a forward exchange, each rank sends own values to its peers, which store
 * them in their ghosts. In an adjoint, each rank sends ghosts to their owners, which combine them
 * with own values. Values are packed into staging memory, one peer after the other. ../exchange
 * waits for peers, publishes that values are packed, and posts messages.
 *
 * In a forward exchange, vectors in registered memory with long runs are not packed. The sender
 * writes the address of the vector into its turn. The receiver knows the sender's list from
 * planning and reads the vector in place, and the sender's end waits until the receiver is done.
 * Sender and receiver decide this by the same numbers (dpari_pt_is_direct), so that no message is
 * needed.
 *
 * The staging memory grows with the vectors, so that the receiver reads its address in each
 * exchange. */

enum {
    DPARI_PT_PAD = 16,        /* packed vectors begin at multiples of this number of bytes */
    DPARI_PT_RUN_BYTES = 64,  /* the default of desc.run_bytes */
    DPARI_PT_CROWDED = 65536, /* if ranks share cores, the least bytes of a list that is read in
                                 place; the same limit as for halos, where it was measured */
    DPARI_PT_BITE = 1024,     /* bytes gathered in private memory before they are copied to memory
                                 that ranks share */
    DPARI_PT_MOST = 4096,     /* the most vectors of an exchange */
    /* Indices of dpari_exchange_line.place: the reference to the memory of both turns, which
     * changes only while no peer reads it, and the bytes of one turn. A turn holds the places of
     * the vectors, then the packed values. */
    DPARI_PT_TURNS = 0,
    DPARI_PT_TURN_BYTES = 1
};

/* A vector in the current exchange. Each point has one piece if its components are adjacent,
 * otherwise one piece for each component. */
typedef struct dpari_pt_vector {
    unsigned char *own, *ghosts;
    int64_t stride, component; /* bytes between points, and between components */
    int64_t size, point;       /* bytes of a piece, and bytes of all pieces of a point */
    int32_t pieces, numbers;   /* pieces per point, and numbers of `type` per piece */
    int32_t type;
    uint64_t ref; /* reference to own if peers may read it in place, otherwise 0 */
} dpari_pt_vector;

/* The data by which peers read a vector in place. It is written into a turn. */
typedef struct dpari_pt_place {
    uint64_t ref; /* 0 if the vector is not in registered memory */
    int64_t stride, component, size;
} dpari_pt_place;

/* The record that each rank sends to each peer during planning. References are 0 if the peer cannot
 * reach this rank's memory. */
typedef struct dpari_pt_record {
    int64_t line;                          /* reference to the sender's line */
    int64_t number;                        /* index of the receiver among the sender's peers */
    int64_t sends, receives;               /* number of values to the receiver and from it */
    int64_t sends_before, receives_before; /* the same for the sender's peers before the receiver */
    int64_t runs, kind, first, at;         /* the sender's list; `at` is a reference */
} dpari_pt_record;
enum { DPARI_PT_WORDS = sizeof(dpari_pt_record) / sizeof(int64_t) };

/* What a plan knows of a peer, in addition to its dpari_exchange_peer. */
typedef struct dpari_pt_peer {
    dpari_pt_list send, receive;           /* own values that it gets, ghosts that it owns */
    int64_t sends_before, receives_before; /* number of values to and from the peers before it */
    dpari_pt_record theirs;
    dpari_pt_list source;   /* the peer's own list of what it sends, to read its vectors in place */
    uint64_t turns;         /* the reference to its turns when they were mapped last */
    unsigned char *mapped;  /* the address of these turns in this process */
    unsigned char *arrives; /* address where its message is received */
    int32_t in_place;       /* 1 if that address is in the ghosts, so that nothing is unpacked */
} dpari_pt_peer;

/* An id and its local index; at < 0 if the entry is free. */
typedef struct dpari_pt_entry {
    int64_t id;
    int64_t at;
} dpari_pt_entry;

/* A hash table with linear probing of this rank's ids: those of ghosts, and own ids if own_id lists
 * them. */
typedef struct dpari_pt_table {
    dpari_pt_entry *entry;
    int64_t mask; /* number of entries - 1; -1 if there are none */
} dpari_pt_table;

/* What a plan of shared ids has in addition. */
typedef struct dpari_pt_shared {
    void *memory;          /* of all of this; NULL if the ids have owners */
    int32_t op;            /* of the exchange in progress */
    dpari_pt_side *source; /* [peers + 1] where the values from each peer are, then own values */
    const void **in;       /* addresses of the values of an id, and of its results */
    void **out;
    /* Records of ids (points_shared.c): those that only this rank has, then from `shared` to `end`
     * those that it shares. */
    const int32_t *local, *shared, *end;
} dpari_pt_shared;

typedef struct dpari_points {
    dpar_points head; /* the public struct; it must be first */
    dpari_exchange x;
    void *owned; /* memory of this struct if make has allocated it; NULL if the caller has */
    int32_t method;
    int32_t listed;      /* 1 if the plan was made from lists, so that there are no ids */
    int32_t hashed;      /* 1 if own ids are in the table */
    int32_t given_owner; /* 1 if the caller passed the owner of each ghost */
    int32_t messages_to; /* number of peers that do not share memory */
    int64_t run_bytes;
    dpar_layout layout; /* a copy of desc.layout if has_layout is 1 */
    int32_t has_layout;
    dpari_pt_table table;
    dpari_pt_peer *peer;
    dpari_pt_shared shared;
    unsigned char *lists;    /* registered memory of the line, the peers, records and numbers */
    dpari_pt_record *record; /* [2 * peers]: records to send, then records received */
    int32_t *numbers;        /* the pairs and indices of the lists of all peers */
    int64_t sends, receives; /* number of values that this rank sends and receives in an exchange */
    unsigned char *staging;  /* registered memory of vector, turns, aside and arrivals */
    int64_t staging_vectors; /* number of vectors for which it is large enough */
    int64_t staging_turn;    /* bytes of a turn */
    dpari_pt_vector *vector;
    unsigned char *turns, *arrivals;
    unsigned char *aside;         /* memory that no peer reads, for packing the values of a peer */
    int32_t vectors;              /* number of vectors in the current exchange */
    dpar_points_field last_field; /* the vector of the last exchange; type 0 if it had several */
    int64_t point;                /* bytes per point of all vectors together */
    int64_t first_ghost; /* the local index where the array of ghosts begins: own_count, or 0 if
                            own values and ghosts are mixed */
    uint64_t *received;  /* a bit for each local index from first_ghost on: 1 if exchanges set it;
                            NULL if they set all of them */
    int32_t mixed;       /* 1 if own values and ghosts are mixed in one array */
} dpari_points;

/* Returns the plan of a handle. */
DPARI_FN dpari_points *dpari_pt_of(const dpar_points *points)
{
    return (dpari_points *)(uintptr_t)points;
}

/* True if exchanges set the value at local index i. */
DPARI_FN int dpari_pt_is_received(const dpari_points *plan, int64_t i)
{
    const int64_t g = i - plan->first_ghost;
    if (g < 0 || !plan->received) {
        return g >= 0;
    }
    return (int)(plan->received[g / 64] >> g % 64 & 1);
}

/* Notes that exchanges set the value of ghost g, which counts from first_ghost on. Returns 1 if
 * this was noted before. */
DPARI_FN int dpari_pt_set_received(dpari_points *plan, int64_t g)
{
    const uint64_t bit = UINT64_C(1) << g % 64;
    int before;
    if (!plan->received) {
        return 0;
    }
    before = (plan->received[g / 64] & bit) != 0;
    plan->received[g / 64] |= bit;
    return before;
}

/* True if the exchange in progress is an adjoint. */
DPARI_FN int dpari_pt_is_adjoint(const dpari_points *plan)
{
    return plan->x.mode == DPARI_EXCHANGE_ADJOINT;
}

/* Returns the number of components of a vector. */
DPARI_FN int32_t dpari_pt_components(const dpar_points_field *field)
{
    return field->components > 0 ? field->components : 1;
}

/* Returns the number of elements from one point of a vector to the next. */
DPARI_FN int64_t dpari_pt_stride(const dpar_points_field *field)
{
    if (field->stride > 0) {
        return field->stride;
    }
    return field->component_stride <= 1 ? dpari_pt_components(field) : 1;
}

/* Returns the offset of the values of peer k in a turn, which is a multiple of DPARI_LINE. The
 * peers before it have `before` values, and each of their vectors may take up to DPARI_PT_PAD more
 * bytes. Sender and receiver compute the same offset, so that offsets need not be sent. */
DPARI_FN int64_t dpari_pt_begins(int64_t before, int64_t k, int64_t point, int64_t vectors)
{
    const int64_t at = before * point + k * (DPARI_PT_PAD * vectors + DPARI_LINE);
    return at / DPARI_LINE * DPARI_LINE;
}

/* Returns the number of bytes that a vector takes in a turn, with padding up to the next vector. */
DPARI_FN int64_t dpari_pt_block(int64_t values, int64_t point)
{
    return (values * point + DPARI_PT_PAD - 1) / DPARI_PT_PAD * DPARI_PT_PAD;
}

/* True if a vector of which `values` values in `runs` runs are sent is read in place. The sender
 * and the receiver call it with the same arguments. */
DPARI_FN int dpari_pt_is_direct(const dpari_points *plan, uint64_t ref, int64_t size,
                                int64_t values, int64_t runs)
{
    return ref != 0 && plan->method != DPAR_POINTS_PACKED &&
           values * size >= runs * plan->run_bytes &&
           (!plan->x.world->crowded || values * size >= DPARI_PT_CROWDED);
}

#endif /* DPARI_POINTS_INTERNAL_H */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_POINTS_IMPLEMENTATION)) && \
    !defined(DPAR_POINTS_IMPLEMENTATION_DONE)
#define DPAR_POINTS_IMPLEMENTATION_DONE

/* ==== points/points_list.h ==== */

/* Sets all fields of a list except for `at`. Returns how many int32_t numbers dpari_pt_fill will
 * write to `at`. */
DPARI_INTERNAL int64_t dpari_pt_measure(dpari_pt_list *list, const int32_t *index, int64_t n);
/* Writes the pairs or indices of a measured list to `at`, which the list then uses. */
DPARI_INTERNAL void dpari_pt_fill(dpari_pt_list *list, const int32_t *index, int32_t *at);
/* Returns the list of 0, 1, ... n - 1. */
DPARI_INTERNAL dpari_pt_list dpari_pt_dense(int64_t n);

/* Copies `size` bytes at each index of `from` to the index at the same position of `into`. */
DPARI_INTERNAL void dpari_pt_move(const dpari_pt_list *into, dpari_pt_side to,
                                  const dpari_pt_list *from, dpari_pt_side of, int64_t size);
/* Sets `size` bytes at each index to 0. */
DPARI_INTERNAL void dpari_pt_clear(const dpari_pt_list *list, dpari_pt_side to, int64_t size);
/* Combines the value at each index with the next value of `of` by `op`. This is done one index
 * after the other, because an index may be listed twice. Each value has `n` numbers of a type. */
DPARI_INTERNAL void dpari_pt_combine(const dpari_pt_list *list, dpari_pt_side to, dpari_pt_side of,
                                     int32_t n, int32_t type, int32_t op);

/* ==== points/points_order.h ==== */

/* points_order - sorts, numbers items from rank to rank, and allocates temporary memory, for plans,
 * partitions and movements. It also declares the curve of points_part.c, for tests. Private. It
 * uses comm, but no plans. */

/* An item to be sorted by key, then by id. `at` is its index before the sort. */
typedef struct dpari_po_item {
    int64_t key, id, at;
} dpari_po_item;

/* Compares an item with a key and an id. Returns -1 if it is before them, 0 if equal, 1 if after.
 */
DPARI_FN int32_t dpari_po_compare(const dpari_po_item *a, int64_t key, int64_t id)
{
    if (a->key != key) {
        return a->key < key ? -1 : 1;
    }
    if (a->id != id) {
        return a->id < id ? -1 : 1;
    }
    return 0;
}
/* Sorts n items. Equal items keep their order. Returns the sorted items, which are in `item` or in
 * `spare` (memory for n items). Costs O(n): one pass for each byte in which items differ. */
DPARI_INTERNAL dpari_po_item *dpari_po_sort(dpari_po_item *item, dpari_po_item *spare, int64_t n);

/* Temporary memory. Zero it before the first dpari_po_take. dpari_po_free frees all of it. */
enum { DPARI_PO_PAGES = 8 }; /* the most calls of dpari_po_take */
typedef struct dpari_po_pages {
    void *at[DPARI_PO_PAGES];
    int64_t bytes[DPARI_PO_PAGES];
    int32_t used;
} dpari_po_pages;
/* Allocates n * bytes zeroed bytes. Returns NULL if that fails, which sets *st and a message, or if
 * *st is an error already, so that callers check the status once, after several calls. */
DPARI_INTERNAL void *dpari_po_take(dpari_po_pages *pages, int64_t n, int64_t bytes,
                                   dpar_status *status, dpar_why *why);
DPARI_INTERNAL void dpari_po_free(dpari_po_pages *pages);

/* Returns the position of a cell on Hilbert's curve through a square with 2^31 cells per side, or
 * through a cube with 2^21. Returns -1 if dims is not 2 or 3, or if the cell is outside.
 * Consecutive cells of the curve share a side. */
DPARI_INTERNAL int64_t dpari_points_curve(int32_t dims, const uint32_t *cell);

/* Checks that the communicator can send memory of the host. Returns DPAR_E_ARG if its memory is a
 * device's. */
DPARI_INTERNAL dpar_status dpari_po_host(const dpar_comm *comm, dpar_why *why);
/* Returns status. If it is an error, *why receives the message of comm. */
DPARI_INTERNAL dpar_status dpari_po_explain(const dpar_comm *comm, dpar_status status,
                                            dpar_why *why);
/* Sets *first to the sum of n over all lower ranks, which is the number of this rank's first item
 * if items are numbered from rank to rank. Collective. */
DPARI_INTERNAL dpar_status dpari_po_first(dpar_comm *comm, int64_t n, int64_t *first,
                                          dpar_why *why);

/* ==== points/points_mail.h ==== */

/* points_mail - an all-to-all of items whose counts only the senders know. Each item is one number,
 * or a few. Private. */

/* The numbers sent and the numbers received are both sorted by rank. */
typedef struct dpari_pt_mail {
    dpar_comm *comm;
    int64_t *count; /* [4][size]: how many numbers are sent to each rank, where the next one for it
                       is in `out`, how many are received from each rank, and where they begin in
                       `in` */
    int64_t *out, *in;
    int64_t outs, ins; /* how many numbers are in `out` and in `in` */
    void *memory;
} dpari_pt_mail;

/* Sets at[i] to the sum of the counts before i, and *all to the sum of all. */
DPARI_INTERNAL void dpari_pt_add_up(const int64_t *count, int64_t *at, int32_t n, int64_t *all);
/* Returns the sum of n counts. */
DPARI_INTERNAL int64_t dpari_pt_total(const int64_t *count, int32_t n);
/* Begins an all-to-all of n items: counts them by destination, exchanges the counts and allocates
 * `out` and `in`.
 *
 * to:     [n], the destination of each item; an item with a negative one is not sent.
 * each:   how many numbers an item has.
 * status: an earlier error of this rank, which all ranks then return.
 *
 * Collective. dpari_pt_close frees the memory, also after a failure. */
DPARI_INTERNAL dpar_status dpari_pt_open(dpari_pt_mail *mail, dpar_comm *comm, const int32_t *to,
                                         int64_t n, int32_t each, dpar_status status,
                                         dpar_why *why);
/* Sends the numbers. With back 1, sends the answers, which have replaced the numbers received, to
 * the ranks that asked. Collective. */
DPARI_INTERNAL dpar_status dpari_pt_go(dpari_pt_mail *mail, int back, dpar_why *why);
DPARI_INTERNAL void dpari_pt_close(dpari_pt_mail *mail);

/* ==== points/points_shared.h ==== */

/* points_shared - combines the values of shared ids, which have no owner. Private.
 *
 * Each rank combines its own values of an id, stores the result in the first one, and sends it to
 * all ranks that share the id. (The others may get it as well, which has no effect.) When the rank
 * has received the results of all others, it combines them in ascending order of ranks, so that all
 * ranks get the same bits, and stores the total in all of its values. Ids that only this rank has
 * are combined while the peers pack their values.
 *
 * The values for a peer are sorted by id on both sides, so that peers need not exchange lists. */

/* The phases of an exchange. */
enum {
    DPARI_PT_FOLD,  /* before packing: combines values of this rank into the first one */
    DPARI_PT_LOCAL, /* combines the values of ids that only this rank has */
    DPARI_PT_FINAL  /* combines the first value with those of the peers, whose addresses are in
                       plan->shared.source, into all values of this rank */
};
/* Runs a phase for all vectors. */
DPARI_INTERNAL void dpari_pt_combine_shared(const dpari_points *plan, int32_t phase);

/* ==== points/points_widen.h ==== */

/* points_widen - copies the description of a plan in the form that planning uses: ids and counts
 * have 64 bits, and the places of a mixed array are described as ghosts. Private. */

/* The copy of a description. Zero it before dpari_pt_widen. */
typedef struct dpari_pt_wide {
    dpar_points_desc desc; /* if mixed_count is set, own_count is 0 and ghost_count mixed_count */
    dpar_points_lists lists;
    dpari_po_pages pages; /* the converted ids and counts, which the caller frees */
} dpari_pt_wide;

/* Checks the counts of a description, and copies it. Local. */
DPARI_INTERNAL dpar_status dpari_pt_widen(dpari_pt_wide *wide, const dpar_comm *comm,
                                          const dpar_points_desc *desc, dpar_why *why);

/* ==== points/points_owner.h ==== */

/* points_owner - finds who owns and who reads each id, which gives the lists of both sides of an
 * exchange. Private.
 *
 * There are three rounds, each an all-to-all of counts and one of ids:
 *
 *     register   each rank sends its own ids to their homes (rank hash(id) mod size is the home)
 *     ask        each rank sends the ids of its ghosts to their homes, which answer with the owners
 *     tell       each rank sends the owners the ids that it reads, in the order of its ghosts
 *
 * If owners are known otherwise (consecutive ids, desc.owner or desc.layout), only the third round
 * is needed. If a rank finds an error, all ranks get it at the end of the round. */

/* The lists of what this rank sends and receives, sorted by rank. They are in `pages`,
 * which the caller frees. */
typedef struct dpari_pt_both {
    int64_t *sends, *receives; /* [size] number of values to and from each rank */
    int32_t *send_at;          /* [sent] indices of own values for rank 0, for rank 1, ... */
    int32_t *receive_at;       /* local indices of ghosts from rank 0, from rank 1, ... */
    int64_t sent;              /* number of values sent */
    dpari_po_pages pages;
} dpari_pt_both;

/* Returns the number of entries of a table for n ids: a power of two, at least 1.5 n. */
DPARI_INTERNAL int64_t dpari_pt_table_room(int64_t n);
/* Returns the local index of an own id or a ghost, or -1 if this rank neither owns nor reads it. */
DPARI_INTERNAL int64_t dpari_pt_index(const dpari_points *plan, int64_t id);

/* Returns the rank that keeps the directory's entry of an id. */
DPARI_INTERNAL int32_t dpari_pt_home(int64_t id, int32_t ranks);

/* Finds the lists from ids. Also enters ids in the plan's table and sets head.first_id. Collective.
 */
DPARI_INTERNAL dpar_status dpari_pt_by_ids(dpari_points *plan, const dpar_points_desc *desc,
                                           dpari_pt_both *both, dpar_why *why);
/* Copies desc.lists, which must have been checked, and checks that each rank sends as many values
 * as its peer receives. Collective. */
DPARI_INTERNAL dpar_status dpari_pt_by_lists(dpari_points *plan, const dpar_points_desc *desc,
                                             dpari_pt_both *both, dpar_why *why);

/* ==== points/points_sharers.h ==== */

/* points_sharers - finds which ranks share an id, and lists the values that this rank sends and
 * receives, for plans of shared ids. Private.
 *
 * There are two rounds, each an all-to-all of counts and one of ids. First each rank sends every id
 * that it has, and how many values have it, to the id's home (points_owner.h). If several ranks
 * have an id, its home then sends all of them the list of these ranks and their numbers of values.
 * Both sides of a message sort its values by the same rule, so that no lists are exchanged. */

/* Finds the lists of both sides, and sets plan->shared. Collective. All ranks get the same status.
 */
DPARI_INTERNAL dpar_status dpari_pt_by_shared(dpari_points *plan, const dpar_points_desc *desc,
                                              dpari_pt_both *both, dpar_why *why);

/* ==== points/points_run.h ==== */

/* points_run - packs and takes the values of exchanges. Private. */

/* Sets the functions that ../exchange calls. The peers must be known. */
DPARI_INTERNAL void dpari_pt_set_functions(dpari_points *plan);

/* ==== points/points_order.c ==== */

/* Sorts, numbers items from rank to rank, and allocates temporary pages, for plans, partitions and
 * movements (points_owner.c, points_part.c, points_move.c). */

/* Returns a byte of the key, or with by_id of the id. The sign bit is inverted, so that unsigned
 * bytes have the order of signed numbers. */
DPARI_FN size_t dpari_po_digit(const dpari_po_item *item, int by_id, int32_t shift)
{
    const uint64_t v = (uint64_t)(by_id ? item->id : item->key) ^ UINT64_C(1) << 63;
    return (size_t)(v >> shift & 255u);
}

/* Copies the items to `out`, sorted by one byte. Returns 0 if all have the same byte, and then
 * copies nothing. */
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

/* True if items are sorted already: by id, or by key and id. */
static int dpari_po_is_sorted(const dpari_po_item *item, int64_t n, int by_id)
{
    int64_t i;
    for (i = 1; i < n; i++) {
        if (by_id ? item[i - 1].id > item[i].id
                  : dpari_po_compare(&item[i - 1], item[i].key, item[i].id) > 0) {
            return 0;
        }
    }
    return 1;
}

DPARI_INTERNAL dpari_po_item *dpari_po_sort(dpari_po_item *item, dpari_po_item *spare, int64_t n)
{
    int32_t by_id, shift;
    /* Sorts by id, then by key, from the lowest byte to the highest. Each pass keeps the order of
     * the passes before it among equal bytes. */
    for (by_id = 1; by_id >= 0; by_id--) {
        if (dpari_po_is_sorted(item, n, by_id)) {
            continue;
        }
        for (shift = 0; shift < 64; shift += 8) {
            if (dpari_po_deal(item, spare, n, by_id, shift)) {
                dpari_po_item *const swapped = item;
                item = spare;
                spare = swapped;
            }
        }
    }
    return item;
}

DPARI_INTERNAL DPARI_COLD void *dpari_po_take(dpari_po_pages *pages, int64_t n, int64_t bytes,
                                              dpar_status *status, dpar_why *why)
{
    int64_t all = 0;
    void *at = NULL;
    if (*status != DPAR_OK) {
        return NULL;
    }
    if (dpari_mul(n, bytes, &all) && pages->used < DPARI_PO_PAGES) {
        at = dpari_os_pages(all + 8);
    }
    if (!at) {
        *status =
            dpari_say(DPAR_E_MEMORY, why,
                      "no memory for a temporary array of %ld elements of %ld bytes", n, bytes);
        return NULL;
    }
    pages->at[pages->used] = at;
    pages->bytes[pages->used++] = all + 8;
    return at;
}

DPARI_INTERNAL DPARI_COLD void dpari_po_free(dpari_po_pages *pages)
{
    while (pages->used > 0) {
        pages->used--;
        dpari_os_unmap(pages->at[pages->used], pages->bytes[pages->used]);
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_po_host(const dpar_comm *comm, dpar_why *why)
{
    if (!comm->mem || comm->node || dpari_world_of(comm)) {
        return DPAR_OK;
    }
    return dpari_wrong(why,
                       "points are in the host's memory, but the communicator sends a device's");
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_po_explain(const dpar_comm *comm, dpar_status status,
                                                       dpar_why *why)
{
    return status == DPAR_OK ? status : dpari_repeat(status, why, comm->why.text);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_po_first(dpar_comm *comm, int64_t n, int64_t *first,
                                                     dpar_why *why)
{
    dpari_po_pages pages;
    dpar_status status = DPAR_OK;
    int64_t *all;
    int32_t r;
    dpari_zero(&pages, sizeof pages);
    all = (int64_t *)dpari_po_take(&pages, comm->size, 8, &status, why);
    status = dpari_agree(comm, status, why);
    if (status == DPAR_OK) {
        status = dpari_po_explain(comm, dpar_all_gather(comm, &n, all, 1, DPAR_I64, NULL), why);
    }
    *first = 0;
    for (r = 0; r < comm->rank && status == DPAR_OK; r++) {
        *first += all[r];
    }
    dpari_po_free(&pages);
    return status;
}

/* ==== points/points_mail.c ==== */

/* Sends items to other ranks, for the search for owners and for movements (points_owner.c,
 * points_move.c). */

DPARI_INTERNAL void dpari_pt_add_up(const int64_t *count, int64_t *at, int32_t n, int64_t *all)
{
    int32_t i;
    *all = 0;
    for (i = 0; i < n; i++) {
        at[i] = *all;
        *all += count[i];
    }
}

DPARI_INTERNAL int64_t dpari_pt_total(const int64_t *count, int32_t n)
{
    int64_t all = 0;
    int32_t i;
    for (i = 0; i < n; i++) {
        all += count[i];
    }
    return all;
}

/* Allocates memory for n numbers. */
static dpar_status dpari_pt_numbers(dpar_comm *comm, int64_t n, void **memory, dpar_why *why)
{
    return dpari_po_explain(comm, dpar_comm_alloc(comm, (int64_t)sizeof(int64_t) * n, memory), why);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_open(dpari_pt_mail *mail, dpar_comm *comm,
                                                    const int32_t *to, int64_t n, int32_t each,
                                                    dpar_status status, dpar_why *why)
{
    const int32_t p = comm->size;
    void *counts = NULL;
    int64_t i;
    dpari_zero(mail, sizeof *mail);
    mail->comm = comm;
    if (status == DPAR_OK) {
        status = dpari_pt_numbers(comm, 4 * (int64_t)p, &counts, why);
    }
    mail->count = (int64_t *)counts;
    status = dpari_agree_on(comm, status, "points", NULL, NULL, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < n; i++) {
        if (to[i] >= 0) {
            mail->count[to[i]] += each;
        }
    }
    status = dpari_po_explain(
        comm, dpar_all_to_all(comm, mail->count, mail->count + 2 * p, 1, DPAR_I64, NULL), why);
    if (status == DPAR_OK) {
        dpari_pt_add_up(mail->count, mail->count + p, p, &mail->outs);
        dpari_pt_add_up(mail->count + 2 * p, mail->count + 3 * p, p, &mail->ins);
        status = dpari_pt_numbers(comm, mail->outs + mail->ins + 1, &mail->memory, why);
    }
    mail->out = (int64_t *)mail->memory;
    mail->in = mail->out ? mail->out + mail->outs : NULL;
    return dpari_agree_on(comm, status, "points", NULL, NULL, why);
}

DPARI_INTERNAL dpar_status dpari_pt_go(dpari_pt_mail *mail, int back, dpar_why *why)
{
    int64_t *n = mail->count, *in = mail->count + 2 * mail->comm->size;
    dpar_status status;
    if (back) {
        status =
            dpar_all_to_all_v(mail->comm, mail->in, in, NULL, mail->out, n, NULL, DPAR_I64, NULL);
    } else {
        status =
            dpar_all_to_all_v(mail->comm, mail->out, n, NULL, mail->in, in, NULL, DPAR_I64, NULL);
    }
    return dpari_po_explain(mail->comm, status, why);
}

DPARI_INTERNAL void dpari_pt_close(dpari_pt_mail *mail)
{
    dpar_comm_release(mail->comm, mail->memory);
    dpar_comm_release(mail->comm, mail->count);
}

/* ==== points/points_list.c ==== */

/* Stores lists of local indices as runs, and copies, clears and combines the values at these
 * indices.
 *
 * A list of consecutive indices stores only the first one. A list of long runs needs 8 bytes per
 * run, any other list 4 bytes per index. There is a loop for each form and element size. points.c
 * makes the lists, and points_run.c uses them. */

/* ---- lists ---- */

/* If runs have at least this average length, pairs are stored, which then take at most half as much
 * memory as indices. */
enum { DPARI_PT_LONG = 4 };

DPARI_INTERNAL int64_t dpari_pt_measure(dpari_pt_list *list, const int32_t *index, int64_t n)
{
    int64_t i;
    list->count = n;
    list->runs = n > 0;
    list->first = n > 0 ? index[0] : 0;
    list->at = NULL;
    list->step = n > 1 ? index[1] - index[0] : 0;
    for (i = 1; i < n; i++) {
        list->runs += index[i] != index[i - 1] + 1;
        list->step = (int64_t)index[i] - index[i - 1] == list->step ? list->step : 0;
    }
    if (list->runs <= 1) {
        list->kind = DPARI_PT_ONE;
        list->step = 0;
        return 0;
    }
    if (list->runs <= n / DPARI_PT_LONG) {
        list->kind = DPARI_PT_RUNS;
        list->step = 0;
        return 2 * list->runs;
    }
    list->kind = DPARI_PT_EACH;
    return n;
}

DPARI_INTERNAL void dpari_pt_fill(dpari_pt_list *list, const int32_t *index, int32_t *at)
{
    int64_t i, r = -1;
    if (list->kind == DPARI_PT_ONE) {
        return;
    }
    list->at = at;
    if (list->kind == DPARI_PT_EACH) {
        dpari_kern_copy(at, index, list->count * (int64_t)sizeof *at, 0);
        return;
    }
    for (i = 0; i < list->count; i++) {
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
    dpari_pt_list list;
    list.count = n;
    list.runs = 1;
    list.kind = DPARI_PT_ONE;
    list.first = 0;
    list.step = 0;
    list.at = NULL;
    return list;
}

/* Returns how many consecutive indices run number `cursor` has from its position `within` on.
 * *first receives the index at that position. */
static int64_t dpari_pt_next(const dpari_pt_list *list, int64_t cursor, int64_t within,
                             int32_t *first)
{
    if (list->kind == DPARI_PT_EACH) {
        *first = list->at[cursor];
        return 1;
    }
    if (list->kind == DPARI_PT_RUNS) {
        *first = list->at[2 * cursor] + (int32_t)within;
        return list->at[2 * cursor + 1] - within;
    }
    *first = list->first + (int32_t)within;
    return list->count - within;
}

/* ---- copies ---- */

/* The next three functions copy n values of `size` bytes: from listed indices to a constant stride,
 * from a constant stride to listed indices, and between two strides. They are inlined so that the
 * compiler knows common sizes. */
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

/* Gathers doubles to adjacent places, four at a time, which takes three instructions per value
 * instead of seven. */
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

/* Gathers doubles from addresses at a constant distance to adjacent places. */
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

/* The next three functions choose the loop for a size: 8 and 4 bytes are one number, 24 are three
 * doubles at a point. */
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

/* Copies between two lists of runs. Each step copies up to the end of the current run of either
 * list, whichever is nearer. */
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

DPARI_INTERNAL void dpari_pt_clear(const dpari_pt_list *list, dpari_pt_side to, int64_t size)
{
    int64_t k, n, i, cursor = 0;
    for (k = 0; k < list->count; k += n, cursor++) {
        int32_t at;
        n = dpari_pt_next(list, cursor, 0, &at);
        for (i = 0; i < n; i++) {
            dpari_zero(to.at + (at + i) * to.stride, (size_t)size);
        }
    }
}

/* ---- sums ---- */

/* Combines n numbers that are adjacent on both sides. */
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

/* Adds doubles at single indices, the most frequent case of an adjoint. */
static void dpari_pt_sum_f64(const dpari_pt_list *list, dpari_pt_side to, dpari_pt_side of,
                             int32_t n)
{
    int64_t k;
    int32_t i;
    for (k = 0; k < list->count; k++) {
        for (i = 0; i < n; i++) {
            dpari_pt_add_f64(to.at + list->at[k] * to.stride + 8 * i,
                             of.at + k * of.stride + 8 * i);
        }
    }
}

DPARI_INTERNAL void dpari_pt_combine(const dpari_pt_list *list, dpari_pt_side to, dpari_pt_side of,
                                     int32_t n, int32_t type, int32_t op)
{
    const int64_t size = n * (int64_t)dpar_type_bytes(type);
    int64_t k, run, i, cursor = 0;
    if (type == DPAR_F64 && op == DPAR_SUM && list->kind == DPARI_PT_EACH) {
        dpari_pt_sum_f64(list, to, of, n);
        return;
    }
    for (k = 0; k < list->count; k += run, cursor++) {
        int32_t first;
        unsigned char *at;
        run = dpari_pt_next(list, cursor, 0, &first);
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

/* ==== points/points_shared.c ==== */

/* Combines the values of shared ids. points_sharers.c makes the records of ids, and points_run.c
 * calls this file while it runs an exchange. Sums of doubles have loops of their own. */

/* The n ids of a record, and one number of their values. This rank has `repeats` values of each id;
 * value j of id i is at own + index[i * repeats + j] * stride. `sharers` is how many ranks have the
 * id, this one included, or 0 if no other rank has it. */
typedef struct dpari_pt_ids {
    int64_t n, repeats, sharers;
    const int32_t *index; /* [n][repeats] */
    const int32_t *total; /* [n] number of values on all ranks; only if sharers is not 0 */
    const int32_t *rank;  /* [sharers][n] sources, in ascending order of ranks */
    const int32_t *place; /* [sharers][n] index of the value in the source */
    unsigned char *own;
    int64_t stride;
    const dpari_pt_side *source;
    int64_t offset; /* of the number in the values of a source, in bytes */
} dpari_pt_ids;

/* Reads the record at `at`, which dpari_pt_write_ids has written, and returns its end. */
static const int32_t *dpari_pt_read_ids(const int32_t *at, dpari_pt_ids *ids)
{
    ids->n = at[0];
    ids->repeats = at[1];
    ids->sharers = at[2];
    ids->index = at + 3;
    ids->total = ids->index + ids->repeats * ids->n;
    ids->rank = ids->total + (ids->sharers > 0 ? ids->n : 0);
    ids->place = ids->rank + ids->sharers * ids->n;
    return ids->place + ids->sharers * ids->n;
}

/* Returns the address of the number that entry k of `rank` and `place` describes. */
static const void *dpari_pt_source(const dpari_pt_ids *ids, int64_t k)
{
    const dpari_pt_side *from = ids->source + ids->rank[k];
    return from->at + ids->offset + ids->place[k] * from->stride;
}

/* The next three functions replace 2, 4 or 8 values of each of n ids by their sum. A node of a mesh
 * of hexahedra has as many values on a face, on an edge or in a corner. */
static void dpari_pt_add_two(double *x, const int32_t *index, int64_t n)
{
    for (; n > 0; n--, index += 2) {
        double *a = x + index[0], *b = x + index[1];
        *a = *b = *a + *b;
    }
}

static void dpari_pt_add_four(double *x, const int32_t *index, int64_t n)
{
    for (; n > 0; n--, index += 4) {
        double *a = x + index[0], *b = x + index[1], *c = x + index[2], *d = x + index[3];
        *a = *b = *c = *d = *a + *b + *c + *d;
    }
}

static void dpari_pt_add_eight(double *x, const int32_t *index, int64_t n)
{
    for (; n > 0; n--, index += 8) {
        double *a = x + index[0], *b = x + index[1], *c = x + index[2], *d = x + index[3];
        double *e = x + index[4], *f = x + index[5], *g = x + index[6], *h = x + index[7];
        *a = *b = *c = *d = *e = *f = *g = *h = *a + *b + *c + *d + *e + *f + *g + *h;
    }
}

/* Adds the values of this rank, and stores each sum in all of them, even if only the first one will
 * be sent, because this needs no other loops. */
static void dpari_pt_add_own(const dpari_pt_ids *ids)
{
    const int64_t repeats = ids->repeats, stride = ids->stride / 8;
    const int32_t *index = ids->index, *const end = index + ids->n * repeats;
    double *x = (double *)(void *)ids->own;
    int64_t j;
    if (stride == 1 && repeats == 2) {
        dpari_pt_add_two(x, index, ids->n);
        return;
    }
    if (stride == 1 && repeats == 4) {
        dpari_pt_add_four(x, index, ids->n);
        return;
    }
    if (stride == 1 && repeats == 8) {
        dpari_pt_add_eight(x, index, ids->n);
        return;
    }
    for (; index < end; index += repeats) {
        double sum = x[index[0] * stride] + x[index[1] * stride];
        for (j = 2; j < repeats; j++) {
            sum += x[index[j] * stride];
        }
        for (j = 0; j < repeats; j++) {
            x[index[j] * stride] = sum;
        }
    }
}

/* Adds the values of two sources, in the most frequent case: this rank has one value of each id.
 * All ids of a record are then shared with the same rank. */
static void dpari_pt_add_pair(const dpari_pt_ids *ids)
{
    const int64_t n = ids->n, stride = ids->stride;
    const int32_t *index = ids->index, *a = ids->place, *b = a + n;
    const dpari_pt_side *first = ids->source + ids->rank[0], *last = ids->source + ids->rank[n];
    const unsigned char *at = first->at + ids->offset, *by = last->at + ids->offset;
    const int64_t stride_a = first->stride, stride_b = last->stride;
    int64_t i;
    for (i = 0; i < n; i++) {
        *(double *)(void *)(ids->own + index[i] * stride) =
            *(const double *)(const void *)(at + a[i] * stride_a) +
            *(const double *)(const void *)(by + b[i] * stride_b);
    }
}

/* Adds the values of the sources. */
static void dpari_pt_add_sources(const dpari_pt_ids *ids)
{
    const int64_t n = ids->n, repeats = ids->repeats, sources = ids->sharers * n;
    const int32_t *index = ids->index;
    int64_t i, j;
    if (ids->sharers == 2 && repeats == 1) {
        dpari_pt_add_pair(ids);
        return;
    }
    for (i = 0; i < n; i++) {
        double sum = *(const double *)dpari_pt_source(ids, i);
        for (j = i + n; j < sources; j += n) {
            sum += *(const double *)dpari_pt_source(ids, j);
        }
        for (j = 0; j < repeats; j++) {
            *(double *)(void *)(ids->own + *index++ * ids->stride) = sum;
        }
    }
}

/* Adds doubles: in the final phase those of the sources, otherwise the values of this rank. */
DPARI_STATIC_NOINLINE void dpari_pt_add_ids(const dpari_pt_ids *ids, int32_t phase)
{
    if (phase == DPARI_PT_FINAL) {
        dpari_pt_add_sources(ids);
    } else {
        dpari_pt_add_own(ids);
    }
}

/* Combines numbers of any type, by any operation. */
static DPARI_COLD void dpari_pt_combine_ids(const dpari_pt_shared *shared, const dpari_pt_ids *ids,
                                            int32_t phase, int32_t type)
{
    const uint64_t zero = 0;
    const int64_t n = ids->n, outs = phase == DPARI_PT_FOLD ? 1 : ids->repeats;
    const int64_t ins = phase == DPARI_PT_FINAL ? ids->sharers : ids->repeats;
    int64_t i, j;
    int32_t op = shared->op;
    if (op == DPAR_COPY || (op == DPAR_AVG && phase == DPARI_PT_FOLD)) {
        op = DPAR_SUM;
    }
    for (i = 0; i < n; i++) {
        for (j = 0; j < ids->repeats; j++) {
            shared->out[j] = ids->own + ids->index[i * ids->repeats + j] * ids->stride;
        }
        for (j = 0; j < ins; j++) {
            shared->in[j] =
                phase == DPARI_PT_FINAL ? dpari_pt_source(ids, j * n + i) : shared->out[j];
        }
        while (op == DPAR_AVG && phase == DPARI_PT_FINAL && j < ids->total[i]) {
            shared->in[j++] = &zero; /* the sum is divided by the number of values */
        }
        /* DPAR_COPY passes only the first value, which is copied */
        dpari_kern_reduce(shared->out, (int32_t)outs, shared->in,
                          shared->op == DPAR_COPY ? 1 : (int32_t)j, 1, type, op, 0);
    }
}

/* Runs a phase for one number of the values. */
static void dpari_pt_combine_number(const dpari_pt_shared *shared, dpari_pt_ids *ids, int32_t phase,
                                    int32_t type)
{
    const int32_t *at = phase == DPARI_PT_LOCAL ? shared->local : shared->shared;
    const int32_t *end = phase == DPARI_PT_LOCAL ? shared->shared : shared->end;
    while (at < end) {
        at = dpari_pt_read_ids(at, ids);
        if (phase == DPARI_PT_FOLD && ids->repeats == 1) {
            continue;
        }
        if (type == DPAR_F64 && shared->op == DPAR_SUM) {
            dpari_pt_add_ids(ids, phase);
        } else {
            dpari_pt_combine_ids(shared, ids, phase, type);
        }
    }
}

/* Not DPARI_COLD: gcc would then compile the loops over ids, which only this function calls, for
 * size as well. */
DPARI_INTERNAL void dpari_pt_combine_shared(const dpari_points *plan, int32_t phase)
{
    dpari_pt_side *own = plan->shared.source + plan->x.peers, *source;
    const dpari_pt_vector *vector = plan->vector;
    dpari_pt_ids ids;
    int64_t point = 0; /* bytes of a point of the previous vector */
    int32_t v;
    if (plan->shared.local == plan->shared.end) {
        return; /* the vectors may be NULL */
    }
    ids.source = plan->shared.source;
    for (v = 0; v < plan->vectors; v++, vector++) {
        const dpari_pt_peer *peer = plan->peer;
        for (source = plan->shared.source; source < own; source++, peer++) {
            source->at += dpari_pt_block(peer->send.count, point);
            source->stride = vector->point;
        }
        point = vector->point;
        ids.own = vector->own;
        ids.stride = own->stride = vector->stride;
        for (ids.offset = 0; ids.offset < point; ids.offset += dpar_type_bytes(vector->type)) {
            own->at = ids.own - ids.offset;
            dpari_pt_combine_number(&plan->shared, &ids, phase, vector->type);
            ids.own += vector->component;
        }
    }
}

/* ==== points/points_widen.c ==== */

/* Copies a description, and converts 32-bit ids and counts to 64 bits, so that planning has only
 * one form of each. The converted arrays exist only during planning. Called by points.c. */

/* Checks the counts, so that arrays of these lengths can be read. */
static DPARI_COLD dpar_status dpari_pt_check_counts(const dpar_comm *comm,
                                                    const dpar_points_desc *desc, dpar_why *why)
{
    if (desc->own_count < 0 || desc->ghost_count < 0 || desc->mixed_count < 0) {
        return dpari_wrong(why, "own_count %ld or ghost_count %ld or mixed_count %ld is negative",
                           desc->own_count, desc->ghost_count, desc->mixed_count);
    }
    if (desc->own_count > INT32_MAX || desc->ghost_count > INT32_MAX - desc->own_count ||
        desc->mixed_count > INT32_MAX) {
        return dpari_say(DPAR_E_RANGE, why,
                         "own_count %ld and ghost_count %ld are more than %d together, or "
                         "mixed_count %ld is more",
                         desc->own_count, desc->ghost_count, (int32_t)INT32_MAX, desc->mixed_count);
    }
    if (desc->mixed_count > 0 && (desc->own_count + desc->ghost_count > 0 || !desc->lists)) {
        return dpari_wrong(why,
                           "mixed_count is %ld: lists must be set, own_count %ld and ghost_count "
                           "%ld must be 0",
                           desc->mixed_count, desc->own_count, desc->ghost_count);
    }
    if (desc->lists && (desc->lists->peer_count < 0 || desc->lists->peer_count > comm->size)) {
        return dpari_wrong(why, "peer_count is %d, but there are %d ranks", desc->lists->peer_count,
                           comm->size);
    }
    return DPAR_OK;
}

/* Replaces *array by the converted `narrow`, unless that is NULL. */
static DPARI_COLD void dpari_pt_widen_array(dpari_pt_wide *wide, const int64_t **array,
                                            const int32_t *narrow, int64_t n, const char *name,
                                            dpar_status *status, dpar_why *why)
{
    int64_t *to, i;
    if (!narrow || *status != DPAR_OK) {
        return;
    }
    if (*array) {
        *status = dpari_wrong(why, "%s and %s32 are both set, but only one of them is allowed",
                              name, name);
        return;
    }
    to = (int64_t *)dpari_po_take(&wide->pages, n, 8, status, why);
    for (i = 0; i < n && to; i++) {
        to[i] = narrow[i];
    }
    *array = to;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_widen(dpari_pt_wide *wide, const dpar_comm *comm,
                                                     const dpar_points_desc *desc, dpar_why *why)
{
    dpar_status status = dpari_pt_check_counts(comm, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    wide->desc = *desc;
    if (desc->lists) {
        const int32_t peers = desc->lists->peer_count;
        wide->lists = *desc->lists;
        wide->desc.lists = &wide->lists;
        dpari_pt_widen_array(wide, &wide->lists.send_count, desc->lists->send_count32, peers,
                             "send_count", &status, why);
        dpari_pt_widen_array(wide, &wide->lists.receive_count, desc->lists->receive_count32, peers,
                             "receive_count", &status, why);
    } else {
        dpari_pt_widen_array(wide, &wide->desc.own_id, desc->own_id32, desc->own_count, "own_id",
                             &status, why);
        dpari_pt_widen_array(wide, &wide->desc.ghost_id, desc->ghost_id32, desc->ghost_count,
                             "ghost_id", &status, why);
    }
    if (desc->mixed_count > 0) {
        wide->desc.ghost_count = desc->mixed_count;
    }
    return status;
}

/* ==== points/points_owner.c ==== */

/* Finds the owner of each ghost, and the ranks that read each own value. points_owner.h describes
 * the three rounds of messages. Called by points.c when a plan is made. */

/* ---- tables of ids --------------------------------------------------------------------------- */

DPARI_INTERNAL int64_t dpari_pt_table_room(int64_t n)
{
    int64_t room = 2;
    while (room < n + n / 2) {
        room *= 2;
    }
    return n > 0 ? room : 0;
}

static void dpari_pt_table_init(dpari_pt_table *table, dpari_pt_entry *entry, int64_t n)
{
    int64_t i;
    table->entry = entry;
    table->mask = dpari_pt_table_room(n) - 1;
    for (i = 0; i <= table->mask; i++) {
        entry[i].at = -1;
    }
}

/* Hashes an id twice. Ids that are packed from several numbers may differ only in high bits, and
 * one round does not carry these to the low bits. */
static uint64_t dpari_pt_hash(uint64_t seed, int64_t id)
{
    return dpari_hash(dpari_hash(seed, id), 0);
}

/* Returns the entry of an id, or the free entry where it belongs. */
static dpari_pt_entry *dpari_pt_seek(const dpari_pt_table *table, int64_t id)
{
    int64_t i = (int64_t)(dpari_pt_hash(1, id) >> 16) & table->mask;
    while (table->entry[i].at >= 0 && table->entry[i].id != id) {
        i = (i + 1) & table->mask;
    }
    return &table->entry[i];
}

/* Returns the number that is stored for an id, or -1 if the id is not in the table. */
static int64_t dpari_pt_find(const dpari_pt_table *table, int64_t id)
{
    return table->mask < 0 ? -1 : dpari_pt_seek(table, id)->at;
}

/* Stores `at` for an id and returns -1. If the id is in the table already, returns the number that
 * is stored for it. */
static int64_t dpari_pt_put(dpari_pt_table *table, int64_t id, int64_t at)
{
    dpari_pt_entry *entry = dpari_pt_seek(table, id);
    const int64_t was = entry->at;
    if (was < 0) {
        entry->id = id;
        entry->at = at;
    }
    return was;
}

/* Converts an id, which is the number of an element in C order, to the element's index. Returns 0
 * if the array of the layout has no such element. */
static int dpari_pt_element(const dpar_layout *layout, int64_t id, int64_t *index)
{
    int32_t d;
    for (d = layout->dims - 1; d >= 0 && id >= 0; d--) {
        if (layout->extent[d] == 0) {
            return 0;
        }
        index[d] = id % layout->extent[d];
        id /= layout->extent[d];
    }
    return id == 0;
}

/* Returns the local index of an id, or -1 if the layout does not assign it to this rank. */
static int64_t dpari_pt_layout_index(const dpari_points *plan, int64_t id)
{
    int64_t index[DPAR_MAX_DIMS], local[DPAR_MAX_DIMS], shape[DPAR_MAX_DIMS], at = 0;
    int32_t d;
    if (!dpari_pt_element(&plan->layout, id, index) ||
        dpar_layout_owner(&plan->layout, index, 0, local) != plan->head.comm->rank) {
        return -1;
    }
    dpar_layout_local(&plan->layout, plan->head.comm->rank, shape, NULL);
    for (d = 0; d < plan->layout.dims; d++) {
        at = at * shape[d] + local[d];
    }
    return at;
}

/* Returns the local index of an own id, or -1 if this rank does not own it. */
static int64_t dpari_pt_own_index(const dpari_points *plan, int64_t id)
{
    int64_t at;
    if (plan->has_layout && !plan->hashed) {
        return dpari_pt_layout_index(plan, id);
    }
    if (!plan->hashed) {
        at = id - plan->head.first_id;
        return id >= plan->head.first_id && at < plan->head.own_count ? at : -1;
    }
    at = dpari_pt_find(&plan->table, id);
    return at < plan->head.own_count ? at : -1;
}

DPARI_INTERNAL int64_t dpari_pt_index(const dpari_points *plan, int64_t id)
{
    const int64_t at = plan->hashed ? -1 : dpari_pt_own_index(plan, id);
    return at >= 0 ? at : dpari_pt_find(&plan->table, id);
}

/* ---- owners ---------------------------------------------------------------------------------- */

/* Reports a ghost that no rank owns. */
static dpar_status dpari_pt_no_owner(const dpari_points *plan, int64_t id, int64_t ghost,
                                     dpar_why *why)
{
    return dpari_wrong(
        why, "id %ld, ghost %ld of rank %d, is owned by no rank, which needs unsent_ghosts", id,
        ghost, plan->head.comm->rank);
}

/* Returns the last of n ranks whose first id is at most `id`, by bisection. */
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

/* Finds the owners of ghosts if ids are consecutive from rank to rank. Collective. */
static dpar_status dpari_pt_by_range(dpari_points *plan, const dpar_points_desc *desc,
                                     int32_t *owner, dpar_why *why)
{
    dpar_comm *comm = plan->head.comm;
    const int64_t bytes = (int64_t)sizeof(int64_t) * 2 * comm->size;
    int64_t *count, g, all = 0;
    void *memory = NULL;
    dpar_status status = dpari_po_explain(comm, dpar_comm_alloc(comm, bytes, &memory), why);
    status = dpari_agree_on(comm, status, "points", NULL, NULL, why);
    if (status != DPAR_OK) {
        dpar_comm_release(comm, memory);
        return status;
    }
    count = (int64_t *)memory;
    status = dpari_po_explain(
        comm, dpar_all_gather(comm, &desc->own_count, count, 1, DPAR_I64, NULL), why);
    dpari_pt_add_up(count, count + comm->size, comm->size, &all);
    plan->head.first_id = count[comm->size + comm->rank];
    for (g = 0; g < desc->ghost_count && status == DPAR_OK; g++) {
        const int64_t id = desc->ghost_id[g];
        if (id >= 0 && id < all) {
            owner[g] = dpari_pt_holder(count + comm->size, comm->size, id);
        } else if (desc->unsent_ghosts) {
            owner[g] = -1;
        } else {
            status = dpari_pt_no_owner(plan, id, g, why);
        }
    }
    dpar_comm_release(comm, memory);
    return status;
}

/* Returns the rank to which a layout assigns an id, or -1 if there is no such id. */
static int32_t dpari_pt_layout_owner(const dpar_layout *layout, int64_t id)
{
    int64_t index[DPAR_MAX_DIMS];
    return dpari_pt_element(layout, id, index) ? dpar_layout_owner(layout, index, 0, NULL) : -1;
}

/* Takes the owners of ghosts from desc.owner or desc.layout; -1 if there is none. */
static dpar_status dpari_pt_by_owner(const dpari_points *plan, const dpar_points_desc *desc,
                                     int32_t *owner, dpar_why *why)
{
    int64_t g;
    for (g = 0; g < desc->ghost_count; g++) {
        const int64_t id = desc->ghost_id[g];
        owner[g] = desc->owner ? desc->owner[g] : dpari_pt_layout_owner(desc->layout, id);
        if (owner[g] == -1 && desc->unsent_ghosts) {
            continue;
        }
        if (!desc->owner && owner[g] < 0) {
            return dpari_pt_no_owner(plan, id, g, why);
        }
        if (owner[g] < 0 || owner[g] >= plan->head.comm->size) {
            return dpari_wrong(why, "ghost %ld, id %ld: owner %d is not one of the %d ranks", g, id,
                               owner[g], plan->head.comm->size);
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL int32_t dpari_pt_home(int64_t id, int32_t ranks)
{
    return (int32_t)((dpari_pt_hash(0, id) >> 20) % (uint64_t)ranks);
}

/* Computes the home of each of n ids. dpari_pt_deal later replaces it by a place. */
static void dpari_pt_homes(const int64_t *id, int64_t n, int32_t ranks, int32_t *home)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        home[i] = dpari_pt_home(id[i], ranks);
    }
}

/* Stores each of n numbers in the part of mail->out for its destination. Replaces the destination
 * in `to` by the place in mail->out, unless it is negative. */
static void dpari_pt_deal(dpari_pt_mail *mail, const int64_t *number, int64_t n, int32_t *to)
{
    int64_t i, *next = mail->count + mail->comm->size;
    for (i = 0; i < n; i++) {
        if (to[i] >= 0) {
            const int64_t at = next[to[i]]++;
            mail->out[at] = number[i];
            to[i] = (int32_t)at;
        }
    }
}

/* Enters the ids that owners have sent to this home into its table. */
static dpar_status dpari_pt_register(dpari_pt_table *table, const dpari_pt_mail *mail,
                                     dpar_why *why)
{
    const int64_t *n = mail->count + 2 * mail->comm->size;
    dpar_status status = DPAR_OK;
    int64_t k = 0, end = 0;
    int32_t r;
    for (r = 0; r < mail->comm->size; r++) {
        end += n[r];
        for (; k < end; k++) {
            const int64_t was = dpari_pt_put(table, mail->in[k], r);
            if (was == r) {
                status = dpari_wrong(why, "id %ld is listed twice among the own ids of rank %d",
                                     mail->in[k], r);
            } else if (was >= 0) {
                status = dpari_wrong(why, "id %ld is owned by two ranks, %ld and %d", mail->in[k],
                                     was, r);
            }
        }
    }
    return status;
}

/* Runs round 1: sends own ids to their homes, which enter them in their directories. */
static dpar_status dpari_pt_register_all(dpari_pt_table *homed, dpari_po_pages *pages,
                                         dpar_comm *comm, const dpar_points_desc *desc, int32_t *to,
                                         dpar_why *why)
{
    dpari_pt_mail mail;
    dpar_status status;
    dpari_pt_homes(desc->own_id, desc->own_count, comm->size, to);
    status = dpari_pt_open(&mail, comm, to, desc->own_count, 1, DPAR_OK, why);
    if (status == DPAR_OK) {
        dpari_pt_deal(&mail, desc->own_id, desc->own_count, to);
        status = dpari_pt_go(&mail, 0, why);
    }
    if (status == DPAR_OK) {
        dpari_pt_entry *entry = (dpari_pt_entry *)dpari_po_take(
            pages, dpari_pt_table_room(mail.ins + 1), sizeof *entry, &status, why);
        if (entry) {
            dpari_pt_table_init(homed, entry, mail.ins + 1);
            status = dpari_pt_register(homed, &mail, why);
        }
    }
    dpari_pt_close(&mail);
    return status;
}

/* Runs round 2: asks the homes of ghosts for their owners. If `status`, the result of round 1, is
 * an error, all ranks get it. */
static dpar_status dpari_pt_ask_all(const dpari_pt_table *homed, const dpari_points *plan,
                                    const dpar_points_desc *desc, int32_t *owner, int32_t *to,
                                    dpar_status status, dpar_why *why)
{
    dpari_pt_mail mail;
    int64_t i;
    dpari_pt_homes(desc->ghost_id, desc->ghost_count, plan->head.comm->size, to);
    status = dpari_pt_open(&mail, plan->head.comm, to, desc->ghost_count, 1, status, why);
    if (status == DPAR_OK) {
        dpari_pt_deal(&mail, desc->ghost_id, desc->ghost_count, to);
        status = dpari_pt_go(&mail, 0, why);
    }
    if (status == DPAR_OK) {
        for (i = 0; i < mail.ins; i++) {
            mail.in[i] = dpari_pt_find(homed, mail.in[i]);
        }
        status = dpari_pt_go(&mail, 1, why);
    }
    for (i = 0; i < desc->ghost_count && status == DPAR_OK; i++) {
        owner[i] = (int32_t)mail.out[to[i]];
        if (owner[i] < 0 && !desc->unsent_ghosts) {
            status = dpari_pt_no_owner(plan, desc->ghost_id[i], i, why);
        }
    }
    dpari_pt_close(&mail);
    return status;
}

/* Finds the owners of ghosts by rounds 1 and 2. `to` has as many elements as the larger of own ids
 * and ghosts. */
static dpar_status dpari_pt_by_directory(dpari_points *plan, const dpar_points_desc *desc,
                                         int32_t *owner, int32_t *to, dpar_why *why)
{
    dpari_pt_table homed; /* the ids that were registered here, with their owners' ranks */
    dpari_po_pages pages;
    dpar_status status;
    dpari_zero(&homed, sizeof homed);
    dpari_zero(&pages, sizeof pages);
    status = dpari_pt_register_all(&homed, &pages, plan->head.comm, desc, to, why);
    status = dpari_pt_ask_all(&homed, plan, desc, owner, to, status, why);
    dpari_po_free(&pages);
    return status;
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Sorts n ids by merging, and moves the numbers in `with` along. Equal ids keep their order. The
 * spare arrays have n elements each. */
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
                int64_t from;
                if (b >= high || (a < middle && id[a] <= id[b])) {
                    from = a++;
                } else {
                    from = b++;
                }
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

/* ---- lists of both sides --------------------------------------------------------------------- */

/* Allocates the lists of both sides for `sent` values that are sent. */
static void dpari_pt_take_both(dpari_pt_both *both, int64_t sent, int32_t size, dpar_status *status,
                               dpar_why *why)
{
    both->sent = sent;
    both->sends = (int64_t *)dpari_po_take(&both->pages, size, 8, status, why);
    both->receives = (int64_t *)dpari_po_take(&both->pages, size, 8, status, why);
    both->send_at = (int32_t *)dpari_po_take(&both->pages, sent, 4, status, why);
}

/* Converts the ids that other ranks read to indices of own values. */
static dpar_status dpari_pt_look_up(const dpari_points *plan, const dpari_pt_mail *mail,
                                    dpari_pt_both *both, dpar_why *why)
{
    int64_t k = 0, end = 0;
    int32_t r;
    for (r = 0; r < mail->comm->size; r++) {
        end += both->sends[r];
        for (; k < end; k++) {
            const int64_t at = dpari_pt_own_index(plan, mail->in[k]);
            if (at < 0) {
                return dpari_wrong(
                    why, "id %ld, which rank %d reads, is not among the own ids of rank %d",
                    mail->in[k], r, mail->comm->rank);
            }
            both->send_at[k] = (int32_t)at;
        }
    }
    return DPAR_OK;
}

/* Sets the list of ghosts that receive the values of each rank, and enters ghosts in the table.
 *
 * to: the place of each ghost in mail->out; negative if no rank sends it.
 *
 * With DPAR_POINTS_ORDER_BY_OWNER the ids for each rank are sorted first. Ghosts are then numbered
 * in that order, so that each rank's ghosts are consecutive; those that no rank sends are last. */
static void dpari_pt_set_places(dpari_points *plan, const dpar_points_desc *desc,
                                dpari_pt_mail *mail, const int32_t *to, int32_t *spare,
                                int64_t *spare_id, dpari_pt_both *both)
{
    const int sorted = desc->order == DPAR_POINTS_ORDER_BY_OWNER;
    int64_t g, at = 0, unsent = mail->outs;
    int32_t r;
    for (g = 0; g < desc->ghost_count; g++) {
        if (to[g] >= 0) {
            both->receive_at[to[g]] = (int32_t)g;
        }
    }
    for (r = 0; r < mail->comm->size && sorted; r++) {
        dpari_pt_sort(mail->out + at, both->receive_at + at, mail->count[r], spare_id, spare);
        at += mail->count[r];
    }
    for (g = 0; g < mail->outs; g++) {
        if (sorted) {
            (void)dpari_pt_put(&plan->table, mail->out[g], desc->own_count + g);
            both->receive_at[g] = (int32_t)g;
        }
        dpari_pt_set_received(plan, both->receive_at[g]);
    }
    for (g = 0; g < desc->ghost_count; g++) {
        if (!sorted) {
            (void)dpari_pt_put(&plan->table, desc->ghost_id[g], desc->own_count + g);
        } else if (to[g] < 0) {
            (void)dpari_pt_put(&plan->table, desc->ghost_id[g], desc->own_count + unsent++);
        }
    }
}

/* Enters own ids in the plan's table, which also has capacity for the ghosts. */
static dpar_status dpari_pt_enter(dpari_points *plan, const dpar_points_desc *desc, dpar_why *why)
{
    int64_t i;
    dpari_pt_table_init(&plan->table, plan->table.entry,
                        (plan->hashed ? desc->own_count : 0) + desc->ghost_count);
    for (i = 0; i < desc->own_count && plan->hashed; i++) {
        const int64_t was = dpari_pt_put(&plan->table, desc->own_id[i], i);
        if (was >= 0) {
            return dpari_wrong(
                why, "id %ld is listed twice among the own ids of rank %d, at %ld and %ld",
                desc->own_id[i], plan->head.comm->rank, was, i);
        }
    }
    return DPAR_OK;
}

/* Runs round 3: sends the ids of ghosts to their owners, and makes the lists of both sides. */
static dpar_status dpari_pt_send_ids(const dpari_points *plan, dpari_pt_mail *mail,
                                     dpari_pt_both *both, dpar_why *why)
{
    const int32_t size = plan->head.comm->size;
    dpar_status status = dpari_pt_go(mail, 0, why);
    int32_t r;
    dpari_pt_take_both(both, mail->ins, size, &status, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (r = 0; r < size; r++) {
        both->receives[r] = mail->count[r];
        both->sends[r] = mail->count[2 * size + r];
    }
    return dpari_pt_look_up(plan, mail, both, why);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_by_ids(dpari_points *plan,
                                                      const dpar_points_desc *desc,
                                                      dpari_pt_both *both, dpar_why *why)
{
    const int64_t ghosts = desc->ghost_count;
    const int given = plan->given_owner || plan->has_layout;
    dpari_pt_mail mail;
    dpar_status status = DPAR_OK;
    int64_t *spare = (int64_t *)dpari_po_take(&both->pages, ghosts, 8, &status, why);
    int32_t *owner = (int32_t *)dpari_po_take(&both->pages, ghosts, 4, &status, why);
    int32_t *to = (int32_t *)dpari_po_take(&both->pages, dpari_most(desc->own_count, ghosts), 4,
                                           &status, why);
    both->receive_at = (int32_t *)dpari_po_take(&both->pages, ghosts, 4, &status, why);
    if (status == DPAR_OK) {
        status = dpari_pt_enter(plan, desc, why);
    }
    status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (!plan->hashed && !plan->has_layout) { /* also finds first_id, which owners need, too */
        status = dpari_pt_by_range(plan, desc, owner, why);
    } else if (!given) {
        status = dpari_pt_by_directory(plan, desc, owner, to, why);
    }
    if (given && status == DPAR_OK) {
        status = dpari_pt_by_owner(plan, desc, owner, why);
    }
    status = dpari_pt_open(&mail, plan->head.comm, owner, ghosts, 1, status, why);
    if (status == DPAR_OK) { /* round 3 */
        dpari_pt_deal(&mail, desc->ghost_id, ghosts, owner);
        dpari_pt_set_places(plan, desc, &mail, owner, to, spare, both);
        status = dpari_pt_send_ids(plan, &mail, both, why);
        status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
    }
    dpari_pt_close(&mail);
    return status;
}

/* Copies the caller's lists, sorted by rank. send_next, receive_next: [size], used here. */
static void dpari_pt_sort_lists(const dpar_points_desc *desc, dpari_pt_both *both, int32_t size,
                                int64_t *send_next, int64_t *receive_next)
{
    const dpar_points_lists *lists = desc->lists;
    int64_t all, s = 0, r = 0, k;
    int32_t i;
    dpari_pt_add_up(both->sends, send_next, size, &all);
    dpari_pt_add_up(both->receives, receive_next, size, &all);
    for (i = 0; i < lists->peer_count; i++) {
        int64_t *send = &send_next[lists->peer[i]], *receive = &receive_next[lists->peer[i]];
        for (k = 0; k < lists->send_count[i]; k++) {
            both->send_at[(*send)++] = lists->send_index[s++];
        }
        for (k = 0; k < lists->receive_count[i]; k++, r++) {
            both->receive_at[(*receive)++] =
                lists->receive_index ? lists->receive_index[r] - (int32_t)desc->own_count
                                     : (int32_t)r;
        }
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_by_lists(dpari_points *plan,
                                                        const dpar_points_desc *desc,
                                                        dpari_pt_both *both, dpar_why *why)
{
    const dpar_points_lists *lists = desc->lists;
    const int32_t size = plan->head.comm->size;
    const int64_t sent = dpari_pt_total(lists->send_count, lists->peer_count);
    int64_t *announced;
    dpar_status status = DPAR_OK;
    int32_t i;
    announced = (int64_t *)dpari_po_take(&both->pages, 2 * (int64_t)size, 8, &status, why);
    both->receive_at = (int32_t *)dpari_po_take(&both->pages, desc->ghost_count, 4, &status, why);
    dpari_pt_take_both(both, sent, size, &status, why);
    status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < lists->peer_count; i++) {
        both->sends[lists->peer[i]] = lists->send_count[i];
        both->receives[lists->peer[i]] = lists->receive_count[i];
    }
    status = dpari_po_explain(
        plan->head.comm,
        dpar_all_to_all(plan->head.comm, both->sends, announced, 1, DPAR_I64, NULL), why);
    for (i = 0; i < size && status == DPAR_OK; i++) {
        if (announced[i] != both->receives[i]) {
            status = dpari_say(DPAR_E_MISMATCH, why,
                               "rank %d sends %ld values to rank %d, which expects %ld", i,
                               announced[i], plan->head.comm->rank, both->receives[i]);
        }
    }
    status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
    if (status == DPAR_OK) {
        dpari_pt_sort_lists(desc, both, size, announced, announced + size);
    }
    return status;
}

/* ==== points/points_sharers.c ==== */

/* Finds which ranks share an id. points_sharers.h describes the two rounds of messages, and
 * points_shared.h the order in which values are combined. Called by points.c when a plan is made.
 */

/* The data of a search for sharers. A sharer is one number, rank << 32 | values, where `values` is
 * how many values of the id it has, so that sharers are sorted by rank. */
typedef struct dpari_pt_search {
    dpari_points *plan;
    dpari_pt_both *both;
    /* Values of this rank, sorted; key: id, at: local index. In the first item of each id, the
     * field `id` is the index in `sharer` of the first sharer. */
    dpari_po_item *value, *value_end;
    /* Sharers of the ids that this rank shares, sorted; key: id, id: sharer, at: number of values
     * of lower ids that are sent to the sharer, which is also the number that it sends. */
    dpari_po_item *sharer, *sharer_end;
    /* Ids that this rank repeats or shares; key: number of sharers << 31 | values, at: index of the
     * first item in `value`, id: the last other rank, or the first local index if there is none. */
    dpari_po_item *group, *group_end;
    dpari_po_pages pages;
} dpari_pt_search;

/* Returns the end of the items that have the same key as the first one. */
DPARI_STATIC_NOINLINE dpari_po_item *dpari_pt_run_end(dpari_po_item *item, const dpari_po_item *end)
{
    const int64_t key = item->key;
    while (item < end && item->key == key) {
        item++;
    }
    return item;
}

/* Sends the key and the id of each of n items to rank item->at. Returns the items that this rank
 * has received, sorted, and sets *end. If *status is an error on a rank, all ranks get it.
 * Collective. */
static dpari_po_item *dpari_pt_send_items(dpari_pt_search *search, const dpari_po_item *item,
                                          int64_t n, dpari_po_item **end, dpar_status *status,
                                          dpar_why *why)
{
    dpar_comm *comm = search->plan->head.comm;
    dpari_po_item *got = NULL;
    dpari_pt_mail mail;
    int64_t i;
    int32_t *to = (int32_t *)dpari_po_take(&search->pages, n, 4, status, why);
    for (i = 0; i < n && to; i++) {
        to[i] = (int32_t)item[i].at;
    }
    *status = dpari_pt_open(&mail, comm, to, n, 2, *status, why);
    if (*status == DPAR_OK) {
        for (i = 0; i < n; i++, item++) {
            int64_t *next = mail.count + comm->size + item->at, *out = mail.out + *next;
            out[0] = item->key;
            out[1] = item->id;
            *next += 2;
        }
        n = mail.ins / 2;
        *status = dpari_pt_go(&mail, 0, why);
        got = (dpari_po_item *)dpari_po_take(&search->pages, 2 * n, sizeof *got, status, why);
    }
    if (got) {
        for (i = 0; i < n; i++) {
            got[i].key = mail.in[2 * i];
            got[i].id = mail.in[2 * i + 1];
        }
        got = dpari_po_sort(got, got + n, n);
        *end = got + n;
    }
    dpari_pt_close(&mail);
    return got;
}

/* Sorts the values of this rank by id, and finds the sharers of these ids. Collective. */
DPARI_STATIC_NOINLINE dpar_status dpari_pt_find_sharers(dpari_pt_search *search,
                                                        const dpar_points_desc *desc, dpar_why *why)
{
    const dpar_comm *comm = search->plan->head.comm;
    const int64_t most = desc->own_count;
    dpar_status status = DPAR_OK;
    dpari_po_item *here, *here_end = NULL, *next, *a, *b, *to;
    dpari_po_item *item =
        (dpari_po_item *)dpari_po_take(&search->pages, 4 * most, sizeof *item, &status, why);
    int64_t i, answers = 0;
    int32_t pass;
    to = item;
    for (i = 0; i < most && item; i++) {
        if (desc->own_id[i] >= 0) {
            to->key = desc->own_id[i];
            to->at = i;
            to++;
        }
    }
    search->value = dpari_po_sort(item, item + most, to - item);
    search->value_end = search->value + (to - item);
    search->group = to = item + 2 * most;
    for (a = search->value; a < search->value_end; a = next) {
        next = dpari_pt_run_end(a, search->value_end);
        to->key = a->key;
        to->id = (int64_t)comm->rank << 32 | (next - a);
        to->at = dpari_pt_home(a->key, comm->size);
        to++;
    }
    here = dpari_pt_send_items(search, search->group, to - search->group, &here_end, &status, why);
    for (pass = 0; pass < 2; pass++) { /* counts the answers, then writes them */
        answers = 0;
        for (to = here; to < here_end; to = next) {
            next = dpari_pt_run_end(to, here_end);
            for (a = to; a < next && next > to + 1; a++) {
                for (b = to; b < next; b++, answers++) {
                    if (pass > 0) {
                        *item = *b;
                        item->at = a->id >> 32;
                        item++;
                    }
                }
            }
        }
        if (pass == 0) {
            item =
                (dpari_po_item *)dpari_po_take(&search->pages, answers, sizeof *item, &status, why);
            here_end = item ? here_end : here;
        }
    }
    search->sharer =
        dpari_pt_send_items(search, item - answers, answers, &search->sharer_end, &status, why);
    return status;
}

/* Numbers the values that are sent to each rank in the order of their ids (the rank sends as many),
 * and groups the ids that this rank repeats or shares. Returns how many int32_t their records need,
 * and sets *most to the largest number of values that are combined at once. */
DPARI_STATIC_NOINLINE int64_t dpari_pt_group_ids(dpari_pt_search *search, int64_t *most)
{
    dpari_po_item *value, *next, *sharer = search->sharer, *group = search->group;
    int64_t numbers = 0;
    *most = 0;
    for (value = search->value; value < search->value_end; value = next) {
        int64_t total = 0, sharers = 0, other = 0;
        next = dpari_pt_run_end(value, search->value_end);
        value->id = sharer - search->sharer;
        for (; sharer < search->sharer_end && sharer->key == value->key; sharer++) {
            const int64_t rank = sharer->id >> 32;
            total += sharer->id & INT32_MAX;
            sharers++;
            if (rank != search->plan->head.comm->rank) {
                other = rank;
                sharer->at = search->both->sends[rank]++;
            }
        }
        total = dpari_most(total, next - value);
        *most = dpari_most(*most, total);
        if (total > 1) {
            group->key = sharers << 31 | (next - value);
            group->id = sharers == 0 ? value->at : other;
            group->at = value - search->value;
            group++;
            numbers += 4 + (next - value) + 2 * sharers;
        }
    }
    search->group_end = group;
    return numbers;
}

/* Writes a record of the ids from `group` to `end`, and lists their first values for the peers that
 * share them. first: [size] where the list for each rank begins. number: [size] index of each peer.
 * Returns the end of the record. */
DPARI_STATIC_NOINLINE int32_t *dpari_pt_write_ids(const dpari_pt_search *search,
                                                  const dpari_po_item *group,
                                                  const dpari_po_item *end, const int64_t *first,
                                                  const int64_t *number, int32_t *at)
{
    const int64_t sharers = group->key >> 31, repeats = group->key & INT32_MAX, n = end - group;
    int32_t *total;
    int64_t j;
    *at++ = (int32_t)n;
    *at++ = (int32_t)repeats;
    *at++ = (int32_t)sharers;
    for (total = at + n * repeats; group < end; group++, total++) {
        const dpari_po_item *value = search->value + group->at;
        const dpari_po_item *sharer = search->sharer + value->id;
        int32_t *to = total;
        for (j = 0; j < repeats; j++) {
            *at++ = (int32_t)value[j].at;
        }
        for (j = 0; j < sharers; j++, sharer++) {
            const int64_t rank = sharer->id >> 32;
            int32_t place = (int32_t)value->at;
            *total += (int32_t)(sharer->id & INT32_MAX);
            if (rank != search->plan->head.comm->rank) {
                search->both->send_at[first[rank] + sharer->at] = place;
                place = (int32_t)sharer->at;
            }
            to += n;
            to[0] = (int32_t)number[rank];
            to[sharers * n] = place;
        }
    }
    return at + (sharers > 0 ? n + 2 * sharers * n : 0);
}

/* Makes the lists and the records of this rank's ids from their sharers. Local. */
DPARI_STATIC_NOINLINE dpar_status dpari_pt_make_lists(dpari_pt_search *search, int64_t own_count,
                                                      dpar_why *why)
{
    dpari_pt_both *both = search->both;
    dpar_comm *comm = search->plan->head.comm;
    dpari_pt_shared *shared = &search->plan->shared;
    dpar_status status = DPAR_OK;
    dpari_po_item *group, *end;
    int64_t numbers, most, peers = 0, n, *first, *number;
    int32_t r, *at;
    both->sends = (int64_t *)dpari_po_take(&both->pages, comm->size, 24, &status, why);
    if (status != DPAR_OK) {
        return status;
    }
    both->receives = both->sends;
    first = both->sends + comm->size;
    number = first + comm->size;
    numbers = dpari_pt_group_ids(search, &most);
    dpari_pt_add_up(both->sends, first, comm->size, &both->sent);
    for (r = 0; r < comm->size; r++) {
        number[r] = peers;
        peers += both->sends[r] > 0;
    }
    number[comm->rank] = peers++; /* the last source is this rank */
    both->send_at = (int32_t *)dpari_po_take(&both->pages, both->sent, 4, &status, why);
    both->receive_at = both->send_at;
    if (status != DPAR_OK) {
        return status;
    }
    status = dpar_comm_alloc(comm,
                             peers * (int64_t)sizeof *shared->source +
                                 2 * most * (int64_t)sizeof *shared->in + 4 * numbers,
                             &shared->memory);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    shared->source = (dpari_pt_side *)shared->memory;
    shared->in = (const void **)(void *)(shared->source + peers);
    shared->out = (void **)(uintptr_t)(shared->in + most);
    shared->local = shared->shared = at = (int32_t *)(void *)(shared->out + most);
    n = search->group_end - search->group;
    group = dpari_po_sort(search->group, search->group + own_count, n);
    for (end = group + n; group < end; group = search->group) {
        const int64_t key = group->key, id = group->id;
        for (search->group = group; search->group < end; search->group++) {
            if (search->group->key != key || (key >> 31 == 2 && search->group->id != id)) {
                break;
            }
        }
        at = dpari_pt_write_ids(search, group, search->group, first, number, at);
        if (key <= INT32_MAX) {
            shared->shared = at;
        }
    }
    shared->end = at;
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_by_shared(dpari_points *plan,
                                                         const dpar_points_desc *desc,
                                                         dpari_pt_both *both, dpar_why *why)
{
    dpari_pt_search search;
    dpar_status status;
    dpari_zero(&search, sizeof search);
    search.plan = plan;
    search.both = both;
    status = dpari_pt_find_sharers(&search, desc, why);
    if (status == DPAR_OK) {
        status = dpari_pt_make_lists(&search, desc->own_count, why);
    }
    dpari_po_free(&search.pages);
    return dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
}

/* ==== points/points_run.c ==== */

/* Packs and takes the values of exchanges of points, and begins, tests and ends them for the
 * caller.
 *
 * ../exchange runs an exchange and calls functions of this file: to pack values and to take those
 * of a peer. A forward exchange stores them in ghosts, an adjoint combines them with own values.
 * This file also checks the vectors that are exchanged. */

/* ---- vectors --------------------------------------------------------------------------------- */

/* Checks vector i of an exchange. Returns DPAR_E_ARG with a message in comm->why. */
static dpar_status dpari_pt_check_vector(const dpari_points *plan, const dpar_points_field *field,
                                         int32_t i)
{
    dpar_comm *comm = plan->head.comm;
    const int32_t n = dpari_pt_components(field);
    const int64_t own = plan->head.own_count, all = own + plan->head.ghost_count;
    if (dpar_type_bytes(field->type) == 0 ||
        (plan->shared.memory && !dpari_type_can_reduce(field->type)) || field->components < 0 ||
        field->components > 1 << 20) {
        return dpari_comm_wrong(
            comm,
            "vector %d: %d components of type %s (allowed: 0 to 2^20, of a type with bytes, "
            "and with shared ids one that can be combined)",
            i, field->components, dpar_type_name(field->type));
    }
    if (field->stride < 0 || field->component_stride < 0 || field->stride > INT64_C(1) << 31 ||
        field->component_stride > INT64_C(1) << 40 ||
        (field->component_stride <= 1 && field->stride > 0 && field->stride < n && all > 1)) {
        return dpari_comm_wrong(
            comm,
            "vector %d: stride %ld (0 to 2^31) or component_stride %ld (0 to 2^40) "
            "does not fit %d components",
            i, field->stride, field->component_stride, n);
    }
    if ((!field->data && (own > 0 || (all > 0 && !field->ghosts))) ||
        (!field->ghosts && !field->data && all > own)) {
        return dpari_comm_wrong(comm, "vector %d: data is NULL but must hold %ld values", i,
                                field->ghosts ? own : all);
    }
    return DPAR_OK;
}

/* Sets the addresses of a vector. Its strides are set already. */
static void dpari_pt_place_vector(const dpari_points *plan, const dpar_points_field *field,
                                  dpari_pt_vector *to)
{
    to->own = (unsigned char *)field->data;
    to->ghosts = (unsigned char *)field->ghosts;
    if (plan->shared.memory) { /* peers get own values and send their own ones */
        to->ghosts = to->own;
    } else if (field->ghosts == NULL && field->data != NULL) {
        to->ghosts = to->own + plan->first_ghost * to->stride;
    }
}

/* Converts a checked vector of the caller to a dpari_pt_vector, whose strides are in bytes. */
static void dpari_pt_set_vector(const dpari_points *plan, const dpar_points_field *field,
                                dpari_pt_vector *to)
{
    const int64_t bytes = dpar_type_bytes(field->type);
    const int32_t n = dpari_pt_components(field);
    const int together = field->component_stride <= 1;
    to->type = field->type;
    to->pieces = together ? 1 : n;
    to->numbers = together ? n : 1;
    to->size = bytes * to->numbers;
    to->point = bytes * n;
    to->stride = bytes * dpari_pt_stride(field);
    to->component = together ? bytes : bytes * field->component_stride;
    dpari_pt_place_vector(plan, field, to);
    to->ref = 0;
    if (plan->x.shared > 0 && plan->method != DPAR_POINTS_PACKED && field->data) {
        to->ref = dpari_ref(plan->x.world, field->data, 1);
    }
}

/* Returns the number of bytes at the beginning of a turn that hold the vectors' places. Packed
 * values follow. */
static int64_t dpari_pt_places_bytes(int64_t n)
{
    return dpari_exchange_lines(n * (int64_t)sizeof(dpari_pt_place));
}

/* Returns the number of bytes of the packed values of all peers, which suffices for both forward
 * and adjoint exchanges. */
static int64_t dpari_pt_packed_bytes(const dpari_points *plan, int64_t n, int64_t point)
{
    return dpari_pt_begins(dpari_most(plan->sends, plan->receives), plan->x.peers, point, n) +
           DPARI_LINE;
}

/* Allocates larger staging memory for n vectors, which together have `point` bytes per point. A
 * failure breaks the communicator, because the other ranks have begun the exchange. */
static DPARI_COLD dpar_status dpari_pt_grow(dpari_points *plan, int64_t n, int64_t point)
{
    const int64_t places = dpari_pt_places_bytes(n), packed = dpari_pt_packed_bytes(plan, n, point);
    const int64_t vectors = dpari_exchange_lines(n * (int64_t)sizeof(dpari_pt_vector)) + DPARI_LINE;
    dpar_comm *of = plan->x.world ? plan->x.node : plan->head.comm;
    void *memory = NULL;
    dpar_status status = dpari_exchange_await_done(&plan->x, plan->x.count);
    if (status != DPAR_OK) {
        return status;
    }
    dpar_comm_release(of, plan->staging);
    plan->staging = NULL;
    status = dpar_comm_alloc(
        of, vectors + 2 * (places + packed) + (plan->messages_to > 0 ? 2 : 1) * packed, &memory);
    if (status != DPAR_OK) {
        dpar_why why = of->why;
        return dpari_comm_wrong_all(plan->head.comm, status, "%s", why.text);
    }
    plan->staging = (unsigned char *)memory;
    plan->vector = (dpari_pt_vector *)memory;
    plan->staging_vectors = n;
    plan->staging_turn = places + packed;
    plan->turns = plan->staging + vectors;
    plan->aside = plan->turns + 2 * plan->staging_turn;
    plan->arrivals = plan->aside + packed;
    if (plan->x.shared > 0) {
        plan->x.line->place[DPARI_PT_TURNS] = dpari_ref(plan->x.world, plan->turns, 1);
        plan->x.line->place[DPARI_PT_TURN_BYTES] = (uint64_t)plan->staging_turn;
    }
    return DPAR_OK;
}

/* Returns a hash of the operation, and of the number, types and components of the vectors, which
 * peers compare. */
static uint64_t dpari_pt_hash_vectors(const dpar_points_field *fields, int32_t n, int32_t op)
{
    uint64_t hash = dpari_hash((uint64_t)op, n);
    int32_t i;
    for (i = 0; i < n; i++) {
        hash = dpari_hash(hash, fields[i].type + 64 * (int64_t)dpari_pt_components(&fields[i]));
    }
    return hash;
}

/* True if there is one vector, with the type, components and strides of the last exchange's vector,
 * so that it need not be checked again. Its address may differ. Plans whose peers read in place are
 * excluded, because the memory at an address may have been freed and allocated again. */
static int dpari_pt_is_like_last(const dpari_points *plan, const dpar_points_field *fields,
                                 int32_t n)
{
    const dpar_points_field *last = &plan->last_field;
    return n == 1 && last->type != DPAR_TYPE_NONE && plan->x.shared == 0 && fields &&
           fields->data && fields->type == last->type && !fields->ghosts == !last->ghosts &&
           fields->components == last->components && fields->stride == last->stride &&
           fields->component_stride == last->component_stride;
}

/* Returns the number of packed bytes of `values` values of all vectors. */
static int64_t dpari_pt_bytes(const dpari_points *plan, int64_t values)
{
    int64_t bytes = 0;
    int32_t i;
    if (plan->vectors == 1) {
        return values * plan->point;
    }
    for (i = 0; i < plan->vectors && values > 0; i++) {
        bytes += dpari_pt_block(values, plan->vector[i].point);
    }
    return bytes;
}

/* Sets the bytes of the messages of an exchange of the plan's vectors. */
static void dpari_pt_set_messages(dpari_points *plan)
{
    int32_t i;
    for (i = 0; i < plan->x.peers && plan->messages_to > 0; i++) {
        dpari_exchange_flow *flow = &plan->x.flow[i];
        if (plan->x.peer[i].world < 0) {
            flow->out_bytes[0] = flow->in_bytes[1] = dpari_pt_bytes(plan, plan->peer[i].send.count);
            flow->in_bytes[0] = flow->out_bytes[1] =
                dpari_pt_bytes(plan, plan->peer[i].receive.count);
        }
    }
}

/* Checks and stores the vectors that the caller passes. */
static dpar_status dpari_pt_set_vectors(dpari_points *plan, const dpar_points_field *fields,
                                        int32_t n)
{
    dpar_comm *comm = plan->head.comm;
    dpar_status status;
    int64_t point = 0;
    int32_t i;
    if (dpari_pt_is_like_last(plan, fields, n)) {
        dpari_pt_place_vector(plan, fields, plan->vector);
        return DPAR_OK;
    }
    plan->last_field.type = DPAR_TYPE_NONE;
    if (n < 1 || n > DPARI_PT_MOST || !fields) {
        return dpari_comm_wrong(
            comm, "points exchange of %d vectors (0 if fields is NULL): 1 to %d are allowed",
            fields ? n : 0, (int32_t)DPARI_PT_MOST);
    }
    for (i = 0; i < n; i++) {
        status = dpari_pt_check_vector(plan, &fields[i], i);
        if (status != DPAR_OK) {
            return status;
        }
        point += dpar_type_bytes(fields[i].type) * dpari_pt_components(&fields[i]);
    }
    if (n > plan->staging_vectors ||
        dpari_pt_places_bytes(n) + dpari_pt_packed_bytes(plan, n, point) > plan->staging_turn) {
        status = dpari_pt_grow(plan, n, point);
        if (status != DPAR_OK) {
            return status;
        }
    }
    for (i = 0; i < n; i++) {
        dpari_pt_set_vector(plan, &fields[i], &plan->vector[i]);
    }
    plan->vectors = n;
    plan->point = point;
    plan->x.items = n;
    dpari_pt_set_messages(plan);
    if (n == 1) {
        plan->last_field = fields[0];
    }
    return DPAR_OK;
}

/* ---- packing --------------------------------------------------------------------------------- */

/* Returns the turn of the current exchange. If no peer shares memory, one turn is enough, because
 * messages have been sent when an exchange ends. */
static unsigned char *dpari_pt_turn(const dpari_points *plan)
{
    return plan->turns + (plan->x.shared > 0 ? plan->x.count & 1 : 0) * plan->staging_turn;
}

/* Returns where the packed values begin in this turn. */
static unsigned char *dpari_pt_packed(const dpari_points *plan)
{
    return dpari_pt_turn(plan) + dpari_pt_places_bytes(plan->vectors);
}

/* Returns the offset of the values that this rank packs for peer i. */
static int64_t dpari_pt_out_at(const dpari_points *plan, int32_t i)
{
    const dpari_pt_peer *peer = &plan->peer[i];
    return dpari_pt_begins(dpari_pt_is_adjoint(plan) ? peer->receives_before : peer->sends_before,
                           i, plan->point, plan->vectors);
}

/* Returns the offset of the values that peer i has packed for this rank, in the peer's turn. */
static int64_t dpari_pt_in_at(const dpari_points *plan, int32_t i)
{
    const dpari_pt_record *record = &plan->peer[i].theirs;
    return dpari_pt_begins(dpari_pt_is_adjoint(plan) ? record->receives_before
                                                     : record->sends_before,
                           record->number, plan->point, plan->vectors);
}

/* The next two functions return the list of the values that are sent to a peer, and of those that
 * are received from it. */
static const dpari_pt_list *dpari_pt_gives(const dpari_points *plan, const dpari_pt_peer *peer)
{
    return dpari_pt_is_adjoint(plan) ? &peer->receive : &peer->send;
}

static const dpari_pt_list *dpari_pt_takes(const dpari_points *plan, const dpari_pt_peer *peer)
{
    return dpari_pt_is_adjoint(plan) ? &peer->send : &peer->receive;
}

/* The next two functions describe where one piece of the points of a vector is: in the caller's
 * memory, and packed at `at`. */
static dpari_pt_side dpari_pt_side_of(const dpari_pt_vector *vector, int ghosts, int32_t piece)
{
    dpari_pt_side side;
    side.at = (ghosts ? vector->ghosts : vector->own) + piece * vector->component;
    side.stride = vector->stride;
    return side;
}

static dpari_pt_side dpari_pt_dense_side(const dpari_pt_vector *vector, unsigned char *at,
                                         int32_t piece)
{
    dpari_pt_side side;
    side.at = at + piece * vector->size;
    side.stride = vector->point;
    return side;
}

/* True if the values of a message are adjacent in the vector, so that they need not be packed. */
static int dpari_pt_is_whole(const dpari_points *plan, const dpari_pt_list *list)
{
    return plan->vectors == 1 && list->kind == DPARI_PT_ONE && plan->vector[0].pieces == 1 &&
           plan->vector[0].stride == plan->vector[0].size;
}

/* True if peer i reads this vector of this rank in place. */
static int dpari_pt_lends(const dpari_points *plan, int32_t i, const dpari_pt_vector *vector)
{
    const dpari_pt_list *list = &plan->peer[i].send;
    return !dpari_pt_is_adjoint(plan) && plan->x.peer[i].world >= 0 &&
           dpari_pt_is_direct(plan, vector->ref, vector->size, list->count, list->runs);
}

/* Prefetches `bytes` bytes for writing, in lines of 64 bytes. Every line is prefetched, because the
 * hardware fetches lines in pairs: it would fetch a line that is left out for reading only, and a
 * write to it would wait twice (measured: 4.5 us instead of 2.5 for 8 KiB). */
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

/* Packs a vector of one piece into memory that another core has read before. Because the cache of
 * that core still has the lines, they are prefetched one bite ahead of the copy. Scattered values
 * are first gathered in private memory, then written in one go. */
static void dpari_pt_pack_shared(const dpari_points *plan, const dpari_pt_vector *vector,
                                 const dpari_pt_list *list, dpari_pt_side mine, unsigned char *to)
{
    const int64_t all = list->count * vector->size;
    const int64_t bite = dpari_most(DPARI_PT_BITE / vector->size, 1); /* values */
    const int scattered = list->kind == DPARI_PT_EACH || vector->stride != vector->size;
    dpari_pt_list part = *list;
    int64_t k;
    dpari_pt_own_lines(to, dpari_least(all, bite * vector->size));
    for (k = 0; k < list->count; k += part.count) {
        const int64_t at = k * vector->size, next = at + bite * vector->size;
        dpari_pt_list dense;
        part.count = dpari_least(bite, list->count - k);
        part.at = list->kind == DPARI_PT_EACH ? list->at + k : NULL;
        part.first = (int32_t)(list->first + k * (list->step != 0 ? list->step : 1));
        dense = dpari_pt_dense(part.count);
        dpari_pt_own_lines(to + next, dpari_least(all - next, bite * vector->size));
        dpari_pt_move(&dense, dpari_pt_dense_side(vector, scattered ? plan->aside : to + at, 0),
                      &part, mine, vector->size);
        if (scattered) {
            dpari_elements_bits(to + at, plan->aside, (size_t)(part.count * vector->size));
        }
    }
}

/* Packs a vector for a peer. If shared is 1, another core reads the packed values, which are then
 * written in bites, or packed in private memory and copied at once. The adjoint sets the packed
 * ghosts to 0. */
static void dpari_pt_pack_vector(dpari_points *plan, const dpari_pt_vector *vector,
                                 const dpari_pt_list *list, unsigned char *to, int shared)
{
    const dpari_pt_list dense = dpari_pt_dense(list->count);
    const int bites = shared && list->kind != DPARI_PT_RUNS && vector->pieces == 1;
    const int aside = shared && !bites;
    int32_t piece;
    for (piece = 0; piece < vector->pieces; piece++) {
        const dpari_pt_side mine = dpari_pt_side_of(vector, dpari_pt_is_adjoint(plan), piece);
        if (bites) {
            dpari_pt_pack_shared(plan, vector, list, mine, to);
        } else {
            dpari_pt_move(&dense, dpari_pt_dense_side(vector, aside ? plan->aside : to, piece),
                          list, mine, vector->size);
        }
        if (dpari_pt_is_adjoint(plan) && !plan->shared.memory) {
            dpari_pt_clear(list, mine, vector->size);
        }
    }
    if (aside) {
        dpari_elements_bits(to, plan->aside, (size_t)(list->count * vector->point));
    }
}

/* Packs the values of all vectors for peer i, except for vectors that it reads in place. Returns
 * where they begin. */
static unsigned char *dpari_pt_pack_peer(dpari_points *plan, int32_t i)
{
    const dpari_pt_list *list = dpari_pt_gives(plan, &plan->peer[i]);
    const int shared = plan->x.peer[i].world >= 0 && i != plan->x.self;
    const dpari_pt_vector *first = plan->vector;
    dpari_exchange_flow *flow = &plan->x.flow[i];
    unsigned char *const out = dpari_pt_packed(plan) + dpari_pt_out_at(plan, i), *to = out;
    int32_t k;
    if (!shared && plan->vectors == 1 && first->pieces == 1 && !dpari_pt_is_adjoint(plan)) {
        const dpari_pt_list dense = dpari_pt_dense(list->count); /* the usual message */
        dpari_pt_move(&dense, dpari_pt_dense_side(first, out, 0), list,
                      dpari_pt_side_of(first, 0, 0), first->size);
        return out;
    }
    flow->lends[DPARI_EXCHANGE_FORWARD] = 0;
    for (k = 0; k < plan->vectors && list->count > 0; k++) {
        const dpari_pt_vector *vector = &plan->vector[k];
        if (dpari_pt_lends(plan, i, vector)) {
            flow->lends[DPARI_EXCHANGE_FORWARD] = shared;
            plan->x.lends |= shared;
        } else {
            dpari_pt_pack_vector(plan, vector, list, to, shared);
        }
        to += plan->vectors == 1 ? 0 : dpari_pt_block(list->count, vector->point);
    }
    return out;
}

/* Writes the places of the vectors into this turn, where peers that read them in place find them.
 */
static void dpari_pt_write_places(const dpari_points *plan)
{
    dpari_pt_place *place = (dpari_pt_place *)(void *)dpari_pt_turn(plan);
    int32_t k;
    for (k = 0; k < plan->vectors; k++) {
        place[k].ref = plan->vector[k].ref;
        place[k].stride = plan->vector[k].stride;
        place[k].component = plan->vector[k].component;
        place[k].size = plan->vector[k].size;
    }
}

/* Packs the values for the peers that share memory. Values of shared ids that this rank has several
 * times are combined before that, also if there are no such peers. In an adjoint, ghosts of this
 * rank's own values are packed as well, so that they are combined in the order of ranks. */
static dpar_status dpari_pt_pack(void *of, int32_t s)
{
    dpari_points *plan = (dpari_points *)of;
    const double began = dpari_exchange_clock(&plan->x);
    int32_t i;
    (void)s;
    plan->x.lends = 0;
    if (plan->shared.memory) {
        dpari_pt_combine_shared(plan, DPARI_PT_FOLD);
    }
    for (i = 0; i < plan->x.peers; i++) {
        if (plan->x.peer[i].world >= 0 && (i != plan->x.self || dpari_pt_is_adjoint(plan))) {
            (void)dpari_pt_pack_peer(plan, i);
        }
    }
    if (plan->x.lends) {
        dpari_pt_write_places(plan);
    }
    dpari_exchange_time(&plan->x, DPARI_EXCHANGE_PACKING, began);
    return DPAR_OK;
}

/* Returns where the message from peer i arrives, which is in the ghosts if these are adjacent. With
 * `sends`, packs the values for peer i, unless they are adjacent, and returns where they are. */
static unsigned char *dpari_pt_message(void *of, int32_t s, int32_t i, int sends)
{
    dpari_points *plan = (dpari_points *)of;
    dpari_pt_peer *peer = &plan->peer[i];
    const dpari_pt_list *list = sends ? dpari_pt_gives(plan, peer) : dpari_pt_takes(plan, peer);
    const int whole = !dpari_pt_is_adjoint(plan) && dpari_pt_is_whole(plan, list);
    const dpari_pt_vector *vector = plan->vector;
    int64_t before;
    (void)s;
    if (sends) {
        return whole ? vector->own + list->first * vector->stride : dpari_pt_pack_peer(plan, i);
    }
    peer->in_place = whole;
    if (whole) {
        return vector->ghosts + list->first * vector->stride;
    }
    before = dpari_pt_is_adjoint(plan) ? peer->sends_before : peer->receives_before;
    peer->arrives = plan->arrivals + dpari_pt_begins(before, i, plan->point, plan->vectors);
    return peer->arrives;
}

/* ---- taking ---------------------------------------------------------------------------------- */

/* Reads a vector of a peer in place, by the peer's list. If the components are adjacent on only one
 * of the two ranks, they are copied in the smaller pieces of the other rank. */
static dpar_status dpari_pt_read(dpari_points *plan, const dpari_pt_peer *peer,
                                 const dpari_pt_vector *vector, const dpari_pt_place *place)
{
    const int64_t size = dpari_least(vector->size, place->size);
    unsigned char *at = (unsigned char *)dpari_at(plan->x.world, place->ref);
    dpari_pt_side theirs;
    int32_t piece;
    if (at == NULL) {
        return dpari_exchange_unmapped(&plan->x, place->ref);
    }
    for (piece = 0; piece < vector->point / size; piece++) {
        theirs.at = at + piece * place->component;
        theirs.stride = place->stride;
        dpari_pt_move(&peer->receive, dpari_pt_side_of(vector, 1, piece), &peer->source, theirs,
                      size);
    }
    return DPAR_OK;
}

/* Takes the packed values of a vector: copies them to ghosts, or combines them with own values. */
static void dpari_pt_unpack_vector(const dpari_points *plan, const dpari_pt_vector *vector,
                                   const dpari_pt_list *list, unsigned char *from)
{
    const dpari_pt_list dense = dpari_pt_dense(list->count);
    int32_t piece;
    for (piece = 0; piece < vector->pieces; piece++) {
        const dpari_pt_side mine = dpari_pt_side_of(vector, !dpari_pt_is_adjoint(plan), piece);
        const dpari_pt_side theirs = dpari_pt_dense_side(vector, from, piece);
        if (dpari_pt_is_adjoint(plan)) {
            dpari_pt_combine(list, mine, theirs, vector->numbers, vector->type, plan->x.op);
        } else {
            dpari_pt_move(list, mine, &dense, theirs, vector->size);
        }
    }
}

/* Takes the values of all vectors of a peer. Those of shared ids are left where they are until the
 * values of all peers have arrived. from: the packed values. place: if the peer lends
 * vectors, the places of its vectors; otherwise NULL. */
static dpar_status dpari_pt_unpack(dpari_points *plan, const dpari_pt_peer *peer,
                                   unsigned char *from, const dpari_pt_place *place)
{
    const dpari_pt_list *list = dpari_pt_takes(plan, peer);
    int32_t k;
    if (plan->shared.memory) {
        plan->shared.source[peer - plan->peer].at = from;
        return DPAR_OK;
    }
    for (k = 0; k < plan->vectors; k++) {
        const dpari_pt_vector *vector = &plan->vector[k];
        if (place && dpari_pt_is_direct(plan, place[k].ref, place[k].size, peer->source.count,
                                        peer->source.runs)) {
            const dpar_status status = dpari_pt_read(plan, peer, vector, &place[k]);
            if (status != DPAR_OK) {
                return status;
            }
        } else {
            dpari_pt_unpack_vector(plan, vector, list, from);
        }
        from += plan->vectors == 1 ? 0 : dpari_pt_block(list->count, vector->point);
    }
    return DPAR_OK;
}

/* Returns the turn of peer i, which is ready, or NULL if its memory cannot be mapped. */
static unsigned char *dpari_pt_their_turn(const dpari_points *plan, int32_t i)
{
    const dpari_exchange_line *line = plan->x.peer[i].line;
    dpari_pt_peer *peer = &plan->peer[i];
    if (peer->turns != line->place[DPARI_PT_TURNS]) {
        peer->mapped = (unsigned char *)dpari_at(plan->x.world, line->place[DPARI_PT_TURNS]);
        if (peer->mapped == NULL) {
            return NULL;
        }
        peer->turns = line->place[DPARI_PT_TURNS];
    }
    return peer->mapped + (plan->x.count & 1) * (int64_t)line->place[DPARI_PT_TURN_BYTES];
}

/* Takes the values of a peer that shares memory and is ready. */
static dpar_status dpari_pt_take_shared(dpari_points *plan, int32_t i)
{
    unsigned char *turn = dpari_pt_their_turn(plan, i);
    const dpari_exchange_peer *run = &plan->x.peer[i];
    if (turn == NULL) {
        return dpari_exchange_unmapped(&plan->x, run->line->place[DPARI_PT_TURNS]);
    }
    return dpari_pt_unpack(plan, &plan->peer[i],
                           turn + dpari_pt_places_bytes(plan->vectors) + dpari_pt_in_at(plan, i),
                           run->lends ? (const dpari_pt_place *)(const void *)turn : NULL);
}

/* Copies own values to the ghosts with the same ids. In an adjoint, dpari_pt_take takes these
 * ghosts, in the order of ranks. Shared ids that only this rank has are combined while the peers
 * pack. */
static void dpari_pt_take_own(void *of, int32_t s)
{
    dpari_points *plan = (dpari_points *)of;
    const dpari_pt_peer *peer;
    double began;
    int32_t k, piece;
    (void)s;
    if (!plan->shared.memory && (plan->x.self < 0 || dpari_pt_is_adjoint(plan))) {
        return;
    }
    began = dpari_exchange_clock(&plan->x);
    if (plan->shared.memory) {
        dpari_pt_combine_shared(plan, DPARI_PT_LOCAL);
        dpari_exchange_time(&plan->x, DPARI_EXCHANGE_COPYING, began);
        return;
    }
    peer = &plan->peer[plan->x.self];
    for (k = 0; k < plan->vectors; k++) {
        const dpari_pt_vector *vector = &plan->vector[k];
        for (piece = 0; piece < vector->pieces; piece++) {
            dpari_pt_move(&peer->receive, dpari_pt_side_of(vector, 1, piece), &peer->send,
                          dpari_pt_side_of(vector, 0, piece), vector->size);
        }
    }
    dpari_exchange_time(&plan->x, DPARI_EXCHANGE_COPYING, began);
}

/* Takes the values of peer i, which have arrived. */
static dpar_status dpari_pt_take(void *of, int32_t s, int32_t i)
{
    dpari_points *plan = (dpari_points *)of;
    dpari_pt_peer *peer = &plan->peer[i];
    const double began = dpari_exchange_clock(&plan->x);
    dpar_status status = DPAR_OK;
    (void)s;
    if (i == plan->x.self) {
        status =
            dpari_pt_unpack(plan, peer, dpari_pt_packed(plan) + dpari_pt_out_at(plan, i), NULL);
    } else if (plan->x.peer[i].world >= 0) {
        status = dpari_pt_take_shared(plan, i);
    } else if (!peer->in_place) {
        status = dpari_pt_unpack(plan, peer, peer->arrives, NULL);
    }
    dpari_exchange_time(&plan->x, DPARI_EXCHANGE_COPYING, began);
    return status;
}

/* Combines the values of shared ids, after those of all peers have arrived. */
static DPARI_COLD dpar_status dpari_pt_finish(void *of, int32_t s)
{
    dpari_points *plan = (dpari_points *)of;
    const double began = dpari_exchange_clock(&plan->x);
    (void)s;
    dpari_pt_combine_shared(plan, DPARI_PT_FINAL);
    dpari_exchange_time(&plan->x, DPARI_EXCHANGE_COPYING, began);
    return DPAR_OK;
}

DPARI_INTERNAL void dpari_pt_set_functions(dpari_points *plan)
{
    plan->x.plan = plan;
    plan->x.message = dpari_pt_message;
    plan->x.take = dpari_pt_take;
    plan->x.finish = plan->shared.memory ? dpari_pt_finish : NULL;
    if (plan->x.shared > 0 || plan->x.self >= 0 || plan->shared.memory) {
        plan->x.pack = dpari_pt_pack;
        plan->x.take_own = dpari_pt_take_own;
    }
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Begins an exchange. op: DPAR_COPY for a forward exchange. Exchanges of shared ids are adjoints
 * with any operation, which the hash compares. */
static dpar_status dpari_pt_begin(dpari_points *plan, const dpar_points_field *fields, int32_t n,
                                  int32_t op, int shared)
{
    uint64_t hash = 0;
    dpar_status status = dpari_exchange_may_begin(&plan->x);
    if (shared != (plan->shared.memory != NULL)) {
        status = dpari_comm_wrong(
            plan->head.comm, "dpar_points_combine is for plans of shared ids, and only for them");
    }
    if (status == DPAR_OK) {
        status = dpari_pt_set_vectors(plan, fields, n);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (plan->x.shared > 0) {
        hash = dpari_pt_hash_vectors(fields, n, op);
    }
    plan->shared.op = op;
    if (shared && op != DPAR_MAX && op != DPAR_MIN) {
        op = DPAR_SUM;
    }
    return dpari_exchange_begin(&plan->x, op, hash);
}

DPAR_API dpar_status dpar_points_begin_many(dpar_points *points, const dpar_points_field *fields,
                                            int32_t n)
{
    return points ? dpari_pt_begin(dpari_pt_of(points), fields, n, DPAR_COPY, 0) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_points_reduce_begin_many(dpar_points *points,
                                                   const dpar_points_field *fields, int32_t n,
                                                   int32_t op)
{
    int32_t i;
    if (!points) {
        return DPAR_E_ARG;
    }
    if (op != DPAR_SUM && op != DPAR_MAX && op != DPAR_MIN) {
        return dpari_comm_wrong(
            points->comm, "dpar_points_reduce_begin_many: op %d is not DPAR_SUM, _MAX or _MIN", op);
    }
    for (i = 0; i < n && fields; i++) {
        if (!dpari_type_can_reduce(fields[i].type)) {
            return dpari_comm_wrong(points->comm, "vector %d of type %s cannot be combined", i,
                                    dpar_type_name(fields[i].type));
        }
    }
    return dpari_pt_begin(dpari_pt_of(points), fields, n, op, 0);
}

DPAR_API dpar_status dpar_points_combine_begin_many(dpar_points *points,
                                                    const dpar_points_field *fields, int32_t n,
                                                    int32_t op)
{
    if (!points) {
        return DPAR_E_ARG;
    }
    if (op < 0 || op >= DPAR_OP_COUNT) {
        return dpari_comm_wrong(points->comm, "dpar_points_combine: op %d is none of 0 to %d", op,
                                DPAR_OP_COUNT - 1);
    }
    return dpari_pt_begin(dpari_pt_of(points), fields, n, op, 1);
}

DPAR_API dpar_status dpar_points_test(dpar_points *points)
{
    return points ? dpari_exchange_advance(&dpari_pt_of(points)->x, 0) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_points_end(dpar_points *points)
{
    return points ? dpari_exchange_advance(&dpari_pt_of(points)->x, 1) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_points_exchange_many(dpar_points *points, const dpar_points_field *fields,
                                               int32_t n)
{
    const dpar_status status = dpar_points_begin_many(points, fields, n);
    return status == DPAR_OK ? dpar_points_end(points) : status;
}

DPAR_API dpar_status dpar_points_reduce_many(dpar_points *points, const dpar_points_field *fields,
                                             int32_t count, int32_t op)
{
    const dpar_status status = dpar_points_reduce_begin_many(points, fields, count, op);
    return status == DPAR_OK ? dpar_points_end(points) : status;
}

DPAR_API dpar_status dpar_points_combine_many(dpar_points *points, const dpar_points_field *fields,
                                              int32_t count, int32_t op)
{
    const dpar_status status = dpar_points_combine_begin_many(points, fields, count, op);
    return status == DPAR_OK ? dpar_points_end(points) : status;
}

DPAR_API DPARI_COLD dpar_status dpar_points_free(dpar_points *points)
{
    dpari_points *plan = dpari_pt_of(points);
    dpar_comm *of;
    dpar_status status;
    int32_t refused;
    if (!points) {
        return DPAR_OK;
    }
    of = plan->x.world ? plan->x.node : plan->head.comm;
    status = dpari_exchange_close(&plan->x, "dpar_points_free: ", &refused);
    if (refused) {
        return status;
    }
    dpar_comm_release(of, plan->staging);
    dpar_comm_release(of, plan->lists);
    dpar_comm_release(plan->head.comm, plan->shared.memory);
    return dpari_object_end(status, plan->owned);
}

/* ==== points/points.c ==== */

/* Plans exchanges of points: checks the description, compares it between ranks, and divides memory.
 *
 * points_owner.c converts ids to the lists of local indices that a rank sends and receives, and
 * points_list.c stores them as runs. Peers that share memory then exchange references to their
 * words and lists. This file also converts ids, sorts rows, and writes reports. points_plan.h
 * explains how an exchange runs. */

/* ---- checks ---------------------------------------------------------------------------------- */

/* Returns the number of ids that the plan's table must hold: ghosts, and own ids if they are
 * listed. */
static int64_t dpari_pt_table_ids(const dpar_points_desc *desc)
{
    if (desc->lists || desc->shared) {
        return 0;
    }
    return (desc->own_id ? desc->own_count : 0) + desc->ghost_count;
}

/* Checks peer i of the lists. sent: the number of values that are sent to the peers before it. */
static dpar_status dpari_pt_check_list(const dpar_comm *comm, const dpar_points_desc *desc,
                                       int32_t i, int64_t sent, dpar_why *why)
{
    const dpar_points_lists *lists = desc->lists;
    const int64_t sendable = desc->mixed_count > 0 ? desc->mixed_count : desc->own_count;
    int64_t k;
    int32_t j;
    if (lists->peer[i] < 0 || lists->peer[i] >= comm->size || lists->send_count[i] < 0 ||
        lists->send_count[i] > INT32_MAX - sent || lists->receive_count[i] < 0 ||
        lists->receive_count[i] > INT32_MAX) {
        return dpari_wrong(why,
                           "peer[%d], rank %d of %d, its send_count %ld, or its receive_count, "
                           "is out of range",
                           i, lists->peer[i], comm->size, lists->send_count[i]);
    }
    for (j = 0; j < i; j++) {
        if (lists->peer[j] == lists->peer[i]) {
            return dpari_wrong(why, "rank %d is listed twice in peer, at %d and %d", lists->peer[i],
                               j, i);
        }
    }
    for (k = sent; k < sent + lists->send_count[i]; k++) {
        if (lists->send_index[k] < 0 || lists->send_index[k] >= sendable) {
            return dpari_wrong(why, "send_index[%ld], for rank %d, is %d, but %s is %ld", k,
                               lists->peer[i], lists->send_index[k],
                               desc->mixed_count > 0 ? "mixed_count" : "own_count", sendable);
        }
    }
    return DPAR_OK;
}

/* Checks receive_index, except whether a ghost is listed twice. received: its length. */
static dpar_status dpari_pt_check_receive_index(const dpar_points_desc *desc, int64_t received,
                                                dpar_why *why)
{
    const int32_t *index = desc->lists->receive_index;
    const int64_t all = desc->own_count + desc->ghost_count;
    int64_t k;
    if (desc->mixed_count > 0 && received > 0 && !index) {
        return dpari_wrong(why, "receive_index is NULL, but mixed_count is %ld", all);
    }
    for (k = 0; k < received && index; k++) {
        if (index[k] < desc->own_count || index[k] >= all) {
            return dpari_wrong(why, "receive_index[%ld] is %d, but ghosts are %ld to %ld%s", k,
                               index[k], desc->own_count, all - 1,
                               desc->mixed_count > 0 ? "" : "; mixed_count allows any other place");
        }
    }
    return DPAR_OK;
}

/* Checks the lists of this rank, except whether a ghost is listed twice, which
 * dpari_pt_check_places does. */
static dpar_status dpari_pt_check_lists(const dpar_comm *comm, const dpar_points_desc *desc,
                                        dpar_why *why)
{
    const dpar_points_lists *lists = desc->lists;
    const int partial = desc->mixed_count > 0 || desc->unsent_ghosts;
    const char *hint = "";
    int64_t sent = 0, received = 0;
    int32_t i;
    if (lists->peer_count > 0 && (!lists->peer || !lists->send_count || !lists->receive_count)) {
        return dpari_wrong(why, "peer_count is %d, and peer, send_count or receive_count is NULL",
                           lists->peer_count);
    }
    for (i = 0; i < lists->peer_count; i++) {
        dpar_status status;
        if (lists->send_count[i] > 0 && !lists->send_index) {
            return dpari_wrong(why, "send_index is NULL, but values are sent");
        }
        status = dpari_pt_check_list(comm, desc, i, sent, why);
        if (status != DPAR_OK) {
            return status;
        }
        sent += lists->send_count[i];
        received += lists->receive_count[i];
        if (received > desc->ghost_count) { /* before the sum overflows */
            break;
        }
    }
    if (received < desc->ghost_count && !partial) {
        hint = "; if no rank sends the other ghosts, set unsent_ghosts";
    }
    if (received > desc->ghost_count || *hint) {
        return dpari_wrong(
            why, "the receive_counts add up to %ld (send_counts: %ld), but %s is %ld%s", received,
            sent, desc->mixed_count > 0 ? "mixed_count" : "ghost_count", desc->ghost_count, hint);
    }
    return dpari_pt_check_receive_index(desc, received, why);
}

/* Checks that own_count is the number of elements that the layout assigns to this rank. */
static dpar_status dpari_pt_check_layout(const dpar_comm *comm, const dpar_points_desc *desc,
                                         dpar_why *why)
{
    const int64_t own = dpar_layout_is_primary(desc->layout, comm->rank)
                            ? dpar_layout_count(desc->layout, comm->rank)
                            : 0;
    if (!desc->own_id && own != desc->own_count) {
        return dpari_wrong(why, "the layout gives rank %d %ld values, but own_count is %ld",
                           comm->rank, own, desc->own_count);
    }
    return DPAR_OK;
}

/* Checks the description of a plan of shared ids. */
static dpar_status dpari_pt_check_shared(const dpar_points_desc *desc, dpar_why *why)
{
    int64_t i = 0;
    while (i < desc->own_count && desc->own_id && desc->own_id[i] >= -1) {
        i++;
    }
    if (i == desc->own_count && desc->shared == 1 && desc->ghost_count == 0 && !desc->lists &&
        !desc->layout && desc->mixed_count == 0) {
        return DPAR_OK;
    }
    return dpari_wrong(why,
                       "shared is %d (1), own_id[%ld] is NULL or not an id (-1 or more), "
                       "ghost_count is %ld (0), or lists, layout or mixed_count is set",
                       desc->shared, i, desc->ghost_count);
}

/* Checks the widened description of this rank, except for its counts and the contents of own_id and
 * ghost_id. */
static dpar_status dpari_pt_check(const dpar_comm *comm, const dpar_points_desc *desc,
                                  dpar_why *why)
{
    dpar_status status;
    if (desc->order < 0 || desc->order > DPAR_POINTS_ORDER_BY_OWNER || desc->method < 0 ||
        desc->method > DPAR_POINTS_DIRECT || desc->tag < 0 || desc->run_bytes < 0) {
        return dpari_wrong(
            why, "order %d (0 or 1), method %d (0 to 3), tag %d or run_bytes %ld is out of range",
            desc->order, desc->method, desc->tag, desc->run_bytes);
    }
    status = dpari_po_host(comm, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (desc->shared) {
        return dpari_pt_check_shared(desc, why);
    }
    if (desc->lists) {
        return dpari_pt_check_lists(comm, desc, why);
    }
    if (desc->ghost_count > 0 && !desc->ghost_id) {
        return dpari_wrong(why, "ghost_id is NULL, but ghost_count is %ld", desc->ghost_count);
    }
    return desc->layout ? dpari_pt_check_layout(comm, desc, why) : DPAR_OK;
}

/* Checks that receive_index lists no ghost twice, and that no value of a mixed array is both sent
 * and received. Notes in the plan which ghosts are received. */
static dpar_status dpari_pt_check_places(dpari_points *plan, const dpar_points_desc *desc,
                                         dpar_why *why)
{
    const dpar_points_lists *lists = desc->lists;
    const int64_t received = dpari_pt_total(lists->receive_count, lists->peer_count);
    const int64_t sent = dpari_pt_total(lists->send_count, lists->peer_count);
    int64_t k;
    for (k = 0; k < received; k++) {
        const int64_t g = lists->receive_index ? lists->receive_index[k] - desc->own_count : k;
        if (dpari_pt_set_received(plan, g)) {
            return dpari_wrong(why, "receive_index lists %ld twice", g + desc->own_count);
        }
    }
    for (k = 0; k < sent && desc->mixed_count > 0; k++) {
        if (dpari_pt_is_received(plan, lists->send_index[k])) {
            return dpari_wrong(why,
                               "send_index[%ld] is %d, which receive_index lists too: a value that "
                               "is sent must not be received in the same exchange",
                               k, lists->send_index[k]);
        }
    }
    return DPAR_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Divides the memory of a plan into the plan, its table and, if it is needed, a bit for each ghost.
 * If memory is NULL, only counts the bytes and returns NULL. */
static dpari_points *dpari_pt_layout(const dpar_points_desc *desc, void *memory, int64_t *bytes)
{
    dpari_room room;
    dpari_points *plan;
    dpari_pt_entry *entry;
    uint64_t *received;
    const int64_t bits = desc->lists || desc->unsent_ghosts ? (desc->ghost_count + 63) / 64 : 0;
    room.at = (unsigned char *)memory;
    room.used = 0;
    plan = (dpari_points *)dpari_room_take(&room, 1, sizeof *plan);
    entry = (dpari_pt_entry *)dpari_room_take(&room, dpari_pt_table_room(dpari_pt_table_ids(desc)),
                                              sizeof *entry);
    received = (uint64_t *)dpari_room_take(&room, bits, sizeof *received);
    if (plan) {
        plan->received = bits > 0 ? received : NULL;
        plan->table.entry = entry;
        plan->table.mask = -1;
    }
    *bytes = room.used;
    return plan;
}

/* ---- agreeing -------------------------------------------------------------------------------- */

/* Indices of the numbers by which ranks compare what they pass: 1 if some rank with own values
 * passes own_id, 1 if some such rank does not; the same for ranks with ghosts and owner; and the
 * number of own values of all ranks. */
enum {
    DPARI_PT_OWN_ID,
    DPARI_PT_NO_OWN_ID,
    DPARI_PT_OWNER,
    DPARI_PT_NO_OWNER,
    DPARI_PT_GLOBAL_COUNT,
    DPARI_PT_ALL
};
typedef struct dpari_pt_given {
    const dpar_points_desc *desc;
    int64_t own_count, ghost_count; /* as the public struct has them */
    int64_t all[DPARI_PT_ALL];
} dpari_pt_given;

/* Lists the fields of a description that must be equal on all ranks. */
static DPARI_COLD void dpari_pt_state(dpari_facts *facts, const void *given)
{
    const dpar_points_desc *desc = ((const dpari_pt_given *)given)->desc;
    facts->of = NULL;
    dpari_fact(facts, "lists (0: ids)", 0, desc->lists != NULL);
    dpari_fact(facts, "shared", 0, desc->shared);
    dpari_fact(facts, "order", 0, desc->order);
    dpari_fact(facts, "method", 0, desc->method);
    dpari_fact(facts, "run_bytes", 0, desc->run_bytes);
    dpari_fact(facts, "tag", 0, desc->tag);
    dpari_fact(facts, "layout (0: none)", 0, desc->layout != NULL);
    if (desc->layout) {
        dpari_fact_hash(facts, "the layout", 0, dpari_hash_layout(0, desc->layout));
    }
}

static dpar_status dpari_pt_not_alike(const char *what, dpar_why *why)
{
    return dpari_say(DPAR_E_MISMATCH, why, "points: %s is NULL on some ranks, not on others", what);
}

/* Checks that all ranks pass the same optional arrays. Ranks without own values may leave out
 * own_id, and ranks without ghosts may leave out owner. Collective. */
static dpar_status dpari_pt_kinds(dpar_comm *comm, dpari_pt_given *given, dpar_why *why)
{
    const dpar_points_desc *desc = given->desc;
    int64_t *all = given->all;
    dpar_status status;
    all[DPARI_PT_OWN_ID] = desc->own_count > 0 && desc->own_id;
    all[DPARI_PT_NO_OWN_ID] = desc->own_count > 0 && !desc->own_id;
    all[DPARI_PT_OWNER] = desc->ghost_count > 0 && desc->owner;
    all[DPARI_PT_NO_OWNER] = desc->ghost_count > 0 && !desc->owner;
    status = dpar_all_reduce(comm, all, all, DPARI_PT_GLOBAL_COUNT, DPAR_I64, DPAR_MAX, NULL);
    if (status == DPAR_OK) {
        status = dpar_all_reduce(comm, &given->own_count, &all[DPARI_PT_GLOBAL_COUNT], 1, DPAR_I64,
                                 DPAR_SUM, NULL);
    }
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    if (desc->lists) {
        return DPAR_OK;
    }
    if (all[DPARI_PT_OWN_ID] && all[DPARI_PT_NO_OWN_ID]) {
        return dpari_pt_not_alike("own_id", why);
    }
    if (all[DPARI_PT_OWNER] && all[DPARI_PT_NO_OWNER]) {
        return dpari_pt_not_alike("owner", why);
    }
    return DPAR_OK;
}

/* ---- planning -------------------------------------------------------------------------------- */

/* Counts the peers. Returns how many int32_t numbers their lists need. */
static int64_t dpari_pt_count_peers(const dpari_points *plan, const dpari_pt_both *both,
                                    int32_t *peers)
{
    int64_t numbers = 0, s = 0, r = 0;
    dpari_pt_list list;
    int32_t i;
    *peers = 0;
    for (i = 0; i < plan->head.comm->size; i++) {
        numbers += dpari_pt_measure(&list, both->send_at + s, both->sends[i]);
        numbers += dpari_pt_measure(&list, both->receive_at + r, both->receives[i]);
        s += both->sends[i];
        r += both->receives[i];
        *peers += both->sends[i] + both->receives[i] > 0;
    }
    return numbers;
}

/* Allocates the registered memory of a plan. The first pass counts bytes, the second sets pointers.
 */
static dpar_status dpari_pt_alloc(dpari_points *plan, int32_t peers, int64_t numbers, dpar_why *why)
{
    dpar_comm *of = plan->x.world ? plan->x.node : plan->head.comm;
    void *memory = NULL;
    dpari_room room;
    dpar_status status;
    int32_t pass;
    room.at = NULL;
    for (pass = 0; pass < 2; pass++) {
        room.used = 0;
        plan->x.line = (dpari_exchange_line *)dpari_room_take(&room, 1, sizeof *plan->x.line);
        dpari_exchange_room(&plan->x, &room, peers, 1, plan->x.world ? plan->x.node->size : 0);
        plan->peer = (dpari_pt_peer *)dpari_room_take(&room, peers, sizeof *plan->peer);
        plan->record = (dpari_pt_record *)dpari_room_take(&room, 2 * peers, sizeof *plan->record);
        plan->numbers = (int32_t *)dpari_room_take(&room, numbers, sizeof *plan->numbers);
        if (pass == 0) {
            status = dpar_comm_alloc(of, room.used, &memory);
            if (status != DPAR_OK) {
                return dpari_repeat(status, why, of->why.text);
            }
            plan->lists = room.at = (unsigned char *)memory;
        }
    }
    plan->head.peer_count = peers;
    plan->x.peers = peers;
    plan->x.steps = 1;
    plan->x.step[0].modes = 1 << DPARI_EXCHANGE_FORWARD | 1 << DPARI_EXCHANGE_ADJOINT;
    return DPAR_OK;
}

/* Stores a list at *at, and advances *at past it. */
static void dpari_pt_set_list(dpari_pt_list *list, const int32_t *index, int64_t n, int32_t **at)
{
    const int64_t numbers = dpari_pt_measure(list, index, n);
    dpari_pt_fill(list, index, *at);
    *at += numbers;
}

/* Sets the peers and their lists, in ascending order of ranks. */
static void dpari_pt_set_peers(dpari_points *plan, const dpari_pt_both *both)
{
    int32_t i, n = 0, *at = plan->numbers;
    for (i = 0; i < plan->head.comm->size; i++) {
        dpari_pt_peer *peer = &plan->peer[n];
        dpari_exchange_flow *flow = &plan->x.flow[n];
        const int self = i == plan->head.comm->rank;
        if (both->sends[i] + both->receives[i] == 0) {
            continue;
        }
        plan->x.peer[n].rank = i;
        plan->x.peer[n].world = self ? 0 : -1; /* a rank sends no messages to itself */
        flow->takes[DPARI_EXCHANGE_FORWARD] = both->receives[i] > 0 && !self;
        flow->takes[DPARI_EXCHANGE_ADJOINT] = both->sends[i] > 0;
        peer->sends_before = plan->sends;
        peer->receives_before = plan->receives;
        dpari_pt_set_list(&peer->send, both->send_at + plan->sends, both->sends[i], &at);
        dpari_pt_set_list(&peer->receive, both->receive_at + plan->receives, both->receives[i],
                          &at);
        if (self) {
            plan->x.self = n;
        }
        plan->sends += both->sends[i];
        plan->receives += both->receives[i];
        n++;
    }
}

/* Describes this rank's memory and list to peer i. */
static void dpari_pt_write_record(const dpari_points *plan, int32_t i, dpari_pt_record *record)
{
    const dpari_pt_peer *peer = &plan->peer[i];
    record->line = plan->x.peer[i].world >= 0 && plan->x.world
                       ? (int64_t)dpari_ref(plan->x.world, plan->x.line, 1)
                       : 0;
    record->number = i;
    record->sends = peer->send.count;
    record->receives = peer->receive.count;
    record->sends_before = peer->sends_before;
    record->receives_before = peer->receives_before;
    record->runs = peer->send.runs;
    record->kind = peer->send.kind;
    record->first = peer->send.first;
    record->at =
        record->line && peer->send.at ? (int64_t)dpari_ref(plan->x.world, peer->send.at, 1) : 0;
}

/* Reads peer i's description of its memory, and counts the peers that are reached by messages and
 * by memory. */
static dpar_status dpari_pt_read_record(dpari_points *plan, int32_t i)
{
    dpari_pt_peer *peer = &plan->peer[i];
    dpari_exchange_peer *run = &plan->x.peer[i];
    const dpari_pt_record *record = &peer->theirs;
    if (record->line == 0 || run->world < 0) { /* one of the two cannot reach the other's memory */
        run->world = -1;
        plan->messages_to++;
        return DPAR_OK;
    }
    plan->x.shared++;
    plan->x.oneway |= peer->send.count == 0 || peer->receive.count == 0;
    plan->x.flow[i].packed = 1;
    run->line = (dpari_exchange_line *)dpari_at(plan->x.world, (uint64_t)record->line);
    if (run->line == NULL) {
        return dpari_exchange_unmapped(&plan->x, (uint64_t)record->line);
    }
    peer->source.count = record->sends;
    peer->source.runs = record->runs;
    peer->source.kind = (int32_t)record->kind;
    peer->source.first = (int32_t)record->first;
    peer->source.step = 0;
    peer->source.at = NULL;
    if (record->at) {
        peer->source.at = (const int32_t *)dpari_at(plan->x.world, (uint64_t)record->at);
        if (peer->source.at == NULL) {
            return dpari_exchange_unmapped(&plan->x, (uint64_t)record->at);
        }
    }
    return DPAR_OK;
}

/* Exchanges records with the peers. */
static dpar_status dpari_pt_swap(dpari_points *plan, dpar_why *why)
{
    dpari_pt_record *mine = plan->record, *theirs = plan->record + plan->x.peers;
    dpar_status status;
    int32_t i;
    for (i = 0; i < plan->x.peers; i++) {
        dpari_pt_write_record(plan, i, &mine[i]);
    }
    status = dpari_exchange_records(&plan->x, (const int64_t *)(const void *)mine,
                                    (int64_t *)(void *)theirs, DPARI_PT_WORDS);
    for (i = 0; i < plan->x.peers && status == DPAR_OK; i++) {
        if (i != plan->x.self) {
            plan->peer[i].theirs = theirs[i];
            status = dpari_pt_read_record(plan, i);
        }
    }
    plan->x.step[0].meets = plan->x.shared > 0;
    dpari_pt_set_functions(plan);
    return dpari_po_explain(plan->head.comm, status, why);
}

/* Makes a plan from the lists of what this rank sends and receives. Collective. */
static dpar_status dpari_pt_plan(dpari_points *plan, const dpari_pt_both *both, dpar_why *why)
{
    int32_t peers;
    const int64_t numbers = dpari_pt_count_peers(plan, both, &peers);
    dpar_status status;
    if (both->sent > INT32_MAX) {
        status = dpari_say(DPAR_E_RANGE, why, "points: %ld values to send, but at most %d allowed",
                           both->sent, (int32_t)INT32_MAX);
    } else {
        status = dpari_pt_alloc(plan, peers, numbers, why);
    }
    status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
    if (status == DPAR_OK) {
        dpari_pt_set_peers(plan, both);
        status = dpari_po_explain(plan->head.comm, dpari_exchange_find_node(&plan->x), why);
        if (status == DPAR_OK) {
            status = dpari_pt_swap(plan, why);
        }
        status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
    }
    if (status != DPAR_OK && plan->lists) {
        dpar_comm_release(plan->x.world ? plan->x.node : plan->head.comm, plan->lists);
    }
    return status;
}

/* Sets the fields of a plan that do not depend on its lists. */
static void dpari_pt_set(dpari_points *plan, dpar_comm *comm, const dpari_pt_given *given)
{
    const dpar_points_desc *desc = given->desc;
    plan->head.comm = comm;
    plan->head.own_count = given->own_count;
    plan->head.ghost_count = given->ghost_count;
    plan->mixed = desc->mixed_count > 0;
    plan->first_ghost = desc->own_count;
    plan->head.global_count = given->all[DPARI_PT_GLOBAL_COUNT];
    plan->x.comm = comm;
    plan->x.name = "points";
    plan->x.end = "dpar_points_end";
    plan->x.item = "vector";
    plan->x.node = comm->node ? comm->node : comm;
    plan->x.world = desc->method == DPAR_POINTS_MESSAGES ? NULL : dpari_world_of(plan->x.node);
    plan->method = desc->method;
    plan->x.tag = desc->tag;
    plan->x.timers = desc->timers;
    plan->listed = desc->lists != NULL || desc->shared;
    plan->hashed = !plan->listed && given->all[DPARI_PT_OWN_ID] != 0;
    plan->given_owner = given->all[DPARI_PT_OWNER] != 0;
    plan->run_bytes = desc->run_bytes > 0 ? desc->run_bytes : (int64_t)DPARI_PT_RUN_BYTES;
    plan->x.self = -1;
    if (desc->layout) {
        plan->layout = *desc->layout;
        plan->has_layout = 1;
    }
}

/* Finds the lists of what this rank sends and receives, and makes the plan from them. Collective.
 */
static dpar_status dpari_pt_connect(dpari_points *plan, const dpar_points_desc *desc, dpar_why *why)
{
    dpari_pt_both both;
    dpar_status status;
    dpari_zero(&both, sizeof both);
    if (desc->lists) {
        status = dpari_pt_check_places(plan, desc, why);
        status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
        if (status == DPAR_OK) {
            status = dpari_pt_by_lists(plan, desc, &both, why);
        }
    } else if (desc->shared) {
        status = dpari_pt_by_shared(plan, desc, &both, why);
    } else {
        status = dpari_pt_by_ids(plan, desc, &both, why);
    }
    if (status == DPAR_OK) {
        status = dpari_pt_plan(plan, &both, why);
    }
    if (status != DPAR_OK) {
        dpar_comm_release(plan->head.comm, plan->shared.memory);
    }
    dpari_po_free(&both.pages);
    return status;
}

/* Checks and widens what this rank passes, and provides the memory of the plan. Local. */
static dpar_status dpari_pt_prepare(dpar_comm *comm, const dpar_points_desc *desc,
                                    dpari_pt_wide *wide, dpari_pt_given *given, int64_t *need,
                                    void **memory, dpar_why *why)
{
    dpar_status status;
    if (!desc) {
        return dpari_wrong(why, "dpar_points_make: desc or points is NULL");
    }
    status = dpari_pt_widen(wide, comm, desc, why);
    if (status == DPAR_OK) {
        status = dpari_pt_check(comm, &wide->desc, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    given->own_count = wide->desc.own_count;
    given->ghost_count = wide->desc.ghost_count;
    if (desc->mixed_count > 0) {
        given->ghost_count = dpari_pt_total(wide->lists.receive_count, wide->lists.peer_count);
        given->own_count = desc->mixed_count - given->ghost_count;
    }
    (void)dpari_pt_layout(&wide->desc, NULL, need);
    return dpari_object_memory(comm, desc->memory, desc->bytes, *need, "points", memory, why);
}

/* Makes a plan as dpar_points_make does. wide: zeroed memory for a copy of desc. */
static DPARI_COLD dpar_status dpari_pt_make(dpar_comm *comm, const dpar_points_desc *desc,
                                            dpari_pt_wide *wide, dpar_points **points,
                                            dpar_why *why)
{
    dpari_pt_given given;
    dpari_points *plan;
    void *memory = NULL;
    int64_t need = 0;
    dpar_status status;
    dpari_zero(&given, sizeof given);
    given.desc = &wide->desc;
    status = dpari_pt_prepare(comm, points ? desc : NULL, wide, &given, &need, &memory, why);
    status = dpari_agree_on(comm, status, "points", dpari_pt_state, &given, why);
    if (status == DPAR_OK) {
        status = dpari_pt_kinds(comm, &given, why);
    }
    if (status == DPAR_OK) {
        dpari_zero(memory, (size_t)need);
        plan = dpari_pt_layout(given.desc, memory, &need);
        plan->owned = desc->memory == NULL ? memory : NULL;
        dpari_pt_set(plan, comm, &given);
        status = dpari_pt_connect(plan, given.desc, why);
    }
    if (status != DPAR_OK) {
        return dpari_object_failed(status, desc != NULL ? desc->memory : NULL, memory, need, why);
    }
    *points = &plan->head;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_points_make(dpar_comm *comm, const dpar_points_desc *desc,
                                                 dpar_points **points, dpar_why *why)
{
    dpari_pt_wide wide;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_points_make: comm is NULL");
    }
    dpari_zero(&wide, sizeof wide);
    status = dpari_pt_make(comm, desc, &wide, points, dpari_why_of(comm, why));
    dpari_po_free(&wide.pages);
    return status;
}

/* ---- numbering ------------------------------------------------------------------------------- */

/* Converts ids, of which one of the two arrays is NULL. */
static dpar_status dpari_pt_convert(const dpar_points *points, const int64_t *ids,
                                    const int32_t *ids32, int64_t count, int32_t *index)
{
    const dpari_points *plan = dpari_pt_of(points);
    int64_t i, lost = -1, unknown = 0; /* where the first unknown id is, and this id */
    if (!points) {
        return DPAR_E_ARG;
    }
    if (plan->listed || (count > 0 && ((!ids && !ids32) || !index))) {
        return dpari_comm_wrong(
            points->comm,
            "dpar_points_to_local: the plan is by lists or shared ids, or ids or index is NULL");
    }
    for (i = 0; i < count; i++) {
        const int64_t id = ids ? ids[i] : ids32[i];
        index[i] = (int32_t)dpari_pt_index(plan, id);
        if (index[i] < 0 && lost < 0) {
            lost = i;
            unknown = id;
        }
    }
    if (lost >= 0) {
        return dpari_comm_wrong(points->comm, "ids[%ld] is %ld: rank %d neither owns nor reads it",
                                lost, unknown, points->comm->rank);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_points_to_local(const dpar_points *points, const int64_t *ids,
                                          int64_t count, int32_t *index)
{
    return dpari_pt_convert(points, ids, NULL, count, index);
}

DPAR_API dpar_status dpar_points_to_local32(const dpar_points *points, const int32_t *ids,
                                            int64_t count, int32_t *index)
{
    return dpari_pt_convert(points, NULL, ids, count, index);
}

/* The rows of a sparse matrix. One of begin and begin32 is NULL. */
typedef struct dpari_pt_rows {
    const int64_t *begin;
    const int32_t *begin32, *column;
} dpari_pt_rows;

/* Returns the index of the first entry of row i. */
static int64_t dpari_pt_row_begin(const dpari_pt_rows *of, int64_t i)
{
    return of->begin ? of->begin[i] : of->begin32[i];
}

/* Returns 1 if row i reads a ghost that exchanges set, otherwise 0; -1 if a column is not a local
 * index, or if the row ends before it begins. */
static int dpari_pt_reads_ghost(const dpar_points *points, const dpari_pt_rows *of, int64_t i)
{
    const int64_t end = dpari_pt_row_begin(of, i + 1);
    int64_t k = dpari_pt_row_begin(of, i);
    int reads = 0;
    if (k > end || (k < end && !of->column)) {
        return -1;
    }
    for (; k < end; k++) {
        if (of->column[k] < 0 || of->column[k] >= points->own_count + points->ghost_count) {
            return -1;
        }
        reads |= dpari_pt_is_received(dpari_pt_of(points), of->column[k]);
    }
    return reads;
}

/* Sorts rows as dpar_points_interior_rows does. */
static dpar_status dpari_pt_sort_rows(const dpar_points *points, int64_t rows,
                                      const dpari_pt_rows *of, int32_t *row, int64_t *interior)
{
    int64_t i, n = 0, boundary;
    if (!points) {
        return DPAR_E_ARG;
    }
    if (rows < 0 || rows > INT32_MAX || !interior ||
        (rows > 0 && ((!of->begin && !of->begin32) || !row))) {
        return dpari_comm_wrong(
            points->comm, "dpar_points_interior_rows: rows is %ld, or a pointer is NULL", rows);
    }
    for (i = 0; i < rows; i++) {
        const int reads = dpari_pt_reads_ghost(points, of, i);
        if (reads < 0) {
            return dpari_comm_wrong(points->comm,
                                    "row %ld (columns %ld to %ld) has a column that is not a local "
                                    "index below %ld, or begin descends",
                                    i, dpari_pt_row_begin(of, i), dpari_pt_row_begin(of, i + 1) - 1,
                                    points->own_count + points->ghost_count);
        }
        n += !reads;
    }
    *interior = n;
    boundary = n;
    n = 0;
    for (i = 0; i < rows; i++) {
        if (dpari_pt_reads_ghost(points, of, i)) {
            row[boundary++] = (int32_t)i;
        } else {
            row[n++] = (int32_t)i;
        }
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_points_interior_rows(const dpar_points *points, int64_t rows,
                                               const int64_t *begin, const int32_t *column,
                                               int32_t *row, int64_t *interior)
{
    const dpari_pt_rows of = {begin, NULL, column};
    return dpari_pt_sort_rows(points, rows, &of, row, interior);
}

DPAR_API dpar_status dpar_points_interior_rows32(const dpar_points *points, int64_t rows,
                                                 const int32_t *begin, const int32_t *column,
                                                 int32_t *row, int64_t *interior)
{
    const dpari_pt_rows of = {NULL, begin, column};
    return dpari_pt_sort_rows(points, rows, &of, row, interior);
}

/* ---- reports --------------------------------------------------------------------------------- */

DPAR_API int dpar_points_peer(const dpar_points *points, int32_t k, dpar_points_traffic *traffic)
{
    const dpari_points *plan = dpari_pt_of(points);
    if (!points || !traffic || k < 0 || k >= points->peer_count) {
        return 0;
    }
    traffic->rank = plan->x.peer[k].rank;
    traffic->method = plan->x.peer[k].world < 0 ? DPAR_POINTS_MESSAGES : DPAR_POINTS_PACKED;
    traffic->send_count = plan->peer[k].send.count;
    traffic->receive_count = plan->peer[k].receive.count;
    traffic->send_runs = plan->peer[k].send.runs;
    traffic->receive_runs = plan->peer[k].receive.runs;
    return 1;
}

DPAR_API DPARI_COLD void dpar_points_report(const dpar_points *points, dpar_text *out)
{
    const dpari_points *plan = dpari_pt_of(points);
    dpar_points_traffic traffic;
    int32_t k;
    if (!points) {
        return;
    }
    dpari_text_print(out, "rank %d: %ld own values, %ld ghosts, %ld exchanges\n",
                     points->comm->rank, points->own_count, points->ghost_count, plan->x.count);
    dpar_text_put(out, "  rank   method     sends      runs  receives      runs\n");
    for (k = 0; dpar_points_peer(points, k, &traffic); k++) {
        const char *method = traffic.method == DPAR_POINTS_MESSAGES ? "messages" : "memory";
        dpari_text_print(out, "%6d %8s %9ld %9ld %9ld %9ld\n", traffic.rank,
                         k == plan->x.self ? "itself" : method, traffic.send_count,
                         traffic.send_runs, traffic.receive_count, traffic.receive_runs);
    }
    if (plan->x.timers && plan->x.count > 0) {
        dpar_text_put(out, "each exchange: ");
        dpari_exchange_put_times(&plan->x, out);
        dpar_text_put(out, "\n");
    }
}

enum { DPARI_PT_DRAWN = 64 }; /* the most ranks of a drawn matrix, so that rows fit on a screen */

DPAR_API DPARI_COLD dpar_status dpar_points_draw(const dpar_points *points, dpar_text *out)
{
    const dpari_points *plan = dpari_pt_of(points);
    int64_t row[DPARI_PT_DRAWN] = {0}, *all;
    void *memory = NULL;
    dpar_comm *comm;
    dpar_status status;
    int32_t i, k;
    if (!points) {
        return DPAR_E_ARG;
    }
    comm = points->comm;
    if (comm->size > DPARI_PT_DRAWN) {
        return dpari_comm_say(comm, DPAR_E_RANGE,
                              "dpar_points_draw: %d ranks, but at most %d allowed", comm->size,
                              (int32_t)DPARI_PT_DRAWN);
    }
    for (i = 0; i < points->peer_count; i++) {
        row[plan->x.peer[i].rank] = plan->peer[i].send.count;
    }
    status = dpar_comm_alloc(comm, (int64_t)sizeof *row * comm->size * comm->size, &memory);
    status = dpari_agree_on(comm, status, "points", NULL, NULL, NULL);
    all = (int64_t *)memory;
    if (status == DPAR_OK) {
        status = dpar_all_gather(comm, row, all, comm->size, DPAR_I64, NULL);
    }
    for (i = -1; i < comm->size && status == DPAR_OK && out; i++) { /* -1: the heading */
        if (i < 0) {
            dpar_text_put(out, "values from\\to");
        } else {
            dpari_text_print(out, "%14d", i);
        }
        for (k = 0; k < comm->size; k++) {
            if (i < 0) {
                dpari_text_print(out, " %9d", k);
            } else if (all[i * comm->size + k] == 0) {
                dpar_text_put(out, "         .");
            } else {
                dpari_text_print(out, " %9ld", all[i * comm->size + k]);
            }
        }
        dpar_text_put(out, "\n");
    }
    dpar_comm_release(comm, memory);
    return status;
}

/* ==== points/points_check.c ==== */

/* Checks the ghosts of vectors: sets them to NaN, finds those that are still NaN, or compares them
 * with their owners' values. It implements dpar_points_check.
 *
 * To compare, it exchanges into a copy of the ghosts and looks for the first difference. */

/* Returns the address of an element of a vector. */
static unsigned char *dpari_pt_number(const dpar_points *points, const dpar_points_field *field,
                                      int64_t index, int32_t component)
{
    const int64_t bytes = dpar_type_bytes(field->type);
    const int64_t stride = dpari_pt_stride(field);
    const int64_t apart = field->component_stride > 0 ? field->component_stride : 1;
    const int64_t within = component * apart;
    const dpari_points *plan = dpari_pt_of(points);
    if (!field->ghosts || index < plan->first_ghost ||
        (plan->mixed && !dpari_pt_is_received(plan, index))) {
        return (unsigned char *)field->data + bytes * (index * stride + within);
    }
    return (unsigned char *)field->ghosts + bytes * ((index - plan->first_ghost) * stride + within);
}

/* True if all bits of a number are 1, which is a NaN in every type of floats. */
static int dpari_pt_is_poison(const unsigned char *at, int64_t bytes)
{
    int64_t i;
    for (i = 0; i < bytes && at[i] == 0xff; i++) {
    }
    return i == bytes;
}

/* Returns the first index of a vector that has a poisoned number, or -1 if there is none. With
 * write 1, poisons all numbers instead.
 *
 * received: 1 selects the ghosts that exchanges set, 0 all other values. */
static int64_t dpari_pt_poison(const dpar_points *points, const dpar_points_field *field,
                               int received, int write)
{
    const int64_t bytes = dpar_type_bytes(field->type);
    int64_t i, b;
    int32_t k;
    for (i = 0; i < points->own_count + points->ghost_count; i++) {
        if (dpari_pt_is_received(dpari_pt_of(points), i) != received) {
            continue;
        }
        for (k = 0; k < dpari_pt_components(field); k++) {
            unsigned char *at = dpari_pt_number(points, field, i, k);
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

/* Finds a poisoned ghost. Vectors with poisoned own values are left out, because their ghosts may
 * have received such a value. */
static dpar_status dpari_pt_unfilled(const dpar_points *points, const dpar_points_field *fields,
                                     int32_t n, dpar_why *why)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        const int64_t at = dpari_pt_poison(points, &fields[i], 1, 0);
        if (at >= 0 && dpari_pt_poison(points, &fields[i], 0, 0) < 0) {
            return dpari_wrong(why,
                               "vector %d: ghost %ld, local index %ld of rank %d, is not filled", i,
                               at - dpari_pt_of(points)->first_ghost, at, points->comm->rank);
        }
    }
    return DPAR_OK;
}

/* Returns the first ghost of a vector that differs from the value that was received, or -1. */
static int64_t dpari_pt_stale(const dpar_points *points, const dpar_points_field *field,
                              const dpar_points_field *copy)
{
    const dpari_points *plan = dpari_pt_of(points);
    const int64_t bytes = dpar_type_bytes(field->type);
    int64_t i, b;
    int32_t k;
    for (i = 0; i < points->own_count + points->ghost_count; i++) {
        for (k = 0; k < dpari_pt_components(field) && dpari_pt_is_received(plan, i); k++) {
            const unsigned char *here = dpari_pt_number(points, field, i, k);
            const unsigned char *came = dpari_pt_number(points, copy, i, k);
            for (b = 0; b < bytes; b++) {
                if (here[b] != came[b]) {
                    return i;
                }
            }
        }
    }
    return -1;
}

/* Exchanges vector i into a copy of its ghosts, which has the same strides, and compares the ghosts
 * with the copy. Own values are not copied. Collective. */
static dpar_status dpari_pt_compare(dpar_points *points, const dpar_points_field *field, int32_t i,
                                    dpar_why *why)
{
    dpar_points_field copy = *field;
    const int64_t n = dpari_pt_components(field);
    const int64_t stride = dpari_pt_stride(field);
    const int64_t apart = field->component_stride > 0 ? field->component_stride : 1;
    const int64_t first = dpari_pt_of(points)->first_ghost;
    const int64_t ghosts = dpari_most(points->own_count + points->ghost_count - first, 1);
    const int64_t numbers = (ghosts - 1) * stride + (n - 1) * apart + 1;
    int64_t at = -1;
    dpar_status status =
        dpar_comm_alloc(points->comm, numbers * dpar_type_bytes(field->type), &copy.ghosts);
    status = dpari_agree(points->comm, status, NULL);
    if (status == DPAR_OK) {
        status = dpar_points_exchange_many(points, &copy, 1);
    }
    if (status == DPAR_OK) {
        at = dpari_pt_stale(points, field, &copy);
    } else {
        status = dpari_repeat(status, why, points->comm->why.text);
    }
    if (at >= 0) {
        status =
            dpari_say(DPAR_E_MISMATCH, why,
                      "vector %d: ghost %ld, local index %ld of rank %d, is not its owner's value",
                      i, at - first, at, points->comm->rank);
    }
    dpar_comm_release(points->comm, copy.ghosts);
    return dpari_agree(points->comm, status, why);
}

/* Checks the descriptions of vectors as an exchange does. */
static dpar_status dpari_pt_check_named(const dpar_points *points, const dpar_points_field *fields,
                                        int32_t n, dpar_why *why)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        if (dpar_type_bytes(fields[i].type) == 0 || fields[i].components < 0 ||
            fields[i].stride < 0 || fields[i].component_stride < 0 ||
            (!fields[i].data && (points->own_count > 0 || !fields[i].ghosts) &&
             points->own_count + points->ghost_count > 0)) {
            return dpari_wrong(
                why, "vector %d: components %d, type %s or stride is wrong, or data is NULL", i,
                fields[i].components, dpar_type_name(fields[i].type));
        }
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_points_check(dpar_points *points,
                                                  const dpar_points_field *fields, int32_t n,
                                                  int32_t what, dpar_why *why)
{
    dpar_status status;
    int32_t i;
    if (!points || n < 0 || (n > 0 && !fields) || what < DPAR_POINTS_POISON ||
        what > DPAR_POINTS_STALE) {
        return dpari_wrong(
            why,
            "dpar_points_check: points or fields is NULL, what %d is not 1 to 3, or count is %d",
            what, n);
    }
    status = dpari_pt_check_named(points, fields, n, why);
    if (what == DPAR_POINTS_STALE) { /* collective, so that all ranks must return */
        status = dpari_agree(points->comm, status, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (what == DPAR_POINTS_UNFILLED) {
        return dpari_pt_unfilled(points, fields, n, why);
    }
    for (i = 0; i < n; i++) {
        if (what == DPAR_POINTS_POISON) {
            (void)dpari_pt_poison(points, &fields[i], 1, 1);
            continue;
        }
        status = dpari_pt_compare(points, &fields[i], i, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    return DPAR_OK;
}

/* ==== points/points_simple.c ==== */

/* Allocates vectors, and exchanges one vector of doubles. points_run.c does the work. */

DPAR_API DPARI_COLD void *dpar_points_array(dpar_points *points, int32_t type, int32_t components)
{
    void *memory = NULL;
    int64_t bytes;
    if (!points) {
        return NULL;
    }
    if (components < 0 || dpar_type_bytes(type) == 0 ||
        !dpari_mul(points->own_count + points->ghost_count,
                   dpar_type_bytes(type) * (int64_t)(components > 0 ? components : 1), &bytes)) {
        (void)dpari_comm_wrong(points->comm,
                               "dpar_points_array: %d components of type %s are not allowed",
                               components, dpar_type_name(type));
        return NULL;
    }
    (void)dpar_comm_alloc(points->comm, bytes, &memory); /* NULL if it fails */
    return memory;
}

/* The operation that begins an exchange of shared ids in dpari_pt_doubles: a sum. */
enum { DPARI_PT_COMBINE = -1 };

/* Begins an exchange of x as the only vector. op: DPAR_COPY for a forward exchange, DPAR_SUM for an
 * adjoint. */
DPARI_STATIC_NOINLINE dpar_status dpari_pt_doubles(dpar_points *points, double *x, int32_t op)
{
    dpar_points_field field;
    dpari_zero(&field, sizeof field);
    field.type = DPAR_F64;
    field.data = x;
    if (op == DPARI_PT_COMBINE) {
        return dpar_points_combine_begin_many(points, &field, 1, DPAR_SUM);
    }
    return op == DPAR_COPY ? dpar_points_begin_many(points, &field, 1)
                           : dpar_points_reduce_begin_many(points, &field, 1, op);
}

/* Ends an exchange whose beginning returned `status`. */
static dpar_status dpari_pt_finish_doubles(dpar_points *points, dpar_status status)
{
    return status == DPAR_OK ? dpar_points_end(points) : status;
}

DPAR_API dpar_status dpar_points_begin(dpar_points *points, double *x)
{
    return dpari_pt_doubles(points, x, DPAR_COPY);
}

DPAR_API dpar_status dpar_points_reduce_begin(dpar_points *points, double *x)
{
    return dpari_pt_doubles(points, x, DPAR_SUM);
}

DPAR_API dpar_status dpar_points_combine_begin(dpar_points *points, double *x)
{
    return dpari_pt_doubles(points, x, DPARI_PT_COMBINE);
}

DPAR_API dpar_status dpar_points_exchange(dpar_points *points, double *x)
{
    return dpari_pt_finish_doubles(points, dpar_points_begin(points, x));
}

DPAR_API dpar_status dpar_points_reduce(dpar_points *points, double *x)
{
    return dpari_pt_finish_doubles(points, dpar_points_reduce_begin(points, x));
}

DPAR_API dpar_status dpar_points_combine(dpar_points *points, double *x)
{
    return dpari_pt_finish_doubles(points, dpar_points_combine_begin(points, x));
}

/* ==== points/points_part.c ==== */

/* Partitions points along Hilbert's curve. It implements dpar_points_partition.
 *
 * Each rank sorts its points by their place on the curve and sums their weights. All ranks together
 * then search for the cuts between parts. Every cut is in a bracket, which seven probes divide into
 * eight: each rank sums its weights up to each probe, an all-reduce adds up these sums, and the
 * eighth that holds the cut becomes the next bracket. If several points are at the place of a cut,
 * their ids are searched in the same way. All sums are integers, so that the result does not depend
 * on the distribution of points. */

enum {
    DPARI_PC_PROBES = 7,        /* per cut and round, so that the bracket shrinks to an eighth */
    DPARI_PC_PARTS = 1 << 20,   /* the most parts */
    DPARI_PC_WEIGHT_BITS = 61,  /* the sum of all weights is at most 2^61, so that twice the sum
                                    fits in an int64_t */
    DPARI_PC_MANTISSA_BITS = 52 /* of a double: finer steps would not be more accurate */
};

/* ---- the curve ------------------------------------------------------------------------------- */

/* Returns the number of bits of a coordinate, so that a place on the curve has at most 63 bits. */
DPARI_FN int32_t dpari_pc_bits(int32_t dims)
{
    return dims == 2 ? 31 : 21;
}

/* The transform is J. Skilling's, "Programming the Hilbert curve" (AIP Conf. Proc. 707, 2004, p.
 * 381). It proceeds from the coarsest level to the finest. At each level the bits of the
 * coordinates tell in which half of each dim the cell is. In Gray code they are the next digit of
 * the place. Depending on these bits, the finer levels are then mirrored, or two of their dims are
 * exchanged. */
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

/* ---- structs --------------------------------------------------------------------------------- */

/* A cut: the first point of a part, by place and id. */
typedef struct dpari_pc_cut {
    int64_t key, id;
    int64_t low, high; /* the bracket: the wanted key or id is in [low, high] */
    int64_t weight;    /* wanted weight of the points before the part, in steps */
    int32_t behind;    /* 1 if the part begins after that point */
} dpari_pc_cut;

typedef struct dpari_pc {
    dpar_comm *comm;
    const dpar_points_partition_desc *desc;
    int32_t parts;
    double low[3], half; /* the cube that holds all points: its corner, half its side */
    double largest;      /* the largest weight */
    double steps;        /* the largest weight in steps; weights are rounded to steps */
    int64_t first;       /* the id of point 0 if the caller passes no ids */
    int64_t points;      /* number of points of all ranks */
    int64_t weight;      /* sum of the weights of all ranks, in steps */
    dpari_po_item *item; /* own points, sorted by place and id */
    int64_t *before;   /* [own points + 1] weight of the sorted points before each one, in steps */
    dpari_pc_cut *cut; /* [parts - 1] */
    int64_t *count;    /* [parts - 1][DPARI_PC_PROBES] weights up to each probe */
    dpari_po_pages pages;
} dpari_pc;

/* Lists the fields of a description that must be equal on all ranks. */
static DPARI_COLD void dpari_pc_state(dpari_facts *facts, const void *given)
{
    const dpar_points_partition_desc *desc = (const dpar_points_partition_desc *)given;
    dpari_fact(facts, "dims", 0, desc->dims);
    dpari_fact(facts, "parts", 0, desc->parts);
}

/* Checks what this rank passes. */
static DPARI_COLD dpar_status dpari_pc_check(const dpar_points_partition_desc *desc,
                                             const int32_t *owner, dpar_why *why)
{
    int64_t i;
    int32_t k;
    if (!desc || desc->dims < 2 || desc->dims > 3) {
        return dpari_wrong(why, "desc.dims is %d, but must be 2 or 3", desc ? desc->dims : 0);
    }
    if (desc->count < 0 || desc->parts < 0 || desc->parts > DPARI_PC_PARTS ||
        (desc->count > 0 && (!desc->position || !owner))) {
        return dpari_wrong(why,
                           "count %ld or parts %d is out of range, or position or owner is NULL",
                           desc->count, desc->parts);
    }
    if (desc->count > INT32_MAX) {
        return dpari_say(DPAR_E_RANGE, why, "count is %ld, but must be at most 2^31 - 1",
                         desc->count);
    }
    for (i = 0; i < desc->count; i++) {
        for (k = 0; k < desc->dims; k++) {
            if (!dpari_finite(desc->position[i * desc->dims + k])) {
                return dpari_wrong(why, "point %ld: coordinate %d is not finite", i, k);
            }
        }
        if (desc->weight && !(desc->weight[i] >= 0 && dpari_finite(desc->weight[i]))) {
            return dpari_wrong(why, "point %ld: its weight is negative or not finite", i);
        }
    }
    return DPAR_OK;
}

/* Finds the cube that holds all points, the largest weight, and the number of points. Collective.
 */
static dpar_status dpari_pc_measure(dpari_pc *cutting, dpar_why *why)
{
    const dpar_points_partition_desc *desc = cutting->desc;
    const double none = 1.7976931348623157e308;                  /* the largest double */
    double least[7] = {none, none, none, none, none, none, 0.0}; /* minima of low, -high, -weight */
    int64_t i, all;
    int32_t k;
    dpar_status status;
    for (i = 0; i < desc->count; i++) {
        for (k = 0; k < desc->dims; k++) {
            least[k] = dpari_leastf(least[k], desc->position[i * desc->dims + k]);
            least[3 + k] = dpari_leastf(least[3 + k], -desc->position[i * desc->dims + k]);
        }
        least[6] = dpari_leastf(least[6], desc->weight ? -desc->weight[i] : -1.0);
    }
    status = dpar_all_reduce(cutting->comm, least, least, 7, DPAR_F64, DPAR_MIN, NULL);
    if (status == DPAR_OK) {
        status = dpar_all_reduce(cutting->comm, &desc->count, &cutting->points, 1, DPAR_I64,
                                 DPAR_SUM, NULL);
    }
    if (status != DPAR_OK) {
        return dpari_po_explain(cutting->comm, status, why);
    }
    if (cutting->points > 0 && !(least[6] < 0)) {
        return dpari_wrong(why, "the weights of all %ld points are 0", cutting->points);
    }
    cutting->largest = -least[6];
    for (k = 0; k < desc->dims; k++) { /* halves, because the difference may be infinite */
        cutting->low[k] = least[k];
        cutting->half = dpari_mostf(cutting->half, -least[3 + k] / 2 - least[k] / 2);
    }
    cutting->steps = 1.0;
    all = cutting->points; /* upper bound of the sum of weights, in steps */
    for (k = 0; k < DPARI_PC_MANTISSA_BITS && all <= INT64_C(1) << (DPARI_PC_WEIGHT_BITS - 1);
         k++) {
        all *= 2;
        cutting->steps *= 2;
    }
    return DPAR_OK;
}

/* Returns the place of a position on the curve. */
static int64_t dpari_pc_place(const dpari_pc *cutting, const double *at)
{
    const double side = (double)(UINT32_C(1) << dpari_pc_bits(cutting->desc->dims));
    uint32_t cell[3];
    int32_t k;
    for (k = 0; k < cutting->desc->dims; k++) {
        const double share =
            cutting->half > 0 ? (at[k] / 2 - cutting->low[k] / 2) / cutting->half : 0.0;
        cell[k] = (uint32_t)dpari_leastf(share * side, side - 1);
    }
    return dpari_points_curve(cutting->desc->dims, cell);
}

/* Returns the weight of own point i in steps. */
static int64_t dpari_pc_steps(const dpari_pc *cutting, int64_t i)
{
    return (int64_t)((cutting->desc->weight ? cutting->desc->weight[i] / cutting->largest : 1.0) *
                         cutting->steps +
                     0.5);
}

/* Allocates memory, sorts own points along the curve, and sums their weights. */
static dpar_status dpari_pc_line_up(dpari_pc *cutting, dpar_why *why)
{
    const dpar_points_partition_desc *desc = cutting->desc;
    const int64_t n = desc->count, cuts = cutting->parts - 1;
    dpar_status status = DPAR_OK;
    dpari_po_item *item =
        (dpari_po_item *)dpari_po_take(&cutting->pages, 2 * n, sizeof *item, &status, why);
    int64_t i;
    cutting->before = (int64_t *)dpari_po_take(&cutting->pages, n + 1, 8, &status, why);
    cutting->cut =
        (dpari_pc_cut *)dpari_po_take(&cutting->pages, cuts, sizeof *cutting->cut, &status, why);
    cutting->count =
        (int64_t *)dpari_po_take(&cutting->pages, DPARI_PC_PROBES * cuts, 8, &status, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < n; i++) {
        item[i].key = dpari_pc_place(cutting, desc->position + i * desc->dims);
        item[i].id = desc->id ? desc->id[i] : cutting->first + i;
        item[i].at = i;
    }
    cutting->item = dpari_po_sort(item, item + n, n);
    for (i = 0; i < n; i++) {
        cutting->before[i + 1] = cutting->before[i] + dpari_pc_steps(cutting, cutting->item[i].at);
    }
    return DPAR_OK;
}

/* ---- cuts ------------------------------------------------------------------------------------ */

/* Returns the number of own points before (key, id). With `with` 1, points at (key, id) count too.
 */
static int64_t dpari_pc_rank(const dpari_pc *cutting, int64_t key, int64_t id, int32_t with)
{
    int64_t low = 0, high = cutting->desc->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (dpari_po_compare(&cutting->item[middle], key, id) < with) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Returns ceil(times * k * weight / parts) without overflow: times <= 2, k < parts <= 2^20, weight
 * <= 2^61. */
static int64_t dpari_pc_share(const dpari_pc *cutting, int64_t k, int64_t times)
{
    return times * (cutting->weight / cutting->parts) * k +
           dpari_ceil_div(times * (cutting->weight % cutting->parts) * k, cutting->parts);
}

/* Returns where probe j of a bracket is: at one eighth, two eighths, ..., but below high. */
static int64_t dpari_pc_probe(const dpari_pc_cut *cut, int64_t j)
{
    const uint64_t span = (uint64_t)cut->high - (uint64_t)cut->low;
    const uint64_t part = span / (DPARI_PC_PROBES + 1) + 1;
    uint64_t at = part * (uint64_t)(j + 1) - 1;
    at = at < span ? at : span - 1;
    return (int64_t)((uint64_t)cut->low + at);
}

/* Sums `each` counts per cut over all ranks. Collective. */
static DPARI_COLD dpar_status dpari_pc_add(dpari_pc *cutting, int64_t each, dpar_why *why)
{
    return dpari_po_explain(cutting->comm,
                            dpar_all_reduce(cutting->comm, cutting->count, cutting->count,
                                            each * (cutting->parts - 1), DPAR_I64, DPAR_SUM, NULL),
                            why);
}

/* Sums own weights up to each probe of each cut, also of cuts that are found already, so that the
 * array has no gaps. Returns how many cuts are not found yet. */
static int64_t dpari_pc_probe_all(dpari_pc *cutting, int by_id)
{
    int64_t i, j, open = 0;
    for (i = 0; i < cutting->parts - 1; i++) {
        const dpari_pc_cut *cut = &cutting->cut[i];
        const int is_open = cut->low < cut->high;
        open += is_open;
        for (j = 0; j < DPARI_PC_PROBES; j++) {
            const int64_t at = is_open ? dpari_pc_probe(cut, j) : cut->low;
            const int64_t rank = by_id ? dpari_pc_rank(cutting, cut->key, at, 1)
                                       : dpari_pc_rank(cutting, at, INT64_MAX, 1);
            cutting->count[i * DPARI_PC_PROBES + j] = cutting->before[rank];
        }
    }
    return open;
}

/* Shrinks the bracket of a cut to the eighth that holds its place. count: the weights of all ranks
 * up to each probe. */
static void dpari_pc_shrink(dpari_pc_cut *cut, const int64_t *count)
{
    const dpari_pc_cut was = *cut;
    int64_t j = 0;
    while (j < DPARI_PC_PROBES && count[j] < cut->weight) {
        j++;
    }
    if (j > 0) {
        cut->low = dpari_pc_probe(&was, j - 1) + 1;
    }
    if (j < DPARI_PC_PROBES) {
        cut->high = dpari_pc_probe(&was, j);
    }
}

/* Finds for each cut the smallest number in its bracket up to which points have the wanted weight.
 * The numbers are places, or with by_id the ids at the place that was found. Collective. */
static dpar_status dpari_pc_search(dpari_pc *cutting, int by_id, dpar_why *why)
{
    int64_t i;
    while (dpari_pc_probe_all(cutting, by_id) > 0) { /* the same number on all ranks */
        const dpar_status status = dpari_pc_add(cutting, DPARI_PC_PROBES, why);
        if (status != DPAR_OK) {
            return status;
        }
        for (i = 0; i < cutting->parts - 1; i++) {
            if (cutting->cut[i].low < cutting->cut[i].high) {
                dpari_pc_shrink(&cutting->cut[i], cutting->count + i * DPARI_PC_PROBES);
            }
        }
    }
    return DPAR_OK;
}

/* Finds the smallest and the largest id over all ranks at the place of each cut, after the places
 * have been found. Collective. */
static DPARI_COLD dpar_status dpari_pc_ids(dpari_pc *cutting, dpar_why *why)
{
    const int64_t cuts = cutting->parts - 1;
    dpar_status status;
    int64_t i;
    for (i = 0; i < cuts; i++) {
        dpari_pc_cut *cut = &cutting->cut[i];
        int64_t first, last;
        cut->key = cut->low;
        first = dpari_pc_rank(cutting, cut->key, INT64_MIN, 0);
        last = dpari_pc_rank(cutting, cut->key, INT64_MAX, 1);
        /* The largest id is stored as ~id, because DPAR_MIN of ~id finds the largest id. */
        cutting->count[2 * i] = first < last ? cutting->item[first].id : INT64_MAX;
        cutting->count[2 * i + 1] = first < last ? ~cutting->item[last - 1].id : INT64_MAX;
    }
    status = dpar_all_reduce(cutting->comm, cutting->count, cutting->count, 2 * cuts, DPAR_I64,
                             DPAR_MIN, NULL);
    for (i = 0; i < cuts && status == DPAR_OK; i++) {
        cutting->cut[i].low = cutting->count[2 * i];
        cutting->cut[i].high = ~cutting->count[2 * i + 1];
    }
    return dpari_po_explain(cutting->comm, status, why);
}

/* Decides for each cut whether the part begins before or after the point at the cut: after it if
 * the wanted weight is more than the weight up to the middle of the point. */
static DPARI_COLD dpar_status dpari_pc_sides(dpari_pc *cutting, dpar_why *why)
{
    const int64_t cuts = cutting->parts - 1;
    dpar_status status;
    int64_t i;
    for (i = 0; i < cuts; i++) {
        dpari_pc_cut *cut = &cutting->cut[i];
        cut->id = cut->low;
        cutting->count[i] = cutting->before[dpari_pc_rank(cutting, cut->key, cut->id, 0)] +
                            cutting->before[dpari_pc_rank(cutting, cut->key, cut->id, 1)];
    }
    status = dpari_pc_add(cutting, 1, why);
    for (i = 0; i < cuts && status == DPAR_OK; i++) {
        cutting->cut[i].behind = cutting->count[i] < dpari_pc_share(cutting, i + 1, 2);
    }
    return status;
}

/* Finds all cuts. Collective. */
static DPARI_COLD dpar_status dpari_pc_cuts(dpari_pc *cutting, dpar_why *why)
{
    dpar_status status = dpar_all_reduce(cutting->comm, &cutting->before[cutting->desc->count],
                                         &cutting->weight, 1, DPAR_I64, DPAR_SUM, NULL);
    int32_t i;
    if (status != DPAR_OK || cutting->parts == 1 || cutting->points == 0) {
        return dpari_po_explain(cutting->comm, status, why);
    }
    for (i = 0; i < cutting->parts - 1; i++) {
        cutting->cut[i].high = INT64_MAX;
        cutting->cut[i].weight = dpari_pc_share(cutting, i + 1, 1);
    }
    status = dpari_pc_search(cutting, 0, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_pc_ids(cutting, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_pc_search(cutting, 1, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_pc_sides(cutting, why);
}

/* Sets the part of each own point. Points and cuts are both sorted, so that one pass is enough. */
static void dpari_pc_deal(const dpari_pc *cutting, int32_t *owner, int64_t *key)
{
    int32_t part = 0;
    int64_t i;
    for (i = 0; i < cutting->desc->count; i++) {
        const dpari_po_item *item = &cutting->item[i];
        while (part < cutting->parts - 1 &&
               dpari_po_compare(item, cutting->cut[part].key, cutting->cut[part].id) >=
                   cutting->cut[part].behind) {
            part++;
        }
        owner[item->at] = part;
        if (key) {
            key[item->at] = item->key;
        }
    }
}

/* Partitions points whose description was checked. Collective; the caller frees cutting->pages. */
static DPARI_COLD dpar_status dpari_pc_run(dpari_pc *cutting, int32_t *owner, int64_t *key,
                                           dpar_why *why)
{
    dpar_status status = dpari_po_first(cutting->comm, cutting->desc->count, &cutting->first, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_pc_measure(cutting, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_agree(cutting->comm, dpari_pc_line_up(cutting, why), why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_pc_cuts(cutting, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_pc_deal(cutting, owner, key);
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_points_partition(dpar_comm *comm,
                                                      const dpar_points_partition_desc *desc,
                                                      int32_t *owner, int64_t *key, dpar_why *why)
{
    dpari_pc cutting;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_points_partition: comm is NULL");
    }
    why = dpari_why_of(comm, why);
    status = dpari_po_host(comm, why);
    if (status == DPAR_OK) {
        status = dpari_pc_check(desc, owner, why);
    }
    status = dpari_agree_on(comm, status, "partition", dpari_pc_state, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&cutting, sizeof cutting);
    cutting.comm = comm;
    cutting.desc = desc;
    cutting.parts = desc->parts > 0 ? desc->parts : comm->size;
    status = dpari_pc_run(&cutting, owner, key, why);
    dpari_po_free(&cutting.pages);
    return status;
}

/* ==== points/points_move.c ==== */

/* Moves a mesh to new owners. It implements dpar_points_migration_make.
 *
 * If the caller passes no owners of points, each rank bids for the points of its old elements, on
 * behalf of the elements' new owners. A bid is a hash of id and rank. An adjoint exchange with
 * DPAR_MIN over a plan of the old mesh finds the least bid, whose rank gets the point. Points and
 * elements are then sorted at their new owners, and a plan from old to new places is made for
 * points and for elements. These plans move ids and corners. At the end corners are converted to
 * local indices. No rank has the whole mesh. */

/* Indices of the numbers by which ranks compare what they pass. Of each number, the largest over
 * all ranks is used. In each pair, the first is 1 if a rank with points (or elements) passes the
 * array, and the second is 1 if such a rank does not. */
enum {
    DPARI_PM_OWNER,
    DPARI_PM_NO_OWNER,
    DPARI_PM_ELEMENT_OWNER,
    DPARI_PM_NO_ELEMENT_OWNER,
    DPARI_PM_ID,
    DPARI_PM_NO_ID,
    DPARI_PM_ELEMENT_ID,
    DPARI_PM_NO_ELEMENT_ID,
    DPARI_PM_CORNERS,    /* corner_count */
    DPARI_PM_NO_CORNERS, /* -corner_count, whose maximum gives the smallest corner_count */
    DPARI_PM_GIVEN,
    DPARI_PM_MOST_CORNERS = 64 /* of an element */
};

typedef struct dpari_pm {
    dpar_comm *comm;
    const dpar_points_migration_desc *desc;
    dpar_points_migration *to;
    int64_t given[DPARI_PM_GIVEN];
    int32_t corners;        /* of each element; 0 if no rank has elements */
    int64_t slots;          /* number of corners of all own elements together */
    int64_t reads;          /* number of distinct ids among these corners */
    int64_t *reading;       /* [reads] the distinct ids, ascending */
    int32_t *slot;          /* [slots] the index of each corner in `reading` */
    dpar_points *old;       /* plan of the mesh before it moves; its ghosts are `reading` */
    int32_t *owner;         /* [points + reads] the new owner of each */
    int32_t *element_owner; /* [elements] likewise */
    dpari_po_pages pages;
} dpari_pm;

/* ---- checks ---------------------------------------------------------------------------------- */

static dpar_status dpari_pm_check_owners(const dpar_comm *comm, const int32_t *owner, int64_t count,
                                         const char *what, dpar_why *why)
{
    int64_t i;
    if (!owner) {
        return DPAR_OK;
    }
    for (i = 0; i < count; i++) {
        if (owner[i] < 0 || owner[i] >= comm->size) {
            return dpari_wrong(why, "%s %ld: owner %d is not one of the %d ranks", what, i,
                               owner[i], comm->size);
        }
    }
    return DPAR_OK;
}

/* Checks what this rank passes. Local. */
static DPARI_COLD dpar_status dpari_pm_check(const dpar_comm *comm,
                                             const dpar_points_migration_desc *desc, dpar_why *why)
{
    dpar_status status = dpari_po_host(comm, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (!desc) {
        return dpari_wrong(why, "desc is NULL");
    }
    if (desc->point_count < 0 || desc->element_count < 0) {
        return dpari_wrong(why, "point_count %ld or element_count %ld is negative",
                           desc->point_count, desc->element_count);
    }
    if (desc->element_count > 0 &&
        (!desc->corner || desc->corner_count < 1 || desc->corner_count > DPARI_PM_MOST_CORNERS)) {
        return dpari_wrong(why, "corner is NULL, or corner_count %d is not 1 to %d",
                           desc->corner_count, (int32_t)DPARI_PM_MOST_CORNERS);
    }
    if (desc->point_count > INT32_MAX ||
        (desc->element_count > 0 &&
         desc->element_count > (INT32_MAX - desc->point_count) / desc->corner_count)) {
        return dpari_say(DPAR_E_RANGE, why,
                         "%ld points and %ld elements of %d corners are more than 2^31 - 1 ids",
                         desc->point_count, desc->element_count, desc->corner_count);
    }
    status = dpari_pm_check_owners(comm, desc->owner, desc->point_count, "point", why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_pm_check_owners(comm, desc->element_owner, desc->element_count, "element", why);
}

/* Compares what all ranks pass. The result is the same on all of them. */
static DPARI_COLD dpar_status dpari_pm_compare(const int64_t *given, dpar_why *why)
{
    static const char name[4][16] = {"owner", "element_owner", "id", "element_id"};
    int32_t i;
    for (i = 0; i < 4; i++) { /* pairs from DPARI_PM_OWNER on */
        if (given[2 * i] && given[2 * i + 1]) {
            return dpari_say(DPAR_E_MISMATCH, why, "%s is NULL on some ranks, not on others",
                             name[i]);
        }
    }
    if (given[DPARI_PM_CORNERS] > 0 && given[DPARI_PM_CORNERS] != -given[DPARI_PM_NO_CORNERS]) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "elements have %ld corners on one rank, %ld on another",
                         -given[DPARI_PM_NO_CORNERS], given[DPARI_PM_CORNERS]);
    }
    if ((given[DPARI_PM_NO_OWNER] || given[DPARI_PM_NO_ELEMENT_OWNER]) && !given[DPARI_PM_OWNER] &&
        !given[DPARI_PM_ELEMENT_OWNER]) {
        return dpari_wrong(why, "neither owner nor element_owner is set");
    }
    return DPAR_OK;
}

/* Checks that all ranks describe the same kind of movement. Collective; all ranks get the same
 * message. */
static DPARI_COLD dpar_status dpari_pm_alike(dpari_pm *move, dpar_why *why)
{
    const dpar_points_migration_desc *desc = move->desc;
    int64_t *given = move->given;
    const int points = desc->point_count > 0, elements = desc->element_count > 0;
    dpar_status status;
    given[DPARI_PM_OWNER] = points && desc->owner;
    given[DPARI_PM_NO_OWNER] = points && !desc->owner;
    given[DPARI_PM_ELEMENT_OWNER] = elements && desc->element_owner;
    given[DPARI_PM_NO_ELEMENT_OWNER] = elements && !desc->element_owner;
    given[DPARI_PM_ID] = points && desc->id;
    given[DPARI_PM_NO_ID] = points && !desc->id;
    given[DPARI_PM_ELEMENT_ID] = elements && desc->element_id;
    given[DPARI_PM_NO_ELEMENT_ID] = elements && !desc->element_id;
    given[DPARI_PM_CORNERS] = elements ? desc->corner_count : 0;
    given[DPARI_PM_NO_CORNERS] = elements ? -desc->corner_count : -INT32_MAX;
    status = dpar_all_reduce(move->comm, given, given, DPARI_PM_GIVEN, DPAR_I64, DPAR_MAX, NULL);
    if (status != DPAR_OK) {
        return dpari_po_explain(move->comm, status, why);
    }
    move->corners = (int32_t)given[DPARI_PM_CORNERS];
    move->slots = desc->element_count * move->corners;
    return dpari_pm_compare(given, why);
}

/* ---- the mesh before it moves ---------------------------------------------------------------- */

/* Finds the distinct ids among n ids. Returns how many there are.
 *
 * item:  memory for 2 n items.
 * id:    receives the distinct ids, ascending.
 * which: [n], receives the index of each in `id`. */
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

/* Lists the distinct points that own elements read, and allocates the memory of the whole movement.
 * Local. */
static dpar_status dpari_pm_read(dpari_pm *move, dpar_why *why)
{
    const dpar_points_migration_desc *desc = move->desc;
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
    desc.own_count = move->desc->point_count;
    if (move->given[DPARI_PM_ID]) { /* all ranks must then pass ids, even those without points */
        desc.own_id = move->desc->id ? move->desc->id : move->reading;
    }
    desc.ghost_count = move->reads;
    desc.ghost_id = move->reading;
    return dpar_points_make(move->comm, &desc, &move->old, why);
}

/* ---- owners ---------------------------------------------------------------------------------- */

/* Returns the bid of a rank for a point: a hash, with the rank in its lowest 31 bits. The rank with
 * the least bid gets the point. Because of the hash no rank is preferred. */
static int64_t dpari_pm_bid(int64_t id, int32_t rank)
{
    return (int64_t)(dpari_hash(dpari_hash(0, id), rank) >> 33 << 31) | rank;
}

/* Gives each point to one of the ranks that will have an element with it. */
static dpar_status dpari_pm_bids(dpari_pm *move, dpar_why *why)
{
    const dpar_points_migration_desc *desc = move->desc;
    const int64_t all = desc->point_count + move->reads;
    dpari_po_pages pages;
    dpar_points_field field;
    dpar_status status = DPAR_OK;
    int64_t i, k, *bid;
    dpari_zero(&pages, sizeof pages);
    bid = (int64_t *)dpari_po_take(&pages, all, 8, &status, why);
    status = dpari_agree(move->comm, status, why);
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
    status = dpar_points_reduce_begin_many(move->old, &field, 1, DPAR_MIN);
    if (status == DPAR_OK) {
        status = dpar_points_end(move->old);
    }
    if (status == DPAR_OK) {
        for (i = 0; i < desc->point_count; i++) { /* without a bid a point stays */
            move->owner[i] = bid[i] == INT64_MAX ? move->comm->rank : (int32_t)(bid[i] & INT32_MAX);
        }
    }
    dpari_po_free(&pages);
    return dpari_po_explain(move->comm, status, why);
}

/* Returns the rank that gets most of an element's corners, the smallest if several ranks get as
 * many. */
static int32_t dpari_pm_majority(const dpari_pm *move, int64_t element)
{
    const int32_t *slot = move->slot + element * move->corners,
                  *owner = move->owner + move->desc->point_count;
    int32_t i, k, best = INT32_MAX, most = 0;
    for (i = 0; i < move->corners; i++) {
        int32_t n = 0;
        for (k = 0; k < move->corners; k++) {
            n += owner[slot[k]] == owner[slot[i]];
        }
        if (n > most || (n == most && owner[slot[i]] < best)) {
            most = n;
            best = owner[slot[i]];
        }
    }
    return best;
}

/* Sets the new owners of own points, of the points that own elements read, and of own elements.
 * Collective. */
static dpar_status dpari_pm_owners(dpari_pm *move, dpar_why *why)
{
    const dpar_points_migration_desc *desc = move->desc;
    dpar_points_field field;
    dpar_status status;
    int64_t i;
    if (move->given[DPARI_PM_NO_OWNER]) {
        status = dpari_pm_bids(move, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    if (move->given[DPARI_PM_OWNER]) {
        for (i = 0; i < desc->point_count; i++) {
            move->owner[i] = desc->owner[i];
        }
    }
    dpari_zero(&field, sizeof field);
    field.type = DPAR_I32;
    field.data = move->owner;
    status = dpar_points_exchange_many(move->old, &field, 1);
    if (status != DPAR_OK) {
        return dpari_po_explain(move->comm, status, why);
    }
    for (i = 0; i < desc->element_count; i++) {
        if (move->given[DPARI_PM_ELEMENT_OWNER]) {
            move->element_owner[i] = desc->element_owner[i];
        } else {
            move->element_owner[i] = dpari_pm_majority(move, i);
        }
    }
    return DPAR_OK;
}

/* ---- items that move ------------------------------------------------------------------------- */

/* The points or the elements of this rank, which move to their new owners. */
typedef struct dpari_pm_move {
    int64_t count;
    const int64_t *id, *order; /* may be NULL: ids are then first, first + 1, ..., in that order */
    const int32_t *owner;      /* the new owners */
    int64_t first;
    int64_t received;  /* number of items of this rank after the movement */
    void *ids;         /* [received] their ids, in memory of dpar_comm_alloc */
    dpar_points *plan; /* from old places to new ones */
    /* The following fields are needed only during planning. */
    int32_t *send_at, *receive_at; /* for each item, in the order in which it is sent or received */
    dpari_po_item *item;
    dpari_po_pages pages;
} dpari_pm_move;

/* Allocates what planning needs for the items that are sent and received. Local. */
static dpar_status dpari_pm_take(dpar_comm *comm, dpari_pm_move *items, dpar_why *why)
{
    dpar_status status = DPAR_OK;
    if (items->count + items->received > INT32_MAX) {
        status = dpari_say(DPAR_E_RANGE, why,
                           "%ld old and %ld new items of rank %d are more than %d together",
                           items->count, items->received, comm->rank, (int32_t)INT32_MAX);
    }
    items->send_at = (int32_t *)dpari_po_take(&items->pages, items->count, 4, &status, why);
    items->receive_at = (int32_t *)dpari_po_take(&items->pages, items->received, 4, &status, why);
    items->item = (dpari_po_item *)dpari_po_take(&items->pages, 2 * items->received,
                                                 sizeof *items->item, &status, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_po_explain(comm, dpar_comm_alloc(comm, 8 * items->received + 8, &items->ids), why);
}

/* Sends the order and the id of each item to its new owner, and computes the place of each received
 * item. Collective. */
static dpar_status dpari_pm_send(dpari_pm_move *items, dpari_pt_mail *mail, dpar_why *why)
{
    dpar_status status;
    int64_t i;
    items->received = mail->ins / 2;
    status = dpari_agree(mail->comm, dpari_pm_take(mail->comm, items, why), why);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < items->count; i++) {
        const int64_t id = items->id ? items->id[i] : items->first + i;
        int64_t *next = &mail->count[mail->comm->size + items->owner[i]];
        items->send_at[*next / 2] = (int32_t)i;
        mail->out[*next] = items->order ? items->order[i] : id;
        mail->out[*next + 1] = id;
        *next += 2;
    }
    status = dpari_pt_go(mail, 0, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < items->received; i++) {
        items->item[i].key = mail->in[2 * i];
        items->item[i].id = mail->in[2 * i + 1];
        items->item[i].at = i;
    }
    items->item = dpari_po_sort(items->item, items->item + items->received, items->received);
    for (i = 0; i < items->received; i++) {
        ((int64_t *)items->ids)[i] = items->item[i].id;
        items->receive_at[items->item[i].at] = (int32_t)(items->count + i);
    }
    return DPAR_OK;
}

/* Makes the plan from the old places of items to the new ones, and replaces the counts of the mail
 * by those of its peers. */
static DPARI_COLD dpar_status dpari_pm_join(dpari_pm_move *items, const dpari_pt_mail *mail,
                                            dpar_why *why)
{
    const int32_t size = mail->comm->size;
    int64_t *sends = mail->count, *receives = mail->count + 2 * size;
    int32_t r, *peer = (int32_t *)(void *)(mail->count + size);
    dpar_points_desc desc;
    dpar_points_lists lists;
    dpari_zero(&desc, sizeof desc);
    dpari_zero(&lists, sizeof lists);
    for (r = 0; r < size; r++) {
        if (sends[r] + receives[r] > 0) {
            sends[lists.peer_count] = sends[r] / 2;
            receives[lists.peer_count] = receives[r] / 2;
            peer[lists.peer_count] = r;
            lists.peer_count++;
        }
    }
    lists.peer = peer;
    lists.send_count = sends;
    lists.receive_count = receives;
    lists.send_index = items->send_at;
    lists.receive_index = items->receive_at;
    desc.own_count = items->count;
    desc.ghost_count = items->received;
    desc.lists = &lists;
    return dpar_points_make(mail->comm, &desc, &items->plan, why);
}

/* Sends items to their new owners, and makes the plan from old to new places. Collective. */
static DPARI_COLD dpar_status dpari_pm_move_plan(dpar_comm *comm, dpari_pm_move *items,
                                                 dpar_why *why)
{
    dpari_pt_mail mail;
    dpar_status status = dpari_pt_open(&mail, comm, items->owner, items->count, 2, DPAR_OK, why);
    if (status == DPAR_OK) {
        status = dpari_pm_send(items, &mail, why);
    }
    if (status == DPAR_OK) {
        status = dpari_pm_join(items, &mail, why);
    }
    dpari_pt_close(&mail);
    dpari_po_free(&items->pages);
    return status;
}

/* ---- the mesh at its new owners -------------------------------------------------------------- */

typedef struct dpari_pm_new {
    int64_t slots;       /* number of corners of all elements together */
    int64_t *corner;     /* [slots] the id of each corner */
    int32_t *owner;      /* [slots] the new owner of each */
    int64_t *reading;    /* [slots] distinct ids, ascending */
    int32_t *slot;       /* [slots] the index of each corner in `reading` */
    int32_t *local;      /* [slots] the local index of each distinct id */
    dpari_po_item *item; /* [2 * the larger of slots and own points] */
    dpari_po_pages pages;
} dpari_pm_new;

/* Moves the corners of elements, with their new owners, to the elements' new owners. Collective. */
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
        status = dpari_say(DPAR_E_RANGE, why,
                           "%ld elements of %d corners are more than 2^31 - 1 ids of rank %d",
                           move->to->element_count, move->corners, move->comm->rank);
    }
    mesh->corner = (int64_t *)dpari_po_take(&mesh->pages, mesh->slots, 8, &status, why);
    mesh->owner = (int32_t *)dpari_po_take(&mesh->pages, mesh->slots, 4, &status, why);
    mesh->reading = (int64_t *)dpari_po_take(&mesh->pages, mesh->slots, 8, &status, why);
    mesh->slot = (int32_t *)dpari_po_take(&mesh->pages, mesh->slots, 4, &status, why);
    mesh->local = (int32_t *)dpari_po_take(&mesh->pages, mesh->slots, 4, &status, why);
    mesh->item = (dpari_po_item *)dpari_po_take(&mesh->pages, 2 * dpari_most(mesh->slots, own),
                                                sizeof *mesh->item, &status, why);
    status = dpari_agree(move->comm, status, why);
    if (status == DPAR_OK) {
        for (i = 0; i < move->slots; i++) {
            owner[i] = move->owner[move->desc->point_count + move->slot[i]];
        }
        dpari_zero(field, sizeof field);
        field[0].type = DPAR_I64;
        field[1].type = DPAR_I32;
        field[0].components = field[1].components = move->corners;
        field[0].data = move->reading; /* not written; without elements any address but NULL */
        if (move->slots > 0) {
            field[0].data = (void *)(uintptr_t)move->desc->corner;
        }
        field[1].data = owner;
        field[0].ghosts = mesh->corner;
        field[1].ghosts = mesh->owner;
        status = dpar_points_exchange_many(move->to->element_points, field, 2);
        status = dpari_po_explain(move->comm, status, why);
    }
    dpari_po_free(&pages);
    return status;
}

/* Sets mesh->local of the first `reads` distinct ids: the local index if the point is an own one,
 * -1 if it becomes a ghost. Returns the number of ghosts. */
static int64_t dpari_pm_own(const dpari_pm *move, const dpari_pm_new *mesh, int64_t reads)
{
    const dpar_points_desc *desc = &move->to->desc;
    dpari_po_item *item = mesh->item;
    int64_t i, k = 0, others = 0;
    for (i = 0; i < desc->own_count; i++) {
        item[i].key = desc->own_id[i];
        item[i].id = 0;
        item[i].at = i;
    }
    item = dpari_po_sort(item, item + desc->own_count, desc->own_count);
    for (i = 0; i < reads; i++) {
        while (k < desc->own_count && item[k].key < mesh->reading[i]) {
            k++;
        }
        mesh->local[i] = -1;
        if (k < desc->own_count && item[k].key == mesh->reading[i]) {
            mesh->local[i] = (int32_t)item[k].at;
        } else {
            others++;
        }
    }
    return others;
}

/* Numbers the ghosts by owner, then by id, and converts the corners to local indices.
 *
 * memory: for the ids and owners of ghosts, and for the corners. */
static void dpari_pm_number(dpari_pm *move, const dpari_pm_new *mesh, int64_t reads,
                            int64_t *memory)
{
    dpar_points_desc *desc = &move->to->desc;
    int64_t *const id = memory;
    int32_t *const owner = (int32_t *)(void *)(id + desc->ghost_count);
    dpari_po_item *item = mesh->item;
    int64_t i, k = 0;
    move->to->corner = owner + desc->ghost_count;
    for (i = 0; i < mesh->slots; i++) { /* first collects the owner of each distinct id */
        move->to->corner[mesh->slot[i]] = mesh->owner[i];
    }
    for (i = 0; i < reads; i++) {
        if (mesh->local[i] < 0) {
            item[k].key = move->to->corner[i];
            item[k].id = mesh->reading[i];
            item[k].at = i;
            k++;
        }
    }
    item = dpari_po_sort(item, item + k, k);
    for (i = 0; i < k; i++) {
        id[i] = item[i].id;
        owner[i] = (int32_t)item[i].key;
        mesh->local[item[i].at] = (int32_t)(desc->own_count + i);
    }
    for (i = 0; i < mesh->slots; i++) {
        move->to->corner[i] = mesh->local[mesh->slot[i]];
    }
    desc->ghost_id = id;
    desc->owner = owner;
}

/* Makes the description of the mesh at its new owners: moves the corners and converts them to local
 * indices. Collective. */
static DPARI_COLD dpar_status dpari_pm_renumber(dpari_pm *move, dpar_why *why)
{
    void **memory = &move->to->memory[2];
    dpari_pm_new mesh;
    dpar_status status;
    dpari_zero(&mesh, sizeof mesh);
    status = dpari_pm_corners(move, &mesh, why);
    if (status == DPAR_OK) {
        const int64_t reads =
            dpari_pm_distinct(mesh.corner, mesh.slots, mesh.item, mesh.reading, mesh.slot);
        const int64_t ghosts = dpari_pm_own(move, &mesh, reads);
        status = dpar_comm_alloc(move->comm, 12 * ghosts + 4 * mesh.slots + 8, memory);
        if (status == DPAR_OK) {
            move->to->desc.ghost_count = ghosts;
            dpari_pm_number(move, &mesh, reads, (int64_t *)*memory);
        }
        status = dpari_agree(move->comm, dpari_po_explain(move->comm, status, why), why);
    }
    dpari_po_free(&mesh.pages);
    return status;
}

/* ---- the movement ---------------------------------------------------------------------------- */

/* Moves points, or elements if `elements` is 1. Memory and plan belong to the result even after a
 * failure, so that dpar_points_migration_free frees them. */
static DPARI_COLD dpar_status dpari_pm_go_items(dpari_pm *move, int elements, dpar_why *why)
{
    const dpar_points_migration_desc *desc = move->desc;
    dpar_points_migration *to = move->to;
    dpari_pm_move items;
    dpar_status status = DPAR_OK;
    dpari_zero(&items, sizeof items);
    items.count = elements ? desc->element_count : desc->point_count;
    items.id = elements ? desc->element_id : desc->id;
    items.order = elements ? desc->element_order : desc->order;
    items.owner = elements ? move->element_owner : move->owner;
    items.first = move->old->first_id;
    if (elements) {
        status = dpari_po_first(move->comm, items.count, &items.first, why);
    }
    if (status == DPAR_OK) {
        status = dpari_pm_move_plan(move->comm, &items, why);
    }
    to->memory[elements] = items.ids;
    if (elements) {
        to->element_points = items.plan;
        to->element_count = items.received;
        to->element_id = (int64_t *)items.ids;
    } else {
        to->points = items.plan;
        to->desc.own_count = items.received;
        to->desc.own_id = (const int64_t *)items.ids;
    }
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
    status = dpari_pm_go_items(move, 0, why);
    if (status != DPAR_OK || move->corners == 0) {
        return status;
    }
    status = dpari_pm_go_items(move, 1, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_pm_renumber(move, why);
}

/* Makes the plan of the old mesh, moves the mesh, and frees that plan. */
static DPARI_COLD dpar_status dpari_pm_run(dpari_pm *move, dpar_why *why)
{
    dpar_status closed;
    dpar_status status = dpari_pm_plan(move, why);
    if (status != DPAR_OK) {
        return status;
    }
    move->to->comm = move->comm;
    status = dpari_pm_go(move, why);
    closed = dpar_points_free(move->old);
    if (status == DPAR_OK) {
        status = dpari_po_explain(move->comm, closed, why);
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_points_migration_make(dpar_comm *comm,
                                                           const dpar_points_migration_desc *desc,
                                                           dpar_points_migration **moved,
                                                           dpar_why *why)
{
    dpari_pm move;
    void *memory = NULL;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_points_migration_make: comm is NULL");
    }
    why = dpari_why_of(comm, why);
    dpari_zero(&move, sizeof move);
    move.comm = comm;
    move.desc = desc;
    status = moved ? dpari_pm_check(comm, desc, why) : dpari_wrong(why, "moved is NULL");
    status = dpari_agree(comm, status, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_pm_alike(&move, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_po_explain(comm, dpar_comm_alloc(comm, sizeof *move.to, &memory), why);
    if (status == DPAR_OK) {
        status = dpari_pm_read(&move, why);
    }
    status = dpari_agree(comm, status, why);
    move.to = (dpar_points_migration *)memory;
    if (status == DPAR_OK) {
        status = dpari_pm_run(&move, why);
    }
    dpari_po_free(&move.pages);
    if (status == DPAR_OK) {
        *moved = move.to;
    } else if (move.to && move.to->comm) { /* it may already own plans and arrays */
        (void)dpar_points_migration_free(move.to);
    } else {
        dpar_comm_release(comm, memory);
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
