/* SPDX-License-Identifier: MIT-0 */
/* points_shared - combines the values of shared ids, which have no owner. Private.
 *
 * Each rank combines its own values of an id, stores the result in the first one, and sends it to
 * all ranks that share the id. (The others may get it as well, which has no effect.) When the rank
 * has received the results of all others, it combines them in ascending order of ranks, so that all
 * ranks get the same bits, and stores the total in all of its values. Ids that only this rank has
 * are combined while the peers pack their values.
 *
 * The values for a peer are sorted by id on both sides, so that peers need not exchange lists. */
#ifndef DPARI_POINTS_POINTS_SHARED_H
#define DPARI_POINTS_POINTS_SHARED_H

#include "points_plan.h"

/* The phases of an exchange. */
enum {
    DPARI_PT_FOLD,  /* before packing: combines values of this rank into the first one */
    DPARI_PT_LOCAL, /* combines the values of ids that only this rank has */
    DPARI_PT_FINAL  /* combines the first value with those of the peers, whose addresses are in
                       plan->shared.source, into all values of this rank */
};
/* Runs a phase for all vectors. */
DPARI_INTERNAL void dpari_pt_combine_shared(const dpari_points *plan, int32_t phase);

#endif
