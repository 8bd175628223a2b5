/* SPDX-License-Identifier: MIT-0 */
/* models and workload: published parameter counts, the texts' FLOP formulas, readers and refusals.
 */
#include "dpar.h"

#include <stdlib.h>

#include "check.h"

static dpar_workload w;

static dpar_status build(const char *text, dpar_why *why)
{
    dpar_model m;
    dpar_status st = dpar_model_parse(&m, text, strlen(text), why);
    return st == DPAR_OK ? dpar_workload_build(&w, &m, 0, why) : st;
}

/* Exact parameter counts as published with the weights (Hugging Face model cards and safetensors
 * indices); MPT: the params column of llm-foundry's benchmark table. */
static void test_parameters(void)
{
    static const struct {
        const char *model;
        double params, within;
    } known[] = {{"llama-2-7b", 6738415616.0, 0},
                 {"llama-2-13b", 13015864320.0, 0},
                 {"llama-2-70b", 68976648192.0, 0},
                 {"llama-3-8b", 8030261248.0, 0},
                 {"llama-3-70b", 70553706496.0, 0},
                 {"llama-3.1-405b", 405853388800.0, 0},
                 {"mistral-7b", 7241732096.0, 0},
                 {"mixtral-8x7b", 46702792704.0, 0},
                 {"gpt2-125m", 124439808.0, 0},
                 {"mpt-7b", 6658859008.0, 0},
                 {"mpt-1b", 1315950592.0, 0},
                 {"mpt-3b", 2651837440.0, 0},
                 {"mpt-13b", 12853954560.0, 0},
                 {"mpt-30b", 29975214080.0, 0},
                 {"mpt-70b", 64862437376.0, 0},
                 {"deepseek-v3", 671e9, 0.002},
                 {"deepseek-v2", 236e9, 0.005},
                 {"mixtral-8x22b", 140.6e9, 0.005},
                 {"qwen2.5-72b", 72.7e9, 0.002},
                 {"qwen3-32b", 32.8e9, 0.003},
                 {"resnet-50", 25.6e6, 0.01},
                 {"vit-l", 304e6, 0.01},
                 {"vit-h", 632e6, 0.01},
                 {"dit-xl", 675e6, 0.01},
                 {"t5-11b", 11.3e9, 0.02},
                 {"t5-large", 737e6, 0.02},
                 {"gpt3-175b", 174.6e9, 0.002},
                 {"megatron-530b", 529.6e9, 0.002},
                 {"megatron-1t", 1008e9, 0.002},
                 {"vit-3.2b", 3.2e9, 0.02},
                 {"unet-50m", 50e6, 0.15},
                 {"diffusion-5b", 4.8e9, 0.1},
                 {"gpt-1.7b", 1.7e9, 0.03},
                 {"transformer-1b", 1.0e9, 0.15}};
    size_t i;
    dpar_why why;
    for (i = 0; i < sizeof known / sizeof known[0]; i++) {
        CHECK_INT(build(known[i].model, &why), DPAR_OK);
        if (!(fabs(w.params - known[i].params) <= known[i].within * known[i].params)) {
            printf("%s: %.0f, published %.0f\n", known[i].model, w.params, known[i].params);
        }
        CHECK_NEAR(w.params, known[i].params, known[i].within);
    }
    for (i = 0; dpar_model_name((int32_t)i) != NULL; i++) {
        dpar_model m;
        CHECK_INT(dpar_model_preset(&m, dpar_model_name((int32_t)i), &why), DPAR_OK);
        CHECK_INT(dpar_workload_build(&w, &m, 0, &why), DPAR_OK);
        CHECK_INT(dpar_workload_check(&w, &why), DPAR_OK);
    }
    CHECK(i >= 60);
}

static void test_flops(void)
{
    dpar_why why;
    double h = 12288, l = 96, s = 2048, v = 51200, saved;
    CHECK_INT(build("gpt3-175b", &why), DPAR_OK);
    /* 72 B s L h^2 (1 + s/(6h) + V/(12 L h)), Korthikanti and SC21 */
    CHECK_NEAR(w.model_flops_full, 72 * s * l * h * h * (1 + s / (6 * h) + v / (12 * l * h)), 1e-9);
    /* Korthikanti Table 2: s b h (34 + 5 a s / h) a layer, 2 s b h recomputed in full, 34 selective
     */
    saved = h * (34 + 5 * 96 * s / h);
    CHECK_NEAR(dpar_layer_saved(&w, 1, DPAR_RECOMPUTE_NONE), saved, 1e-12);
    CHECK_NEAR(dpar_layer_saved(&w, 1, DPAR_RECOMPUTE_SELECTIVE), 34 * h, 1e-12);
    CHECK_NEAR(dpar_layer_saved(&w, 1, DPAR_RECOMPUTE_FULL), 2 * h, 1e-12);
    CHECK_NEAR(dpar_layer_params(&w, 1), 12 * h * h + 13 * h, 1e-12);
    CHECK_INT(dpar_workload_largest(&w), 1);
    CHECK_INT(build("llama-3-8b,seq=8192", &why), DPAR_OK);
    /* facts 5.4: 41 b s h for k/a = 1/4, f/h = 3.5, less the silu output (7) that fused kernels do
     * not keep; the softmax statistics are 4 a bytes */
    CHECK_NEAR(dpar_layer_saved(&w, 1, DPAR_RECOMPUTE_NONE), 34.0 * 4096 + 4 * 32, 1e-12);
    /* T10: logits are 6 % of the forward FLOPs (causal) */
    CHECK_NEAR(dpar_layer_flops(&w, 2) * 3.0 / w.model_flops_causal, 0.062, 0.03);
    CHECK_INT(build("deepseek-v3", &why), DPAR_OK);
    CHECK_NEAR(dpar_layer_expert_params(&w, 2), 256.0 * 3 * 7168 * 2048, 1e-12);
    CHECK_INT(w.layer[1].count, 3);
    CHECK_INT(w.layer[2].count, 58);
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
    dpar_model m;
    size_t i;
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        why.text[0] = 0;
        if (build(bad[i], &why) == DPAR_OK) {
            printf("accepted: %s\n", bad[i]);
        }
        CHECK(build(bad[i], &why) < 0);
        CHECK(strlen(why.text) > 10);
    }
    CHECK_INT(dpar_model_preset(&m, "lama-3-70b", &why), DPAR_E_UNKNOWN);
    CHECK(strstr(why.text, "llama-3-70b") != NULL);
}

static dpar_status config(const char *json, dpar_why *why)
{
    dpar_model m;
    dpar_status st = dpar_model_read_config(&m, json, strlen(json), why);
    return st == DPAR_OK ? dpar_workload_build(&w, &m, 0, why) : st;
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

static void test_config(void)
{
    static const struct {
        const char *file;
        double params;
    } real[] = {{"llama-3-8b", 8030261248.0},
                {"mistral-7b", 7241732096.0},
                {"mixtral-8x7b", 46702792704.0},
                {"gpt2", 124439808.0},
                {"llama-3.1-405b", 405853388800.0}};
    dpar_why why;
    char deep[400];
    size_t i;
    for (i = 0; i < sizeof real / sizeof real[0]; i++) {
        CHECK_INT(config(file_of(real[i].file), &why), DPAR_OK);
        CHECK_NEAR(w.params, real[i].params, 0);
    }
    CHECK_INT(config(file_of("deepseek-v3"), &why), DPAR_OK);
    CHECK_NEAR(w.params, 671e9, 0.002);
    CHECK_INT(config("{\"hidden_size\": 64}", &why), DPAR_E_PARSE);
    CHECK(strstr(why.text, "num_hidden_layers") != NULL);
    CHECK_INT(config("{\"hidden_size\": 1e18, \"num_hidden_layers\": 2}", &why), DPAR_E_RANGE);
    CHECK(strstr(why.text, "hidden_size") != NULL);
    CHECK_INT(config("{\"hidden_size\": \"64\"}", &why), DPAR_E_PARSE);
    CHECK_INT(config("{\"hidden_size\": 64, \"num_hidden", &why), DPAR_E_PARSE);
    CHECK(strstr(why.text, "line 1") != NULL);
    memset(deep, '[', 300);
    deep[300] = 0;
    CHECK_INT(config(deep, &why), DPAR_E_PARSE);
    CHECK(strstr(why.text, "64 deep") != NULL);
}

int main(void)
{
    test_parameters();
    test_flops();
    test_refusals();
    test_config();
    return CHECK_DONE();
}
