/* SPDX-License-Identifier: MIT-0 */
/* Finds stencils that read stale cells of a deep halo.
 *
 * A cell that is not valid is set to a quiet NaN whose payload is a mark: the number of its array,
 * the sub-step after which it became stale, and its number in the array. Processors pass the
 * payload of an operand on to the result. So if a cell holds the mark of another cell, its stencil
 * has read that cell. This is how a box that is too large is found, whose cells are not valid
 * anyway: cells outside of the box of the sub-step may hold their own mark or a value, but no
 * foreign mark. */
#include "grid_check.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/box.h"
#include "../base/text.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/engine.h"
#include "../comm/os.h"
#include "../halo/grid_access.h"
#include "../index/halo.h"

enum {
    DPARI_STEP_NEVER = 63, /* the sub-step of a mark from dpar_grid_poison */
    DPARI_STEP_ARRAYS = 127
};

/* An array, and the ranges of its points in each dim, in loop indices: 0 is the first own point. */
typedef struct dpari_marked {
    dpari_gx_access to;
    const dpar_grid *grid;
    dpar_box all;    /* all points of the memory */
    dpar_box inside; /* without those beyond an end of the grid that is not periodic */
    dpar_box open;   /* without those beyond a wall */
    dpar_box valid;  /* those that the sub-step computes */
    int32_t number;  /* of the array in the list */
} dpari_marked;

/* A point: its indices, its number in the array, and its address. */
typedef struct dpari_marked_point {
    int64_t at[DPAR_MAX_DIMS], number;
    unsigned char *memory; /* of its first component */
} dpari_marked_point;

static DPARI_COLD int dpari_marked_in(const dpar_box *box, const int64_t *at)
{
    int32_t d;
    for (d = 0; d < box->dims; d++) {
        if (at[d] < box->lo[d] || at[d] >= box->hi[d]) {
            return 0;
        }
    }
    return 1;
}

/* Describes array i of the list. j: the sub-step, or -1 if no point is valid. */
static DPARI_COLD dpar_status dpari_marked_init(dpari_marked *marked, dpar_grid *grid,
                                                void *const *arrays, int32_t i, int32_t j,
                                                dpar_why *why)
{
    int32_t d;
    dpari_zero(marked, sizeof *marked);
    if (!dpari_gx_access_to(grid, arrays[i], &marked->to) || marked->to.device ||
        (marked->to.type != DPAR_F64 && marked->to.type != DPAR_F32)) {
        return dpari_wrong(why,
                           "dpar_grid_check_step: array %d is not an array of the grid of DPAR_F64 "
                           "or DPAR_F32 in memory of the CPU",
                           i);
    }
    marked->grid = grid;
    marked->number = i;
    marked->all.dims = marked->valid.dims = grid->dims;
    (void)dpar_grid_valid(grid, j, &marked->valid);
    for (d = 0; d < grid->dims; d++) {
        const int64_t faces = marked->to.field->location[d] != DPAR_HALO_AT_CELLS;
        marked->all.lo[d] = -marked->to.low[d];
        marked->all.hi[d] = grid->count[d] + faces + marked->to.high[d];
        marked->valid.hi[d] += j < 0 ? 0 : faces;
    }
    marked->inside = marked->all;
    for (d = 0; d < grid->dims; d++) {
        const int64_t faces = marked->to.field->location[d] != DPAR_HALO_AT_CELLS;
        if (!marked->to.desc->periodic[d]) {
            marked->inside.lo[d] = dpari_most(marked->all.lo[d], -grid->first[d]);
            marked->inside.hi[d] =
                dpari_least(marked->all.hi[d], grid->cells[d] - grid->first[d] + faces);
        }
    }
    marked->open = marked->inside;
    for (d = 0; d < grid->dims; d++) {
        if (marked->to.field->mirror_low[d] != 0) {
            marked->open.lo[d] = marked->all.lo[d];
        }
        if (marked->to.field->mirror_high[d] != 0) {
            marked->open.hi[d] = marked->all.hi[d];
        }
    }
    return DPAR_OK;
}

/* Sets the address of a point. */
static DPARI_COLD void dpari_marked_place(const dpari_marked *marked, dpari_marked_point *point)
{
    int64_t element = 0;
    int32_t d;
    for (d = 0; d < marked->grid->dims; d++) {
        element += point->at[d] * marked->to.field->stride[d];
    }
    point->memory = marked->to.first + element * dpar_type_bytes(marked->to.type);
}

/* Advances to the next point in C order, and before the first one if number is -1. Returns 1, or 0
 * after the last. Blocks without cells have no points. */
static DPARI_COLD int dpari_marked_next(const dpari_marked *marked, dpari_marked_point *point)
{
    int32_t d = marked->grid->dims - 1;
    if (point->number++ < 0) {
        for (d = 0; d < marked->grid->dims; d++) {
            if (marked->grid->count[d] == 0) {
                return 0;
            }
            point->at[d] = marked->all.lo[d];
        }
    } else {
        while (++point->at[d] == marked->all.hi[d]) {
            point->at[d] = marked->all.lo[d];
            if (--d < 0) {
                return 0;
            }
        }
    }
    dpari_marked_place(marked, point);
    return 1;
}

/* Returns the mark of a point. A float has room for few bits of the point's number, so it gets a
 * hash of it. */
static DPARI_COLD uint64_t dpari_mark_of(const dpari_marked *marked, int64_t point, int32_t step)
{
    const uint64_t number = (uint64_t)dpari_least(marked->number, DPARI_STEP_ARRAYS);
    const uint32_t low = (uint32_t)point;
    if (marked->to.type == DPAR_F64) {
        return (UINT64_C(0x7ff8) << 48) | (UINT64_C(0x2a) << 45) | (number << 38) |
               ((uint64_t)step << 32) | low;
    }
    return UINT64_C(0x7fe00000) | (number << 14) | ((uint64_t)step << 8) |
           (low * UINT32_C(2654435761) >> 24);
}

/* Reads an element without its sign, because the sign of a NaN may change. */
static DPARI_COLD uint64_t dpari_marked_read(const dpari_marked *marked,
                                             const unsigned char *element)
{
    uint32_t single;
    uint64_t bits;
    if (marked->to.type == DPAR_F64) {
        memcpy(&bits, element, 8);
        return bits & ~(UINT64_C(1) << 63);
    }
    memcpy(&single, element, 4);
    return single & UINT32_C(0x7fffffff);
}

static DPARI_COLD int dpari_marked_nan(const dpari_marked *marked, uint64_t bits)
{
    return bits > (marked->to.type == DPAR_F64 ? UINT64_C(0x7ff) << 52 : UINT64_C(0x7f800000));
}

/* True if a NaN has a mark. */
static DPARI_COLD int dpari_marked_is_mark(const dpari_marked *marked, uint64_t bits)
{
    return marked->to.type == DPAR_F64 ? bits >> 45 == 0x3ffea : bits >> 21 == 0x3ff;
}

/* Sets the points that are open and not valid to their marks. */
static DPARI_COLD void dpari_marked_poison(const dpari_marked *marked, int32_t step)
{
    const int64_t bytes = dpar_type_bytes(marked->to.type);
    dpari_marked_point point;
    point.number = -1;
    while (dpari_marked_next(marked, &point)) {
        const uint64_t mark = dpari_mark_of(marked, point.number, step);
        const uint32_t single = (uint32_t)mark;
        int32_t c;
        if (!dpari_marked_in(&marked->open, point.at) ||
            dpari_marked_in(&marked->valid, point.at)) {
            continue;
        }
        for (c = 0; c < marked->to.field->components; c++) {
            unsigned char *element = point.memory + c * marked->to.field->component_stride * bytes;
            memcpy(element, bytes == 8 ? (const void *)&mark : (const void *)&single,
                   (size_t)bytes);
        }
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Writes the index of a point in the whole grid, such as "12, 7". */
static DPARI_COLD const char *dpari_marked_put(const dpari_marked *marked, const int64_t *at,
                                               char *buffer, size_t bytes)
{
    const dpar_grid *grid = marked->grid;
    dpar_text text;
    int32_t d;
    dpar_text_init(&text, buffer, bytes);
    for (d = 0; d < grid->dims; d++) {
        int64_t i = grid->first[d] + at[d];
        if (marked->to.desc->periodic[d]) {
            i = (i % grid->cells[d] + grid->cells[d]) % grid->cells[d];
        }
        dpari_text_say(&text, d > 0 ? ", %ld" : "%ld", i);
    }
    return buffer;
}

/* Finds the point of a mark, at[], from its number in the array. Returns how many cells it is away
 * from another point, in the dim in which that is most. */
static DPARI_COLD int64_t dpari_marked_source(const dpari_marked *marked, uint32_t number,
                                              const int64_t *from, int64_t *at)
{
    int64_t rest = number, away = 0;
    int32_t d;
    for (d = marked->grid->dims - 1; d >= 0; d--) {
        const int64_t points = marked->all.hi[d] - marked->all.lo[d];
        at[d] = rest % points + marked->all.lo[d];
        rest /= points;
        away = dpari_most(away, dpari_most(at[d] - from[d], from[d] - at[d]));
    }
    return away;
}

/* Reports that a point holds the mark of another one, or of itself where it should have been
 * computed. */
static DPARI_COLD dpar_status dpari_marked_stale(const dpari_marked *marked,
                                                 const dpari_marked_point *point, int32_t j,
                                                 uint64_t bits, dpar_why *why)
{
    const int exact = marked->to.type == DPAR_F64;
    const int32_t source = (int32_t)(bits >> (exact ? 38 : 14) & DPARI_STEP_ARRAYS);
    const int32_t since = (int32_t)(bits >> (exact ? 32 : 8) & 63);
    const int64_t radius = marked->to.widest / marked->to.steps;
    int64_t at[DPAR_MAX_DIMS], away = 0;
    char cell[64], read[64] = "unknown", advice[64];
    dpar_text text;
    (void)dpari_marked_put(marked, point->at, cell, sizeof cell);
    if (exact) {
        away = dpari_marked_source(marked, (uint32_t)bits, point->at, at);
        (void)dpari_marked_put(marked, at, read, sizeof read);
    }
    if (since == DPARI_STEP_NEVER) {
        return dpari_wrong(why,
                           "array %d, cell (%s): sub-step %d has not computed it, or has read cell "
                           "(%s) of array %d, which it overwrites",
                           marked->number, cell, j, read, source);
    }
    dpar_text_init(&text, advice, sizeof advice);
    if (!dpari_marked_in(&marked->valid, point->at)) {
        dpar_text_put(&text, "compute only the cells of dpar_grid_valid");
    } else if (away > radius) {
        dpari_text_say(&text, "a radius of %ld needs a halo of %ld", away, away * marked->to.steps);
    } else {
        dpar_text_put(&text, "exchange or reflect that array before");
    }
    return dpari_wrong(why,
                       "array %d, cell (%s): sub-step %d has read cell (%s) of array %d, stale "
                       "since sub-step %d; %s",
                       marked->number, cell, j, read, source, since, advice);
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Finds the first element that shows a fault. */
static DPARI_COLD dpar_status dpari_marked_check(const dpari_marked *marked, int32_t j,
                                                 dpar_why *why)
{
    const int64_t bytes = dpar_type_bytes(marked->to.type);
    dpari_marked_point point;
    point.number = -1;
    while (dpari_marked_next(marked, &point)) {
        const int computes = dpari_marked_in(&marked->valid, point.at);
        int32_t c;
        if (!dpari_marked_in(&marked->inside, point.at)) {
            continue;
        }
        for (c = 0; c < marked->to.field->components; c++) {
            const uint64_t bits = dpari_marked_read(
                marked, point.memory + c * marked->to.field->component_stride * bytes);
            const int32_t since = (int32_t)(bits >> (bytes == 8 ? 32 : 8) & 63);
            char cell[64];
            if (!dpari_marked_nan(marked, bits)) {
                continue;
            }
            if (dpari_marked_is_mark(marked, bits)) {
                if (computes || bits != dpari_mark_of(marked, point.number, since)) {
                    return dpari_marked_stale(marked, &point, j, bits, why);
                }
            } else if (computes) {
                return dpari_wrong(
                    why,
                    "array %d, cell (%s): it is NaN after sub-step %d, which has computed it from "
                    "NaN of the code or from stale cells that this processor does not name",
                    marked->number, dpari_marked_put(marked, point.at, cell, sizeof cell), j);
            }
        }
    }
    return DPAR_OK;
}

/* Checks the arrays on this rank unless j is negative, and then marks what is not valid. */
static DPARI_COLD dpar_status dpari_marked_step(dpar_grid *grid, void *const *arrays, int32_t count,
                                                int32_t j, dpar_why *why)
{
    const int32_t step = j < 0 ? DPARI_STEP_NEVER : (int32_t)dpari_least(j, DPARI_STEP_NEVER - 1);
    dpari_marked marked;
    int32_t i;
    for (i = 0; i < 2 * count; i++) { /* first all checks, because arrays may share memory */
        dpar_status status = dpari_marked_init(&marked, grid, arrays, i % count, j, why);
        if (status == DPAR_OK && i < count && j >= 0) {
            status = dpari_marked_check(&marked, j, why);
        }
        if (status != DPAR_OK) {
            return status;
        }
        if (i >= count) {
            dpari_marked_poison(&marked, step);
        }
    }
    return DPAR_OK;
}

/* Returns whether the grid is to be checked, 1 or 0, or DPAR_E_ARG. */
static DPARI_COLD dpar_status dpari_marked_asked(dpar_grid *grid, void *const *arrays,
                                                 int32_t count, dpari_gx_access *first,
                                                 dpar_why *why)
{
    if (!grid || !arrays || count < 1 || !dpari_gx_access_to(grid, arrays[0], first)) {
        return dpari_wrong(why, "dpar_grid_check_step: grid or list is NULL, or array 0 is not an "
                                "array of the grid");
    }
    return first->desc->check;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_poison(dpar_grid *grid, void *const *arrays,
                                                 int32_t count, dpar_why *why)
{
    dpari_gx_access first;
    const dpar_status asked = dpari_marked_asked(grid, arrays, count, &first, why);
    return asked > 0 ? dpari_marked_step(grid, arrays, count, -1, why) : asked;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_check_step(dpar_grid *grid, void *const *arrays,
                                                     int32_t count, int32_t j, dpar_why *why)
{
    dpari_gx_access first;
    dpar_box box;
    dpar_status status = dpari_marked_asked(grid, arrays, count, &first, why);
    if (status <= 0) {
        return status;
    }
    why = dpari_why_of(grid->comm, why);
    if (!dpar_grid_valid(grid, j, &box)) {
        status = dpari_wrong(why,
                             "array 0, all cells: sub-step %d is one too many, because desc.steps "
                             "is %d; exchange after sub-step %d, or set desc.steps to %d and the "
                             "halo to %d times the stencil's radius",
                             j, first.steps, first.steps - 1, j + 1, j + 1);
    } else {
        status = dpari_marked_step(grid, arrays, count, j, why);
    }
    return dpari_agree(grid->comm, status, why);
}
