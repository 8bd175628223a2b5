/* SPDX-License-Identifier: MIT-0 */
#include "fsdp_state.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/memory_calls.h"
#include "../host/moment_codes.h"
#include "../host/optimizer_private.h"
#include "../index/layout.h"
#include "../index/redistribute.h"
#include "fsdp_place.h"
#include "fsdp_private.h"

/* Lists the values that must be equal on all ranks in dpar_fsdp_load. */
static DPARI_COLD void dpari_fsdp_facts_load(dpari_facts *facts, const void *given)
{
    const dpari_fsdp_given *g = (const dpari_fsdp_given *)given;
    dpari_fsdp_facts_place(facts, g);
    dpari_fact(facts, "the number of ranks that saved", 0, g->ranks);
    dpari_fact(facts, "the number of steps", 0, g->steps);
}

/* True if there is such an array of unit u now. Gradients are available only between passes. */
static int dpari_fsdp_has(const dpar_fsdp *fsdp, int32_t array, int32_t u)
{
    if (!dpari_fsdp_is_unit(fsdp, u) || array < 0) {
        return 0;
    }
    if (array != DPAR_FSDP_MASTER && fsdp->unit[u].frozen) {
        return 0;
    }
    if (array == DPAR_FSDP_GRADIENT) {
        return !fsdp->under_way;
    }
    return array <= dpari_optimizer_moments(&fsdp->desc.optimizer); /* the masters are array 0 */
}

DPAR_API DPARI_COLD void *dpar_fsdp_state(const dpar_fsdp *fsdp, int32_t array, int32_t unit,
                                          int64_t *elements, int32_t *type)
{
    const int there = dpari_fsdp_has(fsdp, array, unit);
    int32_t of_type = DPAR_TYPE_NONE;
    void *at = NULL;
    if (there && array == DPAR_FSDP_GRADIENT) {
        at = dpari_fsdp_settled(fsdp, unit, &of_type);
    } else if (there && array == DPAR_FSDP_MASTER) {
        of_type = fsdp->desc.type;
        at = dpari_fsdp_master_at(fsdp, unit);
    } else if (there) {
        of_type = dpari_fsdp_moment_type(&fsdp->desc);
        at = dpari_fsdp_moment_at(fsdp, array - DPAR_FSDP_MOMENT_1, unit);
    }
    if (elements != NULL) {
        *elements = there ? fsdp->unit[unit].flat.shard : 0;
        if (of_type == DPAR_F8) { /* bytes of the records */
            *elements = dpari_moment_bytes(DPAR_F8, *elements);
        }
    }
    if (type != NULL) {
        *type = of_type;
    }
    return at;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_layout(const dpar_fsdp *fsdp, int32_t unit, int32_t first,
                                                 int32_t ranks, dpar_layout *layout, dpar_why *why)
{
    dpar_placement cut = dpar_shard(0);
    dpar_mesh mesh;
    dpar_status st;
    if (!dpari_fsdp_is_unit(fsdp, unit) || layout == NULL || first < 0 || ranks < 1 ||
        ranks - 1 > INT32_MAX - first) {
        return dpari_wrong(why,
                           "dpar_fsdp_layout: unit is %d, ranks %d and first %d, but the unit must "
                           "exist, ranks must be 1 or more, first 0 or more, and layout not NULL",
                           unit, ranks, first);
    }
    st = dpar_mesh_init(&mesh, "shard", &ranks, DPAR_ORDER_LAST_FASTEST, 0, why);
    if (st != DPAR_OK) {
        return st;
    }
    mesh.first_rank = first;
    if (dpari_fsdp_moment_type(&fsdp->desc) == DPAR_F8) {
        const int64_t shard = dpari_fsdp_shard(&fsdp->desc, fsdp->unit[unit].flat.total, ranks);
        cut = dpar_shard_by(0, DPAR_SPLIT_BLOCK_CYCLIC, dpari_most(1, shard));
    }
    return dpar_layout_init(layout, &mesh, 1, &fsdp->unit[unit].flat.total, &cut, why);
}

/* Begins a walk over the parts of this rank's shard of unit u in the shards that `ranks` ranks
 * saved. */
static DPARI_COLD dpar_status dpari_fsdp_walk_saved(const dpar_fsdp *fsdp, int32_t u, int32_t ranks,
                                                    dpar_redistribute_cursor *walk, dpar_why *why)
{
    dpar_layout from, to;
    dpar_status st = dpar_fsdp_layout(fsdp, u, 0, ranks, &from, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpar_fsdp_layout(fsdp, u, 0, fsdp->shard->size, &to, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpar_redistribute_check(&from, &to, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpar_redistribute_first(walk, &from, &to, fsdp->shard->rank, DPAR_TRANSFER_RECV,
                                   DPAR_REDISTRIBUTE_PRIMARY);
}

/* Reads this rank's shard of one array of one unit, from the shards of `ranks` ranks. */
static DPARI_COLD dpar_status dpari_fsdp_read_one(dpar_fsdp *fsdp, int32_t array, int32_t u,
                                                  int32_t ranks, dpar_fsdp_read_callback read,
                                                  void *ctx, dpar_why *why)
{
    dpar_redistribute_cursor walk;
    dpar_transfer t;
    int64_t count;
    int32_t type;
    unsigned char *at = (unsigned char *)dpar_fsdp_state(fsdp, array, u, &count, &type);
    const int64_t each = dpar_type_bytes(type);
    dpar_status st;
    if (at == NULL || count == 0) {
        return DPAR_OK;
    }
    st = dpari_fsdp_walk_saved(fsdp, u, ranks, &walk, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_do_copy(fsdp->shard, at, NULL, count * each);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_do_wait(fsdp->shard); /* the zeros must be written before the callback writes */
    while (st == DPAR_OK && dpar_redistribute_next(&walk, &t)) {
        const int64_t first = dpari_moment_bytes(type, t.theirs[0]) / each;
        const int64_t part = dpari_moment_bytes(type, t.extent[0]) / each;
        const dpar_status got =
            read(ctx, array, u, t.peer, first, part, at + dpari_moment_bytes(type, t.mine[0]));
        if (got < DPAR_OK) { /* a positive status is a condition, not a failure */
            st = dpari_say(
                got, why,
                "dpar_fsdp_load: the callback failed to read %ld elements of array %d of unit %d "
                "that rank %d saved",
                part, array, u, t.peer);
        }
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_load(dpar_fsdp *fsdp, int32_t ranks, int64_t steps,
                                               dpar_fsdp_read_callback read, void *ctx,
                                               dpar_why *why)
{
    dpari_fsdp_given given;
    int32_t array, u;
    dpar_status st = DPAR_OK;
    if (fsdp == NULL) {
        return dpari_wrong(why, "dpar_fsdp_load: the fsdp is NULL");
    }
    if (read == NULL || ranks < 1 || steps < 0 || fsdp->under_way) {
        st = dpari_wrong(
            why,
            "dpar_fsdp_load: ranks is %d and steps %ld, but ranks must be 1 or more, steps 0 or "
            "more, read not NULL, and no pass may be in progress",
            ranks, steps);
    } else {
        st = dpari_fsdp_forget(fsdp, 0);
    }
    for (array = 0; array < DPAR_FSDP_ARRAY_COUNT; array++) {
        for (u = 0; u < fsdp->units && st == DPAR_OK; u++) {
            st = dpari_fsdp_read_one(fsdp, array, u, ranks, read, ctx, why);
        }
    }
    dpari_zero(&given, sizeof given);
    given.ranks = ranks;
    given.steps = steps;
    st = dpari_fsdp_agree(fsdp->shard, fsdp->replicas, st, "fsdp load", dpari_fsdp_facts_load,
                          &given, why);
    if (st == DPAR_OK) {
        fsdp->steps = steps;
    }
    return st;
}
