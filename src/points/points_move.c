/* SPDX-License-Identifier: MIT-0 */
/* Moves a mesh to new owners. It implements dpar_points_migration_make.
 *
 * If the caller passes no owners of points, each rank bids for the points of its old elements, on
 * behalf of the elements' new owners. A bid is a hash of id and rank. An adjoint exchange with
 * DPAR_MIN over a plan of the old mesh finds the least bid, whose rank gets the point. Points and
 * elements are then sorted at their new owners, and a plan from old to new places is made for
 * points and for elements. These plans move ids and corners. At the end corners are converted to
 * local indices. No rank has the whole mesh. */
#include "points_move.h"

#include "../comm/agree.h"
#include "points_mail.h"
#include "points_order.h"
#include "points_simple.h"

/* Indices of the numbers by which ranks compare what they pass. Of each number, the largest over
 * all ranks is used. In each pair, the first is 1 if a rank with points (or elements) passes the
 * array, and the second is 1 if such a rank does not. */
enum {
    DPARI_PM_OWNER,
    DPARI_PM_NO_OWNER,
    DPARI_PM_ELEMENT_OWNER,
    DPARI_PM_NO_ELEMENT_OWNER,
    DPARI_PM_ID,
    DPARI_PM_NO_ID,
    DPARI_PM_ELEMENT_ID,
    DPARI_PM_NO_ELEMENT_ID,
    DPARI_PM_CORNERS,    /* corner_count */
    DPARI_PM_NO_CORNERS, /* -corner_count, whose maximum gives the smallest corner_count */
    DPARI_PM_GIVEN,
    DPARI_PM_MOST_CORNERS = 64 /* of an element */
};

typedef struct dpari_pm {
    dpar_comm *comm;
    const dpar_points_migration_desc *desc;
    dpar_points_migration *to;
    int64_t given[DPARI_PM_GIVEN];
    int32_t corners;        /* of each element; 0 if no rank has elements */
    int64_t slots;          /* number of corners of all own elements together */
    int64_t reads;          /* number of distinct ids among these corners */
    int64_t *reading;       /* [reads] the distinct ids, ascending */
    int32_t *slot;          /* [slots] the index of each corner in `reading` */
    dpar_points *old;       /* plan of the mesh before it moves; its ghosts are `reading` */
    int32_t *owner;         /* [points + reads] the new owner of each */
    int32_t *element_owner; /* [elements] likewise */
    dpari_po_pages pages;
} dpari_pm;

/* ---- checks ---------------------------------------------------------------------------------- */

static dpar_status dpari_pm_check_owners(const dpar_comm *comm, const int32_t *owner, int64_t count,
                                         const char *what, dpar_why *why)
{
    int64_t i;
    if (!owner) {
        return DPAR_OK;
    }
    for (i = 0; i < count; i++) {
        if (owner[i] < 0 || owner[i] >= comm->size) {
            return dpari_wrong(why, "%s %ld: owner %d is not one of the %d ranks", what, i,
                               owner[i], comm->size);
        }
    }
    return DPAR_OK;
}

/* Checks what this rank passes. Local. */
static DPARI_COLD dpar_status dpari_pm_check(const dpar_comm *comm,
                                             const dpar_points_migration_desc *desc, dpar_why *why)
{
    dpar_status status = dpari_po_host(comm, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (!desc) {
        return dpari_wrong(why, "desc is NULL");
    }
    if (desc->point_count < 0 || desc->element_count < 0) {
        return dpari_wrong(why, "point_count %ld or element_count %ld is negative",
                           desc->point_count, desc->element_count);
    }
    if (desc->element_count > 0 &&
        (!desc->corner || desc->corner_count < 1 || desc->corner_count > DPARI_PM_MOST_CORNERS)) {
        return dpari_wrong(why, "corner is NULL, or corner_count %d is not 1 to %d",
                           desc->corner_count, (int32_t)DPARI_PM_MOST_CORNERS);
    }
    if (desc->point_count > INT32_MAX ||
        (desc->element_count > 0 &&
         desc->element_count > (INT32_MAX - desc->point_count) / desc->corner_count)) {
        return dpari_say(DPAR_E_RANGE, why,
                         "%ld points and %ld elements of %d corners are more than 2^31 - 1 ids",
                         desc->point_count, desc->element_count, desc->corner_count);
    }
    status = dpari_pm_check_owners(comm, desc->owner, desc->point_count, "point", why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_pm_check_owners(comm, desc->element_owner, desc->element_count, "element", why);
}

/* Compares what all ranks pass. The result is the same on all of them. */
static DPARI_COLD dpar_status dpari_pm_compare(const int64_t *given, dpar_why *why)
{
    static const char name[4][16] = {"owner", "element_owner", "id", "element_id"};
    int32_t i;
    for (i = 0; i < 4; i++) { /* pairs from DPARI_PM_OWNER on */
        if (given[2 * i] && given[2 * i + 1]) {
            return dpari_say(DPAR_E_MISMATCH, why, "%s is NULL on some ranks, not on others",
                             name[i]);
        }
    }
    if (given[DPARI_PM_CORNERS] > 0 && given[DPARI_PM_CORNERS] != -given[DPARI_PM_NO_CORNERS]) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "elements have %ld corners on one rank, %ld on another",
                         -given[DPARI_PM_NO_CORNERS], given[DPARI_PM_CORNERS]);
    }
    if ((given[DPARI_PM_NO_OWNER] || given[DPARI_PM_NO_ELEMENT_OWNER]) && !given[DPARI_PM_OWNER] &&
        !given[DPARI_PM_ELEMENT_OWNER]) {
        return dpari_wrong(why, "neither owner nor element_owner is set");
    }
    return DPAR_OK;
}

/* Checks that all ranks describe the same kind of movement. Collective; all ranks get the same
 * message. */
static DPARI_COLD dpar_status dpari_pm_alike(dpari_pm *move, dpar_why *why)
{
    const dpar_points_migration_desc *desc = move->desc;
    int64_t *given = move->given;
    const int points = desc->point_count > 0, elements = desc->element_count > 0;
    dpar_status status;
    given[DPARI_PM_OWNER] = points && desc->owner;
    given[DPARI_PM_NO_OWNER] = points && !desc->owner;
    given[DPARI_PM_ELEMENT_OWNER] = elements && desc->element_owner;
    given[DPARI_PM_NO_ELEMENT_OWNER] = elements && !desc->element_owner;
    given[DPARI_PM_ID] = points && desc->id;
    given[DPARI_PM_NO_ID] = points && !desc->id;
    given[DPARI_PM_ELEMENT_ID] = elements && desc->element_id;
    given[DPARI_PM_NO_ELEMENT_ID] = elements && !desc->element_id;
    given[DPARI_PM_CORNERS] = elements ? desc->corner_count : 0;
    given[DPARI_PM_NO_CORNERS] = elements ? -desc->corner_count : -INT32_MAX;
    status = dpar_all_reduce(move->comm, given, given, DPARI_PM_GIVEN, DPAR_I64, DPAR_MAX, NULL);
    if (status != DPAR_OK) {
        return dpari_po_explain(move->comm, status, why);
    }
    move->corners = (int32_t)given[DPARI_PM_CORNERS];
    move->slots = desc->element_count * move->corners;
    return dpari_pm_compare(given, why);
}

/* ---- the mesh before it moves ---------------------------------------------------------------- */

/* Finds the distinct ids among n ids. Returns how many there are.
 *
 * item:  memory for 2 n items.
 * id:    receives the distinct ids, ascending.
 * which: [n], receives the index of each in `id`. */
static int64_t dpari_pm_distinct(const int64_t *of, int64_t n, dpari_po_item *item, int64_t *id,
                                 int32_t *which)
{
    int64_t i, distinct = 0;
    for (i = 0; i < n; i++) {
        item[i].key = of[i];
        item[i].id = 0;
        item[i].at = i;
    }
    item = dpari_po_sort(item, item + n, n);
    for (i = 0; i < n; i++) {
        if (i == 0 || item[i].key != item[i - 1].key) {
            id[distinct++] = item[i].key;
        }
        which[item[i].at] = (int32_t)(distinct - 1);
    }
    return distinct;
}

/* Lists the distinct points that own elements read, and allocates the memory of the whole movement.
 * Local. */
static dpar_status dpari_pm_read(dpari_pm *move, dpar_why *why)
{
    const dpar_points_migration_desc *desc = move->desc;
    dpar_status status = DPAR_OK;
    dpari_po_pages pages;
    dpari_po_item *item;
    dpari_zero(&pages, sizeof pages);
    item = (dpari_po_item *)dpari_po_take(&pages, 2 * move->slots, sizeof *item, &status, why);
    move->reading = (int64_t *)dpari_po_take(&move->pages, move->slots, 8, &status, why);
    move->slot = (int32_t *)dpari_po_take(&move->pages, move->slots, 4, &status, why);
    move->element_owner =
        (int32_t *)dpari_po_take(&move->pages, desc->element_count, 4, &status, why);
    if (status == DPAR_OK) {
        move->reads = dpari_pm_distinct(desc->corner, move->slots, item, move->reading, move->slot);
        move->owner = (int32_t *)dpari_po_take(&move->pages, desc->point_count + move->reads, 4,
                                               &status, why);
    }
    dpari_po_free(&pages);
    return status;
}

/* Makes the plan of the mesh as it is, whose ghosts are the points that own elements read. */
static DPARI_COLD dpar_status dpari_pm_plan(dpari_pm *move, dpar_why *why)
{
    dpar_points_desc desc;
    dpari_zero(&desc, sizeof desc);
    desc.own_count = move->desc->point_count;
    if (move->given[DPARI_PM_ID]) { /* all ranks must then pass ids, even those without points */
        desc.own_id = move->desc->id ? move->desc->id : move->reading;
    }
    desc.ghost_count = move->reads;
    desc.ghost_id = move->reading;
    return dpar_points_make(move->comm, &desc, &move->old, why);
}

/* ---- owners ---------------------------------------------------------------------------------- */

/* Returns the bid of a rank for a point: a hash, with the rank in its lowest 31 bits. The rank with
 * the least bid gets the point. Because of the hash no rank is preferred. */
static int64_t dpari_pm_bid(int64_t id, int32_t rank)
{
    return (int64_t)(dpari_hash(dpari_hash(0, id), rank) >> 33 << 31) | rank;
}

/* Gives each point to one of the ranks that will have an element with it. */
static dpar_status dpari_pm_bids(dpari_pm *move, dpar_why *why)
{
    const dpar_points_migration_desc *desc = move->desc;
    const int64_t all = desc->point_count + move->reads;
    dpari_po_pages pages;
    dpar_points_field field;
    dpar_status status = DPAR_OK;
    int64_t i, k, *bid;
    dpari_zero(&pages, sizeof pages);
    bid = (int64_t *)dpari_po_take(&pages, all, 8, &status, why);
    status = dpari_agree(move->comm, status, why);
    if (status != DPAR_OK) {
        dpari_po_free(&pages);
        return status;
    }
    for (i = 0; i < all; i++) {
        bid[i] = INT64_MAX;
    }
    for (i = 0; i < desc->element_count; i++) {
        for (k = i * move->corners; k < (i + 1) * move->corners; k++) {
            const int64_t at = desc->point_count + move->slot[k];
            const int64_t mine = dpari_pm_bid(move->reading[move->slot[k]], desc->element_owner[i]);
            bid[at] = dpari_least(bid[at], mine);
        }
    }
    dpari_zero(&field, sizeof field);
    field.type = DPAR_I64;
    field.data = bid;
    status = dpar_points_reduce_begin_many(move->old, &field, 1, DPAR_MIN);
    if (status == DPAR_OK) {
        status = dpar_points_end(move->old);
    }
    if (status == DPAR_OK) {
        for (i = 0; i < desc->point_count; i++) { /* without a bid a point stays */
            move->owner[i] = bid[i] == INT64_MAX ? move->comm->rank : (int32_t)(bid[i] & INT32_MAX);
        }
    }
    dpari_po_free(&pages);
    return dpari_po_explain(move->comm, status, why);
}

/* Returns the rank that gets most of an element's corners, the smallest if several ranks get as
 * many. */
static int32_t dpari_pm_majority(const dpari_pm *move, int64_t element)
{
    const int32_t *slot = move->slot + element * move->corners,
                  *owner = move->owner + move->desc->point_count;
    int32_t i, k, best = INT32_MAX, most = 0;
    for (i = 0; i < move->corners; i++) {
        int32_t n = 0;
        for (k = 0; k < move->corners; k++) {
            n += owner[slot[k]] == owner[slot[i]];
        }
        if (n > most || (n == most && owner[slot[i]] < best)) {
            most = n;
            best = owner[slot[i]];
        }
    }
    return best;
}

/* Sets the new owners of own points, of the points that own elements read, and of own elements.
 * Collective. */
static dpar_status dpari_pm_owners(dpari_pm *move, dpar_why *why)
{
    const dpar_points_migration_desc *desc = move->desc;
    dpar_points_field field;
    dpar_status status;
    int64_t i;
    if (move->given[DPARI_PM_NO_OWNER]) {
        status = dpari_pm_bids(move, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    if (move->given[DPARI_PM_OWNER]) {
        for (i = 0; i < desc->point_count; i++) {
            move->owner[i] = desc->owner[i];
        }
    }
    dpari_zero(&field, sizeof field);
    field.type = DPAR_I32;
    field.data = move->owner;
    status = dpar_points_exchange_many(move->old, &field, 1);
    if (status != DPAR_OK) {
        return dpari_po_explain(move->comm, status, why);
    }
    for (i = 0; i < desc->element_count; i++) {
        if (move->given[DPARI_PM_ELEMENT_OWNER]) {
            move->element_owner[i] = desc->element_owner[i];
        } else {
            move->element_owner[i] = dpari_pm_majority(move, i);
        }
    }
    return DPAR_OK;
}

/* ---- items that move ------------------------------------------------------------------------- */

/* The points or the elements of this rank, which move to their new owners. */
typedef struct dpari_pm_move {
    int64_t count;
    const int64_t *id, *order; /* may be NULL: ids are then first, first + 1, ..., in that order */
    const int32_t *owner;      /* the new owners */
    int64_t first;
    int64_t received;  /* number of items of this rank after the movement */
    void *ids;         /* [received] their ids, in memory of dpar_comm_alloc */
    dpar_points *plan; /* from old places to new ones */
    /* The following fields are needed only during planning. */
    int32_t *send_at, *receive_at; /* for each item, in the order in which it is sent or received */
    dpari_po_item *item;
    dpari_po_pages pages;
} dpari_pm_move;

/* Allocates what planning needs for the items that are sent and received. Local. */
static dpar_status dpari_pm_take(dpar_comm *comm, dpari_pm_move *items, dpar_why *why)
{
    dpar_status status = DPAR_OK;
    if (items->count + items->received > INT32_MAX) {
        status = dpari_say(DPAR_E_RANGE, why,
                           "%ld old and %ld new items of rank %d are more than %d together",
                           items->count, items->received, comm->rank, (int32_t)INT32_MAX);
    }
    items->send_at = (int32_t *)dpari_po_take(&items->pages, items->count, 4, &status, why);
    items->receive_at = (int32_t *)dpari_po_take(&items->pages, items->received, 4, &status, why);
    items->item = (dpari_po_item *)dpari_po_take(&items->pages, 2 * items->received,
                                                 sizeof *items->item, &status, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_po_explain(comm, dpar_comm_alloc(comm, 8 * items->received + 8, &items->ids), why);
}

/* Sends the order and the id of each item to its new owner, and computes the place of each received
 * item. Collective. */
static dpar_status dpari_pm_send(dpari_pm_move *items, dpari_pt_mail *mail, dpar_why *why)
{
    dpar_status status;
    int64_t i;
    items->received = mail->ins / 2;
    status = dpari_agree(mail->comm, dpari_pm_take(mail->comm, items, why), why);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < items->count; i++) {
        const int64_t id = items->id ? items->id[i] : items->first + i;
        int64_t *next = &mail->count[mail->comm->size + items->owner[i]];
        items->send_at[*next / 2] = (int32_t)i;
        mail->out[*next] = items->order ? items->order[i] : id;
        mail->out[*next + 1] = id;
        *next += 2;
    }
    status = dpari_pt_go(mail, 0, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < items->received; i++) {
        items->item[i].key = mail->in[2 * i];
        items->item[i].id = mail->in[2 * i + 1];
        items->item[i].at = i;
    }
    items->item = dpari_po_sort(items->item, items->item + items->received, items->received);
    for (i = 0; i < items->received; i++) {
        ((int64_t *)items->ids)[i] = items->item[i].id;
        items->receive_at[items->item[i].at] = (int32_t)(items->count + i);
    }
    return DPAR_OK;
}

/* Makes the plan from the old places of items to the new ones, and replaces the counts of the mail
 * by those of its peers. */
static DPARI_COLD dpar_status dpari_pm_join(dpari_pm_move *items, const dpari_pt_mail *mail,
                                            dpar_why *why)
{
    const int32_t size = mail->comm->size;
    int64_t *sends = mail->count, *receives = mail->count + 2 * size;
    int32_t r, *peer = (int32_t *)(void *)(mail->count + size);
    dpar_points_desc desc;
    dpar_points_lists lists;
    dpari_zero(&desc, sizeof desc);
    dpari_zero(&lists, sizeof lists);
    for (r = 0; r < size; r++) {
        if (sends[r] + receives[r] > 0) {
            sends[lists.peer_count] = sends[r] / 2;
            receives[lists.peer_count] = receives[r] / 2;
            peer[lists.peer_count] = r;
            lists.peer_count++;
        }
    }
    lists.peer = peer;
    lists.send_count = sends;
    lists.receive_count = receives;
    lists.send_index = items->send_at;
    lists.receive_index = items->receive_at;
    desc.own_count = items->count;
    desc.ghost_count = items->received;
    desc.lists = &lists;
    return dpar_points_make(mail->comm, &desc, &items->plan, why);
}

/* Sends items to their new owners, and makes the plan from old to new places. Collective. */
static DPARI_COLD dpar_status dpari_pm_move_plan(dpar_comm *comm, dpari_pm_move *items,
                                                 dpar_why *why)
{
    dpari_pt_mail mail;
    dpar_status status = dpari_pt_open(&mail, comm, items->owner, items->count, 2, DPAR_OK, why);
    if (status == DPAR_OK) {
        status = dpari_pm_send(items, &mail, why);
    }
    if (status == DPAR_OK) {
        status = dpari_pm_join(items, &mail, why);
    }
    dpari_pt_close(&mail);
    dpari_po_free(&items->pages);
    return status;
}

/* ---- the mesh at its new owners -------------------------------------------------------------- */

typedef struct dpari_pm_new {
    int64_t slots;       /* number of corners of all elements together */
    int64_t *corner;     /* [slots] the id of each corner */
    int32_t *owner;      /* [slots] the new owner of each */
    int64_t *reading;    /* [slots] distinct ids, ascending */
    int32_t *slot;       /* [slots] the index of each corner in `reading` */
    int32_t *local;      /* [slots] the local index of each distinct id */
    dpari_po_item *item; /* [2 * the larger of slots and own points] */
    dpari_po_pages pages;
} dpari_pm_new;

/* Moves the corners of elements, with their new owners, to the elements' new owners. Collective. */
static dpar_status dpari_pm_corners(dpari_pm *move, dpari_pm_new *mesh, dpar_why *why)
{
    const int64_t own = move->to->desc.own_count;
    dpari_po_pages pages;
    dpar_points_field field[2];
    dpar_status status = DPAR_OK;
    int32_t *owner;
    int64_t i;
    dpari_zero(&pages, sizeof pages);
    owner = (int32_t *)dpari_po_take(&pages, move->slots, 4, &status, why);
    if (!dpari_mul(move->to->element_count, move->corners, &mesh->slots) ||
        mesh->slots > INT32_MAX) {
        status = dpari_say(DPAR_E_RANGE, why,
                           "%ld elements of %d corners are more than 2^31 - 1 ids of rank %d",
                           move->to->element_count, move->corners, move->comm->rank);
    }
    mesh->corner = (int64_t *)dpari_po_take(&mesh->pages, mesh->slots, 8, &status, why);
    mesh->owner = (int32_t *)dpari_po_take(&mesh->pages, mesh->slots, 4, &status, why);
    mesh->reading = (int64_t *)dpari_po_take(&mesh->pages, mesh->slots, 8, &status, why);
    mesh->slot = (int32_t *)dpari_po_take(&mesh->pages, mesh->slots, 4, &status, why);
    mesh->local = (int32_t *)dpari_po_take(&mesh->pages, mesh->slots, 4, &status, why);
    mesh->item = (dpari_po_item *)dpari_po_take(&mesh->pages, 2 * dpari_most(mesh->slots, own),
                                                sizeof *mesh->item, &status, why);
    status = dpari_agree(move->comm, status, why);
    if (status == DPAR_OK) {
        for (i = 0; i < move->slots; i++) {
            owner[i] = move->owner[move->desc->point_count + move->slot[i]];
        }
        dpari_zero(field, sizeof field);
        field[0].type = DPAR_I64;
        field[1].type = DPAR_I32;
        field[0].components = field[1].components = move->corners;
        field[0].data = move->reading; /* not written; without elements any address but NULL */
        if (move->slots > 0) {
            field[0].data = (void *)(uintptr_t)move->desc->corner;
        }
        field[1].data = owner;
        field[0].ghosts = mesh->corner;
        field[1].ghosts = mesh->owner;
        status = dpar_points_exchange_many(move->to->element_points, field, 2);
        status = dpari_po_explain(move->comm, status, why);
    }
    dpari_po_free(&pages);
    return status;
}

/* Sets mesh->local of the first `reads` distinct ids: the local index if the point is an own one,
 * -1 if it becomes a ghost. Returns the number of ghosts. */
static int64_t dpari_pm_own(const dpari_pm *move, const dpari_pm_new *mesh, int64_t reads)
{
    const dpar_points_desc *desc = &move->to->desc;
    dpari_po_item *item = mesh->item;
    int64_t i, k = 0, others = 0;
    for (i = 0; i < desc->own_count; i++) {
        item[i].key = desc->own_id[i];
        item[i].id = 0;
        item[i].at = i;
    }
    item = dpari_po_sort(item, item + desc->own_count, desc->own_count);
    for (i = 0; i < reads; i++) {
        while (k < desc->own_count && item[k].key < mesh->reading[i]) {
            k++;
        }
        mesh->local[i] = -1;
        if (k < desc->own_count && item[k].key == mesh->reading[i]) {
            mesh->local[i] = (int32_t)item[k].at;
        } else {
            others++;
        }
    }
    return others;
}

/* Numbers the ghosts by owner, then by id, and converts the corners to local indices.
 *
 * memory: for the ids and owners of ghosts, and for the corners. */
static void dpari_pm_number(dpari_pm *move, const dpari_pm_new *mesh, int64_t reads,
                            int64_t *memory)
{
    dpar_points_desc *desc = &move->to->desc;
    int64_t *const id = memory;
    int32_t *const owner = (int32_t *)(void *)(id + desc->ghost_count);
    dpari_po_item *item = mesh->item;
    int64_t i, k = 0;
    move->to->corner = owner + desc->ghost_count;
    for (i = 0; i < mesh->slots; i++) { /* first collects the owner of each distinct id */
        move->to->corner[mesh->slot[i]] = mesh->owner[i];
    }
    for (i = 0; i < reads; i++) {
        if (mesh->local[i] < 0) {
            item[k].key = move->to->corner[i];
            item[k].id = mesh->reading[i];
            item[k].at = i;
            k++;
        }
    }
    item = dpari_po_sort(item, item + k, k);
    for (i = 0; i < k; i++) {
        id[i] = item[i].id;
        owner[i] = (int32_t)item[i].key;
        mesh->local[item[i].at] = (int32_t)(desc->own_count + i);
    }
    for (i = 0; i < mesh->slots; i++) {
        move->to->corner[i] = mesh->local[mesh->slot[i]];
    }
    desc->ghost_id = id;
    desc->owner = owner;
}

/* Makes the description of the mesh at its new owners: moves the corners and converts them to local
 * indices. Collective. */
static DPARI_COLD dpar_status dpari_pm_renumber(dpari_pm *move, dpar_why *why)
{
    void **memory = &move->to->memory[2];
    dpari_pm_new mesh;
    dpar_status status;
    dpari_zero(&mesh, sizeof mesh);
    status = dpari_pm_corners(move, &mesh, why);
    if (status == DPAR_OK) {
        const int64_t reads =
            dpari_pm_distinct(mesh.corner, mesh.slots, mesh.item, mesh.reading, mesh.slot);
        const int64_t ghosts = dpari_pm_own(move, &mesh, reads);
        status = dpar_comm_alloc(move->comm, 12 * ghosts + 4 * mesh.slots + 8, memory);
        if (status == DPAR_OK) {
            move->to->desc.ghost_count = ghosts;
            dpari_pm_number(move, &mesh, reads, (int64_t *)*memory);
        }
        status = dpari_agree(move->comm, dpari_po_explain(move->comm, status, why), why);
    }
    dpari_po_free(&mesh.pages);
    return status;
}

/* ---- the movement ---------------------------------------------------------------------------- */

/* Moves points, or elements if `elements` is 1. Memory and plan belong to the result even after a
 * failure, so that dpar_points_migration_free frees them. */
static DPARI_COLD dpar_status dpari_pm_go_items(dpari_pm *move, int elements, dpar_why *why)
{
    const dpar_points_migration_desc *desc = move->desc;
    dpar_points_migration *to = move->to;
    dpari_pm_move items;
    dpar_status status = DPAR_OK;
    dpari_zero(&items, sizeof items);
    items.count = elements ? desc->element_count : desc->point_count;
    items.id = elements ? desc->element_id : desc->id;
    items.order = elements ? desc->element_order : desc->order;
    items.owner = elements ? move->element_owner : move->owner;
    items.first = move->old->first_id;
    if (elements) {
        status = dpari_po_first(move->comm, items.count, &items.first, why);
    }
    if (status == DPAR_OK) {
        status = dpari_pm_move_plan(move->comm, &items, why);
    }
    to->memory[elements] = items.ids;
    if (elements) {
        to->element_points = items.plan;
        to->element_count = items.received;
        to->element_id = (int64_t *)items.ids;
    } else {
        to->points = items.plan;
        to->desc.own_count = items.received;
        to->desc.own_id = (const int64_t *)items.ids;
    }
    return status;
}

/* Chooses owners and moves the mesh to them. Collective: each step ends with the same status on all
 * ranks. */
static DPARI_COLD dpar_status dpari_pm_go(dpari_pm *move, dpar_why *why)
{
    dpar_status status = dpari_pm_owners(move, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_pm_go_items(move, 0, why);
    if (status != DPAR_OK || move->corners == 0) {
        return status;
    }
    status = dpari_pm_go_items(move, 1, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_pm_renumber(move, why);
}

/* Makes the plan of the old mesh, moves the mesh, and frees that plan. */
static DPARI_COLD dpar_status dpari_pm_run(dpari_pm *move, dpar_why *why)
{
    dpar_status closed;
    dpar_status status = dpari_pm_plan(move, why);
    if (status != DPAR_OK) {
        return status;
    }
    move->to->comm = move->comm;
    status = dpari_pm_go(move, why);
    closed = dpar_points_free(move->old);
    if (status == DPAR_OK) {
        status = dpari_po_explain(move->comm, closed, why);
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_points_migration_make(dpar_comm *comm,
                                                           const dpar_points_migration_desc *desc,
                                                           dpar_points_migration **moved,
                                                           dpar_why *why)
{
    dpari_pm move;
    void *memory = NULL;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_points_migration_make: comm is NULL");
    }
    why = dpari_why_of(comm, why);
    dpari_zero(&move, sizeof move);
    move.comm = comm;
    move.desc = desc;
    status = moved ? dpari_pm_check(comm, desc, why) : dpari_wrong(why, "moved is NULL");
    status = dpari_agree(comm, status, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_pm_alike(&move, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_po_explain(comm, dpar_comm_alloc(comm, sizeof *move.to, &memory), why);
    if (status == DPAR_OK) {
        status = dpari_pm_read(&move, why);
    }
    status = dpari_agree(comm, status, why);
    move.to = (dpar_points_migration *)memory;
    if (status == DPAR_OK) {
        status = dpari_pm_run(&move, why);
    }
    dpari_po_free(&move.pages);
    if (status == DPAR_OK) {
        *moved = move.to;
    } else if (move.to && move.to->comm) { /* it may already own plans and arrays */
        (void)dpar_points_migration_free(move.to);
    } else {
        dpar_comm_release(comm, memory);
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_points_migration_free(dpar_points_migration *moved)
{
    dpar_comm *comm;
    dpar_status points, element_points;
    int32_t i;
    if (!moved) {
        return DPAR_OK;
    }
    comm = moved->comm;
    points = dpar_points_free(moved->points);
    element_points = dpar_points_free(moved->element_points);
    for (i = 0; i < 3; i++) {
        dpar_comm_release(comm, moved->memory[i]);
    }
    dpar_comm_release(comm, moved);
    return points != DPAR_OK ? points : element_points;
}
