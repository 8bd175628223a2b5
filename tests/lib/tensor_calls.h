/* SPDX-License-Identifier: MIT-0 */
/* The functions of vocabularies, with their arrays as arguments. */
#ifndef TENSOR_CALLS_H
#define TENSOR_CALLS_H

#include <string.h>

static inline dpar_status embedding_forward(const dpar_tensor_parallel *t, const dpar_vocab *v,
                                            int64_t width, const int32_t *ids, const void *table,
                                            void *y, void *whole)
{
    dpar_embedding e;
    dpar_embedding_arrays a;
    memset(&e, 0, sizeof e);
    memset(&a, 0, sizeof a);
    if (v != NULL) {
        e.vocab = *v;
    }
    e.width = width;
    a.ids = ids;
    a.table = table;
    a.y = y;
    a.gathered = whole;
    return dpar_embedding_forward(t, v != NULL ? &e : NULL, &a);
}

static inline dpar_status embedding_backward(const dpar_tensor_parallel *t, const dpar_vocab *v,
                                             int64_t width, const int32_t *ids, const void *dy,
                                             void *dtable, int add, void *whole)
{
    dpar_embedding e;
    dpar_embedding_arrays a;
    memset(&a, 0, sizeof a);
    e.vocab = *v;
    e.width = width;
    a.ids = ids;
    a.dy = dy;
    a.dtable = dtable;
    a.accumulate = add;
    a.gathered = whole;
    return dpar_embedding_backward(t, &e, &a);
}

static inline dpar_status cross_entropy_forward(const dpar_tensor_parallel *t,
                                                const dpar_cross_entropy *e, void *logits,
                                                const int32_t *targets, double *lse, double *loss,
                                                dpar_cross_entropy_sum *sum, void *scratch)
{
    dpar_cross_entropy_arrays a;
    memset(&a, 0, sizeof a);
    a.logits = logits;
    a.targets = targets;
    a.lse = lse;
    a.loss = loss;
    a.sum = sum;
    a.scratch = scratch;
    return dpar_cross_entropy_forward(t, e, &a);
}

static inline dpar_status cross_entropy_backward(const dpar_tensor_parallel *t,
                                                 const dpar_cross_entropy *e, void *logits,
                                                 const int32_t *targets, double *lse, double scale)
{
    dpar_cross_entropy_arrays a;
    memset(&a, 0, sizeof a);
    a.logits = logits;
    a.targets = targets;
    a.lse = lse;
    return dpar_cross_entropy_backward(t, e, &a, scale);
}

#endif
