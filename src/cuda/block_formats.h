/* SPDX-License-Identifier: MIT-0 */
/* block_formats - private: blocks in the formats of tensor cores, MXFP8, MXFP4 and NVFP4. */
#ifndef DPARI_CUDA_BLOCK_FORMATS_H
#define DPARI_CUDA_BLOCK_FORMATS_H

#include "operations.h"

/* Computes the codes of numbers, or with back 1 the numbers of codes. name: of the operation. */
DPARI_INTERNAL dpar_status dpari_cuda_micro_op(dpar_cuda *gpu, const char *name,
                                               const dpar_mem_quantize *call, int back);

#endif
