/* SPDX-License-Identifier: MIT-0 */
/* plan_calls: what tests of strategies and plans begin with. Include it after dpar.h. */
#ifndef PLAN_CALLS_H
#define PLAN_CALLS_H

#include "dpar_cost.h"

#include <string.h>

/* Returns a strategy in which each number is 1. */
static inline dpar_strategy plain_strategy(void)
{
    dpar_strategy s;
    dpar_strategy_init(&s);
    return s;
}

/* Predicts the memory of a legal strategy; returns what pricing it returns. */
static inline dpar_status memory_of(const dpar_job *job, const dpar_strategy *strategy,
                                    dpar_memory_usage *memory)
{
    dpar_plan plan;
    dpar_status st;
    memset(&plan, 0, sizeof plan);
    st = dpar_plan_price(job, strategy, 0, &plan, NULL, NULL);
    *memory = plan.memory;
    return st;
}

/* Begins a search that writes its plans there. */
static inline dpar_status begin_search(dpar_planner *p, const dpar_job *job,
                                       const dpar_planner_desc *search, dpar_plan *top,
                                       int32_t top_capacity, dpar_plan *front,
                                       int32_t front_capacity, dpar_why *why)
{
    dpar_planner_desc q = *search;
    q.top = top;
    q.top_capacity = top_capacity;
    q.front = front;
    q.front_capacity = front_capacity;
    return dpar_planner_init(p, job, &q, why);
}

static inline dpar_cluster_group group_of(const dpar_cluster *c, int32_t n, int32_t stride)
{
    dpar_cluster_group g;
    dpar_cluster_group_init(&g, c, n, stride);
    return g;
}

#endif
