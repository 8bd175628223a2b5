/* SPDX-License-Identifier: MIT-0 */
/* Computes the boxes of ranks, and finds the best grids of ranks. The table in pencil.h shows which
 * dim is cut over which number of the grid. */
#include "pencil_cut.h"

#include "../index/split.h"
#include "pencil.h"

/* Returns over which number of the grid, 0 or 1, dim d of a pencil is cut, or -1 if it is whole. */
static int32_t dpari_pencil_cut_by(int32_t axis, int32_t d)
{
    if (d == axis) {
        return -1;
    }
    if (axis == 1) {
        return d == 0 ? 0 : 1;
    }
    return axis == 2 ? d : d - 1;
}

/* Sets order[0..2] to the dims of a pencil in memory, the slowest first. */
static void dpari_pencil_dims(const dpari_pencil_cut *cut, int32_t axis, int32_t *order)
{
    int32_t d, n = 0;
    for (d = 0; d < 3; d++) {
        if (d != axis || cut->order == DPAR_PENCIL_GLOBAL_ORDER) {
            order[n++] = d;
        }
    }
    if (n < 3) {
        order[n] = axis;
    }
}

DPARI_INTERNAL void dpari_pencil_pack_strides(const dpari_pencil_cut *cut, int32_t axis,
                                              dpari_pencil_box *box)
{
    int64_t points = 1;
    int32_t order[3], d;
    dpari_pencil_dims(cut, axis, order);
    for (d = 2; d >= 0; d--) {
        box->stride[order[d]] = points;
        points *= box->count[order[d]];
    }
}

DPARI_INTERNAL dpari_pencil_box dpari_pencil_box_of(const dpari_pencil_cut *cut, int32_t rank,
                                                    int32_t axis)
{
    /* the number of the grid, 0 or 1, in whose direction consecutive ranks are neighbours */
    const int32_t fast = cut->rank_order == DPAR_ORDER_LAST_FASTEST ? 1 : 0;
    dpari_pencil_box box;
    int64_t points = 1;
    int32_t at[2], d;
    at[fast] = rank % cut->grid[fast];
    at[1 - fast] = rank / cut->grid[fast];
    for (d = 0; d < 3; d++) {
        const int32_t by = dpari_pencil_cut_by(axis, d);
        box.first[d] = 0;
        box.count[d] = cut->size[d];
        if (by >= 0) { /* with last_larger, parts and points are counted from the end of the dim */
            const int32_t part = cut->last_larger ? cut->grid[by] - 1 - at[by] : at[by];
            (void)dpar_split_range(DPAR_SPLIT_EVEN, cut->size[d], cut->grid[by], part,
                                   &box.first[d], &box.count[d]);
            if (cut->last_larger) {
                box.first[d] = cut->size[d] - box.first[d] - box.count[d];
            }
        }
        points *= box.count[d];
    }
    for (d = 0; d < 3 && points == 0; d++) {
        box.count[d] = 0;
    }
    dpari_pencil_pack_strides(cut, axis, &box);
    return box;
}

DPARI_INTERNAL int64_t dpari_pencil_common(const dpari_pencil_box *a, const dpari_pencil_box *b,
                                           dpari_pencil_box *common)
{
    int64_t points = 1;
    int32_t d;
    for (d = 0; d < 3; d++) {
        const int64_t end = dpari_least(a->first[d] + a->count[d], b->first[d] + b->count[d]);
        common->first[d] = dpari_most(a->first[d], b->first[d]);
        common->count[d] = dpari_most(end - common->first[d], 0);
        common->stride[d] = 0;
        points *= common->count[d];
    }
    return points;
}

/* Returns the cost of a grid, in points: those in the three pencils of the busiest rank, and those
 * that it sends in transposes from 2 to 1 and from 1 to 0, with its messages. This is the rank with
 * the largest part of each dim: rank 0, or the last one. */
static int64_t dpari_pencil_grid_cost(const dpari_pencil_cut *cut, int32_t g0, int32_t g1)
{
    const int64_t *size = cut->size;
    const int64_t n0 = dpari_ceil_div(size[0], g0), n1 = dpari_ceil_div(size[1], g1);
    const int64_t m1 = dpari_ceil_div(size[1], g0), n2 = dpari_ceil_div(size[2], g1);
    const int64_t held = n0 * n1 * size[2] + n0 * size[1] * n2 + size[0] * m1 * n2;
    const int64_t sent = n0 * n1 * (size[2] - n2) + n0 * n2 * (size[1] - m1);
    const int64_t messages = dpari_least(g1, size[2]) + dpari_least(g0, size[1]) - 2;
    return held + sent + dpari_ceil_div(messages * DPARI_PENCIL_MESSAGE_BYTES, cut->point);
}

DPARI_INTERNAL int32_t dpari_pencil_grids(const dpari_pencil_cut *cut, int32_t ranks,
                                          int32_t (*grid)[2])
{
    int64_t cost[DPARI_PENCIL_MOST_GRIDS + 1];
    int32_t n = 0, g0, i;
    for (g0 = ranks; g0 > 0; g0--) {
        const int32_t g1 = ranks / g0;
        int64_t mine;
        if (g0 * g1 != ranks || (cut->grid[0] != 0 && cut->grid[0] != g0) ||
            (cut->grid[1] != 0 && cut->grid[1] != g1)) {
            continue;
        }
        mine = dpari_pencil_grid_cost(cut, g0, g1);
        for (i = n; i > 0 && cost[i - 1] > mine; i--) {
            cost[i] = cost[i - 1];
            if (i < DPARI_PENCIL_MOST_GRIDS) {
                grid[i][0] = grid[i - 1][0];
                grid[i][1] = grid[i - 1][1];
            }
        }
        if (i < DPARI_PENCIL_MOST_GRIDS) {
            cost[i] = mine;
            grid[i][0] = g0;
            grid[i][1] = g1;
            n = (int32_t)dpari_least(n + 1, DPARI_PENCIL_MOST_GRIDS);
        }
    }
    return n;
}
