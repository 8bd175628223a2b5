/* SPDX-License-Identifier: MIT-0 */
/* Runs collectives by levels: each operation is a list of calls in the node's memory, before and
 * after messages between the ranks of a lane.
 *
 * dpari_mpi_levels_step posts one step after the other. FIRST and LAST are calls of the
 * shared-memory engine on the communicator of the node (`inside`), and BETWEEN uses the messages
 * and reductions of task_messages.c and rank_order.c, with the ranks of the lane in place of all
 * ranks. DPARI_MPI_TRADES uses BETWEEN alone, with all ranks as one lane. The sections below
 * describe the steps of each operation. */
#include "levels.h"

#include "mpi_types.h"
#include "notes.h"
#include "rank_order.h"
#include "task_messages.h"
#include "tasks.h"

/* Breaks the communicator because an operation in the node's memory has failed. Its message already
 * uses the rank numbers of ctx (dpari_group_call). */
static void dpari_mpi_inside_failed(dpari_mpi_task *task)
{
    dpari_mpi_hear_why(task->ctx);
    (void)dpari_mpi_break(task->ctx, task->inside.status, task->ctx->level.inside->why.text, 1);
}

DPARI_INTERNAL int dpari_mpi_post_inside(dpari_mpi_task *task, const dpar_call *call)
{
    const dpar_status status = dpari_post(task->ctx->level.inside, call, &task->inside);
    task->inside_on = status >= 0;
    if (status < 0) {
        task->inside.status = status;
        dpari_mpi_inside_failed(task);
    }
    return MPI_SUCCESS;
}

DPARI_INTERNAL int32_t dpari_mpi_inside_done(dpari_mpi_task *task)
{
    const dpar_status status = dpar_test(&task->inside);
    task->inside_on = status == DPAR_MORE;
    if (status < 0) {
        task->inside.status = status;
        dpari_mpi_inside_failed(task);
    }
    return status == DPAR_OK;
}

DPARI_INTERNAL int dpari_mpi_within(dpari_mpi_task *task)
{
    dpar_call call = task->call;
    task->last = 1;
    if (dpari_kind_sends(call.kind)) {
        call.root = task->ctx->level.lane_of[call.root];
    } else if (call.kind == DPAR_CALL_BARRIER) {
        call.root = 0; /* the barrier of a split has DPARI_SPLIT as its root */
    }
    return dpari_mpi_post_inside(task, &call);
}

DPARI_INTERNAL dpar_call dpari_mpi_inside_call(const dpari_mpi_task *task, int32_t kind,
                                               const void *in, void *out, int64_t count)
{
    dpar_call call;
    memset(&call, 0, sizeof call);
    call.kind = kind;
    call.type = task->call.type;
    call.op = dpari_kind_reduces(kind) ? task->op : 0;
    call.tag = task->call.tag;
    call.in = in;
    call.out = out;
    call.count = count;
    return call;
}

/* ---- the parts of lanes ---- */

/* True if one lane carries everything. A broadcast has a limit 4 times as high as an all-reduce. */
static int32_t dpari_mpi_by_first(const dpari_mpi_task *task)
{
    const int64_t bytes = dpari_mpi_bytes(task->call.type, task->call.count);
    return task->path == DPARI_MPI_TRADES || task->ctx->level.lanes == 1 ||
           bytes < (task->call.kind == DPAR_CALL_BROADCAST ? 4 : 1) * task->ctx->world->lanes_from;
}

/* Returns the number of lanes that carry parts of the call's array. dpari_mpi_lane returns this
 * rank's lane. */
static int32_t dpari_mpi_carriers(const dpari_mpi_task *task)
{
    return dpari_mpi_by_first(task) ? 1 : task->ctx->level.lanes;
}

static int32_t dpari_mpi_lane(const dpari_mpi_task *task)
{
    return task->path == DPARI_MPI_LEVELS ? task->ctx->level.inside->rank : 0;
}

/* True if the root of a broadcast itself sends to the other nodes, which then need not wait for
 * other ranks of its node. */
static int32_t dpari_mpi_root_sends(const dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    return task->call.kind == DPAR_CALL_BROADCAST && task->path == DPARI_MPI_LEVELS &&
           dpari_mpi_by_first(task) && levels->lane_of[task->call.root] < levels->lanes;
}

/* Returns the lane that carries small operations: for a broadcast that of the root, otherwise the
 * first. */
static int32_t dpari_mpi_lead(const dpari_mpi_task *task)
{
    return dpari_mpi_root_sends(task) ? task->ctx->level.lane_of[task->call.root] : 0;
}

/* Returns this lane's part of call.out, and sets *elements to its length: 0 for ranks that carry
 * nothing. */
static void *dpari_mpi_part(const dpari_mpi_task *task, int64_t *elements)
{
    const int32_t n = dpari_mpi_carriers(task), own = dpari_mpi_lane(task),
                  lead = dpari_mpi_lead(task);
    int64_t begin;
    int32_t lane = own;
    if (own == lead) { /* the lane that carries small operations comes first */
        lane = 0;
    } else if (own < lead) {
        lane = own + 1;
    }
    begin = dpari_mpi_cut(task->call.count, lane, n);
    *elements = dpari_mpi_cut(task->call.count, lane + 1, n) - begin;
    return dpari_mpi_at(task->call.out, task->call.type, begin);
}

/* Sets pieces[i] to the elements of the part that the node's i-th rank carries. Returns 0 if there
 * is no memory. */
static int32_t dpari_mpi_parts(dpari_mpi_task *task)
{
    const int32_t ranks = task->ctx->level.inside->size, n = dpari_mpi_carriers(task);
    int32_t i;
    if (task->pieces == NULL) {
        task->pieces = (int64_t *)malloc((size_t)ranks * 2 * sizeof *task->pieces);
    }
    for (i = 0; task->pieces != NULL && i < ranks; i++) {
        task->pieces[i] =
            dpari_mpi_cut(task->call.count, i + 1, n) - dpari_mpi_cut(task->call.count, i, n);
    }
    return task->pieces != NULL;
}

/* Distributes all parts of call.out to all ranks of the node. */
static int dpari_mpi_join_parts(dpari_mpi_task *task)
{
    dpar_call call;
    int64_t n;
    void *part = dpari_mpi_part(task, &n);
    if (dpari_mpi_by_first(task)) {
        call = dpari_mpi_inside_call(task, DPAR_CALL_BROADCAST, task->call.out, task->call.out,
                                     task->call.count);
        call.root = dpari_mpi_lead(task);
        return dpari_mpi_post_inside(task, &call);
    }
    if (!dpari_mpi_parts(task)) {
        return MPI_ERR_NO_MEM;
    }
    call = dpari_mpi_inside_call(task, DPAR_CALL_ALL_GATHER, part, task->call.out, n);
    call.variable_counts = 1;
    call.out_count = task->pieces;
    return dpari_mpi_post_inside(task, &call);
}

/* ---- all-reduce ---- */

/* Computes the node's sum of each part on the rank that carries it. */
static int dpari_mpi_sum_inside(dpari_mpi_task *task)
{
    dpar_call call;
    int64_t n;
    void *part = dpari_mpi_part(task, &n);
    if (dpari_mpi_by_first(task)) {
        call = dpari_mpi_inside_call(task, DPAR_CALL_REDUCE, task->call.in, task->call.out,
                                     task->call.count);
        return dpari_mpi_post_inside(task, &call);
    }
    if (!dpari_mpi_parts(task)) {
        return MPI_ERR_NO_MEM;
    }
    call = dpari_mpi_inside_call(task, DPAR_CALL_REDUCE_SCATTER, task->call.in, part, n);
    call.variable_counts = 1;
    call.in_count = task->pieces;
    return dpari_mpi_post_inside(task, &call);
}

/* Turns a small sum of 16-bit floats into a sum of f32, which dpari_mpi_levels_land rounds at the
 * end. Returns 0 if there is no memory. */
static int32_t dpari_mpi_take_wide(dpari_mpi_task *task)
{
    const int64_t n = task->call.count;
    task->wide = (float *)malloc((size_t)n * 2 * sizeof *task->wide);
    if (task->wide == NULL) {
        return 0;
    }
    dpari_mpi_convert(DPAR_F32, task->wide, task->call.type, task->call.in, n);
    task->half = task->call.type;
    task->half_out = task->call.out;
    task->call.type = DPAR_F32;
    task->call.in = task->wide;
    task->call.out = task->wide + n;
    return 1;
}

/* Returns the path by which nodes reduce, which depends on their number and on the bytes. It must
 * not depend on a measurement, because it determines the order of the additions. */
static int32_t dpari_mpi_between_path(const dpari_mpi_task *task)
{
    const int64_t lanes = task->path == DPARI_MPI_LEVELS ? task->ctx->level.lanes : 1;
    const int64_t bytes = dpari_mpi_bytes(task->call.type, task->call.count) / lanes;
    if (bytes >= DPARI_MPI_LANES && bytes / task->ranks >= DPARI_MPI_WORTH) {
        return DPARI_MPI_ORDERED;
    }
    return task->ranks <= DPARI_MPI_DIRECT ? DPARI_MPI_GATHERED : DPARI_MPI_DOUBLING;
}

static int dpari_mpi_sum_between(dpari_mpi_task *task)
{
    const int32_t path = dpari_mpi_between_path(task);
    if (path == DPARI_MPI_ORDERED) {
        return dpari_mpi_ordered(task);
    }
    return path == DPARI_MPI_GATHERED ? dpari_mpi_gathered(task) : dpari_mpi_doubling(task);
}

static void dpari_mpi_sum_between_land(dpari_mpi_task *task)
{
    const int32_t path = dpari_mpi_between_path(task);
    if (path == DPARI_MPI_ORDERED) {
        dpari_mpi_ordered_land(task);
    } else if (path == DPARI_MPI_GATHERED) {
        dpari_mpi_gathered_land(task);
    } else {
        dpari_mpi_doubling_land(task);
    }
    if (task->ended && task->call.op == DPAR_AVG) {
        dpari_mpi_divide(task->call.type, task->out, task->elements, task->ctx->comm.size);
    }
}

/* ---- broadcast ----
 *
 * A small array: BETWEEN sends it from the root to the ranks of its lane, by a tree, and LAST sends
 * it in the nodes. A large array: FIRST sends it in the root's node, BETWEEN sends each lane's part
 * from there to the other nodes, and LAST distributes the parts in these nodes. */

static int dpari_mpi_spread_inside(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    dpar_call call;
    if (levels->node_of[task->call.root] != levels->node) {
        return MPI_SUCCESS;
    }
    call = dpari_mpi_inside_call(task, DPAR_CALL_BROADCAST, task->call.out, task->call.out,
                                 task->call.count);
    call.root = levels->lane_of[task->call.root];
    return dpari_mpi_post_inside(task, &call);
}

/* Runs one round of the tree: each of the first 2^round members, counted from the root's, has the
 * data and sends it to a member that does not have it yet. */
static int dpari_mpi_spread_between(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int32_t n = task->ranks, have = 1 << task->round;
    const int32_t root =
        task->path == DPARI_MPI_LEVELS ? levels->node_of[task->call.root] : task->call.root;
    const int32_t at = (task->me - root + n) % n;
    task->last = 2 * have >= n;
    if (!dpari_mpi_reserve(task, 1)) {
        return MPI_ERR_NO_MEM;
    }
    if (at < have && at + have < n) {
        return dpari_mpi_trade(task, (task->me + have) % n, NULL, 0, task->out, task->elements);
    }
    return at >= have && at < 2 * have ? dpari_mpi_trade(task, (task->me - have + n) % n, task->out,
                                                         task->elements, NULL, 0)
                                       : MPI_SUCCESS;
}

/* ---- barrier ---- */

static int dpari_mpi_meet_inside(dpari_mpi_task *task)
{
    dpar_call call = dpari_mpi_inside_call(task, DPAR_CALL_BARRIER, NULL, NULL, 0);
    call.type = DPAR_TYPE_NONE;
    return dpari_mpi_post_inside(task, &call);
}

/* ---- all-gather, if all nodes have the same number of ranks ----
 *
 * BETWEEN gathers in each lane the pieces of its ranks. LAST has one leg for each node, in which
 * this node gathers the pieces of that node from its lanes. */

static int dpari_mpi_gather_between(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    task->last = 1;
    return dpari_mpi_trade_each(task, call->out, task->peer, call->in, 0, call->count);
}

static int dpari_mpi_gather_inside(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int32_t n = levels->inside->size, *member = levels->member + levels->begin[task->leg];
    dpar_call call;
    int32_t i;
    if (task->pieces == NULL) {
        task->pieces = (int64_t *)malloc((size_t)n * 2 * sizeof *task->pieces);
    }
    for (i = 0; task->pieces != NULL && i < n; i++) {
        task->pieces[i] = task->call.count;
        task->pieces[n + i] = member[i] * task->call.count;
    }
    if (task->pieces == NULL) {
        return MPI_ERR_NO_MEM;
    }
    call = dpari_mpi_inside_call(
        task, DPAR_CALL_ALL_GATHER,
        dpari_mpi_at(task->call.out, task->call.type, task->pieces[n + dpari_mpi_lane(task)]),
        task->call.out, task->call.count);
    call.variable_counts = 1;
    call.out_count = task->pieces;
    call.out_first = task->pieces + n;
    task->leg++;
    task->last = task->leg == levels->nodes;
    return dpari_mpi_post_inside(task, &call);
}

/* ---- all-to-all ---- */

static int dpari_mpi_all_between(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    const void *in = dpari_mpi_apart(task, call->in, call->out,
                                     dpari_mpi_bytes(call->type, call->count * task->ranks));
    task->last = 1;
    if (in == NULL) {
        return MPI_ERR_NO_MEM;
    }
    return dpari_mpi_trade_each(task, call->out, NULL, in, call->count, call->count);
}

/* ---- a small all-to-all, if all nodes have the same number of ranks ----
 *
 * FIRST collects on each rank the pieces that its node sends to the ranks of its lane. BETWEEN
 * sends one message to each of those ranks, with the pieces from all ranks of the node, in place of
 * a message from each rank to each rank. */

/* Copies the pieces of a table with these rows and columns to its transpose. */
static void dpari_mpi_transpose(void *to, const void *from, int64_t piece, int32_t rows,
                                int32_t columns)
{
    int32_t i, k;
    for (i = 0; i < rows; i++) {
        for (k = 0; k < columns; k++) {
            dpari_mpi_copy((char *)to + (k * (int64_t)rows + i) * piece,
                           (const char *)from + (i * (int64_t)columns + k) * piece, piece);
        }
    }
}

static int dpari_mpi_deal_inside(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int64_t piece = dpari_mpi_bytes(task->call.type, task->call.count);
    const int32_t n = task->ctx->comm.size, lanes = levels->lanes;
    char *deal = (char *)dpari_mpi_scratch(task, 2 * n * piece);
    dpar_call call;
    int32_t i;
    if (deal == NULL) {
        return MPI_ERR_NO_MEM;
    }
    for (i = 0; i < n; i++) { /* [lane][node] */
        dpari_mpi_copy(deal + (i % lanes * (int64_t)levels->nodes + i / lanes) * piece,
                       (const char *)task->call.in + levels->member[i] * piece, piece);
    }
    call = dpari_mpi_inside_call(task, DPAR_CALL_ALL_TO_ALL, deal, deal + n * piece,
                                 task->call.count * levels->nodes);
    return dpari_mpi_post_inside(task, &call);
}

static int dpari_mpi_deal_between(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int64_t piece = dpari_mpi_bytes(task->call.type, task->call.count),
                  n = task->call.count * levels->lanes;
    char *dealt = (char *)task->memory + task->ctx->comm.size * piece;
    task->last = 1;
    dpari_mpi_transpose(task->memory, dealt, piece, levels->lanes,
                        levels->nodes); /* [node][lane] */
    return dpari_mpi_trade_each(task, dealt, NULL, task->memory, n, n);
}

static void dpari_mpi_deal_land(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int64_t piece = dpari_mpi_bytes(task->call.type, task->call.count);
    const int32_t n = task->ctx->comm.size;
    int32_t i;
    for (i = 0; i < n; i++) {
        dpari_mpi_copy((char *)task->call.out + levels->member[i] * piece,
                       (const char *)task->memory + (n + i) * piece, piece);
    }
}

/* ---- reduce-scatter, if all nodes have the same number of consecutive ranks ----
 *
 * FIRST has one leg for each node, in which the ranks of this node add up their pieces for that
 * node, one piece for each lane. BETWEEN sends each sum to its node, where the sums of all nodes
 * are added. */

static int dpari_mpi_scatter_inside(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const dpar_call *of = &task->call;
    dpar_call call;
    void *x = dpari_mpi_scratch(task, dpari_mpi_bytes(of->type, of->count * 2 * levels->nodes));
    if (x == NULL) {
        return MPI_ERR_NO_MEM;
    }
    call = dpari_mpi_inside_call(
        task, DPAR_CALL_REDUCE_SCATTER,
        dpari_mpi_past(of->in, of->type, levels->begin[task->leg] * of->count),
        dpari_mpi_at(x, of->type, (levels->nodes + task->leg) * of->count), of->count);
    task->leg++;
    return dpari_mpi_post_inside(task, &call);
}

static int dpari_mpi_scatter_between(dpari_mpi_task *task)
{
    const int64_t n = task->call.count;
    const void *from = dpari_mpi_past(task->memory, task->call.type, task->ranks * n);
    task->last = 1;
    return dpari_mpi_trade_each(task, task->memory, NULL, from, n, n);
}

static void dpari_mpi_scatter_between_land(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    dpari_mpi_reduce_rows(task, call->out, call->count, call->count);
    if (call->op == DPAR_AVG) {
        dpari_mpi_divide(call->type, call->out, call->count, task->ctx->comm.size);
    }
}

/* ---- the three steps ---- */

static int dpari_mpi_level_first(dpari_mpi_task *task)
{
    switch (task->call.kind) {
    case DPAR_CALL_BARRIER: return dpari_mpi_meet_inside(task);
    case DPAR_CALL_ALL_REDUCE: return dpari_mpi_sum_inside(task);
    case DPAR_CALL_BROADCAST: return dpari_mpi_spread_inside(task);
    case DPAR_CALL_REDUCE_SCATTER: return dpari_mpi_scatter_inside(task);
    case DPAR_CALL_ALL_TO_ALL: return dpari_mpi_deal_inside(task);
    default: return MPI_SUCCESS;
    }
}

static int dpari_mpi_level_between(dpari_mpi_task *task)
{
    switch (task->call.kind) {
    case DPAR_CALL_ALL_GATHER: return dpari_mpi_gather_between(task);
    case DPAR_CALL_ALL_TO_ALL:
        return task->path == DPARI_MPI_LEVELS ? dpari_mpi_deal_between(task)
                                              : dpari_mpi_all_between(task);
    case DPAR_CALL_BROADCAST: return dpari_mpi_spread_between(task);
    case DPAR_CALL_REDUCE_SCATTER: return dpari_mpi_scatter_between(task);
    default: return dpari_mpi_sum_between(task);
    }
}

static int dpari_mpi_level_last(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    task->last = 1;
    if (task->path == DPARI_MPI_TRADES) {
        return MPI_SUCCESS;
    }
    switch (task->call.kind) {
    case DPAR_CALL_BARRIER: return dpari_mpi_meet_inside(task);
    case DPAR_CALL_ALL_GATHER: return dpari_mpi_gather_inside(task);
    case DPAR_CALL_BROADCAST:
        if (levels->node_of[task->call.root] == levels->node && !dpari_mpi_root_sends(task)) {
            return MPI_SUCCESS; /* FIRST has distributed the data in the root's node */
        }
        return dpari_mpi_join_parts(task);
    case DPAR_CALL_ALL_TO_ALL:
    case DPAR_CALL_REDUCE_SCATTER: return MPI_SUCCESS;
    default: return dpari_mpi_join_parts(task);
    }
}

/* Sets the data that this rank sends between nodes: its part of an all-reduce or broadcast, one
 * number in a barrier, otherwise pieces. */
static void dpari_mpi_level_begin_between(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    int64_t n = task->call.count;
    void *part = task->call.out;
    if (task->call.kind == DPAR_CALL_ALL_REDUCE || task->call.kind == DPAR_CALL_BROADCAST) {
        part = dpari_mpi_part(task, &n);
    } else if (task->call.kind == DPAR_CALL_BARRIER) {
        task->call.type = DPAR_I64;
        part = task->check;
        n = dpari_mpi_lane(task) == 0;
    }
    if (task->path == DPARI_MPI_LEVELS) {
        dpari_mpi_among(task, levels->lane, levels->nodes, levels->node, part, part, n);
    } else {
        dpari_mpi_among(task, NULL, task->ctx->comm.size, task->ctx->comm.rank, part, part, n);
    }
}

/* Returns the number of legs of FIRST. */
static int32_t dpari_mpi_legs(const dpari_mpi_task *task)
{
    if (task->path == DPARI_MPI_TRADES || task->call.kind == DPAR_CALL_ALL_GATHER ||
        dpari_mpi_root_sends(task)) {
        return 0;
    }
    return task->call.kind == DPAR_CALL_REDUCE_SCATTER ? task->ctx->level.nodes : 1;
}

DPARI_INTERNAL int dpari_mpi_levels_step(dpari_mpi_task *task)
{
    int code;
    if (task->level == DPARI_MPI_FIRST && task->leg < dpari_mpi_legs(task)) {
        task->leg += task->call.kind != DPAR_CALL_REDUCE_SCATTER;
        if (task->call.kind == DPAR_CALL_ALL_REDUCE && dpari_mpi_is_half(task->call.type) &&
            !dpari_mpi_take_wide(task)) {
            return MPI_ERR_NO_MEM;
        }
        return dpari_mpi_level_first(task);
    }
    if (task->level == DPARI_MPI_FIRST) {
        task->level = DPARI_MPI_BETWEEN;
        task->leg = 0;
        dpari_mpi_level_begin_between(task);
        task->ended = task->elements == 0; /* this rank carries nothing */
    }
    if (task->level == DPARI_MPI_BETWEEN && !task->ended) {
        code = dpari_mpi_level_between(task);
        task->ended = task->last;
        task->last = 0;
        return code;
    }
    task->level = DPARI_MPI_LAST;
    return dpari_mpi_level_last(task);
}

DPARI_INTERNAL void dpari_mpi_levels_land(dpari_mpi_task *task)
{
    if (task->level == DPARI_MPI_LAST && task->half) {
        dpari_mpi_convert(task->half, task->half_out, DPAR_F32, task->call.out, task->call.count);
    }
    if (task->level != DPARI_MPI_BETWEEN) {
        return;
    }
    switch (task->call.kind) {
    case DPAR_CALL_ALL_GATHER: break;
    case DPAR_CALL_ALL_TO_ALL:
        if (task->path == DPARI_MPI_LEVELS) {
            dpari_mpi_deal_land(task);
        }
        break;
    case DPAR_CALL_BROADCAST: task->round++; break;
    case DPAR_CALL_REDUCE_SCATTER: dpari_mpi_scatter_between_land(task); break;
    default: dpari_mpi_sum_between_land(task); break;
    }
}
