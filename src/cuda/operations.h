/* SPDX-License-Identifier: MIT-0 */
/* operations - private: the functions of the tables dpar_mem and dpar_mem_layers. Each is in the .c
 * file that has its name in the table. */
#ifndef DPARI_CUDA_OPERATIONS_H
#define DPARI_CUDA_OPERATIONS_H

#include "platform.h"

DPARI_INTERNAL dpar_status dpari_cuda_move(void *ctx, const dpar_mem_box *boxes, int32_t n);
DPARI_INTERNAL dpar_status dpari_cuda_pin(void *ctx, void *memory, int64_t bytes);
DPARI_INTERNAL dpar_status dpari_cuda_unpin(void *ctx, void *memory);
DPARI_INTERNAL dpar_status dpari_cuda_spans(void *ctx, const dpar_mem_span *spans, int32_t n);
DPARI_INTERNAL dpar_status dpari_cuda_reduce(void *ctx, const dpar_mem_reduce *reduce);
DPARI_INTERNAL dpar_status dpari_cuda_finite(void *ctx, const dpar_mem_finite *finite);

#ifdef DPAR_TRAIN_H
#include "../host/layers.h"

DPARI_INTERNAL dpar_status dpari_cuda_squares(void *ctx, const dpar_mem_squares *squares);
DPARI_INTERNAL dpar_status dpari_cuda_clip(void *ctx, const dpar_mem_clip *clip);
DPARI_INTERNAL dpar_status dpari_cuda_optimize(void *ctx, const dpar_mem_optimize *x);
DPARI_INTERNAL dpar_status dpari_cuda_round(void *ctx, const dpar_mem_round *r);
DPARI_INTERNAL dpar_status dpari_cuda_gather(void *ctx, const dpar_mem_gather *gather);
DPARI_INTERNAL dpar_status dpari_cuda_scatter_add(void *ctx, const dpar_mem_scatter *scatter);
DPARI_INTERNAL dpar_status dpari_cuda_combine(void *ctx, const dpar_mem_combine *combine);
DPARI_INTERNAL dpar_status dpari_cuda_dot(void *ctx, const dpar_mem_dot *dot);
DPARI_INTERNAL dpar_status dpari_cuda_entropy_op(void *ctx, const dpar_mem_cross_entropy *entropy);
DPARI_INTERNAL dpar_status dpari_cuda_merge_op(void *ctx, const dpar_mem_attention_merge *merge);
DPARI_INTERNAL dpar_status dpari_cuda_moments(void *ctx, const dpar_mem_moments *moments);
DPARI_INTERNAL dpar_status dpari_cuda_norm_of(void *ctx, const dpar_mem_norm *call);
DPARI_INTERNAL dpar_status dpari_cuda_quantize(void *ctx, const dpar_mem_quantize *quantize);
DPARI_INTERNAL dpar_status dpari_cuda_dequantize(void *ctx, const dpar_mem_quantize *quantize);
#endif

#endif
