/* SPDX-License-Identifier: MIT-0 */
/* unet - trains a U-Net on a field that is too large for one rank. The field is cut into tiles,
 * which are trained on together (times data parallelism), with the same results as on one rank.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. apps/unet.c -o unet
 *   ./unet --ranks 4 --steps 3
 *   ./unet --tiles 1x2 --dp 2 --size 96x48 --check
 *
 *   field 1440 x 720, 3 levels, 4 channels: 8256 weights
 *   2 ranks, engine shm: tiles 1x2, dp 1
 *   activations kept a rank: 0.144115 GB of own points, 0.144115 says the planner;
 *   0.000543 GB of halos and padding; gradients on their way: 0.153955 GB
 *   halos sent by a rank in a forward pass: 270.7 KB
 *   against one rank: outputs differ by 0.0e+00 of 1.1, gradients of the weights by 1.2e-09 of
 *   0.088, loss 0.130272110 and 0.130272110
 *   loss 1.0531 -> 0.9575 of it; best step 0.7332 s, 1.41e+06 cells/s
 *   rank 0: 5.138 GFLOP a step, 7.0 GFLOP/s; in convolutions (56 % of the time) 12.6 GFLOP/s;
 *   multiply-adds in registers alone: 28.6 GFLOP/s
 *
 * It learns one step of advection on a globe of 1440 x 720 cells (longitudes wrap around, and
 * beyond the poles the last row is repeated). The inputs are a tracer and two components of wind,
 * and the output is the change of the tracer. Each level has two 3 x 3 convolutions with GroupNorm
 * and a smooth gate. A convolution of stride 2 leads down, a transposed convolution up, and skips
 * connect both sides.
 *
 * dpar is used in `plan_unit`, `forward` and `backward`: a layer is described once, and its kernels
 * (below) use global indices and know nothing of tiles. They copy lines of a strip into the cache
 * and multiply 4 channels at a time in registers. All convolutions of both kinds, and their
 * gradients, are one of `down`, `up` and `weigh`. With --check, the outputs may differ from those
 * of one rank by the rounding of GroupNorm's mean and deviation (f64). Gradients also differ by the
 * order of sums: over pixels (up to 1024 at a time in f32, their sums in f64), and over the parts
 * of several ranks at the ends of tiles.
 *
 *   mpicc -O2 -DUSE_MPI -DDPAR_IMPLEMENTATION -I. apps/unet.c -o unet && mpirun -np 4 ./unet
 *
 * Exit code: 0 fine, 1 an error or a difference that should not be, 2 bad input (one sentence on
 * stderr). */
#include "dpar_cost.h"
#include "dpar_spatial.h"
#ifdef USE_MPI
#include "dpar_mpi.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char program[] = "unet";
static const char help[] =
    "unet: trains a small U-Net on tiles of a field\n"
    "\n"
    "  unet --help, -h\n"
    "  unet [--ranks N] [--tiles PxQ] [--dp D] [options]\n"
    "  mpirun -np N unet ...          built with -DUSE_MPI\n"
    "\n"
    "  --ranks N      ranks, 1 to 64 (default: tiles times dp, two tiles if none are given)\n"
    "  --tiles PxQ    parts of the rows (latitudes) and of the columns (longitudes)\n"
    "  --dp D         copies of the network, each with its own sample (default 1)\n"
    "  --size WxH     columns and rows, 8 to 8192 each (default 1440x720)\n"
    "  --channels C   of the first level, even, 2 to 256; twice as many each level (default 4)\n"
    "  --levels L     2 to 5 (default 3)\n"
    "  --steps N      of training, 1 to 100000 (default 5)\n"
    "  --rate R       learning rate of AdamW (default 0.003)\n"
    "  --check        first compare one step with that of one rank, which each rank computes\n"
    "                 alone: for small sizes\n"
    "Exit code: 0 fine, 1 an error, or --check found another result, 2 bad input\n"
    "\n"
    "examples\n"
    "  unet --size 42x22 --steps 2 --check\n"
    "  unet --tiles 2x2 --size 360x180\n"
    "  mpirun -np 8 unet --tiles 2x2 --dp 2\n";

#include "commands/options.h"
#include "apps/start.h"

enum { MOST_LEVELS = 5, MOST_UNITS = 6 * MOST_LEVELS - 3, INPUTS = 3 };

typedef struct request {
    int ranks, tiles[2], dp, size[2], channels, levels, steps, check; /* size: rows, columns */
    double rate;
} request;

/* ---- the network ----------------------------------------------------------------------------- */

enum { SAME, DOWN, UP, HEAD }; /* convolutions: 3 x 3, 3 x 3 of stride 2, 2 x 2 transposed, 1 x 1 */

/* A convolution, and the norm and gate after it. Its output is the input of up to two others, where
 * it begins at channel `shift`. */
typedef struct unit {
    int kind, in, out, norm; /* in, out: channels; norm 1: GroupNorm and the gate follow */
    int to[2], shift[2], goals;
    int64_t weights, affine; /* where its weights, scale and shift begin */
    struct net *net;
    dpar_spatial_plan *plan;
    dpar_spatial_arrays a; /* `in` is kept for backward, with halos, and so is `out` (see keeps) */
    double *saved;
} unit;

/* A line of inputs, and where the weights by which it is multiplied begin. */
typedef struct tap {
    const float *line;
    int64_t weight;
} tap;

typedef struct net {
    dpar_comm *c; /* the tiles of a sample */
    int samples, units;
    unit unit[MOST_UNITS];
    int64_t params;
    float *weight;
    double *gradient;              /* [params], then the loss, and the loss of outputs that are 0 */
    float *scratch;                /* holds the largest output */
    double *sums;                  /* scratch of the norms */
    float *packed, *fine, *coarse; /* memory of the kernels: weights, lines of both sides */
    tap *taps;
    double busy, flops;          /* seconds in kernels; floating-point operations of a step */
    double kept, own, transient; /* bytes of activations, of those without halos, of gradients */
    double halo;                 /* bytes sent in a forward pass */
} net;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The width of a unit's kernel. */
static int unit_kernel(const unit *u)
{
    switch (u->kind) {
    case UP: return 2;
    case HEAD: return 1;
    default: return 3;
    }
}

/* Appends a unit. Returns its number. */
static int add_unit(net *n, int kind, int in, int out, int norm)
{
    unit *u = &n->unit[n->units];
    int k;
    u->kind = kind;
    k = unit_kernel(u);
    u->in = in;
    u->out = out;
    u->norm = norm;
    u->net = n;
    u->weights = n->params;
    n->params += (int64_t)in * out * k * k;
    u->affine = n->params;
    n->params += norm ? 2 * out : 0;
    return n->units++;
}

/* Makes the output of one unit an input of another. */
static void join(net *n, int from, int to, int shift)
{
    unit *u = &n->unit[from];
    u->to[u->goals] = to;
    u->shift[u->goals++] = shift;
}

/* Appends the two convolutions of a level. Returns the number of the first. */
static int add_pair(net *n, int in, int out)
{
    const int first = add_unit(n, SAME, in, out, 1);
    join(n, first, add_unit(n, SAME, out, out, 1), 0);
    return first;
}

/* Builds the network: encode, down, encode, ..., up, decode, ..., head. */
static void build(net *n, const request *o)
{
    int level, skip[MOST_LEVELS], last = -1, wide;
    for (level = 0; level < o->levels; level++) {
        wide = o->channels << level;
        const int pair = add_pair(n, level == 0 ? INPUTS : wide / 2, wide);
        if (last >= 0) {
            join(n, last, pair, 0);
        }
        last = skip[level] = pair + 1;
        if (level < o->levels - 1) {
            const int down = add_unit(n, DOWN, wide, wide, 0);
            join(n, last, down, 0);
            last = down;
        }
    }
    for (level = o->levels - 2; level >= 0; level--) {
        int up, pair;
        wide = o->channels << level;
        up = add_unit(n, UP, 2 * wide, wide, 0);
        pair = add_pair(n, 2 * wide, wide);
        join(n, last, up, 0);
        join(n, up, pair, 0);
        join(n, skip[level], pair, wide);
        last = pair + 1;
    }
    join(n, last, add_unit(n, HEAD, o->channels, 1, 0), 0);
}

/* ---- kernels: serial loops over global indices ----------------------------------------------- */

/* The address of column x of row y of a plane. */
static float *row_of(const dpar_tile *t, int64_t plane, int64_t y, int64_t x)
{
    return (float *)t->data + (t->origin + plane * t->plane + y * t->stride[0] + x);
}

/* A vector of numbers. Every point is computed by the same operations in the same order, also at
 * ends of tiles, so that its bits do not depend on the tile. */
#if !defined(__GNUC__)
enum { LANES = 1 };
typedef float lanes;
#elif defined(__AVX512F__)
enum { LANES = 16 };
typedef float lanes __attribute__((vector_size(64)));
#elif defined(__AVX__)
enum { LANES = 8 };
typedef float lanes __attribute__((vector_size(32)));
#else
enum { LANES = 4 };
typedef float lanes __attribute__((vector_size(16)));
#endif

/* BLOCK points of GROUP channels are in registers at a time, and STRIP columns of ROWS rows in the
 * cache. */
enum { BLOCK = 2 * LANES, GROUP = 4, STRIP = 256, LINE = STRIP + BLOCK + 8, ROWS = 4 };

/* Both kinds of convolution: in each dim, weight t connects coarse point q with fine point q step -
 * pad + t. A convolution computes coarse points from fine ones, a transposed one fine points from
 * coarse ones, and their gradients go the other way. */
typedef struct stencil {
    int k, step, pad, coarse, fine; /* k: width; coarse, fine: channels of both sides */
    int64_t per_coarse, per_fine;   /* weights from one channel to the next */
    int64_t weights;                /* where the weights begin */
    net *n;
} stencil;

static stencil stencil_of(const dpar_spatial_call *c)
{
    const unit *u = (const unit *)c->user;
    const dpar_window *v = &c->layer->window[0];
    stencil s;
    s.k = (int)v->kernel;
    s.step = v->stride > 0 ? (int)v->stride : 1;
    s.pad = (int)v->pad_low;
    s.coarse = u->kind == UP ? u->in : u->out;
    s.fine = u->kind == UP ? u->out : u->in;
    s.per_coarse = (int64_t)s.k * s.k * (u->kind == UP ? 1 : u->in);
    s.per_fine = (int64_t)s.k * s.k * (u->kind == UP ? u->in : 1);
    s.weights = u->weights;
    s.n = u->net;
    return s;
}

/* A cache of rows of all channels of a tile: columns from `from` on, with those that are `phases`
 * apart next to each other, and 0 outside of the tile. */
typedef struct lines {
    float *data;
    int64_t from, end, row[ROWS + 8]; /* columns from `end` on are 0; row: the row in each slot */
    int slots, phases;
} lines;

static lines lines_of(float *data, int slots, int phases, int64_t from, int64_t end)
{
    lines l;
    int i;
    l.data = data;
    l.slots = slots;
    l.phases = phases;
    l.from = from;
    l.end = end;
    for (i = 0; i < slots; i++) {
        l.row[i] = INT64_MIN;
    }
    return l;
}

static float *line_of(const lines *l, int channel, int slot, int phase)
{
    return l->data + (((int64_t)channel * l->slots + slot) * l->phases + phase) * LINE;
}

static int64_t clipped(int64_t i, int64_t most)
{
    if (i < 0) {
        return 0;
    }
    return i < most ? i : most;
}

/* Copies LINE columns x, x + step, ... of a row. */
static void copy_line(float *to, const dpar_tile *t, int64_t plane, int64_t y, int64_t x,
                      int64_t step, int64_t end)
{
    const int64_t hi = t->box.hi[1] < end ? t->box.hi[1] : end;
    const int there = y >= t->box.lo[0] && y < t->box.hi[0] && hi > x;
    const int64_t first = there ? clipped((t->box.lo[1] - x + step - 1) / step, LINE) : LINE;
    const int64_t last = there ? clipped((hi - x + step - 1) / step, LINE) : LINE;
    int64_t i;
    memset(to, 0, (size_t)first * sizeof *to);
    if (last > first && step == 1) {
        memcpy(to + first, row_of(t, plane, y, x + first), (size_t)(last - first) * sizeof *to);
    } else if (last > first) {
        const float *in = row_of(t, plane, y, x);
        for (i = first; i < last; i++) {
            to[i] = in[i * step];
        }
    }
    i = last > first ? last : first;
    memset(to + i, 0, (size_t)(LINE - i) * sizeof *to);
}

/* The slot of row y, which is copied first if it is not cached. */
static int fetch(lines *l, const dpar_tile *t, int64_t plane, int channels, int64_t y)
{
    const int slot = (int)((y % l->slots + l->slots) % l->slots);
    int c, f;
    if (l->row[slot] != y) {
        l->row[slot] = y;
        for (c = 0; c < channels; c++) {
            for (f = 0; f < l->phases; f++) {
                copy_line(line_of(l, c, slot, f), t, plane + c, y, l->from + f, l->phases, l->end);
            }
        }
    }
    return slot;
}

/* Packs the weights for GROUP output channels at a time, with 0 beyond the last one. */
static void pack(const stencil *s, int to, int64_t per_to, int from, int64_t per_from)
{
    const float *w = s->n->weight + s->weights;
    float *p = s->n->packed;
    int g, c, t, j;
    for (g = 0; g < to; g += GROUP) {
        for (c = 0; c < from; c++) {
            for (t = 0; t < s->k * s->k; t++) {
                for (j = g; j < g + GROUP; j++) {
                    *p++ = j < to ? w[j * per_to + c * per_from + t] : 0.0f;
                }
            }
        }
    }
}

/* Computes GROUP lines of sums of `count` lines times their weights. */
static void multiply(float *to, const tap *t, int count, const float *weights, int64_t width)
{
    int64_t x;
    int i;
    for (x = 0; x < width; x += BLOCK) {
        lanes a0, a1, b0, b1, c0, c1, d0, d1, u, v;
        memset(&a0, 0, sizeof a0);
        a1 = b0 = b1 = c0 = c1 = d0 = d1 = a0;
        for (i = 0; i < count; i++) {
            const float *w = weights + t[i].weight;
            memcpy(&u, t[i].line + x, sizeof u);
            memcpy(&v, t[i].line + x + LANES, sizeof v);
            a0 += w[0] * u;
            a1 += w[0] * v;
            b0 += w[1] * u;
            b1 += w[1] * v;
            c0 += w[2] * u;
            c1 += w[2] * v;
            d0 += w[3] * u;
            d1 += w[3] * v;
        }
        memcpy(to + x, &a0, sizeof u);
        memcpy(to + x + LANES, &a1, sizeof u);
        memcpy(to + LINE + x, &b0, sizeof u);
        memcpy(to + LINE + x + LANES, &b1, sizeof u);
        memcpy(to + 2 * LINE + x, &c0, sizeof u);
        memcpy(to + 2 * LINE + x + LANES, &c1, sizeof u);
        memcpy(to + 3 * LINE + x, &d0, sizeof u);
        memcpy(to + 3 * LINE + x + LANES, &d1, sizeof u);
    }
}

/* Computes columns x, x + step, ... of row y of all channels, and stores them or adds them. */
static void produce(const stencil *s, int count, const dpar_tile *to, int64_t plane, int channels,
                    int per_group, int64_t y, int64_t x, int step, int64_t width, int add)
{
    float sums[GROUP * LINE];
    int64_t i;
    int g, j;
    for (g = 0; g < channels; g += GROUP) {
        multiply(sums, s->n->taps, count, s->n->packed + (int64_t)g * per_group, width);
        for (j = 0; j < GROUP && g + j < channels; j++) {
            float *out = row_of(to, plane + g + j, y, x);
            const float *in = sums + j * LINE;
            for (i = 0; i < width; i++) {
                out[i * step] = add ? out[i * step] + in[i] : in[i];
            }
        }
    }
}

/* Computes coarse points from fine ones for one sample, whose planes begin at `source` and `goal`.
 */
static void down(const stencil *s, const dpar_tile *from, int64_t source, const dpar_tile *to,
                 int64_t goal, int add)
{
    const dpar_box *b = &to->box;
    int64_t x, y;
    int slot[8], c, ky, kx;
    pack(s, s->coarse, s->per_coarse, s->fine, s->per_fine);
    for (x = b->lo[1]; x < b->hi[1]; x += STRIP) {
        lines l = lines_of(s->n->fine, s->k, s->step, x * s->step - s->pad, INT64_MAX);
        for (y = b->lo[0]; y < b->hi[0]; y++) {
            tap *t = s->n->taps;
            for (ky = 0; ky < s->k; ky++) {
                slot[ky] = fetch(&l, from, source, s->fine, y * s->step - s->pad + ky);
            }
            for (c = 0; c < s->fine; c++) {
                for (ky = 0; ky < s->k; ky++) {
                    for (kx = 0; kx < s->k; kx++) {
                        t->line = line_of(&l, c, slot[ky], kx % s->step) + kx / s->step;
                        t->weight = (int64_t)GROUP * ((c * s->k + ky) * s->k + kx);
                        t++;
                    }
                }
            }
            produce(s, (int)(t - s->n->taps), to, goal, s->coarse, s->fine * s->k * s->k, y, x, 1,
                    clipped(b->hi[1] - x, STRIP), add);
        }
    }
}

/* Lists the lines and weights of the fine points of one row and one phase. Weight `phase` connects
 * the first of them with column `at` of the coarse lines. Returns their number. */
static int meet(const stencil *s, const lines *l, const int *slot, int row_phase, int phase,
                int64_t at)
{
    tap *t = s->n->taps;
    int c, ky, kx;
    for (c = 0; c < s->coarse; c++) {
        for (ky = row_phase; ky < s->k; ky += s->step) {
            for (kx = phase; kx < s->k; kx += s->step) {
                t->line = line_of(l, c, slot[ky], 0) + (at - kx / s->step);
                t->weight = (int64_t)GROUP * ((c * s->k + ky) * s->k + kx);
                t++;
            }
        }
    }
    return (int)(t - s->n->taps);
}

/* Computes fine points from coarse ones. */
static void up(const stencil *s, const dpar_tile *from, int64_t source, const dpar_tile *to,
               int64_t goal, int add)
{
    const dpar_box *b = &to->box;
    int64_t x, y;
    int slot[8], ky, f;
    pack(s, s->fine, s->per_fine, s->coarse, s->per_coarse);
    for (x = b->lo[1]; x < b->hi[1]; x += (int64_t)STRIP * s->step) {
        const int64_t begin = x + s->pad, strip = (int64_t)STRIP * s->step;
        const int64_t end = begin + clipped(b->hi[1] - x, strip);
        lines l =
            lines_of(s->n->coarse, s->k, 1, begin / s->step - (s->k - 1) / s->step, INT64_MAX);
        for (y = b->lo[0]; y < b->hi[0]; y++) {
            const int64_t row = y + s->pad;
            for (ky = (int)(row % s->step); ky < s->k; ky += s->step) {
                slot[ky] = fetch(&l, from, source, s->coarse, (row - ky) / s->step);
            }
            for (f = 0; f < s->step; f++) {
                const int64_t first = (begin - f + s->step - 1) / s->step;
                const int64_t last = (end - f + s->step - 1) / s->step;
                const int count = meet(s, &l, slot, (int)(row % s->step), f, first - l.from);
                produce(s, count, to, goal, s->fine, s->coarse * s->k * s->k, y,
                        first * s->step + f - s->pad, s->step, last - first, add);
            }
        }
    }
}

static double sum_of(const lanes *v)
{
    float a[LANES];
    int half, i;
    memcpy(a, v, sizeof a);
    for (half = LANES / 2; half > 0; half /= 2) {
        for (i = 0; i < half; i++) {
            a[i] += a[i + half];
        }
    }
    return (double)a[0];
}

/* Lines of several rows: of GROUP coarse channels, and of the fine points of 2 weights. */
typedef struct meeting {
    const float *coarse[ROWS][GROUP], *fine[ROWS][2];
} meeting;

/* Computes sum[j][i], the sum of products of coarse channel j with the fine points of weight i. */
static void products(const meeting *m, int rows, int64_t width, double sum[GROUP][2])
{
    lanes a0, a1, b0, b1, c0, c1, d0, d1, u, v, w;
    int64_t x;
    int r;
    memset(&a0, 0, sizeof a0);
    a1 = b0 = b1 = c0 = c1 = d0 = d1 = a0;
    for (r = 0; r < rows; r++) {
        const float *const *y = m->coarse[r], *const *in = m->fine[r];
        for (x = 0; x < width; x += LANES) {
            memcpy(&u, in[0] + x, sizeof u);
            memcpy(&v, in[1] + x, sizeof v);
            memcpy(&w, y[0] + x, sizeof w);
            a0 += w * u;
            a1 += w * v;
            memcpy(&w, y[1] + x, sizeof w);
            b0 += w * u;
            b1 += w * v;
            memcpy(&w, y[2] + x, sizeof w);
            c0 += w * u;
            c1 += w * v;
            memcpy(&w, y[3] + x, sizeof w);
            d0 += w * u;
            d1 += w * v;
        }
    }
    sum[0][0] = sum_of(&a0);
    sum[0][1] = sum_of(&a1);
    sum[1][0] = sum_of(&b0);
    sum[1][1] = sum_of(&b1);
    sum[2][0] = sum_of(&c0);
    sum[2][1] = sum_of(&c1);
    sum[3][0] = sum_of(&d0);
    sum[3][1] = sum_of(&d1);
}

/* Adds the contribution of `rows` coarse rows from y on to the gradients of all weights. */
static void weigh_rows(const stencil *s, const lines *coarse, const lines *fine, int64_t y,
                       int rows, int64_t width)
{
    const int taps = s->fine * s->k * s->k;
    double *gradient = s->n->gradient + s->weights, sum[GROUP][2];
    meeting m;
    int g, t, i, j, r;
    for (g = 0; g < s->coarse; g += GROUP) {
        for (t = 0; t < taps; t += 2) {
            for (r = 0; r < rows; r++) {
                for (j = 0; j < GROUP; j++) { /* the last channel stands for missing ones */
                    m.coarse[r][j] = line_of(coarse, g + j < s->coarse ? g + j : s->coarse - 1,
                                             (int)((y + r) % coarse->slots), 0);
                }
                for (i = 0; i < 2; i++) {
                    const int at = t + i < taps ? t + i : t, kx = at % s->k;
                    const int64_t row = (y + r) * s->step - s->pad + at / s->k % s->k;
                    m.fine[r][i] = line_of(fine, at / (s->k * s->k),
                                           (int)((row + fine->slots) % fine->slots), kx % s->step) +
                                   kx / s->step;
                }
            }
            products(&m, rows, width, sum);
            for (j = 0; j < GROUP && g + j < s->coarse; j++) {
                for (i = 0; i < 2 && t + i < taps; i++) {
                    gradient[(g + j) * s->per_coarse + (t + i) / (s->k * s->k) * s->per_fine +
                             (t + i) % (s->k * s->k)] += sum[j][i];
                }
            }
        }
    }
}

/* Computes the gradients of the weights from both sides of a stencil: sums in f32 over a few rows
 * of a strip, which are added in f64. */
static void weigh(const stencil *s, const dpar_tile *coarse, int64_t coarse_plane,
                  const dpar_tile *fine, int64_t fine_plane)
{
    const dpar_box *b = &coarse->box;
    int64_t x, y, r, row;
    for (x = b->lo[1]; x < b->hi[1]; x += STRIP) {
        lines near = lines_of(s->n->coarse, ROWS, 1, x, x + STRIP);
        lines far = lines_of(s->n->fine, s->k + (ROWS - 1) * s->step, s->step, x * s->step - s->pad,
                             INT64_MAX);
        for (y = b->lo[0]; y < b->hi[0]; y += ROWS) {
            const int64_t rows = clipped(b->hi[0] - y, ROWS);
            for (r = y; r < y + rows; r++) {
                (void)fetch(&near, coarse, coarse_plane, s->coarse, r);
                for (row = r * s->step - s->pad; row < r * s->step - s->pad + s->k; row++) {
                    (void)fetch(&far, fine, fine_plane, s->fine, row);
                }
            }
            weigh_rows(s, &near, &far, y, (int)rows, clipped(b->hi[1] - x, STRIP));
        }
    }
}

enum { FORWARD, INPUTS_OF, WEIGHTS_OF }; /* the gradients of inputs and of weights */

static void kernel(const dpar_spatial_call *c, int what)
{
    const unit *u = (const unit *)c->user;
    const stencil s = stencil_of(c);
    const double began = now();
    int i;
    for (i = 0; i < u->net->samples; i++) {
        const int64_t in = (int64_t)i * u->in, out = (int64_t)i * u->out;
        if (what == WEIGHTS_OF && u->kind == UP) {
            weigh(&s, &c->in[0], in, &c->out_gradient, out);
        } else if (what == WEIGHTS_OF) {
            weigh(&s, &c->out_gradient, out, &c->in[0], in);
        } else if (what == FORWARD && u->kind == UP) {
            up(&s, &c->in[0], in, &c->out, out, 0);
        } else if (what == FORWARD) {
            down(&s, &c->in[0], in, &c->out, out, 0);
        } else if (u->kind == UP) {
            down(&s, &c->out_gradient, out, &c->in_gradient[0], in, 1);
        } else {
            up(&s, &c->out_gradient, out, &c->in_gradient[0], in, 1);
        }
    }
    u->net->busy += now() - began;
}

static void kernel_forward(const dpar_spatial_call *c)
{
    kernel(c, FORWARD);
}

static void kernel_input_gradient(const dpar_spatial_call *c)
{
    kernel(c, INPUTS_OF);
}

static void kernel_weight_gradient(const dpar_spatial_call *c)
{
    kernel(c, WEIGHTS_OF);
}

/* GFLOP/s of multiply-adds in registers: the peak of this core, as the kernels are compiled. */
static double roof(void)
{
    lanes a, b, c, d, e, f, g, h, w, v;
    float sum[LANES];
    double best = 0.0;
    int i, round;
    memset(&w, 0, sizeof w);
    w += 0.5f;
    for (round = 0; round < 9; round++) {
        const double began = now(), flops = 2.0 * 8 * LANES * 1e6;
        double rate;
        v = w * (float)(1 + round);
        a = b = c = d = e = f = g = h = v;
        for (i = 0; i < 1000000; i++) {
            a = a * w + v;
            b = b * w + v;
            c = c * w + v;
            d = d * w + v;
            e = e * w + v;
            f = f * w + v;
            g = g * w + v;
            h = h * w + v;
        }
        a += b + c + d + e + f + g + h;
        memcpy(sum, &a, sizeof sum);
        rate = sum[0] > 0.0f ? flops / (now() - began) : 0.0; /* always true; uses the result */
        best = rate > best ? rate : best;
    }
    return best / 1e9;
}

/* x times a sigmoid without exp: about x for large x, and about 0 for very negative x. */
static float gate(float x)
{
    const float a = x < 0.0f ? -x : x;
    return 0.5f * x * (1.0f + x / (1.0f + a));
}

static float gate_slope(float x)
{
    const float a = x < 0.0f ? -x : x, r = 1.0f / (1.0f + a);
    return 0.5f * (1.0f + x * r * (1.0f + r));
}

/* ---- planning -------------------------------------------------------------------------------- */

/* True, after a message, if st is an error. */
static int failed(const dpar_comm *c, dpar_status st, const char *what, const dpar_why *why)
{
    if (st != DPAR_OK) {
        fprintf(stderr, "unet: rank %d: %s failed: %s: %s\n", (int)c->rank, what,
                dpar_status_text(st), why != NULL ? why->text : c->why.text);
    }
    return st != DPAR_OK;
}

/* True, after a message, if memory is missing. */
static int lacks(const dpar_comm *c, int missing, const char *what)
{
    if (missing) {
        fprintf(stderr, "unet: rank %d: no memory for %s\n", (int)c->rank, what);
    }
    return missing;
}

/* Describes a unit for dpar_spatial_make. */

static void describe(unit *u, const dpar_layout *in, const dpar_layout *out, dpar_spatial_desc *s)
{
    const int k = unit_kernel(u);
    int d;
    memset(s, 0, sizeof *s);
    s->in = *in;
    s->type = DPAR_F32;
    s->planes = (int64_t)u->net->samples * u->in;
    s->out_planes = (int64_t)u->net->samples * u->out;
    s->user = u;
    for (d = 0; d < 2; d++) {
        dpar_window *v = &s->window[d];
        v->kernel = k;
        v->stride = u->kind == DOWN || u->kind == UP ? 2 : 1;
        v->pad_low = v->pad_high = k == 3 ? 1 : 0;
        s->padding[d] = d == 0 ? DPAR_SPATIAL_PAD_REPLICATE : DPAR_SPATIAL_PAD_WRAP;
        if (u->kind == UP) { /* as large as the skip that it joins: an odd row is cut off */
            s->padding[d] = DPAR_SPATIAL_PAD_ZERO;
            v->pad_high = 2 * in->extent[d] - out->extent[d];
        }
    }
    s->kind = u->kind == UP ? DPAR_SPATIAL_TRANSPOSED : DPAR_SPATIAL_CONVOLUTION;
    s->forward = kernel_forward;
    s->input_gradient = kernel_input_gradient;
    s->weight_gradient = kernel_weight_gradient;
    if (u == u->net->unit) {
        s->input_gradient = NULL; /* the gradient of the data is not needed */
    }
}

static int64_t points(const dpar_box *b)
{
    return b->dims > 0 ? dpar_box_volume(b) : 0;
}

/* Allocates zeroed memory, in which other ranks read halos directly. Returns 1 after a message. */
static int take(net *n, int64_t floats, void **at)
{
    return failed(n->c, dpar_comm_alloc(n->c, floats * 4 + 4, at), "allocating an array", NULL);
}

/* True if a unit's output is kept: the backward of a norm and the loss read it. Others are passed
 * on at once. */
static int keeps(const unit *u)
{
    return u->norm || u->kind == HEAD;
}

/* Plans a unit with inputs of the layout `in` and outputs of the layout `out`. Returns 1 after a
 * message. */
static int plan_unit(unit *u, const dpar_layout *in, const dpar_layout *out)
{
    net *n = u->net;
    dpar_spatial_desc s;
    dpar_why why;
    int64_t x, y;
    describe(u, in, out, &s);
    u->saved = (double *)calloc((size_t)(n->samples * u->out) * 2 + 2, sizeof *u->saved);
    if (lacks(n->c, u->saved == NULL, "the means of a norm") ||
        failed(n->c, dpar_spatial_make(n->c, &s, &u->plan, &why), "planning a layer", &why)) {
        return 1;
    }
    x = points(&u->plan->in_box) * s.planes;
    y = points(&u->plan->out_owned) * s.out_planes;
    n->kept += 4.0 * (double)(x + (keeps(u) ? y : 0));
    n->own += 4.0 * (double)(points(&u->plan->in_owned) * s.planes + (keeps(u) ? y : 0));
    n->transient += 4.0 * (double)((s.input_gradient != NULL ? x : 0) + y);
    n->halo += (double)u->plan->halo_bytes;
    n->flops += (s.input_gradient != NULL ? 6.0 : 4.0) * (double)y * u->in *
                (u->kind == UP ? 1 : unit_kernel(u) * unit_kernel(u));
    return take(n, x, &u->a.in[0]) || (keeps(u) && take(n, y, &u->a.out)) ||
           take(n, y, &u->a.out_gradient) ||
           (s.input_gradient != NULL && take(n, x, &u->a.in_gradient[0]));
}

/* Distributes the field of each level over the ranks. */
static int lay_out(const request *o, const dpar_mesh *mesh, dpar_layout *level)
{
    int64_t extent[2];
    const dpar_placement cut[2] = {dpar_shard_by(0, DPAR_SPLIT_EVEN, 0),
                                   dpar_shard_by(1, DPAR_SPLIT_EVEN, 0)};
    dpar_why why;
    int l;
    extent[0] = o->size[0];
    extent[1] = o->size[1];
    for (l = 0; l < o->levels; l++) {
        if (dpar_layout_init(&level[l], mesh, 2, extent, cut, &why) != DPAR_OK) {
            fprintf(stderr, "unet: %s\n", why.text);
            return 1;
        }
        extent[0] = (extent[0] + 1) / 2;
        extent[1] = (extent[1] + 1) / 2;
    }
    return 0;
}

/* A pseudo-random number from -1 to 1. */
static double lot(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*state >> 11) / 9007199254740992.0 * 2.0 - 1.0;
}

static double root(double x)
{
    double r = x > 1.0 ? x : 1.0;
    int i;
    for (i = 0; i < 60; i++) {
        r = 0.5 * (r + x / r);
    }
    return r;
}

/* Sets the first weights, which are the same on all ranks. */
static void draw_weights(net *n)
{
    uint64_t state = 42;
    int u;
    int64_t i;
    for (u = 0; u < n->units; u++) {
        const unit *v = &n->unit[u];
        const int k = unit_kernel(v);
        const double size = root(3.0 / (v->kind == UP ? v->in : v->in * k * k));
        for (i = v->weights; i < v->affine; i++) {
            n->weight[i] = (float)(size * lot(&state) * (v->kind == HEAD ? 0.1 : 1.0));
        }
        for (i = 0; i < (v->norm ? v->out : 0); i++) {
            n->weight[v->affine + i] = 1.0f;
        }
    }
}

static dpar_norm norm_of(const unit *u)
{
    dpar_norm g;
    memset(&g, 0, sizeof g);
    g.type = DPAR_F32;
    g.samples = u->net->samples;
    g.channels = u->out;
    g.groups = u->out / 2;
    g.epsilon = 1e-5;
    g.scale = u->net->weight + u->affine;
    g.shift = u->net->weight + u->affine + u->out;
    return g;
}

static size_t larger_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Allocates the memory of the kernels. Returns 1 without memory. */
static int plan_kernels(net *n)
{
    size_t packed = 1, fine = 1, coarse = 1, taps = 1;
    int u;
    for (u = 0; u < n->units; u++) {
        const unit *v = &n->unit[u];
        const size_t k = (size_t)unit_kernel(v), step = v->kind == DOWN || v->kind == UP ? 2 : 1;
        const size_t most = (size_t)(v->in > v->out ? v->in : v->out);
        const size_t rows = (k + (ROWS - 1) * step) * step;
        packed = larger_size(packed, (most + GROUP) * most * k * k);
        fine = larger_size(fine, most * rows * LINE);
        coarse = larger_size(coarse, most * (k > ROWS ? k : ROWS) * LINE);
        taps = larger_size(taps, most * k * k);
    }
    n->packed = (float *)malloc(packed * sizeof *n->packed);
    n->fine = (float *)malloc(fine * sizeof *n->fine);
    n->coarse = (float *)malloc(coarse * sizeof *n->coarse);
    n->taps = (tap *)malloc(taps * sizeof *n->taps);
    return n->packed == NULL || n->fine == NULL || n->coarse == NULL || n->taps == NULL;
}

/* Plans a network on the tiles of `mesh`, whose ranks are those of c. Returns 1 after a message. */
static int plan_net(net *n, dpar_comm *c, const dpar_mesh *mesh, int samples, const request *o)
{
    dpar_layout level[MOST_LEVELS];
    int64_t most = 1, sums = 1;
    int u, l = 0;
    memset(n, 0, sizeof *n);
    n->c = c;
    n->samples = samples;
    build(n, o);
    n->weight = (float *)calloc((size_t)n->params, sizeof *n->weight);
    n->gradient = (double *)calloc((size_t)n->params + 2, sizeof *n->gradient);
    if (lacks(c, n->weight == NULL || n->gradient == NULL, "the weights") ||
        lay_out(o, mesh, level)) {
        return 1;
    }
    draw_weights(n);
    for (u = 0; u < n->units; u++) {
        const int next = l + (n->unit[u].kind == DOWN) - (n->unit[u].kind == UP);
        const dpar_norm g = norm_of(&n->unit[u]);
        if (plan_unit(&n->unit[u], &level[l], &level[next])) {
            return 1;
        }
        l = next;
        if (points(&n->unit[u].plan->out_owned) * samples * n->unit[u].out > most) {
            most = points(&n->unit[u].plan->out_owned) * samples * n->unit[u].out;
        }
        if (n->unit[u].norm) {
            int64_t scratch;
            dpar_norm_sizes(c, &g, NULL, &scratch);
            sums = scratch > sums ? scratch : sums;
        }
    }
    n->scratch = (float *)calloc((size_t)most, sizeof *n->scratch);
    n->sums = (double *)calloc((size_t)sums, sizeof *n->sums);
    for (u = 0; u < n->units; u++) {
        if (!keeps(&n->unit[u])) {
            n->unit[u].a.out = n->scratch;
        }
    }
    return lacks(c, n->scratch == NULL || n->sums == NULL || plan_kernels(n), "the kernels");
}

static int drop_net(net *n)
{
    int u, bad = 0;
    for (u = 0; u < n->units; u++) {
        unit *v = &n->unit[u];
        bad |= failed(n->c, dpar_spatial_free(v->plan), "freeing a layer", NULL);
        dpar_comm_release(n->c, v->a.in[0]);
        dpar_comm_release(n->c, v->a.in_gradient[0]);
        dpar_comm_release(n->c, keeps(v) ? v->a.out : NULL);
        dpar_comm_release(n->c, v->a.out_gradient);
        free(v->saved);
    }
    free(n->weight);
    free(n->gradient);
    free(n->scratch);
    free(n->sums);
    free(n->packed);
    free(n->fine);
    free(n->coarse);
    free(n->taps);
    return bad;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void own_tile(const unit *u, void *data, dpar_tile *t)
{
    dpar_tile_init(t, data, &u->plan->out_owned, (int64_t)u->net->samples * u->out, 0);
}

/* Copies between the output of a unit and the input of one that it leads to. what = 0 stores the
 * output there, 1 fetches its gradient from there, and 2 adds the gradient. */
static void pass(const unit *u, int goal, float *mine, int what)
{
    const unit *v = &u->net->unit[u->to[goal]];
    const dpar_box *b = &u->plan->out_owned;
    dpar_tile from, to;
    int s, ch;
    int64_t y, x;
    if (points(b) == 0) {
        return;
    }
    own_tile(u, mine, &from);
    dpar_tile_init(&to, what == 0 ? v->a.in[0] : v->a.in_gradient[0], &v->plan->in_box,
                   (int64_t)u->net->samples * v->in, 0);
    for (s = 0; s < u->net->samples; s++) {
        for (ch = 0; ch < u->out; ch++) {
            for (y = b->lo[0]; y < b->hi[0]; y++) {
                float *a = row_of(&from, s * u->out + ch, y, b->lo[1]);
                float *z = row_of(&to, s * v->in + u->shift[goal] + ch, y, b->lo[1]);
                const int64_t count = b->hi[1] - b->lo[1];
                if (what < 2) {
                    memcpy(what == 0 ? z : a, what == 0 ? a : z, (size_t)count * sizeof *a);
                }
                for (x = 0; x < count && what == 2; x++) {
                    a[x] += z[x];
                }
            }
        }
    }
}

/* The forward pass. Returns 1 after a message. */
static int forward(net *n)
{
    int u, g;
    for (u = 0; u < n->units; u++) {
        unit *v = &n->unit[u];
        const int64_t count = points(&v->plan->out_owned) * n->samples * v->out;
        float *out = (float *)v->a.out;
        int64_t i;
        if (failed(n->c, dpar_spatial_forward(v->plan, &v->a), "forward", NULL)) {
            return 1;
        }
        if (v->norm) {
            const dpar_norm norm = norm_of(v);
            dpar_norm_arrays a = {0};
            dpar_tile x, y;
            own_tile(v, v->a.out, &x);
            own_tile(v, n->scratch, &y);
            a.x = &x;
            a.y = &y;
            a.saved = v->saved;
            a.scratch = n->sums;
            if (failed(n->c, dpar_norm_forward(n->c, &norm, &a), "norm", NULL)) {
                return 1;
            }
            out = n->scratch;
            for (i = 0; i < count; i++) {
                out[i] = gate(out[i]);
            }
        }
        for (g = 0; g < v->goals; g++) {
            pass(v, g, out, 0);
        }
    }
    return 0;
}

/* Backward of the gate and the norm, with out_gradient in place. */
static int backward_norm(unit *v)
{
    net *n = v->net;
    const dpar_norm norm = norm_of(v);
    const int64_t each = points(&v->plan->out_owned);
    const float *x = (const float *)v->a.out;
    float *g = (float *)v->a.out_gradient;
    dpar_norm_arrays a = {0};
    dpar_tile tx, tg;
    int p;
    int64_t i;
    for (p = 0; p < n->samples * v->out; p++) {
        const int ch = p % v->out;
        const double *s = &v->saved[2 * (p / v->out * norm.groups + ch / 2)];
        const double scale = s[1] * (double)n->weight[v->affine + ch];
        const double shift = (double)n->weight[v->affine + v->out + ch];
        for (i = p * each; i < (p + 1) * each; i++) {
            g[i] *= gate_slope((float)(scale * ((double)x[i] - s[0]) + shift));
        }
    }
    own_tile(v, v->a.out, &tx);
    own_tile(v, v->a.out_gradient, &tg);
    a.x = &tx;
    a.dy = a.dx = &tg;
    a.saved = v->saved;
    a.scale_gradient = n->gradient + v->affine;
    a.shift_gradient = n->gradient + v->affine + v->out;
    a.scratch = n->sums;
    return failed(n->c, dpar_norm_backward(n->c, &norm, &a), "norm", NULL);
}

static int backward(net *n)
{
    int u, g;
    for (u = n->units - 1; u >= 0; u--) {
        unit *v = &n->unit[u];
        for (g = 0; g < v->goals; g++) {
            pass(v, g, (float *)v->a.out_gradient, 1 + g);
        }
        if ((v->norm && backward_norm(v)) ||
            failed(n->c, dpar_spatial_backward(v->plan, &v->a), "backward", NULL)) {
            return 1;
        }
    }
    return 0;
}

/* ---- the data -------------------------------------------------------------------------------- */

static const double pi = 3.14159265358979323846;

/* The sine to about 1e-12, with the same bits on every machine. */
static double sine(double x)
{
    static const double term[8] = {
        -1.0 / 6.0,        1.0 / 120.0,        -1.0 / 5040.0,          1.0 / 362880.0,
        -1.0 / 39916800.0, 1.0 / 6227020800.0, -1.0 / 1307674368000.0, 1.0 / 355687428096000.0};
    double turns = x * (0.5 / pi) + 0.5, sum = 0.0, square;
    int i;
    turns -= (double)(int64_t)turns;
    turns += turns < 0.0 ? 1.0 : 0.0;
    x = (turns - 0.5) * 2.0 * pi;
    if (x > pi / 2.0) {
        x = pi - x;
    } else if (x < -pi / 2.0) {
        x = -pi - x;
    }
    square = x * x;
    for (i = 7; i >= 0; i--) {
        sum = (sum + term[i]) * square;
    }
    return x + x * sum;
}

enum { WAVES = 4 };
typedef struct weather {
    double size[WAVES], phase[WAVES], turn;
    int east[WAVES], north[WAVES];
} weather;

static weather weather_of(int64_t sample)
{
    uint64_t state = (uint64_t)sample * 7919u + 17u;
    weather w;
    int k;
    (void)lot(&state);
    for (k = 0; k < WAVES; k++) {
        w.size[k] = 0.5 + 0.25 * lot(&state);
        w.phase[k] = pi * lot(&state);
        w.east[k] = 1 + k * 2;
        w.north[k] = (int)(3.0 + 2.9 * lot(&state));
    }
    w.turn = lot(&state) * pi;
    return w;
}

static double tracer(const weather *w, double lon, double lat)
{
    double q = 0.0;
    int k;
    for (k = 0; k < WAVES; k++) {
        q += w->size[k] * sine(w->east[k] * lon + w->north[k] * lat + w->phase[k]);
    }
    return q;
}

static void wind(const weather *w, double lon, double lat, double *east, double *north)
{
    *east = 0.6 + 0.4 * sine(2.0 * lat + w->turn);
    *north = 0.4 * sine(lon + w->turn);
}

/* Sets the inputs of a point: the tracer and its wind. Returns the target, the change of the tracer
 * in a step of 1/4 radian at wind 1. */
static double look(const weather *w, const request *o, int64_t y, int64_t x, float *in)
{
    const double lon = 2.0 * pi * ((double)x + 0.5) / o->size[1];
    const double lat = pi * ((double)y + 0.5) / o->size[0];
    double east, north;
    wind(w, lon, lat, &east, &north);
    in[0] = (float)tracer(w, lon, lat);
    in[1] = (float)east;
    in[2] = (float)north;
    return tracer(w, lon - 0.25 * east, lat - 0.25 * north) - (double)in[0];
}

/* Sets the inputs of the rank's tile, and the target. */
static void load(net *n, const request *o, int64_t first, float *target)
{
    unit *u = &n->unit[0];
    const dpar_box *own = &u->plan->in_owned;
    dpar_tile in;
    int s, k;
    int64_t y, x, i = 0;
    dpar_tile_init(&in, u->a.in[0], &u->plan->in_box, (int64_t)n->samples * INPUTS, 0);
    for (s = 0; s < n->samples && own->dims > 0; s++) {
        const weather w = weather_of(first + s);
        for (y = own->lo[0]; y < own->hi[0]; y++) {
            for (x = own->lo[1]; x < own->hi[1]; x++) {
                float v[INPUTS];
                target[i++] = (float)look(&w, o, y, x, v);
                for (k = 0; k < INPUTS; k++) {
                    *row_of(&in, s * INPUTS + k, y, x) = v[k];
                }
            }
        }
    }
}

/* Computes the loss, half the mean square of the error, behind the gradients, and its derivative.
 */
static void judge(net *n, const request *o, const float *target)
{
    unit *head = &n->unit[n->units - 1];
    const int64_t count = points(&head->plan->out_owned) * n->samples;
    const float *out = (const float *)head->a.out;
    float *g = (float *)head->a.out_gradient;
    const double all = (double)o->size[0] * o->size[1] * o->dp;
    int64_t i;
    for (i = 0; i < count; i++) {
        const double e = (double)out[i] - (double)target[i];
        n->gradient[n->params] += 0.5 * e * e / all;
        n->gradient[n->params + 1] += 0.5 * (double)target[i] * (double)target[i] / all;
        g[i] = (float)e; /* divided at the end, with the weights' */
    }
}

/* Computes loss and gradients of the samples [first, first + samples) on this rank's tile. */
static int one_pass(net *n, const request *o, int64_t first, float *target)
{
    const double all = (double)o->size[0] * o->size[1] * o->dp;
    int64_t i;
    memset(n->gradient, 0, (size_t)(n->params + 2) * sizeof *n->gradient);
    load(n, o, first, target);
    if (forward(n)) {
        return 1;
    }
    judge(n, o, target);
    if (backward(n)) {
        return 1;
    }
    for (i = 0; i < n->params; i++) {
        n->gradient[i] /= all;
    }
    return 0;
}

/* ---- AdamW ----------------------------------------------------------------------------------- */

typedef struct adam {
    double *m, *v, b1, b2;
} adam;

static void update(net *n, adam *a, double rate)
{
    int64_t i;
    a->b1 *= 0.9;
    a->b2 *= 0.999;
    for (i = 0; i < n->params; i++) {
        const double g = n->gradient[i];
        a->m[i] += 0.1 * (g - a->m[i]);
        a->v[i] += 0.001 * (g * g - a->v[i]);
        n->weight[i] -=
            (float)(rate * (a->m[i] / (1.0 - a->b1) / (root(a->v[i] / (1.0 - a->b2)) + 1e-8) +
                            1e-4 * (double)n->weight[i]));
    }
}

/* ---- against one rank ------------------------------------------------------------------------ */

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double size_of(double x)
{
    return x < 0.0 ? -x : x;
}

/* The largest difference of this rank's outputs from those of the whole field. */
static double output_difference(const net *n, const net *whole, int first, double *most)
{
    const unit *a = &n->unit[n->units - 1], *b = &whole->unit[n->units - 1];
    const dpar_box *own = &a->plan->out_owned;
    dpar_tile ta, tb;
    double far = 0.0;
    int s;
    int64_t y, x;
    own_tile(a, a->a.out, &ta);
    own_tile(b, b->a.out, &tb);
    for (s = 0; s < n->samples && own->dims > 0; s++) {
        for (y = own->lo[0]; y < own->hi[0]; y++) {
            for (x = own->lo[1]; x < own->hi[1]; x++) {
                const double v = (double)*row_of(&tb, first + s, y, x);
                far = larger(far, size_of((double)*row_of(&ta, s, y, x) - v));
                *most = larger(*most, size_of(v));
            }
        }
    }
    return far;
}

/* Compares loss and gradients with those of one rank, which each rank computes. Returns 1 after a
 * message if they differ. */
static int compare(dpar_comm *world, net *n, const request *o)
{
    static const int32_t one[2] = {1, 1};
    dpar_comm *self = NULL;
    dpar_mesh mesh;
    net whole;
    double far[4] = {0.0, 0.0, 0.0, 0.0}, all[4];
    float *wide =
        (float *)malloc((size_t)o->size[0] * (size_t)o->size[1] * (size_t)o->dp * sizeof *wide);
    int64_t i;
    int bad;
    if (lacks(world, wide == NULL, "the whole field") ||
        failed(world, dpar_comm_split(world, world->rank, 0, &self), "split", NULL)) {
        return 1;
    }
    bad = dpar_mesh_init(&mesh, "y x", one, DPAR_ORDER_LAST_FASTEST, 1, NULL) != DPAR_OK ||
          plan_net(&whole, self, &mesh, o->dp, o) || one_pass(&whole, o, 0, wide);
    if (!bad) {
        far[0] = output_difference(n, &whole, world->rank / (o->tiles[0] * o->tiles[1]), &far[1]);
        for (i = 0; i < n->params; i++) {
            far[2] = larger(far[2], size_of(n->gradient[i] - whole.gradient[i]));
            far[3] = larger(far[3], size_of(whole.gradient[i]));
        }
    }
    if (failed(world, dpar_all_reduce(world, far, all, 4, DPAR_F64, DPAR_MAX, NULL), "all-reduce",
               NULL)) {
        return 1;
    }
    if (world->rank == 0) {
        printf("against one rank: outputs differ by %.1e of %.2g, gradients of the weights by %.1e "
               "of %.2g, loss %.9f and %.9f\n",
               all[0], all[1], all[2], all[3], n->gradient[n->params],
               whole.gradient[whole.params]);
    }
    bad |= drop_net(&whole);
    bad |= dpar_comm_free(self) != DPAR_OK;
    free(wide);
    if (bad) {
        return 1;
    }
    if (!(all[0] <= 1e-5 * all[1]) || !(all[2] <= 1e-5 * all[3]) || !(all[3] > 0.0)) {
        if (world->rank == 0) {
            fprintf(stderr,
                    "unet: outputs or gradients differ from one rank's by more than 1e-5\n");
        }
        return 1;
    }
    return 0;
}

/* ---- what each rank runs --------------------------------------------------------------------- */

/* Bytes of kept activations of a rank as the planner predicts them for such a network on such
 * tiles, or 0. Its model has pooling in place of the convolutions of stride 2; both keep only their
 * input. */
static double planned(const request *o)
{
    static dpar_workload work;
    dpar_cluster cluster;
    dpar_model m;
    dpar_job job;
    dpar_strategy s;
    dpar_plan plan;
    dpar_status st;
    char text[160];
    int length = snprintf(text, sizeof text,
                          "unet:hidden=%d,levels=%d,blocks_per_level=1,image=%dx%d,channels=%d,"
                          "out_channels=1,stack=core,element=4",
                          o->channels, o->levels, o->size[0], o->size[1], INPUTS);
    if (dpar_model_read(&m, text, (size_t)length, NULL) != DPAR_OK ||
        dpar_workload_init(&work, &m, 0, NULL) != DPAR_OK ||
        dpar_cluster_find(&cluster, "dgx-h100", NULL) != DPAR_OK ||
        dpar_recipe_find(&job.recipe, "fp32", NULL) != DPAR_OK) {
        return 0.0;
    }
    job.work = &work;
    job.cluster = &cluster;
    dpar_strategy_init(&s);
    s.tiles[0] = o->tiles[0];
    s.tiles[1] = o->tiles[1];
    s.dp = o->dp;
    cluster.gpus_per_node = dpar_strategy_ranks(&s);
    st = dpar_plan_price(&job, &s, 0, &plan, NULL, NULL);
    return st == DPAR_OK || st == DPAR_E_MEMORY ? plan.memory.term[DPAR_MEMORY_ACTIVATIONS] : 0.0;
}

/* Prints the sizes of the network. Returns 1 after a message. */
static int tell(dpar_comm *world, const net *n, const request *o)
{
    double mine[4], most[4];
    mine[0] = n->kept;
    mine[1] = n->own;
    mine[2] = n->transient;
    mine[3] = n->halo;
    if (failed(world, dpar_all_reduce(world, mine, most, 4, DPAR_F64, DPAR_MAX, NULL), "all-reduce",
               NULL)) {
        return 1;
    }
    if (world->rank == 0) {
        printf("field %d x %d, %d levels, %d channels: %lld weights\n"
               "%d rank%s, engine %s: tiles %dx%d, dp %d\n",
               o->size[1], o->size[0], o->levels, o->channels, (long long)n->params,
               (int)world->size, world->size > 1 ? "s" : "", world->engine.name, o->tiles[0],
               o->tiles[1], o->dp);
        printf("activations kept a rank: %.6f GB of own points, %.6f says the planner;\n"
               "%.6f GB of halos and padding; gradients on their way: %.6f GB\n"
               "halos sent by a rank in a forward pass: %.1f KB\n",
               most[1] / 1e9, planned(o) / 1e9, (most[0] - most[1]) / 1e9, most[2] / 1e9,
               most[3] / 1e3);
        fflush(stdout);
    }
    return 0;
}

/* Trains all steps, and prints loss and speed. Returns 1 after a message. */
static int train(dpar_comm *world, net *n, const request *o, float *target)
{
    const int replica = world->rank / (o->tiles[0] * o->tiles[1]);
    adam a;
    double best = 0.0, busy = 0.0, first = 0.0, last = 0.0;
    int step, bad = 0;
    a.m = (double *)calloc((size_t)n->params, sizeof *a.m);
    a.v = (double *)calloc((size_t)n->params, sizeof *a.v);
    a.b1 = a.b2 = 1.0;
    if (lacks(world, a.m == NULL || a.v == NULL, "the optimizer")) {
        free(a.m);
        free(a.v);
        return 1;
    }
    for (step = 0; step < o->steps && !bad; step++) {
        const double began = now();
        double took;
        n->busy = 0.0;
        bad = one_pass(n, o, (int64_t)step * o->dp + replica, target) ||
              failed(world,
                     dpar_all_reduce(world, n->gradient, n->gradient, n->params + 2, DPAR_F64,
                                     DPAR_SUM, NULL),
                     "all-reduce", NULL);
        took = now() - began;
        if (!bad && step == 0 && o->check) {
            bad = compare(world, n, o);
        }
        update(n, &a, o->rate);
        if (step == 0 || took < best) {
            best = took;
            busy = n->busy;
        }
        last = n->gradient[n->params] / n->gradient[n->params + 1];
        first = step == 0 ? last : first;
        if (world->rank == 0 && !bad &&
            (step < 5 || step == o->steps - 1 || (step + 1) % ((o->steps + 9) / 10) == 0)) {
            printf("step %4d  loss %.9f, %.4f of what no network would have\n", step + 1,
                   n->gradient[n->params], last);
            fflush(stdout);
        }
    }
    if (world->rank == 0 && !bad) {
        printf("loss %.4f -> %.4f of it; best step %.4g s, %.3g cells/s\n", first, last, best,
               (double)o->size[0] * o->size[1] * o->dp / best);
        printf("rank 0: %.3f GFLOP a step, %.1f GFLOP/s; in convolutions (%.0f %% of the time) "
               "%.1f GFLOP/s;\nmultiply-adds in registers alone: %.1f GFLOP/s\n",
               n->flops / 1e9, n->flops / best / 1e9, 100.0 * busy / best, n->flops / busy / 1e9,
               roof());
    }
    free(a.m);
    free(a.v);
    return bad;
}

/* What each rank runs. */
static int run(dpar_comm *world, void *arg)
{
    const request *o = (const request *)arg;
    const int tiles = o->tiles[0] * o->tiles[1];
    dpar_comm *c = NULL;
    dpar_mesh mesh;
    net *n = (net *)calloc(1, sizeof *n);
    float *target;
    int32_t sizes[2];
    int bad;
    sizes[0] = o->tiles[0];
    sizes[1] = o->tiles[1];
    if (lacks(world, n == NULL, "the network") ||
        dpar_mesh_init(&mesh, "y x", sizes, DPAR_ORDER_LAST_FASTEST, tiles, NULL) ||
        failed(world, dpar_comm_split(world, world->rank / tiles, world->rank, &c), "split",
               NULL)) {
        free(n);
        return 1;
    }
    bad = plan_net(n, c, &mesh, 1, o);
    target = bad ? NULL : (float *)malloc((size_t)points(&n->unit[0].plan->in_owned) * 4 + 4);
    bad = bad || lacks(world, target == NULL, "the target") || tell(world, n, o) ||
          train(world, n, o, target);
    if (!bad) {
        bad = drop_net(n) || dpar_comm_free(c) != DPAR_OK;
    }
    free(target);
    free(n);
    if (world->rank == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
        fprintf(stderr, "unet: the results could not be written to standard output\n");
        bad = 1;
    }
    return bad;
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* Reads two numbers such as "12x34". Returns 0 if they are not within the limits. */
static int pair(const char *word, int *first, int *second, int least, int most)
{
    int end = 0;
    return sscanf(word, "%4dx%4d%n", first, second, &end) == 2 && word[end] == 0 &&
           *first >= least && *first <= most && *second >= least && *second <= most;
}

/* Chooses the tiles with the shortest edges, if only their number is given. */
static void choose_tiles(request *o, int tiles)
{
    double least = 0.0;
    int p;
    for (p = 1; p <= tiles; p++) {
        const double edge = (double)o->size[0] / p + (double)o->size[1] / (tiles / p);
        if (tiles % p == 0 && (o->tiles[0] == 0 || edge < least)) {
            least = edge;
            o->tiles[0] = p;
            o->tiles[1] = tiles / p;
        }
    }
}

/* Reads the command line (start_read of apps/start.h). */
static int reads(int argc, char **argv, int *ranks, void *at)
{
    request *o = (request *)at;
    const char *tiles = NULL, *size = NULL;
    int code;
    const option list[] = {{"--ranks", OPTION_INT, &o->ranks, 1, 64},
                           {"--tiles", OPTION_WORD, &tiles, 0, 0},
                           {"--dp", OPTION_INT, &o->dp, 1, 64},
                           {"--size", OPTION_WORD, &size, 0, 0},
                           {"--channels", OPTION_INT, &o->channels, 2, 256},
                           {"--levels", OPTION_INT, &o->levels, 2, MOST_LEVELS},
                           {"--steps", OPTION_INT, &o->steps, 1, 100000},
                           {"--rate", OPTION_REAL, &o->rate, 1e-30, 1},
                           {"--check", OPTION_FLAG, &o->check, 0, 0}};
    code = options_read(argc, argv, list, sizeof list / sizeof *list, NULL, 0);
    if (code < 0) {
        code = start_ranks(ranks, o->ranks);
    }
    if (code >= 0) {
        return code;
    }
    if (tiles != NULL && !pair(tiles, &o->tiles[0], &o->tiles[1], 1, 64)) {
        return complain("--tiles takes two numbers of 1 to 64, as 2x2, not", tiles);
    }
    if (size != NULL && !pair(size, &o->size[1], &o->size[0], 8, 8192)) {
        return complain("--size takes columns and rows of 8 to 8192, as 1440x720, not", size);
    }
    if (o->channels % 2 != 0) {
        return complain("--channels takes an even number", NULL);
    }
    if (*ranks == 0) {
        *ranks = o->tiles[0] > 0 ? o->tiles[0] * o->tiles[1] * o->dp : 2 * o->dp;
    }
    o->ranks = *ranks;
    if (o->tiles[0] == 0 && o->ranks % o->dp == 0) {
        choose_tiles(o, o->ranks / o->dp);
    }
    if (o->tiles[0] * o->tiles[1] * o->dp != o->ranks || o->ranks > 64) {
        char text[120];
        snprintf(text, sizeof text, "tiles %dx%d times dp %d are not %d ranks (64 at most)",
                 o->tiles[0], o->tiles[1], o->dp, o->ranks);
        return complain(text, NULL);
    }
    return -1;
}

static request defaults(void)
{
    request o;
    memset(&o, 0, sizeof o);
    o.dp = 1;
    o.size[0] = 720;
    o.size[1] = 1440;
    o.channels = 4;
    o.levels = 3;
    o.steps = 5;
    o.rate = 0.003;
    return o;
}

int main(int argc, char **argv)
{
    request o = defaults();
    return start(argc, argv, reads, run, &o);
}
