/* SPDX-License-Identifier: MIT-0 */
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
#ifndef DPARI_BLOCKS_BLOCKS_OWNER_H
#define DPARI_BLOCKS_BLOCKS_OWNER_H

#include "../base/base.h"
#include "../base/box.h"

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

#endif
