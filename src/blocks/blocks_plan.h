/* SPDX-License-Identifier: MIT-0 */
/* blocks_plan - makes and finds the plans of exchanges. Private. */
#ifndef DPARI_BLOCKS_BLOCKS_PLAN_H
#define DPARI_BLOCKS_BLOCKS_PLAN_H

#include "blocks_object.h"

/* Finds a plan that exchanges arrays of these shapes and is not in use, or makes one. Collective if
 * it is made. op: DPAR_COPY for a forward exchange, otherwise that of the adjoint. */
DPARI_INTERNAL dpar_status dpari_blocks_find_plan(dpari_blocks *blocks,
                                                  dpar_blocks_array *const *arrays, int32_t count,
                                                  int32_t op, dpari_blocks_plan **plan);
/* Frees all plans. Collective. Returns the first error. */
DPARI_INTERNAL dpar_status dpari_blocks_free_plans(dpari_blocks *blocks);

#endif
