/* SPDX-License-Identifier: MIT-0 */
/* plan_text - a plan from words, those of the command `plan`, in one call.
 *
 *     static dpar_plan_result plan;
 *     dpar_plan_search("llama-3-70b", "8x8:a100-80", "batch=512", &plan, &why);
 *     plan.step seconds a step, plan.memory bytes a GPU
 *     dpar_plan_draw(&text, &plan.report, DPAR_PLAN_DRAW_LINE, &why);        what it is, in a line
 */
#ifndef DPARI_COST_PLAN_TEXT_H
#define DPARI_COST_PLAN_TEXT_H

#include "models.h"
#include "plan_show.h"
#include "planner.h"

/* What was asked, read. 27 KB; job points into it: it does not move. */
typedef struct dpar_plan_query {
    dpar_job job;             /* what to price, where, in which precision */
    dpar_planner_desc search; /* of it gpus, top and front are not set */
    dpar_strategy given;      /* evaluate=...; else the default, and given_fields is 0 */
    uint32_t given_fields;
    int64_t batch; /* as it was said; -1: it was not, and search.global_batch is a usual one */
    int32_t had;   /* GPUs of the machine, when more were asked for; else 0 */
    dpar_workload work;
    dpar_cluster cluster;
} dpar_plan_query;

/* Reads the words. model: as dpar_model_read ("llama-3-8b,seq=32768", a config.json's text);
 * machine: as dpar_cluster_read ("8x8:h100-80,nic=8x50"); options: words between blanks, each once,
 * NULL or "": none of them.
 *     batch=512        samples a step of all GPUs, 2^31 - 1 at most; 0: free; left out: about 4
 *                      million tokens, or 16 samples a GPU
 *     gpus=64          whole nodes, or part of one; more than the machine has are of its kind
 *     seq=8192         tokens a sample
 *     precision=fp8    as dpar_recipe_find; left out: megatron
 *     stack=torch, attention=flash    as in dpar_model_read
 *     fix=tp=8,pp=2         only strategies with these values
 *     evaluate=tp=8,pp=2    this one strategy (dpar_strategy_complete adds what is not named)
 *     whole                 every divisor and option, not the usual ones
 * E_ARG, E_PARSE, E_UNKNOWN, ... with a sentence that names what is near. O(bytes). */
DPAR_API dpar_status dpar_plan_query_read(const char *model, const char *machine,
                                          const char *options, dpar_plan_query *asked,
                                          dpar_why *why);

/* The answer. 40 KB of the caller's; report points into it: it does not move. */
typedef struct dpar_plan_result {
    double step;                /* seconds that a step of the best plan takes */
    double memory;              /* bytes that it holds on a GPU */
    dpar_plan_draw_desc report; /* of all plans, for dpar_plan_draw */
    dpar_plan plan[8];          /* report.plans of them, the best first */
    dpar_plan_query asked;
    dpar_planner planner; /* private: the search */
} dpar_plan_result;

/* Reads the words as dpar_plan_query_read and searches (evaluate: prices) as they say. E_NONE:
 * nothing fits or is legal, and *why says what came nearest; E_MEMORY: the one that was to be
 * evaluated does not fit, step and memory are its own. Other errors as dpar_plan_query_read and
 * dpar_plan_price. Milliseconds as a rule; `whole` and large machines take seconds:
 * dpar_plan_query_read and dpar_planner can be stopped meanwhile.
 *
 * Times and order are those of the closed forms. The command simulates the schedules of its first
 * plans besides, which takes megabytes of memory that this library does not allocate: that is a
 * call of dpar_plan_simulate for each plan. Uneven stages and schedules of two halves are then a
 * few per cent slower or faster. */
DPAR_API dpar_status dpar_plan_search(const char *model, const char *machine, const char *options,
                                      dpar_plan_result *planned, dpar_why *why);

#endif
