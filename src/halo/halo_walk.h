/* SPDX-License-Identifier: MIT-0 */
/* halo_walk - lists the boxes that one step of an exchange moves for one field. These are the boxes
 * of the transfer lists of ../index/halo.h, extended by halos that earlier steps have filled, and
 * split if a part can be summed without waiting. Private. */
#ifndef DPARI_HALO_HALO_WALK_H
#define DPARI_HALO_HALO_WALK_H

#include "../index/halo.h"
#include "../index/redistribute.h"
#include "halo_plan.h"
#include "halo_share.h"

/* Which boxes a walk lists. */
typedef struct dpari_hx_subject {
    const dpar_halo_field *field;
    const dpari_hx_step *step;
    int32_t rank, direction, moves;
    /* Of a field with directions: the first component whose boxes are listed, and the number of
     * components that have these boxes in this step. Otherwise 0 and 1. */
    int32_t component, together;
} dpari_hx_subject;

/* A walk over the boxes of a step. Set up by dpari_hx_begin_walk. */
typedef struct dpari_hx_walk {
    dpari_hx_subject of;
    uint32_t reaches; /* bits of the dims in which the boxes depend on the halo */
    dpar_halo_cursor walk;
    dpar_halo halo;
    int32_t dim;   /* the dim of the step; -1 if all dims are exchanged at once */
    int32_t cut;   /* the cut dim, in a step next to its halos; otherwise -1 */
    int32_t above; /* in such a step: 0 next to the halos below, then 1 next to those above */
    int64_t own;   /* number of own points along the cut dim */
    /* for each other dim: the width of the halo below the own points, and the number of points by
     * which boxes are extended below and above */
    int64_t low[DPAR_MAX_DIMS], before[DPAR_MAX_DIMS], after[DPAR_MAX_DIMS];
    int32_t splits;     /* 1 if boxes that a rank sends to itself are split, for which the following
                           fields are used */
    int32_t own_first;  /* 1 if the current box may be added before the boxes of peers */
    int32_t side;       /* the side of `rest` to split next; 0 if no box is being split */
    dpar_box clear;     /* a part of the local box to which no peer's box has been added so far */
    dpar_transfer rest; /* the part of a box that has not been returned yet */
    dpari_hx_shared share; /* with DPARI_HX_COMBINE, the whole walk */
} dpari_hx_walk;

/* Returns DPAR_HALO_SYNC or DPARI_HX_COMBINE for a plan of shared points, DPAR_HALO_FORWARD for a
 * plan of halos. */
DPARI_INTERNAL int32_t dpari_hx_moves(const dpar_halo_plan_desc *desc);
/* Begins a walk over the boxes that `rank` sends or receives (direction) in a step. Returns
 * DPAR_DONE if there are none. */
DPARI_INTERNAL dpar_status dpari_hx_begin_walk(dpari_hx_walk *walk, const dpar_halo_field *field,
                                               int32_t rank, const dpari_hx_step *step,
                                               int32_t direction, int32_t moves, dpar_why *why);
/* Advances to the next box, in the order in which sums are made. Returns 1, or 0 if no box is left.
 */
DPARI_INTERNAL int dpari_hx_next(dpari_hx_walk *walk, dpar_transfer *t);
/* Returns the number of items into which a box is divided. */
DPARI_INTERNAL int32_t dpari_hx_parts(const dpar_halo_field *field, const dpar_transfer *t);

#endif
