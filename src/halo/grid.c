/* SPDX-License-Identifier: MIT-0 */
/* Implements grids: makes and frees them, and exchanges their arrays by address.
 *
 * A grid keeps a table of known arrays and their shapes (grid_arrays.c), and a list of plans. An
 * exchange looks up its arrays, and finds the plan for this combination of shapes and depth or
 * makes one with halo_exchange.c (grid_plans.c). It then binds the arrays to the plan, runs it, and
 * fills the halos at mirrors (grid_mirrors.c). The plan that ran last with one array is tried
 * first, so that codes that swap two arrays search no plan. */
#include "grid.h"

#include "../base/arith.h"
#include "../comm/agree.h"
#include "../comm/engine.h"
#include "../comm/os.h"
#include "grid_arrays.h"
#include "grid_cut.h"
#include "grid_expected.h"
#include "grid_mirrors.h"
#include "grid_object.h"
#include "grid_plans.h"
#include "grid_shape.h"
#include "halo_exchange_private.h"

/* ---- a grid ---------------------------------------------------------------------------------- */

/* Does the local part of making a grid. *grid is NULL if it could not be allocated; if a later
 * check fails, the caller must free it. */
static DPARI_COLD dpar_status dpari_gx_build(dpar_comm *comm, const dpar_grid_desc *desc,
                                             dpari_gx **grid, dpar_why *why)
{
    dpar_status status;
    *grid = NULL;
    for (int32_t d = 0; d < DPAR_MAX_DIMS; d++) {
        if (desc->cuts[d] && desc->parts[d] > comm->size) { /* so cuts may have fewer numbers */
            return dpari_say(DPAR_E_DIVIDE, why,
                             "grid: desc.parts[%d] is %d, but there are %d ranks", d,
                             desc->parts[d], comm->size);
        }
    }
    status = dpari_gx_new(desc, grid, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_gx_cut_cells(*grid, comm, why);
}

/* Checks the blocks of all ranks, whose cut is final, and makes the shape of unknown addresses.
 * Collective. */
static DPARI_COLD dpar_status dpari_gx_finish(dpari_gx *grid, dpar_comm *comm, dpar_why *why)
{
    dpar_status status =
        dpari_gx_check_mirrors(grid, grid->desc.mirror_low, grid->desc.mirror_high, why);
    if (status == DPAR_OK && grid->desc.type != 0) {
        status = dpari_gx_make_plain(grid, comm->rank, why);
    }
    return dpari_agree(comm, status, why);
}

DPAR_API DPARI_COLD dpar_status dpar_grid_make(dpar_comm *comm, const dpar_grid_desc *desc,
                                               dpar_grid **grid, dpar_why *why)
{
    dpari_gx *made = NULL;
    dpar_status status;
    if (!comm) {
        dpari_wrong(why, "dpar_grid_make: comm is NULL");
        return DPAR_E_ARG;
    }
    why = dpari_why_of(comm, why);
    if (desc && grid) {
        status = dpari_gx_build(comm, desc, &made, why);
    } else {
        status = dpari_wrong(why, "dpar_grid_make: desc or grid is NULL");
    }
    status = dpari_agree_on(comm, status, "grid", dpari_gx_state, desc, why);
    if (status == DPAR_OK) {
        status = dpari_gx_cut_as_expected(made, comm, why);
    }
    if (status == DPAR_OK) {
        status = dpari_gx_finish(made, comm, why);
    }
    if (status < DPAR_OK) { /* not !=, so that compilers see that *grid is set otherwise */
        if (made) {
            dpari_gx_free_arrays(made, comm);
            dpari_gx_release(made);
        }
        return status;
    }
    made->head.comm = comm;
    made->mem = made->desc.mem ? made->desc.mem : comm->mem;
    made->ending.at = &made->head.comm; /* set to NULL when the world is closed */
    dpari_on_end_add(comm, &made->ending);
    *grid = &made->head;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_free(dpar_grid *grid)
{
    dpari_gx *freed = (dpari_gx *)(void *)grid;
    dpari_gx_plan *plan;
    dpar_comm *comm;
    dpar_why *said;
    dpar_status status = DPAR_OK;
    dpar_status closed;
    int ended;  /* the communicator was closed before the grid */
    int closes; /* this call closes the communicator */
    if (!freed) {
        return DPAR_OK;
    }
    comm = freed->head.comm; /* NULL if the world was closed, with all its memory */
    ended = comm && dpari_ended_is(comm);
    closes = freed->desc.owns_comm && !ended;
    said = freed->desc.free_why;
    if (comm && comm->status == DPAR_OK) {
        for (plan = freed->plans; plan; plan = plan->next) {
            if (plan->active) {
                return dpari_comm_wrong(
                    comm,
                    "dpar_grid_free: an exchange of %d arrays has not ended; call dpar_grid_end "
                    "first",
                    plan->count);
            }
        }
    }
    if (comm && closes && !freed->plans) { /* freeing a plan is a barrier as well */
        status = dpar_barrier(comm, NULL);
    }
    closed = dpari_gx_free_plans(freed, comm);
    if (status == DPAR_OK && !ended) {
        status = closed;
    }
    dpari_gx_free_arrays(freed, comm);
    dpari_on_end_drop(comm, &freed->ending);
    if (status != DPAR_OK && said) {
        *said = comm->why;
    }
    dpari_gx_release(freed);
    if (!closes) {
        return status;
    }
    closed = dpar_comm_free(comm);
    if (status == DPAR_OK && closed != DPAR_OK) {
        status = dpari_say(closed, said,
                           "dpar_grid_free: the grid's communicator was not closed well: %s",
                           dpar_status_text(closed));
    }
    return status;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Finds the plan of an exchange and binds the arrays to it. Fails if an array takes part in another
 * exchange that has not ended. */
static dpar_status dpari_gx_ready(dpari_gx *grid, void *const *list, int32_t count, int32_t depth,
                                  int32_t kind, dpari_gx_plan **plan)
{
    dpari_gx_set set = {grid, list, count, depth, kind};
    int32_t i;
    if (!grid) {
        return DPAR_E_ARG;
    }
    if (depth == grid->widest) {
        set.depth = 0;
    }
    for (i = 0; grid->under_way > 0 && list && i < count; i++) {
        if (dpari_gx_in_progress(grid, list[i])) {
            return dpari_comm_wrong(
                grid->head.comm,
                "grid: an exchange of array %d of the list of %d has begun and not ended; call "
                "dpar_grid_end first",
                i, count);
        }
    }
    return dpari_gx_bind_plan(&set, plan);
}

DPAR_API dpar_status dpar_grid_exchange_many(dpar_grid *grid, void *const *arrays, int32_t count,
                                             int32_t depth)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpari_gx_plan *plan = NULL;
    dpar_status status = dpari_gx_ready(g, arrays, count, depth, DPARI_GX_HALOS, &plan);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpar_halo_plan_exchange(plan->exchange);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_gx_fill(g, &plan->mirrors, plan->exchange);
}

DPAR_API dpar_status dpar_grid_reflect(dpar_grid *grid, void *const *arrays, int32_t count)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpari_gx_plan *plan = NULL;
    const dpar_status status = dpari_gx_ready(g, arrays, count, 0, DPARI_GX_HALOS, &plan);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_gx_fill(g, &plan->mirrors, plan->exchange);
}

DPAR_API dpar_status dpar_grid_exchange(dpar_grid *grid, void *u)
{
    dpari_gx *g = dpari_gx_of(grid);
    if (!g) {
        return DPAR_E_ARG;
    }
    if (g->quick && (dpari_hx_bound(g->quick->exchange, 0) == u || dpari_gx_rebind(g, u))) {
        return dpar_halo_plan_exchange(g->quick->exchange);
    }
    return dpar_grid_exchange_many(grid, &u, 1, 0);
}

DPAR_API dpar_status dpar_grid_begin_many(dpar_grid *grid, void *const *arrays, int32_t count,
                                          int32_t depth)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpari_gx_plan *plan = NULL;
    dpar_status status = dpari_gx_ready(g, arrays, count, depth, DPARI_GX_HALOS, &plan);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpar_halo_plan_begin(plan->exchange);
    if (status != DPAR_OK) {
        return status;
    }
    plan->active = 1;
    g->under_way++;
    g->quick = NULL;
    return DPAR_OK;
}

DPAR_API dpar_status dpar_grid_begin(dpar_grid *grid, void *u)
{
    return dpar_grid_begin_many(grid, &u, 1, 0);
}

/* Finds the plan of the exchange in progress that an array takes part in. */
static dpar_status dpari_gx_active(dpar_grid *handle, const void *array, dpari_gx_plan **plan)
{
    const dpari_gx *grid = dpari_gx_of(handle);
    if (!grid) {
        return DPAR_E_ARG;
    }
    *plan = dpari_gx_in_progress(grid, array);
    if (!*plan) {
        return dpari_comm_wrong(handle->comm, "grid: no exchange of this array has begun");
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_grid_test(dpar_grid *grid, void *u)
{
    dpari_gx_plan *plan = NULL;
    const dpar_status status = dpari_gx_active(grid, u, &plan);
    if (status != DPAR_OK) {
        return status;
    }
    return dpar_halo_plan_test(plan->exchange);
}

DPAR_API dpar_status dpar_grid_end(dpar_grid *grid, void *u)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpari_gx_plan *plan = NULL;
    dpar_status status = dpari_gx_active(grid, u, &plan);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpar_halo_plan_end(plan->exchange);
    plan->active = 0;
    g->under_way--;
    g->quick = NULL; /* another plan may now be the first that fits */
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_gx_fill(g, &plan->mirrors, plan->exchange);
}

/* True if some array of a list, which a plan has accepted, has points that several ranks hold. */
static int dpari_gx_shares(const dpari_gx *grid, void *const *arrays, int32_t count)
{
    int32_t i, d;
    for (i = 0; i < count; i++) {
        const dpari_gx_shape *shape = dpari_gx_shape_at(grid, arrays[i]);
        for (d = 0; d < grid->head.dims; d++) {
            if (shape->field.location[d] != DPAR_HALO_AT_CELLS) {
                return 1;
            }
        }
    }
    return 0;
}

/* Without halos, the ranks that hold a point send their values to each other, and one exchange is
 * enough. Otherwise values are first sent to the owners, and then the results of shared points are
 * sent back, because a rank's halo may have points that other ranks share. Two exchanges are also
 * needed in memory that the CPU cannot reach, because there the boxes of one exchange are summed in
 * no fixed order. */
DPAR_API dpar_status dpar_grid_reduce_many(dpar_grid *grid, void *const *arrays, int32_t count,
                                           int32_t op)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpari_gx_plan *plan = NULL;
    const int once = g && g->widest == 0 && !g->mem;
    dpar_status status =
        dpari_gx_ready(g, arrays, count, 0, once ? DPARI_GX_COMBINE : DPARI_GX_HALOS, &plan);
    if (status == DPAR_OK) {
        status = dpar_halo_plan_reduce(plan->exchange, op);
    }
    if (status != DPAR_OK || once || !dpari_gx_shares(g, arrays, count)) {
        return status;
    }
    status = dpari_gx_ready(g, arrays, count, 0, DPARI_GX_SHARED, &plan);
    return status == DPAR_OK ? dpar_halo_plan_exchange(plan->exchange) : status;
}

DPAR_API dpar_status dpar_grid_reduce(dpar_grid *grid, void *u, int32_t op)
{
    return dpar_grid_reduce_many(grid, &u, 1, op);
}

DPAR_API DPARI_COLD dpar_halo_plan *dpar_grid_plan(dpar_grid *grid, void *const *list, int32_t n)
{
    const dpari_gx_set set = {dpari_gx_of(grid), list, n, 0, DPARI_GX_HALOS};
    dpari_gx_plan *plan = NULL;
    if (!set.grid || dpari_gx_bind_plan(&set, &plan) != DPAR_OK) {
        return NULL;
    }
    return plan->exchange;
}
