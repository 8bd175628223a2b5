/* SPDX-License-Identifier: MIT-0 */
/* schedule_show - pictures of a schedule and of when its actions ran: a Gantt chart in plain
 * characters, SVG, a Chrome trace. Integers only.
 *
 *     dpar_schedule_draw_desc g = {&s, start, end, 1000, "1f1b", 0};          as
 * dpar_schedule_simulate filled dpar_schedule_draw(&text, &g, DPAR_SCHEDULE_DRAW_SVG, &why); */
#ifndef DPARI_SCHEDULE_SCHEDULE_SHOW_H
#define DPARI_SCHEDULE_SCHEDULE_SHOW_H

#include "../base/text.h"
#include "schedule.h"

/* A Gantt chart to be drawn. Times are whole ticks, 0 or more, start <= end; only a message that
 * had arrived before its RECV was reached may end before it starts. Of a joined pair both actions
 * have the pair's times.
 *
 * Times are printed as ticks / unit. With ticks of a nanosecond and unit = 1000 all numbers are
 * microseconds; with F = 1000 ticks and unit = 1000 they are forwards. */
typedef struct dpar_schedule_draw_desc {
    const dpar_schedule *schedule;
    const int64_t *start, *end; /* of schedule->action[k], as dpar_schedule_simulate fills them */
    int64_t unit;               /* ticks, 1 to 10^12 */
    const char *title;          /* printable ASCII; NULL: none */
    int32_t width;              /* TEXT: characters, 32 to 4096; 0: 80 */
} dpar_schedule_draw_desc;

/* The formats.
 *
 * TEXT: 7-bit ASCII, one line a rank, at most `width` characters. O(actions x width). A time step
 * is one column or more where they fit, and slices are exact. Else columns are scaled: each shows
 * what ran in its middle, and the first line says so. With room each slice is a letter, its
 * micro-batch and dashes, "B3--". Lower case marks the rank's odd chunks; '*' is overlapped, the
 * first half the forward. Without room each column has a mark: 0-9 F, A-Z B, a-z I, '+' W. '.' is
 * idle. Messages and collectives are left out. The legend says all this.
 *
 * SVG: slices by kind, a rank's later chunks lighter, overlapped pairs as two halves, idle hatched,
 * messages as arrows. Collectives and offloads lie on a strip below. There are an axis, a legend
 * and tooltips. Valid XML, no script, no font but sans-serif. O(actions), when messages are
 * received nearly in the order of their sends.
 *
 * TRACE: for Perfetto (ui.perfetto.dev) or Chrome's own page. A rank is a process with threads for
 * compute, each direction's sends and receives, and the rest. Events are complete, in microseconds
 * = ticks / unit; an OVERLAP_F_B slice holds its F and its B. A flow arrow goes from each send to
 * its receive. A receive is drawn from when the message leaves. Messages in flight at once have
 * threads of their own, 8 a kind, because slices of one thread must nest. O(actions), as above. */
enum { DPAR_SCHEDULE_DRAW_TEXT, DPAR_SCHEDULE_DRAW_SVG, DPAR_SCHEDULE_DRAW_TRACE };

/* Appends the picture; the format says what it costs. E_ARG with a sentence, nothing appended: a
 * time is negative or ends before it starts, an action is none of the schedule, or there is no such
 * format. */
DPAR_API dpar_status dpar_schedule_draw(dpar_text *t, const dpar_schedule_draw_desc *g,
                                        int32_t format, dpar_why *why);

#endif
