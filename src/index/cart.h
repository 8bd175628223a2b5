/* SPDX-License-Identifier: MIT-0 */
/* cart - process grids: how many ranks along each axis, who owns which cells, which rank goes on
 * which node. Integers only, no tables. A grid has parts[d] ranks along axis d.
 *
 *     const int64_t cells[2] = {120, 100};
 *     int32_t parts[2] = {0, 0};
 *     dpar_cart_dims(8, 2, parts, &why);                          4 x 2 ranks
 *     dpar_cart_range(2, cells, parts, rank, first, count);       the block of one
 *     dpar_cart_owner(2, cells, parts, cell);                     the rank that has a cell */
#ifndef DPARI_INDEX_CART_H
#define DPARI_INDEX_CART_H

#include "../base/box.h"
#include "mesh.h"

enum { DPAR_PROC_NULL = -1 }; /* no rank: beyond an open border */

/* ---- shapes ---- */

/* MPI_Dims_create: fills parts[0 .. dims-1] so that their product is `ranks`. On entry a positive
 * part is fixed, 0 is to be chosen. It knows neither cells nor nodes: dpar_cart_choose_parts does.
 *
 * The chosen parts do not increase from axis to axis. Of all such factorisations it takes the least
 * (largest - smallest), then the largest smallest part, then the lexicographically least. MPICH
 * 4.0.2 answers the same for all ranks <= 3000. Open MPI differs for few numbers: 72 is 9 x 8 here
 * and 12 x 6 there.
 *
 * ranks >= 1, 0 <= dims <= DPAR_MAX_AXES. E_ARG. E_DIVIDE: the fixed parts do not divide the ranks,
 * or all are fixed and their product is smaller. Not collective. Microseconds for usual numbers; at
 * most sqrt(ranks) steps for the prime factors. */
DPAR_API dpar_status dpar_cart_dims(int32_t ranks, int32_t dims, int32_t *parts, dpar_why *why);

/* A grid of cells that ranks are to share. Zero it and fill it in. */
typedef struct dpar_cart_choose_desc {
    int32_t ranks, dims;           /* 1 or more; 0..DPAR_MAX_DIMS */
    int64_t cells[DPAR_MAX_DIMS];  /* at least 1 */
    int64_t weight[DPAR_MAX_DIMS]; /* cost of a cell face between two ranks along the dim; all 0: 1
                                      each */
    uint32_t periodic;             /* bit d: dim d wraps around */
} dpar_cart_choose_desc;

/* The process grid with the least cut: product(parts) = ranks, parts[d] <= cells[d]. On entry a
 * positive part is fixed, 0 is to be chosen. Of equal cuts it takes the lexicographically least
 * parts.
 *
 * The cut counts the cell faces between two ranks, each weight[d] times. It is the sum over d of
 * weight[d] * planes[d] * the product of the other dims' cells. planes[d] is parts[d] - 1, or
 * parts[d] in a periodic dim of more than one part. One halo exchange of width h and b bytes a cell
 * moves 2 h b times the unweighted cut. *cut may be NULL; with all parts fixed it is theirs.
 *
 * E_ARG. E_DIVIDE: the fixed parts do not divide the ranks. E_NONE: no factorisation has parts <=
 * cells. E_RANGE: the worst cut passes 2^63 - 1. Each has a sentence. Not collective. 10
 * microseconds for 10^6 ranks in 3 dims; at worst tenths of a second (6 dims, 2^31 ranks, 1600
 * divisors).
 *
 * Exact: branch and bound over the ordered factorisations. The bound is the inequality of the
 * means, sum a_d p_d >= k (product a_d p_d)^(1/k). */
DPAR_API dpar_status dpar_cart_choose_parts(const dpar_cart_choose_desc *grid, int32_t *parts,
                                            int64_t *cut, dpar_why *why);

/* ---- who owns what of a grid ----
 *
 * Each dim is cut by EVEN of split.h; ranks are row-major, the last dim fastest, as in MPI_Cart and
 * PETSc's DMDA. The functions above choose `parts`. */

/* The rank that has a cell. -1 when the cell is outside or there is no such grid: dims is not
 * 1..DPAR_MAX_DIMS, a part is below 1, or the ranks pass 2^31 - 1. O(dims). */
DPAR_API int32_t dpar_cart_owner(int32_t dims, const int64_t *cells, const int32_t *parts,
                                 const int64_t *cell);
/* The block of a rank: count[d] cells from first[d] on, for each d < dims. Where cells[d] <
 * parts[d] the last parts have none. E_ARG, nothing written: no such rank, no such grid, or cells
 * below 0. O(dims). */
DPAR_API dpar_status dpar_cart_range(int32_t dims, const int64_t *cells, const int32_t *parts,
                                     int32_t rank, int64_t *first, int64_t *count);

/* ---- a grid of ranks, to be placed on nodes ---- */

/* A grid of ranks. */
typedef struct dpar_cart {
    int32_t dims;                 /* 0..DPAR_MAX_DIMS */
    int32_t size;                 /* ranks: the product of the parts */
    uint32_t periodic;            /* bit d: axis d wraps around */
    int32_t parts[DPAR_MAX_DIMS]; /* ranks along each axis, >= 1 */
} dpar_cart;

enum {
    DPAR_STENCIL_STAR, /* the two neighbours along each axis */
    DPAR_STENCIL_BOX,  /* edges and corners too: all 3^dims - 1 */
    DPAR_STENCIL_EDGES /* edges, no corners: along two axes at most, 2 dims^2; D3Q19's 18 */
};

/* A grid of parts[d] ranks; bit d of `periodic` closes axis d. A mesh of the same parts has its
 * coordinates, neighbours and sub-grids. E_ARG, or E_RANGE above 2^31 - 1 ranks, with a sentence.
 * O(dims). */
DPAR_API dpar_status dpar_cart_init(dpar_cart *cart, int32_t dims, const int32_t *parts,
                                    uint32_t periodic, dpar_why *why);

/* ---- placement: which rank stands at which coordinate; node = rank / per_node ---- */

enum {
    DPAR_MAPPING_ROW_MAJOR, /* as MPI_Cart: the last axis fastest */
    DPAR_MAPPING_BRICKS,    /* every node holds a brick of the grid */
    DPAR_MAPPING_MORTON,    /* bits interleaved, axis 0 lowest */
    DPAR_MAPPING_HILBERT,   /* Hilbert's curve, any number of dims */
    DPAR_MAPPING_COUNT
};

/* A placement: which rank stands at which coordinate. dpar_mapping_init and _best make it. For
 * bricks of your own set kind, order and brick: sides that divide the parts, of product per_node.
 * LAMMPS' two-level order "xyz" is order {0, 1, 2}. */
typedef struct dpar_mapping {
    dpar_cart grid;
    int32_t kind;                 /* DPAR_MAPPING_ROW_MAJOR, ... */
    int32_t per_node;             /* ranks a node; the last may hold fewer */
    int32_t brick[DPAR_MAX_DIMS]; /* sides of the bricks; 1 for the other kinds */
    int32_t order[DPAR_MAX_DIMS]; /* bricks: axes from fastest to slowest */
} dpar_mapping;

/* What one exchange with the neighbours carries. The message to a neighbour at offset o of the
 * stencil has bytes * the product over d of (o_d != 0 ? width[d] : block[d]). */
typedef struct dpar_stencil {
    int32_t shape;                /* DPAR_STENCIL_STAR, ... */
    int64_t bytes;                /* of a cell; 0: each message counts 1, whatever it carries */
    int64_t block[DPAR_MAX_DIMS]; /* cells of a rank along each axis */
    int64_t width[DPAR_MAX_DIMS]; /* of the halo */
} dpar_stencil;

/* A placement of a kind, with nodes of per_node >= 1 ranks.
 *
 * Bricks have sides q with product(q) = per_node, q[d] dividing parts[d], and the least surface
 * between nodes. The surface is the cut of dpar_cart_choose_parts with parts[d] / q[d] nodes along
 * axis d. Of equal ones it takes the fewest nodes along axis 0, then 1, and so on. Nodes in the
 * grid and ranks in a brick are both row-major. Morton and Hilbert number the cells of the smallest
 * power-of-two cube around the grid and skip those outside.
 *
 * E_ARG; bricks also E_DIVIDE: per_node does not divide the ranks (use Hilbert). O(1); bricks as
 * dpar_cart_choose_parts for size / per_node ranks. */
DPAR_API dpar_status dpar_mapping_init(dpar_mapping *place, const dpar_cart *grid, int32_t kind,
                                       int32_t per_node, dpar_why *why);

/* The rank at coord; DPAR_PROC_NULL outside. Row-major and bricks O(dims). Morton and Hilbert
 * O(2^dims * dims * bits of the longest axis): skipped cells are counted by whole cubes. */
DPAR_API int32_t dpar_mapping_rank(const dpar_mapping *place, const int32_t *coord);

/* The coordinate of a rank: the inverse of dpar_mapping_rank, at the same cost. E_ARG, without a
 * sentence: no such rank. */
DPAR_API dpar_status dpar_mapping_coords(const dpar_mapping *place, int32_t rank, int32_t *coord);

/* What crosses between nodes in one exchange, one way; as much comes back. *total is the machine's,
 * *worst the busiest node's. A message between two nodes counts once in the total and at both
 * nodes. Along a periodic axis of 2 two messages join the same two ranks.
 *
 * E_ARG, or E_RANGE where a sum could pass 2^63 - 1, with a sentence. Bricks, and row-major with
 * one rank a node, take a closed form: O(3^dims * dims). The others take O(ranks * 3^dims * dims)
 * times the cost of dpar_mapping_rank. */
DPAR_API dpar_status dpar_mapping_cost(const dpar_mapping *place, const dpar_stencil *stencil,
                                       int64_t *total, int64_t *worst, dpar_why *why);

/* The kind whose busiest node sends least, then the least total, then the first kind. Bricks are
 * searched with the stencil's faces as weights, and left out where none fits. Errors and cost as
 * dpar_mapping_cost for every kind. */
DPAR_API dpar_status dpar_mapping_choose(dpar_mapping *place, const dpar_cart *grid,
                                         int32_t per_node, const dpar_stencil *stencil,
                                         dpar_why *why);

/* ---- a torus network: logical mesh axes on physical axes, as JAX's mesh_utils has it ---- */

/* Fill in the sizes; dpar_torus_assign writes the rest. */
typedef struct dpar_torus {
    int32_t physical_axes, logical_axes;        /* 1..DPAR_MAX_DIMS, 1..DPAR_MAX_AXES */
    int32_t physical[DPAR_MAX_DIMS];            /* chips along each axis of the network */
    int32_t logical[DPAR_MAX_AXES];             /* ranks along each axis of the mesh */
    int32_t part[DPAR_MAX_AXES][DPAR_MAX_DIMS]; /* ranks of logical axis l along physical axis p */
    uint32_t axes[DPAR_MAX_AXES];               /* bit p: logical axis l uses physical axis p */
} dpar_torus;

/* Assigns the mesh's axes, listed by increasing traffic, to the axes of a torus. From the last
 * logical axis to the first it takes the most free physical axes whose product is the logical size;
 * of those the lexicographically first. (JAX looks at up to 3 axes: all its tori have 3.)
 *
 * Where that fails and split is not 0, it starts over and may split physical axes. It tries every
 * way to write a logical size as a product of divisors of what is left of each axis. It prefers
 *
 *     (1) the larger product over axes taken wholly,
 *     (2) more such axes longer than 1,
 *     (3) the larger product over axes already partly taken (as JAX's code; its comment says
 *         the opposite),
 *     (4) the lexicographically largest.
 *
 * JAX's special ring orders of single trays are not here. Sizes such as 10, 14, 15 keep all their
 * prime factors; JAX 0.10 drops some when it splits, and fails or answers otherwise.
 *
 * E_ARG. E_RANGE: more than 2^31 - 1 chips or ranks. E_DIVIDE: the products of the sizes differ.
 * E_NONE: only splitting would do, and split is 0. O(factorisations). */
DPAR_API dpar_status dpar_torus_assign(dpar_torus *torus, int32_t split, dpar_why *why);

/* The chip at a logical coordinate, and back. A logical index counts through its parts row-major,
 * in the order of the physical axes. A split physical axis gives its fastest digits to the last
 * logical axis. E_ARG, without a sentence: a coordinate is outside. O(axes^2). */
DPAR_API dpar_status dpar_torus_physical(const dpar_torus *torus, const int32_t *logical,
                                         int32_t *physical);
DPAR_API dpar_status dpar_torus_logical(const dpar_torus *torus, const int32_t *physical,
                                        int32_t *logical);

#endif
