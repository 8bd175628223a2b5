/* SPDX-License-Identifier: MIT-0 */
/* step - how long a training step, or a solver's time steps, takes, by term. dpar_plan_price fills
 * it in.
 *
 *     plan.step.total                                  seconds
 *     plan.step.term[DPAR_TIME_BUBBLE], plan.step.mfu
 *
 * The model, rule by rule with its source in price.c and step.c:
 *
 *     products         waves of 128 x 256 tiles over the units, at a share of the peak
 *     element-wise     bytes over HBM
 *     kernels          at least the host's time to launch them
 *     TP SP CP EP DP   the bytes of Megatron (2019, 2022), ring and Ulysses attention (2023) and
 *                      ZeRO (2020), priced by dpar_collective_predict
 *     bubbles          SC21 for 1F1B and interleaving, zero-bubble (2024) and DualPipe (2024)
 *     optimizer        bytes of Adam
 *
 * Three numbers go by "bubble", for p stages and m micro-batches of equal cost. They are the
 * overhead over the ideal (p-1)/m, the share of the makespan (p-1)/(m+p-1), and what is left of it,
 * m/(m+p-1). */
#ifndef DPARI_COST_STEP_H
#define DPARI_COST_STEP_H

#include "collective.h"
#include "strategy.h"

enum {
    DPAR_TIME_FORWARD,
    DPAR_TIME_BACKWARD,
    DPAR_TIME_RECOMPUTE,
    DPAR_TIME_TP,
    DPAR_TIME_CP,
    DPAR_TIME_EP,
    DPAR_TIME_HALO,
    DPAR_TIME_PP,        /* activations and gradients between stages, as exposed */
    DPAR_TIME_BUBBLE,    /* waiting to fill and drain the pipeline */
    DPAR_TIME_IMBALANCE, /* waiting for the slowest stage (logits, uneven layers) */
    DPAR_TIME_DP,        /* gradient reduction and parameter gathering left after overlap */
    DPAR_TIME_OPTIMIZER,
    DPAR_TIME_OFFLOAD,
    DPAR_TIME_HOST, /* the host's part of a step, and kernels shorter than their launch */
    DPAR_TIME_COUNT
};

/* The time of a step, by term, and what is derived from it. */
typedef struct dpar_step_cost {
    double term[DPAR_TIME_COUNT]; /* seconds; they add up to total */
    double total;
    double samples; /* of a step, all ranks */
    double tokens_per_s_gpu;
    double model_flops; /* of a step, all ranks: attention as if not causal, vocabulary counted,
                           recomputation not (Megatron's and PaLM's MFU) */
    double model_flops_causal;    /* the same with causal attention at half */
    double hardware_flops;        /* model_flops plus what is recomputed */
    double mfu, mfu_causal, hfu;  /* shares of the dense peak of recipe.compute (TF32 for fp32, fp8
                                     for fp8). With long causal attention mfu may be up to twice
                                     mfu_causal: it counts what is not computed */
    double tflops_gpu;            /* model_flops / GPU / second, 1e12 */
    double link_bytes, nic_bytes; /* sent by a GPU in a step: in-node links, NICs */
    double dp_bytes;              /* of these by data parallelism */
    double dp_hidden_s;           /* data-parallel communication that overlap hides */
    double bubble;                /* filling and draining / makespan of the micro-batches */
    double largest_stage_s, mean_stage_s; /* of a micro-batch, forward and backward */
} dpar_step_cost;

/* The name of a term, as in JSON: "forward", ...; "?" for any other number. Static text. O(1). */
DPAR_API const char *dpar_time_name(int32_t term);

#endif
