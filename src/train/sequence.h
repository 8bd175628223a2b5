/* SPDX-License-Identifier: MIT-0 */
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
#ifndef DPARI_TRAIN_SEQUENCE_H
#define DPARI_TRAIN_SEQUENCE_H

#include "../index/context.h"
#include "../index/heads.h"
#include "../comm/comm.h"

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

#endif
