/* SPDX-License-Identifier: MIT-0 */
/* window_attention - sliding windows of attention without a ring (sequence.h): each rank gets the
 * keys and values in the window before its own tokens, as a halo.
 *
 *     layer.window = 4096;                  layer: as sequence.h says
 *     layer.way = dpar_attention_halo;
 *     dpar_packed_init(&layer.tokens, docs, ends, c->size, DPAR_SPLIT_EVEN, &why);
 *     dpar_attention_bytes(c, &layer, &bytes, &why);       and on, as for the ring
 *
 * Each rank has a slice of the packed sequence (tokens.rule: CHUNK or EVEN, of the whole, whatever
 * the documents). It gets the `window` tokens before it, and behind it if not causal, from the
 * neighbour or from farther. On the way back their gradients return and are added to those of the
 * owners.
 *
 * What a rank sends: let s be the tokens of this rank that lie in halos of others, each counted as
 * often as it does. Let h be the tokens in its own halo, without those beyond the ends of the
 * sequence, and 0 where it has no tokens. With E = groups (width + values) elements a token it
 * sends
 *     forward   s E bytes(type)
 *     backward  s E bytes(type) + h E bytes(sums)
 *
 * The plan holds own keys and values, those beside them, their gradients, and a part of an out. It
 * holds two exchanges, which dpar_attention_init plans (dpar_halo_plan_init) and
 * dpar_attention_close closes. */
#ifndef DPARI_SPATIAL_WINDOW_ATTENTION_H
#define DPARI_SPATIAL_WINDOW_ATTENTION_H

#include "../train/sequence.h"

/* For dpar_attention_desc.way: name it there, never call it. dpar_attention_bytes gives E_ARG with
 * a sentence for a layer without window, a rule that is not CHUNK or EVEN, or E above 2^24. Local,
 * O(1). */
DPAR_API void dpar_attention_halo(struct dpari_attention_method *way);

#endif
