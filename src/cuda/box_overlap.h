/* SPDX-License-Identifier: MIT-0 */
/* box_overlap - private: finds out whether a box has to wait for another. */
#ifndef DPARI_CUDA_BOX_OVERLAP_H
#define DPARI_CUDA_BOX_OVERLAP_H

#include "launch.h"

/* True if b, which is later in the list, has to wait for a. */
DPARI_INTERNAL int dpari_cuda_follows(const dpar_mem_box *a, const dpar_mem_box *b);

#endif
