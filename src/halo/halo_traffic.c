/* SPDX-License-Identifier: MIT-0 */
/* Lists what an exchange moves: the peers, the bytes and the method. Called by
 * dpar_halo_plan_report in dpar_debug.h and by the layers of dpar_spatial.h. */
#include "halo_traffic.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "../index/mesh.h"

/* Returns the distance of the blocks of two ranks in the mesh of field 0, in blocks: the largest
 * along any mesh axis, or 0 if a rank has no block. In periodic dims the shorter direction counts.
 */
static int32_t dpari_hx_hops(const dpar_halo_plan *plan, int32_t a, int32_t b)
{
    const dpar_halo *halo = plan->field[0].halo;
    int32_t at[2][DPAR_MAX_AXES], rank[2], block[2];
    int32_t most = 0, i, k;
    rank[0] = a;
    rank[1] = b;
    for (k = 0; k < 2; k++) {
        block[k] = rank[k];
        for (i = 0; halo->owner && i < halo->grid.mesh.size; i++) {
            if (halo->owner[i] == rank[k]) {
                block[k] = halo->grid.mesh.first_rank + i;
            }
        }
        if (!dpar_mesh_coords(&halo->grid.mesh, block[k], at[k])) {
            return 0;
        }
    }
    for (i = 0; i < halo->grid.mesh.axes; i++) {
        const dpar_placement *placement = &halo->grid.axis[i];
        const int32_t size = halo->grid.mesh.axis[i].size;
        int32_t n = at[0][i] > at[1][i] ? at[0][i] - at[1][i] : at[1][i] - at[0][i];
        if (placement->kind == DPAR_PLACEMENT_SHARD && (halo->periodic >> placement->dim & 1u) &&
            size - n < n) {
            n = size - n;
        }
        most = n > most ? n : most;
    }
    return most;
}

DPARI_API DPARI_COLD int dpari_hx_traffic_of(const dpar_halo_plan *plan, int32_t k,
                                             dpari_hx_traffic *traffic)
{
    int32_t peer = k, s;
    int64_t i;
    if (!plan || !traffic || k < 0 || k > plan->x.peers) {
        return 0;
    }
    dpari_zero(traffic, sizeof *traffic);
    peer = k == plan->x.peers ? -1 : k;
    traffic->peer = peer < 0 ? plan->comm->rank : plan->x.peer[peer].rank;
    traffic->hops = dpari_hx_hops(plan, plan->comm->rank, traffic->peer);
    traffic->way =
        peer >= 0 && dpari_exchange_sends(&plan->x, peer) ? DPAR_HALO_MESSAGES : DPAR_HALO_PACKED;
    for (s = 0; s < plan->forward; s++) {
        const dpari_hx_step *step = &plan->step[s];
        const int64_t first = peer < 0 ? step->r : step->s;
        const int64_t n = peer < 0 ? step->self : step->s_items;
        for (i = first; i < first + n; i++) {
            const dpari_hx_item *item = &plan->item[i];
            const int32_t type = plan->field[item->field].type, width = dpar_type_bytes(type);
            const int64_t bytes =
                item->elements * dpar_type_bytes(dpari_hx_wire(&plan->field[item->field]));
            if (item->peer != peer) {
                continue;
            }
            traffic->pieces++;
            traffic->bytes += bytes;
            traffic->direct += item->packs ? 0 : bytes;
            traffic->runs +=
                item->elements * width /
                dpari_hx_in_a_row(item->extent, peer < 0 ? item->other_step : item->own_step,
                                  item->dims, type);
        }
    }
    if (traffic->direct > 0) {
        traffic->way = DPAR_HALO_DIRECT;
    }
    return peer >= 0 || traffic->pieces > 0;
}
