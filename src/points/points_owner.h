/* SPDX-License-Identifier: MIT-0 */
/* points_owner - finds who owns and who reads each id, which gives the lists of both sides of an
 * exchange. Private.
 *
 * There are three rounds, each an all-to-all of counts and one of ids:
 *
 *     register   each rank sends its own ids to their homes (rank hash(id) mod size is the home)
 *     ask        each rank sends the ids of its ghosts to their homes, which answer with the owners
 *     tell       each rank sends the owners the ids that it reads, in the order of its ghosts
 *
 * If owners are known otherwise (consecutive ids, desc.owner or desc.layout), only the third round
 * is needed. If a rank finds an error, all ranks get it at the end of the round. */
#ifndef DPARI_POINTS_POINTS_OWNER_H
#define DPARI_POINTS_POINTS_OWNER_H

#include "points_order.h"
#include "points_plan.h"

/* The lists of what this rank sends and receives, sorted by rank. They are in `pages`,
 * which the caller frees. */
typedef struct dpari_pt_both {
    int64_t *sends, *receives; /* [size] number of values to and from each rank */
    int32_t *send_at;          /* [sent] indices of own values for rank 0, for rank 1, ... */
    int32_t *receive_at;       /* local indices of ghosts from rank 0, from rank 1, ... */
    int64_t sent;              /* number of values sent */
    dpari_po_pages pages;
} dpari_pt_both;

/* Returns the number of entries of a table for n ids: a power of two, at least 1.5 n. */
DPARI_INTERNAL int64_t dpari_pt_table_room(int64_t n);
/* Returns the local index of an own id or a ghost, or -1 if this rank neither owns nor reads it. */
DPARI_INTERNAL int64_t dpari_pt_index(const dpari_points *plan, int64_t id);

/* Returns the rank that keeps the directory's entry of an id. */
DPARI_INTERNAL int32_t dpari_pt_home(int64_t id, int32_t ranks);

/* Finds the lists from ids. Also enters ids in the plan's table and sets head.first_id. Collective.
 */
DPARI_INTERNAL dpar_status dpari_pt_by_ids(dpari_points *plan, const dpar_points_desc *desc,
                                           dpari_pt_both *both, dpar_why *why);
/* Copies desc.lists, which must have been checked, and checks that each rank sends as many values
 * as its peer receives. Collective. */
DPARI_INTERNAL dpar_status dpari_pt_by_lists(dpari_points *plan, const dpar_points_desc *desc,
                                             dpari_pt_both *both, dpar_why *why);

#endif
