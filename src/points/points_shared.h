/* SPDX-License-Identifier: MIT-0 */
/* points_shared - combines the values of shared ids, which have no owner. Private.
 *
 * Each rank combines its own values of an id in place of the first one, and sends the result to all
 * ranks that share the id. When it has those of all others, it combines them in ascending order of
 * ranks, so that all ranks get the same bits, and stores the result at all of its values. Ids that
 * only this rank has are combined while the peers pack theirs.
 *
 * The values for a peer are sorted by id on both sides, so that peers need not exchange lists. */
#ifndef DPARI_POINTS_POINTS_SHARED_H
#define DPARI_POINTS_POINTS_SHARED_H

#include "points_plan.h"

/* The phases of an exchange. */
enum {
    DPARI_PT_FOLD,  /* before packing: values of this rank, into the first one */
    DPARI_PT_LOCAL, /* values of ids that only this rank has */
    DPARI_PT_FINAL  /* the first value and those of the peers, whose addresses are in
                       plan->shared.source, into all values of this rank */
};
/* Runs a phase for all vectors. */
DPARI_INTERNAL void dpari_pt_combine_shared(const dpari_points *plan, int32_t phase);

#endif
