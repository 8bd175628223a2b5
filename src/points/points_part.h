/* SPDX-License-Identifier: MIT-0 */
/* points_part - partitions points, or the centres of elements, into parts of equal weight along
 * Hilbert's curve. Parts are compact in space, so that few values need to be exchanged.
 *
 *     dpar_points_partition_desc desc = {0};
 *     desc.dims = 3;
 *     desc.count = n;
 *     desc.position = xyz;                              [n][3] x, y, z of each point
 *     desc.id = id;                                     different on all ranks
 *     dpar_points_partition(comm, &desc, owner, NULL, &why);      owner[i]: new owner of point i
 *     dpar_points_migration_make(...);                  points_move.h
 *
 * ParMETIS and Scotch return a partition as an array of the same form, with the new owner of each
 * local point or element: `part` of ParMETIS_V3_PartMeshKway, partloctab of SCOTCH_dgraphPart.
 * dpar_points_migration_make accepts that too. If idx_t or SCOTCH_Num has 64 bits, convert it. */
#ifndef DPARI_POINTS_POINTS_PART_H
#define DPARI_POINTS_POINTS_PART_H

#include "../base/base.h"
#include "../comm/comm.h"

/* The points of this rank that are to be partitioned. Zero it, then set the fields that you need.
 */
typedef struct dpar_points_partition_desc {
    int32_t dims;           /* 2 or 3 */
    int32_t parts;          /* at most 2^20; 0 selects the number of ranks */
    int64_t count;          /* points of this rank: 0 to 2^31 - 1 */
    const double *position; /* [count][dims] coordinates, finite */
    const double *weight;   /* [count] finite and not negative; NULL selects 1 for each */
    const int64_t *id;      /* [count] each once in the job, to order points at the same place. NULL
                               numbers them from rank to rank */
} dpar_points_partition_desc;

/* Computes which part each point should belong to. The points of all ranks are ordered along the
 * curve, and points at the same place by id. Part k begins where the sum of weights reaches
 * k / parts of the total: before or after the point at which that happens, whichever is nearer.
 *
 * owner: [count], receives the part of each point. It does not depend on how points are
 * distributed over the ranks, if they have ids, and is the same on all machines with IEEE doubles.
 * key:   [count], receives the position of each point on the curve, for
 * dpar_points_migration_make's order; may be NULL.
 *
 * The weight of a part therefore differs from the mean by less than the largest weight of a point.
 * That is less than 1 % for parts of 100 points or more of equal weight. Parts may be empty if a
 * point weighs more than the mean. Points with the same place and id are not separated.
 *
 * Coordinates are rounded within the smallest cube that holds all points, to 2^31 steps per side in
 * 2 dims and 2^21 in 3. Weights are rounded to multiples of (largest weight) / 2^k, where k is at
 * most 52, and small enough that the number of all points times 2^k is at most 2^61.
 *
 * Collective. All errors are returned on all ranks. Fails with DPAR_E_ARG if dims or parts are out
 * of range, a coordinate or weight is not finite, a weight is negative, all weights are 0, or a
 * pointer is NULL. Fails with DPAR_E_RANGE for too many points, DPAR_E_MISMATCH if ranks pass
 * different dims or parts, with DPAR_E_MEMORY, or with an error of the communicator.
 *
 * Costs a sort of this rank's points, O(points), and a search for the cuts between parts: about 25
 * all-reduces of 56 bytes per part, and 20 more if points coincide or have long ids. No rank holds
 * all points. Temporarily needs 56 bytes per point and 100 per part. */
DPAR_API dpar_status dpar_points_partition(dpar_comm *comm, const dpar_points_partition_desc *desc,
                                           int32_t *owner, int64_t *key, dpar_why *why);

#endif
