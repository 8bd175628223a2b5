/* SPDX-License-Identifier: MIT-0 */
/* micro - private: blocks in the formats of tensor cores (layers.h), in the host's memory; what
 * blocks of all formats read and write. */
#ifndef DPARI_TRAIN_MICRO_H
#define DPARI_TRAIN_MICRO_H

#include "../base/arith.h"
#include "layers.h"

/* True if q is in the domain of such a format. The caller has checked what all formats share. */
DPARI_INTERNAL int dpari_micro_fits(const dpar_mem_quantize *q);
/* Elements of a block. */
DPARI_INTERNAL int64_t dpari_micro_elements(int32_t format);
/* Block b of one that fits is quantized, or dequantized. */
DPARI_INTERNAL void dpari_micro_block(const dpar_mem_quantize *q, int64_t b);
DPARI_INTERNAL void dpari_micro_unblock(const dpar_mem_quantize *q, int64_t b);

/* ---- of all formats ---- */

/* Elements i .. i + n - 1, n <= DPARI_ELEMENTS, as floats: in `room`, or where they lie. */
DPARI_INTERNAL const float *dpari_quant_read(const dpar_mem_quantize *q, int64_t i, int64_t n,
                                             float *room);
/* They become these numbers, or are added to. */
DPARI_INTERNAL void dpari_quant_give(const dpar_mem_quantize *q, double *x, int64_t i, int64_t n);

#endif
