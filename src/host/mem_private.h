/* SPDX-License-Identifier: MIT-0 */
/* mem_private - private: the operations of mem.h in the host's memory. */
#ifndef DPARI_HOST_MEM_PRIVATE_H
#define DPARI_HOST_MEM_PRIVATE_H

#include "../base/arith.h"
#include "mem.h"
#include "strided.h"

/* Describes a box as a piece of strided.h. */
DPARI_FN void dpari_mem_piece(const dpar_mem_box *box, dpari_stride_piece *piece)
{
    int32_t d;
    piece->back = piece->ahead = piece->wide = 0;
    piece->beside = 0;
    piece->dims = 0;
    piece->to_type = box->to_type;
    piece->from_type = box->from_type;
    piece->through = box->round_type;
    piece->op = box->op;
    piece->negate = box->negate;
    piece->clear = box->clear;
    for (d = 0; d < box->dims; d++) {
        if (box->extent[d] != 1) { /* without a condition gcc would call memcpy for each array */
            piece->extent[piece->dims] = box->extent[d];
            piece->to[piece->dims] = box->to_stride[d];
            piece->from[piece->dims] = box->from_stride[d];
            piece->dims++;
        }
    }
}
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
