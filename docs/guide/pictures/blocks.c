/* SPDX-License-Identifier: MIT-0 */
/* The owners of the blocks of an ocean, before and after ice makes the polar blocks expensive. */
#include "../../../helpers/continents.h"
#include "dpar_blocks.h"
#include "pictures.h"

enum {
    OCEAN_ROWS = 18,
    OCEAN_COLUMNS = 36,
    OCEAN_BLOCKS = OCEAN_ROWS * OCEAN_COLUMNS,
    OCEAN_RANKS = 24
};

int draw_blocks(dpar_text *t, dpar_why *why)
{
    static double cells[OCEAN_BLOCKS];
    static unsigned char exists[OCEAN_BLOCKS];
    static int32_t before[OCEAN_BLOCKS], after[OCEAN_BLOCKS];
    static int64_t memory[2 * OCEAN_BLOCKS + 5 * OCEAN_RANKS + 3];
    dpar_blocks_assign_desc ocean = {0};
    dpar_blocks_rebalance_desc ice = {0};
    dpar_blocks_rebalance_result moved;
    dpar_blocks_draw_desc picture = {0};
    int i;
    count_ocean(720, 1440, 40, 40, cells);
    ocean.dims = 2;
    ocean.ranks = OCEAN_RANKS;
    ocean.periodic = 2;
    ocean.cells[0] = 720;
    ocean.cells[1] = 1440;
    ocean.block[0] = 40;
    ocean.block[1] = 40;
    ocean.exists = exists;
    ocean.weight = cells;
    ocean.memory = memory;
    ocean.bytes = sizeof memory;
    for (i = 0; i < OCEAN_BLOCKS; i++) {
        exists[i] = cells[i] > 0;
    }
    if (dpar_blocks_assign(&ocean, before, NULL, why) < 0) {
        return 1;
    }
    for (i = 0; i < OCEAN_BLOCKS; i++) { /* ice beyond 60 degrees: three times the work */
        const int row = i / OCEAN_COLUMNS;
        cells[i] *= row < 3 || row >= OCEAN_ROWS - 3 ? 3 : 1;
    }
    ice.blocks = &ocean;
    ice.owner = before;
    if (dpar_blocks_rebalance(&ice, after, &moved, why) < 0) {
        return 1;
    }
    picture.blocks = &ocean;
    picture.title = "blocks of an ocean, before and after ice makes polar blocks expensive";
    picture.before = before;
    picture.stats_before = &moved.before;
    picture.owner = after;
    picture.stats = &moved.after;
    return dpar_blocks_draw(t, &picture, DPAR_BLOCKS_DRAW_SVG, why) < 0;
}
