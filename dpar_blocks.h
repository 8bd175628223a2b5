/* SPDX-License-Identifier: MIT-0 */
/* dpar_blocks.h - cuts a grid into many small blocks, of which each rank owns some.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 * This program makes blocks of 16 x 16 cells of a grid in which two blocks are land, fills their halos, and prints
 * what each rank has:
 *
 *     #include "dpar_blocks.h"
 *     #include <stdio.h>
 *     static int halos(dpar_comm *world, void *unused)
 *     {
 *         const unsigned char ocean[6] = {1, 1, 0, 1, 0, 1};     0: land, which no rank owns
 *         dpar_blocks_desc desc = {0};
 *         dpar_blocks *blocks = NULL;
 *         dpar_blocks_array *u = NULL;
 *         dpar_why why;
 *         int32_t i;
 *         (void)unused;
 *         desc.dims = 2;
 *         desc.cells[0] = 32;                                    u[32][40] without blocks
 *         desc.cells[1] = 40;
 *         desc.block[0] = 16;                                    2 x 3 blocks, the last ones 8 wide
 *         desc.block[1] = 16;
 *         desc.halo = 1;
 *         desc.periodic[1] = 1;
 *         desc.exists = ocean;
 *         if (dpar_blocks_make(world, &desc, &blocks, &why) < 0 ||
 *             dpar_blocks_array_make(blocks, DPAR_F64, NULL, &u, &why) < 0) {
 *             return dpar_fail(world, &why);
 *         }
 *         for (i = 0; i < blocks->count; i++) {
 *             double *own = (double *)u->block[i];               own[y * u->stride[0] + x]
 *             int64_t y, x;
 *             for (y = 0; y < blocks->block[i].count[0]; y++) {
 *                 for (x = 0; x < blocks->block[i].count[1]; x++) {
 *                     own[y * u->stride[0] + x] = (double)(blocks->block[i].first[1] + x);
 *                 }
 *             }
 *         }
 *         if (dpar_blocks_exchange(blocks, u) < 0) {
 *             return dpar_fail(world, NULL);
 *         }
 *         for (i = 0; i < blocks->count; i++) {
 *             printf("block %d: column %g is to the left of column %g\n", (int)blocks->block[i].number,
 *                    ((double *)u->block[i])[-1], ((double *)u->block[i])[0]);
 *         }
 *         if (dpar_blocks_free(blocks) < 0) {                    also frees u
 *             return dpar_fail(world, NULL);
 *         }
 *         return 0;
 *     }
 *     int main(int argc, char **argv)
 *     {
 *         return dpar_launch_main(argc, argv, halos, NULL);      --ranks 4, or under mpiexec, srun, torchrun
 *     }
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. yours.c -o yours && ./yours --ranks 2 */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar_comm.h")
#error dpar_blocks.h needs dpar_comm.h beside it, of the same release
#endif
#endif
#include "dpar_comm.h"
#endif
#if DPAR_VERSION != 200
#error dpar_blocks.h and dpar.h are of different versions: take all headers from one release
#endif

#ifndef DPAR_BLOCKS_H
#define DPAR_BLOCKS_H

/* ==== blocks/blocks_owner.h ==== */

/* blocks_owner - decides which rank owns which block of a grid that is cut into many small blocks.
 *
 *     dpar_blocks_assign_desc desc = {0};
 *     desc.dims = 2;
 *     desc.ranks = 96;
 *     desc.cells[0] = 720;
 *     desc.cells[1] = 1440;
 *     desc.block[0] = 36;                               20 x 40 blocks
 *     desc.block[1] = 36;
 *     desc.exists = ocean;                              [800] 0: only land, the block has no owner
 *     desc.weight = seconds;                            [800] measured, or NULL
 *     desc.memory = scratch;
 *     desc.bytes = sizeof scratch;
 *     dpar_blocks_assign(&desc, owner, &stats, &why);   owner[800]
 *
 * The blocks are put in an order, and each rank gets a contiguous piece of it. The pieces are such
 * that the heaviest rank is as light as this order allows. All functions here are local and do not
 * allocate: they need scratch memory from the caller, and DPAR_E_ROOM reports in why->bytes how
 * much. They decide in integers, so that the same values give the same owners on every rank,
 * compiler and target. */

/* The orders of blocks. The pieces of Hilbert's curve are compact, so that ranks exchange little.
 */
enum {
    DPAR_BLOCKS_HILBERT,   /* Hilbert's curve, generalised to boxes of any size */
    DPAR_BLOCKS_MORTON,    /* Morton's order (Z-order), which jumps */
    DPAR_BLOCKS_ROWS,      /* row by row, as arrays are in memory */
    DPAR_BLOCKS_SNAKE,     /* row by row, every other row backwards */
    DPAR_BLOCKS_BISECTION, /* blocks and ranks are halved along the longest side, again and again.
                              Ranks often send less than with Hilbert's curve, by up to a fifth, but
                              new weights move many blocks. Takes 10 to 20 times as long */
    DPAR_BLOCKS_ORDER_COUNT
};

/* A grid of blocks and the ranks that are to own them. Zero it, then set the fields that you need.
 */
typedef struct dpar_blocks_assign_desc {
    int32_t dims;                 /* 1 to DPAR_MAX_DIMS */
    int32_t ranks;                /* at least 1 */
    int32_t order;                /* DPAR_BLOCKS_HILBERT, ... */
    uint32_t periodic;            /* bit d: dim d wraps around; matters only to the statistics */
    int64_t cells[DPAR_MAX_DIMS]; /* of the grid along each dim, at least 1; at most 2^59 in all */
    int64_t block[DPAR_MAX_DIMS]; /* cells of a block along each dim; the last block of a dim may
                                     have fewer. 0 selects 1 */
    const uint8_t *exists;        /* [blocks] 0 for blocks without an owner, such as land; NULL if
                                     all blocks have one. Arrays of blocks are in the order of
                                     C: the last dim is fastest. At most 2^31 - 1 blocks */
    const double *weight;         /* [blocks] work of each block, in any unit, finite and not
                                     negative; not read for blocks that do not exist. NULL selects
                                     the number of cells. If all are 0, blocks count as equal */
    void *memory;                 /* scratch, aligned as malloc does it */
    int64_t bytes;                /* of `memory`: 12 per block, 32 per rank and 24 */
} dpar_blocks_assign_desc;

/* How well the blocks are distributed. */
typedef struct dpar_blocks_stats {
    double imbalance; /* weight of the heaviest rank / mean of all ranks; 1 is perfect */
    double heaviest;  /* weight of the heaviest rank, in the unit of `weight` */
    int64_t blocks;   /* number of blocks that exist */
    int64_t blocks_least, blocks_most; /* of a rank */
    int64_t cut;      /* cells that all ranks together send to other ranks in one exchange of a halo
                         1 wide, across faces of blocks and periodic ends. Folds, poles and corners
                         are not counted */
    int64_t cut_most; /* the same for the rank that sends the most */
    double neighbours;       /* ranks to which a rank sends, on average */
    int32_t neighbours_most; /* the same for the rank with the most neighbours */
    int32_t idle;            /* number of ranks without blocks */
} dpar_blocks_stats;

/* Decides which rank owns which block.
 *
 * owner: [blocks], receives the owner of each block, or -1 if the block does not exist.
 * stats: receives how well they are distributed; may be NULL, which saves the time to count.
 *
 * No contiguous cuts of the order give a lighter heaviest rank. Among the best cuts, those nearest
 * to equal weights are used. No rank is idle if there are at least as many blocks as ranks.
 *
 * Weights are rounded to multiples of a unit. Whole numbers are exact up to 2^28 for any number of
 * blocks, and up to 2^49 for 1000 blocks. The unit is 1 / 2^k of the largest power of 2 that is not
 * above the largest weight; k is at most 52, and the number of blocks times 2^k at most 2^59.
 *
 * Local. Costs O(blocks x log(largest weight in steps)) at most: 1 to 5 seconds for 10^7 blocks.
 * Fails with DPAR_E_ARG if a field is out of range, or a weight is negative or not finite,
 * DPAR_E_RANGE for too many cells or blocks, and DPAR_E_ROOM if `memory` is too small. */
DPAR_API dpar_status dpar_blocks_assign(const dpar_blocks_assign_desc *desc, int32_t *owner,
                                        dpar_blocks_stats *stats, dpar_why *why);

/* Computes how well given owners distribute the blocks. `order` is not used.
 *
 * owner: [blocks], a rank for each block that exists; not read for the others.
 *
 * Local. Costs O(blocks). Fails as dpar_blocks_assign does, and with DPAR_E_ARG if an owner is not
 * a rank. */
DPAR_API dpar_status dpar_blocks_measure(const dpar_blocks_assign_desc *desc, const int32_t *owner,
                                         dpar_blocks_stats *stats, dpar_why *why);

/* What dpar_blocks_rebalance weighs against each other. Zero it, then set the fields that you need.
 */
typedef struct dpar_blocks_rebalance_desc {
    const dpar_blocks_assign_desc *blocks; /* the grid, with new weights */
    const int32_t *owner;      /* [blocks] present owners, as dpar_blocks_assign writes them */
    int64_t steps;             /* number of steps until the next decision; at least 1, but 0 is
                                  allowed if moving costs nothing */
    int64_t block_bytes;       /* bytes of a block in all arrays together */
    double seconds_per_byte;   /* for the bytes that a rank sends and receives */
    double seconds;            /* fixed cost of a move, such as the time to plan */
    double seconds_per_weight; /* of a step; 0 selects 1, for weights that are seconds per step */
    double threshold;          /* share of a step's time that must be gained, such as 0.05; 0 if any
                                  gain is worth it */
} dpar_blocks_rebalance_desc;

/* The decision of dpar_blocks_rebalance. */
typedef struct dpar_blocks_rebalance_result {
    int32_t pays;                    /* 1 if blocks should move, otherwise 0 */
    double gain;                     /* seconds that the best new owners save in `steps` steps */
    double cost;                     /* seconds that the move to them takes */
    int64_t blocks_moved;            /* blocks that change their owner; 0 if it does not pay */
    int64_t bytes_moved;             /* bytes that they have */
    int64_t bytes_most;              /* bytes that the busiest rank sends and receives */
    dpar_blocks_stats before, after; /* both with the new weights; equal if it does not pay */
} dpar_blocks_rebalance_result;

/* Decides whether blocks should move to other ranks, and which.
 *
 * owner:  [blocks], receives the new owners, which are the present ones if nothing should move. May
 *         be desc->owner.
 * result: receives the decision.
 *
 * A step takes as long as the heaviest rank. The cuts of dpar_blocks_assign's order are moved as
 * little as balance allows. It tries cuts whose heaviest rank exceeds the least possible weight by
 * at most 0, 1/64, 1/32, 1/16, 1/8 and 1/4, and takes the one that saves the most time after the
 * cost of moving. Nothing moves if the cost is not less than the gain, or if the threshold is not
 * reached. If the present owners are not contiguous in this order, the new ones are those of
 * dpar_blocks_assign.
 *
 * Local. Costs up to seven times as much as dpar_blocks_assign with stats. Gain and cost are
 * doubles: ranks that must agree should let one of them decide. Fails as dpar_blocks_measure does,
 * and with DPAR_E_ARG if a time, `steps`, `block_bytes` or `threshold` is out of range. */
DPAR_API dpar_status dpar_blocks_rebalance(const dpar_blocks_rebalance_desc *desc, int32_t *owner,
                                           dpar_blocks_rebalance_result *result, dpar_why *why);

/* ==== blocks/blocks_draw.h ==== */

/* blocks_draw - draws which rank owns which block (blocks_owner.h), as text or as SVG.
 *
 *     dpar_blocks_draw_desc picture = {0};
 *     picture.blocks = &desc;
 *     picture.owner = owner;
 *     picture.stats = &stats;
 *     dpar_text_init(&text, page, sizeof page);
 *     dpar_blocks_draw(&text, &picture, DPAR_BLOCKS_DRAW_TEXT, &why); */

/* A picture of owners. Zero it, then set the fields that you need. */
typedef struct dpar_blocks_draw_desc {
    const dpar_blocks_assign_desc *blocks; /* the grid; weights and memory are not used */
    const int32_t *owner;           /* [blocks] a rank, or a negative number for blocks without an
                                       owner */
    const dpar_blocks_stats *stats; /* of these owners, printed above them; NULL if not wanted */
    const int32_t *before;          /* [blocks] owners before blocks moved, drawn above the others;
                                       NULL if there are none */
    const dpar_blocks_stats *stats_before;
    const char *title;            /* printable ASCII; NULL if there is none */
    int32_t upward;               /* 1 draws row 0 at the bottom, as on maps; 0 at the top */
    int64_t layer[DPAR_MAX_DIMS]; /* block along each dim that is not drawn */
} dpar_blocks_draw_desc;

/* The formats of a picture. Both show the last two dims that have more than one block, and name the
 * layer that they show if there are blocks along other dims. */
enum {
    /* 7-bit ASCII: one character per block, A-Z, a-z and 0-9 for ranks 0 to 61, and the same again
     * for the ranks above. '.' is a block without an owner. */
    DPAR_BLOCKS_DRAW_TEXT,
    /* SVG: a colour per rank, grey for blocks without an owner, and a tooltip with the rank. Valid
     * XML without scripts and without fonts other than sans-serif. */
    DPAR_BLOCKS_DRAW_SVG
};

/* Draws owners and appends the picture to a text. Local; costs O(blocks that are drawn). Fails with
 * DPAR_E_ARG and appends nothing if a pointer is NULL, a field is out of range, or there is no such
 * format; fails with DPAR_E_RANGE for too many cells or blocks. */
DPAR_API dpar_status dpar_blocks_draw(dpar_text *text, const dpar_blocks_draw_desc *desc,
                                      int32_t format, dpar_why *why);

/* ==== blocks/blocks.h ==== */

/* blocks - a grid that is cut into many small blocks, of which each rank owns any number. Ocean and
 * ice codes leave out blocks that are only land, and block-structured codes balance their load by
 * giving blocks to other ranks.
 *
 *     dpar_blocks_desc desc = {0};
 *     desc.dims = 2;
 *     desc.cells[0] = 720;
 *     desc.cells[1] = 1440;
 *     desc.block[0] = 36;
 *     desc.block[1] = 36;
 *     desc.halo = 1;
 *     desc.periodic[1] = 1;
 *     desc.exists = ocean;                                   [20 * 40], 0 where all is land
 *     dpar_blocks_make(comm, &desc, &blocks, &why);
 *     dpar_blocks_array_make(blocks, DPAR_F64, NULL, &u, &why);
 *     ...
 *     dpar_blocks_exchange(blocks, u);
 *     for (i = 0; i < blocks->count; i++) {                  may be a parallel loop of OpenMP
 *         step((double *)u->block[i], blocks->block[i].count, u->stride);
 *     }
 *
 * Blocks are numbered in C order, the last dim fastest. All blocks of an array have the same shape
 * in memory, that of a whole block with its halo. Blocks at the ends of the grid may have fewer
 * cells. u->block[i] is the address of the first own cell of this rank's block i, so that
 * halo cells have lower addresses too, and u->stride has the steps between neighbours.
 *
 * An exchange copies between blocks of the same rank directly. Ranks of a node read each other's
 * arrays in place where rows are long, and packed rows otherwise. Between nodes, each rank sends
 * one message to each neighbour rank, for all blocks and arrays. Halo cells get what they would get
 * if each block had a rank to itself. That is the value of their owner inside the grid, around
 * periodic dims, over folds, poles and the edges of a cubed sphere. Halo cells keep their values
 * beyond other ends of the grid, and where a block does not exist.
 *
 * Blocks may be computed by several threads at once, also while an exchange is in progress. The
 * functions of this file are called by one thread at a time, as all collective calls. */

/* A grid of blocks. Zero it, then set dims, cells, block, halo and what you need. All ranks must
 * pass the same values, otherwise all get DPAR_E_MISMATCH. The arrays are copied. */
typedef struct dpar_blocks_desc {
    int32_t dims;                 /* 1 to DPAR_MAX_DIMS; the last dim is contiguous in memory */
    int32_t star;                 /* 0 exchanges with all neighbours of a block, 1 only with those
                                     across a face, so that edges and corners are left out */
    int64_t cells[DPAR_MAX_DIMS]; /* cells of the whole grid in each dim, at least 1 */
    int64_t block[DPAR_MAX_DIMS]; /* cells of a block in each dim. The last block of a dim has what
                                     is left. 0 does not cut the dim */
    int64_t halo; /* width of the halo on both sides of all dims, in cells; may exceed a block */
    /* Width of the halo below and above the block in each dim. 0 selects `halo`. For a halo on some
     * sides only, set `halo` to 0. */
    int64_t halo_low[DPAR_MAX_DIMS];
    int64_t halo_high[DPAR_MAX_DIMS];
    int32_t periodic[DPAR_MAX_DIMS]; /* 1 makes the dim periodic */
    /* Folds, poles and cubed spheres as in dpar_halo of dpar.h, which describes them. `fold` is the
     * dim that ends at the fold or the poles. `mirror` is the periodic dim along the fold or around
     * the poles. Fields set on_row, shift and pole_rows. */
    int32_t folds; /* 1 if the grid folds at the end of dim `fold` */
    int32_t fold, mirror;
    uint32_t poles; /* DPAR_HALO_POLE_LOW, DPAR_HALO_POLE_HIGH or both */
    int32_t cube;   /* 1 if the grid is a cubed sphere: dim 0 has 6 faces of one block each or more,
                       and the last two dims are y and x */
    int32_t
        order; /* of blocks, of which ranks get contiguous pieces: DPAR_BLOCKS_HILBERT (0), ... */
    const uint8_t *exists; /* [blocks] 0 for blocks that do not exist, such as land; NULL if
                              all exist */
    const double *weight;  /* [blocks] work of each block in any unit, not negative. NULL
                              selects its number of cells */
    const int32_t *owner;  /* [blocks] the rank of each block, or -1 if it does not exist.
                              NULL lets dpar choose by weight and order */
} dpar_blocks_desc;

/* A block that this rank owns. */
typedef struct dpar_block {
    int32_t number;               /* in the grid of blocks, in C order */
    int64_t first[DPAR_MAX_DIMS]; /* index of its first cell in the whole grid */
    int64_t count[DPAR_MAX_DIMS]; /* number of its cells */
} dpar_block;

/* A grid of blocks, made by dpar_blocks_make. All fields are read-only. */
typedef struct dpar_blocks {
    dpar_comm *comm;
    int32_t dims;
    int32_t total;                /* blocks of the whole grid, also those that do not exist */
    int32_t count;                /* blocks that this rank owns; may be 0 */
    int32_t grid[DPAR_MAX_DIMS];  /* number of blocks along each dim */
    int64_t cells[DPAR_MAX_DIMS]; /* cells of the whole grid */
    int64_t size[DPAR_MAX_DIMS];  /* cells of a whole block */
    const dpar_block *block;      /* [count] in ascending order of their numbers */
    const int32_t *owner;         /* [total] rank of each block; -1 if it does not exist */
} dpar_blocks;

/* The points, components and memory of an array. Zero it, then set the fields that you need. All
 * ranks must pass the same values, except for strides. */
typedef struct dpar_blocks_field {
    int32_t components; /* elements at each point, 1 to 2^20; 0 selects 1 */
    int32_t planes;     /* 0 stores the components of a point next to each other. 1 stores each
                           component of a block as an array of its own, one after the other */
    int32_t order;      /* DPAR_ORDER_LAST_FASTEST (0) is C order; with DPAR_ORDER_FIRST_FASTEST
                           dim 0 is contiguous, as in Fortran */
    /* DPAR_HALO_AT_CELLS or DPAR_HALO_AT_LOW_FACES in each dim. A block with `count` cells has
     * count + 1 faces and the halo outside of these. The face between two blocks belongs to the
     * block above it, from which the block below receives it. Edges and corners are then always
     * exchanged. */
    int32_t location[DPAR_MAX_DIMS];
    /* 0 for scalars. 1 if each component changes its sign across a fold or a pole. 2 for two
     * components on a cubed sphere, u along the last dim and v along the one before it. */
    int32_t vector;
    int32_t on_row, shift; /* where the points are at the fold, as in dpar_halo */
    uint32_t pole_rows;    /* poles whose end row is on the pole, as in dpar_halo */
    /* Only for dpar_blocks_attach: elements between neighbours in each dim, and between components
     * (0 selects 1). If all are 0, blocks are dense with their halo, as those of
     * dpar_blocks_array_make. */
    int64_t stride[DPAR_MAX_DIMS];
    int64_t component_stride;
} dpar_blocks_field;

/* An array on all blocks. All fields are read-only. A change of owners moves the blocks, so read
 * the addresses again after dpar_blocks_move. */
typedef struct dpar_blocks_array {
    dpar_blocks *blocks;
    int32_t type, components;
    int64_t stride[DPAR_MAX_DIMS]; /* elements between neighbours */
    int64_t component_stride;      /* elements between components */
    void **block; /* [blocks->count] address of the first own point of each block */
} dpar_blocks_array;

/* ---- blocks and arrays ---- */

/* Cuts a grid into blocks and gives them to the ranks of comm.
 *
 * Collective. All errors are returned on all ranks. Fails with DPAR_E_ARG if a field has a wrong
 * value, or if comm has a device's memory. Fails with DPAR_E_RANGE if there are more than 2^31 - 2
 * blocks or 2^59 cells, and with DPAR_E_MISMATCH if ranks pass different descriptors. Costs a small
 * all-reduce, and O(blocks) time and 13 bytes of memory for each block on every rank. Ranks without
 * blocks make the same calls as all others. */
DPAR_API dpar_status dpar_blocks_make(dpar_comm *comm, const dpar_blocks_desc *desc,
                                      dpar_blocks **blocks, dpar_why *why);
/* Destroys blocks with their plans and arrays, also the handles of attached arrays. NULL does
 * nothing. Call it before the communicator is closed.
 *
 * Collective. Fails with DPAR_E_ARG, and does nothing, if an exchange has not ended. Otherwise all
 * is released, and a failure is that of the communicator. Costs one barrier per plan. */
DPAR_API dpar_status dpar_blocks_free(dpar_blocks *blocks);
/* Allocates a zeroed array on all blocks, with halos, in registered memory: the blocks of a rank
 * are in one allocation. Such arrays are exchanged fastest, because ranks of a node read them in
 * place.
 *
 * field: NULL for cells with one component.
 *
 * Collective. All errors are returned on all ranks: DPAR_E_ARG, DPAR_E_RANGE if a rank's array
 * exceeds 2^56 bytes, DPAR_E_MISMATCH, DPAR_E_MEMORY. Costs some small all-reduces. */
DPAR_API dpar_status dpar_blocks_array_make(dpar_blocks *blocks, int32_t type,
                                            const dpar_blocks_field *field,
                                            dpar_blocks_array **array, dpar_why *why);
/* Makes a handle for an array of your own, whose blocks are anywhere in memory.
 *
 * block: [count] addresses of the first own point of each block of this rank, aligned to the type;
 *        copied. Blocks must stay there as long as they are exchanged. NULL if this rank has none.
 *
 * Such arrays are packed even for ranks of the same node, so that each value is copied twice.
 * Points beyond open ends of the grid need no memory. Everything else is as for
 * dpar_blocks_array_make; DPAR_E_ARG also if an address is NULL. Strides are not checked. */
DPAR_API dpar_status dpar_blocks_attach(dpar_blocks *blocks, void *const *block, int32_t type,
                                        const dpar_blocks_field *field, dpar_blocks_array **array,
                                        dpar_why *why);
/* Releases an array, or the handle of an attached one. NULL does nothing. Local. Fails with
 * DPAR_E_ARG, and does nothing, if an exchange of it has not ended. */
DPAR_API dpar_status dpar_blocks_array_free(dpar_blocks_array *array);

/* ---- exchanges ----
 *
 * These functions are collective unless they say local: all ranks must pass the same arrays in the
 * same order. The first exchange of a combination of shapes plans it and allocates memory; later
 * exchanges do neither. A shape is what dpar_blocks_array_make and dpar_blocks_attach are passed,
 * so that arrays of the same shape may be swapped. A plan takes about 600 bytes for each neighbour
 * of each block and each array.
 *
 * They fail with DPAR_E_ARG if an array is NULL, is of other blocks or is twice in the list, or if
 * an exchange of it has not ended. Only the rank that makes such a call gets this error, and its
 * peers wait for it until the deadline. If all ranks plan an exchange, it also fails on all of them
 * with DPAR_E_MEMORY, or with DPAR_E_MISMATCH if they pass arrays of different shapes.
 * All fail with DPAR_E_PEER, DPAR_E_TIMEOUT and DPAR_E_MISMATCH as comm.h describes, which break
 * the communicator. The message is in blocks->comm->why. */

/* Exchanges the halos of all blocks of an array. */
DPAR_API dpar_status dpar_blocks_exchange(dpar_blocks *blocks, dpar_blocks_array *array);
/* Exchanges the halos of several arrays, with one message per neighbour rank. arrays: [count], 1 to
 * 4096 of them, of any types and shapes. */
DPAR_API dpar_status dpar_blocks_exchange_many(dpar_blocks *blocks,
                                               dpar_blocks_array *const *arrays, int32_t count);
/* Starts an exchange of several arrays. Until dpar_blocks_end, own cells may be read but not
 * written, and halo cells must be neither read nor written. Several exchanges may be in progress.
 */
DPAR_API dpar_status dpar_blocks_begin(dpar_blocks *blocks, dpar_blocks_array *const *arrays,
                                       int32_t count);
/* Advances the exchange in which `array` takes part without waiting. Returns DPAR_OK if everything
 * has arrived (dpar_blocks_end must still be called), otherwise DPAR_MORE. Local. */
DPAR_API dpar_status dpar_blocks_test(dpar_blocks *blocks, dpar_blocks_array *array);
/* Waits until the exchange in which `array` takes part is complete. Returns DPAR_OK if there is
 * none. All ranks must end several exchanges in the same order. */
DPAR_API dpar_status dpar_blocks_end(dpar_blocks *blocks, dpar_blocks_array *array);
/* Combines the values of halo cells with those of the owners of these cells, which is the adjoint
 * of an exchange if op is DPAR_SUM. Each halo cell that an exchange fills is then 0, as are the
 * copies of faces that belong to another block, and the half row that a fold overwrites.
 *
 * arrays: [count], as for dpar_blocks_exchange_many; of types that can be reduced.
 * op:     DPAR_SUM, DPAR_MIN or DPAR_MAX.
 *
 * Values are combined in an order that depends only on the grid of blocks: the owner's value first,
 * then those of other blocks in the order of dpar_halo_next. The result therefore has the same bits
 * for any number of ranks and any owners. Fails also with DPAR_E_ARG for another op or type. */
DPAR_API dpar_status dpar_blocks_reduce(dpar_blocks *blocks, dpar_blocks_array *const *arrays,
                                        int32_t count, int32_t op);

/* ---- moving blocks ---- */

/* New owners, or what decides about them. Zero it, then set owner, or weight and steps. All ranks
 * must pass the same values, except for weight. */
typedef struct dpar_blocks_move_desc {
    const double *weight; /* [blocks->count] work of each block of this rank, such as the measured
                             seconds per step, finite and not negative */
    int64_t steps;        /* until the next decision, as in dpar_blocks_rebalance_desc */
    double seconds_per_byte, seconds, seconds_per_weight, threshold; /* as there */
    const int32_t *owner; /* [blocks->total] the new owner of each block that exists, which are then
                             used even if it does not pay. NULL lets dpar decide */
} dpar_blocks_move_desc;

/* Gives blocks to other ranks, with all arrays of dpar_blocks_array_make and their halos. Nothing
 * moves if that does not pay, by the rules of dpar_blocks_rebalance.
 *
 * result: receives the decision and the imbalance before and after; may be NULL. If
 *         owner is set and weight is NULL, the weight of a block is its number of cells.
 *
 * Afterwards blocks->count, blocks->block, blocks->owner and the addresses in arrays are new;
 * handles of arrays stay valid. Rank 0 decides, so that all ranks agree.
 *
 * Collective. Errors are returned on all ranks, and nothing has then moved. Fails with DPAR_E_ARG
 * if an exchange has not ended, a value is out of range, or an array is attached; free its handle
 * before, and attach it again. Fails with DPAR_E_MISMATCH if ranks pass different values, and with
 * DPAR_E_MEMORY. If blocks move, costs one message per block and array, memory for the new arrays
 * next to the old ones, and the plans, which the next exchanges make again. */
DPAR_API dpar_status dpar_blocks_move(dpar_blocks *blocks, const dpar_blocks_move_desc *desc,
                                      dpar_blocks_rebalance_result *result, dpar_why *why);

/* ---- the whole array ---- */

/* Gathers the own points of all blocks in `whole` on rank 0. Points of blocks that do not exist
 * keep their values.
 *
 * whole: [points of the whole array][components], dense in C order; ignored on other ranks.
 *
 * Collective. Errors are returned on all ranks: DPAR_E_ARG, DPAR_E_MEMORY, and those of dpar_send.
 * Costs one message per rank, and memory for the own points of the rank that has the most. */
DPAR_API dpar_status dpar_blocks_gather(dpar_blocks *blocks, dpar_blocks_array *array, void *whole);
/* Scatters `whole` from rank 0 to the own points of all blocks. Everything else is as for
 * dpar_blocks_gather. */
DPAR_API dpar_status dpar_blocks_scatter(dpar_blocks *blocks, dpar_blocks_array *array,
                                         const void *whole);

#endif /* DPAR_BLOCKS_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_BLOCKS_IMPLEMENTATION)) && \
    !defined(DPAR_BLOCKS_IMPLEMENTATION_DONE)
#define DPAR_BLOCKS_IMPLEMENTATION_DONE

/* ==== blocks/blocks_curve.h ==== */

/* blocks_curve - private: counts the blocks of a grid and puts them in an order. */

/* Checks the sizes of a grid and of its blocks. Computes the number of
 * blocks along each dim and in all. Fails with DPAR_E_ARG or DPAR_E_RANGE. */
DPARI_INTERNAL dpar_status dpari_blocks_parts(const dpar_blocks_assign_desc *desc, int32_t *parts,
                                              int32_t *blocks, dpar_why *why);

/* Lists the blocks of a grid in one of the orders DPAR_BLOCKS_HILBERT to DPAR_BLOCKS_SNAKE.
 *
 * parts:  [dims] number of blocks along each dim; the product is at most 2^31 - 1.
 * exists: [blocks], or NULL; blocks that do not exist are left out.
 * list:   [blocks], receives the numbers of the blocks, the last dim fastest.
 *
 * Returns the number of blocks that exist. Costs O(blocks). */
DPARI_INTERNAL int32_t dpari_blocks_curve(int32_t order, int32_t dims, const int32_t *parts,
                                          const unsigned char *exists, int32_t *list);

/* ==== blocks/blocks_object.h ==== */

/* blocks_object - the data of blocks, their arrays and their plans. Private.
 *
 * The geometry of an exchange is that of ../index/halo.h: each block is a rank of a dpar_halo,
 * whose mesh is the grid of blocks. Its lists of transfers say which box each block gets from which
 * other block. The owners of the two blocks decide how the box travels.
 *
 * A plan exchanges arrays of certain shapes, forward or with one operation of the adjoint. An item
 * of a plan is a box that this rank takes for one of its blocks, or packs for a peer. */

/* What arrays have in common if the same plan can exchange them. */
typedef struct dpari_blocks_shape {
    struct dpari_blocks_shape *next;
    dpar_blocks_field field; /* components, strides and component_stride are set */
    int32_t number;          /* counted from 0, the same on all ranks */
    int32_t type;
    int32_t attached; /* 1 if the user has made the blocks */
    int32_t strided;  /* 1 if the user has set strides */
    int64_t bytes;    /* of a block with its halo, a multiple of 64; not if attached */
    int64_t origin;   /* bytes from its beginning to its first own point */
    dpar_halo halo;   /* of the grid whose ranks are blocks */
} dpari_blocks_shape;

typedef struct dpari_blocks_plan dpari_blocks_plan;

typedef struct dpari_blocks_array {
    dpar_blocks_array head; /* the public struct; it must be first */
    struct dpari_blocks_array *next;
    const dpari_blocks_shape *shape;
    unsigned char *memory;      /* of all blocks; NULL if attached */
    unsigned char *next_memory; /* the same two while blocks move */
    void **next_block;
    dpari_blocks_plan *plan; /* that exchanges it at present; NULL if none does */
    int64_t stamp;           /* number of the last call that has checked it */
} dpari_blocks_array;

/* A box that is copied or combined. Addresses are in bytes. */
typedef struct dpari_blocks_item {
    int32_t array;    /* index among the arrays of the exchange */
    int32_t slot;     /* which of this rank's blocks has the box */
    int32_t other;    /* taken from this rank itself: the block that it is taken from */
    int32_t peer;     /* index of the peer; -1 for this rank itself */
    int32_t direct;   /* 1 if a peer reads the box in the array, 0 if it is packed */
    int64_t mine_at;  /* from the first own point of the block */
    int64_t other_at; /* from the first own point of the other block; or from the beginning of the
                         peer's array; or from that of the packed values */
    dpari_stride move;
} dpari_blocks_item;

/* What this rank and a peer exchange in a plan. */
typedef struct dpari_blocks_pair {
    int64_t give, gives; /* first of the items that this rank packs for it, and their number */
    int64_t take, takes; /* first of the items that this rank takes from it, and their number */
    int64_t out_at;      /* where the packed values for it begin in a turn of plan->out */
    int64_t in_at;       /* where its message arrives in plan->in */
    int32_t reads;       /* 1 if this rank reads its arrays in place */
    const unsigned char *packed; /* shares memory: its packed values for this rank, first turn */
    int64_t turn;                /* shares memory: bytes from there to the second turn */
    const uint64_t *table;       /* shares memory: [2][arrays] references to its arrays */
    const unsigned char **base;  /* [arrays] its arrays, in the exchange in progress */
} dpari_blocks_pair;

struct dpari_blocks_plan {
    dpari_blocks_plan *next;
    dpari_exchange x;
    int32_t number;
    int32_t arrays;
    int32_t op;                       /* DPAR_COPY if it is forward */
    int32_t in_use;                   /* 1 from begin to end */
    int32_t wide;                     /* dpari_cpu_wide, which takes 50 us on a virtual machine */
    const dpari_blocks_shape **shape; /* [arrays] */
    dpari_blocks_array **array;       /* [arrays] those of the exchange in progress */
    dpari_blocks_pair *pair;          /* [peers] */
    dpari_blocks_item *item;
    int64_t items;
    int64_t own, owns;     /* first of the items that this rank takes from itself; their number */
    int64_t takes;         /* an adjoint takes items 0 .. takes - 1 in this order */
    int64_t clear, clears; /* of the adjoint: items of boxes that peers have read in place */
    uint64_t *table;       /* [2][arrays] references to this rank's arrays; peers read it */
    unsigned char *out;    /* [2][turn] packed values */
    unsigned char *in;     /* messages */
    int64_t turn, in_bytes;
    int64_t *records; /* what peers send each other while the plan is made */
    void *tables;     /* the memory of all this but this struct, `out`, `in` and the line */
};

typedef struct dpari_blocks {
    dpar_blocks head; /* the public struct; it must be first */
    int64_t low[DPAR_MAX_DIMS], high[DPAR_MAX_DIMS];
    int32_t *owner, *slot; /* [total] of each block: its rank, and its index among the rank's */
    dpar_block *block;     /* [count] */
    dpar_halo halo;        /* of cells */
    dpari_blocks_shape *shapes;
    dpari_blocks_array *arrays;
    dpari_blocks_plan *plans;
    int32_t shapes_known, plans_made, in_use; /* in_use: exchanges that have not ended */
    int32_t order;                            /* of desc */
    int64_t stamp;
} dpari_blocks;

/* Returns the object of a handle. */
DPARI_FN dpari_blocks *dpari_blocks_of(const dpar_blocks *blocks)
{
    return (dpari_blocks *)(uintptr_t)blocks;
}
DPARI_FN dpari_blocks_array *dpari_blocks_array_of(const dpar_blocks_array *array)
{
    return (dpari_blocks_array *)(uintptr_t)array;
}

/* ==== blocks/blocks_cut.h ==== */

/* blocks_cut - checks the description of blocks, cuts the grid and gives the blocks to ranks; and
 * the shapes of arrays. Private. */

/* Checks a description, and makes the object with its tables, but without owners. Local. */
DPARI_INTERNAL dpar_status dpari_blocks_cut(dpar_comm *comm, const dpar_blocks_desc *desc,
                                            dpari_blocks **made, dpar_why *why);
/* Describes the grid to blocks_owner.h, with the bytes that it needs but without memory, weights
 * and a mask. */
DPARI_INTERNAL void dpari_blocks_set_assign(const dpari_blocks *blocks,
                                            dpar_blocks_assign_desc *assign);
/* Decides who owns which block, and makes the list of this rank's blocks. Local. */
DPARI_INTERNAL dpar_status dpari_blocks_assign_owners(dpari_blocks *blocks,
                                                      const dpar_blocks_desc *desc, dpar_why *why);
/* Finds which slot each block has with its owner, and allocates the list of this rank's blocks. */
DPARI_INTERNAL dpar_status dpari_blocks_list_own(const dpari_blocks *blocks, const int32_t *owner,
                                                 int32_t *slot, dpar_block **own, int32_t *count,
                                                 dpar_why *why);
/* Computes first and count of a block. */
DPARI_INTERNAL void dpari_blocks_describe(const dpari_blocks *blocks, int32_t number,
                                          dpar_block *block);
/* Checks a field, and sets its shape. field: NULL for cells. Local. */
DPARI_INTERNAL dpar_status dpari_blocks_set_shape(const dpari_blocks *blocks, int32_t type,
                                                  const dpar_blocks_field *field, int32_t attached,
                                                  dpari_blocks_shape *shape, dpar_why *why);

/* ==== blocks/blocks_list.h ==== */

/* blocks_list - lists the boxes that this rank's blocks exchange with other blocks, and prepares
 * their copies. Private. */

/* A box that goes from one block to another. */
typedef struct dpari_blocks_box {
    int32_t rank;     /* the other rank, or this one */
    int32_t to, from; /* numbers of the block whose halo gets the box, and of the one it is from */
    int32_t array;    /* index of the shape */
    int32_t part;     /* component of a turned vector, or -1 for all components */
    int32_t takes;    /* 1 if this rank takes the box, 0 if it gives it */
    int32_t turn;     /* quarter turns of vectors */
    int32_t peer;     /* index of that rank among the peers; -1 if it is this one */
    int32_t direct;   /* 1 if the box is read in place, 0 if it is packed */
    int64_t packed;   /* bytes from the beginning of the packed values */
    int64_t place;    /* position in the list that was made */
    int64_t extent[DPARI_STRIDE_DIMS]; /* in the order of the dims of `from`, then components */
    int64_t to_at, from_at;            /* bytes from the first own points of the two blocks */
    int64_t to_step[DPARI_STRIDE_DIMS], from_step[DPARI_STRIDE_DIMS]; /* elements */
} dpari_blocks_box;

/* The boxes of a plan. */
typedef struct dpari_blocks_list {
    dpari_blocks_box *box;
    int64_t count;
    int64_t *sorted; /* [count] indices of boxes, by dpari_blocks_sort */
} dpari_blocks_list;

/* Lists all boxes of a plan, those that this rank takes in the order in which an adjoint combines
 * them. Sorts them by the other rank, and then in an order that both ranks find. Allocates
 * list->box, which dpari_object_release frees. Local. */
DPARI_INTERNAL dpar_status dpari_blocks_list_boxes(const dpari_blocks *blocks,
                                                   const dpari_blocks_plan *plan,
                                                   dpari_blocks_list *list, dpar_why *why);
/* Returns the bytes that are contiguous in the array from which a box is read. */
DPARI_INTERNAL int64_t dpari_blocks_run(const dpari_blocks_plan *plan, const dpari_blocks_box *box);
/* Prepares the copy of an item. packed: 1 if one side is packed values. shares: 1 if the other rank
 * shares memory. clears: 1 to only set the box of the item to 0. */
DPARI_INTERNAL void dpari_blocks_prepare(const dpari_blocks_plan *plan, const dpari_blocks_box *box,
                                         int32_t packed, int32_t shares, int32_t clears,
                                         dpari_blocks_item *item);

/* ==== blocks/blocks_run.h ==== */

/* blocks_run - packs and takes the boxes of an exchange of blocks, for ../exchange. Private. */

/* Sets the functions that ../exchange calls. */
DPARI_INTERNAL void dpari_blocks_set_functions(dpari_blocks_plan *plan);
/* Sets the boxes of halos to 0 that peers have read in place in an adjoint, after it has ended. */
DPARI_INTERNAL void dpari_blocks_clear(const dpari_blocks_plan *plan);

/* ==== blocks/blocks_plan.h ==== */

/* blocks_plan - makes and finds the plans of exchanges. Private. */

/* Finds a plan that exchanges arrays of these shapes and is not in use, or makes one. Collective if
 * it is made. op: DPAR_COPY for a forward exchange, otherwise that of the adjoint. */
DPARI_INTERNAL dpar_status dpari_blocks_find_plan(dpari_blocks *blocks,
                                                  dpar_blocks_array *const *arrays, int32_t count,
                                                  int32_t op, dpari_blocks_plan **plan);
/* Frees all plans. Collective. Returns the first error. */
DPARI_INTERNAL dpar_status dpari_blocks_free_plans(dpari_blocks *blocks);

/* ==== blocks/blocks_curve.c ==== */

/* Orders of the blocks of a grid: Hilbert's curve, Morton's order, and row by row.
 *
 * Hilbert's curve is generalised to boxes of any size and any number of dims, as J. Cerveny did for
 * 2 and 3 dims ("gilbert", 2018). A curve through a box enters at one corner and leaves at the
 * corner at the other end of the box's main dim. The box is divided along the main dim and a second
 * one, which is the longest of the others:
 *
 *     long box: two boxes one after the other          otherwise: up, along the main dim, down
 *
 *         +--------+--------+   second                    +---------------+
 *         |        |        |   dim                       |  ->   2   ->  |
 *         | 1  ->  | 2  ->  |    ^                        +-------+-------+
 *         |        |        |    |                        | 1  ^  | 3  v  |
 *         +--------+--------+    +--> main dim            +-------+-------+
 *
 * Box 1 of "up, along, down" has the second dim as its main dim, box 2 the main dim, and box 3 the
 * second dim again, backwards. For squares of 2^k blocks that is Hilbert's curve.
 *
 * A curve through all blocks, each next to the one before it, must take as many steps from corner
 * to corner as there are blocks less one. It follows that the main dim has an even size, or all
 * dims have odd sizes. Then the division ensures the same for the boxes, so that no step jumps. The
 * curve has one diagonal step if the main dim is odd because even ones have less than half its
 * size.
 */

enum { DPARI_CURVE_CELL_BITS = 59 }; /* at most 2^59 cells, so that the halos of all blocks fit */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_blocks_parts(const dpar_blocks_assign_desc *desc,
                                                         int32_t *parts, int32_t *blocks,
                                                         dpar_why *why)
{
    int64_t cells = 1, all = 1;
    int32_t d;
    if (desc == NULL || desc->dims < 1 || desc->dims > DPAR_MAX_DIMS) {
        return dpari_wrong(why, "dims is %d, but must be 1 to 6", desc != NULL ? desc->dims : 0);
    }
    for (d = 0; d < desc->dims; d++) {
        const int64_t size = desc->block[d] == 0 ? 1 : desc->block[d];
        int64_t count;
        if (desc->cells[d] < 1 || size < 0) {
            return dpari_wrong(why,
                               "dim %d: cells is %ld, but must be at least 1, or block is %ld,"
                               " but must not be negative",
                               d, desc->cells[d], desc->block[d]);
        }
        count = dpari_ceil_div(desc->cells[d], size);
        if (!dpari_mul(cells, desc->cells[d], &cells) ||
            cells > INT64_C(1) << DPARI_CURVE_CELL_BITS || !dpari_mul(all, count, &all) ||
            all > INT32_MAX) {
            return dpari_say(DPAR_E_RANGE, why,
                             "the grid has more than 2^59 cells or 2^31 - 1 blocks: dim %d has %ld "
                             "cells in blocks of %ld",
                             d, desc->cells[d], size);
        }
        parts[d] = (int32_t)count;
    }
    *blocks = (int32_t)all;
    return DPAR_OK;
}

/* A list of blocks that is being written. */
typedef struct dpari_curve {
    int32_t dims;
    const int32_t *parts;
    const unsigned char *exists;
    int32_t *list;
    int32_t count;
} dpari_curve;

/* A box of blocks that the curve passes through. */
typedef struct dpari_curve_box {
    int64_t at;                    /* number of the block in the corner where the curve enters */
    int64_t stride[DPAR_MAX_DIMS]; /* from a block to the next along each dim, away from there */
    int32_t size[DPAR_MAX_DIMS];   /* blocks along each dim, at least 1 */
} dpari_curve_box;

static void dpari_curve_visit(dpari_curve *walk, int64_t block)
{
    if (walk->exists == NULL || walk->exists[block] != 0) {
        walk->list[walk->count++] = (int32_t)block;
    }
}

/* Returns the longest dim other than `main`, or -1 if there is no other dim. */
static int32_t dpari_curve_second(const dpari_curve *walk, const dpari_curve_box *box, int32_t main)
{
    int32_t second = -1, d;
    for (d = 0; d < walk->dims; d++) {
        if (d != main && (second < 0 || box->size[d] > box->size[second])) {
            second = d;
        }
    }
    return second;
}

/* Returns the even one of n / 2 and n / 2 + 1, where n is more than 2. */
static int32_t dpari_curve_half(int32_t n)
{
    return n / 2 + n / 2 % 2;
}

/* Visits the blocks of a box. The recursion is about 2 x log2(blocks) deep. */
static void dpari_curve_hilbert(dpari_curve *walk, const dpari_curve_box *box, int32_t main)
{
    const int32_t second = dpari_curve_second(walk, box, main);
    const int64_t along = box->size[main], across = second < 0 ? 1 : box->size[second];
    dpari_curve_box part = *box;
    int32_t half, i;
    if (across == 1) {
        for (i = 0; i < along; i++) {
            dpari_curve_visit(walk, box->at + i * box->stride[main]);
        }
        return;
    }
    if (along == 1) { /* only in the box with the diagonal step */
        dpari_curve_hilbert(walk, box, second);
        return;
    }
    if (2 * along > 3 * across || (across == 2 && along > 2)) { /* long */
        half = dpari_curve_half(box->size[main]);
        part.size[main] = half;
        dpari_curve_hilbert(walk, &part, main);
        part.at += half * box->stride[main];
        part.size[main] = box->size[main] - half;
        dpari_curve_hilbert(walk, &part, main);
        return;
    }
    if (along == 2 && across == 2) { /* up and down are enough */
        part.size[main] = 1;
        dpari_curve_hilbert(walk, &part, second);
        part.at += box->stride[main] + box->stride[second];
        part.stride[second] = -box->stride[second];
        dpari_curve_hilbert(walk, &part, second);
        return;
    }
    half = dpari_curve_half(box->size[second]);
    part.size[main] = box->size[main] / 2;
    part.size[second] = half;
    dpari_curve_hilbert(walk, &part, second);
    part.at = box->at + half * box->stride[second];
    part.size[main] = box->size[main];
    part.size[second] = box->size[second] - half;
    dpari_curve_hilbert(walk, &part, main);
    part.at = box->at + (along - 1) * box->stride[main] + (half - 1) * box->stride[second];
    part.stride[main] = -box->stride[main];
    part.stride[second] = -box->stride[second];
    part.size[main] = box->size[main] - box->size[main] / 2;
    part.size[second] = half;
    dpari_curve_hilbert(walk, &part, second);
}

/* Returns the dim along which the whole curve runs: the longest one, or if that is odd, the longest
 * even one that has at least half of its size. */
static int32_t dpari_curve_main(int32_t dims, const int32_t *parts)
{
    int32_t longest = 0, even = -1, d;
    for (d = 0; d < dims; d++) {
        if (parts[d] > parts[longest]) {
            longest = d;
        }
        if (parts[d] % 2 == 0 && (even < 0 || parts[d] > parts[even])) {
            even = d;
        }
    }
    return even >= 0 && parts[even] >= parts[longest] / 2 ? even : longest;
}

/* Visits the blocks whose coordinates have the bits above `bit` that are set in `coord`. Bit `bit`
 * is bit number bit / dims of the coordinate along dim dims - 1 - bit % dims. */
static void dpari_curve_morton(dpari_curve *walk, int32_t *coord, int32_t bit)
{
    const int32_t d = walk->dims - 1 - bit % walk->dims;
    int64_t block = 0;
    int32_t i;
    if (bit < 0) {
        for (i = 0; i < walk->dims; i++) {
            block = block * walk->parts[i] + coord[i];
        }
        dpari_curve_visit(walk, block);
        return;
    }
    dpari_curve_morton(walk, coord, bit - 1);
    coord[d] |= INT32_C(1) << (bit / walk->dims);
    if (coord[d] < walk->parts[d]) {
        dpari_curve_morton(walk, coord, bit - 1);
    }
    coord[d] ^= INT32_C(1) << (bit / walk->dims);
}

/* Returns the number of the block at place `place` of the order DPAR_BLOCKS_SNAKE. A row is
 * backwards if an odd number of rows precedes it; the same holds for the rows in a plane, and so
 * on. */
static int64_t dpari_curve_snake(const dpari_curve *walk, int64_t place)
{
    int64_t stride = 1, block = 0;
    int32_t d;
    for (d = walk->dims - 1; d >= 0; d--) {
        const int32_t parts = walk->parts[d];
        const int64_t before = place / parts; /* rows, planes, ... that precede this one */
        const int64_t i = place % parts;
        block += (before % 2 != 0 ? parts - 1 - i : i) * stride;
        stride *= parts;
        place = before;
    }
    return block;
}

DPARI_INTERNAL int32_t dpari_blocks_curve(int32_t order, int32_t dims, const int32_t *parts,
                                          const unsigned char *exists, int32_t *list)
{
    dpari_curve walk;
    dpari_curve_box box;
    int32_t coord[DPAR_MAX_DIMS] = {0}, d;
    int64_t blocks = 1, i;
    walk.dims = dims;
    walk.parts = parts;
    walk.exists = exists;
    walk.list = list;
    walk.count = 0;
    for (d = dims - 1; d >= 0; d--) {
        box.stride[d] = blocks;
        box.size[d] = parts[d];
        blocks *= parts[d];
    }
    if (order == DPAR_BLOCKS_HILBERT) {
        box.at = 0;
        dpari_curve_hilbert(&walk, &box, dpari_curve_main(dims, parts));
        return walk.count;
    }
    if (order == DPAR_BLOCKS_MORTON) {
        int32_t bits = 0;
        for (d = 0; d < dims; d++) {
            while ((int64_t)1 << bits < parts[d]) {
                bits++;
            }
        }
        dpari_curve_morton(&walk, coord, bits * dims - 1);
        return walk.count;
    }
    for (i = 0; i < blocks; i++) {
        dpari_curve_visit(&walk, order == DPAR_BLOCKS_SNAKE ? dpari_curve_snake(&walk, i) : i);
    }
    return walk.count;
}

/* ==== blocks/blocks_owner.c ==== */

/* Distributes the blocks of a grid over ranks. It implements blocks_owner.h.
 *
 * The blocks are put in an order (blocks_curve.h, or bisection below), and their weights, as
 * integers, are summed along it. Whether each rank can have at most some weight is decided by
 * filling rank after rank. A binary search finds the least such weight, the bottleneck. The
 * position of each cut between two ranks is then free in a window: not so early that the rest would
 * be too heavy for the ranks behind it, and not so late that the rank before it would be too heavy.
 * In the window the cut is put nearest to where it should be: at an equal share of the weights, or
 * where it was before. */

enum {
    DPARI_BO_WEIGHT_BITS = 60,   /* the sum of all weights is at most 2^60, so that a few times the
                                    sum fits in an int64_t */
    DPARI_BO_MANTISSA_BITS = 52, /* of a double: finer steps would not be more accurate */
    DPARI_BO_SLACKS = 6          /* balances that dpar_blocks_rebalance compares */
};

/* A description that was checked, and the scratch memory. */
typedef struct dpari_bo {
    const dpar_blocks_assign_desc *desc;
    int32_t parts[DPAR_MAX_DIMS]; /* blocks along each dim */
    int32_t blocks;               /* their product */
    int32_t count;                /* blocks that exist */
    int32_t ranks;
    double unit;      /* the largest power of 2 that is not above the largest weight */
    double steps;     /* the unit in steps, a power of 2; 0 if blocks count as equal */
    int64_t *before;  /* [blocks + 1] weight before each place of the order, in steps */
    int64_t *load;    /* [ranks] */
    int64_t *sends;   /* [ranks] */
    int32_t *list;    /* [blocks] the blocks in the order */
    int32_t *room[4]; /* [ranks + 1] each */
} dpari_bo;

/* ---- the description ------------------------------------------------------------------------- */

/* True if x is a weight or a time. */
static int dpari_bo_is_amount(double x)
{
    return x >= 0 && dpari_finite(x);
}

/* Finds the largest weight and chooses the steps. */
static DPARI_COLD dpar_status dpari_bo_weights(dpari_bo *blocks, dpar_why *why)
{
    const dpar_blocks_assign_desc *desc = blocks->desc;
    int64_t all = 2 * (int64_t)blocks->blocks; /* upper bound of all weights, in steps */
    double largest = 0.0;
    int32_t i;
    if (desc->weight == NULL) {
        return DPAR_OK;
    }
    for (i = 0; i < blocks->blocks; i++) {
        if (desc->exists != NULL && desc->exists[i] == 0) {
            continue;
        }
        if (!dpari_bo_is_amount(desc->weight[i])) {
            return dpari_wrong(why, "block %d: its weight is negative or not finite", i);
        }
        largest = dpari_mostf(largest, desc->weight[i]);
    }
    if (!(largest > 0)) {
        return DPAR_OK;
    }
    blocks->unit = 1.0; /* a power of 2, so that whole weights are whole numbers of steps */
    while (blocks->unit <= largest / 2) {
        blocks->unit *= 2;
    }
    while (blocks->unit > largest) {
        blocks->unit /= 2;
    }
    blocks->steps = 1.0;
    for (i = 0; i < DPARI_BO_MANTISSA_BITS && all <= INT64_C(1) << (DPARI_BO_WEIGHT_BITS - 1);
         i++) {
        all *= 2;
        blocks->steps *= 2;
    }
    return DPAR_OK;
}

/* Checks a description and divides the scratch memory. */
static DPARI_COLD dpar_status dpari_bo_open(dpari_bo *blocks, const dpar_blocks_assign_desc *desc,
                                            dpar_why *why)
{
    int64_t bytes;
    int32_t i;
    dpar_status status;
    dpari_zero(blocks, sizeof *blocks);
    status = dpari_blocks_parts(desc, blocks->parts, &blocks->blocks, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (desc->ranks < 1 || desc->order < 0 || desc->order >= DPAR_BLOCKS_ORDER_COUNT ||
        desc->periodic >> desc->dims != 0) {
        return dpari_wrong(why,
                           "ranks %d is less than 1, order %d is none of DPAR_BLOCKS_HILBERT to "
                           "DPAR_BLOCKS_BISECTION, or periodic has a bit beyond the %d dims",
                           desc->ranks, desc->order, desc->dims);
    }
    blocks->desc = desc;
    blocks->ranks = desc->ranks;
    status = dpari_bo_weights(blocks, why);
    if (status != DPAR_OK) {
        return status;
    }
    bytes = 12 * (int64_t)blocks->blocks + 32 * (int64_t)desc->ranks + 24;
    if (desc->memory == NULL || desc->bytes < bytes) {
        dpari_needs_bytes(why, bytes);
        return dpari_say(DPAR_E_ROOM, why, "%d blocks on %d ranks need %ld bytes of memory",
                         blocks->blocks, desc->ranks, bytes);
    }
    blocks->before = (int64_t *)desc->memory;
    blocks->load = blocks->before + blocks->blocks + 1;
    blocks->sends = blocks->load + desc->ranks;
    blocks->list = (int32_t *)(void *)(blocks->sends + desc->ranks);
    for (i = 0; i < 4; i++) {
        blocks->room[i] = blocks->list + blocks->blocks + i * ((int64_t)desc->ranks + 1);
    }
    return DPAR_OK;
}

/* ---- single blocks --------------------------------------------------------------------------- */

/* Computes the coordinates of a block, and its cells along each dim. */
static void dpari_bo_block(const dpari_bo *blocks, int64_t block, int32_t *coord, int64_t *cells)
{
    const dpar_blocks_assign_desc *desc = blocks->desc;
    int32_t d;
    for (d = desc->dims - 1; d >= 0; d--) {
        const int64_t size = desc->block[d] == 0 ? 1 : desc->block[d];
        coord[d] = (int32_t)(block % blocks->parts[d]);
        block /= blocks->parts[d];
        cells[d] = dpari_least(size, desc->cells[d] - coord[d] * size);
    }
}

/* Returns the weight of a block in steps. */
static int64_t dpari_bo_weight(const dpari_bo *blocks, int32_t block)
{
    int64_t cells[DPAR_MAX_DIMS], all = 1;
    int32_t coord[DPAR_MAX_DIMS], d;
    if (blocks->desc->weight != NULL) {
        return blocks->steps > 0
                   ? (int64_t)(blocks->desc->weight[block] / blocks->unit * blocks->steps + 0.5)
                   : 1;
    }
    dpari_bo_block(blocks, block, coord, cells);
    for (d = 0; d < blocks->desc->dims; d++) {
        all *= cells[d];
    }
    return all;
}

/* Converts a weight from steps to the caller's unit. */
static double dpari_bo_unit(const dpari_bo *blocks, int64_t weight)
{
    if (blocks->desc->weight == NULL) {
        return (double)weight;
    }
    return blocks->steps > 0 ? (double)weight / blocks->steps * blocks->unit : 0.0;
}

/* Returns 1 if a block has an owner. */
static int dpari_bo_exists(const dpari_bo *blocks, int64_t block)
{
    return blocks->desc->exists == NULL || blocks->desc->exists[block] != 0;
}

/* ---- statistics ------------------------------------------------------------------------------ */

/* Groups the blocks by their owners: rank r has list[start[r] .. start[r + 1] - 1]. Sums the weight
 * of each rank. */
static dpar_status dpari_bo_group(const dpari_bo *blocks, const int32_t *owner, int32_t *start,
                                  dpar_why *why)
{
    int32_t i, r, sum = 0;
    dpari_zero(start, ((size_t)blocks->ranks + 1) * sizeof *start);
    dpari_zero(blocks->load, (size_t)blocks->ranks * sizeof *blocks->load);
    for (i = 0; i < blocks->blocks; i++) {
        if (!dpari_bo_exists(blocks, i)) {
            continue;
        }
        if (owner[i] < 0 || owner[i] >= blocks->ranks) {
            return dpari_wrong(why, "block %d: its owner is %d, but must be a rank from 0 to %d", i,
                               owner[i], blocks->ranks - 1);
        }
        start[owner[i]]++;
        blocks->load[owner[i]] += dpari_bo_weight(blocks, i);
    }
    for (r = 0; r <= blocks->ranks; r++) { /* start[r] becomes the end of r's blocks */
        sum += start[r];
        start[r] = sum;
    }
    for (i = blocks->blocks - 1; i >= 0; i--) {
        if (dpari_bo_exists(blocks, i)) {
            blocks->list[--start[owner[i]]] = i;
        }
    }
    return DPAR_OK;
}

/* Adds up what a block sends to other ranks, and counts ranks that were not seen yet. seen: [ranks]
 * the last rank whose neighbour each rank was found to be. */
static void dpari_bo_faces(const dpari_bo *blocks, const int32_t *owner, int32_t block,
                           int32_t *seen, int32_t *neighbours)
{
    int64_t cells[DPAR_MAX_DIMS], all = 1, stride = 1;
    int32_t coord[DPAR_MAX_DIMS], d, side;
    const int32_t rank = owner[block];
    dpari_bo_block(blocks, block, coord, cells);
    for (d = 0; d < blocks->desc->dims; d++) {
        all *= cells[d];
    }
    for (d = blocks->desc->dims - 1; d >= 0; d--) {
        const int32_t parts = blocks->parts[d];
        for (side = -1; side <= 1; side += 2) {
            int32_t to = coord[d] + side, other;
            int64_t next;
            if ((blocks->desc->periodic >> d & 1u) != 0) {
                to = (to + parts) % parts;
            }
            if (to < 0 || to >= parts) {
                continue;
            }
            next = block + ((int64_t)to - coord[d]) * stride;
            if (!dpari_bo_exists(blocks, next) || owner[next] == rank) {
                continue;
            }
            other = owner[next];
            blocks->sends[rank] += all / cells[d];
            *neighbours += seen[other] != rank;
            seen[other] = rank;
        }
        stride *= parts;
    }
}

/* Computes the statistics of owners. Uses all of the scratch memory but `before`. */
static DPARI_COLD dpar_status dpari_bo_measure(const dpari_bo *blocks, const int32_t *owner,
                                               dpar_blocks_stats *stats, dpar_why *why)
{
    int32_t *start = blocks->room[0], *seen = blocks->room[1], r, i;
    int64_t heaviest = 0, weight = 0, pairs = 0;
    dpar_blocks_stats found;
    const dpar_status status = dpari_bo_group(blocks, owner, start, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&found, sizeof found);
    found.blocks = start[blocks->ranks];
    found.blocks_least = found.blocks;
    for (r = 0; r < blocks->ranks; r++) {
        seen[r] = -1;
    }
    for (r = 0; r < blocks->ranks; r++) {
        const int32_t count = start[r + 1] - start[r];
        int32_t neighbours = 0;
        blocks->sends[r] = 0;
        for (i = start[r]; i < start[r + 1]; i++) {
            dpari_bo_faces(blocks, owner, blocks->list[i], seen, &neighbours);
        }
        weight += blocks->load[r];
        heaviest = dpari_most(heaviest, blocks->load[r]);
        found.blocks_least = dpari_least(found.blocks_least, count);
        found.blocks_most = dpari_most(found.blocks_most, count);
        found.idle += count == 0;
        found.cut += blocks->sends[r];
        found.cut_most = dpari_most(found.cut_most, blocks->sends[r]);
        found.neighbours_most = (int32_t)dpari_most(found.neighbours_most, neighbours);
        pairs += neighbours;
    }
    found.heaviest = dpari_bo_unit(blocks, heaviest);
    found.imbalance = weight > 0 ? (double)heaviest * blocks->ranks / (double)weight : 1.0;
    found.neighbours = (double)pairs / blocks->ranks;
    *stats = found;
    return DPAR_OK;
}

/* ---- bisection ------------------------------------------------------------------------------- */

/* Returns how many blocks precede the next one along a dim. */
static int64_t dpari_bo_stride(const dpari_bo *blocks, int32_t dim)
{
    int64_t stride = 1;
    int32_t d;
    for (d = dim + 1; d < blocks->desc->dims; d++) {
        stride *= blocks->parts[d];
    }
    return stride;
}

/* Finds the dim along which some blocks extend over the most cells. *low and *high receive the
 * least and the largest coordinate along it. */
static int32_t dpari_bo_longest(const dpari_bo *blocks, const int32_t *list, int32_t count,
                                int32_t *low, int32_t *high)
{
    int64_t most = -1;
    int32_t longest = 0, d, i;
    for (d = 0; d < blocks->desc->dims; d++) {
        const int64_t stride = dpari_bo_stride(blocks, d);
        int32_t first = INT32_MAX, last = 0;
        int64_t size;
        for (i = 0; i < count; i++) {
            const int32_t at = (int32_t)(list[i] / stride % blocks->parts[d]);
            first = (int32_t)dpari_least(first, at);
            last = (int32_t)dpari_most(last, at);
        }
        size = ((int64_t)last - first + 1) * dpari_most(blocks->desc->block[d], 1);
        if (size > most) {
            most = size;
            longest = d;
            *low = first;
            *high = last;
        }
    }
    return longest;
}

/* Sorts blocks by their coordinate along a dim, by counting. Blocks with the same coordinate keep
 * their order. Uses the memory of `before`. */
static void dpari_bo_sort(const dpari_bo *blocks, int32_t *list, int32_t count, int32_t dim,
                          int32_t low, int32_t high)
{
    int32_t *sorted = (int32_t *)(void *)blocks->before; /* [blocks], then [blocks + 1] counts */
    int32_t *start = sorted + blocks->blocks, i;
    const int64_t stride = dpari_bo_stride(blocks, dim);
    dpari_zero(start, ((size_t)(high - low) + 2) * sizeof *start);
    for (i = 0; i < count; i++) {
        start[list[i] / stride % blocks->parts[dim] - low + 1]++;
    }
    for (i = 0; i < high - low; i++) {
        start[i + 1] += start[i];
    }
    for (i = 0; i < count; i++) {
        sorted[start[list[i] / stride % blocks->parts[dim] - low]++] = list[i];
    }
    for (i = 0; i < count; i++) {
        list[i] = sorted[i];
    }
}

/* Returns 2 x k / ranks of a weight, rounded up. The product is below 2^63, because k < ranks <
 * 2^31. */
static int64_t dpari_bo_twice(int64_t weight, int32_t k, int32_t ranks)
{
    return 2 * (weight / ranks) * k + dpari_ceil_div(2 * (weight % ranks) * k, ranks);
}

/* Orders blocks for some ranks: the first half of the ranks gets the blocks at the lower end of the
 * longest side, and so on in each half. The recursion is log2(ranks) deep. */
static void dpari_bo_bisect(const dpari_bo *blocks, int32_t *list, int32_t count, int32_t ranks)
{
    const int32_t half = ranks / 2;
    int64_t weight = 0, sum = 0, wanted;
    int32_t low = 0, high = 0, dim, i;
    if (count < 2 || ranks < 2) {
        return;
    }
    dim = dpari_bo_longest(blocks, list, count, &low, &high);
    dpari_bo_sort(blocks, list, count, dim, low, high);
    for (i = 0; i < count; i++) {
        weight += dpari_bo_weight(blocks, list[i]);
    }
    wanted = dpari_bo_twice(weight, half, ranks);
    for (i = 0; i < count; i++) { /* up to the block whose middle is at the wanted weight */
        const int64_t next = dpari_bo_weight(blocks, list[i]);
        if (2 * sum + next >= wanted) {
            break;
        }
        sum += next;
    }
    dpari_bo_bisect(blocks, list, i, half);
    dpari_bo_bisect(blocks, list + i, count - i, ranks - half);
}

/* ---- cuts ------------------------------------------------------------------------------------ */

/* Puts the blocks in order and sums their weights. */
static void dpari_bo_line_up(dpari_bo *blocks)
{
    const int32_t bisects = blocks->desc->order == DPAR_BLOCKS_BISECTION;
    int32_t i;
    blocks->count =
        dpari_blocks_curve(bisects ? DPAR_BLOCKS_ROWS : blocks->desc->order, blocks->desc->dims,
                           blocks->parts, blocks->desc->exists, blocks->list);
    if (bisects) {
        dpari_bo_bisect(blocks, blocks->list, blocks->count, blocks->ranks);
    }
    blocks->before[0] = 0;
    for (i = 0; i < blocks->count; i++) {
        blocks->before[i + 1] = blocks->before[i] + dpari_bo_weight(blocks, blocks->list[i]);
    }
}

/* Returns the last place up to which the blocks from `from` on weigh at most `most`. Searches
 * nearby first, so that filling all ranks costs O(ranks x log(blocks / ranks)). */
static int32_t dpari_bo_reach(const dpari_bo *blocks, int32_t from, int64_t most)
{
    const int64_t limit = blocks->before[from] + most;
    int64_t low = from, high, step = 1; /* before[low] <= limit < before[high] */
    while (low + step <= blocks->count && blocks->before[low + step] <= limit) {
        low += step;
        step *= 2;
    }
    high = dpari_least(low + step, (int64_t)blocks->count + 1);
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (blocks->before[middle] <= limit) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return (int32_t)low;
}

/* Returns the least weight that the heaviest rank can have. */
static int64_t dpari_bo_bottleneck(const dpari_bo *blocks)
{
    const int64_t all = blocks->before[blocks->count];
    int64_t low = dpari_ceil_div(all, blocks->ranks), high, heaviest = 0;
    int32_t i, rank;
    for (i = 0; i < blocks->count; i++) {
        heaviest = dpari_most(heaviest, blocks->before[i + 1] - blocks->before[i]);
    }
    high = low + heaviest; /* filling up to this weight gives each rank the mean or more */
    low = dpari_most(low, heaviest);
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        int32_t at = 0;
        for (rank = 0; rank < blocks->ranks && at < blocks->count; rank++) {
            at = dpari_bo_reach(blocks, at, middle);
        }
        if (at == blocks->count) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* Returns the place nearest to k / ranks of all weight. `from` is the one for k - 1. */
static int32_t dpari_bo_share(const dpari_bo *blocks, int32_t k, int32_t from)
{
    const int64_t twice = dpari_bo_twice(blocks->before[blocks->count], k, blocks->ranks);
    int32_t at = dpari_bo_reach(blocks, from, twice / 2 - blocks->before[from]);
    if (at < blocks->count && blocks->before[at] + blocks->before[at + 1] < twice) {
        at++;
    }
    return at;
}

/* Chooses the cuts: rank r gets the places cut[r] .. cut[r + 1] - 1. No rank gets more than `most`,
 * which must be at least the bottleneck. wish: [ranks + 1] where the cuts should be, or NULL for
 * equal weights. early: [ranks + 1] scratch. */
static void dpari_bo_cuts(const dpari_bo *blocks, int64_t most, const int32_t *wish, int32_t *early,
                          int32_t *cut)
{
    const int32_t ranks = blocks->ranks, count = blocks->count;
    int32_t k, share = 0;
    cut[0] = 0;
    cut[ranks] = count;
    if (count < ranks) { /* one block for each of some ranks */
        for (k = 1; k < ranks; k++) {
            cut[k] = (int32_t)((int64_t)k * count / ranks);
        }
        return;
    }
    early[ranks] = count;
    for (k = ranks - 1; k > 0; k--) {
        int32_t at = early[k + 1];
        while (at > 0 && blocks->before[early[k + 1]] - blocks->before[at - 1] <= most) {
            at--;
        }
        early[k] = at;
    }
    for (k = 1; k < ranks; k++) {
        const int64_t first = dpari_most(early[k], cut[k - 1] + 1);
        const int64_t last =
            dpari_least(dpari_bo_reach(blocks, cut[k - 1], most), count - (ranks - k));
        if (wish == NULL) {
            share = dpari_bo_share(blocks, k, share);
        }
        cut[k] = (int32_t)dpari_least(dpari_most(wish != NULL ? wish[k] : share, first), last);
    }
}

/* Writes the owner of each block. */
static void dpari_bo_deal(const dpari_bo *blocks, const int32_t *cut, int32_t *owner)
{
    int32_t i, r;
    for (i = 0; i < blocks->blocks; i++) {
        owner[i] = -1;
    }
    for (r = 0; r < blocks->ranks; r++) {
        for (i = cut[r]; i < cut[r + 1]; i++) {
            owner[blocks->list[i]] = r;
        }
    }
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_assign(const dpar_blocks_assign_desc *desc,
                                                   int32_t *owner, dpar_blocks_stats *stats,
                                                   dpar_why *why)
{
    dpari_bo blocks;
    const dpar_status status = dpari_bo_open(&blocks, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (owner == NULL) {
        return dpari_wrong(why, "dpar_blocks_assign: owner is NULL");
    }
    dpari_bo_line_up(&blocks);
    dpari_bo_cuts(&blocks, dpari_bo_bottleneck(&blocks), NULL, blocks.room[0], blocks.room[1]);
    dpari_bo_deal(&blocks, blocks.room[1], owner);
    return stats != NULL ? dpari_bo_measure(&blocks, owner, stats, why) : DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_measure(const dpar_blocks_assign_desc *desc,
                                                    const int32_t *owner, dpar_blocks_stats *stats,
                                                    dpar_why *why)
{
    dpari_bo blocks;
    const dpar_status status = dpari_bo_open(&blocks, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (owner == NULL || stats == NULL) {
        return dpari_wrong(why, "dpar_blocks_measure: owner or stats is NULL");
    }
    return dpari_bo_measure(&blocks, owner, stats, why);
}

/* ---- rebalancing ----------------------------------------------------------------------------- */

/* New cuts and what they cost. */
typedef struct dpari_bo_choice {
    int32_t *cut;
    int64_t moved, most; /* blocks that move, and that the busiest rank sends and receives */
    double gain, cost;   /* seconds that they save, and that moving to them takes */
    double time;         /* seconds that the steps take with the present cuts */
} dpari_bo_choice;

/* Checks the costs. */
static DPARI_COLD dpar_status dpari_bo_check_costs(const dpar_blocks_rebalance_desc *desc,
                                                   dpar_why *why)
{
    if (!dpari_bo_is_amount(desc->seconds_per_byte) || !dpari_bo_is_amount(desc->seconds) ||
        !dpari_bo_is_amount(desc->seconds_per_weight) || !dpari_bo_is_amount(desc->threshold)) {
        return dpari_wrong(why, "seconds_per_byte, seconds, seconds_per_weight or threshold is "
                                "negative or not finite");
    }
    if (desc->block_bytes < 0 || desc->steps < 0) {
        return dpari_wrong(why, "steps %ld or block_bytes %ld is negative", desc->steps,
                           desc->block_bytes);
    }
    if (desc->steps == 0 && (desc->seconds > 0 || desc->seconds_per_byte > 0)) {
        return dpari_wrong(why, "steps is 0, but must be at least 1 if moving costs time");
    }
    return DPAR_OK;
}

/* Finds the present cuts. Returns 0 if the ranks' blocks are not contiguous and ascending. */
static int dpari_bo_present(const dpari_bo *blocks, const int32_t *owner, int32_t *cut)
{
    int32_t i, rank = 0;
    cut[0] = 0;
    for (i = 0; i < blocks->count; i++) {
        const int32_t next = owner[blocks->list[i]];
        if (next < rank) {
            return 0;
        }
        while (rank < next) {
            cut[++rank] = i;
        }
    }
    while (rank < blocks->ranks) {
        cut[++rank] = blocks->count;
    }
    return 1;
}

/* Computes what a move from `owner` to the cuts of a choice gains and costs. heaviest: weight of
 * the heaviest rank at present. */
static void dpari_bo_price(const dpari_bo *blocks, const dpar_blocks_rebalance_desc *desc,
                           int64_t heaviest, dpari_bo_choice *choice)
{
    const double seconds = desc->seconds_per_weight > 0 ? desc->seconds_per_weight : 1.0;
    const double steps = desc->steps > 0 ? (double)desc->steps : 1.0;
    int64_t *moves = blocks->load, weight = 0;
    int32_t r, i;
    choice->moved = 0;
    choice->most = 0;
    dpari_zero(moves, (size_t)blocks->ranks * sizeof *moves);
    for (r = 0; r < blocks->ranks; r++) {
        weight =
            dpari_most(weight, blocks->before[choice->cut[r + 1]] - blocks->before[choice->cut[r]]);
        for (i = choice->cut[r]; i < choice->cut[r + 1]; i++) {
            const int32_t from = desc->owner[blocks->list[i]];
            if (from != r) {
                choice->moved++;
                moves[from]++;
                moves[r]++;
            }
        }
    }
    for (r = 0; r < blocks->ranks; r++) {
        choice->most = dpari_most(choice->most, moves[r]);
    }
    choice->time = dpari_bo_unit(blocks, heaviest) * seconds * steps;
    choice->gain = dpari_bo_unit(blocks, heaviest - weight) * seconds * steps;
    choice->cost = (double)choice->most * (double)desc->block_bytes * desc->seconds_per_byte;
    choice->cost += choice->moved > 0 ? desc->seconds : 0.0;
}

/* Chooses the cuts that save the most. The scratch memory holds the order. */
static DPARI_COLD void dpari_bo_choose(const dpari_bo *blocks,
                                       const dpar_blocks_rebalance_desc *desc, int64_t heaviest,
                                       dpari_bo_choice *best)
{
    int32_t *present = blocks->room[1];
    const int contiguous = dpari_bo_present(blocks, desc->owner, present);
    const int64_t least = dpari_bo_bottleneck(blocks);
    dpari_bo_choice choice;
    int32_t i;
    dpari_zero(best, sizeof *best);
    best->cut = blocks->room[2];
    choice.cut = blocks->room[3];
    for (i = 0; i < DPARI_BO_SLACKS; i++) {
        const int64_t slack = i == 0 ? 0 : least >> (DPARI_BO_SLACKS + 1 - i); /* 1/64 to 1/4 */
        dpari_bo_cuts(blocks, least + slack, contiguous ? present : NULL, blocks->room[0],
                      choice.cut);
        dpari_bo_price(blocks, desc, heaviest, &choice);
        if (i == 0 || choice.gain - choice.cost > best->gain - best->cost) {
            int32_t *other = best->cut;
            *best = choice;
            choice.cut = other;
        }
    }
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_rebalance(const dpar_blocks_rebalance_desc *desc,
                                                      int32_t *owner,
                                                      dpar_blocks_rebalance_result *result,
                                                      dpar_why *why)
{
    dpari_bo blocks;
    dpari_bo_choice best;
    dpar_blocks_rebalance_result found;
    int64_t heaviest = 0, bytes;
    int32_t i;
    dpar_status status;
    if (desc == NULL || desc->owner == NULL || owner == NULL || result == NULL) {
        return dpari_wrong(why, "dpar_blocks_rebalance: desc, desc.owner, owner or result is NULL");
    }
    status = dpari_bo_open(&blocks, desc->blocks, why);
    if (status == DPAR_OK) {
        status = dpari_bo_check_costs(desc, why);
    }
    dpari_zero(&found, sizeof found);
    if (status == DPAR_OK) {
        status = dpari_bo_measure(&blocks, desc->owner, &found.before, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (!dpari_mul(blocks.blocks, desc->block_bytes, &bytes)) {
        return dpari_say(DPAR_E_RANGE, why, "%d blocks of %ld bytes have more than 2^63 - 1 bytes",
                         blocks.blocks, desc->block_bytes);
    }
    for (i = 0; i < blocks.ranks; i++) {
        heaviest = dpari_most(heaviest, blocks.load[i]);
    }
    dpari_bo_line_up(&blocks);
    dpari_bo_choose(&blocks, desc, heaviest, &best);
    found.gain = best.gain;
    found.cost = best.cost;
    found.after = found.before;
    found.pays = best.gain > best.cost && best.gain >= desc->threshold * best.time;
    if (!found.pays) {
        for (i = 0; i < blocks.blocks; i++) {
            owner[i] = desc->owner[i];
        }
        *result = found;
        return DPAR_OK;
    }
    found.blocks_moved = best.moved;
    found.bytes_moved = best.moved * desc->block_bytes;
    found.bytes_most = best.most * desc->block_bytes;
    dpari_bo_deal(&blocks, best.cut, owner);
    status = dpari_bo_measure(&blocks, owner, &found.after, why);
    *result = found;
    return status;
}

/* ==== blocks/blocks_draw.c ==== */

/* Draws owners of blocks, as text with a character per block and as SVG with a rectangle for each
 * run of blocks with the same owner. */

enum {
    DPARI_BD_WIDTH = 960,  /* pixels of the widest picture */
    DPARI_BD_LARGEST = 24, /* pixels of a block at most */
    DPARI_BD_MARGIN = 20,  /* pixels around the pictures */
    DPARI_BD_LINE = 24     /* pixels of a line of text */
};

/* A picture while it is being drawn. */
typedef struct dpari_bd {
    dpar_text *text;
    const dpar_blocks_draw_desc *desc;
    int32_t parts[DPAR_MAX_DIMS];
    int32_t x, y;          /* the dims that run to the right and down; y is -1 if there is none */
    int32_t columns, rows; /* blocks along them */
    int64_t first;         /* number of the first block of the layer */
    int64_t stride_x, stride_y;
    int64_t side, top; /* SVG: pixels of a block, and where the present layer begins */
} dpari_bd;

/* Finds the dims to draw, and the layer. */
static DPARI_COLD dpar_status dpari_bd_open(dpari_bd *picture, dpar_why *why)
{
    const dpar_blocks_draw_desc *desc = picture->desc;
    const int32_t dims = desc->blocks->dims;
    int64_t stride = 1;
    int32_t d;
    picture->x = dims - 1;
    for (d = 0; d < dims; d++) {
        if (picture->parts[d] > 1) {
            picture->x = d;
        }
    }
    picture->y = -1;
    for (d = 0; d < dims; d++) {
        if (d != picture->x && picture->parts[d] > 1) {
            picture->y = d;
        }
    }
    picture->rows = 1;
    for (d = dims - 1; d >= 0; d--) {
        if (d == picture->x) {
            picture->columns = picture->parts[d];
            picture->stride_x = stride;
        } else if (d == picture->y) {
            picture->rows = picture->parts[d];
            picture->stride_y = stride;
        } else if (desc->layer[d] < 0 || desc->layer[d] >= picture->parts[d]) {
            return dpari_wrong(why, "layer is %ld in dim %d, but must be 0 to %d", desc->layer[d],
                               d, picture->parts[d] - 1);
        } else {
            picture->first += desc->layer[d] * stride;
        }
        stride *= picture->parts[d];
    }
    return DPAR_OK;
}

/* Returns the owner of a block of the layer, counted from the left and from the top. */
static int32_t dpari_bd_owner(const dpari_bd *picture, const int32_t *owner, int32_t row,
                              int32_t column)
{
    const int32_t from_top = picture->desc->upward ? picture->rows - 1 - row : row;
    return owner[picture->first + from_top * picture->stride_y + column * picture->stride_x];
}

/* Writes the title, or the sizes of the grid if there is none. */
static void dpari_bd_title(const dpari_bd *picture)
{
    const char *s = picture->desc->title;
    int32_t d;
    if (s == NULL) {
        for (d = 0; d < picture->desc->blocks->dims; d++) {
            dpari_text_say(picture->text, "%s%d", d > 0 ? " x " : "", picture->parts[d]);
        }
        dpari_text_say(picture->text, " blocks on %d ranks", picture->desc->blocks->ranks);
        return;
    }
    for (; *s != 0; s++) { /* without characters that have a meaning in XML */
        const char c = *s >= ' ' && *s < 127 ? *s : '?';
        dpari_text_char(picture->text, c == '&' || c == '<' || c == '>' ? '\'' : c);
    }
}

/* Writes what a layer shows: the statistics, and the layer if there are others. */
static void dpari_bd_caption(const dpari_bd *picture, const char *name,
                             const dpar_blocks_stats *stats)
{
    const char *separator = name[0] != 0 ? ": " : "";
    int32_t d;
    dpar_text_put(picture->text, name);
    if (stats != NULL) {
        dpari_text_print(picture->text,
                         "%simbalance %.3f, %ld to %ld of %ld blocks per rank, cut %ld cells",
                         separator, stats->imbalance, stats->blocks_least, stats->blocks_most,
                         stats->blocks, stats->cut);
        separator = ", ";
    }
    for (d = 0; d < picture->desc->blocks->dims; d++) {
        if (d != picture->x && d != picture->y && picture->parts[d] > 1) {
            dpari_text_say(picture->text, "%slayer %ld of %d in dim %d", separator,
                           picture->desc->layer[d], picture->parts[d], d);
            separator = ", ";
        }
    }
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Returns the character of a rank. */
static char dpari_bd_letter(int32_t rank)
{
    const int32_t n = rank % 62;
    if (rank < 0) {
        return '.';
    }
    if (n < 26) {
        return (char)('A' + n);
    }
    return (char)(n < 52 ? 'a' + n - 26 : '0' + n - 52);
}

static void dpari_bd_letters(const dpari_bd *picture, const int32_t *owner, const char *name,
                             const dpar_blocks_stats *stats)
{
    int32_t row, column;
    dpari_bd_caption(picture, name, stats);
    dpar_text_put(picture->text, "\n");
    for (row = 0; row < picture->rows; row++) {
        for (column = 0; column < picture->columns; column++) {
            dpari_text_char(picture->text,
                            dpari_bd_letter(dpari_bd_owner(picture, owner, row, column)));
        }
        dpar_text_put(picture->text, "\n");
    }
}

/* ---- SVG ------------------------------------------------------------------------------------- */

/* Draws a run of blocks of one rank. Hues of successive ranks are 137 degrees apart, the golden
 * angle, so that few of them are similar; three degrees of lightness tell similar ones apart. */
static void dpari_bd_run(const dpari_bd *picture, int32_t rank, int32_t row, int32_t column,
                         int32_t count)
{
    const int64_t side = picture->side;
    dpari_text_say(picture->text, "<rect x=\"%ld\" y=\"%ld\" width=\"%ld\" height=\"%ld\" ",
                   DPARI_BD_MARGIN + column * side, picture->top + row * side, count * side, side);
    dpari_text_say(picture->text, "fill=\"hsl(%d,%d%%,%d%%)\"><title>rank %d</title></rect>\n",
                   (int32_t)((int64_t)rank * 137 % 360), (int32_t)(60 + rank % 2 * 20),
                   (int32_t)(48 + rank % 3 * 12), rank);
}

/* Draws a layer below its caption. */
static void dpari_bd_layer(dpari_bd *picture, const int32_t *owner, const char *name,
                           const dpar_blocks_stats *stats)
{
    int32_t row, column;
    picture->top += DPARI_BD_LINE;
    dpari_text_say(picture->text, "<text x=\"%d\" y=\"%ld\">", (int32_t)DPARI_BD_MARGIN,
                   picture->top - 8);
    dpari_bd_caption(picture, name, stats);
    dpari_text_say(
        picture->text,
        "</text>\n<rect x=\"%d\" y=\"%ld\" width=\"%ld\" height=\"%ld\" fill=\"#ccc\"/>\n",
        (int32_t)DPARI_BD_MARGIN, picture->top, picture->columns * picture->side,
        picture->rows * picture->side);
    for (row = 0; row < picture->rows; row++) {
        for (column = 0; column < picture->columns;) {
            const int32_t rank = dpari_bd_owner(picture, owner, row, column);
            const int32_t from = column;
            while (column < picture->columns &&
                   dpari_bd_owner(picture, owner, row, column) == rank) {
                column++;
            }
            if (rank >= 0) {
                dpari_bd_run(picture, rank, row, from, column - from);
            }
        }
    }
    picture->top += picture->rows * picture->side;
}

/* Draws the whole SVG. */
static void dpari_bd_svg(dpari_bd *picture)
{
    const dpar_blocks_draw_desc *desc = picture->desc;
    const int64_t layers = desc->before != NULL ? 2 : 1;
    int64_t wide, high;
    picture->side = dpari_most(1, dpari_least(DPARI_BD_LARGEST, DPARI_BD_WIDTH / picture->columns));
    /* The caption needs about 600 pixels. */
    wide = 2 * DPARI_BD_MARGIN + dpari_most(picture->columns * picture->side, 600);
    high =
        2 * DPARI_BD_MARGIN + DPARI_BD_LINE * (1 + layers) + layers * picture->rows * picture->side;
    dpari_text_say(picture->text,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %ld %ld\">\n"
                   "<style>text{font:13px sans-serif;fill:#222}.h{font-size:18px;font-weight:600}"
                   "rect{shape-rendering:crispEdges}</style>\n<title>",
                   wide, high);
    dpari_bd_title(picture);
    dpar_text_put(picture->text,
                  "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    picture->top = DPARI_BD_MARGIN + DPARI_BD_LINE;
    dpari_text_say(picture->text, "<text class=\"h\" x=\"%d\" y=\"%ld\">", (int32_t)DPARI_BD_MARGIN,
                   picture->top - 8);
    dpari_bd_title(picture);
    dpar_text_put(picture->text, "</text>\n");
    if (desc->before != NULL) {
        dpari_bd_layer(picture, desc->before, "before", desc->stats_before);
    }
    dpari_bd_layer(picture, desc->owner, desc->before != NULL ? "after" : "", desc->stats);
    dpar_text_put(picture->text, "</svg>\n");
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_draw(dpar_text *text, const dpar_blocks_draw_desc *desc,
                                                 int32_t format, dpar_why *why)
{
    dpari_bd picture;
    int32_t blocks;
    dpar_status status;
    if (text == NULL || desc == NULL || desc->owner == NULL || format < DPAR_BLOCKS_DRAW_TEXT ||
        format > DPAR_BLOCKS_DRAW_SVG) {
        return dpari_wrong(why,
                           "dpar_blocks_draw: text, desc or owner is NULL, or format %d is neither "
                           "DPAR_BLOCKS_DRAW_TEXT nor DPAR_BLOCKS_DRAW_SVG",
                           format);
    }
    dpari_zero(&picture, sizeof picture);
    picture.text = text;
    picture.desc = desc;
    status = dpari_blocks_parts(desc->blocks, picture.parts, &blocks, why);
    if (status == DPAR_OK) {
        status = dpari_bd_open(&picture, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (format == DPAR_BLOCKS_DRAW_SVG) {
        dpari_bd_svg(&picture);
        return DPAR_OK;
    }
    dpari_bd_title(&picture);
    dpar_text_put(text, "\n");
    if (desc->before != NULL) {
        dpari_bd_letters(&picture, desc->before, "before", desc->stats_before);
    }
    dpari_bd_letters(&picture, desc->owner, desc->before != NULL ? "after" : "", desc->stats);
    return DPAR_OK;
}

/* ==== blocks/blocks_cut.c ==== */

/* Checks descriptions of blocks and of arrays, cuts the grid, and makes the tables of owners. */

#define DPARI_BLOCKS_MOST_BYTES (INT64_C(1) << 56) /* of a rank's array */
enum {
    DPARI_BLOCKS_COMPONENTS = 1 << 20, /* the most components of a point */
    DPARI_BLOCKS_MOST = INT32_MAX - 1  /* blocks */
};

/* ---- the grid -------------------------------------------------------------------------------- */

/* Checks one dim of a description, and sets how it is cut. *total: number of blocks so far. */
static DPARI_COLD dpar_status dpari_blocks_cut_dim(const dpar_blocks_desc *desc, int32_t d,
                                                   dpari_blocks *blocks, int64_t *total,
                                                   dpar_why *why)
{
    int64_t size = desc->block[d], parts;
    if (desc->cells[d] < 1 || size < 0) {
        return dpari_wrong(why,
                           "blocks: dim %d has %ld cells in blocks of %ld, but cells must be at "
                           "least 1 and block 0 or more",
                           d, desc->cells[d], size);
    }
    if (!dpari_is_flag(desc->periodic[d]) || desc->halo < 0 || desc->halo_low[d] < 0 ||
        desc->halo_high[d] < 0) {
        return dpari_wrong(why,
                           "blocks: dim %d has periodic %d, halo %ld, halo_low %ld, halo_high %ld: "
                           "periodic must be 0 or 1, and halos 0 or more",
                           d, desc->periodic[d], desc->halo, desc->halo_low[d], desc->halo_high[d]);
    }
    if (size == 0 || size > desc->cells[d]) {
        size = desc->cube && d == 0 ? 1 : desc->cells[d];
    }
    parts = dpari_ceil_div(desc->cells[d], size);
    if (parts > DPARI_BLOCKS_MOST / *total) {
        return dpari_say(DPAR_E_RANGE, why,
                         "blocks: %ld cells of dim %d in blocks of %ld, times %ld blocks of the "
                         "dims before it, are more than 2^31 - 2 blocks; use larger blocks",
                         desc->cells[d], d, size, *total);
    }
    *total *= parts;
    blocks->head.cells[d] = desc->cells[d];
    blocks->head.size[d] = size;
    blocks->head.grid[d] = (int32_t)parts;
    blocks->low[d] = desc->halo_low[d] > 0 ? desc->halo_low[d] : desc->halo;
    blocks->high[d] = desc->halo_high[d] > 0 ? desc->halo_high[d] : desc->halo;
    return DPAR_OK;
}

/* Makes the halo of cells, whose ranks are the blocks. cuts: memory for all cuts. */
static DPARI_COLD dpar_status dpari_blocks_cut_halo(dpari_blocks *blocks,
                                                    const dpar_blocks_desc *desc, int64_t *cuts,
                                                    dpar_why *why)
{
    const int32_t dims = desc->dims;
    dpar_halo *halo = &blocks->halo;
    dpar_placement placement[DPAR_MAX_DIMS];
    dpar_mesh mesh;
    dpar_status status;
    int32_t d, i;
    for (d = 0; d < dims; d++) {
        placement[d] = dpar_shard_by(d, DPAR_SPLIT_RAGGED, 0);
        placement[d].cuts = cuts;
        for (i = 0; i < blocks->head.grid[d]; i++) {
            *cuts++ = i * blocks->head.size[d];
        }
        *cuts++ = desc->cells[d];
        halo->low[d] = blocks->low[d];
        halo->high[d] = blocks->high[d];
        halo->periodic |= (uint32_t)desc->periodic[d] << d;
    }
    halo->shape = desc->star ? DPAR_STENCIL_STAR : DPAR_STENCIL_BOX;
    halo->folds = desc->folds;
    halo->fold = desc->fold;
    halo->mirror = desc->mirror;
    halo->poles = desc->poles;
    halo->cube = desc->cube;
    status = dpar_mesh_init(&mesh, &"f e d c b a"[2 * (DPAR_MAX_DIMS - dims)], blocks -> head.grid,
                            DPAR_ORDER_LAST_FASTEST, blocks->head.total, why);
    if (status == DPAR_OK) {
        status = dpar_layout_init(&halo->grid, &mesh, dims, desc->cells, placement, why);
    }
    return status == DPAR_OK ? dpar_halo_check(halo, why) : status;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_blocks_cut(dpar_comm *comm,
                                                       const dpar_blocks_desc *desc,
                                                       dpari_blocks **made, dpar_why *why)
{
    dpari_blocks counted, *blocks = &counted;
    dpari_room room = dpari_room_of(NULL);
    int64_t total = 1, cuts = 0, *cut = NULL;
    dpar_status status = DPAR_OK;
    int32_t d, pass;
    if (comm->mem && !comm->node && !dpari_world_of(comm)) {
        return dpari_wrong(
            why, "blocks: arrays are in the host's memory, but comm sends a device's memory");
    }
    if (desc->dims < 1 || desc->dims > DPAR_MAX_DIMS || !dpari_is_flag(desc->star)) {
        return dpari_wrong(why, "blocks: dims is %d, star is %d: dims must be 1 to %d, star 0 or 1",
                           desc->dims, desc->star, (int32_t)DPAR_MAX_DIMS);
    }
    dpari_zero(&counted, sizeof counted);
    for (d = 0; d < desc->dims && status == DPAR_OK; d++) {
        status = dpari_blocks_cut_dim(desc, d, &counted, &total, why);
        cuts += counted.head.grid[d] + 1;
    }
    if (status != DPAR_OK) {
        return status;
    }
    for (pass = 0; pass < 2; pass++) {
        dpari_blocks *at = (dpari_blocks *)dpari_room_take(&room, 1, sizeof *at);
        if (pass == 1) {
            *at = counted;
            blocks = at;
        }
        blocks->owner = (int32_t *)dpari_room_take(&room, total, sizeof *blocks->owner);
        blocks->slot = (int32_t *)dpari_room_take(&room, total, sizeof *blocks->slot);
        cut = (int64_t *)dpari_room_take(&room, cuts, sizeof *cut);
        if (pass == 0) {
            room.at = (unsigned char *)dpari_object_alloc(comm, room.used);
            if (!room.at) {
                return dpari_say(DPAR_E_MEMORY, why, "blocks: no memory for %ld bytes", room.used);
            }
            room.used = 0;
        }
    }
    blocks->head.comm = comm;
    blocks->head.dims = desc->dims;
    blocks->head.total = (int32_t)total;
    blocks->head.owner = blocks->owner;
    *made = blocks;
    return dpari_blocks_cut_halo(blocks, desc, cut, why);
}

/* ---- owners ---------------------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD void dpari_blocks_describe(const dpari_blocks *blocks, int32_t number,
                                                     dpar_block *block)
{
    int32_t d, rest = number;
    block->number = number;
    for (d = blocks->head.dims - 1; d >= 0; d--) {
        const int64_t size = blocks->head.size[d];
        block->first[d] = rest % blocks->head.grid[d] * size;
        block->count[d] = dpari_least(size, blocks->head.cells[d] - block->first[d]);
        rest /= blocks->head.grid[d];
    }
}

DPARI_INTERNAL DPARI_COLD void dpari_blocks_set_assign(const dpari_blocks *blocks,
                                                       dpar_blocks_assign_desc *assign)
{
    int32_t d;
    dpari_zero(assign, sizeof *assign);
    assign->dims = blocks->head.dims;
    assign->ranks = blocks->head.comm->size;
    assign->periodic = blocks->halo.periodic;
    for (d = 0; d < blocks->head.dims; d++) {
        assign->cells[d] = blocks->head.cells[d];
        assign->block[d] = blocks->head.size[d];
    }
    assign->bytes = 12 * (int64_t)blocks->head.total + 32 * (int64_t)assign->ranks + 64;
}

/* Checks the owners that the caller gives. */
static DPARI_COLD dpar_status dpari_blocks_copy_owners(dpari_blocks *blocks,
                                                       const dpar_blocks_desc *desc, dpar_why *why)
{
    const int32_t ranks = blocks->head.comm->size;
    int32_t i;
    for (i = 0; i < blocks->head.total; i++) {
        const int exists = !desc->exists || desc->exists[i];
        if (desc->owner[i] < -1 || desc->owner[i] >= ranks ||
            (desc->exists && (desc->owner[i] >= 0) != exists)) {
            return dpari_wrong(why,
                               "blocks: owner of block %d is %d, but must be 0 to %d, or -1 if the "
                               "block does not exist",
                               i, desc->owner[i], ranks - 1);
        }
        blocks->owner[i] = desc->owner[i];
    }
    return DPAR_OK;
}

/* Chooses the owners. */
static DPARI_COLD dpar_status dpari_blocks_choose_owners(dpari_blocks *blocks,
                                                         const dpar_blocks_desc *desc,
                                                         dpar_why *why)
{
    dpar_blocks_assign_desc assign;
    dpar_status status;
    dpari_blocks_set_assign(blocks, &assign);
    assign.order = desc->order;
    assign.exists = desc->exists;
    assign.weight = desc->weight;
    assign.memory = dpari_object_alloc(blocks->head.comm, assign.bytes);
    if (!assign.memory) {
        return dpari_say(DPAR_E_MEMORY, why, "blocks: no memory for %ld bytes", assign.bytes);
    }
    status = dpar_blocks_assign(&assign, blocks->owner, NULL, why);
    dpari_object_release(assign.memory);
    return status;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_blocks_list_own(const dpari_blocks *blocks,
                                                            const int32_t *owner, int32_t *slot,
                                                            dpar_block **own, int32_t *count,
                                                            dpar_why *why)
{
    dpar_comm *comm = blocks->head.comm;
    int32_t *counts = (int32_t *)dpari_object_alloc(comm, comm->size * (int64_t)sizeof *counts);
    int32_t i, n = 0;
    *own = NULL;
    if (counts) {
        for (i = 0; i < blocks->head.total; i++) {
            slot[i] = owner[i] < 0 ? -1 : counts[owner[i]]++;
        }
        *count = counts[comm->rank];
        dpari_object_release(counts);
        *own = (dpar_block *)dpari_object_alloc(comm, (*count + 1) * (int64_t)sizeof **own);
    }
    if (!*own) {
        return dpari_say(DPAR_E_MEMORY, why, "blocks: no memory for the list of blocks");
    }
    for (i = 0; i < blocks->head.total; i++) {
        if (owner[i] == comm->rank) {
            dpari_blocks_describe(blocks, i, &(*own)[n++]);
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_blocks_assign_owners(dpari_blocks *blocks,
                                                                 const dpar_blocks_desc *desc,
                                                                 dpar_why *why)
{
    dpar_status status = desc->owner ? dpari_blocks_copy_owners(blocks, desc, why)
                                     : dpari_blocks_choose_owners(blocks, desc, why);
    blocks->order = desc->order;
    if (status == DPAR_OK) {
        status = dpari_blocks_list_own(blocks, blocks->owner, blocks->slot, &blocks->block,
                                       &blocks->head.count, why);
    }
    blocks->head.block = blocks->block;
    return status;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Checks the values of a field. */
static DPARI_COLD dpar_status dpari_blocks_check_field(const dpari_blocks *blocks, int32_t type,
                                                       const dpar_blocks_field *field,
                                                       dpar_why *why)
{
    int32_t d;
    if (dpar_type_bytes(type) == 0 || field->components < 0 ||
        field->components > DPARI_BLOCKS_COMPONENTS) {
        return dpari_wrong(
            why, "blocks: %d components of type %s (allowed: 0 to 2^20, of a type with bytes)",
            field->components, dpar_type_name(type));
    }
    if (!dpari_is_flag(field->planes) ||
        (field->order != DPAR_ORDER_LAST_FASTEST && field->order != DPAR_ORDER_FIRST_FASTEST)) {
        return dpari_wrong(why,
                           "blocks: planes is %d, order is %d: planes must be 0 or 1, and "
                           "order DPAR_ORDER_x",
                           field->planes, field->order);
    }
    for (d = 0; d < blocks->head.dims; d++) {
        if (field->location[d] != DPAR_HALO_AT_CELLS &&
            field->location[d] != DPAR_HALO_AT_LOW_FACES) {
            return dpari_wrong(why,
                               "blocks: location[%d] is %d, but must be DPAR_HALO_AT_CELLS or "
                               "DPAR_HALO_AT_LOW_FACES",
                               d, field->location[d]);
        }
        if (field->location[d] && blocks->halo.cube) {
            return dpari_wrong(
                why, "blocks: location[%d] is faces, but a cubed sphere has only fields at cells",
                d);
        }
    }
    if (field->vector < 0 || field->vector > 2 ||
        (field->vector == 2 && (!blocks->halo.cube || field->components != 2)) ||
        (field->vector == 1 && blocks->halo.cube)) {
        return dpari_wrong(why,
                           "blocks: vector is %d with %d components: 1 is for folds and poles, 2 "
                           "for 2 components on a cubed sphere, 0 for scalars",
                           field->vector, field->components);
    }
    return DPAR_OK;
}

/* Sets the strides of dense blocks, and the bytes of a block. */
static DPARI_COLD dpar_status dpari_blocks_set_strides(const dpari_blocks *blocks,
                                                       dpari_blocks_shape *shape, dpar_why *why)
{
    const int64_t most = DPARI_BLOCKS_MOST_BYTES / dpar_type_bytes(shape->type);
    const int32_t dims = blocks->head.dims;
    dpar_blocks_field *field = &shape->field;
    int64_t step = field->planes ? 1 : field->components, before = 0;
    int32_t k;
    for (k = 0; k < dims; k++) {
        const int32_t d = field->order == DPAR_ORDER_FIRST_FASTEST ? k : dims - 1 - k;
        const int64_t points = blocks->head.size[d] + shape->halo.low[d] + shape->halo.high[d];
        field->stride[d] = step;
        before += step * shape->halo.low[d];
        if (!dpari_mul(step, points, &step) || step > most) {
            break;
        }
    }
    if (k == dims) {
        field->component_stride = field->planes ? step : 1;
        if (field->planes && !dpari_mul(step, field->components, &step)) {
            k = 0;
        }
    }
    if (k < dims || step > most / dpari_most(blocks->head.count, 1)) {
        return dpari_say(DPAR_E_RANGE, why,
                         "blocks: %d blocks with their halos and %d components of type %s are more "
                         "than 2^56 bytes",
                         blocks->head.count, field->components, dpar_type_name(shape->type));
    }
    shape->origin = before * dpar_type_bytes(shape->type);
    shape->bytes = dpari_exchange_lines(step * dpar_type_bytes(shape->type));
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status
dpari_blocks_set_shape(const dpari_blocks *blocks, int32_t type, const dpar_blocks_field *field,
                       int32_t attached, dpari_blocks_shape *shape, dpar_why *why)
{
    dpar_blocks_field *own = &shape->field;
    dpar_status status;
    int32_t d, strided = 0;
    dpari_zero(shape, sizeof *shape);
    if (field) {
        *own = *field;
    }
    status = dpari_blocks_check_field(blocks, type, own, why);
    if (status != DPAR_OK) {
        return status;
    }
    shape->type = type;
    shape->attached = attached;
    own->components = own->components > 0 ? own->components : 1;
    shape->halo = blocks->halo;
    shape->halo.on_row = own->on_row;
    shape->halo.shift = own->shift;
    shape->halo.pole_rows = own->pole_rows;
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        strided |= own->stride[d] != 0;
        if (d < blocks->head.dims && own->location[d]) {
            shape->halo.points[d] = own->location[d];
            shape->halo.high[d]++;
            shape->halo.shape = DPAR_STENCIL_BOX;
        }
    }
    status = dpar_halo_check(&shape->halo, why);
    if (status != DPAR_OK) {
        return status;
    }
    shape->strided = strided;
    if (strided && attached) {
        own->component_stride = own->component_stride ? own->component_stride : 1;
        return DPAR_OK;
    }
    if (strided || own->component_stride) {
        return dpari_wrong(why, "blocks: strides are only for dpar_blocks_attach, with stride of "
                                "every dim");
    }
    return dpari_blocks_set_strides(blocks, shape, why);
}

/* ==== blocks/blocks_list.c ==== */

/* Lists boxes and prepares their copies. The lists of ../index/halo.h give the transfers of each
 * block. A forward plan takes what they receive, and an adjoint takes what they send, in their
 * order, which does not depend on the owners of blocks. */

/* ---- listing --------------------------------------------------------------------------------- */

/* Returns the receiver's dim for the sender's dim d. */
static int32_t dpari_blocks_swapped(const dpar_transfer *transfer, int32_t d)
{
    if (d == transfer->swap[0]) {
        return transfer->swap[1];
    }
    return d == transfer->swap[1] ? transfer->swap[0] : d;
}

/* Sets where a transfer reads and writes, in elements. The receiver's dims are put into the
 * sender's order, and flipped dims begin at their other end, with a negative step. */
static DPARI_COLD void dpari_blocks_place(const dpari_blocks_shape *shape,
                                          const dpar_transfer *transfer, int sends,
                                          dpari_blocks_box *box)
{
    const int64_t *stride = shape->field.stride, *low = shape->halo.low;
    const int64_t *to = sends ? transfer->theirs : transfer->mine;
    const int64_t *from = sends ? transfer->mine : transfer->theirs;
    const int32_t dims = transfer->dims;
    int32_t d;
    box->to_at = box->from_at = 0;
    for (d = 0; d < dims; d++) {
        const int32_t e = dpari_blocks_swapped(transfer, d);
        const int flips = (int)(transfer->flip >> e & 1u);
        box->extent[d] = transfer->extent[d];
        box->from_step[d] = stride[d];
        box->from_at += (from[d] - low[d]) * stride[d];
        box->to_step[d] = flips ? -stride[e] : stride[e];
        box->to_at += (to[e] - low[e]) * stride[e];
        box->to_at += flips ? (transfer->extent[d] - 1) * stride[e] : 0;
    }
    box->extent[dims] = shape->field.components;
    box->from_step[dims] = box->to_step[dims] = shape->field.component_stride;
}

/* Adds a transfer to the list, or only counts it if list->box is NULL. */
static DPARI_COLD void dpari_blocks_add(const dpari_blocks_shape *shape, int32_t array,
                                        const dpar_transfer *transfer, dpari_blocks_box *as,
                                        int sends, dpari_blocks_list *list)
{
    const int64_t bytes = dpar_type_bytes(shape->type);
    const int32_t parts = shape->field.vector == 2 && (transfer->turn & 1) != 0 ? 2 : 1;
    int32_t part;
    for (part = 0; part < parts; part++) {
        if (list->box) {
            dpari_blocks_box *box = &list->box[list->count];
            *box = *as;
            box->array = array;
            box->part = parts > 1 ? part : -1;
            box->turn = transfer->turn;
            box->place = list->count;
            dpari_blocks_place(shape, transfer, sends, box);
            if (parts > 1) { /* u and v change places */
                box->extent[transfer->dims] = 1;
                box->to_at += part * shape->field.component_stride;
                box->from_at += (1 - part) * shape->field.component_stride;
            }
            box->to_at *= bytes;
            box->from_at *= bytes;
            list->sorted[list->count] = list->count;
        }
        list->count++;
    }
}

/* Lists the boxes of a block in one direction. */
static DPARI_COLD dpar_status dpari_blocks_list_block(const dpari_blocks *blocks,
                                                      const dpari_blocks_plan *plan, int32_t number,
                                                      int32_t direction, dpari_blocks_list *list,
                                                      dpar_why *why)
{
    const int sends = direction == DPAR_TRANSFER_SEND;
    const int takes = sends == (plan->op != DPAR_COPY);
    dpar_halo_cursor cursor;
    dpar_transfer transfer;
    int32_t array;
    for (array = 0; array < plan->arrays; array++) {
        const dpari_blocks_shape *shape = plan->shape[array];
        const dpar_status status =
            dpar_halo_first(&cursor, &shape->halo, number, direction, DPAR_HALO_FORWARD, why);
        if (status != DPAR_OK) {
            return status;
        }
        while (dpar_halo_next(&cursor, &transfer)) {
            dpari_blocks_box as;
            dpari_zero(&as, sizeof as);
            as.rank = blocks->owner[transfer.peer];
            as.to = sends ? transfer.peer : number;
            as.from = sends ? number : transfer.peer;
            as.takes = takes;
            if (as.rank >= 0 && (takes || as.rank != blocks->head.comm->rank)) {
                dpari_blocks_add(shape, array, &transfer, &as, sends, list);
            }
        }
    }
    return DPAR_OK;
}

/* ---- sorting --------------------------------------------------------------------------------- */

/* True if box a is before box b: by rank, those that are taken first, and then by the two blocks.
 * The transfers between two blocks are in the same order on both ranks. */
static DPARI_COLD int dpari_blocks_precedes(const dpari_blocks_box *a, const dpari_blocks_box *b)
{
    const int64_t difference[6] = {(int64_t)a->rank - b->rank, (int64_t)b->takes - a->takes,
                                   (int64_t)a->to - b->to,     (int64_t)a->array - b->array,
                                   (int64_t)a->from - b->from, a->place - b->place};
    int32_t i = 0;
    while (i < 5 && difference[i] == 0) {
        i++;
    }
    return difference[i] < 0;
}

/* Moves the entry `at` of a heap of n entries down to its place. */
static DPARI_COLD void dpari_blocks_sift(dpari_blocks_list *list, int64_t at, int64_t n)
{
    const int64_t moved = list->sorted[at];
    int64_t child;
    for (child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && dpari_blocks_precedes(&list->box[list->sorted[child]],
                                                   &list->box[list->sorted[child + 1]])) {
            child++;
        }
        if (!dpari_blocks_precedes(&list->box[moved], &list->box[list->sorted[child]])) {
            break;
        }
        list->sorted[at] = list->sorted[child];
        at = child;
    }
    list->sorted[at] = moved;
}

/* Sorts the boxes by a heap, in O(n log n) without memory. */
static DPARI_COLD void dpari_blocks_sort(dpari_blocks_list *list)
{
    int64_t i;
    for (i = list->count / 2 - 1; i >= 0; i--) {
        dpari_blocks_sift(list, i, list->count);
    }
    for (i = list->count - 1; i > 0; i--) {
        const int64_t last = list->sorted[i];
        list->sorted[i] = list->sorted[0];
        list->sorted[0] = last;
        dpari_blocks_sift(list, 0, i);
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_blocks_list_boxes(const dpari_blocks *blocks,
                                                              const dpari_blocks_plan *plan,
                                                              dpari_blocks_list *list,
                                                              dpar_why *why)
{
    dpari_room room = dpari_room_of(NULL);
    int32_t pass, i;
    dpari_zero(list, sizeof *list);
    for (pass = 0; pass < 2; pass++) {
        const int32_t first = plan->op == DPAR_COPY ? DPAR_TRANSFER_RECV : DPAR_TRANSFER_SEND;
        list->count = 0;
        for (i = 0; i < 2 * blocks->head.count; i++) {
            const int32_t n = blocks->head.count;
            const dpar_status status = dpari_blocks_list_block(
                blocks, plan, blocks->block[i % n].number,
                i < n ? first : DPAR_TRANSFER_RECV + DPAR_TRANSFER_SEND - first, list, why);
            if (status != DPAR_OK) {
                return status;
            }
        }
        if (pass == 0) {
            const int64_t bytes = list->count * (int64_t)(sizeof *list->box + sizeof *list->sorted);
            room.at = (unsigned char *)dpari_object_alloc(blocks->head.comm,
                                                          bytes + 2 * DPARI_ROOM_ALIGN);
            if (!room.at) {
                return dpari_say(DPAR_E_MEMORY, why, "blocks: no memory for %ld bytes", bytes);
            }
            list->box = (dpari_blocks_box *)dpari_room_take(&room, list->count, sizeof *list->box);
            list->sorted = (int64_t *)dpari_room_take(&room, list->count, sizeof *list->sorted);
        }
    }
    dpari_blocks_sort(list);
    return DPAR_OK;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Computes the steps of packed values: dense, in the order of dims that the field names. `step` are
 * the steps of the array from which they are packed. Returns the elements that are contiguous in
 * it. */
static DPARI_COLD int64_t dpari_blocks_pack_steps(const dpari_blocks_shape *shape,
                                                  const dpari_blocks_box *box, const int64_t *step,
                                                  int64_t *dense)
{
    const dpar_blocks_field *field = &shape->field;
    const int32_t dims = shape->halo.grid.dims;
    int64_t next = 1, run = 1;
    int32_t k;
    for (k = 0; k <= dims; k++) { /* the fastest first */
        int32_t d = k - !field->planes;
        if (d >= 0 && d < dims) {
            d = field->order == DPAR_ORDER_FIRST_FASTEST ? d : dims - 1 - d;
        } else {
            d = dims; /* components */
        }
        dense[d] = next;
        if (run == next && (box->extent[d] == 1 || dpari_size(step[d]) == run)) {
            run *= box->extent[d];
        }
        next *= box->extent[d];
    }
    return run;
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_blocks_run(const dpari_blocks_plan *plan,
                                                   const dpari_blocks_box *box)
{
    int64_t dense[DPARI_STRIDE_DIMS];
    const dpari_blocks_shape *shape = plan->shape[box->array];
    const int64_t *step = plan->op == DPAR_COPY ? box->from_step : box->to_step;
    return dpari_blocks_pack_steps(shape, box, step, dense) * dpar_type_bytes(shape->type);
}

DPARI_INTERNAL DPARI_COLD void dpari_blocks_prepare(const dpari_blocks_plan *plan,
                                                    const dpari_blocks_box *box, int32_t packed,
                                                    int32_t shares, int32_t clears,
                                                    dpari_blocks_item *item)
{
    const dpari_blocks_shape *shape = plan->shape[box->array];
    const int32_t dims = shape->halo.grid.dims + 1, forward = plan->op == DPAR_COPY;
    const int64_t *to = forward ? box->to_step : box->from_step;
    const int64_t *from = forward ? box->from_step : box->to_step;
    dpari_stride_piece piece;
    int64_t dense[DPARI_STRIDE_DIMS];
    int32_t d;
    (void)dpari_blocks_pack_steps(shape, box, from, dense);
    if (packed) {
        *(box->takes ? &from : &to) = dense;
    }
    dpari_zero(&piece, sizeof piece);
    piece.dims = dims;
    piece.to_type = piece.from_type = shape->type;
    piece.wide = plan->wide;
    for (d = 0; d < dims; d++) {
        piece.extent[d] = box->extent[d];
        piece.to[d] = clears ? from[d] : to[d];
        piece.from[d] = clears ? 0 : from[d];
    }
    if (box->takes) {
        piece.op = plan->op;
        piece.negate = box->part >= 0 ? (box->turn == 1) == (box->part == 0)
                                      : shape->field.vector != 0 && box->turn == 2;
        piece.clear = !forward && item->peer < 0;
        piece.ahead = packed && shares ? DPARI_STRIDE_FROM : 0;
    } else if (!clears) {
        piece.clear = !forward;
        piece.ahead = packed && shares ? DPARI_STRIDE_TO : 0;
    }
    dpari_stride_prepare(&item->move, &piece);
}

/* ==== blocks/blocks_run.c ==== */

/* Packs and takes the boxes of an exchange.
 *
 * A forward exchange copies the boxes between this rank's blocks at once, and those of each peer
 * when they have arrived. An adjoint waits for all peers, and then combines the boxes of all in the
 * order of the plan. */

/* Returns the first own point of a block of this rank. */
static unsigned char *dpari_blocks_at(const dpari_blocks_plan *plan, int32_t array, int32_t slot)
{
    return (unsigned char *)plan->array[array]->head.block[slot];
}

/* Packs boxes for peer i. */
static void dpari_blocks_pack_for(const dpari_blocks_plan *plan, int32_t i)
{
    const dpari_blocks_pair *pair = &plan->pair[i];
    unsigned char *out = plan->out + dpari_exchange_turn(&plan->x) * plan->turn + pair->out_at;
    int64_t k;
    for (k = pair->give; k < pair->give + pair->gives; k++) {
        const dpari_blocks_item *item = &plan->item[k];
        dpari_stride_run(&item->move, out + item->other_at,
                         dpari_blocks_at(plan, item->array, item->slot) + item->mine_at);
    }
}

/* Publishes the references to the arrays that peers of this node read, and packs for them. */
static dpar_status dpari_blocks_pack(void *of, int32_t s)
{
    dpari_blocks_plan *plan = (dpari_blocks_plan *)of;
    uint64_t *table = plan->table + dpari_exchange_turn(&plan->x) * plan->arrays;
    int32_t i;
    (void)s;
    for (i = 0; i < plan->arrays; i++) {
        const unsigned char *memory = plan->array[i]->memory;
        table[i] = memory ? dpari_ref(plan->x.world, memory, 1) : 0;
    }
    for (i = 0; i < plan->x.peers; i++) {
        if (plan->x.peer[i].world >= 0) {
            dpari_blocks_pack_for(plan, i);
        }
    }
    return DPAR_OK;
}

/* Returns where the message from peer i arrives, or if `sends`, the address of the message to it,
 * which is packed first. */
static unsigned char *dpari_blocks_message(void *of, int32_t s, int32_t i, int sends)
{
    dpari_blocks_plan *plan = (dpari_blocks_plan *)of;
    (void)s;
    if (!sends) {
        return plan->in + plan->pair[i].in_at;
    }
    dpari_blocks_pack_for(plan, i);
    return plan->out + dpari_exchange_turn(&plan->x) * plan->turn + plan->pair[i].out_at;
}

/* Takes items `first` to first + count - 1. */
static void dpari_blocks_take_items(const dpari_blocks_plan *plan, int64_t first, int64_t count)
{
    const int64_t turn = dpari_exchange_turn(&plan->x);
    int64_t k;
    for (k = first; k < first + count; k++) {
        const dpari_blocks_item *item = &plan->item[k];
        const dpari_blocks_pair *pair = item->peer >= 0 ? &plan->pair[item->peer] : NULL;
        const unsigned char *from;
        if (!pair) {
            from = dpari_blocks_at(plan, item->array, item->other);
        } else if (item->direct) {
            from = pair->base[item->array];
        } else {
            from = pair->packed ? pair->packed + turn * pair->turn : plan->in + pair->in_at;
        }
        dpari_stride_run(&item->move,
                         dpari_blocks_at(plan, item->array, item->slot) + item->mine_at,
                         from + item->other_at);
    }
}

/* Takes the boxes between this rank's blocks. An adjoint does that in dpari_blocks_finish. */
static void dpari_blocks_take_own(void *of, int32_t s)
{
    dpari_blocks_plan *plan = (dpari_blocks_plan *)of;
    (void)s;
    if (plan->op == DPAR_COPY) {
        dpari_blocks_take_items(plan, plan->own, plan->owns);
    }
}

/* Finds the arrays of peer i, which is ready, and takes its boxes unless this is an adjoint. */
static dpar_status dpari_blocks_take(void *of, int32_t s, int32_t i)
{
    dpari_blocks_plan *plan = (dpari_blocks_plan *)of;
    dpari_blocks_pair *pair = &plan->pair[i];
    int32_t k;
    (void)s;
    if (pair->reads) {
        const uint64_t *table = pair->table + dpari_exchange_turn(&plan->x) * plan->arrays;
        for (k = 0; k < plan->arrays; k++) {
            pair->base[k] =
                table[k] ? (const unsigned char *)dpari_at(plan->x.world, table[k]) : NULL;
            if (table[k] && !pair->base[k]) {
                return dpari_exchange_unmapped(&plan->x, table[k]);
            }
        }
    }
    if (plan->op == DPAR_COPY) {
        dpari_blocks_take_items(plan, pair->take, pair->takes);
    }
    return DPAR_OK;
}

/* Combines all boxes of an adjoint. */
static dpar_status dpari_blocks_finish(void *of, int32_t s)
{
    dpari_blocks_plan *plan = (dpari_blocks_plan *)of;
    (void)s;
    if (plan->op != DPAR_COPY) {
        dpari_blocks_take_items(plan, 0, plan->takes);
    }
    return DPAR_OK;
}

DPARI_INTERNAL void dpari_blocks_clear(const dpari_blocks_plan *plan)
{
    const uint64_t zero[2] = {0, 0};
    int64_t k;
    for (k = plan->clear; k < plan->clear + plan->clears; k++) {
        const dpari_blocks_item *item = &plan->item[k];
        dpari_stride_run(&item->move,
                         dpari_blocks_at(plan, item->array, item->slot) + item->mine_at, zero);
    }
}

DPARI_INTERNAL DPARI_COLD void dpari_blocks_set_functions(dpari_blocks_plan *plan)
{
    plan->x.plan = plan;
    plan->x.pack = plan->x.shared > 0 ? dpari_blocks_pack : NULL;
    plan->x.message = dpari_blocks_message;
    plan->x.take_own = dpari_blocks_take_own;
    plan->x.take = dpari_blocks_take;
    plan->x.finish = dpari_blocks_finish;
}

/* ==== blocks/blocks_plan.c ==== */

/* Makes plans: lists the boxes, finds the peers, decides which boxes peers read in place, and
 * allocates the memory of packed values and messages. */

enum {
    DPARI_BLOCKS_RUN = 64, /* bytes of the shortest rows that are read in place, as in halos */
    DPARI_BLOCKS_CROWDED = 65536, /* bytes of the smallest boxes that are read in place if there are
                                     more ranks than cores, as in halos */
    DPARI_BLOCKS_WORDS = 2        /* words that two peers send each other when they plan */
};

/* Returns the communicator whose memory the ranks of a node share. */
static dpar_comm *dpari_blocks_memory_of(const dpari_blocks_plan *plan)
{
    return plan->x.world ? plan->x.node : plan->x.comm;
}

/* ---- peers ----------------------------------------------------------------------------------- */

/* Sets the peers from the sorted boxes, and the peer of each box. With `fill` 0, only counts. */
static DPARI_COLD int32_t dpari_blocks_set_peers(dpari_blocks_plan *plan, dpari_blocks_list *list,
                                                 int fill)
{
    const int32_t me = plan->x.comm->rank;
    int32_t peers = 0, last = -1;
    int64_t k;
    for (k = 0; k < list->count; k++) {
        dpari_blocks_box *box = &list->box[list->sorted[k]];
        if (box->rank != me && box->rank != last) {
            last = box->rank;
            if (fill) {
                plan->x.peer[peers].rank = last;
                plan->x.peer[peers].world = -1;
            }
            peers++;
        }
        box->peer = box->rank == me ? -1 : peers - 1;
    }
    return peers;
}

/* Allocates the tables of a plan whose boxes are listed. The first pass counts bytes. */
static DPARI_COLD dpar_status dpari_blocks_alloc_tables(dpari_blocks_plan *plan,
                                                        dpari_blocks_list *list, dpar_why *why)
{
    const int32_t peers = dpari_blocks_set_peers(plan, list, 0);
    dpari_room room = dpari_room_of(NULL);
    dpar_status status;
    void *memory = NULL;
    int32_t pass, i;
    for (pass = 0; pass < 2; pass++) {
        const unsigned char **base;
        dpari_exchange_room(&plan->x, &room, peers, 1, plan->x.world ? plan->x.node->size : 0);
        plan->pair = (dpari_blocks_pair *)dpari_room_take(&room, peers, sizeof *plan->pair);
        plan->item = (dpari_blocks_item *)dpari_room_take(&room, list->count, sizeof *plan->item);
        plan->records = (int64_t *)dpari_room_take(&room, 2 * DPARI_BLOCKS_WORDS * (int64_t)peers,
                                                   sizeof *plan->records);
        base = (const unsigned char **)dpari_room_take(&room, (int64_t)peers * plan->arrays,
                                                       sizeof *base);
        if (pass == 0) {
            plan->tables = dpari_object_alloc(plan->x.comm, room.used + 1);
            if (!plan->tables) {
                return dpari_say(DPAR_E_MEMORY, why, "blocks: no memory for %ld bytes", room.used);
            }
            room = dpari_room_of(plan->tables);
            continue;
        }
        for (i = 0; i < peers; i++) {
            plan->pair[i].base = base + (int64_t)i * plan->arrays;
        }
    }
    plan->x.peers = peers;
    (void)dpari_blocks_set_peers(plan, list, 1);
    status =
        dpar_comm_alloc(dpari_blocks_memory_of(plan),
                        (int64_t)sizeof *plan->x.line + 2 * plan->arrays * (int64_t)8, &memory);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, dpari_blocks_memory_of(plan)->why.text);
    }
    plan->x.line = (dpari_exchange_line *)memory;
    plan->table = (uint64_t *)(void *)(plan->x.line + 1);
    return DPAR_OK;
}

/* Sends plan->records to the peers and receives theirs, which follow them. */
static DPARI_COLD dpar_status dpari_blocks_send_records(dpari_blocks_plan *plan)
{
    const dpar_status status = dpari_exchange_records(
        &plan->x, plan->records, plan->records + DPARI_BLOCKS_WORDS * (int64_t)plan->x.peers,
        DPARI_BLOCKS_WORDS);
    return status;
}

/* Returns the records that peer i has sent. */
static const int64_t *dpari_blocks_record_of(const dpari_blocks_plan *plan, int32_t i)
{
    return plan->records + DPARI_BLOCKS_WORDS * (int64_t)(plan->x.peers + i);
}

/* Finds the peers that share memory, by sending each one the reference to this rank's words. */
static DPARI_COLD dpar_status dpari_blocks_meet(dpari_blocks_plan *plan)
{
    dpar_status status = dpari_exchange_find_node(&plan->x);
    int32_t i;
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < plan->x.peers; i++) {
        plan->records[DPARI_BLOCKS_WORDS * i] =
            plan->x.world && plan->x.peer[i].world >= 0
                ? (int64_t)dpari_ref(plan->x.world, plan->x.line, 1)
                : 0;
    }
    status = dpari_blocks_send_records(plan);
    for (i = 0; i < plan->x.peers && status == DPAR_OK; i++) {
        dpari_exchange_peer *peer = &plan->x.peer[i];
        const uint64_t ref = (uint64_t)*dpari_blocks_record_of(plan, i);
        if (ref == 0 || peer->world < 0) { /* one cannot reach the other's memory */
            peer->world = -1;
            continue;
        }
        plan->x.shared++;
        peer->line = (dpari_exchange_line *)dpari_at(plan->x.world, ref);
        if (!peer->line) {
            return dpari_exchange_unmapped(&plan->x, ref);
        }
        plan->pair[i].table = (const uint64_t *)(const void *)(peer->line + 1);
    }
    return status;
}

/* ---- items ----------------------------------------------------------------------------------- */

/* Decides which boxes are read in place, and where the others are among packed values. Both ranks
 * of a box get the same results. */
static DPARI_COLD void dpari_blocks_set_places(dpari_blocks_plan *plan, dpari_blocks_list *list)
{
    const int32_t mode = plan->x.step[0].modes >> DPARI_EXCHANGE_ADJOINT;
    int64_t k, in = 0;
    int32_t i;
    for (k = 0; k < list->count; k++) {
        dpari_blocks_box *box = &list->box[list->sorted[k]];
        const dpari_blocks_shape *shape = plan->shape[box->array];
        int64_t bytes = dpar_type_bytes(shape->type), *used;
        dpari_exchange_flow *flow;
        int32_t d;
        if (box->peer < 0) {
            continue;
        }
        flow = &plan->x.flow[box->peer];
        for (d = 0; d <= shape->halo.grid.dims; d++) {
            bytes *= box->extent[d];
        }
        box->direct = plan->x.peer[box->peer].world >= 0 && !shape->attached &&
                      dpari_blocks_run(plan, box) >= DPARI_BLOCKS_RUN &&
                      (!plan->x.world->crowded || bytes >= DPARI_BLOCKS_CROWDED);
        if (box->takes) {
            flow->takes[mode] = 1;
            plan->pair[box->peer].reads |= box->direct;
        } else {
            flow->packed = 1;
            flow->lends[mode] |= box->direct;
            plan->x.lends |= box->direct;
        }
        used = box->takes ? &flow->in_bytes[mode] : &flow->out_bytes[mode];
        if (!box->direct) {
            box->packed = (*used + 15) / 16 * 16;
            *used = box->packed + bytes;
        }
    }
    for (i = 0; i < plan->x.peers; i++) {
        const dpari_exchange_flow *flow = &plan->x.flow[i];
        const int shares = plan->x.peer[i].world >= 0;
        plan->x.oneway |= shares && flow->takes[mode] != flow->packed;
        plan->pair[i].out_at = plan->turn;
        plan->pair[i].in_at = in;
        plan->turn += dpari_exchange_lines(flow->out_bytes[mode]);
        in += shares ? 0 : dpari_exchange_lines(flow->in_bytes[mode]);
    }
    plan->in_bytes = in;
}

/* Adds an item for a box. clears: 1 if the item only sets its halo to 0. */
static DPARI_COLD void dpari_blocks_add_item(const dpari_blocks *blocks, dpari_blocks_plan *plan,
                                             const dpari_blocks_box *box, int32_t clears)
{
    dpari_blocks_item *item = &plan->item[plan->items++];
    const dpari_blocks_shape *shape = plan->shape[box->array];
    /* this rank's block is the one whose halo gets the box forward, or the other one */
    const int mine_is_to = box->takes == (plan->op == DPAR_COPY);
    const int32_t other = blocks->slot[mine_is_to ? box->from : box->to];
    item->array = box->array;
    item->slot = blocks->slot[mine_is_to ? box->to : box->from];
    item->other = other;
    item->peer = box->peer;
    item->direct = box->direct;
    item->mine_at = mine_is_to ? box->to_at : box->from_at;
    item->other_at = mine_is_to ? box->from_at : box->to_at;
    if (box->direct) {
        item->other_at += other * shape->bytes + shape->origin;
    } else if (box->peer >= 0) {
        item->other_at = box->packed;
    }
    dpari_blocks_prepare(plan, box, box->peer >= 0 && !box->direct,
                         box->peer >= 0 && plan->x.peer[box->peer].world >= 0, clears, item);
}

/* Makes the items of a plan from the boxes: what this rank takes, then what it packs, and then for
 * an adjoint what it clears. */
static DPARI_COLD void dpari_blocks_set_items(const dpari_blocks *blocks, dpari_blocks_plan *plan,
                                              const dpari_blocks_list *list)
{
    int64_t k;
    for (k = 0; k < list->count && plan->op != DPAR_COPY; k++) {
        if (list->box[k].takes) {
            dpari_blocks_add_item(blocks, plan, &list->box[k], 0);
        }
    }
    plan->takes = plan->items;
    for (k = 0; k < list->count; k++) {
        const dpari_blocks_box *box = &list->box[list->sorted[k]];
        dpari_blocks_pair *pair = box->peer >= 0 ? &plan->pair[box->peer] : NULL;
        int64_t *first, *count;
        if (box->takes ? plan->op != DPAR_COPY : box->direct) {
            continue;
        }
        if (box->takes) {
            first = pair ? &pair->take : &plan->own;
            count = pair ? &pair->takes : &plan->owns;
        } else {
            first = &pair->give;
            count = &pair->gives;
        }
        *first = *count == 0 ? plan->items : *first;
        ++*count;
        dpari_blocks_add_item(blocks, plan, box, 0);
    }
    plan->clear = plan->items;
    for (k = 0; k < list->count && plan->op != DPAR_COPY; k++) {
        if (!list->box[k].takes && list->box[k].direct) {
            dpari_blocks_add_item(blocks, plan, &list->box[k], 1);
        }
    }
    plan->clears = plan->items - plan->clear;
}

/* Allocates the memory of packed values, and writes the records that say where they are. */
static DPARI_COLD dpar_status dpari_blocks_alloc_values(dpari_blocks_plan *plan, dpar_why *why)
{
    dpar_comm *of = dpari_blocks_memory_of(plan);
    void *memory = NULL;
    const dpar_status status = dpar_comm_alloc(of, 2 * plan->turn + plan->in_bytes, &memory);
    int32_t i;
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, of->why.text);
    }
    plan->out = (unsigned char *)memory;
    plan->in = plan->out + 2 * plan->turn;
    for (i = 0; i < plan->x.peers; i++) {
        int64_t *record = plan->records + DPARI_BLOCKS_WORDS * (int64_t)i;
        record[0] = 0;
        if (plan->x.peer[i].world >= 0 && plan->pair[i].gives > 0) {
            record[0] = (int64_t)dpari_ref(plan->x.world, plan->out + plan->pair[i].out_at, 1);
        }
        record[1] = plan->turn;
    }
    return DPAR_OK;
}

/* Reads where the packed values of the peers are. */
static DPARI_COLD dpar_status dpari_blocks_read_records(dpari_blocks_plan *plan)
{
    int32_t i;
    for (i = 0; i < plan->x.peers; i++) {
        const int64_t *record = dpari_blocks_record_of(plan, i);
        if (plan->x.peer[i].world >= 0 && record[0] != 0) {
            plan->pair[i].packed =
                (const unsigned char *)dpari_at(plan->x.world, (uint64_t)record[0]);
            plan->pair[i].turn = record[1];
            if (!plan->pair[i].packed) {
                return dpari_exchange_unmapped(&plan->x, (uint64_t)record[0]);
            }
        }
    }
    return DPAR_OK;
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* Lists what must be equal on all ranks. */
static DPARI_COLD void dpari_blocks_state(dpari_facts *facts, const void *given)
{
    const dpari_blocks_plan *plan = (const dpari_blocks_plan *)given;
    int32_t i;
    dpari_fact(facts, "op", 0, plan->op);
    dpari_fact(facts, "number of arrays", 0, plan->arrays);
    for (i = 0; i < plan->arrays; i++) {
        dpari_fact(facts, "shape of array #", i, plan->shape[i]->number);
    }
}

/* Allocates a plan and sets what does not depend on its boxes. */
static DPARI_COLD dpari_blocks_plan *dpari_blocks_new_plan(const dpari_blocks *blocks,
                                                           dpar_blocks_array *const *arrays,
                                                           int32_t count, int32_t op)
{
    dpar_comm *comm = blocks->head.comm;
    const int64_t bytes =
        (int64_t)sizeof(dpari_blocks_plan) + 2 * count * (int64_t)sizeof(void *) + 64;
    dpari_blocks_plan *plan = (dpari_blocks_plan *)dpari_object_alloc(comm, bytes);
    int32_t i;
    if (!plan) {
        return NULL;
    }
    plan->shape = (const dpari_blocks_shape **)(void *)(plan + 1);
    plan->array = (dpari_blocks_array **)(void *)(plan->shape + count);
    for (i = 0; i < count; i++) {
        plan->shape[i] = dpari_blocks_array_of(arrays[i])->shape;
    }
    plan->number = blocks->plans_made;
    plan->arrays = count;
    plan->op = op;
    plan->wide = dpari_cpu_wide();
    plan->x.comm = comm;
    plan->x.node = comm->node ? comm->node : comm;
    plan->x.world = dpari_world_of(plan->x.node);
    plan->x.name = "blocks";
    plan->x.end = "dpar_blocks_end";
    plan->x.item = "array";
    plan->x.items = count;
    plan->x.steps = 1;
    plan->x.self = -1;
    return plan;
}

/* Releases the memory of a plan. */
static DPARI_COLD void dpari_blocks_release_plan(dpari_blocks_plan *plan)
{
    dpar_comm *of = dpari_blocks_memory_of(plan);
    dpar_comm_release(of, plan->out);
    dpar_comm_release(of, plan->x.line);
    dpari_object_release(plan->tables);
    dpari_object_release(plan);
}

/* Does what needs no other rank: makes the plan, lists the boxes, and allocates the tables. */
static DPARI_COLD dpar_status dpari_blocks_begin_plan(const dpari_blocks *blocks,
                                                      dpar_blocks_array *const *arrays,
                                                      int32_t count, int32_t op,
                                                      dpari_blocks_list *list,
                                                      dpari_blocks_plan **made, dpar_why *why)
{
    dpari_blocks_plan *plan = dpari_blocks_new_plan(blocks, arrays, count, op);
    dpar_status status;
    *made = plan;
    if (!plan) {
        return dpari_say(DPAR_E_MEMORY, why, "blocks: no memory for a plan");
    }
    status = dpari_blocks_list_boxes(blocks, plan, list, why);
    if (status == DPAR_OK) {
        status = dpari_blocks_alloc_tables(plan, list, why);
    }
    if (status == DPAR_OK) {
        plan->x.step[0].modes =
            1 << (op == DPAR_COPY ? DPARI_EXCHANGE_FORWARD : DPARI_EXCHANGE_ADJOINT);
    }
    return status;
}

/* Makes a plan. Collective. */
static DPARI_COLD dpar_status dpari_blocks_make_plan(dpari_blocks *blocks,
                                                     dpar_blocks_array *const *arrays,
                                                     int32_t count, int32_t op,
                                                     dpari_blocks_plan **made)
{
    dpar_comm *comm = blocks->head.comm;
    dpar_why *why = dpari_why_of(comm, NULL);
    dpari_blocks_plan *plan = NULL;
    dpari_blocks_list list;
    dpar_status status;
    dpari_zero(&list, sizeof list);
    status = dpari_blocks_begin_plan(blocks, arrays, count, op, &list, &plan, why);
    status = dpari_agree_on(comm, status, "blocks", dpari_blocks_state, plan, why);
    if (status == DPAR_OK) {
        status = dpari_blocks_meet(plan);
        if (status == DPAR_OK) {
            dpari_blocks_set_places(plan, &list);
            dpari_blocks_set_items(blocks, plan, &list);
            plan->x.step[0].meets = plan->x.shared > 0;
            dpari_blocks_set_functions(plan);
            status = dpari_blocks_alloc_values(plan, why);
        }
        status = dpari_agree_on(comm, status, "blocks", NULL, NULL, why);
    }
    if (status == DPAR_OK) {
        status = dpari_blocks_send_records(plan);
        if (status == DPAR_OK) {
            status = dpari_blocks_read_records(plan);
        }
        status = dpari_agree_on(comm, status, "blocks", NULL, NULL, why);
    }
    dpari_object_release(list.box);
    if (status != DPAR_OK && plan) {
        dpari_blocks_release_plan(plan);
    }
    *made = plan;
    return status;
}

DPARI_INTERNAL dpar_status dpari_blocks_find_plan(dpari_blocks *blocks,
                                                  dpar_blocks_array *const *arrays, int32_t count,
                                                  int32_t op, dpari_blocks_plan **found)
{
    dpari_blocks_plan **at = &blocks->plans;
    dpar_status status;
    for (; *at; at = &(*at)->next) {
        dpari_blocks_plan *plan = *at;
        int32_t i = 0;
        while (plan->arrays == count && i < count &&
               plan->shape[i] == dpari_blocks_array_of(arrays[i])->shape) {
            i++;
        }
        if (i == count && plan->op == op && !plan->in_use && plan->arrays == count) {
            *found = plan;
            return DPAR_OK;
        }
    }
    status = dpari_blocks_make_plan(blocks, arrays, count, op, found);
    if (status == DPAR_OK) {
        blocks->plans_made++;
        *at = *found;
    }
    return status;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_blocks_free_plans(dpari_blocks *blocks)
{
    dpar_status first = DPAR_OK;
    while (blocks->plans) {
        dpari_blocks_plan *plan = blocks->plans;
        int32_t refused;
        const dpar_status status = dpari_exchange_close(&plan->x, "dpar_blocks_free: ", &refused);
        first = first == DPAR_OK ? status : first;
        blocks->plans = plan->next;
        dpari_blocks_release_plan(plan);
    }
    return first;
}

/* ==== blocks/blocks_whole.c ==== */

/* Gathers a whole array on rank 0 and scatters it from there, rank after rank. The own points of
 * all blocks of a rank are one message. */

/* What a call moves. */
typedef struct dpari_blocks_whole {
    const dpari_blocks *blocks;
    const dpari_blocks_array *array;
    unsigned char *whole; /* on rank 0: the whole array */
    unsigned char *dense; /* own points of one rank, block after block */
    int32_t back;         /* 0 gathers, 1 scatters */
} dpari_blocks_whole;

/* Counts the bytes of a rank's own points. */
static DPARI_COLD int64_t dpari_blocks_own_bytes(const dpari_blocks_whole *move, int32_t rank)
{
    const dpari_blocks_shape *shape = move->array->shape;
    int64_t points = 0;
    dpar_box own;
    int32_t i;
    for (i = 0; i < move->blocks->head.total; i++) {
        if (move->blocks->owner[i] == rank && dpar_halo_owned(&shape->halo, i, &own)) {
            points += dpar_box_volume(&own);
        }
    }
    return points * shape->field.components * dpar_type_bytes(shape->type);
}

/* Copies the own points of a block between `dense` and this rank's array or, with in_whole, rank
 * 0's whole array. Returns the bytes. out: 1 copies into `dense`. */
static DPARI_COLD int64_t dpari_blocks_copy_block(const dpari_blocks_whole *move, int32_t number,
                                                  int in_whole, int out, unsigned char *dense)
{
    const dpari_blocks_shape *shape = move->array->shape;
    const int64_t bytes = dpar_type_bytes(shape->type);
    const int32_t dims = shape->halo.grid.dims;
    int64_t step = shape->field.components, next = step, at = 0;
    unsigned char *array;
    dpar_mem_box box;
    int64_t *there = out ? box.from_stride : box.to_stride;
    int64_t *here = out ? box.to_stride : box.from_stride;
    dpar_box own;
    int32_t d;
    dpari_zero(&box, sizeof box);
    (void)dpar_halo_owned(&shape->halo, number, &own);
    box.to_type = box.from_type = shape->type;
    box.op = DPAR_COPY;
    box.dims = dims + 1;
    box.extent[dims] = step;
    there[dims] = in_whole ? 1 : shape->field.component_stride;
    here[dims] = 1;
    for (d = dims - 1; d >= 0; d--) {
        box.extent[d] = own.hi[d] - own.lo[d];
        there[d] = in_whole ? step : shape->field.stride[d];
        here[d] = next;
        at += own.lo[d] * step;
        step *= dpar_halo_points(&shape->halo, d);
        next *= box.extent[d];
    }
    array = in_whole ? move->whole + at * bytes
                     : (unsigned char *)move->array->head.block[move->blocks->slot[number]];
    box.to = out ? dense : array;
    box.from = out ? array : dense;
    (void)dpari_mem_move_box(&box); /* the type has been checked */
    return next * bytes;
}

/* Copies the own points of all blocks of a rank. */
static DPARI_COLD void dpari_blocks_copy_rank(const dpari_blocks_whole *move, int32_t rank,
                                              int in_whole)
{
    unsigned char *dense = move->dense;
    int32_t i;
    for (i = 0; i < move->blocks->head.total; i++) {
        if (move->blocks->owner[i] == rank) {
            dense += dpari_blocks_copy_block(move, i, in_whole, move->back == in_whole, dense);
        }
    }
}

/* Moves the points of one rank: array, message and whole array in this order, or back. */
static DPARI_COLD dpar_status dpari_blocks_move_rank(const dpari_blocks_whole *move, int32_t rank)
{
    enum { ARRAY, MESSAGE, WHOLE, STEPS };
    dpar_comm *comm = move->blocks->head.comm;
    const int64_t bytes = dpari_blocks_own_bytes(move, rank);
    const int32_t other = comm->rank > 0 ? 0 : rank;
    int32_t i;
    for (i = 0; i < STEPS && bytes > 0; i++) {
        const int32_t step = move->back ? WHOLE - i : i;
        dpar_status status = DPAR_OK;
        if (step == MESSAGE && rank > 0) {
            status = move->back == (comm->rank > 0)
                         ? dpar_recv(comm, move->dense, bytes, DPAR_U8, other, 0, NULL)
                         : dpar_send(comm, move->dense, bytes, DPAR_U8, other, 0, NULL);
        } else if ((step == ARRAY && rank == comm->rank) || (step == WHOLE && comm->rank == 0)) {
            dpari_blocks_copy_rank(move, rank, step == WHOLE);
        }
        if (status != DPAR_OK) {
            return status;
        }
    }
    return DPAR_OK;
}

static DPARI_COLD void dpari_blocks_whole_state(dpari_facts *facts, const void *given)
{
    const dpari_blocks_whole *move = (const dpari_blocks_whole *)given;
    dpari_fact(facts, "scatters", 0, move->back);
    dpari_fact(facts, "shape of the array", 0, move->array->shape->number);
}

/* Checks a call, and allocates move->dense for the ranks that this one handles. Local. */
static DPARI_COLD dpar_status dpari_blocks_prepare_whole(dpari_blocks_whole *move, int32_t first,
                                                         int32_t end, dpar_why *why)
{
    int64_t most = 1;
    int32_t r;
    if (!move->array || move->array->head.blocks != &move->blocks->head || move->array->plan) {
        return dpari_wrong(why, "blocks gather or scatter: the array is NULL, of other blocks, or "
                                "an exchange of it has not ended");
    }
    if (!move->whole && first == 0) {
        return dpari_wrong(why, "blocks gather or scatter: whole is NULL on rank 0");
    }
    for (r = first; r < end; r++) {
        most = dpari_most(most, dpari_blocks_own_bytes(move, r));
    }
    move->dense = (unsigned char *)dpari_object_alloc(move->blocks->head.comm, most);
    if (!move->dense) {
        return dpari_say(DPAR_E_MEMORY, why, "blocks gather or scatter: no memory for %ld bytes",
                         most);
    }
    return DPAR_OK;
}

/* Gathers or scatters. */
static DPARI_COLD dpar_status dpari_blocks_move_whole(dpar_blocks *blocks,
                                                      const dpar_blocks_array *array, void *whole,
                                                      int32_t back)
{
    dpari_blocks_whole move;
    dpar_comm *comm;
    dpar_why *why;
    dpar_status status;
    int32_t first, end, r;
    if (!blocks) {
        return DPAR_E_ARG;
    }
    comm = blocks->comm;
    why = dpari_why_of(comm, NULL);
    first = comm->rank;
    end = first > 0 ? first + 1 : comm->size;
    dpari_zero(&move, sizeof move);
    move.blocks = dpari_blocks_of(blocks);
    move.array = dpari_blocks_array_of(array);
    move.whole = (unsigned char *)whole;
    move.back = back;
    status = dpari_blocks_prepare_whole(&move, first, end, why);
    status = dpari_agree_on(comm, status, "blocks", dpari_blocks_whole_state, &move, why);
    for (r = first; r < end && status == DPAR_OK; r++) {
        status = dpari_blocks_move_rank(&move, r);
    }
    dpari_object_release(move.dense);
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_gather(dpar_blocks *blocks, dpar_blocks_array *array,
                                                   void *whole)
{
    return dpari_blocks_move_whole(blocks, array, whole, 0);
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_scatter(dpar_blocks *blocks, dpar_blocks_array *array,
                                                    const void *whole)
{
    return dpari_blocks_move_whole(blocks, array, (void *)(uintptr_t)whole, 1);
}

/* ==== blocks/blocks_move.c ==== */

/* Gives blocks to other ranks. All ranks send their weights, rank 0 decides and sends the new
 * owners, and then each block of each array is one message, or a copy if it stays. The old arrays
 * remain as they are until everything has arrived. */

/* A move in progress. */
typedef struct dpari_blocks_mover {
    dpari_blocks *blocks;
    const dpar_blocks_move_desc *desc;
    dpar_blocks_rebalance_result result;
    void *memory;          /* of what follows, except for `block` */
    double *weight;        /* [total] of all blocks */
    unsigned char *exists; /* [total] */
    int32_t *owner, *slot; /* [total] new ones */
    void *scratch;         /* for blocks_owner.h */
    dpar_call *call;       /* [old and new blocks of this rank] */
    dpar_work *work;
    dpar_block *block; /* [count] this rank's new blocks */
    int32_t count;
} dpari_blocks_mover;

static DPARI_COLD void dpari_blocks_move_state(dpari_facts *facts, const void *given)
{
    const dpari_blocks_mover *move = (const dpari_blocks_mover *)given;
    const dpar_blocks_move_desc *desc = move->desc;
    const dpari_blocks_array *array;
    uint64_t hash = 1;
    int32_t i = 0;
    for (array = move->blocks->arrays; array; array = array->next) {
        i++;
    }
    dpari_fact(facts, "number of arrays", 0, i);
    for (array = move->blocks->arrays, i = 0; array; array = array->next) {
        dpari_fact(facts, "shape of array # (counted from the newest)", i++, array->shape->number);
    }
    dpari_fact(facts, "steps", 0, desc->steps);
    dpari_fact_real(facts, "seconds_per_byte", 0, desc->seconds_per_byte);
    dpari_fact_real(facts, "seconds", 0, desc->seconds);
    dpari_fact_real(facts, "seconds_per_weight", 0, desc->seconds_per_weight);
    dpari_fact_real(facts, "threshold", 0, desc->threshold);
    for (i = 0; i < move->blocks->head.total && desc->owner; i++) {
        hash = dpari_hash(hash, move->blocks->owner[i] < 0 ? -1 : desc->owner[i]);
    }
    dpari_fact_hash(facts, "owner", 0, desc->owner ? hash : 0);
}

/* Checks a call, and allocates what does not depend on the new owners. Local. */
static DPARI_COLD dpar_status dpari_blocks_begin_move(dpari_blocks_mover *move, dpar_why *why)
{
    const dpari_blocks *blocks = move->blocks;
    const dpari_blocks_array *array;
    const int64_t total = blocks->head.total;
    dpar_blocks_assign_desc assign;
    int32_t pass, i;
    dpari_room room = dpari_room_of(NULL);
    if (!move->desc) {
        return dpari_wrong(why, "dpar_blocks_move: desc is NULL");
    }
    if (blocks->in_use > 0) {
        return dpari_wrong(why, "dpar_blocks_move: %d exchanges have not ended", blocks->in_use);
    }
    for (array = blocks->arrays; array; array = array->next) {
        if (!array->memory) {
            return dpari_wrong(why,
                               "dpar_blocks_move: an array is attached; free its handle before "
                               "blocks move, and attach it again afterwards");
        }
    }
    if (!move->desc->weight && !move->desc->owner && blocks->head.count > 0) {
        return dpari_wrong(why, "dpar_blocks_move: weight and owner are both NULL");
    }
    for (i = 0; i < blocks->head.total && move->desc->owner; i++) {
        if (blocks->owner[i] >= 0 &&
            (move->desc->owner[i] < 0 || move->desc->owner[i] >= blocks->head.comm->size)) {
            return dpari_wrong(why,
                               "dpar_blocks_move: owner of block %d is %d, but must be 0 to %d", i,
                               move->desc->owner[i], blocks->head.comm->size - 1);
        }
    }
    dpari_blocks_set_assign(blocks, &assign);
    for (pass = 0; pass < 2; pass++) {
        move->weight = (double *)dpari_room_take(&room, total, sizeof *move->weight);
        move->owner = (int32_t *)dpari_room_take(&room, total, sizeof *move->owner);
        move->slot = (int32_t *)dpari_room_take(&room, total, sizeof *move->slot);
        move->scratch = dpari_room_take(&room, assign.bytes, 1);
        move->exists = (unsigned char *)dpari_room_take(&room, total, 1);
        if (pass == 0) {
            move->memory = dpari_object_alloc(blocks->head.comm, room.used);
            if (!move->memory) {
                return dpari_say(DPAR_E_MEMORY, why, "dpar_blocks_move: no memory for %ld bytes",
                                 room.used);
            }
            room = dpari_room_of(move->memory);
        }
    }
    for (i = 0; i < blocks->head.total; i++) {
        dpar_block block;
        int32_t d;
        move->exists[i] = blocks->owner[i] >= 0;
        if (blocks->owner[i] != blocks->head.comm->rank) {
            continue;
        }
        dpari_blocks_describe(blocks, i, &block);
        move->weight[i] = move->desc->weight ? move->desc->weight[blocks->slot[i]] : 1.0;
        for (d = 0; d < blocks->head.dims && !move->desc->weight; d++) {
            move->weight[i] *= (double)block.count[d];
        }
    }
    return DPAR_OK;
}

/* Decides about the new owners. Only rank 0 calls it. */
static DPARI_COLD dpar_status dpari_blocks_decide(dpari_blocks_mover *move, dpar_why *why)
{
    const dpari_blocks *blocks = move->blocks;
    const dpar_blocks_move_desc *desc = move->desc;
    dpar_blocks_rebalance_result *result = &move->result;
    dpar_blocks_assign_desc assign;
    dpar_blocks_rebalance_desc change;
    const dpari_blocks_array *array;
    dpar_status status;
    int32_t i;
    dpari_blocks_set_assign(blocks, &assign);
    assign.order = blocks->order;
    assign.exists = move->exists;
    assign.weight = move->weight;
    assign.memory = move->scratch;
    dpari_zero(&change, sizeof change);
    for (array = blocks->arrays; array; array = array->next) {
        change.block_bytes += array->shape->bytes;
    }
    if (!desc->owner) {
        change.blocks = &assign;
        change.owner = blocks->owner;
        change.steps = desc->steps;
        change.seconds_per_byte = desc->seconds_per_byte;
        change.seconds = desc->seconds;
        change.seconds_per_weight = desc->seconds_per_weight;
        change.threshold = desc->threshold;
        return dpar_blocks_rebalance(&change, move->owner, result, why);
    }
    for (i = 0; i < blocks->head.total; i++) {
        move->owner[i] = move->exists[i] ? desc->owner[i] : -1;
        result->blocks_moved += move->owner[i] != blocks->owner[i];
    }
    result->bytes_moved = result->blocks_moved * change.block_bytes;
    result->pays = result->blocks_moved > 0;
    status = dpar_blocks_measure(&assign, blocks->owner, &result->before, why);
    return status == DPAR_OK ? dpar_blocks_measure(&assign, move->owner, &result->after, why)
                             : status;
}

/* Gives rank 0's decision to all ranks. Collective. */
static DPARI_COLD dpar_status dpari_blocks_share_decision(dpari_blocks_mover *move, dpar_why *why)
{
    dpar_comm *comm = move->blocks->head.comm;
    const int64_t total = move->blocks->head.total;
    dpar_status status =
        dpar_all_reduce(comm, move->weight, move->weight, total, DPAR_F64, DPAR_SUM, NULL);
    if (status == DPAR_OK) {
        status = comm->rank == 0 ? dpari_blocks_decide(move, why) : DPAR_OK;
        status = dpari_agree(comm, status, why);
    }
    if (status == DPAR_OK) {
        status = dpar_broadcast(comm, move->owner, total, DPAR_I32, 0, NULL);
    }
    if (status == DPAR_OK) {
        status =
            dpar_broadcast(comm, &move->result, (int64_t)sizeof move->result, DPAR_U8, 0, NULL);
    }
    return status;
}

/* Allocates the new arrays and lists. Local. */
static DPARI_COLD dpar_status dpari_blocks_alloc_move(dpari_blocks_mover *move, dpar_why *why)
{
    dpari_blocks *blocks = move->blocks;
    dpar_comm *comm = blocks->head.comm;
    dpari_blocks_array *array;
    dpar_status status =
        dpari_blocks_list_own(blocks, move->owner, move->slot, &move->block, &move->count, why);
    const int64_t calls = (int64_t)blocks->head.count + move->count + 1;
    if (status != DPAR_OK) {
        return status;
    }
    move->call = (dpar_call *)dpari_object_alloc(comm, calls * (int64_t)sizeof *move->call);
    move->work = (dpar_work *)dpari_object_alloc(comm, calls * (int64_t)sizeof *move->work);
    if (!move->call || !move->work) {
        return dpari_say(DPAR_E_MEMORY, why, "dpar_blocks_move: no memory for %ld messages", calls);
    }
    for (array = blocks->arrays; array; array = array->next) {
        void *memory = NULL;
        int32_t i;
        status = dpar_comm_alloc(comm, dpari_most(move->count * array->shape->bytes, 1), &memory);
        if (status != DPAR_OK) {
            return dpari_repeat(status, why, comm->why.text);
        }
        array->next_memory = (unsigned char *)memory;
        array->next_block =
            (void **)dpari_object_alloc(comm, (move->count + 1) * (int64_t)sizeof(void *));
        if (!array->next_block) {
            return dpari_say(DPAR_E_MEMORY, why, "dpar_blocks_move: no memory for a table");
        }
        for (i = 0; i < move->count; i++) {
            array->next_block[i] =
                array->next_memory + i * array->shape->bytes + array->shape->origin;
        }
    }
    return DPAR_OK;
}

/* Sends the blocks of an array, or copies those that stay. Messages between two ranks are in the
 * order of blocks. Collective. */
static DPARI_COLD dpar_status dpari_blocks_send_blocks(const dpari_blocks_mover *move,
                                                       const dpari_blocks_array *array)
{
    const dpari_blocks *blocks = move->blocks;
    dpar_comm *comm = blocks->head.comm;
    const int64_t bytes = array->shape->bytes;
    int32_t i, n = 0;
    dpar_status status;
    for (i = 0; i < blocks->head.total; i++) {
        const int gives = blocks->owner[i] == comm->rank, takes = move->owner[i] == comm->rank;
        unsigned char *from = array->memory + blocks->slot[i] * bytes;
        unsigned char *to = array->next_memory + move->slot[i] * bytes;
        dpar_call *call = &move->call[n];
        if (gives && takes) {
            dpari_kern_copy(to, from, bytes, 0);
        } else if (gives || takes) {
            dpari_zero(call, sizeof *call);
            call->kind = gives ? DPAR_CALL_SEND : DPAR_CALL_RECV;
            call->type = DPAR_U8;
            call->root = gives ? move->owner[i] : blocks->owner[i];
            call->count = bytes;
            call->in = gives ? from : NULL;
            call->out = gives ? NULL : to;
            n++;
        }
    }
    status = n > 0 ? dpar_batch(comm, move->call, n, move->work) : DPAR_OK;
    return status == DPAR_OK && n > 0 ? dpar_wait_all(move->work, n) : status;
}

/* Replaces the owners and arrays by the new ones, which are then the ones to release. */
static DPARI_COLD void dpari_blocks_commit(dpari_blocks_mover *move)
{
    dpari_blocks *blocks = move->blocks;
    dpar_block *block = blocks->block;
    dpari_blocks_array *array;
    int32_t i;
    for (i = 0; i < blocks->head.total; i++) {
        blocks->owner[i] = move->owner[i];
        blocks->slot[i] = move->slot[i];
    }
    blocks->block = move->block;
    blocks->head.block = move->block;
    blocks->head.count = move->count;
    move->block = block;
    for (array = blocks->arrays; array; array = array->next) {
        unsigned char *memory = array->memory;
        void **table = array->head.block;
        array->memory = array->next_memory;
        array->head.block = array->next_block;
        array->next_memory = memory;
        array->next_block = table;
    }
}

/* Releases everything that the move does not need any more. */
static DPARI_COLD void dpari_blocks_end_move(dpari_blocks_mover *move)
{
    dpari_blocks_array *array;
    for (array = move->blocks->arrays; array; array = array->next) {
        dpar_comm_release(move->blocks->head.comm, array->next_memory);
        dpari_object_release(array->next_block);
        array->next_memory = NULL;
        array->next_block = NULL;
    }
    dpari_object_release(move->block);
    dpari_object_release(move->call);
    dpari_object_release(move->work);
    dpari_object_release(move->memory);
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_move(dpar_blocks *blocks,
                                                 const dpar_blocks_move_desc *desc,
                                                 dpar_blocks_rebalance_result *result,
                                                 dpar_why *why)
{
    dpari_blocks_mover move;
    dpari_blocks_array *array;
    dpar_comm *comm;
    dpar_status status;
    if (!blocks) {
        return dpari_wrong(why, "dpar_blocks_move: blocks is NULL");
    }
    comm = blocks->comm;
    why = dpari_why_of(comm, why);
    dpari_zero(&move, sizeof move);
    move.blocks = dpari_blocks_of(blocks);
    move.desc = desc;
    status = dpari_blocks_begin_move(&move, why);
    status = dpari_agree_on(comm, status, "dpar_blocks_move", dpari_blocks_move_state, &move, why);
    if (status == DPAR_OK) {
        status = dpari_blocks_share_decision(&move, why);
    }
    if (status == DPAR_OK && move.result.blocks_moved > 0) {
        status = dpari_blocks_alloc_move(&move, why);
        status = dpari_agree(comm, status, why);
        for (array = move.blocks->arrays; array && status == DPAR_OK; array = array->next) {
            status = dpari_blocks_send_blocks(&move, array);
        }
        if (status == DPAR_OK) {
            status = dpari_blocks_free_plans(move.blocks);
        }
        if (status == DPAR_OK) {
            dpari_blocks_commit(&move);
        }
    }
    if (status == DPAR_OK && result) {
        *result = move.result;
    }
    dpari_blocks_end_move(&move);
    return status;
}

/* ==== blocks/blocks.c ==== */

/* Makes and frees blocks and their arrays, and begins, tests and ends their exchanges. */

enum { DPARI_BLOCKS_ARRAYS = 4096 }; /* the most arrays of an exchange */

/* ---- blocks ---------------------------------------------------------------------------------- */

/* What the ranks compare before they use a description: the object has its cut, and the owners. */
typedef struct dpari_blocks_given {
    const dpar_blocks_desc *desc;
    const dpari_blocks *blocks;
} dpari_blocks_given;

static DPARI_COLD void dpari_blocks_desc_state(dpari_facts *facts, const void *given)
{
    const dpari_blocks_given *of = (const dpari_blocks_given *)given;
    const dpar_blocks_desc *desc = of->desc;
    uint64_t owners = 1;
    int32_t d, i;
    dpari_fact(facts, "dims", 0, desc->dims);
    dpari_fact(facts, "star", 0, desc->star);
    for (d = 0; d < desc->dims; d++) {
        dpari_fact(facts, "cells[#]", d, desc->cells[d]);
        dpari_fact(facts, "block[#]", d, of->blocks->head.size[d]);
        dpari_fact(facts, "halo_low[#]", d, of->blocks->low[d]);
        dpari_fact(facts, "halo_high[#]", d, of->blocks->high[d]);
        dpari_fact(facts, "periodic[#]", d, desc->periodic[d]);
    }
    dpari_fact(facts, "folds", 0, desc->folds);
    dpari_fact(facts, "fold", 0, desc->fold);
    dpari_fact(facts, "mirror", 0, desc->mirror);
    dpari_fact(facts, "poles", 0, desc->poles);
    dpari_fact(facts, "cube", 0, desc->cube);
    for (i = 0; i < of->blocks->head.total; i++) {
        owners = dpari_hash(owners, of->blocks->owner[i]);
    }
    dpari_fact_hash(facts, "owner (or exists, weight, order)", 0, owners);
}

/* Releases the object and its list of blocks. */
static DPARI_COLD void dpari_blocks_release(dpari_blocks *blocks)
{
    dpari_object_release(blocks->block);
    dpari_object_release(blocks);
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_make(dpar_comm *comm, const dpar_blocks_desc *desc,
                                                 dpar_blocks **blocks, dpar_why *why)
{
    dpari_blocks_given given;
    dpari_blocks *made = NULL;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_blocks_make: comm is NULL");
    }
    why = dpari_why_of(comm, why);
    if (!desc || !blocks) {
        status = dpari_wrong(why, "dpar_blocks_make: desc or blocks is NULL");
    } else {
        status = dpari_blocks_cut(comm, desc, &made, why);
    }
    if (status == DPAR_OK) {
        status = dpari_blocks_assign_owners(made, desc, why);
    }
    given.desc = desc;
    given.blocks = made;
    status = dpari_agree_on(comm, status, "blocks", dpari_blocks_desc_state, &given, why);
    if (status == DPAR_OK) {
        *blocks = &made->head;
    } else if (made) {
        dpari_blocks_release(made);
    }
    return status;
}

/* Releases an array. */
static DPARI_COLD void dpari_blocks_release_array(dpari_blocks_array *array)
{
    dpar_comm_release(array->head.blocks->comm, array->memory);
    dpari_object_release(array->head.block);
    dpari_object_release(array);
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_free(dpar_blocks *blocks)
{
    dpari_blocks *of = dpari_blocks_of(blocks);
    dpar_status status;
    if (!blocks) {
        return DPAR_OK;
    }
    if (of->in_use > 0 && blocks->comm->status == DPAR_OK) {
        return dpari_comm_wrong(blocks->comm,
                                "dpar_blocks_free: %d exchanges have not ended; call "
                                "dpar_blocks_end first",
                                of->in_use);
    }
    status = dpari_blocks_free_plans(of);
    while (of->arrays) {
        dpari_blocks_array *array = of->arrays;
        of->arrays = array->next;
        dpari_blocks_release_array(array);
    }
    while (of->shapes) {
        dpari_blocks_shape *shape = of->shapes;
        of->shapes = shape->next;
        dpari_object_release(shape);
    }
    dpari_blocks_release(of);
    return status;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* Lists what ranks must pass equally to make an array. */
static DPARI_COLD void dpari_blocks_shape_state(dpari_facts *facts, const void *given)
{
    const dpari_blocks_shape *shape = (const dpari_blocks_shape *)given;
    const dpar_blocks_field *field = &shape->field;
    int32_t d;
    dpari_fact(facts, "attached", 0, shape->attached);
    dpari_fact(facts, "strides", 0, shape->strided);
    dpari_fact_type(facts, "type", 0, shape->type);
    dpari_fact(facts, "components", 0, field->components);
    dpari_fact(facts, "planes", 0, field->planes);
    dpari_fact(facts, "order", 0, field->order);
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        dpari_fact(facts, "location[#]", d, field->location[d]);
    }
    dpari_fact(facts, "vector", 0, field->vector);
    dpari_fact(facts, "on_row", 0, field->on_row);
    dpari_fact(facts, "shift", 0, field->shift);
    dpari_fact(facts, "pole_rows", 0, field->pole_rows);
}

/* Finds the shape among those that are known, or adds it. All ranks have agreed on it, and have the
 * same shapes. Strides of attached arrays may differ between ranks, so that an array with strides
 * of its own is always a new shape. */
static DPARI_COLD const dpari_blocks_shape *dpari_blocks_find_shape(dpari_blocks *blocks,
                                                                    dpari_blocks_shape *shape)
{
    const uint64_t hash = dpari_facts_hash("blocks", dpari_blocks_shape_state, shape);
    dpari_blocks_shape *known;
    for (known = blocks->shapes; known; known = known->next) {
        if (!shape->strided &&
            dpari_facts_hash("blocks", dpari_blocks_shape_state, known) == hash) {
            return known;
        }
    }
    known = (dpari_blocks_shape *)dpari_object_alloc(blocks->head.comm, (int64_t)sizeof *known);
    if (known) {
        *known = *shape;
        known->number = blocks->shapes_known;
        known->next = blocks->shapes;
    }
    return known;
}

/* Sets the addresses of an array's blocks, which are in one allocation or given. */
static DPARI_COLD void dpari_blocks_set_addresses(dpari_blocks_array *array, void *const *block)
{
    const dpari_blocks_shape *shape = array->shape;
    int32_t i;
    for (i = 0; i < array->head.blocks->count; i++) {
        array->head.block[i] = block ? block[i] : array->memory + i * shape->bytes + shape->origin;
    }
}

/* Allocates an array of a shape. block: NULL to allocate its memory too. Local. */
static DPARI_COLD dpar_status dpari_blocks_new_array(dpari_blocks *blocks,
                                                     const dpari_blocks_shape *shape,
                                                     void *const *block, dpari_blocks_array **made,
                                                     dpar_why *why)
{
    dpar_comm *comm = blocks->head.comm;
    const int64_t count = blocks->head.count;
    void *memory = NULL;
    dpari_blocks_array *array =
        (dpari_blocks_array *)dpari_object_alloc(comm, (int64_t)sizeof *array);
    void **table = (void **)dpari_object_alloc(comm, (count + 1) * (int64_t)sizeof *table);
    int32_t d;
    if (!array || !shape || !table) {
        dpari_object_release(table);
        dpari_object_release(array);
        return dpari_say(DPAR_E_MEMORY, why, "blocks: no memory for the table of an array");
    }
    array->head.blocks = &blocks->head;
    array->head.type = shape->type;
    array->head.components = shape->field.components;
    array->head.component_stride = shape->field.component_stride;
    array->head.block = table;
    for (d = 0; d < blocks->head.dims; d++) {
        array->head.stride[d] = shape->field.stride[d];
    }
    array->shape = shape;
    *made = array;
    if (!shape->attached) {
        const dpar_status status =
            dpar_comm_alloc(comm, dpari_most(count * shape->bytes, 1), &memory);
        if (status != DPAR_OK) {
            return dpari_repeat(status, why, comm->why.text);
        }
        array->memory = (unsigned char *)memory;
    }
    dpari_blocks_set_addresses(array, block);
    return DPAR_OK;
}

/* Checks the addresses of blocks to be attached. */
static DPARI_COLD dpar_status dpari_blocks_check_addresses(const dpar_blocks *blocks,
                                                           void *const *block, int32_t type,
                                                           dpar_why *why)
{
    int32_t i;
    for (i = 0; i < blocks->count; i++) {
        if (!block || !block[i] || (uintptr_t)block[i] % (uintptr_t)dpar_type_bytes(type) != 0) {
            return dpari_wrong(why,
                               "dpar_blocks_attach: the address of block %d of %d is NULL or not "
                               "aligned to type %s",
                               i, blocks->count, dpar_type_name(type));
        }
    }
    return DPAR_OK;
}

/* Makes an array or attaches one. */
static DPARI_COLD dpar_status dpari_blocks_add_array(dpar_blocks *handle, void *const *block,
                                                     int32_t attached, int32_t type,
                                                     const dpar_blocks_field *field,
                                                     dpar_blocks_array **array, dpar_why *why)
{
    dpari_blocks *blocks = dpari_blocks_of(handle);
    dpari_blocks_array *made = NULL;
    const dpari_blocks_shape *known = NULL;
    dpari_blocks_shape shape;
    dpar_comm *comm;
    dpar_status status;
    if (!handle) {
        return dpari_wrong(why, "blocks array: blocks is NULL");
    }
    comm = handle->comm;
    why = dpari_why_of(comm, why);
    if (!array) {
        status = dpari_wrong(why, "blocks array: array is NULL");
    } else {
        status = dpari_blocks_set_shape(blocks, type, field, attached, &shape, why);
    }
    if (status == DPAR_OK && attached) {
        status = dpari_blocks_check_addresses(handle, block, type, why);
    }
    status = dpari_agree_on(comm, status, "blocks array", dpari_blocks_shape_state, &shape, why);
    if (status != DPAR_OK) {
        return status;
    }
    known = dpari_blocks_find_shape(blocks, &shape);
    status = dpari_blocks_new_array(blocks, known, block, &made, why);
    status = dpari_agree_on(comm, status, "blocks array", NULL, NULL, why);
    if (known && known->number == blocks->shapes_known) { /* it is new */
        if (status == DPAR_OK) {
            blocks->shapes = (dpari_blocks_shape *)(uintptr_t)known;
            blocks->shapes_known++;
        } else {
            dpari_object_release((void *)(uintptr_t)known);
        }
    }
    if (status == DPAR_OK) {
        made->next = blocks->arrays;
        blocks->arrays = made;
        *array = &made->head;
    } else if (made) {
        dpari_blocks_release_array(made);
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_array_make(dpar_blocks *blocks, int32_t type,
                                                       const dpar_blocks_field *field,
                                                       dpar_blocks_array **array, dpar_why *why)
{
    return dpari_blocks_add_array(blocks, NULL, 0, type, field, array, why);
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_attach(dpar_blocks *blocks, void *const *block,
                                                   int32_t type, const dpar_blocks_field *field,
                                                   dpar_blocks_array **array, dpar_why *why)
{
    return dpari_blocks_add_array(blocks, block, 1, type, field, array, why);
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_array_free(dpar_blocks_array *array)
{
    dpari_blocks_array *of = dpari_blocks_array_of(array);
    dpari_blocks_array **at;
    if (!array) {
        return DPAR_OK;
    }
    if (of->plan && array->blocks->comm->status == DPAR_OK) {
        return dpari_comm_wrong(array->blocks->comm, "dpar_blocks_array_free: an exchange of the "
                                                     "array has not ended; call dpar_blocks_end "
                                                     "first");
    }
    at = &dpari_blocks_of(array->blocks)->arrays;
    while (*at != of) {
        at = &(*at)->next;
    }
    *at = of->next;
    dpari_blocks_release_array(of);
    return DPAR_OK;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Checks the arrays of an exchange. */
static dpar_status dpari_blocks_check(dpari_blocks *blocks, dpar_blocks_array *const *arrays,
                                      int32_t count, int32_t op)
{
    dpar_comm *comm = blocks->head.comm;
    int32_t i;
    if (!arrays || count < 1 || count > DPARI_BLOCKS_ARRAYS) {
        return dpari_comm_wrong(comm, "blocks exchange: %d arrays, but 1 to %d are allowed",
                                arrays ? count : 0, (int32_t)DPARI_BLOCKS_ARRAYS);
    }
    blocks->stamp++;
    for (i = 0; i < count; i++) {
        dpari_blocks_array *array = dpari_blocks_array_of(arrays[i]);
        if (!array || array->head.blocks != &blocks->head) {
            return dpari_comm_wrong(
                comm, "blocks exchange: array %d of %d is NULL or of other blocks", i, count);
        }
        if (array->plan || array->stamp == blocks->stamp) {
            return dpari_comm_wrong(comm,
                                    array->plan ? "blocks exchange: an exchange of array %d of %d "
                                                  "has not ended; call dpar_blocks_end first"
                                                : "blocks exchange: array %d of %d is twice in "
                                                  "the list",
                                    i, count);
        }
        array->stamp = blocks->stamp;
        if (op != DPAR_COPY && !dpari_type_can_reduce(array->head.type)) {
            return dpari_comm_wrong(comm,
                                    "dpar_blocks_reduce: array %d has type %s, which cannot "
                                    "be combined",
                                    i, dpar_type_name(array->head.type));
        }
    }
    return DPAR_OK;
}

/* Marks the end of an exchange. */
static void dpari_blocks_mark_ended(dpari_blocks *blocks, dpari_blocks_plan *plan)
{
    int32_t i;
    for (i = 0; i < plan->arrays; i++) {
        plan->array[i]->plan = NULL;
    }
    plan->in_use = 0;
    blocks->in_use--;
}

/* Begins an exchange or an adjoint. */
static dpar_status dpari_blocks_begin_op(dpar_blocks *handle, dpar_blocks_array *const *arrays,
                                         int32_t count, int32_t op)
{
    dpari_blocks *blocks = dpari_blocks_of(handle);
    dpari_blocks_plan *plan = NULL;
    dpar_status status;
    int32_t i;
    if (!handle) {
        return DPAR_E_ARG;
    }
    if (handle->comm->status != DPAR_OK) {
        return handle->comm->status;
    }
    status = dpari_blocks_check(blocks, arrays, count, op);
    if (status == DPAR_OK) {
        status = dpari_blocks_find_plan(blocks, arrays, count, op, &plan);
    }
    if (status == DPAR_OK) {
        status = dpari_exchange_may_begin(&plan->x);
    }
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < count; i++) {
        plan->array[i] = dpari_blocks_array_of(arrays[i]);
        plan->array[i]->plan = plan;
    }
    plan->in_use = 1;
    blocks->in_use++;
    status = dpari_exchange_begin(&plan->x, op, (uint64_t)plan->number * (DPARI_EXCHANGE_OP + 1));
    if (status != DPAR_OK) {
        dpari_blocks_mark_ended(blocks, plan);
    }
    return status;
}

DPAR_API dpar_status dpar_blocks_begin(dpar_blocks *blocks, dpar_blocks_array *const *arrays,
                                       int32_t count)
{
    return dpari_blocks_begin_op(blocks, arrays, count, DPAR_COPY);
}

/* Returns the plan of the exchange in which an array takes part, or NULL. */
static dpari_blocks_plan *dpari_blocks_plan_of(const dpar_blocks *blocks,
                                               const dpar_blocks_array *array)
{
    return blocks && array && array->blocks == blocks ? dpari_blocks_array_of(array)->plan : NULL;
}

DPAR_API dpar_status dpar_blocks_test(dpar_blocks *blocks, dpar_blocks_array *array)
{
    dpari_blocks_plan *plan = dpari_blocks_plan_of(blocks, array);
    if (!blocks || !array || array->blocks != blocks) {
        return DPAR_E_ARG;
    }
    return plan ? dpari_exchange_advance(&plan->x, 0) : blocks->comm->status;
}

DPAR_API dpar_status dpar_blocks_end(dpar_blocks *blocks, dpar_blocks_array *array)
{
    dpari_blocks_plan *plan = dpari_blocks_plan_of(blocks, array);
    dpar_status status;
    if (!blocks || !array || array->blocks != blocks) {
        return DPAR_E_ARG;
    }
    if (!plan) {
        return blocks->comm->status;
    }
    status = dpari_exchange_advance(&plan->x, 1);
    if (status == DPAR_OK) {
        dpari_blocks_clear(plan);
    }
    dpari_blocks_mark_ended(dpari_blocks_of(blocks), plan);
    return status;
}

DPAR_API dpar_status dpar_blocks_exchange_many(dpar_blocks *blocks,
                                               dpar_blocks_array *const *arrays, int32_t count)
{
    const dpar_status status = dpari_blocks_begin_op(blocks, arrays, count, DPAR_COPY);
    return status == DPAR_OK ? dpar_blocks_end(blocks, arrays[0]) : status;
}

DPAR_API dpar_status dpar_blocks_exchange(dpar_blocks *blocks, dpar_blocks_array *array)
{
    return dpar_blocks_exchange_many(blocks, &array, 1);
}

DPAR_API dpar_status dpar_blocks_reduce(dpar_blocks *blocks, dpar_blocks_array *const *arrays,
                                        int32_t count, int32_t op)
{
    dpar_status status;
    if (blocks && op != DPAR_SUM && op != DPAR_MIN && op != DPAR_MAX) {
        return dpari_comm_wrong(blocks->comm,
                                "dpar_blocks_reduce: op is %d, but must be DPAR_SUM, "
                                "DPAR_MIN or DPAR_MAX",
                                op);
    }
    status = dpari_blocks_begin_op(blocks, arrays, count, op);
    return status == DPAR_OK ? dpar_blocks_end(blocks, arrays[0]) : status;
}

#endif /* DPAR_BLOCKS_IMPLEMENTATION */
