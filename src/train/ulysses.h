/* SPDX-License-Identifier: MIT-0 */
/* ulysses - computes attention (sequence.h) by exchanging tokens for heads. Before attention, each
 * rank has some of the tokens with all heads. An exchange gives it all tokens with some of the
 * heads. It computes attention as one rank would, and the results are exchanged back.
 *
 *     layer.method = dpar_attention_ulysses;   layer: as sequence.h says
 *     dpar_packed_init(&layer.tokens, docs, ends, c->size, DPAR_SPLIT_EVEN, &why);
 *     dpar_attention_make(c, &layer, &plan, &why);         and on, as for the ring
 *     arrays.saved = plan->saved_bytes bytes of each layer
 *
 * Each rank has a part of the packed sequence, whatever the documents: by tokens.rule, or by
 * layer.token_split. Heads are cut by dpar_heads_init and may be uneven. If there are fewer groups
 * than ranks, several ranks hold copies of a group, and its gradients are added in rank order
 * (16-bit types in f32, rounded once). The kernel gets whole documents and this rank's heads;
 * call->layer says how many.
 *
 * If ranks share memory, and the arrays to be exchanged come from dpar_comm_alloc on all ranks,
 * each rank reads its heads (or tokens) directly from the other ranks' arrays. This takes one pass
 * and is as fast as a bare all-to-all. Otherwise they are packed before an all-to-all and sorted
 * after it, which is three passes. Both give the same bits.
 *
 * Traffic. This rank has n of all N tokens, and h heads; H is the number of heads of all ranks,
 * counting each copy. Of an array with `width` elements for each token and head, it sends
 *
 *     (H - h) n width bytes(type)     on the way to the heads
 *     h (N - n) width bytes(type)     on the way back
 *
 * Forward exchanges q, k and v to the heads, and out back. Backward exchanges the gradient of out
 * to the heads, and those of q, k and v back.
 *
 * The plan holds one copy of the rank's tokens with all heads for queries and one for keys, or two
 * of each if values and keys differ in width. If tokens are out of order, it also holds one copy of
 * all tokens with the rank's heads. It also holds the gradients that backward computes. */
#ifndef DPARI_TRAIN_ULYSSES_H
#define DPARI_TRAIN_ULYSSES_H

#include "sequence.h"

/* Selects the exchange of tokens for heads: a value for dpar_attention_desc.method. Do not call it.
 * O(1). */
DPAR_API void dpar_attention_ulysses(struct dpari_attention_method *way);

/* Arrays of a layer, for dpar_attention_exchange. */
enum { DPAR_ATTENTION_Q, DPAR_ATTENTION_K, DPAR_ATTENTION_V, DPAR_ATTENTION_OUT };

/* Executes one exchange of a plan with dpar_attention_ulysses, for attention of your own between
 * two exchanges.
 *
 * array:   DPAR_ATTENTION_Q, ... DPAR_ATTENTION_OUT.
 * back:    0 fills out[all tokens][heads of this rank][width] from in[tokens][all heads][width]. 1
 *          is the opposite, and also the gradient of 0: copies of a group are added.
 * in, out: must not overlap.
 *
 * Collective: one all-to-all-v or one pass. The top of this file gives the traffic. Fails with
 * DPAR_E_ARG, which breaks the communicator, for a plan with another method, if there is no such
 * array, or if in or out is NULL. Fails with DPAR_E_MISMATCH if ranks exchange different arrays;
 * with MPI or DPAR_WORLD_NO_DIRECT this is not noticed if the numbers of elements are equal. Other
 * errors are those of dpar_attention_forward. The message is in the communicator's why, except for
 * DPAR_E_ARG because plan is NULL. */
DPAR_API dpar_status dpar_attention_exchange(dpar_attention_plan *plan, int32_t array, int back,
                                             const void *in, void *out);

#endif
