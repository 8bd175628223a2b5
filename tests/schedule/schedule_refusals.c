/* SPDX-License-Identifier: MIT-0 */
/* Tests what dpar_schedule.h refuses, one wrong number at a time, with the message; and times so
 * long that a sum exceeds 2^63. The other tests of a module are about correct input;
 * tests/compile/coverage.sh counts both. Run with: tests/run test schedule. */
#include "dpar.h"

#include "schedule_calls.h"

#include "check.h"
#include "refused.h"

#include <stdlib.h>

static int64_t memory[40000], work[400000];
static dpar_schedule good;

static void make(const char *name, int32_t ranks, int32_t micros)
{
    CHECK_INT(generate_named(memory, sizeof memory, name, ranks, micros, &good, NULL), DPAR_OK);
}

/* Makes schedules with one number out of range, which every function must refuse. */
enum { WRONG = 14 };
static const char *wrong(dpar_schedule *s, int k)
{
    *s = good;
    switch (k) {
    case 0: s->ranks = 0; return "ranks";
    case 1: s->ranks = 65536; return "ranks";
    case 2: s->stages = 0; return "stages";
    case 3: s->stages = 65536; return "stages";
    case 4: s->micro_batches = -1; return "micros";
    case 5: s->micro_batches = 65536; return "micros";
    case 6: s->chain = 0; return "chain";
    case 7: s->chain = 3; return "chain";
    case 8: s->slices = 0; return "slices";
    case 9: s->slices = 3; return "slices";
    case 10: s->chain = -1; return "chain";
    case 11: s->slices = -1; return "slices";
    default: return NULL; /* begin, set below */
    }
}

static void test_shapes(void)
{
    dpar_schedule s, out;
    dpar_why why;
    dpar_schedule_times t;
    dpar_timing timing;
    dpar_schedule_simulate_desc how;
    dpar_schedule_check_desc check;
    dpar_schedule_slots_desc slotting;
    dpar_action_slots slots[1];
    dpar_slot_counts counts[1];
    int k;
    make("1f1b", 2, 4);
    memset(&t, 0, sizeof t);
    memset(&how, 0, sizeof how);
    memset(&check, 0, sizeof check);
    memset(&slotting, 0, sizeof slotting);
    slotting.slots = slots, slotting.counts = counts;
    t.forward.all = t.backward.all = 1;
    how.times = &t;
    for (k = 0; k < 12; k++) {
        (void)wrong(&s, k);
        CHECK_INT(dpari_schedule_simulate_bytes(&s, &how), -1);
        REFUSED(dpar_schedule_simulate(&s, &how, &timing, work, sizeof work, &why), DPAR_E_ARG, "");
        CHECK_INT(dpari_schedule_check_bytes(&s, &check), -1);
        REFUSED(dpar_schedule_check(&s, NULL, work, sizeof work, &why), DPAR_E_ARG, "");
        REFUSED(dpar_schedule_slots(&s, &slotting, work, sizeof work, &why), DPAR_E_ARG, "");
        if (k < 6) { /* chains and slices are not read before the proof */
            CHECK_INT(dpari_schedule_lower_bytes(&s, NULL, &why), -1);
            REFUSED(dpar_schedule_lower(&out, &s, NULL, work, sizeof work, &why), DPAR_E_ARG,
                    "1 to 65535");
        }
    }
    for (k = 0; k < 3; k++) {
        int64_t begin[3] = {0, 0, 0};
        begin[0] = k == 0 ? 1 : 0;
        begin[1] = good.begin[1];
        begin[2] = k == 1 ? -1 : k == 2 ? (int64_t)UINT32_MAX : good.begin[2];
        s = good;
        s.begin = begin;
        REFUSED(dpar_schedule_simulate(&s, &how, &timing, work, sizeof work, &why), DPAR_E_ARG, "");
    }
    REFUSED(dpar_schedule_simulate(&good, &how, &timing, NULL, sizeof work, &why), DPAR_E_ROOM, "");
    REFUSED(dpar_schedule_simulate(&good, &how, &timing, work, 8, &why), DPAR_E_ROOM, "got 8");
    for (k = 0; k < 4; k++) {
        t.sends = k == 0 ? -1 : k == 1 ? DPAR_SEND_MODE_COUNT : 0;
        t.links = k == 2 ? -1 : k == 3 ? DPAR_CONTENTION_COUNT : 0;
        REFUSED(dpar_schedule_simulate(&good, &how, &timing, work, sizeof work, &why), DPAR_E_ARG,
                "DPAR_SEND_MODE_x");
    }
    t.sends = t.links = 0;
    for (k = 0; k < 3; k++) {
        t.latency.all = -(k == 0), t.bytes.all = -(k == 1), t.bandwidth.all = -(k == 2);
        REFUSED(dpar_schedule_simulate(&good, &how, &timing, work, sizeof work, &why), DPAR_E_ARG,
                "0 or more are allowed");
    }
    t.latency.all = 0, t.bytes.all = INT64_MAX, t.bandwidth.all = 1; /* 9.2e27 ns */
    REFUSED(dpar_schedule_simulate(&good, &how, &timing, work, sizeof work, &why), DPAR_E_RANGE,
            "exceed INT64_MAX");
    t.latency.all = INT64_MAX, t.bytes.all = 1, t.bandwidth.all = INT64_C(1000000000);
    REFUSED(dpar_schedule_simulate(&good, &how, &timing, work, sizeof work, &why), DPAR_E_RANGE,
            "exceed INT64_MAX");
    /* 10^9 bytes / bandwidth is 2^63 - 1 and a remainder, so that it does not fit when rounded
     * up */
    t.latency.all = 0, t.bytes.all = INT64_C(9223372027631403771),
    t.bandwidth.all = INT64_C(999999999);
    CHECK_INT(dpar_schedule_simulate(&good, &how, &timing, work, sizeof work, &why), DPAR_E_RANGE);
    t.bytes.all = t.bandwidth.all = 0;
    t.overlap.all = -1;
    REFUSED(dpar_schedule_simulate(&good, &how, &timing, work, sizeof work, &why), DPAR_E_ARG,
            "the time of overlap is -1");
    t.overlap.all = 0, t.forward.all = -1;
    REFUSED(dpar_schedule_simulate(&good, &how, &timing, work, sizeof work, &why), DPAR_E_ARG,
            "the time of F is -1");
    t.forward.all = 1;
    { /* only starts, then only ends */
        int64_t at[100], end[100];
        CHECK(good.begin[2] <= 100);
        how.start = at;
        CHECK_INT(dpar_schedule_simulate(&good, &how, &timing, work, sizeof work, NULL), DPAR_OK);
        how.start = NULL, how.end = end;
        CHECK_INT(dpar_schedule_simulate(&good, &how, &timing, work, sizeof work, NULL), DPAR_OK);
        CHECK_INT(at[0], 0);
        CHECK_INT(end[0], 1);
    }
}

/* Changes one action of the lists. */
static void test_actions(void)
{
    dpar_schedule s;
    dpar_schedule_times t;
    dpar_timing timing;
    dpar_schedule_simulate_desc how;
    dpar_why why;
    dpar_action *a, before, second;
    make("1f1b", 2, 4);
    s = good;
    memset(&t, 0, sizeof t);
    memset(&how, 0, sizeof how);
    t.forward.all = t.backward.all = 1;
    how.times = &t;
    a = s.action;
    before = a[0];
    a[0].kind = DPAR_ACTION_SEND_B; /* of stage 0, which has no stage before it */
    REFUSED(dpar_schedule_simulate(&s, &how, &timing, work, sizeof work, &why), DPAR_E_ARG,
            "has no partner on another rank");
    a[0] = before;
    a[0].joined = 1; /* and an F follows it */
    REFUSED(dpar_schedule_simulate(&s, &how, &timing, work, sizeof work, &why), DPAR_E_ARG,
            "is joined, but it is not an F");
    a[0] = before;
    /* memory: F adds 2^63 - 1; the -2^63 that an OFFLOAD takes away cannot be negated */
    t.hold_forward.all = INT64_MIN;
    second = a[1];
    a[1] = before;
    a[1].kind = DPAR_ACTION_OFFLOAD;
    CHECK(dpar_schedule_simulate(&s, &how, &timing, work, sizeof work, &why) < 0);
    a[1] = second;
    t.hold_forward.all = INT64_MAX;
    CHECK(dpar_schedule_simulate(&s, &how, &timing, work, sizeof work, &why) < 0);
    t.hold_forward.all = 1, t.hold_input.all = INT64_MIN, t.hold_weight.all = INT64_MIN;
    CHECK(dpar_schedule_simulate(&s, &how, &timing, work, sizeof work, &why) < 0);
}

/* Checks kinds that do not exist, a message within a rank, and too little memory. */
static void test_lowering(void)
{
    dpar_schedule s, out;
    dpar_schedule_lower_desc how;
    dpar_action before;
    dpar_why why;
    int32_t pass;
    memset(&how, 0, sizeof how);
    make("zbv", 2, 4); /* stages 1 and 2 are on rank 1 */
    s = good;
    before = s.action[s.begin[1]];
    s.action[s.begin[1]].kind = 200;
    CHECK(dpar_schedule_lower(&out, &s, NULL, work, sizeof work, &why) == DPAR_E_ARG);
    s.action[s.begin[1]].kind = DPAR_ACTION_SEND_F;
    s.action[s.begin[1]].stage = 1, s.action[s.begin[1]].peer = 1;
    REFUSED(dpar_schedule_lower(&out, &s, NULL, work, sizeof work, &why), DPAR_E_ARG,
            "does not connect neighbouring stages");
    s.action[s.begin[1]] = before;
    /* REDUCE_GRAD waits for W's gradients */
    make("zb-h1", 2, 4);
    how.passes = DPAR_LOWER_REDUCE;
    REFUSED(dpar_schedule_lower(&out, &good, &how, work, sizeof work, NULL), DPAR_OK, NULL);
    CHECK_INT(out.begin[2], good.begin[2] + 2); /* one per stage */
    make("zbv", 2, 4);
    for (pass = 1; pass <= 32; pass *= 2) {
        how.passes = pass;
        if (dpari_schedule_lower_bytes(&s, &how, NULL) > 0) {
            REFUSED(dpar_schedule_lower(&out, &s, &how, work, 64, &why), DPAR_E_ROOM, "");
        }
    }
}

static void test_texts(void)
{
    static const struct {
        const char *text, *words;
    } bad[] = {{"(0B0;0B1)OVERLAP_F_B\n", "an F, which"},
               {"(0X0;0B1)OVERLAP_F_B\n", ""},
               {"(0F0,0B1)OVERLAP_F_B\n", ""},
               {"(0F0;0F1)OVERLAP_F_B\n", "a B or I"},
               {"(0F0;0Y1)OVERLAP_F_B\n", ""},
               {"(0F0;0B1)OVERLAP\n", ""},
               {"0F0,0QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ\n", ""},
               {"0F0,0Q", ""}};
    dpar_schedule s;
    dpar_schedule_read_desc in;
    dpar_why why;
    char *many;
    size_t k;
    for (k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        in = text_of_list(bad[k].text, strlen(bad[k].text), 0);
        why.text[0] = 0;
        CHECK_INT(read_csv_bytes(in.text, in.bytes, &why), -1);
        CHECK(strstr(why.text, bad[k].words) != NULL && why.text[0] != 0);
        REFUSED(dpar_schedule_read(&s, &in, memory, sizeof memory, &why), DPAR_E_PARSE,
                bad[k].words);
    }
    in = text_of_list("# nothing but a comment", 23, 0);
    why.text[0] = 0;
    CHECK_INT(read_csv_bytes(in.text, in.bytes, &why), -1);
    CHECK(strstr(why.text, "0 ranks and 0 stages; a schedule has") != NULL);
    REFUSED(dpar_schedule_read(&s, &in, memory, sizeof memory, &why), DPAR_E_PARSE,
            "1 or more of each");
    in = text_of_list(",,\n", 3, 0); /* a rank without actions, and no stage */
    CHECK_INT(read_csv_bytes(in.text, in.bytes, &why), -1);
    CHECK(strstr(why.text, "1 ranks and 0 stages; a schedule has") != NULL);
    REFUSED(dpar_schedule_read(&s, &in, memory, sizeof memory, &why), DPAR_E_PARSE,
            "1 or more of each");
    in = text_of_list("0F0\n0F1\n", 8, 0);
    REFUSED(dpar_schedule_read(&s, &in, memory, sizeof memory, &why), DPAR_E_ARG, "");
    in = text_of_list("0F0\n", 4, -1);
    REFUSED(dpar_schedule_read(&s, &in, memory, sizeof memory, &why), DPAR_E_ARG, "chains of -1");
    in = text_of_list("0F0,,\r\n1F0\t,\"\"\n", 15, 0); /* empty cells of three kinds */
    CHECK_INT(dpar_schedule_read(&s, &in, memory, sizeof memory, &why), DPAR_OK);
    many = (char *)malloc(2 * 65536);
    CHECK(many != NULL);
    if (many != NULL) {
        for (k = 0; k < 65536; k++) {
            memcpy(many + 2 * k, ",\n", 2);
        }
        in = text_of_list(many, 2 * 65536, 0);
        why.text[0] = 0;
        CHECK_INT(read_csv_bytes(in.text, in.bytes, &why), -1);
        CHECK(strstr(why.text, "at most 65535 ranks") != NULL);
        free(many);
    }
}

static void test_init(void)
{
    static const int32_t shape[5][2] = {{0, 1}, {65536, 1}, {1, 0}, {1, 65536}, {1, 1}};
    dpar_schedule s;
    dpar_why why;
    int k;
    for (k = 0; k < 5; k++) {
        int64_t actions = k == 4 ? -1 : 1;
        CHECK_INT(dpari_schedule_bytes(shape[k][0], shape[k][1], actions), -1);
        CHECK(schedule_init(&s, shape[k][0], shape[k][1], actions, memory, sizeof memory, &why) <
              0);
    }
    CHECK_INT(dpari_schedule_bytes(1, 1, INT64_MAX / 16 + 1), -1);
}

static void test_orders(void)
{
    dpar_schedule_desc o = order_of(DPAR_SCHEDULE_GPIPE, 4, 4, 0);
    dpar_schedule_times t, far;
    dpar_formula f;
    dpar_why why;
    int32_t k;
    o.lifo = -1;
    why.text[0] = 0;
    CHECK_INT(dpari_schedule_generate_bytes(&o, &why), -1);
    CHECK(strstr(why.text, "lifo=-1") != NULL);
    o.lifo = 0;
    memset(&t, 0, sizeof t);
    t.forward.all = 1, t.input.all = t.weight.all = 1;
    for (k = 0; k < 6; k++) {
        dpar_stage_values *each[6];
        far = t;
        each[0] = &far.forward, each[1] = &far.input, each[2] = &far.weight,
        each[3] = &far.backward;
        each[4] = &far.latency, each[5] = &far.overlap;
        each[k]->all = -1;
        REFUSED(dpar_schedule_closed_form(&o, &far, 0, 0, &f, &why), DPAR_E_ARG, "0 or more");
        if (k != 4) {
            each[k]->all = INT64_MAX;
            REFUSED(dpar_schedule_closed_form(&o, &far, 0, 0, &f, &why), DPAR_E_RANGE,
                    "times must be at most");
        }
    }
    for (k = 0; k < 9;
         k++) { /* formulas need stages that are all equal, and messages without a size */
        static const int64_t ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
        dpar_stage_values *each[8];
        far = t;
        each[0] = &far.forward, each[1] = &far.input, each[2] = &far.weight,
        each[3] = &far.backward;
        each[4] = &far.latency, each[5] = &far.overlap, each[6] = &far.bandwidth;
        if (k < 7) {
            each[k]->each = ones;
        }
        far.bandwidth.all = k == 7;
        far.sends = k == 8 ? DPAR_SEND_MODE_BUFFERED + 1 : DPAR_SEND_MODE_BUFFERED;
        CHECK(dpar_schedule_closed_form(&o, &far, 0, 0, &f, &why) != DPAR_OK);
    }
    o = order_of(DPAR_SCHEDULE_SEQ1F1B, 4, 8, 0); /* 0 slices means 2 */
    CHECK_INT(dpar_schedule_closed_form(&o, &t, DPAR_FORMULA_MAKESPAN, 0, &f, &why), DPAR_OK);
    o.slices = 4;
    CHECK_INT(dpar_schedule_closed_form(&o, &t, DPAR_FORMULA_MAKESPAN, 0, &f, &why), DPAR_OK);
    far = t; /* times that fit, whose sums do not */
    far.forward.all = far.input.all = far.weight.all = INT64_MAX / 4;
    for (k = 1; k < DPAR_SCHEDULE_END; k++) {
        int32_t what;
        o = order_of(k, 4, 64, 0);
        for (what = 0; what < DPAR_FORMULA_COUNT; what++) {
            int32_t st = dpar_schedule_closed_form(&o, &far, what, 0, &f, &why);
            CHECK(st != DPAR_OK || f.value >= 0);
            CHECK(st != DPAR_OK || what != DPAR_FORMULA_MAKESPAN ||
                  k == DPAR_SCHEDULE_FORWARD_ONLY);
        }
    }
    o = order_of(DPAR_SCHEDULE_INTERLEAVED, 4, 16, 2);
    o.group = 8;
    REFUSED(dpar_schedule_closed_form(&o, &t, DPAR_FORMULA_MAKESPAN, 0, &f, &why), DPAR_E_NONE,
            "groups have p micro-batches");
    o.group = 4;
    CHECK_INT(dpar_schedule_closed_form(&o, &t, DPAR_FORMULA_MAKESPAN, 0, &f, &why), DPAR_OK);
    o = order_of(DPAR_SCHEDULE_V_HALF, 14, 28, 2);
    REFUSED(dpar_schedule_closed_form(&o, &t, DPAR_FORMULA_PEAK, 0, &f, &why), DPAR_E_NONE, "");
    o = order_of(DPAR_SCHEDULE_V_HALF, 4, 7, 2);
    REFUSED(dpar_schedule_closed_form(&o, &t, DPAR_FORMULA_PEAK, 0, &f, &why), DPAR_E_NONE, "");
    o = order_of(DPAR_SCHEDULE_GPIPE, 4, 4, 0);
    for (k = 0; k < 4; k++) {
        REFUSED(dpar_schedule_closed_form(&o, &t,
                                          k == 0   ? -1
                                          : k == 1 ? DPAR_FORMULA_COUNT
                                                   : 0,
                                          k == 2   ? -1
                                          : k == 3 ? 4
                                                   : 0,
                                          &f, &why),
                DPAR_E_ARG, "formulas are 0 to 4");
    }
}

static dpar_schedule_optimize_desc job_of(const dpar_schedule_times *t, int32_t ranks,
                                          int32_t stages, int32_t micros)
{
    dpar_schedule_optimize_desc job;
    memset(&job, 0, sizeof job);
    job.times = t;
    job.ranks = ranks, job.stages = stages, job.micro_batches = micros;
    job.split = 1;
    return job;
}

static void test_jobs(void)
{
    dpar_schedule_times fine, t;
    dpar_schedule_optimize_desc job, wrong_job;
    dpar_schedule_optimize_result result;
    dpar_schedule s;
    dpar_why why;
    int64_t bytes;
    int k;
    const int64_t most = INT64_C(1) << 60;
    memset(&fine, 0, sizeof fine);
    fine.forward.all = fine.input.all = fine.weight.all = 1;
    job = job_of(&fine, 2, 2, 4);
    bytes = dpari_schedule_auto_bytes(&job, NULL);
    CHECK(bytes > 0 && bytes <= (int64_t)sizeof work);
    REFUSED(dpar_schedule_optimize(&s, &job, &result, work, bytes - 8, &why), DPAR_E_ROOM, "got");
    for (k = 0; k < 12; k++) {
        wrong_job = job;
        switch (k) {
        case 0: wrong_job.ranks = 0; break;
        case 1: wrong_job.ranks = 4097; break;
        case 2: wrong_job.stages = 1; break;
        case 3: wrong_job.stages = 16385; break;
        case 4: wrong_job.micro_batches = 0; break;
        case 5: wrong_job.micro_batches = 65536; break;
        case 6: wrong_job.stages = 16384, wrong_job.micro_batches = 16385; break;
        case 7: wrong_job.times = NULL; break;
        case 8: wrong_job.split = -1; break;
        case 9: wrong_job.split = 2; break;
        case 10: wrong_job.objective = -1; break;
        default: wrong_job.objective = DPAR_OBJECTIVE_SPAN + 1; break;
        }
        CHECK_INT(dpari_schedule_auto_bytes(&wrong_job, NULL), -1);
        REFUSED(dpar_schedule_optimize(&s, &wrong_job, &result, work, sizeof work, &why),
                DPAR_E_ARG, "");
    }
    wrong_job = job;
    wrong_job.nodes = -1;
    REFUSED(dpar_schedule_optimize(&s, &wrong_job, &result, work, sizeof work, &why), DPAR_E_ARG,
            "nodes=-1");
    wrong_job = job;
    wrong_job.times = &t;
    for (k = 0; k < 8; k++) { /* a negative time, size or bandwidth; a bandwidth too large */
        t = fine;
        switch (k) {
        case 0: t.forward.all = -1; break;
        case 1: t.input.all = -1; break;
        case 2: t.weight.all = -1; break;
        case 3: t.backward.all = -1; break;
        case 4: t.latency.all = -1; break;
        case 5: t.bytes.all = -1; break;
        case 6: t.bandwidth.all = -1; break;
        default: t.bandwidth.all = INT64_MAX / 10 + 1; break;
        }
        REFUSED(dpar_schedule_optimize(&s, &wrong_job, &result, work, sizeof work, &why),
                DPAR_E_ARG, "stage 0: times, latency and bytes");
    }
    for (k = 0; k < 7; k++) { /* sums that exceed 2^60 at each of the terms */
        t = fine;
        switch (k) {
        case 0: t.forward.all = most + 1; break;
        case 1: t.input.all = most; break;
        case 2: t.weight.all = most; break;
        case 3: t.backward.all = most; break;
        case 4: t.latency.all = most; break;
        case 5: t.latency.all = most / 2 + 1; break;
        default: t.latency.all = most + 1; break;
        }
        REFUSED(dpar_schedule_optimize(&s, &wrong_job, &result, work, sizeof work, &why),
                DPAR_E_RANGE, "the times of stages 0 to");
    }
    t = fine;
    t.forward.all = most / 4;
    REFUSED(dpar_schedule_optimize(&s, &wrong_job, &result, work, sizeof work, &why), DPAR_E_RANGE,
            "units of time exceed 2^60");
    wrong_job.micro_batches = 65535;
    wrong_job.stages = 2;
    t.forward.all = most / 3;
    REFUSED(dpar_schedule_optimize(&s, &wrong_job, &result, work, sizeof work, &why), DPAR_E_RANGE,
            "units of time exceed 2^60");
    wrong_job.micro_batches = 4;
    for (k = 0; k < 6; k++) { /* bytes: F adds them, I and W take all of them away */
        t = fine;
        t.hold_forward.all = k == 0 ? -1 : 4;
        t.hold_input.all = k == 1 ? 1 : k == 2 ? -5 : -2;
        t.hold_weight.all = k == 3 ? 1 : k == 4 ? -1 : -2;
        t.hold_always.all = k == 5 ? -1 : 0;
        REFUSED(dpar_schedule_optimize(&s, &wrong_job, &result, work, sizeof work, &why),
                DPAR_E_ARG, "hold_always must be 0 or more");
    }
    t = fine;
    t.hold_forward.all = most, t.hold_input.all = -most;
    REFUSED(dpar_schedule_optimize(&s, &wrong_job, &result, work, sizeof work, &why), DPAR_E_RANGE,
            "hold_forward or hold_always of stages 0 to 1 adds up to more than 2^60 bytes");
    t.hold_forward.all = 1, t.hold_input.all = -1, t.hold_always.all = most;
    REFUSED(dpar_schedule_optimize(&s, &wrong_job, &result, work, sizeof work, &why), DPAR_E_RANGE,
            "hold_forward or hold_always of stages 0 to 1 adds up to more than 2^60 bytes");
    t.hold_always.all = 0;
    t.hold_forward.all = most / 4, t.hold_input.all = -most / 4;
    REFUSED(dpar_schedule_optimize(&s, &wrong_job, &result, work, sizeof work, &why), DPAR_E_RANGE,
            "4 micro-batches of");
    wrong_job.micro_batches = 65535;
    REFUSED(dpar_schedule_optimize(&s, &wrong_job, &result, work, sizeof work, &why), DPAR_E_RANGE,
            "65535 micro-batches of");
    wrong_job.micro_batches = 4;
    /* the cap: one rank must hold more, with and without a constant part */
    t = fine;
    wrong_job.cap.all = 1;
    REFUSED(dpar_schedule_optimize(&s, &wrong_job, &result, work, sizeof work, NULL), DPAR_OK,
            NULL);
    t.hold_forward.all = 8, t.hold_input.all = -8;
    REFUSED(dpar_schedule_optimize(&s, &wrong_job, &result, work, sizeof work, &why), DPAR_E_MEMORY,
            "cannot fit");
    { /* stages that hold different amounts */
        static const int64_t holds[2] = {8, 9}, back[2] = {-8, -9};
        t.hold_forward.each = holds, t.hold_input.each = back;
        REFUSED(dpar_schedule_optimize(&s, &wrong_job, &result, work, sizeof work, &why),
                DPAR_E_MEMORY, "cannot fit");
        t.hold_forward.each = t.hold_input.each = NULL;
    }
    { /* and on one rank */
        static const int64_t holds[4] = {8, 8, 9, 8}, back[4] = {-8, -8, -9, -8};
        wrong_job.stages = 4;
        wrong_job.cap.all = 10;
        t.hold_forward.each = holds, t.hold_input.each = back;
        REFUSED(dpar_schedule_optimize(&s, &wrong_job, &result, work, sizeof work, &why),
                DPAR_E_MEMORY, "cannot fit");
        t.hold_forward.each = t.hold_input.each = NULL;
        wrong_job.stages = 2;
        wrong_job.cap.all = 1;
    }
    t.hold_always.all = 100;
    REFUSED(dpar_schedule_optimize(&s, &wrong_job, &result, work, sizeof work, &why), DPAR_E_MEMORY,
            "cannot fit");
}

static void test_exact(void)
{
    dpar_schedule_times t;
    dpar_schedule_optimize_desc job;
    dpar_schedule_optimize_result result;
    dpar_schedule s;
    dpar_why why;
    int64_t bytes;
    int k;
    memset(&t, 0, sizeof t);
    t.forward.all = t.input.all = t.weight.all = 1;
    job = job_of(&t, 13, 13, 4);
    CHECK_INT(dpari_exact_bytes(&job, 1), -1);
    REFUSED(dpari_exact_search(&job, 1, 0, &s, &result, work, sizeof work, &why), DPAR_E_ARG,
            "up to 12, 24 and 255");
    job = job_of(&t, 2, 25, 4);
    REFUSED(dpari_exact_search(&job, 1, 0, &s, &result, work, sizeof work, &why), DPAR_E_ARG,
            "up to 12, 24 and 255");
    job = job_of(&t, 2, 2, 256);
    REFUSED(dpari_exact_search(&job, 1, 0, &s, &result, work, sizeof work, &why), DPAR_E_ARG,
            "up to 12, 24 and 255");
    job = job_of(&t, 2, 2, 2);
    bytes = dpari_exact_bytes(&job, 1);
    CHECK(bytes > 0);
    CHECK_INT(dpari_exact_bytes(&job, 0), -1);
    CHECK_INT(dpari_exact_bytes(&job, (INT64_C(1) << 31) + 1), -1);
    for (k = 0; k < 4; k++) {
        t.forward.all = k == 0 ? 0 : k == 1 ? INT64_C(1) << 31 : 1;
        t.input.all = k == 2 ? 0 : 1;
        t.latency.all = k == 3 ? INT64_C(1) << 31 : 0;
        CHECK_INT(dpari_exact_bytes(&job, 1), -1);
    }
    t.latency.all = 0;
    t.weight.all = INT64_C(1) << 31;
    CHECK_INT(dpari_exact_bytes(&job, 1), -1);
    t.weight.all = 1;
    CHECK_INT(schedule_init(&s, 2, 2, 12, memory, sizeof memory, NULL), DPAR_OK);
    REFUSED(dpari_exact_search(&job, -1, 0, &s, &result, work, sizeof work, &why), DPAR_E_ARG,
            "must be 0 or more");
    REFUSED(dpari_exact_search(&job, 1, -1, &s, &result, work, sizeof work, &why), DPAR_E_ARG,
            "must be 0 or more");
    s.stages = 3;
    REFUSED(dpari_exact_search(&job, 1, 0, &s, &result, work, sizeof work, &why), DPAR_E_ARG,
            "the schedule has 2 ranks and 3 stages");
    s.stages = 2, s.ranks = 3;
    REFUSED(dpari_exact_search(&job, 1, 0, &s, &result, work, sizeof work, &why), DPAR_E_ARG,
            "the schedule has 3 ranks");
    s.ranks = 2;
    REFUSED(dpari_exact_search(&job, 1, 0, &s, &result, work, bytes - 1, &why), DPAR_E_ROOM, "");
}

static void test_placing(void)
{
    dpar_schedule_times t;
    dpar_schedule_optimize_desc job;
    dpar_schedule_partition_desc how, fine;
    dpar_schedule_optimize_result result;
    dpar_schedule s, given;
    dpar_why why;
    int64_t cuts[3], bytes;
    int k;
    memset(&t, 0, sizeof t);
    t.forward.all = t.input.all = t.weight.all = 1;
    job = job_of(&t, 2, 2, 4);
    job.split = 0;
    memset(&fine, 0, sizeof fine);
    fine.job = &job, fine.layers = 6, fine.tries = 10, fine.cuts = cuts;
    bytes = dpari_schedule_place_bytes(&fine);
    CHECK(bytes > 0 && bytes <= (int64_t)sizeof work);
    REFUSED(dpar_schedule_partition(&s, &fine, &result, work, bytes - 8, &why), DPAR_E_ROOM, "got");
    how = fine;
    how.tries = 0;
    REFUSED(dpar_schedule_partition(&s, &how, &result, work, sizeof work, &why), DPAR_E_ARG,
            "tries=0");
    for (k = 0; k < 5; k++) {
        how = fine;
        job = job_of(&t, 2, 2, 4);
        switch (k) {
        case 0: job.times = NULL; break;
        case 1: job.stages = 0; break;
        case 2: job.stages = 16385, how.layers = 20000; break;
        case 3: how.layers = 1; break;
        default: how.layers = (1 << 24) + 1; break;
        }
        CHECK_INT(dpari_schedule_place_bytes(&how), -1);
        REFUSED(dpar_schedule_partition(&s, &how, &result, work, sizeof work, &why), DPAR_E_ARG,
                "each stage needs a layer");
    }
    job = job_of(&t, 0, 2, 4); /* an invalid job: no ranks */
    CHECK_INT(dpari_schedule_place_bytes(&fine), -1);
    REFUSED(dpar_schedule_partition(&s, &fine, &result, work, sizeof work, &why), DPAR_E_ARG,
            "0 ranks");
    job = job_of(&t, 2, 2, 4);
    job.split = 0;
    make("1f1b", 2, 4);
    for (k = 0; k < 5; k++) {
        given = good;
        switch (k) {
        case 0: given.ranks = 1; break;
        case 1: given.stages = 1; break;
        case 2: given.micro_batches = 3; break;
        case 3: given.chain = 1; break;
        default: given.slices = 2; break;
        }
        how = fine;
        how.given = &given;
        REFUSED(dpar_schedule_partition(&s, &how, &result, work, sizeof work, &why), DPAR_E_ARG,
                "the given schedule has");
    }
    /* the simulation finds an invalid schedule at the first cut */
    given = good;
    how.given = &given;
    given.action[0].joined = 1;
    CHECK(dpar_schedule_partition(&s, &how, &result, work, sizeof work, &why) < 0);
    given.action[0].joined = 0;
    REFUSED(dpar_schedule_partition(&s, &how, &result, work, sizeof work, NULL), DPAR_OK, NULL);
    t.backward.all = 3;
    REFUSED(dpar_schedule_partition(&s, &how, &result, work, sizeof work, NULL), DPAR_OK, NULL);
    t.backward.all = 0;
    /* what the caller's schedule holds exceeds the cap, counted and in bytes */
    job.cap.all = 1;
    REFUSED(dpar_schedule_partition(&s, &how, &result, work, sizeof work, &why), DPAR_E_MEMORY,
            "its cap is 1");
    t.hold_forward.all = 5, t.hold_input.all = -5;
    REFUSED(dpar_schedule_partition(&s, &how, &result, work, sizeof work, &why), DPAR_E_MEMORY,
            "its cap is 1");
    t.hold_input.all = INT64_MIN;
    CHECK(dpar_schedule_partition(&s, &how, &result, work, sizeof work, &why) < 0);
}

static void test_pictures(void)
{
    static char text[100000];
    static int64_t start[400], end[400];
    static int64_t begin[3];
    dpar_schedule_draw_desc g;
    dpar_text t;
    dpar_schedule_times times;
    dpar_timing timing;
    dpar_schedule_simulate_desc how;
    dpar_schedule s;
    dpar_why why;
    int k;
    make("1f1b", 2, 4);
    memset(&times, 0, sizeof times);
    memset(&how, 0, sizeof how);
    times.forward.all = times.backward.all = 1;
    how.times = &times, how.start = start, how.end = end;
    CHECK_INT(dpar_schedule_simulate(&good, &how, &timing, work, sizeof work, NULL), DPAR_OK);
    memset(&g, 0, sizeof g);
    s = good;
    g.schedule = &s, g.start = start, g.end = end, g.unit = 1;
    dpar_text_init(&t, text, sizeof text);
    for (k = 0; k < 4; k++) {
        s.ranks = k == 0 ? 0 : k == 1 ? 65536 : 2;
        g.unit = k == 2 ? 0 : k == 3 ? INT64_C(1000000000001) : 1;
        REFUSED(dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_TEXT, &why), DPAR_E_ARG,
                "1 to 65535 and");
    }
    g.unit = 1;
    memcpy(begin, good.begin, sizeof begin);
    s.begin = begin;
    begin[0] = -1;
    REFUSED(dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_TEXT, &why), DPAR_E_ARG,
            "begins at action -1");
    begin[0] = 0, begin[1] = -1;
    REFUSED(dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_TEXT, &why), DPAR_E_ARG, "ends at -1");
    s.begin = good.begin;
    s.action[0].joined = 1;
    REFUSED(dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_TEXT, &why), DPAR_E_ARG,
            "is joined, but it is not an F");
    s.action[1].kind = DPAR_ACTION_INPUT; /* an I may overlap too */
    CHECK_INT(dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_TEXT, &why), DPAR_OK);
    s.action[0].joined = 0;
    for (k = 0; k < 2; k++) {
        g.width = k == 0 ? 31 : 4097;
        REFUSED(dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_TEXT, &why), DPAR_E_ARG,
                "32 to 4096");
    }
    g.width = 32;
    g.title = "a < b\x01\x7f\"\\";
    for (k = 0; k < 3; k++) {
        t.used = t.line = t.width = 0;
        CHECK_INT(dpar_schedule_draw(&t, &g, k, &why), DPAR_OK);
        CHECK(k == DPAR_SCHEDULE_DRAW_TEXT ||
              (strchr(text, 1) == NULL && strchr(text, 127) == NULL));
        CHECK(t.used > 100);
    }
    /* all of it takes no time, and kinds that do no work */
    memset(start, 0, sizeof start);
    memset(end, 0, sizeof end);
    s.action[0].kind = DPAR_ACTION_RECOMPUTE, s.action[1].kind = DPAR_ACTION_IDLE;
    s.action[2].kind = DPAR_ACTION_OFFLOAD, s.action[3].kind = DPAR_ACTION_RELOAD;
    g.width = 0;
    for (k = 0; k < 3; k++) {
        int i;
        for (i = 0; i < 2; i++) {
            t.used = t.line = t.width = 0;
            CHECK_INT(dpar_schedule_draw(&t, &g, k, &why), DPAR_OK);
            CHECK(t.used > 100);
            end[0] = end[2] = end[3] = 9;
            start[2] = start[3] = 1;
        }
        start[2] = start[3] = end[0] = end[2] = end[3] = 0;
    }
}

int main(void)
{
    test_shapes();
    test_actions();
    test_lowering();
    test_texts();
    test_init();
    test_orders();
    test_jobs();
    test_exact();
    test_placing();
    test_pictures();
    return CHECK_DONE();
}
