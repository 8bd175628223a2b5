/* SPDX-License-Identifier: MIT-0 */
/* rows - private: rows that an index selects, and their division among the threads of a grid. */
#ifndef DPARI_CUDA_ROWS_H
#define DPARI_CUDA_ROWS_H

#include "operations.h"
#include "launch.h"

/* Returns number i of an index. */
__device__ static inline int64_t dpari_cuda_index_at(const dpar_mem_index &x, int64_t i)
{
    return x.type == DPAR_I32 ? (int64_t)((const int32_t *)x.at)[i] : ((const int64_t *)x.at)[i];
}

/* Returns row i of an index, negative if there is none. */
__device__ static inline int64_t dpari_cuda_row(const dpar_mem_index &x, int64_t i)
{
    const int64_t at = dpari_cuda_index_at(x, i);
    if (x.windows == 0) {
        return at;
    }
    for (int32_t w = 0; w < x.windows; w++) {
        if (at >= x.lo[w] && at < x.hi[w]) {
            return x.row[w] + at - x.lo[w];
        }
    }
    return -1;
}

static int dpari_cuda_index_fine(const dpar_mem_index *x, int64_t n)
{
    return (x->type == DPAR_I32 || x->type == DPAR_I64) && x->windows >= 0 && x->windows <= 2 &&
           (n == 0 || x->at != NULL);
}

/* Rows are processed in chunks of several rows, or of a part of one. */
struct dpari_cuda_rows {
    int64_t chunks;
    int64_t slices; /* number of chunks of a row; if it is 1, a chunk has `rows` rows */
    int64_t units;  /* units of a row */
    int32_t rows;
    int32_t each; /* units of a slice */
};

static dpari_cuda_rows dpari_cuda_rows_of(int64_t rows, int64_t units)
{
    dpari_cuda_rows r;
    const int64_t most = 4 * DPARI_CUDA_THREADS;
    r.units = units;
    r.each = (int32_t)(units < most ? units : most);
    r.slices = units > most ? (units + most - 1) / most : 1;
    r.rows = (int32_t)(units >= most || units == 0 ? 1 : most / units);
    r.chunks = r.slices > 1 ? rows * r.slices : (rows + r.rows - 1) / r.rows;
    return r;
}

/* Computes the row of unit `local` of chunk c, and the unit's place in that row. Returns 0 beyond
 * the end of the chunk. */
DPARI_CUDA_FN int dpari_cuda_rows_at(const dpari_cuda_rows &r, int64_t rows, int64_t c,
                                     uint32_t local, int64_t *row, int64_t *unit)
{
    if (r.slices > 1) {
        *row = c / r.slices;
        *unit = c % r.slices * r.each + local;
        return local < (uint32_t)r.each && *unit < r.units;
    }
    const uint32_t q = local / (uint32_t)r.each;
    *row = c * r.rows + q;
    *unit = local - q * (uint32_t)r.each;
    return q < (uint32_t)r.rows && *row < rows;
}

#endif
