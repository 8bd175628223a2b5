/* SPDX-License-Identifier: MIT-0 */
/* grid_draw - draws which ranks own which cells of a grid (grid.h), as text.
 *
 *     dpar_text_init(&text, page, sizeof page);
 *     dpar_grid_draw(grid, &text); */
#ifndef DPARI_DEBUG_GRID_DRAW_H
#define DPARI_DEBUG_GRID_DRAW_H

#include "../base/text.h"
#include "../halo/grid.h"

/* Draws which rank owns which cells, as text. The first line describes the grid. A table follows
 * for each combination of parts of the dims before the last two. It shows which ranks own the cells
 * in the last two dims. Draws nothing if a pointer is NULL. Local. Costs O(ranks). */
DPAR_API void dpar_grid_draw(const dpar_grid *grid, dpar_text *out);

#endif
