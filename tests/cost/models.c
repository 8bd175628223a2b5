/* SPDX-License-Identifier: MIT-0 */
/* Tests the readers of models: presets, settings, config.json, and what each refuses. Run with:
 * tests/run test cost. */
#include "dpar_cost.h"

#include <stdlib.h>

#include "check.h"

static dpar_workload w;

static dpar_status build(const char *text, dpar_why *why)
{
    dpar_model m;
    dpar_status st = dpar_model_read(&m, text, strlen(text), why);
    return st == DPAR_OK ? dpar_workload_init(&w, &m, 0, why) : st;
}

static double expert_params(int layer)
{
    double sum = 0.0;
    int i;
    for (i = 0; i < w.layer[layer].ops; i++) {
        const dpari_layer_op *op = &w.op[w.layer[layer].first + i];
        sum += op->cut >= DPARI_CUT_EXPERT ? op->params : 0.0;
    }
    return sum;
}

/* Checks that every preset builds under its own name, in lower case, and that no name occurs twice;
 * SC21's models are called by their size. */
static void test_presets(void)
{
    int32_t i, k;
    dpar_model m;
    dpar_why why;
    for (i = 0; dpar_model_name(i) != NULL; i++) {
        const char *name = dpar_model_name(i);
        CHECK_INT(dpar_model_find(&m, name, &why), DPAR_OK);
        CHECK_TEXT(m.name, name);
        CHECK(strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == strlen(name));
        CHECK_INT(dpar_workload_init(&w, &m, 0, &why), DPAR_OK);
        CHECK_INT(dpari_workload_check(&w, &why), DPAR_OK);
        for (k = 0; k < i; k++) {
            CHECK(strcmp(name, dpar_model_name(k)) != 0);
        }
        if (strncmp(name, "gpt-", 4) == 0 && name[4] != 'o') {
            CHECK_NEAR(w.params, 1e9 * atof(name + 4), 0.03);
        }
    }
    CHECK(i >= 68);
    CHECK(dpar_model_name(-1) == NULL);
    CHECK(dpar_model_name(i + 1) == NULL);
    CHECK_INT(dpar_model_find(&m, "Llama-3-8B", &why), DPAR_OK);
    CHECK_TEXT(m.name, "llama-3-8b");
}

/* Checks what each key sets. */
static void test_text(void)
{
    static const char all[] =
        "gpt:layers=1,hidden=2,heads=3,kv_heads=4,head_width=5,ffn=6,vocab=7,seq=32k,tied=1,"
        "biases=-1,rotary=1,experts=8,topk=9,expert_ffn=10,shared_ffn=11,dense_layers=12,"
        "q_lora=13,kv_lora=14,rope_width=15,qk_width=16,v_width=17,decoder_layers=18,patch=19,"
        "channels=20,out_channels=21,levels=22,blocks_per_level=23,kernel=24,fields=25,halo=26,"
        "element=4,inference=1,capacity=1.25,flops_per_cell=2.5,bytes_per_cell=1e3,"
        "image=27x28,attention=flash1,stack=torch";
    dpar_model m;
    dpar_why why;
    CHECK_INT(dpar_model_read(&m, all, sizeof all - 1, &why), DPAR_OK);
    CHECK_INT(m.family, DPAR_MODEL_FAMILY_GPT);
    CHECK_TEXT(m.name, "gpt");
    CHECK_INT(m.layers, 1);
    CHECK(m.hidden == 2 && m.heads == 3 && m.kv_heads == 4 && m.head_width == 5 && m.ffn == 6);
    CHECK(m.vocab == 7 && m.seq == 32768 && m.tied == 1 && m.biases == -1 && m.rotary == 1);
    CHECK(m.experts == 8 && m.topk == 9 && m.expert_ffn == 10 && m.shared_ffn == 11);
    CHECK(m.dense_layers == 12 && m.q_lora == 13 && m.kv_lora == 14 && m.rope_width == 15);
    CHECK(m.qk_width == 16 && m.v_width == 17 && m.decoder_layers == 18 && m.patch == 19);
    CHECK(m.channels == 20 && m.out_channels == 21 && m.levels == 22);
    CHECK(m.blocks_per_level == 23 && m.kernel == 24 && m.fields == 25 && m.halo == 26);
    CHECK(m.element == 4 && m.inference == 1 && m.image[0] == 27 && m.image[1] == 28);
    CHECK_NEAR(m.capacity, 1.25, 0);
    CHECK_NEAR(m.flops_per_cell, 2.5, 0);
    CHECK_NEAR(m.bytes_per_cell, 1000.0, 0);
    CHECK_INT(m.attention, DPAR_MODEL_ATTENTION_FLASH1);
    CHECK_INT(m.stack, DPAR_MODEL_STACK_TORCH);
    CHECK_INT(dpar_model_read(&m, "resnet-50,image=448", 19, &why), DPAR_OK);
    CHECK(m.image[0] == 448 && m.image[1] == 448 && m.channels == 3);
    CHECK_INT(dpar_model_read(&m, "grid:1440x720x100,fields=5,halo=2", 33, &why), DPAR_OK);
    CHECK(m.dims == 3 && m.extent[0] == 1440 && m.extent[1] == 720 && m.extent[2] == 100);
    CHECK_INT(dpar_model_read(&m, "grid:7", 6, &why), DPAR_OK);
    CHECK(m.dims == 1 && m.extent[0] == 7 && m.extent[1] == 1 && m.extent[2] == 1);
}

/* Checks layers that do not exist, and settings that no model has. */
static void test_edges(void)
{
    static const char *const none[] = {"grid:64x64,fields=0", "grid:64x64,halo=0",
                                       "llama-3-8b,ffn=0", "llama-3-8b,seq=0", "unet-50m,levels=0"};
    dpar_why why;
    dpar_model m;
    size_t i;
    CHECK_INT(build("llama-3-8b", &why), DPAR_OK);
    CHECK_NEAR(dpari_layer_params(&w, -1) + dpari_layer_params(&w, 1000), 0.0, 0);
    CHECK_NEAR(dpari_layer_saved(&w, -1, 0) + dpari_layer_saved(&w, 1000, 0), 0.0, 0);
    for (i = 0; i < sizeof none / sizeof none[0]; i++) {
        CHECK_INT(dpar_model_read(&m, none[i], strlen(none[i]), &why), DPAR_E_PARSE);
        CHECK(strstr(why.text, "1 to") != NULL);
    }
    CHECK_INT(build("grid:8x8,halo=9", &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "wider than the grid") != NULL);
    CHECK_INT(build("grid:8x4,halo=8", &why), DPAR_OK);
}

static void test_refusals(void)
{
    static const char *const bad[] = {
        "",
        "nothing",
        "gpt:",
        "gpt:layers=0,hidden=64,heads=1,vocab=10,seq=8",
        "gpt:layers=2,hidden=64,heads=0,vocab=10,seq=8",
        "gpt:layers=2,hidden=64,heads=7,vocab=10,seq=8",
        "gpt:layers=2,hidden=-64,heads=1",
        "gpt:layers=2,hidden=99999999999,heads=1",
        "gpt:layers=1e3",
        "gpt:colour=red",
        "gpt:layers=",
        "gpt:layers=nan",
        "llama-3-8b,kv_heads=5",
        "llama-3-8b,attention=slow",
        "llama-3-8b,stack=mine",
        "grid:",
        "grid:0x5",
        "grid:5x",
        "grid:5xx5",
        "grid:2x2x2x2",
        "grid:-5x5",
        "unet:image=0x0,hidden=64,levels=3,channels=3",
        "unet:image=64x64,hidden=64,levels=99,channels=3",
        "vit:layers=2,hidden=64,heads=2,image=8x8,patch=16,channels=3",
        "gpt:layers=2147483647,hidden=2147483647,heads=1,vocab=2147483647,seq=2147483647",
        "mixtral-8x7b,topk=9",
        "llama-3-8b,seq=0",
        "gpt:element=3,layers=2,hidden=64,heads=1,vocab=10,seq=8",
        "grid:5x5,flops_per_cell=nan",
        "mixtral-8x7b,capacity=inf",
        "resnet:hidden=64,image=8x8,channels=3"};
    dpar_why why;
    size_t i;
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        why.text[0] = 0;
        if (build(bad[i], &why) == DPAR_OK) {
            printf("accepted: %s\n", bad[i]);
        }
        CHECK(build(bad[i], &why) < 0);
        CHECK(strlen(why.text) > 10);
    }
}

/* Checks the messages, which name the wrong word and the allowed ones. A refused text changes
 * nothing. */
static void test_sentences(void)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"lama-3-70b", "unknown model 'lama-3-70b'; the nearest is 'llama-3-70b'"},
        {"13B",
         "unknown model '13B'; models of that size are 'mpt-13b', 'llama-13b', 'llama-2-13b'"},
        {"7b", "unknown model '7b'; models of that size are 'mpt-7b', 'llama-7b', 'llama-2-7b'"},
        {"nosuch", "unknown model 'nosuch', and no name is similar: plan --list shows all"},
        {"GPT3", "unknown model 'GPT3'; the nearest is 'gpt3-175b'"},
        {"mixtral", "unknown model 'mixtral'; the nearest is 'mixtral-8x7b'"},
        {"llama:layer=3", "no setting of a model is called 'layer'; the nearest is 'layers'"},
        {"llama:moe_topk=3", "no setting of a model is called 'moe_topk'; the nearest is 'topk'"},
        {"llama-3-8b,seq", "'seq': key=value was expected"},
        {"llama-3-8b,seq=", "'seq=': a whole number of 1 to 2147483647 was expected"},
        {"llama-3-8b,seq=k", "'seq=k': a whole number of 1 to 2147483647 was expected"},
        {"llama-3-8b,seq=-5", "'seq=-5': a whole number of 1 to 2147483647 was expected"},
        {"llama-3-8b,seq=2097152k",
         "'seq=2097152k': a whole number of 1 to 2147483647 was expected"},
        {"llama-3-8b,vocab=32k", "'vocab=32k': a whole number of 1 to 2147483647 was expected"},
        {"llama-3-8b,ffn=2147483648",
         "'ffn=2147483648': a whole number of 1 to 2147483647 was expected"},
        {"llama-3-8b,tied=2", "'tied=2': a whole number of 0 to 1 was expected"},
        {"llama-3-8b,biases=-2", "'biases=-2': a whole number of -1 to 1 was expected"},
        {"llama-3-8b,attention=slow",
         "'attention=slow': one of unfused, flash1, flash was expected"},
        {"llama-3-8b,stack=jax", "'stack=jax': one of megatron, core, torch, compiled, "
                                 "llm-foundry, torchtitan, nanotron, nemo, deepep, megatron@2021, "
                                 "nemo@2024, maxtext was expected"},
        {"llama-3-8b,stack=core@24", "'stack=core@24': one of megatron, core, torch, compiled, "
                                     "llm-foundry, torchtitan, nanotron, nemo, deepep, "
                                     "megatron@2021, nemo@2024, maxtext was expected"},
        {"llama-3-8b,capacity=0.5",
         "'capacity=0.5': a number of at least 1, because the fullest expert has at least the mean "
         "load, was expected"},
        {"grid:5x5,flops_per_cell=1e16",
         "'flops_per_cell=1e16': a number of 0 to 1e15 was expected"},
        {"grid:5x5,bytes_per_cell=", "'bytes_per_cell=': a number of 0 to 1e15 was expected"},
        {"vit-l,image=4x4x4",
         "'image=4x4x4': a side or HEIGHTxWIDTH, such as 224 or 720x1440, was expected"},
        {"llama-3-8b,,seq=4", "',seq=4': a setting (key=value) is missing next to a comma"},
        {"llama-3-8b,", "'': a setting (key=value) is missing next to a comma"},
        {"lama:layers=3",
         "'lama': one of gpt, llama, vit, dit, t5, resnet, unet, grid was expected"},
        {"grid:1e3x5", "'1e3x5': a grid of 1 to 3 extents of 1 to 2147483647, such as 1440x720x100, was expected"},
        {"grid:99999999999x5",
         "'99999999999x5': a grid of 1 to 3 extents of 1 to 2147483647, such as 1440x720x100, was "
         "expected"},
        {"", "no model: give a preset (llama-3-8b), FAMILY:settings or a config.json"}};
    dpar_model m, before;
    dpar_why why;
    size_t i;
    memset(&m, 7, sizeof m);
    memset(&before, 7, sizeof before);
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(dpar_model_read(&m, bad[i].text, strlen(bad[i].text), &why) < 0);
        CHECK_TEXT(why.text, bad[i].says);
        CHECK(dpar_model_read(&m, bad[i].text, strlen(bad[i].text), NULL) < 0);
    }
    CHECK_INT(dpar_model_find(&m, "nothing of the kind, and very long indeed", &why),
              DPAR_E_UNKNOWN);
    CHECK(memcmp(&m, &before, sizeof m) == 0);
}

static dpar_status config(const char *json, dpar_why *why)
{
    dpar_model m;
    dpar_status st = dpari_model_config(&m, json, strlen(json), why);
    return st == DPAR_OK ? dpar_workload_init(&w, &m, 0, why) : st;
}

static char *file_of(const char *name)
{
    static char text[65536];
    char path[128];
    size_t n;
    FILE *f;
    snprintf(path, sizeof path, "tests/data/configs/%s.json", name);
    f = fopen(path, "rb");
    CHECK(f != NULL);
    n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = 0;
    if (f != NULL) {
        fclose(f);
    }
    return text;
}

/* Compares counts as in test_parameters; OPT has 2 more rows of positions, Falcon one norm per
 * layer with a bias. DiT's embeddings of time and class are left out. */
static void test_config(void)
{
    static const struct {
        const char *file;
        double params, within;
        int family, seq;
    } real[] = {{"llama-2-7b", 6738415616.0, 0, DPAR_MODEL_FAMILY_LLAMA, 4096},
                {"llama-3-8b", 8030261248.0, 0, DPAR_MODEL_FAMILY_LLAMA, 8192},
                {"llama-3-70b", 70553706496.0, 0, DPAR_MODEL_FAMILY_LLAMA, 8192},
                {"llama-3.1-405b", 405853388800.0, 0, DPAR_MODEL_FAMILY_LLAMA, 8192},
                {"mistral-7b", 7241732096.0, 0, DPAR_MODEL_FAMILY_LLAMA, 8192},
                {"mistral-small-3.1-24b", 24011361280.0, 1e-3, DPAR_MODEL_FAMILY_LLAMA, 8192},
                {"mixtral-8x7b", 46702792704.0, 0, DPAR_MODEL_FAMILY_LLAMA, 8192},
                {"mixtral-8x22b", 140620634112.0, 0, DPAR_MODEL_FAMILY_LLAMA, 8192},
                {"qwen1.5-moe-a2.7b", 14315784192.0, 2e-5, DPAR_MODEL_FAMILY_LLAMA, 8192},
                {"qwen2.5-72b", 72706203648.0, 2e-5, DPAR_MODEL_FAMILY_LLAMA, 8192},
                {"qwen3-32b", 32762123264.0, 1e-6, DPAR_MODEL_FAMILY_LLAMA, 8192},
                {"qwen3-235b-a22b", 235093634560.0, 1e-6, DPAR_MODEL_FAMILY_LLAMA, 8192},
                {"deepseek-v2", 235741434880.0, 0, DPAR_MODEL_FAMILY_LLAMA, 8192},
                {"deepseek-v3", 671026419200.0, 1e-7, DPAR_MODEL_FAMILY_LLAMA, 8192},
                {"gemma-2-9b", 9241705984.0, 5e-5, DPAR_MODEL_FAMILY_LLAMA, 8192},
                {"phi-3-mini", 3821079552.0, 0, DPAR_MODEL_FAMILY_LLAMA, 4096},
                {"gpt2", 124439808.0, 0, DPAR_MODEL_FAMILY_GPT, 1024},
                {"gpt-neox-20b", 20554567680.0, 0, DPAR_MODEL_FAMILY_GPT, 2048},
                {"pythia-6.9b", 6857302016.0, 0, DPAR_MODEL_FAMILY_GPT, 2048},
                {"mpt-7b", 6649286656.0, 0, DPAR_MODEL_FAMILY_GPT, 2048},
                {"opt-6.7b", 6658473984.0, 2e-6, DPAR_MODEL_FAMILY_GPT, 2048},
                {"falcon-7b", 6921720704.0, 1e-6, DPAR_MODEL_FAMILY_GPT, 2048},
                {"t5-large", 737668096.0, 1e-5, DPAR_MODEL_FAMILY_T5, 512},
                {"flan-t5-xl", 2849757184.0, 2e-6, DPAR_MODEL_FAMILY_T5, 512},
                {"vit-huge", 632404480.0, 0, DPAR_MODEL_FAMILY_VIT, 0},
                {"dit-xl-2-256", 675129632.0, 0.01, DPAR_MODEL_FAMILY_DIT, 0}};
    dpar_why why;
    dpar_model m;
    size_t i;
    for (i = 0; i < sizeof real / sizeof real[0]; i++) {
        const char *json = file_of(real[i].file);
        double within = real[i].within;
        CHECK_INT(dpari_model_config(&m, json, strlen(json), &why), DPAR_OK);
        CHECK_INT(dpar_workload_init(&w, &m, 0, &why), DPAR_OK);
        CHECK_INT(m.family, real[i].family);
        CHECK_INT(real[i].seq > 0 ? m.seq : 0, real[i].seq);
        if (!(fabs(w.params - real[i].params) <= within * real[i].params)) {
            printf("%s: %.0f, published %.0f\n", real[i].file, w.params, real[i].params);
        }
        CHECK_NEAR(w.params, real[i].params, within);
    }
    /* Nemotron-4 340B's report: squared ReLU, two matrices, 9.4B of embeddings and 331.6B of other
     * parameters; BLOOM's card: 176,247,271,424 and an unusual name for the width; a byte order
     * mark */
    CHECK_INT(config("\xEF\xBB\xBF{\"model_type\": \"nemotron\", \"hidden_act\": \"relu2\", "
                     "\"hidden_size\": 18432, \"num_hidden_layers\": 96, "
                     "\"num_attention_heads\": 96, \"num_key_value_heads\": 8, "
                     "\"intermediate_size\": 73728, \"vocab_size\": 256000}",
                     &why),
              DPAR_OK);
    CHECK_NEAR(w.params, 341.0e9, 1e-3);
    CHECK_INT(config("{\"model_type\": \"bloom\", \"n_embed\": 14336, \"n_layer\": 70, "
                     "\"num_attention_heads\": 112, \"vocab_size\": 250880, \"seq_length\": 2048}",
                     &why),
              DPAR_OK);
    CHECK_NEAR(w.params, 176247271424.0, 1e-4);
    /* the file and the preset agree */
    CHECK_INT(config(file_of("deepseek-v3"), &why), DPAR_OK);
    CHECK_NEAR(expert_params(2), 256.0 * 3 * 7168 * 2048, 0);
    CHECK_INT(w.layer[1].count, 3);
    CHECK_INT(w.layer[2].count, 58);
}

#define SHAPE "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"vocab_size\": 100"

/* Checks that members of the language model's object take precedence over the same members outside
 * it, in either order; other objects are ignored; null is the same as absent. */
static void test_config_objects(void)
{
    dpar_why why;
    dpar_model m;
    static const char *const same[] = {
        "{\"hidden_size\": 9, \"text_config\": {\"hidden_size\": 64, " SHAPE "}}",
        "{\"text_config\": {\"hidden_size\": 64, " SHAPE "}, \"hidden_size\": 9}",
        "{\"model_type\": \"bert\", \"language_config\": {\"model_type\": \"glm\", "
        "\"hidden_size\": 64, " SHAPE "}, \"vocab_size\": 7}",
        "{\"hidden_size\": 64, " SHAPE ", \"vision_config\": {\"hidden_size\": 9, \"a\": [1]}}",
        "{\"vision_config\": {\"text_config\": {\"hidden_size\": \"no\"}}, \"image_size\": [3, 4], "
        "\"head_dim\": null, \"hidden_size\": 64, " SHAPE ", \"torch_dtype\": \"float16\"}"};
    size_t i;
    for (i = 0; i < sizeof same / sizeof same[0]; i++) {
        CHECK_INT(dpari_model_config(&m, same[i], strlen(same[i]), &why), DPAR_OK);
        CHECK_INT(m.hidden, 64);
        CHECK_INT(m.layers, 2);
        CHECK_INT(m.heads, 4);
        CHECK_INT(m.vocab, 100);
        CHECK_INT(m.family, DPAR_MODEL_FAMILY_LLAMA);
        CHECK_INT(m.head_width, 0);
    }
}

static void test_config_refusals(void)
{
    static const struct {
        const char *json;
        dpar_status status;
        const char *says;
    } bad[] = {
        {"{\"hidden_size\": 64}", DPAR_E_PARSE,
         "num_hidden_layers (or n_layer, num_layers, n_layers) is missing"},
        {"{\"num_hidden_layers\": 2}", DPAR_E_PARSE,
         "hidden_size (or n_embd, n_embed, d_model) is missing"},
        {"{\"hidden_size\": 0, " SHAPE "}", DPAR_E_PARSE, "hidden_size"},
        {"{\"n_layer\": 2, \"n_embd\": 8, \"n_head\": 2}", DPAR_E_PARSE, "vocab_size is missing"},
        {"{\"n_layer\": 2, \"n_embd\": 8}", DPAR_E_PARSE, "num_attention_heads"},
        {"{\"_class_name\": \"Transformer2DModel\", \"hidden_size\": 64, " SHAPE "}", DPAR_E_PARSE,
         "patch_size"},
        {"{\"_class_name\": \"Transformer2DModel\", \"hidden_size\": 64, \"patch_size\": 8, " SHAPE
         "}",
         DPAR_E_PARSE, "image_size"},
        {"{\"hidden_size\": 1e18, \"num_hidden_layers\": 2}", DPAR_E_RANGE, "'hidden_size'"},
        {"{\"hidden_size\": 2147483648, " SHAPE "}", DPAR_E_RANGE, "'hidden_size'"},
        {"{\"hidden_size\": -64, " SHAPE "}", DPAR_E_RANGE, "'hidden_size'"},
        {"{\"hidden_size\": 64.5, " SHAPE "}", DPAR_E_RANGE, "'hidden_size'"},
        {"{\"hidden_size\": 1e999, " SHAPE "}", DPAR_E_RANGE, "'hidden_size'"},
        {"{\"hidden_size\": \"64\", " SHAPE "}", DPAR_E_PARSE, "'hidden_size' must be a number"},
        {"{\"hidden_size\": {}, " SHAPE "}", DPAR_E_PARSE, "'hidden_size' must be a number"},
        {"{\"hidden_size\": true, " SHAPE "}", DPAR_E_PARSE, "'hidden_size' must be a number"},
        {"{\"hidden_size\": 64, \"tie_word_embeddings\": 1, " SHAPE "}", DPAR_E_PARSE,
         "'tie_word_embeddings' must be true or false"},
        {"{\"model_type\": \"swin\", \"hidden_size\": 64, " SHAPE "}", DPAR_E_UNKNOWN,
         "model_type 'swin' is not known"},
        {"{\"peft_type\": \"LORA\", \"hidden_size\": 64, " SHAPE "}", DPAR_E_PARSE, "adapter"},
        {"{\"model_type\": \"newer\", \"hidden_act\": \"relu2\", \"num_key_value_heads\": 2, "
         "\"hidden_size\": 64, " SHAPE "}",
         DPAR_E_UNKNOWN, "model_type 'newer'"},
        {"[1, 2]", DPAR_E_PARSE, "num_hidden_layers"},
        {"7", DPAR_E_PARSE, "num_hidden_layers"},
        {"", DPAR_E_PARSE, "line 1"},
        {"{\"hidden_size\": 64, \"num_hidden", DPAR_E_PARSE, "line 1"},
        {"{\"hidden_size\": 64} {", DPAR_E_PARSE, "line 1"}};
    dpar_why why;
    dpar_model m, before;
    char deep[400];
    size_t i;
    memset(&m, 7, sizeof m);
    memset(&before, 7, sizeof before);
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *json = bad[i].json;
        why.text[0] = 0;
        CHECK_INT(dpari_model_config(&m, json, strlen(json), &why), bad[i].status);
        if (strstr(why.text, bad[i].says) == NULL) {
            printf("%s: %s\n", json, why.text);
        }
        CHECK(strstr(why.text, bad[i].says) != NULL);
        CHECK_INT(dpari_model_config(&m, json, strlen(json), NULL), bad[i].status);
    }
    memset(deep, '[', 300);
    deep[300] = 0;
    CHECK_INT(dpari_model_config(&m, deep, 300, &why), DPAR_E_PARSE);
    CHECK(strstr(why.text, "64 levels deep") != NULL);
    CHECK(memcmp(&m, &before, sizeof m) == 0);
}

int main(void)
{
    test_presets();
    test_text();
    test_edges();
    test_refusals();
    test_sentences();
    test_config();
    test_config_objects();
    test_config_refusals();
    return CHECK_DONE();
}
