/* SPDX-License-Identifier: MIT-0 */
/* Keeps messages without a task in a list of works, the newest first. A work holds its MPI request
 * and the number of its record. Whenever tasks advance, all of these messages are tested, because
 * MPI advances them only when it is called. A message that fails, or has another length than
 * expected, becomes a task, which writes the error. */
#include "point_to_point.h"

#include "mpi_types.h"
#include "error_text.h"
#include "notes.h"
#include "paths.h"
#include "task_messages.h"
#include "tasks.h"

static int32_t dpari_mpi_is_light(const dpari_mpi_ctx *context, const dpar_call *call)
{
    const int64_t bytes = dpari_mpi_bytes(call->type, call->count), most = context->world->at_once;
    return context->comm.status >= 0 && dpari_kind_sends(call->kind) && call->count > 0 &&
           call->count <= dpari_least(DPARI_MPI_LIMIT, INT_MAX) &&
           (bytes <= most || bytes > 2 * most) && !dpari_mpi_is_within(context, call);
}

static MPI_Request dpari_mpi_light_request(const dpar_work *work)
{
    MPI_Request request;
    memcpy(&request, work->state, sizeof request);
    return request;
}

static void dpari_mpi_light_link(dpari_mpi_world *world, dpar_work *work)
{
    work->behind = NULL;
    work->next = world->light;
    if (world->light != NULL) {
        world->light->behind = work;
    }
    world->light = work;
}

static void dpari_mpi_light_unlink(dpari_mpi_world *world, dpar_work *work)
{
    if (work->behind != NULL) {
        work->behind->next = work->next;
    } else {
        world->light = work->next;
    }
    if (work->next != NULL) {
        work->next->behind = work->behind;
    }
}

DPARI_INTERNAL int32_t dpari_mpi_post_light(dpari_mpi_ctx *context, const dpar_call *call,
                                            dpar_work *work)
{
    const MPI_Datatype type = dpari_mpi_by_bytes(dpar_type_bytes(call->type));
    const dpari_mpi_count n = (dpari_mpi_count)call->count;
    dpari_record *r;
    MPI_Request request;
    int code;
    if (!dpari_mpi_is_light(context, call)) {
        return 0;
    }
    code = call->kind == DPAR_CALL_SEND
               ? DPARI_MPI_C(MPI_Isend)(call->in, n, type, call->root, call->tag, context->main,
                                        &request)
               : DPARI_MPI_C(MPI_Irecv)(call->out, n, type, call->root, call->tag, context->main,
                                        &request);
    if (code != MPI_SUCCESS) { /* a task will get the same error, and report it */
        return 0;
    }
    context->records++;
    r = dpari_mpi_record_at(context, context->records);
    *r = dpari_record_of(call, 0);
    r->state = DPAR_MORE;
    work->comm = &context->comm;
    work->status = DPAR_MORE;
    work->phase = DPARI_MPI_LIGHT;
    work->call = *call;
    work->sequence = 0;
    work->record = context->records;
    memcpy(work->state, &request, sizeof request);
    work->state[DPARI_MPI_LOOKS] = 0;
    dpari_mpi_light_link(context->world, work);
    if (call->kind == DPAR_CALL_SEND) { /* a short message is often done at once */
        dpari_mpi_light_test(work);
    }
    return 1;
}

DPARI_INTERNAL dpari_mpi_task *dpari_mpi_grow(dpar_work *work)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(work->comm);
    const MPI_Request request = dpari_mpi_light_request(work);
    const dpar_call call = work->call;
    const int64_t record = work->record;
    dpari_mpi_task *task;
    dpari_mpi_piece *p;
    dpari_mpi_light_unlink(context->world, work);
    task = dpari_mpi_new(context, &call, work);
    if (task == NULL) {
        dpari_mpi_light_link(context->world, work);
        return NULL;
    }
    task->number = record;
    task->record = dpari_mpi_record_at(context, record);
    task->phase = DPARI_MPI_RUNNING;
    task->last = task->posted = 1;
    p = dpari_mpi_slot(task, call.root);
    if (call.kind == DPAR_CALL_RECV) {
        p->type = dpari_mpi_by_bytes(dpar_type_bytes(call.type));
        p->expect = p->whole = call.count;
    }
    *dpari_mpi_last_request(task) = request;
    return task;
}

/* Turns a message that failed, or that does not have the expected length, into a task, which
 * reports that. */
static void dpari_mpi_light_failed(dpar_work *work, int code, const MPI_Status *state)
{
    dpari_mpi_task *task = dpari_mpi_grow(work);
    if (task == NULL) { /* no memory: the error message does not name the operation */
        dpari_mpi_ctx *context = dpari_mpi_ctx_of(work->comm);
        dpari_mpi_light_unlink(context->world, work);
        work->status = dpari_mpi_failed(context, NULL, "a message",
                                        code != MPI_SUCCESS ? code : MPI_ERR_NO_MEM);
        work->phase = DPARI_MPI_FINISHED;
        work->comm = NULL;
        return;
    }
    task->request[0] = MPI_REQUEST_NULL;
    task->state[0] = *state;
    if (code != MPI_SUCCESS) {
        dpari_mpi_request_failed(task, 0, code);
    } else {
        dpari_mpi_measure(task, 0);
    }
    dpari_mpi_end(task, task->ctx->comm.status);
}

static void dpari_mpi_light_done(dpar_work *work)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(work->comm);
    dpari_mpi_light_unlink(context->world, work);
    if (work->record + DPARI_RECORDS > context->records) {
        dpari_mpi_record_at(context, work->record)->state = DPAR_OK;
    }
    work->status = DPAR_OK;
    work->phase = DPARI_MPI_FINISHED;
    work->comm = NULL;
}

DPARI_INTERNAL void dpari_mpi_light_lose(dpar_work *work)
{
    dpari_mpi_world *world = dpari_mpi_ctx_of(work->comm)->world;
    dpari_mpi_light_unlink(world, work);
    world->held = 1;
    work->comm = NULL;
    work->status = DPAR_E_ARG;
    work->phase = DPARI_MPI_FINISHED;
}

DPARI_INTERNAL void dpari_mpi_light_test(dpar_work *work)
{
    MPI_Request request = dpari_mpi_light_request(work);
    MPI_Status state;
    int done = 0, got = 0;
    const int code = MPI_Test(&request, &done, &state);
    if (code == MPI_SUCCESS && !done) {
        return;
    }
    if (code == MPI_SUCCESS && work->call.kind == DPAR_CALL_RECV) {
        MPI_Get_count(&state, dpari_mpi_by_bytes(dpar_type_bytes(work->call.type)), &got);
    }
    if (code != MPI_SUCCESS || (work->call.kind == DPAR_CALL_RECV && got != work->call.count)) {
        dpari_mpi_light_failed(work, code, &state);
    } else {
        dpari_mpi_light_done(work);
    }
}

DPARI_INTERNAL void dpari_mpi_light_look(dpar_work *work, int64_t look)
{
    const dpari_mpi_ctx *context = dpari_mpi_ctx_of(work->comm);
    if ((look < DPARI_MPI_POLLS && context->comm.status >= 0 && context->world->tasks == NULL) ||
        dpari_mpi_grow(work) == NULL) {
        dpari_mpi_light_test(work);
    }
}
