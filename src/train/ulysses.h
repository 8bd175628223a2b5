/* SPDX-License-Identifier: MIT-0 */
/* ulysses - computes attention (sequence.h) by exchanging tokens for heads. Before attention, each
 * rank has some of the tokens with all heads. After an exchange it has all tokens with some of the
 * heads. It then computes attention as a single rank would, and the results are exchanged back.
 *
 *     layer.method = dpar_attention_ulysses;   set other fields as in sequence.h
 *     dpar_packed_init(&layer.tokens, docs, ends, c->size, DPAR_SPLIT_EVEN, &why);
 *     dpar_attention_make(c, &layer, &plan, &why);         continue as for the ring
 *     arrays.saved = plan->saved_bytes bytes for each layer
 *
 * Each rank has a part of the packed sequence, without regard to documents: by tokens.rule, or by
 * layer.token_split. dpar_heads_init divides the heads, and ranks may have different numbers of
 * them. If there are fewer groups than ranks, several ranks hold copies of a group, and its
 * gradients are added in rank order (16-bit types in f32, rounded once). The kernel gets whole
 * documents and this rank's heads, whose numbers are in call->layer.
 *
 * If ranks share memory, and the arrays to be exchanged come from dpar_comm_alloc on all ranks,
 * each rank reads its heads (or tokens) directly from the other ranks' arrays. This takes one pass
 * and is as fast as a plain all-to-all. Otherwise the arrays are packed before an all-to-all and
 * sorted after it, which takes three passes. Both methods give the same bits.
 *
 * Traffic. Let this rank have n of all N tokens, and h heads. Let H be the number of heads of all
 * ranks, counting each copy. For an array with `width` elements per token and head, the rank sends
 *
 *     (H - h) n width bytes(type)     from tokens to heads
 *     h (N - n) width bytes(type)     from heads to tokens
 *
 * Forward exchanges q, k and v to heads, and out back to tokens. Backward exchanges the gradient of
 * out to heads, and those of q, k and v back to tokens.
 *
 * The plan contains one copy of the rank's tokens with all heads for queries and one for keys, or
 * two of each if values and keys differ in width. If the rule does not give each rank consecutive
 * tokens in rank order, it also contains the same number of copies of all tokens with the rank's
 * heads. It also contains the gradients that backward computes. */
#ifndef DPARI_TRAIN_ULYSSES_H
#define DPARI_TRAIN_ULYSSES_H

#include "sequence.h"

/* Selects the exchange of tokens for heads. Assign it to dpar_attention_desc.method, but do not
 * call it. O(1). */
DPAR_API void dpar_attention_ulysses(struct dpari_attention_method *method);

/* Arrays of a layer, for dpar_attention_exchange. */
enum { DPAR_ATTENTION_Q, DPAR_ATTENTION_K, DPAR_ATTENTION_V, DPAR_ATTENTION_OUT };

/* Executes one exchange of a plan with dpar_attention_ulysses. Use it if you compute attention
 * yourself between two exchanges.
 *
 * array:   DPAR_ATTENTION_Q, ... DPAR_ATTENTION_OUT.
 * back:    0 fills out[all tokens][heads of this rank][width] from in[tokens][all heads][width]. 1
 *          is the opposite direction, in which copies of a group are added. Each direction is also
 *          the gradient of the other.
 * in, out: must not overlap.
 *
 * Collective: one all-to-all-v, or one pass of direct reads. The top of this file lists the
 * traffic. Fails with DPAR_E_ARG, which breaks the communicator, if the plan has another method,
 * there is no such array, or in or out is NULL. Fails with DPAR_E_MISMATCH if ranks exchange
 * different arrays. With MPI or DPAR_WORLD_NO_DIRECT this is noticed only if the numbers of
 * elements differ. Other errors are those of dpar_attention_forward. The message is in the
 * communicator's why. If plan is NULL, fails with DPAR_E_ARG without a message. */
DPAR_API dpar_status dpar_attention_exchange(dpar_attention_plan *plan, int32_t array, int back,
                                             const void *in, void *out);

#endif
