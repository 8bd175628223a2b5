/* SPDX-License-Identifier: MIT-0 */
/* layers - what layers of training ask of memory that the CPU does not reach, such as a device's,
 * beyond the dpar_mem that comm and halo use (mem.h). You need it only to fill in such a table;
 * dpar_cuda.h does so. It is given as dpar_mem.layers:
 *
 *     dpar_mem mem = mine;                  move, span, reduce, ... of the device
 *     dpar_mem_layers layers;
 *     layers.gather = my_gather; ...        each gets mem.ctx
 *     mem.layers = &layers;                 stays where it is as long as mem is used
 *
 * dpar_mem_host_layers gives the table of the host's memory: what each function is to compute. What
 * mem.h says of an operation's struct, its pointers and its numbers holds here too. */
#ifndef DPARI_TRAIN_LAYERS_H
#define DPARI_TRAIN_LAYERS_H

#include "../comm/mem.h"
#include "optimizer.h"

/* A sum of squares: *sum = that, or itself + that. In f64, in an order that count alone fixes, not
 * the launch (each table has its own). */
typedef struct dpar_mem_squares {
    const void *in;
    int64_t count;
    int32_t type; /* F64, F32, BF16, F16 */
    int32_t add;  /* 1 */
    double *sum;
} dpar_mem_squares;

/* *factor = scale dpar_optimizer_clip(sqrt(*squares), limit). Both may be the same double. */
typedef struct dpar_mem_clip {
    const double *squares;
    double *factor;
    double limit, scale;
} dpar_mem_clip;

/* dpar_optimizer_step of the piece with factor, times *factor_at where that is not NULL. A product
 * of 0: gradients count as 0. In f64, as optimizer.h says; roots and divisions may differ in the
 * last bit of f64. */
typedef struct dpar_mem_optimize {
    const dpar_optimizer *optimizer;
    const dpar_optimizer_piece *piece;
    int64_t t;
    double rate, factor;
    const double *factor_at;
    /* NULL: none. Else the new weights once more, of copy_type, for computing: weights are a
     * master. Where the optimizer is stochastic and copy_type is BF16 they are rounded by number
     * (seed, t, index + i), else to nearest even. */
    void *copy;
    /* NULL: none. Else the weights are F32 in two halves: bits of the F32 = bits of the BF16 in
     * piece->weight << 16, plus rest (with sign). The BF16 is the nearest one, of two the one
     * farther from 0. Not with stochastic. */
    int16_t *rest;
    int32_t copy_type; /* BF16, F16, F32 */
    int32_t room;      /* 0 */
} dpar_mem_optimize;

/* to[i] = from[i] as BF16, rounded up with the probability of what is cut off, by the high half of
 * word index + i of a stream (random.h). NaN, infinities and what BF16 holds exactly stay. F64 is
 * rounded to F32 first. */
typedef struct dpar_mem_round {
    void *to;
    const void *from;
    int64_t count;
    int32_t from_type; /* F64, F32, BF16, F16 */
    int32_t room;      /* 0 */
    uint64_t seed, stream, index;
} dpar_mem_round;

/* Numbers of rows: at[i], below 0: there is no row. With windows: row[w] + at[i] - lo[w] of the
 * first window w that has lo[w] <= at[i] < hi[w], else -1. */
typedef struct dpar_mem_index {
    const void *at;
    int32_t type;    /* DPAR_I32, DPAR_I64 */
    int32_t windows; /* 0, 1, 2 */
    int64_t lo[2], hi[2], row[2];
} dpar_mem_index;

/* to[i] = from[row i of the index], `bytes` each; zeros where there is none. */
typedef struct dpar_mem_gather {
    void *to;
    const void *from;
    int64_t rows, bytes;        /* of `to`; of a row */
    int64_t to_step, from_step; /* bytes from row to row, at least bytes (from_step: or 0) */
    dpar_mem_index index;
} dpar_mem_gather;

/* to[row i of the index] += from[i], for i = 0, 1, ... in that order, each sum rounded to the type:
 * the gradient of gather. The order is the same whatever the launch. */
typedef struct dpar_mem_scatter {
    void *to;
    const void *from;
    int64_t rows, width; /* of `from`; elements of a row, dense on both sides */
    int32_t type;        /* F64, F32 */
    int32_t room;        /* 0 */
    dpar_mem_index index;
} dpar_mem_scatter;

/* to[t] = sum over j < k, in order, of weight[t k + j] from[row t k + j of the index], in f64. What
 * has no row is left out; 0 where none has one. */
typedef struct dpar_mem_combine {
    void *to;
    const void *from;
    const void *weight;         /* NULL: 1 */
    int64_t rows, k, width;     /* of `to`; of each; elements of a row, dense on both sides */
    int32_t to_type, from_type; /* F64, F32, BF16, F16 */
    int32_t weight_type;        /* F64, F32 */
    int32_t room;               /* 0 */
    dpar_mem_index index;       /* of rows x k */
} dpar_mem_combine;

/* to[i] = sum over j of a[i / k][j] b[row i of the index][j], in f64, in an order that width alone
 * fixes; 0 where there is no row. */
typedef struct dpar_mem_dot {
    void *to;
    const void *a, *b;
    int64_t rows, k, width; /* of `to`; k >= 1; elements of a row, dense in a and b */
    int32_t to_type;        /* F64, F32 */
    int32_t type;           /* of a and b: F64, F32, BF16, F16 */
    dpar_mem_index index;   /* at NULL: row i of b */
} dpar_mem_dot;

/* Sums over the tokens that counted. */
typedef struct dpar_cross_entropy_sum {
    double loss, z; /* of the loss without z, and of z lse^2 */
    int64_t tokens; /* that counted */
} dpar_cross_entropy_sum;
/* The parts of dpar_cross_entropy_forward and _backward that one rank does (tensor.h). */
enum {
    DPAR_MEM_CROSS_ENTROPY_PART,    /* reads logits, targets; writes own */
    DPAR_MEM_CROSS_ENTROPY_LOSS,    /* reads all, targets; writes lse, loss, sum */
    DPAR_MEM_CROSS_ENTROPY_GRADIENT /* reads logits, targets, lse; writes logits */
};
/* One part of a cross-entropy. A rank has columns lo[w] <= c < hi[w] of each token's logits, w = 0,
 * 1, of a vocabulary; the other columns are padding. A token counts when its target t is >= 0 and
 * not ignore - 1 (ignore 0: no such condition). h is the column of t, if this rank has it. Sums are
 * in f64; those of PART and GRADIENT, and the sum over tokens, in an order that the sizes alone
 * fix. With x = logits[i][c]:
 *
 *     PART      own[i] = m, s, o:  m the largest x (NaN: any), 0 without columns
 *               s = sum of exp(x - m), all of them -infinity: 0
 *               o = (1 - smoothing) logits[i][h] + smoothing / vocabulary (sum of x)
 *                   (either term 0 where there is no h, or smoothing is 0)
 *     LOSS      M = the largest m of the ranks with s that is not <= 0, S = sum over those, in
 *               order, of s exp(m - M); lse[i] = M + log(S), NaN where S is no number above 0;
 *               l = lse - sum of o; loss[i] = l + z lse^2; sum = of l, of z lse^2, of 1;
 *               over tokens that count; the others' loss is 0
 *     GRADIENT  x = scale ((1 + 2 z lse) exp(x - lse) - smoothing / vocabulary), in column h less
 *               scale (1 - smoothing); 0 for padding and for tokens that do not count */
typedef struct dpar_mem_cross_entropy {
    int32_t phase;
    int32_t type;         /* of logits, own and all: F64, F32 */
    int64_t tokens, rows; /* logits[tokens][rows], dense */
    int64_t lo[2], hi[2]; /* columns, 0 <= lo[0] <= hi[0] <= lo[1] <= hi[1] <= rows; lo = hi:
                             none */
    int64_t vocabulary;
    dpar_mem_index target; /* at: of each token; its row is h */
    int64_t ignore;        /* 0, or 1 + what is ignored */
    double smoothing, z;
    void *logits;
    void *own;       /* [tokens][3] */
    const void *all; /* [ranks][tokens][3]: own of all ranks */
    int32_t ranks;
    int32_t room;                /* 0 */
    double *lse, *loss;          /* [tokens]; loss may be NULL */
    dpar_cross_entropy_sum *sum; /* may be NULL */
    double scale;
} dpar_mem_cross_entropy;

/* Attention to more keys: out and lse become those of both sets. With a, b the two lse of a row,
 * out = (e^a out + e^b more) / (e^a + e^b), taken from the larger of the two. Arithmetic is in f64
 * for F64, in f32 for F32 (factors in f64, rounded to f32). */
typedef struct dpar_mem_attention_merge {
    int32_t type; /* F64, F32: of all */
    int32_t room; /* 0 */
    int64_t rows, values;
    void *out, *lse;             /* [rows][values], [rows] */
    const void *more, *more_lse; /* likewise */
} dpar_mem_attention_merge;

/* Moments of a set of numbers. Variances never come from sums of squares. */
typedef struct dpar_moments {
    double count, mean, m2; /* m2: sum of (x - mean)^2 */
} dpar_moments;

/* Moments of sets: to[set] = (count, mean, sum of (x - mean)^2), as doubles, of the points of all
 * planes of a set. With add they are merged with those that are there. Parts of some points each
 * take two passes and are merged (Chan, Golub, LeVeque), in an order that the sizes alone fix. */
typedef struct dpar_mem_moments {
    const void *x;
    int32_t type;     /* F64, F32, BF16, F16 */
    int32_t dims;     /* 0 .. DPAR_MAX_DIMS */
    int64_t planes;   /* plane p = sample channels + channel, its first point at x[p step] */
    int64_t step;     /* elements */
    int32_t channels; /* at least 1 */
    int32_t groups;   /* set sample groups + channel / (channels / groups); divides channels. 0:
                         set channel */
    double *to;       /* [sets][3] */
    int32_t add;      /* 1 */
    int32_t room;     /* 0 */
    int64_t extent[DPAR_MAX_DIMS]; /* of a plane's points */
    int64_t stride[DPAR_MAX_DIMS];
} dpar_mem_moments;

/* The part of a norm (spatial.h) that one rank does. The sets are those of moments. In f64, with
 * inverse and mean from saved, scale and shift of the channel; sums are in an order that the sizes
 * alone fix. */
enum {
    DPAR_MEM_NORM_MERGE, /* saved[set] = mean, 1 / sqrt(m2 / count + epsilon) of the set's moments
                            in `all`, merged in the order of the ranks; without points mean 0 */
    DPAR_MEM_NORM_APPLY, /* to = inverse scale (x - mean) + shift */
    DPAR_MEM_NORM_SUMS, /* sums[plane] = sum of dy, inverse times sum of dy (x - mean). total[set] =
                           sums over its planes, in order, of scale sums[plane] (both), and of
                           points. sums[plane] are added, in order of the samples, to shift_gradient
                           and scale_gradient[channel] */
    DPAR_MEM_NORM_GRADIENT /* to = inverse (scale dy - total[0] / n - (x - mean) inverse total[1] /
                              n), n = total[2], at least 1 */
};
typedef struct dpar_mem_planes {
    void *data;   /* the first point of plane 0; NULL where no phase of this call needs it */
    int64_t step; /* elements from plane to plane */
    int64_t stride[DPAR_MAX_DIMS];
} dpar_mem_planes;
typedef struct dpar_mem_norm {
    int32_t phase;
    int32_t type;              /* of x, dy, to, scale, shift: F64, F32 */
    int64_t planes;            /* samples x channels */
    int32_t channels, groups;  /* as moments */
    int32_t ranks;             /* MERGE: of `all` */
    int32_t dims;              /* 0 .. DPAR_MAX_DIMS */
    dpar_mem_planes x, dy, to; /* to may be x or dy */
    int64_t extent[DPAR_MAX_DIMS];
    const void *scale, *shift; /* [channels]; NULL: 1, 0 */
    double epsilon;
    const double *all;                       /* [ranks][sets][3] */
    double *saved;                           /* [sets][2]; MERGE writes, the others read it */
    double *sums, *total;                    /* [planes][2], [sets][3] */
    double *scale_gradient, *shift_gradient; /* [channels]; may be NULL */
} dpar_mem_norm;

/* Blocks of `block` floats (the last may be shorter) as 8-bit codes and one F32 scale each. All is
 * in F32 (F64 is rounded to it first), each operation rounded to nearest even:
 *
 *     scale = (largest |x|) / 127, I8; / 448, F8 (e4m3: 4 bits of exponent, bias 7, 3 of mantissa,
 *             no infinity, 0x7f NaN). A block with NaN or infinity has the quiet NaN as its scale
 *             and codes 0; one with a scale below 2^-126 has scale 0 and codes 0
 *     code  = x / scale to the nearest code, even ones of two, at most 127 or 448 of either sign;
 *             what becomes 0 is code 0
 *     x     = code scale, rounded to the type; or x + that, in f64 (dequantize with add) */
typedef struct dpar_mem_quantize {
    void *x; /* quantize reads, dequantize writes */
    int64_t count;
    int64_t block;     /* 1 or more */
    int32_t type;      /* F64, F32, BF16, F16 */
    int32_t code_type; /* DPAR_I8, DPAR_F8 */
    void *code;        /* block b's codes begin b code_step bytes from here */
    void *scale; /* block b's scale lies b scale_step bytes from here, in an array of its own or
                    beside the codes */
    int64_t code_step;  /* at least block */
    int64_t scale_step; /* a multiple of 4, not 0 */
    int32_t add;        /* 1: dequantize adds */
    int32_t format;     /* DPAR_MEM_MXFP8, ...: as below; 0: as above */
    /* What follows is of these formats alone. */
    int32_t stochastic; /* 1: quantize rounds by word index + i of a stream (random.h) */
    int32_t room;       /* 0 */
    uint64_t seed, stream, index;
    const float *tensor; /* DPAR_MEM_NVFP4: a scale of the whole tensor, above 0; NULL: 1 */
} dpar_mem_quantize;

/* Formats of tensor cores: blocks of few bits with a scale of a byte. `block` and code_type do not
 * count; code_step is at least the bytes of a block's codes, scale_step at least 1. Blocks lie in
 * order: the tiles in which a library wants its scales are its own.
 *
 * Codes: e4m3 and e5m2 (bias 15; 0x7c infinity, above it NaN) have a byte. e2m1 is 0, 1/2, 1, 3/2,
 * 2, 3, 4, 6 for codes 0 to 7, and 8 for the sign: two in a byte, elements 0, 2, ... of a block in
 * the low half. The largest are 448, 57344, 6, with exponents e = 8, 15, 2.
 *
 * Scales of MXFP8, MXFP4 (OCP Microscaling Formats 1.0): e8m0, byte s: 2^(s - 127), 255: NaN. It is
 * 2^(exponent of the largest |x| - e), at least 2^-127. Of NVFP4: e4m3, (largest |x|) / 6 / *tensor
 * in F32 to the nearest, at most 448. A *tensor of (largest |x| of all) / 2688 uses all of them.
 * A block with NaN or infinity has NaN as its scale (255, 0x7f) and codes 0.
 *
 *     code  = x / scale, NVFP4: x / (scale *tensor) in F32, 0 where that is 0: the nearest, even
 *             ones of two, at most the largest; what becomes 0 is code 0
 *     x     = code scale, NVFP4: code (scale *tensor), in F32, rounded to the type; or x + that
 *
 * Stochastic: up with the probability of what is cut off. Its first digits (20, 21, 22 of e4m3,
 * e5m2, e2m1; the others are left out) and as many of the word are added: a carry rounds up. */
enum {
    DPAR_MEM_MXFP8 = 1,  /* 32 of e4m3 */
    DPAR_MEM_MXFP8_E5M2, /* 32 of e5m2 */
    DPAR_MEM_MXFP4,      /* 32 of e2m1 */
    DPAR_MEM_NVFP4       /* 16 of e2m1 */
};

/* What layers need of a device's memory: a table of functions. They return DPAR_OK or an error,
 * which breaks the communicator for all ranks. Strategies and layers say what they need; E_UNKNOWN:
 * one that is needed is NULL. Zero what you do not have. */
typedef struct dpar_mem_layers {
    dpar_status (*squares)(void *ctx, const dpar_mem_squares *squares);
    dpar_status (*clip)(void *ctx, const dpar_mem_clip *clip);
    dpar_status (*optimize)(void *ctx, const dpar_mem_optimize *optimize);
    dpar_status (*round)(void *ctx, const dpar_mem_round *round);
    dpar_status (*gather)(void *ctx, const dpar_mem_gather *gather);
    dpar_status (*scatter)(void *ctx, const dpar_mem_scatter *scatter);
    dpar_status (*combine)(void *ctx, const dpar_mem_combine *combine);
    dpar_status (*dot)(void *ctx, const dpar_mem_dot *dot);
    dpar_status (*cross_entropy)(void *ctx, const dpar_mem_cross_entropy *cross_entropy);
    dpar_status (*attention_merge)(void *ctx, const dpar_mem_attention_merge *attention_merge);
    dpar_status (*moments)(void *ctx, const dpar_mem_moments *moments);
    dpar_status (*norm)(void *ctx, const dpar_mem_norm *norm);
    dpar_status (*quantize)(void *ctx, const dpar_mem_quantize *quantize);
    dpar_status (*dequantize)(void *ctx, const dpar_mem_quantize *quantize);
} dpar_mem_layers;

/* The host's own table: plain loops that are done at once; ctx does not count. A communicator
 * without a table (comm->mem NULL) uses it by itself. Local. O(1).
 *
 * A device's functions give equal bits for round, gather, scatter, combine, quantize and
 * dequantize. Elsewhere roots, exponentials and orders of sums may differ in f64's last bits. */
DPAR_API dpar_mem_layers dpar_mem_host_layers(void);

#endif
