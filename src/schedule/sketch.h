/* SPDX-License-Identifier: MIT-0 */
/* sketch - a picture of a schedule in one call, where every action takes the same time.
 *
 *     dpar_schedule_make(memory, sizeof memory, "zbv", 4, 8, &s, &why);
 *     dpar_schedule_sketch(&s, DPAR_SCHEDULE_DRAW_TEXT, work, sizeof work, &text, &why);
 *
 * With times of your own: dpar_schedule_simulate, then dpar_schedule_draw. */
#ifndef DPARI_SCHEDULE_SKETCH_H
#define DPARI_SCHEDULE_SKETCH_H

#include "schedule.h"
#include "schedule_show.h"

/* Appends the picture of s with F = I = W = 1, B = 2 and messages that take no time:
 * DPAR_SCHEDULE_DRAW_TEXT (at most 100 characters a line), DPAR_SCHEDULE_DRAW_SVG or
 * DPAR_SCHEDULE_DRAW_TRACE. mem: to work in, aligned as for int64_t; E_ROOM says how many bytes.
 * E_ARG, E_STUCK, nothing appended: s is no schedule, or its ranks wait for each other. It costs a
 * simulation and the picture, O(actions x 100). */
DPAR_API dpar_status dpar_schedule_sketch(const dpar_schedule *s, int32_t format, void *mem,
                                          int64_t bytes, dpar_text *t, dpar_why *why);

#endif
