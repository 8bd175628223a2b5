/* SPDX-License-Identifier: MIT-0 */
/* layers - defines the operations that training needs in memory that the CPU cannot access, such as
 * a device's, in addition to those that communicators and halos need (mem.h). You need this file
 * only if you write such operations for a new kind of device; dpar_cuda.h has them for NVIDIA GPUs.
 * They form a table, dpar_mem.layers:
 *
 *     dpar_mem mem = mine;                  move, span, reduce, ... of the device
 *     dpar_mem_layers layers;
 *     layers.gather = my_gather; ...        each gets mem.ctx
 *     mem.layers = &layers;                 keep it as long as mem is used
 *
 * dpar_mem_host_layers returns the table for host memory, which shows what each function must
 * compute. The rules of mem.h for the structs of operations, their pointers and their numbers also
 * apply here. */
#ifndef DPARI_HOST_LAYERS_H
#define DPARI_HOST_LAYERS_H

#include "mem.h"
#include "optimizer.h"

/* Computes the sum of squares of count elements, in f64, in an order that depends only on count,
 * not on the launch. Tables may differ in this order. */
typedef struct dpar_mem_squares {
    const void *in;
    int64_t count;
    int32_t type;       /* F64, F32, BF16, F16 */
    int32_t accumulate; /* 1 adds to *sum, 0 overwrites it */
    double *sum;
} dpar_mem_squares;

/* Computes the factor that clips gradients: *factor = scale dpar_optimizer_clip(sqrt(*squares),
 * limit). factor and squares may be the same double. */
typedef struct dpar_mem_clip {
    const double *squares;
    double *factor;
    double limit, scale;
} dpar_mem_clip;

/* Does a dpar_optimizer_step of a piece, with gradients multiplied by factor, and by *factor_at if
 * factor_at is not NULL. If the product is 0, gradients count as 0. Arithmetic is in f64 as
 * optimizer.h describes; roots and divisions may differ in the last bit of f64. */
typedef struct dpar_mem_optimize {
    const dpar_optimizer *optimizer;
    const dpar_optimizer_piece *piece;
    int64_t step;
    double rate, factor;
    const double *factor_at;
    /* Receives a copy of the new weights in copy_type if piece->weight is a master, or NULL. If the
     * optimizer is stochastic and copy_type is BF16, the copy is rounded with random number (seed,
     * step, index + i), otherwise to nearest even. */
    void *copy;
    /* The lower halves of F32 weights whose upper halves are BF16 numbers in piece->weight, or
     * NULL. The bits of the F32 number are (bits of the BF16 number << 16) + remainder, which is
     * signed. The BF16 number is the nearest one, in a tie the one farther from 0. Not with
     * stochastic. */
    int16_t *remainder;
    int32_t copy_type; /* BF16, F16 or F32 */
    int32_t reserved;  /* 0 */
} dpar_mem_optimize;

/* Rounds stochastically: to[i] = from[i] as BF16, rounded up with the probability of the part that
 * is cut off. It uses the high half of word index + i of a stream (random.h). NaN, infinities and
 * numbers that BF16 represents exactly do not change. F64 is rounded to F32 first. */
typedef struct dpar_mem_round {
    void *to;
    const void *from;
    int64_t count;
    int32_t from_type; /* F64, F32, BF16, F16 */
    int32_t reserved;  /* 0 */
    uint64_t seed, stream, index;
} dpar_mem_round;

/* An index: for each i a row, or none. Without windows, row i of the index is at[i], and there is
 * none if at[i] is below 0. With windows, it is row[w] + at[i] - lo[w] for the first window w with
 * lo[w] <= at[i] < hi[w], and there is none if at[i] is in no window. */
typedef struct dpar_mem_index {
    const void *at;
    int32_t type;    /* of at: DPAR_I32 or DPAR_I64 */
    int32_t windows; /* number of windows: 0, 1 or 2 */
    int64_t lo[2], hi[2], row[2];
} dpar_mem_index;

/* Gathers rows: to[i] = from[row i of the index], or zeros if there is no such row. */
typedef struct dpar_mem_gather {
    void *to;
    const void *from;
    int64_t rows, bytes;        /* rows of `to`, and bytes of a row */
    int64_t to_step, from_step; /* bytes from one row to the next, at least `bytes`; from_step may
                                   be 0 */
    dpar_mem_index index;
} dpar_mem_gather;

/* Scatters rows and adds them, which is the gradient of gather: to[row i of the index] += from[i],
 * for i = 0, 1, ... in that order, whatever the launch. Each sum is rounded to the type. */
typedef struct dpar_mem_scatter {
    void *to;
    const void *from;
    int64_t rows, width; /* rows of `from`, and elements of a row, dense on both sides */
    int32_t type;        /* F64 or F32 */
    int32_t reserved;    /* 0 */
    dpar_mem_index index;
} dpar_mem_scatter;

/* Combines rows: to[t] = sum over j < choices, in order, of weight[t choices + j] from[row t
 * choices + j of the index], in f64. Terms without a row are omitted; if there is none left, the
 * sum is 0. */
typedef struct dpar_mem_combine {
    void *to;
    const void *from;
    const void *weight;           /* [rows][choices]; NULL means 1 */
    int64_t rows, choices, width; /* rows of `to`, terms per row, and elements of a row, dense */
    int32_t to_type, from_type;   /* F64, F32, BF16, F16 */
    int32_t weight_type;          /* F64 or F32 */
    int32_t reserved;             /* 0 */
    dpar_mem_index index;         /* [rows][choices] */
} dpar_mem_combine;

/* Computes products of rows: to[i] = sum over j of a[i / choices][j] b[row i of the index][j], or 0
 * if there is no such row. The sum is in f64, in an order that depends only on width. */
typedef struct dpar_mem_dot {
    void *to;
    const void *a, *b;
    int64_t rows, choices,
        width;       /* elements of `to`, choices >= 1, and elements of a row, dense in a and b */
    int32_t to_type; /* F64 or F32 */
    int32_t type;    /* of a and b: F64, F32, BF16, F16 */
    dpar_mem_index index; /* if index.at is NULL, row i of b is used */
} dpar_mem_dot;

/* Sums of a cross-entropy over the tokens that are counted. */
typedef struct dpar_cross_entropy_sum {
    double loss, z_loss; /* sums of the loss without z_loss, and of z_loss lse^2 */
    int64_t tokens;      /* number of tokens that are counted */
} dpar_cross_entropy_sum;
/* Phases of a cross-entropy: the local parts of dpar_cross_entropy_forward and _backward
 * (tensor.h). */
enum {
    DPAR_MEM_CROSS_ENTROPY_PART,    /* reads logits, targets; writes partial */
    DPAR_MEM_CROSS_ENTROPY_LOSS,    /* reads all, targets; writes lse, loss, sum */
    DPAR_MEM_CROSS_ENTROPY_GRADIENT /* reads logits, targets, lse; writes logits */
};
/* Computes one phase of a cross-entropy. Columns lo[w] <= c < hi[w] of each token's logits, for w =
 * 0 and 1, are this rank's part of the vocabulary; the other columns are padding. A token is
 * counted if its target t is at least 0 and, unless ignore is 0, not ignore - 1. h is the column of
 * t, if this rank has it. Sums are in f64. Those of PART and GRADIENT, and the sum over tokens,
 * have an order that depends only on the sizes. With x = logits[i][c]:
 *
 *     PART      partial[i] = m, s, o:  m = the largest x (any NaN gives NaN), 0 without columns
 *               s = sum of exp(x - m), or 0 if all x are -infinity
 *               o = (1 - smoothing) logits[i][h] + smoothing / vocabulary (sum of x)
 *                   (the first term is 0 without h, the second if smoothing is 0)
 *     LOSS      over ranks whose s is not <= 0: M = the largest m, S = sum, in rank order, of
 *               s exp(m - M); lse[i] = M + log(S), NaN if S is not a number above 0;
 *               l = lse - sum of o; loss[i] = l + z_loss lse^2; sum = sums of l, of
 *               z_loss lse^2, of 1 over tokens that are counted; other tokens have loss 0
 *     GRADIENT  x = scale ((1 + 2 z_loss lse) exp(x - lse) - smoothing / vocabulary),
 *               in column h minus scale (1 - smoothing);
 *               0 for padding and for tokens that are not counted */
typedef struct dpar_mem_cross_entropy {
    int32_t phase;
    int32_t type;         /* of logits, partial and all: F64 or F32 */
    int64_t tokens, rows; /* logits[tokens][rows], dense */
    int64_t lo[2], hi[2]; /* columns, 0 <= lo[0] <= hi[0] <= lo[1] <= hi[1] <= rows; lo = hi means
                             none */
    int64_t vocabulary;
    dpar_mem_index target; /* at[i] is the target of token i, and its row is h */
    int64_t ignore;        /* 0, or 1 + the target that is ignored */
    double smoothing, z_loss;
    void *logits;
    void *partial;   /* [tokens][3] */
    const void *all; /* [ranks][tokens][3] the partial of all ranks */
    int32_t ranks;
    int32_t reserved;            /* 0 */
    double *lse, *loss;          /* [tokens]; loss may be NULL */
    dpar_cross_entropy_sum *sum; /* may be NULL */
    double scale;
} dpar_mem_cross_entropy;

/* Merges the attention to two sets of keys: out and lse become those of the union. With a = lse and
 * b = more_lse of a row, out = (e^a out + e^b more) / (e^a + e^b), computed relative to the larger
 * of a and b. Arithmetic is in f64 for F64 and in f32 for F32 (with factors in f64, rounded to
 * f32). */
typedef struct dpar_mem_attention_merge {
    int32_t type;     /* of all arrays: F64 or F32 */
    int32_t reserved; /* 0 */
    int64_t rows, values;
    void *out, *lse;             /* [rows][values], [rows] */
    const void *more, *more_lse; /* [rows][values], [rows] */
} dpar_mem_attention_merge;

/* Moments of a set of numbers. dpar never computes variances from sums of squares, because these
 * would cancel. */
typedef struct dpar_moments {
    double count, mean, m2; /* m2: sum of (x - mean)^2 */
} dpar_moments;

/* Computes moments of sets: to[set] = (count, mean, sum of (x - mean)^2), as doubles, over the
 * points of all planes of a set. With accumulate they are merged with the present contents. The
 * points are divided into parts. The moments of a part take two passes, and parts are merged (Chan,
 * Golub, LeVeque) in an order that depends only on the sizes. */
typedef struct dpar_mem_moments {
    const void *x;
    int32_t type;     /* F64, F32, BF16, F16 */
    int32_t dims;     /* 0 .. DPAR_MAX_DIMS */
    int64_t planes;   /* plane p = sample channels + channel begins at x[p step] */
    int64_t step;     /* elements */
    int32_t channels; /* at least 1 */
    int32_t groups;   /* divides channels; the set is sample groups + channel / (channels / groups).
                         0 selects the set `channel` */
    double *to;       /* [sets][3] */
    int32_t accumulate;            /* 1 merges with `to`, 0 overwrites it */
    int32_t reserved;              /* 0 */
    int64_t extent[DPAR_MAX_DIMS]; /* points of a plane */
    int64_t stride[DPAR_MAX_DIMS];
} dpar_mem_moments;

/* Phases of a norm, which are the local parts of the norms in spatial.h. The sets are those of
 * moments. Arithmetic is in f64. mean and inverse are saved[set], scale and shift those of the
 * channel. Sums have an order that depends only on the sizes. */
enum {
    /* saved[set] = (mean, 1 / sqrt(m2 / count + epsilon)) of the set's moments in `all`, merged in
     * rank order. The mean of a set without points is 0. */
    DPAR_MEM_NORM_MERGE,
    DPAR_MEM_NORM_APPLY, /* to = inverse scale (x - mean) + shift */
    /* sums[plane] = (sum of dy, inverse times sum of dy (x - mean)). total[set] = sums over its
     * planes, in order, of scale sums[plane][0], scale sums[plane][1] and the number of points.
     * sums[plane][0] and [1] are added, in the order of the samples, to shift_gradient[channel] and
     * scale_gradient[channel]. */
    DPAR_MEM_NORM_SUMS,
    /* to = inverse (scale dy - total[0] / n - (x - mean) inverse total[1] / n), where n = total[2],
     * at least 1. */
    DPAR_MEM_NORM_GRADIENT
};
/* Planes of an array in memory. */
typedef struct dpar_mem_planes {
    void *data;   /* first point of plane 0; NULL if the phase does not use it */
    int64_t step; /* elements from one plane to the next */
    int64_t stride[DPAR_MAX_DIMS];
} dpar_mem_planes;
/* Computes one phase of a norm. */
typedef struct dpar_mem_norm {
    int32_t phase;
    int32_t type;              /* of x, dy, to, scale and shift: F64 or F32 */
    int64_t planes;            /* samples x channels */
    int32_t channels, groups;  /* as in dpar_mem_moments */
    int32_t ranks;             /* MERGE: number of ranks in `all` */
    int32_t dims;              /* 0 .. DPAR_MAX_DIMS */
    dpar_mem_planes x, dy, to; /* to may be x or dy */
    int64_t extent[DPAR_MAX_DIMS];
    const void *scale, *shift; /* [channels]; NULL means 1 and 0 */
    double epsilon;
    const double *all;                       /* [ranks][sets][3] */
    double *saved;                           /* [sets][2]; MERGE writes it, other phases read it */
    double *sums, *total;                    /* [planes][2], [sets][3] */
    double *scale_gradient, *shift_gradient; /* [channels]; may be NULL */
} dpar_mem_norm;

/* Converts floats to codes and back: each block of `block` floats (the last may be shorter) has
 * 8-bit codes and one F32 scale. Arithmetic is in F32 (F64 is rounded to it first), and each
 * operation is rounded to nearest even:
 *
 *     scale = (largest |x|) / 127 for I8, / 448 for F8 (e4m3: 4 bits of exponent with bias 7, 3 of
 *             mantissa, no infinity, 0x7f is NaN). A block with NaN or infinity has the quiet NaN
 *             as its scale and codes 0. A block with a scale below 2^-126 has scale 0 and codes 0
 *     code  = x / scale rounded to the nearest code (to even in a tie), between -127 and 127 or
 *             between -448 and 448; values that round to 0 have code 0
 *     x     = code scale, rounded to the type; dequantize with accumulate computes x + code scale
 *             in f64 */
typedef struct dpar_mem_quantize {
    void *x; /* quantize reads it, dequantize writes it */
    int64_t count;
    int64_t block;     /* 1 or more */
    int32_t type;      /* F64, F32, BF16, F16 */
    int32_t code_type; /* DPAR_I8 or DPAR_F8 */
    void *code;        /* the codes of block b begin b code_step bytes from here */
    void *scale; /* the scale of block b is b scale_step bytes from here, in a separate array or
                    next to the codes */
    int64_t code_step;  /* at least block */
    int64_t scale_step; /* a multiple of 4, not 0 */
    int32_t accumulate; /* 1 makes dequantize add to x */
    int32_t format;     /* 0 selects this format, DPAR_MEM_MXFP8, ... one of the formats below */
    /* The remaining fields are used only by the formats below. */
    int32_t stochastic; /* 1 makes quantize round with word index + i of a stream (random.h) */
    int32_t reserved;   /* 0 */
    uint64_t seed, stream, index;
    const float *tensor; /* DPAR_MEM_NVFP4: scale of the whole tensor, above 0; NULL means 1 */
} dpar_mem_quantize;

/* Formats for tensor cores: blocks of 4-bit or 8-bit codes with a scale of one byte. `block` and
 * code_type are ignored. code_step is at least the size of a block's codes in bytes, and scale_step
 * is at least 1. Blocks are stored in order; if a library needs scales in tiles, you must rearrange
 * them.
 *
 * Codes: e4m3 and e5m2 (bias 15; 0x7c is infinity, above it is NaN) take a byte. For e2m1, codes 0
 * to 7 are 0, 1/2, 1, 3/2, 2, 3, 4, 6, and 8 is the sign bit. A byte holds two e2m1 codes, with
 * elements 0, 2, ... of a block in the low half. The largest numbers of e4m3, e5m2 and e2m1 are
 * 448, 57344 and 6, with exponents e = 8, 15 and 2.
 *
 * Scales of MXFP8 and MXFP4 (OCP Microscaling Formats 1.0) are e8m0: byte s means 2^(s - 127), and
 * 255 is NaN. The scale is 2^(exponent of the largest |x| - e), at least 2^-127. Scales of NVFP4
 * are e4m3: (largest |x|) / 6 / *tensor in F32, rounded to nearest, at most 448. To use the whole
 * range, set *tensor to (largest |x| of all blocks) / 2688, where 2688 = 6 x 448. A block with NaN
 * or infinity has NaN as its scale (255, 0x7f) and codes 0.
 *
 *     code  = x / scale, for NVFP4 x / (scale *tensor), in F32, or 0 if the divisor is 0. It is
 *             rounded to nearest (to even in a tie), at most to the largest number. Values that
 *             round to 0 have code 0
 *     x     = code scale, for NVFP4 code (scale *tensor), in F32, rounded to the type. With
 *             accumulate, dequantize computes x + that
 *
 * Stochastic rounding rounds up with a probability equal to the part that is cut off. The first
 * binary digits of that part are added to the same number of digits of the random word, and a carry
 * rounds up. The number of digits is 20 for e4m3, 21 for e5m2 and 22 for e2m1. */
enum {
    DPAR_MEM_MXFP8 = 1,  /* blocks of 32 e4m3 */
    DPAR_MEM_MXFP8_E5M2, /* blocks of 32 e5m2 */
    DPAR_MEM_MXFP4,      /* blocks of 32 e2m1 */
    DPAR_MEM_NVFP4       /* blocks of 16 e2m1 */
};

/* The table of functions that training needs in a device's memory. Each returns DPAR_OK or an
 * error, which breaks the communicator for all ranks. Set functions that you do not implement to
 * NULL. A strategy or layer that needs one of these fails with DPAR_E_UNKNOWN. */
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

/* Returns the table for host memory: plain loops, which are complete when they return and ignore
 * ctx. If comm->mem is NULL, a communicator uses them anyway. Local. O(1).
 *
 * The functions of a device give the same bits for round, gather, scatter, combine, quantize and
 * dequantize. The results of the other functions may differ in the last bits of f64, because roots,
 * exponentials and the order of sums differ. */
DPAR_API dpar_mem_layers dpar_mem_host_layers(void);

#endif
