/* SPDX-License-Identifier: MIT-0 */
/* mesh - ranks with named axes, as a list of (size, stride). Integers only, O(axes), no tables: a
 * rank of a million-rank job does its arithmetic alone. */
#ifndef DPARI_INDEX_MESH_H
#define DPARI_INDEX_MESH_H

#include "../base/base.h"

enum { DPAR_MAX_AXES = 8 };

typedef struct dpar_axis {
    char name[16];  /* "tp", "dp", "dp_replicate", ... */
    int32_t size;   /* >= 1 */
    int32_t stride; /* ranks between two neighbours along this axis */
} dpar_axis;

/* A value: rank = offset + sum of coord[i] * axis[i].stride, at most 2^31 - 1 (mind it when you set
 * offset yourself). What the functions below make is injective: no rank has two coordinates. Sets
 * of axes are given as bits: bit i is axis i, bits of axes that the mesh has not are passed over.
 * Listed from first to last, the last axis counts as the fastest, whatever the strides are. */
typedef struct dpar_mesh {
    int32_t axes;   /* how many are in use, 0..DPAR_MAX_AXES */
    int32_t size;   /* ranks in all: the product of the sizes */
    int32_t offset; /* the first rank of the mesh */
    dpar_axis axis[DPAR_MAX_AXES];
} dpar_mesh;

/* Which rank order: there is no right one, so it is always said. */
enum {
    DPAR_LAST_FASTEST, /* torch DeviceMesh, JAX, MPI_Cart: the last axis has stride 1 */
    DPAR_FIRST_FASTEST /* Megatron's order strings, PETSc: the first axis has stride 1 */
};

/* A mesh of named axes: `names` lists them, "dp tp" or "dp-tp", each once, 1 to 15 characters;
 * sizes[i] >= 1 of each. One size may be -1 and is inferred from `ranks`. ranks > 0: the product of
 * the sizes must equal it; ranks = 0: whatever the product is (no -1 then). Nodes and the ranks
 * inside them, as JAX's hybrid meshes: "dp.node tp.node dp tp" with last-fastest order; the whole
 * of dp is the set of its two axes. The first rank is 0; another one: set mesh->offset. E_ARG,
 * E_DIVIDE or E_RANGE with a sentence. Not collective. O(axes^2). */
DPAR_API dpar_status dpar_mesh_init(dpar_mesh *mesh, const char *names, const int32_t *sizes,
                                    int32_t order, int32_t ranks, dpar_why *why);

/* Megatron's way: an order string whose first name is fastest, as "tp-cp-ep-dp-pp", and sizes of
 * the axes in `names`, in any order. The axes of the mesh are in the string's order. A name that is
 * not in the string must have size 1 and is appended; a name of the string that has no size is
 * E_UNKNOWN. One size may be -1. Errors as above. Not collective. O(axes^2). */
DPAR_API dpar_status dpar_mesh_ordered(dpar_mesh *mesh, const char *order, const char *names,
                                       const int32_t *sizes, int32_t ranks, dpar_why *why);
/* Another factorisation of the same ranks: experts' etp-ep-edp-pp beside tp-cp-dp-pp. The sizes
 * must make mesh->size ranks (one may be -1), mesh's ranks must lie evenly spaced, and an axis that
 * both have by name must be the same groups: E_DIVIDE with a sentence otherwise. Other errors as
 * dpar_mesh_init. Not collective. O(axes^2). */
DPAR_API dpar_status dpar_mesh_view(dpar_mesh *view, const dpar_mesh *mesh, const char *names,
                                    const int32_t *sizes, int32_t order, dpar_why *why);

/* The axes in `which` through `rank`, as a mesh of their own (MPI_Cart_sub, DeviceMesh's slice).
 * E_ARG with a sentence: the rank is not in the mesh. Not collective. O(axes^2). */
DPAR_API dpar_status dpar_mesh_slice(dpar_mesh *out, const dpar_mesh *mesh, uint32_t which,
                                     int32_t rank, dpar_why *why);

/* The axis of that name, or -1. O(axes). */
DPAR_API int32_t dpar_mesh_find(const dpar_mesh *mesh, const char *name);

/* Coordinates of `rank`, one an axis; 0 when the rank is not in the mesh (then coord is untouched).
 * O(axes^2). */
DPAR_API int dpar_mesh_coords(const dpar_mesh *mesh, int32_t rank, int32_t *coord);

/* Rank at coord[0 .. axes-1]; -1 when one of them is out of range. O(axes). */
DPAR_API int32_t dpar_mesh_rank(const dpar_mesh *mesh, const int32_t *coord);
/* The rank `steps` further along an axis; -1 beyond its end, or round it when `wrap`. Steps may be
 * negative or longer than the axis (MPI_Cart_shift: the source is at -steps). -1 for ranks
 * outside. O(axes^2). */
DPAR_API int32_t dpar_mesh_shift(const dpar_mesh *mesh, int32_t rank, int32_t axis, int64_t steps,
                                 int wrap);

/* Groups: the ranks that differ from `rank` only along the axes in `which`. Members are counted
 * with the axis of the smallest stride fastest, so that they ascend (where strides nest, as in all
 * meshes that the functions above make); the order of an all-gather. There are mesh->size / size
 * groups; they are numbered in the same way over the other axes, so that every rank can list all of
 * them in the same order without talking: the group of a rank is number group_index(mesh, ~which,
 * rank), the first rank of group g is group_member(mesh, ~which, mesh->offset, g). -1 for ranks
 * outside. O(axes^2). */
DPAR_API int32_t dpar_mesh_group_size(const dpar_mesh *mesh, uint32_t which);
DPAR_API int32_t dpar_mesh_group_member(const dpar_mesh *mesh, uint32_t which, int32_t rank,
                                        int32_t index);
DPAR_API int32_t dpar_mesh_group_index(const dpar_mesh *mesh, uint32_t which, int32_t rank);

#endif
