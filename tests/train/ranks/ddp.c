/* SPDX-License-Identifier: MIT-0 */
/* ddp: tests data parallel gradients on real ranks with random models, buckets, types and orders in
 * which gradients become ready, against sums written out here. Gradients are small whole numbers,
 * so that sums are exact in each type and must agree bit for bit. An average is one division,
 * correctly rounded in F64 and F32.
 *
 *   ddp [processes|threads] [ranks]      without arguments: both, 1 to 6 ranks
 *   mpirun -np 4 ddp                     built with -DUSE_MPI */
#include "dpar_train.h"
#include "rank_program.h"
#ifdef DEVICE_MEMORY
#include "device_memory.h"
#define dpar_ddp_make(c, o, d, w) (dpar_status) ON_DEVICE(dpar_ddp_make(c, o, d, w))
#define dpar_ddp_zero(d) (void)ON_DEVICE((dpar_ddp_zero(d), 0))
#define dpar_ddp_ready(d, i) (dpar_status) ON_DEVICE(dpar_ddp_ready(d, i))
#define dpar_ddp_end(d) (dpar_status) ON_DEVICE(dpar_ddp_end(d))
#define dpar_ddp_free(d) (dpar_status) ON_DEVICE(dpar_ddp_free(d))
enum { ELSEWHERE = 1 };
#else
enum { ELSEWHERE = 0 };
#endif

enum { MOST = 24, CASES = 50 };

/* Where gradients are stored: in dpar's memory, in a flat array, or in one array per parameter. */
enum { OF_DPAR, FLAT, ARRAYS, FORMS };

/* Returns the gradient that micro-batch m of rank r adds to element e of parameter i. */
static int number(int r, int m, int i, int64_t e)
{
    uint32_t h = (uint32_t)r * 7919u + (uint32_t)m * 104729u + (uint32_t)i * 1299709u + (uint32_t)e;
    h = (h ^ h >> 15) * 0x2c1b3c6du;
    return (int)((h ^ h >> 12) % 7u) - 3;
}

/* ---- random passes --------------------------------------------------------------------------- */

typedef struct model {
    dpar_comm *c;
    dpar_ddp *d;
    int64_t count[MOST];
    int32_t params, batches, some; /* some: each rank leaves parameters out */
    int32_t form, registered;
    void *memory;        /* of the gradients; NULL if they are in dpar's */
    void *array[MOST];   /* gradients of each parameter, in `memory` */
    void *block, *whole; /* allocated by the ddp */
    dpar_ddp_desc o;
    int32_t is_ready[MOST], ends, sent, wrong_order; /* written by the hook */
    int64_t elements;                                /* counted by the hook */
    dpar_bucket bucket[MOST];                        /* buckets that follow from the descriptor */
    int32_t buckets;
} model;

/* Computes the buckets from the descriptor only: 1 MiB first, then 25 MiB, unless it gives other
 * sizes. */
static void expect_buckets(model *m)
{
    const int64_t each = dpar_type_bytes(m->o.type);
    int64_t first = m->o.first_bucket_bytes, size = m->o.bucket_bytes, start[MOST];
    dpar_buckets_desc how;
    dpar_why why;
    memset(&how, 0, sizeof how);
    first = first > 0 ? first : INT64_C(1) << 20;
    size = size > 0 ? size : INT64_C(25) << 20;
    how.params = m->params;
    how.count = m->count;
    how.first = (first + each - 1) / each;
    how.size = (size + each - 1) / each;
    how.align = 1;
    if (m->form == OF_DPAR) {
        how.align = m->o.align > 0 ? m->o.align : 64;
    }
    CHECK_INT(dpar_buckets_init(&how, start, m->bucket, MOST, &m->buckets, &why), DPAR_OK);
}

/* Returns the elements of a bucket. Padding is sent only if dpar allocates the gradients. */
static int64_t elements_of(const model *m, int32_t bucket)
{
    const dpar_bucket *b = &m->bucket[bucket];
    int64_t sum = 0;
    int32_t i;
    if (m->form == OF_DPAR) {
        return b->hi - b->lo;
    }
    for (i = b->first_param; i < b->end_param; i++) {
        sum += m->count[i];
    }
    return sum;
}

/* Does the same all-reduce as without a hook, and checks the arguments of the call. */
static dpar_status hook(void *ctx, dpar_comm *c, int32_t bucket, void *data, int64_t count,
                        int32_t type, dpar_work *work)
{
    model *m = (model *)ctx;
    dpar_status st;
    int32_t i;
    CHECK(bucket >= 0 && bucket < m->buckets);
    CHECK_INT(count, elements_of(m, bucket));
    for (i = m->bucket[bucket].first_param; i < m->bucket[bucket].end_param; i++) {
        CHECK(m->is_ready[i] || (m->some && m->ends));
    }
    m->wrong_order += bucket != m->sent++;
    m->elements += count;
    st = dpar_all_reduce(c, data, data, count, type, m->o.sum ? DPAR_SUM : DPAR_AVG, work);
    return st == DPAR_OK && bucket % 2 != 0 ? DPAR_MORE : st; /* a condition is not an error */
}

static void draw(model *m, uint64_t *seed)
{
    static const int32_t types[4] = {DPAR_F32, DPAR_F64, DPAR_BF16, DPAR_F16};
    int32_t i, long_ones;
    memset(&m->o, 0, sizeof m->o);
    m->params = (int32_t)lot_below(seed, MOST + 1);
    long_ones = lot_below(seed, 8) == 0; /* some arrays of many elements */
    for (i = 0; i < m->params; i++) {
        m->count[i] =
            lot_below(seed, 8) == 0 ? 0 : lot_below(seed, INT64_C(1) << lot_below(seed, 13));
        if (long_ones && i < 6) {
            m->count[i] += lot_below(seed, 2) * 16384;
        }
    }
    m->o.type = types[lot_below(seed, 4)];
    m->o.wire_type = m->o.type == DPAR_F64 ? DPAR_F32 : lot_below(seed, 2) ? DPAR_BF16 : DPAR_F16;
    if ((m->o.type != DPAR_F32 && m->o.type != DPAR_F64) || lot_below(seed, 2)) {
        m->o.wire_type = lot_below(seed, 2) ? m->o.type : DPAR_TYPE_NONE;
    }
    m->o.sum = (int32_t)lot_below(seed, 2);
    m->some = (int32_t)lot_below(seed, 2);
    m->o.require_ready = !m->some && lot_below(seed, 2);
    m->o.track_used = !m->o.require_ready && lot_below(seed, 3) > 0;
    m->o.check_finite = (int32_t)lot_below(seed, 2);
    m->o.first_bucket_bytes = lot_below(seed, 2) * (1 + lot_below(seed, 2000));
    m->o.bucket_bytes =
        lot_below(seed, 4) == 0 ? 0 : 1 + lot_below(seed, INT64_C(1) << lot_below(seed, 16));
    m->o.align = lot_below(seed, 3) == 0 ? 1 + lot_below(seed, 100) : 0;
    m->o.hook = lot_below(seed, 3) == 0 ? hook : NULL;
    m->o.ctx = m;
    m->batches = 1 + (int32_t)lot_below(seed, 3);
    m->registered = (int32_t)lot_below(seed, 2);
    m->o.params = m->params;
    m->o.count = m->count;
}

/* Returns 1 if rank r uses parameter i in micro-batch b, otherwise 0. */
static int uses(const model *m, uint64_t seed, int r, int b, int i)
{
    uint64_t s = seed + (uint64_t)(r * 100 + b * 10000 + i);
    return !m->some || lot_below(&s, 4) > 0;
}

static void backward(model *m, int b, uint64_t seed)
{
    int32_t order[MOST], i;
    uint64_t own = seed + (uint64_t)m->c->rank * 77 + (uint64_t)b;
    const int last = b == m->batches - 1;
    int64_t e;
    if (!last || lot_below(&own, 2) != 0) { /* the last micro-batch need not be begun */
        CHECK_INT(dpar_ddp_begin(m->d, last), DPAR_OK);
    }
    memset(m->is_ready, 0, sizeof m->is_ready);
    m->ends = 0;
    /* roughly from last to first, in a different order on each rank */
    for (i = 0; i < m->params; i++) {
        int32_t at = (int32_t)lot_below(&own, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (i = 0; i < m->params; i++) {
        const int32_t p = order[i];
        void *g = dpar_ddp_gradient(m->d, p, NULL);
        CHECK(m->form == OF_DPAR || m->count[p] == 0 || g == m->array[p]);
        if (!uses(m, seed, m->c->rank, b, p)) {
            continue;
        }
        for (e = 0; e < m->count[p]; e++) {
            float_put(g, e, m->o.type, float_get(g, e, m->o.type) + number(m->c->rank, b, p, e));
        }
        m->is_ready[p] = 1;
        CHECK_INT(dpar_ddp_ready(m->d, p), DPAR_OK);
    }
    m->ends = 1;
    CHECK_INT(dpar_ddp_end(m->d), DPAR_OK);
}

/* Returns the largest relative error of an average. */
static double rounding(const model *m)
{
    const int32_t t = m->o.wire_type ? m->o.wire_type : m->o.type;
    return t == DPAR_F64 ? 0.0 : t == DPAR_F32 ? 6e-8 : t == DPAR_F16 ? 4.9e-4 : 3.95e-3;
}

static void compare(const model *m, uint64_t seed)
{
    int32_t i;
    int r, b;
    int64_t e, wrong = 0;
    for (i = 0; i < m->params; i++) {
        int used = -1;
        const void *g = dpar_ddp_gradient(m->d, i, &used);
        int any = 0, mine = 0;
        for (e = 0; e < m->count[i]; e++) {
            double sum = 0.0;
            for (r = 0; r < m->c->size; r++) {
                for (b = 0; b < m->batches; b++) {
                    sum += uses(m, seed, r, b, i) ? number(r, b, i, e) : 0;
                }
            }
            if (m->o.sum) {
                wrong += float_get(g, e, m->o.type) != sum;
            } else {
                const double want = sum / m->c->size;
                wrong += !(fabs(float_get(g, e, m->o.type) - want) <= rounding(m) * fabs(want));
            }
        }
        for (b = 0; b < m->batches; b++) {
            mine |= uses(m, seed, m->c->rank, b, i);
            for (r = 0; r < m->c->size; r++) {
                any |= uses(m, seed, r, b, i);
            }
        }
        CHECK_INT(used, m->o.track_used ? any : mine);
    }
    CHECK_INT(wrong, 0);
}

/* Allocates memory for the gradients and fills it with numbers that dpar_ddp_zero must clear. */
static void lay(model *m)
{
    const int64_t each = dpar_type_bytes(m->o.type);
    char *at;
    int64_t bytes = 64;
    int32_t i;
    for (i = 0; i < m->params; i++) {
        bytes += m->count[i] * each + (m->form == ARRAYS ? 24 : 0);
    }
    if (m->registered || ELSEWHERE) {
        CHECK_INT(dpar_comm_alloc(m->c, bytes, &m->memory), DPAR_OK);
    } else {
        m->memory = zeroed(bytes);
    }
    memset(m->memory, 0x3c, (size_t)bytes);
    at = (char *)m->memory;
    for (i = 0; i < m->params; i++) { /* separate arrays, in reverse order with gaps */
        const int32_t k = m->form == ARRAYS ? m->params - 1 - i : i;
        m->array[k] = m->count[k] == 0 && k % 2 == 0 && m->form == ARRAYS ? NULL : at;
        at += m->count[k] * each + (m->form == ARRAYS ? 8 + k % 3 * 8 : 0);
    }
    m->o.align = 0;
    if (m->form == ARRAYS) {
        m->o.arrays = m->array;
    } else {
        m->o.gradients = m->memory;
    }
}

/* Makes the ddp in the caller's memory: the size that make reports is exactly enough, and no byte
 * after it is written. */
static void make_in_place(model *m)
{
    unsigned char *end;
    int64_t needed;
    int i;
    dpar_why why;
    why.bytes = -1;
    m->o.memory = NULL;
    m->o.bytes = 1;
    CHECK_INT(dpar_ddp_make(m->c, &m->o, &m->d, &why), DPAR_E_ROOM);
    needed = why.bytes;
    CHECK(needed > 1);
    m->block = zeroed_aligned(needed + 64, &m->whole);
    end = (unsigned char *)m->block + needed;
    memset(m->block, 0xa5, (size_t)needed + 64);
    m->o.memory = m->block;
    /* rank 0 has one byte too few: all fail, each reports its own size */
    m->o.bytes = needed - (m->c->rank == 0);
    why.bytes = -1;
    CHECK_INT(dpar_ddp_make(m->c, &m->o, &m->d, &why), DPAR_E_ROOM);
    CHECK_INT(why.bytes, needed);
    m->c->why.text[0] = 0; /* dpar_fail(m->c, NULL) would print this message */
    CHECK_INT(dpar_ddp_make(m->c, &m->o, &m->d, NULL), DPAR_E_ROOM);
    CHECK(m->c->why.text[0] != 0);
    m->o.bytes = needed;
    CHECK_INT(dpar_ddp_make(m->c, &m->o, &m->d, &why), DPAR_OK);
    for (i = 0; i < 64; i++) {
        CHECK_INT(end[i], 0xa5);
    }
}

/* Runs two steps with gradients stored in one of the forms. Writes their bits to `to`. */
static int64_t run_form(model *m, uint64_t seed, unsigned char *to)
{
    dpar_why why;
    int32_t step, k;
    int64_t bytes = 0;
    if (m->form != OF_DPAR) {
        lay(m);
    }
    expect_buckets(m);
    if ((seed + (uint64_t)m->form) % 2 == 0) {
        make_in_place(m);
    } else {
        CHECK_INT(dpar_ddp_make(m->c, &m->o, &m->d, &why), DPAR_OK);
    }
    for (step = 0; step < 2 && failures() == 0; step++) {
        int i;
        m->sent = m->wrong_order = 0;
        m->elements = 0;
        dpar_ddp_zero(m->d);
        for (i = 0; i < m->batches; i++) {
            CHECK_INT(m->sent, 0);
            backward(m, i, seed + (uint64_t)step);
        }
        if (m->o.hook != NULL) { /* all buckets, each once and in order */
            int64_t elements = 0;
            for (k = 0; k < m->buckets; k++) {
                elements += elements_of(m, k);
            }
            CHECK_INT(m->sent, m->buckets);
            CHECK_INT(m->wrong_order, 0);
            CHECK_INT(m->elements, elements);
        }
        compare(m, seed + (uint64_t)step);
        for (k = 0; k < m->params; k++) {
            const int64_t n = m->count[k] * dpar_type_bytes(m->o.type);
            if (n > 0) {
                memcpy(to + bytes, dpar_ddp_gradient(m->d, k, NULL), (size_t)n);
            }
            bytes += n;
        }
    }
    CHECK(dpar_ddp_gradient(m->d, -1, NULL) == NULL &&
          dpar_ddp_gradient(m->d, m->params, NULL) == NULL);
    CHECK_INT(dpar_ddp_free(m->d), DPAR_OK);
    CHECK_INT(dpar_barrier(m->c, NULL), DPAR_OK);
    free(m->whole);
    if (m->memory != NULL && (m->registered || ELSEWHERE)) {
        dpar_comm_release(m->c, m->memory);
    } else {
        free(m->memory);
    }
    return bytes;
}

/* Runs the same steps in all forms and compares the bits. */
static void random_case(dpar_comm *c, uint64_t seed)
{
    unsigned char *bits[FORMS];
    int64_t bytes[FORMS];
    int32_t form;
    for (form = 0; form < FORMS && failures() == 0; form++) {
        model m;
        uint64_t s = seed;
        memset(&m, 0, sizeof m);
        m.c = c;
        m.form = form;
        draw(&m, &s);
        bits[form] = (unsigned char *)zeroed(64 + 2 * 8 * MOST * (INT64_C(1) << 15));
        bytes[form] = run_form(&m, seed, bits[form]);
        CHECK_INT(bytes[form], bytes[0]);
        CHECK(memcmp(bits[form], bits[0], (size_t)bytes[0]) == 0);
        if (failures() > 0) {
            printf("form %d\n", (int)form);
        }
    }
    while (form > 0) {
        free(bits[--form]);
    }
}

/* ---- what is refused
 * -------------------------------------------------------------------------- */

static const char *const few_names[3] = {"wte", "h.0.weight", "h.0.bias"};

typedef struct few {
    dpar_comm *c;
    dpar_ddp *d;
    int64_t count[3];
    dpar_ddp_desc o;
    dpar_why why;
} few;

/* Makes a ddp of three parameters of 1000, 20 and 3 elements on its own communicator. */
static dpar_status few_open(few *w, dpar_comm *world, int32_t finite, int32_t wire)
{
    memset(w, 0, sizeof *w);
    w->count[0] = 1000;
    w->count[1] = 20;
    w->count[2] = 3;
    w->o.params = 3;
    w->o.count = w->count;
    w->o.type = DPAR_F32;
    w->o.names = few_names;
    w->o.require_ready = 1;
    w->o.check_finite = finite;
    w->o.wire_type = wire;
    CHECK_INT(dpar_comm_split(world, 0, 0, &w->c), DPAR_OK);
    return dpar_ddp_make(w->c, &w->o, &w->d, &w->why);
}

static void few_close(few *w)
{
    CHECK_INT(dpar_ddp_free(w->d), DPAR_OK);
    (void)dpar_comm_free(w->c);
}

static void in_order(dpar_comm *world)
{
    few w;
    CHECK_INT(few_open(&w, world, 0, 0), DPAR_OK);
    CHECK_INT(dpar_ddp_ready(w.d, -1), DPAR_E_ARG); /* an error, so that no pass begins */
    CHECK_INT(dpar_ddp_begin(w.d, 1), DPAR_OK);
    CHECK_INT(dpar_ddp_begin(w.d, 1), DPAR_E_ARG);
    CHECK_TEXT(w.c->why.text, "dpar_ddp_begin: the previous pass has not ended (dpar_ddp_end)");
    CHECK_INT(dpar_ddp_free(w.d), DPAR_E_ARG);
    CHECK_TEXT(w.c->why.text, "dpar_ddp_free: a pass is in progress (dpar_ddp_end)");
    CHECK_INT(dpar_ddp_ready(w.d, 3), DPAR_E_ARG);
    CHECK_TEXT(w.c->why.text, "dpar_ddp_ready: parameter 3 does not exist (the model has 0 to 2)");
    CHECK_INT(dpar_ddp_ready(w.d, 2), DPAR_OK);
    CHECK_INT(dpar_ddp_ready(w.d, 2), DPAR_E_ARG);
    CHECK_TEXT(w.c->why.text, "dpar_ddp_ready: parameter 2 was already reported in this pass");
    CHECK_INT(dpar_ddp_ready(w.d, 0), DPAR_OK);
    CHECK_INT(dpar_ddp_ready(w.d, 1), DPAR_OK);
    CHECK_INT(dpar_ddp_end(w.d), DPAR_OK);
    CHECK_INT(dpar_ddp_ready(w.d, 2), DPAR_OK); /* begins the next pass */
    CHECK_INT(dpar_ddp_ready(w.d, 2), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_begin(w.d, 0), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_ready(w.d, 1), DPAR_OK);
    CHECK_INT(dpar_ddp_ready(w.d, 0), DPAR_OK);
    CHECK_INT(dpar_ddp_end(w.d), DPAR_OK);
    few_close(&w);
}

/* Leaves two gradients out on the last rank: the error on all ranks names them. */
static void missing(dpar_comm *world)
{
    few w;
    char expected[200];
    const int last = world->size - 1;
    CHECK_INT(few_open(&w, world, 0, 0), DPAR_OK);
    (void)dpar_ddp_begin(w.d, 1); /* the last rank may have failed already */
    (void)dpar_ddp_ready(w.d, 0);
    if (world->rank != last) {
        (void)dpar_ddp_ready(w.d, 1);
        (void)dpar_ddp_ready(w.d, 2);
    }
    CHECK_INT(dpar_ddp_end(w.d), DPAR_E_ARG);
    (void)snprintf(
        expected, sizeof expected,
        "ddp: rank %d has no gradient of 'h.0.weight', 'h.0.bias' (desc.require_ready = 0 "
        "sends gradients that were not reported)",
        last);
    CHECK_TEXT(w.c->why.text, expected);
    few_close(&w);
}

static void not_finite(dpar_comm *world)
{
    few w;
    char expected[200];
    dpar_status st;
    int i;
    CHECK_INT(few_open(&w, world, 1, 0), DPAR_OK);
    st = dpar_ddp_begin(w.d, 1); /* rank 0 may have failed already */
    if (world->rank == 0) {
        ((float *)dpar_ddp_gradient(w.d, 0, NULL))[611] = -INFINITY;
        ((float *)dpar_ddp_gradient(w.d, 0, NULL))[900] = NAN;
    }
    for (i = 2; i >= 0; i--) {
        const dpar_status s = dpar_ddp_ready(w.d, i);
        st = st == DPAR_OK ? s : st;
    }
    CHECK(st == DPAR_OK || st == DPAR_E_ARG);
    CHECK(world->rank > 0 || st == DPAR_E_ARG);
    CHECK_INT(dpar_ddp_end(w.d), DPAR_E_ARG);
    (void)snprintf(expected, sizeof expected,
                   "ddp: the gradient of 'wte' is NaN or infinite at element 611 on rank 0");
    CHECK_TEXT(w.c->why.text, expected);
    CHECK_INT(dpar_ddp_begin(w.d, 1), DPAR_E_ARG); /* the communicator is broken: no pass begins */
    few_close(&w);
}

#if !defined(USE_MPI) && !defined(DEVICE_MEMORY)
/* On the last rank calls an all-reduce of as many F32 elements as the ddp of the other ranks sends
 * rounded to BF16. The message must tell the two apart. */
static void other_wire(dpar_comm *world)
{
    few w;
    CHECK_INT(few_open(&w, world, 0, DPAR_BF16), DPAR_OK);
    if (world->rank == world->size - 1) {
        CHECK_INT(dpar_all_reduce(w.c, dpari_ddp_bucket(w.d, 0, NULL),
                                  dpari_ddp_bucket(w.d, 0, NULL), w.d->elements, DPAR_F32, DPAR_AVG,
                                  NULL),
                  DPAR_E_MISMATCH);
    } else {
        int i;
        (void)dpar_ddp_begin(w.d, 1);
        for (i = 2; i >= 0; i--) {
            (void)dpar_ddp_ready(w.d, i);
        }
        CHECK_INT(dpar_ddp_end(w.d), DPAR_E_MISMATCH);
    }
    CHECK(strstr(w.c->why.text, " f32 as bf16, avg)") != NULL);
    CHECK(strstr(w.c->why.text, " f32, avg)") != NULL);
    few_close(&w);
}
#endif

/* Passes wrong descriptors on one rank. All ranks get the error, and the communicator still
 * works. */
static void wrong_plans(dpar_comm *c)
{
    int64_t count[2] = {5, 6};
    const int last = c->rank == c->size - 1;
    dpar_ddp_desc o;
    dpar_ddp *d = NULL;
    dpar_why why;
    memset(&o, 0, sizeof o);
    o.params = 2;
    o.count = count;
    o.type = DPAR_F32;
    count[1] += last;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), c->size > 1 ? DPAR_E_MISMATCH : DPAR_OK);
    CHECK(c->size == 1 || says_who_differs(why.text, (int)c->size, "ddp: count[1]", "6", "7"));
    CHECK_INT(dpar_ddp_free(d), DPAR_OK);
    d = NULL;
    count[1] = 6;
    o.bytes = c->rank == 0 ? -1 : 0; /* one rank has too little memory: all ranks fail */
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ROOM);
    CHECK(c->rank == 0 || strncmp(why.text, "rank 0: dpar_ddp_make: ", 23) == 0);
    CHECK(why.bytes > 0 && why.bytes % 64 == 0);
    o.bytes = 0;
    count[0] = c->rank == 0 ? -1 : 5;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    count[0] = count[1] = INT64_C(1) << 62;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_RANGE);
    count[0] = 1;
    count[1] = INT64_MAX / 16;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_RANGE);
    CHECK_TEXT(why.text, "dpar_ddp_make: parameter 1 has 576460752303423487 elements and those "
                         "before it have 1, but together they may have at most 2^59 - 1");
    count[0] = count[1] = 5;
    o.type = DPAR_I32;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "dpar_ddp_make: type is i32") == why.text);
    o.type = DPAR_F16;
    o.wire_type = DPAR_F32;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    o.wire_type = DPAR_TYPE_NONE;
    o.bucket_bytes = -1;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    o.bucket_bytes = 0;
    o.count = NULL;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    o.count = count;
    o.params = -1;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    o.params = 2;
    CHECK_INT(dpar_ddp_make(c, NULL, &d, &why), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_make(NULL, &o, &d, &why), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_make(c, &o, c->rank == c->size - 1 ? NULL : &d, &why), DPAR_E_ARG);
    CHECK(d == NULL);
    o.check_finite = last; /* only one rank would check */
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), c->size > 1 ? DPAR_E_MISMATCH : DPAR_OK);
    CHECK_INT(dpar_ddp_free(d), DPAR_OK);
    d = NULL;
    o.check_finite = 0;
    o.track_used = 2;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dpar_ddp_make: sum is 0, require_ready 0, track_used 2 and check_finite "
                         "0, but each must be 0 or 1, and require_ready excludes track_used");
    o.track_used = o.require_ready = 1;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_free(NULL), DPAR_OK);
    CHECK_INT(dpar_ddp_begin(NULL, 1), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_ready(NULL, 1), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_end(NULL), DPAR_E_ARG);
    dpar_ddp_zero(NULL);
    CHECK(dpar_ddp_gradient(NULL, 0, NULL) == NULL);
}

static int everything(dpar_comm *c, void *arg)
{
    uint64_t i;
    (void)arg;
#ifdef DEVICE_MEMORY
    device_begin((size_t)1 << 26);
    c = device_take(c);
#endif
    for (i = 0; i < CASES && failures() == 0; i++) {
        random_case(c, i);
        if (failures() > 0) {
            printf("case %d on rank %d of %d\n", (int)i, c->rank, c->size);
        }
    }
    in_order(c);
    wrong_plans(c);
#if !defined(USE_MPI) && !defined(DEVICE_CUDA) /* a rank fails while others continue */
    missing(c);
    not_finite(c);
#ifndef DEVICE_MEMORY
    if (c->size > 1) {
        other_wire(c);
    }
#endif
#endif
#ifdef DEVICE_MEMORY
    CHECK(the_device.calls > 0);
    c = device_return(c);
    device_end();
#endif
    return failures() > 0;
}

int main(int argc, char **argv)
{
#ifdef DEVICE_MEMORY
    return rank_program(argc, argv, everything, NULL, 4, 2, NULL);
#else
    return rank_program(argc, argv, everything, NULL, 6, 6, NULL);
#endif
}
