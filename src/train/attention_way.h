/* SPDX-License-Identifier: MIT-0 */
/* attention_way - private: the plan of attention, the functions by which a method other than the
 * ring (ulysses.h, window_attention.h) takes part in it, and the functions of sequence.c that such
 * a method calls. window_attention.h is in dpar_spatial.h, which includes training. */
#ifndef DPARI_TRAIN_ATTENTION_WAY_H
#define DPARI_TRAIN_ATTENTION_WAY_H

#include "../base/arith.h"
#include "../comm/agree.h"
#include "sequence.h"

/* The most sends and receives of one step: keys, values and the gradients of both, to one rank and
 * from another. */
enum { DPARI_ATTENTION_MAIL = 8 };

/* A plan of attention. The arrays below `work` are buffers; those that are not used are NULL. */
typedef struct dpari_attention {
    dpar_attention_plan head;
    dpar_comm *comm;
    int32_t sums;   /* type of sums: DPAR_F64 or DPAR_F32 */
    int32_t calls;  /* entries of `call` that are to be posted */
    int32_t posted; /* entries of `work` under way */
    dpar_call call[DPARI_ATTENTION_MAIL];
    dpar_work work[DPARI_ATTENTION_MAIL];
    void *keys[2];          /* keys, then values, of other ranks; used in turns */
    void *part, *part_lse;  /* the result of one block, before it is merged */
    void *out, *q_gradient; /* in the type of sums, if the layer has another type */
    void *delta;            /* out . out_gradient of each query and head */
    void *gradients[4];     /* of keys, then values: two being sent, one to add, the rank's own */
    void *of_way;           /* state of the method */
    void *device;           /* memory of the device that holds the buffers, if comm->mem is one */
    int64_t device_bytes;
} dpari_attention;

/* Keys and values of a rank's tokens, or of a slice of them, or their gradients. */
typedef struct dpari_seq_block {
    int32_t rank, own; /* own: 1 for the tokens of this rank */
    int64_t lo, hi;    /* which tokens of the packed sequence, if the method has slices */
    int64_t tokens;
    const void *k, *v;
    void *to_k, *to_v; /* the same arrays, to write to */
} dpari_seq_block;

/* A method of attention. If a function is NULL, the ring's is used, or nothing is done. */
struct dpari_attention_method {
    int32_t number; /* of the method, 1 or more; ranks compare it */
    int32_t whole;  /* 1: forward and backward fill the caller's arrays, sums rounded to the type */
    /* Checks that the method can compute the layer, whose defaults are filled in. state adds what
     * the ranks have to compare. */
    dpar_status (*check)(const dpar_attention_desc *a, dpar_why *why);
    void (*state)(dpari_facts *f, const dpar_attention_desc *a);
    /* Takes the memory that the plan needs on this rank: its own state behind the plan (p->of_way),
     * and buffers where the arrays are. While bytes are counted, the rooms return NULL. */
    dpar_status (*lay)(dpari_attention *p, const dpar_comm *comm, dpari_room *behind,
                       dpari_room *buffers, dpar_why *why);
    dpar_status (*init)(dpari_attention *p, dpar_why *why); /* collective, as those below */
    void (*push)(dpari_attention *p);                       /* between two blocks: local */
    dpar_status (*forward)(dpari_attention *p, const dpar_attention_arrays *a);
    /* *home: the gradients of this rank's keys and values, in the type of sums. */
    dpar_status (*backward)(dpari_attention *p, const dpar_attention_arrays *a, void *dq,
                            dpari_seq_block *home);
    dpar_status (*close)(dpari_attention *p);
};
typedef struct dpari_attention_method dpari_attention_method;

/* Computes the slice of tokens of a rank; it is empty for a rank that does not exist. */
DPARI_API void dpari_seq_slice(const dpar_attention_desc *layer, int32_t rank, int64_t *lo,
                               int64_t *hi);
/* Computes attention of all queries of the rank to the keys of one block, and merges it with the
 * result so far. Call it first with the own block, in which each query sees at least its own
 * key. */
DPARI_API dpar_status dpari_seq_attend(dpari_attention *plan, const dpar_attention_arrays *x,
                                       const dpari_seq_block *b);
/* Computes out . out_gradient of each row, which dpari_seq_attend_back needs. */
DPARI_API dpar_status dpari_seq_delta(dpari_attention *plan, const dpar_attention_arrays *arrays);
/* Adds the gradients from the rank's queries and block b to dq and to g, the gradients of block
 * b. */
DPARI_API void dpari_seq_attend_back(dpari_attention *plan, const dpar_attention_arrays *x,
                                     const dpari_seq_block *b, const dpari_seq_block *g, void *dq);

/* ---- of this header's own modules ---- */

/* Rounds sums of a plan to the layer's type. If `to` is `from`, nothing happens. */
DPARI_INTERNAL dpar_status dpari_seq_round(const dpari_attention *plan, void *to, const void *from,
                                           int64_t n);
/* The type of sums: F64 or F32. */
DPARI_INTERNAL int32_t dpari_seq_sums(int32_t type);
/* The address of an element; NULL if base is NULL. */
DPARI_INTERNAL const void *dpari_seq_in(const void *base, int64_t elements, int32_t type);
DPARI_INTERNAL void *dpari_seq_at(void *base, int64_t elements, int32_t type);

#endif
