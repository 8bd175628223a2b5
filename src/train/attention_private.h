/* SPDX-License-Identifier: MIT-0 */
/* attention_private - private: the plan of attention, the functions that a method other than the
 * ring provides (ulysses.h, window_attention.h), and the functions of sequence.c that such a method
 * calls. window_attention.h is in dpar_spatial.h, which includes dpar_train.h. */
#ifndef DPARI_TRAIN_ATTENTION_PRIVATE_H
#define DPARI_TRAIN_ATTENTION_PRIVATE_H

#include "../base/arith.h"
#include "../comm/agree.h"
#include "sequence.h"

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

/* ---- of this header's own modules ---- */

/* Rounds n sums of a plan to the layer's type. Does nothing if `to` is `from`. */
DPARI_INTERNAL dpar_status dpari_seq_round(const dpari_attention *plan, void *to, const void *from,
                                           int64_t n);
/* Does what dpari_seq_at does, for an array that is only read. */
DPARI_INTERNAL const void *dpari_seq_in(const void *base, int64_t elements, int32_t type);

#endif
