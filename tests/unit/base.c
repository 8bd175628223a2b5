/* SPDX-License-Identifier: MIT-0 */
/* base: status, text sink against snprintf, number reading against strtod, JSON, arithmetic. */
#include "dpar.h"

#include <stdlib.h>

#include "check.h"

static const char *text_of_real(double v, int digits)
{
    static char buffer[64];
    dpar_text t;
    dpar_text_init(&t, buffer, sizeof buffer);
    dpar_text_real(&t, v, digits);
    return buffer;
}

static const char *text_of_fixed(double v, int decimals)
{
    static char buffer[64];
    dpar_text t;
    dpar_text_init(&t, buffer, sizeof buffer);
    dpar_text_fixed(&t, v, decimals);
    return buffer;
}

static void test_numbers(void)
{
    static const double values[] = {0.1,        1.0,   2.7,           123456.7,  -3.26,
                                    1e-300,     1e300, 6.02214076e23, 1.0 / 3.0, 99999.93,
                                    0.00012345, 1e15,  123456789.0,   5e-324 * 0};
    char expected[64];
    size_t i;
    int digits;
    uint64_t x = 1;
    for (i = 0; i < sizeof values / sizeof values[0]; i++) {
        for (digits = 1; digits <= 12; digits++) {
            snprintf(expected, sizeof expected, "%.*g", digits, values[i]);
            if (strchr(expected, 'e') == NULL || fabs(values[i]) > 1e-4) {
                CHECK_TEXT(text_of_real(values[i], digits), expected);
            }
        }
    }
    CHECK_TEXT(text_of_fixed(2.0 / 3.0, 3), "0.667");
    CHECK_TEXT(text_of_fixed(-0.5, 0), "-1"); /* half away from zero */
    CHECK_TEXT(text_of_fixed(-0.0001, 2), "0.00");
    CHECK_TEXT(text_of_fixed(1234567.875, 2), "1234567.88");
    CHECK_TEXT(text_of_fixed(0.0 / 1.0, 1), "0.0");
    CHECK_TEXT(text_of_fixed(HUGE_VAL, 1), "inf");
    CHECK_TEXT(text_of_fixed(-HUGE_VAL, 1), "-inf");
    CHECK_TEXT(text_of_fixed(HUGE_VAL - HUGE_VAL, 1), "nan");
    for (i = 0; i < 5000; i++) { /* read(print(v)) against strtod */
        double v, got = 0.0;
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        v = (double)(int64_t)x * pow(10.0, (double)(x % 61) - 40.0);
        snprintf(expected, sizeof expected, "%.17g", v);
        CHECK_INT(dpar_text_read(expected, strlen(expected), &got), strlen(expected));
        CHECK_NEAR(got, strtod(expected, NULL), 1e-15);
    }
}

static void test_reading(void)
{
    double v = 7.0;
    CHECK_INT(dpar_text_read("", 0, &v), 0);
    CHECK_INT(dpar_text_read("nan", 3, &v), 0);
    CHECK_INT(dpar_text_read("-", 1, &v), 0);
    CHECK_INT(dpar_text_read(".", 1, &v), 0);
    CHECK_NEAR(v, 7.0, 0);
    CHECK_INT(dpar_text_read("12e", 3, &v), 2);
    CHECK_INT(dpar_text_read("-.5x", 4, &v), 3);
    CHECK_NEAR(v, -0.5, 0);
    CHECK_INT(dpar_text_read("1e999999", 8, &v), 8);
    CHECK(!(v < 1e308)); /* infinite, for the caller to refuse */
    CHECK_INT(dpar_text_read("1e-999999", 9, &v), 9);
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
    dpar_text_int(&t, INT64_MIN);
    CHECK_INT(t.used, 20);
    dpar_text_init(&t, buffer, sizeof buffer);
    dpar_text_slice(&t, "abcdef", 2);
    dpar_text_column(&t, 5);
    dpar_text_char(&t, '|');
    CHECK_TEXT(buffer, "ab   |");
}

static int json_ok(const char *text, char *kinds, size_t room)
{
    dpar_json j;
    dpar_json_item item;
    size_t n = 0;
    dpar_json_init(&j, text, strlen(text));
    for (;;) {
        if (dpar_json_next(&j, &item, NULL) != DPAR_OK) {
            return 0;
        }
        if (item.kind == DPAR_JSON_END) {
            break;
        }
        if (n + 1 < room) {
            kinds[n++] = ".{}[]snTF0"[item.kind];
        }
    }
    kinds[n] = 0;
    return 1;
}

static void test_json(void)
{
    static const char *const bad[] = {
        "",    "{",         "[1,]",     "{\"a\":1,}", "{\"a\" 1}",   "{a:1}",     "01",
        "-",   "1.",        "1e",       "\"\\x\"",    "\"\\u12g4\"", "\"unended", "\"tab\there\"",
        "tru", "[1 2]",     "{} {}",    "]",          "[}",          "nul",       "+1",
        ".5",  "[\"a\":1]", "{\"a\":}", "[,1]",       "NaN"};
    char kinds[64], deep[200];
    dpar_json j;
    dpar_json_item item;
    dpar_why why;
    size_t i;
    CHECK(json_ok(" {\"a\": [1, -2.5e3, true, false, null, {\"b\": \"x\\u00e9\\n\"}], \"c\": {}} ",
                  kinds, sizeof kinds));
    CHECK_TEXT(kinds, "{[nnTF0{s}]{}}");
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(!json_ok(bad[i], kinds, sizeof kinds));
    }
    memset(deep, '[', 64);
    memset(deep + 64, ']', 64);
    deep[128] = 0;
    CHECK(json_ok(deep, kinds, sizeof kinds));
    memset(deep, '[', 65);
    memset(deep + 65, ']', 65);
    deep[130] = 0;
    CHECK(!json_ok(deep, kinds, sizeof kinds));
    dpar_json_init(&j, "{\n \"a\": tru}", 12);
    CHECK_INT(dpar_json_next(&j, &item, &why), DPAR_OK);
    CHECK_INT(dpar_json_next(&j, &item, &why), DPAR_E_PARSE);
    CHECK_TEXT(why.text, "JSON, line 2, column 7: a value was expected");
    dpar_json_init(&j, "{\"key\": 12.5}", 13);
    CHECK_INT(dpar_json_next(&j, &item, NULL), DPAR_OK);
    CHECK_INT(dpar_json_next(&j, &item, NULL), DPAR_OK);
    CHECK_INT(item.key_length, 3);
    CHECK(memcmp(item.key, "key", 3) == 0);
    CHECK_NEAR(item.number, 12.5, 0);
    CHECK_INT(item.depth, 1);
}

static void test_arithmetic(void)
{
    int64_t p = -1;
    double x;
    dpar_why why;
    CHECK(dpari_mul(INT64_C(3037000499), INT64_C(3037000499), &p));
    CHECK_INT(p, INT64_C(9223372030926249001));
    CHECK(!dpari_mul(INT64_C(3037000500), INT64_C(3037000500), &p));
    CHECK(dpari_mul(INT64_MAX, 1, &p) && dpari_mul(0, INT64_MAX, &p));
    CHECK(!dpari_mul(-1, 2, &p));
    CHECK_INT(dpari_ceil_div(INT64_MAX, 2), INT64_C(4611686018427387904));
    CHECK(dpari_finite(1e308) && !dpari_finite(HUGE_VAL) && !dpari_finite(HUGE_VAL - HUGE_VAL));
    for (x = 1e-30; x < 1e30; x *= 1.37) {
        CHECK_NEAR(dpari_sqrt(x), sqrt(x), 1e-13);
        CHECK(fabs(dpari_log2(x) - log2(x)) < 1e-12 * (1.0 + fabs(log2(x))));
    }
    for (x = -90.0; x < 90.0; x += 0.37) {
        CHECK_NEAR(dpari_exp2(x), exp2(x), 1e-12);
    }
    CHECK_NEAR(dpari_pow(2.5, -1.3), pow(2.5, -1.3), 1e-12);
    CHECK_INT(dpari_ceil_log2(1), 0);
    CHECK_INT(dpari_ceil_log2(1025), 11);
    CHECK_INT(dpari_say(DPAR_E_DIVIDE, &why, "tp=# does not divide # heads", 12, -32, 0, 0),
              DPAR_E_DIVIDE);
    CHECK_TEXT(why.text, "tp=12 does not divide -32 heads");
    CHECK_INT(dpari_say(DPAR_E_ARG, NULL, "#", 1, 0, 0, 0), DPAR_E_ARG);
}

int main(void)
{
    CHECK_TEXT(dpar_status_text(DPAR_OK), "ok");
    CHECK_TEXT(dpar_status_text(DPAR_E_DIVIDE), "sizes do not divide");
    CHECK_TEXT(dpar_status_text(-77), "unknown status");
    CHECK_INT(dpar_features(), DPAR_FEATURE_COST | DPAR_FEATURE_SHOW);
    test_numbers();
    test_reading();
    test_sink();
    test_json();
    test_arithmetic();
    return CHECK_DONE();
}
