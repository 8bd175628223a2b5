/* SPDX-License-Identifier: MIT-0 */
/* points_wait - waiting for peers that share memory: they are gone, late, or do something else.
 * Private. */
#ifndef DPARI_POINTS_POINTS_WAIT_H
#define DPARI_POINTS_POINTS_WAIT_H

#include "points_plan.h"

/* How the plan's communicators broke; OK. */
DPARI_INTERNAL dpar_status dpari_pt_broken(const dpari_points *plan);
/* Waits until *word of peer i is at least value. Unless wait is 1, returns DPAR_MORE if it is not
 * yet. Errors break the communicator; PEEK does not look for errors. */
enum { DPARI_PT_PEEK = -1 };
DPARI_INTERNAL dpar_status dpari_pt_await(dpari_points *plan, int32_t i, const uint64_t *word,
                                          uint64_t value, int wait);
/* The peer runs another exchange than this rank: E_MISMATCH. */
DPARI_INTERNAL dpar_status dpari_pt_differs(dpari_points *plan, int32_t i, uint64_t kind);
/* dpari_at gave NULL for this ref of a peer. */
DPARI_INTERNAL dpar_status dpari_pt_unreachable(dpari_points *plan, uint64_t ref);
/* Timers: 0 where there are none. */
DPARI_INTERNAL double dpari_pt_clock(const dpari_points *plan);
DPARI_INTERNAL void dpari_pt_count(dpari_points *plan, int32_t phase, double began);

#endif
