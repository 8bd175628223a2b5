/* SPDX-License-Identifier: MIT-0 */
/* model_fields - private: the fields of dpar_model and their text form: "key=value,...", and
 * "FAMILY:key=value,...". */
#ifndef DPARI_COST_MODEL_FIELDS_H
#define DPARI_COST_MODEL_FIELDS_H

#include "../base/arith.h"
#include "workload.h"

/* The integer fields: the key, the field, and what it takes (DPARI_FIELD_*). */
#define DPARI_MODEL_INTEGERS(X)                                                                    \
    X(LAYERS, layers, POSITIVE), X(HIDDEN, hidden, POSITIVE), X(HEADS, heads, POSITIVE),           \
        X(KV_HEADS, kv_heads, POSITIVE), X(HEAD_WIDTH, head_width, POSITIVE),                      \
        X(FFN, ffn, POSITIVE), X(VOCAB, vocab, POSITIVE), X(SEQ, seq, OWN), X(TIED, tied, YES_NO), \
        X(BIASES, biases, SIGN), X(ROTARY, rotary, YES_NO), X(EXPERTS, experts, COUNT),            \
        X(TOPK, topk, COUNT), X(EXPERT_FFN, expert_ffn, COUNT), X(SHARED_FFN, shared_ffn, COUNT),  \
        X(DENSE_LAYERS, dense_layers, COUNT), X(Q_LORA, q_lora, COUNT),                            \
        X(KV_LORA, kv_lora, COUNT), X(ROPE_WIDTH, rope_width, COUNT),                              \
        X(QK_WIDTH, qk_width, COUNT), X(V_WIDTH, v_width, COUNT),                                  \
        X(DECODER_LAYERS, decoder_layers, COUNT), X(PATCH, patch, POSITIVE),                       \
        X(CHANNELS, channels, POSITIVE), X(OUT_CHANNELS, out_channels, SPECIAL),                   \
        X(LEVELS, levels, POSITIVE), X(BLOCKS_PER_LEVEL, blocks_per_level, COUNT),                 \
        X(KERNEL, kernel, POSITIVE), X(FIELDS, fields, POSITIVE), X(HALO, halo, POSITIVE),         \
        X(ELEMENT, element, POSITIVE), X(INFERENCE, inference, YES_NO), X(GATED, gated, SIGN),     \
        X(CAUSAL, causal, SIGN), X(POSITIONS, positions, SPECIAL), X(HEAD, head, COUNT),           \
        X(EMBED, embed, COUNT), X(ASIDE, aside, COUNT), X(ASIDE_VOCAB, aside_vocab, COUNT),        \
        X(Q_GATE, q_gate, YES_NO), X(WINDOW, window, COUNT),                                       \
        X(WINDOW_KV_HEADS, window_kv_heads, COUNT), X(SCAN, scan, COUNT),                          \
        X(SCAN_HEADS, scan_heads, COUNT), X(SCAN_GROUPS, scan_groups, COUNT),                      \
        X(SCAN_WIDTH, scan_width, COUNT), X(SCAN_STATE, scan_state, COUNT), X(CONV, conv, COUNT),  \
        X(EXPERT_STEP, expert_step, COUNT), X(EXPERT_OFFSET, expert_offset, COUNT),                \
        X(O_LORA, o_lora, COUNT), X(O_GROUPS, o_groups, COUNT),                                    \
        X(INDEX_HEADS, index_heads, COUNT), X(INDEX_WIDTH, index_width, COUNT),                    \
        X(INDEX_TOPK, index_topk, COUNT), X(MTP, mtp, COUNT),                                      \
        X(TOWER_LAYERS, tower_layers, COUNT), X(TOWER_HIDDEN, tower_hidden, COUNT),                \
        X(TOWER_HEADS, tower_heads, COUNT), X(TOWER_FFN, tower_ffn, COUNT),                        \
        X(TOWER_TOKENS, tower_tokens, COUNT), X(TOWER_PATCH, tower_patch, COUNT),                  \
        X(TOWER_POSITIONS, tower_positions, COUNT), X(TOWER_MERGE, tower_merge, COUNT),            \
        X(TOWER_INNER, tower_inner, SPECIAL), X(TOWER_MERGERS, tower_mergers, COUNT),              \
        X(TOWER_GATED, tower_gated, COUNT), X(TOWER_PARAMS, tower_params, COUNT),                  \
        X(EXPERT_GROUPS, expert_groups, COUNT), X(TOPK_GROUPS, topk_groups, COUNT)
#define DPARI_MODEL_KEY(key, field, kind) DPARI_M_##key
enum { DPARI_MODEL_INTEGERS(DPARI_MODEL_KEY), DPARI_M_INTEGERS };

/* Returns an integer field, DPARI_M_*. */
DPARI_INTERNAL int32_t *dpari_model_field(dpar_model *model, int32_t key);
/* Reads settings that are separated by commas, each at most once. */
DPARI_INTERNAL dpar_status dpari_model_settings(dpar_model *model, const char *s, size_t n,
                                                dpar_why *why);
/* Reads "FAMILY:settings", whose colon is at s[colon]. A grid begins with its extents. */
DPARI_INTERNAL dpar_status dpari_model_family(dpar_model *model, const char *s, size_t colon,
                                              size_t n, dpar_why *why);
/* Returns 1 if a letter is in a list of letters, otherwise 0. */
DPARI_INTERNAL int dpari_spells_one(char letter, const char *letters);

#endif
