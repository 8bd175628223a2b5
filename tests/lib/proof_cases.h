/* SPDX-License-Identifier: MIT-0 */
/* proof_cases: random grids for proofs, and lists of transfers that a test may change before they
 * are proved. */
#ifndef PROOF_CASES_H
#define PROOF_CASES_H

#include "dpar_proof.h"

#include "axes.h"
#include "check.h"
#include "random.h"

enum { CASE_RANKS = 64, CASE_LIST = 400 };

static int64_t proof_memory[1 << 18];

/* ---- random grids ---------------------------------------------------------------------------- */

static int64_t case_cuts[DPAR_MAX_DIMS][CASE_RANKS + 1];

/* Sets fields of a grid that has a fold or poles. */
static void case_bend(dpar_halo *h)
{
    h->fold = below(h->grid.dims - 1);
    h->mirror = h->fold + 1 + below(h->grid.dims - 1 - h->fold);
    h->periodic = (h->periodic | 1u << h->mirror) & ~(1u << h->fold);
    if (below(2)) {
        h->folds = 1;
        h->on_row = below(2);
        h->shift = below(3) - 1;
    }
    if (below(2)) {
        h->poles = (uint32_t)(1 + below(h->folds ? 1 : 3));
        h->pole_rows = h->poles & (uint32_t)below(4);
    }
}

/* Makes a random grid. Returns 0 if its description is refused. */
static int case_grid(dpar_halo *h)
{
    static const int32_t rules[] = {DPAR_SPLIT_CHUNK, DPAR_SPLIT_EVEN, DPAR_SPLIT_FLOOR,
                                    DPAR_SPLIT_RAGGED};
    dpar_placement p[4];
    dpar_mesh mesh;
    int32_t dims = 1 + below(3), parts[4], d, left = 12, axes = dims;
    int64_t extent[4], i;
    const int cube = dims == 3 && below(4) == 0;
    memset(h, 0, sizeof *h);
    for (d = 0; d < dims; d++) {
        parts[d] = 1 + below(left < 4 ? left : 4);
        left /= parts[d];
        extent[d] = 1 + below(dims == 3 ? 6 : 12);
        if (cube) {
            extent[d] = d == 0 ? 6 : extent[1];
        }
        p[d] = dpar_shard_by(d, rules[below(4)], 0);
        case_cuts[d][0] = 0;
        for (i = 1; i <= parts[d]; i++) {
            case_cuts[d][i] = case_cuts[d][i - 1] + below((int)extent[d] + 1 - (int)case_cuts[d][i - 1]);
        }
        case_cuts[d][parts[d]] = extent[d];
        if (p[d].rule == DPAR_SPLIT_RAGGED) {
            p[d].cuts = case_cuts[d];
        }
    }
    if (below(4) == 0) { /* another axis, which replicates the grid or cuts dim 0 again */
        parts[dims] = 2;
        p[dims] = below(2) ? dpar_replicate() : dpar_shard_by(0, DPAR_SPLIT_EVEN, 0);
        axes++;
    }
    if (dpar_mesh_init(&mesh, axis_names(axes), parts, below(2), 0, NULL) < 0 ||
        dpar_layout_init(&h->grid, &mesh, dims, extent, p, NULL) < 0) {
        return 0;
    }
    h->shape = below(3);
    h->cube = cube;
    h->periodic = cube ? 0 : (uint32_t)below(1 << dims);
    for (d = 0; d < dims; d++) {
        h->low[d] = cube && d == 0 ? 0 : below(4);
        h->high[d] = cube && d == 0 ? 0 : below(4);
        h->points[d] = cube ? 0 : below(3);
    }
    if (!cube && dims > 1 && below(2)) {
        case_bend(h);
    } else if (!cube && below(4) == 0) {
        d = below(dims);
        h->points[d] = DPAR_HALO_AT_CELLS;
        h->shape = DPAR_STENCIL_BOX;
        h->window[d].kernel = 1 + below(5);
        h->window[d].stride = 1 + below(2);
        h->window[d].pad_low = h->window[d].pad_high = below(3);
    }
    return dpar_halo_check(h, NULL) == DPAR_OK;
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* The lists of all ranks: [direction][rank]. */
typedef struct case_lists {
    int count[2][CASE_RANKS];
    dpar_transfer t[2][CASE_RANKS][CASE_LIST];
} case_lists;

static int case_next(void *context, int32_t rank, int32_t direction, int64_t n, dpar_transfer *t)
{
    const case_lists *lists = (const case_lists *)context;
    if (n >= lists->count[direction][rank]) {
        return 0;
    }
    *t = lists->t[direction][rank][n];
    return 1;
}

/* Fills the lists of a halo. */
static void case_walk(case_lists *lists, const dpar_halo *h, int32_t ranks)
{
    int32_t rank, direction;
    memset(lists->count, 0, sizeof lists->count);
    for (rank = 0; rank < ranks; rank++) {
        for (direction = 0; direction < 2; direction++) {
            dpar_halo_cursor w;
            int *n = &lists->count[direction][rank];
            CHECK_INT(dpar_halo_first(&w, h, rank, direction, DPAR_HALO_FORWARD, NULL), DPAR_OK);
            while (*n < CASE_LIST && dpar_halo_next(&w, &lists->t[direction][rank][*n])) {
                ++*n;
            }
            CHECK(*n < CASE_LIST);
        }
    }
}

#endif
