/* SPDX-License-Identifier: MIT-0 */
/* plan_text - finds a plan from text in one call, with the options of the command `plan`.
 *
 *     static dpar_plan_result plan;
 *     dpar_plan_search("llama-3-70b", "8x8:a100-80", "batch=512", &plan, &why);
 *     dpar_plan_draw(&text, &plan.report, DPAR_PLAN_DRAW_LINE, &why);        the plan in one line
 *
 * plan.step is then the time of a step in seconds, and plan.memory the bytes that a GPU needs. */
#ifndef DPARI_COST_PLAN_TEXT_H
#define DPARI_COST_PLAN_TEXT_H

#include "models.h"
#include "plan_show.h"
#include "planner.h"

/* A request for a plan, made by dpar_plan_query_read. The struct takes 29 KB and must not be moved
 * or copied, because `job` points into it. */
typedef struct dpar_plan_query {
    dpar_job job;             /* the workload, the machine and the precision */
    dpar_planner_desc search; /* the search, for dpar_planner_init; gpus, top and front are 0 */
    dpar_strategy strategy;   /* the strategy of evaluate=..., or the default one */
    /* bits 1 << DPAR_STRATEGY_FIELD_* of the fields that evaluate=... names; 0 without it */
    uint32_t strategy_fields;
    /* value of the option batch; -1 if it is not given and search.global_batch has the default */
    int64_t batch;
    int32_t machine_gpus; /* GPUs of the machine if the option gpus requests more, otherwise 0 */
    dpar_workload work;   /* the workload and the machine to which `job` points */
    dpar_cluster cluster;
} dpar_plan_query;

/* Reads a request for a plan from text.
 *
 * model:   as in dpar_model_read: "llama-3-8b,seq=32768", or the text of a config.json.
 * machine: as in dpar_cluster_read: "8x8:h100-80,nic=8x50".
 * options: words separated by blanks, each at most once; NULL or "" if there are none.
 *
 *     batch=512        samples per step of all GPUs, at most 2^31 - 1; 0 allows any batch; the
 *                      default is about 4 million tokens, or 16 samples per GPU
 *     gpus=64          whole nodes, or a part of one; may be more than the machine has
 *     seq=8192         tokens per sample
 *     precision=fp8    as in dpar_recipe_find; the default is megatron
 *     stack=torch, attention=flash    as in dpar_model_read
 *     fix=tp=8,pp=2         only strategies with these values
 *     evaluate=tp=8,pp=2    this strategy only; dpar_strategy_complete adds what is not named
 *     whole                 every divisor and option, not only the usual ones
 *
 * O(bytes). Fails with DPAR_E_ARG, DPAR_E_PARSE, DPAR_E_UNKNOWN or another status of the functions
 * named above. The message quotes the word, and suggests a similar one (models, machines, GPUs) or
 * lists the words that are allowed. */
DPAR_API dpar_status dpar_plan_query_read(const char *model, const char *machine,
                                          const char *options, dpar_plan_query *query,
                                          dpar_why *why);

/* The result of dpar_plan_search. The struct takes 41 KB and must not be moved or copied, because
 * `report` points into it. */
typedef struct dpar_plan_result {
    double step;                /* seconds of a step with the best plan */
    double memory;              /* bytes that this plan needs on a GPU */
    dpar_plan_draw_desc report; /* all plans, for dpar_plan_draw */
    dpar_plan plan[8];          /* the best plans, best first; the first report.plan_count entries
                                   are set */
    dpar_plan_query query;      /* the request */
    dpar_planner planner;       /* private: the search */
} dpar_plan_result;

/* Reads a request like dpar_plan_query_read and finds the best plans for it, or prices the strategy
 * of the option evaluate. The arguments are those of dpar_plan_query_read.
 *
 * Times and ranking come from the closed formulas of step.h. The command `plan` also simulates its
 * best plans with dpar_plan_simulate, which this function does not call because a simulation needs
 * megabytes of scratch memory. For uneven stages and for schedules with split backwards the
 * simulated times differ by a few per cent.
 *
 * Usually takes milliseconds. With `whole` and on large machines it takes seconds; use
 * dpar_plan_query_read and dpar_planner if the search must be interruptible.
 *
 * Fails with DPAR_E_NONE if no strategy fits or none is legal; the message says which plan came
 * nearest, or which rule most strategies break. Fails with DPAR_E_MEMORY if the strategy of
 * `evaluate` does not fit; `step` and `memory` then describe this strategy. Otherwise it fails like
 * dpar_plan_query_read and dpar_plan_price. */
DPAR_API dpar_status dpar_plan_search(const char *model, const char *machine, const char *options,
                                      dpar_plan_result *planned, dpar_why *why);

#endif
