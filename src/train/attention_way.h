/* SPDX-License-Identifier: MIT-0 */
/* attention_way - private: what a way of attention that stands above training (windows by halos,
 * window_attention.h) does inside of a plan, and what it uses of sequence.c. */
#ifndef DPARI_TRAIN_ATTENTION_WAY_H
#define DPARI_TRAIN_ATTENTION_WAY_H

#include "../comm/agree.h"
#include "sequence.h"

/* Keys and values of a rank's tokens, or their gradients. */
typedef struct dpari_seq_block {
    int32_t rank, own; /* own: of this rank */
    int64_t lo, hi;    /* slices: which tokens */
    int64_t tokens;
    const void *k, *v;
    void *to_k, *to_v; /* the same, where they are written */
} dpari_seq_block;

/* Such a way cuts the packed sequence into slices, one a rank. */
typedef struct dpari_attention_way {
    /* Takes what the plan needs on this rank: its own state behind the plan (p->of_way), buffers
     * where the arrays are. The rooms give NULL while bytes are counted. */
    dpar_status (*lay)(dpar_attention_plan *p, const dpar_comm *c, dpari_room *behind,
                       dpari_room *buffers, dpar_why *why);
    dpar_status (*init)(dpar_attention_plan *p, dpar_why *why); /* COLLECTIVE, as what follows */
    void (*push)(dpar_attention_plan *p); /* between two blocks: local */
    dpar_status (*forward)(dpar_attention_plan *p, const dpar_attention_arrays *a);
    /* *home: the gradients of this rank's keys and values, in the type of sums. */
    dpar_status (*backward)(dpar_attention_plan *p, const dpar_attention_arrays *a, void *dq,
                            dpari_seq_block *home);
    dpar_status (*close)(dpar_attention_plan *p);
} dpari_attention_way;

/* The slice of a rank; empty for one that does not exist. */
DPARI_DOOR void dpari_seq_slice(const dpar_attention *a, int32_t rank, int64_t *lo, int64_t *hi);
/* How many of the tokens [lo, hi) lie beside the slice of a rank, within the window. */
DPARI_DOOR int64_t dpari_seq_beside(const dpar_attention *a, int32_t rank, int64_t lo, int64_t hi);
/* All queries of the rank with the keys of one block. Of the own block each query sees a key
 * (itself): what the first call of a run of queries gives is there before anything is added. */
DPARI_DOOR dpar_status dpari_seq_attend(dpar_attention_plan *p, const dpar_attention_arrays *x,
                                       const dpari_seq_block *b);
/* out . out_gradient of each row, which attend_back needs. */
DPARI_DOOR dpar_status dpari_seq_delta(dpar_attention_plan *p, const dpar_attention_arrays *a);
/* Adds what the rank's queries give to dq and to the gradients of block b, which are g. */
DPARI_DOOR void dpari_seq_attend_back(dpar_attention_plan *p, const dpar_attention_arrays *x,
                                     const dpari_seq_block *b, const dpari_seq_block *g, void *dq);

#endif
