/* SPDX-License-Identifier: MIT-0 */
/* layout - computes which part of an n-d array each rank of a mesh owns. Each mesh axis shards a
 * dim of the array, replicates the array, or holds partial sums. Local shapes and offsets equal
 * those of DTensor and FSDP2 for every layout that DTensor and FSDP2 can describe.
 *
 *     const int64_t extent[2] = {1000, 64};
 *     const dpar_placement cut[2] = {dpar_shard(0), dpar_shard(1)};    by dp, by tp
 *     dpar_layout_init(&layout, &mesh, 2, extent, cut, &why);
 *     dpar_layout_local(&layout, rank, shape, offset);                 the part of `rank`
 */
#ifndef DPARI_INDEX_LAYOUT_H
#define DPARI_INDEX_LAYOUT_H

#include "../base/box.h"
#include "mesh.h"
#include "split.h"

/* The kinds of a placement. */
enum {
    DPAR_PLACEMENT_REPLICATE, /* each rank along the axis holds a copy */
    DPAR_PLACEMENT_SHARD,     /* each rank along the axis holds a part of one dim */
    DPAR_PLACEMENT_PARTIAL /* each rank along the axis holds values that must be combined with those
                              of the others */
};

/* What one mesh axis does with the array. */
typedef struct dpar_placement {
    int32_t kind;   /* DPAR_PLACEMENT_REPLICATE, DPAR_PLACEMENT_SHARD or DPAR_PLACEMENT_PARTIAL */
    int32_t dim;    /* SHARD: the dim that the axis cuts; a negative number counts from the end */
    int32_t rule;   /* SHARD: DPAR_SPLIT_CHUNK (0), ... */
    int32_t op;     /* PARTIAL: DPAR_SUM, ... */
    int64_t block;  /* SHARD: BLOCK_CYCLIC's block, or STRIDED's pieces (split factor) */
    int32_t source; /* SHARD: BLOCK_CYCLIC's first part */
    /* SHARD: if several axes cut the same dim, the one with the smallest `order` cuts first. Axes
     * with equal numbers, such as all 0, cut in the order of the mesh. */
    int32_t order;
    /* SHARD by RAGGED: [parts + 1], the caller's. Only the first cut of a dim may be RAGGED. */
    const int64_t *cuts;
} dpar_placement;

/* Makes a placement that shards `dim` by DPAR_SPLIT_CHUNK. dpar_layout_init checks it, as it does
 * the placements of the next functions. */
DPAR_API dpar_placement dpar_shard(int32_t dim);

/* Makes a placement that shards `dim` by a rule. `block` is the block of BLOCK_CYCLIC or the pieces
 * of STRIDED. */
DPAR_API dpar_placement dpar_shard_by(int32_t dim, int32_t rule, int64_t block);

/* Makes a placement that replicates the array. */
DPAR_API dpar_placement dpar_replicate(void);

/* Makes a placement whose ranks hold partial values to be combined by `op`, such as DPAR_SUM. */
DPAR_API dpar_placement dpar_partial(int32_t op);

/* The distribution of an array over a mesh, made by dpar_layout_init. In each dim a rank owns an
 * ascending set of indices. Its local array holds the product of these sets densely and in order.
 */
typedef struct dpar_layout {
    dpar_mesh mesh;
    int32_t dims; /* 0..DPAR_MAX_DIMS */
    int64_t extent[DPAR_MAX_DIMS];
    dpar_placement axis[DPAR_MAX_AXES]; /* the placement of each mesh axis */
    int8_t order[DPAR_MAX_AXES];        /* the axes in the order in which they cut */
} dpar_layout;

/* Makes the layout of an array on a mesh.
 *
 * extent:     [dims], the elements of the array in each dim.
 * placement:  [mesh->axes], one for each axis of the mesh.
 *
 * Axes that shard the same dim cut one after another, in the order of the mesh as in DTensor, or by
 * their `order`. Each axis cuts what the axes before it left: 18 over (4, 2) is 3 2 3 2 3 2 2 1.
 * Fails with DPAR_E_ARG or DPAR_E_RANGE. Costs O(axes^2 + parts of RAGGED).
 */
DPAR_API dpar_status dpar_layout_init(dpar_layout *layout, const dpar_mesh *mesh, int32_t dims,
                                      const int64_t *extent, const dpar_placement *placement,
                                      dpar_why *why);

/* Computes the local shape of a rank and the first index that it owns in each dim.
 *
 * shape:   [dims], all 0 for a rank outside the mesh; may be NULL.
 * offset:  [dims], the extent of a dim in which the rank owns nothing, as in DTensor; may be NULL.
 *
 * Costs O(axes).
 */
DPAR_API void dpar_layout_local(const dpar_layout *layout, int32_t rank, int64_t *shape,
                                int64_t *offset);

/* Counts the elements of a rank's local array. Returns 0 for a rank outside the mesh and -1 above
 * 2^63 - 1. Costs O(axes^2). */
DPAR_API int64_t dpar_layout_count(const dpar_layout *layout, int32_t rank);

/* Finds the global index at a local index, in one dim of one rank. Returns -1 past the end.
 *
 * run:  receives how many global indices from there on are consecutive; may be NULL.
 *
 * This loop visits the runs [g, g + n):
 *
 *     for (i = 0; (g = dpar_layout_global(l, r, d, i, &n)) >= 0; i += n)
 *
 * Costs O(axes).
 */
DPAR_API int64_t dpar_layout_global(const dpar_layout *layout, int32_t rank, int32_t dim,
                                    int64_t local, int64_t *run);

/* Finds the ranks that own index i of a dim. Returns 1, or 0 if i is outside the dim.
 *
 * coord:  [mesh.axes]. Receives the coordinates along the axes that shard the dim; other entries
 *         keep their values. May be NULL.
 * local:  receives the local index; may be NULL.
 * run:    receives how many indices from there on are consecutive; may be NULL.
 *
 * Costs O(axes).
 */
DPAR_API int dpar_layout_locate(const dpar_layout *layout, int32_t dim, int64_t i, int32_t *coord,
                                int64_t *local, int64_t *run);

/* Finds the rank that holds copy number `copy` of an element. Returns -1 if the element or the copy
 * does not exist.
 *
 * index:  [dims], the global index of the element.
 * local:  [dims], receives the element's index in the rank's local array; may be NULL.
 *
 * Copy 0 is the primary one. Copies are counted with the axis of the smallest stride fastest. Costs
 * O(axes^2).
 */
DPAR_API int32_t dpar_layout_owner(const dpar_layout *layout, const int64_t *index, int32_t copy,
                                   int64_t *local);

/* Tests whether a rank holds copy 0 of its part, so that it writes the part to a checkpoint.
 * Returns 0 for a rank outside the mesh. Costs O(axes^2). */
DPAR_API int dpar_layout_is_primary(const dpar_layout *layout, int32_t rank);

/* The position of dpar_layout_next in a rank's boxes. Begin with an all-zero cursor. */
typedef struct dpar_box_cursor {
    int32_t begun;
    int64_t local[DPAR_MAX_DIMS];
} dpar_box_cursor;

/* Advances to the next box that a rank owns. Returns 1, or 0 when there is none left.
 *
 * box:  receives the box in global indices.
 * at:   [dims], receives the local index of the box's first element; may be NULL.
 *
 * Boxes are in order, the last dim fastest. There is one box if the rank's indices are contiguous
 * in every dim. Costs O(axes) for each box.
 */
DPAR_API int dpar_layout_next(const dpar_layout *layout, int32_t rank, dpar_box_cursor *cursor,
                              dpar_box *box, int64_t *at);

/* Computes the strides of a rank's local array, which is dense in its own shape.
 *
 * whole:   [dims], strides of the global array, whose order the local array keeps (Fortran's,
 *          channels last), as in DTensor. NULL selects C order.
 * stride:  [dims], receives the strides in elements.
 *
 * The dim with the smallest stride in `whole` is the fastest; of equal ones the later dim. Costs
 * O(dims^2).
 */
DPAR_API void dpar_layout_strides(const dpar_layout *layout, int32_t rank, const int64_t *whole,
                                  int64_t *stride);

#endif
