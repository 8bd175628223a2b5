/* SPDX-License-Identifier: MIT-0 */
/* proof_points - proves exchanges by index lists, as those of unstructured meshes. */
#ifndef DPARI_PROOF_PROOF_POINTS_H
#define DPARI_PROOF_PROOF_POINTS_H

#include "proof.h"

/* Proves an exchange by index lists, for desc->ranks ranks.
 *
 * desc:  ranks, index_of, and memory of at least one bit per ghost of the rank that has most;
 *        point_bytes and progress are optional.
 *
 * Proves that a rank receives from each peer as many values as that peer sends, and that only own
 * values are sent. Each ghost is received exactly once, and nothing else is written. If there are
 * ids, each ghost receives the value with its id.
 *
 * Fails as dpar_proof_transfers does. Costs O(values), and O(peers^2) per rank.
 */
DPAR_API dpar_status dpar_proof_points(const dpar_proof_desc *desc, dpar_proof_report *report,
                                       dpar_why *why);

#endif
