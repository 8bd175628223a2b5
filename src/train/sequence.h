/* SPDX-License-Identifier: MIT-0 */
/* sequence - attention over tokens that ranks share. Here it is ring attention (context
 * parallelism): keys and values travel round the ranks. Other ways, by layer.way: ulysses.h
 * exchanges tokens for heads before and after; sliding windows need no ring (window_attention.h).
 * dpar knows which rank has which tokens, what travels when, the masks and the sums of softmax. The
 * arithmetic of a block is your kernel, or the plain one of this file:
 *
 *     dpar_packed_init(&layer.tokens, docs, ends, c->size, DPAR_SPLIT_ZIGZAG, &why);  layer: zeroed
 *     layer.heads = 32; layer.groups = 8; layer.width = 128;
 *     layer.type = DPAR_F32; layer.causal = 1;
 *     dpar_attention_make(c, &layer, &plan, &why);
 *     arrays.q = ...                            plan->tokens rows each, the rank's own tokens
 *     dpar_attention_forward(plan, &arrays);    every layer, every step
 *     dpar_attention_backward(plan, &arrays);
 *     dpar_attention_free(plan);
 *
 * (dpar_attention_bytes, _init and _close: the same in memory of yours.)
 *
 * Arrays are dense: q[tokens][heads][width], k[tokens][groups][width], v[tokens][groups][values],
 * out[tokens][heads][values], lse[tokens][heads]. Each heads / groups query heads share a group.
 * Several samples are several documents. Sums (out while it grows, lse, gradients of keys and
 * values on their way) are in f64 where the type is f64, else in f32. They are rounded to the type
 * once. Bits are the same in every run on as many ranks; on one rank they are the kernel's own.
 *
 * The ring has P steps, t = 0 .. P-1. In step t rank r computes on the keys and values of rank r -
 * t (modulo P). Meanwhile it sends them on to r + 1, and those of r - t - 1 come. On the way back
 * gradients of keys and values travel the same way, one step behind, until they are home. What the
 * rank's own queries gave has stayed there, so they make as many hops as keys and values.
 *
 * What a rank sends: T is all tokens, n those of this rank, m those of the next one, and E = groups
 * (width + values) the elements of a token.
 *
 *     forward   (T - m) E bytes(type)
 *     backward  (T - m) E bytes(type) + (T - n) E bytes(sums)
 *
 * A rank that is alone sends nothing. plan->sent counts it.
 *
 * Causal masks leave rank 0 idle most of the time when tokens are cut in order. With
 * DPAR_SPLIT_ZIGZAG, and documents of lengths that 2 P divides, every rank has as much to do at
 * every step as the others: plan->pairs counts it.
 *
 * In a device's memory (comm->mem) all arrays lie there. Give kernels, which work on its stream;
 * nothing waits.
 *
 * Megatron's sequence parallelism is another thing: activations between tensor-parallel layers are
 * cut along the sequence. That is an all-gather and a reduce-scatter round those layers:
 * tensor.h. */
#ifndef DPARI_TRAIN_SEQUENCE_H
#define DPARI_TRAIN_SEQUENCE_H

#include "../index/context.h"
#include "../index/heads.h"
#include "../comm/comm.h"

typedef struct dpar_attention_desc dpar_attention_desc;

/* How ranks come to the keys of others: NULL, the ring; dpar_attention_ulysses (ulysses.h);
 * dpar_attention_halo (window_attention.h, in dpar_spatial.h). You name it in a layer, the plan
 * calls it. */
struct dpari_attention_method;
typedef void (*dpar_attention_method)(struct dpari_attention_method *way);

/* A block: some queries that follow one another and some such keys, of one document. Query i sees
 * key j when i + low <= j <= i + high (no sum passes the counts of both). Arrays begin at the
 * block's first token, rows as above, all heads. "Sums" are f64 when the layer's type is f64, else
 * f32. */
typedef struct dpar_attention_call {
    const dpar_attention_desc *layer;
    int64_t queries, keys;
    int64_t query, key; /* place of the first of each in the packed sequence */
    int64_t low, high;
    const void *q, *k, *v; /* of the layer's type */
    void *out; /* forward writes sums. Backward reads what forward gave, of the layer's type */
    void *lse; /* sums. Forward writes the natural logarithm of the sum over keys of exp(scale q k);
                  -1e30 or less (and out 0) for a query that sees no key of the block. Backward
                  reads that over all keys */
    const void *out_gradient;                   /* of the layer's type */
    const void *delta;                          /* sums, [queries][heads]: out . out_gradient */
    void *q_gradient, *k_gradient, *v_gradient; /* sums, to be ADDED to */
    void *user;
} dpar_attention_call;
typedef void (*dpar_attention_kernel)(const dpar_attention_call *call);

/* A layer of attention. Zero it and fill in what differs. The same on all ranks, but for kernels
 * and user. */
struct dpar_attention_desc {
    dpar_attention_method way; /* NULL: the ring, all keys pass by all ranks.
                               dpar_attention_ulysses, dpar_attention_halo: each rank has a part of
                               the packed sequence, whatever the documents */
    /* Documents, and which tokens of them each rank has; as many ranks as the communicator.
     * ZIGZAG, CHUNK or EVEN; STRIPE works too, in blocks of one token. */
    dpar_packed tokens;
    int32_t heads;  /* of queries */
    int32_t groups; /* of keys and values (GQA); divides heads. 0: as many as heads */
    int32_t width;  /* of a query or key */
    int32_t values; /* of a value; 0: width */
    int32_t type;   /* DPAR_F64, F32, BF16, F16 */
    int32_t causal; /* 1: a query sees no key behind it */
    int64_t window; /* > 0: a query sees no key farther than so many tokens away. Documents never
                       see others */
    double scale;   /* 0: 1 / sqrt(width) */
    int32_t tag;    /* of the messages: tag .. tag + 3 */
    int32_t heads_chunked; /* Ulysses: 1: heads by DPAR_SPLIT_CHUNK, the last ranks have less; 0:
                              EVEN */
    const dpar_split *cut; /* Ulysses: the tokens that ranks have, by any rule; NULL: by
                              tokens.rule. The caller's, as long as the plan */
    dpar_attention_kernel forward, backward; /* NULL: dpar_attention_host (F64 and F32) */
    void *user;
};

/* ---- blocks; local ---- */

/* A kernel in plain C, for F64 and F32: row by row, with the largest score so far subtracted. With
 * out_gradient it gives the gradients. It also does whole attention, of all tokens of a document at
 * once (causal: low -keys, high 0). Other types: nothing is written. O(pairs). */
DPAR_API void dpar_attention_host(const dpar_attention_call *call);

/* ---- plans ---- */

/* A plan of attention; these fields are to be read. */
typedef struct dpar_attention_plan {
    dpar_attention_desc layer; /* no field is 0 for a default any more */
    int64_t tokens;            /* of this rank: rows of its arrays */
    int64_t kept;              /* bytes of arrays.kept */
    int64_t pairs; /* pairs of a query and a key, in one head, that forward was given so far */
    int64_t sent;  /* bytes that went to other ranks so far */
} dpar_attention_plan;

/* The memory of one layer; NULLs on a rank without tokens. Memory of dpar_comm_alloc saves messages
 * a copy. */
typedef struct dpar_attention_arrays {
    const void *q, *k, *v; /* of the layer's type, as all but lse */
    void *out;             /* forward writes, backward reads */
    void *lse;  /* [tokens][heads], sums (f64 of f64, else f32): forward writes, backward reads.
                   Ulysses does not use it */
    void *kept; /* Ulysses: plan->kept bytes (aligned to 64), which forward writes and backward
                   reads: q, k, v, out and lse of this rank's heads */
    const void *out_gradient;                   /* backward reads */
    void *q_gradient, *k_gradient, *v_gradient; /* backward writes */
} dpar_attention_arrays;

/* Bytes of memory for a plan of attention on this rank. E_ARG, E_DIVIDE, E_RANGE with a sentence.
 * Local. O(docs x ranks).
 *
 * The ring takes two blocks of keys and values of the rank that has most tokens. It also takes one
 * out for forward, or four such blocks of sums for backward (2 ranks: three), the larger of both.
 * For 16-bit types there are an out and a query's gradient in f32 too. */
DPAR_API dpar_status dpar_attention_bytes(const dpar_comm *c, const dpar_attention_desc *layer,
                                          int64_t *bytes, dpar_why *why);
/* Plans attention in your memory (aligned to 64, best of dpar_comm_alloc). Where c->mem is a
 * device's it is the host's memory, and buffers are from dpar_comm_alloc until close. The
 * documents' ends stay yours, and live as long. One plan does all layers of this shape, one after
 * the other. COLLECTIVE: one all-reduce. Cost as dpar_attention_bytes.
 *
 * E_MISMATCH: ranks gave different layers. E_ROOM; else errors as dpar_attention_bytes. What fails
 * on one rank fails on all. */
DPAR_API dpar_status dpar_attention_init(void *memory, int64_t bytes, dpar_comm *c,
                                         const dpar_attention_desc *layer,
                                         dpar_attention_plan **plan, dpar_why *why);
/* out and lse from q, k, v. COLLECTIVE. The top of this file says what travels; the arithmetic is
 * the kernel's. Messages move on between calls of the kernel, or all the time with
 * dpar_comm_progress.
 *
 * E_ARG: arrays are missing. That breaks the communicator, so that the other ranks hear of it.
 * E_PEER, E_TIMEOUT as comm.h. The sentence is in the communicator's why. E_ARG without one: plan
 * or a is NULL. */
DPAR_API dpar_status dpar_attention_forward(dpar_attention_plan *plan,
                                            const dpar_attention_arrays *a);
/* Gradients of q, k, v from that of out; q, k, v, out, lse are as forward left them. COLLECTIVE;
 * errors as forward. The top of this file says what travels. */
DPAR_API dpar_status dpar_attention_backward(dpar_attention_plan *plan,
                                             const dpar_attention_arrays *a);

/* Ends a plan of attention; its memory is yours again. COLLECTIVE. NULL is fine. OK, or errors as
 * dpar_halo_plan_close where its way is dpar_attention_halo. */
DPAR_API dpar_status dpar_attention_close(dpar_attention_plan *plan);

/* A plan in memory of its own: dpar_attention_bytes, the memory and dpar_attention_init in one,
 * with their errors and cost; E_ROOM, too, where there is no memory. COLLECTIVE. */
DPAR_API dpar_status dpar_attention_make(dpar_comm *c, const dpar_attention_desc *layer,
                                         dpar_attention_plan **plan, dpar_why *why);
/* Ends what dpar_attention_make made, as dpar_attention_close. COLLECTIVE. NULL is fine. */
DPAR_API dpar_status dpar_attention_free(dpar_attention_plan *plan);

#endif
