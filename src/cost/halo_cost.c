/* SPDX-License-Identifier: MIT-0 */
/* Predicts a halo exchange from the sides of a block: its bytes, its contiguous runs, and whether
 * the neighbour is on the same node. The best grid is found by trying all of them. */
#include "halo_cost.h"

#include "../base/arith.h"
#include "../index/inner.h"

DPAR_API DPARI_COLD void dpar_halo_rates_init(dpar_halo_rates *rates)
{
    rates->copy_Bps = 20e9;
    rates->run_s = 3e-9;
    rates->peer_s = 0.75e-6;
    rates->message_s = 2e-6;
    rates->nic_Bps = 25e9;
    rates->cache_bytes = rates->far_s = 0.0;
}

static DPARI_COLD dpar_status dpari_halo_job_check(const dpar_halo_cost_desc *j,
                                                   const dpar_halo_rates *r,
                                                   const dpar_halo_cost *grid, dpar_why *why)
{
    int32_t d;
    int64_t cells = 1;
    if (!j || !grid) {
        return dpari_wrong(why, "job or grid is NULL");
    }
    if (j->ranks < 1 || j->dims < 1 || j->dims > DPAR_MAX_DIMS || j->per_node < 0 || j->bytes < 1 ||
        j->contiguous_bytes < 0 || j->contiguous_bytes > j->bytes) {
        return dpari_wrong(
            why,
            "%d ranks, %d a node, %d dims, %ld bytes a cell: ranks and bytes are positive, "
            "dims 1 to 6",
            j->ranks, j->per_node, j->dims, j->bytes);
    }
    if (dpari_stencil_axes(j->shape, 1) == 0) {
        return dpari_wrong(why, "shape %d: there are stars, edges and boxes", j->shape);
    }
    for (d = 0; d < j->dims; d++) {
        if (j->cells[d] < 1 || j->width[d] < 0 || j->width[d] > INT64_C(1) << 40) {
            return dpari_wrong(why, "dim %d has %ld cells and a halo of %ld", d, j->cells[d],
                               j->width[d]);
        }
        if (j->cells[d] > INT64_C(1) << 60 ||
            !dpari_mul(cells, j->cells[d] + 2 * j->width[d], &cells) ||
            cells > INT64_MAX / 4 / j->bytes) {
            return dpari_say(DPAR_E_RANGE, why, "the grid has more than 2^61 bytes");
        }
    }
    if (!(r->copy_Bps > 0) || !(r->run_s >= 0) || !(r->peer_s >= 0) || !(r->message_s >= 0) ||
        !(r->nic_Bps >= 0) || !(r->cache_bytes >= 0) || !(r->far_s >= 0) ||
        !dpari_finite(r->cache_bytes) || !dpari_finite(r->far_s) || !dpari_finite(r->copy_Bps) ||
        !dpari_finite(r->run_s) || !dpari_finite(r->peer_s) || !dpari_finite(r->message_s) ||
        !dpari_finite(r->nic_Bps)) {
        return dpari_wrong(why, "a rate is negative, infinite or not a number");
    }
    return DPAR_OK;
}

enum { DPARI_HALO_LONG = 64 }; /* bytes of a run from which a peer on the node reads it in place */

/* ---- one rank ---------------------------------------------------------------------------------
 */

typedef struct dpari_halo_sum {
    double copy_s;
    int64_t bytes, away; /* received; of them from other nodes */
    int32_t peers, messages;
} dpari_halo_sum;

/* Returns the rank of a neighbour, or -1 beyond an open end. */
static int32_t dpari_halo_cost_peer(const dpar_halo_cost_desc *j, const dpar_halo_cost *g,
                                    const int32_t *coord, const int32_t *side)
{
    int32_t d, rank = 0;
    for (d = 0; d < j->dims; d++) {
        int32_t at = coord[d] + side[d];
        if ((at < 0 || at >= g->parts[d]) && (j->periodic >> d & 1u) == 0) {
            return -1;
        }
        rank += (at + g->parts[d]) % g->parts[d] * g->stride[d];
    }
    return rank;
}

/* Computes the bytes of the halo on one side and the contiguous runs that it consists of. */
static void dpari_halo_cost_piece(const dpar_halo_cost_desc *j, const dpar_halo_cost *g,
                                  const int32_t *side, int64_t *bytes, int64_t *runs)
{
    int32_t d, whole = 1; /* the dims after this one are held in one piece */
    *bytes = j->bytes;
    *runs = j->contiguous_bytes > 0 ? j->bytes / j->contiguous_bytes : 1;
    for (d = j->dims - 1; d >= 0; d--) {
        int64_t n = side[d] != 0 ? j->width[d] : dpari_ceil_div(j->cells[d], g->parts[d]);
        *bytes *= n;
        *runs *= whole ? 1 : n;
        whole = whole && j->width[d] == 0;
    }
}

/* Returns the seconds of a run, which depend on whether the block with its halo stays in the cache.
 */
static double dpari_halo_cost_run(const dpar_halo_cost_desc *j, const dpar_halo_rates *r,
                                  const dpar_halo_cost *g)
{
    double block = (double)j->bytes;
    int32_t d;
    for (d = 0; d < j->dims; d++) {
        block *= (double)(dpari_ceil_div(j->cells[d], g->parts[d]) + 2 * j->width[d]);
    }
    return r->cache_bytes > 0 && block > r->cache_bytes ? r->far_s : r->run_s;
}

static void dpari_halo_cost_side(const dpar_halo_cost_desc *j, const dpar_halo_rates *r,
                                 const dpar_halo_cost *g, int32_t rank, const int32_t *coord,
                                 const int32_t *side, dpari_halo_sum *sum)
{
    int64_t bytes, runs;
    int32_t copies;
    const int32_t node = j->per_node > 0 ? j->per_node : j->ranks;
    const int32_t peer = dpari_halo_cost_peer(j, g, coord, side);
    dpari_halo_cost_piece(j, g, side, &bytes, &runs);
    if (peer < 0 || bytes == 0) {
        return;
    }
    sum->bytes += bytes;
    copies = peer != rank && (peer / node != rank / node || bytes / runs < DPARI_HALO_LONG) ? 2 : 1;
    sum->copy_s +=
        copies * ((double)bytes / r->copy_Bps + (double)runs * dpari_halo_cost_run(j, r, g));
    if (peer / node != rank / node) {
        sum->away += bytes;
        sum->messages++;
    } else if (peer != rank) {
        sum->peers++;
    }
}

/* Sums all sides of a rank. A peer on several sides is counted once for each. */
static void dpari_halo_cost_rank(const dpar_halo_cost_desc *j, const dpar_halo_rates *r,
                                 const dpar_halo_cost *g, int32_t rank, dpari_halo_sum *sum)
{
    int32_t d, coord[DPAR_MAX_DIMS], side[DPAR_MAX_DIMS];
    dpari_zero(sum, sizeof *sum);
    for (d = 0; d < j->dims; d++) {
        coord[d] = rank / g->stride[d] % g->parts[d];
        side[d] = -1;
    }
    for (;;) {
        int32_t sides = 0;
        for (d = 0; d < j->dims; d++) {
            sides += side[d] != 0;
        }
        if (sides > 0 && sides <= dpari_stencil_axes(j->shape, j->dims)) {
            dpari_halo_cost_side(j, r, g, rank, coord, side, sum);
        }
        for (d = j->dims - 1; d >= 0 && side[d] == 1; d--) {
            side[d] = -1;
        }
        if (d < 0) {
            return;
        }
        side[d]++;
    }
}

/* Enters the ranks [first, last) of a node into the figures of the grid. */
static DPARI_COLD void dpari_halo_cost_node(const dpar_halo_cost_desc *j, const dpar_halo_rates *r,
                                            dpar_halo_cost *g, int32_t first, int32_t last)
{
    int64_t away = 0;
    double network = 0;
    int32_t k;
    for (k = first; k < last; k++) {
        dpari_halo_sum sum;
        dpari_halo_cost_rank(j, r, g, k, &sum);
        away += sum.away;
        network = dpari_mostf(network, sum.messages * r->message_s);
        g->copy_s = dpari_mostf(g->copy_s, sum.copy_s);
        g->seconds = dpari_mostf(g->seconds, sum.copy_s + sum.peers * r->peer_s);
        g->bytes = dpari_most(g->bytes, sum.bytes);
        g->peers = (int32_t)dpari_most(g->peers, sum.peers + sum.messages);
    }
    network += away > 0 && r->nic_Bps > 0 ? (double)away / r->nic_Bps : 0;
    g->network_s = dpari_mostf(g->network_s, network);
    g->network_bytes = dpari_most(g->network_bytes, away);
}

static void dpari_halo_cost_grid(const dpar_halo_cost_desc *j, const dpar_halo_rates *r,
                                 dpar_halo_cost *g)
{
    const int32_t node = j->per_node > 0 && j->per_node < j->ranks ? j->per_node : j->ranks;
    int32_t d, middle = 0;
    for (d = 0; d < j->dims; d++) { /* a rank with neighbours on all sides, if there is one */
        middle += g->parts[d] / 2 * g->stride[d];
    }
    middle = middle / node * node;
    g->seconds = g->copy_s = g->network_s = 0;
    g->bytes = g->network_bytes = 0;
    g->peers = 0;
    dpari_halo_cost_node(j, r, g, 0, node);
    if (middle > 0) {
        dpari_halo_cost_node(j, r, g, middle,
                             (int32_t)dpari_least((int64_t)middle + node, j->ranks));
    }
    g->seconds = dpari_mostf(g->seconds, g->copy_s + g->network_s);
}

/* ---- grids ------------------------------------------------------------------------------------
 */

static dpar_status dpari_halo_grid_check(const dpar_halo_cost_desc *j, const dpar_halo_cost *g,
                                         dpar_why *why)
{
    int32_t d, k, ranks = 1, used = 0;
    for (d = 0; d < j->dims; d++) {
        if (g->parts[d] < 1 || g->parts[d] > j->cells[d] || g->parts[d] > j->ranks / ranks) {
            return dpari_wrong(why, "dim %d: %d parts of %ld cells, %d ranks in all", d,
                               g->parts[d], j->cells[d], j->ranks);
        }
        ranks *= g->parts[d];
    }
    for (ranks = 1; used < j->dims; used++) { /* the axes, from the fastest on */
        for (d = k = 0; k < j->dims; k++) {
            d = g->stride[k] == ranks && (g->parts[k] > 1) ? k : d;
        }
        if (g->parts[d] == 1 || g->stride[d] != ranks) {
            break;
        }
        ranks *= g->parts[d];
    }
    for (d = 0, k = 1; d < j->dims; d++) {
        k *= g->parts[d];
        if (g->stride[d] < 1) {
            return dpari_wrong(why, "dim %d: a stride of %d", d, g->stride[d]);
        }
    }
    if (k != j->ranks || ranks != j->ranks) {
        return dpari_wrong(why, "the parts make %d ranks, not %d, or the strides not all", k,
                           j->ranks);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_halo_cost_predict(const dpar_halo_cost_desc *job,
                                            const dpar_halo_rates *rates, dpar_halo_cost *grid,
                                            dpar_why *why)
{
    dpar_halo_rates usual;
    dpar_status s;
    dpar_halo_rates_init(&usual);
    s = dpari_halo_job_check(job, rates ? rates : &usual, grid, why);
    s = s == DPAR_OK ? dpari_halo_grid_check(job, grid, why) : s;
    if (s == DPAR_OK) {
        dpari_halo_cost_grid(job, rates ? rates : &usual, grid);
    }
    return s;
}

/* Advances to the next permutation of n numbers in lexicographic order. Returns 1, or 0 after the
 * last.
 */
static int dpari_halo_next_order(int32_t *order, int32_t n)
{
    int32_t i = n - 2, k = n - 1, t;
    while (i >= 0 && order[i] > order[i + 1]) {
        i--;
    }
    if (i < 0) {
        return 0;
    }
    while (order[k] < order[i]) {
        k--;
    }
    t = order[i], order[i] = order[k], order[k] = t;
    for (i++, k = n - 1; i < k; i++, k--) {
        t = order[i], order[i] = order[k], order[k] = t;
    }
    return 1;
}

/* Tries the orders of the axes for these parts. `best` has seconds < 0 while there is none. */
static void dpari_halo_best_order(const dpar_halo_cost_desc *j, const dpar_halo_rates *r,
                                  const int32_t *parts, dpar_halo_cost *best)
{
    int32_t axis[DPAR_MAX_DIMS], order[DPAR_MAX_DIMS], n = 0, d, k;
    int32_t found = 0; /* of these parts */
    const int one_node = j->per_node == 0 || j->per_node >= j->ranks;
    dpar_halo_cost g;
    dpari_zero(&g, sizeof g);
    for (d = 0; d < j->dims; d++) {
        g.parts[d] = parts[d];
        g.stride[d] = 1;
        if (parts[d] > 1) { /* the last is the fastest: first in the order */
            axis[n] = d;
            order[n] = n;
            n++;
        }
    }
    do {
        int32_t stride = 1;
        for (k = 0; k < n; k++) {
            d = axis[n - 1 - order[k]];
            g.stride[d] = stride;
            stride *= parts[d];
        }
        dpari_halo_cost_grid(j, r, &g);
        if (best->seconds < 0 || g.seconds < best->seconds ||
            (g.seconds <= best->seconds && !found)) {
            *best = g;
        }
        found = 1;
    } while (!one_node && dpari_halo_next_order(order, n));
}

DPAR_API DPARI_COLD dpar_status dpar_halo_cost_choose(const dpar_halo_cost_desc *job,
                                                      const dpar_halo_rates *rates,
                                                      dpar_halo_cost *grid, dpar_why *why)
{
    dpar_halo_rates usual;
    const dpar_halo_rates *r = rates ? rates : &usual;
    int32_t parts[DPAR_MAX_DIMS] = {0}, d;
    dpar_halo_cost best;
    dpar_status s;
    dpar_halo_rates_init(&usual);
    s = dpari_halo_job_check(job, r, grid, why);
    if (s != DPAR_OK) {
        return s;
    }
    dpari_zero(&best, sizeof best);
    best.seconds = -1;
    while (dpari_cart_next_parts(job->ranks, job->dims, parts) == DPAR_OK) {
        int fits = 1;
        for (d = 0; d < job->dims; d++) {
            fits = fits && parts[d] <= job->cells[d];
        }
        if (fits) {
            dpari_halo_best_order(job, r, parts, &best);
        }
    }
    if (best.seconds < 0) {
        return dpari_say(DPAR_E_NONE, why, "%d ranks: no grid gives each a cell", job->ranks);
    }
    *grid = best;
    return DPAR_OK;
}

DPAR_API DPARI_COLD double dpar_neighbours_cost(const dpar_neighbour *neighbour, int32_t n,
                                                int32_t per_node, const dpar_halo_rates *rates)
{
    dpar_halo_rates usual;
    double copies = 0.0, peers = 0.0, messages = 0.0, away = 0.0;
    dpar_halo_rates_init(&usual);
    rates = rates ? rates : &usual;
    for (; n > 0; n--, neighbour++) {
        const double bytes = (double)neighbour->bytes;
        copies +=
            neighbour->copies * bytes / rates->copy_Bps + (double)neighbour->runs * rates->run_s;
        if (neighbour->location == 1) {
            away += per_node * bytes;
            messages += rates->message_s;
        } else if (neighbour->location == 0) {
            peers += rates->peer_s;
        }
    }
    messages += rates->nic_Bps > 0 ? away / rates->nic_Bps : 0.0;
    return copies + dpari_mostf(peers, messages);
}
