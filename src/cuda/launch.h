/* SPDX-License-Identifier: MIT-0 */
/* launch - private: launches of kernels, their errors, and batches of pieces of work as arguments.
 */
#ifndef DPARI_CUDA_LAUNCH_H
#define DPARI_CUDA_LAUNCH_H

#include "numbers.h"

enum {
    DPARI_CUDA_THREADS = 256,
    DPARI_CUDA_TINY = 960,          /* the most bytes of pieces in the arguments of a launch: for
                                       the faces of a block, */
    DPARI_CUDA_SMALL = 3968,        /* with any driver, */
    DPARI_CUDA_LARGE = 31 * 1024,   /* and with drivers from 12.1 on */
    DPARI_CUDA_ARGUMENTS = 32764,   /* the most bytes of arguments with drivers from 12.1 on; 4096
                                       with others */
    DPARI_CUDA_PARTS = 1024,        /* the most partial results that a reduction has */
    DPARI_CUDA_SCRATCH = 512 * 1024 /* bytes of gpu->scratch */
};

/* These put a message into *why, or into gpu->why, and return the status. */
DPARI_INTERNAL dpar_status dpari_cuda_say(dpar_status st, dpar_why *why, const char *what,
                                          const char *by);
DPARI_INTERNAL dpar_status dpari_cuda_told(const dpar_cuda *gpu, dpar_status st, dpar_why *why);
DPARI_INTERNAL dpar_status dpari_cuda_heard(dpar_cuda *gpu, cudaError_t error, const char *what);
DPARI_INTERNAL dpar_status dpari_cuda_wrong(dpar_cuda *gpu, const char *what);

/* Makes gpu's device the current one of this thread. *before becomes the one that was current,
 * which dpari_cuda_leave restores. */
DPARI_INTERNAL dpar_status dpari_cuda_enter(dpar_cuda *gpu, int *before);
DPARI_INTERNAL dpar_status dpari_cuda_leave(dpar_cuda *gpu, int before, dpar_status st);

/* Returns the number of blocks for `work` pieces of work: at most as many as run at once. */
DPARI_INTERNAL int64_t dpari_cuda_wave(const dpar_cuda *gpu, int64_t work);
/* Returns the number of blocks if each of `work` pieces gets its own block, as far as a grid
 * allows. In this way copies, and other work that computes little, come closest to the memory's
 * bandwidth. */
DPARI_INTERNAL int64_t dpari_cuda_each(const dpar_cuda *gpu, int64_t work);
/* Returns the number of blocks for `units` units, if a thread has one at a time. */
DPARI_INTERNAL int64_t dpari_cuda_units_blocks(const dpar_cuda *gpu, int64_t units);

/* Return the number of this thread in the grid, and the number of threads of the grid. */
__device__ static inline int64_t dpari_cuda_thread(void)
{
    return (int64_t)blockIdx.x * DPARI_CUDA_THREADS + threadIdx.x;
}

__device__ static inline int64_t dpari_cuda_threads(void)
{
    return (int64_t)gridDim.x * DPARI_CUDA_THREADS;
}

/* Launches a kernel, with DPARI_CUDA_THREADS threads in each block. */
template <typename Args>
static dpar_status dpari_cuda_launch(dpar_cuda *gpu, const char *name, void (*kernel)(const Args),
                                     const Args &args, int64_t blocks)
{
    void *list[1];
    int before = 0;
    dpar_status st = dpari_cuda_enter(gpu, &before);
    cudaError_t error;
    if (st != DPAR_OK) {
        return st;
    }
    list[0] = const_cast<Args *>(&args);
    error = cudaLaunchKernel(kernel, dim3((unsigned)blocks), dim3(DPARI_CUDA_THREADS), list, 0,
                             gpu->stream);
    gpu->launches++;
    return dpari_cuda_leave(gpu, before, dpari_cuda_heard(gpu, error, name));
}

/* True if *s has the values that Form sets. A kernel that is compiled for a Form sets these fields
 * as well, so that they are constants and the branches on them disappear. All bytes of *s are
 * compared, so it must be cleared before its fields are set. */
template <typename Form, typename Args> static int dpari_cuda_is(const Args *s)
{
    Args t;
    memcpy(&t, s, sizeof t);
    Form::fix(&t);
    return memcmp(&t, s, sizeof t) == 0;
}

/* The arguments of a launch for pieces of work of different sizes, which are processed in chunks.
 * Piece k has the chunks first[k] to first[k + 1] - 1. */
template <typename Piece, int BYTES> struct dpari_cuda_batch {
    enum { ROOM = BYTES / (int)(sizeof(Piece) + 8) };
    int32_t n;
    int32_t room;
    int64_t first[ROOM + 1];
    Piece piece[ROOM];
};

/* Returns the most pieces of a launch. */
template <typename Small, typename Large> static int32_t dpari_cuda_most(const dpar_cuda *gpu)
{
    static_assert(sizeof(Small) <= 4096 && sizeof(Large) <= DPARI_CUDA_ARGUMENTS, "a launch");
    return gpu->arguments < DPARI_CUDA_ARGUMENTS ? (int32_t)Small::ROOM : (int32_t)Large::ROOM;
}

/* Returns the number of chunks of `each` units in n pieces. */
template <typename Piece>
static int64_t dpari_cuda_chunks(const Piece *piece, int32_t n, int64_t each, int64_t *first)
{
    int64_t chunks = 0;
    int32_t k;
    for (k = 0; k < n; k++) {
        if (first != NULL) {
            first[k] = chunks;
        }
        chunks += ((int64_t)piece[k].units + each - 1) / each;
    }
    return chunks;
}

/* Copies the pieces to a batch with less room, because each KB of arguments costs time on the host
 * and in the first warps. */
template <typename Small, typename Large>
static void dpari_cuda_shrink(Small *small, const Large *large)
{
    memset(small, 0, sizeof *small);
    small->n = large->n;
    memcpy(small->piece, large->piece, (size_t)large->n * sizeof large->piece[0]);
}

/* Returns the piece to which a chunk belongs. */
template <typename Batch>
__device__ static inline int32_t dpari_cuda_find(const Batch &b, int64_t c)
{
    int32_t lo = 0, hi = b.n;
    if constexpr ((int)Batch::ROOM <= 8) { /* loads all of `first` together instead of searching
                                              it */
        DPARI_CUDA_UNROLL
        for (int k = 1; k < (int)Batch::ROOM; k++) {
            lo += k < hi && b.first[k] <= c;
        }
    } else {
        while (hi - lo > 1) {
            const int32_t mid = (lo + hi) / 2;
            if (b.first[mid] <= c) {
                lo = mid;
            } else {
                hi = mid;
            }
        }
    }
    return lo;
}

/* Divides n < 2^31 by d >= 1 without a division: with s = ceil(log2 d) and the 32-bit number magic
 * = ceil(2^(31 + s) / d), the quotient is floor(n magic / 2^(31 + s)) (Granlund and Montgomery
 * 1994). */
DPARI_CUDA_FN uint32_t dpari_cuda_over(uint32_t n, uint32_t magic, uint32_t shift)
{
    return (uint32_t)((uint64_t)n * magic >> shift);
}

/* True if there is so little work that it is faster with fewer units per thread. */
template <typename Batch> static int dpari_cuda_little(const dpar_cuda *gpu, const Batch *b)
{
    return dpari_cuda_chunks(b->piece, b->n, 4 * DPARI_CUDA_THREADS, NULL) <
           (int64_t)gpu->multiprocessors * 2;
}

DPARI_INTERNAL void dpari_cuda_magic(uint32_t d, uint32_t *magic, uint8_t *shift);

#endif
