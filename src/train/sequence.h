/* SPDX-License-Identifier: MIT-0 */
/* sequence - computes attention over tokens that ranks share (context parallelism). This file is
 * ring attention, in which keys and values are passed from rank to rank round a ring. layer.method
 * selects another method: ulysses.h exchanges tokens for heads before and after attention, and
 * window_attention.h gets the keys of a sliding window as a halo. dpar knows which rank has which
 * tokens, what is sent when, the masks, and the sums of the softmax. The arithmetic of a block is
 * done by your kernel, or by the plain one of this file:
 *
 *     memset(&layer, 0, sizeof(layer));
 *     dpar_packed_init(&layer.tokens, docs, ends, comm->size, DPAR_SPLIT_ZIGZAG, &why);
 *     layer.heads = 32; layer.groups = 8; layer.width = 128;
 *     layer.type = DPAR_F32; layer.causal = 1;
 *     dpar_attention_make(comm, &layer, &plan, &why);
 *     arrays.q = ...                            plan->tokens rows each, the rank's own tokens
 *     dpar_attention_forward(plan, &arrays);    every layer, every step
 *     dpar_attention_backward(plan, &arrays);
 *     dpar_attention_free(plan);
 *
 * Arrays are dense: q[tokens][heads][width], k[tokens][groups][width],
 * v[tokens][groups][value_width], out[tokens][heads][value_width], lse[tokens][heads]. Each heads /
 * groups query heads share a group. The samples of a batch are documents of one packed sequence.
 *
 * "Sums" are out while it is accumulated, lse, and the gradients of keys and values while they are
 * accumulated. They are f64 if the type is f64, otherwise f32, and are rounded to the type once.
 * Results have the same bits in every run on the same number of ranks; on one rank they are the
 * kernel's own.
 *
 * The ring has P steps, t = 0 .. P-1. In step t, rank r computes with the keys and values of rank r
 * - t (modulo P). Meanwhile it sends them to rank r + 1 and receives those of rank r - t - 1. In
 * backward, the gradients of keys and values are passed in the same direction, one step later,
 * until they reach their owner. The gradients from a rank's own queries stay on that rank, so that
 * gradients take as many hops as keys and values.
 *
 * The traffic of a rank: T is the number of all tokens, n that of this rank, m that of the next
 * one, and E = groups (width + value_width) the number of elements of a token. It sends
 *
 *     forward   (T - m) E bytes(type)
 *     backward  (T - m) E bytes(type) + (T - n) E bytes(sums)
 *
 * A single rank sends nothing. plan->sent_bytes counts the bytes.
 *
 * With a causal mask, and tokens that are cut in order, rank 0 is idle most of the time. With
 * DPAR_SPLIT_ZIGZAG, and documents whose lengths 2 P divides, every rank has the same work in every
 * step. plan->pairs counts it.
 *
 * If comm->mem is the memory of a device, all arrays are in that memory, and you have to give
 * kernels, which enqueue on its stream. No function waits for the device.
 *
 * Megatron's sequence parallelism is something else: it cuts the activations between
 * tensor-parallel layers along the sequence, with an all-gather and a reduce-scatter round these
 * layers. tensor.h has it. */
#ifndef DPARI_TRAIN_SEQUENCE_H
#define DPARI_TRAIN_SEQUENCE_H

#include "../index/context.h"
#include "../index/heads.h"
#include "../comm/comm.h"

typedef struct dpar_attention_desc dpar_attention_desc;

/* Selects how ranks get the keys of other ranks. NULL is the ring, dpar_attention_ulysses is in
 * ulysses.h, and dpar_attention_halo is in window_attention.h (dpar_spatial.h). Assign one to
 * layer.method; only the plan calls it. */
struct dpari_attention_method;
typedef void (*dpar_attention_method)(struct dpari_attention_method *way);

/* Describes a block for a kernel: a run of queries and a run of keys of one document. Query i sees
 * key j if i + low <= j <= i + high; no sum exceeds the counts of both. Arrays begin at the first
 * token of the block, have rows as described above, and contain all heads. "Sums" are f64 if the
 * layer's type is f64, otherwise f32. */
typedef struct dpar_attention_call {
    const dpar_attention_desc *layer;
    int64_t queries, keys; /* numbers of queries and keys */
    int64_t first_query,
        first_key; /* places of the first query and the first key in the packed sequence */
    int64_t low, high;
    const void *q, *k, *v; /* of the layer's type */
    void *out;             /* forward writes sums; backward reads the result of forward, of the
                              layer's type */
    /* Sums. Forward writes the natural logarithm of the sum over keys of exp(scale q k). For a
     * query that sees no key of the block it writes -1e30 or less, and 0 to out. Backward reads the
     * logarithm over all keys. */
    void *lse;
    const void *out_gradient;                   /* of the layer's type */
    const void *delta;                          /* sums, [queries][heads]: out . out_gradient */
    void *q_gradient, *k_gradient, *v_gradient; /* sums, to which backward adds */
    void *user;                                 /* that of the layer */
} dpar_attention_call;
/* Computes the attention of a block, or its gradients: a callback of yours. */
typedef void (*dpar_attention_kernel)(const dpar_attention_call *call);

/* Describes a layer of attention. Zero it and fill in what differs from the defaults. All ranks
 * give the same values, except kernels, user, memory and bytes. */
struct dpar_attention_desc {
    /* NULL selects the ring, in which every rank gets all keys. With dpar_attention_ulysses and
     * dpar_attention_halo each rank has a part of the packed sequence, whatever the documents. */
    dpar_attention_method method;
    /* The documents, and which of their tokens each rank has, for as many ranks as the
     * communicator has. The rule is ZIGZAG, CHUNK or EVEN; CYCLIC also works, but in blocks of one
     * token. */
    dpar_packed tokens;
    int32_t heads;       /* number of query heads */
    int32_t groups;      /* number of key-value heads (GQA), which divides heads; 0 selects heads */
    int32_t width;       /* elements of a query or key */
    int32_t value_width; /* elements of a value; 0 selects width */
    int32_t type;        /* DPAR_F64, F32, BF16 or F16 */
    int32_t causal;      /* 1: a query sees no key after it */
    int64_t window;      /* above 0: a query sees no key that is more than this many tokens away.
                            Documents never see each other */
    double scale;        /* factor of the scores; 0 selects 1 / sqrt(width) */
    int32_t tag;         /* messages use tag .. tag + 3 */
    int32_t heads_chunked; /* Ulysses: 1 cuts heads by DPAR_SPLIT_CHUNK, so that the last ranks have
                              fewer; 0 cuts them by DPAR_SPLIT_EVEN */
    /* Ulysses: how ranks share the tokens, by any rule; NULL selects tokens.rule. Kept by you as
     * long as the plan exists. */
    const dpar_split *token_split;
    dpar_attention_kernel forward, backward; /* NULL selects dpar_attention_host (F64 and F32) */
    void *user;                              /* passed to the kernels */
    /* Memory of yours for the plan, aligned to 64, as long as the plan exists. It is memory of the
     * host; that of dpar_comm_alloc is the fastest. NULL with bytes 0: dpar_attention_make
     * allocates it. Too few bytes are DPAR_E_ROOM, and why->bytes tells how many are needed; to
     * ask, set memory NULL and bytes 1. */
    void *memory;
    int64_t bytes;
};

/* ---- blocks; local ---- */

/* Computes the attention of a block in plain C for F64 and F32, or its gradients if out_gradient is
 * given. It goes row by row and subtracts the largest score so far. It also computes the attention
 * of a whole document at once: with low = -keys, and high = 0 if causal. For other types it writes
 * nothing. Local. O(pairs of a query and a key). */
DPAR_API void dpar_attention_host(const dpar_attention_call *call);

/* ---- plans ---- */

/* A plan of attention, whose fields you may read. */
typedef struct dpar_attention_plan {
    dpar_attention_desc layer; /* as given, with the defaults filled in */
    int64_t tokens;            /* tokens of this rank: rows of its arrays */
    int64_t saved_bytes;       /* bytes of arrays.saved */
    int64_t pairs;      /* pairs of a query and a key, in one head, that forward computed so far */
    int64_t sent_bytes; /* bytes that were sent to other ranks so far */
} dpar_attention_plan;

/* Arrays of one layer, all of the layer's type except lse and saved. A rank without tokens gives
 * NULLs. Messages from memory of dpar_comm_alloc are not copied. */
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

/* Plans attention. One plan serves all layers of this shape, one after the other.
 *
 * layer: the array of document ends in layer->tokens stays yours, and has to exist as long as the
 *        plan.
 *
 * The ring needs two blocks of keys and values of the rank that has most tokens. It also needs one
 * out for forward, or four such blocks of sums for backward (three on 2 ranks), whichever is
 * larger. 16-bit types need an out and a query's gradient in f32 as well. If comm->mem is the
 * memory of a device, these buffers are allocated there with dpar_comm_alloc until free.
 *
 * Collective over comm: one all-reduce. O(docs x ranks). Fails on all ranks with DPAR_E_MISMATCH if
 * layers differ, DPAR_E_ROOM, DPAR_E_MEMORY, DPAR_E_ARG, DPAR_E_DIVIDE or DPAR_E_RANGE. */
DPAR_API dpar_status dpar_attention_make(dpar_comm *comm, const dpar_attention_desc *layer,
                                         dpar_attention_plan **plan, dpar_why *why);
/* Computes out and lse from q, k and v.
 *
 * Collective. The top of this file gives the traffic; the arithmetic is the kernel's. Messages
 * progress between calls of the kernel, or all the time with dpar_comm_progress.
 *
 * Fails with DPAR_E_ARG if arrays are missing, which breaks the communicator so that the other
 * ranks notice. Fails with DPAR_E_PEER and DPAR_E_TIMEOUT as described in comm.h. The message is in
 * the communicator's why, except for DPAR_E_ARG because plan or arrays is NULL. */
DPAR_API dpar_status dpar_attention_forward(dpar_attention_plan *plan,
                                            const dpar_attention_arrays *arrays);
/* Computes the gradients of q, k and v from that of out. The arrays q, k, v, out, lse and saved
 * must be as dpar_attention_forward left them. Collective. The top of this file gives the traffic.
 * Fails as dpar_attention_forward does. */
DPAR_API dpar_status dpar_attention_backward(dpar_attention_plan *plan,
                                             const dpar_attention_arrays *arrays);

/* Frees a plan of attention. NULL is allowed. Collective. With dpar_attention_halo it fails as
 * dpar_halo_plan_free does. */
DPAR_API dpar_status dpar_attention_free(dpar_attention_plan *plan);

#endif
