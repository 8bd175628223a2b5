/* SPDX-License-Identifier: MIT-0 */
/* proof_redistribute - proves the redistribution of an array. */
#ifndef DPARI_PROOF_PROOF_REDISTRIBUTE_H
#define DPARI_PROOF_PROOF_REDISTRIBUTE_H

#include "proof.h"

/* Proves that dpar_redistribute_first lists a correct redistribution, on all ranks.
 *
 * per_node:  as in dpar_redistribute_first.
 * desc:      memory and progress; `owner` and `next` must be NULL.
 *
 * Proves fact 1 of dpar_proof_transfers, and that each element of each rank's part of `to` is
 * received exactly once, from a rank that holds this element in `from`. From Partial sources it is
 * received once from each coordinate along the Partial axes, and exactly one of these transfers has
 * the op DPAR_COPY. Both sides of a transfer are computed with
 * dpar_layout_global.
 *
 * Fails as dpar_proof_transfers and dpar_redistribute_check do.
 */
DPAR_API dpar_status dpar_proof_redistribute(const dpar_layout *from, const dpar_layout *to,
                                             int32_t per_node, const dpar_proof_desc *desc,
                                             dpar_proof_report *report, dpar_why *why);

#endif
