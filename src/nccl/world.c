/* SPDX-License-Identifier: MIT-0 */
/* Makes and frees the state that all communicators of a job share: the options, the library,
 * streams, events, scratch and page-locked memory. Making it needs no other rank. Freeing it also
 * frees a state that was made only in part, after a failure. */
#include "world.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/text.h"
#include "../comm/comm.h"
#include "../comm/engine.h"
#include "../comm/os.h"
#include "collective.h"
#include "failure.h"
#include "library.h"
#include "memory.h"
#include "nccl_make.h"
#include "side_channel.h"
#include "side_messages.h"
#include "state.h"

DPARI_INTERNAL int32_t dpari_nccl_shares(void)
{
    const char *wanted = getenv("DPAR_TEST_SHARE_GPU");
    if (wanted == NULL) {
        return 0;
    }
    if (strcmp(wanted, "1") == 0) {
        return 1;
    }
    return strcmp(wanted, "hosts") == 0 ? 2 : 0;
}

/* Sets the environment variables that NCCL needs for ranks that share a device, before NCCL first
 * reads them. */
static void dpari_nccl_share_device(int32_t version, int32_t rank)
{
    const int32_t way = dpari_nccl_shares();
    char host[64];
    dpar_text t;
    if (way == 0) {
        return;
    }
    (void)setenv("NCCL_NVLS_ENABLE", "0", 0);
    (void)setenv("NCCL_MAX_CTAS", "1", 0);
    (void)setenv("NCCL_BUFFSIZE", "1048576", 0);
    if (version >= 23003 && way == 1) {
        (void)setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    } else { /* each process pretends to be on a separate host */
        dpar_text_init(&t, host, sizeof host);
        dpari_text_say(&t, "dpar-%d-%ld", rank, (int64_t)getpid());
        (void)setenv("NCCL_HOSTID", host, 0);
        (void)setenv("NCCL_SOCKET_IFNAME", "lo", 0);
        (void)setenv("NCCL_NET", "Socket", 0);
    }
}

static void dpari_nccl_ask_for_log(const char *log)
{
    if (log != NULL && log[0] != 0) {
        (void)setenv("NCCL_DEBUG", "INFO", 0);
        (void)setenv("NCCL_DEBUG_SUBSYS", "INIT,NET,P2P,SHM", 0);
        (void)setenv("NCCL_DEBUG_FILE", log, 0);
    }
}

static dpar_status dpari_nccl_choose(dpar_nccl_desc *o, const dpar_nccl_desc *given, int32_t size,
                                     dpar_why *why)
{
    memset(o, 0, sizeof *o);
    if (given != NULL) {
        *o = *given;
    }
    if (!(o->timeout_s < 0 || o->timeout_s > 0)) {
        o->timeout_s = 300;
    }
    if (o->work_count <= 0) {
        o->work_count = 256;
    } else if (o->work_count < 8) {
        o->work_count = 8;
    }
    o->scratch_bytes =
        o->scratch_bytes <= 0 ? (int64_t)32 << 20 : (o->scratch_bytes + 63) / 64 * 64;
    o->staging_bytes = o->staging_bytes <= 0 ? (int64_t)4 << 20 : (o->staging_bytes + 63) / 64 * 64;
    if (o->rank_order &&
        (o->reduce_mem == NULL || o->reduce_mem->reduce == NULL || o->comm_stream == NULL)) {
        return dpari_wrong(why,
                           "dpar_nccl_make: desc.rank_order needs desc.reduce_mem, with its reduce "
                           "function, and desc.comm_stream, on which that works");
    }
    if (o->scratch_bytes < (int64_t)size * 8 * DPARI_NCCL_LIMIT ||
        o->staging_bytes < (int64_t)size * 256) {
        return dpari_wrong(why,
                           "dpar_nccl_make: scratch_bytes is %ld and staging_bytes %ld: %d ranks "
                           "need at least %ld and %ld",
                           o->scratch_bytes, o->staging_bytes, size,
                           (int64_t)size * 8 * DPARI_NCCL_LIMIT, (int64_t)size * 256);
    }
    return DPAR_OK;
}

static dpar_status dpari_nccl_make_slots(dpari_nccl_world *world, dpar_why *why)
{
    const int32_t n = world->options.work_count;
    int32_t i;
    world->slots = (dpari_nccl_slot *)calloc((size_t)n, sizeof *world->slots);
    world->used = (dpari_nccl_used *)calloc((size_t)n + 1, sizeof *world->used);
    if (world->slots == NULL || world->used == NULL) {
        return dpari_say(
            DPAR_E_MEMORY, why,
            "dpar_nccl_make: no memory for the state of work_count = %d operations (%ld bytes)", n,
            (int64_t)n * (int64_t)(sizeof *world->slots + sizeof *world->used));
    }
    for (i = 0; i < n; i++) {
        dpari_nccl_slot *slot = &world->slots[i];
        cudaError_t code = cudaEventCreateWithFlags(&slot->ready, cudaEventDisableTiming);
        if (code == cudaSuccess) {
            code = cudaEventCreateWithFlags(&slot->done, cudaEventDisableTiming);
        }
        if (code != cudaSuccess) {
            return dpari_nccl_cuda_says(why, "making events", code);
        }
        slot->next = world->spare;
        world->spare = slot;
    }
    return DPAR_OK;
}

static dpar_status dpari_nccl_make_memory(dpari_nccl_world *world, dpar_why *why)
{
    const dpar_nccl_desc *o = &world->options;
    const unsigned flags = cudaHostAllocPortable | cudaHostAllocMapped;
    int low = 0, high = 0, device = 0;
    void *memory = NULL;
    cudaError_t code = cudaGetDevice(&device);
    world->device = (int32_t)device;
    world->stream = o->comm_stream;
    if (code == cudaSuccess && world->stream == NULL) {
        code = cudaDeviceGetStreamPriorityRange(&low, &high);
        if (code == cudaSuccess) {
            code = cudaStreamCreateWithPriority(&world->stream, cudaStreamNonBlocking, high);
        }
        world->own_stream = code == cudaSuccess;
    }
    if (code == cudaSuccess) {
        code = cudaMalloc(&memory, (size_t)o->scratch_bytes + 64); /* 64 more bytes: a word for
                                                                      barriers */
        world->scratch = code == cudaSuccess ? (char *)memory : NULL;
    }
    if (code == cudaSuccess) {
        code = cudaMemset(world->scratch + o->scratch_bytes, 0, 64);
    }
    if (code == cudaSuccess) {
        code = cudaHostAlloc(&memory, (size_t)o->staging_bytes, flags);
        world->staging = code == cudaSuccess ? (char *)memory : NULL;
    }
    if (code == cudaSuccess) {
        code = cudaHostAlloc(&memory, (size_t)o->staging_bytes, flags);
        world->letters = code == cudaSuccess ? (char *)memory : NULL;
    }
    if (code != cudaSuccess) {
        return dpari_nccl_cuda_says(why, "setting up a communicator", code);
    }
    memset(world->staging, 0, (size_t)o->staging_bytes);
    return DPAR_OK;
}

DPARI_INTERNAL void dpari_nccl_ctx_free(dpari_nccl_ctx *context)
{
    free(context->member);
    free(context->piece);
    free((void *)context->parts);
    free(context);
}

DPARI_INTERNAL void dpari_nccl_kept_free(dpar_comm *comm)
{
    if (comm != NULL) {
        dpari_nccl_ctx_free(dpari_nccl_ctx_of(comm));
    }
}

DPARI_INTERNAL void dpari_nccl_world_end(dpari_nccl_world *world)
{
    dpari_nccl_message m;
    dpar_comm *comm;
    int32_t i;
    if (world->watched) {
        DPARI_STORE(&world->ending, 1u);
        (void)!write(world->wake[1], "", 1);
        dpari_os_join(world->thread);
        dpari_nccl_side_turn(world); /* sends what has not been reported yet */
    }
    dpari_nccl_message_init(world, &m, DPARI_NCCL_BYE);
    dpari_nccl_tell(world, &m, -1);
    for (i = 0; i < world->side.links; i++) {
        if (world->side.link[i].fd >= 0) {
            (void)close(world->side.link[i].fd);
        }
    }
    if (world->side.listener >= 0) {
        (void)close(world->side.listener);
    }
    for (i = 0; i < world->side.knocks; i++) {
        (void)close(world->side.knock[i].fd);
    }
    for (i = 0; i < 2; i++) {
        if (world->wake[i] >= 0) {
            (void)close(world->wake[i]);
        }
    }
    dpari_nccl_lock(world);
    dpari_nccl_join_aborts(world, world->closed);
    dpari_nccl_unlock(world);
    while (world->closed != NULL) {
        dpari_nccl_ctx *context = world->closed;
        world->closed = context->next;
        dpari_nccl_ctx_free(context);
    }
    while ((comm = dpari_ended_take(&world->kept)) != NULL) {
        dpari_nccl_kept_free(comm);
    }
    while (world->memory != NULL) {
        dpari_nccl_memory *memory = world->memory;
        world->memory = memory->next;
        dpari_nccl_memory_end(world, memory);
        free(memory);
    }
    for (i = 0; world->slots != NULL && i < world->options.work_count; i++) {
        if (world->slots[i].ready != NULL) {
            (void)cudaEventDestroy(world->slots[i].ready);
        }
        if (world->slots[i].done != NULL) {
            (void)cudaEventDestroy(world->slots[i].done);
        }
    }
    (void)(world->scratch != NULL ? cudaFree(world->scratch) : cudaSuccess);
    (void)(world->staging != NULL ? cudaFreeHost(world->staging) : cudaSuccess);
    (void)(world->letters != NULL ? cudaFreeHost(world->letters) : cudaSuccess);
    (void)(world->own_stream ? cudaStreamDestroy(world->stream) : cudaSuccess);
    (void)(world->freeing != NULL ? cudaStreamDestroy(world->freeing) : cudaSuccess);
    (void)cudaGetLastError();
    (void)pthread_mutex_destroy(&world->lock);
    free(world->side.link);
    free(world->side.note);
    free(world->side.known);
    free(world->side.polls);
    free(world->side.knock);
    free(world->node);
    free(world->log);
    free(world->slots);
    free(world->used);
    free(world);
}

DPARI_INTERNAL dpar_status dpari_nccl_world_make(int32_t rank, int32_t size,
                                                 const dpar_nccl_desc *options,
                                                 const dpar_engine *engine, dpari_nccl_world **out,
                                                 dpar_why *why)
{
    dpari_nccl_world *world = (dpari_nccl_world *)calloc(1, sizeof *world);
    dpar_status status;
    *out = world;
    if (world == NULL) {
        return dpari_say(DPAR_E_MEMORY, why,
                         "dpar_nccl_make: no memory for the state of rank %d (%ld bytes)", rank,
                         (int64_t)sizeof *world);
    }
    world->rank = rank;
    world->size = size;
    world->engine = *engine;
    world->wake[0] = world->wake[1] = world->side.listener = -1;
    world->period = 0.05;
    (void)pthread_mutex_init(&world->lock, NULL);
    status = dpari_nccl_choose(&world->options, options, size, why);
    world->options.work_count = status < 0 ? 0 : world->options.work_count;
    if (status >= 0) {
        status = dpari_nccl_load(&world->api, why);
    }
    if (status < 0) {
        return status;
    }
    if (world->options.timeout_s > 0 && world->options.timeout_s < 0.8) {
        world->period = world->options.timeout_s / 16;
    }
    dpari_nccl_share_device(world->api.version, rank);
    world->log = world->options.log_file != NULL ? strdup(world->options.log_file) : NULL;
    world->options.log_file = world->log;
    dpari_nccl_ask_for_log(world->log);
    status = dpari_nccl_make_memory(world, why);
    return status >= 0 ? dpari_nccl_make_slots(world, why) : status;
}
