/* SPDX-License-Identifier: MIT-0 */
/* Finds the plan of an exchange, or makes it with halo_exchange.c, and binds the arrays to it.
 *
 * Plans are found by shapes and not by addresses, because making a plan is collective: either all
 * ranks must find a plan, or none. Ranks agree on the number of a shape when an array is attached
 * or allocated. Addresses may then differ and change on each rank independently. */
#include "grid_plans.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/os.h"
#include "grid_arrays.h"
#include "grid_shape.h"
#include "grid_start.h"
#include "grid_walls.h"
#include "halo_exchange_private.h"
#include "halo_share.h"

/* ---- the arrays of an exchange --------------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_check_set(const dpari_gx_set *set, dpar_why *why)
{
    const dpari_gx *grid = set->grid;
    int32_t i;
    if (!set->list) {
        return dpari_wrong(why, "grid: the list of %d arrays is NULL", set->count);
    }
    if (set->count < 1 || set->count > 4096) {
        return dpari_wrong(why, "grid: the list has %d arrays; it must have 1 to 4096", set->count);
    }
    if (set->depth < 0 || set->depth > grid->widest) {
        return dpari_say(DPAR_E_RANGE, why,
                         "grid: depth is %d; it must be 0 to %ld, the width of the halo",
                         set->depth, grid->widest);
    }
    for (i = 0; i < set->count; i++) {
        const dpari_gx_array *other;
        if (dpari_gx_shape_at(grid, set->list[i])) {
            continue;
        }
        other = dpari_gx_in_another(grid, set->list[i]);
        if (other) {
            return dpari_wrong(
                why,
                "grid: array %d of the list points into another array, %ld bytes after its "
                "first own point; pass the address of that point",
                i, (int64_t)(uintptr_t)set->list[i] - (int64_t)(uintptr_t)other->at);
        }
        return dpari_wrong(why,
                           "grid: array %d of the list of %d does not belong to this grid; pass "
                           "the address of its first own point, as dpar_grid_array returned it or "
                           "dpar_grid_attach got it",
                           i, set->count);
    }
    return DPAR_OK;
}

/* Lists the numbers of the arrays, which are compared in grids with desc.check and before
 * gathering. */
static DPARI_COLD void dpari_gx_state_numbers(dpari_facts *facts, const void *given)
{
    const dpari_gx_set *set = (const dpari_gx_set *)given;
    int32_t i;
    dpari_fact(facts, "the number of arrays", 0, set->count);
    dpari_fact(facts, "depth", 0, set->depth);
    dpari_fact(facts, "the kind of exchange", 0, set->kind);
    for (i = 0; i < set->count; i++) {
        const dpari_gx_array *known = dpari_gx_find(set->grid, set->list[i]);
        dpari_fact(facts, "array # of the list", i, known ? known->number : -1);
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_agree_on_set(const dpari_gx_set *set,
                                                            dpar_status status, dpar_why *why)
{
    return dpari_agree_on(set->grid->head.comm, status, "grid", dpari_gx_state_numbers, set, why);
}

/* ---- making a plan --------------------------------------------------------------------------- */

/* Divides the memory of a plan into its lists, and computes its size from the numbers that *plan
 * has. If memory is NULL, only computes the size. narrow: 1 if fields have halos of their own. */
static DPARI_COLD void dpari_gx_lay_out(const dpari_gx *grid, int narrow, dpari_gx_plan *plan,
                                        void *memory)
{
    const int32_t boxes = plan->mirrors.count;
    dpari_gx_mirrors *mirrors = &plan->mirrors;
    dpari_room room;
    room.at = (unsigned char *)memory;
    room.used = 0;
    (void)dpari_room_take(&room, 1, sizeof *plan);
    plan->shape = (const dpari_gx_shape **)dpari_room_take(&room, plan->count, sizeof *plan->shape);
    plan->field = (dpar_halo_field *)dpari_room_take(&room, plan->count, sizeof *plan->field);
    plan->halo = (dpar_halo *)dpari_room_take(&room, narrow ? plan->count : 0, sizeof *plan->halo);
    mirrors->mirror = (dpari_gx_mirror *)dpari_room_take(&room, boxes, sizeof *mirrors->mirror);
    if (grid->mem && boxes > 0) {
        mirrors->box = (dpar_mem_box *)dpari_room_take(&room, boxes, sizeof *mirrors->box);
    }
    plan->bytes = room.used;
}

/* Describes array i of a plan as a field of its exchange. With a depth, and if only shared points
 * are exchanged, the halo to exchange is narrower than the array's. */
static DPARI_COLD void dpari_gx_describe_array(const dpari_gx *grid, const dpari_gx_plan *plan,
                                               int32_t i, void *at)
{
    const dpari_gx_shape *shape = plan->shape[i];
    dpar_halo_field *field = &plan->field[i];
    dpar_halo *halo = &plan->halo[i];
    int32_t d;
    dpari_gx_field(grid, shape, at, field);
    field->direction = shape->field.direction;
    if (plan->depth == 0 && plan->kind == DPARI_GX_HALOS) {
        return;
    }
    *halo = *dpari_gx_sent(shape);
    field->halo = halo;
    field->array_halo = dpari_gx_sent(shape);
    for (d = 0; d < grid->head.dims; d++) {
        const int fills = plan->kind == DPARI_GX_HALOS;
        halo->low[d] = fills ? dpari_gx_width(grid, plan->depth, d, 0) : 0;
        halo->high[d] = fills ? dpari_gx_width(grid, plan->depth, d, 1) : 0;
        halo->high[d] += shape->field.location[d] != 0;
    }
}

/* Does the local part of planning: allocates a plan and describes its exchange. After a failure the
 * caller must free *plan, which may be NULL. */
static DPARI_COLD dpar_status dpari_gx_describe(const dpari_gx_set *set, dpari_gx_plan **plan,
                                                dpar_why *why)
{
    const dpari_gx *grid = set->grid;
    dpari_gx_plan sizes, *made;
    const int narrow = set->depth > 0 || set->kind != DPARI_GX_HALOS;
    int32_t i;
    *plan = NULL;
    dpari_zero(&sizes, sizeof sizes);
    sizes.count = set->count;
    sizes.depth = set->depth;
    sizes.kind = set->kind;
    for (i = 0; i < set->count && set->kind == DPARI_GX_HALOS; i++) {
        const dpari_gx_shape *shape = dpari_gx_shape_at(grid, set->list[i]);
        sizes.mirrors.count += dpari_gx_count_mirrors(grid, shape, set->depth);
    }
    dpari_gx_lay_out(grid, narrow, &sizes, NULL);
    made = (dpari_gx_plan *)dpari_os_pages(sizes.bytes);
    if (!made) {
        return dpari_say(DPAR_E_MEMORY, why,
                         "grid: %ld bytes for a plan cannot be allocated (is ulimit -v too small?)",
                         sizes.bytes);
    }
    *plan = made;
    *made = sizes;
    dpari_gx_lay_out(grid, narrow, made, made);
    for (i = 0; i < set->count; i++) {
        made->shape[i] = dpari_gx_shape_at(grid, set->list[i]);
        if (made->shape[i]->packed) { /* the address is unknown so far */
            const dpar_status status =
                dpari_gx_check_start(grid, made->shape[i], set->list[i], "grid", why);
            if (status != DPAR_OK) {
                return status;
            }
        }
        dpari_gx_describe_array(grid, made, i, set->list[i]);
    }
    if (made->mirrors.count > 0) {
        dpari_gx_list_mirrors(grid, made->shape, set->count, set->depth, made->mirrors.mirror);
    }
    return DPAR_OK;
}

/* Lists types and components of the arrays, which are compared before a plan is made. */
static DPARI_COLD void dpari_gx_state_kinds(dpari_facts *facts, const void *given)
{
    const dpari_gx_set *set = (const dpari_gx_set *)given;
    int32_t i;
    dpari_fact(facts, "the number of arrays", 0, set->count);
    dpari_fact(facts, "depth", 0, set->depth);
    dpari_fact(facts, "the kind of exchange", 0, set->kind);
    for (i = 0; i < set->count; i++) {
        const dpari_gx_shape *shape = dpari_gx_shape_at(set->grid, set->list[i]);
        dpari_fact_type(facts, "the type of array #", i, shape->type);
        dpari_fact(facts, "the number of components of array #", i, shape->field.components);
        dpari_fact(facts, "whether array # is of desc.type (1) or was attached (0)", i,
                   shape->packed);
    }
}

/* Makes the exchange of a plan. If an array may change from call to call, everything is packed,
 * because the next one may be in memory that peers cannot read. Collective. */
static DPARI_COLD dpar_status dpari_gx_make_exchange(dpari_gx *grid, dpari_gx_plan *plan,
                                                     dpar_why *why)
{
    dpar_halo_plan_desc desc;
    int32_t i;
    dpari_zero(&desc, sizeof desc);
    desc.field = plan->field;
    desc.field_count = plan->count;
    desc.shared = plan->kind == DPARI_GX_COMBINE ? DPARI_HX_COMBINE : plan->kind;
    for (i = 0; i < plan->count; i++) {
        if (plan->shape[i]->packed) {
            desc.method = DPAR_HALO_PACKED;
        }
    }
    return dpar_halo_plan_make(grid->head.comm, &desc, &plan->exchange, why);
}

/* Plans an exchange of known arrays. Collective. */
static DPARI_COLD dpar_status dpari_gx_new_plan(const dpari_gx_set *set, dpari_gx_plan **plan,
                                                dpar_why *why)
{
    dpari_gx *grid = set->grid;
    dpari_gx_plan *made, **last = &grid->plans;
    dpar_status status = dpari_gx_describe(set, &made, why);
    status =
        dpari_agree_on(grid->head.comm, status, "grid exchange", dpari_gx_state_kinds, set, why);
    if (status == DPAR_OK) {
        status = dpari_gx_make_exchange(grid, made, why);
    }
    if (status != DPAR_OK) {
        dpari_os_unmap(made, made ? made->bytes : 0);
        return status;
    }
    while (*last) {
        last = &(*last)->next;
        made->number++;
    }
    *last = made;
    if (made->number < DPARI_GX_KEYS) {
        dpari_gx_key *key = &grid->key[grid->keys++];
        key->plan = made;
        key->shape = made->shape[0];
        key->count = made->count;
        key->depth = made->depth;
    }
    *plan = made;
    return DPAR_OK;
}

/* ---- finding a plan -------------------------------------------------------------------------- */

/* Returns the address of the array that array i of a plan is bound to. */
static void *dpari_gx_bound(const dpari_gx_plan *plan, int32_t i)
{
    return dpari_hx_bound(plan->exchange, i);
}

/* True if a plan is for arrays of these shapes and this depth, and its exchange is not in
 * progress. */
static int dpari_gx_fits(const dpari_gx_plan *plan, const dpari_gx_set *set)
{
    int32_t i;
    if (plan->count != set->count || plan->depth != set->depth || plan->kind != set->kind ||
        plan->active) {
        return 0;
    }
    for (i = 0; i < set->count; i++) {
        if ((plan->stale || dpari_gx_bound(plan, i) != set->list[i]) &&
            dpari_gx_shape_at(set->grid, set->list[i]) != plan->shape[i]) {
            return 0;
        }
    }
    return 1;
}

/* Returns the shape of the first array of the list. */
static const dpari_gx_shape *dpari_gx_first_shape(const dpari_gx_set *set)
{
    const dpari_gx *grid = set->grid;
    int32_t k;
    for (k = 0; k < grid->keys; k++) {
        if (grid->key[k].at == set->list[0]) {
            return grid->key[k].shape;
        }
    }
    return dpari_gx_shape_at(grid, set->list[0]);
}

/* Returns the first plan that fits, or NULL. It must be the first, so that all ranks choose the
 * same one, whatever their addresses. */
static dpari_gx_plan *dpari_gx_match(const dpari_gx_set *set)
{
    const dpari_gx *grid = set->grid;
    const dpari_gx_shape *shape;
    dpari_gx_plan *plan = NULL;
    int32_t k;
    if (!set->list || set->count < 1) {
        return NULL;
    }
    shape = dpari_gx_first_shape(set);
    for (k = 0; k < grid->keys; k++) {
        const dpari_gx_key *key = &grid->key[k];
        if (key->shape == shape && key->count == set->count && key->depth == set->depth &&
            dpari_gx_fits(key->plan, set)) {
            return key->plan;
        }
    }
    if (k == DPARI_GX_KEYS) {
        plan = grid->key[k - 1].plan->next;
    }
    while (plan && !dpari_gx_fits(plan, set)) {
        plan = plan->next;
    }
    return plan;
}

/* Checks the arrays of an exchange, compares them between ranks if desc.check is 1, and makes the
 * plan if *plan is NULL. Called if there is no plan yet, and for every exchange of a grid with
 * desc.check. Collective. */
static DPARI_COLD dpar_status dpari_gx_check_and_plan(const dpari_gx_set *set, dpari_gx_plan **plan)
{
    dpar_why why;
    dpar_status status = dpari_gx_check_set(set, &why);
    if (set->grid->desc.check) {
        status = dpari_gx_agree_on_set(set, status, &why);
    }
    if (status == DPAR_OK && !*plan) {
        status = dpari_gx_new_plan(set, plan, &why);
    }
    return dpari_gx_say(set->grid, status, &why);
}

/* True if another array of the list is the same as array i. */
static int dpari_gx_is_twice(const dpari_gx_set *set, int32_t i)
{
    int32_t k;
    for (k = 0; k < set->count; k++) {
        if (k != i && set->list[k] == set->list[i]) {
            return 1;
        }
    }
    return 0;
}

DPARI_INTERNAL dpar_status dpari_gx_bind_plan(const dpari_gx_set *set, dpari_gx_plan **plan)
{
    dpari_gx *grid = set->grid;
    dpari_gx_plan *found = dpari_gx_match(set);
    dpar_status status;
    int32_t i;
    if (!found || grid->desc.check) {
        status = dpari_gx_check_and_plan(set, &found);
        if (status != DPAR_OK) {
            return status;
        }
    }
    for (i = 0; i < set->count; i++) {
        if (found->stale || dpari_gx_bound(found, i) != set->list[i]) {
            if (dpari_gx_is_twice(set, i)) { /* a new plan would be refused for this reason */
                return dpari_comm_wrong(grid->head.comm,
                                        "grid: array %d of the list of %d is in the list twice", i,
                                        set->count);
            }
            status = dpar_halo_plan_bind(found->exchange, i, set->list[i], NULL);
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    found->stale = 0;
    if (found->number < DPARI_GX_KEYS) {
        grid->key[found->number].at = set->list[0];
    }
    if (found->count == 1 && found->depth == 0 && found->kind == DPARI_GX_HALOS &&
        found->mirrors.count == 0 && !grid->desc.check) {
        grid->quick = found;
    }
    *plan = found;
    return DPAR_OK;
}

DPARI_INTERNAL int dpari_gx_rebind(dpari_gx *grid, void *u)
{
    dpari_gx_plan *plan = grid->quick;
    return plan && grid->under_way == 0 && dpari_gx_shape_at(grid, u) == plan->shape[0] &&
           dpar_halo_plan_bind(plan->exchange, 0, u, NULL) == DPAR_OK;
}

/* ---- all plans ------------------------------------------------------------------------------- */

DPARI_INTERNAL dpari_gx_plan *dpari_gx_in_progress(const dpari_gx *grid, const void *u)
{
    dpari_gx_plan *plan;
    int32_t i;
    if (grid->under_way == 0) {
        return NULL;
    }
    for (plan = grid->plans; plan; plan = plan->next) {
        for (i = 0; plan->active && i < plan->count; i++) {
            if (dpari_gx_bound(plan, i) == u) {
                return plan;
            }
        }
    }
    return NULL;
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_look_up_again(dpari_gx *grid, const void *at)
{
    dpari_gx_plan *plan;
    int32_t i;
    grid->quick = NULL;
    for (i = 0; i < grid->keys; i++) {
        grid->key[i].at = NULL;
    }
    for (plan = grid->plans; plan; plan = plan->next) {
        for (i = 0; i < plan->count; i++) {
            if (dpari_gx_bound(plan, i) == at || plan->shape[i]->packed) {
                plan->stale = 1;
            }
        }
    }
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
            dpari_hx_release(plan->exchange);
        }
        grid->plans = plan->next;
        dpari_os_unmap(plan, plan->bytes);
    }
    return first;
}
