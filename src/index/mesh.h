/* SPDX-License-Identifier: MIT-0 */
/* mesh - gives ranks named axes, so that a rank has coordinates and shares groups with other ranks.
 * A mesh is a list of sizes and strides without tables, so that a rank among a million finds its
 * coordinates in O(axes).
 *
 *     const int32_t sizes[2] = {4, 2};
 *     int32_t at[2];
 *     dpar_mesh_init(&mesh, "dp tp", sizes, DPAR_ORDER_LAST_FASTEST, 0, &why);    ranks 0..7
 *     dpar_mesh_coords(&mesh, 5, at);                                       dp 2, tp 1
 *     dpar_mesh_group_member(&mesh, 1, 5, 0);                               along dp: 1, 3, 5, 7
 */
#ifndef DPARI_INDEX_MESH_H
#define DPARI_INDEX_MESH_H

#include "../base/base.h"

/* The most axes that a mesh may have. */
enum { DPAR_MAX_AXES = 8 };

/* One axis of a mesh. */
typedef struct dpar_mesh_axis {
    char name[16];  /* "tp", "dp", "dp_replicate", ... */
    int32_t size;   /* at least 1 */
    int32_t stride; /* distance in ranks between neighbours along this axis */
} dpar_mesh_axis;

/* Ranks with named axes, made by the functions below. The rank at coord[] is first_rank + the sum
 * of coord[i] * axis[i].stride. It is at most 2^31 - 1, and no two coordinates have the same rank.
 * Keep both true if you set first_rank yourself.
 *
 * Functions take a set of axes as a number in which bit i stands for axis i. They ignore bits of
 * axes that the mesh does not have.
 */
typedef struct dpar_mesh {
    int32_t axes;       /* number of axes, 0..DPAR_MAX_AXES */
    int32_t size;       /* number of ranks, the product of the sizes */
    int32_t first_rank; /* rank at coordinate 0, 0, ... */
    dpar_mesh_axis axis[DPAR_MAX_AXES];
} dpar_mesh;

/* The order in which ranks are numbered. Systems differ, so every caller states it. */
enum {
    DPAR_ORDER_LAST_FASTEST, /* the last axis has stride 1, as in torch's DeviceMesh, JAX and
                                MPI_Cart */
    DPAR_ORDER_FIRST_FASTEST /* the first axis has stride 1, as in PETSc and Megatron's order
                                strings */
};

/* Makes a mesh of named axes with first rank 0. Set mesh->first_rank afterwards for another first
 * rank.
 *
 * names:  one name of 1 to 15 characters for each axis, all different, such as "dp tp" or "dp-tp".
 * sizes:  one size for each name, at least 1. One size may be -1 if `ranks` is given, and is then
 *         computed.
 * order:  DPAR_ORDER_LAST_FASTEST or DPAR_ORDER_FIRST_FASTEST.
 * ranks:  the number of ranks, which the product of the sizes must equal; 0 allows any product.
 *
 * For nodes and the ranks inside them, as in JAX's hybrid meshes, give each dimension two axes:
 * "dp.node tp.node dp tp". The set of both dp axes is then the whole of dp. Fails with DPAR_E_ARG,
 * DPAR_E_DIVIDE if the product is not `ranks`, or DPAR_E_RANGE. Costs O(axes^2).
 */
DPAR_API dpar_status dpar_mesh_init(dpar_mesh *mesh, const char *names, const int32_t *sizes,
                                    int32_t order, int32_t ranks, dpar_why *why);

/* Makes a mesh from Megatron's order string, such as "tp-cp-ep-dp-pp", whose first name is the
 * fastest axis. The mesh has its axes in the order of the string.
 *
 * sizes:  sizes[i] belongs to the i-th name of `names`, which may list the axes in any order. One
 *         size may be -1.
 *
 * A name of `names` that the string does not have must have size 1, and its axis is appended. Fails
 * with DPAR_E_UNKNOWN if a name of the string has no size, otherwise as dpar_mesh_init. Costs
 * O(axes^2).
 */
DPAR_API dpar_status dpar_mesh_init_from_order(dpar_mesh *mesh, const char *order,
                                               const char *names, const int32_t *sizes,
                                               int32_t ranks, dpar_why *why);

/* Makes another mesh over the ranks of a mesh, such as the experts' etp-ep-edp-pp next to
 * tp-cp-dp-pp. The sizes must multiply to mesh->size; one may be -1.
 *
 * Fails with DPAR_E_DIVIDE if they do not, if the ranks of `mesh` are not evenly spaced, or if both
 * meshes have an axis of the same name whose groups differ. Otherwise fails as dpar_mesh_init.
 * Costs O(axes^2).
 */
DPAR_API dpar_status dpar_mesh_view(dpar_mesh *view, const dpar_mesh *mesh, const char *names,
                                    const int32_t *sizes, int32_t order, dpar_why *why);

/* Makes a mesh of the ranks that differ from `rank` only along the axes in the set `which`, as
 * MPI_Cart_sub or a slice of a DeviceMesh does. Fails with DPAR_E_ARG if the rank is not in the
 * mesh. Costs O(axes^2). */
DPAR_API dpar_status dpar_mesh_slice(dpar_mesh *out, const dpar_mesh *mesh, uint32_t which,
                                     int32_t rank, dpar_why *why);

/* Finds an axis by name. Returns its index, or -1 if there is none. Costs O(axes). */
DPAR_API int32_t dpar_mesh_find(const dpar_mesh *mesh, const char *name);

/* Computes the coordinates of a rank, one for each axis. Returns 1, or 0 if the rank is not in the
 * mesh; `coord` is then unchanged. Costs O(axes^2). */
DPAR_API int dpar_mesh_coords(const dpar_mesh *mesh, int32_t rank, int32_t *coord);

/* Computes the rank at coord[0 .. axes-1]. Returns -1 if a coordinate is out of range. Costs
 * O(axes). */
DPAR_API int32_t dpar_mesh_rank(const dpar_mesh *mesh, const int32_t *coord);

/* Computes the rank that is `steps` further along an axis. With `wrap` the axis is a ring. Returns
 * -1 beyond an end of an open axis and for a rank outside the mesh.
 *
 * `steps` may be negative, or longer than the axis. MPI_Cart_shift's destination is at +steps and
 * its source at -steps. Costs O(axes^2).
 */
DPAR_API int32_t dpar_mesh_shift(const dpar_mesh *mesh, int32_t rank, int32_t axis, int64_t steps,
                                 int wrap);

/* Counts the ranks in a rank's group: the ranks that differ from each other only along the axes in
 * the set `which`. There are mesh->size / group_size such groups. Costs O(axes). */
DPAR_API int32_t dpar_mesh_group_size(const dpar_mesh *mesh, uint32_t which);

/* Finds member number `index` of a rank's group. Returns -1 if there is no such member or the rank
 * is outside the mesh. Costs O(axes^2).
 *
 * Members are counted with the axis of the smallest stride fastest. In every mesh that the
 * functions above make, member ranks therefore ascend, which is also the order of an all-gather.
 * The first rank of group g is dpar_mesh_group_member(mesh, ~which, mesh->first_rank, g).
 */
DPAR_API int32_t dpar_mesh_group_member(const dpar_mesh *mesh, uint32_t which, int32_t rank,
                                        int32_t index);

/* Finds the index of a rank in its group. Returns -1 for a rank outside the mesh. The group itself
 * has the number dpar_mesh_group_index(mesh, ~which, rank) among all groups. Costs O(axes^2). */
DPAR_API int32_t dpar_mesh_group_index(const dpar_mesh *mesh, uint32_t which, int32_t rank);

#endif
