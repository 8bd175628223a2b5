/* SPDX-License-Identifier: MIT-0 */
/* box_prepare - private: finds the form of a box in which a kernel moves it. */
#ifndef DPARI_CUDA_BOX_PREPARE_H
#define DPARI_CUDA_BOX_PREPARE_H

#include "box_kernels.h"

/* A box that is cut along its last dim into pieces of at most DPARI_CUDA_UNITS units. */
struct dpari_cuda_cut {
    dpari_cuda_box piece; /* the fields that all pieces have in common */
    int64_t extent;       /* length of the box's last dim, */
    int64_t each;         /* and of a piece */
    int64_t pieces;
};

DPARI_INTERNAL int dpari_cuda_box_fine(const dpar_mem_box *b);
DPARI_INTERNAL int32_t dpari_cuda_through(const dpar_mem_box *box);
DPARI_INTERNAL int dpari_cuda_prepare(const dpar_mem_box *box, dpari_cuda_cut *cut);
DPARI_INTERNAL void dpari_cuda_piece(const dpari_cuda_cut *cut, int64_t i, dpari_cuda_box *p);

#endif
