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
 * dpar is used in `plan_unit` (dpar_spatial_make), `forward` (dpar_spatial_forward,
 * dpar_norm_forward) and `backward` (dpar_spatial_backward, dpar_norm_backward): a layer is
 * described once, and its kernels (below) use global indices and know nothing of tiles. They copy
 * lines of a strip into the cache and multiply 4 channels at a time in registers. All convolutions
 * of both kinds, and their gradients, are one of `down`, `up` and `weigh`. With --check, the
 * outputs may differ from those of one rank by the rounding of GroupNorm's mean and deviation
 * (f64). Gradients also differ by the order of sums: over pixels (up to 1024 at a time in f32,
 * their sums in f64), and over the parts of several ranks at the ends of tiles.
 *
 *   mpicc -O2 -DUSE_MPI -DDPAR_IMPLEMENTATION -I. apps/unet.c -o unet && mpirun -np 4 ./unet
 *
 * Exit code: 0 fine, 1 an error or a difference that should not be, 2 bad input (one message on
 * stderr). */
#include "dpar_cost.h"
#include "dpar_spatial.h"
#ifdef USE_MPI
#include "dpar_mpi.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

#include "../helpers/options.h"
#include "start.h"

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
    dpar_spatial_arrays
        arrays; /* `in` is kept for backward, with halos, and so is `out` (see keeps) */
    double *saved;
} unit;

/* A line of inputs, and where the weights by which it is multiplied begin. */
typedef struct tap {
    const float *line;
    int64_t weight;
} tap;

typedef struct net {
    dpar_comm *comm; /* the tiles of a sample */
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

/* The width of a unit's kernel. */
static int unit_kernel(const unit *layer)
{
    switch (layer->kind) {
    case UP: return 2;
    case HEAD: return 1;
    default: return 3;
    }
}

/* Appends a unit. Returns its number. */
static int add_unit(net *network, int kind, int in, int out, int norm)
{
    unit *layer = &network->unit[network->units];
    int k;
    layer->kind = kind;
    k = unit_kernel(layer);
    layer->in = in;
    layer->out = out;
    layer->norm = norm;
    layer->net = network;
    layer->weights = network->params;
    network->params += (int64_t)in * out * k * k;
    layer->affine = network->params;
    network->params += norm ? 2 * out : 0;
    network->units++;
    return network->units - 1;
}

/* Makes the output of one unit an input of another. */
static void join(net *network, int from, int to, int shift)
{
    unit *layer = &network->unit[from];
    layer->to[layer->goals] = to;
    layer->shift[layer->goals++] = shift;
}

/* Appends the two convolutions of a level. Returns the number of the first. */
static int add_pair(net *network, int in, int out)
{
    const int first = add_unit(network, SAME, in, out, 1);
    join(network, first, add_unit(network, SAME, out, out, 1), 0);
    return first;
}

/* Builds the network: encode, down, encode, ..., up, decode, ..., head. */
static void build(net *network, const request *options)
{
    int level, skip[MOST_LEVELS], last = -1, wide;
    for (level = 0; level < options->levels; level++) {
        wide = options->channels << level;
        const int pair = add_pair(network, level == 0 ? INPUTS : wide / 2, wide);
        if (last >= 0) {
            join(network, last, pair, 0);
        }
        last = skip[level] = pair + 1;
        if (level < options->levels - 1) {
            const int down = add_unit(network, DOWN, wide, wide, 0);
            join(network, last, down, 0);
            last = down;
        }
    }
    for (level = options->levels - 2; level >= 0; level--) {
        int up, pair;
        wide = options->channels << level;
        up = add_unit(network, UP, 2 * wide, wide, 0);
        pair = add_pair(network, 2 * wide, wide);
        join(network, last, up, 0);
        join(network, up, pair, 0);
        join(network, skip[level], pair, wide);
        last = pair + 1;
    }
    join(network, last, add_unit(network, HEAD, options->channels, 1, 0), 0);
}

/* ---- kernels: serial loops over global indices ----------------------------------------------- */

/* The address of column x of row y of a plane. */
static float *row_of(const dpar_tile *tile, int64_t plane, int64_t y, int64_t x)
{
    return (float *)tile->data + (tile->origin + plane * tile->plane + y * tile->stride[0] + x);
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
    int width, step, pad, coarse, fine; /* k: width; coarse, fine: channels of both sides */
    int64_t per_coarse, per_fine;       /* weights from one channel to the next */
    int64_t weights;                    /* where the weights begin */
    net *network;
} stencil;

static stencil stencil_of(const dpar_spatial_call *call)
{
    const unit *layer = (const unit *)call->user;
    const dpar_window *window = &call->layer->window[0];
    stencil shape;
    shape.width = (int)window->kernel;
    shape.step = window->stride > 0 ? (int)window->stride : 1;
    shape.pad = (int)window->pad_low;
    shape.coarse = layer->kind == UP ? layer->in : layer->out;
    shape.fine = layer->kind == UP ? layer->out : layer->in;
    shape.per_coarse = (int64_t)shape.width * shape.width * (layer->kind == UP ? 1 : layer->in);
    shape.per_fine = (int64_t)shape.width * shape.width * (layer->kind == UP ? layer->in : 1);
    shape.weights = layer->weights;
    shape.network = layer->net;
    return shape;
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
    lines cache;
    int i;
    cache.data = data;
    cache.slots = slots;
    cache.phases = phases;
    cache.from = from;
    cache.end = end;
    for (i = 0; i < slots; i++) {
        cache.row[i] = INT64_MIN;
    }
    return cache;
}

static float *line_of(const lines *cache, int channel, int slot, int phase)
{
    return cache->data + (((int64_t)channel * cache->slots + slot) * cache->phases + phase) * LINE;
}

static int64_t clipped(int64_t i, int64_t most)
{
    if (i < 0) {
        return 0;
    }
    return i < most ? i : most;
}

/* Copies LINE columns x, x + step, ... of a row. */
static void copy_line(float *to, const dpar_tile *tile, int64_t plane, int64_t y, int64_t x,
                      int64_t step, int64_t end)
{
    const int64_t hi = tile->box.hi[1] < end ? tile->box.hi[1] : end;
    const int there = y >= tile->box.lo[0] && y < tile->box.hi[0] && hi > x;
    const int64_t first = there ? clipped((tile->box.lo[1] - x + step - 1) / step, LINE) : LINE;
    const int64_t last = there ? clipped((hi - x + step - 1) / step, LINE) : LINE;
    int64_t i;
    memset(to, 0, (size_t)first * sizeof *to);
    if (last > first && step == 1) {
        memcpy(to + first, row_of(tile, plane, y, x + first), (size_t)(last - first) * sizeof *to);
    } else if (last > first) {
        const float *in = row_of(tile, plane, y, x);
        for (i = first; i < last; i++) {
            to[i] = in[i * step];
        }
    }
    i = last > first ? last : first;
    memset(to + i, 0, (size_t)(LINE - i) * sizeof *to);
}

/* The slot of row y, which is copied first if it is not cached. */
static int fetch(lines *cache, const dpar_tile *tile, int64_t plane, int channels, int64_t y)
{
    const int slot = (int)((y % cache->slots + cache->slots) % cache->slots);
    int channel, phase;
    if (cache->row[slot] != y) {
        cache->row[slot] = y;
        for (channel = 0; channel < channels; channel++) {
            for (phase = 0; phase < cache->phases; phase++) {
                copy_line(line_of(cache, channel, slot, phase), tile, plane + channel, y,
                          cache->from + phase, cache->phases, cache->end);
            }
        }
    }
    return slot;
}

/* Packs the weights for GROUP output channels at a time, with 0 beyond the last one. */
static void pack(const stencil *shape, int to, int64_t per_to, int from, int64_t per_from)
{
    const float *weight = shape->network->weight + shape->weights;
    float *packed = shape->network->packed;
    int first, channel, place, j;
    for (first = 0; first < to; first += GROUP) {
        for (channel = 0; channel < from; channel++) {
            for (place = 0; place < shape->width * shape->width; place++) {
                for (j = first; j < first + GROUP; j++) {
                    *packed++ = j < to ? weight[j * per_to + channel * per_from + place] : 0.0f;
                }
            }
        }
    }
}

/* Computes GROUP lines of sums of `count` lines times their weights. */
static void multiply(float *to, const tap *taps, int count, const float *weights, int64_t width)
{
    int64_t x;
    int i;
    for (x = 0; x < width; x += BLOCK) {
        lanes a0, a1, b0, b1, c0, c1, d0, d1, u, v;
        memset(&a0, 0, sizeof a0);
        a1 = b0 = b1 = c0 = c1 = d0 = d1 = a0;
        for (i = 0; i < count; i++) {
            const float *weight = weights + taps[i].weight;
            memcpy(&u, taps[i].line + x, sizeof u);
            memcpy(&v, taps[i].line + x + LANES, sizeof v);
            a0 += weight[0] * u;
            a1 += weight[0] * v;
            b0 += weight[1] * u;
            b1 += weight[1] * v;
            c0 += weight[2] * u;
            c1 += weight[2] * v;
            d0 += weight[3] * u;
            d1 += weight[3] * v;
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
static void produce(const stencil *shape, int count, const dpar_tile *to, int64_t plane,
                    int channels, int per_group, int64_t y, int64_t x, int step, int64_t width,
                    int add)
{
    float sums[GROUP * LINE];
    int64_t i;
    int first, j;
    for (first = 0; first < channels; first += GROUP) {
        multiply(sums, shape->network->taps, count,
                 shape->network->packed + (int64_t)first * per_group, width);
        for (j = 0; j < GROUP && first + j < channels; j++) {
            float *out = row_of(to, plane + first + j, y, x);
            const float *in = sums + j * LINE;
            for (i = 0; i < width; i++) {
                out[i * step] = add ? out[i * step] + in[i] : in[i];
            }
        }
    }
}

/* Computes coarse points from fine ones for one sample, whose planes begin at `source` and `goal`.
 */
static void down(const stencil *shape, const dpar_tile *from, int64_t source, const dpar_tile *to,
                 int64_t goal, int add)
{
    const dpar_box *box = &to->box;
    int64_t x, y;
    int slot[8], channel, ky, kx;
    pack(shape, shape->coarse, shape->per_coarse, shape->fine, shape->per_fine);
    for (x = box->lo[1]; x < box->hi[1]; x += STRIP) {
        lines cache = lines_of(shape->network->fine, shape->width, shape->step,
                               x * shape->step - shape->pad, INT64_MAX);
        for (y = box->lo[0]; y < box->hi[0]; y++) {
            tap *entry = shape->network->taps;
            for (ky = 0; ky < shape->width; ky++) {
                slot[ky] =
                    fetch(&cache, from, source, shape->fine, y * shape->step - shape->pad + ky);
            }
            for (channel = 0; channel < shape->fine; channel++) {
                for (ky = 0; ky < shape->width; ky++) {
                    for (kx = 0; kx < shape->width; kx++) {
                        entry->line =
                            line_of(&cache, channel, slot[ky], kx % shape->step) + kx / shape->step;
                        entry->weight =
                            (int64_t)GROUP * ((channel * shape->width + ky) * shape->width + kx);
                        entry++;
                    }
                }
            }
            produce(shape, (int)(entry - shape->network->taps), to, goal, shape->coarse,
                    shape->fine * shape->width * shape->width, y, x, 1,
                    clipped(box->hi[1] - x, STRIP), add);
        }
    }
}

/* Lists the lines and weights of the fine points of one row and one phase. Weight `phase` connects
 * the first of them with column `at` of the coarse lines. Returns their number. */
static int meet(const stencil *shape, const lines *cache, const int *slot, int row_phase, int phase,
                int64_t at)
{
    tap *entry = shape->network->taps;
    int channel, ky, kx;
    for (channel = 0; channel < shape->coarse; channel++) {
        for (ky = row_phase; ky < shape->width; ky += shape->step) {
            for (kx = phase; kx < shape->width; kx += shape->step) {
                entry->line = line_of(cache, channel, slot[ky], 0) + (at - kx / shape->step);
                entry->weight =
                    (int64_t)GROUP * ((channel * shape->width + ky) * shape->width + kx);
                entry++;
            }
        }
    }
    return (int)(entry - shape->network->taps);
}

/* Computes fine points from coarse ones. */
static void up(const stencil *shape, const dpar_tile *from, int64_t source, const dpar_tile *to,
               int64_t goal, int add)
{
    const dpar_box *box = &to->box;
    int64_t x, y;
    int slot[8], ky, phase;
    pack(shape, shape->fine, shape->per_fine, shape->coarse, shape->per_coarse);
    for (x = box->lo[1]; x < box->hi[1]; x += (int64_t)STRIP * shape->step) {
        const int64_t begin = x + shape->pad, strip = (int64_t)STRIP * shape->step;
        const int64_t end = begin + clipped(box->hi[1] - x, strip);
        lines cache = lines_of(shape->network->coarse, shape->width, 1,
                               begin / shape->step - (shape->width - 1) / shape->step, INT64_MAX);
        for (y = box->lo[0]; y < box->hi[0]; y++) {
            const int64_t row = y + shape->pad;
            for (ky = (int)(row % shape->step); ky < shape->width; ky += shape->step) {
                slot[ky] = fetch(&cache, from, source, shape->coarse, (row - ky) / shape->step);
            }
            for (phase = 0; phase < shape->step; phase++) {
                const int64_t first = (begin - phase + shape->step - 1) / shape->step;
                const int64_t last = (end - phase + shape->step - 1) / shape->step;
                const int count =
                    meet(shape, &cache, slot, (int)(row % shape->step), phase, first - cache.from);
                produce(shape, count, to, goal, shape->fine,
                        shape->coarse * shape->width * shape->width, y,
                        first * shape->step + phase - shape->pad, shape->step, last - first, add);
            }
        }
    }
}

static double sum_of(const lanes *vector)
{
    float part[LANES];
    int half, i;
    memcpy(part, vector, sizeof part);
    for (half = LANES / 2; half > 0; half /= 2) {
        for (i = 0; i < half; i++) {
            part[i] += part[i + half];
        }
    }
    return (double)part[0];
}

/* Lines of several rows: of GROUP coarse channels, and of the fine points of 2 weights. */
typedef struct meeting {
    const float *coarse[ROWS][GROUP], *fine[ROWS][2];
} meeting;

/* Computes sum[j][i], the sum of products of coarse channel j with the fine points of weight i. */
static void products(const meeting *met, int rows, int64_t width, double sum[GROUP][2])
{
    lanes a0, a1, b0, b1, c0, c1, d0, d1, u, v, w;
    int64_t x;
    int line;
    memset(&a0, 0, sizeof a0);
    a1 = b0 = b1 = c0 = c1 = d0 = d1 = a0;
    for (line = 0; line < rows; line++) {
        const float *const *coarse = met->coarse[line], *const *in = met->fine[line];
        for (x = 0; x < width; x += LANES) {
            memcpy(&u, in[0] + x, sizeof u);
            memcpy(&v, in[1] + x, sizeof v);
            memcpy(&w, coarse[0] + x, sizeof w);
            a0 += w * u;
            a1 += w * v;
            memcpy(&w, coarse[1] + x, sizeof w);
            b0 += w * u;
            b1 += w * v;
            memcpy(&w, coarse[2] + x, sizeof w);
            c0 += w * u;
            c1 += w * v;
            memcpy(&w, coarse[3] + x, sizeof w);
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
static void weigh_rows(const stencil *shape, const lines *coarse, const lines *fine, int64_t y,
                       int rows, int64_t width)
{
    const int taps = shape->fine * shape->width * shape->width;
    double *gradient = shape->network->gradient + shape->weights, sum[GROUP][2];
    meeting met;
    int first, weight, i, j, line;
    for (first = 0; first < shape->coarse; first += GROUP) {
        for (weight = 0; weight < taps; weight += 2) {
            for (line = 0; line < rows; line++) {
                for (j = 0; j < GROUP; j++) { /* the last channel stands for missing ones */
                    met.coarse[line][j] =
                        line_of(coarse, first + j < shape->coarse ? first + j : shape->coarse - 1,
                                (int)((y + line) % coarse->slots), 0);
                }
                for (i = 0; i < 2; i++) {
                    const int at = weight + i < taps ? weight + i : weight, kx = at % shape->width;
                    const int64_t row =
                        (y + line) * shape->step - shape->pad + at / shape->width % shape->width;
                    met.fine[line][i] =
                        line_of(fine, at / (shape->width * shape->width),
                                (int)((row + fine->slots) % fine->slots), kx % shape->step) +
                        kx / shape->step;
                }
            }
            products(&met, rows, width, sum);
            for (j = 0; j < GROUP && first + j < shape->coarse; j++) {
                for (i = 0; i < 2 && weight + i < taps; i++) {
                    gradient[(first + j) * shape->per_coarse +
                             (weight + i) / (shape->width * shape->width) * shape->per_fine +
                             (weight + i) % (shape->width * shape->width)] += sum[j][i];
                }
            }
        }
    }
}

/* Computes the gradients of the weights from both sides of a stencil: sums in f32 over a few rows
 * of a strip, which are added in f64. */
static void weigh(const stencil *shape, const dpar_tile *coarse, int64_t coarse_plane,
                  const dpar_tile *fine, int64_t fine_plane)
{
    const dpar_box *box = &coarse->box;
    int64_t x, y, line, row;
    for (x = box->lo[1]; x < box->hi[1]; x += STRIP) {
        lines near = lines_of(shape->network->coarse, ROWS, 1, x, x + STRIP);
        lines far = lines_of(shape->network->fine, shape->width + (ROWS - 1) * shape->step,
                             shape->step, x * shape->step - shape->pad, INT64_MAX);
        for (y = box->lo[0]; y < box->hi[0]; y += ROWS) {
            const int64_t rows = clipped(box->hi[0] - y, ROWS);
            for (line = y; line < y + rows; line++) {
                (void)fetch(&near, coarse, coarse_plane, shape->coarse, line);
                for (row = line * shape->step - shape->pad;
                     row < line * shape->step - shape->pad + shape->width; row++) {
                    (void)fetch(&far, fine, fine_plane, shape->fine, row);
                }
            }
            weigh_rows(shape, &near, &far, y, (int)rows, clipped(box->hi[1] - x, STRIP));
        }
    }
}

enum { FORWARD, INPUTS_OF, WEIGHTS_OF }; /* the gradients of inputs and of weights */

static void kernel(const dpar_spatial_call *call, int what)
{
    const unit *layer = (const unit *)call->user;
    const stencil shape = stencil_of(call);
    const double began = now();
    int i;
    for (i = 0; i < layer->net->samples; i++) {
        const int64_t in = (int64_t)i * layer->in, out = (int64_t)i * layer->out;
        if (what == WEIGHTS_OF && layer->kind == UP) {
            weigh(&shape, &call->in[0], in, &call->out_gradient, out);
        } else if (what == WEIGHTS_OF) {
            weigh(&shape, &call->out_gradient, out, &call->in[0], in);
        } else if (what == FORWARD && layer->kind == UP) {
            up(&shape, &call->in[0], in, &call->out, out, 0);
        } else if (what == FORWARD) {
            down(&shape, &call->in[0], in, &call->out, out, 0);
        } else if (layer->kind == UP) {
            down(&shape, &call->out_gradient, out, &call->in_gradient[0], in, 1);
        } else {
            up(&shape, &call->out_gradient, out, &call->in_gradient[0], in, 1);
        }
    }
    layer->net->busy += now() - began;
}

static void kernel_forward(const dpar_spatial_call *call)
{
    kernel(call, FORWARD);
}

static void kernel_input_gradient(const dpar_spatial_call *call)
{
    kernel(call, INPUTS_OF);
}

static void kernel_weight_gradient(const dpar_spatial_call *call)
{
    kernel(call, WEIGHTS_OF);
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
    const float size = x < 0.0f ? -x : x;
    return 0.5f * x * (1.0f + x / (1.0f + size));
}

static float gate_slope(float x)
{
    const float size = x < 0.0f ? -x : x, r = 1.0f / (1.0f + size);
    return 0.5f * (1.0f + x * r * (1.0f + r));
}

/* ---- planning -------------------------------------------------------------------------------- */

/* True, after a message, if st is an error. */
static int failed(const dpar_comm *comm, dpar_status st, const char *what, const dpar_why *why)
{
    if (st != DPAR_OK) {
        fprintf(stderr, "unet: rank %d: %s failed: %s: %s\n", (int)comm->rank, what,
                dpar_status_text(st), why != NULL ? why->text : comm->why.text);
    }
    return st != DPAR_OK;
}

/* True, after a message, if memory is missing. */
static int lacks(const dpar_comm *comm, int missing, const char *what)
{
    if (missing) {
        fprintf(stderr, "unet: rank %d: no memory for %s\n", (int)comm->rank, what);
    }
    return missing;
}

/* Describes a unit for dpar_spatial_make. */

static void describe(unit *layer, const dpar_layout *in, const dpar_layout *out,
                     dpar_spatial_desc *desc)
{
    const int k = unit_kernel(layer);
    int d;
    memset(desc, 0, sizeof *desc);
    desc->in = *in;
    desc->type = DPAR_F32;
    desc->planes = (int64_t)layer->net->samples * layer->in;
    desc->out_planes = (int64_t)layer->net->samples * layer->out;
    desc->user = layer;
    for (d = 0; d < 2; d++) {
        dpar_window *window = &desc->window[d];
        window->kernel = k;
        window->stride = layer->kind == DOWN || layer->kind == UP ? 2 : 1;
        window->pad_low = window->pad_high = k == 3 ? 1 : 0;
        desc->padding[d] = d == 0 ? DPAR_SPATIAL_PAD_REPLICATE : DPAR_SPATIAL_PAD_WRAP;
        if (layer->kind == UP) { /* as large as the skip that it joins: an odd row is cut off */
            desc->padding[d] = DPAR_SPATIAL_PAD_ZERO;
            window->pad_high = 2 * in->extent[d] - out->extent[d];
        }
    }
    desc->kind = layer->kind == UP ? DPAR_SPATIAL_TRANSPOSED : DPAR_SPATIAL_CONVOLUTION;
    desc->forward = kernel_forward;
    desc->input_gradient = kernel_input_gradient;
    desc->weight_gradient = kernel_weight_gradient;
    if (layer == layer->net->unit) {
        desc->input_gradient = NULL; /* the gradient of the data is not needed */
    }
}

static int64_t points(const dpar_box *box)
{
    return box->dims > 0 ? dpar_box_volume(box) : 0;
}

/* Allocates zeroed memory, in which other ranks read halos directly. Returns 1 after a message. */
static int take(net *network, int64_t floats, void **at)
{
    return failed(network->comm, dpar_comm_alloc(network->comm, floats * 4 + 4, at),
                  "allocating an array", NULL);
}

/* True if a unit's output is kept: the backward of a norm and the loss read it. Others are passed
 * on at once. */
static int keeps(const unit *layer)
{
    return layer->norm || layer->kind == HEAD;
}

/* Plans a unit with inputs of the layout `in` and outputs of the layout `out`. Returns 1 after a
 * message. */
static int plan_unit(unit *layer, const dpar_layout *in, const dpar_layout *out)
{
    net *network = layer->net;
    dpar_spatial_desc desc;
    dpar_why why;
    int64_t inputs, outputs;
    double passes; /* operations of a multiply-add in forward and backward */
    int taps;
    describe(layer, in, out, &desc);
    layer->saved =
        (double *)calloc((size_t)(network->samples * layer->out) * 2 + 2, sizeof *layer->saved);
    if (lacks(network->comm, layer->saved == NULL, "the means of a norm") ||
        failed(network->comm, dpar_spatial_make(network->comm, &desc, &layer->plan, &why),
               "planning a layer", &why)) {
        return 1;
    }
    inputs = points(&layer->plan->in_box) * desc.planes;
    outputs = points(&layer->plan->out_owned) * desc.out_planes;
    network->kept += 4.0 * (double)(inputs + (keeps(layer) ? outputs : 0));
    network->own +=
        4.0 * (double)(points(&layer->plan->in_owned) * desc.planes + (keeps(layer) ? outputs : 0));
    network->transient += 4.0 * (double)((desc.input_gradient != NULL ? inputs : 0) + outputs);
    network->halo += (double)layer->plan->halo_bytes;
    taps = layer->kind == UP ? 1 : unit_kernel(layer) * unit_kernel(layer);
    passes = desc.input_gradient != NULL ? 6.0 : 4.0;
    network->flops += passes * (double)outputs * layer->in * taps;
    return take(network, inputs, &layer->arrays.in[0]) ||
           (keeps(layer) && take(network, outputs, &layer->arrays.out)) ||
           take(network, outputs, &layer->arrays.out_gradient) ||
           (desc.input_gradient != NULL && take(network, inputs, &layer->arrays.in_gradient[0]));
}

/* Distributes the field of each level over the ranks. */
static int lay_out(const request *options, const dpar_mesh *mesh, dpar_layout *level)
{
    int64_t extent[2];
    const dpar_placement cut[2] = {dpar_shard_by(0, DPAR_SPLIT_EVEN, 0),
                                   dpar_shard_by(1, DPAR_SPLIT_EVEN, 0)};
    dpar_why why;
    int depth;
    extent[0] = options->size[0];
    extent[1] = options->size[1];
    for (depth = 0; depth < options->levels; depth++) {
        if (dpar_layout_init(&level[depth], mesh, 2, extent, cut, &why) != DPAR_OK) {
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
static void draw_weights(net *network)
{
    uint64_t state = 42;
    int number;
    int64_t i;
    for (number = 0; number < network->units; number++) {
        const unit *layer = &network->unit[number];
        const int k = unit_kernel(layer);
        const double size = root(3.0 / (layer->kind == UP ? layer->in : layer->in * k * k));
        for (i = layer->weights; i < layer->affine; i++) {
            network->weight[i] = (float)(size * lot(&state) * (layer->kind == HEAD ? 0.1 : 1.0));
        }
        for (i = 0; i < (layer->norm ? layer->out : 0); i++) {
            network->weight[layer->affine + i] = 1.0f;
        }
    }
}

static dpar_norm norm_of(const unit *layer)
{
    dpar_norm norm;
    memset(&norm, 0, sizeof norm);
    norm.type = DPAR_F32;
    norm.samples = layer->net->samples;
    norm.channels = layer->out;
    norm.groups = layer->out / 2;
    norm.epsilon = 1e-5;
    norm.scale = layer->net->weight + layer->affine;
    norm.shift = layer->net->weight + layer->affine + layer->out;
    return norm;
}

static size_t larger_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Allocates the memory of the kernels. Returns 1 without memory. */
static int plan_kernels(net *network)
{
    size_t packed = 1, fine = 1, coarse = 1, taps = 1;
    int number;
    for (number = 0; number < network->units; number++) {
        const unit *layer = &network->unit[number];
        const size_t k = (size_t)unit_kernel(layer);
        const size_t step = layer->kind == DOWN || layer->kind == UP ? 2 : 1;
        const size_t most = (size_t)(layer->in > layer->out ? layer->in : layer->out);
        const size_t rows = (k + (ROWS - 1) * step) * step;
        packed = larger_size(packed, (most + GROUP) * most * k * k);
        fine = larger_size(fine, most * rows * LINE);
        coarse = larger_size(coarse, most * (k > ROWS ? k : ROWS) * LINE);
        taps = larger_size(taps, most * k * k);
    }
    network->packed = (float *)malloc(packed * sizeof *network->packed);
    network->fine = (float *)malloc(fine * sizeof *network->fine);
    network->coarse = (float *)malloc(coarse * sizeof *network->coarse);
    network->taps = (tap *)malloc(taps * sizeof *network->taps);
    return network->packed == NULL || network->fine == NULL || network->coarse == NULL ||
           network->taps == NULL;
}

/* Plans a network on the tiles of `mesh`, whose ranks are those of `comm`. Returns 1 after a
 * message. */
static int plan_net(net *network, dpar_comm *comm, const dpar_mesh *mesh, int samples,
                    const request *options)
{
    dpar_layout level[MOST_LEVELS];
    int64_t most = 1, sums = 1;
    int number, depth = 0;
    memset(network, 0, sizeof *network);
    network->comm = comm;
    network->samples = samples;
    build(network, options);
    network->weight = (float *)calloc((size_t)network->params, sizeof *network->weight);
    network->gradient = (double *)calloc((size_t)network->params + 2, sizeof *network->gradient);
    if (lacks(comm, network->weight == NULL || network->gradient == NULL, "the weights") ||
        lay_out(options, mesh, level)) {
        return 1;
    }
    draw_weights(network);
    for (number = 0; number < network->units; number++) {
        const int next =
            depth + (network->unit[number].kind == DOWN) - (network->unit[number].kind == UP);
        const dpar_norm norm = norm_of(&network->unit[number]);
        if (plan_unit(&network->unit[number], &level[depth], &level[next])) {
            return 1;
        }
        depth = next;
        if (points(&network->unit[number].plan->out_owned) * samples * network->unit[number].out >
            most) {
            most = points(&network->unit[number].plan->out_owned) * samples *
                   network->unit[number].out;
        }
        if (network->unit[number].norm) {
            int64_t scratch;
            dpar_norm_sizes(comm, &norm, NULL, &scratch);
            sums = scratch > sums ? scratch : sums;
        }
    }
    network->scratch = (float *)calloc((size_t)most, sizeof *network->scratch);
    network->sums = (double *)calloc((size_t)sums, sizeof *network->sums);
    for (number = 0; number < network->units; number++) {
        if (!keeps(&network->unit[number])) {
            network->unit[number].arrays.out = network->scratch;
        }
    }
    return lacks(comm, network->scratch == NULL || network->sums == NULL || plan_kernels(network),
                 "the kernels");
}

static int drop_net(net *network)
{
    int number, bad = 0;
    for (number = 0; number < network->units; number++) {
        unit *layer = &network->unit[number];
        bad |= failed(network->comm, dpar_spatial_free(layer->plan), "freeing a layer", NULL);
        dpar_comm_release(network->comm, layer->arrays.in[0]);
        dpar_comm_release(network->comm, layer->arrays.in_gradient[0]);
        dpar_comm_release(network->comm, keeps(layer) ? layer->arrays.out : NULL);
        dpar_comm_release(network->comm, layer->arrays.out_gradient);
        free(layer->saved);
    }
    free(network->weight);
    free(network->gradient);
    free(network->scratch);
    free(network->sums);
    free(network->packed);
    free(network->fine);
    free(network->coarse);
    free(network->taps);
    return bad;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void own_tile(const unit *layer, void *data, dpar_tile *tile)
{
    dpar_tile_init(tile, data, &layer->plan->out_owned, (int64_t)layer->net->samples * layer->out,
                   0);
}

/* Copies between the output of a unit and the input of one that it leads to. what = 0 stores the
 * output there, 1 fetches its gradient from there, and 2 adds the gradient. */
static void pass(const unit *layer, int goal, float *mine, int what)
{
    const unit *next = &layer->net->unit[layer->to[goal]];
    const dpar_box *box = &layer->plan->out_owned;
    dpar_tile from, to;
    int sample, ch;
    int64_t y, x;
    if (points(box) == 0) {
        return;
    }
    own_tile(layer, mine, &from);
    dpar_tile_init(&to, what == 0 ? next->arrays.in[0] : next->arrays.in_gradient[0],
                   &next->plan->in_box, (int64_t)layer->net->samples * next->in, 0);
    for (sample = 0; sample < layer->net->samples; sample++) {
        for (ch = 0; ch < layer->out; ch++) {
            for (y = box->lo[0]; y < box->hi[0]; y++) {
                float *output = row_of(&from, sample * layer->out + ch, y, box->lo[1]);
                float *input =
                    row_of(&to, sample * next->in + layer->shift[goal] + ch, y, box->lo[1]);
                const int64_t count = box->hi[1] - box->lo[1];
                if (what == 0) {
                    memcpy(input, output, (size_t)count * sizeof *output);
                } else if (what == 1) {
                    memcpy(output, input, (size_t)count * sizeof *output);
                }
                for (x = 0; x < count && what == 2; x++) {
                    output[x] += input[x];
                }
            }
        }
    }
}

/* The forward pass. Returns 1 after a message. */
static int forward(net *network)
{
    int number, goal;
    for (number = 0; number < network->units; number++) {
        unit *layer = &network->unit[number];
        const int64_t count = points(&layer->plan->out_owned) * network->samples * layer->out;
        float *out = (float *)layer->arrays.out;
        int64_t i;
        if (failed(network->comm, dpar_spatial_forward(layer->plan, &layer->arrays), "forward",
                   NULL)) {
            return 1;
        }
        if (layer->norm) {
            const dpar_norm norm = norm_of(layer);
            dpar_norm_arrays arrays = {0};
            dpar_tile before, after;
            own_tile(layer, layer->arrays.out, &before);
            own_tile(layer, network->scratch, &after);
            arrays.x = &before;
            arrays.y = &after;
            arrays.saved = layer->saved;
            arrays.scratch = network->sums;
            if (failed(network->comm, dpar_norm_forward(network->comm, &norm, &arrays), "norm",
                       NULL)) {
                return 1;
            }
            out = network->scratch;
            for (i = 0; i < count; i++) {
                out[i] = gate(out[i]);
            }
        }
        for (goal = 0; goal < layer->goals; goal++) {
            pass(layer, goal, out, 0);
        }
    }
    return 0;
}

/* Backward of the gate and the norm, with out_gradient in place. */
static int backward_norm(unit *layer)
{
    net *network = layer->net;
    const dpar_norm norm = norm_of(layer);
    const int64_t each = points(&layer->plan->out_owned);
    const float *values = (const float *)layer->arrays.out;
    float *gradient = (float *)layer->arrays.out_gradient;
    dpar_norm_arrays arrays = {0};
    dpar_tile value_tile, gradient_tile;
    int plane;
    int64_t i;
    for (plane = 0; plane < network->samples * layer->out; plane++) {
        const int ch = plane % layer->out;
        const double *saved = &layer->saved[2 * (plane / layer->out * norm.groups + ch / 2)];
        const double scale = saved[1] * (double)network->weight[layer->affine + ch];
        const double shift = (double)network->weight[layer->affine + layer->out + ch];
        for (i = plane * each; i < (plane + 1) * each; i++) {
            gradient[i] *= gate_slope((float)(scale * ((double)values[i] - saved[0]) + shift));
        }
    }
    own_tile(layer, layer->arrays.out, &value_tile);
    own_tile(layer, layer->arrays.out_gradient, &gradient_tile);
    arrays.x = &value_tile;
    arrays.dy = arrays.dx = &gradient_tile;
    arrays.saved = layer->saved;
    arrays.scale_gradient = network->gradient + layer->affine;
    arrays.shift_gradient = network->gradient + layer->affine + layer->out;
    arrays.scratch = network->sums;
    return failed(network->comm, dpar_norm_backward(network->comm, &norm, &arrays), "norm", NULL);
}

static int backward(net *network)
{
    int number, goal;
    for (number = network->units - 1; number >= 0; number--) {
        unit *layer = &network->unit[number];
        for (goal = 0; goal < layer->goals; goal++) {
            pass(layer, goal, (float *)layer->arrays.out_gradient, 1 + goal);
        }
        if ((layer->norm && backward_norm(layer)) ||
            failed(network->comm, dpar_spatial_backward(layer->plan, &layer->arrays), "backward",
                   NULL)) {
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
    weather air;
    int k;
    (void)lot(&state);
    for (k = 0; k < WAVES; k++) {
        air.size[k] = 0.5 + 0.25 * lot(&state);
        air.phase[k] = pi * lot(&state);
        air.east[k] = 1 + k * 2;
        air.north[k] = (int)(3.0 + 2.9 * lot(&state));
    }
    air.turn = lot(&state) * pi;
    return air;
}

static double tracer(const weather *air, double lon, double lat)
{
    double value = 0.0;
    int k;
    for (k = 0; k < WAVES; k++) {
        value += air->size[k] * sine(air->east[k] * lon + air->north[k] * lat + air->phase[k]);
    }
    return value;
}

static void wind(const weather *air, double lon, double lat, double *east, double *north)
{
    *east = 0.6 + 0.4 * sine(2.0 * lat + air->turn);
    *north = 0.4 * sine(lon + air->turn);
}

/* Sets the inputs of a point: the tracer and its wind. Returns the target, the change of the tracer
 * in a step of 1/4 radian at wind 1. */
static double look(const weather *air, const request *options, int64_t y, int64_t x, float *in)
{
    const double lon = 2.0 * pi * ((double)x + 0.5) / options->size[1];
    const double lat = pi * ((double)y + 0.5) / options->size[0];
    double east, north;
    wind(air, lon, lat, &east, &north);
    in[0] = (float)tracer(air, lon, lat);
    in[1] = (float)east;
    in[2] = (float)north;
    return tracer(air, lon - 0.25 * east, lat - 0.25 * north) - (double)in[0];
}

/* Sets the inputs of the rank's tile, and the target. */
static void load(net *network, const request *options, int64_t first, float *target)
{
    unit *layer = &network->unit[0];
    const dpar_box *own = &layer->plan->in_owned;
    dpar_tile in;
    int sample, k;
    int64_t y, x, i = 0;
    dpar_tile_init(&in, layer->arrays.in[0], &layer->plan->in_box,
                   (int64_t)network->samples * INPUTS, 0);
    for (sample = 0; sample < network->samples && own->dims > 0; sample++) {
        const weather air = weather_of(first + sample);
        for (y = own->lo[0]; y < own->hi[0]; y++) {
            for (x = own->lo[1]; x < own->hi[1]; x++) {
                float values[INPUTS];
                target[i++] = (float)look(&air, options, y, x, values);
                for (k = 0; k < INPUTS; k++) {
                    *row_of(&in, sample * INPUTS + k, y, x) = values[k];
                }
            }
        }
    }
}

/* Computes the loss, half the mean square of the error, behind the gradients, and its derivative.
 */
static void judge(net *network, const request *options, const float *target)
{
    unit *head = &network->unit[network->units - 1];
    const int64_t count = points(&head->plan->out_owned) * network->samples;
    const float *out = (const float *)head->arrays.out;
    float *gradient = (float *)head->arrays.out_gradient;
    const double all = (double)options->size[0] * options->size[1] * options->dp;
    int64_t i;
    for (i = 0; i < count; i++) {
        const double error = (double)out[i] - (double)target[i];
        network->gradient[network->params] += 0.5 * error * error / all;
        network->gradient[network->params + 1] += 0.5 * (double)target[i] * (double)target[i] / all;
        gradient[i] = (float)error; /* divided at the end, with the weights' */
    }
}

/* Computes loss and gradients of the samples [first, first + samples) on this rank's tile. */
static int one_pass(net *network, const request *options, int64_t first, float *target)
{
    const double all = (double)options->size[0] * options->size[1] * options->dp;
    int64_t i;
    memset(network->gradient, 0, (size_t)(network->params + 2) * sizeof *network->gradient);
    load(network, options, first, target);
    if (forward(network)) {
        return 1;
    }
    judge(network, options, target);
    if (backward(network)) {
        return 1;
    }
    for (i = 0; i < network->params; i++) {
        network->gradient[i] /= all;
    }
    return 0;
}

/* ---- AdamW ----------------------------------------------------------------------------------- */

typedef struct adam {
    double *mean, *square, beta1, beta2;
} adam;

static void update(net *network, adam *optimizer, double rate)
{
    int64_t i;
    optimizer->beta1 *= 0.9;
    optimizer->beta2 *= 0.999;
    for (i = 0; i < network->params; i++) {
        const double gradient = network->gradient[i];
        optimizer->mean[i] += 0.1 * (gradient - optimizer->mean[i]);
        optimizer->square[i] += 0.001 * (gradient * gradient - optimizer->square[i]);
        network->weight[i] -=
            (float)(rate * (optimizer->mean[i] / (1.0 - optimizer->beta1) /
                                (root(optimizer->square[i] / (1.0 - optimizer->beta2)) + 1e-8) +
                            1e-4 * (double)network->weight[i]));
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
static double output_difference(const net *network, const net *whole, int first, double *most)
{
    const unit *part = &network->unit[network->units - 1], *full = &whole->unit[network->units - 1];
    const dpar_box *own = &part->plan->out_owned;
    dpar_tile part_tile, full_tile;
    double far = 0.0;
    int sample;
    int64_t y, x;
    own_tile(part, part->arrays.out, &part_tile);
    own_tile(full, full->arrays.out, &full_tile);
    for (sample = 0; sample < network->samples && own->dims > 0; sample++) {
        for (y = own->lo[0]; y < own->hi[0]; y++) {
            for (x = own->lo[1]; x < own->hi[1]; x++) {
                const double value = (double)*row_of(&full_tile, first + sample, y, x);
                far = larger(far, size_of((double)*row_of(&part_tile, sample, y, x) - value));
                *most = larger(*most, size_of(value));
            }
        }
    }
    return far;
}

/* Compares loss and gradients with those of one rank, which each rank computes. Returns 1 after a
 * message if they differ. */
static int compare(dpar_comm *world, net *network, const request *options)
{
    static const int32_t one[2] = {1, 1};
    dpar_comm *self = NULL;
    dpar_mesh mesh;
    net whole;
    double far[4] = {0.0, 0.0, 0.0, 0.0}, all[4];
    float *wide = (float *)malloc((size_t)options->size[0] * (size_t)options->size[1] *
                                  (size_t)options->dp * sizeof *wide);
    int64_t i;
    int bad;
    if (lacks(world, wide == NULL, "the whole field") ||
        failed(world, dpar_comm_split(world, world->rank, 0, &self), "split", NULL)) {
        return 1;
    }
    bad = dpar_mesh_init(&mesh, "y x", one, DPAR_ORDER_LAST_FASTEST, 1, NULL) != DPAR_OK ||
          plan_net(&whole, self, &mesh, options->dp, options) || one_pass(&whole, options, 0, wide);
    if (!bad) {
        far[0] = output_difference(network, &whole,
                                   world->rank / (options->tiles[0] * options->tiles[1]), &far[1]);
        for (i = 0; i < network->params; i++) {
            far[2] = larger(far[2], size_of(network->gradient[i] - whole.gradient[i]));
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
               all[0], all[1], all[2], all[3], network->gradient[network->params],
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
static double planned(const request *options)
{
    static dpar_workload work;
    dpar_cluster cluster;
    dpar_model model;
    dpar_job job;
    dpar_strategy strategy;
    dpar_plan plan;
    dpar_status st;
    char text[160];
    int length =
        snprintf(text, sizeof text,
                 "unet:hidden=%d,levels=%d,blocks_per_level=1,image=%dx%d,channels=%d,"
                 "out_channels=1,stack=core,element=4",
                 options->channels, options->levels, options->size[0], options->size[1], INPUTS);
    if (dpar_model_read(&model, text, (size_t)length, NULL) != DPAR_OK ||
        dpar_workload_init(&work, &model, 0, NULL) != DPAR_OK ||
        dpar_cluster_find(&cluster, "dgx-h100", NULL) != DPAR_OK ||
        dpar_recipe_find(&job.recipe, "fp32", NULL) != DPAR_OK) {
        return 0.0;
    }
    job.work = &work;
    job.cluster = &cluster;
    dpar_strategy_init(&strategy);
    strategy.tiles[0] = options->tiles[0];
    strategy.tiles[1] = options->tiles[1];
    strategy.dp = options->dp;
    cluster.gpus_per_node = dpar_strategy_ranks(&strategy);
    st = dpar_plan_price(&job, &strategy, 0, &plan, NULL, NULL);
    return st == DPAR_OK || st == DPAR_E_MEMORY ? plan.memory.term[DPAR_MEMORY_ACTIVATIONS] : 0.0;
}

/* Prints the sizes of the network. Returns 1 after a message. */
static int tell(dpar_comm *world, const net *network, const request *options)
{
    double mine[4], most[4];
    mine[0] = network->kept;
    mine[1] = network->own;
    mine[2] = network->transient;
    mine[3] = network->halo;
    if (failed(world, dpar_all_reduce(world, mine, most, 4, DPAR_F64, DPAR_MAX, NULL), "all-reduce",
               NULL)) {
        return 1;
    }
    if (world->rank == 0) {
        printf("field %d x %d, %d levels, %d channels: %lld weights\n"
               "%d rank%s, engine %s: tiles %dx%d, dp %d\n",
               options->size[1], options->size[0], options->levels, options->channels,
               (long long)network->params, (int)world->size, world->size > 1 ? "s" : "",
               world->engine.name, options->tiles[0], options->tiles[1], options->dp);
        printf("activations kept a rank: %.6f GB of own points, %.6f says the planner;\n"
               "%.6f GB of halos and padding; gradients on their way: %.6f GB\n"
               "halos sent by a rank in a forward pass: %.1f KB\n",
               most[1] / 1e9, planned(options) / 1e9, (most[0] - most[1]) / 1e9, most[2] / 1e9,
               most[3] / 1e3);
        fflush(stdout);
    }
    return 0;
}

/* Trains all steps, and prints loss and speed. Returns 1 after a message. */
static int train(dpar_comm *world, net *network, const request *options, float *target)
{
    const int replica = world->rank / (options->tiles[0] * options->tiles[1]);
    adam optimizer;
    double best = 0.0, busy = 0.0, first = 0.0, last = 0.0;
    int step, bad = 0;
    optimizer.mean = (double *)calloc((size_t)network->params, sizeof *optimizer.mean);
    optimizer.square = (double *)calloc((size_t)network->params, sizeof *optimizer.square);
    optimizer.beta1 = optimizer.beta2 = 1.0;
    if (lacks(world, optimizer.mean == NULL || optimizer.square == NULL, "the optimizer")) {
        free(optimizer.mean);
        free(optimizer.square);
        return 1;
    }
    for (step = 0; step < options->steps && !bad; step++) {
        const double began = now();
        double took;
        network->busy = 0.0;
        bad = one_pass(network, options, (int64_t)step * options->dp + replica, target) ||
              failed(world,
                     dpar_all_reduce(world, network->gradient, network->gradient,
                                     network->params + 2, DPAR_F64, DPAR_SUM, NULL),
                     "all-reduce", NULL);
        took = now() - began;
        if (!bad && step == 0 && options->check) {
            bad = compare(world, network, options);
        }
        update(network, &optimizer, options->rate);
        if (step == 0 || took < best) {
            best = took;
            busy = network->busy;
        }
        last = network->gradient[network->params] / network->gradient[network->params + 1];
        first = step == 0 ? last : first;
        if (world->rank == 0 && !bad &&
            (step < 5 || step == options->steps - 1 ||
             (step + 1) % ((options->steps + 9) / 10) == 0)) {
            printf("step %4d  loss %.9f, %.4f of what no network would have\n", step + 1,
                   network->gradient[network->params], last);
            fflush(stdout);
        }
    }
    if (world->rank == 0 && !bad) {
        printf("loss %.4f -> %.4f of it; best step %.4g s, %.3g cells/s\n", first, last, best,
               (double)options->size[0] * options->size[1] * options->dp / best);
        printf("rank 0: %.3f GFLOP a step, %.1f GFLOP/s; in convolutions (%.0f %% of the time) "
               "%.1f GFLOP/s;\nmultiply-adds in registers alone: %.1f GFLOP/s\n",
               network->flops / 1e9, network->flops / best / 1e9, 100.0 * busy / best,
               network->flops / busy / 1e9, roof());
    }
    free(optimizer.mean);
    free(optimizer.square);
    return bad;
}

/* What each rank runs. */
static int run(dpar_comm *world, void *arg)
{
    const request *options = (const request *)arg;
    const int tiles = options->tiles[0] * options->tiles[1];
    dpar_comm *comm = NULL;
    dpar_mesh mesh;
    net *network = (net *)calloc(1, sizeof *network);
    float *target;
    int32_t sizes[2];
    int bad;
    sizes[0] = options->tiles[0];
    sizes[1] = options->tiles[1];
    if (lacks(world, network == NULL, "the network") ||
        dpar_mesh_init(&mesh, "y x", sizes, DPAR_ORDER_LAST_FASTEST, tiles, NULL) ||
        failed(world, dpar_comm_split(world, world->rank / tiles, world->rank, &comm), "split",
               NULL)) {
        free(network);
        return 1;
    }
    bad = plan_net(network, comm, &mesh, 1, options);
    target = bad ? NULL : (float *)malloc((size_t)points(&network->unit[0].plan->in_owned) * 4 + 4);
    bad = bad || lacks(world, target == NULL, "the target") || tell(world, network, options) ||
          train(world, network, options, target);
    if (!bad) {
        bad = drop_net(network) || dpar_comm_free(comm) != DPAR_OK;
    }
    free(target);
    free(network);
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
static void choose_tiles(request *options, int tiles)
{
    double least = 0.0;
    int rows;
    for (rows = 1; rows <= tiles; rows++) {
        const double edge =
            (double)options->size[0] / rows + (double)options->size[1] / (tiles / rows);
        if (tiles % rows == 0 && (options->tiles[0] == 0 || edge < least)) {
            least = edge;
            options->tiles[0] = rows;
            options->tiles[1] = tiles / rows;
        }
    }
}

/* Reads the command line (start_read of apps/start.h). */
static int reads(int argc, char **argv, int *ranks, void *at)
{
    request *options = (request *)at;
    const char *tiles = NULL, *size = NULL;
    int code;
    const option list[] = {{"--ranks", OPTION_INT, &options->ranks, 1, 64},
                           {"--tiles", OPTION_WORD, &tiles, 0, 0},
                           {"--dp", OPTION_INT, &options->dp, 1, 64},
                           {"--size", OPTION_WORD, &size, 0, 0},
                           {"--channels", OPTION_INT, &options->channels, 2, 256},
                           {"--levels", OPTION_INT, &options->levels, 2, MOST_LEVELS},
                           {"--steps", OPTION_INT, &options->steps, 1, 100000},
                           {"--rate", OPTION_REAL, &options->rate, 1e-30, 1},
                           {"--check", OPTION_FLAG, &options->check, 0, 0}};
    code = options_read(argc, argv, list, sizeof list / sizeof *list, NULL, 0);
    if (code < 0) {
        code = start_ranks(ranks, options->ranks);
    }
    if (code >= 0) {
        return code;
    }
    if (tiles != NULL && !pair(tiles, &options->tiles[0], &options->tiles[1], 1, 64)) {
        return complain("--tiles takes two numbers of 1 to 64, as 2x2, not", tiles);
    }
    if (size != NULL && !pair(size, &options->size[1], &options->size[0], 8, 8192)) {
        return complain("--size takes columns and rows of 8 to 8192, as 1440x720, not", size);
    }
    if (options->channels % 2 != 0) {
        return complain("--channels takes an even number", NULL);
    }
    if (*ranks == 0) {
        *ranks = options->tiles[0] > 0 ? options->tiles[0] * options->tiles[1] * options->dp
                                       : 2 * options->dp;
    }
    options->ranks = *ranks;
    if (options->tiles[0] == 0 && options->ranks % options->dp == 0) {
        choose_tiles(options, options->ranks / options->dp);
    }
    if (options->tiles[0] * options->tiles[1] * options->dp != options->ranks ||
        options->ranks > 64) {
        char text[120];
        snprintf(text, sizeof text, "tiles %dx%d times dp %d are not %d ranks (64 at most)",
                 options->tiles[0], options->tiles[1], options->dp, options->ranks);
        return complain(text, NULL);
    }
    return -1;
}

static request defaults(void)
{
    request options;
    memset(&options, 0, sizeof options);
    options.dp = 1;
    options.size[0] = 720;
    options.size[1] = 1440;
    options.channels = 4;
    options.levels = 3;
    options.steps = 5;
    options.rate = 0.003;
    return options;
}

int main(int argc, char **argv)
{
    request options = defaults();
    return start(argc, argv, reads, run, &options);
}
