/* SPDX-License-Identifier: MIT-0 */
/* planner, calibrate, plan_show: the walk against a naive nested loop over dpar_plan_of; fronts,
 * neighbours, nearest, smallest; a fit that finds known constants again; valid pictures. */
#include "dpar.h"

#include <stdlib.h>

#include "check.h"

static dpar_workload w;
static dpar_cluster c;
static dpar_job job;

static void set(const char *model, const char *cluster, const char *recipe)
{
    dpar_model m;
    dpar_why why;
    CHECK_INT(dpar_model_parse(&m, model, strlen(model), &why), DPAR_OK);
    CHECK_INT(dpar_workload_build(&w, &m, 0, &why), DPAR_OK);
    CHECK_INT(dpar_cluster_parse(&c, cluster, strlen(cluster), &why), DPAR_OK);
    CHECK_INT(dpar_recipe_find(&job.recipe, recipe, &why), DPAR_OK);
    job.work = &w;
    job.cluster = &c;
}

static dpar_status search(dpar_search *q, dpar_planner *p, dpar_plan *top, int tops,
                          dpar_plan *front, int fronts, int64_t budget)
{
    dpar_why why;
    dpar_status st = dpar_planner_init(p, &job, q, top, tops, front, fronts, &why);
    CHECK_INT(st, DPAR_OK);
    do {
        st = dpar_planner_run(p, budget, &why);
        CHECK(dpar_planner_progress(p) >= 0.0 && dpar_planner_progress(p) <= 1.0);
    } while (st == DPAR_MORE);
    return st;
}

/* Every combination of the usual space, the slow way. */
static double brute_best(int64_t batch, int64_t *legal)
{
    double best = 1e30;
    int tp, pp, cp, vp, zero, r, mbs, k, gpus = dpar_cluster_gpus(&c), hsdp;
    *legal = 0;
    for (tp = 1; tp <= c.gpus_per_node; tp *= 2)
        for (cp = 1; cp <= 2; cp *= 2)
            for (k = 0; k < (cp > 1 ? 2 : 1); k++)
                for (pp = 1; pp <= w.blocks; pp++)
                    for (vp = 1; vp <= (pp > 1 ? 16 : 1); vp++)
                        for (mbs = 1; mbs <= 64; mbs *= 2)
                            for (r = 0; r <= 2; r += 2)
                                for (zero = 0; zero <= 3; zero++)
                                    for (hsdp = 0; hsdp < 2; hsdp++) {
                                        dpar_strategy s = dpar_strategy_default();
                                        dpar_plan plan;
                                        if (gpus % (tp * pp * cp) != 0 || (pp > 1 && zero > 1) ||
                                            zero == 2 || (vp > 1 && w.blocks % (pp * vp) != 0)) {
                                            continue;
                                        }
                                        s.tp = tp;
                                        s.sp = tp > 1;
                                        s.cp = cp;
                                        s.cp_kind = k;
                                        s.pp = pp;
                                        s.vp = vp;
                                        s.schedule = vp > 1 ? DPAR_INTERLEAVED : DPAR_1F1B;
                                        s.dp = gpus / (tp * pp * cp);
                                        s.micro_batch = mbs;
                                        s.zero = zero;
                                        s.recompute = r;
                                        s.shard = hsdp ? c.gpus_per_node / tp : s.dp;
                                        if ((zero > 0 && s.dp * cp == 1) ||
                                            batch % ((int64_t)s.dp * mbs) != 0 ||
                                            (hsdp && (zero == 0 || s.shard < 2 || s.shard >= s.dp ||
                                                      s.dp % s.shard != 0))) {
                                            continue;
                                        }
                                        s.micro_batches = (int32_t)(batch / s.dp / mbs);
                                        if (dpar_plan_of(&job, &s, batch, &plan, NULL, NULL) ==
                                                DPAR_OK &&
                                            plan.step.total < best) {
                                            best = plan.step.total;
                                        }
                                        *legal += dpar_strategy_check(&job, &s, batch, NULL,
                                                                      NULL) == DPAR_OK;
                                    }
    return best;
}

static void test_walk(void)
{
    static dpar_plan top[5], again[5], front[16];
    static dpar_planner p, q2;
    dpar_search q;
    int64_t legal;
    double best;
    int i, k;
    memset(&q, 0, sizeof q);
    q.global_batch = 64;
    q.fixed = dpar_strategy_default();
    set("llama-3-8b", "2x4:a100-80,nic=4x25", "megatron");
    CHECK_INT(search(&q, &p, top, 5, front, 16, 100), DPAR_DONE);
    best = brute_best(64, &legal);
    CHECK_NEAR(top[0].step.total, best, 1e-12);
    CHECK_INT(p.evaluated, legal);
    for (i = 0; i + 1 < p.tops; i++) {
        CHECK(top[i].step.total <= top[i + 1].step.total);
        CHECK(top[i].fits &&
              memcmp(&top[i].strategy, &top[i + 1].strategy, sizeof top[i].strategy) != 0);
    }
    for (i = 0; i < p.fronts; i++) { /* no point of the front beats another in both */
        for (k = 0; k < p.fronts; k++) {
            CHECK(i == k || front[i].step.total < front[k].step.total ||
                  front[i].memory.total < front[k].memory.total);
        }
    }
    CHECK_NEAR(front[0].step.total, top[0].step.total, 1e-12);
    CHECK_INT(search(&q, &q2, again, 5, NULL, 0, 1), DPAR_DONE); /* any budget, the same answer */
    CHECK(memcmp(&top[0].strategy, &again[0].strategy, sizeof top[0].strategy) == 0);
    CHECK_INT(p.evaluated, q2.evaluated);
    q.fixed.tp = 2;
    q.fixed.zero = 3;
    q.fixed_fields = 1u << DPAR_FIELD_TP | 1u << DPAR_FIELD_ZERO;
    CHECK_INT(search(&q, &p, top, 5, NULL, 0, 1000), DPAR_DONE);
    CHECK(top[0].strategy.tp == 2 && top[0].strategy.zero == 3);
    q.fixed_fields = 0;
    q.space = DPAR_SPACE_WHOLE;
    CHECK_INT(search(&q, &q2, again, 5, NULL, 0, 100000), DPAR_DONE);
    CHECK(again[0].step.total <= best); /* the whole space holds the usual one */
    CHECK(q2.evaluated > 20 * legal);
}

static void test_nothing_fits(void)
{
    static dpar_plan top[2];
    static dpar_planner p;
    dpar_search q;
    dpar_why why;
    dpar_plan plan;
    dpar_strategy s = dpar_strategy_default(), legal;
    memset(&q, 0, sizeof q);
    q.global_batch = 64;
    q.fixed = dpar_strategy_default();
    set("llama-3.1-405b", "1x8:a100-40", "megatron");
    CHECK_INT(dpar_planner_init(&p, &job, &q, top, 2, NULL, 0, &why), DPAR_OK);
    CHECK_INT(dpar_planner_run(&p, INT64_C(1) << 40, &why), DPAR_E_NONE);
    CHECK(strstr(why.text, "nothing fits") != NULL);
    CHECK(p.rejected[DPAR_RULE_MEMORY] == p.evaluated && p.evaluated > 0);
    q.global_batch = 0;
    CHECK_INT(dpar_smallest_machine(&job, &q, 8192, &plan, &why), DPAR_OK);
    CHECK(dpar_strategy_ranks(&plan.strategy) > 64 && plan.fits);
    CHECK_INT(dpar_smallest_machine(&job, &q, 8, &plan, &why), DPAR_E_NONE);
    s.tp = 7;
    CHECK_INT(dpar_nearest_legal(&job, &s, 0, &legal, &why), DPAR_OK);
    CHECK_INT(legal.tp, 8);
    CHECK_INT(dpar_strategy_check(&job, &legal, 0, NULL, NULL), DPAR_OK);
    q.global_batch = -5;
    CHECK_INT(dpar_planner_init(&p, &job, &q, top, 2, NULL, 0, &why), DPAR_E_ARG);
    q.global_batch = 7; /* prime: hardly anything divides it, a sentence all the same */
    CHECK_INT(dpar_planner_init(&p, &job, &q, top, 2, NULL, 0, &why), DPAR_OK);
    CHECK_INT(dpar_planner_run(&p, INT64_C(1) << 40, &why), DPAR_E_NONE);
}

static void test_neighbours(void)
{
    dpar_plan plan;
    dpar_rejected r[12];
    dpar_strategy s = dpar_strategy_default();
    int n, i;
    set("llama-3-8b", "8x8:h100-80", "megatron");
    s.tp = 4;
    s.sp = 1;
    s.pp = 2;
    s.dp = 8;
    s.zero = 1;
    s.micro_batches = 16;
    CHECK_INT(dpar_plan_of(&job, &s, 128, &plan, NULL, NULL), DPAR_OK);
    n = dpar_plan_neighbours(&job, &plan, 128, r, 12);
    CHECK(n >= 8);
    for (i = 0; i < n; i++) {
        CHECK(strlen(r[i].text) > 8);
    }
    CHECK_INT(dpar_plan_neighbours(&job, &plan, 128, r, 2), 2);
}

/* Measurements made by the model with other constants: the fit must find those again. */
static void test_fit(void)
{
    static dpar_measurement m[24];
    dpar_calibration cal, truth;
    dpar_why why;
    double error = 1.0;
    int i;
    set("llama-3-8b", "1x8:a100-80", "megatron");
    dpar_calibration_default(&cal, DPAR_GEN_AMPERE);
    truth = cal;
    truth.value[DPAR_CAL_GEMM] = 0.6;
    truth.value[DPAR_CAL_HBM] = 0.65;
    for (i = 0; i < 24; i++) {
        dpar_cluster machine = c;
        dpar_job j = job;
        dpar_step t;
        machine.cal = truth;
        j.cluster = &machine;
        m[i].work = &w;
        m[i].cluster = &c;
        m[i].recipe = job.recipe;
        m[i].strategy = dpar_strategy_default();
        m[i].strategy.tp = 1 << i % 4;
        m[i].strategy.dp = 8 >> i % 4;
        m[i].strategy.micro_batch = 1 << i / 4 % 3;
        m[i].strategy.recompute = i / 12 ? DPAR_RECOMPUTE_FULL : DPAR_RECOMPUTE_NONE;
        dpar_step_of(&j, &m[i].strategy, &t);
        m[i].seconds = t.total;
        m[i].weight = 1.0;
    }
    CHECK_INT(dpar_calibrate(&cal, m, 24, 1u << DPAR_CAL_GEMM | 1u << DPAR_CAL_HBM, &error, &why),
              DPAR_OK);
    CHECK_NEAR(cal.value[DPAR_CAL_GEMM], 0.6, 0.02);
    CHECK_NEAR(cal.value[DPAR_CAL_HBM], 0.65, 0.1); /* memory-bound work is the lesser part */
    CHECK(error < 0.01);
    CHECK_INT(cal.rows, 24);
    CHECK(cal.error[DPAR_CAL_GEMM] < 0.1);
    CHECK_INT(dpar_calibrate(&cal, m, 0, 1, &error, &why), DPAR_E_ARG);
    CHECK_INT(dpar_calibrate(&cal, m, 1, 0, &error, &why), DPAR_E_ARG);
    m[3].seconds = HUGE_VAL - HUGE_VAL;
    CHECK_INT(dpar_calibrate(&cal, m, 24, 1, &error, &why), DPAR_E_ARG);
}

/* Is it JSON? Read with our own strict reader; also that no text is cut. */
static void test_show(void)
{
    static char text[200000];
    static dpar_plan top[3], front[8];
    static dpar_planner p;
    dpar_rejected r[12];
    dpar_report report;
    dpar_search q;
    dpar_text t;
    dpar_json j;
    dpar_json_item item;
    dpar_strategy back = dpar_strategy_default();
    dpar_why why;
    int depth = 0, plans = 0;
    size_t i;
    memset(&q, 0, sizeof q);
    q.global_batch = 128;
    q.fixed = dpar_strategy_default();
    set("mixtral-8x7b", "4x8:h100-80", "megatron");
    CHECK_INT(search(&q, &p, top, 3, front, 8, 1 << 20), DPAR_DONE);
    memset(&report, 0, sizeof report);
    report.job = &job;
    report.plan = top;
    report.plans = p.tops;
    report.front = front;
    report.fronts = p.fronts;
    report.rejected = r;
    report.rejects = dpar_plan_neighbours(&job, top, 128, r, 12);
    report.rejected_by_rule = p.rejected;
    report.note = "a \"quoted\" note\\ with\ttab";
    dpar_text_init(&t, text, sizeof text);
    dpar_show_plans_json(&t, &report);
    CHECK(t.used < sizeof text);
    dpar_json_init(&j, text, t.used);
    do {
        CHECK_INT(dpar_json_next(&j, &item, &why), DPAR_OK);
        if (item.key != NULL && item.key_length == 5 && memcmp(item.key, "mfu\"", 4) == 0) {
            plans++;
        }
        depth = item.depth > depth ? item.depth : depth;
    } while (item.kind != DPAR_JSON_END);
    CHECK(depth == 4);
    (void)plans;
    dpar_text_init(&t, text, sizeof text);
    dpar_show_plans_svg(&t, &report);
    CHECK(strncmp(text, "<svg", 4) == 0 && strcmp(text + t.used - 7, "</svg>\n") == 0);
    CHECK(strstr(text, "nan") == NULL && strstr(text, "inf") == NULL);
    dpar_text_init(&t, text, sizeof text);
    dpar_show_plans_csv(&t, &report);
    for (i = 0, depth = 0; i < t.used; i++) {
        depth += text[i] == '\n';
    }
    CHECK_INT(depth, 1 + p.tops);
    dpar_text_init(&t, text, sizeof text);
    dpar_show_plans_text(&t, &report);
    dpar_show_plan_explain(&t, &report);
    CHECK(strstr(text, "mixtral-8x7b") != NULL && strstr(text, "optimizer") != NULL);
    for (i = 0; (int)i < p.tops; i++) { /* what is shown reads back */
        dpar_text_init(&t, text, sizeof text);
        dpar_show_strategy(&t, &top[i].strategy);
        back = dpar_strategy_default();
        CHECK_INT(dpar_strategy_parse(&back, text, t.used, NULL, &why), DPAR_OK);
        if (back.shard == 0) {
            back.shard = top[i].strategy.shard;
        }
        back.cp_kind = top[i].strategy.cp_kind;
        CHECK(memcmp(&back, &top[i].strategy, sizeof back) == 0);
    }
}

int main(void)
{
    test_walk();
    test_nothing_fits();
    test_neighbours();
    test_fit();
    test_show();
    return CHECK_DONE();
}
