/* SPDX-License-Identifier: MIT-0 */
/* Implements the functions of dpar_engine that do not make or free communicators.
 *
 * A message is posted as a plain MPI request if possible (point_to_point.c), and every other call
 * becomes a task (progress.c). A blocking collective is a task without a work. Memory is that of
 * the node's communicator, so that the node's ranks can access it; without one it is the C
 * library's, with a header that links it into the world's list. */
#include "engine_calls.h"

#include "../comm/batch_now.h"
#include "error_text.h"
#include "notes.h"
#include "point_to_point.h"
#include "progress.h"
#include "tasks.h"

/* Fails with DPAR_E_ARG, and a message, for a tag that MPI does not allow. */
static dpar_status dpari_mpi_tag_fits(dpari_mpi_ctx *context, const dpar_call *call)
{
    if (!dpari_kind_sends(call->kind) || call->tag <= context->tag_most) {
        return DPAR_OK;
    }
    return dpari_wrong(&context->comm.why, "%s: the tag is %d, but this MPI allows at most %d",
                       dpar_call_name(call->kind), call->tag, context->tag_most);
}

/* Waits for a task without a work, and recycles it. */
static dpar_status dpari_mpi_settle(dpari_mpi_task *task)
{
    dpar_status status;
    if (task->finished != DPARI_MPI_FINISHED) {
        dpari_mpi_await(task, &task->finished);
    }
    status = task->status;
    if (task->requests == 0) {
        dpari_mpi_give(task);
    }
    return status;
}

static dpar_status dpari_mpi_run_collective(dpar_comm *comm, const dpar_call *call)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    dpari_mpi_task *task;
    int32_t block = context->options.blocking;
    int finalized = 0;
    if (call->kind == DPAR_CALL_BARRIER) { /* freeing a plan or grid begins with a barrier */
        MPI_Finalized(&finalized);
        if (finalized) {
            comm->status =
                dpari_wrong(&comm->why, "MPI is finalised already: free plans, grids and "
                                        "communicators before MPI_Finalize");
            return comm->status;
        }
    }
    if (block) {
        dpari_mpi_bring_along(context);
    }
    task = dpari_mpi_begin(context, call, NULL, block);
    return task != NULL ? dpari_mpi_settle(task) : (dpar_status)DPAR_E_MEMORY;
}

static dpar_status dpari_mpi_post_one(dpari_mpi_ctx *context, const dpar_call *call,
                                      dpar_work *work)
{
    return dpari_mpi_post_light(context, call, work) ||
                   dpari_mpi_begin(context, call, work, 0) != NULL
               ? (dpar_status)DPAR_OK
               : (dpar_status)DPAR_E_MEMORY;
}

DPARI_INTERNAL dpar_status dpari_mpi_post(dpar_comm *comm, const dpar_call *call, dpar_work *work)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    dpar_status status = dpari_mpi_tag_fits(context, call);
    if (status < 0) {
        return status;
    }
    status = dpari_mpi_post_one(context, call, work);
    return status >= 0 && work->status < 0 ? work->status : status;
}

DPARI_INTERNAL dpar_status dpari_mpi_test(dpar_work *work)
{
    dpari_mpi_task *task;
    if (work->phase == DPARI_MPI_LIGHT) {
        dpari_mpi_light_look(work, work->state[DPARI_MPI_LOOKS]++);
        if (work->phase == DPARI_MPI_LIGHT) {
            return DPAR_MORE;
        }
    }
    if (work->phase != DPARI_MPI_FINISHED) {
        memcpy(&task, work->state, sizeof task);
        dpari_mpi_pump(task->ctx->world);
        if (work->phase != DPARI_MPI_FINISHED) {
            dpari_mpi_look_round(task);
            return DPAR_MORE;
        }
    }
    return work->status;
}

DPARI_INTERNAL dpar_status dpari_mpi_wait(dpar_work *work)
{
    dpari_mpi_task *task;
    int64_t look;
    for (look = 0; work->phase == DPARI_MPI_LIGHT; look++) {
        dpari_mpi_light_look(work, look);
    }
    if (work->phase != DPARI_MPI_FINISHED) {
        memcpy(&task, work->state, sizeof task);
        dpari_mpi_await(task, &work->phase);
    }
    return work->status;
}

DPARI_INTERNAL dpar_status dpari_mpi_run(dpar_comm *comm, const dpar_call *call)
{
    dpar_work work;
    dpar_status status;
    if (!dpari_kind_sends(call->kind)) {
        return dpari_mpi_run_collective(comm, call);
    }
    status = dpari_mpi_post(comm, call, &work);
    return status < 0 ? status : dpari_mpi_wait(&work);
}

DPARI_INTERNAL dpar_status dpari_mpi_batch(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                           dpar_work *works)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    dpar_status status = DPAR_OK;
    int32_t i;
    if (works == NULL) {
        return dpari_batch_now(comm, calls, n);
    }
    for (i = 0; i < n && status >= 0; i++) {
        status = dpari_mpi_tag_fits(context, &calls[i]);
    }
    for (i = 0; i < n && status >= 0; i++) {
        status = dpari_mpi_post_one(context, &calls[i], &works[i]);
    }
    return status;
}

DPARI_INTERNAL dpar_status dpari_mpi_alloc(dpar_comm *comm, int64_t bytes, void **memory)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    dpari_mpi_memory *m;
    void *base;
    uintptr_t at;
    if (context->world->node != NULL) { /* memory that the node's ranks can access */
        dpar_status status = dpar_comm_alloc(context->world->node, bytes, memory);
        if (status < 0) {
            comm->why = context->world->node->why;
        }
        return status;
    }
    base = bytes > PTRDIFF_MAX - 8192 ? NULL : calloc(1, (size_t)bytes + 8192);
    if (base == NULL) {
        return dpari_say(DPAR_E_MEMORY, &comm->why, "dpar_comm_alloc: no memory for %ld bytes",
                         bytes);
    }
    at = ((uintptr_t)base + sizeof *m + 4095u) & ~(uintptr_t)4095u;
    m = (dpari_mpi_memory *)(void *)((char *)base + (at - (uintptr_t)base) - sizeof *m);
    m->base = base;
    m->before = NULL;
    m->after = context->world->memory;
    if (m->after != NULL) {
        m->after->before = m;
    }
    context->world->memory = m;
    *memory = m + 1;
    return DPAR_OK;
}

DPARI_INTERNAL void dpari_mpi_release(dpar_comm *comm, void *memory)
{
    dpari_mpi_world *world = dpari_mpi_ctx_of(comm)->world;
    dpari_mpi_memory *m = (dpari_mpi_memory *)memory;
    if (m == NULL) {
        return;
    }
    if (world->node != NULL) {
        dpar_comm_release(world->node, memory);
        return;
    }
    m--;
    if (m->before != NULL) {
        m->before->after = m->after;
    } else {
        world->memory = m->after;
    }
    if (m->after != NULL) {
        m->after->before = m->before;
    }
    if (!world->held) {
        free(m->base);
    }
}

DPARI_INTERNAL dpar_status dpari_mpi_progress(dpar_comm *comm, int32_t on)
{
    int level = MPI_THREAD_SINGLE;
    if (!on) { /* waits in a node's memory call this to advance MPI messages */
        dpari_mpi_pump(dpari_mpi_ctx_of(comm)->world);
        return DPAR_OK;
    }
    MPI_Query_thread(&level);
    if (level == MPI_THREAD_MULTIPLE) {
        return dpari_say(DPAR_E_SYSTEM, &comm->why,
                         "dpar_comm_progress: the MPI engine has no progress thread: call "
                         "dpar_test now and then, or enable MPI's own progress thread");
    }
    return dpari_say(DPAR_E_SYSTEM, &comm->why,
                     "dpar_comm_progress: no progress thread is possible: MPI was initialised "
                     "without MPI_THREAD_MULTIPLE");
}

DPARI_INTERNAL void dpari_mpi_abort(dpar_comm *comm, dpar_status status, const char *text)
{
    dpari_mpi_break(dpari_mpi_ctx_of(comm), status < 0 ? status : (dpar_status)DPAR_E_PEER,
                    text != NULL ? text : "aborted", 1);
}

DPARI_INTERNAL void dpari_mpi_report(dpar_comm *comm, dpar_text *out)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    int32_t r;
    dpari_mpi_listen(context);
    dpari_record_report(out, comm, context->ring, context->records);
    for (r = 0; context->heard != NULL && r < comm->size; r++) {
        const dpari_record *h = &context->heard[r].call;
        if (h->sequence != 0) {
            dpari_text_say(out, "rank %d reported that it waits in ", r);
            dpari_mpi_describe_note(out, h);
            dpari_text_char(out, '\n');
        }
    }
}

DPARI_INTERNAL void dpari_mpi_describe(dpar_comm *comm, dpar_text *out)
{
    const dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    if (comm->node == NULL) {
        dpar_text_put(out, ", all communication by MPI messages: ");
        dpar_text_put(out, context->world->flat.text);
        return;
    }
    dpari_text_say(out, " on %d node%s; the %d rank%s of this node by its shared memory",
                   context->level.nodes,
                   context->level.nodes == 1 ? "" : "s that exchange MPI messages",
                   comm->node->size, comm->node->size == 1 ? "" : "s");
}
