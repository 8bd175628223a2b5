/* SPDX-License-Identifier: MIT-0 */
/* exact_bins - private: adds floats and products to the digits of a sum, and rounds sums. It uses
 * integers only, so that no compiler option and no mode of the CPU changes a result. */
#ifndef DPARI_EXACT_EXACT_BINS_H
#define DPARI_EXACT_EXACT_BINS_H

#include "../base/arith.h"
#include "exact.h"

enum {
    DPARI_EX_BASE = 2176,             /* bit of digit 0 with weight 2^-2176; 32 * 68 */
    DPARI_EX_NAN = DPAR_EXACT_DIGITS, /* the words that count what is not finite */
    DPARI_EX_INF,
    DPARI_EX_MINUS_INF
};
/* A sum is normalized after this number of additions. Each adds less than 2^33 to a digit. */
#define DPARI_EX_PENDING (INT64_C(1) << 28)

/* The bits of a type of floats. */
typedef struct dpari_ex_format {
    int32_t bytes, fraction; /* bits of the fraction */
    int32_t exponents;       /* bits of the exponent */
    int32_t lowest;          /* the smallest positive number is 2^lowest */
} dpari_ex_format;

/* Returns the format of a type; its bytes are 0 if the type is not one of the four. */
DPARI_ALWAYS_INLINE dpari_ex_format dpari_ex_format_of(int32_t type)
{
    dpari_ex_format format = {0, 0, 0, 0};
    if (type == DPAR_F64) {
        format.bytes = 8;
        format.fraction = 52;
        format.exponents = 11;
    } else if (type == DPAR_F32) {
        format.bytes = 4;
        format.fraction = 23;
        format.exponents = 8;
    } else if (type == DPAR_BF16) {
        format.bytes = 2;
        format.fraction = 7;
        format.exponents = 8;
    } else if (type == DPAR_F16) {
        format.bytes = 2;
        format.fraction = 10;
        format.exponents = 5;
    }
    if (format.bytes > 0) {
        format.lowest = 2 - (1 << (format.exponents - 1)) - format.fraction;
    }
    return format;
}

/* Checks a term. */
DPARI_INTERNAL dpar_status dpari_ex_check(const dpar_exact_term *term, dpar_why *why);

/* Add count elements, or count products. */
DPARI_INTERNAL void dpari_ex_add_each(dpar_exact *sum, const void *x, int64_t count, int32_t type);
DPARI_INTERNAL void dpari_ex_add_products(dpar_exact *sum, const void *x, const void *y,
                                          int64_t count, int32_t type);

/* The words that a sum of a type, or of products of a type, may change: first to last - 1. */
DPARI_INTERNAL void dpari_ex_range(int32_t type, int products, int32_t *first, int32_t *last);

/* Carries from digits first to last - 2 to the next one. */
DPARI_INTERNAL void dpari_ex_carry(int64_t *word, int32_t first, int32_t last);

#endif
