/* SPDX-License-Identifier: MIT-0 */
/* layout - an n-d array on a mesh: which rank has which part. Each mesh axis shards a dim,
 * replicates, or holds partial sums. Local shapes and offsets are those of DTensor and FSDP2 where
 * they have them.
 *
 *     const int64_t extent[2] = {1000, 64};
 *     const dpar_placement cut[2] = {dpar_shard(0), dpar_shard(1)};    by dp, by tp
 *     dpar_layout_init(&layout, &mesh, 2, extent, cut, &why);
 *     dpar_layout_local(&layout, rank, shape, offset);                 what `rank` has */
#ifndef DPARI_INDEX_LAYOUT_H
#define DPARI_INDEX_LAYOUT_H

#include "../base/box.h"
#include "mesh.h"
#include "split.h"

/* What a mesh axis does with the array. */
enum { DPAR_PLACEMENT_REPLICATE, DPAR_PLACEMENT_SHARD, DPAR_PLACEMENT_PARTIAL };

/* What one mesh axis does with the array. */
typedef struct dpar_placement {
    int32_t kind;   /* DPAR_PLACEMENT_REPLICATE, ... */
    int32_t dim;    /* SHARD: the dim that the axis cuts; negative counts from the end */
    int32_t rule;   /* SHARD: DPAR_SPLIT_CHUNK (0), ... */
    int32_t op;     /* PARTIAL: DPAR_SUM, ... */
    int64_t block;  /* SHARD: BLOCK_CYCLIC's block, STRIDED's pieces (split factor) */
    int32_t source; /* SHARD: BLOCK_CYCLIC's first part */
    int32_t order;  /* SHARD: of axes that cut the same dim the smallest cuts first; equal ones (all
                       0) in the order of the mesh */
    const int64_t *cuts; /* SHARD by RAGGED: parts + 1 of them, the caller's; only the first cut of
                            a dim may be RAGGED */
} dpar_placement;

/* Shorthands: a shard by CHUNK, a shard by any rule, a replica, partial values of an op.
 * dpar_layout_init judges them. O(1). */
DPAR_API dpar_placement dpar_shard(int32_t dim);
DPAR_API dpar_placement dpar_shard_by(int32_t dim, int32_t rule, int64_t block);
DPAR_API dpar_placement dpar_replicate(void);
DPAR_API dpar_placement dpar_partial(int32_t op);

/* How an array lies on a mesh: a value that dpar_layout_init makes. Of each dim a rank owns an
 * ascending set of indices; its local array holds their product densely, in order. */
typedef struct dpar_layout {
    dpar_mesh mesh;
    int32_t dims; /* 0..DPAR_MAX_DIMS */
    int64_t extent[DPAR_MAX_DIMS];
    dpar_placement axis[DPAR_MAX_AXES]; /* what each mesh axis does */
    int8_t order[DPAR_MAX_AXES];        /* the axes in the order in which they cut */
} dpar_layout;

/* An array of extent[0 .. dims-1] on a mesh; placement[i] is for mesh axis i. Axes that shard the
 * same dim cut one after another, in the order of the mesh as in DTensor, or by their `order`. Each
 * cuts what the axes before it left: 18 over (4, 2) is 3 2 3 2 3 2 2 1. E_ARG, E_RANGE with a
 * sentence. Not collective. O(axes^2 + parts of RAGGED). */
DPAR_API dpar_status dpar_layout_init(dpar_layout *l, const dpar_mesh *mesh, int32_t dims,
                                      const int64_t *extent, const dpar_placement *placement,
                                      dpar_why *why);

/* The local shape of a rank, and the first index that it owns of each dim. Where a rank has nothing
 * of a dim, that offset is the dim's extent, as in DTensor. A rank outside the mesh owns nothing:
 * its shape is all 0. Either array may be NULL. O(axes). */
DPAR_API void dpar_layout_local(const dpar_layout *l, int32_t rank, int64_t *shape,
                                int64_t *offset);
/* The largest local shape of any rank: collectives pad short shards to it. O(axes); O(ranks) where
 * STRIDED cuts what another axis left: its longest part may come from a shorter whole. */
DPAR_API void dpar_layout_padded(const dpar_layout *l, int64_t *shape);
/* Elements of a rank's local array: 0 for a rank outside the mesh, -1 past 2^63 - 1. O(axes^2). */
DPAR_API int64_t dpar_layout_count(const dpar_layout *l, int32_t rank);

/* One dim of one rank: the global index that lies at `local`; -1 past the end. *run (may be NULL):
 * how many indices from there on follow one another. The runs [g, g + n):
 *
 *     for (i = 0; (g = dpar_layout_global(l, r, d, i, &n)) >= 0; i += n)
 *
 * O(axes). */
DPAR_API int64_t dpar_layout_global(const dpar_layout *l, int32_t rank, int32_t dim, int64_t local,
                                    int64_t *run);
/* Where index i of a dim lies. Sets coord[] of the axes that shard the dim and no other, *local to
 * its local index and *run to how many follow one another from there. Each may be NULL. 1; 0 when i
 * is outside. O(axes). */
DPAR_API int dpar_layout_locate(const dpar_layout *l, int32_t dim, int64_t i, int32_t *coord,
                                int64_t *local, int64_t *run);

/* The rank that holds copy number `copy` of the element at index[0 .. dims-1]. local[] (may be
 * NULL): where it lies there. Copy 0 is the primary one; copies are counted with the smallest
 * stride fastest. -1 when the index or the copy does not exist. O(axes^2). */
DPAR_API int32_t dpar_layout_owner(const dpar_layout *l, const int64_t *index, int32_t copy,
                                   int64_t *local);
/* Does the rank hold copy 0 of what it has? That rank writes it to a checkpoint. 0 for a rank
 * outside the mesh. O(axes^2). */
DPAR_API int dpar_layout_is_primary(const dpar_layout *l, int32_t rank);

/* The boxes that a rank owns, in order, the last dim fastest. Begin with an all-zero cursor. 1:
 * *box in global indices, and *at (may be NULL), where its first element lies in the local array.
 * 0: no more. There is one box where every dim is one run. O(axes) each. */
typedef struct dpar_box_cursor {
    int32_t begun;
    int64_t local[DPAR_MAX_DIMS];
} dpar_box_cursor;
DPAR_API int dpar_layout_next(const dpar_layout *l, int32_t rank, dpar_box_cursor *cursor,
                              dpar_box *box, int64_t *at);

/* The strides of a rank's local array, which is dense in its own shape. `whole` NULL: C order. Else
 * `whole` has the strides of the whole array (Fortran's, channels last), and the local array keeps
 * their order, as in DTensor. The dim of the smallest stride is the fastest; of equal ones the
 * later dim. O(dims^2). */
DPAR_API void dpar_layout_strides(const dpar_layout *l, int32_t rank, const int64_t *whole,
                                  int64_t *stride);
/* The plain cuts that strided shards stand for: [SS(0,4), S0] cuts by axis 1, then by axis 0. Fills
 * plain[], one an axis, with `order`; dpar_layout_init makes the layout of them. E_NONE with a
 * sentence: a split factor is not the product of the later axes that shard the same dim, so that
 * there is no such order. O(axes^2). */
DPAR_API dpar_status dpar_layout_unstride(const dpar_layout *l, dpar_placement *plain,
                                          dpar_why *why);

#endif
