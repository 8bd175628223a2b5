/* SPDX-License-Identifier: MIT-0 */
/* texts - for fuzz targets that read text: libFuzzer's entry, which calls one(), and a main that
 * changes a few characters of seeds. */
#ifndef DPAR_TEXTS_H
#define DPAR_TEXTS_H

#include <stdlib.h>
#include <string.h>

/* What the target does with a text, which does not end in NUL. */
static void one(const char *text, size_t size);

#ifdef __cplusplus
extern "C"
#endif
    int
    LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = (char *)malloc(size + 1); /* ends where the text ends: reading past it is caught */
    if (text == NULL) {
        return 0;
    }
    if (size > 0) {
        memcpy(text + 1, data, size);
    }
    one(text + 1, size);
    free(text);
    return 0;
}

#ifdef DPAR_FUZZ_MAIN
/* Feeds seeds with up to four characters changed, mostly to some of `odd`, perhaps truncated. */
static int feed_texts(long runs, const char *const *seed, size_t seeds, const char *odd,
                      size_t odds)
{
    uint64_t x = 88172645463325252u;
    long i;
    for (i = 0; i < runs; i++) {
        char text[1024];
        const char *s = seed[(size_t)i % seeds];
        size_t n = strlen(s) < sizeof text ? strlen(s) : sizeof text, k, changes;
        memcpy(text, s, n);
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        changes = x % 5;
        for (k = 0; k < changes && n > 0; k++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            text[(x >> 8) % n] = x % 5 == 0 ? (char)(x >> 30) : odd[(x >> 40) % odds];
            if (x % 11 == 0) {
                n = (x >> 20) % (n + 1);
            }
        }
        LLVMFuzzerTestOneInput((const uint8_t *)text, n);
    }
    return 0;
}
#endif

#endif
