/* SPDX-License-Identifier: MIT-0 */
/* Tests halo_cost: bytes and runs counted cell by cell, the choice by trying every grid and every
 * order, and measurements (facts of halo exchange, section 6.2: cuts along planes beat cuts of the
 * contiguous dim). Run with: tests/run test cost. */
#include "dpar_cost.h"

#include "check.h"

/* Returns the default rates. */
static dpar_halo_rates usual_rates(void)
{
    dpar_halo_rates r;
    dpar_halo_rates_init(&r);
    return r;
}

/* Counts what `rank` of an even grid receives, cell by cell: the cells around its block. */
static void count(const dpar_halo_cost_desc *j, const dpar_halo_cost *g, int32_t rank,
                  int64_t *bytes, int64_t *away, int64_t *runs, int64_t *packed,
                  int64_t *packed_runs)
{
    int64_t at[3], block[3], side[3];
    int32_t d, node = j->per_node > 0 ? j->per_node : j->ranks, key = -1, last = -1;
    *bytes = *away = *runs = *packed = *packed_runs = 0;
    for (d = 0; d < 3; d++) {
        block[d] = j->cells[d] / g->parts[d];
        side[d] = block[d] + 2 * j->width[d];
    }
    for (at[0] = 0; at[0] < side[0]; at[0]++) {
        for (at[1] = 0; at[1] < side[1]; at[1]++) {
            last = -1; /* runs end with a row, because widths of the last dim are positive here */
            for (at[2] = 0; at[2] < side[2]; at[2]++) {
                int32_t peer = 0, beyond = 0, open = 0;
                key = 0;
                for (d = 0; d < 3; d++) {
                    int32_t c = rank / g->stride[d] % g->parts[d], n = g->parts[d];
                    int32_t v = at[d] < j->width[d] ? -1 : at[d] >= j->width[d] + block[d];
                    key = key * 3 + v + 1;
                    beyond += v != 0;
                    open |= (c + v < 0 || c + v >= n) && (j->periodic >> d & 1u) == 0;
                    peer += (c + v + n) % n * g->stride[d];
                }
                if (beyond == 0 || open || (beyond > 1 && j->shape == DPAR_STENCIL_STAR) ||
                    (beyond > 2 && j->shape == DPAR_STENCIL_EDGES)) {
                    last = -1;
                    continue;
                }
                *bytes += j->bytes;
                *away += peer / node != rank / node ? j->bytes : 0;
                *runs += key != last;
                /* a run: the width at either end of a row, or the whole row between them */
                if (peer / node != rank / node ||
                    (peer != rank && (key % 3 != 1 ? j->width[2] : block[2]) * j->bytes < 64)) {
                    *packed += j->bytes;
                    *packed_runs += key != last;
                }
                last = key;
            }
        }
    }
}

static dpar_halo_cost_desc job_of(int32_t ranks, int32_t per_node, int64_t n, int64_t width)
{
    dpar_halo_cost_desc j;
    int32_t d;
    memset(&j, 0, sizeof j);
    j.ranks = ranks;
    j.per_node = per_node;
    j.dims = 3;
    j.shape = DPAR_STENCIL_STAR;
    j.periodic = 7;
    j.bytes = j.contiguous_bytes = 8;
    for (d = 0; d < 3; d++) {
        j.cells[d] = n;
        j.width[d] = width;
    }
    return j;
}

/* Compares the figures with counts for every factorisation of the ranks and every order of the
 * axes, and checks that none is less expensive than the chosen one. */
static void every_grid(const dpar_halo_cost_desc *j)
{
    static const int32_t order[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                        {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    dpar_halo_rates r = usual_rates();
    dpar_halo_cost best, g;
    double least = 1e30;
    int32_t a, b, k, found = 0;
    CHECK_INT(dpar_halo_cost_choose(j, NULL, &best, NULL), DPAR_OK);
    for (a = 1; a <= j->ranks; a++) {
        for (b = 1; b <= j->ranks / a; b++) {
            int32_t parts[3] = {a, b, j->ranks / a / b};
            if (parts[0] * parts[1] * parts[2] != j->ranks || parts[0] > j->cells[0] ||
                parts[1] > j->cells[1] || parts[2] > j->cells[2]) {
                continue;
            }
            for (k = 0; k < 6; k++) {
                int32_t q, stride = 1, rank, middle;
                int64_t bytes, away, runs, packed, packed_runs, most = 0, crossing[2] = {0, 0};
                double copy = 0;
                memset(&g, 0, sizeof g);
                for (q = 2; q >= 0; q--) {
                    g.parts[order[k][q]] = parts[order[k][q]];
                    g.stride[order[k][q]] = stride;
                    stride *= parts[order[k][q]];
                }
                CHECK_INT(dpar_halo_cost_predict(j, &r, &g, NULL), DPAR_OK);
                least = g.seconds < least ? g.seconds : least;
                if (j->cells[0] % parts[0] + j->cells[1] % parts[1] + j->cells[2] % parts[2]) {
                    continue;
                }
                for (q = middle = 0; q < 3; q++) {
                    middle += g.parts[q] / 2 * g.stride[q];
                }
                for (rank = 0; rank < j->ranks; rank++) { /* in the first and the middle node */
                    int32_t node = j->per_node > 0 ? j->per_node : j->ranks;
                    double s;
                    if (rank / node != 0 && rank / node != middle / node) {
                        continue;
                    }
                    count(j, &g, rank, &bytes, &away, &runs, &packed, &packed_runs);
                    s = (double)(bytes + packed) / r.copy_Bps +
                        (double)(runs + packed_runs) * r.run_s;
                    copy = s > copy ? s : copy;
                    most = bytes > most ? bytes : most;
                    crossing[rank / node != 0] += away;
                }
                CHECK_INT(g.bytes, most);
                CHECK(fabs(g.copy_s - copy) <= 1e-12 * copy);
                CHECK_INT(g.network_bytes, crossing[0] > crossing[1] ? crossing[0] : crossing[1]);
                found++;
            }
        }
    }
    CHECK(found > 0);
    CHECK(best.seconds == least);
}

/* Checks a block larger than the cache: its runs take far_s. A block of exactly that size is not
 * larger. */
static void far(void)
{
    dpar_halo_cost_desc j = job_of(2, 0, 24, 1);
    dpar_halo_rates r = usual_rates(), slow = usual_rates();
    dpar_halo_cost g, want;
    CHECK_INT(dpar_halo_cost_choose(&j, NULL, &g, NULL), DPAR_OK);
    want = g;
    slow.run_s = r.far_s = 20e-9;
    r.cache_bytes = (double)j.bytes;
    r.cache_bytes *= (24.0 / g.parts[0] + 2) * (24.0 / g.parts[1] + 2) * (24.0 / g.parts[2] + 2);
    CHECK_INT(dpar_halo_cost_predict(&j, NULL, &want, NULL), DPAR_OK);
    CHECK_INT(dpar_halo_cost_predict(&j, &r, &g, NULL), DPAR_OK);
    CHECK_NEAR(g.seconds, want.seconds, 1e-12);
    r.cache_bytes -= 1;
    CHECK_INT(dpar_halo_cost_predict(&j, &slow, &want, NULL), DPAR_OK);
    CHECK_INT(dpar_halo_cost_predict(&j, &r, &g, NULL), DPAR_OK);
    CHECK_NEAR(g.seconds, want.seconds, 1e-12);
    r.far_s = -1;
    CHECK_INT(dpar_halo_cost_predict(&j, &r, &g, NULL), DPAR_E_ARG);
    r.far_s = 0;
    r.cache_bytes = 1e300 * 1e300;
    CHECK_INT(dpar_halo_cost_predict(&j, &r, &g, NULL), DPAR_E_ARG);
}

/* Checks that the same exchange described by neighbours has the halo's price: a ring of 2 x 2 x 2
 * blocks, in one node, in nodes of one rank, with the default rates and with a cluster's. */
static void neighbours(const dpar_halo_rates *rates, int64_t n, int64_t width)
{
    dpar_neighbour to[6];
    int32_t per_node, d, i;
    for (per_node = 0; per_node < 2; per_node++) {
        dpar_halo_cost_desc j = job_of(8, per_node, 2 * n, width);
        const dpar_halo_rates r = rates ? *rates : usual_rates();
        double copies = 0.0;
        dpar_halo_cost g;
        memset(&g, 0, sizeof g);
        for (d = 0; d < 3; d++) {
            g.parts[d] = 2;
            g.stride[d] = 4 >> d;
        }
        CHECK_INT(dpar_halo_cost_predict(&j, rates, &g, NULL), DPAR_OK);
        memset(to, 0, sizeof to);
        for (i = 0; i < 6; i++) {
            const int64_t row = i / 2 == 2 ? width : n; /* cells per run */
            to[i].bytes = width * n * n * 8;
            to[i].location = per_node > 0;
            to[i].copies = per_node > 0 || row * 8 < 64 ? 2 : 1;
            to[i].runs = to[i].copies * (to[i].bytes / 8 / row);
            copies += to[i].copies * (double)to[i].bytes / r.copy_Bps +
                      (double)to[i].runs * r.run_s;
        }
        CHECK_NEAR(copies, g.copy_s, 1e-12);
        CHECK_NEAR(dpar_neighbours_cost(to, 6, 1, rates), g.seconds, 1e-12);
        if (per_node > 0) { /* three more ranks share the NIC */
            CHECK_NEAR(dpar_neighbours_cost(to, 6, 4, rates),
                       g.seconds + 3.0 * 6.0 * (double)to[0].bytes / r.nic_Bps, 1e-12);
        }
        to[5].location = 2; /* itself: neither a peer nor a message */
        CHECK_NEAR(dpar_neighbours_cost(to, 6, 1, rates),
                   g.seconds - (per_node > 0 ? r.message_s + (double)to[5].bytes / r.nic_Bps
                                             : r.peer_s),
                   1e-12);
    }
    CHECK(dpar_neighbours_cost(to, 0, 1, rates) == 0.0);
}

/* Counts the cells that a rank with the largest block and neighbours on all sides where the grid
 * has any computes in `steps` sub-steps, one after the other. */
static double cells_of_steps(const dpar_halo_cost_desc *j, const dpar_halo_cost *g, int32_t steps)
{
    double all = 0;
    for (int32_t s = 0; s < steps; s++) {
        double cells = 1;
        for (int32_t d = 0; d < j->dims; d++) {
            int64_t n = (j->cells[d] + g->parts[d] - 1) / g->parts[d];
            const int ring = (int)(j->periodic >> d & 1u);
            for (int32_t later = s + 1; later < steps; later++) {
                n += ring || g->parts[d] > 1 ? j->width[d] : 0;
                n += ring || g->parts[d] > 2 ? j->width[d] : 0;
            }
            cells *= (double)n;
        }
        all += cells;
    }
    return all;
}

/* Returns 1 if a halo of this many steps is wider than a block where it is exchanged. */
static int too_wide(const dpar_halo_cost_desc *j, const dpar_halo_cost *g, int32_t steps)
{
    int wide = 0;
    for (int32_t d = 0; d < j->dims; d++) {
        const int64_t block = (j->cells[d] + g->parts[d] - 1) / g->parts[d];
        wide |= (g->parts[d] > 1 || (j->periodic >> d & 1u)) && steps * j->width[d] > block;
    }
    return wide;
}

/* Compares the choice of steps with predictions of each halo. */
static void steps_of(const dpar_halo_cost_desc *j, const dpar_halo_cost *g, double cell_s)
{
    dpar_halo_cost_steps steps;
    double least = 0;
    int32_t best = 1;
    dpar_why why;
    CHECK_INT(dpar_halo_cost_choose_steps(j, NULL, g, cell_s, &steps, &why), DPAR_OK);
    for (int32_t k = 1; k <= DPAR_HALO_COST_MOST_STEPS; k++) {
        dpar_halo_cost_desc deep = *j;
        dpar_halo_cost cost = *g;
        double expected;
        if (too_wide(j, g, k)) {
            CHECK(steps.seconds[k - 1] <= 0);
            continue;
        }
        for (int32_t d = 0; d < j->dims; d++) {
            deep.width[d] *= g->parts[d] > 1 || (j->periodic >> d & 1u) ? k : 1;
        }
        deep.shape = k > 1 ? DPAR_STENCIL_BOX : j->shape;
        CHECK_INT(dpar_halo_cost_predict(&deep, NULL, &cost, &why), DPAR_OK);
        expected = (cost.seconds + cell_s * cells_of_steps(j, g, k)) / k;
        CHECK_NEAR(steps.seconds[k - 1], expected, 1e-12);
        if (k == 1 || steps.seconds[k - 1] < least) {
            least = steps.seconds[k - 1];
            best = k;
        }
    }
    CHECK_INT(steps.best, best);
}

static void many_steps(void)
{
    static const double cell_s[] = {0, 1e-11, 1e-10, 1e-9, 1e-8};
    dpar_halo_cost_desc j;
    dpar_halo_cost g;
    dpar_halo_cost_steps steps;
    int32_t i;
    dpar_why why;
    for (i = 0; i < 200; i++) {
        const int32_t ranks = 1 + i % 13;
        memset(&g, 0, sizeof g);
        j = job_of(ranks, i % 3 == 0 ? 0 : 1 + i % 4, 8 + i * 7 % 90, i % 11 == 0 ? 0 : 1 + i % 3);
        j.periodic = (uint32_t)(i * 5 % 8);
        j.shape = i % 2 ? DPAR_STENCIL_STAR : DPAR_STENCIL_BOX;
        j.cells[0] += i % 7;
        if (dpar_halo_cost_choose(&j, NULL, &g, &why) == DPAR_OK) {
            steps_of(&j, &g, cell_s[i % 5]);
        }
    }
    /* little work between messages of another node: several steps; much work: one */
    j = job_of(8, 1, 64, 1);
    j.dims = 2;
    CHECK_INT(dpar_halo_cost_choose(&j, NULL, &g, &why), DPAR_OK);
    CHECK_INT(dpar_halo_cost_choose_steps(&j, NULL, &g, 1e-11, &steps, &why), DPAR_OK);
    CHECK(steps.best > 1);
    CHECK_INT(dpar_halo_cost_choose_steps(&j, NULL, &g, 1e-8, &steps, &why), DPAR_OK);
    CHECK_INT(steps.best, 1);
    steps.best = 7;
    CHECK_INT(dpar_halo_cost_choose_steps(&j, NULL, &g, -1, &steps, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "cell_s must be finite and at least 0") != NULL);
    CHECK_INT(dpar_halo_cost_choose_steps(&j, NULL, &g, (double)NAN, &steps, &why), DPAR_E_ARG);
    CHECK_INT(dpar_halo_cost_choose_steps(&j, NULL, &g, 1, NULL, &why), DPAR_E_ARG);
    CHECK_INT(dpar_halo_cost_choose_steps(&j, NULL, NULL, 1, &steps, &why), DPAR_E_ARG);
    g.parts[0]++;
    CHECK_INT(dpar_halo_cost_choose_steps(&j, NULL, &g, 1, &steps, &why), DPAR_E_ARG);
    CHECK_INT(steps.best, 7);
}

static void bad(void)
{
    dpar_halo_cost_desc j = job_of(4, 0, 8, 1);
    dpar_halo_cost g;
    dpar_halo_rates r = usual_rates();
    dpar_why why;
    memset(&g, 7, sizeof g);
    j.cells[1] = 0;
    CHECK_INT(dpar_halo_cost_choose(&j, NULL, &g, &why), DPAR_E_ARG);
    j = job_of(1000, 0, 8, 1);
    CHECK_INT(dpar_halo_cost_choose(&j, NULL, &g, &why), DPAR_E_NONE); /* 512 cells */
    j = job_of(4, 0, INT64_C(1) << 40, 1);
    CHECK_INT(dpar_halo_cost_choose(&j, NULL, &g, &why), DPAR_E_RANGE);
    j = job_of(0, 0, 8, 1);
    CHECK_INT(dpar_halo_cost_choose(&j, NULL, &g, &why), DPAR_E_ARG);
    j = job_of(4, 0, 8, 1);
    r.copy_Bps = r.copy_Bps - r.copy_Bps;
    CHECK_INT(dpar_halo_cost_choose(&j, &r, &g, &why), DPAR_E_ARG);
    r = usual_rates();
    r.message_s = 1e300 * 1e300;
    CHECK_INT(dpar_halo_cost_choose(&j, &r, &g, &why), DPAR_E_ARG);
    CHECK_INT(g.parts[0], 0x07070707); /* nothing was written */
    memset(&g, 0, sizeof g);
    CHECK_INT(dpar_halo_cost_predict(&j, NULL, &g, &why), DPAR_E_ARG);
    g.parts[0] = g.parts[1] = 2;
    g.parts[2] = 1;
    g.stride[0] = g.stride[1] = 1; /* two axes of stride 1 */
    g.stride[2] = 1;
    CHECK_INT(dpar_halo_cost_predict(&j, NULL, &g, &why), DPAR_E_ARG);
    g.stride[0] = 2;
    CHECK_INT(dpar_halo_cost_predict(&j, NULL, &g, &why), DPAR_OK);
}

int main(void)
{
    static const int32_t ranks[] = {1, 2, 3, 4, 6, 8, 12, 16, 24};
    dpar_halo_cost g;
    dpar_halo_cost_desc j;
    dpar_cluster cluster;
    size_t i;
    far();
    for (i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        int32_t per_node;
        for (per_node = 0; per_node <= ranks[i]; per_node += per_node < 2 ? 1 : 2) {
            j = job_of(ranks[i], per_node, 12, 1 + (int64_t)(i % 2));
            every_grid(&j);
            j.periodic = (uint32_t)(i % 8);
            j.shape = DPAR_STENCIL_BOX;
            j.cells[1] = 24;
            every_grid(&j);
            j.shape = DPAR_STENCIL_EDGES;
            every_grid(&j);
        }
    }
    /* two ranks: cut the slowest dim, as measured */
    j = job_of(2, 0, 128, 1);
    CHECK_INT(dpar_halo_cost_choose(&j, NULL, &g, NULL), DPAR_OK);
    CHECK_INT(g.parts[0], 2);
    /* 64 ranks on one node: the contiguous dim is never cut while planes and rows can be */
    j = job_of(64, 0, 512, 1);
    j.periodic = 0;
    CHECK_INT(dpar_halo_cost_choose(&j, NULL, &g, NULL), DPAR_OK);
    CHECK_INT(g.parts[2], 1);
    /* nodes of 8: the ranks of a node form a brick, not a row, where the network decides */
    j = job_of(512, 8, 512, 1);
    CHECK_INT(dpar_halo_cost_choose(&j, NULL, &g, NULL), DPAR_OK);
    CHECK(g.network_bytes > 0 && g.peers >= 4);
    neighbours(NULL, 6, 1);
    neighbours(NULL, 64, 2);
    CHECK_INT(dpar_cluster_find(&cluster, "derecho", NULL), DPAR_OK);
    cluster.halo.message_s *= 1.5;
    cluster.halo.run_s *= 2.0;
    neighbours(&cluster.halo, 32, 1);
    bad();
    many_steps();
    return CHECK_DONE();
}
