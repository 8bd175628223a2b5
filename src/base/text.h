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

/* Begins an empty text in `buffer` (may be NULL with bytes 0). Appending: a character, a text, the
 * first n characters of one, a whole number. O(length). */
DPAR_API void dpar_text_init(dpar_text *t, char *buffer, size_t bytes);
DPAR_API void dpar_text_char(dpar_text *t, char c);
DPAR_API void dpar_text_put(dpar_text *t, const char *s);
DPAR_API void dpar_text_slice(dpar_text *t, const char *s, size_t n);
DPAR_API void dpar_text_int(dpar_text *t, int64_t v);
/* v with `decimals` (0..9) digits after the point, rounded half away from zero; "nan", "inf";
 * beyond 9e15 as dpar_text_real with 6 digits. */
DPAR_API void dpar_text_fixed(dpar_text *t, double v, int32_t decimals);
/* v with `digits` (1..17) significant digits, shortest of plain and e-notation, as %g but with
 * exact halves away from zero. */
DPAR_API void dpar_text_real(dpar_text *t, double v, int32_t digits);
/* Blanks until the current line has `column` UTF-8 characters; none when it is longer. */
DPAR_API void dpar_text_column(dpar_text *t, size_t column);

/* Reads a decimal number (sign, digits, point, exponent) from [s, s + n). Returns the characters
 * taken, 0 when there is no number. Never NaN; a number past the range becomes infinite, which the
 * caller refuses. */
DPAR_API size_t dpar_text_read(const char *s, size_t n, double *value);

#endif
