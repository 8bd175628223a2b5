/* SPDX-License-Identifier: MIT-0 */
/* points_list - lists of local indices as runs, and the loops that copy and combine what they name.
 * Private: the floor of points. */
#ifndef DPARI_POINTS_POINTS_LIST_H
#define DPARI_POINTS_POINTS_LIST_H

#include "../base/arith.h"

/* Indices in order: one run, pairs (first, how many), or each by itself. */
enum { DPARI_PT_ONE, DPARI_PT_RUNS, DPARI_PT_EACH };
typedef struct dpari_pt_list {
    int64_t count, runs;
    int32_t kind, first;
    int32_t step;      /* EACH: from one index to the next; 0: not always the same */
    const int32_t *at; /* ONE: NULL */
} dpari_pt_list;

/* What lies at an index: `size` bytes at `at + index * stride`. */
typedef struct dpari_pt_side {
    unsigned char *at;
    int64_t stride;
} dpari_pt_side;

/* The kind of these indices and their runs, without memory; the numbers that it needs. */
DPARI_INTERNAL int64_t dpari_pt_measure(dpari_pt_list *list, const int32_t *index, int64_t n);
/* The same indices written to `at`, of so many numbers. */
DPARI_INTERNAL void dpari_pt_fill(dpari_pt_list *list, const int32_t *index, int32_t *at);
/* The list of 0, 1, ... n - 1. */
DPARI_INTERNAL dpari_pt_list dpari_pt_dense(int64_t n);
/* The next run of a list: *cursor begins at 0, *within too. Indices left in it; *first: where. */
DPARI_INTERNAL int64_t dpari_pt_next(const dpari_pt_list *list, int64_t cursor, int64_t within,
                                     int32_t *first);

/* Element k of list `into` becomes element k of list `from`. `size` bytes each. */
DPARI_INTERNAL void dpari_pt_move(const dpari_pt_list *into, dpari_pt_side to,
                                  const dpari_pt_list *from, dpari_pt_side of, int64_t size);
/* Zeroes what a list names. */
DPARI_INTERNAL void dpari_pt_clear(const dpari_pt_list *list, dpari_pt_side to, int64_t size);
/* Each element that a list names becomes itself op the next of `of`, one after another: an index
 * may come twice. `n` numbers of a type at each. */
DPARI_INTERNAL void dpari_pt_combine(const dpari_pt_list *list, dpari_pt_side to, dpari_pt_side of,
                                     int32_t n, int32_t type, int32_t op);

#endif
