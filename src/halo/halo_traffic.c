/* SPDX-License-Identifier: MIT-0 */
/* Lists what an exchange moves: the peers, the bytes and the method. Called by
 * dpar_halo_plan_report in dpar_debug.h and by the layers of dpar_spatial.h. */
#include "halo_traffic.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "../index/mesh.h"

/* Blocks between two ranks along a mesh axis, at most, in the mesh of field 0. */
static int32_t dpari_hx_hops(const dpar_halo_plan *x, int32_t a, int32_t b)
{
    const dpar_halo *h = x->field[0].halo;
    int32_t at[2][DPAR_MAX_AXES], most = 0, i, k, block[2];
    block[0] = a;
    block[1] = b;
    for (k = 0; k < 2; k++) {
        for (i = 0; h->owner && i < h->grid.mesh.size; i++) {
            if (h->owner[i] == (k ? b : a)) {
                block[k] = h->grid.mesh.first_rank + i;
            }
        }
        if (!dpar_mesh_coords(&h->grid.mesh, block[k], at[k])) {
            return 0;
        }
    }
    for (i = 0; i < h->grid.mesh.axes; i++) {
        const dpar_placement *p = &h->grid.axis[i];
        const int32_t size = h->grid.mesh.axis[i].size;
        int32_t n = at[0][i] > at[1][i] ? at[0][i] - at[1][i] : at[1][i] - at[0][i];
        if (p->kind == DPAR_PLACEMENT_SHARD && (h->periodic >> p->dim & 1u) && size - n < n) {
            n = size - n;
        }
        most = n > most ? n : most;
    }
    return most;
}

DPARI_API DPARI_COLD int dpari_hx_traffic_of(const dpar_halo_plan *x, int32_t k,
                                             dpari_hx_traffic *t)
{
    int32_t peer = k, s;
    int64_t i;
    if (!x || !t || k < 0 || k > x->peers) {
        return 0;
    }
    dpari_zero(t, sizeof *t);
    peer = k == x->peers ? -1 : k;
    t->peer = peer < 0 ? x->rank : x->peer[peer].rank;
    t->hops = dpari_hx_hops(x, x->rank, t->peer);
    t->way = peer >= 0 && x->peer[peer].world < 0 && !x->peer[peer].reached ? DPAR_HALO_MESSAGES
                                                                            : DPAR_HALO_PACKED;
    for (s = 0; s < x->forward; s++) {
        const dpari_hx_step *p = &x->step[s];
        const int64_t first = peer < 0 ? p->r : p->s, n = peer < 0 ? p->self : p->s_items;
        for (i = first; i < first + n; i++) {
            const dpari_hx_item *it = &x->item[i];
            const int32_t type = x->field[it->field].type, width = dpar_type_bytes(type);
            const int64_t bytes =
                it->elements * dpar_type_bytes(dpari_hx_wire(&x->field[it->field]));
            if (it->peer != peer) {
                continue;
            }
            t->pieces++;
            t->bytes += bytes;
            t->direct += it->packs ? 0 : bytes;
            t->runs += it->elements * width /
                       dpari_hx_in_a_row(it->extent, peer < 0 ? it->other_step : it->own_step,
                                         it->dims, type);
        }
    }
    if (t->direct > 0) {
        t->way = DPAR_HALO_DIRECT;
    }
    return peer >= 0 || t->pieces > 0;
}
