/* SPDX-License-Identifier: MIT-0 */
/* schedule_show - a schedule and when its actions ran, as people and viewers read it: a Gantt chart
 * in plain characters, SVG, a Chrome trace. Integers only; pure text into a dpar_text. */
#ifndef DPARI_SCHEDULE_SCHEDULE_SHOW_H
#define DPARI_SCHEDULE_SCHEDULE_SHOW_H

#include "../base/text.h"
#include "schedule.h"

/* What is shown. Times are whole ticks, 0 or more, start <= end (but for a message that had arrived
 * before its RECV was reached); of a joined pair both actions have the pair's times. Times are
 * printed as ticks / unit: with ticks of a nanosecond and unit = 1000 every number is in
 * microseconds, with F = 1000 ticks and unit = 1000 in forwards. */
typedef struct dpar_gantt {
    const dpar_schedule *schedule;
    const int64_t *start, *end; /* of schedule->action[k], as dpar_schedule_simulate fills them */
    int64_t unit;               /* ticks, 1 to 10^12 */
    const char *title;          /* printable ASCII; NULL: none */
    int32_t width;              /* TEXT: characters, 32 to 4096; 0: 80 */
} dpar_gantt;

/* TEXT: one line a rank, at most `width` characters, 7-bit ASCII: a terminal, a UART. A time step
 * is a column or several when they fit, and slices are exact; else columns are scaled, each showing
 * what ran in its middle, which the first line says. With room each slice is a letter, its
 * micro-batch and dashes ("B3--"; lower case: the rank's odd chunks; '*': overlapped, the first
 * half the forward); else a mark a column: 0-9 F, A-Z B, a-z I, '+' W. '.' is idle. Messages and
 * collectives are left out. The legend says all this. O(actions x width).
 *
 * SVG: slices by kind, a rank's later chunks lighter, overlapped pairs as two halves, idle hatched,
 * messages as arrows, collectives and offloads on a strip below, an axis, a legend, tooltips. Valid
 * XML, no script, no font but sans-serif. O(actions), when messages are received nearly in the
 * order of their sends.
 *
 * TRACE: for Perfetto (ui.perfetto.dev) or Chrome's own page: a process a rank, threads for
 * compute, each way's sends and receives, and the rest; complete events in microseconds = ticks /
 * unit, an OVERLAP_F_B slice holds its F and its B; a flow arrow from each send to its receive. A
 * receive is drawn from when the message leaves; messages that are in flight at once have threads
 * of their own, 8 a kind, since slices of one have to nest. O(actions), as above. */
enum { DPAR_GANTT_TEXT, DPAR_GANTT_SVG, DPAR_GANTT_TRACE };

/* Appends the picture. Writes nothing and returns E_ARG with a sentence when a time is negative or
 * ends before it starts, an action is no action of the schedule, or there is no such format. Cost:
 * see the format above. */
DPAR_API dpar_status dpar_schedule_draw(dpar_text *t, const dpar_gantt *g, int32_t format,
                                        dpar_why *why);

#endif
