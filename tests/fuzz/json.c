/* SPDX-License-Identifier: MIT-0 */
/* Fuzzes the JSON reader. libFuzzer's entry, and with -DDPAR_FUZZ_MAIN a main that feeds argv[1]
 * fixed pseudo-random mutations of the seeds. */
#include "dpar.h"

#include <stdlib.h>
#include <string.h>

static void one(const char *text, size_t size)
{
    dpar_json j;
    dpar_json_item item;
    dpar_why why;
    dpar_json_init(&j, text, size);
    while (dpar_json_next(&j, &item, &why) == DPAR_OK && item.kind != DPAR_JSON_END) {
        if (item.depth < 0 || item.depth > 64 || j.at > size) {
            abort();
        }
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
    "{\"a\": [1, 2.5e-3, true, null, {\"b\": \"x\\\\u00e9\"}], \"c\": -0.0}",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]", "\"text\"",
    "123456789012345678901234567890e400"};

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
