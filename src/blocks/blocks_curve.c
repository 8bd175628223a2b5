/* SPDX-License-Identifier: MIT-0 */
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
#include "blocks_curve.h"

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
