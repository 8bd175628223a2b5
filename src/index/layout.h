/* SPDX-License-Identifier: MIT-0 */
/* layout - an n-d array on a mesh: each mesh axis shards a dim, replicates, or holds partial sums.
 * Local shapes and offsets are those of DTensor and FSDP2 where they have them. */
#ifndef DPARI_INDEX_LAYOUT_H
#define DPARI_INDEX_LAYOUT_H

#include "../base/box.h"
#include "mesh.h"
#include "split.h"

/* What a mesh axis does with the array. */
enum { DPAR_REPLICATE, DPAR_SHARD, DPAR_PARTIAL };

typedef struct dpar_placement {
    int32_t kind;   /* DPAR_REPLICATE, ... */
    int32_t dim;    /* SHARD: the dim that it cuts; negative counts from the end */
    int32_t rule;   /* SHARD: DPAR_CHUNK (0), ... */
    int32_t op;     /* PARTIAL: DPAR_SUM, ... */
    int64_t block;  /* SHARD: BLOCK_CYCLIC's block, STRIDED's pieces (split factor) */
    int32_t source; /* SHARD: BLOCK_CYCLIC's first part */
    int32_t order; /* SHARD: axes that cut the same dim cut from the smallest on, equal ones (all 0)
                      in the order of the mesh */
    const int64_t *cuts; /* SHARD by RAGGED: parts + 1 of them, the caller's; only as the first cut
                            of its dim */
} dpar_placement;

/* Shorthands: Shard(dim) by CHUNK, by any rule with its block, Replicate, Partial(op).
 * dpar_layout_init judges them. O(1). */
DPAR_API dpar_placement dpar_shard(int32_t dim);
DPAR_API dpar_placement dpar_shard_by(int32_t dim, int32_t rule, int64_t block);
DPAR_API dpar_placement dpar_replicate(void);
DPAR_API dpar_placement dpar_partial(int32_t op);

/* A value; make it with dpar_layout_init. What a rank owns is a product over the dims of ascending
 * index sets; its local array holds them densely, in order. */
typedef struct dpar_layout {
    dpar_mesh mesh;
    int32_t dims; /* 0..DPAR_MAX_DIMS */
    int64_t extent[DPAR_MAX_DIMS];
    dpar_placement axis[DPAR_MAX_AXES]; /* what each mesh axis does */
    int8_t order[DPAR_MAX_AXES]; /* the axes in the order in which they cut: the first is major */
} dpar_layout;

/* Array of extent[0 .. dims-1] on a mesh, placement[i] for mesh axis i. Axes that shard the same
 * dim cut what the axes before them left, in the order of the mesh, as DTensor reads its
 * placements, unless their `order` says otherwise; uneven shards nest: 18 over (4, 2) is
 * 3 2 3 2 3 2 2 1. E_ARG, E_RANGE with a sentence. Not collective. O(axes^2 + parts of RAGGED). */
DPAR_API dpar_status dpar_layout_init(dpar_layout *l, const dpar_mesh *mesh, int32_t dims,
                                      const int64_t *extent, const dpar_placement *placement,
                                      dpar_why *why);

/* Local shape of a rank and the first index that it owns of each dim: where a dim of it is empty,
 * that offset is the dim's whole extent (DTensor). A rank outside the mesh owns nothing: all
 * extents are 0. Each of the arrays may be NULL. O(axes). */
DPAR_API void dpar_layout_local(const dpar_layout *l, int32_t rank, int64_t *shape,
                                int64_t *offset);
/* The largest local shape of any rank: what short shards are padded to for collectives. O(axes),
 * but O(ranks) where STRIDED cuts what another axis left: its longest part need not come from the
 * longest whole. */
DPAR_API void dpar_layout_padded(const dpar_layout *l, int64_t *shape);
/* Elements in a rank's local array; -1 when they pass 2^63 - 1. 0 for a rank outside the mesh.
 * O(axes^2). */
DPAR_API int64_t dpar_layout_numel(const dpar_layout *l, int32_t rank);

/* One dim of one rank: the index that lies at `local`, and how many follow it in a row (run may be
 * NULL); -1 past the end. So that for (i = 0; (g = dpar_layout_global(l, r, d, i, &n)) >= 0; i +=
 * n) visits the runs. O(axes). */
DPAR_API int64_t dpar_layout_global(const dpar_layout *l, int32_t rank, int32_t dim, int64_t local,
                                    int64_t *run);
/* Where index i of a dim lies: sets coord[] of the axes that shard the dim and touches no other;
 * *local its local index there, *run how many follow it in a row (each may be NULL). 0 when i is
 * outside. O(axes). */
DPAR_API int dpar_layout_locate(const dpar_layout *l, int32_t dim, int64_t i, int32_t *coord,
                                int64_t *local, int64_t *run);

/* The rank that holds the copy-th copy of the element at index[0 .. dims-1], local[] (may be NULL)
 * where it lies there; copy 0 is the primary. Copies are counted with the smallest stride fastest.
 * -1 when the index or the copy does not exist. O(axes^2). */
DPAR_API int32_t dpar_layout_owner(const dpar_layout *l, const int64_t *index, int32_t copy,
                                   int64_t *local);
/* Does the rank hold copy 0 of what it has? It is the one that writes a checkpoint. 0 for a rank
 * outside the mesh. O(axes^2). */
DPAR_API int dpar_layout_is_primary(const dpar_layout *l, int32_t rank);

/* The boxes that a rank owns, in order, the last dim fastest: begin with an all-zero cursor;
 * 1 and *box (global indices) and *at (its first element in the local array; may be NULL), or 0 at
 * the end. One box where every dim is one run. O(axes) each. */
typedef struct dpar_box_cursor {
    int32_t begun;
    int64_t local[DPAR_MAX_DIMS];
} dpar_box_cursor;
DPAR_API int dpar_layout_next(const dpar_layout *l, int32_t rank, dpar_box_cursor *cursor,
                              dpar_box *box, int64_t *at);

/* Strides of a local array, which is dense: in C order of the local shape (an uneven shard's own,
 * not the whole array's divided), or where `whole` is not NULL with the dims in the order of these
 * strides of the whole array (Fortran's, channels last): the dim of the smallest stride fastest; of
 * equal strides the later dim is the faster. DTensor keeps that order too. O(dims^2). */
DPAR_API void dpar_layout_strides(const dpar_layout *l, int32_t rank, const int64_t *whole,
                                  int64_t *stride);
/* The plain cuts that strided shards stand for: [SS(0,4), S0] cuts by axis 1, then 0. Fills
 * plain[], one an axis, with `order`: dpar_layout_init makes the layout of them. E_NONE with a
 * sentence when a split factor is not the product of the axes after it that shard the same dim:
 * then there is no such order. O(axes^2). */
DPAR_API dpar_status dpar_layout_unstride(const dpar_layout *l, dpar_placement *plain,
                                          dpar_why *why);

#endif
