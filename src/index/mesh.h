/* SPDX-License-Identifier: MIT-0 */
/* mesh - ranks with named axes, as a list of (size, stride). Integers only, O(axes), no tables. */
#ifndef DPAR_MESH_H
#define DPAR_MESH_H

#include "../base/base.h"

enum { DPAR_MAX_AXES = 8 };

typedef struct dpar_axis {
    char name[16];  /* "tp", "dp", "dp_replicate", ... */
    int32_t size;   /* >= 1 */
    int32_t stride; /* ranks between two neighbours along this axis */
} dpar_axis;

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

/* The axis of that name, or -1. */
DPAR_API int32_t dpar_mesh_find(const dpar_mesh *mesh, const char *name);

/* Coordinate of `rank` along an axis; -1 when the rank is outside the mesh. */
DPAR_API int32_t dpar_mesh_coord(const dpar_mesh *mesh, int32_t rank, int32_t axis);

/* Rank at coord[0 .. axes-1]; -1 when one of them is out of range. */
DPAR_API int32_t dpar_mesh_rank(const dpar_mesh *mesh, const int32_t *coord);

/* Groups: the ranks that differ from `rank` only along the axes whose bits are set in `which`
 * (bit i = axis i). Members are counted with the first chosen axis in stride order fastest, so that
 * they ascend. */
DPAR_API int32_t dpar_mesh_group_size(const dpar_mesh *mesh, uint32_t which);
DPAR_API int32_t dpar_mesh_group_member(const dpar_mesh *mesh, uint32_t which, int32_t rank,
                                        int32_t index);
DPAR_API int32_t dpar_mesh_group_index(const dpar_mesh *mesh, uint32_t which, int32_t rank);

/* How the group of `rank` lies on nodes of `per_node` consecutive ranks: how many nodes it touches
 * and the most members that one of them holds. O(group size). */
DPAR_API void dpar_mesh_group_nodes(const dpar_mesh *mesh, uint32_t which, int32_t rank,
                                    int32_t per_node, int32_t *nodes, int32_t *most);

#endif
