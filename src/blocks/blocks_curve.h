/* SPDX-License-Identifier: MIT-0 */
/* blocks_curve - private: counts the blocks of a grid and puts them in an order. */
#ifndef DPARI_BLOCKS_BLOCKS_CURVE_H
#define DPARI_BLOCKS_BLOCKS_CURVE_H

#include "../base/arith.h"
#include "blocks_owner.h"

/* Checks the sizes of a grid and of its blocks. Computes the number of
 * blocks along each dim and in all. Fails with DPAR_E_ARG or DPAR_E_RANGE. */
DPARI_INTERNAL dpar_status dpari_blocks_parts(const dpar_blocks_assign_desc *desc, int32_t *parts,
                                              int32_t *blocks, dpar_why *why);

/* Lists the blocks of a grid in one of the orders DPAR_BLOCKS_HILBERT to DPAR_BLOCKS_SNAKE.
 *
 * parts:  [dims] number of blocks along each dim; the product is at most 2^31 - 1.
 * exists: [blocks], or NULL; blocks that do not exist are left out.
 * list:   [blocks], receives the numbers of the blocks, the last dim fastest.
 *
 * Returns the number of blocks that exist. Costs O(blocks). */
DPARI_INTERNAL int32_t dpari_blocks_curve(int32_t order, int32_t dims, const int32_t *parts,
                                          const unsigned char *exists, int32_t *list);

#endif
