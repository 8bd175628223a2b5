/* SPDX-License-Identifier: MIT-0 */
/* The functions of the router and the experts, with their arrays as arguments. */
#ifndef EXPERT_CALLS_H
#define EXPERT_CALLS_H

#include <string.h>

static inline dpar_router_arrays router_arrays(int64_t tokens, const void *logits, int32_t *chosen,
                                               double *scratch)
{
    dpar_router_arrays a;
    memset(&a, 0, sizeof a);
    a.tokens = tokens;
    a.logits = logits;
    a.chosen = chosen;
    a.scratch = scratch;
    return a;
}

static inline dpar_status router_forward(const dpar_router *r, int64_t tokens, const void *logits,
                                         int32_t *chosen, void *weight, double *scratch,
                                         dpar_why *why)
{
    dpar_router_arrays a = router_arrays(tokens, logits, chosen, scratch);
    a.weight = weight;
    return dpar_router_forward(r, &a, why);
}

static inline dpar_status router_balance(const dpar_router *r, dpar_comm *c, int64_t tokens,
                                         const void *logits, int32_t *chosen, double *sums,
                                         dpar_router_load *load, double *scratch)
{
    dpar_router_arrays a = router_arrays(tokens, logits, chosen, scratch);
    a.sums = sums;
    return dpar_router_balance(r, c, &a, load);
}

static inline dpar_status router_backward(const dpar_router *r, int64_t tokens, const void *logits,
                                          int32_t *chosen, const void *dweight,
                                          const dpar_router_load *load, void *dlogits,
                                          double *scratch, dpar_why *why)
{
    dpar_router_arrays a = router_arrays(tokens, logits, chosen, scratch);
    a.dweight = dweight;
    a.dlogits = dlogits;
    return dpar_router_backward(r, &a, load, why);
}

static inline dpar_status experts_route(dpar_experts_plan *plan, void *memory, int64_t bytes,
                                        int64_t tokens, const int32_t *chosen, const void *weight,
                                        dpar_experts_routing **routing, dpar_why *why)
{
    dpar_experts_choices choices;
    choices.tokens = tokens;
    choices.chosen = chosen;
    choices.weight = weight;
    return dpar_experts_route(plan, memory, bytes, &choices, routing, why);
}

static inline dpar_status experts_dispatch(dpar_experts_plan *plan,
                                           const dpar_experts_routing *routing, const void *x,
                                           void *rows)
{
    dpar_experts_arrays a;
    memset(&a, 0, sizeof a);
    a.x = x;
    a.rows = rows;
    return dpar_experts_dispatch(plan, routing, &a);
}

static inline dpar_status experts_combine(dpar_experts_plan *plan,
                                          const dpar_experts_routing *routing, const void *results,
                                          const void *weight, void *y, void *kept)
{
    dpar_experts_arrays a;
    memset(&a, 0, sizeof a);
    a.results = results;
    a.weight = weight;
    a.y = y;
    a.saved = kept;
    return dpar_experts_combine(plan, routing, &a);
}

static inline dpar_status experts_combine_backward(dpar_experts_plan *plan,
                                                   const dpar_experts_routing *routing,
                                                   const void *dy, const void *weight,
                                                   const void *kept, void *dresults, void *dweight)
{
    dpar_experts_arrays a;
    memset(&a, 0, sizeof a);
    a.dy = dy;
    a.weight = weight;
    a.saved = (void *)(uintptr_t)kept; /* only read */
    a.dresults = dresults;
    a.dweight = dweight;
    return dpar_experts_combine_backward(plan, routing, &a);
}

static inline dpar_status experts_dispatch_backward(dpar_experts_plan *plan,
                                                    const dpar_experts_routing *routing,
                                                    const void *drows, void *dx)
{
    dpar_experts_arrays a;
    memset(&a, 0, sizeof a);
    a.drows = drows;
    a.dx = dx;
    return dpar_experts_dispatch_backward(plan, routing, &a);
}

#endif
