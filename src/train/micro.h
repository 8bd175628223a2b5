/* SPDX-License-Identifier: MIT-0 */
/* micro - private: quantizes and dequantizes blocks in the formats of tensor cores (layers.h) in
 * the host's memory. Also reads and writes elements for blocks of all formats. */
#ifndef DPARI_TRAIN_MICRO_H
#define DPARI_TRAIN_MICRO_H

#include "../base/arith.h"
#include "layers.h"

/* True if the call is in the domain of its format. The caller has checked what all formats have in
 * common. */
DPARI_INTERNAL int dpari_micro_fits(const dpar_mem_quantize *call);
/* Returns the elements of a block. */
DPARI_INTERNAL int64_t dpari_micro_elements(int32_t format);
/* Quantize and dequantize block b of a call that fits. */
DPARI_INTERNAL void dpari_micro_block(const dpar_mem_quantize *call, int64_t b);
DPARI_INTERNAL void dpari_micro_unblock(const dpar_mem_quantize *call, int64_t b);

/* ---- for all formats ---- */

/* Returns elements i .. i + n - 1 of x as floats, n <= DPARI_ELEMENTS: in place, or converted in
 * `room`. */
DPARI_INTERNAL const float *dpari_quant_read(const dpar_mem_quantize *call, int64_t i, int64_t n,
                                             float *room);
/* Stores n numbers in elements i .. i + n - 1 of call->x. With call->accumulate it adds them, and
 * overwrites its argument x. */
DPARI_INTERNAL void dpari_quant_give(const dpar_mem_quantize *call, double *x, int64_t i,
                                     int64_t n);

#endif
