/* SPDX-License-Identifier: MIT-0 */
/* Tests exact: every line of tests/data/pipeline/exact_optimum.txt (found by exhaustive search over
 * time steps); brute force over all orders of all ranks for latencies, partial frees, unequal
 * stages and the span; messages; budgets. Run with: tests/run test schedule. */
#include "dpar_schedule.h"
#include "schedule_calls.h"

#include "check.h"
#include "random.h"
#include "pipe_judge.h"

#include "pipe_oracle.h"

static int64_t memory[1 << 19], room[1 << 12];

static dpar_status search(const dpar_schedule_optimize_desc *job, int64_t nodes, int64_t known,
                          int64_t bytes, dpar_schedule *s, dpar_schedule_optimize_result *result,
                          dpar_why *why)
{
    dpar_status st =
        schedule_init(s, job->ranks, job->stages, dpari_pipe_actions(job), room, sizeof room, why);
    return st != DPAR_OK ? st
                         : dpari_exact_search(job, nodes, known, s, result, memory, bytes, why);
}

static void test_file(void)
{
    FILE *file = fopen("tests/data/pipeline/exact_optimum.txt", "r");
    pipe_case c;
    dpar_schedule s;
    dpar_schedule_optimize_result result;
    int lines = 0;
    CHECK(file != NULL);
    while (file != NULL && pipe_line(file, &c)) {
        CHECK_INT(search(&c.job, INT64_MAX, 0, 1 << 22, &s, &result, NULL), DPAR_OK);
        CHECK_INT(result.makespan, c.expected);
        CHECK_INT(result.bound, c.expected);
        CHECK(dpari_pipe_bound(&c.job) <= c.expected);
        pipe_judge(&c.job, &s, &result);
        lines++;
    }
    CHECK_INT(lines, 97);
    if (file != NULL) {
        fclose(file);
    }
}

/* ---- brute force ----------------------------------------------------------------------------- */

enum { PIPE_LENGTH = 16, PIPE_ORDERS = 20000 };

/* All orders of a rank that keep its own rules (F before I before W, caps), as 4 stage + kind. */
typedef struct pipe_orders {
    int count, length;
    unsigned char order[PIPE_ORDERS][PIPE_LENGTH];
} pipe_orders;

static int64_t pipe_at(const dpar_stage_values *e, int k)
{
    return e->each != NULL ? e->each[k] : e->all;
}

static void pipe_extend(const dpar_schedule_optimize_desc *job, int rank, pipe_orders *o,
                        unsigned char *so_far, int used, int done[][3], int64_t held)
{
    int s, kind, kinds = job->split ? 3 : 2;
    if (used == o->length) {
        memcpy(o->order[o->count++], so_far, (size_t)used);
        return;
    }
    for (s = 0; s < job->stages; s++) {
        int64_t hf = pipe_at(&job->times->hold_forward, s), hi, hw, more, cap;
        if (dpari_stage_rank(job->map, job->ranks, s) != rank) {
            continue;
        }
        hi = hf == 0 ? 0 : pipe_at(&job->times->hold_input, s);
        hw = hf == 0 ? -1 : pipe_at(&job->times->hold_weight, s);
        hf = hf == 0 ? 1 : hf;
        cap = pipe_at(&job->cap, rank);
        for (kind = 0; kind < kinds; kind++) {
            more = kind == 0 ? hf : kind == 2 ? hw : job->split ? hi : -hf;
            if (done[s][kind] >= (kind == 0 ? job->micro_batches : done[s][kind - 1]) ||
                (cap > 0 && held + more > cap) || o->count >= PIPE_ORDERS) {
                continue;
            }
            done[s][kind]++;
            so_far[used] = (unsigned char)(4 * s + kind);
            pipe_extend(job, rank, o, so_far, used + 1, done, held + more);
            done[s][kind]--;
        }
    }
}

/* Returns the objective if each rank keeps its order; 0 if they wait for each other forever. */
static int64_t pipe_time(const dpar_schedule_optimize_desc *job, unsigned char *const *order,
                         const int *length)
{
    int64_t end[PIPE_MOST][2][8], free[8], start[8], worst = 0;
    int done[PIPE_MOST][3], at[8], r, on = 1, left = 0;
    memset(done, 0, sizeof done);
    for (r = 0; r < job->ranks; r++) {
        at[r] = 0;
        free[r] = 0;
        start[r] = -1;
        left += length[r];
    }
    while (on) {
        for (on = 0, r = 0; r < job->ranks; r++) {
            while (at[r] < length[r]) {
                int s = order[r][at[r]] / 4, kind = order[r][at[r]] % 4, k = done[s][kind];
                int from = kind == 0 ? s - 1 : s + 1;
                int64_t ready = free[r], time = kind == 0   ? pipe_at(&job->times->forward, s)
                                                : kind == 1 ? pipe_at(&job->times->input, s)
                                                            : pipe_at(&job->times->weight, s);
                time += kind == 1 && !job->split ? pipe_at(&job->times->weight, s) : 0;
                if (kind < 2 && from >= 0 && from < job->stages) {
                    int other = dpari_stage_rank(job->map, job->ranks, from) != r;
                    int64_t lag = pipe_at(&job->times->latency, from < s ? from : s);
                    if (done[from][kind] <= k) {
                        break;
                    }
                    lag = end[from][kind][k] + (other ? lag : 0);
                    ready = ready > lag ? ready : lag;
                }
                start[r] = start[r] < 0 ? ready : start[r];
                free[r] = ready + time;
                if (kind < 2) {
                    end[s][kind][k] = free[r];
                }
                done[s][kind]++;
                at[r]++;
                left--;
                on = 1;
            }
        }
    }
    for (r = 0; r < job->ranks; r++) {
        int64_t took = free[r] - (job->objective == DPAR_OBJECTIVE_SPAN ? start[r] : 0);
        worst = worst > took ? worst : took;
    }
    return left > 0 ? 0 : worst;
}

/* Returns the best objective over all orders of all ranks (at most 4); 0 if there are too many
 * orders. */
static int64_t pipe_brute(const dpar_schedule_optimize_desc *job)
{
    static pipe_orders orders[4];
    int pick[4], length[4], r;
    int64_t best = 0, got;
    for (r = 0; r < job->ranks; r++) {
        int done[PIPE_MOST][3];
        unsigned char so_far[PIPE_LENGTH];
        memset(done, 0, sizeof done);
        orders[r].count = 0;
        orders[r].length = job->stages / job->ranks * job->micro_batches * (job->split ? 3 : 2);
        pipe_extend(job, r, &orders[r], so_far, 0, done, 0);
        if (orders[r].count == PIPE_ORDERS) {
            return 0;
        }
        pick[r] = 0;
        length[r] = orders[r].length;
    }
    for (r = 0; r < job->ranks;) {
        unsigned char *order[4];
        for (r = 0; r < job->ranks; r++) {
            order[r] = orders[r].order[pick[r]];
        }
        got = pipe_time(job, order, length);
        best = got > 0 && (best == 0 || got < best) ? got : best;
        for (r = 0; r < job->ranks && ++pick[r] == orders[r].count; r++) {
            pick[r] = 0;
        }
    }
    return best;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Makes a random small job. */
static void random_case(pipe_case *c, int p, int v, int m, int split)
{
    int k, r, s = p * v;
    pipe_start(c, p, v, m, random_int(DPAR_STAGE_MAP_LOOP, DPAR_STAGE_MAP_V), split);
    c->job.objective = random_int(0, 2) == 0 ? DPAR_OBJECTIVE_SPAN : DPAR_OBJECTIVE_MAKESPAN;
    c->times.forward.each = c->f;
    c->times.input.each = c->i;
    c->times.weight.each = c->w;
    c->times.latency.each = c->lag;
    for (k = 0; k < s; k++) {
        c->f[k] = random_int(1, 5);
        c->i[k] = random_int(1, 5);
        c->w[k] = random_int(0, 5);
        c->lag[k] = random_some(6);
    }
    if (random_int(0, 1)) {
        c->times.hold_forward.each = c->hold_f;
        c->times.hold_input.each = c->hold_i;
        c->times.hold_weight.each = c->hold_w;
        c->job.cap.each = c->cap;
        for (k = 0; k < s; k++) {
            c->hold_f[k] = random_int(3, 6);
            c->hold_i[k] = -random_int(0, 3);
            c->hold_w[k] = -c->hold_f[k] - c->hold_i[k];
            r = dpari_stage_rank(c->job.map, p, k);
            c->cap[r] += c->hold_f[k];
        }
        for (r = 0; r < p; r++) {
            c->cap[r] += random_int(0, 8);
        }
    } else {
        c->job.cap.all = random_int(0, 2) * v;
        c->job.cap.all += random_int(0, 1) * v;
    }
}

static void test_brute_force(void)
{
    static const int shape[][4] = {{1, 1, 3, 1}, {2, 1, 2, 1}, {2, 1, 3, 0}, {3, 1, 2, 0},
                                   {2, 2, 2, 0}, {1, 3, 2, 0}, {3, 1, 2, 1}, {2, 1, 3, 1}};
    int k, n, compared = 0;
    for (k = 0; k < 8; k++) {
        for (n = 0; n < (k < 4 ? 400 : k < 6 ? 100 : 8); n++) {
            pipe_case c;
            dpar_schedule s;
            dpar_schedule_optimize_result result;
            int64_t best;
            random_case(&c, shape[k][0], shape[k][1], shape[k][2], shape[k][3]);
            best = pipe_brute(&c.job);
            if (best == 0) {
                continue;
            }
            CHECK_INT(search(&c.job, INT64_MAX, 0, 1 << 16, &s, &result, NULL), DPAR_OK);
            CHECK_INT(c.job.objective == DPAR_OBJECTIVE_SPAN ? result.span : result.makespan, best);
            CHECK(dpari_pipe_bound(&c.job) <= best);
            pipe_judge(&c.job, &s, &result);
            compared++;
        }
    }
    CHECK(compared > 1700);
}

static void test_sentences(void)
{
    pipe_case c;
    dpar_why why;
    const uint16_t some[] = {0, 1, 1}, high[] = {0, 1, 3};
    pipe_start(&c, 3, 1, 4, DPAR_STAGE_MAP_LOOP, 1);
    pipe_uniform(&c, 1, 1, 1, 0, 0);
    CHECK_INT(dpari_pipe_check(&c.job, NULL), DPAR_OK);
    c.job.cap.each = c.cap;
    c.cap[2] = -1;
    CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text,
               "rank 2 has 1 stages and a cap of -1; 1 or more and 0 or more are allowed");
    pipe_start(&c, 3, 3, 4, DPAR_STAGE_MAP_LOOP, 1);
    pipe_uniform(&c, 1, 1, 1, 0, 20);
    pipe_holds(&c, 10, -4, -6);
    CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_E_MEMORY);
    CHECK_TEXT(why.text, "cannot fit: rank 0 needs 3 activations of 10 bytes, its cap is 20");
    c.times.hold_always.all = 2;
    c.job.cap.all = 35;
    CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_E_MEMORY);
    CHECK_TEXT(why.text, "cannot fit: rank 0 holds 6 bytes always and needs 30 more for one "
                         "micro-batch, its cap is 35");
    c.job.cap.all = 36;
    CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_OK);
    c.times.hold_weight.all = -5;
    CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text,
               "stage 0 holds 10 for F, -4 for I and -5 for W; I and W must free what F takes, "
               "and hold_always must be 0 or more");
    pipe_start(&c, 3, 1, 4, DPAR_STAGE_MAP_LOOP, 1);
    c.job.rank_of = some;
    CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "rank 2 has 0 stages and a cap of 0; 1 or more and 0 or more are allowed");
    c.job.rank_of = high;
    CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "rank_of[2] is 3, but there are only 3 ranks");
    c.job.rank_of = NULL;
    c.job.map = DPAR_STAGE_MAP_BIDIRECTIONAL;
    CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "map=2; DPAR_STAGE_MAP_LOOP and DPAR_STAGE_MAP_V are allowed");
}

static void test_domain(void)
{
    static const int32_t size[][3] = {{0, 1, 1},  {-1, 1, 1},      {2, 1, 1},     {1, 1, 0},
                                      {1, 1, -3}, {5000, 5000, 1}, {1, 20000, 1}, {1, 1, 65536}};
    const int64_t most = INT64_C(1) << 60;
    pipe_case c;
    dpar_why why;
    int k;
    for (k = 0; k < 8; k++) {
        pipe_start(&c, 1, 1, 1, DPAR_STAGE_MAP_LOOP, 1);
        c.job.ranks = size[k][0];
        c.job.stages = size[k][1];
        c.job.micro_batches = size[k][2];
        CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_E_ARG);
        CHECK_INT(dpari_pipe_bound(&c.job), -1);
        CHECK_INT(dpari_exact_bytes(&c.job, 1), -1);
    }
    pipe_start(&c, 2, 1, 2, DPAR_STAGE_MAP_LOOP, 1);
    c.times.forward.all = -1;
    CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_E_ARG);
    c.times.forward.all = most / 4; /* 2 stages, 2 micro-batches: 2^60 */
    CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_OK);
    c.times.weight.all = 1;
    CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_E_RANGE);
    CHECK_TEXT(why.text, "2 micro-batches of 576460752303423490 units of time exceed 2^60");
    c.times.forward.all = INT64_MAX;
    CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_E_RANGE);
    CHECK_TEXT(why.text, "the times of stages 0 to 0 add up to more than 2^60");
    c.times.forward.all = 1;
    c.times.bytes.all = INT64_MAX;
    c.times.bandwidth.all = 1;
    CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_E_RANGE);
    c.times.bandwidth.all = 0;
    CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_OK);
    pipe_holds(&c, most, -most, 0);
    CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_E_RANGE);
    CHECK_TEXT(why.text,
               "hold_forward or hold_always of stages 0 to 1 adds up to more than 2^60 bytes");
    c.job.times = NULL;
    CHECK_INT(dpari_pipe_check(&c.job, &why), DPAR_E_ARG);
}

/* Checks that less memory means more work and the same result, and that fewer nodes than needed
 * give MORE and a bound. */
static void test_budget(void)
{
    pipe_case c;
    dpar_schedule s;
    dpar_schedule_optimize_result most, least, cut;
    dpar_why why;
    int64_t bytes;
    pipe_start(&c, 4, 1, 5, DPAR_STAGE_MAP_LOOP, 1);
    pipe_uniform(&c, 1, 1, 1, 0, 3); /* exact_optimum.txt: 21 */
    bytes = dpari_exact_bytes(&c.job, 1);
    CHECK(dpari_exact_bytes(&c.job, 1000) > bytes);
    CHECK_INT(dpari_exact_bytes(&c.job, 0), -1);
    CHECK_INT(search(&c.job, INT64_MAX, 0, sizeof memory, &s, &most, NULL), DPAR_OK);
    CHECK_INT(search(&c.job, INT64_MAX, 0, bytes + 100000, &s, &least, NULL), DPAR_OK);
    CHECK_INT(least.makespan, 21);
    CHECK(least.nodes >= most.nodes);
    CHECK_INT(search(&c.job, 50, 0, sizeof memory, &s, &cut, NULL), DPAR_MORE);
    CHECK_INT(cut.nodes, 50);
    CHECK_INT(cut.makespan, 0);
    CHECK_INT(cut.bound, dpari_pipe_bound(&c.job));
    CHECK_INT(search(&c.job, 200, 0, sizeof memory, &s, &cut, NULL), DPAR_MORE);
    CHECK(cut.makespan >= 21);
    pipe_judge(&c.job, &s, &cut);
    CHECK_INT(search(&c.job, INT64_MAX, 21, sizeof memory, &s, &cut, NULL), DPAR_OK);
    CHECK_INT(cut.makespan, 0); /* no schedule is below 21 */
    CHECK_INT(cut.bound, 21);
    CHECK_INT(search(&c.job, INT64_MAX, 22, sizeof memory, &s, &cut, NULL), DPAR_OK);
    CHECK_INT(cut.makespan, 21);
    CHECK_INT(search(&c.job, 9, 0, bytes - 1, &s, &cut, &why), DPAR_E_ROOM);
    CHECK_INT(search(&c.job, -1, 0, bytes, &s, &cut, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "nodes=-1 and known=0 must be 0 or more");
    s.stages = 5;
    CHECK_INT(dpari_exact_search(&c.job, 9, 0, &s, &cut, memory, bytes, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "the schedule has 4 ranks and 5 stages, the job has 4 and 4");
    c.times.forward.all = 0;
    CHECK_INT(search(&c.job, 9, 0, bytes, &s, &cut, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "stage 0: F takes 0 and I 1; an exact search allows 1 to 2^31 - 1, and 0 "
                         "to 2^31 - 1 for W and messages");
}

/* Checks two states with the same 31-bit hash: each keeps a place of its own. */
static void test_names(void)
{
    enum { KEYS = 1 << 18 };
    static uint32_t name[KEYS], sorted[KEYS];
    static int64_t table[4 * 2];
    dpari_search x;
    uint32_t twice = 0, key[2] = {0, 0}, k, n = 0, state[1];
    int found = 1, s;
    memset(&x, 0, sizeof x);
    memset(table, 0, sizeof table);
    x.keys = 1, x.sinces = 1, x.size = 16, x.entries = 4; /* since, name, key */
    x.key = state;
    x.table = (char *)table;
    for (k = 0; k < KEYS; k++) {
        state[0] = k;
        (void)dpari_exact_slot(&x, &name[k], &found);
        CHECK(!found);
    }
    memcpy(sorted, name, sizeof name);
    qsort(sorted, KEYS, sizeof sorted[0], by_number);
    for (k = 1; k < KEYS && twice == 0; k++) {
        twice = sorted[k] == sorted[k - 1] ? sorted[k] : 0;
    }
    CHECK(twice != 0); /* about 16 pairs of 2^18 */
    for (k = 0; k < KEYS && n < 2; k++) {
        key[n] = k;
        n += name[k] == twice;
    }
    for (s = 0; s < 4; s++) { /* the first one, from wherever the lookup starts */
        uint32_t *at = (uint32_t *)(void *)((char *)table + 16 * s + 8);
        at[0] = twice;
        at[1] = key[0];
    }
    state[0] = key[0];
    (void)dpari_exact_slot(&x, &k, &found);
    CHECK(found && k == twice);
    state[0] = key[1];
    (void)dpari_exact_slot(&x, &k, &found);
    CHECK(!found && k == twice);
}

int main(void)
{
    random_seed = 12345;
    test_file();
    test_brute_force();
    test_sentences();
    test_domain();
    test_budget();
    test_names();
    return CHECK_DONE();
}
