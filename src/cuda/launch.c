/* SPDX-License-Identifier: MIT-0 */
/* Writes the messages of errors, selects the device around each call and restores the caller's, and
 * computes how many blocks a launch has. */
#include "launch.h"

DPARI_INTERNAL dpar_status dpari_cuda_say(dpar_status st, dpar_why *why, const char *what,
                                          const char *by)
{
    if (why != NULL) {
        (void)snprintf(why->text, sizeof why->text, "%s: %s", what, by);
    }
    return st;
}

DPARI_INTERNAL dpar_status dpari_cuda_heard(dpar_cuda *gpu, cudaError_t error, const char *what)
{
    char text[sizeof gpu->why.text];
    if (error == cudaSuccess) {
        return DPAR_OK;
    }
    (void)cudaGetLastError();
    (void)snprintf(text, sizeof text, "device %d: %s failed: CUDA says: %s", (int)gpu->device, what,
                   cudaGetErrorString(error));
    memcpy(gpu->why.text, text, sizeof text);
    return DPAR_E_SYSTEM;
}

DPARI_INTERNAL dpar_status dpari_cuda_wrong(dpar_cuda *gpu, const char *what)
{
    return dpari_cuda_say(DPAR_E_ARG, &gpu->why, what,
                          "dpar_mem does not allow one of the types, counts or pointers passed");
}

DPARI_INTERNAL dpar_status dpari_cuda_enter(dpar_cuda *gpu, int *before)
{
    cudaError_t error = cudaGetDevice(before);
    if (error == cudaSuccess && *before != gpu->device) {
        error = cudaSetDevice(gpu->device);
    }
    return dpari_cuda_heard(gpu, error, "cudaSetDevice");
}

DPARI_INTERNAL dpar_status dpari_cuda_leave(dpar_cuda *gpu, int before, dpar_status st)
{
    if (before != gpu->device) {
        (void)cudaSetDevice(before);
    }
    return st;
}

DPARI_INTERNAL int64_t dpari_cuda_wave(const dpar_cuda *gpu, int64_t work)
{
    int64_t most = (int64_t)gpu->multiprocessors * (gpu->threads / DPARI_CUDA_THREADS);
    most = gpu->max_blocks > 0 ? gpu->max_blocks : most;
    most = work < most ? work : most;
    return most < 1 ? 1 : most;
}

DPARI_INTERNAL int64_t dpari_cuda_each(const dpar_cuda *gpu, int64_t work)
{
    const int64_t most = gpu->max_blocks > 0 ? (int64_t)gpu->max_blocks : INT64_C(0x7fffffff);
    const int64_t blocks = work < most ? work : most;
    return blocks < 1 ? 1 : blocks;
}

DPARI_INTERNAL void dpari_cuda_magic(uint32_t d, uint32_t *magic, uint8_t *shift)
{
    uint32_t s = d > 1 ? 32 - (uint32_t)__builtin_clz(d - 1) : 0;
    s = s < 31 ? s : 31;
    *shift = (uint8_t)(31 + s);
    *magic = (uint32_t)((((uint64_t)1 << (31 + s)) + d - 1) / d);
}

DPARI_INTERNAL int64_t dpari_cuda_units_blocks(const dpar_cuda *gpu, int64_t units)
{
    return dpari_cuda_wave(gpu, (units + DPARI_CUDA_THREADS - 1) / DPARI_CUDA_THREADS);
}

DPARI_INTERNAL dpar_status dpari_cuda_told(const dpar_cuda *gpu, dpar_status st, dpar_why *why)
{
    if (st != DPAR_OK && why != NULL) {
        *why = gpu->why;
    }
    return st;
}
