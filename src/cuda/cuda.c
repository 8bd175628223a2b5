/* SPDX-License-Identifier: MIT-0 */
/* Opens and closes a dpar_cuda, and fills in the tables of functions, whose code is in the other
 * files of this folder. Opening queries the device, allocates scratch memory for reductions, and
 * host memory in which launches of moves are kept (kept_moves.c). */
#include "cuda.h"

#include "kept_moves.h"
#include "launch.h"
#include "operations.h"
#include "pin.h"

static dpar_status dpari_cuda_wait(void *ctx)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    int before = 0;
    dpar_status st = dpari_cuda_enter(gpu, &before); /* stream NULL is that of the current device */
    if (st == DPAR_OK) {
        st = dpari_cuda_heard(gpu, cudaStreamSynchronize(gpu->stream), "cudaStreamSynchronize");
    }
    return dpari_cuda_leave(gpu, before, st);
}

DPAR_API void dpar_cuda_mem(dpar_cuda *gpu, dpar_mem *mem)
{
    memset(mem, 0, sizeof *mem);
    mem->ctx = gpu;
    mem->move = dpari_cuda_move;
    mem->wait = dpari_cuda_wait;
    mem->pin = dpari_cuda_pin;
    mem->unpin = dpari_cuda_unpin;
    mem->span = dpari_cuda_spans;
    mem->reduce = dpari_cuda_reduce;
    mem->finite = dpari_cuda_finite;
#ifdef DPAR_TRAIN_H
    if (gpu->known != NULL) { /* the device is open */
        dpar_mem_layers *layers = &((dpari_cuda_memory *)gpu->known)->layers;
        layers->squares = dpari_cuda_squares;
        layers->clip = dpari_cuda_clip;
        layers->optimize = dpari_cuda_optimize;
        layers->round = dpari_cuda_round;
        layers->gather = dpari_cuda_gather;
        layers->scatter = dpari_cuda_scatter_add;
        layers->combine = dpari_cuda_combine;
        layers->dot = dpari_cuda_dot;
        layers->cross_entropy = dpari_cuda_entropy_op;
        layers->attention_merge = dpari_cuda_merge_op;
        layers->moments = dpari_cuda_moments;
        layers->norm = dpari_cuda_norm_of;
        layers->quantize = dpari_cuda_quantize;
        layers->dequantize = dpari_cuda_dequantize;
        mem->layers = layers;
    }
#endif
}

static cudaError_t dpari_cuda_ask(dpar_cuda *gpu)
{
    static const enum cudaDeviceAttr which[] = {
        cudaDevAttrMultiProcessorCount, cudaDevAttrMaxThreadsPerMultiProcessor,
        cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor};
    int value[4] = {0, 0, 0, 0}, driver = 0;
    cudaError_t error = cudaDriverGetVersion(&driver);
    for (int i = 0; i < 4 && error == cudaSuccess; i++) {
        error = cudaDeviceGetAttribute(&value[i], which[i], gpu->device);
    }
    gpu->arguments = driver >= 12010 ? (int32_t)DPARI_CUDA_ARGUMENTS : 4096;
    gpu->multiprocessors = value[0];
    gpu->threads = value[1];
    gpu->capability = 10 * value[2] + value[3];
    return error;
}

DPAR_API dpar_status dpar_cuda_make(dpar_cuda *gpu, const dpar_cuda_desc *desc, dpar_why *why)
{
    dpar_cuda made;
    int device = 0;
    cudaError_t error = cudaSuccess;
    if (gpu == NULL || (desc != NULL && (desc->device < 0 || desc->max_blocks < 0 ||
                                         (desc->fast_math != 0 && desc->fast_math != 1)))) {
        return dpari_cuda_say(DPAR_E_ARG, why, "dpar_cuda_make",
                              "gpu is NULL, device or max_blocks is negative, or fast_math is "
                              "neither 0 nor 1");
    }
    memset(&made, 0, sizeof made);
    if (desc != NULL && desc->device > 0) {
        made.device = device = desc->device - 1;
    } else {
        error = cudaGetDevice(&device);
        made.device = device;
    }
    if (error == cudaSuccess) {
        error = cudaSetDevice(device);
    }
    if (error == cudaSuccess) {
        error = dpari_cuda_ask(&made);
    }
    if (error != cudaSuccess) {
        (void)dpari_cuda_heard(&made, error, "dpar_cuda_make");
        return dpari_cuda_told(&made, DPAR_E_SYSTEM, why);
    }
    if (made.capability < 70) {
        char text[80];
        (void)snprintf(text, sizeof text, "the device has compute capability %d.%d, below 7.0",
                       (int)made.capability / 10, (int)made.capability % 10);
        return dpari_cuda_say(DPAR_E_UNKNOWN, why, "dpar_cuda_make", text);
    }
    if (desc != NULL) {
        made.stream = desc->stream;
        made.fast_math = desc->fast_math;
        made.max_blocks = desc->max_blocks;
    }
    made.scratch_bytes = DPARI_CUDA_SCRATCH;
    error = cudaMalloc(&made.scratch, DPARI_CUDA_SCRATCH);
    if (error != cudaSuccess) {
        (void)dpari_cuda_heard(&made, error, "cudaMalloc of scratch memory");
        return dpari_cuda_told(&made, DPAR_E_SYSTEM, why);
    }
    made.known = calloc(1, sizeof(dpari_cuda_memory));
    if (made.known == NULL) {
        char text[80];
        (void)snprintf(text, sizeof text, "no host memory to keep launches of moves (%lld bytes)",
                       (long long)sizeof(dpari_cuda_memory));
        (void)cudaFree(made.scratch);
        return dpari_cuda_say(DPAR_E_MEMORY, why, "dpar_cuda_make", text);
    }
    *gpu = made;
    return DPAR_OK;
}

DPAR_API dpar_status dpar_cuda_free(dpar_cuda *gpu)
{
    dpar_status st = DPAR_OK;
    if (gpu != NULL && gpu->scratch != NULL) {
        st = dpari_cuda_wait(gpu);
        gpu->pins = 0;
        (void)dpari_cuda_release(gpu);
        (void)cudaFree(gpu->scratch);
        free(gpu->known);
        gpu->known = NULL;
        gpu->scratch = NULL;
        gpu->scratch_bytes = 0;
    }
    return st;
}
