/* SPDX-License-Identifier: MIT-0 */
/* zero1: tests ZeRO-1 on the flat gradients of a ddp, on real ranks. Gradients are small whole
 * numbers, whose sums are exact, so that an average is one correctly rounded division in F64 and
 * F32. Weights are compared with AdamW and SGD written out here in f64, over the whole model.
 *
 *   zero1 [processes|threads] [ranks]    without arguments: both, 1 to 4 ranks
 *   mpirun -np 4 zero1                   built with -DUSE_MPI */
#include "dpar_train.h"
#include "optimizers.h"
#include "rank_program.h"
#ifdef DEVICE_MEMORY
#include "device_memory.h"
#define dpar_ddp_ready(d, i) (dpar_status) ON_DEVICE(dpar_ddp_ready(d, i))
#define dpar_ddp_end(d) (dpar_status) ON_DEVICE(dpar_ddp_end(d))
#define dpar_ddp_free(d) (dpar_status) ON_DEVICE(dpar_ddp_free(d))
#define dpar_zero1_step(z, r, c) (dpar_status) ON_DEVICE(dpar_zero1_step(z, r, c))
#define dpar_zero1_norm(z, u) (dpar_status) ON_DEVICE(dpar_zero1_norm(z, u))
enum { ELSEWHERE = 1 };
#else
enum { ELSEWHERE = 0 };
#endif

enum { MOST = 24, STEPS = 5, MIB = 1 << 20 };

/* Returns the gradient of element e on rank r in a step. */
static int number(int r, int step, int64_t e)
{
    return (int)(scrambled((uint32_t)(r * 31 + step), e) % 7u) - 3;
}

static double average(int ranks, int step, int64_t e)
{
    double sum = 0.0;
    int r;
    for (r = 0; r < ranks; r++) {
        sum += number(r, step, e);
    }
    return sum / ranks;
}

/* Returns the largest relative error of an average: half a unit of the last place, or 0 if one
 * division in the type gives the nearest number, to which the comparison rounds too. */
static double rounding(int32_t type)
{
    return type == DPAR_F64 ? 0.0 : type == DPAR_F32 ? 6e-8 : type == DPAR_F16 ? 4.9e-4 : 3.95e-3;
}

typedef struct flat {
    dpar_comm *c;
    dpar_ddp *d;
    void *grads;
    int64_t n, cut[MOST + 1];
    int32_t type, parts;
} flat;

static void backward(const flat *f, int step)
{
    int64_t e;
    for (e = 0; e < f->n; e++) {
        float_put(f->grads, e, f->type, number(f->c->rank, step, e));
    }
}

/* Makes a ddp on the flat array, whose parameters are the parts. */
static dpar_status flat_open(flat *f, int64_t bucket_bytes)
{
    int64_t count[MOST];
    dpar_ddp_desc o;
    dpar_why why;
    int32_t i;
    memset(&o, 0, sizeof o);
    for (i = 0; i < f->parts; i++) {
        count[i] = f->cut[i + 1] - f->cut[i];
    }
    o.params = f->parts;
    o.count = count;
    o.type = f->type;
    o.gradients = f->grads;
    o.bucket_bytes = o.first_bucket_bytes = bucket_bytes;
    return dpar_ddp_make(f->c, &o, &f->d, &why);
}

/* Reports parts in this rank's own random order. If `some` is set, leaves some out. */
static void report(const flat *f, uint64_t seed, int some)
{
    int32_t order[MOST], i;
    seed += (uint64_t)f->c->rank * 77;
    for (i = 0; i < f->parts; i++) {
        const int32_t at = (int32_t)lot_below(&seed, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (i = 0; i < f->parts; i++) {
        if (!some || lot_below(&seed, 4) != 0) {
            CHECK_INT(dpar_ddp_ready(f->d, order[i]), DPAR_OK);
        }
    }
}

static void compare(const flat *f, int step, int64_t first, int64_t count)
{
    int64_t e, wrong = 0;
    for (e = first; e < first + count && wrong == 0; e++) {
        const double got = float_get(f->grads, e, f->type), want = average(f->c->size, step, e);
        wrong = !(fabs(got - want) <= rounding(f->type) * fabs(want));
        if (wrong) {
            printf("element %lld of %lld, step %d: %.9g, not %.9g\n", (long long)e, (long long)f->n,
                   step, got, want);
        }
    }
    CHECK_INT(wrong, 0);
}

/* ---- ZeRO-1 ---------------------------------------------------------------------------------- */

typedef struct model {
    flat f;
    void *params, *whole[2]; /* whole: saved moments of the whole model */
    double *w, *m, *v;       /* the oracle's arrays of the whole model, in f64 */
    dpar_zero1_group group[3];
    int32_t groups;
    dpar_optimizer of;
    dpar_zero1 *zero;
    double rate, clip;
} model;

static double weight_of(int64_t e)
{
    return ((double)(scrambled(3, e) % 2001u) - 1000.0) / 1000.0;
}

static void model_init(model *m, dpar_comm *c, int64_t n, int32_t type)
{
    int64_t e;
    memset(m, 0, sizeof *m);
    m->f.c = c;
    m->f.n = n;
    m->f.type = type;
    m->f.parts = 3;
    m->f.cut[1] = n / 5;
    m->f.cut[2] = n / 2;
    m->f.cut[3] = n;
    CHECK_INT(dpar_comm_alloc(c, 64 + n * 8, &m->f.grads), DPAR_OK);
    CHECK_INT(dpar_comm_alloc(c, 64 + n * 8, &m->params), DPAR_OK);
    m->w = (double *)zeroed(64 + n * 8);
    m->m = (double *)zeroed(64 + n * 8);
    m->v = (double *)zeroed(64 + n * 8);
    m->of = adamw();
    m->of.decay = 0.1;
    m->rate = 0.01;
    for (e = 0; e < n; e++) {
        float_put(m->params, e, type, weight_of(e));
        m->w[e] = float_get(m->params, e, type);
    }
}

/* Returns the descriptor of the model's zero1. */
static dpar_zero1_desc zero_of(const model *m)
{
    dpar_zero1_desc o;
    memset(&o, 0, sizeof o);
    o.weights = m->params;
    o.optimizer = &m->of;
    o.group = m->group;
    o.groups = m->groups;
    return o;
}

static dpar_status model_open(model *m, int64_t bucket_bytes, int64_t steps, dpar_why *why)
{
    dpar_zero1_desc o = zero_of(m);
    o.steps = steps;
    CHECK_INT(flat_open(&m->f, bucket_bytes), DPAR_OK);
    return dpar_zero1_make(m->f.d, &o, &m->zero, why);
}

static void model_close(model *m)
{
    CHECK_INT(dpar_zero1_free(m->zero), DPAR_OK);
    CHECK_INT(dpar_ddp_free(m->f.d), DPAR_OK);
    dpar_comm_release(m->f.c, m->f.grads);
    dpar_comm_release(m->f.c, m->params);
    free(m->w);
    free(m->m);
    free(m->v);
}

/* Computes a step on one rank in f64: AdamW of Loshchilov and Hutter, or SGD as in torch
 * (optimizer.h). */
static void oracle_step(model *m, int step)
{
    const dpar_optimizer *o = &m->of;
    const double t = step + 1;
    double norm = 0.0, factor = 1.0;
    int64_t e;
    int32_t k;
    for (e = 0; e < m->f.n; e++) {
        norm += average(m->f.c->size, step, e) * average(m->f.c->size, step, e);
    }
    if (m->clip > 0.0 && sqrt(norm) + 1e-6 > m->clip) {
        factor = m->clip / (sqrt(norm) + 1e-6);
    }
    for (e = 0; e < m->f.n; e++) {
        double g = average(m->f.c->size, step, e) * factor, decay = o->decay, rate = m->rate;
        double beta1 = o->beta1, beta2 = o->beta2;
        for (k = 0; k < m->groups; k++) {
            if (e >= m->group[k].first && e - m->group[k].first < m->group[k].count) {
                decay = m->group[k].numbers.decay;
                rate *= m->group[k].numbers.rate > 0.0 ? m->group[k].numbers.rate : 1.0;
                beta1 = m->group[k].numbers.beta1 > 0.0 ? m->group[k].numbers.beta1 : beta1;
                beta2 = m->group[k].numbers.beta2 > 0.0 ? m->group[k].numbers.beta2 : beta2;
            }
        }
        if (o->kind == DPAR_OPTIMIZER_ADAMW) {
            m->w[e] -= rate * decay * m->w[e];
            m->m[e] = beta1 * m->m[e] + (1.0 - beta1) * g;
            m->v[e] = beta2 * m->v[e] + (1.0 - beta2) * g * g;
            m->w[e] -= rate / (1.0 - pow(beta1, t)) * m->m[e] /
                       (sqrt(m->v[e] / (1.0 - pow(beta2, t))) + o->epsilon);
        } else {
            g += decay * m->w[e];
            m->m[e] = o->momentum * m->m[e] + g;
            m->w[e] -= rate * m->m[e];
        }
    }
}

/* Compares weights with the oracle. Each step so far rounded the weight once, by at most half a
 * unit of 1, and moved it by a few rates, which have the rounding errors of the average and the
 * moments. */
static void oracle_compare(const model *m, int steps)
{
    const double unit = m->f.type == DPAR_F64 ? 1.2e-16 : 6e-8;
    const double most = steps * unit * (2.0 + 40.0 * m->rate);
    int64_t e, wrong = 0;
    for (e = 0; e < m->f.n; e++) {
        wrong += !(fabs(float_get(m->params, e, m->f.type) - m->w[e]) <= most);
        if (wrong == 1) {
            printf("weight %lld: %.17g, not %.17g\n", (long long)e,
                   float_get(m->params, e, m->f.type), m->w[e]);
            wrong++;
        }
    }
    CHECK_INT(wrong, 0);
}

/* how: 0: zero1 ends the pass; 1: dpar_ddp_end does; 2: parts are sent early; 3: alternates. */
static void zero1_case(dpar_comm *c, int64_t n, int32_t type, int kind, int how, int groups,
                       double clip)
{
    model m;
    dpar_why why;
    int step;
    model_init(&m, c, n, type);
    m.clip = clip;
    if (kind == DPAR_OPTIMIZER_SGD) {
        m.of = sgd(kind == DPAR_OPTIMIZER_SGD && how == 1 ? 0.0 : 0.9);
        m.of.decay = 0.05;
    }
    if (groups) {
        m.groups = 3;
        m.group[0].first = n / 7;
        m.group[0].count = n / 7;
        m.group[1].first = n / 7 * 2;
        m.group[1].count = n / 9;
        m.group[1].numbers.rate = 0.5;
        m.group[1].numbers.decay = 0.3;
        m.group[2].first = n - n / 11;
        m.group[2].count = n / 11;
        m.group[2].numbers.rate = 3.0;
        m.group[2].numbers.beta1 = 0.75;
        m.group[2].numbers.beta2 = 0.875;
    }
    if (n % 3 == 0) { /* the whole array is one parameter */
        m.f.parts = 1;
        m.f.cut[1] = n;
    }
    CHECK_INT(model_open(&m, n % 2 == 0 ? 0 : 1 + n * 2, 0, &why), DPAR_OK);
    for (step = 0; step < STEPS && failures() == 0; step++) {
        const int turn = how == 3 ? (step + 1) % 3 : how;
        int64_t first = 0, count = n, before;
        backward(&m.f, step);
        before = c->sent[DPAR_CALL_ALL_REDUCE];
        if (turn == 2 || how == 3) {
            report(&m.f, (uint64_t)step, step == 3);
        }
        if (turn == 1) {
            CHECK_INT(dpar_ddp_end(m.f.d), DPAR_OK);
            compare(&m.f, step, 0, n);
        }
        if (how == 3) { /* the step uses the averages of the norm */
            dpar_update update;
            memset(&update, 0, sizeof update);
            CHECK_INT(dpar_zero1_norm(m.zero, &update), DPAR_OK);
        }
        CHECK_INT(dpar_zero1_step(m.zero, m.rate, clip), DPAR_OK);
        if (turn != 1) { /* averages of this rank's share */
            first = (n + c->size - 1) / c->size * c->rank;
            first = first < n ? first : n;
            count = (n + c->size - 1) / c->size;
            compare(&m.f, step, first, count < n - first ? count : n - first);
            if (how != 3) { /* no rank got gradients outside of its share */
                CHECK(c->sent[DPAR_CALL_ALL_REDUCE] - before <= 8 * c->size);
            }
        }
        oracle_step(&m, step);
        oracle_compare(&m, step + 1);
    }
    {
        int64_t first = -1, count = -1;
        int32_t of = -1;
        const void *at = dpar_zero1_state(m.zero, 0, &first, &count, &of);
        CHECK(failures() > 0 || (at != NULL) == (moments_of(&m.of) > 0));
        CHECK(dpar_zero1_state(m.zero, moments_of(&m.of), NULL, NULL, NULL) == NULL);
        if (at != NULL) {
            CHECK_INT(of, type == DPAR_F64 ? DPAR_F64 : DPAR_F32);
            CHECK(first >= 0 && count >= 0 && first + count <= n);
        }
    }
    if (failures() > 0) {
        printf("n %lld, type %d, kind %d, how %d, groups %d, clip %g on %d ranks\n", (long long)n,
               type, kind, how, groups, clip, c->size);
    }
    model_close(&m);
}

/* ---- state moved to another number of ranks
 * ---------------------------------------------------- */

/* Runs steps with gradients that are equal on all ranks, so that their average does not depend on
 * the number of ranks. */
static void run_alike(model *m, int from, int to)
{
    int step;
    int64_t e;
    for (step = from; step < to; step++) {
        for (e = 0; e < m->f.n; e++) {
            float_put(m->f.grads, e, m->f.type, number(7, step, e));
        }
        CHECK_INT(dpar_zero1_step(m->zero, m->rate, 0.0), DPAR_OK);
    }
}

/* Runs two steps and saves the state as documented in the header. Then one rank less continues for
 * three steps: the bits must be those of five steps. */
static void resharded(dpar_comm *c)
{
    enum { N = 1003 };
    model a, b;
    dpar_comm *fewer = NULL;
    dpar_why why;
    double *file[2], mine[N];
    int64_t first = 0, count = 0;
    int32_t type = 0, k;
    void *at;
    const int goes = c->size == 1 || c->rank < c->size - 1;
    model_init(&a, c, N, DPAR_F32);
    a.groups = 1; /* must match the model that continues below */
    a.group[0].first = 100;
    a.group[0].count = 700;
    a.group[0].numbers.decay = 0.2;
    CHECK_INT(model_open(&a, 0, 0, &why), DPAR_OK);
    CHECK(dpar_zero1_state(a.zero, 0, NULL, NULL, NULL) != NULL);
    run_alike(&a, 0, 2);
    for (k = 0; k < 2; k++) {
        int64_t e;
        file[k] = (double *)zeroed(N * 8);
        memset(mine, 0, sizeof mine);
        at = dpar_zero1_state(a.zero, k, &first, &count, &type);
        CHECK(at != NULL);
        for (e = 0; e < count; e++) {
            mine[first + e] = float_get(at, e, type);
        }
        CHECK_INT(dpar_all_reduce(c, mine, file[k], N, DPAR_F64, DPAR_SUM, NULL), DPAR_OK);
    }
    CHECK_INT(dpar_comm_split(c, goes ? 0 : -1, 0, &fewer), DPAR_OK);
    if (goes) {
        int64_t e;
        model_init(&b, fewer, N, DPAR_F32);
        memcpy(b.params, a.params, N * sizeof(float));
        b.groups = a.groups;
        b.group[0] = a.group[0];
        CHECK_INT(model_open(&b, 512, 2, &why), DPAR_OK);
        for (k = 0; k < 2; k++) {
            at = dpar_zero1_state(b.zero, k, &first, &count, &type);
            for (e = 0; e < count; e++) {
                float_put(at, e, type, file[k][first + e]);
            }
        }
        run_alike(&b, 2, 5);
    }
    run_alike(&a, 2, 5);
    if (goes) {
        CHECK(memcmp(a.params, b.params, N * sizeof(float)) == 0);
        model_close(&b);
        CHECK_INT(dpar_comm_free(fewer), DPAR_OK);
    }
    model_close(&a);
    free(file[0]);
    free(file[1]);
}

/* Checks what dpar_zero1_make refuses, on all ranks. The ddp still works. */
static void make_refused(dpar_comm *c)
{
    model m;
    dpar_zero1_desc o;
    dpar_optimizer *of = &m.of;
    dpar_zero1 *zero = NULL;
    dpar_ddp *other = NULL;
    dpar_ddp_desc desc;
    dpar_why why;
    const int last = c->size - 1;
    model_init(&m, c, 50, DPAR_F32);
    CHECK_INT(flat_open(&m.f, 0), DPAR_OK);
    o = zero_of(&m);
    CHECK_INT(dpar_zero1_make(NULL, &o, &zero, &why), DPAR_E_ARG);
    CHECK_INT(dpar_zero1_make(m.f.d, &o, c->rank == c->size - 1 ? NULL : &zero, &why), DPAR_E_ARG);
    CHECK_INT(dpar_zero1_make(m.f.d, NULL, &zero, &why), DPAR_E_ARG);
    of->kind = 0;
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_ARG);
    of->kind = DPAR_OPTIMIZER_ADAMW;
    of->beta1 = 1.5;
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "AdamW's beta1 is 1.5, beta2 0.999 and epsilon 1e-08, but") != NULL);
    *of = adamw();
    of->decay = -0.5;
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "optimizer: decay is -0.5, but must be 0 or more, and finite") != NULL);
    *of = sgd(1.0);
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "SGD's momentum is 1, but must be 0 or more and below 1") != NULL);
    *of = adamw();
    o.optimizer = NULL;
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_ARG);
    o.optimizer = of;
    o.steps = -1;
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_ARG);
    o.steps = 0;
    o.weights = NULL;
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_ARG);
    o.weights = (float *)m.f.grads + 1;
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "the weights overlap the gradients: they begin 4 bytes after") != NULL);
    o.weights = m.params;
    m.group[0].first = 10;
    m.group[0].count = 41;
    o.groups = 1;
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dpar_zero1_make: group 0 begins at element 10 and has 41 elements, but "
                         "groups must ascend without overlap within 50 elements");
    m.group[0].count = 10;
    m.group[1].first = 19;
    o.groups = 2;
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_ARG);
    m.group[1].first = 20;
    m.group[1].numbers.rate = -1.0;
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text,
               "dpar_zero1_make: group 1 has decay 0 and rate -1, but each must be 0 or more, and "
               "finite");
    m.group[1].numbers.rate = NAN;
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_ARG);
    m.group[1].numbers.rate = 1.0;
    o.group = NULL;
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_ARG);
    o.group = m.group;
    o.groups = -1;
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_ARG);
    o.groups = 2;
    if (c->size > 1) {
        m.group[0].numbers.decay = c->rank == last ? 0.5 : 0.25;
        CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_MISMATCH);
        CHECK(says_who_differs(why.text, c->size, "zero1: group[0].decay", "0.25", "0.5"));
        m.group[0].numbers.decay = 0.25;
        o.steps = c->rank == last;
        CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_MISMATCH);
        CHECK(says_who_differs(why.text, c->size, "zero1: steps", "0", "1"));
        o.steps = 0;
    }
    CHECK_INT(dpar_ddp_ready(m.f.d, 0), DPAR_OK); /* a pass has begun */
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_end(m.f.d), DPAR_OK);
    memset(&desc, 0, sizeof desc); /* a ddp that is not flat, and one that sums */
    desc.params = 1;
    desc.count = &m.f.n;
    desc.type = DPAR_F32;
    CHECK_INT(dpar_ddp_make(c, &desc, &other, &why), DPAR_OK);
    CHECK_INT(dpar_zero1_make(other, &o, &zero, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dpar_zero1_make: the ddp must average one array (desc.gradients), "
                         "without hook, wire_type and sum");
    CHECK_INT(dpar_ddp_free(other), DPAR_OK);
    desc.gradients = m.f.grads;
    desc.sum = 1;
    CHECK_INT(dpar_ddp_make(c, &desc, &other, &why), DPAR_OK);
    CHECK_INT(dpar_zero1_make(other, &o, &zero, &why), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_free(other), DPAR_OK);
    CHECK(zero == NULL);
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &m.zero, &why), DPAR_OK);
    /* the ddp already has a zero1 */
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &zero, &why), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_free(m.f.d), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "dpar_ddp_free: the zero1 on it must be freed first (dpar_zero1_free)");
    CHECK_INT(dpar_ddp_ready(m.f.d, 0), DPAR_OK);
    CHECK_INT(dpar_zero1_free(m.zero), DPAR_E_ARG);
    CHECK_INT(dpar_zero1_step(m.zero, 0.1, 0.0), DPAR_OK);
    CHECK_INT(dpar_zero1_free(m.zero), DPAR_OK); /* the ddp works without it, and with a new one */
    backward(&m.f, 3);
    CHECK_INT(dpar_ddp_end(m.f.d), DPAR_OK);
    compare(&m.f, 3, 0, 50);
    CHECK_INT(dpar_zero1_make(m.f.d, &o, &m.zero, &why), DPAR_OK);
    CHECK_INT(dpar_zero1_free(NULL), DPAR_OK);
    CHECK_INT(dpar_zero1_step(NULL, 0.1, 0.0), DPAR_E_ARG);
    CHECK_INT(dpar_zero1_update(NULL, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_zero1_norm(NULL, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_zero1_gather(NULL), DPAR_E_ARG);
    CHECK(dpar_zero1_state(NULL, 0, NULL, NULL, NULL) == NULL);
    CHECK_INT(c->status, DPAR_OK);
    model_close(&m);
}

/* Passes wrong arguments to a step on all ranks: nothing changes, and the next step works. */
static void step_refused(dpar_comm *c)
{
    model m;
    dpar_why why;
    model_init(&m, c, 50, DPAR_F32);
    CHECK_INT(model_open(&m, 0, 0, &why), DPAR_OK);
    CHECK_INT(dpar_zero1_step(m.zero, 0.1, 0.0), DPAR_OK);
    CHECK_INT(dpar_zero1_step(m.zero, 0.1, NAN), DPAR_E_ARG);
    CHECK(strstr(c->why.text,
                 "dpar_zero1_update: rate is 0.1, clip nan and factor 0, but rate must be finite, "
                 "clip not NaN, and factor 0 or more and finite") != NULL);
    CHECK_INT(dpar_ddp_ready(m.f.d, 1), DPAR_OK);
    CHECK_INT(dpar_zero1_step(m.zero, INFINITY, 0.0), DPAR_E_ARG);
    m.of.beta2 = -0.5;
    CHECK_INT(dpar_zero1_step(m.zero, 0.1, 0.0), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "beta2 -0.5 and epsilon") != NULL);
    m.of.beta2 = 0.999;
    CHECK_INT(dpar_zero1_step(m.zero, 0.1, 0.0), DPAR_OK);
    CHECK_INT(dpar_ddp_begin(m.f.d, 0), DPAR_OK);
    CHECK_INT(dpar_zero1_step(m.zero, 0.1, 0.0), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "was begun with last = 0") != NULL);
    CHECK_INT(dpar_ddp_end(m.f.d), DPAR_OK);
    CHECK_INT(dpar_zero1_step(m.zero, 0.1, 0.0), DPAR_OK);
    CHECK_INT(c->status, DPAR_OK);
    model_close(&m);
}

#if !defined(USE_MPI) && !defined(DEVICE_CUDA)
/* Passes another rate on one rank, as happens if a loss is not averaged: all ranks get the
 * error. */
static void zero1_rate(dpar_comm *world)
{
    model m;
    dpar_comm *c = NULL;
    dpar_why why;
    CHECK_INT(dpar_comm_split(world, 0, 0, &c), DPAR_OK);
    model_init(&m, c, 50, DPAR_F32);
    CHECK_INT(model_open(&m, 0, 0, &why), DPAR_OK);
    CHECK_INT(dpar_zero1_step(m.zero, 0.1, 0.0), DPAR_OK);
    CHECK_INT(dpar_zero1_step(m.zero, c->rank == c->size - 1 ? 0.2 : 0.1, 0.0),
              c->size > 1 ? DPAR_E_MISMATCH : DPAR_OK);
    CHECK(c->size == 1 || strstr(c->why.text, "zero1: rate, clip") != NULL);
    CHECK(c->size == 1 ||
          strstr(c->why.text, c->rank == c->size - 1
                                  ? "update: this rank has rate 0.2, clip 0 and factor 1. "
                                  : "update: this rank has rate 0.1, clip 0 and factor 1. "));
    model_close(&m);
    (void)dpar_comm_free(c);
}

/* Ends the pass on one rank while the others take a step: they differ in what they gather. */
static void zero1_or_end(dpar_comm *world)
{
    model m;
    dpar_comm *c = NULL;
    dpar_why why;
    CHECK_INT(dpar_comm_split(world, 0, 0, &c), DPAR_OK);
    model_init(&m, c, 50, DPAR_F32);
    CHECK_INT(model_open(&m, 0, 0, &why), DPAR_OK);
    CHECK_INT(c->rank == 0 ? dpar_ddp_end(m.f.d) : dpar_zero1_step(m.zero, 0.1, 0.0),
              c->size > 1 ? DPAR_E_MISMATCH : DPAR_OK);
    CHECK(c->size == 1 || strstr(c->why.text, "or dpar_ddp_end: ") != NULL);
    model_close(&m);
    (void)dpar_comm_free(c);
}

/* Passes another optimizer on one rank in a later step: all ranks get the error. */
static void zero1_other(dpar_comm *world)
{
    model m;
    dpar_comm *c = NULL;
    dpar_status st;
    dpar_why why;
    CHECK_INT(dpar_comm_split(world, 0, 0, &c), DPAR_OK);
    model_init(&m, c, 50, DPAR_F32);
    CHECK_INT(model_open(&m, 0, 0, &why), DPAR_OK);
    CHECK_INT(dpar_zero1_step(m.zero, 0.1, 0.0), DPAR_OK);
    if (c->rank == c->size - 1) {
        m.of = sgd(0.9);
    }
    st = dpar_zero1_step(m.zero, 0.1, 0.0);
    CHECK_INT(st, c->size > 1 ? DPAR_E_MISMATCH : DPAR_E_ARG);
    CHECK(c->rank < c->size - 1 ||
          strstr(c->why.text, "the optimizer has kind 2 with 1 moments") != NULL);
    CHECK(c->size == 1 || strstr(c->why.text, "a rejected step") != NULL);
    if (c->size > 1) {
        CHECK_INT(dpar_ddp_ready(m.f.d, 1), st); /* the communicator is broken: fails at once */
        CHECK_INT(dpar_ddp_end(m.f.d), st);
    }
    model_close(&m);
    (void)dpar_comm_free(c);
}
#endif

static int everything(dpar_comm *c, void *arg)
{
    int how;
    (void)arg;
#ifdef DEVICE_MEMORY
    device_begin((size_t)1 << 27);
    c = device_take(c);
#endif
    for (how = 0; how < 4 && failures() == 0; how++) {
        zero1_case(c, 1200, DPAR_F32, DPAR_OPTIMIZER_ADAMW, how, how % 2, how % 2 ? 3.0 : 0.0);
        zero1_case(c, 1201, DPAR_F64, DPAR_OPTIMIZER_ADAMW, how, 1, 2.0);
        /* fewer elements than ranks */
        zero1_case(c, 3, DPAR_F64, DPAR_OPTIMIZER_ADAMW, how, 0, 0.0);
        zero1_case(c, 997, DPAR_F64, DPAR_OPTIMIZER_SGD, how, how > 1, 0.0);
    }
    /* buckets that do not match the shares */
    zero1_case(c, MIB, DPAR_F32, DPAR_OPTIMIZER_ADAMW, 2, 1, 0.0);
    zero1_case(c, MIB + 3, DPAR_F32, DPAR_OPTIMIZER_ADAMW, 3, 0, 0.0);
    resharded(c);
    make_refused(c);
    step_refused(c);
#if !defined(USE_MPI) && !defined(DEVICE_CUDA) /* a rank fails while others continue */
    zero1_rate(c);
    zero1_or_end(c);
    zero1_other(c);
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
    return rank_program(argc, argv, everything, NULL, ELSEWHERE ? 3 : 4, ELSEWHERE ? 2 : 3, NULL);
}
