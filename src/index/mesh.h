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
 * offset yourself). What the functions below make is
 * injective: no rank has two coordinates. Sets of axes are given as bits: bit i is axis i, bits of
 * axes that the mesh has not are passed over. Listed
 * from first to last, the last axis counts as the fastest, whatever the strides are. */
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

/* A mesh of `axes` axes, names of 1 to 15 characters, each once. sizes[i] >= 1; one of them may be
 * -1 and is inferred from `ranks`. ranks > 0: the product must equal it; ranks = 0: whatever the
 * product is (no -1 then). E_ARG, E_DIVIDE or E_RANGE with a sentence. Not collective. O(axes^2).
 * */
DPAR_API dpar_status dpar_mesh_init(dpar_mesh *mesh, int32_t axes, const char *const *names,
                                    const int32_t *sizes, int32_t order, int32_t ranks,
                                    dpar_why *why);

/* Megatron's way: sizes by name, and an order string whose first name is fastest, as
 * "tp-cp-ep-dp-pp". The axes of the mesh are in the string's order. A name that is not in the
 * string must have size 1 and is appended; a name of the string that has no size is an error. One
 * size may be -1. The mesh begins at rank `offset`. Errors as above. */
DPAR_API dpar_status dpar_mesh_ordered(dpar_mesh *mesh, const char *order, int32_t axes,
                                       const char *const *names, const int32_t *sizes,
                                       int32_t ranks, int32_t offset, dpar_why *why);
/* Node x inside: axis i has slow[i] * fast[i] ranks; nodes are numbered over the slow parts, ranks
 * of a node over the fast ones, both last fastest. The mesh has twice as many axes: first
 * "name.node", then "name"; the whole axis is the set of both, its slow part major (JAX's hybrid
 * meshes). */
DPAR_API dpar_status dpar_mesh_hybrid(dpar_mesh *mesh, int32_t axes, const char *const *names,
                                      const int32_t *slow, const int32_t *fast, dpar_why *why);
/* Another factorisation of the same ranks: experts' etp-ep-edp-pp beside tp-cp-dp-pp. The sizes
 * must make mesh->size ranks (one may be -1), mesh's ranks must lie evenly spaced, and an axis that
 * both have by name must be the same groups: E_DIVIDE with a sentence otherwise. */
DPAR_API dpar_status dpar_mesh_view(dpar_mesh *view, const dpar_mesh *mesh, int32_t axes,
                                    const char *const *names, const int32_t *sizes, int32_t order,
                                    dpar_why *why);
/* Are the axes that two meshes share by name the same groups of ranks (size, stride, first rank)?
 */
DPAR_API dpar_status dpar_mesh_agree(const dpar_mesh *a, const dpar_mesh *b, dpar_why *why);

/* The axes in `which` through `rank`, as a mesh of their own (MPI_Cart_sub, DeviceMesh's slice). */
DPAR_API dpar_status dpar_mesh_slice(dpar_mesh *out, const dpar_mesh *mesh, uint32_t which,
                                     int32_t rank, dpar_why *why);
/* The axes in `which` become one, in the place of the first of them. They must chain: each stride
 * the next size times the next stride; E_DIVIDE otherwise: then use the set itself, all functions
 * on groups take sets. */
DPAR_API dpar_status dpar_mesh_flatten(dpar_mesh *out, const dpar_mesh *mesh, uint32_t which,
                                       const char *name, dpar_why *why);
/* One axis becomes `n`, whose sizes (one may be -1) multiply to its own. With FIRST_FASTEST these
 * are hierarchical groups: level k has the product of the sizes before it as its stride. */
DPAR_API dpar_status dpar_mesh_unflatten(dpar_mesh *out, const dpar_mesh *mesh, int32_t axis,
                                         int32_t n, const char *const *names, const int32_t *sizes,
                                         int32_t order, dpar_why *why);
/* Axis i of the result is axis perm[i]. Ranks stay where they are. */
DPAR_API dpar_status dpar_mesh_transpose(dpar_mesh *out, const dpar_mesh *mesh, const int32_t *perm,
                                         dpar_why *why);
/* As few axes as list the same ranks in the same order: chains are merged (the first name stays),
 * axes of size 1 dropped. */
DPAR_API dpar_status dpar_mesh_coalesce(dpar_mesh *out, const dpar_mesh *mesh);
/* inner's ranks, taken as positions in outer's list (last axis fastest): outer after inner.
 * E_DIVIDE when an inner axis passes from one row of outer into the next (outer coalesced), but for
 * one that runs along whole rows from their starts; E_RANGE when inner leaves outer. Its axes have
 * inner's names; an inner axis that runs along several outer ones becomes several, the later with a
 * digit added. */
DPAR_API dpar_status dpar_mesh_compose(dpar_mesh *out, const dpar_mesh *outer,
                                       const dpar_mesh *inner, dpar_why *why);
/* The first ranks of the groups that mesh's image and its shifts make of 0..world-1: with the mesh
 * they list the world once. mesh's offset is ignored. E_DIVIDE when there is none. Axes are named
 * "g0", "g1", ... */
DPAR_API dpar_status dpar_mesh_complement(dpar_mesh *out, const dpar_mesh *mesh, int32_t world,
                                          dpar_why *why);
/* Does every rank have one coordinate only? For a mesh that the caller filled in by hand. Exact; as
 * quick as O(axes^2) for nested strides. */
DPAR_API int dpar_mesh_injective(const dpar_mesh *mesh);

/* The same ranks at the same coordinates, whatever the names? */
DPAR_API int dpar_mesh_same(const dpar_mesh *a, const dpar_mesh *b);

/* The axis of that name, or -1. */
DPAR_API int32_t dpar_mesh_find(const dpar_mesh *mesh, const char *name);

/* Coordinates of `rank`, one an axis; 0 when the rank is not in the mesh (then coord is untouched).
 * O(axes^2). */
DPAR_API int dpar_mesh_coords(const dpar_mesh *mesh, int32_t rank, int32_t *coord);
/* The one along an axis; -1 when the rank is outside the mesh. */
DPAR_API int32_t dpar_mesh_coord(const dpar_mesh *mesh, int32_t rank, int32_t axis);

/* Rank at coord[0 .. axes-1]; -1 when one of them is out of range. */
DPAR_API int32_t dpar_mesh_rank(const dpar_mesh *mesh, const int32_t *coord);
/* The rank `steps` further along an axis; -1 beyond its end, or round it when `wrap`. Steps may be
 * negative or longer than the axis. -1 for ranks outside. */
DPAR_API int32_t dpar_mesh_shift(const dpar_mesh *mesh, int32_t rank, int32_t axis, int64_t steps,
                                 int wrap);

/* Groups: the ranks that differ from `rank` only along the axes in `which`. Members are counted
 * with the axis of the smallest stride fastest, so that they ascend (where strides nest, as in all
 * meshes that the functions above make); the order of an all-gather.
 * Groups are numbered in the same way over the other axes; so that every rank can list all of them
 * in the same order without talking. -1 for ranks outside. O(axes^2). */
DPAR_API int32_t dpar_mesh_group_size(const dpar_mesh *mesh, uint32_t which);
DPAR_API int32_t dpar_mesh_group_member(const dpar_mesh *mesh, uint32_t which, int32_t rank,
                                        int32_t index);
DPAR_API int32_t dpar_mesh_group_index(const dpar_mesh *mesh, uint32_t which, int32_t rank);
/* How many groups there are, which one a rank is in, and the first rank of the g-th. */
DPAR_API int32_t dpar_mesh_group_count(const dpar_mesh *mesh, uint32_t which);
DPAR_API int32_t dpar_mesh_group_number(const dpar_mesh *mesh, uint32_t which, int32_t rank);
DPAR_API int32_t dpar_mesh_group_first(const dpar_mesh *mesh, uint32_t which, int32_t group);

/* How the group of `rank` lies on nodes of `per_node` consecutive ranks: how many nodes it touches
 * and the most members that one of them holds; 0 and 0 for a rank outside or a per_node below 1.
 * O(group size); its square where the strides of a
 * mesh that the caller filled in interleave, so that members do not ascend. */
DPAR_API void dpar_mesh_group_nodes(const dpar_mesh *mesh, uint32_t which, int32_t rank,
                                    int32_t per_node, int32_t *nodes, int32_t *most);

#endif
