/* SPDX-License-Identifier: MIT-0 */
/* Memory that other devices of the node read directly.
 *
 * It is a window of NCCL's symmetric memory (2.27). The host can get its address at a peer
 * (2.29.2). Behind the user's bytes there are four sets of 32-bit flags, one flag for each rank in
 * each set, and as many words of value 1. Flag [set][r] of this rank is alternately set by rank r's
 * device and cleared by this one:
 *
 *     meet(set):  one -> flag [set][me] of each peer      copies of 4 bytes
 *                 until own flag [set][r] is 1, for each  the driver's waits: no kernel spins
 *                 own flag [set][r] = 0, for each
 *
 * This runs on the communicators' stream, after an event of the compute stream, as all operations
 * do, and dpar_wait lets the compute stream wait for an event after it. NCCL's own collectives by
 * copy engines synchronise in the same way (ce_coll.cc: copies of one word to peers, and waits of
 * cuStreamBatchMemOp).
 *
 * Order. What a kernel wrote is visible to all devices once it has ended. The event waits for that,
 * so it is visible before the flag is set. The peer's kernel that reads it begins after its wait
 * for the flag. Memory of a device is cached in the L2 of that device, where peers read it over
 * NVLink, so that they can have outdated copies in an L1 only, and these are empty when a kernel
 * begins.
 *
 * What is written when (an exchange writes its part, meets, and reads its peers' parts):
 *
 *     called, part k % 2:   the part of exchange k is written again in exchange k + 2, after the
 *                           meeting of k + 1. A peer joins that meeting when its stream has
 *                           finished exchange k, so that one meeting for each exchange is enough
 *     in a graph, part 2:   because a replay may follow itself directly, it also meets (set 3)
 *                           before it writes
 *
 * Therefore no flag is set twice before it is cleared. Sets 0 and 1: rank r sets its flag for
 * exchange k + 2 after the meeting of k + 1, before which this rank has cleared the flags of k,
 * because meetings are in stream order. Sets 2 and 3 alternate, and a rank sets a flag of one only
 * after the meeting of the other. Calls and graphs use different sets and parts, so that they can
 * be mixed in any order. tests/model/near.pml checks all orders.
 *
 * If a peer does not come, its deadline, or the loss of the rank, breaks the communicator, because
 * a meeting is an operation at the head of the stream like others. Then copies on another stream
 * set the flags of this rank, again and again, until everything that was enqueued has run. NCCL
 * keeps its mappings until the communicator is closed (dpari_nccl_stop). */
#include "lent_memory.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../comm/comm.h"
#include "../comm/os.h"
#include "calls.h"
#include "failure.h"
#include "lent_flags.h"
#include "memory.h"
#include "messages.h"
#include "nccl_register.h"
#include "operation.h"
#include "run.h"
#include "settle.h"
#include "state.h"

enum {
    DPARI_NCCL_GRAPH = 2,   /* set and part for graphs, */
    DPARI_NCCL_BEFORE = 3,  /* and the set for the meeting before they write */
    DPARI_NCCL_AT_ONCE = 64 /* the most flags in one call of the driver */
};

DPARI_INTERNAL void dpari_nccl_drain(dpari_nccl_ctx *context)
{
    dpari_nccl_world *world = context->world;
    const double until = dpari_os_now() + 10;
    while (context->lends && context->comm.status < 0 && dpari_os_now() < until &&
           (cudaStreamQuery(world->stream) == cudaErrorNotReady ||
            cudaStreamQuery(world->options.stream) == cudaErrorNotReady)) {
        dpari_nccl_lock(world);
        dpari_nccl_free_waits(world);
        dpari_nccl_unlock(world);
        dpari_nccl_nap();
    }
    (void)cudaGetLastError();
}

/* Gets the driver's cuStreamBatchMemOp through the runtime. */
static void dpari_nccl_find_ops(dpari_nccl_world *world)
{
#if CUDART_VERSION >= 12000
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *at = NULL;
    cudaError_t code;
#if CUDART_VERSION >= 12050
    code = cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &at, 12000, cudaEnableDefault,
                                            &found);
#else
    code = cudaGetDriverEntryPoint("cuStreamBatchMemOp", &at, cudaEnableDefault, &found);
#endif
    if (code == cudaSuccess && found == cudaDriverEntryPointSuccess) {
        memcpy(&world->ops, &at, sizeof at);
    }
    (void)cudaGetLastError();
#else
    (void)world;
#endif
}

/* True if this rank can lend memory, as far as that is known without trying. */
static int dpari_nccl_can_lend(dpari_nccl_world *world)
{
    const char *wanted = getenv("DPAR_NCCL_LEND");
    if (world->api.GetPeerDevicePointer == NULL || world->api.CommWindowRegister == NULL ||
        world->api.CommRevoke == NULL || !world->watched ||
        (wanted != NULL && strcmp(wanted, "0") == 0)) {
        return 0;
    }
    if (world->ops == NULL) {
        dpari_nccl_find_ops(world);
    }
    if (world->ops != NULL && world->freeing == NULL &&
        cudaStreamCreateWithFlags(&world->freeing, cudaStreamNonBlocking) != cudaSuccess) {
        (void)cudaGetLastError();
        world->freeing = NULL;
    }
    return world->ops != NULL && world->freeing != NULL;
}

/* Sets worst[0] to the most bytes that any rank needs, and worst[1] to the largest value of `says`
 * on any rank: 0 it can lend, 1 it cannot, 2 it failed. Collective. */
static dpar_status dpari_nccl_agree_to_lend(dpar_comm *comm, int64_t bytes, int64_t says,
                                            int64_t *worst)
{
    int64_t mine[2];
    mine[0] = bytes;
    mine[1] = says;
    return dpar_all_reduce(comm, mine, worst, 2, DPAR_I64, DPAR_MAX, NULL);
}

static dpari_nccl_memory *dpari_nccl_lent(const dpari_nccl_ctx *context, const void *memory)
{
    dpari_nccl_memory *m = context->world->memory;
    while (m != NULL && (m->memory != memory || m->ctx != context || m->window == NULL)) {
        m = m->next;
    }
    return m;
}

/* Prepares registered memory for lending: writes the words of value 1 (the flags are 0 already),
 * and gets the addresses of the other ranks' memory. */
static dpar_status dpari_nccl_lend_out(dpari_nccl_ctx *context, void *memory, int64_t flags)
{
    dpari_nccl_world *world = context->world;
    const int64_t bytes = dpari_nccl_flag_bytes(context);
    dpari_nccl_memory *m = dpari_nccl_lent(context, memory);
    uint32_t *ones = m != NULL ? (uint32_t *)malloc((size_t)bytes) : NULL;
    char **near = m != NULL ? (char **)calloc((size_t)context->comm.size, sizeof *near) : NULL;
    cudaError_t code = cudaSuccess;
    int64_t i;
    int32_t r;
    if (m == NULL) {
        return DPAR_OK; /* NCCL made no window, because there is no symmetric memory here */
    }
    if (near == NULL || ones == NULL) {
        free(ones);
        free((void *)near);
        return dpari_say(DPAR_E_MEMORY, &context->comm.why,
                         "no host memory to share device memory with %d ranks (%ld bytes)",
                         context->comm.size, bytes + context->comm.size * (int64_t)sizeof *near);
    }
    for (i = 0; i < bytes / 4; i++) {
        ones[i] = 1;
    }
    code = cudaMemcpyAsync((char *)memory + flags + bytes, ones, (size_t)bytes, cudaMemcpyDefault,
                           world->stream);
    free(ones); /* a copy from pageable memory has read its source when it returns */
    if (code != cudaSuccess) {
        free((void *)near);
        return dpari_nccl_cuda_broke(context, "writing the flags of shared device memory", code);
    }
    dpari_nccl_lock(world);
    context->lends = 1;
    m->flags = flags;
    m->near = near;
    for (r = 0; r < context->comm.size; r++) {
        void *at = NULL;
        if (r != context->comm.rank &&
            world->api.GetPeerDevicePointer(m->window, 0, (int)r, &at) == ncclSuccess) {
            near[r] = (char *)at;
        }
    }
    dpari_nccl_unlock(world);
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_nccl_lend(dpar_comm *comm, int64_t bytes, int32_t can,
                                           void **memory)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(comm);
    const int64_t more = 2 * dpari_nccl_flag_bytes(context);
    int64_t worst[2] = {0, 1}, whole;
    dpar_status status, all;
    if (comm->size == 1 || comm->status < 0) {
        return dpari_nccl_alloc(comm, bytes, memory);
    }
    can = can && bytes < INT64_MAX / 2 && dpari_nccl_can_lend(context->world);
    status = dpari_nccl_agree_to_lend(comm, bytes, !can, worst);
    if (status < 0 || worst[1] > 0) {
        return status < 0 ? status : dpari_nccl_alloc(comm, bytes, memory);
    }
    whole = ((worst[0] + 63) / 64 * 64 + more + 4095) / 4096 * 4096; /* the same on all ranks */
    status = dpari_nccl_alloc(comm, whole, memory);
    can = status >= 0 && dpari_nccl_windows(context, *memory, whole);
    all = dpari_nccl_agree_to_lend(comm, 0, status < 0 ? 2 : !can, worst);
    if (all >= 0 && worst[1] == 0) {
        status = dpar_nccl_register(comm, *memory, whole);
        if (status >= 0) {
            status = dpari_nccl_lend_out(context, *memory, whole - more);
        }
        all = dpari_nccl_agree_to_lend(comm, 0, status < 0 ? 2 : 0, worst);
    }
    if (status >= 0 && (all < 0 || worst[1] == 2)) {
        dpari_nccl_release(comm, *memory);
        return all < 0 ? all
                       : dpari_say(DPAR_E_MEMORY, &comm->why,
                                   "another rank could not share %ld bytes of device memory: see "
                                   "its own message",
                                   whole);
    }
    return status;
}

DPARI_INTERNAL void *dpari_nccl_at_peer(dpar_comm *comm, void *memory, int32_t rank)
{
    const dpari_nccl_memory *m = dpari_nccl_lent(dpari_nccl_ctx_of(comm), memory);
    return m != NULL && m->near != NULL && rank >= 0 && rank < comm->size ? m->near[rank] : NULL;
}

static void dpari_nccl_set_flags(dpari_nccl_run *run, const dpari_nccl_memory *memory,
                                 const int32_t *ranks, int32_t n, int32_t set)
{
    const dpari_nccl_ctx *context = run->c;
    const int64_t mine =
        memory->flags + 4 * ((int64_t)set * context->comm.size + context->comm.rank);
    const char *one = (const char *)memory->memory + memory->flags + dpari_nccl_flag_bytes(context);
    int32_t i;
    for (i = 0; i < n; i++) {
        dpari_nccl_copy(run, memory->near[ranks[i]] + mine, one, 4);
    }
}

static void dpari_nccl_await_flags(dpari_nccl_run *run, const dpari_nccl_memory *memory,
                                   const int32_t *ranks, int32_t n, int32_t set)
{
    dpari_nccl_stream_op ops[2 * DPARI_NCCL_AT_ONCE];
    const uint64_t own = (uint64_t)(uintptr_t)memory->memory + (uint64_t)memory->flags;
    int32_t i, k;
    for (i = 0; i < n && dpari_nccl_well(run); i += DPARI_NCCL_AT_ONCE) {
        const int32_t some = n - i < DPARI_NCCL_AT_ONCE ? n - i : (int32_t)DPARI_NCCL_AT_ONCE;
        memset(ops, 0, sizeof ops);
        for (k = 0; k < some; k++) {
            dpari_nccl_stream_op *wait = &ops[k], *clear = &ops[some + k];
            wait->operation = DPARI_NCCL_WAIT_32;
            wait->address =
                own + 4 * ((uint64_t)set * (uint64_t)run->c->comm.size + (uint64_t)ranks[i + k]);
            wait->value = 1;
            wait->flags = DPARI_NCCL_WAIT_EQ;
            clear->operation = DPARI_NCCL_WRITE_32;
            clear->address = wait->address;
        }
        if (run->c->world->ops(run->stream, (unsigned)(2 * some), ops, 0) != 0) {
            run->cuda = cudaErrorUnknown;
        }
    }
}

/* Enqueues one meeting as an operation. */
static dpar_status dpari_nccl_meet_in(dpari_nccl_ctx *context, const dpari_nccl_memory *memory,
                                      const int32_t *ranks, int32_t n, int32_t set, dpar_work *work)
{
    dpari_nccl_run x;
    dpari_nccl_slot *slot;
    dpar_call call;
    dpar_status status = DPAR_OK;
    memset(&call, 0, sizeof call);
    call.kind = DPAR_CALL_RECV;
    call.type = DPAR_U32;
    call.count = 1;
    call.root = ranks[0];
    slot = dpari_nccl_begin(context, &call, &status);
    if (slot == NULL) {
        return status;
    }
    slot->meets = n;
    dpari_nccl_run_init(&x, context, &slot->call);
    dpari_nccl_set_flags(&x, memory, ranks, n, set);
    dpari_nccl_await_flags(&x, memory, ranks, n, set);
    status = dpari_nccl_end(slot, 1, dpari_nccl_result(&x));
    if (status >= 0) {
        memset(work, 0, sizeof *work);
        work->self = work;
        work->comm = &context->comm;
        work->call = call;
        work->status = DPAR_MORE;
        work->phase = DPARI_NCCL_ENQUEUED;
        dpari_nccl_keep(work, slot);
    }
    return status;
}

DPARI_INTERNAL dpar_status dpari_nccl_meet_near(dpar_comm *comm, void *memory, const int32_t *ranks,
                                                int32_t n, dpar_work *work)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(comm);
    dpari_nccl_memory *m = dpari_nccl_lent(context, memory);
    dpar_work before;
    dpar_status status;
    if (m == NULL || m->near == NULL || n < 1) {
        return comm->status < 0 ? comm->status : (dpar_status)DPAR_E_ARG;
    }
    dpari_nccl_flush(context->world);
    if (work != NULL) {
        return dpari_nccl_meet_in(context, m, ranks, n, m->part, work);
    }
    if (!dpari_nccl_capturing(context->world)) {
        m->part = m->turns++ & 1;
        return (dpar_status)m->part;
    }
    m->part = DPARI_NCCL_GRAPH;
    status = dpari_nccl_meet_in(context, m, ranks, n, DPARI_NCCL_BEFORE, &before);
    if (status >= 0) {
        status = dpari_nccl_wait(&before);
    }
    return status < 0 ? status : (dpar_status)m->part;
}
