/* SPDX-License-Identifier: MIT-0 */
/* base_private - private: the functions of base that the other folders use. */
#ifndef DPARI_BASE_BASE_PRIVATE_H
#define DPARI_BASE_BASE_PRIVATE_H

#include "arith.h"
#include "box.h"
#include "text.h"
#include "type.h"

/* Begins a message in why->text. If `why` is NULL, the message is dropped. */
DPARI_API void dpari_text_why(dpar_text *text, dpar_why *why);
/* Append a character, at most n characters of a text, or an integer. O(length). */
DPARI_API void dpari_text_char(dpar_text *text, char c);
DPARI_API void dpari_text_slice(dpar_text *text, const char *s, size_t n);
DPARI_API void dpari_text_int(dpar_text *text, int64_t v);
/* Appends v with `decimals` (0..9) digits after the point, rounded half away from zero, or "nan" or
 * "inf". From 9e15 on it does what dpari_text_real does with 6 digits. */
DPARI_API void dpari_text_fixed(dpar_text *text, double v, int32_t decimals);
/* Appends v with `digits` (1..17) significant digits, in plain or exponential notation like %g, but
 * with exact halves rounded away from zero. */
DPARI_API void dpari_text_real(dpar_text *text, double v, int32_t digits);
/* Appends blanks until the current line has `column` UTF-8 characters. */
DPARI_API void dpari_text_column(dpar_text *text, size_t column);
/* Appends text with the format `form`, as printf does. The format may have %s, %.*s, %d for an
 * int32_t, %ld for an int64_t, %%, and %.Nf and %.Ng with one digit N, which do what
 * dpari_text_fixed and dpari_text_real do. %.NG is %.Ng for JSON: it writes 0 if the number is not
 * finite. A width puts blanks before a value to right-align it; the value may then have at most 31
 * characters. Constants for %d must be cast to int32_t, because an int may have 16 bits. */
DPARI_API void dpari_text_print(dpar_text *text, const char *form, ...) DPARI_PRINTF(2, 3);
/* Does the same for functions that take a format and its arguments themselves. */
DPARI_API void dpari_text_print_list(dpar_text *text, const char *form, va_list *list);
/* Does what dpari_text_print does, but without real numbers and with less stack. */
DPARI_API void dpari_text_say(dpar_text *text, const char *form, ...) DPARI_PRINTF(2, 3);
/* Reads a decimal number (sign, digits, point, exponent) from [s, s + n). Returns the number of
 * characters read, or 0 if there is no number. The value is never NaN. It is infinite if the number
 * is too large, which the caller must refuse. */
DPARI_API size_t dpari_text_number(const char *s, size_t n, double *value);

/* True if reductions support the type: all but TF32, F8 and F4. */
DPARI_API int32_t dpari_type_can_reduce(int32_t type);

/* True if every element of `inner` is in `outer`. An empty box is in every box with equally many
 * dims. */
DPARI_API int dpari_box_contains(const dpar_box *outer, const dpar_box *inner);

/* ---- of this header's own modules ---- */

/* Computes the intersection of two boxes. *out may be one of them. Returns 0, without writing *out,
 * if it is empty or the dims differ. O(dims). */
DPARI_INTERNAL int dpari_box_intersect(const dpar_box *a, const dpar_box *b, dpar_box *out);

#endif
