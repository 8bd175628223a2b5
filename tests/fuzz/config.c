/* SPDX-License-Identifier: MIT-0 */
/* Fuzzes the config.json reader. libFuzzer's entry, and with -DDPAR_FUZZ_MAIN a main that feeds
 * argv[1] fixed pseudo-random mutations of the seeds. */
#include "dpar.h"

#include <stdlib.h>
#include <string.h>

static void one(const char *text, size_t size)
{
    static dpar_workload w;
    dpar_model m;
    dpar_why why;
    if (dpar_model_read_config(&m, text, size, &why) == DPAR_OK &&
        dpar_workload_build(&w, &m, 0, &why) == DPAR_OK && !(w.params > 0.0)) {
        abort();
    }
}

#ifdef __cplusplus
extern "C"
#endif
    int
    LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = (char *)malloc(size > 0 ? size : 1); /* exact: reading past it is caught */
    if (text == NULL) {
        return 0;
    }
    if (size > 0) {
        memcpy(text, data, size);
    }
    one(text, size);
    free(text);
    return 0;
}

#ifdef DPAR_FUZZ_MAIN
static const char *const seed[] = {
    "{\"model_type\": \"llama\", \"hidden_size\": 4096, \"num_hidden_layers\": 32, "
    "\"num_attention_heads\": 32, \"vocab_size\": 32000, \"intermediate_size\": 11008}",
    "{\"model_type\": \"gpt2\", \"n_embd\": 768, \"n_layer\": 12, \"n_head\": 12, \"vocab_size\": "
    "50257, \"n_positions\": 1024}"};

int main(int argc, char **argv)
{
    long runs = argc > 1 ? atol(argv[1]) : 100000, i;
    uint64_t x = 88172645463325252u;
    for (i = 0; i < runs; i++) {
        char text[1024];
        size_t n, k, changes;
        const char *s = seed[i % (long)(sizeof seed / sizeof seed[0])];
        n = strlen(s) < sizeof text ? strlen(s) : sizeof text;
        memcpy(text, s, n);
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        changes = x % 5;
        for (k = 0; k < changes && n > 0; k++) {
            static const char odd[] = "0123456789.,:=-+eExX{}[]\"\\ntf \0#";
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            text[(x >> 8) % n] = odd[(x >> 40) % (sizeof odd - 1)];
            if (x % 11 == 0) {
                n = (x >> 20) % (n + 1);
            }
        }
        LLVMFuzzerTestOneInput((const uint8_t *)text, n);
    }
    return 0;
}
#endif
