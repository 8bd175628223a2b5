/* SPDX-License-Identifier: MIT-0 */
/* Moves arrays between layouts: dpar_redistribute of move.h.
 *
 * The modules of a move, lowest first:
 *
 *     move_items    the boxes of an array, and how parts of them are copied and combined
 *     move_streams  transfers become items, grouped by peer into streams, in scratch
 *     move_order    what has arrived is combined in the order of the list
 *     move_rounds   the messages
 *     move_lists    dpar_transfers_exchange: the user's lists of transfers
 *     move          dpar_redistribute: the lists of dpar_redistribute_next of dpar.h */
#include "move.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../index/index_private.h"
#include "../index/layout.h"
#include "../index/mesh.h"
#include "../index/redistribute.h"
#include "move_items.h"
#include "move_rounds.h"
#include "move_streams.h"

typedef struct dpari_redistribution {
    dpari_move move;              /* its `sum` counts what is moved if replicas share the sends */
    dpari_move_totals primary[2]; /* the same if copy 0 sends everything */
    int64_t bytes;                /* of scratch, enough for both; -1 if more than 2^62 */
    int32_t may_split_sums;       /* 1 if replicas might cut parts of a sum differently */
} dpari_redistribution;

static DPARI_COLD dpar_status dpari_mesh_fits(const dpar_comm *comm, const dpar_mesh *mesh,
                                              dpar_why *why)
{
    int64_t last = mesh->first_rank;
    int32_t i;
    for (i = 0; i < mesh->axes; i++) {
        last += (int64_t)(mesh->axis[i].size - 1) * mesh->axis[i].stride;
    }
    if (mesh->first_rank < 0 || last >= comm->size) {
        return dpari_wrong(why, "a layout has ranks %d to %ld, but the communicator has %d ranks",
                           mesh->first_rank, last, comm->size);
    }
    return DPAR_OK;
}

/* True if replicas must not cut parts of one sum differently, because results would depend on it:
 * 16-bit sums round at every step, and averages need all their parts at once. */
static int dpari_sums_depend(const dpar_layout *from, int32_t type)
{
    int32_t i, sums = 0, averages = 0;
    for (i = 0; i < from->mesh.axes; i++) {
        sums |= from->axis[i].kind == DPAR_PLACEMENT_PARTIAL;
        averages |= from->axis[i].kind == DPAR_PLACEMENT_PARTIAL && from->axis[i].op == DPAR_AVG;
    }
    return (averages || (sums && dpar_type_bytes(type) == 2)) && dpari_layout_copies(from) > 1;
}

/* Counts what this rank moves if replicas share the sends, or, with per_node
 * DPAR_REDISTRIBUTE_PRIMARY, if copy 0 sends everything, and makes all->bytes large enough. */
static DPARI_COLD dpar_status dpari_redistribution_total(dpari_redistribution *all,
                                                         int32_t per_node, dpar_why *why)
{
    dpar_status status;
    int64_t bytes;
    all->move.source.per_node = per_node;
    status = dpari_move_count(&all->move, why);
    bytes = dpari_move_bytes(&all->move);
    if ((uint64_t)bytes > (uint64_t)all->bytes) { /* -1 exceeds all others */
        all->bytes = bytes;
    }
    return status;
}

/* Checks the layouts of this rank and counts what it moves, without the other ranks. */
static DPARI_COLD dpar_status dpari_redistribution_count(dpari_redistribution *all, dpar_comm *comm,
                                                         const dpar_redistribute_desc *desc,
                                                         dpar_why *why)
{
    dpari_move *move = &all->move;
    const dpari_move_totals *sum = move->sum;
    dpar_status status = dpari_move_init(move, comm, desc, why);
    const dpar_layout *from = move->desc->from, *to = move->desc->to;
    move->source.from = from;
    move->source.to = to;
    all->bytes = 0;
    if (status != DPAR_OK) {
        return status;
    }
    if (from == NULL || to == NULL) {
        return dpari_wrong(why, "a layout is NULL");
    }
    status = dpari_mesh_fits(comm, &from->mesh, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_mesh_fits(comm, &to->mesh, why);
    if (status != DPAR_OK) {
        return status;
    }
    all->may_split_sums =
        dpari_sums_depend(from, desc->type) && desc->ranks_per_node != DPAR_REDISTRIBUTE_PRIMARY;
    if (all->may_split_sums) {
        status = dpari_redistribution_total(all, DPAR_REDISTRIBUTE_PRIMARY, why);
        if (status != DPAR_OK) {
            return status;
        }
        all->primary[0] = sum[0];
        all->primary[1] = sum[1];
    }
    status = dpari_redistribution_total(all, desc->ranks_per_node, why);
    if (status != DPAR_OK) {
        return status;
    }
    if ((sum[0].ops || sum[1].ops) && !dpari_type_can_reduce(desc->type)) {
        const char *name = dpar_type_name(desc->type);
        return dpari_wrong(why, "elements of %s cannot be combined", name);
    }
    return DPAR_OK;
}

/* Describes the array of one side. This rank's part is the corner of an array of shape `whole`, or
 * all of it if `whole` is NULL. Stores the shape of the part, and the bytes of the array. */
static DPARI_COLD dpar_status dpari_side_array(dpari_move_array *array, const dpar_layout *layout,
                                               int32_t rank, const int64_t *whole, int32_t width,
                                               int64_t *shape, int64_t *bytes, dpar_why *why)
{
    int64_t elements = 0;
    int32_t coord[DPAR_MAX_AXES], d, empty = 0;
    dpar_status st;
    if (!dpar_mesh_coords(&layout->mesh, rank, coord)) {
        whole = NULL;
        empty = 1;
    }
    dpar_layout_local(layout, rank, shape, NULL);
    for (d = 0; d < layout->dims; d++) {
        if (whole != NULL && whole[d] < shape[d]) {
            return dpari_wrong(why, "dim %d: the shape is %ld, but this rank has %ld elements", d,
                               whole[d], shape[d]);
        }
        empty |= shape[d] == 0;
    }
    st = dpari_array_init(array, layout->dims, whole ? whole : shape, width, &elements, why);
    *bytes = empty ? 0 : elements * width;
    return st;
}

/* Does the rest of the local part of dpar_redistribute: describes both arrays and provides
 * scratch. */
static DPARI_COLD dpar_status dpari_redistribution_arrays(dpari_redistribution *all, dpar_why *why)
{
    dpari_move *move = &all->move;
    const dpar_redistribute_desc *desc = move->desc;
    const int32_t rank = move->comm->rank, width = move->boxes.bytes;
    int64_t shape[DPAR_MAX_DIMS], reads, writes;
    dpar_status status = dpari_side_array(&move->out.array, desc->from, rank, desc->in_shape, width,
                                          shape, &reads, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_side_array(&move->in.array, desc->to, rank, desc->out_shape, width, shape,
                              &writes, why);
    if (status != DPAR_OK) {
        return status;
    }
    if ((reads > 0 && desc->in == NULL) || (writes > 0 && desc->out == NULL)) {
        return dpari_wrong(why, "in has %ld bytes, out %ld bytes, but one of them is NULL", reads,
                           writes);
    }
    if (dpari_move_overlaps(move, reads, writes)) {
        return dpari_wrong(why, "in and out overlap");
    }
    move->out.array.from = (const unsigned char *)desc->in;
    move->in.array.to = (unsigned char *)desc->out;
    return dpari_move_scratch(move, all->bytes, why);
}

static DPARI_COLD void dpari_fact_layout(dpari_facts *facts, const char *of,
                                         const dpar_layout *layout)
{
    int32_t d;
    facts->of = of;
    dpari_fact(facts, "dims", 0, layout->dims);
    for (d = 0; d < layout->dims; d++) {
        dpari_fact(facts, "extent[#]", d, layout->extent[d]);
    }
    dpari_fact(facts, "mesh.axes", 0, layout->mesh.axes);
    for (d = 0; d < layout->mesh.axes; d++) {
        dpari_fact(facts, "mesh.axis[#].size", d, layout->mesh.axis[d].size);
    }
    dpari_fact_hash(facts, "axis", 0, dpari_hash_layout(1, layout));
    facts->of = NULL;
}

/* Adds the arguments that must be equal on all ranks. */
static void dpari_redistribution_state(dpari_facts *facts, const void *given)
{
    const dpari_move *move = (const dpari_move *)given;
    dpari_move_state(facts, move);
    dpari_fact_layout(facts, "from->", move->source.from);
    dpari_fact_layout(facts, "to->", move->source.to);
    dpari_fact(facts, "ranks_per_node", 0, move->source.per_node);
}

/* Sets this rank's part to zeros if nobody sends to it: it then holds no part of a sum of which
 * `to` has only parts. */
static void dpari_move_zeros(dpari_move *move)
{
    const dpar_layout *to = move->source.to;
    int64_t extent[DPAR_MAX_DIMS];
    int32_t coord[DPAR_MAX_AXES], d;
    if (move->in.items > 0 || !dpar_mesh_coords(&to->mesh, move->comm->rank, coord)) {
        return;
    }
    dpar_layout_local(to, move->comm->rank, extent, NULL);
    for (d = 0; d < to->dims; d++) {
        if (extent[d] == 0) {
            return;
        }
    }
    dpari_array_zero(&move->boxes, &move->in.array, extent, move->zero);
}

/* The collective part of dpar_redistribute. Every rank calls it, with the status of its local part.
 * If sums would be split differently on any rank, only copy 0 sends, on all ranks. */
static dpar_status dpari_redistribution_move(dpari_redistribution *all, dpar_status status,
                                             dpar_why *why)
{
    dpari_move *move = &all->move;
    int32_t apart = 0;
    status =
        dpari_agree_on(move->comm, status, "redistribute", dpari_redistribution_state, move, why);
    if (status == DPAR_OK && all->may_split_sums) {
        status = dpar_all_reduce(move->comm, &move->sum[DPAR_TRANSFER_RECV].apart, &apart, 1,
                                 DPAR_I32, DPAR_MAX, NULL);
        (void)dpari_move_failed(move, status, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (apart) {
        move->source.per_node = DPAR_REDISTRIBUTE_PRIMARY;
        move->sum[0] = all->primary[0];
        move->sum[1] = all->primary[1];
    }
    dpari_move_build(move);
    dpari_move_zeros(move);
    return dpari_move_go(move, why);
}

DPAR_API DPARI_COLD dpar_status dpar_redistribute(dpar_comm *comm,
                                                  const dpar_redistribute_desc *move, dpar_why *why)
{
    dpari_redistribution all;
    dpar_status status;
    if (comm == NULL) {
        return dpari_wrong(why, "the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    status = dpari_redistribution_count(&all, comm, move, why);
    if (status == DPAR_OK) {
        status = dpari_redistribution_arrays(&all, why);
    }
    status = dpari_redistribution_move(&all, status, why);
    return dpari_move_end(&all.move, status, why);
}
