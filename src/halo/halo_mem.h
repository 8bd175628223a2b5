/* SPDX-License-Identifier: MIT-0 */
/* halo_mem - moves boxes of fields in memory that the CPU does not reach, in batches. Private. */
#ifndef DPARI_HALO_HALO_MEM_H
#define DPARI_HALO_HALO_MEM_H

#include "../comm/mem.h"
#include "halo_plan.h"

/* Moves one box in a field's memory, the host's or another, and waits until it is done. */
DPARI_API dpar_status dpari_hx_move_box(const dpar_halo_field *field, const dpar_mem_box *box);
/* Describes the copy of an item from this rank's array to a dense box in other memory, in the same
 * type, or with `back` from there to the array. */
DPARI_API void dpari_hx_box_of(const dpar_halo_plan *plan, const dpari_hx_item *it,
                               unsigned char *dense, int back, dpar_mem_box *b);
/* Pins host memory (on), so that the devices of all fields can move boxes from and to it, or unpins
 * it. Does nothing if all fields are in the host's memory, or in the communicator's. */
DPARI_API dpar_status dpari_hx_pin(const dpar_halo_plan *plan, void *memory, int64_t bytes, int on);

/* ---- of this header's own modules ---- */

/* Does the same for all memory of a plan. */
DPARI_INTERNAL dpar_status dpari_hx_pin_all(const dpar_halo_plan *plan, int on);
/* Starts to pack, or with `takes` to unpack, those of the items first .. first + n - 1 that are in
 * memory that the CPU does not reach. */
DPARI_INTERNAL void dpari_hx_move(dpar_halo_plan *plan, int64_t first, int64_t n, int takes);
/* Waits until all such moves are done. Returns the first failure among them. */
DPARI_INTERNAL dpar_status dpari_hx_settle(dpar_halo_plan *plan);

#endif
