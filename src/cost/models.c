/* SPDX-License-Identifier: MIT-0 */
/* The presets and the readers of models. Programs call dpar_model_read with a text or with a
 * config.json of transformers, of Meta or of others.
 *
 * A preset is a row of a table whose text has the form that users write, so it is read like any
 * other text. A config.json is read in two steps. First dpari_config_member collects the members of
 * all objects. Then dpari_config_finish starts from the values that the model_type implies,
 * overwrites them with the members, and derives what is still missing. What had to be assumed or
 * left out is written to dpar_model.note. */
#include "models.h"

#include "../base/base_private.h"
#include "../base/text.h"
#include "cost_private.h"
#include "json.h"

/* ---- presets: the same text form that users write -------------------------------------------- */

/* The presets. A row is a name and a text, each with its NUL; an empty name ends the rows. A text
 * may build on another preset. The rows are in several strings, because C99 guarantees only 4095
 * characters for one.
 *
 * Sources: SC21 Table 1 (Narayanan 2021), Korthikanti 2022 Table 3, Megatron's TP scaling table,
 * llm-foundry's yamls, the models' public config.json, and the cases of the teaching texts. MPT has
 * biases and learned positions, because only with these the number of parameters equals that of
 * llm-foundry's benchmark table. Images are height x width. The teaching texts name U-Nets without
 * their widths, so the presets assume 1440 x 720 cells with 8 surface fields and 8 fields on 12
 * levels (104 channels). With 3 levels from 160 channels on this gives the 50M parameters of case
 * 3, with 5 levels from 128 channels on a weather model of 116M. transformer-1b is case 4's "1B,
 * 128K tokens" with the widths of Llama-3.2-1B. */
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

/* Returns the text that follows a text and its NUL. */
DPARI_STATIC_NOINLINE const char *dpari_behind(const char *text)
{
    return text + dpari_length(text) + 1;
}

/* Returns the preset after `row`, or the first one if `row` is NULL. Returns NULL after the last.
 */
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

/* ---- fields ---------------------------------------------------------------------------------- */

/* The keys of the text form: first the integer fields of dpar_model, which a config.json may set
 * too, then the other fields. */
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

/* The names of the keys in the same order, and the place of each integer field in dpar_model,
 * counted in int32_t from its beginning. */
static const char dpari_model_keys[] =
    "layers\0hidden\0heads\0kv_heads\0head_width\0ffn\0vocab\0seq\0tied\0biases\0rotary\0"
    "experts\0topk\0expert_ffn\0shared_ffn\0dense_layers\0q_lora\0kv_lora\0rope_width\0"
    "qk_width\0v_width\0decoder_layers\0patch\0channels\0out_channels\0levels\0"
    "blocks_per_level\0kernel\0fields\0halo\0element\0inference\0gated\0causal\0positions\0"
    "head\0embed\0aside\0aside_vocab\0q_gate\0window\0window_kv_heads\0scan\0scan_heads\0"
    "scan_groups\0scan_width\0scan_state\0conv\0expert_step\0expert_offset\0o_lora\0"
    "o_groups\0index_heads\0index_width\0index_topk\0mtp\0tower_layers\0tower_hidden\0"
    "tower_heads\0tower_ffn\0tower_tokens\0tower_patch\0tower_positions\0tower_merge\0"
    "tower_inner\0tower_mergers\0tower_gated\0tower_params\0expert_groups\0"
    "topk_groups\0capacity\0flops_per_cell\0"
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

static int32_t *dpari_model_field(dpar_model *model, int32_t key)
{
    return (int32_t *)(void *)model + dpari_model_at[key];
}

/* ---- words, and the nearest one -------------------------------------------------------------- */

static const char *dpari_family_name(int32_t family)
{
    static const char name[DPAR_MODEL_FAMILY_END][8] = {"?",  "gpt",    "llama", "vit", "dit",
                                                        "t5", "resnet", "unet",  "grid"};
    return name[family];
}

/* Reports "WHAT 'name'; the nearest is 'nearest'". */
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

/* Reports a setting that cannot be read. The form begins with its text, as %.*s. */
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

/* ---- the text form --------------------------------------------------------------------------- */

/* Returns 1 if a letter is in a list of letters, otherwise 0. */
static int dpari_spells_one(char letter, const char *letters)
{
    while (*letters != 0 && *letters != letter) {
        letters++;
    }
    return *letters != 0;
}

/* Reads a whole number of at most `limit`, possibly negative. Returns 0 if the n letters are not
 * such a number. */
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

/* Returns the least value of a key: 1 for widths and counts that every model has, otherwise 0. */
static int64_t dpari_model_least(int32_t key)
{
    return (key >= DPARI_M_LAYERS && key <= DPARI_M_SEQ) || key == DPARI_M_FIELDS ||
           key == DPARI_M_HALO || key == DPARI_M_KERNEL || key == DPARI_M_LEVELS ||
           key == DPARI_M_PATCH || key == DPARI_M_CHANNELS || key == DPARI_M_ELEMENT;
}

/* Reads an integer field. As in the functions below, [s, s + n) is the whole setting, which a
 * message quotes, and its value begins at s[k]. */
static dpar_status dpari_model_integer(dpar_model *model, int32_t key, const char *s, size_t k,
                                       size_t n, dpar_why *why)
{
    int yes_no = key == DPARI_M_TIED || key == DPARI_M_ROTARY || key == DPARI_M_INFERENCE ||
                 key == DPARI_M_Q_GATE;
    int sign = key == DPARI_M_BIASES || key == DPARI_M_GATED || key == DPARI_M_CAUSAL;
    /* these have special values below 0, as in dpari_types and dpari_towers */
    int special =
        key == DPARI_M_POSITIONS || key == DPARI_M_OUT_CHANNELS || key == DPARI_M_TOWER_INNER;
    int64_t v = 0, low = dpari_model_least(key);
    int64_t high = yes_no || sign ? 1 : INT32_MAX;
    size_t kilo = key == DPARI_M_SEQ && n - k > 1 && s[n - 1] == 'k'; /* seq=32k is 32768 */
    if (sign) {
        low = -1;
    } else if (special) {
        low = -4;
    }
    if (dpari_model_whole(s + k, n - k - kilo, INT32_MAX, &v)) {
        v *= kilo ? 1024 : 1;
        if (v >= low && v <= high) {
            *dpari_model_field(model, key) = (int32_t)v;
            return DPAR_OK;
        }
    }
    return dpari_say(DPAR_E_PARSE, why, "'%.*s': a whole number of %ld to %ld was expected",
                     (int32_t)(n < 60 ? n : 60), s, low, high);
}

/* Reads a real field. The limit of 1e15 keeps sums over a grid finite. */
static dpar_status dpari_model_real(dpar_model *model, int32_t key, const char *s, size_t k,
                                    size_t n, dpar_why *why)
{
    double v = 0.0;
    double *field = &model->bytes_per_cell;
    if (key == DPARI_M_CAPACITY) {
        field = &model->capacity;
    } else if (key == DPARI_M_FLOPS) {
        field = &model->flops_per_cell;
    }
    if (k == n || dpari_text_number(s + k, n - k, &v) != n - k || !(v >= 0.0 && v <= 1e15)) {
        return dpari_model_bad(s, n, why, "'%.*s': a number of 0 to 1e15 was expected");
    }
    if (key == DPARI_M_CAPACITY && v < 1.0) {
        return dpari_model_bad(
            s, n, why, "'%.*s' must be at least 1: the fullest expert has at least the mean load");
    }
    *field = v;
    return DPAR_OK;
}

/* Reads a field whose values have names, with the numbers 1 to end - 1. */
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

/* Reads "224" or "720x1440". */
static dpar_status dpari_model_image(dpar_model *model, const char *s, size_t k, size_t n,
                                     dpar_why *why)
{
    int64_t side[2];
    int32_t sides = dpari_model_extents(s + k, n - k, side, 2);
    if (sides == 0) {
        return dpari_model_bad(
            s, n, why, "'%.*s': a side or HEIGHTxWIDTH was expected, as in 224 or 720x1440");
    }
    model->image[0] = (int32_t)side[0];
    model->image[1] = (int32_t)side[sides - 1];
    return DPAR_OK;
}

/* Reads letters as in dpar_model.pattern. */
static dpar_status dpari_model_pattern(dpar_model *model, const char *s, size_t k, size_t n,
                                       dpar_why *why)
{
    size_t i;
    for (i = k; i < n && dpari_spells_one(s[i], "FWSBfwsbDE"); i++) {
    }
    if (i < n || k == n || n - k >= sizeof(model->pattern)) {
        return dpari_model_bad(s, n, why,
                               "'%.*s': 1 to 15 letters of F W S B f w s b D E were expected");
    }
    dpari_copy_text(model->pattern, sizeof(model->pattern), s + k, n - k);
    return DPAR_OK;
}

/* Reads the short form of the tables, such as "32/4096/32/8/14336/128256/8192": layers, hidden,
 * heads, kv_heads, ffn, vocab and seq. A 0 leaves the field as it is. */
static dpar_status dpari_model_row(dpar_model *model, const char *s, size_t n, dpar_why *why)
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
            *dpari_model_field(model, key[i]) = (int32_t)v;
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

/* Reads "key=value". `seen` has a bit for each key, because each key may be set only once. */
static dpar_status dpari_model_setting(dpar_model *model, const char *s, size_t n, uint64_t seen[2],
                                       dpar_why *why)
{
    size_t k = 0;
    int32_t key;
    const char *name = dpari_model_keys, *best = name;
    while (k < n && s[k] != '=') {
        k++;
    }
    if (k == n && n > 0 && s[0] >= '0' && s[0] <= '9') {
        return dpari_model_row(model, s, n, why);
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
        return dpari_model_bad(s, n, why, "'%.*s' is given twice");
    }
    seen[key / 64] |= (uint64_t)1 << key % 64;
    k++;
    switch (key) {
    case DPARI_M_CAPACITY:
    case DPARI_M_FLOPS:
    case DPARI_M_BYTES: return dpari_model_real(model, key, s, k, n, why);
    case DPARI_M_IMAGE: return dpari_model_image(model, s, k, n, why);
    case DPARI_M_ATTENTION:
        return dpari_model_choice(&model->attention, s, k, n, dpari_attention_name,
                                  DPAR_MODEL_ATTENTION_END, why);
    case DPARI_M_STACK:
        return dpari_stack_read(model, s + k, n - k)
                   ? DPAR_OK
                   : dpari_model_one_of(s, n, why, dpari_stack_name, DPAR_MODEL_STACK_END);
    case DPARI_M_PATTERN: return dpari_model_pattern(model, s, k, n, why);
    case DPARI_M_LOSS:
        return dpari_model_choice(&model->loss, s, k, n, dpari_loss_name, DPAR_MODEL_LOSS_END, why);
    default: return dpari_model_integer(model, key, s, k, n, why);
    }
}

/* Reads one or more settings that are separated by commas. */
static dpar_status dpari_model_settings(dpar_model *model, const char *s, size_t n, dpar_why *why)
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
            return dpari_model_bad(s, n, why, "a setting (key=value) is missing next to a comma");
        }
        st = dpari_model_setting(model, s + at, k - at, seen, why);
        if (st != DPAR_OK) {
            return st;
        }
        at = k + 1;
    }
    return DPAR_OK;
}

/* Reads "FAMILY:settings". A grid begins with its extents. */
static dpar_status dpari_model_family(dpar_model *model, const char *s, size_t colon, size_t n,
                                      dpar_why *why)
{
    size_t at = colon + 1, k = at;
    for (model->family = 1; model->family < DPAR_MODEL_FAMILY_END; model->family++) {
        if (dpari_spells_any_case(s, colon, dpari_family_name(model->family))) {
            break;
        }
    }
    if (model->family == DPAR_MODEL_FAMILY_END) {
        return dpari_model_one_of(s, colon, why, dpari_family_name, DPAR_MODEL_FAMILY_END);
    }
    if (model->family != DPAR_MODEL_FAMILY_GRID) {
        return at < n ? dpari_model_settings(model, s + at, n - at, why) : DPAR_OK;
    }
    while (k < n && s[k] != ',') {
        k++;
    }
    model->extent[0] = model->extent[1] = model->extent[2] = 1;
    model->dims = dpari_model_extents(s + at, k - at, model->extent, 3);
    if (model->dims == 0) {
        return dpari_model_bad(
            s + at, k - at, why,
            "'%.*s': a grid has 1 to 3 extents of 1 to 2147483647, as in 1440x720x100");
    }
    return k < n ? dpari_model_settings(model, s + k + 1, n - k - 1, why) : DPAR_OK;
}

/* Appends "; models of that size are 'llama-13b', 'mpt-13b'" with up to three presets whose names
 * end in "-" and the given letters. Returns their number. */
static DPARI_COLD int32_t dpari_model_sizes(dpar_text *text, const char *s, size_t n)
{
    const char *row;
    int32_t found = 0;
    for (row = dpari_preset_next(NULL); row != NULL && found < 3; row = dpari_preset_next(row)) {
        const size_t m = dpari_length(row);
        if (n < m && row[m - n - 1] == '-' && dpari_spells_any_case(s, n, row + m - n)) {
            dpari_text_print(text, "%s'%s'", found > 0 ? ", " : "; models of that size are ", row);
            found++;
        }
    }
    return found;
}

/* Reports an unknown model. If the name is only a size, such as "13B", the message lists models of
 * that size. Otherwise it suggests the nearest name, unless more than half of its letters differ.
 */
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
        dpar_text_put(&t, ", and no name is similar: plan --list shows all");
    }
    return dpari_repeat(DPAR_E_UNKNOWN, why, text);
}

/* Reads a preset. */
static dpar_status dpari_model_named(dpar_model *model, const char *s, size_t n, dpar_why *why)
{
    const char *row, *best = dpari_preset_next(NULL);
    for (row = best; row != NULL; row = dpari_preset_next(row)) {
        if (dpari_spells_any_case(s, n, row)) {
            const char *text = dpari_behind(row);
            dpar_status st = dpar_model_read(model, text, dpari_length(text), why);
            dpari_copy_text(model->name, sizeof(model->name), row, 20);
            return st;
        }
        if (dpari_unlike(s, n, row) < dpari_unlike(s, n, best)) {
            best = row;
        }
    }
    return dpari_model_unknown(s, n, best, why);
}

DPAR_API DPARI_COLD dpar_status dpar_model_find(dpar_model *model, const char *name, dpar_why *why)
{
    dpar_model fresh;
    dpar_status st;
    dpari_zero(&fresh, sizeof(fresh));
    st = dpari_model_named(&fresh, name, dpari_length(name), why);
    if (st == DPAR_OK) {
        *model = fresh;
    }
    return st;
}

/* ---- config.json ----------------------------------------------------------------------------- */

/* Members of a file that are not fields of dpar_model. Their keys follow those of the fields, so
 * that one array holds the values of both: first the numbers, then the members that are true or
 * false, then the lists and words, which have no value. */
enum {
    DPARI_C_SHARED_COUNT = DPARI_M_KEYS, /* shared experts; each is as wide as a routed one */
    DPARI_C_IMAGE_SIDE,                  /* pixels along a side of a square image */
    DPARI_C_NEW_KV,    /* key-value heads; Falcon has them if new_decoder_architecture */
    DPARI_C_EXPANSION, /* ffn / hidden, in 1/10000 */
    DPARI_C_DENSE_FFN, /* ffn of dense layers, in files whose intermediate_size is an expert's */
    DPARI_C_ENCODER_LAYERS,
    DPARI_C_EMBED_DIM,        /* width of a tower; also the hidden size, if that is not given */
    DPARI_C_TOKEN_TYPES,      /* token types, each of which has a row like a position */
    DPARI_C_POSITION_BUCKETS, /* DeBERTa: half of the rows of relative positions */
    DPARI_C_SOURCE_POSITIONS, /* Whisper: positions of the encoder */
    DPARI_C_MEL_BINS,         /* Whisper: channels of the input */
    DPARI_C_PADDED_VOCAB,
    DPARI_C_EXPAND,        /* channels of a scan / hidden */
    DPARI_C_INNER,         /* channels of a scan */
    DPARI_C_MULTIPLE_OF,   /* Meta's params.json: ffn is a multiple of it */
    DPARI_C_FFN_TIMES,     /* Meta's params.json: factor of ffn, in 1/10000 */
    DPARI_C_PERIOD,        /* one layer in each such number of layers has (full) attention */
    DPARI_C_PERIOD_OFFSET, /* the first such layer */
    DPARI_C_MERGE,         /* side of the square of patches that become one token */
    DPARI_C_FRAMES,        /* frames of a patch */
    DPARI_C_TOWER_POSITIONS,
    DPARI_C_MORE_LAYERS,    /* layers of a tower in addition to its number of layers */
    DPARI_C_PROJECTION_DIM, /* width of the output of CLIP's models with projection */
    DPARI_C_TOWER_OUT,      /* width of a tower's output */
    DPARI_C_FLAGS,
    DPARI_C_TIED = DPARI_C_FLAGS,
    DPARI_C_NO_BIAS,
    DPARI_C_BIAS,
    DPARI_C_ONE_KV, /* multi-query attention: one key-value head */
    DPARI_C_NEW_DECODER,
    DPARI_C_GATED, /* T5 v1.1: the feed-forward parts are gated */
    DPARI_C_USES_WINDOW,
    DPARI_C_Q_GATE,
    DPARI_C_BIASED_INPUT, /* DeBERTa: has absolute positions too */
    DPARI_C_USE_MLA,
    DPARI_C_ADJUSTS_FFN,
    DPARI_C_KEYS,
    DPARI_C_MIX = DPARI_C_KEYS, /* a word per layer: how it mixes tokens */
    DPARI_C_FULL_AT_LAYER,      /* a number per layer: 1 for full attention, 0 for linear */
    DPARI_C_WINDOW_AT_LAYER,    /* a number per layer: 1 for a window, 0 for full attention */
    DPARI_C_FEED,               /* a word per layer: dense, or experts */
    DPARI_C_FULL_INDICES,       /* indices of the layers with attention */
    DPARI_C_DENSE_INDICES,      /* indices of the dense layers */
    DPARI_C_DEEPSTACK,          /* one entry for each additional projector of a tower */
    DPARI_C_TYPE,
    DPARI_C_ARCHITECTURE,
    DPARI_C_ACTIVATION,
    DPARI_C_PROJECTION, /* T5's feed_forward_proj */
    DPARI_C_ADAPTER,
    DPARI_C_ALL
};

/* The names of members in config.json files of transformers, of Meta and of others. Each entry
 * lists all names for one key, separated by blanks; messages use the first one. dpari_config_key
 * has the keys in the same order. */
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
                                           DPARI_C_SHARED_COUNT,
                                           DPARI_C_IMAGE_SIDE,
                                           DPARI_C_NEW_KV,
                                           DPARI_C_EXPANSION,
                                           DPARI_C_DENSE_FFN,
                                           DPARI_C_ENCODER_LAYERS,
                                           DPARI_C_EMBED_DIM,
                                           DPARI_C_TOKEN_TYPES,
                                           DPARI_C_POSITION_BUCKETS,
                                           DPARI_C_SOURCE_POSITIONS,
                                           DPARI_C_MEL_BINS,
                                           DPARI_C_PADDED_VOCAB,
                                           DPARI_C_EXPAND,
                                           DPARI_C_INNER,
                                           DPARI_C_MULTIPLE_OF,
                                           DPARI_C_FFN_TIMES,
                                           DPARI_C_PERIOD,
                                           DPARI_C_PERIOD_OFFSET,
                                           DPARI_C_MERGE,
                                           DPARI_C_FRAMES,
                                           DPARI_C_TOWER_POSITIONS,
                                           DPARI_C_MORE_LAYERS,
                                           DPARI_C_PROJECTION_DIM,
                                           DPARI_C_TOWER_OUT,
                                           DPARI_C_TIED,
                                           DPARI_C_NO_BIAS,
                                           DPARI_C_BIAS,
                                           DPARI_C_ONE_KV,
                                           DPARI_C_NEW_DECODER,
                                           DPARI_C_GATED,
                                           DPARI_C_USES_WINDOW,
                                           DPARI_C_Q_GATE,
                                           DPARI_C_BIASED_INPUT,
                                           DPARI_C_USE_MLA,
                                           DPARI_C_ADJUSTS_FFN,
                                           DPARI_M_ASIDE,
                                           DPARI_M_ASIDE_VOCAB,
                                           DPARI_C_MIX,
                                           DPARI_C_FULL_AT_LAYER,
                                           DPARI_C_WINDOW_AT_LAYER,
                                           DPARI_C_FEED,
                                           DPARI_C_FULL_INDICES,
                                           DPARI_C_DENSE_INDICES,
                                           DPARI_C_DEEPSTACK,
                                           DPARI_C_TYPE,
                                           DPARI_C_ARCHITECTURE,
                                           DPARI_C_ACTIVATION,
                                           DPARI_C_PROJECTION,
                                           DPARI_C_ADAPTER};

/* What a model_type implies if the file does not say it. Each row has the names of types, separated
 * by blanks, and a text in the form that users write: the family that has the shapes of these
 * types, and settings. They come from transformers' configuration classes or, for types that
 * transformers does not have, from the code that came with the weights. Two values have a special
 * meaning: shared_ffn=1 is one shared expert as wide as a routed one, and v_width=1 says that the
 * value is the key. */
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
/* What the model_type of a whole multi-modal model implies: its projector and, for files that do
 * not describe it, the vision tower. tower_inner is the width inside the projector: -1 if it is
 * that of the merged patches, -2 if it is that of the language model, -3 if tower_params counts the
 * projector, and -4 for GLM-4V's. */
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

/* The objects of a file whose members are read: the outermost one, the language model of a
 * multi-modal model, its towers, and the description of linear attention. Then the values that are
 * not objects of this kind: one that is skipped, a list, and id2label, which has a member for each
 * class of the output. */
enum {
    DPARI_OBJECT_WHOLE,
    DPARI_OBJECT_TEXT,
    DPARI_OBJECT_VISION,
    DPARI_OBJECT_AUDIO,
    DPARI_OBJECT_LINEAR,
    DPARI_OBJECTS,
    DPARI_OBJECT_SKIPPED = DPARI_OBJECTS,
    DPARI_OBJECT_LIST,
    DPARI_OBJECT_LABELS
};

enum { DPARI_MAX_LISTED = 512 }; /* most layers that a list may describe */

/* A part of the file. */
typedef struct dpari_slice {
    const char *text;
    size_t length;
} dpari_slice;

/* What the reader has collected from a file so far. */
typedef struct dpari_config_state {
    int32_t value[DPARI_OBJECTS][DPARI_C_KEYS]; /* by key; -1 if the object does not have it */
    dpari_slice type[DPARI_OBJECTS];            /* model_type, or diffusers' _class_name */
    dpari_slice architecture[DPARI_OBJECTS], activation[DPARI_OBJECTS];
    int8_t object[66];          /* DPARI_OBJECT_* of the members at each depth */
    int8_t seen[DPARI_OBJECTS]; /* 1 if the file has the object */
    /* the list that is being read: its key, its object, its name, and its elements so far */
    int32_t list_key, list_object;
    dpari_slice list_name;
    double list_sum, list_low, list_high;
    int32_t list_count;
    /* the kind of each layer, as lists give it */
    char mix[DPARI_MAX_LISTED];    /* letters as in dpar_model.pattern */
    int8_t feed[DPARI_MAX_LISTED]; /* DPAR_MODEL_FFN_* */
    int32_t mixes, feeds;          /* their numbers, which may exceed DPARI_MAX_LISTED */
    int32_t labels;                /* classes of the output */
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

/* Returns the value in [low, high] that is nearest to v. */
static int32_t dpari_config_within(int64_t v, int64_t low, int64_t high)
{
    return (int32_t)dpari_most(low, dpari_least(v, high));
}

/* Returns the index of the word [s, s + n) in a list of words separated by blanks, or -1 if it is
 * not in the list. */
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

/* Returns 1 if a slice is one of the words of a list, otherwise 0. */
static int dpari_slice_is(const dpari_slice *s, const char *list)
{
    return s->length > 0 && dpari_word_in_list(list, s->text, s->length) >= 0;
}

/* Returns 1 if the n letters at s contain `part`, otherwise 0. */
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

/* Returns the settings of a type in one of the tables, or NULL if it is not in the table. */
static const char *dpari_type_row(const char *row, const dpari_slice *type)
{
    for (; *row != 0; row = dpari_behind(dpari_behind(row))) {
        if (dpari_slice_is(type, row)) {
            return dpari_behind(row);
        }
    }
    return NULL;
}

/* Returns what a model_type implies, or NULL if the type is not known. */
DPARI_STATIC_NOINLINE const char *dpari_type_find(const dpari_slice *type)
{
    const char *row = dpari_type_row(dpari_types, type);
    return row != NULL ? row : dpari_type_row(dpari_types_more, type);
}

/* Applies a row of dpari_types. It cannot fail, because the rows are correct. */
static void dpari_type_read(dpar_model *model, const char *row)
{
    size_t n = 0;
    while (row[n] != ':') {
        n++;
    }
    (void)dpari_model_family(model, row, n, dpari_length(row), NULL);
}

/* Adds a line to the note. */
static DPARI_PRINTF(2, 3) void dpari_config_note(dpari_config_state *state, const char *form, ...)
{
    va_list list;
    va_start(list, form);
    dpari_text_print_list(&state->note, form, &list);
    va_end(list);
    dpari_text_char(&state->note, '\n');
}

/* Returns how many characters of a name a message or a note shows. */
static int32_t dpari_config_shown(size_t n)
{
    return (int32_t)(n < 60 ? n : 60);
}

/* Reports a member whose value cannot be used. */
static dpar_status dpari_config_bad(const dpari_slice *name, dpar_why *why, const char *form)
{
    return dpari_say(DPAR_E_PARSE, why, form, dpari_config_shown(name->length), name->text);
}

/* Returns the key of a member, or -1 if its name is not known. */
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
        *value = dpari_config_within((int64_t)state->list_high, 0, 65536);
        return;
    }
    *value =
        dpari_config_within((int64_t)(state->list_sum / state->list_count + 0.5), 0, INT32_MAX);
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

/* Reads one item of the file: a member of an object, an element of a list, or the end of an object
 * or list. Objects and lists that are not needed are skipped with all that they contain. */
DPARI_STATIC_NOINLINE dpar_status dpari_config_member(dpari_config_state *state,
                                                      const dpari_json_item *item, dpar_why *why)
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
static dpar_status dpari_config_kind(dpari_config_state *state, int32_t object, dpar_model *model,
                                     dpar_why *why)
{
    const int32_t *value = state->value[object];
    dpari_slice type = state->type[object], other;
    const char *row;
    int32_t shown;
    if (type.length == 0) {
        type = state->type[DPARI_OBJECT_WHOLE];
    }
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
    const char *names, *end;
    int32_t i, k, noted = 0;
    for (i = 0; i < 6; i++) {
        int32_t v = *dpari_model_field(&copy, key[i]);
        if (value[key[i]] >= 0 || v < 1 ||
            (key[i] == DPARI_M_FFN && model->family > DPAR_MODEL_FAMILY_LLAMA) ||
            (key[i] == DPARI_M_VOCAB && value[DPARI_C_PADDED_VOCAB] > 0)) {
            continue;
        }
        names = dpari_config_names;
        for (k = 0; dpari_config_key[k] != key[i]; k++) {
            names = dpari_behind(names);
        }
        for (end = names; *end != 0 && *end != ' '; end++) {
        }
        dpar_text_put(&state->note, noted == 0 ? "not in the file, so its type decides: " : ", ");
        noted++;
        dpari_text_slice(&state->note, names, (size_t)(end - names));
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
DPARI_STATIC_NOINLINE void dpari_config_widths(dpar_model *model, const dpari_config_state *state,
                                               const int32_t *value, const dpari_slice *type)
{
    int32_t inner;
    model->ffn = dpari_config_ffn(value, model->hidden, model->ffn);
    if (value[DPARI_C_MULTIPLE_OF] > 0 && value[DPARI_M_FFN] < 1 && model->hidden < 100000000) {
        /* Meta's rule: 8/3 of the hidden size, times a factor, rounded up to a multiple */
        int64_t width = 8 * (int64_t)model->hidden / 3, unit = value[DPARI_C_MULTIPLE_OF];
        if (value[DPARI_C_FFN_TIMES] > 0) {
            width = width * value[DPARI_C_FFN_TIMES] / 10000;
        }
        model->ffn = dpari_config_within((width + unit - 1) / unit * unit, 0, INT32_MAX);
    }
    if (value[DPARI_C_ADJUSTS_FFN] > 0) { /* two thirds, rounded up to a multiple of 256 */
        model->ffn =
            dpari_config_within((2 * (int64_t)model->ffn / 3 + 255) / 256 * 256, 0, INT32_MAX);
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
    const char *whole = dpari_type_row(dpari_towers, &state->type[DPARI_OBJECT_WHOLE]), *row;
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
    model->tower_layers = tower.layers + dpari_config_within(value[DPARI_C_MORE_LAYERS], 0, 100000);
    model->tower_hidden = dpari_config_given(value[DPARI_C_EMBED_DIM], tower.hidden);
    model->tower_heads = dpari_config_given(tower.heads, 16);
    model->tower_ffn = dpari_config_ffn(value, model->tower_hidden, tower.ffn);
    model->tower_gated = tower.gated > 0 || dpari_config_gates(&state->activation[object]);
    side = dpari_config_given(value[DPARI_C_IMAGE_SIDE], tower.image[0]);
    tower.channels = dpari_config_given(tower.channels, 3);
    if (tower.patch > 0 && tower.patch < 1000 && tower.channels < 1000) {
        model->tower_patch = tower.patch * tower.patch * tower.channels *
                             dpari_config_within(value[DPARI_C_FRAMES], 1, 100);
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
    switch (model->tower_inner) { /* dpari_towers explains the negative values */
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
        model->positions = 2 * dpari_config_within(model->seq, 0, 1000000);
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
            model->positions +=
                2 * dpari_config_within(value[DPARI_C_POSITION_BUCKETS], 0, 1000000);
        }
        model->positions += dpari_config_within(value[DPARI_C_TOKEN_TYPES],
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
                       dpari_type_row(dpari_towers, &state->type[DPARI_OBJECT_WHOLE]) != NULL;
    if ((vision || audio) && model->family <= DPAR_MODEL_FAMILY_LLAMA) {
        dpari_config_tower(model, state, vision ? DPARI_OBJECT_VISION : DPARI_OBJECT_AUDIO);
    }
    if (vision && audio) {
        dpari_config_note(state, "'audio_config': its tower is not included");
    }
}

/* Makes the model from the members that were collected. Later steps use the fields that earlier
 * steps set. */
DPARI_STATIC_NOINLINE dpar_status dpari_config_finish(dpar_model *model, dpari_config_state *state,
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
    st = dpari_config_kind(state, object, &m, why);
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

/* Reads a config.json. */
static dpar_status dpari_model_config(dpar_model *model, const char *json, size_t bytes,
                                      dpar_why *why)
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

/* ---- any of these texts ---------------------------------------------------------------------- */

/* Returns 1 if a text begins like JSON, after a byte order mark and blanks, otherwise 0. */
static int dpari_model_is_json(const char *text, size_t bytes)
{
    size_t n = bytes, i = 0;
    text += dpari_text_mark(text, bytes, &n);
    while (i < n && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n')) {
        i++;
    }
    return i < n && (text[i] == '{' || text[i] == '[');
}

/* Reads the text of a config.json. Settings may follow the last brace, after a comma. */
static dpar_status dpari_model_file(dpar_model *model, const char *text, size_t bytes,
                                    dpar_why *why)
{
    dpar_status st;
    size_t end = bytes;
    while (end > 0 && text[end - 1] != '}') {
        end--;
    }
    if (end == 0 || end == bytes || text[end] != ',') {
        return dpari_model_config(model, text, bytes, why);
    }
    st = dpari_model_config(model, text, end, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_model_settings(model, text + end + 1, bytes - end - 1, why);
}

/* Reads "FAMILY:settings" or "PRESET,settings". */
static dpar_status dpari_model_text(dpar_model *model, const char *text, size_t bytes,
                                    dpar_why *why)
{
    dpar_status st;
    size_t first = 0, colon = 0;
    if (bytes == 0) {
        return dpari_say(DPAR_E_PARSE, why,
                         "no model: give a preset (llama-3-8b), FAMILY:settings or a config.json");
    }
    while (first < bytes && text[first] != ',') {
        first++;
    }
    while (colon < first && text[colon] != ':') {
        colon++;
    }
    if (colon < first) {
        st = dpari_model_family(model, text, colon, bytes, why);
        dpari_copy_text(model->name, sizeof(model->name), text, colon);
        return st;
    }
    st = dpari_model_named(model, text, first, why);
    if (st != DPAR_OK || first == bytes) {
        return st;
    }
    return dpari_model_settings(model, text + first + 1, bytes - first - 1, why);
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
