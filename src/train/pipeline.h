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
 *     in my_forward, now and then if it takes long: dpar_pipeline_progress(p);
 *     dpar_pipeline_free(p);
 *
 * You can also pass your own schedule instead of the name of an order:
 *
 *     dpar_schedule_generate(&made, ...); dpar_schedule_lower(&list, &made, &how, ...);
 *     desc.schedule = &list;             (how.passes: MESSAGES, and REDUCE or SHARDS if wanted)
 *
 * comm connects the ranks of the schedule, and rank r runs list r. Stages may be placed in any way:
 * in a loop, in a V, in both directions, or by your own rank_of. If neighbouring stages are on the
 * same rank, they pass their data in memory, without a message.
 *
 * Guarantees. A rank begins its actions in exactly the order of its list. F, B and I wait until
 * their input has been received. An action that fills a send slot waits until the previous message
 * from that slot is complete. dpar_pipeline_make proves that no step can deadlock, whatever the
 * speed of the ranks. The pipeline uses as many slots as dpar_schedule_slots reports, and only make
 * allocates memory. If a callback fails or a rank is lost, the step ends on all ranks with the
 * message.
 *
 * If comm->mem is the memory of a device (dpar_nccl.h), `tied`, the slots and thus the buffers of
 * the callbacks are in that memory. The pipeline itself never reads them. Callbacks enqueue their
 * work on the stream of comm->mem and return. That stream waits for messages, while the thread
 * continues. Because a stream has one queue for all messages, a list with keep_sends must pass
 * DPAR_TRANSPORT_RANK. The thread waits only at the end of a step, unless `no_final_barrier` is
 * set. The times in start and end are those of enqueuing. */
#ifndef DPARI_TRAIN_PIPELINE_H
#define DPARI_TRAIN_PIPELINE_H

#include "../schedule/slots.h"
#include "../comm/comm.h"

/* Describes the work of one call of a stage's callback. Buffers hold elements of desc.type and
 * belong to the callback until it returns. */
typedef struct dpar_stage_task {
    dpar_action action; /* kind, stage and micro-batch */
    int32_t last;       /* the argument `last` of dpar_pipeline_run */
    /* For F: the output of the previous stage, or NULL for the first stage, which reads the
     * micro-batch itself. For B and I: the gradient of this stage's output, or NULL for the last
     * stage, which begins at the loss. The buffer is reused once you return: F must copy what
     * backward needs of its input into the activation. */
    const void *in;
    /* For F: the input of the next stage, which must be written completely, or NULL for the last
     * stage, which computes the loss. For B and I: the gradient of F's input, or NULL for the first
     * stage. */
    void *out;
    int64_t in_count, out_count; /* elements of in and out */
    /* Number of the activation's slot, which is in use from F to B or W; -1 if there is none. For
     * OFFLOAD it is the slot that becomes free when you return, for RELOAD the slot that holds the
     * activation afterwards. */
    int32_t activation_slot;
    /* number of the weight gradient's slot, which is in use from I to W; -1 if there is none */
    int32_t weight_slot;
    void *activation_memory; /* activation_slot's desc.activation_bytes; NULL if that is 0 */
    void *weight_memory;     /* weight_slot's desc.weight_bytes; NULL if that is 0 */
} dpar_stage_task;

/* Executes a task. It is your callback. Return DPAR_OK, or a positive status, which counts as
 * DPAR_OK. A negative status ends the step on all ranks. Write its message to *why, which is never
 * NULL and initially empty. The callback may use other communicators and dpar_pipeline_progress. */
typedef dpar_status (*dpar_stage_callback)(void *ctx, const dpar_stage_task *task, dpar_why *why);
/* Executes the forward and the backward of a joined pair together. It is your callback, with the
 * rules of dpar_stage_callback. */
typedef dpar_status (*dpar_stage_pair_callback)(void *ctx, const dpar_stage_task *forward,
                                                const dpar_stage_task *backward, dpar_why *why);

/* Describes a pipeline. Zero it and fill in what your list needs. All ranks pass the same values,
 * except for pointers, activation_bytes and weight_bytes. */
typedef struct dpar_pipeline_desc {
    /* Name of the order of actions, such as "1f1b" or "zbv" (dpar_schedule_find). The pipeline
     * generates and stores this schedule, lowered to messages. It contains REDUCE_GRAD if `reduce`
     * is not NULL, and UNSHARD and RESHARD if `unshard` is not NULL. Only make reads the name. */
    const char *order;
    int32_t micro_batches; /* number of micro-batches; read only with `order` */
    /* Instead of `order`: a schedule with messages, which you keep until the pipeline is freed. */
    const dpar_schedule *schedule;
    int32_t type;  /* of the elements that stages send to each other */
    int32_t tag;   /* of the messages on comm */
    int64_t count; /* elements that a stage sends to the next one */
    /* [stages] elements that each stage sends, which you keep until the pipeline is freed. NULL if
     * every stage sends `count`. */
    const int64_t *count_per_stage;
    /* Size of an activation's slot in bytes, the largest of the rank's stages. 0 if the callbacks
     * have their own memory for each slot number. */
    int64_t activation_bytes;
    int64_t weight_bytes; /* the same for the slot in which I leaves data for its W */
    /* 0 uses as few send slots as possible. The list must then pass DPAR_TRANSPORT_BLOCKING, as
     * lists from dpar_schedule_lower do. 1 uses one send slot per message, so that nothing waits
     * for a send before the end of the step. The list must then pass DPAR_TRANSPORT_EDGE, which
     * DPAR_LOWER_LATE_RECV with DPAR_CHANNEL_EDGE ensures, or DPAR_TRANSPORT_RANK if comm->mem is
     * the memory of a device. */
    int32_t keep_sends;
    int32_t no_final_barrier; /* 1 if ranks do not wait for each other at the end of a step. A rank
                      may then learn of another rank's failure only in its next step */

    dpar_stage_callback forward, backward, input, weight; /* for F, B, I and W */
    dpar_stage_pair_callback forward_backward; /* NULL selects forward, then backward or input */
    /* REDUCE_GRAD: calls dpar_ddp_end, or begins the reduction (dpar_ddp_ready, dpar_fsdp_ready).
     * WAIT_REDUCE_GRAD: ends the reduction. */
    dpar_stage_callback reduce, wait_reduce;
    dpar_stage_callback unshard, reshard, recompute, offload, reload;
    void *ctx; /* passed to all callbacks */

    /* Gradient of a weight that the first and the last stage share (embedding and output). At the
     * end of the step it is summed over the ranks that have these stages. If one rank has both
     * stages, their callbacks add into the same `tied`. Other ranks do not read it. */
    void *tied;
    int64_t tied_count; /* elements, the same on all ranks; 0 if there is no such weight */
    int32_t tied_type;

    /* [actions of this rank] times when each action of the last step began and ended, in ns since
     * the step began, or NULL. A message ends when the rank notices that it is complete. Set both
     * or neither, and the same on all ranks. Costs one barrier per step, so that all ranks measure
     * from the same moment. */
    int64_t *start, *end;

    /* Your memory for the pipeline, on the host and aligned to 64 bytes, which you keep until the
     * pipeline is freed. It has about 300 bytes per message of this rank, 12 per action, and what
     * dpar_schedule_check and dpar_schedule_slots need. If it is NULL and bytes is 0, make
     * allocates it. If bytes is too small, make fails with DPAR_E_ROOM, and why->bytes is the size
     * that is needed. To query that size, set memory to NULL and bytes to 1. The slots are not in
     * this memory, but allocated by dpar_comm_alloc. */
    void *memory;
    int64_t bytes;
} dpar_pipeline_desc;

/* A handle to a pipeline that is ready to run. */
typedef struct dpar_pipeline dpar_pipeline;

/* Makes a pipeline: proves the list free of deadlock, and assigns and allocates slots.
 *
 * Collective over comm, whose ranks are those of the schedule. Splits comm if tied_count is above
 * 0. Costs O(actions), and small collectives that compare the schedules and descriptors. Fails on
 * all ranks like dpar_schedule_find and dpar_schedule_generate, and with
 *
 *  - DPAR_E_MISMATCH if schedules or descriptors differ;
 *  - DPAR_E_ARG if both or neither of `order` and `schedule` are NULL;
 *  - DPAR_E_ARG if the schedule is not valid for these ranks or has no messages, a callback that
 *    the list needs is NULL, or a type or number is outside of its domain;
 *  - DPAR_E_STUCK if ranks would wait for each other in a cycle, which the message names;
 *  - DPAR_E_RANGE, DPAR_E_ROOM or DPAR_E_MEMORY. */
DPAR_API dpar_status dpar_pipeline_make(dpar_comm *comm, const dpar_pipeline_desc *desc,
                                        dpar_pipeline **pipeline, dpar_why *why);
/* Runs one step, which executes the whole list for all micro-batches.
 *
 * last: 1 to reduce gradients at the end of the step. 0 if more steps follow that add to them; this
 *       omits REDUCE_GRAD, WAIT_REDUCE_GRAD and the sum of `tied`.
 *
 * Collective. For each micro-batch, a stage sends its count of elements to the next stage and
 * receives the same number of gradients, unless that stage is on the same rank. Costs O(actions)
 * plus the callbacks.
 *
 * Fails on all ranks with the status of a callback and a message like "rank 1: 2B3: its message",
 * or with DPAR_E_PEER, DPAR_E_TIMEOUT or DPAR_E_MISMATCH as described in comm.h. These errors break
 * comm. With desc.no_final_barrier some ranks notice them only in their next step. If callbacks use
 * other communicators, abort those yourself. Fails with DPAR_E_ARG on this rank if `pipeline` is
 * NULL or a step of it is in progress. */
DPAR_API dpar_status dpar_pipeline_run(dpar_pipeline *pipeline, int32_t last, dpar_why *why);
/* Advances the posted messages and notes which are complete. Call it now and then from a callback
 * that takes long. Outside of a step it does nothing and returns DPAR_OK.
 *
 * Local. O(posted messages that are not complete). Fails with the error of a message, described in
 * the communicator's why, and with DPAR_E_ARG if `pipeline` is NULL. */
DPAR_API dpar_status dpar_pipeline_progress(dpar_pipeline *pipeline);
/* Returns the numbers of slots of this rank.
 *
 * local: set to the number of buffers in which stages of this rank pass data to each other. May be
 *        NULL.
 *
 * Local. O(1). */
DPAR_API dpar_slot_counts dpar_pipeline_slots(const dpar_pipeline *pipeline, int32_t *local);
/* Gathers the times of the last step from all ranks on rank 0.
 *
 * start, end: [actions of the schedule] on rank 0, the times of schedule->action[k] in ns, in the
 *             form of dpar_schedule_simulate. May be NULL on other ranks.
 *
 * dpar_schedule_draw with unit 1000 then draws the step as it ran. Collective. O(actions). Fails
 * with DPAR_E_ARG if desc.start is NULL. */
DPAR_API dpar_status dpar_pipeline_times(dpar_pipeline *pipeline, int64_t *start, int64_t *end,
                                         dpar_why *why);
/* Frees a pipeline, its slots and the communicator that it split off. NULL is allowed.
 *
 * Collective. With tied_count, has the costs and errors of dpar_comm_free. */
DPAR_API dpar_status dpar_pipeline_free(dpar_pipeline *pipeline);

#endif
