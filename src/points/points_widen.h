/* SPDX-License-Identifier: MIT-0 */
/* points_widen - copies the description of a plan in the form that planning uses: ids and counts
 * have 64 bits, and the places of a mixed array are described as ghosts. Private. */
#ifndef DPARI_POINTS_POINTS_WIDEN_H
#define DPARI_POINTS_POINTS_WIDEN_H

#include "points.h"
#include "points_order.h"

/* The copy of a description. Zero it before dpari_pt_widen. */
typedef struct dpari_pt_wide {
    dpar_points_desc desc; /* if mixed_count is set, own_count is 0 and ghost_count mixed_count */
    dpar_points_lists lists;
    dpari_po_pages pages; /* the converted ids and counts, which the caller frees */
} dpari_pt_wide;

/* Checks the counts of a description, and copies it. Local. */
DPARI_INTERNAL dpar_status dpari_pt_widen(dpari_pt_wide *wide, const dpar_comm *comm,
                                          const dpar_points_desc *desc, dpar_why *why);

#endif
