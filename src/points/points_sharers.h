/* SPDX-License-Identifier: MIT-0 */
/* points_sharers - finds which ranks share an id, and lists the values that this rank sends and
 * receives, for plans of shared ids. Private.
 *
 * There are two rounds, each an all-to-all of counts and one of ids. First each rank sends every id
 * that it has, and how many values have it, to the id's home (points_owner.h). If several ranks
 * have an id, its home then sends all of them the list of these ranks and their numbers of values.
 * Both sides of a message sort its values by the same rule, so that no lists are exchanged. */
#ifndef DPARI_POINTS_POINTS_SHARERS_H
#define DPARI_POINTS_POINTS_SHARERS_H

#include "points_owner.h"

/* Finds the lists of both sides, and sets plan->shared. Collective. All ranks get the same status.
 */
DPARI_INTERNAL dpar_status dpari_pt_by_shared(dpari_points *plan, const dpar_points_desc *desc,
                                              dpari_pt_both *both, dpar_why *why);

#endif
