/* SPDX-License-Identifier: MIT-0 */
/* points_order - sorts, numbers items from rank to rank, and allocates temporary memory, for plans,
 * partitions and movements. It also declares the curve of points_part.c, for tests. Private. It
 * uses comm, but no plans. */
#ifndef DPARI_POINTS_POINTS_ORDER_H
#define DPARI_POINTS_POINTS_ORDER_H

#include "../base/arith.h"
#include "../comm/comm.h"

/* An item to be sorted by key, then by id. `at` is its index before the sort. */
typedef struct dpari_po_item {
    int64_t key, id, at;
} dpari_po_item;

/* Compares an item with a key and an id. Returns -1 if it is before them, 0 if equal, 1 if after.
 */
DPARI_FN int32_t dpari_po_compare(const dpari_po_item *a, int64_t key, int64_t id)
{
    if (a->key != key) {
        return a->key < key ? -1 : 1;
    }
    if (a->id != id) {
        return a->id < id ? -1 : 1;
    }
    return 0;
}
/* Sorts n items. Equal items keep their order. Returns the sorted items, which are in `item` or in
 * `spare` (memory for n items). Costs O(n): one pass for each byte in which items differ. */
DPARI_INTERNAL dpari_po_item *dpari_po_sort(dpari_po_item *item, dpari_po_item *spare, int64_t n);

/* Temporary memory. Zero it before the first dpari_po_take. dpari_po_free frees all of it. */
enum { DPARI_PO_PAGES = 8 }; /* the most calls of dpari_po_take */
typedef struct dpari_po_pages {
    void *at[DPARI_PO_PAGES];
    int64_t bytes[DPARI_PO_PAGES];
    int32_t used;
} dpari_po_pages;
/* Allocates n * bytes zeroed bytes. Returns NULL if that fails, which sets *st and a message, or if
 * *st is an error already, so that callers check the status once, after several calls. */
DPARI_INTERNAL void *dpari_po_take(dpari_po_pages *pages, int64_t n, int64_t bytes,
                                   dpar_status *status, dpar_why *why);
DPARI_INTERNAL void dpari_po_free(dpari_po_pages *pages);

/* Returns the position of a cell on Hilbert's curve through a square with 2^31 cells per side, or
 * through a cube with 2^21. Returns -1 if dims is not 2 or 3, or if the cell is outside.
 * Consecutive cells of the curve share a side. */
DPARI_INTERNAL int64_t dpari_points_curve(int32_t dims, const uint32_t *cell);

/* Checks that the communicator can send memory of the host. Returns DPAR_E_ARG if its memory is a
 * device's. */
DPARI_INTERNAL dpar_status dpari_po_host(const dpar_comm *comm, dpar_why *why);
/* Returns status. If it is an error, *why receives the message of comm. */
DPARI_INTERNAL dpar_status dpari_po_explain(const dpar_comm *comm, dpar_status status,
                                            dpar_why *why);
/* Sets *first to the sum of n over all lower ranks, which is the number of this rank's first item
 * if items are numbered from rank to rank. Collective. */
DPARI_INTERNAL dpar_status dpari_po_first(dpar_comm *comm, int64_t n, int64_t *first,
                                          dpar_why *why);

#endif
