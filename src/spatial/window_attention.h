/* SPDX-License-Identifier: MIT-0 */
/* window_attention - computes attention in a sliding window without a ring (sequence.h): each rank
 * receives the keys and values in the window around its own tokens as a halo.
 *
 *     layer.window = 4096;                  other fields as in sequence.h
 *     layer.method = dpar_attention_halo;
 *     dpar_packed_init(&layer.tokens, docs, ends, c->size, DPAR_SPLIT_EVEN, &why);
 *     dpar_attention_make(c, &layer, &plan, &why);         then as for the ring
 *
 * Each rank has a slice of the packed sequence: tokens.rule is CHUNK or EVEN, applied to the whole
 * sequence, whatever the documents. The rank receives the `window` tokens before its slice, and
 * those after it if not causal, from its neighbours or from ranks farther away. In backward, the
 * gradients of these tokens are sent back and added to those of their owners.
 *
 * Traffic. Let s be the number of this rank's tokens in the halos of other ranks, counted once for
 * each halo. Let h be the number of tokens in its own halo, without those beyond the ends of the
 * sequence, or 0 if it has no tokens. With E = groups (width + value_width) elements per token, it
 * sends
 *
 *     forward   s E bytes(type)
 *     backward  s E bytes(type) + h E bytes(sums)
 *
 * The plan holds the rank's own keys and values and those of its halo, their gradients, and partial
 * results of `out`. It also holds two halo exchanges, which dpar_attention_make plans with
 * dpar_halo_plan_make and dpar_attention_free frees. */
#ifndef DPARI_SPATIAL_WINDOW_ATTENTION_H
#define DPARI_SPATIAL_WINDOW_ATTENTION_H

#include "../train/sequence.h"

/* Selects halos for a sliding window. Assign it to dpar_attention_desc.method; only the plan calls
 * it. dpar_attention_make then fails with DPAR_E_ARG for a layer without window, a rule other than
 * CHUNK and EVEN, or E above 2^24. Local. O(1). */
DPAR_API void dpar_attention_halo(struct dpari_attention_method *method);

#endif
