/* SPDX-License-Identifier: MIT-0 */
/* Lists the boxes of plans in which ranks combine shared points.
 *
 * The points of a block are divided into regions: in each dim the lowest points, if a neighbour
 * holds them as well, the highest ones in the same case, and those between. A region that is at an
 * end in k dims is held by 2^k blocks. Each of these blocks packs its values for all others. It
 * then combines all values in the order of the blocks in space, so that all get the same bits.
 *
 * The first and the second block in this order add the values of the others to their own, because
 * a + b and b + a have the same bits. Any other block also packs its values for itself, replaces
 * its points by the values of the first block, and adds the packed values when it is its turn.
 * Across a periodic dim with one part, the next block is that of the same rank, and its values are
 * packed as well.
 *
 * A candidate is a region of the receiver and the place of the giver in the order of blocks. Giver
 * and receiver walk the same candidates, so that both list the boxes between them in the same
 * order. */
#include "halo_share.h"

/* Finds the neighbour of this rank on one side of dim d, and skips parts without cells. */
static DPARI_COLD void dpari_hx_find_neighbour(dpari_hx_shared *share, const dpar_halo *halo,
                                               int32_t d, int32_t side)
{
    const dpar_mesh_axis *axis = &halo->grid.mesh.axis[d];
    const int32_t at = share->rank / axis->stride % axis->size;
    dpar_box own;
    int32_t i;
    for (i = 1; i <= axis->size; i++) {
        int32_t part = side ? at + i : at - i;
        if (part < 0 || part >= axis->size) {
            if (!(halo->periodic >> d & 1u)) {
                return;
            }
            part += side ? -axis->size : axis->size;
        }
        share->further[d][side] = (part - at) * axis->stride;
        if (dpar_halo_owned(halo, share->rank + share->further[d][side], &own)) {
            share->shared[d][side] = 1;
            return;
        }
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_hx_share_begin(dpari_hx_shared *share,
                                                           const dpar_halo *halo, int32_t rank,
                                                           int32_t direction)
{
    dpar_box own;
    int32_t d;
    dpari_zero(share, sizeof *share);
    share->dims = halo->grid.dims;
    share->rank = rank;
    share->gives = direction == DPAR_TRANSFER_RECV;
    if (!dpar_halo_owned(halo, rank, &own)) {
        return DPAR_DONE;
    }
    for (d = 0; d < share->dims; d++) {
        if (halo->points[d] != DPAR_HALO_AT_CELLS) {
            dpari_hx_find_neighbour(share, halo, d, 0);
            dpari_hx_find_neighbour(share, halo, d, 1);
        }
        share->points[d] = own.hi[d] - own.lo[d] + share->shared[d][1];
    }
    return DPAR_OK;
}

/* Describes the box that the block at place `giver` gives for a region of the receiver. `region`
 * has a digit in base 3 per dim: 0 for the lowest points, 1 for those between, 2 for the highest.
 * `giver` has a digit in base 2 per dim: 0 if the giver is the lower of two blocks, 1 if it is the
 * upper one. Returns 1, or 0 if there is no such box. */
static DPARI_COLD int dpari_hx_share_box(const dpari_hx_shared *share, int32_t region,
                                         int32_t giver, dpar_transfer *transfer)
{
    int32_t weight = 1, taker = 0, order = 0; /* places of receiver and giver among the holders */
    int32_t d;
    for (d = share->dims - 1; d >= 0; d--, region /= 3, giver /= 2) {
        const int32_t upper = giver % 2, below = region % 3 == 0;
        int32_t side = !below;
        if (region % 3 == 1) {
            transfer->mine[d] = share->shared[d][0];
            transfer->extent[d] = share->points[d] - share->shared[d][0] - share->shared[d][1];
            if (upper || transfer->extent[d] <= 0) {
                return 0;
            }
            continue;
        }
        if (upper != below && share->gives) { /* `rank` is the giver, on the other side */
            side = below;
        }
        if (!share->shared[d][side]) {
            return 0;
        }
        transfer->mine[d] = side ? share->points[d] - 1 : 0;
        transfer->extent[d] = 1;
        transfer->peer += upper != below ? share->further[d][side] : 0;
        order += weight * upper;
        taker += weight * below;
        weight *= 2;
    }
    transfer->op = order == 0 && taker > 1 ? DPAR_COPY : DPAR_SUM;
    return order != taker || taker > 1;
}

DPARI_INTERNAL DPARI_COLD int dpari_hx_share_next(dpari_hx_shared *share, dpar_transfer *transfer)
{
    int32_t d, regions = 1;
    for (d = 0; d < share->dims; d++) {
        regions *= 3;
    }
    while (share->next >> share->dims < regions) {
        const int32_t n = share->next++;
        dpari_zero(transfer, sizeof *transfer);
        transfer->dims = share->dims;
        transfer->peer = share->rank;
        if (dpari_hx_share_box(share, n >> share->dims, n % (1 << share->dims), transfer)) {
            return 1;
        }
    }
    return 0;
}
