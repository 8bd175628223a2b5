/* SPDX-License-Identifier: MIT-0 */
/* Finds the owner of each ghost, and the ranks that read each own value. points_owner.h describes
 * the three rounds of messages. Called by points.c when a plan is made. */
#include "points_owner.h"

#include "../comm/agree.h"
#include "../comm/comm.h"
#include "points_mail.h"
#include "points_order.h"

/* ---- tables of ids --------------------------------------------------------------------------- */

DPARI_INTERNAL int64_t dpari_pt_table_room(int64_t n)
{
    int64_t room = 2;
    while (room < n + n / 2) {
        room *= 2;
    }
    return n > 0 ? room : 0;
}

static void dpari_pt_table_init(dpari_pt_table *table, dpari_pt_entry *entry, int64_t n)
{
    int64_t i;
    table->entry = entry;
    table->mask = dpari_pt_table_room(n) - 1;
    for (i = 0; i <= table->mask; i++) {
        entry[i].at = -1;
    }
}

/* Hashes an id twice. Ids that are packed from several numbers may differ only in high bits, and
 * one round does not carry these to the low bits. */
static uint64_t dpari_pt_hash(uint64_t seed, int64_t id)
{
    return dpari_hash(dpari_hash(seed, id), 0);
}

/* Returns the entry of an id, or the free entry where it belongs. */
static dpari_pt_entry *dpari_pt_seek(const dpari_pt_table *table, int64_t id)
{
    int64_t i = (int64_t)(dpari_pt_hash(1, id) >> 16) & table->mask;
    while (table->entry[i].at >= 0 && table->entry[i].id != id) {
        i = (i + 1) & table->mask;
    }
    return &table->entry[i];
}

/* Returns the number that is stored for an id, or -1 if the id is not in the table. */
static int64_t dpari_pt_find(const dpari_pt_table *table, int64_t id)
{
    return table->mask < 0 ? -1 : dpari_pt_seek(table, id)->at;
}

/* Stores `at` for an id and returns -1. If the id is in the table already, returns the number that
 * is stored for it. */
static int64_t dpari_pt_put(dpari_pt_table *table, int64_t id, int64_t at)
{
    dpari_pt_entry *entry = dpari_pt_seek(table, id);
    const int64_t was = entry->at;
    if (was < 0) {
        entry->id = id;
        entry->at = at;
    }
    return was;
}

/* Converts an id, which is the number of an element in C order, to the element's index. Returns 0
 * if the array of the layout has no such element. */
static int dpari_pt_element(const dpar_layout *layout, int64_t id, int64_t *index)
{
    int32_t d;
    for (d = layout->dims - 1; d >= 0 && id >= 0; d--) {
        if (layout->extent[d] == 0) {
            return 0;
        }
        index[d] = id % layout->extent[d];
        id /= layout->extent[d];
    }
    return id == 0;
}

/* Returns the local index of an id, or -1 if the layout does not assign it to this rank. */
static int64_t dpari_pt_layout_index(const dpari_points *plan, int64_t id)
{
    int64_t index[DPAR_MAX_DIMS], local[DPAR_MAX_DIMS], shape[DPAR_MAX_DIMS], at = 0;
    int32_t d;
    if (!dpari_pt_element(&plan->layout, id, index) ||
        dpar_layout_owner(&plan->layout, index, 0, local) != plan->head.comm->rank) {
        return -1;
    }
    dpar_layout_local(&plan->layout, plan->head.comm->rank, shape, NULL);
    for (d = 0; d < plan->layout.dims; d++) {
        at = at * shape[d] + local[d];
    }
    return at;
}

/* Returns the local index of an own id, or -1 if this rank does not own it. */
static int64_t dpari_pt_own_index(const dpari_points *plan, int64_t id)
{
    int64_t at;
    if (plan->has_layout && !plan->hashed) {
        return dpari_pt_layout_index(plan, id);
    }
    if (!plan->hashed) {
        at = id - plan->head.first_id;
        return id >= plan->head.first_id && at < plan->head.own_count ? at : -1;
    }
    at = dpari_pt_find(&plan->table, id);
    return at < plan->head.own_count ? at : -1;
}

DPARI_INTERNAL int64_t dpari_pt_index(const dpari_points *plan, int64_t id)
{
    const int64_t at = plan->hashed ? -1 : dpari_pt_own_index(plan, id);
    return at >= 0 ? at : dpari_pt_find(&plan->table, id);
}

/* ---- owners ---------------------------------------------------------------------------------- */

/* Reports a ghost that no rank owns. */
static dpar_status dpari_pt_no_owner(const dpari_points *plan, int64_t id, int64_t ghost,
                                     dpar_why *why)
{
    return dpari_wrong(
        why, "id %ld, ghost %ld of rank %d, is owned by no rank, which needs unsent_ghosts", id,
        ghost, plan->head.comm->rank);
}

/* Returns the last of n ranks whose first id is at most `id`, by bisection. */
static int32_t dpari_pt_holder(const int64_t *first, int32_t n, int64_t id)
{
    int32_t low = 0, high = n;
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (first[middle] <= id) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Finds the owners of ghosts if ids are consecutive from rank to rank. Collective. */
static dpar_status dpari_pt_by_range(dpari_points *plan, const dpar_points_desc *desc,
                                     int32_t *owner, dpar_why *why)
{
    dpar_comm *comm = plan->head.comm;
    const int64_t bytes = (int64_t)sizeof(int64_t) * 2 * comm->size;
    int64_t *count, g, all = 0;
    void *memory = NULL;
    dpar_status status = dpari_po_explain(comm, dpar_comm_alloc(comm, bytes, &memory), why);
    status = dpari_agree_on(comm, status, "points", NULL, NULL, why);
    if (status != DPAR_OK) {
        dpar_comm_release(comm, memory);
        return status;
    }
    count = (int64_t *)memory;
    status = dpari_po_explain(
        comm, dpar_all_gather(comm, &desc->own_count, count, 1, DPAR_I64, NULL), why);
    dpari_pt_add_up(count, count + comm->size, comm->size, &all);
    plan->head.first_id = count[comm->size + comm->rank];
    for (g = 0; g < desc->ghost_count && status == DPAR_OK; g++) {
        const int64_t id = desc->ghost_id[g];
        if (id >= 0 && id < all) {
            owner[g] = dpari_pt_holder(count + comm->size, comm->size, id);
        } else if (desc->unsent_ghosts) {
            owner[g] = -1;
        } else {
            status = dpari_pt_no_owner(plan, id, g, why);
        }
    }
    dpar_comm_release(comm, memory);
    return status;
}

/* Returns the rank to which a layout assigns an id, or -1 if there is no such id. */
static int32_t dpari_pt_layout_owner(const dpar_layout *layout, int64_t id)
{
    int64_t index[DPAR_MAX_DIMS];
    return dpari_pt_element(layout, id, index) ? dpar_layout_owner(layout, index, 0, NULL) : -1;
}

/* Takes the owners of ghosts from desc.owner or desc.layout; -1 if there is none. */
static dpar_status dpari_pt_by_owner(const dpari_points *plan, const dpar_points_desc *desc,
                                     int32_t *owner, dpar_why *why)
{
    int64_t g;
    for (g = 0; g < desc->ghost_count; g++) {
        const int64_t id = desc->ghost_id[g];
        owner[g] = desc->owner ? desc->owner[g] : dpari_pt_layout_owner(desc->layout, id);
        if (owner[g] == -1 && desc->unsent_ghosts) {
            continue;
        }
        if (!desc->owner && owner[g] < 0) {
            return dpari_pt_no_owner(plan, id, g, why);
        }
        if (owner[g] < 0 || owner[g] >= plan->head.comm->size) {
            return dpari_wrong(why, "ghost %ld, id %ld: owner %d is not one of the %d ranks", g, id,
                               owner[g], plan->head.comm->size);
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL int32_t dpari_pt_home(int64_t id, int32_t ranks)
{
    return (int32_t)((dpari_pt_hash(0, id) >> 20) % (uint64_t)ranks);
}

/* Computes the home of each of n ids. dpari_pt_deal later replaces it by a place. */
static void dpari_pt_homes(const int64_t *id, int64_t n, int32_t ranks, int32_t *home)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        home[i] = dpari_pt_home(id[i], ranks);
    }
}

/* Stores each of n numbers in the part of mail->out for its destination. Replaces the destination
 * in `to` by the place in mail->out, unless it is negative. */
static void dpari_pt_deal(dpari_pt_mail *mail, const int64_t *number, int64_t n, int32_t *to)
{
    int64_t i, *next = mail->count + mail->comm->size;
    for (i = 0; i < n; i++) {
        if (to[i] >= 0) {
            const int64_t at = next[to[i]]++;
            mail->out[at] = number[i];
            to[i] = (int32_t)at;
        }
    }
}

/* Enters the ids that owners have sent to this home into its table. */
static dpar_status dpari_pt_register(dpari_pt_table *table, const dpari_pt_mail *mail,
                                     dpar_why *why)
{
    const int64_t *n = mail->count + 2 * mail->comm->size;
    dpar_status status = DPAR_OK;
    int64_t k = 0, end = 0;
    int32_t r;
    for (r = 0; r < mail->comm->size; r++) {
        end += n[r];
        for (; k < end; k++) {
            const int64_t was = dpari_pt_put(table, mail->in[k], r);
            if (was == r) {
                status = dpari_wrong(why, "id %ld is listed twice among the own ids of rank %d",
                                     mail->in[k], r);
            } else if (was >= 0) {
                status = dpari_wrong(why, "id %ld is owned by two ranks, %ld and %d", mail->in[k],
                                     was, r);
            }
        }
    }
    return status;
}

/* Runs round 1: sends own ids to their homes, which enter them in their directories. */
static dpar_status dpari_pt_register_all(dpari_pt_table *homed, dpari_po_pages *pages,
                                         dpar_comm *comm, const dpar_points_desc *desc, int32_t *to,
                                         dpar_why *why)
{
    dpari_pt_mail mail;
    dpar_status status;
    dpari_pt_homes(desc->own_id, desc->own_count, comm->size, to);
    status = dpari_pt_open(&mail, comm, to, desc->own_count, 1, DPAR_OK, why);
    if (status == DPAR_OK) {
        dpari_pt_deal(&mail, desc->own_id, desc->own_count, to);
        status = dpari_pt_go(&mail, 0, why);
    }
    if (status == DPAR_OK) {
        dpari_pt_entry *entry = (dpari_pt_entry *)dpari_po_take(
            pages, dpari_pt_table_room(mail.ins + 1), sizeof *entry, &status, why);
        if (entry) {
            dpari_pt_table_init(homed, entry, mail.ins + 1);
            status = dpari_pt_register(homed, &mail, why);
        }
    }
    dpari_pt_close(&mail);
    return status;
}

/* Runs round 2: asks the homes of ghosts for their owners. If `status`, the result of round 1, is
 * an error, all ranks get it. */
static dpar_status dpari_pt_ask_all(const dpari_pt_table *homed, const dpari_points *plan,
                                    const dpar_points_desc *desc, int32_t *owner, int32_t *to,
                                    dpar_status status, dpar_why *why)
{
    dpari_pt_mail mail;
    int64_t i;
    dpari_pt_homes(desc->ghost_id, desc->ghost_count, plan->head.comm->size, to);
    status = dpari_pt_open(&mail, plan->head.comm, to, desc->ghost_count, 1, status, why);
    if (status == DPAR_OK) {
        dpari_pt_deal(&mail, desc->ghost_id, desc->ghost_count, to);
        status = dpari_pt_go(&mail, 0, why);
    }
    if (status == DPAR_OK) {
        for (i = 0; i < mail.ins; i++) {
            mail.in[i] = dpari_pt_find(homed, mail.in[i]);
        }
        status = dpari_pt_go(&mail, 1, why);
    }
    for (i = 0; i < desc->ghost_count && status == DPAR_OK; i++) {
        owner[i] = (int32_t)mail.out[to[i]];
        if (owner[i] < 0 && !desc->unsent_ghosts) {
            status = dpari_pt_no_owner(plan, desc->ghost_id[i], i, why);
        }
    }
    dpari_pt_close(&mail);
    return status;
}

/* Finds the owners of ghosts by rounds 1 and 2. `to` has as many elements as the larger of own ids
 * and ghosts. */
static dpar_status dpari_pt_by_directory(dpari_points *plan, const dpar_points_desc *desc,
                                         int32_t *owner, int32_t *to, dpar_why *why)
{
    dpari_pt_table homed; /* the ids that were registered here, with their owners' ranks */
    dpari_po_pages pages;
    dpar_status status;
    dpari_zero(&homed, sizeof homed);
    dpari_zero(&pages, sizeof pages);
    status = dpari_pt_register_all(&homed, &pages, plan->head.comm, desc, to, why);
    status = dpari_pt_ask_all(&homed, plan, desc, owner, to, status, why);
    dpari_po_free(&pages);
    return status;
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Sorts n ids by merging, and moves the numbers in `with` along. Equal ids keep their order. The
 * spare arrays have n elements each. */
static void dpari_pt_sort(int64_t *id, int32_t *with, int64_t n, int64_t *spare,
                          int32_t *spare_with)
{
    int64_t width, i, low;
    for (i = 1; i < n && id[i - 1] <= id[i]; i++) {
    }
    for (width = 1; width < n && i < n; width *= 2) {
        for (low = 0; low < n; low += 2 * width) {
            const int64_t middle = dpari_least(low + width, n);
            const int64_t high = dpari_least(low + 2 * width, n);
            int64_t a = low, b = middle, k;
            for (k = low; k < high; k++) {
                int64_t from;
                if (b >= high || (a < middle && id[a] <= id[b])) {
                    from = a++;
                } else {
                    from = b++;
                }
                spare[k] = id[from];
                spare_with[k] = with[from];
            }
        }
        for (low = 0; low < n; low++) {
            id[low] = spare[low];
            with[low] = spare_with[low];
        }
    }
}

/* ---- lists of both sides --------------------------------------------------------------------- */

/* Allocates the lists of both sides for `sent` values that are sent. */
static void dpari_pt_take_both(dpari_pt_both *both, int64_t sent, int32_t size, dpar_status *status,
                               dpar_why *why)
{
    both->sent = sent;
    both->sends = (int64_t *)dpari_po_take(&both->pages, size, 8, status, why);
    both->receives = (int64_t *)dpari_po_take(&both->pages, size, 8, status, why);
    both->send_at = (int32_t *)dpari_po_take(&both->pages, sent, 4, status, why);
}

/* Converts the ids that other ranks read to indices of own values. */
static dpar_status dpari_pt_look_up(const dpari_points *plan, const dpari_pt_mail *mail,
                                    dpari_pt_both *both, dpar_why *why)
{
    int64_t k = 0, end = 0;
    int32_t r;
    for (r = 0; r < mail->comm->size; r++) {
        end += both->sends[r];
        for (; k < end; k++) {
            const int64_t at = dpari_pt_own_index(plan, mail->in[k]);
            if (at < 0) {
                return dpari_wrong(
                    why, "id %ld, which rank %d reads, is not among the own ids of rank %d",
                    mail->in[k], r, mail->comm->rank);
            }
            both->send_at[k] = (int32_t)at;
        }
    }
    return DPAR_OK;
}

/* Sets the list of ghosts that receive the values of each rank, and enters ghosts in the table.
 *
 * to: the place of each ghost in mail->out; negative if no rank sends it.
 *
 * With DPAR_POINTS_ORDER_BY_OWNER the ids for each rank are sorted first. Ghosts are then numbered
 * in that order, so that each rank's ghosts are consecutive; those that no rank sends are last. */
static void dpari_pt_set_places(dpari_points *plan, const dpar_points_desc *desc,
                                dpari_pt_mail *mail, const int32_t *to, int32_t *spare,
                                int64_t *spare_id, dpari_pt_both *both)
{
    const int sorted = desc->order == DPAR_POINTS_ORDER_BY_OWNER;
    int64_t g, at = 0, unsent = mail->outs;
    int32_t r;
    for (g = 0; g < desc->ghost_count; g++) {
        if (to[g] >= 0) {
            both->receive_at[to[g]] = (int32_t)g;
        }
    }
    for (r = 0; r < mail->comm->size && sorted; r++) {
        dpari_pt_sort(mail->out + at, both->receive_at + at, mail->count[r], spare_id, spare);
        at += mail->count[r];
    }
    for (g = 0; g < mail->outs; g++) {
        if (sorted) {
            (void)dpari_pt_put(&plan->table, mail->out[g], desc->own_count + g);
            both->receive_at[g] = (int32_t)g;
        }
        dpari_pt_set_received(plan, both->receive_at[g]);
    }
    for (g = 0; g < desc->ghost_count; g++) {
        if (!sorted) {
            (void)dpari_pt_put(&plan->table, desc->ghost_id[g], desc->own_count + g);
        } else if (to[g] < 0) {
            (void)dpari_pt_put(&plan->table, desc->ghost_id[g], desc->own_count + unsent++);
        }
    }
}

/* Enters own ids in the plan's table, which also has capacity for the ghosts. */
static dpar_status dpari_pt_enter(dpari_points *plan, const dpar_points_desc *desc, dpar_why *why)
{
    int64_t i;
    dpari_pt_table_init(&plan->table, plan->table.entry,
                        (plan->hashed ? desc->own_count : 0) + desc->ghost_count);
    for (i = 0; i < desc->own_count && plan->hashed; i++) {
        const int64_t was = dpari_pt_put(&plan->table, desc->own_id[i], i);
        if (was >= 0) {
            return dpari_wrong(
                why, "id %ld is listed twice among the own ids of rank %d, at %ld and %ld",
                desc->own_id[i], plan->head.comm->rank, was, i);
        }
    }
    return DPAR_OK;
}

/* Runs round 3: sends the ids of ghosts to their owners, and makes the lists of both sides. */
static dpar_status dpari_pt_send_ids(const dpari_points *plan, dpari_pt_mail *mail,
                                     dpari_pt_both *both, dpar_why *why)
{
    const int32_t size = plan->head.comm->size;
    dpar_status status = dpari_pt_go(mail, 0, why);
    int32_t r;
    dpari_pt_take_both(both, mail->ins, size, &status, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (r = 0; r < size; r++) {
        both->receives[r] = mail->count[r];
        both->sends[r] = mail->count[2 * size + r];
    }
    return dpari_pt_look_up(plan, mail, both, why);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_by_ids(dpari_points *plan,
                                                      const dpar_points_desc *desc,
                                                      dpari_pt_both *both, dpar_why *why)
{
    const int64_t ghosts = desc->ghost_count;
    const int given = plan->given_owner || plan->has_layout;
    dpari_pt_mail mail;
    dpar_status status = DPAR_OK;
    int64_t *spare = (int64_t *)dpari_po_take(&both->pages, ghosts, 8, &status, why);
    int32_t *owner = (int32_t *)dpari_po_take(&both->pages, ghosts, 4, &status, why);
    int32_t *to = (int32_t *)dpari_po_take(&both->pages, dpari_most(desc->own_count, ghosts), 4,
                                           &status, why);
    both->receive_at = (int32_t *)dpari_po_take(&both->pages, ghosts, 4, &status, why);
    if (status == DPAR_OK) {
        status = dpari_pt_enter(plan, desc, why);
    }
    status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (!plan->hashed && !plan->has_layout) { /* also finds first_id, which owners need, too */
        status = dpari_pt_by_range(plan, desc, owner, why);
    } else if (!given) {
        status = dpari_pt_by_directory(plan, desc, owner, to, why);
    }
    if (given && status == DPAR_OK) {
        status = dpari_pt_by_owner(plan, desc, owner, why);
    }
    status = dpari_pt_open(&mail, plan->head.comm, owner, ghosts, 1, status, why);
    if (status == DPAR_OK) { /* round 3 */
        dpari_pt_deal(&mail, desc->ghost_id, ghosts, owner);
        dpari_pt_set_places(plan, desc, &mail, owner, to, spare, both);
        status = dpari_pt_send_ids(plan, &mail, both, why);
        status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
    }
    dpari_pt_close(&mail);
    return status;
}

/* Copies the caller's lists, sorted by rank. send_next, receive_next: [size], used here. */
static void dpari_pt_sort_lists(const dpar_points_desc *desc, dpari_pt_both *both, int32_t size,
                                int64_t *send_next, int64_t *receive_next)
{
    const dpar_points_lists *lists = desc->lists;
    int64_t all, s = 0, r = 0, k;
    int32_t i;
    dpari_pt_add_up(both->sends, send_next, size, &all);
    dpari_pt_add_up(both->receives, receive_next, size, &all);
    for (i = 0; i < lists->peer_count; i++) {
        int64_t *send = &send_next[lists->peer[i]], *receive = &receive_next[lists->peer[i]];
        for (k = 0; k < lists->send_count[i]; k++) {
            both->send_at[(*send)++] = lists->send_index[s++];
        }
        for (k = 0; k < lists->receive_count[i]; k++, r++) {
            both->receive_at[(*receive)++] =
                lists->receive_index ? lists->receive_index[r] - (int32_t)desc->own_count
                                     : (int32_t)r;
        }
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_by_lists(dpari_points *plan,
                                                        const dpar_points_desc *desc,
                                                        dpari_pt_both *both, dpar_why *why)
{
    const dpar_points_lists *lists = desc->lists;
    const int32_t size = plan->head.comm->size;
    const int64_t sent = dpari_pt_total(lists->send_count, lists->peer_count);
    int64_t *announced;
    dpar_status status = DPAR_OK;
    int32_t i;
    announced = (int64_t *)dpari_po_take(&both->pages, 2 * (int64_t)size, 8, &status, why);
    both->receive_at = (int32_t *)dpari_po_take(&both->pages, desc->ghost_count, 4, &status, why);
    dpari_pt_take_both(both, sent, size, &status, why);
    status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < lists->peer_count; i++) {
        both->sends[lists->peer[i]] = lists->send_count[i];
        both->receives[lists->peer[i]] = lists->receive_count[i];
    }
    status = dpari_po_explain(
        plan->head.comm,
        dpar_all_to_all(plan->head.comm, both->sends, announced, 1, DPAR_I64, NULL), why);
    for (i = 0; i < size && status == DPAR_OK; i++) {
        if (announced[i] != both->receives[i]) {
            status = dpari_say(DPAR_E_MISMATCH, why,
                               "rank %d sends %ld values to rank %d, which expects %ld", i,
                               announced[i], plan->head.comm->rank, both->receives[i]);
        }
    }
    status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
    if (status == DPAR_OK) {
        dpari_pt_sort_lists(desc, both, size, announced, announced + size);
    }
    return status;
}
