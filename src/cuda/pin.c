/* SPDX-License-Identifier: MIT-0 */
/* Pins and unpins memory of the host: dpar_mem.pin and unpin. */
#include "pin.h"

#include "operations.h"

/* True if CUDA knows the memory already, because it is a device's, managed or registered. */
static int dpari_cuda_reached(const void *at)
{
    struct cudaPointerAttributes about;
    const cudaError_t error = cudaPointerGetAttributes(&about, at);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return about.type != cudaMemoryTypeUnregistered;
}

/* Returns the range of held pages that contains byte `at`, or the next range after it, or -1 if
 * there is none. */
static int32_t dpari_cuda_held(const dpar_cuda *gpu, uintptr_t at)
{
    int32_t i, next = -1;
    for (i = 0; i < gpu->held_n; i++) {
        if (gpu->held[i].hi > at && (next < 0 || gpu->held[i].lo < gpu->held[next].lo)) {
            next = i;
        }
    }
    return next;
}

/* Registers the pages [lo, hi), none of which this gpu holds. Leaves pages alone that others have
 * registered. */
static dpar_status dpari_cuda_hold(dpar_cuda *gpu, uintptr_t lo, uintptr_t hi)
{
    void *seen = NULL;
    cudaError_t error = cudaHostRegister((void *)lo, (size_t)(hi - lo),
                                         cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (error == cudaErrorHostMemoryAlreadyRegistered && dpari_cuda_reached((void *)lo) &&
        dpari_cuda_reached((void *)(hi - 1))) {
        (void)cudaGetLastError();
        return DPAR_OK;
    }
    if (error == cudaSuccess) {
        gpu->held[gpu->held_n].lo = lo;
        gpu->held[gpu->held_n++].hi = hi;
        error = cudaHostGetDevicePointer(&seen, (void *)lo, 0);
        if (error == cudaSuccess && (uintptr_t)seen != lo) {
            return dpari_cuda_say(DPAR_E_SYSTEM, &gpu->why, "pin",
                                  "the device has other addresses for host memory than the host");
        }
    }
    return dpari_cuda_heard(gpu, error, "cudaHostRegister");
}

DPARI_INTERNAL dpar_status dpari_cuda_release(dpar_cuda *gpu)
{
    dpar_status st = DPAR_OK;
    int32_t i, k;
    for (i = gpu->held_n - 1; i >= 0; i--) {
        for (k = 0; k < gpu->pins; k++) {
            if (gpu->pin[k].lo < gpu->held[i].hi && gpu->held[i].lo < gpu->pin[k].hi) {
                break;
            }
        }
        if (k == gpu->pins) {
            const cudaError_t error = cudaHostUnregister((void *)gpu->held[i].lo);
            const dpar_status s = dpari_cuda_heard(gpu, error, "cudaHostUnregister");
            if (st == DPAR_OK) {
                st = s;
            }
            gpu->held[i] = gpu->held[--gpu->held_n];
        }
    }
    return st;
}

/* Pins whole pages. If a page holds memory of several owners, it is unregistered when the last of
 * them unpins it. */
DPARI_INTERNAL dpar_status dpari_cuda_pin(void *ctx, void *memory, int64_t bytes)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)memory;
    uintptr_t at = first / page * page, lo = at, hi;
    int32_t k;
    int before = 0;
    dpar_status st;
    if (memory == NULL || bytes <= 0) {
        return bytes == 0 ? DPAR_OK : dpari_cuda_wrong(gpu, "pin");
    }
    hi = (first + (uintptr_t)bytes + page - 1) / page * page;
    st = dpari_cuda_enter(gpu, &before);
    if (st != DPAR_OK) {
        return st;
    }
    k = dpari_cuda_held(gpu, at);
    if ((k < 0 || gpu->held[k].lo >= hi) && dpari_cuda_reached(memory) &&
        dpari_cuda_reached((unsigned char *)memory + bytes - 1)) {
        return dpari_cuda_leave(gpu, before, DPAR_OK); /* the memory is the device's, managed, or
                                                          pinned by others */
    }
    for (; at < hi && st == DPAR_OK; k = dpari_cuda_held(gpu, at)) {
        const uintptr_t next = k < 0 || gpu->held[k].lo >= hi ? hi : gpu->held[k].lo;
        if (gpu->pins == DPARI_CUDA_PINS || gpu->held_n == DPARI_CUDA_PINS) {
            st = dpari_cuda_say(DPAR_E_MEMORY, &gpu->why, "pin",
                                "all 128 pins are in use: unpin some memory first");
        } else if (next > at) {
            st = dpari_cuda_hold(gpu, at, next);
            at = next;
        } else {
            at = gpu->held[k].hi;
        }
    }
    if (st == DPAR_OK) {
        gpu->pin[gpu->pins].memory = first;
        gpu->pin[gpu->pins].lo = lo;
        gpu->pin[gpu->pins++].hi = hi;
    } else {
        const dpar_why why = gpu->why;
        (void)dpari_cuda_release(gpu);
        gpu->why = why;
    }
    return dpari_cuda_leave(gpu, before, st);
}

DPARI_INTERNAL dpar_status dpari_cuda_unpin(void *ctx, void *memory)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    int32_t k = gpu->pins - 1;
    int before = 0;
    dpar_status st;
    while (k >= 0 && gpu->pin[k].memory != (uintptr_t)memory) {
        k--;
    }
    if (k < 0) { /* memory that needed no pin, see dpari_cuda_pin */
        return DPAR_OK;
    }
    gpu->pin[k] = gpu->pin[--gpu->pins];
    st = dpari_cuda_enter(gpu, &before);
    if (st == DPAR_OK) {
        st = dpari_cuda_release(gpu);
    }
    return dpari_cuda_leave(gpu, before, st);
}
