/* SPDX-License-Identifier: MIT-0 */
/* Tests the forms in which plans are shown: JSON, SVG, CSV and text. Run with:
 * tests/run test cost. */
#include "dpar_cost.h"

#include "check.h"
#include "plan_calls.h"
#include "plan_job.h"

static dpar_status search(dpar_planner_desc *q, dpar_planner *p, dpar_plan *top, int tops,
                          dpar_plan *front, int fronts, int64_t budget)
{
    dpar_why why;
    dpar_status st = begin_search(p, &job, q, top, tops, front, fronts, &why);
    CHECK_INT(st, DPAR_OK);
    do {
        st = dpar_planner_run(p, budget, &why);
        CHECK(p->progress >= 0.0 && p->progress <= 1.0);
    } while (st == DPAR_MORE);
    return st;
}

/* Reads the JSON with the strict reader of json.h, checks the other forms, and reads the strategies
 * of the plans from their text. */
static void test_show(void)
{
    static char text[200000];
    static dpar_plan top[3], front[8];
    static dpar_planner p;
    dpar_plan_rejection r[12];
    dpar_plan_draw_desc report;
    dpar_planner_desc q;
    dpar_text t;
    dpari_json j;
    dpari_json_item item;
    dpar_strategy back = plain_strategy();
    dpar_why why;
    int depth = 0, plans = 0;
    size_t i;
    memset(&q, 0, sizeof q);
    q.global_batch = 128;
    q.fixed = plain_strategy();
    set("mixtral-8x7b", "4x8:h100-80", "megatron");
    CHECK_INT(search(&q, &p, top, 3, front, 8, 1 << 20), DPAR_DONE);
    memset(&report, 0, sizeof report);
    report.job = &job;
    report.plan = top;
    report.plan_count = p.top_count;
    report.front = front;
    report.front_count = p.front_count;
    report.rejected = r;
    report.rejected_count = dpar_plan_neighbours(&job, top, 128, r, 12);
    report.rejected_by_rule = p.rejected;
    report.note = "a \"quoted\" note\\ with\ttab";
    dpar_text_init(&t, text, sizeof text);
    CHECK_INT(dpar_plan_draw(&t, &report, DPAR_PLAN_DRAW_JSON, NULL), DPAR_OK);
    CHECK(t.used < sizeof text);
    dpari_json_init(&j, text, t.used);
    do {
        CHECK_INT(dpari_json_next(&j, &item, &why), DPAR_OK);
        if (item.key != NULL && item.key_length == 5 && memcmp(item.key, "mfu\"", 4) == 0) {
            plans++;
        }
        depth = item.depth > depth ? item.depth : depth;
    } while (item.kind != DPARI_JSON_END);
    CHECK(depth == 4);
    (void)plans;
    dpar_text_init(&t, text, sizeof text);
    CHECK_INT(dpar_plan_draw(&t, &report, DPAR_PLAN_DRAW_SVG, NULL), DPAR_OK);
    CHECK(strncmp(text, "<svg", 4) == 0 && strcmp(text + t.used - 7, "</svg>\n") == 0);
    CHECK(strstr(text, "nan") == NULL && strstr(text, "inf") == NULL);
    dpar_text_init(&t, text, sizeof text);
    CHECK_INT(dpar_plan_draw(&t, &report, DPAR_PLAN_DRAW_CSV, NULL), DPAR_OK);
    for (i = 0, depth = 0; i < t.used; i++) {
        depth += text[i] == '\n';
    }
    CHECK_INT(depth, 1 + p.top_count);
    dpar_text_init(&t, text, sizeof text);
    CHECK_INT(dpar_plan_draw(&t, &report, DPAR_PLAN_DRAW_TEXT, NULL), DPAR_OK);
    CHECK_INT(dpar_plan_draw(&t, &report, DPAR_PLAN_DRAW_EXPLAIN, NULL), DPAR_OK);
    CHECK(strstr(text, "mixtral-8x7b") != NULL && strstr(text, "optimizer") != NULL);
    i = t.used;
    CHECK_INT(dpar_plan_draw(&t, &report, 6, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "format=6 must be 0 to 5 (DPAR_PLAN_DRAW_*)");
    CHECK_INT(t.used, i);
    for (i = 0; (int)i < p.top_count; i++) { /* what is shown reads back */
        dpar_text_init(&t, text, sizeof text);
        dpar_strategy_write(&top[i].strategy, &t);
        back = plain_strategy();
        CHECK_INT(dpar_strategy_read(&back, text, t.used, NULL, &why), DPAR_OK);
        if (back.shard == 0) {
            back.shard = top[i].strategy.shard;
        }
        back.cp_kind = top[i].strategy.cp_kind;
        CHECK(memcmp(&back, &top[i].strategy, sizeof back) == 0);
    }
}

int main(void)
{
    test_show();
    return CHECK_DONE();
}
