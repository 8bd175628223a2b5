/* SPDX-License-Identifier: MIT-0 */
/* box_overlap - private: the sides of boxes in memory, and which boxes have to wait for others. */
#ifndef DPARI_CUDA_BOX_OVERLAP_H
#define DPARI_CUDA_BOX_OVERLAP_H

#include "launch.h"

/* A side of a box, which is within the bytes [base, end). Dims without length or step are left out.
 * Steps are positive, with the shortest first. Later box_frames also keeps the side as a box of
 * indices here. */
struct dpari_cuda_side {
    uintptr_t base, end;
    union {
        int64_t step[DPAR_MEM_DIMS];
        int64_t lo[DPAR_MEM_DIMS];
    };
    union {
        int64_t extent[DPAR_MEM_DIMS];
        int64_t hi[DPAR_MEM_DIMS];
    };
    int32_t dims, width;
};

DPARI_INTERNAL int dpari_cuda_box_empty(const dpar_mem_box *b);
/* Sets *s to a side of a box that is not empty. Returns 0 if two dims have the same step. */
DPARI_INTERNAL int dpari_cuda_side_of(const dpar_mem_box *b, int of_to, dpari_cuda_side *s);
/* True if b, which is later in the list, has to wait for a. */
DPARI_INTERNAL int dpari_cuda_follows(const dpar_mem_box *a, const dpar_mem_box *b);

#endif
