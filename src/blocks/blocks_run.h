/* SPDX-License-Identifier: MIT-0 */
/* blocks_run - packs and takes the boxes of an exchange of blocks, for ../exchange. Private. */
#ifndef DPARI_BLOCKS_BLOCKS_RUN_H
#define DPARI_BLOCKS_BLOCKS_RUN_H

#include "blocks_object.h"

/* Sets the functions that ../exchange calls. */
DPARI_INTERNAL void dpari_blocks_set_functions(dpari_blocks_plan *plan);
/* Sets the boxes of halos to 0 that peers have read in place in an adjoint, after it has ended. */
DPARI_INTERNAL void dpari_blocks_clear(const dpari_blocks_plan *plan);

#endif
