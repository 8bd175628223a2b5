/* SPDX-License-Identifier: MIT-0 */
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
#ifndef DPARI_POINTS_POINTS_H
#define DPARI_POINTS_POINTS_H

#include "../base/text.h"
#include "../comm/comm.h"
#include "../index/layout.h"

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

#endif
