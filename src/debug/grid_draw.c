/* SPDX-License-Identifier: MIT-0 */
/* Draws the owners of a grid's cells as tables. Reads the grid by its public functions. */
#include "grid_draw.h"

#include "../base/base_private.h"
#include "../index/halo.h"
#include "../index/layout.h"
#include "../index/mesh.h"

/* Writes n numbers with a separator between them. */
static void dpari_gx_put_list(dpar_text *text, const int64_t *v, int32_t n, const char *separator)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        dpari_text_print(text, "%s%ld", i > 0 ? separator : "", v[i]);
    }
}

/* Writes the cells of part p of a dim, such as "40..79" or "none". */
static void dpari_gx_put_cells(dpar_text *text, const dpar_layout *cells, int32_t d, int32_t p)
{
    int64_t count[DPAR_MAX_DIMS], first[DPAR_MAX_DIMS];
    int32_t coord[DPAR_MAX_AXES] = {0};
    coord[d] = p;
    dpar_layout_local(cells, dpar_mesh_rank(&cells->mesh, coord), count, first);
    if (count[d] == 0) {
        dpar_text_put(text, "none");
        return;
    }
    dpari_text_print(text, "%ld..%ld", first[d], first[d] + count[d] - 1);
}

/* Writes a table of the ranks along the last two dims, of which the last one runs to the right.
 * coord: the part in each of the other dims. */
static void dpari_gx_put_table(dpar_text *text, const dpar_grid *grid, const dpar_layout *cells,
                               int32_t *coord)
{
    const int32_t x = grid->dims - 1, y = x - 1;
    int32_t i, j;
    for (i = -1; i < (y < 0 ? 1 : grid->parts[y]); i++) {
        for (j = 0; j < grid->parts[x]; j++) {
            dpari_text_column(text, (size_t)(14 + 14 * j));
            if (i < 0) {
                dpari_gx_put_cells(text, cells, x, j);
                continue;
            }
            coord[x] = j;
            if (y >= 0) {
                coord[y] = i;
            }
            dpari_text_print(text, "rank %d", dpar_mesh_rank(&cells->mesh, coord));
        }
        dpar_text_put(text, "\n");
        if (y >= 0 && i + 1 < grid->parts[y]) {
            dpar_text_put(text, "  ");
            dpari_gx_put_cells(text, cells, y, i + 1);
        }
    }
}

DPAR_API DPARI_COLD void dpar_grid_draw(const dpar_grid *grid, dpar_text *out)
{
    const dpar_halo *halo = dpar_grid_halo(grid);
    int32_t coord[DPAR_MAX_AXES] = {0};
    int64_t parts[DPAR_MAX_DIMS];
    int32_t d, k;
    if (!halo || !out) {
        return;
    }
    for (d = 0; d < grid->dims; d++) {
        parts[d] = grid->parts[d];
    }
    dpari_gx_put_list(out, grid->cells, grid->dims, " x ");
    dpar_text_put(out, " cells on ");
    dpari_gx_put_list(out, parts, grid->dims, " x ");
    dpar_text_put(out, " ranks, halo ");
    dpari_gx_put_list(out, halo->low, grid->dims, " ");
    for (d = 0; d < grid->dims; d++) {
        if (halo->low[d] != halo->high[d]) {
            dpar_text_put(out, " below, ");
            dpari_gx_put_list(out, halo->high, grid->dims, " ");
            dpar_text_put(out, " above");
            break;
        }
    }
    dpar_text_put(out, "\n");
    do { /* for each combination of parts of the dims before the last two */
        for (d = 0; d < grid->dims - 2; d++) {
            dpari_text_print(out, "%s%d: ", d > 0 ? ", dim " : "dim ", d);
            dpari_gx_put_cells(out, &halo->grid, d, coord[d]);
        }
        dpar_text_put(out, grid->dims > 2 ? "\n" : "");
        dpari_gx_put_table(out, grid, &halo->grid, coord);
        for (k = grid->dims - 3; k >= 0; k--) { /* next one; the last of these dims is fastest */
            coord[k]++;
            if (coord[k] < grid->parts[k]) {
                break;
            }
            coord[k] = 0;
        }
    } while (k >= 0);
}
