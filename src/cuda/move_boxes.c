/* SPDX-License-Identifier: MIT-0 */
/* Moves boxes of which none waits for another. Boxes are prepared (box_prepare.c) and collected
 * until the arguments of a launch are full. A launch uses the smallest type of arguments that holds
 * its pieces, fewer elements per thread if there is little work, and a kernel that was compiled for
 * the types if all boxes have the same. */
#include "move_boxes.h"

#include "box_prepare.h"
#include "kept_moves.h"

/* Returns the kernel that is compiled for these types and this operation if all boxes have them,
 * otherwise `other`. */
template <int TO, int FROM, int OP>
static void (*dpari_cuda_move_formed(const dpari_cuda_boxes_small *b,
                                     void (*other)(const dpari_cuda_boxes_small)))(
    const dpari_cuda_boxes_small)
{
    const uint8_t kind = OP == DPAR_COPY ? DPARI_CUDA_CAST : DPARI_CUDA_MEET;
    for (int32_t k = 0; k < b->n; k++) {
        const dpari_cuda_box_slim *p = &b->piece[k];
        if (p->kind != kind || p->to_type != TO || p->from_type != FROM || p->op != OP) {
            return other;
        }
    }
    return dpari_cuda_move_form_kernel<dpari_cuda_boxes_small, TO, FROM, OP>;
}

template <typename Batch, int PER> static dpar_status dpari_cuda_move_now(dpar_cuda *gpu, Batch *b)
{
    int32_t k, all = 0;
    void (*kernel)(const Batch) = dpari_cuda_move_kernel<Batch, PER, 0>;
    for (k = 0; k < b->n; k++) {
        all |= b->piece[k].kind != DPARI_CUDA_RAW;
    }
    b->first[b->n] = dpari_cuda_chunks(b->piece, b->n, PER * DPARI_CUDA_THREADS, b->first);
    if (all) {
        kernel = dpari_cuda_move_kernel<Batch, PER, 1>;
    }
    if constexpr (PER > 1 && (int)Batch::ROOM == (int)dpari_cuda_boxes_small::ROOM) {
        kernel = dpari_cuda_move_formed<DPAR_F32, DPAR_F64, DPAR_COPY>(b, kernel);
        kernel = dpari_cuda_move_formed<DPAR_F64, DPAR_F32, DPAR_COPY>(b, kernel);
        kernel = dpari_cuda_move_formed<DPAR_BF16, DPAR_F32, DPAR_COPY>(b, kernel);
        kernel = dpari_cuda_move_formed<DPAR_F32, DPAR_BF16, DPAR_COPY>(b, kernel);
        kernel = dpari_cuda_move_formed<DPAR_F32, DPAR_F32, DPAR_SUM>(b, kernel);
        kernel = dpari_cuda_move_formed<DPAR_F64, DPAR_F64, DPAR_SUM>(b, kernel);
        kernel = dpari_cuda_move_formed<DPAR_F32, DPAR_F32, DPAR_MAX>(b, kernel);
        kernel = dpari_cuda_move_formed<DPAR_F32, DPAR_F32, DPAR_MIN>(b, kernel);
    }
    return dpari_cuda_move_launch(gpu, kernel, *b, dpari_cuda_each(gpu, b->first[b->n]));
}

template <typename Batch, int PER>
static dpar_status dpari_cuda_move_less(dpar_cuda *gpu, const dpari_cuda_boxes_large *b)
{
    Batch s;
    dpari_cuda_shrink(&s, b);
    return dpari_cuda_move_now<Batch, PER>(gpu, &s);
}

DPARI_INTERNAL dpar_status dpari_cuda_move_flush(dpar_cuda *gpu, dpari_cuda_moves *b)
{
    const int little = dpari_cuda_little(gpu, &b->slim);
    dpar_status st = DPAR_OK;
    if (b->slim.n > (int32_t)dpari_cuda_boxes_small::ROOM) {
        st = dpari_cuda_move_now<dpari_cuda_boxes_large, 4>(gpu, &b->slim);
    } else if (b->slim.n > 0 && !little) {
        st = dpari_cuda_move_less<dpari_cuda_boxes_small, 4>(gpu, &b->slim);
    } else if (b->slim.n > (int32_t)dpari_cuda_boxes_tiny::ROOM) {
        st = dpari_cuda_move_less<dpari_cuda_boxes_small, 1>(gpu, &b->slim);
    } else if (b->slim.n > 0) {
        st = dpari_cuda_move_less<dpari_cuda_boxes_tiny, 1>(gpu, &b->slim);
    }
    if (b->wide.n > 0 && st == DPAR_OK) {
        st = dpari_cuda_move_now<dpari_cuda_boxes_wide, 4>(gpu, &b->wide);
    }
    b->slim.n = b->wide.n = 0;
    return st;
}

static void dpari_cuda_slim(const dpari_cuda_box *p, dpari_cuda_box_slim *s)
{
    int32_t d;
    memset(s, 0, sizeof *s);
    s->to = p->to;
    s->from = p->from;
    for (d = 0; d < p->dims; d++) {
        s->to_step[d] = p->to_step[d];
        s->from_step[d] = p->from_step[d];
        s->extent[d] = p->extent[d];
        s->magic[d] = p->magic[d];
        s->shift[d] = p->shift[d];
    }
    s->units = p->units;
    s->dims = p->dims;
    s->kind = p->kind;
    s->width = p->width;
    s->to_type = p->to_type;
    s->from_type = p->from_type;
    s->through = p->through;
    s->op = p->op;
    s->negate = p->negate;
    s->clear = p->clear;
}

DPARI_INTERNAL dpar_status dpari_cuda_move_one(dpar_cuda *gpu, const dpar_mem_box *box,
                                               dpari_cuda_moves *b)
{
    dpari_cuda_cut cut;
    dpari_cuda_box piece;
    const int made = dpari_cuda_prepare(box, &cut);
    dpar_status st = DPAR_OK;
    int64_t i;
    if (made < 0) { /* over 2^30 units before the last dim: one launch for each index of the longest
                       dim */
        dpar_mem_box part = *box;
        const int64_t tw = dpari_cuda_width(box->to_type), fw = dpari_cuda_width(box->from_type);
        int32_t d = 0, k;
        for (k = 1; k < box->dims; k++) {
            d = box->extent[k] > box->extent[d] ? k : d;
        }
        part.extent[d] = box->extent[d] / 2;
        st = dpari_cuda_move_one(gpu, &part, b);
        part.to = (unsigned char *)box->to + part.extent[d] * box->to_stride[d] * tw;
        part.from = (unsigned char *)box->from + part.extent[d] * box->from_stride[d] * fw;
        part.extent[d] = box->extent[d] - part.extent[d];
        return st == DPAR_OK ? dpari_cuda_move_one(gpu, &part, b) : st;
    }
    for (i = 0; made > 0 && i < cut.pieces && st == DPAR_OK; i++) {
        if (b->slim.n == dpari_cuda_most<dpari_cuda_boxes_small, dpari_cuda_boxes_large>(gpu) ||
            b->wide.n == dpari_cuda_boxes_wide::ROOM) {
            st = dpari_cuda_move_flush(gpu, b);
        }
        dpari_cuda_piece(&cut, i, &piece);
        if (piece.dims > DPARI_CUDA_SLIM) {
            b->wide.piece[b->wide.n++] = piece;
        } else {
            dpari_cuda_slim(&piece, &b->slim.piece[b->slim.n++]);
        }
    }
    return st;
}
