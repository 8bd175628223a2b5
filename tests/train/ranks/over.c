/* SPDX-License-Identifier: MIT-0 */
/* ddp over the caller's gradients, and ZeRO-1 on the same arrays, on real ranks. Gradients are
 * small whole numbers, whose sums are exact, so that averages are one correctly rounded division in
 * F64 and F32. Weights are compared with AdamW and SGD written out here in f64, on all of the
 * model.
 *
 *   over [processes|threads] [ranks]     without arguments: both, 1 to 4 ranks
 *   mpirun -np 4 over                    built with -DUSE_MPI */
#include "dpar_train.h"
#include "optimizers.h"
#include "rank_program.h"
#ifdef DEVICE_MEMORY
#include "device_memory.h"
#define dpar_ddp_done(d, at, n) (dpar_status) ON_DEVICE(dpar_ddp_done(d, at, n))
#define dpar_ddp_end(d) (dpar_status) ON_DEVICE(dpar_ddp_end(d))
#define dpar_ddp_free(d) (dpar_status) ON_DEVICE(dpar_ddp_free(d))
#define dpar_zero1_step(d, w, o, r, c) (dpar_status) ON_DEVICE(dpar_zero1_step(d, w, o, r, c))
enum { ELSEWHERE = 1 };
#else
enum { ELSEWHERE = 0 };
#endif

enum { CASES = 60, MOST = 24, STEPS = 5, MIB = 1 << 20 };

/* The gradient that rank r has of element e in a step. */
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

/* Largest relative error of an average: half a unit of the last place; 0 where one division in the
 * type gives the nearest number, which the comparison rounds to, too. */
static double rounding(int32_t type)
{
    return type == DPAR_F64 ? 0.0 : type == DPAR_F32 ? 6e-8 : type == DPAR_F16 ? 4.9e-4 : 3.95e-3;
}

static int64_t sent(const dpar_comm *c)
{
    return c->sent[DPAR_CALL_ALL_REDUCE] + c->sent[DPAR_CALL_REDUCE] +
           c->sent[DPAR_CALL_REDUCE_SCATTER];
}

static void *memory_of(dpar_comm *c, int registered, int64_t bytes)
{
    void *memory = NULL;
    if (!registered && !ELSEWHERE) {
        return zeroed(bytes);
    }
    CHECK_INT(dpar_comm_alloc(c, bytes, &memory), DPAR_OK);
    return memory;
}

static void let_go(dpar_comm *c, int registered, void *memory)
{
    if (registered || ELSEWHERE) {
        dpar_comm_release(c, memory);
    } else {
        free(memory);
    }
}

/* ---- averages ---------------------------------------------------------------------------------
 */

typedef struct flat {
    dpar_comm *c;
    dpar_ddp *d;
    void *grads;
    int64_t n, cut[MOST + 1];
    int32_t type, parts, registered;
} flat;

static void backward(const flat *f, int step)
{
    int64_t e;
    for (e = 0; e < f->n; e++) {
        float_put(f->grads, e, f->type, number(f->c->rank, step, e));
    }
}

/* Says parts in an order of this rank's own; `some`: leaves some out. Returns the elements said. */
static int64_t say_done(const flat *f, uint64_t seed, int some)
{
    int32_t order[MOST], i;
    int64_t said = 0;
    seed += (uint64_t)f->c->rank * 77;
    for (i = 0; i < f->parts; i++) {
        const int32_t at = (int32_t)lot_below(&seed, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (i = 0; i < f->parts; i++) {
        const int64_t lo = f->cut[order[i]], count = f->cut[order[i] + 1] - lo;
        const char *at = (const char *)f->grads + lo * dpar_type_bytes(f->type);
        if (some && lot_below(&seed, 4) == 0) {
            continue;
        }
        CHECK_INT(dpar_ddp_done(f->d, at, count), DPAR_OK);
        said += count;
    }
    return said;
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

static void draw(flat *f, dpar_comm *c, uint64_t *seed)
{
    static const int32_t types[4] = {DPAR_F32, DPAR_F64, DPAR_BF16, DPAR_F16};
    int32_t i;
    memset(f, 0, sizeof *f);
    f->c = c;
    f->type = types[lot_below(seed, 4)];
    f->registered = (int32_t)lot_below(seed, 2);
    f->n = lot_below(seed, lot_below(seed, 5) == 0 ? 1500000 : 3000);
    f->parts = 1 + (int32_t)lot_below(seed, MOST);
    for (i = 1; i < f->parts; i++) { /* ascending: a random walk whose end is n */
        f->cut[i] = f->cut[i - 1] + lot_below(seed, 1 + (f->n - f->cut[i - 1]) * 2 / f->parts);
    }
    f->cut[f->parts] = f->n;
    f->grads = memory_of(c, f->registered, 64 + f->n * 8);
}

static void random_case(dpar_comm *c, uint64_t seed)
{
    flat f;
    dpar_why why;
    uint64_t s = seed;
    int step;
    const int some = seed % 3 == 0, stays = seed % 5 == 0;
    draw(&f, c, &s);
    CHECK_INT(dpar_ddp_over(c, f.grads, f.n, f.type, &f.d, &why), DPAR_OK);
    for (step = 0; step < 3 && failures() == 0; step++) {
        if (stays) { /* a micro-batch in which nothing travels */
            const int64_t before = sent(c);
            CHECK_INT(dpar_ddp_begin(f.d, 0), DPAR_OK);
            (void)say_done(&f, seed, 0);
            CHECK_INT(dpar_ddp_end(f.d), DPAR_OK);
            CHECK_INT(sent(c), before);
        }
        backward(&f, step);
        CHECK_INT(step < 2 ? dpar_ddp_begin(f.d, 1) : 0, DPAR_OK); /* may be there or not */
        (void)say_done(&f, seed + (uint64_t)step, some);
        CHECK_INT(dpar_ddp_end(f.d), DPAR_OK);
        compare(&f, step, 0, f.n);
    }
    CHECK_INT(dpar_ddp_free(f.d), DPAR_OK);
    let_go(c, f.registered, f.grads);
}

/* From the second pass on gradients leave while backward goes on: when all was said and before the
 * end, all bytes are on their way. */
static void early(dpar_comm *c)
{
    flat f;
    dpar_why why;
    int64_t before;
    int32_t i;
    int step;
    memset(&f, 0, sizeof f);
    f.c = c;
    f.type = DPAR_F32;
    f.registered = 1;
    f.n = 12 * MIB / 4 + 5;
    f.parts = 12;
    for (i = 0; i <= f.parts; i++) {
        f.cut[i] = i < f.parts ? i * (MIB / 4) : f.n;
    }
    f.grads = memory_of(c, 1, f.n * 4);
    CHECK_INT(dpar_ddp_over(c, f.grads, f.n, f.type, &f.d, &why), DPAR_OK);
    for (step = 0; step < 3; step++) {
        backward(&f, step);
        before = sent(c);
        CHECK_INT(say_done(&f, 1, 0), f.n);
        CHECK(c->size == 1 || (sent(c) > before) == (step > 0));
        CHECK_INT(dpar_ddp_free(f.d), DPAR_E_ARG);
        CHECK_TEXT(c->why.text, "ddp: a pass is under way");
        if (step > 0) {
            const int64_t left = sent(c);
            CHECK_INT(dpar_ddp_end(f.d), DPAR_OK);
            CHECK_INT(sent(c), left);
        } else {
            CHECK_INT(dpar_ddp_end(f.d), DPAR_OK);
        }
        compare(&f, step, 0, f.n);
    }
    CHECK_INT(dpar_ddp_free(f.d), DPAR_OK);
    dpar_comm_release(c, f.grads);
}

/* More runs of elements apart from each other than spans have room for at first. */
static void many_spans(dpar_comm *c)
{
    flat f;
    dpar_why why;
    int64_t e;
    int step;
    memset(&f, 0, sizeof f);
    f.c = c;
    f.type = DPAR_F64;
    f.n = 1501;
    f.grads = memory_of(c, 0, f.n * 8);
    CHECK_INT(dpar_ddp_over(c, f.grads, f.n, f.type, &f.d, &why), DPAR_OK);
    for (step = 0; step < 2; step++) {
        backward(&f, step);
        for (e = 0; e < f.n; e += 2) {
            CHECK_INT(dpar_ddp_done(f.d, (double *)f.grads + e, 1), DPAR_OK);
        }
        for (e = f.n - 2; e > 750; e -= 2) { /* they become one */
            CHECK_INT(dpar_ddp_done(f.d, (double *)f.grads + e, 1), DPAR_OK);
        }
        CHECK_INT(dpar_ddp_done(f.d, (double *)f.grads + 1000, 1), DPAR_E_ARG);
        CHECK_INT(dpar_ddp_end(f.d), DPAR_OK);
        compare(&f, step, 0, f.n);
    }
    CHECK_INT(dpar_ddp_free(f.d), DPAR_OK);
    let_go(c, 0, f.grads);
}

/* Several arrays, one of them empty, one of more than a bucket. */
static void lists(dpar_comm *c)
{
    enum { ARRAYS = 12 };
    static const int64_t count[ARRAYS] = {1000,  0,     MIB / 2, 1,       77,  16384,
                                          16383, 30000, 5,       MIB + 3, 640, 2}; /* f32 */
    dpar_ddp_array list[ARRAYS];
    dpar_ddp *d = NULL;
    dpar_why why;
    int64_t e, wrong = 0;
    int32_t k;
    int step;
    for (k = 0; k < ARRAYS; k++) {
        list[k].data = memory_of(c, k % 2 == 0, 64 + count[k] * 4);
        list[k].count = count[k];
    }
    CHECK_INT(dpar_ddp_over_list(c, list, ARRAYS, DPAR_F32, &d, &why), DPAR_OK);
    for (step = 0; step < 4; step++) {
        for (k = 0; k < ARRAYS; k++) {
            for (e = 0; e < count[k]; e++) {
                ((float *)list[k].data)[e] = (float)number(c->rank, step + k, e);
            }
        }
        for (k = ARRAYS - 1; k >= 0 && step != 1; k--) { /* each rank begins with another one */
            const int32_t i = (k + 5 * c->rank) % ARRAYS;
            const int64_t half = i % 3 == 0 ? count[i] / 2 : count[i];
            CHECK_INT(dpar_ddp_done(d, list[i].data, half), DPAR_OK);
            CHECK_INT(dpar_ddp_done(d, (float *)list[i].data + half, count[i] - half), DPAR_OK);
        }
        CHECK_INT(dpar_ddp_done(d, &why, 1), DPAR_E_ARG);
        CHECK_TEXT(c->why.text, "ddp: 1 elements are done that lie in none of the 12 arrays");
        CHECK_INT(dpar_ddp_end(d), DPAR_OK);
        for (k = 0; k < ARRAYS; k++) {
            for (e = 0; e < count[k]; e++) {
                wrong += fabs(((float *)list[k].data)[e] - average(c->size, step + k, e)) > 2e-7;
            }
        }
        CHECK_INT(wrong, 0);
    }
    CHECK_INT(dpar_ddp_free(d), DPAR_OK);
    for (k = 0; k < ARRAYS; k++) {
        let_go(c, k % 2 == 0, list[k].data);
    }
}

/* ---- what it refuses --------------------------------------------------------------------------
 */

static void refused(dpar_comm *c)
{
    float *const grads = (float *)memory_of(c, 0, 400);
    const int last = c->size - 1;
    dpar_ddp_array list[2];
    dpar_ddp *d = NULL;
    dpar_why why;
    CHECK_INT(dpar_ddp_over(c, grads, -1, DPAR_F32, &d, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "ddp: array 0 of -1 elements; it is NULL: 0");
    CHECK_INT(dpar_ddp_over(c, NULL, 1, DPAR_F32, &d, &why), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_over(c, grads, 1, DPAR_TYPE_NONE, &d, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "ddp: gradients of type ") == why.text);
    CHECK_INT(dpar_ddp_over(c, grads, INT64_MAX, DPAR_F32, &d, &why), DPAR_E_RANGE);
    CHECK_TEXT(why.text, "ddp: array 0 has 9223372036854775807 elements, those before it 0: in all "
                         "they are at most 2^59 - 1");
    CHECK_INT(dpar_ddp_over_list(c, NULL, 2, DPAR_F32, &d, &why), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_over(NULL, grads, 1, DPAR_F32, &d, &why), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_over(c, grads, 1, DPAR_F32, NULL, &why), DPAR_E_ARG);
    if (c->size > 1) { /* what one rank gives otherwise all hear of */
        CHECK_INT(dpar_ddp_over(c, grads, c->rank == last ? 99 : 100, DPAR_F32, &d, &why),
                  DPAR_E_MISMATCH);
        CHECK(says_who_differs(why.text, c->size, "ddp: the number of elements (array 0)", "100",
                               "99"));
        CHECK_INT(dpar_ddp_over(c, grads, c->rank == last ? -2 : 100, DPAR_F32, &d, &why),
                  DPAR_E_ARG);
        CHECK(c->rank == last || strstr(why.text, ": ddp: array 0 of -2 elements") != NULL);
    }
    CHECK(d == NULL);
    CHECK_INT(dpar_ddp_free(NULL), DPAR_OK);
    CHECK_INT(dpar_ddp_done(NULL, grads, 1), DPAR_E_ARG);

    CHECK_INT(dpar_ddp_over(c, grads, 100, DPAR_F32, &d, &why), DPAR_OK);
    CHECK_INT(dpar_ddp_done(d, grads + 10, 20), DPAR_OK);
    CHECK_INT(dpar_ddp_done(d, grads + 29, 2), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "ddp: elements 29 to 30 are done, of which 29 to 29 were already");
    CHECK_INT(dpar_ddp_done(d, grads, 100), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "ddp: elements 0 to 99 are done, of which 10 to 29 were already");
    CHECK_INT(dpar_ddp_done(d, grads + 90, 11), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "ddp: 11 elements from 90 on are done, of 100 gradients");
    CHECK_INT(dpar_ddp_done(d, grads - 1, 1), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "ddp: 1 elements from -1 on are done, of 100 gradients");
    CHECK_INT(dpar_ddp_done(d, grads + 5, -1), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_done(d, (char *)grads + 2, 1), DPAR_E_ARG);
    CHECK_TEXT(c->why.text,
               "ddp: 1 elements are done that begin within one: 2 bytes behind the first");
    CHECK_INT(dpar_ddp_done(d, grads + 100, 0), DPAR_OK); /* none of them: fine */
    CHECK_INT(dpar_ddp_ready(d, 0), DPAR_E_ARG);          /* of the full ddp */
    CHECK(dpar_ddp_gradient(d, 0, NULL) == NULL && dpar_ddp_bucket(d, 0, NULL) == NULL);
    CHECK_INT(dpar_ddp_end(d), DPAR_OK);
    CHECK_INT(dpar_ddp_done(d, grads, 100), DPAR_OK); /* a pass later */
    CHECK_INT(dpar_ddp_end(d), DPAR_OK);
    CHECK_INT(dpar_ddp_free(d), DPAR_OK);

    CHECK_INT(dpar_ddp_over(c, NULL, 0, DPAR_F32, &d, &why), DPAR_OK); /* no gradients */
    CHECK_INT(dpar_ddp_end(d), DPAR_OK);
    CHECK_INT(dpar_ddp_end(d), DPAR_OK);
    CHECK_INT(dpar_ddp_free(d), DPAR_OK);
    list[0].data = list[1].data = grads; /* the same, one within another, one that begins in it */
    list[0].count = list[1].count = 20;
    CHECK_INT(dpar_ddp_over_list(c, list, 2, DPAR_F32, &d, &why), DPAR_E_ARG);
    list[0].data = grads + 10, list[0].count = 5;
    CHECK_INT(dpar_ddp_over_list(c, list, 2, DPAR_F32, &d, &why), DPAR_E_ARG);
    list[0].data = grads + 19;
    CHECK_INT(dpar_ddp_over_list(c, list, 2, DPAR_F32, &d, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "ddp: array 0 begins 76 bytes behind the beginning of array 1, which has "
                         "80 bytes: none may lie in another");
    if (c->size > 1) { /* of one rank: all hear */
        list[0].data = grads + (c->rank == last ? 19 : 20);
        CHECK_INT(dpar_ddp_over_list(c, list, 2, DPAR_F32, &d, &why), DPAR_E_ARG);
    }
    list[0].data = grads + 20;
    CHECK_INT(dpar_ddp_over_list(c, list, 2, DPAR_F32, &d, &why), DPAR_OK);
    CHECK_INT(dpar_ddp_free(d), DPAR_OK);
    list[0].data = grads;
    list[0].count = 5;
    list[1].data = grads + 50;
    list[1].count = 5;
    CHECK_INT(dpar_ddp_over_list(c, list, 2, DPAR_F32, &d, &why), DPAR_OK);
    {
        const dpar_optimizer o = adamw();
        CHECK_INT(dpar_zero1_resume(d, &o, 0, &why), DPAR_E_ARG);
        CHECK(strstr(why.text, "zero1: gradients are 2 arrays: it wants one") != NULL);
    }
    CHECK_INT(dpar_ddp_free(d), DPAR_OK);
    let_go(c, 0, grads);
}

/* ---- ZeRO-1 -----------------------------------------------------------------------------------
 */

typedef struct model {
    flat f;
    void *params, *whole[2]; /* whole: moments of all, as saved */
    double *w, *m, *v;       /* the oracle's: all of it, in f64 */
    dpar_zero1_group group[3];
    int32_t groups;
    dpar_optimizer of;
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
    m->f.registered = 1;
    m->f.parts = 3;
    m->f.cut[1] = n / 5;
    m->f.cut[2] = n / 2;
    m->f.cut[3] = n;
    m->f.grads = memory_of(c, 1, 64 + n * 8);
    m->params = memory_of(c, 1, 64 + n * 8);
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

static void model_close(model *m)
{
    dpar_comm_release(m->f.c, m->f.grads);
    dpar_comm_release(m->f.c, m->params);
    free(m->w);
    free(m->m);
    free(m->v);
}

/* Loshchilov and Hutter's AdamW; SGD as torch has it (optimizer.h): on one rank, in f64. */
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
        for (k = 0; k < m->groups; k++) {
            if (e >= m->group[k].first && e - m->group[k].first < m->group[k].count) {
                decay = m->group[k].decay;
                rate *= m->group[k].rate > 0.0 ? m->group[k].rate : 1.0;
            }
        }
        if (o->kind == DPAR_OPTIMIZER_ADAMW) {
            m->w[e] -= rate * decay * m->w[e];
            m->m[e] = o->beta1 * m->m[e] + (1.0 - o->beta1) * g;
            m->v[e] = o->beta2 * m->v[e] + (1.0 - o->beta2) * g * g;
            m->w[e] -= rate / (1.0 - pow(o->beta1, t)) * m->m[e] /
                       (sqrt(m->v[e] / (1.0 - pow(o->beta2, t))) + o->epsilon);
        } else {
            g += decay * m->w[e];
            m->m[e] = o->momentum * m->m[e] + g;
            m->w[e] -= rate * m->m[e];
        }
    }
}

/* Each of the steps so far rounded the weight once, by half a unit of 1 at most, and moved it by
 * some rates, which are wrong by some units of the average's and the moments' rounding. */
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

/* how: 0: zero1 ends the pass; 1: dpar_ddp_end does; 2: parts leave early; 3: by turns. */
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
    CHECK_INT(dpar_ddp_over(c, m.f.grads, n, type, &m.f.d, &why), DPAR_OK);
    if (groups) {
        m.groups = 3;
        m.group[0].first = n / 7;
        m.group[0].count = n / 7;
        m.group[1].first = n / 7 * 2;
        m.group[1].count = n / 9;
        m.group[1].rate = 0.5;
        m.group[1].decay = 0.3;
        m.group[2].first = n - n / 11;
        m.group[2].count = n / 11;
        m.group[2].rate = 3.0;
        CHECK_INT(dpar_zero1_groups(m.f.d, m.group, m.groups, &why), DPAR_OK);
    }
    for (step = 0; step < STEPS && failures() == 0; step++) {
        const int turn = how == 3 ? (step + 1) % 3 : how;
        int64_t first = 0, count = n, before;
        backward(&m.f, step);
        before = c->sent[DPAR_CALL_ALL_REDUCE];
        if (turn == 2 || how == 3) {
            (void)say_done(&m.f, (uint64_t)step, step == 3);
        }
        if (turn == 1) {
            CHECK_INT(dpar_ddp_end(m.f.d), DPAR_OK);
            compare(&m.f, step, 0, n);
        }
        CHECK_INT(dpar_zero1_step(m.f.d, m.params, &m.of, m.rate, clip), DPAR_OK);
        if (turn != 1) { /* averages in this rank's share */
            first = (n + c->size - 1) / c->size * c->rank;
            first = first < n ? first : n;
            count = (n + c->size - 1) / c->size;
            compare(&m.f, step, first, count < n - first ? count : n - first);
            if (how != 3 && step > 0 && clip <= 0.0) { /* nobody got gradients it has no use for */
                CHECK_INT(c->sent[DPAR_CALL_ALL_REDUCE], before);
            }
        }
        oracle_step(&m, step);
        oracle_compare(&m, step + 1);
    }
    {
        int64_t first = -1, count = -1;
        int32_t of = -1;
        const void *at = dpar_zero1_state(m.f.d, 0, &first, &count, &of);
        CHECK(failures() > 0 || (at != NULL) == (moments_of(&m.of) > 0));
        CHECK(dpar_zero1_state(m.f.d, moments_of(&m.of), NULL, NULL, NULL) == NULL);
        if (at != NULL) {
            CHECK_INT(of, type == DPAR_F64 ? DPAR_F64 : DPAR_F32);
            CHECK(first >= 0 && count >= 0 && first + count <= n);
        }
    }
    if (failures() > 0) {
        printf("n %lld, type %d, kind %d, how %d, groups %d, clip %g on %d ranks\n", (long long)n,
               type, kind, how, groups, clip, c->size);
    }
    CHECK_INT(dpar_ddp_free(m.f.d), DPAR_OK);
    model_close(&m);
}

/* ---- state, on other ranks --------------------------------------------------------------------
 */

/* Gradients that all ranks have alike, so that their average is the same on any number. */
static void run_alike(model *m, int from, int to)
{
    int step;
    int64_t e;
    for (step = from; step < to; step++) {
        for (e = 0; e < m->f.n; e++) {
            float_put(m->f.grads, e, m->f.type, number(7, step, e));
        }
        CHECK_INT(dpar_zero1_step(m->f.d, m->params, &m->of, m->rate, 0.0), DPAR_OK);
    }
}

/* Two steps, saved as the header says; then one rank less goes on for three: the bits of five. */
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
    CHECK_INT(dpar_ddp_over(c, a.f.grads, N, a.f.type, &a.f.d, &why), DPAR_OK);
    CHECK(dpar_zero1_state(a.f.d, 0, NULL, NULL, NULL) == NULL);
    run_alike(&a, 0, 2);
    for (k = 0; k < 2; k++) {
        int64_t e;
        file[k] = (double *)zeroed(N * 8);
        memset(mine, 0, sizeof mine);
        at = dpar_zero1_state(a.f.d, k, &first, &count, &type);
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
        CHECK_INT(dpar_ddp_over(fewer, b.f.grads, N, b.f.type, &b.f.d, &why), DPAR_OK);
        CHECK_INT(dpar_zero1_resume(b.f.d, &b.of, 2, &why), DPAR_OK);
        for (k = 0; k < 2; k++) {
            at = dpar_zero1_state(b.f.d, k, &first, &count, &type);
            for (e = 0; e < count; e++) {
                float_put(at, e, type, file[k][first + e]);
            }
        }
        run_alike(&b, 2, 5);
    }
    run_alike(&a, 2, 5);
    if (goes) {
        CHECK(memcmp(a.params, b.params, N * sizeof(float)) == 0);
        CHECK_INT(dpar_ddp_free(b.f.d), DPAR_OK);
        model_close(&b);
        CHECK_INT(dpar_comm_free(fewer), DPAR_OK);
    }
    CHECK_INT(dpar_ddp_free(a.f.d), DPAR_OK);
    model_close(&a);
    free(file[0]);
    free(file[1]);
}

static void zero1_refused(dpar_comm *c)
{
    model m;
    dpar_why why;
    dpar_optimizer o = adamw();
    dpar_zero1_group g[2];
    const int last = c->size - 1;
    memset(g, 0, sizeof g);
    model_init(&m, c, 50, DPAR_F32);
    CHECK_INT(dpar_ddp_over(c, m.f.grads, 50, DPAR_F32, &m.f.d, &why), DPAR_OK);
    o.kind = 0;
    CHECK_INT(dpar_zero1_step(m.f.d, m.params, &o, 0.1, 0.0), DPAR_E_ARG);
    CHECK_INT(c->status, DPAR_OK); /* the first step: all ranks heard of it */
    CHECK(c->why.text[0] != 0);
    CHECK_INT(dpar_zero1_step(m.f.d, m.params, NULL, 0.1, 0.0), DPAR_E_ARG);
    CHECK_INT(dpar_zero1_step(NULL, m.params, &o, 0.1, 0.0), DPAR_E_ARG);
    o.kind = DPAR_OPTIMIZER_ADAMW, o.beta1 = 1.5;
    CHECK_INT(dpar_zero1_step(m.f.d, m.params, &o, 0.1, 0.0), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "AdamW's beta1 is 1.5, beta2 0.999 (0 or more, below 1)") != NULL);
    o = adamw(), o.decay = -0.5;
    CHECK_INT(dpar_zero1_resume(m.f.d, &o, 0, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "optimizer: decay is -0.5: 0 or more, and finite") != NULL);
    o = sgd(1.0);
    CHECK_INT(dpar_zero1_resume(m.f.d, &o, 0, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "SGD's momentum is 1 (0 or more, below 1)") != NULL);
    o = adamw();
    CHECK_INT(dpar_zero1_resume(m.f.d, &o, -1, &why), DPAR_E_ARG);
    g[0].first = 10;
    g[0].count = 41;
    CHECK_INT(dpar_zero1_groups(m.f.d, g, 1, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text,
               "zero1: group 0 begins at 10 and has 41 elements: groups ascend, and there "
               "are 50 elements");
    g[0].count = 10;
    g[1].first = 19;
    CHECK_INT(dpar_zero1_groups(m.f.d, g, 2, &why), DPAR_E_ARG);
    g[1].first = 20;
    g[1].rate = -1.0;
    CHECK_INT(dpar_zero1_groups(m.f.d, g, 2, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "zero1: group 1 has decay 0 and rate -1: each is 0 or more, and finite");
    g[1].rate = NAN;
    CHECK_INT(dpar_zero1_groups(m.f.d, g, 2, &why), DPAR_E_ARG);
    CHECK_INT(dpar_zero1_groups(m.f.d, NULL, 1, &why), DPAR_E_ARG);
    if (c->size > 1) {
        g[1].rate = 1.0;
        g[0].decay = c->rank == last ? 0.5 : 0.25;
        CHECK_INT(dpar_zero1_groups(m.f.d, g, 2, &why), DPAR_E_MISMATCH);
        CHECK(says_who_differs(why.text, c->size, "zero1: group[0].decay", "0.25", "0.5"));
        CHECK_INT(dpar_zero1_resume(m.f.d, &o, c->rank == last, &why), DPAR_E_MISMATCH);
        CHECK_INT(dpar_zero1_step(m.f.d, m.params, &o, c->rank == last ? 0.2 : 0.1, 0.0),
                  DPAR_E_MISMATCH); /* the first step: nothing is broken */
        CHECK(says_who_differs(c->why.text, c->size, "zero1: the rate", "0.1", "0.2"));
    }
    CHECK_INT(dpar_zero1_step(m.f.d, m.params, &o, 0.1, 0.0), DPAR_OK);
    /* what all ranks give wrongly, in a later step: nothing is done, and the next one goes on */
    CHECK_INT(dpar_zero1_step(m.f.d, m.params, &o, 0.1, NAN), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "zero1: the rate is 0.1 (finite), the clip nan (a number)") != NULL);
    CHECK_INT(dpar_ddp_done(m.f.d, m.f.grads, 50), DPAR_OK);
    CHECK_INT(dpar_zero1_step(m.f.d, m.params, &o, INFINITY, 0.0), DPAR_E_ARG);
    CHECK_INT(dpar_zero1_step(m.f.d, NULL, &o, 0.1, 0.0), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "zero1: params are NULL") != NULL);
    CHECK_INT(dpar_zero1_step(m.f.d, m.f.grads, &o, 0.1, 0.0), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "zero1: params lie where the gradients are: 0 bytes behind") != NULL);
    o.beta2 = -0.5;
    CHECK_INT(dpar_zero1_step(m.f.d, m.params, &o, 0.1, 0.0), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "beta2 -0.5 (0 or more") != NULL);
    o.beta2 = 0.999;
    CHECK_INT(dpar_zero1_step(m.f.d, m.params, &o, 0.1, 0.0), DPAR_OK);
    CHECK_INT(c->status, DPAR_OK);
    CHECK_INT(dpar_ddp_free(m.f.d), DPAR_OK);
    model_close(&m);
}

#if !defined(USE_MPI) && !defined(DEVICE_CUDA)
/* One rank's rate is another one, as a loss that is not averaged makes it: all hear of it. */
static void zero1_rate(dpar_comm *world)
{
    model m;
    dpar_comm *c = NULL;
    dpar_why why;
    CHECK_INT(dpar_comm_split(world, 0, 0, &c), DPAR_OK);
    model_init(&m, c, 50, DPAR_F32);
    CHECK_INT(dpar_ddp_over(c, m.f.grads, 50, DPAR_F32, &m.f.d, &why), DPAR_OK);
    CHECK_INT(dpar_zero1_step(m.f.d, m.params, &m.of, 0.1, 0.0), DPAR_OK);
    CHECK_INT(dpar_zero1_step(m.f.d, m.params, &m.of, c->rank == c->size - 1 ? 0.2 : 0.1, 0.0),
              c->size > 1 ? DPAR_E_MISMATCH : DPAR_OK);
    CHECK(c->size == 1 || strstr(c->why.text, "zero1: params, rate, clip") != NULL);
    CHECK(c->size == 1 || strstr(c->why.text, c->rank == c->size - 1
                                                  ? "zero1: here the rate is 0.2, the clip 0. "
                                                  : "zero1: here the rate is 0.1, the clip 0. "));
    (void)dpar_ddp_free(m.f.d);
    model_close(&m);
    (void)dpar_comm_free(c);
}

/* One rank ends the first pass, the others take a step: the sentence names these calls. */
static void zero1_or_end(dpar_comm *world)
{
    model m;
    dpar_comm *c = NULL;
    dpar_why why;
    CHECK_INT(dpar_comm_split(world, 0, 0, &c), DPAR_OK);
    model_init(&m, c, 50, DPAR_F32);
    CHECK_INT(dpar_ddp_over(c, m.f.grads, 50, DPAR_F32, &m.f.d, &why), DPAR_OK);
    CHECK_INT(c->rank == 0 ? dpar_ddp_end(m.f.d)
                           : dpar_zero1_step(m.f.d, m.params, &m.of, 0.1, 0.0),
              c->size > 1 ? DPAR_E_MISMATCH : DPAR_OK);
    CHECK(c->size == 1 || strstr(c->why.text, "a first dpar_ddp_end or dpar_zero1_step (broad"));
    (void)dpar_ddp_free(m.f.d);
    model_close(&m);
    (void)dpar_comm_free(c);
}

/* One rank hands in another optimizer in a later step: all hear of it. */
static void zero1_other(dpar_comm *world)
{
    model m;
    dpar_comm *c = NULL;
    dpar_status st;
    dpar_why why;
    CHECK_INT(dpar_comm_split(world, 0, 0, &c), DPAR_OK);
    model_init(&m, c, 50, DPAR_F32);
    CHECK_INT(dpar_ddp_over(c, m.f.grads, 50, DPAR_F32, &m.f.d, &why), DPAR_OK);
    CHECK_INT(dpar_zero1_step(m.f.d, m.params, &m.of, 0.1, 0.0), DPAR_OK);
    if (c->rank == c->size - 1) {
        m.of = sgd(0.9);
    }
    st = dpar_zero1_step(m.f.d, m.params, &m.of, 0.1, 0.0);
    CHECK_INT(st, c->size > 1 ? DPAR_E_MISMATCH : DPAR_E_ARG);
    CHECK(c->rank < c->size - 1 ||
          strstr(c->why.text, "zero1: an optimizer of kind 2 with 1 moments") != NULL);
    CHECK(c->size == 1 || strstr(c->why.text, "a dpar_zero1_step that it refuses") != NULL);
    if (c->size > 1) {
        CHECK_INT(dpar_ddp_done(m.f.d, m.f.grads, 1), st); /* broken: it says so at once */
        CHECK_INT(dpar_ddp_end(m.f.d), st);
    }
    CHECK_INT(dpar_ddp_free(m.f.d), DPAR_OK);
    model_close(&m);
    (void)dpar_comm_free(c);
}
#endif

static int everything(dpar_comm *c, void *arg)
{
    uint64_t i;
    int how;
    (void)arg;
#ifdef DEVICE_MEMORY
    device_begin((size_t)1 << 27);
    c = device_take(c);
#endif
    for (i = 0; i < (ELSEWHERE ? CASES / 4 : CASES) && failures() == 0; i++) {
        random_case(c, i);
        if (failures() > 0) {
            printf("case %d on rank %d of %d\n", (int)i, c->rank, c->size);
        }
    }
    early(c);
    many_spans(c);
    lists(c);
    refused(c);
    for (how = 0; how < 4 && failures() == 0; how++) {
        zero1_case(c, 1200, DPAR_F32, DPAR_OPTIMIZER_ADAMW, how, how % 2, how % 2 ? 3.0 : 0.0);
        zero1_case(c, 1201, DPAR_F64, DPAR_OPTIMIZER_ADAMW, how, 1, 2.0);
        zero1_case(c, 3, DPAR_F64, DPAR_OPTIMIZER_ADAMW, how, 0, 0.0); /* fewer than ranks */
        zero1_case(c, 997, DPAR_F64, DPAR_OPTIMIZER_SGD, how, how > 1, 0.0);
    }
    zero1_case(c, MIB, DPAR_F32, DPAR_OPTIMIZER_ADAMW, 2, 1, 0.0); /* buckets beside shares */
    zero1_case(c, MIB + 3, DPAR_F32, DPAR_OPTIMIZER_ADAMW, 3, 0, 0.0);
    resharded(c);
    zero1_refused(c);
#if !defined(USE_MPI) && !defined(DEVICE_CUDA) /* one breaks while others go on */
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
