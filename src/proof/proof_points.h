/* SPDX-License-Identifier: MIT-0 */
/* proof_points - proves exchanges by index lists, as those of unstructured meshes. */
#ifndef DPARI_PROOF_PROOF_POINTS_H
#define DPARI_PROOF_PROOF_POINTS_H

#include "proof.h"

/* The lists of one rank, in the form of dpar_points_lists. */
typedef struct dpar_proof_index {
    int64_t own_count, ghost_count; /* number of own values, and of ghosts after them */
    int32_t peer_count;
    const int32_t *peer;          /* [peer_count] ranks, each once */
    const int64_t *send_count;    /* [peer_count] number of values sent to each peer */
    const int64_t *receive_count; /* [peer_count] number of values received from each peer */
    const int32_t *send_index;    /* local indices of own values, peer after peer */
    const int32_t *receive_index; /* local indices of ghosts; NULL means own_count, ... in order */
    /* [own_count + ghost_count], the global id of each local index, or NULL. If both ranks of a
     * message have ids, they are compared value by value. */
    const int64_t *id;
    int32_t unsent_ghosts; /* 1 allows ghosts that no rank sends */
} dpar_proof_index;

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
