/* SPDX-License-Identifier: MIT-0 */
/* Tests json: which texts are JSON (RFC 8259), and the messages about others. Run with:
 * tests/run test cost. */
#include "dpar_cost.h"

#include <stdlib.h>

#include "check.h"

static int json_ok(const char *text, char *kinds, size_t room)
{
    dpari_json j;
    dpari_json_item item;
    size_t n = 0;
    dpari_json_init(&j, text, strlen(text));
    for (;;) {
        if (dpari_json_next(&j, &item, NULL) != DPAR_OK) {
            return 0;
        }
        if (item.kind == DPARI_JSON_END) {
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
        ".5",  "[\"a\":1]", "{\"a\":}", "[,1]",       "Inf"};
    char kinds[64], deep[200];
    dpari_json j;
    dpari_json_item item;
    dpar_why why;
    size_t i;
    CHECK(json_ok(" {\"a\": [1, -2.5e3, true, false, null, {\"b\": \"x\\u00e9\\n\"}], \"c\": {}} ",
                  kinds, sizeof kinds));
    CHECK_TEXT(kinds, "{[nnTF0{s}]{}}");
    CHECK(json_ok("[NaN, Infinity, -Infinity, -1]", kinds, sizeof kinds)); /* Python writes them */
    CHECK_TEXT(kinds, "[000n]");
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
    dpari_json_init(&j, "{\n \"a\": tru}", 12);
    CHECK_INT(dpari_json_next(&j, &item, &why), DPAR_OK);
    CHECK_INT(dpari_json_next(&j, &item, &why), DPAR_E_PARSE);
    CHECK_TEXT(why.text, "JSON, line 2, column 7: a value was expected");
    dpari_json_init(&j, "{\"key\": 12.5}", 13);
    CHECK_INT(dpari_json_next(&j, &item, NULL), DPAR_OK);
    CHECK_INT(dpari_json_next(&j, &item, NULL), DPAR_OK);
    CHECK_INT(item.key_length, 3);
    CHECK(memcmp(item.key, "key", 3) == 0);
    CHECK_NEAR(item.number, 12.5, 0);
    CHECK_INT(item.depth, 1);
}

static const char *json_says(const char *text)
{
    static dpar_why why;
    dpari_json j;
    dpari_json_item item;
    dpari_json_init(&j, text, strlen(text));
    for (;;) {
        dpar_status st = dpari_json_next(&j, &item, &why);
        if (st != DPAR_OK) { /* the same again, and nothing changed */
            dpar_why again;
            dpari_json before = j;
            dpari_json_item same = item;
            CHECK_INT(st, DPAR_E_PARSE);
            CHECK_INT(dpari_json_next(&j, &item, &again), DPAR_E_PARSE);
            CHECK_TEXT(again.text, why.text);
            CHECK(memcmp(&before, &j, sizeof j) == 0 && memcmp(&same, &item, sizeof item) == 0);
            return why.text;
        }
        if (item.kind == DPARI_JSON_END) {
            return "fine";
        }
    }
}

static void test_json_errors(void)
{
    static const char whole[] =
        "{\"a\": [1, 2.5e-3, true, null, {\"b\": \"x\\u00e9\"}], \"c\": -0}";
    dpari_json j;
    dpari_json_item item;
    size_t cut;
    CHECK_TEXT(json_says(""), "JSON, line 1, column 1: the text ends too early");
    CHECK_TEXT(json_says("[1,\n2,"), "JSON, line 2, column 3: the text ends after a ','");
    CHECK_TEXT(json_says("[1 2]"), "JSON, line 1, column 4: ',' or ']' was expected");
    CHECK_TEXT(json_says("{\"a\":1 2}"), "JSON, line 1, column 8: ',' or '}' was expected");
    CHECK_TEXT(json_says("{\"a\":1,}"),
               "JSON, line 1, column 8: a member's name in quotes was expected");
    CHECK_TEXT(json_says("[1,]"), "JSON, line 1, column 4: a value was expected");
    CHECK_TEXT(json_says("{\"a\""), "JSON, line 1, column 5: the text ends where ':' was expected");
    CHECK_TEXT(json_says("{\"a\" 1"), "JSON, line 1, column 6: ':' was expected");
    CHECK_TEXT(json_says("{\"a\":"),
               "JSON, line 1, column 6: the text ends where a value was expected");
    CHECK_TEXT(json_says("\"abc"), "JSON, line 1, column 5: the text ends inside a string");
    CHECK_TEXT(json_says("\"a\nb\""),
               "JSON, line 1, column 3: a string contains a control character");
    CHECK_TEXT(json_says("\"a\\u12x4\""),
               "JSON, line 1, column 3: a string contains an unknown escape");
    CHECK_TEXT(json_says("[01]"), "JSON, line 1, column 2: a number is malformed");
    CHECK_TEXT(json_says("{} {}"), "JSON, line 1, column 4: more text after the end of the value");
    for (cut = 0; cut + 1 < sizeof whole; cut++) { /* truncated anywhere, in memory of that size */
        char *copy = (char *)malloc(cut + 1);
        dpar_status st;
        memcpy(copy + 1, whole, cut);
        dpari_json_init(&j, copy + 1, cut);
        do {
            st = dpari_json_next(&j, &item, NULL);
        } while (st == DPAR_OK && item.kind != DPARI_JSON_END);
        CHECK_INT(st, DPAR_E_PARSE);
        free(copy);
    }
    CHECK_TEXT(json_says(whole), "fine");
    dpari_json_init(&j, "1\0", 2); /* a NUL is not a blank */
    CHECK_INT(dpari_json_next(&j, &item, NULL), DPAR_OK);
    CHECK_INT(dpari_json_next(&j, &item, NULL), DPAR_E_PARSE);
    dpari_json_init(&j, " 7 ", 3); /* and after the end it stays at the end */
    CHECK_INT(dpari_json_next(&j, &item, NULL), DPAR_OK);
    CHECK_INT(item.kind, DPARI_JSON_NUMBER);
    CHECK(item.key == NULL);
    CHECK_INT(dpari_json_next(&j, &item, NULL), DPAR_OK);
    CHECK_INT(dpari_json_next(&j, &item, NULL), DPAR_OK);
    CHECK_INT(item.kind, DPARI_JSON_END);
}

int main(void)
{
    test_json();
    test_json_errors();
    return CHECK_DONE();
}
