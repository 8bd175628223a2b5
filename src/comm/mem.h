/* SPDX-License-Identifier: MIT-0 */
/* mem - memory that the CPU does not reach, a device's say: all that dpar asks of it. Whoever has
 * such memory fills the table in (dpar_cuda.h does); dpar calls it from the thread that calls dpar.
 * dpar_mem_host gives the table of the host's memory: what each function is to compute.
 *
 * An operation takes one struct, which lies in the host's memory and is read before the function
 * returns, as are the arrays of boxes and spans. What its pointers name is device memory, or host
 * memory that the device reaches (pinned, managed), scalars and indices too: it is read and written
 * in stream order, after all work that was given to ctx before, and may be done only later: `wait`
 * waits. A function neither waits nor allocates. E_ARG and nothing done: a type or number outside
 * the domain; sizes of 0 are fine, and then pointers may be NULL. Pointers are aligned to their
 * type; outputs overlap inputs only where they are said to be the same.
 *
 * Numbers: "in f64" means: inputs become doubles, each product and each sum is rounded to f64 (not
 * fused), the result is rounded to its type to nearest even, BF16 and F16 by way of F32. What is
 * NaN and not just copied becomes the quiet NaN without sign and payload where it becomes fewer
 * bits. */
#ifndef DPARI_COMM_MEM_H
#define DPARI_COMM_MEM_H

#include "../base/box.h"
#include "../base/type.h"
#include "../train/optimizer.h"

enum { DPAR_MEM_DIMS = DPAR_MAX_DIMS + 1 }; /* the last for components */

/* One box to be copied: packed, unpacked, filled. For each index i < extent, in all dims,
 *     v = from[i . from_stride], of type from_type
 *     v is rounded to `through`, negated where `negate`, and becomes to_type
 *     to[i . to_stride] = v, or itself op v
 *     from[i . from_stride] = 0 where `clear`
 * The types are one, or two of {F64, F32}, {F32, F16}, {F32, BF16}. */
typedef struct dpar_mem_box {
    void *to, *from;            /* index 0 of either side; one or both in the device's memory */
    int32_t to_type, from_type; /* DPAR_F64, ... */
    int32_t through;            /* no wider than either; the same as both: nothing to round */
    int32_t op;                 /* DPAR_COPY; DPAR_SUM, DPAR_MAX, DPAR_MIN in to_type, 16-bit
                                   floats in F32 */
    int32_t negate;             /* 1: the sign bit of floats; integers wrap */
    int32_t clear;              /* 1: `from` is 0 afterwards */
    int32_t dims;               /* 0 .. DPAR_MEM_DIMS */
    int32_t room;               /* 0 */
    int64_t extent[DPAR_MEM_DIMS];
    int64_t to_stride[DPAR_MEM_DIMS];   /* elements, of either sign */
    int64_t from_stride[DPAR_MEM_DIMS]; /* 0 in a dim: the same there; in all: one everywhere */
} dpar_mem_box;

/* Elements that lie one after the other. v = scale from[i], in f64 (scale 1: from[i] itself);
 * to[i] = v, or to[i] + v (in f64, rounded once). Flatten, unflatten, cast, accumulate, fill. */
typedef struct dpar_mem_span {
    void *to;
    const void *from; /* may be `to` where types have as many bytes. NULL: v = scale */
    int64_t count;
    int32_t to_type, from_type; /* F64, F32, BF16, F16, any two. Of one type, scale 1 and no add:
                                   any type that has bytes, every bit as it is; from NULL and scale
                                   0: any type that has bytes */
    int32_t add;                /* 1 */
    int32_t stochastic;         /* 1: to_type BF16, rounded up or down by number (seed, stream,
                                   index + i), as dpar_round_bf16 does, from F32. Not with add */
    double scale;
    uint64_t seed, stream, index;
} dpar_mem_span;

/* v = x[0] op x[1] op ..., x[p] = from[p stride + i], in that order, as dpari_kern_reduce does: in
 * type `sums`; AVG divides by parts. Then v times scale, to[i] = v, or to[i] + v; all in `sums`,
 * rounded once to to_type. */
typedef struct dpar_mem_reduce {
    void *to; /* may be a part */
    const void *from;
    int64_t count, parts, stride; /* parts >= 1; stride in elements: at least count, or 0 */
    int32_t to_type, from_type;   /* F64, F32, BF16, F16 */
    int32_t sums;                 /* F64; F32 where neither is F64 */
    int32_t op;                   /* DPAR_SUM, AVG, PRODUCT, MAX, MIN: NaN where one is NaN */
    int32_t add;                  /* 1 */
    int32_t room;                 /* 0 */
    double scale;                 /* 1: nothing to multiply. Rounded to `sums` */
} dpar_mem_reduce;

/* *found = first + the smallest i with in[i] NaN or infinite; -1: none is. */
typedef struct dpar_mem_finite {
    const void *in;
    int64_t count, first;
    int32_t type; /* F64, F32, BF16, F16 */
    int32_t keep; /* 1: *found stays where it is not below 0: several arrays, one after the other */
    int64_t *found;
} dpar_mem_finite;

/* *sum = the sum of squares, or itself + that: in f64, in an order that is fixed by count alone,
 * not by the launch (each table has its own). */
typedef struct dpar_mem_squares {
    const void *in;
    int64_t count;
    int32_t type; /* F64, F32, BF16, F16 */
    int32_t add;  /* 1 */
    double *sum;
} dpar_mem_squares;

/* *factor = scale dpar_optimizer_clip(sqrt(*squares), limit). May be the same double. */
typedef struct dpar_mem_clip {
    const double *squares;
    double *factor;
    double limit, scale;
} dpar_mem_clip;

/* dpar_optimizer_step of the piece with factor and, where factor_at is not NULL, *factor_at
 * multiplied (the product 0: gradients count as 0). In f64, as optimizer.h says; roots and
 * divisions may differ in the last bit of f64. */
typedef struct dpar_mem_optimize {
    const dpar_optimizer *optimizer;
    const dpar_optimizer_piece *piece;
    int64_t t;
    double rate, factor;
    const double *factor_at;
    void *copy;        /* the new weights once more, of copy_type, for computing: weights are a
                          master. Rounded stochastically where the optimizer is and copy_type is
                          BF16, by number (seed, t, index + i), else to nearest even; NULL: none */
    int16_t *rest;     /* the weights are F32 in two halves: bits of the F32 = bits of the BF16 in
                          piece->weight << 16, plus rest (with sign): the BF16 is the nearest one,
                          of two the one farther from 0. Not with stochastic; NULL: none */
    int32_t copy_type; /* BF16, F16, F32 */
    int32_t room;      /* 0 */
} dpar_mem_optimize;

/* Numbers of rows: at[i], or, with windows, row[w] + at[i] - lo[w] of the first window w that has
 * lo[w] <= at[i] < hi[w], else -1. Below 0: there is no row. */
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
 * the gradient of gather. Rows that several i name are added in order, whatever the launch. */
typedef struct dpar_mem_scatter {
    void *to;
    const void *from;
    int64_t rows, width; /* of `from`; elements of a row, dense on both sides */
    int32_t type;        /* F64, F32 */
    int32_t room;        /* 0 */
    dpar_mem_index index;
} dpar_mem_scatter;

/* to[t] = sum over j < k, in order, of weight[t k + j] from[row t k + j of the index], in f64; what
 * has no row is left out (all of them: 0). */
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

/* to[i] = sum over j of a[i / k][j] b[row i of the index][j], in f64 (in an order that is fixed by
 * width alone); 0 where there is no row. */
typedef struct dpar_mem_dot {
    void *to;
    const void *a, *b;
    int64_t rows, k, width; /* of `to`; k >= 1; elements of a row, dense in a and b */
    int32_t to_type;        /* F64, F32 */
    int32_t type;           /* of a and b: F64, F32, BF16, F16 */
    dpar_mem_index index;   /* at NULL: row i of b */
} dpar_mem_dot;

/* The parts of dpar_cross_entropy_forward and _backward that are of one rank (tensor.h): */
enum {
    DPAR_MEM_XENT_PART,    /* reads logits, targets; writes own */
    DPAR_MEM_XENT_LOSS,    /* reads all, targets; writes lse, loss, sum */
    DPAR_MEM_XENT_GRADIENT /* reads logits, targets, lse; writes logits */
};
/* A rank has columns lo[w] <= c < hi[w] of each token's logits, w = 0, 1, of a vocabulary; the
 * other columns are padding. A token counts when its target t is >= 0 and not ignore - 1 (ignore 0:
 * that is no condition); h is the column of t, if this rank has it. Sums are in f64, of PART and
 * GRADIENT in an order fixed by the sizes alone, of the sum over tokens too. With x = logits[i][c]:
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
typedef struct dpar_mem_xent {
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
    int32_t room;                       /* 0 */
    double *lse, *loss;                 /* [tokens]; loss may be NULL */
    struct dpar_cross_entropy_sum *sum; /* may be NULL */
    double scale;
} dpar_mem_xent;

/* dpar_attention_merge (sequence.h): arithmetic in f64 for F64, in f32 for F32 (factors in f64,
 * rounded to f32). */
typedef struct dpar_mem_merge {
    int32_t type; /* F64, F32: of all */
    int32_t room; /* 0 */
    int64_t rows, values;
    void *out, *lse;             /* [rows][values], [rows] */
    const void *more, *more_lse; /* likewise */
} dpar_mem_merge;

/* to[set] = (count, mean, sum of (x - mean)^2), as doubles, of the points of all planes of a set,
 * or that of both it and what is there (dpar_moments_merge, spatial.h). Parts of some points each,
 * two passes, merged: never sums of squares; in an order that is fixed by the sizes alone. */
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

/* A norm of spatial.h, what is of one rank. The sets are those of moments. In f64, with inverse and
 * mean from saved, scale and shift of the channel; sums in an order that is fixed by the sizes. */
enum {
    DPAR_MEM_NORM_MERGE,   /* saved[set] = mean, 1 / sqrt(m2 / count + epsilon) of the set's moments
                              in `all`, merged in the order of the ranks; without points mean 0 */
    DPAR_MEM_NORM_APPLY,   /* to = inverse scale (x - mean) + shift */
    DPAR_MEM_NORM_SUMS,    /* sums[plane] = sum of dy, inverse times sum of dy (x - mean);
                              total[set] = sum over its planes, in order, of scale sums[plane], and
                              of points; both of sums[plane] are added, in order of the samples, to
                              shift_gradient and scale_gradient[channel] */
    DPAR_MEM_NORM_GRADIENT /* to = inverse (scale dy - total[0] / n - (x - mean) inverse total[1] /
                              n), n = total[2] or, if that is less, 1 */
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

/* Blocks of `block` floats (the last may be shorter) as 8-bit codes and one F32 scale each, all in
 * F32 (F64 rounded to it first), each operation rounded to nearest even:
 *     scale = (largest |x|) / 127, I8; / 448, F8 (e4m3: 4 bits of exponent, bias 7, 3 of mantissa,
 *             no infinity, 0x7f NaN). A block with NaN or infinity has the quiet NaN as its scale
 *             and codes 0; one with a scale below 2^-126 has scale 0 and codes 0
 *     code  = x / scale to the nearest code, even ones of two, at most 127 or 448 of either sign;
 *             what becomes 0 is code 0
 *     x     = code scale, rounded to the type; or x + that, in f64 (dequantize with add) */
typedef struct dpar_mem_quantize {
    void *x; /* quantize reads, dequantize writes */
    int64_t count;
    int64_t block;      /* 1 or more */
    int32_t type;       /* F64, F32, BF16, F16 */
    int32_t code_type;  /* DPAR_I8, DPAR_F8 */
    void *code;         /* block b's codes begin b code_step bytes from here */
    void *scale;        /* its scale lies b scale_step bytes from here: in an array of its own, or
                           beside the codes */
    int64_t code_step;  /* at least block */
    int64_t scale_step; /* a multiple of 4, not 0 */
    int32_t add;        /* 1: dequantize adds */
    int32_t room;       /* 0 */
} dpar_mem_quantize;

/* The functions return DPAR_OK or an error, which breaks the communicator for all ranks. Halo
 * exchanges need `move` alone, strategies say what they need; one that is NULL and would be needed
 * is E_UNKNOWN. */
typedef struct dpar_mem {
    void *ctx; /* the first argument of each: a device, a stream */
    /* Copies n boxes, after all work that was given to ctx before (kernels that computed what is
     * packed). May return before it is done. With DPAR_COPY no box writes what another one reads or
     * writes: one kernel can do all of them. With SUM, MAX and MIN boxes may meet in `to`: in the
     * order of the array, so that results do not depend on timing. */
    dpar_status (*move)(void *ctx, const dpar_mem_box *boxes, int32_t n);
    /* Returns when all moves and operations are done. */
    dpar_status (*wait)(void *ctx);
    /* `memory` of the host (this rank's, or a peer's that is mapped here) will be one side of
     * moves, until unpin: page-lock it, map it. Ranks that are threads may name the same twice.
     * Whole pages are locked, and CUDA copies no array of which a part is: memory of plans (of ddp,
     * fsdp, halos, the others) best begins and ends with pages of its own. */
    dpar_status (*pin)(void *ctx, void *memory, int64_t bytes);
    dpar_status (*unpin)(void *ctx, void *memory);
    /* n spans, of which none writes what another one reads or writes. */
    dpar_status (*span)(void *ctx, const dpar_mem_span *spans, int32_t n);
    dpar_status (*reduce)(void *ctx, const dpar_mem_reduce *reduce);
    dpar_status (*finite)(void *ctx, const dpar_mem_finite *finite);
    dpar_status (*squares)(void *ctx, const dpar_mem_squares *squares);
    dpar_status (*clip)(void *ctx, const dpar_mem_clip *clip);
    dpar_status (*optimize)(void *ctx, const dpar_mem_optimize *optimize);
    dpar_status (*gather)(void *ctx, const dpar_mem_gather *gather);
    dpar_status (*scatter)(void *ctx, const dpar_mem_scatter *scatter);
    dpar_status (*combine)(void *ctx, const dpar_mem_combine *combine);
    dpar_status (*dot)(void *ctx, const dpar_mem_dot *dot);
    dpar_status (*xent)(void *ctx, const dpar_mem_xent *xent);
    dpar_status (*merge)(void *ctx, const dpar_mem_merge *merge);
    dpar_status (*moments)(void *ctx, const dpar_mem_moments *moments);
    dpar_status (*quantize)(void *ctx, const dpar_mem_quantize *quantize);
    dpar_status (*dequantize)(void *ctx, const dpar_mem_quantize *quantize);
    dpar_status (*norm)(void *ctx, const dpar_mem_norm *norm);
} dpar_mem;

/* Copies one box in the host's memory: what a `move` is to do, to compare it with, or to call for
 * memory that the CPU does reach after all (managed, mapped). Local. O(elements). */
DPAR_API void dpar_mem_move_box(const dpar_mem_box *box);

/* The host's own table: functions that do it at once, with plain loops; ctx is not looked at. What
 * a device's are compared with: equal bits, but for squares, clip, optimize, dot, xent, merge,
 * moments and norm, where roots, exponentials and orders of sums may differ in the last bits of
 * f64. wait, pin and unpin do nothing. Local. */
DPAR_API dpar_mem dpar_mem_host(void);

#endif
