/* SPDX-License-Identifier: MIT-0 */
/* move_boxes - private: moves boxes of which none waits for another. */
#ifndef DPARI_CUDA_MOVE_BOXES_H
#define DPARI_CUDA_MOVE_BOXES_H

#include "box_kernels.h"

/* Collects pieces until a launch is full or there are no more pieces. */
struct dpari_cuda_moves {
    dpari_cuda_boxes_large slim;
    dpari_cuda_boxes_wide wide; /* pieces with more dims */
};

/* Adds a box, launching what was collected before if there is no room. */
DPARI_INTERNAL dpar_status dpari_cuda_move_one(dpar_cuda *gpu, const dpar_mem_box *box,
                                               dpari_cuda_moves *b);
/* Launches with the smallest arguments that hold the pieces. */
DPARI_INTERNAL dpar_status dpari_cuda_move_flush(dpar_cuda *gpu, dpari_cuda_moves *b);

#endif
