/* SPDX-License-Identifier: MIT-0 */
/* schedule_show - draws a schedule with the times of its actions: as a Gantt chart in plain
 * characters, as SVG, or as a Chrome trace. Integers only.
 *
 *     how.start = start;
 *     how.end = end;
 *     dpar_schedule_simulate(&s, &how, &timing, memory, sizeof memory, &why);
 *     desc.schedule = &s;
 *     desc.start = start;
 *     desc.end = end;
 *     desc.unit = 1000;
 *     dpar_schedule_draw(&text, &desc, DPAR_SCHEDULE_DRAW_SVG, &why);
 */
#ifndef DPARI_SCHEDULE_SCHEDULE_SHOW_H
#define DPARI_SCHEDULE_SCHEDULE_SHOW_H

#include "../base/text.h"
#include "schedule.h"

/* A Gantt chart to be drawn. Times are whole ticks, 0 or more, with start <= end. Only a message
 * that arrived before its RECV was reached ends before it starts. Both actions of a joined pair
 * have the pair's times.
 *
 * Times are printed as ticks / unit. If ticks are nanoseconds, unit = 1000 prints microseconds; if
 * F takes 1000 ticks, unit = 1000 prints multiples of F.
 */
typedef struct dpar_schedule_draw_desc {
    const dpar_schedule *schedule;
    const int64_t *start, *end; /* [actions], as dpar_schedule_simulate writes them */
    int64_t unit;               /* ticks of a printed unit, 1 to 10^12 */
    const char *title;          /* printable ASCII; NULL if there is none */
    int32_t width;              /* TEXT: characters of a line, 32 to 4096; 0 selects 80 */
} dpar_schedule_draw_desc;

/* The formats of a picture. */
enum {
    /* 7-bit ASCII text with one line per rank of at most `width` characters. If all time steps fit,
     * each one has the same number of columns, and slices are exact. Otherwise columns are scaled:
     * each shows what ran at its middle, and the first line says so. A wide slice is written as a
     * letter, the micro-batch and dashes: "B3--". Lower case marks the rank's odd chunks, and '*'
     * an overlapped pair, whose first half is the forward. A narrow chart has one mark per column:
     * 0-9 F, A-Z B, a-z I, '+' W. '.' is idle. Messages and collectives are left out. The legend
     * explains all this. Costs O(actions x width). */
    DPAR_SCHEDULE_DRAW_TEXT,
    /* SVG. Slices are coloured by kind, with a rank's later chunks lighter; overlapped pairs are
     * drawn as two halves, idle time is hatched, and messages are arrows. Collectives and offloads
     * are on a strip below the rank's lane. There are an axis, a legend and tooltips. The file is
     * valid XML without scripts and without fonts other than sans-serif. Costs O(actions) if
     * messages are received nearly in the order of their sends. */
    DPAR_SCHEDULE_DRAW_SVG,
    /* A trace for Perfetto (ui.perfetto.dev) or Chrome's own page. A rank is a process with threads
     * for compute, for each direction's sends and receives, and for the rest. Events are complete
     * events in microseconds = ticks / unit; an OVERLAP_F_B slice contains its F and its B. A flow
     * arrow leads from each send to its receive, and a receive is drawn from the time at which its
     * message is sent. Messages that are in flight together get threads of their own, up to 8 per
     * kind, because slices of one thread must nest. Costs O(actions) as for SVG. */
    DPAR_SCHEDULE_DRAW_TRACE
};

/* Draws a Gantt chart and appends it to a text, at the cost that is stated with the format. Fails
 * with DPAR_E_ARG and appends nothing if a time is negative, an action ends before it starts or is
 * out of range, or there is no such format. */
DPAR_API dpar_status dpar_schedule_draw(dpar_text *text, const dpar_schedule_draw_desc *desc,
                                        int32_t format, dpar_why *why);

#endif
