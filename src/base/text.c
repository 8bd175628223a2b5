/* SPDX-License-Identifier: MIT-0 */
#include "text.h"

#include "arith.h"

DPAR_API void dpar_text_init(dpar_text *t, char *buffer, size_t bytes)
{
    t->at = buffer;
    t->room = bytes;
    t->used = 0;
    t->line = 0;
    if (bytes > 0) {
        buffer[0] = 0;
    }
}

DPAR_API void dpar_text_char(dpar_text *t, char c)
{
    if (t->used + 1 < t->room) {
        t->at[t->used] = c;
        t->at[t->used + 1] = 0;
    }
    t->used++;
    if (c == '\n') {
        t->line = t->used;
    }
}

DPAR_API void dpar_text_slice(dpar_text *t, const char *s, size_t n)
{
    size_t i;
    for (i = 0; i < n && s[i] != 0; i++) {
        dpar_text_char(t, s[i]);
    }
}

DPAR_API void dpar_text_put(dpar_text *t, const char *s)
{
    dpar_text_slice(t, s, dpari_length(s));
}

DPAR_API void dpar_text_int(dpar_text *t, int64_t v)
{
    char digits[24];
    dpar_text_slice(t, digits, dpari_say_int(digits, sizeof(digits), v));
}

/* Digits of u, at least `width` of them. */
static void dpari_text_digits(dpar_text *t, uint64_t u, int32_t width)
{
    char digit[20];
    int32_t n = 0;
    do {
        digit[n++] = (char)('0' + (int)(u % 10));
        u /= 10;
    } while (u != 0 && n < 20);
    for (; width > n; width--) {
        dpar_text_char(t, '0');
    }
    while (n > 0) {
        dpar_text_char(t, digit[--n]);
    }
}

static int dpari_text_special(dpar_text *t, double v)
{
    if (!(v <= 0.0 || v >= 0.0)) {
        dpar_text_put(t, "nan");
        return 1;
    }
    if (!dpari_finite(v)) {
        dpar_text_put(t, v < 0.0 ? "-inf" : "inf");
        return 1;
    }
    return 0;
}

DPAR_API void dpar_text_fixed(dpar_text *t, double v, int32_t decimals)
{
    double scale = 1.0, size = v < 0.0 ? -v : v;
    uint64_t whole, u;
    int32_t i;
    decimals = decimals < 0 ? 0 : decimals > 9 ? 9 : decimals;
    if (dpari_text_special(t, v)) {
        return;
    }
    for (i = 0; i < decimals; i++) {
        scale *= 10.0;
    }
    if (size * scale >= 9e15) {
        dpar_text_real(t, v, 6);
        return;
    }
    u = (uint64_t)(size * scale + 0.5);
    if (v < 0.0 && u > 0) {
        dpar_text_char(t, '-');
    }
    whole = 1;
    for (i = 0; i < decimals; i++) {
        whole *= 10;
    }
    dpari_text_digits(t, u / whole, 1);
    if (decimals > 0) {
        dpar_text_char(t, '.');
        dpari_text_digits(t, u % whole, decimals);
    }
}

/* v = m * 10^e with 10^(digits-1) <= m < 10^digits, m rounded; v > 0. */
static uint64_t dpari_text_scale(double v, int32_t digits, int32_t *exponent)
{
    double low = 1.0, high;
    int32_t e = 0, i;
    uint64_t m;
    for (i = 1; i < digits; i++) {
        low *= 10.0;
    }
    high = low * 10.0;
    while (v >= high * 1e16) {
        v *= 1e-16;
        e += 16;
    }
    while (v < low * 1e-16) {
        v *= 1e16;
        e -= 16;
    }
    while (v >= high) {
        v /= 10.0;
        e++;
    }
    while (v < low) {
        v *= 10.0;
        e--;
    }
    m = (uint64_t)(v + 0.5);
    if (m >= (uint64_t)high) {
        m /= 10;
        e++;
    }
    *exponent = e;
    return m;
}

static void dpari_text_point(dpar_text *t, const char *digit, int32_t n, int32_t point)
{
    int32_t i;
    if (point <= 0) {
        dpar_text_put(t, "0.");
        for (i = point; i < 0; i++) {
            dpar_text_char(t, '0');
        }
        point = -1;
    }
    for (i = 0; i < n; i++) {
        if (i == point) {
            dpar_text_char(t, '.');
        }
        dpar_text_char(t, digit[i]);
    }
    for (; i < point; i++) {
        dpar_text_char(t, '0');
    }
}

DPAR_API void dpar_text_real(dpar_text *t, double v, int32_t digits)
{
    char digit[20];
    uint64_t m;
    int32_t e, n, k, first;
    digits = digits < 1 ? 1 : digits > 17 ? 17 : digits;
    if (dpari_text_special(t, v)) {
        return;
    }
    if (v < 0.0) {
        dpar_text_char(t, '-');
        v = -v;
    }
    if (v <= 0.0) {
        dpar_text_char(t, '0');
        return;
    }
    m = dpari_text_scale(v, digits, &e);
    for (k = digits; k > 0; k--) {
        digit[k - 1] = (char)('0' + (int)(m % 10));
        m /= 10;
    }
    for (n = digits; n > 1 && digit[n - 1] == '0'; n--) {
    }
    first = e + digits - 1; /* decimal exponent of the first digit */
    if (first >= -5 && first < digits) {
        dpari_text_point(t, digit, n, first + 1);
        return;
    }
    dpari_text_point(t, digit, n, 1);
    dpar_text_char(t, 'e');
    dpar_text_char(t, first < 0 ? '-' : '+');
    dpari_text_digits(t, (uint64_t)(first < 0 ? -first : first), 2);
}

DPAR_API void dpar_text_column(dpar_text *t, size_t column)
{
    size_t i, width = 0;
    for (i = t->line; i < t->used && i + 1 < t->room; i++) {
        width += ((unsigned char)t->at[i] & 0xC0u) != 0x80u; /* count UTF-8 starts only */
    }
    for (; width < column; width++) {
        dpar_text_char(t, ' ');
    }
}

/* 10^e by squaring; infinite or 0 when it passes the range of double. */
static double dpari_text_power(int32_t e)
{
    double base = 10.0, result = 1.0;
    int32_t n = e < 0 ? -e : e;
    for (; n > 0; n /= 2) {
        if (n % 2 != 0) {
            result *= base;
        }
        base *= base;
    }
    return e < 0 ? 1.0 / result : result;
}

static double dpari_text_value(uint64_t m, int32_t e)
{
    double v = (double)m;
    for (; e > 300; e -= 300) {
        v *= dpari_text_power(300);
    }
    for (; e < -300; e += 300) {
        v /= dpari_text_power(300);
    }
    return e < 0 ? v / dpari_text_power(-e) : v * dpari_text_power(e);
}

DPAR_API size_t dpar_text_read(const char *s, size_t n, double *value)
{
    uint64_t m = 0;
    int32_t e = 0, exponent = 0, digits = 0, negative, below;
    size_t at = 0, mark;
    negative = n > 0 && s[0] == '-';
    at += n > 0 && (s[0] == '-' || s[0] == '+');
    for (; at < n && s[at] >= '0' && s[at] <= '9'; at++, digits++) {
        if (m < UINT64_MAX / 10 - 1) {
            m = m * 10 + (uint64_t)(s[at] - '0');
        } else {
            e += e < 100000;
        }
    }
    if (at < n && s[at] == '.' &&
        (digits > 0 || (at + 1 < n && s[at + 1] >= '0' && s[at + 1] <= '9'))) {
        for (at++; at < n && s[at] >= '0' && s[at] <= '9'; at++, digits++) {
            if (m < UINT64_MAX / 10 - 1) {
                m = m * 10 + (uint64_t)(s[at] - '0');
                e -= e > -100000;
            }
        }
    }
    if (digits == 0) {
        return 0;
    }
    mark = at;
    if (at < n && (s[at] == 'e' || s[at] == 'E')) {
        at++;
        below = at < n && s[at] == '-';
        at += at < n && (s[at] == '-' || s[at] == '+');
        if (at < n && s[at] >= '0' && s[at] <= '9') {
            for (; at < n && s[at] >= '0' && s[at] <= '9'; at++) {
                exponent = exponent < 100000 ? exponent * 10 + (s[at] - '0') : exponent;
            }
            e += below ? -exponent : exponent;
        } else {
            at = mark;
        }
    }
    *value = m == 0 ? 0.0 : dpari_text_value(m, e > 1000 ? 1000 : e < -1000 ? -1000 : e);
    *value = negative ? -*value : *value;
    return at;
}
