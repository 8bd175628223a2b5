/* SPDX-License-Identifier: MIT-0 */
/* The tables of what a model_type of a config.json implies. config_json starts from these values.
 */
#include "config_types.h"

#include "../base/base_private.h"
#include "fields.h"
#include "model_fields.h"

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

DPARI_INTERNAL int dpari_same_bytes(const char *a, const char *b, size_t n)
{
    while (n > 0 && *a == *b) {
        a++;
        b++;
        n--;
    }
    return n == 0;
}

DPARI_INTERNAL int32_t dpari_word_in_list(const char *list, const char *s, size_t n)
{
    int32_t i = 0;
    while (*list != 0) {
        const size_t k = dpari_until(list, dpari_length(list), ' ');
        if (k == n && dpari_same_bytes(list, s, n)) {
            return i;
        }
        list += k + (list[k] == ' ');
        i++;
    }
    return -1;
}

DPARI_INTERNAL int dpari_slice_is(const dpari_slice *s, const char *list)
{
    return s->length > 0 && dpari_word_in_list(list, s->text, s->length) >= 0;
}

DPARI_INTERNAL int dpari_slice_holds(const char *s, size_t n, const char *part)
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

DPARI_INTERNAL const char *dpari_type_find(const dpari_slice *type)
{
    const char *row = dpari_type_row(dpari_types, type);
    return row != NULL ? row : dpari_type_row(dpari_types_more, type);
}

/* It cannot fail, because the rows are correct. */
DPARI_INTERNAL void dpari_type_read(dpar_model *model, const char *row)
{
    const size_t length = dpari_length(row);
    (void)dpari_model_family(model, row, dpari_until(row, length, ':'), length, NULL);
}

DPARI_INTERNAL const char *dpari_tower_find(const dpari_slice *type)
{
    return dpari_type_row(dpari_towers, type);
}
