/* SPDX-License-Identifier: MIT-0 */
/* cart - process grids: which shape, who neighbours whom, and where on the nodes each rank goes.
 * Integers only, no tables. A grid has parts[d] ranks along axis d. */
#ifndef DPARI_INDEX_CART_H
#define DPARI_INDEX_CART_H

#include "../base/box.h"
#include "mesh.h"

enum { DPAR_PROC_NULL = -1 }; /* no rank: beyond an open border */

/* ---- shapes ---- */

/* MPI_Dims_create: fills parts[0 .. dims-1] so that their product is `ranks`. On entry a positive
 * part is fixed and 0 is to be chosen; the chosen ones do not increase from axis to axis. Of all
 * such factorisations: the least (largest - smallest), then the largest smallest part, then the
 * lexicographically least. That is what MPICH 4.0.2 answers (Open MPI differs for few numbers: 72
 * is 9 x 8 here and 12 x 6 there); the rule was found by comparing all answers for ranks <= 3000.
 * It knows neither cells nor nodes: see dpar_grid_create. ranks >= 1, 0 <= dims <= DPAR_MAX_AXES.
 * E_ARG; E_DIVIDE: the fixed parts do not divide the ranks, or leave some although all are fixed.
 * Not collective. Microseconds for usual numbers, sqrt(ranks) steps to find the prime factors. */
DPAR_API dpar_status dpar_dims_create(int32_t ranks, int32_t dims, int32_t *parts, dpar_why *why);

/* The next ordered factorisation of `ranks` into parts[0 .. dims-1], each dividing room[d] (room =
 * NULL: any), in lexicographic order; parts[0] = 0 on entry asks for the first. OK; DONE when there
 * is none left (parts untouched); E_ARG. All state is in parts. ranks >= 1, 1 <= dims <=
 * DPAR_MAX_DIMS. O(dims * divisors of ranks) a step, and finding the prime factors. */
DPAR_API dpar_status dpar_grid_next(int32_t ranks, int32_t dims, const int32_t *room,
                                    int32_t *parts);

/* The cut of a grid of cells[d] cells over parts[d] ranks: how many cell faces lie between two
 * ranks, each counted weight[d] times (NULL: once): sum over d of weight[d] * planes[d] * product
 * of the other axes' cells, with planes = parts - 1, or parts where bit d of `periodic` is set and
 * parts > 1. One halo exchange of width h and b bytes a cell moves 2 h b times the unweighted cut.
 * 1 <= parts <= cells, weight >= 0, dims <= DPAR_MAX_DIMS. E_ARG, or E_RANGE where a product passes
 * 2^63 - 1, with a sentence. O(dims^2). */
DPAR_API dpar_status dpar_grid_cut(int32_t dims, const int64_t *cells, const int64_t *weight,
                                   uint32_t periodic, const int32_t *parts, int64_t *cut,
                                   dpar_why *why);

/* The process grid with the least cut (as dpar_grid_cut has it) of all with product(parts) = ranks
 * and parts[d] <= cells[d]. On entry a positive part is fixed and 0 is to be chosen. Of equal cuts
 * the lexicographically least parts. Exact: branch and bound over the ordered factorisations, the
 * bound being the inequality of the means, sum a_d p_d >= k (product a_d p_d)^(1/k). *cut may be
 * NULL. E_ARG; E_DIVIDE: the fixed parts do not divide the ranks; E_NONE: no factorisation has
 * parts <= cells; E_RANGE: the worst cut passes 2^63 - 1; each with a sentence. Not collective.
 * Cost: 10 microseconds for 10^6 ranks in 3 dims; at worst tenths of a second (6 dims, 2^31 ranks,
 * 1600 divisors). */
DPAR_API dpar_status dpar_grid_create(int32_t ranks, int32_t dims, const int64_t *cells,
                                      const int64_t *weight, uint32_t periodic, int32_t *parts,
                                      int64_t *cut, dpar_why *why);

/* ---- Cartesian topology with MPI's meaning: row-major, the last axis fastest ---- */

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

/* Along how many axes at once neighbours of that shape lie: 1, dims, 2; 0: there is no such shape.
 */
DPAR_API int32_t dpar_stencil_axes(int32_t shape, int32_t dims);

/* A grid of parts[d] ranks; bit d of `periodic` closes axis d. E_ARG, or E_RANGE above 2^31 - 1
 * ranks, with a sentence. O(dims). */
DPAR_API dpar_status dpar_cart_init(dpar_cart *cart, int32_t dims, const int32_t *parts,
                                    uint32_t periodic, dpar_why *why);

/* MPI_Cart_rank: the rank at coord[0 .. dims-1]. Periodic coordinates wrap (floor-mod, so that -1
 * is the last); DPAR_PROC_NULL where one is outside an open axis. O(dims). */
DPAR_API int32_t dpar_cart_rank(const dpar_cart *cart, const int32_t *coord);

/* MPI_Cart_coords: coord[0 .. dims-1] of a rank. E_ARG when the rank is outside. O(dims). */
DPAR_API dpar_status dpar_cart_coords(const dpar_cart *cart, int32_t rank, int32_t *coord);

/* MPI_Cart_shift: who sends to `rank` and to whom it sends when all shift by `by` along an axis.
 * `by` may be negative or larger than the axis; 0 gives the rank itself twice. DPAR_PROC_NULL
 * beyond an open border. E_ARG: no such rank or axis. O(dims). */
DPAR_API dpar_status dpar_cart_shift(const dpar_cart *cart, int32_t rank, int32_t axis, int32_t by,
                                     int32_t *source, int32_t *dest);

/* MPI_Cart_sub: the grid of the axes whose bits are set in `keep`, in their order; the rank's
 * number in it; and which of the sub-grids it is (0 <= which < size / sub->size, row-major over
 * the dropped axes): colour and key of an MPI_Comm_split. E_ARG: no such rank. O(dims). */
DPAR_API dpar_status dpar_cart_sub(const dpar_cart *cart, int32_t rank, uint32_t keep,
                                   dpar_cart *sub, int32_t *sub_rank, int32_t *which);

/* Neighbours of a rank, at most `room` of them into list; returns how many there are: 2 dims or
 * 3^dims - 1, or -1 when there is no such rank. Star: for each axis first the lower, then the
 * higher, the order of MPI's neighbourhood collectives. Box: by offset, row-major from (-1, ..,
 * -1), without the middle. DPAR_PROC_NULL stands beyond open borders; a rank met twice (two or one
 * along a periodic axis) is listed twice. O(dims) a neighbour. */
DPAR_API int32_t dpar_cart_neighbours(const dpar_cart *cart, int32_t rank, int32_t stencil,
                                      int32_t *list, int32_t room);

/* ---- placement: which rank stands at which coordinate; node = rank / per_node ---- */

enum {
    DPAR_PLACE_ROW_MAJOR, /* as MPI_Cart: the last axis fastest */
    DPAR_PLACE_BRICKS,    /* every node holds a brick of the grid */
    DPAR_PLACE_MORTON,    /* bits interleaved, axis 0 lowest */
    DPAR_PLACE_HILBERT,   /* Hilbert's curve, any number of dims */
    DPAR_PLACE_KINDS
};

typedef struct dpar_place {
    dpar_cart grid;
    int32_t kind;                 /* DPAR_PLACE_ROW_MAJOR, ... */
    int32_t per_node;             /* ranks a node; the last may hold fewer */
    int32_t brick[DPAR_MAX_DIMS]; /* sides of the bricks; 1 for the other kinds */
    int32_t order[DPAR_MAX_DIMS]; /* bricks: axes from fastest to slowest */
} dpar_place;

/* What one exchange with the neighbours costs: an offset o of a stencil carries bytes * product
 * over d of (o_d != 0 ? width[d] : block[d]). All ones count edges. */
typedef struct dpar_stencil {
    int32_t shape;                /* DPAR_STENCIL_STAR, ... */
    int64_t bytes;                /* a cell */
    int64_t block[DPAR_MAX_DIMS]; /* cells of a rank along each axis */
    int64_t width[DPAR_MAX_DIMS]; /* of the halo */
} dpar_stencil;

/* A stencil whose edges all count 1. */
DPAR_API dpar_stencil dpar_stencil_edges(int32_t shape);

/* A placement of a kind; bricks are the best ones (dpar_place_bricks with no weight, order or
 * sides given). Morton and Hilbert number the cells of the smallest power-of-two cube around the
 * grid and skip those outside. per_node >= 1. Errors: E_ARG, and those of dpar_place_bricks. O(1),
 * bricks as said there. */
DPAR_API dpar_status dpar_place_init(dpar_place *place, const dpar_cart *grid, int32_t kind,
                                     int32_t per_node, dpar_why *why);

/* Node-aware bricks: sides q with product(q) = per_node and q[d] dividing parts[d] that leave the
 * least surface between nodes: sum over d of weight[d] * planes[d] * product of the other parts,
 * planes as in dpar_grid_cut with parts[d] / q[d] nodes along axis d; of equal ones the fewest
 * nodes along axis 0, then 1, .... Nodes are numbered in a grid, ranks inside a brick, both with
 * axis order[0] fastest (NULL: the last axis, row-major). sides (NULL: all free) fixes q[d] where
 * positive. LAMMPS' two-level order "xyz" is order {0, 1, 2}. weight NULL: 1 each. E_ARG; E_DIVIDE:
 * per_node does not divide the ranks; E_NONE: no brick fits (use Hilbert); E_RANGE. Cost as
 * dpar_grid_create for size / per_node ranks. */
DPAR_API dpar_status dpar_place_bricks(dpar_place *place, const dpar_cart *grid, int32_t per_node,
                                       const int64_t *weight, const int32_t *order,
                                       const int32_t *sides, dpar_why *why);

/* The rank at coord; DPAR_PROC_NULL outside. Row-major and bricks O(dims); Morton and Hilbert
 * O(2^dims * dims * bits of the longest axis), not O(ranks): skipped cells are counted by cubes. */
DPAR_API int32_t dpar_place_rank(const dpar_place *place, const int32_t *coord);

/* The coordinate of a rank, inverse of dpar_place_rank, at the same cost. E_ARG: no such rank. */
DPAR_API dpar_status dpar_place_coords(const dpar_place *place, int32_t rank, int32_t *coord);

/* What crosses between nodes in one exchange, one way (as much comes back): *total over the
 * machine, *worst at the busiest node; every edge counts once in the total and at both its nodes.
 * Two edges join two ranks along a periodic axis of 2. E_ARG, or E_RANGE where a sum could pass
 * 2^63 - 1, with a sentence. Bricks (and one rank a node in row-major order) by closed form,
 * O(3^dims * dims); the others O(ranks * 3^dims * dims), times the cost of dpar_place_rank. */
DPAR_API dpar_status dpar_place_cost(const dpar_place *place, const dpar_stencil *stencil,
                                     int64_t *total, int64_t *worst, dpar_why *why);

/* The kind whose busiest node sends least, then the least total, then the first kind; bricks are
 * searched with the stencil's faces as weights and left out where none fits. Errors and cost as
 * dpar_place_cost for every kind. total and worst may be NULL. */
DPAR_API dpar_status dpar_place_best(dpar_place *place, const dpar_cart *grid, int32_t per_node,
                                     const dpar_stencil *stencil, int64_t *total, int64_t *worst,
                                     dpar_why *why);

/* ---- a torus network: logical mesh axes on physical axes, as JAX's mesh_utils has it ---- */

typedef struct dpar_torus {
    int32_t physical_axes, logical_axes;
    int32_t physical[DPAR_MAX_DIMS];
    int32_t logical[DPAR_MAX_AXES];
    int32_t part[DPAR_MAX_AXES][DPAR_MAX_DIMS]; /* of physical axis p that logical axis l has */
    uint32_t axes[DPAR_MAX_AXES]; /* bit p: logical axis l stands on physical axis p */
} dpar_torus;

/* Assigns logical axes, listed by increasing traffic, to the axes of a torus. From the last logical
 * axis to the first: the most still free physical axes whose product is the logical size, of those
 * the lexicographically first (JAX looks at up to 3 axes, all its tori having 3). Where that fails
 * and split is not 0, all starts over with every way to write the logical size as a product of
 * divisors of what is left of each axis, preferring (1) the larger product over axes taken wholly,
 * (2) more such axes longer than 1, (3) the larger product over axes already partly taken, (4) the
 * lexicographically largest. (3) is what JAX's code does; its comment says the opposite. JAX's
 * special ring orders of single trays are not here, and sizes such as 10, 14, 15 keep all their
 * prime factors (JAX 0.10 drops some when it splits, and fails or answers otherwise). E_ARG;
 * E_DIVIDE: the sizes' products differ; E_NONE: it takes splitting, which was not allowed.
 * O(factorisations). */
DPAR_API dpar_status dpar_torus_assign(dpar_torus *torus, int32_t physical_axes,
                                       const int32_t *physical, int32_t logical_axes,
                                       const int32_t *logical, int32_t split, dpar_why *why);

/* The chip at a logical coordinate and back. A logical index counts through its parts row-major in
 * the order of the physical axes; a split physical axis gives its fastest digits to the last
 * logical axis. E_ARG when a coordinate is outside. O(axes^2). */
DPAR_API dpar_status dpar_torus_physical(const dpar_torus *torus, const int32_t *logical,
                                         int32_t *physical);
DPAR_API dpar_status dpar_torus_logical(const dpar_torus *torus, const int32_t *physical,
                                        int32_t *logical);

#endif
