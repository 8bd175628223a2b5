/* SPDX-License-Identifier: MIT-0 */
/* Finds the owner of each ghost, and the ranks that read each own value. points_owner.h describes
 * the three rounds of messages. Called by points.c when a plan is made. */
#include "points_owner.h"

#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/os.h"

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

/* ---- mail -------------------------------------------------------------------------------------
 *
 * An all-to-all of numbers whose counts only the senders know. The numbers sent and the numbers
 * received are both sorted by rank. */
typedef struct dpari_pt_mail {
    dpar_comm *comm;
    int64_t *count; /* [4][size]: how many numbers are sent to each rank, where they begin in `out`,
                       how many are received from each rank, and where they begin in `in` */
    int64_t *out, *in;
    int64_t outs, ins; /* how many numbers are in `out` and in `in` */
    void *memory;
} dpari_pt_mail;

/* Sets at[i] to the sum of the counts before i, and *all to the sum of all. */
static void dpari_pt_add_up(const int64_t *count, int64_t *at, int32_t n, int64_t *all)
{
    int32_t i;
    *all = 0;
    for (i = 0; i < n; i++) {
        at[i] = *all;
        *all += count[i];
    }
}

DPARI_INTERNAL dpar_status dpari_pt_explain(const dpar_comm *comm, dpar_status status,
                                            dpar_why *why)
{
    return status == DPAR_OK ? status : dpari_repeat(status, why, comm->why.text);
}

/* Begins an all-to-all of n numbers: counts them by destination, exchanges the counts and allocates
 * `out` and `in`. mail->count + size then has the place of the next number for each rank.
 *
 * to:     [n], the destination of each number.
 * status: an earlier error of this rank, which all ranks then return.
 *
 * Collective. dpari_pt_close frees the memory, also after a failure. */
static dpar_status dpari_pt_open(dpari_pt_mail *mail, dpar_comm *comm, const int32_t *to, int64_t n,
                                 dpar_status status, dpar_why *why)
{
    const int32_t p = comm->size;
    void *counts = NULL;
    int64_t i;
    dpari_zero(mail, sizeof *mail);
    mail->comm = comm;
    if (status == DPAR_OK) {
        status = dpari_pt_explain(
            comm, dpar_comm_alloc(comm, 4 * (int64_t)sizeof(int64_t) * p, &counts), why);
    }
    mail->count = (int64_t *)counts;
    status = dpari_agree_on(comm, status, "points", NULL, NULL, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < n; i++) {
        mail->count[to[i]]++;
    }
    status = dpari_pt_explain(
        comm, dpar_all_to_all(comm, mail->count, mail->count + 2 * p, 1, DPAR_I64, NULL), why);
    if (status == DPAR_OK) {
        dpari_pt_add_up(mail->count, mail->count + p, p, &mail->outs);
        dpari_pt_add_up(mail->count + 2 * p, mail->count + 3 * p, p, &mail->ins);
        status = dpari_pt_explain(
            comm,
            dpar_comm_alloc(comm, (int64_t)sizeof(int64_t) * (mail->outs + mail->ins + 1),
                            &mail->memory),
            why);
    }
    mail->out = (int64_t *)mail->memory;
    mail->in = mail->out ? mail->out + mail->outs : NULL;
    return dpari_agree_on(comm, status, "points", NULL, NULL, why);
}

/* Sends the numbers. With back 1, sends the answers, which have replaced the numbers received, to
 * the ranks that asked. */
static dpar_status dpari_pt_go(dpari_pt_mail *mail, int back, dpar_why *why)
{
    int64_t *n = mail->count, *in = mail->count + 2 * mail->comm->size;
    dpar_status status;
    if (back) {
        status =
            dpar_all_to_all_v(mail->comm, mail->in, in, NULL, mail->out, n, NULL, DPAR_I64, NULL);
    } else {
        status =
            dpar_all_to_all_v(mail->comm, mail->out, n, NULL, mail->in, in, NULL, DPAR_I64, NULL);
    }
    return dpari_pt_explain(mail->comm, status, why);
}

static void dpari_pt_close(dpari_pt_mail *mail)
{
    dpar_comm_release(mail->comm, mail->memory);
    dpar_comm_release(mail->comm, mail->count);
}

/* ---- owners ---------------------------------------------------------------------------------- */

/* Reports a ghost that no rank owns. */
static dpar_status dpari_pt_no_owner(const dpari_points *plan, int64_t id, int64_t ghost,
                                     dpar_why *why)
{
    return dpari_wrong(why, "id %ld, ghost %ld of rank %d, is owned by no rank", id, ghost,
                       plan->head.comm->rank);
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
    dpar_status status = dpari_pt_explain(comm, dpar_comm_alloc(comm, bytes, &memory), why);
    status = dpari_agree_on(comm, status, "points", NULL, NULL, why);
    if (status != DPAR_OK) {
        dpar_comm_release(comm, memory);
        return status;
    }
    count = (int64_t *)memory;
    status = dpari_pt_explain(
        comm, dpar_all_gather(comm, &desc->own_count, count, 1, DPAR_I64, NULL), why);
    dpari_pt_add_up(count, count + comm->size, comm->size, &all);
    plan->head.first_id = count[comm->size + comm->rank];
    for (g = 0; g < desc->ghost_count && status == DPAR_OK; g++) {
        const int64_t id = desc->ghost_id[g];
        if (id < 0 || id >= all) {
            status = dpari_pt_no_owner(plan, id, g, why);
        } else {
            owner[g] = dpari_pt_holder(count + comm->size, comm->size, id);
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

/* Takes the owners of ghosts from desc.owner or desc.layout. */
static dpar_status dpari_pt_by_owner(const dpari_points *plan, const dpar_points_desc *desc,
                                     int32_t *owner, dpar_why *why)
{
    int64_t g;
    for (g = 0; g < desc->ghost_count; g++) {
        const int64_t id = desc->ghost_id[g];
        owner[g] = desc->owner ? desc->owner[g] : dpari_pt_layout_owner(desc->layout, id);
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

static int32_t dpari_pt_home(int64_t id, int32_t ranks)
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
 * in `to` by the place in mail->out. */
static void dpari_pt_deal(dpari_pt_mail *mail, const int64_t *number, int64_t n, int32_t *to)
{
    int64_t i, *next = mail->count + mail->comm->size;
    for (i = 0; i < n; i++) {
        const int64_t at = next[to[i]]++;
        mail->out[at] = number[i];
        to[i] = (int32_t)at;
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

/* The table of a home: the ids that were registered here, with their owners' ranks. */
typedef struct dpari_pt_directory {
    dpari_pt_table table;
    void *pages;
    int64_t bytes;
} dpari_pt_directory;

/* Runs round 1: sends own ids to their homes, which enter them in their directories. */
static dpar_status dpari_pt_register_all(dpari_pt_directory *directory, dpar_comm *comm,
                                         const dpar_points_desc *desc, int32_t *to, dpar_why *why)
{
    dpari_pt_mail mail;
    dpar_status status;
    dpari_pt_homes(desc->own_id, desc->own_count, comm->size, to);
    status = dpari_pt_open(&mail, comm, to, desc->own_count, DPAR_OK, why);
    if (status == DPAR_OK) {
        dpari_pt_deal(&mail, desc->own_id, desc->own_count, to);
        status = dpari_pt_go(&mail, 0, why);
    }
    if (status == DPAR_OK) {
        directory->bytes = dpari_pt_table_room(mail.ins + 1) * (int64_t)sizeof(dpari_pt_entry);
        directory->pages = dpari_os_pages(directory->bytes);
        if (directory->pages) {
            dpari_pt_table_init(&directory->table, (dpari_pt_entry *)directory->pages,
                                mail.ins + 1);
            status = dpari_pt_register(&directory->table, &mail, why);
        } else {
            status = dpari_say(DPAR_E_MEMORY, why, "no memory for a table of %ld ids", mail.ins);
        }
    }
    dpari_pt_close(&mail);
    return status;
}

/* Runs round 2: asks the homes of ghosts for their owners. If `status`, the result of round 1, is
 * an error, all ranks get it. */
static dpar_status dpari_pt_ask_all(const dpari_pt_directory *directory, const dpari_points *plan,
                                    const dpar_points_desc *desc, int32_t *owner, int32_t *to,
                                    dpar_status status, dpar_why *why)
{
    dpari_pt_mail mail;
    int64_t i;
    dpari_pt_homes(desc->ghost_id, desc->ghost_count, plan->head.comm->size, to);
    status = dpari_pt_open(&mail, plan->head.comm, to, desc->ghost_count, status, why);
    if (status == DPAR_OK) {
        dpari_pt_deal(&mail, desc->ghost_id, desc->ghost_count, to);
        status = dpari_pt_go(&mail, 0, why);
    }
    if (status == DPAR_OK) {
        for (i = 0; i < mail.ins; i++) {
            mail.in[i] = dpari_pt_find(&directory->table, mail.in[i]);
        }
        status = dpari_pt_go(&mail, 1, why);
    }
    for (i = 0; i < desc->ghost_count && status == DPAR_OK; i++) {
        owner[i] = (int32_t)mail.out[to[i]];
        if (owner[i] < 0) {
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
    dpari_pt_directory directory;
    dpar_status status;
    dpari_zero(&directory, sizeof directory);
    status = dpari_pt_register_all(&directory, plan->head.comm, desc, to, why);
    status = dpari_pt_ask_all(&directory, plan, desc, owner, to, status, why);
    if (directory.pages) {
        dpari_os_unmap(directory.pages, directory.bytes);
    }
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

DPARI_INTERNAL void dpari_pt_both_free(dpari_pt_both *both)
{
    int32_t i;
    for (i = 0; i < 2; i++) {
        if (both->pages[i]) {
            dpari_os_unmap(both->pages[i], both->bytes[i]);
        }
    }
}

/* Allocates both->pages[i] for n numbers of 4 bytes and `more` of 8. */
static dpar_status dpari_pt_pages(dpari_pt_both *both, int32_t i, int64_t n, int64_t more,
                                  dpar_why *why)
{
    both->bytes[i] = 4 * n + 8 * more + 8;
    both->pages[i] = dpari_os_pages(both->bytes[i]);
    if (both->pages[i] == NULL) {
        return dpari_say(DPAR_E_MEMORY, why, "no memory for %ld temporary bytes", both->bytes[i]);
    }
    return DPAR_OK;
}

/* Allocates the lists of both sides and sets their counts, after the ids of round 3 have arrived.
 */
static dpar_status dpari_pt_set_both(dpari_pt_both *both, const dpari_pt_mail *mail, int32_t size,
                                     dpar_why *why)
{
    const dpar_status status = dpari_pt_pages(both, 1, mail->ins, 2 * size, why);
    int32_t r;
    if (status != DPAR_OK) {
        return status;
    }
    both->sends = (int64_t *)both->pages[1];
    both->receives = both->sends + size;
    both->send_at = (int32_t *)(void *)(both->receives + size);
    both->sent = mail->ins;
    for (r = 0; r < size; r++) {
        both->receives[r] = mail->count[r];
        both->sends[r] = mail->count[2 * size + r];
    }
    return status;
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
 * to: the place of each ghost in mail->out.
 *
 * With DPAR_POINTS_ORDER_BY_OWNER the ids for each rank are sorted first. Ghosts are then numbered
 * in that order, so that each rank's ghosts are consecutive. */
static void dpari_pt_set_places(dpari_points *plan, const dpar_points_desc *desc,
                                dpari_pt_mail *mail, const int32_t *to, int32_t *spare,
                                int64_t *spare_id, dpari_pt_both *both)
{
    int64_t g, at = 0;
    int32_t r;
    for (g = 0; g < desc->ghost_count; g++) {
        both->receive_at[to[g]] = (int32_t)g;
    }
    for (r = 0; r < mail->comm->size && desc->order == DPAR_POINTS_ORDER_BY_OWNER; r++) {
        dpari_pt_sort(mail->out + at, both->receive_at + at, mail->count[r], spare_id, spare);
        at += mail->count[r];
    }
    for (g = 0; g < desc->ghost_count; g++) {
        const int sorted = desc->order == DPAR_POINTS_ORDER_BY_OWNER;
        (void)dpari_pt_put(&plan->table, sorted ? mail->out[g] : desc->ghost_id[g],
                           desc->own_count + g);
        both->receive_at[g] = sorted ? (int32_t)g : both->receive_at[g];
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
    dpar_status status = dpari_pt_go(mail, 0, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_pt_set_both(both, mail, plan->head.comm->size, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_pt_look_up(plan, mail, both, why);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_by_ids(dpari_points *plan,
                                                      const dpar_points_desc *desc,
                                                      dpari_pt_both *both, dpar_why *why)
{
    const int64_t most = dpari_most(desc->own_count, desc->ghost_count);
    dpari_pt_mail mail;
    int32_t *owner, *to;
    int64_t *spare;
    dpar_status status =
        dpari_pt_pages(both, 0, 2 * desc->ghost_count + most, desc->ghost_count, why);
    if (status == DPAR_OK) {
        status = dpari_pt_enter(plan, desc, why);
    }
    status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
    if (status != DPAR_OK) {
        return status;
    }
    spare = (int64_t *)both->pages[0];
    both->receive_at = (int32_t *)(void *)(spare + desc->ghost_count);
    owner = both->receive_at + desc->ghost_count;
    to = owner + desc->ghost_count;
    if (plan->given_owner || plan->has_layout) {
        status = dpari_pt_by_owner(plan, desc, owner, why);
    } else if (plan->hashed) {
        status = dpari_pt_by_directory(plan, desc, owner, to, why);
    } else {
        status = dpari_pt_by_range(plan, desc, owner, why);
    }
    status = dpari_pt_open(&mail, plan->head.comm, owner, desc->ghost_count, status, why);
    if (status == DPAR_OK) { /* round 3 */
        dpari_pt_deal(&mail, desc->ghost_id, desc->ghost_count, owner);
        dpari_pt_set_places(plan, desc, &mail, owner, to, spare, both);
        status = dpari_pt_send_ids(plan, &mail, both, why);
        status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
    }
    dpari_pt_close(&mail);
    return status;
}

/* Copies the caller's lists, sorted by rank. */
static void dpari_pt_sort_lists(const dpar_points_desc *desc, dpari_pt_both *both, int32_t size)
{
    const dpar_points_lists *lists = desc->lists;
    int64_t *send_next = (int64_t *)both->pages[0], *receive_next = send_next + size;
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
    int64_t sent = 0, *announced;
    dpar_status status;
    int32_t i;
    for (i = 0; i < lists->peer_count; i++) {
        sent += lists->send_count[i];
    }
    status = dpari_pt_pages(both, 0, desc->ghost_count, 4 * size, why);
    if (status == DPAR_OK) {
        status = dpari_pt_pages(both, 1, sent, 2 * size, why);
    }
    status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
    if (status != DPAR_OK) {
        return status;
    }
    announced = (int64_t *)both->pages[0] + 2 * size;
    both->receive_at = (int32_t *)(void *)(announced + 2 * size);
    both->sends = (int64_t *)both->pages[1];
    both->receives = both->sends + size;
    both->send_at = (int32_t *)(void *)(both->receives + size);
    both->sent = sent;
    for (i = 0; i < lists->peer_count; i++) {
        both->sends[lists->peer[i]] = lists->send_count[i];
        both->receives[lists->peer[i]] = lists->receive_count[i];
    }
    status = dpari_pt_explain(
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
        dpari_pt_sort_lists(desc, both, size);
    }
    return status;
}
