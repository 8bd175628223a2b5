/* SPDX-License-Identifier: MIT-0 */
/* points_part - a partition to start from: points, or the centres of elements, cut along Hilbert's
 * curve into parts of equal weight. Each part is a compact piece of space.
 *
 *     dpar_points_partition_desc d = {0};
 *     d.dims = 3;
 *     d.points = n;
 *     d.at = xyz;                                     x, y, z of each
 *     d.id = id;                                      of all ranks different
 *     bad = dpar_points_partition(c, &d, owner, NULL, &why);      owner[i]: whose point i is to be
 *     bad = bad || dpar_points_migration_make(...);             points_move.h
 *
 * A partition of ParMETIS or Scotch is the same array: for each local point or element the rank
 * that is to own it. It is `part` of ParMETIS_V3_PartMeshKway, partloctab of SCOTCH_dgraphPart.
 * (Where idx_t or SCOTCH_Num has 64 bits, copy it.) What follows does not ask who made it. */
#ifndef DPARI_POINTS_POINTS_PART_H
#define DPARI_POINTS_POINTS_PART_H

#include "../base/base.h"
#include "../comm/comm.h"

/* Points of this rank. Zero it and fill it in. */
typedef struct dpar_points_partition_desc {
    int32_t dims;         /* 2 or 3 */
    int32_t parts;        /* 0: as many as there are ranks; to 2^20 */
    int64_t points;       /* of this rank: 0 .. 2^31 - 1 */
    const double *at;     /* [points][dims] where they are; finite */
    const double *weight; /* [points] 0 and more, finite; NULL: 1 each */
    const int64_t *id;    /* [points] each once in the job: it decides where points lie together.
                             NULL: numbered from rank to rank */
} dpar_points_partition_desc;

/* Which part is each point to belong to? The points of all ranks lie along the curve, those of one
 * place by their ids. Where the weights so far reach k / parts of the whole, part k begins: before
 * or behind the point in which that is, whichever is nearer.
 *
 * So the weight of a part differs from the mean by less than the largest weight of a point: by less
 * than 1 % where a part has 100 points of equal weight or more. Some parts may have no points where
 * a point weighs more than the mean. Ids that are equal at the same place stay together.
 *
 * owner[points] does not depend on how the points were spread over the ranks, if they have ids. It
 * is the same on all machines whose doubles are IEEE's. key NULL, or key[points]: where each point
 * lies on the curve, for dpar_points_migration_make's order.
 *
 * Places: the smallest cube that holds all points, in 2^31 steps a side in 2 dims, 2^21 in 3.
 * Weights: rounded to the largest one / 2^k, where points of all ranks times 2^k <= 2^61; k <= 52.
 *
 * COLLECTIVE. What any rank gives wrongly all ranks hear, with a sentence. E_ARG: dims, parts, a
 * coordinate or weight that is not finite, a negative weight, weights that are all 0, NULL.
 * E_RANGE: more points. E_MISMATCH: ranks give different dims or parts. E_MEMORY, and errors
 * of the communicator.
 *
 * Sorts its own points, O(points). The cuts are searched by counts: about 25 all-reduces
 * of 56 bytes a part, 20 more where points lie at one place or have long ids. No rank has all
 * points. It needs 56 bytes a point for a while, and 100 a part. */
DPAR_API dpar_status dpar_points_partition(dpar_comm *c, const dpar_points_partition_desc *d,
                                           int32_t *owner, int64_t *key, dpar_why *why);

/* Where a cell lies on Hilbert's curve through a square of 2^31 cells a side or a cube of 2^21.
 * The transform is J. Skilling's, "Programming the Hilbert curve" (AIP Conf. Proc. 707, 2004, p.
 * 381). Cells that follow each other on it have a side in common. -1: dims is not 2 or 3, or the
 * cell lies outside. Local. O(1). */
DPAR_API int64_t dpar_points_curve(int32_t dims, const uint32_t *cell);

#endif
