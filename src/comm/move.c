/* SPDX-License-Identifier: MIT-0 */
/* Moves arrays between layouts, and boxes of transfer lists.
 *
 * A list of transfers becomes a list of items, grouped by peer into streams. A stream is cut into
 * messages of about piece_bytes. In each round at most one message of each stream is sent or
 * received, so that scratch holds one message per peer. Received parts that are reduced must be
 * combined in the order of the list, not of arrival. A message therefore stays in scratch until the
 * parts before it have been combined, and only then is the next message of its stream sent. The
 * receivers plan these rounds and tell the senders before the first one. In a device's memory the
 * same items become boxes for comm->mem. dpar_redistribute makes its items from
 * dpar_redistribute_next of dpar.h, dpar_transfers_exchange from the user's lists after ranks have
 * compared them. */
#include "move.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../host/elements.h"
#include "../host/kernel.h"
#include "../index/index_private.h"
#include "../index/layout.h"
#include "../index/mesh.h"
#include "../index/redistribute.h"
#include "agree.h"
#include "comm.h"
#include "memory_calls.h"
#include "os.h"

struct dpari_move;

/* A local array. One of the two pointers is set, depending on whether it is read or written. */
typedef struct dpari_move_array {
    struct dpari_move *there; /* the move, if the array is in a device's memory; NULL if it is in
                                 the host's */
    int32_t dims, bytes, type;
    int64_t step[DPAR_MAX_DIMS]; /* distance of two neighbours along each dim, in elements */
    const unsigned char *from;
    unsigned char *to;
} dpari_move_array;

/* A box of a list, and its place in the stream with its peer. */
typedef struct dpari_move_item {
    int64_t extent[DPAR_MAX_DIMS], volume;
    int64_t at;   /* offset in the array, in elements, of the first element of its message */
    int64_t done; /* for receives: number of elements that have been stored or combined */
    int64_t next; /* next item of the same stream; -1 for the last one */
    int32_t stream, op;
    uint32_t flip;   /* bit d is set if dim d of the message runs backwards in the array */
    int32_t swap[2]; /* two dims of the message that are exchanged in the array; equal if none
                        are */
} dpari_move_item;

/* Returns the dim of the array that a dim of the message becomes if two are swapped. */
static int32_t dpari_swapped(const int32_t *swap, int32_t dim)
{
    if (dim == swap[0]) {
        return swap[1];
    }
    return dim == swap[1] ? swap[0] : dim;
}

/* All data from one rank to another, cut into messages. The present message is the one that was cut
 * last. */
typedef struct dpari_move_stream {
    int32_t peer, ops;           /* ops: 1 if a box is combined, so that the receiver decides when
                                    messages are sent */
    int32_t loaded, fresh;       /* for receives: 1 if the present message has parts that are not
                                    combined yet; 1 if it is received in this round */
    int64_t first, last;         /* first and last item; -1 if there is none */
    int64_t elements, messages;  /* of the whole stream */
    int64_t item, offset;        /* where the next message begins: its item, and the element in
                                    it */
    int64_t message;             /* number of the next message */
    int64_t m_item, m_offset;    /* where the present message begins */
    int64_t m_count;             /* its number of elements */
    const unsigned char *memory; /* its address; NULL if it was received directly into the array */
    int64_t take, take_offset;   /* item and element of its next part to combine */
    int64_t take_at;             /* number of elements of the message before that part */
    int64_t stamp;               /* dpari_move.stamp of the last group that has an item of this
                                    stream */
    unsigned char *slot;         /* memory for one message */
    int32_t *round;              /* [messages] round in which each message is sent; NULL if message
                                    k is sent in round k */
    dpar_work work;
} dpari_move_stream;

/* The sends or the receives of a move. */
typedef struct dpari_move_side {
    dpari_move_array array;
    dpari_move_item *item;
    int64_t items;
    dpari_move_stream *stream;
    int32_t streams;
    int32_t *of_peer; /* [ranks] 1 + the stream of each peer; 0 if there is none */
} dpari_move_side;

typedef struct dpari_move {
    dpar_comm *comm;
    int32_t dims, bytes, type, tag;
    int64_t piece, alone;    /* the most elements of a message; boxes with `alone` or more elements
                                share no message */
    dpari_move_side out, in; /* sends, receives */
    int64_t head;            /* the first receive that is not complete */
    int64_t stamp;
    const void **part;         /* [2 (receiving streams + 1)] addresses of parts that are reduced
                                  together, and the same again as scratch */
    int64_t *word;             /* [4 * ranks] numbers by which lists are compared: own ones,
                                  received ones */
    unsigned char *next;       /* the unused rest of scratch */
    unsigned char *next_there; /* for a device: the unused rest of its scratch, which holds
                                  messages */
    unsigned char *stage;      /* for a device: memory in which parts are reduced together */
    dpar_mem_box *box;         /* [DPARI_MOVE_BOXES] boxes that the device is to move in one call */
    int32_t boxes;
} dpari_move;

enum {
    DPARI_MOVE_BOXES = 64,
    DPARI_MOVE_STAGE = 1 << 16, /* bytes of one part in `stage` */
    DPARI_MOVE_ZERO = 64        /* bytes of zeros in a device's memory, from which dpari_move_zeros
                                   copies */
};

/* The transfers of a move: two lists, or the walks over a redistribution. */
typedef struct dpari_move_source {
    const dpar_transfer *list[2]; /* DPAR_TRANSFER_RECV, DPAR_TRANSFER_SEND */
    int64_t n[2], at;
    const dpar_layout *from, *to; /* NULL if there are two lists */
    int32_t rank, per_node, direction;
    dpar_redistribute_cursor walk;
} dpari_move_source;

/* Totals of one direction. */
typedef struct dpari_move_totals {
    int64_t items, elements;
    int32_t ops;   /* 1 if a transfer is combined */
    int32_t apart; /* 1 if such a transfer does not directly follow another part of the same box */
} dpari_move_totals;

/* ---- boxes: copying between two arrays ------------------------------------------------------- */

/* A copy of a box as nested loops, outermost first, over runs of `unit` contiguous bytes. Steps are
 * in bytes. */
typedef struct dpari_move_box {
    int32_t dims;
    int64_t unit;
    int64_t extent[DPAR_MAX_DIMS], to[DPAR_MAX_DIMS], from[DPAR_MAX_DIMS];
} dpari_move_box;

/* Adds a loop inside the existing ones, or merges it with the innermost one if both arrays allow
 * that. */
static void dpari_box_loop(dpari_move_box *b, int64_t extent, int64_t to, int64_t from)
{
    int32_t last = b->dims - 1;
    if (extent == 1) {
        return;
    }
    if (last >= 0 && b->to[last] == to * extent && b->from[last] == from * extent) {
        extent *= b->extent[last];
    } else {
        last = b->dims++;
    }
    b->extent[last] = extent;
    b->to[last] = to;
    b->from[last] = from;
}

/* Called after the last loop: if the runs of the innermost loop are contiguous in both arrays, they
 * become one longer unit. */
static void dpari_box_units(dpari_move_box *b)
{
    int32_t last = b->dims - 1;
    if (last >= 0 && b->to[last] == b->unit && b->from[last] == b->unit) {
        b->unit *= b->extent[last];
        b->dims = last;
    }
}

#define DPARI_MOVE_UNITS(size)                                                                     \
    for (i = 0; i < n; i++) {                                                                      \
        memcpy(to + i * to_step, from + i * from_step, (size));                                    \
    }                                                                                              \
    return

/* Copies n runs of `unit` bytes. Short runs are copied without a call of memcpy, which would take
 * longer than the copy. */
static void dpari_box_row(unsigned char *to, int64_t to_step, const unsigned char *from,
                          int64_t from_step, int64_t n, int64_t unit)
{
    int64_t i, k;
    switch (unit) {
    case 1: DPARI_MOVE_UNITS(1);
    case 2: DPARI_MOVE_UNITS(2);
    case 4: DPARI_MOVE_UNITS(4);
    case 8: DPARI_MOVE_UNITS(8);
    case 12: DPARI_MOVE_UNITS(12);
    case 16: DPARI_MOVE_UNITS(16);
    case 24: DPARI_MOVE_UNITS(24);
    case 32: DPARI_MOVE_UNITS(32);
    default: break;
    }
    if (unit >= 64 || unit < 8) {
        DPARI_MOVE_UNITS((size_t)unit);
    }
    for (i = 0; i < n; i++) {
        for (k = 0; k + 8 <= unit; k += 8) {
            memcpy(to + i * to_step + k, from + i * from_step + k, 8);
        }
        if (k < unit) {
            memcpy(to + i * to_step + unit - 8, from + i * from_step + unit - 8, 8);
        }
    }
}

#undef DPARI_MOVE_UNITS

static void dpari_box_copy(const dpari_move_box *b, unsigned char *to, const unsigned char *from)
{
    int64_t at[DPAR_MAX_DIMS] = {0, 0, 0, 0, 0, 0}, t = 0, f = 0;
    int32_t last = b->dims - 1, d;
    if (last < 0) {
        dpari_kern_copy(to, from, b->unit, 0);
        return;
    }
    do {
        dpari_box_row(to + t, b->to[last], from + f, b->from[last], b->extent[last], b->unit);
        for (d = last - 1; d >= 0; d--) {
            t += b->to[d];
            f += b->from[d];
            if (++at[d] < b->extent[d]) {
                break;
            }
            t -= b->to[d] * b->extent[d];
            f -= b->from[d] * b->extent[d];
            at[d] = 0;
        }
    } while (d >= 0);
}

/* ---- parts of a box: elements [begin, end) of its message ------------------------------------ */

static int64_t dpari_item_step(const dpari_move_array *array, const dpari_move_item *it, int32_t d)
{
    const int64_t step = array->step[dpari_swapped(it->swap, d)];
    return it->flip >> d & 1u ? -step : step;
}

/* Finds the largest box that is contiguous in the message, begins at element `begin` and does not
 * pass `end`. Stores its offset in the array and its lengths, and returns its number of
 * elements. */
static int64_t dpari_item_rect(const dpari_move_array *array, const dpari_move_item *it,
                               int64_t begin, int64_t end, int64_t *at, int64_t *length)
{
    int64_t rest = begin, inner = 1, index = 0, per = 1;
    int32_t d, cut = array->dims;
    *at = it->at;
    for (d = array->dims - 1; d >= 0; d--) { /* `cut` is the outermost dim along which the box has
                                                several elements; all dims inside it are whole */
        int64_t i = rest % it->extent[d];
        rest /= it->extent[d];
        *at += i * dpari_item_step(array, it, d);
        length[d] = 1;
        if (cut == d + 1 && begin % inner == 0 && end - begin >= inner) {
            cut = d;
            per = inner;
            index = i;
            inner *= it->extent[d];
        }
    }
    if (cut == array->dims) { /* an array of 0 dims has one element */
        return 1;
    }
    for (d = cut + 1; d < array->dims; d++) {
        length[d] = it->extent[d];
    }
    length[cut] = dpari_least(it->extent[cut] - index, (end - begin) / per);
    return length[cut] * per;
}

/* Makes the loops that copy such a box from the array to a message if `pack` is set, otherwise from
 * the message to the array. */
static void dpari_rect_box(const dpari_move_array *array, const dpari_move_item *it,
                           const int64_t *length, int pack, dpari_move_box *b)
{
    int64_t dense = array->bytes;
    int32_t d;
    for (d = 0; d < array->dims; d++) {
        dense *= length[d];
    }
    b->dims = 0;
    b->unit = array->bytes;
    for (d = 0; d < array->dims; d++) {
        const int64_t step = dpari_item_step(array, it, d) * array->bytes;
        int64_t to, from;
        dense /= length[d];
        to = pack ? dense : step;
        from = pack ? step : dense;
        dpari_box_loop(b, length[d], to, from);
    }
    dpari_box_units(b);
}

/* Passes the collected boxes to the device. A failure there breaks the communicator. */
static void dpari_move_flush(dpari_move *move)
{
    if (move->boxes > 0) {
        (void)dpari_do_move(move->comm, move->box, move->boxes);
    }
    move->boxes = 0;
}

/* Returns the next of the collected boxes, which the caller fills in. Boxes of one call have the
 * same op, so another op begins a new call. */
static dpar_mem_box *dpari_move_box_there(dpari_move *move, int32_t op)
{
    dpar_mem_box *b;
    if (move->boxes == DPARI_MOVE_BOXES || (move->boxes > 0 && move->box[0].op != op)) {
        dpari_move_flush(move);
    }
    b = &move->box[move->boxes++];
    dpari_zero(b, sizeof *b);
    b->op = op;
    b->to_type = b->from_type = b->round_type = move->type;
    return b;
}

/* Copies elements [begin, end) of a box between its array and a message, on the device. */
static void dpari_item_there(const dpari_move_array *a, const dpari_move_item *it, int64_t begin,
                             int64_t end, unsigned char *message, int pack, int32_t op)
{
    unsigned char *array = pack ? (unsigned char *)(uintptr_t)a->from : a->to;
    while (begin < end) {
        int64_t at, dense, length[DPAR_MAX_DIMS];
        const int64_t n = dpari_item_rect(a, it, begin, end, &at, length);
        dpar_mem_box *b = dpari_move_box_there(a->there, op);
        int32_t d;
        b->to = pack ? message : array + at * a->bytes;
        b->from = pack ? array + at * a->bytes : message;
        b->dims = a->dims;
        for (d = 0, dense = n; d < a->dims; d++) {
            const int64_t step = dpari_item_step(a, it, d);
            dense /= length[d];
            b->extent[d] = length[d];
            b->to_stride[d] = pack ? dense : step;
            b->from_stride[d] = pack ? step : dense;
        }
        message += n * a->bytes;
        begin += n;
    }
}

static void dpari_item_pack(const dpari_move_array *array, const dpari_move_item *it, int64_t begin,
                            int64_t end, unsigned char *message)
{
    if (array->there != NULL) {
        dpari_item_there(array, it, begin, end, message, 1, DPAR_COPY);
        return;
    }
    while (begin < end) {
        int64_t at, length[DPAR_MAX_DIMS], n = dpari_item_rect(array, it, begin, end, &at, length);
        dpari_move_box b;
        dpari_rect_box(array, it, length, 1, &b);
        dpari_box_copy(&b, message, array->from + at * array->bytes);
        message += n * array->bytes;
        begin += n;
    }
}

static void dpari_item_unpack(const dpari_move_array *array, const dpari_move_item *it,
                              int64_t begin, int64_t end, const unsigned char *message)
{
    if (array->there != NULL) {
        dpari_item_there(array, it, begin, end, (unsigned char *)(uintptr_t)message, 0, DPAR_COPY);
        return;
    }
    while (begin < end) {
        int64_t at, length[DPAR_MAX_DIMS], n = dpari_item_rect(array, it, begin, end, &at, length);
        dpari_move_box b;
        dpari_rect_box(array, it, length, 0, &b);
        dpari_box_copy(&b, array->to + at * array->bytes, message);
        message += n * array->bytes;
        begin += n;
    }
}

/* Returns the number of elements of a box that are contiguous in the array. Contiguous runs begin
 * at multiples of it. */
static int64_t dpari_item_run(const dpari_move_array *array, const dpari_move_item *it)
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

/* Returns the position of element i in the array. */
static int64_t dpari_item_at(const dpari_move_array *array, const dpari_move_item *it, int64_t i)
{
    int64_t at = it->at;
    int32_t d;
    for (d = array->dims - 1; d >= 0; d--) {
        at += i % it->extent[d] * dpari_item_step(array, it, d);
        i /= it->extent[d];
    }
    return at;
}

/* Does what dpari_item_combine does, on a device: copies all parts next to each other, and reduces
 * them in one operation. */
static void dpari_item_reduce_there(const dpari_move_array *array, const dpari_move_item *it,
                                    int64_t begin, int64_t end, const void **part, int32_t parts,
                                    int32_t op)
{
    dpari_move *move = array->there;
    const int64_t most = DPARI_MOVE_STAGE / array->bytes;
    unsigned char *result = move->stage + (int64_t)parts * DPARI_MOVE_STAGE;
    dpari_move_array here = *array;
    dpar_mem_reduce r;
    int64_t i, n;
    int32_t k;
    here.from = array->to;
    dpari_zero(&r, sizeof r);
    r.to = result;
    r.from = move->stage;
    r.parts = parts;
    r.stride = most;
    r.to_type = r.from_type = array->type;
    r.sum_type = array->bytes == 2 ? (int32_t)DPAR_F32 : array->type;
    r.op = op;
    r.scale = 1.0;
    for (i = begin; i < end; i += n) {
        n = r.count = dpari_least(end - i, most);
        dpari_item_pack(&here, it, i, i + n, move->stage);
        for (k = 1; k < parts; k++) {
            dpar_mem_box *b = dpari_move_box_there(move, DPAR_COPY);
            b->to = move->stage + (int64_t)k * DPARI_MOVE_STAGE;
            b->from = (unsigned char *)(uintptr_t)part[k] + (i - begin) * array->bytes;
            b->dims = 1;
            b->extent[0] = n;
            b->to_stride[0] = b->from_stride[0] = 1;
        }
        dpari_move_flush(move);
        (void)dpari_do_reduce(move->comm, &r);
        dpari_item_unpack(array, it, i, i + n, result);
        dpari_move_flush(move);
    }
}

static void dpari_item_combine_there(const dpari_move_array *array, const dpari_move_item *it,
                                     int64_t begin, int64_t end, const void **part, int32_t parts,
                                     int32_t op)
{
    int32_t k;
    dpari_move_flush(array->there);
    if (op == DPAR_AVG || op == DPAR_PRODUCT || (array->bytes == 2 && parts > 2)) {
        dpari_item_reduce_there(array, it, begin, end, part, parts, op);
        return;
    }
    for (k = 1; k < parts; k++) { /* boxes that write the same elements are combined in this
                                     order */
        dpari_item_there(array, it, begin, end, (unsigned char *)(uintptr_t)part[k], 0, op);
    }
    dpari_move_flush(array->there);
}

/* Combines parts: elements x of [begin, end) become x op part[1] op ... op part[parts - 1], where
 * each part begins at element `begin`. part[0] and part[parts ..] are scratch of this function.
 * Runs of at least WORTH elements are reduced in place, shorter ones in a buffer of BYTES bytes. */
static void dpari_item_combine(const dpari_move_array *array, const dpari_move_item *it,
                               int64_t begin, int64_t end, const void **part, int32_t parts,
                               int32_t op)
{
    enum { BYTES = 4096, WORTH = 64 };
    union {
        double aligned;
        unsigned char byte[BYTES];
    } buffer;
    const int64_t run = dpari_item_run(array, it);
    const void **shifted = part + parts;
    dpari_move_array here = *array;
    int64_t i, n;
    if (array->there != NULL) {
        dpari_item_combine_there(array, it, begin, end, part, parts, op);
        return;
    }
    here.from = array->to;
    for (i = begin; i < end; i += n) {
        const int64_t row = dpari_least(end - i, run - i % run);
        void *result = buffer.byte;
        int32_t k;
        if (row >= WORTH) {
            n = row;
            result = array->to + dpari_item_at(array, it, i) * array->bytes;
        } else {
            n = dpari_least(end - i, BYTES / array->bytes);
            dpari_item_pack(&here, it, i, i + n, buffer.byte);
        }
        shifted[0] = result;
        for (k = 1; k < parts; k++) {
            shifted[k] = (const unsigned char *)part[k] + (i - begin) * array->bytes;
        }
        dpari_kern_reduce(&result, 1, shifted, parts, n, array->type, op, 0);
        if (row < WORTH) {
            dpari_item_unpack(array, it, i, i + n, buffer.byte);
        }
    }
}

/* Copies a box of one array to the corresponding box of another array. */
static void dpari_item_copy(const dpari_move_array *to, const dpari_move_item *there,
                            const dpari_move_array *from, const dpari_move_item *here)
{
    dpari_move_box b;
    int32_t d;
    if (to->there != NULL) {
        dpar_mem_box *box = dpari_move_box_there(to->there, DPAR_COPY);
        box->to = to->to + there->at * to->bytes;
        box->from = (unsigned char *)(uintptr_t)from->from + here->at * to->bytes;
        box->dims = to->dims;
        for (d = 0; d < to->dims; d++) {
            box->extent[d] = here->extent[d];
            box->to_stride[d] = dpari_item_step(to, there, d);
            box->from_stride[d] = dpari_item_step(from, here, d);
        }
        return;
    }
    b.dims = 0;
    b.unit = to->bytes;
    for (d = 0; d < to->dims; d++) {
        dpari_box_loop(&b, here->extent[d], dpari_item_step(to, there, d) * to->bytes,
                       dpari_item_step(from, here, d) * to->bytes);
    }
    dpari_box_units(&b);
    dpari_box_copy(&b, to->to + there->at * to->bytes, from->from + here->at * to->bytes);
}

/* ---- checking the caller's arguments --------------------------------------------------------- */

/* Checks type and shape of an array, and computes its steps. Sets *elements to its size unless
 * elements is NULL. */
static dpar_status dpari_array_init(dpari_move_array *array, int32_t dims, const int64_t *shape,
                                    int32_t type, int64_t *elements, dpar_why *why)
{
    int64_t n = 1, bytes;
    int32_t d;
    dpari_zero(array, sizeof *array);
    array->dims = dims;
    array->type = type;
    array->bytes = dpar_type_bytes(type);
    if (array->bytes == 0) {
        return dpari_wrong(why, "type %s (%d) has no elements of whole bytes", dpar_type_name(type),
                           type);
    }
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
    if (!dpari_mul(n, array->bytes, &bytes)) {
        return dpari_say(DPAR_E_RANGE, why, "%ld elements of %d bytes are 2^63 bytes or more", n,
                         array->bytes);
    }
    if (elements != NULL) {
        *elements = n;
    }
    return DPAR_OK;
}

/* Checks that the box of a transfer is inside the array: of a receive if `arrives` is set,
 * otherwise of a send. */
static dpar_status dpari_check_box(const dpar_transfer *t, int32_t dims, const int64_t *shape,
                                   int arrives, dpar_why *why)
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
    return DPAR_OK;
}

static dpar_status dpari_check_op(const dpar_transfer *t, int32_t type, dpar_why *why)
{
    if (t->op < DPAR_COPY || t->op >= DPAR_OP_COUNT) {
        return dpari_wrong(why, "op %d does not exist", t->op);
    }
    if (t->op != DPAR_COPY && !dpari_type_can_reduce(type)) {
        const char *name = dpar_type_name(type);
        return dpari_wrong(why, "elements of %s cannot be combined", name);
    }
    return DPAR_OK;
}

static void dpari_item_init(dpari_move_item *it, const dpar_transfer *t,
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

/* ---- counting a list ------------------------------------------------------------------------- */

static dpar_status dpari_source_begin(dpari_move_source *s, int32_t direction, dpar_why *why)
{
    s->direction = direction;
    s->at = 0;
    if (s->from == NULL) {
        return DPAR_OK;
    }
    if (s->per_node < DPAR_REDISTRIBUTE_PRIMARY) {
        return dpari_wrong(why, "ranks_per_node is %d, but must be -1 or more", s->per_node);
    }
    if (dpar_redistribute_check(s->from, s->to, why) != DPAR_OK) {
        return DPAR_E_ARG;
    }
    return dpar_redistribute_first(&s->walk, s->from, s->to, s->rank, direction, s->per_node);
}

static int dpari_source_next(dpari_move_source *s, dpar_transfer *t)
{
    if (s->from != NULL) {
        return dpar_redistribute_next(&s->walk, t);
    }
    if (s->at == s->n[s->direction]) {
        return 0;
    }
    *t = s->list[s->direction][s->at++];
    return 1;
}

/* True if b is another part of the same box as a, the transfer directly before it. */
static int dpari_continues(const dpar_transfer *a, const dpar_transfer *b)
{
    int32_t d;
    if (b->op == DPAR_COPY || (a->op != DPAR_COPY && a->op != b->op) || a->flip != b->flip ||
        dpari_swapped(a->swap, b->swap[0]) != b->swap[1]) {
        return 0;
    }
    for (d = 0; d < b->dims; d++) {
        if (a->extent[d] != b->extent[d] || a->mine[d] != b->mine[d]) {
            return 0;
        }
    }
    return 1;
}

/* Walks one direction of a source and adds up what it moves, so that the size of scratch is
 * known. */
static DPARI_COLD dpar_status dpari_source_total(dpari_move_source *source, int32_t direction,
                                                 dpari_move_totals *sum, dpar_why *why)
{
    dpar_transfer transfer, before;
    const dpar_status status = dpari_source_begin(source, direction, why);
    dpari_zero(sum, sizeof *sum);
    dpari_zero(&before, sizeof before);
    if (status != DPAR_OK) {
        return status;
    }
    while (dpari_source_next(source, &transfer)) {
        int64_t volume;
        if (transfer.dims < 0 || transfer.dims > DPAR_MAX_DIMS) {
            return dpari_wrong(why, "a transfer has %d dims, but must have 0 to %d", transfer.dims,
                               (int32_t)DPAR_MAX_DIMS);
        }
        volume = dpar_transfer_volume(&transfer);
        if (volume < 0 || volume > (INT64_C(1) << 62) - sum->elements) {
            return dpari_say(DPAR_E_RANGE, why, "more than 2^62 elements are moved");
        }
        if (transfer.op != DPAR_COPY) {
            sum->ops = 1;
            sum->apart |= sum->items == 0 || !dpari_continues(&before, &transfer);
        }
        sum->elements += volume;
        sum->items++;
        before = transfer;
    }
    return DPAR_OK;
}

/* ---- scratch --------------------------------------------------------------------------------- */

/* Adds n * each bytes to *a, rounded up to cache lines. Returns 0 if the sum would exceed 2^62. */
static int dpari_scratch_add(int64_t *a, int64_t n, int64_t each)
{
    int64_t more;
    if (!dpari_mul(n, each, &more) || more > (INT64_C(1) << 62) - 128 - *a) {
        return 0;
    }
    *a += more / 64 * 64 + 64;
    return 1;
}

static int dpari_scratch_side(int64_t *bytes, const dpari_move_totals *sum, int32_t size,
                              int64_t piece, int32_t unit)
{
    int64_t streams = dpari_least(sum->items, size);
    int64_t slots = dpari_least(sum->elements,
                                piece <= INT64_MAX / (streams + 1) ? piece * streams : INT64_MAX);
    return dpari_scratch_add(bytes, sum->items, (int64_t)sizeof(dpari_move_item)) &&
           dpari_scratch_add(bytes, streams, (int64_t)sizeof(dpari_move_stream)) &&
           dpari_scratch_add(bytes, size, 4) && dpari_scratch_add(bytes, slots, unit) &&
           dpari_scratch_add(bytes, streams, 128) && /* slots and tables of rounds begin at cache
                                                        lines */
           (!sum->ops || dpari_scratch_add(bytes, sum->items + sum->elements / piece + 1, 4));
}

/* Returns the most bytes of scratch that a move needs, or -1 if that is more than 2^62. */
static int64_t dpari_scratch_bytes(const dpari_move *move, const dpari_move_totals *out,
                                   const dpari_move_totals *in)
{
    int64_t bytes = 64; /* to reach the first cache line */
    int ok = dpari_scratch_side(&bytes, out, move->comm->size, move->piece, move->bytes) &&
             dpari_scratch_side(&bytes, in, move->comm->size, move->piece, move->bytes) &&
             dpari_scratch_add(&bytes, 2 * (dpari_least(in->items, move->comm->size) + 1),
                               (int64_t)sizeof(void *)) &&
             dpari_scratch_add(&bytes, move->comm->size, 4 * 8);
    if (ok && move->comm->mem != NULL) {
        const int64_t parts = in->ops ? dpari_least(in->items, move->comm->size) + 2 : 0;
        ok = dpari_scratch_add(&bytes, DPARI_MOVE_BOXES, (int64_t)sizeof(dpar_mem_box)) &&
             dpari_scratch_add(&bytes, parts, DPARI_MOVE_STAGE) &&
             dpari_scratch_add(&bytes, 1, DPARI_MOVE_ZERO);
    }
    return ok ? bytes : -1;
}

/* Takes memory for n elements of `each` bytes from scratch, at a cache line. */
static void *dpari_carve(dpari_move *move, int64_t n, int64_t each)
{
    unsigned char *at = move->next;
    move->next += n * each / 64 * 64 + 64;
    return at;
}

/* ---- lists into streams ---------------------------------------------------------------------- */

/* Cuts the next message of a stream: a piece of a large box, or several small boxes. Both ends cut
 * equally, because only the extents decide. */
static void dpari_stream_cut(const dpari_move *move, const dpari_move_side *side,
                             dpari_move_stream *stream)
{
    const dpari_move_item *it = &side->item[stream->item];
    stream->m_item = stream->item;
    stream->m_offset = stream->offset;
    stream->m_count = 0;
    stream->message++;
    if (it->volume >= move->alone) {
        stream->m_count = dpari_least(move->piece, it->volume - stream->offset);
        stream->offset += stream->m_count;
        if (stream->offset == it->volume) {
            stream->item = it->next;
            stream->offset = 0;
        }
        return;
    }
    while (stream->item >= 0 && side->item[stream->item].volume < move->alone &&
           stream->m_count + side->item[stream->item].volume <= move->piece) {
        stream->m_count += side->item[stream->item].volume;
        stream->item = side->item[stream->item].next;
    }
}

static void dpari_stream_rewind(dpari_move_stream *stream)
{
    stream->item = stream->first;
    stream->offset = 0;
    stream->message = 0;
    stream->loaded = 0;
    stream->m_count = 0;
}

/* Returns the stream of a peer, which it makes if there is none yet. */
static dpari_move_stream *dpari_stream_of(dpari_move_side *side, int32_t peer)
{
    dpari_move_stream *stream;
    if (side->of_peer[peer] == 0) {
        stream = &side->stream[side->streams++];
        dpari_zero(stream, sizeof *stream);
        stream->peer = peer;
        stream->first = stream->last = -1;
        side->of_peer[peer] = side->streams;
    }
    return &side->stream[side->of_peer[peer] - 1];
}

static void dpari_side_fill(dpari_move_side *side, dpari_move_source *source)
{
    dpar_transfer t;
    while (dpari_source_next(source, &t)) {
        dpari_move_item *it = &side->item[side->items];
        dpari_move_stream *stream = dpari_stream_of(side, t.peer);
        dpari_item_init(it, &t, &side->array);
        it->stream = side->of_peer[t.peer] - 1;
        if (stream->last >= 0) {
            side->item[stream->last].next = side->items;
        } else {
            stream->first = side->items;
        }
        stream->last = side->items++;
        stream->ops |= t.op != DPAR_COPY;
        stream->elements += it->volume;
    }
}

/* Counts the messages of each stream, and takes memory for one of them and for the table of
 * rounds. */
static void dpari_side_cut(dpari_move *move, dpari_move_side *side)
{
    unsigned char **next = move->comm->mem != NULL ? &move->next_there : &move->next;
    int32_t i;
    for (i = 0; i < side->streams; i++) {
        dpari_move_stream *s = &side->stream[i];
        int64_t most = 0;
        dpari_stream_rewind(s);
        while (s->item >= 0) {
            dpari_stream_cut(move, side, s);
            most = dpari_most(most, s->m_count);
        }
        s->messages = s->message;
        dpari_stream_rewind(s);
        s->slot = *next;
        if (s->peer != move->comm->rank || s->ops) {
            *next += dpari_room_up(most * move->bytes);
        }
    }
    for (i = 0; i < side->streams; i++) {
        dpari_move_stream *s = &side->stream[i];
        if (s->ops && s->messages > 1) {
            s->round = (int32_t *)dpari_carve(move, s->messages, 4);
        }
    }
}

static DPARI_COLD void dpari_side_build(dpari_move *move, dpari_move_side *side,
                                        dpari_move_source *source, int32_t direction,
                                        const dpari_move_totals *sum)
{
    const int64_t streams = dpari_least(sum->items, move->comm->size);
    int32_t i;
    side->item = (dpari_move_item *)dpari_carve(move, sum->items, (int64_t)sizeof(dpari_move_item));
    side->stream =
        (dpari_move_stream *)dpari_carve(move, streams, (int64_t)sizeof(dpari_move_stream));
    side->of_peer = (int32_t *)dpari_carve(move, move->comm->size, 4);
    side->items = 0;
    side->streams = 0;
    for (i = 0; i < move->comm->size; i++) {
        side->of_peer[i] = 0;
    }
    (void)dpari_source_begin(source, direction, NULL); /* cannot fail, because it succeeded
                                                          before */
    dpari_side_fill(side, source);
    dpari_side_cut(move, side);
}

/* ---- receiving in order ---------------------------------------------------------------------- */

/* True if item i is another part of the same box as the item before it. */
static int dpari_item_continues(const dpari_move_side *in, int64_t i)
{
    const dpari_move_item *a = &in->item[i - 1], *b = &in->item[i];
    int32_t d;
    if (b->op == DPAR_COPY || (a->op != DPAR_COPY && a->op != b->op) || a->at != b->at ||
        a->flip != b->flip || a->volume != b->volume ||
        dpari_swapped(a->swap, b->swap[0]) != b->swap[1]) {
        return 0;
    }
    for (d = 0; d < in->array.dims; d++) {
        if (a->extent[d] != b->extent[d]) {
            return 0;
        }
    }
    return 1;
}

/* Returns the end of the group of items that begins at item `begin`: parts of one box, each from a
 * different rank, which are reduced together. */
static int64_t dpari_group_end(dpari_move *move, int64_t begin)
{
    dpari_move_side *in = &move->in;
    int64_t i = begin;
    move->stamp++;
    do {
        in->stream[in->item[i].stream].stamp = move->stamp;
        i++;
    } while (i < in->items && dpari_item_continues(in, i) &&
             in->stream[in->item[i].stream].stamp != move->stamp);
    return i;
}

/* Returns how many elements of a group can be reduced now. The messages of all its streams must
 * have them, and `leader`, the copy to which they are added, must have stored them. leader is NULL
 * if they are added to elements that are complete. */
static int64_t dpari_group_ready(const dpari_move *move, const dpari_move_item *leader,
                                 int64_t begin, int64_t end)
{
    const int64_t done = move->in.item[begin].done;
    int64_t n = move->in.item[begin].volume - done, i;
    for (i = begin; i < end; i++) {
        const dpari_move_stream *stream = &move->in.stream[move->in.item[i].stream];
        if (!stream->loaded) { /* if loaded is set, this part is the next one of its stream */
            return 0;
        }
        n = dpari_least(n, stream->m_count - stream->take_at);
    }
    return leader == NULL || leader->done >= done + n ? n : 0;
}

/* Marks n elements of a stream's next part as combined, and skips copies that follow it. */
static void dpari_stream_take(const dpari_move_side *in, dpari_move_stream *stream, int64_t n)
{
    stream->take_offset += n;
    stream->take_at += n;
    if (stream->take_offset == in->item[stream->take].volume) {
        stream->take_offset = 0;
        stream->take = in->item[stream->take].next;
        while (stream->take_at < stream->m_count && in->item[stream->take].op == DPAR_COPY) {
            stream->take_at += in->item[stream->take].volume;
            stream->take = in->item[stream->take].next;
        }
    }
    stream->loaded = stream->take_at < stream->m_count;
}

/* Reduces n elements of a group, and advances its streams. With `dry` it only does the latter. */
static void dpari_group_reduce(dpari_move *move, int64_t begin, int64_t end, int64_t n, int dry)
{
    dpari_move_side *in = &move->in;
    const dpari_move_item *it = &in->item[begin];
    const int64_t done = it->done;
    int64_t i;
    for (i = begin; i < end; i++) {
        const dpari_move_stream *stream = &in->stream[in->item[i].stream];
        move->part[1 + i - begin] = dry ? NULL : stream->memory + stream->take_at * move->bytes;
    }
    if (!dry) {
        dpari_item_combine(&in->array, it, done, done + n, move->part, (int32_t)(1 + end - begin),
                           it->op);
    }
    for (i = begin; i < end; i++) {
        dpari_stream_take(in, &in->stream[in->item[i].stream], n);
        in->item[i].done += n;
    }
}

/* Combines the parts that have arrived, in the order of the list, as far as possible. With `dry` it
 * only counts them. */
static void dpari_move_combine(dpari_move *move, int dry)
{
    dpari_move_side *in = &move->in;
    while (move->head < in->items) {
        const dpari_move_item *it = &in->item[move->head], *leader = NULL;
        int64_t begin = move->head, end, n;
        if (it->op == DPAR_COPY) {
            if (begin + 1 < in->items && dpari_item_continues(in, begin + 1)) {
                leader = it;
                begin++;
            } else if (it->done < it->volume) {
                return;
            } else {
                move->head++;
                continue;
            }
        }
        end = dpari_group_end(move, begin);
        n = dpari_group_ready(move, leader, begin, end);
        if (n == 0) {
            return;
        }
        dpari_group_reduce(move, begin, end, n, dry);
        if (in->item[begin].done == in->item[begin].volume) {
            move->head = end;
        }
    }
}

/* Handles the present message of a stream when it has arrived: stores its copies in the array,
 * unless they were received there, and notes the first part to combine. With `dry` it stores
 * nothing. */
static void dpari_stream_arrive(dpari_move *move, dpari_move_stream *stream, int dry)
{
    dpari_move_side *in = &move->in;
    int64_t i = stream->m_item, offset = stream->m_offset, at = 0;
    while (at < stream->m_count) {
        dpari_move_item *it = &in->item[i];
        const int64_t n = dpari_least(it->volume - offset, stream->m_count - at);
        if (it->op != DPAR_COPY && !stream->loaded) {
            stream->loaded = 1;
            stream->take = i;
            stream->take_offset = offset;
            stream->take_at = at;
        } else if (it->op == DPAR_COPY) {
            if (!dry && stream->memory != NULL) {
                dpari_item_unpack(&in->array, it, offset, offset + n,
                                  stream->memory + at * move->bytes);
            }
            it->done += n;
        }
        at += n;
        offset = 0;
        i = it->next;
    }
    dpari_move_flush(move);
}

/* True if the next message of a stream is received in this round; the next function tests sends. A
 * message with parts to combine is received once all parts of the message before it have been
 * combined; the receiver tells the sender in which round that is. */
static int dpari_receives_now(const dpari_move_stream *stream)
{
    return stream->message < stream->messages && !stream->loaded;
}

static int dpari_sends_now(const dpari_move *move, const dpari_move_stream *stream, int64_t round)
{
    return stream->peer != move->comm->rank && stream->message < stream->messages &&
           (stream->round != NULL ? stream->round[stream->message] : stream->message) == round;
}

/* Copies the boxes that this rank sends to itself, unless some of them are combined. */
static void dpari_move_self(dpari_move *move, int dry)
{
    const int32_t me = move->comm->rank;
    dpari_move_stream *to, *from;
    int64_t i, k;
    if (move->in.of_peer[me] == 0 || move->out.of_peer[me] == 0) {
        return;
    }
    to = &move->in.stream[move->in.of_peer[me] - 1];
    from = &move->out.stream[move->out.of_peer[me] - 1];
    if (to->ops) {
        return;
    }
    for (i = to->first, k = from->first; i >= 0;
         i = move->in.item[i].next, k = move->out.item[k].next) {
        if (!dry) {
            dpari_item_copy(&move->in.array, &move->in.item[i], &move->out.array,
                            &move->out.item[k]);
        }
        move->in.item[i].done = move->in.item[i].volume;
    }
    dpari_move_flush(move);
    to->messages = from->messages = 0;
}

/* Simulates the receives without data, to find out in which round each message is received. */
static void dpari_move_plan(dpari_move *move)
{
    int64_t round, i;
    int32_t k, more = 1;
    dpari_move_self(move, 1);
    for (round = 0; more; round++) {
        more = 0;
        for (k = 0; k < move->in.streams; k++) {
            dpari_move_stream *stream = &move->in.stream[k];
            if (dpari_receives_now(stream)) {
                if (stream->round != NULL) {
                    stream->round[stream->message] = (int32_t)round;
                }
                dpari_stream_cut(move, &move->in, stream);
                dpari_stream_arrive(move, stream, 1);
                more = 1;
            }
        }
        dpari_move_combine(move, 1);
    }
    for (k = 0; k < move->in.streams; k++) {
        dpari_stream_rewind(&move->in.stream[k]);
    }
    for (i = 0; i < move->in.items; i++) {
        move->in.item[i].done = 0;
    }
    move->head = 0;
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* Copies the message of a failed call on the communicator. Returns st. */
static dpar_status dpari_move_failed(const dpari_move *move, dpar_status st, dpar_why *why)
{
    if (why != NULL && st < 0) {
        *why = move->comm->why;
    }
    return st;
}

/* True if the present message is contiguous in the array. Sets *at to its offset there, in
 * bytes. */
static int dpari_stream_in_place(const dpari_move_side *side, const dpari_move_stream *stream,
                                 int64_t *at)
{
    const dpari_move_item *it = &side->item[stream->m_item];
    int64_t run;
    if (stream->m_count > it->volume - stream->m_offset) {
        return 0;
    }
    run = dpari_item_run(&side->array, it);
    if (stream->m_offset / run != (stream->m_offset + stream->m_count - 1) / run) {
        return 0;
    }
    *at = dpari_item_at(&side->array, it, stream->m_offset) * side->array.bytes;
    return 1;
}

/* Cuts the next message of a send and returns its address: in the array if it is contiguous there,
 * otherwise in the slot, into which it is packed. */
static const unsigned char *dpari_stream_load(dpari_move *move, dpari_move_stream *stream)
{
    int64_t i, offset, at = 0;
    dpari_stream_cut(move, &move->out, stream);
    if (dpari_stream_in_place(&move->out, stream, &at)) {
        return move->out.array.from + at;
    }
    i = stream->m_item;
    offset = stream->m_offset;
    for (at = 0; at < stream->m_count; i = move->out.item[i].next) {
        const dpari_move_item *it = &move->out.item[i];
        const int64_t n = dpari_least(it->volume - offset, stream->m_count - at);
        dpari_item_pack(&move->out.array, it, offset, offset + n, stream->slot + at * move->bytes);
        at += n;
        offset = 0;
    }
    dpari_move_flush(move);
    return stream->slot;
}

/* Returns a stream by its number: sends first, then receives. */
static dpari_move_stream *dpari_move_stream_at(dpari_move *move, int32_t number)
{
    if (number < move->out.streams) {
        return &move->out.stream[number];
    }
    return &move->in.stream[number - move->out.streams];
}

/* Waits for the operations of all streams, also after a failure, because the memory of messages is
 * released next. Returns `first` or, if that is DPAR_OK, the first failure of a wait. */
static dpar_status dpari_move_wait(dpari_move *move, dpar_status first)
{
    int32_t i;
    for (i = 0; i < move->out.streams + move->in.streams; i++) {
        const dpar_status status = dpar_wait(&dpari_move_stream_at(move, i)->work);
        if (first == DPAR_OK) {
            first = status;
        }
    }
    return first;
}

/* Sends the table of rounds from receivers to senders. Only streams that combine parts and have
 * several messages have one. */
static dpar_status dpari_move_tell(dpari_move *move)
{
    dpar_comm *comm = move->comm;
    dpar_status status = DPAR_OK;
    int32_t i;
    for (i = 0; i < move->out.streams + move->in.streams && status == DPAR_OK; i++) {
        dpari_move_stream *stream = dpari_move_stream_at(move, i);
        if (stream->round == NULL || stream->peer == comm->rank) {
            continue;
        }
        if (i < move->out.streams) {
            status = dpar_recv(comm, stream->round, stream->messages, DPAR_I32, stream->peer,
                               move->tag, &stream->work);
        } else {
            status = dpar_send(comm, stream->round, stream->messages, DPAR_I32, stream->peer,
                               move->tag, &stream->work);
        }
    }
    return dpari_move_wait(move, status);
}

/* Handles the next message from this rank to itself as if it had arrived, because it has parts to
 * combine. */
static void dpari_move_own(dpari_move *move, dpari_move_stream *stream)
{
    dpari_move_stream *from = &move->out.stream[move->out.of_peer[move->comm->rank] - 1];
    dpari_stream_cut(move, &move->in, stream);
    stream->memory = dpari_stream_load(move, from);
    dpari_stream_arrive(move, stream, 0);
}

/* Posts the receives of a round: into the array if the message is a copy and contiguous there,
 * otherwise into the slot. */
static dpar_status dpari_round_receive(dpari_move *move)
{
    int32_t k;
    for (k = 0; k < move->in.streams; k++) {
        dpari_move_stream *stream = &move->in.stream[k];
        unsigned char *place = stream->slot;
        int64_t at;
        dpar_status st;
        stream->fresh = dpari_receives_now(stream) && stream->peer != move->comm->rank;
        if (!stream->fresh) {
            continue;
        }
        dpari_stream_cut(move, &move->in, stream);
        stream->memory = place;
        if (move->in.item[stream->m_item].op == DPAR_COPY &&
            dpari_stream_in_place(&move->in, stream, &at)) {
            stream->memory = NULL;
            place = move->in.array.to + at;
        }
        st = dpar_recv(move->comm, place, stream->m_count, move->type, stream->peer, move->tag,
                       &stream->work);
        if (st < 0) {
            return st;
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_round_send(dpari_move *move, int64_t round, int32_t *more)
{
    int32_t k;
    for (k = 0; k < move->out.streams; k++) {
        dpari_move_stream *stream = &move->out.stream[k];
        dpar_status st;
        *more |= stream->peer != move->comm->rank && stream->message < stream->messages;
        if (!dpari_sends_now(move, stream, round)) {
            continue;
        }
        st = dpar_wait(&stream->work); /* the slot must be free; on a device dpari_round_free has
                                          waited already */
        if (st == DPAR_OK) {
            const unsigned char *message = dpari_stream_load(move, stream);
            st = dpar_send(move->comm, message, stream->m_count, move->type, stream->peer,
                           move->tag, &stream->work);
        }
        if (st < 0) {
            return st;
        }
    }
    return DPAR_OK;
}

/* Waits for the receives of a round, handles its messages, and combines what can be combined. Sets
 * *more to 1 if messages may be left. */
static dpar_status dpari_round_end(dpari_move *move, int32_t *more)
{
    int32_t k;
    for (k = 0; k < move->in.streams; k++) {
        dpari_move_stream *stream = &move->in.stream[k];
        dpar_status st;
        *more |= stream->message < stream->messages;
        if (stream->peer == move->comm->rank && dpari_receives_now(stream)) {
            dpari_move_own(move, stream);
        }
        if (stream->fresh) {
            st = dpar_wait(&stream->work);
            if (st < 0) {
                return st;
            }
            dpari_stream_arrive(move, stream, 0);
        }
    }
    dpari_move_combine(move, 0);
    return DPAR_OK;
}

/* On a device, waits until the slots of all sends of this round are free, before the first message
 * of the round is posted, so that all messages begin together. Otherwise the wait of one stream
 * would delay the others. */
static dpar_status dpari_round_free(dpari_move *move, int64_t round)
{
    int32_t i;
    if (move->comm->mem == NULL) {
        return DPAR_OK;
    }
    for (i = 0; i < move->out.streams; i++) {
        if (dpari_sends_now(move, &move->out.stream[i], round)) {
            const dpar_status status = dpar_wait(&move->out.stream[i].work);
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    return DPAR_OK;
}

/* Runs one round, with at most one message of each stream. Sets *more to 1 if messages may be
 * left. */
static dpar_status dpari_move_round(dpari_move *move, int64_t round, int32_t *more)
{
    dpar_status status = dpari_round_free(move, round);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_round_receive(move);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_round_send(move, round, more);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_round_end(move, more);
}

static dpar_status dpari_move_p2p(dpari_move *move)
{
    dpar_status status = dpari_move_tell(move);
    int64_t round;
    int32_t more = 1;
    for (round = 0; status == DPAR_OK && more; round++) {
        more = 0;
        status = dpari_move_round(move, round, &more);
    }
    return dpari_move_wait(move, status);
}

/* True if receives have a table of rounds, so that the rounds must be planned. */
static int dpari_move_plans(const dpari_move *move)
{
    int32_t k;
    for (k = 0; k < move->in.streams; k++) {
        if (move->in.stream[k].round != NULL) {
            return 1;
        }
    }
    return 0;
}

/* Scratch in the host's memory and, if the arrays are on a device, in the device's memory. */
typedef struct dpari_move_memory {
    void *scratch, *there;
    int64_t bytes; /* bytes of each that are needed; also set if the caller's scratch is too
                      small */
} dpari_move_memory;

/* Plans and runs the rounds of a move whose streams have been built. */
static dpar_status dpari_move_go(dpari_move *move, dpar_why *why)
{
    dpar_status status;
    if (dpari_move_plans(move)) {
        dpari_move_plan(move);
    }
    dpari_move_self(move, 0);
    dpari_move_combine(move, 0);
    status = dpari_move_p2p(move);
    if (status == DPAR_OK) {
        status = move->comm->status; /* includes failures on the device */
    }
    if (status != DPAR_OK) {
        return dpari_move_failed(move, status, why);
    }
    if (move->head != move->in.items) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "only %ld of %ld boxes arrived: the lists do not match", move->head,
                         move->in.items);
    }
    return DPAR_OK;
}

static void dpari_move_build(dpari_move *move, dpari_move_source *source,
                             const dpari_move_totals *out, const dpari_move_totals *in,
                             dpari_move_memory *at)
{
    unsigned char *scratch = (unsigned char *)at->scratch, *there = (unsigned char *)at->there;
    move->next = scratch + (64 - (uintptr_t)scratch % 64) % 64;
    move->out.array.there = move->in.array.there = move->comm->mem != NULL ? move : NULL;
    if (move->comm->mem != NULL) {
        move->next_there = there + (64 - (uintptr_t)there % 64) % 64 + DPARI_MOVE_ZERO;
        move->box =
            (dpar_mem_box *)dpari_carve(move, DPARI_MOVE_BOXES, (int64_t)sizeof(dpar_mem_box));
    }
    dpari_side_build(move, &move->out, source, DPAR_TRANSFER_SEND, out);
    dpari_side_build(move, &move->in, source, DPAR_TRANSFER_RECV, in);
    move->part =
        (const void **)dpari_carve(move, 2 * (move->in.streams + 1), (int64_t)sizeof(void *));
    move->word = (int64_t *)dpari_carve(move, move->comm->size, 32);
    move->stage = move->next_there;
}

/* ---- what lists and layouts have in common --------------------------------------------------- */

static dpar_status dpari_move_init(dpari_move *move, dpar_comm *comm, int32_t type,
                                   const dpar_redistribute_desc *o, dpar_why *why)
{
    /* bytes: by default the messages of all peers have ALL together, and each one LEAST to MOST;
     * boxes from ALONE on share no message */
    enum { LEAST = 1 << 16, MOST = 1 << 20, ALL = 1 << 25, ALONE = 1 << 14 };
    const int64_t usual = dpari_most(LEAST, dpari_least(MOST, ALL / comm->size));
    dpari_zero(move, sizeof *move);
    move->comm = comm;
    move->type = type;
    move->bytes = dpar_type_bytes(type);
    move->tag = o->tag;
    if (move->bytes == 0) {
        return dpari_wrong(why, "type %s (%d) has no elements of whole bytes", dpar_type_name(type),
                           type);
    }
    if (o->tag < 0 || o->piece_bytes < 0 || o->scratch_bytes < 0) {
        return dpari_wrong(
            why, "tag is %d, piece_bytes %ld, scratch_bytes %ld, but none may be negative", o->tag,
            o->piece_bytes, o->scratch_bytes);
    }
    move->piece = dpari_most(1, (o->piece_bytes > 0 ? o->piece_bytes : usual) / move->bytes);
    move->alone = dpari_least(move->piece, ALONE / move->bytes);
    return DPAR_OK;
}

/* Provides scratch: the caller's, or memory of the communicator. For a device, scratch of the host
 * is pages of the system. */
static dpar_status dpari_move_scratch(const dpari_move *move, const dpar_redistribute_desc *desc,
                                      int64_t bytes, dpari_move_memory *memory, dpar_why *why)
{
    const int there = move->comm->mem != NULL;
    dpar_status status = DPAR_OK;
    if (bytes < 0) {
        return dpari_say(DPAR_E_RANGE, why, "more than 2^62 bytes of scratch are needed");
    }
    memory->bytes = bytes;
    if ((desc->scratch != NULL || desc->scratch_bytes > 0) && bytes > desc->scratch_bytes) {
        return dpari_say(DPAR_E_ROOM, why, "scratch has %ld bytes, but %ld are needed",
                         desc->scratch_bytes, bytes);
    }
    if (there && desc->device_scratch != NULL && bytes > desc->device_scratch_bytes) {
        return dpari_say(DPAR_E_ROOM, why, "scratch has %ld bytes, but %ld are needed",
                         desc->device_scratch_bytes, bytes);
    }
    memory->scratch = desc->scratch;
    if (there) {
        memory->there = desc->device_scratch;
        if (desc->device_scratch == NULL) {
            status = dpar_comm_alloc(move->comm, bytes, &memory->there);
        }
        if (desc->scratch == NULL) { /* also after a failure; dpari_move_release releases it */
            memory->scratch = dpari_os_pages(bytes);
        }
        if (status == DPAR_OK && memory->scratch == NULL) {
            return dpari_say(DPAR_E_MEMORY, why, "no %ld bytes of scratch", bytes);
        }
    } else if (desc->scratch == NULL) {
        status = dpar_comm_alloc(move->comm, bytes, &memory->scratch);
    }
    return dpari_move_failed(move, status, why);
}

static void dpari_move_release(const dpari_move *move, const dpar_redistribute_desc *o,
                               const dpari_move_memory *at)
{
    if (move->comm->mem == NULL) {
        if (o->scratch == NULL && at->scratch != NULL) {
            dpar_comm_release(move->comm, at->scratch);
        }
        return;
    }
    if (o->device_scratch == NULL && at->there != NULL) {
        (void)dpari_do_wait(move->comm); /* until nothing uses it any more; over NCCL the release
                                            waits */
        dpar_comm_release(move->comm, at->there);
    }
    if (o->scratch == NULL && at->scratch != NULL) {
        dpari_os_unmap(at->scratch, at->bytes);
    }
}

static int dpari_memory_overlaps(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes)
{
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y + (uintptr_t)b_bytes && y < x + (uintptr_t)a_bytes;
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Checks each transfer of a list: its box, op and peer. */
static dpar_status dpari_list_check(const dpari_move *move, const dpar_transfer *list,
                                    int64_t count, const int64_t *shape, int32_t dims, int arrives,
                                    dpar_why *why)
{
    int64_t i;
    for (i = 0; i < count; i++) {
        dpar_status status = dpari_check_box(&list[i], dims, shape, arrives, why);
        if (status != DPAR_OK) {
            return status;
        }
        status = dpari_check_op(&list[i], move->type, why);
        if (status != DPAR_OK) {
            return status;
        }
        if (list[i].peer < 0 || list[i].peer >= move->comm->size) {
            return dpari_wrong(why, "transfer %ld: peer %d is not a rank of %d ranks", i,
                               list[i].peer, move->comm->size);
        }
    }
    return DPAR_OK;
}

/* Fails if an average does not follow a copy to the same box, because it needs all its parts at
 * once. */
static dpar_status dpari_list_averages(dpari_move *move, dpar_why *why)
{
    int64_t i, end;
    for (i = 0; i < move->in.items; i = end) {
        end = i + 1;
        if (move->in.item[i].op == DPAR_COPY && end < move->in.items &&
            dpari_item_continues(&move->in, end)) {
            end = dpari_group_end(move, end);
        } else if (move->in.item[i].op == DPAR_AVG) {
            return dpari_wrong(why, "receive %ld: an average must follow a copy to the same box",
                               i);
        }
    }
    return DPAR_OK;
}

/* Writes two numbers for each peer: the number of boxes of its stream, and a hash of what must be
 * equal at both ends. word: [2 * ranks]. */
static void dpari_side_words(const dpari_move *move, const dpari_move_side *side, int64_t *word)
{
    int32_t k, d;
    dpari_zero(word, (size_t)move->comm->size * 16);
    for (k = 0; k < side->streams; k++) {
        const dpari_move_stream *stream = &side->stream[k];
        int64_t *of = &word[2 * stream->peer], i;
        uint64_t hash = dpari_hash((uint64_t)side->array.dims, stream->round != NULL);
        for (i = stream->first; i >= 0; i = side->item[i].next) {
            for (d = 0; d < side->array.dims; d++) {
                hash = dpari_hash(hash, side->item[i].extent[d]);
            }
            of[0]++;
        }
        of[1] = (int64_t)hash;
    }
}

/* Compares the lists of all ranks: each must receive what the others send to it. If any two differ,
 * all ranks fail. */
static dpar_status dpari_lists_fit(dpari_move *move, dpar_why *why)
{
    const int32_t me = move->comm->rank;
    int64_t *mine = move->word, *theirs = mine + 2 * (int64_t)move->comm->size;
    dpar_status st;
    int32_t k;
    dpari_side_words(move, &move->out, mine);
    st = dpar_all_to_all(move->comm, mine, theirs, 2, DPAR_I64, NULL);
    if (st != DPAR_OK) {
        return dpari_move_failed(move, st, why);
    }
    dpari_side_words(move, &move->in, mine);
    for (k = 0; k < move->comm->size && st == DPAR_OK; k++) {
        if (theirs[2 * k] != mine[2 * k]) {
            st = dpari_say(DPAR_E_MISMATCH, why,
                           "rank %d sends %ld boxes to rank %d, whose list expects %ld", k,
                           theirs[2 * k], me, mine[2 * k]);
        } else if (theirs[2 * k + 1] != mine[2 * k + 1]) {
            st = dpari_say(
                DPAR_E_MISMATCH, why,
                "rank %d sends rank %d %ld boxes, but their extents or ops are not as expected", k,
                me, mine[2 * k]);
        }
    }
    return dpari_agree(move->comm, st, why);
}

/* Adds the arguments that must be equal on all ranks, for lists and for layouts. */
static DPARI_COLD void dpari_move_state(dpari_facts *facts, const void *given)
{
    const dpari_move *move = (const dpari_move *)given;
    dpari_fact_type(facts, "type", 0, move->type);
    dpari_fact(facts, "tag", 0, move->tag);
    dpari_fact(facts, "elements of a message", 0, move->piece);
}

/* Checks the arrays and lists of one rank. */
static dpar_status dpari_lists_ready(dpari_move *move, const dpari_move_source *source,
                                     const dpar_redistribute_desc *desc, dpar_why *why)
{
    const void *in = desc->in;
    void *out = desc->out;
    const dpar_transfer *send = source->list[DPAR_TRANSFER_SEND];
    const dpar_transfer *receive = source->list[DPAR_TRANSFER_RECV];
    const int64_t sends = source->n[DPAR_TRANSFER_SEND], receives = source->n[DPAR_TRANSFER_RECV];
    int32_t dims = 0; /* those of the first transfer, which all others must have */
    int64_t reads = 0, writes = 0;
    dpar_status status = DPAR_OK;
    if (sends < 0 || receives < 0 || (sends > 0 && (!send || !in)) ||
        (receives > 0 && (!receive || !out))) {
        return dpari_wrong(why,
                           "%ld sends or %ld receives: below 0, or their list or array is NULL",
                           sends, receives);
    }
    if (sends > 0) {
        dims = send->dims;
        status = dpari_array_init(&move->out.array, dims, desc->in_shape, move->type, &reads, why);
    } else if (receives > 0) {
        dims = receive->dims;
    }
    if (status == DPAR_OK && receives > 0) {
        status = dpari_array_init(&move->in.array, dims, desc->out_shape, move->type, &writes, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_list_check(move, send, sends, desc->in_shape, dims, 0, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_list_check(move, receive, receives, desc->out_shape, dims, 1, why);
    if (status != DPAR_OK) {
        return status;
    }
    move->out.array.from = (const unsigned char *)in;
    move->in.array.to = (unsigned char *)out;
    if (sends > 0 && receives > 0 && in != out &&
        dpari_memory_overlaps(in, reads * move->bytes, out, writes * move->bytes)) {
        return dpari_wrong(why, "in and out overlap, but are not the same");
    }
    return DPAR_OK;
}

static void dpari_lists_source(dpari_move_source *s, const dpar_transfer *sends, int64_t n,
                               const dpar_transfer *receives, int64_t m)
{
    dpari_zero(s, sizeof *s);
    s->list[DPAR_TRANSFER_SEND] = sends;
    s->n[DPAR_TRANSFER_SEND] = n;
    s->list[DPAR_TRANSFER_RECV] = receives;
    s->n[DPAR_TRANSFER_RECV] = m;
}

/* Does the local part of dpar_transfers_exchange: checks the arguments, provides scratch and builds
 * the streams in it. */
static dpar_status dpari_lists_build(dpari_move *move, dpar_comm *comm, dpari_move_source *source,
                                     const dpar_redistribute_desc *desc, dpari_move_memory *memory,
                                     dpar_why *why)
{
    dpari_move_totals sent, received;
    dpar_status status = dpari_move_init(move, comm, desc->type, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_lists_ready(move, source, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_source_total(source, DPAR_TRANSFER_SEND, &sent, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_source_total(source, DPAR_TRANSFER_RECV, &received, why);
    if (status != DPAR_OK) {
        return status;
    }
    status =
        dpari_move_scratch(move, desc, dpari_scratch_bytes(move, &sent, &received), memory, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_move_build(move, source, &sent, &received, memory);
    return dpari_list_averages(move, why);
}

/* Does the collective part. Every rank calls it with the status of its local part; if that failed
 * on one rank, all ranks fail. */
static dpar_status dpari_lists_move(dpari_move *move, dpar_status status, dpar_why *why)
{
    status = dpari_agree_on(move->comm, status, "transfers", dpari_move_state, move, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_lists_fit(move, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_move_go(move, why);
}

DPAR_API DPARI_COLD dpar_status dpar_transfers_exchange(dpar_comm *comm,
                                                        const dpar_redistribute_desc *move,
                                                        dpar_why *why)
{
    dpar_redistribute_desc none;
    const dpar_redistribute_desc *desc = move;
    dpari_move lists;
    dpari_move_source source;
    dpari_move_memory memory = {NULL, NULL, 0};
    dpar_status status;
    if (comm == NULL) {
        return dpari_wrong(why, "the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    if (move == NULL) { /* fails in the agreement, so that all ranks learn of it */
        dpari_zero(&none, sizeof none);
        desc = &none;
    }
    dpari_lists_source(&source, desc->send, desc->send_count, desc->receive, desc->receive_count);
    status = dpari_lists_build(&lists, comm, &source, desc, &memory, why);
    status = dpari_lists_move(&lists, status, why);
    dpari_move_release(&lists, desc, &memory);
    if (status == DPAR_E_ROOM) {
        dpari_needs_bytes(why, memory.bytes);
    }
    return status;
}

/* ---- layouts --------------------------------------------------------------------------------- */

static DPARI_COLD dpar_status dpari_mesh_fits(const dpar_comm *comm, const dpar_mesh *mesh,
                                              dpar_why *why)
{
    int64_t last = mesh->first_rank;
    int32_t i;
    for (i = 0; i < mesh->axes; i++) {
        last += (int64_t)(mesh->axis[i].size - 1) * mesh->axis[i].stride;
    }
    if (mesh->first_rank < 0 || last >= comm->size) {
        return dpari_wrong(why, "a layout has ranks %d to %ld, but the communicator has %d ranks",
                           mesh->first_rank, last, comm->size);
    }
    return DPAR_OK;
}

/* True if replicas must not cut parts of one sum differently, because results would depend on it:
 * 16-bit sums round at every step, and averages need all their parts at once. */
static int dpari_sums_depend(const dpar_layout *from, int32_t type)
{
    int32_t i, sums = 0, averages = 0;
    for (i = 0; i < from->mesh.axes; i++) {
        sums |= from->axis[i].kind == DPAR_PLACEMENT_PARTIAL;
        averages |= from->axis[i].kind == DPAR_PLACEMENT_PARTIAL && from->axis[i].op == DPAR_AVG;
    }
    return (averages || (sums && dpar_type_bytes(type) == 2)) && dpari_layout_copies(from) > 1;
}

typedef struct dpari_redistribution {
    dpari_move move;
    dpari_move_source source;
    dpari_move_totals out[2], in[2]; /* [0] if replicas share the sends, [1] if copy 0 sends
                                        everything */
    int64_t bytes;
    int32_t may_split_sums;
} dpari_redistribution;

/* Counts what this rank moves if replicas share the sends (k = 0) or copy 0 sends everything (k =
 * 1), and makes all->bytes, the size of scratch, large enough for it. -1 means more than 2^62
 * bytes. */
static DPARI_COLD dpar_status dpari_redistribution_total(dpari_redistribution *all, int32_t k,
                                                         dpar_why *why)
{
    int64_t bytes;
    dpar_status status = dpari_source_total(&all->source, DPAR_TRANSFER_SEND, &all->out[k], why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_source_total(&all->source, DPAR_TRANSFER_RECV, &all->in[k], why);
    if (status != DPAR_OK) {
        return status;
    }
    bytes = dpari_scratch_bytes(&all->move, &all->out[k], &all->in[k]);
    if (k > 0 && all->bytes < 0) {
        return DPAR_OK;
    }
    all->bytes = k > 0 && bytes >= 0 ? dpari_most(all->bytes, bytes) : bytes;
    return DPAR_OK;
}

/* Checks the layouts of this rank and counts what it moves, without the other ranks. */
static DPARI_COLD dpar_status dpari_redistribution_count(dpari_redistribution *all, dpar_comm *comm,
                                                         const dpar_redistribute_desc *desc,
                                                         dpar_why *why)
{
    const dpar_layout *from = desc->from, *to = desc->to;
    const int32_t type = desc->type;
    dpar_status status = dpari_move_init(&all->move, comm, type, desc, why);
    int32_t k;
    dpari_zero(&all->source, sizeof all->source);
    all->source.from = from;
    all->source.to = to;
    all->source.rank = comm->rank;
    if (status != DPAR_OK) {
        return status;
    }
    if (from == NULL || to == NULL) {
        return dpari_wrong(why, "a layout is NULL");
    }
    status = dpari_mesh_fits(comm, &from->mesh, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_mesh_fits(comm, &to->mesh, why);
    if (status != DPAR_OK) {
        return status;
    }
    all->may_split_sums =
        dpari_sums_depend(from, type) && desc->ranks_per_node != DPAR_REDISTRIBUTE_PRIMARY;
    for (k = 0; k <= all->may_split_sums; k++) {
        all->source.per_node = k ? DPAR_REDISTRIBUTE_PRIMARY : desc->ranks_per_node;
        status = dpari_redistribution_total(all, k, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    all->source.per_node = desc->ranks_per_node;
    if ((all->out[0].ops || all->in[0].ops) && !dpari_type_can_reduce(type)) {
        const char *name = dpar_type_name(type);
        return dpari_wrong(why, "elements of %s cannot be combined", name);
    }
    return DPAR_OK;
}

/* Describes the array of one side. This rank's part is the corner of an array of shape `whole`, or
 * all of it if `whole` is NULL. Stores the shape of the part, and the bytes of the array. */
static DPARI_COLD dpar_status dpari_side_array(dpari_move_array *array, const dpar_layout *layout,
                                               int32_t rank, const int64_t *whole, int32_t type,
                                               int64_t *shape, int64_t *bytes, dpar_why *why)
{
    int64_t elements = 0;
    int32_t coord[DPAR_MAX_AXES], d, empty = 0;
    dpar_status st;
    if (!dpar_mesh_coords(&layout->mesh, rank, coord)) {
        whole = NULL;
        empty = 1;
    }
    dpar_layout_local(layout, rank, shape, NULL);
    for (d = 0; d < layout->dims; d++) {
        if (whole != NULL && whole[d] < shape[d]) {
            return dpari_wrong(why, "dim %d: the shape is %ld, but this rank has %ld elements", d,
                               whole[d], shape[d]);
        }
        empty |= shape[d] == 0;
    }
    st = dpari_array_init(array, layout->dims, whole ? whole : shape, type, &elements, why);
    *bytes = empty ? 0 : elements * array->bytes;
    return st;
}

/* Does the rest of the local part of dpar_redistribute: describes both arrays and provides
 * scratch. */
static DPARI_COLD dpar_status dpari_redistribution_arrays(dpari_redistribution *all,
                                                          const dpar_redistribute_desc *desc,
                                                          dpari_move_memory *memory, dpar_why *why)
{
    const void *in = desc->in;
    void *out = desc->out;
    dpari_move *move = &all->move;
    const int32_t rank = move->comm->rank;
    int64_t shape[DPAR_MAX_DIMS], reads, writes;
    dpar_status status = dpari_side_array(&move->out.array, desc->from, rank, desc->in_shape,
                                          move->type, shape, &reads, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_side_array(&move->in.array, desc->to, rank, desc->out_shape, move->type, shape,
                              &writes, why);
    if (status != DPAR_OK) {
        return status;
    }
    if ((reads > 0 && in == NULL) || (writes > 0 && out == NULL)) {
        return dpari_wrong(why, "in has %ld bytes, out %ld bytes, but one of them is NULL", reads,
                           writes);
    }
    if (reads > 0 && writes > 0 && dpari_memory_overlaps(in, reads, out, writes)) {
        return dpari_wrong(why, "in and out overlap");
    }
    move->out.array.from = (const unsigned char *)in;
    move->in.array.to = (unsigned char *)out;
    return dpari_move_scratch(move, desc, all->bytes, memory, why);
}

static DPARI_COLD void dpari_fact_layout(dpari_facts *facts, const char *of,
                                         const dpar_layout *layout)
{
    int32_t d;
    facts->of = of;
    dpari_fact(facts, "dims", 0, layout->dims);
    for (d = 0; d < layout->dims; d++) {
        dpari_fact(facts, "extent[#]", d, layout->extent[d]);
    }
    dpari_fact(facts, "mesh.axes", 0, layout->mesh.axes);
    for (d = 0; d < layout->mesh.axes; d++) {
        dpari_fact(facts, "mesh.axis[#].size", d, layout->mesh.axis[d].size);
    }
    dpari_fact_hash(facts, "axis", 0, dpari_hash_layout(1, layout));
    facts->of = NULL;
}

/* Adds the arguments that must be equal on all ranks. */
static void dpari_redistribution_state(dpari_facts *facts, const void *given)
{
    const dpari_redistribution *r = (const dpari_redistribution *)given;
    dpari_move_state(facts, &r->move);
    dpari_fact_layout(facts, "from->", r->source.from);
    dpari_fact_layout(facts, "to->", r->source.to);
    dpari_fact(facts, "ranks_per_node", 0, r->source.per_node);
}

/* Compares the arguments of all ranks; all fail if one has failed or if they differ. *apart becomes
 * 1 on all ranks if it is 1 on any rank. */
static dpar_status dpari_redistribution_agree(dpar_comm *comm, dpar_status status,
                                              const dpari_redistribution *all, int32_t *apart,
                                              dpar_why *why)
{
    status = dpari_agree_on(comm, status, "redistribute", dpari_redistribution_state, all, why);
    if (status != DPAR_OK || !all->may_split_sums) {
        return status;
    }
    status = dpar_all_reduce(comm, apart, apart, 1, DPAR_I32, DPAR_MAX, NULL);
    return dpari_move_failed(&all->move, status, why);
}

/* Sets this rank's part to zeros if nobody sends to it: it then holds no part of a sum of which
 * `to` has only parts. */
static void dpari_move_zeros(dpari_move *move, const dpar_layout *to, unsigned char *there)
{
    unsigned char zeros[4096];
    dpari_move_item it;
    int64_t i, n;
    int32_t coord[DPAR_MAX_AXES], d;
    dpari_zero(&it, sizeof it);
    dpar_layout_local(to, move->comm->rank, it.extent, NULL);
    it.volume = 1;
    for (d = 0; d < to->dims; d++) {
        it.volume *= it.extent[d];
    }
    if (it.volume == 0 || move->in.items > 0 ||
        !dpar_mesh_coords(&to->mesh, move->comm->rank, coord)) {
        return;
    }
    if (move->in.array.there != NULL) {
        dpar_mem_box *b;
        there += (64 - (uintptr_t)there % 64) % 64;
        (void)dpari_do_copy(move->comm, there, NULL, DPARI_MOVE_ZERO);
        b = dpari_move_box_there(move, DPAR_COPY);
        b->to = move->in.array.to;
        b->from = there;
        b->dims = to->dims;
        for (d = 0; d < to->dims; d++) {
            b->extent[d] = it.extent[d];
            b->to_stride[d] = move->in.array.step[d];
        }
        dpari_move_flush(move);
        return;
    }
    dpari_zero(zeros, sizeof zeros);
    for (i = 0; i < it.volume; i += n) {
        n = dpari_least(it.volume - i, (int64_t)sizeof zeros / move->bytes);
        dpari_item_unpack(&move->in.array, &it, i, i + n, zeros);
    }
}

/* The collective part of dpar_redistribute. Every rank calls it, with the status of its local part.
 * If sums would be split differently on any rank, only copy 0 sends, on all ranks. */
static dpar_status dpari_redistribution_move(dpari_redistribution *all, dpar_comm *comm,
                                             dpar_status status, const dpar_redistribute_desc *desc,
                                             dpari_move_memory *memory, dpar_why *why)
{
    int32_t apart = status == DPAR_OK && all->may_split_sums && all->in[0].apart;
    status = dpari_redistribution_agree(comm, status, all, &apart, why);
    if (status != DPAR_OK) {
        return status;
    }
    all->source.per_node = apart ? DPAR_REDISTRIBUTE_PRIMARY : desc->ranks_per_node;
    dpari_move_build(&all->move, &all->source, &all->out[apart], &all->in[apart], memory);
    dpari_move_zeros(&all->move, desc->to, (unsigned char *)memory->there);
    return dpari_move_go(&all->move, why);
}

DPAR_API dpar_status dpar_redistribute(dpar_comm *comm, const dpar_redistribute_desc *move,
                                       dpar_why *why)
{
    dpar_redistribute_desc none;
    const dpar_redistribute_desc *desc = move;
    dpari_redistribution all;
    dpari_move_memory memory = {NULL, NULL, 0};
    dpar_status status;
    if (comm == NULL) {
        return dpari_wrong(why, "the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    if (move == NULL) { /* fails in the agreement, so that all ranks learn of it */
        dpari_zero(&none, sizeof none);
        desc = &none;
    }
    status = dpari_redistribution_count(&all, comm, desc, why);
    if (status == DPAR_OK) {
        status = dpari_redistribution_arrays(&all, desc, &memory, why);
    }
    status = dpari_redistribution_move(&all, comm, status, desc, &memory, why);
    dpari_move_release(&all.move, desc, &memory);
    if (status == DPAR_E_ROOM) {
        dpari_needs_bytes(why, memory.bytes);
    }
    return status;
}
