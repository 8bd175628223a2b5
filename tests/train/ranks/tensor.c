/* SPDX-License-Identifier: MIT-0 */
/* tensor: compares tensor parallel layers on real ranks with the one-rank layer, written out in
 * this file over whole arrays, in double, by the textbook, and with finite differences of the
 * ranks' own forward. f64 must agree to 1e-12 of the largest element and f32 to 4e-6: products are
 * summed in f64 and rounded once, then the parts of at most 8 ranks are added in f32 (2^-24 each),
 * through two layers. The bytes that layers pass to the collectives are counted and must equal the
 * formulas.
 *
 *   tensor [processes|threads] [ranks]      without arguments: both, 1 to 8 ranks
 *   mpirun -np 4 tensor                     built with -DUSE_MPI */
#include "dpar_train.h"
#include "rank_program.h"

#include "tensor_calls.h"
#ifdef DEVICE_MEMORY
#include "device_memory.h"
#define free device_free
#define dpar_linear_forward(t, l, a) (dpar_status) ON_DEVICE(dpar_linear_forward(t, l, a))
#define dpar_linear_backward(t, l, a) (dpar_status) ON_DEVICE(dpar_linear_backward(t, l, a))
#define dpar_redistribute(c, m, why) (dpar_status) ON_DEVICE(dpar_redistribute(c, m, why))
#define embedding_forward(t, v, n, ids, table, y, s)                                               \
    (dpar_status) ON_DEVICE(embedding_forward(t, v, n, ids, table, y, s))
#define embedding_backward(t, v, n, ids, dy, dt, add, s)                                           \
    (dpar_status) ON_DEVICE(embedding_backward(t, v, n, ids, dy, dt, add, s))
#define cross_entropy_forward(t, e, x, ids, lse, loss, sum, s)                                     \
    (dpar_status) ON_DEVICE(cross_entropy_forward(t, e, x, ids, lse, loss, sum, s))
#define cross_entropy_backward(t, e, x, ids, lse, by)                                              \
    (dpar_status) ON_DEVICE(cross_entropy_backward(t, e, x, ids, lse, by))
#define dpar_all_reduce(c, in, out, n, type, op, work)                                             \
    (dpar_status) ON_DEVICE(dpar_all_reduce(c, in, out, n, type, op, work))
#endif

enum { MOST_RANKS = 64, TRACE = 32 };

/* ---- calls, and their order ------------------------------------------------------------------ */

/* Counts the operations of one rank. trace: m for a product, r for a collective, p for a posted
 * collective. */
typedef struct meter {
    dpar_engine engine;
    int64_t calls, bytes; /* since the last check; bytes of whole arrays */
    int32_t kind;         /* of the last call */
    char trace[TRACE];
    int traced;
} meter;
static __thread meter this_rank; /* ranks may be threads */

static void note(meter *m, char what)
{
    if (m->traced < TRACE - 1) {
        m->trace[m->traced++] = what;
    }
}

static meter *count(const dpar_comm *c, const dpar_call *call, char what)
{
    meter *m = &this_rank;
    int64_t whole = call->count;
    int32_t r;
    if (call->kind == DPAR_CALL_ALL_GATHER || call->kind == DPAR_CALL_REDUCE_SCATTER) {
        const int64_t *each = call->kind == DPAR_CALL_ALL_GATHER ? call->out_count : call->in_count;
        whole = call->variable_counts ? 0 : call->count * c->size;
        for (r = 0; call->variable_counts && r < c->size; r++) {
            whole += each[r];
        }
    }
    m->calls++;
    m->bytes += whole * dpar_type_bytes(call->type);
    m->kind = call->kind;
    note(m, what);
    return m;
}

static dpar_status counted_run(dpar_comm *c, const dpar_call *call)
{
    return count(c, call, 'r')->engine.run(c, call);
}

static dpar_status counted_post(dpar_comm *c, const dpar_call *call, dpar_work *work)
{
    return count(c, call, 'p')->engine.post(c, call, work);
}

static dpar_status counted_matmul(void *user, const dpar_matmul *call)
{
    note((meter *)user, 'm');
#ifdef DEVICE_MEMORY
    return device_matmul(NULL, call);
#else
    return dpar_matmul_host(NULL, call);
#endif
}

#ifdef DEVICE_MEMORY
static dpar_status tensor_init(dpar_tensor_parallel *t, dpar_comm *c, int32_t type, int64_t tokens,
                               int64_t *counts, dpar_why *why)
{
    const dpar_status st = dpar_tensor_parallel_init(t, c, type, tokens, counts, why);
    t->matmul = st == DPAR_OK ? device_matmul : NULL;
    return st;
}
#define dpar_tensor_parallel_init tensor_init
#endif

static void look_begins(dpar_comm *c)
{
    meter *m = &this_rank;
    memset(m, 0, sizeof *m);
    m->engine = c->engine;
    c->engine.run = counted_run;
    c->engine.post = counted_post;
}

static void look_ends(dpar_comm *c)
{
    c->engine = this_rank.engine;
}

/* Compares the calls since the last check, and their order, with the expected ones. Then resets the
 * counts. */
static int sent(dpar_comm *c, int64_t calls, int32_t kind, int64_t bytes, const char *trace)
{
    meter *m = &this_rank;
    const int bad = m->calls != calls || m->bytes != bytes || (calls > 0 && m->kind != kind) ||
                    (trace != NULL && strcmp(trace, m->trace) != 0);
    if (bad) {
        printf(
            "rank %d of %d: %lld collectives, the last %s, %lld bytes, %s; expected %lld %s %lld "
            "%s\n",
            (int)c->rank, (int)c->size, (long long)m->calls, dpar_call_name(m->kind),
            (long long)m->bytes, m->trace, (long long)calls, dpar_call_name(kind), (long long)bytes,
            trace != NULL ? trace : "");
    }
    m->calls = m->bytes = 0;
    m->traced = 0;
    memset(m->trace, 0, sizeof m->trace);
    return bad;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* Returns a number in -1 .. 1 that is the same on all ranks. */
static double number(uint32_t a, int64_t i)
{
    const uint32_t h = scrambled(a, i);
    return (double)h / 2147483648.0 - 1.0;
}

/* Allocates n doubles in host memory, which devices can access too. */
static void *reached(int64_t n)
{
#ifdef DEVICE_CUDA
    void *a = the_device.first != NULL ? device_zeroed((n + 1) * 8) : calloc((size_t)n + 1, 8);
#else
    void *a = calloc((size_t)n + 1, sizeof(double));
#endif
    if (a == NULL) {
        exit(1);
    }
    return a;
}

static void *fresh(int64_t n)
{
#ifdef DEVICE_MEMORY
    if (the_device.first != NULL) {
        return device_zeroed((n + 1) * 8);
    }
#endif
    return reached(n);
}

static double *numbers(uint32_t a, int64_t n, double scale)
{
    double *x = (double *)fresh(n);
    int64_t i;
    for (i = 0; i < n; i++) {
        x[i] = (double)(float)(scale * number(a, i)); /* exact in f32 too */
    }
    return x;
}

/* Returns rows [r0, r1) and columns [c0, c1) of a whole array as a dense array of the type. */
static void *piece(const double *whole, int64_t width, int64_t r0, int64_t r1, int64_t c0,
                   int64_t c1, int32_t type)
{
    void *a = fresh((r1 - r0) * (c1 - c0));
    int64_t i, j;
    for (i = r0; i < r1; i++) {
        for (j = c0; j < c1; j++) {
            float_put(a, (i - r0) * (c1 - c0) + j - c0, type, whole[i * width + j]);
        }
    }
    return a;
}

/* Returns how many elements of a piece differ from those of the whole array times `factor` by more
 * than the tolerance. */
static int compare(const char *what, const void *got, int32_t type, const double *whole,
                   int64_t rows, int64_t width, int64_t r0, int64_t r1, int64_t c0, int64_t c1,
                   double factor)
{
    const double tolerance = type == DPAR_F64 ? 1e-12 : 4e-6;
    double most = 1.0, worst = 0.0;
    int64_t i, j;
    int bad = 0;
    for (i = 0; i < rows * width; i++) {
        most = fabs(whole[i]) > most ? fabs(whole[i]) : most;
    }
    for (i = r0; i < r1; i++) {
        for (j = c0; j < c1; j++) {
            const double d = fabs(float_get(got, (i - r0) * (c1 - c0) + j - c0, type) -
                                  factor * whole[i * width + j]);
            bad += !(d <= tolerance * most);
            worst = d > worst ? d : worst;
        }
    }
    if (bad > 0) {
        printf("%s: %d of %lld wrong, the worst by %g of %g\n", what, bad,
               (long long)((r1 - r0) * (c1 - c0)), worst, most);
    }
    return bad;
}

/* Computes y = x w^T + b, where x is [n][in] and w is [out][in]. */
static void affine(const double *x, const double *w, const double *b, int64_t n, int64_t in,
                   int64_t out, double *y)
{
    int64_t t, i, o;
    for (t = 0; t < n; t++) {
        for (o = 0; o < out; o++) {
            double sum = b != NULL ? b[o] : 0.0;
            for (i = 0; i < in; i++) {
                sum += x[t * in + i] * w[o * in + i];
            }
            y[t * out + o] = sum;
        }
    }
}

/* Adds the gradients of `affine`. */
static void affine_back(const double *x, const double *w, const double *dy, int64_t n, int64_t in,
                        int64_t out, double *dx, double *dw, double *db)
{
    int64_t t, i, o;
    for (t = 0; t < n; t++) {
        for (o = 0; o < out; o++) {
            const double g = dy[t * out + o];
            for (i = 0; i < in; i++) {
                dx[t * in + i] += g * w[o * in + i];
                dw[o * in + i] += g * x[t * in + i];
            }
            db[o] += g;
        }
    }
}

/* ---- matrix products on the host ------------------------------------------------------------- */

/* Tests all transpositions, leading dimensions, alpha and beta, with sizes around those of
 * tiles. */
static int matmul_cases(void)
{
    static const int sizes[] = {0, 1, 5, 16, 33};
    int a, bad = 0;
    for (a = 0; a < 2 * 2 * 2 * 2 * 125; a++) {
        const int ta = a & 1, tb = a >> 1 & 1, f64 = a >> 2 & 1, with = a >> 3 & 1, s = a >> 4;
        const int64_t m = sizes[s % 5], n = sizes[s / 5 % 5], k = sizes[s / 25];
        const int32_t type = f64 ? DPAR_F64 : DPAR_F32;
        const double tolerance = f64 ? 1e-13 : 1e-5, beta = with ? -0.5 : 0.0;
        double *x = numbers(1, 40 * 40, 1.0), *y = numbers(2, 40 * 40, 1.0);
        double *z = numbers(3, 40 * 40, 1.0);
        dpar_matmul p;
        int64_t i, j, l;
        memset(&p, 0, sizeof p);
        p.type = type;
        p.transpose_a = ta;
        p.transpose_b = tb;
        p.m = m;
        p.n = n;
        p.k = k;
        p.alpha = 1.5;
        p.beta = beta;
        p.lda = 35;
        p.ldb = 37;
        p.ldc = 39;
        p.a = piece(x, 40, 0, 40, 0, 40, type);
        p.b = piece(y, 40, 0, 40, 0, 40, type);
        p.c = piece(z, 40, 0, 40, 0, 40, type);
        for (i = 0; !with && i < 40 * 40; i++) { /* beta is 0: C must not be read */
            float_put(p.c, i, type, HUGE_VAL);
        }
        bad += dpar_matmul_host(NULL, &p) != DPAR_OK;
        for (i = 0; i < m; i++) {
            for (j = 0; j < n; j++) {
                double sum = 0.0;
                for (l = 0; l < k; l++) {
                    sum += x[ta ? l * 35 + i : i * 35 + l] * y[tb ? j * 37 + l : l * 37 + j];
                }
                sum = 1.5 * sum + (with ? beta * z[i * 39 + j] : 0.0);
                bad += !(fabs(float_get(p.c, i * 39 + j, type) - sum) <= tolerance);
            }
        }
        p.type = DPAR_I32;
        bad += dpar_matmul_host(NULL, &p) != DPAR_E_ARG;
        free((void *)(uintptr_t)p.a);
        free((void *)(uintptr_t)p.b);
        free(p.c);
        free(x);
        free(y);
        free(z);
    }
    return bad;
}

/* ---- a gated pair: y = ((x w1^T + b1) * (x w3^T + b3)) w2^T + b2 ----------------------------- */

typedef struct shape {
    int64_t n, h, f; /* tokens, features outside and inside the pair */
    int32_t type, sequence, ragged, apart, kept;
} shape;

/* Whole arrays: random inputs, and results by the textbook. */
typedef struct pair {
    double *x, *w1, *b1, *w3, *b3, *w2, *b2, *g, *u, *v, *p, *y;
    double *dx, *dw1, *db1, *dw3, *db3, *dw2, *db2, *dp;
} pair;

static void pair_textbook(const shape *s, pair *a)
{
    const int64_t n = s->n, h = s->h, f = s->f;
    double *du = (double *)fresh(n * f), *dv = (double *)fresh(n * f);
    int64_t i;
    a->x = numbers(1, n * h, 1.0);
    a->w1 = numbers(2, f * h, 1.0);
    a->b1 = numbers(3, f, 1.0);
    a->w3 = numbers(4, f * h, 1.0);
    a->b3 = numbers(5, f, 1.0);
    a->w2 = numbers(6, h * f, 1.0);
    a->b2 = numbers(7, h, 1.0);
    a->g = numbers(8, n * h, 1.0);
    a->u = (double *)fresh(n * f);
    a->v = (double *)fresh(n * f);
    a->p = (double *)fresh(n * f);
    a->y = (double *)fresh(n * h);
    a->dx = (double *)fresh(n * h);
    a->dw1 = (double *)fresh(f * h);
    a->db1 = (double *)fresh(f);
    a->dw3 = (double *)fresh(f * h);
    a->db3 = (double *)fresh(f);
    a->dw2 = (double *)fresh(h * f);
    a->db2 = (double *)fresh(h);
    a->dp = (double *)fresh(n * f);
    affine(a->x, a->w1, a->b1, n, h, f, a->u);
    affine(a->x, a->w3, a->b3, n, h, f, a->v);
    for (i = 0; i < n * f; i++) {
        a->p[i] = a->u[i] * a->v[i];
    }
    affine(a->p, a->w2, a->b2, n, f, h, a->y);
    affine_back(a->p, a->w2, a->g, n, f, h, a->dp, a->dw2, a->db2);
    for (i = 0; i < n * f; i++) {
        du[i] = a->dp[i] * a->v[i];
        dv[i] = a->dp[i] * a->u[i];
    }
    affine_back(a->x, a->w1, du, n, h, f, a->dx, a->dw1, a->db1);
    affine_back(a->x, a->w3, dv, n, h, f, a->dx, a->dw3, a->db3);
    free(du);
    free(dv);
}

static void pair_free(pair *a)
{
    double **all = &a->x;
    size_t i;
    for (i = 0; i < sizeof *a / sizeof *all; i++) {
        free(all[i]);
    }
}

/* One rank's part of the pair. */
typedef struct part {
    dpar_tensor_parallel t;
    dpar_linear up, down;
    dpar_linear_arrays u, v, y;
    int64_t f0, f1, own, t0;
    int64_t counts[MOST_RANKS], cuts[MOST_RANKS + 1];
    int64_t weights[MOST_RANKS];
} part;

/* Returns the number of tokens that this rank has outside of a pair. */
static int64_t own_tokens(const dpar_tensor_parallel *t)
{
    return t->counts == NULL ? t->tokens.count : dpar_split_part_count(&t->tokens, t->comm->rank);
}

static dpar_split cut_features(dpar_comm *c, const shape *s, part *p)
{
    dpar_split cut;
    int32_t r;
    memset(&cut, 0, sizeof cut);
    for (r = 0; r < c->size; r++) {
        p->weights[r] = r % 3 + (r == c->size - 1);
    }
    (void)dpar_split_init(&cut, DPAR_SPLIT_EVEN, s->f, c->size, 1, NULL);
    if (s->ragged) {
        (void)dpar_split_weighted_cuts(p->cuts, s->f, c->size, p->weights, 1, NULL);
        (void)dpar_split_init_ragged(&cut, c->size, p->cuts, NULL);
    }
    return cut;
}

static int part_make(dpar_comm *c, const shape *s, const pair *a, part *p)
{
    const int64_t n = s->n, h = s->h, f = s->f;
    const int32_t type = s->type;
    dpar_split cut;
    int64_t m;
    memset(p, 0, sizeof *p);
    cut = cut_features(c, s, p);
    m = dpar_split_part_count(&cut, c->rank);
    p->f0 = m > 0 ? dpar_split_part_first(&cut, c->rank) : 0;
    p->f1 = p->f0 + m;
    if (dpar_tensor_parallel_init(&p->t, c, type, n, s->sequence ? p->counts : NULL, NULL) !=
        DPAR_OK) {
        return 1;
    }
    p->t.matmul = counted_matmul;
    p->t.user = &this_rank;
    p->own = own_tokens(&p->t);
    p->t0 = s->sequence && p->own > 0 ? dpar_split_part_first(&p->t.tokens, c->rank) : 0;
    p->up.kind = DPAR_LINEAR_COLUMN;
    p->up.in = p->down.out = h;
    p->up.out = p->down.in = m;
    p->down.kind = DPAR_LINEAR_ROW;
    p->u.w = piece(a->w1, h, p->f0, p->f1, 0, h, type);
    p->u.bias = piece(a->b1, 1, p->f0, p->f1, 0, 1, type);
    p->u.x = p->v.x = piece(a->x, h, p->t0, p->t0 + p->own, 0, h, type);
    p->u.dx = p->v.dx = fresh(p->own * h);
    p->u.y = fresh(n * m);
    p->u.dw = fresh(m * h);
    p->u.dbias = fresh(m);
    p->u.gathered = p->v.gathered = s->sequence ? fresh(n * h) : NULL;
    p->u.gathered_dx = p->v.gathered_dx = s->sequence ? fresh(n * h) : NULL;
    p->v.w = piece(a->w3, h, p->f0, p->f1, 0, h, type);
    p->v.bias = piece(a->b3, 1, p->f0, p->f1, 0, 1, type);
    p->v.y = fresh(n * m);
    p->v.dw = fresh(m * h);
    p->v.dbias = fresh(m);
    p->y.w = piece(a->w2, f, 0, h, p->f0, p->f1, type);
    p->y.bias = piece(a->b2, 1, 0, h, 0, 1, type);
    p->y.x = fresh(n * m);
    p->y.dx = fresh(n * m);
    p->y.y = fresh(p->own * h);
    p->y.dy = piece(a->g, h, p->t0, p->t0 + p->own, 0, h, type);
    p->y.dw = fresh(m * h);
    p->y.dbias = fresh(h);
    p->y.gathered = s->sequence ? fresh(n * h) : NULL;
    p->u.dy = fresh(n * m);
    p->v.dy = fresh(n * m);
    return 0;
}

static void free_const(const void *p)
{
    free((void *)(uintptr_t)p);
}

static void part_free(part *p)
{
    dpar_linear_arrays *each[3];
    int i;
    each[0] = &p->u;
    each[1] = &p->v;
    each[2] = &p->y;
    p->v.x = p->v.dx = p->v.gathered = p->v.gathered_dx = NULL; /* shared with u */
    for (i = 0; i < 3; i++) {
        dpar_linear_arrays *a = each[i];
        free_const(a->w);
        free_const(a->bias);
        free_const(a->x);
        free_const(a->dy);
        free(a->y);
        free(a->dx);
        free(a->dw);
        free(a->dbias);
        free(a->gathered);
        free(a->gathered_dx);
    }
}

/* Computes p = u * v. */
static void part_product(const shape *s, part *p)
{
    int64_t i;
    for (i = 0; i < s->n * p->up.out; i++) {
        float_put((void *)(uintptr_t)p->y.x, i, s->type,
                  float_get(p->u.y, i, s->type) * float_get(p->v.y, i, s->type));
    }
}

static int part_forward(dpar_comm *c, const shape *s, part *p)
{
    const int64_t bytes = s->n * s->h * dpar_type_bytes(s->type);
    int bad = dpar_linear_forward(&p->t, &p->up, &p->u) != DPAR_OK;
    bad += s->sequence ? sent(c, 1, DPAR_CALL_ALL_GATHER, bytes, "rm") : sent(c, 0, 0, 0, "m");
    p->v.reuse_gathered = s->sequence; /* gathered for u */
    bad += dpar_linear_forward(&p->t, &p->up, &p->v) != DPAR_OK;
    bad += sent(c, 0, 0, 0, "m");
    part_product(s, p);
    bad += dpar_linear_forward(&p->t, &p->down, &p->y) != DPAR_OK;
    bad += sent(c, 1, s->sequence ? DPAR_CALL_REDUCE_SCATTER : DPAR_CALL_ALL_REDUCE, bytes, "mr");
    return bad;
}

/* Computes dp and the gradients of the weights from dy; in two calls if `apart` is set. */
static int down_backward(dpar_comm *c, const shape *s, part *p)
{
    const int64_t bytes = s->n * s->h * dpar_type_bytes(s->type);
    void *dx = p->y.dx, *dw = p->y.dw, *dbias = p->y.dbias;
    int bad = 0;
    if (s->apart) {
        p->y.dw = p->y.dbias = NULL;
    }
    bad += dpar_linear_backward(&p->t, &p->down, &p->y) != DPAR_OK;
    bad += s->sequence ? sent(c, 1, DPAR_CALL_ALL_GATHER, bytes, s->apart ? "rm" : "rmm")
                       : sent(c, 0, 0, 0, s->apart ? "m" : "mm");
    if (s->apart) {
        p->y.dw = dw;
        p->y.dbias = dbias;
        p->y.dx = NULL;
        p->y.reuse_gathered = 1;
        bad += dpar_linear_backward(&p->t, &p->down, &p->y) != DPAR_OK;
        bad += sent(c, 0, 0, 0, "m");
        p->y.dx = dx;
        p->y.reuse_gathered = 0;
    }
    return bad;
}

/* Runs backward of both first layers. The first defers the reduction of its part of dx to the
 * second, which reduces the sum of both. */
static int up_backward(dpar_comm *c, const shape *s, part *p)
{
    const int64_t bytes = s->n * s->h * dpar_type_bytes(s->type);
    const int gathers = s->sequence && !s->kept;
    const int32_t last = s->sequence ? DPAR_CALL_REDUCE_SCATTER : DPAR_CALL_ALL_REDUCE;
    int bad = 0;
    p->u.defer_reduce = 1;
    p->v.accumulate_dx = 1;
    p->u.reuse_gathered = p->v.reuse_gathered = s->kept;
    if (gathers) { /* the result of forward must not be used */
        memset(p->u.gathered, 0, (size_t)(s->n * s->h * dpar_type_bytes(s->type)));
    }
    bad += dpar_linear_backward(&p->t, &p->up, &p->u) != DPAR_OK;
    bad += gathers ? sent(c, 1, DPAR_CALL_ALL_GATHER, bytes, "pmm") : sent(c, 0, 0, 0, "mm");
    bad += dpar_linear_backward(&p->t, &p->up, &p->v) != DPAR_OK;
    bad += gathers ? sent(c, 2, last, 2 * bytes, "pmpm") : sent(c, 1, last, bytes, "mpm");
    p->u.reuse_gathered = p->v.reuse_gathered = p->u.defer_reduce = p->v.accumulate_dx = 0;
    return bad;
}

static int part_backward(dpar_comm *c, const shape *s, part *p)
{
    int64_t i;
    int bad = down_backward(c, s, p);
    for (i = 0; i < s->n * p->up.out; i++) {
        const double dp = float_get(p->y.dx, i, s->type);
        float_put((void *)(uintptr_t)p->u.dy, i, s->type, dp * float_get(p->v.y, i, s->type));
        float_put((void *)(uintptr_t)p->v.dy, i, s->type, dp * float_get(p->u.y, i, s->type));
    }
    return bad + up_backward(c, s, p);
}

/* Compares all results. factor: 2 if gradients were computed twice and added. */
static int part_compare(const shape *s, const pair *a, const part *p, double factor)
{
    const int64_t n = s->n, h = s->h, f = s->f, t0 = p->t0, t1 = p->t0 + p->own;
    const int32_t type = s->type;
    int bad = compare("y", p->y.y, type, a->y, n, h, t0, t1, 0, h, 1.0);
    bad += compare("dx", p->u.dx, type, a->dx, n, h, t0, t1, 0, h, 1.0);
    bad += compare("dw1", p->u.dw, type, a->dw1, f, h, p->f0, p->f1, 0, h, factor);
    bad += compare("db1", p->u.dbias, type, a->db1, f, 1, p->f0, p->f1, 0, 1, factor);
    bad += compare("dw3", p->v.dw, type, a->dw3, f, h, p->f0, p->f1, 0, h, factor);
    bad += compare("db3", p->v.dbias, type, a->db3, f, 1, p->f0, p->f1, 0, 1, factor);
    bad += compare("dw2", p->y.dw, type, a->dw2, h, f, 0, h, p->f0, p->f1, factor);
    bad += compare("db2", p->y.dbias, type, a->db2, h, 1, 0, h, 0, 1, factor);
    return bad;
}

/* Returns the loss sum(g y) over all tokens as the ranks compute it. */
static double part_loss(dpar_comm *c, const shape *s, part *p)
{
    double sum = 0.0;
    int64_t i;
    (void)part_forward(c, s, p);
    for (i = 0; i < p->own * s->h; i++) {
        sum += float_get(p->y.y, i, s->type) * float_get(p->y.dy, i, s->type);
    }
    if (s->sequence) {
        (void)dpar_all_reduce(c, &sum, &sum, 1, DPAR_F64, DPAR_SUM, NULL);
        this_rank.calls = this_rank.bytes = 0;
        this_rank.traced = 0;
        memset(this_rank.trace, 0, TRACE);
    }
    return sum;
}

/* Compares d loss / d array[i] on rank `who` with central differences. The loss is a polynomial of
 * degree 2 in each number, so that they are exact except for rounding. */
static int differs(dpar_comm *c, const shape *s, part *p, const void *array, const void *gradient,
                   int64_t numbers_of, int32_t who)
{
    const int mine = c->rank == who && numbers_of > 0;
    const int64_t i = mine ? numbers_of / 2 : 0;
    double *a = (double *)(uintptr_t)array, before = mine ? a[i] : 0.0, high, low, slope;
    if (mine) {
        a[i] = before + 0.125;
    }
    high = part_loss(c, s, p);
    if (mine) {
        a[i] = before - 0.125;
    }
    low = part_loss(c, s, p);
    if (!mine) {
        return 0;
    }
    a[i] = before;
    slope = (high - low) / 0.25;
    if (!(fabs(slope - ((const double *)gradient)[i]) <= 1e-10 * (1.0 + fabs(slope)))) {
        printf("rank %d of %d: the slope is %.15g, the gradient %.15g\n", (int)c->rank,
               (int)c->size, slope, ((const double *)gradient)[i]);
        return 1;
    }
    return 0;
}

static int pair_case(dpar_comm *c, const shape *s)
{
    pair a;
    part p;
    int bad, round;
    memset(&a, 0, sizeof a);
    pair_textbook(s, &a);
    bad = part_make(c, s, &a, &p);
    look_begins(c);
    for (round = 0; round < 2 && bad == 0;
         round++) { /* the second round adds to the weights' gradients */
        p.u.accumulate = p.v.accumulate = p.y.accumulate = round;
        bad += part_forward(c, s, &p) + part_backward(c, s, &p);
        bad += part_compare(s, &a, &p, 1.0 + round);
    }
    p.u.accumulate = p.v.accumulate = p.y.accumulate = 0;
    if (s->type == DPAR_F64 && s->n > 2) {
        const int32_t who = (int32_t)((s->n + s->f) % c->size);
        bad += part_forward(c, s, &p) + part_backward(c, s, &p);
        bad += differs(c, s, &p, p.u.w, p.u.dw, p.up.out * s->h, who);
        bad += differs(c, s, &p, p.v.bias, p.v.dbias, p.up.out, who);
        bad += differs(c, s, &p, p.y.w, p.y.dw, p.up.out * s->h, who);
        if (s->sequence || c->size == 1) { /* otherwise all ranks hold the same x */
            bad += differs(c, s, &p, p.u.x, p.u.dx, p.own * s->h, who);
        }
    }
    look_ends(c);
    if (bad > 0) {
        printf("rank %d of %d: %lld tokens, %lld and %lld features, type %d sequence %d ragged %d "
               "apart %d kept %d: %d wrong\n",
               (int)c->rank, (int)c->size, (long long)s->n, (long long)s->h, (long long)s->f,
               (int)s->type, (int)s->sequence, (int)s->ragged, (int)s->apart, (int)s->kept, bad);
    }
    part_free(&p);
    pair_free(&a);
    return bad;
}

/* Returns 1 if case i is tested on this number of ranks. With more than 3 ranks each number of
 * ranks gets a quarter of the cases, because cores are few. */
static int turn(const dpar_comm *c, int i)
{
    return c->size <= 3 || i % 4 == c->size % 4;
}

/* Tests posted collectives that continue in another thread: the counts and buffers must not be
 * changed meanwhile. */
static int progress_cases(dpar_comm *c)
{
    int k, bad = 0;
    if (dpar_comm_progress(c, 1) != DPAR_OK) {
        return 0; /* threads are not available */
    }
    for (k = 0; k < 4; k++) {
        shape s;
        memset(&s, 0, sizeof s);
        s.n = 12;
        s.h = 14;
        s.f = 18;
        s.type = k & 1 ? DPAR_F32 : DPAR_F64;
        s.sequence = k >> 1;
        bad += pair_case(c, &s);
    }
    return bad + (dpar_comm_progress(c, 0) != DPAR_OK);
}

static int pair_cases(dpar_comm *c)
{
    static const int64_t shapes[][3] = {{1, 1, 1}, {5, 3, 7}, {8, 16, 32}, {13, 6, 10},
                                        {0, 2, 3}, {3, 5, 0}, {17, 20, 37}};
    int i, k, bad = 0;
    for (i = 0; i < 7; i++) {
        for (k = 0; k < 32; k++) {
            shape s;
            s.n = shapes[i][0];
            s.h = shapes[i][1];
            s.f = shapes[i][2];
            s.type = k & 1 ? DPAR_F32 : DPAR_F64;
            s.sequence = k >> 1 & 1;
            s.ragged = k >> 2 & 1;
            s.apart = k >> 3 & 1;
            s.kept = k >> 4 & 1;
            if ((!s.kept || s.sequence) && turn(c, i * 32 + k)) {
                bad += pair_case(c, &s);
            }
        }
    }
    return bad;
}

/* ---- features -------------------------------------------------------------------------------- */

static dpar_status carry(dpar_comm *c, const dpar_layout *from, const dpar_layout *to,
                         const void *in, void *out)
{
    dpar_redistribute_desc m;
    memset(&m, 0, sizeof m);
    m.from = from;
    m.to = to;
    m.in = in;
    m.out = out;
    m.type = DPAR_F64;
    return dpar_redistribute(c, &m, NULL);
}

/* Slices features and gathers them again as documented in tensor.h, with each rule that needs only
 * numbers. */
static int feature_cases(dpar_comm *c)
{
    static const int32_t rules[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_CHUNK, DPAR_SPLIT_STRIDED,
                                    DPAR_SPLIT_ZIGZAG, DPAR_SPLIT_CYCLIC};
    enum { ROWS = 3, MOST = 19 };
    int32_t i;
    int64_t n, k;
    int bad = 0;
    for (i = 0; i < 5; i++) {
        for (n = 1; n <= MOST; n++) {
            double *whole = (double *)fresh(ROWS * MOST), *own = (double *)fresh(ROWS * MOST);
            double *back = (double *)fresh(ROWS * MOST);
            const int64_t extent[2] = {ROWS, n};
            const dpar_placement some = dpar_shard_by(1, rules[i], 2), all = dpar_replicate();
            dpar_layout cut, uncut;
            dpar_mesh mesh;
            dpar_split split;
            dpar_why why;
            int64_t l, g;
            bad += dpar_split_init(&split, rules[i], n, c->size, 2, NULL) != DPAR_OK;
            bad +=
                dpar_mesh_init(&mesh, "tp", &c->size, DPAR_ORDER_LAST_FASTEST, 0, &why) != DPAR_OK;
            bad += dpar_layout_init(&cut, &mesh, 2, extent, &some, &why) != DPAR_OK;
            bad += dpar_layout_init(&uncut, &mesh, 2, extent, &all, &why) != DPAR_OK;
            for (k = 0; k < ROWS * n; k++) {
                whole[k] = number(9, k);
                back[k] = 0.0;
            }
            bad += carry(c, &uncut, &cut, whole, own) < 0;
            for (l = 0; (g = dpar_split_global(&split, c->rank, l, NULL)) >= 0; l++) {
                for (k = 0; k < ROWS; k++) {
                    const double d =
                        own[k * dpar_split_part_count(&split, c->rank) + l] - whole[k * n + g];
                    bad += d < 0.0 || d > 0.0;
                }
            }
            bad += carry(c, &cut, &uncut, own, back) < 0;
            bad += memcmp(whole, back, (size_t)(ROWS * n) * sizeof *back) != 0;
            free(whole);
            free(own);
            free(back);
        }
    }
    return bad;
}

/* ---- vocabulary ------------------------------------------------------------------------------ */

typedef struct words {
    int64_t n, width;
    int32_t type, sequence;
    dpar_vocab v;
    double smoothing, z, offset;
    int32_t ignore;
} words;

static int32_t word_of(const words *s, int64_t i)
{
    const double u = 0.5 * (number(21, i) + 1.0);
    const int64_t id = (int64_t)(u * (double)(s->v.count + s->v.added));
    return (int32_t)(id < s->v.count + s->v.added ? id : 0);
}

/* Returns the rows of a rank from the whole [V][width] array. Padding is NaN, so that reading it is
 * detected. */
static void *rows_of(const words *s, int32_t rank, const double *whole)
{
    const int64_t rows = dpar_vocab_row_count(&s->v);
    void *a = fresh(rows * s->width);
    int64_t i, j;
    for (i = 0; i < rows; i++) {
        const int64_t id = dpar_vocab_id(&s->v, rank, i);
        for (j = 0; j < s->width; j++) {
            float_put(a, i * s->width + j, s->type,
                      id < 0 ? (double)NAN : whole[id * s->width + j]);
        }
    }
    return a;
}

/* Compares the embedding bit by bit with one rank: except for sums in token order, each sum has
 * only one part that is not 0. */
static int embedding_case(dpar_comm *c, const words *s)
{
    const int64_t n = s->n, w = s->width, vocabulary = s->v.count + s->v.added;
    const int64_t rows = dpar_vocab_row_count(&s->v), bytes = n * w * dpar_type_bytes(s->type);
    double *table = numbers(22, vocabulary * w, 1.0), *g = numbers(23, n * w, 1.0);
    double *want = (double *)fresh(vocabulary * w);
    int32_t *ids = (int32_t *)reached(n);
    void *mine = rows_of(s, c->rank, table), *y, *dy, *whole, *dtable = fresh(rows * w);
    int64_t counts[MOST_RANKS], own, t0, i, j;
    dpar_tensor_parallel t;
    int bad =
        dpar_tensor_parallel_init(&t, c, s->type, n, s->sequence ? counts : NULL, NULL) != DPAR_OK;
    int round;
    own = own_tokens(&t);
    t0 = s->sequence && own > 0 ? dpar_split_part_first(&t.tokens, c->rank) : 0;
    y = fresh(own * w);
    whole = fresh(n * w);
    dy = piece(g, w, t0, t0 + own, 0, w, s->type);
    for (i = 0; i < n; i++) {
        ids[i] = word_of(s, i);
    }
    look_begins(c);
    bad += embedding_forward(&t, &s->v, w, ids, mine, y, whole) != DPAR_OK;
    bad += sent(c, 1, s->sequence ? DPAR_CALL_REDUCE_SCATTER : DPAR_CALL_ALL_REDUCE, bytes, "r");
    for (i = 0; i < own; i++) {
        for (j = 0; j < w; j++) {
            const double d = float_get(y, i * w + j, s->type) - table[ids[t0 + i] * w + j];
            bad += !(d >= 0.0 && d <= 0.0);
        }
    }
    for (round = 0; round < 2; round++) {
        bad += embedding_backward(&t, &s->v, w, ids, dy, dtable, round, whole) != DPAR_OK;
        bad += sent(c, s->sequence, DPAR_CALL_ALL_GATHER, s->sequence ? bytes : 0,
                    s->sequence ? "r" : "");
        for (i = 0; i < n; i++) {
            for (j = 0; j < w; j++) {
                double *at = &want[ids[i] * w + j];
                *at += g[i * w + j];
                *at = s->type == DPAR_F64 ? *at : (double)(float)*at;
            }
        }
        for (i = 0; i < rows; i++) {
            const int64_t id = dpar_vocab_id(&s->v, c->rank, i);
            for (j = 0; j < w; j++) {
                const double d =
                    float_get(dtable, i * w + j, s->type) - (id < 0 ? 0.0 : want[id * w + j]);
                bad += !(d >= 0.0 && d <= 0.0);
            }
        }
    }
    look_ends(c);
    if (bad > 0) {
        printf("rank %d of %d: embedding of %lld + %lld, %lld tokens, type %d sequence %d: %d "
               "wrong\n",
               (int)c->rank, (int)c->size, (long long)s->v.count, (long long)s->v.added,
               (long long)n, (int)s->type, (int)s->sequence, bad);
    }
    free(table);
    free(g);
    free(want);
    free(ids);
    free(mine);
    free(y);
    free(dy);
    free(whole);
    free(dtable);
    return bad;
}

/* Computes the loss of each token and the gradient of their sum with libm over whole rows. */
static void entropy_textbook(const words *s, const double *x, const int32_t *targets, double *loss,
                             double *g)
{
    const int64_t all = s->v.count + s->v.added;
    int64_t i, j;
    for (i = 0; i < s->n; i++) {
        const int64_t at = i * all;
        const int counted = targets[i] >= 0 && targets[i] != s->ignore - 1;
        double most = x[at], sum = 0.0, mean = 0.0, lse;
        for (j = 0; j < all; j++) {
            most = x[at + j] > most ? x[at + j] : most;
            mean += x[at + j] / (double)all;
        }
        for (j = 0; j < all; j++) {
            sum += exp(x[at + j] - most);
        }
        lse = most + log(sum);
        loss[i] = 0.0;
        for (j = 0; j < all; j++) {
            g[at + j] = counted ? exp(x[at + j] - lse) * (1.0 + 2.0 * s->z * lse) -
                                      s->smoothing / (double)all -
                                      (j == targets[i] ? 1.0 - s->smoothing : 0.0)
                                : 0.0;
        }
        if (counted) {
            loss[i] = lse - (1.0 - s->smoothing) * x[at + targets[i]] - s->smoothing * mean +
                      s->z * lse * lse;
        }
    }
}

/* Compares the gradient with the losses of the ranks when one logit is changed. */
static int entropy_differs(const dpar_tensor_parallel *t, const dpar_cross_entropy *e,
                           const void *logits, const int32_t *targets, const double *gradient,
                           int64_t n, double *lse, void *scratch)
{
    const int64_t all = e->vocab.count + e->vocab.added, rows = dpar_vocab_row_count(&e->vocab);
    dpar_cross_entropy_sum *sum = (dpar_cross_entropy_sum *)reached(sizeof *sum / sizeof(double));
    double *x = (double *)(uintptr_t)logits, slope[2];
    int64_t k;
    int bad = 0, side;
    for (k = 0; k < 3; k++) {
        const int64_t token = n / 2, id = k * (all - 1) / 2;
        const int64_t row = dpar_vocab_row(&e->vocab, t->comm->rank, id), at = token * rows + row;
        const double before = row >= 0 ? x[at] : 0.0;
        for (side = 0; side < 2; side++) {
            if (row >= 0) {
                x[at] = before + (side ? 1e-4 : -1e-4);
            }
            bad += cross_entropy_forward(t, e, x, targets, lse, NULL, sum, scratch) != DPAR_OK;
            slope[side] = sum->loss + sum->z_loss;
        }
        if (row >= 0) {
            x[at] = before;
        }
        bad += !(fabs((slope[1] - slope[0]) / 2e-4 - gradient[token * all + id]) < 1e-6);
    }
    free(sum);
    return bad;
}

/* Compares results. loss: all tokens of all ranks; logits: of this rank, overwritten with the
 * gradient times scale. */
static int entropy_compare(dpar_comm *c, const words *s, const double *want_loss,
                           const double *want, const double *loss, const void *logits, double scale)
{
    const int64_t rows = dpar_vocab_row_count(&s->v), all = s->v.count + s->v.added;
    const double tolerance = s->type == DPAR_F64 ? 1e-12 : 4e-7;
    int64_t i, j;
    int bad = 0;
    for (i = 0; i < s->n; i++) {
        const double largest = 1.0 + s->offset + 10.0 + fabs(want_loss[i]);
        bad += !(fabs(loss[i] - want_loss[i]) <= tolerance * largest);
        for (j = 0; j < rows; j++) {
            const int64_t id = dpar_vocab_id(&s->v, c->rank, j);
            const double g = id < 0 ? 0.0 : scale * want[i * all + id];
            const double d = fabs(float_get(logits, i * rows + j, s->type) - g);
            bad += id < 0 ? !(d <= 0.0) : !(d <= tolerance * scale * largest);
        }
    }
    return bad;
}

static int entropy_case(dpar_comm *c, const words *s)
{
    const int64_t n = s->n, rows = dpar_vocab_row_count(&s->v), all = s->v.count + s->v.added;
    double *x = numbers(24, n * all, 10.0), *want = (double *)fresh(n * all);
    double *want_loss = (double *)fresh(n), *loss = (double *)fresh(n), *lse = (double *)fresh(n);
    int32_t *targets = (int32_t *)reached(n);
    void *logits = fresh(n * rows), *scratch;
    dpar_cross_entropy_sum *sum = (dpar_cross_entropy_sum *)reached(sizeof *sum / sizeof(double));
    dpar_cross_entropy e;
    dpar_tensor_parallel t;
    int64_t i, j, counted = 0, counts[MOST_RANKS];
    double total = 0.0;
    int bad =
        dpar_tensor_parallel_init(&t, c, s->type, n, s->sequence ? counts : NULL, NULL) != DPAR_OK;
    memset(&e, 0, sizeof e);
    e.vocab = s->v;
    e.smoothing = s->smoothing;
    e.z_loss = s->z;
    e.ignore = s->ignore;
    for (i = 0; i < n * all; i++) {
        x[i] = (double)(float)(x[i] + s->offset);
    }
    for (i = 0; i < n; i++) {
        targets[i] = i % 7 == 3 ? -100 : word_of(s, i);
        counted += targets[i] >= 0 && targets[i] != s->ignore - 1;
        for (j = 0; j < rows; j++) {
            const int64_t id = dpar_vocab_id(&s->v, c->rank, j);
            float_put(logits, i * rows + j, s->type, id < 0 ? (double)NAN : x[i * all + id]);
        }
    }
    entropy_textbook(s, x, targets, want_loss, want);
    scratch = fresh(3 * t.tokens.count * (c->size + 1));
    look_begins(c);
    if (s->type == DPAR_F64 && n > 0 && s->offset <= 0.0) {
        bad += entropy_differs(&t, &e, logits, targets, want, n, lse, scratch);
        bad += sent(c, 6, DPAR_CALL_ALL_GATHER, 6 * 24 * n * c->size, "rrrrrr");
    }
    bad += cross_entropy_forward(&t, &e, logits, targets, lse, loss, sum, scratch) != DPAR_OK;
    bad += sent(c, 1, DPAR_CALL_ALL_GATHER, (s->type == DPAR_F64 ? 24 : 12) * n * c->size, "r");
    cross_entropy_backward(&t, &e, logits, targets, lse, 0.25);
    bad += sent(c, 0, 0, 0, "");
    look_ends(c);
    bad += entropy_compare(c, s, want_loss, want, loss, logits, 0.25);
    for (i = 0; i < n; i++) {
        total += loss[i];
    }
    bad +=
        sum->tokens != counted || !(fabs(sum->loss + sum->z_loss - total) <= 1e-12 * (1.0 + total));
    if (bad > 0) {
        printf(
            "rank %d of %d: cross-entropy of %lld + %lld, %lld tokens, type %d smoothing %g z %g "
            "offset %g: %d wrong\n",
            (int)c->rank, (int)c->size, (long long)s->v.count, (long long)s->v.added, (long long)n,
            (int)s->type, s->smoothing, s->z, s->offset, bad);
    }
    free(x);
    free(want);
    free(want_loss);
    free(loss);
    free(lse);
    free(sum);
    free(targets);
    free(logits);
    free(scratch);
    return bad;
}

/* Tests padded vocabularies: with 16 rows on each of 8 ranks some ranks have only padding. */
static int word_cases(dpar_comm *c)
{
    static const int64_t sizes[][4] = {
        /* tokens of the model, added ones, unit that a rank's rows are padded to, tokens */
        {10, 0, 16, 5}, {37, 0, 1, 17}, {1, 0, 2, 3}, {13, 5, 2, 8}, {300, 2, 64, 4}, {9, 0, 3, 0}};
    int i, k, bad = 0;
    for (i = 0; i < 6; i++) {
        for (k = 0; k < 32; k++) {
            words s;
            memset(&s, 0, sizeof s);
            bad += dpar_vocab_init(&s.v, sizes[i][0], sizes[i][1], sizes[i][2] * c->size, c->size,
                                   NULL) != DPAR_OK;
            s.n = sizes[i][3];
            s.width = 1 + k % 5;
            s.type = k & 1 ? DPAR_F32 : DPAR_F64;
            s.sequence = k >> 1 & 1;
            s.smoothing = k >> 2 & 1 ? 0.1 : 0.0;
            s.z = k >> 3 & 1 ? 1e-2 : 0.0;
            s.ignore = k >> 4 & 1 ? 1 + word_of(&s, 0) : 0;
            s.offset = k % 3 == 2 ? 1000.0 : 0.0;
            if (turn(c, i * 32 + k)) {
                bad += entropy_case(c, &s);
                bad += k < 4 ? embedding_case(c, &s) : 0;
            }
        }
    }
    return bad;
}

/* Tests logits of minus infinity (masked words), also for all words of a rank. NaN must stay
 * NaN. */
static int odd_logits(dpar_comm *c)
{
    double *x = (double *)fresh(2 * 4), *lse = (double *)fresh(2), *loss = (double *)fresh(2);
    double *scratch = (double *)fresh(6 * (MOST_RANKS + 1));
    int32_t *targets = (int32_t *)reached(2);
    dpar_cross_entropy e;
    dpar_tensor_parallel t;
    int64_t i;
    int bad = dpar_tensor_parallel_init(&t, c, DPAR_F64, 2, NULL, NULL) != DPAR_OK;
    targets[0] = targets[1] = 1;
    memset(&e, 0, sizeof e);
    bad += dpar_vocab_init(&e.vocab, 4 * c->size, 0, c->size, c->size, NULL) != DPAR_OK;
    for (i = 0; i < 8; i++) { /* only words 0 and 1 are possible */
        x[i] = c->rank == 0 && i % 4 < 2 ? 3.0 : (double)-INFINITY;
    }
    x[7] = c->rank == c->size - 1 ? (double)NAN : x[7];
    bad += cross_entropy_forward(&t, &e, x, targets, lse, loss, NULL, scratch) != DPAR_OK;
    bad += !(fabs(loss[0] - log(2.0)) < 1e-14) || !isnan(loss[1]);
    cross_entropy_backward(&t, &e, x, targets, lse, 1.0);
    for (i = 0; i < 4; i++) {
        const double g = c->rank > 0 || i > 1 ? 0.0 : i == 0 ? 0.5 : -0.5;
        bad += !(fabs(x[i] - g) < 1e-14) || !isnan(x[4 + i]);
    }
    /* rank r has logits of 1000 r: e^1000 must not be computed; then all are minus infinity */
    for (i = 0; i < 8; i++) {
        x[i] = i < 4 ? 1000.0 * c->rank : (double)-INFINITY;
    }
    bad += cross_entropy_forward(&t, &e, x, targets, lse, loss, NULL, scratch) != DPAR_OK;
    bad += !(fabs(lse[0] - 1000.0 * (c->size - 1) - log(4.0)) < 1e-11) || !isnan(loss[1]);
    free(x);
    free(lse);
    free(loss);
    free(scratch);
    free(targets);
    return bad;
}

/* ---- attention heads ------------------------------------------------------------------------- */

/* A block: qkv = x w^T + b; causal attention; y = a wo^T. */
typedef struct block {
    dpar_heads heads;
    int64_t n, h, width;
    int32_t type, order;
} block;

/* Returns where head i of a kind (0 query, 1 key, 2 value) begins in a row of the rank whose share
 * is `own`. */
static int64_t head_at(const block *s, const dpar_heads_share *own, int kind, int64_t i)
{
    const int64_t each = s->heads.queries / s->heads.groups;
    if (s->order == DPAR_HEADS_QKV_BY_KIND || own->groups < 2) {
        return s->width * ((kind > 0 ? own->queries : 0) + (kind > 1 ? own->groups : 0) + i);
    }
    return s->width *
           (kind == 0 ? i / each * (each + 2) + i % each : i * (each + 2) + each + kind - 1);
}

/* The user's kernel: computes o[n][queries][width] for the heads of a share. With g, the gradient
 * of o, also computes that of qkv. */
static void attend(const block *s, const dpar_heads_share *own, const double *qkv, double *o,
                   const double *g, double *d)
{
    const int64_t row = (own->queries + 2 * (int64_t)own->groups) * s->width, w = s->width;
    const int64_t each = s->heads.queries / s->heads.groups, wide = own->queries * w;
    double p[32], dp[32];
    int64_t head, i, j, k;
    for (head = 0; head < own->queries; head++) {
        const int64_t group = (own->first_query + head) / each - own->first_group;
        const int64_t qa = head_at(s, own, 0, head), ka = head_at(s, own, 1, group);
        const int64_t va = head_at(s, own, 2, group);
        for (i = 0; i < s->n; i++) {
            double sum = 0.0, mean = 0.0;
            for (j = 0; j <= i; j++) {
                p[j] = 0.0;
                for (k = 0; k < w; k++) {
                    p[j] += qkv[i * row + qa + k] * qkv[j * row + ka + k];
                }
                p[j] = exp(p[j] / sqrt((double)w));
                sum += p[j];
            }
            for (j = 0; j <= i; j++) {
                p[j] /= sum;
                for (k = 0; k < w; k++) {
                    o[i * wide + head * w + k] += p[j] * qkv[j * row + va + k];
                }
            }
            for (j = 0; g != NULL && j <= i; j++) {
                dp[j] = 0.0;
                for (k = 0; k < w; k++) {
                    dp[j] += g[i * wide + head * w + k] * qkv[j * row + va + k];
                    d[j * row + va + k] += p[j] * g[i * wide + head * w + k];
                }
                mean += p[j] * dp[j];
            }
            for (j = 0; g != NULL && j <= i; j++) {
                const double ds = p[j] * (dp[j] - mean) / sqrt((double)w);
                for (k = 0; k < w; k++) {
                    d[i * row + qa + k] += ds * qkv[j * row + ka + k];
                    d[j * row + ka + k] += ds * qkv[i * row + qa + k];
                }
            }
        }
    }
}

/* Returns the rows of the whole weight (or bias: columns 1) that the rank has, one run after the
 * other. */
static void *rows_of_heads(const block *s, int32_t rank, const double *whole, int64_t columns)
{
    const dpar_heads_share own = dpar_heads_local(&s->heads, rank);
    const int64_t rows = (own.queries + 2 * (int64_t)own.groups) * s->width;
    void *a = fresh(rows * columns);
    int64_t run[2], i, at = 0;
    int32_t n;
    for (n = 0; dpar_heads_rows(&s->heads, rank, s->order, s->width, n, run); n++) {
        for (i = run[0] * columns; i < run[1] * columns; i++) {
            float_put(a, at++, s->type, whole[i]);
        }
    }
    return at == rows * columns ? a : NULL;
}

static int compare_heads(const char *what, const block *s, int32_t rank, const void *got,
                         const double *whole, int64_t columns)
{
    block wide = *s;
    double *want;
    const dpar_heads_share own = dpar_heads_local(&s->heads, rank);
    const int64_t rows = (own.queries + 2 * (int64_t)own.groups) * s->width;
    int bad;
    wide.type = DPAR_F64;
    want = (double *)rows_of_heads(&wide, rank, whole, columns);
    bad = compare(what, got, s->type, want, rows, columns, 0, rows, 0, columns, 1.0);
    free(want);
    return bad;
}

/* The one-rank block over whole arrays: y, dx, dw, db, dwo. */
typedef struct whole_block {
    double *x, *w, *b, *wo, *g, *qkv, *o, *y, *dy_o, *dqkv, *dx, *dw, *db, *dwo, *none;
} whole_block;

static void block_textbook(const block *s, whole_block *a)
{
    const int64_t all = (s->heads.queries + 2 * (int64_t)s->heads.groups) * s->width;
    const int64_t wide = s->heads.queries * s->width, n = s->n, h = s->h;
    block one = *s;
    dpar_heads_share own;
    (void)dpar_heads_init(&one.heads, s->heads.queries, s->heads.groups, 1, DPAR_SPLIT_EVEN, NULL);
    own = dpar_heads_local(&one.heads, 0);
    a->x = numbers(31, n * h, 1.0);
    a->w = numbers(32, all * h, 0.7);
    a->b = numbers(33, all, 0.5);
    a->wo = numbers(34, h * wide, 1.0);
    a->g = numbers(35, n * h, 1.0);
    a->qkv = (double *)fresh(n * all);
    a->o = (double *)fresh(n * wide);
    a->y = (double *)fresh(n * h);
    a->dy_o = (double *)fresh(n * wide);
    a->dqkv = (double *)fresh(n * all);
    a->dx = (double *)fresh(n * h);
    a->dw = (double *)fresh(all * h);
    a->db = (double *)fresh(all);
    a->dwo = (double *)fresh(h * wide);
    a->none = (double *)fresh(n * wide + h);
    affine(a->x, a->w, a->b, n, h, all, a->qkv);
    attend(&one, &own, a->qkv, a->o, NULL, NULL);
    affine(a->o, a->wo, NULL, n, wide, h, a->y);
    affine_back(a->o, a->wo, a->g, n, wide, h, a->dy_o, a->dwo, a->none);
    memset(a->none, 0, (size_t)(n * wide) * sizeof(double));
    attend(&one, &own, a->qkv, a->none, a->dy_o, a->dqkv);
    affine_back(a->x, a->w, a->dqkv, n, h, all, a->dx, a->dw, a->db);
}

/* Computes o, or dqkv from the gradient of o, through doubles. */
static void attend_typed(const block *s, const dpar_heads_share *own, const void *qkv, void *o,
                         const void *g, void *d)
{
    const int64_t row = (own->queries + 2 * (int64_t)own->groups) * s->width;
    const int64_t wide = own->queries * s->width;
    double *a = (double *)fresh(s->n * row), *b = (double *)fresh(s->n * wide);
    double *dg = (double *)fresh(s->n * wide), *dd = (double *)fresh(s->n * row);
    int64_t i;
    for (i = 0; i < s->n * row; i++) {
        a[i] = float_get(qkv, i, s->type);
    }
    for (i = 0; g != NULL && i < s->n * wide; i++) {
        dg[i] = float_get(g, i, s->type);
    }
    attend(s, own, a, b, g != NULL ? dg : NULL, dd);
    for (i = 0; o != NULL && i < s->n * wide; i++) {
        float_put(o, i, s->type, b[i]);
    }
    for (i = 0; g != NULL && i < s->n * row; i++) {
        float_put(d, i, s->type, dd[i]);
    }
    free(a);
    free(b);
    free(dg);
    free(dd);
}

/* Compares d sum(g y) / d one row of the first key head, which is changed on all ranks that hold
 * it. */
static int key_differs(const dpar_tensor_parallel *t, const block *s, const dpar_linear *in,
                       const dpar_linear *out, dpar_linear_arrays *a, dpar_linear_arrays *b,
                       const whole_block *m)
{
    const dpar_heads_share own = dpar_heads_local(&s->heads, t->comm->rank);
    const int mine = own.groups > 0 && own.first_group == 0;
    const int64_t each = s->heads.queries / s->heads.groups;
    const int64_t there =
        s->width * (s->order == DPAR_HEADS_QKV_BY_KIND ? s->heads.queries : each) * s->h;
    double *w = (double *)(uintptr_t)a->w + (mine ? head_at(s, &own, 1, 0) * s->h : 0), sum[2];
    const double before = mine ? *w : 0.0;
    int64_t i;
    int side, bad = 0;
    for (side = 0; side < 2; side++) {
        if (mine) {
            *w = before + (side ? 1e-4 : -1e-4);
        }
        bad += dpar_linear_forward(t, in, a) != DPAR_OK;
        attend_typed(s, &own, a->y, (void *)(uintptr_t)b->x, NULL, NULL);
        bad += dpar_linear_forward(t, out, b) != DPAR_OK;
        for (sum[side] = 0.0, i = 0; i < s->n * s->h; i++) {
            sum[side] += m->g[i] * float_get(b->y, i, s->type);
        }
    }
    if (mine) {
        *w = before;
    }
    return bad + !(fabs((sum[1] - sum[0]) / 2e-4 - m->dw[there]) < 1e-6);
}

/* Sums the gradients of keys and values over the ranks that hold the same ones, as documented in
 * tensor.h. */
static dpar_status sum_heads(const dpar_tensor_parallel *t, const dpar_heads *h, dpar_comm *same,
                             int64_t width, int64_t in, void *dw, void *dbias)
{
    const dpar_heads_share share = dpar_heads_local(h, t->comm->rank);
    const int64_t first = share.queries * width * dpar_type_bytes(t->type);
    char *rows = (char *)dw + first * in, *bias = (char *)dbias + first;
    dpar_status st = DPAR_OK;
    if (same == NULL || share.copies < 2) {
        return st;
    }
    st = dpar_all_reduce(same, rows, rows, 2 * width * in, t->type, DPAR_SUM, NULL);
    return st == DPAR_OK ? dpar_all_reduce(same, bias, bias, 2 * width, t->type, DPAR_SUM, NULL)
                         : st;
}

static int block_run(const dpar_tensor_parallel *t, const block *s, const whole_block *m,
                     dpar_comm *same)
{
    dpar_comm *c = t->comm;
    const dpar_heads_share own = dpar_heads_local(&s->heads, c->rank);
    const int64_t n = s->n, h = s->h, w = s->width, wide = own.queries * w;
    const int64_t rows = wide + 2 * own.groups * w, first = own.first_query * w;
    const int64_t all = s->heads.queries * w, bytes = dpar_type_bytes(s->type);
    const int copies = own.copies > 1;
    dpar_linear in, out;
    dpar_linear_arrays a, b;
    int bad = 0;
    memset(&in, 0, sizeof in);
    memset(&out, 0, sizeof out);
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    in.kind = DPAR_LINEAR_COLUMN;
    in.in = out.out = h;
    in.out = rows;
    out.kind = DPAR_LINEAR_ROW;
    out.in = wide;
    a.w = rows_of_heads(s, c->rank, m->w, h);
    a.bias = rows_of_heads(s, c->rank, m->b, 1);
    a.x = piece(m->x, h, 0, n, 0, h, s->type);
    a.y = fresh(n * rows);
    a.dy = fresh(n * rows);
    a.dx = fresh(n * h);
    a.dw = fresh(rows * h);
    a.dbias = fresh(rows);
    b.w = piece(m->wo, all, 0, h, first, first + wide, s->type);
    b.x = fresh(n * wide);
    b.y = fresh(n * h);
    b.dy = piece(m->g, h, 0, n, 0, h, s->type);
    b.dx = fresh(n * wide);
    b.dw = fresh(h * wide);
    bad += a.w == NULL || a.bias == NULL;
    if (s->type == DPAR_F64 && bad == 0) {
        bad += key_differs(t, s, &in, &out, &a, &b, m);
    }
    look_begins(c);
    bad += dpar_linear_forward(t, &in, &a) != DPAR_OK;
    attend_typed(s, &own, a.y, (void *)(uintptr_t)b.x, NULL, NULL);
    bad += dpar_linear_forward(t, &out, &b) != DPAR_OK;
    bad += sent(c, 1, DPAR_CALL_ALL_REDUCE, n * h * bytes, "r");
    bad += dpar_linear_backward(t, &out, &b) != DPAR_OK;
    attend_typed(s, &own, a.y, NULL, b.dx, (void *)(uintptr_t)a.dy);
    bad += dpar_linear_backward(t, &in, &a) != DPAR_OK;
    bad += sent(c, 1, DPAR_CALL_ALL_REDUCE, n * h * bytes, "p");
    look_ends(c);
    if (same != NULL) {
        look_begins(same);
    }
    bad += sum_heads(t, &s->heads, same, w, h, a.dw, a.dbias) != DPAR_OK;
    if (same != NULL) {
        bad += sent(same, copies ? 2 : 0, copies ? DPAR_CALL_ALL_REDUCE : 0,
                    copies ? 2 * w * (h + 1) * bytes : 0, copies ? "rr" : "");
        look_ends(same);
    }
    bad += compare("y", b.y, s->type, m->y, n, h, 0, n, 0, h, 1.0);
    bad += compare("dx", a.dx, s->type, m->dx, n, h, 0, n, 0, h, 1.0);
    bad += compare("dwo", b.dw, s->type, m->dwo, h, all, 0, h, first, first + wide, 1.0);
    bad += compare_heads("dw", s, c->rank, a.dw, m->dw, h);
    bad += compare_heads("db", s, c->rank, a.dbias, m->db, 1);
    free_const(a.w);
    free_const(a.bias);
    free_const(a.x);
    free(a.y);
    free_const(a.dy);
    free(a.dx);
    free(a.dw);
    free(a.dbias);
    free_const(b.w);
    free_const(b.x);
    free(b.y);
    free_const(b.dy);
    free(b.dx);
    free(b.dw);
    return bad;
}

/* Tests one group, few groups, and as many groups as queries; also fewer queries than ranks. */
static int block_cases(dpar_comm *c)
{
    static const int32_t counts[][2] = {{8, 8}, {8, 2}, {6, 3}, {4, 1}, {12, 4}, {2, 1}, {3, 3}};
    int i, k, bad = 0;
    for (i = 0; i < 7; i++) {
        dpar_comm *same = NULL;
        whole_block m;
        block s;
        memset(&s, 0, sizeof s);
        s.n = 5 + i % 2;
        s.h = 6;
        s.width = 2 + i % 3;
        bad += dpar_heads_init(&s.heads, counts[i][0], counts[i][1], c->size, DPAR_SPLIT_EVEN,
                               NULL) != DPAR_OK;
        if (s.heads.groups < c->size) {
            bad += dpar_comm_split(c, dpar_heads_local(&s.heads, c->rank).first_group, c->rank,
                                   &same) < 0;
        }
        bad += (same != NULL) != (counts[i][1] < c->size);
        for (k = 0; k < 4; k++) {
            double **each = &m.x;
            size_t j;
            dpar_tensor_parallel t;
            int wrong;
            s.type = k & 1 ? DPAR_F32 : DPAR_F64;
            s.order = k >> 1 ? DPAR_HEADS_QKV_BY_KIND : DPAR_HEADS_QKV_BY_GROUP;
            memset(&m, 0, sizeof m);
            block_textbook(&s, &m);
            bad += dpar_tensor_parallel_init(&t, c, s.type, s.n, NULL, NULL) != DPAR_OK;
            wrong = block_run(&t, &s, &m, same);
            if (wrong > 0) {
                printf("rank %d of %d: %d heads in %d groups, type %d, order %d: %d wrong\n",
                       (int)c->rank, (int)c->size, (int)counts[i][0], (int)counts[i][1],
                       (int)s.type, (int)s.order, wrong);
            }
            bad += wrong;
            for (j = 0; j < sizeof m / sizeof *each; j++) {
                free(each[j]);
            }
        }
        if (same != NULL) {
            bad += dpar_comm_free(same) != DPAR_OK;
        }
    }
    return bad;
}

/* ---- what is refused ------------------------------------------------------------------------- */

enum { UNLIKE = 6 };

static dpar_status no_product(void *user, const dpar_matmul *call)
{
    (void)user;
    return call->m >= 0 ? DPAR_E_MEMORY : DPAR_OK;
}

/* Passes an id past the vocabulary on the culprit. */
static dpar_status wrong_words(const dpar_tensor_parallel *t, int culprit)
{
    double table[64], y[4], whole[4];
    int32_t ids[2] = {0, 1};
    dpar_vocab v;
    if (t->comm->size > 32 || dpar_vocab_init(&v, 2, 0, t->comm->size, t->comm->size, NULL) < 0) {
        return DPAR_OK;
    }
    memset(table, 0, sizeof table);
    ids[1] = culprit ? 2 : 1;
    return embedding_forward(t, &v, 2, ids, table, y, whole);
}

/* Leaves arrays out on sequence parallel ranks. */
static dpar_status wrong_arrays(dpar_tensor_parallel t, int culprit, int what)
{
    double some[64], y[4] = {0.0}, whole[64], lse[2], scratch[3 * 2 * 33];
    int64_t counts[32];
    const int32_t ids[2] = {0, 1};
    dpar_cross_entropy e;
    dpar_why why;
    memset(&e, 0, sizeof e);
    memset(some, 0, sizeof some);
    if (t.comm->size > 32 ||
        dpar_vocab_init(&e.vocab, 2, 0, t.comm->size, t.comm->size, &why) < 0) {
        return DPAR_OK;
    }
    t.counts = counts;
    switch (what) {
    case 4: return embedding_forward(&t, &e.vocab, 2, ids, some, y, culprit ? NULL : whole);
    case 5: return embedding_backward(&t, &e.vocab, 2, ids, y, culprit ? NULL : some, 0, whole);
    default:
        return cross_entropy_forward(&t, &e, some, ids, lse, NULL, NULL, culprit ? NULL : scratch);
    }
}

/* Does something wrong on one rank only: all ranks get the error. */
static int refused(dpar_comm *c, int what)
{
    double x[4] = {1, 2, 3, 4}, w[4] = {1, 2, 3, 4}, y[4] = {0, 0, 0, 0};
    dpar_comm *other = NULL;
    dpar_tensor_parallel t;
    dpar_linear l;
    dpar_linear_arrays a;
    dpar_why why;
    dpar_status st;
    int bad = dpar_comm_split(c, 0, 0, &other) != DPAR_OK;
    const int culprit = c->rank == c->size - 1;
    memset(&l, 0, sizeof l);
    memset(&a, 0, sizeof a);
    if (bad) {
        return 1;
    }
    bad += dpar_tensor_parallel_init(&t, other, DPAR_BF16, 2, NULL, &why) != DPAR_E_ARG;
    bad += dpar_tensor_parallel_init(&t, other, DPAR_F64, -1, NULL, &why) != DPAR_E_ARG;
    bad += dpar_tensor_parallel_init(&t, other, DPAR_F64, 2, NULL, &why) != DPAR_OK;
    l.kind = DPAR_LINEAR_ROW;
    l.in = l.out = 2;
    a.x = x;
    a.w = w;
    a.y = y;
    if (culprit && what == 0) {
        t.matmul = no_product;
    } else if (culprit && what == 1) {
        a.w = NULL;
    } else if (culprit && what == 2) {
        l.kind = 7;
    }
    st = what > 3    ? wrong_arrays(t, culprit, what)
         : what == 3 ? wrong_words(&t, culprit)
                     : dpar_linear_forward(&t, &l, &a);
    bad += st >= 0 || other->why.text[0] == 0;
    bad += culprit && st != (what == 0 ? DPAR_E_MEMORY : DPAR_E_ARG);
    (void)dpar_comm_free(other);
    return bad;
}

/* Passes another value on one rank than on the others: the error on all ranks names what
 * differs. */
static int unlike(dpar_comm *c, int what)
{
    static const char *const word[UNLIKE] = {"smoothing",  "z",       "ignore",
                                             "vocabulary", "targets", "ids"};
    double some[64], y[4] = {0.0}, lse[2], scratch[3 * 2 * 33];
    int32_t ids[2] = {0, 5};
    const int odd = c->rank == c->size - 1;
    dpar_comm *other = NULL;
    dpar_cross_entropy e;
    dpar_tensor_parallel t;
    dpar_status st;
    int bad;
    memset(&e, 0, sizeof e);
    memset(some, 0, sizeof some);
    if (c->size == 1 || dpar_comm_split(c, 0, 0, &other) != DPAR_OK ||
        dpar_tensor_parallel_init(&t, other, DPAR_F64, 2, NULL, NULL) != DPAR_OK ||
        dpar_vocab_init(&e.vocab, what == 3 && odd ? 7 : 8, 0, 8 * c->size, c->size, NULL) !=
            DPAR_OK) {
        return c->size > 1;
    }
    e.smoothing = what == 0 && odd ? 0.3 : 0.0;
    e.z_loss = what == 1 && odd ? 0.1 : 0.0;
    e.ignore = what == 2 && odd ? 6 : 0;
    ids[1] = what > 3 && odd ? 2 : 5;
    st = what == 5 ? embedding_forward(&t, &e.vocab, 2, ids, some, y, NULL)
                   : cross_entropy_forward(&t, &e, some, ids, lse, NULL, NULL, scratch);
    bad = st != DPAR_E_MISMATCH || strstr(other->why.text, word[what]) == NULL;
    (void)dpar_comm_free(other);
    return bad;
}

/* Passes objects without a communicator, also zeroed ones: the rank refuses them locally. */
static int nothing(dpar_comm *c)
{
    double x[4] = {0, 0, 0, 0};
    dpar_cross_entropy e;
    dpar_vocab v;
    dpar_linear l;
    dpar_linear_arrays a;
    dpar_tensor_parallel t;
    int32_t id = 0;
    int k, bad = 0;
    memset(&e, 0, sizeof e);
    memset(&l, 0, sizeof l);
    memset(&a, 0, sizeof a);
    memset(&t, 0, sizeof t);
    bad += dpar_vocab_init(&v, 4, 0, c->size, c->size, NULL) != DPAR_OK;
    for (k = 0; k < 2; k++) {
        const dpar_tensor_parallel *none = k ? &t : NULL;
        bad += dpar_linear_forward(none, &l, &a) != DPAR_E_ARG;
        bad += dpar_linear_backward(none, &l, &a) != DPAR_E_ARG;
        bad += embedding_forward(none, &v, 1, &id, x, x, NULL) != DPAR_E_ARG;
        bad += embedding_backward(none, &v, 1, &id, x, x, 0, NULL) != DPAR_E_ARG;
        bad += cross_entropy_forward(none, &e, x, &id, x, x, NULL, x) != DPAR_E_ARG;
        bad += cross_entropy_backward(none, &e, x, &id, x, 1.0) != DPAR_E_ARG;
    }
    return bad;
}

/* Passes NULL as a description, which breaks the communicator. */
static int undescribed(dpar_comm *c)
{
    double x[4] = {0, 0, 0, 0};
    dpar_linear l;
    dpar_linear_arrays a;
    dpar_why why;
    int32_t id = 0;
    int k, bad = 0;
    memset(&l, 0, sizeof l);
    memset(&a, 0, sizeof a);
    bad += dpar_tensor_parallel_init(NULL, c, DPAR_F64, 1, NULL, &why) != DPAR_E_ARG ||
           strcmp(why.text, "layers: communicator or result is NULL") != 0;
    for (k = 0; k < 5; k++) {
        dpar_comm *other = NULL;
        dpar_tensor_parallel t;
        dpar_status st = dpar_comm_split(c, 0, 0, &other);
        st = st == DPAR_OK ? dpar_tensor_parallel_init(&t, other, DPAR_F64, 1, NULL, NULL) : st;
        if (st != DPAR_OK) {
            return bad + 1;
        }
        st = k == 0   ? dpar_linear_forward(&t, NULL, &a)
             : k == 1 ? dpar_linear_backward(&t, &l, NULL)
             : k == 2 ? cross_entropy_backward(&t, NULL, x, &id, x, 1.0)
             : k == 3 ? embedding_forward(&t, NULL, 1, &id, x, x, NULL)
                      : cross_entropy_forward(&t, NULL, x, &id, x, x, NULL, x);
        bad += st != DPAR_E_ARG || strstr(other->why.text, "description is NULL") == NULL;
        (void)dpar_comm_free(other);
    }
    return bad;
}

static int everything(dpar_comm *c, void *arg)
{
    const double began = now();
    int64_t bad;
    (void)arg;
#ifdef DEVICE_MEMORY
    device_begin((size_t)1 << 26);
    c = device_take(c);
#endif
    bad = (c->rank == 0 ? matmul_cases() : 0) + feature_cases(c);
    bad += pair_cases(c) + progress_cases(c) + word_cases(c) + odd_logits(c);
    bad += block_cases(c) + nothing(c);
#ifdef DEVICE_MEMORY
    bad += the_device.calls == 0;
    c = device_return(c);
    device_end();
#endif
    return all_right(c, bad, began);
}

static int refusals(dpar_comm *c, void *arg)
{
    const int *what = (const int *)arg;
    return *what < 8 ? refused(c, *what) : *what == 8 ? undescribed(c) : unlike(c, *what - 9);
}

static void also(int n, const dpar_world_desc *o)
{
    int what;
    for (what = 0; what < 9 + UNLIKE; what++) {
        on_ranks(n, " that refuse", refusals, &what, o);
    }
}

int main(int argc, char **argv)
{
#ifdef DEVICE_MEMORY
    (void)also;
    return rank_program(argc, argv, everything, NULL, 5, 2, NULL);
#else
    return rank_program(argc, argv, everything, NULL, 8, 4, also);
#endif
}
