/* SPDX-License-Identifier: MIT-0 */
/* Checks descriptions of blocks and of arrays, cuts the grid, and makes the tables of owners. */
#include "blocks_cut.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/object_memory.h"
#include "../comm/shm.h"
#include "../index/mesh.h"
#include "../index/split.h"

#define DPARI_BLOCKS_MOST_BYTES (INT64_C(1) << 56) /* of a rank's array */
enum {
    DPARI_BLOCKS_COMPONENTS = 1 << 20, /* the most components of a point */
    DPARI_BLOCKS_MOST = INT32_MAX - 1  /* blocks */
};

/* ---- the grid -------------------------------------------------------------------------------- */

/* Checks one dim of a description, and sets how it is cut. *total: number of blocks so far. */
static DPARI_COLD dpar_status dpari_blocks_cut_dim(const dpar_blocks_desc *desc, int32_t d,
                                                   dpari_blocks *blocks, int64_t *total,
                                                   dpar_why *why)
{
    int64_t size = desc->block[d], parts;
    if (desc->cells[d] < 1 || size < 0) {
        return dpari_wrong(why,
                           "blocks: dim %d has %ld cells in blocks of %ld, but cells must be at "
                           "least 1 and block 0 or more",
                           d, desc->cells[d], size);
    }
    if (!dpari_is_flag(desc->periodic[d]) || desc->halo < 0 || desc->halo_low[d] < 0 ||
        desc->halo_high[d] < 0) {
        return dpari_wrong(why,
                           "blocks: dim %d has periodic %d, halo %ld, halo_low %ld, halo_high %ld: "
                           "periodic must be 0 or 1, and halos 0 or more",
                           d, desc->periodic[d], desc->halo, desc->halo_low[d], desc->halo_high[d]);
    }
    if (size == 0 || size > desc->cells[d]) {
        size = desc->cube && d == 0 ? 1 : desc->cells[d];
    }
    parts = dpari_ceil_div(desc->cells[d], size);
    if (parts > DPARI_BLOCKS_MOST / *total) {
        return dpari_say(DPAR_E_RANGE, why,
                         "blocks: %ld cells of dim %d in blocks of %ld, times %ld blocks of the "
                         "dims before it, are more than 2^31 - 2 blocks; use larger blocks",
                         desc->cells[d], d, size, *total);
    }
    *total *= parts;
    blocks->head.cells[d] = desc->cells[d];
    blocks->head.size[d] = size;
    blocks->head.grid[d] = (int32_t)parts;
    blocks->low[d] = desc->halo_low[d] > 0 ? desc->halo_low[d] : desc->halo;
    blocks->high[d] = desc->halo_high[d] > 0 ? desc->halo_high[d] : desc->halo;
    return DPAR_OK;
}

/* Makes the halo of cells, whose ranks are the blocks. cuts: memory for all cuts. */
static DPARI_COLD dpar_status dpari_blocks_cut_halo(dpari_blocks *blocks,
                                                    const dpar_blocks_desc *desc, int64_t *cuts,
                                                    dpar_why *why)
{
    const int32_t dims = desc->dims;
    dpar_halo *halo = &blocks->halo;
    dpar_placement placement[DPAR_MAX_DIMS];
    dpar_mesh mesh;
    dpar_status status;
    int32_t d, i;
    for (d = 0; d < dims; d++) {
        placement[d] = dpar_shard_by(d, DPAR_SPLIT_RAGGED, 0);
        placement[d].cuts = cuts;
        for (i = 0; i < blocks->head.grid[d]; i++) {
            *cuts++ = i * blocks->head.size[d];
        }
        *cuts++ = desc->cells[d];
        halo->low[d] = blocks->low[d];
        halo->high[d] = blocks->high[d];
        halo->periodic |= (uint32_t)desc->periodic[d] << d;
    }
    halo->shape = desc->star ? DPAR_STENCIL_STAR : DPAR_STENCIL_BOX;
    halo->folds = desc->folds;
    halo->fold = desc->fold;
    halo->mirror = desc->mirror;
    halo->poles = desc->poles;
    halo->cube = desc->cube;
    status = dpar_mesh_init(&mesh, &"f e d c b a"[2 * (DPAR_MAX_DIMS - dims)], blocks -> head.grid,
                            DPAR_ORDER_LAST_FASTEST, blocks->head.total, why);
    if (status == DPAR_OK) {
        status = dpar_layout_init(&halo->grid, &mesh, dims, desc->cells, placement, why);
    }
    return status == DPAR_OK ? dpar_halo_check(halo, why) : status;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_blocks_cut(dpar_comm *comm,
                                                       const dpar_blocks_desc *desc,
                                                       dpari_blocks **made, dpar_why *why)
{
    dpari_blocks counted, *blocks = &counted;
    dpari_room room = dpari_room_of(NULL);
    int64_t total = 1, cuts = 0, *cut = NULL;
    dpar_status status = DPAR_OK;
    int32_t d, pass;
    if (comm->mem && !comm->node && !dpari_world_of(comm)) {
        return dpari_wrong(
            why, "blocks: arrays are in the host's memory, but comm sends a device's memory");
    }
    if (desc->dims < 1 || desc->dims > DPAR_MAX_DIMS || !dpari_is_flag(desc->star)) {
        return dpari_wrong(why, "blocks: dims is %d, star is %d: dims must be 1 to %d, star 0 or 1",
                           desc->dims, desc->star, (int32_t)DPAR_MAX_DIMS);
    }
    dpari_zero(&counted, sizeof counted);
    for (d = 0; d < desc->dims && status == DPAR_OK; d++) {
        status = dpari_blocks_cut_dim(desc, d, &counted, &total, why);
        cuts += counted.head.grid[d] + 1;
    }
    if (status != DPAR_OK) {
        return status;
    }
    for (pass = 0; pass < 2; pass++) {
        dpari_blocks *at = (dpari_blocks *)dpari_room_take(&room, 1, sizeof *at);
        if (pass == 1) {
            *at = counted;
            blocks = at;
        }
        blocks->owner = (int32_t *)dpari_room_take(&room, total, sizeof *blocks->owner);
        blocks->slot = (int32_t *)dpari_room_take(&room, total, sizeof *blocks->slot);
        cut = (int64_t *)dpari_room_take(&room, cuts, sizeof *cut);
        if (pass == 0) {
            room.at = (unsigned char *)dpari_object_alloc(comm, room.used);
            if (!room.at) {
                return dpari_say(DPAR_E_MEMORY, why, "blocks: no memory for %ld bytes", room.used);
            }
            room.used = 0;
        }
    }
    blocks->head.comm = comm;
    blocks->head.dims = desc->dims;
    blocks->head.total = (int32_t)total;
    blocks->head.owner = blocks->owner;
    *made = blocks;
    return dpari_blocks_cut_halo(blocks, desc, cut, why);
}

/* ---- owners ---------------------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD void dpari_blocks_describe(const dpari_blocks *blocks, int32_t number,
                                                     dpar_block *block)
{
    int32_t d, rest = number;
    block->number = number;
    for (d = blocks->head.dims - 1; d >= 0; d--) {
        const int64_t size = blocks->head.size[d];
        block->first[d] = rest % blocks->head.grid[d] * size;
        block->count[d] = dpari_least(size, blocks->head.cells[d] - block->first[d]);
        rest /= blocks->head.grid[d];
    }
}

DPARI_INTERNAL DPARI_COLD void dpari_blocks_set_assign(const dpari_blocks *blocks,
                                                       dpar_blocks_assign_desc *assign)
{
    int32_t d;
    dpari_zero(assign, sizeof *assign);
    assign->dims = blocks->head.dims;
    assign->ranks = blocks->head.comm->size;
    assign->periodic = blocks->halo.periodic;
    for (d = 0; d < blocks->head.dims; d++) {
        assign->cells[d] = blocks->head.cells[d];
        assign->block[d] = blocks->head.size[d];
    }
    assign->bytes = 12 * (int64_t)blocks->head.total + 32 * (int64_t)assign->ranks + 64;
}

/* Checks the owners that the caller gives. */
static DPARI_COLD dpar_status dpari_blocks_copy_owners(dpari_blocks *blocks,
                                                       const dpar_blocks_desc *desc, dpar_why *why)
{
    const int32_t ranks = blocks->head.comm->size;
    int32_t i;
    for (i = 0; i < blocks->head.total; i++) {
        const int exists = !desc->exists || desc->exists[i];
        if (desc->owner[i] < -1 || desc->owner[i] >= ranks ||
            (desc->exists && (desc->owner[i] >= 0) != exists)) {
            return dpari_wrong(why,
                               "blocks: owner of block %d is %d, but must be 0 to %d, or -1 if the "
                               "block does not exist",
                               i, desc->owner[i], ranks - 1);
        }
        blocks->owner[i] = desc->owner[i];
    }
    return DPAR_OK;
}

/* Chooses the owners. */
static DPARI_COLD dpar_status dpari_blocks_choose_owners(dpari_blocks *blocks,
                                                         const dpar_blocks_desc *desc,
                                                         dpar_why *why)
{
    dpar_blocks_assign_desc assign;
    dpar_status status;
    dpari_blocks_set_assign(blocks, &assign);
    assign.order = desc->order;
    assign.exists = desc->exists;
    assign.weight = desc->weight;
    assign.memory = dpari_object_alloc(blocks->head.comm, assign.bytes);
    if (!assign.memory) {
        return dpari_say(DPAR_E_MEMORY, why, "blocks: no memory for %ld bytes", assign.bytes);
    }
    status = dpar_blocks_assign(&assign, blocks->owner, NULL, why);
    dpari_object_release(assign.memory);
    return status;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_blocks_list_own(const dpari_blocks *blocks,
                                                            const int32_t *owner, int32_t *slot,
                                                            dpar_block **own, int32_t *count,
                                                            dpar_why *why)
{
    dpar_comm *comm = blocks->head.comm;
    int32_t *counts = (int32_t *)dpari_object_alloc(comm, comm->size * (int64_t)sizeof *counts);
    int32_t i, n = 0;
    *own = NULL;
    if (counts) {
        for (i = 0; i < blocks->head.total; i++) {
            slot[i] = owner[i] < 0 ? -1 : counts[owner[i]]++;
        }
        *count = counts[comm->rank];
        dpari_object_release(counts);
        *own = (dpar_block *)dpari_object_alloc(comm, (*count + 1) * (int64_t)sizeof **own);
    }
    if (!*own) {
        return dpari_say(DPAR_E_MEMORY, why, "blocks: no memory for the list of blocks");
    }
    for (i = 0; i < blocks->head.total; i++) {
        if (owner[i] == comm->rank) {
            dpari_blocks_describe(blocks, i, &(*own)[n++]);
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_blocks_assign_owners(dpari_blocks *blocks,
                                                                 const dpar_blocks_desc *desc,
                                                                 dpar_why *why)
{
    dpar_status status = desc->owner ? dpari_blocks_copy_owners(blocks, desc, why)
                                     : dpari_blocks_choose_owners(blocks, desc, why);
    blocks->order = desc->order;
    if (status == DPAR_OK) {
        status = dpari_blocks_list_own(blocks, blocks->owner, blocks->slot, &blocks->block,
                                       &blocks->head.count, why);
    }
    blocks->head.block = blocks->block;
    return status;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Checks the values of a field. */
static DPARI_COLD dpar_status dpari_blocks_check_field(const dpari_blocks *blocks, int32_t type,
                                                       const dpar_blocks_field *field,
                                                       dpar_why *why)
{
    int32_t d;
    if (dpar_type_bytes(type) == 0 || field->components < 0 ||
        field->components > DPARI_BLOCKS_COMPONENTS) {
        return dpari_wrong(
            why, "blocks: %d components of type %s (allowed: 0 to 2^20, of a type with bytes)",
            field->components, dpar_type_name(type));
    }
    if (!dpari_is_flag(field->planes) ||
        (field->order != DPAR_ORDER_LAST_FASTEST && field->order != DPAR_ORDER_FIRST_FASTEST)) {
        return dpari_wrong(why,
                           "blocks: planes is %d, order is %d: planes must be 0 or 1, and "
                           "order DPAR_ORDER_x",
                           field->planes, field->order);
    }
    for (d = 0; d < blocks->head.dims; d++) {
        if (field->location[d] != DPAR_HALO_AT_CELLS &&
            field->location[d] != DPAR_HALO_AT_LOW_FACES) {
            return dpari_wrong(why,
                               "blocks: location[%d] is %d, but must be DPAR_HALO_AT_CELLS or "
                               "DPAR_HALO_AT_LOW_FACES",
                               d, field->location[d]);
        }
        if (field->location[d] && blocks->halo.cube) {
            return dpari_wrong(
                why, "blocks: location[%d] is faces, but a cubed sphere has only fields at cells",
                d);
        }
    }
    if (field->vector < 0 || field->vector > 2 ||
        (field->vector == 2 && (!blocks->halo.cube || field->components != 2)) ||
        (field->vector == 1 && blocks->halo.cube)) {
        return dpari_wrong(why,
                           "blocks: vector is %d with %d components: 1 is for folds and poles, 2 "
                           "for 2 components on a cubed sphere, 0 for scalars",
                           field->vector, field->components);
    }
    return DPAR_OK;
}

/* Sets the strides of dense blocks, and the bytes of a block. */
static DPARI_COLD dpar_status dpari_blocks_set_strides(const dpari_blocks *blocks,
                                                       dpari_blocks_shape *shape, dpar_why *why)
{
    const int64_t most = DPARI_BLOCKS_MOST_BYTES / dpar_type_bytes(shape->type);
    const int32_t dims = blocks->head.dims;
    dpar_blocks_field *field = &shape->field;
    int64_t step = field->planes ? 1 : field->components, before = 0;
    int32_t k;
    for (k = 0; k < dims; k++) {
        const int32_t d = field->order == DPAR_ORDER_FIRST_FASTEST ? k : dims - 1 - k;
        const int64_t points = blocks->head.size[d] + shape->halo.low[d] + shape->halo.high[d];
        field->stride[d] = step;
        before += step * shape->halo.low[d];
        if (!dpari_mul(step, points, &step) || step > most) {
            break;
        }
    }
    if (k == dims) {
        field->component_stride = field->planes ? step : 1;
        if (field->planes && !dpari_mul(step, field->components, &step)) {
            k = 0;
        }
    }
    if (k < dims || step > most / dpari_most(blocks->head.count, 1)) {
        return dpari_say(DPAR_E_RANGE, why,
                         "blocks: %d blocks with their halos and %d components of type %s are more "
                         "than 2^56 bytes",
                         blocks->head.count, field->components, dpar_type_name(shape->type));
    }
    shape->origin = before * dpar_type_bytes(shape->type);
    shape->bytes = dpari_exchange_lines(step * dpar_type_bytes(shape->type));
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status
dpari_blocks_set_shape(const dpari_blocks *blocks, int32_t type, const dpar_blocks_field *field,
                       int32_t attached, dpari_blocks_shape *shape, dpar_why *why)
{
    dpar_blocks_field *own = &shape->field;
    dpar_status status;
    int32_t d, strided = 0;
    dpari_zero(shape, sizeof *shape);
    if (field) {
        *own = *field;
    }
    status = dpari_blocks_check_field(blocks, type, own, why);
    if (status != DPAR_OK) {
        return status;
    }
    shape->type = type;
    shape->attached = attached;
    own->components = own->components > 0 ? own->components : 1;
    shape->halo = blocks->halo;
    shape->halo.on_row = own->on_row;
    shape->halo.shift = own->shift;
    shape->halo.pole_rows = own->pole_rows;
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        strided |= own->stride[d] != 0;
        if (d < blocks->head.dims && own->location[d]) {
            shape->halo.points[d] = own->location[d];
            shape->halo.high[d]++;
            shape->halo.shape = DPAR_STENCIL_BOX;
        }
    }
    status = dpar_halo_check(&shape->halo, why);
    if (status != DPAR_OK) {
        return status;
    }
    shape->strided = strided;
    if (strided && attached) {
        own->component_stride = own->component_stride ? own->component_stride : 1;
        return DPAR_OK;
    }
    if (strided || own->component_stride) {
        return dpari_wrong(why, "blocks: strides are only for dpar_blocks_attach, with stride of "
                                "every dim");
    }
    return dpari_blocks_set_strides(blocks, shape, why);
}
