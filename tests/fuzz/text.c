/* SPDX-License-Identifier: MIT-0 */
/* Fuzzes the number reader against strtod, to the last bit, and the text sink: numbers against
 * printf, any capacity against sufficient capacity. Has libFuzzer's entry, and with
 * -DDPAR_FUZZ_MAIN a main that feeds argv[1] fixed pseudo-random mutations of the seeds. Run with:
 * tests/compile/fuzz.sh. */
#include "dpar.h"

#include <stdio.h>

#include "texts.h"
#include "half_way.h"
#include "must.h"

static int same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static void check_read(const char *text, size_t size)
{
    double got = 7.0;
    size_t taken = dpari_text_number(text, size, &got);
    char *copy = (char *)malloc(taken + 1), *end;
    must(taken <= size);
    if (copy == NULL) {
        return;
    }
    if (taken == 0) { /* nothing written, and not a number: a digit, or a point and a digit */
        size_t at = size > 0 && (text[0] == '-' || text[0] == '+');
        must(same_bits(got, 7.0));
        at += at < size && text[at] == '.';
        must(at >= size || text[at] < '0' || text[at] > '9');
    } else {
        memcpy(copy, text, taken);
        copy[taken] = 0;
        must(same_bits(strtod(copy, &end), got) && end == copy + taken);
    }
    free(copy);
}

static void check_print(double v, int digits, int decimals)
{
    char got[400], expected[400];
    double size = v < 0.0 ? -v : v, back = 0.0;
    dpar_text t;
    dpar_text_init(&t, got, sizeof got);
    dpari_text_real(&t, v, 17);
    must(t.used == strlen(got));
    if (!(v - v >= 0.0)) { /* infinity and NaN */
        must(strcmp(got, "nan") == 0 || strcmp(got, "inf") == 0 || strcmp(got, "-inf") == 0);
        return;
    }
    must(dpari_text_number(got, t.used, &back) == t.used && (same_bits(v, back) || !(size > 0.0)));
    dpar_text_init(&t, got, sizeof got);
    dpari_text_real(&t, v, digits);
    snprintf(expected, sizeof expected, "%.*g", digits, v);
    must(!(size > 0.0) || strcmp(got, expected) == 0 || half_way(v, digits - 1, 1));
    if (size < 9e15) {
        dpar_text_init(&t, got, sizeof got);
        dpari_text_fixed(&t, v, decimals);
        snprintf(expected, sizeof expected, "%.*f", decimals, v);
        must(strcmp(got, expected) == 0 || half_way(v, decimals, 0) || /* "-0.0" is "0.0" */
             (strspn(expected, "-0.") == strlen(expected) && strcmp(got, expected + 1) == 0));
    }
}

static void write_all(dpar_text *t, const uint8_t *data, size_t size, double v)
{
    size_t i;
    for (i = 0; i < size; i++) {
        switch (data[i] % 8) {
        case 0: dpari_text_int(t, (int64_t)data[i] * -12345); break;
        case 1: dpari_text_column(t, data[i]); break;
        case 2: dpar_text_put(t, "a\n"); break;
        case 3: dpari_text_slice(t, "slice", data[i] % 9); break;
        case 4: dpari_text_fixed(t, v, data[i] % 12 - 1); break;
        case 5: dpari_text_real(t, v, data[i] % 20); break;
        case 6: dpari_text_print(t, "%s%5d%%%.3g", "a\n", (int32_t)data[i], v); break;
        default: dpari_text_char(t, (char)(data[i] | 1)); break;
        }
    }
}

/* Checks that with a small capacity the text is the beginning of the whole one, ends in NUL and
 * does not exceed the buffer, and that the count is the same. */
static void check_room(const uint8_t *data, size_t size, double v)
{
    static char whole[65536];
    size_t room = size > 0 ? data[0] : 0;
    char *little = (char *)malloc(room);
    dpar_text t;
    size_t used;
    if (little == NULL) {
        return;
    }
    dpar_text_init(&t, whole, sizeof whole);
    write_all(&t, data, size > 200 ? 200 : size, v);
    used = t.used;
    must(used == strlen(whole) && t.line + t.width <= used);
    dpar_text_init(&t, little, room);
    write_all(&t, data, size > 200 ? 200 : size, v);
    must(t.used == used);
    if (room > 0) {
        must(strlen(little) == (t.used < room ? t.used : room - 1));
        must(memcmp(little, whole, strlen(little)) == 0);
    }
    free(little);
}

static void one(const char *text, size_t size)
{
    const uint8_t *data = (const uint8_t *)text;
    double v = 0.0;
    check_read(text, size);
    if (size > 9) {
        memcpy(&v, data, sizeof v);
        check_print(v, 1 + data[8] % 17, data[9] % 10);
    }
    (void)dpari_text_number(text, size, &v);
    if (size > 1) {
        check_print(v, 1 + data[size - 1] % 17, data[size - 2] % 10);
    }
    check_room(data, size, v);
}

#ifdef DPAR_FUZZ_MAIN
static const char *const seed[] = {"0.1",
                                   "-123456.789e-3",
                                   "9007199254740993",
                                   "1e400",
                                   "2.5e-324",
                                   "1.7976931348623158e308",
                                   "00000000000000000000001.25e+5",
                                   "2.4703282292062327208e-324",
                                   "12345678901234567890123.4567890"};

int main(int argc, char **argv)
{
    static const char odd[] = "0123456789.-+eE";
    return feed_texts(argc > 1 ? atol(argv[1]) : 100000, seed, sizeof seed / sizeof seed[0], odd,
                      sizeof odd - 1);
}
#endif
