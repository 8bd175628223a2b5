/* SPDX-License-Identifier: MIT-0 */
/* proof_halo - proves the halo exchange of a whole grid. */
#ifndef DPARI_PROOF_PROOF_HALO_H
#define DPARI_PROOF_PROOF_HALO_H

#include "proof.h"

/* Proves that an exchange in the mode DPAR_HALO_FORWARD fills all halos of a grid, on all ranks.
 *
 * halo:  any grid that dpar_halo_check accepts: uneven cuts, folds, poles, cubed spheres, faces of
 *        cells, windows, masked blocks.
 * desc:  memory; `owner` if ranks own several blocks; `next` for lists of your own.
 *
 * Proves facts 1 and 2 of dpar_proof_transfers, and
 *
 * 3. The blocks are disjoint and cover the grid.
 * 4. Each halo point that is the image of a point with an owner is received exactly once, from that
 *    owner, from the right place in its array. No other point is written; in particular, no rank's
 *    own points, except those that a row on a fold holds twice.
 *
 * For fact 4 the source of a point is computed from the rules of halo.h (periodic dims, folds,
 * poles, edges of a cube), and its owner from the boxes of dpar_halo_owned. The walk that makes
 * the lists is not used.
 *
 * Fails as dpar_proof_transfers and dpar_halo_check do. A grid of 1440 x 720 x 100 cells on
 * 1,048,576 ranks with edges and corners takes about a minute on one core. Grids with masked
 * blocks cost O(points of their local arrays), and halo->owner costs O(blocks) per rank.
 */
DPAR_API dpar_status dpar_proof_halo(const dpar_halo *halo, const dpar_proof_desc *desc,
                                     dpar_proof_report *report, dpar_why *why);

#endif
