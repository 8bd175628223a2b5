/* SPDX-License-Identifier: MIT-0 */
/* Checks the fields of a plan on one rank, and lists what of them must be equal on all ranks.
 * Called by halo_exchange.c before anything else is planned. */
#include "halo_fields.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/base_private.h"
#include "../base/type.h"
#include "../host/elements.h"
#include "../index/halo.h"
#include "../index/index_private.h"
#include "../index/mesh.h"
#include "../index/reach.h"
#include "halo_plan.h"

/* ---- checks ---------------------------------------------------------------------------------- */

/* Checks the types of a field's values, in the array and as they are sent. */
static dpar_status dpari_hx_check_type(const dpar_halo_field *field, int32_t i, dpar_why *why)
{
    if (dpar_type_bytes(field->type) == 0) {
        return dpari_wrong(
            why,
            "field %d: type %s (%d) is not allowed: its elements have no whole number of "
            "bytes",
            i, dpar_type_name(field->type), field->type);
    }
    if (dpari_hx_wire(field) != field->type && !dpari_narrows(field->type, field->wire_type)) {
        return dpari_wrong(
            why,
            "field %d cannot be sent as %s (wire_type %d); f64 can be sent as f32, f32 as "
            "f16 or bf16",
            i, dpar_type_name(field->wire_type), field->wire_type);
    }
    if (field->vector < 0 || field->vector > 2) {
        return dpari_wrong(why, "field %d: vector is %d; it must be 0 to 2", i, field->vector);
    }
    if (field->vector && !dpari_type_can_reduce(field->type)) {
        return dpari_wrong(why, "field %d: vector must be 0, because type %s has no sign to change",
                           i, dpar_type_name(field->type));
    }
    return DPAR_OK;
}

/* Checks that all ranks of a field are ranks of the communicator. */
static dpar_status dpari_hx_check_ranks(const dpar_comm *comm, const dpar_halo *halo, int32_t i,
                                        dpar_why *why)
{
    const dpar_mesh *mesh = &halo->grid.mesh;
    int64_t last = mesh->first_rank + (int64_t)mesh->size - 1;
    int32_t k;
    if (halo->owner) {
        last = -1;
        for (k = 0; k < mesh->size; k++) {
            last = dpari_most(last, halo->owner[k]);
        }
    }
    if (last >= comm->size || (!halo->owner && mesh->first_rank < 0)) {
        return dpari_wrong(why, "field %d is on ranks up to %ld, but the communicator has %d ranks",
                           i, last, comm->size);
    }
    return DPAR_OK;
}

/* True if the arrays of a field can hold the points that blocks share. If points are between cells
 * in two dims, blocks share corners, which the compact halo of a star does not have. */
static int dpari_hx_can_share(const dpar_halo_field *field)
{
    int32_t d, between = 0;
    for (d = 0; d < field->halo->grid.dims; d++) {
        between += field->halo->points[d] != DPAR_HALO_AT_CELLS;
    }
    return between < 2 || !field->compact_halo || !dpari_halo_star(field->halo);
}

/* Checks that a field can be exchanged dim by dim, or as shared points, if the plan asks for it. */
static dpar_status dpari_hx_check_options(const dpar_halo_field *field, int32_t i,
                                          const dpar_halo_plan_desc *desc, dpar_why *why)
{
    if (desc->ordered && !dpari_hx_can_order(field)) {
        return dpari_wrong(
            why,
            "field %d has a fold, poles, a cube, masked owners, windows, compact halos or "
            "edges without corners: it cannot be exchanged dim by dim, so that "
            "desc.ordered must be 0",
            i);
    }
    if (desc->shared && !dpari_hx_can_share(field)) {
        return dpari_wrong(
            why,
            "field %d: with desc.shared 1, a star needs data with the whole halo, because "
            "a compact halo has no place for the corners that blocks share",
            i);
    }
    return DPAR_OK;
}

/* True if all addresses of the array are within 2^60 bytes of its index 0, so that differences of
 * addresses cannot overflow. */
static int dpari_hx_reaches(const dpar_halo_field *field, const dpar_box *all)
{
    const int64_t most = INT64_C(1) << 60, unit = dpar_type_bytes(field->type);
    const int64_t component = field->component_stride != 0 ? field->component_stride : 1;
    const int strided = dpari_hx_strided(field);
    int64_t step = dpari_hx_components(field); /* the default stride */
    int64_t sum = step;
    int32_t d;
    if (component < -most || component > most || !dpari_mul(sum, dpari_size(component), &sum)) {
        return 0;
    }
    for (d = all->dims - 1; d >= 0; d--) {
        const int64_t stride = strided ? field->stride[d] : step;
        const int64_t origin = strided ? field->first[d] : 0;
        const int64_t points = all->hi[d] - all->lo[d];
        int64_t distance;
        if (stride < -most || stride > most || origin < -most || origin > most) {
            return 0;
        }
        if (!dpari_mul(dpari_size(origin) + points, dpari_size(stride), &distance) ||
            distance > most || sum > most || !dpari_mul(step, dpari_most(points, 1), &step)) {
            return 0;
        }
        sum += distance;
    }
    return sum <= most / unit;
}

/* True if two points of a box may have the same address. */
static int dpari_hx_overlaps(const dpar_halo_field *field, int32_t rank, dpar_box *box)
{
    int64_t points[DPARI_HX_DIMS], stride[DPARI_HX_DIMS];
    dpari_hx_array array;
    int32_t d;
    dpari_hx_array_of(&array, field, rank);
    dpari_hx_inside(field->halo, box);
    for (d = 0; d < box->dims; d++) {
        points[d] = box->hi[d] - box->lo[d];
        stride[d] = array.told.stride[d];
    }
    points[d] = dpari_hx_components(field);
    stride[d] = array.told.component;
    return dpari_hx_overlapping_dim(stride, points, d + 1) >= 0;
}

/* Checks that field i and the next one form a pair (DPAR_HALO_PAIR_U, DPAR_HALO_PAIR_V). */
static dpar_status dpari_hx_check_pair(const dpar_halo_field *fields, int32_t n, int32_t i,
                                       dpar_why *why)
{
    const dpar_halo_field *field = &fields[i], *other;
    const int32_t there = field->pair == DPAR_HALO_PAIR_U ? i + 1 : i - 1;
    if (field->pair == 0) {
        return DPAR_OK;
    }
    if (field->pair < 0 || field->pair > DPAR_HALO_PAIR_V || there < 0 || there >= n ||
        fields[there].pair != DPAR_HALO_PAIR_U + DPAR_HALO_PAIR_V - field->pair) {
        return dpari_wrong(why,
                           "field %d of %d: pair is %d, but DPAR_HALO_PAIR_U (1) must be followed "
                           "by DPAR_HALO_PAIR_V (2)",
                           i, n, field->pair);
    }
    other = &fields[there];
    if (!field->halo->cube || field->vector == 2) {
        return dpari_wrong(
            why, "field %d: pair is only for cubed spheres and vector 0 or 1, but vector is %d", i,
            field->vector);
    }
    if (field->type != other->type || dpari_hx_wire(field) != dpari_hx_wire(other) ||
        dpari_hx_components(field) != dpari_hx_components(other) ||
        field->vector != other->vector || dpari_hx_mem(field) != dpari_hx_mem(other)) {
        return dpari_wrong(
            why,
            "fields %d and %d are a pair, but differ in type, wire_type, components, vector "
            "or memory",
            (int32_t)dpari_least(i, there), (int32_t)dpari_most(i, there));
    }
    return DPAR_OK;
}

/* True if points are on faces of a cube's cells, which only pairs may have. */
static int dpari_hx_needs_pair(const dpar_halo *halo)
{
    const int32_t y = halo->grid.dims - 2;
    return halo->cube &&
           (halo->points[y] != DPAR_HALO_AT_CELLS || halo->points[y + 1] != DPAR_HALO_AT_CELLS);
}

/* Returns what is wrong with a field that has array_halo, or NULL. */
static const char *dpari_hx_array_halo_fault(const dpar_halo_field *field)
{
    const dpar_halo *halo = field->halo, *wide = field->array_halo;
    int32_t d;
    if (field->compact_halo) {
        return "a compact halo has the width of the plan, so that array_halo must be NULL";
    }
    if (halo->grid.dims != wide->grid.dims ||
        !dpari_mesh_same(&halo->grid.mesh, &wide->grid.mesh) || halo->owner != wide->owner) {
        return "array_halo has another grid, mesh or owners than halo";
    }
    for (d = 0; d < halo->grid.dims; d++) {
        if (halo->grid.extent[d] != wide->grid.extent[d]) {
            return "array_halo has a grid of another size than halo";
        }
        if (halo->points[d] != wide->points[d]) {
            return "array_halo has other points than halo";
        }
    }
    return NULL;
}

/* Checks that the wider halo of an array (array_halo) includes the halo that is exchanged. */
static dpar_status dpari_hx_check_array_halo(const dpar_halo_field *field, int32_t i, int32_t rank,
                                             dpar_why *why)
{
    const dpar_halo *halo = field->halo, *wide = field->array_halo;
    const char *fault;
    dpar_box all, whole;
    int32_t d;
    dpar_status status = dpar_halo_check(wide, why);
    if (status != DPAR_OK) {
        return status;
    }
    fault = dpari_hx_array_halo_fault(field);
    if (fault != NULL) {
        return dpari_wrong(why, "field %d: %s", i, fault);
    }
    if (!dpar_halo_box(halo, rank, &all)) {
        return DPAR_OK;
    }
    if (!dpar_halo_box(wide, rank, &whole)) {
        return dpari_say(DPAR_E_RANGE, why, "field %d: array_halo has no points on rank %d", i,
                         rank);
    }
    for (d = 0; d < halo->grid.dims; d++) {
        if (all.lo[d] < whole.lo[d] || all.hi[d] > whole.hi[d]) {
            return dpari_say(DPAR_E_RANGE, why,
                             "field %d, dim %d: widths of %ld and %ld are more than array_halo has",
                             i, d, halo->low[d], halo->high[d]);
        }
    }
    return DPAR_OK;
}

/* Checks field i of a plan, without the other ranks. */
static dpar_status dpari_hx_check_field(const dpar_comm *comm, const dpar_halo_field *field,
                                        int32_t i, const dpar_halo_plan_desc *desc, dpar_why *why)
{
    dpar_box own, all;
    dpar_status status;
    if (!field->halo) {
        return dpari_wrong(why, "field %d: halo is NULL", i);
    }
    status = dpar_halo_check(field->halo, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_hx_check_type(field, i, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_hx_check_ranks(comm, field->halo, i, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (dpari_hx_needs_pair(field->halo) && field->pair == 0) {
        return dpari_wrong(
            why,
            "field %d: on a cubed sphere, points on faces of cells need a pair of fields: "
            "set pair to DPAR_HALO_PAIR_U and DPAR_HALO_PAIR_V",
            i);
    }
    if ((field->vector == 2 && field->components != 2) ||
        (field->halo->cube && field->vector == 1 && field->pair == 0)) {
        return dpari_wrong(
            why,
            "field %d: vector is %d with %d components; vector 2 needs 2 components, and "
            "on a cubed sphere vector 1 needs a pair of fields",
            i, field->vector, field->components);
    }
    if (field->components < 0) {
        return dpari_wrong(why, "field %d: components is %d; it must be 0 to 2^24", i,
                           field->components);
    }
    if (field->components > 1 << 24) {
        return dpari_say(DPAR_E_RANGE, why, "field %d: components is %d; at most 2^24 are allowed",
                         i, field->components);
    }
    if (field->array_halo) {
        status = dpari_hx_check_array_halo(field, i, comm->rank, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    if (dpar_halo_box(dpari_hx_array_halo(field), comm->rank, &all) &&
        !dpari_hx_reaches(field, &all)) {
        return dpari_say(DPAR_E_RANGE, why, "field %d: its array extends over more than 2^60 bytes",
                         i);
    }
    if ((dpari_hx_strided(field) || dpari_hx_components(field) > 1) &&
        (field->compact_halo ? dpar_halo_owned(field->halo, comm->rank, &all)
                             : dpar_halo_box(field->halo, comm->rank, &all)) &&
        dpari_hx_overlaps(field, comm->rank, &all)) {
        return dpari_wrong(
            why,
            "field %d: with these strides (component_stride %ld) several points of rank %d "
            "have the same address",
            i, field->component_stride, comm->rank);
    }
    if (!field->data && dpar_halo_owned(field->halo, comm->rank, &own)) {
        return dpari_wrong(why, "field %d: data is NULL on rank %d, which owns points", i,
                           comm->rank);
    }
    if (!field->data && !field->compact_halo && dpar_halo_box(field->halo, comm->rank, &all)) {
        return dpari_wrong(why,
                           "field %d: data and compact_halo are NULL on rank %d, which has a halo",
                           i, comm->rank);
    }
    return dpari_hx_check_options(field, i, desc, why);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_hx_check_fields(const dpar_comm *comm,
                                                            const dpar_halo_plan_desc *desc,
                                                            dpar_why *why)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    for (i = 0; i < desc->field_count && status == DPAR_OK; i++) {
        status = dpari_hx_check_field(comm, &desc->field[i], i, desc, why);
    }
    for (i = 0; i < desc->field_count && status == DPAR_OK; i++) {
        status = dpari_hx_check_pair(desc->field, desc->field_count, i, why);
    }
    return status;
}

/* ---- facts ----------------------------------------------------------------------------------- */

/* Lists the fields of a window that must be equal on all ranks. */
static void dpari_hx_state_window(dpari_facts *facts, const dpar_window *window, int32_t d)
{
    dpari_fact(facts, "halo.window[#].kernel", d, window->kernel);
    if (window->kernel != 0) {
        dpari_fact(facts, "halo.window[#].stride", d, window->stride);
        dpari_fact(facts, "halo.window[#].dilation", d, window->dilation);
        dpari_fact(facts, "halo.window[#].pad_low", d, window->pad_low);
        dpari_fact(facts, "halo.window[#].pad_high", d, window->pad_high);
        dpari_fact(facts, "halo.window[#].kind", d, window->kind);
        dpari_fact(facts, "halo.window[#].ceil_mode", d, window->ceil_mode != 0);
        dpari_fact(facts, "halo.window[#].align_corners", d, window->align_corners != 0);
    }
}

/* Lists the fields of axis i of a layout that must be equal on all ranks. A field that the kind of
 * placement does not use is listed as 0. */
static void dpari_hx_state_axis(dpari_facts *facts, const dpar_layout *layout, int32_t i)
{
    const dpar_placement *placement = &layout->axis[i];
    const int cuts = placement->kind == DPAR_PLACEMENT_SHARD;
    uint64_t h = 1;
    int32_t k;
    for (k = 0; cuts && placement->rule == DPAR_SPLIT_RAGGED && k <= layout->mesh.axis[i].size;
         k++) {
        h = dpari_hash(h, placement->cuts[k]);
    }
    dpari_fact(facts, "the size of axis # of halo.grid.mesh", i, layout->mesh.axis[i].size);
    dpari_fact(facts, "the stride of axis # of halo.grid.mesh", i, layout->mesh.axis[i].stride);
    dpari_fact(facts, "halo.grid.order[#]", i, layout->order[i]);
    dpari_fact(facts, "the kind of placement # of halo.grid", i, placement->kind);
    dpari_fact(facts, "the dim of placement # of halo.grid", i, cuts ? placement->dim : 0);
    dpari_fact(facts, "the rule of placement # of halo.grid", i, cuts ? placement->rule : 0);
    dpari_fact(facts, "the block of placement # of halo.grid", i, cuts ? placement->block : 0);
    dpari_fact(facts, "the source of placement # of halo.grid", i, cuts ? placement->source : 0);
    dpari_fact(facts, "the op of placement # of halo.grid", i,
               placement->kind == DPAR_PLACEMENT_PARTIAL ? placement->op : 0);
    dpari_fact_hash(facts, "the list of cuts of placement # of halo.grid", i, h);
}

/* Lists the fields of a halo that must be equal on all ranks: points, owners, widths and ends. */
static void dpari_hx_state_halo(dpari_facts *facts, const dpar_halo *halo)
{
    const int bends = halo->folds || halo->poles;
    uint64_t owners = 1;
    int32_t d;
    dpari_fact(facts, "halo.grid.dims", 0, halo->grid.dims);
    for (d = 0; d < halo->grid.dims; d++) {
        dpari_fact(facts, "halo.grid.extent[#]", d, halo->grid.extent[d]);
        dpari_fact(facts, "halo.low[#]", d, halo->low[d]);
        dpari_fact(facts, "halo.high[#]", d, halo->high[d]);
        dpari_fact(facts, "halo.points[#]", d, halo->points[d]);
        dpari_hx_state_window(facts, &halo->window[d], d);
    }
    dpari_fact(facts, "halo.shape", 0, halo->shape);
    dpari_fact(facts, "halo.periodic", 0, halo->periodic);
    dpari_fact(facts, "halo.folds", 0, halo->folds);
    dpari_fact(facts, "halo.poles", 0, halo->poles);
    dpari_fact(facts, "halo.cube", 0, halo->cube);
    dpari_fact(facts, "halo.fold", 0, bends ? halo->fold : 0);
    dpari_fact(facts, "halo.mirror", 0, bends ? halo->mirror : 0);
    dpari_fact(facts, "halo.on_row", 0, halo->folds ? halo->on_row : 0);
    dpari_fact(facts, "halo.shift", 0, halo->folds ? halo->shift : 0);
    dpari_fact(facts, "halo.pole_rows", 0, halo->pole_rows);
    dpari_fact(facts, "the number of axes of halo.grid.mesh", 0, halo->grid.mesh.axes);
    dpari_fact(facts, "halo.grid.mesh.first_rank", 0, halo->grid.mesh.first_rank);
    for (d = 0; d < halo->grid.mesh.axes; d++) {
        dpari_hx_state_axis(facts, &halo->grid, d);
    }
    for (d = 0; halo->owner && d < halo->grid.mesh.size; d++) {
        owners = dpari_hash(owners, halo->owner[d]);
    }
    dpari_fact_hash(facts, "halo.owner", 0, owners);
    dpari_fact_hash(facts, "halo.outputs", 0,
                    halo->outputs ? dpari_hash_layout(1, halo->outputs) : 0);
}

DPARI_INTERNAL DPARI_COLD void dpari_hx_state(dpari_facts *facts, const void *given)
{
    const dpar_halo_plan_desc *desc = (const dpar_halo_plan_desc *)given;
    int32_t i;
    dpari_fact(facts, "the number of fields", 0, desc->field_count);
    dpari_fact(facts, "desc.method", 0, desc->method);
    dpari_fact(facts, "desc.ordered", 0, desc->ordered);
    dpari_fact(facts, "desc.shared", 0, desc->shared);
    dpari_fact(facts, "desc.run_bytes", 0, desc->run_bytes);
    dpari_fact(facts, "desc.tag", 0, desc->tag);
    facts->of = "field #: ";
    for (i = 0; i < desc->field_count; i++) {
        const dpar_halo_field *field = &desc->field[i];
        facts->of_index = i;
        dpari_fact_type(facts, "type", 0, field->type);
        dpari_fact_type(facts, "wire_type", 0, dpari_hx_wire(field));
        dpari_fact(facts, "components", 0, dpari_hx_components(field));
        dpari_fact(facts, "vector", 0, field->vector);
        dpari_fact(facts, "pair", 0, field->pair);
        dpari_hx_state_halo(facts, field->halo);
    }
}
