/* SPDX-License-Identifier: MIT-0 */
/* The cost model of collectives. A call takes the time of the fastest algorithm and protocol that
 * NCCL would have on this machine, or interpolates measured times if the machine has them. Each
 * constant names its source; T6 and T8 are explained in tests/cost/collective.c. */
#include "collective.h"

#include "../base/real.h"
#include "inner.h"

/* ---- groups on the machine ------------------------------------------------------------------ */

DPAR_API void dpar_cluster_group_init(dpar_cluster_group *g, const dpar_cluster *c, int32_t n,
                                      int32_t stride)
{
    int32_t node = c->gpus_per_node, apart = stride > 0 ? stride : 1;
    int64_t span;
    g->size = n > 0 ? n : 1;
    span = (int64_t)g->size * apart;
    g->per_node = apart >= node ? 1 : (int32_t)dpari_least(g->size, dpari_most(1, node / apart));
    if (dpari_cluster_gpus(c) <= node) {
        g->per_node = g->size; /* one node holds everything */
    } else if (g->per_node == g->size && g->size > 1 && node % span != 0) {
        g->per_node = (g->size + 1) / 2; /* 4 of 6: the second group lies on two nodes */
    }
    g->nodes = (int32_t)dpari_ceil_div(g->size, g->per_node);
    g->sharing = (int32_t)dpari_most(1, node / g->per_node);
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
static const double dpari_peer_net_steps = 0.08;
static const double dpari_peer_share = 0.965;
/* In-switch reduction: (p+1)/p bytes at the switch instead of 2(p-1)/p, at 0.86 of the links' own
 * share; its pipeline is filled by about three base latencies (H100-class nccl-tests: 85 us + n /
 * 273 GB/s). */
static const double dpari_switch_base = 2.8;
static const double dpari_switch_share = 0.86;
/* NVLink 5 (B200 rows of 1, 64 and 8192 MiB): filled by 0.4 base latencies, in pieces; the quick
 * protocol's cap a channel did not rise with the links. */
static const double dpari_switch5_base = 0.4;
static const double dpari_switch5_share = 0.75;
static const double dpari_quick_blackwell = 0.46;
/* A tree between more than two nodes sends some bytes twice on a link, and its shorter phase is not
 * all hidden by the longer one; between two nodes it is. */
static const double dpari_phase_blend = 0.3;
static const double dpari_tree_share = 1.08;

static double dpari_wire(int32_t kind, double n)
{
    switch (kind) {
    case DPAR_CALL_ALL_REDUCE: return 2.0 * (n - 1.0) / n;
    case DPAR_CALL_ALL_GATHER:
    case DPAR_CALL_REDUCE_SCATTER:
    case DPAR_CALL_ALL_TO_ALL:
    case DPAR_CALL_GATHER:
    case DPAR_CALL_SCATTER: return (n - 1.0) / n;
    case DPAR_CALL_BARRIER: return 0.0;
    default: return 1.0;
    }
}

static double dpari_steps(int32_t kind, double n)
{
    switch (kind) {
    case DPAR_CALL_ALL_REDUCE: return 2.0 * (n - 1.0);
    case DPAR_CALL_SEND_RECV: return 1.0;
    case DPAR_CALL_BARRIER: return dpari_ceil_log2((int64_t)n);
    default: return n - 1.0;
    }
}

/* Of a torus of equal sides (3-d for chips of two cores): one link for two, else the two links of
 * each axis along which n chips lie. */
static DPARI_COLD double dpari_torus_share(int32_t dims, int32_t all, int32_t n)
{
    int32_t side = 1, axes = 1, reach;
    while ((dims == 3 ? side * side : side) * side < all) {
        side++;
    }
    for (reach = side; reach < n && axes < dims; reach *= side) {
        axes++;
    }
    return n == 2 ? 0.5 / dims : (double)axes / dims;
}

/* Returns the share of a chip's wired (not switched) links that n of the node's chips can use. */
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
        return dpari_torus_share(c->gpu.units > 1 ? 3 : 2, all, n);
    }
    if (c->gpu.generation == DPAR_GEN_CDNA && c->gpu.units <= 110 && n == 2) {
        return 1.0; /* MI250X: the two halves of a package share four links, 200 GB/s */
    }
    return (n - 1.0) / (all - 1.0); /* a wire to each peer */
}

/* What a group of n in a node gets of the links. Switched: a few per cent less for few ranks
 * (vTrain's A100 table: 200, 212, 226 GB/s for 2, 3, 4 ranks, 234 for 8), and through the switches
 * of a rack (72 of GB200 NVL72 at 8 GiB). */
static double dpari_link_of(const dpar_cluster *c, int32_t n)
{
    double B = c->link_Bps * c->cal.value[DPAR_CAL_LINK_SHARE];
    if (c->link_switched) {
        return B * (n <= 2 ? 0.86 : n == 3 ? 0.91 : n == 4 ? 0.965 : n <= 16 ? 1.0 : 0.85);
    }
    return B * dpari_wired_share(c, n);
}

/* Returns seconds and latency of the faster protocol. floor: the least time of a call; steps:
 * seconds of its steps under the quick protocol; wire: seconds on the wire at full bandwidth. */
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

/* Returns the time of a pipeline that takes `fill` to fill and `wire` to carry everything. With the
 * best size of pieces it is (sqrt(fill) + sqrt(wire))^2, as in textbooks on pipelined trees. */
static dpari_timing dpari_pieces(double base, double fill, double wire)
{
    dpari_timing t;
    t.latency = base + fill;
    t.seconds = t.latency + wire + 2.0 * dpari_sqrt(fill * wire);
    return t;
}

static double dpari_quick_share(const dpar_cluster *c)
{
    return c->gpu.generation == DPAR_GEN_BLACKWELL ? dpari_quick_blackwell
           : c->gpu.generation == DPAR_GEN_HOPPER  ? dpari_quick_hopper
                                                   : dpari_quick_ampere;
}

static double dpari_switch(const dpar_cluster *c)
{
    return c->gpu.generation == DPAR_GEN_BLACKWELL ? dpari_switch5_share : dpari_switch_share;
}

static void dpari_keep_least(dpar_collective_cost *cost, dpari_timing t, int32_t algorithm)
{
    if (cost->algorithm < 0 || t.seconds < cost->seconds) {
        cost->seconds = t.seconds;
        cost->latency_s = t.latency;
        cost->algorithm = algorithm;
    }
}

/* Prices a call inside a node: a ring or pairs under the faster protocol, or the switch. */
static void dpari_inside(const dpar_cluster *c, int32_t n, int32_t kind, double bytes,
                         dpar_collective_cost *cost)
{
    const double *k = c->cal.value;
    double B = dpari_link_of(c, n), wire = dpari_wire(kind, n) * bytes, base = k[DPAR_CAL_BASE_S];
    double steps = dpari_steps(kind, n) * k[DPAR_CAL_LINK_S], p = n;
    dpari_timing t;
    cost->link_bytes = wire;
    if (kind == DPAR_CALL_SEND_RECV) {
        t.latency = 0.5 * base + steps;
        t.seconds = t.latency + wire / B;
        dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
        return;
    }
    if (kind == DPAR_CALL_ALL_TO_ALL) {
        t = dpari_protocols(base, steps, wire / (B * dpari_peer_share), dpari_quick_share(c));
        t.seconds = dpari_mostf(t.seconds, base + dpari_peer_steps * steps);
        dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
        return;
    }
    if (kind == DPAR_CALL_ALL_REDUCE && c->link_reduces && n > 2) {
        double pass = bytes * (p + 1.0) / p / (B * dpari_switch(c));
        t.latency = dpari_switch_base * base;
        t.seconds = t.latency + pass;
        if (c->gpu.generation == DPAR_GEN_BLACKWELL) {
            t = dpari_pieces(base, dpari_switch5_base * base, pass);
        }
        dpari_keep_least(cost, t, DPAR_ALG_IN_SWITCH);
        steps *= 0.5; /* below that size the switch still replaces one of the two passes */
    }
    t = dpari_protocols(base, steps, wire / B, dpari_quick_share(c));
    dpari_keep_least(cost, t, DPAR_ALG_RING);
}

/* Returns the bytes/s of the NICs for one rank of a group when all groups of the node send at once.
 */
static double dpari_nic_rate(const dpar_cluster *c, const dpar_cluster_group *g)
{
    double node = c->nics * c->nic_Bps * c->taper * c->cal.value[DPAR_CAL_NET_SHARE];
    double rate = node / g->sharing / g->per_node;
    double own = c->nic_Bps * c->cal.value[DPAR_CAL_NET_SHARE] *
                 dpari_mostf(1.0, (double)c->nics / c->gpus_per_node);
    return dpari_leastf(rate, own);
}

/* Returns the time of a tree between nodes, under the quick protocol or in pieces. */
static dpari_timing dpari_tree(double base, double inside, double hops, double wire)
{
    dpari_timing t;
    const dpari_timing whole = dpari_pieces(base, hops, wire);
    t.latency = inside + hops;
    t.seconds = t.latency + wire / dpari_quick_net;
    return whole.seconds < t.seconds ? whole : t;
}

/* All-reduce in phases: reduce-scatter inside the nodes, a tree between them (or in the network's
 * switches), all-gather inside. */
static void dpari_phases(const dpar_cluster *c, const dpar_cluster_group *g, double bytes,
                         double nic, double link, dpar_collective_cost *cost)
{
    const double *k = c->cal.value;
    double nodes = g->nodes, per = g->per_node, base = k[DPAR_CAL_BASE_S];
    double up = dpari_ceil_log2(g->nodes), inner = 0.0, outer, inside, shorter;
    if (per > 1.0) {
        inner = 2.0 * (per - 1.0) / per * bytes / link;
        if (c->link_reduces && per > 2.0) {
            inner = dpari_leastf(inner, bytes * (per + 1.0) / per / (link * dpari_switch(c)));
        }
    }
    inside = base + 2.0 * (per - 1.0) * k[DPAR_CAL_LINK_S];
    outer = 2.0 * (nodes - 1.0) / nodes * bytes / (per * nic);
    shorter = g->nodes > 2 ? dpari_phase_blend * dpari_leastf(inner, outer) : 0.0;
    outer = dpari_mostf(inner, outer) * (g->nodes > 2 ? dpari_tree_share : 1.0);
    dpari_keep_least(cost, dpari_tree(base, inside, k[DPAR_CAL_HOP_S] * up, outer + shorter),
                     DPAR_ALG_HIERARCHICAL);
    if (c->net_reduces) {
        outer = (nodes + 1.0) / nodes * bytes / (per * nic);
        outer = dpari_mostf(inner, outer) + dpari_phase_blend * dpari_leastf(inner, outer);
        dpari_keep_least(cost, dpari_tree(base, inside, k[DPAR_CAL_HOP_S], outer),
                         DPAR_ALG_IN_SWITCH);
    }
}

/* Returns the time of a ring over nodes with `steps` steps of `piece` bytes and `wire` seconds on
 * the wire. */
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

static int dpari_has_pat(const dpar_cluster *c)
{
    return c->gpu.generation == DPAR_GEN_BLACKWELL || c->gpu.generation == DPAR_GEN_HOPPER;
}

/* Across nodes. A ring over all ranks, which is all that NCCL has for gathers and scatters: its
 * steps are what makes them slow on many ranks (T6). From Hopper's software on, groups of one rank
 * a node have PAT's parallel trees: a fifth of the steps at 0.75 of the bandwidth (NCCL's tuner:
 * 2.8 us a rank against 14). */
static void dpari_across(const dpar_cluster *c, const dpar_cluster_group *g, int32_t kind,
                         double bytes, dpar_collective_cost *cost)
{
    const double *k = c->cal.value;
    double nic = dpari_nic_rate(c, g), n = g->size, per = g->per_node, base = k[DPAR_CAL_BASE_S];
    double ways = kind == DPAR_CALL_ALL_REDUCE ? 2.0 : 1.0, wire, steps;
    double link = per > 1.0 ? dpari_link_of(c, g->per_node) : 0.0;
    wire = dpari_wire(kind, n) * bytes / (nic * per);
    if (per > 1.0) {
        wire = dpari_mostf(wire, dpari_wire(kind, n) * bytes / link);
    }
    dpari_keep_least(cost, dpari_ring_timing(c, dpari_steps(kind, n), bytes / n, wire),
                     DPAR_ALG_RING);
    if (kind == DPAR_CALL_ALL_REDUCE) {
        dpari_phases(c, g, bytes, nic, link, cost);
    } else if (g->per_node == 1 && dpari_has_pat(c) &&
               (kind == DPAR_CALL_ALL_GATHER || kind == DPAR_CALL_REDUCE_SCATTER)) {
        steps = (0.3 * dpari_ceil_log2(g->nodes) + 0.2 * n) * k[DPAR_CAL_NET_S];
        dpari_keep_least(cost, dpari_protocols(base, steps, wire / 0.75, dpari_quick_net),
                         DPAR_ALG_TREE);
    }
    cost->nic_bytes = ways * (g->nodes - 1.0) / g->nodes * bytes / per;
    cost->link_bytes = per > 1.0 ? ways * (per - 1.0) / per * bytes : 0.0;
}

/* Prices an all-to-all: what stays in the node is sent over its links, and at the same time
 * (nodes-1)/nodes over the rank's own share of the NICs. */
static void dpari_across_all(const dpar_cluster *c, const dpar_cluster_group *g, double bytes,
                             dpar_collective_cost *cost)
{
    const double *k = c->cal.value;
    double n = g->size, per = g->per_node, wire, posts;
    dpari_timing t;
    cost->nic_bytes = bytes * (n - per) / n;
    cost->link_bytes = bytes * (per - 1.0) / n;
    wire = dpari_mostf(cost->nic_bytes / dpari_nic_rate(c, g),
                       per > 1.0 ? cost->link_bytes / dpari_link_of(c, g->per_node) : 0.0);
    posts = dpari_peer_net_steps * (n - per) * k[DPAR_CAL_NET_S];
    t.latency = k[DPAR_CAL_BASE_S] + dpari_peer_steps * (per - 1.0) * k[DPAR_CAL_LINK_S] + posts;
    t.seconds = t.latency + wire + 2.0 * dpari_sqrt(posts * wire);
    dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
}

/* ---- measured calls ---- */

/* Returns the time at a size: straight lines between the points and beyond the last, below the
 * first its time. */
static DPARI_COLD double dpari_curve_at(const dpar_curve *v, double bytes)
{
    int32_t i = 1;
    double s;
    if (bytes <= v->bytes[0] || v->count < 2) {
        return v->seconds[0];
    }
    while (i + 1 < v->count && v->bytes[i] < bytes) {
        i++;
    }
    s = (v->seconds[i] - v->seconds[i - 1]) / (v->bytes[i] - v->bytes[i - 1]);
    return v->seconds[i - 1] + (bytes - v->bytes[i - 1]) * s;
}

/* Scales the measured all-reduce of v->ranks ranks to another call of n ranks: the time on the wire
 * by the bytes, the latency by the steps. */
static DPARI_COLD double dpari_curve_call(const dpar_curve *v, int32_t kind, double n, double bytes)
{
    const double wire = dpari_wire(kind, n) / dpari_wire(DPAR_CALL_ALL_REDUCE, v->ranks);
    const double steps = dpari_steps(kind, n) / dpari_steps(DPAR_CALL_ALL_REDUCE, v->ranks);
    return dpari_curve_at(v, bytes * wire) + (steps - 1.0) * v->seconds[0];
}

/* Prices a call from measurements: inside a node, or between nodes with all ranks of a node at
 * once. */
static DPARI_COLD void dpari_measured_call(const dpar_cluster *c, const dpar_cluster_group *g,
                                           int32_t kind, double bytes, dpar_collective_cost *cost)
{
    const int32_t across = g->nodes > 1, send = kind == DPAR_CALL_SEND_RECV;
    const dpar_curve *v = &c->curve[(across ? DPAR_CURVE_NET : DPAR_CURVE_LINK) + send];
    const dpar_curve *in = &c->curve[DPAR_CURVE_LINK];
    const double per = across && !send ? g->per_node : 1.0;
    cost->algorithm = send ? DPAR_ALG_PAIRWISE : per > 1.0 ? DPAR_ALG_HIERARCHICAL : DPAR_ALG_RING;
    cost->latency_s = v->seconds[0];
    cost->seconds = send ? dpari_curve_at(v, bytes)
                         : dpari_curve_call(v, kind, across ? g->nodes : g->size, bytes / per);
    if (per > 1.0 && in->count > 0) {
        cost->seconds += dpari_curve_call(in, kind, per, bytes);
    }
    *(across ? &cost->nic_bytes : &cost->link_bytes) =
        dpari_wire(kind, across ? g->nodes : g->size) * bytes / per;
}

DPAR_API void dpar_collective_predict(const dpar_cluster *c, const dpar_cluster_group *g,
                                      int32_t kind, double bytes, dpar_collective_cost *cost)
{
    dpari_timing t;
    dpari_zero(cost, sizeof(*cost));
    if (g->size < 2 || kind <= DPAR_CALL_NONE || kind >= DPAR_CALL_COLLECTIVE_COUNT ||
        !(bytes > 0.0 || kind == DPAR_CALL_BARRIER)) {
        return;
    }
    if (c->curve[(g->nodes > 1 ? DPAR_CURVE_NET : DPAR_CURVE_LINK) + (kind == DPAR_CALL_SEND_RECV)]
            .count > 0) {
        dpari_measured_call(c, g, kind, bytes, cost);
        return;
    }
    cost->algorithm = -1;
    if (g->nodes < 2) {
        dpari_inside(c, g->size, kind, bytes, cost);
        return;
    }
    cost->nic_Bps = dpari_nic_rate(c, g);
    if (kind == DPAR_CALL_ALL_TO_ALL) {
        dpari_across_all(c, g, bytes, cost);
    } else if (kind == DPAR_CALL_SEND_RECV) {
        cost->nic_bytes = bytes;
        t.latency =
            0.5 * c->cal.value[DPAR_CAL_BASE_S] + dpari_simple_steps * c->cal.value[DPAR_CAL_NET_S];
        t.seconds = t.latency + bytes / cost->nic_Bps;
        dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
    } else {
        dpari_across(c, g, kind, bytes, cost);
    }
}
