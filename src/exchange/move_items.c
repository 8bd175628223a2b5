/* SPDX-License-Identifier: MIT-0 */
/* The boxes of a move. A message has the elements of a box in the sender's order. A part of it,
 * elements [begin, end), is divided into the largest boxes that are contiguous in the message, and
 * each of them becomes a box of ../host/mem.h, which ../comm/memory_calls.h copies in the host's
 * memory and in a device's. Called by move_order, move_rounds, move_lists and move. */
#include "move_items.h"

#include "../base/base_private.h"
#include "../base/type.h"
#include "../comm/memory_calls.h"
#include "../host/kernel.h"

enum { DPARI_MOVE_RUN = 64 }; /* elements of a run that is combined in place */

/* Returns the dim of the array that a dim of the message becomes if two are swapped. */
static int32_t dpari_swapped(const int32_t *swap, int32_t dim)
{
    if (dim == swap[0]) {
        return swap[1];
    }
    return dim == swap[1] ? swap[0] : dim;
}

/* ---- checking the caller's arguments --------------------------------------------------------- */

DPARI_INTERNAL dpar_status dpari_array_init(dpari_move_array *array, int32_t dims,
                                            const int64_t *shape, int32_t bytes, int64_t *elements,
                                            dpar_why *why)
{
    int64_t n = 1, all;
    int32_t d;
    dpari_zero(array, sizeof *array);
    array->dims = dims;
    if (dims < 0 || dims > DPAR_MAX_DIMS || (dims > 0 && shape == NULL)) {
        return dpari_wrong(why, "the array has %d dims, but must have 0 to 6, and a shape", dims);
    }
    for (d = dims - 1; d >= 0; d--) {
        array->step[d] = n;
        if (shape[d] < 0) {
            return dpari_wrong(why, "dim %d of a shape is %ld, but must be 0 or more", d, shape[d]);
        }
        if (!dpari_mul(n, shape[d], &n)) {
            return dpari_say(DPAR_E_RANGE, why, "a shape has 2^63 elements or more");
        }
    }
    if (!dpari_mul(n, bytes, &all)) {
        return dpari_say(DPAR_E_RANGE, why, "%ld elements of %d bytes are 2^63 bytes or more", n,
                         bytes);
    }
    *elements = n;
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_transfer_check(const dpar_transfer *t, int32_t dims,
                                                const int64_t *shape, int32_t type, int arrives,
                                                dpar_why *why)
{
    int32_t d;
    if (t->dims != dims) {
        return dpari_wrong(why, "a transfer has %d dims, but its array has %d", t->dims, dims);
    }
    if (t->swap[0] != t->swap[1] &&
        (t->swap[0] < 0 || t->swap[0] >= dims || t->swap[1] < 0 || t->swap[1] >= dims)) {
        return dpari_wrong(why, "dims %d and %d of %d cannot be exchanged", t->swap[0], t->swap[1],
                           dims);
    }
    for (d = 0; d < dims; d++) {
        int64_t n = t->extent[arrives ? dpari_swapped(t->swap, d) : d];
        if (n < 1 || t->mine[d] < 0 || t->mine[d] > shape[d] - n) {
            return dpari_wrong(why,
                               "dim %d: %ld elements from %ld on are not inside an array of %ld", d,
                               n, t->mine[d], shape[d]);
        }
    }
    if (t->op < DPAR_COPY || t->op >= DPAR_OP_COUNT) {
        return dpari_wrong(why, "op %d does not exist", t->op);
    }
    if (t->op != DPAR_COPY && !dpari_type_can_reduce(type)) {
        const char *name = dpar_type_name(type);
        return dpari_wrong(why, "elements of %s cannot be combined", name);
    }
    return DPAR_OK;
}

/* ---- items ----------------------------------------------------------------------------------- */

DPARI_INTERNAL int dpari_transfer_continues(const dpar_transfer *a, const dpar_transfer *b)
{
    int32_t d;
    if (b->op == DPAR_COPY || (a->op != DPAR_COPY && a->op != b->op) ||
        dpari_swapped(a->swap, b->swap[0]) != b->swap[1]) {
        return 0;
    }
    for (d = b->dims - 1; d >= 0; d--) { /* mostly, the last dim differs */
        const uint32_t flips = (a->flip ^ b->flip) >> dpari_swapped(b->swap, d);
        if (a->extent[d] != b->extent[d] || a->mine[d] != b->mine[d] ||
            (b->extent[d] > 1 && (flips & 1u) != 0)) {
            return 0;
        }
    }
    return 1;
}

DPARI_INTERNAL void dpari_item_init(dpari_move_item *it, const dpar_transfer *t,
                                    const dpari_move_array *array)
{
    const int arrives = array->to != NULL; /* messages have the sender's order, so only receives
                                              flip and swap */
    int32_t d;
    dpari_zero(it, sizeof *it);
    it->op = t->op;
    it->next = -1;
    it->volume = 1;
    it->swap[0] = arrives ? t->swap[0] : 0;
    it->swap[1] = arrives ? t->swap[1] : 0;
    for (d = 0; d < array->dims; d++) {
        const int32_t there = dpari_swapped(it->swap, d);
        const int back = arrives && (t->flip >> there & 1u) != 0 && t->extent[d] > 1;
        it->extent[d] = t->extent[d];
        it->volume *= t->extent[d];
        it->at += (t->mine[there] + (back ? t->extent[d] - 1 : 0)) * array->step[there];
        it->flip |= back ? (uint32_t)1 << d : 0;
    }
}

static int64_t dpari_item_step(const dpari_move_array *array, const dpari_move_item *it, int32_t d)
{
    const int64_t step = array->step[dpari_swapped(it->swap, d)];
    return it->flip >> d & 1u ? -step : step;
}

DPARI_INTERNAL int64_t dpari_item_run(const dpari_move_array *array, const dpari_move_item *it)
{
    int64_t run = 1;
    int32_t d;
    for (d = array->dims - 1; d >= 0; d--) {
        if (it->extent[d] > 1) {
            if (dpari_item_step(array, it, d) != run) {
                break;
            }
            run *= it->extent[d];
        }
    }
    return run;
}

DPARI_INTERNAL int64_t dpari_item_at(const dpari_move_array *array, const dpari_move_item *it,
                                     int64_t i)
{
    int64_t at = it->at;
    int32_t d;
    for (d = array->dims - 1; d >= 0; d--) {
        at += i % it->extent[d] * dpari_item_step(array, it, d);
        i /= it->extent[d];
    }
    return at;
}

/* ---- boxes ----------------------------------------------------------------------------------- */

DPARI_INTERNAL void dpari_boxes_flush(dpari_move_boxes *boxes)
{
    if (boxes->count > 0) {
        (void)dpari_do_move(boxes->comm, boxes->box, boxes->count);
    }
    boxes->count = 0;
}

/* Returns the next box, whose memory, extents and strides the caller sets. Boxes of one call have
 * the same op, so another op begins a new call. */
static dpar_mem_box *dpari_boxes_next(dpari_move_boxes *boxes, int32_t op, int32_t dims)
{
    dpar_mem_box *b;
    if (boxes->count == boxes->most || (boxes->count > 0 && boxes->box[0].op != op)) {
        dpari_boxes_flush(boxes);
    }
    b = &boxes->box[boxes->count++];
    b->op = op;
    b->to_type = b->from_type = b->round_type = boxes->type;
    b->negate = b->clear = b->reserved = 0;
    b->dims = dims;
    return b;
}

/* Finds the largest box that is contiguous in the message, begins at element `begin` and does not
 * pass `end`. Stores its offset in the array and its lengths, and returns its number of
 * elements. */
static int64_t dpari_item_rect(const dpari_move_item *it, int32_t dims, const int64_t *step,
                               int64_t begin, int64_t end, int64_t *at, int64_t *length)
{
    int64_t rest = begin, inner = 1, index = 0, per = 1;
    int32_t d, cut = dims;
    *at = it->at;
    /* `cut` is the outermost dim along which the box has several elements; all dims inside it are
     * whole */
    for (d = dims - 1; d >= 0; d--) {
        int64_t i = rest % it->extent[d];
        rest /= it->extent[d];
        *at += i * step[d];
        length[d] = 1;
        if (cut == d + 1 && begin % inner == 0 && end - begin >= inner) {
            cut = d;
            per = inner;
            index = i;
            inner *= it->extent[d];
        }
    }
    if (cut == dims) { /* an array of 0 dims has one element */
        return 1;
    }
    for (d = cut + 1; d < dims; d++) {
        length[d] = it->extent[d];
    }
    length[cut] = dpari_least(it->extent[cut] - index, (end - begin) / per);
    return length[cut] * per;
}

/* Copies elements [begin, end) of a box between its array and a message, or combines them with the
 * array's. */
static void dpari_item_move(dpari_move_boxes *boxes, const dpari_move_array *a,
                            const dpari_move_item *it, int64_t begin, int64_t end,
                            unsigned char *message, int pack, int32_t op)
{
    unsigned char *array = pack ? (unsigned char *)(uintptr_t)a->from : a->to;
    int64_t step[DPAR_MAX_DIMS];
    int32_t d;
    for (d = 0; d < a->dims; d++) {
        step[d] = dpari_item_step(a, it, d);
    }
    while (begin < end) {
        int64_t at, dense, length[DPAR_MAX_DIMS];
        const int64_t n = dpari_item_rect(it, a->dims, step, begin, end, &at, length);
        dpar_mem_box *b = dpari_boxes_next(boxes, op, a->dims);
        b->to = pack ? message : array + at * boxes->bytes;
        b->from = pack ? array + at * boxes->bytes : message;
        for (d = 0, dense = n; d < a->dims; d++) {
            dense /= length[d];
            b->extent[d] = length[d];
            b->to_stride[d] = pack ? dense : step[d];
            b->from_stride[d] = pack ? step[d] : dense;
        }
        message += n * boxes->bytes;
        begin += n;
    }
}

DPARI_INTERNAL void dpari_item_pack(dpari_move_boxes *boxes, const dpari_move_array *array,
                                    const dpari_move_item *it, int64_t begin, int64_t end,
                                    unsigned char *message)
{
    dpari_item_move(boxes, array, it, begin, end, message, 1, DPAR_COPY);
}

DPARI_INTERNAL void dpari_item_unpack(dpari_move_boxes *boxes, const dpari_move_array *array,
                                      const dpari_move_item *it, int64_t begin, int64_t end,
                                      const unsigned char *message)
{
    dpari_item_move(boxes, array, it, begin, end, (unsigned char *)(uintptr_t)message, 0,
                    DPAR_COPY);
}

DPARI_INTERNAL void dpari_item_copy(dpari_move_boxes *boxes, const dpari_move_array *to,
                                    const dpari_move_item *there, const dpari_move_array *from,
                                    const dpari_move_item *here)
{
    dpar_mem_box *b = dpari_boxes_next(boxes, DPAR_COPY, to->dims);
    int32_t d;
    b->to = to->to + there->at * boxes->bytes;
    b->from = (unsigned char *)(uintptr_t)from->from + here->at * boxes->bytes;
    for (d = 0; d < to->dims; d++) {
        b->extent[d] = here->extent[d];
        b->to_stride[d] = dpari_item_step(to, there, d);
        b->from_stride[d] = dpari_item_step(from, here, d);
    }
}

DPARI_INTERNAL void dpari_array_zero(dpari_move_boxes *boxes, const dpari_move_array *array,
                                     const int64_t *extent, unsigned char *zero)
{
    dpar_mem_box *b;
    int32_t d;
    (void)dpari_do_copy(boxes->comm, zero, NULL, DPARI_MOVE_ZERO);
    b = dpari_boxes_next(boxes, DPAR_COPY, array->dims);
    b->to = array->to;
    b->from = zero;
    for (d = 0; d < array->dims; d++) {
        b->extent[d] = extent[d];
        b->to_stride[d] = array->step[d];
        b->from_stride[d] = 0;
    }
    dpari_boxes_flush(boxes);
}

/* ---- combining ------------------------------------------------------------------------------- */

/* On a device: copies all parts next to each other, and reduces them in one operation. */
static void dpari_item_reduce(dpari_move_boxes *boxes, const dpari_move_array *array,
                              const dpari_move_array *read, const dpari_move_item *it,
                              int64_t begin, int64_t end, const void **part, int32_t parts,
                              int32_t op)
{
    const int64_t most = DPARI_MOVE_STAGE / boxes->bytes;
    unsigned char *result = boxes->stage + (int64_t)parts * DPARI_MOVE_STAGE;
    dpar_mem_reduce r;
    int64_t i, n;
    int32_t k;
    dpari_zero(&r, sizeof r);
    r.to = result;
    r.from = boxes->stage;
    r.parts = parts;
    r.stride = most;
    r.to_type = r.from_type = boxes->type;
    r.sum_type = boxes->bytes == 2 ? (int32_t)DPAR_F32 : boxes->type;
    r.op = op;
    r.scale = 1.0;
    for (i = begin; i < end; i += n) {
        n = r.count = dpari_least(end - i, most);
        dpari_item_pack(boxes, read, it, i, i + n, boxes->stage);
        for (k = 1; k < parts; k++) {
            dpar_mem_box *b = dpari_boxes_next(boxes, DPAR_COPY, 1);
            b->to = boxes->stage + (int64_t)k * DPARI_MOVE_STAGE;
            b->from = (unsigned char *)(uintptr_t)part[k] + (i - begin) * boxes->bytes;
            b->extent[0] = n;
            b->to_stride[0] = b->from_stride[0] = 1;
        }
        dpari_boxes_flush(boxes);
        (void)dpari_do_reduce(boxes->comm, &r);
        dpari_item_unpack(boxes, array, it, i, i + n, result);
        dpari_boxes_flush(boxes);
    }
}

/* In the host's memory: runs of at least DPARI_MOVE_RUN elements are reduced in place, shorter
 * ones in a buffer of BYTES bytes. */
static void dpari_item_reduce_here(dpari_move_boxes *boxes, const dpari_move_array *array,
                                   const dpari_move_array *read, const dpari_move_item *it,
                                   int64_t begin, int64_t end, const void **part, int32_t parts,
                                   int32_t op)
{
    enum { BYTES = 4096 };
    union {
        double aligned;
        unsigned char byte[BYTES];
    } buffer;
    const int64_t run = dpari_item_run(array, it);
    const void **shifted = part + parts;
    int64_t i, n;
    for (i = begin; i < end; i += n) {
        const int64_t row = dpari_least(end - i, run - i % run);
        void *result = buffer.byte;
        int32_t k;
        if (row >= DPARI_MOVE_RUN) {
            n = row;
            result = array->to + dpari_item_at(array, it, i) * boxes->bytes;
        } else {
            n = dpari_least(end - i, BYTES / boxes->bytes);
            dpari_item_pack(boxes, read, it, i, i + n, buffer.byte);
            dpari_boxes_flush(boxes);
        }
        shifted[0] = result;
        for (k = 1; k < parts; k++) {
            shifted[k] = (const unsigned char *)part[k] + (i - begin) * boxes->bytes;
        }
        dpari_kern_reduce(&result, 1, shifted, parts, n, boxes->type, op, 0);
        if (row < DPARI_MOVE_RUN) {
            dpari_item_unpack(boxes, array, it, i, i + n, buffer.byte);
            dpari_boxes_flush(boxes);
        }
    }
}

/* True if the operation is one of those of boxes, so that parts are combined one after the other
 * with the array. Not for more than two parts of 16 bits, which are rounded once. */
static int dpari_boxes_combine(const dpari_move_boxes *boxes, int32_t parts, int32_t op)
{
    return op != DPAR_AVG && op != DPAR_PRODUCT && (boxes->bytes != 2 || parts == 2);
}

DPARI_INTERNAL void dpari_item_combine(dpari_move_boxes *boxes, const dpari_move_array *array,
                                       const dpari_move_item *it, int64_t begin, int64_t end,
                                       const void **part, int32_t parts, int32_t op)
{
    const int here = boxes->comm->mem == NULL;
    dpari_move_array read = *array;
    int32_t k;
    read.from = array->to;
    dpari_boxes_flush(boxes);
    if (dpari_boxes_combine(boxes, parts, op) &&
        (!here || (parts == 2 && dpari_item_run(array, it) < DPARI_MOVE_RUN))) {
        for (k = 1; k < parts; k++) { /* boxes that write the same elements are combined in this
                                         order */
            dpari_item_move(boxes, array, it, begin, end, (unsigned char *)(uintptr_t)part[k], 0,
                            op);
        }
        dpari_boxes_flush(boxes);
    } else if (here) {
        dpari_item_reduce_here(boxes, array, &read, it, begin, end, part, parts, op);
    } else {
        dpari_item_reduce(boxes, array, &read, it, begin, end, part, parts, op);
    }
}
