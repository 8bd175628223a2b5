/* SPDX-License-Identifier: MIT-0 */
/* Routing and exchange of tokens for mixtures of experts.
 *
 * Routing: each rank counts its choices for each expert, applies the capacity, and exchanges the
 * counts. With DPAR_EXPERTS_DROP_POSITION the capacity is global. The rank of an expert then
 * divides the expert's rows among the ranks, first choices first, and answers how many rows each
 * rank may send. The counts also determine where the rows of each rank begin, so that ranks need to
 * exchange nothing else.
 *
 * Exchange: an expert's rows are in the order of ranks and tokens, and results are summed in the
 * order of choices. There are three implementations with the same bits: direct reads from the
 * arrays of the other ranks (peer_arrays.h), packing around an all-to-all-v, and gathers and sums
 * on a device. */
#include "expert.h"

#include "../base/arith.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/memory_calls.h"
#include "../comm/object_memory.h"
#include "../comm/peer_arrays.h"
#include "../host/elements.h"
#include "../host/kernel.h"
#include "../index/index_private.h"
#include "layer_calls.h"

/* ---- layers and their memory ----------------------------------------------------------------- */

/* A plan. The public part comes first, so that a pointer to it is a pointer to the plan. */
typedef struct dpari_experts {
    dpar_experts_plan head;
    dpar_comm *comm;
    /* number of counts per expert: with DPAR_EXPERTS_DROP_POSITION k, one for each position of a
     * choice, otherwise 1 */
    int32_t slots;
    int32_t tag;    /* from a hash of the layer, the same on all ranks */
    int32_t routes; /* calls of dpar_experts_route so far, modulo DPARI_EXPERT_ROUTES */

    /* The exchange of counts. For each rank: the number of tokens, then [slots][experts of the
     * receiving rank] counts. */
    int32_t *sent_counts, *received_counts;
    int64_t *sent_number, *received_number; /* [ranks] length of these lists for each rank */

    int32_t *tally;          /* [slots][experts] number of choices, or of free rows */
    int32_t *order;          /* choices sorted by expert, for DPAR_EXPERTS_DROP_WEIGHT_LOCAL */
    int64_t *send, *receive; /* [ranks] elements of an all-to-all-v */
    /* [experts] next position of each expert in a list that is sorted by expert; in
     * dpari_expert_find the offset from a kept choice to its row in from[e] */
    int64_t *fill;

    /* [experts] the array that contains the rows of each expert. The rest, [2][k], holds the rows
     * of two tokens that are added, with the weights by[2][k]. */
    const void **from;
    double *by;

    dpari_peer *peer; /* [ranks] */
    void *packed;     /* rows of the kept choices in the order of experts, as they are sent */
    void *staged;     /* rows in the order of ranks; NULL if that is the order of experts */

    /* Memory of the device if comm->mem is one. It contains packed, staged, `weight`, and copies
     * (place, token, choice) of three arrays of the routing `indexed`, whose tag was indexed_tag.
     */
    void *device;
    int64_t device_bytes;
    int32_t *place, *token, *choice;
    void *weight; /* weights of the kept choices, in the order of experts */
    const struct dpari_routing *indexed;
    int32_t indexed_tag;

    /* memory for one routing if dpar_experts_make allocated the plan without comm->mem, or NULL */
    void *routing_memory;
    dpar_mem_span *span; /* on a device: [ranks][own], and at least DPARI_EXPERT_INDICES */
} dpari_experts;

/* A routing. Other ranks read the first four arrays, which are at the same offsets in every rank's
 * routing. The kept choices are sorted by expert, then by token. */
typedef struct dpari_routing {
    dpar_experts_routing head;
    int64_t *send;   /* [ranks] rows that are sent to each rank */
    int64_t *take;   /* [ranks] rows that are received from each rank */
    int32_t *choice; /* [kept] index token k + position of each kept choice */
    int64_t *row;    /* [ranks][own] first row of the piece from a rank to an expert of this rank */
    int64_t *piece;  /* [ranks][own] number of rows of that piece */
    int64_t *start;  /* [experts] first kept choice of each expert */
    int32_t *expert; /* [tokens][k] expert of each choice that is kept */
    int32_t *token;  /* [kept] token of each kept choice; NULL without a device */
    int32_t tag;     /* identifies the layer and this call of dpar_experts_route on all ranks */
} dpari_routing;

enum { DPARI_EXPERT_INDICES = 3 }; /* arrays of a routing that a device reads */

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

/* Returns the number of choices of the tokens of a routing, including dropped ones. */
static int64_t dpari_expert_choices(const dpari_experts *plan, const dpari_routing *routing)
{
    return routing->head.tokens * plan->head.layer.choices;
}

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

/* Returns the sum of counts over the other ranks. */
static int64_t dpari_expert_away(const dpar_comm *comm, const int64_t *counts)
{
    int64_t n = 0;
    int32_t rank;
    for (rank = 0; rank < comm->size; rank++) {
        n += rank != comm->rank ? counts[rank] : 0;
    }
    return n;
}

/* Exchanges values between ranks, and counts the bytes sent. Except for direct reads, this function
 * sends all data of this module. */
static dpar_status dpari_expert_send(dpari_experts *plan, const void *in, const int64_t *in_count,
                                     void *out, const int64_t *out_count, int32_t type)
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

DPAR_API dpar_status dpar_experts_route(dpar_experts_plan *plan, void *memory, int64_t bytes,
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

/* ---- rows ------------------------------------------------------------------------------------ */

/* Returns the address of a row. */
static void *dpari_expert_at(void *rows, const dpar_experts_desc *layer, int64_t row)
{
    return (unsigned char *)rows + row * layer->width * dpar_type_bytes(layer->type);
}

static const void *dpari_expert_in(const void *rows, const dpar_experts_desc *layer, int64_t row)
{
    return (const unsigned char *)rows + row * layer->width * dpar_type_bytes(layer->type);
}

/* Returns the size of a row in bytes. */
static int64_t dpari_expert_row(const dpar_experts_desc *layer)
{
    return layer->width * dpar_type_bytes(layer->type);
}

/* Computes to = by x from for one row. 16-bit floats are scaled as f32. */
static void dpari_expert_scale(void *to, const void *from, const dpar_experts_desc *layer,
                               double by)
{
    float x[DPARI_ELEMENTS];
    int64_t at, n, i;
    for (at = 0; at < layer->width; at += n) {
        unsigned char *t = (unsigned char *)to + at * dpar_type_bytes(layer->type);
        const unsigned char *f = (const unsigned char *)from + at * dpar_type_bytes(layer->type);
        n = dpari_least(layer->width - at, DPARI_ELEMENTS);
        if (layer->type == DPAR_F64) {
            for (i = 0; i < n; i++) {
                ((double *)to)[at + i] = ((const double *)from)[at + i] * by;
            }
        } else if (layer->type == DPAR_F32) {
            dpari_kern_scale(t, f, by, n);
        } else {
            dpari_kern_convert(x, DPAR_F32, f, layer->type, n);
            dpari_kern_scale(x, x, by, n);
            dpari_kern_convert(t, layer->type, x, DPAR_F32, n);
        }
    }
}

/* The `count` rows that are added for one token, and their weights. */
typedef struct dpari_expert_terms {
    const void **row;
    double *by;
    int32_t count;
} dpari_expert_terms;

/* Computes out = sum of by[j] x row[j], in f64 in the order of j, rounded once. Prefetches the rows
 * of the next token. */
static void dpari_expert_add(const dpar_experts_desc *layer, const dpari_expert_terms *z,
                             const dpari_expert_terms *next, void *out, int32_t stream)
{
    double sum[DPARI_ELEMENTS], x[DPARI_ELEMENTS] = {0.0};
    int64_t at, n, i;
    int32_t j;
    if (layer->type == DPAR_F32 || layer->type == DPAR_F64) {
        dpari_kern_mix(out, z->row, z->by, z->count, next->row, next->count, layer->width,
                       layer->type, stream);
        return;
    }
    for (at = 0; at < layer->width; at += n) {
        n = dpari_least(layer->width - at, DPARI_ELEMENTS);
        dpari_zero(sum, sizeof sum);
        for (j = 0; j < z->count; j++) {
            dpari_elements_load(x, z->row[j], at, n, layer->type);
            for (i = 0; i < DPARI_ELEMENTS; i++) {
                sum[i] += z->by[j] * x[i];
            }
        }
        dpari_elements_store(out, sum, at, n, layer->type);
    }
}

/* Sets z to the rows of the kept choices of a token, which plan->from and plan->fill locate, and to
 * their weights, which are 1 if weight is NULL. Even and odd tokens use different halves of the
 * memory for z, because dpari_expert_sums also needs the next token. */
static void dpari_expert_find(const dpari_experts *plan, const dpari_routing *routing,
                              int64_t token, const void *weight, dpari_expert_terms *z)
{
    const int32_t k = plan->head.layer.choices;
    int64_t i;
    z->row = plan->from + plan->head.layer.experts.count + token % 2 * k;
    z->by = plan->by + token % 2 * k;
    z->count = 0;
    for (i = token * k; i < (token + 1) * k && token < routing->head.tokens; i++) {
        if (routing->head.position[i] >= 0) {
            const int32_t e = routing->expert[i];
            z->row[z->count] = dpari_expert_in(plan->from[e], &plan->head.layer,
                                               routing->head.position[i] + plan->fill[e]);
            z->by[z->count++] =
                weight != NULL
                    ? dpari_element_get(weight, dpari_wide_type(plan->head.layer.type), i)
                    : 1.0;
        }
    }
}

/* Copies the rows of z into `kept`, where backward reads them, and makes z point to the copies. */
static void dpari_expert_keep(const dpari_experts *plan, const dpari_routing *routing,
                              int64_t token, void *kept, dpari_expert_terms *z)
{
    const int32_t k = plan->head.layer.choices;
    int32_t j, n = 0;
    for (j = 0; j < k; j++) {
        const int64_t place = routing->head.position[token * k + j];
        if (place >= 0) {
            void *to = dpari_expert_at(kept, &plan->head.layer, place);
            dpari_kern_row(to, z->row[n], z->row[n], dpari_expert_row(&plan->head.layer), 0);
            z->row[n++] = to;
        }
    }
}

/* Computes out[token], the weighted sum of the token's rows, for all tokens. kept: where the rows
 * are saved; NULL if they are not wanted or already saved. */
static void dpari_expert_sums(const dpari_experts *plan, const dpari_routing *routing,
                              const void *weight, void *kept, void *out, int32_t stream)
{
    dpari_expert_terms z, next;
    int64_t t;
    dpari_expert_find(plan, routing, 0, weight, &next);
    for (t = 0; t < routing->head.tokens; t++) {
        z = next;
        dpari_expert_find(plan, routing, t + 1, weight, &next);
        if (kept != NULL) {
            dpari_expert_keep(plan, routing, t, kept, &z);
        }
        dpari_expert_add(&plan->head.layer, &z, &next, dpari_expert_at(out, &plan->head.layer, t),
                         stream);
    }
    dpari_kern_rows_end(stream);
}

/* Describes a copy of bytes for the device in s. Returns 1, or 0 if there are no bytes, so that the
 * caller can use s for the next copy. */
static int32_t dpari_expert_span(dpar_mem_span *s, void *to, const void *from, int64_t bytes)
{
    dpari_zero(s, sizeof *s);
    s->to = to;
    s->from = from;
    s->count = bytes;
    s->to_type = s->from_type = DPAR_U8;
    s->scale = 1.0;
    return bytes > 0;
}

/* Copies rows from the order of ranks, then experts, to the order of experts, then ranks. With
 * `back`, copies them in the opposite direction. */
static dpar_status dpari_expert_group(const dpari_experts *plan, const dpari_routing *routing,
                                      void *to, const void *from, int back)
{
    const dpar_experts_desc *layer = &plan->head.layer;
    int64_t at = 0;
    int32_t rank, e, n = 0;
    for (rank = 0; rank < plan->comm->size; rank++) {
        for (e = 0; e < plan->head.count; e++) {
            const int64_t piece = rank * (int64_t)plan->head.count + e, row = routing->row[piece];
            void *t = dpari_expert_at(to, layer, back ? at : row);
            const void *f = dpari_expert_in(from, layer, back ? row : at);
            const int64_t bytes = routing->piece[piece] * dpari_expert_row(layer);
            if (plan->comm->mem == NULL) {
                dpari_kern_copy(t, f, bytes, 0);
            } else {
                n += dpari_expert_span(&plan->span[n], t, f, bytes);
            }
            at += routing->piece[piece];
        }
    }
    return n > 0 ? dpari_do_span(plan->comm, plan->span, n) : DPAR_OK;
}

/* Computes the numbers of elements that are sent to and received from each rank. */
static void dpari_expert_sizes(dpari_experts *plan, const dpari_routing *routing)
{
    int32_t rank;
    for (rank = 0; rank < plan->comm->size; rank++) {
        plan->send[rank] = routing->send[rank] * plan->head.layer.width;
        plan->receive[rank] = routing->take[rank] * plan->head.layer.width;
    }
}

/* ---- direct reads of other ranks' arrays ----------------------------------------------------- */

/* The four exchanges, which have different tags. */
enum {
    DPARI_EXPERT_DISPATCH,
    DPARI_EXPERT_COMBINE,
    DPARI_EXPERT_COMBINE_BACK,
    DPARI_EXPERT_DISPATCH_BACK
};
/* The arrays that ranks read from each other. */
enum { DPARI_EXPERT_ROUTING, DPARI_EXPERT_ROWS, DPARI_EXPERT_WEIGHTS };

/* Publishes the arrays of this rank, and finds out whether all ranks can read each other's arrays
 * directly (peers->direct). rows: `count` rows that other ranks read. weight: read by other ranks
 * only in combine_backward. */
static DPARI_COLD dpar_status dpari_expert_open(dpari_experts *plan, const dpari_routing *routing,
                                                int32_t what, const void *rows, int64_t count,
                                                const void *weight, dpari_peers *peers)
{
    dpari_peers_array a[3];
    a[DPARI_EXPERT_ROUTING].at = routing;
    a[DPARI_EXPERT_ROUTING].bytes = plan->head.routing_bytes;
    a[DPARI_EXPERT_ROWS].at = rows;
    a[DPARI_EXPERT_ROWS].bytes = count * dpari_expert_row(&plan->head.layer);
    a[DPARI_EXPERT_WEIGHTS].at = weight;
    a[DPARI_EXPERT_WEIGHTS].bytes = 0;
    if (what == DPARI_EXPERT_COMBINE_BACK) {
        a[DPARI_EXPERT_WEIGHTS].bytes = dpari_expert_choices(plan, routing) *
                                        dpar_type_bytes(dpari_wide_type(plan->head.layer.type));
    }
    return dpari_peers_open(peers, plan->comm, routing->tag + what, a, 3, plan->peer);
}

/* Returns the array of another rank's routing that corresponds to the array `mine` of this rank's
 * routing. Only for the arrays that have the same offsets on all ranks. */
static const void *dpari_expert_theirs(const dpari_peers *peers, int32_t rank,
                                       const dpari_routing *routing, const void *mine)
{
    return (const unsigned char *)dpari_peers_at(peers, rank, DPARI_EXPERT_ROUTING) +
           ((const unsigned char *)mine - (const unsigned char *)(const void *)routing);
}

/* Checks that each rank has as many rows for this rank as this rank expects. The numbers may differ
 * if the ranks use routings of different calls. back: 1 if rows are sent from experts to tokens. */
static dpar_status dpari_expert_fits(const dpari_experts *plan, const dpari_routing *routing,
                                     const dpari_peers *peers, int back)
{
    dpar_comm *comm = plan->comm;
    const int64_t *take = back ? routing->send : routing->take;
    const int64_t *give = back ? routing->take : routing->send;
    int32_t rank;
    for (rank = 0; rank < comm->size; rank++) {
        const int64_t *theirs = (const int64_t *)dpari_expert_theirs(peers, rank, routing, give);
        if (theirs[comm->rank] != take[rank]) {
            return dpari_comm_wrong_all(
                comm, DPAR_E_MISMATCH,
                "experts: rank %d sends %ld rows to rank %d, which expects %ld; their routings "
                "must be from the same call of dpar_experts_route",
                rank, theirs[comm->rank], comm->rank, take[rank]);
        }
    }
    return DPAR_OK;
}

/* Ends the direct reads: waits until all ranks have read, and counts the bytes that other ranks
 * read from this rank. rows: [ranks] rows of this rank that each rank read. */
static dpar_status dpari_expert_close(dpari_experts *plan, const dpari_peers *peers,
                                      const int64_t *rows)
{
    const int64_t sent = dpari_expert_away(plan->comm, rows) * dpari_expert_row(&plan->head.layer);
    const dpar_status st = dpari_peers_close(peers, sent);
    plan->head.sent_bytes += st == DPAR_OK ? sent : 0;
    return st;
}

/* Returns a number of another rank's routing, or 0 if it is not 0 .. n - 1. If the other ranks
 * timed out while this rank was late (comm.h), they may have overwritten the routing. The results
 * are then lost in any case, but this rank must not read outside of the arrays before it notices
 * the error. */
static int64_t dpari_expert_limit(int64_t i, int64_t n)
{
    return i >= 0 && i < n ? i : 0;
}

/* Copies the rows of the tokens of n choices, multiplied by their weights unless weight is NULL.
 * Prefetches the next row. */
static void dpari_expert_copy(const dpar_experts_desc *layer, void *to, const void *from,
                              const int32_t *choice, int64_t n, const void *weight, int32_t stream)
{
    const int64_t most = layer->max_tokens * layer->choices;
    int64_t i, mine = n > 0 ? dpari_expert_limit(choice[0], most) : 0, then;
    for (i = 0; i < n; i++) {
        const void *row = dpari_expert_in(from, layer, mine / layer->choices), *next;
        void *at = dpari_expert_at(to, layer, i);
        then = i + 1 < n ? dpari_expert_limit(choice[i + 1], most) : mine;
        next = dpari_expert_in(from, layer, then / layer->choices);
        if (weight != NULL) {
            dpari_kern_ask(next, dpari_expert_row(layer));
            dpari_expert_scale(at, row, layer,
                               dpari_element_get(weight, dpari_wide_type(layer->type), mine));
        } else {
            dpari_kern_row(at, row, next, dpari_expert_row(layer), stream);
        }
        mine = then;
    }
}

/* Reads the rows for this rank's experts from the ranks that have the tokens. */
static void dpari_expert_take(dpari_experts *plan, const dpari_routing *routing,
                              const dpari_peers *peers, void *rows)
{
    const int32_t stream =
        dpari_peers_stream(peers, routing->head.rows * dpari_expert_row(&plan->head.layer));
    const int64_t most = plan->head.layer.max_tokens * plan->head.layer.choices + 1;
    int64_t *at = plan->receive; /* [ranks] the next kept choice of each rank to be read */
    int32_t rank, e;
    for (rank = 0; rank < plan->comm->size; rank++) {
        const int64_t *send =
            (const int64_t *)dpari_expert_theirs(peers, rank, routing, routing->send);
        at[rank] = 0;
        for (e = 0; e < plan->comm->rank; e++) {
            at[rank] = dpari_expert_limit(at[rank] + dpari_expert_limit(send[e], most), most);
        }
    }
    for (e = 0; e < plan->head.count; e++) {
        for (rank = 0; rank < plan->comm->size; rank++) {
            const int64_t piece = rank * (int64_t)plan->head.count + e;
            dpari_expert_copy(
                &plan->head.layer, dpari_expert_at(rows, &plan->head.layer, routing->row[piece]),
                dpari_peers_at(peers, rank, DPARI_EXPERT_ROWS),
                (const int32_t *)dpari_expert_theirs(peers, rank, routing, routing->choice) +
                    at[rank],
                routing->piece[piece], dpari_peers_at(peers, rank, DPARI_EXPERT_WEIGHTS), stream);
            at[rank] += routing->piece[piece];
        }
    }
    dpari_kern_rows_end(stream);
}

/* Locates the results in the arrays of the experts' ranks. The result of kept choice i of this
 * rank, which is for expert e, is row i + plan->fill[e] of the array plan->from[e]. */
static void dpari_expert_locate(dpari_experts *plan, const dpari_routing *routing,
                                const dpari_peers *peers)
{
    const int64_t most =
        plan->comm->size * plan->head.layer.max_tokens * plan->head.layer.choices + 1;
    int32_t rank, e = 0, i;
    for (rank = 0; rank < plan->comm->size; rank++) {
        const int32_t own = (int32_t)dpar_split_part_count(&plan->head.layer.experts, rank);
        const int64_t *row =
            (const int64_t *)dpari_expert_theirs(peers, rank, routing, routing->row);
        for (i = 0; i < own; i++) {
            plan->from[e] = dpari_peers_at(peers, rank, DPARI_EXPERT_ROWS);
            plan->fill[e] = dpari_expert_limit(row[plan->comm->rank * (int64_t)own + i], most) -
                            routing->start[e];
            e++;
        }
    }
}

/* ---- in a device's memory -------------------------------------------------------------------- */

/* Copies three arrays of the routing to the device, unless the last operation used the same
 * routing. */
static dpar_status dpari_expert_index(dpari_experts *plan, const dpari_routing *routing)
{
    int32_t n = 0;
    dpar_status st = DPAR_OK;
    if (plan->indexed == routing && plan->indexed_tag == routing->tag) {
        return DPAR_OK;
    }
    n += dpari_expert_span(&plan->span[n], plan->place, routing->head.position,
                           4 * dpari_expert_choices(plan, routing));
    n += dpari_expert_span(&plan->span[n], plan->token, routing->token, 4 * routing->head.kept);
    n += dpari_expert_span(&plan->span[n], plan->choice, routing->choice, 4 * routing->head.kept);
    st = n > 0 ? dpari_do_span(plan->comm, plan->span, n) : DPAR_OK;
    plan->indexed = routing;
    plan->indexed_tag = routing->tag;
    return st;
}

/* Copies to[i] = from[index[i]], elements of `bytes` bytes. */
static dpar_status dpari_expert_gather(dpari_experts *plan, void *to, const void *from,
                                       const int32_t *index, int64_t rows, int64_t bytes)
{
    dpar_mem_gather g;
    dpari_zero(&g, sizeof g);
    g.to = to;
    g.from = from;
    g.rows = rows;
    g.bytes = g.to_step = g.from_step = bytes;
    g.index.at = index;
    g.index.type = DPAR_I32;
    return rows > 0 ? dpari_do_gather(plan->comm, &g) : DPAR_OK;
}

/* Computes to[i] = the sum of the rows from[index[i][k]], each times its weight. */
static dpar_status dpari_expert_combine(dpari_experts *plan, void *to, const void *from,
                                        const void *weight, const int32_t *index, int64_t rows,
                                        int64_t k)
{
    dpar_mem_combine m;
    dpari_zero(&m, sizeof m);
    m.to = to;
    m.from = from;
    m.weight = weight;
    m.rows = rows;
    m.choices = k;
    m.width = plan->head.layer.width;
    m.to_type = m.from_type = plan->head.layer.type;
    m.weight_type = dpari_wide_type(plan->head.layer.type);
    m.index.at = index;
    m.index.type = DPAR_I32;
    return rows > 0 ? dpari_do_combine(plan->comm, &m) : DPAR_OK;
}

/* Does what dpari_expert_pack does, on a device. */
static dpar_status dpari_expert_pack_on_device(dpari_experts *plan, const dpari_routing *routing,
                                               const void *from, const void *weight)
{
    dpar_status st = dpari_expert_index(plan, routing);
    if (st == DPAR_OK && weight == NULL) {
        return dpari_expert_gather(plan, plan->packed, from, plan->token, routing->head.kept,
                                   dpari_expert_row(&plan->head.layer));
    }
    if (st == DPAR_OK) {
        st = dpari_expert_gather(plan, plan->weight, weight, plan->choice, routing->head.kept,
                                 dpar_type_bytes(dpari_wide_type(plan->head.layer.type)));
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_combine(plan, plan->packed, from, plan->weight, plan->token,
                                routing->head.kept, 1);
}

/* Computes dweight[tokens][k] = dy . result, or 0 for choices that were dropped. */
static dpar_status dpari_expert_dots(dpari_experts *plan, const dpari_routing *routing,
                                     const void *dy, const void *kept, void *dweight)
{
    const int32_t type = dpari_wide_type(plan->head.layer.type), there = plan->comm->mem != NULL;
    const dpar_status st = there ? dpari_expert_index(plan, routing) : DPAR_OK;
    dpar_mem_dot d;
    if (st != DPAR_OK) {
        return st;
    }
    if (routing->head.kept == 0) {
        return dpari_do_copy(plan->comm, dweight, NULL,
                             dpari_expert_choices(plan, routing) * dpar_type_bytes(type));
    }
    dpari_zero(&d, sizeof d);
    d.to = dweight;
    d.a = dy;
    d.b = kept;
    d.rows = dpari_expert_choices(plan, routing);
    d.choices = plan->head.layer.choices;
    d.width = plan->head.layer.width;
    d.to_type = type;
    d.type = plan->head.layer.type;
    d.index.at = there ? plan->place : routing->head.position;
    d.index.type = DPAR_I32;
    return dpari_do_dot(plan->comm, &d);
}

/* ---- dispatch and combine -------------------------------------------------------------------- */

/* Packs the rows of the kept choices in the order in which they are sent, multiplied by their
 * weights unless weight is NULL. */
static dpar_status dpari_expert_pack(dpari_experts *plan, const dpari_routing *routing,
                                     const void *from, const void *weight)
{
    int64_t i;
    if (plan->comm->mem != NULL) {
        return dpari_expert_pack_on_device(plan, routing, from, weight);
    }
    for (i = 0; i < routing->head.kept; i++) {
        dpari_expert_copy(&plan->head.layer, dpari_expert_at(plan->packed, &plan->head.layer, i),
                          from, routing->choice + i, 1, weight, 0);
    }
    return DPAR_OK;
}

/* Computes the weighted sum of the received rows of each token. */
static dpar_status dpari_expert_unite(dpari_experts *plan, const dpari_routing *routing,
                                      const void *came, const void *weight, void *out)
{
    int64_t e;
    if (plan->comm->mem != NULL) {
        const dpar_status st = dpari_expert_index(plan, routing);
        if (st != DPAR_OK) {
            return st;
        }
        return dpari_expert_combine(plan, out, came, weight, plan->place, routing->head.tokens,
                                    plan->head.layer.choices);
    }
    for (e = 0; e < plan->head.layer.experts.count; e++) {
        plan->from[e] = came;
        plan->fill[e] = 0;
    }
    dpari_expert_sums(plan, routing, weight, NULL, out, 0);
    return DPAR_OK;
}

/* Sends the rows of tokens to their experts, multiplied by their weights unless weight is NULL. */
static dpar_status dpari_expert_out(dpari_experts *plan, const dpari_routing *routing, int32_t what,
                                    const void *from, const void *weight, void *rows)
{
    void *to = plan->staged != NULL ? plan->staged : rows;
    dpari_peers peers;
    dpar_status st =
        dpari_expert_open(plan, routing, what, from, routing->head.tokens, weight, &peers);
    if (st == DPAR_OK && peers.direct) {
        st = dpari_expert_fits(plan, routing, &peers, 0);
        if (st == DPAR_OK) {
            dpari_expert_take(plan, routing, &peers, rows);
            st = dpari_expert_close(plan, &peers, routing->send);
        }
        return st;
    }
    if (st == DPAR_OK) {
        st = dpari_expert_pack(plan, routing, from, weight);
    }
    dpari_expert_sizes(plan, routing);
    if (st == DPAR_OK) {
        st = dpari_expert_send(plan, plan->packed, plan->send, to, plan->receive,
                               plan->head.layer.type);
    }
    if (st == DPAR_OK && to != rows) {
        st = dpari_expert_group(plan, routing, rows, to, 0);
    }
    return st;
}

/* Sends the rows of experts back to their tokens and adds them. kept: where dpar_experts_combine
 * saves the received rows; NULL if they are not wanted. */
static dpar_status dpari_expert_back(dpari_experts *plan, const dpari_routing *routing,
                                     int32_t what, const void *rows, const void *weight, void *kept,
                                     void *out)
{
    void *came = kept != NULL ? kept : plan->packed;
    dpari_peers peers;
    dpar_status st = dpari_expert_open(plan, routing, what, rows, routing->head.rows, NULL, &peers);
    if (st == DPAR_OK && peers.direct) {
        st = dpari_expert_fits(plan, routing, &peers, 1);
        if (st == DPAR_OK) {
            dpari_expert_locate(plan, routing, &peers);
            dpari_expert_sums(plan, routing, weight, kept, out,
                              dpari_peers_stream(&peers, routing->head.tokens *
                                                             dpari_expert_row(&plan->head.layer)));
            st = dpari_expert_close(plan, &peers, routing->take);
        }
        return st;
    }
    if (st == DPAR_OK && plan->staged != NULL) {
        st = dpari_expert_group(plan, routing, plan->staged, rows, 1);
        rows = plan->staged;
    }
    dpari_expert_sizes(plan, routing);
    if (st == DPAR_OK) {
        st = dpari_expert_send(plan, rows, plan->receive, came, plan->send, plan->head.layer.type);
    }
    if (st == DPAR_OK) {
        st = dpari_expert_unite(plan, routing, came, weight, out);
    }
    return st;
}

/* Checks that no array that has elements is NULL. tokens, rows: 1 if the arrays with one row per
 * token, or with one row per row of an expert, are not NULL. */
static dpar_status dpari_expert_arrays(const dpari_experts *plan, const dpari_routing *routing,
                                       const dpar_experts_arrays *arrays, int tokens, int rows)
{
    const int64_t token_count = routing != NULL ? routing->head.tokens : 0;
    const int64_t row_count = routing != NULL ? routing->head.rows : 0;
    if (plan == NULL) {
        return DPAR_E_ARG;
    }
    if (routing != NULL && arrays != NULL && (tokens || token_count == 0) &&
        (rows || row_count == 0)) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(
        plan->comm, DPAR_E_ARG,
        "rank %d: experts: an array that this call needs for %ld tokens or %ld rows is NULL",
        plan->comm->rank, token_count, row_count);
}

DPAR_API dpar_status dpar_experts_dispatch(dpar_experts_plan *plan,
                                           const dpar_experts_routing *routing,
                                           const dpar_experts_arrays *arrays)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    const dpari_routing *r = (const dpari_routing *)(const void *)routing;
    dpar_status st;
    st = dpari_expert_arrays(p, r, arrays, arrays != NULL && arrays->x != NULL,
                             arrays != NULL && arrays->rows != NULL);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_out(p, r, DPARI_EXPERT_DISPATCH, arrays->x, NULL, arrays->rows);
}

DPAR_API dpar_status dpar_experts_combine(dpar_experts_plan *plan,
                                          const dpar_experts_routing *routing,
                                          const dpar_experts_arrays *arrays)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    const dpari_routing *r = (const dpari_routing *)(const void *)routing;
    dpar_status st;
    st = dpari_expert_arrays(p, r, arrays,
                             arrays != NULL && arrays->weight != NULL && arrays->y != NULL,
                             arrays != NULL && arrays->results != NULL);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_back(p, r, DPARI_EXPERT_COMBINE, arrays->results, arrays->weight,
                             arrays->saved, arrays->y);
}

DPAR_API dpar_status dpar_experts_combine_backward(dpar_experts_plan *plan,
                                                   const dpar_experts_routing *routing,
                                                   const dpar_experts_arrays *arrays)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    const dpari_routing *r = (const dpari_routing *)(const void *)routing;
    int there;
    dpar_status st;
    there = arrays != NULL && arrays->dy != NULL && arrays->weight != NULL &&
            (arrays->dweight == NULL || arrays->saved != NULL || (r != NULL && r->head.kept == 0));
    st = dpari_expert_arrays(p, r, arrays, there, arrays != NULL && arrays->dresults != NULL);
    if (st == DPAR_OK && arrays->dweight != NULL) {
        st = dpari_expert_dots(p, r, arrays->dy, arrays->saved, arrays->dweight);
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_out(p, r, DPARI_EXPERT_COMBINE_BACK, arrays->dy, arrays->weight,
                            arrays->dresults);
}

DPAR_API dpar_status dpar_experts_dispatch_backward(dpar_experts_plan *plan,
                                                    const dpar_experts_routing *routing,
                                                    const dpar_experts_arrays *arrays)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    const dpari_routing *r = (const dpari_routing *)(const void *)routing;
    dpar_status st;
    st = dpari_expert_arrays(p, r, arrays, arrays != NULL && arrays->dx != NULL,
                             arrays != NULL && arrays->drows != NULL);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_back(p, r, DPARI_EXPERT_DISPATCH_BACK, arrays->drows, NULL, NULL,
                             arrays->dx);
}
