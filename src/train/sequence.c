/* SPDX-License-Identifier: MIT-0 */
/* Plans of attention, and the ring. All methods use the same plan (attention_private.h). This file
 * has the ring; ulysses.c and window_attention.c replace some of its functions.
 *
 * Each rank visits the blocks of its queries and another rank's keys: pairs of runs of consecutive
 * tokens in one document. The kernel is called for each block in which a query sees a key. The
 * result of a block is merged into the result so far with the logarithms of their sums (lse), in
 * the order of the steps. The bits therefore do not depend on when messages arrive.
 *
 * While a rank computes with one block of keys and values, the next one is received into the other
 * buffer. In backward, the gradients of a block follow one step later in separate buffers. */
#include "sequence.h"

#include "../base/arith.h"
#include "../base/real.h"
#include "../comm/agree.h"
#include "../comm/memory_calls.h"
#include "../comm/object_memory.h"
#include "../host/elements.h"
#include "../host/layers_norm.h"
#include "../host/vector_loops.h"
#include "attention_private.h"
#include "layer_calls.h"

/* ---- layers ---------------------------------------------------------------------------------- */

/* The lse that dpar_attention_host writes for a query that sees no key. Other kernels may write a
 * smaller number. */
static const double dpari_seq_nothing = -1e30;

/* Returns the layer with its defaults filled in. */
static dpar_attention_desc dpari_seq_filled(const dpar_attention_desc *layer)
{
    dpar_attention_desc a = *layer;
    a.groups = a.groups != 0 ? a.groups : a.heads;
    a.value_width = a.value_width != 0 ? a.value_width : a.width;
    if (!(a.scale > 0.0 || a.scale < 0.0) && a.width > 0) {
        a.scale = 1.0 / dpari_sqrt((double)a.width);
    }
    a.forward = a.forward != NULL ? a.forward : dpar_attention_host;
    a.backward = a.backward != NULL ? a.backward : dpar_attention_host;
    return a;
}

/* Returns the functions of the layer's method; all are NULL for the ring. */
static dpari_attention_method dpari_seq_way(const dpar_attention_desc *layer)
{
    dpari_attention_method way;
    dpari_zero(&way, sizeof way);
    if (layer->method != NULL) {
        layer->method(&way);
    }
    return way;
}

/* Returns the number of elements of keys and values per token. */
static int64_t dpari_seq_each(const dpar_attention_desc *layer)
{
    return (int64_t)layer->groups * ((int64_t)layer->width + layer->value_width);
}

/* Checks a layer. The defaults need not be filled in. */
static dpar_status dpari_seq_check(const dpar_attention_desc *layer, dpar_why *why)
{
    const dpar_attention_desc a = dpari_seq_filled(layer);
    dpari_attention_method way;
    dpar_packed p;
    int64_t room;
    dpar_status st;
    if (a.tokens.docs < 1 || a.tokens.ends == NULL) {
        return dpari_wrong(
            why, "attention: tokens.docs is %d, but must be at least 1, and ends must not be NULL",
            a.tokens.docs);
    }
    st = dpar_packed_init(&p, a.tokens.docs, a.tokens.ends, a.tokens.ranks, a.tokens.rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (a.heads < 1 || a.groups < 1 || a.width < 1 || a.value_width < 1) {
        return dpari_wrong(
            why,
            "attention: heads is %d, groups %d, width %d and value_width %d, but each must be at "
            "least 1",
            a.heads, a.groups, a.width, a.value_width);
    }
    if (a.heads % a.groups != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "attention: %d groups do not divide %d heads",
                         a.groups, a.heads);
    }
    if (!dpari_is_float(a.type)) {
        return dpari_wrong(why, "attention: type is %s, but must be f64, f32, bf16 or f16",
                           dpar_type_name(a.type));
    }
    if (!dpari_is_wide(a.type) && (layer->forward == NULL || layer->backward == NULL)) {
        return dpari_wrong(
            why, "attention: forward or backward is NULL, but type %d needs kernels of your own",
            a.type);
    }
    if (a.window < 0 || a.tag < 0 || a.tag > INT32_MAX - DPARI_ATTENTION_MAIL) {
        return dpari_wrong(why,
                           "attention: window is %ld and tag %d, but both must be at least 0, and "
                           "tag at most 2^31 - 9",
                           a.window, a.tag);
    }
    if (!dpari_mul(a.tokens.ends[a.tokens.docs], (int64_t)a.heads, &room) ||
        !dpari_mul(room, (int64_t)a.width + a.value_width, &room) || !dpari_mul(room, 256, &room)) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "attention: %ld tokens, %d heads and widths %d and %d are too large together",
            a.tokens.ends[a.tokens.docs], a.heads, a.width, a.value_width);
    }
    way = dpari_seq_way(&a);
    return way.check != NULL ? way.check(&a, why) : DPAR_OK;
}

/* ---- which keys queries see ------------------------------------------------------------------ */

/* One side of a walk over blocks: the queries of one rank, or the keys of another. */
typedef struct dpari_seq_side {
    int32_t rank;
    int64_t lo, hi; /* its tokens in the packed sequence, if the method has slices */
    int64_t base;   /* number of the rank's tokens in earlier documents */
    int64_t local;  /* number of the rank's tokens in this document before the current run */
} dpari_seq_side;

/* A walk over the blocks of queries of one rank and keys of another. A block is a pair of runs of
 * consecutive tokens in one document. */
typedef struct dpari_seq_walk {
    const dpar_attention_desc *layer;
    dpari_seq_side q, k;
    int32_t doc, open; /* open: 1 if `split` is the split of this document */
    dpar_split split;

    /* The block that dpari_seq_next found. */
    int64_t q_at, k_at;    /* rows of its first query and key in the ranks' arrays */
    int64_t query, key;    /* positions of its first query and key in the packed sequence */
    int64_t queries, keys; /* numbers of queries and keys */
    int64_t low, high;     /* query i sees keys i + low to i + high of the block */
    int32_t again;         /* set by the caller: 1 if these queries already had a block */
} dpari_seq_walk;

DPARI_API void dpari_seq_slice(const dpar_attention_desc *layer, int32_t rank, int64_t *lo,
                               int64_t *hi)
{
    dpar_split s;
    (void)dpar_split_init(&s, layer->tokens.rule, layer->tokens.ends[layer->tokens.docs],
                          layer->tokens.ranks, 1, NULL);
    *lo = dpar_split_part_first(&s, rank);
    *hi = *lo + dpar_split_part_count(&s, rank);
}

/* Begins a walk over the queries of this rank and the keys of a block. If the layer has only one
 * rank, as within ulysses, the queries are those of rank 0. */
static void dpari_seq_begin(const dpari_attention *plan, const dpari_seq_block *b,
                            dpari_seq_walk *w)
{
    dpari_zero(w, sizeof *w);
    w->layer = &plan->head.layer;
    w->q.rank = w->layer->tokens.ranks > 1 ? plan->comm->rank : 0;
    w->k.rank = b->rank;
    w->k.lo = b->lo;
    w->k.hi = b->hi;
    if (w->layer->method != NULL) {
        dpari_seq_slice(w->layer, w->q.rank, &w->q.lo, &w->q.hi);
    }
}

/* Finds the next run of a side in this document. Returns 0 if there is none left. With slices a
 * document has at most one run, otherwise it has those of its split. */
static int dpari_seq_run(const dpari_seq_walk *w, const dpari_seq_side *s, int64_t *at,
                         int64_t *first, int64_t *count)
{
    const int64_t *ends = w->layer->tokens.ends + w->doc;
    int64_t i;
    if (w->layer->method != NULL) {
        *first = dpari_most(ends[0], s->lo);
        *count = dpari_least(ends[1], s->hi) - *first;
        *at = *first - s->lo;
        return s->local == 0 && *count > 0;
    }
    i = dpar_split_global(&w->split, s->rank, s->local, count);
    *at = s->base + s->local;
    *first = ends[0] + i;
    return i >= 0;
}

/* Computes low and high of the block from the mask. Returns 0 if no query of the block sees a
 * key. */
static int dpari_seq_band(dpari_seq_walk *w)
{
    const int64_t apart = w->query - w->key, window = w->layer->window;
    w->low = window > 0 && window < apart + w->queries ? apart - window : -w->queries;
    if (w->layer->causal) {
        w->high = apart;
    } else if (window > 0 && apart < w->keys - window) {
        w->high = apart + window;
    } else {
        w->high = w->keys;
    }
    w->low = dpari_most(w->low, -w->queries);
    w->high = dpari_least(w->high, w->keys);
    return w->low < w->keys && w->high > -w->queries;
}

/* Advances to the next block in which a query sees a key. Returns 0 at the end. */
static DPARI_COLD int dpari_seq_next(dpari_seq_walk *w)
{
    const dpar_packed *packed = &w->layer->tokens;
    for (; w->doc < packed->docs; w->doc++) {
        if (!w->open) {
            (void)dpar_split_init(&w->split, packed->rule,
                                  packed->ends[w->doc + 1] - packed->ends[w->doc], packed->ranks, 1,
                                  NULL);
            w->open = 1;
        }
        while (dpari_seq_run(w, &w->q, &w->q_at, &w->query, &w->queries)) {
            while (dpari_seq_run(w, &w->k, &w->k_at, &w->key, &w->keys)) {
                w->k.local += w->keys;
                if (dpari_seq_band(w)) {
                    return 1;
                }
            }
            w->q.local += w->queries;
            w->k.local = 0;
            w->again = 0;
        }
        w->q.base += w->q.local;
        w->k.base += dpar_split_part_count(&w->split, w->k.rank);
        w->q.local = 0;
        w->open = 0;
    }
    return 0;
}

/* Returns n (n + 1) / 2, or INT64_MAX if that overflows. */
static int64_t dpari_seq_triangle(int64_t n)
{
    const int64_t even = n % 2 == 0 ? n : n + 1;
    const int64_t odd = n % 2 == 0 ? n + 1 : n;
    int64_t product;
    return dpari_mul(even / 2, odd, &product) ? product : INT64_MAX;
}

/* Returns the sum over 0 <= i < n of i + shift, each term limited to 0 .. most, or INT64_MAX if the
 * sum overflows. */
static int64_t dpari_seq_ramp(int64_t n, int64_t shift, int64_t most)
{
    /* terms before this one are 0 */
    const int64_t begin = dpari_least(n, dpari_most(0, -shift));
    /* terms from this one on are `most` */
    const int64_t end = dpari_most(begin, dpari_least(n, most - shift));
    int64_t flat;
    if (!dpari_mul(n - end, most, &flat)) {
        return INT64_MAX;
    }
    if (end > begin) {
        const int64_t up = dpari_seq_triangle(end - 1 + shift);
        const int64_t more = up - dpari_seq_triangle(dpari_most(0, begin - 1 + shift));
        flat = up == INT64_MAX || more > INT64_MAX - flat ? INT64_MAX : flat + more;
    }
    return flat;
}

/* Returns the number of pairs of a query and a key that it sees, in the current block. */
static int64_t dpari_seq_pairs(const dpari_seq_walk *w)
{
    const int64_t all = dpari_seq_ramp(w->queries, w->high + 1, w->keys);
    return all == INT64_MAX ? all : all - dpari_seq_ramp(w->queries, w->low, w->keys);
}

/* ---- elements -------------------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_NOINLINE const void *dpari_seq_in(const void *base, int64_t elements,
                                                       int32_t type)
{
    return base != NULL ? (const unsigned char *)base + elements * dpar_type_bytes(type) : NULL;
}

DPARI_API DPARI_NOINLINE void *dpari_seq_at(void *base, int64_t elements, int32_t type)
{
    return base != NULL ? (unsigned char *)base + elements * dpar_type_bytes(type) : NULL;
}

DPARI_INTERNAL dpar_status dpari_seq_round(const dpari_attention *plan, void *to, const void *from,
                                           int64_t n)
{
    if (n == 0 || to == from) {
        return DPAR_OK;
    }
    return dpari_do_convert(plan->comm, to, plan->head.layer.type, from, plan->sums, n, 0);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Computes the keys lo <= j < hi of a block that its query i sees; lo = hi if it sees none. */
static void dpari_seq_row(const dpar_attention_call *call, int64_t i, int64_t *lo, int64_t *hi)
{
    const int64_t begin = dpari_least(call->keys, dpari_most(0, i + call->low));
    *lo = begin;
    *hi = dpari_most(begin, dpari_least(call->keys, i + call->high + 1));
}

/* Computes to[j] = by (x . row j) for n rows, which are `step` elements apart. */
static void dpari_seq_scores(const dpari_lanes *lanes, int32_t type, double *to, const void *x,
                             const void *row, int64_t step, int64_t n, int64_t width, double by)
{
    int64_t j;
    if (type == DPAR_F32) {
        lanes->scores(to, (const float *)x, (const float *)row, step, n, width, by);
        return;
    }
    for (j = 0; j < n; j++) {
        to[j] = by * lanes->product((const double *)row + j * step, x, DPAR_F64, 0.0, width, NULL);
    }
}

/* Computes y = keep y + the sum of by[j] row j. */
static void dpari_seq_mix(const dpari_lanes *lanes, int32_t type, void *y, double keep,
                          const double *by, const void *row, int64_t step, int64_t n, int64_t width)
{
    DPARI_ROW float weight[DPARI_ROW_PART];
    int64_t j;
    if (type == DPAR_F32) {
        lanes->thin(weight, by, n);
        lanes->mix((float *)y, (float)keep, weight, (const float *)row, step, n, width);
        return;
    }
    for (j = 0; j < n; j++) {
        dpari_row_add(lanes, type, y, j == 0 ? keep : 1.0, by[j], (const double *)row + j * step,
                      width);
    }
}

/* Computes out and lse of query i and head h. Processes keys in parts of DPARI_ROW_PART. If a part
 * has a larger score than those before, scales the sum and the result so far down. */
static void dpari_seq_query(const dpari_lanes *lanes, const dpar_attention_call *call,
                            const dpar_attention_desc *layer, int64_t i, int64_t h)
{
    const int64_t group = h / (layer->heads / layer->groups), row = i * layer->heads + h;
    const int64_t k_step = (int64_t)layer->groups * layer->width,
                  v_step = (int64_t)layer->groups * layer->value_width;
    const void *x = dpari_seq_in(call->q, row * layer->width, layer->type);
    void *out = dpari_seq_at(call->out, row * layer->value_width, layer->type);
    DPARI_ROW double score[DPARI_ROW_PART];
    double most = -1e300, sum = 0.0, power[3] = {0.0, 1.0, 0.0};
    int64_t lo, hi, n;
    dpari_seq_row(call, i, &lo, &hi);
    dpari_zero(out, (size_t)(layer->value_width * dpar_type_bytes(layer->type)));
    if (lo == hi) {
        dpari_element_put(call->lse, layer->type, row, dpari_seq_nothing);
        return;
    }
    for (; lo < hi; lo += n) {
        const void *k = dpari_seq_in(call->k, lo * k_step + group * layer->width, layer->type);
        const void *v =
            dpari_seq_in(call->v, lo * v_step + group * layer->value_width, layer->type);
        double before = most, keep;
        n = dpari_least(DPARI_ROW_PART, hi - lo);
        dpari_seq_scores(lanes, layer->type, score, x, k, k_step, n, layer->width, layer->scale);
        most = lanes->largest(score, DPAR_F64, most, n);
        power[0] = most;
        keep = sum > 0.0 ? dpari_exp(before - most) : 1.0;
        sum = keep * sum + lanes->exps(score, score, DPAR_F64, power, n);
        dpari_seq_mix(lanes, layer->type, out, keep, score, v, v_step, n, layer->value_width);
    }
    dpari_row_add(lanes, layer->type, out, 1.0 / sum, 0.0, out, layer->value_width);
    dpari_element_put(call->lse, layer->type, row, most + dpari_log(sum));
}

/* Adds the gradients of query i and head h to those of the query, its keys and its values. Computes
 * the weights of the keys again from lse. */
static void dpari_seq_query_gradient(const dpari_lanes *lanes, const dpar_attention_call *call,
                                     const dpar_attention_desc *layer, int64_t i, int64_t h)
{
    const int32_t t = layer->type;
    const int64_t group = h / (layer->heads / layer->groups), row = i * layer->heads + h;
    const int64_t k_step = (int64_t)layer->groups * layer->width,
                  v_step = (int64_t)layer->groups * layer->value_width;
    const void *x = dpari_seq_in(call->q, row * layer->width, t);
    const void *dy = dpari_seq_in(call->out_gradient, row * layer->value_width, t);
    void *dx = dpari_seq_at(call->q_gradient, row * layer->width, t);
    const double lse = dpari_element_get(call->lse, t, row),
                 delta = dpari_element_get(call->delta, t, row);
    const double power[3] = {lse, 1.0, 0.0};
    DPARI_ROW double p[DPARI_ROW_PART], s[DPARI_ROW_PART];
    int64_t lo, hi, j, n;
    dpari_seq_row(call, i, &lo, &hi);
    for (; lo < hi; lo += n) {
        const int64_t k = lo * k_step + group * layer->width,
                      v = lo * v_step + group * layer->value_width;
        n = dpari_least(DPARI_ROW_PART, hi - lo);
        dpari_seq_scores(lanes, t, p, x, dpari_seq_in(call->k, k, t), k_step, n, layer->width,
                         layer->scale);
        (void)lanes->exps(p, p, DPAR_F64, power, n);
        dpari_seq_scores(lanes, t, s, dy, dpari_seq_in(call->v, v, t), v_step, n,
                         layer->value_width, 1.0);
        for (j = 0; j < n; j++) {
            s[j] = p[j] * (s[j] - delta) * layer->scale;
        }
        dpari_seq_mix(lanes, t, dx, 1.0, s, dpari_seq_in(call->k, k, t), k_step, n, layer->width);
        for (j = 0; j < n; j++) {
            dpari_row_add(lanes, t, dpari_seq_at(call->k_gradient, k + j * k_step, t), 1.0, s[j], x,
                          layer->width);
            dpari_row_add(lanes, t, dpari_seq_at(call->v_gradient, v + j * v_step, t), 1.0, p[j],
                          dy, layer->value_width);
        }
    }
}

DPAR_API void dpar_attention_host(const dpar_attention_call *call)
{
    const dpar_attention_desc a = dpari_seq_filled(call->layer);
    const dpari_lanes l = dpari_lanes_for(call->queries * a.heads * a.width);
    int64_t i, h;
    for (i = 0; i < call->queries && dpari_is_wide(a.type); i++) {
        for (h = 0; h < a.heads; h++) {
            if (call->out_gradient == NULL) {
                dpari_seq_query(&l, call, &a, i, h);
            } else {
                dpari_seq_query_gradient(&l, call, &a, i, h);
            }
        }
    }
}

/* ---- planning -------------------------------------------------------------------------------- */

/* Returns the index in plan->gradients of the buffer for gradients of this rank's own keys and
 * values from its own queries. The buffers before it are for other ranks' keys: two for gradients
 * that are sent and received, and with more than two ranks one for the gradients that this rank
 * adds. */
static int32_t dpari_seq_home_buffer(int32_t ranks)
{
    if (ranks > 2) {
        return 3;
    }
    return ranks == 2 ? 2 : 0;
}

/* Assigns memory to the buffers of the ring. Forward and backward use the same memory, because they
 * do not overlap. */
static void dpari_seq_lay_ring(dpari_attention *plan, const dpar_comm *comm, dpari_room *buffers)
{
    const dpar_attention_desc *layer = &plan->head.layer;
    const int64_t sum = dpar_type_bytes(plan->sums), type = dpar_type_bytes(layer->type);
    int64_t most = 0, heads;
    dpari_room forward;
    int32_t i;
    plan->head.tokens = dpar_packed_rank_count(&layer->tokens, comm->rank, NULL);
    for (i = 0; i < comm->size; i++) {
        most = dpari_most(most, dpar_packed_rank_count(&layer->tokens, i, NULL));
    }
    heads = plan->head.tokens * layer->heads;
    for (i = 0; i < 2 && comm->size > 1; i++) {
        plan->keys[i] = dpari_room_take(buffers, most * dpari_seq_each(layer) * type, 1);
    }
    forward = *buffers; /* the buffers of forward; those of backward use the same memory */
    plan->part = dpari_room_take(&forward, heads * layer->value_width * sum, 1);
    plan->part_lse = dpari_room_take(&forward, heads * sum, 1);
    if (layer->type != plan->sums) {
        plan->out = dpari_room_take(&forward, heads * layer->value_width * sum, 1);
    }
    plan->delta = dpari_room_take(buffers, heads * sum, 1);
    if (layer->type != plan->sums) {
        plan->q_gradient = dpari_room_take(buffers, heads * layer->width * sum, 1);
    }
    for (i = 0; i < dpari_seq_home_buffer(comm->size) + 1; i++) {
        plan->gradients[i] = dpari_room_take(buffers, most * dpari_seq_each(layer) * sum, 1);
    }
    buffers->used = dpari_most(buffers->used, forward.used);
}

/* Assigns memory to the parts of a plan, and sets *bytes to its size. If memory is NULL, only
 * computes the size. If comm->mem is a device, the buffers are at plan->device, and their size is
 * stored in plan->device_bytes. */
static dpar_status dpari_seq_lay(dpari_attention *plan, const dpar_comm *comm, void *memory,
                                 int64_t *bytes, dpar_why *why)
{
    const dpari_attention_method way = dpari_seq_way(&plan->head.layer);
    dpari_room behind = dpari_room_of(memory), there = dpari_room_of(plan->device);
    dpar_status st = DPAR_OK;
    (void)dpari_room_take(&behind, 1, sizeof *plan);
    (void)dpari_room_take(&there, 1, 1); /* so that device_bytes is never 0 */
    if (way.lay != NULL) {
        st = way.lay(plan, comm, &behind, comm->mem != NULL ? &there : &behind, why);
    } else {
        dpari_seq_lay_ring(plan, comm, comm->mem != NULL ? &there : &behind);
    }
    plan->device_bytes = there.used;
    *bytes = behind.used;
    return st;
}

/* Checks a layer, and sets *need to the size of its plan in bytes. */
static DPARI_COLD dpar_status dpari_seq_count(const dpar_comm *comm,
                                              const dpar_attention_desc *layer, int64_t *need,
                                              dpar_why *why)
{
    dpari_attention p;
    dpar_status st;
    if (layer == NULL) {
        return dpari_wrong(why, "dpar_attention_make: the layer is NULL");
    }
    st = dpari_seq_check(layer, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (layer->tokens.ranks != comm->size) {
        return dpari_wrong(why, "attention: tokens.ranks is %d, but the communicator has %d ranks",
                           layer->tokens.ranks, comm->size);
    }
    dpari_zero(&p, sizeof p);
    p.head.layer = dpari_seq_filled(layer);
    p.sums = dpari_wide_type(layer->type);
    return dpari_seq_lay(&p, comm, NULL, need, why);
}

/* Lists the values that must be equal on all ranks. */
static DPARI_COLD void dpari_seq_state(dpari_facts *facts, const void *given)
{
    const dpar_attention_desc *layer = (const dpar_attention_desc *)given;
    const dpari_attention_method way = dpari_seq_way(layer);
    int32_t i;
    dpari_fact(facts, "method", 0, way.number);
    dpari_fact(facts, "tokens.docs", 0, layer->tokens.docs);
    for (i = 0; i <= layer->tokens.docs; i++) {
        dpari_fact(facts, "tokens.ends[#]", i, layer->tokens.ends[i]);
    }
    dpari_fact(facts, "tokens.rule", 0, layer->tokens.rule);
    dpari_fact(facts, "causal", 0, layer->causal != 0);
    dpari_fact_type(facts, "type", 0, layer->type);
    dpari_fact(facts, "heads", 0, layer->heads);
    dpari_fact(facts, "groups", 0, layer->groups);
    dpari_fact(facts, "width", 0, layer->width);
    dpari_fact(facts, "value_width", 0, layer->value_width);
    dpari_fact(facts, "window", 0, layer->window);
    dpari_fact_real(facts, "scale", 0, (double)layer->scale);
    dpari_fact(facts, "tag", 0, layer->tag);
    if (way.state != NULL) {
        way.state(facts, layer);
    }
}

/* Checks that the kernels are not the host's, allocates the buffers on the communicator's device,
 * and assigns them to the plan. */
static dpar_status dpari_seq_elsewhere(dpari_attention *plan, dpar_why *why)
{
    int64_t need;
    dpar_status st;
    if (plan->head.layer.forward == dpar_attention_host ||
        plan->head.layer.backward == dpar_attention_host) {
        return dpari_wrong(why, "attention: forward or backward is for the host, but arrays on a "
                                "device need kernels for "
                                "that device");
    }
    st = dpar_comm_alloc(plan->comm, plan->device_bytes, &plan->device);
    if (st != DPAR_OK) {
        return dpari_say(st, why, "attention: rank %d: the device has no memory for %ld bytes",
                         plan->comm->rank, plan->device_bytes);
    }
    return dpari_seq_lay(plan, plan->comm, plan, &need, why);
}

/* Frees the memory on the device. */
static void dpari_seq_give_back(dpari_attention *plan)
{
    if (plan->device != NULL) {
        dpar_comm_release(plan->comm, plan->device);
        plan->device = NULL;
    }
}

/* Fills in a plan in its memory. */
static DPARI_COLD dpar_status dpari_seq_fill_plan(dpari_attention *plan, dpar_comm *comm,
                                                  const dpar_attention_desc *layer, dpar_why *why)
{
    int64_t need;
    dpar_status st;
    dpari_zero(plan, sizeof *plan);
    plan->head.layer = dpari_seq_filled(layer);
    plan->sums = dpari_wide_type(layer->type);
    plan->comm = comm;
    st = dpari_seq_lay(plan, comm, plan, &need, why);
    if (st != DPAR_OK || comm->mem == NULL) {
        return st;
    }
    return dpari_seq_elsewhere(plan, why);
}

DPAR_API DPARI_COLD dpar_status dpar_attention_make(dpar_comm *comm,
                                                    const dpar_attention_desc *layer,
                                                    dpar_attention_plan **plan, dpar_why *why)
{
    dpari_attention *p;
    void *memory = NULL;
    int64_t need = 0;
    dpar_status st;
    if (comm == NULL) {
        return dpari_wrong(why, "dpar_attention_make: the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    st = plan == NULL ? dpari_wrong(why, "dpar_attention_make: the plan is NULL")
                      : dpari_seq_count(comm, layer, &need, why);
    if (st == DPAR_OK) {
        st =
            dpari_object_memory(comm, layer->memory, layer->bytes, need, "attention", &memory, why);
    }
    p = st == DPAR_OK ? (dpari_attention *)memory : NULL;
    if (p != NULL) {
        st = dpari_seq_fill_plan(p, comm, layer, why);
    }
    st = dpari_agree_on(comm, st, "attention", dpari_seq_state,
                        st == DPAR_OK ? &p->head.layer : NULL, why);
    if (st == DPAR_OK) {
        const dpari_attention_method way = dpari_seq_way(&p->head.layer);
        st = way.init != NULL ? way.init(p, why) : DPAR_OK;
    }
    if (st == DPAR_OK) {
        *plan = &p->head;
        return DPAR_OK;
    }
    if (p != NULL) {
        dpari_seq_give_back(p);
    }
    return dpari_object_failed(st, layer != NULL ? layer->memory : NULL, memory, need, why);
}

DPAR_API DPARI_COLD dpar_status dpar_attention_free(dpar_attention_plan *plan)
{
    dpari_attention *p = (dpari_attention *)(void *)plan;
    dpari_attention_method way;
    dpar_status st;
    if (p == NULL) {
        return DPAR_OK;
    }
    way = dpari_seq_way(&p->head.layer);
    st = way.close != NULL ? way.close(p) : DPAR_OK;
    if (dpari_object_refused(p->comm, st)) {
        return st;
    }
    dpari_seq_give_back(p);
    return dpari_object_end(st, p->head.layer.memory == NULL ? p : NULL);
}

/* Checks that no array that forward or backward uses is NULL. */
static dpar_status dpari_seq_given(const dpari_attention *plan, const dpar_attention_arrays *arrays,
                                   int backward)
{
    dpari_attention_method way;
    int missing, kept;
    if (plan == NULL || arrays == NULL) {
        return DPAR_E_ARG;
    }
    way = dpari_seq_way(&plan->head.layer);
    kept = plan->head.saved_bytes > 0 && arrays->saved == NULL;
    missing = (arrays->q == NULL) + (arrays->k == NULL) + (arrays->v == NULL) +
              (arrays->out == NULL) + (!way.whole && arrays->lse == NULL) + kept;
    if (backward) {
        missing += (arrays->out_gradient == NULL) + (arrays->q_gradient == NULL) +
                   (arrays->k_gradient == NULL) + (arrays->v_gradient == NULL);
    }
    if (missing == 0 || (plan->head.tokens == 0 && !kept)) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(
        plan->comm, DPAR_E_ARG,
        "rank %d: attention: %d arrays that this call needs for %ld tokens are NULL",
        plan->comm->rank, missing, plan->head.tokens);
}

/* ---- the ring -------------------------------------------------------------------------------- */

/* Describes the keys and values of the rank that is `steps` ranks before this one, stored end to
 * end in memory. */
static dpari_seq_block dpari_seq_block_in(const dpari_attention *plan, int32_t steps, void *memory,
                                          int32_t type)
{
    const dpar_attention_desc *layer = &plan->head.layer;
    dpari_seq_block b;
    b.rank = (plan->comm->rank + plan->comm->size - steps % plan->comm->size) % plan->comm->size;
    b.tokens = dpar_packed_rank_count(&layer->tokens, b.rank, NULL);
    b.own = steps % plan->comm->size == 0;
    b.lo = b.hi = 0;
    b.to_k = memory;
    b.to_v = dpari_seq_at(memory, b.tokens * layer->groups * layer->width, type);
    b.k = b.to_k;
    b.v = b.to_v;
    return b;
}

/* Adds a call to those of this step: a send to the next rank if `in` is not NULL, otherwise a
 * receive from the previous rank. */
static void dpari_seq_mail(dpari_attention *plan, const void *in, void *out, int64_t count,
                           int32_t type, int32_t tag)
{
    const int32_t size = plan->comm->size, step = in != NULL ? 1 : size - 1;
    dpar_call *call = &plan->call[plan->calls];
    if (count > 0) {
        dpari_zero(call, sizeof *call);
        call->kind = in != NULL ? DPAR_CALL_SEND : DPAR_CALL_RECV;
        call->in = in;
        call->out = out;
        call->count = count;
        call->type = type;
        call->root = (plan->comm->rank + step) % size;
        call->tag = plan->head.layer.tag + tag;
        plan->calls++;
        if (in != NULL) {
            plan->head.sent_bytes += count * dpar_type_bytes(type);
        }
    }
}

/* Adds the messages that send block `from` to the next rank and receive block `to` from the
 * previous rank. */
static void dpari_seq_pass(dpari_attention *plan, const dpari_seq_block *from,
                           const dpari_seq_block *to, int32_t type, int32_t tag)
{
    const int64_t k = (int64_t)plan->head.layer.groups * plan->head.layer.width;
    const int64_t v = (int64_t)plan->head.layer.groups * plan->head.layer.value_width;
    dpari_seq_mail(plan, from->k, NULL, from->tokens * k, type, tag);
    dpari_seq_mail(plan, from->v, NULL, from->tokens * v, type, tag + 1);
    dpari_seq_mail(plan, NULL, to->to_k, to->tokens * k, type, tag);
    dpari_seq_mail(plan, NULL, to->to_v, to->tokens * v, type, tag + 1);
}

/* Posts the calls of this step. */
static dpar_status dpari_seq_post(dpari_attention *plan)
{
    const dpar_status st = dpar_batch(plan->comm, plan->call, plan->calls, plan->work);
    plan->posted = plan->calls;
    plan->calls = 0;
    return st;
}

/* Waits for the calls of this step. */
static dpar_status dpari_seq_wait(dpari_attention *plan)
{
    const dpar_status st = dpar_wait_all(plan->work, plan->posted);
    plan->posted = 0;
    return st;
}

/* Advances messages between two blocks, because they progress only inside calls. Ignores errors,
 * which the wait reports. */
static void dpari_seq_push(dpari_attention *plan)
{
    int32_t i;
    const dpari_attention_method way = dpari_seq_way(&plan->head.layer);
    if (way.push != NULL) {
        way.push(plan);
    }
    for (i = 0; i < plan->posted && dpar_test(&plan->work[i]) == DPAR_OK; i++) {
    }
}

/* Fills in the arguments of the kernel that are the same in forward and backward. */
static DPARI_COLD void dpari_seq_call_of(const dpari_attention *plan,
                                         const dpar_attention_arrays *x, const dpari_seq_block *b,
                                         const dpari_seq_walk *w, dpar_attention_call *call)
{
    const dpar_attention_desc *layer = &plan->head.layer;
    dpari_zero(call, sizeof *call);
    call->layer = layer;
    call->user = layer->user;
    call->queries = w->queries;
    call->keys = w->keys;
    call->first_query = w->query;
    call->first_key = w->key;
    call->low = w->low;
    call->high = w->high;
    call->q = dpari_seq_in(x->q, w->q_at * layer->heads * layer->width, layer->type);
    call->k = dpari_seq_in(b->k, w->k_at * layer->groups * layer->width, layer->type);
    call->v = dpari_seq_in(b->v, w->k_at * layer->groups * layer->value_width, layer->type);
    call->lse = dpari_seq_at(x->lse, w->q_at * layer->heads, plan->sums);
}

/* Merges the result of the last call of the kernel into out and lse. */
static dpar_status dpari_seq_merge(const dpari_attention *plan, int64_t rows, void *out, void *lse)
{
    dpar_mem_attention_merge m;
    dpari_zero(&m, sizeof m);
    m.type = plan->sums;
    m.rows = rows;
    m.values = plan->head.layer.value_width;
    m.out = out;
    m.lse = lse;
    m.more = plan->part;
    m.more_lse = plan->part_lse;
    return dpari_do_attention_merge(plan->comm, &m);
}

DPARI_API dpar_status dpari_seq_attend(dpari_attention *plan, const dpar_attention_arrays *x,
                                       const dpari_seq_block *b)
{
    const dpar_attention_desc *layer = &plan->head.layer;
    void *sums = layer->type == plan->sums ? x->out : plan->out;
    dpar_status st = DPAR_OK;
    dpari_seq_walk w;
    dpar_attention_call call;
    dpari_seq_begin(plan, b, &w);
    while (st == DPAR_OK && dpari_seq_next(&w)) {
        const int first = b->own && !w.again;
        void *out = dpari_seq_at(sums, w.q_at * layer->heads * layer->value_width, plan->sums),
             *lse;
        w.again = 1;
        dpari_seq_call_of(plan, x, b, &w, &call);
        lse = call.lse;
        call.out = first ? out : plan->part;
        call.lse = first ? lse : plan->part_lse;
        plan->head.pairs += dpari_seq_pairs(&w);
        layer->forward(&call);
        if (!first) {
            st = dpari_seq_merge(plan, w.queries * layer->heads, out, lse);
        }
        dpari_seq_push(plan);
    }
    return st;
}

/* Computes forward around the ring. In step t, the rank computes attention to the keys of the rank
 * that is t ranks before it. Meanwhile it sends these keys to the next rank and receives those of
 * the next step. */
static dpar_status dpari_seq_ring(dpari_attention *plan, const dpar_attention_arrays *arrays)
{
    dpar_status st = DPAR_OK;
    dpari_seq_block here, next;
    int32_t t;
    here = dpari_seq_block_in(plan, 0, NULL, plan->head.layer.type);
    here.k = arrays->k;
    here.v = arrays->v;
    for (t = 0; t < plan->comm->size && st == DPAR_OK; t++) {
        next = dpari_seq_block_in(plan, t + 1, plan->keys[t % 2], plan->head.layer.type);
        if (t + 1 < plan->comm->size) {
            dpari_seq_pass(plan, &here, &next, plan->head.layer.type, 0);
        }
        st = dpari_seq_post(plan);
        if (st == DPAR_OK) {
            st = dpari_seq_attend(plan, arrays, &here);
        }
        st = dpari_first_error(st, dpari_seq_wait(plan));
        here = next;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_attention_forward(dpar_attention_plan *plan,
                                                       const dpar_attention_arrays *arrays)
{
    dpari_attention *p = (dpari_attention *)(void *)plan;
    dpar_status st = dpari_seq_given(p, arrays, 0);
    dpari_attention_method way;
    if (st != DPAR_OK) {
        return st;
    }
    way = dpari_seq_way(&p->head.layer);
    st = way.forward != NULL ? way.forward(p, arrays) : dpari_seq_ring(p, arrays);
    if (st == DPAR_OK && p->head.layer.type != p->sums && !way.whole) {
        st = dpari_seq_round(p, arrays->out, p->out,
                             p->head.tokens * p->head.layer.heads * p->head.layer.value_width);
    }
    return st;
}

/* ---- backward -------------------------------------------------------------------------------- */

DPARI_API dpar_status dpari_seq_delta(dpari_attention *plan, const dpar_attention_arrays *arrays)
{
    dpar_mem_dot d;
    dpari_zero(&d, sizeof d);
    d.to = plan->delta;
    d.a = arrays->out;
    d.b = arrays->out_gradient;
    d.rows = plan->head.tokens * plan->head.layer.heads;
    d.choices = 1;
    d.width = plan->head.layer.value_width;
    d.to_type = plan->sums;
    d.type = plan->head.layer.type;
    return d.rows > 0 ? dpari_do_dot(plan->comm, &d) : DPAR_OK;
}

DPARI_API void dpari_seq_attend_back(dpari_attention *plan, const dpar_attention_arrays *x,
                                     const dpari_seq_block *b, const dpari_seq_block *g, void *dq)
{
    const dpar_attention_desc *layer = &plan->head.layer;
    dpari_seq_walk w;
    dpar_attention_call call;
    dpari_seq_begin(plan, b, &w);
    while (dpari_seq_next(&w)) {
        const int64_t q = w.q_at * layer->heads;
        dpari_seq_call_of(plan, x, b, &w, &call);
        call.out = dpari_seq_at(x->out, q * layer->value_width, layer->type);
        call.out_gradient = dpari_seq_in(x->out_gradient, q * layer->value_width, layer->type);
        call.delta = dpari_seq_in(plan->delta, q, plan->sums);
        call.q_gradient = dpari_seq_at(dq, q * layer->width, plan->sums);
        call.k_gradient = dpari_seq_at(g->to_k, w.k_at * layer->groups * layer->width, plan->sums);
        call.v_gradient =
            dpari_seq_at(g->to_v, w.k_at * layer->groups * layer->value_width, plan->sums);
        layer->backward(&call);
        dpari_seq_push(plan);
    }
}

/* Computes sum += more for all gradients of a block. */
static dpar_status dpari_seq_gather(const dpari_attention *plan, const dpari_seq_block *sum,
                                    const dpari_seq_block *more)
{
    return dpari_do_convert(plan->comm, sum->to_k, plan->sums, more->k, plan->sums,
                            sum->tokens * dpari_seq_each(&plan->head.layer), 1);
}

/* Returns the block for gradients of this rank's own keys and values from its own queries. It is
 * not sent. */
static dpari_seq_block dpari_seq_home(const dpari_attention *plan)
{
    return dpari_seq_block_in(plan, 0, plan->gradients[dpari_seq_home_buffer(plan->comm->size)],
                              plan->sums);
}

/* Does step t of backward. Keys and values are passed on as in forward. From t = 2 on, the
 * gradients of the block of step t - 1 are passed on, too. Meanwhile the rank receives the
 * gradients of this step's block, to which it then adds its own. */
static dpar_status dpari_seq_step_back(dpari_attention *plan, const dpar_attention_arrays *arrays,
                                       int32_t t, dpari_seq_block *here, void *dq)
{
    const dpari_seq_block next =
        dpari_seq_block_in(plan, t + 1, plan->keys[t % 2], plan->head.layer.type);
    const dpari_seq_block gone = dpari_seq_block_in(plan, t - 1 + plan->comm->size,
                                                    plan->gradients[(t + 1) % 2], plan->sums);
    const dpari_seq_block sum = dpari_seq_block_in(plan, t, plan->gradients[t % 2], plan->sums);
    dpari_seq_block mine = sum; /* receives the gradients of this rank's queries */
    dpar_status st;
    if (t == 0) {
        mine = dpari_seq_home(plan);
    } else if (t > 1) {
        mine = dpari_seq_block_in(plan, t, plan->gradients[2], plan->sums);
    }
    if (t + 1 < plan->comm->size) {
        dpari_seq_pass(plan, here, &next, plan->head.layer.type, 0);
    }
    if (t > 1) {
        dpari_seq_pass(plan, &gone, &sum, plan->sums, 2);
    }
    st = dpari_seq_post(plan);
    if (st == DPAR_OK) {
        st = dpari_do_copy(plan->comm, mine.to_k, NULL,
                           mine.tokens * dpari_seq_each(&plan->head.layer) *
                               dpar_type_bytes(plan->sums));
        dpari_seq_attend_back(plan, arrays, here, &mine, dq);
    }
    st = dpari_first_error(st, dpari_seq_wait(plan));
    if (st == DPAR_OK && t > 1) {
        st = dpari_seq_gather(plan, &sum, &mine);
    }
    *here = next;
    return st;
}

/* Computes backward around the ring. Sets *home to the gradients of this rank's keys and values. */
static dpar_status dpari_seq_ring_back(dpari_attention *plan, const dpar_attention_arrays *arrays,
                                       void *dq, dpari_seq_block *home)
{
    const int32_t size = plan->comm->size;
    dpari_seq_block here = dpari_seq_block_in(plan, 0, NULL, plan->head.layer.type);
    dpar_status st = dpari_seq_delta(plan, arrays);
    int32_t t;
    here.k = arrays->k;
    here.v = arrays->v;
    for (t = 0; t < size && st == DPAR_OK; t++) {
        st = dpari_seq_step_back(plan, arrays, t, &here, dq);
    }
    *home = dpari_seq_home(plan);
    if (st == DPAR_OK && size > 1) {
        const dpari_seq_block come =
            dpari_seq_block_in(plan, 0, plan->gradients[size % 2], plan->sums);
        const dpari_seq_block last =
            dpari_seq_block_in(plan, size - 1, plan->gradients[(size - 1) % 2], plan->sums);
        dpari_seq_pass(plan, &last, &come, plan->sums, 2);
        st = dpari_seq_post(plan);
        st = dpari_first_error(st, dpari_seq_wait(plan));
        if (st == DPAR_OK) {
            st = dpari_seq_gather(plan, home, &come);
        }
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_attention_backward(dpar_attention_plan *plan,
                                                        const dpar_attention_arrays *arrays)
{
    dpari_attention *p = (dpari_attention *)(void *)plan;
    dpar_status st = dpari_seq_given(p, arrays, 1);
    const dpar_attention_desc *layer;
    dpari_attention_method way;
    dpari_seq_block home;
    int64_t queries, keys;
    void *dq;
    if (st != DPAR_OK) {
        return st;
    }
    layer = &p->head.layer;
    way = dpari_seq_way(layer);
    if (way.whole) {
        return way.backward(p, arrays, NULL, NULL);
    }
    queries = p->head.tokens * layer->heads * layer->width;
    dq = layer->type == p->sums ? arrays->q_gradient : p->q_gradient;
    st = dpari_do_copy(p->comm, dq, NULL, queries * dpar_type_bytes(p->sums));
    if (st == DPAR_OK) {
        st = way.backward != NULL ? way.backward(p, arrays, dq, &home)
                                  : dpari_seq_ring_back(p, arrays, dq, &home);
    }
    keys = p->head.tokens * layer->groups;
    if (st == DPAR_OK) {
        st = dpari_seq_round(p, arrays->q_gradient, dq, queries);
    }
    if (st == DPAR_OK) {
        st = dpari_seq_round(p, arrays->k_gradient, home.k, keys * layer->width);
    }
    if (st == DPAR_OK) {
        st = dpari_seq_round(p, arrays->v_gradient, home.v, keys * layer->value_width);
    }
    return st;
}
