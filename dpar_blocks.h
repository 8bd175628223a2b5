/* SPDX-License-Identifier: MIT-0 */
/* dpar_blocks.h - cuts a grid into many small blocks, of which each rank owns some.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there. */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar_halo.h")
#error dpar_blocks.h needs dpar_halo.h beside it, of the same release
#endif
#endif
#include "dpar_halo.h"
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
    const unsigned char *exists;  /* [blocks] 0 for blocks without an owner, such as land; NULL if
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
 * Weights are rounded to 1 / 2^k of the largest power of 2 that is not above the largest weight.
 * Here k is at most 52, and small enough that the number of blocks times 2^k is at most 2^59. Whole
 * numbers are therefore exact up to 2^28, and with 1000 blocks up to 2^49.
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
    int64_t steps;             /* that the new owners will be used for; at least 1, but 0 is allowed
                                  if moving costs nothing */
    int64_t block_bytes;       /* that travel with a block: its share of all arrays */
    double seconds_per_byte;   /* for the bytes that a rank sends and receives */
    double seconds;            /* that a move takes in addition, such as the time to plan */
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
 * little as balance allows. For that the heaviest rank may be above the least possible weight by
 * nothing, 1/64, 1/32, 1/16, 1/8 or 1/4, whichever saves the most after the cost of moving. Nothing
 * moves if the cost is not less than the gain, or if the threshold is not reached. If the present
 * owners are not contiguous in this order, the new ones are those of dpar_blocks_assign.
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

#endif /* DPAR_BLOCKS_IMPLEMENTATION */
