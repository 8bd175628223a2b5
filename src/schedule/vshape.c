/* SPDX-License-Identifier: MIT-0 */
/* Schedules on a V with controlled memory. A block of 6 slots is repeated for each micro-batch;
 * then actions are brought forward, slot by slot, where a free slot and the memory limit allow, and
 * each W takes the first free slot after its I. generate.c calls this. */
#include "vshape.h"

/* What a slot of a rank holds. F0, F1: forward of the stage on the way down and on the way up; B1,
 * B0: their backwards (I alone, or all of B in two slots). Each needs the one before it in this
 * list, and the same on the rank before: F0 and B1 go from rank 0 to p-1, F1 and B0 back. */
enum { DPARI_V_FREE, DPARI_V_F0, DPARI_V_F1, DPARI_V_B1, DPARI_V_B0, DPARI_V_W, DPARI_V_TAIL };
/* Of the numbers kept for each rank: [kind] is the next micro-batch of that kind; and these. */
enum { DPARI_V_END = 0, DPARI_V_OWED = 6, DPARI_V_LAST_W = 7, DPARI_V_NUMBERS = 8 };

typedef struct dpari_v {
    int32_t p, m;
    int32_t slots;   /* of a rank */
    int32_t tail;    /* slots of a backward behind its first: 1 where it is a whole B */
    int32_t *when;   /* [p][4][m]: the slot of F0, F1, B1, B0 of a micro-batch */
    int32_t *live;   /* [p][slots]: activations behind a slot */
    int32_t *owed;   /* [p][slots]: inputs done whose weights are not */
    int32_t *number; /* [p][DPARI_V_NUMBERS] */
    uint8_t *cell;   /* [p][slots] */
} dpari_v;

static int32_t dpari_v_slots(int32_t p, int32_t m)
{
    return 8 * m + 8 * p + 24; /* the last block begins at 6 m, ends 8 p later; then W's */
}

DPARI_INTERNAL int64_t dpari_v_work(int32_t p, int32_t m)
{
    int64_t cells = (int64_t)p * dpari_v_slots(p, m);
    return 4 * (4 * (int64_t)p * m + 2 * cells + (int64_t)p * DPARI_V_NUMBERS) + cells;
}

static void dpari_v_lay(dpari_v *v, int32_t p, int32_t m, void *work)
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

/* The block of `rank` begins `kind` at slot `at`; and again every 6 slots. */
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

/* The last slot that the k-th of a kind has to wait for; -1: none. A tail on its own rank is in the
 * way as it is. */
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

static void dpari_v_restart(dpari_v *v)
{
    dpari_zero(v->number, sizeof(int32_t) * DPARI_V_NUMBERS * (size_t)v->p);
}

/* ---- V-Half and V-Min: I and W apart -------------------------------------------------------- */

/* Activations and owed weights behind a slot. Where the W's have no slots of their own yet
 * (`filled` 0), a free slot does one that is owed. */
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

/* The most activations that any rank ever holds. */
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

/* A cell has moved from slot `from` to `to` before it: true if the rank stays within `limit`. The
 * change is followed until all is as it was. `live` shows that, because after `from` as many F and
 * I were done as before, and live - owed is their difference. In the last slot nothing is live.
 * With `keep` the new numbers are written. */
static int dpari_v_replay(dpari_v *v, int32_t rank, int32_t to, int32_t from, int filled,
                          int32_t limit, int keep)
{
    int64_t base = (int64_t)rank * v->slots;
    int32_t live = v->live[base + to - 1]; /* to > 0: all that moves comes behind an F0 */
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

/* The first free slot of [to, from) to which what is in slot `from` can go; from when none. */
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

/* Gives every W the first free slot behind the inputs that are owed one. */
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

/* The slot of the k-th input of a rank, whichever stage it is of; `done` of them are before t. */
static int32_t dpari_v_input(const dpari_v *v, int32_t rank, int32_t t, int32_t done, int32_t k)
{
    const uint8_t *row = dpari_v_row(v, rank);
    while (done > k) {
        t--;
        done -= row[t] == DPARI_V_B1 || row[t] == DPARI_V_B0;
    }
    return t;
}

/* Brings forward what is in slot t of a rank, the k-th of its kind. */
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

/* Brings forward, slot by slot, what stands before the steady state (`filled` only) and behind it,
 * as far as its needs and the present peak of memory let it. The steady state is from rank 0's
 * first B0 to the last micro-batch's F0. */
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

/* Each rank does at once what it can of its order, all of one slot's length. The W's take their
 * time and leave their slots. */
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

/* ---- 1F1B-V: whole backwards ---------------------------------------------------------------- */

/* Down and up, forward; then down and up, backward, two slots each, with a pause of 3 behind each
 * third, so that no two kinds fall on one slot of the 6. */
static void dpari_v_whole_blocks(dpari_v *v)
{
    int32_t p = v->p, i, at = 7; /* the first slots are free, for moves */
    int32_t third = (3 - (p + 2) % 3) % 3;
    for (i = 0; i < 2 * p; i++, at++) {
        dpari_v_repeat(v, i < p ? i : 2 * p - 1 - i, i < p ? DPARI_V_F0 : DPARI_V_F1, at);
    }
    at += p % 3 == 0 ? 3 : 0;
    for (i = 0; i < 2 * p; i++) {
        dpari_v_repeat(v, i < p ? i : 2 * p - 1 - i, i < p ? DPARI_V_B1 : DPARI_V_B0, at);
        third = (third + 1) % 3;
        at += third == 0 ? 5 : 2;
    }
}

/* An F goes forward while the slot before has room under the peak, a B to the first two free
 * slots, its own among them. The numbers of v->live follow. Each goes forward by a slot at least:
 * all that is before it did, so that slot t - 1 is free and what it needs is done before that. */
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
            if (kind != DPARI_V_FREE) { /* tails have moved with their heads */
                dpari_v_bring(v, rank, t, dpari_v_number(v, rank)[kind]++, most);
            }
        }
    }
}

/* ---- both ----------------------------------------------------------------------------------- */

static void dpari_v_put(dpar_action **at, int kind, int32_t stage, int32_t micro)
{
    (*at)->kind = (uint8_t)kind;
    (*at)->joined = 0;
    (*at)->stage = (uint16_t)stage;
    (*at)->micro_batch = (uint16_t)micro;
    (*at)->peer = 0;
    ++*at;
}

/* A rank's slots as actions; free slots do the W's that are owed, the upper stage's first. */
static void dpari_v_write(const dpari_v *v, int32_t rank, dpar_action *at)
{
    const uint8_t *row = dpari_v_row(v, rank);
    int32_t stage[2], next[DPARI_V_W] = {0, 0, 0, 0, 0}, weight[2] = {0, 0}, t, s;
    stage[0] = rank;
    stage[1] = 2 * v->p - 1 - rank;
    for (t = 0; t < v->slots; t++) {
        int kind = row[t];
        if (kind == DPARI_V_F0 || kind == DPARI_V_F1) {
            dpari_v_put(&at, DPAR_ACTION_FORWARD, stage[kind == DPARI_V_F1], next[kind]++);
        } else if (kind == DPARI_V_B1 || kind == DPARI_V_B0) {
            dpari_v_put(&at, v->tail ? DPAR_ACTION_BACKWARD : DPAR_ACTION_INPUT,
                        stage[kind == DPARI_V_B1], next[kind]++);
        } else if (kind == DPARI_V_FREE && !v->tail) {
            s = weight[1] < next[DPARI_V_B1];
            if (s || weight[0] < next[DPARI_V_B0]) {
                dpari_v_put(&at, DPAR_ACTION_WEIGHT, stage[s], weight[s]++);
            }
        }
    }
}

DPARI_INTERNAL void dpari_v_make(int32_t rule, const dpar_schedule *s, void *work)
{
    dpari_v v;
    int32_t rank;
    dpari_v_lay(&v, s->ranks, s->micro_batches, work);
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
        dpari_v_write(&v, rank, s->action + s->begin[s->rank_of[rank]]);
    }
}
