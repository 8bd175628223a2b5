/* SPDX-License-Identifier: MIT-0 */
#include "collective.h"

#include "../base/real.h"

DPAR_API const char *dpar_algorithm_name(int32_t algorithm)
{
    static const char name[DPAR_ALGS][20] = {
        "ring",  "recursive-doubling", "recursive-halving", "rabenseifner", "binomial",
        "bruck", "pairwise",           "scatter+doubling",  "scatter+ring", "chain",
        "tree",  "in-switch",          "dissemination",     "hierarchical"};
    return algorithm >= 0 && algorithm < DPAR_ALGS ? name[algorithm] : "?";
}

DPAR_API double dpar_ring_all_reduce(double bytes, int32_t n, double Bps)
{
    return n > 1 && Bps > 0.0 ? 2.0 * (n - 1.0) / n * bytes / Bps : 0.0;
}

DPAR_API double dpar_bus_factor(int32_t kind, int32_t n)
{
    double p = n;
    if (n < 2) {
        return 1.0;
    }
    switch (kind) {
    case DPAR_ALL_REDUCE: return 2.0 * (p - 1.0) / p;
    case DPAR_ALL_GATHER:
    case DPAR_REDUCE_SCATTER:
    case DPAR_ALL_TO_ALL:
    case DPAR_GATHER:
    case DPAR_SCATTER: return (p - 1.0) / p;
    default: return 1.0;
    }
}

/* ---- textbook ------------------------------------------------------------------------------- */

/* The terms every formula is made of. n = bytes, p = ranks, lg = log2 p. */
typedef struct dpari_terms {
    double p, lg, up, down; /* log2, rounded up and down */
    double n, alpha, beta, gamma;
    int32_t power; /* p is a power of two */
} dpari_terms;

static double dpari_all_reduce_textbook(int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p;
    switch (algorithm) {
    case DPAR_ALG_RECURSIVE_DOUBLING: return t->up * (t->alpha + t->n * (t->beta + t->gamma));
    case DPAR_ALG_RABENSEIFNER:
        return t->power
                   ? 2.0 * t->lg * t->alpha + 2.0 * t->n * part * t->beta + t->n * part * t->gamma
                   : (2.0 * t->down + 2.0) * t->alpha + (2.0 * part + 2.0) * t->n * t->beta +
                         t->n * (1.0 + part) * t->gamma;
    case DPAR_ALG_RING:
        return 2.0 * (t->p - 1.0) * t->alpha + 2.0 * t->n * part * t->beta + t->n * part * t->gamma;
    case DPAR_ALG_TREE: return 2.0 * t->up * t->alpha + 2.0 * t->n * t->beta;
    case DPAR_ALG_IN_SWITCH: return 2.0 * t->alpha + t->n * (t->p + 1.0) / t->p * t->beta;
    default: return -1.0;
    }
}

static double dpari_gather_textbook(int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p;
    switch (algorithm) {
    case DPAR_ALG_RING: return (t->p - 1.0) * t->alpha + t->n * part * t->beta;
    case DPAR_ALG_RECURSIVE_DOUBLING:
        return t->power ? t->lg * t->alpha + t->n * part * t->beta : -1.0;
    case DPAR_ALG_BRUCK: return t->up * t->alpha + t->n * part * t->beta;
    default: return -1.0;
    }
}

static double dpari_scatter_textbook(int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p, both = t->beta + t->gamma;
    switch (algorithm) {
    case DPAR_ALG_RECURSIVE_HALVING:
        return t->power ? t->lg * t->alpha + t->n * part * both
                        : (t->down + 2.0) * t->alpha + t->n * (1.0 + part) * both;
    case DPAR_ALG_PAIRWISE:
    case DPAR_ALG_RING: return (t->p - 1.0) * t->alpha + t->n * part * both;
    case DPAR_ALG_RECURSIVE_DOUBLING: return t->lg * t->alpha + t->n * (t->lg - part) * both;
    default: return -1.0;
    }
}

static double dpari_broadcast_textbook(int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p, k;
    switch (algorithm) {
    case DPAR_ALG_BINOMIAL: return t->up * (t->alpha + t->n * t->beta);
    case DPAR_ALG_SCATTER_DOUBLING: return 2.0 * t->lg * t->alpha + 2.0 * t->n * part * t->beta;
    case DPAR_ALG_SCATTER_RING:
        return (t->lg + t->p - 1.0) * t->alpha + 2.0 * t->n * part * t->beta;
    case DPAR_ALG_CHAIN: /* the best number of pieces */
        k = t->alpha > 0.0 ? dpari_sqrt((t->p - 2.0) * t->n * t->beta / t->alpha) : 1e9;
        k = k < 1.0 ? 1.0 : k;
        return (t->p - 2.0 + k) * (t->alpha + t->n / k * t->beta);
    default: return -1.0;
    }
}

static double dpari_reduce_textbook(int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p;
    switch (algorithm) {
    case DPAR_ALG_BINOMIAL: return t->up * (t->alpha + t->n * t->beta + t->n * t->gamma);
    case DPAR_ALG_RABENSEIFNER:
        return t->power
                   ? 2.0 * t->lg * t->alpha + 2.0 * t->n * part * t->beta + t->n * part * t->gamma
                   : (2.0 * t->down + 1.0) * t->alpha + (2.0 * part + 1.0) * t->n * t->beta +
                         t->n * (1.0 + part) * t->gamma;
    default: return -1.0;
    }
}

static double dpari_textbook(int32_t kind, int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p;
    switch (kind) {
    case DPAR_ALL_REDUCE: return dpari_all_reduce_textbook(algorithm, t);
    case DPAR_ALL_GATHER: return dpari_gather_textbook(algorithm, t);
    case DPAR_REDUCE_SCATTER: return dpari_scatter_textbook(algorithm, t);
    case DPAR_BROADCAST: return dpari_broadcast_textbook(algorithm, t);
    case DPAR_REDUCE: return dpari_reduce_textbook(algorithm, t);
    case DPAR_ALL_TO_ALL:
        return algorithm == DPAR_ALG_PAIRWISE ? (t->p - 1.0) * t->alpha + t->n * part * t->beta
               : algorithm == DPAR_ALG_BRUCK  ? t->lg * t->alpha + 0.5 * t->n * t->lg * t->beta
                                              : -1.0;
    case DPAR_GATHER:
    case DPAR_SCATTER:
        return algorithm == DPAR_ALG_BINOMIAL ? t->up * t->alpha + t->n * part * t->beta : -1.0;
    case DPAR_SEND_RECV: return algorithm == DPAR_ALG_PAIRWISE ? t->alpha + t->n * t->beta : -1.0;
    default: return algorithm == DPAR_ALG_DISSEMINATION ? t->up * t->alpha : -1.0;
    }
}

DPAR_API dpar_status dpar_collective_textbook(int32_t kind, int32_t algorithm, int32_t n,
                                              double bytes, double alpha, double beta, double gamma,
                                              double *seconds)
{
    dpari_terms t;
    double s;
    if (n < 1 || kind < 0 || kind >= DPAR_COLLECTIVES || !(bytes >= 0.0) || !(alpha >= 0.0) ||
        !(beta >= 0.0) || !(gamma >= 0.0)) {
        return DPAR_E_ARG;
    }
    t.p = n;
    t.lg = dpari_log2(n);
    t.up = dpari_ceil_log2(n);
    t.power = ((int32_t)1 << (n > 1 ? dpari_ceil_log2(n) : 0)) == n;
    t.down = t.power ? t.up : t.up - 1.0;
    t.n = bytes;
    t.alpha = alpha;
    t.beta = beta;
    t.gamma = gamma;
    s = dpari_textbook(kind, algorithm, &t);
    if (s < 0.0) {
        return DPAR_E_UNKNOWN;
    }
    *seconds = n == 1 ? 0.0 : s;
    return DPAR_OK;
}

/* ---- groups on the machine ------------------------------------------------------------------ */

DPAR_API dpar_group dpar_group_place(const dpar_cluster *c, int32_t n, int32_t stride)
{
    dpar_group g;
    int32_t node = c->gpus_per_node, apart = stride > 0 ? stride : 1;
    int64_t span;
    g.size = n > 0 ? n : 1;
    span = (int64_t)g.size * apart;
    g.per_node = apart >= node ? 1 : (int32_t)dpari_least(g.size, dpari_most(1, node / apart));
    if (dpar_cluster_gpus(c) <= node) {
        g.per_node = g.size; /* one node holds everything */
    } else if (g.per_node == g.size && g.size > 1 && node % span != 0) {
        g.per_node = (g.size + 1) / 2; /* 4 of 6: the second group lies on two nodes */
    }
    g.nodes = (int32_t)dpari_ceil_div(g.size, g.per_node);
    g.sharing = (int32_t)dpari_most(1, node / g.per_node);
    return g;
}

/* ---- the predictor -------------------------------------------------------------------------- */

/* Two protocols, as NCCL has them. The simple one pays 1.6 latencies a step for its fences and
 * reaches the whole bandwidth; the quick one sends flags with the data. Inside a node quick is
 * LL128: 0.70 of the bandwidth up to Ampere (vTrain's A100 all-reduce, 8 ranks: slopes 93 and 134
 * GB/s), 0.92 from Hopper on (NCCL's tuner, whose cap a channel rises from 20 to 36.7 GB/s there).
 * Between nodes a tree's quick is LL, a quarter of the NICs (the tuner: 22.5 of 96 GB/s on two
 * nodes). */
static const double dpari_simple_steps = 1.6;
static const double dpari_quick_ampere = 0.70;
static const double dpari_quick_hopper = 0.92;
static const double dpari_quick_net = 0.25;
/* A ring over nodes (SimAI's NIC table, 16 to 1024 ranks): a latency a step up to 64 KiB a rank;
 * beyond that 1.65, or 1.1 and the wire, whichever is more. */
static const double dpari_ring_quick_bytes = 65536.0;
static const double dpari_ring_fence = 1.65;
static const double dpari_ring_step = 1.1;
/* All-to-all posts a send and a receive a peer: about three steps' latency each inside a node
 * (H100-class nccl-tests: 76 us flat against 46), a quarter across, as many are under way at once
 * (SimAI's all-to-all table: 0.52 to 0.67 at 16 MiB). Its flows collide inside a node: 0.965 of a
 * ring's bandwidth (the 8 GiB row). */
static const double dpari_peer_steps = 3.3;
static const double dpari_peer_net_steps = 0.25;
static const double dpari_peer_share = 0.965;
/* In-switch reduction: (p+1)/p bytes at the switch instead of 2(p-1)/p, at 0.86 of the links' own
 * share; its pipeline is filled by about three base latencies (H100-class nccl-tests: 85 us + n /
 * 273 GB/s). */
static const double dpari_switch_base = 2.8;
static const double dpari_switch_share = 0.86;
/* Part of the shorter phase of a hierarchical collective that the longer one does not hide. */
static const double dpari_phase_blend = 0.3;
/* A tree's hop between nodes takes about three ring steps (NCCL's tuner: 14 us); a tree
 * between more than two nodes sends some bytes twice on a link. */
static const double dpari_tree_hop = 3.0;
static const double dpari_tree_share = 1.08;

static double dpari_wire(int32_t kind, double n)
{
    switch (kind) {
    case DPAR_ALL_REDUCE: return 2.0 * (n - 1.0) / n;
    case DPAR_ALL_GATHER:
    case DPAR_REDUCE_SCATTER:
    case DPAR_ALL_TO_ALL:
    case DPAR_GATHER:
    case DPAR_SCATTER: return (n - 1.0) / n;
    case DPAR_BARRIER: return 0.0;
    default: return 1.0;
    }
}

static double dpari_steps(int32_t kind, double n)
{
    switch (kind) {
    case DPAR_ALL_REDUCE: return 2.0 * (n - 1.0);
    case DPAR_SEND_RECV: return 1.0;
    case DPAR_BARRIER: return dpari_ceil_log2((int64_t)n);
    default: return n - 1.0;
    }
}

/* Share of a chip's wired (not switched) links that n of the node's chips can use. */
static double dpari_wired_share(const dpar_cluster *c, int32_t n)
{
    /* 2..7 of the eight V100 of a hybrid cube mesh (vTrain's V100 table, of 134 GB/s) */
    static const float cube[6] = {0.17f, 0.335f, 0.635f, 0.276f, 0.344f, 0.65f};
    int32_t all = c->gpus_per_node;
    if (n >= all) {
        return 1.0;
    }
    if (c->gpu.generation == DPAR_GEN_VOLTA && all == 8) {
        return (double)cube[n - 2];
    }
    if (c->gpu.generation == DPAR_GEN_TPU) {
        double dims = c->gpu.units > 1 ? 3.0 : 2.0; /* chips of two cores lie on a 3-d torus */
        return n == 2 ? 0.5 / dims : 1.0 / dims;    /* one link, or the two of an axis */
    }
    if (c->gpu.generation == DPAR_GEN_CDNA && c->gpu.units <= 110 && n == 2) {
        return 1.0; /* MI250X: the two halves of a package share four links, 200 GB/s */
    }
    return (n - 1.0) / (all - 1.0); /* a wire to each peer */
}

/* What a group of n in a node gets of the links. Switched: a few per cent less for few ranks
 * (vTrain's A100 table: 200, 212, 226 GB/s for 2, 3, 4 ranks, 234 for 8). */
static double dpari_link_of(const dpar_cluster *c, int32_t n)
{
    double B = c->link_Bps * c->cal.value[DPAR_CAL_LINK_SHARE];
    if (c->link_switched) {
        return B * (n <= 2 ? 0.86 : n == 3 ? 0.91 : n == 4 ? 0.965 : 1.0);
    }
    return B * dpari_wired_share(c, n);
}

/* Seconds and latency of the faster protocol. floor: the least a call takes; steps: seconds of
 * its steps under the quick one; wire: seconds on the wire at full bandwidth. */
typedef struct dpari_timing {
    double seconds, latency;
} dpari_timing;

static dpari_timing dpari_protocols(double base, double steps, double wire, double quick_share)
{
    dpari_timing t, simple;
    t.latency = base + steps;
    t.seconds = dpari_mostf(t.latency, base + wire / quick_share);
    simple.latency = base + dpari_simple_steps * steps;
    simple.seconds = simple.latency + wire;
    return simple.seconds < t.seconds ? simple : t;
}

static double dpari_quick_share(const dpar_cluster *c)
{
    return c->gpu.generation == DPAR_GEN_HOPPER || c->gpu.generation == DPAR_GEN_BLACKWELL
               ? dpari_quick_hopper
               : dpari_quick_ampere;
}

static void dpari_keep_least(dpar_collective_cost *cost, dpari_timing t, int32_t algorithm)
{
    if (cost->algorithm < 0 || t.seconds < cost->seconds) {
        cost->seconds = t.seconds;
        cost->latency_s = t.latency;
        cost->algorithm = algorithm;
    }
}

/* Inside a node: a ring or pairs under the faster protocol, or the switch. */
static void dpari_inside(const dpar_cluster *c, int32_t n, int32_t kind, double bytes,
                         dpar_collective_cost *cost)
{
    const double *k = c->cal.value;
    double B = dpari_link_of(c, n), wire = dpari_wire(kind, n) * bytes, base = k[DPAR_CAL_BASE_S];
    double steps = dpari_steps(kind, n) * k[DPAR_CAL_LINK_S], p = n;
    dpari_timing t;
    cost->link_bytes = wire;
    if (kind == DPAR_SEND_RECV) {
        t.latency = 0.5 * base + steps;
        t.seconds = t.latency + wire / B;
        dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
        return;
    }
    if (kind == DPAR_ALL_TO_ALL) {
        t = dpari_protocols(base, steps, wire / (B * dpari_peer_share), dpari_quick_share(c));
        t.seconds = dpari_mostf(t.seconds, base + dpari_peer_steps * steps);
        dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
        return;
    }
    if (kind == DPAR_ALL_REDUCE && c->link_reduces && n > 2) {
        t.latency = dpari_switch_base * base;
        t.seconds = t.latency + bytes * (p + 1.0) / p / (B * dpari_switch_share);
        dpari_keep_least(cost, t, DPAR_ALG_IN_SWITCH);
        steps *= 0.5; /* below that size the switch still replaces one of the two passes */
    }
    t = dpari_protocols(base, steps, wire / B, dpari_quick_share(c));
    dpari_keep_least(cost, t, DPAR_ALG_RING);
}

/* GB/s of the NICs for one rank of a group, when all groups of the node talk at once. */
static double dpari_nic_rate(const dpar_cluster *c, const dpar_group *g)
{
    double node = c->nics * c->nic_Bps * c->taper * c->cal.value[DPAR_CAL_NET_SHARE];
    double rate = node / g->sharing / g->per_node;
    double own = c->nic_Bps * c->cal.value[DPAR_CAL_NET_SHARE] *
                 dpari_mostf(1.0, (double)c->nics / c->gpus_per_node);
    return dpari_leastf(rate, own);
}

/* All-reduce in phases: reduce-scatter inside the nodes, a tree between them (or in the network's
 * switches), all-gather inside. */
static void dpari_phases(const dpar_cluster *c, const dpar_group *g, double bytes, double nic,
                         double link, dpar_collective_cost *cost)
{
    const double *k = c->cal.value;
    double nodes = g->nodes, per = g->per_node, base = k[DPAR_CAL_BASE_S];
    double up = dpari_ceil_log2(g->nodes), inner = 0.0, outer, inside, hop;
    if (per > 1.0) {
        inner = 2.0 * (per - 1.0) / per * bytes / link;
        if (c->link_reduces && per > 2.0) {
            inner = dpari_leastf(inner, bytes * (per + 1.0) / per / (link * dpari_switch_share));
        }
    }
    inside = 2.0 * (per - 1.0) * k[DPAR_CAL_LINK_S];
    hop = 2.0 * dpari_tree_hop * k[DPAR_CAL_NET_S];
    outer = 2.0 * (nodes - 1.0) / nodes * bytes / (per * nic);
    outer = dpari_mostf(inner, outer) * (g->nodes > 2 ? dpari_tree_share : 1.0) +
            dpari_phase_blend * dpari_leastf(inner, outer);
    dpari_keep_least(cost, dpari_protocols(base, inside + hop * up, outer, dpari_quick_net),
                     DPAR_ALG_HIERARCHICAL);
    if (c->net_reduces) {
        outer = (nodes + 1.0) / nodes * bytes / (per * nic);
        outer = dpari_mostf(inner, outer) + dpari_phase_blend * dpari_leastf(inner, outer);
        dpari_keep_least(cost, dpari_protocols(base, inside + hop, outer, dpari_quick_net),
                         DPAR_ALG_IN_SWITCH);
    }
}

/* A ring over nodes of `steps` steps of `piece` bytes that is `wire` seconds on the wire. */
static dpari_timing dpari_ring_timing(const dpar_cluster *c, double steps, double piece,
                                      double wire)
{
    double base = c->cal.value[DPAR_CAL_BASE_S], pass = steps * c->cal.value[DPAR_CAL_NET_S];
    dpari_timing t;
    t.latency = base + dpari_ring_step * pass;
    t.seconds = dpari_mostf(base + dpari_ring_fence * pass, t.latency + wire);
    if (piece <= dpari_ring_quick_bytes) {
        double quick = dpari_mostf(base + pass, base + wire / dpari_quick_net);
        if (quick < t.seconds) {
            t.latency = base + pass;
            t.seconds = quick;
        }
    }
    return t;
}

/* Across nodes. A ring over all ranks, which is all that NCCL has for gathers and scatters: its
 * steps are what makes them slow on many ranks (T6). From Hopper's software on, groups of one rank
 * a node have PAT's parallel trees: a fifth of the steps at 0.75 of the bandwidth (NCCL's tuner:
 * 2.8 us a rank against 14). */
static void dpari_across(const dpar_cluster *c, const dpar_group *g, int32_t kind, double bytes,
                         dpar_collective_cost *cost)
{
    const double *k = c->cal.value;
    double nic = dpari_nic_rate(c, g), n = g->size, per = g->per_node, base = k[DPAR_CAL_BASE_S];
    double ways = kind == DPAR_ALL_REDUCE ? 2.0 : 1.0, wire, steps;
    double link = per > 1.0 ? dpari_link_of(c, g->per_node) : 0.0;
    wire = dpari_wire(kind, n) * bytes / (nic * per);
    if (per > 1.0) {
        wire = dpari_mostf(wire, dpari_wire(kind, n) * bytes / link);
    }
    dpari_keep_least(cost, dpari_ring_timing(c, dpari_steps(kind, n), bytes / n, wire),
                     DPAR_ALG_RING);
    if (kind == DPAR_ALL_REDUCE) {
        dpari_phases(c, g, bytes, nic, link, cost);
    } else if (g->per_node == 1 && dpari_quick_share(c) > dpari_quick_ampere &&
               (kind == DPAR_ALL_GATHER || kind == DPAR_REDUCE_SCATTER)) {
        steps = (0.3 * dpari_ceil_log2(g->nodes) + 0.2 * n) * k[DPAR_CAL_NET_S];
        dpari_keep_least(cost, dpari_protocols(base, steps, wire / 0.75, dpari_quick_net),
                         DPAR_ALG_TREE);
    }
    cost->nic_bytes = ways * (g->nodes - 1.0) / g->nodes * bytes / per;
    cost->link_bytes = per > 1.0 ? ways * (per - 1.0) / per * bytes : 0.0;
}

/* All-to-all: what stays in the node goes over its links, (nodes-1)/nodes over the rank's own share
 * of the NICs, both at once. */
static void dpari_across_all(const dpar_cluster *c, const dpar_group *g, double bytes,
                             dpar_collective_cost *cost)
{
    const double *k = c->cal.value;
    double n = g->size, per = g->per_node, wire;
    dpari_timing t;
    cost->nic_bytes = bytes * (n - per) / n;
    cost->link_bytes = bytes * (per - 1.0) / n;
    wire = dpari_mostf(cost->nic_bytes / dpari_nic_rate(c, g),
                       per > 1.0 ? cost->link_bytes / dpari_link_of(c, g->per_node) : 0.0);
    t.latency = k[DPAR_CAL_BASE_S] + dpari_peer_steps * (per - 1.0) * k[DPAR_CAL_LINK_S] +
                dpari_peer_net_steps * (n - per) * k[DPAR_CAL_NET_S];
    t.seconds = t.latency + wire;
    dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
}

DPAR_API void dpar_collective_cost_of(const dpar_cluster *c, const dpar_group *g, int32_t kind,
                                      double bytes, dpar_collective_cost *cost)
{
    dpari_timing t;
    dpari_zero(cost, sizeof(*cost));
    if (g->size < 2 || kind < 0 || kind >= DPAR_COLLECTIVES ||
        !(bytes > 0.0 || kind == DPAR_BARRIER)) {
        return;
    }
    cost->algorithm = -1;
    if (g->nodes < 2) {
        dpari_inside(c, g->size, kind, bytes, cost);
        return;
    }
    cost->nic_Bps = dpari_nic_rate(c, g);
    if (kind == DPAR_ALL_TO_ALL) {
        dpari_across_all(c, g, bytes, cost);
    } else if (kind == DPAR_SEND_RECV) {
        cost->nic_bytes = bytes;
        t.latency =
            0.5 * c->cal.value[DPAR_CAL_BASE_S] + dpari_simple_steps * c->cal.value[DPAR_CAL_NET_S];
        t.seconds = t.latency + bytes / cost->nic_Bps;
        dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
    } else {
        dpari_across(c, g, kind, bytes, cost);
    }
}

/* ---- NCCL's tuner --------------------------------------------------------------------------- */

enum {
    DPARI_TREE,
    DPARI_RING,
    DPARI_DIRECT, /* CollNet: SHARP between nodes, every rank of a node at once */
    DPARI_COLLNET_CHAIN,
    DPARI_NVLS,
    DPARI_NVLS_TREE,
    DPARI_PAT,
    DPARI_TUNED
};
enum { DPARI_LL, DPARI_LL128, DPARI_SIMPLE, DPARI_PROTOCOLS };

/* NCCL 2.30, src/graph/tuning.cc (5067397, 2026-06), by algorithm and protocol, us: base; a hop
 * over NVLink, PCI, the network. */
static const float dpari_nccl_base[DPARI_TUNED][DPARI_PROTOCOLS] = {
    {6.8f, 14, 8.4f}, {6.6f, 14, 8.4f}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {8, 8, 8}};
static const float dpari_nccl_nvlink[DPARI_TUNED][DPARI_PROTOCOLS] = {
    {0.6f, 1.25f, 4}, {0.6f, 1.9f, 3.4f}, {0, 0, 3.7f}, {0, 0, 2.8f},
    {0, 0, 25},       {0, 0, 25},         {0, 0, 4}};
static const float dpari_nccl_pci[DPARI_TUNED][DPARI_PROTOCOLS] = {
    {1, 1.9f, 4}, {1, 2.5f, 5.7f}, {0, 0, 3.7f}, {0, 0, 2.8f}, {0, 0, 0}, {0, 0, 0}, {0, 0, 4}};
static const float dpari_nccl_net[DPARI_TUNED][DPARI_PROTOCOLS] = {
    {5, 8.5f, 14}, {2.7f, 4, 14}, {0, 0, 31}, {0, 0, 30}, {0, 0, 18}, {0, 0, 20.9f}, {0, 0, 14}};
/* GB/s caps on 1, 2 and more nodes for Volta, Ampere, Hopper, Blackwell: LL in all, the others a
 * channel. Across nodes LL's row is the processor's: Ampere's stands for AMD, Volta's for Intel. */
static const float dpari_nccl_ll[4][3] = {
    {39, 39, 20.4f}, {87.7f, 22.5f, 19}, {141, 45, 35}, {282, 90, 70}};
static const float dpari_nccl_ring128[4][3] = {
    {20, 20, 20}, {20, 20, 20}, {36.7f, 36.7f, 36.7f}, {40, 40, 40}};
static const float dpari_nccl_tree128[4][3] = {
    {20, 20, 20}, {20, 20, 20}, {36.7f, 36.7f, 29}, {55.6f, 31.67f, 20}};
static const float dpari_nccl_tree[4][3] = {
    {26.5f, 18.5f, 10}, {24, 23.6f, 17.8f}, {38.7f, 41.4f, 36}, {70, 42.8f, 24}};
static const float dpari_nccl_nvls_tree[4][3] = {
    {26.5f, 18.5f, 10}, {24, 23.6f, 17.8f}, {0, 57.7f, 45.5f}, {0, 96, 80}};
/* Tree's correction for 64 B * 2^i. */
static const float dpari_nccl_correct[3][24] = {
    {1,   1,   1,   1,   .9f, .8f, .7f, .7f, .7f, .7f, .6f, .5f,
     .4f, .4f, .5f, .6f, .7f, .8f, .9f, 1,   1,   1,   1,   1},
    {1,   1,   1,   1,   1,   .9f, .8f, .8f, .8f, .7f, .6f, .6f,
     .6f, .6f, .6f, .6f, .8f, .9f, .9f, .9f, .9f, 1,   1,   1},
    {.9f, .9f, .9f, .9f, .9f, .9f, .9f, .8f, .7f, .6f, .6f, .5f,
     .5f, .5f, .5f, .6f, .7f, .8f, .7f, .7f, .8f, .9f, .9f, .9f}};

/* The machine as the tuner sees it. */
typedef struct dpari_tuner {
    const dpar_group *g;
    int32_t generation, column; /* rows and columns of the caps */
    int32_t pci, kind;
    double channels, bus; /* GB/s */
    double steps;         /* of a ring */
    double bytes;
} dpari_tuner;

/* What the tuner assumes of a link: 12 GB/s for PCI and for 100 Gb/s of network, and about 0.8 of
 * NVLink's 25 (Blackwell 50) GB/s: 12 x 20 on A100, 18 x 20.6 on H100. */
static void dpari_tuner_init(dpari_tuner *t, const dpar_cluster *c, const dpar_group *g,
                             int32_t kind, double bytes)
{
    static const float one[4] = {20, 20, 20.6f, 40.1f};
    double link = t->generation == 3 ? 50e9 : 25e9, n = g->size;
    t->g = g;
    t->kind = kind;
    t->bytes = bytes;
    t->column = g->nodes <= 2 ? g->nodes - 1 : 2;
    t->pci = c->link_Bps <= 1.1 * c->gpu.pcie_Bps;
    t->channels = t->pci ? 1.0 : (double)(int32_t)(c->link_Bps / link + 0.5);
    t->bus = t->pci ? 12.0 : t->channels * (double)one[t->generation];
    if (g->nodes > 1) {
        t->bus = dpari_leastf(t->bus, c->nics * c->nic_Bps * 0.96e-9);
    }
    t->steps = kind == DPAR_ALL_REDUCE                                  ? 2.0 * (n - 1.0)
               : kind == DPAR_ALL_GATHER || kind == DPAR_REDUCE_SCATTER ? n - 1.0
                                                                        : n;
}

/* Does NCCL have this combination here? */
static int dpari_tuner_has(const dpari_tuner *t, const dpar_cluster *c, int32_t a, int32_t p)
{
    int reduce = t->kind == DPAR_ALL_REDUCE, across = t->g->nodes > 1;
    int gather = t->kind == DPAR_ALL_GATHER || t->kind == DPAR_REDUCE_SCATTER;
    int nvls = c->link_reduces && t->generation >= 2 && t->g->per_node > 2;
    switch (a) {
    case DPARI_RING: return 1;
    case DPARI_TREE: return reduce;
    case DPARI_NVLS:
        return p == DPARI_SIMPLE && nvls && (reduce || gather) && (!across || c->net_reduces);
    case DPARI_NVLS_TREE: return p == DPARI_SIMPLE && nvls && reduce && across;
    case DPARI_PAT: return p == DPARI_SIMPLE && gather && across && t->g->per_node == 1;
    default: return p == DPARI_SIMPLE && reduce && across && c->net_reduces;
    }
}

/* GB/s of the bus: caps, then what each protocol and algorithm leaves of it. */
static double dpari_tuner_bus(const dpari_tuner *t, int32_t a, int32_t p)
{
    int32_t row = t->generation, col = t->column, across = t->g->nodes > 1;
    double bus = t->bus, ch = t->channels, per = t->g->per_node;
    double ll = (double)dpari_nccl_ll[across ? (row > 1 ? 1 : row) : row][col];
    switch (a) {
    case DPARI_RING:
        return p == DPARI_LL ? dpari_leastf(ll, 0.5 * bus)
               : p == DPARI_LL128
                   ? dpari_leastf(0.92 * bus, ch * (double)dpari_nccl_ring128[row][col])
                   : bus;
    case DPARI_TREE:
        return 0.85 * (p == DPARI_LL ? dpari_leastf(bus / 3.8, ll)
                       : p == DPARI_LL128
                           ? dpari_leastf(bus * (across ? 120.0 / 128.0 : 7.0 / 9.0),
                                          ch * (double)dpari_nccl_tree128[row][col])
                           : dpari_leastf(0.92 * bus, ch * (double)dpari_nccl_tree[row][col]));
    case DPARI_NVLS:
    case DPARI_NVLS_TREE:
        if (across) {
            bus *= a == DPARI_NVLS_TREE && t->g->nodes <= 2 ? 2.0 : 1.0;
            return dpari_leastf(bus, ch * (double)dpari_nccl_nvls_tree[row][col]);
        }
        bus *= (row == 2 ? 0.85 : 0.74) * (ch - 1.0) / ch;
        return bus * (t->kind == DPAR_ALL_REDUCE ? 2.0 : (per - 1.0) / per);
    case DPARI_PAT: return 0.75 * bus;
    default: return bus;
    }
}

static double dpari_tuner_latency(const dpari_tuner *t, int32_t a, int32_t p)
{
    double n = t->g->size, nodes = t->g->nodes, per = t->g->per_node;
    double link = (double)(t->pci ? dpari_nccl_pci : dpari_nccl_nvlink)[a][p];
    double net = (double)dpari_nccl_net[t->g->per_node == 1 ? DPARI_TREE : a][p];
    double crossing = (t->kind == DPAR_ALL_REDUCE ? 2.0 : 1.0) * (nodes - 1.0);
    double us = (double)dpari_nccl_base[a][p];
    switch (a) {
    case DPARI_TREE: return us + 2.0 * ((n / nodes - 1.0) * link + dpari_log2(nodes) * net);
    case DPARI_DIRECT:
        return us + 2.0 * (dpari_leastf(1.0, per - 1.0) * link + (per - 1.0) * 0.4) + net;
    case DPARI_COLLNET_CHAIN: return us + 2.0 * (per - 1.0) * link + net;
    case DPARI_NVLS: return us + link + (t->g->nodes > 1 ? net : 0.0);
    case DPARI_NVLS_TREE: return us + link + 2.0 * dpari_log2(nodes) * net;
    case DPARI_PAT: return us + dpari_log2(nodes) * net / 3.5 + 2.8 * n;
    default: break;
    }
    if (t->g->nodes > 1) { /* the network's own overhead: 1 us, three times under simple */
        link = dpari_mostf(link, p == DPARI_SIMPLE ? 3.0 : 1.0);
    }
    us += (t->steps - crossing) * link + crossing * net;
    return p == DPARI_SIMPLE && t->g->nodes > 1 && t->kind == DPAR_ALL_REDUCE &&
                   t->bytes / (t->channels * n) >= 64.0
               ? us * (t->generation == 0 ? 1.9 : 1.4)
               : us;
}

static double dpari_tuner_time(const dpari_tuner *t, int32_t a, int32_t p)
{
    double rate = dpari_tuner_bus(t, a, p), size = t->bytes / 64.0;
    int32_t i = 0;
    rate *= a == DPARI_RING || a == DPARI_NVLS ? t->g->size / t->steps : 0.5;
    while (i < 24 && size >= 2.0) {
        size *= 0.5;
        i++;
    }
    if (a == DPARI_TREE && i < 24) {
        rate *= (double)dpari_nccl_correct[p][i];
    }
    return dpari_tuner_latency(t, a, p) * 1e-6 + t->bytes / (rate * 1e9);
}

DPAR_API dpar_status dpar_nccl_tuner(const dpar_cluster *c, const dpar_group *g, int32_t kind,
                                     double bytes, double *seconds, const char **algorithm,
                                     const char **protocol)
{
    static const char name[DPARI_TUNED][16] = {
        "tree", "ring", "collnet-direct", "collnet-chain", "nvls", "nvls-tree", "pat"};
    static const char proto[DPARI_PROTOCOLS][8] = {"LL", "LL128", "simple"};
    dpari_tuner t;
    int32_t a, p;
    double best = -1.0;
    t.generation = c->gpu.generation - DPAR_GEN_VOLTA;
    if (t.generation < 0 || t.generation > 3 || g->size < 2 || !(bytes >= 0.0) || kind < 0 ||
        (kind > DPAR_REDUCE_SCATTER && kind != DPAR_BROADCAST && kind != DPAR_REDUCE)) {
        return DPAR_E_UNKNOWN;
    }
    dpari_tuner_init(&t, c, g, kind, bytes);
    for (a = 0; a < DPARI_TUNED; a++) {
        for (p = 0; p < DPARI_PROTOCOLS; p++) {
            double s = dpari_tuner_has(&t, c, a, p) ? dpari_tuner_time(&t, a, p) : -1.0;
            if (s >= 0.0 && (best < 0.0 || s < best)) {
                best = s;
                *algorithm = name[a];
                *protocol = proto[p];
            }
        }
    }
    *seconds = best;
    return DPAR_OK;
}
