/* SPDX-License-Identifier: MIT-0 */
/* Simulates a schedule with unit times and draws it, in one call. */
#include "sketch.h"

#include "../base/arith.h"
#include "needed_bytes.h"
#include "simulate.h"

DPAR_API DPARI_COLD dpar_status dpar_schedule_sketch(const dpar_schedule *schedule, int32_t format,
                                                     void *mem, int64_t bytes, dpar_text *text,
                                                     dpar_why *why)
{
    dpar_schedule_times times;
    dpar_schedule_simulate_desc how;
    dpar_timing timing;
    dpar_schedule_draw_desc picture;
    dpar_status st;
    int64_t own, need, actions;
    dpari_zero(&times, sizeof times);
    dpari_zero(&how, sizeof how);
    dpari_zero(&picture, sizeof picture);
    times.forward.all = times.input.all = times.weight.all = 1;
    how.times = &times;
    own = dpari_schedule_simulate_bytes(schedule, &how);
    if (own < 0) {
        return dpari_wrong(
            why,
            "this is not a schedule: it has %d stages in chains of %d, and %d micro-batches in "
            "slices of %d",
            schedule->stages, schedule->chain, schedule->micro_batches, schedule->slices);
    }
    actions = schedule->begin[schedule->ranks];
    need = own + 16 * actions;
    if (mem == NULL || bytes < need || (uintptr_t)mem % 8 != 0) {
        dpari_needs_bytes(why, need);
        return dpari_say(
            DPAR_E_ROOM, why,
            "a picture of %ld actions needs %ld bytes at an address that 8 divides, got %ld",
            actions, need, mem == NULL ? 0 : bytes);
    }
    how.start = (int64_t *)mem;
    how.end = how.start + actions;
    st = dpar_schedule_simulate(schedule, &how, &timing, how.end + actions, own, why);
    if (st != DPAR_OK) {
        return st;
    }
    picture.schedule = schedule;
    picture.start = how.start;
    picture.end = how.end;
    picture.unit = 1;
    picture.width = 100;
    return dpar_schedule_draw(text, &picture, format, why);
}
