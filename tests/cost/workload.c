/* SPDX-License-Identifier: MIT-0 */
/* Tests workloads against published parameter counts and the FLOP formulas of papers. Run with:
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

/* Returns the forward FLOP of one layer for one sample. */
static double layer_flops(int layer)
{
    double sum = 0.0;
    int i;
    for (i = 0; i < w.layer[layer].ops; i++) {
        const dpari_layer_op *op = &w.op[w.layer[layer].first + i];
        sum += 2.0 * op->n * op->k * op->copies * w.layer[layer].tokens;
    }
    return sum;
}

/* Returns the weights of a layer's experts. */
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

/* Exact parameter counts as published with the weights (Hugging Face safetensors indices and model
 * cards, torchvision and timm for the vision models), or the number in the name. within: what the
 * builder leaves out - QKV biases (Qwen2), the gate of shared experts (Qwen2-MoE), norms of queries
 * and keys (Qwen3), a second pair of norms (Gemma-2), tables of relative positions (T5), the bias
 * that balances experts (DeepSeek-V3). */
static void test_parameters(void)
{
    static const struct {
        const char *model;
        double params, within;
    } known[] = {{"llama-7b", 6738415616.0, 0},
                 {"llama-13b", 13015864320.0, 0},
                 {"llama-30b", 32528943616.0, 0},
                 {"llama-65b", 65285660672.0, 0},
                 {"llama-3.2-1b", 1235814400.0, 0},
                 {"smollm2-360m", 361821120.0, 0},
                 {"qwen3-4b", 4022468096.0, 3e-6},
                 {"gemma-1.1-2b", 2506172416.0, 0},
                 {"llama-2-7b", 6738415616.0, 0},
                 {"llama-2-13b", 13015864320.0, 0},
                 {"llama-2-70b", 68976648192.0, 0},
                 {"llama-3-8b", 8030261248.0, 0},
                 {"llama-3.1-8b", 8030261248.0, 0},
                 {"llama-3-70b", 70553706496.0, 0},
                 {"llama-3.1-405b", 405853388800.0, 0},
                 {"mistral-7b", 7241732096.0, 0},
                 {"mixtral-8x7b", 46702792704.0, 0},
                 {"mixtral-8x22b", 140620634112.0 + 2.0 * 768 * 6144, 0}, /* v0.3's vocabulary */
                 {"qwen2.5-72b", 72706203648.0, 2e-5},
                 {"qwen3-32b", 32762123264.0, 1e-6},
                 {"qwen3-235b-a22b", 235093634560.0, 1e-6},
                 {"gemma-2-9b", 9241705984.0, 5e-5},
                 {"gemma-2-27b", 27227128320.0, 5e-5},
                 {"phi-3-mini", 3821079552.0, 0},
                 {"deepseek-v2", 235741434880.0, 0},
                 {"deepseek-v3", 671026419200.0, 1e-7},
                 {"gpt2-125m", 124439808.0, 0},
                 {"gpt2-1.5b", 1557611200.0, 0},
                 {"resnet-50", 25557032.0, 0},
                 {"vit-l", 304326632.0, 0},
                 {"vit-h", 632045800.0, 0},
                 {"dit-xl", 675129632.0, 0.01},
                 {"t5-11b", 11307321344.0, 1e-6},
                 {"t5-large", 737668096.0, 1e-5},
                 {"gpt3-175b", 174.6e9, 0.002},
                 {"megatron-22b", 22e9, 0.005},
                 {"mt-nlg-530b", 529.6e9, 0.002},
                 {"megatron-1t", 1008e9, 0.002},
                 {"megatron-1b", 1.16e9, 0.005},
                 {"megatron-2b", 2.03e9, 0.005},
                 {"megatron-4b", 4.24e9, 0.005},
                 {"megatron-8b", 8.67e9, 0.005},
                 {"gpt-1.3b", 1.3e9, 0.02},
                 {"vit-3.2b", 3.2e9, 0.02},
                 {"unet-50m", 50e6, 0.15},
                 {"diffusion-5b", 4.8e9, 0.1},
                 {"transformer-1b-128k", 1.0e9, 0.15}};
    size_t i;
    dpar_why why;
    for (i = 0; i < sizeof known / sizeof known[0]; i++) {
        CHECK_INT(build(known[i].model, &why), DPAR_OK);
        if (!(fabs(w.params - known[i].params) <= known[i].within * known[i].params)) {
            printf("%s: %.0f, published %.0f\n", known[i].model, w.params, known[i].params);
        }
        CHECK_NEAR(w.params, known[i].params, known[i].within);
        CHECK_TEXT(w.name, known[i].model);
    }
}

/* Checks that a norm and an activation follow a convolution. Run one by one they keep two arrays
 * of its outputs for the backward: the norm's input and the activation's. Fused they keep the
 * first. */
static void test_convolutions(void)
{
    static const char *const text[] = {"resnet-50,stack=torch", "resnet-50,stack=compiled",
                                       "unet-50m,stack=torch", "unet-50m,stack=compiled"};
    int i, k;
    for (i = 0; i < 4; i++) {
        dpar_why why;
        int found = 0;
        CHECK_INT(build(text[i], &why), DPAR_OK);
        for (k = 0; k + 1 < w.ops; k++) {
            const dpari_layer_op *conv = &w.op[k], *norm = &w.op[k + 1];
            if (conv->kind == DPARI_OP_CONV && norm->kind == DPARI_OP_STREAM) {
                CHECK_NEAR(norm->params, 2.0 * conv->n, 0.0); /* a scale and a shift per channel */
                CHECK_NEAR(norm->save, (i % 2 == 0 ? 2.0 : 1.0) * w.element * conv->n, 0.0);
                found++;
            }
        }
        CHECK(found > 5);
    }
}

/* Compares with the params column of llm-foundry's benchmark table, to the last digit, at every
 * sequence length: 12 L h^2 + 13 L h + 2 h + (V + s) h with V = 50368. */
static void test_mpt(void)
{
    FILE *f = fopen("tests/data/cost/llmfoundry_fsdp_a100.csv", "rb");
    char line[512], text[64], model[16];
    int rows = 0, seq;
    dpar_why why;
    CHECK(f != NULL);
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "%15[^,],%d", model, &seq) == 2) {
            snprintf(text, sizeof text, "mpt-%s,seq=%d", model, seq);
            CHECK_INT(build(text, &why), DPAR_OK);
            CHECK_NEAR(w.params, atof(strrchr(line, ',') + 1), 0);
            rows++;
        }
    }
    CHECK_INT(rows, 139);
    if (f != NULL) {
        fclose(f);
    }
}

static void test_flops(void)
{
    dpar_why why;
    double h = 12288, l = 96, s = 2048, v = 51200, saved;
    CHECK_INT(build("gpt3-175b", &why), DPAR_OK);
    /* 72 B s L h^2 (1 + s/(6h) + V/(12 L h)), Korthikanti and SC21 */
    CHECK_NEAR(w.model_flops_full, 72 * s * l * h * h * (1 + s / (6 * h) + v / (12 * l * h)), 1e-9);
    /* Korthikanti Table 2: s b h (34 + 5 a s / h) per layer, 2 s b h recomputed in full, 34
     * selective */
    saved = h * (34 + 5 * 96 * s / h);
    CHECK_NEAR(dpari_layer_saved(&w, 1, DPAR_RECOMPUTE_NONE), saved, 1e-12);
    CHECK_NEAR(dpari_layer_saved(&w, 1, DPAR_RECOMPUTE_SELECTIVE), 34 * h, 1e-12);
    CHECK_NEAR(dpari_layer_saved(&w, 1, DPAR_RECOMPUTE_FULL), 2 * h, 1e-12);
    CHECK_NEAR(dpari_layer_params(&w, 1), 12 * h * h + 13 * h, 1e-12);
    CHECK(dpari_layer_params(&w, 1) > dpari_layer_params(&w, 0) &&
          dpari_layer_params(&w, 1) > dpari_layer_params(&w, 2));
    CHECK_INT(build("llama-3-8b,seq=8192", &why), DPAR_OK);
    /* facts 5.4: 41 b s h for k/a = 1/4, f/h = 3.5, less the silu output (7) that fused kernels do
     * not keep; the softmax statistics are 4 a bytes */
    CHECK_NEAR(dpari_layer_saved(&w, 1, DPAR_RECOMPUTE_NONE), 34.0 * 4096 + 4 * 32, 1e-12);
    /* T10: logits are 6 % of the forward FLOPs (causal) */
    CHECK_NEAR(layer_flops(2) * 3.0 / w.model_flops_causal, 0.062, 0.03);
    CHECK_INT(build("deepseek-v3", &why), DPAR_OK);
    CHECK_NEAR(expert_params(2), 256.0 * 3 * 7168 * 2048, 1e-12);
    CHECK_INT(w.layer[1].count, 3);
    CHECK_INT(w.layer[2].count, 58);
}

/* Checks that a family must be named, and that attention and stack have a default and are as
 * named. */
static void test_said(void)
{
    dpar_model m, u;
    dpar_why why;
    CHECK_INT(dpar_model_read(&m, "gpt3-175b", 9, &why), DPAR_OK);
    m.attention = m.stack = 0;
    CHECK_INT(dpar_workload_init(&w, &m, 0, &why), DPAR_OK);
    CHECK_INT(w.stack, DPAR_MODEL_STACK_MEGATRON);
    CHECK_INT(w.attention, DPAR_MODEL_ATTENTION_UNFUSED);
    m.stack = DPAR_MODEL_STACK_TORCH;
    CHECK_INT(dpar_workload_init(&w, &m, 0, &why), DPAR_OK);
    CHECK_INT(w.stack, DPAR_MODEL_STACK_TORCH);
    CHECK_INT(w.attention, DPAR_MODEL_ATTENTION_FLASH);
    m.attention = DPAR_MODEL_ATTENTION_FLASH1;
    CHECK_INT(dpar_workload_init(&w, &m, 0, &why), DPAR_OK);
    CHECK_INT(w.attention, DPAR_MODEL_ATTENTION_FLASH1);
    m.loss = DPAR_MODEL_LOSS_END;
    CHECK_INT(dpar_workload_init(&w, &m, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "attention=2, stack=3 or loss=7 is not one of DPAR_MODEL_*");
    m.loss = 0;
    m.dense_layers = INT32_MIN;
    CHECK_INT(dpar_workload_init(&w, &m, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "a field of the model is -2147483648; none may be below -1");
    m.dense_layers = 0;
    m.mtp = 1000001;
    CHECK_INT(dpar_workload_init(&w, &m, 0, &why), DPAR_E_RANGE);
    CHECK_INT(strstr(why.text, "mtp=1000001, tower_layers=0: each at most 1000000") != NULL, 1);
    m.mtp = 0;
    CHECK_INT(dpar_model_find(&u, "unet-0.25deg", NULL), DPAR_OK);
    for (u.levels = 1; u.levels <= 8; u.levels++) { /* the most that fit form a workload */
        const int32_t most = (DPAR_MAX_LAYER_OPS - 2 * u.levels) / 4 / (2 * u.levels - 1);
        u.blocks_per_level = most;
        CHECK_INT(dpar_workload_init(&w, &u, 0, &why), DPAR_OK);
        CHECK_INT(
            w.ops <= DPAR_MAX_LAYER_OPS && w.ops + 4 * (2 * u.levels - 1) > DPAR_MAX_LAYER_OPS, 1);
        u.blocks_per_level = u.levels % 2 ? most + 1 : INT32_MAX;
        CHECK_INT(dpar_workload_init(&w, &u, 0, &why), DPAR_E_ARG);
        CHECK_INT(strstr(why.text, " must be at most ") != NULL, 1);
    }
    CHECK_INT(dpar_model_find(&u, "mixtral-8x7b", NULL), DPAR_OK);
    u.capacity = 0.5;
    CHECK_INT(dpar_workload_init(&w, &u, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "capacity must be 0 or a finite number of at least 1");
    u.capacity = 1.0;
    CHECK_INT(dpar_workload_init(&w, &u, 0, &why), DPAR_OK);
    CHECK_INT(dpar_model_read(&u, "grid:4x4x4,halo=2", 17, NULL), DPAR_OK);
    u.halo = INT32_MAX; /* wider than any axis, and than the next fields */
    for (u.dims = 4; u.dims > 0; u.dims = u.dims == 4 ? INT32_MAX : 0) {
        CHECK_INT(dpar_workload_init(&w, &u, 0, &why), DPAR_E_ARG);
        CHECK_INT(strncmp(why.text, "a grid has 1 to 3 axes, not ", 28), 0);
    }
    m.family = 0;
    CHECK_INT(dpar_workload_init(&w, &m, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "the model has no family: set family, such as DPAR_MODEL_FAMILY_GPT");
    m.family = DPAR_MODEL_FAMILY_END;
    CHECK_INT(dpar_workload_init(&w, &m, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "family=9 is not one of DPAR_MODEL_FAMILY_*");
    CHECK_INT(dpar_model_read(&m, "?:layers=2", 10, &why), DPAR_E_PARSE);
    CHECK_TEXT(why.text, "'?': one of gpt, llama, vit, dit, t5, resnet, unet, grid was expected");
    CHECK_INT(dpar_model_read(&m, "gpt3-175b,stack=?", 17, &why), DPAR_E_PARSE);
}

int main(void)
{
    test_parameters();
    test_convolutions();
    test_mpt();
    test_flops();
    test_said();
    return CHECK_DONE();
}
