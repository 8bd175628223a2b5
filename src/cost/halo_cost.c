/* SPDX-License-Identifier: MIT-0 */
/* Predicts the time of a halo exchange. For each side of a block it counts the bytes, the
 * contiguous runs of memory and whether the neighbour is on the same node, and prices them with the
 * rates of the machine. It counts only the ranks of the first node and of a node in the middle of
 * the grid, which represent the others, so that a prediction is fast on many ranks.
 *
 * dpar_halo_cost_choose prices every factorisation of the ranks with every order of the axes, and
 * takes the fastest. */
#include "halo_cost.h"

#include "../base/arith.h"
#include "../index/index_private.h"

DPAR_API DPARI_COLD void dpar_halo_rates_init(dpar_halo_rates *rates)
{
    rates->copy_Bps = 20e9;
    rates->run_s = 3e-9;
    rates->peer_s = 0.75e-6;
    rates->message_s = 2e-6;
    rates->nic_Bps = 25e9;
    rates->cache_bytes = rates->far_s = 0.0;
}

/* Returns `rates`, or the usual ones if it is NULL. */
static const dpar_halo_rates *dpari_halo_rates_or(const dpar_halo_rates *rates,
                                                  dpar_halo_rates *usual)
{
    dpar_halo_rates_init(usual);
    return rates != NULL ? rates : usual;
}

static DPARI_COLD dpar_status dpari_halo_job_check(const dpar_halo_cost_desc *job,
                                                   const dpar_halo_rates *rates,
                                                   const dpar_halo_cost *grid, dpar_why *why)
{
    const double rate[] = {rates->copy_Bps, rates->run_s,       rates->peer_s, rates->message_s,
                           rates->nic_Bps,  rates->cache_bytes, rates->far_s};
    int32_t d, fine = rates->copy_Bps > 0;
    int64_t cells = 1;
    if (!job || !grid) {
        return dpari_wrong(why, "dpar_halo_cost: job or grid is NULL");
    }
    if (job->ranks < 1 || job->dims < 1 || job->dims > DPAR_MAX_DIMS || job->per_node < 0 ||
        job->bytes < 1 || job->contiguous_bytes < 0 || job->contiguous_bytes > job->bytes) {
        return dpari_wrong(
            why,
            "ranks=%d, per_node=%d, dims=%d, bytes=%ld, contiguous_bytes=%ld: ranks and bytes must "
            "be at least 1, per_node at least 0, dims 1 to 6, contiguous_bytes 0 to bytes",
            job->ranks, job->per_node, job->dims, job->bytes, job->contiguous_bytes);
    }
    if (dpari_stencil_axes(job->shape, 1) == 0) {
        return dpari_wrong(why, "shape=%d must be DPAR_STENCIL_STAR, _EDGES or _BOX", job->shape);
    }
    for (d = 0; d < job->dims; d++) {
        if (job->cells[d] < 1 || job->width[d] < 0 || job->width[d] > INT64_C(1) << 40) {
            return dpari_wrong(why, "dim %d: cells=%ld must be at least 1, width=%ld 0 to 2^40", d,
                               job->cells[d], job->width[d]);
        }
        if (job->cells[d] > INT64_C(1) << 60 ||
            !dpari_mul(cells, job->cells[d] + 2 * job->width[d], &cells) ||
            cells > INT64_MAX / 4 / job->bytes) {
            return dpari_say(
                DPAR_E_RANGE, why,
                "dim %d of %ld cells with halos of %ld: the grid has more than 2^61 bytes", d,
                job->cells[d], job->width[d]);
        }
    }
    for (d = 0; d < 7; d++) {
        fine = fine && rate[d] >= 0 && dpari_finite(rate[d]);
    }
    if (!fine) {
        return dpari_wrong(why, "rates: each must be finite and at least 0, copy_Bps above 0");
    }
    return DPAR_OK;
}

/* The least bytes of a run that a peer on the same node reads in place. Shorter runs are packed,
 * which copies them twice. */
enum { DPARI_HALO_LONG = 64 };

/* ---- one rank -------------------------------------------------------------------------------- */

/* What one rank receives, and the time of its copies. */
typedef struct dpari_halo_sum {
    double copy_s;
    int64_t bytes;
    int64_t away;     /* the part of `bytes` that is received from other nodes */
    int32_t peers;    /* neighbours on the same node, the rank itself not counted */
    int32_t messages; /* neighbours on other nodes */
} dpari_halo_sum;

/* Returns the rank of the neighbour on a side, or -1 if the grid ends there. side[d] is -1, 0 or 1.
 */
static int32_t dpari_halo_cost_peer(const dpar_halo_cost_desc *job, const dpar_halo_cost *grid,
                                    const int32_t *coord, const int32_t *side)
{
    int32_t d, rank = 0;
    for (d = 0; d < job->dims; d++) {
        int32_t at = coord[d] + side[d];
        if ((at < 0 || at >= grid->parts[d]) && (job->periodic >> d & 1u) == 0) {
            return -1;
        }
        rank += (at + grid->parts[d]) % grid->parts[d] * grid->stride[d];
    }
    return rank;
}

/* Computes the bytes of the halo on one side and the contiguous runs that it consists of. A run
 * extends over the fastest dim that has a halo and all dims after it, because those have no ghost
 * cells between their elements. */
static void dpari_halo_cost_piece(const dpar_halo_cost_desc *job, const dpar_halo_cost *grid,
                                  const int32_t *side, int64_t *bytes, int64_t *runs)
{
    int32_t d;
    int32_t whole = 1; /* 1 while all dims after this one have no halo */
    *bytes = job->bytes;
    *runs = job->contiguous_bytes > 0 ? job->bytes / job->contiguous_bytes : 1;
    for (d = job->dims - 1; d >= 0; d--) {
        int64_t n = side[d] != 0 ? job->width[d] : dpari_ceil_div(job->cells[d], grid->parts[d]);
        *bytes *= n;
        *runs *= whole ? 1 : n;
        whole = whole && job->width[d] == 0;
    }
}

/* Returns the seconds of a run, which are more if the block and its halo exceed the cache. */
static double dpari_halo_cost_run(const dpar_halo_cost_desc *job, const dpar_halo_rates *rates,
                                  const dpar_halo_cost *grid)
{
    double block = (double)job->bytes;
    int32_t d;
    for (d = 0; d < job->dims; d++) {
        block *= (double)(dpari_ceil_div(job->cells[d], grid->parts[d]) + 2 * job->width[d]);
    }
    return rates->cache_bytes > 0 && block > rates->cache_bytes ? rates->far_s : rates->run_s;
}

/* Adds the halo that a rank receives on one side. */
static void dpari_halo_cost_side(const dpar_halo_cost_desc *job, const dpar_halo_rates *rates,
                                 const dpar_halo_cost *grid, int32_t rank, const int32_t *coord,
                                 const int32_t *side, dpari_halo_sum *sum)
{
    int64_t bytes, runs;
    int32_t copies;
    const int32_t node = job->per_node > 0 ? job->per_node : job->ranks;
    const int32_t peer = dpari_halo_cost_peer(job, grid, coord, side);
    dpari_halo_cost_piece(job, grid, side, &bytes, &runs);
    if (peer < 0 || bytes == 0) {
        return;
    }
    sum->bytes += bytes;
    copies = 1;
    if (peer != rank && (peer / node != rank / node || bytes / runs < DPARI_HALO_LONG)) {
        copies = 2; /* packed and unpacked */
    }
    sum->copy_s += copies * ((double)bytes / rates->copy_Bps +
                             (double)runs * dpari_halo_cost_run(job, rates, grid));
    if (peer / node != rank / node) {
        sum->away += bytes;
        sum->messages++;
    } else if (peer != rank) {
        sum->peers++;
    }
}

/* Sums all sides of a rank. A peer on several sides is counted once for each. */
static void dpari_halo_cost_rank(const dpar_halo_cost_desc *job, const dpar_halo_rates *rates,
                                 const dpar_halo_cost *grid, int32_t rank, dpari_halo_sum *sum)
{
    int32_t d, coord[DPAR_MAX_DIMS], side[DPAR_MAX_DIMS];
    dpari_zero(sum, sizeof *sum);
    for (d = 0; d < job->dims; d++) {
        coord[d] = rank / grid->stride[d] % grid->parts[d];
        side[d] = -1;
    }
    for (;;) {
        int32_t sides = 0;
        for (d = 0; d < job->dims; d++) {
            sides += side[d] != 0;
        }
        if (sides > 0 && sides <= dpari_stencil_axes(job->shape, job->dims)) {
            dpari_halo_cost_side(job, rates, grid, rank, coord, side, sum);
        }
        for (d = job->dims - 1; d >= 0 && side[d] == 1; d--) {
            side[d] = -1;
        }
        if (d < 0) {
            return;
        }
        side[d]++;
    }
}

/* Raises each figure of the grid to the maximum over the ranks [first, last) of one node. */
static DPARI_COLD void dpari_halo_cost_node(const dpar_halo_cost_desc *job,
                                            const dpar_halo_rates *rates, dpar_halo_cost *grid,
                                            int32_t first, int32_t last)
{
    int64_t away = 0;
    double network = 0;
    int32_t k;
    for (k = first; k < last; k++) {
        dpari_halo_sum sum;
        dpari_halo_cost_rank(job, rates, grid, k, &sum);
        away += sum.away;
        network = dpari_mostf(network, sum.messages * rates->message_s);
        grid->copy_s = dpari_mostf(grid->copy_s, sum.copy_s);
        grid->seconds = dpari_mostf(grid->seconds, sum.copy_s + sum.peers * rates->peer_s);
        grid->bytes = dpari_most(grid->bytes, sum.bytes);
        grid->peers = (int32_t)dpari_most(grid->peers, sum.peers + sum.messages);
    }
    if (away > 0 && rates->nic_Bps > 0) {
        network += (double)away / rates->nic_Bps;
    }
    grid->network_s = dpari_mostf(grid->network_s, network);
    grid->network_bytes = dpari_most(grid->network_bytes, away);
}

/* Predicts the figures of a grid from its first node and the node of a rank in its middle. */
static void dpari_halo_cost_grid(const dpar_halo_cost_desc *job, const dpar_halo_rates *rates,
                                 dpar_halo_cost *grid)
{
    const int32_t node =
        job->per_node > 0 && job->per_node < job->ranks ? job->per_node : job->ranks;
    int32_t d, middle = 0;
    for (d = 0; d < job->dims; d++) { /* a rank with neighbours on all sides, if there is one */
        middle += grid->parts[d] / 2 * grid->stride[d];
    }
    middle = middle / node * node;
    grid->seconds = grid->copy_s = grid->network_s = 0;
    grid->bytes = grid->network_bytes = 0;
    grid->peers = 0;
    dpari_halo_cost_node(job, rates, grid, 0, node);
    if (middle > 0) {
        dpari_halo_cost_node(job, rates, grid, middle,
                             (int32_t)dpari_least((int64_t)middle + node, job->ranks));
    }
    grid->seconds = dpari_mostf(grid->seconds, grid->copy_s + grid->network_s);
}

/* ---- grids ----------------------------------------------------------------------------------- */

/* Checks that the parts multiply to the ranks, and that the strides order the axes: the fastest
 * axis has stride 1, and each other one the product of the parts of all faster axes. */
static dpar_status dpari_halo_grid_check(const dpar_halo_cost_desc *job, const dpar_halo_cost *grid,
                                         dpar_why *why)
{
    int32_t d, k, ranks = 1, used = 0, product;
    for (d = 0; d < job->dims; d++) {
        if (grid->parts[d] < 1 || grid->parts[d] > job->cells[d] ||
            grid->parts[d] > job->ranks / ranks) {
            return dpari_wrong(why,
                               "dim %d: parts=%d must be 1 to its %ld cells, and all parts "
                               "multiply to %d ranks",
                               d, grid->parts[d], job->cells[d], job->ranks);
        }
        ranks *= grid->parts[d];
    }
    product = ranks;
    for (ranks = 1; used < job->dims; used++) { /* the axes, from the fastest on */
        d = 0;
        for (k = 0; k < job->dims; k++) {
            if (grid->stride[k] == ranks && grid->parts[k] > 1) {
                d = k;
            }
        }
        if (grid->parts[d] == 1 || grid->stride[d] != ranks) {
            break;
        }
        ranks *= grid->parts[d];
    }
    for (d = 0; d < job->dims; d++) {
        if (grid->stride[d] < 1) {
            return dpari_wrong(why, "dim %d: stride=%d must be at least 1", d, grid->stride[d]);
        }
    }
    if (product != job->ranks) {
        return dpari_wrong(why, "the parts multiply to %d, not to ranks=%d", product, job->ranks);
    }
    if (ranks != job->ranks) {
        return dpari_wrong(
            why, "a dim must have stride=%d, the product of the parts of all faster axes", ranks);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_halo_cost_predict(const dpar_halo_cost_desc *job,
                                            const dpar_halo_rates *rates, dpar_halo_cost *grid,
                                            dpar_why *why)
{
    dpar_halo_rates usual;
    dpar_status st;
    rates = dpari_halo_rates_or(rates, &usual);
    st = dpari_halo_job_check(job, rates, grid, why);
    if (st == DPAR_OK) {
        st = dpari_halo_grid_check(job, grid, why);
    }
    if (st == DPAR_OK) {
        dpari_halo_cost_grid(job, rates, grid);
    }
    return st;
}

static void dpari_halo_swap(int32_t *order, int32_t i, int32_t k)
{
    const int32_t first = order[i];
    order[i] = order[k];
    order[k] = first;
}

/* Advances to the next permutation of n numbers in lexicographic order. Returns 1, or 0 after the
 * last. */
static int dpari_halo_next_order(int32_t *order, int32_t n)
{
    int32_t i = n - 2, k = n - 1;
    while (i >= 0 && order[i] > order[i + 1]) {
        i--;
    }
    if (i < 0) {
        return 0;
    }
    while (order[k] < order[i]) {
        k--;
    }
    dpari_halo_swap(order, i, k);
    for (i++, k = n - 1; i < k; i++, k--) { /* the rest is in descending order, so reverse it */
        dpari_halo_swap(order, i, k);
    }
    return 1;
}

/* Tries all orders of the axes for these parts, and sets *best if one of them is faster.
 * best->seconds is negative as long as there is no grid. On a single node the order does not
 * matter. */
static void dpari_halo_best_order(const dpar_halo_cost_desc *job, const dpar_halo_rates *rates,
                                  const int32_t *parts, dpar_halo_cost *best)
{
    int32_t axis[DPAR_MAX_DIMS], order[DPAR_MAX_DIMS], n = 0, d, k;
    int32_t found = 0; /* 1 after the first order of these parts */
    const int one_node = job->per_node == 0 || job->per_node >= job->ranks;
    dpar_halo_cost grid;
    dpari_zero(&grid, sizeof grid);
    for (d = 0; d < job->dims; d++) {
        grid.parts[d] = parts[d];
        grid.stride[d] = 1;
        if (parts[d] > 1) { /* the first order makes the last dim the fastest axis */
            axis[n] = d;
            order[n] = n;
            n++;
        }
    }
    do {
        int32_t stride = 1;
        for (k = 0; k < n; k++) {
            d = axis[n - 1 - order[k]];
            grid.stride[d] = stride;
            stride *= parts[d];
        }
        dpari_halo_cost_grid(job, rates, &grid);
        /* of equally fast grids the later parts win, and of their orders the first */
        if (best->seconds < 0 || grid.seconds < best->seconds ||
            (grid.seconds <= best->seconds && !found)) {
            *best = grid;
        }
        found = 1;
    } while (!one_node && dpari_halo_next_order(order, n));
}

DPAR_API DPARI_COLD dpar_status dpar_halo_cost_choose(const dpar_halo_cost_desc *job,
                                                      const dpar_halo_rates *rates,
                                                      dpar_halo_cost *grid, dpar_why *why)
{
    dpar_halo_rates usual;
    int32_t parts[DPAR_MAX_DIMS] = {0}, d;
    dpar_halo_cost best;
    dpar_status st;
    rates = dpari_halo_rates_or(rates, &usual);
    st = dpari_halo_job_check(job, rates, grid, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(&best, sizeof best);
    best.seconds = -1;
    while (dpari_cart_next_parts(job->ranks, job->dims, parts) == DPAR_OK) {
        int fits = 1;
        for (d = 0; d < job->dims; d++) {
            fits = fits && parts[d] <= job->cells[d];
        }
        if (fits) {
            dpari_halo_best_order(job, rates, parts, &best);
        }
    }
    if (best.seconds < 0) {
        return dpari_say(DPAR_E_NONE, why,
                         "no process grid gives each of %d ranks at least one cell", job->ranks);
    }
    *grid = best;
    return DPAR_OK;
}

/* Predicts the seconds per step if the ranks exchange every `steps` steps. Returns 0 if the halo
 * would be wider than a block. */
static DPARI_COLD double dpari_halo_steps_cost(const dpar_halo_cost_desc *job,
                                               const dpar_halo_rates *rates,
                                               const dpar_halo_cost *grid, double cell_s,
                                               int32_t steps)
{
    dpar_halo_cost_desc deep = *job;
    dpar_halo_cost cost = *grid;
    double all = 0.0;
    int32_t d, left;
    for (left = 0; left < steps; left++) { /* the sub-steps that follow */
        double cells = cell_s;
        for (d = 0; d < job->dims; d++) {
            const int64_t block = dpari_ceil_div(job->cells[d], grid->parts[d]);
            const int32_t sides =
                (job->periodic >> d & 1u) != 0 ? 2 : (int32_t)dpari_least(grid->parts[d] - 1, 2);
            if (sides > 0 && job->width[d] > block / steps) {
                return 0.0;
            }
            cells *= (double)(block + sides * left * job->width[d]);
        }
        all += cells;
    }
    for (d = 0; d < job->dims; d++) {
        deep.width[d] *= grid->parts[d] > 1 || (job->periodic >> d & 1u) != 0 ? steps : 1;
    }
    if (steps > 1) {
        deep.shape = DPAR_STENCIL_BOX;
    }
    if (dpari_halo_job_check(&deep, rates, grid, NULL) != DPAR_OK) {
        return 0.0;
    }
    dpari_halo_cost_grid(&deep, rates, &cost);
    return (cost.seconds + all) / steps;
}

DPAR_API DPARI_COLD dpar_status dpar_halo_cost_choose_steps(
    const dpar_halo_cost_desc *job, const dpar_halo_rates *rates, const dpar_halo_cost *grid,
    double cell_s, dpar_halo_cost_steps *steps, dpar_why *why)
{
    dpar_halo_rates usual;
    dpar_status status;
    int32_t k;
    rates = dpari_halo_rates_or(rates, &usual);
    status = dpari_halo_job_check(job, rates, grid, why);
    if (status == DPAR_OK) {
        status = dpari_halo_grid_check(job, grid, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (!steps || !(cell_s >= 0.0) || !dpari_finite(cell_s)) {
        return dpari_wrong(why,
                           "dpar_halo_cost_choose_steps: steps must not be NULL, and cell_s must "
                           "be finite and at least 0");
    }
    steps->best = 1;
    for (k = 1; k <= DPAR_HALO_COST_MOST_STEPS; k++) {
        const double each = dpari_halo_steps_cost(job, rates, grid, cell_s, k);
        steps->seconds[k - 1] = each;
        if (each > 0.0 && each < steps->seconds[steps->best - 1]) {
            steps->best = k;
        }
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD double dpar_neighbours_cost(const dpar_neighbour *neighbour, int32_t n,
                                                int32_t per_node, const dpar_halo_rates *rates)
{
    dpar_halo_rates usual;
    double copies = 0.0, peers = 0.0, messages = 0.0, away = 0.0;
    rates = dpari_halo_rates_or(rates, &usual);
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
    if (rates->nic_Bps > 0) {
        messages += away / rates->nic_Bps;
    }
    return copies + dpari_mostf(peers, messages);
}
