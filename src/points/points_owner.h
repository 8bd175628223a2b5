/* SPDX-License-Identifier: MIT-0 */
/* points_owner - who owns an id, and who reads it: the lists of both sides of an exchange. Private.
 *
 * Three rounds, each an all-to-all of counts and one of numbers:
 *
 *     register   every rank tells rank hash(id) mod size, the id's home, that it owns it
 *     ask        every rank asks the homes of its ghosts, which answer with the owner
 *     tell       every rank tells the owners which ids it reads, in the order of its ghosts
 *
 * Where owners are known otherwise (consecutive ids, a list, a rule) the third is all there is.
 * What a rank finds wrong in a round all hear at its end. */
#ifndef DPARI_POINTS_POINTS_OWNER_H
#define DPARI_POINTS_POINTS_OWNER_H

#include "points_plan.h"

/* What goes to each rank and comes from each, by rank. Own memory, until dpari_pt_both_free. */
typedef struct dpari_pt_both {
    int64_t *sends, *receives; /* [size] */
    int32_t *send_at;          /* own values, for rank 0, for rank 1, ... */
    int32_t *receive_at;       /* ghosts, from rank 0, ... */
    int64_t sent;              /* values in send_at */
    void *pages[2];
    int64_t bytes[2];
} dpari_pt_both;

/* Numbers of entries for n ids. */
DPARI_INTERNAL int64_t dpari_pt_table_room(int64_t n);
/* Where an own id lies; -1: it is none. */
DPARI_INTERNAL int64_t dpari_pt_own_index(const dpari_points *plan, int64_t id);
/* Where an id of this rank lies: own, or a ghost; -1: it has none such. */
DPARI_INTERNAL int64_t dpari_pt_index(const dpari_points *plan, int64_t id);

/* By ids: fills x's table and head.first, too. COLLECTIVE. */
DPARI_INTERNAL dpar_status dpari_pt_by_ids(dpari_points *plan, const dpar_points_desc *desc,
                                           dpari_pt_both *both, dpar_why *why);
/* By lists that were checked. COLLECTIVE. */
DPARI_INTERNAL dpar_status dpari_pt_by_lists(dpari_points *plan, const dpar_points_desc *desc,
                                             dpari_pt_both *both, dpar_why *why);
DPARI_INTERNAL void dpari_pt_both_free(dpari_pt_both *both);
/* Returns st; if it is an error, *why receives the message of c. */
DPARI_INTERNAL dpar_status dpari_pt_explain(const dpar_comm *comm, dpar_status status,
                                            dpar_why *why);

#endif
