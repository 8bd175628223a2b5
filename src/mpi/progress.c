/* SPDX-License-Identifier: MIT-0 */
/* Advances tasks step by step, in the order in which they were posted.
 *
 * A step posts requests; when all of them are done, its data is processed, and the next step is
 * posted. The two switches below select the functions of the task's path. A collective begins only
 * when all steps of the collectives before it on its communicator are posted (ctx->unfed), and it
 * is skipped in a pass in which an earlier one did not finish posting. After a few polls, a wait
 * also looks after notes and the deadline. */
#include "progress.h"

#include "all_to_all_v.h"
#include "check.h"
#include "exchange_v.h"
#include "levels.h"
#include "mpi_collectives.h"
#include "notes.h"
#include "paths.h"
#include "point_to_point.h"
#include "rank_order.h"
#include "task_messages.h"
#include "tasks.h"

static int dpari_mpi_post_step(dpari_mpi_task *task)
{
    if (dpari_mpi_is_empty(task)) {
        task->last = 1;
        return MPI_SUCCESS;
    }
    task->posted = 1;
    switch (task->path) {
    case DPARI_MPI_MOVE: return dpari_mpi_move(task);
    case DPARI_MPI_MESSAGE: return dpari_mpi_message(task);
    case DPARI_MPI_EXCHANGE: return dpari_mpi_exchange(task);
    case DPARI_MPI_PIECES: return dpari_mpi_pieces(task);
    case DPARI_MPI_STAGED: return dpari_mpi_staged(task);
    case DPARI_MPI_SCATTER: return dpari_mpi_scatter(task);
    case DPARI_MPI_SCATTER_STAGED: return dpari_mpi_scatter_staged(task);
    case DPARI_MPI_GATHERED: return dpari_mpi_gathered(task);
    case DPARI_MPI_DOUBLING: return dpari_mpi_doubling(task);
    case DPARI_MPI_WITHIN: return dpari_mpi_within(task);
    case DPARI_MPI_LEVELS:
    case DPARI_MPI_TRADES: return dpari_mpi_levels_step(task);
    case DPARI_MPI_DEALS: return dpari_mpi_deals_step(task);
    case DPARI_MPI_ORDERED: return dpari_mpi_ordered(task);
    default: return dpari_mpi_ordered_scatter(task);
    }
}

/* Processes the data that arrived, once all requests of a step are done. */
static void dpari_mpi_land(dpari_mpi_task *task)
{
    task->posted = 0;
    switch (task->path) {
    case DPARI_MPI_PIECES: dpari_mpi_pieces_land(task); break;
    case DPARI_MPI_STAGED: dpari_mpi_staged_land(task); break;
    case DPARI_MPI_SCATTER: dpari_mpi_scatter_land(task); break;
    case DPARI_MPI_SCATTER_STAGED: dpari_mpi_scatter_staged_land(task); break;
    case DPARI_MPI_GATHERED: dpari_mpi_gathered_land(task); break;
    case DPARI_MPI_DOUBLING: dpari_mpi_doubling_land(task); break;
    case DPARI_MPI_LEVELS:
    case DPARI_MPI_TRADES: dpari_mpi_levels_land(task); break;
    case DPARI_MPI_DEALS: dpari_mpi_deals_land(task); break;
    case DPARI_MPI_ORDERED: dpari_mpi_ordered_land(task); break;
    case DPARI_MPI_ORDERED_SCATTER: dpari_mpi_ordered_scatter_land(task); break;
    default: break;
    }
}

/* Posts the requests of the next step: first those of the check (check = 1, or a split), then those
 * of the operation. */
static int dpari_mpi_step(dpari_mpi_task *task)
{
    int code;
    if (dpari_mpi_check_step(task, &code)) {
        return code;
    }
    task->phase = DPARI_MPI_RUNNING;
    return dpari_mpi_post_step(task);
}

/* True if everything that was posted is done, in the node's memory and between nodes. */
static int32_t dpari_mpi_posted_done(dpari_mpi_task *task)
{
    return (!task->inside_on || dpari_mpi_inside_done(task)) &&
           (task->requests == 0 || dpari_mpi_requests_done(task));
}

/* Advances a task as far as is possible now, which may end it. Without `tests` it only posts, and
 * does not test requests that were posted. */
static void dpari_mpi_proceed(dpari_mpi_task *task, int32_t tests)
{
    dpari_mpi_ctx *context = task->ctx;
    for (;;) {
        int code;
        if (context->comm.status < 0 ||
            ((task->requests > 0 || task->inside_on) && !(tests && dpari_mpi_posted_done(task)))) {
            break;
        }
        dpari_mpi_release_pieces(task);
        if (task->posted) {
            dpari_mpi_land(task);
        }
        if (task->last || context->comm.status < 0) {
            break;
        }
        code = dpari_mpi_step(task);
        if (code != MPI_SUCCESS) {
            dpari_mpi_failed(context, task, NULL, code);
            break;
        }
        if (task->last) {
            dpari_mpi_fed(task);
        }
    }
    if (context->comm.status < 0) {
        dpari_mpi_end(task, context->comm.status);
    } else if (task->last && task->requests == 0 && !task->inside_on && !task->posted) {
        dpari_mpi_end(task, DPAR_OK);
    }
}

DPARI_INTERNAL void dpari_mpi_pump(dpari_mpi_world *world)
{
    dpari_mpi_task *task, *after;
    dpar_work *work, *next;
    for (work = world->light; work != NULL; work = next) {
        next = work->next;
        if (work->comm->status >= 0) {
            dpari_mpi_light_test(work);
        }
    }
    world->pass++;
    for (task = world->tasks; task != NULL; task = after) {
        dpari_mpi_ctx *context = task->ctx;
        int64_t unfed = context->unfed;
        int32_t feeding = task->feeding;
        after = task->after;
        if (feeding && context->pass == world->pass && context->comm.status >= 0) {
            continue;
        }
        dpari_mpi_proceed(task, 1);
        if (feeding && context->unfed == unfed) {
            context->pass = world->pass;
        }
    }
}

DPARI_INTERNAL void dpari_mpi_look_round(dpari_mpi_task *task)
{
    const double now = MPI_Wtime();
    if (dpari_mpi_trade_notes(task, now) && task->path == DPARI_MPI_DEALS &&
        task->ctx->comm.status >= 0) {
        dpari_mpi_deal_compare(task);
    }
    dpari_mpi_check_deadline(task, now);
}

DPARI_INTERNAL void dpari_mpi_await(dpari_mpi_task *task, const int32_t *finished)
{
    dpari_mpi_world *world = task->ctx->world;
    int32_t polls = 0;
    for (;;) {
        dpari_mpi_pump(world);
        if (*finished == DPARI_MPI_FINISHED) {
            return;
        }
        polls++;
        if (polls >= DPARI_MPI_POLLS) {
            polls = DPARI_MPI_POLLS;
            DPARI_MPI_YIELD();
            dpari_mpi_look_round(task);
        } else if (polls % 128 == 0) {
            dpari_mpi_look_round(task);
        }
    }
}

DPARI_INTERNAL void dpari_mpi_bring_along(dpari_mpi_ctx *context)
{
    dpari_mpi_task *task = context->world->tasks;
    while (task != NULL) {
        if (task->feeding) {
            dpari_mpi_pump(context->world);
            task = context->world->tasks;
            if (task != NULL && task->feeding) {
                dpari_mpi_look_round(task);
            }
        } else {
            task = task->after;
        }
    }
}

DPARI_INTERNAL dpari_mpi_task *dpari_mpi_begin(dpari_mpi_ctx *context, const dpar_call *call,
                                               dpar_work *work, int32_t block)
{
    dpari_mpi_task *task = dpari_mpi_new(context, call, work);
    const int32_t message = dpari_kind_sends(call->kind);
    if (task == NULL) {
        (void)dpari_say(DPAR_E_MEMORY, &context->comm.why,
                        "%s: no memory for the state of the operation (%ld bytes)",
                        dpar_call_name(call->kind), (int64_t)sizeof *task);
        return NULL;
    }
    if (!message) {
        task->sequence = context->sequence++;
        task->feeding = 1;
        task->block = block && task->path < DPARI_MPI_WITHIN;
        if (work != NULL) {
            work->sequence = task->sequence;
        }
    }
    dpari_mpi_record_task(task);
    context->unfed += task->feeding;
    /* Notes are read every 256 collectives, so that they do not accumulate. The last ones are read
     * here and not by dpari_mpi_close, because MPICH 4.0 over UCX may hang in MPI_Finalize if the
     * last call before it was a probe. */
    if (!message && (task->sequence % 256 == 255 || call->root == DPARI_CLOSE)) {
        dpari_mpi_listen(context);
    }
    if (message || context->unfed == 1) {
        /* Without tests: a test between a receive and the send that is posted next would slow down
         * long messages in both directions, by a factor of 1.3 to 1.8. */
        dpari_mpi_proceed(task, 0);
    }
    return task;
}
