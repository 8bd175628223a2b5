/* SPDX-License-Identifier: MIT-0 */
/* ddp_codes: tests gradients that are sent as 8-bit codes, on real ranks with random models, types,
 * buckets and magnitudes. I8 codes are computed again here, from their definition in layers.h, and
 * must give the same bits. The error of I8 and F8 must be within the bound that ddp.h documents.
 *
 *   ddp_codes [processes|threads] [ranks]      without arguments: both, 1 to 6 ranks
 *   mpirun -np 4 ddp_codes                     built with -DUSE_MPI */
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

enum { MOST = 8, CASES = 16, BLOCK = 256, LONGEST = 1 << 12 };

/* Where gradients are stored: in a flat array, in one array per parameter, or in dpar's memory. */
enum { FLAT, ARRAYS, OF_DPAR, FORMS };

/* Returns the gradient of element e of all parameters on rank r. Its magnitude changes from one
 * block to the next, and some blocks are 0. */
static double value(uint64_t seed, int r, int64_t e, int32_t type)
{
    uint64_t s = seed * 1000003u + (uint64_t)r * 7919u + (uint64_t)e;
    uint64_t of_block = seed + (uint64_t)(e / 100);
    double store = 0.0, v;
    if (lot_below(&of_block, 8) == 0) {
        return 0.0;
    }
    v = ((double)lot_below(&s, 2000001) - 1e6) * 1e-6;
    v = ldexp(v, (int)lot_below(&of_block, 12) - 8);
    float_put(&store, 0, type, v);
    return float_get(&store, 0, type);
}

/* Rounds x[n] of one block to I8 codes and back, in F32. */
static void round_i8(float *x, int64_t n)
{
    float most = 0.0f, scale;
    for (int64_t i = 0; i < n; i++) {
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    }
    scale = most / 127.0f;
    for (int64_t i = 0; i < n; i++) {
        float code = scale < 1.17549435e-38f ? 0.0f : rintf(x[i] / scale);
        code = code > 127.0f ? 127.0f : code < -127.0f ? -127.0f : code;
        x[i] = scale < 1.17549435e-38f ? 0.0f : code * scale;
    }
}

/* Returns the largest error of the code of x in a block whose largest absolute value is `most`. The
 * last term allows for the rounding of the scale and of the product in F32. */
static double bound(double x, double most, int32_t code_type)
{
    const double f8 = fmax(fabs(x) / 16.0, ldexp(most, -18));
    return (code_type == DPAR_I8 ? most / 254.0 : f8) + most * 3e-7;
}

static double largest(const float *x, int64_t n)
{
    double most = 0.0;
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)x[i]));
    }
    return most;
}

typedef struct model {
    dpar_comm *c;
    dpar_ddp *d;
    dpar_ddp_desc o;
    int64_t count[MOST], start[MOST + 1];
    int32_t form;
    void *memory, *array[MOST];
    uint64_t seed;
} model;

/* Checks n gradients of one block, the first of which is element `first` of all parameters. */
static int64_t wrong_in_block(const model *m, int64_t first, int64_t n, const double *got)
{
    float sum[BLOCK], one[BLOCK], rounded[BLOCK];
    double error[BLOCK], exact[BLOCK];
    const int size = m->c->size;
    const double part = m->o.sum ? 1.0 : 1.0 / size;
    int64_t wrong = 0, i;
    double most;
    for (i = 0; i < n; i++) {
        sum[i] = 0.0f;
        error[i] = exact[i] = 0.0;
    }
    for (int r = 0; r < size; r++) {
        for (i = 0; i < n; i++) {
            one[i] = (float)value(m->seed, r, first + i, m->o.type);
            exact[i] += (double)one[i] * part;
        }
        most = largest(one, n);
        for (i = 0; i < n; i++) {
            error[i] += bound((double)one[i], most, m->o.wire_type) * part;
        }
        round_i8(one, n);
        for (i = 0; i < n; i++) {
            sum[i] = r == 0 ? one[i] : (float)((double)sum[i] + (double)one[i]);
        }
    }
    for (i = 0; i < n; i++) {
        sum[i] = m->o.sum ? sum[i] : sum[i] * (float)part;
        rounded[i] = sum[i];
    }
    round_i8(rounded, n);
    most = 0.0;
    for (i = 0; i < n; i++) {
        most = fmax(most, fabs(exact[i]) + error[i]);
    }
    for (i = 0; i < n; i++) {
        double store = 0.0, want;
        const double off = error[i] + bound(fabs(exact[i]) + error[i], most, m->o.wire_type);
        const double last = m->o.type == DPAR_F16 || m->o.type == DPAR_BF16 ? 4e-3 : 1e-7;
        float_put(&store, 0, m->o.type, (double)rounded[i]);
        want = float_get(&store, 0, m->o.type);
        wrong += m->o.wire_type == DPAR_I8 && got[i] != want;
        wrong += !(fabs(got[i] - exact[i]) <= off + last * fabs(got[i]));
    }
    return wrong;
}

/* Compares the averages of a ddp whose elements are at the same places as in the flat array. */
static void compare(const model *m)
{
    double *got = (double *)zeroed(LONGEST * MOST * 8);
    dpar_bucket bucket[MOST];
    int64_t start[MOST], wrong = 0;
    int32_t buckets = 0, i, k;
    const int64_t each = dpar_type_bytes(m->o.type);
    dpar_buckets_desc how;
    memset(&how, 0, sizeof how);
    how.params = m->o.params;
    how.count = m->count;
    how.first = (m->o.first_bucket_bytes + each - 1) / each;
    how.size = (m->o.bucket_bytes + each - 1) / each;
    how.align = 1;
    CHECK_INT(dpar_buckets_init(&how, start, bucket, MOST, &buckets, NULL), DPAR_OK);
    for (i = 0; i < m->o.params; i++) {
        const void *gradient = dpar_ddp_gradient(m->d, i, NULL);
        for (int64_t e = 0; e < m->count[i]; e++) {
            got[m->start[i] + e] = float_get(gradient, e, m->o.type);
        }
    }
    for (k = 0; k < buckets; k++) {
        const int64_t low = m->start[bucket[k].first_param], high = m->start[bucket[k].end_param];
        for (int64_t b = low; b < high; b += BLOCK) {
            wrong += wrong_in_block(m, b, high - b < BLOCK ? high - b : BLOCK, got + b);
        }
    }
    free(got);
    CHECK_INT(wrong, 0);
}

/* Compares averages in dpar's memory, where the places of parameters in blocks differ. The largest
 * value of the model then bounds that of each block. */
static void compare_loosely(const model *m)
{
    const int64_t all = m->start[m->o.params];
    const double part = m->o.sum ? 1.0 : 1.0 / m->c->size;
    double most = 0.0, error;
    int64_t wrong = 0;
    for (int r = 0; r < m->c->size; r++) {
        for (int64_t e = 0; e < all; e++) {
            most = fmax(most, fabs(value(m->seed, r, e, m->o.type)));
        }
    }
    error = (most + (m->o.sum ? most * m->c->size : most) * 1.1) / 14.0;
    error *= m->o.sum ? m->c->size : 1.0;
    for (int32_t i = 0; i < m->o.params; i++) {
        const void *gradient = dpar_ddp_gradient(m->d, i, NULL);
        for (int64_t e = 0; e < m->count[i]; e++) {
            double exact = 0.0;
            for (int r = 0; r < m->c->size; r++) {
                exact += value(m->seed, r, m->start[i] + e, m->o.type) * part;
            }
            wrong += !(fabs(float_get(gradient, e, m->o.type) - exact) <= error);
        }
    }
    CHECK_INT(wrong, 0);
}

static void draw(model *m, uint64_t *seed)
{
    static const int32_t types[4] = {DPAR_F32, DPAR_F64, DPAR_BF16, DPAR_F16};
    const int64_t kind = lot_below(seed, 3);
    m->o.params = (int32_t)lot_below(seed, MOST + 1);
    for (int32_t i = 0; i < m->o.params; i++) {
        m->count[i] = kind == 0 ? lot_below(seed, 40) : lot_below(seed, kind == 1 ? 700 : LONGEST);
        m->start[i + 1] = m->start[i] + m->count[i];
    }
    m->o.type = types[lot_below(seed, 4)];
    m->o.wire_type = lot_below(seed, 2) ? DPAR_I8 : DPAR_F8;
    m->o.sum = (int32_t)lot_below(seed, 2);
    m->o.first_bucket_bytes = 1 + lot_below(seed, 4000);
    m->o.bucket_bytes = 1 + lot_below(seed, 20000);
    m->o.count = m->count;
}

static void place(model *m)
{
    const int64_t each = dpar_type_bytes(m->o.type);
    const int64_t bytes = (m->start[m->o.params] + MOST) * each;
    if (ELSEWHERE || m->seed % 2 == 0) {
        CHECK_INT(dpar_comm_alloc(m->c, bytes, &m->memory), DPAR_OK);
        memset(m->memory, 0, (size_t)bytes);
    } else {
        m->memory = zeroed(bytes);
    }
    for (int32_t i = 0; i < m->o.params; i++) {
        m->array[i] = (char *)m->memory + (m->start[i] + i) * each;
    }
    if (m->form == ARRAYS) {
        m->o.arrays = m->array;
    } else {
        m->o.gradients = m->memory;
    }
}

/* Runs two steps. The parameters become ready in another order on each rank. */
static void random_case(dpar_comm *c, uint64_t seed, int32_t form)
{
    model m;
    uint64_t s = seed, own = seed + (uint64_t)c->rank * 77;
    memset(&m, 0, sizeof m);
    m.c = c;
    m.form = form;
    draw(&m, &s);
    m.seed = seed;
    if (form != OF_DPAR) {
        place(&m);
    }
    CHECK_INT(dpar_ddp_make(c, &m.o, &m.d, NULL), DPAR_OK);
    for (int step = 0; step < 2 && failures() == 0; step++) {
        m.seed = seed + (uint64_t)step * 500;
        dpar_ddp_zero(m.d);
        for (int32_t i = m.o.params - 1; i >= 0; i--) {
            void *gradient = dpar_ddp_gradient(m.d, i, NULL);
            for (int64_t e = 0; e < m.count[i]; e++) {
                float_put(gradient, e, m.o.type, value(m.seed, c->rank, m.start[i] + e, m.o.type));
            }
            if (lot_below(&own, 4) > 0) { /* dpar_ddp_end sends the others */
                CHECK_INT(dpar_ddp_ready(m.d, i), DPAR_OK);
            }
        }
        CHECK_INT(dpar_ddp_end(m.d), DPAR_OK);
        if (form == OF_DPAR) {
            compare_loosely(&m);
        } else {
            compare(&m);
        }
    }
    m.seed = seed;
    CHECK_INT(dpar_ddp_free(m.d), DPAR_OK);
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    if (m.memory != NULL && (ELSEWHERE || seed % 2 == 0)) {
        dpar_comm_release(c, m.memory);
    } else {
        free(m.memory);
    }
}

/* A NaN on one rank makes its block NaN on all ranks, and no other block. */
static void not_a_number(dpar_comm *c)
{
    int64_t count = 1000, i, wrong = 0;
    dpar_ddp_desc o;
    dpar_ddp *d = NULL;
    float *g;
    memset(&o, 0, sizeof o);
    o.params = 1;
    o.count = &count;
    o.type = DPAR_F32;
    o.wire_type = DPAR_I8;
    CHECK_INT(dpar_ddp_make(c, &o, &d, NULL), DPAR_OK);
    g = (float *)dpar_ddp_gradient(d, 0, NULL);
    for (i = 0; i < count; i++) {
        g[i] = 1.0f;
    }
    if (c->rank == c->size - 1) {
        g[300] = NAN;
    }
    CHECK_INT(dpar_ddp_end(d), DPAR_OK);
    for (i = 0; i < count; i++) {
        const int lost = i / BLOCK == 300 / BLOCK;
        wrong += lost ? !isnan(g[i]) : fabsf(g[i] - 1.0f) > 1e-6f;
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(dpar_ddp_free(d), DPAR_OK);
}

/* The gaps between parameters in dpar's memory stay 0. If they kept the NaN of their block, the
 * gradients of a code that overwrites them in the next step would be NaN again. */
static void not_a_number_in_gaps(dpar_comm *c)
{
    static const int32_t wire[2] = {DPAR_I8, DPAR_F8};
    int64_t count[3] = {10, 0, 100};
    for (int k = 0; k < 2; k++) {
        dpar_ddp_desc o;
        dpar_ddp *d = NULL;
        memset(&o, 0, sizeof o);
        o.params = 3;
        o.count = count;
        o.type = DPAR_F32;
        o.wire_type = wire[k];
        CHECK_INT(dpar_ddp_make(c, &o, &d, NULL), DPAR_OK);
        for (int step = 0; step < 2; step++) {
            int64_t wrong = 0;
            for (int32_t i = 0; i < 3; i++) {
                float *g = (float *)dpar_ddp_gradient(d, i, NULL);
                for (int64_t e = 0; e < count[i]; e++) {
                    g[e] = step == 0 && i == 2 && e == 3 && c->rank == 0 ? INFINITY : 1.0f;
                }
            }
            CHECK_INT(dpar_ddp_end(d), DPAR_OK);
            for (int32_t i = 0; i < 3; i++) {
                const float *g = (const float *)dpar_ddp_gradient(d, i, NULL);
                for (int64_t e = 0; e < count[i]; e++) {
                    wrong += step == 0 ? !isnan(g[e]) : !(fabsf(g[e] - 1.0f) < 1e-6f);
                }
            }
            CHECK_INT(wrong, 0);
        }
        CHECK_INT(dpar_ddp_free(d), DPAR_OK);
    }
}

static dpar_status no_hook(void *ctx, dpar_comm *c, int32_t bucket, void *data, int64_t count,
                           int32_t type, dpar_work *work)
{
    (void)ctx;
    (void)bucket;
    return dpar_all_reduce(c, data, data, count, type, DPAR_SUM, work);
}

static void refused(dpar_comm *c)
{
    int64_t count = 10;
    dpar_ddp_desc o;
    dpar_ddp *d = NULL;
    dpar_why why;
    memset(&o, 0, sizeof o);
    o.params = 1;
    o.count = &count;
    o.type = DPAR_F32;
    o.wire_type = DPAR_F8;
    o.hook = no_hook;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dpar_ddp_make: wire_type is f8, which excludes a hook");
    o.hook = NULL;
    o.wire_type = DPAR_U8;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "all types as i8 or f8") != NULL);
    CHECK(d == NULL);
}

static int everything(dpar_comm *c, void *arg)
{
    (void)arg;
#ifdef DEVICE_MEMORY
    device_begin((size_t)1 << 26);
    c = device_take(c);
#endif
    for (int i = 0; i < CASES && failures() == 0; i++) {
        for (int32_t form = 0; form < FORMS && failures() == 0; form++) {
            random_case(c, (uint64_t)i, form);
            if (failures() > 0) {
                printf("case %d, form %d on rank %d of %d\n", i, (int)form, c->rank, c->size);
            }
        }
    }
    not_a_number(c);
    not_a_number_in_gaps(c);
    refused(c);
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
