/* SPDX-License-Identifier: MIT-0 */
/* Attention in a sliding window. The tokens of the packed sequence are a one-dimensional grid with
 * a halo as wide as the window, so that one halo exchange brings keys and values, and its adjoint
 * returns their gradients. Queries are computed on own keys while the exchange is under way.
 *
 * dpar_attention_halo fills in the functions of a plan (attention_way.h); sequence.c calls them. */
#include "window_attention.h"

#include "../base/arith.h"
#include "../comm/agree.h"
#include "../comm/mem_private.h"
#include "../halo/halo_exchange.h"
#include "../halo/halo_open.h"
#include "../halo/halo_traffic.h"
#include "../train/attention_way.h"

/* ---- planning -------------------------------------------------------------------------------- */

/* The fields are keys, values, gradients of keys, and gradients of values. */
typedef struct dpari_windows {
    dpar_halo halo;
    dpar_halo_field field[4];
    dpar_halo_plan *exchange[2]; /* keys and values come; their gradients go back */
    void *memory[2];             /* of these */
    int64_t bytes[2];
    void *own[4], *beside[4];
    int64_t points; /* of the halo */
    int64_t lent;   /* bytes that forward's exchange sends */
} dpari_windows;

/* Counts the tokens of [lo, hi) that are next to the slice of a rank, within the window. */
static int64_t dpari_windows_beside(const dpar_attention_desc *a, int32_t rank, int64_t lo,
                                    int64_t hi)
{
    int64_t begin, end, before, behind = 0;
    dpari_seq_slice(a, rank, &begin, &end);
    if (begin == end) {
        return 0;
    }
    before = dpari_least(begin, hi) - dpari_most(a->window < begin ? begin - a->window : 0, lo);
    if (!a->causal) {
        const int64_t room = a->tokens.ends[a->tokens.docs] - end;
        behind = dpari_least(end + dpari_least(room, a->window), hi) - dpari_most(end, lo);
    }
    return dpari_most(0, before) + dpari_most(0, behind);
}

/* Checks that the layer has a window, and a rule and sizes that this method supports. */
static DPARI_COLD dpar_status dpari_windows_check(const dpar_attention_desc *a, dpar_why *why)
{
    const int64_t each = (int64_t)a->groups * ((int64_t)a->width + a->value_width);
    if (a->window < 1 ||
        (a->tokens.rule != DPAR_SPLIT_CHUNK && a->tokens.rule != DPAR_SPLIT_EVEN) ||
        each > 1 << 24) {
        return dpari_wrong(
            why,
            "a halo for a window of %ld tokens (at least 1), cut by rule %d (CHUNK or "
            "EVEN), of %ld elements a token (at most 2^24)",
            a->window, a->tokens.rule, each);
    }
    return DPAR_OK;
}

static dpari_windows *dpari_windows_of(const dpari_attention *p)
{
    return (dpari_windows *)p->of_way;
}

/* Describes the halo of this rank's tokens, and the fields in it. */
static dpar_status dpari_windows_halo(const dpari_attention *p, const dpar_comm *c,
                                      dpari_windows *w, dpar_why *why)
{
    const dpar_attention_desc *a = &p->head.layer;
    const int64_t all = a->tokens.ends[a->tokens.docs];
    const dpar_placement cut = dpar_shard_by(0, a->tokens.rule, 0);
    dpar_mesh mesh;
    int32_t i;
    dpar_status st = dpar_mesh_init(&mesh, "tokens", &c->size, DPAR_ORDER_LAST_FASTEST, 0, why);
    if (st == DPAR_OK) {
        st = dpar_layout_init(&w->halo.grid, &mesh, 1, &all, &cut, why);
    }
    w->halo.low[0] = dpari_most(dpari_least(a->window, all - 1), 0);
    w->halo.high[0] = a->causal ? 0 : w->halo.low[0];
    for (i = 0; i < 4; i++) {
        w->field[i].halo = &w->halo;
        w->field[i].type = i < 2 ? a->type : p->sums;
        w->field[i].mem = c->mem;
        w->field[i].components =
            (int32_t)((int64_t)a->groups * (i % 2 == 0 ? a->width : a->value_width));
    }
    return st == DPAR_OK ? dpar_halo_check(&w->halo, why) : st;
}

static void dpari_windows_buffers(dpari_attention *p, const dpar_comm *c, dpari_windows *w,
                                  dpari_room *buffers)
{
    const dpar_attention_desc *a = &p->head.layer;
    const int64_t sum = dpar_type_bytes(p->sums);
    int64_t lo, hi, heads;
    int32_t i;
    w->points = dpar_halo_slab_points(&w->halo, c->rank);
    dpari_seq_slice(a, c->rank, &lo, &hi);
    p->head.tokens = hi - lo;
    heads = p->head.tokens * a->heads;
    for (i = 0; i < 4; i++) {
        const int64_t each = w->field[i].components * (int64_t)dpar_type_bytes(w->field[i].type);
        w->own[i] = dpari_room_take(buffers, p->head.tokens * each, 1);
        w->beside[i] = dpari_room_take(buffers, w->points * each, 1);
        if (p->head.tokens > 0) { /* while bytes are counted: anywhere */
            w->field[i].data = buffers->at != NULL ? w->own[i] : (void *)w;
            w->field[i].compact_halo = w->points == 0        ? NULL
                                       : buffers->at != NULL ? w->beside[i]
                                                             : (void *)w;
        }
    }
    p->part = dpari_room_take(buffers, heads * a->value_width * sum, 1);
    p->part_lse = dpari_room_take(buffers, heads * sum, 1);
    p->delta = dpari_room_take(buffers, heads * sum, 1);
    if (a->type != p->sums) {
        p->out = dpari_room_take(buffers, heads * a->value_width * sum, 1);
        p->q_gradient = dpari_room_take(buffers, heads * a->width * sum, 1);
    }
}

static DPARI_COLD dpar_status dpari_windows_lay(dpari_attention *p, const dpar_comm *c,
                                                dpari_room *behind, dpari_room *buffers,
                                                dpar_why *why)
{
    dpari_windows counted, *w = (dpari_windows *)dpari_room_take(behind, 1, sizeof *w);
    dpar_halo_plan_desc o;
    int32_t i;
    dpar_status st;
    p->of_way = w;
    w = w != NULL ? w : &counted;
    dpari_zero(w, sizeof *w);
    dpari_zero(&o, sizeof o);
    st = dpari_windows_halo(p, c, w, why);
    if (st == DPAR_OK) {
        dpari_windows_buffers(p, c, w, buffers);
    }
    for (i = 0; i < 2 && st == DPAR_OK; i++) {
        o.field = &w->field[2 * i];
        o.field_count = 2;
        st = dpari_hx_bytes(c, &o, &w->bytes[i], why);
        w->memory[i] = st == DPAR_OK ? dpari_room_take(behind, w->bytes[i], 1) : NULL;
    }
    return st;
}

/* Plans both exchanges. */
static DPARI_COLD dpar_status dpari_windows_init(dpari_attention *p, dpar_why *why)
{
    dpari_windows *w = dpari_windows_of(p);
    dpar_halo_plan_desc o;
    dpari_hx_traffic t;
    int32_t i;
    dpar_status st = DPAR_OK;
    dpari_zero(&o, sizeof o);
    for (i = 0; i < 2 && st == DPAR_OK; i++) {
        o.tag = p->head.layer.tag + 2 * i;
        o.field = &w->field[2 * i];
        o.field_count = 2;
        o.memory = w->memory[i];
        o.bytes = w->bytes[i];
        st = dpar_halo_plan_make(p->comm, &o, &w->exchange[i], why);
    }
    if (st != DPAR_OK) { /* on all ranks: the first of them is closed again */
        (void)dpar_halo_plan_free(w->exchange[0]);
        return st;
    }
    for (i = 0; dpari_hx_traffic_of(w->exchange[0], i, &t); i++) {
        w->lent += t.peer != p->comm->rank ? t.bytes : 0;
    }
    return st;
}

static DPARI_COLD dpar_status dpari_windows_close(dpari_attention *p)
{
    dpari_windows *w = dpari_windows_of(p);
    const dpar_status st = dpar_halo_plan_free(w->exchange[0]);
    const dpar_status other = dpar_halo_plan_free(w->exchange[1]);
    return st != DPAR_OK ? st : other;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void dpari_windows_push(dpari_attention *p)
{
    (void)dpar_halo_plan_test(dpari_windows_of(p)->exchange[0]);
}

static void *dpari_windows_at(void *base, int64_t token, const dpar_halo_field *f)
{
    return base != NULL
               ? (unsigned char *)base + token * f->components * (int64_t)dpar_type_bytes(f->type)
               : NULL;
}

/* The keys and values (field 0), or their gradients (2), of this rank's own tokens. */
static dpari_seq_block dpari_windows_own(const dpari_attention *p, int32_t field)
{
    const dpari_windows *w = dpari_windows_of(p);
    dpari_seq_block b;
    b.rank = p->comm->rank;
    b.own = 1;
    b.tokens = p->head.tokens;
    dpari_seq_slice(&p->head.layer, b.rank, &b.lo, &b.hi);
    b.k = b.to_k = w->own[field];
    b.v = b.to_v = w->own[field + 1];
    return b;
}

/* Describes the n-th piece of the rank's halo, without what is beyond the ends of the sequence.
 * Returns 0 if there is none. */
static int dpari_windows_slab(const dpari_attention *p, int32_t n, int32_t field,
                              dpari_seq_block *b)
{
    const dpari_windows *w = dpari_windows_of(p);
    int64_t at = 0;
    dpar_box box;
    int32_t i;
    for (i = 0; i <= n; i++) {
        at += i > 0 ? box.hi[0] - box.lo[0] : 0;
        if (!dpar_halo_slab(&w->halo, p->comm->rank, i, &box)) {
            return 0;
        }
    }
    dpari_zero(b, sizeof *b);
    b->rank = p->comm->rank;
    b->lo = dpari_most(0, box.lo[0]);
    b->hi = dpari_least(w->halo.grid.extent[0], box.hi[0]);
    at += b->lo - box.lo[0];
    b->k = b->to_k = dpari_windows_at(w->beside[field], at, &w->field[field]);
    b->v = b->to_v = dpari_windows_at(w->beside[field + 1], at, &w->field[field + 1]);
    return 1;
}

/* Copies the rank's keys and values to the fields of the exchange, and begins the exchange. */
static dpar_status dpari_windows_lend(dpari_attention *p, const dpar_attention_arrays *a)
{
    dpari_windows *w = dpari_windows_of(p);
    const int64_t bytes = p->head.tokens * dpar_type_bytes(p->head.layer.type);
    dpar_status st = dpari_do_copy(p->comm, w->own[0], a->k, bytes * w->field[0].components);
    if (st == DPAR_OK) {
        st = dpari_do_copy(p->comm, w->own[1], a->v, bytes * w->field[1].components);
    }
    p->head.sent_bytes += w->lent;
    return st == DPAR_OK ? dpar_halo_plan_begin(w->exchange[0]) : st;
}

static dpar_status dpari_windows_forward(dpari_attention *p, const dpar_attention_arrays *a)
{
    dpari_seq_block b = dpari_windows_own(p, 0);
    int32_t n;
    dpar_status st = dpari_windows_lend(p, a), ended;
    if (st == DPAR_OK) {
        st = dpari_seq_attend(p, a, &b);
        ended = dpar_halo_plan_end(dpari_windows_of(p)->exchange[0]);
        st = st == DPAR_OK ? ended : st;
    }
    for (n = 0; st == DPAR_OK && dpari_windows_slab(p, n, 0, &b); n++) {
        st = dpari_seq_attend(p, a, &b);
    }
    return st;
}

static dpar_status dpari_windows_backward(dpari_attention *p, const dpar_attention_arrays *a,
                                          void *dq, dpari_seq_block *home)
{
    dpari_windows *w = dpari_windows_of(p);
    const int64_t sum = dpar_type_bytes(p->sums), all = w->halo.grid.extent[0];
    dpari_seq_block b = dpari_windows_own(p, 0), g;
    int32_t n;
    dpar_status st = dpari_windows_lend(p, a), ended;
    if (st != DPAR_OK) {
        return st;
    }
    *home = dpari_windows_own(p, 2);
    for (n = 2; n < 4 && st == DPAR_OK; n++) {
        st = dpari_do_copy(p->comm, w->own[n], NULL, p->head.tokens * w->field[n].components * sum);
        if (st == DPAR_OK) {
            st = dpari_do_copy(p->comm, w->beside[n], NULL,
                               w->points * w->field[n].components * sum);
        }
    }
    st = st == DPAR_OK ? dpari_seq_delta(p, a) : st;
    dpari_seq_attend_back(p, a, &b, home, dq);
    ended = dpar_halo_plan_end(w->exchange[0]);
    st = st == DPAR_OK ? ended : st;
    for (n = 0; st == DPAR_OK && dpari_windows_slab(p, n, 0, &b); n++) {
        (void)dpari_windows_slab(p, n, 2, &g);
        dpari_seq_attend_back(p, a, &b, &g, dq);
    }
    p->head.sent_bytes += dpari_windows_beside(&p->head.layer, p->comm->rank, 0, all) * sum *
                          (w->field[2].components + w->field[3].components);
    st = st == DPAR_OK ? dpar_halo_plan_reduce_begin(w->exchange[1], DPAR_SUM) : st;
    return st == DPAR_OK ? dpar_halo_plan_end(w->exchange[1]) : st;
}

DPAR_API void dpar_attention_halo(struct dpari_attention_method *way)
{
    way->number = 1;
    way->check = dpari_windows_check;
    way->lay = dpari_windows_lay;
    way->init = dpari_windows_init;
    way->push = dpari_windows_push;
    way->forward = dpari_windows_forward;
    way->backward = dpari_windows_backward;
    way->close = dpari_windows_close;
}
