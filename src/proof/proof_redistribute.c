/* SPDX-License-Identifier: MIT-0 */
/* Proves the redistribution of an array, with dpar_layout_global for both sides of a transfer. */
#include "proof_redistribute.h"

#include "../base/base_private.h"
#include "proof_lists.h"

typedef struct dpari_prove_move {
    const dpari_prove_source *source;
    const dpar_layout *from, *to;
    int32_t per_node, unit, direction;
    uint32_t sums;         /* axes of `from` whose partial values are combined */
    uint32_t begins;       /* axes of `to` on which only coordinate 0 receives values */
    int64_t contributions; /* number of values that are combined to one */
    dpar_redistribute_cursor walk;
} dpari_prove_move;

static DPARI_COLD dpar_status dpari_prove_move_first(void *of, int32_t unit, int32_t direction,
                                                     dpar_why *why)
{
    dpari_prove_move *move = (dpari_prove_move *)of;
    const dpar_status status =
        dpar_redistribute_first(&move->walk, move->from, move->to, unit, direction, move->per_node);
    move->unit = unit;
    move->direction = direction;
    if (status < 0) {
        return dpari_say(status, why, "per_node is %d: see dpar_redistribute_first",
                         move->per_node);
    }
    return DPAR_OK;
}

/* Returns the global index at a local index of a rank, if at least `count` indices from there on
 * are consecutive in both. Otherwise returns -1. */
static DPARI_COLD int64_t dpari_prove_global(const dpar_layout *layout, int32_t rank, int32_t d,
                                             int64_t local, int64_t count)
{
    int64_t run = 0, global = dpar_layout_global(layout, rank, d, local, &run);
    return run < count ? -1 : global;
}

static DPARI_COLD dpar_status dpari_prove_move_next(void *of, dpar_transfer *t, dpar_why *why)
{
    dpari_prove_move *move = (dpari_prove_move *)of;
    const dpar_layout *here = move->direction == DPAR_TRANSFER_SEND ? move->from : move->to;
    int32_t d;
    if (!dpar_redistribute_next(&move->walk, t)) {
        return DPAR_OK;
    }
    for (d = 0; d < t->dims; d++) {
        const int64_t global = dpari_prove_global(here, move->unit, d, t->mine[d], t->extent[d]);
        if (global != t->global[d]) {
            return dpari_say(DPAR_E_MISMATCH, why,
                             "global: a transfer of rank %d has global index %ld in dim %d, but "
                             "its local index %ld is %ld",
                             move->unit, t->global[d], d, t->mine[d], global);
        }
    }
    return DPAR_MORE;
}

static DPARI_COLD dpar_status dpari_prove_move_check(void *of, const dpari_prove_list *mine,
                                                     const dpari_prove_list *theirs,
                                                     const int64_t *record, dpar_why *why)
{
    const dpari_prove_move *move = (const dpari_prove_move *)of;
    int32_t d;
    for (d = 0; d < move->to->dims; d++) {
        const int64_t extent = dpari_prove_word(record, DPARI_PROVE_EXTENT, d);
        const int64_t at = dpari_prove_word(record, DPARI_PROVE_MINE, d);
        const int64_t there = dpari_prove_word(record, DPARI_PROVE_THEIRS, d);
        const int64_t wanted = dpari_prove_global(move->to, mine->unit, d, at, extent);
        const int64_t sent = dpari_prove_global(move->from, theirs->unit, d, there, extent);
        if (wanted < 0 || sent != wanted) {
            return dpari_say(DPAR_E_MISMATCH, why,
                             "owner: rank %d receives %ld elements of dim %d from rank %d, which "
                             "begin at element %ld in place of %ld (-1: there are fewer)",
                             mine->unit, extent, d, theirs->unit, sent, wanted);
        }
    }
    return DPAR_OK;
}

static DPARI_COLD dpar_status dpari_prove_move_complete(void *of, const dpari_prove_list *mine,
                                                        int64_t points, dpar_why *why)
{
    const dpari_prove_move *move = (const dpari_prove_move *)of;
    int64_t count = dpar_layout_count(move->to, mine->unit), due, copied = 0, k;
    int32_t coord[DPAR_MAX_AXES] = {0}, i, peer;
    (void)dpar_mesh_coords(&move->to->mesh, mine->unit, coord);
    for (i = 0; i < move->to->mesh.axes; i++) {
        if ((move->begins >> i & 1u) != 0 && coord[i] != 0) {
            count = 0;
        }
    }
    if (!dpari_mul(count, move->contributions, &due)) {
        return dpari_say(DPAR_E_RANGE, why, "rank %d receives more than 2^63 - 1 elements",
                         mine->unit);
    }
    for (k = 0; k < mine->count; k++) {
        const int64_t *record = dpari_prove_record(move->source, mine, k, &peer);
        copied +=
            dpari_prove_op(record) == DPAR_COPY ? dpari_prove_volume(move->source, record) : 0;
    }
    if (points == due && copied == count) {
        return DPAR_OK;
    }
    return dpari_say(DPAR_E_MISMATCH, why,
                     "missing: rank %d receives %ld elements, %ld of them as copies, but %ld and "
                     "%ld are due",
                     mine->unit, points, copied, due, count);
}

/* Receives may write the same elements if they bring different contributions to their sums. */
static DPARI_COLD int dpari_prove_move_overlap(void *of, const int32_t *peer, const int32_t *op)
{
    const dpari_prove_move *move = (const dpari_prove_move *)of;
    int32_t a[DPAR_MAX_AXES] = {0}, b[DPAR_MAX_AXES] = {0}, i, differs = 0;
    (void)dpar_mesh_coords(&move->from->mesh, peer[0], a);
    (void)dpar_mesh_coords(&move->from->mesh, peer[1], b);
    for (i = 0; i < move->from->mesh.axes; i++) {
        differs |= (move->sums >> i & 1u) != 0 && a[i] != b[i];
    }
    return differs && (op[0] != DPAR_COPY || op[1] != DPAR_COPY);
}

/* True if the sums along axis i of both layouts stay as they are. dpar_redistribute_check has
 * compared their ops. */
static DPARI_COLD int dpari_prove_stays(const dpar_layout *from, const dpar_layout *to, int32_t i)
{
    return from->mesh.axes == to->mesh.axes && from->mesh.first_rank == to->mesh.first_rank &&
           from->axis[i].kind == DPAR_PLACEMENT_PARTIAL &&
           to->axis[i].kind == DPAR_PLACEMENT_PARTIAL &&
           from->mesh.axis[i].size == to->mesh.axis[i].size &&
           from->mesh.axis[i].stride == to->mesh.axis[i].stride;
}

/* Returns the number of ranks from 0 to the last one of a mesh. */
static DPARI_COLD int64_t dpari_prove_ranks_of(const dpar_mesh *mesh)
{
    int64_t last = mesh->first_rank;
    int32_t i;
    for (i = 0; i < mesh->axes; i++) {
        last += (int64_t)(mesh->axis[i].size - 1) * mesh->axis[i].stride;
    }
    return last + 1;
}

DPAR_API DPARI_COLD dpar_status dpar_proof_redistribute(const dpar_layout *from,
                                                        const dpar_layout *to, int32_t per_node,
                                                        const dpar_proof_desc *desc,
                                                        dpar_proof_report *report, dpar_why *why)
{
    dpari_prove_move move;
    dpari_prove_source source;
    dpar_status status;
    int32_t i;
    if (from == NULL || to == NULL || desc == NULL || report == NULL || desc->owner != NULL ||
        desc->next != NULL) {
        return dpari_wrong(why, "dpar_proof_redistribute: from, to, desc and report must be set, "
                                "and desc->owner and desc->next must be NULL");
    }
    status = dpar_redistribute_check(from, to, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&move, sizeof move);
    dpari_zero(&source, sizeof source);
    move.from = from;
    move.to = to;
    move.per_node = per_node;
    move.source = &source;
    move.contributions = 1;
    for (i = 0; i < from->mesh.axes; i++) {
        if (from->axis[i].kind == DPAR_PLACEMENT_PARTIAL && !dpari_prove_stays(from, to, i)) {
            move.sums |= (uint32_t)1 << i;
            move.contributions *= from->mesh.axis[i].size;
        }
    }
    for (i = 0; i < to->mesh.axes; i++) {
        if (to->axis[i].kind == DPAR_PLACEMENT_PARTIAL && !dpari_prove_stays(from, to, i)) {
            move.begins |= (uint32_t)1 << i;
        }
    }
    source.of = &move;
    source.units = source.ranks =
        (int32_t)dpari_most(dpari_prove_ranks_of(&from->mesh), dpari_prove_ranks_of(&to->mesh));
    source.dims = to->dims;
    source.first = dpari_prove_move_first;
    source.next = dpari_prove_move_next;
    source.check = dpari_prove_move_check;
    source.complete = dpari_prove_move_complete;
    source.may_overlap = dpari_prove_move_overlap;
    source.owners = 1;
    return dpari_prove_run(&source, desc, report, why);
}
