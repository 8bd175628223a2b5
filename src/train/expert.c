/* SPDX-License-Identifier: MIT-0 */
/* Plans and routings of mixtures of experts.
 *
 * Routing: each rank counts its choices for each expert, applies the capacity, and exchanges the
 * counts. With DPAR_EXPERTS_DROP_POSITION the capacity is global. The rank of an expert then
 * divides the expert's rows among the ranks, first choices first, and answers how many rows each
 * rank may send. The counts also determine where the rows of each rank begin, so that ranks need to
 * exchange nothing else. */
#include "expert.h"

#include "../base/arith.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/memory_calls.h"
#include "../comm/object_memory.h"
#include "../host/elements.h"
#include "../host/layers.h"
#include "../index/index_private.h"
#include "expert_private.h"

/* ---- layers and their memory ----------------------------------------------------------------- */

/* Returns the capacity factor in millionths, or 0 if it is outside of its domain. */
static int64_t dpari_expert_factor(const dpar_experts_desc *layer)
{
    return layer->capacity_factor > 0.0 && layer->capacity_factor <= 1e6
               ? (int64_t)(layer->capacity_factor * 1e6 + 0.5)
               : 0;
}

/* Returns the capacity C for a number of tokens, which is that of all ranks for
 * DPAR_EXPERTS_DROP_POSITION, otherwise that of one rank. Returns 2^63 - 1 for
 * DPAR_EXPERTS_DROP_NONE and if C is too large. Computes in integers, so that all ranks agree. */
static int64_t dpari_expert_capacity(const dpar_experts_desc *layer, int64_t tokens)
{
    int64_t n;
    if (layer->drop == DPAR_EXPERTS_DROP_NONE || layer->experts.count < 1 ||
        layer->experts.count > INT32_MAX || tokens < 0 || !dpari_mul(tokens, layer->choices, &n) ||
        !dpari_mul(n, dpari_expert_factor(layer), &n)) {
        return INT64_MAX;
    }
    return dpari_ceil_div(n, 1000000 * layer->experts.count);
}

static dpar_status dpari_expert_check(const dpar_experts_desc *layer, dpar_why *why)
{
    const dpar_split *split = &layer->experts;
    int64_t n, m;
    if (split->parts < 1 || split->count < 1 || split->count > INT32_MAX ||
        !dpari_split_in_order(split) || layer->choices < 1 || layer->choices > split->count) {
        return dpari_wrong(
            why,
            "experts: choices is %d, experts.count %ld, parts %d and rule %d, but 1 <= choices <= "
            "count, parts >= 1 and rule CHUNK, EVEN, FLOOR or RAGGED is required",
            layer->choices, split->count, split->parts, split->rule);
    }
    if (layer->drop < DPAR_EXPERTS_DROP_NONE || layer->drop > DPAR_EXPERTS_DROP_WEIGHT_LOCAL) {
        return dpari_wrong(
            why,
            "experts: drop is %d in a layer of %ld experts, but must be DPAR_EXPERTS_DROP_NONE, "
            "POSITION, POSITION_LOCAL or WEIGHT_LOCAL",
            layer->drop, split->count);
    }
    if (layer->drop != DPAR_EXPERTS_DROP_NONE && dpari_expert_factor(layer) < 1) {
        return dpari_wrong(
            why, "experts: capacity_factor of a layer of %ld experts must be 0.000001 to 1000000",
            split->count);
    }
    if (layer->max_tokens < 1 || layer->max_rows < 0 || layer->width < 1 ||
        !dpari_is_float(layer->type)) {
        return dpari_wrong(
            why,
            "experts: max_tokens is %ld, max_rows %ld, width %ld and type %s, but max_tokens and "
            "width must be at least 1, max_rows at least 0, and type f64, f32, bf16 or f16",
            layer->max_tokens, layer->max_rows, layer->width, dpar_type_name(layer->type));
    }
    if (!dpari_mul(layer->max_tokens, layer->choices, &n) || n > INT32_MAX ||
        !dpari_mul(n, split->parts, &m) || !dpari_mul(m, layer->width, &m) ||
        !dpari_mul(m, 64, &m) || !dpari_mul(split->count, layer->choices, &n) ||
        !dpari_mul(n, split->parts, &n) || !dpari_mul(n, 64, &n)) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "experts: max_tokens %ld, choices %d, %ld experts and width %ld are too large together",
            layer->max_tokens, layer->choices, split->count, layer->width);
    }
    return DPAR_OK;
}

/* Returns the largest number of rows that the experts of a rank can receive. The products cannot
 * overflow, because dpari_expert_check limits them. */
static int64_t dpari_expert_most(const dpar_experts_desc *layer, int32_t own)
{
    const int64_t all = layer->experts.parts * layer->max_tokens;
    const int64_t come = all * dpari_least(layer->choices, own);
    int64_t c, ranks;
    if (layer->drop == DPAR_EXPERTS_DROP_NONE) {
        return layer->max_rows > 0 ? dpari_least(layer->max_rows, come) : come;
    }
    c = dpari_expert_capacity(layer,
                              layer->drop == DPAR_EXPERTS_DROP_POSITION ? all : layer->max_tokens);
    ranks = layer->drop == DPAR_EXPERTS_DROP_POSITION ? 1 : layer->experts.parts;
    return dpari_mul(c, ranks * own, &c) ? dpari_least(c, come) : come;
}

/* Assigns memory from byte *used on to the buffers for rows and, for a device, to the copies of a
 * routing's arrays. Advances *used. */
static void dpari_expert_buffers(dpari_experts *plan, const dpar_comm *comm, unsigned char *memory,
                                 int64_t *used)
{
    const dpar_experts_desc *layer = &plan->head.layer;
    const int64_t most = layer->max_tokens * layer->choices;
    const size_t row = (size_t)layer->width * (size_t)dpar_type_bytes(layer->type);
    dpari_room room;
    room.at = memory;
    room.used = *used;
    plan->packed = dpari_room_take(&room, most, row);
    plan->staged = plan->head.count > 1 && comm->size > 1
                       ? dpari_room_take(&room, plan->head.max_rows, row)
                       : NULL;
    if (comm->mem != NULL) {
        plan->place = (int32_t *)dpari_room_take(&room, most, 4);
        plan->token = (int32_t *)dpari_room_take(&room, most, 4);
        plan->choice = (int32_t *)dpari_room_take(&room, most, 4);
        plan->weight =
            dpari_room_take(&room, most, (size_t)dpar_type_bytes(dpari_wide_type(layer->type)));
    }
    *used = room.used;
}

/* Assigns memory to the arrays of the plan and returns its size in bytes. If memory is NULL, only
 * computes the size. */
static int64_t dpari_expert_place_plan(dpari_experts *plan, const dpar_comm *comm,
                                       unsigned char *memory)
{
    const dpar_experts_desc *layer = &plan->head.layer;
    const int64_t ranks = comm->size, experts = layer->experts.count;
    dpari_room used = dpari_room_of(memory);
    (void)dpari_room_take(&used, 1, sizeof *plan);
    plan->head.count = (int32_t)dpar_split_part_count(&layer->experts, comm->rank);
    plan->head.first = (int32_t)dpar_split_part_first(&layer->experts, comm->rank);
    plan->head.max_rows = dpari_expert_most(layer, plan->head.count);
    plan->slots = layer->drop == DPAR_EXPERTS_DROP_POSITION ? layer->choices : 1;
    plan->sent_counts = (int32_t *)dpari_room_take(&used, ranks + plan->slots * experts, 4);
    plan->received_counts =
        (int32_t *)dpari_room_take(&used, ranks * (1 + (int64_t)plan->slots * plan->head.count), 4);
    plan->tally = (int32_t *)dpari_room_take(&used, plan->slots * experts, 4);
    plan->order = (int32_t *)dpari_room_take(
        &used,
        layer->drop == DPAR_EXPERTS_DROP_WEIGHT_LOCAL ? layer->max_tokens * layer->choices : 0, 4);
    plan->sent_number = (int64_t *)dpari_room_take(&used, ranks, 8);
    plan->received_number = (int64_t *)dpari_room_take(&used, ranks, 8);
    plan->send = (int64_t *)dpari_room_take(&used, ranks, 8);
    plan->receive = (int64_t *)dpari_room_take(&used, ranks, 8);
    plan->fill = (int64_t *)dpari_room_take(&used, experts, 8);
    plan->from =
        (const void **)dpari_room_take(&used, experts + 2 * layer->choices, sizeof *plan->from);
    plan->by = (double *)dpari_room_take(&used, 2 * layer->choices, 8);
    plan->peer = (dpari_peer *)dpari_room_take(&used, ranks, sizeof *plan->peer);
    if (comm->mem != NULL) { /* the buffers are in the device's memory */
        plan->span = (dpar_mem_span *)dpari_room_take(
            &used, dpari_most(ranks * plan->head.count, DPARI_EXPERT_INDICES), sizeof *plan->span);
        plan->device_bytes = 0;
        dpari_expert_buffers(plan, comm, (unsigned char *)plan->device, &plan->device_bytes);
    } else {
        dpari_expert_buffers(plan, comm, memory, &used.used);
    }
    return used.used;
}

/* Does the same for a routing. Other ranks read the first four arrays. These have the same offsets
 * on all ranks, because the first three have the same length on all ranks. */
static DPARI_COLD int64_t dpari_expert_place_routing(const dpari_experts *plan,
                                                     const dpar_comm *comm, dpari_routing *routing,
                                                     unsigned char *memory)
{
    const int64_t most = plan->head.layer.max_tokens * plan->head.layer.choices;
    dpari_room used = dpari_room_of(memory);
    (void)dpari_room_take(&used, 1, sizeof *routing);
    routing->send = (int64_t *)dpari_room_take(&used, comm->size, 8);
    routing->take = (int64_t *)dpari_room_take(&used, comm->size, 8);
    routing->choice = (int32_t *)dpari_room_take(&used, most, 4);
    routing->row = (int64_t *)dpari_room_take(&used, comm->size * (int64_t)plan->head.count, 8);
    routing->head.count = (int64_t *)dpari_room_take(&used, plan->head.count, 8);
    routing->head.first = (int64_t *)dpari_room_take(&used, plan->head.count, 8);
    routing->head.position = (int32_t *)dpari_room_take(&used, most, 4);
    routing->piece = (int64_t *)dpari_room_take(&used, comm->size * (int64_t)plan->head.count, 8);
    routing->start = (int64_t *)dpari_room_take(&used, plan->head.layer.experts.count, 8);
    routing->expert = (int32_t *)dpari_room_take(&used, most, 4);
    routing->token = comm->mem != NULL ? (int32_t *)dpari_room_take(&used, most, 4) : NULL;
    return used.used;
}

/* Checks a layer and computes the size of its plan (*bytes) and of a routing (*each). */
static DPARI_COLD dpar_status dpari_expert_needs(const dpar_comm *comm,
                                                 const dpar_experts_desc *layer, int64_t *bytes,
                                                 int64_t *each, dpar_why *why)
{
    dpari_experts p;
    dpari_routing r;
    dpar_status st;
    if (layer == NULL) {
        return dpari_wrong(why, "dpar_experts_make: the layer is NULL");
    }
    st = dpari_expert_check(layer, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (layer->experts.parts != comm->size) {
        return dpari_wrong(why,
                           "experts: the split has %d parts, but the communicator has %d ranks",
                           layer->experts.parts, comm->size);
    }
    dpari_zero(&p, sizeof p);
    p.head.layer = *layer;
    *bytes = dpari_expert_place_plan(&p, comm, NULL);
    *each = dpari_expert_place_routing(&p, comm, &r, NULL);
    return DPAR_OK;
}

/* Lists the values that must be equal on all ranks. */
static DPARI_COLD void dpari_expert_facts(dpari_facts *facts, const void *given)
{
    const dpar_experts_desc *layer = (const dpar_experts_desc *)given;
    int32_t i;
    dpari_fact(facts, "experts.count", 0, layer->experts.count);
    for (i = 0; i < layer->experts.parts; i++) {
        dpari_fact(facts, "the number of experts of rank #", i,
                   dpar_split_part_count(&layer->experts, i));
    }
    dpari_fact(facts, "choices", 0, layer->choices);
    dpari_fact(facts, "drop", 0, layer->drop);
    dpari_fact_type(facts, "type", 0, layer->type);
    dpari_fact(facts, "capacity_factor in millionths", 0,
               layer->drop == DPAR_EXPERTS_DROP_NONE ? 0 : dpari_expert_factor(layer));
    dpari_fact(facts, "max_tokens", 0, layer->max_tokens);
    dpari_fact(facts, "width", 0, layer->width);
}

/* Checks that comm->mem has the functions that experts need, allocates the buffers on the device,
 * and assigns them to the plan. */
static dpar_status dpari_expert_use_device(dpari_experts *plan, dpar_why *why)
{
    dpar_comm *comm = plan->comm;
    const dpar_mem *m = comm->mem;
    const dpar_mem_layers *l = (const dpar_mem_layers *)m->layers;
    dpar_status st;
    if (m->wait == NULL || m->span == NULL) {
        return dpari_say(DPAR_E_UNKNOWN, why, "experts: comm->mem must have wait and span");
    }
    if (l == NULL || l->gather == NULL || l->combine == NULL || l->dot == NULL) {
        return dpari_say(DPAR_E_UNKNOWN, why,
                         "experts: comm->mem->layers must have gather, combine and dot");
    }
    st = dpar_comm_alloc(comm, plan->device_bytes, &plan->device);
    if (st != DPAR_OK) {
        return dpari_say(st, why, "experts: the device has no memory for %ld bytes",
                         plan->device_bytes);
    }
    (void)dpari_expert_place_plan(plan, comm, (unsigned char *)(void *)plan);
    return DPAR_OK;
}

/* Fills in a plan in its memory. each: size of a routing in bytes. */
static DPARI_COLD dpar_status dpari_expert_fill_plan(dpari_experts *plan, dpar_comm *comm,
                                                     const dpar_experts_desc *layer, int64_t each,
                                                     dpar_why *why)
{
    int32_t i;
    dpari_zero(plan, sizeof *plan);
    plan->head.layer = *layer;
    plan->head.routing_bytes = each;
    plan->comm = comm;
    plan->tag = (int32_t)(dpari_facts_hash("experts", dpari_expert_facts, &plan->head.layer) >> 40);
    (void)dpari_expert_place_plan(plan, comm, (unsigned char *)(void *)plan);
    for (i = 0; i < comm->size; i++) {
        plan->sent_number[i] = 1 + plan->slots * dpar_split_part_count(&layer->experts, i);
        plan->received_number[i] = 1 + (int64_t)plan->slots * plan->head.count;
    }
    return comm->mem != NULL ? dpari_expert_use_device(plan, why) : DPAR_OK;
}

/* Frees the memory on the device, once its stream has finished with it. */
static DPARI_COLD dpar_status dpari_expert_release(dpari_experts *plan)
{
    dpar_status st = DPAR_OK;
    if (plan->device != NULL) {
        st = dpari_do_wait(plan->comm); /* not sufficient with NCCL, where the release waits */
        dpar_comm_release(plan->comm, plan->device);
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_experts_make(dpar_comm *comm, const dpar_experts_desc *layer,
                                                  dpar_experts_plan **plan, dpar_why *why)
{
    void *memory = NULL;
    dpari_experts *p;
    int64_t need = 0, each = 0;
    int32_t own = 0;
    dpar_status st;
    if (comm == NULL) {
        return dpari_wrong(why, "dpar_experts_make: the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    st = plan == NULL ? dpari_wrong(why, "dpar_experts_make: the plan is NULL")
                      : dpari_expert_needs(comm, layer, &need, &each, why);
    if (st == DPAR_OK) { /* memory allocated here also holds one routing */
        own = layer->memory == NULL && layer->bytes == 0;
        need = dpari_room_up(need);
        st = dpari_object_memory(comm, layer->memory, layer->bytes, own ? need + each : need,
                                 "experts", &memory, why);
    }
    p = st == DPAR_OK ? (dpari_experts *)memory : NULL;
    if (p != NULL) {
        st = dpari_expert_fill_plan(p, comm, layer, each, why);
    }
    st = dpari_agree_on(comm, st, "experts", dpari_expert_facts, layer, why);
    if (st != DPAR_OK) {
        if (p != NULL) {
            (void)dpari_expert_release(p);
        }
        return dpari_object_failed(st, layer != NULL ? layer->memory : NULL, memory, need, why);
    }
    if (own && comm->mem == NULL) {
        p->routing_memory = (unsigned char *)memory + need;
    }
    *plan = &p->head;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_experts_free(dpar_experts_plan *plan)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    dpar_status st;
    if (p == NULL) {
        return DPAR_OK;
    }
    st = dpari_expert_release(p);
    return dpari_object_end(st, p->head.layer.memory == NULL ? p : NULL);
}

/* ---- which choices are kept ------------------------------------------------------------------ */

/* Returns the first token that chose an expert that does not exist, or one expert twice, or -1 if
 * there is none. */
static int64_t dpari_expert_invalid_token(const dpar_experts_desc *layer, int64_t tokens,
                                          const int32_t *chosen)
{
    const int32_t k = layer->choices;
    int64_t t;
    int32_t j, i;
    for (t = 0; t < tokens; t++) {
        for (j = 0; j < k; j++) {
            const int32_t e = chosen[t * k + j];
            if (e < -1 || e >= layer->experts.count) {
                return t;
            }
            for (i = 0; i < j && e >= 0; i++) {
                if (chosen[t * k + i] == e) {
                    return t;
                }
            }
        }
    }
    return -1;
}

/* Checks the arguments of dpar_experts_route. */
static dpar_status dpari_expert_given(const dpari_experts *plan, const void *memory, int64_t bytes,
                                      const dpar_experts_choices *choices, dpar_why *why)
{
    const dpar_experts_desc *layer = &plan->head.layer;
    const int64_t tokens = choices != NULL ? choices->tokens : 0;
    int64_t odd;
    if (memory == NULL || bytes < plan->head.routing_bytes || (uintptr_t)memory % 64 != 0) {
        return dpari_wrong(why,
                           "routing: memory has %ld bytes, but %ld bytes at a multiple of 64 are "
                           "needed; it begins "
                           "%ld bytes after such a multiple",
                           memory == NULL ? 0 : bytes, plan->head.routing_bytes,
                           (int64_t)((uintptr_t)memory % 64));
    }
    if (tokens < 0 || tokens > layer->max_tokens) {
        return dpari_wrong(why, "routing: tokens is %ld, but must be 0 to %ld (layer.max_tokens)",
                           tokens, layer->max_tokens);
    }
    if (choices == NULL ||
        (tokens > 0 && (choices->chosen == NULL || (layer->drop == DPAR_EXPERTS_DROP_WEIGHT_LOCAL &&
                                                    choices->weight == NULL)))) {
        return dpari_wrong(why, "routing: choices, chosen or weight is NULL for %ld tokens",
                           tokens);
    }
    odd = dpari_expert_invalid_token(layer, tokens, choices->chosen);
    if (odd < 0) {
        return DPAR_OK;
    }
    return dpari_wrong(why,
                       "routing: token %ld chose an expert twice, or an expert outside 0 .. %ld",
                       odd, layer->experts.count - 1);
}

/* Counts the kept choices in plan->tally. */
static void dpari_expert_count(dpari_experts *plan, const dpari_routing *routing,
                               const int32_t *chosen)
{
    const int64_t experts = plan->head.layer.experts.count, n = dpari_expert_choices(plan, routing);
    int64_t i;
    dpari_zero(plan->tally, (size_t)(plan->slots * experts) * sizeof *plan->tally);
    for (i = 0; i < n; i++) {
        if (routing->head.position[i] >= 0) {
            plan->tally[i % plan->head.layer.choices % plan->slots * experts + chosen[i]]++;
        }
    }
}

/* True if choice a is kept rather than choice b: it has the larger weight, or the same weight and
 * the lower index. */
static int dpari_expert_heavier(const void *weight, int32_t type, int32_t a, int32_t b)
{
    const double x = dpari_element_get(weight, type, a), y = dpari_element_get(weight, type, b);
    return dpari_higher(x, y) || (!dpari_higher(y, x) && a < b);
}

/* Moves a[at] down to its place in a heap of n choices, whose first element is the one to drop
 * next. */
static void dpari_expert_sink(int32_t *a, int64_t at, int64_t n, const void *weight, int32_t type)
{
    int64_t below = 2 * at + 1;
    while (below < n) {
        const int32_t moved = a[at];
        if (below + 1 < n && dpari_expert_heavier(weight, type, a[below], a[below + 1])) {
            below++;
        }
        if (!dpari_expert_heavier(weight, type, moved, a[below])) {
            return;
        }
        a[at] = a[below];
        a[below] = moved;
        at = below;
        below = 2 * at + 1;
    }
}

/* DPAR_EXPERTS_DROP_WEIGHT_LOCAL: sorts choices by expert, and removes the lightest ones of each
 * expert with a heap. */
static DPARI_COLD void dpari_expert_drop_light(dpari_experts *plan, const dpari_routing *routing,
                                               const int32_t *chosen, const void *weight,
                                               int64_t capacity)
{
    const int64_t n = dpari_expert_choices(plan, routing), experts = plan->head.layer.experts.count;
    const int32_t type = dpari_wide_type(plan->head.layer.type);
    int64_t i, e, at = 0, left;
    for (e = 0; e < experts; e++) {
        plan->fill[e] = at;
        at += plan->tally[e];
    }
    for (i = 0; i < n; i++) {
        if (routing->head.position[i] >= 0) {
            plan->order[plan->fill[chosen[i]]++] = (int32_t)i;
        }
    }
    for (e = 0; e < experts; e++) {
        int32_t *a = plan->order + (plan->fill[e] - plan->tally[e]);
        left = plan->tally[e];
        for (i = left > capacity ? left / 2 : 0; i > 0; i--) {
            dpari_expert_sink(a, i - 1, left, weight, type);
        }
        for (; left > capacity; left--) {
            routing->head.position[a[0]] = -1;
            a[0] = a[left - 1];
            dpari_expert_sink(a, 0, left - 1, weight, type);
        }
    }
}

/* Visits the first choices of all tokens, then the second ones, and so on. Drops those for which
 * room[slot][expert] has no row left, and decrements it for the others. */
static void dpari_expert_drop_last(const dpari_experts *plan, const dpari_routing *routing,
                                   const int32_t *chosen, int32_t *room)
{
    const int64_t experts = plan->head.layer.experts.count;
    const int32_t k = plan->head.layer.choices;
    int64_t t;
    int32_t j;
    for (j = 0; j < k; j++) {
        for (t = 0; t < routing->head.tokens; t++) {
            if (routing->head.position[t * k + j] >= 0) {
                int32_t *left = &room[j % plan->slots * experts + chosen[t * k + j]];
                if (*left > 0) {
                    --*left;
                } else {
                    routing->head.position[t * k + j] = -1;
                }
            }
        }
    }
}

/* Drops choices by the rules that depend only on the tokens of this rank. */
static void dpari_expert_drop_own(dpari_experts *plan, const dpari_routing *routing,
                                  const int32_t *chosen, const void *weight)
{
    const int64_t capacity = dpari_expert_capacity(&plan->head.layer, routing->head.tokens);
    int64_t e;
    if (plan->head.layer.drop == DPAR_EXPERTS_DROP_WEIGHT_LOCAL) {
        dpari_expert_count(plan, routing, chosen);
        dpari_expert_drop_light(plan, routing, chosen, weight, capacity);
    } else if (plan->head.layer.drop == DPAR_EXPERTS_DROP_POSITION_LOCAL) {
        for (e = 0; e < plan->head.layer.experts.count; e++) {
            plan->tally[e] = (int32_t)dpari_least(capacity, INT32_MAX);
        }
        dpari_expert_drop_last(plan, routing, chosen, plan->tally);
    }
}

/* ---- the exchange of counts ------------------------------------------------------------------ */

/* Copies plan->tally into the lists of counts that are sent to each rank. With `back`, copies the
 * answers in these lists into plan->tally. */
static void dpari_expert_sort(dpari_experts *plan, int64_t tokens, int back)
{
    const int64_t experts = plan->head.layer.experts.count;
    int32_t *at = plan->sent_counts, rank, j;
    int64_t first = 0, e;
    for (rank = 0; rank < plan->comm->size; rank++) {
        const int64_t own = dpar_split_part_count(&plan->head.layer.experts, rank);
        *at++ = (int32_t)tokens;
        for (j = 0; j < plan->slots; j++) {
            int32_t *mine = plan->tally + j * experts + first;
            for (e = 0; e < own; e++) {
                if (back) {
                    mine[e] = *at++;
                } else {
                    *at++ = mine[e];
                }
            }
        }
        first += own;
    }
}

DPARI_INTERNAL int64_t dpari_expert_away(const dpar_comm *comm, const int64_t *counts)
{
    int64_t n = 0;
    int32_t rank;
    for (rank = 0; rank < comm->size; rank++) {
        n += rank != comm->rank ? counts[rank] : 0;
    }
    return n;
}

DPARI_INTERNAL dpar_status dpari_expert_send(dpari_experts *plan, const void *in,
                                             const int64_t *in_count, void *out,
                                             const int64_t *out_count, int32_t type)
{
    const dpar_status st =
        dpar_all_to_all_v(plan->comm, in, in_count, NULL, out, out_count, NULL, type, NULL);
    if (st == DPAR_OK) {
        plan->head.sent_bytes += dpari_expert_away(plan->comm, in_count) * dpar_type_bytes(type);
    }
    return st;
}

/* For DPAR_EXPERTS_DROP_POSITION: replaces the counts that this rank received by its answers, the
 * numbers of rows that its experts accept. They accept first choices of all ranks in the order of
 * the ranks, then second choices, and so on, until their capacity is used up. */
static void dpari_expert_grant(dpari_experts *plan)
{
    const int64_t step = 1 + (int64_t)plan->slots * plan->head.count;
    int64_t tokens = 0, capacity, left;
    int32_t rank, e, j;
    for (rank = 0; rank < plan->comm->size; rank++) {
        tokens += plan->received_counts[rank * step];
    }
    capacity = dpari_expert_capacity(&plan->head.layer, tokens);
    for (e = 0; e < plan->head.count; e++) {
        left = capacity;
        for (j = 0; j < plan->slots; j++) {
            for (rank = 0; rank < plan->comm->size; rank++) {
                int32_t *wanted =
                    &plan->received_counts[rank * step + 1 + (int64_t)j * plan->head.count + e];
                *wanted = (int32_t)dpari_least(*wanted, left);
                left -= *wanted;
            }
        }
    }
}

/* Exchanges counts and waits until they have arrived. The wait is needed because a device may
 * access page-locked memory asynchronously. */
static dpar_status dpari_expert_send_counts(dpari_experts *plan, const int32_t *in,
                                            const int64_t *in_count, int32_t *out,
                                            const int64_t *out_count)
{
    const dpar_status st = dpari_expert_send(plan, in, in_count, out, out_count, DPAR_I32);
    return st == DPAR_OK ? dpari_do_wait(plan->comm) : st;
}

/* Exchanges the counts. With DPAR_EXPERTS_DROP_POSITION also exchanges the answers, and drops the
 * choices that the experts do not accept. */
static dpar_status dpari_expert_exchange(dpari_experts *plan, const dpari_routing *routing,
                                         const int32_t *chosen)
{
    dpar_status st;
    dpari_expert_count(plan, routing, chosen);
    dpari_expert_sort(plan, routing->head.tokens, 0);
    st = dpari_expert_send_counts(plan, plan->sent_counts, plan->sent_number, plan->received_counts,
                                  plan->received_number);
    if (st != DPAR_OK || plan->head.layer.drop != DPAR_EXPERTS_DROP_POSITION) {
        return st;
    }
    dpari_expert_grant(plan);
    st = dpari_expert_send_counts(plan, plan->received_counts, plan->received_number,
                                  plan->sent_counts, plan->sent_number);
    if (st == DPAR_OK) {
        dpari_expert_sort(plan, routing->head.tokens, 1);
        dpari_expert_drop_last(plan, routing, chosen, plan->tally);
    }
    return st;
}

/* Number of different tags of routings. A tag in a message is 8 times this tag plus 0 to 3 for the
 * exchange, at most 8 (2^24 - 1) + 3, which is below 2^31. */
enum { DPARI_EXPERT_ROUTES = 1 << 24 };

/* Computes from the received counts how many rows this rank receives from each rank and where they
 * are stored: grouped by expert, and within an expert in the order of the ranks. */
static void dpari_expert_expect(const dpari_experts *plan, dpari_routing *routing)
{
    const int64_t step = 1 + (int64_t)plan->slots * plan->head.count;
    int32_t rank, e, j;
    routing->head.rows = 0;
    dpari_zero(routing->take, (size_t)plan->comm->size * sizeof *routing->take);
    for (e = 0; e < plan->head.count; e++) {
        routing->head.first[e] = routing->head.rows;
        for (rank = 0; rank < plan->comm->size; rank++) {
            const int64_t at = rank * (int64_t)plan->head.count + e;
            int64_t rows = 0;
            for (j = 0; j < plan->slots; j++) {
                rows += plan->received_counts[rank * step + 1 + (int64_t)j * plan->head.count + e];
            }
            routing->piece[at] = rows;
            routing->row[at] = routing->head.rows;
            routing->take[rank] += rows;
            routing->head.rows += rows;
        }
        routing->head.count[e] = routing->head.rows - routing->head.first[e];
    }
}

/* Sorts the kept choices by expert and then by token, which is the order in which their rows are
 * sent. */
static void dpari_expert_place(dpari_experts *plan, dpari_routing *routing, const int32_t *chosen)
{
    const int64_t n = dpari_expert_choices(plan, routing);
    int64_t i, e = 0, at = 0;
    int32_t rank, j;
    dpari_expert_count(plan, routing, chosen);
    for (rank = 0; rank < plan->comm->size; rank++) {
        const int64_t end = e + dpar_split_part_count(&plan->head.layer.experts, rank), before = at;
        for (; e < end; e++) {
            plan->fill[e] = routing->start[e] = at;
            for (j = 0; j < plan->slots; j++) {
                at += plan->tally[j * plan->head.layer.experts.count + e];
            }
        }
        routing->send[rank] = at - before;
    }
    routing->head.kept = at;
    routing->head.dropped = -at;
    for (i = 0; i < n; i++) {
        routing->head.dropped += chosen[i] >= 0;
        if (routing->head.position[i] >= 0) {
            routing->expert[i] = chosen[i];
            routing->head.position[i] = (int32_t)plan->fill[chosen[i]]++;
            routing->choice[routing->head.position[i]] = (int32_t)i;
        }
    }
    for (i = 0; routing->token != NULL && i < routing->head.kept; i++) {
        routing->token[i] = routing->choice[i] / plan->head.layer.choices;
    }
}

DPAR_API DPARI_COLD dpar_status dpar_experts_route(dpar_experts_plan *plan, void *memory,
                                                   int64_t bytes,
                                                   const dpar_experts_choices *choices,
                                                   dpar_experts_routing **routing, dpar_why *why)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    dpari_routing *r;
    const int32_t *chosen;
    dpar_why said;
    int64_t i;
    dpar_status st;
    if (plan == NULL || routing == NULL) {
        return dpari_wrong(why, "dpar_experts_route: plan or routing is NULL");
    }
    if (memory == NULL && p->routing_memory != NULL) {
        memory = p->routing_memory;
        bytes = p->head.routing_bytes;
    }
    r = (dpari_routing *)memory;
    if (dpari_expert_given(p, memory, bytes, choices, &said) != DPAR_OK) {
        st = dpari_comm_wrong_all(p->comm, DPAR_E_ARG, "rank %d: %s", p->comm->rank, said.text);
    } else {
        st = dpari_do_wait(p->comm); /* the device may still read the old contents */
    }
    if (st != DPAR_OK) {
        return dpari_repeat(st, why, p->comm->why.text);
    }
    chosen = choices->chosen;
    dpari_zero(r, sizeof *r);
    r->head.tokens = choices->tokens;
    (void)dpari_expert_place_routing(p, p->comm, r, (unsigned char *)memory);
    for (i = 0; i < dpari_expert_choices(p, r); i++) {
        r->head.position[i] = chosen[i] >= 0 ? 0 : -1;
    }
    dpari_expert_drop_own(p, r, chosen, choices->weight);
    st = dpari_expert_exchange(p, r, chosen);
    if (st != DPAR_OK) {
        return dpari_repeat(st, why, p->comm->why.text);
    }
    p->routes = (p->routes + 1) % DPARI_EXPERT_ROUTES;
    r->tag = (p->tag + p->routes) % DPARI_EXPERT_ROUTES * 8;
    dpari_expert_expect(p, r);
    if (p->head.layer.drop == DPAR_EXPERTS_DROP_NONE) {
        if (r->head.rows > p->head.max_rows) {
            dpari_needs_bytes(why, 0);
            st = dpari_say(
                DPAR_E_ROOM, why,
                "experts %d .. %d receive %ld rows, but their limit is %ld (layer.max_rows)",
                p->head.first, p->head.first + p->head.count - 1, r->head.rows, p->head.max_rows);
        }
        st = dpari_agree(p->comm, st, why);
    }
    if (st == DPAR_OK) {
        dpari_expert_place(p, r, chosen);
        p->head.kept += r->head.kept;
        p->head.dropped += r->head.dropped;
        p->head.received += r->head.rows;
        *routing = &r->head;
    }
    return st;
}
