/* SPDX-License-Identifier: MIT-0 */
/* Reads the members of a config.json into a state: the numbers and words of each object, and the
 * kind of each layer. config_json calls it for each item of the file. */
#include "config_members.h"

#include "../base/base_private.h"
#include "../base/text.h"
#include "fields.h"

/* The names of members in config.json files of transformers, of Meta and of others. Each entry
 * lists all names for one key, separated by blanks; messages use the first one. The entries
 * are in the order of the keys, and empty for a key that no member has. */
static const char dpari_config_names[] =
    "num_hidden_layers n_layer num_layers n_layers depth vt_num_hidden_layers layers\0"
    "hidden_size n_embd n_embed d_model dim vt_hidden_size width model_dim\0"
    "num_attention_heads n_head num_heads n_heads attention_heads encoder_attention_heads "
    "vt_num_attention_heads\0"
    "num_key_value_heads n_kv_heads kv_n_heads multi_query_group_num num_attention_groups\0"
    "head_dim d_kv attention_head_dim kv_channels d_head\0"
    "intermediate_size n_inner d_ff ffn_dim ffn_hidden_size inner_hidden_size encoder_ffn_dim "
    "vt_intermediate_size hidden_dim\0"
    "vocab_size\0"
    "max_position_embeddings n_positions max_seq_len seq_length max_sequence_length "
    "model_max_length n_ctx context_length max_target_positions\0"
    "\0\0\0" /* tied, biases, rotary */
    "num_local_experts num_experts n_routed_experts moe_num_experts num_moe_experts "
    "num_routed_experts n_experts\0"
    "num_experts_per_tok num_experts_per_token experts_per_token moe_topk moe_top_k moe_k "
    "experts_per_tok num_selected_experts moe_router_topk top_k_experts\0"
    "moe_intermediate_size expert_ffn_hidden_size moe_ffn_hidden_size expert_ffn_dim "
    "moe_hidden_dim\0"
    "shared_expert_intermediate_size shared_intermediate_size share_expert_dim "
    "moe_shared_expert_intermediate_size shared_expert_ffn_dim shared_experts_intermediate_size\0"
    "first_k_dense_replace num_dense_layers moe_layer_start_index n_dense_layers\0"
    "q_lora_rank\0"
    "kv_lora_rank\0"
    "qk_rope_head_dim\0"
    "qk_nope_head_dim\0"
    "v_head_dim\0"
    "num_decoder_layers decoder_layers\0"
    "patch_size\0"
    "num_channels in_channels in_chans\0"
    "out_channels num_labels\0"
    "\0\0\0\0\0\0\0\0\0\0\0" /* levels, blocks_per_level, kernel, fields, halo, element, inference,
                                gated, causal, positions, head */
    "embedding_size word_embed_proj_dim\0"
    "hidden_size_per_layer_input\0"
    "vocab_size_per_layer_input\0"
    "\0" /* q_gate */
    "sliding_window sliding_window_size window_size local_attention attention_chunk_size "
    "attention_window_size\0"
    "swa_num_key_value_heads\0"
    "\0" /* scan */
    "mamba_n_heads mamba_num_heads linear_num_value_heads linear_num_heads\0"
    "mamba_n_groups linear_num_key_heads n_groups mamba_ngroups\0"
    "mamba_d_head mamba_head_dim linear_value_head_dim linear_head_dim mamba_headdim\0"
    "mamba_d_state ssm_state_size state_size d_state linear_key_head_dim\0"
    "mamba_d_conv conv_kernel conv_kernel_size linear_conv_kernel_dim short_conv_kernel_size "
    "conv1d_width conv_L_cache d_conv\0"
    "moe_layer_freq decoder_sparse_step interleave_moe_layer_step moe_layer_interval "
    "expert_layer_period moe_every_n_layers\0"
    "expert_layer_offset\0"
    "o_lora_rank\0"
    "o_groups\0"
    "index_n_heads\0"
    "index_head_dim\0"
    "index_topk\0"
    "num_nextn_predict_layers mtp_num_hidden_layers num_mtp_modules mtp_num_layers "
    "num_mtp_layers\0"
    "\0\0\0\0\0\0\0\0\0\0\0\0" /* tower_layers, tower_hidden, tower_heads, tower_ffn, tower_tokens,
                                  tower_patch, tower_positions, tower_merge, tower_inner,
                                  tower_mergers, tower_gated, tower_params */
    "n_group num_expert_group n_expert_group moe_router_num_groups\0"
    "topk_group moe_router_group_topk\0"
    "n_shared_experts num_shared_experts moe_num_shared_experts num_shared_expert\0"
    "image_size sample_size\0"
    "num_kv_heads\0"
    "expansion_ratio mlp_ratio\0"
    "intermediate_size_mlp dense_intermediate_size\0"
    "encoder_layers\0"
    "embed_dim\0"
    "type_vocab_size\0"
    "position_buckets\0"
    "max_source_positions\0"
    "num_mel_bins\0"
    "padded_vocab_size\0"
    "mamba_expand expand\0"
    "lru_width mamba_d_ssm attention_hidden_size d_inner\0"
    "multiple_of\0"
    "ffn_dim_multiplier\0"
    "attn_layer_period sliding_window_pattern full_attention_interval global_attn_every_n_layers "
    "layer_group_size\0"
    "attn_layer_offset\0"
    "spatial_merge_size merge_kernel_size\0"
    "temporal_patch_size\0"
    "num_position_embeddings init_pos_emb_height\0"
    "num_global_layers\0"
    "projection_dim\0"
    "out_hidden_size\0"
    "tie_word_embeddings\0"
    "no_bias\0"
    "bias\0"
    "multi_query\0"
    "new_decoder_architecture\0"
    "is_gated_act\0"
    "use_sliding_window\0"
    "attn_output_gate\0"
    "position_biased_input\0"
    "use_mla\0"
    "block_auto_adjust_ff_dim\0"
    "layer_types layers_block_type attention_layers block_types hybrid_override_pattern "
    "layers_types layer_block_types\0"
    "attn_type_list\0"
    "hybrid_layer_pattern\0"
    "mlp_layer_types\0"
    "attn_layer_indices full_attn_layers full_attn_idxs\0"
    "mlp_only_layers\0"
    "deepstack_visual_indexes\0"
    "model_type _class_name\0"
    "architectures\0"
    "hidden_act activation_function hidden_activation mlp_hidden_act activation\0"
    "feed_forward_proj\0"
    "peft_type\0";

DPARI_INTERNAL void dpari_config_note(dpari_config_state *state, const char *form, ...)
{
    va_list list;
    va_start(list, form);
    dpari_text_print_list(&state->note, form, &list);
    va_end(list);
    dpari_text_char(&state->note, '\n');
}

DPARI_INTERNAL int32_t dpari_config_shown(size_t n)
{
    return (int32_t)(n < 60 ? n : 60);
}

/* Reports a member whose value cannot be used. */
static dpar_status dpari_config_bad(const dpari_slice *name, dpar_why *why, const char *form)
{
    return dpari_say(DPAR_E_PARSE, why, form, dpari_config_shown(name->length), name->text);
}

DPARI_INTERNAL const char *dpari_config_names_of(int32_t key)
{
    return dpari_nth_text(dpari_config_names, key);
}

/* Returns the key of a member, or -1 if its name is not known. */
static int32_t dpari_config_find(const char *s, size_t n)
{
    const char *names = dpari_config_names;
    int32_t key;
    for (key = 0; key < DPARI_C_ALL; key++) {
        if (dpari_word_in_list(names, s, n) >= 0) {
            return key;
        }
        names = dpari_behind(names);
    }
    return -1;
}

/* Returns the object, DPARI_OBJECT_*, that a member of the given name is. The members of the last
 * list count as members of the object around them. */
static int32_t dpari_config_child(dpari_config_state *state, int32_t object,
                                  const dpari_json_item *item)
{
    static const char names[] =
        "text_config language_config llm_config text_model_config text_model decoder_config\0"
        "vision_config vision_tower visual vision_encoder image_encoder vision vit_config\0"
        "audio_config speech_config audio_encoder\0linear_attn_config\0"
        "attn_config ffn_config ssm_cfg moe mamba_config thinker_config ssm_config";
    const char *list = names;
    int32_t i;
    for (i = 0; i < 5 && object <= DPARI_OBJECT_TEXT; i++) {
        if (dpari_word_in_list(list, item->key, item->key_length) >= 0) {
            object = i < 4 ? DPARI_OBJECT_TEXT + i : object;
            state->seen[object] = 1;
            return object;
        }
        list = dpari_behind(list);
    }
    return dpari_spells(item->key, item->key_length, "id2label") ? DPARI_OBJECT_LABELS
                                                                 : DPARI_OBJECT_SKIPPED;
}

/* Members that change the model in a way that is not modelled, which a note reports. */
static const char dpari_config_left[] =
    "altup_num_inputs laurel_rank num_kv_shared_layers compress_ratios "
    "sparse_attention_config routed_expert_hidden_size attn_res_block_size block_configs hc_mult "
    "use_full_rank_gate";
/* Members about experts that change neither sizes nor work. */
static const char dpari_config_idle[] = "moe_layer_end_index expert_capacity";

/* Notes an unknown member if it may change the sizes of the model: one of dpari_config_left, a
 * number of at least 2 about experts, or an object that describes a part of the model. */
static dpar_status dpari_config_unknown(dpari_config_state *state, int32_t object,
                                        const dpari_json_item *item)
{
    const char *s = item->key;
    size_t n = item->key_length;
    int expert = (n > 4 && dpari_same_bytes(s, "moe_", 4)) || dpari_slice_holds(s, n, "expert");
    if (object != DPARI_OBJECT_WHOLE && object != DPARI_OBJECT_TEXT) {
        return DPAR_OK;
    }
    if (dpari_word_in_list(dpari_config_left, s, n) >= 0) {
        dpari_config_note(state,
                          "'%.*s' is not modelled: parameters, time and memory do not include it",
                          dpari_config_shown(n), s);
    } else if (expert && item->kind == DPARI_JSON_NUMBER && item->number >= 2.0 &&
               item->number - (double)(int32_t)dpari_leastf(item->number, 2e9) <= 0.0 &&
               dpari_word_in_list(dpari_config_idle, s, n) < 0) {
        dpari_config_note(state, "'%.*s'=%ld is not understood and was ignored",
                          dpari_config_shown(n), s, (int64_t)item->number);
    } else if (item->kind == DPARI_JSON_OBJECT && n > 7 &&
               dpari_same_bytes(s + n - 7, "_config", 7) &&
               dpari_word_in_list("quantization_config generation_config projector_config "
                                  "sparse_attention_config task_specific_params",
                                  s, n) < 0) {
        dpari_config_note(state, "'%.*s' was ignored", dpari_config_shown(n), s);
    }
    return DPAR_OK;
}

/* Returns the letter of dpar_model.pattern for the word that describes a layer: F (full attention)
 * if it contains none of the known parts. */
static char dpari_config_letter(const char *s, size_t n)
{
    static const char part[12][10] = {"linear", "mamba",  "recurrent", "conv",   "ssm", "sliding",
                                      "local",  "window", "chunked",   "hybrid", "moe", "mlp"};
    static const char letter[] = "SSSSSWWWWBEDF";
    int32_t i;
    for (i = 0; i < 12 && !dpari_slice_holds(s, n, part[i]); i++) {
    }
    return letter[i];
}

/* Appends a layer to the list of mixers. It counts beyond DPARI_MAX_LISTED, so that
 * dpari_model_config can reject the file. */
static void dpari_config_mix(dpari_config_state *state, char letter)
{
    if (state->mixes < DPARI_MAX_LISTED) {
        state->mix[state->mixes] = letter;
    }
    state->mixes++;
}

/* Appends a layer to the list of feed-forward parts, in the same way. */
static void dpari_config_feed(dpari_config_state *state, int32_t feed)
{
    if (state->feeds < DPARI_MAX_LISTED) {
        state->feed[state->feeds] = (int8_t)feed;
    }
    state->feeds++;
}

/* Reads the index of a dense layer, or of a layer with full attention. All layers before it that
 * are not in the list yet get the other kind: experts, or a scan. */
static void dpari_config_at(dpari_config_state *state, int32_t key, double number)
{
    int32_t at =
        number >= 0.0 && number < (double)DPARI_MAX_LISTED ? (int32_t)number : DPARI_MAX_LISTED;
    if (key == DPARI_C_DENSE_INDICES && at < DPARI_MAX_LISTED) {
        while (state->feeds <= at) {
            dpari_config_feed(state, DPAR_MODEL_FFN_EXPERTS);
        }
        state->feed[at] = DPAR_MODEL_FFN_DENSE;
    } else if (at < DPARI_MAX_LISTED) {
        at -= state->list_object == DPARI_OBJECT_LINEAR && at > 0; /* Kimi counts layers from 1 */
        while (state->mixes <= at) {
            dpari_config_mix(state, 'S');
        }
        state->mix[at] = 'F';
    } else if (number >= 0.0) { /* too many layers, so that dpari_model_config rejects the file */
        state->mixes = number < 1e9 ? (int32_t)number + 1 : 1000000000;
    }
}

/* Reads an element of the list that is being read. */
static void dpari_config_element(dpari_config_state *state, const dpari_json_item *item)
{
    double v = item->kind == DPARI_JSON_NUMBER ? item->number : item->kind == DPARI_JSON_TRUE;
    int word = item->kind == DPARI_JSON_STRING;
    state->list_sum += v;
    if (state->list_count == 0 || v < state->list_low) {
        state->list_low = v;
    }
    if (state->list_count == 0 || v > state->list_high) {
        state->list_high = v;
    }
    state->list_count++;
    switch (state->list_key) {
    case DPARI_C_MIX:
        dpari_config_mix(state, word ? dpari_config_letter(item->string, item->length) : 'F');
        break;
    case DPARI_C_FULL_AT_LAYER: dpari_config_mix(state, v > 0.0 ? 'F' : 'S'); break;
    case DPARI_C_WINDOW_AT_LAYER: dpari_config_mix(state, v > 0.0 ? 'W' : 'F'); break;
    case DPARI_C_FEED:
        dpari_config_feed(state, word && !dpari_spells(item->string, item->length, "dense"));
        break;
    case DPARI_M_EXPERT_STEP: dpari_config_feed(state, v > 0.0); break;
    case DPARI_C_FULL_INDICES:
    case DPARI_C_DENSE_INDICES: dpari_config_at(state, state->list_key, v); break;
    case DPARI_C_ARCHITECTURE:
        if (state->list_count == 1 && word) {
            state->architecture[state->list_object].text = item->string;
            state->architecture[state->list_object].length = item->length;
        }
        break;
    default: break;
    }
}

/* Ends a list. If its key is a number, the value is the largest element for sizes of images and
 * patches, and otherwise the mean over the layers. */
static void dpari_config_listed(dpari_config_state *state)
{
    int32_t *value;
    if (state->list_count == 0 || state->list_key >= DPARI_C_MIX ||
        state->list_key == DPARI_M_EXPERT_STEP) {
        if (state->list_key == DPARI_C_DEEPSTACK) {
            state->value[state->list_object][DPARI_M_TOWER_MERGERS] = 1 + state->list_count;
        }
        return;
    }
    value = &state->value[state->list_object][state->list_key];
    if (state->list_key == DPARI_M_PATCH || state->list_key == DPARI_C_IMAGE_SIDE ||
        state->list_key == DPARI_C_MERGE) {
        *value = dpari_within((int64_t)state->list_high, 0, 65536);
        return;
    }
    *value = dpari_within((int64_t)(state->list_sum / state->list_count + 0.5), 0, INT32_MAX);
    if (state->list_high > state->list_low) {
        dpari_config_note(state, "'%.*s' differs from layer to layer: the mean, %d, is used",
                          dpari_config_shown(state->list_name.length), state->list_name.text,
                          *value);
    }
}

/* Returns the letter of dpar_model.pattern for one of Nemotron-H's pattern, where M is a scan, * is
 * attention, - is a dense feed-forward part, and E are experts. */
static char dpari_config_nemotron(char letter)
{
    switch (letter) {
    case 'M': return 's';
    case '*': return 'f';
    case '-': return 'D';
    default: return 'E';
    }
}

/* Reads a member whose value is a word, or a pattern with a letter for each layer (Nemotron-H). */
static void dpari_config_string(dpari_config_state *state, int32_t object, int32_t key,
                                const dpari_json_item *item)
{
    dpari_slice s;
    size_t i;
    s.text = item->string;
    s.length = item->length;
    if (key == DPARI_C_TYPE) {
        state->type[object] = s;
    } else if (key == DPARI_C_ACTIVATION && state->activation[object].length == 0) {
        state->activation[object] = s;
    } else if (key == DPARI_C_PROJECTION) {
        state->value[object][DPARI_C_GATED] = dpari_slice_holds(s.text, s.length, "gated-");
    } else if (key == DPARI_C_MIX) {
        for (i = 0; i < s.length; i++) {
            dpari_config_mix(state, dpari_config_nemotron(s.text[i]));
        }
    }
}

/* Reads a member whose key is known. */
static dpar_status dpari_config_value(dpari_config_state *state, int32_t object, int32_t key,
                                      const dpari_json_item *item, dpar_why *why)
{
    int flag = item->kind == DPARI_JSON_TRUE || item->kind == DPARI_JSON_FALSE;
    double v = item->number;
    dpari_slice name;
    name.text = item->key;
    name.length = item->key_length;
    if (item->kind == DPARI_JSON_NULL) {
        return DPAR_OK;
    }
    if (key == DPARI_C_ADAPTER) {
        return dpari_config_bad(
            &name, why,
            "config.json: '%.*s' shows that the file describes an adapter: give "
            "the config.json of the model that it adapts");
    }
    if (key >= DPARI_C_KEYS) {
        if (item->kind == DPARI_JSON_STRING) {
            dpari_config_string(state, object, key, item);
        }
        return DPAR_OK;
    }
    if (object > DPARI_OBJECT_TEXT &&
        (key >= DPARI_C_FLAGS ? !flag : item->kind != DPARI_JSON_NUMBER)) {
        return DPAR_OK; /* in a tower, other kinds of values do not change its size */
    }
    if (key >= DPARI_C_FLAGS && !flag) {
        return dpari_config_bad(&name, why, "config.json: '%.*s' must be true or false");
    }
    if (key < DPARI_C_FLAGS && item->kind != DPARI_JSON_NUMBER) {
        if (key == DPARI_C_EXPANSION || key == DPARI_M_MTP || key == DPARI_M_WINDOW) {
            return DPAR_OK; /* not needed, so another kind of value is ignored */
        }
        return dpari_config_bad(&name, why, "config.json: '%.*s' must be a number");
    }
    if (key == DPARI_C_EXPANSION || key == DPARI_C_FFN_TIMES) { /* kept in 1/10000 */
        v *= 1e4;
        v = (double)(int64_t)dpari_leastf(dpari_mostf(v, 0.0) + 0.5, 1e9);
    }
    if ((key == DPARI_M_VOCAB || key == DPARI_M_WINDOW) && v < 0.0 && v > -2.0) {
        return DPAR_OK; /* -1 means that the file does not say */
    }
    if (!flag && (!(v >= 0.0 && v < 2147483648.0) || v - (double)(int32_t)v > 0.0)) {
        (void)dpari_config_bad(&name, why,
                               "config.json: '%.*s' must be a whole number of 0 to 2147483647");
        return DPAR_E_RANGE;
    }
    if (key == DPARI_C_TOWER_POSITIONS && dpari_slice_holds(name.text, name.length, "height")) {
        v *= v; /* init_pos_emb_height is the side of a square of positions */
    }
    if (key == DPARI_M_WINDOW && v < 1.0) {
        return DPAR_OK;
    }
    if (flag) {
        state->value[object][key] = item->kind == DPARI_JSON_TRUE;
    } else {
        state->value[object][key] = (int32_t)dpari_leastf(v, 2147483647.0);
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_config_member(dpari_config_state *state,
                                                          const dpari_json_item *item,
                                                          dpar_why *why)
{
    int32_t object = state->object[item->depth], key = -1;
    int open = item->kind == DPARI_JSON_OBJECT || item->kind == DPARI_JSON_ARRAY;
    if (item->kind == DPARI_JSON_OBJECT_END || item->kind == DPARI_JSON_ARRAY_END) {
        if (state->object[item->depth + 1] == DPARI_OBJECT_LIST) {
            dpari_config_listed(state);
        }
        return DPAR_OK;
    }
    if (object == DPARI_OBJECT_LIST && !open) {
        dpari_config_element(state, item);
    }
    if (item->depth == 0) {
        state->object[1] =
            item->kind == DPARI_JSON_OBJECT ? DPARI_OBJECT_WHOLE : DPARI_OBJECT_SKIPPED;
        return DPAR_OK;
    }
    state->labels += object == DPARI_OBJECT_LABELS;
    if (object >= DPARI_OBJECTS || item->key == NULL) {
        state->object[item->depth + 1] = DPARI_OBJECT_SKIPPED;
        return DPAR_OK;
    }
    key = dpari_config_find(item->key, item->key_length);
    if (item->kind == DPARI_JSON_OBJECT) {
        state->object[item->depth + 1] = (int8_t)dpari_config_child(state, object, item);
        if (state->object[item->depth + 1] != DPARI_OBJECT_SKIPPED) {
            return DPAR_OK;
        }
    } else if (item->kind == DPARI_JSON_ARRAY && key >= 0) {
        state->object[item->depth + 1] = DPARI_OBJECT_LIST;
        state->list_key = key;
        state->list_object = object;
        state->list_name.text = item->key;
        state->list_name.length = item->key_length;
        state->list_sum = state->list_low = state->list_high = 0.0;
        state->list_count = 0;
        return DPAR_OK;
    } else if (open) {
        state->object[item->depth + 1] = DPARI_OBJECT_SKIPPED;
    }
    if (key < 0) {
        return dpari_config_unknown(state, object, item);
    }
    return dpari_config_value(state, object, key, item, why);
}
