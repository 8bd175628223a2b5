/* SPDX-License-Identifier: MIT-0 */
/* Fuzzes the JSON reader against a second, recursive recogniser of RFC 8259. Has libFuzzer's entry,
 * and with -DDPAR_FUZZ_MAIN a main that feeds argv[1] fixed pseudo-random mutations of the seeds.
 * Run with: tests/compile/fuzz.sh. */
#include "dpar_cost.h"

#include "texts.h"
#include "must.h"

/* The recogniser. Each function returns the place behind what it read, or NULL if that is not
 * there. */
static const char *skip_blanks(const char *s, const char *end)
{
    while (s != end && memchr(" \t\r\n", *s, 4) != NULL) {
        s++;
    }
    return s;
}

static const char *skip_digits(const char *s, const char *end)
{
    const char *from = s;
    while (s != end && *s >= '0' && *s <= '9') {
        s++;
    }
    return s == from ? NULL : s;
}

static const char *skip_string(const char *s, const char *end)
{
    int i;
    for (s++; s != end && *s != '"'; s++) {
        if ((unsigned char)*s < 32) {
            return NULL;
        }
        if (*s == '\\') {
            if (++s == end || memchr("\"\\/bfnrtu", *s, 9) == NULL) {
                return NULL;
            }
            for (i = *s == 'u' ? 4 : 0; i > 0; i--) {
                if (++s == end || memchr("0123456789abcdefABCDEF", *s, 22) == NULL) {
                    return NULL;
                }
            }
        }
    }
    return s == end ? NULL : s + 1;
}

static const char *skip_number(const char *s, const char *end)
{
    s += *s == '-';
    if (s != end && *s == '0') {
        s++;
    } else {
        s = skip_digits(s, end);
    }
    if (s != NULL && s != end && *s == '.') {
        s = skip_digits(s + 1, end);
    }
    if (s != NULL && s != end && (*s == 'e' || *s == 'E')) {
        s++;
        s += s != end && (*s == '+' || *s == '-');
        s = skip_digits(s, end);
    }
    return s;
}

static const char *skip_value(const char *s, const char *end, int depth)
{
    static const char word[3][6] = {"true", "false", "null"};
    int i, object;
    s = skip_blanks(s, end);
    if (s == end) {
        return NULL;
    }
    if (*s == '"') {
        return skip_string(s, end);
    }
    if (*s == '-' || (*s >= '0' && *s <= '9')) {
        return skip_number(s, end);
    }
    for (i = 0; i < 3; i++) {
        size_t n = strlen(word[i]);
        if ((size_t)(end - s) >= n && memcmp(s, word[i], n) == 0) {
            return s + n;
        }
    }
    if ((*s != '{' && *s != '[') || depth == 64) {
        return NULL;
    }
    object = *s == '{';
    s = skip_blanks(s + 1, end);
    if (s != end && *s == (object ? '}' : ']')) {
        return s + 1;
    }
    for (;; s++) {
        if (object) {
            s = skip_blanks(s, end);
            s = s != end && *s == '"' ? skip_string(s, end) : NULL;
            s = s != NULL ? skip_blanks(s, end) : NULL;
            if (s == NULL || s == end || *s++ != ':') {
                return NULL;
            }
        }
        s = skip_value(s, end, depth + 1);
        s = s != NULL ? skip_blanks(s, end) : NULL;
        if (s == NULL || s == end) {
            return NULL;
        }
        if (*s == (object ? '}' : ']')) {
            return s + 1;
        }
        if (*s != ',') {
            return NULL;
        }
    }
}

static int is_json(const char *text, size_t size)
{
    const char *s = skip_value(text, text + size, 0);
    return s != NULL && skip_blanks(s, text + size) == text + size;
}

static void one(const char *text, size_t size)
{
    dpari_json j, before;
    dpari_json_item item;
    dpar_why why, again;
    dpar_status st;
    long depth = 0;
    dpari_json_init(&j, text, size);
    while ((st = dpari_json_next(&j, &item, &why)) == DPAR_OK && item.kind != DPARI_JSON_END) {
        must(j.at <= size);
        depth -= item.kind == DPARI_JSON_OBJECT_END || item.kind == DPARI_JSON_ARRAY_END;
        must(item.depth == depth && depth >= 0 && depth < 65);
        depth += item.kind == DPARI_JSON_OBJECT || item.kind == DPARI_JSON_ARRAY;
        if (item.key != NULL) {
            must(item.key > text && item.key + item.key_length < text + size &&
                 item.key[item.key_length] == '"');
        }
        if (item.kind == DPARI_JSON_STRING) {
            must(item.string > text && item.string + item.length < text + size &&
                 item.string[item.length] == '"');
        }
        must(item.number <= 0.0 || item.number >= 0.0); /* no NaN */
    }
    must((st == DPAR_OK) == is_json(text, size));
    if (st != DPAR_OK) { /* the reader stays where it is, and returns the same again */
        before = j;
        must(dpari_json_next(&j, &item, &again) == st && strcmp(again.text, why.text) == 0 &&
             memcmp(&before, &j, sizeof j) == 0 && memcmp(why.text, "JSON, line ", 11) == 0);
    } else {
        must(depth == 0);
    }
}

#ifdef DPAR_FUZZ_MAIN
static const char *const seed[] = {
    "{\"a\": [1, 2.5e-3, true, null, {\"b\": \"x\\u00e9\"}], \"c\": -0.0}",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
    "1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
    "\"text\"", "123456789012345678901234567890e400", "{\"k\":{\"k\":[[],{},[{}],\"\\\"\"]}}\n"};

int main(int argc, char **argv)
{
    static const char odd[] = "0123456789.,:=-+eExX{}[]\"\\ntf \0#";
    return feed_texts(argc > 1 ? atol(argv[1]) : 100000, seed, sizeof seed / sizeof seed[0], odd,
                      sizeof odd - 1);
}
#endif
