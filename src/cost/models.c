/* SPDX-License-Identifier: MIT-0 */
/* The presets, and the reader of any description of a model: a preset's name, settings, or a
 * config.json. A preset is a row of a table whose text has the form that users write, so it is read
 * like any other text. */
#include "models.h"

#include "../base/base_private.h"
#include "../base/text.h"
#include "config_json.h"
#include "fields.h"
#include "model_fields.h"

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

/* ---- a preset by its name -------------------------------------------------------------------- */

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
            dpari_text_print(&t, "; the nearest is '%s'", best);
        } else {
            dpar_text_put(&t, ", and no name is similar: plan --list shows all");
        }
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
    const size_t first = dpari_until(text, bytes, ','), colon = dpari_until(text, first, ':');
    if (bytes == 0) {
        return dpari_say(DPAR_E_PARSE, why,
                         "no model: give a preset (llama-3-8b), FAMILY:settings or a config.json");
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
