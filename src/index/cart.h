/* SPDX-License-Identifier: MIT-0 */
/* cart - computes process grids: how many ranks each axis gets, which rank owns which cells, and
 * which rank runs on which node. It uses integers only and no tables. A grid has parts[d] ranks
 * along axis d.
 *
 *     const int64_t cells[2] = {120, 100};
 *     int32_t parts[2] = {0, 0};
 *     dpar_cart_dims(8, 2, parts, &why);                          4 x 2 ranks
 *     dpar_cart_range(2, cells, parts, rank, first, count);       the block of one rank
 *     dpar_cart_owner(2, cells, parts, cell);                     the rank that owns a cell
 */
#ifndef DPARI_INDEX_CART_H
#define DPARI_INDEX_CART_H

#include "../base/box.h"
#include "mesh.h"

enum { DPAR_PROC_NULL = -1 }; /* "no rank", such as the neighbour beyond an open border */

/* ---- shapes ---- */

/* Chooses the number of ranks along each axis, as MPI_Dims_create does. It does not consider cells
 * or nodes; use dpar_cart_choose_parts if you have cells.
 *
 * ranks:  at least 1.
 * dims:   number of axes, 0..DPAR_MAX_AXES.
 * parts:  [dims]. On entry 0 asks for a number and a positive number is kept. On return their
 *         product is `ranks`.
 *
 * The chosen numbers do not increase from axis to axis. Among all such factorisations the function
 * takes the one with the least difference between its largest and its smallest number, then the one
 * whose smallest number is largest, then the lexicographically least. MPICH 4.0.2 gives the same
 * result for all ranks <= 3000. Open MPI differs for a few numbers: 72 is 9 x 8 here and 12 x 6
 * there.
 *
 * Fails with DPAR_E_ARG, or DPAR_E_DIVIDE if the fixed numbers do not divide the ranks, or all are
 * fixed and their product is smaller. Costs microseconds for usual numbers, and at most sqrt(ranks)
 * steps to find the prime factors.
 */
DPAR_API dpar_status dpar_cart_dims(int32_t ranks, int32_t dims, int32_t *parts, dpar_why *why);

/* A grid of cells to distribute over ranks. Zero it, then set the fields that you need. */
typedef struct dpar_cart_choose_desc {
    int32_t ranks, dims;          /* ranks, at least 1; dims, 0..DPAR_MAX_DIMS */
    int64_t cells[DPAR_MAX_DIMS]; /* cells along each dim, at least 1 */
    /* The cost of one cell face between two ranks, by the dim that the face is normal to. If all
     * are 0, each face costs 1. */
    int64_t weight[DPAR_MAX_DIMS];
    uint32_t periodic; /* bit d: dim d is periodic */
} dpar_cart_choose_desc;

/* Finds the process grid that cuts the fewest cell faces, with at most cells[d] parts in each dim.
 *
 * parts:  [dims]. On entry 0 asks for a number and a positive number is kept. On return their
 *         product is grid->ranks. Among equal cuts the function takes the lexicographically least
 *         parts.
 * cut:    receives the weighted number of faces that are cut; may be NULL. If all parts are fixed,
 *         it is their cut.
 *
 * The cut counts the cell faces between two ranks, weight[d] for each. It is the sum over d of
 * weight[d] * planes[d] * the product of the other dims' cells, where planes[d] is parts[d] - 1, or
 * parts[d] in a periodic dim of more than one part. A halo exchange of width h with b bytes per
 * cell moves 2 h b bytes for each cut face (weights 1).
 *
 * Fails with DPAR_E_ARG, DPAR_E_DIVIDE if the fixed parts do not divide the ranks, DPAR_E_NONE if
 * no factorisation has parts[d] <= cells[d], or DPAR_E_RANGE if the largest cut exceeds 2^63 - 1.
 * Costs 10 microseconds for 10^6 ranks in 3 dims, and tenths of a second at worst (6 dims, 2^31
 * ranks, 1600 divisors).
 *
 * The result is exact: branch and bound over the ordered factorisations, bounded by the inequality
 * of arithmetic and geometric means, sum a_d p_d >= k (product a_d p_d)^(1/k).
 */
DPAR_API dpar_status dpar_cart_choose_parts(const dpar_cart_choose_desc *grid, int32_t *parts,
                                            int64_t *cut, dpar_why *why);

/* ---- which rank owns which cells ----
 *
 * Each dim is cut by the rule DPAR_SPLIT_EVEN of split.h. Ranks are row-major with the last dim
 * fastest, as in MPI_Cart and PETSc's DMDA. The functions above choose `parts`.
 */

/* Finds the rank that owns a cell. Returns -1 if the cell is outside the grid or there is no such
 * grid: dims is not 1..DPAR_MAX_DIMS, a part is below 1, or there are more than 2^31 - 1 ranks.
 * Costs O(dims). */
DPAR_API int32_t dpar_cart_owner(int32_t dims, const int64_t *cells, const int32_t *parts,
                                 const int64_t *cell);

/* Computes the block of a rank: count[d] cells from first[d] on, in each dim d < dims. If cells[d]
 * < parts[d], the last parts have no cells.
 *
 * Fails with DPAR_E_ARG if there is no such rank or no such grid, or if a number of cells is
 * negative. Costs O(dims).
 */
DPAR_API dpar_status dpar_cart_range(int32_t dims, const int64_t *cells, const int32_t *parts,
                                     int32_t rank, int64_t *first, int64_t *count);

/* ---- a grid of ranks, to be mapped to nodes ---- */

/* A grid of ranks, made by dpar_cart_init. */
typedef struct dpar_cart {
    int32_t dims;                 /* 0..DPAR_MAX_DIMS */
    int32_t size;                 /* number of ranks, the product of the parts */
    uint32_t periodic;            /* bit d: axis d is periodic */
    int32_t parts[DPAR_MAX_DIMS]; /* ranks along each axis, at least 1 */
} dpar_cart;

/* Which neighbours a stencil reads. */
enum {
    DPAR_STENCIL_STAR, /* the two neighbours along each axis */
    DPAR_STENCIL_BOX,  /* all 3^dims - 1 neighbours, with edges and corners */
    DPAR_STENCIL_EDGES /* the 2 dims^2 neighbours that differ along one or two axes, as the 18 of
                          D3Q19 */
};

/* Makes a grid of parts[d] ranks along axis d. Bit d of `periodic` makes axis d a ring. Make a
 * dpar_mesh with the same sizes to get coordinates, neighbours and sub-grids. Fails with
 * DPAR_E_ARG, or DPAR_E_RANGE above 2^31 - 1 ranks. Costs O(dims). */
DPAR_API dpar_status dpar_cart_init(dpar_cart *cart, int32_t dims, const int32_t *parts,
                                    uint32_t periodic, dpar_why *why);

/* ---- mapping of the grid's ranks to nodes; the node of a rank is rank / per_node ---- */

/* How the ranks, and so the nodes, are mapped to the coordinates of a grid. */
enum {
    DPAR_MAPPING_ROW_MAJOR, /* the last axis fastest, as in MPI_Cart */
    DPAR_MAPPING_BRICKS,    /* each node has a brick of the grid */
    DPAR_MAPPING_MORTON,    /* Morton's curve: bits interleaved, axis 0 lowest */
    DPAR_MAPPING_HILBERT,   /* Hilbert's curve, for any number of dims */
    DPAR_MAPPING_COUNT
};

/* A mapping, which says which rank is at which coordinate, made by dpar_mapping_init or
 * dpar_mapping_choose. For bricks of your own, set kind, order and brick; the sides must divide the
 * parts and multiply to per_node. LAMMPS' two-level order "xyz" is order {0, 1, 2}. */
typedef struct dpar_mapping {
    dpar_cart grid;
    int32_t kind;                 /* DPAR_MAPPING_x */
    int32_t per_node;             /* ranks per node; the last node may have fewer */
    int32_t brick[DPAR_MAX_DIMS]; /* sides of a brick; 1 for the other kinds */
    int32_t order[DPAR_MAX_DIMS]; /* for bricks, the axes from fastest to slowest */
} dpar_mapping;

/* The messages of one exchange with the neighbours. The message to the neighbour at offset o has
 * bytes * the product over d of (o_d != 0 ? width[d] : block[d]) bytes. */
typedef struct dpar_stencil {
    int32_t shape;                /* DPAR_STENCIL_x */
    int64_t bytes;                /* bytes of a cell; 0 counts messages instead of bytes */
    int64_t block[DPAR_MAX_DIMS]; /* cells of a rank along each axis */
    int64_t width[DPAR_MAX_DIMS]; /* width of the halo in cells */
} dpar_stencil;

/* Makes a mapping of a kind for nodes of per_node >= 1 ranks.
 *
 * Bricks have sides q[d] that divide parts[d] and multiply to per_node, with the least surface
 * between nodes. The surface is the cut of dpar_cart_choose_parts with parts[d] / q[d] nodes along
 * axis d. Among bricks with the same surface the function takes those with the fewest nodes along
 * axis 0, then along axis 1, and so on. Nodes in the grid and ranks in a brick are both row-major.
 * Morton and Hilbert number the cells of the smallest power-of-two cube around the grid and skip
 * cells outside the grid.
 *
 * Fails with DPAR_E_ARG, and for bricks with DPAR_E_DIVIDE if per_node does not divide the ranks
 * (use DPAR_MAPPING_HILBERT). Costs O(1), but for bricks as much as dpar_cart_choose_parts for size
 * / per_node ranks.
 */
DPAR_API dpar_status dpar_mapping_init(dpar_mapping *place, const dpar_cart *grid, int32_t kind,
                                       int32_t per_node, dpar_why *why);

/* Computes the rank at a coordinate. Returns DPAR_PROC_NULL outside the grid. Costs O(dims) for
 * row-major and bricks. Morton and Hilbert cost O(2^dims * dims * bits of the longest axis),
 * because cells that the curve skips are counted one cube at a time. */
DPAR_API int32_t dpar_mapping_rank(const dpar_mapping *place, const int32_t *coord);

/* Computes the coordinate of a rank, the inverse of dpar_mapping_rank at the same cost. Fails with
 * DPAR_E_ARG if there is no such rank. */
DPAR_API dpar_status dpar_mapping_coords(const dpar_mapping *place, int32_t rank, int32_t *coord);

/* Computes the traffic between nodes in one exchange, in the units of stencil->bytes.
 *
 * total:  receives what all pairs of nodes send in one direction; the same is sent back.
 * worst:  receives what the busiest node sends; it receives as much.
 *
 * Along a periodic axis of 2 parts, two messages connect the same two ranks. Fails with DPAR_E_ARG,
 * or DPAR_E_RANGE if a sum could exceed 2^63 - 1. Costs O(3^dims * dims) for bricks, and for
 * row-major with one rank per node. Other mappings cost O(ranks * 3^dims * dims) times
 * dpar_mapping_rank.
 */
DPAR_API dpar_status dpar_mapping_cost(const dpar_mapping *place, const dpar_stencil *stencil,
                                       int64_t *total, int64_t *worst, dpar_why *why);

/* Chooses the kind of mapping whose busiest node sends the least. Among equal kinds it takes the
 * one with the least total, then the first one. Bricks are computed with the stencil's faces as
 * weights, and are skipped if none fits. Fails and costs as dpar_mapping_cost for every kind. */
DPAR_API dpar_status dpar_mapping_choose(dpar_mapping *place, const dpar_cart *grid,
                                         int32_t per_node, const dpar_stencil *stencil,
                                         dpar_why *why);

#endif
