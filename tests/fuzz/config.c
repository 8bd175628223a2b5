/* SPDX-License-Identifier: MIT-0 */
/* Fuzzes the config.json reader. Has libFuzzer's entry, and with -DDPAR_FUZZ_MAIN a main that feeds
 * argv[1] fixed pseudo-random mutations of the seeds. Run with: tests/compile/fuzz.sh. */
#include "dpar_cost.h"

#include "texts.h"

static void one(const char *text, size_t size)
{
    static dpar_workload w;
    dpar_model m, before;
    dpar_why why;
    memset(&m, 7, sizeof m);
    memset(&before, 7, sizeof before);
    why.text[0] = 0;
    if (dpari_model_config(&m, text, size, &why) != DPAR_OK) {
        if (why.text[0] == 0 || memcmp(&m, &before, sizeof m) != 0) {
            abort(); /* a refusal has a message and changes nothing */
        }
        return;
    }
    if (m.layers < 1 || m.hidden < 1 || (m.heads < 1 && m.scan == 0) || m.kv_heads < 0 ||
        m.ffn < 0 || m.shared_ffn < 0 || memchr(m.name, 0, sizeof m.name) == NULL) {
        abort();
    }
    if (dpar_workload_init(&w, &m, 0, &why) == DPAR_OK && !(w.params > 0.0)) {
        abort();
    }
}

#ifdef DPAR_FUZZ_MAIN
static const char *const seed[] = {
    "{\"model_type\": \"llama\", \"hidden_size\": 4096, \"num_hidden_layers\": 32, "
    "\"num_attention_heads\": 32, \"vocab_size\": 32000, \"intermediate_size\": 11008}",
    "{\"model_type\": \"gpt2\", \"n_embd\": 768, \"n_layer\": 12, \"n_head\": 12, \"vocab_size\": "
    "50257, \"n_positions\": 1024}",
    "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 7168, \"moe_intermediate_size\": 2048, "
    "\"num_hidden_layers\": 61, \"num_attention_heads\": 128, \"n_routed_experts\": 256, "
    "\"n_shared_experts\": 1, \"num_experts_per_tok\": 8, \"first_k_dense_replace\": 3, "
    "\"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, "
    "\"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"vocab_size\": 129280}",
    "{\"hidden_size\": 9, \"text_config\": {\"model_type\": \"mistral\", \"hidden_size\": 64, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"vocab_size\": 100}, "
    "\"vision_config\": {\"hidden_size\": 7, \"a\": [1, {}]}, \"head_dim\": null}",
    "{\"model_type\": \"falcon\", \"hidden_size\": 4544, \"num_hidden_layers\": 32, "
    "\"num_attention_heads\": 71, \"num_kv_heads\": 71, \"multi_query\": true, \"bias\": false, "
    "\"new_decoder_architecture\": false, \"vocab_size\": 65024}",
    "{\"model_type\": \"mpt\", \"d_model\": 4096, \"n_heads\": 32, \"n_layers\": 32, "
    "\"expansion_ratio\": 4, \"max_seq_len\": 2048, \"vocab_size\": 50432, \"no_bias\": true}",
    "{\"model_type\": \"t5\", \"d_model\": 2048, \"d_ff\": 5120, \"d_kv\": 64, \"num_layers\": 24, "
    "\"num_heads\": 32, \"feed_forward_proj\": \"gated-gelu\", \"vocab_size\": 32128}",
    "{\"_class_name\": \"DiTTransformer2DModel\", \"attention_head_dim\": 72, \"num_layers\": 28, "
    "\"num_attention_heads\": 16, \"patch_size\": 2, \"sample_size\": 32, \"in_channels\": 4}"};

int main(int argc, char **argv)
{
    static const char odd[] = "0123456789.,:=-+eExX{}[]\"\\ntf \0#";
    return feed_texts(argc > 1 ? atol(argv[1]) : 100000, seed, sizeof seed / sizeof seed[0], odd,
                      sizeof odd - 1);
}
#endif
