/* SPDX-License-Identifier: MIT-0 */
#include "models.h"

#include "../base/arith.h"
#include "../base/json.h"
#include "../base/text.h"
#include "strategy.h"

/* ---- presets: the same text form that users write ------------------------------------------- */

/* Sources: SC21 Table 1 (Narayanan 2021), Korthikanti 2022 Table 3, Megatron TP scaling table,
 * llm-foundry's yamls, the models' public config.json, the teaching texts' cases. table */
static const struct {
    char name[20];
    char text[156];
} dpari_preset[] = {
    {"gpt-1.7b", "gpt:layers=24,hidden=2304,heads=24,vocab=51200,seq=2048,tied=1"},
    {"gpt-3.6b", "gpt:layers=30,hidden=3072,heads=32,vocab=51200,seq=2048,tied=1"},
    {"gpt-7.5b", "gpt:layers=36,hidden=4096,heads=32,vocab=51200,seq=2048,tied=1"},
    {"gpt-18.4b", "gpt:layers=40,hidden=6144,heads=48,vocab=51200,seq=2048,tied=1"},
    {"gpt-39.1b", "gpt:layers=48,hidden=8192,heads=64,vocab=51200,seq=2048,tied=1"},
    {"gpt-76.1b", "gpt:layers=60,hidden=10240,heads=80,vocab=51200,seq=2048,tied=1"},
    {"gpt-145.6b", "gpt:layers=80,hidden=12288,heads=96,vocab=51200,seq=2048,tied=1"},
    {"gpt-310.1b", "gpt:layers=96,hidden=16384,heads=128,vocab=51200,seq=2048,tied=1"},
    {"gpt-529.6b", "gpt:layers=105,hidden=20480,heads=128,vocab=51200,seq=2048,tied=1"},
    {"gpt-1008b", "gpt:layers=128,hidden=25600,heads=160,vocab=51200,seq=2048,tied=1"},
    {"gpt-162.2b", "gpt:layers=32,hidden=20480,heads=128,vocab=51200,seq=2048,tied=1"},
    {"gpt-5.9b", "gpt:layers=32,hidden=3840,heads=32,vocab=51200,seq=2048,tied=1"},
    {"gpt3-175b", "gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048,tied=1"},
    {"megatron-22b", "gpt:layers=48,hidden=6144,heads=64,vocab=51200,seq=2048,tied=1"},
    {"megatron-530b", "gpt:layers=105,hidden=20480,heads=128,vocab=51200,seq=2048,tied=1"},
    {"megatron-1t", "gpt:layers=128,hidden=25600,heads=160,vocab=51200,seq=2048,tied=1"},
    {"megatron-1b", "gpt:layers=24,hidden=1920,heads=15,vocab=51200,seq=1024,tied=1"},
    {"megatron-2b", "gpt:layers=30,hidden=2304,heads=18,vocab=51200,seq=1024,tied=1"},
    {"megatron-4b", "gpt:layers=36,hidden=3072,heads=24,vocab=51200,seq=1024,tied=1"},
    {"megatron-8b", "gpt:layers=42,hidden=4096,heads=32,vocab=51200,seq=1024,tied=1"},
    {"gpt2-125m", "gpt:layers=12,hidden=768,heads=12,vocab=50257,seq=1024,tied=1,stack=torch"},
    {"gpt2-1.5b", "gpt:layers=48,hidden=1600,heads=25,vocab=50257,seq=1024,tied=1,stack=torch"},
    {"gpt-1.3b", "gpt:layers=24,hidden=2048,heads=16,vocab=50304,seq=2048,tied=1,stack=torch"},
    {"mpt-125m",
     "gpt:layers=12,hidden=768,heads=12,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"mpt-350m",
     "gpt:layers=24,hidden=1024,heads=16,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"mpt-760m",
     "gpt:layers=24,hidden=1536,heads=12,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"mpt-1b",
     "gpt:layers=24,hidden=2048,heads=16,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"mpt-3b",
     "gpt:layers=32,hidden=2560,heads=20,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"mpt-7b",
     "gpt:layers=32,hidden=4096,heads=32,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"mpt-13b",
     "gpt:layers=40,hidden=5120,heads=40,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"mpt-30b",
     "gpt:layers=48,hidden=7168,heads=56,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"mpt-70b",
     "gpt:layers=80,hidden=8192,heads=64,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"llama-7b", "llama:layers=32,hidden=4096,heads=32,ffn=11008,vocab=32000,seq=2048"},
    {"llama-30b", "llama:layers=60,hidden=6656,heads=52,ffn=17920,vocab=32000,seq=2048"},
    {"llama-2-7b", "llama:layers=32,hidden=4096,heads=32,ffn=11008,vocab=32000,seq=4096"},
    {"llama-2-13b", "llama:layers=40,hidden=5120,heads=40,ffn=13824,vocab=32000,seq=4096"},
    {"llama-2-70b",
     "llama:layers=80,hidden=8192,heads=64,kv_heads=8,ffn=28672,vocab=32000,seq=4096"},
    {"llama-3-8b",
     "llama:layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256,seq=8192"},
    {"llama-3.1-8b",
     "llama:layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256,seq=8192"},
    {"llama-3-70b",
     "llama:layers=80,hidden=8192,heads=64,kv_heads=8,ffn=28672,vocab=128256,seq=8192"},
    {"llama-3.1-405b",
     "llama:layers=126,hidden=16384,heads=128,kv_heads=8,ffn=53248,vocab=128256,seq=8192"},
    {"mistral-7b",
     "llama:layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=32000,seq=8192"},
    {"mixtral-8x7b", "llama:layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=32000,seq="
                     "4096,experts=8,topk=2"},
    {"mixtral-8x22b", "llama:layers=56,hidden=6144,heads=48,kv_heads=8,ffn=16384,vocab=32768,seq="
                      "4096,experts=8,topk=2"},
    {"qwen2.5-72b",
     "llama:layers=80,hidden=8192,heads=64,kv_heads=8,ffn=29568,vocab=152064,seq=4096"},
    {"qwen3-32b", "llama:layers=64,hidden=5120,heads=64,kv_heads=8,head_width=128,ffn=25600,vocab="
                  "151936,seq=4096"},
    {"deepseek-v2", "llama:layers=60,hidden=5120,heads=128,ffn=12288,vocab=102400,seq=4096,q_lora="
                    "1536,kv_lora=512,rope_width=64,qk_width=128,v_width=128,experts=160"},
    {"deepseek-v3", "llama:layers=61,hidden=7168,heads=128,ffn=18432,vocab=129280,seq=4096,q_lora="
                    "1536,kv_lora=512,rope_width=64,qk_width=128,v_width=128,experts=256"},
    {"vit-l", "vit:layers=24,hidden=1024,heads=16,image=224x224,patch=16,channels=3"},
    {"vit-h", "vit:layers=32,hidden=1280,heads=16,image=224x224,patch=14,channels=3"},
    {"vit-3.2b",
     "vit:layers=40,hidden=2560,heads=32,image=224x224,patch=14,channels=3,stack=torch"},
    {"dit-xl", "dit:layers=28,hidden=1152,heads=16,image=32x32,patch=2,channels=4,out_channels=8"},
    {"diffusion-5b",
     "dit:layers=200,hidden=1152,heads=16,image=256x256,patch=4,channels=16,out_channels=16"},
    {"t5-large", "t5:layers=24,hidden=1024,heads=16,ffn=4096,vocab=32128,seq=512,tied=1"},
    {"t5-11b",
     "t5:layers=24,hidden=1024,heads=128,head_width=128,ffn=65536,vocab=32128,seq=512,tied=1"},
    {"transformer-1b",
     "llama:layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=32000,seq=131072"},
    {"resnet-50", "resnet:hidden=64,image=224x224,channels=3,stack=torch"},
    {"unet-50m", "unet:hidden=160,levels=3,blocks_per_level=4,image=720x1440,channels=104,stack="
                 "torch,element=4"},
    {"unet-0.25deg",
     "unet:hidden=128,levels=5,image=720x1440,channels=104,out_channels=104,stack=torch"},
    {"heat-3d", "grid:512x512x512,fields=1,halo=1,element=8"},
    {"shallow-water", "grid:3600x1800,fields=3,halo=2,element=8"},
    {"weather-0.25deg", "grid:1440x720x100,fields=5,halo=2"}};

enum { DPARI_PRESETS = (int)(sizeof(dpari_preset) / sizeof(dpari_preset[0])) };

/* What does not fit in a row's text. table */
static const struct {
    char name[16];
    char text[80];
} dpari_preset_more[] = {{"deepseek-v2", "topk=6,expert_ffn=1536,shared_ffn=3072,dense_layers=1"},
                         {"deepseek-v3", "topk=8,expert_ffn=2048,shared_ffn=2048,dense_layers=3"}};

DPAR_API const char *dpar_model_name(int32_t index)
{
    return index >= 0 && index < DPARI_PRESETS ? dpari_preset[index].name : NULL;
}

/* ---- fields --------------------------------------------------------------------------------- */

/* The integer fields that a text form or a config may set: name and where. */
enum {
    DPARI_M_LAYERS,
    DPARI_M_HIDDEN,
    DPARI_M_HEADS,
    DPARI_M_KV_HEADS,
    DPARI_M_HEAD_WIDTH,
    DPARI_M_FFN,
    DPARI_M_VOCAB,
    DPARI_M_SEQ,
    DPARI_M_TIED,
    DPARI_M_BIASES,
    DPARI_M_EXPERTS,
    DPARI_M_TOPK,
    DPARI_M_EXPERT_FFN,
    DPARI_M_SHARED_FFN,
    DPARI_M_DENSE_LAYERS,
    DPARI_M_Q_LORA,
    DPARI_M_KV_LORA,
    DPARI_M_ROPE_WIDTH,
    DPARI_M_QK_WIDTH,
    DPARI_M_V_WIDTH,
    DPARI_M_DECODER_LAYERS,
    DPARI_M_PATCH,
    DPARI_M_CHANNELS,
    DPARI_M_OUT_CHANNELS,
    DPARI_M_LEVELS,
    DPARI_M_BLOCKS,
    DPARI_M_KERNEL,
    DPARI_M_FIELDS,
    DPARI_M_HALO,
    DPARI_M_ELEMENT,
    DPARI_M_INFERENCE,
    DPARI_M_INTEGERS,
    DPARI_M_CAPACITY = DPARI_M_INTEGERS,
    DPARI_M_FLOPS,
    DPARI_M_BYTES,
    DPARI_M_IMAGE,
    DPARI_M_ATTENTION,
    DPARI_M_STACK,
    DPARI_M_KEYS
};

static const char dpari_model_key[DPARI_M_KEYS][20] = {"layers",         "hidden",
                                                       "heads",          "kv_heads",
                                                       "head_width",     "ffn",
                                                       "vocab",          "seq",
                                                       "tied",           "biases",
                                                       "experts",        "topk",
                                                       "expert_ffn",     "shared_ffn",
                                                       "dense_layers",   "q_lora",
                                                       "kv_lora",        "rope_width",
                                                       "qk_width",       "v_width",
                                                       "decoder_layers", "patch",
                                                       "channels",       "out_channels",
                                                       "levels",         "blocks_per_level",
                                                       "kernel",         "fields",
                                                       "halo",           "element",
                                                       "inference",      "capacity",
                                                       "flops_per_cell", "bytes_per_cell",
                                                       "image",          "attention",
                                                       "stack"};

static int32_t *dpari_model_field(dpar_model *m, int32_t key)
{
    switch (key) {
    case DPARI_M_LAYERS: return &m->layers;
    case DPARI_M_HIDDEN: return &m->hidden;
    case DPARI_M_HEADS: return &m->heads;
    case DPARI_M_KV_HEADS: return &m->kv_heads;
    case DPARI_M_HEAD_WIDTH: return &m->head_width;
    case DPARI_M_FFN: return &m->ffn;
    case DPARI_M_VOCAB: return &m->vocab;
    case DPARI_M_SEQ: return &m->seq;
    case DPARI_M_TIED: return &m->tied;
    case DPARI_M_BIASES: return &m->biases;
    case DPARI_M_EXPERTS: return &m->experts;
    case DPARI_M_TOPK: return &m->topk;
    case DPARI_M_EXPERT_FFN: return &m->expert_ffn;
    case DPARI_M_SHARED_FFN: return &m->shared_ffn;
    case DPARI_M_DENSE_LAYERS: return &m->dense_layers;
    case DPARI_M_Q_LORA: return &m->q_lora;
    case DPARI_M_KV_LORA: return &m->kv_lora;
    case DPARI_M_ROPE_WIDTH: return &m->rope_width;
    case DPARI_M_QK_WIDTH: return &m->qk_width;
    case DPARI_M_V_WIDTH: return &m->v_width;
    case DPARI_M_DECODER_LAYERS: return &m->decoder_layers;
    case DPARI_M_PATCH: return &m->patch;
    case DPARI_M_CHANNELS: return &m->channels;
    case DPARI_M_OUT_CHANNELS: return &m->out_channels;
    case DPARI_M_LEVELS: return &m->levels;
    case DPARI_M_BLOCKS: return &m->blocks_per_level;
    case DPARI_M_KERNEL: return &m->kernel;
    case DPARI_M_FIELDS: return &m->fields;
    case DPARI_M_HALO: return &m->halo;
    case DPARI_M_ELEMENT: return &m->element;
    default: return &m->inference;
    }
}

/* ---- the text form -------------------------------------------------------------------------- */

static const char dpari_family_name[DPAR_FAMILIES][8] = {"gpt", "llama",  "vit",  "dit",
                                                         "t5",  "resnet", "unet", "grid"};

static dpar_status dpari_model_bad(const char *s, size_t n, dpar_why *why, const char *form)
{
    return dpari_say_word(DPAR_E_PARSE, why, form, s, n < 60 ? n : 60, 0, 0, 0, 0);
}

/* A whole number of at most `limit`, negative allowed, that is all of the slice. */
static int dpari_model_whole(const char *s, size_t n, int64_t limit, int64_t *value)
{
    int64_t v = 0;
    size_t i = n > 0 && s[0] == '-';
    if (i == n) {
        return 0;
    }
    for (; i < n; i++) {
        if (s[i] < '0' || s[i] > '9' || v > INT64_MAX / 10 - 1) {
            return 0;
        }
        v = v * 10 + (s[i] - '0');
    }
    *value = s[0] == '-' ? -v : v;
    return v <= limit;
}

/* "1440x720x100": how many extents, 0 when it is none. */
static int32_t dpari_model_extents(const char *s, size_t n, int64_t *extent, int32_t most)
{
    int32_t k = 0;
    while (n > 0 && k < most) {
        size_t i = 0;
        while (i < n && s[i] != 'x') {
            i++;
        }
        if (!dpari_model_whole(s, i, INT32_MAX, &extent[k]) || extent[k] < 1 || i + 1 == n) {
            return 0;
        }
        k++;
        s += i < n ? i + 1 : i;
        n -= i < n ? i + 1 : i;
    }
    return n == 0 ? k : 0;
}

static int32_t dpari_model_choice(const char *s, size_t n, const char *(*name)(int32_t),
                                  int32_t names)
{
    int32_t i;
    for (i = 0; i < names; i++) {
        if (dpari_spells(s, n, name(i))) {
            return i + 1;
        }
    }
    return 0;
}

/* A value that is no plain integer; 0 when it is of the wrong kind. */
static int dpari_model_other(dpar_model *m, int32_t key, const char *s, size_t n)
{
    int64_t extent[2];
    double v = 0.0;
    switch (key) {
    case DPARI_M_IMAGE:
        if (dpari_model_extents(s, n, extent, 2) != 2) {
            return 0;
        }
        m->image[0] = (int32_t)extent[0];
        m->image[1] = (int32_t)extent[1];
        return 1;
    case DPARI_M_ATTENTION:
        return (m->attention = dpari_model_choice(s, n, dpar_attention_name, DPAR_ATTENTIONS)) > 0;
    case DPARI_M_STACK:
        return (m->stack = dpari_model_choice(s, n, dpar_stack_name, DPAR_STACKS)) > 0;
    default:
        if (dpar_text_read(s, n, &v) != n || !dpari_finite(v) || v < 0.0) {
            return 0;
        }
        *(key == DPARI_M_CAPACITY ? &m->capacity
          : key == DPARI_M_FLOPS  ? &m->flops_per_cell
                                  : &m->bytes_per_cell) = v;
        return 1;
    }
}

static dpar_status dpari_model_setting(dpar_model *m, const char *s, size_t n, dpar_why *why)
{
    size_t k = 0;
    int32_t key = 0;
    int64_t v = 0;
    while (k < n && s[k] != '=') {
        k++;
    }
    while (key < DPARI_M_KEYS && !dpari_spells(s, k, dpari_model_key[key])) {
        key++;
    }
    if (key == DPARI_M_KEYS || k + 1 >= n) {
        return dpari_model_bad(s, n, why,
                               "'@' is no setting of a model (layers=, hidden=, heads=, kv_heads=, "
                               "ffn=, vocab=, seq=, experts=, topk=, attention=, stack= ...)");
    }
    if (key >= DPARI_M_INTEGERS) {
        return dpari_model_other(m, key, s + k + 1, n - k - 1)
                   ? DPAR_OK
                   : dpari_model_bad(s, n, why, "'@': the value is not one that exists");
    }
    if (!dpari_model_whole(s + k + 1, n - k - 1, INT32_MAX, &v) ||
        (v < 0 && key != DPARI_M_BIASES)) {
        return dpari_model_bad(s, n, why, "'@': a whole number of 0 to 2147483647 was expected");
    }
    *dpari_model_field(m, key) = (int32_t)v;
    return DPAR_OK;
}

static dpar_status dpari_model_settings(dpar_model *m, const char *s, size_t n, dpar_why *why)
{
    while (n > 0) {
        size_t k = 0;
        dpar_status st;
        while (k < n && s[k] != ',') {
            k++;
        }
        st = dpari_model_setting(m, s, k, why);
        if (st != DPAR_OK) {
            return st;
        }
        s += k < n ? k + 1 : k;
        n -= k < n ? k + 1 : k;
    }
    return DPAR_OK;
}

/* "FAMILY:settings"; a grid begins with its extents. */
static dpar_status dpari_model_family(dpar_model *m, const char *s, size_t colon, size_t n,
                                      dpar_why *why)
{
    size_t at = colon + 1, k = at;
    for (m->family = 0; m->family < DPAR_FAMILIES; m->family++) {
        if (dpari_spells(s, colon, dpari_family_name[m->family])) {
            break;
        }
    }
    if (m->family == DPAR_FAMILIES) {
        return dpari_model_bad(s, colon, why,
                               "unknown family '@'; one of gpt llama vit dit t5 resnet unet grid");
    }
    if (m->family == DPAR_FAMILY_GRID) {
        while (k < n && s[k] != ',') {
            k++;
        }
        m->extent[0] = m->extent[1] = m->extent[2] = 1;
        m->dims = dpari_model_extents(s + at, k - at, m->extent, 3);
        if (m->dims == 0) {
            return dpari_model_bad(s + at, k - at, why,
                                   "'@': a grid is 1 to 3 extents of at least 1, as 1440x720x100");
        }
        at = k < n ? k + 1 : k;
    }
    return dpari_model_settings(m, s + at, n - at, why);
}

/* Letters of the shorter name found in order in the other. */
static int32_t dpari_model_alike(const char *s, size_t n, const char *name)
{
    int32_t same = 0;
    size_t i, k = 0, m = dpari_length(name);
    for (i = 0; i < n; i++) {
        size_t at = k;
        while (at < m && at < k + 3 && name[at] != s[i]) {
            at++;
        }
        if (at < m && at < k + 3) {
            same++;
            k = at + 1;
        }
    }
    return 2 * same - (int32_t)(n > m ? n : m);
}

static dpar_status dpari_model_named(dpar_model *m, const char *s, size_t n, dpar_why *why)
{
    int32_t i, k, best = 0;
    char text[96];
    dpar_text t;
    for (i = 0; i < DPARI_PRESETS; i++) {
        if (dpari_spells(s, n, dpari_preset[i].name)) {
            dpar_status st =
                dpar_model_parse(m, dpari_preset[i].text, dpari_length(dpari_preset[i].text), why);
            for (k = 0; k < 2 && st == DPAR_OK; k++) {
                if (dpari_same(dpari_preset_more[k].name, dpari_preset[i].name)) {
                    st = dpari_model_settings(m, dpari_preset_more[k].text,
                                              dpari_length(dpari_preset_more[k].text), why);
                }
            }
            dpari_copy_text(m->name, sizeof(m->name), dpari_preset[i].name, 20);
            return st;
        }
        if (dpari_model_alike(s, n, dpari_preset[i].name) >
            dpari_model_alike(s, n, dpari_preset[best].name)) {
            best = i;
        }
    }
    dpar_text_init(&t, text, sizeof(text));
    dpar_text_slice(&t, s, n < 40 ? n : 40);
    dpar_text_put(&t, "'; the nearest is '");
    dpar_text_put(&t, dpari_preset[best].name);
    return dpari_say_word(DPAR_E_UNKNOWN, why, "unknown model '@'", text, sizeof(text), 0, 0, 0, 0);
}

DPAR_API dpar_status dpar_model_preset(dpar_model *m, const char *name, dpar_why *why)
{
    dpar_model fresh;
    dpar_status st;
    dpari_zero(&fresh, sizeof(fresh));
    st = dpari_model_named(&fresh, name, dpari_length(name), why);
    if (st == DPAR_OK) {
        *m = fresh;
    }
    return st;
}

DPAR_API dpar_status dpar_model_parse(dpar_model *model, const char *text, size_t bytes,
                                      dpar_why *why)
{
    dpar_model m;
    dpar_status st;
    size_t first = 0, colon = 0;
    dpari_zero(&m, sizeof(m));
    while (first < bytes && text[first] != ',') {
        first++;
    }
    while (colon < first && text[colon] != ':') {
        colon++;
    }
    if (bytes == 0) {
        return dpari_say(DPAR_E_PARSE, why, "no model: give a preset, FAMILY:settings or a file", 0,
                         0, 0, 0);
    }
    dpari_copy_text(m.name, sizeof(m.name), text, first);
    if (colon < first) {
        dpari_copy_text(m.name, sizeof(m.name), text, colon);
        st = dpari_model_family(&m, text, colon, bytes, why);
    } else {
        st = dpari_model_named(&m, text, first, why);
        if (st == DPAR_OK && first < bytes) {
            st = dpari_model_settings(&m, text + first + 1, bytes - first - 1, why);
        }
    }
    if (st == DPAR_OK) {
        *model = m;
    }
    return st;
}

/* ---- config.json ---------------------------------------------------------------------------- */

/* Members of transformers' config.json and the field each one sets. table */
static const struct {
    char member[32];
    int8_t key;
} dpari_config[] = {{"num_hidden_layers", DPARI_M_LAYERS},
                    {"n_layer", DPARI_M_LAYERS},
                    {"num_layers", DPARI_M_LAYERS},
                    {"n_layers", DPARI_M_LAYERS},
                    {"hidden_size", DPARI_M_HIDDEN},
                    {"n_embd", DPARI_M_HIDDEN},
                    {"d_model", DPARI_M_HIDDEN},
                    {"num_attention_heads", DPARI_M_HEADS},
                    {"n_head", DPARI_M_HEADS},
                    {"num_heads", DPARI_M_HEADS},
                    {"n_heads", DPARI_M_HEADS},
                    {"num_key_value_heads", DPARI_M_KV_HEADS},
                    {"head_dim", DPARI_M_HEAD_WIDTH},
                    {"d_kv", DPARI_M_HEAD_WIDTH},
                    {"intermediate_size", DPARI_M_FFN},
                    {"n_inner", DPARI_M_FFN},
                    {"d_ff", DPARI_M_FFN},
                    {"ffn_dim", DPARI_M_FFN},
                    {"vocab_size", DPARI_M_VOCAB},
                    {"max_position_embeddings", DPARI_M_SEQ},
                    {"n_positions", DPARI_M_SEQ},
                    {"max_seq_len", DPARI_M_SEQ},
                    {"tie_word_embeddings", DPARI_M_TIED},
                    {"num_local_experts", DPARI_M_EXPERTS},
                    {"num_experts", DPARI_M_EXPERTS},
                    {"n_routed_experts", DPARI_M_EXPERTS},
                    {"num_experts_per_tok", DPARI_M_TOPK},
                    {"moe_intermediate_size", DPARI_M_EXPERT_FFN},
                    {"shared_expert_intermediate_size", DPARI_M_SHARED_FFN},
                    {"first_k_dense_replace", DPARI_M_DENSE_LAYERS},
                    {"q_lora_rank", DPARI_M_Q_LORA},
                    {"kv_lora_rank", DPARI_M_KV_LORA},
                    {"qk_rope_head_dim", DPARI_M_ROPE_WIDTH},
                    {"qk_nope_head_dim", DPARI_M_QK_WIDTH},
                    {"v_head_dim", DPARI_M_V_WIDTH},
                    {"num_decoder_layers", DPARI_M_DECODER_LAYERS},
                    {"patch_size", DPARI_M_PATCH},
                    {"num_channels", DPARI_M_CHANNELS}};

enum { DPARI_CONFIGS = (int)(sizeof(dpari_config) / sizeof(dpari_config[0])) };

/* Members read so far that are no field of their own. */
typedef struct dpari_config_state {
    int32_t shared_experts; /* DeepSeek counts them; their width is moe_intermediate_size each */
    int32_t image;
    int32_t tied_said, family_said;
} dpari_config_state;

static int32_t dpari_config_family(const char *s, size_t n)
{
    static const char name[10][12] = {"gpt2", "gpt_neox", "opt",  "gpt_bigcode", "mpt",
                                      "t5",   "mt5",      "umt5", "vit",         "dit"};
    int32_t i;
    for (i = 0; i < 10; i++) {
        if (dpari_spells(s, n, name[i])) {
            return i < 5    ? DPAR_FAMILY_GPT
                   : i < 8  ? DPAR_FAMILY_T5
                   : i == 8 ? DPAR_FAMILY_VIT
                            : DPAR_FAMILY_DIT;
        }
    }
    return DPAR_FAMILY_LLAMA;
}

static dpar_status dpari_config_number(dpar_model *m, dpari_config_state *c,
                                       const dpar_json_item *item, dpar_why *why)
{
    int32_t i, v;
    for (i = 0; i < DPARI_CONFIGS; i++) {
        if (dpari_spells(item->key, item->key_length, dpari_config[i].member)) {
            break;
        }
    }
    if (i == DPARI_CONFIGS && !dpari_spells(item->key, item->key_length, "n_shared_experts") &&
        !dpari_spells(item->key, item->key_length, "image_size")) {
        return DPAR_OK;
    }
    if (!(item->number >= 0.0 && item->number <= 2147483647.0) ||
        item->number - (double)(int32_t)item->number > 0.0) {
        return dpari_say_word(DPAR_E_RANGE, why,
                              "config.json: '@' must be a whole number of 0 to 2147483647",
                              item->key, item->key_length, 0, 0, 0, 0);
    }
    v = (int32_t)item->number;
    if (i < DPARI_CONFIGS) {
        *dpari_model_field(m, dpari_config[i].key) = v;
    } else if (dpari_spells(item->key, item->key_length, "image_size")) {
        c->image = v;
    } else {
        c->shared_experts = v;
    }
    return DPAR_OK;
}

static dpar_status dpari_config_member(dpar_model *m, dpari_config_state *c,
                                       const dpar_json_item *item, dpar_why *why)
{
    if (item->key == NULL) {
        return DPAR_OK;
    }
    if (item->kind == DPAR_JSON_NUMBER) {
        return dpari_config_number(m, c, item, why);
    }
    if (item->kind == DPAR_JSON_STRING && dpari_spells(item->key, item->key_length, "model_type") &&
        !c->family_said) {
        m->family = dpari_config_family(item->string, item->length);
        c->family_said = 1;
        dpari_copy_text(m->name, sizeof(m->name), item->string, item->length);
    }
    if (dpari_spells(item->key, item->key_length, "tie_word_embeddings") &&
        (item->kind == DPAR_JSON_TRUE || item->kind == DPAR_JSON_FALSE)) {
        m->tied = item->kind == DPAR_JSON_TRUE;
        c->tied_said = 1;
    }
    if (item->kind == DPAR_JSON_STRING &&
        (dpari_spells(item->key, item->key_length, "hidden_size") ||
         dpari_spells(item->key, item->key_length, "num_hidden_layers"))) {
        return dpari_say_word(DPAR_E_PARSE, why, "config.json: '@' must be a number", item->key,
                              item->key_length, 0, 0, 0, 0);
    }
    return DPAR_OK;
}

static dpar_status dpari_config_needed(const dpar_model *m, dpar_why *why)
{
    static const char name[4][24] = {"num_hidden_layers", "hidden_size", "num_attention_heads",
                                     "vocab_size"};
    int32_t value[4], i;
    value[0] = m->layers;
    value[1] = m->hidden;
    value[2] = m->heads;
    value[3] = m->family == DPAR_FAMILY_VIT || m->family == DPAR_FAMILY_DIT ? 1 : m->vocab;
    for (i = 0; i < 4; i++) {
        if (value[i] < 1) {
            return dpari_say_word(DPAR_E_PARSE, why,
                                  "config.json: '@' is missing or 0 (not a transformer's config?)",
                                  name[i], sizeof(name[i]), 0, 0, 0, 0);
        }
    }
    return DPAR_OK;
}

/* What the architectures leave unsaid. */
static void dpari_config_finish(dpar_model *m, const dpari_config_state *c)
{
    if (!c->tied_said && m->family != DPAR_FAMILY_LLAMA) {
        m->tied = 1; /* transformers' default; Llama-like families say it */
    }
    if (c->shared_experts > 0 && m->shared_ffn == 0 && m->expert_ffn > 0 &&
        c->shared_experts < INT32_MAX / m->expert_ffn) {
        m->shared_ffn = c->shared_experts * m->expert_ffn;
    }
    if (m->kv_lora > 0) {
        m->head_width = 0;
        m->kv_heads = 0;
    }
    if (c->image > 0) {
        m->image[0] = m->image[1] = c->image;
        m->channels = m->channels > 0 ? m->channels : 3;
    }
    if (m->family == DPAR_FAMILY_T5 && m->seq == 0) {
        m->seq = 512;
    }
    if (m->seq == 0 || m->seq > 8192) {
        m->seq = 8192; /* trained lengths, not the longest that positions allow; --seq says more */
    }
    if (m->family == DPAR_FAMILY_GPT) {
        m->stack = DPAR_STACK_TORCH + 1;
    }
}

DPAR_API dpar_status dpar_model_read_config(dpar_model *model, const char *json, size_t bytes,
                                            dpar_why *why)
{
    dpar_json j;
    dpar_json_item item;
    dpar_model m;
    dpari_config_state c;
    dpar_status st;
    dpari_zero(&m, sizeof(m));
    dpari_zero(&c, sizeof(c));
    m.family = DPAR_FAMILY_LLAMA;
    dpari_copy_text(m.name, sizeof(m.name), "config.json", 11);
    dpar_json_init(&j, json, bytes);
    do {
        st = dpar_json_next(&j, &item, why);
        if (st == DPAR_OK) {
            st = dpari_config_member(&m, &c, &item, why);
        }
    } while (st == DPAR_OK && item.kind != DPAR_JSON_END);
    if (st == DPAR_OK) {
        st = dpari_config_needed(&m, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    dpari_config_finish(&m, &c);
    *model = m;
    return DPAR_OK;
}
