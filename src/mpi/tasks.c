/* SPDX-License-Identifier: MIT-0 */
/* Manages the memory of operations in progress.
 *
 * Tasks are kept in a doubly linked list in the order of posting, and used again once they have
 * ended. A task has space for one request itself, and allocates an array for more. Scratch memory
 * is returned to the communicator, so that the next operation of the same size allocates nothing. A
 * task that failed cancels its receives; if MPI still uses a request of it, its memory is never
 * freed, nor is memory from dpar_comm_alloc (world->held). */
#include "tasks.h"

#include "error_text.h"

DPARI_INTERNAL void dpari_mpi_release_pieces(dpari_mpi_task *task)
{
    int32_t i;
    for (i = 0; i < task->requests; i++) {
        if (task->piece[i].big != MPI_DATATYPE_NULL) {
            MPI_Type_free(&task->piece[i].big);
        }
    }
    task->requests = 0;
}

DPARI_INTERNAL int32_t dpari_mpi_reserve(dpari_mpi_task *task, int32_t n)
{
    size_t one = sizeof(MPI_Request) + sizeof(MPI_Status) + sizeof(dpari_mpi_piece);
    char *memory;
    n *= 2;
    if (n <= task->room) {
        return 1;
    }
    memory = (char *)malloc((size_t)n * one + 64); /* the widest type is first, which keeps all
                                                      arrays aligned */
    if (memory == NULL) {
        return 0;
    }
    if (task->room > 1) {
        free(task->piece);
    }
    task->piece = (dpari_mpi_piece *)(void *)memory;
    task->state = (MPI_Status *)(void *)(memory + (size_t)n * sizeof(dpari_mpi_piece));
    task->request =
        (MPI_Request *)(void *)((((uintptr_t)(task->state + n)) + 15u) & ~(uintptr_t)15u);
    task->room = n;
    return 1;
}

DPARI_INTERNAL dpari_mpi_piece *dpari_mpi_slot(dpari_mpi_task *task, int32_t peer)
{
    dpari_mpi_piece *p = &task->piece[task->requests];
    task->request[task->requests] = MPI_REQUEST_NULL;
    task->requests++;
    p->type = MPI_DATATYPE_NULL;
    p->big = MPI_DATATYPE_NULL;
    p->expect = -1;
    p->before = p->whole = 0;
    p->peer = peer;
    return p;
}

DPARI_INTERNAL MPI_Request *dpari_mpi_last_request(dpari_mpi_task *task)
{
    return &task->request[task->requests - 1];
}

DPARI_INTERNAL void *dpari_mpi_scratch(dpari_mpi_task *task, int64_t bytes)
{
    dpari_mpi_ctx *context = task->ctx;
    if (task->memory != NULL && task->memory_bytes >= bytes) {
        return task->memory;
    }
    free(task->memory);
    task->memory = context->scratch;
    task->memory_bytes = context->scratch_bytes;
    context->scratch = NULL;
    context->scratch_bytes = 0;
    if (task->memory == NULL || task->memory_bytes < bytes) {
        free(task->memory);
        task->memory = malloc((size_t)bytes + 1);
        task->memory_bytes = task->memory != NULL ? bytes : 0;
    }
    return task->memory;
}

DPARI_INTERNAL const void *dpari_mpi_apart(dpari_mpi_task *task, const void *in, const void *out,
                                           int64_t bytes)
{
    void *copy;
    if (in != out) {
        return in;
    }
    copy = dpari_mpi_scratch(task, bytes);
    if (copy != NULL) {
        memcpy(copy, in, (size_t)bytes);
    }
    return copy;
}

/* Returns the temporary memory to the communicator, which keeps the largest block up to 64 MiB. */
static void dpari_mpi_return_scratch(dpari_mpi_task *task)
{
    dpari_mpi_ctx *context = task->ctx;
    if (task->memory_bytes > context->scratch_bytes && task->memory_bytes <= ((int64_t)64 << 20)) {
        free(context->scratch);
        context->scratch = task->memory;
        context->scratch_bytes = task->memory_bytes;
    } else {
        free(task->memory);
    }
    task->memory = NULL;
    task->memory_bytes = 0;
}

DPARI_INTERNAL dpari_mpi_task *dpari_mpi_take(dpari_mpi_world *world)
{
    dpari_mpi_task *task = world->spare;
    if (task != NULL) {
        world->spare = task->after;
        return task;
    }
    task = (dpari_mpi_task *)calloc(1, sizeof *task);
    if (task != NULL) {
        task->request = &task->request_1;
        task->state = &task->state_1;
        task->piece = &task->piece_1;
        task->room = 1;
    }
    return task;
}

DPARI_INTERNAL void dpari_mpi_give(dpari_mpi_task *task)
{
    dpari_mpi_world *world = task->ctx->world;
    dpari_mpi_return_scratch(task);
    free(task->counts);
    free(task->calls);
    free(task->pieces);
    free(task->wide);
    free(task->aside);
    task->wide = NULL;
    task->aside = NULL;
    task->half = 0;
    task->counts = NULL;
    task->pieces = NULL;
    task->calls = NULL;
    task->after = world->spare;
    world->spare = task;
}

DPARI_INTERNAL void dpari_mpi_link(dpari_mpi_task *task)
{
    dpari_mpi_world *world = task->ctx->world;
    task->before = world->last;
    task->after = NULL;
    if (world->last != NULL) {
        world->last->after = task;
    } else {
        world->tasks = task;
    }
    world->last = task;
}

static void dpari_mpi_unlink(dpari_mpi_task *task)
{
    dpari_mpi_world *world = task->ctx->world;
    if (task->before != NULL) {
        task->before->after = task->after;
    } else {
        world->tasks = task->after;
    }
    if (task->after != NULL) {
        task->after->before = task->before;
    } else {
        world->last = task->before;
    }
}

DPARI_INTERNAL void dpari_mpi_fed(dpari_mpi_task *task)
{
    if (task->feeding) {
        task->feeding = 0;
        task->ctx->unfed--;
    }
}

/* Cancels the receives of a task that failed, because nobody will send to them any more. Sends and
 * collectives cannot be cancelled. */
static void dpari_mpi_take_back(dpari_mpi_task *task)
{
    int32_t i, held = 0;
    for (i = 0; i < task->requests; i++) {
        int done = 0;
        if (task->piece[i].expect >= 0 && task->request[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&task->request[i]);
        }
        held += MPI_Test(&task->request[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done;
    }
    if (held == 0) {
        dpari_mpi_release_pieces(task);
    }
}

DPARI_INTERNAL void dpari_mpi_end(dpari_mpi_task *task, dpar_status status)
{
    int32_t held;
    dpari_mpi_unlink(task);
    dpari_mpi_fed(task);
    if (task->requests > 0) {
        dpari_mpi_take_back(task);
    }
    if (task->inside_on) { /* the abort ends the operation, so that the wait returns at once */
        dpar_comm_abort(task->ctx->level.inside, status, task->ctx->inward.text);
        (void)dpar_wait(&task->inside);
        task->inside_on = 0;
    }
    held = task->requests > 0;
    task->ctx->world->held |= held;
    task->status = status;
    task->finished = DPARI_MPI_FINISHED;
    if (task->number + DPARI_RECORDS > task->ctx->records) { /* its record was not overwritten */
        task->record->state = status;
    }
    if (task->work != NULL) {
        task->work->status = status;
        task->work->phase = DPARI_MPI_FINISHED;
        task->work->comm = NULL;
    }
    if (!held && task->work != NULL) {
        dpari_mpi_give(task);
    }
}

DPARI_INTERNAL dpari_record *dpari_mpi_record_at(dpari_mpi_ctx *context, int64_t number)
{
    return &context->ring[(uint64_t)(number - 1) % DPARI_RECORDS];
}

DPARI_INTERNAL void dpari_mpi_record_task(dpari_mpi_task *task)
{
    dpari_mpi_ctx *context = task->ctx;
    context->records++;
    task->number = context->records;
    task->record = dpari_mpi_record_at(context, task->number);
    *task->record = dpari_mpi_record_of(task);
    task->record->state = DPAR_MORE;
}

DPARI_INTERNAL void dpari_mpi_among(dpari_mpi_task *task, const int32_t *peer, int32_t ranks,
                                    int32_t me, const void *in, void *out, int64_t elements)
{
    task->peer = peer;
    task->ranks = ranks;
    task->me = me;
    task->in = in;
    task->out = out;
    task->elements = elements;
    task->at = task->len = 0;
    task->sharing = task->round = 0;
}

DPARI_INTERNAL int32_t dpari_mpi_has_result(const dpari_mpi_task *task)
{
    return task->call.kind != DPAR_CALL_REDUCE || task->ctx->comm.rank == task->call.root;
}

DPARI_INTERNAL void dpari_mpi_advance(dpari_mpi_task *task, int64_t count, int64_t most)
{
    task->at += task->len;
    task->len = count - task->at < most ? count - task->at : most;
    task->last = task->at + task->len >= count;
}
