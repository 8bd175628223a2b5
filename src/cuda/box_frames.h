/* SPDX-License-Identifier: MIT-0 */
/* box_frames - private: boxes that meet. If several boxes add to the same element, their order is
 * fixed, so that the result always has the same bits. The targets of all boxes of an array are
 * expressed as boxes of its indices, and cut into pieces whose elements are all in the same boxes.
 */
#ifndef DPARI_CUDA_BOX_FRAMES_H
#define DPARI_CUDA_BOX_FRAMES_H

#include "box_overlap.h"
#include "kept_moves.h"

enum {
    DPARI_CUDA_CUTS = 64,       /* the most cuts of a dim */
    DPARI_CUDA_CELLS = 1 << 14, /* the most cells of an array */
    DPARI_CUDA_WORDS = DPARI_CUDA_WINDOW / 64,
    DPARI_CUDA_NEAR = 2 /* number of boxes that a piece stores itself */
};

/* An array, as it can be inferred from the boxes: the steps of its dims, the shortest first, and
 * the address of index 0. */
struct dpari_cuda_frame {
    uintptr_t base;
    int64_t step[DPAR_MEM_DIMS];
    int32_t dims;
    int32_t first, n; /* its sides are order[first] to order[first + n - 1] */
};

struct dpari_cuda_scene {
    const dpar_mem_box *box;
    int32_t n, frames;
    int32_t dims; /* the most dims that a frame has */
    int meets;
    dpari_cuda_side side[2 * DPARI_CUDA_WINDOW]; /* `to` of box k is at 2 k, and `from` at 2 k +
                                                    1 */
    int16_t order[2 * DPARI_CUDA_WINDOW];
    dpari_cuda_frame frame[DPARI_CUDA_WINDOW]; /* frames in which some side is a `to` */
};

/* The cuts of a frame. Between two cuts of a dim all elements are in the same boxes, which are
 * stored as a set of bits. */
struct dpari_cuda_cells {
    int16_t to[DPARI_CUDA_WINDOW]; /* boxes with a target in the frame, in order */
    int32_t n;
    int32_t cuts[DPAR_MEM_DIMS];
    int64_t cut[DPAR_MEM_DIMS][DPARI_CUDA_CUTS];
    uint64_t in[DPAR_MEM_DIMS][DPARI_CUDA_CUTS][DPARI_CUDA_WORDS];
};

/* Sorts the sides of all boxes by address, and groups those that overlap into frames. Returns 0 if
 * they cannot be analysed. */
DPARI_INTERNAL int dpari_cuda_scene_of(const dpar_mem_box *box, int32_t n, dpari_cuda_scene *z);
/* Computes the cuts of a frame. Returns 0 if there are too many. */
DPARI_INTERNAL int dpari_cuda_cells_of(const dpari_cuda_scene *z, const dpari_cuda_frame *f,
                                       dpari_cuda_cells *c);

#endif
