/* SPDX-License-Identifier: MIT-0 */
/* plan_show - plans as people and scripts read them: a table with bars, one plan in full, CSV,
 * JSON, SVG. Text goes into a dpar_text.
 *
 *     dpar_plan_draw_desc r = {0};
 *     r.job = &job;
 *     r.plan = planner.top;
 *     r.plans = planner.tops;
 *     dpar_plan_draw(&text, &r, DPAR_PLAN_DRAW_TEXT, &why); */
#ifndef DPARI_COST_PLAN_SHOW_H
#define DPARI_COST_PLAN_SHOW_H

#include "../base/text.h"
#include "recommend.h"

/* What is shown: the job, the plans (best first), what the search said. Zero it and fill it in. */
typedef struct dpar_plan_draw_desc {
    const dpar_job *job;
    const dpar_plan *plan;
    int32_t plans;
    const dpar_plan *front; /* Pareto front of time x memory; may be NULL */
    int32_t fronts;
    const dpar_plan_rejection *rejected; /* neighbours of the best with reasons; may be NULL */
    int32_t rejects;
    const int64_t *rejected_by_rule; /* DPAR_STRATEGY_RULE_COUNT counts; may be NULL */
    int64_t global_batch, evaluated;
    double seconds;            /* that the search took; 0: there was none */
    const char *note;          /* one more assumption to say; may be NULL */
    const dpar_advice *advice; /* for the JSON; may be NULL */
    int32_t colour;            /* 1: ANSI colours */
} dpar_plan_draw_desc;

enum {
    DPAR_PLAN_DRAW_TEXT, /* a table, about 150 columns wide: strategy, GB a GPU with a bar against
                         capacity, step time with a bar by term, tokens/s and MFU */
    DPAR_PLAN_DRAW_EXPLAIN, /* the first plan in full: every term of memory and time, bytes sent,
                            why not its neighbours */
    DPAR_PLAN_DRAW_CSV,     /* one line a plan, with a header line */
    DPAR_PLAN_DRAW_JSON,    /* one object: plans, recommendation (with advice), rejected, evaluated,
                            seconds, assumptions. Always valid JSON */
    DPAR_PLAN_DRAW_SVG,     /* a self-contained picture: time by term, memory against capacity, the
                            Pareto front */
    DPAR_PLAN_DRAW_LINE /* the first plan: "dp=2,tp=8: 12.3 s a step, 401 tokens/s a GPU, ..." */
};

/* Appends the report. E_ARG with a sentence, nothing appended: no such format. O(plans). */
DPAR_API dpar_status dpar_plan_draw(dpar_text *t, const dpar_plan_draw_desc *r, int32_t format,
                                    dpar_why *why);

#endif
