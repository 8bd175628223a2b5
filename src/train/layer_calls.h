/* SPDX-License-Identifier: MIT-0 */
/* layer_calls - private: runs the operations of layers.h in the memory of a communicator, like
 * memory_calls.h for the operations of mem.h. If comm->mem has no table of layers or the table has
 * no such operation, the communicator breaks with DPAR_E_UNKNOWN. */
#ifndef DPARI_TRAIN_LAYER_CALLS_H
#define DPARI_TRAIN_LAYER_CALLS_H

#include "../base/arith.h"
#include "../comm/comm.h"
#include "../host/layers.h"

/* Run one operation in the memory of comm. */
DPARI_API dpar_status dpari_do_moments(dpar_comm *comm, const dpar_mem_moments *call);
DPARI_API dpar_status dpari_do_norm(dpar_comm *comm, const dpar_mem_norm *call);

/* ---- of this header's own modules ---- */

/* Run one operation in the memory of comm. */
DPARI_INTERNAL dpar_status dpari_do_squares(dpar_comm *comm, const dpar_mem_squares *call);
DPARI_INTERNAL dpar_status dpari_do_optimize(dpar_comm *comm, const dpar_mem_optimize *call);
DPARI_INTERNAL dpar_status dpari_do_round(dpar_comm *comm, const dpar_mem_round *call);
DPARI_INTERNAL dpar_status dpari_do_gather(dpar_comm *comm, const dpar_mem_gather *call);
DPARI_INTERNAL dpar_status dpari_do_scatter(dpar_comm *comm, const dpar_mem_scatter *call);
DPARI_INTERNAL dpar_status dpari_do_combine(dpar_comm *comm, const dpar_mem_combine *call);
DPARI_INTERNAL dpar_status dpari_do_dot(dpar_comm *comm, const dpar_mem_dot *call);
DPARI_INTERNAL dpar_status dpari_do_cross_entropy(dpar_comm *comm,
                                                  const dpar_mem_cross_entropy *call);
DPARI_INTERNAL dpar_status dpari_do_attention_merge(dpar_comm *comm,
                                                    const dpar_mem_attention_merge *call);
DPARI_INTERNAL dpar_status dpari_do_quantize(dpar_comm *comm, const dpar_mem_quantize *call);
DPARI_INTERNAL dpar_status dpari_do_dequantize(dpar_comm *comm, const dpar_mem_quantize *call);

#endif
