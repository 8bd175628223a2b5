/* SPDX-License-Identifier: MIT-0 */
/* joint_moves - private: moves boxes that meet in a single launch. A thread has one element of a
 * piece (box_frames) and processes its boxes in order. Boxes that do not fit an array of few dims,
 * or of which one reads data that another writes, need several launches instead. */
#ifndef DPARI_CUDA_JOINT_MOVES_H
#define DPARI_CUDA_JOINT_MOVES_H

#include "box_frames.h"

/* True if the arguments of a launch have room for all boxes that an element may be in. */
DPARI_INTERNAL int dpari_cuda_joint_fits(const dpar_cuda *gpu, const dpari_cuda_scene *z);
DPARI_INTERNAL dpar_status dpari_cuda_move_joint(dpar_cuda *gpu, const dpari_cuda_scene *z);

#endif
