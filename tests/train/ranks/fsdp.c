/* SPDX-License-Identifier: MIT-0 */
/* fsdp: tests fully sharded data parallelism on real ranks.
 *
 *   - Random models, stages, types, meshes and prefetches with gradients that are small whole
 *     numbers. Sums are exact in each type, so that masters, moments and the weights that forward
 *     uses must agree bit for bit with dpar_optimizer_step on whole arrays (tests/host/optimizer.c
 *     checks its formulas).
 *   - A chain of layers trained for 20 steps, compared with a training written out here in plain C.
 *   - Random sequences of micro-batches that leave units out, zero gradients and read sums,
 *     compared with plain addition.
 *   - Checkpoints from M ranks to N.
 *   - Bytes sent and bytes registered, counted below the library, compared with formulas.
 *
 *   fsdp [processes|threads] [ranks]     without arguments: both, 1 to 8 ranks
 *   mpirun -np 4 fsdp                    built with -DUSE_MPI */
#include "dpar_train.h"
#include "rank_program.h"

#include "optimizers.h"
#ifdef DEVICE_CUDA
#define FEW 1 /* simulated devices are slow */
#else
#define FEW 0
#endif
#ifdef DEVICE_MEMORY
#include "device_memory.h"
#define dpar_fsdp_make(c, o, f, w) (dpar_status) ON_DEVICE(dpar_fsdp_make(c, o, f, w))
#define dpar_fsdp_set(f, i, x) (dpar_status) ON_DEVICE(dpar_fsdp_set(f, i, x))
#define dpar_fsdp_zero(f) (void)ON_DEVICE((dpar_fsdp_zero(f), 0))
#define dpar_fsdp_begin(f, l) (dpar_status) ON_DEVICE(dpar_fsdp_begin(f, l))
#define dpar_fsdp_unshard(f, u, d) (dpar_status) ON_DEVICE(dpar_fsdp_unshard(f, u, d))
#define dpar_fsdp_reshard(f, u, d) (dpar_status) ON_DEVICE(dpar_fsdp_reshard(f, u, d))
#define dpar_fsdp_ready(f, u) (dpar_status) ON_DEVICE(dpar_fsdp_ready(f, u))
#define dpar_fsdp_end(f) (dpar_status) ON_DEVICE(dpar_fsdp_end(f))
#define dpar_fsdp_norm(f, n) (dpar_status) ON_DEVICE(dpar_fsdp_norm(f, n))
#define dpar_fsdp_update(f, n) (dpar_status) ON_DEVICE(dpar_fsdp_update(f, n))
#define dpar_fsdp_step(f, r, x) (dpar_status) ON_DEVICE(dpar_fsdp_step(f, r, x))
#define dpar_fsdp_load(f, n, s, r, x, w) (dpar_status) ON_DEVICE(dpar_fsdp_load(f, n, s, r, x, w))
#define dpar_fsdp_state(f, a, u, n, t)                                                             \
    (void *)(intptr_t)ON_DEVICE((intptr_t)dpar_fsdp_state(f, a, u, n, t))
#define dpar_fsdp_free(f) (dpar_status) ON_DEVICE(dpar_fsdp_free(f))
#define dpar_comm_alloc(c, bytes, memory) host_alloc(c, bytes, memory)
#define dpar_comm_release(c, memory) free(memory)
#endif
#ifdef DEVICE_CUDA /* NCCL requires that both buffers of a call are in the same kind of memory */
#define gather_unit(m, a, u, room) (dpar_status) ON_DEVICE(gather_unit(m, a, u, room))
#define dpar_broadcast(c, x, n, type, root, work)                                                  \
    (dpar_status) ON_DEVICE(dpar_broadcast(c, x, n, type, root, work))
#define dpar_redistribute(c, move, why) (dpar_status) ON_DEVICE(dpar_redistribute(c, move, why))
#else
#define device_zeroed(bytes) calloc(1, (size_t)(bytes))
#define device_free(at) free(at)
#endif

/* Makes an fsdp whose bookkeeping is in the test's memory. */
static dpar_status make_in(void *memory, int64_t bytes, dpar_comm *c, const dpar_fsdp_desc *o,
                           dpar_fsdp **f, dpar_why *why)
{
    dpar_fsdp_desc desc = *o;
    desc.memory = memory;
    desc.bytes = bytes;
    return dpar_fsdp_make(c, &desc, f, why);
}

enum {
    UNITS = 7,
    MOST = 3 * UNITS,
    LARGE = 700,
    CASES = 60,
    GROUPS = 4,
    SEQUENCES = 40,
    ROUNDS = 8
};

/* All ways to arrange the ranks as shards x replicas. */
typedef struct world {
    dpar_comm *c;
    dpar_comm *shard[GROUPS], *replicas[GROUPS];
    int32_t ways;
} world;

/* Returns the gradient that micro-batch m of rank r adds to element e of parameter i in a step. */
static int number(int step, int r, int m, int i, int64_t e)
{
    uint32_t h = (uint32_t)r * 7919u + (uint32_t)m * 104729u + (uint32_t)i * 1299709u +
                 (uint32_t)e * 31u + (uint32_t)step * 15485863u;
    h = (h ^ h >> 15) * 0x2c1b3c6du;
    return (int)((h ^ h >> 12) % 7u) - 3;
}

/* ---- calls of the engine --------------------------------------------------------------------- */

static __thread struct counts {
    dpar_engine engine;
    int64_t gathered, reduced; /* bytes of this rank's own piece */
    int64_t gathers, reduces;
    int64_t registered; /* bytes that are registered now */
    int64_t allocations;
} counted;

static void count_call(dpar_comm *c, const dpar_call *call)
{
    (void)c;
    if (call->kind == DPAR_CALL_ALL_GATHER) {
        counted.gathered += call->count * dpar_type_bytes(call->type);
        counted.gathers++;
    } else if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
        counted.reduced += call->count * dpar_type_bytes(call->type);
        counted.reduces++;
    }
}

static dpar_status count_run(dpar_comm *c, const dpar_call *call)
{
    count_call(c, call);
    return counted.engine.run(c, call);
}

static dpar_status count_post(dpar_comm *c, const dpar_call *call, dpar_work *work)
{
    count_call(c, call);
    return counted.engine.post(c, call, work);
}

static dpar_status count_alloc(dpar_comm *c, int64_t bytes, void **memory)
{
    counted.registered += bytes;
    counted.allocations++;
    return counted.engine.alloc(c, bytes, memory);
}

static void count_from(dpar_comm *c)
{
    memset(&counted, 0, sizeof counted);
    counted.engine = c->engine;
    c->engine.run = count_run;
    c->engine.post = count_post;
    c->engine.alloc = count_alloc;
}

static void count_end(dpar_comm *c)
{
    c->engine = counted.engine;
}

/* ---- random models --------------------------------------------------------------------------- */

typedef struct model {
    dpar_comm *shard, *replicas;
    dpar_fsdp *f;
    void *memory;
    int64_t bytes;
    dpar_fsdp_desc o;
    dpar_fsdp_sizes sizes;
    int32_t units, params, batches, ranks, rank;
    int32_t full;         /* 1 if no unit is empty */
    int32_t steps, began; /* began: the first step after the weights were last set */
    double clip;          /* applied in each second step; 0: never */
    int32_t params_of[UNITS], first[UNITS + 1], unit_of[MOST];
    int64_t numel[MOST], key[MOST];
    int32_t frozen[UNITS], resident[UNITS], group_of[MOST];
    dpar_fsdp_array array[MOST];
    int32_t array_of[MOST], array_group[MOST];
    void *values[MOST], *weight_of[MOST],
        *gradient_of[MOST]; /* of each array; the code's pointers */
    dpar_optimizer_group group[2];
    unsigned char *whole[MOST][DPAR_FSDP_ARRAY_COUNT]; /* the reference's masters and moments */
    double *gradient[MOST];
} model;

static int32_t moment_type(const model *m)
{
    return m->o.type == DPAR_F64             ? DPAR_F64
           : m->o.optimizer.moment_type != 0 ? DPAR_BF16
                                             : DPAR_F32;
}

static void draw_types(model *m, uint64_t *seed)
{
    static const int32_t types[10][3] = {
        {DPAR_F64, DPAR_F64, DPAR_F64},   {DPAR_F32, DPAR_F32, DPAR_F32},
        {DPAR_F64, DPAR_F32, DPAR_F32},   {DPAR_F32, DPAR_BF16, DPAR_BF16},
        {DPAR_F32, DPAR_BF16, DPAR_F32},  {DPAR_F32, DPAR_F16, DPAR_F16},
        {DPAR_BF16, DPAR_BF16, DPAR_F32}, {DPAR_F16, DPAR_F16, DPAR_F16},
        {DPAR_F32, DPAR_F32, DPAR_F64},   {DPAR_BF16, DPAR_BF16, DPAR_F64}};
    const int32_t *t = types[lot_below(seed, 10)];
    m->o.type = t[0];
    m->o.compute_type = t[1];
    m->o.gradient_type = t[2];
}

/* Draws arrays, some of them sliced, in place of the parameters. Lists their parameters unit after
 * unit, in the order of the arrays. */
static void draw_arrays(model *m, uint64_t *seed)
{
    int32_t i, u, a, params = 0;
    m->o.arrays = 1 + (int32_t)lot_below(seed, MOST / UNITS);
    m->o.array = m->array;
    m->full = 1;
    for (a = 0; a < m->o.arrays; a++) {
        dpar_fsdp_array *one = &m->array[a];
        one->unit = (int32_t)lot_below(seed, m->units);
        one->slices = (int32_t)lot_below(seed, m->units - one->unit + 1);
        one->count = lot_below(seed, 5) == 0 ? 0 : lot_below(seed, LARGE >> lot_below(seed, 9));
        for (u = one->unit; u < one->unit + one->slices; u++) {
            one->slices = m->resident[u] ? 1 : one->slices;
        }
        one->weights = lot_below(seed, 4) != 0 ? &m->weight_of[a] : NULL;
        one->gradients = lot_below(seed, 4) != 0 ? &m->gradient_of[a] : NULL;
    }
    for (u = 0; u < m->units; u++) {
        int64_t elements = 0;
        m->first[u] = params;
        for (a = 0; a < m->o.arrays; a++) {
            const int32_t slices = m->array[a].slices > 1 ? m->array[a].slices : 1;
            if (u >= m->array[a].unit && u < m->array[a].unit + slices) {
                m->array_of[params] = a;
                m->numel[params++] = m->array[a].count;
                elements += m->array[a].count;
            }
        }
        m->params_of[u] = params - m->first[u];
        m->full = m->full && elements > 0;
    }
    m->first[u] = params;
    for (i = 0; i < m->o.arrays && lot_below(seed, 4) != 0; i++) {
        m->values[i] = &m->values[i]; /* open_model allocates first values */
    }
}

/* Checks that the pointers of the arrays of unit u point to its weights and gradients. */
static void check_pointers(const model *m, int32_t u)
{
    int32_t i;
    for (i = m->first[u]; i < m->first[u + 1] && m->o.arrays > 0; i++) {
        const int32_t a = m->array_of[i];
        const uintptr_t slice = (uintptr_t)((u - m->array[a].unit) * m->numel[i]);
        const void *weight = dpar_fsdp_weight(m->f, i),
                   *gradient = dpar_fsdp_gradient(m->f, i, NULL);
        if (m->numel[i] > 0 && m->array[a].weights != NULL) {
            CHECK((uintptr_t)m->weight_of[a] +
                      slice * (uintptr_t)dpar_type_bytes(m->o.compute_type) ==
                  (uintptr_t)weight);
        }
        if (m->numel[i] > 0 && m->array[a].gradients != NULL && gradient != NULL) {
            CHECK((uintptr_t)m->gradient_of[a] +
                      slice * (uintptr_t)dpar_type_bytes(m->o.gradient_type) ==
                  (uintptr_t)gradient);
        }
    }
}

/* Checks that no pointer is left after a pass. */
static void check_no_pointers(const model *m)
{
    int32_t i, a;
    for (i = 0; i < m->params && m->o.arrays > 0; i++) {
        a = m->array_of[i];
        CHECK(m->numel[i] == 0 || m->array[a].weights == NULL || m->weight_of[a] == NULL);
        CHECK(m->numel[i] == 0 || m->array[a].gradients == NULL || m->gradient_of[a] == NULL);
    }
}

static void draw(model *m, uint64_t *seed)
{
    int64_t key = 0, at;
    int32_t u, i, full;
    m->units = (int32_t)lot_below(seed, UNITS + 1);
    draw_types(m, seed);
    m->o.zero = 1 + (int32_t)lot_below(seed, 3);
    m->o.prefetch = (int32_t)lot_below(seed, 4);
    m->o.gradient_buffers = (int32_t)lot_below(seed, 4);
    m->o.reduce_last = (int32_t)lot_below(seed, 2);
    m->o.overwrite_gradients = (int32_t)lot_below(seed, 2);
    /* averages are exact only on a power of two ranks */
    m->o.sum = (m->ranks & (m->ranks - 1)) != 0 || lot_below(seed, 2);
    m->o.align = lot_below(seed, 3) == 0 ? 1 + lot_below(seed, 9) : 0;
    m->o.optimizer = lot_below(seed, 3) > 0 ? adamw() : sgd(0.9 * (double)lot_below(seed, 2));
    m->o.optimizer.nesterov = m->o.optimizer.kind == DPAR_OPTIMIZER_SGD && lot_below(seed, 2);
    m->o.optimizer.stochastic = (int32_t)lot_below(seed, 2);
    m->o.optimizer.seed = lot_next(seed);
    m->o.optimizer.moment_type = m->o.type != DPAR_F64 && lot_below(seed, 2) ? DPAR_BF16 : 0;
    m->batches = 1 + (int32_t)lot_below(seed, 3);
    full = m->full = (int32_t)lot_below(seed, 2);
    for (u = 0, i = 0; u < m->units; u++) {
        const int32_t n = full + (int32_t)lot_below(seed, 4 - full);
        m->params_of[u] = n;
        m->first[u] = i;
        for (; i < m->first[u] + n; i++) {
            m->numel[i] =
                lot_below(seed, 5) == 0 ? 0 : lot_below(seed, LARGE >> lot_below(seed, 9));
            m->numel[i] += full && i == m->first[u];
        }
    }
    m->first[u] = i;
    if (lot_below(seed, 2) != 0) {
        m->o.resident = m->resident;
        for (u = 0; u < m->units; u++) {
            m->resident[u] = lot_below(seed, 3) == 0;
        }
    }
    if (m->units > 0 && lot_below(seed, 2) != 0) {
        draw_arrays(m, seed);
    }
    m->params = m->first[m->units];
    for (u = 0; u < m->units; u++) {
        for (i = m->first[u], at = 0; i < m->first[u + 1]; i++) {
            const int64_t align = m->o.align > 0 ? m->o.align : 1;
            at += (align - at % align) % align;
            m->unit_of[i] = u;
            m->key[i] = key + at;
            at += m->numel[i];
        }
        key += at;
    }
    if (lot_below(seed, 2) != 0) {
        m->o.frozen = m->frozen;
        for (u = 0; u < m->units; u++) {
            m->frozen[u] = lot_below(seed, 3) == 0;
        }
    }
    m->o.groups = (int32_t)lot_below(seed, 3);
    for (i = 0; i < m->params && m->o.groups > 0; i++) {
        m->group_of[i] = (int32_t)lot_below(seed, m->o.groups + 1) - 1;
        if (m->o.arrays > 0) { /* one group per array */
            m->array_group[m->array_of[i]] = m->group_of[i];
        }
    }
    for (i = 0; i < m->params && m->o.arrays > 0; i++) {
        m->group_of[i] = m->array_group[m->array_of[i]];
    }
    m->group[0].rate = 0.5;
    m->group[0].beta2 = 0.95;
    m->group[1].decay = 0.25;
    m->group[1].beta1 = 0.75;
    m->o.group = m->group;
    m->o.group_of = m->o.arrays > 0 ? m->array_group : m->group_of;
}

static void reference_open(model *m, uint64_t seed)
{
    int32_t i, a;
    int64_t e;
    for (i = 0; i < m->params; i++) {
        const size_t bytes = (size_t)(m->numel[i] + 1) * 8;
        for (a = 0; a < DPAR_FSDP_ARRAY_COUNT; a++) {
            m->whole[i][a] = (unsigned char *)calloc(1, bytes);
        }
        m->gradient[i] = (double *)calloc(1, bytes);
        for (e = 0; e < m->numel[i]; e++) {
            float_put(m->whole[i][0], e, m->o.type,
                      (double)(lot_below(&seed, 2001) - 1000) / 1000.0);
        }
    }
}

static void reference_close(model *m)
{
    int32_t i, a;
    for (i = 0; i < m->params; i++) {
        for (a = 0; a < DPAR_FSDP_ARRAY_COUNT; a++) {
            free(m->whole[i][a]);
        }
        free(m->gradient[i]);
    }
}

/* Computes the exact gradients over all ranks and micro-batches. Returns the sum of their
 * squares. */
static double reference_gradients(model *m, int step)
{
    const double scale = m->o.sum ? 1.0 : 1.0 / m->ranks;
    double squares = 0.0;
    int32_t i;
    int64_t e;
    int r, b;
    for (i = 0; i < m->params; i++) {
        for (e = 0; e < m->numel[i]; e++) {
            int sum = 0;
            for (r = 0; r < m->ranks; r++) {
                for (b = 0; b < m->batches; b++) {
                    sum += number(step, r, b, i, e);
                }
            }
            m->gradient[i][e] = m->frozen[m->unit_of[i]] ? 0.0 : sum * scale;
            squares += m->gradient[i][e] * m->gradient[i][e];
        }
    }
    return squares;
}

static void reference_step(model *m, int64_t t, double rate, double factor)
{
    int32_t i;
    for (i = 0; i < m->params; i++) {
        dpar_optimizer o = m->o.optimizer;
        dpar_optimizer_piece p;
        double scale = 1.0;
        if (m->frozen[m->unit_of[i]]) {
            continue;
        }
        if (m->o.groups > 0 && m->group_of[i] == 0) {
            o.decay = 0.0;
            o.beta2 = 0.95;
            scale = 0.5;
        } else if (m->o.groups > 0 && m->group_of[i] == 1) {
            o.decay = 0.25;
            o.beta1 = 0.75;
        }
        memset(&p, 0, sizeof p);
        p.weight = m->whole[i][0];
        p.m = m->whole[i][1];
        p.v = m->whole[i][2];
        p.gradient = m->gradient[i];
        p.weight_type = m->o.type;
        p.gradient_type = DPAR_F64;
        p.count = m->numel[i];
        p.index = (uint64_t)m->key[i];
        CHECK_INT(dpar_optimizer_step(&o, &p, t, scale * rate, factor), DPAR_OK);
    }
}

static double sum_squares(const void *x, int64_t count, int32_t type)
{
    double sum = 0.0;
    int64_t e;
    for (e = 0; e < count; e++) {
        sum += float_get(x, e, type) * float_get(x, e, type);
    }
    return sum;
}

/* Stores element e of x, a finite f32, as bf16: rounds away from zero with the probability of the
 * cut-off part. */
static void put_bf16(void *to, int64_t e, const void *x, double uniform)
{
    uint32_t bits;
    uint16_t h;
    memcpy(&bits, (const char *)x + 4 * e, sizeof bits);
    h = (uint16_t)((bits + (uint32_t)(uniform * 65536.0)) >> 16);
    memcpy((char *)to + 2 * e, &h, sizeof h);
}

/* Computes the norm again from the shards of all ranks: padding is 0 and no element counts
 * twice. */
static void check_reduced(const model *m, double squares)
{
    double sum = 0.0;
    int64_t elements;
    int32_t u, type;
    for (u = 0; u < m->units; u++) {
        const void *at = dpar_fsdp_state(m->f, DPAR_FSDP_GRADIENT, u, &elements, &type);
        sum += sum_squares(at, elements, type);
    }
    CHECK(dpar_fsdp_state(m->f, DPAR_FSDP_GRADIENT, m->units, &elements, &type) == NULL);
    CHECK_INT(elements, 0);
    CHECK_INT(dpar_all_reduce(m->shard, &sum, &sum, 1, DPAR_F64, DPAR_SUM, NULL), DPAR_OK);
    CHECK_NEAR(sum, squares, 1e-15);
}

/* Compares bit by bit. Weights of f64 from a device may differ in the last bits, because its roots
 * do. */
static int same(const void *at, const void *expected, int64_t count, int32_t type)
{
#ifdef DEVICE_CUDA
    const double *x = (const double *)at, *y = (const double *)expected;
    int64_t e = 0;
    while (type == DPAR_F64 && e < count && fabs(x[e] - y[e]) <= 1e-15 * (1.0 + fabs(y[e]))) {
        e++;
    }
    if (type == DPAR_F64) {
        return e == count;
    }
#endif
    return memcmp(at, expected, (size_t)(count * dpar_type_bytes(type))) == 0;
}

/* Compares the weights of parameter i that forward uses, bit by bit. */
static void check_weights(const model *m, int32_t i, int64_t steps)
{
    const void *w = dpar_fsdp_weight(m->f, i);
    unsigned char expected[LARGE * 8];
    int64_t e;
    CHECK(w != NULL);
    if (w == NULL) {
        return;
    }
    if (m->o.type == DPAR_F32 && m->o.compute_type == DPAR_BF16 && m->o.optimizer.stochastic &&
        !m->frozen[m->unit_of[i]]) {
        for (e = 0; e < m->numel[i]; e++) {
            put_bf16(expected, e, m->whole[i][0],
                     dpar_random_uniform(m->o.optimizer.seed, (uint64_t)steps,
                                         (uint64_t)(m->key[i] + e)));
        }
    } else {
        for (e = 0; e < m->numel[i]; e++) {
            float_put(expected, e, m->o.compute_type, float_get(m->whole[i][0], e, m->o.type));
        }
    }
    CHECK(same(w, expected, m->numel[i], m->o.compute_type));
}

/* Compares each shard of each array, bit by bit. */
static void check_state(const model *m)
{
    int32_t i, a;
    for (i = 0; i < m->params; i++) {
        dpar_piece piece;
        if (!dpar_fsdp_piece(m->f, i, &piece)) {
            continue;
        }
        for (a = 0; a <= moments_of(&m->o.optimizer); a++) {
            int32_t type;
            int64_t elements;
            const unsigned char *at =
                (const unsigned char *)dpar_fsdp_state(m->f, a, m->unit_of[i], &elements, &type);
            const int size = dpar_type_bytes(type);
            if (a > 0 && m->frozen[m->unit_of[i]]) {
                CHECK(at == NULL && elements == 0 && type == DPAR_TYPE_NONE);
                continue;
            }
            CHECK_INT(type, a == DPAR_FSDP_MASTER ? m->o.type : moment_type(m));
            CHECK(piece.in_shard + piece.count <= elements);
            CHECK(same(at + piece.in_shard * size, m->whole[i][a] + piece.in_param * size,
                       piece.count, type));
        }
    }
}

static int kept(const model *m)
{
    return m->o.zero == 1 || m->o.reduce_last;
}

/* Writes the gradients of parameter i: adds them if `adds` is set, otherwise assigns them. Checks
 * that fsdp reports which of the two is right. */
static void put_gradient(const model *m, int32_t i, int step, int me, int b, int adds)
{
    int told = -1;
    void *g = dpar_fsdp_gradient(m->f, i, &told);
    int64_t e;
    CHECK((g == NULL) == m->frozen[m->unit_of[i]]);
    CHECK(m->numel[i] == 0 || g == NULL || told == adds);
    for (e = 0; e < m->numel[i] && g != NULL; e++) {
        float_put(g, e, m->o.gradient_type,
                  (adds ? float_get(g, e, m->o.gradient_type) : 0.0) + number(step, me, b, i, e));
    }
}

/* Returns the number of units before unit u that use the pool. */
static int32_t pooled(const model *m, int32_t u)
{
    int32_t v, n = 0;
    for (v = 0; v < u; v++) {
        n += !m->resident[v];
    }
    return n;
}

/* Returns 1 if the weights of frozen unit u are still gathered from the step before. */
static int stays(const model *m, int step, int32_t u)
{
    return m->frozen[u] && step > m->began &&
           (m->o.zero < 3 || m->resident[u] || pooled(m, u) <= m->o.prefetch);
}

static void pass(model *m, int step, int b, int me)
{
    int32_t u, i, v;
    CHECK_INT(dpar_fsdp_begin(m->f, b == m->batches - 1), DPAR_OK);
    for (u = 0; u < m->units; u++) {
        CHECK_INT(dpar_fsdp_unshard(m->f, u, DPAR_ACTION_FORWARD), DPAR_OK);
        if (b == 0 && m->full) { /* this unit and those that are prefetched have been gathered */
            int32_t ahead = 0;
            for (v = 0; v < m->units; v++) {
                ahead += (m->resident[v] || v <= u + m->o.prefetch) && !stays(m, step, v);
            }
            CHECK_INT(counted.gathers, ahead);
        }
        for (i = m->first[u]; i < m->first[u + 1]; i++) {
            check_weights(m, i, m->steps);
            CHECK((dpar_fsdp_gradient(m->f, i, NULL) == NULL) == (!m->resident[u] || m->frozen[u]));
        }
        check_pointers(m, u);
        CHECK_INT(dpar_fsdp_reshard(m->f, u, DPAR_ACTION_FORWARD), DPAR_OK);
    }
    for (u = m->units - 1; u >= 0; u--) {
        CHECK_INT(dpar_fsdp_unshard(m->f, u, DPAR_ACTION_BACKWARD), DPAR_OK);
        for (i = m->first[u]; i < m->first[u + 1]; i++) {
            check_weights(m, i, m->steps);
            put_gradient(m, i, step, me, b,
                         !m->o.overwrite_gradients || m->resident[u] || (kept(m) && b > 0));
        }
        check_pointers(m, u);
        CHECK_INT(dpar_fsdp_reshard(m->f, u, DPAR_ACTION_BACKWARD), DPAR_OK);
        if (m->resident[u] ? u % 3 == 0 : !m->frozen[u] || u % 2 == 0) {
            CHECK_INT(dpar_fsdp_ready(m->f, u), DPAR_OK);
        }
        CHECK(m->first[u] == m->first[u + 1] || m->resident[u] ||
              dpar_fsdp_weight(m->f, m->first[u]) == NULL);
    }
    CHECK_INT(dpar_fsdp_end(m->f), DPAR_OK);
    check_no_pointers(m);
}

/* Returns the elements per rank of unit u on a number of ranks, from its layout. */
static int64_t shard_of(const model *m, int32_t u, int32_t ranks)
{
    dpar_layout layout;
    CHECK_INT(dpar_fsdp_layout(m->f, u, 0, ranks, &layout, NULL), DPAR_OK);
    return (layout.extent[0] + ranks - 1) / ranks;
}

/* Compares the bytes of a step with formulas. The first pass gathers all units. Each later pass
 * finds the prefetch + 1 units that were visited last still gathered. Units without elements cost
 * nothing. */
static void check_wire(const model *m, int step)
{
    int64_t gathered = 0, reduced = 0, reduces = 0, gathers = 0;
    int32_t u, way, ranks = m->shard->size, empty = 0;
    for (u = 0; u < m->units; u++) {
        empty += shard_of(m, u, ranks) == 0;
    }
    for (u = 0; u < m->units; u++) {
        const int64_t shard = shard_of(m, u, ranks);
        if (shard == 0) {
            continue;
        }
        for (way = 0; way < 2 * m->batches; way++) {
            const int32_t at = way % 2 == 0 ? pooled(m, u) : pooled(m, m->units) - 1 - pooled(m, u);
            const int again = way == 0 ? !stays(m, step, u)
                                       : m->o.zero == 3 && !m->resident[u] && at > m->o.prefetch;
            gathers += again;
            gathered += again ? shard * dpar_type_bytes(m->o.compute_type) : 0;
        }
        if (m->frozen[u]) {
            continue;
        }
        reduces += kept(m) ? 1 : m->batches;
        reduced += (kept(m) ? 1 : m->batches) * shard * dpar_type_bytes(m->o.gradient_type);
    }
    CHECK_INT(counted.reduces, reduces);
    CHECK_INT(counted.reduced, reduced);
    if (empty == 0) {
        CHECK_INT(counted.gathers, gathers);
        CHECK_INT(counted.gathered, gathered);
    }
}

static void train(model *m, int from, int to, int me, int wire)
{
    int step, b;
    for (step = from; step < to; step++) {
        const double squares = reference_gradients(m, step), limit = step % 2 == 1 ? m->clip : 0.0;
        dpar_update update;
        double factor;
        memset(&update, 0, sizeof update);
        update.rate = 0.01;
        update.clip = limit;
        m->began = step == from ? step : m->began;
        counted.gathered = counted.reduced = counted.gathers = counted.reduces = 0;
        dpar_fsdp_zero(m->f);
        for (b = 0; b < m->batches; b++) {
            pass(m, step, b, me);
        }
        if (wire) {
            check_wire(m, step);
        }
        CHECK_INT(dpar_fsdp_norm(m->f, &update), DPAR_OK);
        CHECK_NEAR(update.norm, sqrt(squares), 4e-16);
        check_reduced(m, squares);
        factor = dpar_optimizer_clip(update.norm, limit);
        CHECK_NEAR(update.scale, factor, 0.0);
        if (step % 2 == 0) {
            CHECK_INT(dpar_fsdp_step(m->f, 0.01, factor), DPAR_OK);
        } else {
            CHECK_INT(dpar_fsdp_update(m->f, &update), DPAR_OK);
        }
        reference_step(m, step + 1, 0.01, factor);
        m->steps = step + 1;
        check_state(m);
    }
}

/* Sets weights from memory that the device can access. */
static dpar_status set_to(dpar_fsdp *f, int32_t i, const void *values, int64_t bytes)
{
    void *there = device_zeroed(bytes + 1);
    dpar_status st;
    memcpy(there, values, (size_t)bytes);
    st = dpar_fsdp_set(f, i, there);
    device_free(there);
    return st;
}

static void open_model(model *m, uint64_t seed)
{
    dpar_why why;
    int32_t i;
    why.text[0] = 0;
    reference_open(m, seed);
    m->o.units = m->units;
    if (m->o.arrays == 0) {
        m->o.params_per_unit = m->params_of;
        m->o.count = m->numel;
    }
    for (i = 0; i < m->params && m->o.arrays > 0; i++) {
        const int32_t a = m->array_of[i], slice = m->unit_of[i] - m->array[a].unit;
        const int64_t bytes = m->numel[i] * dpar_type_bytes(m->o.type);
        if (m->array[a].weights == NULL || m->values[a] == NULL) {
            m->values[a] = NULL;
            continue;
        }
        if (slice == 0) {
            m->values[a] = device_zeroed(1 + bytes * UNITS);
        }
        memcpy((unsigned char *)m->values[a] + slice * bytes, m->whole[i][0], (size_t)bytes);
        m->weight_of[a] = m->values[a];
    }
    CHECK_INT(dpar_fsdp_sizes_init(&m->sizes, m->shard->size, &m->o, &why), DPAR_OK);
    m->bytes = m->sizes.plan;
    CHECK_INT(dpar_comm_alloc(m->shard, m->bytes, &m->memory), DPAR_OK);
    count_from(m->shard);
    m->o.replicas = m->replicas;
    CHECK_INT(make_in(m->memory, m->bytes, m->shard, &m->o, &m->f, &why), DPAR_OK);
    CHECK_TEXT(why.text, "");
    CHECK_INT(counted.registered, m->sizes.registered > 64 ? m->sizes.registered : 64);
    for (i = 0; i < m->params; i++) {
        const void *values = m->o.arrays > 0 ? m->values[m->array_of[i]] : NULL;
        CHECK(values == NULL || m->weight_of[m->array_of[i]] == values);
        if (values != NULL) {
            continue;
        }
        CHECK_INT(set_to(m->f, i, m->whole[i][0], m->numel[i] * dpar_type_bytes(m->o.type)),
                  DPAR_OK);
    }
}

static void close_model(model *m)
{
    int32_t i;
    CHECK_INT(counted.allocations, 1); /* no allocation after make */
    CHECK_INT(dpar_fsdp_free(m->f), DPAR_OK);
    count_end(m->shard);
    CHECK_INT(dpar_barrier(m->shard, NULL), DPAR_OK);
    dpar_comm_release(m->shard, m->memory);
    for (i = 0; i < MOST; i++) {
        if (m->values[i] != NULL) {
            device_free(m->values[i]);
        }
    }
    reference_close(m);
}

/* Gathers units in any order: prefetched units must never replace those in use. */
static void look_around(model *m, uint64_t *seed)
{
    int k, i;
    for (k = 0; k < 12 && m->units > 0; k++) {
        const int32_t u = (int32_t)lot_below(seed, m->units);
        CHECK_INT(dpar_fsdp_unshard(m->f, u, DPAR_ACTION_FORWARD), DPAR_OK);
        for (i = m->first[u]; i < m->first[u + 1]; i++) {
            check_weights(m, i, m->steps);
        }
        check_pointers(m, u);
        CHECK_INT(dpar_fsdp_reshard(m->f, u, DPAR_ACTION_FORWARD), DPAR_OK);
        check_no_pointers(m);
    }
}

static void random_case(const world *w, uint64_t seed)
{
    static __thread model m;
    uint64_t s = seed;
    int32_t way = (int32_t)lot_below(&s, w->ways);
    memset(&m, 0, sizeof m);
    m.ranks = w->c->size;
    m.shard = w->shard[way];
    m.replicas = w->replicas[way];
    m.clip = 2.0;
    draw(&m, &s);
    open_model(&m, seed);
    train(&m, 0, 3, w->c->rank, 1);
    look_around(&m, &s);
    close_model(&m);
}

/* ---- random sequences ------------------------------------------------------------------------ */

/* Which units have had gradients since the gradients were zeroed. */
typedef struct sums {
    int there[UNITS];
    /* 1 if sums were reduced over replicas or kept for the step, so that they cannot be added
     * to */
    int first_of_step;
} sums;

static void zero(model *m, sums *s)
{
    int32_t i;
    dpar_fsdp_zero(m->f);
    memset(s, 0, sizeof *s);
    for (i = 0; i < m->params; i++) {
        memset(m->gradient[i], 0, (size_t)(m->numel[i] + 1) * 8);
    }
}

/* Compares the shard of unit u, element by element. Its padding must be 0. */
static void check_sums(const model *m, sums *s, int32_t u)
{
    double squares = 0.0;
    int64_t elements, e;
    int32_t i, type;
    const void *at = dpar_fsdp_state(m->f, DPAR_FSDP_GRADIENT, u, &elements, &type);
    for (i = m->first[u]; i < m->first[u + 1]; i++) {
        dpar_piece piece;
        if (m->frozen[u] || !dpar_fsdp_piece(m->f, i, &piece)) {
            continue;
        }
        for (e = 0; e < piece.count; e++) {
            const double x = m->gradient[i][piece.in_param + e];
            CHECK(float_get(at, piece.in_shard + e, type) == x);
            squares += x * x;
        }
    }
    CHECK(elements == 0 || !m->frozen[u]);
    CHECK_NEAR(sum_squares(at, elements, type), squares, 0.0);
    s->there[u] = 1;
}

/* Adds gradients of unit u on this rank, and those of all ranks to the reference. */
static void sequence_ready(model *m, sums *s, int step, int32_t u)
{
    const double scale = m->o.sum ? 1.0 : 1.0 / m->ranks;
    const int adds = !m->o.overwrite_gradients || m->resident[u] || (kept(m) && s->there[u]);
    int32_t i, r;
    int64_t e;
    for (i = m->first[u]; i < m->first[u + 1]; i++) {
        put_gradient(m, i, step, m->rank, 0, adds);
        for (e = 0; e < m->numel[i]; e++) {
            for (r = 0; r < m->ranks && !m->frozen[u]; r++) {
                m->gradient[i][e] += scale * number(step, r, 0, i, e);
            }
        }
    }
    CHECK_INT(dpar_fsdp_ready(m->f, u), DPAR_OK);
    s->there[u] = 1;
}

/* Runs backward from the last unit. In passes that are not the last one units may be left out. The
 * gradients of a unit are computed at once, or after the next unit has begun. */
static void sequence_pass(model *m, sums *s, int step, uint64_t *seed)
{
    const int last = (int)lot_below(seed, 2), wide = kept(m) || m->o.gradient_buffers > 1;
    int32_t u, late = -1;
    CHECK_INT(dpar_fsdp_begin(m->f, last), DPAR_OK);
    if (lot_below(seed, 8) == 0) {
        zero(m, s);
    }
    for (u = m->units - 1; u >= 0; u--) {
        if (!last && lot_below(seed, 3) == 0) {
            continue;
        }
        CHECK_INT(dpar_fsdp_unshard(m->f, u, DPAR_ACTION_BACKWARD), DPAR_OK);
        CHECK_INT(dpar_fsdp_reshard(m->f, u, DPAR_ACTION_BACKWARD), DPAR_OK);
        if (late >= 0) {
            sequence_ready(m, s, step, late);
            late = -1;
        }
        if (wide && lot_below(seed, 2)) {
            late = u;
        } else {
            sequence_ready(m, s, step, u);
        }
    }
    if (late >= 0) {
        sequence_ready(m, s, step, late);
    }
    CHECK_INT(dpar_fsdp_end(m->f), DPAR_OK);
    s->first_of_step = last && (kept(m) || m->replicas != NULL);
    for (u = 0; u < m->units && (last || (!kept(m) && m->replicas == NULL)); u++) {
        check_sums(m, s, u);
    }
}

static void sequence_case(const world *w, uint64_t seed)
{
    static __thread model m;
    uint64_t common = seed + 5000, own = seed * 8 + (uint64_t)w->c->rank;
    int32_t way = (int32_t)lot_below(&common, w->ways), u;
    int step;
    sums s;
    dpar_update update;
    memset(&m, 0, sizeof m);
    memset(&s, 0, sizeof s);
    m.ranks = w->c->size;
    m.rank = w->c->rank;
    m.shard = w->shard[way];
    m.replicas = w->replicas[way];
    draw(&m, &common);
    open_model(&m, seed);
    for (step = 0; step < ROUNDS; step++) { /* the first sums begin at 0 without a zero call */
        const int fresh = step > 0 && (s.first_of_step || lot_below(&common, 3) == 0);
        if (fresh) {
            zero(&m, &s);
        }
        if (fresh && lot_below(&own, 2)) { /* zeroing twice has the effect of once */
            zero(&m, &s);
        }
        for (u = 0; fresh && u < m.units; u++) { /* some ranks read some of the sums before */
            if (lot_below(&own, 4) == 0) {
                check_sums(&m, &s, u);
            }
        }
        sequence_pass(&m, &s, step, &common);
    }
    zero(&m, &s);
    memset(&update, 0, sizeof update);
    CHECK_INT(dpar_fsdp_norm(m.f, &update), DPAR_OK);
    CHECK_NEAR(update.norm, 0.0, 0.0);
    CHECK_INT(dpar_fsdp_step(m.f, 0.01, 1.0), DPAR_OK);
    reference_step(&m, 1, 0.01, 1.0);
    check_state(&m);
    close_model(&m);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* The arrays that `ranks` ranks wrote; with ranks 1 the whole arrays. */
typedef struct saved {
    unsigned char *at[DPAR_FSDP_ARRAY_COUNT][UNITS][8];
    int64_t elements[UNITS];
    int32_t ranks, arrays;
    int32_t type[DPAR_FSDP_ARRAY_COUNT];
    int32_t broken; /* 1 if reading fails */
    int64_t read;   /* elements read so far */
} saved;

static dpar_status read_saved(void *ctx, int32_t array, int32_t u, int32_t rank, int64_t first,
                              int64_t count, void *to)
{
    saved *s = (saved *)ctx;
    const int size = dpar_type_bytes(s->type[array]);
    CHECK(rank >= 0 && rank < s->ranks && first >= 0 && first + count <= s->elements[u]);
    s->read += count;
    if (s->broken) {
        return DPAR_E_SYSTEM;
    }
#ifdef DEVICE_MEMORY
    to = device_there(to);
#endif
    memcpy(to, s->at[array][u][rank] + first * size, (size_t)(count * size));
    return s->read % 2 != 0 ? DPAR_MORE : DPAR_OK; /* a condition is not an error */
}

/* Gathers a whole unit on rank 0 in the way that fsdp.h documents. */
static dpar_status(gather_unit)(const model *m, int32_t a, int32_t u, void *room)
{
    int64_t count;
    int32_t type;
    const void *mine = dpar_fsdp_state(m->f, a, u, &count, &type);
    return dpar_gather(m->shard, mine, room, count, type, 0, NULL);
}

/* Copies the state of the first `ranks` ranks to each rank of the world. If `whole` is set, the
 * library gathers whole arrays. */
static void save(saved *s, const model *m, dpar_comm *c, int32_t ranks, int whole)
{
    int32_t a, u, r;
    memset(s, 0, sizeof *s);
    s->ranks = whole ? 1 : ranks;
    s->arrays = 1 + moments_of(&m->o.optimizer);
    for (a = 0; a < s->arrays; a++) {
        s->type[a] = a == 0 ? m->o.type : moment_type(m);
        for (u = 0; u < m->units; u++) {
            int64_t total = 0, mine;
            int32_t i;
            for (i = m->first[u]; i < m->first[u + 1]; i++) { /* ends at the last parameter's end */
                total = m->key[i] - m->key[m->first[u]] + m->numel[i];
            }
            mine = (total + ranks - 1) / ranks;
            s->elements[u] = whole ? total : mine;
            for (r = 0; r < s->ranks; r++) {
                const int64_t bytes = (mine * ranks + 1) * 8;
                s->at[a][u][r] = (unsigned char *)device_zeroed(bytes);
                if (a > 0 && m->frozen[u]) { /* there is no such array */
                    continue;
                }
                if (whole && m->f != NULL) {
                    dpar_layout layout;
                    CHECK_INT(dpar_fsdp_layout(m->f, u, 0, 1, &layout, NULL), DPAR_OK);
                    CHECK_INT(layout.extent[0], total);
                    CHECK_INT(gather_unit(m, a, u, m->shard->rank == 0 ? s->at[a][u][r] : NULL),
                              DPAR_OK);
                } else if (m->f != NULL && m->shard->rank == r) {
                    int64_t n;
                    memcpy(s->at[a][u][r], dpar_fsdp_state(m->f, a, u, &n, NULL),
                           (size_t)(mine * dpar_type_bytes(s->type[a])));
                    CHECK_INT(n, mine);
                }
                CHECK_INT(dpar_broadcast(c, s->at[a][u][r], bytes, DPAR_U8, r, NULL), DPAR_OK);
            }
        }
    }
}

static void save_end(saved *s)
{
    int32_t a, u, r;
    for (a = 0; a < DPAR_FSDP_ARRAY_COUNT; a++) {
        for (u = 0; u < UNITS; u++) {
            for (r = 0; r < 8; r++) {
                device_free(s->at[a][u][r]);
            }
        }
    }
}

/* Moves the masters of the first M ranks to all N and checks that loading gave the same. */
static void check_move(const model *m, dpar_comm *c, const saved *s)
{
    int32_t u;
    for (u = 0; u < m->units; u++) {
        dpar_layout before, after;
        dpar_redistribute_desc o;
        dpar_why why;
        int64_t had = s->elements[u], have = 0;
        const void *mine = dpar_fsdp_state(m->f, DPAR_FSDP_MASTER, u, &have, NULL);
        unsigned char *out = (unsigned char *)device_zeroed((have + 1) * 8);
        CHECK_INT(dpar_fsdp_layout(m->f, u, 0, s->ranks, &before, &why), DPAR_OK);
        CHECK_INT(dpar_fsdp_layout(m->f, u, 0, c->size, &after, &why), DPAR_OK);
        memset(&o, 0, sizeof o);
        o.type = m->o.type;
        o.from = &before;
        o.to = &after;
        o.in = c->rank < s->ranks ? s->at[0][u][c->rank] : NULL;
        o.in_shape = &had;
        o.out = out;
        o.out_shape = &have;
        CHECK_INT(dpar_redistribute(c, &o, &why), DPAR_OK);
        CHECK(memcmp(out, mine, (size_t)(have * dpar_type_bytes(m->o.type))) == 0);
        device_free(out);
    }
}

/* Makes reading fail on the last rank: all ranks get the error and may try again. */
static void load_broken(const model *m, dpar_comm *c, saved *s)
{
    dpar_why why;
    dpar_status st;
    int64_t fails;
    char expected[40];
    s->broken = c->rank == c->size - 1;
    s->read = 0;
    st = dpar_fsdp_load(m->f, s->ranks, 2, read_saved, s, &why);
    fails = s->broken && s->read > 0; /* false if its shards are empty */
    CHECK_INT(dpar_all_reduce(c, &fails, &fails, 1, DPAR_I64, DPAR_MAX, NULL), DPAR_OK);
    CHECK_INT(st, fails ? DPAR_E_SYSTEM : DPAR_OK);
    (void)snprintf(expected, sizeof expected, "rank %d: dpar_fsdp_load: ", c->size - 1);
    CHECK(!fails || s->broken || strncmp(why.text, expected, strlen(expected)) == 0);
    s->broken = 0;
}

/* Runs two steps on `from` ranks and two more on `to`. Loads from shards or from whole arrays. */
static void checkpoint_case(dpar_comm *c, uint64_t seed, int32_t from, int32_t to, int whole)
{
    static __thread model m;
    static __thread saved s;
    dpar_comm *first = NULL, *second = NULL;
    dpar_why why;
    uint64_t draws = seed;
    int step;
    memset(&m, 0, sizeof m);
    CHECK_INT(dpar_comm_split(c, c->rank < from ? 0 : -1, c->rank, &first), DPAR_OK);
    CHECK_INT(dpar_comm_split(c, c->rank < to ? 0 : -1, c->rank, &second), DPAR_OK);
    m.ranks = from;
    draw(&m, &draws);
    m.o.sum = 1;
    m.shard = first;
    if (first != NULL) {
        open_model(&m, seed);
        train(&m, 0, 2, c->rank, 0);
        save(&s, &m, c, from, whole);
        close_model(&m);
    } else {
        reference_open(&m, seed);
        save(&s, &m, c, from, whole);
        reference_close(&m);
    }
    m.f = NULL;
    m.shard = second;
    if (second != NULL) {
        m.ranks = from;
        open_model(&m, seed + 1); /* begins with other weights: loading must replace them */
        reference_close(&m);
        reference_open(&m, seed);
        for (step = 0; step < 2; step++) {
            (void)reference_gradients(&m, step);
            reference_step(&m, step + 1, 0.01, 1.0);
        }
        load_broken(&m, second, &s);
        CHECK_INT(dpar_fsdp_load(m.f, s.ranks, 2, read_saved, &s, &why), DPAR_OK);
        m.steps = 2;
        check_state(&m);
        if (!whole && to == c->size) {
            check_move(&m, c, &s);
        }
        m.ranks = to;
        train(&m, 2, 4, c->rank, 0);
        close_model(&m);
    }
    save_end(&s);
    (void)dpar_comm_free(first);
    (void)dpar_comm_free(second);
}

static void checkpoints(dpar_comm *c)
{
    uint64_t seed = 1000;
    int32_t from, to, k;
    for (k = 0; k < 8; k++) {
        for (to = 1; to <= c->size; to += c->size > 4 ? 3 : 1) {
            from = 1 + (int32_t)((seed * 7 + (uint64_t)k) % (uint64_t)c->size);
            checkpoint_case(c, seed++, k % 3 == 2 ? c->size : from, k % 3 == 2 ? c->size : to,
                            k % 2);
        }
    }
}

/* ---- a chain of layers ----------------------------------------------------------------------- */

enum { LAYERS = 5, WIDE = 7, SAMPLES = 8, STEPS = 20 };
/* Layer l has weights [size[l + 1]][size[l]] and a bias; layer 2 has no parameters. */
static const int size_of[LAYERS + 1] = {3, 5, 7, 7, 4, 2};

static double input(int s, int k)
{
    return (double)((s * 37 + k * 11) % 17 - 8) / 8.0;
}

static double target(int s, int k)
{
    return (double)((s * 29 + k * 5) % 13 - 6) / 10.0;
}

/* Computes y = x / (1 + x^2) and its derivative: smooth and without libm. */
static double bend(double x)
{
    return x / (1.0 + x * x);
}

static double slope(double x)
{
    const double q = 1.0 + x * x;
    return (1.0 - x * x) / (q * q);
}

typedef struct activations {
    double in[LAYERS + 1][WIDE], sum[LAYERS][WIDE], d[LAYERS + 1][WIDE];
} activations;

/* Computes layer l from in[l] to in[l + 1]. w and b have the type. */
static void layer_forward(activations *a, int l, const void *w, const void *b, int32_t type)
{
    int i, k;
    for (i = 0; i < size_of[l + 1]; i++) {
        double x = l == 2 ? a->in[l][i] : float_get(b, i, type);
        for (k = 0; k < size_of[l] && l != 2; k++) {
            x += float_get(w, (int64_t)i * size_of[l] + k, type) * a->in[l][k];
        }
        a->sum[l][i] = x;
        a->in[l + 1][i] = bend(x);
    }
}

static void layer_backward(activations *a, int l, const void *w, int32_t type, void *dw, void *db,
                           int32_t to)
{
    int i, k;
    memset(a->d[l], 0, sizeof a->d[l]);
    for (i = 0; i < size_of[l + 1]; i++) {
        const double d = a->d[l + 1][i] * slope(a->sum[l][i]);
        if (l == 2) {
            a->d[l][i] = d;
            continue;
        }
        float_put(db, i, to, float_get(db, i, to) + d);
        for (k = 0; k < size_of[l]; k++) {
            const int64_t at = (int64_t)i * size_of[l] + k;
            float_put(dw, at, to, float_get(dw, at, to) + d * a->in[l][k]);
            a->d[l][k] += float_get(w, at, type) * d;
        }
    }
}

/* Computes the gradient of half the mean squared distance. */
static void loss_backward(activations *a, int s)
{
    int i;
    for (i = 0; i < size_of[LAYERS]; i++) {
        a->d[LAYERS][i] = (a->in[LAYERS][i] - target(s, i)) / SAMPLES;
    }
}

typedef struct plain {
    double w[LAYERS][2][WIDE * WIDE], g[LAYERS][2][WIDE * WIDE];
    double m[LAYERS][2][WIDE * WIDE], v[LAYERS][2][WIDE * WIDE];
    double norm;
} plain;

static int64_t chain_numel(int l, int which)
{
    return l == 2 ? 0 : which == 0 ? (int64_t)size_of[l] * size_of[l + 1] : size_of[l + 1];
}

static void plain_start(plain *p)
{
    uint64_t seed = 5;
    int l, j;
    int64_t e;
    memset(p, 0, sizeof *p);
    for (l = 0; l < LAYERS; l++) {
        for (j = 0; j < 2; j++) {
            for (e = 0; e < chain_numel(l, j); e++) {
                p->w[l][j][e] = (double)(lot_below(&seed, 2001) - 1000) / 1500.0;
            }
        }
    }
}

/* Runs one step on one rank, by the formulas of the papers, with libm. limit: clips the norm. */
static void plain_step(plain *p, int t, double rate, double limit)
{
    activations a;
    double squares = 0.0, factor;
    int l, j, s, k;
    int64_t e;
    memset(p->g, 0, sizeof p->g);
    for (s = 0; s < SAMPLES; s++) {
        for (k = 0; k < size_of[0]; k++) {
            a.in[0][k] = input(s, k);
        }
        for (l = 0; l < LAYERS; l++) {
            layer_forward(&a, l, p->w[l][0], p->w[l][1], DPAR_F64);
        }
        loss_backward(&a, s);
        for (l = LAYERS - 1; l >= 0; l--) {
            layer_backward(&a, l, p->w[l][0], DPAR_F64, p->g[l][0], p->g[l][1], DPAR_F64);
        }
    }
    for (l = 0; l < LAYERS; l++) {
        for (j = 0; j < 2; j++) {
            for (e = 0; e < chain_numel(l, j); e++) {
                squares += p->g[l][j][e] * p->g[l][j][e];
            }
        }
    }
    p->norm = sqrt(squares);
    factor = p->norm > limit ? limit / (p->norm + 1e-6) : 1.0;
    for (l = 0; l < LAYERS; l++) {
        for (j = 0; j < 2; j++) {
            for (e = 0; e < chain_numel(l, j); e++) {
                const double g = p->g[l][j][e] * factor;
                double *m = &p->m[l][j][e], *v = &p->v[l][j][e], *w = &p->w[l][j][e];
                *m = 0.9 * *m + 0.1 * g;
                *v = 0.99 * *v + 0.01 * g * g;
                *w -= rate * 0.1 * *w;
                *w -= rate * (*m / (1.0 - pow(0.9, t))) / (sqrt(*v / (1.0 - pow(0.99, t))) + 1e-3);
            }
        }
    }
}

/* Runs samples s = rank, rank + ranks, ... of the world in micro-batches of one. All ranks have the
 * same number of passes; those beyond the samples add nothing. */
static void chain_pass(dpar_fsdp *f, const dpar_fsdp_desc *o, int s)
{
    activations a;
    int l, k;
    for (k = 0; k < size_of[0]; k++) {
        a.in[0][k] = input(s, k);
    }
    for (l = 0; l < LAYERS; l++) {
        CHECK_INT(dpar_fsdp_unshard(f, l, DPAR_ACTION_FORWARD), DPAR_OK);
        layer_forward(&a, l, dpar_fsdp_weight(f, 2 * l), dpar_fsdp_weight(f, 2 * l + 1),
                      o->compute_type);
        CHECK_INT(dpar_fsdp_reshard(f, l, DPAR_ACTION_FORWARD), DPAR_OK);
    }
    loss_backward(&a, s);
    for (l = LAYERS - 1; l >= 0; l--) {
        CHECK_INT(dpar_fsdp_unshard(f, l, DPAR_ACTION_BACKWARD), DPAR_OK);
        if (s < SAMPLES) {
            layer_backward(&a, l, dpar_fsdp_weight(f, 2 * l), o->compute_type,
                           dpar_fsdp_gradient(f, 2 * l, NULL),
                           dpar_fsdp_gradient(f, 2 * l + 1, NULL), o->gradient_type);
        }
        CHECK_INT(dpar_fsdp_reshard(f, l, DPAR_ACTION_BACKWARD), DPAR_OK);
        CHECK_INT(dpar_fsdp_ready(f, l), DPAR_OK);
    }
}

static void chain_compare(dpar_fsdp *f, const plain *p, const dpar_fsdp_desc *o, double bound)
{
    int l, j;
    int64_t e;
    for (l = 0; l < LAYERS; l++) {
        for (j = 0; j < 2; j++) {
            dpar_piece piece;
            const void *at = dpar_fsdp_state(f, DPAR_FSDP_MASTER, l, NULL, NULL);
            if (!dpar_fsdp_piece(f, 2 * l + j, &piece)) {
                continue;
            }
            for (e = 0; e < piece.count; e++) {
                const double w = float_get(at, piece.in_shard + e, o->type);
                const double expected = p->w[l][j][piece.in_param + e];
                CHECK(fabs(w - expected) <= bound * (1.0 + fabs(expected)));
            }
        }
    }
}

static void chain_case(const world *w, int way, dpar_fsdp_desc o, double bound)
{
    static __thread plain p;
    const int32_t params_of[LAYERS] = {2, 2, 2, 2, 2};
    const int ranks = w->c->size, batches = (SAMPLES + ranks - 1) / ranks;
    int64_t numel[2 * LAYERS];
    dpar_fsdp_sizes sizes;
    dpar_fsdp *f = NULL;
    dpar_why why;
    void *memory = NULL;
    double values[WIDE * WIDE];
    dpar_update update;
    int l, j, t, b;
    int64_t e;
    memset(&update, 0, sizeof update);
    update.rate = 0.02;
    update.clip = 0.1;
    o.sum = 1;
    dpar_optimizer_init(&o.optimizer, DPAR_OPTIMIZER_ADAMW);
    o.optimizer.beta2 = 0.99;
    o.optimizer.epsilon = 1e-3;
    o.optimizer.decay = 0.1;
    for (l = 0; l < 2 * LAYERS; l++) {
        numel[l] = chain_numel(l / 2, l % 2);
    }
    plain_start(&p);
    o.units = LAYERS;
    o.params_per_unit = params_of;
    o.count = numel;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, w->shard[way]->size, &o, &why), DPAR_OK);
    CHECK_INT(dpar_comm_alloc(w->c, sizes.plan, &memory), DPAR_OK);
    o.replicas = w->replicas[way];
    CHECK_INT(make_in(memory, sizes.plan, w->shard[way], &o, &f, &why), DPAR_OK);
    for (l = 0; l < LAYERS; l++) {
        for (j = 0; j < 2; j++) {
            for (e = 0; e < chain_numel(l, j); e++) {
                float_put(values, e, o.type, p.w[l][j][e]);
            }
            CHECK_INT(set_to(f, 2 * l + j, values, numel[2 * l + j] * dpar_type_bytes(o.type)),
                      DPAR_OK);
        }
    }
    for (t = 1; t <= STEPS; t++) {
        dpar_fsdp_zero(f);
        for (b = 0; b < batches; b++) {
            CHECK_INT(dpar_fsdp_begin(f, b == batches - 1), DPAR_OK);
            chain_pass(f, &o, b * ranks + w->c->rank);
            CHECK_INT(dpar_fsdp_end(f), DPAR_OK);
        }
        plain_step(&p, t, 0.02, 0.1);
        CHECK_INT(dpar_fsdp_update(f, &update), DPAR_OK);
        CHECK_NEAR(update.norm, p.norm, bound * 20.0);
    }
    chain_compare(f, &p, &o, bound);
    CHECK_INT(dpar_fsdp_free(f), DPAR_OK);
    CHECK_INT(dpar_barrier(w->c, NULL), DPAR_OK);
    dpar_comm_release(w->c, memory);
}

/* Trains the chain with each stage and each arrangement of the ranks. */
static void chains(const world *w)
{
    int way, zero, kind;
    for (way = 0; way < w->ways; way++) {
        for (zero = 1; zero <= 3; zero++) {
            for (kind = FEW ? (way + zero) % 3 : 0; kind < 3; kind += FEW ? 3 : 1) {
                dpar_fsdp_desc o;
                memset(&o, 0, sizeof o);
                o.zero = zero;
                o.type = kind == 0 ? DPAR_F64 : DPAR_F32;
                o.compute_type = kind == 2 ? DPAR_BF16 : o.type;
                o.gradient_type = o.type;
                o.prefetch = (way + kind) % 4;
                o.gradient_buffers = kind + 1;
                o.reduce_last = kind == 1 && way % 2 == 1;
                chain_case(w, way, o, kind == 0 ? 1e-12 : kind == 1 ? 1e-5 : 0.02);
            }
        }
    }
}

/* Combines replicas that do not hold the same shard, on two ranks only: all ranks get the error. */
static void crossed(dpar_comm *c)
{
    const int32_t half = c->size / 2, k = c->rank % half, params_of = 1;
    const int32_t other = c->rank < half || k == 0 || k > 2 ? k : 3 - k;
    const int64_t numel = 10;
    dpar_fsdp_desc o;
    dpar_fsdp_sizes sizes;
    dpar_comm *shard = NULL, *replicas = NULL;
    dpar_fsdp *f = NULL;
    dpar_why why;
    void *memory = NULL;
    memset(&o, 0, sizeof o);
    o.zero = 3;
    o.type = o.compute_type = o.gradient_type = DPAR_F32;
    o.optimizer = sgd(0.0);
    CHECK_INT(dpar_comm_split(c, c->rank / half, c->rank, &shard), DPAR_OK);
    CHECK_INT(dpar_comm_split(c, other, c->rank, &replicas), DPAR_OK);
    o.units = 1;
    o.params_per_unit = &params_of;
    o.count = &numel;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, half, &o, &why), DPAR_OK);
    CHECK_INT(dpar_comm_alloc(c, sizes.plan, &memory), DPAR_OK);
    o.replicas = replicas;
    CHECK_INT(make_in(memory, sizes.plan, shard, &o, &f, &why), DPAR_E_MISMATCH);
    (void)dpar_comm_free(shard);
    (void)dpar_comm_free(replicas);
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    dpar_comm_release(c, memory);
}

/* ---- what is refused ------------------------------------------------------------------------- */

/* Makes a ddp on the last rank and an fsdp on the others. */
static void other_plan(dpar_comm *c, const int64_t *numel, const dpar_fsdp_desc *o, void *memory,
                       int64_t bytes)
{
    dpar_ddp_desc of_ddp;
    dpar_fsdp *f = NULL;
    dpar_ddp *d = NULL;
    dpar_why why;
    dpar_status st;
    memset(&of_ddp, 0, sizeof of_ddp);
    of_ddp.params = 3;
    of_ddp.count = numel;
    of_ddp.type = DPAR_F32;
    if (c->size > 1) {
        st = c->rank == c->size - 1 ? dpar_ddp_make(c, &of_ddp, &d, &why)
                                    : make_in(memory, bytes, c, o, &f, &why);
        CHECK_INT(st, DPAR_E_MISMATCH);
        CHECK(strstr(why.text, " begins such a plan, but rank ") != NULL);
        CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    }
}

/* Makes replicas of one rank each on all ranks but the last, which has none. */
static void replicas_on_some(dpar_comm *c, dpar_fsdp_desc o, void *memory, int64_t bytes)
{
    dpar_comm *alone = NULL;
    dpar_fsdp *f = NULL;
    dpar_why why;
    CHECK_INT(dpar_comm_split(c, c->rank, 0, &alone), DPAR_OK);
    if (c->size > 1) {
        o.replicas = c->rank == c->size - 1 ? NULL : alone;
        CHECK_INT(make_in(memory, bytes, c, &o, &f, &why), DPAR_E_MISMATCH);
        CHECK(says_who_differs(why.text, (int)c->size, "fsdp: replicas != NULL", "1", "0"));
    }
    CHECK_INT(dpar_comm_free(alone), DPAR_OK);
}

static void refusals(dpar_comm *c)
{
    const int32_t params_of[3] = {1, 1, 1};
    const int64_t numel[3] = {10, 20, 30};
    const int32_t flags[3] = {0, 1, 2};
    dpar_optimizer_group group[1];
    dpar_fsdp_desc o, other;
    dpar_fsdp_sizes sizes, defaults;
    dpar_fsdp *f = NULL;
    dpar_layout layout;
    dpar_piece piece;
    dpar_why why;
    void *memory = NULL;
    int64_t n;
    int32_t type = 0;
    dpar_update update;
    memset(&update, 0, sizeof update);
    memset(group, 0, sizeof group);
    memset(&o, 0, sizeof o);
    o.zero = 3;
    o.type = o.compute_type = o.gradient_type = DPAR_F32;
    o.optimizer = sgd(0.0);
    o.units = 3;
    o.params_per_unit = params_of;
    o.count = numel;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, c->size, &o, &why), DPAR_OK);
    CHECK_INT(dpar_comm_alloc(c, sizes.plan, &memory), DPAR_OK);
    other = o;
    other.zero = 4;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, c->size, &other, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "fsdp: zero is 4, but must be 1, 2 or 3, or 0 for 3");
    other = o;
    other.overwrite_gradients = 2;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, c->size, &other, &why), DPAR_E_ARG);
    other = o;
    other.compute_type = DPAR_F64;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, c->size, &other, &why), DPAR_E_ARG);
    other = o;
    other.gradient_type = DPAR_BF16;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, c->size, &other, &why), DPAR_E_ARG);
    other = o;
    other.prefetch = -1;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, c->size, &other, &why), DPAR_E_ARG);
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, 0, &o, &why), DPAR_E_ARG);
    other = o;
    other.frozen = flags;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, c->size, &other, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "fsdp: frozen[2] is 2, but must be 0 or 1");
    other = o;
    other.groups = 1;
    other.group_of = flags;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, c->size, &other, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "fsdp: groups is 1, but must be 0 or more; above 0, desc.group and "
                         "desc.group_of must not be NULL");
    other.group = group;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, c->size, &other, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "fsdp: group_of[1] is 1, but must be one of the 1 groups, or -1 for none");
    group[0].beta1 = 1.0;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, c->size, &other, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text,
               "fsdp: group 0 has beta1 1 and beta2 0, but each must be 0 or more and below 1");
    group[0].beta1 = 0.0;
    group[0].decay = -1.0;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, c->size, &other, &why), DPAR_E_ARG);
    other = o;
    other.count = NULL;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, 1, &other, &why), DPAR_E_ARG);
    other = o;
    other.params_per_unit = NULL; /* one parameter per unit, and the other defaults */
    other.zero = 0;
    other.type = other.compute_type = other.gradient_type = DPAR_TYPE_NONE;
    CHECK_INT(dpar_fsdp_sizes_init(&defaults, c->size, &other, &why), DPAR_OK);
    CHECK(memcmp(&defaults, &sizes, sizeof sizes) == 0);
    CHECK_INT(dpar_fsdp_sizes_init(NULL, 1, &o, &why), DPAR_E_ARG);
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, 1, NULL, &why), DPAR_E_ARG);
    why.bytes = 0;
    CHECK_INT(make_in(memory, sizes.plan - (c->rank == 0), c, &o, &f, &why), DPAR_E_ROOM);
    CHECK_INT(why.bytes, sizes.plan); /* on each rank */
    why.bytes = 0;
    CHECK_INT(make_in(NULL, 1, c, &o, &f, &why), DPAR_E_ROOM);
    CHECK_INT(why.bytes, sizes.plan);
    CHECK_INT(make_in((char *)memory + 8, sizes.plan, c, &o, &f, &why), DPAR_E_ROOM);
    other = o;
    other.optimizer.decay = c->rank == c->size - 1 ? 0.1 : 0.0;
    CHECK_INT(make_in(memory, sizes.plan, c, &other, &f, &why),
              c->size > 1 ? DPAR_E_MISMATCH : DPAR_OK);
    CHECK(c->size == 1 ||
          says_who_differs(why.text, (int)c->size, "fsdp: optimizer.decay", "0", "0.1"));
    CHECK_INT(dpar_fsdp_free(f), DPAR_OK);
    other.optimizer.decay = c->rank == c->size - 1 ? 0.1 + 1e-16 : 0.1;
    CHECK_INT(make_in(memory, sizes.plan, c, &other, &f, &why),
              c->size > 1 ? DPAR_E_MISMATCH : DPAR_OK);
    CHECK(c->size == 1 || says_who_differs(why.text, (int)c->size, "fsdp: optimizer.decay",
                                           "0.10000000000000001", "0.1000000000000001"));
    CHECK_INT(dpar_fsdp_free(f), DPAR_OK);
    other.optimizer.decay = c->rank == c->size - 1 ? -0.0 : 0.0;
    CHECK_INT(make_in(memory, sizes.plan, c, &other, &f, &why), DPAR_OK);
    CHECK_INT(dpar_fsdp_free(f), DPAR_OK);
    f = NULL;
    other_plan(c, numel, &o, memory, sizes.plan);
    replicas_on_some(c, o, memory, sizes.plan);
    other = o;
    other.optimizer.moment_type = c->rank == c->size - 1 ? DPAR_BF16 : 0;
    CHECK_INT(make_in(memory, sizes.plan, c, &other, &f, &why),
              c->size > 1 ? DPAR_E_MISMATCH : DPAR_OK);
    CHECK(c->size == 1 ||
          says_who_differs(why.text, (int)c->size, "fsdp: optimizer.moment_type", "f32", "bf16"));
    CHECK_INT(dpar_fsdp_free(f), DPAR_OK);
    CHECK_INT(make_in(memory, sizes.plan, c, &o, &f, &why), DPAR_OK);
    CHECK_INT(dpar_fsdp_set(NULL, 0, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_fsdp_set(f, 7, NULL), DPAR_E_ARG);
    CHECK_TEXT(c->why.text,
               "dpar_fsdp_set: parameter 7 does not exist (the model has 3 parameters)");
    CHECK_INT(dpar_fsdp_set(f, 1, NULL), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "dpar_fsdp_set: the 20 values of parameter 1 are NULL");
    CHECK_INT(dpar_fsdp_unshard(f, 0, DPAR_ACTION_BACKWARD), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "dpar_fsdp_unshard: unit 0 for backward, but no pass is in progress "
                            "(dpar_fsdp_begin)");
    CHECK_INT(dpar_fsdp_unshard(f, 3, DPAR_ACTION_FORWARD), DPAR_E_ARG);
    CHECK_INT(dpar_fsdp_reshard(f, 0, DPAR_ACTION_FORWARD), DPAR_E_ARG);
    CHECK_INT(dpar_fsdp_ready(f, 0), DPAR_E_ARG);
    CHECK_INT(dpar_fsdp_end(f), DPAR_E_ARG);
    CHECK_INT(dpar_fsdp_norm(f, NULL), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "dpar_fsdp_norm: update is NULL");
    CHECK_INT(dpar_fsdp_update(f, NULL), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "dpar_fsdp_update: update is NULL");
    update.rate = NAN;
    CHECK_INT(dpar_fsdp_update(f, &update), DPAR_E_ARG);
    CHECK_TEXT(c->why.text,
               "dpar_fsdp_update: rate is nan, clip 0 and factor 0, but rate must be finite, clip "
               "not NaN, and factor 0 or more and finite");
    update.rate = 0.0;
    update.factor = -1.0;
    CHECK_INT(dpar_fsdp_norm(f, &update), DPAR_E_ARG);
    update.factor = INFINITY;
    CHECK_INT(dpar_fsdp_norm(f, &update), DPAR_E_ARG);
    update.factor = 0.0;
    CHECK_INT(dpar_fsdp_begin(f, 1), DPAR_OK);
    CHECK_INT(dpar_fsdp_begin(f, 1), DPAR_E_ARG);
    CHECK_INT(dpar_fsdp_free(f), DPAR_E_ARG);
    CHECK_INT(dpar_fsdp_step(f, 1.0, 1.0), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "dpar_fsdp_step: the pass has not ended");
    CHECK_INT(dpar_fsdp_norm(f, &update), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "dpar_fsdp_norm: the pass has not ended");
    CHECK_INT(dpar_fsdp_changed(f), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "dpar_fsdp_changed: the pass has not ended");
    CHECK_INT(dpar_fsdp_unshard(f, 2, DPAR_ACTION_BACKWARD), DPAR_OK);
    CHECK_INT(dpar_fsdp_unshard(f, 2, DPAR_ACTION_BACKWARD), DPAR_E_ARG);
    CHECK_INT(dpar_fsdp_unshard(f, 1, DPAR_ACTION_BACKWARD),
              DPAR_E_ROOM); /* prefetch 0: one unit at a time */
    CHECK_TEXT(c->why.text, "fsdp: no memory is left for the weights of unit 1 in addition to "
                            "those of unit 2, which are in use (desc.units_in_use is the limit)");
    CHECK_INT(dpar_fsdp_reshard(f, 2, DPAR_ACTION_BACKWARD), DPAR_OK);
    CHECK_INT(dpar_fsdp_unshard(f, 1, DPAR_ACTION_BACKWARD),
              DPAR_E_ROOM); /* unit 2 is not ready, and there is one bucket */
    CHECK_TEXT(c->why.text, "fsdp: no memory is left for the gradients of unit 1 in addition to "
                            "those of unit 2, which are not ready (desc.units_in_use is the "
                            "limit)");
    for (n = 2; n >= 0; n--) {
        CHECK(n == 2 || dpar_fsdp_unshard(f, (int32_t)n, DPAR_ACTION_BACKWARD) == DPAR_OK);
        CHECK(n == 2 || dpar_fsdp_reshard(f, (int32_t)n, DPAR_ACTION_BACKWARD) == DPAR_OK);
        CHECK_INT(dpar_fsdp_ready(f, (int32_t)n), DPAR_OK);
    }
    CHECK_INT(dpar_fsdp_end(f), DPAR_OK);
    CHECK(dpar_fsdp_piece(f, 1, NULL) == dpar_fsdp_piece(f, 1, &piece));
    CHECK(dpar_fsdp_piece(f, 7, NULL) == 0 && dpar_fsdp_piece(NULL, 0, NULL) == 0);
    CHECK(dpar_fsdp_state(f, DPAR_FSDP_MOMENT_1, 0, &n, NULL) == NULL && n == 0);
    CHECK(dpar_fsdp_state(f, DPAR_FSDP_MASTER, 0, &n, &type) != NULL);
    CHECK_INT(type, DPAR_F32);
    CHECK(dpar_fsdp_state(f, DPAR_FSDP_MOMENT_1, 0, &n, &type) == NULL);
    CHECK_INT(type, DPAR_TYPE_NONE);
    CHECK(dpar_fsdp_state(f, 17, 0, NULL, &type) == NULL);
    CHECK_INT(type, DPAR_TYPE_NONE);
    CHECK_INT(dpar_fsdp_layout(f, 0, INT32_MAX, 1, &layout, &why), DPAR_OK);
    CHECK_INT(dpar_fsdp_layout(f, 0, INT32_MAX, 2, &layout, &why), DPAR_E_ARG);
    CHECK_INT(dpar_fsdp_free(f), DPAR_OK);
    CHECK_INT(dpar_fsdp_free(NULL), DPAR_OK);
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    dpar_comm_release(c, memory);
}

#ifndef USE_MPI
/* Leaves a unit out on the last rank: the error on all ranks names it. */
static void missing(dpar_comm *world)
{
    const int32_t params_of[2] = {1, 1};
    const int64_t numel[2] = {10, 20};
    dpar_fsdp_desc o;
    dpar_fsdp_sizes sizes;
    dpar_fsdp *f = NULL;
    dpar_comm *c = NULL;
    dpar_why why;
    void *memory = NULL;
    char expected[100];
    int32_t u;
    memset(&o, 0, sizeof o);
    o.zero = 1;
    o.type = o.compute_type = o.gradient_type = DPAR_F32;
    dpar_optimizer_init(&o.optimizer, DPAR_OPTIMIZER_ADAMW);
    CHECK_INT(dpar_comm_split(world, 0, 0, &c), DPAR_OK);
    o.units = 2;
    o.params_per_unit = params_of;
    o.count = numel;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, c->size, &o, &why), DPAR_OK);
    CHECK_INT(dpar_comm_alloc(world, sizes.plan, &memory), DPAR_OK);
    CHECK_INT(make_in(memory, sizes.plan, c, &o, &f, &why), DPAR_OK);
    CHECK_INT(dpar_fsdp_begin(f, 1), DPAR_OK);
    for (u = 1; u >= 0; u--) {
        dpar_status st = dpar_fsdp_unshard(f, u, DPAR_ACTION_BACKWARD);
        (void)dpar_fsdp_reshard(f, u, DPAR_ACTION_BACKWARD);
        if (st == DPAR_OK && !(u == 0 && c->rank == c->size - 1)) {
            (void)dpar_fsdp_ready(f, u);
        }
    }
    CHECK_INT(dpar_fsdp_end(f), DPAR_E_ARG);
    (void)snprintf(expected, sizeof expected, "dpar_fsdp_end: unit 0 is not ready on rank %d",
                   c->size - 1);
    CHECK_TEXT(c->why.text, expected);
    CHECK_INT(dpar_fsdp_begin(f, 1), DPAR_E_ARG); /* the communicator is broken: no pass begins */
    CHECK_INT(dpar_fsdp_free(f), DPAR_OK);
    (void)dpar_comm_free(c);
    CHECK_INT(dpar_barrier(world, NULL), DPAR_OK);
    dpar_comm_release(world, memory);
}
#endif

#ifndef USE_MPI
/* Visits units of equal size in another order on the last rank, whose shards would be of other
 * units. */
static void other_order(dpar_comm *world, int backward)
{
    const int32_t params_of[2] = {1, 1};
    const int64_t numel[2] = {10, 10};
    const int32_t odd = world->rank == world->size - 1;
    dpar_fsdp_desc o;
    dpar_fsdp_sizes sizes;
    dpar_fsdp *f = NULL;
    dpar_comm *c = NULL;
    dpar_status st;
    dpar_why why;
    void *memory = NULL;
    memset(&o, 0, sizeof o);
    o.zero = backward ? 2 : 3;
    o.type = o.compute_type = o.gradient_type = DPAR_F32;
    o.prefetch = o.gradient_buffers = 2;
    dpar_optimizer_init(&o.optimizer, DPAR_OPTIMIZER_ADAMW);
    CHECK_INT(dpar_comm_split(world, 0, 0, &c), DPAR_OK);
    o.units = 2;
    o.params_per_unit = params_of;
    o.count = numel;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, c->size, &o, &why), DPAR_OK);
    CHECK_INT(dpar_comm_alloc(world, sizes.plan, &memory), DPAR_OK);
    CHECK_INT(make_in(memory, sizes.plan, c, &o, &f, &why), DPAR_OK);
    CHECK_INT(dpar_fsdp_begin(f, 1), DPAR_OK);
    CHECK_INT(dpar_barrier(world, NULL), DPAR_OK);
    if (backward) {
        CHECK_INT(dpar_fsdp_unshard(f, 0, DPAR_ACTION_BACKWARD), DPAR_OK);
        CHECK_INT(dpar_fsdp_unshard(f, 1, DPAR_ACTION_BACKWARD), DPAR_OK);
        (void)dpar_fsdp_reshard(f, 0, DPAR_ACTION_BACKWARD);
        (void)dpar_fsdp_reshard(f, 1, DPAR_ACTION_BACKWARD);
        CHECK_INT(dpar_barrier(world, NULL), DPAR_OK);
        (void)dpar_fsdp_ready(f, odd);
        (void)dpar_fsdp_ready(f, !odd);
        st = dpar_fsdp_end(f);
    } else {
        st = dpar_fsdp_unshard(f, odd, DPAR_ACTION_FORWARD);
    }
    CHECK_INT(st, DPAR_E_MISMATCH);
    CHECK(strstr(c->why.text, "tag 1") != NULL && strstr(c->why.text, "tag 2") != NULL);
    (void)dpar_fsdp_end(f);
    CHECK_INT(dpar_fsdp_free(f), DPAR_OK);
    (void)dpar_comm_free(c);
    CHECK_INT(dpar_barrier(world, NULL), DPAR_OK);
    dpar_comm_release(world, memory);
}
#endif

static int everything(dpar_comm *c, void *arg)
{
    world w;
    uint64_t i;
    int32_t n;
    (void)arg;
#ifdef DEVICE_MEMORY
    device_begin((size_t)1 << 26);
    c = device_take(c);
#endif
    memset(&w, 0, sizeof w);
    w.c = c;
    for (n = c->size; n >= 1; n--) { /* shards on n ranks; the first arrangement has no replicas */
        if (c->size % n == 0 && w.ways < GROUPS) {
            CHECK_INT(dpar_comm_split(c, c->rank / n, c->rank, &w.shard[w.ways]), DPAR_OK);
            if (n < c->size) {
                CHECK_INT(dpar_comm_split(c, c->rank % n, c->rank, &w.replicas[w.ways]), DPAR_OK);
            }
            w.ways++;
        }
    }
    for (i = 0; i < (FEW ? CASES / 15 : CASES) && failures() == 0; i++) {
        random_case(&w, i);
        if (failures() > 0) {
            printf("case %d on rank %d of %d\n", (int)i, c->rank, c->size);
        }
    }
    for (i = 0; i < (FEW ? SEQUENCES / 15 : SEQUENCES) && failures() == 0; i++) {
        sequence_case(&w, i);
        if (failures() > 0) {
            printf("sequence %d on rank %d of %d\n", (int)i, c->rank, c->size);
        }
    }
    chains(&w);
    checkpoints(c);
    refusals(c);
    if (c->size == 6) {
        crossed(c);
    }
    for (n = 0; n < w.ways; n++) {
        (void)dpar_comm_free(w.shard[n]);
        (void)dpar_comm_free(w.replicas[n]);
    }
#if !defined(USE_MPI) && !defined(DEVICE_CUDA) /* a rank fails while others continue */
    missing(c);
    if (c->size > 1) {
        other_order(c, 0);
        other_order(c, 1);
    }
#endif
#ifdef DEVICE_MEMORY
    CHECK(the_device.calls > 0);
    c = device_return(c);
    device_end();
#endif
    return failures() > 0;
}

#ifndef DEVICE_MEMORY
/* Breaks the communicator on one rank within a pass. The others continue to call: their calls are
 * wrong by then, but they must still get the first error. */
static int broken(dpar_comm *c, void *arg)
{
    const int32_t params_of[2] = {1, 1};
    const int64_t numel[2] = {5, 6};
    dpar_fsdp_desc o;
    dpar_fsdp_sizes sizes;
    dpar_fsdp *f = NULL;
    dpar_why why;
    dpar_status st;
    void *memory = NULL, *whole = NULL;
    (void)arg;
    memset(&o, 0, sizeof o);
    o.zero = 3;
    o.type = o.compute_type = o.gradient_type = DPAR_F32;
    dpar_optimizer_init(&o.optimizer, DPAR_OPTIMIZER_ADAMW);
    o.units = 2;
    o.params_per_unit = params_of;
    o.count = numel;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, c->size, &o, &why), DPAR_OK);
    memory = zeroed_aligned(sizes.plan, &whole);
    CHECK_INT(make_in(memory, sizes.plan, c, &o, &f, &why), DPAR_OK);
    dpar_fsdp_zero(f);
    CHECK_INT(dpar_fsdp_begin(f, 1), DPAR_OK);
    CHECK_INT(dpar_fsdp_unshard(f, 1, DPAR_ACTION_BACKWARD), DPAR_OK);
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    if (c->rank == c->size - 1) {
        dpar_comm_abort(c, DPAR_E_PEER, "the last rank gives up");
    } else {
        do {
            st = dpar_barrier(c, NULL);
        } while (st == DPAR_OK);
        CHECK_INT(st, DPAR_E_PEER);
    }
    CHECK_INT(dpar_fsdp_ready(f, 0), DPAR_E_PEER);
    CHECK_INT(dpar_fsdp_reshard(f, 0, DPAR_ACTION_BACKWARD), DPAR_E_PEER);
    CHECK_INT(dpar_fsdp_begin(f, 1), DPAR_E_PEER);
    CHECK(dpar_fsdp_end(f) < 0);
    CHECK_TEXT(c->why.text, "the last rank gives up");
    CHECK_INT(dpar_fsdp_free(f), DPAR_OK);
    free(whole);
    return failures() > 0;
}

static void also(int n, const dpar_world_desc *o)
{
    on_ranks(n, " of which one breaks", broken, NULL, o);
}
#endif

int main(int argc, char **argv)
{
#ifdef DEVICE_MEMORY
    return rank_program(argc, argv, everything, NULL, 4, 2, NULL);
#else
    return rank_program(argc, argv, everything, NULL, 8, 4, also);
#endif
}
