/* SPDX-License-Identifier: MIT-0 */
/* Proves the halo exchange of a grid. A received box is checked at two opposite corners: within one
 * rule, each dim of the source counts up or down with one dim of the box. If the sources of both
 * corners are at the right places, and as far from each other as the corners are, then the points
 * between them have the right sources, too. The points of a row on a fold and those of fields on
 * faces of a cubed sphere are checked one by one, because there the direction depends on the point.
 */
#include "proof_halo.h"

#include "../base/base_private.h"
#include "../index/index_private.h"
#include "../index/reach.h"
#include "proof_image.h"
#include "proof_lists.h"

/* What a list keeps about its unit: its block, and that of the partner field. */
typedef struct dpari_prove_unit_head {
    dpari_prove_block block, partner;
} dpari_prove_unit_head;

typedef struct dpari_prove_grid {
    dpari_prove_caller caller; /* the first member, because the caller's functions get `of` */
    dpar_halo halo, partner;   /* without owners if units are blocks */
    const int32_t *mask;       /* [blocks] -1 for a block that does not exist; NULL if all exist */
    const int32_t *owner;      /* [blocks] if units are blocks, otherwise NULL */
    const dpari_prove_unit_head *head; /* of the list that is walked */
    const dpari_prove_source *source;
    dpar_halo_cursor walk;
    int32_t direction, unit;
} dpari_prove_grid;

/* ---- walks ----------------------------------------------------------------------------------- */

static DPARI_COLD void dpari_prove_describe(void *of, int32_t unit, int64_t *words)
{
    dpari_prove_grid *grid = (dpari_prove_grid *)of;
    dpari_prove_unit_head *head = (dpari_prove_unit_head *)(void *)words;
    dpari_prove_block_of(&grid->halo, unit, &head->block);
    if (grid->halo.partner != NULL) {
        dpari_prove_block_of(&grid->partner, unit, &head->partner);
    }
    grid->head = head;
}

static dpar_status dpari_prove_halo_first(void *of, int32_t unit, int32_t direction, dpar_why *why)
{
    dpari_prove_grid *grid = (dpari_prove_grid *)of;
    grid->direction = direction;
    grid->unit = unit;
    return dpar_halo_first(&grid->walk, &grid->halo, unit, direction, DPAR_HALO_FORWARD, why);
}

/* Advances the walk, and checks that a transfer has the same place in the array and in the grid. */
static dpar_status dpari_prove_halo_next(void *of, dpar_transfer *t, dpar_why *why)
{
    dpari_prove_grid *grid = (dpari_prove_grid *)of;
    const dpari_prove_block *block = &grid->head->block;
    int32_t d;
    do {
        if (!dpar_halo_next(&grid->walk, t)) {
            return DPAR_OK;
        }
    } while (grid->owner != NULL && grid->owner[t->peer] < 0);
    if (grid->direction == DPAR_TRANSFER_SEND && grid->halo.partner != NULL && t->turn % 2 != 0) {
        block = &grid->head->partner;
    }
    for (d = 0; d < t->dims; d++) {
        if (block->box[d][0] + t->mine[d] != t->global[d]) {
            dpar_text out;
            dpari_prove_refute(&out, why, "global: a transfer of ");
            dpari_prove_put_unit(&out, grid->source, grid->unit);
            dpari_text_say(&out, " has global index %ld in dim %d, but %ld + %ld in its array",
                           t->global[d], d, block->box[d][0], t->mine[d]);
            return DPAR_E_MISMATCH;
        }
    }
    return DPAR_MORE;
}

/* ---- fact 4: from the owner ------------------------------------------------------------------ */

/* A receive that is checked. */
typedef struct dpari_prove_received {
    const dpari_prove_grid *grid;
    const dpari_prove_list *mine, *theirs;
    const dpari_prove_block *here, *there; /* `there` may be that of the partner field */
    const int64_t *record;
    dpar_why *why;
} dpari_prove_received;

/* Begins the message "owner: point (0, -1) of rank 2 is received from rank 1, ". */
static DPARI_COLD void dpari_prove_begin_owner(dpar_text *out, const dpari_prove_received *r,
                                               const int64_t *p)
{
    dpari_prove_refute(out, r->why, "owner: point ");
    dpari_prove_put_point(out, r->grid->halo.grid.dims, p);
    dpar_text_put(out, " of ");
    dpari_prove_put_unit(out, r->grid->source, r->mine->unit);
    dpar_text_put(out, " is received from ");
    dpari_prove_put_unit(out, r->grid->source, r->theirs->unit);
    dpar_text_put(out, ", ");
}

/* Returns the point that the sender sends for index i[] of the receiver's box in dim d of the
 * receiver. */
static int64_t dpari_prove_sent(const dpari_prove_received *r, int32_t d, int64_t i)
{
    const int32_t s = dpari_prove_from(r->record, d);
    const int64_t extent = dpari_prove_word(r->record, DPARI_PROVE_EXTENT, s);
    const int backwards = (int)(dpari_prove_flip(r->record) >> d & 1u);
    return r->there->box[s][0] + dpari_prove_word(r->record, DPARI_PROVE_THEIRS, s) +
           (backwards ? extent - 1 - i : i);
}

/* Checks the point at index i[] of a received box. */
static dpar_status dpari_prove_point(const dpari_prove_received *r, const int64_t *i)
{
    const int32_t dims = r->grid->halo.grid.dims;
    int64_t p[DPAR_MAX_DIMS] = {0}, q[DPAR_MAX_DIMS], sent[DPAR_MAX_DIMS];
    int32_t d, turn, wrong = 0, foreign = 0;
    dpar_text out;
    for (d = 0; d < dims; d++) {
        p[d] = r->here->box[d][0] + dpari_prove_word(r->record, DPARI_PROVE_MINE, d) + i[d];
        sent[dpari_prove_from(r->record, d)] = dpari_prove_sent(r, d, i[d]);
    }
    if (!dpari_prove_image(&r->grid->halo, r->here, p, q, &turn)) {
        dpari_prove_begin_owner(&out, r, p);
        dpar_text_put(&out, "but it is not a halo point with an image");
        return DPAR_E_MISMATCH;
    }
    for (d = 0; d < dims; d++) {
        wrong |= q[d] != sent[d];
        foreign |= q[d] < r->there->own[d][0] || q[d] >= r->there->own[d][1];
    }
    if (wrong) {
        dpari_prove_begin_owner(&out, r, p);
        dpar_text_put(&out, "which sends point ");
        dpari_prove_put_point(&out, dims, sent);
        dpar_text_put(&out, " in place of ");
        dpari_prove_put_point(&out, dims, q);
        return DPAR_E_MISMATCH;
    }
    if (foreign) {
        dpari_prove_begin_owner(&out, r, p);
        dpar_text_put(&out, "which does not own the point ");
        dpari_prove_put_point(&out, dims, q);
        dpar_text_put(&out, " that it sends");
        return DPAR_E_MISMATCH;
    }
    if (turn != dpari_prove_turn(r->record) ||
        (dpari_prove_from(r->record, dims - 1) != dims - 1) != (turn % 2 != 0)) {
        dpari_prove_begin_owner(&out, r, p);
        dpari_text_say(&out, "after %d quarter turns, but must be turned %d times",
                       dpari_prove_turn(r->record), turn);
        return DPAR_E_MISMATCH;
    }
    return DPAR_OK;
}

/* Checks that a received box is within the local array and, unless each of its points is checked,
 * that one rule applies to all of them. Sets last[] to the index of its last point. */
static DPARI_COLD dpar_status dpari_prove_extent_of(const dpari_prove_received *r, int each,
                                                    int64_t *last)
{
    const dpar_halo *halo = &r->grid->halo;
    int64_t p[DPAR_MAX_DIMS];
    int32_t d, wrong = -1;
    dpar_text out;
    for (d = 0; d < halo->grid.dims; d++) {
        const int32_t s = dpari_prove_from(r->record, d);
        last[d] = dpari_prove_word(r->record, DPARI_PROVE_EXTENT, s) - 1;
        p[d] = r->here->box[d][0] + dpari_prove_word(r->record, DPARI_PROVE_MINE, d);
        if (last[d] >= r->here->box[d][1] - p[d] ||
            (!each && dpari_prove_rule(halo, r->here, d, p[d]) !=
                          dpari_prove_rule(halo, r->here, d, p[d] + last[d]))) {
            wrong = d;
        }
    }
    if (wrong < 0) {
        return DPAR_OK;
    }
    dpari_prove_begin_owner(&out, r, p);
    dpari_text_say(&out,
                   "and %ld points of dim %d with it, which reach past the array, the grid or the "
                   "block",
                   last[wrong] + 1, wrong);
    return DPAR_E_MISMATCH;
}

/* Advances i[] to the next index up to last[]. Returns 0 after the last one. */
static DPARI_COLD int dpari_prove_next_index(int32_t dims, const int64_t *last, int64_t *i)
{
    int32_t d;
    for (d = dims - 1; d >= 0; d--) {
        if (++i[d] <= last[d]) {
            return 1;
        }
        i[d] = 0;
    }
    return 0;
}

static dpar_status dpari_prove_check_receive(void *of, const dpari_prove_list *mine,
                                             const dpari_prove_list *theirs, const int64_t *record,
                                             dpar_why *why)
{
    const dpari_prove_grid *grid = (const dpari_prove_grid *)of;
    const dpar_halo *halo = &grid->halo;
    const dpari_prove_unit_head *head = (const dpari_prove_unit_head *)(const void *)theirs->head;
    int64_t first[DPAR_MAX_DIMS] = {0}, last[DPAR_MAX_DIMS];
    dpari_prove_received r;
    dpar_status status;
    dpar_text out;
    int each;
    if (dpari_prove_op(record) != DPAR_COPY) {
        dpari_prove_refute(&out, why, "owner: a receive of ");
        dpari_prove_put_unit(&out, grid->source, mine->unit);
        dpari_text_say(&out, " has op %d, but halo cells must be copied (DPAR_COPY)",
                       dpari_prove_op(record));
        return DPAR_E_MISMATCH;
    }
    r.grid = grid;
    r.mine = mine;
    r.theirs = theirs;
    r.here = &((const dpari_prove_unit_head *)(const void *)mine->head)->block;
    r.there = &head->block;
    r.record = record;
    r.why = why;
    if (halo->partner != NULL && dpari_prove_turn(record) % 2 != 0) {
        r.there = &head->partner;
    }
    each = halo->partner != NULL;
    if (halo->folds && halo->on_row) {
        const int32_t d = halo->fold;
        const int64_t row = r.here->box[d][0] + dpari_prove_word(record, DPARI_PROVE_MINE, d);
        each |= row == dpar_halo_points(halo, d) - 1;
    }
    status = dpari_prove_extent_of(&r, each, last);
    if (status == DPAR_OK) {
        status = dpari_prove_point(&r, first);
    }
    while (each && status == DPAR_OK && dpari_prove_next_index(halo->grid.dims, last, first)) {
        status = dpari_prove_point(&r, first);
    }
    return status == DPAR_OK ? dpari_prove_point(&r, last) : status;
}

/* ---- fact 4: nothing is missing -------------------------------------------------------------- */

/* Advances p[] to the next point of a local array. Returns 0 after the last one. */
static DPARI_COLD int dpari_prove_next_point(const dpari_prove_block *block, int32_t dims,
                                             int64_t *p)
{
    int32_t d;
    for (d = dims - 1; d >= 0; d--) {
        if (++p[d] < block->box[d][1]) {
            return 1;
        }
        p[d] = block->box[d][0];
    }
    return 0;
}

/* True if point p is in a received box. */
static DPARI_COLD int dpari_prove_is_received(const dpari_prove_grid *grid,
                                              const dpari_prove_list *mine,
                                              const dpari_prove_block *block, const int64_t *p)
{
    int64_t k;
    int32_t d, peer;
    for (k = 0; k < mine->count; k++) {
        const int64_t *record = dpari_prove_record(grid->source, mine, k, &peer);
        for (d = 0; d < grid->halo.grid.dims; d++) {
            const int64_t i =
                p[d] - block->box[d][0] - dpari_prove_word(record, DPARI_PROVE_MINE, d);
            if (i < 0 ||
                i >= dpari_prove_word(record, DPARI_PROVE_EXTENT, dpari_prove_from(record, d))) {
                break;
            }
        }
        if (d == grid->halo.grid.dims) {
            return 1;
        }
    }
    return 0;
}

/* Visits all points of a local array. With `count`, adds up those that must be received. Otherwise
 * it writes the message about the first one that is not. */
static DPARI_COLD dpar_status dpari_prove_visit(const dpari_prove_grid *grid,
                                                const dpari_prove_list *mine,
                                                const dpari_prove_block *block, int64_t *count,
                                                dpar_why *why)
{
    const dpar_halo *halo = &grid->halo;
    int64_t p[DPAR_MAX_DIMS], q[DPAR_MAX_DIMS];
    int32_t coord[DPAR_MAX_AXES] = {0}, d, turn;
    dpar_text out;
    for (d = 0; d < halo->grid.dims; d++) {
        p[d] = block->box[d][0];
    }
    (void)dpari_halo_coords(halo, mine->unit, coord);
    do {
        const dpar_halo *from = halo;
        if (!dpari_prove_image(halo, block, p, q, &turn)) {
            continue;
        }
        from = halo->partner != NULL && turn % 2 != 0 ? halo->partner : halo;
        if (grid->mask != NULL && grid->mask[dpari_prove_owner(from, q, coord)] < 0) {
            continue;
        }
        if (count != NULL) {
            (*count)++;
        } else if (!dpari_prove_is_received(grid, mine, block, p)) {
            dpari_prove_refute(&out, why, "missing: point ");
            dpari_prove_put_point(&out, halo->grid.dims, p);
            dpar_text_put(&out, " of ");
            dpari_prove_put_unit(&out, grid->source, mine->unit);
            dpar_text_put(&out, ", an image of point ");
            dpari_prove_put_point(&out, halo->grid.dims, q);
            dpar_text_put(&out, ", is not received");
            return DPAR_E_MISMATCH;
        }
    } while (dpari_prove_next_point(block, halo->grid.dims, p));
    return DPAR_OK;
}

static dpar_status dpari_prove_halo_complete(void *of, const dpari_prove_list *mine, int64_t points,
                                             dpar_why *why)
{
    const dpari_prove_grid *grid = (const dpari_prove_grid *)of;
    const dpari_prove_block *block =
        &((const dpari_prove_unit_head *)(const void *)mine->head)->block;
    int64_t due = 0;
    dpar_status status;
    if (!block->has) {
        return DPAR_OK; /* a receive would have been outside of its array */
    }
    if (grid->mask == NULL) {
        due = dpari_prove_due(&grid->halo, block);
    } else {
        (void)dpari_prove_visit(grid, mine, block, &due, why);
    }
    if (due == points) {
        return DPAR_OK;
    }
    status = dpari_prove_visit(grid, mine, block, NULL, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_say(DPAR_E_MISMATCH, why, "missing: rank %d receives %ld points, but %ld are due",
                     mine->unit, points, due);
}

static int dpari_prove_never(void *of, const int32_t *peer, const int32_t *op)
{
    (void)of;
    (void)peer;
    (void)op;
    return 0;
}

/* ---- a whole grid ---------------------------------------------------------------------------- */

/* Sets the number of ranks and of units, and what depends on the owners of blocks. */
static DPARI_COLD dpar_status dpari_prove_owners(dpari_prove_grid *grid, dpari_prove_source *source,
                                                 const dpar_proof_desc *desc, dpar_why *why)
{
    const dpar_mesh *mesh = &grid->halo.grid.mesh;
    int64_t last = mesh->first_rank;
    int32_t i;
    dpar_status status;
    if (desc->owner != NULL) {
        grid->halo.owner = grid->partner.owner = desc->owner;
    }
    status = dpar_halo_check(&grid->halo, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < mesh->axes; i++) {
        last += (int64_t)(mesh->axis[i].size - 1) * mesh->axis[i].stride;
    }
    source->ranks = source->units = (int32_t)last + 1;
    if (grid->halo.owner == NULL) {
        return DPAR_OK;
    }
    for (i = 0; i < mesh->size; i++) {
        if (grid->halo.owner[i] < 0) {
            grid->mask = grid->halo.owner;
        }
    }
    if (desc->owner != NULL) {
        grid->owner = source->owner = desc->owner;
        source->ranks = desc->ranks;
        source->units = mesh->size;
        grid->halo.owner = grid->partner.owner = NULL;
        return DPAR_OK;
    }
    source->ranks = desc->ranks;
    for (i = 0; i < mesh->size; i++) {
        source->ranks = (int32_t)dpari_most(source->ranks, (int64_t)grid->halo.owner[i] + 1);
    }
    source->units = source->ranks;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_proof_halo(const dpar_halo *halo, const dpar_proof_desc *desc,
                                                dpar_proof_report *report, dpar_why *why)
{
    dpari_prove_grid grid;
    dpari_prove_source source;
    dpar_status status;
    int32_t d;
    if (halo == NULL || desc == NULL || report == NULL) {
        return dpari_wrong(why, "dpar_proof_halo: halo, desc and report must not be NULL");
    }
    dpari_zero(&grid, sizeof grid);
    dpari_zero(&source, sizeof source);
    grid.halo = *halo;
    if (halo->partner != NULL) {
        grid.partner = *halo->partner;
        grid.halo.partner = &grid.partner;
    }
    grid.source = &source;
    status = dpari_prove_owners(&grid, &source, desc, why);
    for (d = 0; status == DPAR_OK && d < halo->grid.dims; d++) {
        status = dpari_prove_cut(&grid.halo, d, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    source.of = &grid;
    source.dims = halo->grid.dims;
    source.head = sizeof(dpari_prove_unit_head) / sizeof(int64_t);
    source.describe = dpari_prove_describe;
    source.check = dpari_prove_check_receive;
    source.complete = dpari_prove_halo_complete;
    source.may_overlap = dpari_prove_never;
    source.first = dpari_prove_halo_first;
    source.next = dpari_prove_halo_next;
    if (desc->next != NULL) {
        grid.caller.next = desc->next;
        grid.caller.lists = desc->lists;
        source.first = dpari_prove_caller_first;
        source.next = dpari_prove_caller_next;
    }
    source.owners = 1;
    return dpari_prove_run(&source, desc, report, why);
}
