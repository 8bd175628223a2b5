/* SPDX-License-Identifier: MIT-0 */
/* Tests generate: compares every list of tests/data/pipeline that a published generator wrote cell
 * by cell (each file names its source; idle cells are left out, as the generators here write none),
 * and the figures of metrics.tsv; checks the closed forms, peaks and constraints of papers and
 * frameworks over ranges; and executes every rule: all work is done once and no rank waits forever.
 * Run with: tests/run test schedule. */
#include "dpar_schedule.h"

#include "check.h"
#include "schedule_calls.h"

#include <stdlib.h>

/* Counts a rank's actions by the rule; returns -1 for a rank or an order that does not exist. */
static int64_t counted(const dpar_schedule_desc *order, int32_t rank)
{
    dpari_plan k;
    int64_t count = 0;
    int32_t i;
    if (dpari_order_check(order, NULL) != DPAR_OK || rank < 0 || rank >= order->ranks) {
        return -1;
    }
    k = dpari_plan_of(order);
    for (i = 0; i < k.stages; i++) {
        count += dpari_order_rank(order, i) == rank ? dpari_plan_count(&k, i) : 0;
    }
    return count;
}

static char text[1 << 16], again[1 << 16];
static int64_t memory[1 << 17], other_memory[1 << 16];

/* ---- executing a schedule -------------------------------------------------------------------- */

enum { STAGES = 64, MICROS = 256, RANKS = 64 };

typedef struct run {
    int64_t f, i, w, joined; /* times of F, I, W; of F and B together, where 0 means their sum */
    int64_t latency;         /* between ranks */
    int64_t makespan, span;  /* span: the longest time from a rank's first start to its last end */
    int64_t busy[RANKS];
    int32_t peak[RANKS]; /* activations from F to B or W; a pair holds both */
} run;

static int64_t forward_end[STAGES][MICROS], input_end[STAGES][MICROS], weight_end[STAGES][MICROS];
static int wrong; /* done twice, or before its inputs on its own rank */

/* Returns when the result of `from` is on the rank of `to`; -1 if that is not known yet. */
static int64_t arrives(const dpar_schedule *s, int64_t end, int32_t from, int32_t to, int64_t lag)
{
    return end < 0 ? -1 : end + (s->rank_of[from] == s->rank_of[to] ? 0 : lag);
}

/* Returns the earliest time at which an action's inputs are there; -1 if that is not known yet. */
static int64_t ready(const dpar_schedule *s, const dpar_action *a, int64_t lag)
{
    int32_t near = a->stage, k = a->micro_batch;
    int32_t far = a->kind == DPAR_ACTION_FORWARD
                      ? dpar_schedule_partner(s, DPAR_ACTION_RECV_F, near)
                      : dpar_schedule_partner(s, DPAR_ACTION_SEND_F, near);
    int64_t own = 0, in = 0;
    int back = a->kind == DPAR_ACTION_BACKWARD || a->kind == DPAR_ACTION_INPUT;
    if (a->kind == DPAR_ACTION_WEIGHT) {
        return input_end[near][k];
    }
    if (far >= 0) {
        in = arrives(s, back ? input_end[far][k] : forward_end[far][k], far, near, lag);
    }
    if (back) {
        own = forward_end[near][k];
    }
    if (back && k % s->slices != s->slices - 1 && input_end[near][k + 1] < 0) {
        own = -1; /* attention: later slices give gradients to this one */
    }
    if (!back && k % s->slices != 0 && forward_end[near][k - 1] < 0) {
        own = -1;
    }
    return own < 0 || in < 0 ? -1 : own > in ? own : in;
}

static void done(const dpar_action *a, int64_t end)
{
    int64_t *at = a->kind == DPAR_ACTION_FORWARD  ? &forward_end[a->stage][a->micro_batch]
                  : a->kind == DPAR_ACTION_WEIGHT ? &weight_end[a->stage][a->micro_batch]
                                                  : &input_end[a->stage][a->micro_batch];
    wrong += *at >= 0;
    *at = end;
    if (a->kind == DPAR_ACTION_BACKWARD) {
        wrong += weight_end[a->stage][a->micro_batch] >= 0;
        weight_end[a->stage][a->micro_batch] = end;
    }
}

/* Runs action k of a rank whose clock is *now; returns 0 if it has to wait. */
static int64_t one(const dpar_schedule *s, int64_t k, run *r, int64_t *now, int32_t *live,
                   int32_t rank)
{
    const dpar_action *a = &s->action[k];
    int64_t n = 1 + a->joined, i, cost = 0, start = *now;
    for (i = 0; i < n; i++) {
        int64_t t = ready(s, a + i, r->latency);
        if (t < 0) {
            return 0;
        }
        start = t > start ? t : start;
        cost += a[i].kind == DPAR_ACTION_FORWARD    ? r->f
                : a[i].kind == DPAR_ACTION_INPUT    ? r->i
                : a[i].kind == DPAR_ACTION_WEIGHT   ? r->w
                : a[i].kind == DPAR_ACTION_BACKWARD ? r->i + r->w
                                                    : 1000000;
    }
    cost = n == 2 && r->joined > 0 ? r->joined : cost;
    for (i = 0; i < n; i++) {
        *live += a[i].kind == DPAR_ACTION_FORWARD;
        r->peak[rank] = *live > r->peak[rank] ? *live : r->peak[rank];
        *live -= a[i].kind == DPAR_ACTION_BACKWARD || a[i].kind == DPAR_ACTION_WEIGHT;
        wrong += s->rank_of[a[i].stage] != rank;
        done(a + i, start + cost);
    }
    r->busy[rank] += cost;
    *now = start + cost;
    return n;
}

/* Checks that each stage has each micro-batch of its chain once, and that a micro-batch has one
 * chain. */
static int complete(const dpar_schedule *s, int backward)
{
    int32_t stage, k;
    for (k = 0; k < s->micro_batches; k++) {
        int32_t from = forward_end[0][k] >= 0 ? 0 : s->stages - s->chain;
        for (stage = 0; stage < s->stages; stage++) {
            int mine = stage >= from && stage < from + s->chain;
            if ((forward_end[stage][k] >= 0) != mine ||
                (input_end[stage][k] >= 0) != (mine && backward) ||
                (weight_end[stage][k] >= 0) != (mine && backward)) {
                return 0;
            }
        }
    }
    return 1;
}

/* Executes all lists; returns 1 if all work is done once in a possible order. */
static int execute(const dpar_schedule *s, run *r)
{
    int64_t at[RANKS], now[RANKS], first[RANKS], left = s->begin[s->ranks];
    int32_t live[RANKS], rank;
    int moved = 1, backward = 0;
    int64_t k;
    wrong = s->stages > STAGES || s->micro_batches > MICROS || s->ranks > RANKS;
    if (wrong) {
        return 0;
    }
    for (k = 0; k < left; k++) {
        backward |= s->action[k].kind != DPAR_ACTION_FORWARD;
    }
    memset(forward_end, -1, sizeof forward_end);
    memset(input_end, -1, sizeof input_end);
    memset(weight_end, -1, sizeof weight_end);
    r->makespan = r->span = 0;
    for (rank = 0; rank < s->ranks; rank++) {
        at[rank] = s->begin[rank];
        now[rank] = live[rank] = r->peak[rank] = 0;
        first[rank] = -1;
        r->busy[rank] = 0;
    }
    while (moved) {
        moved = 0;
        for (rank = 0; rank < s->ranks; rank++) {
            int64_t n = 1;
            while (n > 0 && at[rank] < s->begin[rank + 1]) {
                n = one(s, at[rank], r, &now[rank], &live[rank], rank);
                if (n > 0 && first[rank] < 0) {
                    first[rank] = now[rank] - r->busy[rank];
                }
                at[rank] += n;
                left -= n;
                moved |= n > 0;
            }
            r->makespan = now[rank] > r->makespan ? now[rank] : r->makespan;
        }
    }
    for (rank = 0; rank < s->ranks; rank++) {
        k = first[rank] < 0 ? 0 : now[rank] - first[rank];
        r->span = k > r->span ? k : r->span;
    }
    return left == 0 && !wrong && complete(s, backward);
}

/* ---- making one ------------------------------------------------------------------------------ */

static dpar_schedule made(const dpar_schedule_desc *o)
{
    dpar_schedule s;
    dpar_why why;
    int64_t n = dpari_schedule_generate_bytes(o, &why);
    memset(&s, 0, sizeof s);
    why.text[0] = 0;
    CHECK(n > 0 && n <= (int64_t)sizeof memory);
    memset(memory, 0xA5, (size_t)n + 8); /* lists do not rely on old contents, nor write behind */
    CHECK_INT(dpar_schedule_generate(&s, o, memory, n, &why), DPAR_OK);
    CHECK_TEXT(why.text, "");
    CHECK(((unsigned char *)memory)[n] == 0xA5);
    return s;
}

static run timed(const dpar_schedule_desc *o, int64_t f, int64_t i, int64_t w)
{
    dpar_schedule s = made(o);
    run r;
    memset(&r, 0, sizeof r);
    r.f = f;
    r.i = i;
    r.w = w;
    if (!execute(&s, &r)) {
        CHECK(!"all work is done");
        printf("%s p=%d v=%d m=%d\n", dpar_schedule_name(o->rule), o->ranks, o->chunks,
               o->micro_batches);
    }
    return r;
}

static run unit(int32_t rule, int32_t p, int32_t v, int32_t m)
{
    dpar_schedule_desc o = order_of(rule, p, m, v);
    return timed(&o, 1, 1, 1);
}

static int32_t most(const run *r, int32_t p)
{
    int32_t k, n = 0;
    for (k = 0; k < p; k++) {
        n = r->peak[k] > n ? r->peak[k] : n;
    }
    return n;
}

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static const uint16_t uneven[] = {0, 0, 1, 1, 0};

/* ---- the reference files --------------------------------------------------------------------- */

static const struct {
    const char *file;
    int32_t rule, p, v, m, group, slices, lifo;
    const uint16_t *rank_of;
} reference[] = {
    {"gpipe_fifo_p4_m4", DPAR_SCHEDULE_GPIPE, 4, 0, 4, 0, 0, 0, NULL},
    {"gpipe_lifo_p4_m4", DPAR_SCHEDULE_GPIPE, 4, 1, 4, 0, 0, 1, NULL},
    {"1f1b_p4_m8", DPAR_SCHEDULE_1F1B, 4, 0, 8, 0, 0, 0, NULL},
    {"1f1b_p4_m2_fewer_mb_than_stages", DPAR_SCHEDULE_1F1B, 4, 0, 2, 0, 0, 0, NULL},
    {"eager1f1b_p4_m8", DPAR_SCHEDULE_EAGER_1F1B, 4, 0, 8, 0, 0, 0, NULL},
    {"interleaved1f1b_p4_v2_m8", DPAR_SCHEDULE_INTERLEAVED, 4, 2, 8, 0, 0, 0, NULL},
    {"interleaved1f1b_p4_v2_m8", DPAR_SCHEDULE_INTERLEAVED, 4, 0, 8, 4, 0, 0, NULL},
    {"interleaved1f1b_flex_p4_v2_m10", DPAR_SCHEDULE_INTERLEAVED, 4, 2, 10, 0, 0, 0, NULL},
    {"interleaved1f1b_flex_p4_v2_m10", DPAR_SCHEDULE_INTERLEAVED, 4, 2, 10, 5, 0, 0, NULL},
    {"megatron_tunable_p2_v2_m5_N3", DPAR_SCHEDULE_INTERLEAVED, 2, 2, 5, 3, 0, 0, NULL},
    {"loopedbfs_p4_v2_m4", DPAR_SCHEDULE_BREADTH_FIRST, 4, 0, 4, 0, 0, 0, NULL},
    {"interleaved_zb_p4_v2_m8", DPAR_SCHEDULE_INTERLEAVED_ZB, 4, 0, 8, 0, 0, 0, NULL},
    {"zb_h1_p4_m8", DPAR_SCHEDULE_ZB_H1, 4, 0, 8, 0, 0, 0, NULL},
    {"zb_h1_p4_m8", DPAR_SCHEDULE_INTERLEAVED_ZB, 4, 1, 8, 0, 0, 0, NULL},
    {"zb_auto_mem1p_p4_m8", DPAR_SCHEDULE_ZB_H1, 4, 0, 8, 0, 0, 0, NULL},
    {"zbv_p4_m8", DPAR_SCHEDULE_ZBV, 4, 0, 8, 0, 0, 0, NULL},
    {"vhalf_p4_m8", DPAR_SCHEDULE_V_HALF, 4, 2, 8, 0, 0, 0, NULL},
    {"vmin_p4_m8", DPAR_SCHEDULE_V_MIN, 4, 0, 8, 0, 0, 0, NULL},
    {"dualpipe_p4_m8", DPAR_SCHEDULE_DUALPIPE, 4, 0, 8, 0, 0, 0, NULL},
    {"pt_dualpipev_p4_m10", DPAR_SCHEDULE_DUALPIPEV, 4, 0, 10, 0, 0, 0, NULL},
    {"overlap_1f1b_p4_m8", DPAR_SCHEDULE_MOE_OVERLAP, 4, 0, 8, 0, 0, 0, NULL},
    {"seq1f1b_p4_m4_s2", DPAR_SCHEDULE_SEQ1F1B, 4, 0, 4, 0, 2, 0, NULL},
    {"seq1f1b_p4_m4_s2", DPAR_SCHEDULE_SEQ1F1B, 4, 0, 4, 0, 0, 0, NULL},
    {"chimera_p4_m4", DPAR_SCHEDULE_CHIMERA, 4, 0, 4, 0, 0, 0, NULL},
    {"forward_only_p4_m4", DPAR_SCHEDULE_FORWARD_ONLY, 4, 0, 4, 0, 0, 0, NULL},
    {"unbalanced_p2_5stages_m1", DPAR_SCHEDULE_BREADTH_FIRST, 2, 0, 1, 0, 0, 0, uneven}};
enum { REFERENCES = sizeof reference / sizeof reference[0] };

static dpar_schedule_desc referred(size_t k)
{
    dpar_schedule_desc o =
        order_of(reference[k].rule, reference[k].p, reference[k].m, reference[k].v);
    o.group = reference[k].group;
    o.slices = reference[k].slices;
    o.lifo = reference[k].lifo;
    o.rank_of = reference[k].rank_of;
    o.stages = o.rank_of == uneven ? 5 : 0;
    return o;
}

static size_t load(const char *path)
{
    FILE *f = fopen(path, "r");
    size_t n = 0;
    CHECK(f != NULL);
    if (f != NULL) {
        n = fread(text, 1, sizeof text - 1, f);
        fclose(f);
    }
    text[n] = 0;
    return n;
}

static void test_files(void)
{
    size_t i;
    for (i = 0; i < REFERENCES; i++) {
        dpar_schedule_desc o = referred(i);
        dpar_schedule s = made(&o), r;
        char path[128];
        dpar_why why;
        int32_t rank;
        int64_t k, at = 0;
        snprintf(path, sizeof path, "tests/data/pipeline/%s.csv", reference[i].file);
        CHECK_INT(read_csv(&r, text, load(path), s.chain, other_memory, sizeof other_memory, &why),
                  DPAR_OK);
        CHECK_INT(s.ranks, r.ranks);
        CHECK_INT(s.stages, r.stages);
        CHECK_INT(s.micro_batches, r.micro_batches);
        CHECK(memcmp(s.rank_of, r.rank_of, 2 * (size_t)s.stages) == 0);
        for (rank = 0; rank < s.ranks; rank++) {
            CHECK_INT(s.begin[rank], at);
            CHECK_INT(counted(&o, rank), s.begin[rank + 1] - s.begin[rank]);
            for (k = r.begin[rank]; k < r.begin[rank + 1]; k++) {
                if (r.action[k].kind != DPAR_ACTION_IDLE) {
                    CHECK(memcmp(&s.action[at], &r.action[k], sizeof s.action[at]) == 0);
                    at++;
                }
            }
        }
        CHECK_INT(s.begin[s.ranks], at);
    }
}

/* Reads the next field of a line of metrics.tsv in quarters of a unit; -1 for "-". */
static int64_t quarters(const char **at)
{
    char *end;
    double v = **at == '-' ? -0.25 : 0;
    if (v == 0) {
        v = strtod(*at, &end);
        *at = end;
    } else {
        ++*at;
    }
    *at += **at == '\t';
    return (int64_t)(v * 4 + (v < 0 ? -0.5 : 0.5));
}

/* Compares ranks, stages, m, makespan, bubble, peaks a/b/c and span with metrics.tsv: with latency
 * 0.25, with times (2,3,1), and with F and B together in 2.5. */
static void test_metrics(void)
{
    size_t i, found = 0;
    load("tests/data/pipeline/metrics.tsv");
    for (i = 0; i < REFERENCES; i++) {
        dpar_schedule_desc o = referred(i);
        dpar_schedule s = made(&o);
        char key[64];
        const char *at;
        int64_t value;
        int32_t rank;
        run r;
        snprintf(key, sizeof key, "\n%s.csv\t", reference[i].file);
        at = strstr(text, key);
        CHECK(at != NULL);
        if (at == NULL) {
            continue;
        }
        found++;
        at += strlen(key);
        CHECK_INT(quarters(&at), 4 * s.ranks);
        CHECK_INT(quarters(&at), 4 * s.stages);
        CHECK_INT(quarters(&at), 4 * s.micro_batches);
        memset(&r, 0, sizeof r);
        r.f = r.i = r.w = 4;
        CHECK(execute(&s, &r));
        CHECK_INT(quarters(&at), r.makespan);
        quarters(&at); /* the bubble follows */
        for (rank = 0; rank < s.ranks; rank++) {
            CHECK_INT(strtol(at, NULL, 10), r.peak[rank]);
            at += strspn(at, "0123456789") + 1;
        }
        CHECK_INT(quarters(&at), r.span);
        r.latency = 1;
        CHECK(execute(&s, &r));
        CHECK_INT(quarters(&at), r.makespan);
        r.latency = 0;
        r.f = 8;
        r.i = 12;
        CHECK(execute(&s, &r));
        CHECK_INT(quarters(&at), r.makespan);
        r.f = r.i = 4;
        r.joined = 10;
        CHECK(execute(&s, &r));
        value = quarters(&at);
        CHECK(value == -1 || value == r.makespan);
    }
    CHECK_INT(found, REFERENCES);
}

/* ---- every rule, everywhere ------------------------------------------------------------------ */

static void sweep_one(dpar_schedule_desc *o, int64_t *done_count)
{
    if (dpari_order_check(o, NULL) == DPAR_OK) {
        (void)timed(o, 1, 1, 1);
        ++*done_count;
    }
}

static void test_sweep(void)
{
    static const int32_t ranks[] = {1, 2, 3, 4, 5, 6, 8};
    int64_t legal[DPAR_SCHEDULE_END];
    int32_t i, rule, v, m, group;
    memset(legal, 0, sizeof legal);
    for (i = 0; i < 7; i++) {
        int32_t p = ranks[i];
        for (rule = 1; rule < DPAR_SCHEDULE_END; rule++) {
            for (v = 0; v <= 4; v++) {
                for (m = 1; m <= 4 * p; m++) {
                    dpar_schedule_desc o = order_of(rule, p, m, v);
                    sweep_one(&o, &legal[rule]);
                    for (group = p; group <= m + 1 && v > 1; group += 1 + group / 5) {
                        o.group = group;
                        sweep_one(&o, &legal[rule]);
                    }
                    o.group = 0;
                    o.slices = v + 1;
                    if (rule == DPAR_SCHEDULE_SEQ1F1B && v > 0) {
                        o.chunks = 1;
                        sweep_one(&o, &legal[rule]);
                    }
                }
            }
        }
    }
    /* the sum of 4 p is 116; a rule takes v = 0 and 1, or 0 and 2, or all 5 */
    CHECK_INT(legal[DPAR_SCHEDULE_1F1B], 2 * 116);
    CHECK_INT(legal[DPAR_SCHEDULE_ZBV], 2 * 116);
    CHECK_INT(legal[DPAR_SCHEDULE_BREADTH_FIRST], 5 * 116);
    CHECK_INT(legal[DPAR_SCHEDULE_SEQ1F1B], 6 * 116);
    CHECK_INT(legal[DPAR_SCHEDULE_CHIMERA], 2 * 4 * (2 + 4 + 6 + 8));
    CHECK_INT(legal[DPAR_SCHEDULE_DUALPIPE], 2 * (3 + 5 + 7 + 9)); /* m = 2p, 2p + 2, .., 4p */
    CHECK_INT(legal[DPAR_SCHEDULE_DUALPIPEV], 2 * (3 + 5 + 7 + 9 + 11 + 13 + 17));
    CHECK(legal[DPAR_SCHEDULE_INTERLEAVED] > 5 * 116);
}

/* ---- closed forms ---------------------------------------------------------------------------- */

static const int32_t five[] = {2, 3, 4, 6, 8};
static const int64_t times[][3] = {{1, 1, 1}, {2, 3, 1}, {1, 2, 1},
                                   {2, 2, 1}, {3, 2, 2}, {2, 3, 4}};

/* Checks T = (m v + p - 1)(f + b): GPipe 2019 and 1F1B; Narayanan 2021; Lamy-Poirier 2022; eager
 * 1F1B does not change it. It fails for v > 1 with fewer micro-batches than ranks. */
static void test_full_backward(void)
{
    int32_t i, t, m, v, r, flex = 0;
    for (i = 0; i < 5; i++) {
        for (m = 1; m <= 4 * five[i]; m++) {
            int32_t p = five[i], rounds = m / p > 1 ? m / p : 1;
            flex += m > p && m % p != 0 && m % rounds == 0;
            for (t = 0; t < 6; t++) {
                int64_t f = times[t][0], in = times[t][1], w = times[t][2], both = f + in + w;
                static const int32_t flat[] = {DPAR_SCHEDULE_GPIPE, DPAR_SCHEDULE_1F1B,
                                               DPAR_SCHEDULE_EAGER_1F1B};
                dpar_schedule_desc o = order_of(DPAR_SCHEDULE_GPIPE, p, m, 0);
                run got;
                for (v = 0; v < 3; v++) {
                    o.rule = flat[v];
                    got = timed(&o, f, in, w);
                    CHECK_INT(got.makespan, (m + p - 1) * both);
                    for (r = 0; r < p; r++) {
                        CHECK_INT(got.peak[r], v == 0   ? m
                                               : v == 1 ? least(p - r, m)
                                                        : least(2 * (p - r) - 1, m));
                    }
                }
                for (v = 2; v <= 4; v++) {
                    int64_t form = (m * v + p - 1) * both;
                    o = order_of(DPAR_SCHEDULE_INTERLEAVED, p, m, v);
                    got = timed(&o, f, in, w);
                    CHECK((got.makespan == form) == (m >= p));
                    for (r = 0; r < p && m % p == 0; r++) {
                        CHECK_INT(got.peak[r], least((v - 1) * p + 2 * (p - 1 - r) + 1, m * v));
                    }
                    o.rule = DPAR_SCHEDULE_BREADTH_FIRST;
                    got = timed(&o, f, in, w);
                    CHECK((got.makespan == form) == (m >= p));
                    CHECK_INT(got.peak[0], m * v);
                    CHECK_INT(got.peak[p - 1], m * v);
                }
            }
        }
    }
    CHECK_INT(flex, 29); /* facts: 348 cases of 6 times and 2 v */
}

/* Checks T = m v (f+i+w) + (p-1)(f+i-w) where w <= i (Qi 2023: ZB-H1; with v chunks where p divides
 * m), peak p v. ZB-2P has no pause between a rank's first F and last W with F = I = W: span 3 m,
 * makespan (p-1) more; peak 2p-1 (Qi 2023, table 2). */
static void test_zero_bubble(void)
{
    int32_t i, t, m, v;
    for (i = 0; i < 5; i++) {
        for (m = 1; m <= 4 * five[i]; m++) {
            int32_t p = five[i];
            run got = unit(DPAR_SCHEDULE_ZB_2P, p, 0, m);
            CHECK(m < 2 * p - 2 || got.makespan == 3 * m + p - 1);
            CHECK_INT(most(&got, p), least(2 * p - 1, m));
            CHECK(m < 2 * p - 1 || (got.span == 3 * m && got.peak[p - 1] == 2 * p - 1));
            for (t = 0; t < 6; t++) {
                int64_t f = times[t][0], in = times[t][1], w = times[t][2];
                for (v = 1; v <= 4; v++) {
                    dpar_schedule_desc o = order_of(DPAR_SCHEDULE_INTERLEAVED_ZB, p, m, v);
                    int64_t form = m * v * (f + in + w) + (p - 1) * (f + in - w);
                    got = timed(&o, f, in, w);
                    if (v == 1 && m >= p) {
                        CHECK((got.makespan == form) == (w <= in));
                        CHECK_INT(got.peak[0], p);
                        CHECK_INT(got.peak[p - 1], p);
                    } else if (m % p == 0) {
                        CHECK(got.makespan == form || w > in);
                        CHECK(most(&got, p) <= p * v);
                    }
                }
            }
        }
    }
}

/* Checks ZBV (Qi 2024): with unit times T = 6m + p - 1 from m = 2p - 1 on, which fails for 29 of
 * the 36 below; span 6m from 2p; peak 2p. DualPipeV: peak 2p + 1 for any times. */
static void test_v(void)
{
    int32_t i, m, t, below = 0, failed = 0;
    for (i = 0; i < 5; i++) {
        for (m = 1; m <= 4 * five[i]; m++) {
            int32_t p = five[i];
            run got = unit(DPAR_SCHEDULE_ZBV, p, 0, m);
            CHECK(most(&got, p) <= 2 * p);
            if (m >= 2 * p - 1) {
                CHECK_INT(got.makespan, 6 * m + p - 1);
                CHECK_INT(most(&got, p), 2 * p);
            } else {
                below++;
                failed += got.makespan != 6 * m + p - 1;
            }
            CHECK(m < 2 * p || got.span == 6 * m);
            for (t = 0; t < 6 && m >= 2 * p; t++) {
                dpar_schedule_desc o = order_of(DPAR_SCHEDULE_DUALPIPEV, p, m, 0);
                got = timed(&o, times[t][0], times[t][1], times[t][2]);
                CHECK_INT(most(&got, p), 2 * p + 1);
            }
        }
    }
    CHECK_INT(below, 36);
    CHECK_INT(failed, 29);
}

/* Checks peaks 2((p+2)/2) and 2((p+4)/3) (Qi 2024), and the idle slots in addition to 6m at m = 4p,
 * p = 2 .. 12, as in sail-sg's zbv_greedy.py. */
static void test_v_memory(void)
{
    static const int32_t half[] = {1, 5, 5, 11, 11, 17, 17, 23, 23, 29, 29};
    static const int32_t third[] = {3, 5, 11, 15, 17, 23, 27, 29, 35, 39, 41};
    int32_t p;
    for (p = 2; p <= 12; p++) {
        run got = unit(DPAR_SCHEDULE_V_HALF, p, 0, 4 * p);
        CHECK_INT(got.makespan, 24 * p + half[p - 2]);
        CHECK_INT(most(&got, p), 2 * ((p + 2) / 2));
        got = unit(DPAR_SCHEDULE_V_MIN, p, 0, 4 * p);
        CHECK_INT(got.makespan, 24 * p + third[p - 2]);
        CHECK_INT(most(&got, p), 2 * ((p + 4) / 3));
        got = unit(DPAR_SCHEDULE_1F1B_V, p, 0, 4 * p);
        CHECK_INT(most(&got, p), 2 * (2 * p / 3 + 1)); /* v1f1b.py; test_sail has its lists */
    }
    {
        run got =
            unit(DPAR_SCHEDULE_1F1B_V, 4, 0, 8); /* v1f1b.py: 63 where 1F1B takes 66, 6 chunks */
        CHECK_INT(got.makespan, 63);
        CHECK_INT(most(&got, 4), 6);
    }
}

/* Checks Chimera (Li 2021): idle (D-2)/(2N+D-2) of equal slots; B = 2F: (D-2)/(1.5N+D-2) at N = D,
 * 0.2 and 0.172 at D = 4, N = 8 and 16. Peak D/2+1 on the outer ranks, D on the inner ones.
 * DualPipe p = 8, m = 20: 66, peak 9 (README: (PP/2-1)(F&B + B - 3W) idle, PP+1). */
static void test_both_ways(void)
{
    int32_t p, units;
    run got;
    for (p = 2; p <= 8; p += 2) {
        for (units = 1; units <= 4; units++) {
            dpar_schedule_desc o = order_of(DPAR_SCHEDULE_CHIMERA, p, units * p, 0);
            got = timed(&o, 2, 1, 1);
            CHECK_INT(got.makespan, 2 * (2 * units * p + p - 2));
            got = unit(DPAR_SCHEDULE_CHIMERA, p, 0, units * p);
            CHECK(units > 1 || got.makespan == 2 * (p - 2) + 3 * p);
            CHECK(units > 1 || (got.peak[0] == p / 2 + 1 && most(&got, p) == p));
        }
    }
    CHECK_INT(unit(DPAR_SCHEDULE_CHIMERA, 4, 0, 8).makespan, 30);
    CHECK_INT(unit(DPAR_SCHEDULE_CHIMERA, 4, 0, 16).makespan, 58);
    got = unit(DPAR_SCHEDULE_DUALPIPE, 8, 0, 20);
    CHECK_INT(got.makespan, 66);
    CHECK_INT(most(&got, 8), 9);
}

/* Checks Sun 2024: bubble (p-1)/(m s + p - 1) with equal slices, peak p-1-r+s slices; a latency c
 * costs eager 1F1B 2(p-1)c for any m, 1F1B 2(p-2)c + 2m(p-1)c/p where p divides m. */
static void test_slices_and_latency(void)
{
    int32_t i, m, s, r;
    for (i = 0; i < 5; i++) {
        for (m = 1; m <= 4 * five[i]; m++) {
            int32_t p = five[i];
            dpar_schedule_desc o = order_of(DPAR_SCHEDULE_SEQ1F1B, p, m, 0);
            run got;
            dpar_schedule lists;
            for (s = 1; s <= 4; s++) {
                o.slices = s;
                got = timed(&o, 1, 1, 1);
                CHECK_INT(got.makespan, 3 * (m * s + p - 1));
                for (r = 0; r < p; r++) {
                    CHECK_INT(got.peak[r], least(p - 1 - r + s, m * s));
                }
            }
            o = order_of(DPAR_SCHEDULE_EAGER_1F1B, p, m, 0);
            lists = made(&o);
            memset(&got, 0, sizeof got);
            got.f = got.i = got.w = 8;
            got.latency = 1;
            CHECK(execute(&lists, &got));
            CHECK_INT(got.makespan, 24 * (m + p - 1) + 2 * (p - 1));
            o.rule = DPAR_SCHEDULE_1F1B;
            lists = made(&o);
            CHECK(execute(&lists, &got));
            CHECK(m % p != 0 ||
                  got.makespan == 24 * (m + p - 1) + 2 * (p - 2) + 2 * m * (p - 1) / p);
        }
    }
}

/* Checks F and B together in time `joined` (F=B/2=2): (p-1)(F+B)/v + (p(v-1)+1)(F+B)/v +
 * (mv-p(v-1)-1)(F&B)/v (Victarry's formula.py, overlapped 1F1B), v = 1 and where p divides m. */
static void test_overlap(void)
{
    int32_t i, m, v;
    for (i = 0; i < 5; i++) {
        for (m = five[i]; m <= 4 * five[i]; m += five[i]) {
            for (v = 1; v <= 4; v++) {
                int32_t p = five[i];
                dpar_schedule_desc o = order_of(DPAR_SCHEDULE_MOE_OVERLAP, p, m, v);
                dpar_schedule s = made(&o);
                run got;
                memset(&got, 0, sizeof got);
                got.f = got.i = got.w = 2;
                got.joined = 5;
                CHECK(execute(&s, &got));
                CHECK_INT(got.makespan,
                          6 * (p - 1) + 6 * (p * (v - 1) + 1) + 5 * (m * v - p * (v - 1) - 1));
            }
        }
    }
}

/* ---- independent rules ----------------------------------------------------------------------- */

/* Compares with DeepSpeed's TrainSchedule (runtime/pipe/schedule.py): step t of rank r is a forward
 * if both are even or both odd. */
static void test_deepspeed(void)
{
    int32_t p, m, r, t;
    for (p = 1; p <= 8; p++) {
        for (m = 1; m <= 4 * p; m++) {
            dpar_schedule_desc o = order_of(DPAR_SCHEDULE_1F1B, p, m, 0);
            dpar_schedule s = made(&o);
            for (r = 0; r < p; r++) {
                const dpar_action *a = s.action + s.begin[r];
                for (t = 0; t < 2 * (m + p - 1); t++) {
                    int forward = t % 2 == r % 2;
                    int32_t k = forward      ? (t % 2 == 0 ? t / 2 - r / 2 : (t - 1) / 2 - r / 2)
                                : t % 2 == 0 ? t / 2 - p + (r + 1) / 2
                                             : (t - 1) / 2 - p + 1 + r / 2;
                    if (k >= 0 && k < m) {
                        CHECK_INT(a->kind, forward ? DPAR_ACTION_FORWARD : DPAR_ACTION_BACKWARD);
                        CHECK_INT(a->micro_batch, k);
                        CHECK_INT(a->stage, r);
                        a++;
                    }
                }
                CHECK(a == s.action + s.begin[r + 1]);
            }
        }
    }
}

/* Checks the micro-batches of rank 0's forwards: the two examples of Megatron's
 * model_parallel_config.py (microbatch_group_size_per_vp_stage), and orders that neither Megatron
 * nor PyTorch has. */
static void forwards(int32_t p, int32_t m, int32_t group, const char *expected)
{
    dpar_schedule_desc o = order_of(DPAR_SCHEDULE_INTERLEAVED, p, m, 2);
    dpar_schedule s;
    char got[128] = "";
    int64_t k;
    o.group = group;
    s = made(&o);
    for (k = 0; k < s.begin[1]; k++) {
        if (s.action[k].kind == DPAR_ACTION_FORWARD) {
            snprintf(got + strlen(got), sizeof got - strlen(got), "%d ", s.action[k].micro_batch);
        }
    }
    CHECK_TEXT(got, expected);
}

static void test_groups(void)
{
    forwards(2, 4, 2, "0 1 0 1 2 3 2 3 ");
    forwards(2, 5, 3, "0 1 2 0 1 2 3 4 3 4 ");
    forwards(2, 5, 0, "0 1 2 0 1 2 3 4 3 4 ");         /* 5 is not a multiple of 2 rounds */
    forwards(2, 7, 3, "0 1 2 3 0 1 2 3 4 5 6 4 5 6 "); /* 1 left: shared, not a group of its own */
    forwards(4, 3, 0, "0 1 2 0 1 2 ");                 /* PyTorch: one round of 3 */
    forwards(2, 3, 9, "0 1 2 0 1 2 ");                 /* one group */
    forwards(3, 11, 4, "0 1 2 3 0 1 2 3 4 5 6 7 4 5 6 7 8 9 10 8 9 10 "); /* Megatron's remainder */
}

/* Hashes with FNV-1a the CSV lists for several numbers of micro-batches. */
static uint32_t hashed(int32_t rule, int32_t p, int32_t from, int32_t to)
{
    uint32_t hash = 2166136261u;
    for (; from <= to; from++) {
        dpar_schedule_desc o = order_of(rule, p, from, 0);
        dpar_schedule s = made(&o);
        dpar_text t;
        const char *c;
        dpar_text_init(&t, again, sizeof again);
        dpar_schedule_write(&s, "\n", &t);
        CHECK(t.used < sizeof again);
        for (c = again; *c != 0; c++) {
            hash = (hash ^ (unsigned char)*c) * 16777619u;
        }
    }
    return hash;
}

/* Compares with sail-sg's zbv_greedy.py (unit costs) and v1f1b.py at 39f2c186, executed. */
static void test_sail(void)
{
    static const int32_t rule[] = {DPAR_SCHEDULE_V_HALF, DPAR_SCHEDULE_V_MIN, DPAR_SCHEDULE_1F1B_V};
    static const uint32_t expected[3][10] = {
        /* p = 1 .. 9 with m = 1 .. 3p; p = 19 with m = 16 .. 19 */
        {2312671319u, 2883571317u, 1839979186u, 773191929u, 2261103081u, 1704824783u, 1456709556u,
         4170436421u, 1175385731u, 3198014173u},
        {2759606147u, 1312744709u, 2436162966u, 3688689983u, 1391676905u, 909726563u, 3709587706u,
         2992767497u, 1513471229u, 3956137555u},
        {480767731u, 2429613089u, 2777480619u, 2061287353u, 244736339u, 1612157305u, 3327022795u,
         1765639721u, 563502085u, 2949884627u}};
    int32_t i, p;
    for (i = 0; i < 3; i++) {
        for (p = 1; p <= 9; p++) {
            CHECK_INT(hashed(rule[i], p, 1, 3 * p), expected[i][p - 1]);
        }
        CHECK_INT(hashed(rule[i], 19, 16, 19), expected[i][9]);
    }
}

/* ---- names, maps, refusals ------------------------------------------------------------------- */

static void test_names(void)
{
    static const struct {
        const char *name;
        int32_t rule, lifo;
    } known[] = {{"gpipe", DPAR_SCHEDULE_GPIPE, 0},
                 {"GPipe-LIFO", DPAR_SCHEDULE_GPIPE, 1},
                 {"ScheduleGPipe", DPAR_SCHEDULE_GPIPE, 0},
                 {"Schedule1F1B", DPAR_SCHEDULE_1F1B, 0},
                 {"ScheduleLoopedBFS", DPAR_SCHEDULE_BREADTH_FIRST, 0},
                 {"ScheduleInterleaved1F1B", DPAR_SCHEDULE_INTERLEAVED, 0},
                 {"ScheduleInterleavedZeroBubble", DPAR_SCHEDULE_INTERLEAVED_ZB, 0},
                 {"ScheduleZBVZeroBubble", DPAR_SCHEDULE_ZBV, 0},
                 {"ScheduleDualPipeV", DPAR_SCHEDULE_DUALPIPEV, 0},
                 {"ScheduleFlexibleInterleaved1F1B", DPAR_SCHEDULE_INTERLEAVED, 0},
                 {"interleaved-1f1b", DPAR_SCHEDULE_INTERLEAVED, 0},
                 {"looped_bfs", DPAR_SCHEDULE_BREADTH_FIRST, 0},
                 {"bfs", DPAR_SCHEDULE_BREADTH_FIRST, 0},
                 {"zb1p", DPAR_SCHEDULE_ZB_H1, 0},
                 {"ZB-1P", DPAR_SCHEDULE_ZB_H1, 0},
                 {"zb-h2", DPAR_SCHEDULE_ZB_2P, 0},
                 {"zb2p", DPAR_SCHEDULE_ZB_2P, 0},
                 {"izb", DPAR_SCHEDULE_INTERLEAVED_ZB, 0},
                 {"interleaved-zb", DPAR_SCHEDULE_INTERLEAVED_ZB, 0},
                 {"zb-v", DPAR_SCHEDULE_ZBV, 0},
                 {"EAGER", DPAR_SCHEDULE_EAGER_1F1B, 0},
                 {"v1f1b", DPAR_SCHEDULE_1F1B_V, 0},
                 {"overlap-1f1b", DPAR_SCHEDULE_MOE_OVERLAP, 0},
                 {"seq-1f1b", DPAR_SCHEDULE_SEQ1F1B, 0},
                 {"inference", DPAR_SCHEDULE_FORWARD_ONLY, 0}};
    size_t i;
    dpar_schedule_desc o = order_of(-1, 3, 5, 0);
    dpar_why why;
    for (i = 0; i < sizeof known / sizeof known[0]; i++) {
        CHECK_INT(dpar_schedule_find(&o, known[i].name, &why), DPAR_OK);
        CHECK_INT(o.rule, known[i].rule);
        CHECK_INT(o.lifo, known[i].lifo);
        CHECK_INT(o.ranks, 3);
    }
    for (i = 1; i < DPAR_SCHEDULE_END; i++) {
        CHECK_INT(dpar_schedule_find(&o, dpar_schedule_name((int32_t)i), NULL), DPAR_OK);
        CHECK_INT(o.rule, i);
    }
    CHECK_TEXT(dpar_schedule_name(-1), "?");
    CHECK_TEXT(dpar_schedule_name(0), "?");
    CHECK_TEXT(dpar_schedule_name(DPAR_SCHEDULE_END), "?");
    o.rule = 3;
    CHECK_INT(dpar_schedule_find(&o, "zbw", &why), DPAR_E_UNKNOWN);
    CHECK(strstr(why.text, "no schedule 'zbw': gpipe, gpipe-lifo, 1f1b, ") == why.text);
    CHECK(strstr(why.text, "chimera, forward-only") != NULL);
    CHECK_INT(o.rule, 3);
    CHECK_INT(dpar_schedule_find(&o, "", NULL), DPAR_E_UNKNOWN);
    CHECK_INT(dpar_schedule_find(&o, "schedule", NULL), DPAR_E_UNKNOWN);
    CHECK_INT(dpar_schedule_find(&o, "1f1", NULL), DPAR_E_UNKNOWN);
}

static void refused(dpar_schedule_desc o, dpar_status st, const char *sentence)
{
    dpar_schedule s;
    dpar_why why;
    why.text[0] = 0;
    CHECK_INT(dpari_order_check(&o, &why), st);
    CHECK_TEXT(why.text, sentence);
    CHECK_INT(dpari_order_check(&o, NULL), st);
    CHECK_INT(dpari_schedule_generate_bytes(&o, NULL), -1);
    CHECK_INT(counted(&o, 0), -1);
    why.text[0] = 0;
    s.ranks = 77;
    CHECK_INT(dpar_schedule_generate(&s, &o, memory, sizeof memory, &why), st);
    CHECK_TEXT(why.text, sentence);
    CHECK_INT(s.ranks, 77);
}

static dpar_schedule_desc with(dpar_schedule_desc o, int32_t group, int32_t slices, int32_t lifo)
{
    o.group = group;
    o.slices = slices;
    o.lifo = lifo;
    return o;
}

static void test_refusals(void)
{
    refused(order_of(-1, 4, 8, 0), DPAR_E_ARG, "rule -1 does not exist; rules are 1 to 18");
    refused(order_of(0, 4, 8, 0), DPAR_E_ARG,
            "rule is 0; set it, for example to DPAR_SCHEDULE_1F1B");
    refused(order_of(DPAR_SCHEDULE_END, 4, 8, 0), DPAR_E_ARG,
            "rule 19 does not exist; rules are 1 to 18");
    refused(order_of(DPAR_SCHEDULE_1F1B, 0, 8, 0), DPAR_E_ARG, "ranks=0; 1 to 65535 are allowed");
    refused(order_of(DPAR_SCHEDULE_1F1B, 65536, 8, 0), DPAR_E_ARG,
            "ranks=65536; 1 to 65535 are allowed");
    refused(order_of(DPAR_SCHEDULE_1F1B, 4, 0, 0), DPAR_E_ARG,
            "micro_batches=0; 1 to 65535 are allowed");
    refused(order_of(DPAR_SCHEDULE_1F1B, 4, INT32_MAX, 0), DPAR_E_ARG,
            "micro_batches=2147483647; 1 to 65535 are allowed");
    refused(order_of(DPAR_SCHEDULE_1F1B, 4, 8, 2), DPAR_E_ARG, "chunks=2; 1f1b allows 1 per rank");
    refused(order_of(DPAR_SCHEDULE_ZBV, 4, 8, 1), DPAR_E_ARG, "chunks=1; zbv allows 2 per rank");
    refused(order_of(DPAR_SCHEDULE_CHIMERA, 4, 8, 3), DPAR_E_ARG,
            "chunks=3; chimera allows 2 per rank");
    refused(order_of(DPAR_SCHEDULE_INTERLEAVED, 4, 8, -1), DPAR_E_ARG,
            "chunks=-1; interleaved allows 1 or more per rank");
    refused(order_of(DPAR_SCHEDULE_INTERLEAVED, 40000, 8, 0), DPAR_E_RANGE,
            "ranks=40000 x chunks=2 are 80000 stages; at most 65535 are allowed");
    refused(
        order_of(DPAR_SCHEDULE_FORWARD_ONLY, 65535, 8, INT32_MAX), DPAR_E_RANGE,
        "ranks=65535 x chunks=2147483647 are 140735340806145 stages; at most 65535 are allowed");
    refused(order_of(DPAR_SCHEDULE_V_MIN, 32768, 8, 0), DPAR_E_RANGE,
            "ranks=32768 x chunks=2 are 65536 stages; at most 65535 are allowed");
    refused(with(order_of(DPAR_SCHEDULE_SEQ1F1B, 4, 40000, 0), 0, 0, 0), DPAR_E_RANGE,
            "micro_batches=40000 x slices=2 are 80000; at most 65535 are allowed");
    refused(with(order_of(DPAR_SCHEDULE_SEQ1F1B, 4, 8, 0), 0, -1, 0), DPAR_E_ARG,
            "slices=-1; seq1f1b allows 1 or more, the other rules have no slices");
    refused(with(order_of(DPAR_SCHEDULE_1F1B, 4, 8, 0), 0, 2, 0), DPAR_E_ARG,
            "slices=2; seq1f1b allows 1 or more, the other rules have no slices");
    refused(with(order_of(DPAR_SCHEDULE_GPIPE, 4, 8, 0), 0, 0, 2), DPAR_E_ARG,
            "lifo=2; gpipe allows 0 or 1, the other rules only 0");
    refused(with(order_of(DPAR_SCHEDULE_1F1B, 4, 8, 0), 0, 0, 1), DPAR_E_ARG,
            "lifo=1; gpipe allows 0 or 1, the other rules only 0");
    refused(with(order_of(DPAR_SCHEDULE_1F1B, 4, 8, 0), 4, 0, 0), DPAR_E_ARG,
            "group=4, but 1f1b has no groups of micro-batches; leave it 0");
    refused(with(order_of(DPAR_SCHEDULE_INTERLEAVED, 4, 8, 2), -4, 0, 0), DPAR_E_ARG,
            "group=-4; a group needs at least one micro-batch per rank, 4");
    refused(with(order_of(DPAR_SCHEDULE_INTERLEAVED, 4, 8, 2), 3, 0, 0), DPAR_E_ARG,
            "group=3; a group needs at least one micro-batch per rank, 4");
    refused(order_of(DPAR_SCHEDULE_CHIMERA, 5, 8, 0), DPAR_E_DIVIDE,
            "chimera needs an even number of ranks, not 5");
    refused(order_of(DPAR_SCHEDULE_DUALPIPE, 3, 8, 0), DPAR_E_DIVIDE,
            "dualpipe needs an even number of ranks, not 3");
    refused(order_of(DPAR_SCHEDULE_DUALPIPE, 4, 9, 0), DPAR_E_DIVIDE,
            "dualpipe needs an even number of micro-batches, not 9");
    refused(order_of(DPAR_SCHEDULE_DUALPIPE, 4, 6, 0), DPAR_E_ARG,
            "dualpipe on 4 ranks needs at least 8 micro-batches, not 6");
    refused(order_of(DPAR_SCHEDULE_DUALPIPEV, 4, 7, 0), DPAR_E_ARG,
            "dualpipev on 4 ranks needs at least 8 micro-batches, not 7");
}

static void refused_stages(int32_t rule, int32_t v, int32_t stages, const uint16_t *rank_of)
{
    dpar_schedule_desc o = order_of(rule, 2, 1, v);
    char sentence[128];
    o.stages = stages;
    o.rank_of = rank_of;
    snprintf(
        sentence, sizeof sentence,
        "stages=%d; only breadth-first and forward-only allow it, up to 65535, with rank_of and "
        "without chunks",
        stages);
    refused(o, DPAR_E_ARG, sentence);
}

static void test_stages(void)
{
    dpar_schedule_desc o = order_of(DPAR_SCHEDULE_FORWARD_ONLY, 2, 3, 0);
    refused_stages(DPAR_SCHEDULE_BREADTH_FIRST, 0, 5, NULL);
    refused_stages(DPAR_SCHEDULE_BREADTH_FIRST, 1, 5, uneven);
    refused_stages(DPAR_SCHEDULE_BREADTH_FIRST, 0, -1, uneven);
    refused_stages(DPAR_SCHEDULE_BREADTH_FIRST, 0, 65536, uneven);
    refused_stages(DPAR_SCHEDULE_GPIPE, 0, 5, uneven);
    refused_stages(DPAR_SCHEDULE_INTERLEAVED, 0, 5, uneven);
    o.rank_of = uneven;
    o.stages = 5;
    CHECK_INT(made(&o).begin[1], 9);
    (void)timed(&o, 1, 1, 1);
    o.stages = 1; /* rank 1 has no actions */
    CHECK_INT(made(&o).begin[1], 3);
    CHECK_INT(made(&o).begin[2], 3);
}

static void test_room(void)
{
    int32_t rule;
    for (rule = 1; rule < DPAR_SCHEDULE_END; rule++) {
        dpar_schedule_desc o = order_of(rule, 4, 8, 0);
        dpar_schedule s;
        dpar_why why;
        int64_t n = dpari_schedule_generate_bytes(&o, NULL);
        void *exact = malloc((size_t)n); /* exact size, for the sanitizer */
        s.ranks = 77;
        CHECK_INT(dpar_schedule_generate(&s, &o, exact, n - 1, &why), DPAR_E_ROOM);
        CHECK(strstr(why.text, " bytes, got ") != NULL);
        CHECK_INT(dpar_schedule_generate(&s, &o, NULL, 0, NULL), DPAR_E_ROOM);
        CHECK_INT(dpar_schedule_generate(&s, &o, NULL, -1, NULL), DPAR_E_ROOM);
        CHECK_INT(s.ranks, 77);
        o.slices = rule != DPAR_SCHEDULE_SEQ1F1B; /* 1 means what all have */
        CHECK_INT(dpar_schedule_generate(&s, &o, exact, n, NULL), DPAR_OK);
        CHECK_INT(s.slices, rule == DPAR_SCHEDULE_SEQ1F1B ? 2 : 1);
        CHECK_INT(counted(&o, -1), -1);
        CHECK_INT(counted(&o, 4), -1);
        free(exact);
    }
}

/* Checks that relabelled ranks have the same lists. */
static void test_rank_of(void)
{
    static const uint16_t turned[] = {2, 0, 1, 2, 0, 1}, folded[] = {2, 0, 1, 1, 0, 2};
    static const uint16_t twice[] = {2, 0, 2, 2, 0, 2}, apart[] = {2, 0, 1, 2, 1, 0};
    static const uint16_t high[] = {2, 0, 3, 2, 0, 3};
    static uint16_t many[65535];
    int32_t rule, i, r;
    for (rule = 1; rule < DPAR_SCHEDULE_END; rule++) {
        dpar_schedule_desc o = order_of(rule, 3, 7, 0);
        dpar_schedule plain, s;
        run got;
        const uint16_t *map = turned;
        if (dpari_order_check(&o, NULL) != DPAR_OK) {
            continue;
        }
        plain = made(&o);
        memcpy(other_memory, memory, sizeof other_memory);
        plain.action = (dpar_action *)(void *)(other_memory + 4);
        plain.begin = other_memory;
        map = plain.stages == 6 && plain.rank_of[3] == 2 ? folded : turned;
        o.rank_of = map;
        s = made(&o);
        for (r = 0; r < 3; r++) {
            int64_t n = plain.begin[r + 1] - plain.begin[r];
            CHECK_INT(s.begin[map[r] + 1] - s.begin[map[r]], n);
            CHECK_INT(counted(&o, map[r]), n);
            CHECK(memcmp(s.action + s.begin[map[r]], plain.action + plain.begin[r],
                         sizeof(dpar_action) * (size_t)n) == 0);
        }
        CHECK(memcmp(s.rank_of, map, 2 * (size_t)s.stages) == 0);
        memset(&got, 0, sizeof got);
        got.f = got.i = got.w = 1;
        CHECK(execute(&s, &got));
    }
    {
        dpar_schedule_desc o = order_of(DPAR_SCHEDULE_INTERLEAVED, 3, 7, 0);
        o.rank_of = twice;
        refused(o, DPAR_E_ARG, "rank_of gives rank 2 the stages of two ranks of the rule");
        o.rank_of = apart;
        refused(o, DPAR_E_ARG,
                "rank_of puts stage 4 on rank 1; the rule needs it with stage 1, on rank 0");
        o.rule = DPAR_SCHEDULE_BREADTH_FIRST; /* takes any map; a rank may have no stages */
        (void)timed(&o, 1, 1, 1);
        CHECK_INT(counted(&o, 1), 28);
        CHECK_INT(counted(&o, 2), 28);
        o.rank_of = twice;
        (void)timed(&o, 1, 1, 1);
        CHECK_INT(counted(&o, 1), 0);
        CHECK_INT(counted(&o, 2), 4 * 7 * 2);
        o.rule = DPAR_SCHEDULE_GPIPE;
        (void)timed(&o, 1, 1, 1);
        o.rank_of = high;
        refused(o, DPAR_E_ARG, "rank_of[2] is 3, but there are only 3 ranks");
        o.rule = DPAR_SCHEDULE_INTERLEAVED;
        refused(o, DPAR_E_ARG, "rank_of[2] is 3, but there are only 3 ranks");
        o.rank_of = folded;
        refused(o, DPAR_E_ARG,
                "rank_of puts stage 3 on rank 1; the rule needs it with stage 0, on rank 2");
    }
    {
        dpar_schedule_desc o = order_of(DPAR_SCHEDULE_1F1B, 65535, 1, 0);
        for (i = 0; i < 65535; i++) {
            many[i] = (uint16_t)(65534 - i);
        }
        o.rank_of = many;
        CHECK_INT(dpari_order_check(&o, NULL), DPAR_OK);
        o.rule = DPAR_SCHEDULE_FORWARD_ONLY;
        o.ranks = 1;
        o.stages = 65535;
        refused(o, DPAR_E_ARG, "rank_of[0] is 65534, but there are only 1 ranks");
        o.ranks = 65535;
        CHECK_INT(dpari_order_check(&o, NULL), DPAR_OK);
        o = order_of(DPAR_SCHEDULE_1F1B, 65535, 1, 0);
        o.rank_of = many;
        many[65533] = 0;
        refused(o, DPAR_E_ARG, "rank_of gives rank 0 the stages of two ranks of the rule");
        many[65533] = 1;
        many[3] = many[65000];
        refused(o, DPAR_E_ARG, "rank_of gives rank 534 the stages of two ranks of the rule");
    }
}

/* Checks the rank behind those that are handled together. */
static void test_rank_window(void)
{
    static uint16_t many[1025];
    dpar_schedule_desc o = order_of(DPAR_SCHEDULE_ZB_H1, 1025, 1, 0);
    int32_t i;
    for (i = 0; i < 1025; i++) {
        many[i] = (uint16_t)i;
    }
    o.rank_of = many;
    CHECK_INT(dpari_order_check(&o, NULL), DPAR_OK);
    many[7] = 1024;
    refused(o, DPAR_E_ARG, "rank_of gives rank 1024 the stages of two ranks of the rule");
}

/* Checks the limits of the numbers: no overflow, no hang. */
static void test_large(void)
{
    dpar_schedule_desc o = order_of(DPAR_SCHEDULE_INTERLEAVED, 8, 65535, 8191);
    int32_t rule, rank;
    int64_t all = 0;
    CHECK_INT(counted(&o, 7), INT64_C(2) * 8191 * 65535);
    CHECK_INT(dpari_schedule_generate_bytes(&o, NULL),
              INT64_C(8) * 9 + INT64_C(16) * 8 * 8191 * 65535 + 2 * 8 * 8191); /* a multiple of 8 */
    for (rule = 1; rule < DPAR_SCHEDULE_END; rule++) {
        o = order_of(rule, 32766, 65534 / (rule == DPAR_SCHEDULE_SEQ1F1B ? 2 : 1), 0);
        CHECK(dpari_schedule_generate_bytes(&o, NULL) > 0);
    }
    o = order_of(DPAR_SCHEDULE_DUALPIPE, 8, 20, 0);
    for (rank = 0; rank < 8; rank++) {
        all += counted(&o, rank);
    }
    CHECK_INT(made(&o).begin[8], all);
}

int main(void)
{
    test_files();
    test_metrics();
    test_sweep();
    test_full_backward();
    test_zero_bubble();
    test_v();
    test_v_memory();
    test_both_ways();
    test_slices_and_latency();
    test_overlap();
    test_deepspeed();
    test_groups();
    test_sail();
    test_names();
    test_refusals();
    test_stages();
    test_room();
    test_rank_of();
    test_rank_window();
    test_large();
    return CHECK_DONE();
}
