/* SPDX-License-Identifier: MIT-0 */
/* Averages gradients over all ranks. The buckets have a fixed order, from the last parameter to the
 * first. dpar_ddp_ready notes that a parameter is ready. Once all parameters of the next bucket are
 * ready, it posts that bucket, and the buckets after it that are already complete. All ranks
 * therefore post the same collectives in the same order, even if their gradients become ready in
 * different orders.
 *
 * dpar_ddp_end posts the remaining buckets and waits for all of them. With desc.require_ready, it
 * also checks that every parameter was reported; a rank that misses one breaks the communicator, so
 * that all ranks get the same error.
 *
 * The gradients are stored in one of three ways:
 *
 *  - dpar allocates one buffer, in which the last parameter comes first. A bucket is one contiguous
 *    range of it.
 *  - The caller has one flat array, in which the first parameter comes first. A bucket is a range
 *    of it, too.
 *  - The caller has one array per parameter. A bucket sends long arrays in place and packs short
 *    ones in a copy, because many small messages take longer.
 *
 * zero1.c uses the flat array, and sends each part of a bucket only to its owner (ddp->scatter). */
#include "ddp.h"

#include "../base/arith.h"
#include "../base/text.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/engine.h"
#include "../comm/memory_calls.h"
#include "../comm/object_memory.h"
#include "../comm/shm.h"
#include "../host/elements.h"
#include "../index/flat.h"
#include "../index/index_private.h"
#include "ddp_private.h"
#include "layer_calls.h"
#include "update_private.h"

/* If there are several arrays, those of fewer bytes are packed and sent together. */
enum { DPARI_DDP_SHORT = 1 << 16 };

/* ---- the descriptor -------------------------------------------------------------------------- */

/* Returns the type in which gradients are sent. */
static int32_t dpari_ddp_wire(const dpar_ddp_desc *desc)
{
    return desc->wire_type != DPAR_TYPE_NONE ? desc->wire_type : desc->type;
}

/* True if gradients are sent in another type than they are stored in. */
static int dpari_ddp_rounds(const dpar_ddp_desc *desc)
{
    return dpari_ddp_wire(desc) != desc->type;
}

/* True if gradients are sent as blocks of 8-bit codes. */
static int dpari_ddp_codes(const dpar_ddp_desc *desc)
{
    return desc->wire_type == DPAR_I8 || desc->wire_type == DPAR_F8;
}

/* True if the gradients are in the caller's memory. */
static int dpari_ddp_given(const dpar_ddp_desc *desc)
{
    return desc->gradients != NULL || desc->arrays != NULL;
}

/* Checks that the numbers of elements are allowed and that every parameter with elements has an
 * array. */
static dpar_status dpari_ddp_check_counts(const dpar_ddp_desc *desc, dpar_why *why)
{
    int64_t elements = 0;
    int32_t i;
    for (i = 0; i < desc->params; i++) {
        const int64_t count = desc->count[i];
        if (count < 0 || (count > 0 && desc->arrays != NULL && desc->arrays[i] == NULL)) {
            return dpari_wrong(
                why,
                "dpar_ddp_make: parameter %d has %ld elements, but needs 0 or more, and with "
                "desc.arrays an array that is not NULL",
                i, count);
        }
        if (count > INT64_MAX / 16 - elements) {
            return dpari_say(
                DPAR_E_RANGE, why,
                "dpar_ddp_make: parameter %d has %ld elements and those before it have "
                "%ld, but together they may have at most 2^59 - 1",
                i, count, elements);
        }
        elements += count;
    }
    return DPAR_OK;
}

/* Checks a descriptor. */
static dpar_status dpari_ddp_check_desc(const dpar_ddp_desc *desc, dpar_why *why)
{
    if (desc == NULL) {
        return dpari_wrong(why, "dpar_ddp_make: the descriptor is NULL");
    }
    if (desc->params < 0 || (desc->params > 0 && desc->count == NULL)) {
        return dpari_wrong(
            why,
            "dpar_ddp_make: params is %d, but must be 0 or more; above 0, desc.count must not be "
            "NULL",
            desc->params);
    }
    if (!dpari_is_float(desc->type)) {
        return dpari_wrong(why, "dpar_ddp_make: type is %s, but must be f64, f32, f16 or bf16",
                           dpar_type_name(desc->type));
    }
    if (dpari_ddp_rounds(desc) && !dpari_ddp_codes(desc) &&
        !dpari_narrows(desc->type, desc->wire_type)) {
        return dpari_wrong(why,
                           "dpar_ddp_make: wire_type is %s (%d), but only f64 can be sent as f32, "
                           "f32 as f16 or bf16, and all types as i8 or f8",
                           dpar_type_name(desc->wire_type), desc->wire_type);
    }
    if (dpari_ddp_codes(desc) && desc->hook != NULL) {
        return dpari_wrong(why, "dpar_ddp_make: wire_type is %s, which excludes a hook",
                           dpar_type_name(desc->wire_type));
    }
    if (!dpari_is_flag(desc->sum) || !dpari_is_flag(desc->require_ready) ||
        !dpari_is_flag(desc->track_used) || !dpari_is_flag(desc->check_finite) ||
        (desc->require_ready && desc->track_used)) {
        return dpari_wrong(why,
                           "dpar_ddp_make: sum is %d, require_ready %d, track_used %d and "
                           "check_finite %d, but each "
                           "must be 0 or 1, and require_ready excludes track_used",
                           desc->sum, desc->require_ready, desc->track_used, desc->check_finite);
    }
    if (desc->first_bucket_bytes < 0 || desc->bucket_bytes < 0 || desc->align < 0) {
        return dpari_wrong(why,
                           "dpar_ddp_make: first_bucket_bytes is %ld, bucket_bytes %ld and align "
                           "%ld, but none may "
                           "be negative",
                           desc->first_bucket_bytes, desc->bucket_bytes, desc->align);
    }
    if ((desc->gradients != NULL && desc->arrays != NULL) ||
        (dpari_ddp_given(desc) && desc->align != 0)) {
        return dpari_wrong(why,
                           "dpar_ddp_make: at most one of gradients, arrays and align may be set");
    }
    return dpari_ddp_check_counts(desc, why);
}

/* Checks that no two arrays overlap. Sorts them by address first (Shell sort), so that only
 * neighbours need to be compared. */
static DPARI_COLD dpar_status dpari_ddp_check_overlap(dpar_comm *comm, const dpar_ddp_desc *desc,
                                                      dpar_why *why)
{
    const int64_t each = dpar_type_bytes(desc->type);
    void *const *const array = desc->arrays;
    int32_t *at = (int32_t *)dpari_object_alloc(comm, desc->params * (int64_t)sizeof *at);
    int32_t i, k, step, n = 0;
    dpar_status status = DPAR_OK;
    if (at == NULL) {
        return dpari_say(DPAR_E_MEMORY, why, "dpar_ddp_make: no memory to compare %d arrays",
                         desc->params);
    }
    for (k = 0; k < desc->params; k++) {
        at[n] = k;
        n += desc->count[k] > 0;
    }
    for (step = n / 2; step > 0; step = step == 2 ? 1 : (int32_t)(step * INT64_C(5) / 11)) {
        for (i = step; i < n; i++) {
            const int32_t moves = at[i];
            for (k = i; k >= step && (uintptr_t)array[at[k - step]] > (uintptr_t)array[moves];
                 k -= step) {
                at[k] = at[k - step];
            }
            at[k] = moves;
        }
    }
    for (i = 1; i < n && status == DPAR_OK; i++) {
        const int64_t bytes = desc->count[at[i - 1]] * each;
        const uintptr_t apart = (uintptr_t)array[at[i]] - (uintptr_t)array[at[i - 1]];
        if (apart < (uintptr_t)bytes) {
            status =
                dpari_wrong(why,
                            "dpar_ddp_make: arrays %d and %d overlap: the second begins %ld bytes "
                            "after the beginning of the first, which has %ld bytes",
                            at[i - 1], at[i], (int64_t)apart, bytes);
        }
    }
    dpari_object_release(at);
    return status;
}

/* Describes how the parameters are divided into buckets. */
static dpar_buckets_desc dpari_ddp_bucketing(const dpar_ddp_desc *desc)
{
    const int64_t each = dpar_type_bytes(desc->type);
    dpar_buckets_desc how = dpari_bucketing_ddp(each);
    how.params = desc->params;
    how.count = desc->count;
    if (desc->first_bucket_bytes > 0) {
        how.first = dpari_ceil_div(desc->first_bucket_bytes, each);
    }
    if (desc->bucket_bytes > 0) {
        how.size = dpari_ceil_div(desc->bucket_bytes, each);
    }
    how.align = 64;
    if (dpari_ddp_given(desc)) {
        how.align = 1;
    } else if (desc->align > 0) {
        how.align = desc->align;
    }
    return how;
}

/* True if all gradients are copied in the wire type. Ranks that share memory need no copy of F32
 * gradients, because their all-reduce rounds them while it adds. */
static int dpari_ddp_copies(const dpar_comm *comm, const dpar_ddp_desc *desc)
{
    return dpari_ddp_rounds(desc) && !dpari_ddp_codes(desc) &&
           (desc->type != DPAR_F32 || desc->hook != NULL || comm->mem != NULL ||
            dpari_world_of(comm) == NULL);
}

/* True if array i is sent from a copy, together with other arrays of its bucket. */
static int dpari_ddp_packs(const dpar_comm *comm, const dpar_ddp_desc *desc, int32_t i)
{
    if (desc->hook != NULL || dpari_ddp_copies(comm, desc) || dpari_ddp_codes(desc)) {
        return 1;
    }
    return desc->params > 1 && desc->count[i] * dpar_type_bytes(desc->type) < DPARI_DDP_SHORT;
}

/* ---- made and freed -------------------------------------------------------------------------- */

/* Places the arrays of a ddp after its struct in memory, and zeroes the struct. Returns the ddp,
 * and in *bytes the total size. If memory is NULL, only computes the size and returns NULL. */
static dpar_ddp *dpari_ddp_place(void *memory, const dpar_comm *comm, const dpar_ddp_desc *desc,
                                 int32_t buckets, int64_t *bytes)
{
    const int32_t params = desc->params;
    int64_t works = buckets;
    dpar_ddp none, *d;
    dpari_room r = dpari_room_of(memory);
    int32_t i;
    if (desc->gradients != NULL) {
        works += comm->size; /* zero1 divides buckets where shares end */
    }
    for (i = 0; desc->arrays != NULL && i < params; i++) {
        works += !dpari_ddp_packs(comm, desc, i);
    }
    if (dpari_ddp_codes(desc)) {
        works += buckets; /* an all-gather follows the all-to-all of each bucket */
    }
    d = (dpar_ddp *)dpari_room_take(&r, 1, sizeof *d);
    d = memory != NULL ? d : &none;
    dpari_zero(d, sizeof *d);
    d->params = params;
    d->buckets = buckets;
    d->count = (int64_t *)dpari_room_take(&r, params, sizeof *d->count);
    d->start = (int64_t *)dpari_room_take(&r, INT64_C(1) + params, sizeof *d->start);
    d->seen = (uint8_t *)dpari_room_take(&r, INT64_C(1) + params, sizeof *d->seen);
    d->used = (uint8_t *)dpari_room_take(&r, params, sizeof *d->used);
    d->bucket = (dpar_bucket *)dpari_room_take(&r, buckets, sizeof *d->bucket);
    d->works = (int32_t *)dpari_room_take(&r, buckets, sizeof *d->works);
    d->work = (dpar_work *)dpari_room_take(&r, works, sizeof *d->work);
    if (desc->arrays != NULL) {
        d->array = (void **)dpari_room_take(&r, params, sizeof *d->array);
    }
    if (memory != NULL) {
        dpari_zero(d->work, (size_t)works * sizeof *d->work);
    }
    *bytes = r.used;
    return (dpar_ddp *)memory;
}

/* Checks the descriptor, and computes the number of buckets and the size of a ddp in bytes. */
static dpar_status dpari_ddp_count(dpar_comm *comm, const dpar_ddp_desc *desc, int32_t *buckets,
                                   int64_t *bytes, dpar_why *why)
{
    dpar_buckets_desc how;
    dpar_status status = dpari_ddp_check_desc(desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (desc->arrays != NULL && desc->params > 1) {
        status = dpari_ddp_check_overlap(comm, desc, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    how = dpari_ddp_bucketing(desc);
    status = dpar_buckets_init(&how, NULL, NULL, 0, buckets, why);
    if (status == DPAR_OK) {
        (void)dpari_ddp_place(NULL, comm, desc, *buckets, bytes);
    }
    return status;
}

/* Lists the values that must be equal on all ranks. */
static DPARI_COLD void dpari_ddp_facts(dpari_facts *facts, const void *given)
{
    const dpar_ddp_desc *desc = (const dpar_ddp_desc *)given;
    const dpar_buckets_desc how = dpari_ddp_bucketing(desc);
    int32_t i;
    dpari_fact(facts, "the number of parameters", 0, desc->params);
    dpari_fact_type(facts, "type", 0, desc->type);
    dpari_fact_type(facts, "wire_type", 0, dpari_ddp_wire(desc));
    dpari_fact(facts, "gradients != NULL", 0, desc->gradients != NULL);
    dpari_fact(facts, "arrays != NULL", 0, desc->arrays != NULL);
    dpari_fact(facts, "sum", 0, desc->sum);
    dpari_fact(facts, "require_ready", 0, desc->require_ready);
    dpari_fact(facts, "track_used", 0, desc->track_used);
    dpari_fact(facts, "hook != NULL", 0, desc->hook != NULL);
    dpari_fact(facts, "check_finite", 0, desc->check_finite);
    dpari_fact(facts, "first_bucket_bytes in elements", 0, how.first);
    dpari_fact(facts, "bucket_bytes in elements", 0, how.size);
    dpari_fact(facts, "align", 0, how.align);
    for (i = 0; i < desc->params; i++) {
        dpari_fact(facts, "count[#]", i, desc->count[i]);
    }
}

/* Computes parameter positions and bucket ranges for gradients in the caller's memory. The ranges
 * are those of the flat array, or of the copy that holds the packed arrays. */
static void dpari_ddp_place_given(dpar_ddp *ddp)
{
    int32_t i;
    int64_t end = 0;
    for (i = 0; i < ddp->params; i++) {
        ddp->start[i] = end;
        if (ddp->array == NULL || dpari_ddp_packs(ddp->comm, &ddp->desc, i)) {
            end += ddp->count[i];
        }
        if (ddp->array != NULL) {
            ddp->array[i] = ddp->desc.arrays[i];
        }
    }
    ddp->start[i] = end;
    for (i = 0; i < ddp->buckets; i++) {
        dpar_bucket *b = &ddp->bucket[i];
        b->lo = ddp->start[b->first_param];
        b->hi = ddp->start[b->end_param];
        b->used = b->hi - b->lo;
    }
    ddp->elements = end;
}

/* Allocates memory for the 8-bit codes of all buckets. */
static dpar_status dpari_ddp_allocate_codes(dpar_ddp *ddp)
{
    int64_t longest = 0;
    int32_t k;
    for (k = 0; k < ddp->buckets; k++) {
        longest = dpari_most(longest, ddp->bucket[k].hi - ddp->bucket[k].lo);
    }
    ddp->blocks.comm = ddp->comm;
    ddp->blocks.type = ddp->desc.type;
    ddp->blocks.code_type = ddp->desc.wire_type;
    return dpari_wire_make(&ddp->blocks,
                           dpari_wire_position(ddp->comm, ddp->elements, ddp->buckets),
                           dpari_wire_piece(ddp->comm, longest));
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_ddp_pin(dpar_ddp *ddp)
{
    const dpar_mem *mem = ddp->comm->mem;
    dpar_status status;
    if (ddp->pinned || mem == NULL || mem->pin == NULL) {
        return DPAR_OK;
    }
    status = mem->pin(mem->ctx, &ddp->result, (int64_t)sizeof ddp->result);
    ddp->pinned = status == DPAR_OK;
    return status;
}

/* Computes the buckets, and allocates memory for the gradients and their copy as needed. */
static dpar_status dpari_ddp_allocate(dpar_ddp *ddp, dpar_why *why)
{
    const dpar_ddp_desc *desc = &ddp->desc;
    const dpar_buckets_desc how = dpari_ddp_bucketing(desc);
    const int64_t each = dpar_type_bytes(desc->type);
    const int copies = dpari_ddp_copies(ddp->comm, desc);
    void *memory = NULL;
    int32_t i;
    dpar_status status =
        dpar_buckets_init(&how, ddp->start, ddp->bucket, ddp->buckets, &ddp->buckets, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < ddp->params; i++) {
        ddp->count[i] = desc->count[i];
    }
    ddp->elements = ddp->buckets > 0 ? ddp->bucket[ddp->buckets - 1].hi : 0;
    ddp->buffer = (unsigned char *)desc->gradients;
    ddp->copy_type = copies ? dpari_ddp_wire(desc) : desc->type;
    ddp->through = dpari_ddp_rounds(desc) && !copies && !dpari_ddp_codes(desc);
    if (dpari_ddp_given(desc)) {
        dpari_ddp_place_given(ddp);
    } else if (ddp->elements > INT64_MAX / 16) {
        status = DPAR_E_RANGE;
    } else {
        status = dpar_comm_alloc(ddp->comm, dpari_most(1, ddp->elements * each), &memory);
        ddp->buffer = (unsigned char *)memory;
        ddp->owns = 1;
    }
    if (status == DPAR_OK && (ddp->array != NULL ? ddp->elements > 0 : copies)) {
        memory = NULL;
        status = dpar_comm_alloc(
            ddp->comm, dpari_most(1, ddp->elements * dpar_type_bytes(ddp->copy_type)), &memory);
        ddp->copy = (unsigned char *)memory;
    }
    if (status == DPAR_OK && dpari_ddp_codes(desc)) {
        status = dpari_ddp_allocate_codes(ddp);
    }
    if (status == DPAR_OK && desc->check_finite) {
        status = dpari_ddp_pin(ddp);
    }
    if (status == DPAR_OK) {
        return status;
    }
    return dpari_say(
        status, why,
        "dpar_ddp_make: no memory for %ld gradients of %ld bytes each, sent in %d bytes "
        "each",
        ddp->elements, each, dpar_type_bytes(dpari_ddp_wire(desc)));
}

/* Frees the memory of a ddp. */
static void dpari_ddp_release(dpar_ddp *ddp)
{
    if (ddp->copy != NULL) {
        dpar_comm_release(ddp->comm, ddp->copy);
    }
    if (ddp->owns && ddp->buffer != NULL) {
        dpar_comm_release(ddp->comm, ddp->buffer);
    }
    if (ddp->blocks.sent != NULL) {
        dpar_comm_release(ddp->comm, ddp->blocks.sent);
    }
    if (ddp->pinned && ddp->comm->mem->unpin != NULL) {
        (void)ddp->comm->mem->unpin(ddp->comm->mem->ctx, &ddp->result);
    }
    if (ddp->made) {
        dpari_object_release(ddp);
    }
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_make(dpar_comm *comm, const dpar_ddp_desc *desc,
                                              dpar_ddp **ddp, dpar_why *why)
{
    dpar_ddp *d;
    void *memory = NULL;
    int64_t needed = 0;
    int32_t buckets = 0;
    dpar_status status;
    if (comm == NULL) {
        return dpari_wrong(why, "dpar_ddp_make: the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    status = ddp == NULL ? dpari_wrong(why, "dpar_ddp_make: the result is NULL")
                         : dpari_ddp_count(comm, desc, &buckets, &needed, why);
    if (status == DPAR_OK) {
        status = dpari_object_memory(comm, desc->memory, desc->bytes, needed, "dpar_ddp_make",
                                     &memory, why);
    }
    status = dpari_agree_on(comm, status, "ddp", dpari_ddp_facts, desc, why);
    if (status != DPAR_OK) {
        return dpari_object_failed(status, desc != NULL ? desc->memory : NULL, memory, needed, why);
    }
    d = dpari_ddp_place(memory, comm, desc, buckets, &needed);
    *d->seen++ = 0;
    d->comm = comm;
    d->desc = *desc;
    d->made = desc->memory == NULL;
    dpari_zero(d->seen, (size_t)d->params);
    dpari_zero(d->used, (size_t)d->params);
    status = dpari_agree(comm, dpari_ddp_allocate(d, why), why);
    if (status != DPAR_OK) {
        dpari_ddp_release(d);
        return status;
    }
    if (d->owns) {
        dpar_ddp_zero(d);
    }
    *ddp = d;
    return DPAR_OK;
}

/* ---- a pass ---------------------------------------------------------------------------------- */

/* True if parameter i was reported since dpar_ddp_zero: with desc.track_used by any rank, otherwise
 * by this rank. */
static int dpari_ddp_used(const dpar_ddp *ddp, int32_t i)
{
    return ddp->desc.track_used ? ddp->used[i] != 0 : ddp->seen[i] != 0;
}

/* Returns the address of parameter i's gradient. */
static unsigned char *dpari_ddp_at(const dpar_ddp *ddp, int32_t i)
{
    return ddp->array != NULL ? (unsigned char *)ddp->array[i]
                              : ddp->buffer + ddp->start[i] * dpar_type_bytes(ddp->desc.type);
}

DPAR_API void *dpar_ddp_gradient(const dpar_ddp *ddp, int32_t i, int *used)
{
    const int there = ddp != NULL && i >= 0 && i < ddp->params;
    if (used != NULL) {
        *used = there && dpari_ddp_used(ddp, i);
    }
    return there ? dpari_ddp_at(ddp, i) : NULL;
}

DPARI_INTERNAL void *dpari_ddp_bucket(const dpar_ddp *ddp, int32_t k, dpar_bucket *bucket)
{
    if (k < 0 || k >= ddp->buckets) {
        return NULL;
    }
    if (bucket != NULL) {
        *bucket = ddp->bucket[k];
    }
    return ddp->buffer + ddp->bucket[k].lo * dpar_type_bytes(ddp->desc.type);
}

DPAR_API void dpar_ddp_zero(dpar_ddp *ddp)
{
    int64_t each;
    int32_t i;
    if (ddp == NULL) {
        return;
    }
    each = dpar_type_bytes(ddp->desc.type);
    if (ddp->array == NULL) {
        (void)dpari_do_copy(ddp->comm, ddp->buffer, NULL, ddp->elements * each);
    }
    for (i = 0; ddp->array != NULL && i < ddp->params; i++) {
        (void)dpari_do_copy(ddp->comm, ddp->array[i], NULL, ddp->count[i] * each);
    }
    dpari_zero(ddp->used, (size_t)ddp->params);
    dpari_zero(ddp->seen, (size_t)ddp->params);
    ddp->pass = ddp->under_way;
    ddp->ended = 0;
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_begin(dpar_ddp *ddp, int32_t last)
{
    dpar_ddp *const d = ddp;
    int32_t i;
    if (d == NULL) {
        return DPAR_E_ARG;
    }
    if (d->comm->status != DPAR_OK) {
        return d->comm->status;
    }
    if (d->under_way) {
        return dpari_comm_wrong(d->comm,
                                "dpar_ddp_begin: the previous pass has not ended (dpar_ddp_end)");
    }
    d->under_way = 1;
    d->open = d->params;
    d->latest = d->params - 1;
    d->edge = last && d->buckets > 0 ? d->bucket[0].first_param : -1;
    if (d->pass++ == UINT8_MAX) { /* the numbers begin again: all earlier passes become pass 1 */
        for (i = 0; i < d->params; i++) {
            d->seen[i] = d->seen[i] != 0;
        }
        d->pass = 2;
    }
    d->last = last != 0;
    d->next = 0;
    d->posted = 0;
    d->back = 0;
    d->work_count = 0;
    d->first_work = 0;
    d->ended = 0;
    d->status = DPAR_OK;
    return DPAR_OK;
}

/* Writes "'wte'" or "parameter 3". */
static DPARI_COLD void dpari_ddp_put_name(const dpar_ddp *ddp, dpar_text *text, int32_t i)
{
    const char *name = ddp->desc.names != NULL ? ddp->desc.names[i] : NULL;
    if (name != NULL) {
        dpari_text_print(text, "'%s'", name);
    } else {
        dpari_text_print(text, "parameter %d", i);
    }
}

/* Breaks the communicator, so that the pass fails on all ranks. */
static dpar_status dpari_ddp_stop(dpar_ddp *ddp, const char *text)
{
    dpar_comm_abort(ddp->comm, DPAR_E_ARG, text);
    ddp->status = ddp->comm->status != DPAR_OK ? ddp->comm->status : DPAR_E_ARG;
    return ddp->status;
}

/* Looks for NaN and infinity in `count` elements, and waits for the result. Sets
 * ddp->result.found to `first` plus the index of the first one, or to -1. */
static dpar_status dpari_ddp_search(dpar_ddp *ddp, const void *data, int64_t first, int64_t count)
{
    dpar_mem_finite f;
    dpar_status status;
    dpari_zero(&f, sizeof f);
    f.in = data;
    f.count = count;
    f.first = first;
    f.type = ddp->desc.type;
    f.found = &ddp->result.found;
    status = dpari_do_finite(ddp->comm, &f);
    if (status == DPAR_OK) {
        status = dpari_do_wait(ddp->comm);
    }
    ddp->status = dpari_first_error(ddp->status, status);
    return status;
}

/* Checks that bucket k contains no NaN or infinity (desc.check_finite). Otherwise the pass fails on
 * all ranks. In one buffer on a device, one search covers the bucket, so that the rank waits once.
 */
static DPARI_COLD dpar_status dpari_ddp_check_finite(dpar_ddp *ddp, int32_t k)
{
    const dpar_bucket *b = &ddp->bucket[k];
    const int whole = ddp->comm->mem != NULL && ddp->array == NULL;
    int32_t i;
    dpar_status status = DPAR_OK;
    if (whole) {
        status = dpari_ddp_search(ddp, ddp->buffer + b->lo * dpar_type_bytes(ddp->desc.type), b->lo,
                                  b->hi - b->lo);
    }
    for (i = b->first_param; i < b->end_param && status == DPAR_OK; i++) {
        int64_t at;
        dpar_why why;
        dpar_text t;
        if (!whole) {
            status = dpari_ddp_search(ddp, dpari_ddp_at(ddp, i), ddp->start[i], ddp->count[i]);
        }
        at = ddp->result.found - ddp->start[i];
        if (status != DPAR_OK || ddp->result.found < 0 || at < 0 || at >= ddp->count[i]) {
            continue;
        }
        dpari_text_why(&t, &why);
        dpar_text_put(&t, "ddp: the gradient of ");
        dpari_ddp_put_name(ddp, &t, i);
        dpari_text_print(&t, " is NaN or infinite at element %ld on rank %d", at, ddp->comm->rank);
        return dpari_ddp_stop(ddp, why.text);
    }
    return status;
}

/* Converts `count` gradients into the copy. If back is 1, converts those of the copy into the
 * gradients. */
static dpar_status dpari_ddp_convert(const dpar_ddp *ddp, void *mine, void *copy, int64_t count,
                                     int back)
{
    const int32_t type = ddp->desc.type, copy_type = ddp->copy_type;
    if (back) {
        return dpari_do_convert(ddp->comm, mine, type, copy, copy_type, count, 0);
    }
    return dpari_do_convert(ddp->comm, copy, copy_type, mine, type, count, 0);
}

/* Converts the gradients of bucket k into the copy. If back is 1, converts the results in the copy
 * into the gradients. */
static DPARI_COLD dpar_status dpari_ddp_copy(dpar_ddp *ddp, int32_t k, int back)
{
    const int64_t each = dpar_type_bytes(ddp->desc.type);
    const int64_t copy_each = dpar_type_bytes(ddp->copy_type);
    const dpar_bucket *b = &ddp->bucket[k];
    int32_t i;
    dpar_status status = DPAR_OK;
    if (ddp->array == NULL) {
        return dpari_ddp_convert(ddp, ddp->buffer + b->lo * each, ddp->copy + b->lo * copy_each,
                                 b->hi - b->lo, back);
    }
    for (i = b->first_param; i < b->end_param && status == DPAR_OK; i++) {
        void *const copy = ddp->copy + ddp->start[i] * copy_each;
        const int64_t count = ddp->start[i + 1] - ddp->start[i];
        status = dpari_ddp_convert(ddp, ddp->array[i], copy, count, back);
    }
    return status;
}

/* Returns the next unused work and counts it for bucket k. Returns NULL if the bucket is sent by a
 * call that waits. */
static dpar_work *dpari_ddp_work(dpar_ddp *ddp, int32_t k)
{
    dpar_work *work = &ddp->work[ddp->work_count];
    if (ddp->alone) {
        return NULL;
    }
    ddp->works[k] = ++ddp->work_count;
    work->status = DPAR_OK; /* for a hook that does not set it */
    return work;
}

/* Returns the elements of bucket k, and in *count their number. */
static unsigned char *dpari_ddp_data(const dpar_ddp *ddp, int32_t k, int64_t *count)
{
    const dpar_bucket *b = &ddp->bucket[k];
    unsigned char *data = ddp->copy != NULL ? ddp->copy : ddp->buffer;
    *count = b->hi - b->lo;
    return data != NULL ? data + b->lo * dpar_type_bytes(ddp->copy_type) : NULL;
}

/* Returns the position of bucket k among the 8-bit codes of all buckets. In the caller's memory the
 * last bucket comes first. */
static int64_t dpari_ddp_position(const dpar_ddp *ddp, int32_t k)
{
    const int32_t before = dpari_ddp_given(&ddp->desc) ? ddp->buckets - 1 - k : k;
    return dpari_wire_position(ddp->comm, ddp->bucket[k].lo, before);
}

/* Waits for the 8-bit codes of each bucket that was posted, adds them and posts the gather of the
 * sums. ddp->works then counts the gathers. They are posted after the codes of all buckets, because
 * every rank must post its collectives in the same order. After an error only waits. */
static void dpari_ddp_reduce_codes(dpar_ddp *ddp)
{
    const double factor = ddp->desc.sum ? 1.0 : 1.0 / ddp->comm->size;
    int32_t k, from = 0;
    ddp->first_work = ddp->work_count;
    for (k = 0; k < ddp->posted; k++) {
        const int32_t end = ddp->works[k];
        const dpar_status status = dpar_wait_all(ddp->work + from, end - from);
        const int64_t count = ddp->bucket[k].hi - ddp->bucket[k].lo;
        from = end;
        ddp->works[k] = ddp->work_count;
        ddp->status = dpari_first_error(ddp->status, status);
        if (ddp->status == DPAR_OK && count > 0) {
            ddp->status = dpari_wire_reduce(&ddp->blocks, dpari_ddp_position(ddp, k), count, factor,
                                            dpari_ddp_work(ddp, k));
        }
    }
}

/* Sets the gaps between the parameters of bucket k to 0, in gradients that dpar allocated. Codes
 * write NaN there if a gradient in the same block is not finite, and the gaps are sent again. */
static DPARI_COLD dpar_status dpari_ddp_clear_gaps(const dpar_ddp *ddp, int32_t k)
{
    const dpar_bucket *b = &ddp->bucket[k];
    const int64_t each = dpar_type_bytes(ddp->desc.type);
    int64_t end = b->hi;
    int32_t i;
    dpar_status status = DPAR_OK;
    for (i = b->first_param; ddp->owns && i < b->end_param && status == DPAR_OK; i++) {
        const int64_t at = ddp->start[i] + ddp->count[i]; /* parameter i - 1 begins at `end` */
        status = dpari_do_copy(ddp->comm, ddp->buffer + at * each, NULL, (end - at) * each);
        end = ddp->start[i];
    }
    return status;
}

/* Waits for all buckets that were posted, and converts the results of codes or of a copy into the
 * gradients. */
static void dpari_ddp_wait_posted(dpar_ddp *ddp)
{
    int32_t from;
    if (ddp->blocks.sent != NULL && ddp->back < ddp->posted) {
        dpari_ddp_reduce_codes(ddp);
    }
    from = ddp->back > 0 ? ddp->works[ddp->back - 1] : ddp->first_work;
    for (; ddp->back < ddp->posted; ddp->back++) {
        dpar_status status = dpar_wait_all(ddp->work + from, ddp->works[ddp->back] - from);
        from = ddp->works[ddp->back];
        if (status == DPAR_OK && ddp->blocks.sent != NULL && ddp->status == DPAR_OK) {
            int64_t count;
            unsigned char *data = dpari_ddp_data(ddp, ddp->back, &count);
            status = dpari_wire_end(&ddp->blocks, dpari_ddp_position(ddp, ddp->back), data, count);
            status = dpari_first_error(status, dpari_ddp_clear_gaps(ddp, ddp->back));
        }
        if (status == DPAR_OK && ddp->copy != NULL && ddp->status == DPAR_OK) {
            status = dpari_ddp_copy(ddp, ddp->back, 1);
        }
        ddp->status = dpari_first_error(ddp->status, status);
    }
}

DPARI_INTERNAL int64_t dpari_ddp_first(const dpar_zero1 *zero1)
{
    return dpari_least(zero1->ddp->elements, zero1->share * zero1->ddp->comm->rank);
}

DPARI_INTERNAL dpar_status dpari_ddp_gather(const dpar_zero1 *zero1, void *data, uint64_t hash)
{
    dpar_comm *comm = zero1->ddp->comm;
    dpar_call call;
    dpari_zero(&call, sizeof call);
    call.kind = DPAR_CALL_ALL_GATHER;
    call.type = zero1->ddp->desc.type;
    call.in = (const unsigned char *)data + dpari_ddp_first(zero1) * dpar_type_bytes(call.type);
    call.out = data;
    call.variable_counts = zero1->share * comm->size != zero1->ddp->elements;
    call.count = zero1->share;
    if (call.variable_counts) {
        call.count = zero1->count[comm->rank];
        call.out_count = zero1->count;
    }
    return dpari_post_alike(comm, &call, hash, DPARI_ZERO1_ALIKE, NULL);
}

/* Posts the reductions of bucket k for zero1: each part of it is sent only to the rank that owns
 * it. */
static dpar_status dpari_ddp_scatter(dpar_ddp *ddp, int32_t k)
{
    const dpar_zero1 *zero1 = ddp->zero1;
    const int32_t type = ddp->desc.type;
    const int64_t each = dpar_type_bytes(type);
    const dpar_bucket *b = &ddp->bucket[k];
    int64_t lo = b->lo;
    dpar_status status = DPAR_OK;
    if (b->hi - lo == ddp->elements) {
        unsigned char *const own = ddp->buffer + dpari_ddp_first(zero1) * each;
        dpar_work *const work = dpari_ddp_work(ddp, k);
        return zero1->share * ddp->comm->size == ddp->elements
                   ? dpar_reduce_scatter(ddp->comm, ddp->buffer, own, zero1->share, type, DPAR_AVG,
                                         work)
                   : dpar_reduce_scatter_v(ddp->comm, ddp->buffer, own, zero1->count, type,
                                           DPAR_AVG, work);
    }
    while (lo < b->hi && status == DPAR_OK) { /* one reduction per share that the bucket touches */
        const int32_t owner = (int32_t)(lo / zero1->share);
        const int64_t hi = dpari_least(b->hi, (owner + INT64_C(1)) * zero1->share);
        unsigned char *const data = ddp->buffer + lo * each;
        status = dpar_reduce(ddp->comm, data, data, hi - lo, type, DPAR_AVG, owner,
                             dpari_ddp_work(ddp, k));
        lo = hi;
    }
    return status;
}

/* Posts an all-reduce of `count` elements of bucket k. */
static dpar_status dpari_ddp_reduce(dpar_ddp *ddp, int32_t k, void *data, int64_t count,
                                    int32_t type)
{
    const int32_t op = ddp->desc.sum ? DPAR_SUM : DPAR_AVG;
    dpar_work *const work = dpari_ddp_work(ddp, k);
    return ddp->through
               ? dpari_all_reduce_through(ddp->comm, data, count, ddp->desc.wire_type, op, work)
               : dpar_all_reduce(ddp->comm, data, data, count, type, op, work);
}

/* Posts the reduction of bucket k. */
static DPARI_COLD dpar_status dpari_ddp_send(dpar_ddp *ddp, int32_t k)
{
    const dpar_ddp_desc *desc = &ddp->desc;
    const dpar_bucket *b = &ddp->bucket[k];
    const int32_t type = ddp->copy_type;
    unsigned char *data;
    int64_t count;
    int32_t i;
    dpar_status status = DPAR_OK;
    if (desc->check_finite && dpari_ddp_check_finite(ddp, k) != DPAR_OK) {
        return ddp->status;
    }
    if (ddp->copy != NULL) {
        status = dpari_ddp_copy(ddp, k, 0);
        if (status != DPAR_OK) {
            return status;
        }
    }
    ddp->works[k] = ddp->work_count;
    ddp->posted++; /* before posting, because a call that fails may already have posted */
    if (ddp->scatter) {
        return dpari_ddp_scatter(ddp, k);
    }
    for (i = b->first_param; ddp->array != NULL && i < b->end_param && status == DPAR_OK; i++) {
        if (ddp->start[i + 1] == ddp->start[i] && ddp->count[i] > 0) {
            status = dpari_ddp_reduce(ddp, k, ddp->array[i], ddp->count[i], desc->type);
        }
    }
    if (status != DPAR_OK || (ddp->array != NULL && b->hi == b->lo && desc->hook == NULL)) {
        return status;
    }
    data = dpari_ddp_data(ddp, k, &count);
    if (desc->hook != NULL) {
        status = desc->hook(desc->ctx, ddp->comm, k, data, count, type, dpari_ddp_work(ddp, k));
        return status > 0 ? DPAR_OK : status; /* a positive status is not an error */
    }
    if (ddp->blocks.sent == NULL) {
        return dpari_ddp_reduce(ddp, k, data, count, type);
    }
    if (count == 0) {
        return DPAR_OK;
    }
    return dpari_wire_begin(&ddp->blocks, dpari_ddp_position(ddp, k), data, count,
                            dpari_ddp_work(ddp, k));
}

/* Posts the next bucket and those after it, up to the first that is not complete. */
static dpar_status dpari_ddp_send_ready(dpar_ddp *ddp)
{
    while (ddp->latest < ddp->edge && ddp->status == DPAR_OK) {
        ddp->status = dpari_ddp_send(ddp, ddp->next++);
        ddp->edge = ddp->next < ddp->buckets ? ddp->bucket[ddp->next].first_param : -1;
    }
    return ddp->status;
}

/* Handles the rare cases of dpar_ddp_ready: begins a pass if none is in progress, and otherwise
 * reports why parameter i is rejected. */
static DPARI_COLD dpar_status dpari_ddp_not_ready(dpar_ddp *ddp, int32_t i)
{
    if (ddp == NULL) {
        return DPAR_E_ARG;
    }
    if (!ddp->under_way && ddp->comm->status != DPAR_OK) {
        return ddp->comm->status;
    }
    if (i < 0 || i >= ddp->params) {
        return dpari_comm_wrong(
            ddp->comm, "dpar_ddp_ready: parameter %d does not exist (the model has 0 to %ld)", i,
            ddp->params - INT64_C(1));
    }
    if (ddp->under_way) {
        return dpari_comm_wrong(
            ddp->comm, "dpar_ddp_ready: parameter %d was already reported in this pass", i);
    }
    (void)dpar_ddp_begin(ddp, 1);
    return dpar_ddp_ready(ddp, i);
}

DPAR_API dpar_status dpar_ddp_ready(dpar_ddp *ddp, int32_t i)
{
    if (ddp == NULL || (uint32_t)i >= (uint32_t)ddp->open || ddp->seen[i] == ddp->pass) {
        return dpari_ddp_not_ready(ddp, i);
    }
    ddp->seen[i] = (uint8_t)ddp->pass;
    if (i != ddp->latest) {
        return ddp->status;
    }
    do {
        i--;
    } while (ddp->seen[i] == ddp->pass);
    ddp->latest = i;
    return i < ddp->edge ? dpari_ddp_send_ready(ddp) : ddp->status;
}

/* Makes the pass fail with "ddp: rank 1 has no gradient of 'a', 'b', 'c' and 7 others (...)". */
static dpar_status dpari_ddp_report_missing(dpar_ddp *ddp)
{
    enum { NAMED = 3 };
    dpar_why why;
    dpar_text t;
    int32_t i, n = 0;
    dpari_text_why(&t, &why);
    dpari_text_print(&t, "ddp: rank %d has no gradient of ", ddp->comm->rank);
    for (i = 0; i < ddp->params; i++) {
        if (ddp->seen[i] == ddp->pass) {
            continue;
        }
        if (n < NAMED) {
            dpar_text_put(&t, n > 0 ? ", " : "");
            dpari_ddp_put_name(ddp, &t, i);
        }
        n++;
    }
    if (n > NAMED) {
        dpari_text_print(&t, " and %d others", n - NAMED);
    }
    dpar_text_put(&t, " (desc.require_ready = 0 sends gradients that were not reported)");
    return dpari_ddp_stop(ddp, why.text);
}

/* Combines the flags in ddp->used, so that they are 1 if any rank reported the parameter. The flags
 * are sent from an array on the stack. An engine for a device checks whether memory is pinned, and
 * desc.memory may be pinned on one rank only. */
static dpar_status dpari_ddp_agree_on_used(dpar_ddp *ddp)
{
    enum { FLAGS = 256 };
    uint8_t flags[FLAGS];
    int32_t first;
    for (first = 0; first < ddp->params; first += FLAGS) {
        const int32_t count = (int32_t)dpari_least(FLAGS, ddp->params - first);
        dpar_status status;
        int32_t i;
        for (i = 0; i < count; i++) {
            flags[i] = ddp->used[first + i];
        }
        status = dpar_all_reduce(ddp->comm, flags, flags, count, DPAR_U8, DPAR_MAX, NULL);
        if (status != DPAR_OK) {
            return status;
        }
        for (i = 0; i < count; i++) {
            ddp->used[first + i] = flags[i];
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_ddp_finish(dpar_ddp *ddp, int32_t scatter)
{
    const int32_t track_used = ddp->desc.track_used;
    int32_t i;
    if (!ddp->under_way) {
        const dpar_status status = dpar_ddp_begin(ddp, 1);
        if (status != DPAR_OK) {
            return status;
        }
    }
    if (ddp->last && ddp->latest >= 0 && ddp->desc.require_ready && ddp->status == DPAR_OK) {
        (void)dpari_ddp_report_missing(ddp);
    }
    ddp->latest = -1;
    /* If there is only one bucket and nothing was sent yet, one call sends it and waits. */
    ddp->alone = ddp->buckets == 1 && ddp->next == 0 && ddp->desc.hook == NULL && !ddp->through &&
                 ddp->blocks.sent == NULL && (ddp->array == NULL || ddp->params == 1);
    (void)dpari_ddp_send_ready(ddp);
    ddp->alone = 0;
    dpari_ddp_wait_posted(ddp);
    for (i = 0; track_used && i < ddp->params; i++) {
        ddp->used[i] = ddp->seen[i] != 0;
    }
    if (ddp->last && track_used && ddp->status == DPAR_OK) {
        ddp->status = dpari_ddp_agree_on_used(ddp);
    }
    if (ddp->last && ddp->scatter && !scatter && ddp->status == DPAR_OK) {
        ddp->status = dpari_ddp_gather(ddp->zero1, ddp->buffer, 0);
    }
    if (ddp->last) {
        ddp->scatter = scatter;
        ddp->ended = !scatter && ddp->status == DPAR_OK;
    }
    ddp->under_way = 0;
    ddp->open = 0;
    return ddp->status;
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_end(dpar_ddp *ddp)
{
    return ddp != NULL ? dpari_ddp_finish(ddp, 0) : DPAR_E_ARG;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_ddp_squares(dpar_ddp *ddp, const uint8_t *duplicate,
                                                        double *squares)
{
    dpar_comm *comm = ddp->comm;
    /* The padding in one buffer is 0, so that the buffer counts like one parameter. */
    const int whole = ddp->buffer != NULL && duplicate == NULL;
    const int32_t params = whole ? 1 : ddp->params;
    const int64_t each = dpar_type_bytes(ddp->desc.type);
    int64_t total = 0, at = 0, share, lo;
    dpar_mem_squares s;
    int32_t i;
    dpar_status status = dpari_ddp_pin(ddp);
    if (status != DPAR_OK) {
        return dpari_comm_wrong_all(comm, status, "ddp: %ld bytes cannot be pinned",
                                    (int64_t)sizeof ddp->result);
    }
    for (i = 0; i < params; i++) {
        total += whole ? ddp->elements : ddp->count[i];
    }
    share = dpari_ceil_div(total, comm->size);
    lo = share * comm->rank;
    dpari_zero(&s, sizeof s);
    s.type = ddp->desc.type;
    s.accumulate = 1;
    s.sum = &ddp->result.squares;
    ddp->result.squares = 0.0;
    for (i = 0; i < params && status == DPAR_OK; i++) {
        const int64_t count = whole ? ddp->elements : ddp->count[i];
        const int64_t skip = dpari_most(0, lo - at), end = dpari_least(count, lo + share - at);
        const unsigned char *from =
            whole ? ddp->buffer : (const unsigned char *)dpari_ddp_at(ddp, i);
        at += count;
        if (skip < end && (duplicate == NULL || !duplicate[i])) {
            s.in = from + skip * each;
            s.count = end - skip;
            status = dpari_do_squares(comm, &s);
        }
    }
    if (status == DPAR_OK) {
        status = dpari_do_wait(comm);
    }
    *squares = ddp->result.squares; /* copied, because collectives need memory of one kind */
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_norm(dpar_ddp *ddp, dpar_update *update)
{
    double squares = 0.0;
    dpar_why why;
    dpar_status status;
    if (ddp == NULL) {
        return DPAR_E_ARG;
    }
    if (ddp->comm->status != DPAR_OK) {
        return ddp->comm->status;
    }
    status = dpari_update_check(update, "dpar_ddp_norm", &why);
    if (status == DPAR_OK && (ddp->under_way || (!ddp->ended && ddp->zero1 == NULL))) {
        status = dpari_wrong(&why, "dpar_ddp_norm: gradients are not averages yet (dpar_ddp_end)");
    }
    if (status != DPAR_OK) {
        return dpari_update_refuse(ddp->comm, NULL, update, status, &why);
    }
    status = dpari_ddp_squares(ddp, update->duplicate, &squares);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_update_norm(ddp->comm, NULL, update, squares, 0, "ddp: rate, clip or factor");
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_free(dpar_ddp *ddp)
{
    if (ddp == NULL) {
        return DPAR_OK;
    }
    if (ddp->under_way && ddp->comm->status == DPAR_OK) {
        return dpari_comm_wrong(ddp->comm, "dpar_ddp_free: a pass is in progress (dpar_ddp_end)");
    }
    if (ddp->zero1 != NULL) { /* also an error if the communicator is broken */
        (void)dpari_comm_wrong(
            ddp->comm, "dpar_ddp_free: the zero1 on it must be freed first (dpar_zero1_free)");
        return DPAR_E_ARG;
    }
    dpari_ddp_wait_posted(
        ddp); /* a pass that failed may still have operations that use the memory */
    dpari_ddp_release(ddp);
    return DPAR_OK;
}
