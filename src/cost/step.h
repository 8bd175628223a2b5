/* SPDX-License-Identifier: MIT-0 */
/* step - predicts the seconds of a training step, or of a solver's time step, by term.
 * dpar_plan_price fills in the struct.
 *
 *     plan.step.total                                  seconds
 *     plan.step.term[DPAR_TIME_BUBBLE], plan.step.mfu
 *
 * The rules of the model. Their sources are in price.c and step.c.
 *
 *     products         waves of 128 x 256 tiles over the units, at a share of the peak
 *     element-wise     bytes divided by the memory bandwidth
 *     kernels          at least the host's time to launch them
 *     TP SP CP EP DP   the bytes of Megatron (2019, 2022), ring and Ulysses attention (2023) and
 *                      ZeRO (2020), priced by dpar_collective_predict
 *     bubbles          SC21 for 1F1B and interleaving, zero-bubble (2024) and DualPipe (2024)
 *     optimizer        bytes that Adam reads and writes
 *
 * The literature calls three numbers "bubble". For p stages and m micro-batches of equal cost they
 * are the overhead over the ideal time, (p-1)/m; the idle share of the makespan, (p-1)/(m+p-1); and
 * the busy share, m/(m+p-1). Here it is the idle share of the makespan. */
#ifndef DPARI_COST_STEP_H
#define DPARI_COST_STEP_H

#include "collective.h"
#include "strategy.h"

/* The terms of a step's time. */
enum {
    DPAR_TIME_FORWARD,
    DPAR_TIME_BACKWARD,
    DPAR_TIME_RECOMPUTE,
    DPAR_TIME_TP,        /* messages of tensor and sequence parallelism that are not hidden */
    DPAR_TIME_CP,        /* messages of context parallelism */
    DPAR_TIME_EP,        /* messages of expert parallelism */
    DPAR_TIME_HALO,      /* halo exchanges */
    DPAR_TIME_PP,        /* messages between stages that are not hidden */
    DPAR_TIME_BUBBLE,    /* waiting while the pipeline fills and drains */
    DPAR_TIME_IMBALANCE, /* waiting for the slowest stage (logits, uneven layers) */
    DPAR_TIME_DP,        /* gradient reduction and parameter gathering that are not hidden */
    DPAR_TIME_OPTIMIZER,
    DPAR_TIME_OFFLOAD,
    DPAR_TIME_HOST, /* the host's part of a step, and waiting for kernels to be launched */
    DPAR_TIME_COUNT /* number of terms */
};

/* The time of a step by term, and numbers derived from it. "All ranks" means the sum over them. */
typedef struct dpar_step_cost {
    double term[DPAR_TIME_COUNT]; /* seconds, by DPAR_TIME_*; they add up to total */
    double total;                 /* seconds of the step */
    double samples;               /* samples of a step, all ranks */
    double tokens_per_s_gpu;      /* tokens per second and GPU */
    double model_flops; /* FLOP of a step, all ranks. Attention counts as if it were not causal, the
                           vocabulary counts, recomputation does not (Megatron's and PaLM's MFU) */
    double model_flops_causal;    /* the same with causal attention at half */
    double hardware_flops;        /* model_flops plus the recomputation */
    double mfu, mfu_causal, hfu;  /* shares of the dense peak of recipe.compute (TF32 for fp32, fp8
                                     for fp8). With long causal attention mfu may be up to twice
                                     mfu_causal, because it counts products that are skipped */
    double tflops_gpu;            /* model_flops per GPU and second, in 1e12 */
    double link_bytes, nic_bytes; /* bytes that a GPU sends in a step: in-node links, NICs */
    double dp_bytes;              /* the part of link_bytes + nic_bytes that data parallelism
                                     sends */
    double dp_hidden_s;           /* seconds of data-parallel communication hidden by overlap */
    double bubble; /* share of the makespan of the micro-batches that filling and draining takes */
    double largest_stage_s, mean_stage_s; /* seconds of a micro-batch, forward and backward */
} dpar_step_cost;

/* Returns the name of a term as in the JSON output ("forward", ...), or "?" if there is no such
 * term. The text is static. O(1). */
DPAR_API const char *dpar_time_name(int32_t term);

#endif
