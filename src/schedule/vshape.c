/* SPDX-License-Identifier: MIT-0 */
/* Makes schedules on a V with controlled memory. Each rank has a row of slots. A block of 6 slots
 * is repeated for each micro-batch. Then actions are moved to earlier slots, as far as free slots
 * and the memory limit allow, and each W takes the first free slot after its I. generate.c calls
 * dpari_v_make.
 */
#include "vshape.h"

#include "action.h"

/* The contents of a slot. F0 and F1 are the forwards of the stage on the way down and on the way
 * up, B1 and B0 their backwards: either I, or a whole B, which takes a second slot, TAIL. Each of
 * these four needs the one before it in this list, and the same kind on a neighbouring rank: F0 and
 * B1 pass the ranks from 0 to p-1, F1 and B0 from p-1 to 0. */
enum { DPARI_V_FREE, DPARI_V_F0, DPARI_V_F1, DPARI_V_B1, DPARI_V_B0, DPARI_V_W, DPARI_V_TAIL };
/* Indices of the numbers that are kept for each rank. The number of a kind is its next micro-batch.
 * The others are the next slot in which an action can start (END), the number of I whose W is
 * missing (OWED), and the slot of the last W. */
enum { DPARI_V_END = 0, DPARI_V_OWED = 6, DPARI_V_LAST_W = 7, DPARI_V_NUMBERS = 8 };

typedef struct dpari_v {
    int32_t p, m;    /* ranks and micro-batches */
    int32_t slots;   /* slots of a rank */
    int32_t tail;    /* 1 if backwards are whole B, which take a second slot */
    int32_t *when;   /* [p][4][m], the slot of F0, F1, B1 and B0 of a micro-batch */
    int32_t *live;   /* [p][slots], activations that the rank holds after a slot */
    int32_t *owed;   /* [p][slots], the number of I before or in a slot whose W comes later */
    int32_t *number; /* [p][DPARI_V_NUMBERS] */
    uint8_t *cell;   /* [p][slots], the contents of the slots */
} dpari_v;

/* Returns the slots of a rank. The last block starts before slot 6 m and ends about 8 p slots
 * later. The other slots are for W. */
static int32_t dpari_v_slots(int32_t p, int32_t m)
{
    return 8 * m + 8 * p + 24;
}

DPARI_INTERNAL int64_t dpari_v_work(int32_t p, int32_t m)
{
    int64_t cells = (int64_t)p * dpari_v_slots(p, m);
    return 4 * (4 * (int64_t)p * m + 2 * cells + (int64_t)p * DPARI_V_NUMBERS) + cells;
}

static void dpari_v_arrange(dpari_v *v, int32_t p, int32_t m, void *work)
{
    int64_t cells = (int64_t)p * dpari_v_slots(p, m);
    v->p = p;
    v->m = m;
    v->slots = dpari_v_slots(p, m);
    v->when = (int32_t *)work;
    v->live = v->when + 4 * (int64_t)p * m;
    v->owed = v->live + cells;
    v->number = v->owed + cells;
    v->cell = (uint8_t *)(v->number + (int64_t)p * DPARI_V_NUMBERS);
    dpari_zero(v->cell, (size_t)cells);
}

static uint8_t *dpari_v_row(const dpari_v *v, int32_t rank)
{
    return v->cell + (int64_t)rank * v->slots;
}

static int32_t *dpari_v_number(const dpari_v *v, int32_t rank)
{
    return v->number + (int64_t)rank * DPARI_V_NUMBERS;
}

static int32_t *dpari_v_when(const dpari_v *v, int32_t rank, int kind, int32_t micro)
{
    return v->when + ((int64_t)rank * 4 + kind - DPARI_V_F0) * v->m + micro;
}

/* Puts `kind` into slot `at` of a rank for micro-batch 0, and 6 slots later for each further one.
 */
static void dpari_v_repeat(dpari_v *v, int32_t rank, int kind, int32_t at)
{
    int32_t k;
    for (k = 0; k < v->m; k++) {
        *dpari_v_when(v, rank, kind, k) = at + 6 * k;
        dpari_v_row(v, rank)[at + 6 * k] = (uint8_t)kind;
        if (v->tail && kind >= DPARI_V_B1) {
            dpari_v_row(v, rank)[at + 6 * k + 1] = DPARI_V_TAIL;
        }
    }
}

/* Returns the last slot of all actions that must have ended before number k of a kind, or -1 if
 * there are none. The tail of a B counts if it is on another rank; on the same rank its slot is not
 * free in any case. */
static int32_t dpari_v_needs(const dpari_v *v, int32_t rank, int kind, int32_t k)
{
    int32_t from = kind == DPARI_V_F0 || kind == DPARI_V_B1 ? rank - 1 : rank + 1;
    int32_t tail = kind >= DPARI_V_B1 ? v->tail : 0;
    int32_t last = -1, own;
    if (from >= 0 && from < v->p) {
        last = *dpari_v_when(v, from, kind, k) + tail;
    }
    if (kind > DPARI_V_F0) {
        own = *dpari_v_when(v, rank, kind - 1, k);
        last = own > last ? own : last;
    }
    if (k > 0) {
        own = *dpari_v_when(v, rank, kind, k - 1);
        last = own > last ? own : last;
    }
    return last;
}

/* Zeroes the numbers of all ranks. */
static void dpari_v_restart(dpari_v *v)
{
    dpari_zero(v->number, sizeof(int32_t) * DPARI_V_NUMBERS * (size_t)v->p);
}

/* ---- V-Half and V-Min: I and W are separate -------------------------------------------------- */

/* Updates the activations and the owed W for a slot. If W have no slots of their own (`filled` is
 * 0), a free slot runs an owed one. */
static void dpari_v_step(int cell, int filled, int32_t *live, int32_t *owed)
{
    if (cell == DPARI_V_F0 || cell == DPARI_V_F1) {
        ++*live;
    } else if (cell == DPARI_V_B1 || cell == DPARI_V_B0) {
        ++*owed;
    } else if (cell == DPARI_V_W || (!filled && *owed > 0)) {
        --*live;
        --*owed;
    }
}

/* Computes live and owed of all slots. Returns the most activations that a rank holds. */
static int32_t dpari_v_peak(dpari_v *v, int filled)
{
    int32_t rank, t, most = 0;
    for (rank = 0; rank < v->p; rank++) {
        int64_t base = (int64_t)rank * v->slots;
        int32_t live = 0, owed = 0;
        for (t = 0; t < v->slots; t++) {
            dpari_v_step(v->cell[base + t], filled, &live, &owed);
            v->live[base + t] = live;
            v->owed[base + t] = owed;
            most = live > most ? live : most;
        }
    }
    return most;
}

/* Updates the numbers of a rank after an action has moved from slot `from` to the earlier slot
 * `to`. Returns 1 if the rank stays within `limit`. Writes the new numbers only if `keep` is 1.
 *
 * Stops at the first slot after which nothing changes any more. It is enough to compare `live`:
 * after slot `from` the same F and I have run as before the move, and live - owed is the difference
 * of their numbers. In the last slot nothing is live, so that the loop ends.
 */
static int dpari_v_replay(dpari_v *v, int32_t rank, int32_t to, int32_t from, int filled,
                          int32_t limit, int keep)
{
    int64_t base = (int64_t)rank * v->slots;
    int32_t live = v->live[base + to - 1]; /* to > 0, because each moved action is after an F0 */
    int32_t owed = v->owed[base + to - 1];
    int32_t t;
    for (t = to;; t++) {
        dpari_v_step(v->cell[base + t], filled, &live, &owed);
        if (live > limit) {
            return 0;
        }
        if (t >= from && v->live[base + t] == live) {
            return 1;
        }
        if (keep) {
            v->live[base + t] = live;
            v->owed[base + t] = owed;
        }
    }
}

/* Moves the action in slot `from` to the first free slot of [to, from) that keeps the limit.
 * Returns its new slot, or `from` if it did not move. */
static int32_t dpari_v_advance(dpari_v *v, int32_t rank, int32_t to, int32_t from, int filled,
                               int32_t limit)
{
    uint8_t *row = dpari_v_row(v, rank);
    uint8_t kind = row[from];
    for (; to < from; to++) {
        if (row[to] != DPARI_V_FREE) {
            continue;
        }
        row[to] = kind;
        row[from] = DPARI_V_FREE;
        if (dpari_v_replay(v, rank, to, from, filled, limit, 0)) {
            (void)dpari_v_replay(v, rank, to, from, filled, limit, 1);
            return to;
        }
        row[to] = DPARI_V_FREE;
        row[from] = kind;
    }
    return from;
}

/* Gives every W the first free slot after its I. */
static void dpari_v_fill(dpari_v *v)
{
    int32_t rank, t;
    for (rank = 0; rank < v->p; rank++) {
        uint8_t *row = dpari_v_row(v, rank);
        int32_t owed = 0;
        for (t = 0; t < v->slots; t++) {
            if (row[t] == DPARI_V_B1 || row[t] == DPARI_V_B0) {
                owed++;
            } else if (row[t] == DPARI_V_FREE && owed > 0) {
                row[t] = DPARI_V_W;
                owed--;
            }
        }
    }
}

/* Returns the slot of I number k of a rank, counting both stages. `done` I are before slot t. */
static int32_t dpari_v_input(const dpari_v *v, int32_t rank, int32_t t, int32_t done, int32_t k)
{
    const uint8_t *row = dpari_v_row(v, rank);
    while (done > k) {
        t--;
        done -= row[t] == DPARI_V_B1 || row[t] == DPARI_V_B0;
    }
    return t;
}

/* Moves the action in slot t of a rank, number k of its kind, to an earlier slot if possible. */
static void dpari_v_move(dpari_v *v, int32_t rank, int32_t t, int32_t k, int filled, int32_t limit)
{
    int kind = dpari_v_row(v, rank)[t];
    int32_t *number = dpari_v_number(v, rank);
    if (kind != DPARI_V_W) {
        *dpari_v_when(v, rank, kind, k) =
            dpari_v_advance(v, rank, dpari_v_needs(v, rank, kind, k) + 1, t, filled, limit);
    } else {
        int32_t input = dpari_v_input(v, rank, t, number[DPARI_V_B1] + number[DPARI_V_B0], k);
        int32_t to = (int32_t)dpari_most(input, number[DPARI_V_LAST_W]);
        number[DPARI_V_LAST_W] = dpari_v_advance(v, rank, to + 1, t, filled, limit);
    }
}

/* Moves actions to earlier slots, as far as their inputs and the current peak of memory allow: the
 * actions after the steady state, and with `filled` also those before it. The steady state (phase
 * 1) lasts from the first B0 of rank 0 to the F0 of the last micro-batch. */
static void dpari_v_reorder(dpari_v *v, int filled)
{
    int32_t limit = dpari_v_peak(v, filled);
    int32_t t, rank;
    int phase = 0;
    dpari_v_restart(v);
    for (t = 0; t < v->slots; t++) {
        for (rank = 0; rank < v->p; rank++) {
            int kind = dpari_v_row(v, rank)[t];
            int32_t *number = dpari_v_number(v, rank);
            int32_t k = number[kind]++;
            if (kind == DPARI_V_FREE) {
                continue;
            }
            phase += kind == DPARI_V_B0 && rank == 0 && phase == 0;
            if (phase == 2 || (phase == 0 && filled)) {
                dpari_v_move(v, rank, t, k, filled, limit);
            } else if (kind == DPARI_V_W) {
                number[DPARI_V_LAST_W] = t;
            }
            phase += kind == DPARI_V_F0 && k == v->m - 1 && phase == 1;
        }
    }
}

/* Compacts the slots: each rank runs its actions in their order and as early as possible, one slot
 * each. W take a slot of time, but their slots are marked as free again. */
static void dpari_v_squeeze(dpari_v *v, int filled)
{
    int32_t t, rank;
    dpari_v_restart(v);
    for (t = 0; t < v->slots; t++) {
        for (rank = 0; rank < v->p; rank++) {
            uint8_t *cell = dpari_v_row(v, rank) + t;
            int32_t *number = dpari_v_number(v, rank);
            int kind = *cell;
            if (kind == DPARI_V_FREE && (filled || number[DPARI_V_OWED] == 0)) {
                continue;
            }
            *cell = DPARI_V_FREE;
            if (kind == DPARI_V_FREE || kind == DPARI_V_W) {
                number[DPARI_V_OWED]--;
            } else {
                int32_t k = number[kind]++;
                int32_t at = dpari_v_needs(v, rank, kind, k) + 1;
                at = number[DPARI_V_END] > at ? number[DPARI_V_END] : at;
                number[DPARI_V_OWED] += kind >= DPARI_V_B1;
                number[DPARI_V_END] = at;
                *dpari_v_when(v, rank, kind, k) = at;
                dpari_v_row(v, rank)[at] = (uint8_t)kind;
            }
            number[DPARI_V_END]++;
        }
    }
}

/* Writes the blocks of V-Half. The pause keeps the kinds of a rank in different slots modulo 6. */
static void dpari_v_half_blocks(dpari_v *v)
{
    int32_t p = v->p, i, pause = p % 2 == 0 ? 3 : 0;
    for (i = 0; i < p; i++) {
        dpari_v_repeat(v, i, DPARI_V_F0, 2 * i);
        dpari_v_repeat(v, i, DPARI_V_F1, 3 * p - i - 2);
        dpari_v_repeat(v, i, DPARI_V_B1, 3 * p + pause + 2 * i - 1);
        dpari_v_repeat(v, i, DPARI_V_B0, 6 * p + pause - i - 2);
    }
}

/* Writes the blocks of V-Min. */
static void dpari_v_min_blocks(dpari_v *v)
{
    int32_t p = v->p, i, pause = p % 3 == 0 ? 2 : 0;
    for (i = 0; i < p; i++) {
        dpari_v_repeat(v, i, DPARI_V_F0, i);
        dpari_v_repeat(v, i, DPARI_V_F1, 2 * p - i - 1);
        dpari_v_repeat(v, i, DPARI_V_B1, 2 * p + pause + i);
        dpari_v_repeat(v, i, DPARI_V_B0, 4 * p + pause - i - 1);
    }
}

/* ---- 1F1B-V: whole backwards ----------------------------------------------------------------- */

/* Puts action i of the 2 p that go down the V, on ranks 0 to p - 1, and up again. */
static void dpari_v_leg(dpari_v *v, int32_t i, int32_t down, int32_t up, int32_t at)
{
    if (i < v->p) {
        dpari_v_repeat(v, i, down, at);
    } else {
        dpari_v_repeat(v, 2 * v->p - 1 - i, up, at);
    }
}

/* Writes the blocks of 1F1B-V: the forwards down and up the V, one slot each, then the backwards,
 * two slots each, with a pause of 3 slots after every third backward, so that no two kinds of a
 * rank are in the same slot modulo 6. */
static void dpari_v_whole_blocks(dpari_v *v)
{
    int32_t p = v->p, i, at = 7; /* the first slots are free, for moves */
    int32_t third = (3 - (p + 2) % 3) % 3;
    for (i = 0; i < 2 * p; i++, at++) {
        dpari_v_leg(v, i, DPARI_V_F0, DPARI_V_F1, at);
    }
    at += p % 3 == 0 ? 3 : 0;
    for (i = 0; i < 2 * p; i++) {
        dpari_v_leg(v, i, DPARI_V_B1, DPARI_V_B0, at);
        third = (third + 1) % 3;
        at += third == 0 ? 5 : 2;
    }
}

/* Moves number k of its kind from slot t to an earlier slot, and updates v->live. An F moves while
 * the rank holds less than `limit` after the previous slot. A B moves to the first two free slots
 * after the actions that it needs; its own slots count as free. Each action can move by at least
 * one slot, because every earlier action did: slot t - 1 is free, and the actions that it needs
 * have ended before it. */
static void dpari_v_bring(dpari_v *v, int32_t rank, int32_t t, int32_t k, int32_t limit)
{
    uint8_t *row = dpari_v_row(v, rank);
    int32_t *live = v->live + (int64_t)rank * v->slots;
    int kind = row[t], whole = kind >= DPARI_V_B1;
    int32_t first = dpari_v_needs(v, rank, kind, k) + 1, to = whole ? first : t, i;
    while (to > first && live[to - 1] < limit) {
        to--;
    }
    row[t] = row[t + whole] = DPARI_V_FREE;
    while (row[to] != DPARI_V_FREE || row[to + whole] != DPARI_V_FREE) {
        to++;
    }
    for (i = to; i < t; i++) {
        live[i + whole] += whole ? -1 : 1;
    }
    row[to + whole] = DPARI_V_TAIL;
    row[to] = (uint8_t)kind;
    *dpari_v_when(v, rank, kind, k) = to;
}

/* Computes the peak of memory, then moves all actions slot by slot without exceeding it. */
static void dpari_v_whole_moves(dpari_v *v)
{
    int32_t t, rank, most = 0;
    for (rank = 0; rank < v->p; rank++) {
        int32_t live = 0;
        for (t = 0; t < v->slots; t++) {
            int kind = dpari_v_row(v, rank)[t];
            live += kind == DPARI_V_F0 || kind == DPARI_V_F1;
            live -= kind == DPARI_V_TAIL;
            v->live[(int64_t)rank * v->slots + t] = live;
            most = live > most ? live : most;
        }
    }
    dpari_v_restart(v);
    for (t = 0; t < v->slots; t++) {
        for (rank = 0; rank < v->p; rank++) {
            int kind = dpari_v_row(v, rank)[t];
            if (kind != DPARI_V_FREE) { /* a tail has moved with its B */
                dpari_v_bring(v, rank, t, dpari_v_number(v, rank)[kind]++, most);
            }
        }
    }
}

/* ---- all three rules ------------------------------------------------------------------------- */

/* Writes a rank's slots as actions. Free slots run the missing W, first those of the stage on the
 * way up. */
static void dpari_v_write(const dpari_v *v, int32_t rank, dpar_action *at)
{
    const uint8_t *row = dpari_v_row(v, rank);
    int32_t stage[2], next[DPARI_V_W] = {0, 0, 0, 0, 0}, weight[2] = {0, 0}, t, s;
    stage[0] = rank;
    stage[1] = 2 * v->p - 1 - rank;
    for (t = 0; t < v->slots; t++) {
        int kind = row[t];
        if (kind == DPARI_V_F0 || kind == DPARI_V_F1) {
            *at++ = dpari_action_of(DPAR_ACTION_FORWARD, stage[kind == DPARI_V_F1], next[kind]++);
        } else if (kind == DPARI_V_B1 || kind == DPARI_V_B0) {
            *at++ = dpari_action_of(v->tail ? DPAR_ACTION_BACKWARD : DPAR_ACTION_INPUT,
                                    stage[kind == DPARI_V_B1], next[kind]++);
        } else if (kind == DPARI_V_FREE && !v->tail) {
            s = weight[1] < next[DPARI_V_B1];
            if (s || weight[0] < next[DPARI_V_B0]) {
                *at++ = dpari_action_of(DPAR_ACTION_WEIGHT, stage[s], weight[s]++);
            }
        }
    }
}

DPARI_INTERNAL void dpari_v_make(int32_t rule, const dpar_schedule *schedule, void *work)
{
    dpari_v v;
    int32_t rank;
    dpari_v_arrange(&v, schedule->ranks, schedule->micro_batches, work);
    v.tail = rule == DPAR_SCHEDULE_1F1B_V;
    if (v.tail) {
        dpari_v_whole_blocks(&v);
        dpari_v_whole_moves(&v);
    } else {
        if (rule == DPAR_SCHEDULE_V_HALF) {
            dpari_v_half_blocks(&v);
        } else {
            dpari_v_min_blocks(&v);
        }
        dpari_v_fill(&v);
        dpari_v_reorder(&v, 1);
        dpari_v_squeeze(&v, 1);
        dpari_v_reorder(&v, 0);
        dpari_v_squeeze(&v, 0);
    }
    for (rank = 0; rank < v.p; rank++) {
        dpari_v_write(&v, rank, schedule->action + schedule->begin[schedule->rank_of[rank]]);
    }
}
