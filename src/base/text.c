/* SPDX-License-Identifier: MIT-0 */
/* Formats text without the C library, for all functions that draw or report, and reads numbers.
 * Real numbers are converted exactly: a double is expanded to all of its decimal digits, in limbs
 * of nine digits, and then rounded, so that the same value gives the same text on every machine. */
#include "text.h"

#include "base_private.h"
#include "real.h"

#include <stdarg.h>

DPAR_API DPARI_COLD void dpar_text_init(dpar_text *text, char *buffer, size_t bytes)
{
    text->buffer = buffer;
    text->capacity = bytes;
    text->used = 0;
    text->line = 0;
    text->width = 0;
    if (bytes > 0) {
        buffer[0] = 0;
    }
}

DPARI_API DPARI_COLD void dpari_text_why(dpar_text *text, dpar_why *why)
{
    if (why != NULL) {
        dpar_text_init(text, why->text, sizeof why->text);
    } else {
        dpar_text_init(text, NULL, 0);
    }
}

DPARI_API DPARI_COLD void dpari_text_char(dpar_text *text, char c)
{
    if (text->used + 1 < text->capacity) {
        text->buffer[text->used] = c;
        text->buffer[text->used + 1] = 0;
    }
    text->used++;
    text->width += ((unsigned char)c & 0xC0u) != 0x80u; /* count UTF-8 starts only */
    if (c == '\n') {
        text->line = text->used;
        text->width = 0;
    }
}

DPARI_API DPARI_COLD void dpari_text_slice(dpar_text *text, const char *s, size_t n)
{
    size_t i;
    for (i = 0; i < n && s[i] != 0; i++) {
        dpari_text_char(text, s[i]);
    }
}

DPAR_API DPARI_COLD void dpar_text_put(dpar_text *text, const char *s)
{
    for (; *s != 0; s++) {
        dpari_text_char(text, *s);
    }
}

DPARI_API void dpari_text_int(dpar_text *text, int64_t v)
{
    uint64_t rest = v < 0 ? (uint64_t)0 - (uint64_t)v : (uint64_t)v;
    char digit[20];
    int n = 0;
    do {
        digit[n++] = (char)('0' + (int)(rest % 10));
        rest /= 10;
    } while (rest != 0);
    if (v < 0) {
        dpari_text_char(text, '-');
    }
    while (n > 0) {
        dpari_text_char(text, digit[--n]);
    }
}

/* A number >= 0 in limbs of nine decimal digits, most significant first, with `whole` of them
 * before the point: the sum of limb[i] * 10^(9 (whole - 1 - i)). If `whole` is negative, zeros
 * follow the point before the first limb; if it exceeds n, zeros follow the last limb.
 *
 * Multiplications and divisions by powers of two are exact, so that the same text is printed and
 * the same number read on every target. A double has at most 767 significant digits (86 limbs).
 * Digits of a longer input that do not fit only set `lost`, which decides how a tie is rounded. */
enum { DPARI_TEXT_LIMBS = 96, DPARI_TEXT_SHIFT = 29 }; /* limb x 2^29 plus a carry fits 64 bits */
typedef struct dpari_text_decimal {
    uint32_t limb[DPARI_TEXT_LIMBS];
    int32_t n, whole, lost;
} dpari_text_decimal;

static uint32_t dpari_text_ten(int32_t power)
{
    static const uint32_t ten[9] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
    return ten[power];
}

/* Returns p / 9 rounded down. The digit at 10^p is in limb whole - 1 - p / 9. */
static int32_t dpari_text_floor9(int32_t p)
{
    return p >= 0 ? p / 9 : -((8 - p) / 9);
}

static void dpari_text_append(dpari_text_decimal *d, uint32_t limb)
{
    if (d->n < DPARI_TEXT_LIMBS) {
        d->limb[d->n++] = limb;
    } else if (limb != 0) {
        d->lost = 1;
    }
}

/* Removes zero limbs at both ends. */
static void dpari_text_trim(dpari_text_decimal *d)
{
    int32_t i, zeros = 0;
    while (d->n > 0 && d->limb[d->n - 1] == 0) {
        d->n--;
    }
    while (zeros < d->n && d->limb[zeros] == 0) {
        zeros++;
    }
    for (i = zeros; zeros > 0 && i < d->n; i++) {
        d->limb[i - zeros] = d->limb[i];
    }
    d->n -= zeros;
    d->whole -= zeros;
}

/* Multiplies d by 2^k, 0 <= k <= DPARI_TEXT_SHIFT. */
static void dpari_text_double(dpari_text_decimal *d, int32_t k)
{
    uint64_t carry = 0;
    int32_t i;
    for (i = d->n - 1; i >= 0; i--) {
        carry += (uint64_t)d->limb[i] << k;
        d->limb[i] = (uint32_t)(carry % 1000000000u);
        carry /= 1000000000u;
    }
    if (carry > 0) {
        uint32_t last = d->n == DPARI_TEXT_LIMBS ? d->limb[--d->n] : 0;
        for (i = d->n; i > 0; i--) {
            d->limb[i] = d->limb[i - 1];
        }
        d->limb[0] = (uint32_t)carry;
        d->n++;
        d->whole++;
        dpari_text_append(d, last);
    }
    dpari_text_trim(d);
}

/* Divides d by 2^k, 0 <= k <= DPARI_TEXT_SHIFT. */
static void dpari_text_halve(dpari_text_decimal *d, int32_t k)
{
    uint64_t rest = 0;
    int32_t i;
    for (i = 0; i < d->n; i++) {
        rest = rest * 1000000000u + d->limb[i];
        d->limb[i] = (uint32_t)(rest >> k);
        rest -= (uint64_t)d->limb[i] << k;
    }
    while (rest > 0) {
        rest *= 1000000000u;
        dpari_text_append(d, (uint32_t)(rest >> k));
        rest -= rest >> k << k;
    }
    dpari_text_trim(d);
}

/* Computes all digits of v > 0. The mantissa is read as an integer of 64 bits, which no double
 * exceeds. */
static void dpari_text_expand(dpari_text_decimal *d, double v)
{
    int32_t e;
    uint64_t m = (uint64_t)(dpari_split(v, &e) * 9223372036854775808.0);
    for (e -= 63; m > 0 && m % 2 == 0; e++) {
        m /= 2;
    }
    d->limb[0] = (uint32_t)(m / UINT64_C(1000000000000000000));
    d->limb[1] = (uint32_t)(m / 1000000000u % 1000000000u);
    d->limb[2] = (uint32_t)(m % 1000000000u);
    d->n = d->whole = 3;
    d->lost = 0;
    dpari_text_trim(d);
    while (e != 0) {
        int32_t k = (int32_t)dpari_least(e < 0 ? -e : e, DPARI_TEXT_SHIFT);
        if (e > 0) {
            dpari_text_double(d, k);
        } else {
            dpari_text_halve(d, k);
        }
        e += e > 0 ? -k : k;
    }
}

/* Returns the digit at 10^p. */
static int32_t dpari_text_digit(const dpari_text_decimal *d, int32_t p)
{
    int32_t over = dpari_text_floor9(p), i = d->whole - 1 - over;
    return i < 0 || i >= d->n ? 0 : (int32_t)(d->limb[i] / dpari_text_ten(p - 9 * over) % 10);
}

/* Returns the power of ten of the first digit of d. d is greater than 0 and has no zero limbs at
 * its ends. */
static int32_t dpari_text_first(const dpari_text_decimal *d)
{
    int32_t p = 8;
    while (p > 0 && d->limb[0] < dpari_text_ten(p)) {
        p--;
    }
    return 9 * (d->whole - 1) + p;
}

/* Writes the digits at 10^high .. 10^low as characters, rounded half up. The caller chooses `high`
 * one above the first digit of d, so that a carry has a place. */
static void dpari_text_round(const dpari_text_decimal *d, int32_t high, int32_t low, char *digit)
{
    int32_t p, carry = dpari_text_digit(d, low - 1) >= 5;
    for (p = low; p <= high; p++) {
        carry += dpari_text_digit(d, p);
        digit[high - p] = (char)('0' + carry % 10);
        carry /= 10;
    }
}

/* Appends "nan", "inf" or "-inf" and returns 1 if v is one of these. */
static int dpari_text_special(dpar_text *text, double v)
{
    if (!(v <= 0.0 || v >= 0.0)) {
        dpar_text_put(text, "nan");
        return 1;
    }
    if (!dpari_finite(v)) {
        dpar_text_put(text, v < 0.0 ? "-inf" : "inf");
        return 1;
    }
    return 0;
}

DPARI_API DPARI_COLD void dpari_text_fixed(dpar_text *text, double v, int32_t decimals)
{
    dpari_text_decimal d;
    char digit[32]; /* 16 digits below 9e15, 9 decimals, and one for the carry */
    double size = v < 0.0 ? -v : v;
    int32_t high = 0, i, zero = 1;
    if (decimals < 0) {
        decimals = 0;
    } else if (decimals > 9) {
        decimals = 9;
    }
    if (size >= 9e15 || !(size >= 0.0)) {
        dpari_text_real(text, v, 6);
        return;
    }
    d.n = d.whole = d.lost = 0;
    if (size > 0.0) {
        dpari_text_expand(&d, size);
        high = dpari_text_first(&d);
        /* at most 16 digits before the point; with -ffast-math a NaN gets here and must fit too */
        high = high < 0 ? 1 : (int32_t)dpari_least(high, 15) + 1;
    }
    dpari_text_round(&d, high, -decimals, digit);
    for (i = 0; i <= high + decimals; i++) {
        zero = zero && digit[i] == '0';
    }
    if (v < 0.0 && !zero) {
        dpari_text_char(text, '-');
    }
    for (i = high > 0 && digit[0] == '0'; i <= high + decimals; i++) {
        if (i == high + 1) {
            dpari_text_char(text, '.');
        }
        dpari_text_char(text, digit[i]);
    }
}

/* Appends n digits with a point before digit `point`, and zeros where digits are missing. */
static void dpari_text_point(dpar_text *text, const char *digit, int32_t n, int32_t point)
{
    int32_t i;
    if (point <= 0) {
        dpar_text_put(text, "0.");
        for (i = point; i < 0; i++) {
            dpari_text_char(text, '0');
        }
        point = -1;
    }
    for (i = 0; i < n; i++) {
        if (i == point) {
            dpari_text_char(text, '.');
        }
        dpari_text_char(text, digit[i]);
    }
    for (; i < point; i++) {
        dpari_text_char(text, '0');
    }
}

DPARI_API DPARI_COLD void dpari_text_real(dpar_text *text, double v, int32_t digits)
{
    dpari_text_decimal d;
    char digit[20];
    int32_t n, from, first;
    if (digits < 1) {
        digits = 1;
    } else if (digits > 17) {
        digits = 17;
    }
    if (dpari_text_special(text, v)) {
        return;
    }
    if (v < 0.0) {
        dpari_text_char(text, '-');
        v = -v;
    }
    if (v <= 0.0) {
        dpari_text_char(text, '0');
        return;
    }
    dpari_text_expand(&d, v);
    first = dpari_text_first(&d);
    dpari_text_round(&d, first + 1, first - digits + 1, digit);
    from = digit[0] == '0';
    first += 1 - from; /* 1 if rounding added a digit, as from 9.99 to 10.0 */
    n = digits;
    while (n > 1 && digit[from + n - 1] == '0') { /* no trailing zeros */
        n--;
    }
    if (first >= -4 && first < digits) {
        dpari_text_point(text, digit + from, n, first + 1);
        return;
    }
    dpari_text_point(text, digit + from, n, 1);
    dpar_text_put(text, first < 0 ? "e-" : "e+");
    first = first < 0 ? -first : first;
    if (first < 10) {
        dpari_text_char(text, '0');
    }
    dpari_text_int(text, first);
}

DPARI_API DPARI_COLD void dpari_text_column(dpar_text *text, size_t column)
{
    while (text->width < column) {
        dpari_text_char(text, ' ');
    }
}

/* Appends `cell`, of `used` characters, after blanks that fill it up to `width` characters. */
static void dpari_text_right(dpar_text *text, const char *cell, size_t used, size_t width)
{
    for (; width > used; width--) {
        dpari_text_char(text, ' ');
    }
    dpar_text_put(text, cell);
}

/* Appends the format up to its end or to the next real number, and returns that position. Real
 * numbers are handled by another function, so that texts without them need less stack. */
static DPARI_COLD const char *dpari_text_until_real(dpar_text *text, const char *form,
                                                    va_list *list)
{
    for (; *form != 0; form++) {
        const char *at = form;
        char cell[32];
        size_t width = 0;
        dpar_text c;
        if (*form != '%') {
            dpari_text_char(text, *form);
            continue;
        }
        for (form++; *form >= '0' && *form <= '9'; form++) {
            width = 10 * width + (size_t)(*form - '0');
        }
        if (*form == '.' && form[1] == '*') {
            const int32_t length = va_arg(*list, int32_t);
            dpari_text_slice(text, va_arg(*list, const char *), (size_t)length);
            form += 2;
            continue;
        }
        if (*form == '.') {
            return at;
        }
        dpar_text_init(&c, cell, sizeof cell);
        if (*form == 's') {
            dpar_text_put(width > 0 ? &c : text, va_arg(*list, const char *));
        } else if (*form == '%') {
            dpari_text_char(text, '%');
        } else {
            const int64_t v = *form == 'l' ? va_arg(*list, int64_t) : va_arg(*list, int32_t);
            form += *form == 'l';
            dpari_text_int(&c, v);
        }
        dpari_text_right(text, cell, c.used, width);
    }
    return form;
}

DPARI_API DPARI_COLD DPARI_NO_REALS void dpari_text_say(dpar_text *text, const char *form, ...)
{
    va_list list;
    va_start(list, form);
    (void)dpari_text_until_real(text, form, &list);
    va_end(list);
}

/* Messages have their own loop, without widths, because it needs less stack than the one for
 * drawings, and every check on a small target may write a message. */
DPARI_API DPARI_COLD dpar_status dpari_say_list(dpar_status status, dpar_why *why, const char *form,
                                                va_list *list)
{
    dpar_text t;
    if (why == NULL) {
        return status;
    }
    dpar_text_init(&t, why->text, sizeof why->text);
    for (; *form != 0; form++) {
        if (*form != '%') {
            dpari_text_char(&t, *form);
            continue;
        }
        form++;
        if (*form == 'd') {
            dpari_text_int(&t, va_arg(*list, int32_t));
        } else if (*form == 'l') { /* %ld */
            dpari_text_int(&t, va_arg(*list, int64_t));
            form++;
        } else if (*form == 's') {
            const char *word = va_arg(*list, const char *);
            dpar_text_put(&t, word != NULL ? word : "(none)");
        } else if (*form == '.') { /* %.*s */
            const size_t length = (size_t)va_arg(*list, int32_t);
            dpari_text_slice(&t, va_arg(*list, const char *), length);
            form += 2;
        } else {
            dpari_text_char(&t, *form); /* %% */
        }
    }
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_repeat(dpar_status status, dpar_why *why, const char *text)
{
    if (why != NULL && why->text != text) {
        dpari_copy_text(why->text, sizeof why->text, text, sizeof why->text);
    }
    return status;
}

/* The names are in parentheses because macros have the same names. */
DPARI_API DPARI_COLD DPARI_NO_REALS dpar_status(dpari_say)(dpar_status status, dpar_why *why,
                                                           const char *form, ...)
{
    va_list list;
    va_start(list, form);
    status = dpari_say_list(status, why, form, &list);
    va_end(list);
    return status;
}

DPARI_API DPARI_COLD DPARI_NO_REALS dpar_status(dpari_wrong)(dpar_why *why, const char *form, ...)
{
    dpar_status status;
    va_list list;
    va_start(list, form);
    status = dpari_say_list(DPAR_E_ARG, why, form, &list);
    va_end(list);
    return status;
}

DPARI_API DPARI_COLD void dpari_text_print_list(dpar_text *text, const char *form, va_list *list)
{
    while (*(form = dpari_text_until_real(text, form, list)) != 0) {
        /* form points to %, which a width, a point and a digit follow */
        char cell[32];
        size_t width = 0;
        int32_t digits;
        double v = va_arg(*list, double);
        dpar_text c;
        for (form++; *form != '.'; form++) {
            width = 10 * width + (size_t)(*form - '0');
        }
        digits = form[1] - '0';
        form += 2;
        dpar_text_init(&c, cell, sizeof cell);
        if (*form == 'f') {
            dpari_text_fixed(width > 0 ? &c : text, v, digits);
        } else {
            v = *form == 'g' || dpari_finite(v) ? v : 0.0;
            dpari_text_real(width > 0 ? &c : text, v, digits);
        }
        form++;
        dpari_text_right(text, cell, c.used, width);
    }
}

DPARI_API DPARI_COLD void dpari_text_print(dpar_text *text, const char *form, ...)
{
    va_list list;
    va_start(list, form);
    dpari_text_print_list(text, form, &list);
    va_end(list);
}

/* Returns m * 2^e. Each step is exact unless the result is out of the range of a double. */
static double dpari_text_scale(uint64_t m, int32_t e)
{
    double v = (double)m;
    for (; e >= 32; e -= 32) {
        v *= 4294967296.0;
    }
    for (; e <= -32; e += 32) {
        v *= 1.0 / 4294967296.0;
    }
    for (; e > 0; e--) {
        v *= 2.0;
    }
    for (; e < 0; e++) {
        v *= 0.5;
    }
    return v;
}

/* Returns the whole part of d, which must be below 10^18. */
static uint64_t dpari_text_whole(const dpari_text_decimal *d)
{
    uint64_t u = 0;
    int32_t i;
    for (i = 0; i < d->whole; i++) {
        u = u * 1000000000u + (i < d->n ? d->limb[i] : 0);
    }
    return u;
}

/* Returns the double nearest to d, with ties to even. It scales d to an integer u of more than 53
 * bits with a binary exponent e, and then drops bits so that 53 are left, or fewer below 2^-1022.
 */
static double dpari_text_nearest(dpari_text_decimal *d)
{
    uint64_t u, rest, half;
    int32_t e = 0, drop;
    while (d->whole > 2) {
        dpari_text_halve(d, DPARI_TEXT_SHIFT);
        e += DPARI_TEXT_SHIFT;
    }
    for (; d->whole < 1; e -= DPARI_TEXT_SHIFT) {
        dpari_text_double(d, DPARI_TEXT_SHIFT);
    }
    for (u = dpari_text_whole(d); u >> 53 == 0; u = dpari_text_whole(d)) {
        dpari_text_double(d, 6); /* stays below 2^59 < 10^18 */
        e -= 6;
    }
    drop = 1;
    while (u >> drop >> 53 != 0) {
        drop++;
    }
    drop = e + drop < -1074 ? -1074 - e : drop;
    if (drop > 62) {
        return 0.0;
    }
    half = (uint64_t)1 << (drop - 1);
    rest = u & (2 * half - 1);
    u >>= drop;
    if (rest > half || (rest == half && (u % 2 != 0 || d->n > d->whole || d->lost))) {
        u++;
    }
    return dpari_text_scale(u, e + drop);
}

/* Returns the value of n characters, digits and at most one point. The first digit is at 10^power.
 */
static double dpari_text_value(const char *s, size_t n, int64_t power)
{
    dpari_text_decimal d;
    int32_t p, over;
    for (; n > 0 && (*s == '0' || *s == '.'); s++, n--) {
        power -= *s == '0';
    }
    if (n == 0 || power < -330) {
        return 0.0;
    }
    p = power > 400 ? 400 : (int32_t)power; /* 10^400 is infinite as a double */
    over = dpari_text_floor9(p);
    d.whole = over + 1;
    d.n = d.lost = 0;
    dpari_text_append(&d, 0);
    for (; n > 0; s++, n--) {
        if (*s == '.') {
            continue;
        }
        if (dpari_text_floor9(p) != over) {
            over--;
            dpari_text_append(&d, 0);
        }
        if (over == d.whole - d.n) {
            d.limb[d.n - 1] += (uint32_t)(*s - '0') * dpari_text_ten(p - 9 * over);
        } else {
            d.lost |= *s != '0';
        }
        p -= over >= d.whole - d.n; /* after the last limb p does not change any more */
    }
    dpari_text_trim(&d);
    return dpari_text_nearest(&d);
}

/* Returns the number of consecutive digits from `at` on. */
static size_t dpari_text_run(const char *s, size_t at, size_t n)
{
    size_t from = at;
    while (at < n && s[at] >= '0' && s[at] <= '9') {
        at++;
    }
    return at - from;
}

/* Reads an exponent at s. Returns its number of characters, or 0 if there is none. */
static size_t dpari_text_exponent(const char *s, size_t n, int64_t *exponent)
{
    int64_t e = 0;
    size_t at = 1, digits;
    if (n == 0 || (s[0] != 'e' && s[0] != 'E')) {
        return 0;
    }
    at += n > 1 && (s[1] == '-' || s[1] == '+');
    digits = dpari_text_run(s, at, n);
    if (digits == 0) {
        return 0;
    }
    for (; digits > 0; digits--, at++) {
        e = e < INT64_MAX / 20 ? e * 10 + (s[at] - '0') : e;
    }
    *exponent = s[1] == '-' ? -e : e;
    return at;
}

DPARI_API DPARI_COLD size_t dpari_text_number(const char *s, size_t n, double *value)
{
    int64_t exponent = 0;
    size_t start = n > 0 && (s[0] == '-' || s[0] == '+'), whole, part = 0, end;
    double v;
    whole = dpari_text_run(s, start, n);
    end = start + whole;
    if (end < n && s[end] == '.') {
        part = dpari_text_run(s, end + 1, n);
        end += whole + part > 0 ? 1 + part : 0;
    }
    if (whole + part == 0) {
        return 0;
    }
    n = end + dpari_text_exponent(s + end, n - end, &exponent);
    v = dpari_text_value(s + start, end - start, exponent + (int64_t)whole - 1);
    *value = s[0] == '-' ? -v : v;
    return n;
}
