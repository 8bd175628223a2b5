/* SPDX-License-Identifier: MIT-0 */
/* text - a sink that writes into the caller's buffer, as snprintf does: it never passes the end,
 * always leaves a NUL, and counts what the whole text would have needed. No locale, no libc. */
#ifndef DPARI_BASE_TEXT_H
#define DPARI_BASE_TEXT_H

#include "base.h"

typedef struct dpar_text {
    char *at;     /* the caller's buffer */
    size_t room;  /* its bytes; 0 is allowed: then only `used` is counted */
    size_t used;  /* characters of the whole text, without the NUL; > room - 1 means it was cut */
    size_t line;  /* where the current line began */
    size_t width; /* UTF-8 characters since then */
} dpar_text;

/* Begins an empty text in `buffer` (may be NULL with bytes 0). O(1). */
DPAR_API void dpar_text_init(dpar_text *t, char *buffer, size_t bytes);
/* Appends a text. O(length). */
DPAR_API void dpar_text_put(dpar_text *t, const char *s);

#endif
