/* SPDX-License-Identifier: MIT-0 */
/* Frees a communicator in an order that leaves no rank waiting.
 *
 * A barrier comes first, so that all ranks have begun to close. Then all notes that are still on
 * their way are received, works that nobody has waited for are ended, the node's communicator is
 * closed, and at last MPI's communicators are freed. If the communicator is broken, or MPI is
 * finalised, the steps that need other ranks are left out. Memory that MPI may still use is kept
 * for ever. The data of the world is freed with its last communicator. */
#include "closing.h"

#include "../comm/group.h"
#include "../comm/world.h"
#include "engine_calls.h"
#include "notes.h"
#include "point_to_point.h"
#include "tasks.h"

/* Ends works of the context that nobody has waited for. Keeps their memory, because MPI may still
 * use it. Returns their number. */
static int32_t dpari_mpi_lose_tasks(dpari_mpi_ctx *context)
{
    dpari_mpi_task *task, *after;
    int32_t lost = 0;
    dpar_work *work, *next;
    for (work = context->world->light; work != NULL; work = next) {
        next = work->next;
        if (work->comm == &context->comm && dpari_mpi_grow(work) == NULL) {
            dpari_mpi_light_lose(work);
            lost++;
        }
    }
    for (task = context->world->tasks; task != NULL; task = after) {
        after = task->after;
        if (task->ctx == context) {
            work = task->work;
            task->work = NULL;
            dpari_mpi_end(task, DPAR_E_ARG);
            if (work != NULL) {
                work->comm = NULL; /* it counts as finished */
                work->status = DPAR_E_ARG;
                work->phase = DPARI_MPI_FINISHED;
            }
            lost++;
        }
    }
    return lost;
}

DPARI_INTERNAL void dpari_mpi_close_part(dpar_comm *part)
{
    if (part != NULL) {
        part->timeout_s = part->timeout_s > 0 ? dpari_leastf(part->timeout_s, 5) : 5;
        (void)dpar_comm_free(part);
    }
}

DPARI_INTERNAL void dpari_mpi_leave_world(dpari_mpi_world *world, int alive)
{
    dpari_mpi_task *task, *next;
    dpari_mpi_memory *m, *after;
    dpar_comm *comm;
    world->communicators--;
    if (world->communicators > 0) {
        return;
    }
    if (world->held && world->node != NULL) {
        dpari_group_of(world->node)->world->owns = DPARI_OWNS_FILE;
    }
    dpari_mpi_close_part(world->node);
    for (task = world->spare; task != NULL; task = next) {
        next = task->after;
        if (task->room > 1) {
            free(task->piece);
        }
        free(task);
    }
    for (m = world->held ? NULL : world->memory; m != NULL; m = after) {
        after = m->after;
        free(m->base);
    }
    while ((comm = dpari_ended_take(&world->closed)) != NULL) {
        free(dpari_mpi_ctx_of(comm));
    }
    free(world->host_of);
    free(world->host);
    if (alive) {
        if (world->all != MPI_GROUP_NULL) {
            MPI_Group_free(&world->all);
        }
        MPI_Op_free(&world->max);
        MPI_Op_free(&world->min);
        MPI_Op_free(&world->sum);
    }
    free(world);
}

static void dpari_mpi_close_inside(dpari_mpi_ctx *context)
{
    dpari_mpi_close_part(context->level.inside);
    context->level.inside = NULL;
    free(context->level.node_of);
    context->level.node_of = NULL;
}

/* Runs the barrier with which closing begins. While it waits, all operations in progress advance,
 * also those of other communicators of the world, which would not advance while the node's memory
 * is closed. After it all ranks have begun to close, so that no rank needs works any more that
 * nobody has waited for. */
static dpar_status dpari_mpi_meet_at_end(dpar_comm *comm)
{
    dpar_call barrier;
    memset(&barrier, 0, sizeof barrier);
    barrier.kind = DPAR_CALL_BARRIER;
    barrier.root = DPARI_CLOSE;
    return dpari_mpi_run(comm, &barrier);
}

/* Closing the world's first communicator closes those that were split from it. If it is broken,
 * these are broken first, because other ranks may be waiting in them. */
static void dpari_mpi_close_split(dpari_mpi_ctx *context, int finalized)
{
    dpari_mpi_ctx *part;
    while (context->older == NULL && (part = context->world->open) != context) {
        if (!finalized && context->comm.status < 0) {
            (void)dpari_mpi_break(part, context->comm.status, context->comm.why.text, 1);
        }
        dpari_mpi_close_part(&part->comm);
    }
}

static void dpari_mpi_unlist(dpari_mpi_ctx *context)
{
    dpari_mpi_ctx **link = &context->world->open;
    while (*link != context) {
        link = &(*link)->older;
    }
    *link = context->older;
}

DPARI_INTERNAL dpar_status dpari_mpi_close(dpar_comm *comm)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    dpari_mpi_world *world = context->world;
    int finalized = 0, kept;
    int32_t lost;
    dpar_status met = DPAR_OK, read = DPAR_OK;
    MPI_Finalized(&finalized);
    if (!finalized && comm->status >= 0) {
        met = dpari_mpi_meet_at_end(comm);
        read = met >= 0 ? dpari_mpi_last_notes(context) : (dpar_status)DPAR_OK;
    }
    dpari_mpi_close_split(context, finalized);
    dpari_mpi_unlist(context);
    lost = dpari_mpi_lose_tasks(context);
    dpari_mpi_close_inside(context);
    if (comm->node != NULL && comm->status < 0) {
        dpar_comm_abort(comm->node, comm->status, context->inward.text);
    }
    if (comm->node != context->world->node) {
        dpari_mpi_close_part(comm->node);
    }
    if (!finalized && context->comm.status < 0) { /* if it is not broken, dpari_mpi_begin has read
                                                     the notes */
        dpari_mpi_listen(context);
    }
    kept = finalized || read < 0 || !dpari_mpi_letters_gone(context);
    if (!finalized && context->comm.status >= 0) { /* to free a broken one might never return */
        MPI_Comm_free(&context->main);
        MPI_Comm_free(&context->side);
    }
    if (!kept) { /* MPI no longer uses this memory */
        free(context->waiting);
        free(context->broken);
        free(context->heard);
        free(context->told);
        free(context->scratch);
        comm = dpari_ended_keep(&world->closed, comm);
        free(comm != NULL ? dpari_mpi_ctx_of(comm) : NULL);
    } else {
        dpari_on_end_all(comm);
    }
    dpari_mpi_leave_world(world, !finalized);
    if (lost > 0) {
        return DPAR_E_ARG;
    }
    return met < 0 ? met : read;
}
