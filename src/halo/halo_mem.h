/* SPDX-License-Identifier: MIT-0 */
/* halo_mem - moves boxes of fields in memory that the CPU does not reach, in batches. Private. */
#ifndef DPARI_HALO_HALO_MEM_H
#define DPARI_HALO_HALO_MEM_H

#include "../host/mem.h"
#include "halo_plan.h"

/* Moves one box in a field's memory, which is the host's or another, and waits until the move is
 * done. */
DPARI_API dpar_status dpari_hx_move_box(const dpar_halo_field *field, const dpar_mem_box *box);
/* Describes the copy of an item from this rank's array to a dense box at `dense`, without changing
 * the type, or with `back` from there to the array. */
DPARI_API void dpari_hx_box_of(const dpar_halo_plan *plan, const dpari_hx_item *it,
                               unsigned char *dense, int back, dpar_mem_box *b);
/* With `on`, pins host memory, so that the devices of all fields can move boxes from and to it;
 * otherwise unpins it. Does nothing if all fields are in the host's memory, or in the
 * communicator's. */
DPARI_API dpar_status dpari_hx_pin(const dpar_halo_plan *plan, void *memory, int64_t bytes, int on);

/* ---- of this header's own modules ---- */

/* Describes the copy of an item, without addresses, for when this rank takes it with `op`, or for
 * when it gives it. */
DPARI_INTERNAL void dpari_hx_describe(const dpar_halo_plan *plan, const dpari_hx_item *item,
                                      int takes, int32_t op, dpar_mem_box *box);
/* Pins or unpins all memory of a plan. */
DPARI_INTERNAL dpar_status dpari_hx_pin_all(const dpar_halo_plan *plan, int on);
/* Starts to pack, or with `takes` to unpack, the items first .. first + n - 1, except for those in
 * memory that the CPU reaches. */
DPARI_INTERNAL void dpari_hx_move(dpar_halo_plan *plan, int64_t first, int64_t n, int takes);
/* Waits until all moves of dpari_hx_move are done. Returns the first failure among them. */
DPARI_INTERNAL dpar_status dpari_hx_settle(dpar_halo_plan *plan);

#endif
