/* SPDX-License-Identifier: MIT-0 */
/* Decides once how each item of a plan is copied, so that exchanges need not decide.
 *
 * Each item gets its loops (strided.c). Small items of one step are combined into lists, and items
 * on opposite sides of a block into pairs (halo_box_groups.c). If a forward exchange has few rows,
 * it prefetches the cache lines at their ends, which are the slowest part of a small exchange
 * (dpari_hx_ask in halo_run.c). Called at the end of planning, and again if the op of an adjoint
 * changes. */
#include "halo_prepare.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "../host/mem_private.h"
#include "../host/strided.h"
#include "halo_box_groups.h"
#include "halo_mem.h"
#include "halo_plan.h"
#include "halo_share.h"

/* ---- loops ----------------------------------------------------------------------------------- */

/* Prepares the two copies of an item: when this rank takes it, with `op`, and when it gives it. */
DPARI_INTERNAL DPARI_COLD void dpari_hx_prepare(const dpar_halo_plan *plan, dpari_hx_item *item,
                                                int32_t op)
{
    const int shares = item->peer >= 0 && plan->x.peer[item->peer].world >= 0;
    dpari_stride_piece piece;
    dpar_mem_box box;
    dpari_hx_describe(plan, item, 1, item->replaces ? DPAR_COPY : op, &box);
    dpari_mem_piece(&box, &piece);
    piece.back =
        item->peer >= 0 && (op == DPAR_COPY || (!item->direct && item->elements >= DPARI_HX_MANY));
    piece.beside = op == DPAR_SUM ? item->beside : 0;
    piece.ahead = shares && !item->direct ? DPARI_STRIDE_FROM : 0;
    piece.wide = plan->wide;
    dpari_stride_prepare(&item->take, &piece);
    dpari_hx_describe(plan, item, 0, op, &box);
    /* Items that are taken with DPAR_COPY are those of R, which are halos. They are given only in
     * the adjoint, and become 0 when they are packed, unless they are shared points that this rank
     * combines, too. */
    box.clear = op == DPAR_COPY && plan->options.shared != DPARI_HX_COMBINE;
    dpari_mem_piece(&box, &piece);
    piece.ahead = shares && item->packs ? DPARI_STRIDE_TO : 0;
    piece.wide = plan->wide;
    dpari_stride_prepare(&item->give, &piece);
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Returns the list of an item for when it is taken, or for when it is given. */
static dpari_hx_few *dpari_hx_few_of(dpari_hx_item *item, int takes)
{
    return takes ? &item->taken : &item->given;
}

/* True if an item may be in a list. (Items that halo_mem.c moves have a mate of -1.) */
static int dpari_hx_may_list(const dpari_hx_item *item, int takes)
{
    if (takes) {
        return item->take_mate == 0 && (item->peer < 0 || !item->direct);
    }
    return item->packs && item->give_mate == 0;
}

/* True if two items may be in the same list: they need the same loop and, once arrays have been
 * bound, must be in the same arrays, because the distance between two arrays may change. If
 * `groups` is 1, the list is a group of large items. */
static DPARI_COLD int dpari_hx_one_list(const dpar_halo_plan *plan, const dpari_hx_item *a,
                                        const dpari_hx_item *b, int takes, int groups)
{
    const dpari_stride *first = takes ? &a->take : &a->give;
    const dpari_stride *second = takes ? &b->take : &b->give;
    if (groups ? !dpari_stride_groups(first, second, b->mine_at - a->mine_at, takes)
               : !dpari_stride_lists_alike(first, second)) {
        return 0;
    }
    if (!plan->bound && !groups) {
        return 1;
    }
    return a->mine == b->mine && (!takes || a->peer >= 0 || a->theirs == b->theirs);
}

/* Returns the bytes from one part of this rank's arrays to another. */
static int64_t dpari_hx_between(const dpar_halo_plan *plan, int32_t from, int32_t to)
{
    return (int64_t)(uintptr_t)plan->part[to] - (int64_t)(uintptr_t)plan->part[from];
}

/* Writes the runs of item b as entries of the list that begins with item a. Returns their number,
 * or 0 if b cannot be in a list. If `groups` is 1, writes the two entries of b in a group. */
static DPARI_COLD int32_t dpari_hx_entries(const dpar_halo_plan *plan, const dpari_hx_item *a,
                                           const dpari_hx_item *b, int takes, int groups,
                                           dpari_stride_spot *spot)
{
    const dpari_stride *stride = takes ? &b->take : &b->give;
    const int64_t mine = dpari_hx_between(plan, a->mine, b->mine) + b->mine_at;
    int64_t to = mine, from = b->take_at;
    if (!takes) {
        to = b->pack_at;
        from = mine;
    } else if (b->peer < 0 && b->direct) {
        from = dpari_hx_between(plan, a->theirs, b->theirs) + b->theirs_at;
    }
    if (!groups) {
        return dpari_stride_list(stride, to, from, spot);
    }
    to += stride->to_start;
    from += stride->from_start;
    spot[0].to = (int32_t)to;
    spot[0].from = (int32_t)from;
    spot[1].to = (int32_t)stride->dim[0].count;
    return 2 * (to == spot->to && from == spot->from);
}

/* Sorts a group of which all boxes but the last are sorted: boxes with longer rows come first. */
static DPARI_COLD void dpari_hx_sort_last(dpari_stride_spot *spot, int32_t runs)
{
    int32_t i;
    for (i = runs - 4; i >= 0 && spot[i + 1].to < spot[i + 3].to; i -= 2) {
        const dpari_stride_spot first = spot[i], second = spot[i + 1];
        spot[i] = spot[i + 2];
        spot[i + 1] = spot[i + 3];
        spot[i + 2] = first;
        spot[i + 3] = second;
    }
}

/* Makes the list that begins with item i, from entry `at` of plan->spot on. It has small items, or
 * a group of large ones if the field has directions. Items that cannot be in the list are left out,
 * unless the order of items matters (strict), in which case the list ends before the first such
 * item. The order matters if values are combined, because the order of sums is documented. It also
 * matters for copies of more than DPARI_HX_TINY elements, because peers read the same lines: in
 * another order, blocks of 8^3 wait for them (1.5 us instead of 1.0 us). */
static DPARI_COLD void dpari_hx_list_from(const dpar_halo_plan *plan, dpari_hx_item *item,
                                          int64_t n, int64_t i, int takes, int64_t at)
{
    dpari_hx_item *a = &item[i];
    dpari_hx_few *list = dpari_hx_few_of(a, takes);
    const dpari_stride *stride = takes ? &a->take : &a->give;
    const int groups = plan->field[a->field].direction &&
                       stride->dim[0].count * stride->dim[1].count > DPARI_STRIDE_FEW;
    const int strict = !groups && takes && (a->take.op != DPAR_COPY || a->elements > DPARI_HX_TINY);
    int64_t j;
    list->at = at;
    for (j = i; j < n && !(takes && item[j].peer != a->peer); j++) {
        dpari_hx_few *of = dpari_hx_few_of(&item[j], takes);
        int32_t runs = 0;
        if ((j == i || of->runs == 0) && dpari_hx_may_list(&item[j], takes) &&
            dpari_hx_one_list(plan, a, &item[j], takes, groups)) {
            runs = dpari_hx_entries(plan, a, &item[j], takes, groups, plan->spot + at + list->runs);
        }
        if (runs == 0 && (strict || j == i)) {
            return;
        }
        if (runs > 0) {
            of->runs = j == i ? 0 : -1;
            list->runs += runs;
        }
        if (groups && runs > 0) {
            dpari_hx_sort_last(plan->spot + at, list->runs);
        }
    }
    if (groups && list->runs == 2) {
        list->runs = 0;
    }
}

/* True if an exchange skips an item, because it is in the list of an earlier item, is copied with
 * its mate, or is not packed. */
static int dpari_hx_skips(dpari_hx_item *item, int takes)
{
    if (dpari_hx_few_of(item, takes)->runs < 0) {
        return 1;
    }
    if (takes) {
        return item->take_mate < 0;
    }
    return item->give_mate < 0 || !item->packs;
}

/* Makes the lists of n items that are given or taken one after the other, and sets the distance
 * from each item to the next one that is not skipped. */
static DPARI_COLD void dpari_hx_gather(const dpar_halo_plan *plan, dpari_hx_item *item, int64_t n,
                                       int takes)
{
    int64_t at = ((takes ? plan->items : 0) + (item - plan->item)) * DPARI_STRIDE_FEW;
    int64_t i;
    int32_t skipped = 0; /* number of skipped items directly after this one */
    for (i = 0; i < n; i++) {
        dpari_hx_few_of(&item[i], takes)->runs = 0;
    }
    for (i = 0; i < n; i++) {
        if (dpari_hx_few_of(&item[i], takes)->runs == 0) {
            dpari_hx_list_from(plan, item, n, i, takes, at);
            at += dpari_hx_few_of(&item[i], takes)->runs;
        }
    }
    for (i = n - 1; i >= 0; i--) {
        dpari_hx_few_of(&item[i], takes)->step = 1 + skipped;
        skipped = dpari_hx_skips(&item[i], takes) ? 1 + skipped : 0;
    }
}

DPARI_INTERNAL void dpari_hx_gather_sends(const dpar_halo_plan *plan, const dpari_hx_step *step,
                                          int takes)
{
    dpari_hx_gather(plan, plan->item + step->s, step->own_first, takes);
    dpari_hx_gather(plan, plan->item + step->s + step->own_first, step->s_items - step->own_first,
                    takes);
}

DPARI_INTERNAL void dpari_hx_gather_all(const dpar_halo_plan *plan)
{
    int32_t s, takes;
    for (s = 0; s < plan->x.steps; s++) {
        const dpari_hx_step *step = &plan->step[s];
        for (takes = 0; takes < 2; takes++) {
            dpari_hx_gather(plan, plan->item + step->r, step->r_items, takes);
            dpari_hx_gather_sends(plan, step, takes);
        }
    }
}

/* ---- pairs of items -------------------------------------------------------------------------- */

/* True if two items may be opposite sides of a block: they have the same shape and strides, in the
 * same array, and are moved in the same way. They are then often in the same lines and pages. */
static int dpari_hx_mates(const dpari_hx_item *a, const dpari_hx_item *b)
{
    int32_t d;
    if (a->direct != b->direct || a->packs != b->packs || a->negate != b->negate ||
        a->replaces != b->replaces || a->mine != b->mine || (a->peer < 0) != (b->peer < 0)) {
        return 0;
    }
    for (d = 0; d < a->dims; d++) {
        if (a->extent[d] != b->extent[d] || a->own_step[d] != b->own_step[d]) {
            return 0;
        }
    }
    return 1;
}

/* True if two boxes of own cells have no point in common. */
static int dpari_hx_apart(const dpari_hx_item *a, const dpari_hx_item *b)
{
    int32_t d;
    for (d = 0; d < a->dims - 1; d++) {
        const int64_t shift = b->local[d] - a->local[d];
        if (shift >= a->extent[d] || -shift >= a->extent[d]) {
            return 1;
        }
    }
    return 0;
}

/* True if two items may be taken together. In R, any two items from the same peer may. Items of S
 * are summed in a documented order, so that only consecutive boxes without a common point may. */
static int dpari_hx_taken_together(const dpari_hx_item *a, const dpari_hx_item *b, int sends)
{
    return a->take_mate == 0 && b->take_mate == 0 && a->take.run <= DPARI_HX_SHORT &&
           (sends ? b == a + 1 && dpari_hx_apart(a, b) : b->peer == a->peer);
}

/* Pairs items whose runs are short, and whose boxes are too large for a list. Each is paired with
 * one of the DPARI_HX_NEAR items after it, separately for giving and for taking. Items in memory
 * that the CPU does not reach get mates of -1, because halo_mem.c moves them. */
static void dpari_hx_pair(const dpar_halo_plan *plan, dpari_hx_item *item, int64_t n, int sends)
{
    dpari_stride_spot few[DPARI_STRIDE_FEW];
    int64_t i, j;
    for (i = 0; i < n; i++) {
        dpari_hx_item *a = &item[i];
        if (dpari_hx_mem(&plan->field[a->field])) {
            a->give_mate = a->take_mate = -1;
            continue;
        }
        if (plan->field[a->field].direction) {
            continue;
        }
        for (j = i + 1; j < n && j < i + DPARI_HX_NEAR && item[j].field == a->field; j++) {
            dpari_hx_item *b = &item[j];
            if (!dpari_hx_mates(a, b) || dpari_stride_list(&a->take, 0, 0, few) > 0) {
                continue;
            }
            if (a->give_mate == 0 && b->give_mate == 0 && a->packs &&
                a->give.run <= DPARI_HX_SHORT) {
                a->give_mate = (int32_t)(j - i);
                b->give_mate = -1;
            }
            if (dpari_hx_taken_together(a, b, sends)) {
                a->take_mate = (int32_t)(j - i);
                b->take_mate = -1;
            }
        }
    }
}

/* True if box a of the halo, which has been packed, may be set to 0 while box b of own cells next
 * to it is summed, so that the cache lines that hold both are written only once. No box of the step
 * may be summed into box a. */
static int dpari_hx_may_wipe(const dpar_halo_plan *plan, const dpari_hx_step *step,
                             const dpari_hx_item *a, const dpari_hx_item *b)
{
    const int64_t size = dpar_type_bytes(plan->field[a->field].type);
    const int64_t gap = a->mine_at - b->mine_at;
    int64_t k;
    if (a->field != b->field || dpari_hx_mem(&plan->field[a->field]) || !a->packs || b->direct ||
        b->beside != 0 || gap == 0 || gap % size != 0 || gap > DPARI_HX_BESIDE ||
        -gap > DPARI_HX_BESIDE || a->elements * size <= DPARI_STRIDE_FEW * a->give.run ||
        !dpari_hx_mates(a, b)) {
        return 0;
    }
    for (k = step->s; k < step->s + step->s_items; k++) {
        if (plan->item[k].field == a->field && !dpari_hx_apart(a, &plan->item[k])) {
            return 0;
        }
    }
    return 1;
}

/* Finds such boxes in a step (item.wiper and its partner), and prepares them for it. */
static void dpari_hx_wipe_beside(dpar_halo_plan *plan, const dpari_hx_step *step)
{
    int64_t i, j;
    for (i = step->r; i < step->r + step->r_items; i++) {
        dpari_hx_item *a = &plan->item[i];
        for (j = step->s; j < step->s + step->s_items && a->wiper == 0; j++) {
            dpari_hx_item *b = &plan->item[j];
            if (dpari_hx_may_wipe(plan, step, a, b)) {
                b->beside = (a->mine_at - b->mine_at) / dpar_type_bytes(plan->field[a->field].type);
                a->wiper = j - i;
                dpari_hx_prepare(plan, b, DPAR_SUM);
                a->give.clear = b->take.beside == 0;
            }
        }
    }
}

/* ---- rows whose ends are prefetched ---------------------------------------------------------- */

/* Returns the number of rows of a box along a dim. Contiguous components belong to the row. */
static int64_t dpari_hx_rows(const dpari_hx_item *item, int32_t row)
{
    int64_t rows = 1;
    int32_t d;
    for (d = 0; d < item->dims; d++) {
        if (d != row && (d != item->dims - 1 || item->own_step[d] != 1)) {
            rows *= item->extent[d];
        }
    }
    return rows;
}

/* Returns the dim of the rows of a box, which is the dim with the shortest stride in this rank's
 * array, or -1 if there are more rows than DPARI_HX_ROWS. */
DPARI_INTERNAL int32_t dpari_hx_row_of(const dpari_hx_item *item)
{
    int32_t d, row = 0;
    for (d = 1; d < item->dims - 1; d++) {
        if (dpari_size(item->own_step[d]) < dpari_size(item->own_step[row])) {
            row = d;
        }
    }
    return dpari_hx_rows(item, row) <= DPARI_HX_ROWS ? row : -1;
}

/* True if a forward exchange prefetches the ends of the rows that peers read. */
static int dpari_hx_asks(const dpar_halo_plan *plan)
{
    const dpari_hx_step *last = &plan->step[plan->forward - 1];
    const int64_t end = last->s + last->s_items;
    int64_t k, rows = 0;
    for (k = 0; k < end; k++) {
        const dpari_hx_item *item = &plan->item[k];
        rows += item->row >= 0 ? dpari_hx_rows(item, item->row) : 0;
    }
    return rows > 0 && rows <= DPARI_HX_ALL_ROWS;
}

/* ---- all items ------------------------------------------------------------------------------- */

DPARI_INTERNAL void dpari_hx_finish_items(dpar_halo_plan *plan)
{
    int32_t s;
    int64_t k;
    for (s = 0; s < plan->x.steps; s++) {
        dpari_hx_step *step = &plan->step[s];
        for (k = step->r; k < step->s + step->s_items; k++) {
            dpari_hx_item *item = &plan->item[k];
            const int sends = k >= step->s;
            if (item->peer >= 0) {
                const dpari_hx_flow *flow = &plan->peer[item->peer].flow[s];
                item->pack_at += flow->out_at;
                item->take_at += flow->in_at;
            } else if (!item->direct) {
                item->pack_at += plan->self_at;
                item->take_at += plan->self_at;
            }
            dpari_hx_prepare(plan, item, sends ? DPAR_SUM : DPAR_COPY);
        }
        dpari_hx_wipe_beside(plan, step);
        dpari_hx_pair(plan, plan->item + step->r, step->r_items, 0);
        dpari_hx_pair(plan, plan->item + step->s, step->own_first, 1);
        dpari_hx_pair(plan, plan->item + step->s + step->own_first, step->s_items - step->own_first,
                      1);
    }
    dpari_hx_gather_all(plan);
    plan->asks = dpari_hx_asks(plan);
    plan->prepared = DPAR_SUM;
}
