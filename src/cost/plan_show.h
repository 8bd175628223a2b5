/* SPDX-License-Identifier: MIT-0 */
/* plan_show - plans as people and scripts read them: a table with bars, one plan in full, JSON,
 * CSV, SVG. Pure text into a dpar_text: no I/O. */
#ifndef DPARI_COST_PLAN_SHOW_H
#define DPARI_COST_PLAN_SHOW_H

#include "../base/text.h"
#include "planner.h"

/* What is shown: the job, the plans (best first) and what the search said. */
typedef struct dpar_report {
    const dpar_job *job;
    const dpar_plan *plan;
    int32_t plans;
    const dpar_plan *front; /* Pareto front of time x memory; may be NULL */
    int32_t fronts;
    const dpar_rejected *rejected; /* neighbours of the best with reasons; may be NULL */
    int32_t rejects;
    const int64_t *rejected_by_rule; /* DPAR_RULES counts; may be NULL */
    int64_t global_batch, evaluated;
    double seconds;            /* the search took; 0: there was none */
    const char *note;          /* one more assumption to state; may be NULL */
    const dpar_advice *advice; /* for the JSON; may be NULL */
    int32_t colour;            /* 1: ANSI colours */
} dpar_report;

/* "tp=8,sp=1,pp=4,dp=2,...": what dpar_strategy_parse reads back; defaults are left out. */
DPAR_API void dpar_show_strategy(dpar_text *t, const dpar_strategy *s);
/* The table: strategy, GB a GPU with a bar against capacity, step time with a bar by term, tokens/s
 * and MFU. About 150 columns wide. */
DPAR_API void dpar_show_plans_text(dpar_text *t, const dpar_report *r);
/* The first plan in full: every term of memory and time, bytes on the wires, why not its
 * neighbours. */
DPAR_API void dpar_show_plan_explain(dpar_text *t, const dpar_report *r);
/* One JSON object: plans, recommendation (with advice), rejected, evaluated, seconds, assumptions.
 * Always valid JSON. */
DPAR_API void dpar_show_plans_json(dpar_text *t, const dpar_report *r);
/* One line a plan, with a header line. */
DPAR_API void dpar_show_plans_csv(dpar_text *t, const dpar_report *r);
/* A self-contained picture: time by term, memory against capacity, the Pareto front. */
DPAR_API void dpar_show_plans_svg(dpar_text *t, const dpar_report *r);

#endif
