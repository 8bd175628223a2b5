/* SPDX-License-Identifier: MIT-0 */
/* layers_norm - private: moments and norms in the host's memory. */
#ifndef DPARI_TRAIN_LAYERS_NORM_H
#define DPARI_TRAIN_LAYERS_NORM_H

#include "../base/arith.h"
#include "layers.h"

DPARI_API dpar_status dpari_mem_moments(void *ctx, const dpar_mem_moments *m);
DPARI_API dpar_status dpari_mem_norm(void *ctx, const dpar_mem_norm *m);

/* Loops over a row take so many elements at a time, as doubles: they know no type. */
enum { DPARI_ROW_PART = 256 };
/* Elements at, at + step, ... of x, F64, F32, BF16 or F16: `count` of them. */
DPARI_API void dpari_row_read(const void *x, int32_t type, int64_t at, int64_t step, int64_t count,
                              double *to);

#endif
