/* SPDX-License-Identifier: MIT-0 */
/* The presets and the readers of models: the text form, and config.json files of transformers, of
 * Meta and of others. A file's settings are collected first and then completed by what is known of
 * its type. */
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
    "gpt-1.7b\0gpt:24/2304/24/0/0/51200/2048,tied=1\0"
    "gpt-3.6b\0gpt-1.7b,30/3072/32\0"
    "gpt-7.5b\0gpt-1.7b,36/4096/32\0"
    "gpt-18.4b\0gpt-1.7b,40/6144/48\0"
    "gpt-39.1b\0gpt-1.7b,48/8192/64\0"
    "gpt-76.1b\0gpt-1.7b,60/10240/80\0"
    "gpt-145.6b\0gpt-1.7b,80/12288/96\0"
    "gpt-310.1b\0gpt-1.7b,96/16384/128\0"
    "gpt-529.6b\0gpt-1.7b,105/20480/128\0"
    "gpt-1008b\0gpt-1.7b,128/25600/160\0"
    "gpt-162.2b\0gpt-1.7b,32/20480/128\0"
    "gpt-5.9b\0gpt-1.7b,32/3840/32\0"
    "gpt3-175b\0gpt-1.7b,96/12288/96\0"
    "gpt-174.6b\0gpt3-175b\0"
    "megatron-22b\0gpt-1.7b,48/6144/64\0"
    "megatron-530b\0gpt-1.7b,105/20480/128\0"
    "mt-nlg-530b\0gpt-529.6b\0"
    "megatron-1t\0gpt-1.7b,128/25600/160\0"
    "megatron-1b\0gpt-1.7b,24/1920/15/0/0/0/1024\0"
    "megatron-2b\0gpt-1.7b,30/2304/18/0/0/0/1024\0"
    "megatron-4b\0gpt-1.7b,36/3072/24/0/0/0/1024\0"
    "megatron-8b\0gpt-1.7b,42/4096/32/0/0/0/1024\0"
    "gpt2-125m\0gpt:12/768/12/0/0/50257/1024,tied=1,stack=torch\0"
    "gpt2-1.5b\0gpt2-125m,48/1600/25\0"
    "gpt2\0gpt2-125m\0"
    "gpt2-xl\0gpt2-1.5b\0"
    "gpt-1.3b\0gpt-1.7b,24/2048/16/0/0/50304,stack=torch\0"
    "mpt-125m\0gpt:12/768/12/0/0/50368/2048,tied=1,stack=llm-foundry,attention=flash1,loss=fused\0"
    "mpt-350m\0mpt-125m,24/1024/16\0"
    "mpt-760m\0mpt-125m,24/1536/12\0"
    "mpt-1b\0mpt-125m,24/2048/16\0"
    "mpt-3b\0mpt-125m,32/2560/20\0"
    "mpt-7b\0mpt-125m,32/4096/32\0"
    "mpt-13b\0mpt-125m,40/5120/40\0"
    "mpt-30b\0mpt-125m,48/7168/56\0"
    "mpt-70b\0mpt-125m,80/8192/64\0";
static const char dpari_others[] =
    "llama-7b\0llama:32/4096/32/0/11008/32000/2048\0"
    "llama-13b\0llama-7b,40/5120/40/0/13824\0"
    "llama-30b\0llama-7b,60/6656/52/0/17920\0"
    "llama-65b\0llama-7b,80/8192/64/0/22016\0"
    "llama-2-7b\0llama:32/4096/32/0/11008/32000/4096\0"
    "llama-2-13b\0llama-2-7b,40/5120/40/0/13824\0"
    "llama-2-70b\0llama:80/8192/64/8/28672/32000/4096\0"
    "llama-3-8b\0llama:32/4096/32/8/14336/128256/8192\0"
    "llama-3.1-8b\0llama-3-8b\0"
    "llama-3.2-1b\0llama:16/2048/32/8/8192/128256/8192,tied=1\0"
    "smollm2-360m\0llama:32/960/15/5/2560/49152/2048,tied=1\0"
    "llama-3-70b\0llama-3-8b,80/8192/64/0/28672\0"
    "llama-3.1-405b\0llama-3-8b,126/16384/128/0/53248\0"
    "mistral-7b\0llama-3-8b,32/4096/32/0/0/32000\0"
    "mixtral-8x7b\0llama:32/4096/32/8/14336/32000/4096,experts=8,topk=2\0"
    "mixtral-8x22b\0mixtral-8x7b,56/6144/48/0/16384/32768\0"
    "qwen2.5-72b\0llama:80/8192/64/8/29568/152064/4096\0"
    "qwen3-4b\0llama:36/2560/32/8/9728/151936/4096,head_width=128,tied=1\0"
    "qwen3-32b\0llama:64/5120/64/8/25600/151936/4096,head_width=128\0"
    "qwen3-235b-a22b\0llama:94/4096/64/4/0/151936/4096,head_width=128,experts=128,topk=8,"
    "expert_ffn=1536\0"
    "gemma-1.1-2b\0llama:18/2048/8/1/16384/256000/8192,head_width=256,tied=1\0"
    "gemma-2-9b\0llama:42/3584/16/8/14336/256000/8192,head_width=256,tied=1\0"
    "gemma-2-27b\0llama:46/4608/32/16/36864/256000/8192,head_width=128,tied=1\0"
    "phi-3-mini\0llama:32/3072/32/0/8192/32064/4096\0"
    "deepseek-v2\0llama:60/5120/128/0/12288/102400/4096,q_lora=1536,kv_lora=512,"
    "rope_width=64,qk_width=128,v_width=128,experts=160,topk=6,expert_ffn=1536,"
    "shared_ffn=3072,dense_layers=1,expert_groups=8,topk_groups=3\0"
    "deepseek-v3\0llama:61/7168/128/0/18432/129280/4096,q_lora=1536,kv_lora=512,"
    "rope_width=64,qk_width=128,v_width=128,experts=256,topk=8,expert_ffn=2048,"
    "shared_ffn=2048,dense_layers=3,expert_groups=8,topk_groups=4\0"
    "vit-l\0vit:24/1024/16,image=224x224,patch=16,channels=3\0"
    "vit-h\0vit:32/1280/16,image=224x224,patch=14,channels=3\0"
    "vit-3.2b\0vit:40/2560/32,image=224x224,patch=14,channels=3,stack=torch\0"
    "dit-xl\0dit:28/1152/16,image=32x32,patch=2,channels=4,out_channels=8\0"
    "diffusion-5b\0dit:200/1152/16,image=256x256,patch=4,channels=16,out_channels=16\0"
    "t5-large\0t5:24/1024/16/0/4096/32128/512,tied=1\0"
    "t5-11b\0t5:24/1024/128/0/65536/32128/512,head_width=128,tied=1\0"
    "transformer-1b\0llama:16/2048/32/8/8192/32000/131072\0"
    "transformer-1b-128k\0transformer-1b\0"
    "resnet-50\0resnet:0/64,image=224x224,channels=3,stack=torch\0"
    "unet-50m\0unet:0/160,levels=3,blocks_per_level=4,image=720x1440,channels=104,"
    "stack=torch,element=4\0"
    "unet-0.25deg\0unet:0/128,levels=5,image=720x1440,channels=104,out_channels=104,"
    "stack=torch\0"
    "heat-3d\0grid:512x512x512,fields=1,halo=1,element=8\0"
    "shallow-water\0grid:3600x1800,fields=3,halo=2,element=8\0"
    "weather-0.25deg\0grid:1440x720x100,fields=5,halo=2\0";

static const char dpari_newer[] =
    "qwen3-30b-a3b\0qwen3-235b-a22b,48/2048/32,expert_ffn=768\0"
    "qwen3-0.6b\0qwen3-4b,28/1024/16/0/3072\0"
    "qwen3-1.7b\0qwen3-4b,28/2048/16/0/6144\0"
    "qwen3-8b\0qwen3-32b,36/4096/32/0/12288\0"
    "qwen3-14b\0qwen3-32b,40/0/40/0/17408\0"
    "qwen3-next-80b-a3b\0llama:48/2048/16/2/0/151936/4096,head_width=256,experts=512,"
    "topk=10,expert_ffn=512,shared_ffn=512,q_gate=1,pattern=SSSF,scan=3,scan_heads=32,"
    "scan_groups=16,scan_width=128,scan_state=128\0"
    "qwen2.5-7b\0qwen2.5-72b,28/3584/28/4/18944\0"
    "qwen2.5-32b\0qwen2.5-72b,64/5120/40/0/27648\0"
    "llama-3.1-70b\0llama-3-70b\0"
    "llama-3.3-70b\0llama-3-70b\0"
    "llama-3.2-3b\0llama-3.2-1b,28/3072/24\0"
    "llama-4-scout\0llama:48/5120/40/8/16384/202048/8192,experts=16,topk=1,expert_ffn=8192,"
    "shared_ffn=8192,window=8192,pattern=WWWF\0"
    "llama-4-maverick\0llama-4-scout,experts=128,expert_step=2,expert_offset=1\0"
    "mistral-nemo-12b\0mistral-7b,40/5120/0/0/0/131072,head_width=128\0"
    "mistral-small-24b\0mistral-nemo-12b,ffn=32768\0"
    "gpt-oss-120b\0llama:36/2880/64/8/0/201088/4096,head_width=64,experts=128,topk=4,"
    "expert_ffn=2880,window=128,pattern=WF\0"
    "gpt-oss-20b\0gpt-oss-120b,24,experts=32\0"
    "gemma-3-4b\0llama:34/2560/8/4/10240/262208/8192,head_width=256,tied=1,window=1024,"
    "pattern=WWWWWF\0"
    "gemma-3-12b\0gemma-3-4b,48/3840/16/8/15360\0"
    "gemma-3-27b\0gemma-3-12b,62/5376/32/16/21504,head_width=128\0"
    "deepseek-r1\0deepseek-v3\0"
    "kimi-k2\0deepseek-v3,0/0/64/0/0/163840,experts=384,dense_layers=1,"
    "expert_groups=1,topk_groups=1\0"
    "glm-4.5\0llama:92/5120/96/8/12288/151552/4096,head_width=128,experts=160,topk=8,"
    "expert_ffn=1536,shared_ffn=1536,dense_layers=3\0"
    "glm-4.5-air\0glm-4.5,46/4096/0/0/10944,experts=128,expert_ffn=1408,shared_ffn=1408,"
    "dense_layers=1\0"
    "olmoe-1b-7b\0llama:16/2048/16/0/0/50304/4096,experts=64,topk=8,expert_ffn=1024\0"
    "phi-4\0phi-3-mini,40/5120/40/10/17920/100352\0"
    "bert-base\0gpt:12/768/12/0/0/30522/512,positions=514,causal=-1,head=3,tied=1\0"
    "bert-large\0bert-base,24/1024/16\0";

DPARI_STATIC_NOINLINE const char *dpari_behind(const char *text)
{
    return text + dpari_length(text) + 1;
}

/* The row behind `row`; of NULL the first; NULL behind the last. */
static const char *dpari_preset_next(const char *row)
{
    row = row == NULL ? dpari_gpts : dpari_behind(dpari_behind(row));
    if (*row != 0) {
        return row;
    }
    if (row == dpari_gpts + sizeof(dpari_gpts) - 1) {
        return dpari_others;
    }
    return row == dpari_others + sizeof(dpari_others) - 1 ? dpari_newer : NULL;
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

/* The integer fields that a text form or a config may set, and the others. */
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
    DPARI_M_BLOCKS_PER_LEVEL,
    DPARI_M_KERNEL,
    DPARI_M_FIELDS,
    DPARI_M_HALO,
    DPARI_M_ELEMENT,
    DPARI_M_INFERENCE,
    DPARI_M_GATED,
    DPARI_M_CAUSAL,
    DPARI_M_POSITIONS,
    DPARI_M_HEAD,
    DPARI_M_EMBED,
    DPARI_M_ASIDE,
    DPARI_M_ASIDE_VOCAB,
    DPARI_M_Q_GATE,
    DPARI_M_WINDOW,
    DPARI_M_WINDOW_KV_HEADS,
    DPARI_M_SCAN,
    DPARI_M_SCAN_HEADS,
    DPARI_M_SCAN_GROUPS,
    DPARI_M_SCAN_WIDTH,
    DPARI_M_SCAN_STATE,
    DPARI_M_CONV,
    DPARI_M_EXPERT_STEP,
    DPARI_M_EXPERT_OFFSET,
    DPARI_M_O_LORA,
    DPARI_M_O_GROUPS,
    DPARI_M_INDEX_HEADS,
    DPARI_M_INDEX_WIDTH,
    DPARI_M_INDEX_TOPK,
    DPARI_M_MTP,
    DPARI_M_TOWER_LAYERS,
    DPARI_M_TOWER_HIDDEN,
    DPARI_M_TOWER_HEADS,
    DPARI_M_TOWER_FFN,
    DPARI_M_TOWER_TOKENS,
    DPARI_M_TOWER_PATCH,
    DPARI_M_TOWER_POSITIONS,
    DPARI_M_TOWER_MERGE,
    DPARI_M_TOWER_INNER,
    DPARI_M_TOWER_MERGERS,
    DPARI_M_TOWER_GATED,
    DPARI_M_TOWER_PARAMS,
    DPARI_M_EXPERT_GROUPS,
    DPARI_M_TOPK_GROUPS,
    DPARI_M_INTEGERS,
    DPARI_M_CAPACITY = DPARI_M_INTEGERS,
    DPARI_M_FLOPS,
    DPARI_M_BYTES,
    DPARI_M_IMAGE,
    DPARI_M_ATTENTION,
    DPARI_M_STACK,
    DPARI_M_PATTERN,
    DPARI_M_LOSS,
    DPARI_M_KEYS
};

/* Their names, and where each integer stands, in int32_t. table */
static const char dpari_model_keys[] =
    "layers\0hidden\0heads\0kv_heads\0head_width\0ffn\0vocab\0seq\0tied\0biases\0rotary\0"
    "experts\0topk\0expert_ffn\0shared_ffn\0dense_layers\0q_lora\0kv_lora\0rope_width\0"
    "qk_width\0v_width\0decoder_layers\0patch\0channels\0out_channels\0levels\0"
    "blocks_per_level\0kernel\0fields\0halo\0element\0inference\0gated\0causal\0positions\0"
    "head\0embed\0aside\0aside_vocab\0q_gate\0window\0window_kv_heads\0scan\0scan_heads\0"
    "scan_groups\0scan_width\0scan_state\0conv\0expert_step\0expert_offset\0o_lora\0"
    "o_groups\0index_heads\0index_width\0index_topk\0mtp\0tower_layers\0tower_hidden\0"
    "tower_heads\0tower_ffn\0tower_tokens\0tower_patch\0tower_positions\0tower_merge\0"
    "tower_inner\0tower_mergers\0tower_gated\0tower_params\0expert_groups\0topk_"
    "groups\0capacity\0flops_per_cell\0"
    "bytes_per_cell\0image\0attention\0stack\0pattern\0loss\0";
#define DPARI_FIELD(name) (int16_t)(offsetof(dpar_model, name) / sizeof(int32_t))
static const int16_t dpari_model_at[DPARI_M_INTEGERS] = {
    DPARI_FIELD(layers),         DPARI_FIELD(hidden),        DPARI_FIELD(heads),
    DPARI_FIELD(kv_heads),       DPARI_FIELD(head_width),    DPARI_FIELD(ffn),
    DPARI_FIELD(vocab),          DPARI_FIELD(seq),           DPARI_FIELD(tied),
    DPARI_FIELD(biases),         DPARI_FIELD(rotary),        DPARI_FIELD(experts),
    DPARI_FIELD(topk),           DPARI_FIELD(expert_ffn),    DPARI_FIELD(shared_ffn),
    DPARI_FIELD(dense_layers),   DPARI_FIELD(q_lora),        DPARI_FIELD(kv_lora),
    DPARI_FIELD(rope_width),     DPARI_FIELD(qk_width),      DPARI_FIELD(v_width),
    DPARI_FIELD(decoder_layers), DPARI_FIELD(patch),         DPARI_FIELD(channels),
    DPARI_FIELD(out_channels),   DPARI_FIELD(levels),        DPARI_FIELD(blocks_per_level),
    DPARI_FIELD(kernel),         DPARI_FIELD(fields),        DPARI_FIELD(halo),
    DPARI_FIELD(element),        DPARI_FIELD(inference),     DPARI_FIELD(gated),
    DPARI_FIELD(causal),         DPARI_FIELD(positions),     DPARI_FIELD(head),
    DPARI_FIELD(embed),          DPARI_FIELD(aside),         DPARI_FIELD(aside_vocab),
    DPARI_FIELD(q_gate),         DPARI_FIELD(window),        DPARI_FIELD(window_kv_heads),
    DPARI_FIELD(scan),           DPARI_FIELD(scan_heads),    DPARI_FIELD(scan_groups),
    DPARI_FIELD(scan_width),     DPARI_FIELD(scan_state),    DPARI_FIELD(conv),
    DPARI_FIELD(expert_step),    DPARI_FIELD(expert_offset), DPARI_FIELD(o_lora),
    DPARI_FIELD(o_groups),       DPARI_FIELD(index_heads),   DPARI_FIELD(index_width),
    DPARI_FIELD(index_topk),     DPARI_FIELD(mtp),           DPARI_FIELD(tower_layers),
    DPARI_FIELD(tower_hidden),   DPARI_FIELD(tower_heads),   DPARI_FIELD(tower_ffn),
    DPARI_FIELD(tower_tokens),   DPARI_FIELD(tower_patch),   DPARI_FIELD(tower_positions),
    DPARI_FIELD(tower_merge),    DPARI_FIELD(tower_inner),   DPARI_FIELD(tower_mergers),
    DPARI_FIELD(tower_gated),    DPARI_FIELD(tower_params),  DPARI_FIELD(expert_groups),
    DPARI_FIELD(topk_groups)};
#undef DPARI_FIELD

static int32_t *dpari_model_field(dpar_model *m, int32_t key)
{
    return (int32_t *)(void *)m + dpari_model_at[key];
}

/* ---- words, and the nearest one ------------------------------------------------------------- */

static const char *dpari_family_name(int32_t family)
{
    static const char name[DPAR_MODEL_FAMILY_END][8] = {"?",  "gpt",    "llama", "vit", "dit",
                                                        "t5", "resnet", "unet",  "grid"};
    return name[family];
}

static dpar_status dpari_model_suggest(dpar_status status, dpar_why *why, const char *what,
                                       const char *s, size_t n, const char *nearest)
{
    char text[160];
    dpar_text t;
    dpar_text_init(&t, text, sizeof(text));
    dpari_text_print(&t, "%s '", what);
    dpari_text_slice(&t, s, n < 60 ? n : 60);
    dpari_text_print(&t, "'; the nearest is '%s'", nearest);
    return dpari_repeat(status, why, text);
}

DPARI_STATIC_NOINLINE dpar_status dpari_model_bad(const char *s, size_t n, dpar_why *why,
                                                  const char *form)
{
    return dpari_say(DPAR_E_PARSE, why, form, (int32_t)(n < 60 ? n : 60), s);
}

/* Reports "'attention=slow': one of unfused, flash1, flash was expected". */
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
        dpari_text_print(&t, "%s%s", i > 1 ? ", " : "", name(i));
    }
    return dpari_say(DPAR_E_PARSE, why, "%s was expected", text);
}

/* ---- the text form -------------------------------------------------------------------------- */

static int dpari_spells_one(char letter, const char *letters)
{
    while (*letters != 0 && *letters != letter) {
        letters++;
    }
    return *letters != 0;
}

/* Reads a whole number of at most `limit`, possibly negative, that the slice consists of. */
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

/* Reads "1440x720x100". Returns the number of extents, or 0 if it is not of this form. */
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

/* Widths and counts that are at least 1 in every model. */
static int64_t dpari_model_least(int32_t key)
{
    return (key >= DPARI_M_LAYERS && key <= DPARI_M_SEQ) || key == DPARI_M_FIELDS ||
           key == DPARI_M_HALO || key == DPARI_M_KERNEL || key == DPARI_M_LEVELS ||
           key == DPARI_M_PATCH || key == DPARI_M_CHANNELS || key == DPARI_M_ELEMENT;
}

/* Reads the value from s[k] on. A message quotes the whole setting [s, s + n). So do the functions
 * below.
 */
static dpar_status dpari_model_integer(dpar_model *m, int32_t key, const char *s, size_t k,
                                       size_t n, dpar_why *why)
{
    int yes_no = key == DPARI_M_TIED || key == DPARI_M_ROTARY || key == DPARI_M_INFERENCE ||
                 key == DPARI_M_Q_GATE;
    int sign = key == DPARI_M_BIASES || key == DPARI_M_GATED || key == DPARI_M_CAUSAL;
    int less =
        key == DPARI_M_POSITIONS || key == DPARI_M_OUT_CHANNELS || key == DPARI_M_TOWER_INNER;
    int64_t v = 0, low = dpari_model_least(key);
    int64_t high = yes_no || sign ? 1 : INT32_MAX;
    size_t kilo = key == DPARI_M_SEQ && n - k > 1 && s[n - 1] == 'k'; /* tokens count in 1024 */
    if (sign) {
        low = -1;
    } else if (less) {
        low = -4;
    }
    if (dpari_model_whole(s + k, n - k - kilo, INT32_MAX, &v)) {
        v *= kilo ? 1024 : 1;
        if (v >= low && v <= high) {
            *dpari_model_field(m, key) = (int32_t)v;
            return DPAR_OK;
        }
    }
    return dpari_say(DPAR_E_PARSE, why, "'%.*s': a whole number of %ld to %ld was expected",
                     (int32_t)(n < 60 ? n : 60), s, low, high);
}

/* Reads a real number. The bound keeps sums over a grid finite. */
static dpar_status dpari_model_real(dpar_model *m, int32_t key, const char *s, size_t k, size_t n,
                                    dpar_why *why)
{
    double v = 0.0;
    double *field = &m->bytes_per_cell;
    if (key == DPARI_M_CAPACITY) {
        field = &m->capacity;
    } else if (key == DPARI_M_FLOPS) {
        field = &m->flops_per_cell;
    }
    if (k == n || dpari_text_number(s + k, n - k, &v) != n - k || !(v >= 0.0 && v <= 1e15)) {
        return dpari_model_bad(s, n, why, "'%.*s': a number of 0 to 1e15 was expected");
    }
    if (key == DPARI_M_CAPACITY && v < 1.0) {
        return dpari_model_bad(s, n, why,
                               "'%.*s': the fullest expert holds at least the mean: 1 or more");
    }
    *field = v;
    return DPAR_OK;
}

/* Reads a name of a list with indices 1 to end - 1. */
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
                               "'%.*s': a side or height x width was expected, as 224 or 720x1440");
    }
    m->image[0] = (int32_t)side[0];
    m->image[1] = (int32_t)side[sides - 1];
    return DPAR_OK;
}

static dpar_status dpari_model_pattern(dpar_model *m, const char *s, size_t k, size_t n,
                                       dpar_why *why)
{
    size_t i;
    for (i = k; i < n && dpari_spells_one(s[i], "FWSBfwsbDE"); i++) {
    }
    if (i < n || k == n || n - k >= sizeof(m->pattern)) {
        return dpari_model_bad(s, n, why,
                               "'%.*s': 1 to 15 letters of F W S B f w s b D E were expected");
    }
    dpari_copy_text(m->pattern, sizeof(m->pattern), s + k, n - k);
    return DPAR_OK;
}

/* Reads "32/4096/32/8/14336/128256/8192" of the tables: layers, hidden, heads, kv_heads, ffn,
 * vocab, seq. 0 means not given. */
static dpar_status dpari_model_row(dpar_model *m, const char *s, size_t n, dpar_why *why)
{
    static const uint8_t key[7] = {DPARI_M_LAYERS, DPARI_M_HIDDEN, DPARI_M_HEADS, DPARI_M_KV_HEADS,
                                   DPARI_M_FFN,    DPARI_M_VOCAB,  DPARI_M_SEQ};
    size_t at = 0;
    int32_t i;
    for (i = 0; i < 7 && at < n; i++) {
        size_t end = at;
        int64_t v = 0;
        while (end < n && s[end] != '/') {
            end++;
        }
        if (!dpari_model_whole(s + at, end - at, INT32_MAX, &v) || v < 0) {
            break;
        }
        if (v > 0) {
            *dpari_model_field(m, key[i]) = (int32_t)v;
        }
        at = end + 1;
    }
    if (at < n) {
        return dpari_model_bad(s, n, why,
                               "'%.*s' needs a value: key=value, or the numbers layers/"
                               "hidden/heads/kv_heads/ffn/vocab/seq");
    }
    return DPAR_OK;
}

/* Reads "key=value". */
static dpar_status dpari_model_setting(dpar_model *m, const char *s, size_t n, uint64_t seen[2],
                                       dpar_why *why)
{
    size_t k = 0;
    int32_t key;
    const char *name = dpari_model_keys, *best = name;
    while (k < n && s[k] != '=') {
        k++;
    }
    if (k == n && n > 0 && s[0] >= '0' && s[0] <= '9') {
        return dpari_model_row(m, s, n, why);
    }
    for (key = 0; key < DPARI_M_KEYS && !dpari_spells(s, k, name); key++) {
        if (dpari_unlike(s, k, name) < dpari_unlike(s, k, best)) {
            best = name;
        }
        name = dpari_behind(name);
    }
    if (key == DPARI_M_KEYS) {
        return dpari_model_suggest(DPAR_E_PARSE, why, "no setting of a model is called", s, k,
                                   best);
    }
    if (k == n) {
        return dpari_model_bad(s, n, why, "'%.*s' needs a value: key=value");
    }
    if (seen[key / 64] >> key % 64 & 1u) {
        return dpari_model_bad(s, n, why, "'%.*s': given twice");
    }
    seen[key / 64] |= (uint64_t)1 << key % 64;
    k++;
    switch (key) {
    case DPARI_M_CAPACITY:
    case DPARI_M_FLOPS:
    case DPARI_M_BYTES: return dpari_model_real(m, key, s, k, n, why);
    case DPARI_M_IMAGE: return dpari_model_image(m, s, k, n, why);
    case DPARI_M_ATTENTION:
        return dpari_model_choice(&m->attention, s, k, n, dpari_attention_name,
                                  DPAR_MODEL_ATTENTION_END, why);
    case DPARI_M_STACK:
        return dpari_stack_read(m, s + k, n - k)
                   ? DPAR_OK
                   : dpari_model_one_of(s, n, why, dpari_stack_name, DPAR_MODEL_STACK_END);
    case DPARI_M_PATTERN: return dpari_model_pattern(m, s, k, n, why);
    case DPARI_M_LOSS:
        return dpari_model_choice(&m->loss, s, k, n, dpari_loss_name, DPAR_MODEL_LOSS_END, why);
    default: return dpari_model_integer(m, key, s, k, n, why);
    }
}

/* Reads one or more settings with commas between. */
static dpar_status dpari_model_settings(dpar_model *m, const char *s, size_t n, dpar_why *why)
{
    size_t at = 0;
    uint64_t seen[2] = {0, 0};
    while (at <= n) {
        dpar_status st;
        size_t k = at;
        while (k < n && s[k] != ',') {
            k++;
        }
        if (k == at) {
            return dpari_model_bad(s, n, why, "a setting (key=value) is missing at a comma");
        }
        st = dpari_model_setting(m, s + at, k - at, seen, why);
        if (st != DPAR_OK) {
            return st;
        }
        at = k + 1;
    }
    return DPAR_OK;
}

/* Reads "FAMILY:settings". A grid begins with its extents. */
static dpar_status dpari_model_family(dpar_model *m, const char *s, size_t colon, size_t n,
                                      dpar_why *why)
{
    size_t at = colon + 1, k = at;
    for (m->family = 1; m->family < DPAR_MODEL_FAMILY_END; m->family++) {
        if (dpari_spells_any_case(s, colon, dpari_family_name(m->family))) {
            break;
        }
    }
    if (m->family == DPAR_MODEL_FAMILY_END) {
        return dpari_model_one_of(s, colon, why, dpari_family_name, DPAR_MODEL_FAMILY_END);
    }
    if (m->family != DPAR_MODEL_FAMILY_GRID) {
        return at < n ? dpari_model_settings(m, s + at, n - at, why) : DPAR_OK;
    }
    while (k < n && s[k] != ',') {
        k++;
    }
    m->extent[0] = m->extent[1] = m->extent[2] = 1;
    m->dims = dpari_model_extents(s + at, k - at, m->extent, 3);
    if (m->dims == 0) {
        return dpari_model_bad(s + at, k - at, why,
                               "'%.*s': a grid is 1 to 3 extents of at least 1, as 1440x720x100");
    }
    return k < n ? dpari_model_settings(m, s + k + 1, n - k - 1, why) : DPAR_OK;
}

/* Appends "; of that size are 'llama-13b', 'mpt-13b'" with up to three names that end so. Returns
 * their number. */
static DPARI_COLD int32_t dpari_model_sizes(dpar_text *t, const char *s, size_t n)
{
    const char *row;
    int32_t found = 0;
    for (row = dpari_preset_next(NULL); row != NULL && found < 3; row = dpari_preset_next(row)) {
        const size_t m = dpari_length(row);
        if (n < m && row[m - n - 1] == '-' && dpari_spells_any_case(s, n, row + m - n)) {
            dpari_text_print(t, "%s'%s'", found++ > 0 ? ", " : "; of that size are ", row);
        }
    }
    return found;
}

/* Reports an unknown model, with the names of the size that was given or the nearest name. A name
 * with more than half of the letters wrong is not near. */
static DPARI_COLD dpar_status dpari_model_unknown(const char *s, size_t n, const char *best,
                                                  dpar_why *why)
{
    char text[160];
    dpar_text t;
    dpar_text_init(&t, text, sizeof(text));
    dpar_text_put(&t, "unknown model '");
    dpari_text_slice(&t, s, n < 60 ? n : 60);
    dpari_text_char(&t, '\'');
    if (n == 0 || s[0] < '0' || s[0] > '9' || dpari_model_sizes(&t, s, n) == 0) {
        if (dpari_unlike(s, n, best) <= 3 * (int32_t)n) {
            return dpari_model_suggest(DPAR_E_UNKNOWN, why, "unknown model", s, n, best);
        }
        dpar_text_put(&t, ", and no name is like it: plan --list shows all");
    }
    return dpari_repeat(DPAR_E_UNKNOWN, why, text);
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
    return dpari_model_unknown(s, n, best, why);
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

/* Members without a field of their own. They follow the fields; the last ones are true or false. */
enum {
    DPARI_C_SHARED = DPARI_M_KEYS, /* DeepSeek counts them; each is moe_intermediate_size wide */
    DPARI_C_SIDE,                  /* of a square image */
    DPARI_C_NEW_KV,                /* Falcon: kv heads, if new_decoder_architecture */
    DPARI_C_EXPANSION,             /* ffn / hidden, in 1/10000 */
    DPARI_C_DENSE_FFN,             /* where intermediate_size is an expert's */
    DPARI_C_ENCODER,               /* layers of the encoder */
    DPARI_C_WIDTH,                 /* goes before the hidden size */
    DPARI_C_TYPES,                 /* of tokens: rows of positions */
    DPARI_C_BUCKETS,               /* DeBERTa: half of the rows of relative positions */
    DPARI_C_HEARS,                 /* Whisper: positions of the encoder, mel bins */
    DPARI_C_MELS,
    DPARI_C_PADDED, /* vocabulary */
    DPARI_C_EXPAND, /* channels of a scan over the hidden size */
    DPARI_C_INNER,  /* channels of a scan */
    DPARI_C_MULTIPLE,
    DPARI_C_FFN_TIMES, /* Meta's params.json, in 1/10000 */
    DPARI_C_EVERY,     /* attention, or all of it, in every so manieth layer; */
    DPARI_C_AFTER,     /* the first of them */
    DPARI_C_MERGE,     /* sides of the square of patches that become a token */
    DPARI_C_TIME,      /* frames of a patch */
    DPARI_C_ROWS,      /* of the tower's positions */
    DPARI_C_MORE,      /* additional layers of the tower */
    DPARI_C_PROJECTS,
    DPARI_C_OUT, /* what the tower gives */
    DPARI_C_FLAGS,
    DPARI_C_TIED = DPARI_C_FLAGS,
    DPARI_C_NO_BIAS,
    DPARI_C_BIAS,
    DPARI_C_ONE_KV, /* multi-query attention */
    DPARI_C_NEW_DECODER,
    DPARI_C_GATED, /* T5 v1.1 */
    DPARI_C_WINDOWS,
    DPARI_C_GATES,
    DPARI_C_BIASED_INPUT,
    DPARI_C_NO_MLA,
    DPARI_C_ADJUSTS,
    DPARI_C_KEYS,
    /* lists and words */
    DPARI_C_MIX = DPARI_C_KEYS, /* one a layer: how it mixes */
    DPARI_C_LINEAR,             /* the same in numbers: 1 is full attention, 0 linear */
    DPARI_C_SWA,                /* 1 is a window, 0 full attention */
    DPARI_C_FEED,               /* one a layer: dense, or experts */
    DPARI_C_FULL_AT,            /* indices of layers of attention; of dense layers */
    DPARI_C_DENSE_AT,
    DPARI_C_DEEP, /* a projector for each entry */
    DPARI_C_TYPE,
    DPARI_C_ARCHITECTURE,
    DPARI_C_ACTIVATION,
    DPARI_C_PROJECTION, /* T5's feed_forward_proj */
    DPARI_C_ADAPTER,
    DPARI_C_ALL
};

/* Members of config.json files, of transformers, of Meta and of others, and in the same order what
 * they say; a sentence about a key begins with its first name. table */
static const char dpari_config_names[] =
    "num_hidden_layers n_layer num_layers n_layers depth vt_num_hidden_layers "
    "layers\0"
    "hidden_size n_embd n_embed d_model dim vt_hidden_size width model_dim\0"
    "num_attention_heads n_head num_heads n_heads attention_heads "
    "encoder_attention_heads vt_num_attention_heads\0"
    "num_key_value_heads n_kv_heads kv_n_heads multi_query_group_num "
    "num_attention_groups\0"
    "head_dim d_kv attention_head_dim kv_channels d_head\0"
    "intermediate_size n_inner d_ff ffn_dim ffn_hidden_size inner_hidden_size "
    "encoder_ffn_dim vt_intermediate_size hidden_dim\0"
    "vocab_size\0"
    "max_position_embeddings n_positions max_seq_len seq_length "
    "max_sequence_length model_max_length n_ctx context_length "
    "max_target_positions\0"
    "num_local_experts num_experts n_routed_experts moe_num_experts "
    "num_moe_experts num_routed_experts n_experts\0"
    "num_experts_per_tok num_experts_per_token experts_per_token moe_topk "
    "moe_top_k moe_k experts_per_tok num_selected_experts moe_router_topk "
    "top_k_experts\0"
    "moe_intermediate_size expert_ffn_hidden_size moe_ffn_hidden_size "
    "expert_ffn_dim moe_hidden_dim\0"
    "shared_expert_intermediate_size shared_intermediate_size share_expert_dim "
    "moe_shared_expert_intermediate_size shared_expert_ffn_dim "
    "shared_experts_intermediate_size\0"
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
    "embedding_size word_embed_proj_dim\0"
    "sliding_window sliding_window_size window_size local_attention "
    "attention_chunk_size attention_window_size\0"
    "swa_num_key_value_heads\0"
    "mamba_n_heads mamba_num_heads linear_num_value_heads linear_num_heads\0"
    "mamba_n_groups linear_num_key_heads n_groups mamba_ngroups\0"
    "mamba_d_head mamba_head_dim linear_value_head_dim linear_head_dim "
    "mamba_headdim\0"
    "mamba_d_state ssm_state_size state_size d_state linear_key_head_dim\0"
    "mamba_d_conv conv_kernel conv_kernel_size linear_conv_kernel_dim "
    "short_conv_kernel_size conv1d_width conv_L_cache d_conv\0"
    "moe_layer_freq decoder_sparse_step interleave_moe_layer_step "
    "moe_layer_interval expert_layer_period moe_every_n_layers\0"
    "expert_layer_offset\0"
    "o_lora_rank\0"
    "o_groups\0"
    "index_n_heads\0"
    "index_head_dim\0"
    "index_topk\0"
    "n_group num_expert_group n_expert_group moe_router_num_groups\0"
    "topk_group moe_router_group_topk\0"
    "num_nextn_predict_layers mtp_num_hidden_layers num_mtp_modules mtp_num_layers "
    "num_mtp_layers\0"
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
    "attn_layer_period sliding_window_pattern full_attention_interval "
    "global_attn_every_n_layers layer_group_size\0"
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
    "hidden_size_per_layer_input\0"
    "vocab_size_per_layer_input\0"
    "layer_types layers_block_type attention_layers block_types "
    "hybrid_override_pattern layers_types layer_block_types\0"
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
static const uint8_t dpari_config_key[] = {DPARI_M_LAYERS,
                                           DPARI_M_HIDDEN,
                                           DPARI_M_HEADS,
                                           DPARI_M_KV_HEADS,
                                           DPARI_M_HEAD_WIDTH,
                                           DPARI_M_FFN,
                                           DPARI_M_VOCAB,
                                           DPARI_M_SEQ,
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
                                           DPARI_M_EMBED,
                                           DPARI_M_WINDOW,
                                           DPARI_M_WINDOW_KV_HEADS,
                                           DPARI_M_SCAN_HEADS,
                                           DPARI_M_SCAN_GROUPS,
                                           DPARI_M_SCAN_WIDTH,
                                           DPARI_M_SCAN_STATE,
                                           DPARI_M_CONV,
                                           DPARI_M_EXPERT_STEP,
                                           DPARI_M_EXPERT_OFFSET,
                                           DPARI_M_O_LORA,
                                           DPARI_M_O_GROUPS,
                                           DPARI_M_INDEX_HEADS,
                                           DPARI_M_INDEX_WIDTH,
                                           DPARI_M_INDEX_TOPK,
                                           DPARI_M_EXPERT_GROUPS,
                                           DPARI_M_TOPK_GROUPS,
                                           DPARI_M_MTP,
                                           DPARI_C_SHARED,
                                           DPARI_C_SIDE,
                                           DPARI_C_NEW_KV,
                                           DPARI_C_EXPANSION,
                                           DPARI_C_DENSE_FFN,
                                           DPARI_C_ENCODER,
                                           DPARI_C_WIDTH,
                                           DPARI_C_TYPES,
                                           DPARI_C_BUCKETS,
                                           DPARI_C_HEARS,
                                           DPARI_C_MELS,
                                           DPARI_C_PADDED,
                                           DPARI_C_EXPAND,
                                           DPARI_C_INNER,
                                           DPARI_C_MULTIPLE,
                                           DPARI_C_FFN_TIMES,
                                           DPARI_C_EVERY,
                                           DPARI_C_AFTER,
                                           DPARI_C_MERGE,
                                           DPARI_C_TIME,
                                           DPARI_C_ROWS,
                                           DPARI_C_MORE,
                                           DPARI_C_PROJECTS,
                                           DPARI_C_OUT,
                                           DPARI_C_TIED,
                                           DPARI_C_NO_BIAS,
                                           DPARI_C_BIAS,
                                           DPARI_C_ONE_KV,
                                           DPARI_C_NEW_DECODER,
                                           DPARI_C_GATED,
                                           DPARI_C_WINDOWS,
                                           DPARI_C_GATES,
                                           DPARI_C_BIASED_INPUT,
                                           DPARI_C_NO_MLA,
                                           DPARI_C_ADJUSTS,
                                           DPARI_M_ASIDE,
                                           DPARI_M_ASIDE_VOCAB,
                                           DPARI_C_MIX,
                                           DPARI_C_LINEAR,
                                           DPARI_C_SWA,
                                           DPARI_C_FEED,
                                           DPARI_C_FULL_AT,
                                           DPARI_C_DENSE_AT,
                                           DPARI_C_DEEP,
                                           DPARI_C_TYPE,
                                           DPARI_C_ARCHITECTURE,
                                           DPARI_C_ACTIVATION,
                                           DPARI_C_PROJECTION,
                                           DPARI_C_ADAPTER};

/* model_type, and what it says where the file does not: the family that has its shapes, and
 * settings as of a text form. Of transformers' configuration classes and, for types that it does
 * not have, of the code that came with the weights. shared_ffn=1: one shared expert, as wide as a
 * routed one; v_width=1: the value is the key. Names, settings, both with a NUL. */
static const char dpari_types[] =
    "qwen2 qwen2_moe qwen2_5_vl_text qwen2_vl_text qwen3 qwen3_moe qwen3_vl_text "
    "qwen3_vl_moe_text qwen3_omni_moe_text deepseek deepseek_v2 deepseek_v3 deepseek_v32 "
    "kimi_k2 glm_moe_dsa glm glm4 glm4_moe glm4_moe_lite glm4v_text glm4v_moe_text "
    "internlm internlm2 internlm3 baichuan xverse exaone exaone4 exaone_moe olmo olmo2 "
    "olmoe flex_olmo stablelm stablelm_epoch yi aquila orion phimoe mllama_text_model "
    "granite granitemoe granitemoeshared seed_oss hunyuan hunyuan_v1_dense hunyuan_v1_moe "
    "helium dbrx minimax_m2 minimax_m3 mistral3 mistral4 dots1 bailing_moe bailing_moe_v2 "
    "skywork_moe telechat openelm solar diffllama nemotron-nas csm ministral ministral3 "
    "lfm nanochat mimo step3_text\0llama:\0"
    "llama codellama llava_llama vicuna\0llama:32/4096/32/0/11008/32000\0"
    "mistral\0llama:32/4096/32/8/14336/32000,window=4096,pattern=W\0"
    "mixtral\0llama:32/4096/32/8/14336/32000,experts=8,topk=2\0"
    "phi3 phi3_v phi4mm\0llama:32/3072/32/0/8192/32064,pattern=W\0"
    "minicpm minicpm3 smollm3 ernie4_5 ernie4_5_moe ernie4_5_moe_vl ernie4_5_vl_moe_text "
    "grok-1 grok1 youtu\0llama:tied=1\0"
    "gemma\0llama:28/3072/16/16/24576/256000,head_width=256,tied=1\0"
    "gemma2 vaultgemma\0llama:26/2304/8/4/9216/256000,head_width=256,tied=1,window=4096,"
    "pattern=WF\0"
    "gemma3_text gemma3\0llama:26/2304/8/4/9216/262208,head_width=256,tied=1,window=4096,"
    "pattern=WWWWWF\0"
    "gemma3n_text\0llama:35/2048/8/2/16384/262400,head_width=256,tied=1,window=512,"
    "pattern=WWWWF\0"
    "gemma4_text\0llama:tied=1,pattern=WWWWWF\0"
    "cohere\0llama:tied=1\0"
    "cohere2\0llama:tied=1,window=4096,pattern=WWWF\0"
    "olmo3\0llama:window=4096,pattern=WWWF\0"
    "gpt_oss\0llama:window=128,pattern=WF\0"
    "step3p7 step3p5 mimo_v2_flash\0llama:pattern=W\0"
    "afmoe\0llama:pattern=W,q_gate=1\0"
    "llama4_text llama4\0llama:48/5120/40/8/16384/202048,head_width=128,expert_ffn=8192,"
    "window=8192,pattern=WWWF,shared_ffn=1\0"
    "deepseek_v4\0llama:0/0/0/1,v_width=1\0"
    "qwen\0llama:\0"
    "chatglm\0llama:\0"
    "qwen3_next qwen3_5_text qwen3_5_moe_text qwen3_5 qwen3_5_moe\0llama:pattern=SSSF,"
    "scan=3,q_gate=1\0"
    "kimi_linear\0llama:pattern=SSSF,scan=4\0"
    "minimax minimax_text_01 minimax_m1\0llama:pattern=SSSSSSSF,scan=5\0"
    "lfm2 lfm2_moe\0llama:tied=1,scan=6,conv=3\0"
    "recurrent_gemma\0llama:tied=1,pattern=SSW,window=2048,scan=7\0"
    "mamba falcon_mamba\0llama:pattern=s,scan=1,scan_state=16,tied=1\0"
    "mamba2\0llama:pattern=s,scan=2,scan_width=64,scan_groups=8,scan_state=128\0"
    "jamba\0llama:pattern=SS,scan=1,scan_state=16,expert_step=2,expert_offset=1\0"
    "bamba\0llama:pattern=SS,scan=2,scan_width=64,scan_state=256,scan_heads=128\0"
    "granitemoehybrid\0llama:pattern=F,scan=2\0"
    "falcon_h1\0llama:pattern=B,scan=2\0"
    "nemotron_h\0llama:gated=-1,pattern=s,scan=2\0"
    "rwkv\0llama:gated=-1,pattern=S,scan=8,positions=-1\0"
    "arcee apertus apertus1p5_text jais2\0llama:gated=-1\0"
    "bitnet\0llama:gated=1\0"
    "modernbert\0llama:causal=-1,tied=1,pattern=FWW,window=128,head=1\0"
    "modernbert-decoder\0llama:tied=1,pattern=FWW,window=128,head=1\0"
    "nomic_bert gte new\0llama:causal=-1,tied=1,head=1\0"
    "eurobert\0llama:causal=-1\0";
static const char dpari_types_more[] =
    "chatglm-6b\0gpt:rotary=1,tied=1\0"
    "persimmon\0gpt:rotary=1\0"
    "gpt2 openai-gpt gpt-sw3 imagegpt\0gpt:12/768/12/0/0/50257/1024,tied=1\0"
    "gpt_neo opt xglm biogpt\0gpt:tied=1\0"
    "gpt_bigcode\0gpt:0/0/0/1,tied=1\0"
    "bloom mpt starcoder2\0gpt:tied=1,rotary=1\0"
    "falcon\0gpt:0/0/0/1,tied=1,rotary=1,biases=-1\0"
    "gpt_neox gptj codegen phi gpt_neox_japanese\0gpt:rotary=1\0"
    "nemotron\0gpt:rotary=1,biases=-1\0"
    "bert roberta xlm-roberta camembert mpnet ernie electra data2vec-text distilbert "
    "megatron-bert big_bird roberta-prelayernorm bert-generation ibert mra nystromformer yoso "
    "xlm-roberta-xl\0gpt:12/768/12/0/3072,causal=-1,tied=1,head=2\0"
    "roformer\0gpt:12/768/12/0/3072,causal=-1,tied=1,head=2,positions=128\0"
    "deberta deberta-v2\0gpt:causal=-1,tied=1,head=1\0"
    "clip_text_model siglip_text_model\0gpt:12/512/8/0/2048/49408/77,head=1\0"
    "t5 longt5\0t5:tied=1\0"
    "mt5 umt5\0t5:\0"
    "bart mbart pegasus marian blenderbot blenderbot-small m2m_100 plbart mvp "
    "bigbird_pegasus\0t5:tied=1,"
    "biases=1,positions=1\0"
    "whisper\0t5:tied=1,biases=1,positions=1\0"
    "vit deit vit_msn vit_mae beit data2vec-vision\0vit:12/768/12,image=224,patch=16,channels=3\0"
    "dinov2 dinov2_with_registers dinov3_vit ijepa\0vit:12/768/12,image=224,patch=14,"
    "channels=3,out_channels=-1\0"
    "clip_vision_model intern_vit_6b internvl_vision\0vit:12/768/12/0/3072,image=224,"
    "patch=32,channels=3,out_channels=-1\0"
    "siglip_vision_model siglip2_vision_model\0vit:12/768/12/0/3072,image=224,patch=16,"
    "channels=3,out_channels=-1\0"
    "pixtral\0vit:24/1024/16/0/4096,image=1024,patch=16,channels=3,out_channels=-1,gated=1\0"
    "DiTTransformer2DModel Transformer2DModel\0dit:\0";
/* The type of the whole, of models that see: the projector and, where the files leave it out, the
 * tower. tower_inner: -1 as wide as the merged patches, -2 as the language model, -3 counted in
 * tower_params, -4 GLM-4V's. */
static const char dpari_towers[] =
    "llava llava_llama\0"
    "tower_layers=24,tower_hidden=1024,tower_heads=16,tower_ffn=4096,"
    "tower_patch=588,tower_tokens=576,tower_positions=577,tower_inner=-2\0"
    "llava_next llava_onevision vipllava\0tower_inner=-2\0"
    "video_llava\0tower_inner=-2,tower_params=303500\0"
    "mistral3\0tower_inner=-2,tower_params=4194\0"
    "internvl_chat internvl\0tower_inner=-2,tower_merge=4\0"
    "phi3_v\0"
    "tower_layers=24,tower_hidden=1024,tower_heads=16,tower_ffn=4096,"
    "tower_patch=588,tower_tokens=576,tower_positions=577,tower_inner=-2,"
    "tower_merge=4\0"
    "llama4\0"
    "tower_layers=34,tower_hidden=768,tower_heads=16,tower_ffn=5632,"
    "tower_patch=588,tower_tokens=1024,tower_positions=1025,tower_inner=-3,"
    "tower_params=80000\0"
    "step3p7\0"
    "tower_layers=47,tower_hidden=1536,tower_heads=16,tower_ffn=8960,"
    "tower_patch=588,tower_tokens=2704,tower_positions=2705,tower_inner=-3,"
    "tower_params=237500\0"
    "deepseek_vl_v2\0"
    "tower_heads=16,tower_tokens=729,tower_positions=729,tower_inner=-2,"
    "tower_merge=4,tower_params=15300\0"
    "mllama\0tower_inner=-3,tower_params=106400\0"
    "idefics3 smolvlm\0tower_merge=16\0"
    "qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe "
    "kimi_k25 kimi_k3 kimi_vl\0"
    "tower_inner=-1,tower_merge=4\0"
    "glm4v glm4v_moe glm46v\0tower_inner=-4,tower_merge=4\0";

/* Objects: the outermost one, the language model of a multi-modal one, its towers, a linear
 * attention's; and what is skipped, is a list, or has a member a class. */
enum {
    DPARI_IN_WHOLE,
    DPARI_IN_TEXT,
    DPARI_IN_SEES,
    DPARI_IN_HEARS,
    DPARI_IN_LINEAR,
    DPARI_INS,
    DPARI_IN_NOTHING = DPARI_INS,
    DPARI_IN_LIST,
    DPARI_IN_LABELS
};

enum { DPARI_LISTED = 512 };

typedef struct dpari_slice {
    const char *at;
    size_t n;
} dpari_slice;

/* The state of the reader. */
typedef struct dpari_config_state {
    int32_t value[DPARI_INS][DPARI_C_KEYS]; /* -1: not said */
    dpari_slice type[DPARI_INS];            /* model_type, or diffusers' _class_name */
    dpari_slice architecture[DPARI_INS], activation[DPARI_INS];
    int8_t in[66]; /* of the members at each depth: DPARI_IN_* */
    int8_t seen[DPARI_INS];
    int32_t key, of; /* of the list that is being read */
    dpari_slice name;
    double sum, low, high;
    int32_t listed;
    char mix[DPARI_LISTED]; /* letters of a pattern */
    int8_t feed[DPARI_LISTED];
    int32_t labels;                   /* classes */
    int32_t mixes, feeds, full_at[2]; /* full_at: indices given, how many; counted from 1 */
    dpar_text note;
} dpari_config_state;

static int dpari_same_bytes(const char *a, const char *b, size_t n)
{
    while (n > 0 && *a == *b) {
        a++;
        b++;
        n--;
    }
    return n == 0;
}

static int32_t dpari_config_within(int64_t v, int64_t low, int64_t high)
{
    return (int32_t)dpari_most(low, dpari_least(v, high));
}

/* Returns the index of the word [s, s + n) in a list of words with blanks between, or -1. */
static int32_t dpari_word_in_list(const char *list, const char *s, size_t n)
{
    int32_t i = 0;
    while (*list != 0) {
        size_t k = 0;
        while (list[k] != 0 && list[k] != ' ') {
            k++;
        }
        if (k == n && dpari_same_bytes(list, s, n)) {
            return i;
        }
        list += k + (list[k] == ' ');
        i++;
    }
    return -1;
}

static int dpari_slice_is(const dpari_slice *s, const char *list)
{
    return s->n > 0 && dpari_word_in_list(list, s->at, s->n) >= 0;
}

static int dpari_slice_holds(const char *s, size_t n, const char *part)
{
    size_t k = dpari_length(part), i;
    for (i = 0; i + k <= n; i++) {
        if (dpari_same_bytes(s + i, part, k)) {
            return 1;
        }
    }
    return 0;
}

/* Returns the settings of a type in one of the tables, or NULL. */
static const char *dpari_type_row(const char *row, const dpari_slice *type)
{
    for (; *row != 0; row = dpari_behind(dpari_behind(row))) {
        if (dpari_slice_is(type, row)) {
            return dpari_behind(row);
        }
    }
    return NULL;
}

DPARI_STATIC_NOINLINE const char *dpari_type_find(const dpari_slice *type)
{
    const char *row = dpari_type_row(dpari_types, type);
    return row != NULL ? row : dpari_type_row(dpari_types_more, type);
}

static void dpari_type_read(dpar_model *m, const char *row)
{
    size_t n = 0;
    while (row[n] != ':') {
        n++;
    }
    (void)dpari_model_family(m, row, n, dpari_length(row), NULL);
}

/* Adds a line to the note. */
static DPARI_PRINTF(2, 3) void dpari_config_note(dpari_config_state *c, const char *form, ...)
{
    va_list list;
    va_start(list, form);
    dpari_text_print_list(&c->note, form, &list);
    va_end(list);
    dpari_text_char(&c->note, '\n');
}

/* How many characters of a name a message or a note shows. */
static int32_t dpari_config_shown(size_t n)
{
    return (int32_t)(n < 60 ? n : 60);
}

static dpar_status dpari_config_bad(const dpari_slice *name, dpar_why *why, const char *form)
{
    return dpari_say(DPAR_E_PARSE, why, form, (int32_t)(name->n < 60 ? name->n : 60), name->at);
}

/* Returns the key of a member, or -1. */
static int32_t dpari_config_find(const char *s, size_t n)
{
    const char *names = dpari_config_names;
    int32_t i = 0;
    for (; *names != 0; names = dpari_behind(names)) {
        if (dpari_word_in_list(names, s, n) >= 0) {
            return dpari_config_key[i];
        }
        i++;
    }
    return -1;
}

/* Returns the object of a name inside another one. */
static int32_t dpari_config_child(dpari_config_state *c, int32_t in, const dpari_json_item *item)
{
    static const char names[] =
        "text_config language_config llm_config text_model_config text_model decoder_config\0"
        "vision_config vision_tower visual vision_encoder image_encoder vision vit_config\0"
        "audio_config speech_config audio_encoder\0linear_attn_config\0"
        "attn_config ffn_config ssm_cfg moe mamba_config thinker_config ssm_config";
    const char *list = names;
    int32_t i;
    for (i = 0; i < 5 && in <= DPARI_IN_TEXT; i++) {
        if (dpari_word_in_list(list, item->key, item->key_length) >= 0) {
            in = i < 4 ? DPARI_IN_TEXT + i : in;
            c->seen[in] = 1;
            return in;
        }
        list = dpari_behind(list);
    }
    return dpari_spells(item->key, item->key_length, "id2label") ? DPARI_IN_LABELS
                                                                 : DPARI_IN_NOTHING;
}

/* Members that change the model in a way that is not modelled. */
static const char dpari_config_left[] =
    "altup_num_inputs laurel_rank num_kv_shared_layers compress_ratios "
    "sparse_attention_config routed_expert_hidden_size attn_res_block_size block_configs hc_mult "
    "use_full_rank_gate";
/* Members about experts that change neither sizes nor work. */
static const char dpari_config_idle[] = "moe_layer_end_index expert_capacity";

static dpar_status dpari_config_unknown(dpari_config_state *c, int32_t in,
                                        const dpari_json_item *item)
{
    const char *s = item->key;
    size_t n = item->key_length;
    int expert = (n > 4 && dpari_same_bytes(s, "moe_", 4)) || dpari_slice_holds(s, n, "expert");
    if (in != DPARI_IN_WHOLE && in != DPARI_IN_TEXT) {
        return DPAR_OK;
    }
    if (dpari_word_in_list(dpari_config_left, s, n) >= 0) {
        dpari_config_note(c, "'%.*s' is not modelled: parameters, time and memory leave it out",
                          dpari_config_shown(n), s);
    } else if (expert && item->kind == DPARI_JSON_NUMBER && item->number >= 2.0 &&
               item->number - (double)(int32_t)dpari_leastf(item->number, 2e9) <= 0.0 &&
               dpari_word_in_list(dpari_config_idle, s, n) < 0) {
        dpari_config_note(c, "'%.*s'=%ld is not understood, and nothing was made of it",
                          dpari_config_shown(n), s, (int64_t)item->number);
    } else if (item->kind == DPARI_JSON_OBJECT && n > 7 &&
               dpari_same_bytes(s + n - 7, "_config", 7) &&
               dpari_word_in_list("quantization_config generation_config projector_config "
                                  "sparse_attention_config task_specific_params",
                                  s, n) < 0) {
        dpari_config_note(c, "'%.*s' is not read", dpari_config_shown(n), s);
    }
    return DPAR_OK;
}

/* Returns the letter of a pattern for the word of a layer. */
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

static void dpari_config_mix(dpari_config_state *c, char letter)
{
    if (c->mixes < DPARI_LISTED) {
        c->mix[c->mixes] = letter;
    }
    c->mixes++; /* more than DPARI_LISTED: refused at the end */
}

static void dpari_config_feed(dpari_config_state *c, int32_t feed)
{
    if (c->feeds < DPARI_LISTED) {
        c->feed[c->feeds] = (int8_t)feed;
    }
    c->feeds++;
}

/* Extends the list to layer `at`, which is of another kind than those before. */
static void dpari_config_at(dpari_config_state *c, int32_t key, double number)
{
    int32_t at = number >= 0.0 && number < (double)DPARI_LISTED ? (int32_t)number : DPARI_LISTED;
    if (key == DPARI_C_DENSE_AT && at < DPARI_LISTED) {
        while (c->feeds <= at) {
            dpari_config_feed(c, DPAR_MODEL_FFN_EXPERTS);
        }
        c->feed[at] = DPAR_MODEL_FFN_DENSE;
    } else if (at < DPARI_LISTED) {
        at -= c->of == DPARI_IN_LINEAR && at > 0; /* Kimi counts from 1 */
        while (c->mixes <= at) {
            dpari_config_mix(c, 'S');
        }
        c->mix[at] = 'F';
    } else if (number >= 0.0) {
        c->mixes = number < 1e9 ? (int32_t)number + 1 : 1000000000; /* refused, with it */
    }
}

static void dpari_config_element(dpari_config_state *c, const dpari_json_item *item)
{
    double v = item->kind == DPARI_JSON_NUMBER ? item->number : item->kind == DPARI_JSON_TRUE;
    int word = item->kind == DPARI_JSON_STRING;
    c->sum += v;
    c->low = c->listed == 0 || v < c->low ? v : c->low;
    c->high = c->listed == 0 || v > c->high ? v : c->high;
    c->listed++;
    switch (c->key) {
    case DPARI_C_MIX:
        dpari_config_mix(c, word ? dpari_config_letter(item->string, item->length) : 'F');
        break;
    case DPARI_C_LINEAR: dpari_config_mix(c, v > 0.0 ? 'F' : 'S'); break;
    case DPARI_C_SWA: dpari_config_mix(c, v > 0.0 ? 'W' : 'F'); break;
    case DPARI_C_FEED:
        dpari_config_feed(c, word && !dpari_spells(item->string, item->length, "dense"));
        break;
    case DPARI_M_EXPERT_STEP: dpari_config_feed(c, v > 0.0); break;
    case DPARI_C_FULL_AT:
    case DPARI_C_DENSE_AT: dpari_config_at(c, c->key, v); break;
    case DPARI_C_ARCHITECTURE:
        if (c->listed == 1 && word) {
            c->architecture[c->of].at = item->string;
            c->architecture[c->of].n = item->length;
        }
        break;
    default: break;
    }
}

/* Takes one number for a key that has a list: the number if all layers have the same, or the mean.
 */
static void dpari_config_listed(dpari_config_state *c)
{
    int32_t *value;
    if (c->listed == 0 || c->key >= DPARI_C_MIX || c->key == DPARI_M_EXPERT_STEP) {
        if (c->key == DPARI_C_DEEP) {
            c->value[c->of][DPARI_M_TOWER_MERGERS] = 1 + c->listed;
        }
        return;
    }
    value = &c->value[c->of][c->key];
    if (c->key == DPARI_M_PATCH || c->key == DPARI_C_SIDE || c->key == DPARI_C_MERGE) {
        *value = dpari_config_within((int64_t)c->high, 0, 65536);
        return;
    }
    *value = dpari_config_within((int64_t)(c->sum / c->listed + 0.5), 0, INT32_MAX);
    if (c->high > c->low) {
        dpari_config_note(c, "'%.*s' differs from layer to layer: their mean, %d, is taken",
                          dpari_config_shown(c->name.n), c->name.at, *value);
    }
}

/* Returns the letter of a pattern for one of Nemotron-H's: M is a scan, * attention, - a dense
 * feed-forward part. */
static char dpari_config_nemotron(char letter)
{
    switch (letter) {
    case 'M': return 's';
    case '*': return 'f';
    case '-': return 'D';
    default: return 'E';
    }
}

static void dpari_config_string(dpari_config_state *c, int32_t in, int32_t key,
                                const dpari_json_item *item)
{
    dpari_slice s;
    size_t i;
    s.at = item->string;
    s.n = item->length;
    if (key == DPARI_C_TYPE) {
        c->type[in] = s;
    } else if (key == DPARI_C_ACTIVATION && c->activation[in].n == 0) {
        c->activation[in] = s;
    } else if (key == DPARI_C_PROJECTION) {
        c->value[in][DPARI_C_GATED] = dpari_slice_holds(s.at, s.n, "gated-");
    } else if (key == DPARI_C_MIX) {
        for (i = 0; i < s.n; i++) {
            dpari_config_mix(c, dpari_config_nemotron(s.at[i]));
        }
    }
}

/* Reads one known member. */
static dpar_status dpari_config_value(dpari_config_state *c, int32_t in, int32_t key,
                                      const dpari_json_item *item, dpar_why *why)
{
    int flag = item->kind == DPARI_JSON_TRUE || item->kind == DPARI_JSON_FALSE;
    double v = item->number;
    dpari_slice name;
    name.at = item->key;
    name.n = item->key_length;
    if (item->kind == DPARI_JSON_NULL) {
        return DPAR_OK;
    }
    if (key == DPARI_C_ADAPTER) {
        return dpari_config_bad(
            &name, why,
            "config.json: '%.*s' makes it an adapter's: give the config.json of "
            "the model that it adapts");
    }
    if (key >= DPARI_C_KEYS) {
        if (item->kind == DPARI_JSON_STRING) {
            dpari_config_string(c, in, key, item);
        }
        return DPAR_OK;
    }
    if (in > DPARI_IN_TEXT && (key >= DPARI_C_FLAGS ? !flag : item->kind != DPARI_JSON_NUMBER)) {
        return DPAR_OK; /* of a tower: sizes that matter are numbers */
    }
    if (key >= DPARI_C_FLAGS && !flag) {
        return dpari_config_bad(&name, why, "config.json: '%.*s' must be true or false");
    }
    if (key < DPARI_C_FLAGS && item->kind != DPARI_JSON_NUMBER) {
        return key == DPARI_C_EXPANSION || key == DPARI_M_MTP || key == DPARI_M_WINDOW
                   ? DPAR_OK
                   : dpari_config_bad(&name, why, "config.json: '%.*s' must be a number");
    }
    v *= key == DPARI_C_EXPANSION || key == DPARI_C_FFN_TIMES ? 1e4 : 1.0;
    if (key == DPARI_C_EXPANSION || key == DPARI_C_FFN_TIMES) {
        v = (double)(int64_t)dpari_leastf(dpari_mostf(v, 0.0) + 0.5, 1e9);
    }
    if ((key == DPARI_M_VOCAB || key == DPARI_M_WINDOW) && v < 0.0 && v > -2.0) {
        return DPAR_OK; /* -1: not said */
    }
    if (!flag && (!(v >= 0.0 && v < 2147483648.0) || v - (double)(int32_t)v > 0.0)) {
        (void)dpari_config_bad(&name, why,
                               "config.json: '%.*s' must be a whole number of 0 to 2147483647");
        return DPAR_E_RANGE;
    }
    if (key == DPARI_C_MERGE || key == DPARI_C_ROWS) { /* squares */
        v = key == DPARI_C_ROWS && dpari_slice_holds(name.at, name.n, "height") ? v * v : v;
    }
    if (key == DPARI_M_WINDOW && v < 1.0) {
        return DPAR_OK;
    }
    c->value[in][key] =
        flag ? item->kind == DPARI_JSON_TRUE : (int32_t)dpari_leastf(v, 2147483647.0);
    return DPAR_OK;
}

DPARI_STATIC_NOINLINE dpar_status dpari_config_member(dpari_config_state *c,
                                                      const dpari_json_item *item, dpar_why *why)
{
    int32_t in = c->in[item->depth], key = -1;
    int open = item->kind == DPARI_JSON_OBJECT || item->kind == DPARI_JSON_ARRAY;
    if (item->kind == DPARI_JSON_OBJECT_END || item->kind == DPARI_JSON_ARRAY_END) {
        if (c->in[item->depth + 1] == DPARI_IN_LIST) {
            dpari_config_listed(c);
        }
        return DPAR_OK;
    }
    if (in == DPARI_IN_LIST && !open) {
        dpari_config_element(c, item);
    }
    if (item->depth == 0) {
        c->in[1] = item->kind == DPARI_JSON_OBJECT ? DPARI_IN_WHOLE : DPARI_IN_NOTHING;
        return DPAR_OK;
    }
    c->labels += in == DPARI_IN_LABELS;
    if (in >= DPARI_INS || item->key == NULL) {
        c->in[item->depth + 1] = DPARI_IN_NOTHING;
        return DPAR_OK;
    }
    key = dpari_config_find(item->key, item->key_length);
    if (item->kind == DPARI_JSON_OBJECT) {
        c->in[item->depth + 1] = (int8_t)dpari_config_child(c, in, item);
        if (c->in[item->depth + 1] != DPARI_IN_NOTHING) {
            return DPAR_OK;
        }
    } else if (item->kind == DPARI_JSON_ARRAY && key >= 0) {
        c->in[item->depth + 1] = DPARI_IN_LIST;
        c->key = key;
        c->of = in;
        c->name.at = item->key;
        c->name.n = item->key_length;
        c->sum = c->low = c->high = 0.0;
        c->listed = 0;
        return DPAR_OK;
    } else if (open) {
        c->in[item->depth + 1] = DPARI_IN_NOTHING;
    }
    return key >= 0 ? dpari_config_value(c, in, key, item, why) : dpari_config_unknown(c, in, item);
}

/* Reports "config.json: num_hidden_layers (or n_layer, num_layers, n_layers) is missing ...". */
static dpar_status dpari_config_missing(int32_t key, dpar_why *why)
{
    char text[160];
    dpar_text t;
    const char *names = dpari_config_names;
    int32_t i = 0, found = 0;
    while (dpari_config_key[i] != key) {
        names = dpari_behind(names);
        i++;
    }
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
                     "config.json: %s is missing or 0 (not a transformer's config?)", text);
}

static int32_t dpari_model_scans_only(const dpar_model *m)
{
    return m->scan > 0 && dpari_spells_one(m->pattern[0], "sS") && m->pattern[1] == 0;
}

/* Returns the first member that the model needs and neither the file nor its type gives, or -1. */
static int32_t dpari_config_absent(const dpar_model *m, const dpari_config_state *c)
{
    int32_t sees = m->family == DPAR_MODEL_FAMILY_VIT || m->family == DPAR_MODEL_FAMILY_DIT;
    if (m->layers < 1) {
        return DPARI_M_LAYERS;
    }
    if (m->hidden < 1) {
        return DPARI_M_HIDDEN;
    }
    if (m->heads < 1 && !(dpari_model_scans_only(m) && c->mixes == 0)) {
        return DPARI_M_HEADS;
    }
    if (sees && m->patch < 1) {
        return DPARI_M_PATCH;
    }
    if (sees && m->image[0] < 1) {
        return DPARI_C_SIDE;
    }
    if (!sees && m->vocab < 1) {
        return DPARI_M_VOCAB;
    }
    if (m->experts > 0 && m->topk < 1) {
        return DPARI_M_TOPK;
    }
    if (m->kv_lora > 0 && m->qk_width < 1) {
        return DPARI_M_QK_WIDTH;
    }
    if (m->kv_lora > 0 && m->v_width < 1) {
        return DPARI_M_V_WIDTH;
    }
    return -1;
}

static dpar_status dpari_config_needed(const dpar_model *m, const dpari_config_state *c,
                                       dpar_why *why)
{
    int32_t key = dpari_config_absent(m, c);
    if (key >= 0) {
        return dpari_config_missing(key, why);
    }
    if (m->kv_heads > 0 && m->heads % m->kv_heads != 0) {
        return dpari_say(
            DPAR_E_DIVIDE, why,
            "config.json: num_key_value_heads=%d does not divide num_attention_heads=%d",
            m->kv_heads, m->heads);
    }
    return DPAR_OK;
}

/* Returns a * b, or 0 (not given) if it is too large. */
DPARI_STATIC_NOINLINE int32_t dpari_config_product(int32_t a, int64_t b)
{
    int64_t v = 0;
    return a > 0 && b > 0 && dpari_mul(a, b, &v) && v <= INT32_MAX ? (int32_t)v : 0;
}

static int dpari_config_gates(const dpari_slice *s)
{
    return dpari_slice_is(s, "silu swish swiglu swigluoai situ geglu");
}

/* Writes what the type implies into *m. An unknown type gets Llama's shapes, as most have, if the
 * file gives kv heads (an encoder or a state-space model has none) and silu (others may not be
 * gated), or neither. */
static dpar_status dpari_config_kind(dpari_config_state *c, int32_t in, dpar_model *m,
                                     dpar_why *why)
{
    dpari_slice type = c->type[in].n > 0 ? c->type[in] : c->type[DPARI_IN_WHOLE], other;
    const int32_t *value = c->value[in];
    const char *row;
    other.at = "chatglm-6b";
    other.n = 10;
    if (dpari_slice_is(&type, "chatglm") && value[DPARI_C_PADDED] < 0) {
        type = other; /* the first one, of another shape */
    }
    row = dpari_type_find(&type);
    if (row == NULL && type.n == 0 && value[DPARI_C_TYPES] >= 0 && value[DPARI_M_KV_HEADS] < 0) {
        other.at = "bert";
        other.n = 4;
        row = dpari_type_find(&other);
        dpari_config_note(c, "no model_type: read as BERT, for it has type_vocab_size");
    } else if (row == NULL && ((value[DPARI_M_KV_HEADS] > 0 && c->activation[in].n == 0) ||
                               dpari_config_gates(&c->activation[in]) || type.n == 0)) {
        row = "llama:";
        if (type.n > 0) {
            dpari_config_note(c, "model_type '%.*s' is not known: read as Llama",
                              dpari_config_shown(type.n), type.at);
        } else {
            dpari_config_note(c, "no model_type: read as Llama");
        }
    }
    if (row == NULL || dpari_slice_is(&type, "nemotron-nas")) {
        return dpari_say(
            DPAR_E_UNKNOWN, why,
            row == NULL
                ? "config.json: model_type '%.*s' is not known (llama, qwen3, mixtral, "
                  "deepseek_v3, gemma2, phi3, gpt2, gpt_neox, opt, falcon, t5, bert, mamba, "
                  "vit ...): describe the model as text"
                : "config.json: model_type '%.*s': blocks that differ one from another "
                  "(block_configs) are not modelled",
            (int32_t)(type.n < 40 ? type.n : 40), type.at);
    }
    dpari_type_read(m, row);
    if (type.n > 0) {
        dpari_copy_text(m->name, sizeof(m->name), type.at, type.n);
    } else {
        dpari_copy_text(m->name, sizeof(m->name), "config.json", 11);
    }
    return DPAR_OK;
}

/* Overwrites what the type implies with the fields that the file has. */
static void dpari_config_fields(dpar_model *m, const int32_t *v)
{
    int32_t key;
    for (key = 0; key < DPARI_M_INTEGERS; key++) {
        if (v[key] >= 0 && key != DPARI_M_MTP && key != DPARI_M_TOWER_MERGERS) {
            *dpari_model_field(m, key) = v[key];
        }
    }
    m->layers = v[DPARI_C_ENCODER] > 0 ? v[DPARI_C_ENCODER] : m->layers;
}

/* Said, a share of the width, or of the type. */
DPARI_STATIC_NOINLINE int32_t dpari_config_ffn(const int32_t *v, int32_t hidden, int32_t ffn)
{
    return v[DPARI_C_EXPANSION] > 0 && v[DPARI_M_FFN] < 1
               ? (int32_t)dpari_leastf((double)hidden * v[DPARI_C_EXPANSION] * 1e-4 + 0.01, 2e9)
               : ffn;
}

/* Notes in one line what the file leaves to its type. */
static void dpari_config_defaults(dpari_config_state *c, const dpar_model *m, const int32_t *value)
{
    static const uint8_t key[] = {DPARI_M_LAYERS, DPARI_M_HIDDEN, DPARI_M_HEADS,
                                  DPARI_M_VOCAB,  DPARI_M_FFN,    DPARI_M_HEAD_WIDTH};
    dpar_model copy = *m;
    const char *names, *end;
    int32_t i, k, said = 0;
    for (i = 0; i < 6; i++) {
        int32_t v = *dpari_model_field(&copy, key[i]);
        if (value[key[i]] >= 0 || v < 1 ||
            (key[i] == DPARI_M_FFN && m->family > DPAR_MODEL_FAMILY_LLAMA) ||
            (key[i] == DPARI_M_VOCAB && value[DPARI_C_PADDED] > 0)) {
            continue;
        }
        names = dpari_config_names;
        for (k = 0; dpari_config_key[k] != key[i]; k++) {
            names = dpari_behind(names);
        }
        for (end = names; *end != 0 && *end != ' '; end++) {
        }
        dpar_text_put(&c->note, said++ == 0 ? "not in the file, as its type has it: " : ", ");
        dpari_text_slice(&c->note, names, (size_t)(end - names));
        dpari_text_print(&c->note, "=%d", v);
    }
    dpar_text_put(&c->note, said > 0 ? "\n" : "");
}

/* Returns the channels of a scan: given, a multiple of the hidden size that is given, or Mamba's.
 */
static int32_t dpari_config_inner(const dpar_model *m, const int32_t *v)
{
    if (v[DPARI_C_INNER] > 0) {
        return v[DPARI_C_INNER];
    }
    if (v[DPARI_C_EXPAND] > 0) {
        return dpari_config_product(m->hidden, v[DPARI_C_EXPAND]);
    }
    if (m->scan == DPAR_MODEL_SCAN_MAMBA || m->scan == DPAR_MODEL_SCAN_MAMBA2) {
        return dpari_config_product(m->hidden, 2);
    }
    return m->hidden;
}

/* Sets widths that follow from other members. */
DPARI_STATIC_NOINLINE void dpari_config_widths(dpar_model *m, const dpari_config_state *c,
                                               const int32_t *v, const dpari_slice *type)
{
    int32_t inner;
    m->ffn = dpari_config_ffn(v, m->hidden, m->ffn);
    if (v[DPARI_C_MULTIPLE] > 0 && v[DPARI_M_FFN] < 1 && m->hidden < 100000000) {
        int64_t f = 8 * (int64_t)m->hidden / 3, unit = v[DPARI_C_MULTIPLE];
        f = v[DPARI_C_FFN_TIMES] > 0 ? f * v[DPARI_C_FFN_TIMES] / 10000 : f;
        m->ffn = dpari_config_within((f + unit - 1) / unit * unit, 0, INT32_MAX);
    }
    if (v[DPARI_C_ADJUSTS] > 0) { /* as Llama's first rule: two thirds, a multiple of 256 */
        m->ffn = dpari_config_within((2 * (int64_t)m->ffn / 3 + 255) / 256 * 256, 0, INT32_MAX);
    }
    if (dpari_slice_is(type, "qwen recurrent_gemma")) { /* counts both halves of the gated one */
        m->ffn /= 2;
    }
    if (v[DPARI_C_DENSE_FFN] > 0) {
        m->expert_ffn = v[DPARI_M_EXPERT_FFN] > 0 ? m->expert_ffn : m->ffn;
        m->ffn = v[DPARI_C_DENSE_FFN];
    }
    m->expert_ffn = m->experts > 0 && m->expert_ffn < 1 ? m->ffn : m->expert_ffn;
    if (v[DPARI_C_SHARED] > 0 && v[DPARI_M_SHARED_FFN] < 1) {
        m->shared_ffn = dpari_config_product(v[DPARI_C_SHARED], m->expert_ffn);
    }
    m->shared_ffn = m->experts > 0 && m->shared_ffn == 1 ? m->expert_ffn : m->shared_ffn;
    if (dpari_slice_is(type, "ernie4_5_moe_vl ernie4_5_vl_moe_text")) {
        m->experts = dpari_config_product(2, m->experts); /* so many for text, so many for images */
    }
    if (v[DPARI_C_NO_MLA] == 0) {
        m->kv_lora = m->q_lora = m->v_width = 0;
    }
    if (m->kv_lora > 0) { /* latent attention has widths of its own */
        m->head_width = 0;
        m->kv_heads = 0;
    } else if (m->v_width == m->head_width || m->v_width == 1) {
        m->v_width = 0;
    }
    if (dpari_slice_is(type, "falcon gpt_bigcode")) {
        m->kv_heads = v[DPARI_C_ONE_KV] != 0;
        if (v[DPARI_C_NEW_DECODER] > 0) {
            m->kv_heads = (int32_t)dpari_most(v[DPARI_C_NEW_KV], 0);
        }
    } else if (v[DPARI_C_NEW_KV] > 0 && v[DPARI_M_KV_HEADS] < 1) {
        m->kv_heads = v[DPARI_C_NEW_KV];
    }
    if (dpari_model_scans_only(m) && c->mixes == 0) { /* its heads are the scan's */
        m->scan_heads =
            m->heads > 0 && m->scan == DPAR_MODEL_SCAN_MAMBA2 ? m->heads : m->scan_heads;
        m->heads = m->kv_heads = 0;
    }
    if (c->value[DPARI_IN_LINEAR][DPARI_M_HEADS] > 0) {
        const int32_t *linear = c->value[DPARI_IN_LINEAR];
        m->scan_heads = m->scan_groups = linear[DPARI_M_HEADS];
        m->scan_width = m->scan_state = (int32_t)dpari_most(linear[DPARI_M_HEAD_WIDTH], 0);
        m->conv = (int32_t)dpari_most(linear[DPARI_M_CONV], 0);
    }
    if (m->scan == DPAR_MODEL_SCAN_KDA && m->scan_groups < 1) {
        m->scan_groups = m->scan_heads;
        m->scan_state = m->scan_width;
    }
    if (m->scan == DPAR_MODEL_SCAN_LIGHTNING) {
        m->scan_heads = m->scan_groups = m->heads;
        m->scan_width = m->scan_state = m->head_width;
    }
    if (m->scan == DPAR_MODEL_SCAN_LRU) {
        m->scan_heads = m->heads;
    }
    inner = dpari_config_inner(m, v);
    if (m->scan == DPAR_MODEL_SCAN_MAMBA || m->scan == DPAR_MODEL_SCAN_RWKV ||
        m->scan == DPAR_MODEL_SCAN_CONV) {
        m->scan_heads = 1;
        m->scan_width = m->scan == DPAR_MODEL_SCAN_CONV ? m->hidden : inner;
    } else if (m->scan > 0 && m->scan_width < 1 && m->scan_heads > 0) {
        m->scan_width = inner / m->scan_heads;
    } else if (m->scan > 0 && m->scan_heads < 1 && m->scan_width > 0) {
        m->scan_heads = inner / m->scan_width;
    }
}

/* Sets the head of a language model by the class with which the file was saved. */
static void dpari_config_head(dpar_model *m, const dpari_slice *a, const dpari_slice *type)
{
    int vocabulary = dpari_slice_holds(a->at, a->n, "ForCausalLM") ||
                     dpari_slice_holds(a->at, a->n, "LMHead") ||
                     dpari_slice_holds(a->at, a->n, "ForConditional");
    int masked = dpari_slice_holds(a->at, a->n, "ForMaskedLM") ||
                 dpari_slice_holds(a->at, a->n, "ForPreTraining");
    int classes = dpari_slice_holds(a->at, a->n, "Classification") ||
                  dpari_slice_holds(a->at, a->n, "Reward") ||
                  dpari_slice_holds(a->at, a->n, "ForQuestion") ||
                  dpari_slice_holds(a->at, a->n, "WithProjection");
    int bare = a->n > 5 && dpari_same_bytes(a->at + a->n - 5, "Model", 5);
    if (m->family == DPAR_MODEL_FAMILY_VIT) {
        if (bare || (m->out_channels < 0 && !classes)) {
            m->head = bare && dpari_slice_is(type, "vit deit") ? DPAR_MODEL_HEAD_POOL
                                                               : DPAR_MODEL_HEAD_VOCAB;
            m->out_channels = -1;
        }
    } else if (masked || (vocabulary && m->causal < 0)) {
        m->head = DPAR_MODEL_HEAD_MASKED;
    } else if (vocabulary) {
        m->head = DPAR_MODEL_HEAD_VOCAB;
    } else if (m->head == DPAR_MODEL_HEAD_VOCAB && (bare || classes) &&
               !dpari_slice_is(type, "chatglm")) {
        m->head = DPAR_MODEL_HEAD_NONE;
    } else if (dpari_slice_holds(a->at, a->n, "ForQuestion") ||
               dpari_slice_holds(a->at, a->n, "ForToken")) {
        m->head = DPAR_MODEL_HEAD_NONE;
    }
}

/* Reads the tower of `in`, after what the type of the whole model implies. */
static void dpari_config_tower(dpar_model *m, dpari_config_state *c, int32_t in)
{
    const int32_t *v = c->value[in];
    const char *whole = dpari_type_row(dpari_towers, &c->type[DPARI_IN_WHOLE]), *row;
    dpar_model t;
    int32_t side;
    int64_t patches;
    dpari_zero(&t, sizeof(t));
    if (whole != NULL) {
        (void)dpari_model_settings(m, whole, dpari_length(whole), NULL);
    }
    row = c->seen[in] ? dpari_type_find(&c->type[in]) : NULL;
    if (row != NULL && row[0] == 'v') {
        dpari_type_read(&t, row);
    } else {
        t.layers = m->tower_layers;
        t.hidden = m->tower_hidden;
        t.heads = m->tower_heads > 0 ? m->tower_heads : 16;
        t.ffn = m->tower_ffn;
    }
    dpari_config_fields(&t, v);
    m->tower_layers = t.layers + dpari_config_within(v[DPARI_C_MORE], 0, 100000);
    m->tower_hidden = v[DPARI_C_WIDTH] > 0 ? v[DPARI_C_WIDTH] : t.hidden;
    m->tower_heads = t.heads > 0 ? t.heads : 16;
    m->tower_ffn = dpari_config_ffn(v, m->tower_hidden, t.ffn);
    m->tower_gated = t.gated > 0 || dpari_config_gates(&c->activation[in]);
    side = v[DPARI_C_SIDE] > 0 ? v[DPARI_C_SIDE] : t.image[0];
    t.channels = t.channels > 0 ? t.channels : 3;
    if (t.patch > 0 && t.patch < 1000 && t.channels < 1000) {
        m->tower_patch =
            t.patch * t.patch * t.channels * dpari_config_within(v[DPARI_C_TIME], 1, 100);
        patches = side > 0 ? side / t.patch : 0;
        if (patches > 0 && patches < 40000) {
            m->tower_tokens = (int32_t)(patches * patches);
            m->tower_positions = m->tower_tokens + 1;
        }
    }
    if (in == DPARI_IN_HEARS) { /* two convolutions, of 3 steps */
        m->tower_patch = v[DPARI_C_MELS] > 0 ? dpari_config_product(3, v[DPARI_C_MELS]) : 240;
        m->tower_tokens = v[DPARI_C_HEARS] > 0 ? v[DPARI_C_HEARS] : 1500;
        m->tower_positions = m->tower_tokens;
        m->tower_params = (int32_t)(3e-3 * m->tower_hidden * m->tower_hidden);
    }
    if (v[DPARI_C_ROWS] > 0) {
        m->tower_positions = v[DPARI_C_ROWS];
        m->tower_tokens = m->tower_tokens > 0 ? m->tower_tokens : v[DPARI_C_ROWS];
    }
    if (v[DPARI_C_MERGE] > 0) {
        m->tower_merge = dpari_config_product(v[DPARI_C_MERGE], v[DPARI_C_MERGE]);
    }
    if (m->tower_inner == -4 && v[DPARI_C_OUT] > 0) {
        /* GLM-4V: the file's width is the merger's, of three products; blocks are as wide as what
         * the tower gives; 2 x 2 patches are convolved to it, which is one product more */
        const double out = v[DPARI_C_OUT];
        m->tower_params = (int32_t)dpari_leastf(
            1e-3 * out * (out + 3.0 * m->tower_ffn + 4.0 * m->tower_hidden), 2e9);
        m->tower_ffn = v[DPARI_C_OUT];
        m->tower_inner = -3;
    }
    m->tower_mergers = v[DPARI_M_TOWER_MERGERS] > 0 ? v[DPARI_M_TOWER_MERGERS] : 1;
    switch (m->tower_inner) { /* the negative ones: see dpari_towers */
    case -1:
        m->tower_inner = dpari_config_product(m->tower_hidden, dpari_most(m->tower_merge, 1));
        break;
    case -2: m->tower_inner = m->hidden; break;
    case -3:
        m->tower_inner = 0;
        m->tower_mergers = 0;
        break;
    default: m->tower_inner = (int32_t)dpari_most(m->tower_inner, 0); break;
    }
    m->tower_tokens = m->tower_tokens > 0 ? m->tower_tokens : 1024;
    if (m->tower_layers < 1 || m->tower_hidden < 1 || m->tower_hidden % m->tower_heads != 0) {
        m->tower_layers = 0;
        dpari_config_note(c, "its %s is not understood: its parameters and its time are left out",
                          in == DPARI_IN_SEES ? "vision_config" : "audio_config");
        return;
    }
    dpari_config_note(c, "a tower of %d layers in front is counted%s", m->tower_layers,
                      c->seen[in] && v[DPARI_M_LAYERS] > 0
                          ? ""
                          : ", though not in the file, as models of its type have it");
    dpari_config_note(c, "its input: one of %d patches a sample, in front of the first stage",
                      m->tower_tokens);
    if (whole == NULL && in == DPARI_IN_SEES) {
        dpari_config_note(
            c, "model_type '%.*s' is not known: its projector is taken for one product",
            dpari_config_shown(c->type[DPARI_IN_WHOLE].n), c->type[DPARI_IN_WHOLE].at);
    }
}

/* Counts windows, experts and recurrences layer by layer. */
static dpar_status dpari_config_layers(dpar_model *m, dpari_config_state *c, const int32_t *v,
                                       const dpari_slice *type, dpar_why *why)
{
    int32_t every = v[DPARI_C_EVERY], i;
    if (c->mixes > 0 && m->scan == 0) {
        for (i = 0; i < c->mixes; i++) {
            if (c->mix[i] == 'S' || c->mix[i] == 's' || c->mix[i] == 'B') {
                m->scan = m->scan_groups > 0 && m->scan_state > 0 ? DPAR_MODEL_SCAN_DELTA : 0;
            }
        }
    }
    for (i = 0; i < c->mixes && m->pattern[0] == 's'; i++) { /* one or the other, no pairs */
        if (c->mix[i] == 'S') {
            c->mix[i] = 's';
        } else if (c->mix[i] == 'F') {
            c->mix[i] = 'f';
        }
    }
    if (c->mixes == 0 && every > 0 && every < 16) {
        for (i = 0; i < every; i++) {
            m->pattern[i] = m->scan > 0 ? 'S' : 'W';
        }
        m->pattern[v[DPARI_C_AFTER] >= 0 ? v[DPARI_C_AFTER] % every : every - 1] = 'F';
        m->pattern[every] = 0;
    }
    if (v[DPARI_C_WINDOWS] == 0 || (m->window < 1 && m->scan == 0)) {
        m->window = 0;
        if (m->scan == 0) {
            m->pattern[0] = 0;
        }
    }
    if (m->window > 0 && c->mixes == 0 && m->pattern[0] == 0 && v[DPARI_M_WINDOW] > 0) {
        dpari_config_note(c, "'sliding_window'=%d: in which layers is not said: none has it",
                          m->window);
    }
    for (i = 0; i < c->mixes && m->window < 1; i++) {
        if (c->mix[i] == 'W') {
            c->mix[i] = 'F';
        }
    }
    if (m->expert_step > 1 && v[DPARI_M_EXPERT_OFFSET] < 0 && m->expert_offset == 0 &&
        !dpari_slice_is(type, "deepseek deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2")) {
        m->expert_offset = m->expert_step - 1;
    }
    for (i = 0; i < c->mixes && m->scan == 0; i++) {
        if (c->mix[i] == 'S' || c->mix[i] == 's' || c->mix[i] == 'B') {
            return dpari_say(DPAR_E_UNKNOWN, why,
                             "config.json: model_type '%.*s': its layers of linear attention, "
                             "state space or convolution are not modelled",
                             (int32_t)(type->n < 40 ? type->n : 40), type->at);
        }
    }
    if (c->feeds > 0 && m->experts == 0) {
        c->feeds = 0;
    }
    if (c->feeds > 0) {
        m->dense_layers = 0;
    }
    dpari_model_kinds(m, c->mix, c->mixes, c->feed, c->feeds);
    return DPAR_OK;
}

DPARI_STATIC_NOINLINE dpar_status dpari_config_finish(dpar_model *model, dpari_config_state *c,
                                                      dpar_why *why)
{
    int32_t in = c->seen[DPARI_IN_TEXT] ? DPARI_IN_TEXT : DPARI_IN_WHOLE, tower;
    int32_t *v = c->value[in];
    dpari_slice type = c->type[in].n > 0 ? c->type[in] : c->type[DPARI_IN_WHOLE];
    const dpari_slice *gate = &c->activation[in];
    dpar_model m;
    dpar_status st;
    dpari_zero(&m, sizeof(m));
    if (c->value[DPARI_IN_WHOLE][DPARI_C_TIED] >= 0) { /* the one member that goes the other way */
        v[DPARI_C_TIED] = c->value[DPARI_IN_WHOLE][DPARI_C_TIED];
    }
    st = dpari_config_kind(c, in, &m, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_config_defaults(c, &m, v);
    dpari_config_fields(&m, v);
    m.tied = v[DPARI_C_TIED] >= 0 ? v[DPARI_C_TIED] : m.tied;
    m.vocab = v[DPARI_C_PADDED] > 0 ? v[DPARI_C_PADDED] : m.vocab;
    m.hidden = v[DPARI_C_WIDTH] > 0 && v[DPARI_M_HIDDEN] < 0 ? v[DPARI_C_WIDTH] : m.hidden;
    m.q_gate = v[DPARI_C_GATES] >= 0 ? v[DPARI_C_GATES] : m.q_gate;
    m.embed = m.embed == m.hidden ? 0 : m.embed;
    if (v[DPARI_C_NO_BIAS] > 0 || (m.biases < 0 && v[DPARI_C_BIAS] > 0)) {
        m.biases = v[DPARI_C_NO_BIAS] > 0 ? -1 : 0;
    }
    if (v[DPARI_C_GATED] >= 0 && m.family == DPAR_MODEL_FAMILY_T5) {
        m.gated = v[DPARI_C_GATED] > 0 ? 1 : -1;
    }
    if (m.family == DPAR_MODEL_FAMILY_LLAMA && m.gated == 0 &&
        dpari_slice_is(gate, "relu2 relu xielu")) {
        m.gated = -1;
    }
    if (m.vocab < 1 && v[DPARI_C_MULTIPLE] > 0) {
        m.vocab = 32000;
        dpari_config_note(c, "no vocab_size: 32000, as Llama and Llama 2 have it");
    }
    if (m.family == DPAR_MODEL_FAMILY_VIT || m.family == DPAR_MODEL_FAMILY_DIT) {
        m.image[0] = m.image[1] = v[DPARI_C_SIDE] > 0 ? v[DPARI_C_SIDE] : m.image[0];
        m.channels = m.channels > 0 ? m.channels : 3;
        m.out_channels =
            dpari_slice_holds(c->architecture[in].at, c->architecture[in].n, "WithProjection") &&
                    v[DPARI_C_PROJECTS] > 0
                ? v[DPARI_C_PROJECTS]
                : m.out_channels;
        m.hidden = m.family == DPAR_MODEL_FAMILY_DIT && m.hidden < 1
                       ? dpari_config_product(m.heads, m.head_width)
                       : m.hidden;
        m.window = 0;
        m.pattern[0] = 0;
    }
    m.layers = m.layers < 1 ? c->mixes : m.layers;
    dpari_config_widths(&m, c, v, &type);
    st = dpari_config_needed(&m, c, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (m.head_width < 1 && m.kv_lora < 1 && m.heads > 0 && m.hidden % m.heads != 0) {
        m.head_width = m.hidden / m.heads;
        dpari_config_note(c, "no head_dim: %d, hidden_size / num_attention_heads, is taken",
                          m.head_width);
    }
    if (m.family == DPAR_MODEL_FAMILY_VIT && m.out_channels == 0) {
        m.out_channels = c->labels;
    }
    dpari_config_head(&m, &c->architecture[in], &type);
    if (m.family == DPAR_MODEL_FAMILY_T5 &&
        dpari_slice_holds(c->architecture[in].at, c->architecture[in].n, "ForCausalLM")) {
        dpari_config_note(c, "'%.*s' is the decoder alone: the encoder is counted all the same",
                          dpari_config_shown(c->architecture[in].n), c->architecture[in].at);
    }
    if (m.positions > 0 && m.family == DPAR_MODEL_FAMILY_T5) {
        m.positions = 2 * dpari_config_within(m.seq, 0, 1000000);
        if (v[DPARI_C_MELS] > 0) {
            m.channels = v[DPARI_C_MELS];
            m.image[0] = v[DPARI_C_HEARS] > 0 ? v[DPARI_C_HEARS] : 1500;
            m.positions = m.image[0] + m.seq;
        }
    } else if (m.family == DPAR_MODEL_FAMILY_GPT && !m.rotary && m.positions == 0) {
        m.positions = m.seq > 0 ? m.seq : 2048;
        if (v[DPARI_C_BUCKETS] > 0) {
            m.positions = 2 * dpari_config_within(v[DPARI_C_BUCKETS], 0, 1000000) +
                          (v[DPARI_C_BIASED_INPUT] != 0 ? m.positions : 0);
        }
        m.positions +=
            dpari_config_within(v[DPARI_C_TYPES], m.head == DPAR_MODEL_HEAD_POOL ? 1 : 0, 16);
    }
    st = dpari_config_layers(&m, c, v, &type, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (m.seq == 0) {
        switch (m.family) {
        case DPAR_MODEL_FAMILY_T5: m.seq = 512; break;
        case DPAR_MODEL_FAMILY_GPT: m.seq = 2048; break;
        default: m.seq = 8192; break;
        }
    }
    if (m.seq > 8192) { /* trained lengths, not the longest that positions allow */
        dpari_config_note(
            c, "8192 tokens a sample are assumed of the %d that the file allows: --seq", m.seq);
        m.seq = 8192;
    }
    if (m.family == DPAR_MODEL_FAMILY_GPT) {
        m.stack = DPAR_MODEL_STACK_TORCH;
    }
    if (v[DPARI_M_MTP] > 0 && m.family == DPAR_MODEL_FAMILY_LLAMA) {
        dpari_config_note(
            c, "blocks for multi-token prediction are left out: %d in the file; mtp=1 counts one",
            v[DPARI_M_MTP]);
    }
    tower = c->seen[DPARI_IN_SEES] || dpari_type_row(dpari_towers, &c->type[DPARI_IN_WHOLE]) != NULL
                ? DPARI_IN_SEES
                : DPARI_IN_HEARS;
    if ((tower == DPARI_IN_SEES || c->seen[DPARI_IN_HEARS]) &&
        m.family <= DPAR_MODEL_FAMILY_LLAMA) {
        dpari_config_tower(&m, c, tower);
    }
    if (tower == DPARI_IN_SEES && c->seen[DPARI_IN_HEARS]) {
        dpari_config_note(c, "'audio_config': its tower is left out");
    }
    dpari_copy_text(m.note, sizeof(m.note), c->note.buffer, sizeof(m.note));
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
    char note[DPAR_MAX_NOTE];
    int32_t i, k;
    dpari_zero(&c, sizeof(c));
    for (i = 0; i < DPARI_INS; i++) {
        for (k = 0; k < DPARI_C_KEYS; k++) {
            c.value[i][k] = -1;
        }
        c.type[i].at = c.architecture[i].at = c.activation[i].at = "";
    }
    dpar_text_init(&c.note, note, sizeof(note));
    json += dpari_text_mark(json, bytes, &bytes);
    dpari_json_init(&j, json, bytes);
    do {
        st = dpari_json_next(&j, &item, why);
        if (st != DPAR_OK) {
            return st;
        }
        st = dpari_config_member(&c, &item, why);
        if (st != DPAR_OK) {
            return st;
        }
    } while (item.kind != DPARI_JSON_END);
    if (c.mixes > DPARI_LISTED || c.feeds > DPARI_LISTED) {
        return dpari_say(DPAR_E_RANGE, why, "a list has %d layers: at most %d are possible",
                         c.mixes > c.feeds ? c.mixes : c.feeds, (int32_t)DPARI_LISTED);
    }
    return dpari_config_finish(model, &c, why);
}

/* ---- any of these texts --------------------------------------------------------------------- */

/* Returns the place after a byte order mark and blanks. */
static int dpari_model_is_json(const char *text, size_t bytes)
{
    size_t n = bytes, i = 0;
    text += dpari_text_mark(text, bytes, &n);
    while (i < n && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n')) {
        i++;
    }
    return i < n && (text[i] == '{' || text[i] == '[');
}

/* Reads the text of a config.json. Settings may follow it, behind a comma after the last brace. */
static dpar_status dpari_model_file(dpar_model *m, const char *text, size_t bytes, dpar_why *why)
{
    dpar_status st;
    size_t end = bytes;
    while (end > 0 && text[end - 1] != '}') {
        end--;
    }
    if (end == 0 || end == bytes || text[end] != ',') {
        return dpari_model_config(m, text, bytes, why);
    }
    st = dpari_model_config(m, text, end, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_model_settings(m, text + end + 1, bytes - end - 1, why);
}

/* Reads "FAMILY:settings" or "PRESET,settings". */
static dpar_status dpari_model_text(dpar_model *m, const char *text, size_t bytes, dpar_why *why)
{
    dpar_status st;
    size_t first = 0, colon = 0;
    if (bytes == 0) {
        return dpari_say(DPAR_E_PARSE, why, "no model: give a preset, FAMILY:settings or a file");
    }
    while (first < bytes && text[first] != ',') {
        first++;
    }
    while (colon < first && text[colon] != ':') {
        colon++;
    }
    if (colon < first) {
        st = dpari_model_family(m, text, colon, bytes, why);
        dpari_copy_text(m->name, sizeof(m->name), text, colon);
        return st;
    }
    st = dpari_model_named(m, text, first, why);
    if (st != DPAR_OK || first == bytes) {
        return st;
    }
    return dpari_model_settings(m, text + first + 1, bytes - first - 1, why);
}

DPAR_API DPARI_COLD dpar_status dpar_model_read(dpar_model *model, const char *text, size_t bytes,
                                                dpar_why *why)
{
    dpar_model m;
    dpar_status st;
    dpari_zero(&m, sizeof(m));
    if (dpari_model_is_json(text, bytes)) {
        st = dpari_model_file(&m, text, bytes, why);
    } else {
        st = dpari_model_text(&m, text, bytes, why);
    }
    if (st == DPAR_OK) {
        *model = m;
    }
    return st;
}
