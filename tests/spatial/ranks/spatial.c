/* SPDX-License-Identifier: MIT-0 */
/* spatial: compares layers on real ranks with a serial layer that is written out in this file by
 * the textbook definitions over whole arrays: forward, and gradients of inputs and weights. Numbers
 * are small integers in doubles, so that sums are exact and all bits must agree (averages,
 * interpolation and norms: 1e-12). No valid case may be refused.
 *
 *   spatial [processes|threads] [ranks]      without arguments: both, 1 to 4 ranks
 *   spatial long [ranks [every [from]]]      all sweeps, as threads, 1 to 4 (also: ranks 0)
 *   spatial long 0 5 2                       a fifth of their layers, the third of five
 *   mpirun -np 4 spatial                     built with -DUSE_MPI
 *
 * With -DDEVICE_MEMORY all arrays are in memory that the CPU cannot access, and kernels are
 * enqueued on the device; with -DDEVICE_CUDA that is CUDA. */
#include "dpar_spatial.h"
#include "boxes.h"
#include "rank_program.h"
#ifdef DEVICE_MEMORY
#include "device_memory.h"
#else
#define ON_DEVICE(call) (call)
#endif

enum { MAX, AVERAGE, CONV, TRANSPOSED, INTERPOLATION, ATTENTION, KINDS };

/* A layer over (n[0], n[1]) with dims 1 or 2. With k[1] = 0 dim 1 is not touched by the window. */
typedef struct test_case {
    int kind, dims, samples, in_channels, out_channels, groups;
    int n[2], k[2], s[2], d[2], low[2], high[2], pad[2], m[2];
    int ceil_mode, padded, corners, outputs, rule, last, whole, more, accumulate;
} test_case;

/* The arrays of a rank during a case. */
typedef struct work {
    dpar_comm *c;
    const test_case *t;
    int m[2];
    double *x[2], *dx[2], *y, *dy, *q, *w, *dw,
        *dw_all; /* whole arrays, by the textbook; weights */
    double *dw_local;
    int wrong;
} work;

static double number(uint32_t a, int64_t i)
{
    uint32_t h = (uint32_t)i * 2654435761u + a * 40503u + 12345u;
    h ^= h >> 15;
    h *= 0x7feb352du;
    h ^= h >> 13;
    return (double)(h % 17u) - 8.0;
}

static double *fresh(int64_t n)
{
    double *a = (double *)calloc((size_t)n + 1, sizeof *a);
    if (a == NULL) {
        exit(1);
    }
    return a;
}

/* Allocates in device memory if there is a device. */
static double *fresh_there(int64_t n)
{
#ifdef DEVICE_MEMORY
    return (double *)device_zeroed(8 * n + 8);
#else
    return fresh(n);
#endif
}

static void free_there(void *at)
{
#ifdef DEVICE_MEMORY
    if (at != NULL) {
        device_free(at);
    }
#else
    free(at);
#endif
}

/* Runs a kernel, at once or later on the device. */
#ifdef DEVICE_MEMORY
typedef struct turn {
    dpar_spatial_call call;
    dpar_spatial_kernel run;
} turn;

static void turn_comes(void *at)
{
    turn *t = (turn *)at;
    int i;
    for (i = 0; i < DPAR_SPATIAL_MAX_TENSORS; i++) {
        DEVICE_THERE(t->call.in[i].data, void);
        DEVICE_THERE(t->call.in_gradient[i].data, void);
    }
    DEVICE_THERE(t->call.out.data, void);
    DEVICE_THERE(t->call.out_gradient.data, void);
    t->run(&t->call);
}
#endif

static void launch(const dpar_spatial_call *c, dpar_spatial_kernel run)
{
#ifdef DEVICE_MEMORY
    turn t;
    t.call = *c;
    t.run = run;
    device_later(turn_comes, &t, sizeof t);
#else
    run(c);
#endif
}

static int planes_in(const test_case *t)
{
    return t->samples * t->in_channels;
}

static int planes_out(const test_case *t)
{
    return t->samples * t->out_channels;
}

static int size_in(const test_case *t)
{
    return t->n[0] * t->n[1];
}

/* ---- the textbook ---------------------------------------------------------------------------- */

/* Returns which input position i of a dim reads; -1 for padding without a source. */
static int image(const test_case *t, int d, int i)
{
    const int n = t->n[d];
    if (i >= 0 && i < n) {
        return i;
    }
    switch (t->pad[d]) {
    case DPAR_SPATIAL_PAD_WRAP:
        while (i < 0) {
            i += n;
        }
        return i % n;
    case DPAR_SPATIAL_PAD_REFLECT: return i < 0 ? -i : n - 1 - (i - (n - 1));
    case DPAR_SPATIAL_PAD_REPLICATE: return i < 0 ? 0 : n - 1;
    default: return -1;
    }
}

static int outputs(const test_case *t, int d)
{
    const int reach = t->d[d] * (t->k[d] - 1) + 1;
    int m;
    if (t->k[d] == 0 || t->kind == ATTENTION) {
        return t->n[d];
    }
    if (t->kind == INTERPOLATION) {
        return t->m[d];
    }
    if (t->kind == TRANSPOSED) {
        return (t->n[d] - 1) * t->s[d] - t->low[d] - t->high[d] + reach + t->more;
    }
    m = (t->n[d] + t->low[d] + t->high[d] - reach) / t->s[d] + 1;
    if (t->ceil_mode && (t->n[d] + t->low[d] + t->high[d] - reach) % t->s[d] != 0 &&
        m * t->s[d] < t->n[d] + t->low[d]) {
        m++;
    }
    return m;
}

/* Finds the j-th input that output y reads in a dim, and its tap. Returns 0 if there are no more.
 * Transposed: goes through all inputs, where those that y does not read have tap -1. */
static int meets(const test_case *t, int d, int y, int j, int *input, int *tap)
{
    const int n = t->n[d], k = t->k[d];
    if (k == 0) {
        *input = y;
        *tap = 0;
        return j == 0;
    }
    *tap = j;
    if (t->kind == TRANSPOSED) {
        const int at = y + t->low[d] - j * t->s[d];
        *input = j;
        *tap = at >= 0 && at % t->d[d] == 0 && at / t->d[d] < k ? at / t->d[d] : -1;
        return j < n;
    }
    if (t->kind == ATTENTION) {
        const int group = y % t->d[d], members = (n - 1 - group) / t->d[d] + 1;
        int first = y / t->d[d] - k / 2;
        if (t->pad[d] != DPAR_SPATIAL_PAD_WRAP) {
            first = first < 0 ? 0 : first > members - k ? members - k : first;
        }
        *input = group + (first + j) * t->d[d];
        return j < k;
    }
    if (t->kind == INTERPOLATION) {
        const double at = t->corners ? (double)y * (n - 1) / (t->m[d] > 1 ? t->m[d] - 1 : 1)
                          : k == 1   ? (double)y * n / t->m[d]
                                     : (y + 0.5) * n / t->m[d] - 0.5;
        *input = (int)floor(at + 1e-9) + j - (k == 4);
        return j < k;
    }
    *input = y * t->s[d] - t->low[d] + j * t->d[d];
    return j < k;
}

/* Returns the weight of tap j in a dim of an interpolation. */
static double share(const test_case *t, int d, int y, int j)
{
    const int n = t->n[d], k = t->k[d];
    const double at = t->corners ? (double)y * (n - 1) / (t->m[d] > 1 ? t->m[d] - 1 : 1)
                                 : (y + 0.5) * n / t->m[d] - 0.5;
    const double f = at - floor(at + 1e-9);
    if (k < 2) {
        return 1.0;
    }
    if (k == 2) {
        return j == 0 ? 1.0 - f : f;
    }
    return j == 1 ? 1.0 - f * f : j == 2 ? f * f : j == 0 ? f * (1 - f) : -f * (1 - f);
}

/* Returns the number of cells that an average at y divides by. */
static int divisor(const test_case *t, int d, int y)
{
    int j, count = 0, i, tap;
    for (j = 0; meets(t, d, y, j, &i, &tap); j++) {
        count += t->k[d] == 0 ||
                 (t->padded ? i >= -t->low[d] && i < t->n[d] + t->high[d] : i >= 0 && i < t->n[d]);
    }
    return count;
}

/* Visits an output of a plane: `term` is called for each input that it reads. */
typedef struct term {
    int plane, y[2], tap[2];
    int64_t in; /* in the whole array; -1 for padding without a source */
} term;
typedef void (*each_term)(work *w, const term *e, int out_plane, int64_t out);

static void terms(work *w, int in_plane, int out_plane, int y0, int y1, each_term f)
{
    const test_case *t = w->t;
    const int64_t out = ((int64_t)out_plane * w->m[0] + y0) * w->m[1] + y1;
    int a, b, i[2];
    term e;
    e.plane = in_plane;
    e.y[0] = y0;
    e.y[1] = y1;
    for (a = 0; meets(t, 0, y0, a, &i[0], &e.tap[0]); a++) {
        for (b = 0; e.tap[0] >= 0 && meets(t, 1, y1, b, &i[1], &e.tap[1]); b++) {
            const int r = image(t, 0, i[0]), c = image(t, 1, i[1]);
            if (e.tap[1] < 0) {
                continue;
            }
            e.in = r < 0 || c < 0 ? -1 : ((int64_t)in_plane * t->n[0] + r) * t->n[1] + c;
            f(w, &e, out_plane, out);
        }
    }
}

/* Returns the index of the weight for (output channel, input channel of the group, taps). */
static int64_t weight(const test_case *t, int out_plane, int in_plane, const int *tap)
{
    const int per = t->in_channels / t->groups, k1 = t->k[1] > 0 ? t->k[1] : 1;
    const int k0 = t->k[0] > 0 ? t->k[0] : 1;
    return (((int64_t)(out_plane % t->out_channels) * per + in_plane % t->in_channels % per) * k0 +
            tap[0]) *
               k1 +
           tap[1];
}

static int64_t weights(const test_case *t)
{
    return (int64_t)t->out_channels * (t->in_channels / t->groups) * (t->k[0] > 0 ? t->k[0] : 1) *
           (t->k[1] > 0 ? t->k[1] : 1);
}

static void conv_forward(work *w, const term *e, int o, int64_t out)
{
    w->y[out] += e->in >= 0 ? w->w[weight(w->t, o, e->plane, e->tap)] * w->x[0][e->in] : 0.0;
}

static void conv_backward(work *w, const term *e, int o, int64_t out)
{
    const int64_t k = weight(w->t, o, e->plane, e->tap);
    if (e->in >= 0) {
        w->dx[0][e->in] += w->w[k] * w->dy[out];
        w->dw[k] += w->x[0][e->in] * w->dy[out];
    }
}

static void max_forward(work *w, const term *e, int o, int64_t out)
{
    const double v = e->in >= 0 ? w->x[0][e->in] : -HUGE_VAL;
    (void)o;
    w->y[out] = v > w->y[out] ? v : w->y[out];
}

/* Adds the gradient of an output to the first of equal maxima; dw[out] records that it is done. */
static void max_backward(work *w, const term *e, int o, int64_t out)
{
    (void)o;
    if (e->in >= 0 && w->q[out] >= 0.0 && w->x[0][e->in] >= w->y[out]) {
        w->dx[0][e->in] += w->dy[out];
        w->q[out] = -1.0;
    }
}

static double part(work *w, const term *e)
{
    const test_case *t = w->t;
    return t->kind == AVERAGE ? 1.0 / divisor(t, 0, e->y[0]) / divisor(t, 1, e->y[1])
                              : share(t, 0, e->y[0], e->tap[0]) *
                                    (t->k[1] > 0 ? share(t, 1, e->y[1], e->tap[1]) : 1.0);
}

static void mean_forward(work *w, const term *e, int o, int64_t out)
{
    (void)o;
    w->y[out] += e->in >= 0 ? part(w, e) * w->x[0][e->in] : 0.0;
}

static void mean_backward(work *w, const term *e, int o, int64_t out)
{
    (void)o;
    if (e->in >= 0) {
        w->dx[0][e->in] += part(w, e) * w->dy[out];
    }
}

/* Computes (q k) v without softmax, so that all numbers are integers. */
static void attend_forward(work *w, const term *e, int o, int64_t out)
{
    (void)o;
    w->y[out] += w->q[out] * w->x[0][e->in] * w->x[1][e->in];
}

static void attend_backward(work *w, const term *e, int o, int64_t out)
{
    (void)o;
    w->dx[0][e->in] += w->q[out] * w->x[1][e->in] * w->dy[out];
    w->dx[1][e->in] += w->q[out] * w->x[0][e->in] * w->dy[out];
}

static void textbook(work *w, each_term f)
{
    const test_case *t = w->t;
    const int dense = t->kind == CONV || t->kind == TRANSPOSED;
    const int per_out = t->out_channels / t->groups, per_in = t->in_channels / t->groups;
    int o, i, y0, y1;
    for (o = 0; o < planes_out(t); o++) {
        for (y0 = 0; y0 < w->m[0]; y0++) {
            for (y1 = 0; y1 < w->m[1]; y1++) {
                for (i = 0; i < (dense ? per_in : 1); i++) {
                    const int sample = o / t->out_channels;
                    const int group = o % t->out_channels / per_out;
                    terms(w, dense ? sample * t->in_channels + group * per_in + i : o, o, y0, y1,
                          f);
                }
            }
        }
    }
}

/* ---- the user's kernels ---------------------------------------------------------------------- */

/* Returns where a point of a plane is in a tile, as documented in spatial.h. */
static int64_t tile_at(const dpar_tile *t, int64_t plane, const int64_t *point)
{
    int64_t at = t->origin + plane * t->plane;
    int d;
    for (d = 0; d < t->box.dims; d++) {
        at += point[d] * t->stride[d];
    }
    return at;
}

static double *at(const dpar_tile *t, int plane, int64_t i, int64_t j)
{
    int64_t p[2];
    p[0] = i;
    p[1] = j;
    return (double *)t->data + tile_at(t, plane, p);
}

typedef void (*each_pair)(work *w, const dpar_spatial_call *c, int in_plane, int out_plane,
                          const int64_t *y, const int64_t *x, const int *tap,
                          const dpar_spatial_tap_range *taps);

/* Returns the tap of input x for output y; -1 if there is none. */
static int tap_of(const test_case *t, int d, int64_t y, int64_t x, int64_t j)
{
    int64_t over;
    if (t->k[d] == 0 || t->kind != TRANSPOSED) {
        return (int)j;
    }
    over = y + t->low[d] - x * t->s[d];
    return over % t->d[d] == 0 ? (int)(over / t->d[d]) : -1;
}

static void kernel_plane(work *w, const dpar_spatial_call *c, int i, int o, each_pair f)
{
    const dpar_box *b = &c->out.box;
    int64_t y[2] = {0, 0}, x[2] = {0, 0}, j[2];
    const int two = w->t->dims == 2;
    dpar_spatial_tap_range taps[2];
    int tap[2];
    memset(taps, 0, sizeof taps);
    taps[1].count = taps[1].step = 1;
    for (y[0] = b->lo[0]; y[0] < b->hi[0]; y[0]++) {
        w->wrong += dpar_spatial_taps(c->layer, 0, y[0], &taps[0]) != DPAR_OK;
        for (y[1] = two ? b->lo[1] : 0; y[1] < (two ? b->hi[1] : 1); y[1]++) {
            w->wrong += two && dpar_spatial_taps(c->layer, 1, y[1], &taps[1]) != DPAR_OK;
            for (j[0] = 0; j[0] < taps[0].count; j[0]++) {
                for (j[1] = 0; j[1] < taps[1].count; j[1]++) {
                    x[0] = taps[0].first + j[0] * taps[0].step;
                    x[1] = taps[1].first + j[1] * taps[1].step;
                    tap[0] = tap_of(w->t, 0, y[0], x[0], j[0]);
                    tap[1] = two ? tap_of(w->t, 1, y[1], x[1], j[1]) : 0;
                    w->wrong += x[0] < c->in[0].box.lo[0] || x[0] >= c->in[0].box.hi[0];
                    if (tap[0] >= 0 && tap[1] >= 0) {
                        f(w, c, i, o, y, x, tap, taps);
                    }
                }
            }
        }
    }
}

static void kernel(const dpar_spatial_call *c, each_pair f)
{
    work *w = (work *)c->user;
    const test_case *t = w->t;
    const int dense = t->kind == CONV || t->kind == TRANSPOSED;
    const int per_out = t->out_channels / t->groups, per_in = t->in_channels / t->groups;
    int o, i;
    for (o = 0; o < planes_out(t); o++) {
        for (i = 0; i < (dense ? per_in : 1); i++) {
            const int in =
                o / t->out_channels * t->in_channels + o % t->out_channels / per_out * per_in + i;
            kernel_plane(w, c, dense ? in : o, o, f);
        }
    }
}

static void clear_out(const dpar_spatial_call *c, double v)
{
    const dpar_box *b = &c->out.box;
    int64_t p, i, j;
    for (p = 0; p < c->out.planes; p++) {
        for (i = b->lo[0]; i < b->hi[0]; i++) {
            for (j = b->dims > 1 ? b->lo[1] : 0; j < (b->dims > 1 ? b->hi[1] : 1); j++) {
                *at(&c->out, (int)p, i, j) = v;
            }
        }
    }
}

static double my_part(work *w, const dpar_spatial_tap_range *taps, const int *tap)
{
    const test_case *t = w->t;
    double all = 1.0;
    int d;
    for (d = 0; d < t->dims; d++) {
        const double f = taps[d].fraction;
        if (t->k[d] == 0) {
            continue;
        }
        if (t->kind == AVERAGE) {
            all /= (double)(t->padded ? taps[d].padded : taps[d].inside);
        } else if (t->k[d] == 2) {
            all *= tap[d] == 0 ? 1.0 - f : f;
        } else if (t->k[d] == 4) {
            all *= tap[d] == 1   ? 1.0 - f * f
                   : tap[d] == 2 ? f * f
                   : tap[d] == 0 ? f * (1 - f)
                                 : -f * (1 - f);
        }
    }
    return all;
}

static double *q_of(work *w, int o, const int64_t *y)
{
    return &w->q[((int64_t)o * w->m[0] + y[0]) * w->m[1] + y[1]];
}

static void pair_forward(work *w, const dpar_spatial_call *c, int i, int o, const int64_t *y,
                         const int64_t *x, const int *tap, const dpar_spatial_tap_range *taps)
{
    const double v = *at(&c->in[0], i, x[0], x[1]);
    double *out = at(&c->out, o, y[0], y[1]);
    switch (w->t->kind) {
    case CONV:
    case TRANSPOSED: *out += w->w[weight(w->t, o, i, tap)] * v; break;
    case MAX: *out = v > *out ? v : *out; break;
    case ATTENTION: *out += *q_of(w, o, y) * v * *at(&c->in[1], i, x[0], x[1]); break;
    default: *out += my_part(w, taps, tap) * v;
    }
}

static void pair_gradient(work *w, const dpar_spatial_call *c, int i, int o, const int64_t *y,
                          const int64_t *x, const int *tap, const dpar_spatial_tap_range *taps)
{
    double *dx = at(&c->in_gradient[0], i, x[0], x[1]);
    const double dy = *at(&c->out_gradient, o, y[0], y[1]);
    double *q = q_of(w, o, y);
    switch (w->t->kind) {
    case CONV:
    case TRANSPOSED: *dx += w->w[weight(w->t, o, i, tap)] * dy; break;
    case MAX:
        if (*q > -2.0 && *at(&c->in[0], i, x[0], x[1]) >= *at(&c->out, o, y[0], y[1])) {
            *dx += dy;
            *q = -3.0;
        }
        break;
    case ATTENTION:
        *dx += *q * *at(&c->in[1], i, x[0], x[1]) * dy;
        *at(&c->in_gradient[1], i, x[0], x[1]) += *q * *at(&c->in[0], i, x[0], x[1]) * dy;
        break;
    default: *dx += my_part(w, taps, tap) * dy;
    }
}

static void pair_weight(work *w, const dpar_spatial_call *c, int i, int o, const int64_t *y,
                        const int64_t *x, const int *tap, const dpar_spatial_tap_range *taps)
{
    (void)taps;
    w->dw_local[weight(w->t, o, i, tap)] +=
        *at(&c->in[0], i, x[0], x[1]) * *at(&c->out_gradient, o, y[0], y[1]);
}

static void forward_turn(const dpar_spatial_call *c)
{
    clear_out(c, ((work *)c->user)->t->kind == MAX ? -HUGE_VAL : 0.0);
    kernel(c, pair_forward);
}

static void forward(const dpar_spatial_call *c)
{
    launch(c, forward_turn);
}

static void input_gradient_turn(const dpar_spatial_call *c)
{
    kernel(c, pair_gradient);
}

static void input_gradient(const dpar_spatial_call *c)
{
    launch(c, input_gradient_turn);
}

static void weight_gradient_turn(const dpar_spatial_call *c)
{
    kernel(c, pair_weight);
}

static void weight_gradient(const dpar_spatial_call *c)
{
    launch(c, weight_gradient_turn);
}

/* ---- a case ---------------------------------------------------------------------------------- */

static void textbook_all(work *w)
{
    const test_case *t = w->t;
    const int64_t in = (int64_t)planes_in(t) * size_in(t);
    int64_t out, i;
    w->m[0] = outputs(t, 0);
    w->m[1] = t->dims > 1 ? outputs(t, 1) : 1;
    out = (int64_t)planes_out(t) * w->m[0] * w->m[1];
    for (i = 0; i < 2; i++) {
        int64_t k;
        w->x[i] = fresh(in);
        w->dx[i] = fresh(in);
        for (k = 0; k < in; k++) {
            w->x[i][k] = number(1 + (uint32_t)i, k);
        }
    }
    w->y = fresh(out);
    w->dy = fresh(out);
    w->q = fresh(out);
    w->w = fresh(weights(t));
    w->dw = fresh(weights(t));
    w->dw_local = fresh(weights(t));
    w->dw_all = fresh(weights(t));
    for (i = 0; i < out; i++) {
        w->y[i] = t->kind == MAX ? -HUGE_VAL : 0.0;
        w->dy[i] = number(3, i);
        w->q[i] = t->kind == MAX ? 0.0 : number(4, i);
    }
    for (i = 0; i < weights(t); i++) {
        w->w[i] = number(5, i);
    }
    textbook(w, t->kind == MAX                             ? max_forward
                : t->kind == ATTENTION                     ? attend_forward
                : t->kind == CONV || t->kind == TRANSPOSED ? conv_forward
                                                           : mean_forward);
    textbook(w, t->kind == MAX                             ? max_backward
                : t->kind == ATTENTION                     ? attend_backward
                : t->kind == CONV || t->kind == TRANSPOSED ? conv_backward
                                                           : mean_backward);
}

static void textbook_free(work *w)
{
    int i;
    for (i = 0; i < 2; i++) {
        free(w->x[i]);
        free(w->dx[i]);
    }
    free(w->y);
    free(w->dy);
    free(w->q);
    free(w->w);
    free(w->dw);
    free(w->dw_local);
    free(w->dw_all);
}

static int describe(work *w, dpar_spatial_desc *s, dpar_why *why)
{
    const test_case *t = w->t;
    const int32_t kinds[] = {DPAR_SPATIAL_CONVOLUTION,   DPAR_SPATIAL_CONVOLUTION,
                             DPAR_SPATIAL_CONVOLUTION,   DPAR_SPATIAL_TRANSPOSED,
                             DPAR_SPATIAL_INTERPOLATION, DPAR_SPATIAL_NEIGHBOURHOOD};
    const int P = w->c->size;
    const int32_t sizes[2] = {t->dims == 2 && P == 4 ? 2 : P, t->dims == 2 && P == 4 ? 2 : 1};
    int64_t extent[2];
    dpar_placement placement[2];
    dpar_mesh mesh;
    int d;
    memset(s, 0, sizeof *s);
    for (d = 0; d < 2; d++) {
        extent[d] = t->n[d];
        placement[d] = d < t->dims ? dpar_shard_by(d, t->rule, 0) : dpar_replicate();
        s->window[d].kernel = t->k[d];
        s->window[d].stride = t->s[d];
        s->window[d].dilation = t->d[d];
        s->window[d].pad_low = t->low[d];
        s->window[d].pad_high = t->high[d];
        s->window[d].ceil_mode = t->ceil_mode;
        s->padding[d] = t->pad[d];
        s->out_extent[d] = t->kind == INTERPOLATION || t->more > 0 ? w->m[d] : 0;
    }
    s->kind = kinds[t->kind];
    s->outputs = t->outputs;
    s->type = DPAR_F64;
    s->tensors = t->kind == ATTENTION ? 2 : 1;
    s->planes = planes_in(t);
    s->out_planes = planes_out(t);
    s->channels_last = t->last;
    s->no_overlap = t->whole;
    s->align_corners = t->corners;
    s->forward = forward;
    s->input_gradient = input_gradient;
    s->weight_gradient = t->kind == CONV || t->kind == TRANSPOSED ? weight_gradient : NULL;
    s->user = w;
    return dpar_mesh_init(&mesh, "y x", sizes, DPAR_ORDER_LAST_FASTEST, P, why) == DPAR_OK &&
           dpar_layout_init(&s->in, &mesh, t->dims, extent, placement, why) == DPAR_OK;
}

/* Copies the own points of a box from a whole array, or compares them with it. */
static int compare(const work *w, const dpar_tile *tile, const dpar_box *own, double *all,
                   const int *extent, int put, double exact)
{
    int64_t i, j, bad = 0;
    int p;
    (void)w;
    for (p = 0; own->dims > 0 && p < tile->planes; p++) {
        for (i = own->lo[0]; i < own->hi[0]; i++) {
            for (j = own->dims > 1 ? own->lo[1] : 0; j < (own->dims > 1 ? own->hi[1] : 1); j++) {
                double *mine = at(tile, p, i, j);
                const double v = all[((int64_t)p * extent[0] + i) * extent[1] + j];
                if (put) {
                    *mine = v;
                } else {
                    bad += !(*mine == v || fabs(*mine - v) <= exact * (1.0 + fabs(v)));
                }
            }
        }
    }
    return (int)bad;
}

static int volume(const dpar_box *b)
{
    return b->dims > 0 ? (int)dpar_box_volume(b) : 0;
}

/* Allocates memory that peers can access (with method DIRECT they read halos from it), or that they
 * cannot. An empty array is sometimes NULL. */
static double *grab(const work *w, int64_t n)
{
    if (n == 0 && w->m[0] % 2 == 0) {
        return NULL;
    }
#ifdef DEVICE_MEMORY
    (void)w;
    return fresh_there(n);
#else
    void *at = NULL;
    if (w->t->n[0] % 2 == 0) {
        return fresh(n);
    }
    if (dpar_comm_alloc(w->c, 8 * n + 8, &at) != DPAR_OK) {
        exit(1);
    }
    return (double *)at;
#endif
}

static void drop(const work *w, void *at)
{
#ifdef DEVICE_MEMORY
    (void)w;
    free_there(at);
#else
    if (w->t->n[0] % 2 == 0) {
        free(at);
    } else {
        dpar_comm_release(w->c, at);
    }
#endif
}

static int run_planned(work *w, dpar_spatial_plan *plan)
{
    const test_case *t = w->t;
    const int in = planes_in(t) * volume(&plan->in_box),
              out = planes_out(t) * volume(&plan->out_owned);
    const int tensors = t->kind == ATTENTION ? 2 : 1;
    const double exact = t->kind == AVERAGE || t->kind == INTERPOLATION ? 1e-12 : 0.0;
    dpar_spatial_arrays a;
    dpar_tile tile;
    int i, k, bad = 0;
    memset(&a, 0, sizeof a);
    a.accumulate = t->accumulate;
    for (i = 0; i < tensors; i++) {
        a.in[i] = grab(w, in);
        a.in_gradient[i] = grab(w, in);
        for (k = 0; k < in; k++) {
            ((double *)a.in[i])[k] = 1e300; /* old contents must not be read */
            ((double *)a.in_gradient[i])[k] = t->accumulate ? 5.0 : 1e300;
        }
        dpar_tile_init(&tile, a.in[i], &plan->in_box, planes_in(t), t->last);
        (void)compare(w, &tile, &plan->in_owned, w->x[i], t->n, 1, 0.0);
    }
    a.out = out > 0 ? fresh_there(out) : NULL;
    a.out_gradient = out > 0 ? fresh_there(out) : NULL;
    dpar_tile_init(&tile, a.out_gradient, &plan->out_owned, planes_out(t), t->last);
    (void)compare(w, &tile, &plan->out_owned, w->dy, w->m, 1, 0.0);
    if (ON_DEVICE(dpar_spatial_forward(plan, &a)) != DPAR_OK ||
        ON_DEVICE(dpar_spatial_backward(plan, &a)) != DPAR_OK) {
        printf("a step failed: %s\n", w->c->why.text);
        return 1;
    }
    dpar_tile_init(&tile, a.out, &plan->out_owned, planes_out(t), t->last);
    bad += compare(w, &tile, &plan->out_owned, w->y, w->m, 0, exact);
    for (i = 0; i < tensors; i++) {
        dpar_tile_init(&tile, a.in_gradient[i], &plan->in_box, planes_in(t), t->last);
        for (k = 0; t->accumulate && k < in; k++) { /* the own points began at 5 */
            ((double *)a.in_gradient[i])[k] -= 5.0;
        }
        bad += compare(w, &tile, &plan->in_owned, w->dx[i], t->n, 0, exact);
        drop(w, a.in[i]);
        drop(w, a.in_gradient[i]);
    }
    free_there(a.out);
    free_there(a.out_gradient);
    return bad;
}

/* Checks that the boxes of a plan are those reported without one, and that a larger array works
 * too. */
static int boxes(work *w, dpar_spatial_desc *s)
{
    dpar_spatial_boxes b;
    dpar_box more;
    int d, bad = dpar_spatial_check(s, w->c->rank, &b, NULL) != DPAR_OK;
    for (d = 0; d < s->in.dims; d++) {
        bad += b.extent[d] != w->m[d];
    }
    more = b.in;
    for (d = 0; d < more.dims; d++) {
        more.lo[d] -= 1;
    }
    if (w->t->accumulate) {
        s->in_box = more;
    }
    return bad;
}

static int same_box(const dpar_box *a, const dpar_box *b)
{
    return a->dims == b->dims && box_contains(a, b) && box_contains(b, a);
}

static int boxes_planned(const work *w, const dpar_spatial_plan *p)
{
    dpar_spatial_boxes b;
    (void)dpar_spatial_check(&p->layer, w->c->rank, &b, NULL);
    return !same_box(&b.out, &p->out_owned) ||
           !(p->layer.in_box.dims > 0 ? box_contains(&p->in_box, &b.in)
                                      : same_box(&b.in, &p->in_box));
}

/* ---- neighbourhoods -------------------------------------------------------------------------- */

/* Counts the cells of `mine` that the queries of `out` see outside of `own`, one by one. In a ring
 * a cell that is reached from both sides is in the array twice and is sent twice. Blocks with fewer
 * queries than the dilation also have the cells in between (*gaps). */
static int keys_of(const test_case *t, const dpar_box *out, const dpar_box *own,
                   const dpar_box *mine, int *gaps)
{
    char seen[256];
    int i, j, input, tap, count = 0, low = 255, high = 0;
    memset(seen, 0, sizeof seen);
    for (i = (int)out->lo[0]; i < (int)out->hi[0]; i++) {
        for (j = 0; meets(t, 0, i, j, &input, &tap); j++) {
            seen[128 + input] = 1;
            low = 128 + input < low ? 128 + input : low;
            high = 128 + input > high ? 128 + input : high;
        }
    }
    for (i = low; i <= high; i++) {
        const int at = image(t, 0, i - 128);
        const int here = at >= mine->lo[0] && at < mine->hi[0];
        const int there = own->dims > 0 && i - 128 >= own->lo[0] && i - 128 < own->hi[0];
        count += here && !there && seen[i];
        *gaps += here && !there && !seen[i];
    }
    return count;
}

/* Returns the inputs that a rank has; dims 0 if none. */
static void own_box(const dpar_spatial_desc *s, int r, dpar_box *own)
{
    dpar_halo h;
    memset(&h, 0, sizeof h);
    h.grid = s->in;
    (void)dpar_halo_owned(&h, r, own);
}

/* Checks that this rank sends exactly the keys and values that others need. */
static int least_keys(const work *w, const dpar_spatial_plan *p)
{
    const test_case *t = w->t;
    int r, cells = 0, gaps = 0;
    for (r = 0; r < w->c->size; r++) {
        dpar_spatial_boxes b;
        dpar_box own;
        memset(&own, 0, sizeof own);
        own_box(&p->layer, r, &own);
        (void)dpar_spatial_check(&p->layer, r, &b, NULL);
        if (r != w->c->rank && p->in_owned.dims > 0 && b.out.dims > 0) {
            int between = 0;
            cells += keys_of(t, &b.out, &own, &p->in_owned, &between);
            gaps += b.out.hi[0] - b.out.lo[0] < t->d[0] ? between : 0;
        }
    }
    return p->halo_bytes != (int64_t)8 * 2 * planes_in(t) * (cells + gaps);
}

static long cases;

/* Returns 1 if the plan's memory is to be registered. It may be or not, whatever the arrays are
 * (arrays_of). */
static int is_plan_registered(const test_case *t)
{
#ifdef DEVICE_MEMORY
    return t == NULL;
#else
    return t->n[0] / 2 % 2;
#endif
}

static void *memory_of_plan(dpar_comm *c, const test_case *t, int64_t bytes)
{
    void *memory = NULL;
    if (!is_plan_registered(t)) {
        return aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64 + 64);
    }
    if (dpar_comm_alloc(c, bytes + 64, &memory) != DPAR_OK) {
        exit(1);
    }
    return memory;
}

static void forget_plan(dpar_comm *c, const test_case *t, void *memory)
{
    if (is_plan_registered(t)) {
        dpar_comm_release(c, memory);
    } else {
        free(memory);
    }
}

static int run_case(dpar_comm *c, const test_case *t)
{
    dpar_halo_plan_desc direct;
    dpar_spatial_desc s;
    dpar_spatial_plan *plan = NULL;
    dpar_why why;
    work w;
    int64_t k;
    void *memory;
    int bad = 0;
    memset(&w, 0, sizeof w);
    why.text[0] = 0;
    w.c = c;
    w.t = t;
    textbook_all(&w);
    bad = !describe(&w, &s, &why);
#ifndef DEVICE_MEMORY
    memset(&direct, 0, sizeof direct);
    direct.method = DPAR_HALO_DIRECT;
    s.halo = t->n[0] % 4 == 1 ? &direct : NULL; /* for cases whose arrays peers can access */
#else
    (void)direct;
#endif
    s.bytes = 1; /* a query for the bytes needed */
    why.bytes = 0;
    if (bad || ON_DEVICE(dpar_spatial_make(c, &s, &plan, &why)) != DPAR_E_ROOM) {
        printf("refused: %s\n", why.text);
        bad = 1;
    }
    bad = bad > 0 ? bad : boxes(&w, &s);
    memory = memory_of_plan(c, t, why.bytes);
    s.memory = memory;
    s.bytes = why.bytes;
    if (bad == 0 && ON_DEVICE(dpar_spatial_make(c, &s, &plan, &why)) != DPAR_OK) {
        printf("refused: %s\n", why.text);
        bad = 1;
    }
    if (bad == 0) {
        bad = boxes_planned(&w, plan) + run_planned(&w, plan) + w.wrong;
        bad += t->kind == ATTENTION && t->dims == 1 ? least_keys(&w, plan) : 0;
        (void)dpar_all_reduce(c, w.dw_local, w.dw_all, weights(t), DPAR_F64, DPAR_SUM, NULL);
        for (k = 0; s.weight_gradient != NULL && k < weights(t); k++) {
            bad += w.dw_all[k] < w.dw[k] || w.dw_all[k] > w.dw[k];
        }
        bad += ON_DEVICE(dpar_spatial_free(plan)) != DPAR_OK;
    }
    if (bad > 0) {
        printf("rank %d of %d: kind %d n %dx%d k %d,%d s %d,%d d %d,%d pads %d %d,%d %d mode %d,%d "
               "outputs %d rule %d last %d: %d wrong\n",
               (int)c->rank, (int)c->size, t->kind, t->n[0], t->n[1], t->k[0], t->k[1], t->s[0],
               t->s[1], t->d[0], t->d[1], t->low[0], t->high[0], t->low[1], t->high[1], t->pad[0],
               t->pad[1], t->outputs, t->rule, t->last, bad);
    }
    forget_plan(c, t, memory);
    textbook_free(&w);
    if (c->rank == 0) {
        cases++;
    }
    return bad;
}

/* ---- sweeps ---------------------------------------------------------------------------------- */

static test_case plain(int kind, int n)
{
    test_case t;
    memset(&t, 0, sizeof t);
    t.kind = kind;
    t.dims = 1;
    t.samples = t.in_channels = t.out_channels = t.groups = 1;
    t.n[0] = n;
    t.n[1] = t.d[0] = t.d[1] = t.s[0] = t.s[1] = 1;
    return t;
}

/* Returns 1 if there is such a layer, otherwise 0. All that exist must be accepted. */
static int fits(const test_case *t, int d)
{
    if (t->k[d] == 0 || t->kind == INTERPOLATION || t->kind == ATTENTION) {
        return 1;
    }
    if (t->kind == TRANSPOSED) {
        return outputs(t, d) >= 1;
    }
    return t->n[d] + t->low[d] + t->high[d] >= t->d[d] * (t->k[d] - 1) + 1 &&
           (t->pad[d] != DPAR_SPATIAL_PAD_REFLECT || (t->low[d] < t->n[d] && t->high[d] < t->n[d]));
}

/* How much of a sweep runs: each `every`-th layer of it, or one variant of each geometry, which
 * changes with `turn`. */
typedef struct sweep {
    dpar_comm *c;
    int whole, every, from, turn, bad;
} sweep;

/* Runs a geometry with balanced outputs and with outputs that follow the inputs. The rule that cuts
 * the inputs changes. */
static void sweep_owners(sweep *w, const test_case *geometry)
{
    static const int rules[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_CHUNK, DPAR_SPLIT_FLOOR};
    const int variants = w->whole ? 2 : 1;
    int i;
    for (i = 0; i < variants && fits(geometry, 0); i++, w->turn++) {
        test_case t = *geometry;
        /* a random choice */
        if ((int)((uint32_t)w->turn * 2654435761u >> 16) % w->every != w->from) {
            continue;
        }
        t.outputs = (w->whole ? i : w->turn / 4) % 2;
        t.rule = rules[(w->turn / 8) % 3];
        t.whole = w->turn % 5 == 0;
        w->bad += run_case(w->c, &t);
    }
}

/* Runs a geometry as convolution with all paddings, as max and average pooling with and without
 * ceil_mode and padded cells, and as transposed convolution with all output paddings. */
static void sweep_kinds(sweep *w, const test_case *geometry)
{
    static const int modes[] = {DPAR_SPATIAL_PAD_ZERO, DPAR_SPATIAL_PAD_WRAP,
                                DPAR_SPATIAL_PAD_REFLECT, DPAR_SPATIAL_PAD_REPLICATE};
    const int reach = geometry->d[0] * (geometry->k[0] - 1) + 1;
    const int most = (geometry->s[0] > geometry->d[0] ? geometry->s[0] : geometry->d[0]) - 1;
    int i, turn = w->turn;
    for (i = 0; i < 4; i++) {
        test_case t = *geometry;
        t.kind = CONV;
        t.pad[0] = modes[i];
        if (w->whole || i == turn % 4) {
            sweep_owners(w, &t);
        }
    }
    for (i = 0; i < 2; i++) { /* max: ceil_mode */
        test_case t = *geometry;
        t.kind = MAX;
        t.pad[0] = DPAR_SPATIAL_PAD_LOWEST;
        t.ceil_mode = i;
        if (2 * t.low[0] <= reach && (w->whole || turn % 6 == i)) {
            sweep_owners(w, &t);
        }
    }
    for (i = 0; i < 4; i++) { /* averages: ceil_mode, padded cells; no dilation, as in torch */
        test_case t = *geometry;
        t.kind = AVERAGE;
        t.ceil_mode = i % 2;
        t.padded = i / 2;
        if (t.d[0] == 1 && 2 * t.low[0] <= t.k[0] && (w->whole || turn % 8 == i)) {
            sweep_owners(w, &t);
        }
    }
    for (i = 0; i <= most; i++) {
        test_case t = *geometry;
        t.kind = TRANSPOSED;
        t.more = i;
        if (w->whole || turn % 6 == i) {
            sweep_owners(w, &t);
        }
    }
}

/* Convolutions with n 8 .. 32; k 1 .. 7, s 1 .. 4, d 1, 2, p up to (reach + 1) / 2, sometimes less
 * at the end. */
static void sweep_convolutions(sweep *w)
{
    int n, k, s, d, p;
    for (n = 8; n <= 32; n += w->whole ? 1 : 3) {
        for (k = 1; k <= 7; k++) {
            for (s = 1; s <= 4; s++) {
                for (d = 1; d <= 2; d++) {
                    for (p = 0; p <= (d * (k - 1) + 2) / 2; p++) {
                        test_case t = plain(CONV, n);
                        t.k[0] = k;
                        t.s[0] = s;
                        t.d[0] = d;
                        t.low[0] = p;
                        t.high[0] = p > 0 && w->turn % 3 == 0 ? p - 1 : p;
                        sweep_kinds(w, &t);
                    }
                }
            }
        }
    }
}

/* Convolutions with few inputs that have outputs only because of the output padding. */
static void sweep_last_outputs(sweep *w)
{
    int n, k, s, d, low, high, more;
    for (n = 1; n <= 2; n++) {
        for (k = 1; k <= 4; k++) {
            for (s = 1; s <= 3; s++) {
                for (d = 1; d <= 2; d++) {
                    for (low = 0; low < k; low++) {
                        for (high = 0; high <= 5; high++) {
                            for (more = 0; more < (s > d ? s : d); more++) {
                                test_case t = plain(TRANSPOSED, n);
                                t.k[0] = k;
                                t.s[0] = s;
                                t.d[0] = d;
                                t.low[0] = low;
                                t.high[0] = high;
                                t.more = more;
                                if (outputs(&t, 0) >= 1 && outputs(&t, 0) - more < 1) {
                                    sweep_owners(w, &t);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/* Interpolations from n 8 .. 32 to m 3 .. 70: nearest, linear and cubic taps, both alignments,
 * clamped and periodic ends. */
static void sweep_interpolations(sweep *w)
{
    static const int taps[] = {1, 2, 4};
    int n, m, i, corners, wraps;
    for (n = 8; n <= 32; n += w->whole ? 1 : 6) {
        for (m = 3; m <= 70; m += w->whole ? 1 : 7) {
            for (i = 0; i < 3; i++) {
                for (corners = 0; corners <= (i > 0); corners++) {
                    for (wraps = 0; wraps <= !corners; wraps++) {
                        test_case t = plain(INTERPOLATION, n);
                        t.k[0] = taps[i];
                        t.m[0] = m;
                        t.corners = corners;
                        t.pad[0] = wraps ? DPAR_SPATIAL_PAD_WRAP : DPAR_SPATIAL_PAD_REPLICATE;
                        sweep_owners(w, &t);
                    }
                }
            }
        }
    }
}

/* Neighbourhood attention with n 8 .. 32, kernels 3 .. 9, dilations 1 and 2: values, gradients, and
 * bytes (in run_case). */
static void sweep_neighbourhoods(sweep *w)
{
    int n, k, d, wraps;
    for (n = 8; n <= 32; n++) {
        for (k = 3; k <= 9; k += 2) {
            for (d = 1; d <= 2; d++) {
                for (wraps = 0; wraps < 2 && n / d >= k; wraps++) {
                    test_case t = plain(ATTENTION, n);
                    t.in_channels = t.out_channels = 1 + w->turn % 2;
                    t.k[0] = k;
                    t.d[0] = d;
                    t.pad[0] = wraps ? DPAR_SPATIAL_PAD_WRAP : DPAR_SPATIAL_PAD_ZERO;
                    sweep_owners(w, &t);
                }
            }
        }
    }
}

static int below(uint32_t *state, int n)
{
    *state = *state * 1664525u + 1013904223u;
    return (int)((*state >> 8) % (uint32_t)n);
}

/* Random layers with two dims, channels, groups and samples. */
static int sweep_lots(dpar_comm *c, int rounds)
{
    uint32_t lot = 7;
    int r, d, bad = 0;
    for (r = 0; r < rounds; r++) {
        const int kind = below(&lot, KINDS);
        test_case t = plain(kind, 1);
        const int groups[] = {1, 1, 2, 3};
        t.dims = 2;
        t.samples = 1 + below(&lot, 2);
        t.groups = kind == CONV || kind == TRANSPOSED ? groups[below(&lot, 4)] : 1;
        t.in_channels = t.groups * (1 + below(&lot, 2));
        t.out_channels =
            kind == CONV || kind == TRANSPOSED ? t.groups * (1 + below(&lot, 2)) : t.in_channels;
        t.rule = below(&lot, 3);
        t.outputs = below(&lot, 2);
        t.last = below(&lot, 2);
        t.whole = below(&lot, 3) == 0;
        t.padded = below(&lot, 2);
        t.corners = kind == INTERPOLATION ? below(&lot, 2) : 0;
        t.accumulate = below(&lot, 3) == 0;
        t.ceil_mode = kind == MAX || kind == AVERAGE ? below(&lot, 2) : 0;
        for (d = 0; d < 2; d++) {
            const int modes = kind == ATTENTION ? 2 : kind == INTERPOLATION || kind == CONV ? 4 : 1;
            const int taps[] = {1, 2, 4};
            t.n[d] = below(&lot, 4) == 0 ? 1 + below(&lot, 3) : 6 + below(&lot, 12);
            t.k[d] = kind == INTERPOLATION ? taps[below(&lot, 3)] : 1 + below(&lot, 4);
            t.s[d] = 1 + below(&lot, 3);
            t.d[d] = kind == INTERPOLATION ? 1 : 1 + below(&lot, 2);
            t.pad[d] = kind == MAX ? DPAR_SPATIAL_PAD_LOWEST : below(&lot, modes);
            if (kind == INTERPOLATION) {
                t.pad[d] = t.pad[d] == DPAR_SPATIAL_PAD_WRAP && !t.corners
                               ? DPAR_SPATIAL_PAD_WRAP
                               : DPAR_SPATIAL_PAD_REPLICATE;
                t.corners = t.k[d] == 1 ? 0 : t.corners;
            }
            t.m[d] = 3 + below(&lot, 40);
            if (kind == ATTENTION && t.n[d] < t.k[d] * t.d[d]) {
                t.d[d] = 1; /* a dilation group shorter than the kernel is refused */
                t.k[d] = t.k[d] < t.n[d] ? t.k[d] : t.n[d];
            }
            if (kind == MAX || kind == AVERAGE) { /* a window must contain a cell */
                t.low[d] = below(&lot, (t.d[d] * (t.k[d] - 1) + 1) / 2 / t.d[d] + 1);
                t.high[d] = t.low[d];
                t.d[d] = t.low[d] > 0 ? 1 : t.d[d];
            } else if (kind == CONV) {
                t.low[d] = below(&lot, 4);
                t.high[d] = below(&lot, 4);
            } else if (kind == TRANSPOSED) {
                t.low[d] = below(&lot, t.k[d]);
                t.high[d] = below(&lot, 2);
            }
        }
        if (kind == INTERPOLATION && t.corners && (t.k[0] == 1 || t.k[1] == 1)) {
            t.corners = 0;
        }
        t.more = kind == TRANSPOSED && t.s[0] > 1 && t.s[1] > 1 ? below(&lot, 2) : 0;
        if (t.k[1] > 1 && below(&lot, 8) == 0 && kind != ATTENTION && kind != INTERPOLATION) {
            t.k[1] = 0; /* not touched */
            t.more = 0;
        }
        if (fits(&t, 0) && fits(&t, 1)) {
            bad += run_case(c, &t);
        }
    }
    return bad;
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* Compares norms with sums over the whole array in double. The values are around 1e4, where
 * mean(x^2) - mean(x)^2 would lose nine digits. Ranks from `ranks` on have no points. */
static int norm_case(dpar_comm *c, int groups, int ranks, int N)
{
    dpar_norm_arrays a;
    int64_t of_saved = 0, of_scratch = 0;
    enum { B = 2, C = 6, MOST = B * C * 700 };
    double *memory = fresh_there(8 * (MOST + 1) + 8 * B * C + 4 * C), *x = memory, *dy = x + MOST,
           *y = dy + MOST;
    double *dx = y + MOST, *mine = dx + MOST, *out = mine + MOST + 1;
    double *mine_dy = out + MOST + 1, *mine_dx = mine_dy + MOST + 1;
    double dscale[C], dshift[C];
    const int few = c->size < ranks ? c->size : ranks;
    const int64_t lo = c->rank < few ? (int64_t)N * c->rank / few : 0;
    const int64_t hi = c->rank < few ? (int64_t)N * (c->rank + 1) / few : 0;
    double *saved = mine_dx + MOST + 1, *scale = saved + 4 * B * C, *shift = scale + C;
    double *my_dscale = shift + C, *my_dshift = my_dscale + C, *scratch;
    dpar_norm n;
    dpar_box box;
    dpar_tile tx, ty, tdy, tdx;
    int64_t i, k;
    int b, ch, bad = 0, set;
    for (i = 0; i < B * C * N; i++) {
        x[i] = 1e4 + number(8, i) + 0.1 * number(9, i);
        dy[i] = number(10, i);
    }
    for (i = 0; i < C; i++) {
        scale[i] = 1.0 + 0.25 * (double)i;
        shift[i] = number(11, i);
        dscale[i] = dshift[i] = my_dscale[i] = my_dshift[i] = 0.0;
    }
    for (set = 0; set < (groups == 0 ? C : B * groups); set++) {
        double count = 0.0, mean = 0.0, var = 0.0, g1 = 0.0, g2 = 0.0, rest;
        int pass;
        for (pass = 0; pass < 5; pass++) {
            for (b = 0; b < B; b++) {
                for (ch = 0; ch < C; ch++) {
                    if (set != (groups == 0 ? ch : b * groups + ch / (C / groups))) {
                        continue;
                    }
                    for (i = 0; i < N; i++) {
                        k = (int64_t)(b * C + ch) * N + i;
                        rest = (x[k] - mean) / sqrt(var / (count > 0.0 ? count : 1.0) + 1e-5);
                        if (pass == 0) {
                            mean += x[k];
                            count += 1.0;
                        } else if (pass == 1) {
                            var += (x[k] - mean) * (x[k] - mean);
                        } else if (pass == 2) {
                            y[k] = rest * scale[ch] + shift[ch];
                            g1 += dy[k] * scale[ch];
                            g2 += dy[k] * scale[ch] * rest;
                            dscale[ch] += dy[k] * rest;
                            dshift[ch] += dy[k];
                        } else if (pass == 3) {
                            dx[k] = (dy[k] * scale[ch] - g1 / count - rest * g2 / count) /
                                    sqrt(var / count + 1e-5);
                        }
                    }
                }
            }
            mean = pass == 0 ? mean / count : mean;
        }
    }
    memset(&n, 0, sizeof n);
    n.type = DPAR_F64;
    n.samples = B;
    n.channels = C;
    n.groups = groups;
    n.epsilon = 1e-5;
    n.scale = scale;
    n.shift = shift;
    memset(&box, 0, sizeof box);
    box.dims = hi > lo ? 1 : 0;
    box.lo[0] = lo;
    box.hi[0] = hi;
    dpar_tile_init(&tx, mine, &box, B * C, 0);
    dpar_tile_init(&ty, out, &box, B * C, 0);
    dpar_tile_init(&tdy, mine_dy, &box, B * C, 1); /* with another order of dims */
    dpar_tile_init(&tdx, mine_dx, &box, B * C, 0);
    for (k = 0; k < B * C; k++) {
        for (i = lo; i < hi; i++) {
            *at(&tx, (int)k, i, 0) = x[k * N + i];
            *at(&tdy, (int)k, i, 0) = dy[k * N + i];
        }
    }
    dpar_norm_sizes(c, &n, &of_saved, &of_scratch);
    bad += of_saved != 2 * (groups == 0 ? C : B * groups);
    scratch = fresh_there(of_scratch);
    memset(&a, 0, sizeof a);
    a.x = &tx;
    a.y = &ty;
    a.dy = &tdy;
    a.dx = &tdx;
    a.saved = saved;
    a.scale_gradient = my_dscale;
    a.shift_gradient = my_dshift;
    a.scratch = scratch;
    if (ON_DEVICE(dpar_norm_forward(c, &n, &a)) != DPAR_OK ||
        ON_DEVICE(dpar_norm_backward(c, &n, &a)) != DPAR_OK ||
        ON_DEVICE(dpar_all_reduce(c, my_dscale, my_dscale, 2 * C, DPAR_F64, DPAR_SUM, NULL)) !=
            DPAR_OK) {
        printf("a norm failed: %s\n", c->why.text);
        bad++;
    }
    for (k = 0; k < B * C; k++) {
        for (i = lo; i < hi; i++) {
            bad += !(fabs(*at(&ty, (int)k, i, 0) - y[k * N + i]) <= 1e-10);
            bad += !(fabs(*at(&tdx, (int)k, i, 0) - dx[k * N + i]) <= 1e-10);
        }
    }
    for (i = 0; i < C; i++) {
        bad +=
            !(fabs(my_dscale[i] - dscale[i]) <= 1e-8) || !(fabs(my_dshift[i] - dshift[i]) <= 1e-9);
    }
    free_there(scratch);
    free_there(memory);
    if (bad > 0) {
        printf("rank %d of %d: norm of %d groups, %d points: %d wrong\n", (int)c->rank,
               (int)c->size, groups, N, bad);
    }
    return bad;
}

/* Checks that invalid layers are refused with a message. */
static int refusals(dpar_comm *c)
{
    test_case t = plain(CONV, 8);
    dpar_spatial_desc s;
    dpar_spatial_tap_range taps;
    dpar_why why;
    work w;
    int bad = 0;
    memset(&w, 0, sizeof w);
    w.c = c;
    w.t = &t;
    t.k[0] = 3;
    w.m[0] = 6;
    w.m[1] = 1;
    bad += !describe(&w, &s, &why) || dpar_spatial_check(&s, 0, NULL, &why) != DPAR_OK;
    s.window[0].kernel = 0; /* the window of a dim that is not touched is ignored */
    s.window[0].pad_low = INT64_MIN;
    s.window[0].pad_high = INT64_MAX;
    bad += dpar_spatial_taps(&s, 0, 7, &taps) != DPAR_OK || taps.first != 7 || taps.padded != 1;
    s.window[0].pad_low = s.window[0].pad_high = 0;
    s.window[0].kernel = 3;
    s.out_extent[0] = 6;
    bad += dpar_spatial_check(&s, 0, NULL, &why) != DPAR_OK;
    s.out_extent[0] = 7; /* there are 6 */
    bad += dpar_spatial_check(&s, 0, NULL, &why) != DPAR_E_ARG;
    s.out_extent[0] = INT64_MIN;
    bad += dpar_spatial_check(&s, 0, NULL, &why) != DPAR_E_RANGE;
    s.out_extent[0] = 0;
    s.window[0].kernel = 9; /* does not fit */
    bad += dpar_spatial_check(&s, 0, NULL, &why) != DPAR_E_ARG;
    s.window[0].kernel = 3;
    s.window[0].pad_low = 8; /* reflects further than there are points */
    s.padding[0] = DPAR_SPATIAL_PAD_REFLECT;
    bad += dpar_spatial_check(&s, 0, NULL, &why) != DPAR_E_ARG;
    s.padding[0] = 5;
    bad += dpar_spatial_check(&s, 0, NULL, &why) != DPAR_E_ARG;
    s.padding[0] = DPAR_SPATIAL_PAD_WRAP;
    s.kind = DPAR_SPATIAL_TRANSPOSED;
    bad += dpar_spatial_check(&s, 0, NULL, &why) != DPAR_E_ARG;
    s.kind = DPAR_SPATIAL_INTERPOLATION; /* the number of outputs is missing */
    bad += dpar_spatial_check(&s, 0, NULL, &why) != DPAR_E_ARG;
    s.kind = 9;
    bad += dpar_spatial_check(&s, 0, NULL, &why) != DPAR_E_ARG;
    s.kind = DPAR_SPATIAL_CONVOLUTION;
    s.padding[0] = DPAR_SPATIAL_PAD_ZERO;
    s.in.dims = 1 << 20; /* not from dpar_layout_init */
    bad += dpar_spatial_check(&s, 0, NULL, &why) != DPAR_E_ARG;
    bad += dpar_spatial_taps(&s, 1 << 19, 0, &taps) != DPAR_E_ARG;
    memset(&s, 0, sizeof s);
    s.kind = DPAR_SPATIAL_CONVOLUTION;
    bad += dpar_spatial_check(&s, 0, NULL, &why) != DPAR_E_ARG;
    return bad;
}

/* ---- three dims, f32 ------------------------------------------------------------------------- */

enum { SOLID = 3 };
typedef struct solid {
    int n[SOLID], k[SOLID], s[SOLID], d[SOLID], low[SOLID], m[SOLID], pad;
    double *x, *y, *dy, *dx; /* whole arrays; y and dx by the textbook */
    int wrong;
} solid;

/* Returns the weight of a tap: a small integer that no other tap has by symmetry. */
static double solid_weight(const int *tap)
{
    return (double)((tap[0] * 7 + tap[1] * 3 + tap[2] * 5) % 11 - 4);
}

/* Advances to the next index of a box of `extent` from 0 on. Returns 0 at the end. */
static int solid_next(int *i, const int *extent)
{
    int d;
    for (d = SOLID - 1; d >= 0; d--) {
        if (++i[d] < extent[d]) {
            return 1;
        }
        i[d] = 0;
    }
    return 0;
}

static int solid_at(const int *i, const int *extent)
{
    return (i[0] * extent[1] + i[1]) * extent[2] + i[2];
}

static void solid_textbook(solid *w)
{
    int y[SOLID] = {0, 0, 0}, tap[SOLID] = {0, 0, 0}, x[SOLID], d;
    do {
        const int out = solid_at(y, w->m);
        do {
            int inside = 1;
            for (d = 0; d < SOLID; d++) {
                const int n = w->n[d];
                x[d] = y[d] * w->s[d] - w->low[d] + tap[d] * w->d[d];
                if (w->pad == DPAR_SPATIAL_PAD_WRAP) {
                    x[d] = (x[d] + 8 * n) % n;
                } else if (w->pad == DPAR_SPATIAL_PAD_REPLICATE) {
                    x[d] = x[d] < 0 ? 0 : x[d] < n ? x[d] : n - 1;
                }
                inside = inside && x[d] >= 0 && x[d] < n;
            }
            if (inside) {
                w->y[out] += solid_weight(tap) * w->x[solid_at(x, w->n)];
                w->dx[solid_at(x, w->n)] += solid_weight(tap) * w->dy[out];
            }
        } while (solid_next(tap, w->k));
    } while (solid_next(y, w->m));
}

static float *solid_of(const dpar_tile *t, const int *i)
{
    int64_t at[SOLID];
    int d;
    for (d = 0; d < SOLID; d++) {
        at[d] = i[d];
    }
    return (float *)t->data + tile_at(t, 0, at);
}

static void solid_kernel(const dpar_spatial_call *c, int backward)
{
    solid *w = (solid *)c->user;
    int i[SOLID] = {0, 0, 0}, tap[SOLID] = {0, 0, 0}, y[SOLID], x[SOLID], size[SOLID], d;
    for (d = 0; d < SOLID; d++) {
        size[d] = (int)(c->out.box.hi[d] - c->out.box.lo[d]);
    }
    do {
        float sum = 0.0f;
        for (d = 0; d < SOLID; d++) {
            y[d] = (int)c->out.box.lo[d] + i[d];
        }
        do {
            for (d = 0; d < SOLID; d++) {
                x[d] = y[d] * w->s[d] - w->low[d] + tap[d] * w->d[d];
                w->wrong += x[d] < c->in[0].box.lo[d] || x[d] >= c->in[0].box.hi[d];
            }
            if (backward) {
                *solid_of(&c->in_gradient[0], x) +=
                    (float)solid_weight(tap) * *solid_of(&c->out_gradient, y);
            } else {
                sum += (float)solid_weight(tap) * *solid_of(&c->in[0], x);
            }
        } while (solid_next(tap, w->k));
        if (!backward) {
            *solid_of(&c->out, y) = sum;
        }
    } while (solid_next(i, size));
}

static void solid_forward_turn(const dpar_spatial_call *c)
{
    solid_kernel(c, 0);
}

static void solid_forward(const dpar_spatial_call *c)
{
    launch(c, solid_forward_turn);
}

static void solid_backward_turn(const dpar_spatial_call *c)
{
    solid_kernel(c, 1);
}

static void solid_backward(const dpar_spatial_call *c)
{
    launch(c, solid_backward_turn);
}

/* Copies the own points of a dense array of `box` from a whole array, or compares them with it. */
static int solid_points(float *data, const dpar_box *box, const dpar_box *own, const double *all,
                        const int *extent, int put)
{
    int i[SOLID] = {0, 0, 0}, bad = 0, d;
    dpar_tile t;
    dpar_tile_init(&t, data, box, 1, 0);
    do {
        int inside = own->dims > 0;
        for (d = 0; d < SOLID && inside; d++) {
            inside = i[d] >= own->lo[d] && i[d] < own->hi[d];
        }
        if (inside && put) {
            *solid_of(&t, i) = (float)all[solid_at(i, extent)];
        } else if (inside) {
            const double v = (double)*solid_of(&t, i);
            bad += v < all[solid_at(i, extent)] || v > all[solid_at(i, extent)];
        }
    } while (solid_next(i, extent));
    return bad;
}

static int solid_run(dpar_comm *c, solid *w, const dpar_spatial_desc *s)
{
    dpar_spatial_plan *plan = NULL;
    dpar_spatial_arrays a;
    dpar_why why;
    int bad;
    memset(&a, 0, sizeof a);
    if (ON_DEVICE(dpar_spatial_make(c, s, &plan, &why)) != DPAR_OK) {
        printf("refused: %s\n", why.text);
        return 1;
    }
    a.in[0] = fresh_there(volume(&plan->in_box));
    a.in_gradient[0] = fresh_there(volume(&plan->in_box));
    a.out = fresh_there(volume(&plan->out_owned));
    a.out_gradient = fresh_there(volume(&plan->out_owned));
    (void)solid_points((float *)a.in[0], &plan->in_box, &plan->in_owned, w->x, w->n, 1);
    (void)solid_points((float *)a.out_gradient, &plan->out_owned, &plan->out_owned, w->dy, w->m, 1);
    bad = ON_DEVICE(dpar_spatial_forward(plan, &a)) != DPAR_OK ||
          ON_DEVICE(dpar_spatial_backward(plan, &a)) != DPAR_OK;
    bad += solid_points((float *)a.out, &plan->out_owned, &plan->out_owned, w->y, w->m, 0);
    bad += solid_points((float *)a.in_gradient[0], &plan->in_box, &plan->in_owned, w->dx, w->n, 0);
    bad += ON_DEVICE(dpar_spatial_free(plan)) != DPAR_OK;
    free_there(a.in[0]);
    free_there(a.in_gradient[0]);
    free_there(a.out);
    free_there(a.out_gradient);
    return bad + w->wrong;
}

/* Tests convolutions over three dims that are all cut, in f32 with integers, so that sums are
 * exact. */
static int sweep_solids(dpar_comm *c, int rounds)
{
    static const int modes[] = {DPAR_SPATIAL_PAD_ZERO, DPAR_SPATIAL_PAD_WRAP,
                                DPAR_SPATIAL_PAD_REPLICATE};
    const int32_t cuts[4][SOLID] = {{1, 1, 1}, {1, 2, 1}, {1, 1, 3}, {2, 1, 2}};
    const int32_t line[SOLID] = {(int32_t)c->size, 1, 1};
    uint32_t lot = 11;
    int round, d, i, bad = 0;
    for (round = 0; round < rounds; round++) {
        dpar_placement placement[SOLID];
        int64_t extent[SOLID];
        dpar_spatial_desc s;
        dpar_mesh mesh;
        solid w;
        int in = 1, out = 1;
        memset(&s, 0, sizeof s);
        s.kind = DPAR_SPATIAL_CONVOLUTION;
        memset(&w, 0, sizeof w);
        w.pad = modes[round % 3];
        for (d = 0; d < SOLID; d++) {
            extent[d] = w.n[d] = 5 + below(&lot, 5);
            s.window[d].kernel = w.k[d] = 1 + below(&lot, 3);
            s.window[d].stride = w.s[d] = 1 + below(&lot, 2);
            s.window[d].dilation = w.d[d] = 1 + below(&lot, 2);
            s.window[d].pad_low = s.window[d].pad_high = w.low[d] =
                below(&lot, w.d[d] * (w.k[d] - 1) / 2 + 2);
            s.padding[d] = w.pad;
            w.m[d] = (w.n[d] + 2 * w.low[d] - w.d[d] * (w.k[d] - 1) - 1) / w.s[d] + 1;
            placement[d] = dpar_shard_by(d, below(&lot, 2) ? DPAR_SPLIT_CHUNK : DPAR_SPLIT_EVEN, 0);
            in *= w.n[d];
            out *= w.m[d];
        }
        if (dpar_mesh_init(&mesh, "z y x", round % 2 && c->size <= 4 ? cuts[c->size - 1] : line,
                           DPAR_ORDER_LAST_FASTEST, c->size, NULL) != DPAR_OK ||
            dpar_layout_init(&s.in, &mesh, SOLID, extent, placement, NULL) != DPAR_OK) {
            return 1;
        }
        s.outputs = round / 2 % 2;
        s.type = DPAR_F32;
        s.forward = solid_forward;
        s.input_gradient = solid_backward;
        s.user = &w;
        w.x = fresh(in);
        w.dx = fresh(in);
        w.y = fresh(out);
        w.dy = fresh(out);
        for (i = 0; i < in || i < out; i++) {
            if (i < in) {
                w.x[i] = number(21, i);
            }
            if (i < out) {
                w.dy[i] = number(22, i);
            }
        }
        solid_textbook(&w);
        i = solid_run(c, &w, &s);
        if (i > 0) {
            printf("rank %d of %d: solid %d: %d wrong\n", (int)c->rank, (int)c->size, round, i);
        }
        bad += i;
        if (c->rank == 0) { /* ranks may be threads */
            cases++;
        }
        free(w.x);
        free(w.dx);
        free(w.y);
        free(w.dy);
    }
    return bad;
}

/* ---- what max pooling reads beyond the ends -------------------------------------------------- */

/* Checks the padding of max pooling: minus infinity in IEEE 754 and bfloat16, the least two's
 * complement number, 0 for unsigned types. */
static void see_lowest_turn(const dpar_spatial_call *c)
{
    static const int32_t types[] = {DPAR_F64, DPAR_F32, DPAR_BF16, DPAR_F16, DPAR_I8,
                                    DPAR_U8,  DPAR_I32, DPAR_U32,  DPAR_I64, DPAR_U64};
    static const uint64_t least[] = {
        UINT64_C(0xfff0000000000000), 0xff800000u, 0xff80u, 0xfc00u, 0x80u, 0u, 0x80000000u, 0u,
        UINT64_C(0x8000000000000000), 0u};
    const int size = dpar_type_bytes(c->layer->type);
    const unsigned char *data = (const unsigned char *)c->in[0].data;
    int *seen = (int *)c->user, k;
    int64_t i;
    for (i = c->in[0].box.lo[0]; i < c->in[0].box.hi[0]; i++) {
        for (k = 0; k < 10 && (i < 0 || i >= c->layer->in.extent[0]); k++) {
            uint64_t bits = 0;
            const uint32_t half = 1;
            const unsigned char *at = data + tile_at(&c->in[0], 0, &i) * size;
            memcpy((unsigned char *)&bits + (*(const unsigned char *)&half == 1 ? 0 : 8 - size), at,
                   (size_t)size);
            seen[0] += c->layer->type == types[k];
            seen[1] += c->layer->type == types[k] && bits != least[k];
        }
    }
}

static void see_lowest(const dpar_spatial_call *c)
{
    launch(c, see_lowest_turn);
}

/* Tests a window of 3 over 8 points: one cell beyond each end. */
static int lowest_case(dpar_comm *c)
{
    const int64_t extent[1] = {8};
    const int32_t size[1] = {(int32_t)c->size};
    const dpar_placement cut[1] = {dpar_shard_by(0, DPAR_SPLIT_EVEN, 0)};
    int64_t seen[2] = {0, 0}, all[2] = {0, 0};
    int type, mine[2] = {0, 0}, bad = 0;
    for (type = 0; type < DPAR_TYPE_COUNT; type++) {
        dpar_spatial_plan *plan = NULL;
        dpar_spatial_arrays a;
        dpar_spatial_desc s;
        dpar_mesh mesh;
        memset(&a, 0, sizeof a);
        memset(&s, 0, sizeof s);
        s.kind = DPAR_SPATIAL_CONVOLUTION;
        bad +=
            dpar_mesh_init(&mesh, "x", size, DPAR_ORDER_LAST_FASTEST, c->size, NULL) != DPAR_OK ||
            dpar_layout_init(&s.in, &mesh, 1, extent, cut, NULL) != DPAR_OK;
        s.window[0].kernel = 3;
        s.window[0].pad_low = s.window[0].pad_high = 1;
        s.padding[0] = DPAR_SPATIAL_PAD_LOWEST;
        s.type = type;
        s.forward = see_lowest;
        s.user = mine;
        if (type == DPAR_TYPE_NONE || type == DPAR_TF32 || type == DPAR_F8 || type == DPAR_F4) {
            if (type != DPAR_TF32) {
                bad += dpar_spatial_check(&s, 0, NULL, NULL) != DPAR_E_ARG;
            }
            s.padding[0] = DPAR_SPATIAL_PAD_ZERO;
            s.input_gradient = see_lowest; /* does not compute sums */
            bad += dpar_spatial_check(&s, 0, NULL, NULL) != DPAR_E_ARG;
            continue;
        }
        if (ON_DEVICE(dpar_spatial_make(c, &s, &plan, NULL)) != DPAR_OK) {
            return 1;
        }
        a.in[0] = fresh_there(16);
        a.out = fresh_there(16);
        memset(a.in[0], 0x5a, 16 * 8);
        bad += ON_DEVICE(dpar_spatial_forward(plan, &a)) != DPAR_OK ||
               ON_DEVICE(dpar_spatial_free(plan)) != DPAR_OK;
        free_there(a.in[0]);
        free_there(a.out);
    }
    seen[0] = mine[0];
    seen[1] = mine[1];
    bad += dpar_all_reduce(c, seen, all, 2, DPAR_I64, DPAR_SUM, NULL) != DPAR_OK;
    return bad + (all[0] != 20) + (all[1] != 0); /* 10 types, 2 cells */
}

/* ---- errors on one rank ---------------------------------------------------------------------- */

/* Makes a layer in `bytes` of memory (0: allocated) and frees it again. */
static dpar_status try_layer(dpar_comm *c, const dpar_spatial_desc *s, int64_t bytes, dpar_why *why)
{
    dpar_spatial_desc there = *s;
    dpar_spatial_plan *plan = NULL;
    void *memory = aligned_alloc(64, (size_t)(bytes + 64) / 64 * 64);
    dpar_status st;
    there.memory = bytes > 0 ? memory : NULL;
    there.bytes = bytes;
    st = (dpar_status)ON_DEVICE(dpar_spatial_make(c, &there, &plan, why));
    if (st == DPAR_OK && ON_DEVICE(dpar_spatial_free(plan)) != DPAR_OK) {
        st = DPAR_E_SYSTEM;
    }
    free(memory);
    return st;
}

/* Passes different arguments on the last rank, or some that it cannot use: all ranks get the
 * error. */
static int misuse(dpar_comm *c)
{
    enum {
        BAD,
        SMALL_BOX,
        ENDLESS_BOX,
        BOX_DIMS,
        ENDLESS,
        ROOM,
        KIND,
        OUTPUTS,
        PAD,
        PADDING,
        LAST,
        PLANES,
        GRADIENT,
        WAYS
    };
    test_case t = plain(CONV, 9);
    const int odd = c->rank == c->size - 1 && c->size > 1;
    int way, bad = 0;
    t.k[0] = 3;
    t.pad[0] = DPAR_SPATIAL_PAD_ZERO;
    for (way = 0; way < WAYS && c->size > 1; way++) {
        dpar_spatial_desc s;
        dpar_why why;
        dpar_status st, wanted = way < ENDLESS    ? DPAR_E_ARG
                                 : way == ENDLESS ? DPAR_E_RANGE
                                 : way == ROOM    ? DPAR_E_ROOM
                                                  : DPAR_E_MISMATCH;
        work w;
        memset(&w, 0, sizeof w);
        w.c = c;
        w.t = &t;
        w.m[0] = 7;
        w.m[1] = 1;
        why.text[0] = 0;
        why.bytes = 0;
        bad += !describe(&w, &s, &why);
        if (odd) {
            s.padding[0] = way == BAD       ? 77
                           : way == PADDING ? DPAR_SPATIAL_PAD_REPLICATE
                                            : s.padding[0];
            s.in_box.dims = way == BOX_DIMS ? 2 : way >= SMALL_BOX && way <= ENDLESS;
            /* otherwise no points */
            s.in_box.lo[0] = way == ENDLESS_BOX || way == ENDLESS ? -100 : 0;
            s.in_box.hi[0] = way == ENDLESS_BOX ? INT64_MAX : way == ENDLESS ? INT64_C(1) << 59 : 0;
            s.planes += way == ENDLESS;
            s.kind = way == KIND ? DPAR_SPATIAL_NEIGHBOURHOOD : s.kind;
            s.outputs =
                way == OUTPUTS ? DPAR_SPATIAL_OUTPUTS_FOLLOW : DPAR_SPATIAL_OUTPUTS_BALANCED;
            s.window[0].pad_high += way == PAD;
            s.channels_last = way == LAST ? !s.channels_last : s.channels_last;
            s.out_planes += way == PLANES;
            s.input_gradient = way == GRADIENT ? NULL : s.input_gradient;
        }
        st = try_layer(c, &s, way == ROOM && odd ? 64 : 0, &why);
        if (st != wanted || why.text[0] == 0 || (way == ROOM) != (why.bytes > 64) ||
            (wanted == DPAR_E_MISMATCH && strstr(why.text, " on rank ") == NULL) ||
            (way == PLANES &&
             !says_who_differs(why.text, (int)c->size, "spatial: out_planes", "1", "2"))) {
            printf("rank %d of %d: misuse %d: %s, %s\n", (int)c->rank, (int)c->size, way,
                   dpar_status_text(st), why.text);
            bad++;
        }
    }
    bad += dpar_spatial_forward(NULL, NULL) != DPAR_E_ARG ||
           dpar_spatial_backward(NULL, NULL) != DPAR_E_ARG ||
           dpar_spatial_taps(NULL, 0, 0, NULL) != DPAR_E_ARG ||
           dpar_spatial_make(c, NULL, NULL, NULL) != DPAR_E_ARG ||
           dpar_spatial_free(NULL) != DPAR_OK;
    return bad;
}

/* Plans a convolution of 16 points with a kernel of 3 and computes its textbook results in *w. */
static dpar_status plan_plain(dpar_comm *c, test_case *t, work *w, dpar_spatial_plan **plan)
{
    dpar_spatial_desc s;
    *t = plain(CONV, 16);
    t->k[0] = 3;
    memset(w, 0, sizeof *w);
    w->c = c;
    w->t = t;
    textbook_all(w);
    if (!describe(w, &s, NULL)) {
        return DPAR_E_ARG;
    }
    return (dpar_status)ON_DEVICE(dpar_spatial_make(c, &s, plan, NULL));
}

/* Checks that backward without gradients of the inputs computes only those of the weights, and that
 * a missing output array is an error. */
static int without_arrays(dpar_comm *c)
{
    test_case t;
    dpar_spatial_plan *plan = NULL;
    dpar_spatial_arrays a;
    dpar_tile tile;
    int64_t k;
    work w;
    int bad = 0;
    memset(&a, 0, sizeof a);
    if (plan_plain(c, &t, &w, &plan) != DPAR_OK) {
        return 1;
    }
    a.in[0] = fresh_there(volume(&plan->in_box));
    a.out = fresh_there(volume(&plan->out_owned));
    a.out_gradient = fresh_there(volume(&plan->out_owned));
    dpar_tile_init(&tile, a.in[0], &plan->in_box, 1, 0);
    (void)compare(&w, &tile, &plan->in_owned, w.x[0], t.n, 1, 0.0);
    dpar_tile_init(&tile, a.out_gradient, &plan->out_owned, 1, 0);
    (void)compare(&w, &tile, &plan->out_owned, w.dy, w.m, 1, 0.0);
    bad += ON_DEVICE(dpar_spatial_forward(plan, &a)) != DPAR_OK ||
           ON_DEVICE(dpar_spatial_backward(plan, &a)) != DPAR_OK;
    bad +=
        dpar_all_reduce(c, w.dw_local, w.dw_all, weights(&t), DPAR_F64, DPAR_SUM, NULL) != DPAR_OK;
    for (k = 0; k < weights(&t); k++) {
        bad += w.dw_all[k] < w.dw[k] || w.dw_all[k] > w.dw[k];
    }
    bad += ON_DEVICE(dpar_spatial_free(plan)) != DPAR_OK;
    free_there(a.in[0]);
    free_there(a.out);
    free_there(a.out_gradient);
    textbook_free(&w);
    return bad;
}

/* Passes invalid norms on all ranks. */
static int bad_norms(dpar_comm *c)
{
    double one = 1.0, room[64], zero = 0.0;
    dpar_norm good, n;
    dpar_norm_arrays a;
    dpar_tile t;
    dpar_box box;
    int way, bad = 0;
    memset(&good, 0, sizeof good);
    memset(&box, 0, sizeof box);
    good.type = DPAR_F64;
    good.samples = 1;
    good.channels = 1;
    good.epsilon = 1e-5;
    box.dims = 1;
    box.hi[0] = 1;
    dpar_tile_init(&t, &one, &box, 1, 0);
    memset(&a, 0, sizeof a);
    a.x = a.y = a.dy = a.dx = &t;
    a.saved = room;
    a.scratch = room + 32;
    for (way = 0; way < 7; way++) {
        n = good;
        n.type = way == 0 ? DPAR_F16 : DPAR_F64;
        n.samples = way == 1 ? 0 : 1;
        n.channels = way == 2 ? 2 : 1; /* of a single plane */
        n.groups = way == 3 ? -1 : way == 4 ? 2 : 0;
        n.epsilon = way == 5 ? -1e-5 : way == 6 ? zero / zero : 1e-5;
        bad += dpar_norm_forward(c, &n, &a) != DPAR_E_ARG;
        bad += dpar_norm_backward(c, &n, &a) != DPAR_E_ARG;
    }
    bad += dpar_norm_forward(NULL, &good, &a) != DPAR_E_ARG ||
           dpar_norm_backward(NULL, &good, &a) != DPAR_E_ARG ||
           dpar_norm_forward(c, NULL, &a) != DPAR_E_ARG ||
           dpar_norm_forward(c, &good, NULL) != DPAR_E_ARG ||
           dpar_norm_backward(c, &good, NULL) != DPAR_E_ARG;
    a.y = NULL;
    c->why.text[0] = 0;
    bad += dpar_norm_forward(c, &good, &a) != DPAR_E_ARG ||
           strcmp(c->why.text, "dpar_norm_forward: norm, x, y, saved or scratch is NULL") != 0;
    a.y = &t;
    a.saved = NULL;
    c->why.text[0] = 0;
    bad += dpar_norm_forward(c, &good, &a) != DPAR_E_ARG || c->why.text[0] == 0;
    a.saved = room;
    a.scratch = NULL;
    c->why.text[0] = 0;
    bad +=
        dpar_norm_backward(c, &good, &a) != DPAR_E_ARG ||
        strcmp(c->why.text, "dpar_norm_backward: norm, x, dy, dx, saved or scratch is NULL") != 0;
    return bad;
}

/* The last rank has points, but no data for a norm: all ranks get the error. Breaks the
 * communicator. */
static int forgets_data(dpar_comm *c, void *arg)
{
    double one[1] = {1.0}, *room = fresh(8 + 8 * c->size);
    dpar_norm n;
    dpar_norm_arrays a;
    dpar_tile x, y;
    dpar_box box;
    int bad;
    (void)arg;
    memset(&n, 0, sizeof n);
    memset(&box, 0, sizeof box);
    n.type = DPAR_F64;
    n.samples = n.channels = 1;
    box.dims = 1;
    box.hi[0] = 1;
    dpar_tile_init(&x, c->rank == c->size - 1 ? NULL : one, &box, 1, 0);
    dpar_tile_init(&y, one, &box, 1, 0);
    memset(&a, 0, sizeof a);
    a.x = &x;
    a.y = &y;
    a.saved = room;
    a.scratch = room + 2;
    bad = dpar_norm_forward(c, &n, &a) == DPAR_OK ||
          strstr(c->why.text, "a tile of a norm has 1 points and no data") == NULL;
    free(room);
    return bad;
}

/* The last rank passes no inputs or, depending on arg, no output array: all ranks get the error.
 * Breaks the communicator. */
static int forgets_inputs(dpar_comm *c, void *arg)
{
    const int cut = arg != NULL;
    test_case t;
    dpar_spatial_plan *plan = NULL;
    dpar_spatial_arrays a;
    work w;
    int bad = 0;
    memset(&a, 0, sizeof a);
    if (plan_plain(c, &t, &w, &plan) == DPAR_OK) {
        a.in[0] = c->rank == c->size - 1 && !cut ? NULL : fresh(volume(&plan->in_box));
        a.out_box = plan->out_owned;
        a.out_box.hi[0] -= c->rank == c->size - 1 && cut;
        a.out = fresh(volume(&plan->out_owned));
        (void)dpar_spatial_forward(plan, &a); /* succeeds if nothing from the last rank is needed */
        bad = dpar_barrier(c, NULL) == DPAR_OK;
        (void)dpar_spatial_free(plan);
    } /* otherwise the last rank's error arrived before the end of this rank's init */
    bad |= strstr(c->why.text, cut ? "does not hold all" : "arrays of a layer") == NULL;
    free(a.in[0]);
    free(a.out);
    textbook_free(&w);
    return bad;
}

/* How much is run: the number of random rounds, and all layers of the sweeps or each every-th. */
typedef struct amount {
    int rounds, solids, whole, every, from;
} amount;

static int everything(dpar_comm *c, void *arg)
{
    const amount *much = (const amount *)arg;
    const double began = now();
    int64_t bad = 0;
    int n, wrong;
    sweep w;
    memset(&w, 0, sizeof w);
    w.c = c;
    w.whole = much->whole;
    w.every = much->every;
    w.from = much->from;
#ifdef DEVICE_MEMORY
    device_begin((size_t)1 << 24);
    c = device_take(c);
    w.c = c;
#endif
    if (c->rank == 0) { /* ranks may be threads */
        cases = 0;
    }
    bad += refusals(c);
    for (n = 37; n <= 700; n += 663) {
        bad += norm_case(c, 0, 64, n) + norm_case(c, 1, 64, n) + norm_case(c, 3, 64, n);
        bad += norm_case(c, 6, 64, n) + norm_case(c, 0, 2, n) + norm_case(c, 3, 1, n);
    }
    bad += lowest_case(c) + misuse(c) + without_arrays(c) + bad_norms(c);
    bad += sweep_lots(c, much->rounds);
    bad += sweep_solids(c, much->solids);
    sweep_neighbourhoods(&w);
    sweep_interpolations(&w);
    sweep_last_outputs(&w);
    sweep_convolutions(&w);
    bad += w.bad;
    wrong = all_right(c, bad, began);
#ifdef DEVICE_MEMORY
    CHECK(the_device.calls > 0);
    c = device_return(c);
    device_end();
#endif
    if (c->rank == 0) {
        printf("%ld layers, forward and backward\n", cases);
    }
    return wrong || (c->rank == 0 && cases == 0);
}

static amount much = {400, 60, 0, 1, 0};

static void also(int n, const dpar_world_desc *o)
{
    on_ranks(n, " without inputs", forgets_inputs, NULL, o);
    on_ranks(n, " without room for outputs", forgets_inputs, &much, o);
    on_ranks(n, " without data", forgets_data, NULL, o);
}

int main(int argc, char **argv)
{
#ifdef DEVICE_MEMORY
    much.rounds = 80;
    much.solids = 30;
    much.every = 19;
    (void)also;
    return rank_program(argc, argv, everything, &much, 4, 2, NULL);
#endif
#ifdef USE_MPI
    much.rounds = 60;
#else
    if (argc > 1 && strcmp(argv[1], "long") == 0) {
        much.rounds = 2000;
        much.solids = 600;
        much.whole = 1;
        much.every = argc > 3 ? atoi(argv[3]) : 1;
        much.from = argc > 4 ? atoi(argv[4]) : 0;
        if (much.every < 1 || much.from < 0 || much.from >= much.every) {
            return 2;
        }
        argv[1] = (char *)"threads";
    }
#endif
    return rank_program(argc, argv, everything, &much, 4, 4, also);
}
