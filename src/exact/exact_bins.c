/* SPDX-License-Identifier: MIT-0 */
/* Adds floats and products to the digits of a sum, carries, and rounds sums and their roots. An
 * element is an integer of at most 53 bits times a power of two, a product one of at most 106 bits.
 * It is shifted by less than 32 bits, cut into pieces of 32 bits and added to three to five digits.
 * Digits are signed and have 64 bits, so that 2^28 elements can be added before carries. */
#include "exact_bins.h"

#include "../host/elements.h"

DPARI_INTERNAL DPARI_COLD dpar_status dpari_ex_check(const dpar_exact_term *term, dpar_why *why)
{
    int64_t elements = term->dims > 0 ? 1 : term->count;
    int32_t d;
    if (term->kind < 0 || term->kind >= DPAR_EXACT_KIND_COUNT) {
        return dpari_wrong(why, "exact: kind is %d, but must be DPAR_EXACT_SUM, _DOT or _NORM",
                           term->kind);
    }
    if (dpari_ex_format_of(term->type).bytes == 0) {
        return dpari_wrong(why, "exact: type is %s (%d), but must be f64, f32, bf16 or f16",
                           dpar_type_name(term->type), term->type);
    }
    if (term->dims < 0 || term->dims > DPAR_MEM_DIMS || term->count < 0) {
        return dpari_wrong(
            why,
            "exact: count is %ld and dims %d, but count must be 0 or more and dims 0 "
            "to %d",
            term->count, term->dims, (int32_t)DPAR_MEM_DIMS);
    }
    for (d = 0; d < term->dims; d++) {
        if (term->extent[d] < 0) {
            return dpari_wrong(why, "exact: extent[%d] is %ld, but must be 0 or more", d,
                               term->extent[d]);
        }
        elements = term->extent[d] == 0 ? 0 : elements;
    }
    if (elements != 0 && (!term->x || (term->kind == DPAR_EXACT_DOT && !term->y))) {
        return dpari_wrong(why, "exact: %s is NULL, but there are elements", term->x ? "y" : "x");
    }
    return DPAR_OK;
}

/* ---- elements -------------------------------------------------------------------------------- */

/* What an element is if it is not a finite number other than zero. */
enum { DPARI_EX_IS_FINITE, DPARI_EX_IS_ZERO, DPARI_EX_IS_INF, DPARI_EX_IS_NAN };

/* An element: mantissa * 2^(lowest + shift), with a sign. */
typedef struct dpari_ex_element {
    uint64_t mantissa;
    int32_t shift, negative, kind;
} dpari_ex_element;

/* Reads element i. */
DPARI_ALWAYS_INLINE void dpari_ex_read(dpari_ex_element *element, const void *x, int64_t i,
                                       dpari_ex_format format)
{
    const unsigned char *at = (const unsigned char *)x + i * format.bytes;
    const int32_t top = (1 << format.exponents) - 1;
    uint64_t bits;
    int32_t exponent;
    if (format.bytes == 8) {
        dpari_elements_bits(&bits, at, 8);
    } else if (format.bytes == 4) {
        uint32_t word;
        dpari_elements_bits(&word, at, 4);
        bits = word;
    } else {
        uint16_t word;
        dpari_elements_bits(&word, at, 2);
        bits = word;
    }
    exponent = (int32_t)(bits >> format.fraction) & top;
    element->mantissa = bits & ((UINT64_C(1) << format.fraction) - 1);
    element->negative = (int32_t)(bits >> (format.fraction + format.exponents)) & 1;
    element->shift = exponent > 0 ? exponent - 1 : 0;
    element->kind = DPARI_EX_IS_FINITE;
    if (exponent == top) {
        element->kind = element->mantissa == 0 ? DPARI_EX_IS_INF : DPARI_EX_IS_NAN;
    } else if (exponent > 0) {
        element->mantissa |= UINT64_C(1) << format.fraction;
    } else if (element->mantissa == 0) {
        element->kind = DPARI_EX_IS_ZERO;
    }
}

/* Counts an element or product that is not finite. */
static void dpari_ex_count(dpar_exact *sum, int is_nan, int negative)
{
    if (is_nan) {
        sum->word[DPARI_EX_NAN]++;
    } else {
        sum->word[negative ? DPARI_EX_MINUS_INF : DPARI_EX_INF]++;
    }
}

/* Prevents gcc from combining additions to neighbouring digits into one of vectors. The next one
 * would wait for such a store, which overlaps what it loads. */
#if defined(__GNUC__)
#define DPARI_EX_APART() __asm__ volatile("" : : : "memory")
#else
#define DPARI_EX_APART() ((void)0)
#endif

/* Adds an integer of n pieces of 32 bits, whose lowest bit is bit `shift` of digit 0, to n + 1
 * digits. sign: 0 or -1. */
DPARI_ALWAYS_INLINE void dpari_ex_add_limbs(int64_t *digit, const uint64_t *limb, int32_t n,
                                            int32_t shift, int64_t sign)
{
    uint64_t carry = 0;
    int32_t k;
    for (k = 0; k < n; k++) {
        const uint64_t shifted = limb[k] << shift;
        digit[k] += ((int64_t)(carry + (shifted & UINT32_MAX)) ^ sign) - sign;
        carry = shifted >> 32;
        DPARI_EX_APART();
    }
    digit[n] += ((int64_t)carry ^ sign) - sign;
}

/* Notes that n elements are to be added, and carries before digits may overflow. Returns how many
 * of them may be added now. */
static int64_t dpari_ex_take(dpar_exact *sum, int64_t n)
{
    const int64_t some = dpari_least(n, DPARI_EX_PENDING);
    if (sum->pending + some > DPARI_EX_PENDING) {
        dpar_exact_normalize(sum);
    }
    sum->pending += some;
    return some;
}

/* Adds n elements of one format, which the compiler knows. */
DPARI_ALWAYS_INLINE void dpari_ex_add_format(dpar_exact *sum, const void *x, int64_t n,
                                             dpari_ex_format format)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        dpari_ex_element element;
        uint64_t limb[2];
        uint32_t bit;
        dpari_ex_read(&element, x, i, format);
        if (element.kind >= DPARI_EX_IS_INF) {
            dpari_ex_count(sum, element.kind == DPARI_EX_IS_NAN, element.negative);
            continue;
        }
        bit = (uint32_t)(DPARI_EX_BASE + format.lowest + element.shift);
        limb[0] = element.mantissa & UINT32_MAX;
        limb[1] = element.mantissa >> 32;
        dpari_ex_add_limbs(sum->word + bit / 32, limb, format.fraction >= 32 ? 2 : 1,
                           (int32_t)(bit % 32), -(int64_t)element.negative);
    }
}

/* Adds the product of two finite numbers. bit: position of its lowest bit. */
static void dpari_ex_add_product(dpar_exact *sum, uint64_t a, uint64_t b, uint32_t bit,
                                 int64_t sign)
{
    const uint64_t low = (a & UINT32_MAX) * (b & UINT32_MAX);
    const uint64_t middle =
        (low >> 32) + (a & UINT32_MAX) * (b >> 32) + (a >> 32) * (b & UINT32_MAX);
    const uint64_t high = (middle >> 32) + (a >> 32) * (b >> 32);
    uint64_t limb[4];
    limb[0] = low & UINT32_MAX;
    limb[1] = middle & UINT32_MAX;
    limb[2] = high & UINT32_MAX;
    limb[3] = high >> 32;
    dpari_ex_add_limbs(sum->word + bit / 32, limb, 4, (int32_t)(bit % 32), sign);
}

DPARI_INTERNAL void dpari_ex_add_each(dpar_exact *sum, const void *x, int64_t count, int32_t type)
{
    const dpari_ex_format format = dpari_ex_format_of(type);
    while (count > 0) {
        const int64_t n = dpari_ex_take(sum, count);
        if (type == DPAR_F64) {
            dpari_ex_add_format(sum, x, n, dpari_ex_format_of(DPAR_F64));
        } else {
            dpari_ex_add_format(sum, x, n, format);
        }
        x = (const unsigned char *)x + n * format.bytes;
        count -= n;
    }
}

/* Adds n products of one format, which the compiler knows. */
DPARI_ALWAYS_INLINE void dpari_ex_add_product_format(dpar_exact *sum, const void *x, const void *y,
                                                     int64_t n, dpari_ex_format format)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        dpari_ex_element a, b;
        int32_t negative, largest, zero;
        dpari_ex_read(&a, x, i, format);
        dpari_ex_read(&b, y, i, format);
        negative = a.negative ^ b.negative;
        largest = a.kind > b.kind ? a.kind : b.kind;
        zero = a.kind == DPARI_EX_IS_ZERO || b.kind == DPARI_EX_IS_ZERO;
        if (largest >= DPARI_EX_IS_INF) {
            dpari_ex_count(sum, largest == DPARI_EX_IS_NAN || zero, negative);
        } else if (!zero) {
            dpari_ex_add_product(sum, a.mantissa, b.mantissa,
                                 (uint32_t)(DPARI_EX_BASE + 2 * format.lowest + a.shift + b.shift),
                                 -(int64_t)negative);
        }
    }
}

DPARI_INTERNAL void dpari_ex_add_products(dpar_exact *sum, const void *x, const void *y,
                                          int64_t count, int32_t type)
{
    const dpari_ex_format format = dpari_ex_format_of(type);
    while (count > 0) {
        const int64_t n = dpari_ex_take(sum, count);
        if (type == DPAR_F64) {
            dpari_ex_add_product_format(sum, x, y, n, dpari_ex_format_of(DPAR_F64));
        } else {
            dpari_ex_add_product_format(sum, x, y, n, format);
        }
        x = (const unsigned char *)x + n * format.bytes;
        y = (const unsigned char *)y + n * format.bytes;
        count -= n;
    }
}

/* ---- carries --------------------------------------------------------------------------------- */

DPARI_INTERNAL void dpari_ex_range(int32_t type, int products, int32_t *first, int32_t *last)
{
    const dpari_ex_format format = dpari_ex_format_of(type);
    const int32_t times = products ? 2 : 1;
    const int32_t highest = 1 << (format.exponents - 1); /* all elements are below 2^highest */
    *first = (DPARI_EX_BASE + times * format.lowest) / 32;
    /* a sum of 2^63 elements needs 63 bits more, and a sign */
    *last = (DPARI_EX_BASE + times * highest + 64) / 32 + 1;
}

/* Digits become -2^31 to 2^31 - 1, so that a carry soon ends in sums of either sign. */
DPARI_INTERNAL void dpari_ex_carry(int64_t *word, int32_t first, int32_t last)
{
    int32_t d;
    while (first < last && word[first] == 0) {
        first++;
    }
    for (d = first; d < last - 1; d++) {
        /* rounds to nearest; gcc, clang and MSVC shift negative numbers arithmetically */
        const int64_t carry = (word[d] + (INT64_C(1) << 31)) >> 32;
        word[d] -= carry * (INT64_C(1) << 32);
        word[d + 1] += carry;
    }
}

DPAR_API void dpar_exact_normalize(dpar_exact *sum)
{
    if (sum) {
        dpari_ex_carry(sum->word, 0, DPAR_EXACT_DIGITS);
        sum->pending = 0;
    }
}

DPAR_API void dpar_exact_merge(dpar_exact *sum, const dpar_exact *other)
{
    int32_t i;
    if (!sum || !other) {
        return;
    }
    dpar_exact_normalize(sum);
    for (i = 0; i < DPAR_EXACT_WORDS; i++) {
        sum->word[i] += other->word[i];
    }
    dpar_exact_normalize(sum);
}

/* ---- results --------------------------------------------------------------------------------- */

/* A sum as a sign and 32-bit digits without sign. */
typedef struct dpari_ex_number {
    uint32_t digit[DPAR_EXACT_DIGITS + 3]; /* the last two are 0, for dpari_ex_bits */
    int32_t negative, top;                 /* top: position of its highest bit; -1 if it is zero */
} dpari_ex_number;

/* Returns a bit; bits below bit 0 are zero. */
static uint32_t dpari_ex_bit(const dpari_ex_number *number, int32_t bit)
{
    return bit < 0 ? 0 : number->digit[bit / 32] >> bit % 32 & 1;
}

/* Returns the 64 bits from bit `low` on. */
static uint64_t dpari_ex_bits(const dpari_ex_number *number, int32_t low)
{
    const uint32_t *digit = number->digit + low / 32;
    const int32_t shift = low % 32;
    const uint64_t bits = (uint64_t)digit[1] << 32 | digit[0];
    return shift == 0 ? bits : bits >> shift | (uint64_t)digit[2] << (64 - shift);
}

/* True if any bit below `bit` is set. */
static int dpari_ex_below(const dpari_ex_number *number, int32_t bit)
{
    int32_t d;
    for (d = 0; d < bit / 32; d++) {
        if (number->digit[d] != 0) {
            return 1;
        }
    }
    return bit > 0 && (number->digit[d] & ((UINT32_C(1) << bit % 32) - 1)) != 0;
}

static DPARI_COLD void dpari_ex_split(dpari_ex_number *number, const dpar_exact *sum)
{
    dpar_exact copy = *sum;
    int64_t borrow = 0;
    int32_t d, sign = 1, top = DPAR_EXACT_DIGITS - 1;
    dpar_exact_normalize(&copy);
    while (top > 0 && copy.word[top] == 0) {
        top--;
    }
    if (copy.word[top] < 0) {
        sign = -1;
    }
    for (d = 0; d < DPAR_EXACT_DIGITS; d++) {
        const int64_t digit = sign * copy.word[d] + borrow;
        number->digit[d] = (uint32_t)((uint64_t)digit & UINT32_MAX);
        borrow = (digit - (int64_t)number->digit[d]) / (INT64_C(1) << 32);
    }
    number->digit[DPAR_EXACT_DIGITS] =
        (uint32_t)borrow; /* of the last digit, which may be larger */
    number->negative = sign < 0;
    number->digit[DPAR_EXACT_DIGITS + 1] = number->digit[DPAR_EXACT_DIGITS + 2] = 0;
    top = DPAR_EXACT_DIGITS;
    while (top >= 0 && number->digit[top] == 0) {
        top--;
    }
    number->top = 32 * top + 31;
    while (number->top >= 0 && !dpari_ex_bit(number, number->top)) {
        number->top--;
    }
}

/* Returns the double with these bits. */
static double dpari_ex_double(int negative, uint64_t bits)
{
    double value;
    bits |= (uint64_t)(negative != 0) << 63;
    dpari_elements_bits(&value, &bits, 8);
    return value;
}

static double dpari_ex_infinity(int negative)
{
    return dpari_ex_double(negative, UINT64_C(0x7ff) << 52);
}

static double dpari_ex_not_a_number(void)
{
    return dpari_ex_double(0, UINT64_C(0xfff) << 51);
}

/* Returns mantissa * 2^exponent as a double. `mantissa` is rounded to the type, at most 2^53. */
static double dpari_ex_scaled(int negative, uint64_t mantissa, int32_t exponent,
                              dpari_ex_format format)
{
    int32_t top = 0;
    if (mantissa == 0) {
        return dpari_ex_double(negative, 0);
    }
    while (mantissa >> top > 1) {
        top++;
    }
    if (top + exponent >= 1 << (format.exponents - 1)) {
        return dpari_ex_infinity(negative);
    }
    if (top + exponent < -1022) { /* a subnormal double: exponent is -1074 */
        return dpari_ex_double(negative, mantissa);
    }
    mantissa = top > 52 ? mantissa >> (top - 52) : mantissa << (52 - top); /* 2^53 loses no bit */
    mantissa &= (UINT64_C(1) << 52) - 1;
    return dpari_ex_double(negative, mantissa | (uint64_t)(top + exponent + 1023) << 52);
}

/* Returns the result if the sum has a NaN or an inf, or the type is wrong. */
static int dpari_ex_is_special(const dpar_exact *sum, int32_t type, double *result)
{
    const int64_t *word = sum->word;
    if (dpari_ex_format_of(type).bytes == 0 || word[DPARI_EX_NAN] != 0 ||
        (word[DPARI_EX_INF] != 0 && word[DPARI_EX_MINUS_INF] != 0)) {
        *result = dpari_ex_not_a_number();
        return 1;
    }
    if (word[DPARI_EX_INF] == 0 && word[DPARI_EX_MINUS_INF] == 0) {
        return 0;
    }
    *result = dpari_ex_infinity(word[DPARI_EX_MINUS_INF] != 0);
    return 1;
}

DPAR_API DPARI_COLD double dpar_exact_result(const dpar_exact *sum, int32_t type)
{
    const dpari_ex_format format = dpari_ex_format_of(type);
    dpari_ex_number number;
    uint64_t mantissa;
    double result = 0.0;
    int32_t low;
    if (!sum || dpari_ex_is_special(sum, type, &result)) {
        return result;
    }
    dpari_ex_split(&number, sum);
    /* the lowest bit that the type keeps */
    low = (int32_t)dpari_most(number.top - format.fraction, DPARI_EX_BASE + format.lowest);
    mantissa = dpari_ex_bits(&number, low);
    if (dpari_ex_bit(&number, low - 1) &&
        ((mantissa & 1) != 0 || dpari_ex_below(&number, low - 1))) {
        mantissa++;
    }
    return dpari_ex_scaled(number.negative, mantissa, low - DPARI_EX_BASE, format);
}

/* Computes the root bit by bit, from two bits of the number each, as by hand. */
DPAR_API DPARI_COLD double dpar_exact_root(const dpar_exact *sum, int32_t type)
{
    const dpari_ex_format format = dpari_ex_format_of(type);
    dpari_ex_number number;
    uint64_t root = 0, rest = 0;
    double result = 0.0;
    int32_t low, bit;
    if (!sum) {
        return 0.0;
    }
    if (dpari_ex_is_special(sum, type, &result)) {
        return sum->word[DPARI_EX_MINUS_INF] != 0 ? dpari_ex_not_a_number() : result;
    }
    dpari_ex_split(&number, sum);
    if (number.top < 0) {
        return 0.0;
    }
    if (number.negative) {
        return dpari_ex_not_a_number();
    }
    /* Bit b of the root comes from bits 2 b and 2 b + 1; the bit below `low` rounds. */
    low = (int32_t)dpari_most(number.top / 2 - format.fraction, DPARI_EX_BASE / 2 + format.lowest);
    for (bit = number.top / 2; bit >= low - 1; bit--) {
        const uint64_t trial = root << 2 | 1;
        rest = rest << 2 | dpari_ex_bit(&number, 2 * bit + 1) << 1 | dpari_ex_bit(&number, 2 * bit);
        root <<= 1;
        if (rest >= trial) {
            rest -= trial;
            root |= 1;
        }
    }
    if ((root & 1) != 0 && ((root & 2) != 0 || rest != 0 || dpari_ex_below(&number, 2 * low - 2))) {
        root += 2;
    }
    return dpari_ex_scaled(0, root >> 1, low - DPARI_EX_BASE / 2, format);
}
