/* SPDX-License-Identifier: MIT-0 */
/* Sorts plans into kinds by the features that they need in the program that runs them, and keeps
 * the fastest plan of each kind. During a search for dpar_plan_recommend the planner calls
 * dpari_kind_keep for each plan that fits; recommend.c then chooses among the kinds. */
#include "plan_kinds.h"

#include "cost_private.h"

/* Returns 1 if the links inside a node are PCIe, otherwise 0. A description of a cluster gives only
 * their speed. The fastest PCIe (generation 6, 16 lanes) carries 121 GB/s and the NVLinks of a V100
 * 150 GB/s, so that 130 GB/s separates them. Slower NVLinks, such as those of a P100, differ from
 * PCIe because they are more than 1.3 times as fast as the chip's path to the host. */
DPARI_INTERNAL int dpari_over_pcie(const dpar_cluster *cluster)
{
    return cluster->link_Bps < 130e9 && cluster->link_Bps <= 1.3 * cluster->gpu.pcie_Bps;
}

/* Returns 1 if a plan is recommended only when no other one fits, otherwise 0. Tensor parallelism
 * waits for messages in every layer. Over PCIe and between nodes these are slow, and their
 * predictions are the least certain. Existing programs do not cut experts over ranks (etp > 1). */
static int dpari_kind_poor(const dpar_job *job, const dpar_strategy *strategy)
{
    const dpar_cluster *cluster = job->cluster;
    return (strategy->tp > 1 &&
            (dpari_over_pcie(cluster) || strategy->tp > cluster->gpus_per_node)) ||
           strategy->etp > 1;
}

/* Returns the kind of a plan, as bits DPARI_KIND_*. */
static int32_t dpari_kind_bits(const dpar_job *job, const dpar_strategy *strategy)
{
    int32_t bits = strategy->tp > 1 ? DPARI_KIND_TP : 0;
    bits |= strategy->cp > 1 || dpari_tiles(strategy) > 1 ? DPARI_KIND_CUT : 0;
    bits |= strategy->pp > 1 ? DPARI_KIND_PP : 0;
    bits |= strategy->vp > 1 ? DPARI_KIND_CHUNKS : 0;
    bits |= strategy->recompute != DPAR_RECOMPUTE_NONE ? DPARI_KIND_RECOMPUTE : 0;
    bits |= strategy->zero == 1 || strategy->zero == 2 ? DPARI_KIND_SHARDS : 0;
    bits |= strategy->zero == 3 ? DPARI_KIND_FSDP : 0;
    bits |= strategy->zero == 3 && strategy->shard > 0 && strategy->shard < strategy->dp
                ? DPARI_KIND_GROUPS
                : 0;
    bits |=
        strategy->pp > 1 && 2 * (int64_t)strategy->pp > job->work->blocks ? DPARI_KIND_SHORT : 0;
    return bits | (dpari_kind_poor(job, strategy) ? DPARI_KIND_POOR : 0);
}

DPARI_INTERNAL void dpari_kind_keep(dpari_kinds *kinds, const dpar_job *job,
                                    const dpar_strategy *strategy, double seconds)
{
    int32_t bits = dpari_kind_bits(job, strategy), i;
    int32_t at = 0; /* the slowest kind so far, which is replaced if all entries are taken */
    for (i = 0; i < kinds->n && kinds->of[i].bits != bits; i++) {
        if (kinds->of[i].seconds > kinds->of[at].seconds) {
            at = i;
        }
    }
    if (i < kinds->n) {
        at = i;
    } else if (kinds->n < DPARI_KINDS) {
        at = kinds->n;
        kinds->n++;
        kinds->of[at].seconds = seconds * 2.0; /* any time that the plan beats */
    }
    /* the margin keeps the first of two plans whose times differ only by rounding */
    if (seconds < kinds->of[at].seconds * (1.0 - 1e-12)) {
        kinds->of[at].bits = bits;
        kinds->of[at].seconds = seconds;
        kinds->of[at].strategy = *strategy;
    }
}
