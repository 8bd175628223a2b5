/* SPDX-License-Identifier: MIT-0 */
/* Moves boxes: dpar_mem.move. */
#include "operations.h"

#include "box_frames.h"
#include "box_overlap.h"
#include "box_prepare.h"
#include "joint_moves.h"
#include "kept_moves.h"
#include "move_boxes.h"

/* Moves n <= DPARI_CUDA_WINDOW boxes, some of which may have to wait for earlier ones. The number
 * of launches is that of the boxes in the longest chain of such waits. */
static dpar_status dpari_cuda_move_chain(dpar_cuda *gpu, const dpar_mem_box *boxes, int32_t n,
                                         dpari_cuda_moves *b)
{
    int16_t level[DPARI_CUDA_WINDOW];
    int32_t i, k, now, most = 0;
    dpar_status st = DPAR_OK;
    for (i = 0; i < n; i++) {
        level[i] = 0;
        for (k = 0; k < i; k++) {
            if (level[k] >= level[i] && dpari_cuda_follows(&boxes[k], &boxes[i])) {
                level[i] = (int16_t)(level[k] + 1);
            }
        }
        most = level[i] > most ? level[i] : most;
    }
    for (now = 0; now <= most && st == DPAR_OK; now++) {
        for (i = 0; i < n && st == DPAR_OK; i++) {
            st = level[i] == now ? dpari_cuda_move_one(gpu, &boxes[i], b) : DPAR_OK;
        }
        if (st == DPAR_OK) {
            st = dpari_cuda_move_flush(gpu, b);
        }
    }
    return st;
}

/* Moves n <= DPARI_CUDA_WINDOW boxes, of which some combine values. */
static dpar_status dpari_cuda_move_sums(dpar_cuda *gpu, const dpar_mem_box *boxes, int32_t n,
                                        dpari_cuda_moves *b)
{
    dpari_cuda_scene z;
    dpari_cuda_cells cells;
    dpar_status st = DPAR_OK;
    int32_t i, fine = dpari_cuda_scene_of(boxes, n, &z);
    for (i = 0; fine && z.meets && i < z.frames; i++) {
        fine = dpari_cuda_cells_of(&z, &z.frame[i], &cells);
    }
    fine = fine && (!z.meets || dpari_cuda_joint_fits(gpu, &z));
    if (!fine) {
        return dpari_cuda_move_chain(gpu, boxes, n, b);
    }
    if (z.meets) {
        return dpari_cuda_move_joint(gpu, &z);
    }
    for (i = 0; i < n && st == DPAR_OK; i++) {
        st = dpari_cuda_move_one(gpu, &boxes[i], b);
    }
    return st == DPAR_OK ? dpari_cuda_move_flush(gpu, b) : st;
}

DPARI_INTERNAL dpar_status dpari_cuda_move(void *ctx, const dpar_mem_box *boxes, int32_t n)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    dpari_cuda_moves b;
    dpar_status st = DPAR_OK;
    int32_t i, copies = 1;
    const dpari_cuda_known *known = dpari_cuda_known_of(gpu, boxes, n);
    if (known != NULL) {
        return known->again(gpu, known);
    }
    b.slim.n = b.slim.room = b.wide.n = b.wide.room = 0;
    for (i = 0; i < n; i++) {
        if (!dpari_cuda_box_fine(&boxes[i])) {
            return dpari_cuda_wrong(gpu, "move");
        }
        copies = copies && boxes[i].op == DPAR_COPY;
    }
    dpari_cuda_keep(gpu, n);
    if (copies || n == 1) {
        for (i = 0; i < n && st == DPAR_OK; i++) {
            st = dpari_cuda_move_one(gpu, &boxes[i], &b);
        }
    } else {
        for (i = 0; i < n && st == DPAR_OK; i += DPARI_CUDA_WINDOW) {
            const int32_t some = n - i < DPARI_CUDA_WINDOW ? n - i : DPARI_CUDA_WINDOW;
            st = dpari_cuda_move_sums(gpu, boxes + i, some, &b);
        }
    }
    if (st == DPAR_OK) {
        st = dpari_cuda_move_flush(gpu, &b);
    }
    dpari_cuda_kept(gpu, boxes, n, st);
    return st;
}
