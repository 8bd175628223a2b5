/* SPDX-License-Identifier: MIT-0 */
/* json - private: a strict pull reader (RFC 8259) over text in memory: no recursion, no allocation,
 * nesting at most 64 deep, O(1) state. Errors name line and column. */
#ifndef DPARI_COST_JSON_H
#define DPARI_COST_JSON_H

#include "../base/arith.h"

enum {
    DPARI_JSON_END,
    DPARI_JSON_OBJECT,     /* '{' */
    DPARI_JSON_OBJECT_END, /* '}' */
    DPARI_JSON_ARRAY,      /* '[' */
    DPARI_JSON_ARRAY_END,  /* ']' */
    DPARI_JSON_STRING,
    DPARI_JSON_NUMBER,
    DPARI_JSON_TRUE,
    DPARI_JSON_FALSE,
    DPARI_JSON_NULL
};

typedef struct dpari_json {
    const char *text; /* not copied; must outlive the reader */
    size_t bytes;
    size_t at;
    uint64_t objects; /* bit d: is level d an object? */
    int32_t depth;
    int32_t expect; /* private */
} dpari_json;

typedef struct dpari_json_item {
    int32_t kind;
    int32_t depth;   /* of the value: 0 for the outermost */
    const char *key; /* inside an object, else NULL; raw bytes between the quotes */
    size_t key_length;
    const char *string; /* raw bytes between the quotes, escapes unresolved (but checked) */
    size_t length;
    double number;
} dpari_json_item;

/* Begins to read; nothing is checked yet. O(1). */
DPARI_API void dpari_json_init(dpari_json *j, const char *text, size_t bytes);
/* The next item; kind DPARI_JSON_END after the outermost value and blanks. E_PARSE with line and
 * column otherwise. O(length of the item). */
DPARI_API dpar_status dpari_json_next(dpari_json *j, dpari_json_item *item, dpar_why *why);

#endif
