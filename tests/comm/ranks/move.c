/* SPDX-License-Identifier: MIT-0 */
/* move: compares boxes with loops over elements. Random redistributions over real ranks are
 * compared element by element with a number made from its global index, sums with a fold in rank
 * order by the arithmetic of this file. Halos and random lists are compared with a replay of their
 * own lists, one element at a time.
 *
 *   move [ranks] [rounds] [seed]      without arguments: 1 to 8 ranks, short
 *   mpirun -np 4 move                 built with -DUSE_MPI
 *
 * With -DDEVICE_MEMORY arrays are in memory that the CPU cannot access; with -DDEVICE_CUDA that is
 * CUDA memory. */
#include "dpar_train.h"
#ifdef DEVICE_MEMORY
#include "device_memory.h"
#else
#define ON_DEVICE(call) (call)
#endif
#ifdef USE_MPI
#include "dpar_mpi.h"
#endif

#include "axes.h"
#include "bf16.h"
#include "check.h"
#include "index_oracle.h"

#include <stdlib.h>

enum { MOST = 1 << 14, GUARD = 64, DIMS = 6 };

/* ---- random numbers, the same on all ranks --------------------------------------------------- */

/* ---- moves, with one argument for each field ------------------------------------------------- */

/* Returns a descriptor. `more` adds the method, scratch and shapes; NULL for the defaults. */
static dpar_redistribute_desc layouts_of(const dpar_layout *from, const dpar_layout *to,
                                         const void *in, void *out, int32_t type,
                                         const dpar_redistribute_desc *more)
{
    dpar_redistribute_desc m;
    memset(&m, 0, sizeof m);
    m = more != NULL ? *more : m;
    m.from = from, m.to = to, m.in = in, m.out = out, m.type = type;
    return m;
}

static dpar_status run_layouts(dpar_comm *c, const dpar_layout *from, const dpar_layout *to,
                               const void *in, void *out, int32_t type,
                               const dpar_redistribute_desc *more, dpar_why *why)
{
    const dpar_redistribute_desc m = layouts_of(from, to, in, out, type, more);
    return dpar_redistribute(c, &m, why);
}

/* Returns the bytes of scratch that this rank needs. All ranks ask with the arrays of the move that
 * follows. */
static int64_t layouts_bytes(dpar_comm *c, const dpar_layout *from, const dpar_layout *to,
                             const void *in, void *out, int32_t type,
                             const dpar_redistribute_desc *more)
{
    dpar_redistribute_desc m = layouts_of(from, to, in, out, type, more);
    dpar_why why;
    why.bytes = -1;
    m.scratch = NULL;
    m.scratch_bytes = 1;
    CHECK_INT(dpar_redistribute(c, &m, &why), DPAR_E_ROOM);
    return why.bytes;
}

static dpar_redistribute_desc lists_of(const dpar_transfer *send, int64_t sends,
                                       const dpar_transfer *receive, int64_t receives, int32_t type,
                                       const dpar_redistribute_desc *more)
{
    dpar_redistribute_desc m;
    memset(&m, 0, sizeof m);
    m = more != NULL ? *more : m;
    m.send = send, m.send_count = sends, m.receive = receive, m.receive_count = receives,
    m.type = type;
    return m;
}

static dpar_status run_lists(dpar_comm *c, const dpar_transfer *send, int64_t sends,
                             const dpar_transfer *receive, int64_t receives, const void *in,
                             const int64_t *in_shape, void *out, const int64_t *out_shape,
                             int32_t type, const dpar_redistribute_desc *more, dpar_why *why)
{
    dpar_redistribute_desc m = lists_of(send, sends, receive, receives, type, more);
    m.in = in, m.in_shape = in_shape, m.out = out, m.out_shape = out_shape;
    return dpar_transfers_exchange(c, &m, why);
}

static uint32_t seed = 1;
#ifdef TEST_THREADS
#define PER_RANK __thread
#else
#define PER_RANK
#endif
#include "random.h"

static uint32_t mixed(uint32_t h)
{
    h ^= h >> 16;
    h *= 0x7feb352du;
    h ^= h >> 15;
    h *= 0x846ca68bu;
    return h ^ h >> 16;
}

/* ---- elements -------------------------------------------------------------------------------- */

/* Rounds x to `bits` significant bits, to nearest even. No number here is subnormal. */
static double rounded(double x, int bits)
{
    int e;
    double q;
    if (x == 0.0) {
        return x;
    }
    (void)frexp(x, &e);
    q = ldexp(1.0, e - bits);
    return nearbyint(x / q) * q;
}

static uint16_t half_bits(double x)
{
    int e;
    double m = frexp(fabs(x), &e); /* m is in [1/2, 1) */
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    return x == 0.0 ? sign : (uint16_t)(sign | (e + 14) << 10 | (int)((m * 2 - 1) * 1024));
}

/* Stores a number that is exact in the type. */
static void put(int32_t type, unsigned char *to, double x)
{
    switch (type) {
    case DPAR_F64: memcpy(to, &x, 8); break;
    case DPAR_F32:
    case DPAR_TF32: {
        float f = (float)x;
        memcpy(to, &f, 4);
        break;
    }
    case DPAR_BF16: {
        uint16_t u = bf16_of((float)x);
        memcpy(to, &u, 2);
        break;
    }
    case DPAR_F16: {
        uint16_t u = half_bits(x);
        memcpy(to, &u, 2);
        break;
    }
    case DPAR_I64:
    case DPAR_U64: {
        int64_t v = (int64_t)x;
        memcpy(to, &v, 8);
        break;
    }
    case DPAR_I32:
    case DPAR_U32: {
        int32_t v = (int32_t)x;
        memcpy(to, &v, 4);
        break;
    }
    default: to[0] = (unsigned char)(int)x;
    }
}

static int is_float(int32_t type)
{
    return type == DPAR_F64 || type == DPAR_F32 || type == DPAR_BF16 || type == DPAR_F16;
}

/* Returns what a rank holds of element g: the share of partial rank p of those that are summed, and
 * k of those that stay partial. Floats have values of many magnitudes, so that the order of a sum
 * matters. */
static double value_of(int32_t type, int32_t op, int64_t g, int32_t p, int32_t k)
{
    uint32_t h = mixed((uint32_t)g * 64u + (uint32_t)p * 8u + (uint32_t)k + 77u);
    if (op == DPAR_COPY) {
        return dpar_type_bytes(type) == 1   ? (double)(g * 37 % 120)
               : dpar_type_bytes(type) == 2 ? (double)(g * 37 % 251)
                                            : (double)(g + 1000 * k);
    }
    if (op == DPAR_PRODUCT) {
        return h % 3 == 0 && p < 6 ? 2.0 : 1.0;
    }
    if (!is_float(type)) {
        return (double)(h % 15) - (type == DPAR_I8 || type == DPAR_I32 || type == DPAR_I64 ? 7 : 0);
    }
    if (dpar_type_bytes(type) == 2) {
        return ldexp((double)(h % 255) - 127.0, (int)(h >> 8 & 7u) - 3);
    }
    return ldexp((double)(h % 16777213) - 8e6, (int)(h >> 24 & 15u) - 20);
}

/* Computes ((x0 op x1) op x2) ... as documented in comm.h: 16-bit types in f32, rounded once at the
 * end. */
static double fold(int32_t type, int32_t op, int64_t g, int32_t n, int32_t k)
{
    double x = value_of(type, op, g, 0, k);
    int32_t p;
    for (p = 1; p < n; p++) {
        double y = value_of(type, op, g, p, k);
        x = op == DPAR_SUM || op == DPAR_AVG ? x + y
            : op == DPAR_PRODUCT             ? x * y
            : op == DPAR_MAX                 ? (x > y ? x : y)
                                             : (x < y ? x : y);
        x = is_float(type) && type != DPAR_F64 ? (double)(float)x : x;
    }
    if (op == DPAR_AVG && n > 1) {
        x = is_float(type) ? x / n : trunc(x / n);
        x = is_float(type) && type != DPAR_F64 ? (double)(float)x : x;
    }
    return type == DPAR_BF16 ? rounded(x, 8) : type == DPAR_F16 ? rounded(x, 11) : x;
}

/* ---- arrays in shapes ------------------------------------------------------------------------ */

static int64_t volume(int32_t dims, const int64_t *shape)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < dims; d++) {
        n *= shape[d];
    }
    return n;
}

/* Bytes with a guard before and after them, all set to a pattern that no result has by chance. */
typedef struct guarded {
    unsigned char *all, *at;
    int64_t bytes;
    int there; /* 1 if in device memory */
} guarded;

static unsigned char poison(int64_t i)
{
    return (unsigned char)(0xA5 ^ (i * 29));
}

static guarded guarded_in(unsigned char *all, int64_t bytes, int there)
{
    guarded g;
    int64_t i;
    g.there = there;
    g.bytes = bytes;
    g.all = all;
    g.at = g.all + GUARD;
    for (i = 0; i < bytes + 2 * GUARD; i++) {
        g.all[i] = poison(i);
    }
    return g;
}

static guarded guarded_here(int64_t bytes)
{
    return guarded_in((unsigned char *)malloc((size_t)bytes + 2 * GUARD), bytes, 0);
}

/* Allocates memory of the kind that the arrays are in. */
static guarded guarded_new(int64_t bytes)
{
#ifdef DEVICE_MEMORY
    return guarded_in((unsigned char *)device_zeroed(bytes + 2 * GUARD), bytes, 1);
#else
    return guarded_here(bytes);
#endif
}

/* Returns 1 if byte i of the array has its first value, otherwise 0. */
static int untouched(const guarded *g, int64_t i)
{
    return g->at[i] == poison(i + GUARD);
}

static void guarded_free(guarded *g)
{
    int64_t i;
    int broken = 0;
    for (i = 0; i < GUARD; i++) {
        broken += !untouched(g, i - GUARD) || !untouched(g, g->bytes + i);
    }
    CHECK_INT(broken, 0);
#ifdef DEVICE_MEMORY
    if (g->there) {
        device_free(g->all);
        return;
    }
#endif
    free(g->all);
}

static const int32_t all_types[] = {DPAR_F64, DPAR_F32, DPAR_TF32, DPAR_BF16, DPAR_F8,  DPAR_F16,
                                    DPAR_I8,  DPAR_U8,  DPAR_I32,  DPAR_U32,  DPAR_I64, DPAR_U64};
static const int32_t all_ops[] = {DPAR_SUM, DPAR_AVG, DPAR_PRODUCT, DPAR_MAX, DPAR_MIN};

/* ---- one box --------------------------------------------------------------------------------- */

static DPARI_UNUSED void random_box(dpar_transfer *t, int64_t *shape, int32_t dims, int most)
{
    int32_t d;
    memset(t, 0, sizeof *t);
    t->dims = dims;
    for (d = 0; d < dims; d++) {
        shape[d] = 1 + below(most);
        t->extent[d] = below(3) ? 1 + below((int)shape[d]) : shape[d];
        t->mine[d] = below((int)(shape[d] - t->extent[d]) + 1);
        t->flip |= below(4) == 0 ? 1u << d : 0;
    }
    if (dims > 1 && below(2)) { /* exchanges two dims if there is space */
        int32_t a = below(dims), b = below(dims);
        if (t->mine[a] + t->extent[b] <= shape[a] && t->mine[b] + t->extent[a] <= shape[b]) {
            t->swap[0] = a;
            t->swap[1] = b;
        }
    }
}

/* Returns the sender's dim that corresponds to dim d of the receiver. */
static int32_t swapped(const dpar_transfer *t, int32_t d)
{
    return d == t->swap[0] ? t->swap[1] : d == t->swap[1] ? t->swap[0] : d;
}

/* Returns a small whole number that is exact in each type. */
static double plain(int64_t i)
{
    return (double)(i * 7 % 50 + 1);
}

static double combined(int32_t op, double x, double y)
{
    return op == DPAR_COPY      ? y
           : op == DPAR_SUM     ? x + y
           : op == DPAR_PRODUCT ? x * y
           : op == DPAR_MAX     ? (x > y ? x : y)
                                : (x < y ? x : y);
}

#ifdef DPAR_IMPLEMENTATION /* uses the loops of move_items.c */

#ifdef DPAR_IMPLEMENTATION /* internal functions */
/* Moves one box at a time in the host's memory. */
typedef struct boxes_here {
    dpari_move_boxes boxes;
    dpar_comm comm;
    dpar_mem_box box;
} boxes_here;

static dpari_move_boxes *boxes_begin(boxes_here *here, int32_t type)
{
    memset(here, 0, sizeof *here);
    here->boxes.comm = &here->comm;
    here->boxes.type = type;
    here->boxes.bytes = dpar_type_bytes(type);
    here->boxes.most = 1;
    here->boxes.box = &here->box;
    return &here->boxes;
}

/* Packs the box of a send (`extent` elements from mine[]) from array[shape] into message[], in C
 * order. */
static dpar_status box_pack(const dpar_transfer *t, const int64_t *shape, const void *array,
                            int32_t type, void *message, dpar_why *why)
{
    dpari_move_array a;
    dpari_move_item it;
    int64_t elements;
    dpar_status st;
    if (t == NULL || array == NULL || message == NULL) {
        return dpari_wrong(why, "the transfer, the array or the message is NULL");
    }
    st = dpari_array_init(&a, t->dims, shape, dpar_type_bytes(type), &elements, why);
    if (st == DPAR_OK) {
        st = dpari_transfer_check(t, t->dims, shape, type, 0, why);
    }
    if (st == DPAR_OK) {
        boxes_here here;
        dpari_move_boxes *boxes = boxes_begin(&here, type);
        a.from = (const unsigned char *)array;
        dpari_item_init(&it, t, &a);
        dpari_item_pack(boxes, &a, &it, 0, it.volume, (unsigned char *)message);
        dpari_boxes_flush(boxes);
    }
    return st;
}

/* Unpacks the message of a receive into array[shape] at mine[] with t->op. t->flip reverses dims,
 * t->swap exchanges two. */
static dpar_status box_unpack(const dpar_transfer *t, const int64_t *shape, void *array,
                              int32_t type, const void *message, dpar_why *why)
{
    boxes_here here;
    dpari_move_boxes *boxes = boxes_begin(&here, type);
    dpari_move_array a;
    dpari_move_item it;
    int64_t elements;
    dpar_status st;
    if (t == NULL || array == NULL || message == NULL) {
        return dpari_wrong(why, "the transfer, the array or the message is NULL");
    }
    st = dpari_array_init(&a, t->dims, shape, dpar_type_bytes(type), &elements, why);
    if (st == DPAR_OK) {
        st = dpari_transfer_check(t, t->dims, shape, type, 1, why);
    }
    if (st == DPAR_OK && t->op == DPAR_AVG) {
        st = dpari_wrong(why, "an average of one box and what is there: of how many?");
    }
    if (st != DPAR_OK) {
        return st;
    }
    a.to = (unsigned char *)array;
    dpari_item_init(&it, t, &a);
    if (t->op == DPAR_COPY) {
        dpari_item_unpack(boxes, &a, &it, 0, it.volume, (const unsigned char *)message);
        dpari_boxes_flush(boxes);
    } else {
        const void *part[4] = {NULL, message, NULL, NULL};
        dpari_item_combine(boxes, &a, &it, 0, it.volume, part, 2, t->op);
    }
    return DPAR_OK;
}

static void check_box(int32_t dims, int most, int32_t type, int32_t op)
{
    const int32_t bytes = dpar_type_bytes(type);
    int64_t shape[DIMS], index[DIMS], n, cells, count, wrong = 0;
    dpar_transfer t;
    guarded array, message, after;
    dpar_why why;
    int32_t d;
    random_box(&t, shape, dims, most);
    cells = volume(dims, shape);
    count = volume(dims, t.extent);
    array = guarded_new(cells * bytes);
    after = guarded_new(cells * bytes);
    message = guarded_new(count * bytes);
    for (n = 0; n < cells; n++) {
        put(type, array.at + n * bytes, plain(n));
        put(type, after.at + n * bytes, op == DPAR_PRODUCT ? 2.0 : plain(n + 3));
    }
    t.op = op;
    CHECK_INT(box_pack(&t, shape, array.at, type, message.at, &why), DPAR_OK);
    for (n = 0; nth(dims, t.extent, n, index); n++) {
        unsigned char want[8];
        for (d = 0; d < dims; d++) {
            index[d] += t.mine[d];
        }
        put(type, want, plain(at_of(dims, shape, index)));
        wrong += memcmp(want, message.at + n * bytes, (size_t)bytes) != 0;
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(box_unpack(&t, shape, after.at, type, message.at, &why), DPAR_OK);
    for (n = 0; nth(dims, shape, n, index); n++) { /* also elements that must not be changed */
        unsigned char want[8];
        int64_t from[DIMS];
        double x = op == DPAR_PRODUCT ? 2.0 : plain(n + 3);
        int inside = 1;
        for (d = 0; d < dims; d++) {
            int64_t j = index[d] - t.mine[d];
            int32_t there = swapped(&t, d);
            inside = inside && j >= 0 && j < t.extent[there];
            from[there] = t.mine[there] + (t.flip >> d & 1u ? t.extent[there] - 1 - j : j);
        }
        put(type, want, inside ? combined(op, x, plain(at_of(dims, shape, from))) : x);
        wrong += memcmp(want, after.at + n * bytes, (size_t)bytes) != 0;
    }
    CHECK_INT(wrong, 0);
    guarded_free(&array);
    guarded_free(&message);
    guarded_free(&after);
}

static void test_boxes(void)
{
    static const int32_t ops[] = {DPAR_COPY, DPAR_SUM, DPAR_PRODUCT, DPAR_MAX, DPAR_MIN};
    static const int most[] = {1, 2000, 60, 20, 9, 6, 4};
    int trial;
    random_seed = seed;
    for (trial = 0; trial < 3000; trial++) {
        int32_t type = all_types[below(12)], dims = below(7);
        int32_t op = dpari_type_can_reduce(type) ? ops[below(5)] : DPAR_COPY;
        check_box(dims, most[dims], type, op);
    }
}

static void test_box_errors(void)
{
    int64_t shape[] = {4, 5}, huge[] = {INT64_C(1) << 40, INT64_C(1) << 40};
    double array[20], message[20];
    dpar_transfer t = {0, 2, DPAR_SUM, 0, {2, 3}, {1, 1}, {0}, {0}, {0, 0}, 0};
    dpar_why why;
    memset(array, 0, sizeof array);
    CHECK_INT(box_pack(&t, shape, array, DPAR_F64, message, &why), DPAR_OK);
    CHECK_INT(box_pack(NULL, shape, array, DPAR_F64, message, &why), DPAR_E_ARG);
    CHECK_INT(box_pack(&t, NULL, array, DPAR_F64, message, &why), DPAR_E_ARG);
    CHECK_INT(box_pack(&t, shape, NULL, DPAR_F64, message, &why), DPAR_E_ARG);
    CHECK_INT(box_pack(&t, shape, array, DPAR_F64, NULL, NULL), DPAR_E_ARG);
    CHECK_INT(box_pack(&t, huge, array, DPAR_F64, message, &why), DPAR_E_RANGE);
    t.mine[1] = 3;
    CHECK_INT(box_pack(&t, shape, array, DPAR_F64, message, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dim 1: 3 elements from 3 on are not inside an array of 5");
    t.mine[1] = -1;
    CHECK_INT(box_unpack(&t, shape, array, DPAR_F64, message, &why), DPAR_E_ARG);
    t.mine[1] = 0;
    t.extent[0] = 0;
    CHECK_INT(box_unpack(&t, shape, array, DPAR_F64, message, &why), DPAR_E_ARG);
    t.extent[0] = 1;
    CHECK_INT(box_unpack(&t, shape, array, DPAR_F8, message, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "elements of f8 cannot be combined");
    t.op = DPAR_AVG;
    CHECK_INT(box_unpack(&t, shape, array, DPAR_F64, message, &why), DPAR_E_ARG);
    t.op = DPAR_OP_COUNT;
    CHECK_INT(box_unpack(&t, shape, array, DPAR_F64, message, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "op 6 does not exist");
    t.op = DPAR_SUM;
    t.swap[0] = 2;
    CHECK_INT(box_unpack(&t, shape, array, DPAR_F64, message, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dims 2 and 0 of 2 cannot be exchanged");
    t.swap[0] = 0;
    t.dims = 7;
    CHECK_INT(box_unpack(&t, shape, array, DPAR_F64, message, &why), DPAR_E_ARG);
}
#endif

/* ---- redistributions ------------------------------------------------------------------------- */
#endif

static dpar_mesh random_mesh(int32_t axes, int ranks)
{
    int32_t size[4], i, left = ranks;
    dpar_mesh m;
    for (i = 0; i < axes; i++) {
        size[i] = 1 + below(left);
        left /= size[i];
    }
    CHECK_INT(dpar_mesh_init(&m, axis_names(axes), size, below(2), 0, NULL), DPAR_OK);
    m.first_rank = below(ranks - m.size + 1);
    return m;
}

static dpar_layout random_layout(const dpar_mesh *mesh, int32_t dims, const int64_t *extent, int op)
{
    dpar_placement p[4];
    int32_t order[4] = {0, 1, 2, 3}, i, k;
    int64_t cuts[4][16];
    dpar_layout l;
    for (i = 0; i < mesh->axes; i++) {
        int what = below(8), swap;
        p[i] = dpar_replicate();
        if (what < 3 && op != DPAR_COPY) {
            p[i] = dpar_partial(op);
        } else if (what > 2 && dims > 0) {
            p[i] = dpar_shard_by(below(dims), below(3) ? 0 : below(DPAR_SPLIT_RULE_COUNT),
                                 1 + below(3));
            while (p[i].rule == DPAR_SPLIT_RAGGED) {
                p[i].rule = below(DPAR_SPLIT_RULE_COUNT);
            }
        }
        k = i + below(mesh->axes - i);
        swap = order[i];
        order[i] = order[k];
        order[k] = swap;
    }
    (void)cuts;
    cut_in(p, mesh->axes, order);
    CHECK_INT(dpar_layout_init(&l, mesh, dims, extent, p, NULL), DPAR_OK);
    return l;
}

/* Returns the partial axes of both layouts: where they are allowed, they stay partial. */
static uint32_t axes_that_stay(const dpar_layout *from, const dpar_layout *to)
{
    return axes_that(from, DPAR_PLACEMENT_PARTIAL) & axes_that(to, DPAR_PLACEMENT_PARTIAL);
}

static int in_mesh(const dpar_mesh *m, int32_t rank)
{
    int32_t coord[DPAR_MAX_AXES];
    return dpar_mesh_coords(m, rank, coord);
}

/* The array that a rank passes. Its local part is in the corner of an array that may be larger. */
typedef struct part {
    guarded memory;
    int64_t local[DIMS], shape[DIMS];
    int empty;
} part;

static part part_new(const dpar_layout *l, int32_t rank, int32_t bytes, int padded)
{
    part p;
    int32_t d;
    dpar_layout_local(l, rank, p.local, NULL);
    p.empty = !in_mesh(&l->mesh, rank);
    for (d = 0; d < l->dims; d++) {
        p.shape[d] = p.local[d] + (padded ? d % 3 : 0);
        p.empty |= p.local[d] == 0;
    }
    p.memory = guarded_new(p.empty ? 0 : volume(l->dims, p.shape) * bytes);
    return p;
}

/* Returns the global number of the n-th element of a part. */
static int64_t number_of(const dpar_layout *l, int32_t rank, const int64_t *index)
{
    int64_t global[DIMS];
    int32_t d;
    for (d = 0; d < l->dims; d++) {
        global[d] = dpar_layout_global(l, rank, d, index[d], NULL);
    }
    return at_of(l->dims, l->extent, global);
}

static void fill_part(part *p, const dpar_layout *from, const dpar_layout *to, int32_t rank,
                      int32_t type, int32_t op)
{
    const uint32_t stay = axes_that_stay(from, to);
    const uint32_t sums = axes_that(from, DPAR_PLACEMENT_PARTIAL) & ~stay;
    int64_t index[DIMS], n;
    for (n = 0; !p->empty && nth(from->dims, p->local, n, index); n++) {
        put(type, p->memory.at + at_of(from->dims, p->shape, index) * dpar_type_bytes(type),
            value_of(type, op, number_of(from, rank, index),
                     dpar_mesh_group_index(&from->mesh, sums, rank),
                     dpar_mesh_group_index(&from->mesh, stay, rank)));
    }
}

/* Returns 1 if the rank holds the sum of axes that become partial, otherwise 0. */
static int holds_sum(const dpar_layout *from, const dpar_layout *to, int32_t rank)
{
    uint32_t begins = axes_that(to, DPAR_PLACEMENT_PARTIAL) & ~axes_that_stay(from, to);
    return dpar_mesh_group_index(&to->mesh, begins, rank) == 0;
}

static void check_part(const part *p, const dpar_layout *from, const dpar_layout *to, int32_t rank,
                       int32_t type, int32_t op)
{
    const uint32_t stay = axes_that_stay(from, to);
    const int32_t bytes = dpar_type_bytes(type);
    const int32_t sums =
        dpar_mesh_group_size(&from->mesh, axes_that(from, DPAR_PLACEMENT_PARTIAL) & ~stay);
    int64_t index[DIMS], n, wrong = 0, touched = 0;
    for (n = 0; !p->empty && nth(to->dims, p->shape, n, index); n++) {
        unsigned char want[8];
        int32_t d, b, inside = 1;
        for (d = 0; d < to->dims; d++) {
            inside = inside && index[d] < p->local[d];
        }
        if (!inside) {
            for (b = 0; b < bytes; b++) {
                touched += !untouched(&p->memory, n * bytes + b);
            }
            continue;
        }
        put(type, want,
            holds_sum(from, to, rank) ? fold(type, op, number_of(to, rank, index), sums,
                                             dpar_mesh_group_index(&to->mesh, stay, rank))
                                      : 0.0);
        wrong += memcmp(want, p->memory.at + n * bytes, (size_t)bytes) != 0;
    }
    if (wrong > 0) {
        printf("rank %d: %s, op %d, %d dims, %d summed: %lld of %lld wrong\n", (int)rank,
               dpar_type_name(type), (int)op, (int)to->dims, (int)sums, (long long)wrong,
               (long long)volume(to->dims, p->local));
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(touched, 0);
}

/* Runs a redistribution on all ranks, which know both layouts, and checks this rank's part. */
static void check_redistribution(dpar_comm *c, const dpar_layout *from, const dpar_layout *to,
                                 int32_t type, int32_t op, dpar_redistribute_desc *o)
{
    const int32_t bytes = dpar_type_bytes(type);
    part in = part_new(from, c->rank, bytes, o->in_shape != NULL);
    part out = part_new(to, c->rank, bytes, o->out_shape != NULL);
    int64_t room = 0;
    dpar_why why;
    dpar_status st;
    why.text[0] = 0;
    fill_part(&in, from, to, c->rank, type, op);
    o->in_shape = o->in_shape ? in.shape : NULL;
    o->out_shape = o->out_shape ? out.shape : NULL;
    if (o->scratch_bytes != 0) { /* exactly as much scratch as the query returns, at any address */
        room = layouts_bytes(c, from, to, in.empty ? NULL : in.memory.at,
                             out.empty ? NULL : out.memory.at, type, o);
        guarded scratch = guarded_here(room + 8), there = guarded_new(room + 8);
        o->scratch = scratch.at + 8;
        o->device_scratch = there.at + 8;
        o->scratch_bytes = o->device_scratch_bytes = room;
        st = (dpar_status)ON_DEVICE(run_layouts(c, from, to, in.empty ? NULL : in.memory.at,
                                                out.empty ? NULL : out.memory.at, type, o, &why));
        guarded_free(&scratch);
        guarded_free(&there);
    } else {
        st = (dpar_status)ON_DEVICE(run_layouts(c, from, to, in.empty ? NULL : in.memory.at,
                                                out.empty ? NULL : out.memory.at, type, o, &why));
    }
    if (st != DPAR_OK) {
        printf("rank %d: %s\n", (int)c->rank, why.text);
    }
    CHECK_INT(st, DPAR_OK);
    if (st == DPAR_OK) {
        check_part(&out, from, to, c->rank, type, op);
    }
    guarded_free(&in.memory);
    guarded_free(&out.memory);
}

/* Tests random layouts on random meshes, all types, both methods, messages from a few bytes on. */
static void test_redistributions(dpar_comm *c, int rounds)
{
    static const int64_t any[DIMS] = {0};
    int trial, done = 0, summed = 0;
    random_seed = seed * 7919u + (uint32_t)c->size;
    for (trial = 0; trial < rounds; trial++) {
        int64_t extent[DIMS];
        int32_t dims = below(5), d, type = all_types[below(12)];
        int32_t op = dpari_type_can_reduce(type) && below(2) ? all_ops[below(5)] : DPAR_COPY;
        dpar_redistribute_desc o;
        dpar_mesh a, b;
        dpar_layout from, to;
        memset(&o, 0, sizeof o);
        for (d = 0; d < dims; d++) {
            extent[d] = below(dims == 1 ? 400 : dims == 2 ? 40 : 9);
        }
        a = random_mesh(1 + below(3), c->size);
        b = below(2) ? a : random_mesh(1 + below(3), c->size);
        from = random_layout(&a, dims, extent, op);
        to = random_layout(&b, dims, extent, below(4) ? DPAR_COPY : op);
        o.ranks_per_node = below(4) - 1;
        o.tag = below(3);
        o.piece_bytes = below(3) == 0 ? 0 : 1 + below(below(2) ? 40 : 2000);
        o.in_shape = below(4) == 0 ? any : NULL;
        o.out_shape = below(4) == 0 ? any : NULL;
        o.scratch_bytes = below(2);
        if (dpar_redistribute_check(&from, &to, NULL) != DPAR_OK) {
            continue;
        }
        op = axes_that(&from, DPAR_PLACEMENT_PARTIAL) != 0 ? op : DPAR_COPY;
        check_redistribution(c, &from, &to, type, op, &o);
        done++;
        summed += op != DPAR_COPY;
    }
    CHECK(done > rounds / 3 && (rounds < 100 || summed > rounds / 20));
}

/* Returns 1 if the shares of replicas cut the parts of a sum differently, otherwise 0. */
static int falls_apart(const dpar_layout *from, const dpar_layout *to)
{
    dpar_redistribute_cursor w;
    dpar_transfer t, before;
    int32_t r;
    int found = 0;
    for (r = 0; r < to->mesh.first_rank + to->mesh.size; r++) {
        CHECK_INT(dpar_redistribute_first(&w, from, to, r, DPAR_TRANSFER_RECV, 0), DPAR_OK);
        memset(&before, 0, sizeof before);
        while (dpar_redistribute_next(&w, &t)) {
            found |= t.op != DPAR_COPY && (memcmp(t.mine, before.mine, sizeof t.mine) != 0 ||
                                           memcmp(t.extent, before.extent, sizeof t.extent) != 0);
            before = t;
        }
    }
    return found;
}

/* Tests partial sums with replicas that share the sending: 16-bit sums are still rounded once, and
 * averages still divide by the number of parts. */
static void test_shared_sums(dpar_comm *c)
{
    static const int32_t types[] = {DPAR_BF16, DPAR_F16, DPAR_F32, DPAR_I32};
    int32_t copies, readers, k;
    int apart = 0;
    for (copies = 1; copies * 2 <= c->size; copies++) {
        for (readers = 1; readers <= c->size; readers++) {
            for (k = 0; k < 8; k++) {
                const int32_t op = k < 2 || k > 5 ? DPAR_SUM : DPAR_AVG;
                const int64_t extent[] = {13, 7};
                int32_t size[2], one;
                dpar_placement p[2], s = dpar_shard(k & 1);
                dpar_redistribute_desc o;
                dpar_mesh a, b;
                dpar_layout from, to;
                memset(&o, 0, sizeof o);
                size[0] = c->size / copies;
                size[1] = copies;
                one = readers;
                p[0] = dpar_partial(op);
                p[1] = dpar_replicate();
                CHECK_INT(dpar_mesh_init(&a, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL),
                          DPAR_OK);
                CHECK_INT(dpar_mesh_init(&b, "a", &one, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
                b.first_rank = c->size - readers;
                CHECK_INT(dpar_layout_init(&from, &a, 2, extent, p, NULL), DPAR_OK);
                CHECK_INT(dpar_layout_init(&to, &b, 2, extent, &s, NULL), DPAR_OK);
                apart += falls_apart(&from, &to);
                check_redistribution(c, &from, &to, types[k % 4], op, &o);
            }
        }
    }
    CHECK(c->size < 4 || apart > 0);
}

/* Tests sums of 16-bit types that are longer than what a device reduces at a time. */
static void test_long_sums(dpar_comm *c)
{
    const int64_t extent[] = {300, 120};
    dpar_placement p = dpar_partial(DPAR_SUM), s = dpar_replicate();
    const int32_t size = c->size;
    dpar_redistribute_desc o;
    dpar_mesh a;
    dpar_layout from, to;
    memset(&o, 0, sizeof o);
    o.piece_bytes = 1 << 20;
    CHECK_INT(dpar_mesh_init(&a, "a", &size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&from, &a, 2, extent, &p, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&to, &a, 2, extent, &s, NULL), DPAR_OK);
    check_redistribution(c, &from, &to, DPAR_BF16, DPAR_SUM, &o);
}

/* ---- replays of lists ------------------------------------------------------------------------ */

enum { LISTS = 2000 };

/* Returns element i of rank r's array before the move. */
static double held(int32_t type, int32_t rank, int64_t i)
{
    uint32_t h = mixed((uint32_t)i * 16u + (uint32_t)rank + 5u);
    return type == DPAR_I32 ? (double)(h % 1000) : ldexp((double)(h % 16777213), -(int)(h >> 28));
}

/* Runs the receives of a rank one element at a time, in f32, f64 or i32. */
static void replay(const dpar_transfer *t, int64_t n, int32_t type, double *array,
                   const int64_t *shape, int64_t (*shapes)[DIMS])
{
    int64_t k;
    for (k = 0; k < n; k++) {
        int64_t j[DIMS], i;
        int32_t d, parts = 1;
        while (t[k].op == DPAR_AVG && k + parts < n && t[k + parts].op == DPAR_AVG &&
               memcmp(t[k].mine, t[k + parts].mine, sizeof t[k].mine) == 0) {
            parts++; /* only the last part divides */
        }
        for (i = 0; nth(t[k].dims, t[k].extent, i, j); i++) {
            int64_t here[DIMS], there[DIMS];
            double *x, y;
            for (d = 0; d < t[k].dims; d++) { /* j is the sender's dim */
                int32_t to = swapped(&t[k], d);
                there[d] = t[k].theirs[d] + j[d];
                here[to] =
                    t[k].mine[to] + (t[k].flip >> to & 1u ? t[k].extent[d] - 1 - j[d] : j[d]);
            }
            x = &array[at_of(t[k].dims, shape, here)];
            y = held(type, t[k].peer, at_of(t[k].dims, shapes[t[k].peer], there));
            *x = combined(t[k].op == DPAR_AVG ? DPAR_SUM : t[k].op, *x, y);
            *x = type == DPAR_F32 ? (double)(float)*x : *x;
            if (t[k].op == DPAR_AVG && parts == 1) {
                int64_t q, all = 1; /* the parts after the copy that they are averaged with */
                for (q = k; t[q].op == DPAR_AVG; q--) {
                    all++;
                }
                *x = type == DPAR_I32 ? floor(*x / (double)all) : *x / (double)all;
                *x = type == DPAR_F32 ? (double)(float)*x : *x;
            }
        }
    }
}

typedef struct lists {
    dpar_transfer *send, *receive;
    int64_t sends, receives;
    int64_t shape[16][DIMS]; /* of each rank's array */
    int32_t dims;
} lists;

static void check_lists(dpar_comm *c, const lists *l, int32_t type, const dpar_redistribute_desc *o)
{
    const int32_t bytes = dpar_type_bytes(type);
    const int64_t *shape = l->shape[c->rank];
    const int64_t cells = volume(l->dims, shape);
    guarded array = guarded_new(cells * bytes), copy = guarded_new(cells * bytes);
    double *want = (double *)malloc((size_t)(cells + 1) * sizeof *want);
    int64_t i, wrong = 0;
    int64_t shapes[16][DIMS];
    dpar_why why;
    dpar_status st;
    memcpy(shapes, l->shape, sizeof shapes);
    why.text[0] = 0;
    for (i = 0; i < cells; i++) {
        want[i] = held(type, c->rank, i);
        put(type, array.at + i * bytes, want[i]);
        put(type, copy.at + i * bytes, want[i]);
    }
    replay(l->receive, l->receives, type, want, shape, shapes);
    st = (dpar_status)ON_DEVICE(run_lists(c, l->send, l->sends, l->receive, l->receives, copy.at,
                                          shape, array.at, shape, type, o, &why));
    if (st != DPAR_OK) {
        printf("rank %d: %s\n", (int)c->rank, why.text);
    }
    CHECK_INT(st, DPAR_OK);
    for (i = 0; i < cells; i++) {
        unsigned char b[8];
        put(type, b, want[i]);
        wrong += memcmp(b, array.at + i * bytes, (size_t)bytes) != 0;
        put(type, b, held(type, c->rank, i));
        wrong += memcmp(b, copy.at + i * bytes, (size_t)bytes) != 0;
    }
    CHECK_INT(wrong, 0);
    guarded_free(&array);
    guarded_free(&copy);
    free(want);
}

static void push(lists *l, dpar_comm *c, const dpar_transfer *t, int32_t from, int32_t to)
{
    dpar_transfer s = *t;
    if (to == c->rank) {
        CHECK(l->receives < LISTS);
        l->receive[l->receives] = s;
        l->receive[l->receives++].peer = from;
    }
    if (from == c->rank) {
        CHECK(l->sends < LISTS);
        memcpy(s.mine, t->theirs, sizeof s.mine);
        memcpy(s.theirs, t->mine, sizeof s.theirs);
        s.peer = to;
        l->send[l->sends++] = s;
    }
}

/* Adds boxes for the rows [row, row + height) of rank `to`: a copy and sums of parts of it, or
 * averages of the whole, from ranks in any order. */
static void random_strip(lists *l, dpar_comm *c, int32_t to, int64_t row, int64_t height)
{
    int what = below(4), n = below(5), k;
    int32_t last = -1, d, first = below(c->size);
    for (k = 0; k <= n; k++) {
        int32_t from = what == 3 ? (first + k) % c->size : below(c->size);
        dpar_transfer t;
        memset(&t, 0, sizeof t);
        if (what == 3 && k >= c->size) {
            break;
        }
        t.dims = l->dims;
        t.op = k == 0 && what != 0 ? DPAR_COPY
               : what == 3         ? DPAR_AVG
               : what == 2         ? DPAR_MAX
                                   : DPAR_SUM;
        t.flip = (uint32_t)below(1 << l->dims);
        for (d = 0; d < l->dims; d++) {
            int64_t whole = d == 0 ? height : l->shape[to][d];
            t.extent[d] = whole < l->shape[from][d] ? whole : l->shape[from][d];
            if (k > 0 && what != 3 && below(2)) {
                t.extent[d] = 1 + below((int)t.extent[d]);
            }
            if (what == 3) { /* the same box on all ranks, which each array contains */
                t.extent[d] = d == 0 ? 1 : 2;
                t.flip = 0;
            }
        }
        if (what != 3 && l->dims > 1 && below(3) == 0) { /* exchanges two dims */
            int64_t most[2], cap;
            t.swap[0] = below(l->dims);
            t.swap[1] = below(l->dims);
            for (d = 0; d < 2; d++) {
                most[d] = t.swap[d] == 0 ? height : l->shape[to][t.swap[d]];
            }
            cap = most[0] < most[1] ? most[0] : most[1];
            for (d = 0; d < 2; d++) {
                int64_t *extent = &t.extent[t.swap[d]];
                *extent = *extent < cap ? *extent : cap;
            }
        }
        for (d = 0; d < l->dims; d++) {
            int64_t whole = d == 0 ? height : l->shape[to][d];
            int64_t arrives = t.extent[swapped(&t, d)];
            t.theirs[d] = below((int)(l->shape[from][d] - t.extent[d]) + 1);
            t.mine[d] = what == 3 ? (d == 0 ? row : 0)
                                  : (d == 0 ? row : 0) + below((int)(whole - arrives) + 1);
        }
        push(l, c, &t, from, to);
        last = from;
    }
    (void)last;
}

static void test_random_lists(dpar_comm *c, int rounds)
{
    static const int32_t types[] = {DPAR_F32, DPAR_I32, DPAR_F64};
    int trial;
    random_seed = seed * 104729u + (uint32_t)c->size;
    for (trial = 0; trial < rounds; trial++) {
        lists l;
        dpar_redistribute_desc o;
        int32_t r, d, type = types[below(3)];
        memset(&l, 0, sizeof l);
        memset(&o, 0, sizeof o);
        l.send = (dpar_transfer *)malloc(LISTS * sizeof *l.send);
        l.receive = (dpar_transfer *)malloc(LISTS * sizeof *l.receive);
        l.dims = 1 + below(3);
        for (r = 0; r < c->size; r++) {
            for (d = 0; d < l.dims; d++) {
                l.shape[r][d] = 2 + below(l.dims == 1 ? 200 : 12);
            }
        }
        for (r = 0; r < c->size; r++) {
            int64_t row = 0, height;
            for (; row < l.shape[r][0]; row += height) {
                height = 1 + below((int)(l.shape[r][0] - row));
                if (below(4)) {
                    random_strip(&l, c, r, row, height);
                }
            }
        }
        o.piece_bytes = below(3) == 0 ? 0 : 1 + below(below(2) ? 40 : 300);
        check_lists(c, &l, type, &o);
        free(l.send);
        free(l.receive);
    }
}

/* ---- halos ----------------------------------------------------------------------------------- */

static int64_t list_halo(const dpar_halo *h, int32_t rank, int32_t direction, int32_t mode,
                         dpar_transfer *list)
{
    dpar_halo_cursor w;
    int64_t n = 0;
    CHECK_INT(dpar_halo_first(&w, h, rank, direction, mode, NULL), DPAR_OK);
    while (n < LISTS && dpar_halo_next(&w, &list[n])) {
        n++;
    }
    CHECK(n < LISTS);
    return n;
}

/* Exchanges in a single array, as users do: sent cells are not written. Afterwards each point that
 * has an image holds its value (for grids without folds). */
static void check_halo_values(dpar_comm *c, const dpar_halo *h, const lists *l,
                              const dpar_redistribute_desc *o)
{
    dpar_box own, box;
    const int64_t *shape = l->shape[c->rank];
    int64_t cells = volume(l->dims, shape), n, index[DIMS], wrong = 0;
    guarded memory = guarded_new((cells + 1) * 8);
    int64_t *array = (int64_t *)(void *)memory.at;
    int has = dpar_halo_owned(h, c->rank, &own) && dpar_halo_box(h, c->rank, &box);
    dpar_why why;
    for (n = 0; has && nth(l->dims, shape, n, index); n++) {
        int32_t d, mine = 1;
        int64_t at = 0;
        for (d = 0; d < l->dims; d++) {
            int64_t x = box.lo[d] + index[d];
            mine = mine && x >= own.lo[d] && x < own.hi[d];
            at = at * dpar_halo_points(h, d) + x;
        }
        array[n] = mine ? at : -1;
    }
    CHECK_INT(ON_DEVICE(run_lists(c, l->send, l->sends, l->receive, l->receives, array, shape,
                                  array, shape, DPAR_I64, o, &why)),
              DPAR_OK);
    for (n = 0; has && nth(l->dims, shape, n, index); n++) {
        int32_t d, outside = 0, comes = 1;
        int64_t at = 0;
        for (d = 0; d < l->dims; d++) {
            int64_t x = box.lo[d] + index[d], all = dpar_halo_points(h, d);
            outside += x < own.lo[d] || x >= own.hi[d];
            x = h->periodic >> d & 1u ? (x % all + all) % all : x;
            comes = comes && x >= 0 && x < all;
            at = at * all + x;
        }
        comes = comes && (outside < 2 || h->shape == DPAR_STENCIL_BOX);
        wrong += array[n] != (comes ? at : -1);
    }
    CHECK_INT(wrong, 0);
    guarded_free(&memory);
}

static void check_halo(dpar_comm *c, const dpar_halo *h, const dpar_redistribute_desc *o)
{
    lists l;
    int32_t r, d, mode;
    memset(&l, 0, sizeof l);
    l.dims = h->grid.dims;
    l.send = (dpar_transfer *)malloc(LISTS * sizeof *l.send);
    l.receive = (dpar_transfer *)malloc(LISTS * sizeof *l.receive);
    for (r = 0; r < c->size; r++) {
        dpar_box box;
        for (d = 0; d < l.dims && dpar_halo_box(h, r, &box); d++) {
            l.shape[r][d] = box.hi[d] - box.lo[d];
        }
    }
    for (mode = DPAR_HALO_FORWARD; mode <= DPAR_HALO_ADJOINT; mode++) {
        l.sends = list_halo(h, c->rank, DPAR_TRANSFER_SEND, mode, l.send);
        l.receives = list_halo(h, c->rank, DPAR_TRANSFER_RECV, mode, l.receive);
        check_lists(c, &l, DPAR_F32, o);
        if (mode == DPAR_HALO_FORWARD && !h->folds) {
            check_halo_values(c, h, &l, o);
        }
    }
    free(l.send);
    free(l.receive);
}

static void test_halos(dpar_comm *c, int rounds)
{
    int trial, folds = 0;
    random_seed = seed * 31337u + (uint32_t)c->size;
    for (trial = 0; trial < rounds; trial++) {
        int32_t dims = 1 + below(3), d;
        int64_t extent[3];
        dpar_placement p[4];
        dpar_mesh m = random_mesh(1 + below(3), c->size);
        dpar_halo h;
        dpar_redistribute_desc o;
        memset(&h, 0, sizeof h);
        memset(&o, 0, sizeof o);
        for (d = 0; d < dims; d++) {
            extent[d] = 1 + below(dims == 1 ? 40 : 10);
            h.low[d] = below(3);
            h.high[d] = below(3);
            h.periodic |= (uint32_t)below(2) << d;
        }
        for (d = 0; d < m.axes; d++) {
            p[d] = dpar_shard(below(dims));
        }
        h.shape = below(2) ? DPAR_STENCIL_STAR : DPAR_STENCIL_BOX;
        CHECK_INT(dpar_layout_init(&h.grid, &m, dims, extent, p, NULL), DPAR_OK);
        if (dims == 2 && below(2)) { /* the north of an ocean grid */
            h.folds = 1;
            h.fold = 0;
            h.mirror = 1;
            h.periodic = 2;
        }
        if (dpar_halo_check(&h, NULL) != DPAR_OK) {
            continue;
        }
        folds += h.folds;
        o.piece_bytes = below(2) ? 0 : 1 + below(100);
        check_halo(c, &h, &o);
    }
    CHECK(rounds < 50 || folds > 0);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static dpar_layout one_axis(int32_t ranks, int32_t offset, dpar_placement p)
{
    static const int64_t extent[] = {24, 8};
    dpar_mesh m;
    dpar_layout l;
    CHECK_INT(dpar_mesh_init(&m, "a", &ranks, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    m.first_rank = offset;
    CHECK_INT(dpar_layout_init(&l, &m, 2, extent, &p, NULL), DPAR_OK);
    return l;
}

/* Passes errors on all ranks, or on one: the status is the same on all, and the next move works. */
static void test_redistribute_errors(dpar_comm *c)
{
    dpar_layout rows = one_axis(c->size, 0, dpar_shard_by(0, DPAR_SPLIT_EVEN, 0)), away = rows, sum,
                whole;
    dpar_layout columns = one_axis(c->size, 0, dpar_shard_by(1, DPAR_SPLIT_EVEN, 0));
    guarded memory = guarded_new(2 * 24 * 8 * 8);
    double *in = (double *)(void *)memory.at, *out = in + 24 * 8;
    const int last = c->size - 1;
    dpar_redistribute_desc o;
    int64_t bytes = -7;
    dpar_why why;
    memset(&o, 0, sizeof o);
    memset(in, 0, 24 * 8 * 8);
    sum = one_axis(c->size, 0, dpar_partial(DPAR_SUM));
    whole = one_axis(c->size, 0, dpar_replicate());
    away.mesh.first_rank = 1;
    CHECK_INT(run_layouts(NULL, &rows, &rows, in, out, DPAR_F64, NULL, &why), DPAR_E_ARG);
    CHECK_INT(run_layouts(c, &rows, &away, in, out, DPAR_F64, NULL, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "a layout has ranks 1 to") != NULL);
    CHECK_INT(run_layouts(c, NULL, &rows, in, out, DPAR_F64, NULL, &why), DPAR_E_ARG);
    CHECK_INT(run_layouts(c, &rows, &rows, in, out, DPAR_F4, NULL, &why), DPAR_E_ARG);
    CHECK_INT(run_layouts(c, &rows, &columns, in, in, DPAR_F64, NULL, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "in and out overlap");
    CHECK_INT(run_layouts(c, &rows, &whole, NULL, out, DPAR_F64, NULL, &why), DPAR_E_ARG);
    o.tag = -1;
    CHECK_INT(run_layouts(c, &rows, &whole, in, out, DPAR_F64, &o, &why), DPAR_E_ARG);
    o.tag = 0;
    o.piece_bytes = -1;
    CHECK_INT(run_layouts(c, &rows, &whole, in, out, DPAR_F64, &o, &why), DPAR_E_ARG);
    o.piece_bytes = 0;
    bytes = layouts_bytes(c, &rows, &whole, in, out, DPAR_F64, NULL);
    CHECK(bytes > 0);
    if (c->size > 1) {
        CHECK_INT(run_layouts(c, &sum, &whole, in, out, DPAR_F8, NULL, &why), DPAR_E_ARG);
        /* Only the last rank is wrong. */
        CHECK_INT(
            run_layouts(c, &rows, &whole, c->rank == last ? NULL : in, out, DPAR_F64, NULL, &why),
            DPAR_E_ARG);
        CHECK(strstr(why.text, c->rank == last ? "in has" : "rank ") != NULL);
        CHECK(strstr(why.text, "but one of them is NULL") != NULL);
        o.scratch = out;
        o.scratch_bytes = 8;
        CHECK_INT(
            run_layouts(c, &rows, &whole, in, out, DPAR_F64, c->rank == last ? &o : NULL, &why),
            DPAR_E_ROOM);
        CHECK_INT(why.bytes, bytes); /* ranks whose scratch is large enough get the number too */
        CHECK_INT(run_layouts(c, &rows, &whole, in, out, c->rank == last ? DPAR_I64 : DPAR_F64,
                              NULL, &why),
                  DPAR_E_MISMATCH);
        CHECK(strstr(why.text, "redistribute: type is f64 on rank ") == why.text);
        CHECK(strstr(why.text, ", i64 on rank ") != NULL);
        CHECK_INT(run_layouts(c, c->rank == last ? &columns : &rows, &whole, in, out, DPAR_F64,
                              NULL, &why),
                  DPAR_E_MISMATCH);
        CHECK(strstr(why.text, "redistribute: from->axis is not the same on ranks ") == why.text);
    }
    CHECK_INT(ON_DEVICE(run_layouts(c, &rows, &whole, in, out, DPAR_F64, NULL, &why)), DPAR_OK);
    guarded_free(&memory);
}

static void test_list_errors(dpar_comm *c)
{
    int64_t shape[] = {4, 5};
    guarded memory = guarded_new(2 * 20 * 8);
    double *in = (double *)(void *)memory.at, *out = in + 20;
    dpar_transfer t = {0, 2, DPAR_COPY, 0, {2, 3}, {1, 1}, {1, 1}, {0}, {0, 0}, 0}, u;
    dpar_redistribute_desc o;
    dpar_why why;
    int k;
    for (k = 0; k < 20; k++) {
        in[k] = k;
        out[k] = -1;
    }
    t.peer = c->rank; /* to the rank itself */
    CHECK_INT(ON_DEVICE(run_lists(c, &t, 1, &t, 1, in, shape, out, shape, DPAR_F64, NULL, &why)),
              DPAR_OK);
    for (k = 0; k < 20; k++) {
        int inside = k / 5 >= 1 && k / 5 < 3 && k % 5 >= 1 && k % 5 < 4;
        CHECK(out[k] == (inside ? k : -1));
    }
    CHECK_INT(run_lists(NULL, &t, 1, &t, 1, in, shape, out, shape, DPAR_F64, NULL, &why),
              DPAR_E_ARG);
    CHECK_INT(run_lists(c, NULL, 1, &t, 1, in, shape, out, shape, DPAR_F64, NULL, &why),
              DPAR_E_ARG);
    CHECK_INT(run_lists(c, &t, 1, &t, 1, in, shape, NULL, shape, DPAR_F64, NULL, &why), DPAR_E_ARG);
    CHECK_INT(run_lists(c, &t, -1, &t, 1, in, shape, out, shape, DPAR_F64, NULL, &why), DPAR_E_ARG);
    CHECK_INT(run_lists(c, &t, 1, &t, 1, in, NULL, out, shape, DPAR_F64, NULL, &why), DPAR_E_ARG);
    CHECK_INT(run_lists(c, &t, 1, &t, 1, in, shape, in + 2, shape, DPAR_F64, NULL, &why),
              DPAR_E_ARG);
    CHECK_TEXT(why.text, "in and out overlap, but are not the same");
    CHECK_INT(run_lists(c, &t, 1, NULL, 0, in, shape, out, shape, DPAR_F64, NULL, &why),
              DPAR_E_MISMATCH);
    CHECK(strstr(why.text, "sends 1 boxes to rank") != NULL);
    u = t;
    u.extent[0] = 1;
    CHECK_INT(run_lists(c, &t, 1, &u, 1, in, shape, out, shape, DPAR_F64, NULL, &why),
              DPAR_E_MISMATCH);
    CHECK(strstr(why.text, "but their extents or ops are not as expected") != NULL);
    u = t;
    u.peer = c->size;
    CHECK_INT(run_lists(c, &t, 1, &u, 1, in, shape, out, shape, DPAR_F64, NULL, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "is not a rank of") != NULL);
    u = t;
    u.dims = 1;
    CHECK_INT(run_lists(c, &t, 1, &u, 1, in, shape, out, shape, DPAR_F64, NULL, &why), DPAR_E_ARG);
    u = t;
    u.mine[0] = 3;
    CHECK_INT(run_lists(c, &t, 1, &u, 1, in, shape, out, shape, DPAR_F64, NULL, &why), DPAR_E_ARG);
    u = t;
    u.op = DPAR_AVG;
    CHECK_INT(run_lists(c, &t, 1, &u, 1, in, shape, out, shape, DPAR_F64, NULL, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "receive 0: an average must follow a copy to the same box");
    u.op = 77;
    CHECK_INT(run_lists(c, &t, 1, &u, 1, in, shape, out, shape, DPAR_F64, NULL, &why), DPAR_E_ARG);
    memset(&o, 0, sizeof o);
    o.scratch_bytes = 1;
    why.bytes = 0;
    CHECK_INT(run_lists(c, NULL, 0, NULL, 0, NULL, NULL, NULL, NULL, DPAR_F64, &o, &why),
              DPAR_E_ROOM);
    CHECK(why.bytes > 1);
    CHECK_INT(run_lists(c, NULL, 0, NULL, 0, NULL, NULL, NULL, NULL, DPAR_F64, NULL, &why),
              DPAR_OK);
    guarded_free(&memory);
}

/* Sends a row from rank 0 to rank 1 with lists that do not match. The next exchange must be right
 * and must not contain data of the one before. */
static void test_lists_apart(dpar_comm *c)
{
    const int64_t shape[] = {4, 6};
    const int first = c->rank == 0, second = c->rank == 1, idle = c->rank > 1;
    const int64_t cells = 24;
    guarded memory = guarded_new(2 * cells * 8);
    double *in = (double *)(void *)memory.at, *out = in + cells;
    dpar_transfer t = {0, 2, DPAR_COPY, 0, {2, 3}, {1, 1}, {1, 1}, {0}, {0, 0}, 0}, other;
    dpar_redistribute_desc o;
    dpar_why why;
    int k, wrong = 0;
    if (c->size < 2) {
        guarded_free(&memory);
        return;
    }
    memset(&o, 0, sizeof o);
    t.peer = first;
    other = t;
    for (k = 0; k < cells; k++) {
        in[k] = 100 + k;
        out[k] = -1;
    }
    /* The receive is missing. */
    CHECK_INT(ON_DEVICE(run_lists(c, &t, first, &t, 0, in, shape, out, shape, DPAR_F64, &o, &why)),
              DPAR_E_MISMATCH);
    CHECK(strstr(why.text, "rank 0 sends 1 boxes to rank 1, whose list expects 0") != NULL);
    CHECK((strncmp(why.text, "rank 1: ", 8) == 0) == !second);
    /* The send is missing. */
    CHECK_INT(ON_DEVICE(run_lists(c, &t, 0, &t, second, in, shape, out, shape, DPAR_F64, &o, &why)),
              DPAR_E_MISMATCH);
    CHECK(strstr(why.text, "rank 0 sends 0 boxes to rank 1, whose list expects 1") != NULL);
    /* As many elements in another shape. */
    other.extent[0] = second ? 3 : 2;
    other.extent[1] = second ? 2 : 3;
    CHECK_INT(ON_DEVICE(run_lists(c, &other, first, &other, second, in, shape, out, shape, DPAR_F64,
                                  &o, &why)),
              DPAR_E_MISMATCH);
    CHECK(strstr(why.text, "rank 0 sends rank 1 1 boxes, but their extents") != NULL);
    /* Only one rank is wrong: all ranks get the error, also those without transfers. */
    other = t;
    other.mine[0] = second ? 3 : 1;
    CHECK_INT(ON_DEVICE(run_lists(c, &other, first, &other, second, in, shape, out, shape, DPAR_F64,
                                  &o, &why)),
              DPAR_E_ARG);
    CHECK(strstr(why.text, "dim 0: 2 elements from 3 on are not inside an array of 4") != NULL);
    CHECK_INT(ON_DEVICE(run_lists(c, &t, first, &t, second, in, shape, out, shape,
                                  second ? DPAR_I64 : DPAR_F64, &o, &why)),
              DPAR_E_MISMATCH);
    CHECK(strstr(why.text, "transfers: type is ") == why.text);
    o.tag = idle || (c->size == 2 && second) ? 5 : 4;
    CHECK_INT(
        ON_DEVICE(run_lists(c, &t, first, &t, second, in, shape, out, shape, DPAR_F64, &o, &why)),
        DPAR_E_MISMATCH);
    CHECK(strstr(why.text, "transfers: tag is ") == why.text);
    o.tag = 0;
    if (second) {
        const dpar_redistribute_desc *none = NULL;
        CHECK_INT(ON_DEVICE(dpar_transfers_exchange(c, none, &why)), DPAR_E_ARG);
    } else {
        CHECK_INT(
            ON_DEVICE(run_lists(c, &t, first, &t, 0, in, shape, out, shape, DPAR_F64, &o, &why)),
            DPAR_E_ARG);
    }
    for (k = 0; k < cells; k++) {
        wrong += out[k] != -1;
        in[k] = 200 + k;
    }
    CHECK_INT(
        ON_DEVICE(run_lists(c, &t, first, &t, second, in, shape, out, shape, DPAR_F64, &o, &why)),
        DPAR_OK);
    for (k = 0; k < cells; k++) {
        const int inside = second && k / 6 >= 1 && k / 6 < 3 && k % 6 >= 1 && k % 6 < 4;
        wrong += out[k] != (inside ? 200 + k : -1);
    }
    CHECK_INT(wrong, 0);
    guarded_free(&memory);
}

/* Returns the bytes of scratch for lists of one box that the rank copies to itself. */
static int64_t own_copy_bytes(dpar_comm *c, int64_t rows, const double *in, double *out)
{
    const int64_t shape[] = {rows, 8};
    dpar_transfer t = {0, 2, DPAR_COPY, 0, {0}, {0}, {0}, {0}, {0, 0}, 0};
    dpar_redistribute_desc o;
    dpar_why why;
    memset(&o, 0, sizeof o);
    why.bytes = -1;
    t.peer = c->rank;
    t.extent[0] = rows;
    t.extent[1] = 4;
    o.scratch_bytes = 1;
    CHECK_INT(ON_DEVICE(run_lists(c, &t, 1, &t, 1, in, shape, out, shape, DPAR_F64, &o, &why)),
              DPAR_E_ROOM);
    return why.bytes;
}

/* Each rank adds columns 0 to 3 to its own, and sends columns 4 to 7 to the next rank. The list of
 * sends says DPAR_COPY for all of them. Both messages are packed, and large. */
static void test_own_sums(dpar_comm *c)
{
    const int64_t rows = 4096, shape[] = {4096, 8}, cells = 8 * rows;
    const int32_t next = (c->rank + 1) % c->size, last = (c->rank + c->size - 1) % c->size;
    guarded memory = guarded_new(2 * cells * 8);
    double *in = (double *)(void *)memory.at, *out = in + cells;
    dpar_transfer send[2], receive[2];
    dpar_redistribute_desc o;
    dpar_why why;
    int k, wrong = 0;
    if (c->size < 2) {
        guarded_free(&memory);
        return;
    }
    memset(&o, 0, sizeof o);
    memset(send, 0, sizeof send);
    for (k = 0; k < 2; k++) {
        send[k].dims = 2;
        send[k].peer = k == 0 ? c->rank : next;
        send[k].extent[0] = rows;
        send[k].extent[1] = 4;
        send[k].mine[1] = 4 * k;
        send[k].op = DPAR_COPY;
        receive[k] = send[k];
    }
    receive[0].op = DPAR_SUM;
    receive[1].peer = last;
    for (k = 0; k < cells; k++) {
        in[k] = 1000000.0 * c->rank + k;
        out[k] = 0.5;
    }
    CHECK_INT(
        ON_DEVICE(run_lists(c, send, 2, receive, 2, in, shape, out, shape, DPAR_F64, &o, &why)),
        DPAR_OK);
    for (k = 0; k < cells; k++) {
        const double own = 0.5 + 1000000.0 * c->rank + k, theirs = 1000000.0 * last + k;
        wrong += k % 8 < 4 ? out[k] > own || out[k] < own : out[k] > theirs || out[k] < theirs;
    }
    CHECK_INT(wrong, 0);
    /* boxes that are only copied need the same scratch whatever their size is */
    CHECK_INT(own_copy_bytes(c, rows, in, out), own_copy_bytes(c, 1, in, out));
    guarded_free(&memory);
}

/* ---- the programs of the ranks --------------------------------------------------------------- */

static int rounds = 40;

static int everything(dpar_comm *c, void *arg)
{
    (void)arg;
#ifdef DEVICE_MEMORY
    device_begin((size_t)1 << 25);
    c = device_take(c);
#endif
    test_list_errors(c);
    test_lists_apart(c);
    test_own_sums(c);
    test_redistribute_errors(c);
    test_shared_sums(c);
    test_long_sums(c);
    test_redistributions(c, rounds);
    test_random_lists(c, rounds);
    test_halos(c, rounds);
#ifdef DEVICE_MEMORY
    CHECK(the_device.calls > 0);
    c = device_return(c);
    device_end();
#endif
    if (checks_failed > 0) {
        printf("rank %d of %d: %d of %d checks failed\n", (int)c->rank, (int)c->size, checks_failed,
               checks_run);
    }
    return checks_failed > 0 || checks_run == 0;
}

#ifdef USE_MPI

int main(int argc, char **argv)
{
    dpar_comm *c = NULL;
    dpar_why why;
    int failed;
    MPI_Init(&argc, &argv);
    rounds = argc > 1 ? atoi(argv[1]) : 60;
    seed = argc > 2 ? (uint32_t)atoi(argv[2]) : 1;
    if (dpar_mpi_make(MPI_COMM_WORLD, NULL, &c, &why) != DPAR_OK) {
        printf("%s\n", why.text);
        return 1;
    }
    failed = everything(c, NULL);
    if (c->rank == 0) {
        printf("%d ranks: %d checks, %d failed\n", (int)c->size, checks_run, checks_failed);
    }
    (void)dpar_comm_free(c);
    MPI_Finalize();
    return failed;
}

#else

int main(int argc, char **argv)
{
#ifdef DEVICE_MEMORY
    return rank_program(argc, argv, everything, NULL, 4, 0, NULL);
#else
    int32_t n = argc > 1 ? atoi(argv[1]) : 0, k;
    dpar_why why;
    rounds = argc > 2 ? atoi(argv[2]) : rounds;
    seed = argc > 3 ? (uint32_t)atoi(argv[3]) : seed;
#ifdef DPAR_IMPLEMENTATION
#ifdef DPAR_IMPLEMENTATION
    test_boxes();
    test_box_errors();
#endif
#endif
    for (k = n > 0 ? n : 1; k <= (n > 0 ? n : 8); k++) {
        dpar_status st = dpar_launch(k, everything, NULL, NULL, &why);
        CHECK_INT(st, DPAR_OK);
        if (st != DPAR_OK) {
            printf("%d ranks: %s\n", (int)k, why.text);
        }
    }
    return CHECK_DONE();
#endif
}

#endif
