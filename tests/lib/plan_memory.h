/* SPDX-License-Identifier: MIT-0 */
/* Plans in the caller's memory: how many bytes a plan needs, and making one there. Both are
 * collective. */
#ifndef PLAN_MEMORY_H
#define PLAN_MEMORY_H

static inline dpar_status attention_bytes(dpar_comm *c, const dpar_attention_desc *layer,
                                          int64_t *bytes, dpar_why *why)
{
    dpar_attention_desc asks = *layer;
    dpar_attention_plan *none = NULL;
    dpar_status st;
    asks.memory = NULL;
    asks.bytes = 1;
    st = dpar_attention_make(c, &asks, &none, why);
    *bytes = why->bytes;
    return st == DPAR_E_ROOM ? DPAR_OK : st;
}

static inline dpar_status attention_in(void *memory, int64_t bytes, dpar_comm *c,
                                       const dpar_attention_desc *layer, dpar_attention_plan **plan,
                                       dpar_why *why)
{
    dpar_attention_desc there = *layer;
    there.memory = memory;
    there.bytes = bytes;
    return dpar_attention_make(c, &there, plan, why);
}

/* Sets *each to the bytes of a routing. */
static inline dpar_status experts_bytes(dpar_comm *c, const dpar_experts_desc *layer,
                                        int64_t *bytes, int64_t *each, dpar_why *why)
{
    dpar_experts_desc asks = *layer;
    dpar_experts_plan *plan = NULL;
    dpar_status st;
    asks.memory = NULL;
    asks.bytes = 1;
    st = dpar_experts_make(c, &asks, &plan, why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    *bytes = why->bytes;
    asks.bytes = 0;
    st = dpar_experts_make(c, &asks, &plan, why);
    if (st != DPAR_OK) {
        return st;
    }
    *each = plan->routing_bytes;
    return dpar_experts_free(plan);
}

static inline dpar_status experts_in(void *memory, int64_t bytes, dpar_comm *c,
                                     const dpar_experts_desc *layer, dpar_experts_plan **plan,
                                     dpar_why *why)
{
    dpar_experts_desc there = *layer;
    there.memory = memory;
    there.bytes = bytes;
    return dpar_experts_make(c, &there, plan, why);
}

static inline dpar_status pipeline_bytes(dpar_comm *c, const dpar_pipeline_desc *desc,
                                         int64_t *bytes, dpar_why *why)
{
    dpar_pipeline_desc asks = *desc;
    dpar_pipeline *none = NULL;
    dpar_status st;
    asks.memory = NULL;
    asks.bytes = 1;
    st = dpar_pipeline_make(c, &asks, &none, why);
    *bytes = why->bytes;
    return st == DPAR_E_ROOM ? DPAR_OK : st;
}

static inline dpar_status pipeline_in(void *memory, int64_t bytes, dpar_comm *c,
                                      const dpar_pipeline_desc *desc, dpar_pipeline **pipeline,
                                      dpar_why *why)
{
    dpar_pipeline_desc there = *desc;
    there.memory = memory;
    there.bytes = bytes;
    return dpar_pipeline_make(c, &there, pipeline, why);
}

#endif
