/* SPDX-License-Identifier: MIT-0 */
/* halo_walk - the boxes that one step of an exchange moves for one field: the transfer lists of
 * ../index/halo.h, made wider where a step takes halos along that steps before it have filled, and
 * split where sums need not wait. Private. */
#ifndef DPARI_HALO_HALO_WALK_H
#define DPARI_HALO_HALO_WALK_H

#include "../index/halo.h"
#include "../index/redistribute.h"
#include "halo_plan.h"

typedef struct dpari_hx_walk {
    dpar_halo_cursor walk;
    dpar_halo halo;
    int32_t rank, direction, moves;
    int32_t dim;        /* -1: all at once */
    int32_t cut, above; /* beside the halos of this dim: first those below; -1: none */
    int64_t own;        /* points between the two */
    int64_t low[DPAR_MAX_DIMS], before[DPAR_MAX_DIMS], after[DPAR_MAX_DIMS];
    int32_t splits;     /* 1 if boxes that a rank sends to itself are split. Then: */
    int32_t own_first;  /* 1 if this one precedes those of peers */
    int32_t side;       /* of the box that is being split; 0: none is */
    dpar_box clear;     /* where no peer has added anything so far */
    dpar_transfer rest; /* of that box */
} dpari_hx_walk;

/* What moves: halos, or shared points alone. */
DPARI_INTERNAL int32_t dpari_hx_moves(const dpar_halo_plan_desc *o);
/* The boxes that `rank` sends or receives (direction) in a step; DONE: the step has none. */
DPARI_INTERNAL dpar_status dpari_hx_begin_walk(dpari_hx_walk *w, const dpar_halo_field *f,
                                               int32_t rank, const dpari_hx_step *step,
                                               int32_t direction, int32_t moves, dpar_why *why);
/* 1: *t is the next box, in the order in which its sums come. */
DPARI_INTERNAL int dpari_hx_next(dpari_hx_walk *w, dpar_transfer *t);
/* Items that a box makes. */
DPARI_INTERNAL int32_t dpari_hx_parts(const dpar_halo_field *f, const dpar_transfer *t);

#endif
