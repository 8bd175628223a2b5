/* SPDX-License-Identifier: MIT-0 */
/* optimizer - AdamW and SGD on any piece of the parameters, in the host's memory. A rank of ZeRO
 * updates its shard with it, one rank alone all.
 *
 *     dpar_optimizer o;
 *     dpar_optimizer_init(&o, DPAR_OPTIMIZER_ADAMW);
 *     dpar_optimizer_step(&o, &piece, t, 1e-3, dpar_optimizer_clip(norm, 1.0));    t = 1, 2, ...
 *
 * Each element is loaded into f64, updated there and rounded once as it is stored. So its bits
 * depend neither on where it lies nor on how the parameters are cut.
 *
 *     AdamW (Loshchilov and Hutter 2019), decay decoupled from the gradient:
 *         w -= rate decay w;   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g g
 *         w -= rate / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + epsilon)
 *     SGD (as PyTorch has it: decay is a part of the gradient):
 *         g += decay w;   m = momentum m + g;   w -= rate m, or rate (g + momentum m) (nesterov)
 *
 * g is the gradient times `factor`: the clip, a loss scale, an average. A factor of 0 takes
 * gradients as 0 whatever they are, NaN too. The step then only decays moments and weights.
 *
 * Moments may be BF16 (moment_type). With weights and gradients in BF16, too, a step of AdamW moves
 * 14 bytes an element. The weights take m and v as they are before these are rounded. Let such
 * moments be stochastic: they then follow the sums above on average. Rounded to nearest they do
 * not. With beta2 = 0.999 v never falls: a thousandth of it is less than half a unit of its 8 bits
 * (2^-9 to 2^-8 of it). Nor does it grow before g g is 3 to 5 times v. With beta1 = 0.9 m stays
 * where it is while g is within 2 to 4 % of it. */
#ifndef DPARI_TRAIN_OPTIMIZER_H
#define DPARI_TRAIN_OPTIMIZER_H

#include "../base/type.h"

enum { DPAR_OPTIMIZER_ADAMW = 1, DPAR_OPTIMIZER_SGD }; /* 0: not said, E_ARG */

/* Begin with dpar_optimizer_init and change what differs. */
typedef struct dpar_optimizer {
    int32_t kind;     /* DPAR_OPTIMIZER_ADAMW, DPAR_OPTIMIZER_SGD */
    int32_t nesterov; /* SGD: 0 or 1 */
    /* 1: what is rounded to BF16 is rounded up with the probability of its remainder, so that small
     * updates are not lost on average. Element i goes by number index + i of a stream of `seed`
     * (random.h). Weights: stream t, the high half of each word. Moments: stream t + 2^63, the high
     * half for m, the low half for v. */
    int32_t stochastic;
    int32_t moment_type; /* 0: F64 beside F64 weights, else F32. DPAR_BF16: BF16, beside weights
                            that are not F64 */
    uint64_t seed;
    double beta1, beta2, epsilon; /* AdamW */
    double momentum;              /* SGD */
    double decay;                 /* of weights */
} dpar_optimizer;
/* The defaults of a kind. DPAR_OPTIMIZER_ADAMW: beta1 0.9, beta2 0.999, epsilon 1e-8, decay 0.01,
 * as torch.optim.AdamW. DPAR_OPTIMIZER_SGD: all 0, no momentum, no decay. Local. O(1). */
DPAR_API void dpar_optimizer_init(dpar_optimizer *o, int32_t kind);
/* Judges an optimizer of weights of a type. Says how many arrays it keeps beside them (AdamW 2, SGD
 * 1, without momentum 0) and of which type; NULL: not wanted. Local. O(1).
 *
 * E_ARG with a sentence: a kind, flag, type or number out of its domain, or moments in BF16 beside
 * weights in F64. beta1, beta2 and momentum are within 0 and below 1, decay is not negative,
 * epsilon above 0. */
DPAR_API dpar_status dpar_optimizer_check(const dpar_optimizer *o, int32_t weight_type,
                                          int32_t *moments, int32_t *moment_type, dpar_why *why);

/* Elements index .. index + count - 1 of all the parameters. */
typedef struct dpar_optimizer_piece {
    void *weight;         /* F64, F32, BF16 or F16 */
    const void *gradient; /* [count], of any of these types */
    void *m, *v; /* of the type that dpar_optimizer_check says; 0 before the first step; NULL where
                    the optimizer has none */
    int32_t weight_type, gradient_type;
    int64_t count;
    uint64_t index; /* for random numbers: an element has the same however parameters are cut */
} dpar_optimizer_piece;
/* One step of the optimizer: t = 1 for the first, gradients times `factor`. Local. O(count). E_ARG,
 * nothing done: an optimizer that dpar_optimizer_check refuses (which has the sentence), types, t
 * below 1, a count below 0, p or pointers that are NULL. */
DPAR_API dpar_status dpar_optimizer_step(const dpar_optimizer *o, const dpar_optimizer_piece *p,
                                         int64_t t, double rate, double factor);

/* The clip: what gradients are multiplied by so that their norm is at most `limit`. min(1, limit /
 * (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; limit <= 0: 1. A norm that is NaN or infinite
 * gives 0, a step that takes no gradients. Local. O(1). */
DPAR_API double dpar_optimizer_clip(double norm, double limit);

#endif
