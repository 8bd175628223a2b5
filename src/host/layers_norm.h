/* SPDX-License-Identifier: MIT-0 */
/* layers_norm - private: moments and norms in host memory, and functions that read rows. */
#ifndef DPARI_HOST_LAYERS_NORM_H
#define DPARI_HOST_LAYERS_NORM_H

#include "../base/arith.h"
#include "layers.h"
#include "vector_loops.h"

/* Execute the operations of layers.h. ctx is ignored. */
DPARI_INTERNAL dpar_status dpari_mem_moments(void *ctx, const dpar_mem_moments *m);
DPARI_INTERNAL dpar_status dpari_mem_norm(void *ctx, const dpar_mem_norm *call);

/* Loops over a row process this many elements at a time. */
enum { DPARI_ROW_PART = 256 };
#if defined(__GNUC__)
#define DPARI_ROW __attribute__((aligned(64)))
#else
#define DPARI_ROW
#endif
/* Returns elements at .. at + count - 1 of x, and sets *as to their type. For F64 and F32 the
 * result is their address in x, otherwise `room`, which receives them converted to F64. */
DPARI_INTERNAL const void *dpari_row_at(const dpari_lanes *lanes, const void *x, int32_t type,
                                        int64_t at, int64_t count, double *room, int32_t *as);
/* Computes to = keep to + scale from, for F64 in f64, for F32 in f32. `from` may be `to`. */
DPARI_INTERNAL void dpari_row_add(const dpari_lanes *lanes, int32_t type, void *to, double keep,
                                  double scale, const void *from, int64_t n);

#endif
