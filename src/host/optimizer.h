/* SPDX-License-Identifier: MIT-0 */
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
#ifndef DPARI_HOST_OPTIMIZER_H
#define DPARI_HOST_OPTIMIZER_H

#include "../base/type.h"

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

#endif
