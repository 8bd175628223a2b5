/* SPDX-License-Identifier: MIT-0 */
/* ulysses - attention (sequence.h) by exchanging tokens for heads. Before attention a rank has some
 * tokens with all heads. It gives them for all tokens with some heads, computes attention as one
 * rank would, and gives the results back.
 *
 *     layer.way = dpar_attention_ulysses;   layer: as sequence.h says
 *     dpar_packed_init(&layer.tokens, docs, ends, c->size, DPAR_SPLIT_EVEN, &why);
 *     dpar_attention_make(c, &layer, &plan, &why);         and on, as for the ring
 *     arrays.kept = plan->kept bytes of each layer
 *
 * Each rank has a part of the packed sequence, whatever the documents: by tokens.rule, or by
 * layer.cut. Heads are cut by dpar_heads_init, uneven ones too. With fewer groups than ranks, ranks
 * hold copies of a group; its gradients are added in rank order (16-bit floats in f32, rounded
 * once). The kernel is given whole documents and this rank's heads (call->layer says how many).
 *
 * In shared memory each rank takes its heads (or tokens) where they lie, if that is memory of
 * dpar_comm_alloc on all ranks. That is one pass, as fast as a bare all-to-all. Else they are
 * packed before an all-to-all and sorted after it: three passes. Both ways give the same bits.
 *
 * What travels. This rank has n of all N tokens, and h heads; H is the heads of all ranks, copies
 * each. Of an array of `width` elements a token and head it sends
 *
 *     (H - h) n width bytes(type)     on the way to the heads
 *     h (N - n) width bytes(type)     on the way back
 *
 * Forward: q, k, v there, out back. Backward: out's gradient there, those of q, k, v back.
 *
 * The plan holds a copy of the rank's tokens with all heads for queries and one for keys (two each
 * where values are not as wide). For tokens that are out of order it holds another of all tokens
 * with its heads. It also holds what backward computes. */
#ifndef DPARI_TRAIN_ULYSSES_H
#define DPARI_TRAIN_ULYSSES_H

#include "sequence.h"

/* For dpar_attention_desc.way: name it there, never call it. O(1). */
DPAR_API void dpar_attention_ulysses(struct dpari_attention_method *way);

/* Arrays of a layer. */
enum { DPAR_ATTENTION_Q, DPAR_ATTENTION_K, DPAR_ATTENTION_V, DPAR_ATTENTION_OUT };

/* One exchange of a plan of this way alone, for attention of your own in between. back 0: out[all
 * tokens][heads of this rank][width] from in[tokens][all heads][width]. back 1: the opposite, and
 * the gradient of that: copies of a group are added. They do not overlap. COLLECTIVE: one
 * all-to-all-v or one pass. The top of this file says what travels.
 *
 * E_ARG: a plan of another way, no such array, or in or out is NULL, which breaks the communicator.
 * E_MISMATCH: ranks exchange different arrays. With MPI or DPAR_WORLD_NO_DIRECT that is not found
 * where as many elements travel. Else errors as dpar_attention_forward. The sentence is in the
 * communicator's why. E_ARG without one: plan is NULL. */
DPAR_API dpar_status dpar_attention_exchange(dpar_attention_plan *plan, int32_t array, int back,
                                             const void *in, void *out);

#endif
