/* SPDX-License-Identifier: MIT-0 */
/* json - private: reads JSON (RFC 8259) item by item from text in memory. The reader is strict,
 * does not recurse and does not allocate; nesting is at most 64 levels deep. Errors name line and
 * column.
 */
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
    size_t at;        /* offset of the next byte to read */
    uint64_t objects; /* bit d is set if level d is an object */
    int32_t depth;    /* objects and arrays that are open */
    int32_t expect;   /* what may come next; private to json.c */
} dpari_json;

typedef struct dpari_json_item {
    int32_t kind;
    int32_t depth;   /* depth of the value; 0 for the outermost one */
    const char *key; /* inside an object, otherwise NULL; raw bytes between the quotes */
    size_t key_length;
    const char *string; /* raw bytes between the quotes; escapes are checked, not resolved */
    size_t length;
    double number;
} dpari_json_item;

/* Prepares the reader. The text is checked later, item by item. O(1). */
DPARI_INTERNAL void dpari_json_init(dpari_json *json, const char *text, size_t bytes);
/* Reads the next item. Its kind is DPARI_JSON_END after the outermost value. O(length of the item).
 * Fails with DPAR_E_PARSE; the message has line and column. */
DPARI_INTERNAL dpar_status dpari_json_next(dpari_json *json, dpari_json_item *item, dpar_why *why);

#endif
