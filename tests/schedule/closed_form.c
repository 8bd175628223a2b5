/* SPDX-License-Identifier: MIT-0 */
/* Tests closed: compares every formula with the simulation over the ranges that it claims, and
 * checks that it fails where it states that it does not apply. Ranges and counts: p in 2, 3, 4, 6,
 * 8, m = 1 .. 4p, six time vectors, as in a published sweep of the same formulas, whose counts are
 * at the checks. Run with: tests/run test schedule. */
#include "dpar_schedule.h"

#include "check.h"
#include "schedule_calls.h"

/* Evaluates a formula given as separate arguments; text may be NULL. */
static dpar_status closed_form(const dpar_schedule_desc *order, const dpar_schedule_times *t,
                               int32_t what, int32_t rank, int64_t *value, const char **text,
                               dpar_why *why)
{
    dpar_formula f;
    dpar_status st;
    f.value = *value;
    f.text = text != NULL ? *text : NULL;
    st = dpar_schedule_closed_form(order, t, what, rank, &f, why);
    *value = f.value;
    if (text != NULL) {
        *text = f.text;
    }
    return st;
}

static int64_t lists[1 << 19], work[1 << 20];
static dpar_rank_timing ranks[64];

static const int32_t sizes[] = {2, 3, 4, 6, 8};
static const int64_t vectors[8][3] = {{1, 1, 1}, {2, 3, 1}, {1, 2, 1}, {2, 2, 1},
                                      {3, 2, 2}, {2, 3, 4}, {1, 1, 2}, {2, 2, 3}};

static dpar_schedule_times times(const int64_t f[3], int64_t scale, int64_t latency)
{
    dpar_schedule_times t;
    memset(&t, 0, sizeof t);
    t.forward.all = scale * f[0];
    t.input.all = scale * f[1];
    t.weight.all = scale * f[2];
    t.latency.all = latency;
    return t;
}

/* Returns 0 if there is no such order. */
static int simulate(const dpar_schedule_desc *o, const dpar_schedule_times *t, dpar_timing *out)
{
    dpar_schedule s;
    dpar_why why;
    if (dpar_schedule_generate(&s, o, lists, sizeof lists, NULL) != DPAR_OK) {
        return 0;
    }
    CHECK_INT(simulate_list(&s, t, NULL, NULL, out, ranks, work, sizeof work, &why), DPAR_OK);
    return 1;
}

/* Checks that every formula that applies gives the result of the simulation. */
static int agrees(const dpar_schedule_desc *o, const dpar_schedule_times *t)
{
    dpar_schedule_times still = *t;
    dpar_timing out, without;
    int64_t value, seen[4];
    int32_t what, r;
    int applied = 0;
    still.latency.all = 0;
    if (!simulate(o, &still, &without) || !simulate(o, t, &out)) {
        return 0;
    }
    seen[DPAR_FORMULA_MAKESPAN] = out.makespan;
    seen[DPAR_FORMULA_SPAN] = out.span;
    seen[DPAR_FORMULA_LATENCY] = out.makespan - without.makespan;
    seen[DPAR_FORMULA_IDLE] = out.bubble_worst;
    for (what = 0; what < DPAR_FORMULA_PEAK; what++) {
        if (closed_form(o, t, what, 0, &value, NULL, NULL) == DPAR_OK) {
            CHECK_INT(value, seen[what]);
            applied++;
        }
    }
    for (r = 0; r < o->ranks; r++) {
        if (closed_form(o, t, DPAR_FORMULA_PEAK, r, &value, NULL, NULL) == DPAR_OK) {
            CHECK_INT(value, ranks[r].peak_count);
            applied++;
        }
    }
    return applied;
}

static void test_sweep(void)
{
    int32_t rule, v;
    int64_t m, latency, less;
    size_t k, n;
    for (rule = 1; rule < DPAR_SCHEDULE_END; rule++) {
        int applied = 0;
        for (k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            for (m = 1; m <= 4 * sizes[k]; m++) {
                for (v = 0; v <= 4; v += v ? 1 : 2) { /* 0 selects the rule's own */
                    dpar_schedule_desc o = order_of(rule, sizes[k], (int32_t)m, v);
                    if (dpari_order_check(&o, NULL) != DPAR_OK) {
                        continue;
                    }
                    for (n = 0; n < 8; n++) {
                        for (latency = 0; latency < 5; latency += 2) {
                            for (less = 0; less < 3; less++) { /* FB = F + B, or less, or below B */
                                dpar_schedule_times t = times(vectors[n], n == 0 ? 8 : 1, latency);
                                t.overlap.all = t.input.all + t.weight.all +
                                                (less < 2 ? t.forward.all - less : -1);
                                t.backward.all =
                                    rule == DPAR_SCHEDULE_CHIMERA && n % 2 ? t.forward.all : 0;
                                applied += agrees(&o, &t);
                                if (rule != DPAR_SCHEDULE_DUALPIPE &&
                                    rule != DPAR_SCHEDULE_DUALPIPEV &&
                                    rule != DPAR_SCHEDULE_MOE_OVERLAP) {
                                    break;
                                }
                            }
                        }
                    }
                }
            }
        }
        CHECK(rule == DPAR_SCHEDULE_1F1B_V ? applied == 0 : applied > 300);
    }
}

/* Checks V-Half and V-Min up to 12 ranks, and the idle times in addition to 6 m of V-Half at m = 4
 * p, F = I = W. */
static void test_v(void)
{
    static const int64_t half[] = {1, 5, 5, 11, 11, 17, 17, 23, 23, 29, 29};
    static const int64_t least[] = {3, 5, 11, 15, 17, 23, 27, 29, 35, 39, 41};
    int32_t p;
    for (p = 2; p <= 12; p++) {
        dpar_schedule_desc o = order_of(DPAR_SCHEDULE_V_HALF, p, 4 * p, 0);
        dpar_schedule_times t = times(vectors[0], 1, 0);
        dpar_timing out;
        CHECK_INT(agrees(&o, &t), p);
        CHECK(simulate(&o, &t, &out));
        CHECK_INT(out.makespan - 24 * p, half[p - 2]);
        o.rule = DPAR_SCHEDULE_V_MIN;
        CHECK_INT(agrees(&o, &t), p);
        CHECK(simulate(&o, &t, &out));
        CHECK_INT(out.makespan - 24 * p, least[p - 2]);
    }
}

/* Counts how often a makespan's formula is wrong where it states that it does not apply. */
static void test_failures(void)
{
    int tried[5] = {0, 0, 0, 0, 0}, wrong[5] = {0, 0, 0, 0, 0};
    size_t k, n;
    int32_t m, v;
    for (k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        const int32_t p = sizes[k];
        for (m = 1; m <= 4 * p; m++) {
            for (n = 0; n < 6; n++) {
                dpar_schedule_times t = times(vectors[n], 1, 0);
                const int64_t f = t.forward.all, i = t.input.all, w = t.weight.all;
                dpar_timing out;
                int64_t value;
                dpar_schedule_desc o;
                for (v = 2; v <= 4 && m < p; v += 2) {
                    o = order_of(DPAR_SCHEDULE_INTERLEAVED, p, m, v);
                    CHECK(simulate(&o, &t, &out));
                    CHECK_INT(closed_form(&o, &t, 0, 0, &value, NULL, NULL), DPAR_E_NONE);
                    tried[0]++;
                    wrong[0] += out.makespan != (m * v + p - 1) * (f + i + w);
                    o.rule = DPAR_SCHEDULE_BREADTH_FIRST;
                    CHECK(simulate(&o, &t, &out));
                    CHECK_INT(closed_form(&o, &t, 0, 0, &value, NULL, NULL), DPAR_E_NONE);
                    tried[1]++;
                    wrong[1] += out.makespan != (m * v + p - 1) * (f + i + w);
                }
                o = order_of(DPAR_SCHEDULE_ZB_H1, p, m, 0);
                if (w > i && m >= p && m % (m / p) == 0) { /* values of m that PyTorch allows */
                    CHECK(simulate(&o, &t, &out));
                    CHECK_INT(closed_form(&o, &t, 0, 0, &value, NULL, NULL), DPAR_E_NONE);
                    tried[2]++;
                    wrong[2] += out.makespan != m * (f + i + w) + (p - 1) * (f + i - w);
                }
                if (w <= i && m < p) {
                    CHECK(simulate(&o, &t, &out));
                    CHECK_INT(closed_form(&o, &t, 0, 0, &value, NULL, NULL), DPAR_E_NONE);
                    tried[3]++;
                    wrong[3] += out.makespan != m * (f + i + w) + (p - 1) * (f + i - w);
                }
                if (n == 0 && m < 2 * p - 1) {
                    o.rule = DPAR_SCHEDULE_ZBV;
                    CHECK(simulate(&o, &t, &out));
                    CHECK_INT(closed_form(&o, &t, 0, 0, &value, NULL, NULL), DPAR_E_NONE);
                    tried[4]++;
                    wrong[4] += out.makespan != 6 * m + p - 1;
                }
            }
        }
    }
    CHECK_INT(tried[0], 216); /* interleaved, m < p: the sweep's 216 of 216 */
    CHECK_INT(wrong[0], 216);
    CHECK_INT(tried[1], 216); /* breadth-first, m < p: 216 of 216 */
    CHECK_INT(wrong[1], 216);
    CHECK_INT(tried[2], 49); /* ZB-H1, W > I: 49 of 49 */
    CHECK_INT(wrong[2], 49);
    CHECK_INT(wrong[3], tried[3]); /* ZB-H1, m < p: found here; 18 pairs, 5 vectors */
    CHECK_INT(tried[3], 90);
    CHECK_INT(tried[4], 36); /* ZBV, m < 2p - 1: 29 of 36 */
    CHECK_INT(wrong[4], 29);
}

/* Checks a latency c in units of a full stage F = I = W = 1 (chunks 1 / v), p = 8, m = 32: the
 * makespans of an earlier sweep with c = 0, .05, .2, 1, with its rounding; here all times are
 * multiplied by 80. */
static void test_latency(void)
{
    static const struct {
        int32_t rule, chunks;
        double makespan[4];
    } row[] = {{DPAR_SCHEDULE_1F1B, 1, {117, 120.4, 130.6, 185}},
               {DPAR_SCHEDULE_EAGER_1F1B, 1, {117, 117.7, 119.8, 131}},
               {DPAR_SCHEDULE_ZB_H1, 1, {103, 104.4, 108.6, 151}},
               {DPAR_SCHEDULE_INTERLEAVED, 2, {106.5, 108, 112.5, 155.5}},
               {DPAR_SCHEDULE_INTERLEAVED, 4, {101.25, 104.35, 113.65, 234.75}},
               {DPAR_SCHEDULE_INTERLEAVED_ZB, 2, {99.5, 101.3, 106.7, 201}},
               {DPAR_SCHEDULE_ZBV, 2, {99.5, 101.15, 106.1, 137.5}},
               {DPAR_SCHEDULE_V_HALF, 2, {104.5, 106.9, 114.1, 216}},
               {DPAR_SCHEDULE_V_MIN, 2, {109.5, 118.9, 147.1, 297.5}},
               {DPAR_SCHEDULE_DUALPIPEV, 2, {103, 106.6, 118.9, 184.5}}};
    static const int64_t latency[4] = {0, 4, 16, 80};
    size_t k;
    int c;
    for (k = 0; k < sizeof row / sizeof row[0]; k++) {
        dpar_schedule_desc o = order_of(row[k].rule, 8, 32, row[k].chunks);
        for (c = 0; c < 4; c++) {
            dpar_schedule_times t = times(vectors[0], 80 / row[k].chunks, latency[c]);
            dpar_timing out;
            CHECK(simulate(&o, &t, &out));
            CHECK(fabs((double)out.makespan / 80 - row[k].makespan[c]) < .0501);
        }
    }
    { /* beyond its range eager 1F1B does depend on m: 20, not 19 */
        dpar_schedule_desc o = order_of(DPAR_SCHEDULE_EAGER_1F1B, 2, 4, 1);
        dpar_schedule_times t = times(vectors[0], 1, 2);
        dpar_timing out;
        int64_t value;
        CHECK(simulate(&o, &t, &out));
        CHECK_INT(out.makespan, 20);
        CHECK_INT(closed_form(&o, &t, DPAR_FORMULA_MAKESPAN, 0, &value, NULL, NULL), DPAR_E_NONE);
    }
}

static void says(dpar_schedule_desc o, dpar_schedule_times t, int32_t what, int32_t rank,
                 dpar_status st, const char *sentence)
{
    int64_t value = 77;
    const char *formula = "none";
    dpar_why why;
    CHECK_INT(closed_form(&o, &t, what, rank, &value, &formula, &why), st);
    CHECK_TEXT(why.text, sentence);
    CHECK_INT(value, 77); /* nothing was written */
    CHECK_TEXT(formula, "none");
    CHECK_INT(closed_form(&o, &t, what, rank, &value, NULL, NULL), st);
}

static void test_sentences(void)
{
    static const int64_t uneven[] = {1, 2}, late[3] = {1, 1, 4};
    dpar_schedule_times heavy = times(late, 1, 0);
    dpar_schedule_times t = times(vectors[0], 1, 0), slow = times(vectors[0], INT64_MAX / 8, 0);
    dpar_schedule_desc o = order_of(DPAR_SCHEDULE_ZBV, 4, 6, 0);
    const char *formula;
    int64_t value;
    says(o, t, 0, 0, DPAR_E_NONE, "zbv: no formula gives the makespan, unless m >= 2 p - 1");
    says(order_of(DPAR_SCHEDULE_1F1B_V, 4, 8, 0), t, DPAR_FORMULA_SPAN, 0, DPAR_E_NONE,
         "1f1b-v: no formula gives the span");
    heavy.overlap.all = 5;
    says(order_of(DPAR_SCHEDULE_DUALPIPEV, 4, 8, 0), heavy, DPAR_FORMULA_IDLE, 0, DPAR_E_NONE,
         "dualpipev: no formula gives the idle time, unless W <= I");
    says(order_of(0, 4, 8, 0), t, 0, 0, DPAR_E_ARG,
         "rule is 0; set it, for example to DPAR_SCHEDULE_1F1B");
    says(o, t, 5, 0, DPAR_E_ARG, "formula 5 of rank 0; formulas are 0 to 4 and ranks 0 to 3");
    says(o, t, 0, 4, DPAR_E_ARG, "formula 0 of rank 4; formulas are 0 to 4 and ranks 0 to 3");
    says(order_of(DPAR_SCHEDULE_GPIPE, 4, 1, 0), slow, 0, 0, DPAR_E_RANGE,
         "1 micro-batches on 4 ranks: the value exceeds INT64_MAX");
    slow.forward.all = INT64_MAX / 4 + 1;
    says(o, slow, 0, 0, DPAR_E_RANGE,
         "forward=2305843009213693952, input=1152921504606846975, weight=1152921504606846975; "
         "times must be at most INT64_MAX / 4");
    slow.forward.all = -1;
    says(o, slow, 0, 0, DPAR_E_ARG,
         "forward=-1, input=1152921504606846975, weight=1152921504606846975, latency=0; all times "
         "must be 0 or more");
    o = order_of(DPAR_SCHEDULE_1F1B, 2, 2, 0);
    t.forward.each = uneven;
    says(o, t, 0, 0, DPAR_E_NONE,
         "1f1b: no formula gives the makespan, unless all stages alike, and messages buffered with "
         "a latency only");
    t.forward.each = NULL;
    CHECK_INT(closed_form(&o, &t, 0, 0, &value, &formula, NULL), DPAR_OK);
    CHECK_TEXT(formula, "(m + p - 1) (F + B)");
    CHECK_INT(value, 9);
    o.ranks = 0;
    CHECK_INT(closed_form(&o, &t, 0, 0, &value, &formula, NULL), DPAR_E_ARG);
}

/* Checks that formulas which apply are right for any times, including zero, and any overlap. */
static void test_random_times(void)
{
    uint64_t state = 88172645463325252u;
    int trial, applied = 0;
    for (trial = 0; trial < 40000; trial++) {
        int64_t f[3], draw[10];
        dpar_schedule_desc o;
        dpar_schedule_times t;
        int k;
        for (k = 0; k < 10; k++) { /* xorshift64 */
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            draw[k] = (int64_t)(state >> 33);
        }
        o = order_of(1 + (int32_t)(draw[0] % (DPAR_SCHEDULE_END - 1)), 1 + (int32_t)(draw[1] % 6),
                     1 + (int32_t)(draw[2] % 16), (int32_t)(draw[3] % 4));
        f[0] = draw[4] % 5;
        f[1] = draw[5] % 3 ? f[0] : draw[5] % 5; /* values for which F = I */
        f[2] = draw[6] % 3 ? f[0] : draw[6] % 5;
        t = times(f, 1, draw[7] % 2 ? 0 : draw[7] % 5);
        t.overlap.all = draw[8] % 2 ? f[0] + f[1] + f[2] : draw[8] % 12;
        t.backward.all = draw[9] % 4 ? 0 : draw[9] % 9;
        applied += agrees(&o, &t);
    }
    CHECK(applied > 20000);
}

/* Checks that the text belongs to the value, with a term for the latency if there is one. */
static void test_formula_text(void)
{
    static const int64_t unit[3] = {1, 1, 1};
    dpar_schedule_desc o = order_of(DPAR_SCHEDULE_GPIPE, 4, 4, 0);
    dpar_schedule_times t = times(unit, 4, 1);
    const char *text = "";
    int64_t value;
    CHECK_INT(closed_form(&o, &t, DPAR_FORMULA_MAKESPAN, 0, &value, &text, NULL), DPAR_OK);
    CHECK_TEXT(text, "(m + p - 1) (F + B) + 2 (p - 1) c");
    CHECK_INT(value, 7 * 12 + 6);
    CHECK_INT(closed_form(&o, &t, DPAR_FORMULA_SPAN, 0, &value, &text, NULL), DPAR_OK);
    CHECK_TEXT(text, "(m + p - 1) (F + B) + 2 (p - 1) c");
    CHECK_INT(closed_form(&o, &t, DPAR_FORMULA_LATENCY, 0, &value, &text, NULL), DPAR_OK);
    CHECK_TEXT(text, "2 (p - 1) c");
    t.latency.all = 0;
    CHECK_INT(closed_form(&o, &t, DPAR_FORMULA_MAKESPAN, 0, &value, &text, NULL), DPAR_OK);
    CHECK_TEXT(text, "(m + p - 1) (F + B)");
}

int main(void)
{
    test_sweep();
    test_v();
    test_failures();
    test_latency();
    test_sentences();
    test_random_times();
    test_formula_text();
    return CHECK_DONE();
}
