/* SPDX-License-Identifier: MIT-0 */
/* pipeline - runs a schedule of dpar_schedule.h on real ranks. Stages are callbacks, called in the
 * order of the list. Messages go through the slots that dpar_schedule_slots assigns, are posted
 * where the list has them, and travel while stages compute.
 *
 *     options.type = DPAR_F32; options.count = tokens * width;
 *     options.forward = my_forward; options.backward = my_backward;
 *     dpar_pipeline_make(c, "1f1b", micros, &options, &p, &why);
 *     each step: dpar_pipeline_run(p, 1, &why);
 *     in my_forward, where it computes for long: dpar_pipeline_progress(p);
 *     dpar_pipeline_free(p);
 *
 * A list of your own, in memory of yours:
 *
 *     dpar_schedule_generate(&made, ...); dpar_schedule_lower(&list, &made, &how, ...);
 *     options.schedule = &list;          (how.passes: MESSAGES, REDUCE, SHARDS as you like)
 *     dpar_pipeline_bytes(c, &options, &bytes, &why);
 *     dpar_pipeline_init(memory, bytes, c, &options, &p, &why);
 *     ... dpar_pipeline_close(p);
 *
 * c holds the schedule's ranks; rank r works list r. Stages may be placed in any way: loop, V, both
 * ways, your own rank_of. Neighbouring stages of one rank hand over in memory, without a message.
 *
 * Promises. A rank begins its actions in exactly the order of its list. It only waits for data that
 * is not there yet. F, B and I wait for what they receive; what fills a send slot waits for the
 * message that was the last in it. Init proves that no step can get stuck whatever the ranks'
 * speed. Live slots are never more than dpar_schedule_slots says. Nothing is allocated after init.
 * A callback that fails, or a rank that is gone, ends the step on all ranks with the sentence.
 *
 * In a device's memory (comm->mem, dpar_nccl.h) lie the slots, so what callbacks are given, and
 * `tied`. The pipeline itself never looks into them. Callbacks enqueue on the stream of comm->mem
 * and return; that stream, not the thread, waits for messages. A stream has one queue for all
 * messages: with keep_sends a list must pass DPAR_TRANSPORT_RANK. The thread waits at the end of a
 * step, with `apart` not even there. start and end are then times of enqueuing. */
#ifndef DPARI_TRAIN_PIPELINE_H
#define DPARI_TRAIN_PIPELINE_H

#include "../schedule/steps.h"
#include "../comm/comm.h"

/* What a callback is to do. Buffers hold elements of options.type; they are the callback's until it
 * returns. */
typedef struct dpar_stage_task {
    dpar_action action; /* kind, stage, micro-batch */
    int32_t last;       /* 1: gradients travel after this one, as in dpar_pipeline_run */
    /* F: what the stage before gave; NULL: there is none, take the micro-batch itself. B, I: the
     * gradient of the stage's output; NULL: no stage is behind, it begins at the loss. Read it
     * before returning. A backward finds only its own data there: what it needs of F's input F has
     * to put into its activation. */
    const void *in;
    void *out; /* F: for the stage behind, all of it must be written; NULL: it is the last, compute
                  the loss. B, I: gradient of F's input; NULL: it is the first */
    int64_t in_count, out_count;
    int32_t activation; /* slot, from F to B or W; -1: none. OFFLOAD is given the one that is free
                           when it returns, RELOAD the one that holds it from then on */
    int32_t weight;     /* slot, from I to W; -1: none */
    void *kept;         /* the activation's slot, options.activation_bytes; NULL when that is 0 */
    void *pending;      /* the weight's slot, options.weight_bytes; NULL when that is 0 */
} dpar_stage_task;

/* Your callback: does a task and returns DPAR_OK, or a condition, which counts as that. An error
 * ends the step on all ranks; put a sentence into *why, which is there and begins empty. It may use
 * other communicators and dpar_pipeline_progress. */
typedef dpar_status (*dpar_stage_callback)(void *ctx, const dpar_stage_task *task, dpar_why *why);
/* The forward and the backward of a joined pair, together. */
typedef dpar_status (*dpar_stage_pair_callback)(void *ctx, const dpar_stage_task *forward,
                                                const dpar_stage_task *backward, dpar_why *why);

/* Options of a pipeline. Zero it and fill in what your list needs. The same on all ranks, but for
 * pointers and bytes of slots. */
typedef struct dpar_pipeline_desc {
    const dpar_schedule *schedule; /* with its messages. Yours; it lives as long as the pipeline */
    int32_t type;                  /* of what goes from stage to stage */
    int32_t tag;                   /* of the messages on c */
    int64_t count;                 /* elements that a stage gives to the one behind */
    /* [stages]: of each stage; NULL: all `count`. Yours; it lives as long */
    const int64_t *count_of;
    int64_t activation_bytes; /* of a slot, the largest of the rank's stages; 0: callbacks have
                                 memory of their own and take the slots' numbers */
    int64_t weight_bytes;     /* the same, of what an I leaves to its W */
    /* 0: as few send slots as there can be. The list must pass DPAR_TRANSPORT_BLOCKING, as what
     * lowering made does. 1: a slot for each message; nothing waits for a send before the end of
     * the step. The list must pass DPAR_TRANSPORT_EDGE (DPAR_LOWER_LATE_RECV with DPAR_CHANNEL_EDGE
     * makes such), on a device's memory DPAR_TRANSPORT_RANK. */
    int32_t keep_sends;
    int32_t apart; /* 1: ranks do not wait for each other at the end of a step; a rank may then hear
                      of another's failure only in its next one */

    dpar_stage_callback forward, backward, input, weight; /* F, B, I, W */
    dpar_stage_pair_callback both; /* NULL: forward, then backward or input */
    /* REDUCE_GRAD: dpar_ddp_end, or what begins it (ready, of ddp or fsdp). WAIT_REDUCE_GRAD: what
     * ends it. */
    dpar_stage_callback reduce, wait_reduce;
    dpar_stage_callback unshard, reshard, recompute, offload, reload;
    void *ctx; /* of all callbacks */

    /* A weight that the first and the last stage share (embedding and output). At the end of the
     * step its gradient, in `tied`, is added up over the ranks that have them. Stages of one rank
     * add into the same `tied` themselves; other ranks' is not read. */
    void *tied;
    int64_t tied_count; /* 0: there is none; the same on all ranks */
    int32_t tied_type;

    /* NULL, or [actions of this rank]: when each began and ended in the last step, in ns since the
     * step began. A message lasts from its posting to the moment that the rank saw it done. Both or
     * none, the same on all ranks. They cost a barrier a step, which sets the clocks. */
    int64_t *start, *end;
} dpar_pipeline_desc;

/* A pipeline that is ready to run: a handle. */
typedef struct dpar_pipeline dpar_pipeline;

/* Bytes that init needs of your memory (aligned to 64), as long as the pipeline lives: about 300 a
 * message of this rank, 12 an action, and what dpar_schedule_check and dpar_schedule_slots take.
 * The slots themselves come from dpar_comm_alloc. Errors as init, of this rank alone. Local.
 * O(actions). */
DPAR_API dpar_status dpar_pipeline_bytes(const dpar_comm *c, const dpar_pipeline_desc *options,
                                         int64_t *bytes, dpar_why *why);
/* Proves the list, assigns slots and lays them out. COLLECTIVE: all ranks give the same schedule
 * and options. With tied_count it splits c. O(actions); small collectives compare.
 *
 * On all ranks, with a sentence: E_MISMATCH: schedule or options differ. E_ARG: no right schedule
 * for these ranks, one without its messages, a callback that the list needs is NULL, or a type or
 * number out of its domain. E_STUCK: ranks would wait for each other in a circle, which it names.
 * E_RANGE, E_ROOM, E_MEMORY. */
DPAR_API dpar_status dpar_pipeline_init(void *memory, int64_t bytes, dpar_comm *c,
                                        const dpar_pipeline_desc *options, dpar_pipeline **out,
                                        dpar_why *why);
/* One step: all micro-batches through the list. last: 1: gradients travel at its end. 0: more steps
 * follow that add to them; REDUCE_GRAD, WAIT_REDUCE_GRAD and the tied sum are left out. COLLECTIVE.
 * For each micro-batch a stage sends its count of elements forward and gets as many back, where the
 * stage behind it is another rank's. O(actions) besides the callbacks.
 *
 * On all ranks (options.apart: sooner or later): a callback's own error, "rank 1: 2B3: sentence",
 * or E_PEER, E_TIMEOUT, E_MISMATCH as comm.h. c is broken then. Communicators of the callbacks' own
 * are theirs to abort. E_ARG, on this rank: p is NULL, closed, or in a step. */
DPAR_API dpar_status dpar_pipeline_run(dpar_pipeline *p, int32_t last, dpar_why *why);
/* Call it from a callback that computes for long: it moves messages and sees which are done. Local.
 * O(messages under way). OK outside of a step. It returns the error of a message that failed; the
 * sentence is in the communicator's why. E_ARG, without a sentence, for NULL. */
DPAR_API dpar_status dpar_pipeline_progress(dpar_pipeline *p);
/* The slots of this rank; *local (may be NULL): buffers between its own stages. Local. O(1). */
DPAR_API dpar_slot_counts dpar_pipeline_slots(const dpar_pipeline *p, int32_t *local);
/* Brings the times of the last step of all ranks to rank 0: start and end of schedule->action[k],
 * as dpar_schedule_simulate fills them. Elsewhere NULL is fine. dpar_schedule_draw with unit 1000
 * then draws what really ran, as it draws what was simulated. COLLECTIVE. E_ARG without
 * options.start. O(actions). */
DPAR_API dpar_status dpar_pipeline_times(dpar_pipeline *p, int64_t *start, int64_t *end,
                                         dpar_why *why);
/* Closes a pipeline: gives the slots back and closes what it split. COLLECTIVE. NULL is fine.
 * Afterwards, while your memory is left alone, a run is E_ARG. With tied_count errors and cost as
 * dpar_comm_free. */
DPAR_API dpar_status dpar_pipeline_close(dpar_pipeline *p);

/* A pipeline with its schedule, in memory of its own. `order` names the rule ("1f1b", "zbv", ...:
 * dpar_schedule_find), for the ranks of c and so many micro-batches. The list is lowered with its
 * messages, with REDUCE_GRAD where options.reduce is given and UNSHARD and RESHARD where
 * options.unshard is. options.schedule is not read. COLLECTIVE. O(actions).
 *
 * Errors as dpar_schedule_find, dpar_schedule_generate and dpar_pipeline_init, on all ranks;
 * E_ROOM, too, where there is no memory. */
DPAR_API dpar_status dpar_pipeline_make(dpar_comm *c, const char *order, int32_t micros,
                                        const dpar_pipeline_desc *options, dpar_pipeline **out,
                                        dpar_why *why);
/* Ends what dpar_pipeline_make made, as dpar_pipeline_close. COLLECTIVE. NULL is fine. */
DPAR_API dpar_status dpar_pipeline_free(dpar_pipeline *p);

#endif
