/* SPDX-License-Identifier: MIT-0 */
/* attention_way - private: a plan of attention; what a way of it beside the ring (ulysses.h;
 * windows by halos, window_attention.h, which stands above training) does inside of one, and what
 * it uses of sequence.c. */
#ifndef DPARI_TRAIN_ATTENTION_WAY_H
#define DPARI_TRAIN_ATTENTION_WAY_H

#include "../base/arith.h"
#include "../comm/agree.h"
#include "sequence.h"

enum { DPARI_ATTENTION_MAIL = 8 };

typedef struct dpari_attention {
    dpar_attention_plan head;
    dpar_comm *comm;
    int32_t sums; /* DPAR_F64 or DPAR_F32 */
    int32_t calls, posted;
    dpar_call call[DPARI_ATTENTION_MAIL];
    dpar_work work[DPARI_ATTENTION_MAIL];
    void *keys[2]; /* keys, then values, of other ranks */
    void *part, *part_lse, *out, *delta, *q_gradient;
    void *gradients[4]; /* of keys, then values: two that travel, an addition, those at home */
    void *of_way;       /* the state of layer.way */
    void *device;       /* buffers that do not lie behind the plan, and how large they are */
    int64_t device_bytes;
} dpari_attention;

/* Keys and values of a rank's tokens, or their gradients. */
typedef struct dpari_seq_block {
    int32_t rank, own; /* own: of this rank */
    int64_t lo, hi;    /* slices: which tokens */
    int64_t tokens;
    const void *k, *v;
    void *to_k, *to_v; /* the same, where they are written */
} dpari_seq_block;

/* What is NULL is not done, or the ring does it. */
struct dpari_attention_method {
    int32_t number; /* one for each way, from 1 on: ranks compare it */
    int32_t whole;  /* 1: forward and backward fill the caller's arrays, sums rounded to the type */
    /* Is it a layer of this way? Its defaults are filled in. And what ranks compare besides. */
    dpar_status (*check)(const dpar_attention_desc *a, dpar_why *why);
    void (*state)(dpari_facts *f, const dpar_attention_desc *a);
    /* Takes what the plan needs on this rank: its own state behind the plan (p->of_way), buffers
     * where the arrays are. The rooms give NULL while bytes are counted. */
    dpar_status (*lay)(dpari_attention *p, const dpar_comm *c, dpari_room *behind,
                       dpari_room *buffers, dpar_why *why);
    dpar_status (*init)(dpari_attention *p, dpar_why *why); /* COLLECTIVE, as what follows */
    void (*push)(dpari_attention *p);                       /* between two blocks: local */
    dpar_status (*forward)(dpari_attention *p, const dpar_attention_arrays *a);
    /* *home: the gradients of this rank's keys and values, in the type of sums. */
    dpar_status (*backward)(dpari_attention *p, const dpar_attention_arrays *a, void *dq,
                            dpari_seq_block *home);
    dpar_status (*close)(dpari_attention *p);
};
typedef struct dpari_attention_method dpari_attention_method;

/* The slice of a rank; empty for one that does not exist. */
DPARI_DOOR void dpari_seq_slice(const dpar_attention_desc *a, int32_t rank, int64_t *lo,
                                int64_t *hi);
/* All queries of the rank with the keys of one block. Of the own block each query sees a key
 * (itself): what the first call of a run of queries gives is there before anything is added. */
DPARI_DOOR dpar_status dpari_seq_attend(dpari_attention *p, const dpar_attention_arrays *x,
                                        const dpari_seq_block *b);
/* out . out_gradient of each row, which attend_back needs. */
DPARI_DOOR dpar_status dpari_seq_delta(dpari_attention *p, const dpar_attention_arrays *a);
/* Adds what the rank's queries give to dq and to the gradients of block b, which are g. */
DPARI_DOOR void dpari_seq_attend_back(dpari_attention *p, const dpar_attention_arrays *x,
                                      const dpari_seq_block *b, const dpari_seq_block *g, void *dq);

/* ---- of this header's own modules ---- */

/* Sums of a plan to the layer's type; the same memory: nothing happens. */
DPARI_API dpar_status dpari_seq_round(const dpari_attention *p, void *to, const void *from,
                                      int64_t n);
/* F64 or F32. */
DPARI_API int32_t dpari_seq_sums(int32_t type);
/* `elements` after base; NULL after NULL. */
DPARI_API const void *dpari_seq_in(const void *base, int64_t elements, int32_t type);
DPARI_API void *dpari_seq_at(void *base, int64_t elements, int32_t type);

#endif
