/* SPDX-License-Identifier: MIT-0 */
#include "models.h"

#include "../base/inner.h"
#include "../base/text.h"
#include "inner.h"
#include "json.h"

/* ---- presets: the same text form that users write ------------------------------------------- */

/* Sources: SC21 Table 1 (Narayanan 2021), Korthikanti 2022 Table 3, Megatron TP scaling table,
 * llm-foundry's yamls, the models' public config.json, the teaching texts' cases. A row may build
 * on another one. MPT has biases and learned positions: the parameters of llm-foundry's benchmark
 * table say so, to the last one. Images are height x width. The U-Nets are stand-ins for what the
 * texts name without widths: 1440 x 720 cells of 8 surface fields and 8 fields on 12 levels (104
 * channels); 3 levels from 160 channels make case 3's 50M, 5 levels from 128 a weather model of
 * 116M. transformer-1b stands for case 4's "1B, 128K tokens" with Llama-3.2-1B's widths.
 *
 * A row is a name and a text, each with its NUL; an empty name ends the rows. Two strings, since
 * C99 promises 4095 characters of one. */
static const char dpari_gpts[] =
    "gpt-1.7b\0gpt:layers=24,hidden=2304,heads=24,vocab=51200,seq=2048,tied=1\0"
    "gpt-3.6b\0gpt-1.7b,layers=30,hidden=3072,heads=32\0"
    "gpt-7.5b\0gpt-1.7b,layers=36,hidden=4096,heads=32\0"
    "gpt-18.4b\0gpt-1.7b,layers=40,hidden=6144,heads=48\0"
    "gpt-39.1b\0gpt-1.7b,layers=48,hidden=8192,heads=64\0"
    "gpt-76.1b\0gpt-1.7b,layers=60,hidden=10240,heads=80\0"
    "gpt-145.6b\0gpt-1.7b,layers=80,hidden=12288,heads=96\0"
    "gpt-310.1b\0gpt-1.7b,layers=96,hidden=16384,heads=128\0"
    "gpt-529.6b\0gpt-1.7b,layers=105,hidden=20480,heads=128\0"
    "gpt-1008b\0gpt-1.7b,layers=128,hidden=25600,heads=160\0"
    "gpt-162.2b\0gpt-1.7b,layers=32,hidden=20480,heads=128\0"
    "gpt-5.9b\0gpt-1.7b,layers=32,hidden=3840,heads=32\0"
    "gpt3-175b\0gpt-1.7b,layers=96,hidden=12288,heads=96\0"
    "gpt-174.6b\0gpt3-175b\0"
    "megatron-22b\0gpt-1.7b,layers=48,hidden=6144,heads=64\0"
    "megatron-530b\0gpt-1.7b,layers=105,hidden=20480,heads=128\0"
    "mt-nlg-530b\0gpt-529.6b\0"
    "megatron-1t\0gpt-1.7b,layers=128,hidden=25600,heads=160\0"
    "megatron-1b\0gpt-1.7b,layers=24,hidden=1920,heads=15,seq=1024\0"
    "megatron-2b\0gpt-1.7b,layers=30,hidden=2304,heads=18,seq=1024\0"
    "megatron-4b\0gpt-1.7b,layers=36,hidden=3072,heads=24,seq=1024\0"
    "megatron-8b\0gpt-1.7b,layers=42,hidden=4096,heads=32,seq=1024\0"
    "gpt2-125m\0gpt:layers=12,hidden=768,heads=12,vocab=50257,seq=1024,tied=1,stack=torch\0"
    "gpt2-1.5b\0gpt2-125m,layers=48,hidden=1600,heads=25\0"
    "gpt2\0gpt2-125m\0"
    "gpt2-xl\0gpt2-1.5b\0"
    "gpt-1.3b\0gpt-1.7b,layers=24,hidden=2048,heads=16,vocab=50304,stack=torch\0"
    "mpt-125m\0gpt:layers=12,hidden=768,heads=12,vocab=50368,seq=2048,tied=1,stack=torch,"
    "attention=flash1,loss=fused\0"
    "mpt-350m\0mpt-125m,layers=24,hidden=1024,heads=16\0"
    "mpt-760m\0mpt-125m,layers=24,hidden=1536,heads=12\0"
    "mpt-1b\0mpt-125m,layers=24,hidden=2048,heads=16\0"
    "mpt-3b\0mpt-125m,layers=32,hidden=2560,heads=20\0"
    "mpt-7b\0mpt-125m,layers=32,hidden=4096,heads=32\0"
    "mpt-13b\0mpt-125m,layers=40,hidden=5120,heads=40\0"
    "mpt-30b\0mpt-125m,layers=48,hidden=7168,heads=56\0"
    "mpt-70b\0mpt-125m,layers=80,hidden=8192,heads=64\0";
static const char dpari_others[] =
    "llama-7b\0llama:layers=32,hidden=4096,heads=32,ffn=11008,vocab=32000,seq=2048\0"
    "llama-13b\0llama-7b,layers=40,hidden=5120,heads=40,ffn=13824\0"
    "llama-30b\0llama-7b,layers=60,hidden=6656,heads=52,ffn=17920\0"
    "llama-65b\0llama-7b,layers=80,hidden=8192,heads=64,ffn=22016\0"
    "llama-2-7b\0llama:layers=32,hidden=4096,heads=32,ffn=11008,vocab=32000,seq=4096\0"
    "llama-2-13b\0llama-2-7b,layers=40,hidden=5120,heads=40,ffn=13824\0"
    "llama-2-70b\0llama:layers=80,hidden=8192,heads=64,kv_heads=8,ffn=28672,vocab=32000,seq=4096\0"
    "llama-3-8b\0llama:layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256,seq=8192\0"
    "llama-3.1-8b\0llama-3-8b\0"
    "llama-3.2-1b\0llama:layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=128256,"
    "seq=8192,tied=1\0"
    "smollm2-360m\0llama:layers=32,hidden=960,heads=15,kv_heads=5,ffn=2560,vocab=49152,seq=2048,"
    "tied=1\0"
    "llama-3-70b\0llama-3-8b,layers=80,hidden=8192,heads=64,ffn=28672\0"
    "llama-3.1-405b\0llama-3-8b,layers=126,hidden=16384,heads=128,ffn=53248\0"
    "mistral-7b\0llama-3-8b,layers=32,hidden=4096,heads=32,vocab=32000\0"
    "mixtral-8x7b\0llama:layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=32000,"
    "seq=4096,experts=8,topk=2\0"
    "mixtral-8x22b\0mixtral-8x7b,layers=56,hidden=6144,heads=48,ffn=16384,vocab=32768\0"
    "qwen2.5-72b\0llama:layers=80,hidden=8192,heads=64,kv_heads=8,ffn=29568,vocab=152064,"
    "seq=4096\0"
    "qwen3-4b\0llama:layers=36,hidden=2560,heads=32,kv_heads=8,head_width=128,ffn=9728,"
    "vocab=151936,seq=4096,tied=1\0"
    "qwen3-32b\0llama:layers=64,hidden=5120,heads=64,kv_heads=8,head_width=128,ffn=25600,"
    "vocab=151936,seq=4096\0"
    "qwen3-235b-a22b\0llama:layers=94,hidden=4096,heads=64,kv_heads=4,head_width=128,"
    "vocab=151936,seq=4096,experts=128,topk=8,expert_ffn=1536\0"
    "gemma-1.1-2b\0llama:layers=18,hidden=2048,heads=8,kv_heads=1,head_width=256,ffn=16384,"
    "vocab=256000,seq=8192,tied=1\0"
    "gemma-2-9b\0llama:layers=42,hidden=3584,heads=16,kv_heads=8,head_width=256,ffn=14336,"
    "vocab=256000,seq=8192,tied=1\0"
    "gemma-2-27b\0llama:layers=46,hidden=4608,heads=32,kv_heads=16,head_width=128,ffn=36864,"
    "vocab=256000,seq=8192,tied=1\0"
    "phi-3-mini\0llama:layers=32,hidden=3072,heads=32,ffn=8192,vocab=32064,seq=4096\0"
    "deepseek-v2\0llama:layers=60,hidden=5120,heads=128,ffn=12288,vocab=102400,seq=4096,"
    "q_lora=1536,kv_lora=512,rope_width=64,qk_width=128,v_width=128,experts=160,topk=6,"
    "expert_ffn=1536,shared_ffn=3072,dense_layers=1\0"
    "deepseek-v3\0llama:layers=61,hidden=7168,heads=128,ffn=18432,vocab=129280,seq=4096,"
    "q_lora=1536,kv_lora=512,rope_width=64,qk_width=128,v_width=128,experts=256,topk=8,"
    "expert_ffn=2048,shared_ffn=2048,dense_layers=3\0"
    "vit-l\0vit:layers=24,hidden=1024,heads=16,image=224x224,patch=16,channels=3\0"
    "vit-h\0vit:layers=32,hidden=1280,heads=16,image=224x224,patch=14,channels=3\0"
    "vit-3.2b\0vit:layers=40,hidden=2560,heads=32,image=224x224,patch=14,channels=3,stack=torch\0"
    "dit-xl\0dit:layers=28,hidden=1152,heads=16,image=32x32,patch=2,channels=4,out_channels=8\0"
    "diffusion-5b\0dit:layers=200,hidden=1152,heads=16,image=256x256,patch=4,channels=16,"
    "out_channels=16\0"
    "t5-large\0t5:layers=24,hidden=1024,heads=16,ffn=4096,vocab=32128,seq=512,tied=1\0"
    "t5-11b\0t5:layers=24,hidden=1024,heads=128,head_width=128,ffn=65536,vocab=32128,seq=512,"
    "tied=1\0"
    "transformer-1b\0llama:layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=32000,"
    "seq=131072\0"
    "transformer-1b-128k\0transformer-1b\0"
    "resnet-50\0resnet:hidden=64,image=224x224,channels=3,stack=torch\0"
    "unet-50m\0unet:hidden=160,levels=3,blocks_per_level=4,image=720x1440,channels=104,"
    "stack=torch,element=4\0"
    "unet-0.25deg\0unet:hidden=128,levels=5,image=720x1440,channels=104,out_channels=104,"
    "stack=torch\0"
    "heat-3d\0grid:512x512x512,fields=1,halo=1,element=8\0"
    "shallow-water\0grid:3600x1800,fields=3,halo=2,element=8\0"
    "weather-0.25deg\0grid:1440x720x100,fields=5,halo=2\0";

static const char *dpari_behind(const char *text)
{
    return text + dpari_length(text) + 1;
}

/* The row behind `row`; of NULL the first; NULL behind the last. */
static const char *dpari_preset_next(const char *row)
{
    row = row == NULL ? dpari_gpts : dpari_behind(dpari_behind(row));
    return *row != 0 ? row : row == dpari_gpts + sizeof(dpari_gpts) - 1 ? dpari_others : NULL;
}

DPAR_API const char *dpar_model_name(int32_t index)
{
    const char *row = index < 0 ? NULL : dpari_preset_next(NULL);
    for (; row != NULL && index > 0; index--) {
        row = dpari_preset_next(row);
    }
    return row;
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
    DPARI_M_ROTARY,
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
    DPARI_M_LOSS,
    DPARI_M_KEYS
};

static const char dpari_model_key[DPARI_M_KEYS][20] = {"layers",
                                                       "hidden",
                                                       "heads",
                                                       "kv_heads",
                                                       "head_width",
                                                       "ffn",
                                                       "vocab",
                                                       "seq",
                                                       "tied",
                                                       "biases",
                                                       "rotary",
                                                       "experts",
                                                       "topk",
                                                       "expert_ffn",
                                                       "shared_ffn",
                                                       "dense_layers",
                                                       "q_lora",
                                                       "kv_lora",
                                                       "rope_width",
                                                       "qk_width",
                                                       "v_width",
                                                       "decoder_layers",
                                                       "patch",
                                                       "channels",
                                                       "out_channels",
                                                       "levels",
                                                       "blocks_per_level",
                                                       "kernel",
                                                       "fields",
                                                       "halo",
                                                       "element",
                                                       "inference",
                                                       "capacity",
                                                       "flops_per_cell",
                                                       "bytes_per_cell",
                                                       "image",
                                                       "attention",
                                                       "stack",
                                                       "loss"};

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
    case DPARI_M_ROTARY: return &m->rotary;
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

/* ---- words, and the nearest one ------------------------------------------------------------- */

static const char *dpari_family_name(int32_t family)
{
    static const char name[DPAR_FAMILIES][8] = {"?",  "gpt",    "llama", "vit", "dit",
                                                "t5", "resnet", "unet",  "grid"};
    return name[family];
}

static dpar_status dpari_model_suggest(dpar_status status, dpar_why *why, const char *what,
                                       const char *s, size_t n, const char *nearest)
{
    char text[160];
    dpar_text t;
    dpar_text_init(&t, text, sizeof(text));
    dpar_text_put(&t, what);
    dpar_text_put(&t, " '");
    dpari_text_slice(&t, s, n < 60 ? n : 60);
    dpar_text_put(&t, "'; the nearest is '");
    dpar_text_put(&t, nearest);
    dpari_text_char(&t, '\'');
    return dpari_say_word(status, why, "@", text, sizeof(text), 0, 0, 0, 0);
}

static dpar_status dpari_model_bad(const char *s, size_t n, dpar_why *why, const char *form)
{
    return dpari_say_word(DPAR_E_PARSE, why, form, s, n < 60 ? n : 60, 0, 0, 0, 0);
}

/* "'attention=slow': one of unfused, flash1, flash was expected" */
static dpar_status dpari_model_one_of(const char *s, size_t n, dpar_why *why,
                                      const char *(*name)(int32_t), int32_t end)
{
    char text[160];
    dpar_text t;
    int32_t i;
    dpar_text_init(&t, text, sizeof(text));
    dpari_text_char(&t, '\'');
    dpari_text_slice(&t, s, n < 60 ? n : 60);
    dpar_text_put(&t, "': one of ");
    for (i = 1; i < end; i++) {
        dpar_text_put(&t, i > 1 ? ", " : "");
        dpar_text_put(&t, name(i));
    }
    return dpari_say_word(DPAR_E_PARSE, why, "@ was expected", text, sizeof(text), 0, 0, 0, 0);
}

/* ---- the text form -------------------------------------------------------------------------- */

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

/* Widths and counts that no model has none of. */
static int64_t dpari_model_least(int32_t key)
{
    return (key >= DPARI_M_LAYERS && key <= DPARI_M_SEQ) || key == DPARI_M_FIELDS ||
           key == DPARI_M_HALO || key == DPARI_M_KERNEL || key == DPARI_M_LEVELS ||
           key == DPARI_M_PATCH || key == DPARI_M_CHANNELS || key == DPARI_M_ELEMENT;
}

/* The value begins at s[k] of the setting [s, s + n), which the sentence quotes whole; so below. */
static dpar_status dpari_model_integer(dpar_model *m, int32_t key, const char *s, size_t k,
                                       size_t n, dpar_why *why)
{
    int yes_no = key == DPARI_M_TIED || key == DPARI_M_ROTARY || key == DPARI_M_INFERENCE;
    int64_t v = 0, low = key == DPARI_M_BIASES ? -1 : dpari_model_least(key);
    int64_t high = yes_no || key == DPARI_M_BIASES ? 1 : INT32_MAX;
    size_t kilo = key == DPARI_M_SEQ && n - k > 1 && s[n - 1] == 'k'; /* tokens count in 1024 */
    if (dpari_model_whole(s + k, n - k - kilo, INT32_MAX, &v)) {
        v *= kilo ? 1024 : 1;
        if (v >= low && v <= high) {
            *dpari_model_field(m, key) = (int32_t)v;
            return DPAR_OK;
        }
    }
    return dpari_say_word(DPAR_E_PARSE, why, "'@': a whole number of # to # was expected", s,
                          n < 60 ? n : 60, low, high, 0, 0);
}

/* The bound keeps sums over a grid finite. */
static dpar_status dpari_model_real(dpar_model *m, int32_t key, const char *s, size_t k, size_t n,
                                    dpar_why *why)
{
    double v = 0.0;
    double *field = key == DPARI_M_CAPACITY ? &m->capacity
                    : key == DPARI_M_FLOPS  ? &m->flops_per_cell
                                            : &m->bytes_per_cell;
    if (k == n || dpari_text_number(s + k, n - k, &v) != n - k || !(v >= 0.0 && v <= 1e15)) {
        return dpari_model_bad(s, n, why, "'@': a number of 0 to 1e15 was expected");
    }
    if (key == DPARI_M_CAPACITY && v < 1.0) {
        return dpari_model_bad(s, n, why,
                               "'@': the fullest expert holds at least the mean: 1 or more");
    }
    *field = v;
    return DPAR_OK;
}

/* A name of a list, 1 to end - 1. */
static dpar_status dpari_model_choice(int32_t *field, const char *s, size_t k, size_t n,
                                      const char *(*name)(int32_t), int32_t end, dpar_why *why)
{
    int32_t i;
    for (i = 1; i < end; i++) {
        if (dpari_spells(s + k, n - k, name(i))) {
            *field = i;
            return DPAR_OK;
        }
    }
    return dpari_model_one_of(s, n, why, name, end);
}

static dpar_status dpari_model_image(dpar_model *m, const char *s, size_t k, size_t n,
                                     dpar_why *why)
{
    int64_t side[2];
    int32_t sides = dpari_model_extents(s + k, n - k, side, 2);
    if (sides == 0) {
        return dpari_model_bad(s, n, why,
                               "'@': a side or height x width was expected, as 224 or 720x1440");
    }
    m->image[0] = (int32_t)side[0];
    m->image[1] = (int32_t)side[sides - 1];
    return DPAR_OK;
}

/* "key=value" */
static dpar_status dpari_model_setting(dpar_model *m, const char *s, size_t n, uint64_t *seen,
                                       dpar_why *why)
{
    size_t k = 0;
    int32_t key, best = 0;
    while (k < n && s[k] != '=') {
        k++;
    }
    for (key = 0; key < DPARI_M_KEYS && !dpari_spells(s, k, dpari_model_key[key]); key++) {
        if (dpari_unlike(s, k, dpari_model_key[key]) < dpari_unlike(s, k, dpari_model_key[best])) {
            best = key;
        }
    }
    if (key == DPARI_M_KEYS) {
        return dpari_model_suggest(DPAR_E_PARSE, why, "no setting of a model is called", s, k,
                                   dpari_model_key[best]);
    }
    if (k == n) {
        return dpari_model_bad(s, n, why, "'@' needs a value: key=value");
    }
    if (*seen >> key & 1u) {
        return dpari_model_bad(s, n, why, "'@': given twice");
    }
    *seen |= (uint64_t)1 << key;
    k++;
    switch (key) {
    case DPARI_M_CAPACITY:
    case DPARI_M_FLOPS:
    case DPARI_M_BYTES: return dpari_model_real(m, key, s, k, n, why);
    case DPARI_M_IMAGE: return dpari_model_image(m, s, k, n, why);
    case DPARI_M_ATTENTION:
        return dpari_model_choice(&m->attention, s, k, n, dpari_attention_name, DPAR_ATTENTIONS,
                                  why);
    case DPARI_M_STACK:
        return dpari_model_choice(&m->stack, s, k, n, dpari_stack_name, DPAR_STACKS, why);
    case DPARI_M_LOSS:
        return dpari_model_choice(&m->loss, s, k, n, dpari_loss_name, DPAR_LOSSES, why);
    default: return dpari_model_integer(m, key, s, k, n, why);
    }
}

/* Settings with commas between them; at least one. */
static dpar_status dpari_model_settings(dpar_model *m, const char *s, size_t n, dpar_why *why)
{
    size_t at = 0;
    uint64_t seen = 0;
    dpar_status st = DPAR_OK;
    while (st == DPAR_OK && at <= n) {
        size_t k = at;
        while (k < n && s[k] != ',') {
            k++;
        }
        st = k > at ? dpari_model_setting(m, s + at, k - at, &seen, why)
                    : dpari_model_bad(s, n, why, "a setting (key=value) is missing at a comma");
        at = k + 1;
    }
    return st;
}

/* "FAMILY:settings"; a grid begins with its extents. */
static dpar_status dpari_model_family(dpar_model *m, const char *s, size_t colon, size_t n,
                                      dpar_why *why)
{
    size_t at = colon + 1, k = at;
    for (m->family = 1; m->family < DPAR_FAMILIES; m->family++) {
        if (dpari_spells_any_case(s, colon, dpari_family_name(m->family))) {
            break;
        }
    }
    if (m->family == DPAR_FAMILIES) {
        return dpari_model_one_of(s, colon, why, dpari_family_name, DPAR_FAMILIES);
    }
    if (m->family != DPAR_FAMILY_GRID) {
        return at < n ? dpari_model_settings(m, s + at, n - at, why) : DPAR_OK;
    }
    while (k < n && s[k] != ',') {
        k++;
    }
    m->extent[0] = m->extent[1] = m->extent[2] = 1;
    m->dims = dpari_model_extents(s + at, k - at, m->extent, 3);
    if (m->dims == 0) {
        return dpari_model_bad(s + at, k - at, why,
                               "'@': a grid is 1 to 3 extents of at least 1, as 1440x720x100");
    }
    return k < n ? dpari_model_settings(m, s + k + 1, n - k - 1, why) : DPAR_OK;
}

static dpar_status dpari_model_named(dpar_model *m, const char *s, size_t n, dpar_why *why)
{
    const char *row, *best = dpari_preset_next(NULL);
    for (row = best; row != NULL; row = dpari_preset_next(row)) {
        if (dpari_spells_any_case(s, n, row)) {
            const char *text = dpari_behind(row);
            dpar_status st = dpar_model_read(m, text, dpari_length(text), why);
            dpari_copy_text(m->name, sizeof(m->name), row, 20);
            return st;
        }
        best = dpari_unlike(s, n, row) < dpari_unlike(s, n, best) ? row : best;
    }
    return dpari_model_suggest(DPAR_E_UNKNOWN, why, "unknown model", s, n, best);
}

DPAR_API DPARI_COLD dpar_status dpar_model_find(dpar_model *m, const char *name, dpar_why *why)
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

/* ---- config.json ---------------------------------------------------------------------------- */

/* Members that are no field of their own, behind the fields; the last ones are true or false. */
enum {
    DPARI_C_SHARED = DPARI_M_KEYS, /* DeepSeek counts them; each is moe_intermediate_size wide */
    DPARI_C_SIDE,                  /* of a square image */
    DPARI_C_STEP,                  /* experts in every so manieth layer */
    DPARI_C_NEW_KV,                /* Falcon: kv heads, if new_decoder_architecture */
    DPARI_C_EXPANSION,             /* MPT: ffn / hidden */
    DPARI_C_FLAGS,
    DPARI_C_TIED = DPARI_C_FLAGS,
    DPARI_C_NO_BIAS,
    DPARI_C_BIAS,
    DPARI_C_ONE_KV, /* multi-query attention */
    DPARI_C_NEW_DECODER,
    DPARI_C_GATED, /* T5 v1.1 */
    DPARI_C_KEYS
};

/* Members of transformers' config.json and what each one says; the first of a key is the name
 * that a sentence about it begins with. table */
static const struct {
    char member[32];
    int8_t key;
} dpari_config[] = {{"num_hidden_layers", DPARI_M_LAYERS},
                    {"n_layer", DPARI_M_LAYERS},
                    {"num_layers", DPARI_M_LAYERS},
                    {"n_layers", DPARI_M_LAYERS},
                    {"hidden_size", DPARI_M_HIDDEN},
                    {"n_embd", DPARI_M_HIDDEN},
                    {"n_embed", DPARI_M_HIDDEN},
                    {"d_model", DPARI_M_HIDDEN},
                    {"num_attention_heads", DPARI_M_HEADS},
                    {"n_head", DPARI_M_HEADS},
                    {"num_heads", DPARI_M_HEADS},
                    {"n_heads", DPARI_M_HEADS},
                    {"num_key_value_heads", DPARI_M_KV_HEADS},
                    {"head_dim", DPARI_M_HEAD_WIDTH},
                    {"d_kv", DPARI_M_HEAD_WIDTH},
                    {"attention_head_dim", DPARI_M_HEAD_WIDTH},
                    {"intermediate_size", DPARI_M_FFN},
                    {"n_inner", DPARI_M_FFN},
                    {"d_ff", DPARI_M_FFN},
                    {"ffn_dim", DPARI_M_FFN},
                    {"ffn_hidden_size", DPARI_M_FFN},
                    {"vocab_size", DPARI_M_VOCAB},
                    {"max_position_embeddings", DPARI_M_SEQ},
                    {"n_positions", DPARI_M_SEQ},
                    {"max_seq_len", DPARI_M_SEQ},
                    {"seq_length", DPARI_M_SEQ},
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
                    {"num_channels", DPARI_M_CHANNELS},
                    {"in_channels", DPARI_M_CHANNELS},
                    {"out_channels", DPARI_M_OUT_CHANNELS},
                    {"n_shared_experts", DPARI_C_SHARED},
                    {"image_size", DPARI_C_SIDE},
                    {"sample_size", DPARI_C_SIDE},
                    {"moe_layer_freq", DPARI_C_STEP},
                    {"decoder_sparse_step", DPARI_C_STEP},
                    {"interleave_moe_layer_step", DPARI_C_STEP},
                    {"num_kv_heads", DPARI_C_NEW_KV},
                    {"expansion_ratio", DPARI_C_EXPANSION},
                    {"tie_word_embeddings", DPARI_C_TIED},
                    {"no_bias", DPARI_C_NO_BIAS},
                    {"bias", DPARI_C_BIAS},
                    {"multi_query", DPARI_C_ONE_KV},
                    {"new_decoder_architecture", DPARI_C_NEW_DECODER},
                    {"is_gated_act", DPARI_C_GATED}};

enum { DPARI_CONFIGS = (int)(sizeof(dpari_config) / sizeof(dpari_config[0])) };

/* What a model_type says without a member. */
enum {
    DPARI_CONFIG_TIED = 1,    /* unless it says otherwise */
    DPARI_CONFIG_ROTARY = 2,  /* GPT's block, but no learned positions */
    DPARI_CONFIG_NO_BIAS = 4, /* unless it says otherwise */
    DPARI_CONFIG_ONE_KV = 8,  /* multi-query attention, unless it says otherwise */
    DPARI_CONFIG_SHARES = 16  /* one shared expert, as wide as a routed one */
};

/* model_type and the family that has its shapes. table */
static const struct {
    char name[24];
    int8_t family, says;
} dpari_config_type[] = {
    {"llama", DPAR_FAMILY_LLAMA, 0},
    {"mistral", DPAR_FAMILY_LLAMA, 0},
    {"mixtral", DPAR_FAMILY_LLAMA, 0},
    {"qwen2", DPAR_FAMILY_LLAMA, 0},
    {"qwen2_moe", DPAR_FAMILY_LLAMA, 0},
    {"qwen3", DPAR_FAMILY_LLAMA, 0},
    {"qwen3_moe", DPAR_FAMILY_LLAMA, 0},
    {"deepseek_v2", DPAR_FAMILY_LLAMA, 0},
    {"deepseek_v3", DPAR_FAMILY_LLAMA, 0},
    {"phi3", DPAR_FAMILY_LLAMA, 0},
    {"llama4_text", DPAR_FAMILY_LLAMA, DPARI_CONFIG_SHARES},
    {"gemma", DPAR_FAMILY_LLAMA, DPARI_CONFIG_TIED},
    {"gemma2", DPAR_FAMILY_LLAMA, DPARI_CONFIG_TIED},
    {"gemma3_text", DPAR_FAMILY_LLAMA, DPARI_CONFIG_TIED},
    {"cohere", DPAR_FAMILY_LLAMA, DPARI_CONFIG_TIED},
    {"cohere2", DPAR_FAMILY_LLAMA, DPARI_CONFIG_TIED},
    {"gpt2", DPAR_FAMILY_GPT, DPARI_CONFIG_TIED},
    {"gpt_neo", DPAR_FAMILY_GPT, DPARI_CONFIG_TIED},
    {"opt", DPAR_FAMILY_GPT, DPARI_CONFIG_TIED},
    {"gpt_bigcode", DPAR_FAMILY_GPT, DPARI_CONFIG_TIED | DPARI_CONFIG_ONE_KV},
    {"bloom", DPAR_FAMILY_GPT, DPARI_CONFIG_TIED | DPARI_CONFIG_ROTARY},
    {"mpt", DPAR_FAMILY_GPT, DPARI_CONFIG_TIED | DPARI_CONFIG_ROTARY},
    {"starcoder2", DPAR_FAMILY_GPT, DPARI_CONFIG_TIED | DPARI_CONFIG_ROTARY},
    {"falcon", DPAR_FAMILY_GPT,
     DPARI_CONFIG_TIED | DPARI_CONFIG_ROTARY | DPARI_CONFIG_NO_BIAS | DPARI_CONFIG_ONE_KV},
    {"gpt_neox", DPAR_FAMILY_GPT, DPARI_CONFIG_ROTARY},
    {"nemotron", DPAR_FAMILY_GPT, DPARI_CONFIG_ROTARY | DPARI_CONFIG_NO_BIAS}, /* relu2 */
    {"gptj", DPAR_FAMILY_GPT, DPARI_CONFIG_ROTARY},
    {"codegen", DPAR_FAMILY_GPT, DPARI_CONFIG_ROTARY},
    {"phi", DPAR_FAMILY_GPT, DPARI_CONFIG_ROTARY},
    {"t5", DPAR_FAMILY_T5, DPARI_CONFIG_TIED},
    {"mt5", DPAR_FAMILY_T5, 0},
    {"umt5", DPAR_FAMILY_T5, 0},
    {"vit", DPAR_FAMILY_VIT, 0},
    {"DiTTransformer2DModel", DPAR_FAMILY_DIT, 0}};

enum { DPARI_CONFIG_TYPES = (int)(sizeof(dpari_config_type) / sizeof(dpari_config_type[0])) };

/* What was read so far. */
typedef struct dpari_config_state {
    int32_t value[DPARI_C_KEYS]; /* -1: not said */
    uint64_t inner;              /* bits: said by text_config, which goes before the outer object */
    int32_t inside;              /* 1 inside text_config */
    int32_t inner_type;
    int32_t gated;    /* hidden_act is silu's: gated in every model that has kv heads */
    const char *type; /* model_type, or diffusers' _class_name */
    size_t type_length;
} dpari_config_state;

static dpar_status dpari_config_bad(const dpari_json_item *item, dpar_why *why, const char *form)
{
    return dpari_say_word(DPAR_E_PARSE, why, form, item->key,
                          item->key_length < 60 ? item->key_length : 60, 0, 0, 0, 0);
}

static dpar_status dpari_config_string(dpari_config_state *c, const dpari_json_item *item)
{
    const char *key = item->key;
    size_t n = item->key_length;
    if ((dpari_spells(key, n, "model_type") || dpari_spells(key, n, "_class_name")) &&
        (c->inside || !c->inner_type)) {
        c->type = item->string;
        c->type_length = item->length;
        c->inner_type = c->inside;
    } else if (dpari_spells(key, n, "hidden_act")) {
        c->gated = dpari_spells(item->string, item->length, "silu") ||
                   dpari_spells(item->string, item->length, "swish") ||
                   dpari_spells(item->string, item->length, "swiglu");
    } else if (dpari_spells(key, n, "feed_forward_proj")) {
        c->value[DPARI_C_GATED] = item->length > 6 && dpari_spells(item->string, 6, "gated-");
    }
    return DPAR_OK;
}

/* Reads one known member. */
static dpar_status dpari_config_value(dpari_config_state *c, int32_t key,
                                      const dpari_json_item *item, dpar_why *why)
{
    int flag = item->kind == DPARI_JSON_TRUE || item->kind == DPARI_JSON_FALSE;
    if (item->kind == DPARI_JSON_NULL || (!c->inside && (c->inner >> key & 1u))) {
        return DPAR_OK;
    }
    if (key >= DPARI_C_FLAGS && !flag) {
        return dpari_config_bad(item, why, "config.json: '@' must be true or false");
    }
    if (key < DPARI_C_FLAGS && item->kind != DPARI_JSON_NUMBER) {
        /* of an image they may be lists, and do not matter to a language model */
        return key == DPARI_M_PATCH || key == DPARI_C_SIDE || key == DPARI_M_CHANNELS
                   ? DPAR_OK
                   : dpari_config_bad(item, why, "config.json: '@' must be a number");
    }
    if (!flag && (!(item->number >= 0.0 && item->number < 2147483648.0) ||
                  item->number - (double)(int32_t)item->number > 0.0)) {
        (void)dpari_config_bad(item, why,
                               "config.json: '@' must be a whole number of 0 to 2147483647");
        return DPAR_E_RANGE;
    }
    c->value[key] = flag ? item->kind == DPARI_JSON_TRUE : (int32_t)item->number;
    c->inner |= (uint64_t)(c->inside ? 1 : 0) << key;
    return DPAR_OK;
}

/* The language model of a multi-modal one: a member of the outermost object. */
static int dpari_config_is_inner(const dpari_json_item *item)
{
    return item->kind == DPARI_JSON_OBJECT && item->key != NULL &&
           (dpari_spells(item->key, item->key_length, "text_config") ||
            dpari_spells(item->key, item->key_length, "language_config") ||
            dpari_spells(item->key, item->key_length, "llm_config"));
}

static int dpari_config_begins(const dpari_json_item *item, const char *with)
{
    size_t n = dpari_length(with);
    return item->key_length >= n && dpari_spells(item->key, n, with);
}

static dpar_status dpari_config_member(dpari_config_state *c, const dpari_json_item *item,
                                       dpar_why *why)
{
    int32_t i;
    if (item->depth == 1) {
        c->inside = dpari_config_is_inner(item);
        if (c->inside) {
            return DPAR_OK;
        }
    }
    if (item->key == NULL || item->depth != 1 + c->inside) {
        return DPAR_OK;
    }
    if (dpari_config_begins(item, "mamba_") || dpari_config_begins(item, "ssm_") ||
        dpari_config_begins(item, "linear_num_")) {
        return dpari_config_bad(item, why,
                                "config.json: '@': state-space and linear-attention layers are "
                                "not modelled");
    }
    for (i = 0; i < DPARI_CONFIGS; i++) {
        if (dpari_spells(item->key, item->key_length, dpari_config[i].member)) {
            return dpari_config_value(c, dpari_config[i].key, item, why);
        }
    }
    return item->kind == DPARI_JSON_STRING ? dpari_config_string(c, item) : DPAR_OK;
}

/* "config.json: no num_hidden_layers (or n_layer, num_layers, n_layers): ..." */
static dpar_status dpari_config_missing(int32_t key, dpar_why *why)
{
    char text[160];
    dpar_text t;
    int32_t i, found = 0;
    dpar_text_init(&t, text, sizeof(text));
    for (i = 0; i < DPARI_CONFIGS; i++) {
        if (dpari_config[i].key == key) {
            dpar_text_put(&t, found == 0 ? "" : found == 1 ? " (or " : ", ");
            dpar_text_put(&t, dpari_config[i].member);
            found++;
        }
    }
    dpar_text_put(&t, found > 1 ? ")" : "");
    return dpari_say_word(DPAR_E_PARSE, why,
                          "config.json: @ is missing or 0 (not a transformer's config?)", text,
                          sizeof(text), 0, 0, 0, 0);
}

static dpar_status dpari_config_needed(const dpari_config_state *c, int32_t family, dpar_why *why)
{
    static const int8_t key[2][5] = {
        {DPARI_M_LAYERS, DPARI_M_HIDDEN, DPARI_M_HEADS, DPARI_M_VOCAB, DPARI_M_VOCAB},
        {DPARI_M_LAYERS, DPARI_M_HIDDEN, DPARI_M_HEADS, DPARI_M_PATCH, DPARI_C_SIDE}};
    int32_t sees = family == DPAR_FAMILY_VIT || family == DPAR_FAMILY_DIT, i;
    for (i = 0; i < 5; i++) {
        if (c->value[key[sees][i]] < 1) {
            return dpari_config_missing(key[sees][i], why);
        }
    }
    if (c->value[DPARI_C_STEP] > 1 && c->value[DPARI_M_EXPERTS] > 0) {
        return dpari_say(DPAR_E_UNKNOWN, why,
                         "config.json: experts in one layer of # only are not modelled",
                         c->value[DPARI_C_STEP], 0, 0, 0);
    }
    return DPAR_OK;
}

/* Row of dpari_config_type. Others have Llama's shapes, as most do, if they say kv heads (an
 * encoder or a state-space model does not) and silu (others may not be gated). */
static dpar_status dpari_config_kind(const dpari_config_state *c, int32_t *row, dpar_why *why)
{
    for (*row = 0; *row < DPARI_CONFIG_TYPES; (*row)++) {
        if (dpari_spells(c->type, c->type_length, dpari_config_type[*row].name)) {
            return DPAR_OK;
        }
    }
    *row = 0;
    if (c->type_length == 0 || (c->value[DPARI_M_KV_HEADS] > 0 && c->gated)) {
        return DPAR_OK;
    }
    return dpari_say_word(DPAR_E_UNKNOWN, why,
                          "config.json: model_type '@' is not known (llama, qwen3, mixtral, "
                          "deepseek_v3, gemma2, phi3, gpt2, gpt_neox, opt, falcon, t5, vit ...): "
                          "describe the model as text",
                          c->type, c->type_length < 40 ? c->type_length : 40, 0, 0, 0, 0);
}

/* a * b, 0 (not said) when it is too large. */
static int32_t dpari_config_product(int32_t a, int32_t b)
{
    int64_t v = 0;
    return dpari_mul(a, b, &v) && v <= INT32_MAX ? (int32_t)v : 0;
}

/* Widths that are products or choices of what was said. */
static void dpari_config_widths(dpar_model *m, const dpari_config_state *c, int32_t says)
{
    if (m->ffn == 0 && c->value[DPARI_C_EXPANSION] > 0) {
        m->ffn = dpari_config_product(m->hidden, c->value[DPARI_C_EXPANSION]);
    }
    if (m->family == DPAR_FAMILY_T5 && c->value[DPARI_C_GATED] > 0 && m->ffn < INT32_MAX / 3) {
        m->ffn += m->ffn / 2; /* three matrices in place of two: weights and FLOP are right */
    }
    if (c->value[DPARI_C_SHARED] > 0 && m->shared_ffn == 0) {
        m->shared_ffn = dpari_config_product(c->value[DPARI_C_SHARED], m->expert_ffn);
    }
    if ((says & DPARI_CONFIG_SHARES) && m->experts > 0) {
        m->shared_ffn = m->ffn;
    }
    if (m->kv_lora > 0) { /* latent attention has widths of its own */
        m->head_width = 0;
        m->kv_heads = 0;
    }
    if ((says & DPARI_CONFIG_ONE_KV) && m->kv_heads == 0) {
        m->kv_heads = c->value[DPARI_C_NEW_DECODER] > 0
                          ? (int32_t)dpari_most(c->value[DPARI_C_NEW_KV], 0)
                      : c->value[DPARI_C_ONE_KV] != 0 ? 1
                                                      : 0;
    }
}

/* What was said, and what the architectures leave unsaid. */
static void dpari_config_fill(dpar_model *m, const dpari_config_state *c, int32_t says)
{
    int32_t key;
    for (key = 0; key < DPARI_M_INTEGERS; key++) {
        if (c->value[key] >= 0) {
            *dpari_model_field(m, key) = c->value[key];
        }
    }
    m->tied = c->value[DPARI_C_TIED] >= 0 ? c->value[DPARI_C_TIED] : says & DPARI_CONFIG_TIED;
    m->rotary = (says & DPARI_CONFIG_ROTARY) != 0;
    if (c->value[DPARI_C_NO_BIAS] > 0 ||
        ((says & DPARI_CONFIG_NO_BIAS) && c->value[DPARI_C_BIAS] <= 0)) {
        m->biases = -1;
    }
    dpari_config_widths(m, c, says);
    if (m->family == DPAR_FAMILY_VIT || m->family == DPAR_FAMILY_DIT) {
        m->image[0] = m->image[1] = c->value[DPARI_C_SIDE];
        m->channels = m->channels > 0 ? m->channels : 3;
    }
    if (m->seq == 0) {
        m->seq = m->family == DPAR_FAMILY_T5 ? 512 : m->family == DPAR_FAMILY_GPT ? 2048 : 8192;
    }
    if (m->seq > 8192) {
        m->seq = 8192; /* trained lengths, not the longest that positions allow; --seq says more */
    }
    if (m->family == DPAR_FAMILY_GPT) {
        m->stack = DPAR_STACK_TORCH;
    }
}

static dpar_status dpari_config_finish(dpar_model *model, dpari_config_state *c, dpar_why *why)
{
    dpar_model m;
    int32_t row = 0;
    dpar_status st = dpari_config_kind(c, &row, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(&m, sizeof(m));
    m.family = dpari_config_type[row].family;
    if (m.family == DPAR_FAMILY_DIT && c->value[DPARI_M_HIDDEN] < 0) {
        c->value[DPARI_M_HIDDEN] =
            dpari_config_product(c->value[DPARI_M_HEADS], c->value[DPARI_M_HEAD_WIDTH]);
    }
    st = dpari_config_needed(c, m.family, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (c->type_length > 0) {
        dpari_copy_text(m.name, sizeof(m.name), c->type, c->type_length);
    } else {
        dpari_copy_text(m.name, sizeof(m.name), "config.json", 11);
    }
    dpari_config_fill(&m, c, dpari_config_type[row].says);
    *model = m;
    return DPAR_OK;
}

static dpar_status dpari_model_config(dpar_model *model, const char *json, size_t bytes,
                                      dpar_why *why)
{
    dpari_json j;
    dpari_json_item item;
    dpari_config_state c;
    dpar_status st;
    int32_t i;
    dpari_zero(&c, sizeof(c));
    for (i = 0; i < DPARI_C_KEYS; i++) {
        c.value[i] = -1;
    }
    c.type = "";
    json += dpari_text_mark(json, bytes, &bytes);
    dpari_json_init(&j, json, bytes);
    do {
        st = dpari_json_next(&j, &item, why);
        if (st == DPAR_OK) {
            st = dpari_config_member(&c, &item, why);
        }
    } while (st == DPAR_OK && item.kind != DPARI_JSON_END);
    return st == DPAR_OK ? dpari_config_finish(model, &c, why) : st;
}

/* ---- any of these texts --------------------------------------------------------------------- */

/* Behind a byte order mark and blanks. */
static int dpari_model_is_json(const char *text, size_t bytes)
{
    size_t n = bytes, i = 0;
    text += dpari_text_mark(text, bytes, &n);
    while (i < n && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n')) {
        i++;
    }
    return i < n && (text[i] == '{' || text[i] == '[');
}

DPAR_API DPARI_COLD dpar_status dpar_model_read(dpar_model *model, const char *text, size_t bytes,
                                                dpar_why *why)
{
    dpar_model m;
    dpar_status st;
    size_t first = 0, colon = 0;
    dpari_zero(&m, sizeof(m));
    if (dpari_model_is_json(text, bytes)) {
        return dpari_model_config(model, text, bytes, why);
    }
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
    if (colon < first) {
        st = dpari_model_family(&m, text, colon, bytes, why);
        dpari_copy_text(m.name, sizeof(m.name), text, colon);
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
