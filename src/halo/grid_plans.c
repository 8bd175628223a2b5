/* SPDX-License-Identifier: MIT-0 */
/* Finds the plan of an exchange, or makes it with halo_exchange.c, and binds the arrays to it.
 *
 * Plans are found by shapes and not by addresses, because making a plan is collective: either all
 * ranks must find a plan, or none. Ranks agree on the number of a shape when an array is attached
 * or allocated. Addresses may then differ and change on each rank independently. */
#include "grid_plans.h"

#include "../base/arith.h"
#include "../comm/object_memory.h"
#include "../comm/os.h"
#include "halo_plan.h"
#include "grid_arrays.h"
#include "grid_mirrors.h"
#include "grid_shape.h"

DPARI_INTERNAL dpari_gx_plan *dpari_gx_in_progress(const dpari_gx *grid, const void *u)
{
    dpari_gx_plan *plan;
    int32_t i;
    if (grid->under_way == 0) {
        return NULL;
    }
    for (plan = grid->plans; plan; plan = plan->next) {
        for (i = 0; plan->active && i < plan->count; i++) {
            if (plan->at[i] == u) {
                return plan;
            }
        }
    }
    return NULL;
}

/* Describes array i of a plan as a field. With a depth, the halo to exchange is narrower than the
 * array's. */
static DPARI_COLD void dpari_gx_field_of(const dpari_gx *grid, dpari_gx_plan *plan, int32_t i)
{
    const dpari_gx_shape *shape = plan->shape[i];
    dpar_halo_field *field = &plan->field[i];
    int32_t d;
    dpari_gx_field(grid, shape, plan->at[i], field);
    if (plan->depth > 0) {
        plan->halo[i] = shape->halo;
        field->halo = &plan->halo[i];
        field->array_halo = &shape->halo;
        for (d = 0; d < grid->head.dims; d++) {
            plan->halo[i].low[d] = dpari_gx_width(grid, plan->depth, d, 0);
            plan->halo[i].high[d] =
                dpari_gx_width(grid, plan->depth, d, 1) + (shape->field.location[d] != 0);
        }
    }
}

/* Divides a plan's memory into its lists, and returns the number of bytes. If plan is NULL, only
 * counts the bytes. */
static DPARI_COLD int64_t dpari_gx_lay_out(dpari_gx_plan *plan, int32_t n, int32_t depth)
{
    dpari_gx_plan none;
    dpari_room room;
    room.at = (unsigned char *)plan;
    room.used = 0;
    (void)dpari_room_take(&room, 1, sizeof *plan);
    plan = plan ? plan : &none;
    plan->at = (void **)dpari_room_take(&room, n, sizeof *plan->at);
    plan->shape = (const dpari_gx_shape **)dpari_room_take(&room, n, sizeof *plan->shape);
    plan->field = (dpar_halo_field *)dpari_room_take(&room, n, sizeof *plan->field);
    plan->halo = (dpar_halo *)dpari_room_take(&room, depth > 0 ? n : 0, sizeof *plan->halo);
    plan->bytes = room.used;
    plan->count = n;
    plan->depth = depth;
    return room.used;
}

/* Divides the memory of mirrors, plan->rest, into its two lists, and counts its bytes. It is not a
 * part of the plan's memory, because the number of mirrors is not known when that is allocated. */
static DPARI_COLD void dpari_gx_lay_out_rest(const dpari_gx *grid, dpari_gx_plan *plan)
{
    const int32_t there = grid->mem ? plan->mirrors : 0;
    dpari_room room;
    room.at = (unsigned char *)plan->rest;
    room.used = 0;
    plan->mirror = (dpari_gx_mirror *)dpari_room_take(&room, plan->mirrors, sizeof *plan->mirror);
    plan->box = (dpar_mem_box *)dpari_room_take(&room, there, sizeof *plan->box);
    plan->box = there > 0 ? plan->box : NULL;
    plan->rest_bytes = room.used;
}

/* Sets the options of a plan. If an array may change from call to call, everything is packed,
 * because the next one may be in memory that peers cannot read. */
static DPARI_COLD void dpari_gx_options(const dpari_gx_plan *plan, dpar_halo_plan_desc *desc)
{
    int32_t i;
    dpari_zero(desc, sizeof *desc);
    desc->field = plan->field;
    desc->field_count = plan->count;
    for (i = 0; i < plan->count; i++) {
        if (plan->shape[i]->packed) {
            desc->method = DPAR_HALO_PACKED;
        }
    }
}

/* Reports that the memory of a plan cannot be allocated. */
static DPARI_COLD dpar_status dpari_gx_no_memory(int64_t bytes, dpar_why *why)
{
    return dpari_say(DPAR_E_MEMORY, why,
                     "grid: %ld bytes for a plan cannot be allocated (is ulimit -v too small?)",
                     bytes);
}

/* Does the local part of planning: allocates memory and describes the plan. *plan is NULL if it
 * could not be allocated; if a later step fails, the caller must free it. */
static DPARI_COLD dpar_status dpari_gx_describe(const dpari_gx *grid, void *const *list, int32_t n,
                                                int32_t depth, dpari_gx_plan **plan, dpar_why *why)
{
    const int64_t bytes = dpari_gx_lay_out(NULL, n, depth);
    dpari_gx_plan *made = (dpari_gx_plan *)dpari_os_pages(bytes);
    int32_t i;
    *plan = made;
    if (!made) {
        return dpari_gx_no_memory(bytes, why);
    }
    (void)dpari_gx_lay_out(made, n, depth);
    for (i = 0; i < n; i++) {
        made->at[i] = list[i];
        made->shape[i] = dpari_gx_shape_at(grid, list[i]);
        dpari_gx_field_of(grid, made, i);
    }
    made->mirrors = dpari_gx_mirrors(grid, made->shape, n, depth, NULL);
    dpari_gx_lay_out_rest(grid, made);
    if (made->rest_bytes == 0) {
        return DPAR_OK;
    }
    made->rest = dpari_os_pages(made->rest_bytes);
    if (!made->rest) {
        return dpari_gx_no_memory(made->rest_bytes, why);
    }
    dpari_gx_lay_out_rest(grid, made);
    (void)dpari_gx_mirrors(grid, made->shape, n, depth, made->mirror);
    return DPAR_OK;
}

/* Lists types and components of the arrays, which are compared before a plan is made. */
static DPARI_COLD void dpari_gx_state_kinds(dpari_facts *facts, const void *given)
{
    const dpari_gx_numbers *args = (const dpari_gx_numbers *)given;
    int32_t i;
    dpari_fact(facts, "the number of arrays", 0, args->count);
    dpari_fact(facts, "depth", 0, args->depth);
    for (i = 0; i < args->count; i++) {
        const dpari_gx_shape *shape = dpari_gx_shape_at(args->grid, args->list[i]);
        dpari_fact_type(facts, "the type of array #", i, shape->type);
        dpari_fact(facts, "the number of components of array #", i, shape->components);
        dpari_fact(facts, "whether array # is of desc.type (1) or was attached (0)", i,
                   shape->packed);
    }
}

/* Plans an exchange of known arrays. Collective. */
static DPARI_COLD dpar_status dpari_gx_new_plan(dpari_gx *grid, void *const *list, int32_t n,
                                                int32_t depth, dpari_gx_plan **plan, dpar_why *why)
{
    dpar_comm *comm = grid->head.comm;
    dpari_gx_plan *made = NULL, **last = &grid->plans;
    dpari_gx_numbers given;
    dpar_halo_plan_desc desc;
    dpar_status status = dpari_gx_describe(grid, list, n, depth, &made, why);
    given.grid = grid;
    given.list = list;
    given.count = n;
    given.depth = depth;
    status = dpari_agree_on(comm, status, "grid exchange", dpari_gx_state_kinds, &given, why);
    if (status == DPAR_OK) {
        dpari_gx_options(made, &desc);
        status = dpar_halo_plan_make(comm, &desc, &made->exchange, why);
    }
    if (status != DPAR_OK) {
        if (made) {
            dpari_os_unmap(made->rest, made->rest_bytes);
            dpari_os_unmap(made, made->bytes);
        }
        return status;
    }
    while (*last) {
        last = &(*last)->next;
    }
    *last = made;
    *plan = made;
    return DPAR_OK;
}

/* Returns a plan for arrays of these shapes and this depth whose exchange is not in progress, or
 * NULL. */
static dpari_gx_plan *dpari_gx_match(const dpari_gx *grid, void *const *list, int32_t n,
                                     int32_t depth)
{
    dpari_gx_plan *plan;
    int32_t i;
    for (plan = grid->plans; plan; plan = plan->next) {
        if (plan->count != n || plan->depth != depth || plan->active) {
            continue;
        }
        for (i = 0; i < n; i++) {
            if (plan->at[i] != list[i] && dpari_gx_shape_at(grid, list[i]) != plan->shape[i]) {
                break;
            }
        }
        if (i == n) {
            return plan;
        }
    }
    return NULL;
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_state_list(dpari_facts *facts, const void *given)
{
    const dpari_gx_numbers *args = (const dpari_gx_numbers *)given;
    int32_t i;
    dpari_fact(facts, "the number of arrays", 0, args->count);
    dpari_fact(facts, "depth", 0, args->depth);
    for (i = 0; i < args->count; i++) {
        const dpari_gx_array *known = dpari_gx_find(args->grid, args->list[i]);
        dpari_fact(facts, "array # of the list", i, known ? known->number : -1);
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_check_list(const dpari_gx *grid, void *const *list,
                                                          int32_t count, int32_t depth,
                                                          dpar_why *why)
{
    int32_t i;
    if (!list) {
        return dpari_wrong(why, "grid: the list of %d arrays is NULL", count);
    }
    if (count < 1 || count > 4096) {
        return dpari_wrong(why, "grid: the list has %d arrays; it must have 1 to 4096", count);
    }
    if (depth < 0 || depth > grid->widest) {
        return dpari_say(DPAR_E_RANGE, why,
                         "grid: depth is %d; it must be 0 to %ld, the width of the halo", depth,
                         grid->widest);
    }
    for (i = 0; i < count; i++) {
        const dpari_gx_array *other = NULL;
        if (list[i] && grid->desc.type != 0 && !dpari_gx_find(grid, list[i])) {
            other = dpari_gx_in_another(grid, list[i]);
        }
        if (other) {
            return dpari_wrong(
                why,
                "grid: array %d of the list points into another array, %ld bytes after its "
                "first own point; pass the address of that point",
                i, (int64_t)(uintptr_t)list[i] - (int64_t)(uintptr_t)other->at);
        }
        if (!dpari_gx_shape_at(grid, list[i])) {
            return dpari_wrong(
                why,
                "grid: array %d of the list of %d does not belong to this grid; pass the "
                "address of its first own point, as dpar_grid_array returned it or "
                "dpar_grid_attach got it",
                i, count);
        }
    }
    return DPAR_OK;
}

/* Checks the arrays of an exchange, compares them between ranks if desc.check is 1, and makes the
 * plan if *plan is NULL. Called if there is no plan yet, and for every exchange of a grid with
 * desc.check. Collective. */
static DPARI_COLD dpar_status dpari_gx_check_and_plan(dpari_gx *grid, void *const *list, int32_t n,
                                                      int32_t depth, dpari_gx_plan **plan)
{
    dpari_gx_numbers given;
    dpar_why why;
    dpar_status status = dpari_gx_check_list(grid, list, n, depth, &why);
    given.grid = grid;
    given.list = list;
    given.count = n;
    given.depth = depth;
    if (grid->desc.check) {
        status = dpari_agree_on(grid->head.comm, status, "grid", dpari_gx_state_list, &given, &why);
    }
    if (status == DPAR_OK && !*plan) {
        status = dpari_gx_new_plan(grid, list, n, depth, plan, &why);
    }
    return dpari_gx_say(grid, status, &why);
}

DPARI_INTERNAL dpar_status dpari_gx_bind_plan(dpari_gx *grid, void *const *list, int32_t n,
                                              int32_t depth, dpari_gx_plan **plan)
{
    dpar_status status;
    int32_t i;
    if (depth == grid->widest) {
        depth = 0;
    }
    *plan = list && depth >= 0 ? dpari_gx_match(grid, list, n, depth) : NULL;
    if (!*plan || grid->desc.check) {
        status = dpari_gx_check_and_plan(grid, list, n, depth, plan);
        if (status != DPAR_OK) {
            return status;
        }
    }
    for (i = 0; i < n; i++) {
        if ((*plan)->at[i] != list[i]) {
            status = dpar_halo_plan_bind((*plan)->exchange, i, list[i], NULL);
            if (status != DPAR_OK) {
                return status;
            }
            (*plan)->before = (*plan)->at[i];
            (*plan)->at[i] = list[i];
        }
    }
    if (n == 1 && depth == 0 && (*plan)->mirrors == 0 && !grid->desc.check) {
        grid->quick = *plan;
        grid->now = list[0];
        grid->now_exchange = (*plan)->exchange;
    }
    return DPAR_OK;
}

DPARI_INTERNAL int dpari_gx_rebind(dpari_gx *grid, void *u)
{
    dpari_gx_plan *plan = grid->quick;
    if (grid->now == grid || plan->before != u || !u || grid->under_way > 0 ||
        dpar_halo_plan_bind(plan->exchange, 0, u, NULL) != DPAR_OK) {
        return 0;
    }
    plan->before = plan->at[0];
    plan->at[0] = grid->now = u;
    return 1;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_free_plans(dpari_gx *grid, const dpar_comm *comm)
{
    dpar_status first = DPAR_OK;
    while (grid->plans) {
        dpari_gx_plan *plan = grid->plans;
        if (comm) {
            const dpar_status status = dpar_halo_plan_free(plan->exchange);
            if (first == DPAR_OK) {
                first = status;
            }
        } else {
            dpari_object_release(plan->exchange->owned);
        }
        grid->plans = plan->next;
        dpari_os_unmap(plan->rest, plan->rest_bytes);
        dpari_os_unmap(plan, plan->bytes);
    }
    return first;
}
