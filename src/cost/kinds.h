/* SPDX-License-Identifier: MIT-0 */
/* kinds - private: the best plan of each kind, kept while a search walks. recommend.c chooses among
 * them. */
#ifndef DPARI_COST_KINDS_H
#define DPARI_COST_KINDS_H

#include "../base/arith.h"
#include "strategy.h"

/* What a plan asks of the code that runs it. A mixture of experts has expert parallelism anyway:
 * its codes do it first. */
enum {
    DPARI_KIND_TP = 1,
    DPARI_KIND_CUT = 2, /* of the sequence, or of a grid */
    DPARI_KIND_PP = 4,
    DPARI_KIND_CHUNKS = 8, /* several stages a rank */
    DPARI_KIND_RECOMPUTE = 16,
    DPARI_KIND_SHARDS = 32, /* ZeRO 1 and 2 */
    DPARI_KIND_FSDP = 64,
    DPARI_KIND_GROUPS = 128, /* shards inside groups: HSDP */
    DPARI_KIND_SHORT = 256,  /* stages of a single layer: messages above all */
    DPARI_KIND_POOR = 512    /* not advised while something else fits */
};

/* Messages inside a node go over PCIe: its links are no faster. */
DPARI_API int dpari_over_pcie(const dpar_cluster *c);

/* The fastest plan that has just these bits. Where there are more kinds the slowest ones go. */
enum { DPARI_KINDS = 64 };
typedef struct dpari_kind {
    int32_t bits;
    double seconds; /* a sample */
    dpar_strategy strategy;
} dpari_kind;
typedef struct dpari_kinds {
    int32_t n;
    dpari_kind of[DPARI_KINDS];
} dpari_kinds;
DPARI_API void dpari_kind_keep(dpari_kinds *k, const dpar_job *job, const dpar_strategy *s,
                               double seconds);

#endif
