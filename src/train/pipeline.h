/* SPDX-License-Identifier: MIT-0 */
/* pipeline - runs a schedule of dpar_schedule.h on real ranks. Stages are callbacks, called in the
 * order of the rank's list of actions. Messages use the slots that dpar_schedule_slots assigns;
 * they are posted where the list has them, and are transferred while stages compute.
 *
 *     desc.order = "1f1b"; desc.micro_batches = micros;
 *     desc.type = DPAR_F32; desc.count = tokens * width;
 *     desc.forward = my_forward; desc.backward = my_backward;
 *     dpar_pipeline_make(comm, &desc, &p, &why);
 *     each step: dpar_pipeline_run(p, 1, &why);
 *     in my_forward, if it computes for long: dpar_pipeline_progress(p);
 *     dpar_pipeline_free(p);
 *
 * A list of your own in place of an order:
 *
 *     dpar_schedule_generate(&made, ...); dpar_schedule_lower(&list, &made, &how, ...);
 *     desc.schedule = &list;             (how.passes: MESSAGES, REDUCE, SHARDS as you like)
 *
 * comm connects the ranks of the schedule, and rank r runs list r. Stages may be placed in any way:
 * in a loop, in a V, in both directions, or by your own rank_of. Neighbouring stages of one rank
 * pass their data in memory, without a message.
 *
 * Guarantees. A rank begins its actions in exactly the order of its list, and waits only for data
 * that has not arrived. F, B and I wait for what they receive. An action that fills a send slot
 * waits until the previous message from that slot is done. dpar_pipeline_make proves that no step
 * can deadlock, whatever the speed of the ranks. There are never more live slots than
 * dpar_schedule_slots reports, and nothing is allocated after make. If a callback fails or a rank
 * is lost, the step ends on all ranks with the message.
 *
 * If comm->mem is the memory of a device (dpar_nccl.h), the slots are in that memory, and so are
 * the buffers that callbacks get and `tied`. The pipeline itself never reads them. Callbacks
 * enqueue their work on the stream of comm->mem and return; that stream waits for messages, and the
 * thread does not. Because a stream has one queue for all messages, a list with keep_sends must
 * pass DPAR_TRANSPORT_RANK. The thread waits at the end of a step, unless `no_final_barrier` is
 * set. The times in start and end are then those of enqueuing. */
#ifndef DPARI_TRAIN_PIPELINE_H
#define DPARI_TRAIN_PIPELINE_H

#include "../schedule/steps.h"
#include "../comm/comm.h"

/* Describes the work of one call of a stage's callback. Buffers hold elements of desc.type and
 * belong to the callback until it returns. */
typedef struct dpar_stage_task {
    dpar_action action; /* kind, stage and micro-batch */
    int32_t last;       /* 1 if gradients are sent after this step, as in dpar_pipeline_run */
    /* For F: the output of the stage before, or NULL for the first stage, which reads the
     * micro-batch itself. For B and I: the gradient of this stage's output, or NULL for the last
     * stage, which begins at the loss. Read it before you return. F has to copy what backward needs
     * of its input into the activation, because backward does not get this input. */
    const void *in;
    /* For F: the input of the next stage, which must be written completely, or NULL for the last
     * stage, which computes the loss. For B and I: the gradient of F's input, or NULL for the first
     * stage. */
    void *out;
    int64_t in_count, out_count; /* elements of in and out */
    /* Number of the activation's slot, in use from F to B or W; -1 if there is none. OFFLOAD gets
     * the slot that is free once it returns, RELOAD the slot that holds the activation from then
     * on. */
    int32_t activation_slot;
    int32_t weight_slot; /* number of the weight gradient's slot, in use from I to W; -1 if none */
    void *activation_memory; /* the activation's slot, desc.activation_bytes; NULL if that is 0 */
    void *weight_memory;     /* the weight's slot, desc.weight_bytes; NULL if that is 0 */
} dpar_stage_task;

/* Executes a task: a callback of yours. Return DPAR_OK, or a positive status, which counts as
 * DPAR_OK. A negative status ends the step on all ranks; write its message to *why, which is never
 * NULL and empty at first. The callback may use other communicators and dpar_pipeline_progress. */
typedef dpar_status (*dpar_stage_callback)(void *ctx, const dpar_stage_task *task, dpar_why *why);
/* Executes the forward and the backward of a joined pair together: a callback of yours, with the
 * rules of dpar_stage_callback. */
typedef dpar_status (*dpar_stage_pair_callback)(void *ctx, const dpar_stage_task *forward,
                                                const dpar_stage_task *backward, dpar_why *why);

/* Describes a pipeline. Zero it and fill in what your list needs. All ranks give the same values,
 * except pointers and the bytes of slots. */
typedef struct dpar_pipeline_desc {
    /* Name of the order of actions, such as "1f1b" or "zbv" (dpar_schedule_find). The pipeline
     * makes this schedule in memory of its own: lowered with its messages, with REDUCE_GRAD if
     * `reduce` is given, and with UNSHARD and RESHARD if `unshard` is. Only dpar_pipeline_make
     * reads the name. */
    const char *order;
    int32_t micro_batches; /* number of micro-batches; read with `order` */
    /* In place of `order`: a schedule with messages, kept by you while the pipeline exists. */
    const dpar_schedule *schedule;
    int32_t type;  /* of the elements that stages send to each other */
    int32_t tag;   /* of the messages on comm */
    int64_t count; /* elements that a stage sends to the next one */
    /* [stages] elements that each stage sends, kept by you as long as the pipeline exists. NULL if
     * every stage sends `count`. */
    const int64_t *count_per_stage;
    /* Bytes of an activation's slot, the largest of the rank's stages. 0 if callbacks use the
     * slots' numbers with memory of their own. */
    int64_t activation_bytes;
    int64_t weight_bytes; /* the same for what an I leaves to its W */
    /* 0 uses as few send slots as possible. The list must pass DPAR_TRANSPORT_BLOCKING, as lists
     * made by lowering do. 1 uses a slot for each message, so that nothing waits for a send before
     * the end of the step. The list must pass DPAR_TRANSPORT_EDGE, which DPAR_LOWER_LATE_RECV with
     * DPAR_CHANNEL_EDGE ensures; on the memory of a device DPAR_TRANSPORT_RANK. */
    int32_t keep_sends;
    int32_t no_final_barrier; /* 1: ranks do not wait for each other at the end of a step. A rank
                      may then learn of another rank's failure only in its next step */

    dpar_stage_callback forward, backward, input, weight; /* for F, B, I and W */
    dpar_stage_pair_callback forward_backward; /* NULL selects forward, then backward or input */
    /* For REDUCE_GRAD: dpar_ddp_end, or what begins the reduction (ready of ddp or fsdp). For
     * WAIT_REDUCE_GRAD: what ends it. */
    dpar_stage_callback reduce, wait_reduce;
    dpar_stage_callback unshard, reshard, recompute, offload, reload;
    void *ctx; /* passed to all callbacks */

    /* Gradient of a weight that the first and the last stage share (embedding and output). At the
     * end of the step it is summed over the ranks that have these stages. If one rank has both,
     * they add into the same `tied` themselves. On other ranks it is not read. */
    void *tied;
    int64_t tied_count; /* elements; 0 if there is no such weight. The same on all ranks */
    int32_t tied_type;

    /* [actions of this rank] times when each action of the last step began and ended, in ns since
     * the step began, or NULL. A message lasts from its posting until the rank saw that it was
     * done. Give both or none, the same on all ranks. Costs a barrier in each step, which
     * synchronises the clocks. */
    int64_t *start, *end;

    /* Memory of yours for the pipeline, on the host, aligned to 64, as long as the pipeline exists.
     * It is about 300 bytes for each message of this rank, 12 for each action, and what
     * dpar_schedule_check and dpar_schedule_slots need. NULL with bytes 0: dpar_pipeline_make
     * allocates it. Too few bytes are DPAR_E_ROOM, and why->bytes tells how many are needed; to
     * ask, set memory NULL and bytes 1. The slots themselves are allocated by dpar_comm_alloc. */
    void *memory;
    int64_t bytes;
} dpar_pipeline_desc;

/* A pipeline that is ready to run: a handle. */
typedef struct dpar_pipeline dpar_pipeline;

/* Makes a pipeline: proves the list free of deadlock, and assigns and allocates slots.
 *
 * Collective over comm, whose ranks are those of the schedule: all ranks give the same schedule and
 * numbers. It splits comm if tied_count is above 0. Costs O(actions) and small collectives that
 * compare. Fails on all ranks as dpar_schedule_find and dpar_schedule_generate do, and with
 *
 *  - DPAR_E_MISMATCH if schedules or descriptors differ;
 *  - DPAR_E_ARG if both or neither of `order` and `schedule` are given;
 *  - DPAR_E_ARG if the schedule is not valid for these ranks or has no messages, a callback that
 *    the list needs is NULL, or a type or number is outside of its domain;
 *  - DPAR_E_STUCK if ranks would wait for each other in a circle, which the message names;
 *  - DPAR_E_RANGE, DPAR_E_ROOM or DPAR_E_MEMORY. */
DPAR_API dpar_status dpar_pipeline_make(dpar_comm *comm, const dpar_pipeline_desc *desc,
                                        dpar_pipeline **out, dpar_why *why);
/* Runs one step: all micro-batches through the list.
 *
 * last: 1 to send gradients at the end of the step. 0 if more steps follow that add to them;
 *       REDUCE_GRAD, WAIT_REDUCE_GRAD and the sum of `tied` are then left out.
 *
 * Collective. For each micro-batch, a stage sends its count of elements to the next stage and
 * receives as many gradients, unless that stage is on the same rank. Costs O(actions) plus the
 * callbacks.
 *
 * Fails on all ranks with the status of a callback, as in "rank 1: 2B3: its message", or with
 * DPAR_E_PEER, DPAR_E_TIMEOUT or DPAR_E_MISMATCH as described in comm.h. With
 * desc.no_final_barrier some ranks learn of it in their next step. This breaks comm. Communicators
 * that callbacks use are not aborted; do that yourself. Fails with DPAR_E_ARG on this rank if
 * `pipeline` is NULL or in a step. */
DPAR_API dpar_status dpar_pipeline_run(dpar_pipeline *pipeline, int32_t last, dpar_why *why);
/* Advances the messages under way and checks which are done. Call it from a callback that computes
 * for long. Outside of a step it does nothing and returns DPAR_OK.
 *
 * Local. O(messages under way). Fails with the error of a message that failed, described in the
 * communicator's why, and with DPAR_E_ARG for NULL. */
DPAR_API dpar_status dpar_pipeline_progress(dpar_pipeline *pipeline);
/* Returns the numbers of slots of this rank.
 *
 * local: set to the number of buffers between stages of this rank. May be NULL.
 *
 * Local. O(1). */
DPAR_API dpar_slot_counts dpar_pipeline_slots(const dpar_pipeline *pipeline, int32_t *local);
/* Gathers the times of the last step from all ranks on rank 0.
 *
 * start, end: [actions of the schedule] on rank 0, times of schedule->action[k] in ns, in the form
 *             of dpar_schedule_simulate. May be NULL on other ranks.
 *
 * dpar_schedule_draw with unit 1000 then draws the step that really ran. Collective. O(actions).
 * Fails with DPAR_E_ARG without desc.start. */
DPAR_API dpar_status dpar_pipeline_times(dpar_pipeline *pipeline, int64_t *start, int64_t *end,
                                         dpar_why *why);
/* Frees a pipeline, with its slots and the communicator that it split off. NULL is allowed.
 *
 * Collective. With tied_count it costs and fails as dpar_comm_free. */
DPAR_API dpar_status dpar_pipeline_free(dpar_pipeline *pipeline);

#endif
