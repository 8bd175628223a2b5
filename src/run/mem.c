/* SPDX-License-Identifier: MIT-0 */
#include "mem.h"

#include "strided.h"

DPAR_API void dpar_mem_move_box(const dpar_mem_box *box)
{
    dpari_stride_piece p;
    dpari_stride s;
    int32_t d;
    dpari_zero(&p, sizeof p);
    p.dims = box->dims;
    p.to_type = box->to_type;
    p.from_type = box->from_type;
    p.through = box->through;
    p.op = box->op;
    p.negate = box->negate;
    p.clear = box->clear;
    for (d = 0; d < box->dims; d++) {
        p.extent[d] = box->extent[d];
        p.to[d] = box->to_stride[d];
        p.from[d] = box->from_stride[d];
    }
    dpari_stride_prepare(&s, &p);
    dpari_stride_run(&s, box->to, box->from);
}
