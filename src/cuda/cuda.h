/* SPDX-License-Identifier: MIT-0 */
/* cuda - uses a GPU: fills in the tables of functions for its memory. */
#ifndef DPARI_CUDA_CUDA_H
#define DPARI_CUDA_CUDA_H

#include "../base/arith.h"
#include "../host/mem.h"

/* A CUDA stream. This is cudaStream_t, declared without CUDA's headers. */
typedef struct CUstream_st *dpar_cuda_stream;

/* Describes how a device is used. 0 selects the default of each field. */
typedef struct dpar_cuda_desc {
    dpar_cuda_stream stream; /* all work is enqueued on it; NULL is the default stream */
    int32_t device;          /* 1 + number of the device; 0 selects the current device */
    int32_t fast_math;       /* 1 computes exponentials and optimizers in f32, see above; otherwise
                                0 */
    int32_t max_blocks; /* the most blocks of a launch; 0 selects as many as run at once. Results do
                           not depend on it */
    int32_t reserved;   /* 0 */
} dpar_cuda_desc;

enum { DPARI_CUDA_PINS = 128 };

/* A device and a stream. dpar_cuda_make fills it in. You may read its fields, but change only
 * `launches`. */
typedef struct dpar_cuda {
    dpar_cuda_stream stream;
    int32_t device;
    int32_t multiprocessors;
    int32_t threads;    /* the most threads that a multiprocessor runs at once */
    int32_t capability; /* compute capability times 10: 90 for 9.0 */
    int32_t fast_math, max_blocks;
    void *scratch; /* device memory for partial results, used by only one stream */
    int64_t scratch_bytes;
    int64_t launches;  /* number of kernel launches so far; you may set it to 0 */
    dpar_why why;      /* message of the last error */
    int32_t arguments; /* the most bytes of arguments that a launch may have */
    int32_t pins, held_n;
    struct {
        uintptr_t memory, lo, hi;
    } pin[DPARI_CUDA_PINS]; /* memory that is pinned */
    struct {
        uintptr_t lo, hi;
    } held[DPARI_CUDA_PINS]; /* pages that are registered for `pin` */
    void *known; /* private: the table of layers, and launches of earlier moves for reuse */
} dpar_cuda;

/* Makes a dpar_cuda in your struct: makes the device the current one of this thread, and allocates
 * half a MiB of its memory.
 *
 * desc: NULL selects the defaults. The stream stays yours, and has to exist until dpar_cuda_free.
 *
 * Local. Takes milliseconds; the first CUDA call of a process takes up to a second. Fails with
 * DPAR_E_ARG if gpu is NULL, device or max_blocks is negative, or fast_math is neither 0 nor 1.
 * Fails with DPAR_E_SYSTEM and CUDA's own message if there is no such device or no device memory,
 * with DPAR_E_UNKNOWN if the compute capability is below 7.0, and with DPAR_E_MEMORY if there is no
 * host memory. */
DPAR_API dpar_status dpar_cuda_make(dpar_cuda *gpu, const dpar_cuda_desc *desc, dpar_why *why);
/* Frees a dpar_cuda: waits for the stream, frees the memory, and unpins pages that are still
 * pinned. NULL, and one that is already freed, are allowed. Local. Fails with DPAR_E_SYSTEM if work
 * on the stream failed; the message is in gpu->why, and everything is freed all the same. */
DPAR_API dpar_status dpar_cuda_free(dpar_cuda *gpu);
/* Fills in a table of functions for the memory of a device. It includes the table of layers if the
 * implementation was compiled with dpar_train.h.
 *
 * gpu: becomes the table's ctx. It must not be moved while the table is used, and only one thread
 *      may use it at a time.
 *
 * Local. */
DPAR_API void dpar_cuda_mem(dpar_cuda *gpu, dpar_mem *mem);

#endif
