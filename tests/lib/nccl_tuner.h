/* SPDX-License-Identifier: MIT-0 */
/* nccl_tuner: the tuner of NCCL 2.30 (src/graph/tuning.cc), which predicts the time of each
 * algorithm and protocol and chooses the best. dpar_collective_predict is compared with it; the
 * tuner is made to rank algorithms, and its times are wrong by 7 to 32 %. It has all-reduce,
 * all-gather, reduce-scatter, broadcast and reduce. Returns *seconds and the names of the winner,
 * or E_UNKNOWN for a chip or kind that it has no table for, size 1, or bytes below 0. */
#ifndef NCCL_TUNER_H
#define NCCL_TUNER_H

#include "dpar_cost.h"

#include <math.h>

enum {
    TUNER_TREE,
    TUNER_RING,
    TUNER_DIRECT, /* CollNet: SHARP between nodes, where all ranks of a node take part at once */
    TUNER_COLLNET_CHAIN,
    TUNER_NVLS,
    TUNER_NVLS_TREE,
    TUNER_PAT,
    TUNER_ALGORITHMS
};
enum { TUNER_LL, TUNER_LL128, TUNER_SIMPLE, TUNER_PROTOCOLS };

/* Base latencies of NCCL 2.30, src/graph/tuning.cc (5067397, 2026-06), in us, by algorithm and
 * protocol; then those of a hop over NVLink, PCI and the network. */
static const float tuner_base[TUNER_ALGORITHMS][TUNER_PROTOCOLS] = {
    {6.8f, 14, 8.4f}, {6.6f, 14, 8.4f}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {8, 8, 8}};
static const float tuner_nvlink[TUNER_ALGORITHMS][TUNER_PROTOCOLS] = {
    {0.6f, 1.25f, 4}, {0.6f, 1.9f, 3.4f}, {0, 0, 3.7f}, {0, 0, 2.8f},
    {0, 0, 25},       {0, 0, 25},         {0, 0, 4}};
static const float tuner_pci[TUNER_ALGORITHMS][TUNER_PROTOCOLS] = {
    {1, 1.9f, 4}, {1, 2.5f, 5.7f}, {0, 0, 3.7f}, {0, 0, 2.8f}, {0, 0, 0}, {0, 0, 0}, {0, 0, 4}};
static const float tuner_net[TUNER_ALGORITHMS][TUNER_PROTOCOLS] = {
    {5, 8.5f, 14}, {2.7f, 4, 14}, {0, 0, 31}, {0, 0, 30}, {0, 0, 18}, {0, 0, 20.9f}, {0, 0, 14}};
/* Limits in GB/s on 1, 2 and more nodes for Volta, Ampere, Hopper and Blackwell: for LL in all, for
 * others per channel. Across nodes the row of LL depends on the processor: that of Ampere is for
 * AMD, that of Volta for Intel. */
static const float tuner_ll[4][3] = {
    {39, 39, 20.4f}, {87.7f, 22.5f, 19}, {141, 45, 35}, {282, 90, 70}};
static const float tuner_ring128[4][3] = {
    {20, 20, 20}, {20, 20, 20}, {36.7f, 36.7f, 36.7f}, {40, 40, 40}};
static const float tuner_tree128[4][3] = {
    {20, 20, 20}, {20, 20, 20}, {36.7f, 36.7f, 29}, {55.6f, 31.67f, 20}};
static const float tuner_tree[4][3] = {
    {26.5f, 18.5f, 10}, {24, 23.6f, 17.8f}, {38.7f, 41.4f, 36}, {70, 42.8f, 24}};
static const float tuner_nvls_tree[4][3] = {
    {26.5f, 18.5f, 10}, {24, 23.6f, 17.8f}, {0, 57.7f, 45.5f}, {0, 96, 80}};
/* Tree's correction factors for 64 B * 2^i. */
static const float tuner_correct[3][24] = {
    {1,   1,   1,   1,   .9f, .8f, .7f, .7f, .7f, .7f, .6f, .5f,
     .4f, .4f, .5f, .6f, .7f, .8f, .9f, 1,   1,   1,   1,   1},
    {1,   1,   1,   1,   1,   .9f, .8f, .8f, .8f, .7f, .6f, .6f,
     .6f, .6f, .6f, .6f, .8f, .9f, .9f, .9f, .9f, 1,   1,   1},
    {.9f, .9f, .9f, .9f, .9f, .9f, .9f, .8f, .7f, .6f, .6f, .5f,
     .5f, .5f, .5f, .6f, .7f, .8f, .7f, .7f, .8f, .9f, .9f, .9f}};

static inline double tuner_least(double a, double b)
{
    return a < b ? a : b;
}

static inline double tuner_most(double a, double b)
{
    return a > b ? a : b;
}

/* The machine as the tuner describes it. */
typedef struct tuner {
    const dpar_cluster_group *g;
    int32_t generation, column; /* rows and columns of the limits */
    int32_t pci, kind;
    double channels, bus; /* GB/s */
    double steps;         /* steps of a ring */
    double bytes;
} tuner;

/* Sets what the tuner assumes of links: 12 GB/s for PCI and for a network of 100 Gb/s, and about
 * 0.8 of NVLink's 25 (Blackwell 50) GB/s: 12 x 20 on A100, 18 x 20.6 on H100. */
static inline void tuner_init(tuner *t, const dpar_cluster *c, const dpar_cluster_group *g,
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
        t->bus = tuner_least(t->bus, c->nics * c->nic_Bps * 0.96e-9);
    }
    t->steps = kind == DPAR_CALL_ALL_REDUCE                                       ? 2.0 * (n - 1.0)
               : kind == DPAR_CALL_ALL_GATHER || kind == DPAR_CALL_REDUCE_SCATTER ? n - 1.0
                                                                                  : n;
}

/* Returns 1 if NCCL has this combination here, otherwise 0. */
static inline int tuner_has(const tuner *t, const dpar_cluster *c, int32_t a, int32_t p)
{
    int reduce = t->kind == DPAR_CALL_ALL_REDUCE, across = t->g->nodes > 1;
    int gather = t->kind == DPAR_CALL_ALL_GATHER || t->kind == DPAR_CALL_REDUCE_SCATTER;
    int nvls = c->link_reduces && t->generation >= 2 && t->g->per_node > 2;
    switch (a) {
    case TUNER_RING: return 1;
    case TUNER_TREE: return reduce;
    case TUNER_NVLS:
        return p == TUNER_SIMPLE && nvls && (reduce || gather) && (!across || c->net_reduces);
    case TUNER_NVLS_TREE: return p == TUNER_SIMPLE && nvls && reduce && across;
    case TUNER_PAT: return p == TUNER_SIMPLE && gather && across && t->g->per_node == 1;
    default: return p == TUNER_SIMPLE && reduce && across && c->net_reduces;
    }
}

/* Returns the bus bandwidth in GB/s: the limits, times the efficiency of protocol and algorithm. */
static inline double tuner_bus(const tuner *t, int32_t a, int32_t p)
{
    int32_t row = t->generation, col = t->column, across = t->g->nodes > 1;
    double bus = t->bus, ch = t->channels, per = t->g->per_node;
    double ll = (double)tuner_ll[across ? (row > 1 ? 1 : row) : row][col];
    switch (a) {
    case TUNER_RING:
        return p == TUNER_LL ? tuner_least(ll, 0.5 * bus)
               : p == TUNER_LL128
                   ? tuner_least(0.92 * bus, ch * (double)tuner_ring128[row][col])
                   : bus;
    case TUNER_TREE:
        return 0.85 * (p == TUNER_LL ? tuner_least(bus / 3.8, ll)
                       : p == TUNER_LL128
                           ? tuner_least(bus * (across ? 120.0 / 128.0 : 7.0 / 9.0),
                                         ch * (double)tuner_tree128[row][col])
                           : tuner_least(0.92 * bus, ch * (double)tuner_tree[row][col]));
    case TUNER_NVLS:
    case TUNER_NVLS_TREE:
        if (across) {
            bus *= a == TUNER_NVLS_TREE && t->g->nodes <= 2 ? 2.0 : 1.0;
            return tuner_least(bus, ch * (double)tuner_nvls_tree[row][col]);
        }
        bus *= (row == 2 ? 0.85 : 0.74) * (ch - 1.0) / ch;
        return bus * (t->kind == DPAR_CALL_ALL_REDUCE ? 2.0 : (per - 1.0) / per);
    case TUNER_PAT: return 0.75 * bus;
    default: return bus;
    }
}

static inline double tuner_latency(const tuner *t, int32_t a, int32_t p)
{
    double n = t->g->size, nodes = t->g->nodes, per = t->g->per_node;
    double link = (double)(t->pci ? tuner_pci : tuner_nvlink)[a][p];
    double net = (double)tuner_net[t->g->per_node == 1 ? TUNER_TREE : a][p];
    double crossing = (t->kind == DPAR_CALL_ALL_REDUCE ? 2.0 : 1.0) * (nodes - 1.0);
    double us = (double)tuner_base[a][p];
    switch (a) {
    case TUNER_TREE: return us + 2.0 * ((n / nodes - 1.0) * link + log2(nodes) * net);
    case TUNER_DIRECT:
        return us + 2.0 * (tuner_least(1.0, per - 1.0) * link + (per - 1.0) * 0.4) + net;
    case TUNER_COLLNET_CHAIN: return us + 2.0 * (per - 1.0) * link + net;
    case TUNER_NVLS: return us + link + (t->g->nodes > 1 ? net : 0.0);
    case TUNER_NVLS_TREE: return us + link + 2.0 * log2(nodes) * net;
    case TUNER_PAT: return us + log2(nodes) * net / 3.5 + 2.8 * n;
    default: break;
    }
    if (t->g->nodes > 1) { /* overhead of the network: 1 us, three times with Simple */
        link = tuner_most(link, p == TUNER_SIMPLE ? 3.0 : 1.0);
    }
    us += (t->steps - crossing) * link + crossing * net;
    return p == TUNER_SIMPLE && t->g->nodes > 1 && t->kind == DPAR_CALL_ALL_REDUCE &&
                   t->bytes / (t->channels * n) >= 64.0
               ? us * (t->generation == 0 ? 1.9 : 1.4)
               : us;
}

static inline double tuner_time(const tuner *t, int32_t a, int32_t p)
{
    double rate = tuner_bus(t, a, p), size = t->bytes / 64.0;
    int32_t i = 0;
    rate *= a == TUNER_RING || a == TUNER_NVLS ? t->g->size / t->steps : 0.5;
    while (i < 24 && size >= 2.0) {
        size *= 0.5;
        i++;
    }
    if (a == TUNER_TREE && i < 24) {
        rate *= (double)tuner_correct[p][i];
    }
    return tuner_latency(t, a, p) * 1e-6 + t->bytes / (rate * 1e9);
}

static inline dpar_status nccl_tuner(const dpar_cluster *c, const dpar_cluster_group *g,
                                     int32_t kind, double bytes, double *seconds,
                                     const char **algorithm, const char **protocol)
{
    static const char name[TUNER_ALGORITHMS][16] = {
        "tree", "ring", "collnet-direct", "collnet-chain", "nvls", "nvls-tree", "pat"};
    static const char proto[TUNER_PROTOCOLS][8] = {"LL", "LL128", "simple"};
    tuner t;
    int32_t a, p;
    double best = -1.0;
    t.generation = c->gpu.generation - DPAR_GEN_VOLTA;
    if (t.generation < 0 || t.generation > 3 || g->size < 2 || !(bytes >= 0.0) ||
        kind <= DPAR_CALL_NONE ||
        (kind > DPAR_CALL_REDUCE_SCATTER && kind != DPAR_CALL_BROADCAST &&
         kind != DPAR_CALL_REDUCE)) {
        return DPAR_E_UNKNOWN;
    }
    tuner_init(&t, c, g, kind, bytes);
    for (a = 0; a < TUNER_ALGORITHMS; a++) {
        for (p = 0; p < TUNER_PROTOCOLS; p++) {
            double s = tuner_has(&t, c, a, p) ? tuner_time(&t, a, p) : -1.0;
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

#endif
