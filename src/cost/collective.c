/* SPDX-License-Identifier: MIT-0 */
/* The cost model of collectives. dpar_collective_predict prices every algorithm and protocol that
 * NCCL would have on this machine and takes the fastest. If the machine has measured times, it
 * interpolates between them instead. The price of each algorithm is a latency per step, plus the
 * bytes on the slowest wire over the bandwidth that programs reach there. Each constant names its
 * source; tests/cost/collective.c compares the result with the published tables.
 *
 * The planner (price.c and step.c) calls it for each group of ranks in a plan. */
#include "collective.h"

#include "../base/real.h"
#include "cost_private.h"

/* ---- groups on the machine ------------------------------------------------------------------- */

DPAR_API void dpar_cluster_group_init(dpar_cluster_group *group, const dpar_cluster *cluster,
                                      int32_t n, int32_t stride)
{
    int32_t node = cluster->gpus_per_node, apart = stride > 0 ? stride : 1;
    int64_t span;
    group->size = n > 0 ? n : 1;
    span = (int64_t)group->size * apart;
    group->per_node =
        apart >= node ? 1 : (int32_t)dpari_least(group->size, dpari_most(1, node / apart));
    if (dpari_cluster_gpus(cluster) <= node) {
        group->per_node = group->size; /* one node holds everything */
    } else if (group->per_node == group->size && group->size > 1 && node % span != 0) {
        /* as with groups of 4 ranks on nodes of 6 GPUs, where the second group spans two nodes */
        group->per_node = (group->size + 1) / 2;
    }
    group->nodes = (int32_t)dpari_ceil_div(group->size, group->per_node);
    group->sharing = (int32_t)dpari_most(1, node / group->per_node);
}

/* ---- the predictor --------------------------------------------------------------------------- */

/* NCCL has two protocols. The simple protocol reaches the whole bandwidth but pays 1.6 latencies
 * per step for its fences. The quick protocol pays one latency, because it sends flags with the
 * data, which cost bandwidth. Inside a node the quick protocol is LL128. It reaches 0.70 of the
 * bandwidth up to Ampere (vTrain's A100 all-reduce of 8 ranks has slopes of 93 and 134 GB/s) and
 * 0.92 on Hopper (NCCL's tuner raises the limit per channel from 20 to 36.7 GB/s there). Between
 * nodes the quick protocol of a tree is LL, which reaches a quarter of the NICs' bandwidth (in the
 * tuner 22.5 of 96 GB/s on two nodes). */
static const double dpari_simple_steps = 1.6;
static const double dpari_quick_ampere = 0.70;
static const double dpari_quick_hopper = 0.92;
static const double dpari_quick_net = 0.25;
/* A ring over nodes (SimAI's NIC table, 16 to 1024 ranks). Up to 64 KiB per rank each step takes
 * one latency. Beyond that a step takes 1.65 latencies, or 1.1 latencies and its time on the wire,
 * whichever is longer. */
static const double dpari_ring_quick_bytes = 65536.0;
static const double dpari_ring_fence = 1.65;
static const double dpari_ring_step = 1.1;
/* An all-to-all posts a send and a receive for each peer. Inside a node each peer takes about three
 * latencies of a step (in the H100-class nccl-tests rows the flat part is 76 us, against 46 us for
 * the other calls). Between nodes a peer takes much less than one latency, because many messages
 * are in flight at once (SimAI's all-to-all table, 0.52 to 0.67 at 16 MiB). The flows of an
 * all-to-all collide inside a node, so that it reaches 0.965 of a ring's bandwidth (the 8 GiB
 * row). */
static const double dpari_peer_steps = 3.3;
static const double dpari_peer_net_steps = 0.08;
static const double dpari_peer_share = 0.965;
/* In-switch reduction of p ranks sends (p+1)/p bytes through the switch instead of 2(p-1)/p. It
 * reaches 0.86 of what collectives reach on the links. Filling its pipeline takes about three base
 * latencies (H100-class nccl-tests rows: 85 us + n / 273 GB/s). */
static const double dpari_switch_base = 2.8;
static const double dpari_switch_share = 0.86;
/* NVLink 5 (B200 rows of 1, 64 and 8192 MiB). The vector is sent in pieces, and filling the
 * pipeline takes 0.4 base latencies. The quick protocol reaches a smaller share than on Hopper,
 * because its limit per channel did not rise with the bandwidth of the links. */
static const double dpari_switch5_base = 0.4;
static const double dpari_switch5_share = 0.75;
static const double dpari_quick_blackwell = 0.46;
/* All-reduce in phases, inside the nodes and between them. Between more than two nodes a tree sends
 * some bytes twice on a link, and the longer phase hides only a part of the shorter one. Between
 * two nodes it hides all of it. */
static const double dpari_phase_blend = 0.3;
static const double dpari_tree_share = 1.08;

/* Returns the bytes that a rank of n sends in a call, as a multiple of the full vector. */
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

/* Returns the number of successive steps in a call of n ranks. */
static double dpari_steps(int32_t kind, double n)
{
    switch (kind) {
    case DPAR_CALL_ALL_REDUCE: return 2.0 * (n - 1.0);
    case DPAR_CALL_SEND_RECV: return 1.0;
    case DPAR_CALL_BARRIER: return dpari_ceil_log2((int64_t)n);
    default: return n - 1.0;
    }
}

/* Returns the share of a chip's links that n neighbouring chips use in a torus of `all` chips with
 * equal sides. Two chips share one link. More chips use both links of each axis that they extend
 * along. */
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
static double dpari_wired_share(const dpar_cluster *cluster, int32_t n)
{
    /* shares for 2 to 7 of the eight V100 of a hybrid cube mesh: vTrain's V100 table over the
     * 134 GB/s of all eight */
    static const float cube[6] = {0.17f, 0.335f, 0.635f, 0.276f, 0.344f, 0.65f};
    int32_t all = cluster->gpus_per_node;
    if (n >= all) {
        return 1.0;
    }
    if (cluster->gpu.generation == DPAR_GEN_VOLTA && all == 8) {
        return (double)cube[n - 2];
    }
    if (cluster->gpu.generation == DPAR_GEN_TPU) {
        /* chips of two cores (v4, v5p) form a torus of 3 dims, the others of 2 */
        return dpari_torus_share(cluster->gpu.units > 1 ? 3 : 2, all, n);
    }
    if (cluster->gpu.generation == DPAR_GEN_CDNA && cluster->gpu.units <= 110 && n == 2) {
        return 1.0; /* MI250X: four links, 200 GB/s, connect the two halves of a package */
    }
    return (n - 1.0) / (all - 1.0); /* a wire to each peer */
}

/* Returns the share of switched links that n ranks reach. Few ranks reach a few per cent less
 * (vTrain's A100 table: 200, 212 and 226 GB/s for 2, 3 and 4 ranks, 234 GB/s for 8). More than 16
 * ranks are connected by the switches of a rack, and also reach less (the 72 ranks of GB200 NVL72
 * at 8 GiB). */
static double dpari_switched_share(int32_t n)
{
    if (n <= 2) {
        return 0.86;
    }
    if (n == 3) {
        return 0.91;
    }
    if (n == 4) {
        return 0.965;
    }
    return n <= 16 ? 1.0 : 0.85;
}

/* Returns the bytes/s that each rank of a group of n gets inside a node. */
static double dpari_link_of(const dpar_cluster *cluster, int32_t n)
{
    double bandwidth = cluster->link_Bps * cluster->cal.value[DPAR_CAL_LINK_SHARE];
    if (cluster->link_switched) {
        return bandwidth * dpari_switched_share(n);
    }
    return bandwidth * dpari_wired_share(cluster, n);
}

/* The predicted time of a call, and the part of it that does not shrink with the bytes. */
typedef struct dpari_timing {
    double seconds, latency;
} dpari_timing;

/* Returns the timing of the faster protocol.
 *
 * base:        seconds before the first step
 * steps:       seconds of all steps under the quick protocol
 * wire:        seconds on the wire at full bandwidth
 * quick_share: share of the bandwidth that the quick protocol reaches */
static dpari_timing dpari_protocols(double base, double steps, double wire, double quick_share)
{
    dpari_timing t, simple;
    t.latency = base + steps;
    t.seconds = dpari_mostf(t.latency, base + wire / quick_share);
    simple.latency = base + dpari_simple_steps * steps;
    simple.seconds = simple.latency + wire;
    return simple.seconds < t.seconds ? simple : t;
}

/* Returns the timing of a pipeline that takes `fill` seconds to fill and `wire` seconds to carry
 * all bytes. If the size of the pieces is chosen best, that is (sqrt(fill) + sqrt(wire))^2 seconds,
 * a textbook result on pipelined trees. */
static dpari_timing dpari_pieces(double base, double fill, double wire)
{
    dpari_timing t;
    t.latency = base + fill;
    t.seconds = t.latency + wire + 2.0 * dpari_sqrt(fill * wire);
    return t;
}

static double dpari_quick_share(const dpar_cluster *cluster)
{
    switch (cluster->gpu.generation) {
    case DPAR_GEN_BLACKWELL: return dpari_quick_blackwell;
    case DPAR_GEN_HOPPER: return dpari_quick_hopper;
    default: return dpari_quick_ampere;
    }
}

/* Returns the share of the links' rate that in-switch reduction reaches. */
static double dpari_switch_rate(const dpar_cluster *cluster)
{
    return cluster->gpu.generation == DPAR_GEN_BLACKWELL ? dpari_switch5_share : dpari_switch_share;
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
static void dpari_inside(const dpar_cluster *cluster, int32_t n, int32_t kind, double bytes,
                         dpar_collective_cost *cost)
{
    const double *cal = cluster->cal.value;
    double bandwidth = dpari_link_of(cluster, n), wire = dpari_wire(kind, n) * bytes,
           base = cal[DPAR_CAL_BASE_S];
    double steps = dpari_steps(kind, n) * cal[DPAR_CAL_LINK_S], p = n;
    dpari_timing t;
    cost->link_bytes = wire;
    if (kind == DPAR_CALL_SEND_RECV) {
        t.latency = 0.5 * base + steps;
        t.seconds = t.latency + wire / bandwidth;
        dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
        return;
    }
    if (kind == DPAR_CALL_ALL_TO_ALL) {
        t = dpari_protocols(base, steps, wire / (bandwidth * dpari_peer_share),
                            dpari_quick_share(cluster));
        t.seconds = dpari_mostf(t.seconds, base + dpari_peer_steps * steps);
        dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
        return;
    }
    if (kind == DPAR_CALL_ALL_REDUCE && cluster->link_reduces && n > 2) {
        double pass = bytes * (p + 1.0) / p / (bandwidth * dpari_switch_rate(cluster));
        t.latency = dpari_switch_base * base;
        t.seconds = t.latency + pass;
        if (cluster->gpu.generation == DPAR_GEN_BLACKWELL) {
            t = dpari_pieces(base, dpari_switch5_base * base, pass);
        }
        dpari_keep_least(cost, t, DPAR_ALG_IN_SWITCH);
        /* for vectors too small for this, the switch still replaces one of the two passes of the
         * ring */
        steps *= 0.5;
    }
    t = dpari_protocols(base, steps, wire / bandwidth, dpari_quick_share(cluster));
    dpari_keep_least(cost, t, DPAR_ALG_RING);
}

/* Returns the bytes/s of the NICs for one rank of a group when all groups of the node send at once.
 * A rank cannot get more than the NICs next to it carry, even if the other NICs are idle. */
static double dpari_nic_rate(const dpar_cluster *cluster, const dpar_cluster_group *group)
{
    double node =
        cluster->nics * cluster->nic_Bps * cluster->taper * cluster->cal.value[DPAR_CAL_NET_SHARE];
    double rate = node / group->sharing / group->per_node;
    double own = cluster->nic_Bps * cluster->cal.value[DPAR_CAL_NET_SHARE] *
                 dpari_mostf(1.0, (double)cluster->nics / cluster->gpus_per_node);
    return dpari_leastf(rate, own);
}

/* Returns the timing of a tree between nodes, under the quick protocol or in pieces, whichever is
 * faster. `inside` and `hops` are the seconds of the steps inside and between the nodes. */
static dpari_timing dpari_tree(double base, double inside, double hops, double wire)
{
    dpari_timing t;
    const dpari_timing whole = dpari_pieces(base, hops, wire);
    t.latency = inside + hops;
    t.seconds = t.latency + wire / dpari_quick_net;
    return whole.seconds < t.seconds ? whole : t;
}

/* Prices an all-reduce in phases: a reduce-scatter inside the nodes, a tree between them, and an
 * all-gather inside. If the network reduces, its switches are priced in place of the tree too. */
static void dpari_phases(const dpar_cluster *cluster, const dpar_cluster_group *group, double bytes,
                         double nic, double link, dpar_collective_cost *cost)
{
    const double *cal = cluster->cal.value;
    double nodes = group->nodes, per = group->per_node, base = cal[DPAR_CAL_BASE_S];
    double up = dpari_ceil_log2(group->nodes), inner = 0.0, outer, inside, shorter;
    if (per > 1.0) {
        inner = 2.0 * (per - 1.0) / per * bytes / link;
        if (cluster->link_reduces && per > 2.0) {
            inner = dpari_leastf(inner,
                                 bytes * (per + 1.0) / per / (link * dpari_switch_rate(cluster)));
        }
    }
    inside = base + 2.0 * (per - 1.0) * cal[DPAR_CAL_LINK_S];
    outer = 2.0 * (nodes - 1.0) / nodes * bytes / (per * nic);
    shorter = group->nodes > 2 ? dpari_phase_blend * dpari_leastf(inner, outer) : 0.0;
    outer = dpari_mostf(inner, outer) * (group->nodes > 2 ? dpari_tree_share : 1.0);
    dpari_keep_least(cost, dpari_tree(base, inside, cal[DPAR_CAL_HOP_S] * up, outer + shorter),
                     DPAR_ALG_HIERARCHICAL);
    if (cluster->net_reduces) {
        outer = (nodes + 1.0) / nodes * bytes / (per * nic);
        outer = dpari_mostf(inner, outer) + dpari_phase_blend * dpari_leastf(inner, outer);
        dpari_keep_least(cost, dpari_tree(base, inside, cal[DPAR_CAL_HOP_S], outer),
                         DPAR_ALG_IN_SWITCH);
    }
}

/* Returns the time of a ring over nodes with `steps` steps of `piece` bytes and `wire` seconds on
 * the wire. */
static dpari_timing dpari_ring_timing(const dpar_cluster *cluster, double steps, double piece,
                                      double wire)
{
    double base = cluster->cal.value[DPAR_CAL_BASE_S],
           pass = steps * cluster->cal.value[DPAR_CAL_NET_S];
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

/* Prices a call between nodes. For all-gathers and reduce-scatters NCCL has only a ring over all
 * ranks, whose many steps make them slow on many ranks. The software of Hopper and later chips has
 * PAT's parallel trees for groups of one rank per node. They take a fifth of the steps and reach
 * 0.75 of the bandwidth (NCCL's tuner: 2.8 us per rank against 14). */
static void dpari_across(const dpar_cluster *cluster, const dpar_cluster_group *group, int32_t kind,
                         double bytes, dpar_collective_cost *cost)
{
    const double *cal = cluster->cal.value;
    double nic = dpari_nic_rate(cluster, group), n = group->size, per = group->per_node,
           base = cal[DPAR_CAL_BASE_S];
    double ways = kind == DPAR_CALL_ALL_REDUCE ? 2.0 : 1.0, wire, steps;
    double link = per > 1.0 ? dpari_link_of(cluster, group->per_node) : 0.0;
    wire = dpari_wire(kind, n) * bytes / (nic * per);
    if (per > 1.0) {
        wire = dpari_mostf(wire, dpari_wire(kind, n) * bytes / link);
    }
    dpari_keep_least(cost, dpari_ring_timing(cluster, dpari_steps(kind, n), bytes / n, wire),
                     DPAR_ALG_RING);
    if (kind == DPAR_CALL_ALL_REDUCE) {
        dpari_phases(cluster, group, bytes, nic, link, cost);
    } else if (group->per_node == 1 &&
               (cluster->gpu.generation == DPAR_GEN_BLACKWELL ||
                cluster->gpu.generation == DPAR_GEN_HOPPER) &&
               (kind == DPAR_CALL_ALL_GATHER || kind == DPAR_CALL_REDUCE_SCATTER)) {
        steps = (0.3 * dpari_ceil_log2(group->nodes) + 0.2 * n) * cal[DPAR_CAL_NET_S];
        dpari_keep_least(cost, dpari_protocols(base, steps, wire / 0.75, dpari_quick_net),
                         DPAR_ALG_TREE);
    }
    cost->nic_bytes = ways * (group->nodes - 1.0) / group->nodes * bytes / per;
    cost->link_bytes = per > 1.0 ? ways * (per - 1.0) / per * bytes : 0.0;
}

/* Prices an all-to-all between nodes. The bytes for ranks on the same node are sent over its links.
 * At the same time the other (nodes-1)/nodes of all bytes are sent over the rank's share of the
 * NICs. */
static void dpari_across_all(const dpar_cluster *cluster, const dpar_cluster_group *group,
                             double bytes, dpar_collective_cost *cost)
{
    const double *cal = cluster->cal.value;
    double n = group->size, per = group->per_node, wire, posts;
    dpari_timing t;
    cost->nic_bytes = bytes * (n - per) / n;
    cost->link_bytes = bytes * (per - 1.0) / n;
    wire =
        dpari_mostf(cost->nic_bytes / dpari_nic_rate(cluster, group),
                    per > 1.0 ? cost->link_bytes / dpari_link_of(cluster, group->per_node) : 0.0);
    posts = dpari_peer_net_steps * (n - per) * cal[DPAR_CAL_NET_S];
    t.latency =
        cal[DPAR_CAL_BASE_S] + dpari_peer_steps * (per - 1.0) * cal[DPAR_CAL_LINK_S] + posts;
    t.seconds = t.latency + wire + 2.0 * dpari_sqrt(posts * wire);
    dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
}

/* ---- measured calls -------------------------------------------------------------------------- */

/* Returns the measured time at a size. It interpolates linearly between the points, extrapolates
 * beyond the last one, and returns the time of the first point for fewer bytes. */
static DPARI_COLD double dpari_curve_at(const dpar_curve *v, double bytes)
{
    int32_t i = 1;
    double slope;
    if (bytes <= v->bytes[0] || v->count < 2) {
        return v->seconds[0];
    }
    while (i + 1 < v->count && v->bytes[i] < bytes) {
        i++;
    }
    slope = (v->seconds[i] - v->seconds[i - 1]) / (v->bytes[i] - v->bytes[i - 1]);
    return v->seconds[i - 1] + (bytes - v->bytes[i - 1]) * slope;
}

/* Scales the measured all-reduce of v->ranks ranks to another call of n ranks. The time on the wire
 * scales with the bytes that a rank sends, and the latency with the number of steps. */
static DPARI_COLD double dpari_curve_call(const dpar_curve *v, int32_t kind, double n, double bytes)
{
    const double wire = dpari_wire(kind, n) / dpari_wire(DPAR_CALL_ALL_REDUCE, v->ranks);
    const double steps = dpari_steps(kind, n) / dpari_steps(DPAR_CALL_ALL_REDUCE, v->ranks);
    return dpari_curve_at(v, bytes * wire) + (steps - 1.0) * v->seconds[0];
}

/* Prices a call from measurements. Between nodes all ranks of a node take part at once, so the time
 * inside the nodes is added, if it was measured. */
static DPARI_COLD void dpari_measured_call(const dpar_cluster *cluster,
                                           const dpar_cluster_group *group, const dpar_curve *v,
                                           int32_t kind, double bytes, dpar_collective_cost *cost)
{
    const int32_t across = group->nodes > 1;
    const int32_t send = kind == DPAR_CALL_SEND_RECV;
    const dpar_curve *in = &cluster->curve[DPAR_CURVE_LINK];
    const double per = across && !send ? group->per_node : 1.0;
    const int32_t ranks = across ? group->nodes : group->size;
    const double sent = dpari_wire(kind, ranks) * bytes / per;
    cost->latency_s = v->seconds[0];
    if (send) {
        cost->algorithm = DPAR_ALG_PAIRWISE;
        cost->seconds = dpari_curve_at(v, bytes);
    } else {
        cost->algorithm = per > 1.0 ? DPAR_ALG_HIERARCHICAL : DPAR_ALG_RING;
        cost->seconds = dpari_curve_call(v, kind, ranks, bytes / per);
    }
    if (per > 1.0 && in->count > 0) {
        cost->seconds += dpari_curve_call(in, kind, per, bytes);
    }
    if (across) {
        cost->nic_bytes = sent;
    } else {
        cost->link_bytes = sent;
    }
}

DPAR_API void dpar_collective_predict(const dpar_cluster *cluster, const dpar_cluster_group *group,
                                      int32_t kind, double bytes, dpar_collective_cost *cost)
{
    const int32_t send = kind == DPAR_CALL_SEND_RECV;
    const dpar_curve *measured;
    dpari_timing t;
    dpari_zero(cost, sizeof(*cost));
    if (group->size < 2 || kind <= DPAR_CALL_NONE || kind >= DPAR_CALL_COLLECTIVE_COUNT ||
        !(bytes > 0.0 || kind == DPAR_CALL_BARRIER)) {
        return;
    }
    measured = &cluster->curve[(group->nodes > 1 ? DPAR_CURVE_NET : DPAR_CURVE_LINK) + send];
    if (measured->count > 0) {
        dpari_measured_call(cluster, group, measured, kind, bytes, cost);
        return;
    }
    cost->algorithm = -1;
    if (group->nodes < 2) {
        dpari_inside(cluster, group->size, kind, bytes, cost);
        return;
    }
    cost->nic_Bps = dpari_nic_rate(cluster, group);
    if (kind == DPAR_CALL_ALL_TO_ALL) {
        dpari_across_all(cluster, group, bytes, cost);
    } else if (send) {
        cost->nic_bytes = bytes;
        t.latency = 0.5 * cluster->cal.value[DPAR_CAL_BASE_S] +
                    dpari_simple_steps * cluster->cal.value[DPAR_CAL_NET_S];
        t.seconds = t.latency + bytes / cost->nic_Bps;
        dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
    } else {
        dpari_across(cluster, group, kind, bytes, cost);
    }
}
