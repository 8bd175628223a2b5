/* SPDX-License-Identifier: MIT-0 */
/* ddp on real ranks: random models, buckets, types and orders in which gradients become ready,
 * against sums written out here. Gradients are small whole numbers, so that sums are exact in every
 * type and must agree bit for bit; averages are one division, correctly rounded in F64 and F32.
 *
 *   ddp [processes|threads] [ranks]      without arguments: both, 1 to 6 ranks
 *   mpirun -np 4 ddp                     built with -DUSE_MPI */
#include "dpar_train.h"
#include "rank_program.h"
#ifdef DEVICE_MEMORY
#include "device_memory.h"
#define dpar_ddp_init(m, b, c, o, d, w) (dpar_status) ON_DEVICE(dpar_ddp_init(m, b, c, o, d, w))
#define dpar_ddp_zero(d) (void)ON_DEVICE((dpar_ddp_zero(d), 0))
#define dpar_ddp_ready(d, i) (dpar_status) ON_DEVICE(dpar_ddp_ready(d, i))
#define dpar_ddp_end(d) (dpar_status) ON_DEVICE(dpar_ddp_end(d))
#define dpar_ddp_close(d) (dpar_status) ON_DEVICE(dpar_ddp_close(d))
#define dpar_comm_alloc(c, bytes, memory) host_alloc(c, bytes, memory)
#define dpar_comm_release(c, memory) free(memory)
#endif

enum { MOST = 24, CASES = 150 };

/* The gradient that micro-batch m of rank r adds to element e of parameter i. */
static int number(int r, int m, int i, int64_t e)
{
    uint32_t h = (uint32_t)r * 7919u + (uint32_t)m * 104729u + (uint32_t)i * 1299709u + (uint32_t)e;
    h = (h ^ h >> 15) * 0x2c1b3c6du;
    return (int)((h ^ h >> 12) % 7u) - 3;
}

/* ---- random passes ----------------------------------------------------------------------------
 */

typedef struct model {
    dpar_comm *c;
    dpar_ddp *d;
    int64_t numel[MOST];
    int32_t params, type, batches;
    dpar_ddp_desc o;
    int32_t is_ready[MOST], sent, wrong_order; /* for the hook */
    int64_t elements;                          /* that the hook saw */
} model;

/* The all-reduce that is there without a hook; looks at what it is called for. */
static dpar_status hook(void *ctx, dpar_comm *c, int32_t bucket, void *data, int64_t count,
                        int32_t type, dpar_work *work)
{
    model *m = (model *)ctx;
    dpar_bucket b;
    dpar_status st;
    int32_t i;
    CHECK(dpar_ddp_bucket(m->d, bucket, &b) != NULL);
    m->wrong_order += bucket != m->sent++;
    m->elements += count;
    CHECK_INT(count, b.hi - b.lo);
    for (i = b.first; i < b.last; i++) {
        CHECK(m->is_ready[i] || m->o.unused);
    }
    st = dpar_all_reduce(c, data, data, count, type, m->o.sum ? DPAR_SUM : DPAR_AVG, work);
    return st == DPAR_OK && bucket % 2 != 0 ? DPAR_MORE : st; /* a condition is no error */
}

static void draw(model *m, uint64_t *seed)
{
    static const int32_t types[4] = {DPAR_F32, DPAR_F64, DPAR_BF16, DPAR_F16};
    int32_t i;
    memset(&m->o, 0, sizeof m->o);
    m->params = (int32_t)lot_below(seed, MOST + 1);
    for (i = 0; i < m->params; i++) {
        m->numel[i] =
            lot_below(seed, 8) == 0 ? 0 : lot_below(seed, INT64_C(1) << lot_below(seed, 13));
    }
    m->o.type = types[lot_below(seed, 4)];
    m->o.wire = m->o.type == DPAR_F64 ? DPAR_F32 : lot_below(seed, 2) ? DPAR_BF16 : DPAR_F16;
    if ((m->o.type != DPAR_F32 && m->o.type != DPAR_F64) || lot_below(seed, 2)) {
        m->o.wire = lot_below(seed, 2) ? m->o.type : DPAR_TYPE_NONE;
    }
    m->o.sum = (int32_t)lot_below(seed, 2);
    m->o.scatter = lot_below(seed, 3) == 0;
    m->o.unused = (int32_t)lot_below(seed, 2);
    m->o.finite = (int32_t)lot_below(seed, 2);
    m->o.first_bytes = lot_below(seed, 2) * (1 + lot_below(seed, 2000));
    m->o.bucket_bytes =
        lot_below(seed, 4) == 0 ? 0 : 1 + lot_below(seed, INT64_C(1) << lot_below(seed, 16));
    m->o.align = lot_below(seed, 3) == 0 ? 1 + lot_below(seed, 100) : 0;
    m->o.multiple = lot_below(seed, 3) == 0 ? 1 + lot_below(seed, 200) : 0;
    m->o.hook = !m->o.scatter && lot_below(seed, 3) == 0 ? hook : NULL;
    m->o.ctx = m;
    m->batches = 1 + (int32_t)lot_below(seed, 3);
}

/* Does rank r use parameter i in micro-batch b? */
static int uses(const model *m, uint64_t seed, int r, int b, int i)
{
    uint64_t s = seed + (uint64_t)(r * 100 + b * 10000 + i);
    return !m->o.unused || lot_below(&s, 4) > 0;
}

static void backward(model *m, int b, uint64_t seed)
{
    int32_t order[MOST], i;
    uint64_t own = seed + (uint64_t)m->c->rank * 77 + (uint64_t)b;
    int64_t e;
    CHECK_INT(dpar_ddp_begin(m->d, b == m->batches - 1), DPAR_OK);
    memset(m->is_ready, 0, sizeof m->is_ready);
    for (i = 0; i < m->params; i++) { /* about from the last to the first, each rank by itself */
        int32_t at = (int32_t)lot_below(&own, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (i = 0; i < m->params; i++) {
        const int32_t p = order[i];
        void *g = dpar_ddp_gradient(m->d, p, NULL);
        if (!uses(m, seed, m->c->rank, b, p)) {
            continue;
        }
        for (e = 0; e < m->numel[p]; e++) {
            float_put(g, e, m->o.type, float_get(g, e, m->o.type) + number(m->c->rank, b, p, e));
        }
        m->is_ready[p] = 1;
        CHECK_INT(dpar_ddp_ready(m->d, p), DPAR_OK);
    }
    CHECK_INT(dpar_ddp_end(m->d), DPAR_OK);
}

/* Largest relative error of an average. */
static double rounding(const model *m)
{
    const int32_t t = m->o.wire ? m->o.wire : m->o.type;
    return t == DPAR_F64 ? 0.0 : t == DPAR_F32 ? 6e-8 : t == DPAR_F16 ? 4.9e-4 : 3.95e-3;
}

static void compare(const model *m, uint64_t seed)
{
    int32_t i, k;
    int r, b;
    int64_t e;
    for (k = 0, i = 0; i < m->params; i++) {
        int used = -1;
        const void *g = dpar_ddp_gradient(m->d, i, &used);
        dpar_bucket bucket;
        dpar_piece piece;
        int any = 0, mine = 0;
        piece.in_param = 0;
        piece.count = m->numel[i];
        for (k = 0;
             dpar_ddp_bucket(m->d, k, &bucket) != NULL && !(bucket.first <= i && i < bucket.last);
             k++) {
        }
        if (m->o.scatter) { /* starts as the header says: bytes of the view into the buffer */
            const int64_t start =
                ((const unsigned char *)g - (const unsigned char *)dpar_ddp_bucket(m->d, 0, NULL)) /
                dpar_type_bytes(m->o.type);
            if (!dpar_bucket_piece(&bucket, m->c->size, start, m->numel[i], m->c->rank, &piece)) {
                piece.count = 0;
            }
        }
        for (e = piece.in_param; e < piece.in_param + piece.count; e++) {
            double sum = 0.0;
            for (r = 0; r < m->c->size; r++) {
                for (b = 0; b < m->batches; b++) {
                    sum += uses(m, seed, r, b, i) ? number(r, b, i, e) : 0;
                }
            }
            if (m->o.sum) {
                CHECK(float_get(g, e, m->o.type) == sum);
            } else {
                CHECK_NEAR(float_get(g, e, m->o.type), sum / m->c->size, rounding(m));
            }
        }
        for (b = 0; b < m->batches; b++) {
            mine |= uses(m, seed, m->c->rank, b, i);
            for (r = 0; r < m->c->size; r++) {
                any |= uses(m, seed, r, b, i);
            }
        }
        CHECK_INT(used, m->o.unused ? any : mine);
    }
}

static void random_case(dpar_comm *c, uint64_t seed)
{
    model m;
    void *memory = NULL;
    int64_t bytes = 0, sum = 0;
    dpar_why why;
    dpar_bucket b;
    int32_t step, k;
    uint64_t s = seed;
    memset(&m, 0, sizeof m);
    m.c = c;
    draw(&m, &s);
    m.o.params = m.params;
    m.o.numel = m.numel;
    CHECK_INT(dpar_ddp_bytes(c, &m.o, &bytes, &why), DPAR_OK);
    CHECK_INT(dpar_comm_alloc(c, bytes, &memory), DPAR_OK);
    memset(memory, 0xa5, (size_t)bytes);
    CHECK_INT(dpar_ddp_init(memory, bytes, c, &m.o, &m.d, &why), DPAR_OK);
    for (step = 0; step < 2; step++) {
        int i;
        m.sent = m.wrong_order = 0;
        m.elements = 0;
        dpar_ddp_zero(m.d);
        for (i = 0; i < m.batches; i++) {
            CHECK_INT(m.sent, 0);
            backward(&m, i, seed + (uint64_t)step);
        }
        for (k = 0, sum = 0; dpar_ddp_bucket(m.d, k, &b) != NULL; k++) {
            sum += b.hi - b.lo;
        }
        CHECK((k == 0 || dpar_ddp_bucket(m.d, k - 1, NULL) != NULL) &&
              dpar_ddp_bucket(m.d, k, NULL) == NULL);
        if (m.o.hook != NULL) { /* all buckets, each once, in their order */
            CHECK_INT(m.sent, k);
            CHECK_INT(m.wrong_order, 0);
            CHECK_INT(m.elements, sum);
        }
        compare(&m, seed + (uint64_t)step);
    }
    CHECK(dpar_ddp_gradient(m.d, -1, NULL) == NULL &&
          dpar_ddp_gradient(m.d, m.params, NULL) == NULL);
    CHECK_INT(dpar_ddp_close(m.d), DPAR_OK);
    dpar_ddp_zero(m.d); /* its memory is others' now */
    CHECK(dpar_ddp_gradient(m.d, 0, NULL) == NULL && dpar_ddp_bucket(m.d, 0, NULL) == NULL);
    CHECK_INT(dpar_ddp_close(m.d), DPAR_OK);
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    dpar_comm_release(c, memory);
}

/* ---- what it refuses --------------------------------------------------------------------------
 */

static const char *const few_names[3] = {"wte", "h.0.weight", "h.0.bias"};

typedef struct few {
    dpar_comm *c;
    dpar_ddp *d;
    void *memory;
    int64_t numel[3], bytes;
    dpar_ddp_desc o;
    dpar_why why;
} few;

/* Three parameters of 1000, 20 and 3 elements on a communicator of their own. */
static dpar_status few_open(few *w, dpar_comm *world, int32_t finite, int32_t wire)
{
    memset(w, 0, sizeof *w);
    w->numel[0] = 1000;
    w->numel[1] = 20;
    w->numel[2] = 3;
    w->o.params = 3;
    w->o.numel = w->numel;
    w->o.type = DPAR_F32;
    w->o.names = few_names;
    w->o.finite = finite;
    w->o.wire = wire;
    CHECK_INT(dpar_comm_split(world, 0, 0, &w->c), DPAR_OK);
    CHECK_INT(dpar_ddp_bytes(w->c, &w->o, &w->bytes, &w->why), DPAR_OK);
    CHECK_INT(dpar_comm_alloc(w->c, w->bytes, &w->memory), DPAR_OK);
    memset(w->memory, 0xa5, (size_t)w->bytes); /* what lies there before is of no meaning */
    return dpar_ddp_init(w->memory, w->bytes, w->c, &w->o, &w->d, &w->why);
}

static void few_close(few *w)
{
    CHECK_INT(dpar_ddp_close(w->d), DPAR_OK);
    dpar_comm_release(w->c, w->memory);
    (void)dpar_comm_free(w->c);
}

static void in_order(dpar_comm *world)
{
    few w;
    CHECK_INT(few_open(&w, world, 0, 0), DPAR_OK);
    CHECK_INT(dpar_ddp_end(w.d), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_ready(w.d, 0), DPAR_E_ARG);
    CHECK_TEXT(w.c->why.text, "ddp: parameter 0 of 3 is ready outside of a pass");
    CHECK_INT(dpar_ddp_begin(w.d, 1), DPAR_OK);
    CHECK_INT(dpar_ddp_begin(w.d, 1), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_close(w.d), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_ready(w.d, 3), DPAR_E_ARG);
    CHECK_TEXT(w.c->why.text, "ddp: parameter 3 of 3 is ready: there is none");
    CHECK_INT(dpar_ddp_ready(w.d, 2), DPAR_OK);
    CHECK_INT(dpar_ddp_ready(w.d, 2), DPAR_E_ARG);
    CHECK_TEXT(w.c->why.text, "ddp: parameter 2 of 3 is ready for the second time in a pass");
    CHECK_INT(dpar_ddp_ready(w.d, 0), DPAR_OK);
    CHECK_INT(dpar_ddp_ready(w.d, 1), DPAR_OK);
    CHECK_INT(dpar_ddp_end(w.d), DPAR_OK);
    few_close(&w);
}

/* The last rank leaves two gradients out: all hear which. */
static void missing(dpar_comm *world)
{
    few w;
    char expected[200];
    const int last = world->size - 1;
    CHECK_INT(few_open(&w, world, 0, 0), DPAR_OK);
    (void)dpar_ddp_begin(w.d, 1); /* the last may have given up already */
    (void)dpar_ddp_ready(w.d, 0);
    if (world->rank != last) {
        (void)dpar_ddp_ready(w.d, 1);
        (void)dpar_ddp_ready(w.d, 2);
    }
    CHECK_INT(dpar_ddp_end(w.d), DPAR_E_ARG);
    (void)snprintf(expected, sizeof expected,
                   "ddp: rank %d has no gradient of 'h.0.weight', 'h.0.bias' (options.unused = 1 "
                   "lets them be without)",
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
    st = dpar_ddp_begin(w.d, 1); /* rank 0 may have given up already */
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
    CHECK_INT(dpar_ddp_begin(w.d, 1), DPAR_E_ARG); /* broken: nothing begins */
    few_close(&w);
}

#if !defined(USE_MPI) && !defined(DEVICE_MEMORY)
/* Rounded as they are added on all ranks but the last, which adds as many f32 as they are: the
 * sentence tells one from the other. */
static void other_wire(dpar_comm *world)
{
    few w;
    dpar_bucket b;
    CHECK_INT(few_open(&w, world, 0, DPAR_BF16), DPAR_OK);
    CHECK(dpar_ddp_bucket(w.d, 0, &b) != NULL);
    if (world->rank == world->size - 1) {
        CHECK_INT(dpar_all_reduce(w.c, dpar_ddp_bucket(w.d, 0, NULL), dpar_ddp_bucket(w.d, 0, NULL),
                                  b.hi - b.lo, DPAR_F32, DPAR_AVG, NULL),
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

/* What one rank gets wrong all hear of, and the communicator goes on. */
static void wrong_plans(dpar_comm *c)
{
    int64_t numel[2] = {5, 6}, bytes = 0;
    dpar_ddp_desc o;
    dpar_ddp *d = NULL;
    dpar_why why;
    void *memory = NULL;
    memset(&o, 0, sizeof o);
    o.params = 2;
    o.numel = numel;
    o.type = DPAR_F32;
    CHECK_INT(dpar_ddp_bytes(c, &o, &bytes, &why), DPAR_OK);
    CHECK_INT(dpar_comm_alloc(c, bytes, &memory), DPAR_OK);
    numel[1] += c->rank == c->size - 1;
    CHECK_INT(dpar_ddp_init(memory, bytes, c, &o, &d, &why),
              c->size > 1 ? DPAR_E_MISMATCH : DPAR_OK);
    CHECK(c->size == 1 || says_who_differs(why.text, (int)c->size, "ddp: numel[1]", "6", "7"));
    CHECK_INT(dpar_ddp_close(d), DPAR_OK);
    numel[1] = 6;
    CHECK_INT(dpar_ddp_init(memory, bytes - (c->rank == 0), c, &o, &d, &why), DPAR_E_ROOM);
    CHECK(c->rank == 0 || strncmp(why.text, "rank 0: ddp: ", 13) == 0);
    numel[0] = c->rank == 0 ? -1 : 5;
    CHECK_INT(dpar_ddp_init(memory, bytes, c, &o, &d, &why), DPAR_E_ARG);
    numel[0] = numel[1] = INT64_C(1) << 62;
    CHECK_INT(dpar_ddp_init(memory, bytes, c, &o, &d, &why), DPAR_E_RANGE);
    numel[0] = numel[1] = 5;
    o.type = DPAR_I32;
    CHECK_INT(dpar_ddp_bytes(c, &o, &bytes, &why), DPAR_E_ARG);
    o.type = DPAR_F16;
    o.wire = DPAR_F32;
    CHECK_INT(dpar_ddp_bytes(c, &o, &bytes, &why), DPAR_E_ARG);
    o.wire = DPAR_TYPE_NONE;
    o.bucket_bytes = -1;
    CHECK_INT(dpar_ddp_bytes(c, &o, &bytes, &why), DPAR_E_ARG);
    o.bucket_bytes = 0;
    o.numel = NULL;
    CHECK_INT(dpar_ddp_bytes(c, &o, &bytes, &why), DPAR_E_ARG);
    o.numel = numel;
    o.params = -1;
    CHECK_INT(dpar_ddp_bytes(c, &o, &bytes, &why), DPAR_E_ARG);
    o.params = 2;
    CHECK_INT(dpar_ddp_bytes(c, NULL, &bytes, &why), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_bytes(NULL, &o, &bytes, &why), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_bytes(NULL, &o, NULL, &why), DPAR_E_ARG);
    o.finite = c->rank == c->size - 1; /* one alone would look */
    CHECK_INT(dpar_ddp_bytes(c, &o, &bytes, &why), DPAR_OK);
    CHECK_INT(dpar_ddp_init(memory, bytes, c, &o, &d, &why),
              c->size > 1 ? DPAR_E_MISMATCH : DPAR_OK);
    o.finite = 0;
    o.unused = 2;
    CHECK_INT(dpar_ddp_bytes(c, &o, &bytes, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "ddp: sum 0, scatter 0, unused 2, finite 0: each 0 or 1");
    CHECK_INT(dpar_ddp_close(NULL), DPAR_OK);
    CHECK_INT(dpar_ddp_begin(NULL, 1), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_ready(NULL, 1), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_end(NULL), DPAR_E_ARG);
    dpar_comm_release(c, memory);
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
#if !defined(USE_MPI) && !defined(DEVICE_CUDA) /* one breaks while others go on */
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
