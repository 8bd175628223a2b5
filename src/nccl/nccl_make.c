/* SPDX-License-Identifier: MIT-0 */
/* How the engine works.
 *
 * dpar_nccl_make creates a dpari_nccl_world, to which all communicators belong that are split from
 * the first one; each is a dpari_nccl_ctx. A call of dpar takes a dpari_nccl_slot: two events,
 * between which its work is enqueued on the world's stream. That stream waits for the first event,
 * which is recorded on the compute stream; dpar_wait makes the compute stream wait for the second
 * one. NCCL communicators are non-blocking, so that no call of NCCL can hang: dpari_nccl_settle
 * polls until NCCL has completed a call.
 *
 * A thread, the watchdog, checks the operation at the head of the stream and aborts NCCL when its
 * deadline has passed. It also runs the side channel: TCP connections between rank 0 and the other
 * ranks, over which ranks compare their calls and report errors. The world's lock protects
 * everything that both threads use; "Locked" in a comment means that the caller holds it. */
#include "nccl_make.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/engine.h"
#include "../comm/launch.h"
#include "../comm/options.h"
#include "calls.h"
#include "collective.h"
#include "communicator.h"
#include "failure.h"
#include "lent_memory.h"
#include "memory.h"
#include "messages.h"
#include "operation.h"
#include "rendezvous.h"
#include "report.h"
#include "side_channel.h"
#include "split.h"
#include "state.h"
#include "world.h"

static dpar_status dpari_nccl_close(dpar_comm *comm)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(comm);
    dpari_nccl_world *world = context->world;
    dpar_status status = DPAR_OK;
    int32_t lost = 0;
    dpari_nccl_flush(world);
    dpari_nccl_drain(context);
    while (context->pending != NULL) {
        dpar_work *work = context->pending;
        context->pending = work->next;
        dpari_nccl_finish(work, DPAR_E_ARG);
        lost++;
    }
    if (comm->status >= 0) { /* a barrier after all operations, so that all ranks leave together */
        dpar_call barrier;
        dpari_nccl_slot *slot = NULL;
        memset(&barrier, 0, sizeof barrier);
        barrier.kind = DPAR_CALL_BARRIER;
        barrier.root = DPARI_CLOSE;
        barrier.type = DPAR_U8;
        status = dpari_nccl_collective(context, &barrier, &slot);
        if (status >= 0) {
            status = dpari_nccl_await(slot);
            dpari_nccl_let_go(world, slot);
        }
    }
    dpari_nccl_lock(world);
    dpari_nccl_say_broken(world);
    dpari_nccl_unlock(world);
    lost += dpari_nccl_leave(context);
    dpari_nccl_retire(context);
    if (world->comms == NULL) {
        dpari_nccl_world_end(world);
    }
    return lost > 0 ? (dpar_status)DPAR_E_ARG : status;
}

/* Frees what a failed dpar_nccl_make has made. */
static void dpari_nccl_undo(dpari_nccl_world *world, dpari_nccl_ctx *context)
{
    if (context != NULL) {
        (void)dpari_nccl_leave(context);
        dpari_nccl_retire(context);
    }
    if (world != NULL) {
        dpari_nccl_world_end(world);
    }
}

/* Refuses dpar_comm_shrink: NCCL needs a list of the lost ranks. */
static dpar_status dpari_nccl_cannot_shrink(dpar_comm *comm, dpar_comm **out, int32_t *was,
                                            dpar_why *why)
{
    (void)comm;
    (void)out;
    (void)was;
    return dpari_say(DPAR_E_SYSTEM, why,
                     "shrink: NCCL needs a list of the ranks that are gone: call dpar_nccl_shrink");
}

static void dpari_nccl_table(dpar_engine *e)
{
    memset(e, 0, sizeof *e);
    memcpy(e->name, "nccl", 5);
    e->run = dpari_nccl_run_call;
    e->post = dpari_nccl_post;
    e->test = dpari_nccl_test;
    e->wait = dpari_nccl_wait;
    e->batch = dpari_nccl_batch;
    e->split = dpari_nccl_split;
    e->shrink = dpari_nccl_cannot_shrink;
    e->alloc = dpari_nccl_alloc;
    e->release = dpari_nccl_release;
    e->progress = dpari_nccl_progress;
    e->abort = dpari_nccl_abort;
    e->report = dpari_nccl_report;
    e->describe = dpari_nccl_describe;
    e->close = dpari_nccl_close;
    e->alloc_shared = dpari_nccl_lend;
    e->peer_address = dpari_nccl_at_peer;
    e->sync_peers = dpari_nccl_meet_near;
}

/* dpar_nccl_make with a host communicator. */
static dpar_status dpari_nccl_make_over(dpar_comm *host, const dpar_nccl_desc *options,
                                        dpar_comm **out, dpar_why *why)
{
    dpari_nccl_world *world = NULL;
    dpari_nccl_ctx *context = NULL;
    dpar_engine engine;
    dpar_why said;
    dpar_status status;
    memset(&said, 0, sizeof said);
    dpari_nccl_table(&engine);
    status = dpari_nccl_world_make(host->rank, host->size, options, &engine, &world, &said);
    status = dpari_agree(host, status, &said);
    if (status >= 0) {
        status = dpari_nccl_by_host(host, world, &context, &said);
    }
    if (status < 0) {
        dpari_nccl_undo(world, context);
        return dpari_repeat(status, why, said.text);
    }
    *out = &context->comm;
    return DPAR_OK;
}

/* Makes a communicator of ranks that are all on this node and find each other over shared
 * memory. */
static dpar_status dpari_nccl_by_node(const dpar_nccl_desc *options, dpar_comm **out, dpar_why *why)
{
    dpar_world_desc o;
    dpar_comm *host = NULL;
    dpar_status status;
    memset(&o, 0, sizeof o);
    o.timeout_s = options != NULL ? options->timeout_s : 0;
    status = dpar_init(&host, &o, why);
    if (status < 0) {
        return status;
    }
    status = dpari_nccl_make_over(host, options, out, why);
    (void)dpar_comm_free(host);
    return status;
}

/* dpar_nccl_make without a host communicator. */
static dpar_status dpari_nccl_make_by_rendezvous(const dpar_nccl_desc *options, dpar_comm **out,
                                                 dpar_why *why)
{
    dpari_nccl_world *world = NULL;
    dpari_nccl_ctx *context = NULL;
    dpar_engine engine;
    dpar_nccl_rendezvous m;
    dpar_status status = dpari_nccl_find_way(options != NULL ? options->rendezvous : NULL, &m, why);
    if (status < 0) {
        return status;
    }
    if (m.method == DPAR_NCCL_NODE) {
        return dpari_nccl_by_node(options, out, why);
    }
    dpari_nccl_table(&engine);
    status = dpari_nccl_world_make(m.rank, m.size, options, &engine, &world, why);
    if (status >= 0) {
        status = dpari_nccl_meet(world, &m, &context, why);
    } else if (world != NULL) {
        dpari_nccl_meet_failed(world, &m);
    }
    if (status < 0) {
        dpari_nccl_undo(world, context);
        return status;
    }
    *out = &context->comm;
    return DPAR_OK;
}

DPAR_API dpar_status dpar_nccl_make(dpar_comm *host, const dpar_nccl_desc *desc, dpar_comm **comm,
                                    dpar_why *why)
{
    if (comm == NULL) {
        return dpari_wrong(why, "dpar_nccl_make: comm, which receives the result, is NULL");
    }
    if (host == NULL) {
        return dpari_nccl_make_by_rendezvous(desc, comm, why);
    }
    return dpari_nccl_make_over(host, desc, comm, dpari_why_of(host, why));
}

DPAR_API cudaStream_t dpar_nccl_stream(const dpar_comm *comm)
{
    if (comm == NULL || strcmp(comm->engine.name, "nccl") != 0) {
        return NULL;
    }
    return dpari_nccl_ctx_of(comm)->world->stream;
}

DPAR_API dpar_status dpar_nccl_set_stream(dpar_comm *comm, cudaStream_t stream)
{
    dpari_nccl_world *world;
    dpar_status status = DPAR_OK;
    cudaEvent_t before;
    cudaError_t code;
    if (dpar_nccl_stream(comm) == NULL) {
        return DPAR_E_ARG;
    }
    world = dpari_nccl_ctx_of(comm)->world;
    if (dpari_nccl_capturing(world)) {
        return dpari_comm_wrong(comm, "dpar_nccl_set_stream: the compute stream is being captured");
    }
    dpari_nccl_lock(world);
    code = cudaEventCreateWithFlags(&before, cudaEventDisableTiming);
    if (code == cudaSuccess) {
        code = cudaEventRecord(before, world->options.stream);
        if (code == cudaSuccess) {
            code = cudaStreamWaitEvent(stream, before, 0);
        }
        (void)cudaEventDestroy(before);
    }
    if (code == cudaSuccess) {
        world->options.stream = stream;
    } else {
        status = dpari_nccl_cuda_failed(dpari_nccl_ctx_of(comm), "changing the stream", code);
    }
    dpari_nccl_unlock(world);
    return status;
}
