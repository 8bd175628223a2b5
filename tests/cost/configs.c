/* SPDX-License-Identifier: MIT-0 */
/* Tests config.json files as they are published. Each is read within 0.5 % of its parameters, and
 * assumptions and omissions are reported. tests/data/cost/configs/README.md has the provenance. Run
 * with: tests/run test cost. */
#include "dpar_cost.h"

#include <stdlib.h>

#include "check.h"

static dpar_workload w;
static dpar_model m;

static dpar_status read_text(const char *json, dpar_why *why)
{
    dpar_status st = dpar_model_read(&m, json, strlen(json), why);
    return st == DPAR_OK ? dpar_workload_init(&w, &m, 0, why) : st;
}

static const char *text_of(const char *name)
{
    static char text[65536];
    char path[256];
    size_t n;
    FILE *f;
    snprintf(path, sizeof path, "tests/data/cost/configs/%s", name);
    f = fopen(path, "rb");
    CHECK(f != NULL);
    n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = 0;
    if (f != NULL) {
        fclose(f);
    }
    return text;
}

/* Checks every row of expected.csv. If the count is not known the file is read with a remark, or
 * refused with a message. */
static void test_files(void)
{
    char line[200], *comma;
    FILE *f = fopen("tests/data/cost/configs/expected.csv", "rb");
    int right = 0, said = 0, refused = 0;
    dpar_why why;
    CHECK(f != NULL && fgets(line, sizeof line, f) != NULL);
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        double expected;
        dpar_status st;
        comma = strchr(line, ',');
        CHECK(comma != NULL);
        *comma = 0;
        expected = strtod(strchr(comma + 1, ',') + 1, NULL);
        st = read_text(text_of(line), &why);
        if (expected > 0.0 && st == DPAR_OK) {
            right += fabs(w.params / expected - 1.0) <= 0.005;
            if (fabs(w.params / expected - 1.0) > 0.005) {
                printf("%s: %.0f, %.0f expected\n", line, w.params, expected);
            }
        } else if (st == DPAR_OK) {
            said++;
        } else {
            CHECK(why.text[0] != 0);
            refused++;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    CHECK_INT(right, 103);
    CHECK_INT(said, 4);
    CHECK_INT(refused, 2);
}

#define SHAPE "\"hidden_size\": 1024, \"num_hidden_layers\": 8, \"num_attention_heads\": 16, "
#define KV "\"num_key_value_heads\": 4, \"intermediate_size\": 2048, \"vocab_size\": 32000"

static int32_t kind(int mix, int feed)
{
    return m.kinds[mix * DPAR_MODEL_FFN_COUNT + feed];
}

/* Checks layers that differ, in every form in which files express that. */
static void test_layers(void)
{
    dpar_why why;
    CHECK_INT(
        read_text("{\"model_type\": \"gemma3_text\", " SHAPE KV ", \"sliding_window\": 512}", &why),
        DPAR_OK);
    CHECK_INT(kind(DPAR_MODEL_MIXER_WINDOW, DPAR_MODEL_FFN_DENSE), 7);
    CHECK_INT(kind(DPAR_MODEL_MIXER_FULL, DPAR_MODEL_FFN_DENSE), 1);
    CHECK_INT(w.blocks, 8);
    CHECK_INT(read_text("{\"model_type\": \"qwen3_moe\", " SHAPE KV ", \"num_experts\": 16, "
                        "\"num_experts_per_tok\": 2, \"decoder_sparse_step\": 2}",
                        &why),
              DPAR_OK);
    CHECK_INT(kind(DPAR_MODEL_MIXER_FULL, DPAR_MODEL_FFN_EXPERTS), 4);
    CHECK_INT(read_text("{\"model_type\": \"jamba\", " SHAPE KV ", \"num_experts\": 4, "
                        "\"num_experts_per_tok\": 2, \"attn_layer_period\": 8, "
                        "\"attn_layer_offset\": 4, \"expert_layer_period\": 2, "
                        "\"expert_layer_offset\": 1, \"mamba_d_state\": 16, \"mamba_expand\": 2}",
                        &why),
              DPAR_OK);
    CHECK_INT(kind(DPAR_MODEL_MIXER_FULL, DPAR_MODEL_FFN_DENSE), 1);
    CHECK_INT(kind(DPAR_MODEL_MIXER_SCAN, DPAR_MODEL_FFN_DENSE), 3);
    CHECK_INT(kind(DPAR_MODEL_MIXER_SCAN, DPAR_MODEL_FFN_EXPERTS), 4);
    CHECK_INT(read_text("{\"model_type\": \"ernie4_5_moe\", " SHAPE KV ", \"moe_num_experts\": 16, "
                        "\"moe_k\": 2, \"moe_layer_start_index\": 1, \"moe_layer_interval\": 1, "
                        "\"moe_num_shared_experts\": 2, \"moe_intermediate_size\": 512}",
                        &why),
              DPAR_OK);
    CHECK_INT(m.dense_layers, 1);
    CHECK_INT(m.shared_ffn, 1024);
    CHECK_INT(m.tied, 1);
    CHECK_INT(read_text("{\"model_type\": \"ernie4_5_moe_vl\", " SHAPE KV
                        ", \"moe_num_experts\": [16, 16], \"moe_k\": 2, "
                        "\"moe_intermediate_size\": [768, 256]}",
                        &why),
              DPAR_OK);
    CHECK_INT(m.experts, 32); /* 16 of 768 for text, 16 of 256 for images */
    CHECK_INT(m.expert_ffn, 512);
    /* routing limited to groups: from the file, from the preset */
    CHECK_INT(read_text(text_of("deepseek-v3.2.json"), &why), DPAR_OK);
    CHECK_INT(w.expert_groups, 8);
    CHECK_INT(w.topk_groups, 4);
    CHECK_INT(read_text("deepseek-v2", &why), DPAR_OK);
    CHECK_INT(m.expert_groups, 8);
    CHECK_INT(m.topk_groups, 3);
    CHECK_INT(read_text("kimi-k2", &why), DPAR_OK);
    CHECK_INT(m.topk_groups, 1);
}

/* Checks that assumptions are reported. */
static void test_said(void)
{
    static const struct {
        const char *json, *says;
    } known[] = {
        {"{\"model_type\": \"newer\", " SHAPE KV "}", "model_type 'newer' is not known"},
        {"{" SHAPE KV "}", "no model_type: read as Llama"},
        {"{\"model_type\": \"llama\", \"moe_oddities\": 7, " SHAPE KV "}", "'moe_oddities'=7"},
        {"{\"model_type\": \"llama\", \"vocab_size\": 32064}", "num_hidden_layers=32"},
        {"{\"model_type\": \"qwen3\", \"num_nextn_predict_layers\": 1, " SHAPE KV "}", "mtp=1"},
        {"{\"model_type\": \"qwen3\", \"max_position_embeddings\": 40960, " SHAPE KV "}", "40960"},
        {"{\"model_type\": \"qwen3\", \"vision_config\": {\"odd\": 1}, " SHAPE KV "}",
         "its vision_config is not understood: its parameters and time are not included"},
        {"{\"model_type\": \"seer\", \"text_config\": {\"model_type\": \"qwen3\", " SHAPE KV
         "}, \"vision_config\": {\"model_type\": \"siglip_vision_model\", \"num_hidden_layers\": "
         "4}}",
         "model_type 'seer' is not known: its projector"},
        {"{\"model_type\": \"bart\", \"architectures\": [\"BartForCausalLM\"], " SHAPE
         "\"decoder_layers\": 8, \"intermediate_size\": 2048, \"vocab_size\": 32000}",
         "'BartForCausalLM' is only the decoder"},
        {"{\"dim\": 4096, \"n_layers\": 32, \"n_heads\": 32, \"multiple_of\": 256, "
         "\"norm_eps\": 1e-05, \"vocab_size\": -1}",
         "no vocab_size: 32000"}};
    dpar_why why;
    size_t i;
    for (i = 0; i < sizeof known / sizeof known[0]; i++) {
        CHECK_INT(read_text(known[i].json, &why), DPAR_OK);
        if (strstr(w.note, known[i].says) == NULL) {
            printf("%s: %s\n", known[i].json, w.note);
        }
        CHECK(strstr(w.note, known[i].says) != NULL);
    }
    CHECK_NEAR(w.params, 6738415616.0, 0); /* Meta's params.json of Llama 7B */
    CHECK_INT(read_text("{\"model_type\": \"qwen3\", \"text_config\": {" SHAPE KV "}, "
                        "\"audio_config\": {\"head_dim\": 512}, \"head_dim\": 999}",
                        &why),
              DPAR_OK);
    CHECK_INT(m.head_width, 0);
    CHECK_INT(
        read_text("{\"model_type\": \"qwen3\", " SHAPE KV ", \"router\": Infinity},mtp=1", &why),
        DPAR_OK);
    CHECK_INT(m.mtp, 1);
}

/* Checks that messages use the file's names. */
static void test_sentences(void)
{
    static const struct {
        const char *json;
        dpar_status status;
        const char *says;
    } bad[] = {
        {"{\"model_type\": \"glm\", " SHAPE "\"num_key_value_heads\": 5, \"vocab_size\": 99}",
         DPAR_E_DIVIDE, "num_key_value_heads=5 does not divide num_attention_heads=16"},
        {"{\"model_type\": \"deepseek_v3\", " SHAPE KV ", \"kv_lora_rank\": 8}", DPAR_E_PARSE,
         "qk_nope_head_dim is missing"},
        {"{\"model_type\": \"qwen3_moe\", " SHAPE KV ", \"num_experts\": 8}", DPAR_E_PARSE,
         "num_experts_per_tok"},
        {"{\"model_type\": \"newer\", \"layer_types\": [\"mamba\", \"attention\"], " SHAPE KV "}",
         DPAR_E_UNKNOWN, "state space"}};
    dpar_why why;
    size_t i;
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_INT(read_text(bad[i].json, &why), bad[i].status);
        if (strstr(why.text, bad[i].says) == NULL) {
            printf("%s: %s\n", bad[i].json, why.text);
        }
        CHECK(strstr(why.text, bad[i].says) != NULL);
    }
    CHECK_INT(read_text("{\"model_type\": \"gemma2\", " SHAPE KV "},layers=4", &why), DPAR_OK);
    CHECK_INT(w.blocks, 4);
}

int main(void)
{
    test_sentences();
    test_files();
    test_layers();
    test_said();
    return CHECK_DONE();
}
