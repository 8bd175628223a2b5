/* SPDX-License-Identifier: MIT-0 */
/* scan - combines the values of this rank with those of all lower ranks, and finds the smallest or
 * largest value together with where it is.
 *
 *     dpar_exscan(world, &count, &first, 1, DPAR_I64, DPAR_SUM);    number of this rank's first row
 *
 * simple.h has short forms for one number: dpar_first_index, dpar_min_location and
 * dpar_max_location. All functions are collective and return when they are done. */
#ifndef DPARI_COMM_SCAN_H
#define DPARI_COMM_SCAN_H

#include "comm.h"

/* Combines in[count] of rank 0 up to this rank elementwise into out[count], in rank order.
 *
 * in, out: in memory that the CPU reads, the same or disjoint.
 * op:      DPAR_SUM, DPAR_PRODUCT, DPAR_MAX or DPAR_MIN.
 *
 * The rules for numbers are those of reductions (comm.h), except that F16 and BF16 are rounded
 * after each rank. The bits are the same with every engine. Collective. Fails as dpar_all_gather
 * does, with DPAR_E_MISMATCH also if ranks pass different ops, and with DPAR_E_MEMORY on all ranks.
 *
 * Costs an all-gather of the inputs, and O(size * count). If the inputs of all ranks together
 * exceed 8 KiB, also costs a small all-reduce, and 1 MiB of memory, or that of an element of each
 * rank if this is more. */
DPAR_API dpar_status dpar_scan(dpar_comm *comm, const void *in, void *out, int64_t count,
                               int32_t type, int32_t op);
/* Combines in[count] of all lower ranks, without this one's. On rank 0, `out` becomes 0 for
 * DPAR_SUM and is left unchanged for other ops. Everything else is as for dpar_scan. */
DPAR_API dpar_status dpar_exscan(dpar_comm *comm, const void *in, void *out, int64_t count,
                                 int32_t type, int32_t op);

/* A value, and a number that you choose to describe where it is, such as the index of a cell. */
typedef struct dpar_location {
    double value;
    int64_t index;
} dpar_location;

/* Finds, for each i, the smallest or largest pairs[i].value of all ranks, and the index passed with
 * it. All ranks get both. If several ranks have this value, the lowest of their indices is taken.
 * If any value is NaN, the result is NaN, with the lowest index passed with a NaN.
 *
 * pairs: [count], input and output, in memory that the CPU reads. Undefined after a failure.
 * op:    DPAR_MIN or DPAR_MAX.
 *
 * Collective. Fails as dpar_all_reduce does. Costs two all-reduces per 128 pairs. */
DPAR_API dpar_status dpar_all_reduce_location(dpar_comm *comm, dpar_location *pairs, int64_t count,
                                              int32_t op);

#endif
