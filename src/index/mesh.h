/* SPDX-License-Identifier: MIT-0 */
/* mesh - ranks with named axes: where a rank stands, and who shares a group with it. A mesh is a
 * list of (size, stride), without tables: a rank of a million finds its place in O(axes).
 *
 *     const int32_t sizes[2] = {4, 2};
 *     int32_t at[2];
 *     dpar_mesh_init(&mesh, "dp tp", sizes, DPAR_ORDER_LAST_FASTEST, 0, &why);    ranks 0..7
 *     dpar_mesh_coords(&mesh, 5, at);                                       dp 2, tp 1
 *     dpar_mesh_group_member(&mesh, 1, 5, 0);                               along dp: 1, 3, 5, 7 */
#ifndef DPARI_INDEX_MESH_H
#define DPARI_INDEX_MESH_H

#include "../base/base.h"

enum { DPAR_MAX_AXES = 8 };

/* One axis of a mesh. */
typedef struct dpar_mesh_axis {
    char name[16];  /* "tp", "dp", "dp_replicate", ... */
    int32_t size;   /* >= 1 */
    int32_t stride; /* ranks between two neighbours along this axis */
} dpar_mesh_axis;

/* Ranks with named axes: a value that the functions below make. rank = offset + the sum of coord[i]
 * * axis[i].stride, at most 2^31 - 1; no rank has two coordinates. Keep both true when you set
 * offset yourself.
 *
 * A set of axes is a number: bit i is axis i. Bits of axes that the mesh does not have do not
 * count. */
typedef struct dpar_mesh {
    int32_t axes;   /* axes in use, 0..DPAR_MAX_AXES */
    int32_t size;   /* ranks in all: the product of the sizes */
    int32_t offset; /* the first rank of the mesh */
    dpar_mesh_axis axis[DPAR_MAX_AXES];
} dpar_mesh;

/* The order of ranks. Systems differ, so it is always said. */
enum {
    DPAR_ORDER_LAST_FASTEST, /* torch DeviceMesh, JAX, MPI_Cart: the last axis has stride 1 */
    DPAR_ORDER_FIRST_FASTEST /* Megatron's order strings, PETSc: the first axis has stride 1 */
};

/* A mesh of named axes. `names` lists them, "dp tp" or "dp-tp": each once, 1 to 15 characters.
 * sizes[i] >= 1 is the size of the i-th. ranks > 0: the product of the sizes must equal it, and one
 * size may be -1, found from it. ranks = 0: any product.
 *
 * The first rank is 0; set mesh->offset for another one. Nodes and the ranks inside them, as JAX's
 * hybrid meshes: "dp.node tp.node dp tp", last-fastest; the whole of dp is then the set of its two
 * axes. E_ARG, E_DIVIDE or E_RANGE with a sentence. Not collective. O(axes^2). */
DPAR_API dpar_status dpar_mesh_init(dpar_mesh *mesh, const char *names, const int32_t *sizes,
                                    int32_t order, int32_t ranks, dpar_why *why);

/* A mesh by Megatron's order string, "tp-cp-ep-dp-pp": its first name is the fastest axis. sizes[i]
 * belongs to the i-th of `names`, which may come in any order. The mesh's axes are in the order of
 * the string.
 *
 * An axis whose name the string lacks must have size 1; it is appended. A name of the string that
 * has no size is E_UNKNOWN. One size may be -1. Other errors as dpar_mesh_init. Not collective.
 * O(axes^2). */
DPAR_API dpar_status dpar_mesh_init_from_order(dpar_mesh *mesh, const char *order,
                                               const char *names, const int32_t *sizes,
                                               int32_t ranks, dpar_why *why);
/* Other axes over the same ranks: experts' etp-ep-edp-pp beside tp-cp-dp-pp. The sizes must make
 * mesh->size ranks; one may be -1. E_DIVIDE with a sentence: they do not, mesh's ranks are not
 * evenly spaced, or an axis that both name has other groups. Other errors as dpar_mesh_init. Not
 * collective. O(axes^2). */
DPAR_API dpar_status dpar_mesh_view(dpar_mesh *view, const dpar_mesh *mesh, const char *names,
                                    const int32_t *sizes, int32_t order, dpar_why *why);

/* The axes in `which` through `rank`, as a mesh of their own: MPI_Cart_sub, a slice of DeviceMesh.
 * E_ARG with a sentence: the rank is not in the mesh. Not collective. O(axes^2). */
DPAR_API dpar_status dpar_mesh_slice(dpar_mesh *out, const dpar_mesh *mesh, uint32_t which,
                                     int32_t rank, dpar_why *why);

/* The index of the axis with that name; -1 when there is none. O(axes). */
DPAR_API int32_t dpar_mesh_find(const dpar_mesh *mesh, const char *name);

/* Writes the coordinates of `rank`, one an axis, and returns 1. Returns 0, coord untouched, when
 * the rank is not in the mesh. O(axes^2). */
DPAR_API int dpar_mesh_coords(const dpar_mesh *mesh, int32_t rank, int32_t *coord);

/* The rank at coord[0 .. axes-1]; -1 when a coordinate is out of range. O(axes). */
DPAR_API int32_t dpar_mesh_rank(const dpar_mesh *mesh, const int32_t *coord);
/* The rank `steps` further along an axis. Beyond the end: -1, or with `wrap` round it. Steps may be
 * negative or longer than the axis; the source of an MPI_Cart_shift is at -steps. -1 for a rank
 * outside the mesh. O(axes^2). */
DPAR_API int32_t dpar_mesh_shift(const dpar_mesh *mesh, int32_t rank, int32_t axis, int64_t steps,
                                 int wrap);

/* A rank's group: the ranks that differ from it only along the axes in `which`. Its size, its
 * member number `index`, and the index of `rank` in it. -1 for ranks outside the mesh. O(axes^2).
 *
 * Members are counted with the axis of the smallest stride fastest. So they ascend in all meshes
 * that the functions above make; an all-gather has this order.
 *
 * There are mesh->size / group_size groups. A rank's group has the number group_index(mesh, ~which,
 * rank). The first rank of group g is group_member(mesh, ~which, mesh->offset, g). */
DPAR_API int32_t dpar_mesh_group_size(const dpar_mesh *mesh, uint32_t which);
DPAR_API int32_t dpar_mesh_group_member(const dpar_mesh *mesh, uint32_t which, int32_t rank,
                                        int32_t index);
DPAR_API int32_t dpar_mesh_group_index(const dpar_mesh *mesh, uint32_t which, int32_t rank);

#endif
