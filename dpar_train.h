/* SPDX-License-Identifier: MIT-0 */
/* dpar_train.h - trains networks on many ranks: data (ddp, ZeRO, fsdp), tensor, sequence, expert and pipeline
 * parallelism.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 * You can use one strategy or combine several on one mesh. You provide models, kernels and memory; dpar decides what
 * to send when, and sends it. If comm->mem is the memory of a device, the same calls work there.
 *
 * In this program each rank computes gradients from its own samples, in an array that the code already has. Their
 * average over the ranks is the gradient for all samples:
 *
 *     #include "dpar_train.h"
 *     #include <stdio.h>
 *     static int train(dpar_comm *world, void *unused)
 *     {
 *         void *memory = NULL;
 *         float *grads;
 *         const int64_t count = 4;
 *         dpar_ddp_desc desc = {0};
 *         dpar_ddp *ddp = NULL;
 *         dpar_why why;
 *         int i;
 *         (void)unused;
 *         if (dpar_comm_alloc(world, 4 * sizeof *grads, &memory) < 0) {      in place of malloc
 *             return dpar_fail(world, NULL);
 *         }
 *         grads = (float *)memory;
 *         desc.params = 1;
 *         desc.count = &count;
 *         desc.type = DPAR_F32;
 *         desc.gradients = grads;
 *         if (dpar_ddp_make(world, &desc, &ddp, &why) < 0) {
 *             return dpar_fail(world, &why);
 *         }
 *         for (i = 3; i >= 0; i--) {                      each step: backward, as before
 *             grads[i] = (float)(world->rank + i);
 *         }
 *         if (dpar_ddp_end(ddp) < 0) {                    grads are averages
 *             return dpar_fail(world, NULL);
 *         }
 *         printf("rank %d: the average of the last is %g\n", (int)world->rank, (double)grads[3]);
 *         return dpar_ddp_free(ddp) < 0;
 *     }
 *     int main(int argc, char **argv)
 *     {
 *         return dpar_launch_main(argc, argv, train, NULL);         --ranks 4 here, or mpiexec, srun, torchrun
 *     }
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. yours.c -o yours
 *
 * The parts follow, and most begin with an example: random, optimizer, layers (for authors of device support), ddp,
 * zero1, fsdp, matrices, tensor, sequence, ulysses, router, expert and pipeline. apps/train_gpt.c uses most of them. */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar_schedule.h")
#error dpar_train.h needs dpar_schedule.h beside it, of the same release
#endif
#endif
#include "dpar_schedule.h"
#ifdef __has_include
#if !__has_include("dpar_comm.h")
#error dpar_train.h needs dpar_comm.h beside it, of the same release
#endif
#endif
#include "dpar_comm.h"
#endif
#if DPAR_VERSION != 200
#error dpar_train.h and dpar.h are of different versions: take all headers from one release
#endif

#ifndef DPAR_TRAIN_H
#define DPAR_TRAIN_H

/* ==== host/random.h ==== */

/* random - computes random numbers that do not depend on the number of ranks: for initial values,
 * and for dropout on activations that several ranks hold. There is no state: number `index` of a
 * stream is a function of (seed, stream, index) only. It is the same on every rank, in whatever
 * order numbers are drawn.
 *
 * This is dropout of element (i, j) of an array of `width` columns, with one stream per layer and
 * step:
 *
 *     u = dpar_random_uniform(seed, stream, i width + j);
 *     y = u < p ? 0 : x / (1 - p);
 *     dx = u < p ? 0 : dy / (1 - p);
 *
 * Let `index` be the position in the whole array. Ranks that hold the same element then draw the
 * same number for it as a single rank would. For kernels on a device, dpar_cuda.h has functions for
 * these numbers and for this dropout in f32 (dpar_cuda_dropout_one, dpar_cuda_dropout_four). The
 * generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC11), which encrypts a counter. */

/* Returns a uniform random number strictly between 0 and 1. It is (word + 1/2) / 2^32, where word
 * is the 32-bit word `index` of the stream.
 *
 * Each Philox block gives four words, with the key seed and the counter (block, stream), low words
 * first. Local. O(1). */
DPAR_API double dpar_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* Returns a normal random number with mean 0 and standard deviation 1, between -6.34 and 6.34. It
 * is the inverse of the normal distribution function (Wichura's AS 241, within 1e-12) at
 * dpar_random_uniform(seed, stream, index). Local. O(1). */
DPAR_API double dpar_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* ==== host/optimizer.h ==== */

/* optimizer - updates any piece of the parameters with AdamW or SGD, in host memory. A rank of ZeRO
 * updates its shard with it; a single rank updates all parameters.
 *
 *     dpar_optimizer o;
 *     dpar_optimizer_init(&o, DPAR_OPTIMIZER_ADAMW);
 *     dpar_optimizer_step(&o, &piece, t, 1e-3, dpar_optimizer_clip(norm, 1.0));    t = 1, 2, ...
 *
 * Each element is converted to f64, updated, and rounded once when it is stored. Its bits therefore
 * depend neither on its address nor on how the parameters are divided.
 *
 *     AdamW (Loshchilov and Hutter 2019), decay decoupled from the gradient:
 *         w -= rate decay w;   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g g
 *         w -= rate / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + epsilon)
 *     SGD (as in PyTorch, where decay is a part of the gradient):
 *         g += decay w;   m = momentum m + g;   w -= rate m, or rate (g + momentum m) (nesterov)
 *
 * g is the gradient times `factor`, which combines the clip, a loss scale and an average. A factor
 * of 0 replaces all gradients by 0, even NaN, so that the step only decays moments and weights.
 *
 * Moments may be BF16 (moment_type). If weights and gradients are BF16, too, a step of AdamW moves
 * 14 bytes per element. The weights are computed from m and v before these are rounded.
 *
 * Round such moments stochastically, so that on average they follow the sums above. Rounded to
 * nearest, they would get stuck. With beta2 = 0.999, v never falls, because a thousandth of v is
 * less than half a unit in the last of its 8 bits (2^-9 to 2^-8 of v). Nor does v grow until g g is
 * 3 to 5 times v. With beta1 = 0.9, m does not change while g is within 2 to 4 % of m.
 *
 * Moments may be 8-bit codes (moment_type DPAR_F8), which take 2.03 bytes per element for both.
 * Blocks of 256 elements have a record of 260 bytes: codes, and an F32 scale, a power of two. A
 * code has 3 bits of fraction; m has a sign and 4 bits of exponent, v has 5 bits of exponent:
 *
 *     value = scale (1 + (code & 7) / 8) 2^(code >> 3), or 0 for code 0
 *
 * They are always rounded stochastically, because v would never change if it were rounded to
 * nearest. The error of one rounding is below 1/8 of the value and 0 on average, except for values
 * below 2^-14 of the largest m of the block, or 2^-30 of the largest v. Such an m becomes 0 or the
 * smallest value, on average itself. Such a v becomes the smallest value, but never 0, so that
 * updates stay bounded. Infinities and NaNs are kept, but their blocks lose the other elements. */

/* Kinds of optimizers. 0 means that none was chosen, which is an error. */
enum { DPAR_OPTIMIZER_ADAMW = 1, DPAR_OPTIMIZER_SGD };

/* Describes an optimizer. Begin with dpar_optimizer_init and change what differs. */
typedef struct dpar_optimizer {
    int32_t kind;     /* DPAR_OPTIMIZER_ADAMW or DPAR_OPTIMIZER_SGD */
    int32_t nesterov; /* SGD: 1 selects Nesterov momentum */
    /* 1 rounds to BF16 stochastically: up with a probability equal to the remainder, so that small
     * updates are not lost on average. Element i of a piece uses word index + i of a stream of
     * `seed` (random.h). Weights use the high half of the words of stream t. Moments use stream t +
     * 2^63, m the high half and v the low half. */
    int32_t stochastic;
    int32_t moment_type; /* 0 selects F64 for F64 weights and F32 for others; DPAR_BF16 and DPAR_F8
                            select BF16 and 8-bit codes, for weights that are not F64 */
    uint64_t seed;       /* of the random numbers for `stochastic` */
    double beta1, beta2, epsilon; /* used by AdamW */
    double momentum;              /* used by SGD */
    double decay;                 /* weight decay */
} dpar_optimizer;
/* Fills in the defaults of a kind of optimizer. DPAR_OPTIMIZER_ADAMW has beta1 0.9, beta2 0.999,
 * epsilon 1e-8 and decay 0.01, as torch.optim.AdamW has. DPAR_OPTIMIZER_SGD has neither momentum
 * nor decay. Local. O(1). */
DPAR_API void dpar_optimizer_init(dpar_optimizer *optimizer, int32_t kind);
/* Checks an optimizer for weights of a type, and reports the arrays that it keeps for them.
 *
 * moments:     set to the number of arrays: 2 for AdamW, 1 for SGD with momentum, 0 for SGD
 *              without. May be NULL.
 * moment_type: set to the type of their elements. May be NULL.
 *
 * Local. O(1). Fails with DPAR_E_ARG if a kind, flag, type or number is outside of its domain, or
 * if moments are BF16 or F8 but weights F64. beta1, beta2 and momentum must be at least 0 and below
 * 1, decay at least 0, and epsilon above 0. */
DPAR_API dpar_status dpar_optimizer_check(const dpar_optimizer *optimizer, int32_t weight_type,
                                          int32_t *moments, int32_t *moment_type, dpar_why *why);

/* A parameter group, as in PyTorch: numbers for some of the parameters. */
typedef struct dpar_optimizer_group {
    double decay;        /* weight decay in place of the optimizer's; 0 means none */
    double rate;         /* factor for the rate of the step; 0 selects 1 */
    double beta1, beta2; /* AdamW: in place of the optimizer's; 0 selects the optimizer's */
} dpar_optimizer_group;

/* A piece of the parameters: elements index .. index + count - 1 of all parameters. */
typedef struct dpar_optimizer_piece {
    void *weight;         /* [count] of weight_type: F64, F32, BF16 or F16 */
    const void *gradient; /* [count] of gradient_type, any of these types */
    void *m, *v; /* [count] of the type that dpar_optimizer_check reports; 0 before the first step;
                    NULL if the optimizer has no such array */
    int32_t weight_type, gradient_type;
    int64_t count;
    /* Index of the first element. It selects the random numbers, so that an element gets the same
     * number however the parameters are divided. If moments are F8, m and v are arrays of records
     * of 260 bytes. They begin with the record of the first element's block, and block b has
     * elements 256 b .. 256 b + 255 of all parameters. A piece may begin and end inside of a block,
     * but whole blocks are faster and round each moment only once. */
    uint64_t index;
} dpar_optimizer_piece;
/* Updates a piece of the parameters by one step of the optimizer.
 *
 * t:      number of the step, 1 for the first.
 * rate:   learning rate.
 * factor: gradients are multiplied by it.
 *
 * Local. O(count). Fails with DPAR_E_ARG, and does nothing, if dpar_optimizer_check rejects the
 * optimizer, a type is wrong, t is below 1, count is below 0, or an array that is needed is NULL.
 * There is no message, but dpar_optimizer_check has one. */
DPAR_API dpar_status dpar_optimizer_step(const dpar_optimizer *optimizer,
                                         const dpar_optimizer_piece *p, int64_t t, double rate,
                                         double factor);

/* Returns the factor that reduces the norm of the gradients to at most `limit`: min(1, limit /
 * (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ computes it. A limit of 0 or less gives 1. A
 * norm that is NaN or infinite gives 0, so that the step ignores the gradients. Local. O(1). */
DPAR_API double dpar_optimizer_clip(double norm, double limit);

/* ==== host/layers.h ==== */

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

/* ==== train/update.h ==== */

/* update - the numbers of one step of an optimizer on gradients that are divided among ranks.
 * dpar_zero1_update and dpar_fsdp_update compute the norm of all gradients, clip them, and update
 * the weights. If a gradient is NaN or infinite, they skip the step as a whole on all ranks, as
 * PyTorch's GradScaler does: weights, moments and the number of steps keep their bits.
 *
 *     dpar_update update = {0};                          mixed precision with loss scaling
 *     update.clip = 1.0;
 *     each step:
 *         backward of scale * loss
 *         update.rate = rate;
 *         update.factor = 1.0 / scale;
 *         status = dpar_zero1_update(zero1, &update);    or dpar_fsdp_update(fsdp, &update)
 *         if (status == DPAR_SKIPPED) {
 *             scale /= 2.0;                              on all ranks
 *         }
 *         ... update.norm is the norm of the gradients of the loss ...
 *
 * DPAR_SKIPPED is positive, so it is not an error. Zero the gradients as after any other step.
 *
 * For an optimizer of your own, dpar_ddp_norm, dpar_zero1_norm and dpar_fsdp_norm do the first half
 * of such a step. Your update then multiplies each gradient by update.scale. */

/* The numbers of a step. Zero it and fill in what differs from the defaults. All ranks pass the
 * same rate, clip and factor. */
typedef struct dpar_update {
    double rate;   /* learning rate */
    double clip;   /* largest norm of all gradients (dpar_optimizer_clip); 0 or less means no
                      limit */
    double factor; /* gradients are multiplied by it before they are clipped; 0 selects 1 */
    /* The ranks that hold other parameters of the same model, such as tensor-parallel ranks and
     * pipeline stages. The norm is then that of all their gradients. NULL if there are none. Costs
     * one more all-reduce of 8 bytes. If they pass other numbers, the step fails with
     * DPAR_E_MISMATCH. */
    dpar_comm *model;
    /* [parameters of the ddp or fsdp] 1 for a parameter of which a lower rank of `model` has a
     * copy, such as the norms of tensor-parallel layers, so that the norm counts it once. NULL if
     * there are none. */
    const uint8_t *duplicate;
    /* Set to the norm of all gradients, after `factor` and before `clip`. It is NaN or infinite if
     * the step is skipped. A norm that is too large for f64 also skips the step. */
    double norm;
    double scale; /* set to the number by which gradients are multiplied: factor times the clip */
} dpar_update;

/* ==== train/ddp.h ==== */

/* ddp - averages gradients over all ranks while backward runs, for a model that every rank holds
 * whole. The gradients stay in the array or arrays that a training code already has, or dpar
 * allocates them.
 *
 *     dpar_comm_alloc(world, n * sizeof *grads, &memory);          in place of malloc
 *     grads = (float *)memory;
 *     dpar_broadcast(world, weights, n, DPAR_F32, 0, NULL);        all ranks start equal
 *     dpar_ddp_desc desc = {0};
 *     desc.params = 1;
 *     desc.count = &n;
 *     desc.type = DPAR_F32;
 *     desc.gradients = grads;
 *     dpar_ddp_make(world, &desc, &ddp, &why);
 *     each step:
 *         backward, as before
 *         dpar_ddp_end(ddp);                                       grads are averages
 *         update, as before
 *     dpar_ddp_free(ddp);
 *
 * To send gradients while backward is still running, describe each parameter (desc.params and
 * desc.count) and report each one that is complete, in any order:
 *
 *         backward: grads of parameter i are complete; dpar_ddp_ready(ddp, i);
 *
 * The parameters are cut into buckets, from the last parameter to the first. A bucket is sent as
 * soon as all its gradients are ready. The buckets are sent in the same order on all ranks,
 * whatever order their gradients become ready in. Gradients that were not reported are sent by
 * dpar_ddp_end.
 *
 * Micro-batches: accumulate the gradients, and call dpar_ddp_ready and dpar_ddp_end only in the
 * last micro-batch. If your code reports gradients in every micro-batch, enclose each earlier one
 * in dpar_ddp_begin(ddp, 0) and dpar_ddp_end, so that it sends nothing. A weight that is used twice
 * (a tied weight) is one parameter, which is ready after its second use. Between steps you may
 * change the gradients: zero them, for instance with dpar_ddp_zero, or let backward overwrite them.
 * Evaluation needs no call.
 *
 * Guarantees. Sums are computed in rank order (comm.h), so all ranks get the same bits in every
 * run, with one bucket or many, whoever owns the arrays. Only dpar_ddp_make allocates. A step costs
 * an all-reduce of all elements, including the padding of desc.align. Communication advances during
 * the calls below, or all the time with dpar_comm_progress, and so overlaps with backward.
 * Registered memory (dpar_comm_alloc) is reduced in place; other memory gives the same result but
 * is copied on the way.
 *
 * If comm->mem is the memory of a device, the gradients are in that memory. The reduction that
 * dpar_ddp_ready posts starts after the work that is already in the device's stream, and work that
 * you add to the stream after dpar_ddp_end sees the result. The thread waits for the device only
 * with desc.check_finite: once per bucket, or once per array with desc.arrays.
 *
 * zero1.h trains with ZeRO-1 on the same flat array. */

/* Reduces a bucket in place of the all-reduce. It is your callback, like a communication hook of
 * PyTorch's DDP.
 *
 * data:  [count] elements of `type`, this rank's gradients, neither summed nor averaged. When *work
 *        is complete, they must hold the result for all ranks.
 * work:  post the communication with it. If the hook waits itself, it leaves *work unchanged.
 *
 * It is called for the same buckets in the same order on all ranks. An error ends the step on this
 * rank only; abort comm to end it on all ranks. */
typedef dpar_status (*dpar_ddp_hook)(void *ctx, dpar_comm *comm, int32_t bucket, void *data,
                                     int64_t count, int32_t type, dpar_work *work);

/* Describes a ddp. Zero it and fill in what differs from the defaults. All ranks pass the same
 * values, except for addresses, ctx and names. Either all ranks set gradients, or all set arrays,
 * or none sets either. */
typedef struct dpar_ddp_desc {
    int32_t params;       /* number of parameters, in the order in which forward uses them */
    int32_t type;         /* of the gradients: DPAR_F64, F32, F16 or BF16. Required */
    const int64_t *count; /* [params] elements of each parameter, 0 or more. Only make reads it */
    /* Your array of gradients: all parameters one after the other, without gaps, in the memory of
     * the communicator. You keep it until the ddp is freed. */
    void *gradients;
    /* Or [params] your arrays, one per parameter, without overlap. You keep the arrays until the
     * ddp is freed; only make reads the list of their addresses. Arrays of less than 64 KiB (with a
     * hook all arrays) are copied, so that they can be sent together. If gradients and arrays are
     * both NULL, dpar allocates the gradients. */
    void *const *arrays;
    /* Type in which gradients are sent: 0 for the type that they have, F32 for gradients in F64,
     * F16 or BF16 for gradients in F32. They are rounded to nearest, summed in F32 and rounded once
     * more. Each rounding changes a value by at most 2^-8 of it (BF16) or 2^-11 of it (F16, from
     * 2^-14 to 65504; larger values become infinite). This needs a copy of all gradients in the
     * wire type, with one exception: if the ranks share memory, F32 gradients without a hook are
     * rounded while they are added.
     *
     * DPAR_I8 and DPAR_F8 send any type in blocks of 256 8-bit codes with a scale, which is a
     * quarter of the bytes of F32. Each rank quantizes its gradients (dpar_mem_quantize), an
     * all-to-all sends each piece to one rank, which adds them in F32 in rank order, and an
     * all-gather sends the quantized averages. Every gradient is thus rounded twice. In a block
     * whose largest absolute value is M, the error of an I8 code is at most M / 254, and that of
     * an F8 code at most 1/16 of the value or M / 2^18. The error of an average is at most the mean
     * of these errors over the ranks, plus the error of the code of the average. F64 values are
     * rounded to F32 first. NaN and infinity make the whole block NaN, and a block in which M is
     * below 6e-36 may become 0. Cannot be combined with a hook or zero1. */
    int32_t wire_type;
    int32_t sum; /* 1 computes sums over the ranks; 0 averages */
    /* 1 makes dpar_ddp_end fail with DPAR_E_ARG on all ranks, naming the parameters, if some were
     * not reported ready in the last pass of a step. With 0, dpar_ddp_end sends the present
     * contents of such gradients. */
    int32_t require_ready;
    /* 1 makes dpar_ddp_end find out which parameters any rank reported, for dpar_ddp_gradient.
     * Costs an all-reduce of one byte per parameter. Cannot be combined with require_ready. */
    int32_t track_used;
    /* 1 checks each bucket for NaN and infinity before it is rounded and sent. If there is one, the
     * communicator breaks with DPAR_E_ARG on all ranks, naming parameter, element and rank. Use it
     * if such values are errors; with scaled losses, inspect the reduced gradients instead. */
    int32_t check_finite;
    int64_t first_bucket_bytes; /* size of the first bucket, sent early; 0 selects 1 MiB */
    int64_t bucket_bytes; /* size of the other buckets; 0 selects 25 MiB. A bucket is larger if
                             it consists of one larger parameter, which is never cut */
    int64_t align; /* parameters that dpar allocates begin at multiples of this many elements; 0
                      selects 64. Must be 0 with gradients or arrays */
    dpar_ddp_hook hook; /* is called with each bucket as one contiguous block; NULL selects the
                           all-reduce */
    void *ctx;          /* passed to hook */
    const char *const *names; /* [params] names of the parameters for messages, which you keep until
                                 the ddp is freed. If NULL, messages give their numbers */
    /* Your memory for the ddp's own data (not the gradients), aligned to 64 bytes, which you keep
     * until the ddp is freed. If it is NULL and bytes is 0, make allocates it. */
    void *memory;
    int64_t bytes; /* size of memory. If that is too small or not aligned, make fails with
                      DPAR_E_ROOM, and why.bytes is the size that this rank needs. To query that
                      size, set memory to NULL and bytes to 1 */
} dpar_ddp_desc;

/* A handle to gradients that are averaged over the ranks. */
typedef struct dpar_ddp dpar_ddp;

/* Makes a ddp. Gradients that dpar allocates (dpar_comm_alloc) are set to 0; yours stay as they
 * are.
 *
 * Collective over comm. Compares the descriptors with small collectives. O(params log(params)), and
 * O(elements) for gradients that dpar allocates. Fails on all ranks with DPAR_E_MISMATCH if the
 * descriptors differ, DPAR_E_ARG, DPAR_E_RANGE, DPAR_E_ROOM or DPAR_E_MEMORY. */
DPAR_API dpar_status dpar_ddp_make(dpar_comm *comm, const dpar_ddp_desc *desc, dpar_ddp **ddp,
                                   dpar_why *why);
/* Frees a ddp, and the gradients if dpar allocated them. NULL is allowed.
 *
 * No communication, but no other rank may still be in a pass. O(buckets). Fails with DPAR_E_ARG if
 * a pass is in progress and the communicator is not broken, or if its dpar_zero1 still exists. */
DPAR_API dpar_status dpar_ddp_free(dpar_ddp *ddp);
/* Returns the address of parameter i's gradient (count[i] elements), or NULL if there is no such
 * parameter. The address does not change until the ddp is freed.
 *
 * used: set to 1 if the parameter was reported since dpar_ddp_zero, otherwise to 0. Reports of this
 *       rank count, or with desc.track_used those of all ranks, after the end of the last pass. May
 *       be NULL.
 *
 * Local. O(1). */
DPAR_API void *dpar_ddp_gradient(const dpar_ddp *ddp, int32_t i, int *used);
/* Sets all gradients to 0 and marks all parameters as unused. Call it before the first micro-batch
 * of a step. Local. O(elements). */
DPAR_API void dpar_ddp_zero(dpar_ddp *ddp);
/* Begins a backward pass. Optional if last is 1, because dpar_ddp_ready and dpar_ddp_end begin such
 * a pass if none is in progress.
 *
 * last: 1 if the accumulated gradients are sent in this pass, 0 if more micro-batches follow and
 *       nothing is sent.
 *
 * Local. O(1), and O(params) in about every 255th call. Fails with DPAR_E_ARG if the previous pass
 * has not ended, or with the status of a broken communicator; then no pass begins. The message of
 * an error is in comm->why, also for the functions below. */
DPAR_API dpar_status dpar_ddp_begin(dpar_ddp *ddp, int32_t last);
/* Marks the gradient of parameter i as complete for this pass. Sends the next bucket if that
 * completes it, and those after it that are already complete. Optional. Do not touch the gradient
 * again before the pass ends. Each rank may report its parameters in its own order.
 *
 * Local, except that other ranks need this rank's gradients to end their pass. O(1) on average,
 * plus posting the buckets that are complete. Fails with DPAR_E_ARG if the parameter was already
 * reported in this pass or does not exist, and with DPAR_E_PEER, DPAR_E_TIMEOUT or DPAR_E_MISMATCH
 * as described in comm.h. */
DPAR_API dpar_status dpar_ddp_ready(dpar_ddp *ddp, int32_t i);
/* Ends the pass: sends the gradients that were not reported, and waits for all buckets. After the
 * last pass of a step, all gradients are averages (sums with desc.sum, or the results of the hook).
 *
 * Collective in the last pass, otherwise local. O(params) plus the wait. Fails with DPAR_E_ARG on
 * all ranks, naming the parameters, if some are not ready and desc.require_ready is 1; this breaks
 * the communicator. Other errors are those of dpar_ddp_ready. A pass that failed has also ended. */
DPAR_API dpar_status dpar_ddp_end(dpar_ddp *ddp);
/* Computes the norm of all averages, and the number by which your update must multiply them.
 *
 *     dpar_ddp_end(ddp);
 *     status = dpar_ddp_norm(ddp, &update);                 update.h
 *     if (status == DPAR_OK) ... your update, with gradients times update.scale ...
 *
 * update: sets update->norm and update->scale; update->rate is only compared.
 *
 * Returns DPAR_SKIPPED, on all ranks, if a gradient is NaN or infinite. Then omit the update. Each
 * rank computes the squares of its part of the gradients in f64, and the sums are added in rank
 * order, so that all ranks get the same bits.
 *
 * Collective. Costs an all-reduce of 8 bytes and O(elements / ranks). Fails with DPAR_E_ARG if
 * a number is out of its domain, or the last pass of the step has not ended (dpar_ddp_end). Fails
 * with DPAR_E_MISMATCH, which breaks the communicator, if ranks pass different numbers or only some
 * failed with DPAR_E_ARG. */
DPAR_API dpar_status dpar_ddp_norm(dpar_ddp *ddp, dpar_update *update);

/* ==== train/zero1.h ==== */

/* zero1 - trains with ZeRO-1 on the flat arrays of a training code. Each rank keeps the optimizer's
 * state only for its share of the weights, updates that share, and gathers the shares of the other
 * ranks.
 *
 *     desc.gradients = grads;  ...  dpar_ddp_make(world, &desc, &ddp, &why);          ddp.h
 *     dpar_optimizer_init(&adamw, DPAR_OPTIMIZER_ADAMW);
 *     dpar_zero1_desc zero = {0};
 *     zero.weights = weights;
 *     zero.optimizer = &adamw;
 *     dpar_zero1_make(ddp, &zero, &zero1, &why);
 *     each step:
 *         backward, which may call dpar_ddp_ready(ddp, i)
 *         dpar_zero1_step(zero1, rate, 1.0);                       in place of the update
 *     dpar_zero1_free(zero1);
 *     dpar_ddp_free(ddp);
 *
 * dpar_zero1_step also ends the pass. Gradients are then sent only to the rank that owns their
 * share, and a step sends as many bytes as dpar_ddp_end does in ordinary training. If you call
 * dpar_ddp_end before the step, for instance to inspect the averages, the step uses these averages.
 * This step and the next one then send 50 % more. If you inspect averages and skip the step, call
 * dpar_ddp_zero or dpar_ddp_begin(ddp, 1) on all ranks before the next backward. Otherwise the next
 * step would take the new gradients for averages.
 *
 * A rank's share is elements first .. first + count - 1 of the flat array. It has ceil(n / ranks)
 * elements, fewer on the last ranks. To save the state, each rank writes each of its arrays at
 * offset `first` of that array's file. To load it on any number of ranks, make the zero1 with
 * desc.steps. Then each rank reads the elements of its present share in the same loop with pread.
 *
 *     for (k = 0; (m = dpar_zero1_state(zero1, k, &first, &count, &type)) != NULL; k++) {
 *         pwrite(file[k], m, count * dpar_type_bytes(type), first * dpar_type_bytes(type));
 *     }
 *
 * Your own optimizer. dpar_zero1_norm ends the pass, so that this rank's share of the gradients
 * holds averages. You update this rank's share of the weights, and dpar_zero1_gather sends it to
 * the other ranks. Make the zero1 with an optimizer that has no state, and keep your own for the
 * share:
 *
 *     dpar_optimizer_init(&none, DPAR_OPTIMIZER_SGD);
 *     zero.optimizer = &none;  ...  dpar_zero1_make(ddp, &zero, &zero1, &why);
 *     dpar_zero1_state(zero1, 0, &first, &count, NULL);
 *     each step:
 *         status = dpar_zero1_norm(zero1, &update);
 *         for (i = first; status == DPAR_OK && i < first + count; i++) {
 *             g = update.scale * grads[i];  ...  weights[i] -= ...  state[i - first] = ...
 *         }
 *         if (status == DPAR_OK) dpar_zero1_gather(zero1);
 *
 * For optimizers that need whole matrices, such as Muon and Shampoo, see matrices.h.
 *
 * Each element is updated separately (optimizer.h). The weights therefore differ from those of
 * training on one rank only by the rounding of the averages and, with a clip, of the norm. 16-bit
 * weights have no F32 masters here: use optimizer.stochastic, or fsdp.h. */

/* A range of elements that is a parameter group. */
typedef struct dpar_zero1_group {
    int64_t first, count;         /* elements first .. first + count - 1 of the flat array */
    dpar_optimizer_group numbers; /* optimizer.h */
} dpar_zero1_group;

/* Describes a zero1. Zero it and fill in what differs from the defaults. All ranks pass the same
 * values, except for addresses. */
typedef struct dpar_zero1_desc {
    void *weights; /* [elements of all parameters], of the gradients' type and in their order. You
                      keep them until the zero1 is freed */
    /* Your optimizer, which you keep until the zero1 is freed, because each step reads it. You may
     * change its numbers between steps, but not its kind or moment_type. */
    const dpar_optimizer *optimizer;
    /* [groups] in ascending order without overlap. Make copies them; to change them, free the zero1
     * and make another. Elements in no group use the optimizer's decay and the rate of the step. */
    const dpar_zero1_group *group;
    int32_t groups;
    int64_t steps; /* steps that were done before a checkpoint was saved; 0 for new training */
} dpar_zero1_desc;

/* A handle to ZeRO-1 training on the gradients of a ddp. */
typedef struct dpar_zero1 dpar_zero1;

/* Makes a zero1 on the gradients of a ddp. Allocates the optimizer's state with dpar_comm_alloc,
 * n / ranks elements per moment, and sets it to 0. If you load a saved state, training on the same
 * number of ranks continues with the same bits as if it had not stopped.
 *
 * ddp: must average one flat array of n gradients (desc.gradients), without hook, wire_type and
 *      sum, and must have no other zero1.
 *
 * Collective, while no pass is in progress. Compares the descriptors with small collectives.
 * O(groups + n / ranks). Fails on all ranks with DPAR_E_MISMATCH if they differ, DPAR_E_ARG or
 * DPAR_E_MEMORY. */
DPAR_API dpar_status dpar_zero1_make(dpar_ddp *ddp, const dpar_zero1_desc *desc, dpar_zero1 **zero1,
                                     dpar_why *why);
/* Frees a zero1. Call it before dpar_ddp_free. NULL is allowed. Local, but all ranks must call it
 * between the same two passes, because later passes send the averages to all ranks again. Fails
 * with DPAR_E_ARG if a pass of the ddp is in progress and the communicator is not broken. */
DPAR_API dpar_status dpar_zero1_free(dpar_zero1 *zero1);
/* Ends the pass and updates the weights by one step of the optimizer. Afterwards all ranks have all
 * weights, and only this rank's share of the gradients holds averages.
 *
 * update: rate, clip and others (update.h). Sets its norm.
 *
 * Returns DPAR_SKIPPED if a gradient is NaN or infinite. The pass has then ended as well, but
 * weights, moments and the number of steps are unchanged on all ranks.
 *
 * Collective. Costs a reduce-scatter and an all-gather of n elements, an all-reduce of 8 bytes, and
 * O(n / ranks).
 *
 * Fails with DPAR_E_ARG if the optimizer is invalid or has another kind than in dpar_zero1_make, a
 * number of the update is out of its domain, or the pass in progress was begun with last = 0. If
 * this happens on all ranks, and they had reported the same gradients, nothing was done and you may
 * call it again. Fails with DPAR_E_MISMATCH, which breaks the communicator, if ranks passed
 * different numbers or only some ranks failed with DPAR_E_ARG. Other errors are those of comm.h.
 * The message is in comm->why. */
DPAR_API dpar_status dpar_zero1_update(dpar_zero1 *zero1, dpar_update *update);
/* Does what dpar_zero1_update does with this rate and clip, and returns the same status. */
DPAR_API dpar_status dpar_zero1_step(dpar_zero1 *zero1, double rate, double clip);
/* Does the first half of dpar_zero1_update: ends the pass, and sets update->norm and update->scale.
 * Only this rank's share of the gradients holds averages then. Continue with your own update and
 * dpar_zero1_gather, or with dpar_zero1_update, which uses these averages. If you do neither, call
 * dpar_ddp_zero or dpar_ddp_begin(ddp, 1) before the next backward, as after dpar_ddp_end.
 *
 * Returns DPAR_SKIPPED if a gradient is NaN or infinite; nothing else is then to be called.
 *
 * Collective. Costs a reduce-scatter of n elements, an all-reduce of 8 bytes, and O(n / ranks).
 * Fails like dpar_zero1_update. */
DPAR_API dpar_status dpar_zero1_norm(dpar_zero1 *zero1, dpar_update *update);
/* Sends this rank's share of the weights, which you have changed, to all other ranks, and counts a
 * step.
 *
 * Collective. Costs an all-gather of n elements. Fails with DPAR_E_ARG if a pass is in progress.
 * Other errors are those of comm.h. */
DPAR_API dpar_status dpar_zero1_gather(dpar_zero1 *zero1);
/* Returns this rank's share of an array of the optimizer's state, in the memory of the
 * communicator. Returns NULL if the optimizer has no such array.
 *
 * Moments of type DPAR_F8 are records of 260 bytes (optimizer.h). Their `first` and `count` are in
 * bytes, and shares are multiples of 256 elements, so that the loop above saves and loads them.
 *
 * array: 0 selects m of AdamW or the momentum of SGD, 1 selects v of AdamW.
 * first: set to the first element of the share in the flat array, even if there is no such array.
 *        May be NULL.
 * count: set to the number of its elements, even if there is no such array. May be NULL.
 * type:  set to the type of its elements. May be NULL.
 *
 * Local. O(1). */
DPAR_API void *dpar_zero1_state(dpar_zero1 *zero1, int32_t array, int64_t *first, int64_t *count,
                                int32_t *type);

/* ==== train/fsdp.h ==== */

/* fsdp - trains a model whose optimizer state, gradients and weights are divided among the ranks:
 * ZeRO-1, 2 and 3 (FSDP), and hybrids with replicas. The parameters form units, usually one per
 * layer, and each message contains one unit. The parameters of a unit are stored end to end in C
 * order, padded to equal shards (flat.h). Each rank keeps one shard of the master weights and of
 * the optimizer's arrays.
 *
 *     ZeRO-1   weights are whole on every rank, gathered once a step; gradients are whole,
 *              reduced in the last micro-batch
 *     ZeRO-2   weights as in ZeRO-1 (FSDP: reshard_after_forward = False);
 *              gradients are shards, reduced in each micro-batch
 *     ZeRO-3   weights are gathered before forward and again before backward,
 *              `prefetch` units ahead, into a pool of prefetch + 1 units;
 *              gradients as in ZeRO-2
 *
 *     dpar_fsdp_desc desc = {0};                 ZeRO-3 in f32, one parameter per unit
 *     desc.units = units;
 *     desc.count = count;                        elements of each parameter
 *     desc.prefetch = 1;
 *     dpar_optimizer_init(&desc.optimizer, DPAR_OPTIMIZER_ADAMW);
 *     dpar_fsdp_make(comm, &desc, &f, &why);
 *     for (i = 0; i < params; i++) dpar_fsdp_set(f, i, initial[i]);
 *     each step:
 *         dpar_fsdp_zero(f);
 *         each micro-batch b of B:
 *             dpar_fsdp_begin(f, b == B - 1);
 *             forward, each unit u from the first:
 *                 dpar_fsdp_unshard(f, u, DPAR_ACTION_FORWARD);
 *                 ... uses the weights dpar_fsdp_weight(f, i) ...
 *                 dpar_fsdp_reshard(f, u, DPAR_ACTION_FORWARD);
 *             backward, each unit u from the last:
 *                 dpar_fsdp_unshard(f, u, DPAR_ACTION_BACKWARD);
 *                 ... uses the weights, adds to the gradients dpar_fsdp_gradient(f, i, NULL)
 *                     (desc.overwrite_gradients: writes them) ...
 *                 dpar_fsdp_reshard(f, u, DPAR_ACTION_BACKWARD);
 *                 dpar_fsdp_ready(f, u);       later, if the gradients are computed later
 *             dpar_fsdp_end(f);
 *         dpar_fsdp_update(f, &update);         update.rate, update.clip and others: update.h
 *     dpar_fsdp_free(f);
 *
 * Without a norm, a clip and a check of the gradients, call dpar_fsdp_step(f, rate, 1.0) in place
 * of dpar_fsdp_update; it needs no communication. dpar_fsdp_sizes_init computes the memory that a
 * rank needs. It needs no communicator, so that you can plan a job with it.
 *
 * Your arrays. If your code has its own pointers to weights and gradients, list them in desc.array
 * in place of desc.count. Make copies their values, and the pointers then follow the weights:
 * unshard sets those of a unit, reshard sets them to NULL, and ready does so for gradients. The
 * code of a layer need not change. A list of arrays has one entry per array:
 *
 *     array[k].weights = (void **)&layer->weights;       array[k].count = layer->n;
 *     array[k].gradients = (void **)&layer->gradients;   array[k].unit = u;
 *
 * If an array contains one kind of weights of all layers, layer l at qkv + l * n, it has slices:
 *
 *     array[k].weights = (void **)&qkv;                  array[k].count = n;
 *     array[k].gradients = (void **)&dqkv;               array[k].slices = layers;
 *     array[k].unit = 1;                                 layer l is unit 1 + l
 *
 * Resident units. If several layers use a unit, such as an embedding that is also the output layer
 * (tied weights), set its desc.resident to 1. It then needs no calls. dpar_fsdp_begin gathers its
 * weights and provides its gradients, and dpar_fsdp_end reduces these. Weights outside of the
 * layers can be in the same unit. To overlap its reduction with backward, call dpar_fsdp_ready
 * after its last gradient. During a pass, unshard of a resident unit only prefetches the next
 * units, and reshard does nothing. Outside of a pass, for instance in a forward before
 * dpar_fsdp_begin, use it like other units. With ZeRO-1 and one resident unit, the calls of a step
 * are zero, begin before forward, end after backward, and update.
 *
 * Frozen units (LoRA, training in stages). The weights of units in desc.frozen do not change. Use
 * them like those of other units, in backward, too, but compute no gradients; dpar_fsdp_ready is
 * optional. They have neither gradients nor moments in memory and messages. To freeze others later,
 * make another fsdp and load the state.
 *
 * Parameter groups. desc.group has the numbers of each group and desc.group_of each parameter's
 * group. To decay only matrices, for instance, set desc.optimizer.decay to 0.1, desc.groups to 1,
 * desc.group to a group of zeros, and desc.group_of[i] to -1 for matrices and 0 for others.
 *
 * Your own optimizer. Update the shards of the masters in place of dpar_fsdp_update, then call
 * dpar_fsdp_changed. Without this call, the next pass would use the old weights. Make the fsdp with
 * DPAR_OPTIMIZER_SGD, which keeps no state, and keep your own for each unit. With ZeRO-1, 2 and 3:
 *
 *     status = dpar_fsdp_norm(f, &update);
 *     for (u = 0; status == DPAR_OK && u < units; u++) {
 *         float *w = (float *)dpar_fsdp_state(f, DPAR_FSDP_MASTER, u, &n, NULL);
 *         const float *g = (const float *)dpar_fsdp_state(f, DPAR_FSDP_GRADIENT, u, NULL, NULL);
 *         ... updates w[i] with the gradient update.scale * g[i], i < n ...
 *     }
 *     if (status == DPAR_OK) dpar_fsdp_changed(f);
 *
 * For optimizers that need whole matrices, such as Muon and Shampoo, see matrices.h.
 *
 * Evaluation. dpar_fsdp_unshard (DPAR_ACTION_FORWARD) and dpar_fsdp_reshard also work outside of a
 * pass. dpar_fsdp_begin may also be called after forward, just before backward.
 *
 * Pointers. With ZeRO-1 and 2, dpar_fsdp_weight returns the same address in every step. So does
 * dpar_fsdp_gradient if gradients are whole (ZeRO-1, desc.reduce_last). In the other cases the
 * address may change with each unshard.
 *
 * Checkpoints. Each rank writes what dpar_fsdp_state returns for each unit and array.
 * dpar_fsdp_load reads it, on the same or another number of ranks.
 *
 * Hybrids. `comm` connects the ranks that share one copy of the model, for instance a node, and
 * desc.replicas connects the ranks that hold the same shard of different copies.
 * dpar_comm_split_axes makes both. Gradients are reduced over comm, then their shards are reduced
 * over the replicas once a step.
 *
 * Pipelines. A whole step is one pass, with dpar_fsdp_begin before dpar_pipeline_run and
 * dpar_fsdp_end after it.
 *
 *  - UNSHARD calls dpar_fsdp_unshard. The first call for a stage has DPAR_ACTION_BACKWARD, which
 *    reserves space for its gradients; later calls have DPAR_ACTION_FORWARD.
 *  - RESHARD calls dpar_fsdp_reshard.
 *  - REDUCE_GRAD calls dpar_fsdp_ready.
 *
 * Set desc.prefetch and desc.gradient_buffers to the number of stages of the rank. If several runs
 * accumulate gradients, each is a pass. Runs with last = 0 omit REDUCE_GRAD, so call
 * dpar_fsdp_ready for each unit after such a run and before dpar_fsdp_end.
 *
 * Gradients are averaged over the ranks, or summed with desc.sum, and summed over micro-batches.
 * For the mean over micro-batches, scale the loss by 1 / B or pass that factor to dpar_fsdp_step.
 *
 * Guarantees. Only make allocates memory; dpar_fsdp_sizes lists how much. Sums are computed in rank
 * order, which gives the same bits in every run, whatever is prefetched. Replicas stay equal bit by
 * bit. A unit that is already in the pool is not gathered again. All ranks must visit units in the
 * same order. Otherwise calls fail with DPAR_E_MISMATCH, but over MPI only with its option `check`.
 *
 * If comm->mem is the memory of a device, all arrays are in that memory, including those passed to
 * dpar_fsdp_set and dpar_fsdp_load. The functions add their work to the device's stream, so that it
 * runs in the order of the calls. Only dpar_fsdp_norm and dpar_fsdp_load wait for the device. */

/* One of your arrays of weights. It belongs to one unit, or its slices belong to one unit each:
 * slice j to unit `unit` + j. A GPT whose arrays hold one kind of weights of all layers, for
 * instance, has one dpar_fsdp_array per kind, with as many slices as layers. */
typedef struct dpar_fsdp_array {
    /* The address of the pointer that your code uses, such as (void **)&layer->weights. Make copies
     * the first values from there, [slices][count] of desc.type, or sets zeros if your pointer is
     * NULL. Then you may free your array. Each unshard sets your pointer so that slice j begins at
     * its element j * count, and reshard sets it to NULL. The other slices are not there: if
     * several are in use at once, your pointer is for the one unsharded last. If `weights` is NULL,
     * use dpar_fsdp_set and dpar_fsdp_weight. You keep your pointer until the fsdp is freed. */
    void **weights;
    void **gradients; /* the same for gradients: set by unshard in backward, NULL after ready */
    int64_t count;    /* elements of a slice, or of the array if it is not sliced; 0 or more */
    int32_t slices;   /* 0 selects 1 */
    int32_t unit;     /* unit of the first slice */
} dpar_fsdp_array;

/* Describes an fsdp. Zero it and fill in what differs from the defaults. All ranks pass the same
 * values, except for replicas, names, memory, bytes and addresses. */
typedef struct dpar_fsdp_desc {
    int32_t units; /* number of units, in the order of forward */
    int32_t zero;  /* stage of ZeRO: 1, 2 or 3; 0 selects 3 */
    /* [units] number of parameters in each unit, 0 or more. NULL selects one parameter per unit.
     * Only dpar_fsdp_make and dpar_fsdp_sizes_init read this array and `count`. */
    const int32_t *params_per_unit;
    const int64_t *count; /* [all parameters] elements of each, 0 or more, unit after unit */
    /* [arrays] your arrays, in place of params_per_unit and count, which are then NULL. Each array
     * or slice is a parameter of its unit, in the order of this list. Only make and
     * dpar_fsdp_sizes_init read the list. */
    const dpar_fsdp_array *array;
    int32_t arrays;
    dpar_comm *replicas; /* the ranks that have the same shard of different copies of the model, in
                            a communicator made from the same world as comm; NULL if there is only
                            one copy */
    /* Type of the master weights, which the optimizer updates: F64 or F32; 0 selects F32. With BF16
     * or F16 there are no masters, and the weights themselves are updated. The optimizer's arrays
     * have the type that dpar_optimizer_check reports. */
    int32_t type;
    /* Type of the weights that are gathered and that forward and backward use: `type`, or F32 if
     * that is F64, or BF16 or F16 if that is F32. 0 selects `type`. */
    int32_t compute_type;
    /* Type in which gradients are computed and reduced: `compute_type` or a wider one; 0 selects
     * compute_type. 16-bit gradients are summed in F32 and rounded once. With ZeRO-1 or
     * `reduce_last`, the sum over replicas rounds them once more. ZeRO-2 and 3 sum micro-batches in
     * F32, or in F64 if `type` is F64. */
    int32_t gradient_type;
    int32_t prefetch;         /* units that are gathered ahead of the one in use, 0 or more */
    int32_t gradient_buffers; /* ZeRO-2 and 3: largest number of units whose gradients are being
                                 computed or reduced. 0 selects units_in_use; if it is smaller than
                                 that, make fails with DPAR_E_ROOM */
    /* Largest number of units that are in use, or whose gradients are being computed, at the same
     * time, without the resident ones; 0 selects 1. The pool has prefetch + units_in_use units. If
     * you use more, dpar_fsdp_unshard fails with DPAR_E_ROOM and names the units. */
    int32_t units_in_use;
    int32_t reduce_last; /* ZeRO-2 and 3: 1 keeps gradients whole and reduces them only in the last
                            micro-batch, as ZeRO-1 does: less traffic, but more memory */
    int32_t sum;         /* 1 computes sums over the ranks; 0 averages */
    /* 0 if backward adds to gradients, which dpar sets to 0 before. 1 if backward overwrites them,
     * unless dpar_fsdp_gradient reports that it must add; dpar then need not zero them. With 1,
     * backward must write every element of the unit's parameters, 0 where there is no gradient. */
    int32_t overwrite_gradients;
    const char *const *names; /* [units] names for messages, which you keep until the fsdp is freed.
                                 If NULL, messages give the numbers of the units */
    int64_t align;            /* parameters begin in their unit at multiples of this many elements;
                                 0 selects 1 */
    /* Its option `stochastic` also applies when F32 masters are rounded to BF16 weights. The random
     * number of an element depends on its index among all elements of the model, with the units end
     * to end. Tensor-parallel ranks have separate fsdp objects. Their copies of a parameter stay
     * equal if the parameter has the same index in each object. */
    dpar_optimizer optimizer;
    const int32_t *frozen;   /* [units] 1 for units that are not trained, 0 for others. NULL if all
                                are trained. Only make and dpar_fsdp_sizes_init read this, resident
                                and the groups */
    const int32_t *resident; /* [units] 1 for units that are in use during a whole pass, 0 for
                                others. NULL if there are none. An array with several slices cannot
                                have one in such a unit */
    int32_t groups;          /* number of parameter groups */
    const dpar_optimizer_group *group; /* [groups] */
    const int32_t
        *group_of; /* [all parameters, or arrays] group of each; -1 selects the optimizer's
                      numbers and the rate of the step. Required if there are groups */
    /* Your memory for the fsdp's bookkeeping (`plan` of dpar_fsdp_sizes), aligned to 64 bytes,
     * which you keep until the fsdp is freed. If it is NULL and bytes is 0, make allocates it. If
     * bytes is too small, make fails with DPAR_E_ROOM, and why->bytes is the size that is needed.
     * To query that size, set memory to NULL and bytes to 1. */
    void *memory;
    int64_t bytes;
} dpar_fsdp_desc;

/* Memory that a rank needs, in bytes. `registered` is the sum of the six sizes below it, each
 * rounded up to a multiple of 64. */
typedef struct dpar_fsdp_sizes {
    int64_t plan;       /* the bookkeeping, in desc.memory or allocated by dpar_fsdp_make */
    int64_t registered; /* allocated by make with dpar_comm_alloc; constant until free */
    int64_t weights;    /* ZeRO-1 and 2: whole weights, of compute_type */
    int64_t gradients;  /* whole, of gradient_type, or shards; of units that are not frozen */
    int64_t master;     /* shards; 0 if the masters are pieces of the whole weights */
    int64_t moments;    /* shards of the optimizer's arrays, of units that are not frozen */
    int64_t gathered;   /* ZeRO-3: the pool, prefetch + units_in_use times the largest unit that is
                           not resident, and all resident units */
    int64_t buckets;    /* gradients as shards: gradient_buffers times the largest unit that is
                           neither frozen nor resident, and all resident units not frozen */
} dpar_fsdp_sizes;

/* A handle to a model that is divided among the ranks. */
typedef struct dpar_fsdp dpar_fsdp;

/* Computes the memory of a rank when `shards` ranks share a copy of the model. Needs no
 * communicator, so that you can plan a job with it. Local. O(params). Fails like dpar_fsdp_make. */
DPAR_API dpar_status dpar_fsdp_sizes_init(dpar_fsdp_sizes *sizes, int32_t shards,
                                          const dpar_fsdp_desc *desc, dpar_why *why);
/* Makes an fsdp, which divides a model among the ranks of comm. Sets the weights to the values of
 * your arrays, otherwise to 0, and the optimizer's state to 0.
 *
 * Collective over comm and desc.replicas. Compares the descriptors with small collectives, but not
 * the values, of which each rank copies its own pieces. O(units * arrays + arrays^2). Fails on
 * all ranks with DPAR_E_MISMATCH if they differ, DPAR_E_ARG, DPAR_E_RANGE, DPAR_E_ROOM or
 * DPAR_E_MEMORY. In the functions below, the message of an error is in comm->why. */
DPAR_API dpar_status dpar_fsdp_make(dpar_comm *comm, const dpar_fsdp_desc *desc, dpar_fsdp **fsdp,
                                    dpar_why *why);
/* Sets the weights of parameter i. All ranks call it with the same values, between steps.
 *
 * values: [count[i]] the whole parameter, of desc.type. Each rank copies its piece.
 *
 * Local. O(elements / ranks). Fails with DPAR_E_ARG if there is no such parameter, values is NULL
 * or a pass is in progress. */
DPAR_API dpar_status dpar_fsdp_set(dpar_fsdp *fsdp, int32_t i, const void *values);
/* Finds the piece of parameter i in this rank's shard. Returns 1, or 0 if the shard has no element
 * of the parameter.
 *
 * piece: set to the piece. piece->in_shard is relative to the address that dpar_fsdp_state returns
 *        for the parameter's unit. May be NULL.
 *
 * Local. O(1). */
DPAR_API int dpar_fsdp_piece(const dpar_fsdp *fsdp, int32_t i, dpar_piece *piece);

/* ---- a pass ---- */

/* Marks all gradients as 0. Call it before the backward of a step's first micro-batch. It does not
 * touch their memory: a pass later overwrites or zeroes the gradients of each unit that it reaches.
 * Gradients that are already in use, such as those of resident units after dpar_fsdp_begin, are
 * zeroed at once. Local. O(units). */
DPAR_API void dpar_fsdp_zero(dpar_fsdp *fsdp);
/* Begins a micro-batch.
 *
 * last: 1 for the last micro-batch of the step.
 *
 * Local and O(units) without resident units. With them it is collective, and costs an all-gather of
 * each one whose weights are not gathered yet. Fails with DPAR_E_ARG if the previous micro-batch
 * has not ended, or with the status of a broken communicator. */
DPAR_API dpar_status dpar_fsdp_begin(dpar_fsdp *fsdp, int32_t last);
/* Gathers the weights of a unit, waits until they are complete, and requests those of the
 * `prefetch` units that follow in this direction. In backward it also provides memory for the
 * unit's gradients. With ZeRO-1 or desc.reduce_last the gradients hold the sum of earlier
 * micro-batches. Otherwise they are 0, or undefined with desc.overwrite_gradients.
 *
 * direction: DPAR_ACTION_FORWARD or DPAR_ACTION_BACKWARD. Forward also works outside of a pass, to
 *            read weights.
 *
 * Collective over comm: all ranks call it for the same units in the same order. Costs an all-gather
 * in compute_type of each unit that is not in the pool. Fails with DPAR_E_ARG if there is no such
 * unit or it is already in use, and for backward if no pass is in progress or the unit already had
 * backward in it. Fails with DPAR_E_ROOM, naming the units, if more than desc.units_in_use are in
 * use or have gradients that are not ready. Other errors are those of comm.h. */
DPAR_API dpar_status dpar_fsdp_unshard(dpar_fsdp *fsdp, int32_t unit, int32_t direction);
/* Ends the use of a unit's weights until the next unshard. Local. O(1). Fails with DPAR_E_ARG if
 * they were not in use. */
DPAR_API dpar_status dpar_fsdp_reshard(dpar_fsdp *fsdp, int32_t unit, int32_t direction);
/* Returns the address of parameter i's weights: count[i] elements of compute_type, aligned to that
 * type. Returns NULL unless its unit is between unshard and reshard. Local. O(1). */
DPAR_API const void *dpar_fsdp_weight(const dpar_fsdp *fsdp, int32_t i);
/* Returns the address of parameter i's gradient: count[i] elements of gradient_type. Returns NULL
 * unless its unit is between unshard in backward and ready, and if it is frozen. Local. O(1).
 *
 * adds: set to 1 if backward must add to the present contents, or 0 if it must overwrite them. This
 *       is the `beta` of the matrix product that computes the gradient. May be NULL.
 *
 * Without desc.overwrite_gradients and for resident units, *adds is always 1. Otherwise it is 1
 * only if gradients are whole (ZeRO-1, desc.reduce_last) and have contents: an earlier micro-batch
 * of the step had this unit in backward, or dpar_fsdp_norm, _state or _step read them since
 * dpar_fsdp_zero. */
DPAR_API void *dpar_fsdp_gradient(const dpar_fsdp *fsdp, int32_t i, int *adds);
/* Marks the gradients of a unit as complete for this micro-batch, and posts their reduction.
 *
 * Collective over comm: all ranks call it for the same units in the same order. Costs a
 * reduce-scatter of the unit in gradient_type, with ZeRO-1 or desc.reduce_last only in the last
 * micro-batch. Fails with DPAR_E_ARG if the unit has no gradients in this pass or is already ready.
 * Other errors are those of comm.h. */
DPAR_API dpar_status dpar_fsdp_ready(dpar_fsdp *fsdp, int32_t unit);
/* Ends the micro-batch. Makes resident units ready. After the last micro-batch, the gradients of
 * this rank's shards are reduced.
 *
 * Collective. Waits for the reductions that dpar_fsdp_ready posted, and with replicas for an
 * all-reduce of each shard. Fails with DPAR_E_ARG, which breaks the communicator, if a unit is in
 * use or had backward but is not ready. In the last micro-batch every unit with parameters must be
 * ready, unless it is frozen. Other errors are those of comm.h. A pass that failed has also ended.
 */
DPAR_API dpar_status dpar_fsdp_end(dpar_fsdp *fsdp);
/* Frees an fsdp and its memory. NULL is allowed. Waits for operations that are not complete.
 *
 * No communication, but no other rank may still be in a pass. O(units). Fails with DPAR_E_ARG if a
 * pass is in progress and no communicator is broken; the fsdp then remains valid. */
DPAR_API dpar_status dpar_fsdp_free(dpar_fsdp *fsdp);

/* ==== train/fsdp_step.h ==== */

/* fsdp_step - the step of the optimizer on the shards of an fsdp: its own, or yours. */

/* Updates the weights by one step of the optimizer, after the norm of all gradients was computed.
 *
 * update: rate, clip and others (update.h). Sets its norm.
 *
 * Returns DPAR_SKIPPED if a gradient is NaN or infinite. Weights, moments and the number of steps
 * are then unchanged on all ranks.
 *
 * Collective over comm, desc.replicas and update->model. Costs an all-reduce of 8 bytes in each of
 * them and O(elements of the shards). Fails with DPAR_E_ARG if a pass is in progress, the latest
 * one was begun with last = 0, or a number of the update is out of its domain. Fails with
 * DPAR_E_MISMATCH, which breaks the communicators, if ranks passed different numbers or only some
 * ranks failed with DPAR_E_ARG. Other errors are those of comm.h. */
DPAR_API dpar_status dpar_fsdp_update(dpar_fsdp *fsdp, dpar_update *update);
/* Does the first half of dpar_fsdp_update: sets update->norm and update->scale. Squares are summed
 * in f64, first over this rank's shards, then over the ranks in rank order. Returns DPAR_SKIPPED if
 * the norm is not finite. Collective, costs and fails like dpar_fsdp_update.
 *
 * If a rank has several fsdp objects, such as one for experts, call it for each of them. The norm
 * of the model is the root of the sum of the squared norms. */
DPAR_API dpar_status dpar_fsdp_norm(dpar_fsdp *fsdp, dpar_update *update);
/* Does the second half of dpar_fsdp_update: updates the weights by one step of the optimizer.
 *
 * rate:   learning rate, finite.
 * factor: gradients are multiplied by it (update->scale); finite. It is not a clip, as the last
 *         argument of dpar_zero1_step is.
 *
 * Local. O(elements of the shards). Fails with DPAR_E_ARG, and does nothing, if a pass is in
 * progress, the latest one was begun with last = 0, or a number is not finite. */
DPAR_API dpar_status dpar_fsdp_step(dpar_fsdp *fsdp, double rate, double factor);
/* Tells the fsdp that you changed masters through dpar_fsdp_state, and counts a step. The next
 * unshard of each unit gathers its weights again. All ranks call it after the change.
 *
 * Local. O(units), and waits for weights that are being gathered. Fails with DPAR_E_ARG if a pass
 * is in progress. */
DPAR_API dpar_status dpar_fsdp_changed(dpar_fsdp *fsdp);

/* ==== train/fsdp_state.h ==== */

/* fsdp_state - the shards of an fsdp, for checkpoints and your own optimizer. */

/* Arrays of which each rank has a shard: those of a checkpoint, and the reduced gradients. */
enum {
    DPAR_FSDP_MASTER,
    DPAR_FSDP_MOMENT_1,
    DPAR_FSDP_MOMENT_2,
    DPAR_FSDP_ARRAY_COUNT, /* the largest number of arrays in a checkpoint */
    DPAR_FSDP_GRADIENT = DPAR_FSDP_ARRAY_COUNT
};

/* Returns this rank's shard of an array of a unit. Returns NULL, with 0 elements and
 * DPAR_TYPE_NONE, if there is no such unit, the optimizer has no such array, or the unit is frozen
 * and the array is not DPAR_FSDP_MASTER. dpar_fsdp_piece
 * reports where a parameter is in the shard.
 *
 * array:    DPAR_FSDP_MASTER, ... DPAR_FSDP_GRADIENT.
 * elements: set to the number of elements, including the padding, which is 0. May be NULL. Moments
 *           of type DPAR_F8 are records of 260 bytes (optimizer.h), and each byte is an element.
 * type:     set to the type of the elements. May be NULL.
 *
 * A sharded checkpoint consists of the arrays below DPAR_FSDP_ARRAY_COUNT of all ranks of one
 * replica, and the number of steps that were done.
 *
 * DPAR_FSDP_GRADIENT selects the reduced gradients, which are available from the end of a pass to
 * the next dpar_fsdp_zero. Use them for norms that weight parameters differently, or for sums over
 * other communicators.
 *
 * Local. O(1), except that gradients that count as 0 are zeroed here. */
DPAR_API void *dpar_fsdp_state(const dpar_fsdp *fsdp, int32_t array, int32_t unit,
                               int64_t *elements, int32_t *type);
/* Describes a unit as an array of one dim on ranks first .. first + ranks - 1, divided like its
 * shards (DPAR_SPLIT_CHUNK), for redistribute.h and move.h. layout->extent[0] is the number of
 * elements of the unit without padding, and each rank's shard has ceil(extent / ranks) elements. If
 * moments have type DPAR_F8, that is rounded up to a multiple of 256 (DPAR_SPLIT_BLOCK_CYCLIC). The
 * blocks then do not depend on the number of ranks, and a checkpoint is loaded without rounding.
 *
 * For a full checkpoint, gather the shards of each unit and array with dpar_gather, and keep only
 * the first layout->extent[0] elements. Load it like a sharded checkpoint of one rank.
 *
 * Local. O(1). Fails with DPAR_E_ARG. */
DPAR_API dpar_status dpar_fsdp_layout(const dpar_fsdp *fsdp, int32_t unit, int32_t first,
                                      int32_t ranks, dpar_layout *layout, dpar_why *why);
/* Reads a part of a saved shard. It is your callback. The part is elements first .. first + count -
 * 1 of the shard of unit u in an array, as rank `rank` of the saving job wrote it. Write the part
 * to `to`. Return a negative status if that fails. */
typedef dpar_status (*dpar_fsdp_read_callback)(void *ctx, int32_t array, int32_t u, int32_t rank,
                                               int64_t first, int64_t count, void *to);
/* Loads a checkpoint that was saved by any number of ranks. Each rank reads each element of its
 * shards once. With the same options and number of ranks, training continues with the same bits as
 * if it had not stopped.
 *
 * ranks: number of ranks that saved it.
 * steps: number of steps that were done when it was saved.
 *
 * Collective over comm and replicas. Compares `ranks` and `steps` with small collectives. Fails
 * with DPAR_E_ARG if a pass is in progress and with DPAR_E_MISMATCH if ranks passed different
 * numbers. A failure on one rank is reported on all. Part of the state may then have been replaced,
 * so that you must load again. */
DPAR_API dpar_status dpar_fsdp_load(dpar_fsdp *fsdp, int32_t ranks, int64_t steps,
                                    dpar_fsdp_read_callback read, void *ctx, dpar_why *why);

/* ==== train/matrices.h ==== */

/* matrices - gives each matrix as a whole to one rank, for optimizers that need whole matrices,
 * such as Muon, Shampoo and SOAP. Shards of ZeRO cut matrices at any element. dpar_matrices_gather
 * brings the gradient of each matrix together on its owner, with one all-to-all for all matrices.
 * The owner replaces it by the direction of the update, and dpar_matrices_scatter sends the pieces
 * back into the shards with another one. The owners divide the work evenly among the ranks.
 *
 *     dpar_optimizer_init(&sgd, DPAR_OPTIMIZER_SGD);     subtracts rate * direction, and decays
 *     ... dpar_zero1_make or dpar_fsdp_make with this optimizer ...
 *     dpar_matrices_desc desc = {0};
 *     desc.zero1 = zero1;                                or desc.fsdp = fsdp
 *     desc.matrices = 4;                                 parameters 0 to 3
 *     dpar_matrices_make(comm, &desc, &matrices, &why);
 *     each step:                                         after the last backward
 *         status = dpar_zero1_norm(zero1, &update);      or dpar_fsdp_norm(fsdp, &update)
 *         if (status == DPAR_OK) {
 *             dpar_matrices_gather(matrices);
 *             for (k = 0; k < 4; k++) {
 *                 float *g = (float *)dpar_matrices_at(matrices, k);
 *                 if (g != NULL) {
 *                     muon(g, momentum[k], rows[k], columns[k], update.scale);    your code
 *                 }
 *             }
 *             dpar_matrices_scatter(matrices);
 *             dpar_zero1_step(zero1, rate, 0.0);         or dpar_fsdp_step(fsdp, rate, 1.0)
 *         }
 *     dpar_matrices_free(matrices);                      before zero1 or fsdp
 *
 * These lines are the same for ZeRO-1, 2 and 3 and on one rank. docs/guide/recipes.md has them as a
 * program. Your state, such as momentum[k], is needed only on the owner. To save it, each owner
 * writes that of its matrices, one file per matrix. After a restart on any number of ranks, the new
 * owners read the files.
 *
 * Other parameters, such as biases, norms and embeddings, usually get AdamW. Give them a ddp and
 * zero1 or an fsdp of their own, with that optimizer. Parameters that are in the same object as the
 * matrices, but not in the list, keep their gradients and get SGD.
 *
 * Copying changes no bits, so results depend on the number of ranks only by the rounding of the
 * averages. Replicas (replicas of fsdp.h) have equal gradients, and each replica does all the work.
 *
 * Memory. dpar_comm_alloc provides this rank's pieces once more, and the matrices that it owns once
 * with zero1 and up to twice with fsdp, in the type of the gradients. If the cost of a matrix is
 * its size, this is about 2 or 3 times the elements of all matrices / ranks. */

/* Describes matrices whose gradients are divided among ranks. Zero it and fill in what differs from
 * the defaults. All ranks pass the same values, except for addresses. */
typedef struct dpar_matrices_desc {
    dpar_zero1 *zero1; /* whose shares of the gradients hold the matrices; NULL if fsdp is set */
    dpar_fsdp *fsdp;   /* whose shards DPAR_FSDP_GRADIENT hold the matrices; NULL if zero1 is set */
    int32_t matrices;  /* number of matrices, 0 or more */
    /* [matrices] the parameter that each matrix is, in ascending order. NULL selects parameters 0
     * to matrices - 1. A parameter of a frozen unit has no gradient and counts as empty. */
    const int32_t *param;
    /* [matrices] cost of the owner's work on each, in any unit, 0 or more. For Newton-Schulz that
     * is rows * columns * the smaller of them. NULL selects the number of elements. */
    const double *cost;
} dpar_matrices_desc;

/* A handle to matrices that can be gathered. */
typedef struct dpar_matrices dpar_matrices;

/* Decides which rank owns each matrix, and prepares the exchange. The most expensive matrix that
 * has no owner goes to the rank whose matrices cost least, until all have one. Among equal costs,
 * the lowest matrix and the lowest rank come first. The largest cost of a rank is then at most 4/3
 * of the best possible one.
 *
 * comm: the communicator of zero1 or fsdp.
 *
 * Collective. Compares the descriptors with small collectives. O(matrices * (matrices + ranks)).
 * Fails on all ranks with DPAR_E_MISMATCH if they differ, DPAR_E_ARG or DPAR_E_MEMORY. In the
 * functions below, the message of an error is in comm->why. */
DPAR_API dpar_status dpar_matrices_make(dpar_comm *comm, const dpar_matrices_desc *desc,
                                        dpar_matrices **matrices, dpar_why *why);
/* Frees the object and its memory. NULL is allowed. Local. O(1). */
DPAR_API dpar_status dpar_matrices_free(dpar_matrices *matrices);
/* Returns the rank in comm that owns matrix k, or -1 if there is no such matrix. Local. O(1). */
DPAR_API int32_t dpar_matrices_owner(const dpar_matrices *matrices, int32_t k);
/* Returns the address of matrix k on its owner: all its elements, of the type of the gradients
 * (dpar_fsdp_state reports it), and aligned to that type. The address is the same in every step.
 * Returns NULL on other ranks, and if the matrix is empty or does not exist. Local. O(1). */
DPAR_API void *dpar_matrices_at(const dpar_matrices *matrices, int32_t k);
/* Copies all pieces from the gradients' shards to the owners of the matrices.
 *
 * Collective. Costs one all-to-all, in which each rank sends its pieces and receives the matrices
 * that it owns, a copy of the pieces, and with fsdp a copy of the matrices. Fails with DPAR_E_ARG
 * if dpar_zero1_norm has not averaged the gradients, or a pass of the fsdp has not ended. Fails
 * with DPAR_E_MISMATCH, which breaks the communicator, if only some ranks fail with DPAR_E_ARG or
 * ranks call different functions. Other errors are those of comm.h. */
DPAR_API dpar_status dpar_matrices_gather(dpar_matrices *matrices);
/* Copies the matrices, which their owners have changed, back into the gradients' shards.
 *
 * Collective. Costs and fails like dpar_matrices_gather. Also fails with DPAR_E_ARG if that was not
 * called since the last dpar_matrices_scatter. */
DPAR_API dpar_status dpar_matrices_scatter(dpar_matrices *matrices);

/* ==== train/tensor.h ==== */

/* tensor - runs layers whose weights are divided among the ranks of a communicator (tensor
 * parallelism), forward and backward. The results equal those of one rank with the whole weights,
 * up to rounding. heads.h computes which heads, vocabulary rows and tokens a rank has. random.h has
 * random numbers that do not depend on the rank that draws them.
 *
 *     dpar_tensor_parallel t;                                     what the layers of a group share
 *     dpar_tensor_parallel_init(&t, c, DPAR_F32, tokens, counts, &why);
 *     up.kind = DPAR_LINEAR_COLUMN;   up.in = 512;    up.out = 2048 / c->size;
 *     down.kind = DPAR_LINEAR_ROW;    down.in = 2048 / c->size;   down.out = 512;
 *     dpar_linear_forward(&t, &up, &a);                  no communication
 *     ... the activation, on a.y ...
 *     dpar_linear_forward(&t, &down, &b);                one all-reduce
 *     dpar_linear_backward(&t, &down, &b);               no communication
 *     dpar_linear_backward(&t, &up, &a);                 one all-reduce, during the weight gradient
 *
 * All matrices are row-major, and each token is a row. Types are F64 and F32. Every function is
 * collective over the communicator unless its comment says that it is local. If an argument is
 * wrong on one rank, that rank gets DPAR_E_ARG and the communicator breaks, so that the other ranks
 * notice; the message is in comm->why. If t is NULL or all zero, because init failed, only the
 * caller gets DPAR_E_ARG.
 *
 * Sequence parallelism. If `counts` is not NULL, each rank has only its own tokens before a column
 * layer and after a row layer. Column layers gather the tokens and row layers scatter them;
 * backward does the opposite. The traffic is the same as without sequence parallelism, but with R
 * ranks a rank stores only 1 / R of the activations between these pairs of layers. Any number of
 * tokens is allowed. A rank computes the gradients of weights between the pairs (norms) from its
 * own tokens only, so sum these gradients over the ranks once per step.
 *
 * Arrays are in the memory of the communicator (comm->mem). If that is the memory of a device, set
 * `matmul`, and use page-locked memory, which both host and device can access, for ids, targets and
 * sums. No function waits for the device. */

/* ---- products of matrices ---- */

/* Describes a product of matrices: c = alpha op(a) op(b) + beta c, where op(a) is m x k and op(b)
 * is k x n. If beta is 0, c is not read. */
typedef struct dpar_matmul {
    int32_t type;                     /* of a, b and c: DPAR_F64 or DPAR_F32 */
    int32_t transpose_a, transpose_b; /* 1 if a is stored as k x m, or b as n x k */
    int32_t reserved;                 /* 0 */
    int64_t m, n, k;                  /* 0 or more; if k is 0, c becomes beta c */
    double alpha, beta;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc; /* elements from one row to the next, at least 1 */
} dpar_matmul;
/* Computes a product of matrices. It is your callback, which calls cblas_sgemm, cuBLAS or another
 * library. An error that it returns breaks the communicator. */
typedef dpar_status (*dpar_matmul_kernel)(void *user, const dpar_matmul *call);
/* Computes a product of matrices in plain C, with sums in f64 that are rounded once. Layers call it
 * if `matmul` is NULL. Local. O(m n k). Fails with DPAR_E_ARG, without a message, for other types
 * and for sizes below 0. */
DPAR_API dpar_status dpar_matmul_host(void *user, const dpar_matmul *call);

/* ---- what layers share ---- */

/* Values that the layers of a group share. dpar_tensor_parallel_init fills them in. */
typedef struct dpar_tensor_parallel {
    dpar_comm *comm;
    int32_t type; /* of all arrays: DPAR_F64 or DPAR_F32 */
    /* All tokens of a step. With sequence parallelism, part r is the range of tokens of rank r
     * (CHUNK, EVEN, FLOOR or RAGGED). */
    dpar_split tokens;
    int64_t *counts; /* sequence parallelism: [comm->size] memory for dpar, which you must not touch
                        while a function runs; otherwise NULL */
    dpar_matmul_kernel matmul; /* NULL selects dpar_matmul_host */
    void *user;                /* passed to matmul */
} dpar_tensor_parallel;
/* Fills in the values that the layers of a group share.
 *
 * tokens: number of all tokens of a step, which are split by DPAR_SPLIT_EVEN. If the number changes
 *         to n, call
 *         dpar_split_init(&tp->tokens, DPAR_SPLIT_EVEN, n, tp->tokens.parts, 0, NULL).
 * counts: memory for comm->size numbers, which selects sequence parallelism, or NULL.
 *
 * Local. O(1). Fails with DPAR_E_ARG. */
DPAR_API dpar_status dpar_tensor_parallel_init(dpar_tensor_parallel *tp, dpar_comm *comm,
                                               int32_t type, int64_t tokens, int64_t *counts,
                                               dpar_why *why);
/* ---- linear layers: y = x w^T + bias ---- */

/* Kinds of linear layers. */
enum {
    DPAR_LINEAR_COLUMN = 1, /* each rank has some of the outputs; x is whole */
    DPAR_LINEAR_ROW /* each rank has some of the inputs; y is the sum of all ranks' products */
};
/* Describes a linear layer, y = x w^T + bias, with the weight w[out][in] as in PyTorch. In a column
 * layer each rank has some rows of w, in a row layer it has some columns of w. The numbers may
 * differ from rank to rank, and may be 0. */
typedef struct dpar_linear {
    int32_t kind;     /* DPAR_LINEAR_COLUMN or DPAR_LINEAR_ROW */
    int32_t reserved; /* 0 */
    int64_t in, out;  /* columns and rows of this rank's part of w */
} dpar_linear;

/* Arrays of a linear layer. n is the number of all tokens. With sequence parallelism, own is the
 * number of this rank's tokens (dpar_split_part_count of t->tokens); otherwise it is n. */
typedef struct dpar_linear_arrays {
    const void *w;    /* [out][in] */
    const void *bias; /* [out], or NULL if there is none; for a row layer the same on all ranks */
    const void *x;    /* column: [own][in]; row: [n][in] */
    void *y;          /* column: [n][out]; row: [own][out] */
    const void *dy;   /* shape of y */
    void *dx;         /* shape of x; NULL if not wanted (first layer, or a call for weights only) */
    void *dw;         /* shape of w; NULL if not wanted (a call for inputs only, as in zero-bubble
                         schedules) */
    void *dbias;      /* [out]; NULL if not wanted; for a row layer it is complete on every rank */
    /* Sequence parallelism. Column: [n][in] the inputs of all tokens. Row: [n][out], in forward
     * this rank's term of y, in backward the dy of all tokens. */
    void *gathered;
    void *gathered_dx; /* sequence parallelism, column, backward: [n][in] this rank's term of dx */
    /* 1 if `gathered` already contains the gathered values, so that they are not sent again. In a
     * column layer they are from forward, or from another layer with the same x. In a row layer
     * they are from an earlier call of backward for dx, and this call computes dw. */
    int32_t reuse_gathered;
    int32_t accumulate;    /* 1 adds to dw and dbias (micro-batches) */
    int32_t accumulate_dx; /* column: 1 adds to dx (sequence parallelism: gathered_dx), which
                              already contains the terms of other layers with the same x */
    int32_t defer_reduce;  /* column: 1 if another layer with the same x follows and adds to dx, so
                              that dx is not reduced in this call */
} dpar_linear_arrays;

/* Computes the output y of a linear layer. The bias is added last, once.
 *
 * Collective. A column layer communicates only with sequence parallelism: an all-gather of n in
 * elements. A row layer costs an all-reduce of n out elements, or a reduce-scatter with sequence
 * parallelism. The arithmetic is 2 n in out. Fails with DPAR_E_ARG as described at the top of this
 * file, with the errors of matmul, and with those of comm.h. */
DPAR_API dpar_status dpar_linear_forward(const dpar_tensor_parallel *tp, const dpar_linear *layer,
                                         const dpar_linear_arrays *arrays);
/* Computes the gradients of a linear layer: dx = dy w, dw = dy^T x, and dbias = the sum of dy.
 *
 * Collective. A column layer costs an all-reduce of n in elements while dw is computed. With
 * sequence parallelism it costs instead an all-gather (unless reuse_gathered) while dx is computed,
 * and a reduce-scatter while dw is computed. A row layer communicates only with sequence
 * parallelism: an all-gather of n out elements (unless reuse_gathered). With dpar_comm_progress, a
 * column layer's collectives overlap completely with the products. With dx and dw the arithmetic is
 * twice that of dpar_linear_forward. Fails like dpar_linear_forward. */
DPAR_API dpar_status dpar_linear_backward(const dpar_tensor_parallel *tp, const dpar_linear *layer,
                                          const dpar_linear_arrays *arrays);

/* On each rank, the y of a column layer and the x of a row layer have only some of the features. If
 * a layer between them needs all features, gather them with dpar_redistribute (move.h), and divide
 * the gradient again with the opposite dpar_redistribute. */

/* ---- vocabulary ---- */

/* Describes an embedding: y[token] = table[id of the token]. */
typedef struct dpar_embedding {
    dpar_vocab vocab; /* heads.h: this rank has dpar_vocab_row_count rows of the table */
    int64_t width;    /* elements of a row */
} dpar_embedding;
/* Arrays of an embedding. n is the number of all tokens, own the number of this rank's tokens as
 * for linear layers, and rows the number of this rank's rows of the table. */
typedef struct dpar_embedding_arrays {
    const int32_t *ids; /* [n] of all tokens, the same on all ranks */
    const void *table;  /* [rows][width]; forward reads it */
    void *y;            /* [own][width]; forward writes it */
    const void *dy;     /* [own][width]; backward reads it */
    void *dtable;       /* [rows][width]; backward writes it, with 0 in rows that no token uses */
    void *gathered;     /* sequence parallelism: [n][width]; otherwise NULL */
    int32_t accumulate; /* 1 adds to dtable (micro-batches) */
    int32_t reserved;   /* 0 */
} dpar_embedding_arrays;
/* Computes the output y of an embedding. Each rank looks up the rows that it has, and y is the sum
 * over the ranks. It has the same bits on any number of ranks.
 *
 * Collective. Costs an all-reduce of n width elements, or a reduce-scatter with sequence
 * parallelism, and O(n width). Fails with DPAR_E_ARG if an id does not exist. Fails with
 * DPAR_E_MISMATCH if ranks pass different vocabularies or ids, but only on engines that compare
 * calls: shared memory, and MPI with its option `check`. */
DPAR_API dpar_status dpar_embedding_forward(const dpar_tensor_parallel *tp,
                                            const dpar_embedding *layer,
                                            const dpar_embedding_arrays *arrays);
/* Computes the gradient of an embedding's table: dtable[row] is the sum of dy over the tokens that
 * use the row, in the order of the tokens. It has the same bits on any number of ranks.
 *
 * Collective. Communicates only with sequence parallelism: an all-gather of n width elements into
 * `gathered`. O((n + rows) width). Fails like dpar_embedding_forward. */
DPAR_API dpar_status dpar_embedding_backward(const dpar_tensor_parallel *tp,
                                             const dpar_embedding *layer,
                                             const dpar_embedding_arrays *arrays);

/* Describes a cross-entropy over a vocabulary that is divided among the ranks. With lse = ln(sum of
 * exp(logit) over the vocabulary) and V = vocab.count + vocab.added:
 *
 *     loss = lse - (1 - smoothing) logit[target] - smoothing / V (sum of all logits) + z_loss lse^2
 *
 * Smoothing is defined as in PyTorch (Megatron's e corresponds to e V / (V - 1) here). The z-loss
 * is that of PaLM, which uses z_loss = 1e-4. */
typedef struct dpar_cross_entropy {
    dpar_vocab vocab; /* rows of padding are ignored: their logits are not read, and their gradient
                         is 0 */
    double smoothing; /* 0 .. 1 */
    double z_loss;
    int32_t ignore;   /* 1 + the id of a target that is not counted; 0 if there is none. Targets
                         below 0, such as PyTorch's -100, are never counted. A target that is not
                         counted has loss and gradient 0 */
    int32_t reserved; /* 0 */
} dpar_cross_entropy;
/* Arrays of a cross-entropy. n is the number of all tokens, also with sequence parallelism. */
typedef struct dpar_cross_entropy_arrays {
    void *logits;                /* [n][dpar_vocab_row_count]; forward reads them, backward replaces
                                    them by their gradients */
    const int32_t *targets;      /* [n] token ids, the same on all ranks */
    double *lse;                 /* [n]; forward writes it, backward reads it */
    double *loss;                /* [n]; forward writes it, including z-loss; NULL if not wanted */
    dpar_cross_entropy_sum *sum; /* sums over the tokens; NULL if not wanted */
    void *scratch;               /* [3 n (ranks + 1)] of tp->type, used by forward */
} dpar_cross_entropy_arrays;
/* Computes the loss of each token over a vocabulary that is divided among the ranks. Losses and sum
 * are equal on all ranks, bit by bit, so add them up over data-parallel ranks only.
 *
 * Collective. Costs O(n rows) and one all-gather of three numbers per token, 12 bytes (f64: 24).
 * The numbers are the rank's largest logit, the sum of exponentials relative to it, and the rank's
 * terms of the loss that do not depend on lse. Sums over the vocabulary are in f64.
 *
 * Fails with DPAR_E_ARG if a target does not exist. Fails with DPAR_E_MISMATCH if ranks pass a
 * different vocabulary, targets, ignore, smoothing or z_loss, but only on engines that compare
 * calls: shared memory, and MPI with its option `check`. */
DPAR_API dpar_status dpar_cross_entropy_forward(const dpar_tensor_parallel *tp,
                                                const dpar_cross_entropy *layer,
                                                const dpar_cross_entropy_arrays *arrays);
/* Replaces the logits by `scale` times the gradient of the sum of the losses. For the gradient of
 * the mean, pass 1 / (number of tokens of all data-parallel ranks). Local. O(n rows). Fails with
 * DPAR_E_ARG if `layer` or `arrays` is NULL. */
DPAR_API dpar_status dpar_cross_entropy_backward(const dpar_tensor_parallel *tp,
                                                 const dpar_cross_entropy *layer,
                                                 const dpar_cross_entropy_arrays *arrays,
                                                 double scale);

/* ---- attention heads ---- */

/* There is no special function for attention. Use a column layer with the rows of the fused weight
 * that dpar_heads_rows computes, then attention over the rank's heads, then a row layer.
 *
 * If there are fewer key-value heads than ranks, several ranks hold the same one, and each computes
 * only the gradient from its own queries. With share = dpar_heads_local(&heads, c->rank),
 *
 *     dpar_comm_split(c, share.first_group, c->rank, &same);
 *
 * on all ranks makes a communicator of the ranks that hold the same key-value head. They must sum
 * the gradients of keys and values once per step, after the last micro-batch. dw is
 * [(queries + 2) width][in] with the queries first. Sum its last 2 width in elements, which begin
 * at element share.queries width in, and the last 2 width elements of dbias. */

/* ==== train/sequence.h ==== */

/* sequence - computes attention over tokens that are divided among ranks (context parallelism).
 * This file has ring attention, in which keys and values are passed from rank to rank around a
 * ring. layer.method selects another method: ulysses.h exchanges tokens for heads before and after
 * attention, and window_attention.h gets the keys of a sliding window as a halo. dpar determines
 * which rank has which tokens, sends keys and values, and handles masks and the sums of the
 * softmax. Your kernel, or the plain one of this file, computes the attention of a block:
 *
 *     memset(&layer, 0, sizeof(layer));
 *     dpar_packed_init(&layer.tokens, docs, ends, comm->size, DPAR_SPLIT_ZIGZAG, &why);
 *     layer.heads = 32; layer.groups = 8; layer.width = 128;
 *     layer.type = DPAR_F32; layer.causal = 1;
 *     dpar_attention_make(comm, &layer, &plan, &why);
 *     arrays.q = ...                            plan->tokens rows, for the rank's own tokens
 *     dpar_attention_forward(plan, &arrays);    in every layer and step
 *     dpar_attention_backward(plan, &arrays);
 *     dpar_attention_free(plan);
 *
 * Arrays are dense: q[tokens][heads][width], k[tokens][groups][width],
 * v[tokens][groups][value_width], out[tokens][heads][value_width], lse[tokens][heads]. Each heads /
 * groups query heads share a group. The samples of a batch are documents of one packed sequence.
 *
 * "Sums" are lse, and out and the gradients while they are accumulated. They are f64 if the type is
 * f64, otherwise f32, and are rounded to the type once. Results have the same bits in every run on
 * the same number of ranks. On one rank they are exactly those of the kernel.
 *
 * The ring has P steps, t = 0 .. P-1. In step t, rank r computes with the keys and values of rank r
 * - t (modulo P). Meanwhile it sends them to rank r + 1 and receives those of rank r - t - 1. In
 * backward, the gradients of keys and values are passed in the same direction, one step later,
 * until they reach their owner. The gradients from a rank's own queries stay on that rank, so that
 * gradients take as many hops as keys and values.
 *
 * Traffic. Let T be the number of all tokens, n that of this rank and m that of the next rank, and
 * let E = groups (width + value_width) be the number of elements per token. A rank sends
 *
 *     forward   (T - m) E bytes(type)
 *     backward  (T - m) E bytes(type) + (T - n) E bytes(sums)
 *
 * A single rank sends nothing. plan->sent_bytes counts the bytes.
 *
 * With a causal mask, and tokens that are divided in order, rank 0 is idle most of the time. With
 * DPAR_SPLIT_ZIGZAG, and documents whose lengths are multiples of 2 P, every rank has the same work
 * in every step. plan->pairs counts the work.
 *
 * If comm->mem is the memory of a device, all arrays are in that memory, and you must provide
 * kernels, which enqueue on its stream. No function waits for the device.
 *
 * Megatron's sequence parallelism is different: it divides the activations between tensor-parallel
 * layers along the sequence, with an all-gather before and a reduce-scatter after these layers. See
 * tensor.h. */

typedef struct dpar_attention_desc dpar_attention_desc;

/* Selects how ranks get the keys of other ranks. NULL selects the ring; dpar_attention_ulysses is
 * in ulysses.h, and dpar_attention_halo is in window_attention.h (dpar_spatial.h). Assign one to
 * layer.method, but do not call it. */
struct dpari_attention_method;
typedef void (*dpar_attention_method)(struct dpari_attention_method *way);

/* Describes a block for a kernel: a run of queries and a run of keys of one document. Query i sees
 * key j if i + low <= j <= i + high. low and high are between -queries and keys, so that these sums
 * do not overflow. Arrays begin at the first token of the block, have rows as described at the top,
 * and contain all heads. "Sums" are f64 if the layer's type is f64, otherwise f32. */
typedef struct dpar_attention_call {
    const dpar_attention_desc *layer;
    int64_t queries, keys; /* numbers of queries and keys */
    int64_t first_query,
        first_key; /* positions of the first query and the first key in the packed sequence */
    int64_t low, high;
    const void *q, *k, *v; /* of the layer's type */
    void *out;             /* forward writes sums; backward reads the final result, of the layer's
                              type */
    /* Sums. Forward writes ln(sum of exp(scale q . k)) over the keys of the block. For a query that
     * sees no key of the block it writes -1e30 or less, and 0 to out. Backward reads the logarithm
     * over all keys. */
    void *lse;
    const void *out_gradient;                   /* of the layer's type */
    const void *delta;                          /* sums, [queries][heads]: out . out_gradient */
    void *q_gradient, *k_gradient, *v_gradient; /* sums, to which backward adds */
    void *user;                                 /* layer->user */
} dpar_attention_call;
/* Computes the attention of a block, or its gradients. It is your callback. */
typedef void (*dpar_attention_kernel)(const dpar_attention_call *call);

/* Describes a layer of attention. Zero it and fill in what differs from the defaults. All ranks
 * pass the same values, except for kernels, user, memory and bytes. */
struct dpar_attention_desc {
    /* NULL selects the ring, in which each document is divided among the ranks. With
     * dpar_attention_ulysses and dpar_attention_halo the packed sequence is divided instead,
     * without regard to documents. */
    dpar_attention_method method;
    /* The documents and the number of ranks of the communicator. tokens.rule says which tokens each
     * rank has: ZIGZAG, CHUNK or EVEN; CYCLIC also works, but in blocks of one token. */
    dpar_packed tokens;
    int32_t heads;       /* number of query heads */
    int32_t groups;      /* number of key-value heads (GQA), which divides heads; 0 selects heads */
    int32_t width;       /* elements of a query or key */
    int32_t value_width; /* elements of a value; 0 selects width */
    int32_t type;        /* DPAR_F64, F32, BF16 or F16 */
    int32_t causal;      /* 1 if a query sees no later key */
    int64_t window;      /* if above 0, a query sees no key that is more than this many tokens away.
                            A query never sees keys of other documents */
    double scale;        /* factor of the scores; 0 selects 1 / sqrt(width) */
    int32_t tag;         /* messages use tag .. tag + 3 */
    int32_t heads_chunked; /* Ulysses: 1 divides heads by DPAR_SPLIT_CHUNK, so that the last ranks
                              have fewer; 0 divides them by DPAR_SPLIT_EVEN */
    /* Ulysses: divides the tokens by any rule; NULL selects tokens.rule. You keep it until the plan
     * is freed. */
    const dpar_split *token_split;
    dpar_attention_kernel forward, backward; /* NULL selects dpar_attention_host (F64 and F32) */
    void *user;                              /* passed to the kernels */
    /* Your memory for the plan, on the host and aligned to 64 bytes, which you keep until the plan
     * is freed; memory of dpar_comm_alloc is the fastest. If it is NULL and bytes is 0, make
     * allocates it. If bytes is too small, make fails with DPAR_E_ROOM, and why->bytes is the size
     * that is needed. To query that size, set memory to NULL and bytes to 1. */
    void *memory;
    int64_t bytes;
};

/* ---- blocks; local ---- */

/* Computes the attention of a block in plain C for F64 and F32, or its gradients if out_gradient is
 * not NULL. It processes one query at a time and subtracts the largest score so far. You can also
 * call it for a whole document: with low = -keys, and high = 0 if causal, otherwise keys. For other
 * types it writes nothing. Local. O(pairs of a query and a key). */
DPAR_API void dpar_attention_host(const dpar_attention_call *call);

/* ---- plans ---- */

/* A plan of attention, whose fields you may read. */
typedef struct dpar_attention_plan {
    dpar_attention_desc layer; /* with the defaults filled in */
    int64_t tokens;            /* tokens of this rank: rows of its arrays */
    int64_t saved_bytes;       /* size of arrays.saved in bytes */
    int64_t pairs;      /* pairs of a query and a key that forward computed so far, in one head */
    int64_t sent_bytes; /* bytes that were sent to other ranks so far */
} dpar_attention_plan;

/* Arrays of one layer, all of the layer's type except lse and saved. On a rank without tokens they
 * may be NULL. Messages are sent from memory of dpar_comm_alloc without a copy. */
typedef struct dpar_attention_arrays {
    const void *q, *k, *v;
    void *out; /* forward writes it, backward reads it */
    void *lse; /* [tokens][heads] of sums (f64 for f64, otherwise f32); forward writes it, backward
                  reads it. Ulysses does not use it */
    /* Ulysses: plan->saved_bytes bytes, aligned to 64, which forward writes and backward reads: q,
     * k, v, out and lse of this rank's heads. */
    void *saved;
    const void *out_gradient;                   /* backward reads it */
    void *q_gradient, *k_gradient, *v_gradient; /* backward writes them */
} dpar_attention_arrays;

/* Makes a plan of attention. All layers of this shape can use the same plan, one after the other.
 *
 * layer: you keep the array of document ends in layer->tokens until the plan is freed.
 *
 * Let a block be the keys and values of the rank with the most tokens. The plan of a ring contains
 * two blocks, and the larger of one out for forward and four blocks of sums for backward (three on
 * 2 ranks). For 16-bit types it also contains out or the queries' gradients in f32. If comm->mem is
 * the memory of a device, dpar_comm_alloc allocates these buffers there.
 *
 * Collective over comm: one all-reduce. O(docs x ranks). Fails on all ranks with DPAR_E_MISMATCH if
 * layers differ, DPAR_E_ROOM, DPAR_E_MEMORY, DPAR_E_ARG, DPAR_E_DIVIDE or DPAR_E_RANGE. */
DPAR_API dpar_status dpar_attention_make(dpar_comm *comm, const dpar_attention_desc *layer,
                                         dpar_attention_plan **plan, dpar_why *why);
/* Computes out and lse from q, k and v.
 *
 * Collective. The top of this file lists the traffic; the kernel does the arithmetic. Messages
 * progress between calls of the kernel, or all the time with dpar_comm_progress.
 *
 * Fails with DPAR_E_ARG if an array is NULL, which breaks the communicator, so that the other ranks
 * notice. Fails with DPAR_E_PEER and DPAR_E_TIMEOUT as described in comm.h. The message is in the
 * communicator's why. If plan or arrays itself is NULL, fails with DPAR_E_ARG without a message. */
DPAR_API dpar_status dpar_attention_forward(dpar_attention_plan *plan,
                                            const dpar_attention_arrays *arrays);
/* Computes the gradients of q, k and v from that of out. The arrays q, k, v, out, lse and saved
 * must be as dpar_attention_forward left them. Collective. The top of this file lists the traffic.
 * Fails like dpar_attention_forward. */
DPAR_API dpar_status dpar_attention_backward(dpar_attention_plan *plan,
                                             const dpar_attention_arrays *arrays);

/* Frees a plan of attention. NULL is allowed. Collective. With dpar_attention_halo it fails like
 * dpar_halo_plan_free. */
DPAR_API dpar_status dpar_attention_free(dpar_attention_plan *plan);

/* ==== train/ulysses.h ==== */

/* ulysses - computes attention (sequence.h) by exchanging tokens for heads. Before attention, each
 * rank has some of the tokens with all heads. After an exchange it has all tokens with some of the
 * heads. It then computes attention as a single rank would, and the results are exchanged back.
 *
 *     layer.method = dpar_attention_ulysses;   set other fields as in sequence.h
 *     dpar_packed_init(&layer.tokens, docs, ends, c->size, DPAR_SPLIT_EVEN, &why);
 *     dpar_attention_make(c, &layer, &plan, &why);         continue as for the ring
 *     arrays.saved = plan->saved_bytes bytes for each layer
 *
 * Each rank has a part of the packed sequence, without regard to documents: by tokens.rule, or by
 * layer.token_split. dpar_heads_init divides the heads, and ranks may have different numbers of
 * them. If there are fewer groups than ranks, several ranks hold copies of a group, and its
 * gradients are added in rank order (16-bit types in f32, rounded once). The kernel gets whole
 * documents and this rank's heads, whose numbers are in call->layer.
 *
 * If ranks share memory, and the arrays to be exchanged come from dpar_comm_alloc on all ranks,
 * each rank reads its heads (or tokens) directly from the other ranks' arrays. This takes one pass
 * and is as fast as a plain all-to-all. Otherwise the arrays are packed before an all-to-all and
 * sorted after it, which takes three passes. Both methods give the same bits.
 *
 * Traffic. Let this rank have n of all N tokens, and h heads. Let H be the number of heads of all
 * ranks, counting each copy. For an array with `width` elements per token and head, the rank sends
 *
 *     (H - h) n width bytes(type)     from tokens to heads
 *     h (N - n) width bytes(type)     from heads to tokens
 *
 * Forward exchanges q, k and v to heads, and out back to tokens. Backward exchanges the gradient of
 * out to heads, and those of q, k and v back to tokens.
 *
 * The plan contains one copy of the rank's tokens with all heads for queries and one for keys, or
 * two of each if values and keys differ in width. If the rule does not give each rank consecutive
 * tokens in rank order, it also contains the same number of copies of all tokens with the rank's
 * heads. It also contains the gradients that backward computes. */

/* Selects the exchange of tokens for heads. Assign it to dpar_attention_desc.method, but do not
 * call it. O(1). */
DPAR_API void dpar_attention_ulysses(struct dpari_attention_method *method);

/* Arrays of a layer, for dpar_attention_exchange. */
enum { DPAR_ATTENTION_Q, DPAR_ATTENTION_K, DPAR_ATTENTION_V, DPAR_ATTENTION_OUT };

/* Executes one exchange of a plan with dpar_attention_ulysses. Use it if you compute attention
 * yourself between two exchanges.
 *
 * array:   DPAR_ATTENTION_Q, ... DPAR_ATTENTION_OUT.
 * back:    0 fills out[all tokens][heads of this rank][width] from in[tokens][all heads][width]. 1
 *          is the opposite direction, in which copies of a group are added. Each direction is also
 *          the gradient of the other.
 * in, out: must not overlap.
 *
 * Collective: one all-to-all-v, or one pass of direct reads. The top of this file lists the
 * traffic. Fails with DPAR_E_ARG, which breaks the communicator, if the plan has another method,
 * there is no such array, or in or out is NULL. Fails with DPAR_E_MISMATCH if ranks exchange
 * different arrays. With MPI or DPAR_WORLD_NO_DIRECT this is noticed only if the numbers of
 * elements differ. Other errors are those of dpar_attention_forward. The message is in the
 * communicator's why. If plan is NULL, fails with DPAR_E_ARG without a message. */
DPAR_API dpar_status dpar_attention_exchange(dpar_attention_plan *plan, int32_t array, int back,
                                             const void *in, void *out);

/* ==== train/router.h ==== */

/* router - chooses the experts of each token for a mixture of experts (expert.h), and computes the
 * weights of the choices, the load of the experts and a loss that balances it. expert.h has an
 * example. */

/* Functions that turn logits into scores. */
enum {
    DPAR_ROUTER_SOFTMAX, /* softmax over all experts (Switch, Mixtral with normalise, Qwen) */
    DPAR_ROUTER_SIGMOID, /* sigmoid of each expert's logit (DeepSeek-V3, Llama 4) */
    DPAR_ROUTER_GIVEN /* logits are the scores; if normalised or balanced they must be at least 0 */
};

/* Describes a router. Zero it and fill it in. A token chooses the k experts with the highest score
 * + bias, highest first. If two are equal, the one with the lower index comes first; NaN comes
 * last. The weight of a choice with score s is
 *
 *     scale s            or, with normalise:    scale s / (the sum of the token's k scores + 1e-20)
 *
 * If the capacity drops a choice, the weights of the token's other choices do not change. */
typedef struct dpar_router {
    int32_t experts;    /* E, at least 1 */
    int32_t choices;    /* k, 1 .. E */
    int32_t score;      /* DPAR_ROUTER_SOFTMAX, ... */
    int32_t type;       /* of logits, weights and their gradients: DPAR_F64 or F32 */
    int32_t normalise;  /* 1 normalises the weights of a token */
    int32_t reserved;   /* 0 */
    double scale;       /* 0 selects 1; DeepSeek-V3 has 2.5 */
    double balance;     /* coefficient a of the balancing loss; 0 for no loss */
    const double *bias; /* [experts], or NULL if there is none. It affects only the choice and has
                           no gradient */
} dpar_router;

/* Arrays of the router for one layer and micro-batch. Arrays that a function does not use may be
 * NULL. */
typedef struct dpar_router_arrays {
    int64_t tokens;
    const void *logits;  /* [tokens][experts] */
    int32_t *chosen;     /* [tokens][k]; forward writes it, balance and backward read it */
    void *weight;        /* [tokens][k]; forward writes it */
    double *sums;        /* [2 experts + 1]; balance writes it */
    const void *dweight; /* [tokens][k]; backward reads it; NULL means zeros */
    void *dlogits;       /* [tokens][experts]; backward writes it */
    double *scratch;     /* [2 experts]; used by all functions */
} dpar_router_arrays;

/* Chooses the experts of each token: computes chosen and weight from logits. Local. O(tokens x
 * experts), or in the worst case, which is ascending scores, k times that. Fails with DPAR_E_ARG.
 */
DPAR_API dpar_status dpar_router_forward(const dpar_router *router,
                                         const dpar_router_arrays *arrays, dpar_why *why);

/* How evenly the tokens of all ranks choose the experts, before capacity drops any choice. */
typedef struct dpar_router_load {
    int64_t tokens;   /* number of tokens of all ranks */
    int64_t idle;     /* number of experts that no token chose */
    double imbalance; /* load of the busiest expert / mean load; 1 is even, 0 means no choices */
    double loss;      /* see dpar_router_balance */
    double *chosen;   /* [experts] how often each was chosen, as whole numbers; part of a->sums */
    double *score; /* [experts] P, the mean over tokens of the expert's share of the token's scores;
                      part of a->sums */
} dpar_router_load;
/* Computes the load of the experts and the balancing loss of Switch and DeepSeek over the tokens of
 * all ranks of comm:
 *
 *     loss = a E sum over experts of f P,    f = chosen / (k tokens)
 *
 * The loss is `a` if tokens are spread evenly. It uses arrays->chosen from dpar_router_forward.
 * A token whose first choice is -1 is padding and is not counted. A token that
 * several ranks hold is counted once per rank.
 *
 * comm: the ranks that share the router. NULL computes the loss of these tokens only, as DeepSeek
 *       does for each sequence.
 *
 * Collective over comm: an all-reduce of 2 x experts + 1 doubles, which gives the same bits on all
 * its ranks. With comm->mem it waits for the device's stream. Local if comm is NULL. O(tokens x
 * experts). Fails with DPAR_E_ARG, which breaks the communicator; the message is in comm->why.
 * Fails with DPAR_E_MISMATCH if ranks pass different routers (apart from bias), but only on engines
 * that compare calls: shared memory, and MPI with its option `check`. */
DPAR_API dpar_status dpar_router_balance(const dpar_router *router, dpar_comm *comm,
                                         const dpar_router_arrays *arrays, dpar_router_load *load);
/* Computes dlogits from dweight.
 *
 * load: from dpar_router_balance, to add the gradient of its loss, in which f is constant as usual.
 *       NULL omits the loss.
 *
 * The loss is that of all ranks' tokens, so its gradients must be summed over the ranks. If ddp
 * averages the gradients of the router, multiply `balance` by the number of ranks.
 *
 * Local. O(tokens x experts). Fails like dpar_router_forward, and with DPAR_E_ARG if a choice is
 * not an expert. */
DPAR_API dpar_status dpar_router_backward(const dpar_router *router,
                                          const dpar_router_arrays *arrays,
                                          const dpar_router_load *load, dpar_why *why);
/* You can also balance experts without a loss (DeepSeek-V3). Once per step, add 0.001 to bias[e] if
 * load->chosen[e] is below the mean of load->chosen, and subtract 0.001 if it is above. With
 * several micro-batches, use the sums of their load->chosen, which are the same on all ranks. */

/* ==== train/expert.h ==== */

/* expert - runs mixtures of experts whose experts are on different ranks (expert parallelism). The
 * router chooses k experts for each token. dpar sends tokens to the ranks of their experts and the
 * results back, forward and backward. The results equal those of one rank with all tokens and all
 * experts. You compute the experts themselves:
 *
 *     dpar_experts_desc layer = {0};
 *     dpar_split_init(&layer.experts, DPAR_SPLIT_EVEN, 64, comm->size, 1, &why);
 *     layer.choices = 2; layer.drop = DPAR_EXPERTS_DROP_NONE;
 *     layer.max_tokens = 4096; layer.width = 1024; layer.type = DPAR_F32;
 *     dpar_experts_make(comm, &layer, &plan, &why);                  one plan for all such layers
 *
 *     route.tokens = tokens; route.logits = logits; ...              dpar_router_arrays
 *     dpar_router_forward(&router, &route, &why);                    choices and weights
 *     choices.tokens = tokens; choices.chosen = chosen;
 *     dpar_experts_route(plan, NULL, 0, &choices, &routing, &why);
 *     a.x = x; a.rows = rows; a.weight = weight; ...                 dpar_experts_arrays
 *     dpar_experts_dispatch(plan, routing, &a);
 *     ... expert e of this rank on rows first[e] .. first[e] + count[e] - 1 ...
 *     dpar_experts_combine(plan, routing, &a);
 *
 *     dpar_experts_combine_backward(plan, routing, &a);
 *     ... the experts' gradients; drows ...
 *     dpar_experts_dispatch_backward(plan, routing, &a);
 *     dpar_router_backward(&router, &route, NULL, &why);
 *
 *     dpar_experts_free(plan);
 *
 * If the forward of other layers runs before the backward of a layer, each layer needs a separate
 * routing: pass memory of plan->routing_bytes bytes to dpar_experts_route for each.
 *
 * The rows of an expert are in the order of the ranks, then of the tokens of a rank. If each rank
 * holds consecutive tokens, this is the order that one rank would use, so that an expert's sums
 * have the same bits. A token's results are summed in the order of its choices, in f64, and rounded
 * once.
 *
 * Traffic. Let there be R ranks and E experts, of which `own` are on the rank, let rows have B =
 * width bytes(type) bytes, and let S be k with DPAR_EXPERTS_DROP_POSITION, otherwise 1. A rank
 * sends to other ranks
 *
 *     route      4 (R - 1 + S (E - own)) bytes; for DPAR_EXPERTS_DROP_POSITION another
 *                4 (R - 1) (1 + S own); for DPAR_EXPERTS_DROP_NONE also an all-reduce of 24 bytes
 *     dispatch, combine_backward    B for each kept choice of its tokens of another rank's expert
 *     combine, dispatch_backward    B for each row of its experts from another rank's token
 *
 * Nothing else is sent, because weights and their gradients stay with the tokens. plan->sent_bytes
 * counts the bytes.
 *
 * Shared memory. Ranks can read the rows directly from each other's arrays and store or add them at
 * their destination, in one pass. This moves less data than two plain all-to-alls. It requires that
 * the arrays that other ranks read come from dpar_comm_alloc on all ranks: routings, x, dy,
 * weights, and the rows that are sent back. Do not change these inputs until the call returns,
 * which it does once all ranks have read them. Otherwise rows are packed before an all-to-all and
 * sorted after it, which takes three passes. Both methods give the same bits and counts.
 *
 * Devices. If comm->mem is the memory of a device, x, rows, results, saved, y, weights and all
 * their gradients are in that memory. Dispatch, combine and their backward enqueue work on its
 * stream, without waiting or allocating. The host decides which choices are kept, and the plan is
 * in host memory. Therefore the CPU must be able to read the arguments of dpar_experts_route:
 * `chosen`, and with DPAR_EXPERTS_DROP_WEIGHT_LOCAL `weight`. Copy them to the host and wait before
 * you call it.
 *
 * Routings must then be in page-locked memory, which both host and device can access. The first
 * operation that uses another routing than the previous operation copies 12 bytes per choice to the
 * device. dpar_experts_route waits for the stream, because the device may still read the old
 * contents, and because it needs the counts. Therefore do not capture these calls in a graph.
 *
 * The router's functions run on the host. Pass them page-locked logits, weights and dweight, or use
 * your own kernels instead. The device's values equal the host's bit by bit, with two exceptions:
 * -0 in the results of combine_backward becomes 0, and sums of dweight use the device's order.
 *
 * Together with tensor and data parallelism, make the communicator from a view of the mesh for
 * experts:
 *
 *     dpar_mesh_view(&view, &mesh, "edp ep etp", sizes, DPAR_ORDER_LAST_FASTEST, &why);
 *     dpar_comm_split_axes(world, &view, 1u << 1, &ep);     for this file
 *     dpar_comm_split_axes(world, &view, 1u << 2, &etp);    an expert's matrices, tensor.h: these
 *                                          ranks pass the same tokens and get the same rows
 *     dpar_comm_split_axes(world, &view, 1u << 0, &edp);    gradients of experts, ddp.h
 *
 * The router and all other layers use the axes of `mesh`. An expert that all tokens use is an
 * ordinary layer: add its output to y. */

/* Rules for dropping choices if an expert is full. Except with DPAR_EXPERTS_DROP_NONE, an expert
 * has a capacity of C = ceil(capacity_factor k T / E) rows. */
enum {
    DPAR_EXPERTS_DROP_NONE, /* keeps all choices */
    /* Keeps first choices before second ones, and so on. Choices of the same position are kept in
     * the order of the ranks, then of the rank's tokens. T is the number of tokens of all ranks.
     * One rank with all tokens would drop the same choices (GShard, Switch). */
    DPAR_EXPERTS_DROP_POSITION,
    /* Keeps choices in the same order, but for the tokens of each rank separately. T is the number
     * of the rank's tokens, and an expert keeps C rows from each rank (position in Megatron). */
    DPAR_EXPERTS_DROP_POSITION_LOCAL,
    /* Keeps, for each rank and expert, the C choices with the largest weights. If two are equal,
     * prefers the lower token. Drops NaN first. T is the number of the rank's tokens (probs in
     * Megatron). */
    DPAR_EXPERTS_DROP_WEIGHT_LOCAL
};

/* Describes a layer of experts. Zero it and fill it in. All ranks pass the same values, except for
 * max_rows, memory and bytes. */
typedef struct dpar_experts_desc {
    dpar_split experts; /* which experts each rank has: CHUNK, EVEN, FLOOR or RAGGED, with as many
                           parts as the communicator has ranks. Parts may differ in size and may be
                           empty */
    int32_t choices;    /* k */
    int32_t drop;       /* DPAR_EXPERTS_DROP_NONE, ... */
    double capacity_factor; /* 0.000001 to 1000000, rounded to millionths; not read with
                      DPAR_EXPERTS_DROP_NONE */
    int64_t max_tokens;     /* largest number of tokens that a rank will have, at least 1 */
    int64_t max_rows; /* DPAR_EXPERTS_DROP_NONE: largest number of rows for this rank's experts in
                     one step. 0 selects ranks x max_tokens x min(k, own experts), which is always
                     enough */
    int64_t width;    /* elements of a row */
    int32_t type; /* of rows: DPAR_F64, F32, BF16 or F16. Weights are F64 for F64, otherwise F32 */
    int32_t reserved; /* 0 */
    /* Your memory for the plan, on the host and aligned to 64 bytes, which you keep until the plan
     * is freed; memory of dpar_comm_alloc is the fastest. If it is NULL and bytes is 0, make
     * allocates it, and without comm->mem also memory for one routing. If bytes is too small, make
     * fails with DPAR_E_ROOM, and why->bytes is the size that is needed. To query that size, set
     * memory to NULL and bytes to 1. */
    void *memory;
    int64_t bytes;
} dpar_experts_desc;

/* A plan of a layer of experts, whose fields you may read. */
typedef struct dpar_experts_plan {
    dpar_experts_desc layer;
    int32_t first, count; /* first expert of this rank, or E if it has none, and their number */
    int64_t max_rows;     /* largest number of rows for this rank's experts: size of your arrays */
    /* Size of one routing in bytes, a little more than 12 max_tokens k + 16 ranks x own experts. */
    int64_t routing_bytes;
    int64_t sent_bytes;              /* bytes sent to other ranks so far */
    int64_t kept, dropped, received; /* choices kept, choices dropped, and rows received, so far */
} dpar_experts_plan;

/* Describes where the tokens of one layer and micro-batch are sent. You may read its fields. It is
 * used from forward to the end of backward. */
typedef struct dpar_experts_routing {
    int64_t tokens;
    int64_t kept;      /* choices of this rank's tokens that are kept: rows of arrays.saved */
    int64_t dropped;   /* choices of this rank's tokens that were dropped */
    int64_t rows;      /* rows for this rank's experts */
    int64_t *count;    /* [own] rows of each expert */
    int64_t *first;    /* [own] first row of each expert */
    int32_t *position; /* [tokens][k] position among the kept choices, which are sorted by expert;
                       -1 if dropped */
} dpar_experts_routing;

/* Choices of the tokens of a rank. */
typedef struct dpar_experts_choices {
    int64_t tokens;        /* 0 .. layer.max_tokens; it may differ between ranks and calls */
    const int32_t *chosen; /* [tokens][k] experts from dpar_router_forward, each at most once per
                              token; -1 for no choice (padding) */
    const void *weight; /* [tokens][k]; only DPAR_EXPERTS_DROP_WEIGHT_LOCAL reads it, otherwise it
                           may be NULL */
} dpar_experts_choices;

/* Arrays of one layer, which must not overlap. Arrays that a function does not use may be NULL. */
typedef struct dpar_experts_arrays {
    const void *x;       /* [tokens][width]; dispatch reads it */
    void *rows;          /* [routing->rows][width]; dispatch writes it, grouped by expert */
    const void *results; /* [routing->rows][width]; combine reads it */
    const void *weight;  /* [tokens][k]; combine and combine_backward read it */
    void *y;             /* [tokens][width]; combine writes it */
    void *saved;         /* [routing->kept][width]; combine stores the received results in it, and
                           combine_backward reads them. NULL if there is no backward */
    const void *dy;      /* [tokens][width]; combine_backward reads it */
    void *dresults;      /* [routing->rows][width]; combine_backward writes it */
    void *dweight; /* [tokens][k]; combine_backward writes it. NULL if not wanted; saved is then not
                      read */
    const void *drows; /* [routing->rows][width]; dispatch_backward reads it */
    void *dx;          /* [tokens][width]; dispatch_backward writes it */
} dpar_experts_arrays;

/* Makes a plan for layers of experts. All layers of this shape can use the same plan, but not at
 * the same time.
 *
 * layer: if its split is RAGGED, you keep the array of cuts until the plan is freed.
 *
 * The plan contains a buffer for max_tokens x k rows and, if the rank has several experts, another
 * for max_rows rows. With comm->mem, dpar_comm_alloc allocates these buffers on the device, and 12
 * + bytes(weight) bytes for each of max_tokens k choices.
 *
 * Collective over comm: one all-reduce. O(ranks). Fails on all ranks, with DPAR_E_MISMATCH if
 * layers differ, DPAR_E_ROOM, DPAR_E_MEMORY, DPAR_E_ARG or DPAR_E_RANGE. With comm->mem it also
 * fails with DPAR_E_UNKNOWN if that has no wait or span, or its layers have no gather, combine or
 * dot. */
DPAR_API dpar_status dpar_experts_make(dpar_comm *comm, const dpar_experts_desc *layer,
                                       dpar_experts_plan **plan, dpar_why *why);
/* Frees a plan of experts. If it has memory on a device, waits for the device's stream first. NULL
 * is allowed. Local. Fails if this wait fails; the message is in the communicator's why. */
DPAR_API dpar_status dpar_experts_free(dpar_experts_plan *plan);
/* Decides which choices are kept, and sends the counts to the ranks of the experts.
 *
 * memory, bytes: plan->routing_bytes bytes, aligned to 64, which hold the routing as long
 *                as you use it. Memory of dpar_comm_alloc is the fastest; with comm->mem it must be
 *                page-locked. NULL selects memory in the plan, whose previous routing is then lost.
 *                The plan has such memory if dpar_experts_make allocated it, without comm->mem.
 *
 * Collective. Costs the all-to-alls of counts that the top of this file lists, and O(tokens k +
 * ranks own k + experts), with DPAR_EXPERTS_DROP_WEIGHT_LOCAL times a logarithm. With
 * DPAR_EXPERTS_DROP_NONE, fails on all ranks with DPAR_E_ROOM, naming the numbers, if
 * layer.max_rows is too small on one rank. The plan can still be used then. DPAR_E_ARG on one rank
 * breaks the communicator. */
DPAR_API dpar_status dpar_experts_route(dpar_experts_plan *plan, void *memory, int64_t bytes,
                                        const dpar_experts_choices *choices,
                                        dpar_experts_routing **routing, dpar_why *why);

/* Sends the tokens x to their experts, which get exact copies of them in `rows`.
 *
 * Collective, like the three functions below. Costs one all-to-all-v or one pass of direct reads,
 * whose traffic the top of this file lists, and copies of O(tokens k width + rows width) elements.
 * Fails with DPAR_E_ARG, which breaks the communicator, if an array is NULL. Fails with
 * DPAR_E_MISMATCH if the routings of the ranks are not from the same call of dpar_experts_route.
 * With MPI, the memory of a device or DPAR_WORLD_NO_DIRECT this is noticed only if the numbers of
 * rows differ. Fails with DPAR_E_PEER and DPAR_E_TIMEOUT as described in comm.h. The message is in
 * comm->why. */
DPAR_API dpar_status dpar_experts_dispatch(dpar_experts_plan *plan,
                                           const dpar_experts_routing *routing,
                                           const dpar_experts_arrays *arrays);
/* Sends the results back and combines them: y[token] is the sum over its kept choices of weight x
 * result, or 0 if all were dropped. Collective. Has the costs and errors of
 * dpar_experts_dispatch. */
DPAR_API dpar_status dpar_experts_combine(dpar_experts_plan *plan,
                                          const dpar_experts_routing *routing,
                                          const dpar_experts_arrays *arrays);
/* Computes the gradients of dpar_experts_combine: dresults = weight x dy, and dweight = dy . result
 * with sums in f64, or 0 for choices that were dropped. Collective. Has the costs and errors of
 * dpar_experts_dispatch. */
DPAR_API dpar_status dpar_experts_combine_backward(dpar_experts_plan *plan,
                                                   const dpar_experts_routing *routing,
                                                   const dpar_experts_arrays *arrays);
/* Computes the gradient of dpar_experts_dispatch: dx[token] is the sum over its kept choices of
 * drows. Collective. Has the costs and errors of dpar_experts_dispatch. */
DPAR_API dpar_status dpar_experts_dispatch_backward(dpar_experts_plan *plan,
                                                    const dpar_experts_routing *routing,
                                                    const dpar_experts_arrays *arrays);

/* ==== train/pipeline.h ==== */

/* pipeline - runs a schedule of dpar_schedule.h on real ranks. Stages are callbacks, called in the
 * order of the rank's list of actions. Messages use the slots that dpar_schedule_slots assigns;
 * they are posted where the list has them, and are transferred while stages compute.
 *
 *     desc.order = "1f1b"; desc.micro_batches = micros;
 *     desc.type = DPAR_F32; desc.count = tokens * width;
 *     desc.forward = my_forward; desc.backward = my_backward;
 *     dpar_pipeline_make(comm, &desc, &p, &why);
 *     each step: dpar_pipeline_run(p, 1, &why);
 *     in my_forward, now and then if it takes long: dpar_pipeline_progress(p);
 *     dpar_pipeline_free(p);
 *
 * You can also pass your own schedule instead of the name of an order:
 *
 *     dpar_schedule_generate(&made, ...); dpar_schedule_lower(&list, &made, &how, ...);
 *     desc.schedule = &list;             (how.passes: MESSAGES, and REDUCE or SHARDS if wanted)
 *
 * comm connects the ranks of the schedule, and rank r runs list r. Stages may be placed in any way:
 * in a loop, in a V, in both directions, or by your own rank_of. If neighbouring stages are on the
 * same rank, they pass their data in memory, without a message.
 *
 * Guarantees. A rank begins its actions in exactly the order of its list. F, B and I wait until
 * their input has been received. An action that fills a send slot waits until the previous message
 * from that slot is complete. dpar_pipeline_make proves that no step can deadlock, whatever the
 * speed of the ranks. The pipeline uses as many slots as dpar_schedule_slots reports, and only make
 * allocates memory. If a callback fails or a rank is lost, the step ends on all ranks with the
 * message.
 *
 * If comm->mem is the memory of a device (dpar_nccl.h), `tied`, the slots and thus the buffers of
 * the callbacks are in that memory. The pipeline itself never reads them. Callbacks enqueue their
 * work on the stream of comm->mem and return. That stream waits for messages, while the thread
 * continues. Because a stream has one queue for all messages, a list with keep_sends must pass
 * DPAR_TRANSPORT_RANK. The thread waits only at the end of a step, unless `no_final_barrier` is
 * set. The times in start and end are those of enqueuing. */

/* Describes the work of one call of a stage's callback. Buffers hold elements of desc.type and
 * belong to the callback until it returns. */
typedef struct dpar_stage_task {
    dpar_action action; /* kind, stage and micro-batch */
    int32_t last;       /* the argument `last` of dpar_pipeline_run */
    /* For F: the output of the previous stage, or NULL for the first stage, which reads the
     * micro-batch itself. For B and I: the gradient of this stage's output, or NULL for the last
     * stage, which begins at the loss. The buffer is reused once you return: F must copy what
     * backward needs of its input into the activation. */
    const void *in;
    /* For F: the input of the next stage, which must be written completely, or NULL for the last
     * stage, which computes the loss. For B and I: the gradient of F's input, or NULL for the first
     * stage. */
    void *out;
    int64_t in_count, out_count; /* elements of in and out */
    /* Number of the activation's slot, which is in use from F to B or W; -1 if there is none. For
     * OFFLOAD it is the slot that becomes free when you return, for RELOAD the slot that holds the
     * activation afterwards. */
    int32_t activation_slot;
    /* number of the weight gradient's slot, which is in use from I to W; -1 if there is none */
    int32_t weight_slot;
    void *activation_memory; /* activation_slot's desc.activation_bytes; NULL if that is 0 */
    void *weight_memory;     /* weight_slot's desc.weight_bytes; NULL if that is 0 */
} dpar_stage_task;

/* Executes a task. It is your callback. Return DPAR_OK, or a positive status, which counts as
 * DPAR_OK. A negative status ends the step on all ranks. Write its message to *why, which is never
 * NULL and initially empty. The callback may use other communicators and dpar_pipeline_progress. */
typedef dpar_status (*dpar_stage_callback)(void *ctx, const dpar_stage_task *task, dpar_why *why);
/* Executes the forward and the backward of a joined pair together. It is your callback, with the
 * rules of dpar_stage_callback. */
typedef dpar_status (*dpar_stage_pair_callback)(void *ctx, const dpar_stage_task *forward,
                                                const dpar_stage_task *backward, dpar_why *why);

/* Describes a pipeline. Zero it and fill in what your list needs. All ranks pass the same values,
 * except for pointers, activation_bytes and weight_bytes. */
typedef struct dpar_pipeline_desc {
    /* Name of the order of actions, such as "1f1b" or "zbv" (dpar_schedule_find). The pipeline
     * generates and stores this schedule, lowered to messages. It contains REDUCE_GRAD if `reduce`
     * is not NULL, and UNSHARD and RESHARD if `unshard` is not NULL. Only make reads the name. */
    const char *order;
    int32_t micro_batches; /* number of micro-batches; read only with `order` */
    /* Instead of `order`: a schedule with messages, which you keep until the pipeline is freed. */
    const dpar_schedule *schedule;
    int32_t type;  /* of the elements that stages send to each other */
    int32_t tag;   /* of the messages on comm */
    int64_t count; /* elements that a stage sends to the next one */
    /* [stages] elements that each stage sends, which you keep until the pipeline is freed. NULL if
     * every stage sends `count`. */
    const int64_t *count_per_stage;
    /* Size of an activation's slot in bytes, the largest of the rank's stages. 0 if the callbacks
     * have their own memory for each slot number. */
    int64_t activation_bytes;
    int64_t weight_bytes; /* the same for the slot in which I leaves data for its W */
    /* 0 uses as few send slots as possible. The list must then pass DPAR_TRANSPORT_BLOCKING, as
     * lists from dpar_schedule_lower do. 1 uses one send slot per message, so that nothing waits
     * for a send before the end of the step. The list must then pass DPAR_TRANSPORT_EDGE, which
     * DPAR_LOWER_LATE_RECV with DPAR_CHANNEL_EDGE ensures, or DPAR_TRANSPORT_RANK if comm->mem is
     * the memory of a device. */
    int32_t keep_sends;
    int32_t no_final_barrier; /* 1 if ranks do not wait for each other at the end of a step. A rank
                      may then learn of another rank's failure only in its next step */

    dpar_stage_callback forward, backward, input, weight; /* for F, B, I and W */
    dpar_stage_pair_callback forward_backward; /* NULL selects forward, then backward or input */
    /* REDUCE_GRAD: calls dpar_ddp_end, or begins the reduction (dpar_ddp_ready, dpar_fsdp_ready).
     * WAIT_REDUCE_GRAD: ends the reduction. */
    dpar_stage_callback reduce, wait_reduce;
    dpar_stage_callback unshard, reshard, recompute, offload, reload;
    void *ctx; /* passed to all callbacks */

    /* Gradient of a weight that the first and the last stage share (embedding and output). At the
     * end of the step it is summed over the ranks that have these stages. If one rank has both
     * stages, their callbacks add into the same `tied`. Other ranks do not read it. */
    void *tied;
    int64_t tied_count; /* elements, the same on all ranks; 0 if there is no such weight */
    int32_t tied_type;

    /* [actions of this rank] times when each action of the last step began and ended, in ns since
     * the step began, or NULL. A message ends when the rank notices that it is complete. Set both
     * or neither, and the same on all ranks. Costs one barrier per step, so that all ranks measure
     * from the same moment. */
    int64_t *start, *end;

    /* Your memory for the pipeline, on the host and aligned to 64 bytes, which you keep until the
     * pipeline is freed. It has about 300 bytes per message of this rank, 12 per action, and what
     * dpar_schedule_check and dpar_schedule_slots need. If it is NULL and bytes is 0, make
     * allocates it. If bytes is too small, make fails with DPAR_E_ROOM, and why->bytes is the size
     * that is needed. To query that size, set memory to NULL and bytes to 1. The slots are not in
     * this memory, but allocated by dpar_comm_alloc. */
    void *memory;
    int64_t bytes;
} dpar_pipeline_desc;

/* A handle to a pipeline that is ready to run. */
typedef struct dpar_pipeline dpar_pipeline;

/* Makes a pipeline: proves the list free of deadlock, and assigns and allocates slots.
 *
 * Collective over comm, whose ranks are those of the schedule. Splits comm if tied_count is above
 * 0. Costs O(actions), and small collectives that compare the schedules and descriptors. Fails on
 * all ranks like dpar_schedule_find and dpar_schedule_generate, and with
 *
 *  - DPAR_E_MISMATCH if schedules or descriptors differ;
 *  - DPAR_E_ARG if both or neither of `order` and `schedule` are NULL;
 *  - DPAR_E_ARG if the schedule is not valid for these ranks or has no messages, a callback that
 *    the list needs is NULL, or a type or number is outside of its domain;
 *  - DPAR_E_STUCK if ranks would wait for each other in a cycle, which the message names;
 *  - DPAR_E_RANGE, DPAR_E_ROOM or DPAR_E_MEMORY. */
DPAR_API dpar_status dpar_pipeline_make(dpar_comm *comm, const dpar_pipeline_desc *desc,
                                        dpar_pipeline **pipeline, dpar_why *why);
/* Runs one step, which executes the whole list for all micro-batches.
 *
 * last: 1 to reduce gradients at the end of the step. 0 if more steps follow that add to them; this
 *       omits REDUCE_GRAD, WAIT_REDUCE_GRAD and the sum of `tied`.
 *
 * Collective. For each micro-batch, a stage sends its count of elements to the next stage and
 * receives the same number of gradients, unless that stage is on the same rank. Costs O(actions)
 * plus the callbacks.
 *
 * Fails on all ranks with the status of a callback and a message like "rank 1: 2B3: its message",
 * or with DPAR_E_PEER, DPAR_E_TIMEOUT or DPAR_E_MISMATCH as described in comm.h. These errors break
 * comm. With desc.no_final_barrier some ranks notice them only in their next step. If callbacks use
 * other communicators, abort those yourself. Fails with DPAR_E_ARG on this rank if `pipeline` is
 * NULL or a step of it is in progress. */
DPAR_API dpar_status dpar_pipeline_run(dpar_pipeline *pipeline, int32_t last, dpar_why *why);
/* Advances the posted messages and notes which are complete. Call it now and then from a callback
 * that takes long. Outside of a step it does nothing and returns DPAR_OK.
 *
 * Local. O(posted messages that are not complete). Fails with the error of a message, described in
 * the communicator's why, and with DPAR_E_ARG if `pipeline` is NULL. */
DPAR_API dpar_status dpar_pipeline_progress(dpar_pipeline *pipeline);
/* Returns the numbers of slots of this rank.
 *
 * local: set to the number of buffers in which stages of this rank pass data to each other. May be
 *        NULL.
 *
 * Local. O(1). */
DPAR_API dpar_slot_counts dpar_pipeline_slots(const dpar_pipeline *pipeline, int32_t *local);
/* Gathers the times of the last step from all ranks on rank 0.
 *
 * start, end: [actions of the schedule] on rank 0, the times of schedule->action[k] in ns, in the
 *             form of dpar_schedule_simulate. May be NULL on other ranks.
 *
 * dpar_schedule_draw with unit 1000 then draws the step as it ran. Collective. O(actions). Fails
 * with DPAR_E_ARG if desc.start is NULL. */
DPAR_API dpar_status dpar_pipeline_times(dpar_pipeline *pipeline, int64_t *start, int64_t *end,
                                         dpar_why *why);
/* Frees a pipeline, its slots and the communicator that it split off. NULL is allowed.
 *
 * Collective. With tied_count, has the costs and errors of dpar_comm_free. */
DPAR_API dpar_status dpar_pipeline_free(dpar_pipeline *pipeline);

#endif /* DPAR_TRAIN_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* Private functions that the headers above this one call. */
#ifndef DPARI_TRAIN_INTERNAL_H
#define DPARI_TRAIN_INTERNAL_H

/* ==== train/layer_calls.h ==== */

/* layer_calls - private: runs the operations of layers.h in the memory of a communicator, like
 * memory_calls.h for the operations of mem.h. If comm->mem has no table of layers or the table has
 * no such operation, the communicator breaks with DPAR_E_UNKNOWN. */

/* Run one operation in the memory of comm. */
DPARI_API dpar_status dpari_do_moments(dpar_comm *comm, const dpar_mem_moments *call);
DPARI_API dpar_status dpari_do_norm(dpar_comm *comm, const dpar_mem_norm *call);

/* ==== train/attention_private.h ==== */

/* attention_private - private: the plan of attention, the functions that a method other than the
 * ring provides (ulysses.h, window_attention.h), and the functions of sequence.c that such a method
 * calls. window_attention.h is in dpar_spatial.h, which includes dpar_train.h. */

/* Largest number of sends and receives in one step: keys, values and the gradients of both, each to
 * one rank and from another. */
enum { DPARI_ATTENTION_MAIL = 8 };

/* A plan of attention. The pointers below `work` are buffers; a buffer that is not used is NULL. */
typedef struct dpari_attention {
    dpar_attention_plan head;
    dpar_comm *comm;
    int32_t sums;   /* type of sums: DPAR_F64 or DPAR_F32 */
    int32_t calls;  /* number of entries of `call` that are to be posted */
    int32_t posted; /* number of entries of `work` that were posted and not waited for */
    dpar_call call[DPARI_ATTENTION_MAIL];
    dpar_work work[DPARI_ATTENTION_MAIL];
    void *keys[2];          /* keys, then values, of other ranks; used in turns */
    void *part, *part_lse;  /* out and lse of one block, before they are merged */
    void *out, *q_gradient; /* in the type of sums, if the layer has another type */
    void *delta;            /* [tokens][heads] of sums: out . out_gradient */
    /* gradients of keys, then values: two blocks that are sent and received in turns, one that is
     * added to them, and the one of this rank's own keys (see dpari_seq_home_buffer) */
    void *gradients[4];
    void *of_way; /* state of the method */
    void *device; /* memory of the device that contains the buffers if comm->mem is one */
    int64_t device_bytes;
} dpari_attention;

/* Keys and values of a rank's tokens or of a slice of them, or their gradients. */
typedef struct dpari_seq_block {
    int32_t rank, own; /* own: 1 for the tokens of this rank */
    int64_t lo, hi;    /* tokens of the packed sequence, if the method has slices */
    int64_t tokens;
    const void *k, *v;
    void *to_k, *to_v; /* the same arrays, for writing */
} dpari_seq_block;

/* A method of attention. If a function is NULL, that of the ring is used, or nothing is done. */
struct dpari_attention_method {
    int32_t number; /* identifies the method, 1 or more; ranks compare it */
    /* 1 if forward and backward fill the caller's arrays, with sums already rounded to the type */
    int32_t whole;
    /* Checks that the method can compute the layer, whose defaults are filled in. */
    dpar_status (*check)(const dpar_attention_desc *a, dpar_why *why);
    /* Lists the values that must be equal on all ranks, in addition to those of the ring. */
    void (*state)(dpari_facts *f, const dpar_attention_desc *a);
    /* Takes the memory that the plan needs on this rank: `behind` for its state (p->of_way), and
     * `buffers` for arrays of elements, which may be on a device. If they return NULL, only counts
     * the bytes. */
    dpar_status (*lay)(dpari_attention *p, const dpar_comm *comm, dpari_room *behind,
                       dpari_room *buffers, dpar_why *why);
    /* Completes dpar_attention_make once all ranks have agreed on the layer. Collective. */
    dpar_status (*init)(dpari_attention *p, dpar_why *why);
    /* Advances the method's messages between two blocks. Local. */
    void (*push)(dpari_attention *p);
    /* Computes out and lse. Collective. */
    dpar_status (*forward)(dpari_attention *p, const dpar_attention_arrays *a);
    /* Computes the gradients. dq: receives those of the queries, in the type of sums. *home: set to
     * those of this rank's keys and values, in the type of sums. Collective. */
    dpar_status (*backward)(dpari_attention *p, const dpar_attention_arrays *a, void *dq,
                            dpari_seq_block *home);
    /* Frees the state. Collective. */
    dpar_status (*close)(dpari_attention *p);
};
typedef struct dpari_attention_method dpari_attention_method;

/* Computes the slice lo .. hi - 1 of the tokens of a rank. It is empty for a rank that does not
 * exist. */
DPARI_API void dpari_seq_slice(const dpar_attention_desc *layer, int32_t rank, int64_t *lo,
                               int64_t *hi);
/* Computes attention of all queries of the rank to the keys of one block, and merges it into the
 * result so far. Call it first with the rank's own block, in which each query sees at least its own
 * key. */
DPARI_API dpar_status dpari_seq_attend(dpari_attention *plan, const dpar_attention_arrays *x,
                                       const dpari_seq_block *b);
/* Computes out . out_gradient of each row, which dpari_seq_attend_back needs. */
DPARI_API dpar_status dpari_seq_delta(dpari_attention *plan, const dpar_attention_arrays *arrays);
/* Computes the gradients of attention of the rank's queries to the keys of block b. Adds those of
 * the queries to dq, and those of the keys and values to g. */
DPARI_API void dpari_seq_attend_back(dpari_attention *plan, const dpar_attention_arrays *x,
                                     const dpari_seq_block *b, const dpari_seq_block *g, void *dq);
/* Returns the address that is `elements` elements after base, or NULL if base is NULL. */
DPARI_API void *dpari_seq_at(void *base, int64_t elements, int32_t type);

#endif /* DPARI_TRAIN_INTERNAL_H */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_TRAIN_IMPLEMENTATION)) && \
    !defined(DPAR_TRAIN_IMPLEMENTATION_DONE)
#define DPAR_TRAIN_IMPLEMENTATION_DONE

/* ==== train/layer_calls.h ==== */

/* Run one operation in the memory of comm. */
DPARI_INTERNAL dpar_status dpari_do_squares(dpar_comm *comm, const dpar_mem_squares *call);
DPARI_INTERNAL dpar_status dpari_do_optimize(dpar_comm *comm, const dpar_mem_optimize *call);
DPARI_INTERNAL dpar_status dpari_do_round(dpar_comm *comm, const dpar_mem_round *call);
DPARI_INTERNAL dpar_status dpari_do_gather(dpar_comm *comm, const dpar_mem_gather *call);
DPARI_INTERNAL dpar_status dpari_do_scatter(dpar_comm *comm, const dpar_mem_scatter *call);
DPARI_INTERNAL dpar_status dpari_do_combine(dpar_comm *comm, const dpar_mem_combine *call);
DPARI_INTERNAL dpar_status dpari_do_dot(dpar_comm *comm, const dpar_mem_dot *call);
DPARI_INTERNAL dpar_status dpari_do_cross_entropy(dpar_comm *comm,
                                                  const dpar_mem_cross_entropy *call);
DPARI_INTERNAL dpar_status dpari_do_attention_merge(dpar_comm *comm,
                                                    const dpar_mem_attention_merge *call);
DPARI_INTERNAL dpar_status dpari_do_quantize(dpar_comm *comm, const dpar_mem_quantize *call);
DPARI_INTERNAL dpar_status dpari_do_dequantize(dpar_comm *comm, const dpar_mem_quantize *call);

/* ==== train/attention_private.h ==== */

/* Rounds n sums of a plan to the layer's type. Does nothing if `to` is `from`. */
DPARI_INTERNAL dpar_status dpari_seq_round(const dpari_attention *plan, void *to, const void *from,
                                           int64_t n);
/* Does what dpari_seq_at does, for an array that is only read. */
DPARI_INTERNAL const void *dpari_seq_in(const void *base, int64_t elements, int32_t type);

/* ==== host/random_private.h ==== */

/* random_private - private: the random words from which random.h makes its numbers, and stochastic
 * rounding with them. */

/* Computes words 4 block .. 4 block + 3 of a stream into words[4]. */
DPARI_INTERNAL void dpari_random_block(uint64_t seed, uint64_t stream, uint64_t block,
                                       uint32_t *words);
/* Rounds F32 to BF16 stochastically. Element i is rounded up or down depending on 16 bits of word
 * index + i: the high half if shift is 16, the low half if it is 0. NaN, infinities and numbers
 * that BF16 represents exactly keep their values. O(count). */
DPARI_INTERNAL void dpari_random_round(void *to, const void *from, int64_t count, uint64_t seed,
                                       uint64_t stream, uint64_t index, int32_t shift);

/* ==== host/moment_codes.h ==== */

/* moment_codes - private: the 8-bit codes of an optimizer's moments (moment_type DPAR_F8). A block
 * of 256 elements is a record of 256 codes and the block's scale. optimizer.h says what a code
 * means. */

enum { DPARI_MOMENT_BLOCK = 256, DPARI_MOMENT_RECORD = DPARI_MOMENT_BLOCK + 4 };

/* The bits of a code of m without its sign. A code of v has one more, and no sign. */
enum { DPARI_MOMENT_BITS = 7 };

/* Returns n, rounded up to whole blocks if moments of this type are codes. */
DPARI_INTERNAL int64_t dpari_moment_whole(int32_t type, int64_t n);
/* Returns the bytes of n moments, which begin with a block and are rounded up to whole blocks. */
DPARI_INTERNAL int64_t dpari_moment_bytes(int32_t type, int64_t n);
/* Returns the bytes from the first moment of a piece that begins at element `index` to element i of
 * it. If moments are codes, both are the beginnings of the elements' blocks. */
DPARI_INTERNAL int64_t dpari_moment_at(int32_t type, uint64_t index, int64_t i);

/* The moments of a block: m, which is signed, and v, which is not. */
typedef struct dpari_moment_block {
    unsigned char *record[2];
    float x[2][DPARI_MOMENT_BLOCK + 4]; /* the optimizer's vectors may end beyond the block */
    int32_t moments;                    /* 1 or 2 */
} dpari_moment_block;
/* Computes the values block->x of the records. wide is dpari_cpu_wide. */
DPARI_INTERNAL void dpari_moment_load(dpari_moment_block *block, int wide);
/* Stores the values in the records, rounded stochastically. Uses words 8 number .. 8 number + 7 of
 * a stream (random.h), where `number` is the block's. */
DPARI_INTERNAL void dpari_moment_store(dpari_moment_block *block, uint64_t seed, uint64_t stream,
                                       uint64_t number, int wide);

/* ==== host/optimizer_private.h ==== */

/* optimizer_private - private: what zero1 and fsdp need to know of an optimizer that
 * dpar_optimizer_check has accepted. */

/* Returns the number of moments of an optimizer: 0, 1 or 2. */
DPARI_INTERNAL int32_t dpari_optimizer_moments(const dpar_optimizer *optimizer);
/* Returns the type of the moments for weights of weight_type. */
DPARI_INTERNAL int32_t dpari_optimizer_moment_type(const dpar_optimizer *optimizer,
                                                   int32_t weight_type);
/* Checks parameter group `index` for the function `name`. */
DPARI_INTERNAL dpar_status dpari_optimizer_check_group(const dpar_optimizer_group *group,
                                                       const char *name, int32_t index,
                                                       dpar_why *why);
/* Changes an optimizer and a rate to those of a parameter group. */
DPARI_INTERNAL void dpari_optimizer_use_group(const dpar_optimizer_group *group,
                                              dpar_optimizer *optimizer, double *rate);
/* Writes a message into why, unless that is NULL, and returns DPAR_E_ARG. The format is that of
 * dpari_text_print, which also has numbers of type double. */
DPARI_INTERNAL dpar_status dpari_optimizer_say(dpar_why *why, const char *form, ...)
    DPARI_PRINTF(2, 3);

/* ==== host/vectors.h ==== */

/* vectors - private: vectors of 32 bytes, in which the loops of training are written once. They are
 * compiled for AVX2 and for what the compiler assumes. */

#if defined(__GNUC__) && (defined(__clang__) || __GNUC__ >= 9) && !defined(DPARI_NO_VECTOR) &&     \
    !(defined(__i386__) && !defined(__SSE2_MATH__))
#define DPARI_LANES_VECTOR 1
#else
#define DPARI_LANES_VECTOR 0
#endif

/* 1 if this is compiled for plain x86-64, so that the CPU may have vectors that the compiler does
 * not use, and is queried at run time. */
#if DPARI_LANES_VECTOR && defined(__x86_64__) && !defined(__AVX2__)
#define DPARI_LANES_ASKED 1
#else
#define DPARI_LANES_ASKED 0
#endif

/* 1 if some instructions are written in assembly. Clang does not need that. Without optimization,
 * gcc would keep the branch with instructions that the CPU may not have. */
#if defined(__x86_64__) && !defined(__clang__) && defined(__OPTIMIZE__)
#define DPARI_LANES_ASM 1
#else
#define DPARI_LANES_ASM 0
#endif

enum { DPARI_LANES_D = 16, DPARI_LANES_F = 8 }; /* chains of a sum in f64, and in f32 */

#if DPARI_LANES_VECTOR
#define DPARI_LANES_INLINE static DPARI_INLINED __attribute__((always_inline))
typedef double dpari_lanes_d4 __attribute__((vector_size(32)));
typedef float dpari_lanes_f8 __attribute__((vector_size(32)));
typedef float dpari_lanes_f4 __attribute__((vector_size(16)));
typedef float dpari_lanes_m4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint64_t dpari_lanes_u4 __attribute__((vector_size(32)));
typedef uint32_t dpari_lanes_u8 __attribute__((vector_size(32)));
typedef int32_t dpari_lanes_w4 __attribute__((vector_size(16)));
#if defined(__SSE2__) /* types of the builtins */
typedef short dpari_lanes_h8 __attribute__((vector_size(16)));
typedef char dpari_lanes_b16 __attribute__((vector_size(16)));
#endif
typedef int32_t dpari_lanes_i8 __attribute__((vector_size(32)));

#define dpari_lanes_get(to, from) __builtin_memcpy(to, from, sizeof *(to))
#define dpari_lanes_put(to, from) __builtin_memcpy(to, from, sizeof *(from))

/* A vector whose elements are all x. Functions get vectors by address, because targets without such
 * vectors cannot pass them by value in registers. */
#define DPARI_LANES_ALL4(x)                                                                        \
    {                                                                                              \
        x, x, x, x                                                                                 \
    }
#define DPARI_LANES_ALL8(x)                                                                        \
    {                                                                                              \
        x, x, x, x, x, x, x, x                                                                     \
    }

/* Converts a vector. In the functions for AVX2 (wide = 1) it is one instruction in assembly,
 * because gcc would emit five. */
#if DPARI_LANES_ASM
#define DPARI_LANES_CONVERT(wide, instruction, to, from, type)                                     \
    do {                                                                                           \
        if (wide) {                                                                                \
            __asm__(instruction " %1, %0" : "=x"(to) : "xm"(from));                                \
        } else {                                                                                   \
            (to) = __builtin_convertvector(from, type);                                            \
        }                                                                                          \
    } while (0)
#else
#define DPARI_LANES_CONVERT(wide, instruction, to, from, type)                                     \
    ((void)(wide), (to) = __builtin_convertvector(from, type))
#endif
#endif

/* ==== host/vector_loops.h ==== */

/* vector_loops - private: loops over rows that process several elements at once, for norms,
 * cross-entropy, attention and 8-bit codes. On x86-64 there are two versions of each loop: for
 * vectors of 32 bytes, and for single elements. Both give the same bits, because products are not
 * fused with sums, and sums always have the same order. */

/* 8-bit codes (I8, F8) of `count` numbers, in blocks of `block` numbers with one F32 scale each. */
typedef struct dpari_lanes_blocks {
    const unsigned char *code, *scale;
    int64_t code_step, scale_step; /* bytes from one block to the next */
    int64_t block, count;
    int32_t type, add; /* add: 1 if values are added to x */
} dpari_lanes_blocks;

/* Functions on rows of n elements of type F64 or F32. Rows do not overlap unless they are the same.
 * Elements are converted to f64 unless a comment says f32. A sum has 16 chains (8 in f32): chain c
 * adds elements c, c + 16, ... Then the upper half of the chains is added to the lower half: c + 8
 * to c, or in f32 c + 4 to c, and so on. */
typedef struct dpari_lanes {
    /* Convert F32 to F64, and F64 to F32. */
    void (*widen)(double *to, const float *from, int64_t n);
    void (*thin)(float *to, const double *from, int64_t n);
    /* Returns the sum of x. */
    double (*total)(const void *x, int32_t type, int64_t n);
    /* Returns the sum of (x - mean)^2. */
    double (*about)(const void *x, int32_t type, double mean, int64_t n);
    /* Returns the sum of x (y - mean). Sets *total to the sum of x unless total is NULL. */
    double (*product)(const void *x, const void *y, int32_t type, double mean, int64_t n,
                      double *total);
    /* Returns the largest of x and `most`. */
    double (*largest)(const void *x, int32_t type, double most, int64_t n);
    /* Computes to = by[0] (x - by[1]) + by[2]. */
    void (*line)(void *to, const void *x, int32_t type, const double *by, int64_t n);
    /* Computes to = by[0] (by[1] y - by[2] - (x - by[3]) by[4]). */
    void (*slope)(void *to, const void *x, const void *y, int32_t type, const double *by,
                  int64_t n);
    /* Computes to = by[1] e^(x - by[0]) + by[2], unless `to` is NULL. Returns the sum of the
     * powers. A power has a relative error of at most 1e-15, and is 0 below e^-708. */
    double (*exps)(void *to, const void *x, int32_t type, const double *by, int64_t n);
    /* Computes x = log(1 + x) for 0 <= x <= 1. */
    void (*logs)(double *x, int64_t n);
    /* Computes to[j] = scale (x . row j) for n rows, which are `step` elements apart. Sums are in
     * f32, the product with scale is in f64. */
    void (*scores)(double *to, const float *x, const float *row, int64_t step, int64_t n,
                   int64_t width, double scale);
    /* Computes y = keep y + by[0] row 0 + ... + by[n - 1] row n - 1, in this order, in f32. */
    void (*mix)(float *y, float keep, const float *by, const float *row, int64_t step, int64_t n,
                int64_t width);
    /* Computes y = keep y + by x, in f32. */
    void (*add)(float *y, float keep, float by, const float *x, int64_t n);
    /* Returns the bits of the largest |x|. If x contains NaN, they are above those of infinity. */
    uint32_t (*size)(const float *x, int64_t n);
    /* Computes the codes (I8, F8) of x / scale, where x is finite and scale is above 0. */
    void (*codes)(unsigned char *code, const float *x, float scale, int64_t n, int32_t type);
    /* Computes x = scale code, or adds that to x. All NaNs get the same bits. */
    void (*values)(float *x, const dpari_lanes_blocks *blocks);
} dpari_lanes;

/* Returns the functions for a call that processes `work` elements. The CPU is queried only if that
 * takes little time compared with the work. */
DPARI_INTERNAL dpari_lanes dpari_lanes_for(int64_t work);

/* ==== host/layers_private.h ==== */

/* layers_private - private: the operations of layers.h in host memory; those of norms are in
 * layers_norm.h. */

/* Do what the functions of a dpar_mem_layers do. */
DPARI_INTERNAL dpar_status dpari_mem_squares(void *ctx, const dpar_mem_squares *call);
DPARI_INTERNAL dpar_status dpari_mem_optimize(void *ctx, const dpar_mem_optimize *call);
DPARI_INTERNAL dpar_status dpari_mem_round(void *ctx, const dpar_mem_round *call);
DPARI_INTERNAL dpar_status dpari_mem_gather(void *ctx, const dpar_mem_gather *call);
DPARI_INTERNAL dpar_status dpari_mem_scatter(void *ctx, const dpar_mem_scatter *call);
DPARI_INTERNAL dpar_status dpari_mem_combine(void *ctx, const dpar_mem_combine *call);
DPARI_INTERNAL dpar_status dpari_mem_dot(void *ctx, const dpar_mem_dot *call);
DPARI_INTERNAL dpar_status dpari_mem_cross_entropy(void *ctx, const dpar_mem_cross_entropy *call);
DPARI_INTERNAL dpar_status dpari_mem_attention_merge(void *ctx,
                                                     const dpar_mem_attention_merge *call);
DPARI_INTERNAL dpar_status dpari_mem_quantize(void *ctx, const dpar_mem_quantize *call);
DPARI_INTERNAL dpar_status dpari_mem_dequantize(void *ctx, const dpar_mem_quantize *call);

/* ==== host/layers_norm.h ==== */

/* layers_norm - private: moments and norms in host memory, and functions that read rows. */

/* Execute the operations of layers.h. ctx is ignored. */
DPARI_INTERNAL dpar_status dpari_mem_moments(void *ctx, const dpar_mem_moments *m);
DPARI_INTERNAL dpar_status dpari_mem_norm(void *ctx, const dpar_mem_norm *call);

/* Loops over a row process this many elements at a time. */
enum { DPARI_ROW_PART = 256 };
#if defined(__GNUC__)
#define DPARI_ROW __attribute__((aligned(64)))
#else
#define DPARI_ROW
#endif
/* Returns elements at .. at + count - 1 of x, and sets *as to their type. For F64 and F32 the
 * result is their address in x, otherwise `room`, which receives them converted to F64. */
DPARI_INTERNAL const void *dpari_row_at(const dpari_lanes *lanes, const void *x, int32_t type,
                                        int64_t at, int64_t count, double *room, int32_t *as);
/* Computes to = keep to + scale from, for F64 in f64, for F32 in f32. `from` may be `to`. */
DPARI_INTERNAL void dpari_row_add(const dpari_lanes *lanes, int32_t type, void *to, double keep,
                                  double scale, const void *from, int64_t n);

/* ==== host/block_formats.h ==== */

/* block_formats - private: quantizes and dequantizes blocks of the formats for tensor cores
 * (layers.h) in host memory. Also reads and writes elements for blocks of all formats. */

/* True if the call has one of the formats of this module and fields that are valid for it. The
 * caller has checked the fields whose rules are the same for all formats. */
DPARI_INTERNAL int dpari_micro_fits(const dpar_mem_quantize *call);
/* Returns the number of elements of a block. */
DPARI_INTERNAL int64_t dpari_micro_elements(int32_t format);
/* Quantize and dequantize block b of a call that dpari_micro_fits accepts. */
DPARI_INTERNAL void dpari_micro_block(const dpar_mem_quantize *call, int64_t b);
DPARI_INTERNAL void dpari_micro_unblock(const dpar_mem_quantize *call, int64_t b);

/* ---- for all formats ---- */

/* Returns elements i .. i + n - 1 of call->x as floats, where n <= DPARI_ELEMENTS. For F32 the
 * result is their address in call->x, otherwise `room`, which receives the converted elements. */
DPARI_INTERNAL const float *dpari_quant_read(const dpar_mem_quantize *call, int64_t i, int64_t n,
                                             float *room);
/* Stores x[n] in elements i .. i + n - 1 of call->x. With call->accumulate, adds it to them, and
 * overwrites x by the sums. */
DPARI_INTERNAL void dpari_quant_give(const dpar_mem_quantize *call, double *x, int64_t i,
                                     int64_t n);

/* ==== train/wire_blocks.h ==== */

/* wire_blocks - private: sums arrays over all ranks and sends them as blocks of 8-bit codes. ddp.c
 * uses it if desc.wire_type is DPAR_I8 or DPAR_F8.
 *
 * An array is cut into one piece per rank, and each piece into blocks of 256 elements with an F32
 * scale (dpar_mem_quantize). Three steps, which all ranks take for the same arrays in the same
 * order, replace the all-reduce:
 *
 *     dpari_wire_begin   quantizes the array and posts an all-to-all of the pieces
 *     dpari_wire_reduce  adds the pieces of all ranks in F32, in rank order, quantizes the result,
 *                        and posts an all-gather
 *     dpari_wire_end     converts the codes of all pieces
 *
 * All ranks convert the same codes, so they get the same bits. */

/* A block on the wire: codes and their scale. */
enum { DPARI_WIRE_BLOCK = 256, DPARI_WIRE_RECORD = DPARI_WIRE_BLOCK + 4 };

typedef struct dpari_wire_blocks {
    dpar_comm *comm;
    unsigned char *sent,
        *received;     /* [records][DPARI_WIRE_RECORD] of this rank and of the others */
    float *sum;        /* [the largest piece] */
    int32_t type;      /* of the arrays */
    int32_t code_type; /* DPAR_I8 or DPAR_F8 */
} dpari_wire_blocks;

/* Returns the number of blocks of a piece of an array. */
DPARI_INTERNAL int64_t dpari_wire_piece(const dpar_comm *comm, int64_t count);
/* Returns the position of the first block of the array that has number k in memory and begins
 * `first` elements after array 0. The blocks of the arrays then do not overlap. With the number of
 * arrays and the sum of their elements, returns the number of blocks that all arrays need. */
DPARI_INTERNAL int64_t dpari_wire_position(const dpar_comm *comm, int64_t first, int32_t k);
/* Allocates memory for `records` blocks and for the sum of a piece of `piece` blocks, in one
 * allocation of the communicator. wire->sent is its address, or NULL. Sets the codes to 0, so that
 * the padding at the end of an array is defined. */
DPARI_INTERNAL dpar_status dpari_wire_make(dpari_wire_blocks *wire, int64_t records, int64_t piece);

/* The three steps. position: what dpari_wire_position returned for this array. */
DPARI_INTERNAL dpar_status dpari_wire_begin(const dpari_wire_blocks *wire, int64_t position,
                                            void *data, int64_t count, dpar_work *work);
/* factor: the sums are multiplied by it. */
DPARI_INTERNAL dpar_status dpari_wire_reduce(const dpari_wire_blocks *wire, int64_t position,
                                             int64_t count, double factor, dpar_work *work);
DPARI_INTERNAL dpar_status dpari_wire_end(const dpari_wire_blocks *wire, int64_t position,
                                          void *data, int64_t count);

/* ==== train/update_private.h ==== */

/* update_private - private: what the steps of ddp, zero1 and fsdp have in common. */

/* Checks the numbers of a step for the function `name`. */
DPARI_INTERNAL dpar_status dpari_update_check(const dpar_update *update, const char *name,
                                              dpar_why *why);
/* Ends a step that this rank rejects with status st and the message *own. Takes part in
 * collectives of the same communicators as dpari_update_norm, which break if other ranks did not
 * reject the step. If all ranks reject it, nothing else happens. Returns the status, and leaves the
 * message in comm->why.
 *
 * update: NULL if the caller passed NULL. */
DPARI_INTERNAL dpar_status dpari_update_refuse(dpar_comm *comm, dpar_comm *replicas,
                                               const dpar_update *update, dpar_status st,
                                               const dpar_why *own);
/* Sets update->norm and update->scale, from the sums of the squares of each rank's gradients.
 * Returns DPAR_SKIPPED if the norm is not finite. Collective over comm, replicas (unless NULL) and
 * update->model (unless NULL). Fails with DPAR_E_MISMATCH if their ranks pass different numbers, or
 * the ranks of comm different hashes; the message then names `what`. If one communicator fails,
 * breaks the others, where ranks may wait for this one. The message is then in comm->why. */
DPARI_INTERNAL dpar_status dpari_update_norm(dpar_comm *comm, dpar_comm *replicas,
                                             dpar_update *update, double squares, uint64_t hash,
                                             const char *what);
/* Lists an optimizer's numbers, which must be equal on all ranks. moment_type: of its moments. */
DPARI_INTERNAL void dpari_update_facts(dpari_facts *facts, const dpar_optimizer *optimizer,
                                       int32_t moment_type);
/* Lists the numbers of parameter group i. */
DPARI_INTERNAL void dpari_update_facts_group(dpari_facts *facts, int32_t i,
                                             const dpar_optimizer_group *group);

/* ==== train/ddp_private.h ==== */

/* ddp_private - private: the structs of a ddp and a zero1, and the functions of ddp.c that zero1.c,
 * the tests and the benchmarks call. */

struct dpar_ddp {
    /* dpar_ddp_ready uses the fields down to `status`, which are therefore kept together. */

    /* [params] number of the last pass since dpar_ddp_zero in which each parameter was ready; 0 if
     * none. seen[-1] is 0, so that the backward search in dpar_ddp_ready stops there. */
    uint8_t *seen;
    int32_t open;   /* params during a pass, otherwise 0 */
    int32_t pass;   /* number of the pass, 1 to 255; after 255 comes 2 */
    int32_t latest; /* the largest parameter that is not ready yet; -1 if all are */
    /* first parameter of the next bucket, which is sent once `latest` is below it; -1 if no bucket
     * is left or this pass sends nothing */
    int32_t edge;
    dpar_status status; /* first error of this pass, or DPAR_OK */
    dpar_comm *comm;
    dpar_ddp_desc desc;
    int64_t *count; /* [params] elements of each parameter */
    /* [params + 1] first element of each parameter in `buffer`, or in `copy` with desc.arrays. An
     * array that is sent in place has no elements in `copy`: start[i] == start[i + 1]. */
    int64_t *start;
    void **array; /* [params] the caller's arrays; NULL if all gradients are in `buffer` */
    /* [params] with desc.track_used: 1 if any rank reported the parameter, valid after the pass */
    uint8_t *used;
    dpar_bucket *bucket;   /* [buckets] lo and hi are positions like those in `start` */
    int32_t *works;        /* [buckets] works posted in this pass up to the end of each bucket */
    dpar_work *work;       /* works of this pass, in the order in which they were posted */
    unsigned char *buffer; /* all gradients in one array; NULL with desc.arrays */
    unsigned char *copy;   /* of type copy_type: gradients that are sent from a copy, or NULL */
    int32_t copy_type;
    int32_t through; /* 1 if the all-reduce itself rounds F32 to the wire type, without a copy */
    dpari_wire_blocks blocks; /* with an 8-bit wire_type; blocks.sent is NULL otherwise */
    int32_t owns;             /* 1 if dpar allocated `buffer` */
    int32_t made;             /* 1 if dpar allocated the memory of this struct */
    /* Results of one operation, which a device can write if `pinned` is 1. */
    union {
        /* with desc.check_finite: position (like those in `start`) of the first element that is not
         * finite, or -1 */
        int64_t found;
        double squares; /* sum of the squares of this rank's part of the gradients */
    } result;
    int32_t pinned;
    int64_t elements; /* size of `buffer`, or of `copy` with desc.arrays */
    int32_t params, buckets;
    int32_t next;       /* the bucket to be posted next */
    int32_t posted;     /* buckets that were posted in this pass */
    int32_t back;       /* buckets of this pass whose reduction was waited for */
    int32_t work_count; /* works that were posted in this pass */
    int32_t first_work; /* the first work that is waited for last: 0, or of the gathers of codes */
    int32_t last;       /* 1 if this pass sends the gradients */
    int32_t under_way;  /* 1 during a pass */
    int32_t alone;      /* 1 while the only bucket is sent by a call that waits for it */
    /* 1 if a zero1 exists and each part of a bucket is sent only to the rank that owns it */
    int32_t scatter;
    /* 1 if dpar_ddp_end or dpar_zero1_norm has computed averages that no zero1 step has used yet */
    int32_t ended;
    dpar_zero1 *zero1; /* NULL if there is none */
};

struct dpar_zero1 {
    dpar_ddp *ddp;
    unsigned char *weights;
    const dpar_optimizer *optimizer;
    int32_t kind, moments, moment_type; /* of the optimizer when the zero1 was made */
    /* [moments] this rank's share of each moment, of moment_type; both are in one allocation */
    unsigned char *moment[2];
    int64_t steps;           /* steps of the optimizer so far, including desc.steps */
    dpar_zero1_group *group; /* [groups] copy of desc.group */
    int32_t groups;
    int64_t share;  /* elements of each rank's share; the last ranks may have fewer */
    int64_t *count; /* [ranks] elements that each rank really has */
};

/* What differs if the collectives of a step with zero1 do not match. */
#define DPARI_ZERO1_ALIKE "zero1: rate, clip, factor or the optimizer's numbers, or dpar_ddp_end"

/* Ends the pass in progress. If there is none, runs a whole pass in which nothing was reported.
 * scatter: 1 if each rank needs only the averages of its share. */
DPARI_INTERNAL dpar_status dpari_ddp_finish(dpar_ddp *ddp, int32_t scatter);
/* Returns the address of the elements of bucket k, or NULL if there is no such bucket. Requires
 * that all gradients are in one buffer. bucket: set to the bucket; may be NULL. Only tests and
 * benchmarks call it. */
DPARI_INTERNAL void *dpari_ddp_bucket(const dpar_ddp *ddp, int32_t k, dpar_bucket *bucket);
/* Makes ddp->result writable by a device, if there is one. */
DPARI_INTERNAL dpar_status dpari_ddp_pin(dpar_ddp *ddp);
/* Computes the sum of the squares of this rank's part of the gradients, and waits for it. The parts
 * are as large as the shares of a zero1. duplicate: [params] 1 for parameters to omit; NULL if
 * there are none. */
DPARI_INTERNAL dpar_status dpari_ddp_squares(dpar_ddp *ddp, const uint8_t *duplicate,
                                             double *squares);
/* Returns the first element of this rank's share in the flat array. */
DPARI_INTERNAL int64_t dpari_ddp_first(const dpar_zero1 *zero1);
/* Gathers the shares of all ranks into data[elements] on all ranks. Collective. Fails with
 * DPAR_E_MISMATCH if the ranks pass different hashes. */
DPARI_INTERNAL dpar_status dpari_ddp_gather(const dpar_zero1 *zero1, void *data, uint64_t hash);

/* ==== train/fsdp_place.h ==== */

/* fsdp_place - private: the structs of an fsdp, what memory a description needs, and where the
 * arrays of each unit are in it. */

/* A unit: parameters that are gathered and reduced together. */
typedef struct dpari_fsdp_unit {
    dpari_flat flat;
    int64_t shard_at; /* first element of its shard in arrays that hold this rank's shards */
    /* the same in arrays that hold shards of units that are not frozen: gradients and moments */
    int64_t trained_at;
    /* index of its first element among the elements of all units without padding, so that random
     * numbers do not depend on the number of ranks */
    uint64_t key;
    int32_t first, last; /* its parameters are first <= i < last */
    int32_t slot;        /* slot that holds or receives its weights, or -1 */
    int32_t bucket;      /* bucket in which its gradients are computed or reduced, or -1 */
    int32_t used;        /* 1 between unshard and reshard */
    int32_t state;       /* of its gradients in this pass: DPARI_FSDP_NONE, ... */
    int32_t fresh;       /* 1 if its gradients count as 0, whatever the memory contains */
    int32_t adds;        /* 1 if backward of this pass adds to the contents of the bucket */
    int32_t frozen;      /* 1 if it has neither gradients nor moments (desc.frozen) */
    int32_t resident;    /* 1 if it is in use during a whole pass (desc.resident) */
    int32_t own_slot;    /* the only slot that can hold its weights, or -1 for any of the pool */
    int32_t own_bucket; /* the only bucket that can hold its gradients, or -1 for any of the pool */
    dpar_work across;   /* the reduction of its shard over replicas */
} dpari_fsdp_unit;

/* States of a unit's gradients in a pass: no backward yet, being computed, ready. */
enum { DPARI_FSDP_NONE, DPARI_FSDP_OPEN, DPARI_FSDP_DONE };

/* The largest number of elements, so that sizes of several arrays in bytes stay below 2^63. */
#define DPARI_FSDP_MOST (INT64_C(1) << 50)

/* Memory for the weights (a slot) or the gradients (a bucket) of a unit. */
typedef struct dpari_fsdp_slot {
    int64_t at;   /* its first element in fsdp->weights or fsdp->grads */
    int32_t unit; /* the unit in it, or -1 if it is free */
    /* bucket: 0 if no reduction was posted; otherwise larger than in buckets posted earlier */
    int32_t sent;
    /* bucket: 1 if the reduction writes directly into the shard, so that nothing is added */
    int32_t straight;
    dpar_work work; /* the all-gather or reduce-scatter of the unit */
} dpari_fsdp_slot;

struct dpar_fsdp {
    dpar_comm *shard, *replicas;    /* replicas: NULL if there are none */
    dpar_fsdp_desc desc;            /* with the defaults filled in */
    dpari_fsdp_unit *unit;          /* [units] */
    dpari_fsdp_slot *slot, *bucket; /* [slots], [buckets] */
    int64_t *count;                 /* [params] elements of each parameter */
    int64_t *start;                 /* [params] first element of each parameter in its unit */
    int32_t *home;                  /* [params] the unit of each parameter */
    int32_t *group_of;              /* [params] the group of each parameter, or -1 */
    int32_t *array_of;              /* [params] the array of each parameter; NULL without arrays */
    dpar_fsdp_array *array;         /* [desc.arrays] copy of desc.array */
    dpar_optimizer_group *group;    /* [desc.groups] copy of desc.group */
    unsigned char *memory;          /* the registered memory, which contains the arrays below */
    unsigned char *weights;         /* of compute_type: all whole units, or the pool of slots */
    unsigned char *sums;            /* shards of reduced gradients; unused if these stay whole */
    unsigned char *master;          /* of desc.type: shards of the master weights */
    unsigned char *moment[2];       /* shards of the optimizer's moments */
    unsigned char *grads;           /* of gradient_type: all whole gradients, or the buckets */
    /* Elements of the largest unit that uses the pool, including padding: of all, and of those that
     * are not frozen. Resident units do not use it. */
    int64_t largest, largest_trained;
    int64_t resident_sum;         /* elements of all resident units */
    int64_t resident_trained_sum; /* of those that are not frozen */
    int64_t shard_sum;            /* elements of all shards of this rank */
    int64_t trained_sum;          /* elements of its shards of units that are not frozen */
    int32_t units, params;
    int32_t full;         /* number of units that use the pool and have elements */
    int32_t full_trained; /* number of these that are not frozen */
    int32_t residents;    /* number of resident units */
    int32_t slots, buckets;
    /* Slots and buckets of the pool come first. 0 if each unit has its own. */
    int32_t pool_slots, pool_buckets;
    int64_t steps;      /* steps of the optimizer so far */
    double squares;     /* sum of the squares of this rank's gradients */
    int32_t pinned;     /* 1 if a device can write `squares` */
    int32_t last;       /* 1 in and after the last micro-batch of a step, and if all gradients are 0
                           (dpar_fsdp_zero) */
    int32_t under_way;  /* 1 during a pass */
    dpar_status status; /* first error of this pass, or DPAR_OK */
};

/* True if weights stay whole, so that each unit always has the slot of the same number. */
DPARI_INTERNAL int dpari_fsdp_weights_whole(const dpar_fsdp_desc *desc);
/* True if gradients stay whole until the last micro-batch, so that each unit always has the bucket
 * of the same number. */
DPARI_INTERNAL int dpari_fsdp_gradients_whole(const dpar_fsdp_desc *desc);
/* Returns the type of the optimizer's moments. */
DPARI_INTERNAL int32_t dpari_fsdp_moment_type(const dpar_fsdp_desc *desc);
/* Returns the elements of a shard of a unit of `total` elements. If moments are 8-bit codes, shards
 * are whole blocks, so that the blocks do not depend on the number of ranks. */
DPARI_INTERNAL int64_t dpari_fsdp_shard(const dpar_fsdp_desc *desc, int64_t total, int32_t shards);
/* Returns the number of parameters of unit u if there are no arrays. */
DPARI_INTERNAL int32_t dpari_fsdp_params(const dpar_fsdp_desc *desc, int32_t u);
/* Returns the number of slices of an array. */
DPARI_INTERNAL int32_t dpari_fsdp_slices(const dpar_fsdp_array *array);
/* Returns the length of desc->group_of: the number of arrays, or `params` without arrays. */
DPARI_INTERNAL int32_t dpari_fsdp_listed(const dpar_fsdp_desc *desc, int64_t params);
/* Reports where the parameters of unit u are listed, whose first parameter has number `first`: at
 * some of the places *begin .. *end - 1 of desc->count, or of desc->array if there are arrays. */
DPARI_INTERNAL void dpari_fsdp_range(const dpar_fsdp_desc *desc, int32_t u, int64_t first,
                                     int64_t *begin, int64_t *end);
/* Returns the number of elements of the parameter of unit u at this place. Returns -1 if the unit
 * has no part of this array. */
DPARI_INTERNAL int64_t dpari_fsdp_elements(const dpar_fsdp_desc *desc, int32_t u, int64_t place);
/* Returns flags[u], or 0 if there are no flags: desc->frozen or desc->resident. */
DPARI_INTERNAL int32_t dpari_fsdp_flag(const int32_t *flags, int32_t u);
/* Checks a descriptor, and computes the numbers in `fsdp` and the sizes. */
DPARI_INTERNAL dpar_status dpari_fsdp_plan(dpar_fsdp *fsdp, int32_t shards,
                                           const dpar_fsdp_desc *desc, dpar_fsdp_sizes *sizes,
                                           dpar_why *why);
/* Places the arrays of an fsdp after its struct in memory, and sets *bytes to the total size. If
 * memory is NULL, only computes the size. */
DPARI_INTERNAL void dpari_fsdp_place(dpar_fsdp *fsdp, void *memory, int64_t *bytes);
/* Computes where each unit and parameter is, and empties slots and buckets. */
DPARI_INTERNAL dpar_status dpari_fsdp_fill_in(dpar_fsdp *fsdp, dpar_why *why);
/* True if fsdp is not NULL and unit u exists. */
DPARI_INTERNAL int dpari_fsdp_is_unit(const dpar_fsdp *fsdp, int32_t u);
/* Return the addresses of the whole weights in a slot and of the whole gradients in a bucket. */
DPARI_INTERNAL unsigned char *dpari_fsdp_slot_at(const dpar_fsdp *fsdp, int32_t slot);
DPARI_INTERNAL unsigned char *dpari_fsdp_bucket_at(const dpar_fsdp *fsdp, int32_t bucket);
/* Returns the bytes from the beginning of a whole unit to this rank's shard. */
DPARI_INTERNAL int64_t dpari_fsdp_own(const dpar_fsdp *fsdp, int32_t u, int32_t type);
/* Returns the address of this rank's shard of unit u's masters. */
DPARI_INTERNAL unsigned char *dpari_fsdp_master_at(const dpar_fsdp *fsdp, int32_t u);
/* Returns the address of this rank's shard of unit u's reduced gradients. Sets *type to its type.
 */
DPARI_INTERNAL unsigned char *dpari_fsdp_reduced_at(const dpar_fsdp *fsdp, int32_t u,
                                                    int32_t *type);
/* Returns the same address as dpari_fsdp_reduced_at. If the gradients only count as 0, sets their
 * memory to 0. */
DPARI_INTERNAL unsigned char *dpari_fsdp_settled(const dpar_fsdp *fsdp, int32_t u, int32_t *type);
/* Returns the address of this rank's shard of moment k of unit u, which is not frozen. */
DPARI_INTERNAL unsigned char *dpari_fsdp_moment_at(const dpar_fsdp *fsdp, int32_t k, int32_t u);
/* Returns the index of the first element of this rank's shard among the elements of all units. */
DPARI_INTERNAL uint64_t dpari_fsdp_key(const dpar_fsdp *fsdp, int32_t u);

/* ==== train/fsdp_arrays.h ==== */

/* fsdp_arrays - private: the caller's arrays (desc.array), their first values, and the pointers
 * that follow the unit in use. */

/* Checks that no two arrays share values or pointers. Reads the pointers. */
DPARI_INTERNAL dpar_status dpari_fsdp_check_arrays(const dpar_fsdp *fsdp, dpar_why *why);
/* Returns the first values of parameter i, to which its array's pointer points before the first
 * unshard. Returns NULL if there are none. */
DPARI_INTERNAL const void *dpari_fsdp_first_values(const dpar_fsdp *fsdp, int32_t i);
/* Sets the pointers of the arrays of unit u to its weights, or to its gradients if gradients is 1.
 * The unit must have a slot or a bucket.
 *
 * available: 1 before their use. 0 after it: sets the pointers to NULL, unless they point to
 * another unit by now. */
DPARI_INTERNAL void dpari_fsdp_point(const dpar_fsdp *fsdp, int32_t u, int32_t gradients,
                                     int32_t available);

/* ==== train/fsdp_private.h ==== */

/* fsdp_private - private: functions of fsdp.c that the step and the state of an fsdp call. */

/* The values that must be equal on all ranks in dpar_fsdp_make or dpar_fsdp_load. */
typedef struct dpari_fsdp_given {
    /* the communicator of the shards while values are compared across replicas, otherwise NULL */
    const dpar_comm *shard;
    const dpar_fsdp *fsdp;
    int32_t replicas; /* 1 if there are replicas */
    int32_t ranks;    /* argument of dpar_fsdp_load */
    int64_t steps;    /* argument of dpar_fsdp_load */
} dpari_fsdp_given;

/* True if one of the communicators is broken. */
DPARI_INTERNAL int dpari_fsdp_broken(const dpar_fsdp *fsdp);
/* Returns the status of the communicator that is broken. */
DPARI_INTERNAL dpar_status dpari_fsdp_why_broken(const dpar_fsdp *fsdp);
/* Waits for all weights that are being gathered, and marks all slots as free. The caller then
 * changes the masters, from which the weights must be gathered again. If trained is 1, leaves out
 * frozen units. */
DPARI_INTERNAL dpar_status dpari_fsdp_forget(dpar_fsdp *fsdp, int32_t trained);
/* Agrees on a status over both communicators. If state is NULL, no values are compared. */
DPARI_INTERNAL dpar_status dpari_fsdp_agree(dpar_comm *shard, dpar_comm *replicas, dpar_status st,
                                            const char *plan, dpari_state *state,
                                            dpari_fsdp_given *given, dpar_why *why);
/* Lists the position of the rank. Across replicas, ranks must have the same shard of the same
 * number of shards; within a copy of the model, all or none must have replicas. */
DPARI_INTERNAL void dpari_fsdp_facts_place(dpari_facts *facts, const dpari_fsdp_given *g);

/* ==== train/expert_private.h ==== */

/* expert_private - private: the plan and the routing of experts, which expert.c makes and
 * expert_rows.c uses. */

/* A plan. The public part comes first, so that a pointer to it is a pointer to the plan. */
typedef struct dpari_experts {
    dpar_experts_plan head;
    dpar_comm *comm;
    /* number of counts per expert: with DPAR_EXPERTS_DROP_POSITION k, one for each position of a
     * choice, otherwise 1 */
    int32_t slots;
    int32_t tag;    /* from a hash of the layer, the same on all ranks */
    int32_t routes; /* calls of dpar_experts_route so far, modulo DPARI_EXPERT_ROUTES */

    /* The exchange of counts. For each rank: the number of tokens, then [slots][experts of the
     * receiving rank] counts. */
    int32_t *sent_counts, *received_counts;
    int64_t *sent_number, *received_number; /* [ranks] length of these lists for each rank */

    int32_t *tally;          /* [slots][experts] number of choices, or of free rows */
    int32_t *order;          /* choices sorted by expert, for DPAR_EXPERTS_DROP_WEIGHT_LOCAL */
    int64_t *send, *receive; /* [ranks] elements of an all-to-all-v */
    /* [experts] next position of each expert in a list that is sorted by expert; in
     * dpari_expert_find the offset from a kept choice to its row in from[e] */
    int64_t *fill;

    /* [experts] the array that contains the rows of each expert. The rest, [2][k], holds the rows
     * of two tokens that are added, with the weights by[2][k]. */
    const void **from;
    double *by;

    dpari_peer *peer; /* [ranks] */
    void *packed;     /* rows of the kept choices in the order of experts, as they are sent */
    void *staged;     /* rows in the order of ranks; NULL if that is the order of experts */

    /* Memory of the device if comm->mem is one. It contains packed, staged, `weight`, and copies
     * (place, token, choice) of three arrays of the routing `indexed`, whose tag was indexed_tag.
     */
    void *device;
    int64_t device_bytes;
    int32_t *place, *token, *choice;
    void *weight; /* weights of the kept choices, in the order of experts */
    const struct dpari_routing *indexed;
    int32_t indexed_tag;

    /* memory for one routing if dpar_experts_make allocated the plan without comm->mem, or NULL */
    void *routing_memory;
    dpar_mem_span *span; /* on a device: [ranks][own], and at least DPARI_EXPERT_INDICES */
} dpari_experts;

/* A routing. Other ranks read the first four arrays, which are at the same offsets in every rank's
 * routing. The kept choices are sorted by expert, then by token. */
typedef struct dpari_routing {
    dpar_experts_routing head;
    int64_t *send;   /* [ranks] rows that are sent to each rank */
    int64_t *take;   /* [ranks] rows that are received from each rank */
    int32_t *choice; /* [kept] index token k + position of each kept choice */
    int64_t *row;    /* [ranks][own] first row of the piece from a rank to an expert of this rank */
    int64_t *piece;  /* [ranks][own] number of rows of that piece */
    int64_t *start;  /* [experts] first kept choice of each expert */
    int32_t *expert; /* [tokens][k] expert of each choice that is kept */
    int32_t *token;  /* [kept] token of each kept choice; NULL without a device */
    int32_t tag;     /* identifies the layer and this call of dpar_experts_route on all ranks */
} dpari_routing;

enum { DPARI_EXPERT_INDICES = 3 }; /* arrays of a routing that a device reads */

/* Returns the number of choices of the tokens of a routing, including dropped ones. */
DPARI_FN int64_t dpari_expert_choices(const dpari_experts *plan, const dpari_routing *routing)
{
    return routing->head.tokens * plan->head.layer.choices;
}

/* Returns the sum of counts over the other ranks. */
DPARI_INTERNAL int64_t dpari_expert_away(const dpar_comm *comm, const int64_t *counts);
/* Exchanges values between ranks, and counts the bytes sent. Except for direct reads, this function
 * sends all data of experts. */
DPARI_INTERNAL dpar_status dpari_expert_send(dpari_experts *plan, const void *in,
                                             const int64_t *in_count, void *out,
                                             const int64_t *out_count, int32_t type);

/* ==== host/random.c ==== */

/* Philox4x32-10, and what is made from its words: uniform and normal numbers, and the stochastic
 * rounding of F32 to BF16. There is no state, so a number depends only on seed, stream and index.
 * dpar_cuda.h has the same functions for kernels. */

DPARI_INTERNAL void dpari_random_block(uint64_t seed, uint64_t stream, uint64_t block,
                                       uint32_t *words)
{
    uint32_t a = (uint32_t)block, b = (uint32_t)(block >> 32), c = (uint32_t)stream;
    uint32_t d = (uint32_t)(stream >> 32), low = (uint32_t)seed, high = (uint32_t)(seed >> 32);
    int32_t round;
    for (round = 0; round < 10; round++) {
        const uint64_t x = (uint64_t)a * UINT64_C(0xD2511F53),
                       y = (uint64_t)c * UINT64_C(0xCD9E8D57);
        a = (uint32_t)(y >> 32) ^ b ^ low;
        b = (uint32_t)y;
        c = (uint32_t)(x >> 32) ^ d ^ high;
        d = (uint32_t)x;
        low += UINT32_C(0x9E3779B9);
        high += UINT32_C(0xBB67AE85);
    }
    words[0] = a;
    words[1] = b;
    words[2] = c;
    words[3] = d;
}

/* Returns word `index` of a stream. */
static uint32_t dpari_random_word(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t words[4];
    dpari_random_block(seed, stream, index / 4, words);
    return words[index % 4];
}

DPARI_INTERNAL void dpari_random_round(void *to, const void *from, int64_t count, uint64_t seed,
                                       uint64_t stream, uint64_t index, int32_t shift)
{
    uint32_t words[4], x;
    uint16_t h;
    int64_t i;
    for (i = 0; i < count; i++) {
        const uint64_t at = index + (uint64_t)i;
        if (i == 0 || at % 4 == 0) {
            dpari_random_block(seed, stream, at / 4, words);
        }
        dpari_elements_bits(&x, (const unsigned char *)from + 4 * i, 4);
        if ((x & 0x7f800000u) != 0x7f800000u) {
            x += words[at % 4] >> shift & 0xffffu;
        } else {
            /* sets a high bit of a NaN, so that it remains NaN without its low bits */
            x |= (x & 0x7fffffu) != 0 ? 0x400000u : 0u;
        }
        h = (uint16_t)(x >> 16);
        dpari_elements_bits((unsigned char *)to + 2 * i, &h, 2);
    }
}

/* Maps a word to a number above 0 and below 1: the middle of one of 2^32 equal intervals. */
static double dpari_random_between(uint32_t word)
{
    return ((double)word + 0.5) * (1.0 / 4294967296.0);
}

DPAR_API double dpar_random_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    return dpari_random_between(dpari_random_word(seed, stream, index));
}

/* Returns the ratio of two polynomials of degree 7 in r. */
static double dpari_random_ratio(const double *over, const double *under, double r)
{
    double a = over[7], b = under[7];
    int32_t i;
    for (i = 6; i >= 0; i--) {
        a = a * r + over[i];
        b = b * r + under[i];
    }
    return a / b;
}

/* Returns the x for which a normal variable is below x with probability p. Uses PPND16 of Wichura,
 * Applied Statistics 37 (1988): a rational function of p near 1/2, and one of sqrt(-ln p) in the
 * tails. */
static double dpari_random_inverse(double p)
{
    static const double middle[2][8] = {
        {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
         1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
         3.3430575583588128105e4, 2.5090809287301226727e3},
        {1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
         2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
         5.2264952788528545610e3}};
    static const double tail[2][8] = {
        {1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
         3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
         2.27238449892691845833e-2, 7.74545014278341407640e-4},
        {1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
         1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
         1.05075007164441684324e-9}};
    const double q = p - 0.5;
    double r, z;
    if (q >= -0.425 && q <= 0.425) {
        return q * dpari_random_ratio(middle[0], middle[1], 0.180625 - q * q);
    }
    /* r is below 5, up to which these coefficients are valid, because p is at least 1e-10 */
    r = dpari_sqrt(-dpari_log(q < 0.0 ? p : 1.0 - p));
    z = dpari_random_ratio(tail[0], tail[1], r - 1.6);
    return q < 0.0 ? -z : z;
}

DPAR_API double dpar_random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    return dpari_random_inverse(dpar_random_uniform(seed, stream, index));
}

/* ==== host/moment_codes.c ==== */

/* Encodes and decodes the 8-bit codes of an optimizer's moments.
 *
 * The codes are chosen so that integer operations on the bits of F32 are enough. A code without its
 * sign has 3 bits of fraction, below which are 20 bits of an F32's fraction, and 4 or 5 bits of
 * exponent. The scale is a power of two with the biased exponent `unit`, so
 *
 *     bits of the value = (code << 20) + (unit << 23)
 *
 * Adding 20 random bits before the last 20 bits are cut off rounds stochastically. Because scales
 * are powers of two, a value that was decoded is encoded exactly again under another scale, unless
 * it is too small for that. A piece that ends inside of a block may therefore encode the whole
 * block. Infinities and NaNs need no special case: their bits, too, have such codes.
 *
 * Code e of a block is not byte e of the record. Byte k of the word 8 g + l (32 bits) has element
 * 32 g + 8 k + l, so that vectors of 8 words need neither be packed nor shuffled. */

DPARI_INTERNAL int64_t dpari_moment_whole(int32_t type, int64_t n)
{
    return type == DPAR_F8 ? dpari_ceil_div(n, DPARI_MOMENT_BLOCK) * DPARI_MOMENT_BLOCK : n;
}

DPARI_INTERNAL int64_t dpari_moment_bytes(int32_t type, int64_t n)
{
    return type == DPAR_F8 ? dpari_ceil_div(n, DPARI_MOMENT_BLOCK) * DPARI_MOMENT_RECORD
                           : n * dpar_type_bytes(type);
}

DPARI_INTERNAL int64_t dpari_moment_at(int32_t type, uint64_t index, int64_t i)
{
    const int64_t skip = (int64_t)(index % DPARI_MOMENT_BLOCK);
    return type == DPAR_F8 ? (skip + i) / DPARI_MOMENT_BLOCK * DPARI_MOMENT_RECORD
                           : i * dpar_type_bytes(type);
}

#if DPARI_LANES_VECTOR
#define DPARI_MOMENT_INLINE DPARI_LANES_INLINE
#else
#define DPARI_MOMENT_INLINE static
#endif

/* The numbers that encode and decode codes with `bits` bits below the sign. */
typedef struct dpari_moment_code {
    uint32_t mask, sign;  /* of the code without sign, and of its sign */
    uint32_t scale, base; /* unit << 23 and unit << 3 */
    uint32_t least;       /* bits of the smallest value above 0 */
    int32_t shift;        /* of the random word */
    float tiny;           /* the smallest value / 2^16 for m, which may round to 0, or 0 for v */
} dpari_moment_code;

/* Returns these numbers for a block with a scale. */
DPARI_MOMENT_INLINE dpari_moment_code dpari_moment_code_of(int32_t bits, uint32_t scale)
{
    dpari_moment_code code;
    code.mask = ((uint32_t)1 << bits) - 1;
    code.sign = 0x80u & ~code.mask;
    code.scale = scale;
    code.base = scale >> 20;
    code.least = scale + ((uint32_t)1 << 20);
    code.shift = bits == DPARI_MOMENT_BITS ? 16 : 0;
    dpari_elements_bits(&code.tiny, &code.least, 4);
    code.tiny *= bits == DPARI_MOMENT_BITS ? 1.0f / 65536.0f : 0.0f;
    return code;
}

/* Stores the scale of a block in its record. top: bits of its largest |x| plus 0xfffff, which
 * rounds it up to the next code. */
DPARI_MOMENT_INLINE dpari_moment_code dpari_moment_scale(unsigned char *record, int32_t bits,
                                                         uint32_t top)
{
    const uint32_t most = ((uint32_t)1 << (bits - 3)) - 1, exponent = top >> 23;
    const uint32_t scale = exponent > most ? (exponent - most) << 23 : 0;
    dpari_elements_bits(record + DPARI_MOMENT_BLOCK, &scale, 4);
    return dpari_moment_code_of(bits, scale);
}

enum { DPARI_MOMENT_LANES = 8 }; /* generators of random words, and words of a group of 32 codes */

/* ---- vectors --------------------------------------------------------------------------------- */

#if DPARI_LANES_VECTOR
/* Computes a random word for each element of a block, by 8 generators (xorshift32, Marsaglia 2003)
 * that begin with random numbers. A word is therefore as evenly distributed as these. */
DPARI_LANES_INLINE void dpari_moment_words_8(uint32_t *words, const uint32_t *seeds)
{
    dpari_lanes_u8 x;
    int32_t i;
    dpari_lanes_get(&x, seeds);
    for (i = 0; i < DPARI_MOMENT_BLOCK; i += DPARI_MOMENT_LANES) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        dpari_lanes_put(words + i, &x);
    }
}

/* Sets most to the larger one of most and a. */
DPARI_LANES_INLINE void dpari_moment_larger_8(dpari_lanes_i8 *most, const dpari_lanes_i8 *a,
                                              int wide)
{
    dpari_lanes_i8 above;
#if DPARI_LANES_ASM
    if (wide) {
        __asm__("vpmaxsd %1, %0, %0" : "+x"(*most) : "x"(*a));
        return;
    }
#endif
    (void)wide;
    above = (dpari_lanes_i8)(*a > *most);
    *most = (*a & above) | (*most & ~above);
}

/* Returns the bits of the largest |x| plus 0xfffff. Overwrites room[32]. A local array in its place
 * would make gcc keep `most` in memory. */
DPARI_LANES_INLINE uint32_t dpari_moment_top_8(unsigned char *room, const float *x, int wide)
{
    dpari_lanes_i8 most = DPARI_LANES_ALL8(0), a;
    uint32_t one, top = 0;
    int32_t i;
    for (i = 0; i < DPARI_MOMENT_BLOCK; i += DPARI_MOMENT_LANES) {
        dpari_lanes_get(&a, x + i);
        a = (a & 0x7fffffff) + 0xfffff;
        dpari_moment_larger_8(&most, &a, wide);
    }
    dpari_lanes_put(room, &most);
    for (i = 0; i < DPARI_MOMENT_LANES; i++) {
        dpari_elements_bits(&one, room + 4 * i, 4);
        top = one > top ? one : top;
    }
    return top;
}

/* Adds the codes of 8 elements as byte k of each word of `all`. */
DPARI_LANES_INLINE void dpari_moment_codes_8(dpari_lanes_u8 *all, const float *x,
                                             const uint32_t *words, const dpari_moment_code *by,
                                             int k)
{
    dpari_lanes_u8 a, r, code, few, many;
    dpari_lanes_get(&a, x);
    dpari_lanes_get(&r, words);
    *all |= (a >> 24 & by->sign) << 8 * k;
    a &= 0x7fffffffu;
    r = r >> by->shift & 0xffffu;
    code = ((a + (r << 4)) >> 20) - by->base;
    few = (dpari_lanes_u8)((dpari_lanes_f8)a >
                           __builtin_convertvector((dpari_lanes_i8)r, dpari_lanes_f8) * by->tiny);
    many = (dpari_lanes_u8)((dpari_lanes_i8)a > (int32_t)by->least - 1);
    *all |= ((code & many) | (few & 1u & ~many)) << 8 * k;
}

DPARI_LANES_INLINE void dpari_moment_encode_8(unsigned char *record, const float *x,
                                              const uint32_t *words, int32_t bits, int wide)
{
    const dpari_moment_code by =
        dpari_moment_scale(record, bits, dpari_moment_top_8(record, x, wide));
    int32_t g;
    for (g = 0; g < DPARI_MOMENT_BLOCK; g += 32) {
        dpari_lanes_u8 all = DPARI_LANES_ALL8(0);
        DPARI_FOUR(dpari_moment_codes_8(&all, x + g + 8 * q, words + g + 8 * q, &by, q));
        dpari_lanes_put(record + g, &all);
    }
}

/* Computes the values of 8 elements, whose codes are byte k of each word of `codes`. */
DPARI_LANES_INLINE void dpari_moment_values_8(float *x, const dpari_lanes_u8 *codes,
                                              const dpari_moment_code *by, int k)
{
    const dpari_lanes_u8 code = *codes >> 8 * k;
    const dpari_lanes_u8 size = code & by->mask;
    dpari_lanes_u8 a = (size << 20) + by->scale;
    a = (a & (dpari_lanes_u8)((dpari_lanes_i8)size > 0)) | (code & by->sign) << 24;
    dpari_lanes_put(x, &a);
}

DPARI_LANES_INLINE void dpari_moment_decode_8(float *x, const unsigned char *record,
                                              const dpari_moment_code *by)
{
    int32_t g;
    for (g = 0; g < DPARI_MOMENT_BLOCK; g += 32) {
        dpari_lanes_u8 all;
        dpari_lanes_get(&all, record + g);
        DPARI_FOUR(dpari_moment_values_8(x + g + 8 * q, &all, by, q));
    }
}
#endif

/* ---- the same, one element after another ----------------------------------------------------- */

#if !DPARI_LANES_VECTOR || DPARI_LANES_ASKED
/* Returns the byte of a record that holds the code of element i. */
static int32_t dpari_moment_byte(int32_t i)
{
    return i / 32 * 32 + i % 8 * 4 + i / 8 % 4;
}

static void dpari_moment_words_1(uint32_t *words, const uint32_t *seeds)
{
    int32_t i;
    for (i = 0; i < DPARI_MOMENT_BLOCK; i++) {
        uint32_t x = i < DPARI_MOMENT_LANES ? seeds[i] : words[i - DPARI_MOMENT_LANES];
        x ^= x << 13;
        x ^= x >> 17;
        words[i] = x ^ x << 5;
    }
}

static void dpari_moment_encode_1(unsigned char *record, const float *x, const uint32_t *words,
                                  int32_t bits)
{
    dpari_moment_code by;
    uint32_t a, code, top = 0;
    float size;
    int32_t i;
    for (i = 0; i < DPARI_MOMENT_BLOCK; i++) {
        dpari_elements_bits(&a, x + i, 4);
        a = (a & 0x7fffffffu) + 0xfffffu;
        top = a > top ? a : top;
    }
    by = dpari_moment_scale(record, bits, top);
    for (i = 0; i < DPARI_MOMENT_BLOCK; i++) {
        const uint32_t r = words[i] >> by.shift & 0xffffu;
        dpari_elements_bits(&a, x + i, 4);
        code = a >> 24 & by.sign;
        a &= 0x7fffffffu;
        dpari_elements_bits(&size, &a, 4);
        code |= a >= by.least ? ((a + (r << 4)) >> 20) - by.base : size > (float)r * by.tiny;
        record[dpari_moment_byte(i)] = (unsigned char)code;
    }
}

static void dpari_moment_decode_1(float *x, const unsigned char *record,
                                  const dpari_moment_code *by)
{
    int32_t i;
    for (i = 0; i < DPARI_MOMENT_BLOCK; i++) {
        const uint32_t code = record[dpari_moment_byte(i)], size = code & by->mask;
        const uint32_t a = (size > 0 ? (size << 20) + by->scale : 0) | (code & by->sign) << 24;
        dpari_elements_bits(x + i, &a, 4);
    }
}
#endif

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Defines a function that decodes the moments of a block, or encodes them if seeds is not NULL. */
#define DPARI_MOMENT_CONVERT(name, lanes, ...)                                                     \
    static void name(dpari_moment_block *block, const uint32_t *seeds)                             \
    {                                                                                              \
        uint32_t words[DPARI_MOMENT_BLOCK], scale;                                                 \
        int32_t k;                                                                                 \
        if (seeds != NULL) {                                                                       \
            dpari_moment_words_##lanes(words, seeds);                                              \
        }                                                                                          \
        for (k = 0; k < block->moments; k++) {                                                     \
            const int32_t bits = DPARI_MOMENT_BITS + k;                                            \
            if (seeds != NULL) {                                                                   \
                dpari_moment_encode_##lanes(block->record[k], block->x[k], words, __VA_ARGS__);    \
            } else {                                                                               \
                dpari_moment_code by;                                                              \
                dpari_elements_bits(&scale, block->record[k] + DPARI_MOMENT_BLOCK, 4);             \
                by = dpari_moment_code_of(bits, scale);                                            \
                dpari_moment_decode_##lanes(block->x[k], block->record[k], &by);                   \
            }                                                                                      \
        }                                                                                          \
    }
#if DPARI_LANES_ASKED
__attribute__((target("avx2"))) DPARI_MOMENT_CONVERT(dpari_moment_wide, 8, bits, 1)
#endif
#if DPARI_LANES_VECTOR && !DPARI_LANES_ASKED
DPARI_MOMENT_CONVERT(dpari_moment_usual, 8, bits, 0)
#else
DPARI_MOMENT_CONVERT(dpari_moment_usual, 1, bits)
#endif

static void dpari_moment_convert(dpari_moment_block *block, const uint32_t *seeds, int wide)
{
#if DPARI_LANES_ASKED
    if (wide) {
        dpari_moment_wide(block, seeds);
        return;
    }
#endif
    (void)wide;
    dpari_moment_usual(block, seeds);
}

DPARI_INTERNAL void dpari_moment_load(dpari_moment_block *block, int wide)
{
    dpari_moment_convert(block, NULL, wide);
}

DPARI_INTERNAL void dpari_moment_store(dpari_moment_block *block, uint64_t seed, uint64_t stream,
                                       uint64_t number, int wide)
{
    uint32_t seeds[DPARI_MOMENT_LANES];
    dpari_random_block(seed, stream, 2 * number, seeds);
    dpari_random_block(seed, stream, 2 * number + 1, seeds + 4);
    dpari_moment_convert(block, seeds, wide);
}

/* ==== host/optimizer.c ==== */

/* AdamW and SGD. Elements are converted in small parts to f64, updated, and rounded once when they
 * are stored. For F64 and F32, loops work on the arrays directly. On x86-64 these loops are also
 * compiled for AVX2. Both versions give the same bits, because products are not fused with sums. */

DPAR_API DPARI_COLD void dpar_optimizer_init(dpar_optimizer *optimizer, int32_t kind)
{
    dpari_zero(optimizer, sizeof *optimizer);
    optimizer->kind = kind;
    if (kind == DPAR_OPTIMIZER_ADAMW) {
        optimizer->beta1 = 0.9;
        optimizer->beta2 = 0.999;
        optimizer->epsilon = 1e-8;
        optimizer->decay = 0.01;
    }
}

/* True if x is at least 0 and below 1. */
static int dpari_optim_share(double x)
{
    return x >= 0.0 && x < 1.0;
}

DPARI_INTERNAL int32_t dpari_optimizer_moments(const dpar_optimizer *optimizer)
{
    if (optimizer->kind == DPAR_OPTIMIZER_ADAMW) {
        return 2;
    }
    return optimizer->momentum > 0.0 ? 1 : 0;
}

DPARI_INTERNAL int32_t dpari_optimizer_moment_type(const dpar_optimizer *optimizer,
                                                   int32_t weight_type)
{
    if (optimizer->moment_type != DPAR_TYPE_NONE) {
        return optimizer->moment_type;
    }
    return dpari_wide_type(weight_type);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_optimizer_say(dpar_why *why, const char *form, ...)
{
    dpar_text t;
    va_list list;
    if (why != NULL) {
        dpari_text_why(&t, why);
        va_start(list, form);
        dpari_text_print_list(&t, form, &list);
        va_end(list);
    }
    return DPAR_E_ARG;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_optimizer_check_group(const dpar_optimizer_group *group,
                                                                  const char *name, int32_t index,
                                                                  dpar_why *why)
{
    if (!(group->decay >= 0.0) || !(group->rate >= 0.0) || !dpari_finite(group->decay) ||
        !dpari_finite(group->rate)) {
        return dpari_optimizer_say(
            why,
            "%s: group %d has decay %.9g and rate %.9g, but each must be 0 or more, and finite",
            name, index, group->decay, group->rate);
    }
    if (!dpari_optim_share(group->beta1) || !dpari_optim_share(group->beta2)) {
        return dpari_optimizer_say(
            why,
            "%s: group %d has beta1 %.9g and beta2 %.9g, but each must be 0 or more and below 1",
            name, index, group->beta1, group->beta2);
    }
    return DPAR_OK;
}

DPARI_INTERNAL void dpari_optimizer_use_group(const dpar_optimizer_group *group,
                                              dpar_optimizer *optimizer, double *rate)
{
    optimizer->decay = group->decay;
    if (group->rate > 0.0) {
        *rate *= group->rate;
    }
    if (group->beta1 > 0.0) {
        optimizer->beta1 = group->beta1;
    }
    if (group->beta2 > 0.0) {
        optimizer->beta2 = group->beta2;
    }
}

DPAR_API DPARI_COLD dpar_status dpar_optimizer_check(const dpar_optimizer *optimizer,
                                                     int32_t weight_type, int32_t *moments,
                                                     int32_t *moment_type, dpar_why *why)
{
    if (optimizer == NULL) {
        return dpari_wrong(why, "optimizer: the optimizer is NULL");
    }
    if ((optimizer->kind != DPAR_OPTIMIZER_ADAMW && optimizer->kind != DPAR_OPTIMIZER_SGD) ||
        (optimizer->nesterov != 0 && optimizer->nesterov != 1) ||
        (optimizer->stochastic != 0 && optimizer->stochastic != 1)) {
        return dpari_wrong(
            why,
            "optimizer: kind is %d, nesterov %d and stochastic %d, but kind must be 1 (AdamW) or 2 "
            "(SGD), and the others 0 or 1",
            optimizer->kind, optimizer->nesterov, optimizer->stochastic);
    }
    if (optimizer->moment_type != DPAR_TYPE_NONE && optimizer->moment_type != DPAR_BF16 &&
        optimizer->moment_type != DPAR_F8) {
        return dpari_wrong(why, "optimizer: moment_type is %s, but must be bf16, f8 or 0",
                           dpar_type_name(optimizer->moment_type));
    }
    if (!(optimizer->decay >= 0.0) || !dpari_finite(optimizer->decay)) {
        return dpari_optimizer_say(
            why, "optimizer: decay is %.9g, but must be 0 or more, and finite", optimizer->decay);
    }
    if (optimizer->kind == DPAR_OPTIMIZER_ADAMW &&
        (!dpari_optim_share(optimizer->beta1) || !dpari_optim_share(optimizer->beta2) ||
         !(optimizer->epsilon > 0.0) || !dpari_finite(optimizer->epsilon))) {
        return dpari_optimizer_say(why,
                                   "optimizer: AdamW's beta1 is %.9g, beta2 %.9g and epsilon %.9g, "
                                   "but both betas must be 0 "
                                   "or more and below 1, and epsilon above 0 and finite",
                                   optimizer->beta1, optimizer->beta2, optimizer->epsilon);
    }
    if (optimizer->kind == DPAR_OPTIMIZER_SGD && !dpari_optim_share(optimizer->momentum)) {
        return dpari_optimizer_say(
            why, "optimizer: SGD's momentum is %.9g, but must be 0 or more and below 1",
            optimizer->momentum);
    }
    if (!dpari_is_float(weight_type)) {
        return dpari_wrong(why, "optimizer: weights are %s, but must be f64, f32, bf16 or f16",
                           dpar_type_name(weight_type));
    }
    if (optimizer->moment_type != DPAR_TYPE_NONE && weight_type == DPAR_F64) {
        return dpari_wrong(
            why, "optimizer: moment_type is %s, but weights are f64, which need f64 moments",
            dpar_type_name(optimizer->moment_type));
    }
    if (moments != NULL) {
        *moments = dpari_optimizer_moments(optimizer);
    }
    if (moment_type != NULL) {
        *moment_type = dpari_optimizer_moment_type(optimizer, weight_type);
    }
    return DPAR_OK;
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Returns b^t by repeated squaring, which is accurate enough for 1 - b^t. */
static double dpari_optim_power(double b, int64_t t)
{
    double power = 1.0;
    for (; t > 0; t >>= 1) {
        power *= t % 2 != 0 ? b : 1.0;
        b *= b;
    }
    return power;
}

DPAR_API DPARI_COLD double dpar_optimizer_clip(double norm, double limit)
{
    if (!(limit > 0.0)) {
        return 1.0;
    }
    if (!(norm >= 0.0) || !dpari_finite(norm)) {
        return 0.0;
    }
    return dpari_leastf(1.0, limit / (norm + 1e-6));
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The values of a step that are the same for all elements. */
typedef struct dpari_optim_now {
    double rate, factor;
    double shrink;     /* AdamW: 1 - rate decay */
    double reach, fix; /* AdamW: rate / (1 - beta1^t), 1 / (1 - beta2^t) */
    int64_t t;
    uint64_t index; /* index of the piece's first element, for random numbers */
    int32_t wide;   /* dpari_cpu_wide */
} dpari_optim_now;
enum { DPARI_OPTIM_ASKS = 4096 }; /* with fewer elements, querying the CPU takes too long */

/* The functions below process several elements at a time, in f64, of arrays that are all F64 or all
 * F32. Each operation is correctly rounded, so the bits do not depend on how many elements are
 * processed at once. */
#if DPARI_LANES_VECTOR
#define DPARI_OPTIM_INLINE DPARI_LANES_INLINE
enum { DPARI_OPTIM_STEP = 4 };
typedef dpari_lanes_d4 dpari_optim_some;
#define DPARI_OPTIM_ZERO                                                                           \
    {                                                                                              \
        0.0, 0.0, 0.0, 0.0                                                                         \
    }

DPARI_OPTIM_INLINE void dpari_optim_get(dpari_optim_some *x, const void *from, int64_t i,
                                        int32_t type, int wide)
{
    dpari_lanes_f4 f;
    if (type == DPAR_F64) {
        dpari_lanes_get(x, (const double *)from + i);
    } else {
        dpari_lanes_get(&f, (const float *)from + i);
        DPARI_LANES_CONVERT(wide, "vcvtps2pd", *x, f, dpari_lanes_d4);
    }
}

DPARI_OPTIM_INLINE void dpari_optim_put(void *to, int64_t i, int32_t type,
                                        const dpari_optim_some *x, int wide)
{
    dpari_lanes_f4 f;
    if (type == DPAR_F64) {
        dpari_lanes_put((double *)to + i, x);
    } else {
        DPARI_LANES_CONVERT(wide, "vcvtpd2psy", f, *x, dpari_lanes_f4);
        dpari_lanes_put((float *)to + i, &f);
    }
}

DPARI_OPTIM_INLINE void dpari_optim_root(dpari_optim_some *x, int wide)
{
    double each[4];
#if DPARI_LANES_ASM
    const dpari_optim_some zero = DPARI_OPTIM_ZERO;
    if (wide) {
        __asm__("vmaxpd %1, %2, %0" : "=x"(*x) : "x"(*x), "x"(zero)); /* a NaN in x stays */
        __asm__("vsqrtpd %1, %0" : "=x"(*x) : "x"(*x));
        return;
    }
#endif
    (void)wide;
    __builtin_memcpy(each, x, sizeof each); /* nvcc knows no subscripts of vectors */
    DPARI_FOUR(each[q] = dpari_elements_sqrt(each[q]));
    __builtin_memcpy(x, each, sizeof each);
}

DPARI_OPTIM_INLINE double dpari_optim_total(const dpari_optim_some *x)
{
    double each[4];
    __builtin_memcpy(each, x, sizeof each);
    return (each[0] + each[2]) + (each[1] + each[3]);
}
#else
#define DPARI_OPTIM_INLINE static
enum { DPARI_OPTIM_STEP = 1 };
typedef double dpari_optim_some;
#define DPARI_OPTIM_ZERO 0.0

static void dpari_optim_get(double *x, const void *from, int64_t i, int32_t type, int wide)
{
    (void)wide;
    *x = dpari_element_get(from, type, i);
}

static void dpari_optim_put(void *to, int64_t i, int32_t type, const double *x, int wide)
{
    (void)wide;
    dpari_element_put(to, type, i, *x);
}

static void dpari_optim_root(double *x, int wide)
{
    (void)wide;
    *x = dpari_elements_sqrt(*x);
}

static double dpari_optim_total(const double *x)
{
    return *x;
}
#endif

/* With -mfma, keeps the compiler from fusing a product with a sum, which would change the bits. */
#if defined(__FMA__)
#define DPARI_OPTIM_ROUNDED(x) __asm__("" : "+x"(x))
#else
#define DPARI_OPTIM_ROUNDED(x) ((void)0)
#endif

DPARI_OPTIM_INLINE void dpari_optim_times(dpari_optim_some *to, double by,
                                          const dpari_optim_some *x)
{
    dpari_optim_some y = by * *x;
    DPARI_OPTIM_ROUNDED(y);
    *to = y;
}

DPARI_OPTIM_INLINE void dpari_optim_times_each(dpari_optim_some *to, const dpari_optim_some *x,
                                               const dpari_optim_some *y)
{
    dpari_optim_some z = *x * *y;
    DPARI_OPTIM_ROUNDED(z);
    *to = z;
}

typedef struct dpari_optim_arrays {
    void *w, *m, *v; /* weights and moments; SGD has no v, and without momentum m is NULL */
    const void *g;   /* gradients */
} dpari_optim_arrays;

/* Gives NaNs of F32 the same bits, as in dpari_elements_store. It is called if a sum of all new
 * weights is NaN, because a weight is NaN if one of its moments is. */
DPARI_STATIC_NOINLINE void dpari_optim_quiet(const dpari_optim_arrays *p, int64_t n, int moments)
{
    dpari_elements_quiet((float *)p->w, n);
    if (moments > 0) {
        dpari_elements_quiet((float *)p->m, n);
    }
    if (moments > 1) {
        dpari_elements_quiet((float *)p->v, n);
    }
}

DPARI_OPTIM_INLINE void dpari_optim_adamw(const dpar_optimizer *o, const dpari_optim_now *now,
                                          const dpari_optim_arrays *p, int64_t n, int32_t type,
                                          int wide)
{
    const double beta1 = o->beta1, beta2 = o->beta2, epsilon = o->epsilon;
    const dpari_optim_now at = *now;
    const dpari_optim_arrays to = *p;
    dpari_optim_some all = DPARI_OPTIM_ZERO;
    double sum;
    int64_t i;
    for (i = 0; i < n; i += DPARI_OPTIM_STEP) {
        dpari_optim_some x, m, v, w, r;
        dpari_optim_get(&x, to.g, i, type, wide);
        dpari_optim_get(&m, to.m, i, type, wide);
        dpari_optim_get(&v, to.v, i, type, wide);
        dpari_optim_get(&w, to.w, i, type, wide);
        dpari_optim_times(&x, at.factor, &x);
        dpari_optim_times(&m, beta1, &m);
        dpari_optim_times(&r, 1.0 - beta1, &x);
        m += r;
        dpari_optim_times(&v, beta2, &v);
        dpari_optim_times(&r, 1.0 - beta2, &x);
        dpari_optim_times_each(&r, &r, &x);
        v += r;
        dpari_optim_times(&r, at.fix, &v);
        dpari_optim_root(&r, wide);
        dpari_optim_times(&w, at.shrink, &w);
        dpari_optim_times(&x, at.reach, &m);
        w -= x / (r + epsilon);
        dpari_optim_put(to.m, i, type, &m, wide);
        dpari_optim_put(to.v, i, type, &v, wide);
        dpari_optim_put(to.w, i, type, &w, wide);
        all += w;
    }
    sum = dpari_optim_total(&all);
    if (type == DPAR_F32 && sum != sum) {
        dpari_optim_quiet(p, n, 2);
    }
}

DPARI_OPTIM_INLINE void dpari_optim_sgd(const dpar_optimizer *o, const dpari_optim_now *now,
                                        const dpari_optim_arrays *p, int64_t n, int32_t type,
                                        int wide)
{
    const double momentum = o->momentum, decay = o->decay;
    const dpari_optim_now at = *now;
    const dpari_optim_arrays to = *p;
    const int nesterov = o->nesterov;
    dpari_optim_some all = DPARI_OPTIM_ZERO;
    double sum;
    int64_t i;
    for (i = 0; i < n; i += DPARI_OPTIM_STEP) {
        dpari_optim_some x, m, w, r;
        dpari_optim_get(&x, to.g, i, type, wide);
        dpari_optim_get(&w, to.w, i, type, wide);
        dpari_optim_times(&x, at.factor, &x);
        dpari_optim_times(&r, decay, &w);
        x += r;
        if (to.m != NULL) {
            dpari_optim_get(&m, to.m, i, type, wide);
            dpari_optim_times(&m, momentum, &m);
            m += x;
            dpari_optim_put(to.m, i, type, &m, wide);
            dpari_optim_times(&r, momentum, &m);
            x = nesterov ? x + r : m;
        }
        dpari_optim_times(&r, at.rate, &x);
        w -= r;
        dpari_optim_put(to.w, i, type, &w, wide);
        all += w;
    }
    sum = dpari_optim_total(&all);
    if (type == DPAR_F32 && sum != sum) {
        dpari_optim_quiet(p, n, to.m != NULL);
    }
}

/* Defines a function that updates n elements, a multiple of DPARI_OPTIM_STEP. */
#define DPARI_OPTIM_UPDATE(name, wide)                                                             \
    static void name(const dpar_optimizer *o, const dpari_optim_now *now,                          \
                     const dpari_optim_arrays *p, int32_t type, int64_t n)                         \
    {                                                                                              \
        if (o->kind != DPAR_OPTIMIZER_ADAMW) {                                                     \
            if (type == DPAR_F64) {                                                                \
                dpari_optim_sgd(o, now, p, n, DPAR_F64, wide);                                     \
            } else {                                                                               \
                dpari_optim_sgd(o, now, p, n, DPAR_F32, wide);                                     \
            }                                                                                      \
        } else if (type == DPAR_F64) {                                                             \
            dpari_optim_adamw(o, now, p, n, DPAR_F64, wide);                                       \
        } else {                                                                                   \
            dpari_optim_adamw(o, now, p, n, DPAR_F32, wide);                                       \
        }                                                                                          \
    }
DPARI_OPTIM_UPDATE(dpari_optim_usual, 0)
#if DPARI_LANES_ASKED
__attribute__((target("avx2"))) DPARI_OPTIM_UPDATE(dpari_optim_wide, 1)
#endif

    static void dpari_optim_update(const dpar_optimizer *optimizer, const dpari_optim_now *now,
                                   const dpari_optim_arrays *p, int32_t type, int64_t n)
{
#if DPARI_LANES_ASKED
    if (now->wide) {
        dpari_optim_wide(optimizer, now, p, type, n);
        return;
    }
#endif
    dpari_optim_usual(optimizer, now, p, type, n);
}

/* Added to the streams of random numbers for moments. Those for weights never reach it. */
#define DPARI_OPTIM_MOMENTS (UINT64_C(1) << 63)

/* The arrays that are stored, for dpari_optim_store. */
enum { DPARI_OPTIM_WEIGHT, DPARI_OPTIM_M, DPARI_OPTIM_V };

/* Stores updated elements in their type. BF16 is rounded stochastically if the optimizer has this
 * option. Weights and moments use different random numbers. */
static void dpari_optim_store(const dpar_optimizer *optimizer, const dpari_optim_now *now,
                              int32_t what, void *to, int32_t type, const double *from, int64_t i,
                              int64_t n)
{
    const uint64_t stream =
        (uint64_t)now->t + (what == DPARI_OPTIM_WEIGHT ? 0 : DPARI_OPTIM_MOMENTS);
    float f[DPARI_ELEMENTS];
    if (type != DPAR_BF16 || !optimizer->stochastic) {
        dpari_elements_store(to, from, i, n, type);
        return;
    }
    dpari_elements_store(f, from, 0, n, DPAR_F32);
    dpari_random_round((unsigned char *)to + 2 * i, f, n, optimizer->seed, stream,
                       now->index + (uint64_t)i, what == DPARI_OPTIM_V ? 0 : 16);
}

/* Updates elements in place if weights and moments are all F64 or all F32, and gradients have that
 * type or convert to it exactly. Does not update the remainder that is no multiple of the vector
 * size. Returns the number of elements that were updated, which may be 0. */
static int64_t dpari_optim_direct(const dpar_optimizer *optimizer, const dpari_optim_now *now,
                                  const dpar_optimizer_piece *p, int32_t moment_type)
{
    const int64_t n = p->count / DPARI_OPTIM_STEP * DPARI_OPTIM_STEP;
    const int32_t type = p->weight_type, moments = dpari_optimizer_moments(optimizer);
    const int64_t bytes = dpar_type_bytes(type), each = dpar_type_bytes(p->gradient_type);
    float g[DPARI_ELEMENTS];
    dpari_optim_arrays all;
    int64_t i, some;
    if (!dpari_is_wide(type) || now->factor == 0.0 || (moments > 0 && moment_type != type) ||
        (p->gradient_type != type && (type == DPAR_F64 || p->gradient_type == DPAR_F64))) {
        return 0;
    }
    for (i = 0; i < n; i += some) {
        const unsigned char *from = (const unsigned char *)p->gradient + i * each;
        some = p->gradient_type == type ? n : dpari_least(DPARI_ELEMENTS, n - i);
        all.w = (unsigned char *)p->weight + i * bytes;
        all.g = from;
        all.m = moments > 0 ? (unsigned char *)p->m + i * bytes : NULL;
        all.v = moments > 1 ? (unsigned char *)p->v + i * bytes : NULL;
        if (p->gradient_type != type) {
            dpari_kern_convert(g, DPAR_F32, from, p->gradient_type, some);
            all.g = g;
        }
        dpari_optim_update(optimizer, now, &all, type, some);
    }
    return n;
}

/* Loads n elements from element i on as F32. */
static void dpari_optim_load(float *to, const void *from, int64_t i, int64_t n, int32_t type)
{
    const unsigned char *at = (const unsigned char *)from + i * dpar_type_bytes(type);
    if (type == DPAR_F32) {
        dpari_kern_copy(to, at, 4 * n, 0);
    } else {
        dpari_kern_convert(to, DPAR_F32, at, type, n);
    }
}

/* Updates weights whose moments are 8-bit codes, one block after another. Weights and gradients of
 * other types than F32 are converted to it. In a block of which the piece has only a part, the
 * other moments keep their values. */
static void dpari_optim_coded(const dpar_optimizer *optimizer, const dpari_optim_now *now,
                              const dpar_optimizer_piece *p, int32_t moments)
{
    enum { BLOCK = DPARI_MOMENT_BLOCK };
    const int64_t each = dpar_type_bytes(p->weight_type);
    const int64_t skip = (int64_t)(p->index % BLOCK);
    float w[BLOCK] = {0.0f}, g[BLOCK] = {0.0f}, after[2][4];
    dpari_moment_block block;
    dpari_optim_arrays all;
    int64_t i, n;
    int32_t k;
    dpari_zero(&block, sizeof block);
    block.moments = moments;
    for (i = 0; i < p->count; i += n) {
        const int64_t lo = i == 0 ? skip : 0;
        const int64_t record = dpari_moment_at(DPAR_F8, p->index, i);
        unsigned char *const weight = (unsigned char *)p->weight + i * each;
        n = dpari_least(BLOCK - lo, p->count - i);
        block.record[0] = (unsigned char *)p->m + record;
        block.record[1] = moments > 1 ? (unsigned char *)p->v + record : NULL;
        dpari_moment_load(&block, now->wide);
        all.w = w;
        all.g = g;
        all.m = block.x[0] + lo;
        all.v = block.x[1] + lo;
        if (n == BLOCK && p->weight_type == DPAR_F32) {
            all.w = weight;
        } else {
            dpari_optim_load(w, p->weight, i, n, p->weight_type);
        }
        if (n == BLOCK && p->gradient_type == DPAR_F32 && now->factor != 0.0) {
            all.g = (const float *)p->gradient + i;
        } else if (now->factor != 0.0) {
            dpari_optim_load(g, p->gradient, i, n, p->gradient_type);
        }
        for (k = 0; k < 2; k++) {
            dpari_kern_copy(after[k], block.x[k] + lo + n, sizeof after[k], 0);
        }
        /* also updates up to 3 elements after n */
        dpari_optim_update(optimizer, now, &all, DPAR_F32, (n + 3) / 4 * 4);
        for (k = 0; k < 2; k++) {
            dpari_kern_copy(block.x[k] + lo + n, after[k], sizeof after[k], 0);
        }
        dpari_moment_store(&block, optimizer->seed, (uint64_t)now->t + DPARI_OPTIM_MOMENTS,
                           (p->index + (uint64_t)i) / BLOCK, now->wide);
        if (all.w == w && p->weight_type == DPAR_BF16 && optimizer->stochastic) {
            dpari_random_round(weight, w, n, optimizer->seed, (uint64_t)now->t,
                               p->index + (uint64_t)i, 16);
        } else if (all.w == w && p->weight_type != DPAR_F32) {
            dpari_kern_convert(weight, p->weight_type, w, DPAR_F32, n);
        } else if (all.w == w) {
            dpari_kern_copy(weight, w, 4 * n, 0);
        }
    }
}

DPAR_API dpar_status dpar_optimizer_step(const dpar_optimizer *optimizer,
                                         const dpar_optimizer_piece *p, int64_t t, double rate,
                                         double factor)
{
    double w[DPARI_ELEMENTS] = {0.0}, g[DPARI_ELEMENTS] = {0.0};
    double m[DPARI_ELEMENTS] = {0.0}, v[DPARI_ELEMENTS] = {0.0};
    int32_t moments = 0, type = 0;
    dpari_optim_arrays blocks;
    dpari_optim_now now;
    int64_t i;
    if (p == NULL ||
        dpar_optimizer_check(optimizer, p->weight_type, &moments, &type, NULL) != DPAR_OK ||
        t < 1 || p->count < 0 || !dpari_is_float(p->gradient_type) ||
        (p->count > 0 && (p->weight == NULL || p->gradient == NULL ||
                          (moments > 0 && p->m == NULL) || (moments > 1 && p->v == NULL)))) {
        return DPAR_E_ARG;
    }
    now.rate = rate;
    now.factor = factor;
    now.shrink = 1.0 - rate * optimizer->decay;
    now.reach = rate / (1.0 - dpari_optim_power(optimizer->beta1, t));
    now.fix = 1.0 / (1.0 - dpari_optim_power(optimizer->beta2, t));
    now.t = t;
    now.index = p->index;
    now.wide = DPARI_LANES_ASKED && p->count >= DPARI_OPTIM_ASKS ? dpari_cpu_wide() : 0;
    if (type == DPAR_F8 && moments > 0) {
        dpari_optim_coded(optimizer, &now, p, moments);
        return DPAR_OK;
    }
    blocks.w = w;
    blocks.g = g; /* stays zero if factor is 0, because NaN and infinity times 0 would be NaN */
    blocks.m = moments > 0 ? m : NULL;
    blocks.v = v;
    for (i = dpari_optim_direct(optimizer, &now, p, type); i < p->count; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, p->count - i);
        dpari_elements_load(w, p->weight, i, n, p->weight_type);
        if (factor != 0.0) {
            dpari_elements_load(g, p->gradient, i, n, p->gradient_type);
        }
        if (moments > 0) {
            dpari_elements_load(m, p->m, i, n, type);
        }
        if (moments > 1) {
            dpari_elements_load(v, p->v, i, n, type);
        }
        /* also updates the elements after n, which are not stored */
        dpari_optim_update(optimizer, &now, &blocks, DPAR_F64, DPARI_ELEMENTS);
        if (moments > 1) {
            dpari_optim_store(optimizer, &now, DPARI_OPTIM_V, p->v, type, v, i, n);
        }
        if (moments > 0) {
            dpari_optim_store(optimizer, &now, DPARI_OPTIM_M, p->m, type, m, i, n);
        }
        dpari_optim_store(optimizer, &now, DPARI_OPTIM_WEIGHT, p->weight, p->weight_type, w, i, n);
    }
    return DPAR_OK;
}

/* ==== host/vector_loops.c ==== */

/* Vectorised loops over rows, for norms, cross-entropy, attention and 8-bit codes. Each loop has
 * two parts: whole vectors, with GCC's vector extensions, and then the elements that are left.
 * Without vectors, or if the CPU is not queried, the second part processes all elements. Both give
 * the same bits, because sums have 16 chains (8 in f32) with a fixed order, and products are not
 * fused with sums. vector_loops.h describes each loop.
 *
 * dpari_lanes_for returns the table of functions for this CPU. layers.c, layers_norm.c, sequence.c
 * and tests call it. */

/* Returns the scale of block i. */
static float dpari_lanes_scale(const dpari_lanes_blocks *b, int64_t i)
{
    float scale;
    dpari_elements_bits(&scale, b->scale + i * b->scale_step, 4);
    return scale;
}

#if DPARI_LANES_VECTOR
/* The number of elements that `loop` has processed by whole vectors. On x86-64 only the loops for
 * AVX2 (wide = 1) do so. */
#define DPARI_LANES_WHOLE(wide, loop) ((wide) || !DPARI_LANES_ASKED ? (loop) : 0)
#else
#define DPARI_LANES_INLINE static
#define DPARI_LANES_WHOLE(wide, loop) ((void)(wide), 0)
#endif

/* ---- sums and maps of rows ------------------------------------------------------------------- */

/* The 16 chains of a sum, or 16 elements of a row. */
#if DPARI_LANES_VECTOR
typedef struct dpari_lanes_16 {
    dpari_lanes_d4 v[4];
} dpari_lanes_16;

DPARI_LANES_INLINE void dpari_lanes_all(dpari_lanes_16 *to, double x)
{
    const dpari_lanes_d4 all = DPARI_LANES_ALL4(x);
    DPARI_FOUR(to->v[q] = all);
}

/* Adds the 16 chains in the order that vector_loops.h describes. */
DPARI_LANES_INLINE double dpari_lanes_fold(const dpari_lanes_16 *x)
{
    const dpari_lanes_d4 s = (x->v[0] + x->v[2]) + (x->v[1] + x->v[3]);
    return (s[0] + s[2]) + (s[1] + s[3]);
}

DPARI_LANES_INLINE int64_t dpari_lanes_widen_whole(double *to, const float *from, int64_t n,
                                                   int wide)
{
    int64_t i;
    for (i = 0; i + 8 <= n; i += 8) {
        dpari_lanes_f4 a, b;
        dpari_lanes_d4 x, y;
        dpari_lanes_get(&a, from + i);
        dpari_lanes_get(&b, from + i + 4);
        DPARI_LANES_CONVERT(wide, "vcvtps2pd", x, a, dpari_lanes_d4);
        DPARI_LANES_CONVERT(wide, "vcvtps2pd", y, b, dpari_lanes_d4);
        dpari_lanes_put(to + i, &x);
        dpari_lanes_put(to + i + 4, &y);
    }
    return i;
}

DPARI_LANES_INLINE int64_t dpari_lanes_thin_whole(float *to, const double *from, int64_t n,
                                                  int wide)
{
    int64_t i;
    for (i = 0; i + 8 <= n; i += 8) {
        dpari_lanes_f4 a, b;
        dpari_lanes_d4 x, y;
        dpari_lanes_get(&x, from + i);
        dpari_lanes_get(&y, from + i + 4);
        DPARI_LANES_CONVERT(wide, "vcvtpd2psy", a, x, dpari_lanes_f4);
        DPARI_LANES_CONVERT(wide, "vcvtpd2psy", b, y, dpari_lanes_f4);
        dpari_lanes_put(to + i, &a);
        dpari_lanes_put(to + i + 4, &b);
    }
    return i;
}

/* Loads elements i .. i + 15 as doubles; dpari_lanes_store does the opposite. */
DPARI_LANES_INLINE void dpari_lanes_load(dpari_lanes_16 *to, const void *x, int64_t i, int32_t type,
                                         int wide)
{
    if (type == DPAR_F64) {
        DPARI_FOUR(dpari_lanes_get(&to->v[q], (const double *)x + i + 4 * q));
    } else {
        const dpari_lanes_m4 *f = (const dpari_lanes_m4 *)(const void *)((const float *)x + i);
        DPARI_FOUR(DPARI_LANES_CONVERT(wide, "vcvtps2pd", to->v[q], f[q], dpari_lanes_d4));
    }
}

DPARI_LANES_INLINE void dpari_lanes_store(void *x, int64_t i, int32_t type,
                                          const dpari_lanes_16 *from, int wide)
{
    dpari_lanes_f4 f;
    if (type == DPAR_F64) {
        DPARI_FOUR(dpari_lanes_put((double *)x + i + 4 * q, &from->v[q]));
    } else {
        DPARI_FOUR(DPARI_LANES_CONVERT(wide, "vcvtpd2psy", f, from->v[q], dpari_lanes_f4);
                   dpari_lanes_put((float *)x + i + 4 * q, &f));
    }
}

#else
typedef struct dpari_lanes_16 {
    double v[DPARI_LANES_D];
} dpari_lanes_16;

static void dpari_lanes_all(dpari_lanes_16 *to, double x)
{
    int32_t k;
    for (k = 0; k < DPARI_LANES_D; k++) {
        to->v[k] = x;
    }
}

static double dpari_lanes_fold(const dpari_lanes_16 *x)
{
    double c[DPARI_LANES_D];
    int32_t k, half;
    dpari_elements_bits(c, x, sizeof c);
    for (half = DPARI_LANES_D / 2; half > 0; half /= 2) {
        for (k = 0; k < half; k++) {
            c[k] += c[k + half];
        }
    }
    return c[0];
}
#endif

DPARI_LANES_INLINE void dpari_lanes_widen(double *to, const float *from, int64_t n, int wide)
{
    int64_t i = DPARI_LANES_WHOLE(wide, dpari_lanes_widen_whole(to, from, n, wide));
    for (; i < n; i++) {
        to[i] = (double)from[i];
    }
}

DPARI_LANES_INLINE void dpari_lanes_thin(float *to, const double *from, int64_t n, int wide)
{
    int64_t i = DPARI_LANES_WHOLE(wide, dpari_lanes_thin_whole(to, from, n, wide));
    for (; i < n; i++) {
        to[i] = (float)from[i];
    }
}

/* What a sum adds: x, (x - mean)^2, x (y - mean), or the latter and x separately. */
enum { DPARI_LANES_TOTAL, DPARI_LANES_ABOUT, DPARI_LANES_PRODUCT, DPARI_LANES_BOTH };

#if DPARI_LANES_VECTOR
DPARI_LANES_INLINE int64_t dpari_lanes_sum_whole(dpari_lanes_16 *sum, dpari_lanes_16 *first,
                                                 int what, const void *x, const void *y,
                                                 int32_t type, double mean, int64_t n, int wide)
{
    const dpari_lanes_d4 less = DPARI_LANES_ALL4(mean);
    dpari_lanes_16 p, z;
    int64_t i;
    for (i = 0; i + DPARI_LANES_D <= n; i += DPARI_LANES_D) {
        dpari_lanes_load(&p, x, i, type, wide);
        if (what == DPARI_LANES_TOTAL) {
            DPARI_FOUR(sum->v[q] += p.v[q]);
        } else if (what == DPARI_LANES_ABOUT) {
            DPARI_FOUR(sum->v[q] += (p.v[q] - less) * (p.v[q] - less));
        } else {
            dpari_lanes_load(&z, y, i, type, wide);
            DPARI_FOUR(sum->v[q] += p.v[q] * (z.v[q] - less));
        }
        if (what == DPARI_LANES_BOTH) {
            DPARI_FOUR(first->v[q] += p.v[q]);
        }
    }
    return i;
}
#endif

/* Adds up a row. total: the sum of x if `what` is BOTH. */
DPARI_LANES_INLINE double dpari_lanes_sum(int what, const void *x, const void *y, int32_t type,
                                          double mean, int64_t n, double *total, int wide)
{
    dpari_lanes_16 sum, first;
    double c[DPARI_LANES_D], d[DPARI_LANES_D];
    int64_t i;
    dpari_lanes_all(&sum, 0.0);
    dpari_lanes_all(&first, 0.0);
    i = DPARI_LANES_WHOLE(wide,
                          dpari_lanes_sum_whole(&sum, &first, what, x, y, type, mean, n, wide));
    if (i < n) {
        dpari_elements_bits(c, &sum, sizeof c);
        dpari_elements_bits(d, &first, sizeof d);
        for (; i < n; i++) {
            const double each = dpari_element_get(x, type, i);
            double by = 1.0;
            if (what == DPARI_LANES_ABOUT) {
                by = each - mean;
            } else if (what != DPARI_LANES_TOTAL) {
                by = dpari_element_get(y, type, i) - mean;
            }
            c[i % DPARI_LANES_D] += (what == DPARI_LANES_ABOUT ? by : each) * by;
            d[i % DPARI_LANES_D] += each;
        }
        dpari_elements_bits(&sum, c, sizeof c);
        dpari_elements_bits(&first, d, sizeof d);
    }
    if (what == DPARI_LANES_BOTH) {
        *total = dpari_lanes_fold(&first);
    }
    return dpari_lanes_fold(&sum);
}

DPARI_LANES_INLINE double dpari_lanes_product(const void *x, const void *y, int32_t type,
                                              double mean, int64_t n, double *total, int wide)
{
    if (total != NULL) {
        return dpari_lanes_sum(DPARI_LANES_BOTH, x, y, type, mean, n, total, wide);
    }
    return dpari_lanes_sum(DPARI_LANES_PRODUCT, x, y, type, mean, n, NULL, wide);
}

#if DPARI_LANES_VECTOR
DPARI_LANES_INLINE void dpari_lanes_more(dpari_lanes_d4 *a, const dpari_lanes_d4 *x)
{
    const dpari_lanes_u4 above = (dpari_lanes_u4)(*x > *a);
    *a = (dpari_lanes_d4)(((dpari_lanes_u4)*x & above) | ((dpari_lanes_u4)*a & ~above));
}

DPARI_LANES_INLINE int64_t dpari_lanes_largest_whole(double *most, const void *x, int32_t type,
                                                     int64_t n, int wide)
{
    dpari_lanes_16 all, p;
    int64_t i, k;
    dpari_lanes_all(&all, *most);
    for (i = 0; i + DPARI_LANES_D <= n; i += DPARI_LANES_D) {
        dpari_lanes_load(&p, x, i, type, wide);
        DPARI_FOUR(dpari_lanes_more(&all.v[q], &p.v[q]));
    }
    dpari_lanes_more(&all.v[0], &all.v[1]);
    dpari_lanes_more(&all.v[2], &all.v[3]);
    dpari_lanes_more(&all.v[0], &all.v[2]);
    for (k = 0; k < 4; k++) {
        *most = all.v[0][k] > *most ? all.v[0][k] : *most;
    }
    return i;
}

/* Computes 16 elements of `line`, or of `slope` if y is not NULL. */
DPARI_LANES_INLINE void dpari_lanes_map_16(void *to, const void *x, const void *y, int64_t i,
                                           int32_t type, const double *by, int wide)
{
    dpari_lanes_16 p, g;
    dpari_lanes_load(&p, x, i, type, wide);
    if (y == NULL) {
        const dpari_lanes_d4 a = DPARI_LANES_ALL4(by[0]), mean = DPARI_LANES_ALL4(by[1]);
        const dpari_lanes_d4 b = DPARI_LANES_ALL4(by[2]);
        DPARI_FOUR(p.v[q] = a * (p.v[q] - mean) + b);
    } else {
        const dpari_lanes_d4 inverse = DPARI_LANES_ALL4(by[0]), scale = DPARI_LANES_ALL4(by[1]);
        const dpari_lanes_d4 mean = DPARI_LANES_ALL4(by[2]), middle = DPARI_LANES_ALL4(by[3]);
        const dpari_lanes_d4 slope = DPARI_LANES_ALL4(by[4]);
        dpari_lanes_load(&g, y, i, type, wide);
        DPARI_FOUR(p.v[q] = inverse * (scale * g.v[q] - mean - (p.v[q] - middle) * slope));
    }
    dpari_lanes_store(to, i, type, &p, wide);
}

DPARI_LANES_INLINE int64_t dpari_lanes_map_whole(void *to, const void *x, const void *y,
                                                 int32_t type, const double *by, int64_t n,
                                                 int wide)
{
    const double last = y != NULL ? by[4] : 0.0;
    const double with[5] = {by[0], by[1], by[2], y != NULL ? by[3] : 0.0, last};
    int64_t i;
    for (i = 0; i + DPARI_LANES_D <= n; i += DPARI_LANES_D) {
        dpari_lanes_map_16(to, x, y, i, type, with, wide);
    }
    return i;
}

/* Computes the smaller of x and `most`. A NaN in x remains. */
DPARI_LANES_INLINE void dpari_lanes_least(dpari_lanes_d4 *to, const dpari_lanes_d4 *x,
                                          const dpari_lanes_d4 *most, int wide)
{
    dpari_lanes_u4 over;
#if DPARI_LANES_ASM
    if (wide) { /* in assembly, because gcc would emit four instructions */
        __asm__("vminpd %1, %2, %0" : "=x"(*to) : "x"(*x), "x"(*most));
        return;
    }
#endif
    (void)wide;
    over = (dpari_lanes_u4)(*x > *most);
    *to = (dpari_lanes_d4)(((dpari_lanes_u4)*x & ~over) | ((dpari_lanes_u4)*most & over));
}

/* Computes x = e^x and z = e^z. Two vectors are processed at once, because their operations do not
 * depend on each other. x is split into k ln 2 + f, where k is an integer, which adding 1.5 2^52
 * leaves in the last bits. ln 2 is stored in two parts, so that k times the first part is exact.
 * e^f for |f| < 0.347 is a Taylor sum of degree 12 with an error below 2e-16. Its terms are added
 * in pairs (Estrin), so that few operations depend on each other. 2^k is made from its bits. NaN
 * remains NaN, because f is NaN. */
DPARI_LANES_INLINE void dpari_lanes_exp(dpari_lanes_d4 *x, dpari_lanes_d4 *z, int wide)
{
    const dpari_lanes_d4 low = DPARI_LANES_ALL4(-708.0), high = DPARI_LANES_ALL4(709.0);
    const dpari_lanes_u4 under = (dpari_lanes_u4)(*x < low);
    const dpari_lanes_u4 under_2 = (dpari_lanes_u4)(*z < low);
    dpari_lanes_d4 y, y_2;
    dpari_lanes_least(&y, x, &high, wide);
    dpari_lanes_least(&y_2, z, &high, wide);
    const dpari_lanes_d4 turned = y * 1.4426950408889634 + 6755399441055744.0;
    const dpari_lanes_d4 turned_2 = y_2 * 1.4426950408889634 + 6755399441055744.0;
    const dpari_lanes_d4 k = turned - 6755399441055744.0;
    const dpari_lanes_d4 k_2 = turned_2 - 6755399441055744.0;
    const dpari_lanes_d4 g = y - k * 0.693147180369123816490;
    const dpari_lanes_d4 g_2 = y_2 - k_2 * 0.693147180369123816490;
    const dpari_lanes_d4 f = g - k * 1.90821492927058770002e-10;
    const dpari_lanes_d4 f_2 = g_2 - k_2 * 1.90821492927058770002e-10;
    const dpari_lanes_u4 power = ((dpari_lanes_u4)turned << 52) + (UINT64_C(1023) << 52);
    const dpari_lanes_u4 power_2 = ((dpari_lanes_u4)turned_2 << 52) + (UINT64_C(1023) << 52);
    const dpari_lanes_d4 f2 = f * f;
    const dpari_lanes_d4 f2_2 = f_2 * f_2;
    const dpari_lanes_d4 a = (f + 1.0) + (f * (1.0 / 6.0) + 0.5) * f2;
    const dpari_lanes_d4 a_2 = (f_2 + 1.0) + (f_2 * (1.0 / 6.0) + 0.5) * f2_2;
    const dpari_lanes_d4 f4 = f2 * f2;
    const dpari_lanes_d4 f4_2 = f2_2 * f2_2;
    const dpari_lanes_d4 b =
        (f * (1.0 / 120.0) + 1.0 / 24.0) + (f * (1.0 / 5040.0) + 1.0 / 720.0) * f2;
    const dpari_lanes_d4 b_2 =
        (f_2 * (1.0 / 120.0) + 1.0 / 24.0) + (f_2 * (1.0 / 5040.0) + 1.0 / 720.0) * f2_2;
    const dpari_lanes_d4 c =
        (f * (1.0 / 362880.0) + 1.0 / 40320.0) + (f * (1.0 / 39916800.0) + 1.0 / 3628800.0) * f2;
    const dpari_lanes_d4 c_2 = (f_2 * (1.0 / 362880.0) + 1.0 / 40320.0) +
                               (f_2 * (1.0 / 39916800.0) + 1.0 / 3628800.0) * f2_2;
    const dpari_lanes_d4 sum = (a + b * f4) + (c + f4 * (1.0 / 479001600.0)) * (f4 * f4);
    const dpari_lanes_d4 sum_2 =
        (a_2 + b_2 * f4_2) + (c_2 + f4_2 * (1.0 / 479001600.0)) * (f4_2 * f4_2);
    *x = (dpari_lanes_d4)((dpari_lanes_u4)(sum * (dpari_lanes_d4)power) & ~under);
    *z = (dpari_lanes_d4)((dpari_lanes_u4)(sum_2 * (dpari_lanes_d4)power_2) & ~under_2);
}

DPARI_LANES_INLINE void dpari_lanes_exps_16(dpari_lanes_16 *sum, void *to, const void *x, int64_t i,
                                            int32_t type, const double *by, int wide)
{
    const dpari_lanes_d4 less = DPARI_LANES_ALL4(by[0]), times = DPARI_LANES_ALL4(by[1]);
    const dpari_lanes_d4 plus = DPARI_LANES_ALL4(by[2]);
    dpari_lanes_16 p;
    int32_t k;
    dpari_lanes_load(&p, x, i, type, wide);
    DPARI_FOUR(p.v[q] -= less);
    if (wide) {
        dpari_lanes_exp(&p.v[0], &p.v[1], wide);
        dpari_lanes_exp(&p.v[2], &p.v[3], wide);
    }
    for (k = 0; k < 4 && !wide; k += 2) { /* a loop, which is as fast with fewer registers */
        dpari_lanes_exp(&p.v[k], &p.v[k + 1], wide);
    }
    DPARI_FOUR(sum->v[q] += p.v[q]);
    if (to != NULL) {
        DPARI_FOUR(p.v[q] = times * p.v[q] + plus);
        dpari_lanes_store(to, i, type, &p, wide);
    }
}

/* The last elements are completed to a vector too, because one power takes as long as a vector. */
DPARI_LANES_INLINE int64_t dpari_lanes_exps_whole(dpari_lanes_16 *sum, void *to, const void *x,
                                                  int32_t type, const double *by, int64_t n,
                                                  int wide)
{
    const double with[3] = {by[0], by[1], by[2]};
    double room[DPARI_LANES_D];
    int64_t i, k;
    for (i = 0; i + DPARI_LANES_D <= n; i += DPARI_LANES_D) {
        dpari_lanes_exps_16(sum, to, x, i, type, with, wide);
    }
    if (i < n) {
        for (k = 0; k < DPARI_LANES_D; k++) {
            room[k] = i + k < n ? dpari_element_get(x, type, i + k) : with[0] - 1000.0;
        }
        dpari_lanes_exps_16(sum, to != NULL ? room : NULL, room, 0, DPAR_F64, with, wide);
        for (k = 0; to != NULL && i + k < n; k++) {
            dpari_element_put(to, type, i + k, room[k]);
        }
    }
    return n;
}

/* Computes x = log(1 + x) = 2 atanh(x / (2 + x)) for 0 <= x <= 1. The argument of atanh is at most
 * 1 / 3, so that 16 terms of its series leave an error below 1e-16. */
DPARI_LANES_INLINE void dpari_lanes_log(dpari_lanes_d4 *x)
{
    const dpari_lanes_d4 y = *x / (*x + 2.0), y2 = y * y;
    dpari_lanes_d4 sum = y2 * (2.0 / 31.0) + 2.0 / 29.0;
    sum = sum * y2 + 2.0 / 27.0;
    sum = sum * y2 + 2.0 / 25.0;
    sum = sum * y2 + 2.0 / 23.0;
    sum = sum * y2 + 2.0 / 21.0;
    sum = sum * y2 + 2.0 / 19.0;
    sum = sum * y2 + 2.0 / 17.0;
    sum = sum * y2 + 2.0 / 15.0;
    sum = sum * y2 + 2.0 / 13.0;
    sum = sum * y2 + 2.0 / 11.0;
    sum = sum * y2 + 2.0 / 9.0;
    sum = sum * y2 + 2.0 / 7.0;
    sum = sum * y2 + 2.0 / 5.0;
    sum = sum * y2 + 2.0 / 3.0;
    sum = sum * y2 + 2.0;
    *x = sum * y;
}

DPARI_LANES_INLINE int64_t dpari_lanes_logs_whole(double *x, int64_t n)
{
    dpari_lanes_d4 p;
    int64_t i;
    for (i = 0; i + 4 <= n; i += 4) {
        dpari_lanes_get(&p, x + i);
        dpari_lanes_log(&p);
        dpari_lanes_put(x + i, &p);
    }
    return i;
}

/* Computes e^x with the operations of dpari_lanes_exp. */
DPARI_LANES_INLINE double dpari_lanes_exp_one(double x)
{
    const double y = x > 709.0 ? 709.0 : x;
    const double turned = y * 1.4426950408889634 + 6755399441055744.0;
    const double k = turned - 6755399441055744.0;
    const double f = (y - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    const double f2 = f * f, f4 = f2 * f2;
    const double a = (f + 1.0) + (f * (1.0 / 6.0) + 0.5) * f2;
    const double b = (f * (1.0 / 120.0) + 1.0 / 24.0) + (f * (1.0 / 5040.0) + 1.0 / 720.0) * f2;
    const double c =
        (f * (1.0 / 362880.0) + 1.0 / 40320.0) + (f * (1.0 / 39916800.0) + 1.0 / 3628800.0) * f2;
    const double sum = (a + b * f4) + (c + f4 * (1.0 / 479001600.0)) * (f4 * f4);
    uint64_t bits;
    double power;
    if (x < -708.0 || x != x) {
        return x < -708.0 ? 0.0 : x;
    }
    dpari_elements_bits(&bits, &turned, 8);
    bits = (bits << 52) + (UINT64_C(1023) << 52);
    dpari_elements_bits(&power, &bits, 8);
    return sum * power;
}
#else
/* doubles may have extra precision, with which the function above would be wrong */
#define dpari_lanes_exp_one(x) dpari_exp(x)
#endif

DPARI_LANES_INLINE double dpari_lanes_largest(const void *x, int32_t type, double most, int64_t n,
                                              int wide)
{
    int64_t i = DPARI_LANES_WHOLE(wide, dpari_lanes_largest_whole(&most, x, type, n, wide));
    for (; i < n; i++) {
        const double each = dpari_element_get(x, type, i);
        most = each > most ? each : most;
    }
    return most;
}

/* Computes `line`, or `slope` if y is not NULL. */
DPARI_LANES_INLINE void dpari_lanes_map(void *to, const void *x, const void *y, int32_t type,
                                        const double *by, int64_t n, int wide)
{
    int64_t i = DPARI_LANES_WHOLE(wide, dpari_lanes_map_whole(to, x, y, type, by, n, wide));
    for (; i < n; i++) {
        double v = dpari_element_get(x, type, i);
        if (y == NULL) {
            v = by[0] * (v - by[1]) + by[2];
        } else {
            v = by[0] * (by[1] * dpari_element_get(y, type, i) - by[2] - (v - by[3]) * by[4]);
        }
        dpari_element_put(to, type, i, v);
    }
}

DPARI_LANES_INLINE double dpari_lanes_exps(void *to, const void *x, int32_t type, const double *by,
                                           int64_t n, int wide)
{
    dpari_lanes_16 sum;
    double c[DPARI_LANES_D];
    int64_t i;
    dpari_lanes_all(&sum, 0.0);
    i = DPARI_LANES_WHOLE(wide, dpari_lanes_exps_whole(&sum, to, x, type, by, n, wide));
    if (i < n) {
        dpari_elements_bits(c, &sum, sizeof c);
        for (; i < n; i++) {
            const double power = dpari_lanes_exp_one(dpari_element_get(x, type, i) - by[0]);
            c[i % DPARI_LANES_D] += power;
            if (to != NULL) {
                dpari_element_put(to, type, i, by[1] * power + by[2]);
            }
        }
        dpari_elements_bits(&sum, c, sizeof c);
    }
    return dpari_lanes_fold(&sum);
}

DPARI_LANES_INLINE void dpari_lanes_logs(double *x, int64_t n, int wide)
{
    int64_t i = DPARI_LANES_WHOLE(wide, dpari_lanes_logs_whole(x, n));
    int32_t k;
    for (; i < n; i++) {
        const double y = x[i] / (x[i] + 2.0), y2 = y * y;
        double sum = 0.0;
        for (k = 31; k > 0; k -= 2) {
            sum = sum * y2 + 2.0 / (double)k;
        }
        x[i] = sum * y;
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

#if DPARI_LANES_VECTOR
/* A vector of words i, j, k and l, where words 0 .. 3 are those of a and 4 .. 7 those of b. */
#if defined(__clang__)
#define DPARI_LANES_WORDS(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define DPARI_LANES_WORDS(a, b, i, j, k, l) dpari_lanes_words(a, b, i, j, k, l)
DPARI_LANES_INLINE dpari_lanes_f4 dpari_lanes_words(dpari_lanes_f4 a, dpari_lanes_f4 b, int32_t i,
                                                    int32_t j, int32_t k, int32_t l)
{
    const dpari_lanes_w4 which = {i, j, k, l};
    return __builtin_shuffle(a, b, which);
}
#endif

/* Adds the two halves of a vector. */
DPARI_LANES_INLINE void dpari_lanes_half(dpari_lanes_f4 *to, const dpari_lanes_f8 *x)
{
    dpari_lanes_f4 a, b;
    __builtin_memcpy(&a, x, 16);
    __builtin_memcpy(&b, (const unsigned char *)x + 16, 16);
    *to = a + b;
}

/* Computes the scores of four rows at once, so that each element of x is loaded once. */
DPARI_LANES_INLINE void dpari_lanes_scores_four(double *to, const float *x,
                                                const float *const row[4], int64_t width,
                                                double scale)
{
    dpari_lanes_f8 a = DPARI_LANES_ALL8(0.0f), b = a, c = a, d = a, u, p, q, r, s;
    dpari_lanes_f4 e, f, g, h, first, second;
    dpari_lanes_d4 sum;
    float more[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    int64_t i;
    for (i = 0; i + DPARI_LANES_F <= width; i += DPARI_LANES_F) {
        dpari_lanes_get(&u, x + i);
        dpari_lanes_get(&p, row[0] + i);
        dpari_lanes_get(&q, row[1] + i);
        dpari_lanes_get(&r, row[2] + i);
        dpari_lanes_get(&s, row[3] + i);
        a += u * p;
        b += u * q;
        c += u * r;
        d += u * s;
    }
    for (; i < width; i++) {
        more[0] += x[i] * row[0][i];
        more[1] += x[i] * row[1][i];
        more[2] += x[i] * row[2][i];
        more[3] += x[i] * row[3][i];
    }
    dpari_lanes_half(&e, &a);
    dpari_lanes_half(&f, &b);
    dpari_lanes_half(&g, &c);
    dpari_lanes_half(&h, &d);
    first = DPARI_LANES_WORDS(e, f, 0, 4, 1, 5) + DPARI_LANES_WORDS(e, f, 2, 6, 3, 7);
    second = DPARI_LANES_WORDS(g, h, 0, 4, 1, 5) + DPARI_LANES_WORDS(g, h, 2, 6, 3, 7);
    e = DPARI_LANES_WORDS(first, second, 0, 1, 4, 5) + DPARI_LANES_WORDS(first, second, 2, 3, 6, 7);
    dpari_lanes_get(&f, more);
    e += f;
    sum = __builtin_convertvector(e, dpari_lanes_d4) * scale;
    dpari_lanes_put(to, &sum);
}

DPARI_LANES_INLINE int64_t dpari_lanes_scores_whole(double *to, const float *x, const float *row,
                                                    int64_t step, int64_t n, int64_t width,
                                                    double scale)
{
    double room[4];
    int64_t j, k;
    for (j = 0; j < n; j += 4) {
        const float *each[4];
        for (k = 0; k < 4; k++) { /* if fewer than four rows are left, the last one is repeated */
            each[k] = row + dpari_least(j + k, n - 1) * step;
        }
        dpari_lanes_scores_four(n - j < 4 ? room : to + j, x, each, width, scale);
        for (k = 0; k < n - j && n - j < 4; k++) {
            to[j + k] = room[k];
        }
    }
    return n;
}

DPARI_LANES_INLINE int64_t dpari_lanes_mix_whole(float *y, float keep, const float *by,
                                                 const float *row, int64_t step, int64_t n,
                                                 int64_t width)
{
    int64_t c = 0, j;
    for (; c + 4 * DPARI_LANES_F <= width; c += 4 * DPARI_LANES_F) {
        dpari_lanes_f8 p, q, r, s, k, l, m, o;
        const float *at = row + c;
        dpari_lanes_get(&p, y + c);
        dpari_lanes_get(&q, y + c + 8);
        dpari_lanes_get(&r, y + c + 16);
        dpari_lanes_get(&s, y + c + 24);
        p *= keep;
        q *= keep;
        r *= keep;
        s *= keep;
        for (j = 0; j < n; j++, at += step) {
            const dpari_lanes_f8 w = DPARI_LANES_ALL8(by[j]);
            dpari_lanes_get(&k, at);
            dpari_lanes_get(&l, at + 8);
            dpari_lanes_get(&m, at + 16);
            dpari_lanes_get(&o, at + 24);
            p += w * k;
            q += w * l;
            r += w * m;
            s += w * o;
        }
        dpari_lanes_put(y + c, &p);
        dpari_lanes_put(y + c + 8, &q);
        dpari_lanes_put(y + c + 16, &r);
        dpari_lanes_put(y + c + 24, &s);
    }
    for (; c + DPARI_LANES_F <= width; c += DPARI_LANES_F) {
        dpari_lanes_f8 p, k;
        dpari_lanes_get(&p, y + c);
        p *= keep;
        for (j = 0; j < n; j++) {
            const dpari_lanes_f8 w = DPARI_LANES_ALL8(by[j]);
            dpari_lanes_get(&k, row + j * step + c);
            p += w * k;
        }
        dpari_lanes_put(y + c, &p);
    }
    return c;
}

DPARI_LANES_INLINE int64_t dpari_lanes_add_whole(float *y, float keep, float by, const float *x,
                                                 int64_t n)
{
    const dpari_lanes_f8 k = DPARI_LANES_ALL8(keep), w = DPARI_LANES_ALL8(by);
    int64_t i;
    for (i = 0; i + DPARI_LANES_F <= n; i += DPARI_LANES_F) {
        dpari_lanes_f8 p, q;
        dpari_lanes_get(&p, y + i);
        dpari_lanes_get(&q, x + i);
        p = k * p + w * q;
        dpari_lanes_put(y + i, &p);
    }
    return i;
}
#endif

DPARI_LANES_INLINE void dpari_lanes_scores(double *to, const float *x, const float *row,
                                           int64_t step, int64_t n, int64_t width, double scale,
                                           int wide)
{
    const int64_t whole = width - width % DPARI_LANES_F;
    int64_t i,
        j = DPARI_LANES_WHOLE(wide, dpari_lanes_scores_whole(to, x, row, step, n, width, scale));
    for (; j < n; j++, row += step) {
        float c[DPARI_LANES_F] = {0.0f}, more = 0.0f;
        for (i = 0; i < whole; i++) {
            c[i % DPARI_LANES_F] += x[i] * row[i];
        }
        for (; i < width; i++) {
            more += x[i] * row[i];
        }
        c[0] = ((c[0] + c[4]) + (c[2] + c[6])) + ((c[1] + c[5]) + (c[3] + c[7]));
        to[j] = (double)(c[0] + more) * scale;
    }
}

DPARI_LANES_INLINE void dpari_lanes_mix(float *y, float keep, const float *by, const float *row,
                                        int64_t step, int64_t n, int64_t width, int wide)
{
    int64_t j, c = DPARI_LANES_WHOLE(wide, dpari_lanes_mix_whole(y, keep, by, row, step, n, width));
    for (; c < width; c++) {
        y[c] *= keep;
        for (j = 0; j < n; j++) {
            y[c] += by[j] * row[j * step + c];
        }
    }
}

DPARI_LANES_INLINE void dpari_lanes_add(float *y, float keep, float by, const float *x, int64_t n,
                                        int wide)
{
    int64_t i = DPARI_LANES_WHOLE(wide, dpari_lanes_add_whole(y, keep, by, x, n));
    for (; i < n; i++) {
        y[i] = keep * y[i] + by * x[i];
    }
}

/* ---- 8-bit codes ----------------------------------------------------------------------------- */

#if DPARI_LANES_VECTOR
/* Computes the larger of each |x| and `most`. Compares them as integers, because the bits of |x|
 * are ordered like |x|. */
DPARI_LANES_INLINE void dpari_lanes_sizes(dpari_lanes_i8 *most, const float *x, int wide)
{
    dpari_lanes_i8 p, above;
    dpari_lanes_get(&p, x);
    p &= 0x7fffffff;
#if DPARI_LANES_ASM
    if (wide) { /* in assembly, because gcc would emit two slower instructions */
        __asm__("vpmaxsd %1, %0, %0" : "+x"(*most) : "x"(p));
        return;
    }
#endif
    (void)wide;
    above = p > *most;
    *most = (p & above) | (*most & ~above);
}

DPARI_LANES_INLINE int64_t dpari_lanes_size_whole(uint32_t *most, const float *x, int64_t n,
                                                  int wide)
{
    dpari_lanes_i8 a = DPARI_LANES_ALL8(0), b = a;
    int64_t i;
    int32_t k;
    for (i = 0; i + 2 * DPARI_LANES_F <= n; i += 2 * DPARI_LANES_F) {
        dpari_lanes_sizes(&a, x + i, wide);
        dpari_lanes_sizes(&b, x + i + DPARI_LANES_F, wide);
    }
    dpari_lanes_sizes(&a, (const float *)(const void *)&b, wide);
    for (k = 0; k < DPARI_LANES_F; k++) {
        *most = (uint32_t)a[k] > *most ? (uint32_t)a[k] : *most;
    }
    return i;
}

/* Rounds to signed integers: for |x| below 2^22, adding 1.5 2^23 leaves the rounded integer in the
 * last bits. */
DPARI_LANES_INLINE void dpari_lanes_code_i8(dpari_lanes_i8 *code, const dpari_lanes_f8 *x)
{
    *code = (dpari_lanes_i8)(*x + 12582912.0f) & 0xff;
}

/* Computes codes of F8. Below 2^-6, F8 numbers are multiples of 2^-9. Adding 2^14 leaves the
 * multiple in the last bits. No code exceeds 0x7e, because x exceeds 448 at most by a rounding
 * error. */
DPARI_LANES_INLINE void dpari_lanes_code_f8(dpari_lanes_i8 *code, const dpari_lanes_f8 *x)
{
    const dpari_lanes_i8 bits = (dpari_lanes_i8)*x, size = bits & 0x7fffffff;
    const dpari_lanes_i8 under = (dpari_lanes_i8)((dpari_lanes_f8)size + 16384.0f) & 0xff;
    const dpari_lanes_i8 usual = (size + (0x7ffff - (120 << 23)) + (size >> 20 & 1)) >> 20;
    const dpari_lanes_i8 low = size < 0x3c800000;
    const dpari_lanes_i8 all = (under & low) | (usual & ~low);
    *code = all | (((bits >> 24) & 0x80) & (all != 0));
}

/* Stores 16 integers from 0 to 255 as bytes. dpari_lanes_unpack loads 16 bytes as signed integers.
 */
DPARI_LANES_INLINE void dpari_lanes_pack(unsigned char *to, const dpari_lanes_i8 *x)
{
#if defined(__SSE2__)
    dpari_lanes_w4 a, b, c, d;
    dpari_lanes_h8 low, high;
    dpari_lanes_b16 all;
    __builtin_memcpy(&a, x, 16);
    __builtin_memcpy(&b, (const unsigned char *)x + 16, 16);
    __builtin_memcpy(&c, (const unsigned char *)x + 32, 16);
    __builtin_memcpy(&d, (const unsigned char *)x + 48, 16);
    low = __builtin_ia32_packssdw128(a, b);
    high = __builtin_ia32_packssdw128(c, d);
    all = __builtin_ia32_packuswb128(low, high);
    dpari_lanes_put(to, &all);
#else
    int32_t i;
    for (i = 0; i < 16; i++) {
        to[i] = (unsigned char)x[i / 8][i % 8];
    }
#endif
}

DPARI_LANES_INLINE void dpari_lanes_unpack(dpari_lanes_i8 to[2], const unsigned char *from,
                                           int wide)
{
#if DPARI_LANES_ASM
    const dpari_lanes_b16 none = {0};
    const dpari_lanes_h8 zero = {0};
    dpari_lanes_b16 all;
    dpari_lanes_h8 low, high;
    dpari_lanes_w4 each[4];
    if (wide) {
        __asm__("vpmovsxbd %1, %0" : "=x"(to[0]) : "m"(*(const int64_t *)(const void *)from));
        __asm__("vpmovsxbd %1, %0" : "=x"(to[1]) : "m"(*(const int64_t *)(const void *)(from + 8)));
        return;
    }
    dpari_lanes_get(&all, from); /* below, each byte becomes the highest of a word */
    low = (dpari_lanes_h8)__builtin_ia32_punpcklbw128(none, all);
    high = (dpari_lanes_h8)__builtin_ia32_punpckhbw128(none, all);
    each[0] = (dpari_lanes_w4)__builtin_ia32_punpcklwd128(zero, low) >> 24;
    each[1] = (dpari_lanes_w4)__builtin_ia32_punpckhwd128(zero, low) >> 24;
    each[2] = (dpari_lanes_w4)__builtin_ia32_punpcklwd128(zero, high) >> 24;
    each[3] = (dpari_lanes_w4)__builtin_ia32_punpckhwd128(zero, high) >> 24;
    __builtin_memcpy(to, each, 64);
#else
    int32_t i;
    (void)wide;
    for (i = 0; i < 16; i++) {
        to[i / 8][i % 8] = from[i] < 128 ? (int32_t)from[i] : (int32_t)from[i] - 256;
    }
#endif
}

DPARI_LANES_INLINE void dpari_lanes_sixteen_codes(unsigned char *code, const float *x,
                                                  const dpari_lanes_f8 *scale, int32_t type)
{
    dpari_lanes_f8 p, q;
    dpari_lanes_i8 all[2];
    dpari_lanes_get(&p, x);
    dpari_lanes_get(&q, x + 8);
    p /= *scale;
    q /= *scale;
    if (type == DPAR_I8) {
        dpari_lanes_code_i8(&all[0], &p);
        dpari_lanes_code_i8(&all[1], &q);
    } else {
        dpari_lanes_code_f8(&all[0], &p);
        dpari_lanes_code_f8(&all[1], &q);
    }
    dpari_lanes_pack(code, all);
}

DPARI_LANES_INLINE int64_t dpari_lanes_codes_whole(unsigned char *code, const float *x, float scale,
                                                   int64_t n, int32_t type)
{
    const dpari_lanes_f8 by = DPARI_LANES_ALL8(scale);
    const int64_t whole = n - n % DPARI_LANES_D;
    int64_t i = 0;
    for (; type == DPAR_I8 && i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_codes(code + i, x + i, &by, DPAR_I8);
    }
    for (; i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_codes(code + i, x + i, &by, DPAR_F8);
    }
    return whole;
}

DPARI_LANES_INLINE void dpari_lanes_lesser(dpari_lanes_f8 *x, const dpari_lanes_f8 *y, int wide)
{
#if DPARI_LANES_ASM
    if (wide) {
        __asm__("vminps %1, %0, %0" : "+x"(*x) : "x"(*y));
        return;
    }
#endif
    {
        const dpari_lanes_i8 less = (dpari_lanes_i8)(*y < *x);
        (void)wide;
        *x = (dpari_lanes_f8)(((dpari_lanes_i8)*y & less) | ((dpari_lanes_i8)*x & ~less));
    }
}

/* Computes the values of F8 codes. u is the code with the exponent of an F32. From 2^-6 on the
 * value is u, and below it is 2 u - 2^-6. In both cases it is the smaller of the two. */
DPARI_LANES_INLINE void dpari_lanes_value_f8(dpari_lanes_f8 *x, const dpari_lanes_i8 *code,
                                             int wide)
{
    const dpari_lanes_f8 u = (dpari_lanes_f8)(((*code & 0x7f) + (120 << 3)) << 20);
    *x = u + (u - 1.0f / 64.0f);
    dpari_lanes_lesser(x, &u, wide);
    *x = (dpari_lanes_f8)((dpari_lanes_i8)*x | (*code & INT32_MIN));
}

DPARI_LANES_INLINE void dpari_lanes_value(dpari_lanes_f8 *p, const float *x,
                                          const dpari_lanes_i8 *code, float scale, int32_t type,
                                          int add, int wide)
{
    dpari_lanes_f8 q;
    if (type == DPAR_I8) {
        *p = __builtin_convertvector(*code, dpari_lanes_f8) * scale;
    } else {
        const dpari_lanes_i8 nan = (*code & 0x7f) == 0x7f;
        dpari_lanes_value_f8(p, code, wide);
        *p *= scale;
        *p = (dpari_lanes_f8)(((dpari_lanes_i8)*p & ~nan) | (nan & 0x7fc00000));
    }
    if (add) {
        dpari_lanes_get(&q, x);
        *p = q + *p;
    }
}

/* Computes 16 values. If one of them is NaN, an element of `all` becomes NaN. That may also happen
 * if one is infinite. */
DPARI_LANES_INLINE void dpari_lanes_sixteen_values(float *x, const unsigned char *code, float scale,
                                                   int32_t type, int add, dpari_lanes_f8 *all,
                                                   int wide)
{
    dpari_lanes_i8 c[2];
    dpari_lanes_f8 p, q;
    dpari_lanes_unpack(c, code, wide);
    dpari_lanes_value(&p, x, &c[0], scale, type, add, wide);
    dpari_lanes_value(&q, x + 8, &c[1], scale, type, add, wide);
    dpari_lanes_put(x, &p);
    dpari_lanes_put(x + 8, &q);
    if (add) {
        *all += p + q;
    }
}

/* Computes the values of a block. If one of them may be NaN, an element of `all` becomes NaN. Cases
 * with few operations per element have separate loops. */
DPARI_LANES_INLINE int64_t dpari_lanes_values_whole(float *x, const unsigned char *code,
                                                    float scale, int64_t n, int32_t type, int add,
                                                    float *all, int wide)
{
    const int64_t whole = n - n % DPARI_LANES_D;
    dpari_lanes_f8 nan;
    int64_t i = 0;
    dpari_lanes_get(&nan, all);
    for (; wide && type == DPAR_I8 && !add && i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_values(x + i, code + i, scale, DPAR_I8, 0, &nan, 1);
    }
    for (; wide && type == DPAR_I8 && add && i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_values(x + i, code + i, scale, DPAR_I8, 1, &nan, 1);
    }
    for (; wide && type == DPAR_F8 && !add && i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_values(x + i, code + i, scale, DPAR_F8, 0, &nan, 1);
    }
    for (; i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_values(x + i, code + i, scale, type, add, &nan, wide);
    }
    dpari_lanes_put(all, &nan);
    return whole;
}
#endif

DPARI_LANES_INLINE uint32_t dpari_lanes_size(const float *x, int64_t n, int wide)
{
    uint32_t most = 0, bits;
    int64_t i = DPARI_LANES_WHOLE(wide, dpari_lanes_size_whole(&most, x, n, wide));
    for (; i < n; i++) {
        dpari_elements_bits(&bits, x + i, 4);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most;
}

/* Rounds 0 <= x < 2^31 to the nearest integer, ties to even. */
DPARI_LANES_INLINE uint32_t dpari_lanes_even(float x)
{
    const uint32_t n = (uint32_t)x;
    const float rest = x - (float)n;
    return n + (rest > 0.5f || (!(rest < 0.5f) && n % 2 != 0));
}

/* Returns the code of a number without its sign. */
DPARI_LANES_INLINE uint32_t dpari_lanes_code(float x, int32_t type)
{
    uint32_t bits;
    if (type == DPAR_I8) {
        return x >= 127.0f ? 127 : dpari_lanes_even(x);
    }
    if (x >= 448.0f) {
        return 0x7e;
    }
    if (x < 0.015625f) { /* 2^-6: steps of 2^-9 */
        return dpari_lanes_even(x * 512.0f);
    }
    dpari_elements_bits(&bits, &x, 4);
    return ((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - (120u << 3);
}

DPARI_LANES_INLINE void dpari_lanes_codes(unsigned char *code, const float *x, float scale,
                                          int64_t n, int32_t type, int wide)
{
    int64_t i = DPARI_LANES_WHOLE(wide, dpari_lanes_codes_whole(code, x, scale, n, type));
    for (; i < n; i++) {
        const float y = x[i] / scale;
        const uint32_t c = dpari_lanes_code(y < 0.0f ? -y : y, type);
        const uint32_t less = type == DPAR_I8 ? 256 - c : c + 128;
        code[i] = (unsigned char)(y < 0.0f && c != 0 ? less : c);
    }
}

DPARI_LANES_INLINE float dpari_lanes_number(unsigned char code, int32_t type)
{
    uint32_t bits;
    float x;
    if (type == DPAR_I8) {
        return (float)(code < 128 ? (int32_t)code : (int32_t)code - 256);
    }
    bits = code & 0x7fu;
    if (bits < 8) {
        x = (float)bits / 512.0f;
    } else {
        bits = bits == 0x7f ? 0x7fc00000u : (bits + (120u << 3)) << 20;
        dpari_elements_bits(&x, &bits, 4);
    }
    return code < 128 || bits > 0x7f800000u ? x : -x;
}

/* Computes the values of all blocks, and gives all NaNs the same bits if there may be any. */
DPARI_LANES_INLINE void dpari_lanes_values(float *x, const dpari_lanes_blocks *b, int wide)
{
    const int64_t count = b->count, block = b->block, step = b->code_step;
    const int32_t type = b->type, add = b->add;
    float all[DPARI_LANES_F] = {0.0f}, nan = 0.0f;
    int64_t at, i = 0, k;
    for (at = 0; at < count; at += block, i++) {
        const float scale = dpari_lanes_scale(b, i);
        const unsigned char *code = b->code + i * step;
        const int64_t n = block < count - at ? block : count - at;
        nan += scale - scale;
        k = DPARI_LANES_WHOLE(
            wide, dpari_lanes_values_whole(x + at, code, scale, n, type, add, all, wide));
        for (; k < n; k++) {
            const float v = dpari_lanes_number(code[k], type) * scale;
            x[at + k] = add ? x[at + k] + v : v;
            nan += x[at + k] - x[at + k];
        }
    }
    for (k = 0; k < DPARI_LANES_F; k++) {
        nan += all[k] - all[k];
    }
    if (nan != nan) {
        dpari_elements_quiet(x, count);
    }
}

/* ---- the tables ------------------------------------------------------------------------------ */

/* Defines the functions of a table. The attribute `in` says for which CPU the inlined loops are
 * compiled. */
#define DPARI_LANES_PLAIN
#define DPARI_LANES_LOOP(in, name, result, statement, ...)                                         \
    in static result name(__VA_ARGS__)                                                             \
    {                                                                                              \
        statement;                                                                                 \
    }
#define DPARI_LANES_TABLE(in, table, wide)                                                         \
    DPARI_LANES_LOOP(in, table##_widen, void, dpari_lanes_widen(to, from, n, wide), double *to,    \
                     const float *from, int64_t n)                                                 \
    DPARI_LANES_LOOP(in, table##_thin, void, dpari_lanes_thin(to, from, n, wide), float *to,       \
                     const double *from, int64_t n)                                                \
    DPARI_LANES_LOOP(in, table##_total, double,                                                    \
                     return dpari_lanes_sum(DPARI_LANES_TOTAL, x, x, type, 0.0, n, NULL, wide),    \
                     const void *x, int32_t type, int64_t n)                                       \
    DPARI_LANES_LOOP(in, table##_about, double,                                                    \
                     return dpari_lanes_sum(DPARI_LANES_ABOUT, x, x, type, mean, n, NULL, wide),   \
                     const void *x, int32_t type, double mean, int64_t n)                          \
    DPARI_LANES_LOOP(in, table##_product, double,                                                  \
                     return dpari_lanes_product(x, y, type, mean, n, sum, wide), const void *x,    \
                     const void *y, int32_t type, double mean, int64_t n, double *sum)             \
    DPARI_LANES_LOOP(in, table##_largest, double,                                                  \
                     return dpari_lanes_largest(x, type, most, n, wide), const void *x,            \
                     int32_t type, double most, int64_t n)                                         \
    DPARI_LANES_LOOP(in, table##_line, void, dpari_lanes_map(to, x, NULL, type, by, n, wide),      \
                     void *to, const void *x, int32_t type, const double *by, int64_t n)           \
    DPARI_LANES_LOOP(in, table##_slope, void, dpari_lanes_map(to, x, y, type, by, n, wide),        \
                     void *to, const void *x, const void *y, int32_t type, const double *by,       \
                     int64_t n)                                                                    \
    DPARI_LANES_LOOP(in, table##_exps, double, return dpari_lanes_exps(to, x, type, by, n, wide),  \
                     void *to, const void *x, int32_t type, const double *by, int64_t n)           \
    DPARI_LANES_LOOP(in, table##_logs, void, dpari_lanes_logs(x, n, wide), double *x, int64_t n)   \
    DPARI_LANES_LOOP(in, table##_scores, void,                                                     \
                     dpari_lanes_scores(to, x, row, step, n, width, scale, wide), double *to,      \
                     const float *x, const float *row, int64_t step, int64_t n, int64_t width,     \
                     double scale)                                                                 \
    DPARI_LANES_LOOP(                                                                              \
        in, table##_mix, void, dpari_lanes_mix(y, keep, by, row, step, n, width, wide), float *y,  \
        float keep, const float *by, const float *row, int64_t step, int64_t n, int64_t width)     \
    DPARI_LANES_LOOP(in, table##_add, void, dpari_lanes_add(y, keep, by, x, n, wide), float *y,    \
                     float keep, float by, const float *x, int64_t n)                              \
    DPARI_LANES_LOOP(in, table##_size, uint32_t, return dpari_lanes_size(x, n, wide),              \
                     const float *x, int64_t n)                                                    \
    DPARI_LANES_LOOP(in, table##_codes, void, dpari_lanes_codes(code, x, scale, n, type, wide),    \
                     unsigned char *code, const float *x, float scale, int64_t n, int32_t type)    \
    DPARI_LANES_LOOP(in, table##_values, void, dpari_lanes_values(x, b, wide), float *x,           \
                     const dpari_lanes_blocks *b)                                                  \
    static dpari_lanes table(void)                                                                 \
    {                                                                                              \
        dpari_lanes l; /* with an initializer, compilers would put addresses into data */          \
        l.widen = table##_widen;                                                                   \
        l.thin = table##_thin;                                                                     \
        l.total = table##_total;                                                                   \
        l.about = table##_about;                                                                   \
        l.product = table##_product;                                                               \
        l.largest = table##_largest;                                                               \
        l.line = table##_line;                                                                     \
        l.slope = table##_slope;                                                                   \
        l.exps = table##_exps;                                                                     \
        l.logs = table##_logs;                                                                     \
        l.scores = table##_scores;                                                                 \
        l.mix = table##_mix;                                                                       \
        l.add = table##_add;                                                                       \
        l.size = table##_size;                                                                     \
        l.codes = table##_codes;                                                                   \
        l.values = table##_values;                                                                 \
        return l;                                                                                  \
    }
DPARI_LANES_TABLE(DPARI_LANES_PLAIN, dpari_lanes_usual, 0)
#if DPARI_LANES_ASKED
DPARI_LANES_TABLE(__attribute__((target("avx2"))), dpari_lanes_wide, 1)
#endif

/* With fewer elements the CPU is not queried, because that takes as long as processing some
 * thousands of elements. */
enum { DPARI_LANES_ASKS = 4096 };

DPARI_INTERNAL dpari_lanes dpari_lanes_for(int64_t work)
{
#if DPARI_LANES_ASKED
    if (work >= DPARI_LANES_ASKS && dpari_cpu_wide()) {
        return dpari_lanes_wide();
    }
#endif
    (void)work;
    return dpari_lanes_usual();
}

/* ==== host/block_formats.c ==== */

/* Blocks of the formats for tensor cores (MXFP8, MXFP4, NVFP4) in host memory. Rounding uses
 * integer arithmetic on the bits of F32, which gives the same bits on every machine. layers.h
 * describes the formats. layers.c calls these functions to quantize and dequantize. */

/* Converts elements of another type than F32 into `room`. */
DPARI_STATIC_NOINLINE const float *dpari_quant_narrow(const dpar_mem_quantize *call, int64_t i,
                                                      int64_t n, float *room)
{
    double x[DPARI_ELEMENTS];
    dpari_elements_load(x, call->x, i, n, call->type);
    dpari_elements_store(room, x, 0, n, DPAR_F32);
    return room;
}

DPARI_INTERNAL const float *dpari_quant_read(const dpar_mem_quantize *call, int64_t i, int64_t n,
                                             float *room)
{
    return call->type == DPAR_F32 ? (const float *)call->x + i
                                  : dpari_quant_narrow(call, i, n, room);
}

DPARI_INTERNAL void dpari_quant_give(const dpar_mem_quantize *call, double *x, int64_t i, int64_t n)
{
    double y[DPARI_ELEMENTS];
    int64_t k;
    if (call->accumulate) {
        dpari_elements_load(y, call->x, i, n, call->type);
        for (k = 0; k < n; k++) {
            x[k] = y[k] + x[k];
        }
    }
    dpari_elements_store(call->x, x, i, n, call->type);
}

/* A format: the small floats that are its codes, and the size of its blocks. */
typedef struct dpari_micro {
    uint8_t digits; /* number of fraction bits */
    uint8_t least;  /* biased exponent of the smallest normal number in F32 */
    uint8_t most;   /* unbiased exponent of the largest number */
    uint8_t top;    /* code of the largest number */
    uint8_t bits;   /* number of bits of a code */
    uint8_t block;  /* number of elements of a block */
} dpari_micro;

enum { DPARI_MICRO_NV = 16 }; /* block size of NVFP4, by which this file recognizes the format */

/* Returns the properties of a format: MXFP8 (E4M3, E5M2), MXFP4 (E2M1) or NVFP4 (E2M1). */
static const dpari_micro *dpari_micro_of(int32_t format)
{
    static const dpari_micro all[4] = {{3, 121, 8, 0x7e, 8, 32},
                                       {2, 113, 15, 0x7b, 8, 32},
                                       {1, 127, 2, 7, 4, 32},
                                       {1, 127, 2, 7, 4, 16}};
    return &all[format - DPAR_MEM_MXFP8];
}

DPARI_INTERNAL int dpari_micro_fits(const dpar_mem_quantize *call)
{
    const dpari_micro *f;
    if (call->format < DPAR_MEM_MXFP8 || call->format > DPAR_MEM_NVFP4) {
        return 0;
    }
    f = dpari_micro_of(call->format);
    return call->code_step >= f->block * f->bits / 8 && call->scale_step >= 1 &&
           (call->stochastic == 0 || call->stochastic == 1);
}

DPARI_INTERNAL int64_t dpari_micro_elements(int32_t format)
{
    return dpari_micro_of(format)->block;
}

/* Returns the code of a positive F32 number with the bits `size`. word: a random word for
 * stochastic rounding, or NULL to round to nearest even. The significand is shifted right if the
 * number is below the smallest normal number of the format. Then `cut` bits are cut off. A number
 * that is added before rounds the rest; its carry increments the code and, if needed, the exponent
 * in it. */
static uint32_t dpari_micro_code(const dpari_micro *f, uint32_t size, const uint32_t *word)
{
    const int32_t own = (int32_t)(size >> 23), cut = 23 - f->digits, under = f->least - own;
    int32_t shift = 0;
    uint32_t x = (size & 0x7fffffu) | 0x800000u, code;
    if (under > 0) {
        shift = under < 25 ? under : 25; /* 25 is enough to remove all 24 bits of a significand */
    }
    /* if a 1 is shifted out, the number is not a tie: sets the last bit */
    x = x >> shift | (word == NULL && (x & (((uint32_t)1 << shift) - 1)) != 0);
    x += word != NULL ? *word >> (32 - cut) : ((uint32_t)1 << (cut - 1)) - 1 + (x >> cut & 1u);
    code = ((uint32_t)(under < 0 ? -under : 0) << f->digits) + (x >> cut);
    return code < f->top ? code : f->top;
}

/* Returns the value of a code without its sign. */
static float dpari_micro_value(const dpari_micro *f, uint32_t code)
{
    const uint32_t least = (uint32_t)f->least << 23, under = code >> f->digits == 0;
    uint32_t bits = (code << (23 - f->digits)) + least - (1 - under) * 0x800000u;
    float x, less;
    if (code > f->top) {
        bits = f->digits == 2 && code == 0x7cu ? 0x7f800000u : 0x7fc00000u;
    }
    dpari_elements_bits(&x, &bits, 4);
    dpari_elements_bits(&less, &least, 4);
    return under ? x - less : x;
}

/* Returns the value of a scale, the factor of all elements of a block. */
DPARI_STATIC_NOINLINE float dpari_micro_unit(const dpar_mem_quantize *call, const dpari_micro *f,
                                             uint32_t scale)
{
    uint32_t bits = scale << 23;
    float x;
    if (f->block == DPARI_MICRO_NV) {
        x = dpari_micro_value(dpari_micro_of(DPAR_MEM_MXFP8), scale & 0x7fu);
        return call->tensor != NULL ? x * *call->tensor : x;
    }
    if (scale == 0xffu) {
        bits = 0x7fc00000u; /* NaN */
    } else if (scale == 0) {
        bits = 0x400000u; /* 2^-127, which is subnormal in F32 */
    }
    dpari_elements_bits(&x, &bits, 4);
    return x;
}

/* Returns the scale of a block whose largest |x| has the bits `most`. If that is infinite or NaN,
 * the scale is NaN. */
static uint32_t dpari_micro_scale(const dpar_mem_quantize *call, const dpari_micro *f,
                                  uint32_t most)
{
    const int nv = f->block == DPARI_MICRO_NV;
    float x;
    if (most >= 0x7f800000u) {
        return nv ? 0x7f : 0xff;
    }
    if (!nv) {
        return (uint32_t)dpari_most((int64_t)(most >> 23) - f->most, 0);
    }
    dpari_elements_bits(&x, &most, 4);
    x /= 6.0f;
    if (call->tensor != NULL) {
        x /= *call->tensor;
    }
    dpari_elements_bits(&most, &x, 4);
    return dpari_micro_code(dpari_micro_of(DPAR_MEM_MXFP8), most & 0x7fffffffu, NULL);
}

DPARI_INTERNAL void dpari_micro_block(const dpar_mem_quantize *call, int64_t b)
{
    const dpari_micro *f = dpari_micro_of(call->format);
    const int64_t lo = b * f->block, n = dpari_least(f->block, call->count - lo);
    unsigned char *code = (unsigned char *)call->code + b * call->code_step;
    float room[DPARI_ELEMENTS], by;
    const float *x = dpari_quant_read(call, lo, n, room);
    uint32_t words[4], size, most = 0, scale, c;
    int64_t i;
    for (i = 0; i < n; i++) {
        dpari_elements_bits(&size, &x[i], 4);
        most = (size & 0x7fffffffu) > most ? size & 0x7fffffffu : most;
    }
    scale = dpari_micro_scale(call, f, most);
    ((unsigned char *)call->scale)[b * call->scale_step] = (unsigned char)scale;
    by = dpari_micro_unit(call, f, scale);
    for (i = 0; i < n; i++) {
        const uint64_t at = call->index + (uint64_t)(lo + i);
        const float v = by > 0.0f ? x[i] / by : 0.0f; /* 0 if the scale is 0 or NaN */
        dpari_elements_bits(&size, &v, 4);
        if (call->stochastic && (i == 0 || at % 4 == 0)) {
            dpari_random_block(call->seed, call->stream, at / 4, words);
        }
        c = dpari_micro_code(f, size & 0x7fffffffu, call->stochastic ? &words[at % 4] : NULL);
        c |= c != 0 ? size >> 31 << (f->bits - 1) : 0;
        if (f->bits == 8) {
            code[i] = (unsigned char)c;
        } else {
            code[i / 2] = (unsigned char)(i % 2 == 0 ? c : code[i / 2] | c << 4);
        }
    }
}

DPARI_INTERNAL void dpari_micro_unblock(const dpar_mem_quantize *call, int64_t b)
{
    const dpari_micro *f = dpari_micro_of(call->format);
    const uint32_t nan = 0x7fc00000u, sign = (uint32_t)1 << (f->bits - 1);
    const int64_t lo = b * f->block, n = dpari_least(f->block, call->count - lo);
    const unsigned char *code = (const unsigned char *)call->code + b * call->code_step;
    const float by =
        dpari_micro_unit(call, f, ((const unsigned char *)call->scale)[b * call->scale_step]);
    double x[DPARI_ELEMENTS];
    float v[DPARI_ELEMENTS];
    int64_t i;
    for (i = 0; i < n; i++) {
        const uint32_t c = f->bits == 8 ? code[i] : (uint32_t)code[i / 2] >> i % 2 * 4 & 15u;
        v[i] = dpari_micro_value(f, c & (sign - 1)) * by;
        if (v[i] != v[i]) {
            dpari_elements_bits(&v[i], &nan, 4);
        } else if ((c & sign) != 0) {
            v[i] = -v[i];
        }
    }
    dpari_elements_load(x, v, 0, n, DPAR_F32);
    dpari_quant_give(call, x, lo, n);
}

/* ==== host/layers.c ==== */

/* The operations of layers.h in host memory. Tests compare the results of a device with those of
 * the host's table. Norms are in layers_norm.c, and formats for tensor cores in block_formats.c. */

/* ---- norms of gradients ---------------------------------------------------------------------- */

/* Returns the sum of squares, part by part. */
static double dpari_mem_sum_squares(const void *in, int64_t count, int32_t type)
{
    const dpari_lanes l = dpari_lanes_for(count);
    DPARI_ROW double room[DPARI_ROW_PART];
    double sum = 0.0;
    int32_t as;
    int64_t i;
    for (i = 0; i < count; i += DPARI_ROW_PART) {
        const int64_t n = dpari_least(DPARI_ROW_PART, count - i);
        const void *x = dpari_row_at(&l, in, type, i, n, room, &as);
        sum += l.about(x, as, 0.0, n);
    }
    return sum;
}

DPARI_INTERNAL dpar_status dpari_mem_squares(void *ctx, const dpar_mem_squares *s)
{
    double sum;
    (void)ctx;
    if (s->count < 0 || !dpari_is_float(s->type) || s->sum == NULL ||
        (s->count > 0 && s->in == NULL) || (s->accumulate != 0 && s->accumulate != 1)) {
        return DPAR_E_ARG;
    }
    sum = dpari_mem_sum_squares(s->in, s->count, s->type);
    *s->sum = s->accumulate ? *s->sum + sum : sum;
    return DPAR_OK;
}

static dpar_status dpari_mem_clip(void *ctx, const dpar_mem_clip *c)
{
    (void)ctx;
    if (c->squares == NULL || c->factor == NULL) {
        return DPAR_E_ARG;
    }
    *c->factor = c->scale * dpar_optimizer_clip(dpari_elements_sqrt(*c->squares), c->limit);
    return DPAR_OK;
}

/* ---- optimizers ------------------------------------------------------------------------------ */

DPARI_INTERNAL dpar_status dpari_mem_round(void *ctx, const dpar_mem_round *r)
{
    double x[DPARI_ELEMENTS];
    float f[DPARI_ELEMENTS];
    int64_t i;
    (void)ctx;
    if (r->count < 0 || !dpari_is_float(r->from_type) ||
        (r->count > 0 && (r->to == NULL || r->from == NULL))) {
        return DPAR_E_ARG;
    }
    if (r->from_type == DPAR_F32) { /* without conversion, so that NaNs keep their bits */
        dpari_random_round(r->to, r->from, r->count, r->seed, r->stream, r->index, 16);
        return DPAR_OK;
    }
    for (i = 0; i < r->count; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, r->count - i);
        dpari_elements_load(x, r->from, i, n, r->from_type);
        dpari_elements_store(f, x, 0, n, DPAR_F32);
        dpari_random_round((unsigned char *)r->to + 2 * i, f, n, r->seed, r->stream,
                           r->index + (uint64_t)i, 16);
    }
    return DPAR_OK;
}

/* Computes F32 from BF16 and the 16-bit remainder. dpari_mem_halve does the opposite. It rounds the
 * high half to nearest, so that the remainder is signed. */
static void dpari_mem_join(float *to, const uint16_t *high, const int16_t *low, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const uint32_t bits = ((uint32_t)high[i] << 16) + (uint32_t)(int32_t)low[i];
        dpari_elements_bits(to + i, &bits, 4);
    }
}

static void dpari_mem_halve(uint16_t *high, int16_t *low, const float *from, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        uint32_t bits;
        dpari_elements_bits(&bits, from + i, 4);
        high[i] = (uint16_t)((bits + 0x8000u) >> 16);
        low[i] = (int16_t)((int32_t)(bits & 0x7fffu) - (int32_t)(bits & 0x8000u));
    }
}

/* Updates weights that are stored in two halves. Joins at most DPARI_MOMENT_BLOCK weights at a time
 * to F32, and not weights of different blocks of 8-bit moments. */
static dpar_status dpari_mem_optimize_halves(const dpar_mem_optimize *o, double factor)
{
    const dpar_optimizer_piece *all = o->piece;
    const int64_t size = dpar_type_bytes(all->gradient_type);
    uint16_t *high = (uint16_t *)all->weight;
    float w[DPARI_MOMENT_BLOCK];
    int32_t type = 0;
    dpar_status st = dpar_optimizer_check(o->optimizer, DPAR_F32, NULL, &type, NULL);
    dpar_optimizer_piece p = *all;
    int64_t i;
    for (i = 0; i < all->count && st == DPAR_OK; i += p.count) {
        const int64_t moment = dpari_moment_at(type, all->index, i);
        p.index = all->index + (uint64_t)i;
        p.count = dpari_least(DPARI_MOMENT_BLOCK - (int64_t)(p.index % DPARI_MOMENT_BLOCK),
                              all->count - i);
        p.weight = w;
        p.weight_type = DPAR_F32;
        p.gradient = (const unsigned char *)all->gradient + i * size;
        p.m = all->m == NULL ? NULL : (unsigned char *)all->m + moment;
        p.v = all->v == NULL ? NULL : (unsigned char *)all->v + moment;
        dpari_mem_join(w, high + i, o->remainder + i, p.count);
        st = dpar_optimizer_step(o->optimizer, &p, o->step, o->rate, factor);
        dpari_mem_halve(high + i, o->remainder + i, w, p.count);
    }
    return st;
}

/* Stores a copy of the new weights in copy_type. */
static dpar_status dpari_optimize_copy(const dpar_mem_optimize *o)
{
    const dpar_optimizer_piece *p = o->piece;
    dpar_mem_round r;
    dpar_mem_span s;
    if (o->optimizer->stochastic && o->copy_type == DPAR_BF16) {
        dpari_zero(&r, sizeof r);
        r.to = o->copy;
        r.from = p->weight;
        r.count = p->count;
        r.from_type = p->weight_type;
        r.seed = o->optimizer->seed;
        r.stream = (uint64_t)o->step;
        r.index = p->index;
        return dpari_mem_round(NULL, &r);
    }
    dpari_zero(&s, sizeof s);
    s.to = o->copy;
    s.from = p->weight;
    s.count = p->count;
    s.to_type = o->copy_type;
    s.from_type = p->weight_type;
    s.scale = 1.0;
    return dpari_mem_span(NULL, &s, 1);
}

DPARI_INTERNAL dpar_status dpari_mem_optimize(void *ctx, const dpar_mem_optimize *o)
{
    const dpar_optimizer_piece *p = o->piece;
    const double factor = o->factor_at != NULL ? o->factor * *o->factor_at : o->factor;
    dpar_optimizer_piece none;
    dpar_status st;
    (void)ctx;
    if (p == NULL || o->optimizer == NULL ||
        (o->remainder != NULL &&
         (p->weight_type != DPAR_BF16 || o->optimizer->stochastic || o->copy != NULL))) {
        return DPAR_E_ARG;
    }
    if (o->copy != NULL && o->copy_type != DPAR_BF16 && o->copy_type != DPAR_F16 &&
        o->copy_type != DPAR_F32) {
        return DPAR_E_ARG;
    }
    none = *p;
    /* with a remainder, this step has 0 elements and only checks the arguments */
    none.count = o->remainder != NULL && p->count >= 0 ? 0 : p->count;
    st = dpar_optimizer_step(o->optimizer, &none, o->step, o->rate, factor);
    if (st == DPAR_OK && o->remainder != NULL) {
        st = dpari_mem_optimize_halves(o, factor);
    }
    if (st == DPAR_OK && o->copy != NULL) {
        st = dpari_optimize_copy(o);
    }
    return st;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* True if the fields of an index of `rows` rows are valid. */
static int dpari_mem_index_fits(const dpar_mem_index *x, int64_t rows)
{
    return (x->type == DPAR_I32 || x->type == DPAR_I64) && x->windows >= 0 && x->windows <= 2 &&
           (x->at != NULL || rows == 0);
}

/* Returns at[i] of an index. */
static int64_t dpari_mem_at(const dpar_mem_index *x, int64_t i)
{
    return x->type == DPAR_I32 ? ((const int32_t *)x->at)[i] : ((const int64_t *)x->at)[i];
}

/* Returns the row for a number at[i] of an index; a result below 0 means that there is none. */
DPARI_STATIC_NOINLINE int64_t dpari_mem_row(const dpar_mem_index *x, int64_t number)
{
    int32_t w;
    for (w = 0; w < x->windows; w++) {
        if (number >= x->lo[w] && number < x->hi[w]) {
            return x->row[w] + (number - x->lo[w]);
        }
    }
    return x->windows == 0 ? number : -1;
}

DPARI_INTERNAL dpar_status dpari_mem_gather(void *ctx, const dpar_mem_gather *g)
{
    unsigned char *to = (unsigned char *)g->to;
    int64_t i;
    (void)ctx;
    if (g->rows < 0 || g->bytes < 0 || g->to_step < g->bytes ||
        (g->from_step != 0 && g->from_step < g->bytes) ||
        !dpari_mem_index_fits(&g->index, g->rows) ||
        (g->rows > 0 && g->bytes > 0 && (g->to == NULL || g->from == NULL))) {
        return DPAR_E_ARG;
    }
    for (i = 0; i < g->rows; i++) {
        const int64_t row = dpari_mem_row(&g->index, dpari_mem_at(&g->index, i));
        if (row >= 0) {
            const unsigned char *from = (const unsigned char *)g->from + row * g->from_step;
            dpari_kern_copy(to + i * g->to_step, from, g->bytes, 0);
        } else {
            dpari_zero(to + i * g->to_step, (size_t)g->bytes);
        }
    }
    return DPAR_OK;
}

/* Adds n elements of `from` to `to`, which are F64 or F32. */
static void dpari_mem_add(int32_t type, void *to, int64_t at, const void *from, int64_t from_at,
                          int64_t n)
{
    int64_t i;
    if (type == DPAR_F64) {
        for (i = 0; i < n; i++) {
            ((double *)to)[at + i] += ((const double *)from)[from_at + i];
        }
    } else {
        for (i = 0; i < n; i++) {
            ((float *)to)[at + i] += ((const float *)from)[from_at + i];
        }
    }
}

DPARI_INTERNAL dpar_status dpari_mem_scatter(void *ctx, const dpar_mem_scatter *s)
{
    int64_t i;
    (void)ctx;
    if (s->rows < 0 || s->width < 0 || !dpari_is_wide(s->type) ||
        !dpari_mem_index_fits(&s->index, s->rows) ||
        (s->rows > 0 && s->width > 0 && (s->to == NULL || s->from == NULL))) {
        return DPAR_E_ARG;
    }
    for (i = 0; i < s->rows; i++) {
        const int64_t row = dpari_mem_row(&s->index, dpari_mem_at(&s->index, i));
        if (row >= 0) {
            dpari_mem_add(s->type, s->to, row * s->width, s->from, i * s->width, s->width);
        }
    }
    return DPAR_OK;
}

/* Computes row t of `to`. */
static void dpari_mem_combine_row(const dpar_mem_combine *c, int64_t t)
{
    double x[DPARI_ELEMENTS], sum[DPARI_ELEMENTS];
    int64_t at, n, i, j;
    for (at = 0; at < c->width; at += n) {
        n = dpari_least(c->width - at, DPARI_ELEMENTS);
        dpari_zero(sum, sizeof sum);
        for (j = t * c->choices; j < t * c->choices + c->choices; j++) {
            const int64_t row = dpari_mem_row(&c->index, dpari_mem_at(&c->index, j));
            const double by =
                c->weight == NULL ? 1.0 : dpari_element_get(c->weight, c->weight_type, j);
            if (row >= 0) {
                dpari_elements_load(x, c->from, row * c->width + at, n, c->from_type);
                for (i = 0; i < n; i++) {
                    sum[i] += by * x[i];
                }
            }
        }
        dpari_elements_store(c->to, sum, t * c->width + at, n, c->to_type);
    }
}

DPARI_INTERNAL dpar_status dpari_mem_combine(void *ctx, const dpar_mem_combine *c)
{
    int64_t t;
    (void)ctx;
    if (c->rows < 0 || c->choices < 0 || c->width < 0 || !dpari_is_float(c->to_type) ||
        !dpari_is_float(c->from_type) || (c->weight != NULL && !dpari_is_wide(c->weight_type)) ||
        !dpari_mem_index_fits(&c->index, c->choices == 0 ? 0 : c->rows) ||
        (c->rows > 0 && c->width > 0 && (c->to == NULL || (c->from == NULL && c->choices > 0)))) {
        return DPAR_E_ARG;
    }
    for (t = 0; t < c->rows; t++) {
        dpari_mem_combine_row(c, t);
    }
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_mem_dot(void *ctx, const dpar_mem_dot *d)
{
    DPARI_ROW double a[DPARI_ROW_PART], b[DPARI_ROW_PART];
    const void *x, *y;
    dpari_lanes l;
    int32_t as;
    int64_t i, n, at;
    (void)ctx;
    if (d->rows < 0 || d->choices < 1 || d->width < 0 || !dpari_is_wide(d->to_type) ||
        !dpari_is_float(d->type) ||
        (d->index.at != NULL && !dpari_mem_index_fits(&d->index, d->rows)) ||
        (d->rows > 0 && (d->to == NULL || (d->width > 0 && (d->a == NULL || d->b == NULL))))) {
        return DPAR_E_ARG;
    }
    l = dpari_lanes_for(d->rows * d->width);
    for (i = 0; i < d->rows; i++) {
        const int64_t row =
            d->index.at == NULL ? i : dpari_mem_row(&d->index, dpari_mem_at(&d->index, i));
        double sum = 0.0;
        for (at = 0; at < d->width && row >= 0; at += n) {
            n = dpari_least(DPARI_ROW_PART, d->width - at);
            x = dpari_row_at(&l, d->a, d->type, i / d->choices * d->width + at, n, a, &as);
            y = dpari_row_at(&l, d->b, d->type, row * d->width + at, n, b, &as);
            sum += l.product(x, y, as, 0.0, n, NULL);
        }
        dpari_element_put(d->to, d->to_type, i, sum);
    }
    return DPAR_OK;
}

/* ---- cross-entropy --------------------------------------------------------------------------- */

/* True if a token with this target is counted in the loss. */
static int dpari_entropy_counts(const dpar_mem_cross_entropy *loss, int64_t target)
{
    return target >= 0 && (loss->ignore == 0 || target != loss->ignore - 1);
}

/* Returns the address of a logit. */
static void *dpari_entropy_at(const dpar_mem_cross_entropy *loss, int64_t at)
{
    return (unsigned char *)loss->logits + at * dpar_type_bytes(loss->type);
}

/* Updates *most with the largest of logits lo .. hi - 1, and adds these logits to *sum. *first: 1
 * if *most has no value yet; set to 0. */
static void dpari_entropy_largest(const dpari_lanes *lanes, const dpar_mem_cross_entropy *loss,
                                  int64_t lo, int64_t hi, int *first, double *most, double *sum)
{
    for (; lo < hi; lo += DPARI_ROW_PART) {
        const int64_t some = dpari_least(DPARI_ROW_PART, hi - lo);
        const void *x = dpari_entropy_at(loss, lo);
        *most = lanes->largest(x, loss->type, *first ? dpari_element_get(x, loss->type, 0) : *most,
                               some);
        *first = 0;
        *sum += lanes->total(x, loss->type, some);
    }
}

/* Returns the sum of e^(logit - most) over logits lo .. hi - 1. */
static double dpari_entropy_below(const dpari_lanes *lanes, const dpar_mem_cross_entropy *loss,
                                  int64_t lo, int64_t hi, double most)
{
    const double by[3] = {most, 1.0, 0.0};
    double sum = 0.0;
    for (; lo < hi; lo += DPARI_ROW_PART) {
        sum += lanes->exps(NULL, dpari_entropy_at(loss, lo), loss->type, by,
                           dpari_least(DPARI_ROW_PART, hi - lo));
    }
    return sum;
}

/* Computes the three numbers of a token on this rank: the largest logit, the sum of exponentials
 * relative to it, and this rank's part of the number that the loss subtracts from lse. Smoothing is
 * linear in the logits, so it is included in the third number. */
static void dpari_entropy_part(const dpari_lanes *lanes, const dpar_mem_cross_entropy *loss,
                               int64_t token)
{
    const int64_t at = token * loss->rows;
    const int64_t row = dpari_mem_row(&loss->target, dpari_mem_at(&loss->target, token));
    double most = 0.0, sum = 0.0, below = 0.0, own = 0.0;
    int first = 1;
    int32_t w;
    for (w = 0; w < 2; w++) {
        dpari_entropy_largest(lanes, loss, at + loss->lo[w], at + loss->hi[w], &first, &most, &sum);
    }
    for (w = 0; w < 2; w++) { /* relative to 0 if all logits are -infinity, so that sums are 0 */
        below += dpari_entropy_below(lanes, loss, at + loss->lo[w], at + loss->hi[w],
                                     most < -1.7e308 ? 0.0 : most);
    }
    if (row >= 0) {
        own = (1.0 - loss->smoothing) * dpari_element_get(loss->logits, loss->type, at + row);
    }
    if (loss->smoothing > 0.0) { /* without smoothing this could be 0 x infinity */
        own += loss->smoothing / (double)loss->vocabulary * sum;
    }
    dpari_element_put(loss->partial, loss->type, 3 * token, most);
    dpari_element_put(loss->partial, loss->type, 3 * token + 1, below);
    dpari_element_put(loss->partial, loss->type, 3 * token + 2, own);
}

/* Returns lse of a token, computed from the numbers of all ranks, or NaN if no rank has an
 * exponential above 0. Sets *subtracted to the number that the loss subtracts from lse. */
static double dpari_entropy_unite(const dpar_mem_cross_entropy *loss, int64_t token,
                                  double *subtracted)
{
    double most = 0.0, sum = 0.0, own = 0.0;
    int first = 1;
    int32_t r;
    for (r = 0; r < loss->ranks; r++) {
        const int64_t at = 3 * (r * loss->tokens + token);
        const double m = dpari_element_get(loss->all, loss->type, at);
        own += dpari_element_get(loss->all, loss->type, at + 2);
        if (!(dpari_element_get(loss->all, loss->type, at + 1) <= 0.0) && (first || m > most)) {
            most = m;
            first = 0;
        }
    }
    for (r = 0; r < loss->ranks; r++) {
        const int64_t at = 3 * (r * loss->tokens + token);
        const double s = dpari_element_get(loss->all, loss->type, at + 1);
        if (!(s <= 0.0)) {
            sum += s * dpari_exp(dpari_element_get(loss->all, loss->type, at) - most);
        }
    }
    *subtracted = own;
    return sum > 0.0 ? most + dpari_log(sum) : sum / sum;
}

static void dpari_entropy_loss(const dpar_mem_cross_entropy *loss)
{
    dpar_cross_entropy_sum made;
    double subtracted;
    int64_t i;
    dpari_zero(&made, sizeof made);
    for (i = 0; i < loss->tokens; i++) {
        const int counts = dpari_entropy_counts(loss, dpari_mem_at(&loss->target, i));
        const double lse = dpari_entropy_unite(loss, i, &subtracted);
        loss->lse[i] = lse;
        if (loss->loss != NULL) {
            loss->loss[i] = counts ? lse - subtracted + loss->z_loss * lse * lse : 0.0;
        }
        made.loss += counts ? lse - subtracted : 0.0;
        made.z_loss += counts ? loss->z_loss * lse * lse : 0.0;
        made.tokens += counts;
    }
    if (loss->sum != NULL) {
        *loss->sum = made;
    }
}

/* Replaces logits lo .. hi - 1 of a token by scale ((1 + 2 z_loss lse) exp(logit - lse) - smoothing
 * / V). by: lse, scale (1 + 2 z_loss lse), -scale smoothing / V. */
static void dpari_entropy_run(const dpari_lanes *lanes, const dpar_mem_cross_entropy *loss,
                              int64_t lo, int64_t hi, const double *by)
{
    if (lo < hi) {
        (void)lanes->exps(dpari_entropy_at(loss, lo), dpari_entropy_at(loss, lo), loss->type, by,
                          hi - lo);
    }
}

/* Replaces the logits of a token by their gradient. Columns that are padding become 0. */
static void dpari_entropy_gradient(const dpari_lanes *lanes, const dpar_mem_cross_entropy *loss,
                                   int64_t token)
{
    const int64_t bytes = dpar_type_bytes(loss->type), at = token * loss->rows;
    const int64_t target = dpari_mem_at(&loss->target, token),
                  row = dpari_mem_row(&loss->target, target);
    const int counts = dpari_entropy_counts(loss, target);
    const double smooth = loss->scale * loss->smoothing / (double)dpari_most(1, loss->vocabulary);
    const double lse = loss->lse[token], factor = loss->scale * (1.0 + 2.0 * loss->z_loss * lse);
    double hot = row >= 0 ? dpari_element_get(loss->logits, loss->type, at + row) : 0.0;
    unsigned char *line = (unsigned char *)loss->logits + at * bytes;
    const double by[3] = {lse, factor, -smooth};
    int64_t done = 0; /* number of columns that were written */
    int32_t w;
    for (w = 0; w < 2; w++) {
        const int64_t lo = loss->lo[w], hi = counts ? loss->hi[w] : lo;
        dpari_zero(line + done * bytes, (size_t)((lo - done) * bytes));
        dpari_entropy_run(lanes, loss, at + lo, at + hi, by);
        done = hi;
    }
    dpari_zero(line + done * bytes, (size_t)((loss->rows - done) * bytes));
    if (row >= 0 && counts) { /* computed from the logit in f64, because the terms nearly cancel */
        hot = factor * dpari_exp(hot - lse) - smooth - loss->scale * (1.0 - loss->smoothing);
        dpari_element_put(loss->logits, loss->type, at + row, hot);
    }
}

static int dpari_entropy_fits(const dpar_mem_cross_entropy *loss)
{
    const int some = loss->tokens > 0, wide = some && loss->rows > 0;
    if (loss->tokens < 0 || loss->rows < 0 || !dpari_is_wide(loss->type) || loss->lo[0] < 0 ||
        loss->hi[0] < loss->lo[0] || loss->lo[1] < loss->hi[0] || loss->hi[1] < loss->lo[1] ||
        loss->hi[1] > loss->rows || !dpari_mem_index_fits(&loss->target, loss->tokens) ||
        !(loss->smoothing >= 0.0) || loss->smoothing > 1.0) {
        return 0;
    }
    switch (loss->phase) {
    case DPAR_MEM_CROSS_ENTROPY_PART:
        return !(wide && loss->logits == NULL) && !(some && loss->partial == NULL);
    case DPAR_MEM_CROSS_ENTROPY_LOSS:
        return loss->ranks > 0 && !(some && (loss->all == NULL || loss->lse == NULL));
    case DPAR_MEM_CROSS_ENTROPY_GRADIENT:
        return !(wide && loss->logits == NULL) && !(some && loss->lse == NULL);
    default: return 0;
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_mem_cross_entropy(void *ctx,
                                                              const dpar_mem_cross_entropy *loss)
{
    dpari_lanes l;
    int64_t i;
    (void)ctx;
    if (!dpari_entropy_fits(loss)) {
        return DPAR_E_ARG;
    }
    if (loss->phase == DPAR_MEM_CROSS_ENTROPY_LOSS) {
        dpari_entropy_loss(loss);
        return DPAR_OK;
    }
    l = dpari_lanes_for(loss->tokens * loss->rows);
    for (i = 0; i < loss->tokens; i++) {
        if (loss->phase == DPAR_MEM_CROSS_ENTROPY_PART) {
            dpari_entropy_part(&l, loss, i);
        } else {
            dpari_entropy_gradient(&l, loss, i);
        }
    }
    return DPAR_OK;
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Merges rows i .. i + rows - 1 into out and lse. less[k] is e^(smaller lse - larger lse), and
 * more[k] is log(1 + less[k]). */
static void dpari_merge_rows(const dpari_lanes *lanes, const dpar_mem_attention_merge *m, int64_t i,
                             int64_t rows)
{
    const double nothing = -1e30; /* the lse of a query that sees no key is at most this */
    const double by[3] = {0.0, 1.0, 0.0};
    const int64_t bytes = m->values * dpar_type_bytes(m->type);
    DPARI_ROW double less[DPARI_ROW_PART], more[DPARI_ROW_PART];
    int64_t k;
    less[0] = 0.0; /* gcc -O1 does not see that rows is above 0, and warns */
    for (k = 0; k < rows; k++) {
        const double a = dpari_element_get(m->lse, m->type, i + k);
        const double b = dpari_element_get(m->more_lse, m->type, i + k);
        less[k] = a > b ? b - a : a - b;
    }
    (void)lanes->exps(less, less, DPAR_F64, by, rows);
    dpari_kern_copy(more, less, rows * 8, 0);
    lanes->logs(more, rows);
    for (k = 0; k < rows; k++) {
        const double a = dpari_element_get(m->lse, m->type, i + k);
        const double b = dpari_element_get(m->more_lse, m->type, i + k);
        const double larger = 1.0 / (1.0 + less[k]), lesser = less[k] / (1.0 + less[k]);
        unsigned char *y = (unsigned char *)m->out + (i + k) * bytes;
        const unsigned char *x = (const unsigned char *)m->more + (i + k) * bytes;
        if (a <= nothing && !(b <= nothing)) {
            dpari_kern_copy(y, x, bytes, 0);
            dpari_element_put(m->lse, m->type, i + k, b);
        } else if (!(b <= nothing)) { /* also if b is NaN, which must not be lost */
            const double own = a > b ? larger : lesser;
            const double added = a > b ? lesser : larger;
            dpari_row_add(lanes, m->type, y, own, added, x, m->values);
            dpari_element_put(m->lse, m->type, i + k, (a > b ? a : b) + more[k]);
        }
    }
}

DPARI_INTERNAL dpar_status dpari_mem_attention_merge(void *ctx, const dpar_mem_attention_merge *m)
{
    dpari_lanes l;
    int64_t i;
    (void)ctx;
    if (!dpari_is_wide(m->type) || m->rows < 0 || m->values < 0 ||
        (m->rows > 0 && (m->lse == NULL || m->more_lse == NULL)) ||
        (m->rows > 0 && m->values > 0 && (m->out == NULL || m->more == NULL))) {
        return DPAR_E_ARG;
    }
    l = dpari_lanes_for(m->rows * m->values);
    for (i = 0; i < m->rows; i += DPARI_ROW_PART) {
        dpari_merge_rows(&l, m, i, dpari_least(DPARI_ROW_PART, m->rows - i));
    }
    return DPAR_OK;
}

/* ---- 8 bits ---------------------------------------------------------------------------------- */

/* Returns the scale for elements lo .. hi - 1. */
static float dpari_quant_scale(const dpari_lanes *lanes, const dpar_mem_quantize *call, int64_t lo,
                               int64_t hi)
{
    const uint32_t nan = 0x7fc00000u;
    float room[DPARI_ELEMENTS], scale;
    uint32_t most = 0;
    int64_t i;
    for (i = lo; i < hi; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, hi - i);
        const uint32_t size = lanes->size(dpari_quant_read(call, i, n, room), n);
        most = size > most ? size : most;
    }
    dpari_elements_bits(&scale, most < 0x7f800000u ? &most : &nan, 4);
    scale /= call->code_type == DPAR_I8 ? 127.0f : 448.0f;
    return scale < 1.1754944e-38f ? 0.0f : scale;
}

/* Quantizes block b. */
static void dpari_quant_block(const dpari_lanes *lanes, const dpar_mem_quantize *call, int64_t b)
{
    const int64_t lo = b * call->block, hi = dpari_least(lo + call->block, call->count);
    const float scale = dpari_quant_scale(lanes, call, lo, hi);
    unsigned char *code = (unsigned char *)call->code + b * call->code_step;
    float room[DPARI_ELEMENTS];
    int64_t i;
    dpari_elements_bits((unsigned char *)call->scale + b * call->scale_step, &scale, 4);
    if (!(scale > 0.0f)) {
        dpari_zero(code, (size_t)(hi - lo));
        return;
    }
    for (i = lo; i < hi; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, hi - i);
        lanes->codes(code + (i - lo), dpari_quant_read(call, i, n, room), scale, n,
                     call->code_type);
    }
}

/* Returns the codes and scales of a call in the form of vector_loops.h. */
static dpari_lanes_blocks dpari_quant_blocks(const dpar_mem_quantize *call)
{
    dpari_lanes_blocks b;
    b.code = (const unsigned char *)call->code;
    b.scale = (const unsigned char *)call->scale;
    b.code_step = call->code_step;
    b.scale_step = call->scale_step;
    b.block = call->block;
    b.count = call->count;
    b.type = call->code_type;
    b.add = call->accumulate;
    return b;
}

/* Dequantizes block b into a type other than F32. */
DPARI_STATIC_NOINLINE void dpari_quant_values(const dpari_lanes *lanes,
                                              const dpar_mem_quantize *call, int64_t b)
{
    const int64_t lo = b * call->block, hi = dpari_least(lo + call->block, call->count);
    dpari_lanes_blocks part = dpari_quant_blocks(call);
    double x[DPARI_ELEMENTS];
    float v[DPARI_ELEMENTS];
    int64_t i;
    part.code += b * call->code_step;
    part.scale += b * call->scale_step;
    part.add = 0;
    for (i = lo; i < hi; i += DPARI_ELEMENTS, part.code += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, hi - i);
        part.block = part.count = n;
        lanes->values(v, &part);
        lanes->widen(x, v, n);
        dpari_quant_give(call, x, i, n);
    }
}

static int dpari_quant_fits(const dpar_mem_quantize *call)
{
    if (call->count < 0 || !dpari_is_float(call->type) ||
        (call->accumulate != 0 && call->accumulate != 1) ||
        (call->count > 0 && (call->x == NULL || call->code == NULL || call->scale == NULL))) {
        return 0;
    }
    if (call->format != 0) {
        return dpari_micro_fits(call);
    }
    return call->block >= 1 && (call->code_type == DPAR_I8 || call->code_type == DPAR_F8) &&
           call->code_step >= call->block && call->scale_step >= 4 && call->scale_step % 4 == 0;
}

/* Returns the number of blocks. */
static int64_t dpari_quant_count(const dpar_mem_quantize *call)
{
    return dpari_ceil_div(call->count,
                          call->format != 0 ? dpari_micro_elements(call->format) : call->block);
}

DPARI_INTERNAL dpar_status dpari_mem_quantize(void *ctx, const dpar_mem_quantize *call)
{
    dpari_lanes l;
    int64_t b, blocks;
    (void)ctx;
    if (!dpari_quant_fits(call) || call->accumulate) {
        return DPAR_E_ARG;
    }
    l = dpari_lanes_for(call->count);
    blocks = dpari_quant_count(call);
    for (b = 0; b < blocks; b++) {
        if (call->format != 0) {
            dpari_micro_block(call, b);
        } else {
            dpari_quant_block(&l, call, b);
        }
    }
    return DPAR_OK;
}

/* Dequantizes. F32 is accumulated in f32, which gives the same bits as in f64: if the sum of two
 * F32 numbers is computed in f64 and then rounded, it equals their sum in f32 (Figueroa 1995). */
DPARI_INTERNAL dpar_status dpari_mem_dequantize(void *ctx, const dpar_mem_quantize *call)
{
    dpari_lanes l;
    dpari_lanes_blocks all;
    int64_t b, blocks;
    (void)ctx;
    if (!dpari_quant_fits(call)) {
        return DPAR_E_ARG;
    }
    l = dpari_lanes_for(call->count);
    blocks = dpari_quant_count(call);
    if (call->type == DPAR_F32 && call->format == 0) {
        all = dpari_quant_blocks(call);
        l.values((float *)call->x, &all);
        return DPAR_OK;
    }
    for (b = 0; b < blocks; b++) {
        if (call->format != 0) {
            dpari_micro_unblock(call, b);
        } else {
            dpari_quant_values(&l, call, b);
        }
    }
    return DPAR_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_mem_layers dpar_mem_host_layers(void)
{
    dpar_mem_layers l;
    l.squares = dpari_mem_squares;
    l.clip = dpari_mem_clip;
    l.optimize = dpari_mem_optimize;
    l.round = dpari_mem_round;
    l.gather = dpari_mem_gather;
    l.scatter = dpari_mem_scatter;
    l.combine = dpari_mem_combine;
    l.dot = dpari_mem_dot;
    l.cross_entropy = dpari_mem_cross_entropy;
    l.attention_merge = dpari_mem_attention_merge;
    l.moments = dpari_mem_moments;
    l.norm = dpari_mem_norm;
    l.quantize = dpari_mem_quantize;
    l.dequantize = dpari_mem_dequantize;
    return l;
}

/* ==== host/layers_norm.c ==== */

/* Moments and norms in host memory. A plane is processed row by row and in parts of a fixed size.
 * The moments of a part take two passes, one for the mean and one for the squared deviations from
 * it, and the parts are merged in order. Therefore large numbers do not cancel, and the bits depend
 * only on the sizes. */

/* ---- moments --------------------------------------------------------------------------------- */

/* Copies like memcpy, but faster for short rows. Reads four elements before it writes them, so that
 * compilers use vectors although `to` may be `from`. */
static void dpari_moments_copy(double *to, const double *from, int64_t count)
{
    int64_t i;
    for (i = 0; i + 4 <= count; i += 4) {
        const double a = from[i], b = from[i + 1], c = from[i + 2], d = from[i + 3];
        to[i] = a;
        to[i + 1] = b;
        to[i + 2] = c;
        to[i + 3] = d;
    }
    for (; i < count; i++) {
        to[i] = from[i];
    }
}

/* Reads `count` elements at, at + step, ... of x (F64, F32, BF16 or F16) as doubles. */
static void dpari_row_read(const dpari_lanes *lanes, const void *x, int32_t type, int64_t at,
                           int64_t step, int64_t count, double *to)
{
    int64_t i;
    if (type == DPAR_F64 && step == 1) {
        dpari_moments_copy(to, (const double *)x + at, count);
    } else if (type == DPAR_F64) {
        const double *from = (const double *)x + at;
        for (i = 0; i < count; i++) {
            to[i] = from[i * step];
        }
    } else if (type == DPAR_F32 && step == 1) {
        lanes->widen(to, (const float *)x + at, count);
    } else if (type == DPAR_F32) {
        const float *from = (const float *)x + at;
        for (i = 0; i < count; i++) {
            to[i] = (double)from[i * step];
        }
    } else {
        const int64_t most = step == 1 ? DPARI_ELEMENTS : 1;
        for (i = 0; i < count; i += most) {
            dpari_elements_load(to + i, x, at + i * step, dpari_least(most, count - i), type);
        }
    }
}

DPARI_INTERNAL DPARI_NOINLINE const void *dpari_row_at(const dpari_lanes *lanes, const void *x,
                                                       int32_t type, int64_t at, int64_t count,
                                                       double *room, int32_t *as)
{
    if (dpari_is_wide(type)) {
        *as = type;
        return (const unsigned char *)x + at * dpar_type_bytes(type);
    }
    *as = DPAR_F64;
    dpari_row_read(lanes, x, type, at, 1, count, room);
    return room;
}

DPARI_INTERNAL void dpari_row_add(const dpari_lanes *lanes, int32_t type, void *to, double keep,
                                  double scale, const void *from, int64_t n)
{
    int64_t i;
    if (type == DPAR_F64) {
        double *y = (double *)to;
        const double *x = (const double *)from;
        for (i = 0; i < n; i++) {
            y[i] = keep * y[i] + scale * x[i];
        }
    } else {
        lanes->add((float *)to, (float)keep, (float)scale, (const float *)from, n);
    }
}

/* Merges the moments of set b into those of set a (Chan, Golub, LeVeque). Counts may be 0. */
static void dpari_moments_merge(dpar_moments *a, const dpar_moments *b)
{
    const double n = a->count + b->count, delta = b->mean - a->mean;
    if (b->count <= 0.0) {
        return;
    }
    if (a->count <= 0.0) {
        *a = *b;
        return;
    }
    a->mean += delta * (b->count / n);
    a->m2 += b->m2 + delta * delta * (a->count * b->count / n);
    a->count = n;
}

/* Elements of a plane that were read but are not yet merged into `to`. */
typedef struct dpari_moments_held {
    DPARI_ROW double part[DPARI_ROW_PART];
    int64_t count;
    dpar_moments *to;
} dpari_moments_held;

/* Computes the moments of the elements in h in two passes, so that the mean that is subtracted is
 * close to the elements, and merges them. */
static void dpari_moments_flush(const dpari_lanes *lanes, dpari_moments_held *h)
{
    dpar_moments one;
    if (h->count > 0) {
        one.count = (double)h->count;
        one.mean = lanes->total(h->part, DPAR_F64, h->count) / one.count;
        one.m2 = lanes->about(h->part, DPAR_F64, one.mean, h->count);
        dpari_moments_merge(h->to, &one);
    }
    h->count = 0;
}

/* Reads a row into h, and merges each full part. */
static void dpari_moments_row(const dpari_lanes *lanes, const dpar_mem_moments *m, int64_t at,
                              int64_t step, int64_t count, dpari_moments_held *h)
{
    int64_t k, some;
    for (k = 0; k < count; k += some) {
        some = dpari_least(DPARI_ROW_PART - h->count, count - k);
        dpari_row_read(lanes, m->x, m->type, at + k * step, step, some, h->part + h->count);
        h->count += some;
        if (h->count == DPARI_ROW_PART) {
            dpari_moments_flush(lanes, h);
        }
    }
}

/* Computes the moments of a plane, row by row along the last dim. */
static void dpari_moments_plane(const dpari_lanes *lanes, const dpar_mem_moments *m, int64_t plane,
                                dpar_moments *to)
{
    const int32_t last = m->dims - 1;
    const int64_t step = last >= 0 ? m->stride[last] : 0;
    const int64_t count = last >= 0 ? m->extent[last] : 1;
    int64_t at[DPAR_MAX_DIMS], first = plane * m->step;
    dpari_moments_held held;
    int32_t d;
    for (d = 0; d < m->dims; d++) {
        if (m->extent[d] == 0) {
            return;
        }
        at[d] = 0;
    }
    held.count = 0;
    held.to = to;
    do {
        dpari_moments_row(lanes, m, first, step, count, &held);
        for (d = last - 1; d >= 0; d--) {
            first += m->stride[d];
            if (++at[d] < m->extent[d]) {
                break;
            }
            first -= m->stride[d] * m->extent[d];
            at[d] = 0;
        }
    } while (d >= 0);
    dpari_moments_flush(lanes, &held);
}

/* Returns the set that a plane belongs to: its channel, or the group of its sample. */
static int64_t dpari_norm_set(int64_t channels, int64_t groups, int64_t plane)
{
    const int64_t channel = plane % channels;
    return groups == 0 ? channel : plane / channels * groups + channel / (channels / groups);
}

/* Returns the number of points of a plane. */
static int64_t dpari_layer_points(const int64_t *extent, int32_t dims)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < dims; d++) {
        n *= extent[d];
    }
    return n;
}

/* True if the fields of the call are valid. */
static int dpari_moments_fits(const dpar_mem_moments *m, int64_t sets)
{
    int64_t points = 1;
    int32_t d;
    for (d = 0; d < m->dims && m->dims <= DPAR_MAX_DIMS; d++) {
        if (m->extent[d] < 0) {
            return 0;
        }
        points = m->extent[d] == 0 ? 0 : points;
    }
    return dpari_is_float(m->type) && m->dims >= 0 && m->dims <= DPAR_MAX_DIMS &&
           (m->accumulate == 0 || m->accumulate == 1) &&
           !(m->planes > 0 && points > 0 && m->x == NULL) && !(sets > 0 && m->to == NULL);
}

DPARI_INTERNAL dpar_status dpari_mem_moments(void *ctx, const dpar_mem_moments *m)
{
    dpar_moments *to = (dpar_moments *)(void *)m->to;
    dpari_lanes l;
    int64_t p, sets;
    (void)ctx;
    if (m->planes < 0 || m->channels < 1 || m->groups < 0 || m->planes % m->channels != 0 ||
        (m->groups > 0 && m->channels % m->groups != 0)) {
        return DPAR_E_ARG;
    }
    sets = m->groups == 0 ? m->channels : m->planes / m->channels * m->groups;
    if (!dpari_moments_fits(m, sets)) {
        return DPAR_E_ARG;
    }
    l = dpari_lanes_for(m->planes * dpari_layer_points(m->extent, m->dims));
    if (!m->accumulate) {
        dpari_zero(to, (size_t)sets * sizeof *to);
    }
    for (p = 0; p < m->planes; p++) {
        dpari_moments_plane(&l, m, p, &to[dpari_norm_set(m->channels, m->groups, p)]);
    }
    return DPAR_OK;
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* Returns the scale of the channel of a plane. */
static double dpari_norm_scale(const dpar_mem_norm *call, int64_t plane)
{
    return call->scale != NULL ? dpari_element_get(call->scale, call->type, plane % call->channels)
                               : 1.0;
}

/* Advances `at` to the next row of a plane. Returns 0 at the end. */
static int dpari_norm_row(const dpar_mem_norm *call, int64_t *at)
{
    int32_t d;
    for (d = call->dims - 2; d >= 0; d--) {
        if (++at[d] < call->extent[d]) {
            return 1;
        }
        at[d] = 0;
    }
    return 0;
}

/* Returns the element at which a row begins. */
static int64_t dpari_norm_at(const dpar_mem_norm *call, const dpar_mem_planes *p, int64_t plane,
                             const int64_t *at)
{
    int64_t first = plane * p->step;
    int32_t d;
    for (d = 0; d + 1 < call->dims; d++) {
        first += at[d] * p->stride[d];
    }
    return first;
}

/* Returns the elements from one point of a row to the next. */
static int64_t dpari_norm_step(const dpar_mem_norm *call, const dpar_mem_planes *p)
{
    return call->dims > 0 ? p->stride[call->dims - 1] : 0;
}

/* Sets `at` to the first row. Returns the length of a row, or 0 if the plane has no points. */
static int64_t dpari_norm_rows(const dpar_mem_norm *call, int64_t *at)
{
    dpari_zero(at, DPAR_MAX_DIMS * sizeof *at);
    if (dpari_layer_points(call->extent, call->dims) == 0) {
        return 0;
    }
    return call->dims > 0 ? call->extent[call->dims - 1] : 1;
}

/* Returns `count` elements of a row from element `at` on. If direct is 1 the result is their
 * address, otherwise `room`, which receives them converted to F64. */
static const void *dpari_norm_read(const dpari_lanes *lanes, const dpar_mem_norm *call,
                                   const dpar_mem_planes *p, int64_t at, int64_t count, int direct,
                                   double *room)
{
    if (direct) {
        return (const unsigned char *)p->data + at * dpar_type_bytes(call->type);
    }
    dpari_row_read(lanes, p->data, call->type, at, dpari_norm_step(call, p), count, room);
    return room;
}

/* Stores `count` numbers in the elements of call->to from `at` on. */
static void dpari_norm_write(const dpar_mem_norm *call, int64_t at, int64_t count,
                             const double *from)
{
    const int64_t step = dpari_norm_step(call, &call->to);
    int64_t i;
    for (i = 0; i < count; i++) {
        dpari_element_put(call->to.data, call->type, at + i * step, from[i]);
    }
}

/* Merges the moments of all ranks, and saves the mean and 1 / (standard deviation) of each set. */
static void dpari_norm_merge(const dpar_mem_norm *call, int64_t sets)
{
    int64_t i;
    int32_t r;
    for (i = 0; i < sets; i++) {
        dpar_moments all;
        dpari_zero(&all, sizeof all);
        for (r = 0; r < call->ranks; r++) {
            const double *one = call->all + 3 * (r * sets + i);
            dpar_moments part;
            part.count = one[0];
            part.mean = one[1];
            part.m2 = one[2];
            dpari_moments_merge(&all, &part);
        }
        call->saved[2 * i] = all.mean;
        call->saved[2 * i + 1] =
            1.0 / dpari_sqrt(all.m2 / dpari_mostf(all.count, 1.0) + call->epsilon);
    }
}

/* Computes the factors of `line` (APPLY) or `slope` (SUMS, GRADIENT) for a plane. */
static void dpari_norm_factors(const dpar_mem_norm *call, int64_t plane, double *by)
{
    const int64_t set = dpari_norm_set(call->channels, call->groups, plane);
    const double mean = call->saved[2 * set], inverse = call->saved[2 * set + 1];
    const double scale = dpari_norm_scale(call, plane);
    by[0] = inverse;
    by[1] = scale;
    by[2] = 0.0;
    by[3] = mean;
    by[4] = 0.0;
    if (call->phase == DPAR_MEM_NORM_APPLY) {
        by[0] = inverse * scale;
        by[1] = mean;
        if (call->shift != NULL) {
            by[2] = dpari_element_get(call->shift, call->type, plane % call->channels);
        }
    } else if (call->phase == DPAR_MEM_NORM_GRADIENT) {
        const double *all = &call->total[3 * set];
        by[2] = all[0] / dpari_mostf(all[2], 1.0);
        by[4] = inverse * (all[1] / dpari_mostf(all[2], 1.0));
    }
}

static void *dpari_norm_there(const dpar_mem_norm *call, int64_t at)
{
    return (unsigned char *)call->to.data + at * dpar_type_bytes(call->type);
}

/* Runs a phase of the call on a plane, row by row and part by part:
 * APPLY:    y = a (x - mean) + b.
 * SUMS:     sum[0] = sum of dy, and sum[1] = sum of dy xhat, where xhat = (x - mean) / deviation.
 * GRADIENT: dx = (scale dy - mean of scale dy - xhat x mean of scale dy xhat) / deviation. */
static void dpari_norm_plane(const dpari_lanes *lanes, const dpar_mem_norm *call, int64_t plane,
                             double *sum)
{
    const int apply = call->phase == DPAR_MEM_NORM_APPLY, sums = call->phase == DPAR_MEM_NORM_SUMS;
    const int64_t step_in = dpari_norm_step(call, &call->x);
    const int64_t step_dy = apply ? 1 : dpari_norm_step(call, &call->dy);
    const int64_t step_out = sums ? 1 : dpari_norm_step(call, &call->to);
    const int direct = step_in == 1 && step_dy == 1 && step_out == 1;
    const int32_t type = direct ? call->type : DPAR_F64;
    DPARI_ROW double room[2][DPARI_ROW_PART];
    double by[5], total;
    int64_t at[DPAR_MAX_DIMS], count = dpari_norm_rows(call, at), k;
    if (count == 0) {
        return;
    }
    dpari_norm_factors(call, plane, by);
    do {
        const int64_t in = dpari_norm_at(call, &call->x, plane, at);
        const int64_t dy = apply ? 0 : dpari_norm_at(call, &call->dy, plane, at);
        const int64_t out = sums ? 0 : dpari_norm_at(call, &call->to, plane, at);
        for (k = 0; k < count; k += DPARI_ROW_PART) {
            const int64_t some = dpari_least(DPARI_ROW_PART, count - k);
            const void *x =
                dpari_norm_read(lanes, call, &call->x, in + k * step_in, some, direct, room[0]);
            const void *g = NULL;
            void *y = direct && !sums ? dpari_norm_there(call, out + k) : room[0];
            if (!apply) {
                g = dpari_norm_read(lanes, call, &call->dy, dy + k * step_dy, some, direct,
                                    room[1]);
            }
            if (sums) {
                sum[1] += lanes->product(g, x, type, by[3], some, &total) * by[0];
                sum[0] += total;
                continue;
            }
            if (apply) {
                lanes->line(y, x, type, by, some);
            } else {
                lanes->slope(y, x, g, type, by, some);
            }
            if (!direct) {
                dpari_norm_write(call, out + k * step_out, some, room[0]);
            }
        }
    } while (dpari_norm_row(call, at));
}

/* Computes the sums of each plane, and adds them, multiplied by the scale, to the totals of its set
 * and to the gradients of scale and shift. */
static void dpari_norm_totals(const dpari_lanes *lanes, const dpar_mem_norm *call, int64_t sets)
{
    const double points = (double)dpari_layer_points(call->extent, call->dims);
    int64_t p;
    dpari_zero(call->total, (size_t)(3 * sets) * sizeof *call->total);
    for (p = 0; p < call->planes; p++) {
        double *t = &call->total[3 * dpari_norm_set(call->channels, call->groups, p)];
        double *sum = &call->sums[2 * p];
        sum[0] = 0.0;
        sum[1] = 0.0;
        dpari_norm_plane(lanes, call, p, sum);
        t[0] += sum[0] * dpari_norm_scale(call, p);
        t[1] += sum[1] * dpari_norm_scale(call, p);
        t[2] += points;
        if (call->shift_gradient != NULL) {
            call->shift_gradient[p % call->channels] += sum[0];
        }
        if (call->scale_gradient != NULL) {
            call->scale_gradient[p % call->channels] += sum[1];
        }
    }
}

/* True if the fields of the call are valid and no array that the phase needs is NULL. */
static int dpari_norm_fits(const dpar_mem_norm *call)
{
    const int walks = call->phase != DPAR_MEM_NORM_MERGE, sums = call->phase == DPAR_MEM_NORM_SUMS;
    const int writes = call->phase == DPAR_MEM_NORM_APPLY || call->phase == DPAR_MEM_NORM_GRADIENT;
    int32_t d, negative = call->dims < 0 || call->dims > DPAR_MAX_DIMS;
    for (d = 0; d < call->dims && !negative; d++) {
        negative = call->extent[d] < 0;
    }
    if (negative || call->phase < DPAR_MEM_NORM_MERGE || call->phase > DPAR_MEM_NORM_GRADIENT ||
        !dpari_is_wide(call->type) || call->planes < 0 || call->channels < 1 ||
        call->planes % call->channels != 0 || call->groups < 0 ||
        (call->groups > 0 && call->channels % call->groups != 0) || call->ranks < 0) {
        return 0;
    }
    if (call->planes == 0) {
        return 1;
    }
    if (call->saved == NULL || (!walks && call->all == NULL && call->ranks > 0) ||
        (sums && call->sums == NULL) ||
        (call->phase >= DPAR_MEM_NORM_SUMS && call->total == NULL)) {
        return 0;
    }
    return dpari_layer_points(call->extent, call->dims) == 0 || !walks ||
           (call->x.data != NULL && (!writes || call->to.data != NULL) &&
            (call->phase < DPAR_MEM_NORM_SUMS || call->dy.data != NULL));
}

DPARI_INTERNAL dpar_status dpari_mem_norm(void *ctx, const dpar_mem_norm *call)
{
    const int writes = call->phase == DPAR_MEM_NORM_APPLY || call->phase == DPAR_MEM_NORM_GRADIENT;
    dpari_lanes l;
    int64_t p, sets;
    (void)ctx;
    if (!dpari_norm_fits(call)) {
        return DPAR_E_ARG;
    }
    l = dpari_lanes_for(call->planes * dpari_layer_points(call->extent, call->dims));
    sets = call->groups == 0 ? call->channels : call->planes / call->channels * call->groups;
    if (call->phase == DPAR_MEM_NORM_MERGE) {
        dpari_norm_merge(call, call->planes > 0 ? sets : 0);
    } else if (call->phase == DPAR_MEM_NORM_SUMS) {
        dpari_norm_totals(&l, call, call->planes > 0 ? sets : 0);
    }
    for (p = 0; p < call->planes && writes; p++) {
        dpari_norm_plane(&l, call, p, NULL);
    }
    return DPAR_OK;
}

/* ==== train/layer_calls.c ==== */

/* dpari_do_x runs operation x of layers.h with the table of comm->mem, or with the host's loops if
 * comm->mem is NULL. If the table has no such operation, the communicator breaks with
 * DPAR_E_UNKNOWN. */

/* Breaks a communicator whose memory has no table of layers. */
static DPARI_COLD dpar_status dpari_do_without(dpar_comm *comm, const char *what)
{
    dpar_why why;
    if (comm->status >= 0) {
        (void)dpari_say(DPAR_E_UNKNOWN, &why,
                        "rank %d: comm->mem->layers is NULL, but the operation %s is needed",
                        comm->rank, what);
        dpar_comm_abort(comm, DPAR_E_UNKNOWN, why.text);
    }
    return DPAR_E_UNKNOWN;
}

/* Defines dpari_do_x, which runs operation x by the table of comm->mem, or of the host if that is
 * NULL. */
#define DPARI_DO_LAYER_OF(linkage, name, struct_name)                                              \
    linkage dpar_status dpari_do_##name(dpar_comm *comm, const struct_name *call)                  \
    {                                                                                              \
        const dpar_mem *m = comm->mem;                                                             \
        const dpar_mem_layers *l = m != NULL ? (const dpar_mem_layers *)m->layers : NULL;          \
        if (m == NULL) {                                                                           \
            return dpari_mem_##name(NULL, call);                                                   \
        }                                                                                          \
        if (l == NULL) {                                                                           \
            return dpari_do_without(comm, #name);                                                  \
        }                                                                                          \
        return dpari_do_ended(comm, l->name == NULL ? DPAR_E_UNKNOWN : l->name(m->ctx, call),      \
                              #name);                                                              \
    }
#define DPARI_DO_LAYER(linkage, name) DPARI_DO_LAYER_OF(linkage, name, dpar_mem_##name)
DPARI_DO_LAYER(DPARI_INTERNAL, squares)
DPARI_DO_LAYER(DPARI_INTERNAL, optimize)
DPARI_DO_LAYER(DPARI_INTERNAL, round)
DPARI_DO_LAYER(DPARI_INTERNAL, gather)
DPARI_DO_LAYER(DPARI_INTERNAL, scatter)
DPARI_DO_LAYER(DPARI_INTERNAL, combine)
DPARI_DO_LAYER(DPARI_INTERNAL, dot)
DPARI_DO_LAYER(DPARI_INTERNAL, cross_entropy)
DPARI_DO_LAYER(DPARI_INTERNAL, attention_merge)
DPARI_DO_LAYER(DPARI_INTERNAL, quantize)
DPARI_DO_LAYER_OF(DPARI_INTERNAL, dequantize, dpar_mem_quantize)
DPARI_DO_LAYER(DPARI_API, moments)
DPARI_DO_LAYER(DPARI_API, norm)

/* ==== train/wire_blocks.c ==== */

/* Sums arrays over all ranks and sends them as blocks of 8-bit codes.
 *
 * A rank sends each byte of an array about twice, as in an all-reduce, but an element has 1 byte
 * and 1/64 of a scale in place of 4 bytes. Each element is rounded twice: on its rank, and after
 * the sum. The steps are apart because the all-to-all can be posted while backward runs, whereas
 * the sum needs its result. */

DPARI_INTERNAL int64_t dpari_wire_piece(const dpar_comm *comm, int64_t count)
{
    return dpari_ceil_div(dpari_ceil_div(count, DPARI_WIRE_BLOCK), comm->size);
}

/* An array of n elements has at most n / 256 + size blocks, rounded down, because each piece is
 * rounded up to whole blocks and all pieces have the same number. */
DPARI_INTERNAL int64_t dpari_wire_position(const dpar_comm *comm, int64_t first, int32_t k)
{
    return first / DPARI_WIRE_BLOCK + k * (INT64_C(1) + comm->size);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_wire_make(dpari_wire_blocks *wire, int64_t records,
                                                      int64_t piece)
{
    const int64_t codes = dpari_ceil_div(records * DPARI_WIRE_RECORD, 64) * 64;
    void *memory = NULL;
    dpar_status status =
        dpar_comm_alloc(wire->comm, 2 * codes + (piece + 1) * DPARI_WIRE_BLOCK * 4, &memory);
    if (status != DPAR_OK) {
        return status;
    }
    wire->sent = (unsigned char *)memory;
    wire->received = wire->sent + codes;
    wire->sum = (float *)(void *)(wire->received + codes);
    return dpari_do_copy(wire->comm, memory, NULL, 2 * codes);
}

/* Quantizes x[count] to the blocks at `code`, or dequantizes them. */
static dpar_status dpari_wire_convert(const dpari_wire_blocks *wire, void *x, int32_t type,
                                      unsigned char *code, int64_t count, int back, int accumulate)
{
    dpar_mem_quantize call;
    dpari_zero(&call, sizeof call);
    call.x = x;
    call.count = count;
    call.block = DPARI_WIRE_BLOCK;
    call.type = type;
    call.code_type = wire->code_type;
    call.code = code;
    call.scale = code + DPARI_WIRE_BLOCK;
    call.code_step = DPARI_WIRE_RECORD;
    call.scale_step = DPARI_WIRE_RECORD;
    call.accumulate = accumulate;
    return back ? dpari_do_dequantize(wire->comm, &call) : dpari_do_quantize(wire->comm, &call);
}

DPARI_INTERNAL dpar_status dpari_wire_begin(const dpari_wire_blocks *wire, int64_t position,
                                            void *data, int64_t count, dpar_work *work)
{
    const int64_t at = position * DPARI_WIRE_RECORD;
    const int64_t bytes = dpari_wire_piece(wire->comm, count) * DPARI_WIRE_RECORD;
    const dpar_status status =
        dpari_wire_convert(wire, data, wire->type, wire->sent + at, count, 0, 0);
    if (status != DPAR_OK) {
        return status;
    }
    return dpar_all_to_all(wire->comm, wire->sent + at, wire->received + at, bytes, DPAR_U8, work);
}

DPARI_INTERNAL dpar_status dpari_wire_reduce(const dpari_wire_blocks *wire, int64_t position,
                                             int64_t count, double factor, dpar_work *work)
{
    dpar_comm *comm = wire->comm;
    const int64_t piece = dpari_wire_piece(comm, count);
    const int64_t bytes = piece * DPARI_WIRE_RECORD;
    const int64_t left = count - comm->rank * piece * DPARI_WIRE_BLOCK;
    const int64_t mine = dpari_least(dpari_most(left, 0), piece * DPARI_WIRE_BLOCK);
    unsigned char *const all = wire->received + position * DPARI_WIRE_RECORD;
    unsigned char *const own = wire->sent + position * DPARI_WIRE_RECORD + comm->rank * bytes;
    dpar_status status = DPAR_OK;
    for (int32_t r = 0; r < comm->size && mine > 0 && status == DPAR_OK; r++) {
        status = dpari_wire_convert(wire, wire->sum, DPAR_F32, all + r * bytes, mine, 1, r > 0);
    }
    if (mine > 0 && factor != 1.0 && status == DPAR_OK) {
        dpar_mem_reduce scaled;
        dpari_zero(&scaled, sizeof scaled);
        scaled.to = wire->sum;
        scaled.from = wire->sum;
        scaled.count = mine;
        scaled.parts = 1;
        scaled.to_type = scaled.from_type = scaled.sum_type = DPAR_F32;
        scaled.op = DPAR_SUM;
        scaled.scale = factor;
        status = dpari_do_reduce(comm, &scaled);
    }
    if (mine > 0 && status == DPAR_OK) {
        status = dpari_wire_convert(wire, wire->sum, DPAR_F32, own, mine, 0, 0);
    }
    if (status != DPAR_OK) {
        return status;
    }
    return dpar_all_gather(comm, own, all, bytes, DPAR_U8, work);
}

DPARI_INTERNAL dpar_status dpari_wire_end(const dpari_wire_blocks *wire, int64_t position,
                                          void *data, int64_t count)
{
    return dpari_wire_convert(wire, data, wire->type, wire->received + position * DPARI_WIRE_RECORD,
                              count, 1, 0);
}

/* ==== train/update.c ==== */

/* The parts of a step that ddp, zero1 and fsdp share: its arguments, and the norm of all gradients.
 *
 * Whether a step is skipped depends only on the sum of squares, which is the same on all ranks,
 * because all add the sums of the ranks in the same order. A rank that rejects its arguments still
 * takes part in a collective of each communicator, so that the other ranks learn of it and do not
 * wait. */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_update_check(const dpar_update *update,
                                                         const char *name, dpar_why *why)
{
    if (update == NULL) {
        return dpari_wrong(why, "%s: update is NULL", name);
    }
    if (!dpari_finite(update->rate) || update->clip != update->clip || !(update->factor >= 0.0) ||
        !dpari_finite(update->factor)) {
        return dpari_optimizer_say(
            why,
            "%s: rate is %.9g, clip %.9g and factor %.9g, but rate must be finite, clip not NaN, "
            "and factor 0 or more and finite",
            name, update->rate, update->clip, update->factor);
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD void
dpari_update_facts(dpari_facts *facts, const dpar_optimizer *optimizer, int32_t moment_type)
{
    dpari_fact(facts, "optimizer.kind", 0, optimizer->kind);
    dpari_fact(facts, "optimizer.nesterov", 0, optimizer->nesterov);
    dpari_fact(facts, "optimizer.stochastic", 0, optimizer->stochastic);
    dpari_fact_type(facts, "optimizer.moment_type", 0, moment_type);
    dpari_fact_hash(facts, "optimizer.seed", 0, optimizer->seed);
    dpari_fact_real(facts, "optimizer.beta1", 0, optimizer->beta1);
    dpari_fact_real(facts, "optimizer.beta2", 0, optimizer->beta2);
    dpari_fact_real(facts, "optimizer.epsilon", 0, optimizer->epsilon);
    dpari_fact_real(facts, "optimizer.momentum", 0, optimizer->momentum);
    dpari_fact_real(facts, "optimizer.decay", 0, optimizer->decay);
}

DPARI_INTERNAL DPARI_COLD void dpari_update_facts_group(dpari_facts *facts, int32_t i,
                                                        const dpar_optimizer_group *group)
{
    dpari_fact_real(facts, "group[#].decay", i, group->decay);
    dpari_fact_real(facts, "group[#].rate", i, group->rate);
    dpari_fact_real(facts, "group[#].beta1", i, group->beta1);
    dpari_fact_real(facts, "group[#].beta2", i, group->beta2);
}

/* Writes a message into comm->why: two texts and a separator. */
static DPARI_COLD void dpari_update_join(dpar_comm *comm, const char *first, const char *separator,
                                         const char *second)
{
    dpar_text t;
    dpari_text_why(&t, &comm->why);
    dpari_text_print(&t, "%s%s%s", first, separator, second);
}

/* The communicators of a step, in the order in which all ranks use them. Entries may be NULL. */
enum { DPARI_UPDATE_REPLICAS = 1, DPARI_UPDATE_COMMS = 3 };

/* Ends a step for which communicator number k broke: breaks the others, too, because their ranks
 * may wait for this rank, and copies the message to the first one. */
static DPARI_COLD dpar_status dpari_update_break(dpar_comm *const *comm, int32_t k, dpar_status st)
{
    const dpar_why why = comm[k]->why;
    int32_t i;
    for (i = 0; i < DPARI_UPDATE_COMMS; i++) {
        if (i != k) {
            dpar_comm_abort(comm[i], st, why.text);
        }
    }
    comm[0]->why = why;
    return st;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_update_refuse(dpar_comm *comm, dpar_comm *replicas,
                                                          const dpar_update *update, dpar_status st,
                                                          const dpar_why *own)
{
    dpar_comm *const all[DPARI_UPDATE_COMMS] = {comm, replicas,
                                                update != NULL ? update->model : NULL};
    int32_t k;
    for (k = 0; k < DPARI_UPDATE_COMMS; k++) {
        dpar_why why = *own;
        if (all[k] == NULL) {
            continue;
        }
        (void)dpari_agree_on(all[k], st, "update refused", NULL, NULL, &why);
        if (all[k]->status != DPAR_OK) {
            why = all[k]->why;
            dpari_update_join(all[k], own->text, "; ", why.text);
            return dpari_update_break(all, k, all[k]->status);
        }
    }
    comm->why = *own;
    return st;
}

/* Reduces the squares of all ranks in the order of the ranks. */
static DPARI_COLD dpar_status dpari_update_reduce(dpar_comm *comm, double *squares, int32_t op,
                                                  uint64_t hash, const char *what)
{
    const double mine = *squares;
    dpar_call call;
    dpari_zero(&call, sizeof call);
    call.kind = DPAR_CALL_ALL_REDUCE;
    call.type = DPAR_F64;
    call.op = op;
    call.in = &mine;
    call.out = squares;
    call.count = 1;
    return dpari_post_alike(comm, &call, hash, what, NULL);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_update_norm(dpar_comm *comm, dpar_comm *replicas,
                                                        dpar_update *update, double squares,
                                                        uint64_t hash, const char *what)
{
    dpar_comm *const all[DPARI_UPDATE_COMMS] = {comm, replicas, update->model};
    const double factor = update->factor > 0.0 ? update->factor : 1.0;
    dpar_why why;
    int32_t k;
    int finite;
    for (k = 0; k < DPARI_UPDATE_COMMS; k++) {
        /* Replicas have equal gradients, so the maximum over them is the sum of each. */
        const int32_t op = k == DPARI_UPDATE_REPLICAS ? DPAR_MAX : DPAR_SUM;
        dpar_status st = DPAR_OK;
        if (all[k] != NULL) {
            hash = dpari_hash_real(dpari_hash_real(hash, update->rate), update->clip);
            hash = dpari_hash_real(hash, factor);
            st = dpari_update_reduce(all[k], &squares, op, hash, what);
        }
        if (st == DPAR_E_MISMATCH && all[k]->status == st) {
            const dpar_why before = all[k]->why;
            (void)dpari_optimizer_say(&why,
                                      "update: this rank has rate %.9g, clip %.9g and factor %.9g",
                                      update->rate, update->clip, factor);
            dpari_update_join(all[k], why.text, ". ", before.text);
        }
        if (st != DPAR_OK) {
            return dpari_update_break(all, k, st);
        }
        hash = 0; /* other communicators compare only rate, clip and factor */
    }
    /* Reads the bits, because many training codes are compiled with -Ofast or -ffast-math, and the
     * compiler then assumes that comparisons never meet a NaN. */
    finite = dpari_kern_finite(&squares, 1, DPAR_F64) == 1;
    update->norm = factor * (finite ? dpari_elements_sqrt(squares) : squares);
    update->scale = factor * dpar_optimizer_clip(update->norm, update->clip);
    return dpari_kern_finite(&update->norm, 1, DPAR_F64) == 1 ? DPAR_OK : DPAR_SKIPPED;
}

/* ==== train/ddp.c ==== */

/* Averages gradients over all ranks. The buckets have a fixed order, from the last parameter to the
 * first. dpar_ddp_ready notes that a parameter is ready. Once all parameters of the next bucket are
 * ready, it posts that bucket, and the buckets after it that are already complete. All ranks
 * therefore post the same collectives in the same order, even if their gradients become ready in
 * different orders.
 *
 * dpar_ddp_end posts the remaining buckets and waits for all of them. With desc.require_ready, it
 * also checks that every parameter was reported; a rank that misses one breaks the communicator, so
 * that all ranks get the same error.
 *
 * The gradients are stored in one of three ways:
 *
 *  - dpar allocates one buffer, in which the last parameter comes first. A bucket is one contiguous
 *    range of it.
 *  - The caller has one flat array, in which the first parameter comes first. A bucket is a range
 *    of it, too.
 *  - The caller has one array per parameter. A bucket sends long arrays in place and packs short
 *    ones in a copy, because many small messages take longer.
 *
 * zero1.c uses the flat array, and sends each part of a bucket only to its owner (ddp->scatter). */

/* If there are several arrays, those of fewer bytes are packed and sent together. */
enum { DPARI_DDP_SHORT = 1 << 16 };

/* ---- the descriptor -------------------------------------------------------------------------- */

/* Returns the type in which gradients are sent. */
static int32_t dpari_ddp_wire(const dpar_ddp_desc *desc)
{
    return desc->wire_type != DPAR_TYPE_NONE ? desc->wire_type : desc->type;
}

/* True if gradients are sent in another type than they are stored in. */
static int dpari_ddp_rounds(const dpar_ddp_desc *desc)
{
    return dpari_ddp_wire(desc) != desc->type;
}

/* True if gradients are sent as blocks of 8-bit codes. */
static int dpari_ddp_codes(const dpar_ddp_desc *desc)
{
    return desc->wire_type == DPAR_I8 || desc->wire_type == DPAR_F8;
}

/* True if the gradients are in the caller's memory. */
static int dpari_ddp_given(const dpar_ddp_desc *desc)
{
    return desc->gradients != NULL || desc->arrays != NULL;
}

/* Checks that the numbers of elements are allowed and that every parameter with elements has an
 * array. */
static dpar_status dpari_ddp_check_counts(const dpar_ddp_desc *desc, dpar_why *why)
{
    int64_t elements = 0;
    int32_t i;
    for (i = 0; i < desc->params; i++) {
        const int64_t count = desc->count[i];
        if (count < 0 || (count > 0 && desc->arrays != NULL && desc->arrays[i] == NULL)) {
            return dpari_wrong(
                why,
                "dpar_ddp_make: parameter %d has %ld elements, but needs 0 or more, and with "
                "desc.arrays an array that is not NULL",
                i, count);
        }
        if (count > INT64_MAX / 16 - elements) {
            return dpari_say(
                DPAR_E_RANGE, why,
                "dpar_ddp_make: parameter %d has %ld elements and those before it have "
                "%ld, but together they may have at most 2^59 - 1",
                i, count, elements);
        }
        elements += count;
    }
    return DPAR_OK;
}

/* Checks a descriptor. */
static dpar_status dpari_ddp_check_desc(const dpar_ddp_desc *desc, dpar_why *why)
{
    if (desc == NULL) {
        return dpari_wrong(why, "dpar_ddp_make: the descriptor is NULL");
    }
    if (desc->params < 0 || (desc->params > 0 && desc->count == NULL)) {
        return dpari_wrong(
            why,
            "dpar_ddp_make: params is %d, but must be 0 or more; above 0, desc.count must not be "
            "NULL",
            desc->params);
    }
    if (!dpari_is_float(desc->type)) {
        return dpari_wrong(why, "dpar_ddp_make: type is %s, but must be f64, f32, f16 or bf16",
                           dpar_type_name(desc->type));
    }
    if (dpari_ddp_rounds(desc) && !dpari_ddp_codes(desc) &&
        !dpari_narrows(desc->type, desc->wire_type)) {
        return dpari_wrong(why,
                           "dpar_ddp_make: wire_type is %s (%d), but only f64 can be sent as f32, "
                           "f32 as f16 or bf16, and all types as i8 or f8",
                           dpar_type_name(desc->wire_type), desc->wire_type);
    }
    if (dpari_ddp_codes(desc) && desc->hook != NULL) {
        return dpari_wrong(why, "dpar_ddp_make: wire_type is %s, which excludes a hook",
                           dpar_type_name(desc->wire_type));
    }
    if (!dpari_is_flag(desc->sum) || !dpari_is_flag(desc->require_ready) ||
        !dpari_is_flag(desc->track_used) || !dpari_is_flag(desc->check_finite) ||
        (desc->require_ready && desc->track_used)) {
        return dpari_wrong(why,
                           "dpar_ddp_make: sum is %d, require_ready %d, track_used %d and "
                           "check_finite %d, but each "
                           "must be 0 or 1, and require_ready excludes track_used",
                           desc->sum, desc->require_ready, desc->track_used, desc->check_finite);
    }
    if (desc->first_bucket_bytes < 0 || desc->bucket_bytes < 0 || desc->align < 0) {
        return dpari_wrong(why,
                           "dpar_ddp_make: first_bucket_bytes is %ld, bucket_bytes %ld and align "
                           "%ld, but none may "
                           "be negative",
                           desc->first_bucket_bytes, desc->bucket_bytes, desc->align);
    }
    if ((desc->gradients != NULL && desc->arrays != NULL) ||
        (dpari_ddp_given(desc) && desc->align != 0)) {
        return dpari_wrong(why,
                           "dpar_ddp_make: at most one of gradients, arrays and align may be set");
    }
    return dpari_ddp_check_counts(desc, why);
}

/* Checks that no two arrays overlap. Sorts them by address first (Shell sort), so that only
 * neighbours need to be compared. */
static DPARI_COLD dpar_status dpari_ddp_check_overlap(dpar_comm *comm, const dpar_ddp_desc *desc,
                                                      dpar_why *why)
{
    const int64_t each = dpar_type_bytes(desc->type);
    void *const *const array = desc->arrays;
    int32_t *at = (int32_t *)dpari_object_alloc(comm, desc->params * (int64_t)sizeof *at);
    int32_t i, k, step, n = 0;
    dpar_status status = DPAR_OK;
    if (at == NULL) {
        return dpari_say(DPAR_E_MEMORY, why, "dpar_ddp_make: no memory to compare %d arrays",
                         desc->params);
    }
    for (k = 0; k < desc->params; k++) {
        at[n] = k;
        n += desc->count[k] > 0;
    }
    for (step = n / 2; step > 0; step = step == 2 ? 1 : (int32_t)(step * INT64_C(5) / 11)) {
        for (i = step; i < n; i++) {
            const int32_t moves = at[i];
            for (k = i; k >= step && (uintptr_t)array[at[k - step]] > (uintptr_t)array[moves];
                 k -= step) {
                at[k] = at[k - step];
            }
            at[k] = moves;
        }
    }
    for (i = 1; i < n && status == DPAR_OK; i++) {
        const int64_t bytes = desc->count[at[i - 1]] * each;
        const uintptr_t apart = (uintptr_t)array[at[i]] - (uintptr_t)array[at[i - 1]];
        if (apart < (uintptr_t)bytes) {
            status =
                dpari_wrong(why,
                            "dpar_ddp_make: arrays %d and %d overlap: the second begins %ld bytes "
                            "after the beginning of the first, which has %ld bytes",
                            at[i - 1], at[i], (int64_t)apart, bytes);
        }
    }
    dpari_object_release(at);
    return status;
}

/* Describes how the parameters are divided into buckets. */
static dpar_buckets_desc dpari_ddp_bucketing(const dpar_ddp_desc *desc)
{
    const int64_t each = dpar_type_bytes(desc->type);
    dpar_buckets_desc how = dpari_bucketing_ddp(each);
    how.params = desc->params;
    how.count = desc->count;
    if (desc->first_bucket_bytes > 0) {
        how.first = dpari_ceil_div(desc->first_bucket_bytes, each);
    }
    if (desc->bucket_bytes > 0) {
        how.size = dpari_ceil_div(desc->bucket_bytes, each);
    }
    how.align = 64;
    if (dpari_ddp_given(desc)) {
        how.align = 1;
    } else if (desc->align > 0) {
        how.align = desc->align;
    }
    return how;
}

/* True if all gradients are copied in the wire type. Ranks that share memory need no copy of F32
 * gradients, because their all-reduce rounds them while it adds. */
static int dpari_ddp_copies(const dpar_comm *comm, const dpar_ddp_desc *desc)
{
    return dpari_ddp_rounds(desc) && !dpari_ddp_codes(desc) &&
           (desc->type != DPAR_F32 || desc->hook != NULL || comm->mem != NULL ||
            dpari_world_of(comm) == NULL);
}

/* True if array i is sent from a copy, together with other arrays of its bucket. */
static int dpari_ddp_packs(const dpar_comm *comm, const dpar_ddp_desc *desc, int32_t i)
{
    if (desc->hook != NULL || dpari_ddp_copies(comm, desc) || dpari_ddp_codes(desc)) {
        return 1;
    }
    return desc->params > 1 && desc->count[i] * dpar_type_bytes(desc->type) < DPARI_DDP_SHORT;
}

/* ---- made and freed -------------------------------------------------------------------------- */

/* Places the arrays of a ddp after its struct in memory, and zeroes the struct. Returns the ddp,
 * and in *bytes the total size. If memory is NULL, only computes the size and returns NULL. */
static dpar_ddp *dpari_ddp_place(void *memory, const dpar_comm *comm, const dpar_ddp_desc *desc,
                                 int32_t buckets, int64_t *bytes)
{
    const int32_t params = desc->params;
    int64_t works = buckets;
    dpar_ddp none, *d;
    dpari_room r = dpari_room_of(memory);
    int32_t i;
    if (desc->gradients != NULL) {
        works += comm->size; /* zero1 divides buckets where shares end */
    }
    for (i = 0; desc->arrays != NULL && i < params; i++) {
        works += !dpari_ddp_packs(comm, desc, i);
    }
    if (dpari_ddp_codes(desc)) {
        works += buckets; /* an all-gather follows the all-to-all of each bucket */
    }
    d = (dpar_ddp *)dpari_room_take(&r, 1, sizeof *d);
    d = memory != NULL ? d : &none;
    dpari_zero(d, sizeof *d);
    d->params = params;
    d->buckets = buckets;
    d->count = (int64_t *)dpari_room_take(&r, params, sizeof *d->count);
    d->start = (int64_t *)dpari_room_take(&r, INT64_C(1) + params, sizeof *d->start);
    d->seen = (uint8_t *)dpari_room_take(&r, INT64_C(1) + params, sizeof *d->seen);
    d->used = (uint8_t *)dpari_room_take(&r, params, sizeof *d->used);
    d->bucket = (dpar_bucket *)dpari_room_take(&r, buckets, sizeof *d->bucket);
    d->works = (int32_t *)dpari_room_take(&r, buckets, sizeof *d->works);
    d->work = (dpar_work *)dpari_room_take(&r, works, sizeof *d->work);
    if (desc->arrays != NULL) {
        d->array = (void **)dpari_room_take(&r, params, sizeof *d->array);
    }
    if (memory != NULL) {
        dpari_zero(d->work, (size_t)works * sizeof *d->work);
    }
    *bytes = r.used;
    return (dpar_ddp *)memory;
}

/* Checks the descriptor, and computes the number of buckets and the size of a ddp in bytes. */
static dpar_status dpari_ddp_count(dpar_comm *comm, const dpar_ddp_desc *desc, int32_t *buckets,
                                   int64_t *bytes, dpar_why *why)
{
    dpar_buckets_desc how;
    dpar_status status = dpari_ddp_check_desc(desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (desc->arrays != NULL && desc->params > 1) {
        status = dpari_ddp_check_overlap(comm, desc, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    how = dpari_ddp_bucketing(desc);
    status = dpar_buckets_init(&how, NULL, NULL, 0, buckets, why);
    if (status == DPAR_OK) {
        (void)dpari_ddp_place(NULL, comm, desc, *buckets, bytes);
    }
    return status;
}

/* Lists the values that must be equal on all ranks. */
static DPARI_COLD void dpari_ddp_facts(dpari_facts *facts, const void *given)
{
    const dpar_ddp_desc *desc = (const dpar_ddp_desc *)given;
    const dpar_buckets_desc how = dpari_ddp_bucketing(desc);
    int32_t i;
    dpari_fact(facts, "the number of parameters", 0, desc->params);
    dpari_fact_type(facts, "type", 0, desc->type);
    dpari_fact_type(facts, "wire_type", 0, dpari_ddp_wire(desc));
    dpari_fact(facts, "gradients != NULL", 0, desc->gradients != NULL);
    dpari_fact(facts, "arrays != NULL", 0, desc->arrays != NULL);
    dpari_fact(facts, "sum", 0, desc->sum);
    dpari_fact(facts, "require_ready", 0, desc->require_ready);
    dpari_fact(facts, "track_used", 0, desc->track_used);
    dpari_fact(facts, "hook != NULL", 0, desc->hook != NULL);
    dpari_fact(facts, "check_finite", 0, desc->check_finite);
    dpari_fact(facts, "first_bucket_bytes in elements", 0, how.first);
    dpari_fact(facts, "bucket_bytes in elements", 0, how.size);
    dpari_fact(facts, "align", 0, how.align);
    for (i = 0; i < desc->params; i++) {
        dpari_fact(facts, "count[#]", i, desc->count[i]);
    }
}

/* Computes parameter positions and bucket ranges for gradients in the caller's memory. The ranges
 * are those of the flat array, or of the copy that holds the packed arrays. */
static void dpari_ddp_place_given(dpar_ddp *ddp)
{
    int32_t i;
    int64_t end = 0;
    for (i = 0; i < ddp->params; i++) {
        ddp->start[i] = end;
        if (ddp->array == NULL || dpari_ddp_packs(ddp->comm, &ddp->desc, i)) {
            end += ddp->count[i];
        }
        if (ddp->array != NULL) {
            ddp->array[i] = ddp->desc.arrays[i];
        }
    }
    ddp->start[i] = end;
    for (i = 0; i < ddp->buckets; i++) {
        dpar_bucket *b = &ddp->bucket[i];
        b->lo = ddp->start[b->first_param];
        b->hi = ddp->start[b->end_param];
        b->used = b->hi - b->lo;
    }
    ddp->elements = end;
}

/* Allocates memory for the 8-bit codes of all buckets. */
static dpar_status dpari_ddp_allocate_codes(dpar_ddp *ddp)
{
    int64_t longest = 0;
    int32_t k;
    for (k = 0; k < ddp->buckets; k++) {
        longest = dpari_most(longest, ddp->bucket[k].hi - ddp->bucket[k].lo);
    }
    ddp->blocks.comm = ddp->comm;
    ddp->blocks.type = ddp->desc.type;
    ddp->blocks.code_type = ddp->desc.wire_type;
    return dpari_wire_make(&ddp->blocks,
                           dpari_wire_position(ddp->comm, ddp->elements, ddp->buckets),
                           dpari_wire_piece(ddp->comm, longest));
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_ddp_pin(dpar_ddp *ddp)
{
    const dpar_mem *mem = ddp->comm->mem;
    dpar_status status;
    if (ddp->pinned || mem == NULL || mem->pin == NULL) {
        return DPAR_OK;
    }
    status = mem->pin(mem->ctx, &ddp->result, (int64_t)sizeof ddp->result);
    ddp->pinned = status == DPAR_OK;
    return status;
}

/* Computes the buckets, and allocates memory for the gradients and their copy as needed. */
static dpar_status dpari_ddp_allocate(dpar_ddp *ddp, dpar_why *why)
{
    const dpar_ddp_desc *desc = &ddp->desc;
    const dpar_buckets_desc how = dpari_ddp_bucketing(desc);
    const int64_t each = dpar_type_bytes(desc->type);
    const int copies = dpari_ddp_copies(ddp->comm, desc);
    void *memory = NULL;
    int32_t i;
    dpar_status status =
        dpar_buckets_init(&how, ddp->start, ddp->bucket, ddp->buckets, &ddp->buckets, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < ddp->params; i++) {
        ddp->count[i] = desc->count[i];
    }
    ddp->elements = ddp->buckets > 0 ? ddp->bucket[ddp->buckets - 1].hi : 0;
    ddp->buffer = (unsigned char *)desc->gradients;
    ddp->copy_type = copies ? dpari_ddp_wire(desc) : desc->type;
    ddp->through = dpari_ddp_rounds(desc) && !copies && !dpari_ddp_codes(desc);
    if (dpari_ddp_given(desc)) {
        dpari_ddp_place_given(ddp);
    } else if (ddp->elements > INT64_MAX / 16) {
        status = DPAR_E_RANGE;
    } else {
        status = dpar_comm_alloc(ddp->comm, dpari_most(1, ddp->elements * each), &memory);
        ddp->buffer = (unsigned char *)memory;
        ddp->owns = 1;
    }
    if (status == DPAR_OK && (ddp->array != NULL ? ddp->elements > 0 : copies)) {
        memory = NULL;
        status = dpar_comm_alloc(
            ddp->comm, dpari_most(1, ddp->elements * dpar_type_bytes(ddp->copy_type)), &memory);
        ddp->copy = (unsigned char *)memory;
    }
    if (status == DPAR_OK && dpari_ddp_codes(desc)) {
        status = dpari_ddp_allocate_codes(ddp);
    }
    if (status == DPAR_OK && desc->check_finite) {
        status = dpari_ddp_pin(ddp);
    }
    if (status == DPAR_OK) {
        return status;
    }
    return dpari_say(
        status, why,
        "dpar_ddp_make: no memory for %ld gradients of %ld bytes each, sent in %d bytes "
        "each",
        ddp->elements, each, dpar_type_bytes(dpari_ddp_wire(desc)));
}

/* Frees the memory of a ddp. */
static void dpari_ddp_release(dpar_ddp *ddp)
{
    if (ddp->copy != NULL) {
        dpar_comm_release(ddp->comm, ddp->copy);
    }
    if (ddp->owns && ddp->buffer != NULL) {
        dpar_comm_release(ddp->comm, ddp->buffer);
    }
    if (ddp->blocks.sent != NULL) {
        dpar_comm_release(ddp->comm, ddp->blocks.sent);
    }
    if (ddp->pinned && ddp->comm->mem->unpin != NULL) {
        (void)ddp->comm->mem->unpin(ddp->comm->mem->ctx, &ddp->result);
    }
    if (ddp->made) {
        dpari_object_release(ddp);
    }
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_make(dpar_comm *comm, const dpar_ddp_desc *desc,
                                              dpar_ddp **ddp, dpar_why *why)
{
    dpar_ddp *d;
    void *memory = NULL;
    int64_t needed = 0;
    int32_t buckets = 0;
    dpar_status status;
    if (comm == NULL) {
        return dpari_wrong(why, "dpar_ddp_make: the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    status = ddp == NULL ? dpari_wrong(why, "dpar_ddp_make: the result is NULL")
                         : dpari_ddp_count(comm, desc, &buckets, &needed, why);
    if (status == DPAR_OK) {
        status = dpari_object_memory(comm, desc->memory, desc->bytes, needed, "dpar_ddp_make",
                                     &memory, why);
    }
    status = dpari_agree_on(comm, status, "ddp", dpari_ddp_facts, desc, why);
    if (status != DPAR_OK) {
        return dpari_object_failed(status, desc != NULL ? desc->memory : NULL, memory, needed, why);
    }
    d = dpari_ddp_place(memory, comm, desc, buckets, &needed);
    *d->seen++ = 0;
    d->comm = comm;
    d->desc = *desc;
    d->made = desc->memory == NULL;
    dpari_zero(d->seen, (size_t)d->params);
    dpari_zero(d->used, (size_t)d->params);
    status = dpari_agree(comm, dpari_ddp_allocate(d, why), why);
    if (status != DPAR_OK) {
        dpari_ddp_release(d);
        return status;
    }
    if (d->owns) {
        dpar_ddp_zero(d);
    }
    *ddp = d;
    return DPAR_OK;
}

/* ---- a pass ---------------------------------------------------------------------------------- */

/* True if parameter i was reported since dpar_ddp_zero: with desc.track_used by any rank, otherwise
 * by this rank. */
static int dpari_ddp_used(const dpar_ddp *ddp, int32_t i)
{
    return ddp->desc.track_used ? ddp->used[i] != 0 : ddp->seen[i] != 0;
}

/* Returns the address of parameter i's gradient. */
static unsigned char *dpari_ddp_at(const dpar_ddp *ddp, int32_t i)
{
    return ddp->array != NULL ? (unsigned char *)ddp->array[i]
                              : ddp->buffer + ddp->start[i] * dpar_type_bytes(ddp->desc.type);
}

DPAR_API void *dpar_ddp_gradient(const dpar_ddp *ddp, int32_t i, int *used)
{
    const int there = ddp != NULL && i >= 0 && i < ddp->params;
    if (used != NULL) {
        *used = there && dpari_ddp_used(ddp, i);
    }
    return there ? dpari_ddp_at(ddp, i) : NULL;
}

DPARI_INTERNAL void *dpari_ddp_bucket(const dpar_ddp *ddp, int32_t k, dpar_bucket *bucket)
{
    if (k < 0 || k >= ddp->buckets) {
        return NULL;
    }
    if (bucket != NULL) {
        *bucket = ddp->bucket[k];
    }
    return ddp->buffer + ddp->bucket[k].lo * dpar_type_bytes(ddp->desc.type);
}

DPAR_API void dpar_ddp_zero(dpar_ddp *ddp)
{
    int64_t each;
    int32_t i;
    if (ddp == NULL) {
        return;
    }
    each = dpar_type_bytes(ddp->desc.type);
    if (ddp->array == NULL) {
        (void)dpari_do_copy(ddp->comm, ddp->buffer, NULL, ddp->elements * each);
    }
    for (i = 0; ddp->array != NULL && i < ddp->params; i++) {
        (void)dpari_do_copy(ddp->comm, ddp->array[i], NULL, ddp->count[i] * each);
    }
    dpari_zero(ddp->used, (size_t)ddp->params);
    dpari_zero(ddp->seen, (size_t)ddp->params);
    ddp->pass = ddp->under_way;
    ddp->ended = 0;
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_begin(dpar_ddp *ddp, int32_t last)
{
    dpar_ddp *const d = ddp;
    int32_t i;
    if (d == NULL) {
        return DPAR_E_ARG;
    }
    if (d->comm->status != DPAR_OK) {
        return d->comm->status;
    }
    if (d->under_way) {
        return dpari_comm_wrong(d->comm,
                                "dpar_ddp_begin: the previous pass has not ended (dpar_ddp_end)");
    }
    d->under_way = 1;
    d->open = d->params;
    d->latest = d->params - 1;
    d->edge = last && d->buckets > 0 ? d->bucket[0].first_param : -1;
    if (d->pass++ == UINT8_MAX) { /* the numbers begin again: all earlier passes become pass 1 */
        for (i = 0; i < d->params; i++) {
            d->seen[i] = d->seen[i] != 0;
        }
        d->pass = 2;
    }
    d->last = last != 0;
    d->next = 0;
    d->posted = 0;
    d->back = 0;
    d->work_count = 0;
    d->first_work = 0;
    d->ended = 0;
    d->status = DPAR_OK;
    return DPAR_OK;
}

/* Writes "'wte'" or "parameter 3". */
static DPARI_COLD void dpari_ddp_put_name(const dpar_ddp *ddp, dpar_text *text, int32_t i)
{
    const char *name = ddp->desc.names != NULL ? ddp->desc.names[i] : NULL;
    if (name != NULL) {
        dpari_text_print(text, "'%s'", name);
    } else {
        dpari_text_print(text, "parameter %d", i);
    }
}

/* Breaks the communicator, so that the pass fails on all ranks. */
static dpar_status dpari_ddp_stop(dpar_ddp *ddp, const char *text)
{
    dpar_comm_abort(ddp->comm, DPAR_E_ARG, text);
    ddp->status = ddp->comm->status != DPAR_OK ? ddp->comm->status : DPAR_E_ARG;
    return ddp->status;
}

/* Looks for NaN and infinity in `count` elements, and waits for the result. Sets
 * ddp->result.found to `first` plus the index of the first one, or to -1. */
static dpar_status dpari_ddp_search(dpar_ddp *ddp, const void *data, int64_t first, int64_t count)
{
    dpar_mem_finite f;
    dpar_status status;
    dpari_zero(&f, sizeof f);
    f.in = data;
    f.count = count;
    f.first = first;
    f.type = ddp->desc.type;
    f.found = &ddp->result.found;
    status = dpari_do_finite(ddp->comm, &f);
    if (status == DPAR_OK) {
        status = dpari_do_wait(ddp->comm);
    }
    ddp->status = dpari_first_error(ddp->status, status);
    return status;
}

/* Checks that bucket k contains no NaN or infinity (desc.check_finite). Otherwise the pass fails on
 * all ranks. In one buffer on a device, one search covers the bucket, so that the rank waits once.
 */
static DPARI_COLD dpar_status dpari_ddp_check_finite(dpar_ddp *ddp, int32_t k)
{
    const dpar_bucket *b = &ddp->bucket[k];
    const int whole = ddp->comm->mem != NULL && ddp->array == NULL;
    int32_t i;
    dpar_status status = DPAR_OK;
    if (whole) {
        status = dpari_ddp_search(ddp, ddp->buffer + b->lo * dpar_type_bytes(ddp->desc.type), b->lo,
                                  b->hi - b->lo);
    }
    for (i = b->first_param; i < b->end_param && status == DPAR_OK; i++) {
        int64_t at;
        dpar_why why;
        dpar_text t;
        if (!whole) {
            status = dpari_ddp_search(ddp, dpari_ddp_at(ddp, i), ddp->start[i], ddp->count[i]);
        }
        at = ddp->result.found - ddp->start[i];
        if (status != DPAR_OK || ddp->result.found < 0 || at < 0 || at >= ddp->count[i]) {
            continue;
        }
        dpari_text_why(&t, &why);
        dpar_text_put(&t, "ddp: the gradient of ");
        dpari_ddp_put_name(ddp, &t, i);
        dpari_text_print(&t, " is NaN or infinite at element %ld on rank %d", at, ddp->comm->rank);
        return dpari_ddp_stop(ddp, why.text);
    }
    return status;
}

/* Converts `count` gradients into the copy. If back is 1, converts those of the copy into the
 * gradients. */
static dpar_status dpari_ddp_convert(const dpar_ddp *ddp, void *mine, void *copy, int64_t count,
                                     int back)
{
    const int32_t type = ddp->desc.type, copy_type = ddp->copy_type;
    if (back) {
        return dpari_do_convert(ddp->comm, mine, type, copy, copy_type, count, 0);
    }
    return dpari_do_convert(ddp->comm, copy, copy_type, mine, type, count, 0);
}

/* Converts the gradients of bucket k into the copy. If back is 1, converts the results in the copy
 * into the gradients. */
static DPARI_COLD dpar_status dpari_ddp_copy(dpar_ddp *ddp, int32_t k, int back)
{
    const int64_t each = dpar_type_bytes(ddp->desc.type);
    const int64_t copy_each = dpar_type_bytes(ddp->copy_type);
    const dpar_bucket *b = &ddp->bucket[k];
    int32_t i;
    dpar_status status = DPAR_OK;
    if (ddp->array == NULL) {
        return dpari_ddp_convert(ddp, ddp->buffer + b->lo * each, ddp->copy + b->lo * copy_each,
                                 b->hi - b->lo, back);
    }
    for (i = b->first_param; i < b->end_param && status == DPAR_OK; i++) {
        void *const copy = ddp->copy + ddp->start[i] * copy_each;
        const int64_t count = ddp->start[i + 1] - ddp->start[i];
        status = dpari_ddp_convert(ddp, ddp->array[i], copy, count, back);
    }
    return status;
}

/* Returns the next unused work and counts it for bucket k. Returns NULL if the bucket is sent by a
 * call that waits. */
static dpar_work *dpari_ddp_work(dpar_ddp *ddp, int32_t k)
{
    dpar_work *work = &ddp->work[ddp->work_count];
    if (ddp->alone) {
        return NULL;
    }
    ddp->works[k] = ++ddp->work_count;
    work->status = DPAR_OK; /* for a hook that does not set it */
    return work;
}

/* Returns the elements of bucket k, and in *count their number. */
static unsigned char *dpari_ddp_data(const dpar_ddp *ddp, int32_t k, int64_t *count)
{
    const dpar_bucket *b = &ddp->bucket[k];
    unsigned char *data = ddp->copy != NULL ? ddp->copy : ddp->buffer;
    *count = b->hi - b->lo;
    return data != NULL ? data + b->lo * dpar_type_bytes(ddp->copy_type) : NULL;
}

/* Returns the position of bucket k among the 8-bit codes of all buckets. In the caller's memory the
 * last bucket comes first. */
static int64_t dpari_ddp_position(const dpar_ddp *ddp, int32_t k)
{
    const int32_t before = dpari_ddp_given(&ddp->desc) ? ddp->buckets - 1 - k : k;
    return dpari_wire_position(ddp->comm, ddp->bucket[k].lo, before);
}

/* Waits for the 8-bit codes of each bucket that was posted, adds them and posts the gather of the
 * sums. ddp->works then counts the gathers. They are posted after the codes of all buckets, because
 * every rank must post its collectives in the same order. After an error only waits. */
static void dpari_ddp_reduce_codes(dpar_ddp *ddp)
{
    const double factor = ddp->desc.sum ? 1.0 : 1.0 / ddp->comm->size;
    int32_t k, from = 0;
    ddp->first_work = ddp->work_count;
    for (k = 0; k < ddp->posted; k++) {
        const int32_t end = ddp->works[k];
        const dpar_status status = dpar_wait_all(ddp->work + from, end - from);
        const int64_t count = ddp->bucket[k].hi - ddp->bucket[k].lo;
        from = end;
        ddp->works[k] = ddp->work_count;
        ddp->status = dpari_first_error(ddp->status, status);
        if (ddp->status == DPAR_OK && count > 0) {
            ddp->status = dpari_wire_reduce(&ddp->blocks, dpari_ddp_position(ddp, k), count, factor,
                                            dpari_ddp_work(ddp, k));
        }
    }
}

/* Sets the gaps between the parameters of bucket k to 0, in gradients that dpar allocated. Codes
 * write NaN there if a gradient in the same block is not finite, and the gaps are sent again. */
static DPARI_COLD dpar_status dpari_ddp_clear_gaps(const dpar_ddp *ddp, int32_t k)
{
    const dpar_bucket *b = &ddp->bucket[k];
    const int64_t each = dpar_type_bytes(ddp->desc.type);
    int64_t end = b->hi;
    int32_t i;
    dpar_status status = DPAR_OK;
    for (i = b->first_param; ddp->owns && i < b->end_param && status == DPAR_OK; i++) {
        const int64_t at = ddp->start[i] + ddp->count[i]; /* parameter i - 1 begins at `end` */
        status = dpari_do_copy(ddp->comm, ddp->buffer + at * each, NULL, (end - at) * each);
        end = ddp->start[i];
    }
    return status;
}

/* Waits for all buckets that were posted, and converts the results of codes or of a copy into the
 * gradients. */
static void dpari_ddp_wait_posted(dpar_ddp *ddp)
{
    int32_t from;
    if (ddp->blocks.sent != NULL && ddp->back < ddp->posted) {
        dpari_ddp_reduce_codes(ddp);
    }
    from = ddp->back > 0 ? ddp->works[ddp->back - 1] : ddp->first_work;
    for (; ddp->back < ddp->posted; ddp->back++) {
        dpar_status status = dpar_wait_all(ddp->work + from, ddp->works[ddp->back] - from);
        from = ddp->works[ddp->back];
        if (status == DPAR_OK && ddp->blocks.sent != NULL && ddp->status == DPAR_OK) {
            int64_t count;
            unsigned char *data = dpari_ddp_data(ddp, ddp->back, &count);
            status = dpari_wire_end(&ddp->blocks, dpari_ddp_position(ddp, ddp->back), data, count);
            status = dpari_first_error(status, dpari_ddp_clear_gaps(ddp, ddp->back));
        }
        if (status == DPAR_OK && ddp->copy != NULL && ddp->status == DPAR_OK) {
            status = dpari_ddp_copy(ddp, ddp->back, 1);
        }
        ddp->status = dpari_first_error(ddp->status, status);
    }
}

DPARI_INTERNAL int64_t dpari_ddp_first(const dpar_zero1 *zero1)
{
    return dpari_least(zero1->ddp->elements, zero1->share * zero1->ddp->comm->rank);
}

DPARI_INTERNAL dpar_status dpari_ddp_gather(const dpar_zero1 *zero1, void *data, uint64_t hash)
{
    dpar_comm *comm = zero1->ddp->comm;
    dpar_call call;
    dpari_zero(&call, sizeof call);
    call.kind = DPAR_CALL_ALL_GATHER;
    call.type = zero1->ddp->desc.type;
    call.in = (const unsigned char *)data + dpari_ddp_first(zero1) * dpar_type_bytes(call.type);
    call.out = data;
    call.variable_counts = zero1->share * comm->size != zero1->ddp->elements;
    call.count = zero1->share;
    if (call.variable_counts) {
        call.count = zero1->count[comm->rank];
        call.out_count = zero1->count;
    }
    return dpari_post_alike(comm, &call, hash, DPARI_ZERO1_ALIKE, NULL);
}

/* Posts the reductions of bucket k for zero1: each part of it is sent only to the rank that owns
 * it. */
static dpar_status dpari_ddp_scatter(dpar_ddp *ddp, int32_t k)
{
    const dpar_zero1 *zero1 = ddp->zero1;
    const int32_t type = ddp->desc.type;
    const int64_t each = dpar_type_bytes(type);
    const dpar_bucket *b = &ddp->bucket[k];
    int64_t lo = b->lo;
    dpar_status status = DPAR_OK;
    if (b->hi - lo == ddp->elements) {
        unsigned char *const own = ddp->buffer + dpari_ddp_first(zero1) * each;
        dpar_work *const work = dpari_ddp_work(ddp, k);
        return zero1->share * ddp->comm->size == ddp->elements
                   ? dpar_reduce_scatter(ddp->comm, ddp->buffer, own, zero1->share, type, DPAR_AVG,
                                         work)
                   : dpar_reduce_scatter_v(ddp->comm, ddp->buffer, own, zero1->count, type,
                                           DPAR_AVG, work);
    }
    while (lo < b->hi && status == DPAR_OK) { /* one reduction per share that the bucket touches */
        const int32_t owner = (int32_t)(lo / zero1->share);
        const int64_t hi = dpari_least(b->hi, (owner + INT64_C(1)) * zero1->share);
        unsigned char *const data = ddp->buffer + lo * each;
        status = dpar_reduce(ddp->comm, data, data, hi - lo, type, DPAR_AVG, owner,
                             dpari_ddp_work(ddp, k));
        lo = hi;
    }
    return status;
}

/* Posts an all-reduce of `count` elements of bucket k. */
static dpar_status dpari_ddp_reduce(dpar_ddp *ddp, int32_t k, void *data, int64_t count,
                                    int32_t type)
{
    const int32_t op = ddp->desc.sum ? DPAR_SUM : DPAR_AVG;
    dpar_work *const work = dpari_ddp_work(ddp, k);
    return ddp->through
               ? dpari_all_reduce_through(ddp->comm, data, count, ddp->desc.wire_type, op, work)
               : dpar_all_reduce(ddp->comm, data, data, count, type, op, work);
}

/* Posts the reduction of bucket k. */
static DPARI_COLD dpar_status dpari_ddp_send(dpar_ddp *ddp, int32_t k)
{
    const dpar_ddp_desc *desc = &ddp->desc;
    const dpar_bucket *b = &ddp->bucket[k];
    const int32_t type = ddp->copy_type;
    unsigned char *data;
    int64_t count;
    int32_t i;
    dpar_status status = DPAR_OK;
    if (desc->check_finite && dpari_ddp_check_finite(ddp, k) != DPAR_OK) {
        return ddp->status;
    }
    if (ddp->copy != NULL) {
        status = dpari_ddp_copy(ddp, k, 0);
        if (status != DPAR_OK) {
            return status;
        }
    }
    ddp->works[k] = ddp->work_count;
    ddp->posted++; /* before posting, because a call that fails may already have posted */
    if (ddp->scatter) {
        return dpari_ddp_scatter(ddp, k);
    }
    for (i = b->first_param; ddp->array != NULL && i < b->end_param && status == DPAR_OK; i++) {
        if (ddp->start[i + 1] == ddp->start[i] && ddp->count[i] > 0) {
            status = dpari_ddp_reduce(ddp, k, ddp->array[i], ddp->count[i], desc->type);
        }
    }
    if (status != DPAR_OK || (ddp->array != NULL && b->hi == b->lo && desc->hook == NULL)) {
        return status;
    }
    data = dpari_ddp_data(ddp, k, &count);
    if (desc->hook != NULL) {
        status = desc->hook(desc->ctx, ddp->comm, k, data, count, type, dpari_ddp_work(ddp, k));
        return status > 0 ? DPAR_OK : status; /* a positive status is not an error */
    }
    if (ddp->blocks.sent == NULL) {
        return dpari_ddp_reduce(ddp, k, data, count, type);
    }
    if (count == 0) {
        return DPAR_OK;
    }
    return dpari_wire_begin(&ddp->blocks, dpari_ddp_position(ddp, k), data, count,
                            dpari_ddp_work(ddp, k));
}

/* Posts the next bucket and those after it, up to the first that is not complete. */
static dpar_status dpari_ddp_send_ready(dpar_ddp *ddp)
{
    while (ddp->latest < ddp->edge && ddp->status == DPAR_OK) {
        ddp->status = dpari_ddp_send(ddp, ddp->next++);
        ddp->edge = ddp->next < ddp->buckets ? ddp->bucket[ddp->next].first_param : -1;
    }
    return ddp->status;
}

/* Handles the rare cases of dpar_ddp_ready: begins a pass if none is in progress, and otherwise
 * reports why parameter i is rejected. */
static DPARI_COLD dpar_status dpari_ddp_not_ready(dpar_ddp *ddp, int32_t i)
{
    if (ddp == NULL) {
        return DPAR_E_ARG;
    }
    if (!ddp->under_way && ddp->comm->status != DPAR_OK) {
        return ddp->comm->status;
    }
    if (i < 0 || i >= ddp->params) {
        return dpari_comm_wrong(
            ddp->comm, "dpar_ddp_ready: parameter %d does not exist (the model has 0 to %ld)", i,
            ddp->params - INT64_C(1));
    }
    if (ddp->under_way) {
        return dpari_comm_wrong(
            ddp->comm, "dpar_ddp_ready: parameter %d was already reported in this pass", i);
    }
    (void)dpar_ddp_begin(ddp, 1);
    return dpar_ddp_ready(ddp, i);
}

DPAR_API dpar_status dpar_ddp_ready(dpar_ddp *ddp, int32_t i)
{
    if (ddp == NULL || (uint32_t)i >= (uint32_t)ddp->open || ddp->seen[i] == ddp->pass) {
        return dpari_ddp_not_ready(ddp, i);
    }
    ddp->seen[i] = (uint8_t)ddp->pass;
    if (i != ddp->latest) {
        return ddp->status;
    }
    do {
        i--;
    } while (ddp->seen[i] == ddp->pass);
    ddp->latest = i;
    return i < ddp->edge ? dpari_ddp_send_ready(ddp) : ddp->status;
}

/* Makes the pass fail with "ddp: rank 1 has no gradient of 'a', 'b', 'c' and 7 others (...)". */
static dpar_status dpari_ddp_report_missing(dpar_ddp *ddp)
{
    enum { NAMED = 3 };
    dpar_why why;
    dpar_text t;
    int32_t i, n = 0;
    dpari_text_why(&t, &why);
    dpari_text_print(&t, "ddp: rank %d has no gradient of ", ddp->comm->rank);
    for (i = 0; i < ddp->params; i++) {
        if (ddp->seen[i] == ddp->pass) {
            continue;
        }
        if (n < NAMED) {
            dpar_text_put(&t, n > 0 ? ", " : "");
            dpari_ddp_put_name(ddp, &t, i);
        }
        n++;
    }
    if (n > NAMED) {
        dpari_text_print(&t, " and %d others", n - NAMED);
    }
    dpar_text_put(&t, " (desc.require_ready = 0 sends gradients that were not reported)");
    return dpari_ddp_stop(ddp, why.text);
}

/* Combines the flags in ddp->used, so that they are 1 if any rank reported the parameter. The flags
 * are sent from an array on the stack. An engine for a device checks whether memory is pinned, and
 * desc.memory may be pinned on one rank only. */
static dpar_status dpari_ddp_agree_on_used(dpar_ddp *ddp)
{
    enum { FLAGS = 256 };
    uint8_t flags[FLAGS];
    int32_t first;
    for (first = 0; first < ddp->params; first += FLAGS) {
        const int32_t count = (int32_t)dpari_least(FLAGS, ddp->params - first);
        dpar_status status;
        int32_t i;
        for (i = 0; i < count; i++) {
            flags[i] = ddp->used[first + i];
        }
        status = dpar_all_reduce(ddp->comm, flags, flags, count, DPAR_U8, DPAR_MAX, NULL);
        if (status != DPAR_OK) {
            return status;
        }
        for (i = 0; i < count; i++) {
            ddp->used[first + i] = flags[i];
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_ddp_finish(dpar_ddp *ddp, int32_t scatter)
{
    const int32_t track_used = ddp->desc.track_used;
    int32_t i;
    if (!ddp->under_way) {
        const dpar_status status = dpar_ddp_begin(ddp, 1);
        if (status != DPAR_OK) {
            return status;
        }
    }
    if (ddp->last && ddp->latest >= 0 && ddp->desc.require_ready && ddp->status == DPAR_OK) {
        (void)dpari_ddp_report_missing(ddp);
    }
    ddp->latest = -1;
    /* If there is only one bucket and nothing was sent yet, one call sends it and waits. */
    ddp->alone = ddp->buckets == 1 && ddp->next == 0 && ddp->desc.hook == NULL && !ddp->through &&
                 ddp->blocks.sent == NULL && (ddp->array == NULL || ddp->params == 1);
    (void)dpari_ddp_send_ready(ddp);
    ddp->alone = 0;
    dpari_ddp_wait_posted(ddp);
    for (i = 0; track_used && i < ddp->params; i++) {
        ddp->used[i] = ddp->seen[i] != 0;
    }
    if (ddp->last && track_used && ddp->status == DPAR_OK) {
        ddp->status = dpari_ddp_agree_on_used(ddp);
    }
    if (ddp->last && ddp->scatter && !scatter && ddp->status == DPAR_OK) {
        ddp->status = dpari_ddp_gather(ddp->zero1, ddp->buffer, 0);
    }
    if (ddp->last) {
        ddp->scatter = scatter;
        ddp->ended = !scatter && ddp->status == DPAR_OK;
    }
    ddp->under_way = 0;
    ddp->open = 0;
    return ddp->status;
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_end(dpar_ddp *ddp)
{
    return ddp != NULL ? dpari_ddp_finish(ddp, 0) : DPAR_E_ARG;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_ddp_squares(dpar_ddp *ddp, const uint8_t *duplicate,
                                                        double *squares)
{
    dpar_comm *comm = ddp->comm;
    /* The padding in one buffer is 0, so that the buffer counts like one parameter. */
    const int whole = ddp->buffer != NULL && duplicate == NULL;
    const int32_t params = whole ? 1 : ddp->params;
    const int64_t each = dpar_type_bytes(ddp->desc.type);
    int64_t total = 0, at = 0, share, lo;
    dpar_mem_squares s;
    int32_t i;
    dpar_status status = dpari_ddp_pin(ddp);
    if (status != DPAR_OK) {
        return dpari_comm_wrong_all(comm, status, "ddp: %ld bytes cannot be pinned",
                                    (int64_t)sizeof ddp->result);
    }
    for (i = 0; i < params; i++) {
        total += whole ? ddp->elements : ddp->count[i];
    }
    share = dpari_ceil_div(total, comm->size);
    lo = share * comm->rank;
    dpari_zero(&s, sizeof s);
    s.type = ddp->desc.type;
    s.accumulate = 1;
    s.sum = &ddp->result.squares;
    ddp->result.squares = 0.0;
    for (i = 0; i < params && status == DPAR_OK; i++) {
        const int64_t count = whole ? ddp->elements : ddp->count[i];
        const int64_t skip = dpari_most(0, lo - at), end = dpari_least(count, lo + share - at);
        const unsigned char *from =
            whole ? ddp->buffer : (const unsigned char *)dpari_ddp_at(ddp, i);
        at += count;
        if (skip < end && (duplicate == NULL || !duplicate[i])) {
            s.in = from + skip * each;
            s.count = end - skip;
            status = dpari_do_squares(comm, &s);
        }
    }
    if (status == DPAR_OK) {
        status = dpari_do_wait(comm);
    }
    *squares = ddp->result.squares; /* copied, because collectives need memory of one kind */
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_norm(dpar_ddp *ddp, dpar_update *update)
{
    double squares = 0.0;
    dpar_why why;
    dpar_status status;
    if (ddp == NULL) {
        return DPAR_E_ARG;
    }
    if (ddp->comm->status != DPAR_OK) {
        return ddp->comm->status;
    }
    status = dpari_update_check(update, "dpar_ddp_norm", &why);
    if (status == DPAR_OK && (ddp->under_way || (!ddp->ended && ddp->zero1 == NULL))) {
        status = dpari_wrong(&why, "dpar_ddp_norm: gradients are not averages yet (dpar_ddp_end)");
    }
    if (status != DPAR_OK) {
        return dpari_update_refuse(ddp->comm, NULL, update, status, &why);
    }
    status = dpari_ddp_squares(ddp, update->duplicate, &squares);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_update_norm(ddp->comm, NULL, update, squares, 0, "ddp: rate, clip or factor");
}

DPAR_API DPARI_COLD dpar_status dpar_ddp_free(dpar_ddp *ddp)
{
    if (ddp == NULL) {
        return DPAR_OK;
    }
    if (ddp->under_way && ddp->comm->status == DPAR_OK) {
        return dpari_comm_wrong(ddp->comm, "dpar_ddp_free: a pass is in progress (dpar_ddp_end)");
    }
    if (ddp->zero1 != NULL) { /* also an error if the communicator is broken */
        (void)dpari_comm_wrong(
            ddp->comm, "dpar_ddp_free: the zero1 on it must be freed first (dpar_zero1_free)");
        return DPAR_E_ARG;
    }
    dpari_ddp_wait_posted(
        ddp); /* a pass that failed may still have operations that use the memory */
    dpari_ddp_release(ddp);
    return DPAR_OK;
}

/* ==== train/zero1.c ==== */

/* ZeRO-1 on the flat array of a ddp. A step ends the pass with a reduce-scatter, updates this
 * rank's share with the optimizer, group after group, and gathers the weights of all ranks.
 *
 * The buckets of a pass are sent in one of two ways (ddp->scatter): each part only to the rank that
 * owns it, or the averages to all ranks. The way must be known before the pass ends, because a rank
 * that reports gradients early sends them before it calls dpar_zero1_step or dpar_ddp_end. It must
 * also be the same on all ranks. Each pass therefore sends in the way in which the previous pass
 * ended. If a pass that was sent only to owners ends with dpar_ddp_end, the averages are gathered.
 * ddp.c implements both ways and this gather.
 *
 * The ranks must use the same optimizer, rate, clip and factor. They compare a hash of these values
 * in the all-reduce of the norm (update.c). */

/* ---- made and freed -------------------------------------------------------------------------- */

/* The values that must be equal on all ranks in dpar_zero1_make. */
typedef struct dpari_zero1_given {
    const dpar_zero1_desc *desc;
    int32_t moments, moment_type;
} dpari_zero1_given;

/* Lists the values that must be equal on all ranks. */
static DPARI_COLD void dpari_zero1_facts(dpari_facts *facts, const void *given)
{
    const dpari_zero1_given *g = (const dpari_zero1_given *)given;
    const dpar_zero1_desc *desc = g->desc;
    int32_t i;
    dpari_update_facts(facts, desc->optimizer, g->moment_type);
    dpari_fact(facts, "the number of moments", 0, g->moments);
    dpari_fact(facts, "steps", 0, desc->steps);
    dpari_fact(facts, "the number of groups", 0, desc->groups);
    for (i = 0; i < desc->groups; i++) {
        dpari_fact(facts, "group[#].first", i, desc->group[i].first);
        dpari_fact(facts, "group[#].count", i, desc->group[i].count);
        dpari_update_facts_group(facts, i, &desc->group[i].numbers);
    }
}

/* Checks that the groups of a descriptor ascend, do not overlap, and have valid numbers. */
static DPARI_COLD dpar_status dpari_zero1_check_groups(const dpar_ddp *ddp,
                                                       const dpar_zero1_desc *desc, dpar_why *why)
{
    dpar_status status;
    int64_t at = 0;
    int32_t i;
    if (desc->groups < 0 || (desc->groups > 0 && desc->group == NULL)) {
        return dpari_wrong(
            why,
            "dpar_zero1_make: groups is %d, but must be 0 or more; above 0, desc.group must not be "
            "NULL",
            desc->groups);
    }
    for (i = 0; i < desc->groups; i++) {
        const dpar_zero1_group *p = &desc->group[i];
        if (p->first < at || p->count < 0 || p->first > ddp->elements ||
            p->count > ddp->elements - p->first) {
            return dpari_wrong(
                why,
                "dpar_zero1_make: group %d begins at element %ld and has %ld elements, but groups "
                "must ascend without overlap within %ld elements",
                i, p->first, p->count, ddp->elements);
        }
        status = dpari_optimizer_check_group(&p->numbers, "dpar_zero1_make", i, why);
        if (status != DPAR_OK) {
            return status;
        }
        at = p->first + p->count;
    }
    return DPAR_OK;
}

/* Checks the ddp and the descriptor. Sets the number and type of the moments in g. */
static DPARI_COLD dpar_status dpari_zero1_check_desc(const dpar_ddp *ddp, dpari_zero1_given *g,
                                                     dpar_why *why)
{
    const dpar_zero1_desc *desc = g->desc;
    const int64_t bytes = ddp->elements * dpar_type_bytes(ddp->desc.type);
    int64_t apart;
    dpar_status status;
    if (ddp->desc.gradients == NULL || ddp->desc.hook != NULL || ddp->desc.sum || ddp->through ||
        ddp->copy != NULL) {
        return dpari_wrong(why, "dpar_zero1_make: the ddp must average one array (desc.gradients), "
                                "without hook, wire_type and sum");
    }
    if (ddp->zero1 != NULL || ddp->under_way) {
        return dpari_wrong(
            why, "dpar_zero1_make: the ddp already has a zero1, or a pass of it is in progress");
    }
    if (desc == NULL || (desc->weights == NULL && bytes > 0)) {
        return dpari_wrong(why, "dpar_zero1_make: the descriptor or its weights are NULL");
    }
    apart = (int64_t)((uintptr_t)desc->weights - (uintptr_t)ddp->buffer);
    if (apart < bytes && -apart < bytes) {
        return dpari_wrong(
            why,
            "dpar_zero1_make: the weights overlap the gradients: they begin %ld bytes "
            "after the beginning of the gradients, which take %ld bytes",
            apart, bytes);
    }
    if (desc->steps < 0 || desc->steps > INT64_MAX / 2) {
        return dpari_wrong(why, "dpar_zero1_make: steps is %ld, but must be 0 to 2^62 - 1",
                           desc->steps);
    }
    status =
        dpar_optimizer_check(desc->optimizer, ddp->desc.type, &g->moments, &g->moment_type, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (ddp->comm->mem != NULL && g->moment_type == DPAR_F8) {
        return dpari_wrong(
            why, "dpar_zero1_make: moment_type is f8, which needs the memory of the host");
    }
    return dpari_zero1_check_groups(ddp, desc, why);
}

/* Frees the memory of a zero1. */
static DPARI_COLD void dpari_zero1_release(dpar_zero1 *zero1)
{
    dpar_comm *comm = zero1->ddp->comm;
    if (zero1->moment[0] != NULL) {
        dpar_comm_release(comm, zero1->moment[0]);
    }
    dpari_object_release(zero1);
}

/* Allocates a zero1 and copies the values of the descriptor into it. Returns NULL if there is no
 * memory. */
static DPARI_COLD dpar_zero1 *dpari_zero1_create(dpar_ddp *ddp, const dpari_zero1_given *g)
{
    const dpar_zero1_desc *desc = g->desc;
    const int64_t groups = desc->groups * (int64_t)sizeof *desc->group;
    const int32_t ranks = ddp->comm->size;
    unsigned char *at;
    dpar_zero1 *zero1;
    int32_t i;
    at = (unsigned char *)dpari_object_alloc(ddp->comm, (int64_t)sizeof *zero1 + groups +
                                                            ranks * (int64_t)sizeof *zero1->count);
    if (at == NULL) {
        return NULL;
    }
    zero1 = (dpar_zero1 *)(void *)at;
    at += sizeof *zero1;
    zero1->group = (dpar_zero1_group *)(void *)at;
    zero1->count = (int64_t *)(void *)(at + groups);
    zero1->ddp = ddp;
    zero1->weights = (unsigned char *)desc->weights;
    if (zero1->weights == NULL) {
        /* There are no elements. Any address does to which C allows 0 to be added. */
        zero1->weights = at;
    }
    zero1->optimizer = desc->optimizer;
    zero1->kind = desc->optimizer->kind;
    zero1->moments = g->moments;
    zero1->moment_type = g->moment_type;
    zero1->steps = desc->steps;
    zero1->groups = desc->groups;
    for (i = 0; i < desc->groups; i++) {
        zero1->group[i] = desc->group[i];
    }
    zero1->share = dpari_moment_whole(zero1->moments > 0 ? zero1->moment_type : DPAR_TYPE_NONE,
                                      dpari_ceil_div(ddp->elements, ranks));
    for (i = 0; i < ranks; i++) {
        zero1->count[i] =
            dpari_least(zero1->share, ddp->elements - dpari_least(ddp->elements, zero1->share * i));
    }
    return zero1;
}

/* Allocates the moments, which dpar_comm_alloc sets to 0. */
static DPARI_COLD dpar_status dpari_zero1_allocate(dpar_zero1 *zero1)
{
    dpar_comm *comm = zero1->ddp->comm;
    const int64_t each = dpari_moment_bytes(zero1->moment_type, zero1->count[comm->rank]);
    void *memory = NULL;
    dpar_status status = dpari_ddp_pin(zero1->ddp);
    if (status != DPAR_OK || zero1->moments == 0) {
        return status;
    }
    status = dpar_comm_alloc(comm, dpari_most(64, each * zero1->moments), &memory);
    zero1->moment[0] = (unsigned char *)memory;
    if (status == DPAR_OK && zero1->moments > 1) {
        zero1->moment[1] = zero1->moment[0] + each;
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_zero1_make(dpar_ddp *ddp, const dpar_zero1_desc *desc,
                                                dpar_zero1 **zero1, dpar_why *why)
{
    dpari_zero1_given g;
    dpar_zero1 *z = NULL;
    dpar_status status;
    if (ddp == NULL) {
        return dpari_wrong(why, "dpar_zero1_make: the ddp is NULL");
    }
    why = dpari_why_of(ddp->comm, why);
    dpari_zero(&g, sizeof g);
    g.desc = desc;
    status = zero1 == NULL ? dpari_wrong(why, "dpar_zero1_make: the result is NULL")
                           : dpari_zero1_check_desc(ddp, &g, why);
    if (status == DPAR_OK) {
        z = dpari_zero1_create(ddp, &g);
        status = z != NULL ? dpari_zero1_allocate(z) : DPAR_E_MEMORY;
        if (status != DPAR_OK) {
            (void)dpari_say(status, why,
                            "dpar_zero1_make: no memory for %d moments of %ld elements per rank",
                            g.moments, dpari_ceil_div(ddp->elements, ddp->comm->size));
        }
    }
    status = dpari_agree_on(ddp->comm, status, "zero1", dpari_zero1_facts, &g, why);
    if (status != DPAR_OK) {
        if (z != NULL) {
            dpari_zero1_release(z);
        }
        return status;
    }
    ddp->zero1 = z;
    ddp->scatter = 1;
    ddp->ended = 0;
    *zero1 = z;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_zero1_free(dpar_zero1 *zero1)
{
    dpar_ddp *ddp;
    if (zero1 == NULL) {
        return DPAR_OK;
    }
    ddp = zero1->ddp;
    if (ddp->under_way && ddp->comm->status == DPAR_OK) {
        return dpari_comm_wrong(ddp->comm, "dpar_zero1_free: a pass is in progress (dpar_ddp_end)");
    }
    if (ddp->under_way) { /* the communicator broke: its operations still read zero1->count */
        (void)dpari_ddp_finish(ddp, 0);
    }
    ddp->zero1 = NULL;
    ddp->scatter = 0;
    dpari_zero1_release(zero1);
    return DPAR_OK;
}

DPAR_API DPARI_COLD void *dpar_zero1_state(dpar_zero1 *zero1, int32_t array, int64_t *first,
                                           int64_t *count, int32_t *type)
{
    if (zero1 == NULL) {
        return NULL;
    }
    if (first != NULL) {
        *first = dpari_ddp_first(zero1);
    }
    if (count != NULL) {
        *count = zero1->count[zero1->ddp->comm->rank];
    }
    if (array < 0 || array >= zero1->moments) {
        return NULL;
    }
    if (type != NULL) {
        *type = zero1->moment_type;
    }
    if (zero1->moment_type == DPAR_F8) { /* bytes of the records */
        if (first != NULL) {
            *first = dpari_moment_bytes(DPAR_F8, *first);
        }
        if (count != NULL) {
            *count = dpari_moment_bytes(DPAR_F8, *count);
        }
    }
    return zero1->moment[array];
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Updates elements lo .. hi - 1 of the flat array, which are in this rank's share, with the numbers
 * of a group. If group is NULL, uses those of the optimizer and the step. */
static dpar_status dpari_zero1_update_range(dpar_zero1 *zero1, const dpar_zero1_group *group,
                                            int64_t lo, int64_t hi, const dpar_mem_optimize *call)
{
    const int64_t first = dpari_ddp_first(zero1), in_share = lo - first;
    const int64_t each = dpar_type_bytes(zero1->ddp->desc.type);
    const int64_t moment = dpari_moment_at(zero1->moment_type, 0, in_share);
    dpar_optimizer optimizer = *call->optimizer;
    dpar_mem_optimize update = *call;
    dpar_optimizer_piece p;
    dpari_zero(&p, sizeof p);
    p.weight = zero1->weights + lo * each;
    p.gradient = zero1->ddp->buffer + lo * each;
    p.m = zero1->moments > 0 ? zero1->moment[0] + moment : NULL;
    p.v = zero1->moments > 1 ? zero1->moment[1] + moment : NULL;
    p.weight_type = p.gradient_type = zero1->ddp->desc.type;
    p.count = hi - lo;
    p.index = (uint64_t)lo;
    if (group != NULL) {
        dpari_optimizer_use_group(&group->numbers, &optimizer, &update.rate);
    }
    update.optimizer = &optimizer;
    update.piece = &p;
    return dpari_do_optimize(zero1->ddp->comm, &update);
}

/* Updates this rank's share, one piece per group and one per gap between groups. */
static dpar_status dpari_zero1_update_all(dpar_zero1 *zero1, const dpar_mem_optimize *call)
{
    const int64_t end = dpari_ddp_first(zero1) + zero1->count[zero1->ddp->comm->rank];
    int64_t lo = dpari_ddp_first(zero1), hi;
    int32_t k = 0;
    dpar_status st = DPAR_OK;
    for (; lo < end && st == DPAR_OK; lo = hi) {
        const dpar_zero1_group *g;
        while (k < zero1->groups && zero1->group[k].first + zero1->group[k].count <= lo) {
            k++;
        }
        g = k < zero1->groups ? &zero1->group[k] : NULL;
        hi = end;
        if (g != NULL && g->first > lo) { /* elements before the next group */
            hi = dpari_least(end, g->first);
            g = NULL;
        } else if (g != NULL) {
            hi = dpari_least(end, g->first + g->count);
        }
        st = dpari_zero1_update_range(zero1, g, lo, hi, call);
    }
    return st;
}

/* Checks the arguments of a step, and that the optimizer still has the kind and the moments for
 * which the state was allocated. */
static dpar_status dpari_zero1_check(const dpar_zero1 *zero1, const dpar_update *update,
                                     const char *name, dpar_why *why)
{
    const dpar_optimizer *optimizer = zero1->optimizer;
    int32_t moments = 0, moment_type = 0;
    dpar_status status =
        dpar_optimizer_check(optimizer, zero1->ddp->desc.type, &moments, &moment_type, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (zero1->kind != optimizer->kind || zero1->moments != moments ||
        zero1->moment_type != moment_type) {
        return dpari_wrong(
            why,
            "%s: the optimizer has kind %d with %d moments, the state is for kind %d with %d, or "
            "of another type",
            name, optimizer->kind, moments, zero1->kind, zero1->moments);
    }
    if (zero1->ddp->under_way && !zero1->ddp->last) {
        return dpari_wrong(why, "%s: the pass in progress was begun with last = 0", name);
    }
    return dpari_update_check(update, name, why);
}

/* Returns a hash of the optimizer's numbers, which must be equal on all ranks in a step. The kind
 * and the moment type need no comparison: all ranks had the same ones in dpar_zero1_make, and
 * dpari_zero1_check rejects a change. */
static uint64_t dpari_zero1_hash(const dpar_optimizer *p)
{
    uint64_t h = dpari_hash(dpari_hash(0, p->nesterov), p->stochastic);
    h = dpari_hash_real(dpari_hash(h, (int64_t)p->seed), p->beta1);
    h = dpari_hash_real(dpari_hash_real(h, p->beta2), p->epsilon);
    return dpari_hash_real(dpari_hash_real(h, p->momentum), p->decay);
}

/* Ends the pass, unless its averages are known, and computes the norm. */
static DPARI_COLD dpar_status dpari_zero1_end(dpar_zero1 *zero1, dpar_update *update,
                                              const char *name)
{
    dpar_ddp *ddp;
    dpar_why why;
    double squares = 0.0;
    dpar_status status;
    if (zero1 == NULL) {
        return DPAR_E_ARG;
    }
    ddp = zero1->ddp;
    if (ddp->comm->status != DPAR_OK) {
        return ddp->comm->status;
    }
    status = dpari_zero1_check(zero1, update, name, &why);
    if (status != DPAR_OK) {
        return dpari_update_refuse(ddp->comm, NULL, update, status, &why);
    }
    if (!ddp->ended) {
        status = dpari_ddp_finish(ddp, 1);
        if (status != DPAR_OK) {
            return status;
        }
    }
    ddp->ended = 0;
    status = dpari_ddp_squares(ddp, update->duplicate, &squares);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_update_norm(ddp->comm, NULL, update, squares, dpari_zero1_hash(zero1->optimizer),
                             DPARI_ZERO1_ALIKE);
}

DPAR_API DPARI_COLD dpar_status dpar_zero1_norm(dpar_zero1 *zero1, dpar_update *update)
{
    const dpar_status status = dpari_zero1_end(zero1, update, "dpar_zero1_norm");
    if (status == DPAR_OK) {
        zero1->ddp->ended = 1;
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_zero1_gather(dpar_zero1 *zero1)
{
    if (zero1 == NULL) {
        return DPAR_E_ARG;
    }
    if (zero1->ddp->under_way) {
        return dpari_comm_wrong(zero1->ddp->comm,
                                "dpar_zero1_gather: a pass is in progress (dpar_zero1_norm)");
    }
    zero1->ddp->ended = 0;
    zero1->steps++;
    return dpari_ddp_gather(zero1, zero1->weights, 1);
}

DPAR_API DPARI_COLD dpar_status dpar_zero1_update(dpar_zero1 *zero1, dpar_update *update)
{
    dpar_mem_optimize call;
    dpar_status status = dpari_zero1_end(zero1, update, "dpar_zero1_update");
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&call, sizeof call);
    call.optimizer = zero1->optimizer;
    call.step = zero1->steps + 1;
    call.rate = update->rate;
    call.factor = update->scale;
    status = dpari_zero1_update_all(zero1, &call);
    if (status != DPAR_OK) {
        return status;
    }
    return dpar_zero1_gather(zero1);
}

DPAR_API DPARI_COLD dpar_status dpar_zero1_step(dpar_zero1 *zero1, double rate, double clip)
{
    dpar_update update;
    dpari_zero(&update, sizeof update);
    update.rate = rate;
    update.clip = clip;
    return dpar_zero1_update(zero1, &update);
}

/* ==== train/fsdp_place.c ==== */

/* ---- the descriptor -------------------------------------------------------------------------- */

DPARI_INTERNAL int dpari_fsdp_weights_whole(const dpar_fsdp_desc *desc)
{
    return desc->zero < 3;
}

DPARI_INTERNAL int dpari_fsdp_gradients_whole(const dpar_fsdp_desc *desc)
{
    return desc->zero < 2 || desc->reduce_last;
}

/* True if the masters are a part of the whole weights and need no separate array. */
static int dpari_fsdp_inside(const dpar_fsdp_desc *desc)
{
    return dpari_fsdp_weights_whole(desc) && desc->type == desc->compute_type;
}

DPARI_INTERNAL int32_t dpari_fsdp_moment_type(const dpar_fsdp_desc *desc)
{
    return dpari_optimizer_moment_type(&desc->optimizer, desc->type);
}

DPARI_INTERNAL int64_t dpari_fsdp_shard(const dpar_fsdp_desc *desc, int64_t total, int32_t shards)
{
    return dpari_moment_whole(dpari_fsdp_moment_type(desc), dpari_ceil_div(total, shards));
}

/* Fills in the defaults of a descriptor. */
static dpar_fsdp_desc dpari_fsdp_complete(const dpar_fsdp_desc *desc)
{
    dpar_fsdp_desc full = *desc;
    if (full.zero == 0) {
        full.zero = 3;
    }
    if (full.type == DPAR_TYPE_NONE) {
        full.type = DPAR_F32;
    }
    if (full.compute_type == DPAR_TYPE_NONE) {
        full.compute_type = full.type;
    }
    if (full.gradient_type == DPAR_TYPE_NONE) {
        full.gradient_type = full.compute_type;
    }
    return full;
}

DPARI_INTERNAL int32_t dpari_fsdp_slices(const dpar_fsdp_array *array)
{
    return (int32_t)dpari_most(1, array->slices);
}

DPARI_INTERNAL int32_t dpari_fsdp_params(const dpar_fsdp_desc *desc, int32_t u)
{
    return desc->params_per_unit != NULL ? desc->params_per_unit[u] : 1;
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_fsdp_listed(const dpar_fsdp_desc *desc, int64_t params)
{
    return desc->arrays > 0 ? desc->arrays : (int32_t)params;
}

DPARI_INTERNAL DPARI_COLD void dpari_fsdp_range(const dpar_fsdp_desc *desc, int32_t u,
                                                int64_t first, int64_t *begin, int64_t *end)
{
    *begin = 0;
    *end = desc->arrays;
    if (desc->arrays == 0) {
        *begin = first;
        *end = first + dpari_fsdp_params(desc, u);
    }
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_fsdp_elements(const dpar_fsdp_desc *desc, int32_t u,
                                                      int64_t place)
{
    const dpar_fsdp_array *a;
    if (desc->arrays == 0) {
        return desc->count[place];
    }
    a = &desc->array[place];
    return u >= a->unit && u - a->unit < dpari_fsdp_slices(a) ? a->count : -1;
}

DPARI_INTERNAL int32_t dpari_fsdp_flag(const int32_t *flags, int32_t u)
{
    return flags != NULL ? flags[u] : 0;
}

static DPARI_COLD dpar_status dpari_fsdp_check_types(const dpar_fsdp_desc *desc, dpar_why *why)
{
    if (!dpari_is_float(desc->type)) {
        return dpari_wrong(why, "fsdp: type is %s, but must be f64, f32, bf16 or f16",
                           dpar_type_name(desc->type));
    }
    if (desc->compute_type != desc->type && !dpari_narrows(desc->type, desc->compute_type)) {
        return dpari_wrong(why,
                           "fsdp: compute_type is %s, but must be `type`, or f32 if that is f64, "
                           "or bf16 or f16 if that is f32",
                           dpar_type_name(desc->compute_type));
    }
    if (!dpari_is_float(desc->gradient_type) ||
        (desc->gradient_type != desc->compute_type &&
         dpar_type_bytes(desc->gradient_type) <= dpar_type_bytes(desc->compute_type))) {
        return dpari_wrong(why, "fsdp: gradient_type is %s, but must be compute_type or wider",
                           dpar_type_name(desc->gradient_type));
    }
    return DPAR_OK;
}

/* Checks the sizes and units of the arrays. */
static DPARI_COLD dpar_status dpari_fsdp_check_slices(const dpar_fsdp_desc *desc, dpar_why *why)
{
    int32_t i, u;
    if (desc->arrays < 0 || desc->array == NULL || desc->count != NULL ||
        desc->params_per_unit != NULL) {
        return dpari_wrong(
            why,
            "fsdp: arrays is %d, but must be 0 or more; above 0, desc.array must not "
            "be NULL, but desc.count and desc.params_per_unit must",
            desc->arrays);
    }
    for (i = 0; i < desc->arrays; i++) {
        const dpar_fsdp_array *a = &desc->array[i];
        const int32_t slices = dpari_fsdp_slices(a);
        int wrong = a->count < 0 || a->slices < 0 || a->unit < 0 || slices > desc->units - a->unit;
        /* a pointer cannot point to the slices of several units during a whole pass */
        for (u = a->unit; slices > 1 && u < a->unit + slices && !wrong; u++) {
            wrong = dpari_fsdp_flag(desc->resident, u);
        }
        if (wrong) {
            return dpari_wrong(
                why,
                "fsdp: array %d has %d slices of %ld elements from unit %d on, but "
                "sizes must be 0 or more, the units among the %d that exist, and not "
                "resident if there are several slices",
                i, a->slices, a->count, a->unit, desc->units);
        }
    }
    return DPAR_OK;
}

/* Checks a descriptor whose defaults are filled in, except for the lists. */
static DPARI_COLD dpar_status dpari_fsdp_check_desc(int32_t shards, const dpar_fsdp_desc *desc,
                                                    dpar_why *why)
{
    dpar_status st;
    int32_t i;
    if (shards < 1) {
        return dpari_wrong(
            why, "fsdp: %d ranks share a copy of the model, but need to be 1 or more", shards);
    }
    if (desc->units < 0) {
        return dpari_wrong(why, "fsdp: units is %d, but must be 0 or more", desc->units);
    }
    if (desc->units > 0 && desc->count == NULL && desc->arrays == 0) {
        return dpari_wrong(why, "fsdp: count is NULL, but there are %d units", desc->units);
    }
    if (desc->zero < 1 || desc->zero > 3) {
        return dpari_wrong(why, "fsdp: zero is %d, but must be 1, 2 or 3, or 0 for 3", desc->zero);
    }
    if (!dpari_is_flag(desc->reduce_last) || !dpari_is_flag(desc->sum) ||
        !dpari_is_flag(desc->overwrite_gradients)) {
        return dpari_wrong(why,
                           "fsdp: reduce_last is %d, sum %d and overwrite_gradients %d, but each "
                           "must be 0 or 1",
                           desc->reduce_last, desc->sum, desc->overwrite_gradients);
    }
    if (desc->prefetch < 0 || desc->gradient_buffers < 0 || desc->align < 0 ||
        desc->units_in_use < 0) {
        return dpari_wrong(
            why,
            "fsdp: prefetch is %d, gradient_buffers %d, align %ld and units_in_use %d, but none "
            "may be negative",
            desc->prefetch, desc->gradient_buffers, desc->align, desc->units_in_use);
    }
    if (desc->gradient_buffers > 0 && desc->gradient_buffers < desc->units_in_use) {
        return dpari_say(DPAR_E_ROOM, why,
                         "fsdp: units_in_use is %d, but gradient_buffers holds the gradients of "
                         "only %d units",
                         desc->units_in_use, desc->gradient_buffers);
    }
    if (desc->groups < 0 || (desc->groups > 0 && (desc->group == NULL || desc->group_of == NULL))) {
        return dpari_wrong(why,
                           "fsdp: groups is %d, but must be 0 or more; above 0, desc.group and "
                           "desc.group_of must not be NULL",
                           desc->groups);
    }
    for (i = 0; i < desc->groups; i++) {
        st = dpari_optimizer_check_group(&desc->group[i], "fsdp", i, why);
        if (st != DPAR_OK) {
            return st;
        }
    }
    st = dpari_fsdp_check_types(desc, why);
    if (st == DPAR_OK && desc->arrays != 0) {
        st = dpari_fsdp_check_slices(desc, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpar_optimizer_check(&desc->optimizer, desc->type, NULL, NULL, why);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD void dpari_fsdp_place(dpar_fsdp *fsdp, void *memory, int64_t *bytes)
{
    dpari_room r = dpari_room_of(memory);
    (void)dpari_room_take(&r, 1, sizeof *fsdp);
    fsdp->unit = (dpari_fsdp_unit *)dpari_room_take(&r, fsdp->units, sizeof *fsdp->unit);
    fsdp->slot = (dpari_fsdp_slot *)dpari_room_take(&r, fsdp->slots, sizeof *fsdp->slot);
    fsdp->bucket = (dpari_fsdp_slot *)dpari_room_take(&r, fsdp->buckets, sizeof *fsdp->bucket);
    fsdp->count = (int64_t *)dpari_room_take(&r, fsdp->params, sizeof *fsdp->count);
    fsdp->start = (int64_t *)dpari_room_take(&r, fsdp->params, sizeof *fsdp->start);
    fsdp->home = (int32_t *)dpari_room_take(&r, fsdp->params, sizeof *fsdp->home);
    if (fsdp->desc.groups > 0) {
        fsdp->group_of = (int32_t *)dpari_room_take(&r, fsdp->params, sizeof *fsdp->group_of);
        fsdp->group =
            (dpar_optimizer_group *)dpari_room_take(&r, fsdp->desc.groups, sizeof *fsdp->group);
    }
    if (fsdp->desc.arrays > 0) {
        fsdp->array_of = (int32_t *)dpari_room_take(&r, fsdp->params, sizeof *fsdp->array_of);
        fsdp->array =
            (dpar_fsdp_array *)dpari_room_take(&r, fsdp->desc.arrays, sizeof *fsdp->array);
    }
    *bytes = r.used;
}

/* Counts the parameters of unit u, whose first has number `first`, and its elements. Parameters
 * follow each other at multiples of `align`. */
static DPARI_COLD dpar_status dpari_fsdp_total(const dpar_fsdp_desc *desc, int32_t u, int64_t first,
                                               int64_t align, int64_t *params, int64_t *total,
                                               dpar_why *why)
{
    int64_t i, begin, end;
    dpari_fsdp_range(desc, u, first, &begin, &end);
    *params = 0;
    *total = 0;
    for (i = begin; i < end; i++) {
        const int64_t at = *total + (align - *total % align) % align;
        const int64_t count = dpari_fsdp_elements(desc, u, i);
        if (count < 0 && desc->arrays > 0) {
            continue;
        }
        if (count < 0) {
            return dpari_wrong(
                why, "fsdp: parameter %d of unit %d has %ld elements, but must have 0 or more",
                (int32_t)(i - begin), u, count);
        }
        if (count > (INT64_C(1) << 48) || at > (INT64_C(1) << 48)) {
            return dpari_say(DPAR_E_RANGE, why, "fsdp: unit %d has more than 2^48 elements", u);
        }
        *total = at + count;
        *params += 1;
    }
    return DPAR_OK;
}

/* Computes the number of slots and of buckets. */
static DPARI_COLD void dpari_fsdp_count_slots(dpar_fsdp *fsdp)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    const int64_t in_use = dpari_most(1, desc->units_in_use);
    fsdp->slots = fsdp->units;
    fsdp->buckets = fsdp->units;
    if (!dpari_fsdp_weights_whole(desc)) {
        fsdp->pool_slots = (int32_t)dpari_least(fsdp->full, desc->prefetch + in_use);
        fsdp->slots = fsdp->pool_slots + fsdp->residents;
    }
    if (!dpari_fsdp_gradients_whole(desc)) {
        fsdp->pool_buckets =
            (int32_t)dpari_least(fsdp->full_trained, dpari_most(in_use, desc->gradient_buffers));
        fsdp->buckets = fsdp->pool_buckets + fsdp->residents;
    }
}

/* Counts the parameters, elements and slots of a descriptor, and stores the numbers in `fsdp`. */
static DPARI_COLD dpar_status dpari_fsdp_count(dpar_fsdp *fsdp, int32_t shards,
                                               const dpar_fsdp_desc *desc, dpar_why *why)
{
    const int64_t align = dpari_most(1, desc->align);
    int64_t params = 0, here, total, pool, whole = 0;
    int32_t u, i;
    dpari_zero(fsdp, sizeof *fsdp);
    fsdp->desc = *desc;
    fsdp->units = desc->units;
    for (u = 0; u < fsdp->units; u++) {
        const int32_t frozen = dpari_fsdp_flag(desc->frozen, u);
        const int32_t resident = dpari_fsdp_flag(desc->resident, u);
        dpar_status st;
        if (!dpari_is_flag(frozen) || !dpari_is_flag(resident)) {
            const int good = dpari_is_flag(frozen);
            return dpari_wrong(why, "fsdp: %s[%d] is %d, but must be 0 or 1",
                               good ? "resident" : "frozen", u, good ? resident : frozen);
        }
        if (dpari_fsdp_params(desc, u) < 0 || align > (INT64_C(1) << 40)) {
            return dpari_wrong(
                why,
                "fsdp: unit %d has %d parameters and align is %ld, but a unit must have 0 or more, "
                "and align must be at most 2^40",
                u, dpari_fsdp_params(desc, u), align);
        }
        st = dpari_fsdp_total(desc, u, params, align, &here, &total, why);
        if (st != DPAR_OK) {
            return st;
        }
        params += here;
        total = dpari_fsdp_shard(desc, total, shards);
        fsdp->shard_sum += total;
        whole += total * shards;
        fsdp->residents += resident;
        if (resident) {
            fsdp->resident_sum += total * shards;
        } else {
            fsdp->largest = dpari_most(fsdp->largest, total * shards);
            fsdp->full += total > 0;
        }
        if (!frozen) {
            fsdp->trained_sum += total;
        }
        if (!frozen && resident) {
            fsdp->resident_trained_sum += total * shards;
        } else if (!frozen) {
            fsdp->largest_trained = dpari_most(fsdp->largest_trained, total * shards);
            fsdp->full_trained += total > 0;
        }
        if (params > INT32_MAX || whole > DPARI_FSDP_MOST) {
            return dpari_say(
                DPAR_E_RANGE, why,
                "fsdp: the units up to %d have %ld parameters and %ld elements, but may have at "
                "most 2^31 - 1 and 2^50",
                u, params, whole);
        }
    }
    for (i = 0; i < dpari_fsdp_listed(desc, params) && desc->groups > 0; i++) {
        if (desc->group_of[i] < -1 || desc->group_of[i] >= desc->groups) {
            return dpari_wrong(
                why, "fsdp: group_of[%d] is %d, but must be one of the %d groups, or -1 for none",
                i, desc->group_of[i], desc->groups);
        }
    }
    fsdp->params = (int32_t)params;
    dpari_fsdp_count_slots(fsdp);
    pool = dpari_most(1, dpari_most(fsdp->pool_slots, fsdp->pool_buckets));
    if (fsdp->largest > DPARI_FSDP_MOST / pool) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "fsdp: %ld units of up to %ld elements are in memory at once, but together they may "
            "have at most 2^50 elements",
            pool, fsdp->largest);
    }
    return DPAR_OK;
}

static DPARI_COLD void dpari_fsdp_sizes_of(dpar_fsdp *fsdp, int32_t shards, dpar_fsdp_sizes *s)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    const int64_t compute = dpar_type_bytes(desc->compute_type);
    const int64_t gradient = dpar_type_bytes(desc->gradient_type);
    dpari_zero(s, sizeof *s);
    dpari_fsdp_place(fsdp, NULL, &s->plan);
    if (dpari_fsdp_weights_whole(desc)) {
        s->weights = fsdp->shard_sum * shards * compute;
    } else {
        s->gathered = (fsdp->pool_slots * fsdp->largest + fsdp->resident_sum) * compute;
    }
    if (dpari_fsdp_gradients_whole(desc)) {
        s->gradients = fsdp->trained_sum * shards * gradient;
    } else {
        s->gradients = fsdp->trained_sum * dpar_type_bytes(dpari_wide_type(desc->type));
        s->buckets =
            (fsdp->pool_buckets * fsdp->largest_trained + fsdp->resident_trained_sum) * gradient;
    }
    if (!dpari_fsdp_inside(desc)) {
        s->master = fsdp->shard_sum * dpar_type_bytes(desc->type);
    }
    s->moments = dpari_moment_bytes(dpari_fsdp_moment_type(desc), fsdp->trained_sum) *
                 dpari_optimizer_moments(&desc->optimizer);
    s->registered = dpari_room_up(s->weights) + dpari_room_up(s->gathered) +
                    dpari_room_up(s->gradients) + dpari_room_up(s->buckets) +
                    dpari_room_up(s->master) + dpari_room_up(s->moments);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_fsdp_plan(dpar_fsdp *fsdp, int32_t shards,
                                                      const dpar_fsdp_desc *desc,
                                                      dpar_fsdp_sizes *sizes, dpar_why *why)
{
    dpar_fsdp_desc full;
    dpar_status st;
    if (desc == NULL) {
        return dpari_wrong(why, "fsdp: the descriptor is NULL");
    }
    full = dpari_fsdp_complete(desc);
    st = dpari_fsdp_check_desc(shards, &full, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_fsdp_count(fsdp, shards, &full, why);
    if (st == DPAR_OK) {
        dpari_fsdp_sizes_of(fsdp, shards, sizes);
    }
    return st;
}

/* Empties the first `pool` of `count` slots or buckets, each of `largest` elements. Returns the
 * number of their elements. */
static DPARI_COLD int64_t dpari_fsdp_place_pool(dpari_fsdp_slot *slot, int32_t count, int32_t pool,
                                                int64_t largest)
{
    int32_t i;
    for (i = 0; i < count; i++) {
        dpari_zero(&slot[i], sizeof slot[i]);
        slot[i].unit = -1;
        slot[i].at = i < pool ? i * largest : 0;
    }
    return pool * largest;
}

/* Places the slots and buckets: first those of the pool, then one for each unit that has its own.
 * These are all units if the weights or gradients stay whole, otherwise the resident ones. */
static DPARI_COLD void dpari_fsdp_place_slots(dpar_fsdp *fsdp)
{
    const int weights_whole = dpari_fsdp_weights_whole(&fsdp->desc);
    const int gradients_whole = dpari_fsdp_gradients_whole(&fsdp->desc);
    int64_t at = dpari_fsdp_place_pool(fsdp->slot, fsdp->slots, fsdp->pool_slots, fsdp->largest);
    int64_t gradient_at = dpari_fsdp_place_pool(fsdp->bucket, fsdp->buckets, fsdp->pool_buckets,
                                                fsdp->largest_trained);
    int32_t u, slot = fsdp->pool_slots, bucket = fsdp->pool_buckets;
    for (u = 0; u < fsdp->units; u++) {
        dpari_fsdp_unit *unit = &fsdp->unit[u];
        const int64_t elements = unit->flat.shard * fsdp->shard->size;
        unit->own_slot = unit->own_bucket = -1;
        if (weights_whole || unit->resident) {
            unit->own_slot = slot;
            fsdp->slot[slot++].at = at;
            at += elements;
        }
        if (gradients_whole || unit->resident) {
            unit->own_bucket = bucket;
            fsdp->bucket[bucket++].at = gradient_at;
            gradient_at += unit->frozen ? 0 : elements;
        }
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_fsdp_fill_in(dpar_fsdp *fsdp, dpar_why *why)
{
    int64_t shard_at = 0, trained_at = 0;
    uint64_t key = 0;
    int64_t at, begin, end;
    int32_t u, i, params = 0;
    for (u = 0; u < fsdp->units; u++) {
        dpari_fsdp_unit *unit = &fsdp->unit[u];
        dpar_status st;
        dpari_zero(unit, sizeof *unit);
        unit->first = params;
        dpari_fsdp_range(&fsdp->desc, u, params, &begin, &end);
        for (at = begin; at < end; at++) {
            const int64_t count = dpari_fsdp_elements(&fsdp->desc, u, at);
            if (count < 0) {
                continue;
            }
            fsdp->count[params] = count;
            fsdp->home[params] = u;
            if (fsdp->desc.groups > 0) {
                fsdp->group_of[params] = fsdp->desc.group_of[at];
            }
            if (fsdp->desc.arrays > 0) {
                fsdp->array_of[params] = (int32_t)at;
            }
            params++;
        }
        unit->last = params;
        st = dpari_flat_init(&unit->flat, params - unit->first, fsdp->count + unit->first,
                             dpari_most(1, fsdp->desc.align), fsdp->shard->size,
                             fsdp->start + unit->first, why);
        if (st != DPAR_OK) {
            return st;
        }
        unit->flat.shard = dpari_fsdp_shard(&fsdp->desc, unit->flat.total, fsdp->shard->size);
        unit->frozen = dpari_fsdp_flag(fsdp->desc.frozen, u);
        unit->resident = dpari_fsdp_flag(fsdp->desc.resident, u);
        unit->shard_at = shard_at;
        unit->trained_at = trained_at;
        unit->key = key;
        unit->slot = unit->bucket = -1;
        unit->fresh = unit->adds = 1;
        shard_at += unit->flat.shard;
        trained_at += unit->frozen ? 0 : unit->flat.shard;
        key += (uint64_t)dpari_moment_whole(dpari_fsdp_moment_type(&fsdp->desc), unit->flat.total);
    }
    for (i = 0; i < fsdp->desc.groups; i++) {
        fsdp->group[i] = fsdp->desc.group[i];
    }
    for (i = 0; i < fsdp->desc.arrays; i++) {
        fsdp->array[i] = fsdp->desc.array[i];
    }
    dpari_fsdp_place_slots(fsdp);
    return DPAR_OK;
}

/* ---- addresses ------------------------------------------------------------------------------- */

DPARI_INTERNAL int dpari_fsdp_is_unit(const dpar_fsdp *fsdp, int32_t u)
{
    return fsdp != NULL && u >= 0 && u < fsdp->units;
}

DPARI_INTERNAL unsigned char *dpari_fsdp_slot_at(const dpar_fsdp *fsdp, int32_t slot)
{
    return fsdp->weights + fsdp->slot[slot].at * dpar_type_bytes(fsdp->desc.compute_type);
}

DPARI_INTERNAL unsigned char *dpari_fsdp_bucket_at(const dpar_fsdp *fsdp, int32_t bucket)
{
    return fsdp->grads + fsdp->bucket[bucket].at * dpar_type_bytes(fsdp->desc.gradient_type);
}

DPARI_INTERNAL int64_t dpari_fsdp_own(const dpar_fsdp *fsdp, int32_t u, int32_t type)
{
    return fsdp->unit[u].flat.shard * fsdp->shard->rank * dpar_type_bytes(type);
}

DPARI_INTERNAL unsigned char *dpari_fsdp_master_at(const dpar_fsdp *fsdp, int32_t u)
{
    if (dpari_fsdp_inside(&fsdp->desc)) {
        return dpari_fsdp_slot_at(fsdp, u) + dpari_fsdp_own(fsdp, u, fsdp->desc.compute_type);
    }
    return fsdp->master + fsdp->unit[u].shard_at * dpar_type_bytes(fsdp->desc.type);
}

DPARI_INTERNAL unsigned char *dpari_fsdp_reduced_at(const dpar_fsdp *fsdp, int32_t u, int32_t *type)
{
    if (dpari_fsdp_gradients_whole(&fsdp->desc)) {
        *type = fsdp->desc.gradient_type;
        return dpari_fsdp_bucket_at(fsdp, u) + dpari_fsdp_own(fsdp, u, *type);
    }
    *type = dpari_wide_type(fsdp->desc.type);
    return fsdp->sums + fsdp->unit[u].trained_at * dpar_type_bytes(*type);
}

DPARI_INTERNAL DPARI_COLD unsigned char *dpari_fsdp_settled(const dpar_fsdp *fsdp, int32_t u,
                                                            int32_t *type)
{
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    unsigned char *at = dpari_fsdp_reduced_at(fsdp, u, type);
    const int64_t bytes = unit->flat.shard * dpar_type_bytes(*type);
    /* zeroes the whole unit, because later passes add to all of it */
    if (unit->fresh && dpari_fsdp_gradients_whole(&fsdp->desc)) {
        (void)dpari_do_copy(fsdp->shard, dpari_fsdp_bucket_at(fsdp, u), NULL,
                            bytes * fsdp->shard->size);
    } else if (unit->fresh) {
        (void)dpari_do_copy(fsdp->shard, at, NULL, bytes);
    }
    unit->fresh = 0;
    return at;
}

DPARI_INTERNAL unsigned char *dpari_fsdp_moment_at(const dpar_fsdp *fsdp, int32_t k, int32_t u)
{
    return fsdp->moment[k] +
           dpari_moment_bytes(dpari_fsdp_moment_type(&fsdp->desc), fsdp->unit[u].trained_at);
}

DPARI_INTERNAL uint64_t dpari_fsdp_key(const dpar_fsdp *fsdp, int32_t u)
{
    return fsdp->unit[u].key + (uint64_t)(fsdp->unit[u].flat.shard * fsdp->shard->rank);
}

/* ==== train/fsdp_arrays.c ==== */

/* Returns the caller's pointer, whose type (such as float *) the library does not know. */
static unsigned char *dpari_fsdp_pointer(void *const *pointer)
{
    unsigned char *at = NULL;
    if (pointer != NULL) {
        dpari_elements_bits(&at, pointer, sizeof at);
    }
    return at;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_fsdp_check_arrays(const dpar_fsdp *fsdp, dpar_why *why)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    const int64_t each = dpar_type_bytes(desc->type);
    int32_t i, k;
    for (i = 0; i < desc->arrays; i++) {
        const dpar_fsdp_array *a = &desc->array[i];
        const uintptr_t begin = (uintptr_t)dpari_fsdp_pointer(a->weights);
        const uintptr_t end = begin + (uintptr_t)(a->count * dpari_fsdp_slices(a) * each);
        for (k = 0; k < i; k++) {
            const dpar_fsdp_array *b = &desc->array[k];
            const uintptr_t other = (uintptr_t)dpari_fsdp_pointer(b->weights);
            const uintptr_t other_end = other + (uintptr_t)(b->count * dpari_fsdp_slices(b) * each);
            if ((a->weights != NULL && a->weights == b->weights) ||
                (a->gradients != NULL && a->gradients == b->gradients) ||
                (begin != 0 && other != 0 && begin < other_end && other < end)) {
                return dpari_wrong(
                    why,
                    "dpar_fsdp_make: arrays %d and %d overlap or have the same pointer, but a "
                    "weight that several layers use must be listed once, in a resident unit",
                    k, i);
            }
        }
    }
    return DPAR_OK;
}

/* Returns the bytes from slice 0 of parameter i's array to the parameter. */
static uintptr_t dpari_fsdp_before(const dpar_fsdp *fsdp, int32_t i, int32_t type)
{
    const int64_t slice = fsdp->home[i] - fsdp->array[fsdp->array_of[i]].unit;
    return (uintptr_t)(slice * fsdp->count[i] * dpar_type_bytes(type));
}

DPARI_INTERNAL DPARI_COLD const void *dpari_fsdp_first_values(const dpar_fsdp *fsdp, int32_t i)
{
    const unsigned char *values = dpari_fsdp_pointer(fsdp->array[fsdp->array_of[i]].weights);
    return values != NULL ? values + dpari_fsdp_before(fsdp, i, fsdp->desc.type) : NULL;
}

DPARI_INTERNAL DPARI_COLD void dpari_fsdp_point(const dpar_fsdp *fsdp, int32_t u, int32_t gradients,
                                                int32_t available)
{
    const dpari_fsdp_unit *unit = &fsdp->unit[u];
    const int32_t place = gradients ? unit->bucket : unit->slot;
    int32_t i, type = fsdp->desc.compute_type;
    const unsigned char *whole;
    if (place < 0 || fsdp->desc.arrays == 0) {
        return;
    }
    whole = dpari_fsdp_slot_at(fsdp, place);
    if (gradients) {
        whole = dpari_fsdp_bucket_at(fsdp, place);
        type = fsdp->desc.gradient_type;
    }
    for (i = unit->first; i < unit->last; i++) {
        const dpar_fsdp_array *a = &fsdp->array[fsdp->array_of[i]];
        void **pointer = gradients ? a->gradients : a->weights;
        /* the address of slice 0, if it were in the memory before this slice */
        uintptr_t at = (uintptr_t)(whole + fsdp->start[i] * dpar_type_bytes(type)) -
                       dpari_fsdp_before(fsdp, i, type);
        if (pointer == NULL || (!available && (uintptr_t)dpari_fsdp_pointer(pointer) != at)) {
            continue;
        }
        at = available ? at : 0;
        dpari_elements_bits(pointer, &at, sizeof at);
    }
}

/* ==== train/fsdp.c ==== */

/* ZeRO-1, 2 and 3. The gathered weights of a unit are in a slot, and its gradients are computed in
 * a bucket. With ZeRO-1 and 2 each unit keeps the same slot. With ZeRO-3 there is a pool of
 * prefetch + units_in_use slots: dpar_fsdp_unshard gathers the unit and the next ones in the same
 * direction, into free slots or into the slot whose unit is needed last. Buckets form such a pool
 * if gradients are shards; otherwise each unit keeps the same bucket. Resident units always keep
 * their own slot and bucket, outside of the pool.
 *
 * dpar_fsdp_ready posts the reduce-scatter of a bucket. The bucket is free again once its result
 * has been added to the rank's shard. Every collective has the unit as its tag, so that ranks that
 * visit units in different orders get DPAR_E_MISMATCH instead of mixed weights.
 *
 * Zeroing is lazy: dpar_fsdp_zero only marks the gradients of each unit as 0 (`fresh`). The next
 * function that needs them overwrites or zeroes their memory. */

/* ---- make and free --------------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_fsdp_sizes_init(dpar_fsdp_sizes *sizes, int32_t shards,
                                                     const dpar_fsdp_desc *desc, dpar_why *why)
{
    dpar_fsdp d;
    if (sizes == NULL) {
        return dpari_wrong(why, "dpar_fsdp_sizes_init: sizes is NULL");
    }
    return dpari_fsdp_plan(&d, shards, desc, sizes, why);
}

DPARI_INTERNAL DPARI_COLD void dpari_fsdp_facts_place(dpari_facts *facts, const dpari_fsdp_given *g)
{
    if (g->shard != NULL) {
        facts->of = "across replicas: ";
        dpari_fact(facts, "the number of shards", 0, g->shard->size);
        dpari_fact(facts, "the rank in the shards' communicator", 0, g->shard->rank);
    } else {
        dpari_fact(facts, "replicas != NULL", 0, g->replicas);
    }
}

/* Lists the values that must be equal on all ranks in dpar_fsdp_make. */
static DPARI_COLD void dpari_fsdp_facts(dpari_facts *facts, const void *given)
{
    const dpari_fsdp_given *g = (const dpari_fsdp_given *)given;
    const dpar_fsdp_desc *desc = &g->fsdp->desc;
    int32_t i;
    dpari_fsdp_facts_place(facts, g);
    dpari_fact(facts, "the number of units", 0, g->fsdp->units);
    dpari_fact(facts, "zero", 0, desc->zero);
    dpari_fact_type(facts, "type", 0, desc->type);
    dpari_fact_type(facts, "compute_type", 0, desc->compute_type);
    dpari_fact_type(facts, "gradient_type", 0, desc->gradient_type);
    dpari_fact(facts, "prefetch", 0, desc->prefetch);
    dpari_fact(facts, "gradient_buffers", 0, dpari_most(1, desc->gradient_buffers));
    dpari_fact(facts, "units_in_use", 0, dpari_most(1, desc->units_in_use));
    dpari_fact(facts, "reduce_last", 0, desc->reduce_last);
    dpari_fact(facts, "sum", 0, desc->sum);
    dpari_fact(facts, "overwrite_gradients", 0, desc->overwrite_gradients);
    dpari_fact(facts, "align", 0, dpari_most(1, desc->align));
    dpari_update_facts(facts, &desc->optimizer, dpari_fsdp_moment_type(desc));
    for (i = 0; i < g->fsdp->units; i++) {
        dpari_fact(facts, "params_per_unit[#]", i, dpari_fsdp_params(desc, i));
        dpari_fact(facts, "frozen[#]", i, dpari_fsdp_flag(desc->frozen, i));
        dpari_fact(facts, "resident[#]", i, dpari_fsdp_flag(desc->resident, i));
    }
    dpari_fact(facts, "the number of groups", 0, desc->groups);
    for (i = 0; i < desc->groups; i++) {
        dpari_update_facts_group(facts, i, &desc->group[i]);
    }
    dpari_fact(facts, "arrays", 0, desc->arrays);
    for (i = 0; i < dpari_fsdp_listed(desc, g->fsdp->params); i++) {
        if (desc->arrays > 0) {
            dpari_fact(facts, "array[#].count", i, desc->array[i].count);
            dpari_fact(facts, "array[#].slices", i, desc->array[i].slices);
            dpari_fact(facts, "array[#].unit", i, desc->array[i].unit);
        } else {
            dpari_fact(facts, "count[#]", i, desc->count[i]);
        }
        if (desc->groups > 0) {
            dpari_fact(facts, "group_of[#]", i, desc->group_of[i]);
        }
    }
}

/* Allocates the registered memory and divides it into its parts. */
static DPARI_COLD dpar_status dpari_fsdp_allocate(dpar_fsdp *fsdp, const dpar_fsdp_sizes *s,
                                                  dpar_why *why)
{
    const int64_t moment =
        dpari_moment_bytes(dpari_fsdp_moment_type(&fsdp->desc), fsdp->trained_sum);
    void *memory = NULL;
    unsigned char *at;
    dpar_status st = dpar_comm_alloc(fsdp->shard, dpari_most(64, s->registered), &memory);
    if (st != DPAR_OK) {
        return dpari_say(st, why, "%s: no memory for %ld bytes", "fsdp", s->registered);
    }
    at = fsdp->memory = (unsigned char *)memory;
    fsdp->weights = at; /* s->weights or s->gathered is 0 */
    at += dpari_room_up(s->weights) + dpari_room_up(s->gathered);
    fsdp->grads = at; /* whole gradients, or the buckets, which the sums follow */
    if (!dpari_fsdp_gradients_whole(&fsdp->desc)) {
        at += dpari_room_up(s->buckets);
    }
    fsdp->sums = at;
    at += dpari_room_up(s->gradients);
    fsdp->master = at;
    at += dpari_room_up(s->master);
    fsdp->moment[0] = at;
    fsdp->moment[1] = at + moment;
    if (fsdp->shard->mem != NULL && fsdp->shard->mem->pin != NULL) {
        st = fsdp->shard->mem->pin(fsdp->shard->mem->ctx, &fsdp->squares,
                                   (int64_t)sizeof fsdp->squares);
        if (st != DPAR_OK) {
            return dpari_say(st, why, "fsdp: %ld bytes cannot be pinned",
                             (int64_t)sizeof fsdp->squares);
        }
        fsdp->pinned = 1;
    }
    return DPAR_OK;
}

/* Frees the registered memory. */
static DPARI_COLD void dpari_fsdp_release(dpar_fsdp *fsdp)
{
    if (fsdp->pinned && fsdp->shard->mem->unpin != NULL) {
        (void)fsdp->shard->mem->unpin(fsdp->shard->mem->ctx, &fsdp->squares);
    }
    if (fsdp->memory != NULL) {
        dpar_comm_release(fsdp->shard, fsdp->memory);
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_fsdp_agree(dpar_comm *shard, dpar_comm *replicas,
                                                       dpar_status st, const char *plan,
                                                       dpari_state *state, dpari_fsdp_given *given,
                                                       dpar_why *why)
{
    dpar_status within;
    given->shard = NULL;
    given->replicas = replicas != NULL;
    st = dpari_agree_on(shard, st, plan, state, given, why);
    if (replicas == NULL) {
        return st;
    }
    within = st;
    given->shard = shard;
    st = dpari_agree_on(replicas, st, plan, state, given, why);
    /* so that an error found only across replicas reaches all ranks */
    return within == DPAR_OK ? dpari_agree(shard, st, why) : st;
}

/* Fills in an fsdp for which the numbers were computed and memory was provided, allocates the
 * registered memory, and copies the first values of the arrays. */
static DPARI_COLD dpar_status dpari_fsdp_build(dpar_fsdp *fsdp, dpar_comm *comm,
                                               const dpar_fsdp_sizes *sizes, dpar_why *why)
{
    int64_t plan;
    int32_t i;
    dpar_status st;
    dpari_fsdp_place(fsdp, fsdp, &plan);
    fsdp->shard = comm;
    fsdp->replicas = fsdp->desc.replicas;
    st = dpari_fsdp_fill_in(fsdp, why);
    if (st == DPAR_OK) {
        st = dpari_fsdp_allocate(fsdp, sizes, why);
    }
    for (i = 0; i < fsdp->params && fsdp->desc.arrays > 0 && st == DPAR_OK; i++) {
        const void *values = dpari_fsdp_first_values(fsdp, i);
        st = values != NULL ? dpar_fsdp_set(fsdp, i, values) : DPAR_OK;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_make(dpar_comm *comm, const dpar_fsdp_desc *desc,
                                               dpar_fsdp **fsdp, dpar_why *why)
{
    dpar_fsdp counted, *d;
    dpar_fsdp_sizes sizes;
    dpari_fsdp_given given;
    dpar_comm *replicas;
    void *memory = NULL;
    dpar_status st;
    if (comm == NULL) {
        return dpari_wrong(why, "dpar_fsdp_make: the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    replicas = desc != NULL ? desc->replicas : NULL;
    sizes.plan = 0;
    st = fsdp == NULL ? dpari_wrong(why, "dpar_fsdp_make: the result is NULL")
                      : dpari_fsdp_plan(&counted, comm->size, desc, &sizes, why);
    if (st == DPAR_OK && comm->mem != NULL && dpari_fsdp_moment_type(&counted.desc) == DPAR_F8) {
        st = dpari_wrong(why, "fsdp: moment_type is f8, which needs the memory of the host");
    }
    if (st == DPAR_OK) {
        st = dpari_fsdp_check_arrays(&counted, why);
    }
    if (st == DPAR_OK) {
        st = dpari_object_memory(comm, desc->memory, desc->bytes, sizes.plan, "fsdp", &memory, why);
    }
    dpari_zero(&given, sizeof given);
    given.fsdp = &counted;
    st = dpari_fsdp_agree(comm, replicas, st, "fsdp", dpari_fsdp_facts, &given, why);
    if (st == DPAR_OK) {
        d = (dpar_fsdp *)memory;
        *d = counted;
        d->last = 1;
        st = dpari_fsdp_agree(comm, replicas, dpari_fsdp_build(d, comm, &sizes, why), "fsdp", NULL,
                              &given, why);
        if (st == DPAR_OK) {
            *fsdp = d;
            return DPAR_OK;
        }
        dpari_fsdp_release(d);
    }
    return dpari_object_failed(st, desc != NULL ? desc->memory : NULL, memory, sizes.plan, why);
}

DPARI_INTERNAL int dpari_fsdp_broken(const dpar_fsdp *fsdp)
{
    return fsdp->shard->status != DPAR_OK ||
           (fsdp->replicas != NULL && fsdp->replicas->status != DPAR_OK);
}

DPARI_INTERNAL dpar_status dpari_fsdp_why_broken(const dpar_fsdp *fsdp)
{
    return fsdp->shard->status != DPAR_OK ? fsdp->shard->status : fsdp->replicas->status;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_fsdp_forget(dpar_fsdp *fsdp, int32_t trained)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    for (i = 0; i < fsdp->slots; i++) {
        dpari_fsdp_slot *s = &fsdp->slot[i];
        if (s->unit >= 0 && !(trained && fsdp->unit[s->unit].frozen)) {
            st = dpari_first_error(st, dpar_wait(&s->work));
            fsdp->unit[s->unit].slot = -1;
            s->unit = -1;
        }
    }
    return st;
}

/* Ends the use of all units and of their gradients. */
static DPARI_COLD void dpari_fsdp_end_use(dpar_fsdp *fsdp)
{
    int32_t u;
    for (u = 0; u < fsdp->units; u++) {
        dpari_fsdp_unit *unit = &fsdp->unit[u];
        if (unit->used) {
            dpari_fsdp_point(fsdp, u, 0, 0);
        }
        if (unit->state == DPARI_FSDP_OPEN) {
            dpari_fsdp_point(fsdp, u, 1, 0);
        }
        unit->used = 0;
        unit->state = DPARI_FSDP_NONE;
    }
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_free(dpar_fsdp *fsdp)
{
    int32_t i;
    if (fsdp == NULL) {
        return DPAR_OK;
    }
    if (fsdp->under_way && !dpari_fsdp_broken(fsdp)) {
        return dpari_comm_wrong(fsdp->shard, "dpar_fsdp_free: the pass has not ended");
    }
    /* If a communicator broke during a pass, operations may still use the memory. */
    dpari_fsdp_end_use(fsdp);
    (void)dpari_fsdp_forget(fsdp, 0);
    for (i = 0; i < fsdp->buckets; i++) {
        (void)dpar_wait(&fsdp->bucket[i].work);
    }
    for (i = 0; i < fsdp->units; i++) {
        (void)dpar_wait(&fsdp->unit[i].across);
    }
    dpari_fsdp_release(fsdp);
    return dpari_object_end(DPAR_OK, fsdp->desc.memory == NULL ? fsdp : NULL);
}

/* Posts a collective on unit u. The tag is the unit, so that ranks that visit units of equal size
 * in different orders get an error. */
static DPARI_COLD dpar_status dpari_fsdp_post(dpar_fsdp *fsdp, int32_t kind, int32_t u,
                                              const void *in, void *out, int32_t type,
                                              dpar_work *work)
{
    dpar_call call;
    dpari_zero(&call, sizeof call);
    call.kind = kind;
    call.type = type;
    call.tag = u + 1;
    call.in = in;
    call.out = out;
    call.count = fsdp->unit[u].flat.shard;
    if (kind == DPAR_CALL_REDUCE_SCATTER) {
        call.op = fsdp->desc.sum ? DPAR_SUM : DPAR_AVG;
    }
    return dpari_post(fsdp->shard, &call, work);
}

/* ---- parameters ----------------------------------------------------------------------------- */

DPAR_API DPARI_COLD const void *dpar_fsdp_weight(const dpar_fsdp *fsdp, int32_t i)
{
    const dpari_fsdp_unit *unit;
    if (fsdp == NULL || i < 0 || i >= fsdp->params) {
        return NULL;
    }
    unit = &fsdp->unit[fsdp->home[i]];
    if (!unit->used || (unit->slot < 0 && unit->flat.shard > 0)) {
        return NULL;
    }
    if (unit->slot < 0) {
        return fsdp->weights; /* a unit without elements: any address that is not NULL */
    }
    return dpari_fsdp_slot_at(fsdp, unit->slot) +
           fsdp->start[i] * dpar_type_bytes(fsdp->desc.compute_type);
}

DPAR_API DPARI_COLD void *dpar_fsdp_gradient(const dpar_fsdp *fsdp, int32_t i, int *adds)
{
    const dpari_fsdp_unit *unit;
    if (adds != NULL) {
        *adds = 1;
    }
    if (fsdp == NULL || i < 0 || i >= fsdp->params) {
        return NULL;
    }
    unit = &fsdp->unit[fsdp->home[i]];
    if (adds != NULL) {
        *adds = unit->adds;
    }
    if (unit->state != DPARI_FSDP_OPEN || unit->frozen) {
        return NULL;
    }
    if (unit->bucket < 0) {
        return fsdp->grads; /* a unit without elements */
    }
    return dpari_fsdp_bucket_at(fsdp, unit->bucket) +
           fsdp->start[i] * dpar_type_bytes(fsdp->desc.gradient_type);
}

DPAR_API int dpar_fsdp_piece(const dpar_fsdp *fsdp, int32_t i, dpar_piece *piece)
{
    dpar_piece unwanted;
    return fsdp != NULL && i >= 0 && i < fsdp->params &&
           dpari_flat_piece(&fsdp->unit[fsdp->home[i]].flat, fsdp->start[i], fsdp->count[i],
                            fsdp->shard->rank, piece != NULL ? piece : &unwanted);
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_set(dpar_fsdp *fsdp, int32_t i, const void *values)
{
    const unsigned char *from = (const unsigned char *)values;
    dpar_piece piece;
    int64_t each;
    dpar_status st;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (fsdp->under_way) {
        return dpari_comm_wrong(fsdp->shard, "dpar_fsdp_set: the pass has not ended");
    }
    if (i < 0 || i >= fsdp->params) {
        return dpari_comm_wrong(
            fsdp->shard, "dpar_fsdp_set: parameter %d does not exist (the model has %d parameters)",
            i, fsdp->params);
    }
    if (values == NULL && fsdp->count[i] > 0) {
        return dpari_comm_wrong(fsdp->shard,
                                "dpar_fsdp_set: the %ld values of parameter %d are NULL",
                                fsdp->count[i], i);
    }
    each = dpar_type_bytes(fsdp->desc.type);
    st = dpari_fsdp_forget(fsdp, 0);
    if (st == DPAR_OK && dpar_fsdp_piece(fsdp, i, &piece)) {
        st = dpari_do_copy(fsdp->shard,
                           dpari_fsdp_master_at(fsdp, fsdp->home[i]) + piece.in_shard * each,
                           from + piece.in_param * each, piece.count * each);
    }
    return st;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Writes "unit 'wte'" or "unit 3". */
static DPARI_COLD void dpari_fsdp_put_unit(const dpar_fsdp *fsdp, dpar_text *text, int32_t u)
{
    const char *name = fsdp->desc.names != NULL ? fsdp->desc.names[u] : NULL;
    if (name != NULL) {
        dpari_text_print(text, "unit '%s'", name);
    } else {
        dpari_text_print(text, "unit %d", u);
    }
}

/* Reports that no slot or bucket is left for unit u, and which units hold them. */
static DPARI_COLD dpar_status dpari_fsdp_no_room(dpar_fsdp *fsdp, int32_t u, int32_t gradients)
{
    enum { NAMED = 3 };
    dpar_why why;
    dpar_text t;
    int32_t v, n = 0;
    dpari_text_why(&t, &why);
    dpar_text_put(&t, gradients ? "fsdp: no memory is left for the gradients of "
                                : "fsdp: no memory is left for the weights of ");
    dpari_fsdp_put_unit(fsdp, &t, u);
    dpar_text_put(&t, " in addition to those of ");
    for (v = 0; v < fsdp->units; v++) {
        const dpari_fsdp_unit *unit = &fsdp->unit[v];
        const int holds = gradients ? unit->state == DPARI_FSDP_OPEN && !unit->frozen : unit->used;
        if (!holds || unit->resident) {
            continue;
        }
        if (n < NAMED) {
            dpar_text_put(&t, n > 0 ? ", " : "");
            dpari_fsdp_put_unit(fsdp, &t, v);
        }
        n++;
    }
    if (n > NAMED) {
        dpari_text_say(&t, " and %d more", n - (int32_t)NAMED);
    }
    dpar_text_put(&t, gradients ? ", which are not ready (desc.units_in_use is the limit)"
                                : ", which are in use (desc.units_in_use is the limit)");
    return dpari_comm_say(fsdp->shard, DPAR_E_ROOM, "%s", why.text);
}

/* Returns a slot for unit u: a free one, otherwise the slot of the unit that is needed last, which
 * is the smallest unit in forward and the largest in backward. Units in use keep their slots, and
 * so do units lo .. hi, which are needed next. Returns -1 if that leaves no slot. */
static DPARI_COLD int32_t dpari_fsdp_pick(const dpar_fsdp *fsdp, int32_t u, int32_t lo, int32_t hi,
                                          int32_t back)
{
    int32_t i, best = -1;
    if (fsdp->unit[u].own_slot >= 0) {
        return fsdp->unit[u].own_slot;
    }
    for (i = 0; i < fsdp->pool_slots; i++) {
        const int32_t v = fsdp->slot[i].unit;
        if (v < 0) {
            return i;
        }
        if (fsdp->unit[v].used || (v >= lo && v <= hi)) {
            continue;
        }
        if (best < 0 || (back ? v > fsdp->slot[best].unit : v < fsdp->slot[best].unit)) {
            best = i;
        }
    }
    return best;
}

/* Converts this rank's masters of unit u from desc.type to compute_type. Those of a frozen unit are
 * always rounded to nearest, so that they have the same bits in each step. */
static dpar_status dpari_fsdp_cast(const dpar_fsdp *fsdp, int32_t u, unsigned char *to)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    const int64_t count = fsdp->unit[u].flat.shard;
    dpar_mem_round r;
    if (desc->compute_type != DPAR_BF16 || !desc->optimizer.stochastic || fsdp->unit[u].frozen) {
        return dpari_do_convert(fsdp->shard, to, desc->compute_type, dpari_fsdp_master_at(fsdp, u),
                                desc->type, count, 0);
    }
    dpari_zero(&r, sizeof r);
    r.to = to;
    r.from = dpari_fsdp_master_at(fsdp, u);
    r.count = count;
    r.from_type = desc->type;
    r.seed = desc->optimizer.seed;
    r.stream = (uint64_t)fsdp->steps;
    r.index = dpari_fsdp_key(fsdp, u);
    return dpari_do_round(fsdp->shard, &r);
}

/* Posts the all-gather of unit u's weights if they are in no slot. Returns DPAR_MORE if no slot is
 * free for them. back is 1 in backward; dpari_fsdp_pick explains lo and hi. */
static DPARI_COLD dpar_status dpari_fsdp_request(dpar_fsdp *fsdp, int32_t u, int32_t lo, int32_t hi,
                                                 int32_t back)
{
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    dpari_fsdp_slot *s;
    unsigned char *whole, *mine;
    dpar_status st;
    int32_t slot;
    if (unit->slot >= 0 || unit->flat.shard == 0) {
        return DPAR_OK;
    }
    slot = dpari_fsdp_pick(fsdp, u, lo, hi, back);
    if (slot < 0) {
        return DPAR_MORE;
    }
    s = &fsdp->slot[slot];
    if (s->unit >= 0) {
        st = dpar_wait(&s->work);
        fsdp->unit[s->unit].slot = -1;
        s->unit = -1;
        if (st != DPAR_OK) {
            return st;
        }
    }
    whole = dpari_fsdp_slot_at(fsdp, slot);
    mine = dpari_fsdp_master_at(fsdp, u);
    if (fsdp->desc.type != fsdp->desc.compute_type) {
        mine = whole + dpari_fsdp_own(fsdp, u, fsdp->desc.compute_type);
        st = dpari_fsdp_cast(fsdp, u, mine);
        if (st != DPAR_OK) {
            return st;
        }
    }
    st = dpari_fsdp_post(fsdp, DPAR_CALL_ALL_GATHER, u, mine, whole, fsdp->desc.compute_type,
                         &s->work);
    if (st == DPAR_OK) {
        s->unit = u;
        unit->slot = slot;
    }
    return st;
}

/* Requests unit u and the next `ahead` units in this direction, and waits for unit u. */
static DPARI_COLD dpar_status dpari_fsdp_gather(dpar_fsdp *fsdp, int32_t u, int64_t ahead,
                                                int32_t back)
{
    const int32_t lo = back ? (int32_t)dpari_most(0, u - ahead) : u;
    const int32_t hi = back ? u : (int32_t)dpari_least(fsdp->units - 1, u + ahead);
    int32_t k;
    dpar_status st = dpari_fsdp_request(fsdp, u, lo, hi, back);
    /* All slots hold units that are in use or needed next. Gives up one of the latter, which can be
     * gathered again. */
    if (st == DPAR_MORE) {
        st = dpari_fsdp_request(fsdp, u, u, u, back);
    }
    for (k = 1; k <= hi - lo && st == DPAR_OK; k++) {
        st = dpari_fsdp_request(fsdp, back ? u - k : u + k, lo, hi, back);
    }
    if (st == DPAR_MORE && fsdp->unit[u].slot < 0 && fsdp->unit[u].flat.shard > 0) {
        return dpari_fsdp_no_room(fsdp, u, 0);
    }
    if (st < DPAR_OK || fsdp->unit[u].slot < 0) {
        return st < DPAR_OK ? st : DPAR_OK;
    }
    return dpar_wait(&fsdp->slot[fsdp->unit[u].slot].work);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Waits for the reduction of bucket b, adds the result to the shard and frees the bucket. With
 * replicas, posts the all-reduce of the shard in the last micro-batch. */
static DPARI_COLD dpar_status dpari_fsdp_collect(dpar_fsdp *fsdp, int32_t b)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    dpari_fsdp_slot *s = &fsdp->bucket[b];
    const int32_t u = s->unit;
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    int32_t type;
    void *reduced = dpari_fsdp_reduced_at(fsdp, u, &type);
    dpar_status st = dpar_wait(&s->work);
    s->unit = -1;
    s->sent = 0;
    unit->bucket = -1;
    if (st != DPAR_OK) {
        return st;
    }
    if (!dpari_fsdp_gradients_whole(desc) && !s->straight) {
        const unsigned char *came =
            dpari_fsdp_bucket_at(fsdp, b) + dpari_fsdp_own(fsdp, u, desc->gradient_type);
        const int adds = !unit->fresh || desc->gradient_type == type;
        if (adds) {
            reduced = dpari_fsdp_settled(fsdp, u, &type);
        }
        st = dpari_do_convert(fsdp->shard, reduced, type, came, desc->gradient_type,
                              unit->flat.shard, adds);
    }
    unit->fresh = 0;
    if (st == DPAR_OK && fsdp->last && fsdp->replicas != NULL) {
        st = dpar_all_reduce(fsdp->replicas, reduced, reduced, unit->flat.shard, type,
                             desc->sum ? DPAR_SUM : DPAR_AVG, &unit->across);
    }
    return st;
}

/* Prepares the bucket of unit u at address `whole`. Leaves it unchanged if it contains gradients of
 * earlier passes. Otherwise sets all of it to 0, or with overwrite_gradients only the gaps between
 * parameters and the padding at the end, because backward writes the rest. Several layers add to
 * the gradients of a resident unit, which are therefore always set to 0. */
static DPARI_COLD dpar_status dpari_fsdp_clear(dpar_fsdp *fsdp, int32_t u, unsigned char *whole)
{
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    const int64_t each = dpar_type_bytes(fsdp->desc.gradient_type),
                  all = unit->flat.shard * fsdp->shard->size;
    const int earlier = dpari_fsdp_gradients_whole(&fsdp->desc) && !unit->fresh;
    const int writes = fsdp->desc.overwrite_gradients && !unit->resident;
    dpar_status st = DPAR_OK;
    int64_t at = 0;
    int32_t i;
    unit->adds = earlier || !writes;
    unit->fresh = unit->fresh && !dpari_fsdp_gradients_whole(&fsdp->desc);
    if (earlier) {
        return DPAR_OK;
    }
    for (i = unit->first; i < unit->last && writes && st == DPAR_OK; i++) {
        st = dpari_do_copy(fsdp->shard, whole + at * each, NULL, (fsdp->start[i] - at) * each);
        at = fsdp->start[i] + fsdp->count[i];
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_do_copy(fsdp->shard, whole + at * each, NULL, (all - at) * each);
}

/* Returns a bucket for a unit's gradients: a free one, otherwise the one whose reduction was posted
 * first. Returns -1 if all buckets hold gradients that are not ready. */
static int32_t dpari_fsdp_pick_bucket(const dpar_fsdp *fsdp)
{
    int32_t i, best = -1;
    for (i = 0; i < fsdp->pool_buckets; i++) {
        const dpari_fsdp_slot *s = &fsdp->bucket[i];
        if (s->unit < 0) {
            return i;
        }
        if (s->sent && (best < 0 || s->sent < fsdp->bucket[best].sent)) {
            best = i;
        }
    }
    return best;
}

/* Assigns a bucket to unit u, in which backward computes its gradients. */
static DPARI_COLD dpar_status dpari_fsdp_open(dpar_fsdp *fsdp, int32_t u)
{
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    int32_t b = unit->own_bucket;
    const int none = unit->flat.shard == 0 || unit->frozen;
    if (!none && b < 0) {
        b = dpari_fsdp_pick_bucket(fsdp);
        if (b < 0) {
            return dpari_fsdp_no_room(fsdp, u, 1);
        }
        if (fsdp->bucket[b].unit >= 0) {
            const dpar_status st = dpari_fsdp_collect(fsdp, b);
            if (st != DPAR_OK) {
                return st;
            }
        }
    }
    unit->state = DPARI_FSDP_OPEN;
    if (none) {
        return DPAR_OK;
    }
    unit->bucket = b;
    fsdp->bucket[b].unit = u;
    fsdp->bucket[b].sent = 0;
    return dpari_fsdp_clear(fsdp, u, dpari_fsdp_bucket_at(fsdp, b));
}

/* Posts the reduction of unit u's gradients. */
static DPARI_COLD dpar_status dpari_fsdp_send(dpar_fsdp *fsdp, int32_t u)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    dpari_fsdp_slot *s;
    unsigned char *whole, *to;
    int32_t b, type, most = 0;
    if (unit->bucket < 0) {
        return DPAR_OK;
    }
    s = &fsdp->bucket[unit->bucket];
    if (dpari_fsdp_gradients_whole(desc) && !fsdp->last) {
        s->unit = -1;
        unit->bucket = -1;
        return DPAR_OK;
    }
    whole = dpari_fsdp_bucket_at(fsdp, unit->bucket);
    for (b = 0; b < fsdp->buckets && !dpari_fsdp_gradients_whole(desc); b++) {
        most = (int32_t)dpari_most(most, fsdp->bucket[b].sent);
    }
    s->sent = most + 1;
    to = dpari_fsdp_reduced_at(fsdp, u, &type);
    s->straight = unit->fresh && !dpari_fsdp_gradients_whole(desc) && type == desc->gradient_type;
    return dpari_fsdp_post(fsdp, DPAR_CALL_REDUCE_SCATTER, u, whole,
                           s->straight ? to : whole + dpari_fsdp_own(fsdp, u, desc->gradient_type),
                           desc->gradient_type, &s->work);
}

/* ---- a pass ---------------------------------------------------------------------------------- */

DPAR_API void dpar_fsdp_zero(dpar_fsdp *fsdp)
{
    int32_t u;
    for (u = 0; fsdp != NULL && u < fsdp->units; u++) {
        fsdp->unit[u].fresh = 1;
        if (fsdp->unit[u].state == DPARI_FSDP_OPEN && fsdp->unit[u].bucket >= 0) {
            const dpar_status st =
                dpari_fsdp_clear(fsdp, u, dpari_fsdp_bucket_at(fsdp, fsdp->unit[u].bucket));
            fsdp->status = dpari_first_error(fsdp->status, st);
        }
    }
    if (fsdp != NULL && !fsdp->under_way) {
        fsdp->last = 1; /* zeros need no reduction */
    }
}

/* Begins the use of a unit whose weights were gathered, in backward also of its gradients. */
static DPARI_COLD dpar_status dpari_fsdp_use(dpar_fsdp *fsdp, int32_t u, int32_t back)
{
    if (back) {
        const dpar_status st = dpari_fsdp_open(fsdp, u);
        if (st != DPAR_OK) {
            return st;
        }
        dpari_fsdp_point(fsdp, u, 1, 1);
    }
    fsdp->unit[u].used = 1;
    dpari_fsdp_point(fsdp, u, 0, 1);
    return DPAR_OK;
}

/* Begins the use of the resident units for a whole pass. */
static DPARI_COLD dpar_status dpari_fsdp_use_residents(dpar_fsdp *fsdp)
{
    dpar_status st = DPAR_OK;
    int32_t u;
    for (u = 0; u < fsdp->units && st == DPAR_OK; u++) {
        if (fsdp->unit[u].resident) {
            st = dpari_fsdp_gather(fsdp, u, 0, 0);
            st = st == DPAR_OK ? dpari_fsdp_use(fsdp, u, 1) : st;
        }
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_begin(dpar_fsdp *fsdp, int32_t last)
{
    dpar_status st;
    int32_t u;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (dpari_fsdp_broken(fsdp)) {
        return dpari_fsdp_why_broken(fsdp);
    }
    if (fsdp->under_way) {
        return dpari_comm_wrong(fsdp->shard,
                                "dpar_fsdp_begin: the previous pass has not ended (dpar_fsdp_end)");
    }
    for (u = 0; u < fsdp->units; u++) {
        fsdp->unit[u].state = DPARI_FSDP_NONE;
    }
    fsdp->under_way = 1;
    fsdp->last = last != 0;
    fsdp->status = DPAR_OK;
    st = dpari_fsdp_use_residents(fsdp);
    if (st != DPAR_OK) {
        dpari_fsdp_end_use(fsdp);
        fsdp->under_way = 0;
    }
    return st;
}

/* Checks that unit u exists and that the direction is valid. */
static DPARI_COLD dpar_status dpari_fsdp_check_unit(dpar_fsdp *fsdp, int32_t u, int32_t direction)
{
    if (!dpari_fsdp_is_unit(fsdp, u)) {
        return dpari_comm_wrong(fsdp->shard, "fsdp: unit %d does not exist (there are %d units)", u,
                                fsdp->units);
    }
    if (direction != DPAR_ACTION_FORWARD && direction != DPAR_ACTION_BACKWARD) {
        return dpari_comm_wrong(fsdp->shard,
                                "fsdp: direction %d of unit %d is neither DPAR_ACTION_FORWARD nor "
                                "DPAR_ACTION_BACKWARD",
                                direction, u);
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_unshard(dpar_fsdp *fsdp, int32_t unit, int32_t direction)
{
    const int32_t back = direction == DPAR_ACTION_BACKWARD;
    int in_use;
    dpar_status st;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    st = dpari_fsdp_check_unit(fsdp, unit, direction);
    if (st != DPAR_OK) {
        return st;
    }
    in_use = fsdp->unit[unit].resident && fsdp->under_way;
    if (fsdp->unit[unit].used && !in_use) {
        return dpari_comm_wrong(fsdp->shard, "dpar_fsdp_unshard: unit %d is already in use", unit);
    }
    if (back && !fsdp->under_way) {
        return dpari_comm_wrong(fsdp->shard,
                                "dpar_fsdp_unshard: unit %d for backward, but no pass is in "
                                "progress (dpar_fsdp_begin)",
                                unit);
    }
    if (back && !in_use && fsdp->unit[unit].state != DPARI_FSDP_NONE) {
        return dpari_comm_wrong(
            fsdp->shard, "dpar_fsdp_unshard: unit %d already had backward in this pass", unit);
    }
    if (fsdp->under_way && fsdp->status != DPAR_OK) {
        return fsdp->status;
    }
    st = dpari_fsdp_gather(fsdp, unit, fsdp->desc.prefetch, back);
    if (st == DPAR_OK && !in_use) {
        st = dpari_fsdp_use(fsdp, unit, back);
    }
    if (st != DPAR_OK && fsdp->under_way && dpari_fsdp_broken(fsdp)) {
        fsdp->status = st;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_reshard(dpar_fsdp *fsdp, int32_t unit, int32_t direction)
{
    dpar_status st;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    st = dpari_fsdp_check_unit(fsdp, unit, direction);
    if (st != DPAR_OK) {
        return st;
    }
    if (!fsdp->unit[unit].used) {
        return dpari_comm_wrong(fsdp->shard, "dpar_fsdp_reshard: unit %d is not in use", unit);
    }
    if (fsdp->unit[unit].resident && fsdp->under_way) {
        return DPAR_OK;
    }
    dpari_fsdp_point(fsdp, unit, 0, 0);
    fsdp->unit[unit].used = 0;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_ready(dpar_fsdp *fsdp, int32_t unit)
{
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (!dpari_fsdp_is_unit(fsdp, unit) || !fsdp->under_way ||
        fsdp->unit[unit].state != DPARI_FSDP_OPEN) {
        return dpari_comm_wrong(fsdp->shard,
                                "dpar_fsdp_ready: unit %d of %d was not unsharded for backward in "
                                "this pass, or is already ready",
                                unit, fsdp->units);
    }
    dpari_fsdp_point(fsdp, unit, 1, 0);
    fsdp->unit[unit].state = DPARI_FSDP_DONE;
    if (fsdp->status == DPAR_OK) {
        fsdp->status = dpari_fsdp_send(fsdp, unit);
    }
    return fsdp->status;
}

/* Checks at the end of a pass that no unit is in use and all gradients are ready. If not, the pass
 * fails on all ranks. */
static DPARI_COLD void dpari_fsdp_check_ended(dpar_fsdp *fsdp)
{
    int32_t u;
    for (u = 0; u < fsdp->units && fsdp->status == DPAR_OK; u++) {
        const dpari_fsdp_unit *unit = &fsdp->unit[u];
        const int missing = unit->state == DPARI_FSDP_OPEN ||
                            (fsdp->last && unit->state == DPARI_FSDP_NONE && unit->flat.shard > 0);
        const int used = unit->used && !unit->resident;
        if (used || (missing && !unit->frozen)) {
            dpar_why why;
            (void)dpari_wrong(&why,
                              used ? "dpar_fsdp_end: unit %d is still in use on rank %d"
                                   : "dpar_fsdp_end: unit %d is not ready on rank %d",
                              u, fsdp->shard->rank);
            dpar_comm_abort(fsdp->shard, DPAR_E_ARG, why.text);
            fsdp->status = fsdp->shard->status != DPAR_OK ? fsdp->shard->status : DPAR_E_ARG;
        }
    }
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_end(dpar_fsdp *fsdp)
{
    int32_t b, u;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (!fsdp->under_way) {
        return dpari_comm_wrong(fsdp->shard,
                                "dpar_fsdp_end: no pass is in progress (dpar_fsdp_begin)");
    }
    for (u = 0; u < fsdp->units; u++) {
        if (fsdp->unit[u].resident && fsdp->unit[u].state == DPARI_FSDP_OPEN) {
            (void)dpar_fsdp_ready(fsdp, u);
        }
    }
    dpari_fsdp_check_ended(fsdp);
    /* The order matters if each unit has its own bucket: it is then that of backward. */
    for (b = fsdp->buckets - 1; b >= 0; b--) {
        if (fsdp->bucket[b].unit >= 0 && fsdp->bucket[b].sent) {
            fsdp->status = dpari_first_error(fsdp->status, dpari_fsdp_collect(fsdp, b));
        } else if (fsdp->bucket[b].unit >= 0) {
            fsdp->unit[fsdp->bucket[b].unit].bucket = -1;
            fsdp->bucket[b].unit = -1;
        }
    }
    for (u = 0; u < fsdp->units && fsdp->last && fsdp->replicas != NULL; u++) {
        fsdp->status = dpari_first_error(fsdp->status, dpar_wait(&fsdp->unit[u].across));
    }
    dpari_fsdp_end_use(fsdp);
    fsdp->under_way = 0;
    return fsdp->status;
}

/* ==== train/fsdp_step.c ==== */

/* Computes the sum of squares of this rank's gradients in fsdp->squares, and waits for it. Leaves
 * out parameters i with duplicate[i], unless duplicate is NULL. */
static dpar_status dpari_fsdp_squares(dpar_fsdp *fsdp, const uint8_t *duplicate)
{
    dpar_status st = DPAR_OK;
    dpar_mem_squares s;
    dpar_piece piece;
    int32_t u, i;
    fsdp->squares = 0.0;
    dpari_zero(&s, sizeof s);
    s.accumulate = 1;
    s.sum = &fsdp->squares;
    for (u = 0; u < fsdp->units && st == DPAR_OK; u++) {
        const dpari_fsdp_unit *unit = &fsdp->unit[u];
        const unsigned char *from;
        if (unit->frozen || unit->flat.shard == 0) {
            continue;
        }
        from = dpari_fsdp_settled(fsdp, u, &s.type);
        s.in = from;
        s.count = unit->flat.shard;
        if (duplicate == NULL) {
            st = dpari_do_squares(fsdp->shard, &s);
            continue;
        }
        for (i = unit->first; i < unit->last && st == DPAR_OK; i++) {
            if (!duplicate[i] && dpar_fsdp_piece(fsdp, i, &piece)) {
                s.in = from + piece.in_shard * dpar_type_bytes(s.type);
                s.count = piece.count;
                st = dpari_do_squares(fsdp->shard, &s);
            }
        }
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_do_wait(fsdp->shard);
}

/* Checks that the gradients are reduced, for the function `name`. */
static DPARI_COLD dpar_status dpari_fsdp_check_reduced(const dpar_fsdp *fsdp, const char *name,
                                                       dpar_why *why)
{
    if (fsdp->under_way) {
        return dpari_wrong(why, "%s: the pass has not ended", name);
    }
    if (!fsdp->last) {
        return dpari_wrong(why, "%s: the latest pass was begun with last = 0", name);
    }
    return DPAR_OK;
}

/* Computes the norm of all gradients for the function `name`. */
static DPARI_COLD dpar_status dpari_fsdp_find_norm(dpar_fsdp *fsdp, dpar_update *update,
                                                   const char *name)
{
    dpar_why why;
    dpar_status st;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (dpari_fsdp_broken(fsdp)) {
        return dpari_fsdp_why_broken(fsdp);
    }
    st = dpari_update_check(update, name, &why);
    if (st == DPAR_OK) {
        st = dpari_fsdp_check_reduced(fsdp, name, &why);
    }
    if (st != DPAR_OK) {
        return dpari_update_refuse(fsdp->shard, fsdp->replicas, update, st, &why);
    }
    st = dpari_fsdp_squares(fsdp, update->duplicate);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_update_norm(fsdp->shard, fsdp->replicas, update, fsdp->squares, 0,
                             "fsdp: rate, clip or factor");
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_norm(dpar_fsdp *fsdp, dpar_update *update)
{
    return dpari_fsdp_find_norm(fsdp, update, "dpar_fsdp_norm");
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_update(dpar_fsdp *fsdp, dpar_update *update)
{
    const dpar_status st = dpari_fsdp_find_norm(fsdp, update, "dpar_fsdp_update");
    return st == DPAR_OK ? dpar_fsdp_step(fsdp, update->rate, update->scale) : st;
}

/* Updates elements lo .. hi - 1 of this rank's shard of unit u, which are in one group. */
static dpar_status dpari_fsdp_step_range(dpar_fsdp *fsdp, int32_t u, int32_t group, int64_t lo,
                                         int64_t hi, const dpar_mem_optimize *step)
{
    const int64_t in_moment = dpari_moment_at(dpari_fsdp_moment_type(&fsdp->desc), 0, lo);
    const int32_t moments = dpari_optimizer_moments(&fsdp->desc.optimizer);
    dpar_optimizer optimizer = fsdp->desc.optimizer;
    dpar_mem_optimize call = *step;
    dpar_optimizer_piece p;
    const unsigned char *gradient;
    if (hi == lo) {
        return DPAR_OK;
    }
    dpari_zero(&p, sizeof p);
    p.weight_type = fsdp->desc.type;
    p.weight = dpari_fsdp_master_at(fsdp, u) + lo * dpar_type_bytes(p.weight_type);
    gradient = dpari_fsdp_settled(fsdp, u, &p.gradient_type);
    p.gradient = gradient + lo * dpar_type_bytes(p.gradient_type);
    p.m = moments > 0 ? dpari_fsdp_moment_at(fsdp, 0, u) + in_moment : NULL;
    p.v = moments > 1 ? dpari_fsdp_moment_at(fsdp, 1, u) + in_moment : NULL;
    p.count = hi - lo;
    p.index = dpari_fsdp_key(fsdp, u) + (uint64_t)lo;
    if (group >= 0) {
        dpari_optimizer_use_group(&fsdp->group[group], &optimizer, &call.rate);
    }
    call.optimizer = &optimizer;
    call.piece = &p;
    return dpari_do_optimize(fsdp->shard, &call);
}

/* Updates this rank's shard of unit u, with one call for each run of parameters in one group. The
 * padding after a parameter is 0 and stays so, and counts as part of the run. */
static dpar_status dpari_fsdp_step_unit(dpar_fsdp *fsdp, int32_t u, const dpar_mem_optimize *step)
{
    const dpari_fsdp_unit *unit = &fsdp->unit[u];
    int32_t i, group = -1;
    int64_t lo = 0;
    dpar_piece piece;
    for (i = unit->first; i < unit->last && fsdp->desc.groups > 0; i++) {
        dpar_status st;
        if (fsdp->group_of[i] == group || !dpar_fsdp_piece(fsdp, i, &piece)) {
            continue;
        }
        st = dpari_fsdp_step_range(fsdp, u, group, lo, piece.in_shard, step);
        if (st != DPAR_OK) {
            return st;
        }
        lo = piece.in_shard;
        group = fsdp->group_of[i];
    }
    return dpari_fsdp_step_range(fsdp, u, group, lo, unit->flat.shard, step);
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_step(dpar_fsdp *fsdp, double rate, double factor)
{
    dpar_mem_optimize step;
    dpar_why why;
    int32_t u;
    dpar_status st;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    st = dpari_fsdp_check_reduced(fsdp, "dpar_fsdp_step", &why);
    if (st == DPAR_OK && !(dpari_finite(rate) && dpari_finite(factor))) {
        st = dpari_optimizer_say(
            &why, "dpar_fsdp_step: rate is %.9g and factor %.9g, but both must be finite", rate,
            factor);
    }
    if (st != DPAR_OK) {
        return dpari_comm_say(fsdp->shard, st, "%s", why.text);
    }
    st = dpari_fsdp_forget(fsdp, 1);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(&step, sizeof step);
    step.step = ++fsdp->steps;
    step.rate = rate;
    step.factor = factor;
    for (u = 0; u < fsdp->units && st == DPAR_OK; u++) {
        if (!fsdp->unit[u].frozen) {
            st = dpari_fsdp_step_unit(fsdp, u, &step);
        }
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_changed(dpar_fsdp *fsdp)
{
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (fsdp->under_way) {
        return dpari_comm_wrong(fsdp->shard, "dpar_fsdp_changed: the pass has not ended");
    }
    fsdp->steps++;
    return dpari_fsdp_forget(fsdp, 0);
}

/* ==== train/fsdp_state.c ==== */

/* Lists the values that must be equal on all ranks in dpar_fsdp_load. */
static DPARI_COLD void dpari_fsdp_facts_load(dpari_facts *facts, const void *given)
{
    const dpari_fsdp_given *g = (const dpari_fsdp_given *)given;
    dpari_fsdp_facts_place(facts, g);
    dpari_fact(facts, "the number of ranks that saved", 0, g->ranks);
    dpari_fact(facts, "the number of steps", 0, g->steps);
}

/* True if there is such an array of unit u now. Gradients are available only between passes. */
static int dpari_fsdp_has(const dpar_fsdp *fsdp, int32_t array, int32_t u)
{
    if (!dpari_fsdp_is_unit(fsdp, u) || array < 0) {
        return 0;
    }
    if (array != DPAR_FSDP_MASTER && fsdp->unit[u].frozen) {
        return 0;
    }
    if (array == DPAR_FSDP_GRADIENT) {
        return !fsdp->under_way;
    }
    return array <= dpari_optimizer_moments(&fsdp->desc.optimizer); /* the masters are array 0 */
}

DPAR_API DPARI_COLD void *dpar_fsdp_state(const dpar_fsdp *fsdp, int32_t array, int32_t unit,
                                          int64_t *elements, int32_t *type)
{
    const int there = dpari_fsdp_has(fsdp, array, unit);
    int32_t of_type = DPAR_TYPE_NONE;
    void *at = NULL;
    if (there && array == DPAR_FSDP_GRADIENT) {
        at = dpari_fsdp_settled(fsdp, unit, &of_type);
    } else if (there && array == DPAR_FSDP_MASTER) {
        of_type = fsdp->desc.type;
        at = dpari_fsdp_master_at(fsdp, unit);
    } else if (there) {
        of_type = dpari_fsdp_moment_type(&fsdp->desc);
        at = dpari_fsdp_moment_at(fsdp, array - DPAR_FSDP_MOMENT_1, unit);
    }
    if (elements != NULL) {
        *elements = there ? fsdp->unit[unit].flat.shard : 0;
        if (of_type == DPAR_F8) { /* bytes of the records */
            *elements = dpari_moment_bytes(DPAR_F8, *elements);
        }
    }
    if (type != NULL) {
        *type = of_type;
    }
    return at;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_layout(const dpar_fsdp *fsdp, int32_t unit, int32_t first,
                                                 int32_t ranks, dpar_layout *layout, dpar_why *why)
{
    dpar_placement cut = dpar_shard(0);
    dpar_mesh mesh;
    dpar_status st;
    if (!dpari_fsdp_is_unit(fsdp, unit) || layout == NULL || first < 0 || ranks < 1 ||
        ranks - 1 > INT32_MAX - first) {
        return dpari_wrong(why,
                           "dpar_fsdp_layout: unit is %d, ranks %d and first %d, but the unit must "
                           "exist, ranks must be 1 or more, first 0 or more, and layout not NULL",
                           unit, ranks, first);
    }
    st = dpar_mesh_init(&mesh, "shard", &ranks, DPAR_ORDER_LAST_FASTEST, 0, why);
    if (st != DPAR_OK) {
        return st;
    }
    mesh.first_rank = first;
    if (dpari_fsdp_moment_type(&fsdp->desc) == DPAR_F8) {
        const int64_t shard = dpari_fsdp_shard(&fsdp->desc, fsdp->unit[unit].flat.total, ranks);
        cut = dpar_shard_by(0, DPAR_SPLIT_BLOCK_CYCLIC, dpari_most(1, shard));
    }
    return dpar_layout_init(layout, &mesh, 1, &fsdp->unit[unit].flat.total, &cut, why);
}

/* Begins a walk over the parts of this rank's shard of unit u in the shards that `ranks` ranks
 * saved. */
static DPARI_COLD dpar_status dpari_fsdp_walk_saved(const dpar_fsdp *fsdp, int32_t u, int32_t ranks,
                                                    dpar_redistribute_cursor *walk, dpar_why *why)
{
    dpar_layout from, to;
    dpar_status st = dpar_fsdp_layout(fsdp, u, 0, ranks, &from, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpar_fsdp_layout(fsdp, u, 0, fsdp->shard->size, &to, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpar_redistribute_check(&from, &to, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpar_redistribute_first(walk, &from, &to, fsdp->shard->rank, DPAR_TRANSFER_RECV,
                                   DPAR_REDISTRIBUTE_PRIMARY);
}

/* Reads this rank's shard of one array of one unit, from the shards of `ranks` ranks. */
static DPARI_COLD dpar_status dpari_fsdp_read_one(dpar_fsdp *fsdp, int32_t array, int32_t u,
                                                  int32_t ranks, dpar_fsdp_read_callback read,
                                                  void *ctx, dpar_why *why)
{
    dpar_redistribute_cursor walk;
    dpar_transfer t;
    int64_t count;
    int32_t type;
    unsigned char *at = (unsigned char *)dpar_fsdp_state(fsdp, array, u, &count, &type);
    const int64_t each = dpar_type_bytes(type);
    dpar_status st;
    if (at == NULL || count == 0) {
        return DPAR_OK;
    }
    st = dpari_fsdp_walk_saved(fsdp, u, ranks, &walk, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_do_copy(fsdp->shard, at, NULL, count * each);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_do_wait(fsdp->shard); /* the zeros must be written before the callback writes */
    while (st == DPAR_OK && dpar_redistribute_next(&walk, &t)) {
        const int64_t first = dpari_moment_bytes(type, t.theirs[0]) / each;
        const int64_t part = dpari_moment_bytes(type, t.extent[0]) / each;
        const dpar_status got =
            read(ctx, array, u, t.peer, first, part, at + dpari_moment_bytes(type, t.mine[0]));
        if (got < DPAR_OK) { /* a positive status is a condition, not a failure */
            st = dpari_say(
                got, why,
                "dpar_fsdp_load: the callback failed to read %ld elements of array %d of unit %d "
                "that rank %d saved",
                part, array, u, t.peer);
        }
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_load(dpar_fsdp *fsdp, int32_t ranks, int64_t steps,
                                               dpar_fsdp_read_callback read, void *ctx,
                                               dpar_why *why)
{
    dpari_fsdp_given given;
    int32_t array, u;
    dpar_status st = DPAR_OK;
    if (fsdp == NULL) {
        return dpari_wrong(why, "dpar_fsdp_load: the fsdp is NULL");
    }
    if (read == NULL || ranks < 1 || steps < 0 || fsdp->under_way) {
        st = dpari_wrong(
            why,
            "dpar_fsdp_load: ranks is %d and steps %ld, but ranks must be 1 or more, steps 0 or "
            "more, read not NULL, and no pass may be in progress",
            ranks, steps);
    } else {
        st = dpari_fsdp_forget(fsdp, 0);
    }
    for (array = 0; array < DPAR_FSDP_ARRAY_COUNT; array++) {
        for (u = 0; u < fsdp->units && st == DPAR_OK; u++) {
            st = dpari_fsdp_read_one(fsdp, array, u, ranks, read, ctx, why);
        }
    }
    dpari_zero(&given, sizeof given);
    given.ranks = ranks;
    given.steps = steps;
    st = dpari_fsdp_agree(fsdp->shard, fsdp->replicas, st, "fsdp load", dpari_fsdp_facts_load,
                          &given, why);
    if (st == DPAR_OK) {
        fsdp->steps = steps;
    }
    return st;
}

/* ==== train/matrices.c ==== */

/* Whole matrices out of shards, and back.
 *
 * A rank packs its pieces, sorted by owner, then by matrix. One all-to-all brings them to the
 * owners, which receive them sorted by sender, then by matrix, and pack their own pieces between
 * those of lower and higher ranks. With the flat array of a zero1 the pieces of a matrix are then
 * contiguous, because a matrix that is cut is the last one of a share and the first one of the next
 * share. Such a matrix is used in place. With an fsdp, each rank has a piece of almost every
 * matrix, and an owner of several joins the pieces in another place. dpar_matrices_scatter does the
 * same copies in the other direction.
 *
 * All ranks compute the same owners from the same costs, and know the pieces of all ranks. */

/* A matrix. */
typedef struct dpari_matrix {
    int32_t param, owner;
    double cost;
    int64_t count;          /* elements; 0 if it is frozen */
    int64_t start;          /* first element in the array that the ranks share */
    const dpari_flat *flat; /* how they share it */
    unsigned char *shard;   /* this rank's shard of the gradients in that array */
    int64_t place;          /* first element in `memory` where it is whole, for its owner */
} dpari_matrix;

struct dpar_matrices {
    dpar_comm *comm;
    dpar_zero1 *zero1;
    dpar_fsdp *fsdp;
    int32_t matrices;
    int32_t type;
    int32_t gathered; /* 1 between gather and scatter */
    int64_t each;     /* bytes of an element */
    dpari_flat flat;  /* with zero1: how ranks share the gradients */
    dpari_matrix *matrix;
    double *load; /* [ranks] cost of the matrices that each rank owns */
    /* [ranks] elements that are sent to each rank and received from it, and the first of them in
     * its part of `memory`. Own pieces are not sent but packed into the received part. */
    int64_t *sends, *receives, *sends_at, *receives_at;
    int64_t *at; /* [ranks] first element of the next piece, during a walk */
    /* The elements that are sent, those that are received, then matrices that are joined. */
    unsigned char *memory;
    int64_t received, joined, end; /* where the second and the third part begin, and the end */
};

/* Returns the piece of matrix k that a rank has. An empty piece has count 0. */
static DPARI_COLD dpar_piece dpari_matrices_piece(const dpar_matrices *m, int32_t k, int32_t rank)
{
    const dpari_matrix *matrix = &m->matrix[k];
    dpar_piece piece;
    dpari_zero(&piece, sizeof piece);
    if (matrix->count > 0) {
        (void)dpari_flat_piece(matrix->flat, matrix->start, matrix->count, rank, &piece);
    }
    return piece;
}

/* What a walk does with pieces. */
enum {
    DPARI_MATRICES_PLACE, /* decides where matrices will be whole */
    DPARI_MATRICES_TO,    /* copies to the shards or to the whole matrices */
    DPARI_MATRICES_FROM   /* copies from them */
};

/* Copies a piece between its packed place and its shard or whole matrix, as `what` says. */
static DPARI_COLD dpar_status dpari_matrices_copy(const dpar_matrices *m, unsigned char *packed,
                                                  unsigned char *other, int64_t count, int what)
{
    if (other == packed) {
        return DPAR_OK; /* the matrix is used where its pieces arrive */
    }
    if (what == DPARI_MATRICES_TO) {
        return dpari_do_copy(m->comm, other, packed, count * m->each);
    }
    return dpari_do_copy(m->comm, packed, other, count * m->each);
}

/* Walks over the pieces that this rank sends in gather, or with `owned` over those that it
 * receives, in the order of their memory for each peer. */
static DPARI_COLD dpar_status dpari_matrices_walk(dpar_matrices *m, int owned, int what)
{
    const int32_t self = m->comm->rank, size = m->comm->size;
    dpar_status st = DPAR_OK;
    int32_t rank, k;
    for (rank = 0; rank < size; rank++) {
        m->at[rank] =
            owned || rank == self ? m->received + m->receives_at[rank] : m->sends_at[rank];
    }
    for (k = 0; k < m->matrices; k++) {
        dpari_matrix *matrix = &m->matrix[k];
        const int32_t last = owned ? size - 1 : self;
        if (owned && matrix->owner != self) {
            continue;
        }
        for (rank = owned ? 0 : self; rank <= last && st == DPAR_OK; rank++) {
            const dpar_piece piece = dpari_matrices_piece(m, k, rank);
            int64_t *next = &m->at[owned ? rank : matrix->owner];
            const int64_t whole = matrix->place + piece.in_param;
            if (piece.count == 0) {
                continue;
            }
            if (what != DPARI_MATRICES_PLACE) {
                unsigned char *packed = m->memory + *next * m->each;
                unsigned char *other =
                    owned ? m->memory + whole * m->each : matrix->shard + piece.in_shard * m->each;
                st = dpari_matrices_copy(m, packed, other, piece.count, what);
            } else if (piece.in_param == 0) {
                matrix->place = *next;
            } else if (matrix->place < m->joined && whole != *next) {
                matrix->place = m->end; /* its pieces are not contiguous */
                m->end += matrix->count;
            }
            *next += piece.count;
        }
    }
    return st;
}

/* ---- made ------------------------------------------------------------------------------------ */

/* Checks the arguments. */
static DPARI_COLD dpar_status dpari_matrices_check(const dpar_comm *comm,
                                                   const dpar_matrices_desc *desc, dpar_why *why)
{
    int32_t k, params, low = 0;
    if (desc == NULL || desc->matrices < 0 || (desc->zero1 != NULL) == (desc->fsdp != NULL) ||
        (desc->zero1 != NULL ? desc->zero1->ddp->comm : desc->fsdp->shard) != comm) {
        return dpari_wrong(why,
                           "dpar_matrices_make: desc.matrices is %d, but must be 0 or more, and "
                           "desc must have either a zero1 or an fsdp, which was made on comm",
                           desc != NULL ? desc->matrices : 0);
    }
    params = desc->zero1 != NULL ? desc->zero1->ddp->params : desc->fsdp->params;
    for (k = 0; k < desc->matrices; k++) {
        const int32_t i = desc->param != NULL ? desc->param[k] : k;
        const double cost = desc->cost != NULL ? desc->cost[k] : 0.0;
        if (i < low || i >= params || !(cost >= 0.0) || !dpari_finite(cost)) {
            return dpari_optimizer_say(
                why,
                "dpar_matrices_make: param[%d] is %d and cost[%d] %.9g, but parameters must "
                "ascend, here from %d to %d, and costs must be 0 or more and finite",
                k, i, k, cost, low, params - 1);
        }
        low = i + 1;
    }
    return DPAR_OK;
}

/* Lists the values that must be equal on all ranks. */
static DPARI_COLD void dpari_matrices_facts(dpari_facts *facts, const void *given)
{
    const dpar_matrices *m = *(dpar_matrices *const *)given;
    int32_t k;
    dpari_fact(facts, "the number of matrices", 0, m->matrices);
    for (k = 0; k < m->matrices; k++) {
        dpari_fact(facts, "param[#]", k, m->matrix[k].param);
        dpari_fact_real(facts, "cost[#]", k, m->matrix[k].cost);
    }
}

/* Places the object and its tables. With room->at NULL, only counts bytes. */
static DPARI_COLD void dpari_matrices_tables(dpar_matrices *m, dpari_room *room)
{
    const int64_t ranks = m->comm->size;
    (void)dpari_room_take(room, 1, sizeof *m);
    m->matrix = (dpari_matrix *)dpari_room_take(room, m->matrices, sizeof *m->matrix);
    m->load = (double *)dpari_room_take(room, ranks, sizeof *m->load);
    m->sends = (int64_t *)dpari_room_take(room, ranks, sizeof *m->sends);
    m->receives = (int64_t *)dpari_room_take(room, ranks, sizeof *m->receives);
    m->sends_at = (int64_t *)dpari_room_take(room, ranks, sizeof *m->sends_at);
    m->receives_at = (int64_t *)dpari_room_take(room, ranks, sizeof *m->receives_at);
    m->at = (int64_t *)dpari_room_take(room, ranks, sizeof *m->at);
}

/* Gives the most expensive matrix that has no owner to the rank with the lowest cost, until all
 * have one. */
static DPARI_COLD void dpari_matrices_divide(dpar_matrices *m)
{
    int32_t n, k, rank;
    for (n = 0; n < m->matrices; n++) {
        int32_t next = -1, least = 0;
        for (k = 0; k < m->matrices; k++) {
            const dpari_matrix *matrix = &m->matrix[k];
            if (matrix->owner < 0 && (next < 0 || matrix->cost > m->matrix[next].cost)) {
                next = k;
            }
        }
        for (rank = 1; rank < m->comm->size; rank++) {
            if (m->load[rank] < m->load[least]) {
                least = rank;
            }
        }
        m->matrix[next].owner = least;
        m->load[least] += m->matrix[next].cost;
    }
}

/* Computes what is sent and received, and where matrices will be. */
static DPARI_COLD void dpari_matrices_plan(dpar_matrices *m)
{
    const int32_t self = m->comm->rank;
    int32_t rank, k;
    for (k = 0; k < m->matrices; k++) {
        m->sends[m->matrix[k].owner] += dpari_matrices_piece(m, k, self).count;
        for (rank = 0; rank < m->comm->size && m->matrix[k].owner == self; rank++) {
            m->receives[rank] += dpari_matrices_piece(m, k, rank).count;
        }
    }
    m->sends[self] = 0;
    for (rank = 0; rank < m->comm->size; rank++) {
        m->sends_at[rank] = m->received;
        m->received += m->sends[rank];
        m->receives_at[rank] = m->joined;
        m->joined += m->receives[rank];
    }
    m->receives[self] = 0;
    m->joined += m->received;
    m->end = m->joined;
    (void)dpari_matrices_walk(m, 1, DPARI_MATRICES_PLACE);
}

/* Fills in the object and decides who owns what. */
static DPARI_COLD void dpari_matrices_fill(dpar_matrices *m, const dpar_matrices_desc *desc)
{
    const dpar_zero1 *zero1 = m->zero1;
    int32_t k;
    for (k = 0; k < m->matrices; k++) {
        const int32_t i = desc->param != NULL ? desc->param[k] : k;
        dpari_matrix *matrix = &m->matrix[k];
        matrix->param = i;
        matrix->owner = -1;
        if (zero1 != NULL) {
            m->type = zero1->ddp->desc.type;
            m->flat.ranks = m->comm->size;
            m->flat.total = zero1->ddp->elements;
            m->flat.shard = zero1->share;
            matrix->flat = &m->flat;
            matrix->start = zero1->ddp->start[i];
            matrix->count = zero1->ddp->count[i];
            matrix->shard = zero1->ddp->buffer + dpari_ddp_first(zero1) * dpar_type_bytes(m->type);
        } else if (!m->fsdp->unit[m->fsdp->home[i]].frozen) {
            matrix->flat = &m->fsdp->unit[m->fsdp->home[i]].flat;
            matrix->start = m->fsdp->start[i];
            matrix->count = m->fsdp->count[i];
            matrix->shard = dpari_fsdp_reduced_at(m->fsdp, m->fsdp->home[i], &m->type);
        }
        matrix->cost = desc->cost != NULL ? desc->cost[k] : (double)matrix->count;
    }
    m->each = dpar_type_bytes(m->type);
    dpari_matrices_divide(m);
    dpari_matrices_plan(m);
}

/* Allocates the object. */
static DPARI_COLD dpar_status dpari_matrices_create(dpar_comm *comm, const dpar_matrices_desc *desc,
                                                    dpar_matrices **matrices, dpar_why *why)
{
    dpar_matrices head, *m;
    dpari_room room = dpari_room_of(NULL);
    dpar_status st = DPAR_E_MEMORY;
    int64_t bytes;
    void *memory = NULL;
    dpari_zero(&head, sizeof head);
    head.comm = comm;
    head.zero1 = desc->zero1;
    head.fsdp = desc->fsdp;
    head.matrices = desc->matrices;
    head.type = DPAR_U8; /* if no matrix has elements */
    dpari_matrices_tables(&head, &room);
    bytes = room.used;
    *matrices = m = (dpar_matrices *)dpari_object_alloc(comm, bytes);
    if (m != NULL) {
        room = dpari_room_of(m);
        *m = head;
        dpari_matrices_tables(m, &room);
        dpari_matrices_fill(m, desc);
        bytes = dpari_most(64, m->end * m->each);
        st = dpar_comm_alloc(comm, bytes, &memory);
        m->memory = (unsigned char *)memory;
    }
    return st == DPAR_OK ? st
                         : dpari_say(st, why, "dpar_matrices_make: no memory for %ld bytes", bytes);
}

DPAR_API DPARI_COLD dpar_status dpar_matrices_make(dpar_comm *comm, const dpar_matrices_desc *desc,
                                                   dpar_matrices **matrices, dpar_why *why)
{
    dpar_matrices *m = NULL;
    dpar_status st;
    if (comm == NULL || matrices == NULL) {
        return dpari_wrong(why, "dpar_matrices_make: comm and matrices must not be NULL");
    }
    why = dpari_why_of(comm, why);
    st = dpari_matrices_check(comm, desc, why);
    if (st == DPAR_OK) {
        st = dpari_matrices_create(comm, desc, &m, why);
    }
    st = dpari_agree_on(comm, st, "matrices", dpari_matrices_facts, &m, why);
    if (st != DPAR_OK) {
        (void)dpar_matrices_free(m);
        return st;
    }
    *matrices = m;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_matrices_free(dpar_matrices *matrices)
{
    if (matrices != NULL && matrices->memory != NULL) {
        dpar_comm_release(matrices->comm, matrices->memory);
    }
    dpari_object_release(matrices);
    return DPAR_OK;
}

DPAR_API DPARI_COLD int32_t dpar_matrices_owner(const dpar_matrices *matrices, int32_t k)
{
    return matrices != NULL && k >= 0 && k < matrices->matrices ? matrices->matrix[k].owner : -1;
}

DPAR_API DPARI_COLD void *dpar_matrices_at(const dpar_matrices *matrices, int32_t k)
{
    if (matrices == NULL || dpar_matrices_owner(matrices, k) != matrices->comm->rank ||
        matrices->matrix[k].count == 0) {
        return NULL;
    }
    return matrices->memory + matrices->matrix[k].place * matrices->each;
}

/* ---- moved ----------------------------------------------------------------------------------- */

/* Gathers the matrices, or scatters them with `back`. */
static DPARI_COLD dpar_status dpari_matrices_move(dpar_matrices *m, int back)
{
    const char *missing = NULL;
    unsigned char *received;
    dpar_call call;
    dpar_why why;
    dpar_status st;
    int32_t u, type;
    if (m == NULL) {
        return DPAR_E_ARG;
    }
    if (m->comm->status != DPAR_OK) {
        return m->comm->status;
    }
    if (m->zero1 != NULL && (m->zero1->ddp->under_way || !m->zero1->ddp->ended)) {
        missing = "dpar_zero1_norm";
    } else if (m->fsdp != NULL && m->fsdp->under_way) {
        missing = "dpar_fsdp_end";
    } else if (back && !m->gathered) {
        missing = "dpar_matrices_gather";
    }
    if (missing != NULL) {
        st = dpari_wrong(&why, "dpar_matrices_%s: call %s before", back ? "scatter" : "gather",
                         missing);
        return dpari_update_refuse(m->comm, NULL, NULL, st, &why);
    }
    for (u = 0; m->fsdp != NULL && u < m->fsdp->units; u++) {
        if (!m->fsdp->unit[u].frozen) {
            (void)dpari_fsdp_settled(m->fsdp, u, &type); /* zeroes gradients that count as 0 */
        }
    }
    st = dpari_matrices_walk(m, back, DPARI_MATRICES_FROM);
    if (st != DPAR_OK) {
        return st;
    }
    received = m->memory + m->received * m->each;
    dpari_zero(&call, sizeof call);
    call.kind = DPAR_CALL_ALL_TO_ALL;
    call.type = m->type;
    call.variable_counts = 1;
    call.in = back ? received : m->memory;
    call.out = back ? m->memory : received;
    call.in_count = back ? m->receives : m->sends;
    call.in_first = back ? m->receives_at : m->sends_at;
    call.out_count = back ? m->sends : m->receives;
    call.out_first = back ? m->sends_at : m->receives_at;
    st = dpari_post_alike(m->comm, &call, (uint64_t)back, "dpar_matrices_gather or _scatter", NULL);
    if (st != DPAR_OK) {
        return st;
    }
    m->gathered = !back;
    return dpari_matrices_walk(m, !back, DPARI_MATRICES_TO);
}

DPAR_API DPARI_COLD dpar_status dpar_matrices_gather(dpar_matrices *matrices)
{
    return dpari_matrices_move(matrices, 0);
}

DPAR_API DPARI_COLD dpar_status dpar_matrices_scatter(dpar_matrices *matrices)
{
    return dpari_matrices_move(matrices, 1);
}

/* ==== train/tensor.c ==== */

/* Tensor-parallel layers: linear, embedding and cross-entropy. The product in plain C is a tiled
 * loop with sums in f64. In the backward of a column layer, the inputs are gathered while dx is
 * computed, and dx is summed over the ranks while dw is computed.
 *
 * Each rank checks its arguments before it posts anything. An error breaks the communicator, so
 * that the other ranks do not wait for a collective that this rank never posts. Values that must be
 * equal on all ranks (vocabulary, ids) are hashed, and collectives compare the hashes. */

/* ---- products -------------------------------------------------------------------------------- */

/* c is computed in tiles of 16 x 16, over 32 values of k at a time. The three arrays on the stack
 * then take 10 KB, which fits in the first-level cache. */
enum { DPARI_MATMUL_TILE = 16, DPARI_MATMUL_DEEP = 32 };

/* Packs a tile: to[d * TILE + i] = data[at + i * along + d * down], as f64, for i < lanes. The
 * other elements of each row become 0. */
static void dpari_matmul_pack(double *to, const void *data, int32_t type, int64_t at, int64_t along,
                              int64_t down, int32_t lanes, int32_t deep)
{
    int32_t d, i;
    for (d = 0; d < deep; d++, to += DPARI_MATMUL_TILE) {
        const int64_t first = at + d * down;
        if (type == DPAR_F64) {
            const double *from = (const double *)data + first;
            for (i = 0; i < lanes; i++) {
                to[i] = from[i * along];
            }
        } else {
            const float *from = (const float *)data + first;
            for (i = 0; i < lanes; i++) {
                to[i] = (double)from[i * along];
            }
        }
        for (i = lanes; i < DPARI_MATMUL_TILE; i++) {
            to[i] = 0.0;
        }
    }
}

/* Computes sum[i][j] += sum over d of a[d][i] * b[d][j], for `rows` rows i. */
static void dpari_matmul_tile(double *sum, const double *a, const double *b, int32_t rows,
                              int32_t deep)
{
    int32_t i, j, d;
    for (i = 0; i < rows; i++) {
        double row[DPARI_MATMUL_TILE];
        for (j = 0; j < DPARI_MATMUL_TILE; j++) {
            row[j] = sum[i * DPARI_MATMUL_TILE + j];
        }
        for (d = 0; d < deep; d++) {
            const double f = a[d * DPARI_MATMUL_TILE + i];
            for (j = 0; j < DPARI_MATMUL_TILE; j++) {
                row[j] += f * b[d * DPARI_MATMUL_TILE + j];
            }
        }
        for (j = 0; j < DPARI_MATMUL_TILE; j++) {
            sum[i * DPARI_MATMUL_TILE + j] = row[j];
        }
    }
}

/* Stores a tile at row i0 and column j0: c = alpha sum + beta c. If beta is 0, c is not read. */
static void dpari_matmul_store(const dpar_matmul *p, const double *sum, int64_t i0, int64_t j0,
                               int32_t rows, int32_t columns)
{
    int32_t i, j;
    for (i = 0; i < rows; i++) {
        for (j = 0; j < columns; j++) {
            const int64_t at = (i0 + i) * p->ldc + j0 + j;
            double v = p->alpha * sum[i * DPARI_MATMUL_TILE + j];
            if (p->beta < 0.0 || p->beta > 0.0) {
                v += p->beta * dpari_element_get(p->c, p->type, at);
            }
            dpari_element_put(p->c, p->type, at, v);
        }
    }
}

/* Computes the tile of c at row i0 and column j0. */
static void dpari_matmul_one(const dpar_matmul *p, int64_t i0, int64_t j0)
{
    double sum[DPARI_MATMUL_TILE * DPARI_MATMUL_TILE];
    double a[DPARI_MATMUL_TILE * DPARI_MATMUL_DEEP], b[DPARI_MATMUL_TILE * DPARI_MATMUL_DEEP];
    const int32_t rows = (int32_t)dpari_least(DPARI_MATMUL_TILE, p->m - i0);
    const int32_t columns = (int32_t)dpari_least(DPARI_MATMUL_TILE, p->n - j0);
    const int64_t a_along = p->transpose_a ? 1 : p->lda;
    const int64_t a_down = p->transpose_a ? p->lda : 1;
    const int64_t b_along = p->transpose_b ? p->ldb : 1;
    const int64_t b_down = p->transpose_b ? 1 : p->ldb;
    int64_t k;
    dpari_zero(sum, sizeof sum);
    for (k = 0; k < p->k; k += DPARI_MATMUL_DEEP) {
        const int32_t deep = (int32_t)dpari_least(DPARI_MATMUL_DEEP, p->k - k);
        dpari_matmul_pack(a, p->a, p->type, i0 * a_along + k * a_down, a_along, a_down, rows, deep);
        dpari_matmul_pack(b, p->b, p->type, j0 * b_along + k * b_down, b_along, b_down, columns,
                          deep);
        dpari_matmul_tile(sum, a, b, rows, deep);
    }
    dpari_matmul_store(p, sum, i0, j0, rows, columns);
}

DPAR_API dpar_status dpar_matmul_host(void *user, const dpar_matmul *call)
{
    int64_t i, j;
    (void)user;
    if (!dpari_is_wide(call->type) || call->m < 0 || call->n < 0 || call->k < 0) {
        return DPAR_E_ARG;
    }
    for (i = 0; i < call->m; i += DPARI_MATMUL_TILE) {
        for (j = 0; j < call->n; j += DPARI_MATMUL_TILE) {
            dpari_matmul_one(call, i, j);
        }
    }
    return DPAR_OK;
}

/* ---- functions of all layers ----------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_tensor_parallel_init(dpar_tensor_parallel *tp, dpar_comm *comm,
                                                          int32_t type, int64_t tokens,
                                                          int64_t *counts, dpar_why *why)
{
    dpar_tensor_parallel made;
    dpar_status st;
    if (tp == NULL || comm == NULL) {
        return dpari_wrong(why, "layers: communicator or result is NULL");
    }
    why = dpari_why_of(comm, why);
    if (!dpari_is_wide(type)) {
        return dpari_wrong(why, "layers: type is %s, but must be f64 or f32", dpar_type_name(type));
    }
    dpari_zero(&made, sizeof made);
    st = dpar_split_init(&made.tokens, DPAR_SPLIT_EVEN, tokens, comm->size, 1, why);
    if (st == DPAR_OK) {
        made.comm = comm;
        made.type = type;
        made.counts = counts;
        *tp = made;
    }
    return st;
}

/* Returns the number of a rank's tokens outside of a pair of layers: with sequence parallelism its
 * part, otherwise all tokens. */
static int64_t dpari_tensor_tokens(const dpar_tensor_parallel *tp, int32_t rank)
{
    return tp->counts == NULL ? tp->tokens.count : dpar_split_part_count(&tp->tokens, rank);
}

/* Checks that tp has a communicator and that the structs that describe the call are not NULL
 * (described = 1). Without a communicator, only the caller gets the error. */
static dpar_status dpari_tensor_check_not_null(const dpar_tensor_parallel *tp, int described)
{
    if (tp == NULL || tp->comm == NULL) {
        return DPAR_E_ARG;
    }
    if (described) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(tp->comm, DPAR_E_ARG, "rank %d: a layer's description is NULL",
                                tp->comm->rank);
}

/* Checks tp, whose fields the caller may have changed. A rank's tokens must be consecutive if they
 * are gathered. */
static DPARI_COLD dpar_status dpari_tensor_check(const dpar_tensor_parallel *tp)
{
    const int32_t rule = tp->tokens.rule;
    if (!dpari_is_wide(tp->type) || tp->tokens.parts != tp->comm->size) {
        return dpari_comm_wrong_all(
            tp->comm, DPAR_E_ARG,
            "layers: type is %d, the communicator has %d ranks and tokens has %d parts, but type "
            "must be DPAR_F64 or DPAR_F32, and the two numbers must be equal",
            tp->type, tp->comm->size, tp->tokens.parts);
    }
    if (tp->counts != NULL && rule != DPAR_SPLIT_EVEN && rule != DPAR_SPLIT_CHUNK &&
        rule != DPAR_SPLIT_FLOOR && rule != DPAR_SPLIT_RAGGED) {
        return dpari_comm_wrong_all(
            tp->comm, DPAR_E_ARG,
            "layers: tokens.rule is %d, but the tokens of a rank must be consecutive", rule);
    }
    return DPAR_OK;
}

/* Computes c[m][n] = op(a) op(b), or adds it to c. The caller has set m, n, k and which matrix is
 * transposed. */
static dpar_status dpari_tensor_multiply(const dpar_tensor_parallel *tp, dpar_matmul *p,
                                         const void *a, const void *b, void *c, int add)
{
    dpar_status st;
    p->type = tp->type;
    p->alpha = 1.0;
    p->beta = add ? 1.0 : 0.0;
    p->a = a;
    p->b = b;
    p->c = c;
    p->lda = dpari_most(1, p->transpose_a ? p->m : p->k);
    p->ldb = dpari_most(1, p->transpose_b ? p->k : p->n);
    p->ldc = dpari_most(1, p->n);
    st = tp->matmul != NULL ? tp->matmul(tp->user, p) : dpar_matmul_host(NULL, p);
    if (st >= 0) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(tp->comm, st,
                                "rank %d: matmul failed for a product with m %ld, n %ld, k %ld",
                                tp->comm->rank, p->m, p->n, p->k);
}

/* Computes y = x w^T for all tokens. The next two functions compute dx = dy w and dw = dy^T x. */
static dpar_status dpari_linear_apply(const dpar_tensor_parallel *tp, const dpar_linear *l,
                                      const void *x, const void *w, void *y)
{
    dpar_matmul p;
    dpari_zero(&p, sizeof p);
    p.transpose_b = 1;
    p.m = tp->tokens.count;
    p.n = l->out;
    p.k = l->in;
    return dpari_tensor_multiply(tp, &p, x, w, y, 0);
}

static dpar_status dpari_linear_inputs(const dpar_tensor_parallel *tp, const dpar_linear *l,
                                       const void *dy, const void *w, void *dx, int add)
{
    dpar_matmul p;
    dpari_zero(&p, sizeof p);
    p.m = tp->tokens.count;
    p.n = l->in;
    p.k = l->out;
    return dpari_tensor_multiply(tp, &p, dy, w, dx, add);
}

static dpar_status dpari_linear_weights(const dpar_tensor_parallel *tp, const dpar_linear *l,
                                        const void *dy, const void *x, void *dw, int add)
{
    dpar_matmul p;
    dpari_zero(&p, sizeof p);
    p.transpose_a = 1;
    p.m = l->out;
    p.n = l->in;
    p.k = tp->tokens.count;
    return dpari_tensor_multiply(tp, &p, dy, x, dw, add);
}

/* Sums dy[row][j] over the rows in f64, and stores the result in sum[j] or adds it. Does nothing if
 * sum is NULL. Processes 64 columns at a time, so that their sums fit on the stack. */
static void dpari_tensor_add_rows(int32_t type, const void *dy, int64_t rows, int64_t n, void *sum,
                                  int add)
{
    enum { SOME = 64 };
    double part[SOME];
    int64_t first, i, j;
    for (first = 0; first < n && sum != NULL; first += SOME) {
        const int64_t some = dpari_least(SOME, n - first);
        for (j = 0; j < some; j++) {
            part[j] = add ? dpari_element_get(sum, type, first + j) : 0.0;
        }
        for (i = 0; i < rows; i++) {
            for (j = 0; j < some; j++) {
                part[j] += dpari_element_get(dy, type, i * n + first + j);
            }
        }
        for (j = 0; j < some; j++) {
            dpari_element_put(sum, type, first + j, part[j]);
        }
    }
}

/* Does the same in the memory of the communicator, which may be that of a device. */
static dpar_status dpari_tensor_sum_rows(const dpar_tensor_parallel *tp, const void *dy,
                                         int64_t rows, int64_t n, void *sum, int add)
{
    dpar_mem_reduce r;
    if (tp->comm->mem == NULL || sum == NULL || n == 0) {
        dpari_tensor_add_rows(tp->type, dy, rows, n, sum, add);
        return DPAR_OK;
    }
    if (rows == 0) {
        return add ? DPAR_OK : dpari_do_copy(tp->comm, sum, NULL, n * dpar_type_bytes(tp->type));
    }
    dpari_zero(&r, sizeof r);
    r.to = sum;
    r.from = dy;
    r.count = r.stride = n;
    r.parts = rows;
    r.to_type = r.from_type = tp->type;
    r.sum_type = DPAR_F64;
    r.op = DPAR_SUM;
    r.accumulate = add != 0;
    r.scale = 1.0;
    return dpari_do_reduce(tp->comm, &r);
}

/* ---- collectives of rows --------------------------------------------------------------------- */

/* Fills in tp->counts for collectives on rows of this width. A function calls it once, before it
 * posts anything, because posted operations read the counts. The product is unsigned because widths
 * have no limit. */
static void dpari_tensor_count(const dpar_tensor_parallel *tp, int64_t width)
{
    int32_t r;
    for (r = 0; tp->counts != NULL && r < tp->comm->size; r++) {
        tp->counts[r] =
            (int64_t)((uint64_t)dpar_split_part_count(&tp->tokens, r) * (uint64_t)width);
    }
}

/* What the ranks of a collective compare. */
typedef struct dpari_tensor_alike {
    uint64_t hash;
    const char *what; /* names the hashed values in the message if hashes differ */
} dpari_tensor_alike;

static dpari_tensor_alike dpari_linear_alike(const dpar_linear *l)
{
    const int column = l->kind == DPAR_LINEAR_COLUMN; /* the other width may differ between ranks */
    dpari_tensor_alike alike = {0, NULL};
    alike.hash = dpari_hash(dpari_hash(1, l->kind), column ? l->in : l->out);
    alike.what = column ? "a linear layer: kind or in" : "a linear layer: kind or out";
    return alike;
}

/* Returns a hash of a vocabulary and of all ids. */
static uint64_t dpari_vocab_hash(const dpar_tensor_parallel *tp, const dpar_vocab *vocab,
                                 const int32_t *ids)
{
    uint64_t h = dpari_hash(dpari_hash(2, vocab->count), vocab->added);
    int64_t i;
    h = dpari_hash(dpari_hash(h, vocab->padded), vocab->padded_added);
    for (i = 0; i < tp->tokens.count; i++) {
        h = dpari_hash(h, ids[i]);
    }
    return h;
}

/* Gathers the rows of all ranks into whole[n][width]. Only with sequence parallelism. */
static dpar_status dpari_tensor_collect(const dpar_tensor_parallel *tp, const void *own,
                                        void *whole, const dpari_tensor_alike *alike,
                                        dpar_work *work)
{
    dpar_call call;
    dpari_zero(&call, sizeof call);
    call.kind = DPAR_CALL_ALL_GATHER;
    call.type = tp->type;
    call.variable_counts = 1;
    call.in = own;
    call.out = whole;
    call.count = tp->counts[tp->comm->rank];
    call.out_count = tp->counts;
    return dpari_post_alike(tp->comm, &call, alike->hash, alike->what, work);
}

/* Sums part[n][width] over the ranks. The result is in `part` on all ranks, or with sequence
 * parallelism each rank's rows of it are in `own`. */
static dpar_status dpari_tensor_reduce(const dpar_tensor_parallel *tp, int64_t width, void *part,
                                       void *own, const dpari_tensor_alike *alike, dpar_work *work)
{
    dpar_call call;
    dpari_zero(&call, sizeof call);
    call.kind = tp->counts == NULL ? DPAR_CALL_ALL_REDUCE : DPAR_CALL_REDUCE_SCATTER;
    call.type = tp->type;
    call.op = DPAR_SUM;
    call.in = part;
    call.out = tp->counts == NULL ? part : own;
    call.count = tp->counts == NULL ? tp->tokens.count * width : tp->counts[tp->comm->rank];
    call.variable_counts = tp->counts != NULL;
    call.in_count = tp->counts;
    return dpari_post_alike(tp->comm, &call, alike->hash, alike->what, work);
}

/* ---- linear layers --------------------------------------------------------------------------- */

/* True if an array is NULL although it has elements. */
static int dpari_tensor_missing(const void *at, int64_t rows, int64_t width)
{
    return at == NULL && rows > 0 && width > 0;
}

/* If arrays are missing, reports their number to all ranks. what: the layer's kind. */
static dpar_status dpari_tensor_check_missing(const dpar_tensor_parallel *tp, int missing,
                                              const char *what)
{
    if (missing == 0) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(tp->comm, DPAR_E_ARG,
                                "rank %d: %s: %d arrays that this call needs are NULL",
                                tp->comm->rank, what, (int32_t)missing);
}

/* Checks a layer and its arrays. An array may be NULL if the call does not use it or if it has no
 * elements. */
static DPARI_COLD dpar_status dpari_linear_check(const dpar_tensor_parallel *tp,
                                                 const dpar_linear *l,
                                                 const dpar_linear_arrays *arrays, int forward)
{
    int64_t n, rows_x, rows_y;
    int sequence, column, reads_x, reads_dy, missing;
    dpar_status st = dpari_tensor_check_not_null(tp, l != NULL && arrays != NULL);
    if (st == DPAR_OK) {
        st = dpari_tensor_check(tp);
    }
    if (st != DPAR_OK) {
        return st;
    }
    sequence = tp->counts != NULL;
    column = l->kind == DPAR_LINEAR_COLUMN;
    n = tp->tokens.count;
    rows_x = column ? dpari_tensor_tokens(tp, tp->comm->rank) : n;
    rows_y = column ? n : dpari_tensor_tokens(tp, tp->comm->rank);
    reads_x = (forward || arrays->dw != NULL) && !(column && sequence && arrays->reuse_gathered);
    reads_dy = !forward && !(!column && sequence && arrays->reuse_gathered);
    if ((l->kind != DPAR_LINEAR_COLUMN && l->kind != DPAR_LINEAR_ROW) || l->in < 0 || l->out < 0 ||
        ((arrays->accumulate_dx || arrays->defer_reduce) && !column)) {
        return dpari_comm_wrong_all(
            tp->comm, DPAR_E_ARG,
            "linear: kind is %d, in %ld and out %ld, but kind must be 1 (column) or 2 (row), in "
            "and out 0 or more, and accumulate_dx and defer_reduce 0 in a row layer",
            l->kind, l->in, l->out);
    }
    if (tp->comm->mem != NULL && tp->matmul == NULL) {
        return dpari_comm_wrong_all(
            tp->comm, DPAR_E_ARG,
            "rank %d: linear: matmul is NULL, but arrays on a device need a "
            "function for that device",
            tp->comm->rank);
    }
    missing = dpari_tensor_missing(arrays->w, l->in, l->out) && (forward || arrays->dx != NULL);
    missing += reads_x && dpari_tensor_missing(arrays->x, rows_x, l->in);
    missing += forward && dpari_tensor_missing(arrays->y, rows_y, l->out);
    missing += reads_dy && dpari_tensor_missing(arrays->dy, rows_y, l->out);
    missing += sequence && dpari_tensor_missing(arrays->gathered, n, column ? l->in : l->out) &&
               (!column || forward || arrays->dw != NULL);
    missing += sequence && !forward && column && arrays->dx != NULL &&
               dpari_tensor_missing(arrays->gathered_dx, n, l->in);
    if (missing == 0) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(
        tp->comm, DPAR_E_ARG,
        "rank %d: linear: %d arrays that this call needs are NULL (in %ld, out %ld)",
        tp->comm->rank, missing, l->in, l->out);
}

/* A column layer gathers x before the product, a row layer reduces y after it. */
DPAR_API DPARI_COLD dpar_status dpar_linear_forward(const dpar_tensor_parallel *tp,
                                                    const dpar_linear *layer,
                                                    const dpar_linear_arrays *arrays)
{
    dpari_tensor_alike alike;
    const void *x;
    void *y;
    int column, sequence;
    dpar_status st = dpari_linear_check(tp, layer, arrays, 1);
    if (st != DPAR_OK) {
        return st;
    }
    column = layer->kind == DPAR_LINEAR_COLUMN;
    sequence = tp->counts != NULL;
    x = column && sequence ? arrays->gathered : arrays->x;
    y = !column && sequence ? arrays->gathered : arrays->y;
    alike = dpari_linear_alike(layer);
    dpari_tensor_count(tp, column ? layer->in : layer->out);
    if (column && sequence && !arrays->reuse_gathered) {
        st = dpari_tensor_collect(tp, arrays->x, arrays->gathered, &alike, NULL);
    }
    if (st == DPAR_OK) {
        st = dpari_linear_apply(tp, layer, x, arrays->w, y);
    }
    if (st == DPAR_OK && !column) {
        st = dpari_tensor_reduce(tp, layer->out, y, arrays->y, &alike, NULL);
    }
    if (st != DPAR_OK || arrays->bias == NULL) {
        return st;
    }
    return dpari_do_rows(tp->comm, arrays->y, layer->out, arrays->bias, 0, layer->out,
                         column ? tp->tokens.count : dpari_tensor_tokens(tp, tp->comm->rank),
                         tp->type, DPAR_SUM);
}

/* Computes the backward of a column layer. x is gathered while dx is computed, and dx is summed
 * over the ranks while dw is computed. After an error, too, waits for both operations, because they
 * use the memory until they end. */
static dpar_status dpari_column_backward(const dpar_tensor_parallel *tp, const dpar_linear *l,
                                         const dpar_linear_arrays *arrays)
{
    const int sequence = tp->counts != NULL;
    void *part = sequence ? arrays->gathered_dx : arrays->dx;
    const dpari_tensor_alike alike = dpari_linear_alike(l);
    dpar_work gather, reduce;
    dpar_status st = DPAR_OK;
    dpari_zero(&gather, sizeof gather);
    dpari_zero(&reduce, sizeof reduce);
    if (arrays->dw != NULL && sequence && !arrays->reuse_gathered) {
        st = dpari_tensor_collect(tp, arrays->x, arrays->gathered, &alike, &gather);
    }
    if (st == DPAR_OK && arrays->dx != NULL) {
        st = dpari_linear_inputs(tp, l, arrays->dy, arrays->w, part, arrays->accumulate_dx);
        if (st == DPAR_OK && !arrays->defer_reduce) {
            st = dpari_tensor_reduce(tp, l->in, part, arrays->dx, &alike, &reduce);
        }
    }
    st = dpari_first_error(st, dpar_wait(&gather));
    if (st == DPAR_OK && arrays->dw != NULL) {
        st = dpari_linear_weights(tp, l, arrays->dy, sequence ? arrays->gathered : arrays->x,
                                  arrays->dw, arrays->accumulate);
    }
    return dpari_first_error(st, dpar_wait(&reduce));
}

/* Computes the backward of a row layer. Gathers dy with sequence parallelism; dx needs no sum over
 * the ranks. */
static dpar_status dpari_row_backward(const dpar_tensor_parallel *tp, const dpar_linear *l,
                                      const dpar_linear_arrays *arrays)
{
    const int sequence = tp->counts != NULL;
    const void *dy = sequence ? arrays->gathered : arrays->dy;
    const dpari_tensor_alike alike = dpari_linear_alike(l);
    dpar_status st = DPAR_OK;
    if (sequence && !arrays->reuse_gathered) {
        st = dpari_tensor_collect(tp, arrays->dy, arrays->gathered, &alike, NULL);
    }
    if (st == DPAR_OK && arrays->dx != NULL) {
        st = dpari_linear_inputs(tp, l, dy, arrays->w, arrays->dx, 0);
    }
    if (st == DPAR_OK && arrays->dw != NULL) {
        st = dpari_linear_weights(tp, l, dy, arrays->x, arrays->dw, arrays->accumulate);
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_linear_backward(const dpar_tensor_parallel *tp,
                                                     const dpar_linear *layer,
                                                     const dpar_linear_arrays *arrays)
{
    int column;
    dpar_status st = dpari_linear_check(tp, layer, arrays, 0);
    if (st != DPAR_OK) {
        return st;
    }
    column = layer->kind == DPAR_LINEAR_COLUMN;
    dpari_tensor_count(tp, column ? layer->in : layer->out);
    st = column ? dpari_column_backward(tp, layer, arrays) : dpari_row_backward(tp, layer, arrays);
    if (st == DPAR_OK) {
        const void *dy = !column && tp->counts != NULL ? arrays->gathered : arrays->dy;
        st = dpari_tensor_sum_rows(tp, dy, tp->tokens.count, layer->out, arrays->dbias,
                                   arrays->accumulate);
    }
    return st;
}

/* ---- vocabulary: embedding ------------------------------------------------------------------- */

/* Computes the rows lo <= row < hi of a rank that belong to ids of the model (which = 0) or to
 * added ids (which = 1). The rows after each of these two ranges are padding. */
static void dpari_vocab_run(const dpar_vocab *vocab, int32_t rank, int32_t which, int64_t *lo,
                            int64_t *hi)
{
    const int64_t each =
        which == 0 ? vocab->padded / vocab->ranks : vocab->padded_added / vocab->ranks;
    const int64_t left = (which == 0 ? vocab->count : vocab->added) - rank * each;
    *lo = which == 0 ? 0 : vocab->padded / vocab->ranks;
    *hi = *lo + dpari_most(0, dpari_least(each, left));
}

/* Fills in an index that maps the ids of tokens to rows of this rank. Ids whose rows are on other
 * ranks map to no row. */
static void dpari_vocab_index(const dpar_vocab *vocab, int32_t rank, const int32_t *ids,
                              dpar_mem_index *index)
{
    int32_t which;
    dpari_zero(index, sizeof *index);
    index->at = ids;
    index->type = DPAR_I32;
    index->windows = 2;
    for (which = 0; which < 2; which++) {
        int64_t lo, hi;
        dpari_vocab_run(vocab, rank, which, &lo, &hi);
        index->lo[which] = which == 0 ? rank * (vocab->padded / vocab->ranks)
                                      : vocab->count + rank * (vocab->padded_added / vocab->ranks);
        index->hi[which] = index->lo[which] + (hi - lo);
        index->row[which] = lo;
    }
}

/* Checks a vocabulary and the ids of all tokens. Allows ids below 0, which are ignored targets. */
static DPARI_COLD dpar_status dpari_vocab_check(const dpar_tensor_parallel *tp,
                                                const dpar_vocab *vocab, const int32_t *ids)
{
    dpar_status st = dpari_tensor_check(tp);
    int64_t i;
    if (st == DPAR_OK &&
        (vocab->ranks != tp->comm->size || (ids == NULL && tp->tokens.count > 0))) {
        st = dpari_comm_wrong_all(tp->comm, DPAR_E_ARG,
                                  "vocabulary: it is for %d ranks, but the communicator has %d, or "
                                  "ids or targets are NULL",
                                  vocab->ranks, tp->comm->size);
    }
    for (i = 0; st == DPAR_OK && i < tp->tokens.count; i++) {
        if (ids[i] >= vocab->count + vocab->added) {
            st = dpari_comm_wrong_all(tp->comm, DPAR_E_ARG,
                                      "vocabulary: token %ld has id %d, but ids must be below %ld",
                                      i, ids[i], vocab->count + vocab->added);
        }
    }
    return st;
}

/* Checks an embedding. An id below 0 is an error here. back: checks the gradients of the table and
 * of the output in place of these arrays. */
static DPARI_COLD dpar_status dpari_embedding_check(const dpar_tensor_parallel *tp,
                                                    const dpar_embedding *layer,
                                                    const dpar_embedding_arrays *a, int back)
{
    const int32_t *ids;
    int64_t width, i;
    int missing;
    dpar_status st = dpari_tensor_check_not_null(tp, layer != NULL && a != NULL);
    if (st != DPAR_OK) {
        return st;
    }
    ids = a->ids;
    width = layer->width;
    st = dpari_vocab_check(tp, &layer->vocab, ids);
    if (st == DPAR_OK && width < 0) {
        st = dpari_comm_wrong_all(tp->comm, DPAR_E_ARG,
                                  "embedding: width is %ld, but must be at least 0", width);
    }
    for (i = 0; st == DPAR_OK && i < tp->tokens.count; i++) {
        if (ids[i] < 0) {
            st = dpari_comm_wrong_all(tp->comm, DPAR_E_ARG,
                                      "embedding: token %ld has id %d, but ids must be at least 0",
                                      i, ids[i]);
        }
    }
    if (st != DPAR_OK) {
        return st;
    }
    missing = dpari_tensor_missing(back ? a->dtable : a->table, dpar_vocab_row_count(&layer->vocab),
                                   width);
    missing +=
        dpari_tensor_missing(back ? a->dy : a->y, dpari_tensor_tokens(tp, tp->comm->rank), width);
    missing += tp->counts != NULL && dpari_tensor_missing(a->gathered, tp->tokens.count, width);
    return dpari_tensor_check_missing(tp, missing, "embedding");
}

static dpari_tensor_alike dpari_embedding_alike(const dpar_tensor_parallel *tp,
                                                const dpar_embedding *layer, const int32_t *ids)
{
    dpari_tensor_alike alike = {0, "an embedding: vocabulary, width or ids"};
    alike.hash = dpari_hash(dpari_vocab_hash(tp, &layer->vocab, ids), layer->width);
    return alike;
}

DPAR_API dpar_status dpar_embedding_forward(const dpar_tensor_parallel *tp,
                                            const dpar_embedding *layer,
                                            const dpar_embedding_arrays *arrays)
{
    dpar_status st = dpari_embedding_check(tp, layer, arrays, 0);
    dpar_mem_gather g;
    if (st == DPAR_OK) {
        dpari_zero(&g, sizeof g);
        g.to = tp->counts != NULL ? arrays->gathered : arrays->y;
        g.from = arrays->table;
        g.rows = tp->tokens.count;
        g.bytes = g.to_step = g.from_step = layer->width * dpar_type_bytes(tp->type);
        dpari_vocab_index(&layer->vocab, tp->comm->rank, arrays->ids, &g.index);
        st = dpari_do_gather(tp->comm, &g);
    }
    if (st == DPAR_OK) {
        const dpari_tensor_alike alike = dpari_embedding_alike(tp, layer, arrays->ids);
        dpari_tensor_count(tp, layer->width);
        st =
            dpari_tensor_reduce(tp, layer->width, tp->counts != NULL ? arrays->gathered : arrays->y,
                                arrays->y, &alike, NULL);
    }
    return st;
}

DPAR_API dpar_status dpar_embedding_backward(const dpar_tensor_parallel *tp,
                                             const dpar_embedding *layer,
                                             const dpar_embedding_arrays *arrays)
{
    dpar_status st = dpari_embedding_check(tp, layer, arrays, 1);
    const void *dy;
    dpar_mem_scatter s;
    if (st != DPAR_OK) {
        return st;
    }
    dy = arrays->dy;
    if (tp->counts != NULL) {
        const dpari_tensor_alike alike = dpari_embedding_alike(tp, layer, arrays->ids);
        dpari_tensor_count(tp, layer->width);
        st = dpari_tensor_collect(tp, dy, arrays->gathered, &alike, NULL);
        dy = arrays->gathered;
    }
    if (st == DPAR_OK && !arrays->accumulate) {
        st = dpari_do_copy(tp->comm, arrays->dtable, NULL,
                           dpar_vocab_row_count(&layer->vocab) * layer->width *
                               dpar_type_bytes(tp->type));
    }
    if (st == DPAR_OK) {
        dpari_zero(&s, sizeof s);
        s.to = arrays->dtable;
        s.from = dy;
        s.rows = tp->tokens.count;
        s.width = layer->width;
        s.type = tp->type;
        dpari_vocab_index(&layer->vocab, tp->comm->rank, arrays->ids, &s.index);
        st = dpari_do_scatter(tp->comm, &s);
    }
    return st;
}

/* ---- vocabulary: cross-entropy --------------------------------------------------------------- */

/* Checks a cross-entropy and its targets. */
static dpar_status dpari_entropy_check(const dpar_tensor_parallel *tp, const dpar_cross_entropy *e,
                                       const dpar_cross_entropy_arrays *a)
{
    dpar_status st = dpari_tensor_check_not_null(tp, e != NULL && a != NULL);
    if (st == DPAR_OK) {
        st = dpari_vocab_check(tp, &e->vocab, a->targets);
    }
    if (st == DPAR_OK && !(e->smoothing >= 0.0 && e->smoothing <= 1.0 && dpari_finite(e->z_loss))) {
        return dpari_comm_wrong_all(tp->comm, DPAR_E_ARG,
                                    "cross-entropy: smoothing must be 0 to 1, and z_loss finite");
    }
    return st;
}

/* Fills in the fields that all phases of a cross-entropy have in common. */
static void dpari_entropy_of(const dpar_tensor_parallel *tp, const dpar_cross_entropy *e,
                             const int32_t *targets, dpar_mem_cross_entropy *x)
{
    const dpar_vocab *vocab = &e->vocab;
    int32_t which;
    dpari_zero(x, sizeof *x);
    x->type = tp->type;
    x->tokens = tp->tokens.count;
    x->rows = dpar_vocab_row_count(vocab);
    for (which = 0; which < 2; which++) {
        dpari_vocab_run(vocab, tp->comm->rank, which, &x->lo[which], &x->hi[which]);
    }
    dpari_vocab_index(vocab, tp->comm->rank, targets, &x->target);
    x->vocabulary = vocab->count + vocab->added;
    x->ignore = e->ignore;
    x->smoothing = e->smoothing;
    x->z_loss = e->z_loss;
    x->ranks = tp->comm->size;
}

/* Gathers the three numbers per token that each rank computed from its rows of the vocabulary. */
static dpar_status dpari_entropy_gather(const dpar_tensor_parallel *tp, const dpar_cross_entropy *e,
                                        const int32_t *targets, const void *own, void *all)
{
    uint64_t hash = dpari_vocab_hash(tp, &e->vocab, targets);
    dpar_call call;
    hash = dpari_hash_real(dpari_hash_real(dpari_hash(hash, e->ignore), e->smoothing), e->z_loss);
    dpari_zero(&call, sizeof call);
    call.kind = DPAR_CALL_ALL_GATHER;
    call.type = tp->type;
    call.in = own;
    call.out = all;
    call.count = 3 * tp->tokens.count;
    return dpari_post_alike(tp->comm, &call, hash,
                            "a cross-entropy: vocabulary, targets, ignore, smoothing or z", NULL);
}

DPAR_API DPARI_COLD dpar_status dpar_cross_entropy_forward(const dpar_tensor_parallel *tp,
                                                           const dpar_cross_entropy *layer,
                                                           const dpar_cross_entropy_arrays *arrays)
{
    dpar_status st = dpari_entropy_check(tp, layer, arrays);
    unsigned char *all;
    dpar_mem_cross_entropy x;
    int64_t n = 0;
    if (st == DPAR_OK) {
        n = tp->tokens.count;
        st = dpari_tensor_check_missing(
            tp,
            dpari_tensor_missing(arrays->logits, n, dpar_vocab_row_count(&layer->vocab)) +
                dpari_tensor_missing(arrays->lse, n, 1) +
                dpari_tensor_missing(arrays->scratch, n, 1),
            "cross-entropy");
    }
    if (st != DPAR_OK) {
        return st;
    }
    all = (unsigned char *)arrays->scratch + 3 * n * dpar_type_bytes(tp->type);
    dpari_entropy_of(tp, layer, arrays->targets, &x);
    x.phase = DPAR_MEM_CROSS_ENTROPY_PART;
    x.logits = arrays->logits; /* this phase only reads it */
    x.partial = arrays->scratch;
    x.all = all;
    st = dpari_do_cross_entropy(tp->comm, &x);
    if (st == DPAR_OK) {
        st = dpari_entropy_gather(tp, layer, arrays->targets, arrays->scratch, all);
    }
    x.phase = DPAR_MEM_CROSS_ENTROPY_LOSS;
    x.lse = arrays->lse;
    x.loss = arrays->loss;
    x.sum = arrays->sum;
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_do_cross_entropy(tp->comm, &x);
}

DPAR_API DPARI_COLD dpar_status dpar_cross_entropy_backward(const dpar_tensor_parallel *tp,
                                                            const dpar_cross_entropy *layer,
                                                            const dpar_cross_entropy_arrays *arrays,
                                                            double scale)
{
    const dpar_status st = dpari_tensor_check_not_null(tp, layer != NULL && arrays != NULL);
    dpar_mem_cross_entropy x;
    if (st != DPAR_OK) {
        return st;
    }
    dpari_entropy_of(tp, layer, arrays->targets, &x);
    x.phase = DPAR_MEM_CROSS_ENTROPY_GRADIENT;
    x.logits = arrays->logits;
    x.lse = arrays->lse; /* read only */
    x.scale = scale;
    return dpari_do_cross_entropy(tp->comm, &x);
}

/* ==== train/sequence.c ==== */

/* Plans of attention, and the ring. All methods use the same plan (attention_private.h). This file
 * has the ring; ulysses.c and window_attention.c replace some of its functions.
 *
 * Each rank visits the blocks of its queries and another rank's keys: pairs of runs of consecutive
 * tokens in one document. The kernel is called for each block in which a query sees a key. The
 * result of a block is merged into the result so far with the logarithms of their sums (lse), in
 * the order of the steps. The bits therefore do not depend on when messages arrive.
 *
 * While a rank computes with one block of keys and values, the next one is received into the other
 * buffer. In backward, the gradients of a block follow one step later in separate buffers. */

/* ---- layers ---------------------------------------------------------------------------------- */

/* The lse that dpar_attention_host writes for a query that sees no key. Other kernels may write a
 * smaller number. */
static const double dpari_seq_nothing = -1e30;

/* Returns the layer with its defaults filled in. */
static dpar_attention_desc dpari_seq_filled(const dpar_attention_desc *layer)
{
    dpar_attention_desc a = *layer;
    a.groups = a.groups != 0 ? a.groups : a.heads;
    a.value_width = a.value_width != 0 ? a.value_width : a.width;
    if (!(a.scale > 0.0 || a.scale < 0.0) && a.width > 0) {
        a.scale = 1.0 / dpari_sqrt((double)a.width);
    }
    a.forward = a.forward != NULL ? a.forward : dpar_attention_host;
    a.backward = a.backward != NULL ? a.backward : dpar_attention_host;
    return a;
}

/* Returns the functions of the layer's method; all are NULL for the ring. */
static dpari_attention_method dpari_seq_way(const dpar_attention_desc *layer)
{
    dpari_attention_method way;
    dpari_zero(&way, sizeof way);
    if (layer->method != NULL) {
        layer->method(&way);
    }
    return way;
}

/* Returns the number of elements of keys and values per token. */
static int64_t dpari_seq_each(const dpar_attention_desc *layer)
{
    return (int64_t)layer->groups * ((int64_t)layer->width + layer->value_width);
}

/* Checks a layer. The defaults need not be filled in. */
static dpar_status dpari_seq_check(const dpar_attention_desc *layer, dpar_why *why)
{
    const dpar_attention_desc a = dpari_seq_filled(layer);
    dpari_attention_method way;
    dpar_packed p;
    int64_t room;
    dpar_status st;
    if (a.tokens.docs < 1 || a.tokens.ends == NULL) {
        return dpari_wrong(
            why, "attention: tokens.docs is %d, but must be at least 1, and ends must not be NULL",
            a.tokens.docs);
    }
    st = dpar_packed_init(&p, a.tokens.docs, a.tokens.ends, a.tokens.ranks, a.tokens.rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (a.heads < 1 || a.groups < 1 || a.width < 1 || a.value_width < 1) {
        return dpari_wrong(
            why,
            "attention: heads is %d, groups %d, width %d and value_width %d, but each must be at "
            "least 1",
            a.heads, a.groups, a.width, a.value_width);
    }
    if (a.heads % a.groups != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "attention: %d groups do not divide %d heads",
                         a.groups, a.heads);
    }
    if (!dpari_is_float(a.type)) {
        return dpari_wrong(why, "attention: type is %s, but must be f64, f32, bf16 or f16",
                           dpar_type_name(a.type));
    }
    if (!dpari_is_wide(a.type) && (layer->forward == NULL || layer->backward == NULL)) {
        return dpari_wrong(
            why, "attention: forward or backward is NULL, but type %d needs kernels of your own",
            a.type);
    }
    if (a.window < 0 || a.tag < 0 || a.tag > INT32_MAX - DPARI_ATTENTION_MAIL) {
        return dpari_wrong(why,
                           "attention: window is %ld and tag %d, but both must be at least 0, and "
                           "tag at most 2^31 - 9",
                           a.window, a.tag);
    }
    if (!dpari_mul(a.tokens.ends[a.tokens.docs], (int64_t)a.heads, &room) ||
        !dpari_mul(room, (int64_t)a.width + a.value_width, &room) || !dpari_mul(room, 256, &room)) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "attention: %ld tokens, %d heads and widths %d and %d are too large together",
            a.tokens.ends[a.tokens.docs], a.heads, a.width, a.value_width);
    }
    way = dpari_seq_way(&a);
    return way.check != NULL ? way.check(&a, why) : DPAR_OK;
}

/* ---- which keys queries see ------------------------------------------------------------------ */

/* One side of a walk over blocks: the queries of one rank, or the keys of another. */
typedef struct dpari_seq_side {
    int32_t rank;
    int64_t lo, hi; /* its tokens in the packed sequence, if the method has slices */
    int64_t base;   /* number of the rank's tokens in earlier documents */
    int64_t local;  /* number of the rank's tokens in this document before the current run */
} dpari_seq_side;

/* A walk over the blocks of queries of one rank and keys of another. A block is a pair of runs of
 * consecutive tokens in one document. */
typedef struct dpari_seq_walk {
    const dpar_attention_desc *layer;
    dpari_seq_side q, k;
    int32_t doc, open; /* open: 1 if `split` is the split of this document */
    dpar_split split;

    /* The block that dpari_seq_next found. */
    int64_t q_at, k_at;    /* rows of its first query and key in the ranks' arrays */
    int64_t query, key;    /* positions of its first query and key in the packed sequence */
    int64_t queries, keys; /* numbers of queries and keys */
    int64_t low, high;     /* query i sees keys i + low to i + high of the block */
    int32_t again;         /* set by the caller: 1 if these queries already had a block */
} dpari_seq_walk;

DPARI_API void dpari_seq_slice(const dpar_attention_desc *layer, int32_t rank, int64_t *lo,
                               int64_t *hi)
{
    dpar_split s;
    (void)dpar_split_init(&s, layer->tokens.rule, layer->tokens.ends[layer->tokens.docs],
                          layer->tokens.ranks, 1, NULL);
    *lo = dpar_split_part_first(&s, rank);
    *hi = *lo + dpar_split_part_count(&s, rank);
}

/* Begins a walk over the queries of this rank and the keys of a block. If the layer has only one
 * rank, as within ulysses, the queries are those of rank 0. */
static void dpari_seq_begin(const dpari_attention *plan, const dpari_seq_block *b,
                            dpari_seq_walk *w)
{
    dpari_zero(w, sizeof *w);
    w->layer = &plan->head.layer;
    w->q.rank = w->layer->tokens.ranks > 1 ? plan->comm->rank : 0;
    w->k.rank = b->rank;
    w->k.lo = b->lo;
    w->k.hi = b->hi;
    if (w->layer->method != NULL) {
        dpari_seq_slice(w->layer, w->q.rank, &w->q.lo, &w->q.hi);
    }
}

/* Finds the next run of a side in this document. Returns 0 if there is none left. With slices a
 * document has at most one run, otherwise it has those of its split. */
static int dpari_seq_run(const dpari_seq_walk *w, const dpari_seq_side *s, int64_t *at,
                         int64_t *first, int64_t *count)
{
    const int64_t *ends = w->layer->tokens.ends + w->doc;
    int64_t i;
    if (w->layer->method != NULL) {
        *first = dpari_most(ends[0], s->lo);
        *count = dpari_least(ends[1], s->hi) - *first;
        *at = *first - s->lo;
        return s->local == 0 && *count > 0;
    }
    i = dpar_split_global(&w->split, s->rank, s->local, count);
    *at = s->base + s->local;
    *first = ends[0] + i;
    return i >= 0;
}

/* Computes low and high of the block from the mask. Returns 0 if no query of the block sees a
 * key. */
static int dpari_seq_band(dpari_seq_walk *w)
{
    const int64_t apart = w->query - w->key, window = w->layer->window;
    w->low = window > 0 && window < apart + w->queries ? apart - window : -w->queries;
    if (w->layer->causal) {
        w->high = apart;
    } else if (window > 0 && apart < w->keys - window) {
        w->high = apart + window;
    } else {
        w->high = w->keys;
    }
    w->low = dpari_most(w->low, -w->queries);
    w->high = dpari_least(w->high, w->keys);
    return w->low < w->keys && w->high > -w->queries;
}

/* Advances to the next block in which a query sees a key. Returns 0 at the end. */
static DPARI_COLD int dpari_seq_next(dpari_seq_walk *w)
{
    const dpar_packed *packed = &w->layer->tokens;
    for (; w->doc < packed->docs; w->doc++) {
        if (!w->open) {
            (void)dpar_split_init(&w->split, packed->rule,
                                  packed->ends[w->doc + 1] - packed->ends[w->doc], packed->ranks, 1,
                                  NULL);
            w->open = 1;
        }
        while (dpari_seq_run(w, &w->q, &w->q_at, &w->query, &w->queries)) {
            while (dpari_seq_run(w, &w->k, &w->k_at, &w->key, &w->keys)) {
                w->k.local += w->keys;
                if (dpari_seq_band(w)) {
                    return 1;
                }
            }
            w->q.local += w->queries;
            w->k.local = 0;
            w->again = 0;
        }
        w->q.base += w->q.local;
        w->k.base += dpar_split_part_count(&w->split, w->k.rank);
        w->q.local = 0;
        w->open = 0;
    }
    return 0;
}

/* Returns n (n + 1) / 2, or INT64_MAX if that overflows. */
static int64_t dpari_seq_triangle(int64_t n)
{
    const int64_t even = n % 2 == 0 ? n : n + 1;
    const int64_t odd = n % 2 == 0 ? n + 1 : n;
    int64_t product;
    return dpari_mul(even / 2, odd, &product) ? product : INT64_MAX;
}

/* Returns the sum over 0 <= i < n of i + shift, each term limited to 0 .. most, or INT64_MAX if the
 * sum overflows. */
static int64_t dpari_seq_ramp(int64_t n, int64_t shift, int64_t most)
{
    /* terms before this one are 0 */
    const int64_t begin = dpari_least(n, dpari_most(0, -shift));
    /* terms from this one on are `most` */
    const int64_t end = dpari_most(begin, dpari_least(n, most - shift));
    int64_t flat;
    if (!dpari_mul(n - end, most, &flat)) {
        return INT64_MAX;
    }
    if (end > begin) {
        const int64_t up = dpari_seq_triangle(end - 1 + shift);
        const int64_t more = up - dpari_seq_triangle(dpari_most(0, begin - 1 + shift));
        flat = up == INT64_MAX || more > INT64_MAX - flat ? INT64_MAX : flat + more;
    }
    return flat;
}

/* Returns the number of pairs of a query and a key that it sees, in the current block. */
static int64_t dpari_seq_pairs(const dpari_seq_walk *w)
{
    const int64_t all = dpari_seq_ramp(w->queries, w->high + 1, w->keys);
    return all == INT64_MAX ? all : all - dpari_seq_ramp(w->queries, w->low, w->keys);
}

/* ---- elements -------------------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_NOINLINE const void *dpari_seq_in(const void *base, int64_t elements,
                                                       int32_t type)
{
    return base != NULL ? (const unsigned char *)base + elements * dpar_type_bytes(type) : NULL;
}

DPARI_API DPARI_NOINLINE void *dpari_seq_at(void *base, int64_t elements, int32_t type)
{
    return base != NULL ? (unsigned char *)base + elements * dpar_type_bytes(type) : NULL;
}

DPARI_INTERNAL dpar_status dpari_seq_round(const dpari_attention *plan, void *to, const void *from,
                                           int64_t n)
{
    if (n == 0 || to == from) {
        return DPAR_OK;
    }
    return dpari_do_convert(plan->comm, to, plan->head.layer.type, from, plan->sums, n, 0);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Computes the keys lo <= j < hi of a block that its query i sees; lo = hi if it sees none. */
static void dpari_seq_row(const dpar_attention_call *call, int64_t i, int64_t *lo, int64_t *hi)
{
    const int64_t begin = dpari_least(call->keys, dpari_most(0, i + call->low));
    *lo = begin;
    *hi = dpari_most(begin, dpari_least(call->keys, i + call->high + 1));
}

/* Computes to[j] = by (x . row j) for n rows, which are `step` elements apart. */
static void dpari_seq_scores(const dpari_lanes *lanes, int32_t type, double *to, const void *x,
                             const void *row, int64_t step, int64_t n, int64_t width, double by)
{
    int64_t j;
    if (type == DPAR_F32) {
        lanes->scores(to, (const float *)x, (const float *)row, step, n, width, by);
        return;
    }
    for (j = 0; j < n; j++) {
        to[j] = by * lanes->product((const double *)row + j * step, x, DPAR_F64, 0.0, width, NULL);
    }
}

/* Computes y = keep y + the sum of by[j] row j. */
static void dpari_seq_mix(const dpari_lanes *lanes, int32_t type, void *y, double keep,
                          const double *by, const void *row, int64_t step, int64_t n, int64_t width)
{
    DPARI_ROW float weight[DPARI_ROW_PART];
    int64_t j;
    if (type == DPAR_F32) {
        lanes->thin(weight, by, n);
        lanes->mix((float *)y, (float)keep, weight, (const float *)row, step, n, width);
        return;
    }
    for (j = 0; j < n; j++) {
        dpari_row_add(lanes, type, y, j == 0 ? keep : 1.0, by[j], (const double *)row + j * step,
                      width);
    }
}

/* Computes out and lse of query i and head h. Processes keys in parts of DPARI_ROW_PART. If a part
 * has a larger score than those before, scales the sum and the result so far down. */
static void dpari_seq_query(const dpari_lanes *lanes, const dpar_attention_call *call,
                            const dpar_attention_desc *layer, int64_t i, int64_t h)
{
    const int64_t group = h / (layer->heads / layer->groups), row = i * layer->heads + h;
    const int64_t k_step = (int64_t)layer->groups * layer->width,
                  v_step = (int64_t)layer->groups * layer->value_width;
    const void *x = dpari_seq_in(call->q, row * layer->width, layer->type);
    void *out = dpari_seq_at(call->out, row * layer->value_width, layer->type);
    DPARI_ROW double score[DPARI_ROW_PART];
    double most = -1e300, sum = 0.0, power[3] = {0.0, 1.0, 0.0};
    int64_t lo, hi, n;
    dpari_seq_row(call, i, &lo, &hi);
    dpari_zero(out, (size_t)(layer->value_width * dpar_type_bytes(layer->type)));
    if (lo == hi) {
        dpari_element_put(call->lse, layer->type, row, dpari_seq_nothing);
        return;
    }
    for (; lo < hi; lo += n) {
        const void *k = dpari_seq_in(call->k, lo * k_step + group * layer->width, layer->type);
        const void *v =
            dpari_seq_in(call->v, lo * v_step + group * layer->value_width, layer->type);
        double before = most, keep;
        n = dpari_least(DPARI_ROW_PART, hi - lo);
        dpari_seq_scores(lanes, layer->type, score, x, k, k_step, n, layer->width, layer->scale);
        most = lanes->largest(score, DPAR_F64, most, n);
        power[0] = most;
        keep = sum > 0.0 ? dpari_exp(before - most) : 1.0;
        sum = keep * sum + lanes->exps(score, score, DPAR_F64, power, n);
        dpari_seq_mix(lanes, layer->type, out, keep, score, v, v_step, n, layer->value_width);
    }
    dpari_row_add(lanes, layer->type, out, 1.0 / sum, 0.0, out, layer->value_width);
    dpari_element_put(call->lse, layer->type, row, most + dpari_log(sum));
}

/* Adds the gradients of query i and head h to those of the query, its keys and its values. Computes
 * the weights of the keys again from lse. */
static void dpari_seq_query_gradient(const dpari_lanes *lanes, const dpar_attention_call *call,
                                     const dpar_attention_desc *layer, int64_t i, int64_t h)
{
    const int32_t t = layer->type;
    const int64_t group = h / (layer->heads / layer->groups), row = i * layer->heads + h;
    const int64_t k_step = (int64_t)layer->groups * layer->width,
                  v_step = (int64_t)layer->groups * layer->value_width;
    const void *x = dpari_seq_in(call->q, row * layer->width, t);
    const void *dy = dpari_seq_in(call->out_gradient, row * layer->value_width, t);
    void *dx = dpari_seq_at(call->q_gradient, row * layer->width, t);
    const double lse = dpari_element_get(call->lse, t, row),
                 delta = dpari_element_get(call->delta, t, row);
    const double power[3] = {lse, 1.0, 0.0};
    DPARI_ROW double p[DPARI_ROW_PART], s[DPARI_ROW_PART];
    int64_t lo, hi, j, n;
    dpari_seq_row(call, i, &lo, &hi);
    for (; lo < hi; lo += n) {
        const int64_t k = lo * k_step + group * layer->width,
                      v = lo * v_step + group * layer->value_width;
        n = dpari_least(DPARI_ROW_PART, hi - lo);
        dpari_seq_scores(lanes, t, p, x, dpari_seq_in(call->k, k, t), k_step, n, layer->width,
                         layer->scale);
        (void)lanes->exps(p, p, DPAR_F64, power, n);
        dpari_seq_scores(lanes, t, s, dy, dpari_seq_in(call->v, v, t), v_step, n,
                         layer->value_width, 1.0);
        for (j = 0; j < n; j++) {
            s[j] = p[j] * (s[j] - delta) * layer->scale;
        }
        dpari_seq_mix(lanes, t, dx, 1.0, s, dpari_seq_in(call->k, k, t), k_step, n, layer->width);
        for (j = 0; j < n; j++) {
            dpari_row_add(lanes, t, dpari_seq_at(call->k_gradient, k + j * k_step, t), 1.0, s[j], x,
                          layer->width);
            dpari_row_add(lanes, t, dpari_seq_at(call->v_gradient, v + j * v_step, t), 1.0, p[j],
                          dy, layer->value_width);
        }
    }
}

DPAR_API void dpar_attention_host(const dpar_attention_call *call)
{
    const dpar_attention_desc a = dpari_seq_filled(call->layer);
    const dpari_lanes l = dpari_lanes_for(call->queries * a.heads * a.width);
    int64_t i, h;
    for (i = 0; i < call->queries && dpari_is_wide(a.type); i++) {
        for (h = 0; h < a.heads; h++) {
            if (call->out_gradient == NULL) {
                dpari_seq_query(&l, call, &a, i, h);
            } else {
                dpari_seq_query_gradient(&l, call, &a, i, h);
            }
        }
    }
}

/* ---- planning -------------------------------------------------------------------------------- */

/* Returns the index in plan->gradients of the buffer for gradients of this rank's own keys and
 * values from its own queries. The buffers before it are for other ranks' keys: two for gradients
 * that are sent and received, and with more than two ranks one for the gradients that this rank
 * adds. */
static int32_t dpari_seq_home_buffer(int32_t ranks)
{
    if (ranks > 2) {
        return 3;
    }
    return ranks == 2 ? 2 : 0;
}

/* Assigns memory to the buffers of the ring. Forward and backward use the same memory, because they
 * do not overlap. */
static void dpari_seq_lay_ring(dpari_attention *plan, const dpar_comm *comm, dpari_room *buffers)
{
    const dpar_attention_desc *layer = &plan->head.layer;
    const int64_t sum = dpar_type_bytes(plan->sums), type = dpar_type_bytes(layer->type);
    int64_t most = 0, heads;
    dpari_room forward;
    int32_t i;
    plan->head.tokens = dpar_packed_rank_count(&layer->tokens, comm->rank, NULL);
    for (i = 0; i < comm->size; i++) {
        most = dpari_most(most, dpar_packed_rank_count(&layer->tokens, i, NULL));
    }
    heads = plan->head.tokens * layer->heads;
    for (i = 0; i < 2 && comm->size > 1; i++) {
        plan->keys[i] = dpari_room_take(buffers, most * dpari_seq_each(layer) * type, 1);
    }
    forward = *buffers; /* the buffers of forward; those of backward use the same memory */
    plan->part = dpari_room_take(&forward, heads * layer->value_width * sum, 1);
    plan->part_lse = dpari_room_take(&forward, heads * sum, 1);
    if (layer->type != plan->sums) {
        plan->out = dpari_room_take(&forward, heads * layer->value_width * sum, 1);
    }
    plan->delta = dpari_room_take(buffers, heads * sum, 1);
    if (layer->type != plan->sums) {
        plan->q_gradient = dpari_room_take(buffers, heads * layer->width * sum, 1);
    }
    for (i = 0; i < dpari_seq_home_buffer(comm->size) + 1; i++) {
        plan->gradients[i] = dpari_room_take(buffers, most * dpari_seq_each(layer) * sum, 1);
    }
    buffers->used = dpari_most(buffers->used, forward.used);
}

/* Assigns memory to the parts of a plan, and sets *bytes to its size. If memory is NULL, only
 * computes the size. If comm->mem is a device, the buffers are at plan->device, and their size is
 * stored in plan->device_bytes. */
static dpar_status dpari_seq_lay(dpari_attention *plan, const dpar_comm *comm, void *memory,
                                 int64_t *bytes, dpar_why *why)
{
    const dpari_attention_method way = dpari_seq_way(&plan->head.layer);
    dpari_room behind = dpari_room_of(memory), there = dpari_room_of(plan->device);
    dpar_status st = DPAR_OK;
    (void)dpari_room_take(&behind, 1, sizeof *plan);
    (void)dpari_room_take(&there, 1, 1); /* so that device_bytes is never 0 */
    if (way.lay != NULL) {
        st = way.lay(plan, comm, &behind, comm->mem != NULL ? &there : &behind, why);
    } else {
        dpari_seq_lay_ring(plan, comm, comm->mem != NULL ? &there : &behind);
    }
    plan->device_bytes = there.used;
    *bytes = behind.used;
    return st;
}

/* Checks a layer, and sets *need to the size of its plan in bytes. */
static DPARI_COLD dpar_status dpari_seq_count(const dpar_comm *comm,
                                              const dpar_attention_desc *layer, int64_t *need,
                                              dpar_why *why)
{
    dpari_attention p;
    dpar_status st;
    if (layer == NULL) {
        return dpari_wrong(why, "dpar_attention_make: the layer is NULL");
    }
    st = dpari_seq_check(layer, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (layer->tokens.ranks != comm->size) {
        return dpari_wrong(why, "attention: tokens.ranks is %d, but the communicator has %d ranks",
                           layer->tokens.ranks, comm->size);
    }
    dpari_zero(&p, sizeof p);
    p.head.layer = dpari_seq_filled(layer);
    p.sums = dpari_wide_type(layer->type);
    return dpari_seq_lay(&p, comm, NULL, need, why);
}

/* Lists the values that must be equal on all ranks. */
static DPARI_COLD void dpari_seq_state(dpari_facts *facts, const void *given)
{
    const dpar_attention_desc *layer = (const dpar_attention_desc *)given;
    const dpari_attention_method way = dpari_seq_way(layer);
    int32_t i;
    dpari_fact(facts, "method", 0, way.number);
    dpari_fact(facts, "tokens.docs", 0, layer->tokens.docs);
    for (i = 0; i <= layer->tokens.docs; i++) {
        dpari_fact(facts, "tokens.ends[#]", i, layer->tokens.ends[i]);
    }
    dpari_fact(facts, "tokens.rule", 0, layer->tokens.rule);
    dpari_fact(facts, "causal", 0, layer->causal != 0);
    dpari_fact_type(facts, "type", 0, layer->type);
    dpari_fact(facts, "heads", 0, layer->heads);
    dpari_fact(facts, "groups", 0, layer->groups);
    dpari_fact(facts, "width", 0, layer->width);
    dpari_fact(facts, "value_width", 0, layer->value_width);
    dpari_fact(facts, "window", 0, layer->window);
    dpari_fact_real(facts, "scale", 0, (double)layer->scale);
    dpari_fact(facts, "tag", 0, layer->tag);
    if (way.state != NULL) {
        way.state(facts, layer);
    }
}

/* Checks that the kernels are not the host's, allocates the buffers on the communicator's device,
 * and assigns them to the plan. */
static dpar_status dpari_seq_elsewhere(dpari_attention *plan, dpar_why *why)
{
    int64_t need;
    dpar_status st;
    if (plan->head.layer.forward == dpar_attention_host ||
        plan->head.layer.backward == dpar_attention_host) {
        return dpari_wrong(why, "attention: forward or backward is for the host, but arrays on a "
                                "device need kernels for "
                                "that device");
    }
    st = dpar_comm_alloc(plan->comm, plan->device_bytes, &plan->device);
    if (st != DPAR_OK) {
        return dpari_say(st, why, "attention: rank %d: the device has no memory for %ld bytes",
                         plan->comm->rank, plan->device_bytes);
    }
    return dpari_seq_lay(plan, plan->comm, plan, &need, why);
}

/* Frees the memory on the device. */
static void dpari_seq_give_back(dpari_attention *plan)
{
    if (plan->device != NULL) {
        dpar_comm_release(plan->comm, plan->device);
        plan->device = NULL;
    }
}

/* Fills in a plan in its memory. */
static DPARI_COLD dpar_status dpari_seq_fill_plan(dpari_attention *plan, dpar_comm *comm,
                                                  const dpar_attention_desc *layer, dpar_why *why)
{
    int64_t need;
    dpar_status st;
    dpari_zero(plan, sizeof *plan);
    plan->head.layer = dpari_seq_filled(layer);
    plan->sums = dpari_wide_type(layer->type);
    plan->comm = comm;
    st = dpari_seq_lay(plan, comm, plan, &need, why);
    if (st != DPAR_OK || comm->mem == NULL) {
        return st;
    }
    return dpari_seq_elsewhere(plan, why);
}

DPAR_API DPARI_COLD dpar_status dpar_attention_make(dpar_comm *comm,
                                                    const dpar_attention_desc *layer,
                                                    dpar_attention_plan **plan, dpar_why *why)
{
    dpari_attention *p;
    void *memory = NULL;
    int64_t need = 0;
    dpar_status st;
    if (comm == NULL) {
        return dpari_wrong(why, "dpar_attention_make: the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    st = plan == NULL ? dpari_wrong(why, "dpar_attention_make: the plan is NULL")
                      : dpari_seq_count(comm, layer, &need, why);
    if (st == DPAR_OK) {
        st =
            dpari_object_memory(comm, layer->memory, layer->bytes, need, "attention", &memory, why);
    }
    p = st == DPAR_OK ? (dpari_attention *)memory : NULL;
    if (p != NULL) {
        st = dpari_seq_fill_plan(p, comm, layer, why);
    }
    st = dpari_agree_on(comm, st, "attention", dpari_seq_state,
                        st == DPAR_OK ? &p->head.layer : NULL, why);
    if (st == DPAR_OK) {
        const dpari_attention_method way = dpari_seq_way(&p->head.layer);
        st = way.init != NULL ? way.init(p, why) : DPAR_OK;
    }
    if (st == DPAR_OK) {
        *plan = &p->head;
        return DPAR_OK;
    }
    if (p != NULL) {
        dpari_seq_give_back(p);
    }
    return dpari_object_failed(st, layer != NULL ? layer->memory : NULL, memory, need, why);
}

DPAR_API DPARI_COLD dpar_status dpar_attention_free(dpar_attention_plan *plan)
{
    dpari_attention *p = (dpari_attention *)(void *)plan;
    dpari_attention_method way;
    dpar_status st;
    if (p == NULL) {
        return DPAR_OK;
    }
    way = dpari_seq_way(&p->head.layer);
    st = way.close != NULL ? way.close(p) : DPAR_OK;
    if (dpari_object_refused(p->comm, st)) {
        return st;
    }
    dpari_seq_give_back(p);
    return dpari_object_end(st, p->head.layer.memory == NULL ? p : NULL);
}

/* Checks that no array that forward or backward uses is NULL. */
static dpar_status dpari_seq_given(const dpari_attention *plan, const dpar_attention_arrays *arrays,
                                   int backward)
{
    dpari_attention_method way;
    int missing, kept;
    if (plan == NULL || arrays == NULL) {
        return DPAR_E_ARG;
    }
    way = dpari_seq_way(&plan->head.layer);
    kept = plan->head.saved_bytes > 0 && arrays->saved == NULL;
    missing = (arrays->q == NULL) + (arrays->k == NULL) + (arrays->v == NULL) +
              (arrays->out == NULL) + (!way.whole && arrays->lse == NULL) + kept;
    if (backward) {
        missing += (arrays->out_gradient == NULL) + (arrays->q_gradient == NULL) +
                   (arrays->k_gradient == NULL) + (arrays->v_gradient == NULL);
    }
    if (missing == 0 || (plan->head.tokens == 0 && !kept)) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(
        plan->comm, DPAR_E_ARG,
        "rank %d: attention: %d arrays that this call needs for %ld tokens are NULL",
        plan->comm->rank, missing, plan->head.tokens);
}

/* ---- the ring -------------------------------------------------------------------------------- */

/* Describes the keys and values of the rank that is `steps` ranks before this one, stored end to
 * end in memory. */
static dpari_seq_block dpari_seq_block_in(const dpari_attention *plan, int32_t steps, void *memory,
                                          int32_t type)
{
    const dpar_attention_desc *layer = &plan->head.layer;
    dpari_seq_block b;
    b.rank = (plan->comm->rank + plan->comm->size - steps % plan->comm->size) % plan->comm->size;
    b.tokens = dpar_packed_rank_count(&layer->tokens, b.rank, NULL);
    b.own = steps % plan->comm->size == 0;
    b.lo = b.hi = 0;
    b.to_k = memory;
    b.to_v = dpari_seq_at(memory, b.tokens * layer->groups * layer->width, type);
    b.k = b.to_k;
    b.v = b.to_v;
    return b;
}

/* Adds a call to those of this step: a send to the next rank if `in` is not NULL, otherwise a
 * receive from the previous rank. */
static void dpari_seq_mail(dpari_attention *plan, const void *in, void *out, int64_t count,
                           int32_t type, int32_t tag)
{
    const int32_t size = plan->comm->size, step = in != NULL ? 1 : size - 1;
    dpar_call *call = &plan->call[plan->calls];
    if (count > 0) {
        dpari_zero(call, sizeof *call);
        call->kind = in != NULL ? DPAR_CALL_SEND : DPAR_CALL_RECV;
        call->in = in;
        call->out = out;
        call->count = count;
        call->type = type;
        call->root = (plan->comm->rank + step) % size;
        call->tag = plan->head.layer.tag + tag;
        plan->calls++;
        if (in != NULL) {
            plan->head.sent_bytes += count * dpar_type_bytes(type);
        }
    }
}

/* Adds the messages that send block `from` to the next rank and receive block `to` from the
 * previous rank. */
static void dpari_seq_pass(dpari_attention *plan, const dpari_seq_block *from,
                           const dpari_seq_block *to, int32_t type, int32_t tag)
{
    const int64_t k = (int64_t)plan->head.layer.groups * plan->head.layer.width;
    const int64_t v = (int64_t)plan->head.layer.groups * plan->head.layer.value_width;
    dpari_seq_mail(plan, from->k, NULL, from->tokens * k, type, tag);
    dpari_seq_mail(plan, from->v, NULL, from->tokens * v, type, tag + 1);
    dpari_seq_mail(plan, NULL, to->to_k, to->tokens * k, type, tag);
    dpari_seq_mail(plan, NULL, to->to_v, to->tokens * v, type, tag + 1);
}

/* Posts the calls of this step. */
static dpar_status dpari_seq_post(dpari_attention *plan)
{
    const dpar_status st = dpar_batch(plan->comm, plan->call, plan->calls, plan->work);
    plan->posted = plan->calls;
    plan->calls = 0;
    return st;
}

/* Waits for the calls of this step. */
static dpar_status dpari_seq_wait(dpari_attention *plan)
{
    const dpar_status st = dpar_wait_all(plan->work, plan->posted);
    plan->posted = 0;
    return st;
}

/* Advances messages between two blocks, because they progress only inside calls. Ignores errors,
 * which the wait reports. */
static void dpari_seq_push(dpari_attention *plan)
{
    int32_t i;
    const dpari_attention_method way = dpari_seq_way(&plan->head.layer);
    if (way.push != NULL) {
        way.push(plan);
    }
    for (i = 0; i < plan->posted && dpar_test(&plan->work[i]) == DPAR_OK; i++) {
    }
}

/* Fills in the arguments of the kernel that are the same in forward and backward. */
static DPARI_COLD void dpari_seq_call_of(const dpari_attention *plan,
                                         const dpar_attention_arrays *x, const dpari_seq_block *b,
                                         const dpari_seq_walk *w, dpar_attention_call *call)
{
    const dpar_attention_desc *layer = &plan->head.layer;
    dpari_zero(call, sizeof *call);
    call->layer = layer;
    call->user = layer->user;
    call->queries = w->queries;
    call->keys = w->keys;
    call->first_query = w->query;
    call->first_key = w->key;
    call->low = w->low;
    call->high = w->high;
    call->q = dpari_seq_in(x->q, w->q_at * layer->heads * layer->width, layer->type);
    call->k = dpari_seq_in(b->k, w->k_at * layer->groups * layer->width, layer->type);
    call->v = dpari_seq_in(b->v, w->k_at * layer->groups * layer->value_width, layer->type);
    call->lse = dpari_seq_at(x->lse, w->q_at * layer->heads, plan->sums);
}

/* Merges the result of the last call of the kernel into out and lse. */
static dpar_status dpari_seq_merge(const dpari_attention *plan, int64_t rows, void *out, void *lse)
{
    dpar_mem_attention_merge m;
    dpari_zero(&m, sizeof m);
    m.type = plan->sums;
    m.rows = rows;
    m.values = plan->head.layer.value_width;
    m.out = out;
    m.lse = lse;
    m.more = plan->part;
    m.more_lse = plan->part_lse;
    return dpari_do_attention_merge(plan->comm, &m);
}

DPARI_API dpar_status dpari_seq_attend(dpari_attention *plan, const dpar_attention_arrays *x,
                                       const dpari_seq_block *b)
{
    const dpar_attention_desc *layer = &plan->head.layer;
    void *sums = layer->type == plan->sums ? x->out : plan->out;
    dpar_status st = DPAR_OK;
    dpari_seq_walk w;
    dpar_attention_call call;
    dpari_seq_begin(plan, b, &w);
    while (st == DPAR_OK && dpari_seq_next(&w)) {
        const int first = b->own && !w.again;
        void *out = dpari_seq_at(sums, w.q_at * layer->heads * layer->value_width, plan->sums),
             *lse;
        w.again = 1;
        dpari_seq_call_of(plan, x, b, &w, &call);
        lse = call.lse;
        call.out = first ? out : plan->part;
        call.lse = first ? lse : plan->part_lse;
        plan->head.pairs += dpari_seq_pairs(&w);
        layer->forward(&call);
        if (!first) {
            st = dpari_seq_merge(plan, w.queries * layer->heads, out, lse);
        }
        dpari_seq_push(plan);
    }
    return st;
}

/* Computes forward around the ring. In step t, the rank computes attention to the keys of the rank
 * that is t ranks before it. Meanwhile it sends these keys to the next rank and receives those of
 * the next step. */
static dpar_status dpari_seq_ring(dpari_attention *plan, const dpar_attention_arrays *arrays)
{
    dpar_status st = DPAR_OK;
    dpari_seq_block here, next;
    int32_t t;
    here = dpari_seq_block_in(plan, 0, NULL, plan->head.layer.type);
    here.k = arrays->k;
    here.v = arrays->v;
    for (t = 0; t < plan->comm->size && st == DPAR_OK; t++) {
        next = dpari_seq_block_in(plan, t + 1, plan->keys[t % 2], plan->head.layer.type);
        if (t + 1 < plan->comm->size) {
            dpari_seq_pass(plan, &here, &next, plan->head.layer.type, 0);
        }
        st = dpari_seq_post(plan);
        if (st == DPAR_OK) {
            st = dpari_seq_attend(plan, arrays, &here);
        }
        st = dpari_first_error(st, dpari_seq_wait(plan));
        here = next;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_attention_forward(dpar_attention_plan *plan,
                                                       const dpar_attention_arrays *arrays)
{
    dpari_attention *p = (dpari_attention *)(void *)plan;
    dpar_status st = dpari_seq_given(p, arrays, 0);
    dpari_attention_method way;
    if (st != DPAR_OK) {
        return st;
    }
    way = dpari_seq_way(&p->head.layer);
    st = way.forward != NULL ? way.forward(p, arrays) : dpari_seq_ring(p, arrays);
    if (st == DPAR_OK && p->head.layer.type != p->sums && !way.whole) {
        st = dpari_seq_round(p, arrays->out, p->out,
                             p->head.tokens * p->head.layer.heads * p->head.layer.value_width);
    }
    return st;
}

/* ---- backward -------------------------------------------------------------------------------- */

DPARI_API dpar_status dpari_seq_delta(dpari_attention *plan, const dpar_attention_arrays *arrays)
{
    dpar_mem_dot d;
    dpari_zero(&d, sizeof d);
    d.to = plan->delta;
    d.a = arrays->out;
    d.b = arrays->out_gradient;
    d.rows = plan->head.tokens * plan->head.layer.heads;
    d.choices = 1;
    d.width = plan->head.layer.value_width;
    d.to_type = plan->sums;
    d.type = plan->head.layer.type;
    return d.rows > 0 ? dpari_do_dot(plan->comm, &d) : DPAR_OK;
}

DPARI_API void dpari_seq_attend_back(dpari_attention *plan, const dpar_attention_arrays *x,
                                     const dpari_seq_block *b, const dpari_seq_block *g, void *dq)
{
    const dpar_attention_desc *layer = &plan->head.layer;
    dpari_seq_walk w;
    dpar_attention_call call;
    dpari_seq_begin(plan, b, &w);
    while (dpari_seq_next(&w)) {
        const int64_t q = w.q_at * layer->heads;
        dpari_seq_call_of(plan, x, b, &w, &call);
        call.out = dpari_seq_at(x->out, q * layer->value_width, layer->type);
        call.out_gradient = dpari_seq_in(x->out_gradient, q * layer->value_width, layer->type);
        call.delta = dpari_seq_in(plan->delta, q, plan->sums);
        call.q_gradient = dpari_seq_at(dq, q * layer->width, plan->sums);
        call.k_gradient = dpari_seq_at(g->to_k, w.k_at * layer->groups * layer->width, plan->sums);
        call.v_gradient =
            dpari_seq_at(g->to_v, w.k_at * layer->groups * layer->value_width, plan->sums);
        layer->backward(&call);
        dpari_seq_push(plan);
    }
}

/* Computes sum += more for all gradients of a block. */
static dpar_status dpari_seq_gather(const dpari_attention *plan, const dpari_seq_block *sum,
                                    const dpari_seq_block *more)
{
    return dpari_do_convert(plan->comm, sum->to_k, plan->sums, more->k, plan->sums,
                            sum->tokens * dpari_seq_each(&plan->head.layer), 1);
}

/* Returns the block for gradients of this rank's own keys and values from its own queries. It is
 * not sent. */
static dpari_seq_block dpari_seq_home(const dpari_attention *plan)
{
    return dpari_seq_block_in(plan, 0, plan->gradients[dpari_seq_home_buffer(plan->comm->size)],
                              plan->sums);
}

/* Does step t of backward. Keys and values are passed on as in forward. From t = 2 on, the
 * gradients of the block of step t - 1 are passed on, too. Meanwhile the rank receives the
 * gradients of this step's block, to which it then adds its own. */
static dpar_status dpari_seq_step_back(dpari_attention *plan, const dpar_attention_arrays *arrays,
                                       int32_t t, dpari_seq_block *here, void *dq)
{
    const dpari_seq_block next =
        dpari_seq_block_in(plan, t + 1, plan->keys[t % 2], plan->head.layer.type);
    const dpari_seq_block gone = dpari_seq_block_in(plan, t - 1 + plan->comm->size,
                                                    plan->gradients[(t + 1) % 2], plan->sums);
    const dpari_seq_block sum = dpari_seq_block_in(plan, t, plan->gradients[t % 2], plan->sums);
    dpari_seq_block mine = sum; /* receives the gradients of this rank's queries */
    dpar_status st;
    if (t == 0) {
        mine = dpari_seq_home(plan);
    } else if (t > 1) {
        mine = dpari_seq_block_in(plan, t, plan->gradients[2], plan->sums);
    }
    if (t + 1 < plan->comm->size) {
        dpari_seq_pass(plan, here, &next, plan->head.layer.type, 0);
    }
    if (t > 1) {
        dpari_seq_pass(plan, &gone, &sum, plan->sums, 2);
    }
    st = dpari_seq_post(plan);
    if (st == DPAR_OK) {
        st = dpari_do_copy(plan->comm, mine.to_k, NULL,
                           mine.tokens * dpari_seq_each(&plan->head.layer) *
                               dpar_type_bytes(plan->sums));
        dpari_seq_attend_back(plan, arrays, here, &mine, dq);
    }
    st = dpari_first_error(st, dpari_seq_wait(plan));
    if (st == DPAR_OK && t > 1) {
        st = dpari_seq_gather(plan, &sum, &mine);
    }
    *here = next;
    return st;
}

/* Computes backward around the ring. Sets *home to the gradients of this rank's keys and values. */
static dpar_status dpari_seq_ring_back(dpari_attention *plan, const dpar_attention_arrays *arrays,
                                       void *dq, dpari_seq_block *home)
{
    const int32_t size = plan->comm->size;
    dpari_seq_block here = dpari_seq_block_in(plan, 0, NULL, plan->head.layer.type);
    dpar_status st = dpari_seq_delta(plan, arrays);
    int32_t t;
    here.k = arrays->k;
    here.v = arrays->v;
    for (t = 0; t < size && st == DPAR_OK; t++) {
        st = dpari_seq_step_back(plan, arrays, t, &here, dq);
    }
    *home = dpari_seq_home(plan);
    if (st == DPAR_OK && size > 1) {
        const dpari_seq_block come =
            dpari_seq_block_in(plan, 0, plan->gradients[size % 2], plan->sums);
        const dpari_seq_block last =
            dpari_seq_block_in(plan, size - 1, plan->gradients[(size - 1) % 2], plan->sums);
        dpari_seq_pass(plan, &last, &come, plan->sums, 2);
        st = dpari_seq_post(plan);
        st = dpari_first_error(st, dpari_seq_wait(plan));
        if (st == DPAR_OK) {
            st = dpari_seq_gather(plan, home, &come);
        }
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_attention_backward(dpar_attention_plan *plan,
                                                        const dpar_attention_arrays *arrays)
{
    dpari_attention *p = (dpari_attention *)(void *)plan;
    dpar_status st = dpari_seq_given(p, arrays, 1);
    const dpar_attention_desc *layer;
    dpari_attention_method way;
    dpari_seq_block home;
    int64_t queries, keys;
    void *dq;
    if (st != DPAR_OK) {
        return st;
    }
    layer = &p->head.layer;
    way = dpari_seq_way(layer);
    if (way.whole) {
        return way.backward(p, arrays, NULL, NULL);
    }
    queries = p->head.tokens * layer->heads * layer->width;
    dq = layer->type == p->sums ? arrays->q_gradient : p->q_gradient;
    st = dpari_do_copy(p->comm, dq, NULL, queries * dpar_type_bytes(p->sums));
    if (st == DPAR_OK) {
        st = way.backward != NULL ? way.backward(p, arrays, dq, &home)
                                  : dpari_seq_ring_back(p, arrays, dq, &home);
    }
    keys = p->head.tokens * layer->groups;
    if (st == DPAR_OK) {
        st = dpari_seq_round(p, arrays->q_gradient, dq, queries);
    }
    if (st == DPAR_OK) {
        st = dpari_seq_round(p, arrays->k_gradient, home.k, keys * layer->width);
    }
    if (st == DPAR_OK) {
        st = dpari_seq_round(p, arrays->v_gradient, home.v, keys * layer->value_width);
    }
    return st;
}

/* ==== train/ulysses.c ==== */

/* Attention by exchanging tokens for heads. The exchange of an array has two implementations: each
 * rank reads its part directly from the arrays of the other ranks (peer_arrays.h), or the parts are
 * packed and sent with an all-to-all-v. Both give the same bits. Ranks read directly if the arrays
 * of all ranks are in memory that the others can read. From heads to tokens, copies of a group are
 * added in rank order.
 *
 * dpar_attention_ulysses fills in the functions of a plan (attention_private.h); sequence.c calls
 * them. */

/* ---- one array ------------------------------------------------------------------------------- */

enum { DPARI_ULYSSES_ARRAYS = 4 };

/* Describes the exchange of one array: its tokens and heads. */
typedef struct dpari_ulysses_layer {
    /* If ranks do not have consecutive tokens in rank order (ZIGZAG, CYCLIC, BLOCK_CYCLIC,
     * STRIDED), the all-to-all needs one more copy. */
    dpar_split tokens;
    dpar_heads heads;
    int32_t of_groups; /* 1 for heads of keys and values, 0 for heads of queries */
    int32_t type;
    int64_t width; /* elements per token and head */
} dpari_ulysses_layer;

/* The exchange of one array on this rank. */
typedef struct dpari_ulysses {
    dpari_ulysses_layer layer;
    int64_t tokens, whole; /* number of tokens of this rank, and of all ranks */
    /* number of heads of the array, which before the exchange is [tokens][heads][width] */
    int32_t heads;
    /* first head and number of heads of this rank; after the exchange the array is
     * [whole][mine][width] */
    int32_t first, mine;
    dpar_comm *comm;
    int64_t *send, *send_at, *receive, *receive_at; /* [ranks] for the all-to-all, in elements */
    int64_t *cuts; /* [ranks + 1] number of heads of all lower ranks, counting each copy */
    /* [ranks] address of each rank's part, followed by [ranks] addresses of copies that are added
     */
    const void **piece;
    dpari_peer *peer; /* [ranks] */
    int32_t tag;      /* even number from a hash of the layer, to which the direction is added */
    void *packed;     /* parts that are sent to or received from other ranks */
    void *ordered;    /* all tokens sorted by rank; NULL if that is their own order */
} dpari_ulysses;

/* Returns the number of heads of a rank. Sets *first to its first head unless first is NULL. */
static int32_t dpari_ulysses_heads(const dpari_ulysses_layer *u, int32_t rank, int32_t *first)
{
    const dpar_heads_share share = dpar_heads_local(&u->heads, rank);
    if (first != NULL) {
        *first = u->of_groups ? share.first_group : share.first_query;
    }
    return u->of_groups ? share.groups : share.queries;
}

/* Returns the number of heads of the array. */
static int32_t dpari_ulysses_all(const dpari_ulysses_layer *u)
{
    return u->of_groups ? u->heads.groups : u->heads.queries;
}

/* Returns the number of heads of all ranks, counting each copy. */
static int64_t dpari_ulysses_held(const dpari_ulysses_layer *u)
{
    int64_t held = 0;
    int32_t i;
    for (i = 0; i < u->tokens.parts; i++) {
        held += dpari_ulysses_heads(u, i, NULL);
    }
    return held;
}

/* Checks that the sizes in bytes of an exchange do not overflow. */
static dpar_status dpari_ulysses_fits(const dpari_ulysses_layer *u, dpar_why *why)
{
    int64_t room;
    if (!dpari_mul(u->tokens.count, dpari_ulysses_held(u), &room) ||
        !dpari_mul(room, u->width, &room) || !dpari_mul(room, 64, &room)) {
        return dpari_say(DPAR_E_RANGE, why,
                         "ulysses: %ld tokens, %ld heads and width %ld are too large together",
                         u->tokens.count, dpari_ulysses_held(u), u->width);
    }
    return DPAR_OK;
}

/* Describes in u how an array of a layer is exchanged. The defaults of the layer are filled in. */
static DPARI_COLD dpar_status dpari_ulysses_of(const dpar_attention_desc *layer, int32_t array,
                                               dpari_ulysses_layer *u, dpar_why *why)
{
    const int64_t all = layer->tokens.ends[layer->tokens.docs];
    dpar_status st;
    dpari_zero(u, sizeof *u);
    u->of_groups = array == DPAR_ATTENTION_K || array == DPAR_ATTENTION_V;
    u->type = layer->type;
    u->width =
        array == DPAR_ATTENTION_Q || array == DPAR_ATTENTION_K ? layer->width : layer->value_width;
    st = dpar_heads_init(&u->heads, layer->heads, layer->groups, layer->tokens.ranks,
                         layer->heads_chunked ? DPAR_SPLIT_CHUNK : DPAR_SPLIT_EVEN, why);
    if (st == DPAR_OK && layer->token_split == NULL) {
        st = dpar_split_init(&u->tokens, layer->tokens.rule, all, layer->tokens.ranks, 1, why);
    } else if (st == DPAR_OK) {
        u->tokens = *layer->token_split;
        if (u->tokens.count != all || u->tokens.parts != layer->tokens.ranks) {
            st = dpari_wrong(why,
                             "ulysses: token_split has %ld tokens in %d parts, but the layer has "
                             "%ld tokens on %d ranks",
                             u->tokens.count, u->tokens.parts, all, layer->tokens.ranks);
        }
    }
    return st;
}

static DPARI_COLD dpar_status dpari_ulysses_check(const dpar_attention_desc *layer, dpar_why *why)
{
    dpari_ulysses_layer u;
    int32_t i;
    dpar_status st = DPAR_OK;
    for (i = 0; i < DPARI_ULYSSES_ARRAYS && st == DPAR_OK; i++) {
        st = dpari_ulysses_of(layer, i, &u, why);
        if (st == DPAR_OK) {
            st = dpari_ulysses_fits(&u, why);
        }
    }
    return st;
}

/* Returns the number of bytes that this rank sends to heads, or to tokens if back is 1. */
static int64_t dpari_ulysses_sent(const dpari_ulysses *ulysses, int back)
{
    const dpari_ulysses_layer *u = &ulysses->layer;
    const int64_t each = u->width * dpar_type_bytes(u->type);
    if (back) {
        return each * ulysses->mine * (ulysses->whole - ulysses->tokens);
    }
    return each * ulysses->tokens * (dpari_ulysses_held(u) - ulysses->mine);
}

/* Assigns memory to an exchange: `buffers` for arrays of elements, `behind` for all other arrays.
 */
static void dpari_ulysses_lay_one(dpari_ulysses *ulysses, const dpar_comm *comm, dpari_room *behind,
                                  dpari_room *buffers)
{
    const dpari_ulysses_layer *u = &ulysses->layer;
    const int64_t counts = 8 * (int64_t)comm->size, each = u->width * dpar_type_bytes(u->type);
    ulysses->tokens = dpar_split_part_count(&u->tokens, comm->rank);
    ulysses->whole = u->tokens.count;
    ulysses->heads = dpari_ulysses_all(u);
    ulysses->mine = dpari_ulysses_heads(u, comm->rank, &ulysses->first);
    ulysses->send = (int64_t *)dpari_room_take(behind, counts, 1);
    ulysses->send_at = (int64_t *)dpari_room_take(behind, counts, 1);
    ulysses->receive = (int64_t *)dpari_room_take(behind, counts, 1);
    ulysses->receive_at = (int64_t *)dpari_room_take(behind, counts, 1);
    ulysses->cuts = (int64_t *)dpari_room_take(behind, counts + 8, 1);
    ulysses->piece = (const void **)dpari_room_take(behind, 2 * comm->size, sizeof *ulysses->piece);
    ulysses->peer = (dpari_peer *)dpari_room_take(behind, comm->size, sizeof *ulysses->peer);
    ulysses->packed = dpari_room_take(buffers, ulysses->tokens * dpari_ulysses_held(u) * each, 1);
    if (!dpari_split_in_order(&u->tokens)) {
        ulysses->ordered = dpari_room_take(buffers, ulysses->whole * ulysses->mine * each, 1);
    }
}

/* Computes the counts of the all-to-all. If several ranks hold a copy of a head, each copy counts
 * as a separate head. */
static dpar_status dpari_ulysses_count(dpari_ulysses *ulysses, dpar_why *why)
{
    const dpari_ulysses_layer *u = &ulysses->layer;
    dpar_split held;
    int32_t i;
    dpar_status st;
    ulysses->cuts[0] = 0;
    for (i = 0; i < u->tokens.parts; i++) {
        ulysses->cuts[i + 1] = ulysses->cuts[i] + dpari_ulysses_heads(u, i, NULL);
    }
    st = dpar_split_init_ragged(&held, u->tokens.parts, ulysses->cuts, why);
    if (st == DPAR_OK) {
        st = dpari_ulysses_counts(&u->tokens, &held, ulysses->comm->rank, u->width, ulysses->send,
                                  ulysses->send_at, ulysses->receive, ulysses->receive_at, why);
    }
    ulysses->send[ulysses->comm->rank] = 0; /* the rank's own piece is copied, not sent */
    ulysses->receive[ulysses->comm->rank] = 0;
    return st;
}

/* Lists how the tokens are divided, which must be equal on all ranks. */
static DPARI_COLD void dpari_ulysses_state_tokens(dpari_facts *facts, const dpari_ulysses_layer *u)
{
    int32_t i;
    dpari_fact(facts, "the rule of the cut", 0, u->tokens.rule);
    dpari_fact(facts, "the block of the cut", 0, u->tokens.block);
    for (i = 0; i < u->tokens.parts; i++) {
        dpari_fact(facts, "the first token of rank #", i, dpar_split_part_first(&u->tokens, i));
        dpari_fact(facts, "the number of tokens of rank #", i,
                   dpar_split_part_count(&u->tokens, i));
    }
}

/* Lists the values that describe an exchange. The tag is made from their hash. */
static DPARI_COLD void dpari_ulysses_state_one(dpari_facts *facts, const void *given)
{
    const dpari_ulysses_layer *u = (const dpari_ulysses_layer *)given;
    dpari_ulysses_state_tokens(facts, u);
    dpari_fact(facts, "tokens.count", 0, u->tokens.count);
    dpari_fact(facts, "heads.queries", 0, u->heads.queries);
    dpari_fact(facts, "heads.groups", 0, u->heads.groups);
    dpari_fact(facts, "heads.rule", 0, u->heads.rule);
    dpari_fact(facts, "of_groups", 0, u->of_groups != 0);
    dpari_fact(facts, "width", 0, u->width);
    dpari_fact_type(facts, "type", 0, u->type);
}

/* Checks that the arrays are not NULL (in and out are 1). Otherwise breaks the communicator, so
 * that the other ranks do not wait for this one. */
static dpar_status dpari_ulysses_given(const dpari_ulysses *ulysses, int in, int out)
{
    if (in && out) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(
        ulysses->comm, DPAR_E_ARG,
        "rank %d: in or out of an exchange of %ld tokens and %d heads is NULL", ulysses->comm->rank,
        ulysses->whole, ulysses->heads);
}

/* Copies rows of `bytes` bytes. The steps are the bytes from one row to the next. */
static void dpari_ulysses_rows(void *to, int64_t to_step, const void *from, int64_t from_step,
                               int64_t bytes, int64_t rows, int32_t stream)
{
    unsigned char *t = (unsigned char *)to;
    const unsigned char *f = (const unsigned char *)from;
    int64_t i;
    for (i = 0; i < rows && bytes > 0; i++) {
        const unsigned char *next = i + 1 < rows ? f + from_step : f;
        dpari_kern_row(t, f, next, bytes, stream);
        t += i + 1 < rows ? to_step : 0;
        f = next;
    }
}

/* Copies all tokens from the order of ranks to the order of the sequence, or with `back` from the
 * order of the sequence to that of ranks. */
static DPARI_COLD dpar_status dpari_ulysses_order(const dpari_ulysses *ulysses, void *to,
                                                  const void *from, int back)
{
    const int64_t row = ulysses->mine * ulysses->layer.width;
    const int32_t type = ulysses->layer.type;
    int64_t at = 0, local, i, run;
    dpar_status st = DPAR_OK;
    int32_t rank;
    for (rank = 0; rank < ulysses->comm->size && row > 0; rank++) {
        for (local = 0; st == DPAR_OK; local += run) {
            int64_t to_token, from_token;
            i = dpar_split_global(&ulysses->layer.tokens, rank, local, &run);
            if (i < 0) {
                break;
            }
            to_token = back ? at : i;
            from_token = back ? i : at;
            st = dpari_do_copy(ulysses->comm, dpari_seq_at(to, to_token * row, type),
                               dpari_seq_in(from, from_token * row, type),
                               run * row * dpar_type_bytes(type));
            at += run;
        }
    }
    return st;
}

/* Packs this rank's tokens, sorted by the ranks of their heads. Copies the rank's own piece
 * directly to its place in `to`. */
static dpar_status dpari_ulysses_cut(const dpari_ulysses *ulysses, const void *in, void *to)
{
    const int64_t width = ulysses->layer.width;
    dpar_status st = DPAR_OK;
    int32_t rank, first;
    for (rank = 0; rank < ulysses->comm->size && ulysses->tokens > 0 && st == DPAR_OK; rank++) {
        const int64_t heads = dpari_ulysses_heads(&ulysses->layer, rank, &first);
        const int own = rank == ulysses->comm->rank;
        void *piece =
            own ? dpari_seq_at(to, ulysses->receive_at[rank], ulysses->layer.type)
                : dpari_seq_at(ulysses->packed, ulysses->send_at[rank], ulysses->layer.type);
        const void *from = dpari_seq_in(in, first * width, ulysses->layer.type);
        st = dpari_do_rows(ulysses->comm, piece, heads * width, from, ulysses->heads * width,
                           heads * width, ulysses->tokens, ulysses->layer.type, DPAR_COPY);
    }
    return st;
}

/* Reads this rank's heads of all tokens directly from the arrays of the other ranks. Each rank
 * begins with its own array, so that the ranks do not all read from the same rank at once. */
static void dpari_ulysses_take(const dpari_ulysses *ulysses, const dpari_peers *peers, void *out)
{
    const int64_t width = ulysses->layer.width, bytes = dpar_type_bytes(ulysses->layer.type);
    const int64_t row = ulysses->mine * width, wide = ulysses->heads * width;
    const int32_t stream = dpari_peers_stream(peers, ulysses->whole * row * bytes);
    int64_t local, i, run;
    int32_t k;
    for (k = 0; k < ulysses->comm->size && row > 0; k++) {
        const int32_t rank = (ulysses->comm->rank + k) % ulysses->comm->size;
        const void *in = dpari_peers_at(peers, rank, 0);
        for (local = 0;; local += run) {
            i = dpar_split_global(&ulysses->layer.tokens, rank, local, &run);
            if (i < 0) {
                break;
            }
            dpari_ulysses_rows(
                dpari_seq_at(out, i * row, ulysses->layer.type), row * bytes,
                dpari_seq_in(in, local * wide + ulysses->first * width, ulysses->layer.type),
                wide * bytes, row * bytes, run, stream);
        }
    }
    dpari_kern_rows_end(stream);
}

/* Publishes the array of this rank, and finds out whether all ranks can read each other's arrays
 * directly (peers->direct). */
static dpar_status dpari_ulysses_open(dpari_ulysses *ulysses, const void *in, int64_t elements,
                                      int backward, dpari_peers *peers)
{
    dpari_peers_array a;
    a.at = in;
    a.bytes = elements * dpar_type_bytes(ulysses->layer.type);
    return dpari_peers_open(peers, ulysses->comm, (int32_t)(ulysses->tag ^ (backward != 0)), &a, 1,
                            ulysses->peer);
}

/* Ends the direct reads: waits until all ranks have read. counts: [ranks] number of elements that
 * each other rank read from this rank. */
static dpar_status dpari_ulysses_end(const dpari_ulysses *ulysses, const dpari_peers *peers,
                                     const int64_t *counts)
{
    int64_t n = 0;
    int32_t i;
    for (i = 0; i < ulysses->comm->size; i++) {
        n += counts[i]; /* the count of this rank is 0 */
    }
    return dpari_peers_close(peers, n * dpar_type_bytes(ulysses->layer.type));
}

/* Exchanges tokens for heads: computes out[whole][mine][width] from in[tokens][heads][width]. */
static DPARI_COLD dpar_status dpari_ulysses_there(dpari_ulysses *plan, const void *in, void *out)
{
    dpar_status st =
        dpari_ulysses_given(plan, plan->tokens == 0 || in != NULL, plan->mine == 0 || out != NULL);
    dpari_peers peers;
    void *to;
    if (st == DPAR_OK) {
        st =
            dpari_ulysses_open(plan, in, plan->tokens * plan->heads * plan->layer.width, 0, &peers);
    }
    if (st != DPAR_OK) {
        return st;
    }
    if (peers.direct) {
        dpari_ulysses_take(plan, &peers, out);
        return dpari_ulysses_end(plan, &peers, plan->send);
    }
    to = plan->ordered != NULL ? plan->ordered : out;
    st = dpari_ulysses_cut(plan, in, to);
    if (st == DPAR_OK) {
        st = dpar_all_to_all_v(plan->comm, plan->packed, plan->send, plan->send_at, to,
                               plan->receive, plan->receive_at, plan->layer.type, NULL);
    }
    return st == DPAR_OK && to != out ? dpari_ulysses_order(plan, out, to, 0) : st;
}

/* Adds the copies of head h in rank order, for `run` tokens, which begin at token `local` of this
 * rank and at row `at` of each piece[rank]. If heads have copies, each rank holds at most one head,
 * so that a row of a piece is a row of that head. */
static void dpari_ulysses_unite(const dpari_ulysses *ulysses, int32_t h, int64_t local, int64_t at,
                                int64_t run, void *out)
{
    const dpari_ulysses_layer *u = &ulysses->layer;
    const int64_t step = u->width * dpar_type_bytes(u->type);
    const void **row = ulysses->piece + ulysses->comm->size;
    int32_t rank, first, n = 0;
    int64_t i;
    for (rank = 0; rank < ulysses->comm->size; rank++) {
        if (dpari_ulysses_heads(u, rank, &first) > 0 && first == h) {
            row[n++] = dpari_seq_in(ulysses->piece[rank], at * u->width, u->type);
        }
    }
    for (i = 0; i < run; i++) {
        void *to[1];
        to[0] = dpari_seq_at(out, ((local + i) * ulysses->heads + h) * u->width, u->type);
        dpari_kern_reduce(to, 1, row, n, u->width, u->type, DPAR_SUM, 0);
        for (rank = 0; rank < n && i + 1 < run; rank++) {
            row[rank] = (const unsigned char *)row[rank] + step;
        }
    }
}

/* Computes this rank's tokens with all heads directly from piece[rank] of each rank, which has all
 * tokens with the heads of that rank. */
static void dpari_ulysses_join(const dpari_ulysses *ulysses, void *out, int32_t stream)
{
    const int32_t type = ulysses->layer.type, size = ulysses->comm->size, me = ulysses->comm->rank;
    const int64_t width = ulysses->layer.width, each = width * dpar_type_bytes(type);
    int64_t local, i, run;
    int32_t k, first;
    for (local = 0;; local += run) {
        i = dpar_split_global(&ulysses->layer.tokens, me, local, &run);
        if (i < 0) {
            break;
        }
        if (ulysses->cuts[size] > ulysses->heads) { /* several ranks hold a head: add the copies */
            for (k = 0; k < ulysses->heads; k++) {
                dpari_ulysses_unite(ulysses, k, local, i, run, out);
            }
            continue;
        }
        for (k = 0; k < size; k++) {
            const int32_t rank = (me + k) % size;
            const int64_t heads = dpari_ulysses_heads(&ulysses->layer, rank, &first);
            dpari_ulysses_rows(dpari_seq_at(out, (local * ulysses->heads + first) * width, type),
                               ulysses->heads * each,
                               dpari_seq_in(ulysses->piece[rank], i * heads * width, type),
                               heads * each, heads * each, run, stream);
        }
    }
    dpari_kern_rows_end(stream);
}

/* Adds the n copies of a head that ranks `rank` .. rank + n - 1 hold, for this rank's tokens. The
 * sum replaces the first copy in ulysses->packed. */
static dpar_status dpari_ulysses_add_packed(const dpari_ulysses *ulysses, int32_t rank, int32_t n)
{
    const dpari_ulysses_layer *u = &ulysses->layer;
    const int64_t count = ulysses->tokens * u->width;
    const int32_t me = ulysses->comm->rank;
    dpar_status st = DPAR_OK;
    dpar_mem_reduce r;
    /* this rank's own copy was not received into `packed`, where the other copies are */
    if (me >= rank && me < rank + n) {
        st = dpari_do_copy(ulysses->comm,
                           dpari_seq_at(ulysses->packed, ulysses->send_at[me], u->type),
                           ulysses->piece[me], count * dpar_type_bytes(u->type));
    }
    dpari_zero(&r, sizeof r);
    r.to = dpari_seq_at(ulysses->packed, ulysses->send_at[rank], u->type);
    r.from = r.to;
    r.count = r.stride = count;
    r.parts = n;
    r.to_type = r.from_type = u->type;
    r.sum_type = dpari_wide_type(u->type);
    r.op = DPAR_SUM;
    r.scale = 1.0;
    return st == DPAR_OK && count > 0 ? dpari_do_reduce(ulysses->comm, &r) : st;
}

/* Does what dpari_ulysses_join does, from pieces that have only the tokens of this rank. */
static dpar_status dpari_ulysses_join_packed(const dpari_ulysses *ulysses, void *out)
{
    const dpari_ulysses_layer *u = &ulysses->layer;
    dpar_status st = DPAR_OK;
    int32_t rank, first, next, n;
    for (rank = 0; rank < ulysses->comm->size && st == DPAR_OK; rank += n) {
        const int64_t heads = dpari_ulysses_heads(u, rank, &first) * u->width;
        const void *from = ulysses->piece[rank];
        for (n = 1; heads > 0 && rank + n < ulysses->comm->size; n++) {
            if (dpari_ulysses_heads(u, rank + n, &next) == 0 || next != first) {
                break;
            }
        }
        if (n > 1) {
            st = dpari_ulysses_add_packed(ulysses, rank, n);
            from = dpari_seq_in(ulysses->packed, ulysses->send_at[rank], u->type);
        }
        if (st == DPAR_OK) {
            st = dpari_do_rows(ulysses->comm, dpari_seq_at(out, first * u->width, u->type),
                               ulysses->heads * u->width, from, heads, heads, ulysses->tokens,
                               u->type, DPAR_COPY);
        }
    }
    return st;
}

/* Exchanges heads for tokens: computes out[tokens][heads][width] from in[whole][mine][width].
 * Copies of a head are added. */
static DPARI_COLD dpar_status dpari_ulysses_back(dpari_ulysses *plan, const void *in, void *out)
{
    dpar_status st =
        dpari_ulysses_given(plan, plan->mine == 0 || in != NULL, plan->tokens == 0 || out != NULL);
    dpari_peers peers;
    int32_t i, stream;
    if (st == DPAR_OK) {
        st = dpari_ulysses_open(plan, in, plan->whole * plan->mine * plan->layer.width, 1, &peers);
    }
    if (st != DPAR_OK) {
        return st;
    }
    if (peers.direct) {
        for (i = 0; i < plan->comm->size; i++) {
            plan->piece[i] = dpari_peers_at(&peers, i, 0);
        }
        stream = dpari_peers_stream(&peers, plan->tokens * plan->heads * plan->layer.width *
                                                dpar_type_bytes(plan->layer.type));
        dpari_ulysses_join(plan, out, stream);
        return dpari_ulysses_end(plan, &peers, plan->receive);
    }
    if (plan->ordered != NULL) {
        st = dpari_ulysses_order(plan, plan->ordered, in, 1);
        in = plan->ordered;
    }
    if (st != DPAR_OK) {
        return st;
    }
    st = dpar_all_to_all_v(plan->comm, in, plan->receive, plan->receive_at, plan->packed,
                           plan->send, plan->send_at, plan->layer.type, NULL);
    if (st == DPAR_OK) {
        for (i = 0; i < plan->comm->size; i++) { /* the rank's own piece is in `in` */
            if (i == plan->comm->rank) {
                plan->piece[i] = dpari_seq_in(in, plan->receive_at[i], plan->layer.type);
            } else {
                plan->piece[i] = dpari_seq_in(plan->packed, plan->send_at[i], plan->layer.type);
            }
        }
        st = dpari_ulysses_join_packed(plan, out);
    }
    return st;
}

/* ---- a layer --------------------------------------------------------------------------------- */

/* The state of the method in a plan. */
typedef struct dpari_ulysses_state {
    /* attention on this rank, with all tokens and the heads of this rank */
    dpari_attention one;
    /* the exchange of each array; if values are as wide as keys, V uses that of K, and OUT that of
     * Q */
    dpari_ulysses *of[DPARI_ULYSSES_ARRAYS];
    void *out_gradient; /* of this rank's heads */
    /* gradients of q, k and v in the type of sums, and in the layer's type; the same memory if the
     * types are equal */
    void *sums[3], *gradient[3];
} dpari_ulysses_state;

static dpari_ulysses_state *dpari_ulysses_state_of(const dpari_attention *plan)
{
    return (dpari_ulysses_state *)plan->of_way;
}

/* Returns the number of elements of q, k, v or out, with all tokens and this rank's heads. */
static int64_t dpari_ulysses_elements(const dpari_attention *one, int32_t array)
{
    const dpar_attention_desc *layer = &one->head.layer;
    const int64_t rows = one->head.tokens;
    switch (array) {
    case DPAR_ATTENTION_Q: return rows * layer->heads * layer->width;
    case DPAR_ATTENTION_K: return rows * layer->groups * layer->width;
    case DPAR_ATTENTION_V: return rows * layer->groups * layer->value_width;
    default: return rows * layer->heads * layer->value_width;
    }
}

/* Sets the pointers in x to the arrays in `memory` (arrays.saved) that forward saves for backward.
 * Returns their size in bytes. If memory is NULL, only computes the size. */
static int64_t dpari_ulysses_kept(const dpari_attention *one, void *memory,
                                  dpar_attention_arrays *x)
{
    const dpar_attention_desc *layer = &one->head.layer;
    const size_t each = (size_t)dpar_type_bytes(layer->type);
    dpari_room r = dpari_room_of(memory);
    dpari_zero(x, sizeof *x);
    x->q = dpari_room_take(&r, dpari_ulysses_elements(one, DPAR_ATTENTION_Q), each);
    x->k = dpari_room_take(&r, dpari_ulysses_elements(one, DPAR_ATTENTION_K), each);
    x->v = dpari_room_take(&r, dpari_ulysses_elements(one, DPAR_ATTENTION_V), each);
    x->out = dpari_room_take(&r, dpari_ulysses_elements(one, DPAR_ATTENTION_OUT), each);
    x->lse =
        dpari_room_take(&r, one->head.tokens * layer->heads, (size_t)dpar_type_bytes(one->sums));
    return r.used;
}

/* Fills in the plan of attention with all tokens and this rank's heads, and assigns memory to its
 * buffers. */
static dpar_status dpari_ulysses_lay_here(const dpari_attention *plan, const dpari_ulysses_layer *q,
                                          const dpar_comm *comm, dpari_ulysses_state *s,
                                          dpari_room *buffers, dpar_why *why)
{
    const dpar_heads_share share = dpar_heads_local(&q->heads, comm->rank);
    const dpar_packed *t = &plan->head.layer.tokens;
    const size_t type = (size_t)dpar_type_bytes(plan->head.layer.type);
    const size_t sum = (size_t)dpar_type_bytes(plan->sums);
    dpari_attention *one = &s->one;
    dpar_attention_desc *layer = &one->head.layer;
    int32_t i;
    *layer = plan->head.layer;
    layer->method = NULL;
    layer->heads = share.queries;
    layer->groups = share.groups;
    one->comm = plan->comm;
    one->sums = plan->sums;
    one->head.tokens = q->tokens.count;
    one->delta = dpari_room_take(buffers, one->head.tokens * layer->heads, sum);
    s->out_gradient =
        dpari_room_take(buffers, dpari_ulysses_elements(one, DPAR_ATTENTION_OUT), type);
    for (i = 0; i < 3; i++) {
        const int64_t n = dpari_ulysses_elements(one, i);
        s->sums[i] = dpari_room_take(buffers, n, sum);
        s->gradient[i] = type == sum ? s->sums[i] : dpari_room_take(buffers, n, type);
    }
    if (type != sum) {
        one->out = dpari_room_take(buffers, dpari_ulysses_elements(one, DPAR_ATTENTION_OUT), sum);
    }
    return dpar_packed_init(&layer->tokens, t->docs, t->ends, 1, DPAR_SPLIT_CHUNK, why);
}

/* Assigns memory to the state of this method. If behind->at is NULL, only counts bytes, and uses
 * local variables in place of the state. */
static DPARI_COLD dpar_status dpari_ulysses_lay(dpari_attention *plan, const dpar_comm *comm,
                                                dpari_room *behind, dpari_room *buffers,
                                                dpar_why *why)
{
    const int narrow =
        plan->head.layer.value_width == plan->head.layer.width ? 2 : DPARI_ULYSSES_ARRAYS;
    dpari_ulysses_state counted, *s = (dpari_ulysses_state *)dpari_room_take(behind, 1, sizeof *s);
    dpar_attention_arrays x;
    dpari_ulysses_layer q;
    int32_t i;
    dpar_status st = dpari_ulysses_of(&plan->head.layer, DPAR_ATTENTION_Q, &q, why);
    plan->of_way = s;
    s = s != NULL ? s : &counted;
    dpari_zero(s, sizeof *s);
    for (i = 0; i < narrow && st == DPAR_OK; i++) {
        dpari_ulysses none, *e = (dpari_ulysses *)dpari_room_take(behind, 1, sizeof *e);
        s->of[i] = e;
        e = e != NULL ? e : &none;
        dpari_zero(e, sizeof *e);
        e->comm = plan->comm;
        st = dpari_ulysses_of(&plan->head.layer, i, &e->layer, why);
        if (st == DPAR_OK) {
            dpari_ulysses_lay_one(e, comm, behind, buffers);
        }
    }
    if (narrow == 2) {
        s->of[DPAR_ATTENTION_V] = s->of[DPAR_ATTENTION_K];
        s->of[DPAR_ATTENTION_OUT] = s->of[DPAR_ATTENTION_Q];
    }
    if (st == DPAR_OK) {
        st = dpari_ulysses_lay_here(plan, &q, comm, s, buffers, why);
    }
    if (st == DPAR_OK) {
        plan->head.tokens = dpar_split_part_count(&q.tokens, comm->rank);
        plan->head.saved_bytes = dpari_ulysses_kept(&s->one, NULL, &x);
    }
    return st;
}

/* Lists the values of this method that must be equal on all ranks, in addition to the layer's. */
static DPARI_COLD void dpari_ulysses_facts(dpari_facts *facts, const dpar_attention_desc *layer)
{
    dpari_ulysses_layer u;
    if (dpari_ulysses_of(layer, DPAR_ATTENTION_Q, &u, NULL) == DPAR_OK) {
        dpari_ulysses_state_tokens(facts, &u);
        dpari_fact(facts, "heads_chunked", 0, layer->heads_chunked != 0);
    }
}

/* Computes the tags and counts of the exchanges, once all ranks have agreed on the layer. */
static DPARI_COLD dpar_status dpari_ulysses_init(dpari_attention *plan, dpar_why *why)
{
    dpari_ulysses_state *s = dpari_ulysses_state_of(plan);
    int32_t i;
    dpar_status st = DPAR_OK;
    for (i = 0; i < DPARI_ULYSSES_ARRAYS && st == DPAR_OK; i++) {
        dpari_ulysses *e = s->of[i];
        e->tag = (int32_t)(dpari_facts_hash("ulysses", dpari_ulysses_state_one, &e->layer) >> 40);
        st = dpari_ulysses_count(e, why);
    }
    return st;
}

/* Exchanges one array and counts the bytes sent. */
static dpar_status dpari_ulysses_exchange(dpari_attention *plan, int32_t array, int back,
                                          const void *in, void *out)
{
    dpari_ulysses *e = dpari_ulysses_state_of(plan)->of[array];
    const dpar_status st = back ? dpari_ulysses_back(e, in, out) : dpari_ulysses_there(e, in, out);
    if (st == DPAR_OK) {
        plan->head.sent_bytes += dpari_ulysses_sent(e, back);
    }
    return st;
}

DPAR_API dpar_status dpar_attention_exchange(dpar_attention_plan *plan, int32_t array, int back,
                                             const void *in, void *out)
{
    dpari_attention *p = (dpari_attention *)(void *)plan;
    if (p == NULL) {
        return DPAR_E_ARG;
    }
    if (p->head.layer.method != dpar_attention_ulysses || array < DPAR_ATTENTION_Q ||
        array > DPAR_ATTENTION_OUT) {
        return dpari_comm_wrong(
            p->comm,
            "dpar_attention_exchange: array is %d, but must be 0 to %d, with method "
            "dpar_attention_ulysses",
            array, (int32_t)DPAR_ATTENTION_OUT);
    }
    return dpari_ulysses_exchange(p, array, back, in, out);
}

/* Returns a block with the keys and values of all tokens, or with the arrays for their
 * gradients. */
static dpari_seq_block dpari_ulysses_block(const dpari_attention *one, const void *k, const void *v,
                                           void *to_k, void *to_v)
{
    dpari_seq_block b;
    dpari_zero(&b, sizeof b);
    b.own = 1;
    b.hi = b.tokens = one->head.tokens;
    b.k = k;
    b.v = v;
    b.to_k = to_k;
    b.to_v = to_v;
    return b;
}

static DPARI_COLD dpar_status dpari_ulysses_forward(dpari_attention *plan,
                                                    const dpar_attention_arrays *arrays)
{
    dpari_attention *one = &dpari_ulysses_state_of(plan)->one;
    dpar_attention_arrays x;
    dpar_status st;
    (void)dpari_ulysses_kept(one, arrays->saved, &x);
    st = dpari_ulysses_exchange(plan, DPAR_ATTENTION_Q, 0, arrays->q, (void *)(uintptr_t)x.q);
    if (st == DPAR_OK) {
        st = dpari_ulysses_exchange(plan, DPAR_ATTENTION_K, 0, arrays->k, (void *)(uintptr_t)x.k);
    }
    if (st == DPAR_OK) {
        st = dpari_ulysses_exchange(plan, DPAR_ATTENTION_V, 0, arrays->v, (void *)(uintptr_t)x.v);
    }
    if (st == DPAR_OK && one->head.layer.heads > 0) {
        const dpari_seq_block all = dpari_ulysses_block(one, x.k, x.v, NULL, NULL);
        st = dpari_seq_attend(one, &x, &all);
        plan->head.pairs += one->head.pairs;
        one->head.pairs = 0;
        if (st == DPAR_OK && one->out != NULL) {
            st = dpari_seq_round(one, x.out, one->out,
                                 dpari_ulysses_elements(one, DPAR_ATTENTION_OUT));
        }
    }
    if (st == DPAR_OK) {
        st = dpari_ulysses_exchange(plan, DPAR_ATTENTION_OUT, 1, x.out, arrays->out);
    }
    return st;
}

/* Computes the gradients of this rank's heads. */
static dpar_status dpari_ulysses_attend_back(dpari_ulysses_state *s, dpar_attention_arrays *x)
{
    dpari_attention *one = &s->one;
    const dpari_seq_block all = dpari_ulysses_block(one, x->k, x->v, NULL, NULL);
    const dpari_seq_block to = dpari_ulysses_block(one, NULL, NULL, s->sums[1], s->sums[2]);
    int32_t i;
    dpar_status st = DPAR_OK;
    x->out_gradient = s->out_gradient;
    for (i = 0; i < 3 && st == DPAR_OK; i++) {
        st = dpari_do_copy(one->comm, s->sums[i], NULL,
                           dpari_ulysses_elements(one, i) * dpar_type_bytes(one->sums));
    }
    /* a rank without query heads still holds a copy of a group, whose gradient is then 0 */
    if (st == DPAR_OK && one->head.layer.heads > 0) {
        st = dpari_seq_delta(one, x);
        dpari_seq_attend_back(one, x, &all, &to, s->sums[0]);
    }
    for (i = 0; i < 3 && st == DPAR_OK; i++) {
        st = dpari_seq_round(one, s->gradient[i], s->sums[i], dpari_ulysses_elements(one, i));
    }
    return st;
}

static DPARI_COLD dpar_status dpari_ulysses_backward(dpari_attention *plan,
                                                     const dpar_attention_arrays *arrays, void *dq,
                                                     dpari_seq_block *home)
{
    dpari_ulysses_state *s = dpari_ulysses_state_of(plan);
    void *const to[3] = {arrays->q_gradient, arrays->k_gradient, arrays->v_gradient};
    dpar_attention_arrays x;
    int32_t i;
    dpar_status st;
    (void)dq;
    (void)home;
    (void)dpari_ulysses_kept(&s->one, arrays->saved, &x);
    st = dpari_ulysses_exchange(plan, DPAR_ATTENTION_OUT, 0, arrays->out_gradient, s->out_gradient);
    if (st == DPAR_OK) {
        st = dpari_ulysses_attend_back(s, &x);
    }
    for (i = 0; i < 3 && st == DPAR_OK; i++) {
        st = dpari_ulysses_exchange(plan, i, 1, s->gradient[i], to[i]);
    }
    return st;
}

DPAR_API void dpar_attention_ulysses(struct dpari_attention_method *method)
{
    method->number = 2;
    method->whole = 1;
    method->check = dpari_ulysses_check;
    method->state = dpari_ulysses_facts;
    method->lay = dpari_ulysses_lay;
    method->init = dpari_ulysses_init;
    method->forward = dpari_ulysses_forward;
    method->backward = dpari_ulysses_backward;
}

/* ==== train/router.c ==== */

/* The router of a mixture of experts: chooses experts by their scores, in plain loops in f64, and
 * computes its gradients. */

/* Checks a router and the arguments of one of its functions. given: 1 if all arrays that the
 * function needs are not NULL. */
static dpar_status dpari_router_check(const dpar_router *router, int64_t tokens, int given,
                                      dpar_why *why)
{
    const int32_t choices = router != NULL ? router->choices : 0;
    const int32_t experts = router != NULL ? router->experts : 0;
    if (router == NULL || choices < 1 || choices > experts) {
        return dpari_wrong(
            why, "router: choices is %d and experts is %d, but 1 <= choices <= experts is required",
            choices, experts);
    }
    if (router->score < DPAR_ROUTER_SOFTMAX || router->score > DPAR_ROUTER_GIVEN) {
        return dpari_wrong(why,
                           "router: score is %d, but must be DPAR_ROUTER_SOFTMAX, SIGMOID or GIVEN",
                           router->score);
    }
    if (!dpari_is_wide(router->type)) {
        return dpari_wrong(why, "router: type is %s, but must be f64 or f32",
                           dpar_type_name(router->type));
    }
    if (tokens < 0 || tokens > INT64_MAX / 8 / router->experts) {
        return dpari_wrong(why,
                           "router: tokens is %ld, but must be 0 to 2^60 / experts (experts is %d)",
                           tokens, router->experts);
    }
    if (!given) {
        return dpari_wrong(why, "router: an array that this call needs for %ld tokens is NULL",
                           tokens);
    }
    return DPAR_OK;
}

/* Computes the scores s[experts] of one token from its logits, and returns their sum. Softmax
 * subtracts the largest logit, so that no exponential overflows. */
static double dpari_router_scores(const dpar_router *router, const void *logits, int64_t token,
                                  double *s)
{
    const int64_t at = token * router->experts;
    double most, sum = 0.0;
    int32_t e;
    for (e = 0; e < router->experts; e++) {
        s[e] = dpari_element_get(logits, router->type, at + e);
    }
    most = s[0];
    for (e = 1; e < router->experts; e++) {
        most = s[e] > most ? s[e] : most;
    }
    for (e = 0; e < router->experts; e++) {
        if (router->score == DPAR_ROUTER_SOFTMAX) {
            s[e] = dpari_exp(s[e] - most);
        } else if (router->score == DPAR_ROUTER_SIGMOID) {
            s[e] = 1.0 / (1.0 + dpari_exp(-s[e]));
        }
        sum += s[e];
    }
    if (router->score != DPAR_ROUTER_SOFTMAX) {
        return sum;
    }
    for (e = 0; e < router->experts; e++) {
        s[e] /= sum;
    }
    return 1.0;
}

/* Chooses the k experts with the largest by[expert], largest first. Each expert is inserted from
 * the end of the sorted list, so that equal ones stay in the order of their indices. */
static void dpari_router_choose(const dpar_router *router, const double *by, int32_t *chosen)
{
    int32_t e, n = 0, at;
    for (e = 0; e < router->experts; e++) {
        if (n == router->choices && !dpari_higher(by[e], by[chosen[n - 1]])) {
            continue;
        }
        at = n < router->choices ? n++ : n - 1;
        for (; at > 0 && dpari_higher(by[e], by[chosen[at - 1]]); at--) {
            chosen[at] = chosen[at - 1];
        }
        chosen[at] = e;
    }
}

/* Returns the factor of the weights. A scale of 0 selects 1. */
static double dpari_router_scale(const dpar_router *router)
{
    return router->scale != 0.0 ? router->scale : 1.0;
}

/* Returns the divisor of the weights of a token: the sum of its chosen scores with `normalise`,
 * otherwise 1. The sum starts from 1e-20, so that it is never 0. */
static double dpari_router_norm(const dpar_router *router, const double *s, const int32_t *chosen)
{
    double sum = 1e-20;
    int32_t j;
    if (!router->normalise) {
        return 1.0;
    }
    for (j = 0; j < router->choices; j++) {
        sum += chosen[j] >= 0 ? s[chosen[j]] : 0.0;
    }
    return sum;
}

DPAR_API dpar_status dpar_router_forward(const dpar_router *router,
                                         const dpar_router_arrays *arrays, dpar_why *why)
{
    const int64_t tokens = arrays != NULL ? arrays->tokens : 0;
    const int given = arrays != NULL && arrays->scratch != NULL &&
                      (tokens == 0 || (arrays->logits != NULL && arrays->chosen != NULL &&
                                       arrays->weight != NULL));
    const dpar_status st = dpari_router_check(router, tokens, given, why);
    int64_t t;
    int32_t e, j;
    for (t = 0; st == DPAR_OK && t < tokens; t++) {
        int32_t *mine = arrays->chosen + t * router->choices;
        double norm, *scores = arrays->scratch, *biased = scores + router->experts;
        (void)dpari_router_scores(router, arrays->logits, t, scores);
        for (e = 0; e < router->experts; e++) {
            biased[e] = scores[e] + (router->bias != NULL ? router->bias[e] : 0.0);
        }
        dpari_router_choose(router, biased, mine);
        norm = dpari_router_norm(router, scores, mine);
        for (j = 0; j < router->choices; j++) {
            dpari_element_put(arrays->weight, router->type, t * router->choices + j,
                              dpari_router_scale(router) * scores[mine[j]] / norm);
        }
    }
    return st;
}

/* Checks that each choice is an expert or -1. */
static dpar_status dpari_router_chosen(const dpar_router *router, int64_t tokens,
                                       const int32_t *chosen, dpar_why *why)
{
    int64_t i;
    for (i = 0; i < tokens * router->choices; i++) {
        if (chosen[i] < -1 || chosen[i] >= router->experts) {
            return dpari_wrong(why, "router: token %ld chose expert %d, but there are %d experts",
                               i / router->choices, chosen[i], router->experts);
        }
    }
    return DPAR_OK;
}

/* Adds the tokens of this rank to sums[2 experts + 1]: for each expert how often it is chosen, then
 * for each expert the sum of its shares of the scores, then the number of tokens. Tokens without
 * choices (padding) do not count. */
static void dpari_router_add(const dpar_router *router, int64_t tokens, const void *logits,
                             const int32_t *chosen, double *sums, double *scratch)
{
    int64_t t;
    int32_t e, j;
    for (t = 0; t < tokens; t++) {
        const int32_t *mine = chosen + t * router->choices;
        double sum;
        for (j = 0; j < router->choices; j++) {
            if (mine[j] >= 0) {
                sums[mine[j]] += 1.0;
            }
        }
        if (mine[0] < 0) {
            continue;
        }
        sum = dpari_router_scores(router, logits, t, scratch);
        for (e = 0; e < router->experts; e++) {
            sums[router->experts + e] += sum > 0.0 ? scratch[e] / sum : 0.0;
        }
        sums[2 * (int64_t)router->experts] += 1.0;
    }
}

/* Computes the load and the balancing loss from the sums of all ranks. */
static void dpari_router_loads(const dpar_router *router, double *sums, dpar_router_load *load)
{
    const double tokens = sums[2 * (int64_t)router->experts];
    double all = 0.0, most = 0.0, dot = 0.0;
    int32_t e;
    load->chosen = sums;
    load->score = sums + router->experts;
    load->tokens = (int64_t)tokens;
    load->idle = 0;
    for (e = 0; e < router->experts; e++) {
        load->score[e] /= tokens > 0.0 ? tokens : 1.0;
        load->idle += !(sums[e] > 0.0);
        all += sums[e];
        most = dpari_mostf(most, sums[e]);
        dot += sums[e] * load->score[e];
    }
    load->imbalance = all > 0.0 ? most * router->experts / all : 0.0;
    load->loss =
        tokens > 0.0 ? router->balance * router->experts * dot / (router->choices * tokens) : 0.0;
}

/* Adds the sums over all ranks. The hash makes engines that compare calls fail if the routers
 * differ. */
static dpar_status dpari_router_sum(const dpar_router *router, dpar_comm *comm, double *sums,
                                    int64_t n)
{
    uint64_t hash =
        dpari_hash(dpari_hash(dpari_hash(4, router->experts), router->choices), router->score);
    dpar_call call;
    hash = dpari_hash(dpari_hash(hash, router->type), router->normalise != 0);
    hash = dpari_hash_real(dpari_hash_real(hash, router->scale), router->balance);
    dpari_zero(&call, sizeof call);
    call.kind = DPAR_CALL_ALL_REDUCE;
    call.type = DPAR_F64;
    call.op = DPAR_SUM;
    call.in = call.out = sums;
    call.count = n;
    return dpari_post_alike(comm, &call, hash,
                            "a router: experts, choices, score, type, normalise, scale or balance",
                            NULL);
}

DPAR_API DPARI_COLD dpar_status dpar_router_balance(const dpar_router *router, dpar_comm *comm,
                                         const dpar_router_arrays *arrays, dpar_router_load *load)
{
    const int64_t tokens = arrays != NULL ? arrays->tokens : 0;
    const int given = arrays != NULL && arrays->sums != NULL && load != NULL &&
                      arrays->scratch != NULL &&
                      (tokens == 0 || (arrays->logits != NULL && arrays->chosen != NULL));
    int64_t n = 0;
    dpar_why said;
    dpar_status st = dpari_router_check(router, tokens, given, &said);
    if (st == DPAR_OK) {
        st = dpari_router_chosen(router, tokens, arrays->chosen, &said);
    }
    if (st != DPAR_OK) {
        return comm == NULL ? st
                            : dpari_comm_wrong_all(comm, st, "rank %d: %s", comm->rank, said.text);
    }
    n = 2 * (int64_t)router->experts + 1;
    dpari_zero(arrays->sums, (size_t)n * sizeof *arrays->sums);
    dpari_router_add(router, tokens, arrays->logits, arrays->chosen, arrays->sums, arrays->scratch);
    if (comm != NULL) {
        st = dpari_router_sum(router, comm, arrays->sums, n);
        if (st == DPAR_OK) {
            st = dpari_do_wait(comm); /* a device may still be writing page-locked sums */
        }
    }
    if (st == DPAR_OK) {
        dpari_router_loads(router, arrays->sums, load);
    }
    return st;
}

/* Adds the gradient of one token's scores to d[experts]. The scores affect the weights of its
 * choices and, unless load is NULL, the balancing loss. s: the scores. sum: their sum. */
static void dpari_router_back(const dpar_router *router, int64_t token, const int32_t *chosen,
                              const void *dweight, const dpar_router_load *load, double sum,
                              const double *s, double *d)
{
    const double norm = dpari_router_norm(router, s, chosen),
                 by = dpari_router_scale(router) / norm;
    double mean = 0.0;
    int32_t e, j;
    for (j = 0; dweight != NULL && router->normalise && j < router->choices; j++) {
        if (chosen[j] >= 0) {
            mean += dpari_element_get(dweight, router->type, token * router->choices + j) *
                    s[chosen[j]] / norm;
        }
    }
    for (j = 0; dweight != NULL && j < router->choices; j++) {
        if (chosen[j] >= 0) {
            d[chosen[j]] +=
                by * (dpari_element_get(dweight, router->type, token * router->choices + j) - mean);
        }
    }
    if (load != NULL && load->tokens > 0 && chosen[0] >= 0 && sum > 0.0) {
        const double all = (double)load->tokens;
        const double a = router->balance * router->experts / (router->choices * all * all);
        mean = 0.0;
        for (e = 0; e < router->experts; e++) {
            mean += a * load->chosen[e] * (s[e] / sum);
        }
        for (e = 0; e < router->experts; e++) {
            d[e] += (a * load->chosen[e] - mean) / sum;
        }
    }
}

DPAR_API DPARI_COLD dpar_status dpar_router_backward(const dpar_router *router,
                                          const dpar_router_arrays *arrays,
                                          const dpar_router_load *load, dpar_why *why)
{
    const int64_t tokens = arrays != NULL ? arrays->tokens : 0;
    const int given = arrays != NULL && arrays->scratch != NULL &&
                      (tokens == 0 || (arrays->logits != NULL && arrays->chosen != NULL &&
                                       arrays->dlogits != NULL));
    dpar_status st = dpari_router_check(router, tokens, given, why);
    int64_t t;
    int32_t e;
    if (st == DPAR_OK) {
        st = dpari_router_chosen(router, tokens, arrays->chosen, why);
    }
    for (t = 0; st == DPAR_OK && t < tokens; t++) {
        double *scores = arrays->scratch, *d = scores + router->experts, mean = 0.0;
        const double sum = dpari_router_scores(router, arrays->logits, t, scores);
        dpari_zero(d, (size_t)router->experts * sizeof *d);
        dpari_router_back(router, t, arrays->chosen + t * router->choices, arrays->dweight, load,
                          sum, scores, d);
        for (e = 0; router->score == DPAR_ROUTER_SOFTMAX && e < router->experts; e++) {
            mean += d[e] * scores[e];
        }
        for (e = 0; e < router->experts; e++) {
            const double s = scores[e];
            double slope = 1.0;
            if (router->score == DPAR_ROUTER_SOFTMAX) {
                slope = s;
            } else if (router->score == DPAR_ROUTER_SIGMOID) {
                slope = s * (1.0 - s);
            }
            dpari_element_put(arrays->dlogits, router->type, t * router->experts + e,
                              slope * (d[e] - mean));
        }
    }
    return st;
}

/* ==== train/expert.c ==== */

/* Plans and routings of mixtures of experts.
 *
 * Routing: each rank counts its choices for each expert, applies the capacity, and exchanges the
 * counts. With DPAR_EXPERTS_DROP_POSITION the capacity is global. The rank of an expert then
 * divides the expert's rows among the ranks, first choices first, and answers how many rows each
 * rank may send. The counts also determine where the rows of each rank begin, so that ranks need to
 * exchange nothing else. */

/* ---- layers and their memory ----------------------------------------------------------------- */

/* Returns the capacity factor in millionths, or 0 if it is outside of its domain. */
static int64_t dpari_expert_factor(const dpar_experts_desc *layer)
{
    return layer->capacity_factor > 0.0 && layer->capacity_factor <= 1e6
               ? (int64_t)(layer->capacity_factor * 1e6 + 0.5)
               : 0;
}

/* Returns the capacity C for a number of tokens, which is that of all ranks for
 * DPAR_EXPERTS_DROP_POSITION, otherwise that of one rank. Returns 2^63 - 1 for
 * DPAR_EXPERTS_DROP_NONE and if C is too large. Computes in integers, so that all ranks agree. */
static int64_t dpari_expert_capacity(const dpar_experts_desc *layer, int64_t tokens)
{
    int64_t n;
    if (layer->drop == DPAR_EXPERTS_DROP_NONE || layer->experts.count < 1 ||
        layer->experts.count > INT32_MAX || tokens < 0 || !dpari_mul(tokens, layer->choices, &n) ||
        !dpari_mul(n, dpari_expert_factor(layer), &n)) {
        return INT64_MAX;
    }
    return dpari_ceil_div(n, 1000000 * layer->experts.count);
}

static dpar_status dpari_expert_check(const dpar_experts_desc *layer, dpar_why *why)
{
    const dpar_split *split = &layer->experts;
    int64_t n, m;
    if (split->parts < 1 || split->count < 1 || split->count > INT32_MAX ||
        !dpari_split_in_order(split) || layer->choices < 1 || layer->choices > split->count) {
        return dpari_wrong(
            why,
            "experts: choices is %d, experts.count %ld, parts %d and rule %d, but 1 <= choices <= "
            "count, parts >= 1 and rule CHUNK, EVEN, FLOOR or RAGGED is required",
            layer->choices, split->count, split->parts, split->rule);
    }
    if (layer->drop < DPAR_EXPERTS_DROP_NONE || layer->drop > DPAR_EXPERTS_DROP_WEIGHT_LOCAL) {
        return dpari_wrong(
            why,
            "experts: drop is %d in a layer of %ld experts, but must be DPAR_EXPERTS_DROP_NONE, "
            "POSITION, POSITION_LOCAL or WEIGHT_LOCAL",
            layer->drop, split->count);
    }
    if (layer->drop != DPAR_EXPERTS_DROP_NONE && dpari_expert_factor(layer) < 1) {
        return dpari_wrong(
            why, "experts: capacity_factor of a layer of %ld experts must be 0.000001 to 1000000",
            split->count);
    }
    if (layer->max_tokens < 1 || layer->max_rows < 0 || layer->width < 1 ||
        !dpari_is_float(layer->type)) {
        return dpari_wrong(
            why,
            "experts: max_tokens is %ld, max_rows %ld, width %ld and type %s, but max_tokens and "
            "width must be at least 1, max_rows at least 0, and type f64, f32, bf16 or f16",
            layer->max_tokens, layer->max_rows, layer->width, dpar_type_name(layer->type));
    }
    if (!dpari_mul(layer->max_tokens, layer->choices, &n) || n > INT32_MAX ||
        !dpari_mul(n, split->parts, &m) || !dpari_mul(m, layer->width, &m) ||
        !dpari_mul(m, 64, &m) || !dpari_mul(split->count, layer->choices, &n) ||
        !dpari_mul(n, split->parts, &n) || !dpari_mul(n, 64, &n)) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "experts: max_tokens %ld, choices %d, %ld experts and width %ld are too large together",
            layer->max_tokens, layer->choices, split->count, layer->width);
    }
    return DPAR_OK;
}

/* Returns the largest number of rows that the experts of a rank can receive. The products cannot
 * overflow, because dpari_expert_check limits them. */
static int64_t dpari_expert_most(const dpar_experts_desc *layer, int32_t own)
{
    const int64_t all = layer->experts.parts * layer->max_tokens;
    const int64_t come = all * dpari_least(layer->choices, own);
    int64_t c, ranks;
    if (layer->drop == DPAR_EXPERTS_DROP_NONE) {
        return layer->max_rows > 0 ? dpari_least(layer->max_rows, come) : come;
    }
    c = dpari_expert_capacity(layer,
                              layer->drop == DPAR_EXPERTS_DROP_POSITION ? all : layer->max_tokens);
    ranks = layer->drop == DPAR_EXPERTS_DROP_POSITION ? 1 : layer->experts.parts;
    return dpari_mul(c, ranks * own, &c) ? dpari_least(c, come) : come;
}

/* Assigns memory from byte *used on to the buffers for rows and, for a device, to the copies of a
 * routing's arrays. Advances *used. */
static void dpari_expert_buffers(dpari_experts *plan, const dpar_comm *comm, unsigned char *memory,
                                 int64_t *used)
{
    const dpar_experts_desc *layer = &plan->head.layer;
    const int64_t most = layer->max_tokens * layer->choices;
    const size_t row = (size_t)layer->width * (size_t)dpar_type_bytes(layer->type);
    dpari_room room;
    room.at = memory;
    room.used = *used;
    plan->packed = dpari_room_take(&room, most, row);
    plan->staged = plan->head.count > 1 && comm->size > 1
                       ? dpari_room_take(&room, plan->head.max_rows, row)
                       : NULL;
    if (comm->mem != NULL) {
        plan->place = (int32_t *)dpari_room_take(&room, most, 4);
        plan->token = (int32_t *)dpari_room_take(&room, most, 4);
        plan->choice = (int32_t *)dpari_room_take(&room, most, 4);
        plan->weight =
            dpari_room_take(&room, most, (size_t)dpar_type_bytes(dpari_wide_type(layer->type)));
    }
    *used = room.used;
}

/* Assigns memory to the arrays of the plan and returns its size in bytes. If memory is NULL, only
 * computes the size. */
static int64_t dpari_expert_place_plan(dpari_experts *plan, const dpar_comm *comm,
                                       unsigned char *memory)
{
    const dpar_experts_desc *layer = &plan->head.layer;
    const int64_t ranks = comm->size, experts = layer->experts.count;
    dpari_room used = dpari_room_of(memory);
    (void)dpari_room_take(&used, 1, sizeof *plan);
    plan->head.count = (int32_t)dpar_split_part_count(&layer->experts, comm->rank);
    plan->head.first = (int32_t)dpar_split_part_first(&layer->experts, comm->rank);
    plan->head.max_rows = dpari_expert_most(layer, plan->head.count);
    plan->slots = layer->drop == DPAR_EXPERTS_DROP_POSITION ? layer->choices : 1;
    plan->sent_counts = (int32_t *)dpari_room_take(&used, ranks + plan->slots * experts, 4);
    plan->received_counts =
        (int32_t *)dpari_room_take(&used, ranks * (1 + (int64_t)plan->slots * plan->head.count), 4);
    plan->tally = (int32_t *)dpari_room_take(&used, plan->slots * experts, 4);
    plan->order = (int32_t *)dpari_room_take(
        &used,
        layer->drop == DPAR_EXPERTS_DROP_WEIGHT_LOCAL ? layer->max_tokens * layer->choices : 0, 4);
    plan->sent_number = (int64_t *)dpari_room_take(&used, ranks, 8);
    plan->received_number = (int64_t *)dpari_room_take(&used, ranks, 8);
    plan->send = (int64_t *)dpari_room_take(&used, ranks, 8);
    plan->receive = (int64_t *)dpari_room_take(&used, ranks, 8);
    plan->fill = (int64_t *)dpari_room_take(&used, experts, 8);
    plan->from =
        (const void **)dpari_room_take(&used, experts + 2 * layer->choices, sizeof *plan->from);
    plan->by = (double *)dpari_room_take(&used, 2 * layer->choices, 8);
    plan->peer = (dpari_peer *)dpari_room_take(&used, ranks, sizeof *plan->peer);
    if (comm->mem != NULL) { /* the buffers are in the device's memory */
        plan->span = (dpar_mem_span *)dpari_room_take(
            &used, dpari_most(ranks * plan->head.count, DPARI_EXPERT_INDICES), sizeof *plan->span);
        plan->device_bytes = 0;
        dpari_expert_buffers(plan, comm, (unsigned char *)plan->device, &plan->device_bytes);
    } else {
        dpari_expert_buffers(plan, comm, memory, &used.used);
    }
    return used.used;
}

/* Does the same for a routing. Other ranks read the first four arrays. These have the same offsets
 * on all ranks, because the first three have the same length on all ranks. */
static DPARI_COLD int64_t dpari_expert_place_routing(const dpari_experts *plan,
                                                     const dpar_comm *comm, dpari_routing *routing,
                                                     unsigned char *memory)
{
    const int64_t most = plan->head.layer.max_tokens * plan->head.layer.choices;
    dpari_room used = dpari_room_of(memory);
    (void)dpari_room_take(&used, 1, sizeof *routing);
    routing->send = (int64_t *)dpari_room_take(&used, comm->size, 8);
    routing->take = (int64_t *)dpari_room_take(&used, comm->size, 8);
    routing->choice = (int32_t *)dpari_room_take(&used, most, 4);
    routing->row = (int64_t *)dpari_room_take(&used, comm->size * (int64_t)plan->head.count, 8);
    routing->head.count = (int64_t *)dpari_room_take(&used, plan->head.count, 8);
    routing->head.first = (int64_t *)dpari_room_take(&used, plan->head.count, 8);
    routing->head.position = (int32_t *)dpari_room_take(&used, most, 4);
    routing->piece = (int64_t *)dpari_room_take(&used, comm->size * (int64_t)plan->head.count, 8);
    routing->start = (int64_t *)dpari_room_take(&used, plan->head.layer.experts.count, 8);
    routing->expert = (int32_t *)dpari_room_take(&used, most, 4);
    routing->token = comm->mem != NULL ? (int32_t *)dpari_room_take(&used, most, 4) : NULL;
    return used.used;
}

/* Checks a layer and computes the size of its plan (*bytes) and of a routing (*each). */
static DPARI_COLD dpar_status dpari_expert_needs(const dpar_comm *comm,
                                                 const dpar_experts_desc *layer, int64_t *bytes,
                                                 int64_t *each, dpar_why *why)
{
    dpari_experts p;
    dpari_routing r;
    dpar_status st;
    if (layer == NULL) {
        return dpari_wrong(why, "dpar_experts_make: the layer is NULL");
    }
    st = dpari_expert_check(layer, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (layer->experts.parts != comm->size) {
        return dpari_wrong(why,
                           "experts: the split has %d parts, but the communicator has %d ranks",
                           layer->experts.parts, comm->size);
    }
    dpari_zero(&p, sizeof p);
    p.head.layer = *layer;
    *bytes = dpari_expert_place_plan(&p, comm, NULL);
    *each = dpari_expert_place_routing(&p, comm, &r, NULL);
    return DPAR_OK;
}

/* Lists the values that must be equal on all ranks. */
static DPARI_COLD void dpari_expert_facts(dpari_facts *facts, const void *given)
{
    const dpar_experts_desc *layer = (const dpar_experts_desc *)given;
    int32_t i;
    dpari_fact(facts, "experts.count", 0, layer->experts.count);
    for (i = 0; i < layer->experts.parts; i++) {
        dpari_fact(facts, "the number of experts of rank #", i,
                   dpar_split_part_count(&layer->experts, i));
    }
    dpari_fact(facts, "choices", 0, layer->choices);
    dpari_fact(facts, "drop", 0, layer->drop);
    dpari_fact_type(facts, "type", 0, layer->type);
    dpari_fact(facts, "capacity_factor in millionths", 0,
               layer->drop == DPAR_EXPERTS_DROP_NONE ? 0 : dpari_expert_factor(layer));
    dpari_fact(facts, "max_tokens", 0, layer->max_tokens);
    dpari_fact(facts, "width", 0, layer->width);
}

/* Checks that comm->mem has the functions that experts need, allocates the buffers on the device,
 * and assigns them to the plan. */
static dpar_status dpari_expert_use_device(dpari_experts *plan, dpar_why *why)
{
    dpar_comm *comm = plan->comm;
    const dpar_mem *m = comm->mem;
    const dpar_mem_layers *l = (const dpar_mem_layers *)m->layers;
    dpar_status st;
    if (m->wait == NULL || m->span == NULL) {
        return dpari_say(DPAR_E_UNKNOWN, why, "experts: comm->mem must have wait and span");
    }
    if (l == NULL || l->gather == NULL || l->combine == NULL || l->dot == NULL) {
        return dpari_say(DPAR_E_UNKNOWN, why,
                         "experts: comm->mem->layers must have gather, combine and dot");
    }
    st = dpar_comm_alloc(comm, plan->device_bytes, &plan->device);
    if (st != DPAR_OK) {
        return dpari_say(st, why, "experts: the device has no memory for %ld bytes",
                         plan->device_bytes);
    }
    (void)dpari_expert_place_plan(plan, comm, (unsigned char *)(void *)plan);
    return DPAR_OK;
}

/* Fills in a plan in its memory. each: size of a routing in bytes. */
static DPARI_COLD dpar_status dpari_expert_fill_plan(dpari_experts *plan, dpar_comm *comm,
                                                     const dpar_experts_desc *layer, int64_t each,
                                                     dpar_why *why)
{
    int32_t i;
    dpari_zero(plan, sizeof *plan);
    plan->head.layer = *layer;
    plan->head.routing_bytes = each;
    plan->comm = comm;
    plan->tag = (int32_t)(dpari_facts_hash("experts", dpari_expert_facts, &plan->head.layer) >> 40);
    (void)dpari_expert_place_plan(plan, comm, (unsigned char *)(void *)plan);
    for (i = 0; i < comm->size; i++) {
        plan->sent_number[i] = 1 + plan->slots * dpar_split_part_count(&layer->experts, i);
        plan->received_number[i] = 1 + (int64_t)plan->slots * plan->head.count;
    }
    return comm->mem != NULL ? dpari_expert_use_device(plan, why) : DPAR_OK;
}

/* Frees the memory on the device, once its stream has finished with it. */
static DPARI_COLD dpar_status dpari_expert_release(dpari_experts *plan)
{
    dpar_status st = DPAR_OK;
    if (plan->device != NULL) {
        st = dpari_do_wait(plan->comm); /* not sufficient with NCCL, where the release waits */
        dpar_comm_release(plan->comm, plan->device);
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_experts_make(dpar_comm *comm, const dpar_experts_desc *layer,
                                                  dpar_experts_plan **plan, dpar_why *why)
{
    void *memory = NULL;
    dpari_experts *p;
    int64_t need = 0, each = 0;
    int32_t own = 0;
    dpar_status st;
    if (comm == NULL) {
        return dpari_wrong(why, "dpar_experts_make: the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    st = plan == NULL ? dpari_wrong(why, "dpar_experts_make: the plan is NULL")
                      : dpari_expert_needs(comm, layer, &need, &each, why);
    if (st == DPAR_OK) { /* memory allocated here also holds one routing */
        own = layer->memory == NULL && layer->bytes == 0;
        need = dpari_room_up(need);
        st = dpari_object_memory(comm, layer->memory, layer->bytes, own ? need + each : need,
                                 "experts", &memory, why);
    }
    p = st == DPAR_OK ? (dpari_experts *)memory : NULL;
    if (p != NULL) {
        st = dpari_expert_fill_plan(p, comm, layer, each, why);
    }
    st = dpari_agree_on(comm, st, "experts", dpari_expert_facts, layer, why);
    if (st != DPAR_OK) {
        if (p != NULL) {
            (void)dpari_expert_release(p);
        }
        return dpari_object_failed(st, layer != NULL ? layer->memory : NULL, memory, need, why);
    }
    if (own && comm->mem == NULL) {
        p->routing_memory = (unsigned char *)memory + need;
    }
    *plan = &p->head;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_experts_free(dpar_experts_plan *plan)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    dpar_status st;
    if (p == NULL) {
        return DPAR_OK;
    }
    st = dpari_expert_release(p);
    return dpari_object_end(st, p->head.layer.memory == NULL ? p : NULL);
}

/* ---- which choices are kept ------------------------------------------------------------------ */

/* Returns the first token that chose an expert that does not exist, or one expert twice, or -1 if
 * there is none. */
static int64_t dpari_expert_invalid_token(const dpar_experts_desc *layer, int64_t tokens,
                                          const int32_t *chosen)
{
    const int32_t k = layer->choices;
    int64_t t;
    int32_t j, i;
    for (t = 0; t < tokens; t++) {
        for (j = 0; j < k; j++) {
            const int32_t e = chosen[t * k + j];
            if (e < -1 || e >= layer->experts.count) {
                return t;
            }
            for (i = 0; i < j && e >= 0; i++) {
                if (chosen[t * k + i] == e) {
                    return t;
                }
            }
        }
    }
    return -1;
}

/* Checks the arguments of dpar_experts_route. */
static dpar_status dpari_expert_given(const dpari_experts *plan, const void *memory, int64_t bytes,
                                      const dpar_experts_choices *choices, dpar_why *why)
{
    const dpar_experts_desc *layer = &plan->head.layer;
    const int64_t tokens = choices != NULL ? choices->tokens : 0;
    int64_t odd;
    if (memory == NULL || bytes < plan->head.routing_bytes || (uintptr_t)memory % 64 != 0) {
        return dpari_wrong(why,
                           "routing: memory has %ld bytes, but %ld bytes at a multiple of 64 are "
                           "needed; it begins "
                           "%ld bytes after such a multiple",
                           memory == NULL ? 0 : bytes, plan->head.routing_bytes,
                           (int64_t)((uintptr_t)memory % 64));
    }
    if (tokens < 0 || tokens > layer->max_tokens) {
        return dpari_wrong(why, "routing: tokens is %ld, but must be 0 to %ld (layer.max_tokens)",
                           tokens, layer->max_tokens);
    }
    if (choices == NULL ||
        (tokens > 0 && (choices->chosen == NULL || (layer->drop == DPAR_EXPERTS_DROP_WEIGHT_LOCAL &&
                                                    choices->weight == NULL)))) {
        return dpari_wrong(why, "routing: choices, chosen or weight is NULL for %ld tokens",
                           tokens);
    }
    odd = dpari_expert_invalid_token(layer, tokens, choices->chosen);
    if (odd < 0) {
        return DPAR_OK;
    }
    return dpari_wrong(why,
                       "routing: token %ld chose an expert twice, or an expert outside 0 .. %ld",
                       odd, layer->experts.count - 1);
}

/* Counts the kept choices in plan->tally. */
static void dpari_expert_count(dpari_experts *plan, const dpari_routing *routing,
                               const int32_t *chosen)
{
    const int64_t experts = plan->head.layer.experts.count, n = dpari_expert_choices(plan, routing);
    int64_t i;
    dpari_zero(plan->tally, (size_t)(plan->slots * experts) * sizeof *plan->tally);
    for (i = 0; i < n; i++) {
        if (routing->head.position[i] >= 0) {
            plan->tally[i % plan->head.layer.choices % plan->slots * experts + chosen[i]]++;
        }
    }
}

/* True if choice a is kept rather than choice b: it has the larger weight, or the same weight and
 * the lower index. */
static int dpari_expert_heavier(const void *weight, int32_t type, int32_t a, int32_t b)
{
    const double x = dpari_element_get(weight, type, a), y = dpari_element_get(weight, type, b);
    return dpari_higher(x, y) || (!dpari_higher(y, x) && a < b);
}

/* Moves a[at] down to its place in a heap of n choices, whose first element is the one to drop
 * next. */
static void dpari_expert_sink(int32_t *a, int64_t at, int64_t n, const void *weight, int32_t type)
{
    int64_t below = 2 * at + 1;
    while (below < n) {
        const int32_t moved = a[at];
        if (below + 1 < n && dpari_expert_heavier(weight, type, a[below], a[below + 1])) {
            below++;
        }
        if (!dpari_expert_heavier(weight, type, moved, a[below])) {
            return;
        }
        a[at] = a[below];
        a[below] = moved;
        at = below;
        below = 2 * at + 1;
    }
}

/* DPAR_EXPERTS_DROP_WEIGHT_LOCAL: sorts choices by expert, and removes the lightest ones of each
 * expert with a heap. */
static DPARI_COLD void dpari_expert_drop_light(dpari_experts *plan, const dpari_routing *routing,
                                               const int32_t *chosen, const void *weight,
                                               int64_t capacity)
{
    const int64_t n = dpari_expert_choices(plan, routing), experts = plan->head.layer.experts.count;
    const int32_t type = dpari_wide_type(plan->head.layer.type);
    int64_t i, e, at = 0, left;
    for (e = 0; e < experts; e++) {
        plan->fill[e] = at;
        at += plan->tally[e];
    }
    for (i = 0; i < n; i++) {
        if (routing->head.position[i] >= 0) {
            plan->order[plan->fill[chosen[i]]++] = (int32_t)i;
        }
    }
    for (e = 0; e < experts; e++) {
        int32_t *a = plan->order + (plan->fill[e] - plan->tally[e]);
        left = plan->tally[e];
        for (i = left > capacity ? left / 2 : 0; i > 0; i--) {
            dpari_expert_sink(a, i - 1, left, weight, type);
        }
        for (; left > capacity; left--) {
            routing->head.position[a[0]] = -1;
            a[0] = a[left - 1];
            dpari_expert_sink(a, 0, left - 1, weight, type);
        }
    }
}

/* Visits the first choices of all tokens, then the second ones, and so on. Drops those for which
 * room[slot][expert] has no row left, and decrements it for the others. */
static void dpari_expert_drop_last(const dpari_experts *plan, const dpari_routing *routing,
                                   const int32_t *chosen, int32_t *room)
{
    const int64_t experts = plan->head.layer.experts.count;
    const int32_t k = plan->head.layer.choices;
    int64_t t;
    int32_t j;
    for (j = 0; j < k; j++) {
        for (t = 0; t < routing->head.tokens; t++) {
            if (routing->head.position[t * k + j] >= 0) {
                int32_t *left = &room[j % plan->slots * experts + chosen[t * k + j]];
                if (*left > 0) {
                    --*left;
                } else {
                    routing->head.position[t * k + j] = -1;
                }
            }
        }
    }
}

/* Drops choices by the rules that depend only on the tokens of this rank. */
static void dpari_expert_drop_own(dpari_experts *plan, const dpari_routing *routing,
                                  const int32_t *chosen, const void *weight)
{
    const int64_t capacity = dpari_expert_capacity(&plan->head.layer, routing->head.tokens);
    int64_t e;
    if (plan->head.layer.drop == DPAR_EXPERTS_DROP_WEIGHT_LOCAL) {
        dpari_expert_count(plan, routing, chosen);
        dpari_expert_drop_light(plan, routing, chosen, weight, capacity);
    } else if (plan->head.layer.drop == DPAR_EXPERTS_DROP_POSITION_LOCAL) {
        for (e = 0; e < plan->head.layer.experts.count; e++) {
            plan->tally[e] = (int32_t)dpari_least(capacity, INT32_MAX);
        }
        dpari_expert_drop_last(plan, routing, chosen, plan->tally);
    }
}

/* ---- the exchange of counts ------------------------------------------------------------------ */

/* Copies plan->tally into the lists of counts that are sent to each rank. With `back`, copies the
 * answers in these lists into plan->tally. */
static void dpari_expert_sort(dpari_experts *plan, int64_t tokens, int back)
{
    const int64_t experts = plan->head.layer.experts.count;
    int32_t *at = plan->sent_counts, rank, j;
    int64_t first = 0, e;
    for (rank = 0; rank < plan->comm->size; rank++) {
        const int64_t own = dpar_split_part_count(&plan->head.layer.experts, rank);
        *at++ = (int32_t)tokens;
        for (j = 0; j < plan->slots; j++) {
            int32_t *mine = plan->tally + j * experts + first;
            for (e = 0; e < own; e++) {
                if (back) {
                    mine[e] = *at++;
                } else {
                    *at++ = mine[e];
                }
            }
        }
        first += own;
    }
}

DPARI_INTERNAL int64_t dpari_expert_away(const dpar_comm *comm, const int64_t *counts)
{
    int64_t n = 0;
    int32_t rank;
    for (rank = 0; rank < comm->size; rank++) {
        n += rank != comm->rank ? counts[rank] : 0;
    }
    return n;
}

DPARI_INTERNAL dpar_status dpari_expert_send(dpari_experts *plan, const void *in,
                                             const int64_t *in_count, void *out,
                                             const int64_t *out_count, int32_t type)
{
    const dpar_status st =
        dpar_all_to_all_v(plan->comm, in, in_count, NULL, out, out_count, NULL, type, NULL);
    if (st == DPAR_OK) {
        plan->head.sent_bytes += dpari_expert_away(plan->comm, in_count) * dpar_type_bytes(type);
    }
    return st;
}

/* For DPAR_EXPERTS_DROP_POSITION: replaces the counts that this rank received by its answers, the
 * numbers of rows that its experts accept. They accept first choices of all ranks in the order of
 * the ranks, then second choices, and so on, until their capacity is used up. */
static void dpari_expert_grant(dpari_experts *plan)
{
    const int64_t step = 1 + (int64_t)plan->slots * plan->head.count;
    int64_t tokens = 0, capacity, left;
    int32_t rank, e, j;
    for (rank = 0; rank < plan->comm->size; rank++) {
        tokens += plan->received_counts[rank * step];
    }
    capacity = dpari_expert_capacity(&plan->head.layer, tokens);
    for (e = 0; e < plan->head.count; e++) {
        left = capacity;
        for (j = 0; j < plan->slots; j++) {
            for (rank = 0; rank < plan->comm->size; rank++) {
                int32_t *wanted =
                    &plan->received_counts[rank * step + 1 + (int64_t)j * plan->head.count + e];
                *wanted = (int32_t)dpari_least(*wanted, left);
                left -= *wanted;
            }
        }
    }
}

/* Exchanges counts and waits until they have arrived. The wait is needed because a device may
 * access page-locked memory asynchronously. */
static dpar_status dpari_expert_send_counts(dpari_experts *plan, const int32_t *in,
                                            const int64_t *in_count, int32_t *out,
                                            const int64_t *out_count)
{
    const dpar_status st = dpari_expert_send(plan, in, in_count, out, out_count, DPAR_I32);
    return st == DPAR_OK ? dpari_do_wait(plan->comm) : st;
}

/* Exchanges the counts. With DPAR_EXPERTS_DROP_POSITION also exchanges the answers, and drops the
 * choices that the experts do not accept. */
static dpar_status dpari_expert_exchange(dpari_experts *plan, const dpari_routing *routing,
                                         const int32_t *chosen)
{
    dpar_status st;
    dpari_expert_count(plan, routing, chosen);
    dpari_expert_sort(plan, routing->head.tokens, 0);
    st = dpari_expert_send_counts(plan, plan->sent_counts, plan->sent_number, plan->received_counts,
                                  plan->received_number);
    if (st != DPAR_OK || plan->head.layer.drop != DPAR_EXPERTS_DROP_POSITION) {
        return st;
    }
    dpari_expert_grant(plan);
    st = dpari_expert_send_counts(plan, plan->received_counts, plan->received_number,
                                  plan->sent_counts, plan->sent_number);
    if (st == DPAR_OK) {
        dpari_expert_sort(plan, routing->head.tokens, 1);
        dpari_expert_drop_last(plan, routing, chosen, plan->tally);
    }
    return st;
}

/* Number of different tags of routings. A tag in a message is 8 times this tag plus 0 to 3 for the
 * exchange, at most 8 (2^24 - 1) + 3, which is below 2^31. */
enum { DPARI_EXPERT_ROUTES = 1 << 24 };

/* Computes from the received counts how many rows this rank receives from each rank and where they
 * are stored: grouped by expert, and within an expert in the order of the ranks. */
static void dpari_expert_expect(const dpari_experts *plan, dpari_routing *routing)
{
    const int64_t step = 1 + (int64_t)plan->slots * plan->head.count;
    int32_t rank, e, j;
    routing->head.rows = 0;
    dpari_zero(routing->take, (size_t)plan->comm->size * sizeof *routing->take);
    for (e = 0; e < plan->head.count; e++) {
        routing->head.first[e] = routing->head.rows;
        for (rank = 0; rank < plan->comm->size; rank++) {
            const int64_t at = rank * (int64_t)plan->head.count + e;
            int64_t rows = 0;
            for (j = 0; j < plan->slots; j++) {
                rows += plan->received_counts[rank * step + 1 + (int64_t)j * plan->head.count + e];
            }
            routing->piece[at] = rows;
            routing->row[at] = routing->head.rows;
            routing->take[rank] += rows;
            routing->head.rows += rows;
        }
        routing->head.count[e] = routing->head.rows - routing->head.first[e];
    }
}

/* Sorts the kept choices by expert and then by token, which is the order in which their rows are
 * sent. */
static void dpari_expert_place(dpari_experts *plan, dpari_routing *routing, const int32_t *chosen)
{
    const int64_t n = dpari_expert_choices(plan, routing);
    int64_t i, e = 0, at = 0;
    int32_t rank, j;
    dpari_expert_count(plan, routing, chosen);
    for (rank = 0; rank < plan->comm->size; rank++) {
        const int64_t end = e + dpar_split_part_count(&plan->head.layer.experts, rank), before = at;
        for (; e < end; e++) {
            plan->fill[e] = routing->start[e] = at;
            for (j = 0; j < plan->slots; j++) {
                at += plan->tally[j * plan->head.layer.experts.count + e];
            }
        }
        routing->send[rank] = at - before;
    }
    routing->head.kept = at;
    routing->head.dropped = -at;
    for (i = 0; i < n; i++) {
        routing->head.dropped += chosen[i] >= 0;
        if (routing->head.position[i] >= 0) {
            routing->expert[i] = chosen[i];
            routing->head.position[i] = (int32_t)plan->fill[chosen[i]]++;
            routing->choice[routing->head.position[i]] = (int32_t)i;
        }
    }
    for (i = 0; routing->token != NULL && i < routing->head.kept; i++) {
        routing->token[i] = routing->choice[i] / plan->head.layer.choices;
    }
}

DPAR_API DPARI_COLD dpar_status dpar_experts_route(dpar_experts_plan *plan, void *memory,
                                                   int64_t bytes,
                                                   const dpar_experts_choices *choices,
                                                   dpar_experts_routing **routing, dpar_why *why)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    dpari_routing *r;
    const int32_t *chosen;
    dpar_why said;
    int64_t i;
    dpar_status st;
    if (plan == NULL || routing == NULL) {
        return dpari_wrong(why, "dpar_experts_route: plan or routing is NULL");
    }
    if (memory == NULL && p->routing_memory != NULL) {
        memory = p->routing_memory;
        bytes = p->head.routing_bytes;
    }
    r = (dpari_routing *)memory;
    if (dpari_expert_given(p, memory, bytes, choices, &said) != DPAR_OK) {
        st = dpari_comm_wrong_all(p->comm, DPAR_E_ARG, "rank %d: %s", p->comm->rank, said.text);
    } else {
        st = dpari_do_wait(p->comm); /* the device may still read the old contents */
    }
    if (st != DPAR_OK) {
        return dpari_repeat(st, why, p->comm->why.text);
    }
    chosen = choices->chosen;
    dpari_zero(r, sizeof *r);
    r->head.tokens = choices->tokens;
    (void)dpari_expert_place_routing(p, p->comm, r, (unsigned char *)memory);
    for (i = 0; i < dpari_expert_choices(p, r); i++) {
        r->head.position[i] = chosen[i] >= 0 ? 0 : -1;
    }
    dpari_expert_drop_own(p, r, chosen, choices->weight);
    st = dpari_expert_exchange(p, r, chosen);
    if (st != DPAR_OK) {
        return dpari_repeat(st, why, p->comm->why.text);
    }
    p->routes = (p->routes + 1) % DPARI_EXPERT_ROUTES;
    r->tag = (p->tag + p->routes) % DPARI_EXPERT_ROUTES * 8;
    dpari_expert_expect(p, r);
    if (p->head.layer.drop == DPAR_EXPERTS_DROP_NONE) {
        if (r->head.rows > p->head.max_rows) {
            dpari_needs_bytes(why, 0);
            st = dpari_say(
                DPAR_E_ROOM, why,
                "experts %d .. %d receive %ld rows, but their limit is %ld (layer.max_rows)",
                p->head.first, p->head.first + p->head.count - 1, r->head.rows, p->head.max_rows);
        }
        st = dpari_agree(p->comm, st, why);
    }
    if (st == DPAR_OK) {
        dpari_expert_place(p, r, chosen);
        p->head.kept += r->head.kept;
        p->head.dropped += r->head.dropped;
        p->head.received += r->head.rows;
        *routing = &r->head;
    }
    return st;
}

/* ==== train/expert_rows.c ==== */

/* Exchanges the rows of experts: dispatch, combine and their backward (expert.h).
 *
 * An expert's rows are in the order of ranks and tokens, and results are summed in the order of
 * choices. There are three implementations with the same bits: direct reads from the arrays of the
 * other ranks (peer_arrays.h), packing around an all-to-all-v, and gathers and sums on a device. */

/* ---- rows ------------------------------------------------------------------------------------ */

/* Returns the address of a row. */
static void *dpari_expert_at(void *rows, const dpar_experts_desc *layer, int64_t row)
{
    return (unsigned char *)rows + row * layer->width * dpar_type_bytes(layer->type);
}

static const void *dpari_expert_in(const void *rows, const dpar_experts_desc *layer, int64_t row)
{
    return (const unsigned char *)rows + row * layer->width * dpar_type_bytes(layer->type);
}

/* Returns the size of a row in bytes. */
static int64_t dpari_expert_row(const dpar_experts_desc *layer)
{
    return layer->width * dpar_type_bytes(layer->type);
}

/* Computes to = by x from for one row. 16-bit floats are scaled as f32. */
static void dpari_expert_scale(void *to, const void *from, const dpar_experts_desc *layer,
                               double by)
{
    float x[DPARI_ELEMENTS];
    int64_t at, n, i;
    for (at = 0; at < layer->width; at += n) {
        unsigned char *t = (unsigned char *)to + at * dpar_type_bytes(layer->type);
        const unsigned char *f = (const unsigned char *)from + at * dpar_type_bytes(layer->type);
        n = dpari_least(layer->width - at, DPARI_ELEMENTS);
        if (layer->type == DPAR_F64) {
            for (i = 0; i < n; i++) {
                ((double *)to)[at + i] = ((const double *)from)[at + i] * by;
            }
        } else if (layer->type == DPAR_F32) {
            dpari_kern_scale(t, f, by, n);
        } else {
            dpari_kern_convert(x, DPAR_F32, f, layer->type, n);
            dpari_kern_scale(x, x, by, n);
            dpari_kern_convert(t, layer->type, x, DPAR_F32, n);
        }
    }
}

/* The `count` rows that are added for one token, and their weights. */
typedef struct dpari_expert_terms {
    const void **row;
    double *by;
    int32_t count;
} dpari_expert_terms;

/* Computes out = sum of by[j] x row[j], in f64 in the order of j, rounded once. Prefetches the rows
 * of the next token. */
static void dpari_expert_add(const dpar_experts_desc *layer, const dpari_expert_terms *z,
                             const dpari_expert_terms *next, void *out, int32_t stream)
{
    double sum[DPARI_ELEMENTS], x[DPARI_ELEMENTS] = {0.0};
    int64_t at, n, i;
    int32_t j;
    if (layer->type == DPAR_F32 || layer->type == DPAR_F64) {
        dpari_kern_mix(out, z->row, z->by, z->count, next->row, next->count, layer->width,
                       layer->type, stream);
        return;
    }
    for (at = 0; at < layer->width; at += n) {
        n = dpari_least(layer->width - at, DPARI_ELEMENTS);
        dpari_zero(sum, sizeof sum);
        for (j = 0; j < z->count; j++) {
            dpari_elements_load(x, z->row[j], at, n, layer->type);
            for (i = 0; i < DPARI_ELEMENTS; i++) {
                sum[i] += z->by[j] * x[i];
            }
        }
        dpari_elements_store(out, sum, at, n, layer->type);
    }
}

/* Sets z to the rows of the kept choices of a token, which plan->from and plan->fill locate, and to
 * their weights, which are 1 if weight is NULL. Even and odd tokens use different halves of the
 * memory for z, because dpari_expert_sums also needs the next token. */
static void dpari_expert_find(const dpari_experts *plan, const dpari_routing *routing,
                              int64_t token, const void *weight, dpari_expert_terms *z)
{
    const int32_t k = plan->head.layer.choices;
    int64_t i;
    z->row = plan->from + plan->head.layer.experts.count + token % 2 * k;
    z->by = plan->by + token % 2 * k;
    z->count = 0;
    for (i = token * k; i < (token + 1) * k && token < routing->head.tokens; i++) {
        if (routing->head.position[i] >= 0) {
            const int32_t e = routing->expert[i];
            z->row[z->count] = dpari_expert_in(plan->from[e], &plan->head.layer,
                                               routing->head.position[i] + plan->fill[e]);
            z->by[z->count++] =
                weight != NULL
                    ? dpari_element_get(weight, dpari_wide_type(plan->head.layer.type), i)
                    : 1.0;
        }
    }
}

/* Copies the rows of z into `kept`, where backward reads them, and makes z point to the copies. */
static void dpari_expert_keep(const dpari_experts *plan, const dpari_routing *routing,
                              int64_t token, void *kept, dpari_expert_terms *z)
{
    const int32_t k = plan->head.layer.choices;
    int32_t j, n = 0;
    for (j = 0; j < k; j++) {
        const int64_t place = routing->head.position[token * k + j];
        if (place >= 0) {
            void *to = dpari_expert_at(kept, &plan->head.layer, place);
            dpari_kern_row(to, z->row[n], z->row[n], dpari_expert_row(&plan->head.layer), 0);
            z->row[n++] = to;
        }
    }
}

/* Computes out[token], the weighted sum of the token's rows, for all tokens. kept: where the rows
 * are saved; NULL if they are not wanted or already saved. */
static void dpari_expert_sums(const dpari_experts *plan, const dpari_routing *routing,
                              const void *weight, void *kept, void *out, int32_t stream)
{
    dpari_expert_terms z, next;
    int64_t t;
    dpari_expert_find(plan, routing, 0, weight, &next);
    for (t = 0; t < routing->head.tokens; t++) {
        z = next;
        dpari_expert_find(plan, routing, t + 1, weight, &next);
        if (kept != NULL) {
            dpari_expert_keep(plan, routing, t, kept, &z);
        }
        dpari_expert_add(&plan->head.layer, &z, &next, dpari_expert_at(out, &plan->head.layer, t),
                         stream);
    }
    dpari_kern_rows_end(stream);
}

/* Describes a copy of bytes for the device in s. Returns 1, or 0 if there are no bytes, so that the
 * caller can use s for the next copy. */
static int32_t dpari_expert_span(dpar_mem_span *s, void *to, const void *from, int64_t bytes)
{
    dpari_zero(s, sizeof *s);
    s->to = to;
    s->from = from;
    s->count = bytes;
    s->to_type = s->from_type = DPAR_U8;
    s->scale = 1.0;
    return bytes > 0;
}

/* Copies rows from the order of ranks, then experts, to the order of experts, then ranks. With
 * `back`, copies them in the opposite direction. */
static dpar_status dpari_expert_group(const dpari_experts *plan, const dpari_routing *routing,
                                      void *to, const void *from, int back)
{
    const dpar_experts_desc *layer = &plan->head.layer;
    int64_t at = 0;
    int32_t rank, e, n = 0;
    for (rank = 0; rank < plan->comm->size; rank++) {
        for (e = 0; e < plan->head.count; e++) {
            const int64_t piece = rank * (int64_t)plan->head.count + e, row = routing->row[piece];
            void *t = dpari_expert_at(to, layer, back ? at : row);
            const void *f = dpari_expert_in(from, layer, back ? row : at);
            const int64_t bytes = routing->piece[piece] * dpari_expert_row(layer);
            if (plan->comm->mem == NULL) {
                dpari_kern_copy(t, f, bytes, 0);
            } else {
                n += dpari_expert_span(&plan->span[n], t, f, bytes);
            }
            at += routing->piece[piece];
        }
    }
    return n > 0 ? dpari_do_span(plan->comm, plan->span, n) : DPAR_OK;
}

/* Computes the numbers of elements that are sent to and received from each rank. */
static void dpari_expert_sizes(dpari_experts *plan, const dpari_routing *routing)
{
    int32_t rank;
    for (rank = 0; rank < plan->comm->size; rank++) {
        plan->send[rank] = routing->send[rank] * plan->head.layer.width;
        plan->receive[rank] = routing->take[rank] * plan->head.layer.width;
    }
}

/* ---- direct reads of other ranks' arrays ----------------------------------------------------- */

/* The four exchanges, which have different tags. */
enum {
    DPARI_EXPERT_DISPATCH,
    DPARI_EXPERT_COMBINE,
    DPARI_EXPERT_COMBINE_BACK,
    DPARI_EXPERT_DISPATCH_BACK
};
/* The arrays that ranks read from each other. */
enum { DPARI_EXPERT_ROUTING, DPARI_EXPERT_ROWS, DPARI_EXPERT_WEIGHTS };

/* Publishes the arrays of this rank, and finds out whether all ranks can read each other's arrays
 * directly (peers->direct). rows: `count` rows that other ranks read. weight: read by other ranks
 * only in combine_backward. */
static DPARI_COLD dpar_status dpari_expert_open(dpari_experts *plan, const dpari_routing *routing,
                                                int32_t what, const void *rows, int64_t count,
                                                const void *weight, dpari_peers *peers)
{
    dpari_peers_array a[3];
    a[DPARI_EXPERT_ROUTING].at = routing;
    a[DPARI_EXPERT_ROUTING].bytes = plan->head.routing_bytes;
    a[DPARI_EXPERT_ROWS].at = rows;
    a[DPARI_EXPERT_ROWS].bytes = count * dpari_expert_row(&plan->head.layer);
    a[DPARI_EXPERT_WEIGHTS].at = weight;
    a[DPARI_EXPERT_WEIGHTS].bytes = 0;
    if (what == DPARI_EXPERT_COMBINE_BACK) {
        a[DPARI_EXPERT_WEIGHTS].bytes = dpari_expert_choices(plan, routing) *
                                        dpar_type_bytes(dpari_wide_type(plan->head.layer.type));
    }
    return dpari_peers_open(peers, plan->comm, routing->tag + what, a, 3, plan->peer);
}

/* Returns the array of another rank's routing that corresponds to the array `mine` of this rank's
 * routing. Only for the arrays that have the same offsets on all ranks. */
static const void *dpari_expert_theirs(const dpari_peers *peers, int32_t rank,
                                       const dpari_routing *routing, const void *mine)
{
    return (const unsigned char *)dpari_peers_at(peers, rank, DPARI_EXPERT_ROUTING) +
           ((const unsigned char *)mine - (const unsigned char *)(const void *)routing);
}

/* Checks that each rank has as many rows for this rank as this rank expects. The numbers may differ
 * if the ranks use routings of different calls. back: 1 if rows are sent from experts to tokens. */
static dpar_status dpari_expert_fits(const dpari_experts *plan, const dpari_routing *routing,
                                     const dpari_peers *peers, int back)
{
    dpar_comm *comm = plan->comm;
    const int64_t *take = back ? routing->send : routing->take;
    const int64_t *give = back ? routing->take : routing->send;
    int32_t rank;
    for (rank = 0; rank < comm->size; rank++) {
        const int64_t *theirs = (const int64_t *)dpari_expert_theirs(peers, rank, routing, give);
        if (theirs[comm->rank] != take[rank]) {
            return dpari_comm_wrong_all(
                comm, DPAR_E_MISMATCH,
                "experts: rank %d sends %ld rows to rank %d, which expects %ld; their routings "
                "must be from the same call of dpar_experts_route",
                rank, theirs[comm->rank], comm->rank, take[rank]);
        }
    }
    return DPAR_OK;
}

/* Ends the direct reads: waits until all ranks have read, and counts the bytes that other ranks
 * read from this rank. rows: [ranks] rows of this rank that each rank read. */
static dpar_status dpari_expert_close(dpari_experts *plan, const dpari_peers *peers,
                                      const int64_t *rows)
{
    const int64_t sent = dpari_expert_away(plan->comm, rows) * dpari_expert_row(&plan->head.layer);
    const dpar_status st = dpari_peers_close(peers, sent);
    plan->head.sent_bytes += st == DPAR_OK ? sent : 0;
    return st;
}

/* Returns a number of another rank's routing, or 0 if it is not 0 .. n - 1. If the other ranks
 * timed out while this rank was late (comm.h), they may have overwritten the routing. The results
 * are then lost in any case, but this rank must not read outside of the arrays before it notices
 * the error. */
static int64_t dpari_expert_limit(int64_t i, int64_t n)
{
    return i >= 0 && i < n ? i : 0;
}

/* Copies the rows of the tokens of n choices, multiplied by their weights unless weight is NULL.
 * Prefetches the next row. */
static void dpari_expert_copy(const dpar_experts_desc *layer, void *to, const void *from,
                              const int32_t *choice, int64_t n, const void *weight, int32_t stream)
{
    const int64_t most = layer->max_tokens * layer->choices;
    int64_t i, mine = n > 0 ? dpari_expert_limit(choice[0], most) : 0, then;
    for (i = 0; i < n; i++) {
        const void *row = dpari_expert_in(from, layer, mine / layer->choices), *next;
        void *at = dpari_expert_at(to, layer, i);
        then = i + 1 < n ? dpari_expert_limit(choice[i + 1], most) : mine;
        next = dpari_expert_in(from, layer, then / layer->choices);
        if (weight != NULL) {
            dpari_kern_ask(next, dpari_expert_row(layer));
            dpari_expert_scale(at, row, layer,
                               dpari_element_get(weight, dpari_wide_type(layer->type), mine));
        } else {
            dpari_kern_row(at, row, next, dpari_expert_row(layer), stream);
        }
        mine = then;
    }
}

/* Reads the rows for this rank's experts from the ranks that have the tokens. */
static void dpari_expert_take(dpari_experts *plan, const dpari_routing *routing,
                              const dpari_peers *peers, void *rows)
{
    const int32_t stream =
        dpari_peers_stream(peers, routing->head.rows * dpari_expert_row(&plan->head.layer));
    const int64_t most = plan->head.layer.max_tokens * plan->head.layer.choices + 1;
    int64_t *at = plan->receive; /* [ranks] the next kept choice of each rank to be read */
    int32_t rank, e;
    for (rank = 0; rank < plan->comm->size; rank++) {
        const int64_t *send =
            (const int64_t *)dpari_expert_theirs(peers, rank, routing, routing->send);
        at[rank] = 0;
        for (e = 0; e < plan->comm->rank; e++) {
            at[rank] = dpari_expert_limit(at[rank] + dpari_expert_limit(send[e], most), most);
        }
    }
    for (e = 0; e < plan->head.count; e++) {
        for (rank = 0; rank < plan->comm->size; rank++) {
            const int64_t piece = rank * (int64_t)plan->head.count + e;
            dpari_expert_copy(
                &plan->head.layer, dpari_expert_at(rows, &plan->head.layer, routing->row[piece]),
                dpari_peers_at(peers, rank, DPARI_EXPERT_ROWS),
                (const int32_t *)dpari_expert_theirs(peers, rank, routing, routing->choice) +
                    at[rank],
                routing->piece[piece], dpari_peers_at(peers, rank, DPARI_EXPERT_WEIGHTS), stream);
            at[rank] += routing->piece[piece];
        }
    }
    dpari_kern_rows_end(stream);
}

/* Locates the results in the arrays of the experts' ranks. The result of kept choice i of this
 * rank, which is for expert e, is row i + plan->fill[e] of the array plan->from[e]. */
static void dpari_expert_locate(dpari_experts *plan, const dpari_routing *routing,
                                const dpari_peers *peers)
{
    const int64_t most =
        plan->comm->size * plan->head.layer.max_tokens * plan->head.layer.choices + 1;
    int32_t rank, e = 0, i;
    for (rank = 0; rank < plan->comm->size; rank++) {
        const int32_t own = (int32_t)dpar_split_part_count(&plan->head.layer.experts, rank);
        const int64_t *row =
            (const int64_t *)dpari_expert_theirs(peers, rank, routing, routing->row);
        for (i = 0; i < own; i++) {
            plan->from[e] = dpari_peers_at(peers, rank, DPARI_EXPERT_ROWS);
            plan->fill[e] = dpari_expert_limit(row[plan->comm->rank * (int64_t)own + i], most) -
                            routing->start[e];
            e++;
        }
    }
}

/* ---- in a device's memory -------------------------------------------------------------------- */

/* Copies three arrays of the routing to the device, unless the last operation used the same
 * routing. */
static dpar_status dpari_expert_index(dpari_experts *plan, const dpari_routing *routing)
{
    int32_t n = 0;
    dpar_status st = DPAR_OK;
    if (plan->indexed == routing && plan->indexed_tag == routing->tag) {
        return DPAR_OK;
    }
    n += dpari_expert_span(&plan->span[n], plan->place, routing->head.position,
                           4 * dpari_expert_choices(plan, routing));
    n += dpari_expert_span(&plan->span[n], plan->token, routing->token, 4 * routing->head.kept);
    n += dpari_expert_span(&plan->span[n], plan->choice, routing->choice, 4 * routing->head.kept);
    st = n > 0 ? dpari_do_span(plan->comm, plan->span, n) : DPAR_OK;
    plan->indexed = routing;
    plan->indexed_tag = routing->tag;
    return st;
}

/* Copies to[i] = from[index[i]], elements of `bytes` bytes. */
static dpar_status dpari_expert_gather(dpari_experts *plan, void *to, const void *from,
                                       const int32_t *index, int64_t rows, int64_t bytes)
{
    dpar_mem_gather g;
    dpari_zero(&g, sizeof g);
    g.to = to;
    g.from = from;
    g.rows = rows;
    g.bytes = g.to_step = g.from_step = bytes;
    g.index.at = index;
    g.index.type = DPAR_I32;
    return rows > 0 ? dpari_do_gather(plan->comm, &g) : DPAR_OK;
}

/* Computes to[i] = the sum of the rows from[index[i][k]], each times its weight. */
static dpar_status dpari_expert_combine(dpari_experts *plan, void *to, const void *from,
                                        const void *weight, const int32_t *index, int64_t rows,
                                        int64_t k)
{
    dpar_mem_combine m;
    dpari_zero(&m, sizeof m);
    m.to = to;
    m.from = from;
    m.weight = weight;
    m.rows = rows;
    m.choices = k;
    m.width = plan->head.layer.width;
    m.to_type = m.from_type = plan->head.layer.type;
    m.weight_type = dpari_wide_type(plan->head.layer.type);
    m.index.at = index;
    m.index.type = DPAR_I32;
    return rows > 0 ? dpari_do_combine(plan->comm, &m) : DPAR_OK;
}

/* Does what dpari_expert_pack does, on a device. */
static dpar_status dpari_expert_pack_on_device(dpari_experts *plan, const dpari_routing *routing,
                                               const void *from, const void *weight)
{
    dpar_status st = dpari_expert_index(plan, routing);
    if (st == DPAR_OK && weight == NULL) {
        return dpari_expert_gather(plan, plan->packed, from, plan->token, routing->head.kept,
                                   dpari_expert_row(&plan->head.layer));
    }
    if (st == DPAR_OK) {
        st = dpari_expert_gather(plan, plan->weight, weight, plan->choice, routing->head.kept,
                                 dpar_type_bytes(dpari_wide_type(plan->head.layer.type)));
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_combine(plan, plan->packed, from, plan->weight, plan->token,
                                routing->head.kept, 1);
}

/* Computes dweight[tokens][k] = dy . result, or 0 for choices that were dropped. */
static dpar_status dpari_expert_dots(dpari_experts *plan, const dpari_routing *routing,
                                     const void *dy, const void *kept, void *dweight)
{
    const int32_t type = dpari_wide_type(plan->head.layer.type), there = plan->comm->mem != NULL;
    const dpar_status st = there ? dpari_expert_index(plan, routing) : DPAR_OK;
    dpar_mem_dot d;
    if (st != DPAR_OK) {
        return st;
    }
    if (routing->head.kept == 0) {
        return dpari_do_copy(plan->comm, dweight, NULL,
                             dpari_expert_choices(plan, routing) * dpar_type_bytes(type));
    }
    dpari_zero(&d, sizeof d);
    d.to = dweight;
    d.a = dy;
    d.b = kept;
    d.rows = dpari_expert_choices(plan, routing);
    d.choices = plan->head.layer.choices;
    d.width = plan->head.layer.width;
    d.to_type = type;
    d.type = plan->head.layer.type;
    d.index.at = there ? plan->place : routing->head.position;
    d.index.type = DPAR_I32;
    return dpari_do_dot(plan->comm, &d);
}

/* ---- dispatch and combine -------------------------------------------------------------------- */

/* Packs the rows of the kept choices in the order in which they are sent, multiplied by their
 * weights unless weight is NULL. */
static dpar_status dpari_expert_pack(dpari_experts *plan, const dpari_routing *routing,
                                     const void *from, const void *weight)
{
    int64_t i;
    if (plan->comm->mem != NULL) {
        return dpari_expert_pack_on_device(plan, routing, from, weight);
    }
    for (i = 0; i < routing->head.kept; i++) {
        dpari_expert_copy(&plan->head.layer, dpari_expert_at(plan->packed, &plan->head.layer, i),
                          from, routing->choice + i, 1, weight, 0);
    }
    return DPAR_OK;
}

/* Computes the weighted sum of the received rows of each token. */
static dpar_status dpari_expert_unite(dpari_experts *plan, const dpari_routing *routing,
                                      const void *came, const void *weight, void *out)
{
    int64_t e;
    if (plan->comm->mem != NULL) {
        const dpar_status st = dpari_expert_index(plan, routing);
        if (st != DPAR_OK) {
            return st;
        }
        return dpari_expert_combine(plan, out, came, weight, plan->place, routing->head.tokens,
                                    plan->head.layer.choices);
    }
    for (e = 0; e < plan->head.layer.experts.count; e++) {
        plan->from[e] = came;
        plan->fill[e] = 0;
    }
    dpari_expert_sums(plan, routing, weight, NULL, out, 0);
    return DPAR_OK;
}

/* Sends the rows of tokens to their experts, multiplied by their weights unless weight is NULL. */
static dpar_status dpari_expert_out(dpari_experts *plan, const dpari_routing *routing, int32_t what,
                                    const void *from, const void *weight, void *rows)
{
    void *to = plan->staged != NULL ? plan->staged : rows;
    dpari_peers peers;
    dpar_status st =
        dpari_expert_open(plan, routing, what, from, routing->head.tokens, weight, &peers);
    if (st == DPAR_OK && peers.direct) {
        st = dpari_expert_fits(plan, routing, &peers, 0);
        if (st == DPAR_OK) {
            dpari_expert_take(plan, routing, &peers, rows);
            st = dpari_expert_close(plan, &peers, routing->send);
        }
        return st;
    }
    if (st == DPAR_OK) {
        st = dpari_expert_pack(plan, routing, from, weight);
    }
    dpari_expert_sizes(plan, routing);
    if (st == DPAR_OK) {
        st = dpari_expert_send(plan, plan->packed, plan->send, to, plan->receive,
                               plan->head.layer.type);
    }
    if (st == DPAR_OK && to != rows) {
        st = dpari_expert_group(plan, routing, rows, to, 0);
    }
    return st;
}

/* Sends the rows of experts back to their tokens and adds them. kept: where dpar_experts_combine
 * saves the received rows; NULL if they are not wanted. */
static dpar_status dpari_expert_back(dpari_experts *plan, const dpari_routing *routing,
                                     int32_t what, const void *rows, const void *weight, void *kept,
                                     void *out)
{
    void *came = kept != NULL ? kept : plan->packed;
    dpari_peers peers;
    dpar_status st = dpari_expert_open(plan, routing, what, rows, routing->head.rows, NULL, &peers);
    if (st == DPAR_OK && peers.direct) {
        st = dpari_expert_fits(plan, routing, &peers, 1);
        if (st == DPAR_OK) {
            dpari_expert_locate(plan, routing, &peers);
            dpari_expert_sums(plan, routing, weight, kept, out,
                              dpari_peers_stream(&peers, routing->head.tokens *
                                                             dpari_expert_row(&plan->head.layer)));
            st = dpari_expert_close(plan, &peers, routing->take);
        }
        return st;
    }
    if (st == DPAR_OK && plan->staged != NULL) {
        st = dpari_expert_group(plan, routing, plan->staged, rows, 1);
        rows = plan->staged;
    }
    dpari_expert_sizes(plan, routing);
    if (st == DPAR_OK) {
        st = dpari_expert_send(plan, rows, plan->receive, came, plan->send, plan->head.layer.type);
    }
    if (st == DPAR_OK) {
        st = dpari_expert_unite(plan, routing, came, weight, out);
    }
    return st;
}

/* Checks that no array that has elements is NULL. tokens, rows: 1 if the arrays with one row per
 * token, or with one row per row of an expert, are not NULL. */
static dpar_status dpari_expert_arrays(const dpari_experts *plan, const dpari_routing *routing,
                                       const dpar_experts_arrays *arrays, int tokens, int rows)
{
    const int64_t token_count = routing != NULL ? routing->head.tokens : 0;
    const int64_t row_count = routing != NULL ? routing->head.rows : 0;
    if (plan == NULL) {
        return DPAR_E_ARG;
    }
    if (routing != NULL && arrays != NULL && (tokens || token_count == 0) &&
        (rows || row_count == 0)) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(
        plan->comm, DPAR_E_ARG,
        "rank %d: experts: an array that this call needs for %ld tokens or %ld rows is NULL",
        plan->comm->rank, token_count, row_count);
}

DPAR_API dpar_status dpar_experts_dispatch(dpar_experts_plan *plan,
                                           const dpar_experts_routing *routing,
                                           const dpar_experts_arrays *arrays)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    const dpari_routing *r = (const dpari_routing *)(const void *)routing;
    dpar_status st;
    st = dpari_expert_arrays(p, r, arrays, arrays != NULL && arrays->x != NULL,
                             arrays != NULL && arrays->rows != NULL);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_out(p, r, DPARI_EXPERT_DISPATCH, arrays->x, NULL, arrays->rows);
}

DPAR_API dpar_status dpar_experts_combine(dpar_experts_plan *plan,
                                          const dpar_experts_routing *routing,
                                          const dpar_experts_arrays *arrays)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    const dpari_routing *r = (const dpari_routing *)(const void *)routing;
    dpar_status st;
    st = dpari_expert_arrays(p, r, arrays,
                             arrays != NULL && arrays->weight != NULL && arrays->y != NULL,
                             arrays != NULL && arrays->results != NULL);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_back(p, r, DPARI_EXPERT_COMBINE, arrays->results, arrays->weight,
                             arrays->saved, arrays->y);
}

DPAR_API dpar_status dpar_experts_combine_backward(dpar_experts_plan *plan,
                                                   const dpar_experts_routing *routing,
                                                   const dpar_experts_arrays *arrays)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    const dpari_routing *r = (const dpari_routing *)(const void *)routing;
    int there;
    dpar_status st;
    there = arrays != NULL && arrays->dy != NULL && arrays->weight != NULL &&
            (arrays->dweight == NULL || arrays->saved != NULL || (r != NULL && r->head.kept == 0));
    st = dpari_expert_arrays(p, r, arrays, there, arrays != NULL && arrays->dresults != NULL);
    if (st == DPAR_OK && arrays->dweight != NULL) {
        st = dpari_expert_dots(p, r, arrays->dy, arrays->saved, arrays->dweight);
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_out(p, r, DPARI_EXPERT_COMBINE_BACK, arrays->dy, arrays->weight,
                            arrays->dresults);
}

DPAR_API dpar_status dpar_experts_dispatch_backward(dpar_experts_plan *plan,
                                                    const dpar_experts_routing *routing,
                                                    const dpar_experts_arrays *arrays)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    const dpari_routing *r = (const dpari_routing *)(const void *)routing;
    dpar_status st;
    st = dpari_expert_arrays(p, r, arrays, arrays != NULL && arrays->dx != NULL,
                             arrays != NULL && arrays->drows != NULL);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_back(p, r, DPARI_EXPERT_DISPATCH_BACK, arrays->drows, NULL, NULL,
                             arrays->dx);
}

/* ==== train/pipeline.c ==== */

/* Runs a rank's list of actions. dpar_pipeline_make checks the schedule for deadlock, and assigns
 * to each message the slots from which it is sent and into which it is received.
 *
 * A step executes the list once. A message is posted at its position in the list, together with the
 * messages that follow it directly if they may form one batch. Before an action runs, it waits for
 * the message that it reads and for the earlier message from the slot that it fills. Stages of the
 * same rank pass data in local slots without messages. If an action fails, the rank breaks the
 * communicator with the message of the callback, so that the other ranks end their step, too. */

enum {
    DPARI_PL_BATCH = 8, /* largest number of messages in one batch */
    DPARI_PL_NONE = -1
};
#define DPARI_PL_MOST_BYTES                                                                        \
    (INT64_C(1) << 40) /* largest slot; sums of 65535 slots fit in int64_t */

/* The slots of an action of this rank. */
typedef struct dpari_pl_item {
    dpar_action_slots slots;
    uint16_t local_in, local_out; /* local slots that it reads and fills, or DPAR_SLOT_NONE */
} dpari_pl_item;

/* Slots of one kind, stored one after the other. */
typedef struct dpari_pl_pool {
    unsigned char *at;
    int64_t each; /* bytes of a slot */
    int32_t count;
} dpari_pl_pool;

struct dpar_pipeline {
    dpar_comm *comm;
    dpar_comm
        *tied; /* the ranks with a first or last stage; NULL on other ranks or without `tied` */
    dpar_pipeline_desc desc;
    const dpar_action *list; /* [actions] the actions of this rank */
    int64_t actions, messages;
    dpari_pl_item *item; /* [actions] */
    dpar_work *work;     /* [messages] in the order of the list */
    int64_t *index;      /* [messages] the action of each message */
    uint8_t *seen;       /* [messages] 1 if the message is complete in this step */
    int64_t *of_receive; /* [receive slots] the last message posted in the slot, or DPARI_PL_NONE */
    int64_t *of_send;    /* [send slots] the last message posted from it, or DPARI_PL_NONE */
    int64_t *rank_actions; /* [ranks] number of actions of each rank */
    dpari_pl_pool receive, send, local, activation, weight;
    void *slots; /* memory of all pools */
    /* All messages before `oldest` are complete in this step, and those before `posted` are
     * posted. */
    int64_t oldest, posted;
    double began;      /* time when the step began, in seconds */
    int32_t last;      /* 1 if this step reduces gradients */
    int32_t under_way; /* 1 during a step */
    void *made;        /* memory of the schedule if make generated it, otherwise NULL */
};

static int dpari_pl_is_message(int32_t kind)
{
    return kind >= DPAR_ACTION_SEND_F && kind <= DPAR_ACTION_RECV_B;
}

static int dpari_pl_sends(int32_t kind)
{
    return kind == DPAR_ACTION_SEND_F || kind == DPAR_ACTION_SEND_B;
}

/* True for F, B and I: the actions that have an input and an output. */
static int dpari_pl_passes(int32_t kind)
{
    return kind == DPAR_ACTION_FORWARD || kind == DPAR_ACTION_BACKWARD || kind == DPAR_ACTION_INPUT;
}

/* Returns the stage from which F, B or I gets its input (takes = 1) or to which it passes its
 * output (takes = 0); -1 if there is none. */
static int32_t dpari_pl_neighbour(const dpar_schedule *schedule, const dpar_action *action,
                                  int takes)
{
    if ((action->kind == DPAR_ACTION_FORWARD) == (takes != 0)) {
        return dpar_schedule_partner(schedule, DPAR_ACTION_RECV_F, action->stage);
    }
    return dpar_schedule_partner(schedule, DPAR_ACTION_SEND_F, action->stage);
}

/* Returns the number of elements of a stage's output. */
static int64_t dpari_pl_elements(const dpar_pipeline_desc *o, int32_t stage)
{
    return o->count_per_stage != NULL ? o->count_per_stage[stage] : o->count;
}

/* Returns the number of elements of the input (takes = 1) or the output (takes = 0) of an action.
 * In both directions it is the size of the earlier stage's output. */
static int64_t dpari_pl_between(const dpar_pipeline_desc *o, const dpar_action *action, int forward,
                                int takes)
{
    const int own = forward != takes; /* 1 for F's output and for its gradient, B's input */
    const int32_t stage =
        own ? action->stage : dpar_schedule_partner(o->schedule, DPAR_ACTION_RECV_F, action->stage);
    return stage < 0 ? 0 : dpari_pl_elements(o, stage);
}

/* ---- options and memory ---------------------------------------------------------------------- */

/* Checks a descriptor that has a schedule. */
static dpar_status dpari_pl_check_desc(const dpar_comm *comm, const dpar_pipeline_desc *o,
                                       dpar_why *why)
{
    const dpar_schedule *schedule = o->schedule;
    int32_t i;
    if (dpari_schedule_slots_bytes(schedule) < 0) {
        const dpar_status st = dpar_schedule_check(schedule, NULL, NULL, 0, why);
        return st < 0 ? st : DPAR_E_ARG;
    }
    if (schedule->ranks != comm->size) {
        return dpari_wrong(why,
                           "pipeline: the schedule is for %d ranks, but the communicator has %d",
                           schedule->ranks, comm->size);
    }
    if (dpar_type_bytes(o->type) < 1) {
        return dpari_wrong(why, "pipeline: type is %s (%d), but must be a type of elements",
                           dpar_type_name(o->type), o->type);
    }
    if (o->tag < 0 || o->tied_count < 0 ||
        (o->tied_count > 0 && !dpari_type_can_reduce(o->tied_type))) {
        return dpari_wrong(why,
                           "pipeline: tag is %d, tied_count %ld and tied_type %s, but tag and "
                           "tied_count must be 0 or more, and tied_type a type that can be summed",
                           o->tag, o->tied_count, dpar_type_name(o->tied_type));
    }
    if (o->activation_bytes < 0 || o->activation_bytes > DPARI_PL_MOST_BYTES ||
        o->weight_bytes < 0 || o->weight_bytes > DPARI_PL_MOST_BYTES) {
        return dpari_wrong(
            why, "pipeline: activation_bytes is %ld and weight_bytes %ld, but must be 0 to 2^40",
            o->activation_bytes, o->weight_bytes);
    }
    for (i = 0; i < schedule->stages; i++) {
        const int64_t n = dpari_pl_elements(o, i);
        if (n < 0 || n > DPARI_PL_MOST_BYTES / dpar_type_bytes(o->type)) {
            return dpari_wrong(
                why,
                "pipeline: stage %d has %ld elements of %d bytes, but must have 0 to 2^40 bytes", i,
                n, dpar_type_bytes(o->type));
        }
    }
    if ((o->start == NULL) == (o->end == NULL)) {
        return DPAR_OK;
    }
    return dpari_wrong(why, "pipeline: one of start and end is NULL, but both or neither must be");
}

/* Returns the number of messages of a rank. */
static int64_t dpari_pl_count_messages(const dpar_schedule *schedule, int32_t rank)
{
    int64_t k, n = 0;
    for (k = schedule->begin[rank]; k < schedule->begin[rank + 1]; k++) {
        n += dpari_pl_is_message(schedule->action[k].kind);
    }
    return n;
}

/* Memory that only dpar_pipeline_make uses. */
typedef struct dpari_pl_scratch {
    void *mem;                /* for dpar_schedule_check and dpar_schedule_slots */
    int64_t bytes;            /* size of mem */
    dpar_action_slots *slots; /* [actions of all ranks] */
    dpar_slot_counts *counts; /* [ranks] */
    uint16_t *cell;           /* [chain][micro_batches] see dpari_pl_cell */
    uint16_t *free;           /* [actions of this rank] stack of local slots that are free again */
} dpari_pl_scratch;

/* Places the struct and the arrays of a pipeline in memory, and sets *bytes to the total size. If
 * memory is NULL, only computes the size. The schedule must be valid. */
static void dpari_pl_place(dpar_pipeline *pipeline, void *memory, const dpar_comm *comm,
                           const dpar_schedule *schedule, dpari_pl_scratch *w, int64_t *bytes)
{
    const int64_t n = schedule->begin[comm->rank + 1] - schedule->begin[comm->rank];
    const int64_t messages = dpari_pl_count_messages(schedule, comm->rank);
    dpar_schedule_check_desc run;
    dpari_room r = dpari_room_of(memory);
    (void)dpari_room_take(&r, 1, sizeof *pipeline);
    dpari_zero(pipeline, sizeof *pipeline);
    pipeline->actions = n;
    pipeline->messages = messages;
    pipeline->item = (dpari_pl_item *)dpari_room_take(&r, n, sizeof *pipeline->item);
    pipeline->work = (dpar_work *)dpari_room_take(&r, messages, sizeof *pipeline->work);
    pipeline->index = (int64_t *)dpari_room_take(&r, messages, sizeof *pipeline->index);
    pipeline->seen = (uint8_t *)dpari_room_take(&r, messages, sizeof *pipeline->seen);
    pipeline->of_receive = (int64_t *)dpari_room_take(&r, messages, sizeof *pipeline->of_receive);
    pipeline->of_send = (int64_t *)dpari_room_take(&r, messages, sizeof *pipeline->of_send);
    pipeline->rank_actions =
        (int64_t *)dpari_room_take(&r, schedule->ranks, sizeof *pipeline->rank_actions);
    dpari_zero(&run, sizeof(run));
    run.transport = DPAR_TRANSPORT_BLOCKING;
    w->bytes = dpari_most(dpari_schedule_slots_bytes(schedule),
                          dpari_schedule_check_bytes(schedule, &run));
    w->mem = dpari_room_take(&r, w->bytes, 1);
    w->slots = (dpar_action_slots *)dpari_room_take(&r, schedule->begin[schedule->ranks],
                                                    sizeof *w->slots);
    w->counts = (dpar_slot_counts *)dpari_room_take(&r, schedule->ranks, sizeof *w->counts);
    w->cell = (uint16_t *)dpari_room_take(&r, (int64_t)schedule->chain * schedule->micro_batches,
                                          sizeof *w->cell);
    w->free = (uint16_t *)dpari_room_take(&r, n, sizeof *w->free);
    *bytes = r.used;
}

/* Lists the values that must be equal on all ranks. */
static DPARI_COLD void dpari_pl_facts(dpari_facts *facts, const void *given)
{
    const dpar_pipeline_desc *o = (const dpar_pipeline_desc *)given;
    const dpar_schedule *schedule = o->schedule;
    int64_t k;
    int32_t i;
    dpari_fact(facts, "schedule->ranks", 0, schedule->ranks);
    dpari_fact(facts, "schedule->stages", 0, schedule->stages);
    dpari_fact(facts, "schedule->micro_batches", 0, schedule->micro_batches);
    dpari_fact(facts, "schedule->chain", 0, schedule->chain);
    dpari_fact(facts, "schedule->slices", 0, schedule->slices);
    for (i = 0; i < schedule->ranks; i++) {
        dpari_fact(facts, "schedule->begin[#]", i + 1, schedule->begin[i + 1]);
    }
    for (k = 0; k < schedule->begin[schedule->ranks]; k++) {
        const dpar_action *action = &schedule->action[k];
        dpari_fact(facts, "schedule->action[#].kind", k, action->kind);
        dpari_fact(facts, "schedule->action[#].joined", k, action->joined);
        dpari_fact(facts, "schedule->action[#].stage", k, action->stage);
        dpari_fact(facts, "schedule->action[#].micro_batch", k, action->micro_batch);
    }
    for (i = 0; i < schedule->stages; i++) {
        dpari_fact(facts, "schedule->rank_of[#]", i, schedule->rank_of[i]);
        dpari_fact(facts, "count_per_stage[#]", i, dpari_pl_elements(o, i));
    }
    dpari_fact_type(facts, "type", 0, o->type);
    dpari_fact(facts, "tag", 0, o->tag);
    dpari_fact(facts, "keep_sends", 0, o->keep_sends != 0);
    dpari_fact(facts, "no_final_barrier", 0, o->no_final_barrier != 0);
    dpari_fact(facts, "start != NULL", 0, o->start != NULL);
    dpari_fact(facts, "tied_count", 0, o->tied_count);
    dpari_fact_type(facts, "tied_type", 0, o->tied_count > 0 ? o->tied_type : 0);
}

/* ---- callbacks and slots of the list --------------------------------------------------------- */

/* Returns the callback for a kind of action, or NULL if there is none. */
static dpar_stage_callback dpari_pl_callback(const dpar_pipeline_desc *o, int32_t kind)
{
    switch (kind) {
    case DPAR_ACTION_FORWARD: return o->forward;
    case DPAR_ACTION_BACKWARD: return o->backward;
    case DPAR_ACTION_INPUT: return o->input;
    case DPAR_ACTION_WEIGHT: return o->weight;
    case DPAR_ACTION_UNSHARD: return o->unshard;
    case DPAR_ACTION_RESHARD: return o->reshard;
    case DPAR_ACTION_REDUCE_GRAD: return o->reduce;
    case DPAR_ACTION_WAIT_REDUCE: return o->wait_reduce;
    case DPAR_ACTION_RECOMPUTE: return o->recompute;
    case DPAR_ACTION_OFFLOAD: return o->offload;
    case DPAR_ACTION_RELOAD: return o->reload;
    default: return NULL;
    }
}

/* Writes the name of an action, such as "1F3", into `at`. */
static void dpari_pl_name(const dpar_action *action, char *at, size_t bytes)
{
    dpar_action single = *action;
    dpar_text t;
    single.joined = 0; /* otherwise the text would also contain the second action of the pair */
    dpar_text_init(&t, at, bytes);
    dpar_action_write(&single, &t);
}

/* Checks that there is a callback for each action of this rank. */
static dpar_status dpari_pl_callbacks(const dpar_pipeline *pipeline, dpar_why *why)
{
    int64_t k;
    for (k = 0; k < pipeline->actions; k++) {
        const int32_t kind = pipeline->list[k].kind;
        char name[32];
        if (kind == DPAR_ACTION_IDLE || dpari_pl_is_message(kind) ||
            dpari_pl_callback(&pipeline->desc, kind) != NULL) {
            continue;
        }
        dpari_pl_name(&pipeline->list[k], name, sizeof name);
        return dpari_wrong(why, "pipeline: rank %d has %s in its list, but its callback is NULL",
                           pipeline->comm->rank, name);
    }
    return DPAR_OK;
}

/* Returns the stage from which action i gets its input (takes = 1) or to which it passes its output
 * (takes = 0) if that stage is on this rank, otherwise DPARI_PL_NONE. */
static int32_t dpari_pl_inside(const dpar_pipeline *pipeline, int64_t i, int takes)
{
    const dpar_schedule *schedule = pipeline->desc.schedule;
    const dpar_action *action = &pipeline->list[i];
    const int32_t other =
        dpari_pl_passes(action->kind) ? dpari_pl_neighbour(schedule, action, takes) : DPARI_PL_NONE;
    return other >= 0 && schedule->rank_of[other] == schedule->rank_of[action->stage]
               ? other
               : DPARI_PL_NONE;
}

/* Returns the cell that records which local slot holds the result of `stage` for the action's
 * micro-batch. Forward and backward share the cell, because the output of F is read before the
 * backward of the same stage. */
static uint16_t *dpari_pl_cell(const dpar_pipeline *pipeline, const dpari_pl_scratch *w,
                               const dpar_action *action, int32_t stage)
{
    const dpar_schedule *schedule = pipeline->desc.schedule;
    return &w->cell[(int64_t)(stage % schedule->chain) * schedule->micro_batches +
                    action->micro_batch];
}

/* Assigns local slots to the results that one stage of this rank passes to another. A slot is in
 * use until the action that reads it has ended. The two actions of a joined pair run together, so
 * both get their slots before either frees one. */
static dpar_status dpari_pl_assign_local(dpar_pipeline *pipeline, const dpari_pl_scratch *w,
                                         dpar_why *why)
{
    int32_t idle = 0;
    int64_t k, i, end;
    for (k = 0; k < pipeline->actions; k = end) {
        end = k + 1 + pipeline->list[k].joined;
        for (i = k; i < end; i++) {
            const dpar_action *action = &pipeline->list[i];
            pipeline->item[i].local_out = DPAR_SLOT_NONE;
            if (dpari_pl_inside(pipeline, i, 0) < 0) {
                continue;
            }
            if (idle == 0 && pipeline->local.count == DPAR_SLOT_NONE) {
                return dpari_say(DPAR_E_RANGE, why,
                                 "pipeline: the stages of rank %d need more than 65535 buffers "
                                 "between each other",
                                 pipeline->comm->rank);
            }
            pipeline->item[i].local_out =
                idle > 0 ? w->free[--idle] : (uint16_t)pipeline->local.count++;
            *dpari_pl_cell(pipeline, w, action, action->stage) = pipeline->item[i].local_out;
        }
        for (i = k; i < end; i++) {
            const int32_t from = dpari_pl_inside(pipeline, i, 1);
            pipeline->item[i].local_in = DPAR_SLOT_NONE;
            if (from >= 0) {
                pipeline->item[i].local_in = *dpari_pl_cell(pipeline, w, &pipeline->list[i], from);
                w->free[idle++] = pipeline->item[i].local_in;
            }
        }
    }
    return DPAR_OK;
}

/* Checks the schedule for validity and deadlock, and assigns slots to the actions. */
static dpar_status dpari_pl_prepare(dpar_pipeline *pipeline, const dpari_pl_scratch *w,
                                    dpar_why *why)
{
    const dpar_schedule *schedule = pipeline->desc.schedule;
    int32_t transport = DPAR_TRANSPORT_BLOCKING;
    const dpar_slot_counts *mine = &w->counts[pipeline->comm->rank];
    dpar_schedule_check_desc run;
    dpar_schedule_slots_desc how;
    int64_t k, m = 0;
    dpar_status st;
    if (pipeline->desc.keep_sends) { /* a device's stream has one queue for all messages */
        transport = pipeline->comm->mem != NULL ? DPAR_TRANSPORT_RANK : DPAR_TRANSPORT_EDGE;
    }
    st = dpar_schedule_check(schedule, NULL, w->mem, w->bytes, why);
    if (st == DPAR_OK && schedule->ranks > 1) {
        dpari_zero(&run, sizeof(run));
        run.transport = transport;
        st = dpar_schedule_check(schedule, &run, w->mem, w->bytes, why);
    }
    if (st == DPAR_OK) {
        how.in_flight = pipeline->desc.keep_sends ? INT32_MAX : 0;
        how.slots = w->slots;
        how.counts = w->counts;
        st = dpar_schedule_slots(schedule, &how, w->mem, w->bytes, why);
    }
    if (st == DPAR_OK) {
        st = dpari_pl_callbacks(pipeline, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    for (k = 0; k < pipeline->actions; k++) {
        pipeline->item[k].slots = w->slots[schedule->begin[pipeline->comm->rank] + k];
        if (dpari_pl_is_message(pipeline->list[k].kind)) {
            pipeline->index[m++] = k;
        }
    }
    pipeline->receive.count = mine->receive;
    pipeline->send.count = mine->send;
    pipeline->activation.count = mine->activation;
    pipeline->weight.count = mine->weight;
    return dpari_pl_assign_local(pipeline, w, why);
}

/* Allocates the slots of all pools. */
static dpar_status dpari_pl_allocate_slots(dpar_pipeline *pipeline, dpar_why *why)
{
    enum { POOLS = 5 };
    const dpar_pipeline_desc *desc = &pipeline->desc;
    dpari_pl_pool *const pool[POOLS] = {&pipeline->receive, &pipeline->send, &pipeline->local,
                                        &pipeline->activation, &pipeline->weight};
    int64_t most = 0, bytes = 0, slots = 0;
    unsigned char *at;
    int32_t i;
    dpar_status st;
    for (i = 0; i < desc->schedule->stages; i++) {
        most = dpari_most(most, dpari_pl_elements(desc, i));
    }
    /* at least 1 byte, so that dpari_pl_slot does not return NULL for a message's slot */
    most = dpari_room_up(dpari_most(1, most * dpar_type_bytes(desc->type)));
    pipeline->receive.each = pipeline->send.each = pipeline->local.each = most;
    pipeline->activation.each = dpari_room_up(desc->activation_bytes);
    pipeline->weight.each = dpari_room_up(desc->weight_bytes);
    for (i = 0; i < POOLS; i++) {
        slots += pool[i]->count;
        bytes += pool[i]->each * pool[i]->count;
    }
    st = dpar_comm_alloc(pipeline->comm, dpari_most(1, bytes), &pipeline->slots);
    if (st != DPAR_OK) {
        pipeline->slots = NULL;
        return dpari_say(st, why, "pipeline: no memory for %ld slots of together %ld bytes", slots,
                         bytes);
    }
    at = (unsigned char *)pipeline->slots;
    for (i = 0; i < POOLS; i++) {
        pool[i]->at = at;
        at += pool[i]->each * pool[i]->count;
    }
    return DPAR_OK;
}

/* True if the first or the last stage is on the given rank. */
static int dpari_pl_at_end(const dpar_schedule *schedule, int32_t rank)
{
    int32_t i;
    for (i = 0; i < schedule->stages; i++) {
        if (schedule->rank_of[i] == rank &&
            (dpar_schedule_partner(schedule, DPAR_ACTION_RECV_F, i) < 0 ||
             dpar_schedule_partner(schedule, DPAR_ACTION_SEND_F, i) < 0)) {
            return 1;
        }
    }
    return 0;
}

/* Splits off the communicator of the ranks that share tied weights. */
static dpar_status dpari_pl_tie(dpar_pipeline *pipeline, dpar_why *why)
{
    const int32_t color =
        dpari_pl_at_end(pipeline->desc.schedule, pipeline->comm->rank) ? 0 : DPARI_PL_NONE;
    dpar_status st;
    if (pipeline->desc.tied_count == 0) {
        return DPAR_OK;
    }
    st = dpar_comm_split(pipeline->comm, color, pipeline->comm->rank, &pipeline->tied);
    if (st != DPAR_OK) {
        const dpar_why copy = pipeline->comm->why; /* why may be &pipeline->comm->why */
        return dpari_say(st, why, "pipeline: the communicator for tied weights failed: %s",
                         copy.text);
    }
    return st;
}

/* Does the part of dpar_pipeline_make that needs no other rank: checks, slots and memory. */
static dpar_status dpari_pl_set_up_local(dpar_pipeline *pipeline, const dpari_pl_scratch *w,
                                         dpar_why *why)
{
    dpar_status st = dpari_pl_prepare(pipeline, w, why);
    if (st == DPAR_OK && pipeline->desc.tied_count > 0 && pipeline->desc.tied == NULL &&
        dpari_pl_at_end(pipeline->desc.schedule, pipeline->comm->rank)) {
        st = dpari_wrong(why, "pipeline: tied is NULL, but rank %d has a first or last stage",
                         pipeline->comm->rank);
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_pl_allocate_slots(pipeline, why);
}

/* Frees the slots and the communicator that was split off. */
static DPARI_COLD dpar_status dpari_pl_release(dpar_pipeline *pipeline)
{
    const dpar_status st = pipeline->tied != NULL ? dpar_comm_free(pipeline->tied) : DPAR_OK;
    if (pipeline->slots != NULL) {
        dpar_comm_release(pipeline->comm, pipeline->slots);
    }
    return st;
}

/* Generates the schedule of desc->order, and lowers it to messages and to the actions that have
 * callbacks. Stores it in desc->schedule and its memory in *memory. If desc->order is NULL, does
 * nothing. */
static DPARI_COLD dpar_status dpari_pl_make_list(dpar_comm *comm, dpar_pipeline_desc *desc,
                                                 void **memory, dpar_why *why)
{
    dpar_schedule_desc order;
    dpar_schedule_lower_desc how;
    dpar_schedule plain, *list;
    const int64_t head = dpari_room_up((int64_t)sizeof *list);
    void *room;
    int64_t bytes;
    dpar_status st;
    if ((desc->order == NULL) == (desc->schedule == NULL)) {
        return dpari_wrong(why, "pipeline: exactly one of order and schedule must be NULL");
    }
    if (desc->order == NULL) {
        return DPAR_OK;
    }
    dpari_zero(&order, sizeof order);
    dpari_zero(&how, sizeof how);
    order.ranks = comm->size;
    order.micro_batches = desc->micro_batches;
    how.passes = DPAR_LOWER_MESSAGES;
    if (desc->reduce != NULL) {
        how.passes |= DPAR_LOWER_REDUCE;
    }
    if (desc->unshard != NULL) {
        how.passes |= DPAR_LOWER_SHARDS;
    }
    st = dpar_schedule_find(&order, desc->order, why);
    if (st != DPAR_OK) {
        return st;
    }
    bytes = dpari_schedule_generate_bytes(&order, why);
    room = bytes > 0 ? dpari_object_alloc(comm, bytes) : NULL;
    if (bytes > 0 && room == NULL) {
        return dpari_say(DPAR_E_MEMORY, why,
                         "pipeline: no memory for the schedule, which needs %ld bytes", bytes);
    }
    st = dpar_schedule_generate(&plain, &order, room, room != NULL ? bytes : 0, why);
    if (st == DPAR_OK) {
        bytes = dpari_schedule_lower_bytes(&plain, &how, why);
        list = bytes < 0 ? NULL : (dpar_schedule *)dpari_object_alloc(comm, head + bytes);
        if (bytes < 0) {
            st = DPAR_E_ARG;
        } else if (list == NULL) {
            st = dpari_say(DPAR_E_MEMORY, why,
                           "pipeline: no memory for the schedule, which needs %ld bytes", bytes);
        } else {
            st = dpar_schedule_lower(list, &plain, &how, (unsigned char *)list + head, bytes, why);
        }
        *memory = list;
        desc->schedule = list;
    }
    dpari_object_release(room);
    return st;
}

/* Checks a descriptor, makes its schedule and provides memory for the pipeline. */
static DPARI_COLD dpar_status dpari_pl_provide(dpar_comm *comm, dpar_pipeline_desc *desc,
                                               void **list, void **memory, int64_t *need,
                                               dpar_why *why)
{
    dpar_pipeline counted;
    dpari_pl_scratch w;
    dpar_status st = dpari_pl_make_list(comm, desc, list, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_pl_check_desc(comm, desc, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_pl_place(&counted, NULL, comm, desc->schedule, &w, need);
    return dpari_object_memory(comm, desc->memory, desc->bytes, *need, "pipeline", memory, why);
}

/* Sets up a pipeline in its memory. Fails on all ranks if it fails on one. */
static DPARI_COLD dpar_status dpari_pl_set_up(dpar_pipeline *pipeline, dpar_comm *comm,
                                              const dpar_pipeline_desc *desc, dpar_why *why)
{
    const int64_t *begin = desc->schedule->begin;
    dpari_pl_scratch w;
    int64_t needed;
    int32_t i;
    dpar_status st;
    dpari_pl_place(pipeline, pipeline, comm, desc->schedule, &w, &needed);
    pipeline->comm = comm;
    pipeline->desc = *desc;
    pipeline->list = desc->schedule->action + begin[comm->rank];
    for (i = 0; i < comm->size; i++) {
        pipeline->rank_actions[i] = begin[i + 1] - begin[i];
    }
    dpari_zero(pipeline->work, (size_t)pipeline->messages * sizeof *pipeline->work);
    st = dpari_agree(comm, dpari_pl_set_up_local(pipeline, &w, why), why);
    if (st == DPAR_OK) {
        st = dpari_agree(comm, dpari_pl_tie(pipeline, why), why);
    }
    if (st != DPAR_OK) {
        (void)dpari_pl_release(pipeline);
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_pipeline_make(dpar_comm *comm, const dpar_pipeline_desc *desc,
                                                   dpar_pipeline **pipeline, dpar_why *why)
{
    dpar_pipeline_desc full;
    void *list = NULL, *memory = NULL;
    int64_t need = 0;
    dpar_status st;
    if (comm == NULL) {
        return dpari_wrong(why, "pipeline: the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    dpari_zero(&full, sizeof full);
    if (desc != NULL) {
        full = *desc;
    }
    st = pipeline == NULL ? dpari_wrong(why, "pipeline: the result is NULL")
                          : dpari_pl_provide(comm, &full, &list, &memory, &need, why);
    st = dpari_agree_on(comm, st, "pipeline", dpari_pl_facts, &full, why);
    if (st == DPAR_OK) {
        st = dpari_pl_set_up((dpar_pipeline *)memory, comm, &full, why);
    }
    if (st != DPAR_OK) {
        dpari_object_release(list);
        return dpari_object_failed(st, full.memory, memory, need, why);
    }
    *pipeline = (dpar_pipeline *)memory;
    (*pipeline)->made = list;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_pipeline_free(dpar_pipeline *pipeline)
{
    dpar_status st;
    if (pipeline == NULL) {
        return DPAR_OK;
    }
    st = dpari_pl_release(pipeline);
    dpari_object_release(pipeline->made);
    return dpari_object_end(st, pipeline->desc.memory == NULL ? pipeline : NULL);
}

DPAR_API DPARI_COLD dpar_slot_counts dpar_pipeline_slots(const dpar_pipeline *pipeline,
                                                         int32_t *local)
{
    dpar_slot_counts n;
    if (pipeline == NULL) {
        dpari_zero(&n, sizeof n);
        return n;
    }
    n.receive = pipeline->receive.count;
    n.activation = pipeline->activation.count;
    n.send = pipeline->send.count;
    n.weight = pipeline->weight.count;
    if (local != NULL) {
        *local = pipeline->local.count;
    }
    return n;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Returns the nanoseconds since the step began. */
static int64_t dpari_pl_now(const dpar_pipeline *pipeline)
{
    return (int64_t)((dpari_os_now() - pipeline->began) * 1e9);
}

/* Returns the memory of a slot, or NULL if there is no slot or the pool's slots have 0 bytes. */
static void *dpari_pl_slot(const dpari_pl_pool *pool, uint16_t slot)
{
    return slot == DPAR_SLOT_NONE || pool->each == 0 ? NULL : pool->at + pool->each * slot;
}

/* Records that message m is complete. */
static void dpari_pl_arrived(dpar_pipeline *pipeline, int64_t m)
{
    pipeline->seen[m] = 1;
    if (pipeline->desc.end != NULL) {
        pipeline->desc.end[pipeline->index[m]] = dpari_pl_now(pipeline);
    }
}

/* Waits until message m is complete. Returns at once if m is DPARI_PL_NONE. */
static dpar_status dpari_pl_await(dpar_pipeline *pipeline, int64_t m)
{
    dpar_status st;
    if (m == DPARI_PL_NONE || pipeline->seen[m]) {
        return DPAR_OK;
    }
    st = dpar_wait(&pipeline->work[m]);
    if (st == DPAR_OK) {
        dpari_pl_arrived(pipeline, m);
    }
    return st;
}

DPAR_API dpar_status dpar_pipeline_progress(dpar_pipeline *pipeline)
{
    int64_t m;
    if (pipeline == NULL || !pipeline->under_way) {
        return pipeline == NULL ? DPAR_E_ARG : DPAR_OK;
    }
    for (m = pipeline->oldest; m < pipeline->posted; m++) {
        const dpar_status st = pipeline->seen[m] ? DPAR_OK : dpar_test(&pipeline->work[m]);
        if (st < 0) {
            return st;
        }
        if (st == DPAR_OK && !pipeline->seen[m]) {
            dpari_pl_arrived(pipeline, m);
        }
        pipeline->oldest += m == pipeline->oldest && pipeline->seen[m];
    }
    return DPAR_OK;
}

/* Fills in the call for message m, which is action k, and records m as the message of its slot. */
static void dpari_pl_call(dpar_pipeline *pipeline, int64_t k, int64_t m, dpar_call *call)
{
    const dpar_action *action = &pipeline->list[k];
    const int sends = dpari_pl_sends(action->kind);
    const int forward = action->kind == DPAR_ACTION_SEND_F || action->kind == DPAR_ACTION_RECV_F;
    const dpar_action_slots *slots = &pipeline->item[k].slots;
    dpari_zero(call, sizeof *call);
    call->kind = sends ? DPAR_CALL_SEND : DPAR_CALL_RECV;
    call->type = pipeline->desc.type;
    call->root = action->peer;
    call->tag = pipeline->desc.tag;
    call->count = dpari_pl_between(&pipeline->desc, action, forward, !sends);
    if (sends) {
        call->in = dpari_pl_slot(&pipeline->send, slots->send);
        pipeline->of_send[slots->send] = m;
    } else {
        call->out = dpari_pl_slot(&pipeline->receive, slots->receive);
        pipeline->of_receive[slots->receive] = m;
    }
}

/* True if action k may be posted in one batch with the n calls. A batch has at most one message to
 * each rank and one from each rank. With more, NCCL could deadlock: it starts a second message to a
 * rank only after the first message from that rank has arrived, but that rank may be waiting for
 * the second message before it sends. */
static int dpari_pl_joins(const dpar_pipeline *pipeline, int64_t k, const dpar_call *call,
                          int32_t n)
{
    const dpar_action *action = &pipeline->list[k];
    const int32_t kind =
        dpari_pl_sends(action->kind) ? (int32_t)DPAR_CALL_SEND : (int32_t)DPAR_CALL_RECV;
    int32_t i = 0;
    while (i < n && (call[i].kind != kind || call[i].root != action->peer)) {
        i++;
    }
    return i == n && n < DPARI_PL_BATCH;
}

/* Posts the message of action k together with the messages that follow it directly, as far as they
 * may be in one batch. Sets *next to the first action after them. */
static dpar_status dpari_pl_post(dpar_pipeline *pipeline, int64_t k, int64_t *next)
{
    dpar_call call[DPARI_PL_BATCH];
    int32_t n = 0;
    dpar_status st;
    while (k + n < pipeline->actions && dpari_pl_is_message(pipeline->list[k + n].kind) &&
           dpari_pl_joins(pipeline, k + n, call, n)) {
        dpari_pl_call(pipeline, k + n, pipeline->posted + n, &call[n]);
        if (pipeline->desc.start != NULL) {
            pipeline->desc.start[k + n] = dpari_pl_now(pipeline);
        }
        n++;
    }
    st = dpar_batch(pipeline->comm, call, n, &pipeline->work[pipeline->posted]);
    pipeline->posted += n;
    *next = k + n;
    return st;
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* Waits for the messages that action k needs, and fills in the task for its callback. */
static dpar_status dpari_pl_task(dpar_pipeline *pipeline, int64_t k, dpar_stage_task *t)
{
    const dpar_action *action = &pipeline->list[k];
    const dpari_pl_item *item = &pipeline->item[k];
    const dpar_action_slots *slots = &item->slots;
    const int forward = action->kind == DPAR_ACTION_FORWARD;
    dpar_status st = DPAR_OK;
    dpari_zero(t, sizeof *t);
    t->action = *action;
    t->action.joined = 0;
    t->last = pipeline->last;
    t->activation_slot =
        slots->activation == DPAR_SLOT_NONE ? DPARI_PL_NONE : (int32_t)slots->activation;
    t->weight_slot = slots->weight == DPAR_SLOT_NONE ? DPARI_PL_NONE : (int32_t)slots->weight;
    t->activation_memory = dpari_pl_slot(&pipeline->activation, slots->activation);
    t->weight_memory = dpari_pl_slot(&pipeline->weight, slots->weight);
    if (!dpari_pl_passes(action->kind)) {
        return DPAR_OK;
    }
    t->in = dpari_pl_slot(&pipeline->local, item->local_in);
    t->out = dpari_pl_slot(&pipeline->local, item->local_out);
    if (slots->receive != DPAR_SLOT_NONE) {
        t->in = dpari_pl_slot(&pipeline->receive, slots->receive);
        st = dpari_pl_await(pipeline, pipeline->of_receive[slots->receive]);
    }
    if (slots->send != DPAR_SLOT_NONE && st == DPAR_OK) {
        t->out = dpari_pl_slot(&pipeline->send, slots->send);
        st = dpari_pl_await(pipeline, pipeline->of_send[slots->send]);
    }
    if (dpari_pl_neighbour(pipeline->desc.schedule, action, 1) >= 0) {
        t->in_count = dpari_pl_between(&pipeline->desc, action, forward, 1);
    }
    if (dpari_pl_neighbour(pipeline->desc.schedule, action, 0) >= 0) {
        t->out_count = dpari_pl_between(&pipeline->desc, action, forward, 0);
    }
    return st;
}

/* Breaks the communicator with the status and message of a callback that failed, unless it is
 * already broken. Returns the communicator's status. */
static dpar_status dpari_pl_fail(dpar_pipeline *pipeline, dpar_status st, const dpar_action *action,
                                 dpar_why *said)
{
    char name[32];
    dpar_why text;
    if (pipeline->comm->status == DPAR_OK) {
        const char *words = said->text[0] != 0 ? said->text : dpar_status_text(st);
        dpar_text t;
        dpari_pl_name(action, name, sizeof name);
        dpar_text_init(&t, text.text, sizeof text.text);
        dpari_text_print(&t, "rank %d: %s: %s", pipeline->comm->rank, name, words);
        dpar_comm_abort(pipeline->comm, st, text.text);
    }
    return pipeline->comm->status != DPAR_OK ? pipeline->comm->status : st;
}

/* Runs the callbacks of one action (n = 1) or of a joined pair (n = 2). */
static dpar_status dpari_pl_callback_run(dpar_pipeline *pipeline, const dpar_stage_task *t,
                                         int32_t n)
{
    dpar_why said;
    dpar_status st = DPAR_OK;
    int32_t i = 0;
    dpari_zero(&said, sizeof said);
    if (n == 2 && pipeline->desc.forward_backward != NULL) {
        st = pipeline->desc.forward_backward(pipeline->desc.ctx, &t[0], &t[1], &said);
    } else {
        for (i = 0; i < n; i++) {
            st = dpari_pl_callback(&pipeline->desc, t[i].action.kind)(pipeline->desc.ctx, &t[i],
                                                                      &said);
            if (st < 0) {
                break;
            }
        }
    }
    return st < 0 ? dpari_pl_fail(pipeline, st, &t[i].action, &said) : DPAR_OK;
}

/* True for actions without a callback in this step: idle ones, and reductions if the step only
 * accumulates gradients. */
static int dpari_pl_omits(const dpar_pipeline *pipeline, int32_t kind)
{
    return kind == DPAR_ACTION_IDLE || (!pipeline->last && (kind == DPAR_ACTION_REDUCE_GRAD ||
                                                            kind == DPAR_ACTION_WAIT_REDUCE));
}

/* Runs action k, or the joined pair that begins with it. Sets *next to the action after it. */
static dpar_status dpari_pl_work(dpar_pipeline *pipeline, int64_t k, int64_t *next)
{
    const int32_t n = 1 + pipeline->list[k].joined;
    dpar_stage_task t[2];
    int64_t began = 0, ended = 0;
    dpar_status st = DPAR_OK;
    int32_t i;
    *next = k + n;
    for (i = 0; i < n && st == DPAR_OK; i++) {
        st = dpari_pl_task(pipeline, k + i, &t[i]);
    }
    if (st == DPAR_OK) {
        began = pipeline->desc.start != NULL ? dpari_pl_now(pipeline) : 0;
        st = dpari_pl_omits(pipeline, pipeline->list[k].kind)
                 ? DPAR_OK
                 : dpari_pl_callback_run(pipeline, t, n);
        ended = pipeline->desc.start != NULL ? dpari_pl_now(pipeline) : 0;
    }
    for (i = 0; i < n && pipeline->desc.start != NULL; i++) {
        pipeline->desc.start[k + i] = began;
        pipeline->desc.end[k + i] = ended;
    }
    return st;
}

/* Ends a step that failed: aborts the communicators, and waits until all messages of this rank have
 * ended, because they use the slots. */
static void dpari_pl_give_up(dpar_pipeline *pipeline, dpar_status st)
{
    int64_t m;
    if (pipeline->comm->status == DPAR_OK) {
        dpar_comm_abort(pipeline->comm, st, pipeline->comm->why.text);
    }
    if (pipeline->tied != NULL && pipeline->tied->status == DPAR_OK) {
        dpar_comm_abort(pipeline->tied, st, pipeline->comm->why.text);
    }
    for (m = 0; m < pipeline->posted; m++) {
        (void)dpar_wait(&pipeline->work[m]);
    }
    pipeline->posted = 0;
}

/* Executes the list of actions once, and waits for the remaining messages. */
static DPARI_COLD dpar_status dpari_pl_list(dpar_pipeline *pipeline)
{
    int64_t k = 0, m;
    dpar_status st = DPAR_OK;
    while (k < pipeline->actions && st == DPAR_OK) {
        st = dpari_pl_is_message(pipeline->list[k].kind) ? dpari_pl_post(pipeline, k, &k)
                                                         : dpari_pl_work(pipeline, k, &k);
        if (st == DPAR_OK) {
            st = dpar_pipeline_progress(pipeline);
        }
    }
    for (m = pipeline->oldest; m < pipeline->posted && st == DPAR_OK; m++) {
        st = dpari_pl_await(pipeline, m);
    }
    return st;
}

/* Sums the gradient of the tied weight over the ranks that have the first or the last stage. */
static dpar_status dpari_pl_tied_sum(dpar_pipeline *pipeline)
{
    dpar_status st;
    if (pipeline->tied == NULL || pipeline->tied->size == 1 || !pipeline->last) {
        return DPAR_OK;
    }
    st = dpar_all_reduce(pipeline->tied, pipeline->desc.tied, pipeline->desc.tied,
                         pipeline->desc.tied_count, pipeline->desc.tied_type, DPAR_SUM, NULL);
    if (st != DPAR_OK && pipeline->comm->status == DPAR_OK) {
        dpar_comm_abort(pipeline->comm, st, pipeline->tied->why.text);
    }
    return st;
}

/* Resets the state of the messages for a new step. */
static void dpari_pl_restart(dpar_pipeline *pipeline, int32_t last)
{
    int64_t m;
    for (m = 0; m < pipeline->messages; m++) {
        pipeline->seen[m] = 0;
        pipeline->of_receive[m] = pipeline->of_send[m] = DPARI_PL_NONE;
    }
    pipeline->oldest = pipeline->posted = 0;
    pipeline->last = last != 0;
    pipeline->began = dpari_os_now();
}

DPAR_API DPARI_COLD dpar_status dpar_pipeline_run(dpar_pipeline *pipeline, int32_t last,
                                                  dpar_why *why)
{
    dpar_status st = DPAR_OK;
    if (pipeline == NULL || pipeline->under_way) {
        return dpari_wrong(why, pipeline == NULL
                                    ? "dpar_pipeline_run: pipeline is NULL"
                                    : "dpar_pipeline_run: the previous step has not ended");
    }
    st = pipeline->comm->status;
    if (st == DPAR_OK && pipeline->desc.start != NULL) {
        st = dpar_barrier(pipeline->comm, NULL);
    }
    if (st == DPAR_OK) {
        dpari_pl_restart(pipeline, last);
        pipeline->under_way = 1;
        st = dpari_pl_list(pipeline);
    }
    if (st == DPAR_OK) {
        st = dpari_pl_tied_sum(pipeline);
    }
    if (st == DPAR_OK && !pipeline->desc.no_final_barrier) {
        st = dpar_barrier(pipeline->comm, NULL);
    }
    pipeline->under_way = 0;
    if (st == DPAR_OK) {
        return st;
    }
    dpari_pl_give_up(pipeline, st);
    return dpari_repeat(st, why, pipeline->comm->why.text);
}

DPAR_API dpar_status dpar_pipeline_times(dpar_pipeline *pipeline, int64_t *start, int64_t *end,
                                         dpar_why *why)
{
    dpar_status st;
    if (pipeline == NULL || pipeline->desc.start == NULL ||
        (pipeline->comm->rank == 0 && (start == NULL || end == NULL))) {
        return dpari_wrong(
            why, "dpar_pipeline_times: the pipeline has no desc.start, or start or end is NULL");
    }
    st = dpar_gather_v(pipeline->comm, pipeline->desc.start, pipeline->actions, start,
                       pipeline->rank_actions, pipeline->desc.schedule->begin, DPAR_I64, 0, NULL);
    if (st == DPAR_OK) {
        st = dpar_gather_v(pipeline->comm, pipeline->desc.end, pipeline->actions, end,
                           pipeline->rank_actions, pipeline->desc.schedule->begin, DPAR_I64, 0,
                           NULL);
    }
    if (st == DPAR_OK) {
        return st;
    }
    return dpari_repeat(st, why, pipeline->comm->why.text);
}

#endif /* DPAR_TRAIN_IMPLEMENTATION */
