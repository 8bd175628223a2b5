/* SPDX-License-Identifier: MIT-0 */
/* Finds and keeps launches of moves. A kept move is found by comparing all boxes and the limits of
 * the device that the launch depends on. The last DPARI_CUDA_KNOWN moves of two or more boxes that
 * took a single launch are kept, and the oldest is overwritten. */
#include "kept_moves.h"

static int dpari_cuda_box_same(const dpar_mem_box *a, const dpar_mem_box *b)
{
    const size_t bytes = (size_t)a->dims * sizeof a->extent[0];
    return a->to == b->to && a->from == b->from && a->to_type == b->to_type &&
           a->from_type == b->from_type && a->round_type == b->round_type && a->op == b->op &&
           a->negate == b->negate && a->clear == b->clear && a->dims == b->dims &&
           memcmp(a->extent, b->extent, bytes) == 0 &&
           memcmp(a->to_stride, b->to_stride, bytes) == 0 &&
           memcmp(a->from_stride, b->from_stride, bytes) == 0;
}

DPARI_INTERNAL const dpari_cuda_known *dpari_cuda_known_of(const dpar_cuda *gpu,
                                                           const dpar_mem_box *box, int32_t n)
{
    const dpari_cuda_memory *memory = (const dpari_cuda_memory *)gpu->known;
    int32_t i, k;
    for (k = 0; n > 1 && k < DPARI_CUDA_KNOWN; k++) {
        const dpari_cuda_known *one = &memory->known[k];
        if (one->n != n || one->units != gpu->multiprocessors || one->threads != gpu->threads ||
            one->blocks != gpu->max_blocks || one->most != gpu->arguments) {
            continue;
        }
        for (i = 0; i < n && dpari_cuda_box_same(&one->box[i], &box[i]); i++) {
        }
        if (i == n) {
            return one;
        }
    }
    return NULL;
}

DPARI_INTERNAL void dpari_cuda_keep(dpar_cuda *gpu, int32_t n)
{
    dpari_cuda_memory *memory = (dpari_cuda_memory *)gpu->known;
    if (n > 1 && n <= DPARI_CUDA_WINDOW) {
        memory->now = &memory->known[memory->next];
        memory->next = (memory->next + 1) % DPARI_CUDA_KNOWN;
        memory->now->n = memory->now->launches = 0;
    }
}

DPARI_INTERNAL void dpari_cuda_kept(dpar_cuda *gpu, const dpar_mem_box *box, int32_t n,
                                    dpar_status st)
{
    dpari_cuda_memory *memory = (dpari_cuda_memory *)gpu->known;
    dpari_cuda_known *k = memory->now;
    if (k != NULL && k->launches == 1 && st == DPAR_OK) {
        k->n = n;
        k->units = gpu->multiprocessors;
        k->threads = gpu->threads;
        k->blocks = gpu->max_blocks;
        k->most = gpu->arguments;
        memcpy(k->box, box, (size_t)n * sizeof box[0]);
    }
    memory->now = NULL;
}
