/* SPDX-License-Identifier: MIT-0 */
/* Tests place: compares its cuts of layers with the best of all possible cuts, which are tried one
 * by one, for models with an embedding and a loss (at least 95 % must equal the best, and none may
 * take 3 % longer); messages. Run with: tests/run test schedule. */
#include "dpar_schedule.h"

#include "check.h"
#include "random.h"

#include "pipe_oracle.h"

static int64_t memory[(1 << 16) + (1 << 14)];

/* Returns the objective of a cut: that of its schedule made by auto, or of the caller's schedule
 * simulated; 0 if it does not fit. */
static int64_t cut_cost(const pipe_case *layers, int n, const int64_t *cuts,
                        const dpar_schedule *given)
{
    pipe_case c;
    dpar_schedule s;
    dpar_schedule_optimize_result result;
    int k, l;
    pipe_start(&c, layers->job.ranks, layers->job.stages / layers->job.ranks,
               layers->job.micro_batches, layers->job.map, layers->job.split);
    c.job.objective = layers->job.objective;
    c.job.cap = layers->job.cap;
    c.times.latency = layers->times.latency;
    c.times.forward.each = c.f;
    c.times.input.each = c.i;
    c.times.weight.each = c.w;
    c.times.hold_forward.each = c.hold_f;
    c.times.hold_weight.each = c.hold_w;
    for (k = 0; k < c.job.stages; k++) {
        for (l = (int)cuts[k]; l < cuts[k + 1] && l < n; l++) {
            c.f[k] += layers->f[l];
            c.i[k] += layers->i[l];
            c.w[k] += layers->w[l];
            c.hold_f[k] += layers->hold_f[l];
            c.hold_w[k] += layers->hold_w[l];
        }
    }
    if (given != NULL) {
        dpar_timing t;
        dpar_rank_timing rank[8];
        int r;
        CHECK_INT(simulate_list(given, &c.times, NULL, NULL, &t, rank, memory, sizeof memory, NULL),
                  DPAR_OK);
        for (r = 0; r < c.job.ranks; r++) {
            if (c.job.cap.all > 0 && rank[r].peak_bytes > c.job.cap.all) {
                return 0;
            }
        }
        return c.job.objective == DPAR_OBJECTIVE_SPAN ? t.span : t.makespan;
    }
    if (make_auto(&c.job, 0, &s, &result, memory, sizeof memory, NULL) < 0) {
        return 0;
    }
    return c.job.objective == DPAR_OBJECTIVE_SPAN ? result.span : result.makespan;
}

/* Returns the best of all cuts of n layers into runs that are not empty; 0 if none fits. */
static int64_t best_cut(const pipe_case *c, int n, const dpar_schedule *given)
{
    int64_t cuts[PIPE_MOST + 1], best = 0, got;
    int k, stages = c->job.stages;
    for (k = 0; k < stages; k++) {
        cuts[k] = k;
    }
    cuts[stages] = n;
    for (;;) {
        got = cut_cost(c, n, cuts, given);
        best = got > 0 && (best == 0 || got < best) ? got : best;
        for (k = stages - 1; k > 0 && cuts[k] == n - stages + k; k--) {
        }
        if (k == 0) {
            return best;
        }
        for (cuts[k]++; k + 1 < stages; k++) {
            cuts[k + 1] = cuts[k] + 1;
        }
    }
}

static int64_t place_memory[1 << 20], place_room[1 << 14];

/* Checks random models with an embedding and a loss, with auto and with 1F1B or ZB-H1. */
static void test_place(void)
{
    int n, l, met = 0, all = 0;
    for (n = 0; n < 120; n++) {
        pipe_case c;
        dpar_schedule_desc order;
        dpar_schedule s, *given = NULL, made;
        dpar_schedule_optimize_result result;
        dpar_why why;
        int64_t cuts[PIPE_MOST + 1], best;
        int p = random_int(2, 4), v = random_int(0, 3) == 0 ? 2 : 1;
        int layers = random_int(p * v, p * v == 8 ? 10 : p * v + 6);
        dpar_status st;
        int capped, split = random_int(0, 1),
                    micros = random_int(2, 6); /* one order on all compilers */
        pipe_start(&c, p, v, micros, DPAR_STAGE_MAP_LOOP, split);
        c.job.objective = random_int(0, 4) == 0;
        c.times.forward.each = c.f;
        c.times.input.each = c.i;
        c.times.weight.each = c.w;
        c.times.hold_forward.each = c.hold_f;
        c.times.hold_weight.each = c.hold_w;
        c.times.latency.all = random_some(9);
        for (l = 0; l < layers; l++) {
            c.f[l] = l == 0 ? random_int(1, 9) : l + 1 == layers ? random_int(5, 30) : 10;
            c.i[l] = l == 0 ? 1 : l + 1 == layers ? random_int(5, 30) : random_int(9, 11);
            c.w[l] = l == 0 ? random_int(1, 30) : 8;
            c.hold_f[l] = l == 0 ? 2 : 5;
            c.hold_w[l] = -c.hold_f[l];
        }
        capped = random_int(0, 1);
        c.job.cap.all = capped * 5 * layers * random_int(2, 4) / 2;
        if (v == 1 && random_int(0, 1)) {
            memset(&order, 0, sizeof order);
            order.rule = c.job.split ? DPAR_SCHEDULE_ZB_H1 : DPAR_SCHEDULE_1F1B;
            order.ranks = p;
            order.micro_batches = c.job.micro_batches;
            CHECK_INT(dpar_schedule_generate(&made, &order, place_room, sizeof place_room, &why),
                      DPAR_OK);
            given = &made;
        }
        best = best_cut(&c, layers, given);
        why.text[0] = 0;
        st = place_layers(&c.job, layers, given, 1000000, cuts, &s, &result, place_memory,
                          sizeof place_memory, &why);
        CHECK_INT(st, best > 0 ? DPAR_OK : DPAR_E_MEMORY);
        CHECK_INT(strncmp(why.text, "cannot fit: rank ", 17) == 0, best == 0);
        if (st == DPAR_OK) {
            int64_t got = c.job.objective == DPAR_OBJECTIVE_SPAN ? result.span : result.makespan;
            CHECK_INT(cut_cost(&c, layers, cuts, given), got);
            CHECK(100 * got <= 103 * best);
            CHECK(cuts[0] == 0 && cuts[p * v] == layers);
            met += got == best;
            all++;
        }
    }
    CHECK(all > 100 && 100 * met >= 95 * all);
}

/* Checks a case worked out by hand: 1F1B on 2 ranks, 2 micro-batches, layers of F = 1, B = 1 and a
 * loss of F = B = 4: with five layers before the loss on rank 0 it takes 26, with four 27. */
static void test_place_errors(void)
{
    pipe_case c;
    dpar_schedule s;
    dpar_schedule_optimize_result result;
    dpar_schedule_desc order;
    dpar_why why;
    int64_t cuts[PIPE_MOST + 1];
    int l;
    pipe_start(&c, 2, 1, 2, DPAR_STAGE_MAP_LOOP, 0);
    c.times.forward.each = c.f;
    c.times.input.each = c.i;
    for (l = 0; l < 6; l++) {
        c.f[l] = c.i[l] = l < 5 ? 1 : 4;
    }
    CHECK_INT(place_layers(&c.job, 6, NULL, 100, cuts, &s, &result, place_memory,
                           sizeof place_memory, &why),
              DPAR_OK);
    CHECK_INT(cuts[1], 5);
    CHECK_INT(result.makespan, 26); /* F0 F1 B0 B1 end at 5 10 18 26; 9 17 13 21 */
    CHECK_INT(place_layers(&c.job, 6, NULL, 1, cuts, &s, &result, place_memory, sizeof place_memory,
                           &why),
              DPAR_MORE);
    CHECK_INT(result.nodes, 1);
    CHECK_INT(place_layers(&c.job, 6, NULL, 0, cuts, &s, &result, place_memory, sizeof place_memory,
                           &why),
              DPAR_E_ARG);
    CHECK_INT(place_layers(&c.job, 1, NULL, 9, cuts, &s, &result, place_memory, sizeof place_memory,
                           &why),
              DPAR_E_ARG);
    CHECK_TEXT(why.text, "1 layers on 2 stages; each stage needs a layer, and 2^24 layers and "
                         "16384 stages are allowed");
    CHECK_INT(place_layers(&c.job, 6, NULL, 9, cuts, &s, &result, place_memory,
                           place_layers_bytes(&c.job, 6, NULL) - 1, &why),
              DPAR_E_ROOM);
    CHECK_INT(place_layers(&c.job, 6, NULL, 9, cuts, &s, &result, place_memory,
                           place_layers_bytes(&c.job, 6, NULL), &why),
              DPAR_MORE);
    c.f[3] = -1;
    CHECK_INT(place_layers(&c.job, 6, NULL, 9, cuts, &s, &result, place_memory, sizeof place_memory,
                           &why),
              DPAR_E_ARG);
    c.f[3] = INT64_MAX;
    CHECK_INT(place_layers(&c.job, 6, NULL, 9, cuts, &s, &result, place_memory, sizeof place_memory,
                           &why),
              DPAR_E_RANGE);
    CHECK_TEXT(why.text, "layers 0 to 3: a time or hold_x adds up to more than 2^60");
    c.f[3] = 1;
    c.times.hold_forward.all = 3;
    CHECK_INT(place_layers(&c.job, 6, NULL, 9, cuts, &s, &result, place_memory, sizeof place_memory,
                           &why),
              DPAR_E_ARG);
    CHECK_TEXT(why.text, "layer 0 holds 3 for F, 0 for I and 0 for W; these must add up to 0");
    c.times.hold_weight.all = -3;
    c.job.cap.all = 8; /* of 18 bytes on two ranks */
    CHECK_INT(place_layers(&c.job, 6, NULL, 99, cuts, &s, &result, place_memory,
                           sizeof place_memory, &why),
              DPAR_E_MEMORY);
    CHECK_INT(strncmp(why.text, "cannot fit: rank ", 17), 0);
    c.job.cap.all = 9; /* 3 layers each */
    CHECK_INT(place_layers(&c.job, 6, NULL, 99, cuts, &s, &result, place_memory,
                           sizeof place_memory, &why),
              DPAR_OK);
    CHECK_INT(cuts[1], 3);
    c.job.cap.each = c.cap; /* with that schedule: rank 1 holds a layer of one micro-batch */
    c.cap[1] = 2;
    memset(&order, 0, sizeof order);
    order.rule = DPAR_SCHEDULE_1F1B, order.ranks = order.micro_batches = 2;
    CHECK_INT(dpar_schedule_generate(&s, &order, place_room, sizeof place_room, NULL), DPAR_OK);
    CHECK_INT(place_layers(&c.job, 6, &s, 99, cuts, NULL, &result, place_memory,
                           sizeof place_memory, &why),
              DPAR_E_MEMORY);
    CHECK_TEXT(why.text, "cannot fit: rank 1 holds 3 at its peak, its cap is 2");
    c.job.cap.each = NULL;
    s.micro_batches = 3;
    CHECK_INT(place_layers(&c.job, 6, &s, 99, cuts, NULL, &result, place_memory,
                           sizeof place_memory, &why),
              DPAR_E_ARG);
}

/* Checks a schedule in which rank 0 does all its forwards first and rank 1 one at a time. By
 * time a layer of 2^59 bytes belongs on rank 1; on rank 0 it would need 16 x 2^59 = 2^63, which
 * overflows. */
static void test_place_beyond(void)
{
    static const int64_t f[] = {2, 1, 1}, hold[] = {1, INT64_C(1) << 59, 1};
    static const int64_t back[] = {-1, -(INT64_C(1) << 59), -1};
    static int64_t list[1 << 10];
    static char csv[512];
    pipe_case c;
    dpar_schedule given;
    dpar_schedule_optimize_result result;
    dpar_why why;
    int64_t cuts[3];
    int k, n = 0;
    for (k = 0; k < 32; k++) {
        n += snprintf(csv + n, sizeof csv - (size_t)n, "0%c%d,", k < 16 ? 'F' : 'B', k % 16);
    }
    for (k = 0; k < 32; k++) {
        n += snprintf(csv + n, sizeof csv - (size_t)n, "%s1%c%d", k ? "," : "\n", k % 2 ? 'B' : 'F',
                      k / 2);
    }
    CHECK_INT(read_csv(&given, csv, strlen(csv), 0, list, sizeof list, &why), DPAR_OK);
    pipe_start(&c, 2, 1, 16, DPAR_STAGE_MAP_LOOP, 0);
    c.times.forward.each = c.times.input.each = f;
    c.times.hold_forward.each = hold;
    c.times.hold_weight.each = back;
    CHECK_INT(place_layers(&c.job, 3, &given, 99, cuts, NULL, &result, place_memory,
                           sizeof place_memory, &why),
              DPAR_E_RANGE);
    CHECK_TEXT(why.text, "rank 0, action 15: the bytes do not fit into 64 bits");
}

int main(void)
{
    random_seed = 4711;
    test_place();
    test_place_errors();
    test_place_beyond();
    return CHECK_DONE();
}
