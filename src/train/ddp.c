/* SPDX-License-Identifier: MIT-0 */
/* Averages gradients that dpar lays out itself (dpar_ddp_init). The buckets have a fixed order,
 * from the last parameter to the first. dpar_ddp_ready notes that a parameter is ready; when all
 * parameters of the next bucket are, the bucket is posted, and so are complete buckets that follow
 * it. All ranks therefore post the same collectives in the same order, even if their gradients
 * become ready in different orders.
 *
 * dpar_ddp_end waits for all buckets. Whether every rank had a gradient for every parameter is
 * settled there, so that an error is the same on all ranks. over.c has the ddp on the caller's
 * arrays; it begins with the same struct, and replaces the end of a pass by its own
 * (dpar_ddp.ends). */
#include "ddp.h"

#include "../base/arith.h"
#include "../base/text.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/elements.h"
#include "../comm/engine.h"
#include "../comm/kernel.h"
#include "../comm/mem_private.h"
#include "../comm/shm.h"
#include "../index/flat.h"
#include "../index/inner.h"
#include "ddp_private.h"

/* ---- options and memory -----------------------------------------------------------------------
 */

static int32_t dpari_ddp_wire(const dpar_ddp_desc *o)
{
    return o->wire != DPAR_TYPE_NONE ? o->wire : o->type;
}

/* True if gradients are sent in another type than they have. */
static int dpari_ddp_rounds(const dpar_ddp_desc *o)
{
    return dpari_ddp_wire(o) != o->type;
}

static int dpari_ddp_no_flag(int32_t v)
{
    return v != 0 && v != 1;
}

static dpar_status dpari_ddp_judge(const dpar_comm *c, const dpar_ddp_desc *o, dpar_why *why)
{
    if (c == NULL || o == NULL) {
        return dpari_wrong(why, "ddp: communicator or options are NULL");
    }
    if (o->params < 0 || (o->params > 0 && o->numel == NULL)) {
        return dpari_wrong(why, "ddp: %d parameters; options.numel is NULL: %d", o->params,
                           o->numel == NULL);
    }
    if (!dpari_is_float(o->type)) {
        return dpari_wrong(why, "ddp: gradients of type %s: f64, f32, f16 or bf16",
                           dpar_type_name(o->type));
    }
    if (dpari_ddp_rounds(o) && !dpari_narrows(o->type, o->wire)) {
        return dpari_wrong(why,
                           "ddp: gradients cannot travel as %s (wire %d): f64 as f32, f32 as f16 "
                           "or bf16",
                           dpar_type_name(o->wire), o->wire);
    }
    if (dpari_ddp_no_flag(o->sum) || dpari_ddp_no_flag(o->scatter) ||
        dpari_ddp_no_flag(o->unused) || dpari_ddp_no_flag(o->finite)) {
        return dpari_wrong(why, "ddp: sum %d, scatter %d, unused %d, finite %d: each 0 or 1",
                           o->sum, o->scatter, o->unused, o->finite);
    }
    if (o->first_bytes < 0 || o->bucket_bytes < 0 || o->align < 0 || o->multiple < 0) {
        return dpari_wrong(
            why, "ddp: buckets of %ld and %ld B, starts at %ld, ends at %ld: none may be negative",
            o->first_bytes, o->bucket_bytes, o->align, o->multiple);
    }
    return DPAR_OK;
}

static dpar_buckets_desc dpari_ddp_bucketing(const dpar_comm *c, const dpar_ddp_desc *o)
{
    dpar_buckets_desc how = dpari_bucketing_ddp(dpar_type_bytes(o->type));
    const int64_t each = dpar_type_bytes(o->type);
    how.params = o->params;
    how.numel = o->numel;
    how.first = o->first_bytes > 0 ? dpari_ceil_div(o->first_bytes, each) : how.first;
    how.size = o->bucket_bytes > 0 ? dpari_ceil_div(o->bucket_bytes, each) : how.size;
    how.align = o->align > 0 ? o->align : 64;
    how.multiple = o->multiple;
    how.ranks = o->scatter ? c->size : 1;
    return how;
}

/* True if the gradients in the wire type need a copy in memory. Ranks that share memory do not,
 * since their all-reduce rounds f32 while it adds. */
static int dpari_ddp_copies(const dpar_comm *c, const dpar_ddp_desc *o)
{
    return dpari_ddp_rounds(o) && (o->type != DPAR_F32 || o->scatter || o->hook != NULL ||
                                   c->mem != NULL || dpari_world_of(c) == NULL);
}

/* Places the parts of a ddp in memory and returns their total size; with memory NULL only
 * counts. */
static dpar_ddp *dpari_ddp_place(void *memory, int32_t params, int32_t buckets, int64_t *bytes)
{
    dpar_ddp none, *d;
    dpari_room r;
    r.at = (unsigned char *)memory;
    r.used = 0;
    d = (dpar_ddp *)dpari_room_take(&r, 1, sizeof *d);
    d = memory != NULL ? d : &none;
    dpari_zero(d, sizeof *d);
    d->params = params;
    d->buckets = buckets;
    d->numel = (int64_t *)dpari_room_take(&r, params, sizeof *d->numel);
    d->start = (int64_t *)dpari_room_take(&r, params, sizeof *d->start);
    d->seen = (uint8_t *)dpari_room_take(&r, INT64_C(1) + params, sizeof *d->seen);
    d->used = (uint8_t *)dpari_room_take(&r, params, sizeof *d->used);
    d->bucket = (dpar_bucket *)dpari_room_take(&r, buckets, sizeof *d->bucket);
    d->work = (dpar_work *)dpari_room_take(&r, buckets, sizeof *d->work);
    *bytes = r.used;
    return d;
}

static dpar_status dpari_ddp_count(const dpar_comm *c, const dpar_ddp_desc *o, int32_t *buckets,
                                   int64_t *bytes, dpar_why *why)
{
    dpar_status st = dpari_ddp_judge(c, o, why);
    if (st == DPAR_OK) {
        const dpar_buckets_desc how = dpari_ddp_bucketing(c, o);
        st = dpar_buckets_init(&how, NULL, NULL, 0, buckets, why);
    }
    if (st == DPAR_OK) {
        (void)dpari_ddp_place(NULL, o->params, *buckets, bytes);
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_bytes(const dpar_comm *c, const dpar_ddp_desc *options,
                                               int64_t *bytes, dpar_why *why)
{
    int64_t needed = 0;
    int32_t buckets = 0;
    dpar_status st = dpari_ddp_count(c, options, &buckets, &needed, why);
    if (bytes == NULL) {
        return dpari_wrong(why, "ddp: bytes is NULL");
    }
    *bytes = st == DPAR_OK ? needed : *bytes;
    return st;
}

/* Lists the options that all ranks must give alike, for comparison. */
typedef struct dpari_ddp_given {
    const dpar_ddp_desc *options;
    dpar_buckets_desc how;
} dpari_ddp_given;

static DPARI_COLD void dpari_ddp_state(dpari_facts *f, const void *given)
{
    const dpari_ddp_given *g = (const dpari_ddp_given *)given;
    const dpar_ddp_desc *o = g->options;
    int32_t i;
    dpari_fact(f, "the number of parameters", 0, o->params);
    dpari_fact_type(f, "type", 0, o->type);
    dpari_fact_type(f, "wire", 0, dpari_ddp_wire(o));
    dpari_fact(f, "sum", 0, o->sum != 0);
    dpari_fact(f, "scatter", 0, o->scatter != 0);
    dpari_fact(f, "unused", 0, o->unused != 0);
    dpari_fact(f, "hook != NULL", 0, o->hook != NULL);
    dpari_fact(f, "finite", 0, o->finite != 0);
    dpari_fact(f, "first_bytes in elements", 0, g->how.first);
    dpari_fact(f, "bucket_bytes in elements", 0, g->how.size);
    dpari_fact(f, "align", 0, g->how.align);
    dpari_fact(f, "multiple", 0, dpari_most(1, g->how.multiple));
    for (i = 0; i < o->params; i++) {
        dpari_fact(f, "numel[#]", i, o->numel[i]);
    }
}

/* Buckets, and memory for the gradients. */
static dpar_status dpari_ddp_lay(dpar_ddp *d, dpar_why *why)
{
    const int64_t *numel = d->options.numel;
    const dpar_buckets_desc how = dpari_ddp_bucketing(d->c, &d->options);
    const int64_t each = dpar_type_bytes(d->options.type);
    const int64_t wire = dpar_type_bytes(dpari_ddp_wire(&d->options));
    void *memory = NULL;
    int32_t i;
    dpar_status st = dpar_buckets_init(&how, d->start, d->bucket, d->buckets, &d->buckets, why);
    if (st != DPAR_OK) {
        return st;
    }
    d->elements = d->buckets > 0 ? d->bucket[d->buckets - 1].hi : 0;
    for (i = 0; i < d->params; i++) {
        d->numel[i] = numel[i];
    }
    st = d->elements > INT64_MAX / 16
             ? DPAR_E_RANGE
             : dpar_comm_alloc(d->c, dpari_most(1, d->elements * each), &memory);
    d->buffer = (unsigned char *)memory;
    if (st == DPAR_OK && dpari_ddp_copies(d->c, &d->options)) {
        memory = NULL;
        st = dpar_comm_alloc(d->c, dpari_most(1, d->elements * wire), &memory);
        d->copy = (unsigned char *)memory;
    }
    if (st == DPAR_OK && d->c->mem != NULL && d->options.finite && d->c->mem->pin != NULL) {
        st = d->c->mem->pin(d->c->mem->ctx, &d->found, (int64_t)sizeof d->found);
        d->pinned = st == DPAR_OK;
    }
    return st == DPAR_OK ? st
                         : dpari_say(st, why, "ddp: no memory for %ld gradients of %ld and %ld B",
                                     d->elements, each, wire);
}

static void dpari_ddp_free(dpar_ddp *d)
{
    if (d->copy != NULL) {
        dpar_comm_release(d->c, d->copy);
    }
    if (d->buffer != NULL) {
        dpar_comm_release(d->c, d->buffer);
    }
    if (d->pinned && d->c->mem->unpin != NULL) {
        (void)d->c->mem->unpin(d->c->mem->ctx, &d->found);
    }
    d->pinned = 0;
    d->buffer = NULL;
    d->copy = NULL;
    d->elements = d->params = d->buckets = 0; /* nothing of it is used again */
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_init(void *memory, int64_t bytes, dpar_comm *c,
                                              const dpar_ddp_desc *options, dpar_ddp **ddp,
                                              dpar_why *why)
{
    dpar_ddp *d = (dpar_ddp *)memory;
    dpari_ddp_given given;
    int64_t needed = 0;
    int32_t buckets = 0;
    dpar_status st;
    if (c == NULL || ddp == NULL) {
        return dpari_wrong(why, "ddp: communicator or result is NULL");
    }
    dpari_zero(&given, sizeof given);
    st = dpari_ddp_count(c, options, &buckets, &needed, why);
    st = st == DPAR_OK ? dpari_room_check(memory, bytes, needed, "ddp", why) : st;
    if (st == DPAR_OK) {
        given.options = options;
        given.how = dpari_ddp_bucketing(c, options);
    }
    st = dpari_agree_on(c, st, "ddp", dpari_ddp_state, &given, why);
    if (st != DPAR_OK) {
        return st;
    }
    (void)dpari_ddp_place(memory, options->params, buckets, &needed);
    *d->seen++ = 0;
    d->c = c;
    d->options = *options;
    dpari_zero(d->work, (size_t)buckets * sizeof *d->work);
    st = dpari_agree(c, dpari_ddp_lay(d, why), why);
    if (st != DPAR_OK) {
        dpari_ddp_free(d);
        return st;
    }
    dpar_ddp_zero(d);
    *ddp = d;
    return DPAR_OK;
}

/* ---- a pass ------------------------------------------------------------------------------------
 */

/* True if the parameter was ready on any rank with options.unused, otherwise on this one. */
static int dpari_ddp_used(const dpar_ddp *d, int32_t i)
{
    return d->options.unused ? d->used[i] != 0 : d->seen[i] != 0;
}

DPAR_API void *dpar_ddp_gradient(const dpar_ddp *d, int32_t i, int *used)
{
    const int there = d != NULL && i >= 0 && i < d->params;
    if (used != NULL) {
        *used = there && dpari_ddp_used(d, i);
    }
    return there ? d->buffer + d->start[i] * dpar_type_bytes(d->options.type) : NULL;
}

DPAR_API void *dpar_ddp_bucket(const dpar_ddp *d, int32_t k, dpar_bucket *bucket)
{
    if (d == NULL || k < 0 || k >= d->buckets) {
        return NULL;
    }
    if (bucket != NULL) {
        *bucket = d->bucket[k];
    }
    return d->buffer + d->bucket[k].lo * dpar_type_bytes(d->options.type);
}

DPAR_API void dpar_ddp_zero(dpar_ddp *d)
{
    if (d == NULL) {
        return;
    }
    (void)dpari_do_copy(d->c, d->buffer, NULL, d->elements * dpar_type_bytes(d->options.type));
    dpari_zero(d->used, (size_t)d->params);
    dpari_zero(d->seen, (size_t)d->params);
    d->pass = d->under_way;
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_begin(dpar_ddp *d, int32_t last)
{
    int32_t i;
    if (d == NULL) {
        return DPAR_E_ARG;
    }
    if (d->c->status != DPAR_OK) {
        return d->c->status;
    }
    if (d->under_way) {
        return dpari_comm_wrong(d->c, "ddp: a pass begins before the last has ended");
    }
    d->under_way = 1;
    d->open = d->params;
    d->latest = d->params - 1;
    d->edge = last && d->buckets > 0 ? d->bucket[0].first : -1;
    if (d->pass++ == UINT8_MAX) { /* all before are one */
        for (i = 0; i < d->params; i++) {
            d->seen[i] = d->seen[i] != 0;
        }
        d->pass = 2;
    }
    d->last = last != 0;
    d->next = 0;
    d->posted = d->back = 0;
    d->status = DPAR_OK;
    return DPAR_OK;
}

/* "'wte'" or "parameter 3". */
static DPARI_COLD void dpari_ddp_put_name(const dpar_ddp *d, dpar_text *t, int32_t i)
{
    const char *name = d->options.names != NULL ? d->options.names[i] : NULL;
    dpar_text_put(t, name != NULL ? "'" : "parameter ");
    if (name != NULL) {
        dpari_text_print(t, "%s'", name);
    } else {
        dpari_text_int(t, i);
    }
}

/* Ends the pass with an error on all ranks. */
static dpar_status dpari_ddp_stop(dpar_ddp *d, const char *text)
{
    dpar_comm_abort(d->c, DPAR_E_ARG, text);
    d->status = d->c->status != DPAR_OK ? d->c->status : DPAR_E_ARG;
    return d->status;
}

/* Finds the first NaN or infinity of a bucket in the memory of a device, and waits for the result
 * in d->found. */
static dpar_status dpari_ddp_look_there(dpar_ddp *d, int32_t k)
{
    const dpar_bucket *b = &d->bucket[k];
    dpar_mem_finite f;
    dpar_status st;
    dpari_zero(&f, sizeof f);
    f.in = d->buffer + b->lo * dpar_type_bytes(d->options.type);
    f.count = b->hi - b->lo;
    f.first = b->lo;
    f.type = d->options.type;
    f.found = &d->found;
    st = dpari_do_finite(d->c, &f);
    st = st == DPAR_OK ? dpari_do_wait(d->c) : st;
    d->status = d->status == DPAR_OK ? st : d->status;
    return st;
}

/* In parameter i: numel: none. */
static int64_t dpari_ddp_look_at(const dpar_ddp *d, int32_t i)
{
    const int64_t at = d->found - d->start[i];
    if (d->c->mem == NULL) {
        return dpari_kern_finite(dpar_ddp_gradient(d, i, NULL), d->numel[i], d->options.type);
    }
    return d->found >= 0 && at >= 0 && at < d->numel[i] ? at : d->numel[i];
}

/* Refuses to send a bucket that contains NaN or infinity (options.finite). */
static dpar_status dpari_ddp_look(dpar_ddp *d, int32_t k)
{
    int32_t i;
    if (d->c->mem != NULL && dpari_ddp_look_there(d, k) != DPAR_OK) {
        return d->status;
    }
    for (i = d->bucket[k].first; i < d->bucket[k].last; i++) {
        const int64_t at = dpari_ddp_look_at(d, i);
        dpar_why why;
        dpar_text t;
        if (at == d->numel[i]) {
            continue;
        }
        dpar_text_init(&t, why.text, sizeof why.text);
        dpar_text_put(&t, "ddp: the gradient of ");
        dpari_ddp_put_name(d, &t, i);
        dpari_text_print(&t, " is NaN or infinite at element %ld on rank %d", at, d->c->rank);
        return dpari_ddp_stop(d, why.text);
    }
    return DPAR_OK;
}

/* Converts a reduced bucket from the wire type to the type of the gradients. */
static dpar_status dpari_ddp_widen(dpar_ddp *d, int32_t k)
{
    const dpar_ddp_desc *o = &d->options;
    const int32_t wire = dpari_ddp_wire(o);
    const dpar_bucket *b = &d->bucket[k];
    int64_t lo = b->lo, count = b->hi - b->lo;
    if (o->scatter) {
        count /= d->c->size;
        lo += count * d->c->rank;
    }
    return dpari_do_convert(d->c, d->buffer + lo * dpar_type_bytes(o->type), o->type,
                            d->copy + lo * dpar_type_bytes(wire), wire, count, 0);
}

/* Waits for all that was posted. */
static void dpari_ddp_take(dpar_ddp *d)
{
    for (; d->back < d->posted; d->back++) {
        dpar_status st = dpar_wait(&d->work[d->back]);
        if (st == DPAR_OK && d->copy != NULL) {
            st = dpari_ddp_widen(d, d->back);
        }
        d->status = d->status == DPAR_OK ? st : d->status;
    }
}

/* Posts the reduction of bucket k. */
static dpar_status dpari_ddp_send(dpar_ddp *d, int32_t k)
{
    const dpar_ddp_desc *o = &d->options;
    const dpar_bucket *b = &d->bucket[k];
    const int32_t wire = dpari_ddp_wire(o), op = o->sum ? DPAR_SUM : DPAR_AVG;
    const int64_t count = b->hi - b->lo;
    unsigned char *mine = d->buffer + b->lo * dpar_type_bytes(o->type), *data = mine;
    if (o->finite && dpari_ddp_look(d, k) != DPAR_OK) {
        return d->status;
    }
    if (d->copy != NULL) {
        dpar_status st;
        data = d->copy + b->lo * dpar_type_bytes(wire);
        st = dpari_do_convert(d->c, data, wire, mine, o->type, count, 0);
        if (st != DPAR_OK) {
            return st;
        }
    }
    d->work[k].status = DPAR_OK; /* for a hook that leaves it as it is */
    d->posted++;                 /* a hook that fails may have posted */
    if (o->hook != NULL) {
        const dpar_status st = o->hook(o->ctx, d->c, k, data, count, wire, &d->work[k]);
        return st > 0 ? DPAR_OK : st; /* a condition is no error */
    }
    if (o->scatter) {
        const int64_t share = count / d->c->size;
        return dpar_reduce_scatter(d->c, data, data + share * d->c->rank * dpar_type_bytes(wire),
                                   share, wire, op, &d->work[k]);
    }
    return dpari_ddp_rounds(o) && d->copy == NULL
               ? dpari_all_reduce_through(d->c, data, count, wire, op, &d->work[k])
               : dpar_all_reduce(d->c, data, data, count, wire, op, &d->work[k]);
}

/* Posts all buckets that are next in order and complete. */
static dpar_status dpari_ddp_send_ready(dpar_ddp *d)
{
    while (d->latest < d->edge && d->status == DPAR_OK) {
        d->status = dpari_ddp_send(d, d->next++);
        d->edge = d->next < d->buckets ? d->bucket[d->next].first : -1;
    }
    return d->status;
}

static dpar_status dpari_ddp_not_ready(dpar_ddp *d, int32_t i)
{
    if (d == NULL || (!d->under_way && d->c->status != DPAR_OK)) {
        return d == NULL ? DPAR_E_ARG : d->c->status;
    }
    return dpari_comm_wrong(d->c,
                            !d->under_way ? "ddp: parameter %d of %d is ready outside of a pass"
                            : i < 0 || i >= d->params
                                ? "ddp: parameter %d of %d is ready: there is none"
                                : "ddp: parameter %d of %d is ready for the second time in a pass",
                            i, d->params);
}

DPAR_API dpar_status dpar_ddp_ready(dpar_ddp *d, int32_t i)
{
    if (d == NULL || (uint32_t)i >= (uint32_t)d->open || d->seen[i] == d->pass) {
        return dpari_ddp_not_ready(d, i);
    }
    d->seen[i] = (uint8_t)d->pass;
    if (i != d->latest) {
        return d->status;
    }
    do {
        i--;
    } while (d->seen[i] == d->pass);
    d->latest = i;
    return i < d->edge ? dpari_ddp_send_ready(d) : d->status;
}

/* "ddp: rank 1 has no gradient of 'a', 'b' and 7 others (...)". */
static dpar_status dpari_ddp_tell_missing(dpar_ddp *d)
{
    enum { NAMED = 3 };
    dpar_why why;
    dpar_text t;
    int32_t i, n = 0;
    dpar_text_init(&t, why.text, sizeof why.text);
    dpari_text_print(&t, "ddp: rank %d has no gradient of ", d->c->rank);
    for (i = 0; i < d->params; i++) {
        if (d->seen[i] == d->pass) {
            continue;
        }
        if (n < NAMED) {
            dpar_text_put(&t, n > 0 ? ", " : "");
            dpari_ddp_put_name(d, &t, i);
        }
        n++;
    }
    if (n > NAMED) {
        dpari_text_print(&t, " and %d others", n - NAMED);
    }
    dpar_text_put(&t, " (options.unused = 1 lets them be without)");
    return dpari_ddp_stop(d, why.text);
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_end(dpar_ddp *d)
{
    int32_t i;
    if (d == NULL || (!d->under_way && d->c->status != DPAR_OK)) {
        return d == NULL ? DPAR_E_ARG : d->c->status;
    }
    if (d->ends != NULL) {
        return d->ends(d);
    }
    if (!d->under_way) {
        return dpari_comm_wrong(d->c, "ddp: no pass is under way");
    }
    if (d->last && d->latest >= 0 && !d->options.unused && d->status == DPAR_OK) {
        (void)dpari_ddp_tell_missing(d);
    }
    d->latest = -1;
    (void)dpari_ddp_send_ready(d);
    dpari_ddp_take(d);
    for (i = 0; d->options.unused && i < d->params; i++) {
        d->used[i] = d->seen[i] != 0;
    }
    if (d->last && d->options.unused && d->status == DPAR_OK) {
        d->status = dpar_all_reduce(d->c, d->used, d->used, d->params, DPAR_U8, DPAR_MAX, NULL);
    }
    d->under_way = d->open = 0;
    return d->status;
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_close(dpar_ddp *d)
{
    if (d == NULL) {
        return DPAR_OK;
    }
    if (d->under_way && d->c->status == DPAR_OK) {
        return dpari_comm_wrong(d->c, "ddp: a pass is under way");
    }
    dpari_ddp_take(d); /* of a pass that broke: nobody may look at it any more */
    dpari_ddp_free(d);
    return DPAR_OK;
}
