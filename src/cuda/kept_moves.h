/* SPDX-License-Identifier: MIT-0 */
/* kept_moves - private: keeps launches of moves. A halo exchange moves the same boxes each time.
 * The arguments of the launch, which the host computed from the boxes, are therefore kept for the
 * last few moves. */
#ifndef DPARI_CUDA_KEPT_MOVES_H
#define DPARI_CUDA_KEPT_MOVES_H

#include "launch.h"
#include "operations.h"

enum {
    DPARI_CUDA_WINDOW = 256, /* the most boxes that are analysed together */
    DPARI_CUDA_KNOWN = 8     /* number of moves that are kept */
};

struct dpari_cuda_known {
    int32_t n, launches;                  /* number of boxes, 0 if no move is kept; number of
                                             launches that they took */
    int32_t units, threads, blocks, most; /* limits of the dpar_cuda when the move was kept */
    dpar_status (*again)(dpar_cuda *, const dpari_cuda_known *);
    void (*kernel)(void);
    int64_t grid;
    dpar_mem_box box[DPARI_CUDA_WINDOW];
    alignas(16) unsigned char args[DPARI_CUDA_ARGUMENTS];
};

/* What dpar_cuda.known points to. */
struct dpari_cuda_memory {
#ifdef DPAR_TRAIN_H
    dpar_mem_layers layers; /* the table to which dpar_mem points */
#endif
    dpari_cuda_known *now; /* the move in progress if it is to be kept, otherwise NULL */
    int32_t next, room;
    dpari_cuda_known known[DPARI_CUDA_KNOWN];
};

template <typename Args>
static dpar_status dpari_cuda_again(dpar_cuda *gpu, const dpari_cuda_known *k)
{
    return dpari_cuda_launch(gpu, "move", (void (*)(const Args))k->kernel,
                             *(const Args *)(const void *)k->args, k->grid);
}

/* Launches a kernel of `move`, and keeps the launch if it is the move's only one. */
template <typename Args>
static dpar_status dpari_cuda_move_launch(dpar_cuda *gpu, void (*kernel)(const Args),
                                          const Args &args, int64_t blocks)
{
    const dpari_cuda_memory *memory = (const dpari_cuda_memory *)gpu->known;
    dpari_cuda_known *k = memory->now;
    if (k != NULL && k->launches++ == 0) {
        k->again = dpari_cuda_again<Args>;
        k->kernel = (void (*)(void))kernel;
        k->grid = blocks;
        memcpy(k->args, &args, sizeof args);
    }
    return dpari_cuda_launch(gpu, "move", kernel, args, blocks);
}

/* Returns the kept move of these boxes, or NULL if there is none. */
DPARI_INTERNAL const dpari_cuda_known *dpari_cuda_known_of(const dpar_cuda *gpu,
                                                           const dpar_mem_box *box, int32_t n);
/* Begins to record a move of n boxes. */
DPARI_INTERNAL void dpari_cuda_keep(dpar_cuda *gpu, int32_t n);
/* Ends recording a move, and keeps it if it succeeded with a single launch. */
DPARI_INTERNAL void dpari_cuda_kept(dpar_cuda *gpu, const dpar_mem_box *box, int32_t n,
                                    dpar_status st);

#endif
