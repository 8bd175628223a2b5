/* SPDX-License-Identifier: MIT-0 */
/* Copies a description, and converts 32-bit ids and counts to 64 bits, so that planning has only
 * one form of each. The converted arrays exist only during planning. Called by points.c. */
#include "points_widen.h"

#include "../base/arith.h"

/* Checks the counts, so that arrays of these lengths can be read. */
static DPARI_COLD dpar_status dpari_pt_check_counts(const dpar_comm *comm,
                                                    const dpar_points_desc *desc, dpar_why *why)
{
    if (desc->own_count < 0 || desc->ghost_count < 0 || desc->mixed_count < 0) {
        return dpari_wrong(why, "own_count %ld or ghost_count %ld or mixed_count %ld is negative",
                           desc->own_count, desc->ghost_count, desc->mixed_count);
    }
    if (desc->own_count > INT32_MAX || desc->ghost_count > INT32_MAX - desc->own_count ||
        desc->mixed_count > INT32_MAX) {
        return dpari_say(DPAR_E_RANGE, why,
                         "own_count %ld and ghost_count %ld are more than %d together, or "
                         "mixed_count %ld is more",
                         desc->own_count, desc->ghost_count, (int32_t)INT32_MAX, desc->mixed_count);
    }
    if (desc->mixed_count > 0 && (desc->own_count + desc->ghost_count > 0 || !desc->lists)) {
        return dpari_wrong(why,
                           "mixed_count is %ld: lists must be set, own_count %ld and ghost_count "
                           "%ld must be 0",
                           desc->mixed_count, desc->own_count, desc->ghost_count);
    }
    if (desc->lists && (desc->lists->peer_count < 0 || desc->lists->peer_count > comm->size)) {
        return dpari_wrong(why, "peer_count is %d, but there are %d ranks", desc->lists->peer_count,
                           comm->size);
    }
    return DPAR_OK;
}

/* Replaces *array by the converted `narrow`, unless that is NULL. */
static DPARI_COLD void dpari_pt_widen_array(dpari_pt_wide *wide, const int64_t **array,
                                            const int32_t *narrow, int64_t n, const char *name,
                                            dpar_status *status, dpar_why *why)
{
    int64_t *to, i;
    if (!narrow || *status != DPAR_OK) {
        return;
    }
    if (*array) {
        *status = dpari_wrong(why, "%s and %s32 are both set, but only one of them is allowed",
                              name, name);
        return;
    }
    to = (int64_t *)dpari_po_take(&wide->pages, n, 8, status, why);
    for (i = 0; i < n && to; i++) {
        to[i] = narrow[i];
    }
    *array = to;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_widen(dpari_pt_wide *wide, const dpar_comm *comm,
                                                     const dpar_points_desc *desc, dpar_why *why)
{
    dpar_status status = dpari_pt_check_counts(comm, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    wide->desc = *desc;
    if (desc->lists) {
        const int32_t peers = desc->lists->peer_count;
        wide->lists = *desc->lists;
        wide->desc.lists = &wide->lists;
        dpari_pt_widen_array(wide, &wide->lists.send_count, desc->lists->send_count32, peers,
                             "send_count", &status, why);
        dpari_pt_widen_array(wide, &wide->lists.receive_count, desc->lists->receive_count32, peers,
                             "receive_count", &status, why);
    } else {
        dpari_pt_widen_array(wide, &wide->desc.own_id, desc->own_id32, desc->own_count, "own_id",
                             &status, why);
        dpari_pt_widen_array(wide, &wide->desc.ghost_id, desc->ghost_id32, desc->ghost_count,
                             "ghost_id", &status, why);
    }
    if (desc->mixed_count > 0) {
        wide->desc.ghost_count = desc->mixed_count;
    }
    return status;
}
