/* SPDX-License-Identifier: MIT-0 */
/* halo_mem - fields in memory that the CPU does not reach: their boxes, in batches. Private. */
#ifndef DPARI_HALO_HALO_MEM_H
#define DPARI_HALO_HALO_MEM_H

#include "../comm/mem.h"
#include "halo_plan.h"

/* One box of a field's memory, whichever it is, moved: done when this returns. */
DPARI_API dpar_status dpari_hx_move_box(const dpar_halo_field *f, const dpar_mem_box *box);
/* An item in this rank's array and, densely and as it is, in other memory: to there, or back. */
DPARI_API void dpari_hx_box_of(const dpar_halo_plan *x, const dpari_hx_item *it,
                               unsigned char *dense, int back, dpar_mem_box *b);
/* Memory of the host that will be moved from and to. */
DPARI_API dpar_status dpari_hx_pin(const dpar_halo_plan *x, void *memory, int64_t bytes, int on);

/* ---- of this header's own modules ---- */

/* dpari_hx_pin of all memory of a plan. */
DPARI_INTERNAL dpar_status dpari_hx_pin_all(const dpar_halo_plan *x, int on);
/* Starts to pack (takes: to unpack) those of items first .. first + n - 1 that lie in memory which
 * the CPU does not reach. */
DPARI_INTERNAL void dpari_hx_move(dpar_halo_plan *x, int64_t first, int64_t n, int takes);
/* Waits until all of that is done; what went wrong on the way. */
DPARI_INTERNAL dpar_status dpari_hx_settle(dpar_halo_plan *x);

#endif
