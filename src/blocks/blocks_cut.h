/* SPDX-License-Identifier: MIT-0 */
/* blocks_cut - checks the description of blocks, cuts the grid and gives the blocks to ranks; and
 * the shapes of arrays. Private. */
#ifndef DPARI_BLOCKS_BLOCKS_CUT_H
#define DPARI_BLOCKS_BLOCKS_CUT_H

#include "blocks_object.h"
#include "blocks_owner.h"

/* Checks a description, and makes the object with its tables, but without owners. Local. */
DPARI_INTERNAL dpar_status dpari_blocks_cut(dpar_comm *comm, const dpar_blocks_desc *desc,
                                            dpari_blocks **made, dpar_why *why);
/* Describes the grid to blocks_owner.h, with the bytes that it needs but without memory, weights
 * and a mask. */
DPARI_INTERNAL void dpari_blocks_set_assign(const dpari_blocks *blocks,
                                            dpar_blocks_assign_desc *assign);
/* Decides who owns which block, and makes the list of this rank's blocks. Local. */
DPARI_INTERNAL dpar_status dpari_blocks_assign_owners(dpari_blocks *blocks,
                                                      const dpar_blocks_desc *desc, dpar_why *why);
/* Finds which slot each block has with its owner, and allocates the list of this rank's blocks. */
DPARI_INTERNAL dpar_status dpari_blocks_list_own(const dpari_blocks *blocks, const int32_t *owner,
                                                 int32_t *slot, dpar_block **own, int32_t *count,
                                                 dpar_why *why);
/* Computes first and count of a block. */
DPARI_INTERNAL void dpari_blocks_describe(const dpari_blocks *blocks, int32_t number,
                                          dpar_block *block);
/* Checks a field, and sets its shape. field: NULL for cells. Local. */
DPARI_INTERNAL dpar_status dpari_blocks_set_shape(const dpari_blocks *blocks, int32_t type,
                                                  const dpar_blocks_field *field, int32_t attached,
                                                  dpari_blocks_shape *shape, dpar_why *why);

#endif
