/* SPDX-License-Identifier: MIT-0 */
/* The JSON reader. It is a state machine: `expect` says what may come next in the text, and one bit
 * per level of nesting remembers whether the level is an object or an array. The reader of
 * config.json files (models.c) calls dpari_json_next until it returns DPARI_JSON_END. */
#include "json.h"

#include "../base/base_private.h"
#include "../base/text.h"

/* What may come next in the text. */
enum {
    DPARI_JSON_VALUE,       /* a value */
    DPARI_JSON_FIRST_KEY,   /* after '{': a key or '}' */
    DPARI_JSON_KEY,         /* after ',' in an object: a key */
    DPARI_JSON_FIRST_VALUE, /* after '[': a value or ']' */
    DPARI_JSON_COMMA,       /* after a value inside something: ',' or the end of it */
    DPARI_JSON_NOTHING      /* after the outermost value */
};

DPARI_INTERNAL void dpari_json_init(dpari_json *json, const char *text, size_t bytes)
{
    dpari_zero(json, sizeof(*json));
    json->text = text;
    json->bytes = bytes;
    json->expect = DPARI_JSON_VALUE;
}

/* Reports an error with the line and the column of the reader. A column is a byte. */
static dpar_status dpari_json_fail(const dpari_json *json, dpar_why *why, const char *what)
{
    int64_t line = 1, column = 1;
    size_t i;
    for (i = 0; i < json->at && i < json->bytes; i++) {
        column = json->text[i] == '\n' ? 1 : column + 1;
        line += json->text[i] == '\n';
    }
    return dpari_say(DPAR_E_PARSE, why, "JSON, line %ld, column %ld: %s", line, column, what);
}

/* Skips blanks. */
static void dpari_json_blanks(dpari_json *json)
{
    while (json->at < json->bytes &&
           (json->text[json->at] == ' ' || json->text[json->at] == '\n' ||
            json->text[json->at] == '\t' || json->text[json->at] == '\r')) {
        json->at++;
    }
}

static int dpari_json_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Returns the length of the escape at a backslash, or 0 if it is not valid. */
static size_t dpari_json_escape(const dpari_json *json)
{
    size_t i;
    char c;
    if (json->at + 1 >= json->bytes) {
        return 0;
    }
    c = json->text[json->at + 1];
    if (c == '"' || c == '\\' || c == '/' || c == 'b' || c == 'f' || c == 'n' || c == 'r' ||
        c == 't') {
        return 2;
    }
    for (i = 2; c == 'u' && i < 6; i++) {
        if (json->at + i >= json->bytes || !dpari_json_hex(json->text[json->at + i])) {
            return 0;
        }
    }
    return c == 'u' ? 6 : 0;
}

/* Reads a string from its opening quote on, and advances to the byte after its closing quote. */
static dpar_status dpari_json_string(dpari_json *json, const char **s, size_t *n, dpar_why *why)
{
    size_t start = json->at + 1;
    json->at = start;
    while (json->at < json->bytes && json->text[json->at] != '"') {
        size_t step = 1;
        if ((unsigned char)json->text[json->at] < 0x20u) {
            return dpari_json_fail(json, why, "a string contains a control character");
        }
        if (json->text[json->at] == '\\') {
            step = dpari_json_escape(json);
            if (step == 0) {
                return dpari_json_fail(json, why, "a string contains an unknown escape");
            }
        }
        json->at += step;
    }
    if (json->at >= json->bytes) {
        json->at = json->bytes;
        return dpari_json_fail(json, why, "the text ends inside a string");
    }
    *s = json->text + start;
    *n = json->at - start;
    json->at++;
    return DPAR_OK;
}

/* Returns the number of digits at a position. */
static size_t dpari_json_digits(const dpari_json *json, size_t at)
{
    size_t n = 0;
    while (at + n < json->bytes && json->text[at + n] >= '0' && json->text[at + n] <= '9') {
        n++;
    }
    return n;
}

static dpar_status dpari_json_number(dpari_json *json, dpari_json_item *item, dpar_why *why)
{
    size_t start = json->at;
    size_t at = start + (json->text[start] == '-');
    size_t n = dpari_json_digits(json, at);
    if (n == 0 || (n > 1 && json->text[at] == '0')) {
        return dpari_json_fail(json, why, "a number is malformed");
    }
    at += n;
    if (at < json->bytes && json->text[at] == '.') {
        n = dpari_json_digits(json, at + 1);
        if (n == 0) {
            return dpari_json_fail(json, why, "a number needs digits after its point");
        }
        at += 1 + n;
    }
    if (at < json->bytes && (json->text[at] == 'e' || json->text[at] == 'E')) {
        at++;
        at += at < json->bytes && (json->text[at] == '+' || json->text[at] == '-');
        n = dpari_json_digits(json, at);
        if (n == 0) {
            return dpari_json_fail(json, why, "a number needs digits in its exponent");
        }
        at += n;
    }
    item->kind = DPARI_JSON_NUMBER;
    (void)dpari_text_number(json->text + start, at - start, &item->number);
    json->at = at;
    return DPAR_OK;
}

/* Reads true, false, null and the words that are read as null. */
static dpar_status dpari_json_word(dpari_json *json, dpari_json_item *item, dpar_why *why)
{
    /* The last three are not JSON, but Python's json module writes them. They are read as null. */
    static const char word[6][12] = {"true", "false", "null", "NaN", "Infinity", "-Infinity"};
    int32_t i;
    for (i = 0; i < 6; i++) {
        size_t n = dpari_length(word[i]);
        if (json->bytes - json->at >= n && dpari_spells(json->text + json->at, n, word[i])) {
            item->kind = DPARI_JSON_TRUE + (i < 2 ? i : 2);
            json->at += n;
            return DPAR_OK;
        }
    }
    return dpari_json_fail(json, why, "a value was expected");
}

/* Sets what may follow a complete value. */
DPARI_STATIC_NOINLINE void dpari_json_after_value(dpari_json *json)
{
    json->expect = json->depth > 0 ? DPARI_JSON_COMMA : DPARI_JSON_NOTHING;
}

/* Enters an object or an array. */
static dpar_status dpari_json_open(dpari_json *json, dpari_json_item *item, dpar_why *why)
{
    int object = json->text[json->at] == '{';
    if (json->depth >= 64) {
        return dpari_json_fail(json, why, "nested more than 64 levels deep");
    }
    item->kind = object ? DPARI_JSON_OBJECT : DPARI_JSON_ARRAY;
    json->objects &= ~((uint64_t)1 << json->depth);
    json->objects |= (uint64_t)(object ? 1 : 0) << json->depth;
    json->depth++;
    json->at++;
    json->expect = object ? DPARI_JSON_FIRST_KEY : DPARI_JSON_FIRST_VALUE;
    return DPAR_OK;
}

/* Returns 1 if the innermost level is an object, and 0 if it is an array or the top level. */
DPARI_STATIC_NOINLINE int dpari_json_in_object(const dpari_json *json)
{
    return json->depth > 0 && (json->objects >> (json->depth - 1) & 1u);
}

/* Leaves the innermost object or array. */
static dpar_status dpari_json_close(dpari_json *json, dpari_json_item *item)
{
    item->kind = dpari_json_in_object(json) ? DPARI_JSON_OBJECT_END : DPARI_JSON_ARRAY_END;
    json->depth--;
    item->depth = json->depth;
    json->at++;
    dpari_json_after_value(json);
    return DPAR_OK;
}

/* Reads a value, or only the opening bracket of an object or array. */
static dpar_status dpari_json_value(dpari_json *json, dpari_json_item *item, dpar_why *why)
{
    dpar_status st;
    char c;
    dpari_json_blanks(json);
    if (json->at >= json->bytes) {
        return dpari_json_fail(json, why, "the text ends where a value was expected");
    }
    item->depth = json->depth;
    c = json->text[json->at];
    if (c == '{' || c == '[') {
        return dpari_json_open(json, item, why);
    }
    if (c == '"') {
        item->kind = DPARI_JSON_STRING;
        st = dpari_json_string(json, &item->string, &item->length, why);
    } else if ((c == '-' && (json->at + 1 >= json->bytes || json->text[json->at + 1] != 'I')) ||
               (c >= '0' && c <= '9')) {
        st = dpari_json_number(json, item, why);
    } else {
        st = dpari_json_word(json, item, why);
    }
    dpari_json_after_value(json);
    return st;
}

/* Reads the name of a member and the ':' after it. */
static dpar_status dpari_json_key(dpari_json *json, dpari_json_item *item, dpar_why *why)
{
    dpar_status st;
    if (json->text[json->at] != '"') {
        return dpari_json_fail(json, why, "a member's name in quotes was expected");
    }
    st = dpari_json_string(json, &item->key, &item->key_length, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_json_blanks(json);
    if (json->at >= json->bytes) {
        return dpari_json_fail(json, why, "the text ends where ':' was expected");
    }
    if (json->text[json->at] != ':') {
        return dpari_json_fail(json, why, "':' was expected");
    }
    json->at++;
    return DPAR_OK;
}

/* Reads the ',' after a value in an object or array, and the blanks after the ','. */
static dpar_status dpari_json_comma(dpari_json *json, dpar_why *why)
{
    int object = dpari_json_in_object(json);
    if (json->text[json->at] != ',') {
        return dpari_json_fail(json, why,
                               object ? "',' or '}' was expected" : "',' or ']' was expected");
    }
    json->at++;
    json->expect = object ? DPARI_JSON_KEY : DPARI_JSON_VALUE;
    dpari_json_blanks(json);
    if (json->at >= json->bytes) {
        return dpari_json_fail(json, why, "the text ends after a ','");
    }
    return DPAR_OK;
}

/* Reads the next item. On an error the reader may have advanced. */
static dpar_status dpari_json_step(dpari_json *json, dpari_json_item *item, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    char close = dpari_json_in_object(json) ? '}' : ']';
    dpari_json_blanks(json);
    if (json->expect == DPARI_JSON_NOTHING) {
        item->kind = DPARI_JSON_END;
        if (json->at < json->bytes) {
            return dpari_json_fail(json, why, "more text after the end of the value");
        }
        return DPAR_OK;
    }
    if (json->at >= json->bytes) {
        return dpari_json_fail(json, why, "the text ends too early");
    }
    if (json->expect != DPARI_JSON_VALUE && json->expect != DPARI_JSON_KEY &&
        json->text[json->at] == close) {
        return dpari_json_close(json, item);
    }
    if (json->expect == DPARI_JSON_COMMA) {
        st = dpari_json_comma(json, why);
    }
    if (st == DPAR_OK && dpari_json_in_object(json)) {
        st = dpari_json_key(json, item, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_json_value(json, item, why);
}

DPARI_INTERNAL dpar_status dpari_json_next(dpari_json *json, dpari_json_item *item, dpar_why *why)
{
    dpari_json after = *json;
    dpari_json_item found;
    dpar_status st;
    dpari_zero(&found, sizeof(found));
    st = dpari_json_step(&after, &found, why);
    if (st == DPAR_OK) {
        *json = after; /* on an error the reader does not advance, so that the next call fails in
                          the same way */
        *item = found;
    }
    return st;
}
