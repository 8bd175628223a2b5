/* SPDX-License-Identifier: MIT-0 */
/* Tests auto, the search for schedules: no worse than sail-sg's zb.py on its own demo inputs (its
 * results from running it), equal to the exact optimum on small jobs, no worse than the published
 * orders, and always within the caps. Run with: tests/run test schedule. */
#include "dpar_schedule.h"
#include "schedule_calls.h"

#include "check.h"
#include "random.h"
#include "pipe_judge.h"

#include "pipe_oracle.h"

static int64_t memory[1 << 19], room[1 << 12];

static dpar_status run(const dpar_schedule_optimize_desc *job, int64_t nodes, dpar_schedule *s,
                       dpar_schedule_optimize_result *result, dpar_why *why)
{
    return make_auto(job, nodes, s, result, memory, sizeof memory, why);
}

static dpar_schedule_optimize_result reached; /* set by the last reach() */

/* Runs the search, checks its schedule, and returns the objective. */
static int64_t reach(const dpar_schedule_optimize_desc *job, int64_t nodes)
{
    dpar_schedule s;
    dpar_schedule_optimize_result result;
    dpar_why why;
    dpar_status st;
    why.text[0] = 0;
    st = run(job, nodes, &s, &result, &why);
    CHECK_TEXT(why.text, "");
    CHECK(st == DPAR_OK || st == DPAR_MORE);
    if (st < 0) {
        return -1;
    }
    pipe_judge(job, &s, &result);
    reached = result;
    CHECK_INT(result.bound ==
                  (job->objective == DPAR_OBJECTIVE_SPAN ? result.span : result.makespan),
              st == DPAR_OK);
    return job->objective == DPAR_OBJECTIVE_SPAN ? result.span : result.makespan;
}

/* The inputs at the end of sail-sg/zero-bubble-pipeline-parallelism scheduler/zb.py (branch
 * refactor-zb-schedule). The spans and makespans are the least that its eight variants reach, from
 * running it. */
static void test_demos(void)
{
    static const struct {
        int p, m;
        int64_t f, i, w, lag, hold_f, hold_i, hold_w, cap, span, makespan;
    } demo[] = {{4, 12, 5, 6, 4, 0, 2, -1, -1, 10, 193, 195},
                {4, 12, 5, 6, 4, 0, 2, -1, -1, 14, 183, 195},
                {4, 12, 5478, 5806, 3534, 200, 2, -1, -1, 32, 178898, 194850},
                {32, 16, 1, 1, 1, 0, 2, -1, -1, 64, 95, 95},
                {24, 72, 5, 6, 4, 0, 2, -1, -1, 100, 1088, 1195},
                {8, 32, 29850, 29767, 18868, 466, 3720, -2048, -1672, 59520, 2517463, 2723732}};
    size_t k;
    for (k = 0; k < sizeof demo / sizeof demo[0]; k++) {
        pipe_case c;
        pipe_start(&c, demo[k].p, 1, demo[k].m, DPAR_STAGE_MAP_LOOP, 1);
        pipe_uniform(&c, demo[k].f, demo[k].i, demo[k].w, demo[k].lag, demo[k].cap);
        pipe_holds(&c, demo[k].hold_f, demo[k].hold_i, demo[k].hold_w);
        CHECK(reach(&c.job, 0) <= demo[k].makespan);
        CHECK(reached.span <= demo[k].span + (k == 0)); /* both at once, except for one */
        c.job.objective = DPAR_OBJECTIVE_SPAN;
        CHECK(reach(&c.job, 0) <= demo[k].span);
    }
}

/* Checks the measured profile there: 8 stages, the last one heavier. */
static void test_profile(void)
{
    static const int64_t f[] = {30715, 29233, 29106, 29078, 28850, 28919, 28924, 41678};
    static const int64_t i[] = {31308, 29344, 29357, 29455, 29217, 29384, 29354, 38731};
    static const int64_t w[] = {18746, 18789, 19062, 19367, 19455, 19967, 20096, 32833};
    static const int64_t hf[] = {943, 1240, 1240, 1240, 1240, 1240, 1240, 1071};
    static const int64_t hi[] = {-533, -688, -688, -688, -688, -688, -688, -588};
    static const int64_t hw[] = {-410, -552, -552, -552, -552, -552, -552, -483};
    pipe_case c;
    pipe_start(&c, 8, 1, 32, DPAR_STAGE_MAP_LOOP, 1);
    pipe_uniform(&c, 0, 0, 0, 473, 1240 * 16);
    c.times.forward.each = f;
    c.times.input.each = i;
    c.times.weight.each = w;
    c.times.hold_forward.each = hf;
    c.times.hold_input.each = hi;
    c.times.hold_weight.each = hw;
    CHECK_INT(reach(&c.job, 0), 3831880); /* zb.py's result, and the bound */
    CHECK_INT(reached.span, 3623744);     /* the least span among those */
    c.job.objective = DPAR_OBJECTIVE_SPAN;
    CHECK_INT(reach(&c.job, 0), 3623744); /* (41678 + 38731 + 32833) 32: no bubble */
}

/* Compares with the optima of exact_optimum.txt (exhaustive search): with a search all are reached;
 * the rules without a search miss some, by less than a tenth. */
static void test_optima(void)
{
    FILE *file = fopen("tests/data/pipeline/exact_optimum.txt", "r");
    pipe_case c;
    int lines = 0, met = 0;
    CHECK(file != NULL);
    while (file != NULL && pipe_line(file, &c)) {
        int64_t got = reach(&c.job, 0);
        CHECK_INT(reach(&c.job, 1000000), c.expected);
        CHECK(got >= c.expected && 10 * got <= 11 * c.expected);
        met += got == c.expected;
        lines++;
    }
    CHECK_INT(lines, 97);
    CHECK(met >= 91);
    if (file != NULL) {
        fclose(file);
    }
}

/* Checks 48 small jobs with memory for p, p + 1 and 2p activations: the rules without a search
 * reach the optimum that the exact search finds (as zb.py does). */
static void test_small(void)
{
    static const int size[][2] = {{2, 4}, {3, 4}, {3, 6}, {4, 4}};
    static const int time[][3] = {{1, 1, 1}, {1, 2, 1}, {2, 3, 1}, {2, 2, 1}};
    int k, t, a;
    for (k = 0; k < 4; k++) {
        for (t = 0; t < 4; t++) {
            for (a = 0; a < 3; a++) {
                int p = size[k][0];
                pipe_case c;
                dpar_schedule s;
                dpar_schedule_optimize_result best;
                pipe_start(&c, p, 1, size[k][1], DPAR_STAGE_MAP_LOOP, 1);
                pipe_uniform(&c, time[t][0], time[t][1], time[t][2], 0,
                             a == 0   ? p
                             : a == 1 ? p + 1
                                      : 2 * p);
                CHECK_INT(
                    schedule_init(&s, p, p, dpari_pipe_actions(&c.job), room, sizeof room, NULL),
                    DPAR_OK);
                CHECK_INT(
                    dpari_exact_search(&c.job, INT64_MAX, 0, &s, &best, memory, 1 << 20, NULL),
                    DPAR_OK);
                CHECK_INT(reach(&c.job, 0), best.makespan);
            }
        }
    }
}

/* Makespans of published orders with the memory that they take, in units of a chunk's F = I = W (or
 * 1/40 of a stage's): facts/pipeline.md, sections 8 to 10, and metrics.tsv. */
static void test_published(void)
{
    static const struct {
        int p, v, map, m, split, cap, unit, lag, makespan;
    } order[] = {{4, 1, DPAR_STAGE_MAP_LOOP, 8, 0, 4, 1, 0, 33},       /* 1F1B */
                 {4, 1, DPAR_STAGE_MAP_LOOP, 8, 1, 4, 1, 0, 27},       /* ZB-H1 */
                 {4, 2, DPAR_STAGE_MAP_LOOP, 8, 0, 11, 1, 0, 57},      /* interleaved */
                 {4, 2, DPAR_STAGE_MAP_LOOP, 8, 1, 8, 1, 0, 51},       /* interleaved ZB */
                 {4, 2, DPAR_STAGE_MAP_V, 8, 1, 8, 1, 0, 51},          /* ZBV */
                 {4, 2, DPAR_STAGE_MAP_V, 8, 1, 6, 1, 0, 53},          /* V-Half */
                 {4, 2, DPAR_STAGE_MAP_V, 8, 1, 4, 1, 0, 59},          /* V-Min */
                 {4, 2, DPAR_STAGE_MAP_V, 8, 0, 6, 1, 0, 63},          /* 1F1B-V */
                 {8, 1, DPAR_STAGE_MAP_LOOP, 32, 0, 15, 40, 40, 5240}, /* eager 1F1B: 131 */
                 {8, 1, DPAR_STAGE_MAP_LOOP, 32, 1, 8, 40, 8, 4344},   /* ZB-1P: 108.6 */
                 {8, 1, DPAR_STAGE_MAP_LOOP, 32, 1, 31, 40, 8, 4288},  /* ZB-2P: 107.2 */
                 {8, 2, DPAR_STAGE_MAP_LOOP, 32, 1, 16, 20, 8, 4268},  /* interleaved ZB: 106.7 */
                 {8, 2, DPAR_STAGE_MAP_V, 32, 1, 16, 20, 8, 4244},     /* ZBV: 106.1 */
                 {8, 2, DPAR_STAGE_MAP_V, 32, 1, 10, 20, 40, 8640},    /* V-Half: 216 */
                 {8, 2, DPAR_STAGE_MAP_V, 32, 1, 8, 20, 0, 4380},      /* V-Min: 109.5 */
                 {8, 4, DPAR_STAGE_MAP_LOOP, 32, 0, 39, 10, 8, 4546}}; /* interleaved v4: 113.65 */
    size_t k;
    for (k = 0; k < sizeof order / sizeof order[0]; k++) {
        pipe_case c;
        int u = order[k].unit;
        pipe_start(&c, order[k].p, order[k].v, order[k].m, order[k].map, order[k].split);
        pipe_uniform(&c, u, u, u, order[k].lag, order[k].cap);
        CHECK(reach(&c.job, 0) <= order[k].makespan);
    }
}

/* Checks random jobs: unequal stages, latencies, bytes, caps from the least upwards, and maps of
 * the caller's. */
static void test_random(void)
{
    static uint16_t map[PIPE_MOST];
    int n, k, r;
    for (n = 0; n < 300; n++) {
        pipe_case c;
        int p = random_int(1, 6), v = random_int(1, 4), stages = p * v;
        int split = random_int(0, 1), micros = random_int(1, 12); /* one order on all compilers */
        pipe_start(&c, p, v, micros, DPAR_STAGE_MAP_LOOP, split);
        c.job.objective = random_int(0, 1);
        c.job.rank_of = map;
        c.job.cap.each = c.cap;
        c.times.forward.each = c.f;
        c.times.input.each = c.i;
        c.times.weight.each = c.w;
        c.times.latency.each = c.lag;
        c.times.hold_forward.each = c.hold_f;
        c.times.hold_input.each = c.hold_i;
        c.times.hold_weight.each = c.hold_w;
        for (k = 0; k < stages; k++) {
            map[k] = (uint16_t)(k < p ? p - 1 - k : random_int(0, p - 1));
            c.f[k] = random_int(0, 20);
            c.i[k] = random_int(0, 20);
            c.w[k] = random_int(0, 20);
            c.lag[k] = random_some(30);
            c.hold_f[k] = random_int(0, 9);
            c.hold_i[k] = -random_int(0, (int)c.hold_f[k]);
            c.hold_w[k] = -c.hold_f[k] - c.hold_i[k];
            c.cap[map[k]] += c.hold_f[k];
        }
        for (r = 0; r < p; r++) {
            c.cap[r] += random_some(30) + (c.cap[r] == 0);
        }
        if (random_int(0, 1)) { /* messages of up to 30 + 20 ticks, rounded up */
            c.times.bytes.all = random_int(0, 2000);
            c.times.bandwidth.all = INT64_C(100000000001);
        }
        if (random_int(0, 1)) {
            c.times.hold_always.all = 7;
            for (k = 0; k < stages; k++) {
                c.cap[map[k]] += 7;
            }
        }
        CHECK(reach(&c.job, random_int(0, 1) * 500) > -1);
    }
}

/* Gives a case on a line of ranks its arrays. */
static void arrays(pipe_case *c, const int64_t (*each)[3], int n)
{
    int k;
    for (k = 0; k < n; k++) {
        c->f[k] = each[0][k], c->i[k] = each[1][k], c->w[k] = each[2][k];
        c->lag[k] = each[3][k], c->cap[k] = each[4][k];
        c->hold_f[k] = each[5][k], c->hold_i[k] = each[6][k];
        c->hold_w[k] = -c->hold_f[k] - c->hold_i[k];
    }
    c->times.forward.each = c->f, c->times.input.each = c->i, c->times.weight.each = c->w;
    c->times.latency.each = c->lag, c->job.cap.each = c->cap;
    c->times.hold_forward.each = c->hold_f, c->times.hold_input.each = c->hold_i;
    c->times.hold_weight.each = c->hold_w;
}

/* Checks corner cases that were worked out by hand. */
static void test_corners(void)
{
    /* One micro-batch whose last stage takes no time: F until 3, 5, 13; I until 13, 30, 33; the
     * second stage's W until 36. */
    static const int64_t idle_end[][3] = {{3, 2, 0},  {3, 9, 0}, {0, 6, 4},  {0, 8, 0},
                                          {1, 3, 26}, {1, 3, 5}, {0, -2, -4}};
    /* Only messages, of 3 and 47, take time, and rank 1 has memory for one activation: its first F
     * is at 3 and its second at 97, after I of the first returned; the second B is on rank 0 at 97
     * + 2 x 47 + 3. */
    static const int64_t messages[][3] = {{0, 0, 0}, {0, 0, 0}, {0, 0, 0},   {3, 47, 0},
                                          {0, 1, 1}, {1, 1, 1}, {-1, -1, -1}};
    /* One micro-batch: F until 6, 14, 21, I until 26, 35, 37, W of rank 1 until 38: the search sees
     * at its root that no schedule is better. */
    static const int64_t alone[][3] = {{6, 8, 4},  {2, 6, 5}, {0, 3, 0}, {0, 3, 0},
                                       {8, 0, 26}, {8, 0, 2}, {-3, 0, 0}};
    /* More messages in flight than a key of the search can hold: of one stage, and of all
     * stages. */
    static const int64_t far[][3] = {{3, 4}, {3, 2}, {4, 2}, {31, 0}, {0, 8}, {6, 8}, {-6, -5}};
    static const int64_t many[][3] = {{4, 2}, {5, 6}, {2, 1}, {33, 0}, {0, 9}, {5, 9}, {-1, -4}};
    static const uint16_t uneven[] = {0, 1, 0, 1, 0};
    static int64_t little[1 << 14];
    dpar_schedule_optimize_result result;
    dpar_schedule s;
    pipe_case c;
    pipe_start(&c, 3, 1, 1, DPAR_STAGE_MAP_LOOP, 1);
    arrays(&c, idle_end, 3);
    CHECK_INT(reach(&c.job, 0), 36);
    pipe_start(&c, 3, 1, 2, DPAR_STAGE_MAP_LOOP, 0);
    arrays(&c, messages, 3);
    CHECK_INT(reach(&c.job, 0), 194);
    pipe_start(&c, 3, 1, 1, DPAR_STAGE_MAP_LOOP, 1);
    arrays(&c, alone, 3);
    CHECK_INT(reach(&c.job, 100), 38);
    CHECK(reached.bound == 38 && reached.nodes == 1);
    pipe_start(&c, 2, 1, 5, DPAR_STAGE_MAP_LOOP, 1);
    arrays(&c, far, 2);
    c.job.objective = DPAR_OBJECTIVE_SPAN;
    CHECK(reach(&c.job, 3000) > 0);
    pipe_start(&c, 2, 1, 8, DPAR_STAGE_MAP_LOOP, 1);
    arrays(&c, many, 2);
    c.job.objective = DPAR_OBJECTIVE_SPAN;
    CHECK(reach(&c.job, 3000) > 0);
    pipe_start(&c, 2, 1, 4, DPAR_STAGE_MAP_LOOP, 0); /* five stages: no order is published */
    pipe_uniform(&c, 1, 1, 0, 0, 0);
    c.job.stages = 5;
    c.job.rank_of = uneven;
    CHECK(reach(&c.job, 0) >= 4 * 3 * 2);            /* rank 0 has three of them */
    pipe_start(&c, 4, 1, 8, DPAR_STAGE_MAP_LOOP, 1); /* any number of actions may be tried */
    pipe_uniform(&c, 2, 3, 1, 1, 3);
    CHECK(reach(&c.job, 0) >= reach(&c.job, INT64_MAX));
    pipe_start(&c, 4, 1, 5, DPAR_STAGE_MAP_LOOP, 1); /* too little memory for a search */
    pipe_uniform(&c, 1, 1, 1, 0, 3);
    c.job.nodes = 1000;
    CHECK(dpari_schedule_auto_bytes(&c.job, NULL) < (int64_t)sizeof little);
    CHECK_INT(dpar_schedule_optimize(&s, &c.job, &result, little,
                                     dpari_schedule_auto_bytes(&c.job, NULL), NULL),
              DPAR_MORE);
    CHECK_INT(result.nodes, 0);
    pipe_judge(&c.job, &s, &result);
}

/* Checks that once the limit of tried actions is reached, lists are tried until one of them finds a
 * schedule. */
static void test_work(void)
{
    pipe_case c;
    dpari_auto *x;
    pipe_start(&c, 4, 1, 12, DPAR_STAGE_MAP_LOOP, 1);
    pipe_uniform(&c, 5, 6, 4, 7, 3);
    x = dpari_auto_arrange(&c.job, memory);
    x->work = DPARI_AUTO_WORK;
    dpari_auto_rules(x, &c.job);
    CHECK(x->found[0].rule >= 0);
    CHECK_INT(x->work, DPARI_AUTO_WORK +
                           (DPARI_AUTO_ROUNDS + DPAR_SCHEDULE_END - 1 + 1) * (int64_t)(4 * 12 * 3));
}

static void test_cap(void)
{
    pipe_case c;
    dpar_schedule s;
    dpar_schedule_optimize_result result;
    int64_t need;
    dpar_why why;
    pipe_start(&c, 4, 3, 8, DPAR_STAGE_MAP_V, 1);
    pipe_uniform(&c, 1, 1, 1, 0, 0);
    pipe_holds(&c, 10, -5, -5);
    c.job.cap.each = c.cap;
    c.cap[0] = c.cap[1] = c.cap[3] = 30;
    c.cap[2] = 20;
    s.ranks = -7;
    CHECK_INT(run(&c.job, 0, &s, &result, &why), DPAR_E_MEMORY);
    CHECK_TEXT(why.text, "cannot fit: rank 2 needs 3 activations of 10 bytes, its cap is 20");
    CHECK_INT(s.ranks, -7);
    c.cap[2] = 30;
    CHECK(reach(&c.job, 0) > 0);
    CHECK_INT(run(&c.job, -1, &s, &result, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "nodes=-1; 0 or more are allowed");
    need = dpari_schedule_auto_bytes(&c.job, &why);
    CHECK_INT(make_auto(&c.job, 0, &s, &result, memory, need - 1, &why), DPAR_E_ROOM);
    CHECK_INT(make_auto(&c.job, 0, &s, &result, memory, need, &why), DPAR_MORE);
    CHECK(s.begin == (int64_t *)(void *)memory);
    c.job.micro_batches = 0;
    why.text[0] = 0;
    CHECK_INT(dpari_schedule_auto_bytes(&c.job, &why), -1);
    CHECK(why.text[0] != 0);
    CHECK_INT(run(&c.job, 0, &s, &result, NULL), DPAR_E_ARG);
}

/* Checks that 64 ranks with 512 micro-batches reach the optimum quickly. */
static void test_large(void)
{
    pipe_case c;
    pipe_start(&c, 64, 1, 512, DPAR_STAGE_MAP_LOOP, 1);
    pipe_uniform(&c, 1, 1, 1, 0, 64);
    CHECK_INT(reach(&c.job, 0), 512 * 3 + 63); /* ZB-H1's formula: m(F+I+W) + (p-1)(F+I-W) */
    c.times.latency.all = 1;
    c.job.cap.all = 128;
    CHECK_INT(reach(&c.job, 0), 512 * 3 + 2 * 63); /* time to reach the last rank, and its work */
}

int main(void)
{
    random_seed = 4711;
    test_demos();
    test_profile();
    test_optima();
    test_small();
    test_published();
    test_random();
    test_cap();
    test_corners();
    test_work();
    test_large();
    return CHECK_DONE();
}
