/* SPDX-License-Identifier: MIT-0 */
/* proof_image - private: computes where the value of a halo point comes from, by the rules of
 * halo.h. It uses the definitions of periodic dims, folds, poles and cubed spheres point by point,
 * and none of the code that lists transfers. */
#ifndef DPARI_PROOF_PROOF_IMAGE_H
#define DPARI_PROOF_PROOF_IMAGE_H

#include "../base/arith.h"
#include "../index/halo.h"

/* The points of one rank: those that it owns and those in its local array, as half-open ranges. */
typedef struct dpari_prove_block {
    int64_t has; /* 1 if the rank has an array */
    int64_t own[DPAR_MAX_DIMS][2], box[DPAR_MAX_DIMS][2];
} dpari_prove_block;

/* Sets the block of a rank. */
DPARI_INTERNAL void dpari_prove_block_of(const dpar_halo *halo, int32_t rank,
                                         dpari_prove_block *block);
/* Computes q, the point whose value point p of a local array receives, and the quarter turns of
 * vectors. Returns 0 if p receives nothing. */
DPARI_INTERNAL int dpari_prove_image(const dpar_halo *halo, const dpari_prove_block *block,
                                     const int64_t *p, int64_t *q, int32_t *turn);
/* Returns a number that changes where the rule for points of dim d changes: at the ends of the
 * block, of the grid, and of the row on a fold. The rule is the same for all points between two
 * points with the same number. */
DPARI_INTERNAL int32_t dpari_prove_rule(const dpar_halo *halo, const dpari_prove_block *block,
                                        int32_t d, int64_t i);
/* Returns the block that owns point q of a grid, for the copy of the grid to which the block at
 * coord[] belongs. Overwrites coord[]. */
DPARI_INTERNAL int32_t dpari_prove_owner(const dpar_halo *halo, const int64_t *q, int32_t *coord);
/* Counts the points of a local array that receive a value, if all blocks exist. Returns -1 above
 * 2^63 - 1. */
DPARI_INTERNAL int64_t dpari_prove_due(const dpar_halo *halo, const dpari_prove_block *block);
/* Proves that the ranges of points that the parts of dim d own are disjoint and cover the dim. */
DPARI_INTERNAL dpar_status dpari_prove_cut(const dpar_halo *halo, int32_t d, dpar_why *why);

#endif
