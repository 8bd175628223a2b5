/* SPDX-License-Identifier: MIT-0 */
/* Computes attention in a sliding window. The tokens of the packed sequence are a grid of one dim
 * with a halo as wide as the window, so that one halo exchange brings keys and values, and its
 * adjoint returns their gradients. Queries are computed on own keys while the exchange is in
 * progress.
 *
 * dpar_attention_halo sets the functions of a plan (attention_private.h); sequence.c calls them. */
#include "window_attention.h"

#include "../base/arith.h"
#include "../comm/agree.h"
#include "../comm/memory_calls.h"
#include "../halo/halo_exchange.h"
#include "../halo/halo_exchange_private.h"
#include "../halo/halo_traffic.h"
#include "../train/attention_private.h"

/* ---- planning -------------------------------------------------------------------------------- */

/* The private part of a plan. The fields are keys, values, gradients of keys, and gradients of
 * values. */
typedef struct dpari_windows {
    dpar_halo halo;
    dpar_halo_field field[4];
    dpar_halo_plan *exchange[2]; /* of keys and values, and of their gradients */
    void *memory[2];             /* of the exchanges */
    int64_t bytes[2];
    void *own[4], *beside[4]; /* own tokens and halo of each field */
    int64_t points;           /* tokens of the halo */
    int64_t sent;             /* bytes that forward's exchange sends */
} dpari_windows;

/* Counts the tokens of [lo, hi) in the halo of a rank: those within the window around its slice. */
static int64_t dpari_windows_beside(const dpar_attention_desc *layer, int32_t rank, int64_t lo,
                                    int64_t hi)
{
    int64_t begin, end, before, behind = 0;
    dpari_seq_slice(layer, rank, &begin, &end);
    if (begin == end) {
        return 0;
    }
    before =
        dpari_least(begin, hi) - dpari_most(layer->window < begin ? begin - layer->window : 0, lo);
    if (!layer->causal) {
        const int64_t left = layer->tokens.ends[layer->tokens.docs] - end;
        behind = dpari_least(end + dpari_least(left, layer->window), hi) - dpari_most(end, lo);
    }
    return dpari_most(0, before) + dpari_most(0, behind);
}

/* Checks that the layer has a window, and a rule and sizes that this method supports. */
static DPARI_COLD dpar_status dpari_windows_check(const dpar_attention_desc *layer, dpar_why *why)
{
    const int64_t each = (int64_t)layer->groups * ((int64_t)layer->width + layer->value_width);
    if (layer->window < 1 ||
        (layer->tokens.rule != DPAR_SPLIT_CHUNK && layer->tokens.rule != DPAR_SPLIT_EVEN) ||
        each > 1 << 24) {
        return dpari_wrong(
            why,
            "dpar_attention_halo: window is %ld, rule is %d and a token has %ld elements; 1 or "
            "more, CHUNK or EVEN, and at most 2^24 are allowed",
            layer->window, layer->tokens.rule, each);
    }
    return DPAR_OK;
}

static dpari_windows *dpari_windows_of(const dpari_attention *plan)
{
    return (dpari_windows *)plan->of_way;
}

/* Describes the halo of this rank's tokens, and the fields in it. */
static dpar_status dpari_windows_halo(const dpari_attention *plan, const dpar_comm *comm,
                                      dpari_windows *windows, dpar_why *why)
{
    const dpar_attention_desc *layer = &plan->head.layer;
    const int64_t all = layer->tokens.ends[layer->tokens.docs];
    const dpar_placement cut = dpar_shard_by(0, layer->tokens.rule, 0);
    dpar_mesh mesh;
    int32_t i;
    dpar_status status =
        dpar_mesh_init(&mesh, "tokens", &comm->size, DPAR_ORDER_LAST_FASTEST, 0, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpar_layout_init(&windows->halo.grid, &mesh, 1, &all, &cut, why);
    if (status != DPAR_OK) {
        return status;
    }
    windows->halo.low[0] = dpari_most(dpari_least(layer->window, all - 1), 0);
    windows->halo.high[0] = layer->causal ? 0 : windows->halo.low[0];
    for (i = 0; i < 4; i++) {
        windows->field[i].halo = &windows->halo;
        windows->field[i].type = i < 2 ? layer->type : plan->sums;
        windows->field[i].mem = comm->mem;
        windows->field[i].components =
            (int32_t)((int64_t)layer->groups * (i % 2 == 0 ? layer->width : layer->value_width));
    }
    return dpar_halo_check(&windows->halo, why);
}

/* Takes the memory of the fields and of partial results. Only counts bytes if buffers->at is NULL.
 */
static void dpari_windows_buffers(dpari_attention *plan, const dpar_comm *comm,
                                  dpari_windows *windows, dpari_room *buffers)
{
    const dpar_attention_desc *layer = &plan->head.layer;
    const int64_t sum = dpar_type_bytes(plan->sums);
    int64_t lo, hi, heads;
    int32_t i;
    windows->points = dpar_halo_slab_points(&windows->halo, comm->rank);
    dpari_seq_slice(layer, comm->rank, &lo, &hi);
    plan->head.tokens = hi - lo;
    heads = plan->head.tokens * layer->heads;
    for (i = 0; i < 4; i++) {
        const int64_t each =
            windows->field[i].components * (int64_t)dpar_type_bytes(windows->field[i].type);
        windows->own[i] = dpari_room_take(buffers, plan->head.tokens * each, 1);
        windows->beside[i] = dpari_room_take(buffers, windows->points * each, 1);
        if (plan->head.tokens > 0) {
            /* While bytes are counted, any address will do. */
            const int counts = buffers->at == NULL;
            windows->field[i].data = counts ? (void *)windows : windows->own[i];
            if (windows->points > 0) {
                windows->field[i].compact_halo = counts ? (void *)windows : windows->beside[i];
            }
        }
    }
    plan->part = dpari_room_take(buffers, heads * layer->value_width * sum, 1);
    plan->part_lse = dpari_room_take(buffers, heads * sum, 1);
    plan->delta = dpari_room_take(buffers, heads * sum, 1);
    if (layer->type != plan->sums) {
        plan->out = dpari_room_take(buffers, heads * layer->value_width * sum, 1);
        plan->q_gradient = dpari_room_take(buffers, heads * layer->width * sum, 1);
    }
}

/* Takes all memory of a plan: its struct and exchanges from `behind`, its fields from `buffers`. */
static DPARI_COLD dpar_status dpari_windows_lay(dpari_attention *plan, const dpar_comm *comm,
                                                dpari_room *behind, dpari_room *buffers,
                                                dpar_why *why)
{
    dpari_windows counted, *w = (dpari_windows *)dpari_room_take(behind, 1, sizeof *w);
    dpar_halo_plan_desc desc;
    int32_t i;
    dpar_status status;
    plan->of_way = w;
    w = w != NULL ? w : &counted;
    dpari_zero(w, sizeof *w);
    dpari_zero(&desc, sizeof desc);
    status = dpari_windows_halo(plan, comm, w, why);
    if (status == DPAR_OK) {
        dpari_windows_buffers(plan, comm, w, buffers);
    }
    for (i = 0; i < 2 && status == DPAR_OK; i++) {
        desc.field = &w->field[2 * i];
        desc.field_count = 2;
        status = dpari_hx_bytes(comm, &desc, &w->bytes[i], why);
        w->memory[i] = status == DPAR_OK ? dpari_room_take(behind, w->bytes[i], 1) : NULL;
    }
    return status;
}

/* Plans both exchanges. */
static DPARI_COLD dpar_status dpari_windows_init(dpari_attention *plan, dpar_why *why)
{
    dpari_windows *windows = dpari_windows_of(plan);
    dpar_halo_plan_desc desc;
    dpari_hx_traffic traffic;
    int32_t i;
    dpar_status status = DPAR_OK;
    dpari_zero(&desc, sizeof desc);
    for (i = 0; i < 2 && status == DPAR_OK; i++) {
        desc.tag = plan->head.layer.tag + 2 * i;
        desc.field = &windows->field[2 * i];
        desc.field_count = 2;
        desc.memory = windows->memory[i];
        desc.bytes = windows->bytes[i];
        status = dpar_halo_plan_make(plan->comm, &desc, &windows->exchange[i], why);
    }
    if (status != DPAR_OK) { /* then it failed on all ranks, and all free the first exchange */
        (void)dpar_halo_plan_free(windows->exchange[0]);
        return status;
    }
    for (i = 0; dpari_hx_traffic_of(windows->exchange[0], i, &traffic); i++) {
        if (traffic.peer != plan->comm->rank) {
            windows->sent += traffic.bytes;
        }
    }
    return status;
}

static DPARI_COLD dpar_status dpari_windows_close(dpari_attention *plan)
{
    dpari_windows *windows = dpari_windows_of(plan);
    const dpar_status status = dpar_halo_plan_free(windows->exchange[0]);
    return dpari_first_error(status, dpar_halo_plan_free(windows->exchange[1]));
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Advances the exchange while the caller computes. */
static void dpari_windows_push(dpari_attention *plan)
{
    (void)dpar_halo_plan_test(dpari_windows_of(plan)->exchange[0]);
}

/* Describes the keys and values (field 0) of own tokens, or their gradients (field 2). */
static dpari_seq_block dpari_windows_own(const dpari_attention *plan, int32_t field)
{
    const dpari_windows *windows = dpari_windows_of(plan);
    dpari_seq_block block;
    block.rank = plan->comm->rank;
    block.own = 1;
    block.tokens = plan->head.tokens;
    dpari_seq_slice(&plan->head.layer, block.rank, &block.lo, &block.hi);
    block.k = block.to_k = windows->own[field];
    block.v = block.to_v = windows->own[field + 1];
    return block;
}

/* Describes piece n of the rank's halo, without the part beyond the ends of the sequence. Returns 0
 * if there is no such piece. */
static DPARI_COLD int dpari_windows_slab(const dpari_attention *plan, int32_t n, int32_t field,
                              dpari_seq_block *block)
{
    const dpari_windows *windows = dpari_windows_of(plan);
    const dpar_halo_field *k = &windows->field[field], *v = &windows->field[field + 1];
    int64_t at = 0;
    dpar_box box;
    int32_t i;
    for (i = 0; i <= n; i++) {
        at += i > 0 ? box.hi[0] - box.lo[0] : 0;
        if (!dpar_halo_slab(&windows->halo, plan->comm->rank, i, &box)) {
            return 0;
        }
    }
    dpari_zero(block, sizeof *block);
    block->rank = plan->comm->rank;
    block->lo = dpari_most(0, box.lo[0]);
    block->hi = dpari_least(windows->halo.grid.extent[0], box.hi[0]);
    at += block->lo - box.lo[0];
    block->k = block->to_k = dpari_seq_at(windows->beside[field], at * k->components, k->type);
    block->v = block->to_v = dpari_seq_at(windows->beside[field + 1], at * v->components, v->type);
    return 1;
}

/* Copies the rank's keys and values to the fields of the exchange, and begins the exchange. */
static dpar_status dpari_windows_begin(dpari_attention *plan, const dpar_attention_arrays *arrays)
{
    dpari_windows *windows = dpari_windows_of(plan);
    const int64_t bytes = plan->head.tokens * dpar_type_bytes(plan->head.layer.type);
    dpar_status status =
        dpari_do_copy(plan->comm, windows->own[0], arrays->k, bytes * windows->field[0].components);
    if (status == DPAR_OK) {
        status = dpari_do_copy(plan->comm, windows->own[1], arrays->v,
                               bytes * windows->field[1].components);
    }
    plan->head.sent_bytes += windows->sent;
    if (status != DPAR_OK) {
        return status;
    }
    return dpar_halo_plan_begin(windows->exchange[0]);
}

/* Computes on own keys first, while the keys of the halo are in transit. */
static dpar_status dpari_windows_forward(dpari_attention *plan, const dpar_attention_arrays *arrays)
{
    dpari_seq_block block = dpari_windows_own(plan, 0);
    int32_t n;
    dpar_status status = dpari_windows_begin(plan, arrays);
    if (status == DPAR_OK) {
        status = dpari_seq_attend(plan, arrays, &block);
        status = dpari_first_error(status, dpar_halo_plan_end(dpari_windows_of(plan)->exchange[0]));
    }
    for (n = 0; status == DPAR_OK && dpari_windows_slab(plan, n, 0, &block); n++) {
        status = dpari_seq_attend(plan, arrays, &block);
    }
    return status;
}

/* Exchanges keys and values once more, computes gradients of own tokens and of the halo, and adds
 * those of the halo to the gradients of their owners. */
static dpar_status dpari_windows_backward(dpari_attention *plan,
                                          const dpar_attention_arrays *arrays, void *dq,
                                          dpari_seq_block *home)
{
    dpari_windows *windows = dpari_windows_of(plan);
    const int64_t sum = dpar_type_bytes(plan->sums), all = windows->halo.grid.extent[0];
    dpari_seq_block block = dpari_windows_own(plan, 0), g;
    int32_t n;
    dpar_status status = dpari_windows_begin(plan, arrays);
    if (status != DPAR_OK) {
        return status;
    }
    *home = dpari_windows_own(plan, 2);
    for (n = 2; n < 4 && status == DPAR_OK; n++) {
        status = dpari_do_copy(plan->comm, windows->own[n], NULL,
                               plan->head.tokens * windows->field[n].components * sum);
        if (status == DPAR_OK) {
            status = dpari_do_copy(plan->comm, windows->beside[n], NULL,
                                   windows->points * windows->field[n].components * sum);
        }
    }
    if (status == DPAR_OK) {
        status = dpari_seq_delta(plan, arrays);
    }
    dpari_seq_attend_back(plan, arrays, &block, home, dq);
    status = dpari_first_error(status, dpar_halo_plan_end(windows->exchange[0]));
    for (n = 0; status == DPAR_OK && dpari_windows_slab(plan, n, 0, &block); n++) {
        (void)dpari_windows_slab(plan, n, 2, &g);
        dpari_seq_attend_back(plan, arrays, &block, &g, dq);
    }
    plan->head.sent_bytes += dpari_windows_beside(&plan->head.layer, plan->comm->rank, 0, all) *
                             sum * (windows->field[2].components + windows->field[3].components);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpar_halo_plan_reduce_begin(windows->exchange[1], DPAR_SUM);
    if (status != DPAR_OK) {
        return status;
    }
    return dpar_halo_plan_end(windows->exchange[1]);
}

DPAR_API void dpar_attention_halo(struct dpari_attention_method *method)
{
    method->number = 1;
    method->check = dpari_windows_check;
    method->lay = dpari_windows_lay;
    method->init = dpari_windows_init;
    method->push = dpari_windows_push;
    method->forward = dpari_windows_forward;
    method->backward = dpari_windows_backward;
    method->close = dpari_windows_close;
}
