/* SPDX-License-Identifier: MIT-0 */
/* points_list - stores lists of local indices as runs, and copies, clears and combines the values
 * at these indices. Private: the lowest module of points. */
#ifndef DPARI_POINTS_POINTS_LIST_H
#define DPARI_POINTS_POINTS_LIST_H

#include "../base/arith.h"

/* How a list stores its indices: as one run of consecutive indices, as a pair (first index, number
 * of indices) for each of several runs, or one by one. */
enum { DPARI_PT_ONE, DPARI_PT_RUNS, DPARI_PT_EACH };
typedef struct dpari_pt_list {
    int64_t count, runs; /* number of indices, and number of runs of consecutive indices */
    int32_t kind, first; /* DPARI_PT_ONE, ..., and the first index */
    int32_t step;        /* for EACH: the distance between indices if it is constant, otherwise 0 */
    const int32_t *at;   /* the pairs or indices; NULL for ONE */
} dpari_pt_list;

/* Where the values of a list are: `size` bytes at `at + index * stride` for each index. */
typedef struct dpari_pt_side {
    unsigned char *at;
    int64_t stride; /* bytes */
} dpari_pt_side;

/* ---- of this header's own modules ---- */

/* Sets all fields of a list except for `at`. Returns how many int32_t numbers dpari_pt_fill will
 * write to `at`. */
DPARI_INTERNAL int64_t dpari_pt_measure(dpari_pt_list *list, const int32_t *index, int64_t n);
/* Writes the pairs or indices of a measured list to `at`, which the list then uses. */
DPARI_INTERNAL void dpari_pt_fill(dpari_pt_list *list, const int32_t *index, int32_t *at);
/* Returns the list of 0, 1, ... n - 1. */
DPARI_INTERNAL dpari_pt_list dpari_pt_dense(int64_t n);

/* Copies `size` bytes at each index of `from` to the index at the same position of `into`. */
DPARI_INTERNAL void dpari_pt_move(const dpari_pt_list *into, dpari_pt_side to,
                                  const dpari_pt_list *from, dpari_pt_side of, int64_t size);
/* Sets `size` bytes at each index to 0. */
DPARI_INTERNAL void dpari_pt_clear(const dpari_pt_list *list, dpari_pt_side to, int64_t size);
/* Combines the value at each index with the next value of `of` by `op`. This is done one index
 * after the other, because an index may be listed twice. Each value has `n` numbers of a type. */
DPARI_INTERNAL void dpari_pt_combine(const dpari_pt_list *list, dpari_pt_side to, dpari_pt_side of,
                                     int32_t n, int32_t type, int32_t op);

#endif
