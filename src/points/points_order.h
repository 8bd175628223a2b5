/* SPDX-License-Identifier: MIT-0 */
/* points_order - what partitions and movements share: sorting, the curve, numbers from rank to
 * rank, pages for a while. Private: it stands on comm alone. */
#ifndef DPARI_POINTS_POINTS_ORDER_H
#define DPARI_POINTS_POINTS_ORDER_H

#include "../base/arith.h"
#include "../comm/comm.h"

/* What is sorted: by key, then by id. `at` says where it was. */
typedef struct dpari_po_item {
    int64_t key, id, at;
} dpari_po_item;

/* Compares an item with a key and an id: -1 if it is before them, 0 if equal, 1 if behind. */
DPARI_FN int32_t dpari_po_compare(const dpari_po_item *a, int64_t key, int64_t id)
{
    return a->key != key ? (a->key < key ? -1 : 1) : a->id != id ? (a->id < id ? -1 : 1) : 0;
}
/* Sorts n items, equal ones as they are; spare: room for n. Returns where they are then: one of
 * both. O(n): a pass for each byte
 * in which they differ. */
DPARI_INTERNAL dpari_po_item *dpari_po_sort(dpari_po_item *item, dpari_po_item *spare, int64_t n);

/* Pages that are needed for a while. Zero it; dpari_po_free gives all of them back. */
enum { DPARI_PO_PAGES = 8 };
typedef struct dpari_po_pages {
    void *at[DPARI_PO_PAGES];
    int64_t bytes[DPARI_PO_PAGES];
    int32_t used;
} dpari_po_pages;
/* n things of so many bytes, zeroed. Nothing after a failure: *st, with a message. */
DPARI_INTERNAL void *dpari_po_take(dpari_po_pages *pages, int64_t n, int64_t bytes,
                                   dpar_status *status, dpar_why *why);
DPARI_INTERNAL void dpari_po_free(dpari_po_pages *pages);

/* Returns the position of a cell on Hilbert's curve, through a square of 2^31 cells a side or a
 * cube of 2^21. Returns -1 if dims is not 2 or 3, or the cell is outside. Consecutive cells of the
 * curve share a side. */
DPARI_INTERNAL int64_t dpari_points_curve(int32_t dims, const uint32_t *cell);

/* E_ARG: the communicator reaches a device's memory alone. */
DPARI_INTERNAL dpar_status dpari_po_host(const dpar_comm *comm, dpar_why *why);
/* st, with the message of c where it is an error. */
DPARI_INTERNAL dpar_status dpari_po_explain(const dpar_comm *comm, dpar_status status,
                                            dpar_why *why);
/* How many come before this rank's n, numbered from rank to rank. COLLECTIVE. */
DPARI_INTERNAL dpar_status dpari_po_first(dpar_comm *comm, int64_t n, int64_t *first,
                                          dpar_why *why);

#endif
