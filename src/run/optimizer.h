/* SPDX-License-Identifier: MIT-0 */
/* optimizer - AdamW and SGD on any piece of the parameters, in the host's memory: what one rank of
 * ZeRO does with its shard, and what one rank alone does with all.
 *
 * Each element is loaded into f64, updated there and rounded once as it is stored, so that its bits
 * depend neither on where it lies nor on how the parameters are cut.
 *
 *     AdamW (Loshchilov and Hutter 2019), decay decoupled from the gradient:
 *         w -= rate decay w;   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g g
 *         w -= rate / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + epsilon)
 *     SGD (as PyTorch has it: decay is a part of the gradient):
 *         g += decay w;   m = momentum m + g;   w -= rate m, or rate (g + momentum m) (nesterov)
 *
 * where g is the gradient times `factor`: the clip, a loss scale, an average. A factor of 0 takes
 * gradients as 0 whatever they are, NaN too: the step then decays moments and weights, no more. */
#ifndef DPAR_OPTIMIZER_H
#define DPAR_OPTIMIZER_H

#include "../base/random.h"
#include "../base/type.h"

enum { DPAR_ADAMW, DPAR_SGD };

/* Begin with dpar_optimizer_adamw or _sgd and change what differs. */
typedef struct dpar_optimizer {
    int32_t kind;       /* DPAR_ADAMW, DPAR_SGD */
    int32_t nesterov;   /* SGD: 0 or 1 */
    int32_t stochastic; /* 1: what is rounded to BF16 is rounded up with the probability of its
                           remainder, so that small updates are not lost on average */
    int32_t room;       /* 0 */
    uint64_t seed;      /* of that */
    double beta1, beta2, epsilon; /* AdamW */
    double momentum;              /* SGD */
    double decay;                 /* of weights */
} dpar_optimizer;
/* beta1 0.9, beta2 0.999, epsilon 1e-8, decay 0.01: torch.optim.AdamW's. Local. */
DPAR_API dpar_optimizer dpar_optimizer_adamw(void);
/* Without decay. Local. */
DPAR_API dpar_optimizer dpar_optimizer_sgd(double momentum);
/* Arrays beside the weights that it keeps: 2, 1 or 0 (SGD without momentum). Local. */
DPAR_API int32_t dpar_optimizer_moments(const dpar_optimizer *o);
/* E_ARG with a sentence: a kind, a flag or a number that is none (rates of moments are within 0 and
 * below 1, the others not negative; epsilon above 0). Local. */
DPAR_API dpar_status dpar_optimizer_check(const dpar_optimizer *o, dpar_why *why);

/* Elements index .. index + count - 1 of all the parameters. */
typedef struct dpar_optimizer_piece {
    void *weight;         /* F64, F32, BF16 or F16 */
    const void *gradient; /* of any of these */
    void *m, *v;          /* F64 where weight is, else F32; 0 before the first step. NULL where the
                             optimizer has none */
    int32_t weight_type, gradient_type;
    int64_t count;
    uint64_t index; /* for random numbers: the same for an element however it is cut */
} dpar_optimizer_piece;
/* One step of it: t = 1 for the first. E_ARG: types, t, pointers that are NULL. Local. O(count). */
DPAR_API dpar_status dpar_optimizer_step(const dpar_optimizer *o, const dpar_optimizer_piece *p,
                                         int64_t t, double rate, double factor);

/* F32 to BF16, element i up or down by random number (seed, stream, index + i); NaN and infinities
 * as they are, what BF16 holds exactly, too. Local. O(count). */
DPAR_API void dpar_round_bf16(void *to, const void *from, int64_t count, uint64_t seed,
                              uint64_t stream, uint64_t index);

/* The sum of squares of `count` floats, in f64 and in order. Local. */
DPAR_API double dpar_sum_squares(const void *in, int64_t count, int32_t type);
/* What gradients are multiplied by so that their norm is at most `limit`: min(1, limit / (norm +
 * 1e-6)), as torch.nn.utils.clip_grad_norm_; limit <= 0: 1. A norm that is NaN or infinite
 * gives 0: a step that takes no gradients. Local. */
DPAR_API double dpar_clip_factor(double norm, double limit);

#endif
