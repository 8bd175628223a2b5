/* SPDX-License-Identifier: MIT-0 */
#include "collective.h"

#include "../base/real.h"

DPAR_API const char *dpar_collective_name(int32_t kind)
{
    static const char name[DPAR_COLLECTIVES][16] = {
        "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast",
        "reduce",     "gather",     "scatter",        "send-recv",  "barrier"};
    return kind >= 0 && kind < DPAR_COLLECTIVES ? name[kind] : "?";
}

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
    g.size = n > 0 ? n : 1;
    g.per_node = apart >= node ? 1 : (int32_t)dpari_least(g.size, dpari_most(1, node / apart));
    if (dpar_cluster_gpus(c) <= node) {
        g.per_node = g.size; /* one node holds everything */
    }
    g.nodes = (int32_t)dpari_ceil_div(g.size, g.per_node);
    g.sharing = (int32_t)dpari_most(1, node / g.per_node);
    return g;
}

/* ---- the predictor -------------------------------------------------------------------------- */

/* The low-latency protocol (NCCL's LL128) carries flag words with the data and skips the
 * synchronisation of the simple one: it reaches about 0.7 of the bandwidth (vTrain's A100
 * all-reduce, 8 ranks: a second line of slope 93 against 134 GB/s), and the simple one pays 1.6
 * times the latency a step. */
static const double dpari_protocol_share = 0.70;
static const double dpari_simple_steps = 1.6;
/* All-to-all posts one send and one receive a peer: about three steps' latency each (H100-class
 * nccl-tests: 76 us flat against 46). */
static const double dpari_peer_steps = 3.3;
/* In-switch reduction: (p+1)/p bytes at the switch instead of 2(p-1)/p; its pipeline is filled by
 * about three more base latencies (H100-class nccl-tests: 85 us + n / 273 GB/s). */
static const double dpari_switch_base = 2.8;
/* Part of the shorter phase of a hierarchical collective that the longer one does not hide. */
static const double dpari_phase_blend = 0.3;
/* A tree's hop between nodes takes about three ring steps: NCCL's tuner has 14 us against 5. */
static const double dpari_tree_hop = 3.0;

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

/* What a group of n in a node gets of the links. Switched: a few per cent less for two and four
 * ranks (fewer rings; vTrain: 200, 226, 234 GB/s). Wired pairs: two ranks have one pair's links. */
static double dpari_link_of(const dpar_cluster *c, int32_t n)
{
    double share = c->cal.value[DPAR_CAL_LINK_SHARE], all = c->gpus_per_node;
    if (c->link_switched) {
        return c->link_Bps * share * (n <= 2 ? 0.86 : n <= 4 ? 0.965 : 1.0);
    }
    if (n <= 2 && all > 2.0) {
        return c->link_Bps * share / dpari_leastf(all - 1.0, 6.0);
    }
    return c->link_Bps * share * (n < c->gpus_per_node ? 0.63 : 1.0);
}

/* Inside a node: the faster protocol, or the switch. */
static double dpari_inside(const dpar_cluster *c, int32_t n, int32_t kind, double bytes,
                           double *latency, int32_t *algorithm)
{
    const double *k = c->cal.value;
    double B = dpari_link_of(c, n), wire = dpari_wire(kind, n) * bytes, base = k[DPAR_CAL_BASE_S];
    double steps = dpari_steps(kind, n) * k[DPAR_CAL_LINK_S], quick, simple, in_switch;
    *algorithm =
        kind == DPAR_ALL_TO_ALL || kind == DPAR_SEND_RECV ? DPAR_ALG_PAIRWISE : DPAR_ALG_RING;
    if (kind == DPAR_ALL_TO_ALL) {
        *latency = base + dpari_simple_steps * steps;
        return dpari_mostf(base + dpari_peer_steps * steps, *latency + wire / B);
    }
    if (kind == DPAR_SEND_RECV) {
        *latency = 0.5 * base + steps;
        return *latency + wire / B;
    }
    quick = dpari_mostf(base + steps, base + wire / (dpari_protocol_share * B));
    simple = base + dpari_simple_steps * steps + wire / B;
    *latency = quick < simple ? base + steps : base + dpari_simple_steps * steps;
    quick = dpari_leastf(quick, simple);
    if (kind == DPAR_ALL_REDUCE && c->link_reduces && n > 2) {
        double p = n, rate = c->link_Bps * 0.684; /* 273 of 450 * (p+1)/p, H100-class */
        in_switch = dpari_switch_base * base + bytes * (p + 1.0) / p / rate;
        if (in_switch < quick) {
            *algorithm = DPAR_ALG_IN_SWITCH;
            *latency = dpari_switch_base * base;
            quick = in_switch;
        }
    }
    return quick;
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

/* Across nodes, reductions and gathers: a ring over all ranks, or phases inside and across with a
 * tree between nodes. */
static void dpari_across(const dpar_cluster *c, const dpar_group *g, int32_t kind, double bytes,
                         dpar_collective_cost *cost)
{
    const double *k = c->cal.value;
    double nic = dpari_nic_rate(c, g), n = g->size, nodes = g->nodes, per = g->per_node;
    double ways = kind == DPAR_ALL_REDUCE ? 2.0 : 1.0, up = dpari_ceil_log2(g->nodes);
    double link = dpari_link_of(c, g->per_node), base = k[DPAR_CAL_BASE_S];
    double ring_latency = base + dpari_steps(kind, n) * k[DPAR_CAL_NET_S];
    double ring = ring_latency + dpari_mostf(dpari_wire(kind, n) * bytes / (nic * per),
                                             per > 1.0 ? dpari_wire(kind, n) * bytes / link : 0.0);
    double inner = per > 1.0 ? ways * (per - 1.0) / per * bytes / link : 0.0;
    double outer = ways * (nodes - 1.0) / nodes * bytes / (per * nic);
    double latency =
        base + ways * (dpari_tree_hop * up * k[DPAR_CAL_NET_S] + (per - 1.0) * k[DPAR_CAL_LINK_S]);
    double slow = dpari_mostf(inner, outer), quick = dpari_leastf(inner, outer);
    /* a tree between more than two nodes sends each byte twice on some links */
    double phases = latency + slow * (g->nodes > 2 ? 1.08 : 1.0) + dpari_phase_blend * quick;
    if (c->net_reduces && kind == DPAR_ALL_REDUCE) {
        outer = (nodes + 1.0) / nodes * bytes / (per * nic);
        phases = base + 2.0 * dpari_tree_hop * k[DPAR_CAL_NET_S] + dpari_mostf(inner, outer) +
                 dpari_phase_blend * dpari_leastf(inner, outer);
    }
    if (kind != DPAR_ALL_REDUCE) {
        /* gathers and scatters have the ring alone: their saturation moves with the ranks */
        phases = ring * 2.0;
    }
    cost->algorithm = ring < phases ? DPAR_ALG_RING : DPAR_ALG_HIERARCHICAL;
    cost->seconds = dpari_leastf(ring, phases);
    cost->latency_s = ring < phases ? ring_latency : latency;
    cost->nic_bytes = ways * (nodes - 1.0) / nodes * bytes / per;
    cost->link_bytes = per > 1.0 ? ways * (per - 1.0) / per * bytes : 0.0;
}

/* All-to-all: what stays in the node goes over its links, (nodes-1)/nodes over the rank's own share
 * of the NICs, both at once. */
static void dpari_across_all(const dpar_cluster *c, const dpar_group *g, double bytes,
                             dpar_collective_cost *cost)
{
    const double *k = c->cal.value;
    double n = g->size, per = g->per_node;
    cost->nic_bytes = bytes * (n - per) / n;
    cost->link_bytes = bytes * (per - 1.0) / n;
    cost->latency_s = k[DPAR_CAL_BASE_S] + (n - 1.0) * 0.5 * k[DPAR_CAL_NET_S];
    cost->algorithm = DPAR_ALG_PAIRWISE;
    cost->seconds = cost->latency_s +
                    dpari_mostf(cost->nic_bytes / dpari_nic_rate(c, g),
                                per > 1.0 ? cost->link_bytes / dpari_link_of(c, g->per_node) : 0.0);
}

DPAR_API void dpar_collective_cost_of(const dpar_cluster *c, const dpar_group *g, int32_t kind,
                                      double bytes, dpar_collective_cost *cost)
{
    dpari_zero(cost, sizeof(*cost));
    if (g->size < 2 || !(bytes > 0.0 || kind == DPAR_BARRIER)) {
        return;
    }
    if (g->nodes < 2) {
        cost->seconds = dpari_inside(c, g->size, kind, bytes, &cost->latency_s, &cost->algorithm);
        cost->link_bytes = dpari_wire(kind, g->size) * bytes;
        return;
    }
    cost->nic_Bps = dpari_nic_rate(c, g);
    if (kind == DPAR_ALL_TO_ALL) {
        dpari_across_all(c, g, bytes, cost);
    } else if (kind == DPAR_SEND_RECV) {
        cost->nic_bytes = bytes;
        cost->latency_s = 0.5 * c->cal.value[DPAR_CAL_BASE_S] + c->cal.value[DPAR_CAL_NET_S];
        cost->seconds = cost->latency_s + bytes / cost->nic_Bps;
        cost->algorithm = DPAR_ALG_PAIRWISE;
    } else {
        dpari_across(c, g, kind, bytes, cost);
    }
}

/* ---- NCCL's tuner --------------------------------------------------------------------------- */

enum { DPARI_TREE, DPARI_RING, DPARI_NVLS, DPARI_TUNED };
enum { DPARI_LL, DPARI_LL128, DPARI_SIMPLE, DPARI_PROTOCOLS };

/* NCCL 2.30, src/graph/tuning.cc: base and hardware latencies, us. */
static const float dpari_nccl_base[2][3] = {{6.8f, 14.0f, 8.4f}, {6.6f, 14.0f, 8.4f}};
static const float dpari_nccl_link[2][3] = {{0.6f, 1.25f, 4.0f}, {0.6f, 1.9f, 3.4f}};
static const float dpari_nccl_net[2][3] = {{5.0f, 8.5f, 14.0f}, {2.7f, 4.0f, 14.0f}};
/* GB/s caps at 1, 2 and 4 or more nodes for Volta, Ampere, Hopper, Blackwell. */
static const float dpari_nccl_ll[4][3] = {
    {39, 39, 20.4f}, {87.7f, 22.5f, 19}, {141, 45, 35}, {282, 90, 70}};
static const float dpari_nccl_ring128[4][3] = {
    {20, 20, 20}, {20, 20, 20}, {36.7f, 36.7f, 36.7f}, {40, 40, 40}};
static const float dpari_nccl_tree128[4][3] = {
    {20, 20, 20}, {20, 20, 20}, {36.7f, 36.7f, 29}, {55.6f, 31.67f, 20}};
static const float dpari_nccl_tree[4][3] = {
    {26.5f, 18.5f, 10}, {24, 23.6f, 17.8f}, {38.7f, 41.4f, 36}, {70, 42.8f, 24}};
/* Tree's correction for 64 B * 2^i. */
static const float dpari_nccl_correct[3][24] = {
    {1,   1,   1,   1,   .9f, .8f, .7f, .7f, .7f, .7f, .6f, .5f,
     .4f, .4f, .5f, .6f, .7f, .8f, .9f, 1,   1,   1,   1,   1},
    {1,   1,   1,   1,   1,   .9f, .8f, .8f, .8f, .7f, .6f, .6f,
     .6f, .6f, .6f, .6f, .8f, .9f, .9f, .9f, .9f, 1,   1,   1},
    {.9f, .9f, .9f, .9f, .9f, .9f, .9f, .8f, .7f, .6f, .6f, .5f,
     .5f, .5f, .5f, .6f, .7f, .8f, .7f, .7f, .8f, .9f, .9f, .9f}};

static double dpari_tuner_bandwidth(const dpar_cluster *c, const dpar_group *g, int32_t gen,
                                    int32_t algorithm, int32_t protocol)
{
    int32_t col = g->nodes == 1 ? 0 : g->nodes <= 3 ? 1 : 2;
    double links = gen == 0   ? 6.0
                   : gen == 1 ? 12.0
                              : 18.0,
           one = gen == 0   ? 20.0
                 : gen == 1 ? 20.0
                 : gen == 2 ? 20.6
                            : 40.1;
    double channels = links * 2.0, bus = links * one;
    if (g->nodes > 1) {
        bus = dpari_leastf(bus, c->nics * c->nic_Bps * 1e-9);
    }
    if (algorithm == DPARI_NVLS) {
        return bus * (gen == 2 ? 0.85 : 0.74) * (channels - 1.0) / channels;
    }
    if (algorithm == DPARI_RING) {
        return protocol == DPARI_LL ? dpari_leastf((double)dpari_nccl_ll[gen][col], 0.5 * bus)
               : protocol == DPARI_LL128
                   ? dpari_leastf(0.92 * bus, channels * (double)dpari_nccl_ring128[gen][col])
                   : bus;
    }
    if (protocol == DPARI_LL) {
        return dpari_leastf(bus / 3.8, (double)dpari_nccl_ll[gen][col]);
    }
    if (protocol == DPARI_LL128) {
        return dpari_leastf(bus * (g->nodes == 1 ? 7.0 / 9.0 : 120.0 / 128.0),
                            channels * (double)dpari_nccl_tree128[gen][col]);
    }
    return dpari_leastf(0.92 * bus, channels * (double)dpari_nccl_tree[gen][col]) * 0.85;
}

static double dpari_tuner_latency(const dpar_group *g, int32_t kind, int32_t algorithm,
                                  int32_t protocol)
{
    double n = g->size, nodes = g->nodes;
    double steps = kind == DPAR_ALL_REDUCE ? 2.0 * (n - 1.0) : n - 1.0;
    double crossing = g->nodes == 1             ? 0.0
                      : kind == DPAR_ALL_REDUCE ? 2.0 * (nodes - 1.0)
                                                : nodes - 1.0;
    double base, link, net;
    if (algorithm == DPARI_NVLS) {
        return 25.0 + (g->nodes > 1 ? 18.0 : 0.0);
    }
    base = (double)dpari_nccl_base[algorithm][protocol];
    link = (double)dpari_nccl_link[algorithm][protocol];
    net = (double)dpari_nccl_net[algorithm][protocol];
    if (algorithm == DPARI_TREE) {
        return base + 2.0 * ((n / nodes - 1.0) * link + dpari_log2(nodes) * net);
    }
    if (g->nodes > 1) {
        link = dpari_mostf(link, protocol == DPARI_SIMPLE ? 3.0 : 1.0);
    }
    return base + (steps - crossing) * link + crossing * net;
}

static double dpari_tuner_time(const dpar_cluster *c, const dpar_group *g, int32_t gen,
                               int32_t kind, double bytes, int32_t algorithm, int32_t protocol)
{
    double n = g->size, steps = kind == DPAR_ALL_REDUCE ? 2.0 * (n - 1.0) : n - 1.0;
    double bus = dpari_tuner_bandwidth(c, g, gen, algorithm, protocol);
    double rate = algorithm == DPARI_TREE ? 0.5 * bus : bus * n / steps;
    double latency = dpari_tuner_latency(g, kind, algorithm, protocol);
    int32_t i = dpari_ceil_log2((int64_t)(bytes / 64.0));
    if (algorithm == DPARI_NVLS && kind == DPAR_ALL_REDUCE) {
        rate *= 2.0;
    }
    if (algorithm == DPARI_TREE && i >= 0 && i < 24) {
        rate *= (double)dpari_nccl_correct[protocol][i];
    }
    if (algorithm == DPARI_RING && protocol == DPARI_SIMPLE && g->nodes > 1 &&
        kind == DPAR_ALL_REDUCE && bytes / (24.0 * n) >= 64.0) {
        latency *= gen == 0 ? 1.9 : 1.4;
    }
    return latency * 1e-6 + bytes / (rate * 1e9);
}

DPAR_API dpar_status dpar_nccl_tuner(const dpar_cluster *c, const dpar_group *g, int32_t kind,
                                     double bytes, double *seconds, const char **algorithm,
                                     const char **protocol)
{
    static const char name[DPARI_TUNED][8] = {"tree", "ring", "nvls"};
    static const char proto[DPARI_PROTOCOLS][8] = {"LL", "LL128", "simple"};
    int32_t gen = c->gpu.generation - DPAR_GEN_VOLTA, a, p;
    double best = -1.0;
    if (gen < 0 || gen > 3 || g->size < 2 || kind > DPAR_REDUCE_SCATTER) {
        return DPAR_E_UNKNOWN;
    }
    for (a = 0; a < DPARI_TUNED; a++) {
        for (p = 0; p < DPARI_PROTOCOLS; p++) {
            double t;
            if ((a == DPARI_TREE && kind != DPAR_ALL_REDUCE) ||
                (a == DPARI_NVLS && (p != DPARI_SIMPLE || gen < 2 || kind != DPAR_ALL_REDUCE))) {
                continue;
            }
            t = dpari_tuner_time(c, g, gen, kind, bytes, a, p);
            if (best < 0.0 || t < best) {
                best = t;
                *algorithm = name[a];
                *protocol = proto[p];
            }
        }
    }
    *seconds = best;
    return DPAR_OK;
}
