/* SPDX-License-Identifier: MIT-0 */
/* inner - private: what modules of cost ask of a machine, a workload and a strategy. */
#ifndef DPARI_COST_INNER_H
#define DPARI_COST_INNER_H

#include "../base/arith.h"
#include "strategy.h"

/* cluster.c */

/* How far s is from `name`: 6 for each edit that leads to a beginning of it, 1 for each letter of
 * the rest: "a100" is near "a100-80". */
DPARI_API int32_t dpari_unlike(const char *s, size_t n, const char *name);

DPARI_FN int32_t dpari_cluster_gpus(const dpar_cluster *c)
{
    return c->nodes * c->gpus_per_node;
}

/* Is the description usable? Every number positive where it must be, none NaN. */
DPARI_API dpar_status dpari_cluster_check(const dpar_cluster *c, dpar_why *why);

/* workload.c */

/* "megatron", "core", ...; "unfused", "flash1", ...; "?" for others. */
DPARI_API const char *dpari_stack_name(int32_t stack);
/* Sets m->stack by such a name, or name@year; a year without runs is a line of the note. 0: no
 * name. */
DPARI_API int dpari_stack_read(dpar_model *m, const char *s, size_t n);
/* A generation of software. On chips from Hopper on, which came while it was written, it reaches
 * these shares of today's rates. */
typedef struct dpari_generation {
    int8_t stack, overlap; /* whose layers it runs; bits DPAR_OVERLAP_* */
    int8_t by_work;        /* cuts stages by work, the head included */
    int8_t copies;         /* bytes a parameter that ZeRO-3 moves beside its messages */
    int8_t sliced; /* ZeRO-1 reduces whole gradients, and handles each rank's slice of each tensor
                    * by a call of its own */
    int8_t once;   /* a token crosses to a node once, whatever experts it has there */
    float products, attention, streams;
    float contention; /* share of hidden communication that the compute loses; 0: the machine's */
    int8_t of;        /* DPAR_MODEL_STACK_* that it is a generation of */
    int16_t from, to; /* years of its runs */
} dpari_generation;
DPARI_API const dpari_generation *dpari_age(const dpar_workload *w);
DPARI_API const char *dpari_attention_name(int32_t attention);
DPARI_API const char *dpari_loss_name(int32_t loss);
/* Parameters of one layer of class `layer` of 0..layers-1, 0 for others. */
DPARI_API double dpari_layer_params(const dpar_workload *w, int32_t layer);
/* Saved activation bytes of one layer for one token, nothing cut, under a recomputation. 0 for a
 * layer that is none. */
DPARI_API double dpari_layer_saved(const dpar_workload *w, int32_t layer, int32_t recompute);
/* Index of the class whose single layer has the most parameters. */
DPARI_API int32_t dpari_workload_largest(const dpar_workload *w);
/* Counts in order, shapes positive and finite, parameters below 2^62. */
DPARI_API dpar_status dpari_workload_check(const dpar_workload *w, dpar_why *why);

/* Counts m->kinds from a list of letters (as dpar_model.pattern, repeated; mixes 0: the pattern)
 * and of DPAR_MODEL_FFN_* of the first n layers; the others follow the model's settings. */
DPARI_API void dpari_model_kinds(dpar_model *m, const char *mix, int32_t mixes, const int8_t *feeds,
                                 int32_t n);

/* strategy.c */

DPARI_API void dpari_write_recompute(dpar_text *t, int32_t recompute);
/* Where a field's value stands; of TILES the first of three. */
DPARI_API int32_t *dpari_field_at(dpar_strategy *s, int32_t field);
DPARI_API const char *dpari_cp_name(int32_t cp_kind);
/* Appends name and "dp+pp" or "optimizer+nvme"; "2x4". */
DPARI_API void dpari_write_bits(dpar_text *t, const char *name, int32_t bits, int32_t offload);
DPARI_API void dpari_write_tiles(dpar_text *t, const int32_t *tiles);
/* Ranks that share the state of ZeRO: its group, their context-parallel ranks, their tiles. */
DPARI_API double dpari_zero_ranks(const dpar_strategy *s);
/* Does tp x cp divide the sequence? Sequence parallelism cuts it so. */
DPARI_API int dpari_sequence_cuts(const dpar_workload *w, const dpar_strategy *s);
/* Is the strategy legal for this job (memory apart)? OK, or an error with the sentence; *rule (may
 * be NULL) says which. global_batch 0: any. O(1). */
DPARI_API dpar_status dpari_strategy_check(const dpar_job *job, const dpar_strategy *s,
                                           int64_t global_batch, int32_t *rule, dpar_why *why);

#endif
