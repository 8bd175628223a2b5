/* SPDX-License-Identifier: MIT-0 */
/* Sorts, numbers items from rank to rank, and allocates temporary pages, for plans, partitions and
 * movements (points_owner.c, points_part.c, points_move.c). */
#include "points_order.h"

#include "../comm/agree.h"
#include "../comm/os.h"
#include "../comm/shm.h"

/* Returns a byte of the key, or with by_id of the id. The sign bit is inverted, so that unsigned
 * bytes have the order of signed numbers. */
DPARI_FN size_t dpari_po_digit(const dpari_po_item *item, int by_id, int32_t shift)
{
    const uint64_t v = (uint64_t)(by_id ? item->id : item->key) ^ UINT64_C(1) << 63;
    return (size_t)(v >> shift & 255u);
}

/* Copies the items to `out`, sorted by one byte. Returns 0 if all have the same byte, and then
 * copies nothing. */
static int dpari_po_deal(const dpari_po_item *item, dpari_po_item *out, int64_t n, int by_id,
                         int32_t shift)
{
    int64_t next[256], i, all = 0;
    int32_t k;
    dpari_zero(next, sizeof next);
    for (i = 0; i < n; i++) {
        next[dpari_po_digit(&item[i], by_id, shift)]++;
    }
    if (next[dpari_po_digit(item, by_id, shift)] == n) {
        return 0;
    }
    for (k = 0; k < 256; k++) {
        const int64_t count = next[k];
        next[k] = all;
        all += count;
    }
    for (i = 0; i < n; i++) {
        out[next[dpari_po_digit(&item[i], by_id, shift)]++] = item[i];
    }
    return 1;
}

/* True if items are sorted already: by id, or by key and id. */
static int dpari_po_is_sorted(const dpari_po_item *item, int64_t n, int by_id)
{
    int64_t i;
    for (i = 1; i < n; i++) {
        if (by_id ? item[i - 1].id > item[i].id
                  : dpari_po_compare(&item[i - 1], item[i].key, item[i].id) > 0) {
            return 0;
        }
    }
    return 1;
}

DPARI_INTERNAL dpari_po_item *dpari_po_sort(dpari_po_item *item, dpari_po_item *spare, int64_t n)
{
    int32_t by_id, shift;
    /* Sorts by id, then by key, from the lowest byte to the highest. Each pass keeps the order of
     * the passes before it among equal bytes. */
    for (by_id = 1; by_id >= 0; by_id--) {
        if (dpari_po_is_sorted(item, n, by_id)) {
            continue;
        }
        for (shift = 0; shift < 64; shift += 8) {
            if (dpari_po_deal(item, spare, n, by_id, shift)) {
                dpari_po_item *const swapped = item;
                item = spare;
                spare = swapped;
            }
        }
    }
    return item;
}

DPARI_INTERNAL DPARI_COLD void *dpari_po_take(dpari_po_pages *pages, int64_t n, int64_t bytes,
                                              dpar_status *status, dpar_why *why)
{
    int64_t all = 0;
    void *at = NULL;
    if (*status != DPAR_OK) {
        return NULL;
    }
    if (dpari_mul(n, bytes, &all) && pages->used < DPARI_PO_PAGES) {
        at = dpari_os_pages(all + 8);
    }
    if (!at) {
        *status =
            dpari_say(DPAR_E_MEMORY, why,
                      "no memory for a temporary array of %ld elements of %ld bytes", n, bytes);
        return NULL;
    }
    pages->at[pages->used] = at;
    pages->bytes[pages->used++] = all + 8;
    return at;
}

DPARI_INTERNAL DPARI_COLD void dpari_po_free(dpari_po_pages *pages)
{
    while (pages->used > 0) {
        pages->used--;
        dpari_os_unmap(pages->at[pages->used], pages->bytes[pages->used]);
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_po_host(const dpar_comm *comm, dpar_why *why)
{
    if (!comm->mem || comm->node || dpari_world_of(comm)) {
        return DPAR_OK;
    }
    return dpari_wrong(why,
                       "points are in the host's memory, but the communicator sends a device's");
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_po_explain(const dpar_comm *comm, dpar_status status,
                                                       dpar_why *why)
{
    return status == DPAR_OK ? status : dpari_repeat(status, why, comm->why.text);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_po_first(dpar_comm *comm, int64_t n, int64_t *first,
                                                     dpar_why *why)
{
    dpari_po_pages pages;
    dpar_status status = DPAR_OK;
    int64_t *all;
    int32_t r;
    dpari_zero(&pages, sizeof pages);
    all = (int64_t *)dpari_po_take(&pages, comm->size, 8, &status, why);
    status = dpari_agree(comm, status, why);
    if (status == DPAR_OK) {
        status = dpari_po_explain(comm, dpar_all_gather(comm, &n, all, 1, DPAR_I64, NULL), why);
    }
    *first = 0;
    for (r = 0; r < comm->rank && status == DPAR_OK; r++) {
        *first += all[r];
    }
    dpari_po_free(&pages);
    return status;
}
