/* SPDX-License-Identifier: MIT-0 */
/* Makes a model from a config.json of transformers, of Meta or of others. First config_members
 * collects the members of all objects. Then dpari_config_finish starts from the values that the
 * model_type implies, overwrites them with the members, and derives what is still missing. What had
 * to be assumed or left out is written to dpar_model.note. */
#include "config_json.h"

#include "../base/base_private.h"
#include "../base/text.h"
#include "config_members.h"
#include "cost_private.h"
#include "fields.h"

/* Reports "config.json: num_hidden_layers (or n_layer, num_layers, n_layers) is missing ...". */
static dpar_status dpari_config_missing(int32_t key, dpar_why *why)
{
    char text[160];
    dpar_text t;
    const char *names = dpari_config_names_of(key);
    int32_t found = 0;
    dpar_text_init(&t, text, sizeof(text));
    for (; *names != 0 && found < 4; names++) {
        if (*names == ' ') {
            found++;
            if (found < 4) {
                dpar_text_put(&t, found == 1 ? " (or " : ", ");
            }
        } else {
            dpari_text_char(&t, *names);
        }
    }
    dpar_text_put(&t, found > 0 ? ")" : "");
    return dpari_say(DPAR_E_PARSE, why,
                     "config.json: %s is missing or 0, but a transformer needs it", text);
}

/* Returns 1 if all layers of the model are scans, otherwise 0. */
static int32_t dpari_model_scans_only(const dpar_model *model)
{
    return model->scan > 0 && dpari_spells_one(model->pattern[0], "sS") && model->pattern[1] == 0;
}

/* Returns the first member that the model needs but that neither the file nor its type gives, or -1
 * if nothing is missing. */
static int32_t dpari_config_absent(const dpar_model *model, const dpari_config_state *state)
{
    int32_t sees = model->family == DPAR_MODEL_FAMILY_VIT || model->family == DPAR_MODEL_FAMILY_DIT;
    if (model->layers < 1) {
        return DPARI_M_LAYERS;
    }
    if (model->hidden < 1) {
        return DPARI_M_HIDDEN;
    }
    if (model->heads < 1 && !(dpari_model_scans_only(model) && state->mixes == 0)) {
        return DPARI_M_HEADS;
    }
    if (sees && model->patch < 1) {
        return DPARI_M_PATCH;
    }
    if (sees && model->image[0] < 1) {
        return DPARI_C_IMAGE_SIDE;
    }
    if (!sees && model->vocab < 1) {
        return DPARI_M_VOCAB;
    }
    if (model->experts > 0 && model->topk < 1) {
        return DPARI_M_TOPK;
    }
    if (model->kv_lora > 0 && model->qk_width < 1) {
        return DPARI_M_QK_WIDTH;
    }
    if (model->kv_lora > 0 && model->v_width < 1) {
        return DPARI_M_V_WIDTH;
    }
    return -1;
}

/* Checks that the model has all members that it needs. */
static dpar_status dpari_config_needed(const dpar_model *model, const dpari_config_state *state,
                                       dpar_why *why)
{
    int32_t key = dpari_config_absent(model, state);
    if (key >= 0) {
        return dpari_config_missing(key, why);
    }
    if (model->kv_heads > 0 && model->heads % model->kv_heads != 0) {
        return dpari_say(
            DPAR_E_DIVIDE, why,
            "config.json: num_key_value_heads=%d does not divide num_attention_heads=%d",
            model->kv_heads, model->heads);
    }
    return DPAR_OK;
}

/* Returns `member` if it is positive, which means that the file or its type gives it. */
static int32_t dpari_config_given(int32_t member, int32_t otherwise)
{
    return member > 0 ? member : otherwise;
}

/* Returns a * b, or 0, which means "not given", if a factor is not positive or the product too
 * large. */
DPARI_STATIC_NOINLINE int32_t dpari_config_product(int32_t a, int64_t b)
{
    int64_t v = 0;
    return a > 0 && b > 0 && dpari_mul(a, b, &v) && v <= INT32_MAX ? (int32_t)v : 0;
}

/* Returns 1 if an activation function is one that gated feed-forward parts have, otherwise 0. */
static int dpari_config_gates(const dpari_slice *s)
{
    return dpari_slice_is(s, "silu swish swiglu swigluoai situ geglu");
}

/* Returns 1 if an unknown type may be read as Llama, whose shapes most models have. Its activation
 * function must be one of gated feed-forward parts. If the file does not name the activation
 * function, it must have key-value heads, which encoders and state-space models do not have. */
static int dpari_config_like_llama(const dpari_config_state *state, int32_t object)
{
    const dpari_slice *activation = &state->activation[object];
    return (state->value[object][DPARI_M_KV_HEADS] > 0 && activation->length == 0) ||
           dpari_config_gates(activation);
}

/* Starts *m from what the model_type implies. A file without model_type is read as BERT if it has
 * token types but no key-value heads, and otherwise as Llama. */
static dpar_status dpari_config_kind(dpari_config_state *state, int32_t object, dpari_slice type,
                                     dpar_model *model, dpar_why *why)
{
    const int32_t *value = state->value[object];
    dpari_slice other;
    const char *row;
    int32_t shown;
    other.text = "chatglm-6b";
    other.length = 10;
    if (dpari_slice_is(&type, "chatglm") && value[DPARI_C_PADDED_VOCAB] < 0) {
        type = other; /* the first ChatGLM has a different shape from later ones */
    }
    row = dpari_type_find(&type);
    if (row == NULL && type.length == 0 && value[DPARI_C_TOKEN_TYPES] >= 0 &&
        value[DPARI_M_KV_HEADS] < 0) {
        other.text = "bert";
        other.length = 4;
        row = dpari_type_find(&other);
        dpari_config_note(state,
                          "no model_type: read as BERT, because the file has type_vocab_size");
    } else if (row == NULL && type.length == 0) {
        row = "llama:";
        dpari_config_note(state, "no model_type: read as Llama");
    } else if (row == NULL && dpari_config_like_llama(state, object)) {
        row = "llama:";
        dpari_config_note(state, "model_type '%.*s' is not known: read as Llama",
                          dpari_config_shown(type.length), type.text);
    }
    shown = (int32_t)(type.length < 40 ? type.length : 40);
    if (row == NULL) {
        return dpari_say(DPAR_E_UNKNOWN, why,
                         "config.json: model_type '%.*s' is not known (llama, qwen3, mixtral, "
                         "deepseek_v3, gemma2, phi3, gpt2, gpt_neox, opt, falcon, t5, bert, mamba, "
                         "vit ...): describe the model as text",
                         shown, type.text);
    }
    if (dpari_slice_is(&type, "nemotron-nas")) {
        return dpari_say(DPAR_E_UNKNOWN, why,
                         "config.json: model_type '%.*s': blocks that differ from each other "
                         "(block_configs) are not supported",
                         shown, type.text);
    }
    dpari_type_read(model, row);
    if (type.length > 0) {
        dpari_copy_text(model->name, sizeof(model->name), type.text, type.length);
    } else {
        dpari_copy_text(model->name, sizeof(model->name), "config.json", 11);
    }
    return DPAR_OK;
}

/* Overwrites what the type implies with the fields that the file has. */
static void dpari_config_fields(dpar_model *model, const int32_t *value)
{
    int32_t key;
    for (key = 0; key < DPARI_M_INTEGERS; key++) {
        if (value[key] >= 0 && key != DPARI_M_MTP && key != DPARI_M_TOWER_MERGERS) {
            *dpari_model_field(model, key) = value[key];
        }
    }
    model->layers = dpari_config_given(value[DPARI_C_ENCODER_LAYERS], model->layers);
}

/* Returns the width of a feed-forward part: `ffn`, unless the file gives only a factor of the
 * hidden size. */
DPARI_STATIC_NOINLINE int32_t dpari_config_ffn(const int32_t *value, int32_t hidden, int32_t ffn)
{
    if (value[DPARI_C_EXPANSION] < 1 || value[DPARI_M_FFN] > 0) {
        return ffn;
    }
    return (int32_t)dpari_leastf((double)hidden * value[DPARI_C_EXPANSION] * 1e-4 + 0.01, 2e9);
}

/* Notes in one line the sizes that the file does not give, with the values that its type implies.
 */
static void dpari_config_defaults(dpari_config_state *state, const dpar_model *model,
                                  const int32_t *value)
{
    static const uint8_t key[] = {DPARI_M_LAYERS, DPARI_M_HIDDEN, DPARI_M_HEADS,
                                  DPARI_M_VOCAB,  DPARI_M_FFN,    DPARI_M_HEAD_WIDTH};
    dpar_model copy = *model;
    const char *names;
    int32_t i, noted = 0;
    for (i = 0; i < 6; i++) {
        int32_t v = *dpari_model_field(&copy, key[i]);
        if (value[key[i]] >= 0 || v < 1 ||
            (key[i] == DPARI_M_FFN && model->family > DPAR_MODEL_FAMILY_LLAMA) ||
            (key[i] == DPARI_M_VOCAB && value[DPARI_C_PADDED_VOCAB] > 0)) {
            continue;
        }
        names = dpari_config_names_of(key[i]);
        dpar_text_put(&state->note, noted == 0 ? "not in the file, so its type decides: " : ", ");
        noted++;
        dpari_text_slice(&state->note, names, dpari_until(names, dpari_length(names), ' '));
        dpari_text_print(&state->note, "=%d", v);
    }
    dpar_text_put(&state->note, noted > 0 ? "\n" : "");
}

/* Returns the channels of a scan: as given, a given multiple of the hidden size, twice the hidden
 * size for Mamba, or the hidden size. */
static int32_t dpari_config_inner(const dpar_model *model, const int32_t *value)
{
    if (value[DPARI_C_INNER] > 0) {
        return value[DPARI_C_INNER];
    }
    if (value[DPARI_C_EXPAND] > 0) {
        return dpari_config_product(model->hidden, value[DPARI_C_EXPAND]);
    }
    if (model->scan == DPAR_MODEL_SCAN_MAMBA || model->scan == DPAR_MODEL_SCAN_MAMBA2) {
        return dpari_config_product(model->hidden, 2);
    }
    return model->hidden;
}

/* Sets the widths that follow from other members: first those of feed-forward parts and experts,
 * then of attention, then of scans. */
static DPARI_COLD DPARI_NOINLINE void dpari_config_widths(dpar_model *model,
                                                          const dpari_config_state *state,
                                                          const int32_t *value,
                                                          const dpari_slice *type)
{
    int32_t inner;
    model->ffn = dpari_config_ffn(value, model->hidden, model->ffn);
    if (value[DPARI_C_MULTIPLE_OF] > 0 && value[DPARI_M_FFN] < 1 && model->hidden < 100000000) {
        /* Meta's rule: 8/3 of the hidden size, times a factor, rounded up to a multiple */
        int64_t width = 8 * (int64_t)model->hidden / 3, unit = value[DPARI_C_MULTIPLE_OF];
        if (value[DPARI_C_FFN_TIMES] > 0) {
            width = width * value[DPARI_C_FFN_TIMES] / 10000;
        }
        model->ffn = dpari_within((width + unit - 1) / unit * unit, 0, INT32_MAX);
    }
    if (value[DPARI_C_ADJUSTS_FFN] > 0) { /* two thirds, rounded up to a multiple of 256 */
        model->ffn = dpari_within((2 * (int64_t)model->ffn / 3 + 255) / 256 * 256, 0, INT32_MAX);
    }
    /* these types count both halves of a gated part */
    if (dpari_slice_is(type, "qwen recurrent_gemma")) {
        model->ffn /= 2;
    }
    if (value[DPARI_C_DENSE_FFN] > 0) {
        if (value[DPARI_M_EXPERT_FFN] < 1) {
            model->expert_ffn = model->ffn;
        }
        model->ffn = value[DPARI_C_DENSE_FFN];
    }
    if (model->experts > 0 && model->expert_ffn < 1) {
        model->expert_ffn = model->ffn;
    }
    if (value[DPARI_C_SHARED_COUNT] > 0 && value[DPARI_M_SHARED_FFN] < 1) {
        model->shared_ffn = dpari_config_product(value[DPARI_C_SHARED_COUNT], model->expert_ffn);
    }
    if (model->experts > 0 && model->shared_ffn == 1) {
        model->shared_ffn = model->expert_ffn;
    }
    if (dpari_slice_is(type, "ernie4_5_moe_vl ernie4_5_vl_moe_text")) {
        model->experts =
            dpari_config_product(2, model->experts); /* as many for images as for text */
    }
    if (value[DPARI_C_USE_MLA] == 0) {
        model->kv_lora = model->q_lora = model->v_width = 0;
    }
    if (model->kv_lora > 0) { /* latent attention has other widths */
        model->head_width = 0;
        model->kv_heads = 0;
    } else if (model->v_width == model->head_width || model->v_width == 1) {
        model->v_width = 0;
    }
    if (dpari_slice_is(type, "falcon gpt_bigcode")) {
        model->kv_heads = value[DPARI_C_ONE_KV] != 0;
        if (value[DPARI_C_NEW_DECODER] > 0) {
            model->kv_heads = (int32_t)dpari_most(value[DPARI_C_NEW_KV], 0);
        }
    } else if (value[DPARI_C_NEW_KV] > 0 && value[DPARI_M_KV_HEADS] < 1) {
        model->kv_heads = value[DPARI_C_NEW_KV];
    }
    if (dpari_model_scans_only(model) && state->mixes == 0) { /* the file's heads are the scan's */
        if (model->heads > 0 && model->scan == DPAR_MODEL_SCAN_MAMBA2) {
            model->scan_heads = model->heads;
        }
        model->heads = model->kv_heads = 0;
    }
    if (state->value[DPARI_OBJECT_LINEAR][DPARI_M_HEADS] > 0) {
        const int32_t *linear = state->value[DPARI_OBJECT_LINEAR];
        model->scan_heads = model->scan_groups = linear[DPARI_M_HEADS];
        model->scan_width = model->scan_state = (int32_t)dpari_most(linear[DPARI_M_HEAD_WIDTH], 0);
        model->conv = (int32_t)dpari_most(linear[DPARI_M_CONV], 0);
    }
    if (model->scan == DPAR_MODEL_SCAN_KDA && model->scan_groups < 1) {
        model->scan_groups = model->scan_heads;
        model->scan_state = model->scan_width;
    }
    if (model->scan == DPAR_MODEL_SCAN_LIGHTNING) {
        model->scan_heads = model->scan_groups = model->heads;
        model->scan_width = model->scan_state = model->head_width;
    }
    if (model->scan == DPAR_MODEL_SCAN_LRU) {
        model->scan_heads = model->heads;
    }
    inner = dpari_config_inner(model, value);
    if (model->scan == DPAR_MODEL_SCAN_MAMBA || model->scan == DPAR_MODEL_SCAN_RWKV ||
        model->scan == DPAR_MODEL_SCAN_CONV) {
        model->scan_heads = 1;
        model->scan_width = model->scan == DPAR_MODEL_SCAN_CONV ? model->hidden : inner;
    } else if (model->scan > 0 && model->scan_width < 1 && model->scan_heads > 0) {
        model->scan_width = inner / model->scan_heads;
    } else if (model->scan > 0 && model->scan_heads < 1 && model->scan_width > 0) {
        model->scan_heads = inner / model->scan_width;
    }
}

/* Sets the head of a model by the class with which the file was saved. */
static void dpari_config_head(dpar_model *model, const dpari_slice *a, const dpari_slice *type)
{
    int vocabulary = dpari_slice_holds(a->text, a->length, "ForCausalLM") ||
                     dpari_slice_holds(a->text, a->length, "LMHead") ||
                     dpari_slice_holds(a->text, a->length, "ForConditional");
    int masked = dpari_slice_holds(a->text, a->length, "ForMaskedLM") ||
                 dpari_slice_holds(a->text, a->length, "ForPreTraining");
    int classes = dpari_slice_holds(a->text, a->length, "Classification") ||
                  dpari_slice_holds(a->text, a->length, "Reward") ||
                  dpari_slice_holds(a->text, a->length, "ForQuestion") ||
                  dpari_slice_holds(a->text, a->length, "WithProjection");
    int bare = a->length > 5 && dpari_same_bytes(a->text + a->length - 5, "Model", 5);
    if (model->family == DPAR_MODEL_FAMILY_VIT) {
        if (bare || (model->out_channels < 0 && !classes)) {
            model->head = DPAR_MODEL_HEAD_VOCAB;
            if (bare && dpari_slice_is(type, "vit deit")) {
                model->head = DPAR_MODEL_HEAD_POOL;
            }
            model->out_channels = -1;
        }
    } else if (masked || (vocabulary && model->causal < 0)) {
        model->head = DPAR_MODEL_HEAD_MASKED;
    } else if (vocabulary) {
        model->head = DPAR_MODEL_HEAD_VOCAB;
    } else if (model->head == DPAR_MODEL_HEAD_VOCAB && (bare || classes) &&
               !dpari_slice_is(type, "chatglm")) {
        model->head = DPAR_MODEL_HEAD_NONE;
    } else if (dpari_slice_holds(a->text, a->length, "ForQuestion") ||
               dpari_slice_holds(a->text, a->length, "ForToken")) {
        model->head = DPAR_MODEL_HEAD_NONE;
    }
}

/* Sets the tower in front of a language model from its object of the file, after what the type of
 * the whole model and the type of the tower imply. */
static void dpari_config_tower(dpar_model *model, dpari_config_state *state, int32_t object)
{
    const int32_t *value = state->value[object];
    const char *whole = dpari_tower_find(&state->type[DPARI_OBJECT_WHOLE]), *row;
    dpar_model tower; /* the tower as a model of its own */
    int32_t side;
    int64_t patches;
    dpari_zero(&tower, sizeof(tower));
    if (whole != NULL) {
        (void)dpari_model_settings(model, whole, dpari_length(whole), NULL);
    }
    row = state->seen[object] ? dpari_type_find(&state->type[object]) : NULL;
    if (row != NULL && row[0] == 'v') {
        dpari_type_read(&tower, row);
    } else {
        tower.layers = model->tower_layers;
        tower.hidden = model->tower_hidden;
        tower.heads = dpari_config_given(model->tower_heads, 16);
        tower.ffn = model->tower_ffn;
    }
    dpari_config_fields(&tower, value);
    model->tower_layers = tower.layers + dpari_within(value[DPARI_C_MORE_LAYERS], 0, 100000);
    model->tower_hidden = dpari_config_given(value[DPARI_C_EMBED_DIM], tower.hidden);
    model->tower_heads = dpari_config_given(tower.heads, 16);
    model->tower_ffn = dpari_config_ffn(value, model->tower_hidden, tower.ffn);
    model->tower_gated = tower.gated > 0 || dpari_config_gates(&state->activation[object]);
    side = dpari_config_given(value[DPARI_C_IMAGE_SIDE], tower.image[0]);
    tower.channels = dpari_config_given(tower.channels, 3);
    if (tower.patch > 0 && tower.patch < 1000 && tower.channels < 1000) {
        model->tower_patch = tower.patch * tower.patch * tower.channels *
                             dpari_within(value[DPARI_C_FRAMES], 1, 100);
        patches = side > 0 ? side / tower.patch : 0;
        if (patches > 0 && patches < 40000) {
            model->tower_tokens = (int32_t)(patches * patches);
            model->tower_positions = model->tower_tokens + 1;
        }
    }
    if (object == DPARI_OBJECT_AUDIO) {
        /* Whisper's tower: two convolutions over 3 steps each, whose second one has 3 hidden^2
         * weights (tower_params counts thousands), and by default 80 mel bins and 1500 positions */
        model->tower_patch =
            value[DPARI_C_MEL_BINS] > 0 ? dpari_config_product(3, value[DPARI_C_MEL_BINS]) : 240;
        model->tower_tokens = dpari_config_given(value[DPARI_C_SOURCE_POSITIONS], 1500);
        model->tower_positions = model->tower_tokens;
        model->tower_params = (int32_t)(3e-3 * model->tower_hidden * model->tower_hidden);
    }
    if (value[DPARI_C_TOWER_POSITIONS] > 0) {
        model->tower_positions = value[DPARI_C_TOWER_POSITIONS];
        model->tower_tokens =
            dpari_config_given(model->tower_tokens, value[DPARI_C_TOWER_POSITIONS]);
    }
    if (value[DPARI_C_MERGE] > 0) {
        model->tower_merge = dpari_config_product(value[DPARI_C_MERGE], value[DPARI_C_MERGE]);
    }
    if (model->tower_inner == -4 && value[DPARI_C_TOWER_OUT] > 0) {
        /* GLM-4V: the ffn of the file is that of the merger, which has one product of out x out and
         * three of out x ffn. Before it, 2 x 2 patches of the hidden size are convolved to `out`.
         * The feed-forward parts of the tower's blocks are `out` wide. */
        const double out = value[DPARI_C_TOWER_OUT];
        model->tower_params = (int32_t)dpari_leastf(
            1e-3 * out * (out + 3.0 * model->tower_ffn + 4.0 * model->tower_hidden), 2e9);
        model->tower_ffn = value[DPARI_C_TOWER_OUT];
        model->tower_inner = -3;
    }
    model->tower_mergers = dpari_config_given(value[DPARI_M_TOWER_MERGERS], 1);
    switch (model->tower_inner) { /* config_types.c explains the negative values */
    case -1:
        model->tower_inner =
            dpari_config_product(model->tower_hidden, dpari_most(model->tower_merge, 1));
        break;
    case -2: model->tower_inner = model->hidden; break;
    case -3:
        model->tower_inner = 0;
        model->tower_mergers = 0;
        break;
    default: model->tower_inner = (int32_t)dpari_most(model->tower_inner, 0); break;
    }
    model->tower_tokens = dpari_config_given(model->tower_tokens, 1024);
    if (model->tower_layers < 1 || model->tower_hidden < 1 ||
        model->tower_hidden % model->tower_heads != 0) {
        model->tower_layers = 0;
        dpari_config_note(state,
                          "its %s is not understood: its parameters and time are not included",
                          object == DPARI_OBJECT_VISION ? "vision_config" : "audio_config");
        return;
    }
    dpari_config_note(state, "a tower of %d layers in front of the model is included%s",
                      model->tower_layers,
                      state->seen[object] && value[DPARI_M_LAYERS] > 0
                          ? ""
                          : ", as its type has one, though the file does not describe it");
    dpari_config_note(
        state, "its input is one of %d patches per sample; it runs in front of the first stage",
        model->tower_tokens);
    if (whole == NULL && object == DPARI_OBJECT_VISION) {
        dpari_config_note(
            state, "model_type '%.*s' is not known: its projector is assumed to be one product",
            dpari_config_shown(state->type[DPARI_OBJECT_WHOLE].length),
            state->type[DPARI_OBJECT_WHOLE].text);
    }
}

/* Returns 1 if the letter of a layer stands for a scan, otherwise 0. */
static int dpari_config_scans(char letter)
{
    return letter == 'S' || letter == 's' || letter == 'B';
}

/* Counts the layers of each kind: which mix tokens by attention, windows or scans, and which have
 * experts. The letters of the file's lists or of the type's pattern say that. Letters for which the
 * file gives no sizes are replaced by full attention, or the file is rejected. */
static dpar_status dpari_config_layers(dpar_model *model, dpari_config_state *state,
                                       const int32_t *value, const dpari_slice *type, dpar_why *why)
{
    int32_t every = value[DPARI_C_PERIOD], full, i;
    if (state->mixes > 0 && model->scan == 0) {
        for (i = 0; i < state->mixes; i++) {
            if (dpari_config_scans(state->mix[i]) && model->scan_groups > 0 &&
                model->scan_state > 0) {
                model->scan = DPAR_MODEL_SCAN_DELTA;
            }
        }
    }
    /* a layer of these types has either a mixer or a feed-forward part, not both */
    for (i = 0; i < state->mixes && model->pattern[0] == 's'; i++) {
        if (state->mix[i] == 'S') {
            state->mix[i] = 's';
        } else if (state->mix[i] == 'F') {
            state->mix[i] = 'f';
        }
    }
    if (state->mixes == 0 && every > 0 && every < 16) {
        for (i = 0; i < every; i++) {
            model->pattern[i] = model->scan > 0 ? 'S' : 'W';
        }
        full = every - 1;
        if (value[DPARI_C_PERIOD_OFFSET] >= 0) {
            full = value[DPARI_C_PERIOD_OFFSET] % every;
        }
        model->pattern[full] = 'F';
        model->pattern[every] = 0;
    }
    if (value[DPARI_C_USES_WINDOW] == 0 || (model->window < 1 && model->scan == 0)) {
        model->window = 0;
        if (model->scan == 0) {
            model->pattern[0] = 0;
        }
    }
    if (model->window > 0 && state->mixes == 0 && model->pattern[0] == 0 &&
        value[DPARI_M_WINDOW] > 0) {
        dpari_config_note(
            state, "'sliding_window'=%d was ignored: the file does not say which layers have it",
            model->window);
    }
    for (i = 0; i < state->mixes && model->window < 1; i++) {
        if (state->mix[i] == 'W') {
            state->mix[i] = 'F';
        }
    }
    /* most types put the experts into the last layer of each step, DeepSeek's into the first */
    if (model->expert_step > 1 && value[DPARI_M_EXPERT_OFFSET] < 0 && model->expert_offset == 0 &&
        !dpari_slice_is(type, "deepseek deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2")) {
        model->expert_offset = model->expert_step - 1;
    }
    for (i = 0; i < state->mixes && model->scan == 0; i++) {
        if (dpari_config_scans(state->mix[i])) {
            return dpari_say(DPAR_E_UNKNOWN, why,
                             "config.json: model_type '%.*s': its layers of linear attention, "
                             "state space or convolution are not supported",
                             (int32_t)(type->length < 40 ? type->length : 40), type->text);
        }
    }
    if (state->feeds > 0 && model->experts == 0) {
        state->feeds = 0;
    }
    if (state->feeds > 0) {
        model->dense_layers = 0;
    }
    dpari_model_kinds(model, state->mix, state->mixes, state->feed, state->feeds);
    return DPAR_OK;
}

/* Overwrites single fields with the values of members that are not fields of a model. */
static void dpari_config_others(dpar_model *model, dpari_config_state *state, const int32_t *value,
                                const dpari_slice *activation)
{
    if (value[DPARI_C_TIED] >= 0) {
        model->tied = value[DPARI_C_TIED];
    }
    model->vocab = dpari_config_given(value[DPARI_C_PADDED_VOCAB], model->vocab);
    if (value[DPARI_M_HIDDEN] < 0) {
        model->hidden = dpari_config_given(value[DPARI_C_EMBED_DIM], model->hidden);
    }
    if (value[DPARI_C_Q_GATE] >= 0) {
        model->q_gate = value[DPARI_C_Q_GATE];
    }
    if (model->embed == model->hidden) {
        model->embed = 0;
    }
    if (value[DPARI_C_NO_BIAS] > 0) {
        model->biases = -1;
    } else if (model->biases < 0 && value[DPARI_C_BIAS] > 0) {
        model->biases = 0;
    }
    if (value[DPARI_C_GATED] >= 0 && model->family == DPAR_MODEL_FAMILY_T5) {
        model->gated = value[DPARI_C_GATED] > 0 ? 1 : -1;
    }
    if (model->family == DPAR_MODEL_FAMILY_LLAMA && model->gated == 0 &&
        dpari_slice_is(activation, "relu2 relu xielu")) {
        model->gated = -1;
    }
    if (model->vocab < 1 && value[DPARI_C_MULTIPLE_OF] > 0) {
        model->vocab = 32000;
        dpari_config_note(state, "no vocab_size: 32000 is assumed, as in Llama and Llama 2");
    }
}

/* Sets the fields of vision transformers. */
static void dpari_config_image(dpar_model *model, const int32_t *value,
                               const dpari_slice *architecture)
{
    model->image[0] = dpari_config_given(value[DPARI_C_IMAGE_SIDE], model->image[0]);
    model->image[1] = model->image[0];
    model->channels = dpari_config_given(model->channels, 3);
    if (dpari_slice_holds(architecture->text, architecture->length, "WithProjection")) {
        model->out_channels =
            dpari_config_given(value[DPARI_C_PROJECTION_DIM], model->out_channels);
    }
    if (model->family == DPAR_MODEL_FAMILY_DIT && model->hidden < 1) {
        model->hidden = dpari_config_product(model->heads, model->head_width);
    }
    model->window = 0;
    model->pattern[0] = 0;
}

/* Sets the rows of learned positions. Token types and DeBERTa's relative positions are rows too. */
static void dpari_config_positions(dpar_model *model, const int32_t *value)
{
    if (model->positions > 0 && model->family == DPAR_MODEL_FAMILY_T5) {
        model->positions = 2 * dpari_within(model->seq, 0, 1000000);
        if (value[DPARI_C_MEL_BINS] > 0) { /* Whisper, whose encoder has 1500 by default */
            model->channels = value[DPARI_C_MEL_BINS];
            model->image[0] = dpari_config_given(value[DPARI_C_SOURCE_POSITIONS], 1500);
            model->positions = model->image[0] + model->seq;
        }
    } else if (model->family == DPAR_MODEL_FAMILY_GPT && !model->rotary && model->positions == 0) {
        model->positions = dpari_config_given(model->seq, 2048);
        if (value[DPARI_C_POSITION_BUCKETS] > 0) {
            if (value[DPARI_C_BIASED_INPUT] == 0) {
                model->positions = 0;
            }
            model->positions += 2 * dpari_within(value[DPARI_C_POSITION_BUCKETS], 0, 1000000);
        }
        model->positions += dpari_within(value[DPARI_C_TOKEN_TYPES],
                                         model->head == DPAR_MODEL_HEAD_POOL ? 1 : 0, 16);
    }
}

/* Sets the tokens per sample. Models are not trained with the longest sequence that their positions
 * allow, so sequences are cut to at most 8192 tokens. */
static void dpari_config_seq(dpar_model *model, dpari_config_state *state)
{
    if (model->seq == 0) {
        switch (model->family) {
        case DPAR_MODEL_FAMILY_T5: model->seq = 512; break;
        case DPAR_MODEL_FAMILY_GPT: model->seq = 2048; break;
        default: model->seq = 8192; break;
        }
    }
    if (model->seq > 8192) {
        dpari_config_note(state, "8192 tokens per sample are assumed, the file allows %d: set seq",
                          model->seq);
        model->seq = 8192;
    }
}

/* Sets the tower of a multi-modal language model. Only one is modelled: that for images, if there
 * is one, otherwise that for audio. */
static void dpari_config_towers(dpar_model *model, dpari_config_state *state)
{
    const int audio = state->seen[DPARI_OBJECT_AUDIO];
    const int vision = state->seen[DPARI_OBJECT_VISION] ||
                       dpari_tower_find(&state->type[DPARI_OBJECT_WHOLE]) != NULL;
    if ((vision || audio) && model->family <= DPAR_MODEL_FAMILY_LLAMA) {
        dpari_config_tower(model, state, vision ? DPARI_OBJECT_VISION : DPARI_OBJECT_AUDIO);
    }
    if (vision && audio) {
        dpari_config_note(state, "'audio_config': its tower is not included");
    }
}

/* Makes the model from the members that were collected. Later steps use the fields that earlier
 * steps set. */
static DPARI_COLD DPARI_NOINLINE dpar_status dpari_config_finish(dpar_model *model,
                                                                 dpari_config_state *state,
                                                                 dpar_why *why)
{
    int32_t object = state->seen[DPARI_OBJECT_TEXT] ? DPARI_OBJECT_TEXT : DPARI_OBJECT_WHOLE;
    int32_t *value = state->value[object];
    const dpari_slice *architecture = &state->architecture[object];
    dpari_slice type = state->type[object];
    dpar_model m;
    dpar_status st;
    if (type.length == 0) {
        type = state->type[DPARI_OBJECT_WHOLE];
    }
    dpari_zero(&m, sizeof(m));
    /* this member of the whole model has priority over that of the language model */
    if (state->value[DPARI_OBJECT_WHOLE][DPARI_C_TIED] >= 0) {
        value[DPARI_C_TIED] = state->value[DPARI_OBJECT_WHOLE][DPARI_C_TIED];
    }
    st = dpari_config_kind(state, object, type, &m, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_config_defaults(state, &m, value);
    dpari_config_fields(&m, value);
    dpari_config_others(&m, state, value, &state->activation[object]);
    if (m.family == DPAR_MODEL_FAMILY_VIT || m.family == DPAR_MODEL_FAMILY_DIT) {
        dpari_config_image(&m, value, architecture);
    }
    m.layers = dpari_config_given(m.layers, state->mixes);
    dpari_config_widths(&m, state, value, &type);
    st = dpari_config_needed(&m, state, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (m.head_width < 1 && m.kv_lora < 1 && m.heads > 0 && m.hidden % m.heads != 0) {
        m.head_width = m.hidden / m.heads;
        dpari_config_note(state, "no head_dim: %d is used, hidden_size / num_attention_heads",
                          m.head_width);
    }
    if (m.family == DPAR_MODEL_FAMILY_VIT && m.out_channels == 0) {
        m.out_channels = state->labels;
    }
    dpari_config_head(&m, architecture, &type);
    if (m.family == DPAR_MODEL_FAMILY_T5 &&
        dpari_slice_holds(architecture->text, architecture->length, "ForCausalLM")) {
        dpari_config_note(state, "'%.*s' is only the decoder, but the encoder is included too",
                          dpari_config_shown(architecture->length), architecture->text);
    }
    dpari_config_positions(&m, value);
    st = dpari_config_layers(&m, state, value, &type, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_config_seq(&m, state);
    if (m.family == DPAR_MODEL_FAMILY_GPT) {
        m.stack = DPAR_MODEL_STACK_TORCH;
    }
    if (value[DPARI_M_MTP] > 0 && m.family == DPAR_MODEL_FAMILY_LLAMA) {
        dpari_config_note(
            state, "%d blocks for multi-token prediction are not included; mtp=1 includes one",
            value[DPARI_M_MTP]);
    }
    dpari_config_towers(&m, state);
    dpari_copy_text(m.note, sizeof(m.note), state->note.buffer, sizeof(m.note));
    *model = m;
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_model_config(dpar_model *model, const char *json,
                                                         size_t bytes, dpar_why *why)
{
    dpari_json j;
    dpari_json_item item;
    dpari_config_state state;
    dpar_status st;
    char note[DPAR_MAX_NOTE];
    int32_t i, k;
    dpari_zero(&state, sizeof(state));
    for (i = 0; i < DPARI_OBJECTS; i++) {
        for (k = 0; k < DPARI_C_KEYS; k++) {
            state.value[i][k] = -1;
        }
        state.type[i].text = state.architecture[i].text = state.activation[i].text = "";
    }
    dpar_text_init(&state.note, note, sizeof(note));
    json += dpari_text_mark(json, bytes, &bytes);
    dpari_json_init(&j, json, bytes);
    do {
        st = dpari_json_next(&j, &item, why);
        if (st != DPAR_OK) {
            return st;
        }
        st = dpari_config_member(&state, &item, why);
        if (st != DPAR_OK) {
            return st;
        }
    } while (item.kind != DPARI_JSON_END);
    if (state.mixes > DPARI_MAX_LISTED || state.feeds > DPARI_MAX_LISTED) {
        return dpari_say(DPAR_E_RANGE, why,
                         "config.json: a list describes %d layers, but at most %d are possible",
                         state.mixes > state.feeds ? state.mixes : state.feeds,
                         (int32_t)DPARI_MAX_LISTED);
    }
    return dpari_config_finish(model, &state, why);
}
