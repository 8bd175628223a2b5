/* SPDX-License-Identifier: MIT-0 */
/* Finds which ranks share an id. points_sharers.h describes the two rounds of messages, and
 * points_shared.h the order in which values are combined. Called by points.c when a plan is made.
 */
#include "points_sharers.h"

#include "../comm/agree.h"
#include "../comm/comm.h"
#include "points_list.h"
#include "points_mail.h"
#include "points_order.h"

/* The data of a search for sharers. A sharer is one number, rank << 32 | values, where `values` is
 * how many values of the id it has, so that sharers are sorted by rank. */
typedef struct dpari_pt_search {
    dpari_points *plan;
    dpari_pt_both *both;
    /* Values of this rank, sorted; key: id, at: local index. In the first item of each id, the
     * field `id` is the index in `sharer` of the first sharer. */
    dpari_po_item *value, *value_end;
    /* Sharers of the ids that this rank shares, sorted; key: id, id: sharer, at: number of values
     * of lower ids that are sent to the sharer, which is also the number that it sends. */
    dpari_po_item *sharer, *sharer_end;
    /* Ids that this rank repeats or shares; key: number of sharers << 31 | values, at: index of the
     * first item in `value`, id: the last other rank, or the first local index if there is none. */
    dpari_po_item *group, *group_end;
    dpari_po_pages pages;
} dpari_pt_search;

/* Returns the end of the items that have the same key as the first one. */
DPARI_STATIC_NOINLINE dpari_po_item *dpari_pt_run_end(dpari_po_item *item, const dpari_po_item *end)
{
    const int64_t key = item->key;
    while (item < end && item->key == key) {
        item++;
    }
    return item;
}

/* Sends the key and the id of each of n items to rank item->at. Returns the items that this rank
 * has received, sorted, and sets *end. If *status is an error on a rank, all ranks get it.
 * Collective. */
static dpari_po_item *dpari_pt_send_items(dpari_pt_search *search, const dpari_po_item *item,
                                          int64_t n, dpari_po_item **end, dpar_status *status,
                                          dpar_why *why)
{
    dpar_comm *comm = search->plan->head.comm;
    dpari_po_item *got = NULL;
    dpari_pt_mail mail;
    int64_t i;
    int32_t *to = (int32_t *)dpari_po_take(&search->pages, n, 4, status, why);
    for (i = 0; i < n && to; i++) {
        to[i] = (int32_t)item[i].at;
    }
    *status = dpari_pt_open(&mail, comm, to, n, 2, *status, why);
    if (*status == DPAR_OK) {
        for (i = 0; i < n; i++, item++) {
            int64_t *next = mail.count + comm->size + item->at, *out = mail.out + *next;
            out[0] = item->key;
            out[1] = item->id;
            *next += 2;
        }
        n = mail.ins / 2;
        *status = dpari_pt_go(&mail, 0, why);
        got = (dpari_po_item *)dpari_po_take(&search->pages, 2 * n, sizeof *got, status, why);
    }
    if (got) {
        for (i = 0; i < n; i++) {
            got[i].key = mail.in[2 * i];
            got[i].id = mail.in[2 * i + 1];
        }
        got = dpari_po_sort(got, got + n, n);
        *end = got + n;
    }
    dpari_pt_close(&mail);
    return got;
}

/* Sorts the values of this rank by id, and finds the sharers of these ids. Collective. */
DPARI_STATIC_NOINLINE dpar_status dpari_pt_find_sharers(dpari_pt_search *search,
                                                        const dpar_points_desc *desc, dpar_why *why)
{
    const dpar_comm *comm = search->plan->head.comm;
    const int64_t most = desc->own_count;
    dpar_status status = DPAR_OK;
    dpari_po_item *here, *here_end = NULL, *next, *a, *b, *to;
    dpari_po_item *item =
        (dpari_po_item *)dpari_po_take(&search->pages, 4 * most, sizeof *item, &status, why);
    int64_t i, answers = 0;
    int32_t pass;
    to = item;
    for (i = 0; i < most && item; i++) {
        if (desc->own_id[i] >= 0) {
            to->key = desc->own_id[i];
            to->at = i;
            to++;
        }
    }
    search->value = dpari_po_sort(item, item + most, to - item);
    search->value_end = search->value + (to - item);
    search->group = to = item + 2 * most;
    for (a = search->value; a < search->value_end; a = next) {
        next = dpari_pt_run_end(a, search->value_end);
        to->key = a->key;
        to->id = (int64_t)comm->rank << 32 | (next - a);
        to->at = dpari_pt_home(a->key, comm->size);
        to++;
    }
    here = dpari_pt_send_items(search, search->group, to - search->group, &here_end, &status, why);
    for (pass = 0; pass < 2; pass++) { /* counts the answers, then writes them */
        answers = 0;
        for (to = here; to < here_end; to = next) {
            next = dpari_pt_run_end(to, here_end);
            for (a = to; a < next && next > to + 1; a++) {
                for (b = to; b < next; b++, answers++) {
                    if (pass > 0) {
                        *item = *b;
                        item->at = a->id >> 32;
                        item++;
                    }
                }
            }
        }
        if (pass == 0) {
            item =
                (dpari_po_item *)dpari_po_take(&search->pages, answers, sizeof *item, &status, why);
            here_end = item ? here_end : here;
        }
    }
    search->sharer =
        dpari_pt_send_items(search, item - answers, answers, &search->sharer_end, &status, why);
    return status;
}

/* Numbers the values that are sent to each rank in the order of their ids (the rank sends as many),
 * and groups the ids that this rank repeats or shares. Returns how many int32_t their records need,
 * and sets *most to the largest number of values that are combined at once. */
DPARI_STATIC_NOINLINE int64_t dpari_pt_group_ids(dpari_pt_search *search, int64_t *most)
{
    dpari_po_item *value, *next, *sharer = search->sharer, *group = search->group;
    int64_t numbers = 0;
    *most = 0;
    for (value = search->value; value < search->value_end; value = next) {
        int64_t total = 0, sharers = 0, other = 0;
        next = dpari_pt_run_end(value, search->value_end);
        value->id = sharer - search->sharer;
        for (; sharer < search->sharer_end && sharer->key == value->key; sharer++) {
            const int64_t rank = sharer->id >> 32;
            total += sharer->id & INT32_MAX;
            sharers++;
            if (rank != search->plan->head.comm->rank) {
                other = rank;
                sharer->at = search->both->sends[rank]++;
            }
        }
        total = dpari_most(total, next - value);
        *most = dpari_most(*most, total);
        if (total > 1) {
            group->key = sharers << 31 | (next - value);
            group->id = sharers == 0 ? value->at : other;
            group->at = value - search->value;
            group++;
            numbers += 4 + (next - value) + 2 * sharers;
        }
    }
    search->group_end = group;
    return numbers;
}

/* Writes a record of the ids from `group` to `end`, and lists their first values for the peers that
 * share them. first: [size] where the list for each rank begins. number: [size] index of each peer.
 * Returns the end of the record. */
DPARI_STATIC_NOINLINE int32_t *dpari_pt_write_ids(const dpari_pt_search *search,
                                                  const dpari_po_item *group,
                                                  const dpari_po_item *end, const int64_t *first,
                                                  const int64_t *number, int32_t *at)
{
    const int64_t sharers = group->key >> 31, repeats = group->key & INT32_MAX, n = end - group;
    int32_t *total;
    int64_t j;
    *at++ = (int32_t)n;
    *at++ = (int32_t)repeats;
    *at++ = (int32_t)sharers;
    for (total = at + n * repeats; group < end; group++, total++) {
        const dpari_po_item *value = search->value + group->at;
        const dpari_po_item *sharer = search->sharer + value->id;
        int32_t *to = total;
        for (j = 0; j < repeats; j++) {
            *at++ = (int32_t)value[j].at;
        }
        for (j = 0; j < sharers; j++, sharer++) {
            const int64_t rank = sharer->id >> 32;
            int32_t place = (int32_t)value->at;
            *total += (int32_t)(sharer->id & INT32_MAX);
            if (rank != search->plan->head.comm->rank) {
                search->both->send_at[first[rank] + sharer->at] = place;
                place = (int32_t)sharer->at;
            }
            to += n;
            to[0] = (int32_t)number[rank];
            to[sharers * n] = place;
        }
    }
    return at + (sharers > 0 ? n + 2 * sharers * n : 0);
}

/* Makes the lists and the records of this rank's ids from their sharers. Local. */
DPARI_STATIC_NOINLINE dpar_status dpari_pt_make_lists(dpari_pt_search *search, int64_t own_count,
                                                      dpar_why *why)
{
    dpari_pt_both *both = search->both;
    dpar_comm *comm = search->plan->head.comm;
    dpari_pt_shared *shared = &search->plan->shared;
    dpar_status status = DPAR_OK;
    dpari_po_item *group, *end;
    int64_t numbers, most, peers = 0, n, *first, *number;
    int32_t r, *at;
    both->sends = (int64_t *)dpari_po_take(&both->pages, comm->size, 24, &status, why);
    if (status != DPAR_OK) {
        return status;
    }
    both->receives = both->sends;
    first = both->sends + comm->size;
    number = first + comm->size;
    numbers = dpari_pt_group_ids(search, &most);
    dpari_pt_add_up(both->sends, first, comm->size, &both->sent);
    for (r = 0; r < comm->size; r++) {
        number[r] = peers;
        peers += both->sends[r] > 0;
    }
    number[comm->rank] = peers++; /* the last source is this rank */
    both->send_at = (int32_t *)dpari_po_take(&both->pages, both->sent, 4, &status, why);
    both->receive_at = both->send_at;
    if (status != DPAR_OK) {
        return status;
    }
    status = dpar_comm_alloc(comm,
                             peers * (int64_t)sizeof *shared->source +
                                 2 * most * (int64_t)sizeof *shared->in + 4 * numbers,
                             &shared->memory);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    shared->source = (dpari_pt_side *)shared->memory;
    shared->in = (const void **)(void *)(shared->source + peers);
    shared->out = (void **)(uintptr_t)(shared->in + most);
    shared->local = shared->shared = at = (int32_t *)(void *)(shared->out + most);
    n = search->group_end - search->group;
    group = dpari_po_sort(search->group, search->group + own_count, n);
    for (end = group + n; group < end; group = search->group) {
        const int64_t key = group->key, id = group->id;
        for (search->group = group; search->group < end; search->group++) {
            if (search->group->key != key || (key >> 31 == 2 && search->group->id != id)) {
                break;
            }
        }
        at = dpari_pt_write_ids(search, group, search->group, first, number, at);
        if (key <= INT32_MAX) {
            shared->shared = at;
        }
    }
    shared->end = at;
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_by_shared(dpari_points *plan,
                                                         const dpar_points_desc *desc,
                                                         dpari_pt_both *both, dpar_why *why)
{
    dpari_pt_search search;
    dpar_status status;
    dpari_zero(&search, sizeof search);
    search.plan = plan;
    search.both = both;
    status = dpari_pt_find_sharers(&search, desc, why);
    if (status == DPAR_OK) {
        status = dpari_pt_make_lists(&search, desc->own_count, why);
    }
    dpari_po_free(&search.pages);
    return dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
}
