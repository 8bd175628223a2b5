/* SPDX-License-Identifier: MIT-0 */
/* plan_kinds - private: keeps the best plan of each kind during a search. recommend.c chooses among
 * them.
 */
#ifndef DPARI_COST_PLAN_KINDS_H
#define DPARI_COST_PLAN_KINDS_H

#include "../base/arith.h"
#include "planner.h"

/* Bits of a kind: what a plan needs in the program that runs it. Expert parallelism is not among
 * them, because programs with a mixture of experts have it anyway. */
enum {
    DPARI_KIND_TP = 1,
    DPARI_KIND_CUT = 2, /* the sequence or the grid is cut */
    DPARI_KIND_PP = 4,
    DPARI_KIND_CHUNKS = 8, /* several stages per rank */
    DPARI_KIND_RECOMPUTE = 16,
    DPARI_KIND_SHARDS = 32, /* ZeRO 1 and 2 */
    DPARI_KIND_FSDP = 64,
    DPARI_KIND_GROUPS = 128, /* shards inside groups: HSDP */
    DPARI_KIND_SHORT = 256,  /* stages of a single layer, which mostly send messages */
    DPARI_KIND_POOR = 512    /* not recommended while another kind fits */
};

/* Returns 1 if a search fixes a field, DPAR_STRATEGY_FIELD_*, otherwise 0. */
DPARI_FN int dpari_fixed(const dpar_planner_desc *search, int32_t field)
{
    return (search->fixed_fields >> field & 1u) != 0;
}

/* Checks the job and the numbers of a search (planner.c). */
DPARI_INTERNAL dpar_status dpari_search_check(const dpar_job *job, const dpar_planner_desc *search,
                                              dpar_why *why);

/* Returns 1 if messages inside a node are sent over PCIe, because the links are no faster,
 * otherwise 0. */
DPARI_INTERNAL int dpari_over_pcie(const dpar_cluster *cluster);

enum {
    DPARI_KINDS = 64
}; /* maximum number of kinds that are kept; if there are more, the slowest are dropped */
/* The fastest plan of a kind. */
typedef struct dpari_kind {
    int32_t bits;   /* DPARI_KIND_* */
    double seconds; /* time per sample */
    dpar_strategy strategy;
} dpari_kind;
typedef struct dpari_kinds {
    int32_t n; /* number of entries of `of` in use */
    dpari_kind of[DPARI_KINDS];
} dpari_kinds;
/* Enters a plan if it is the fastest of its kind. */
DPARI_INTERNAL void dpari_kind_keep(dpari_kinds *kinds, const dpar_job *job,
                                    const dpar_strategy *strategy, double seconds);

#endif
