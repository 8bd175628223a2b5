/* SPDX-License-Identifier: MIT-0 */
/* config_types - private: what the model_type of a config.json implies, and words in lists. */
#ifndef DPARI_COST_CONFIG_TYPES_H
#define DPARI_COST_CONFIG_TYPES_H

#include "../base/arith.h"
#include "workload.h"

/* A part of the file. */
typedef struct dpari_slice {
    const char *text;
    size_t length;
} dpari_slice;

/* Returns 1 if the first n letters of two texts are equal, otherwise 0. */
DPARI_INTERNAL int dpari_same_bytes(const char *a, const char *b, size_t n);
/* Returns the index of the word [s, s + n) in a list of words separated by blanks, or -1 if it is
 * not in the list. */
DPARI_INTERNAL int32_t dpari_word_in_list(const char *list, const char *s, size_t n);
/* Returns 1 if a slice is one of the words of a list, otherwise 0. */
DPARI_INTERNAL int dpari_slice_is(const dpari_slice *s, const char *list);
/* Returns 1 if the n letters at s contain `part`, otherwise 0. */
DPARI_INTERNAL int dpari_slice_holds(const char *s, size_t n, const char *part);

/* Returns what a model_type implies, as "FAMILY:settings", or NULL if the type is not known. */
DPARI_INTERNAL const char *dpari_type_find(const dpari_slice *type);
/* Applies what dpari_type_find returned. */
DPARI_INTERNAL void dpari_type_read(dpar_model *model, const char *row);
/* Returns the settings of the vision tower of a multi-modal model's type, or NULL. */
DPARI_INTERNAL const char *dpari_tower_find(const dpari_slice *type);

#endif
