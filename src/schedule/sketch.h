/* SPDX-License-Identifier: MIT-0 */
/* sketch - draws a schedule in one call, with F = I = W.
 *
 *     dpar_schedule_generate(&s, &desc, memory, sizeof memory, &why);
 *     dpar_schedule_sketch(&s, DPAR_SCHEDULE_DRAW_TEXT, work, sizeof work, &text, &why);
 *
 * To draw with times of your own, call dpar_schedule_simulate and dpar_schedule_draw.
 */
#ifndef DPARI_SCHEDULE_SKETCH_H
#define DPARI_SCHEDULE_SKETCH_H

#include "schedule.h"
#include "schedule_show.h"

/* Draws a schedule with F = I = W = 1, B = 2 and messages that take no time, and appends the
 * picture to a text.
 *
 * format:  DPAR_SCHEDULE_DRAW_TEXT (lines of at most 100 characters), DPAR_SCHEDULE_DRAW_SVG or
 *          DPAR_SCHEDULE_DRAW_TRACE.
 * mem:     working memory, aligned as for int64_t. With NULL and 0 bytes the call fails with
 *          DPAR_E_ROOM, and why->bytes is how many it needs.
 *
 * Fails with DPAR_E_ARG if `schedule` is not a schedule, DPAR_E_STUCK if its ranks wait for each
 * other, or DPAR_E_ROOM if `bytes` is too small; nothing is appended. Costs a simulation and the
 * picture, O(actions x 100).
 */
DPAR_API dpar_status dpar_schedule_sketch(const dpar_schedule *schedule, int32_t format, void *mem,
                                          int64_t bytes, dpar_text *text, dpar_why *why);

#endif
