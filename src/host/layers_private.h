/* SPDX-License-Identifier: MIT-0 */
/* layers_private - private: the operations of layers.h in host memory; those of norms are in
 * layers_norm.h. */
#ifndef DPARI_HOST_LAYERS_PRIVATE_H
#define DPARI_HOST_LAYERS_PRIVATE_H

#include "../base/arith.h"
#include "layers.h"

/* Do what the functions of a dpar_mem_layers do. */
DPARI_INTERNAL dpar_status dpari_mem_squares(void *ctx, const dpar_mem_squares *call);
DPARI_INTERNAL dpar_status dpari_mem_optimize(void *ctx, const dpar_mem_optimize *call);
DPARI_INTERNAL dpar_status dpari_mem_round(void *ctx, const dpar_mem_round *call);
DPARI_INTERNAL dpar_status dpari_mem_gather(void *ctx, const dpar_mem_gather *call);
DPARI_INTERNAL dpar_status dpari_mem_scatter(void *ctx, const dpar_mem_scatter *call);
DPARI_INTERNAL dpar_status dpari_mem_combine(void *ctx, const dpar_mem_combine *call);
DPARI_INTERNAL dpar_status dpari_mem_dot(void *ctx, const dpar_mem_dot *call);
DPARI_INTERNAL dpar_status dpari_mem_cross_entropy(void *ctx, const dpar_mem_cross_entropy *call);
DPARI_INTERNAL dpar_status dpari_mem_attention_merge(void *ctx,
                                                     const dpar_mem_attention_merge *call);
DPARI_INTERNAL dpar_status dpari_mem_quantize(void *ctx, const dpar_mem_quantize *call);
DPARI_INTERNAL dpar_status dpari_mem_dequantize(void *ctx, const dpar_mem_quantize *call);

#endif
