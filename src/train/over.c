/* SPDX-License-Identifier: MIT-0 */
/* Averages gradients in the caller's arrays (dpar_ddp_over). Elements are numbered through all
 * arrays. A pass collects the spans that dpar_ddp_done reports, as a sorted list of disjoint spans.
 *
 * In the first pass, rank 0 also groups what it reports into buckets, in the order of the reports,
 * and everything is sent at the end. Rank 0 then broadcasts its buckets, so that all ranks post the
 * same collectives in the same order. From the second pass on, the next bucket is posted when all
 * of it has been reported.
 *
 * Buckets may have several pieces: one for each array, and for ZeRO-1 one for each rank's share,
 * since then gradients are reduced to the owner of the share. Short arrays are copied into one
 * packed array, because many small messages take longer. zero1.c uses this file for its gradients
 * and weights. */
#include "over.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/elements.h"
#include "../comm/mem_private.h"
#include "ddp.h"
#include "ddp_private.h"
#include "made.h"
#include "over_private.h"

/* Bytes of a bucket, and the most buckets: with more gradients, buckets are larger. */
enum { DPARI_OVER_BUCKET = 1 << 22, DPARI_OVER_MOST = 4096 };

/* Arrays of fewer bytes are packed and sent together, if there are several. */
enum { DPARI_OVER_SHORT = 1 << 16 };

/* ---- spans ------------------------------------------------------------------------------------
 */

/* The first span that ends at `lo` or behind it. */
static int32_t dpari_spans_find(const dpari_spans *s, int64_t lo)
{
    int32_t low = 0, high = s->count;
    while (low < high) {
        const int32_t mid = low + (high - low) / 2;
        if (s->at[mid].hi < lo) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

/* True if one of the spans contains all of lo .. hi. */
static int dpari_spans_hold(const dpari_spans *s, const dpari_span *b)
{
    const int32_t i = dpari_spans_find(s, b->hi);
    return i < s->count && s->at[i].lo <= b->lo;
}

static void dpari_spans_drop(dpari_spans *s, int32_t i)
{
    for (s->count--; i < s->count; i++) {
        s->at[i] = s->at[i + 1];
    }
}

/* Makes space for one more span. */
static DPARI_COLD dpar_status dpari_spans_grow(dpar_comm *c, dpari_spans *s)
{
    const int32_t room = 255 + s->room * 2;
    dpari_span *at = (dpari_span *)dpari_made_room(c, room * (int64_t)sizeof *at);
    int32_t i;
    if (at == NULL) {
        return DPAR_E_MEMORY;
    }
    for (i = 0; i < s->count; i++) {
        at[i] = s->at[i];
    }
    dpari_made_give(s->at);
    s->at = at;
    s->room = room;
    return DPAR_OK;
}

/* Adds lo .. hi, which overlaps no other span, and merges it with its neighbours. *where is set to
 * the number of the span that contains it then. */
static dpar_status dpari_spans_add(dpar_comm *c, dpari_spans *s, int64_t lo, int64_t hi,
                                   int32_t *where)
{
    const int32_t i = dpari_spans_find(s, lo);
    int32_t k;
    *where = i;
    if (i < s->count && s->at[i].hi == lo) {
        s->at[i].hi = hi;
        if (i + 1 < s->count && s->at[i + 1].lo == hi) {
            s->at[i].hi = s->at[i + 1].hi;
            dpari_spans_drop(s, i + 1);
        }
        return DPAR_OK;
    }
    if (i < s->count && s->at[i].lo == hi) {
        s->at[i].lo = lo;
        return DPAR_OK;
    }
    if (s->count == s->room) {
        const dpar_status st = dpari_spans_grow(c, s);
        if (st != DPAR_OK) {
            return st;
        }
    }
    for (k = s->count++; k > i; k--) {
        s->at[k] = s->at[k - 1];
    }
    s->at[i].lo = lo;
    s->at[i].hi = hi;
    return DPAR_OK;
}

/* ---- which parts travel together --------------------------------------------------------------
 */

static void dpari_over_bucket(dpari_over *o, int32_t i)
{
    o->bucket[o->buckets++] = o->fresh.at[i];
    dpari_spans_drop(&o->fresh, i);
}

/* Notes that lo .. hi are complete. */
static dpar_status dpari_over_note(dpari_over *o, int64_t lo, int64_t hi)
{
    const int64_t each = dpar_type_bytes(o->d.options.type);
    int32_t i;
    dpar_status st = dpari_spans_add(o->d.c, &o->seen, lo, hi, &i);
    if (st == DPAR_OK && !o->planned && o->d.c->rank == 0) {
        st = dpari_spans_add(o->d.c, &o->fresh, lo, hi, &i);
        if (st == DPAR_OK && (o->fresh.at[i].hi - o->fresh.at[i].lo) * each >= o->bucket_bytes) {
            dpari_over_bucket(o, i);
        }
    }
    return st;
}

/* Makes buckets of the elements that were not reported in the first pass, from the last element to
 * the first, and of those that are in no bucket yet. If there was no memory for spans, all is one
 * bucket. */
static DPARI_COLD void dpari_over_close_buckets(dpari_over *o)
{
    int64_t lo = o->elements, hi, sum = 0;
    int32_t k;
    while (lo > 0) {
        const int32_t n = o->seen.count, top = n > 0 && o->seen.at[n - 1].hi == o->elements;
        hi = top ? o->seen.at[n - 1].lo : o->elements;
        lo = n - top > 0 ? o->seen.at[n - 1 - top].hi : 0;
        if (hi > 0 && dpari_over_note(o, lo, hi) != DPAR_OK) {
            break;
        }
        lo = hi > 0 ? lo : 0;
    }
    while (o->fresh.count > 0) {
        dpari_over_bucket(o, o->fresh.count - 1);
    }
    for (k = 0; k < o->buckets; k++) {
        sum += o->bucket[k].hi - o->bucket[k].lo;
    }
    if (sum != o->elements) {
        o->buckets = 1;
        o->bucket[0].lo = 0;
        o->bucket[0].hi = o->elements;
    }
}

/* Broadcasts the buckets of rank 0 after the first pass. */
static DPARI_COLD dpar_status dpari_over_learn(dpari_over *o)
{
    dpar_comm *c = o->d.c;
    dpar_status st;
    if (c->rank == 0) {
        dpari_over_close_buckets(o);
    }
    st = dpari_broadcast_as(c, &o->buckets, 1, DPAR_I32, "ddp end");
    st = st == DPAR_OK ? dpar_broadcast(c, o->bucket, o->buckets * INT64_C(2), DPAR_I64, 0, NULL)
                       : st;
    o->planned = st == DPAR_OK;
    return st;
}

/* ---- what travels -----------------------------------------------------------------------------
 */

DPARI_INTERNAL int64_t dpari_over_first(const dpari_over *o)
{
    return dpari_least(o->elements, o->share * o->d.c->rank);
}

DPARI_INTERNAL dpar_status dpari_over_gather(dpari_over *o, void *data, uint64_t hash)
{
    dpar_comm *c = o->d.c;
    dpar_call call;
    dpari_zero(&call, sizeof call);
    call.kind = DPAR_CALL_ALL_GATHER;
    call.type = o->d.options.type;
    call.in = (const unsigned char *)data + dpari_over_first(o) * dpar_type_bytes(call.type);
    call.out = data;
    call.varies = o->share * c->size != o->elements;
    call.count = o->share;
    if (call.varies) {
        call.count = o->count[c->rank];
        call.out_count = o->count;
    }
    return dpari_post_alike(c, &call, hash, "zero1: params, rate, clip or the optimizer's numbers",
                            NULL);
}

/* Reduces all gradients in place to the owners of the shares. */
static dpar_status dpari_over_scatter(dpari_over *o, dpar_work *work)
{
    dpar_comm *c = o->d.c;
    const int32_t type = o->d.options.type;
    unsigned char *data = o->array->data;
    unsigned char *own = data + dpari_over_first(o) * dpar_type_bytes(type);
    return o->share * c->size == o->elements
               ? dpar_reduce_scatter(c, data, own, o->share, type, DPAR_AVG, work)
               : dpar_reduce_scatter_v(c, data, own, o->count, type, DPAR_AVG, work);
}

/* Posts the reductions of a bucket: one for each piece that is in one array and, if scattered, in
 * one rank's share. */
static DPARI_COLD dpar_status dpari_over_send(dpari_over *o, const dpari_span *b, int32_t scatter)
{
    dpar_comm *c = o->d.c;
    const int32_t type = o->d.options.type;
    const int64_t each = dpar_type_bytes(type);
    int64_t lo, hi, from = o->elements, to = 0; /* from, to: what is packed */
    int32_t k = 0;
    dpar_status st = DPAR_OK;
    if (scatter && b->hi - b->lo == o->elements) {
        return dpari_over_scatter(o, &o->work[o->posted++]);
    }
    for (lo = b->lo; lo < b->hi && st == DPAR_OK; lo = hi) {
        unsigned char *data;
        while (o->array[k + 1].first <= lo) {
            k++;
        }
        data = o->array[k].data + (lo - o->array[k].first) * each;
        hi = dpari_least(b->hi, o->array[k + 1].first);
        if (scatter) {
            const int32_t owner = (int32_t)(lo / o->share);
            hi = dpari_least(hi, (owner + INT64_C(1)) * o->share);
            st = dpar_reduce(c, data, data, hi - lo, type, DPAR_AVG, owner, &o->work[o->posted++]);
        } else if (o->array[k].packed >= 0) {
            const int64_t at = o->array[k].packed + lo - o->array[k].first;
            st = dpari_do_copy(c, o->pack + at * each, data, (hi - lo) * each);
            from = dpari_least(from, at);
            to = at + hi - lo;
        } else {
            st = dpar_all_reduce(c, data, data, hi - lo, type, DPAR_AVG, &o->work[o->posted++]);
        }
    }
    if (st == DPAR_OK && from < to) { /* the short ones of a bucket lie together in the pack */
        st = dpar_all_reduce(c, o->pack + from * each, o->pack + from * each, to - from, type,
                             DPAR_AVG, &o->work[o->posted++]);
    }
    return st;
}

/* Copies packed gradients back to their arrays. */
static dpar_status dpari_over_unpack(const dpari_over *o)
{
    const int64_t each = dpar_type_bytes(o->d.options.type);
    dpar_status st = DPAR_OK;
    int32_t k;
    for (k = 0; k < o->arrays && o->pack != NULL && st == DPAR_OK; k++) {
        const dpari_over_array *a = &o->array[k];
        if (a->packed >= 0 && a[1].first > a->first) {
            st = dpari_do_copy(o->d.c, a->data, o->pack + a->packed * each,
                               (a[1].first - a->first) * each);
        }
    }
    return st;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_over_finish(dpari_over *o, int32_t scatter)
{
    dpar_ddp *d = &o->d;
    const int32_t stays = d->under_way && !d->last;
    const int32_t owners = scatter || o->scatter; /* some may have left already, on some ranks */
    dpar_status st = d->status;
    if (st == DPAR_OK && !stays && !o->planned) {
        st = dpari_over_learn(o);
    }
    if (st == DPAR_OK && !stays && o->buckets == 1 && o->arrays == 1 && o->posted == 0) {
        o->next = 1; /* all of it at once, which takes no work */
        st = owners ? dpari_over_scatter(o, NULL)
                    : dpar_all_reduce(d->c, o->array->data, o->array->data, o->elements,
                                      d->options.type, DPAR_AVG, NULL);
    }
    while (st == DPAR_OK && !stays && o->next < o->buckets) {
        st = dpari_over_send(o, &o->bucket[o->next++], owners);
    }
    if (o->posted > 0) {
        const dpar_status came = dpar_wait_all(o->work, o->posted);
        st = st == DPAR_OK ? came : st;
    }
    st = st == DPAR_OK && !stays ? dpari_over_unpack(o) : st;
    if (st == DPAR_OK && !stays && owners && !scatter) {
        st = dpari_over_gather(o, o->array->data, 0);
    }
    if (!stays) {
        o->scatter = scatter;
        o->ended = !scatter;
    }
    o->seen.count = 0;
    o->next = o->posted = o->open = 0;
    d->under_way = 0;
    d->status = DPAR_OK;
    return st;
}

static dpar_status dpari_over_end(dpar_ddp *d)
{
    return dpari_over_finish((dpari_over *)(void *)d, 0);
}

/* ---- done -------------------------------------------------------------------------------------
 */

DPARI_INTERNAL dpari_over *dpari_over_of(dpar_ddp *d)
{
    if (d == NULL || d->ends != dpari_over_end) {
        if (d != NULL) {
            (void)dpari_comm_wrong(d->c, "ddp: it was not made by dpar_ddp_over");
        }
        return NULL;
    }
    return (dpari_over *)(void *)d;
}

/* The number among all of the element at `at`, of which `count` follow in its array; -1: none. */
static int64_t dpari_over_locate(dpari_over *o, uintptr_t at, int64_t count)
{
    const int64_t each = dpar_type_bytes(o->d.options.type);
    int32_t i, k = o->hint;
    for (i = 0; i<o->arrays; i++, k = k> 0 ? k - 1 : o->arrays - 1) { /* backward */
        const dpari_over_array *a = &o->array[k];
        const uintptr_t bytes = at - (uintptr_t)a->data; /* far too many where it lies before */
        const int64_t elements = a[1].first - a->first;
        if (bytes <= (uintptr_t)(elements * each) && (bytes & (uintptr_t)(each - 1)) == 0) {
            const int64_t from = (int64_t)(bytes >> (each == 8 ? 3 : each / 2)); /* of 8, 4, 2 */
            if (count >= 0 && count <= elements - from) {
                o->hint = k;
                return a->first + from;
            }
        }
    }
    return -1;
}

static DPARI_COLD dpar_status dpari_over_outside(dpari_over *o, uintptr_t at, int64_t count)
{
    const uintptr_t begin = (uintptr_t)o->array->data;
    const int64_t bytes = at >= begin ? (int64_t)(at - begin) : -(int64_t)(begin - at);
    const int64_t each = dpar_type_bytes(o->d.options.type);
    if (o->arrays > 1) {
        return dpari_comm_wrong(o->d.c,
                                "ddp: %ld elements are done that lie in none of the %d arrays",
                                count, o->arrays);
    }
    if (bytes % each != 0) {
        return dpari_comm_wrong(
            o->d.c, "ddp: %ld elements are done that begin within one: %ld bytes behind the first",
            count, bytes);
    }
    return dpari_comm_wrong(o->d.c, "ddp: %ld elements from %ld on are done, of %ld gradients",
                            count, bytes / each, o->elements);
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_done(dpar_ddp *d, const void *at, int64_t count)
{
    dpari_over *o = dpari_over_of(d);
    int64_t lo;
    int32_t i;
    dpar_status st;
    if (o == NULL || d->c->status != DPAR_OK) {
        return o == NULL ? DPAR_E_ARG : d->c->status;
    }
    lo = dpari_over_locate(o, (uintptr_t)at, count);
    if (lo < 0) {
        return dpari_over_outside(o, (uintptr_t)at, count);
    }
    i = dpari_spans_find(&o->seen, lo + 1);
    if (count > 0 && i < o->seen.count && o->seen.at[i].lo < lo + count) {
        return dpari_comm_wrong(
            d->c, "ddp: elements %ld to %ld are done, of which %ld to %ld were already", lo,
            lo + count - 1, dpari_most(lo, o->seen.at[i].lo),
            dpari_least(lo + count, o->seen.at[i].hi) - 1);
    }
    o->open = 1;
    o->ended = 0;
    if (count == 0 || (d->under_way && !d->last)) {
        return DPAR_OK;
    }
    st = dpari_over_note(o, lo, lo + count);
    while (o->planned && o->next < o->buckets && d->status == DPAR_OK &&
           dpari_spans_hold(&o->seen, &o->bucket[o->next])) {
        d->status = dpari_over_send(o, &o->bucket[o->next++], o->scatter);
    }
    return d->status == DPAR_OK ? st : d->status;
}

/* ---- made and freed ---------------------------------------------------------------------------
 */

/* Places its parts in memory and returns their total size; with memory NULL only counts. */
static DPARI_COLD int64_t dpari_over_place(dpari_over *o, void *memory, int32_t ranks)
{
    const int64_t most =
        dpari_ceil_div(o->elements * dpar_type_bytes(o->d.options.type), o->bucket_bytes) * 2 + 1;
    dpari_room r;
    r.at = (unsigned char *)memory;
    r.used = 0;
    (void)dpari_room_take(&r, 1, sizeof *o);
    o->array = (dpari_over_array *)dpari_room_take(&r, o->arrays + INT64_C(1), sizeof *o->array);
    o->bucket = (dpari_span *)dpari_room_take(&r, most, sizeof *o->bucket);
    o->work = (dpar_work *)dpari_room_take(&r, most * 2 + o->arrays + ranks, sizeof *o->work);
    o->count = (int64_t *)dpari_room_take(&r, ranks, sizeof *o->count);
    return r.used;
}

typedef struct dpari_over_given {
    const dpari_over *o;
    const dpar_ddp_array *list;
} dpari_over_given;

static DPARI_COLD void dpari_over_state(dpari_facts *f, const void *given)
{
    const dpari_over_given *g = (const dpari_over_given *)given;
    int32_t k;
    dpari_fact_type(f, "type", 0, g->o->d.options.type);
    dpari_fact(f, "the number of arrays", 0, g->o->arrays);
    for (k = 0; k < g->o->arrays; k++) {
        dpari_fact(f, "the number of elements (array #)", k, g->list[k].count);
    }
}

/* Checks the list of arrays and counts their elements. */
static DPARI_COLD dpar_status dpari_over_judge(const dpar_ddp_array *list, int32_t arrays,
                                               int32_t type, int64_t *elements, dpar_why *why)
{
    int32_t k;
    *elements = 0;
    if (arrays < 0 || (arrays > 0 && list == NULL)) {
        return dpari_wrong(why, "ddp: %d arrays of gradients; the list is NULL: %d", arrays,
                           list == NULL);
    }
    if (!dpari_is_float(type)) {
        return dpari_wrong(why, "ddp: gradients of type %s: f64, f32, f16 or bf16",
                           dpar_type_name(type));
    }
    for (k = 0; k < arrays; k++) {
        if (list[k].count < 0 || (list[k].count > 0 && list[k].data == NULL)) {
            return dpari_wrong(why, "ddp: array %d of %ld elements; it is NULL: %d", k,
                               list[k].count, list[k].data == NULL);
        }
        if (list[k].count > INT64_MAX / 16 - *elements) {
            return dpari_say(
                DPAR_E_RANGE, why,
                "ddp: array %d has %ld elements, those before it %ld: in all they are at "
                "most 2^59 - 1",
                k, list[k].count, *elements);
        }
        *elements += list[k].count;
    }
    return DPAR_OK;
}

/* Checks that no two arrays overlap. Sorts them by address first (Shell's sort). */
static DPARI_COLD dpar_status dpari_over_apart(dpar_comm *c, const dpar_ddp_array *list,
                                               int32_t arrays, int64_t each, dpar_why *why)
{
    int32_t *at = (int32_t *)dpari_made_room(c, arrays * (int64_t)sizeof *at);
    int32_t i, k, step, n = 0;
    dpar_status st = DPAR_OK;
    if (at == NULL) {
        return dpari_say(DPAR_E_MEMORY, why, "ddp: no memory to compare %d arrays", arrays);
    }
    for (k = 0; k < arrays; k++) {
        at[n] = k;
        n += list[k].count > 0;
    }
    for (step = n / 2; step > 0; step = step == 2 ? 1 : (int32_t)(step * INT64_C(5) / 11)) {
        for (i = step; i < n; i++) {
            const int32_t moves = at[i];
            for (k = i;
                 k >= step && (uintptr_t)list[at[k - step]].data > (uintptr_t)list[moves].data;
                 k -= step) {
                at[k] = at[k - step];
            }
            at[k] = moves;
        }
    }
    for (i = 1; i < n && st == DPAR_OK; i++) {
        const dpar_ddp_array *a = &list[at[i - 1]];
        const uintptr_t apart = (uintptr_t)list[at[i]].data - (uintptr_t)a->data;
        if (apart < (uintptr_t)(a->count * each)) {
            st = dpari_wrong(
                why,
                "ddp: array %d begins %ld bytes behind the beginning of array %d, which has "
                "%ld bytes: none may lie in another",
                at[i], (int64_t)apart, at[i - 1], a->count * each);
        }
    }
    dpari_made_give(at);
    return st;
}

/* Frees what it allocated besides its own memory. */
static DPARI_COLD void dpari_over_release(dpari_over *o)
{
    if (o->zero1.moment[0] != NULL) {
        dpar_comm_release(o->d.c, o->zero1.moment[0]);
    }
    if (o->pack != NULL) {
        dpar_comm_release(o->d.c, o->pack);
    }
}

/* True if the array is short, and therefore packed and sent with others. */
static int dpari_over_short(int32_t arrays, const dpar_ddp_array *a, int64_t each)
{
    return arrays > 1 && a->count * each < DPARI_OVER_SHORT;
}

/* Memory for it, and for its short arrays. */
static DPARI_COLD dpar_status dpari_over_take(dpari_over *o, const dpar_ddp_array *list,
                                              void **memory, dpar_why *why)
{
    const int64_t bytes = dpari_over_place(o, NULL, o->d.c->size);
    const int64_t each = dpar_type_bytes(o->d.options.type);
    int64_t packed = 0;
    void *pack = NULL;
    dpar_status st = DPAR_OK;
    int32_t k;
    for (k = 0; k < o->arrays; k++) {
        packed += dpari_over_short(o->arrays, &list[k], each) ? list[k].count * each : 0;
    }
    *memory = dpari_made_room(o->d.c, bytes);
    if (*memory == NULL || (packed > 0 && dpar_comm_alloc(o->d.c, packed, &pack) != DPAR_OK)) {
        st = dpari_say(DPAR_E_MEMORY, why, "ddp: no memory for %ld and %ld B", bytes, packed);
    }
    o->pack = (unsigned char *)pack;
    return st;
}

/* In its memory: what it was counted for, and the list. */
static DPARI_COLD dpari_over *dpari_over_lay(const dpari_over *counted, void *memory,
                                             const dpar_ddp_array *list, int32_t ranks)
{
    dpari_over *o = (dpari_over *)memory;
    const int64_t each = dpar_type_bytes(counted->d.options.type);
    int64_t at = 0, packed = 0;
    int32_t k;
    *o = *counted;
    (void)dpari_over_place(o, memory, ranks);
    for (k = 0; k < o->arrays; k++) {
        o->array[k].data = (unsigned char *)list[k].data;
        o->array[k].first = at;
        o->array[k].packed = -1;
        if (dpari_over_short(o->arrays, &list[k], each)) {
            o->array[k].packed = packed;
            packed += list[k].count;
        }
        at += list[k].count;
    }
    o->array[k].first = at;
    o->hint = k - 1;
    for (k = 0; k < ranks; k++) {
        o->count[k] = dpari_least(o->share, at - dpari_least(at, o->share * k));
    }
    return o;
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_over_list(dpar_comm *c, const dpar_ddp_array *list,
                                                   int32_t arrays, int32_t type, dpar_ddp **ddp,
                                                   dpar_why *why)
{
    dpari_over counted;
    dpari_over_given given;
    void *memory = NULL;
    dpar_status st;
    if (c == NULL || ddp == NULL) {
        dpari_wrong(why, "ddp: communicator or result is NULL");
        return DPAR_E_ARG;
    }
    dpari_zero(&counted, sizeof counted);
    st = dpari_over_judge(list, arrays, type, &counted.elements, why);
    st = st == DPAR_OK && arrays > 1 ? dpari_over_apart(c, list, arrays, dpar_type_bytes(type), why)
                                     : st;
    counted.d.c = c;
    counted.d.ends = dpari_over_end;
    counted.d.options.type = type;
    counted.arrays = arrays;
    counted.share = dpari_ceil_div(counted.elements, c->size);
    counted.bucket_bytes =
        dpari_most(DPARI_OVER_BUCKET, counted.elements * dpar_type_bytes(type) / DPARI_OVER_MOST);
    st = st == DPAR_OK ? dpari_over_take(&counted, list, &memory, why) : st;
    given.o = &counted;
    given.list = list;
    st = dpari_agree_on(c, st, "ddp", dpari_over_state, &given, why);
    if (st < DPAR_OK) { /* so that a compiler that inlines this sees *ddp written else */
        dpari_over_release(&counted);
        dpari_made_give(memory);
        return st;
    }
    *ddp = &dpari_over_lay(&counted, memory, list, c->size)->d;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_over(dpar_comm *c, void *grads, int64_t n, int32_t type,
                                              dpar_ddp **ddp, dpar_why *why)
{
    dpar_ddp_array one;
    one.data = grads;
    one.count = n;
    return dpar_ddp_over_list(c, &one, 1, type, ddp, why);
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_free(dpar_ddp *d)
{
    dpari_over *o = d != NULL ? dpari_over_of(d) : NULL;
    if (o == NULL) {
        return d == NULL ? DPAR_OK : DPAR_E_ARG;
    }
    if (o->open && d->c->status == DPAR_OK) {
        return dpari_comm_wrong(d->c, "ddp: a pass is under way");
    }
    (void)dpar_wait_all(o->work, o->posted); /* of a pass that broke */
    if (o->zero1.pinned && d->c->mem->unpin != NULL) {
        (void)d->c->mem->unpin(d->c->mem->ctx, o->zero1.squares);
    }
    dpari_over_release(o);
    dpari_made_give(o->zero1.squares);
    dpari_made_give(o->zero1.group);
    dpari_made_give(o->seen.at);
    dpari_made_give(o->fresh.at);
    dpari_made_give(o);
    return DPAR_OK;
}
