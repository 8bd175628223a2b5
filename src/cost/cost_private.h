/* SPDX-License-Identifier: MIT-0 */
/* cost_private - private: functions on machines, workloads and strategies that the modules of cost
 * share.
 */
#ifndef DPARI_COST_COST_PRIVATE_H
#define DPARI_COST_COST_PRIVATE_H

#include "../base/arith.h"
#include "strategy.h"

/* cluster.c */

/* Returns the number of GPUs of a machine. */
DPARI_FN int32_t dpari_cluster_gpus(const dpar_cluster *cluster)
{
    return cluster->nodes * cluster->gpus_per_node;
}

/* Checks that every number of the machine is in its range and none is NaN. */
DPARI_INTERNAL dpar_status dpari_cluster_check(const dpar_cluster *cluster, dpar_why *why);

/* machines.c */

/* Finds a chip by its name. */
DPARI_INTERNAL dpar_status dpari_gpu_slice(dpar_gpu *gpu, const char *s, size_t n, dpar_why *why);
/* Finds a machine by its name. */
DPARI_INTERNAL dpar_status dpari_cluster_slice(dpar_cluster *cluster, const char *s, size_t n,
                                               dpar_why *why);
/* Makes a machine of `nodes` nodes with `per_node` GPUs each and the links that are usual for these
 * GPUs. */
DPARI_INTERNAL void dpari_cluster_of_gpus(dpar_cluster *cluster, int32_t nodes, int32_t per_node);
/* Sets the NICs of a machine of several nodes for which the text gives none: one NIC per chip. */
DPARI_INTERNAL void dpari_cluster_usual_nics(dpar_cluster *cluster);
/* Replaces the chip. In a text like 8x8:GPU the links become the usual ones of the new chip, but a
 * machine with a name keeps its links. */
DPARI_INTERNAL dpar_status dpari_cluster_swap_gpu(dpar_cluster *cluster, const char *s, size_t n,
                                                  dpar_why *why);

/* workload.c */

/* Returns "megatron", "core", ..., or "?" for an unknown stack. */
DPARI_INTERNAL const char *dpari_stack_name(int32_t stack);
/* Sets model->stack from such a name or from name@year. Returns 1, or 0 if there is no such name.
 * If no run of that year is known, model->note says so. */
DPARI_INTERNAL int dpari_stack_read(dpar_model *model, const char *s, size_t n);
/* A software stack as it was in some years. */
typedef struct dpari_generation {
    int8_t stack;   /* DPAR_MODEL_STACK_*: the stack whose layers it runs */
    int8_t overlap; /* bits DPAR_OVERLAP_* */
    int8_t by_work; /* 1 if it cuts stages by work, the head included */
    int8_t copies;  /* bytes per parameter that ZeRO-3 copies in addition to its messages */
    int8_t sliced;  /* 1 if ZeRO-1 reduces whole gradients, and handles each rank's slice of each
                     * tensor in a call of its own */
    int8_t once;    /* 1 if a token is sent to a node once, however many of its experts are there */
    /* Shares of today's rates that the software of these years reached on Hopper and later chips,
     * which were new then. */
    float products, attention, streams;
    float contention; /* as DPAR_CAL_CONTENTION; 0 selects that of the machine */
    int8_t of;        /* DPAR_MODEL_STACK_*: the stack to whose generations it belongs */
    int16_t from, to; /* first and last year of its runs */
} dpari_generation;
/* Returns the generation that the workload names. */
DPARI_INTERNAL const dpari_generation *dpari_age(const dpar_workload *work);
/* Return "unfused", "flash1", ... and "eager", "compiled", ..., or "?" for an unknown number. */
DPARI_INTERNAL const char *dpari_attention_name(int32_t attention);
DPARI_INTERNAL const char *dpari_loss_name(int32_t loss);
/* Returns the parameters of one layer of a class, or 0 if there is no such class. */
DPARI_INTERNAL double dpari_layer_params(const dpar_workload *work, int32_t layer);
/* Returns the bytes that one layer of a class saves per token under a recomputation, before
 * parallelism divides them, or 0 if there is no such class. */
DPARI_INTERNAL double dpari_layer_saved(const dpar_workload *work, int32_t layer,
                                        int32_t recompute);
/* Checks that the counts are consistent, the shapes positive and finite, and the parameters fewer
 * than 2^62. */
DPARI_INTERNAL dpar_status dpari_workload_check(const dpar_workload *work, dpar_why *why);

/* Counts model->kinds from two lists. `mix` has `mixes` letters as in dpar_model.pattern, repeated;
 * with mixes = 0 the pattern itself is used. `feeds` has DPAR_MODEL_FFN_* of the first n layers;
 * the others follow the settings of the model. */
DPARI_INTERNAL void dpari_model_kinds(dpar_model *model, const char *mix, int32_t mixes,
                                      const int8_t *feeds, int32_t n);

/* strategy.c */

/* Returns a pointer to the value of a field, DPAR_STRATEGY_FIELD_*; for TILES to the first of
 * three.
 */
DPARI_INTERNAL int32_t *dpari_strategy_at(dpar_strategy *strategy, int32_t field);
/* Appends "full", "selective+norm", ... */
DPARI_INTERNAL void dpari_write_recompute(dpar_text *text, int32_t recompute);
/* Returns "ring", "ulysses", ..., or "?" for an unknown kind. */
DPARI_INTERNAL const char *dpari_cp_name(int32_t cp_kind);
/* Appends a name and bits: "dp+pp", or with `offload` "optimizer+nvme". */
DPARI_INTERNAL void dpari_write_bits(dpar_text *text, const char *name, int32_t bits,
                                     int32_t offload);
/* Appends "2x4". */
DPARI_INTERNAL void dpari_write_tiles(dpar_text *text, const int32_t *tiles);
/* Returns the number of tiles of a sample. */
DPARI_FN int64_t dpari_tiles(const dpar_strategy *strategy)
{
    return (int64_t)strategy->tiles[0] * strategy->tiles[1] * strategy->tiles[2];
}
/* Returns 1 if a schedule assigns its two chunks per rank in a V, to the last rank and back,
 * otherwise 0. */
DPARI_FN int dpari_v_shaped(int32_t schedule)
{
    return schedule == DPAR_SCHEDULE_ZBV || schedule == DPAR_SCHEDULE_V_HALF ||
           schedule == DPAR_SCHEDULE_V_MIN || schedule == DPAR_SCHEDULE_DUALPIPEV;
}
/* Returns 1 if a schedule assigns its chunks to the ranks in turn, otherwise 0. */
DPARI_FN int dpari_looped(int32_t schedule)
{
    return schedule == DPAR_SCHEDULE_INTERLEAVED || schedule == DPAR_SCHEDULE_BREADTH_FIRST;
}
/* Returns the number of ranks that share the state of ZeRO: its group times cp times the tiles. */
DPARI_INTERNAL double dpari_zero_ranks(const dpar_strategy *strategy);
/* Returns 1 if tp x cp divides the sequence, which sequence parallelism needs, otherwise 0. */
DPARI_INTERNAL int dpari_sequence_cuts(const dpar_workload *work, const dpar_strategy *strategy);
/* Checks that a strategy is legal for a job. It does not check whether it fits into memory. On
 * failure *rule receives DPAR_STRATEGY_RULE_*; `rule` may be NULL. global_batch 0 allows any batch.
 * O(1). */
DPARI_INTERNAL dpar_status dpari_strategy_check(const dpar_job *job, const dpar_strategy *strategy,
                                                int64_t global_batch, int32_t *rule, dpar_why *why);

#endif
