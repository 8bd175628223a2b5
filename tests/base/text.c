/* SPDX-License-Identifier: MIT-0 */
/* Tests the text sink against snprintf, and the reading of numbers against strtod. Run with:
 * tests/run test index. */
#include "dpar.h"

#include <stdlib.h>

#include "check.h"
#include "half_way.h"

/* EXACT_LIBC 0: a C library whose printf and strtod round badly (picolibc 1.8) is no oracle. */
#ifndef EXACT_LIBC
#define EXACT_LIBC 1
#endif

static const char *text_of_real(double v, int digits)
{
    static char buffer[64];
    dpar_text t;
    dpar_text_init(&t, buffer, sizeof buffer);
    dpari_text_real(&t, v, digits);
    return buffer;
}

static const char *text_of_fixed(double v, int decimals)
{
    static char buffer[64];
    dpar_text t;
    dpar_text_init(&t, buffer, sizeof buffer);
    dpari_text_fixed(&t, v, decimals);
    return buffer;
}

static uint64_t next_random(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

/* Returns any finite double, uniform over its bits: every magnitude, also subnormal ones. */
static double any_double(uint64_t *x)
{
    double v;
    do {
        uint64_t bits = next_random(x);
        memcpy(&v, &bits, sizeof v);
    } while (!dpari_finite(v));
    return v;
}

static void test_numbers(void)
{
    static const double values[] = {0.1,
                                    1.0,
                                    2.7,
                                    123456.7,
                                    -3.26,
                                    1e-300,
                                    1e300,
                                    6.02214076e23,
                                    1.0 / 3.0,
                                    99999.93,
                                    0.00012345,
                                    1e15,
                                    123456789.0,
                                    0.0,
                                    0.0001,
                                    0.00001,
                                    0.0000999,
                                    -9.9999999e-5,
                                    999999.5,
                                    5e-324,
                                    2.2250738585072014e-308,
                                    1.7976931348623157e308,
                                    -1e22};
    char expected[400];
    size_t i;
    int digits;
    uint64_t x = 1;
    for (i = 0; i < sizeof values / sizeof values[0]; i++) {
        for (digits = 1; digits <= 17; digits++) {
            snprintf(expected, sizeof expected, "%.*g", digits, values[i]);
            if (!half_way(values[i], digits - 1, 1)) {
                CHECK_TEXT(text_of_real(values[i], digits), expected);
            }
        }
    }
    for (i = 0; i < 5000; i++) {
        double v = any_double(&x);
        digits = 1 + (int)(i % 17);
        snprintf(expected, sizeof expected, "%.*g", digits, v);
        CHECK_TEXT(text_of_real(v, digits), expected);
        v = (double)(int64_t)(x >> 34) / 1000.0; /* as people write numbers */
        snprintf(expected, sizeof expected, "%.*f", (int)(i % 10), v);
        if (!half_way(v, (int)(i % 10), 0)) {
            CHECK_TEXT(text_of_fixed(v, (int)(i % 10)), expected);
        }
    }
    CHECK_TEXT(text_of_real(2.5, 1), "3"); /* half away from zero */
    CHECK_TEXT(text_of_real(-0.0, 3), "0");
    CHECK_TEXT(text_of_real(7.0, -5), "7");
    CHECK_TEXT(text_of_real(0.1, 99), "0.10000000000000001");
}

static void test_fixed(void)
{
    CHECK_TEXT(text_of_fixed(2.0 / 3.0, 3), "0.667");
    CHECK_TEXT(text_of_fixed(-0.5, 0), "-1"); /* half away from zero */
    CHECK_TEXT(text_of_fixed(2.5, 0), "3");
    CHECK_TEXT(text_of_fixed(0.49999999999999994, 0), "0");
    CHECK_TEXT(text_of_fixed(1.115, 2), "1.11"); /* 1.1149999999999999911... */
    CHECK_TEXT(text_of_fixed(-0.0001, 2), "0.00");
    CHECK_TEXT(text_of_fixed(9.996, 2), "10.00");
    CHECK_TEXT(text_of_fixed(1234567.875, 2), "1234567.88");
    CHECK_TEXT(text_of_fixed(0.0 / 1.0, 1), "0.0");
    CHECK_TEXT(text_of_fixed(8999999999999999.0, 9), "8999999999999999.000000000");
    CHECK_TEXT(text_of_fixed(-9e15, 2), "-9e+15");
    CHECK_TEXT(text_of_fixed(1.25, 99), "1.250000000");
    CHECK_TEXT(text_of_fixed(1.25, -1), "1");
    CHECK_TEXT(text_of_fixed(5e-324, 9), "0.000000000");
    CHECK_TEXT(text_of_fixed(HUGE_VAL, 1), "inf");
    CHECK_TEXT(text_of_fixed(-HUGE_VAL, 1), "-inf");
    CHECK_TEXT(text_of_fixed(HUGE_VAL - HUGE_VAL, 1), "nan");
}

/* Checks that a format gives what printf gives. */
static void test_forms(void)
{
    char got[200], expected[200];
    uint64_t x = 7;
    int i;
    dpar_text t;
    for (i = 0; i < 2000; i++) {
        const int64_t n = (int64_t)next_random(&x) >> (i % 60);
        const double v = (double)(n % INT64_C(1000000000)) / 997.0;
        const int32_t small = (int32_t)n;
        snprintf(expected, sizeof expected, "<%s>%4s|%d,%13d,%lld,%25lld|%.2f%12.1f%.5g%%", "a%d",
                 "b", (int)small, (int)small, (long long)n, (long long)n, v, v, v);
        dpar_text_init(&t, got, sizeof got);
        dpari_text_print(&t, "<%s>%4s|%d,%13d,%ld,%25ld|%.2f%12.1f%.5g%%", "a%d", "b", small, small,
                         n, n, v, v, v);
        if (!half_way(v, 2, 0) && !half_way(v, 1, 0) && !half_way(v, 4, 1) && v * v > 1.0) {
            CHECK_TEXT(got, expected);
            CHECK_INT(t.used, strlen(got));
        }
    }
    dpar_text_init(&t, got, sizeof got);
    dpari_text_print(&t, "%.4G %.4G %.4G %.4g%7.3G", HUGE_VAL, HUGE_VAL - HUGE_VAL, 0.25, HUGE_VAL,
                     2.0);
    CHECK_TEXT(got, "0 0 0.25 inf      2"); /* JSON has no infinity */
    dpar_text_init(&t, got, 4);
    dpari_text_print(&t, "%9d", (int32_t)7);
    CHECK_TEXT(got, "   ");
    CHECK_INT(t.used, 9);
}

/* Checks that a number is read as by strtod, to the last bit. */
static void check_read(const char *text)
{
    double got = 7.0, expected = strtod(text, NULL);
    CHECK_INT(dpari_text_number(text, strlen(text), &got), strlen(text));
    checks_run++;
    if (memcmp(&got, &expected, sizeof got) != 0) {
        checks_failed++;
        printf("%s:%d: %s read as %.17g\n", __FILE__, __LINE__, text, got);
    }
}

static void test_read_rounding(void)
{
    static const char *const hard[] = {
        "0",
        "-0",
        "0.1",
        "1e23",
        "8.5e22",
        "9007199254740993",
        "9007199254740992.999999999999",
        "9007199254740993.00000000000000000000000000000000000000000000000000000000001",
        "1.7976931348623157e308",
        "1.7976931348623158e308",
        "1.7976931348623159e308",
        "1e309",
        "2.2250738585072011e-308",
        "2.2250738585072014e-308",
        "4.9e-324",
        "2.4703282292062327e-324",
        "2.4703282292062328e-324",
        "2e-324",
        "1e-400",
        "000000000000000000000000012.50",
        "0.00000000000000000000000000000000000000000000000001e50",
        "1e-0",
        "5.",
        ".5",
        "+3E+2",
        "123456789012345678901234567890",
        "0e99999999999999999999",
        "6929495644600919.5",
        "3.518437208883201171875e13",
        "100000000000000000000000000000000000e-35"};
    static char text[1600];
    uint64_t x = 3;
    size_t i, n;
    for (i = 0; i < sizeof hard / sizeof hard[0]; i++) {
        check_read(hard[i]);
    }
    for (i = 0; i < 5000; i++) {
        double v = any_double(&x);
        snprintf(text, sizeof text, "%.*g", 1 + (int)(i % 25), v);
        check_read(text);
        if (i % 10 == 0) { /* all digits; as many zeros and a one: beyond those used */
            snprintf(text, sizeof text, "%.1100e", v);
            check_read(text);
            n = strcspn(text, "e");
            text[n - 1] = '1';
            check_read(text);
        }
    }
    memset(text, '1', 1500);
    text[1500] = 0;
    check_read(text);
    memset(text, '0', 1490);
    memcpy(text + 1490, "7e-3", 5);
    check_read(text);
    text[1] = '.';
    memcpy(text + 1490, "7e1490", 7);
    check_read(text);
}

static void test_reading(void)
{
    double v = 7.0;
    CHECK_INT(dpari_text_number("", 0, &v), 0);
    CHECK_INT(dpari_text_number("nan", 3, &v), 0);
    CHECK_INT(dpari_text_number("-", 1, &v), 0);
    CHECK_INT(dpari_text_number("e5", 2, &v), 0);
    CHECK_INT(dpari_text_number("+-1", 3, &v), 0);
    CHECK_INT(dpari_text_number(".", 1, &v), 0);
    CHECK_NEAR(v, 7.0, 0);
    CHECK_INT(dpari_text_number("12e", 3, &v), 2);
    CHECK_INT(dpari_text_number("-.5x", 4, &v), 3);
    CHECK_NEAR(v, -0.5, 0);
    CHECK_INT(dpari_text_number("1e+", 3, &v), 1);
    CHECK_INT(dpari_text_number("1.2.3", 5, &v), 3);
    CHECK_INT(dpari_text_number("1234", 2, &v), 2); /* not past n */
    CHECK_NEAR(v, 12.0, 0);
    CHECK_INT(dpari_text_number("1e999999", 8, &v), 8);
    CHECK(!(v < 1e308)); /* infinite, which the caller must refuse */
    CHECK_INT(dpari_text_number("1e-999999", 9, &v), 9);
    CHECK_NEAR(v, 0.0, 0);
}

static void test_sink(void)
{
    char buffer[8];
    dpar_text t;
    dpar_text_init(&t, buffer, sizeof buffer);
    dpar_text_put(&t, "0123456789");
    CHECK_TEXT(buffer, "0123456");
    CHECK_INT(t.used, 10);
    dpar_text_init(&t, NULL, 0); /* counting only */
    dpari_text_int(&t, INT64_MIN);
    CHECK_INT(t.used, 20);
    dpar_text_init(&t, buffer, sizeof buffer);
    dpari_text_slice(&t, "abcdef", 2);
    dpari_text_column(&t, 5);
    dpari_text_char(&t, '|');
    CHECK_TEXT(buffer, "ab   |");
    dpar_text_init(&t, buffer, sizeof buffer);
    dpar_text_put(&t, "x\n\xc3\xa9"); /* one character, two bytes */
    dpari_text_column(&t, 3);
    CHECK_TEXT(buffer, "x\n\xc3\xa9  ");
    dpari_text_column(&t, 2);
    CHECK_INT(t.used, 6);
    dpar_text_init(&t, NULL, 0); /* columns count text that is not stored */
    dpar_text_put(&t, "abc");
    dpari_text_column(&t, 5);
    CHECK_INT(t.used, 5);
    dpar_text_init(&t, buffer, 1);
    dpari_text_int(&t, -12);
    CHECK_TEXT(buffer, "");
    CHECK_INT(t.used, 3);
}

static void test_long_text(void)
{
    static char from[40001], to[40001];
    dpar_text t;
    memset(from, 'a', 40000);
    dpar_text_init(&t, to, sizeof to);
    dpar_text_put(&t, from);
    CHECK_INT(t.used, 40000);
    CHECK(strcmp(from, to) == 0);
}

int main(void)
{
    if (EXACT_LIBC) {
        test_numbers();
        test_forms();
        test_read_rounding();
    }
    test_fixed();
    test_reading();
    test_sink();
    test_long_text();
    return CHECK_DONE();
}
