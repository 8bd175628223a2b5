/* SPDX-License-Identifier: MIT-0 */
/* block_formats - private: quantizes and dequantizes blocks of the formats for tensor cores
 * (layers.h) in host memory. Also reads and writes elements for blocks of all formats. */
#ifndef DPARI_HOST_BLOCK_FORMATS_H
#define DPARI_HOST_BLOCK_FORMATS_H

#include "../base/arith.h"
#include "layers.h"

/* True if the call has one of the formats of this module and fields that are valid for it. The
 * caller has checked the fields whose rules are the same for all formats. */
DPARI_INTERNAL int dpari_micro_fits(const dpar_mem_quantize *call);
/* Returns the number of elements of a block. */
DPARI_INTERNAL int64_t dpari_micro_elements(int32_t format);
/* Quantize and dequantize block b of a call that dpari_micro_fits accepts. */
DPARI_INTERNAL void dpari_micro_block(const dpar_mem_quantize *call, int64_t b);
DPARI_INTERNAL void dpari_micro_unblock(const dpar_mem_quantize *call, int64_t b);

/* ---- for all formats ---- */

/* Returns elements i .. i + n - 1 of call->x as floats, where n <= DPARI_ELEMENTS. For F32 the
 * result is their address in call->x, otherwise `room`, which receives the converted elements. */
DPARI_INTERNAL const float *dpari_quant_read(const dpar_mem_quantize *call, int64_t i, int64_t n,
                                             float *room);
/* Stores x[n] in elements i .. i + n - 1 of call->x. With call->accumulate, adds it to them, and
 * overwrites x by the sums. */
DPARI_INTERNAL void dpari_quant_give(const dpar_mem_quantize *call, double *x, int64_t i,
                                     int64_t n);

#endif
