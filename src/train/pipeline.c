/* SPDX-License-Identifier: MIT-0 */
/* Runs a rank's list of actions. dpar_pipeline_make checks the schedule for deadlock, and assigns
 * to each message the slots from which it is sent and into which it is received.
 *
 * A step executes the list once. A message is posted at its position in the list, together with the
 * messages that follow it directly if they may form one batch. Before an action runs, it waits for
 * the message that it reads and for the earlier message from the slot that it fills. Stages of the
 * same rank pass data in local slots without messages. If an action fails, the rank breaks the
 * communicator with the message of the callback, so that the other ranks end their step, too. */
#include "pipeline.h"

#include "../base/base_private.h"
#include "../base/text.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/object_memory.h"
#include "../comm/os.h"
#include "../schedule/check.h"
#include "../schedule/generate.h"
#include "../schedule/needed_bytes.h"
#include "../schedule/lower.h"
#include "../schedule/schedule.h"
#include "../schedule/slots.h"

enum {
    DPARI_PL_BATCH = 8, /* largest number of messages in one batch */
    DPARI_PL_NONE = -1
};
#define DPARI_PL_MOST_BYTES                                                                        \
    (INT64_C(1) << 40) /* largest slot; sums of 65535 slots fit in int64_t */

/* The slots of an action of this rank. */
typedef struct dpari_pl_item {
    dpar_action_slots slots;
    uint16_t local_in, local_out; /* local slots that it reads and fills, or DPAR_SLOT_NONE */
} dpari_pl_item;

/* Slots of one kind, stored one after the other. */
typedef struct dpari_pl_pool {
    unsigned char *at;
    int64_t each; /* bytes of a slot */
    int32_t count;
} dpari_pl_pool;

struct dpar_pipeline {
    dpar_comm *comm;
    dpar_comm
        *tied; /* the ranks with a first or last stage; NULL on other ranks or without `tied` */
    dpar_pipeline_desc desc;
    const dpar_action *list; /* [actions] the actions of this rank */
    int64_t actions, messages;
    dpari_pl_item *item; /* [actions] */
    dpar_work *work;     /* [messages] in the order of the list */
    int64_t *index;      /* [messages] the action of each message */
    uint8_t *seen;       /* [messages] 1 if the message is complete in this step */
    int64_t *of_receive; /* [receive slots] the last message posted in the slot, or DPARI_PL_NONE */
    int64_t *of_send;    /* [send slots] the last message posted from it, or DPARI_PL_NONE */
    int64_t *rank_actions; /* [ranks] number of actions of each rank */
    dpari_pl_pool receive, send, local, activation, weight;
    void *slots; /* memory of all pools */
    /* All messages before `oldest` are complete in this step, and those before `posted` are
     * posted. */
    int64_t oldest, posted;
    double began;      /* time when the step began, in seconds */
    int32_t last;      /* 1 if this step reduces gradients */
    int32_t under_way; /* 1 during a step */
    void *made;        /* memory of the schedule if make generated it, otherwise NULL */
};

static int dpari_pl_is_message(int32_t kind)
{
    return kind >= DPAR_ACTION_SEND_F && kind <= DPAR_ACTION_RECV_B;
}

static int dpari_pl_sends(int32_t kind)
{
    return kind == DPAR_ACTION_SEND_F || kind == DPAR_ACTION_SEND_B;
}

/* True for F, B and I: the actions that have an input and an output. */
static int dpari_pl_passes(int32_t kind)
{
    return kind == DPAR_ACTION_FORWARD || kind == DPAR_ACTION_BACKWARD || kind == DPAR_ACTION_INPUT;
}

/* Returns the stage from which F, B or I gets its input (takes = 1) or to which it passes its
 * output (takes = 0); -1 if there is none. */
static int32_t dpari_pl_neighbour(const dpar_schedule *schedule, const dpar_action *action,
                                  int takes)
{
    if ((action->kind == DPAR_ACTION_FORWARD) == (takes != 0)) {
        return dpar_schedule_partner(schedule, DPAR_ACTION_RECV_F, action->stage);
    }
    return dpar_schedule_partner(schedule, DPAR_ACTION_SEND_F, action->stage);
}

/* Returns the number of elements of a stage's output. */
static int64_t dpari_pl_elements(const dpar_pipeline_desc *o, int32_t stage)
{
    return o->count_per_stage != NULL ? o->count_per_stage[stage] : o->count;
}

/* Returns the number of elements of the input (takes = 1) or the output (takes = 0) of an action.
 * In both directions it is the size of the earlier stage's output. */
static int64_t dpari_pl_between(const dpar_pipeline_desc *o, const dpar_action *action, int forward,
                                int takes)
{
    const int own = forward != takes; /* 1 for F's output and for its gradient, B's input */
    const int32_t stage =
        own ? action->stage : dpar_schedule_partner(o->schedule, DPAR_ACTION_RECV_F, action->stage);
    return stage < 0 ? 0 : dpari_pl_elements(o, stage);
}

/* ---- options and memory ---------------------------------------------------------------------- */

/* Checks a descriptor that has a schedule. */
static dpar_status dpari_pl_check_desc(const dpar_comm *comm, const dpar_pipeline_desc *o,
                                       dpar_why *why)
{
    const dpar_schedule *schedule = o->schedule;
    int32_t i;
    if (dpari_schedule_slots_bytes(schedule) < 0) {
        const dpar_status st = dpar_schedule_check(schedule, NULL, NULL, 0, why);
        return st < 0 ? st : DPAR_E_ARG;
    }
    if (schedule->ranks != comm->size) {
        return dpari_wrong(why,
                           "pipeline: the schedule is for %d ranks, but the communicator has %d",
                           schedule->ranks, comm->size);
    }
    if (dpar_type_bytes(o->type) < 1) {
        return dpari_wrong(why, "pipeline: type is %s (%d), but must be a type of elements",
                           dpar_type_name(o->type), o->type);
    }
    if (o->tag < 0 || o->tied_count < 0 ||
        (o->tied_count > 0 && !dpari_type_can_reduce(o->tied_type))) {
        return dpari_wrong(why,
                           "pipeline: tag is %d, tied_count %ld and tied_type %s, but tag and "
                           "tied_count must be 0 or more, and tied_type a type that can be summed",
                           o->tag, o->tied_count, dpar_type_name(o->tied_type));
    }
    if (o->activation_bytes < 0 || o->activation_bytes > DPARI_PL_MOST_BYTES ||
        o->weight_bytes < 0 || o->weight_bytes > DPARI_PL_MOST_BYTES) {
        return dpari_wrong(
            why, "pipeline: activation_bytes is %ld and weight_bytes %ld, but must be 0 to 2^40",
            o->activation_bytes, o->weight_bytes);
    }
    for (i = 0; i < schedule->stages; i++) {
        const int64_t n = dpari_pl_elements(o, i);
        if (n < 0 || n > DPARI_PL_MOST_BYTES / dpar_type_bytes(o->type)) {
            return dpari_wrong(
                why,
                "pipeline: stage %d has %ld elements of %d bytes, but must have 0 to 2^40 bytes", i,
                n, dpar_type_bytes(o->type));
        }
    }
    if ((o->start == NULL) == (o->end == NULL)) {
        return DPAR_OK;
    }
    return dpari_wrong(why, "pipeline: one of start and end is NULL, but both or neither must be");
}

/* Returns the number of messages of a rank. */
static int64_t dpari_pl_count_messages(const dpar_schedule *schedule, int32_t rank)
{
    int64_t k, n = 0;
    for (k = schedule->begin[rank]; k < schedule->begin[rank + 1]; k++) {
        n += dpari_pl_is_message(schedule->action[k].kind);
    }
    return n;
}

/* Memory that only dpar_pipeline_make uses. */
typedef struct dpari_pl_scratch {
    void *mem;                /* for dpar_schedule_check and dpar_schedule_slots */
    int64_t bytes;            /* size of mem */
    dpar_action_slots *slots; /* [actions of all ranks] */
    dpar_slot_counts *counts; /* [ranks] */
    uint16_t *cell;           /* [chain][micro_batches] see dpari_pl_cell */
    uint16_t *free;           /* [actions of this rank] stack of local slots that are free again */
} dpari_pl_scratch;

/* Places the struct and the arrays of a pipeline in memory, and sets *bytes to the total size. If
 * memory is NULL, only computes the size. The schedule must be valid. */
static void dpari_pl_place(dpar_pipeline *pipeline, void *memory, const dpar_comm *comm,
                           const dpar_schedule *schedule, dpari_pl_scratch *w, int64_t *bytes)
{
    const int64_t n = schedule->begin[comm->rank + 1] - schedule->begin[comm->rank];
    const int64_t messages = dpari_pl_count_messages(schedule, comm->rank);
    dpar_schedule_check_desc run;
    dpari_room r = dpari_room_of(memory);
    (void)dpari_room_take(&r, 1, sizeof *pipeline);
    dpari_zero(pipeline, sizeof *pipeline);
    pipeline->actions = n;
    pipeline->messages = messages;
    pipeline->item = (dpari_pl_item *)dpari_room_take(&r, n, sizeof *pipeline->item);
    pipeline->work = (dpar_work *)dpari_room_take(&r, messages, sizeof *pipeline->work);
    pipeline->index = (int64_t *)dpari_room_take(&r, messages, sizeof *pipeline->index);
    pipeline->seen = (uint8_t *)dpari_room_take(&r, messages, sizeof *pipeline->seen);
    pipeline->of_receive = (int64_t *)dpari_room_take(&r, messages, sizeof *pipeline->of_receive);
    pipeline->of_send = (int64_t *)dpari_room_take(&r, messages, sizeof *pipeline->of_send);
    pipeline->rank_actions =
        (int64_t *)dpari_room_take(&r, schedule->ranks, sizeof *pipeline->rank_actions);
    dpari_zero(&run, sizeof(run));
    run.transport = DPAR_TRANSPORT_BLOCKING;
    w->bytes = dpari_most(dpari_schedule_slots_bytes(schedule),
                          dpari_schedule_check_bytes(schedule, &run));
    w->mem = dpari_room_take(&r, w->bytes, 1);
    w->slots = (dpar_action_slots *)dpari_room_take(&r, schedule->begin[schedule->ranks],
                                                    sizeof *w->slots);
    w->counts = (dpar_slot_counts *)dpari_room_take(&r, schedule->ranks, sizeof *w->counts);
    w->cell = (uint16_t *)dpari_room_take(&r, (int64_t)schedule->chain * schedule->micro_batches,
                                          sizeof *w->cell);
    w->free = (uint16_t *)dpari_room_take(&r, n, sizeof *w->free);
    *bytes = r.used;
}

/* Lists the values that must be equal on all ranks. */
static DPARI_COLD void dpari_pl_facts(dpari_facts *facts, const void *given)
{
    const dpar_pipeline_desc *o = (const dpar_pipeline_desc *)given;
    const dpar_schedule *schedule = o->schedule;
    int64_t k;
    int32_t i;
    dpari_fact(facts, "schedule->ranks", 0, schedule->ranks);
    dpari_fact(facts, "schedule->stages", 0, schedule->stages);
    dpari_fact(facts, "schedule->micro_batches", 0, schedule->micro_batches);
    dpari_fact(facts, "schedule->chain", 0, schedule->chain);
    dpari_fact(facts, "schedule->slices", 0, schedule->slices);
    for (i = 0; i < schedule->ranks; i++) {
        dpari_fact(facts, "schedule->begin[#]", i + 1, schedule->begin[i + 1]);
    }
    for (k = 0; k < schedule->begin[schedule->ranks]; k++) {
        const dpar_action *action = &schedule->action[k];
        dpari_fact(facts, "schedule->action[#].kind", k, action->kind);
        dpari_fact(facts, "schedule->action[#].joined", k, action->joined);
        dpari_fact(facts, "schedule->action[#].stage", k, action->stage);
        dpari_fact(facts, "schedule->action[#].micro_batch", k, action->micro_batch);
    }
    for (i = 0; i < schedule->stages; i++) {
        dpari_fact(facts, "schedule->rank_of[#]", i, schedule->rank_of[i]);
        dpari_fact(facts, "count_per_stage[#]", i, dpari_pl_elements(o, i));
    }
    dpari_fact_type(facts, "type", 0, o->type);
    dpari_fact(facts, "tag", 0, o->tag);
    dpari_fact(facts, "keep_sends", 0, o->keep_sends != 0);
    dpari_fact(facts, "no_final_barrier", 0, o->no_final_barrier != 0);
    dpari_fact(facts, "start != NULL", 0, o->start != NULL);
    dpari_fact(facts, "tied_count", 0, o->tied_count);
    dpari_fact_type(facts, "tied_type", 0, o->tied_count > 0 ? o->tied_type : 0);
}

/* ---- callbacks and slots of the list --------------------------------------------------------- */

/* Returns the callback for a kind of action, or NULL if there is none. */
static dpar_stage_callback dpari_pl_callback(const dpar_pipeline_desc *o, int32_t kind)
{
    switch (kind) {
    case DPAR_ACTION_FORWARD: return o->forward;
    case DPAR_ACTION_BACKWARD: return o->backward;
    case DPAR_ACTION_INPUT: return o->input;
    case DPAR_ACTION_WEIGHT: return o->weight;
    case DPAR_ACTION_UNSHARD: return o->unshard;
    case DPAR_ACTION_RESHARD: return o->reshard;
    case DPAR_ACTION_REDUCE_GRAD: return o->reduce;
    case DPAR_ACTION_WAIT_REDUCE: return o->wait_reduce;
    case DPAR_ACTION_RECOMPUTE: return o->recompute;
    case DPAR_ACTION_OFFLOAD: return o->offload;
    case DPAR_ACTION_RELOAD: return o->reload;
    default: return NULL;
    }
}

/* Writes the name of an action, such as "1F3", into `at`. */
static void dpari_pl_name(const dpar_action *action, char *at, size_t bytes)
{
    dpar_action single = *action;
    dpar_text t;
    single.joined = 0; /* otherwise the text would also contain the second action of the pair */
    dpar_text_init(&t, at, bytes);
    dpar_action_write(&single, &t);
}

/* Checks that there is a callback for each action of this rank. */
static dpar_status dpari_pl_callbacks(const dpar_pipeline *pipeline, dpar_why *why)
{
    int64_t k;
    for (k = 0; k < pipeline->actions; k++) {
        const int32_t kind = pipeline->list[k].kind;
        char name[32];
        if (kind == DPAR_ACTION_IDLE || dpari_pl_is_message(kind) ||
            dpari_pl_callback(&pipeline->desc, kind) != NULL) {
            continue;
        }
        dpari_pl_name(&pipeline->list[k], name, sizeof name);
        return dpari_wrong(why, "pipeline: rank %d has %s in its list, but its callback is NULL",
                           pipeline->comm->rank, name);
    }
    return DPAR_OK;
}

/* Returns the stage from which action i gets its input (takes = 1) or to which it passes its output
 * (takes = 0) if that stage is on this rank, otherwise DPARI_PL_NONE. */
static int32_t dpari_pl_inside(const dpar_pipeline *pipeline, int64_t i, int takes)
{
    const dpar_schedule *schedule = pipeline->desc.schedule;
    const dpar_action *action = &pipeline->list[i];
    const int32_t other =
        dpari_pl_passes(action->kind) ? dpari_pl_neighbour(schedule, action, takes) : DPARI_PL_NONE;
    return other >= 0 && schedule->rank_of[other] == schedule->rank_of[action->stage]
               ? other
               : DPARI_PL_NONE;
}

/* Returns the cell that records which local slot holds the result of `stage` for the action's
 * micro-batch. Forward and backward share the cell, because the output of F is read before the
 * backward of the same stage. */
static uint16_t *dpari_pl_cell(const dpar_pipeline *pipeline, const dpari_pl_scratch *w,
                               const dpar_action *action, int32_t stage)
{
    const dpar_schedule *schedule = pipeline->desc.schedule;
    return &w->cell[(int64_t)(stage % schedule->chain) * schedule->micro_batches +
                    action->micro_batch];
}

/* Assigns local slots to the results that one stage of this rank passes to another. A slot is in
 * use until the action that reads it has ended. The two actions of a joined pair run together, so
 * both get their slots before either frees one. */
static dpar_status dpari_pl_assign_local(dpar_pipeline *pipeline, const dpari_pl_scratch *w,
                                         dpar_why *why)
{
    int32_t idle = 0;
    int64_t k, i, end;
    for (k = 0; k < pipeline->actions; k = end) {
        end = k + 1 + pipeline->list[k].joined;
        for (i = k; i < end; i++) {
            const dpar_action *action = &pipeline->list[i];
            pipeline->item[i].local_out = DPAR_SLOT_NONE;
            if (dpari_pl_inside(pipeline, i, 0) < 0) {
                continue;
            }
            if (idle == 0 && pipeline->local.count == DPAR_SLOT_NONE) {
                return dpari_say(DPAR_E_RANGE, why,
                                 "pipeline: the stages of rank %d need more than 65535 buffers "
                                 "between each other",
                                 pipeline->comm->rank);
            }
            pipeline->item[i].local_out =
                idle > 0 ? w->free[--idle] : (uint16_t)pipeline->local.count++;
            *dpari_pl_cell(pipeline, w, action, action->stage) = pipeline->item[i].local_out;
        }
        for (i = k; i < end; i++) {
            const int32_t from = dpari_pl_inside(pipeline, i, 1);
            pipeline->item[i].local_in = DPAR_SLOT_NONE;
            if (from >= 0) {
                pipeline->item[i].local_in = *dpari_pl_cell(pipeline, w, &pipeline->list[i], from);
                w->free[idle++] = pipeline->item[i].local_in;
            }
        }
    }
    return DPAR_OK;
}

/* Checks the schedule for validity and deadlock, and assigns slots to the actions. */
static dpar_status dpari_pl_prepare(dpar_pipeline *pipeline, const dpari_pl_scratch *w,
                                    dpar_why *why)
{
    const dpar_schedule *schedule = pipeline->desc.schedule;
    int32_t transport = DPAR_TRANSPORT_BLOCKING;
    const dpar_slot_counts *mine = &w->counts[pipeline->comm->rank];
    dpar_schedule_check_desc run;
    dpar_schedule_slots_desc how;
    int64_t k, m = 0;
    dpar_status st;
    if (pipeline->desc.keep_sends) { /* a device's stream has one queue for all messages */
        transport = pipeline->comm->mem != NULL ? DPAR_TRANSPORT_RANK : DPAR_TRANSPORT_EDGE;
    }
    st = dpar_schedule_check(schedule, NULL, w->mem, w->bytes, why);
    if (st == DPAR_OK && schedule->ranks > 1) {
        dpari_zero(&run, sizeof(run));
        run.transport = transport;
        st = dpar_schedule_check(schedule, &run, w->mem, w->bytes, why);
    }
    if (st == DPAR_OK) {
        how.in_flight = pipeline->desc.keep_sends ? INT32_MAX : 0;
        how.slots = w->slots;
        how.counts = w->counts;
        st = dpar_schedule_slots(schedule, &how, w->mem, w->bytes, why);
    }
    if (st == DPAR_OK) {
        st = dpari_pl_callbacks(pipeline, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    for (k = 0; k < pipeline->actions; k++) {
        pipeline->item[k].slots = w->slots[schedule->begin[pipeline->comm->rank] + k];
        if (dpari_pl_is_message(pipeline->list[k].kind)) {
            pipeline->index[m++] = k;
        }
    }
    pipeline->receive.count = mine->receive;
    pipeline->send.count = mine->send;
    pipeline->activation.count = mine->activation;
    pipeline->weight.count = mine->weight;
    return dpari_pl_assign_local(pipeline, w, why);
}

/* Allocates the slots of all pools. */
static dpar_status dpari_pl_allocate_slots(dpar_pipeline *pipeline, dpar_why *why)
{
    enum { POOLS = 5 };
    const dpar_pipeline_desc *desc = &pipeline->desc;
    dpari_pl_pool *const pool[POOLS] = {&pipeline->receive, &pipeline->send, &pipeline->local,
                                        &pipeline->activation, &pipeline->weight};
    int64_t most = 0, bytes = 0, slots = 0;
    unsigned char *at;
    int32_t i;
    dpar_status st;
    for (i = 0; i < desc->schedule->stages; i++) {
        most = dpari_most(most, dpari_pl_elements(desc, i));
    }
    /* at least 1 byte, so that dpari_pl_slot does not return NULL for a message's slot */
    most = dpari_room_up(dpari_most(1, most * dpar_type_bytes(desc->type)));
    pipeline->receive.each = pipeline->send.each = pipeline->local.each = most;
    pipeline->activation.each = dpari_room_up(desc->activation_bytes);
    pipeline->weight.each = dpari_room_up(desc->weight_bytes);
    for (i = 0; i < POOLS; i++) {
        slots += pool[i]->count;
        bytes += pool[i]->each * pool[i]->count;
    }
    st = dpar_comm_alloc(pipeline->comm, dpari_most(1, bytes), &pipeline->slots);
    if (st != DPAR_OK) {
        pipeline->slots = NULL;
        return dpari_say(st, why, "pipeline: no memory for %ld slots of together %ld bytes", slots,
                         bytes);
    }
    at = (unsigned char *)pipeline->slots;
    for (i = 0; i < POOLS; i++) {
        pool[i]->at = at;
        at += pool[i]->each * pool[i]->count;
    }
    return DPAR_OK;
}

/* True if the first or the last stage is on the given rank. */
static int dpari_pl_at_end(const dpar_schedule *schedule, int32_t rank)
{
    int32_t i;
    for (i = 0; i < schedule->stages; i++) {
        if (schedule->rank_of[i] == rank &&
            (dpar_schedule_partner(schedule, DPAR_ACTION_RECV_F, i) < 0 ||
             dpar_schedule_partner(schedule, DPAR_ACTION_SEND_F, i) < 0)) {
            return 1;
        }
    }
    return 0;
}

/* Splits off the communicator of the ranks that share tied weights. */
static dpar_status dpari_pl_tie(dpar_pipeline *pipeline, dpar_why *why)
{
    const int32_t color =
        dpari_pl_at_end(pipeline->desc.schedule, pipeline->comm->rank) ? 0 : DPARI_PL_NONE;
    dpar_status st;
    if (pipeline->desc.tied_count == 0) {
        return DPAR_OK;
    }
    st = dpar_comm_split(pipeline->comm, color, pipeline->comm->rank, &pipeline->tied);
    if (st != DPAR_OK) {
        const dpar_why copy = pipeline->comm->why; /* why may be &pipeline->comm->why */
        return dpari_say(st, why, "pipeline: the communicator for tied weights failed: %s",
                         copy.text);
    }
    return st;
}

/* Does the part of dpar_pipeline_make that needs no other rank: checks, slots and memory. */
static dpar_status dpari_pl_set_up_local(dpar_pipeline *pipeline, const dpari_pl_scratch *w,
                                         dpar_why *why)
{
    dpar_status st = dpari_pl_prepare(pipeline, w, why);
    if (st == DPAR_OK && pipeline->desc.tied_count > 0 && pipeline->desc.tied == NULL &&
        dpari_pl_at_end(pipeline->desc.schedule, pipeline->comm->rank)) {
        st = dpari_wrong(why, "pipeline: tied is NULL, but rank %d has a first or last stage",
                         pipeline->comm->rank);
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_pl_allocate_slots(pipeline, why);
}

/* Frees the slots and the communicator that was split off. */
static DPARI_COLD dpar_status dpari_pl_release(dpar_pipeline *pipeline)
{
    const dpar_status st = pipeline->tied != NULL ? dpar_comm_free(pipeline->tied) : DPAR_OK;
    if (pipeline->slots != NULL) {
        dpar_comm_release(pipeline->comm, pipeline->slots);
    }
    return st;
}

/* Generates the schedule of desc->order, and lowers it to messages and to the actions that have
 * callbacks. Stores it in desc->schedule and its memory in *memory. If desc->order is NULL, does
 * nothing. */
static DPARI_COLD dpar_status dpari_pl_make_list(dpar_comm *comm, dpar_pipeline_desc *desc,
                                                 void **memory, dpar_why *why)
{
    dpar_schedule_desc order;
    dpar_schedule_lower_desc how;
    dpar_schedule plain, *list;
    const int64_t head = dpari_room_up((int64_t)sizeof *list);
    void *room;
    int64_t bytes;
    dpar_status st;
    if ((desc->order == NULL) == (desc->schedule == NULL)) {
        return dpari_wrong(why, "pipeline: exactly one of order and schedule must be NULL");
    }
    if (desc->order == NULL) {
        return DPAR_OK;
    }
    dpari_zero(&order, sizeof order);
    dpari_zero(&how, sizeof how);
    order.ranks = comm->size;
    order.micro_batches = desc->micro_batches;
    how.passes = DPAR_LOWER_MESSAGES;
    if (desc->reduce != NULL) {
        how.passes |= DPAR_LOWER_REDUCE;
    }
    if (desc->unshard != NULL) {
        how.passes |= DPAR_LOWER_SHARDS;
    }
    st = dpar_schedule_find(&order, desc->order, why);
    if (st != DPAR_OK) {
        return st;
    }
    bytes = dpari_schedule_generate_bytes(&order, why);
    room = bytes > 0 ? dpari_object_alloc(comm, bytes) : NULL;
    if (bytes > 0 && room == NULL) {
        return dpari_say(DPAR_E_MEMORY, why,
                         "pipeline: no memory for the schedule, which needs %ld bytes", bytes);
    }
    st = dpar_schedule_generate(&plain, &order, room, room != NULL ? bytes : 0, why);
    if (st == DPAR_OK) {
        bytes = dpari_schedule_lower_bytes(&plain, &how, why);
        list = bytes < 0 ? NULL : (dpar_schedule *)dpari_object_alloc(comm, head + bytes);
        if (bytes < 0) {
            st = DPAR_E_ARG;
        } else if (list == NULL) {
            st = dpari_say(DPAR_E_MEMORY, why,
                           "pipeline: no memory for the schedule, which needs %ld bytes", bytes);
        } else {
            st = dpar_schedule_lower(list, &plain, &how, (unsigned char *)list + head, bytes, why);
        }
        *memory = list;
        desc->schedule = list;
    }
    dpari_object_release(room);
    return st;
}

/* Checks a descriptor, makes its schedule and provides memory for the pipeline. */
static DPARI_COLD dpar_status dpari_pl_provide(dpar_comm *comm, dpar_pipeline_desc *desc,
                                               void **list, void **memory, int64_t *need,
                                               dpar_why *why)
{
    dpar_pipeline counted;
    dpari_pl_scratch w;
    dpar_status st = dpari_pl_make_list(comm, desc, list, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_pl_check_desc(comm, desc, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_pl_place(&counted, NULL, comm, desc->schedule, &w, need);
    return dpari_object_memory(comm, desc->memory, desc->bytes, *need, "pipeline", memory, why);
}

/* Sets up a pipeline in its memory. Fails on all ranks if it fails on one. */
static DPARI_COLD dpar_status dpari_pl_set_up(dpar_pipeline *pipeline, dpar_comm *comm,
                                              const dpar_pipeline_desc *desc, dpar_why *why)
{
    const int64_t *begin = desc->schedule->begin;
    dpari_pl_scratch w;
    int64_t needed;
    int32_t i;
    dpar_status st;
    dpari_pl_place(pipeline, pipeline, comm, desc->schedule, &w, &needed);
    pipeline->comm = comm;
    pipeline->desc = *desc;
    pipeline->list = desc->schedule->action + begin[comm->rank];
    for (i = 0; i < comm->size; i++) {
        pipeline->rank_actions[i] = begin[i + 1] - begin[i];
    }
    dpari_zero(pipeline->work, (size_t)pipeline->messages * sizeof *pipeline->work);
    st = dpari_agree(comm, dpari_pl_set_up_local(pipeline, &w, why), why);
    if (st == DPAR_OK) {
        st = dpari_agree(comm, dpari_pl_tie(pipeline, why), why);
    }
    if (st != DPAR_OK) {
        (void)dpari_pl_release(pipeline);
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_pipeline_make(dpar_comm *comm, const dpar_pipeline_desc *desc,
                                                   dpar_pipeline **pipeline, dpar_why *why)
{
    dpar_pipeline_desc full;
    void *list = NULL, *memory = NULL;
    int64_t need = 0;
    dpar_status st;
    if (comm == NULL) {
        return dpari_wrong(why, "pipeline: the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    dpari_zero(&full, sizeof full);
    if (desc != NULL) {
        full = *desc;
    }
    st = pipeline == NULL ? dpari_wrong(why, "pipeline: the result is NULL")
                          : dpari_pl_provide(comm, &full, &list, &memory, &need, why);
    st = dpari_agree_on(comm, st, "pipeline", dpari_pl_facts, &full, why);
    if (st == DPAR_OK) {
        st = dpari_pl_set_up((dpar_pipeline *)memory, comm, &full, why);
    }
    if (st != DPAR_OK) {
        dpari_object_release(list);
        return dpari_object_failed(st, full.memory, memory, need, why);
    }
    *pipeline = (dpar_pipeline *)memory;
    (*pipeline)->made = list;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_pipeline_free(dpar_pipeline *pipeline)
{
    dpar_status st;
    if (pipeline == NULL) {
        return DPAR_OK;
    }
    st = dpari_pl_release(pipeline);
    dpari_object_release(pipeline->made);
    return dpari_object_end(st, pipeline->desc.memory == NULL ? pipeline : NULL);
}

DPAR_API DPARI_COLD dpar_slot_counts dpar_pipeline_slots(const dpar_pipeline *pipeline,
                                                         int32_t *local)
{
    dpar_slot_counts n;
    if (pipeline == NULL) {
        dpari_zero(&n, sizeof n);
        return n;
    }
    n.receive = pipeline->receive.count;
    n.activation = pipeline->activation.count;
    n.send = pipeline->send.count;
    n.weight = pipeline->weight.count;
    if (local != NULL) {
        *local = pipeline->local.count;
    }
    return n;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Returns the nanoseconds since the step began. */
static int64_t dpari_pl_now(const dpar_pipeline *pipeline)
{
    return (int64_t)((dpari_os_now() - pipeline->began) * 1e9);
}

/* Returns the memory of a slot, or NULL if there is no slot or the pool's slots have 0 bytes. */
static void *dpari_pl_slot(const dpari_pl_pool *pool, uint16_t slot)
{
    return slot == DPAR_SLOT_NONE || pool->each == 0 ? NULL : pool->at + pool->each * slot;
}

/* Records that message m is complete. */
static void dpari_pl_arrived(dpar_pipeline *pipeline, int64_t m)
{
    pipeline->seen[m] = 1;
    if (pipeline->desc.end != NULL) {
        pipeline->desc.end[pipeline->index[m]] = dpari_pl_now(pipeline);
    }
}

/* Waits until message m is complete. Returns at once if m is DPARI_PL_NONE. */
static dpar_status dpari_pl_await(dpar_pipeline *pipeline, int64_t m)
{
    dpar_status st;
    if (m == DPARI_PL_NONE || pipeline->seen[m]) {
        return DPAR_OK;
    }
    st = dpar_wait(&pipeline->work[m]);
    if (st == DPAR_OK) {
        dpari_pl_arrived(pipeline, m);
    }
    return st;
}

DPAR_API dpar_status dpar_pipeline_progress(dpar_pipeline *pipeline)
{
    int64_t m;
    if (pipeline == NULL || !pipeline->under_way) {
        return pipeline == NULL ? DPAR_E_ARG : DPAR_OK;
    }
    for (m = pipeline->oldest; m < pipeline->posted; m++) {
        const dpar_status st = pipeline->seen[m] ? DPAR_OK : dpar_test(&pipeline->work[m]);
        if (st < 0) {
            return st;
        }
        if (st == DPAR_OK && !pipeline->seen[m]) {
            dpari_pl_arrived(pipeline, m);
        }
        pipeline->oldest += m == pipeline->oldest && pipeline->seen[m];
    }
    return DPAR_OK;
}

/* Fills in the call for message m, which is action k, and records m as the message of its slot. */
static void dpari_pl_call(dpar_pipeline *pipeline, int64_t k, int64_t m, dpar_call *call)
{
    const dpar_action *action = &pipeline->list[k];
    const int sends = dpari_pl_sends(action->kind);
    const int forward = action->kind == DPAR_ACTION_SEND_F || action->kind == DPAR_ACTION_RECV_F;
    const dpar_action_slots *slots = &pipeline->item[k].slots;
    dpari_zero(call, sizeof *call);
    call->kind = sends ? DPAR_CALL_SEND : DPAR_CALL_RECV;
    call->type = pipeline->desc.type;
    call->root = action->peer;
    call->tag = pipeline->desc.tag;
    call->count = dpari_pl_between(&pipeline->desc, action, forward, !sends);
    if (sends) {
        call->in = dpari_pl_slot(&pipeline->send, slots->send);
        pipeline->of_send[slots->send] = m;
    } else {
        call->out = dpari_pl_slot(&pipeline->receive, slots->receive);
        pipeline->of_receive[slots->receive] = m;
    }
}

/* True if action k may be posted in one batch with the n calls. A batch has at most one message to
 * each rank and one from each rank. With more, NCCL could deadlock: it starts a second message to a
 * rank only after the first message from that rank has arrived, but that rank may be waiting for
 * the second message before it sends. */
static int dpari_pl_joins(const dpar_pipeline *pipeline, int64_t k, const dpar_call *call,
                          int32_t n)
{
    const dpar_action *action = &pipeline->list[k];
    const int32_t kind =
        dpari_pl_sends(action->kind) ? (int32_t)DPAR_CALL_SEND : (int32_t)DPAR_CALL_RECV;
    int32_t i = 0;
    while (i < n && (call[i].kind != kind || call[i].root != action->peer)) {
        i++;
    }
    return i == n && n < DPARI_PL_BATCH;
}

/* Posts the message of action k together with the messages that follow it directly, as far as they
 * may be in one batch. Sets *next to the first action after them. */
static dpar_status dpari_pl_post(dpar_pipeline *pipeline, int64_t k, int64_t *next)
{
    dpar_call call[DPARI_PL_BATCH];
    int32_t n = 0;
    dpar_status st;
    while (k + n < pipeline->actions && dpari_pl_is_message(pipeline->list[k + n].kind) &&
           dpari_pl_joins(pipeline, k + n, call, n)) {
        dpari_pl_call(pipeline, k + n, pipeline->posted + n, &call[n]);
        if (pipeline->desc.start != NULL) {
            pipeline->desc.start[k + n] = dpari_pl_now(pipeline);
        }
        n++;
    }
    st = dpar_batch(pipeline->comm, call, n, &pipeline->work[pipeline->posted]);
    pipeline->posted += n;
    *next = k + n;
    return st;
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* Waits for the messages that action k needs, and fills in the task for its callback. */
static dpar_status dpari_pl_task(dpar_pipeline *pipeline, int64_t k, dpar_stage_task *t)
{
    const dpar_action *action = &pipeline->list[k];
    const dpari_pl_item *item = &pipeline->item[k];
    const dpar_action_slots *slots = &item->slots;
    const int forward = action->kind == DPAR_ACTION_FORWARD;
    dpar_status st = DPAR_OK;
    dpari_zero(t, sizeof *t);
    t->action = *action;
    t->action.joined = 0;
    t->last = pipeline->last;
    t->activation_slot =
        slots->activation == DPAR_SLOT_NONE ? DPARI_PL_NONE : (int32_t)slots->activation;
    t->weight_slot = slots->weight == DPAR_SLOT_NONE ? DPARI_PL_NONE : (int32_t)slots->weight;
    t->activation_memory = dpari_pl_slot(&pipeline->activation, slots->activation);
    t->weight_memory = dpari_pl_slot(&pipeline->weight, slots->weight);
    if (!dpari_pl_passes(action->kind)) {
        return DPAR_OK;
    }
    t->in = dpari_pl_slot(&pipeline->local, item->local_in);
    t->out = dpari_pl_slot(&pipeline->local, item->local_out);
    if (slots->receive != DPAR_SLOT_NONE) {
        t->in = dpari_pl_slot(&pipeline->receive, slots->receive);
        st = dpari_pl_await(pipeline, pipeline->of_receive[slots->receive]);
    }
    if (slots->send != DPAR_SLOT_NONE && st == DPAR_OK) {
        t->out = dpari_pl_slot(&pipeline->send, slots->send);
        st = dpari_pl_await(pipeline, pipeline->of_send[slots->send]);
    }
    if (dpari_pl_neighbour(pipeline->desc.schedule, action, 1) >= 0) {
        t->in_count = dpari_pl_between(&pipeline->desc, action, forward, 1);
    }
    if (dpari_pl_neighbour(pipeline->desc.schedule, action, 0) >= 0) {
        t->out_count = dpari_pl_between(&pipeline->desc, action, forward, 0);
    }
    return st;
}

/* Breaks the communicator with the status and message of a callback that failed, unless it is
 * already broken. Returns the communicator's status. */
static dpar_status dpari_pl_fail(dpar_pipeline *pipeline, dpar_status st, const dpar_action *action,
                                 dpar_why *said)
{
    char name[32];
    dpar_why text;
    if (pipeline->comm->status == DPAR_OK) {
        const char *words = said->text[0] != 0 ? said->text : dpar_status_text(st);
        dpar_text t;
        dpari_pl_name(action, name, sizeof name);
        dpar_text_init(&t, text.text, sizeof text.text);
        dpari_text_print(&t, "rank %d: %s: %s", pipeline->comm->rank, name, words);
        dpar_comm_abort(pipeline->comm, st, text.text);
    }
    return pipeline->comm->status != DPAR_OK ? pipeline->comm->status : st;
}

/* Runs the callbacks of one action (n = 1) or of a joined pair (n = 2). */
static dpar_status dpari_pl_callback_run(dpar_pipeline *pipeline, const dpar_stage_task *t,
                                         int32_t n)
{
    dpar_why said;
    dpar_status st = DPAR_OK;
    int32_t i = 0;
    dpari_zero(&said, sizeof said);
    if (n == 2 && pipeline->desc.forward_backward != NULL) {
        st = pipeline->desc.forward_backward(pipeline->desc.ctx, &t[0], &t[1], &said);
    } else {
        for (i = 0; i < n; i++) {
            st = dpari_pl_callback(&pipeline->desc, t[i].action.kind)(pipeline->desc.ctx, &t[i],
                                                                      &said);
            if (st < 0) {
                break;
            }
        }
    }
    return st < 0 ? dpari_pl_fail(pipeline, st, &t[i].action, &said) : DPAR_OK;
}

/* True for actions without a callback in this step: idle ones, and reductions if the step only
 * accumulates gradients. */
static int dpari_pl_omits(const dpar_pipeline *pipeline, int32_t kind)
{
    return kind == DPAR_ACTION_IDLE || (!pipeline->last && (kind == DPAR_ACTION_REDUCE_GRAD ||
                                                            kind == DPAR_ACTION_WAIT_REDUCE));
}

/* Runs action k, or the joined pair that begins with it. Sets *next to the action after it. */
static dpar_status dpari_pl_work(dpar_pipeline *pipeline, int64_t k, int64_t *next)
{
    const int32_t n = 1 + pipeline->list[k].joined;
    dpar_stage_task t[2];
    int64_t began = 0, ended = 0;
    dpar_status st = DPAR_OK;
    int32_t i;
    *next = k + n;
    for (i = 0; i < n && st == DPAR_OK; i++) {
        st = dpari_pl_task(pipeline, k + i, &t[i]);
    }
    if (st == DPAR_OK) {
        began = pipeline->desc.start != NULL ? dpari_pl_now(pipeline) : 0;
        st = dpari_pl_omits(pipeline, pipeline->list[k].kind)
                 ? DPAR_OK
                 : dpari_pl_callback_run(pipeline, t, n);
        ended = pipeline->desc.start != NULL ? dpari_pl_now(pipeline) : 0;
    }
    for (i = 0; i < n && pipeline->desc.start != NULL; i++) {
        pipeline->desc.start[k + i] = began;
        pipeline->desc.end[k + i] = ended;
    }
    return st;
}

/* Ends a step that failed: aborts the communicators, and waits until all messages of this rank have
 * ended, because they use the slots. */
static void dpari_pl_give_up(dpar_pipeline *pipeline, dpar_status st)
{
    int64_t m;
    if (pipeline->comm->status == DPAR_OK) {
        dpar_comm_abort(pipeline->comm, st, pipeline->comm->why.text);
    }
    if (pipeline->tied != NULL && pipeline->tied->status == DPAR_OK) {
        dpar_comm_abort(pipeline->tied, st, pipeline->comm->why.text);
    }
    for (m = 0; m < pipeline->posted; m++) {
        (void)dpar_wait(&pipeline->work[m]);
    }
    pipeline->posted = 0;
}

/* Executes the list of actions once, and waits for the remaining messages. */
static DPARI_COLD dpar_status dpari_pl_list(dpar_pipeline *pipeline)
{
    int64_t k = 0, m;
    dpar_status st = DPAR_OK;
    while (k < pipeline->actions && st == DPAR_OK) {
        st = dpari_pl_is_message(pipeline->list[k].kind) ? dpari_pl_post(pipeline, k, &k)
                                                         : dpari_pl_work(pipeline, k, &k);
        if (st == DPAR_OK) {
            st = dpar_pipeline_progress(pipeline);
        }
    }
    for (m = pipeline->oldest; m < pipeline->posted && st == DPAR_OK; m++) {
        st = dpari_pl_await(pipeline, m);
    }
    return st;
}

/* Sums the gradient of the tied weight over the ranks that have the first or the last stage. */
static dpar_status dpari_pl_tied_sum(dpar_pipeline *pipeline)
{
    dpar_status st;
    if (pipeline->tied == NULL || pipeline->tied->size == 1 || !pipeline->last) {
        return DPAR_OK;
    }
    st = dpar_all_reduce(pipeline->tied, pipeline->desc.tied, pipeline->desc.tied,
                         pipeline->desc.tied_count, pipeline->desc.tied_type, DPAR_SUM, NULL);
    if (st != DPAR_OK && pipeline->comm->status == DPAR_OK) {
        dpar_comm_abort(pipeline->comm, st, pipeline->tied->why.text);
    }
    return st;
}

/* Resets the state of the messages for a new step. */
static void dpari_pl_restart(dpar_pipeline *pipeline, int32_t last)
{
    int64_t m;
    for (m = 0; m < pipeline->messages; m++) {
        pipeline->seen[m] = 0;
        pipeline->of_receive[m] = pipeline->of_send[m] = DPARI_PL_NONE;
    }
    pipeline->oldest = pipeline->posted = 0;
    pipeline->last = last != 0;
    pipeline->began = dpari_os_now();
}

DPAR_API DPARI_COLD dpar_status dpar_pipeline_run(dpar_pipeline *pipeline, int32_t last,
                                                  dpar_why *why)
{
    dpar_status st = DPAR_OK;
    if (pipeline == NULL || pipeline->under_way) {
        return dpari_wrong(why, pipeline == NULL
                                    ? "dpar_pipeline_run: pipeline is NULL"
                                    : "dpar_pipeline_run: the previous step has not ended");
    }
    st = pipeline->comm->status;
    if (st == DPAR_OK && pipeline->desc.start != NULL) {
        st = dpar_barrier(pipeline->comm, NULL);
    }
    if (st == DPAR_OK) {
        dpari_pl_restart(pipeline, last);
        pipeline->under_way = 1;
        st = dpari_pl_list(pipeline);
    }
    if (st == DPAR_OK) {
        st = dpari_pl_tied_sum(pipeline);
    }
    if (st == DPAR_OK && !pipeline->desc.no_final_barrier) {
        st = dpar_barrier(pipeline->comm, NULL);
    }
    pipeline->under_way = 0;
    if (st == DPAR_OK) {
        return st;
    }
    dpari_pl_give_up(pipeline, st);
    return dpari_repeat(st, why, pipeline->comm->why.text);
}

DPAR_API dpar_status dpar_pipeline_times(dpar_pipeline *pipeline, int64_t *start, int64_t *end,
                                         dpar_why *why)
{
    dpar_status st;
    if (pipeline == NULL || pipeline->desc.start == NULL ||
        (pipeline->comm->rank == 0 && (start == NULL || end == NULL))) {
        return dpari_wrong(
            why, "dpar_pipeline_times: the pipeline has no desc.start, or start or end is NULL");
    }
    st = dpar_gather_v(pipeline->comm, pipeline->desc.start, pipeline->actions, start,
                       pipeline->rank_actions, pipeline->desc.schedule->begin, DPAR_I64, 0, NULL);
    if (st == DPAR_OK) {
        st = dpar_gather_v(pipeline->comm, pipeline->desc.end, pipeline->actions, end,
                           pipeline->rank_actions, pipeline->desc.schedule->begin, DPAR_I64, 0,
                           NULL);
    }
    if (st == DPAR_OK) {
        return st;
    }
    return dpari_repeat(st, why, pipeline->comm->why.text);
}
