/* SPDX-License-Identifier: MIT-0 */
/* plan_show - writes plans into a text for people and for scripts: a table with bars, one plan in
 * full, CSV, JSON, SVG.
 *
 *     dpar_plan_draw_desc r = {0};
 *     r.job = &job;
 *     r.plan = planner.top;
 *     r.plan_count = planner.top_count;
 *     dpar_plan_draw(&text, &r, DPAR_PLAN_DRAW_TEXT, &why); */
#ifndef DPARI_COST_PLAN_SHOW_H
#define DPARI_COST_PLAN_SHOW_H

#include "../base/text.h"
#include "recommend.h"

/* The contents of a report. Zero the struct, then fill it in. */
typedef struct dpar_plan_draw_desc {
    const dpar_job *job;
    const dpar_plan *plan;  /* [plan_count] plans, the best one first */
    int32_t plan_count;     /* number of plans */
    const dpar_plan *front; /* [front_count] Pareto front of time x memory; may be NULL */
    int32_t front_count;
    /* [rejected_count] neighbours of the best plan; may be NULL */
    const dpar_plan_rejection *rejected;
    int32_t rejected_count;
    const int64_t *rejected_by_rule; /* [DPAR_STRATEGY_RULE_COUNT] counts; may be NULL */
    int64_t global_batch, evaluated; /* samples per step; strategies priced */
    double seconds;                  /* time of the search; 0 if there was none */
    const char *note;                /* an additional assumption to print; may be NULL */
    const dpar_advice *advice;       /* for the JSON; may be NULL */
    int32_t colour;                  /* 1 for ANSI colours */
} dpar_plan_draw_desc;

/* The formats of a report. */
enum {
    DPAR_PLAN_DRAW_TEXT, /* a table, about 150 columns wide: strategy, GB per GPU with a bar against
                         the capacity, step time with a bar by term, tokens/s and MFU */
    DPAR_PLAN_DRAW_EXPLAIN, /* the first plan in full: every term of memory and time, bytes sent,
                            and why its neighbours were not chosen */
    DPAR_PLAN_DRAW_CSV,     /* a header line, then one line per plan */
    DPAR_PLAN_DRAW_JSON,    /* one object: plans, recommendation (with advice), rejected, evaluated,
                            seconds, assumptions. Always valid JSON */
    DPAR_PLAN_DRAW_SVG,     /* a self-contained picture: time by term, memory against capacity, the
                            Pareto front */
    DPAR_PLAN_DRAW_LINE /* the first plan: "dp=2,tp=8: 12.3 s a step, 401 tokens/s a GPU, ..." */
};

/* Appends a report to a text in one of the formats DPAR_PLAN_DRAW_*. O(plans). Fails with
 * DPAR_E_ARG if there is no such format, and then appends nothing. */
DPAR_API dpar_status dpar_plan_draw(dpar_text *text, const dpar_plan_draw_desc *desc,
                                    int32_t format, dpar_why *why);

#endif
