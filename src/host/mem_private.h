/* SPDX-License-Identifier: MIT-0 */
/* mem_private - private: the operations of mem.h in the host's memory. */
#ifndef DPARI_HOST_MEM_PRIVATE_H
#define DPARI_HOST_MEM_PRIVATE_H

#include "../base/arith.h"
#include "mem.h"

/* Copies one box, as the `move` of a table does. Fails with DPAR_E_ARG, without a message, if types
 * or op are not allowed. */
DPARI_API dpar_status dpari_mem_move_box(const dpar_mem_box *box);
/* Does what dpar_mem.span does. */
DPARI_API dpar_status dpari_mem_span(void *ctx, const dpar_mem_span *spans, int32_t n);

/* ---- of this header's own modules ---- */

/* Do what the functions of a dpar_mem do. */
DPARI_INTERNAL dpar_status dpari_mem_move(void *ctx, const dpar_mem_box *boxes, int32_t n);
DPARI_INTERNAL dpar_status dpari_mem_reduce(void *ctx, const dpar_mem_reduce *reduce);
DPARI_INTERNAL dpar_status dpari_mem_finite(void *ctx, const dpar_mem_finite *f);

#endif
