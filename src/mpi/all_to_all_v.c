/* SPDX-License-Identifier: MIT-0 */
/* Runs an all_to_all_v by nodes, in the three legs that all_to_all_v.h describes.
 *
 * The offsets of the user's pieces are computed on the first leg and kept in task->pieces. The
 * slots, the pieces that do not fit into them and the messages are parts of one block of scratch
 * memory, whose layout dpari_mpi_deals_of computes again for each leg from numbers that do not
 * change. Called by progress.c. */
#include "all_to_all_v.h"

#include "exchange_v.h"
#include "levels.h"
#include "mpi_types.h"
#include "task_messages.h"
#include "tasks.h"

typedef struct dpari_mpi_deals {
    int32_t ranks;        /* number of ranks of this node */
    int32_t served;       /* the most ranks of other nodes for which a rank of this node carries
                             pieces */
    int64_t most;         /* the most elements of a small piece */
    int64_t room, slot;   /* bytes for the pieces in a slot, and of the whole slot */
    int64_t message;      /* the most bytes of a message for each rank whose pieces are in it */
    char *give, *got;     /* [ranks] slots that this rank passes and receives */
    char *spill, *spilt;  /* small pieces that do not fit into slots: those that are passed and
                             received */
    char *out, *in;       /* the messages that are sent, [served][ranks], and received, [ranks of
                             other nodes] */
    int64_t *begin_in;    /* [size] offsets of the pieces in the user's `in` */
    int64_t *begin_out;   /* [size] and in the user's `out` */
    int64_t *count, *at;  /* [ranks] counts and offsets of the data that is passed in the node, */
    int64_t *counts, *to; /* [ranks] and of the data that is received */
} dpari_mpi_deals;

static int32_t dpari_mpi_deal_ranks(const dpari_mpi_levels *levels, int32_t node)
{
    return levels->begin[node + 1] - levels->begin[node];
}

/* Returns the number, among the ranks of `node`, of the one that carries the node's pieces for
 * `rank`. */
static int32_t dpari_mpi_carrier(const dpari_mpi_levels *levels, int32_t node, int32_t rank)
{
    return levels->lane_of[rank] % dpari_mpi_deal_ranks(levels, node);
}

/* Returns the most ranks of other nodes for which a rank of this node carries pieces. */
static int32_t dpari_mpi_deal_served(const dpari_mpi_levels *levels)
{
    const int32_t ranks = dpari_mpi_deal_ranks(levels, levels->node);
    int32_t k, n = 0;
    for (k = 0; k < levels->nodes; k++) {
        n += k == levels->node ? 0 : (dpari_mpi_deal_ranks(levels, k) - 1) / ranks + 1;
    }
    return n;
}

/* Allocates the memory on the first call, and sets the fields of `deals`, which point into it.
 * Returns 0 if there is no memory. */
static int32_t dpari_mpi_deals_of(dpari_mpi_task *task, dpari_mpi_deals *deals)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int32_t n = task->ctx->comm.size;
    const int64_t bytes = task->ctx->world->dealt[1];
    int64_t other;
    deals->ranks = dpari_mpi_deal_ranks(levels, levels->node);
    deals->served = dpari_mpi_deal_served(levels);
    deals->most = bytes / dpar_type_bytes(task->call.type);
    deals->room = dpari_least(DPARI_MPI_SLOT_MOST, DPARI_MPI_SLOT / deals->ranks / 8 * 8);
    deals->slot = 8 * (1 + (int64_t)deals->served) + deals->room;
    deals->message = 8 + bytes;
    other = n - deals->ranks;
    if (task->pieces == NULL) {
        task->pieces =
            (int64_t *)malloc(((size_t)n * 2 + (size_t)deals->ranks * 4) * sizeof *task->pieces);
    }
    deals->give = (char *)dpari_mpi_scratch(
        task, 2 * deals->ranks * deals->slot + other * (bytes + deals->message) +
                  (int64_t)deals->served * deals->ranks * (bytes + deals->message));
    if (task->pieces == NULL || deals->give == NULL) {
        return 0;
    }
    deals->got = deals->give + deals->ranks * deals->slot;
    deals->spill = deals->got + deals->ranks * deals->slot;
    deals->spilt = deals->spill + other * bytes;
    deals->out = deals->spilt + (int64_t)deals->served * deals->ranks * bytes;
    deals->in = deals->out + (int64_t)deals->served * deals->ranks * deals->message;
    deals->begin_in = task->pieces;
    deals->begin_out = deals->begin_in + n;
    deals->count = deals->begin_out + n;
    deals->at = deals->count + deals->ranks;
    deals->counts = deals->at + deals->ranks;
    deals->to = deals->counts + deals->ranks;
    return 1;
}

/* Returns the numbers at the beginning of slot i: a flag that is 1 if any slot of its sender is too
 * small, then counts. */
static int64_t *dpari_mpi_slot_counts(const dpari_mpi_deals *deals, char *slots, int32_t i)
{
    return (int64_t *)(void *)(slots + i * deals->slot);
}

static char *dpari_mpi_slot_pieces(const dpari_mpi_deals *deals, char *slots, int32_t i)
{
    return slots + (i + 1) * deals->slot - deals->room;
}

/* Returns the bytes of a piece of n elements if it is small, otherwise 0. */
static int64_t dpari_mpi_small_bytes(const dpari_mpi_task *task, const dpari_mpi_deals *deals,
                                     int64_t n)
{
    return n > deals->most ? 0 : dpari_mpi_bytes(task->call.type, n);
}

/* Computes the offsets of the pieces that this rank sends and of those that it receives. */
static void dpari_mpi_deal_begins(const dpari_mpi_task *task, const dpari_mpi_deals *deals)
{
    const dpar_call *call = &task->call;
    int64_t in = 0, out = 0;
    int32_t r;
    for (r = 0; r < task->ctx->comm.size; r++) {
        deals->begin_in[r] = call->in_first != NULL ? call->in_first[r] : in;
        deals->begin_out[r] = call->out_first != NULL ? call->out_first[r] : out;
        in += call->in_count[r];
        out += call->out_count[r];
    }
}

/* Copies the small pieces to `to`: those that the node's i-th rank carries are stored from at[i]
 * on. */
static void dpari_mpi_deal_pack(const dpari_mpi_task *task, const dpari_mpi_deals *deals, char *to,
                                int64_t *at)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    int32_t r;
    for (r = 0; r < task->ctx->comm.size; r++) {
        if (levels->node_of[r] != levels->node) {
            const int32_t i = dpari_mpi_carrier(levels, levels->node, r);
            const int64_t bytes = dpari_mpi_small_bytes(task, deals, task->call.in_count[r]);
            dpari_mpi_copy(to + at[i],
                           dpari_mpi_past(task->call.in, task->call.type, deals->begin_in[r]),
                           bytes);
            at[i] += bytes;
        }
    }
}

/* Runs leg 0: passes the slots. */
static int dpari_mpi_deal_slots(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    dpari_mpi_deals d;
    dpar_call call;
    int32_t r, i, lacks = 0;
    if (task->call.in == task->call.out) { /* not in scratch memory, which the slots use */
        task->aside = (char *)malloc((size_t)dpari_mpi_aside_bytes(task) + 1);
        if (!dpari_mpi_set_aside(task, task->aside)) {
            return MPI_ERR_NO_MEM;
        }
    }
    if (!dpari_mpi_deals_of(task, &d)) {
        return MPI_ERR_NO_MEM;
    }
    dpari_mpi_deal_begins(task, &d);
    for (i = 0; i < d.ranks; i++) { /* ranks that carry for fewer leave some counts unset */
        memset(dpari_mpi_slot_counts(&d, d.give, i), 0, (size_t)(d.slot - d.room));
    }
    memset(d.count, 0, (size_t)d.ranks * sizeof *d.count); /* bytes */
    memset(d.at, 0, (size_t)d.ranks * sizeof *d.at);       /* pieces */
    for (r = 0; r < task->ctx->comm.size; r++) {
        if (levels->node_of[r] != levels->node) {
            i = dpari_mpi_carrier(levels, levels->node, r);
            d.at[i]++;
            dpari_mpi_slot_counts(&d, d.give, i)[d.at[i]] = task->call.in_count[r];
            d.count[i] += dpari_mpi_small_bytes(task, &d, task->call.in_count[r]);
        }
    }
    for (i = 0; i < d.ranks; i++) {
        lacks |= d.count[i] > d.room;
    }
    for (i = 0; i < d.ranks; i++) {
        dpari_mpi_slot_counts(&d, d.give, i)[0] = lacks;
        d.at[i] = dpari_mpi_slot_pieces(&d, d.give, i) - d.give;
    }
    if (!lacks) {
        dpari_mpi_deal_pack(task, &d, d.give, d.at);
    }
    call = dpari_mpi_inside_call(task, DPAR_CALL_ALL_TO_ALL, d.give, d.got, d.slot);
    call.type = DPAR_U8;
    return dpari_mpi_post_inside(task, &call);
}

/* Returns the bytes of the small pieces that this rank carries for the node's i-th rank. */
static int64_t dpari_mpi_deal_bytes(const dpari_mpi_task *task, const dpari_mpi_deals *deals,
                                    int32_t i)
{
    const int64_t *counts = dpari_mpi_slot_counts(deals, deals->got, i) + 1;
    int64_t bytes = 0;
    int32_t j;
    for (j = 0; j < deals->served; j++) {
        bytes += dpari_mpi_small_bytes(task, deals, counts[j]);
    }
    return bytes;
}

/* Exchanges pieces in the node, with the counts and offsets in `deals`. */
static int dpari_mpi_deal_pass(dpari_mpi_task *task, const dpari_mpi_deals *deals, int32_t type,
                               const void *in, void *out)
{
    dpar_call call = dpari_mpi_inside_call(task, DPAR_CALL_ALL_TO_ALL, in, out, 0);
    call.type = type;
    call.variable_counts = 1;
    call.in_count = deals->count;
    call.in_first = deals->at;
    call.out_count = deals->counts;
    call.out_first = deals->to;
    return dpari_mpi_post_inside(task, &call);
}

/* Runs leg 1: passes the small pieces that did not fit into slots. */
static int dpari_mpi_deal_spill(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    dpari_mpi_deals d;
    int64_t at = 0, to = 0;
    int32_t r, i;
    if (!dpari_mpi_deals_of(task, &d)) {
        return MPI_ERR_NO_MEM;
    }
    memset(d.count, 0, (size_t)d.ranks * sizeof *d.count);
    if (dpari_mpi_slot_counts(&d, d.give, 0)[0]) {
        for (r = 0; r < task->ctx->comm.size; r++) {
            if (levels->node_of[r] != levels->node) {
                d.count[dpari_mpi_carrier(levels, levels->node, r)] +=
                    dpari_mpi_small_bytes(task, &d, task->call.in_count[r]);
            }
        }
        for (i = 0; i < d.ranks; i++) {
            d.at[i] = at;
            at += d.count[i];
        }
        dpari_mpi_deal_pack(task, &d, d.spill, d.at);
    }
    for (i = 0, at = 0; i < d.ranks; i++) {
        d.at[i] = at;
        d.to[i] = to;
        d.counts[i] =
            dpari_mpi_slot_counts(&d, d.got, i)[0] ? dpari_mpi_deal_bytes(task, &d, i) : 0;
        at += d.count[i];
        to += d.counts[i];
    }
    return dpari_mpi_deal_pass(task, &d, DPAR_U8, d.spill, d.spilt);
}

static int dpari_mpi_deal_tag(const dpari_mpi_task *task)
{
    return DPARI_MPI_TAG_DEALT + (int)(task->sequence % DPARI_MPI_TAGS_DEALT);
}

/* Converts bytes to a number of elements of the call's type. */
static int64_t dpari_mpi_deal_elements(const dpari_mpi_task *task, int64_t bytes)
{
    return bytes / dpar_type_bytes(task->call.type);
}

/* True if this rank expects a message from `node`: another node whose pieces are not all large. */
static int32_t dpari_mpi_deal_comes(const dpari_mpi_task *task, const dpari_mpi_deals *deals,
                                    int32_t node)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    int32_t k;
    for (k = levels->begin[node]; k < levels->begin[node + 1]; k++) {
        if (task->call.out_count[levels->member[k]] <= deals->most) {
            return node != levels->node;
        }
    }
    return 0;
}

/* Returns where the message from a node is received. */
static char *dpari_mpi_deal_in(const dpari_mpi_task *task, const dpari_mpi_deals *deals,
                               int32_t node)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int32_t before = levels->begin[node] - (node > levels->node ? deals->ranks : 0);
    return deals->in + before * deals->message;
}

static int dpari_mpi_deal_receive(dpari_mpi_task *task, const dpari_mpi_deals *deals)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const dpar_call *call = &task->call;
    int32_t node, k, code = MPI_SUCCESS;
    for (node = 0; node < levels->nodes && code == MPI_SUCCESS; node++) {
        const int32_t ranks = dpari_mpi_deal_ranks(levels, node);
        if (node == levels->node) {
            continue;
        }
        if (dpari_mpi_deal_comes(task, deals, node)) {
            const int32_t from =
                levels->member[levels->begin[node] +
                               dpari_mpi_carrier(levels, node, task->ctx->comm.rank)];
            code = dpari_mpi_recv_one(task, task->ctx->side, dpari_mpi_deal_tag(task), from,
                                      dpari_mpi_deal_in(task, deals, node),
                                      dpari_mpi_deal_elements(task, ranks * deals->message));
            task->piece[task->requests - 1].whole =
                -1; /* its length follows from the counts in it */
        }
        for (k = levels->begin[node]; k < levels->begin[node + 1] && code == MPI_SUCCESS; k++) {
            const int32_t r = levels->member[k];
            if (call->out_count[r] > deals->most) {
                code = dpari_mpi_recv_piece(
                    task, task->ctx->side, dpari_mpi_piece_tag(task), r,
                    dpari_mpi_at(call->out, call->type, deals->begin_out[r]), call->out_count[r]);
            }
        }
    }
    return code;
}

/* Builds the message for the j-th rank for which this one carries pieces. Returns its bytes, or 0
 * if none is sent. deals->at[i], the offset from `give` of the next piece from the node's i-th
 * rank, advances. */
static int64_t dpari_mpi_deal_message(const dpari_mpi_task *task, const dpari_mpi_deals *deals,
                                      int32_t j, char *out)
{
    char *to = out + 8 * deals->ranks;
    int32_t i, small = 0;
    for (i = 0; i < deals->ranks; i++) {
        const int64_t n = dpari_mpi_slot_counts(deals, deals->got, i)[1 + j];
        const int64_t bytes = dpari_mpi_small_bytes(task, deals, n);
        small |= n <= deals->most;
        memcpy(out + 8 * i, &n, 8);
        dpari_mpi_copy(to, deals->give + deals->at[i], bytes);
        to += bytes;
        deals->at[i] += bytes;
    }
    return small ? to - out : 0;
}

static int dpari_mpi_deal_send(dpari_mpi_task *task, const dpari_mpi_deals *deals)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const dpar_call *call = &task->call;
    char *out = deals->out;
    int64_t spilt = deals->spilt - deals->give;
    int32_t r, i, j = 0, code = MPI_SUCCESS;
    for (i = 0; i < deals->ranks; i++) {
        const int32_t lacks = dpari_mpi_slot_counts(deals, deals->got, i)[0] != 0;
        deals->at[i] = lacks ? spilt : dpari_mpi_slot_pieces(deals, deals->got, i) - deals->give;
        spilt += lacks ? dpari_mpi_deal_bytes(task, deals, i) : 0;
    }
    for (r = 0; r < task->ctx->comm.size && code == MPI_SUCCESS; r++) {
        if (levels->node_of[r] == levels->node) {
            continue;
        }
        if (levels->member[levels->begin[levels->node] +
                           dpari_mpi_carrier(levels, levels->node, r)] == task->ctx->comm.rank) {
            const int64_t bytes = dpari_mpi_deal_message(task, deals, j, out);
            if (bytes > 0) {
                code = dpari_mpi_send_one(task, task->ctx->side, dpari_mpi_deal_tag(task), r, out,
                                          dpari_mpi_deal_elements(task, bytes));
            }
            out += deals->ranks * deals->message;
            j++;
        }
        if (call->in_count[r] > deals->most && code == MPI_SUCCESS) {
            code = dpari_mpi_send_piece(task, task->ctx->side, dpari_mpi_piece_tag(task), r,
                                        dpari_mpi_past(call->in, call->type, deals->begin_in[r]),
                                        call->in_count[r]);
        }
    }
    return code;
}

/* Exchanges the pieces that stay in the node. */
static int dpari_mpi_deal_stay(dpari_mpi_task *task, const dpari_mpi_deals *deals)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    int32_t i;
    for (i = 0; i < deals->ranks; i++) {
        const int32_t r = levels->member[levels->begin[levels->node] + i];
        deals->count[i] = task->call.in_count[r];
        deals->at[i] = deals->begin_in[r];
        deals->counts[i] = task->call.out_count[r];
        deals->to[i] = deals->begin_out[r];
    }
    return dpari_mpi_deal_pass(task, deals, task->call.type, task->call.in, task->call.out);
}

DPARI_INTERNAL int dpari_mpi_deals_step(dpari_mpi_task *task)
{
    dpari_mpi_deals d;
    int code;
    if (task->leg < 2) {
        return task->leg == 0 ? dpari_mpi_deal_slots(task) : dpari_mpi_deal_spill(task);
    }
    task->last = 1;
    if (!dpari_mpi_deals_of(task, &d) ||
        !dpari_mpi_reserve(task, 3 * (task->ctx->comm.size - d.ranks))) {
        return MPI_ERR_NO_MEM;
    }
    code = dpari_mpi_deal_receive(task, &d);
    if (code == MPI_SUCCESS) {
        code = dpari_mpi_deal_send(task, &d);
    }
    return code == MPI_SUCCESS ? dpari_mpi_deal_stay(task, &d) : code;
}

/* Compares the counts in the message from a node with those that this rank expects, and copies the
 * pieces to their places if all counts agree. */
static void dpari_mpi_deal_take(dpari_mpi_task *task, const dpari_mpi_deals *deals, int32_t node,
                                const char *in)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int32_t ranks = dpari_mpi_deal_ranks(levels, node),
                  *member = levels->member + levels->begin[node];
    const char *from = in + 8 * ranks;
    int32_t i;
    for (i = 0; i < ranks; i++) {
        int64_t n;
        memcpy(&n, in + 8 * i, 8);
        if (n != task->call.out_count[member[i]]) {
            dpari_mpi_mismatch(task, member[i], n, task->call.out_count[member[i]]);
            return;
        }
    }
    for (i = 0; i < ranks; i++) {
        const int64_t bytes = dpari_mpi_small_bytes(task, deals, task->call.out_count[member[i]]);
        dpari_mpi_copy(dpari_mpi_at(task->call.out, task->call.type, deals->begin_out[member[i]]),
                       from, bytes);
        from += bytes;
    }
}

DPARI_INTERNAL void dpari_mpi_deals_land(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    dpari_mpi_deals d;
    int32_t i, spills = 0;
    (void)dpari_mpi_deals_of(task, &d); /* cannot fail: the memory exists already */
    if (task->leg == 0) {
        for (i = 0; i < d.ranks; i++) {
            spills |= dpari_mpi_slot_counts(&d, d.got, i)[0] != 0;
        }
        task->leg = spills ? 1 : 2;
        return;
    }
    if (task->leg == 1) {
        task->leg = 2;
        return;
    }
    for (i = 0; i < levels->nodes && task->ctx->comm.status >= 0; i++) {
        if (dpari_mpi_deal_comes(task, &d, i)) {
            dpari_mpi_deal_take(task, &d, i, dpari_mpi_deal_in(task, &d, i));
        }
    }
}

/* Breaks the communicator if a large piece has arrived from rank r, whose piece should be small. */
static void dpari_mpi_deal_probe_large(dpari_mpi_task *task, int32_t r)
{
    MPI_Status status;
    MPI_Count n = 0;
    int there = 0;
    if (MPI_Iprobe(r, dpari_mpi_piece_tag(task), task->ctx->side, &there, &status) == MPI_SUCCESS &&
        there) {
        MPI_Get_elements_x(&status, dpari_mpi_by_bytes(dpar_type_bytes(task->call.type)), &n);
        dpari_mpi_mismatch(task, r, (int64_t)n, task->call.out_count[r]);
    }
}

/* Receives and compares a message from a node, if one has arrived although none is expected. */
static void dpari_mpi_deal_probe_node(dpari_mpi_task *task, const dpari_mpi_deals *deals,
                                      int32_t node)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int bytes = (int)(dpari_mpi_deal_ranks(levels, node) * deals->message);
    const int32_t from =
        levels->member[levels->begin[node] + dpari_mpi_carrier(levels, node, task->ctx->comm.rank)];
    char *in = dpari_mpi_deal_in(task, deals, node);
    int there = 0;
    if (MPI_Iprobe(from, dpari_mpi_deal_tag(task), task->ctx->side, &there, MPI_STATUS_IGNORE) ==
            MPI_SUCCESS &&
        there &&
        MPI_Recv(in, bytes, MPI_BYTE, from, dpari_mpi_deal_tag(task), task->ctx->side,
                 MPI_STATUS_IGNORE) == MPI_SUCCESS) {
        dpari_mpi_deal_take(task, deals, node, in);
    }
}

DPARI_INTERNAL void dpari_mpi_deal_compare(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    dpari_mpi_deals d;
    int32_t i;
    if (task->leg < 2 || !dpari_mpi_deals_of(task, &d)) {
        return;
    }
    for (i = 0; i < task->requests && task->ctx->comm.status >= 0; i++) {
        int done = 0;
        if (task->piece[i].whole < 0 && /* a request that is done already may be tested again */
            MPI_Test(&task->request[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done) {
            const int32_t node = levels->node_of[task->piece[i].peer];
            dpari_mpi_deal_take(task, &d, node, dpari_mpi_deal_in(task, &d, node));
        }
    }
    for (i = 0; i < task->ctx->comm.size && task->ctx->comm.status >= 0; i++) {
        if (levels->node_of[i] != levels->node && task->call.out_count[i] <= d.most) {
            dpari_mpi_deal_probe_large(task, i);
        }
    }
    for (i = 0; i < levels->nodes && task->ctx->comm.status >= 0; i++) {
        if (i != levels->node && !dpari_mpi_deal_comes(task, &d, i)) {
            dpari_mpi_deal_probe_node(task, &d, i);
        }
    }
}
