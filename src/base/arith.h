/* SPDX-License-Identifier: MIT-0 */
/* arith - private: attributes of functions, checked integer arithmetic, comparison and copying of
 * texts, and the functions that write messages. */
#ifndef DPARI_BASE_ARITH_H
#define DPARI_BASE_ARITH_H

#include "base.h"

#include <stdarg.h>
#include "type.h"

/* `inline` as compilers spell it for themselves, because some codes compile with -Dinline=. */
#if defined(__GNUC__)
#define DPARI_INLINED __inline__
#elif defined(_MSC_VER)
#define DPARI_INLINED __inline
#else
#define DPARI_INLINED inline
#endif

/* DPARI_FN marks the small functions of private headers. In a file that implements nothing they are
 * inline, so that a compiler without optimisation leaves them out. In the implementation the
 * compiler decides itself, which makes the code 5 % smaller. */
#if !defined(DPARI_NO_CODE)
#define DPARI_FN static DPARI_UNUSED
#else
#define DPARI_FN static DPARI_INLINED DPARI_UNUSED
#endif

/* DPARI_INTERNAL marks functions that the modules of one header share, and DPARI_API those that the
 * headers above it call as well. */
#ifdef DPARI_PASTED
#define DPARI_INTERNAL static DPARI_UNUSED
#else
#define DPARI_INTERNAL extern
#endif
#define DPARI_API DPAR_API

/* Prevents inlining. That keeps a large frame off call paths that do not need it, or keeps one copy
 * of a function with many callers if a call costs little compared with what the function does. */
#if defined(__GNUC__)
#define DPARI_NOINLINE __attribute__((noinline))
#else
#define DPARI_NOINLINE
#endif
#define DPARI_STATIC_NOINLINE static DPARI_NOINLINE

/* Compiles a function for size rather than speed. It is for functions that run once per job, plan
 * or picture, or a few times per step around microseconds of work, and for the functions that only
 * they call. The compiler also treats branches that lead to such a function as unlikely, and whole
 * functions that always call it. So never use it for a function that loops over elements, or for a
 * query that is called in a loop. */
#if defined(__GNUC__) && !defined(__OPTIMIZE_SIZE__)
#define DPARI_COLD __attribute__((cold))
#else
#define DPARI_COLD
#endif

/* Lets the compiler check the arguments of a message, from argument `first` on, against its format,
 * argument `form`. It can do so where int32_t is int and int64_t is long. */
#if defined(__linux__) && defined(__LP64__)
#define DPARI_PRINTF(form, first) __attribute__((format(printf, form, first)))
#else
#define DPARI_PRINTF(form, first)
#endif

/* Marks a function with variable arguments that takes no real numbers. Without the mark such a
 * function saves the registers for real numbers on its stack, 128 bytes on x86-64. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#if __GNUC__ >= 11
#define DPARI_NO_REALS __attribute__((target("general-regs-only")))
#endif
#endif
#ifndef DPARI_NO_REALS
#define DPARI_NO_REALS
#endif

/* Inlines a function at every call. DPARI_IS_CONSTANT is true if the compiler knows that `is`
 * holds. */
#if defined(__GNUC__)
#define DPARI_ALWAYS_INLINE static DPARI_INLINED __attribute__((always_inline)) DPARI_UNUSED
#define DPARI_IS_CONSTANT(is) (__builtin_constant_p(is) && (is))
#else
#define DPARI_ALWAYS_INLINE DPARI_FN
#define DPARI_IS_CONSTANT(is) 0
#endif

/* Computes a * b for non-negative numbers. Returns 0 if the product exceeds INT64_MAX. */
DPARI_FN int dpari_mul(int64_t a, int64_t b, int64_t *product)
{
#if defined(__SIZEOF_INT128__) /* uses the overflow flag; on small targets it would be a call */
    int64_t p;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &p)) {
        return 0;
    }
    *product = p;
#else
    if (a < 0 || b < 0 || (b > 0 && a > INT64_MAX / b)) {
        return 0;
    }
    *product = a * b;
#endif
    return 1;
}

/* Returns a / b rounded up, for a >= 0 and b > 0, without overflow. */
DPARI_FN int64_t dpari_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Returns a / b rounded towards minus infinity, for b > 0, as indices that wrap around need it. */
DPARI_FN int64_t dpari_floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

/* Returns the greatest common divisor, which is a if b is 0. */
DPARI_FN int64_t dpari_gcd(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

DPARI_FN int64_t dpari_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

DPARI_FN int64_t dpari_most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Returns |a|, which must not be INT64_MIN. */
DPARI_FN int64_t dpari_size(int64_t a)
{
    return a < 0 ? -a : a;
}

DPARI_FN double dpari_leastf(double a, double b)
{
    return a < b ? a : b;
}

DPARI_FN double dpari_mostf(double a, double b)
{
    return a > b ? a : b;
}

/* True if a is above b, where NaN is below all numbers. */
DPARI_FN int dpari_higher(double a, double b)
{
    return a > b || (a == a && b != b);
}

/* True if x is neither NaN nor infinite. */
DPARI_FN int dpari_finite(double x)
{
    return x - x < 1.0 && x - x > -1.0;
}

/* True if v is 0 or 1. */
DPARI_FN int dpari_is_flag(int32_t v)
{
    return v == 0 || v == 1;
}

/* Returns the first of two errors, or DPAR_OK if there is none. */
DPARI_FN dpar_status dpari_first_error(dpar_status first, dpar_status second)
{
    return first != DPAR_OK ? first : second;
}

DPARI_FN void dpari_zero(void *at, size_t bytes)
{
    unsigned char *p = (unsigned char *)at;
    size_t i;
    for (i = 0; i < bytes; i++) {
        p[i] = 0;
    }
}

/* Returns the length of a text. Without the bound, compilers would recognise strlen and call it,
 * which small targets may not have. No text reaches the bound, which is 2 GiB or half of the
 * address space. */
DPARI_FN size_t dpari_length(const char *s)
{
    size_t n = 0;
    while (n < ((size_t)-1 / 2 & 0x7fffffff) && s[n] != 0) {
        n++;
    }
    return n;
}

/* True if two texts are equal. */
DPARI_FN int dpari_same(const char *a, const char *b)
{
    size_t i = 0;
    while (a[i] != 0 && a[i] == b[i]) {
        i++;
    }
    return a[i] == b[i];
}

/* True if the slice [s, s + n) is the text `word`. */
DPARI_FN int dpari_spells(const char *s, size_t n, const char *word)
{
    size_t i;
    for (i = 0; i < n; i++) {
        if (word[i] == 0 || word[i] != s[i]) {
            return 0;
        }
    }
    return word[n] == 0;
}

/* Returns text n of a list of texts that each end in a NUL. Such a list needs no table of pointers,
 * which would have to be relocated at load time, and less memory than rows of equal length. */
DPARI_FN const char *dpari_nth_text(const char *texts, int32_t n)
{
    for (; n > 0; n--) {
        texts += dpari_length(texts) + 1;
    }
    return texts;
}

DPARI_FN char dpari_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* True if the slice is `word`, ignoring case. `word` must be in lower case. */
DPARI_FN int dpari_spells_any_case(const char *s, size_t n, const char *word)
{
    size_t i;
    for (i = 0; i < n; i++) {
        if (word[i] == 0 || word[i] != dpari_lower(s[i])) {
            return 0;
        }
    }
    return word[n] == 0;
}

/* Computes the edit distances (Levenshtein) between a slice and the prefixes of `word`, ignoring
 * case: row[k] is the distance to the prefix of k letters. Only the first 31 letters of the slice
 * count, and `word` has at most 31. Returns the length of `word`, so that row[length] is the
 * distance between slice and word. */
DPARI_FN int32_t dpari_edits(const char *s, size_t n, const char *word, int32_t row[32])
{
    const int32_t m = (int32_t)dpari_length(word), length = n < 31 ? (int32_t)n : 31;
    int32_t i, k;
    for (k = 0; k <= m; k++) {
        row[k] = k;
    }
    for (i = 1; i <= length; i++) {
        int32_t corner = row[0];
        row[0] = i;
        for (k = 1; k <= m; k++) {
            int32_t change = corner + (dpari_lower(s[i - 1]) != word[k - 1]);
            corner = row[k];
            row[k] = (int32_t)dpari_least(change, dpari_least(row[k], row[k - 1]) + 1);
        }
    }
    return m;
}

/* Returns the bytes of a UTF-8 byte order mark at the start of a file, 3 or 0. *left receives the
 * number of bytes after it. */
DPARI_FN size_t dpari_text_mark(const char *s, size_t n, size_t *left)
{
    size_t mark = n >= 3 && s[0] == '\xEF' && s[1] == '\xBB' && s[2] == '\xBF' ? 3 : 0;
    *left = n - mark;
    return mark;
}

/* Copies at most room - 1 of n characters, up to a NUL, and appends a NUL. */
DPARI_FN void dpari_copy_text(char *to, size_t room, const char *from, size_t n)
{
    size_t i;
    for (i = 0; i + 1 < room && i < n && from[i] != 0; i++) {
        to[i] = from[i];
    }
    to[i] = 0;
}

/* The bytes of a message, including its NUL. */
enum { DPARI_WHY_TEXT = sizeof(((dpar_why *)NULL)->text) };

/* Tells the caller of a call that fails with DPAR_E_ROOM how many bytes it needs. */
DPARI_FN void dpari_needs_bytes(dpar_why *why, int64_t bytes)
{
    if (why != NULL) {
        why->bytes = bytes;
    }
}

/* Writes a message into why->text, if why is not NULL, and returns `status`, so that a check can
 * end with `return dpari_say(...)`. In the format, %d takes an int32_t, %ld an int64_t, %s a text
 * that ends in NUL, and %.*s an int32_t and a text of that length. */
DPARI_API dpar_status dpari_say(dpar_status status, dpar_why *why, const char *form, ...)
    DPARI_PRINTF(3, 4);
/* Does the same with DPAR_E_ARG, the status of most messages. */
DPARI_API dpar_status dpari_wrong(dpar_why *why, const char *form, ...) DPARI_PRINTF(2, 3);
/* A program may pass NULL for `why` everywhere, as programs for small targets do. These macros
 * leave a message and its text out of such a program where the compiler knows that `why` is NULL.
 * They are needed because functions with variable arguments are never inlined. */
#if defined(__GNUC__) && defined(__OPTIMIZE__)
DPARI_ALWAYS_INLINE int dpari_unread(const dpar_why *why)
{
    return DPARI_IS_CONSTANT(why == NULL);
}
#define dpari_say(status, why, ...)                                                                \
    (dpari_unread(why) ? (dpar_status)(status) : dpari_say(status, why, __VA_ARGS__))
#define dpari_wrong(why, ...)                                                                      \
    (dpari_unread(why) ? (dpar_status)DPAR_E_ARG : dpari_wrong(why, __VA_ARGS__))
#endif
/* Copies `text`, the message of another call, into why->text and returns `status`. `text` may be
 * why->text itself. */
DPARI_API dpar_status dpari_repeat(dpar_status status, dpar_why *why, const char *text);
/* Does what dpari_say does, for functions that take a format and its arguments themselves. */
DPARI_API dpar_status dpari_say_list(dpar_status status, dpar_why *why, const char *form,
                                     va_list *list);

#endif
