/* SPDX-License-Identifier: MIT-0 */
/* json - a strict pull reader (RFC 8259) over text in memory: no recursion, no allocation,
 * nesting at most 64 deep, O(1) state. Errors name line and column. */
#ifndef DPARI_COST_JSON_H
#define DPARI_COST_JSON_H

#include "../base/base.h"

enum {
    DPAR_JSON_END,
    DPAR_JSON_OBJECT,     /* '{' */
    DPAR_JSON_OBJECT_END, /* '}' */
    DPAR_JSON_ARRAY,      /* '[' */
    DPAR_JSON_ARRAY_END,  /* ']' */
    DPAR_JSON_STRING,
    DPAR_JSON_NUMBER,
    DPAR_JSON_TRUE,
    DPAR_JSON_FALSE,
    DPAR_JSON_NULL
};

typedef struct dpar_json {
    const char *text; /* not copied; must outlive the reader */
    size_t bytes;
    size_t at;
    uint64_t objects; /* bit d: is level d an object? */
    int32_t depth;
    int32_t expect; /* private */
} dpar_json;

typedef struct dpar_json_item {
    int32_t kind;
    int32_t depth;   /* of the value: 0 for the outermost */
    const char *key; /* inside an object, else NULL; raw bytes between the quotes */
    size_t key_length;
    const char *string; /* raw bytes between the quotes, escapes unresolved (but checked) */
    size_t length;
    double number;
} dpar_json_item;

/* Begins to read; nothing is checked yet. O(1). */
DPAR_API void dpar_json_init(dpar_json *j, const char *text, size_t bytes);
/* The next item; kind DPAR_JSON_END after the outermost value and blanks. E_PARSE with line and
 * column otherwise. O(length of the item). */
DPAR_API dpar_status dpar_json_next(dpar_json *j, dpar_json_item *item, dpar_why *why);

#endif
