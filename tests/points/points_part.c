/* SPDX-License-Identifier: MIT-0 */
/* Tests the Hilbert curve by its properties: cells of a grid that begins at 0 have the first
 * places, each once, and successive cells have a side in common, in 2 and 3 dims and on every
 * level. Run with: tests/run test points. */
#include "dpar_points.h"

#include "check.h"

#include <stdlib.h>

static int bits_of(int dims)
{
    return dims == 2 ? 31 : 21;
}

/* Checks the cells of a grid of `side` cells, each several of the finest cells wide. */
static void grid(int dims, uint32_t side, int level)
{
    const int64_t n = dims == 2 ? (int64_t)side * side : (int64_t)side * side * side;
    uint32_t(*cell)[3] = (uint32_t(*)[3])calloc((size_t)n, sizeof *cell);
    int64_t i;
    int d;
    CHECK(cell != NULL);
    for (i = 0; i < n && cell != NULL; i++) {
        uint32_t x[3] = {(uint32_t)(i % side), (uint32_t)(i / side % side),
                         (uint32_t)(i / side / side)};
        int64_t place;
        for (d = 0; d < dims; d++) {
            x[d] <<= level;
        }
        place = dpari_points_curve(dims, x) >> (level * dims);
        CHECK(place >= 0 && place < n);
        for (d = 0; d < 3 && place >= 0 && place < n; d++) {
            cell[place][d] = (x[d] >> level) + 1; /* 0: no cell has this place */
        }
    }
    for (i = 0; i < n && cell != NULL; i++) {
        int64_t steps = 0;
        for (d = 0; d < dims; d++) {
            CHECK(cell[i][d] > 0);
            steps += i > 0 ? llabs((long long)cell[i][d] - (long long)cell[i - 1][d]) : 0;
        }
        CHECK_INT(steps, i > 0);
    }
    free(cell);
}

int main(void)
{
    const uint32_t last2[2] = {0x7fffffffu, 0x7fffffffu},
                   last3[3] = {0x1fffffu, 0x1fffffu, 0x1fffffu};
    const uint32_t beyond2[2] = {0, 0x80000000u}, beyond3[3] = {0, 0, 0x200000u};
    int dims, level;
    for (dims = 2; dims <= 3; dims++) {
        const int bits = bits_of(dims);
        for (level = 0; level < 6; level++) { /* the corner at 0, in the finest steps */
            grid(dims, 1u << level, 0);
        }
        for (level = 1; level < 6; level++) { /* the whole curve in coarse steps */
            grid(dims, 1u << level, bits - level);
        }
    }
    CHECK(dpari_points_curve(2, last2) > 0 && dpari_points_curve(3, last3) > 0);
    CHECK_INT(dpari_points_curve(2, beyond2), -1);
    CHECK_INT(dpari_points_curve(3, beyond3), -1);
    CHECK_INT(dpari_points_curve(1, last2), -1);
    CHECK_INT(dpari_points_curve(4, last3), -1);
    return CHECK_DONE();
}
