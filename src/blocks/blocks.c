/* SPDX-License-Identifier: MIT-0 */
/* Makes and frees blocks and their arrays, and begins, tests and ends their exchanges. */
#include "blocks.h"

#include "../base/base_private.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/object_memory.h"
#include "blocks_cut.h"
#include "blocks_object.h"
#include "blocks_plan.h"
#include "blocks_run.h"

enum { DPARI_BLOCKS_ARRAYS = 4096 }; /* the most arrays of an exchange */

/* ---- blocks ---------------------------------------------------------------------------------- */

/* What the ranks compare before they use a description: the object has its cut, and the owners. */
typedef struct dpari_blocks_given {
    const dpar_blocks_desc *desc;
    const dpari_blocks *blocks;
} dpari_blocks_given;

static DPARI_COLD void dpari_blocks_desc_state(dpari_facts *facts, const void *given)
{
    const dpari_blocks_given *of = (const dpari_blocks_given *)given;
    const dpar_blocks_desc *desc = of->desc;
    uint64_t owners = 1;
    int32_t d, i;
    dpari_fact(facts, "dims", 0, desc->dims);
    dpari_fact(facts, "star", 0, desc->star);
    for (d = 0; d < desc->dims; d++) {
        dpari_fact(facts, "cells[#]", d, desc->cells[d]);
        dpari_fact(facts, "block[#]", d, of->blocks->head.size[d]);
        dpari_fact(facts, "halo_low[#]", d, of->blocks->low[d]);
        dpari_fact(facts, "halo_high[#]", d, of->blocks->high[d]);
        dpari_fact(facts, "periodic[#]", d, desc->periodic[d]);
    }
    dpari_fact(facts, "folds", 0, desc->folds);
    dpari_fact(facts, "fold", 0, desc->fold);
    dpari_fact(facts, "mirror", 0, desc->mirror);
    dpari_fact(facts, "poles", 0, desc->poles);
    dpari_fact(facts, "cube", 0, desc->cube);
    for (i = 0; i < of->blocks->head.total; i++) {
        owners = dpari_hash(owners, of->blocks->owner[i]);
    }
    dpari_fact_hash(facts, "owner (or exists, weight, order)", 0, owners);
}

/* Releases the object and its list of blocks. */
static DPARI_COLD void dpari_blocks_release(dpari_blocks *blocks)
{
    dpari_object_release(blocks->block);
    dpari_object_release(blocks);
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_make(dpar_comm *comm, const dpar_blocks_desc *desc,
                                                 dpar_blocks **blocks, dpar_why *why)
{
    dpari_blocks_given given;
    dpari_blocks *made = NULL;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_blocks_make: comm is NULL");
    }
    why = dpari_why_of(comm, why);
    if (!desc || !blocks) {
        status = dpari_wrong(why, "dpar_blocks_make: desc or blocks is NULL");
    } else {
        status = dpari_blocks_cut(comm, desc, &made, why);
    }
    if (status == DPAR_OK) {
        status = dpari_blocks_assign_owners(made, desc, why);
    }
    given.desc = desc;
    given.blocks = made;
    status = dpari_agree_on(comm, status, "blocks", dpari_blocks_desc_state, &given, why);
    if (status == DPAR_OK) {
        *blocks = &made->head;
    } else if (made) {
        dpari_blocks_release(made);
    }
    return status;
}

/* Releases an array. */
static DPARI_COLD void dpari_blocks_release_array(dpari_blocks_array *array)
{
    dpar_comm_release(array->head.blocks->comm, array->memory);
    dpari_object_release(array->head.block);
    dpari_object_release(array);
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_free(dpar_blocks *blocks)
{
    dpari_blocks *of = dpari_blocks_of(blocks);
    dpar_status status;
    if (!blocks) {
        return DPAR_OK;
    }
    if (of->in_use > 0 && blocks->comm->status == DPAR_OK) {
        return dpari_comm_wrong(blocks->comm,
                                "dpar_blocks_free: %d exchanges have not ended; call "
                                "dpar_blocks_end first",
                                of->in_use);
    }
    status = dpari_blocks_free_plans(of);
    while (of->arrays) {
        dpari_blocks_array *array = of->arrays;
        of->arrays = array->next;
        dpari_blocks_release_array(array);
    }
    while (of->shapes) {
        dpari_blocks_shape *shape = of->shapes;
        of->shapes = shape->next;
        dpari_object_release(shape);
    }
    dpari_blocks_release(of);
    return status;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* Lists what ranks must pass equally to make an array. */
static DPARI_COLD void dpari_blocks_shape_state(dpari_facts *facts, const void *given)
{
    const dpari_blocks_shape *shape = (const dpari_blocks_shape *)given;
    const dpar_blocks_field *field = &shape->field;
    int32_t d;
    dpari_fact(facts, "attached", 0, shape->attached);
    dpari_fact(facts, "strides", 0, shape->strided);
    dpari_fact_type(facts, "type", 0, shape->type);
    dpari_fact(facts, "components", 0, field->components);
    dpari_fact(facts, "planes", 0, field->planes);
    dpari_fact(facts, "order", 0, field->order);
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        dpari_fact(facts, "location[#]", d, field->location[d]);
    }
    dpari_fact(facts, "vector", 0, field->vector);
    dpari_fact(facts, "on_row", 0, field->on_row);
    dpari_fact(facts, "shift", 0, field->shift);
    dpari_fact(facts, "pole_rows", 0, field->pole_rows);
}

/* Finds the shape among those that are known, or adds it. All ranks have agreed on it, and have the
 * same shapes. Strides of attached arrays may differ between ranks, so that an array with strides
 * of its own is always a new shape. */
static DPARI_COLD const dpari_blocks_shape *dpari_blocks_find_shape(dpari_blocks *blocks,
                                                                    dpari_blocks_shape *shape)
{
    const uint64_t hash = dpari_facts_hash("blocks", dpari_blocks_shape_state, shape);
    dpari_blocks_shape *known;
    for (known = blocks->shapes; known; known = known->next) {
        if (!shape->strided &&
            dpari_facts_hash("blocks", dpari_blocks_shape_state, known) == hash) {
            return known;
        }
    }
    known = (dpari_blocks_shape *)dpari_object_alloc(blocks->head.comm, (int64_t)sizeof *known);
    if (known) {
        *known = *shape;
        known->number = blocks->shapes_known;
        known->next = blocks->shapes;
    }
    return known;
}

/* Sets the addresses of an array's blocks, which are in one allocation or given. */
static DPARI_COLD void dpari_blocks_set_addresses(dpari_blocks_array *array, void *const *block)
{
    const dpari_blocks_shape *shape = array->shape;
    int32_t i;
    for (i = 0; i < array->head.blocks->count; i++) {
        array->head.block[i] = block ? block[i] : array->memory + i * shape->bytes + shape->origin;
    }
}

/* Allocates an array of a shape. block: NULL to allocate its memory too. Local. */
static DPARI_COLD dpar_status dpari_blocks_new_array(dpari_blocks *blocks,
                                                     const dpari_blocks_shape *shape,
                                                     void *const *block, dpari_blocks_array **made,
                                                     dpar_why *why)
{
    dpar_comm *comm = blocks->head.comm;
    const int64_t count = blocks->head.count;
    void *memory = NULL;
    dpari_blocks_array *array =
        (dpari_blocks_array *)dpari_object_alloc(comm, (int64_t)sizeof *array);
    void **table = (void **)dpari_object_alloc(comm, (count + 1) * (int64_t)sizeof *table);
    int32_t d;
    if (!array || !shape || !table) {
        dpari_object_release(table);
        dpari_object_release(array);
        return dpari_say(DPAR_E_MEMORY, why, "blocks: no memory for the table of an array");
    }
    array->head.blocks = &blocks->head;
    array->head.type = shape->type;
    array->head.components = shape->field.components;
    array->head.component_stride = shape->field.component_stride;
    array->head.block = table;
    for (d = 0; d < blocks->head.dims; d++) {
        array->head.stride[d] = shape->field.stride[d];
    }
    array->shape = shape;
    *made = array;
    if (!shape->attached) {
        const dpar_status status =
            dpar_comm_alloc(comm, dpari_most(count * shape->bytes, 1), &memory);
        if (status != DPAR_OK) {
            return dpari_repeat(status, why, comm->why.text);
        }
        array->memory = (unsigned char *)memory;
    }
    dpari_blocks_set_addresses(array, block);
    return DPAR_OK;
}

/* Checks the addresses of blocks to be attached. */
static DPARI_COLD dpar_status dpari_blocks_check_addresses(const dpar_blocks *blocks,
                                                           void *const *block, int32_t type,
                                                           dpar_why *why)
{
    int32_t i;
    for (i = 0; i < blocks->count; i++) {
        if (!block || !block[i] || (uintptr_t)block[i] % (uintptr_t)dpar_type_bytes(type) != 0) {
            return dpari_wrong(why,
                               "dpar_blocks_attach: the address of block %d of %d is NULL or not "
                               "aligned to type %s",
                               i, blocks->count, dpar_type_name(type));
        }
    }
    return DPAR_OK;
}

/* Makes an array or attaches one. */
static DPARI_COLD dpar_status dpari_blocks_add_array(dpar_blocks *handle, void *const *block,
                                                     int32_t attached, int32_t type,
                                                     const dpar_blocks_field *field,
                                                     dpar_blocks_array **array, dpar_why *why)
{
    dpari_blocks *blocks = dpari_blocks_of(handle);
    dpari_blocks_array *made = NULL;
    const dpari_blocks_shape *known = NULL;
    dpari_blocks_shape shape;
    dpar_comm *comm;
    dpar_status status;
    if (!handle) {
        return dpari_wrong(why, "blocks array: blocks is NULL");
    }
    comm = handle->comm;
    why = dpari_why_of(comm, why);
    if (!array) {
        status = dpari_wrong(why, "blocks array: array is NULL");
    } else {
        status = dpari_blocks_set_shape(blocks, type, field, attached, &shape, why);
    }
    if (status == DPAR_OK && attached) {
        status = dpari_blocks_check_addresses(handle, block, type, why);
    }
    status = dpari_agree_on(comm, status, "blocks array", dpari_blocks_shape_state, &shape, why);
    if (status != DPAR_OK) {
        return status;
    }
    known = dpari_blocks_find_shape(blocks, &shape);
    status = dpari_blocks_new_array(blocks, known, block, &made, why);
    status = dpari_agree_on(comm, status, "blocks array", NULL, NULL, why);
    if (known && known->number == blocks->shapes_known) { /* it is new */
        if (status == DPAR_OK) {
            blocks->shapes = (dpari_blocks_shape *)(uintptr_t)known;
            blocks->shapes_known++;
        } else {
            dpari_object_release((void *)(uintptr_t)known);
        }
    }
    if (status == DPAR_OK) {
        made->next = blocks->arrays;
        blocks->arrays = made;
        *array = &made->head;
    } else if (made) {
        dpari_blocks_release_array(made);
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_array_make(dpar_blocks *blocks, int32_t type,
                                                       const dpar_blocks_field *field,
                                                       dpar_blocks_array **array, dpar_why *why)
{
    return dpari_blocks_add_array(blocks, NULL, 0, type, field, array, why);
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_attach(dpar_blocks *blocks, void *const *block,
                                                   int32_t type, const dpar_blocks_field *field,
                                                   dpar_blocks_array **array, dpar_why *why)
{
    return dpari_blocks_add_array(blocks, block, 1, type, field, array, why);
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_array_free(dpar_blocks_array *array)
{
    dpari_blocks_array *of = dpari_blocks_array_of(array);
    dpari_blocks_array **at;
    if (!array) {
        return DPAR_OK;
    }
    if (of->plan && array->blocks->comm->status == DPAR_OK) {
        return dpari_comm_wrong(array->blocks->comm, "dpar_blocks_array_free: an exchange of the "
                                                     "array has not ended; call dpar_blocks_end "
                                                     "first");
    }
    at = &dpari_blocks_of(array->blocks)->arrays;
    while (*at != of) {
        at = &(*at)->next;
    }
    *at = of->next;
    dpari_blocks_release_array(of);
    return DPAR_OK;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Checks the arrays of an exchange. */
static dpar_status dpari_blocks_check(dpari_blocks *blocks, dpar_blocks_array *const *arrays,
                                      int32_t count, int32_t op)
{
    dpar_comm *comm = blocks->head.comm;
    int32_t i;
    if (!arrays || count < 1 || count > DPARI_BLOCKS_ARRAYS) {
        return dpari_comm_wrong(comm, "blocks exchange: %d arrays, but 1 to %d are allowed",
                                arrays ? count : 0, (int32_t)DPARI_BLOCKS_ARRAYS);
    }
    blocks->stamp++;
    for (i = 0; i < count; i++) {
        dpari_blocks_array *array = dpari_blocks_array_of(arrays[i]);
        if (!array || array->head.blocks != &blocks->head) {
            return dpari_comm_wrong(
                comm, "blocks exchange: array %d of %d is NULL or of other blocks", i, count);
        }
        if (array->plan || array->stamp == blocks->stamp) {
            return dpari_comm_wrong(comm,
                                    array->plan ? "blocks exchange: an exchange of array %d of %d "
                                                  "has not ended; call dpar_blocks_end first"
                                                : "blocks exchange: array %d of %d is twice in "
                                                  "the list",
                                    i, count);
        }
        array->stamp = blocks->stamp;
        if (op != DPAR_COPY && !dpari_type_can_reduce(array->head.type)) {
            return dpari_comm_wrong(comm,
                                    "dpar_blocks_reduce: array %d has type %s, which cannot "
                                    "be combined",
                                    i, dpar_type_name(array->head.type));
        }
    }
    return DPAR_OK;
}

/* Marks the end of an exchange. */
static void dpari_blocks_mark_ended(dpari_blocks *blocks, dpari_blocks_plan *plan)
{
    int32_t i;
    for (i = 0; i < plan->arrays; i++) {
        plan->array[i]->plan = NULL;
    }
    plan->in_use = 0;
    blocks->in_use--;
}

/* Begins an exchange or an adjoint. */
static dpar_status dpari_blocks_begin_op(dpar_blocks *handle, dpar_blocks_array *const *arrays,
                                         int32_t count, int32_t op)
{
    dpari_blocks *blocks = dpari_blocks_of(handle);
    dpari_blocks_plan *plan = NULL;
    dpar_status status;
    int32_t i;
    if (!handle) {
        return DPAR_E_ARG;
    }
    if (handle->comm->status != DPAR_OK) {
        return handle->comm->status;
    }
    status = dpari_blocks_check(blocks, arrays, count, op);
    if (status == DPAR_OK) {
        status = dpari_blocks_find_plan(blocks, arrays, count, op, &plan);
    }
    if (status == DPAR_OK) {
        status = dpari_exchange_may_begin(&plan->x);
    }
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < count; i++) {
        plan->array[i] = dpari_blocks_array_of(arrays[i]);
        plan->array[i]->plan = plan;
    }
    plan->in_use = 1;
    blocks->in_use++;
    status = dpari_exchange_begin(&plan->x, op, (uint64_t)plan->number * (DPARI_EXCHANGE_OP + 1));
    if (status != DPAR_OK) {
        dpari_blocks_mark_ended(blocks, plan);
    }
    return status;
}

DPAR_API dpar_status dpar_blocks_begin(dpar_blocks *blocks, dpar_blocks_array *const *arrays,
                                       int32_t count)
{
    return dpari_blocks_begin_op(blocks, arrays, count, DPAR_COPY);
}

/* Returns the plan of the exchange in which an array takes part, or NULL. */
static dpari_blocks_plan *dpari_blocks_plan_of(const dpar_blocks *blocks,
                                               const dpar_blocks_array *array)
{
    return blocks && array && array->blocks == blocks ? dpari_blocks_array_of(array)->plan : NULL;
}

DPAR_API dpar_status dpar_blocks_test(dpar_blocks *blocks, dpar_blocks_array *array)
{
    dpari_blocks_plan *plan = dpari_blocks_plan_of(blocks, array);
    if (!blocks || !array || array->blocks != blocks) {
        return DPAR_E_ARG;
    }
    return plan ? dpari_exchange_advance(&plan->x, 0) : blocks->comm->status;
}

DPAR_API dpar_status dpar_blocks_end(dpar_blocks *blocks, dpar_blocks_array *array)
{
    dpari_blocks_plan *plan = dpari_blocks_plan_of(blocks, array);
    dpar_status status;
    if (!blocks || !array || array->blocks != blocks) {
        return DPAR_E_ARG;
    }
    if (!plan) {
        return blocks->comm->status;
    }
    status = dpari_exchange_advance(&plan->x, 1);
    if (status == DPAR_OK) {
        dpari_blocks_clear(plan);
    }
    dpari_blocks_mark_ended(dpari_blocks_of(blocks), plan);
    return status;
}

DPAR_API dpar_status dpar_blocks_exchange_many(dpar_blocks *blocks,
                                               dpar_blocks_array *const *arrays, int32_t count)
{
    const dpar_status status = dpari_blocks_begin_op(blocks, arrays, count, DPAR_COPY);
    return status == DPAR_OK ? dpar_blocks_end(blocks, arrays[0]) : status;
}

DPAR_API dpar_status dpar_blocks_exchange(dpar_blocks *blocks, dpar_blocks_array *array)
{
    return dpar_blocks_exchange_many(blocks, &array, 1);
}

DPAR_API dpar_status dpar_blocks_reduce(dpar_blocks *blocks, dpar_blocks_array *const *arrays,
                                        int32_t count, int32_t op)
{
    dpar_status status;
    if (blocks && op != DPAR_SUM && op != DPAR_MIN && op != DPAR_MAX) {
        return dpari_comm_wrong(blocks->comm,
                                "dpar_blocks_reduce: op is %d, but must be DPAR_SUM, "
                                "DPAR_MIN or DPAR_MAX",
                                op);
    }
    status = dpari_blocks_begin_op(blocks, arrays, count, op);
    return status == DPAR_OK ? dpar_blocks_end(blocks, arrays[0]) : status;
}
