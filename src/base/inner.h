/* SPDX-License-Identifier: MIT-0 */
/* inner - private: what the folders above use of base. */
#ifndef DPARI_BASE_INNER_H
#define DPARI_BASE_INNER_H

#include "arith.h"
#include "box.h"
#include "text.h"
#include "type.h"

/* Appends a character, the first n characters of a text, a whole number. O(length). */
DPARI_API void dpari_text_char(dpar_text *t, char c);
DPARI_API void dpari_text_slice(dpar_text *t, const char *s, size_t n);
DPARI_API void dpari_text_int(dpar_text *t, int64_t v);
/* v with `decimals` (0..9) digits after the point, rounded half away from zero; "nan", "inf";
 * beyond 9e15 as dpari_text_real with 6 digits. */
DPARI_API void dpari_text_fixed(dpar_text *t, double v, int32_t decimals);
/* v with `digits` (1..17) significant digits, shortest of plain and e-notation, as %g but with
 * exact halves away from zero. */
DPARI_API void dpari_text_real(dpar_text *t, double v, int32_t digits);
/* Blanks until the current line has `column` UTF-8 characters; none when it is longer. */
DPARI_API void dpari_text_column(dpar_text *t, size_t column);
/* Appends `form` as printf would: %s, %.*s, %d of an int32_t, %ld of an int64_t, %.Nf and %.Ng of
 * one digit N as the two above, %.NG as %.Ng, but 0 where the number is not finite, for JSON; %%. A
 * width puts blanks before it, up to 31 characters together. A constant must be cast: an int may
 * have 16 bits. */
DPARI_API void dpari_text_print(dpar_text *t, const char *form, ...) DPARI_PRINTF(2, 3);
/* The same for functions that take a form and its arguments themselves. */
DPARI_API void dpari_text_print_list(dpar_text *t, const char *form, va_list *list);
/* The same as dpari_text_print without reals, in less stack. */
DPARI_API void dpari_text_say(dpar_text *t, const char *form, ...) DPARI_PRINTF(2, 3);
/* Reads a decimal number (sign, digits, point, exponent) from [s, s + n). Returns the characters
 * taken, 0 when there is no number. Never NaN; a number past the range becomes infinite, which the
 * caller refuses. */
DPARI_API size_t dpari_text_number(const char *s, size_t n, double *value);

/* True if reductions support the type: all but TF32, F8 and F4. */
DPARI_API int32_t dpari_type_can_reduce(int32_t type);

/* True if every element of `inner` is in `outer`. An empty box is in every box of as many dims. */
DPARI_API int dpari_box_contains(const dpar_box *outer, const dpar_box *inner);

/* ---- of this header's own modules ---- */

/* What both boxes hold, into *out (may be one of them). 0 when that is empty or the dims differ;
 * then *out is untouched. O(dims). */
DPARI_INTERNAL int dpari_box_intersect(const dpar_box *a, const dpar_box *b, dpar_box *out);

#endif
