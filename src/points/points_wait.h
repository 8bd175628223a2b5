/* SPDX-License-Identifier: MIT-0 */
/* points_wait - waits for peers that share memory, and reports peers that have died, are late, or
 * run another operation. Private. */
#ifndef DPARI_POINTS_POINTS_WAIT_H
#define DPARI_POINTS_POINTS_WAIT_H

#include "points_plan.h"

/* Returns the status of the plan's communicators: DPAR_OK unless one of them is broken. */
DPARI_INTERNAL dpar_status dpari_pt_broken(const dpari_points *plan);
/* Waits until *word, a word of peer i, is at least `value`. If wait is 0, returns DPAR_MORE instead
 * of waiting. With DPARI_PT_PEEK it does the same, but does not check whether the peer has failed.
 * Errors break the communicator. */
enum { DPARI_PT_PEEK = -1 };
DPARI_INTERNAL dpar_status dpari_pt_await(dpari_points *plan, int32_t i, const uint64_t *word,
                                          uint64_t value, int wait);
/* Reports that peer i runs an exchange of another kind than this rank. Breaks the communicator with
 * DPAR_E_MISMATCH and returns that status. kind: the kind of the peer's exchange. */
DPARI_INTERNAL dpar_status dpari_pt_differs(dpari_points *plan, int32_t i, uint64_t kind);
/* Reports that memory of a peer cannot be mapped: dpari_at returned NULL for `ref`. Breaks the
 * communicator and returns its status. */
DPARI_INTERNAL dpar_status dpari_pt_unreachable(dpari_points *plan, uint64_t ref);
/* Returns the time in seconds, or 0 if the plan has no timers. */
DPARI_INTERNAL double dpari_pt_clock(const dpari_points *plan);
/* Adds the time since `began` to a phase (DPARI_PT_PACKING, ...) if the plan has timers. */
DPARI_INTERNAL void dpari_pt_count(dpari_points *plan, int32_t phase, double began);

#endif
