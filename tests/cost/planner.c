/* SPDX-License-Identifier: MIT-0 */
/* Tests planner: compares the search with a naive nested loop over dpar_plan_price; fronts,
 * neighbours, nearest strategies, smallest machines. Run with: tests/run test cost. */
#include "dpar_cost.h"

#include <stdlib.h>

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

/* Results of the slow search of every combination: plain loops over all numbers with only
 * dpar_plan_price, without lists of divisors, levels or early rules. The best times, how many are
 * legal, how many do not fit. */
typedef struct slow {
    int whole;
    int64_t batch, legal, too_big;
    double best[5];
    int fronts; /* time and bytes of plans that none beats in both */
    double front[400][2];
} slow;

static void slow_front(slow *b, double seconds, double bytes)
{
    int i, n = 0;
    for (i = 0; i < b->fronts; i++) {
        if (b->front[i][0] <= seconds && b->front[i][1] <= bytes) {
            return;
        }
    }
    for (i = 0; i < b->fronts; i++) {
        if (b->front[i][0] < seconds || b->front[i][1] < bytes) {
            b->front[n][0] = b->front[i][0];
            b->front[n++][1] = b->front[i][1];
        }
    }
    if (n < 400) {
        b->front[n][0] = seconds;
        b->front[n++][1] = bytes;
    }
    b->fronts = n;
}

static void slow_keep(slow *b, const dpar_strategy *s)
{
    dpar_plan plan;
    dpar_status st = dpar_plan_price(&job, s, b->batch, &plan, NULL, NULL);
    double t = plan.step.total;
    int i;
    if (st == DPAR_OK && plan.memory.upper > c.gpu.memory_bytes) {
        st = DPAR_E_MEMORY; /* a search asks for memory */
    }
    b->legal += st == DPAR_OK || st == DPAR_E_MEMORY;
    b->too_big += st == DPAR_E_MEMORY;
    if (st == DPAR_OK) {
        slow_front(b, t, plan.memory.total);
    }
    for (i = 0; i < 5 && st == DPAR_OK; i++) {
        if (t < b->best[i]) {
            double swap = b->best[i];
            b->best[i] = t;
            t = swap;
        }
    }
}

/* Tries overlaps, offloads and shard groups. */
static void slow_options(slow *b, dpar_strategy s)
{
    int in_node = c.gpus_per_node / (s.tp * s.cp), hsdp, bits, offload;
    int overlaps = b->whole ? 8 : 1, offloads = b->whole && c.host_bytes > 0 ? 8 : 1;
    for (hsdp = 0; hsdp < 2; hsdp++) {
        if (hsdp && (s.zero == 0 || in_node < 2 || in_node >= s.dp || s.dp % in_node != 0)) {
            continue;
        }
        s.shard = hsdp ? in_node : s.dp;
        for (bits = 0; bits < overlaps; bits++) {
            if (((bits & DPAR_OVERLAP_TP) && s.tp == 1) ||
                ((bits & DPAR_OVERLAP_PP) && s.pp == 1)) {
                continue;
            }
            s.overlap = b->whole ? bits : DPAR_OVERLAP_DEFAULT;
            for (offload = 0; offload < offloads; offload++) {
                s.offload = offload;
                slow_keep(b, &s);
            }
        }
    }
}

/* Tries recomputation and ZeRO of one layout. */
static void slow_memory(slow *b, dpar_strategy s)
{
    int r, half = w.blocks / s.pp / 2;
    for (r = 0; r < 5; r++) { /* 4: full, of half of the layers */
        if ((r == 1 && w.attention != DPAR_MODEL_ATTENTION_UNFUSED) || (r == 4 && half == 0) ||
            (r == DPAR_RECOMPUTE_ALTERNATE && (w.stack < DPAR_MODEL_STACK_TORCH || w.vocab == 0))) {
            continue;
        }
        s.recompute = r < 4 ? r : DPAR_RECOMPUTE_FULL;
        s.recompute_layers = r == 4 ? half : 0;
        for (s.zero = 0; s.zero < 4; s.zero++) {
            if ((s.zero > 0 && s.dp * s.cp == 1) || (!b->whole && s.pp > 1 && s.zero > 1)) {
                continue;
            }
            slow_options(b, s);
        }
    }
}

/* Returns 1 if no chunk is empty and all before the last round's have the same length. */
static int chunks_alike(int pp, int vp)
{
    int chunks = pp * vp, least = w.blocks / chunks, more = w.blocks % chunks;
    return least > 0 && (more == 0 || more > chunks - pp);
}

/* Tries interleavings and schedules of one set of degrees. */
static void slow_pipeline(slow *b, dpar_strategy s)
{
    int k;
    for (s.vp = 1; s.vp <= (s.pp == 1 ? 1 : w.blocks); s.vp++) {
        if (s.vp > 1 && !chunks_alike(s.pp, s.vp)) {
            continue;
        }
        for (k = 1; k < DPAR_SCHEDULE_PRICED_END; k++) {
            int usual = k == (s.vp > 1 ? DPAR_SCHEDULE_INTERLEAVED : DPAR_SCHEDULE_1F1B);
            int more = s.pp > 1 && k != DPAR_SCHEDULE_1F1B && k != DPAR_SCHEDULE_INTERLEAVED &&
                       (s.vp > 1 || k != DPAR_SCHEDULE_BREADTH_FIRST); /* legal ones are priced */
            s.schedule = k;
            if (usual || (b->whole && more)) {
                slow_memory(b, s);
            }
        }
    }
}

static slow slow_walk(int64_t batch, int whole)
{
    static const slow none;
    static slow b;
    dpar_strategy s = plain_strategy();
    int gpus = dpari_cluster_gpus(&c), i;
    b = none;
    b.whole = whole;
    b.batch = batch;
    for (i = 0; i < 5; i++) {
        b.best[i] = 1e30;
    }
    for (s.tp = 1; s.tp <= (whole ? gpus : c.gpus_per_node); s.tp++)
        for (s.sp = 0; s.sp <= (s.tp > 1); s.sp++)
            for (s.cp = 1; s.cp == 1 || s.cp <= (int)w.tokens / 1024; s.cp++)
                for (s.cp_kind = 0; s.cp_kind < (s.cp == 1 ? 1 : whole ? 3 : 2); s.cp_kind++)
                    for (s.pp = 1; s.pp <= w.blocks; s.pp++)
                        for (s.micro_batch = 1; s.micro_batch <= (whole ? 512 : 64);
                             s.micro_batch++)
                            for (s.ep = 1; s.ep <= (w.experts > 0 ? w.experts : 1); s.ep++)
                                for (s.etp = 1; s.etp <= (whole && w.experts > 0 ? s.tp : 1);
                                     s.etp++) {
                                    int mbs = s.micro_batch, power = (mbs & (mbs - 1)) == 0;
                                    if (gpus % (s.tp * s.cp * s.pp) != 0 || (!whole && !power) ||
                                        (!whole && c.gpus_per_node % s.tp != 0) ||
                                        (s.etp > 1 && s.etp != s.tp) ||
                                        (!whole && s.sp != (s.tp > 1 &&
                                                            (int)w.tokens % (s.tp * s.cp) == 0))) {
                                        continue;
                                    }
                                    s.dp = gpus / (s.tp * s.cp * s.pp);
                                    if (batch % (s.dp * mbs) == 0) {
                                        s.micro_batches = (int32_t)(batch / s.dp / mbs);
                                        slow_pipeline(&b, s);
                                    }
                                }
    return b;
}

/* Checks that what the search kept of a plan equals dpar_plan_price of its strategy, bit for
 * bit. */
static void same_as_alone(const dpar_plan *plan, int64_t batch)
{
    dpar_plan alone;
    CHECK_INT(dpar_plan_price(&job, &plan->strategy, batch, &alone, NULL, NULL), DPAR_OK);
    CHECK(memcmp(&alone.memory, &plan->memory, sizeof alone.memory) == 0);
    CHECK(memcmp(&alone.step, &plan->step, sizeof alone.step) == 0);
}

static int near(double x, double y)
{
    return x <= y * (1.0 + 1e-12) && y <= x * (1.0 + 1e-12);
}

/* Compares the search with the slow one: counts and the five best times, with a front and
 * without. */
static void against_slow(const char *model, const char *cluster, int64_t batch, int32_t space)
{
    static dpar_plan top[5], again[5], front[400];
    static dpar_planner p, q2;
    static slow b;
    dpar_planner_desc q;
    int64_t sum = 0;
    int i, k;
    memset(&q, 0, sizeof q);
    q.global_batch = batch;
    q.space = space;
    q.fixed = plain_strategy();
    set(model, cluster, "megatron");
    b = slow_walk(batch, space == DPAR_SPACE_WHOLE);
    CHECK_INT(search(&q, &p, NULL, 0, NULL, 0, 100), DPAR_DONE); /* all is priced */
    CHECK_INT(p.evaluated, b.legal);
    CHECK_INT(p.rejected[DPAR_STRATEGY_RULE_MEMORY], b.too_big);
    CHECK_INT(p.cut, 0);
    CHECK_INT(search(&q, &p, top, 5, front, 400, 100), DPAR_DONE);
    CHECK_INT(p.evaluated + p.cut, b.legal);
    CHECK(space == DPAR_SPACE_WHOLE ? p.cut > 0 : p.cut == 0);
    CHECK_INT(p.top_count, 5);
    for (k = 0; k < b.fronts; k++) { /* none is missing except one with the same rounded seconds */
        for (i = 0; i < p.front_count && !(front[i].step.total <= b.front[k][0] * (1.0 + 1e-12) &&
                                           front[i].memory.total <= b.front[k][1] * (1.0 + 1e-12));
             i++) {
        }
        CHECK(i < p.front_count);
    }
    for (i = 0; i < p.front_count; i++) { /* the same front, in any order */
        for (k = 0; k < b.fronts && !(near(front[i].step.total, b.front[k][0]) &&
                                      near(front[i].memory.total, b.front[k][1]));
             k++) {
        }
        CHECK(k < b.fronts);
    }
    for (i = 0; i < p.top_count; i++) {
        CHECK_NEAR(top[i].step.total, b.best[i], 1e-12);
        CHECK(top[i].fits);
        same_as_alone(&top[i], batch);
        CHECK(i == 0 || memcmp(&top[i].strategy, &top[i - 1].strategy, sizeof top[i].strategy));
    }
    for (i = 0; i < p.front_count; i++) {
        same_as_alone(&front[i], batch);
    }
    for (i = 1; i < DPAR_STRATEGY_RULE_COUNT; i++) {
        sum += i == DPAR_STRATEGY_RULE_MEMORY ? 0 : p.rejected[i];
    }
    CHECK_INT(p.walked, p.evaluated + p.cut + sum);
    CHECK_INT(search(&q, &q2, again, 5, NULL, 0, 1), DPAR_DONE); /* stopped and resumed: the same */
    CHECK(memcmp(top, again, sizeof top) == 0);
    CHECK_INT(q2.evaluated + q2.cut, b.legal);
    CHECK_INT(q2.walked, p.walked);
    CHECK(q2.cut > 0);
}

static void test_walk(void)
{
    static dpar_plan top[5], front[16];
    static dpar_planner p;
    dpar_planner_desc q;
    double best;
    int i, k;
    against_slow("gpt:layers=6,hidden=768,heads=12,vocab=1024,seq=2048", "2x3:a100-40,nic=4x25", 12,
                 DPAR_SPACE_USUAL); /* nodes of three */
    against_slow("mixtral-8x7b", "4x8:h100-80", 64, DPAR_SPACE_USUAL);
    against_slow("gpt:layers=7,hidden=768,heads=12,vocab=1024,seq=2048", "2x2:a100-40,nic=2x25", 16,
                 DPAR_SPACE_USUAL); /* layers that no pipeline cuts evenly */
    against_slow("gpt:layers=4,hidden=512,heads=4,vocab=1024,seq=2048",
                 "2x2:a100-40,nic=2x25,host=500", 12, DPAR_SPACE_WHOLE);
    against_slow("llama:layers=4,hidden=512,heads=8,vocab=1024,seq=2048,experts=4,topk=2",
                 "1x4:a100-40", 8, DPAR_SPACE_WHOLE);
    against_slow("llama-3-8b", "2x4:a100-80,nic=4x25", 64, DPAR_SPACE_USUAL);
    against_slow("llama-3-8b,stack=compiled", "1x8:h100-80", 32, DPAR_SPACE_USUAL);
    memset(&q, 0, sizeof q);
    q.global_batch = 64;
    q.fixed = plain_strategy();
    CHECK_INT(search(&q, &p, top, 5, front, 16, 1000), DPAR_DONE);
    best = top[0].step.total;
    CHECK(p.front_count >= 2);
    for (i = 0; i < p.front_count; i++) { /* no plan of a front dominates another */
        for (k = 0; k < p.front_count; k++) {
            CHECK(i == k || front[i].step.total < front[k].step.total ||
                  front[i].memory.total < front[k].memory.total);
        }
    }
    CHECK_NEAR(front[0].step.total, best, 1e-12);
    q.fixed.tp = 2;
    q.fixed.zero = 3;
    q.fixed_fields = 1u << DPAR_STRATEGY_FIELD_TP | 1u << DPAR_STRATEGY_FIELD_ZERO;
    CHECK_INT(search(&q, &p, top, 5, front, 16, 1000), DPAR_DONE);
    CHECK(top[0].strategy.tp == 2 && top[0].strategy.zero == 3);
    q.fixed_fields = 0;
    q.space = DPAR_SPACE_WHOLE;
    CHECK_INT(search(&q, &p, top, 5, front, 16, 100000), DPAR_DONE);
    CHECK(top[0].step.total <= best * (1.0 + 1e-12)); /* the whole space includes the usual one */
}

/* Checks a free batch (four micro-batches per stage), grids on any number of GPUs, and a smaller
 * memory limit. */
static void test_free(void)
{
    static dpar_plan top[3];
    static dpar_planner p;
    dpar_planner_desc q;
    int i;
    memset(&q, 0, sizeof q);
    q.fixed = plain_strategy();
    set("llama-3-8b", "2x8:h100-80", "megatron");
    CHECK_INT(search(&q, &p, top, 3, NULL, 0, 1000), DPAR_DONE);
    for (i = 0; i < p.top_count; i++) {
        CHECK_INT(top[i].strategy.micro_batches, 4 * top[i].strategy.pp);
    }
    CHECK_INT(p.rejected[DPAR_STRATEGY_RULE_BATCH], 0);
    CHECK(p.rejected[DPAR_STRATEGY_RULE_TP_WIDE] > 0);
    q.memory_bytes = 40e9;
    CHECK_INT(search(&q, &p, top, 3, NULL, 0, 1000), DPAR_DONE);
    CHECK(top[0].memory.upper <= 40e9);
    q.memory_bytes = 0;
    set("grid:1440x720x100,fields=5", "3x4:a100-40,nic=4x25", "fp32");
    CHECK_INT(search(&q, &p, top, 3, NULL, 0, 1000), DPAR_DONE);
    CHECK_INT(top[0].strategy.tiles[0] * top[0].strategy.tiles[1] * top[0].strategy.tiles[2], 12);
    q.space = DPAR_SPACE_WHOLE; /* every cut: at least as good as the one of least surface */
    {
        double best = top[0].step.total;
        CHECK_INT(search(&q, &p, top, 3, NULL, 0, 1000), DPAR_DONE);
        CHECK(top[0].step.total <= best * (1.0 + 1e-12));
    }
}

/* Checks that an impossible recipe or machine, and a capacity below 0, give a message or keep no
 * plan. */
static void test_bad_jobs(void)
{
    static const double bad[3] = {-1.0, 1e4, 0.0};
    static dpar_plan top[1];
    static dpar_planner p;
    dpar_strategy s = plain_strategy();
    dpar_planner_desc q;
    dpar_advice a;
    dpar_why why;
    int i;
    memset(&q, 0, sizeof q);
    q.fixed = s;
    s.dp = 8;
    set("llama-3-8b", "1x8:h100-80", "megatron");
    for (i = 0; i < 9; i++) {
        set("llama-3-8b", "1x8:h100-80", "megatron");
        if (i < 4) {
            job.recipe.weight = i < 3 ? bad[i] : bad[2] / bad[2];
        } else if (i == 4) {
            job.recipe.moments = -5.0;
        } else {
            job.recipe.compute = i == 5   ? 99
                                 : i == 6 ? -1
                                 : i == 7 ? DPAR_TYPE_NONE
                                          : DPAR_FORMAT_COUNT;
        }
        why.text[0] = 0;
        CHECK_INT(dpar_plan_price(&job, &s, 0, &top[0], NULL, &why), DPAR_E_ARG);
        CHECK(strstr(why.text, "recipe") != NULL);
        CHECK_INT(begin_search(&p, &job, &q, top, 1, NULL, 0, &why), DPAR_E_ARG);
        CHECK_INT(dpar_plan_recommend(&job, &q, &a, &why), DPAR_E_ARG);
    }
    set("llama-3-8b", "1x8:h100-80", "megatron");
    CHECK_INT(search(&q, &p, top, -1, NULL, -1, 1000), DPAR_DONE);
    CHECK(p.top_count == 0 && p.evaluated > 0);
    c.gpu.memory_bytes = 0.0;
    CHECK_INT(dpar_plan_price(&job, &s, 0, &top[0], NULL, &why), DPAR_E_ARG);
}

/* Checks Llama-3.1-405B with 126 layers: 16 ranks interleave 62 chunks of two layers and two of
 * one. A fixed vp is searched whatever its chunks are. */
static void test_uneven(void)
{
    static dpar_plan top[1];
    static dpar_planner p;
    dpar_planner_desc q;
    memset(&q, 0, sizeof q);
    q.fixed = plain_strategy();
    q.global_batch = 2048;
    set("llama-3.1-405b", "1024x8:h100-80", "megatron");
    CHECK_INT(search(&q, &p, top, 1, NULL, 0, 100000), DPAR_DONE);
    CHECK(top[0].strategy.pp == 16 && top[0].strategy.vp == 4);
    q.fixed_fields = 1u << DPAR_STRATEGY_FIELD_VP;
    q.fixed.vp = 3;
    CHECK_INT(search(&q, &p, top, 1, NULL, 0, 100000), DPAR_DONE);
    CHECK(top[0].strategy.pp > 2 && top[0].strategy.vp == 3);
}

/* Checks that meaningless fixed values give a message, not a division by zero. */
static void test_bad_fixed(void)
{
    static dpar_plan top[1];
    static dpar_planner p;
    static const int32_t bad[5] = {0, -1, INT32_MAX, INT32_MIN, 7};
    dpar_planner_desc q;
    dpar_why why;
    int i, k;
    set("llama-3-8b", "1x8:h100-80", "megatron");
    for (i = 0; i < DPAR_STRATEGY_FIELD_COUNT; i++) {
        for (k = 0; k < 5; k++) {
            int32_t v = bad[k];
            dpar_status st;
            memset(&q, 0, sizeof q);
            q.global_batch = k % 2 ? 64 : 0;
            q.space = DPAR_SPACE_USUAL;
            q.fixed_fields = 1u << i;
            q.fixed.tp = q.fixed.sp = q.fixed.cp = q.fixed.cp_kind = q.fixed.dp = q.fixed.shard = v;
            q.fixed.zero = q.fixed.pp = q.fixed.vp = q.fixed.schedule = q.fixed.ep = v;
            q.fixed.etp = q.fixed.micro_batch = q.fixed.micro_batches = q.fixed.recompute = v;
            q.fixed.recompute_layers = v;
            q.fixed.offload = q.fixed.overlap = 0;
            q.fixed.tiles[0] = q.fixed.tiles[1] = q.fixed.tiles[2] = v;
            why.text[0] = 0;
            CHECK_INT(begin_search(&p, &job, &q, top, 1, NULL, 0, &why), DPAR_OK);
            do {
                st = dpar_planner_run(&p, INT64_MAX, &why);
            } while (st == DPAR_MORE);
            CHECK(st == DPAR_DONE || (st == DPAR_E_NONE && strlen(why.text) > 10));
        }
    }
}

/* Checks the nearest strategy: legal, equal to a legal one, and near: changes only what must
 * change. */
static void test_nearest(void)
{
    dpar_strategy s = plain_strategy(), n, legal;
    dpar_why why;
    int i;
    set("llama-3-8b", "8x8:h100-80", "megatron");
    s.tp = 8;
    s.sp = 1;
    s.pp = 2;
    s.dp = 4;
    s.zero = 1;
    s.micro_batches = 32;
    CHECK_INT(dpar_strategy_nearest(&job, &s, 128, &n, &why), DPAR_OK);
    CHECK(memcmp(&n, &s, sizeof n) == 0);
    s.pp = 3; /* 8 x 3 x 4 is not 64: two stages, or four with half the replicas */
    CHECK_INT(dpar_strategy_nearest(&job, &s, 128, &n, &why), DPAR_OK);
    CHECK(n.tp == 8 && n.dp * n.pp == 8 && n.sp == 1 && n.zero == 1);
    s.pp = 2;
    s.vp = 5; /* 1F1B has no chunks */
    CHECK_INT(dpar_strategy_nearest(&job, &s, 128, &n, &why), DPAR_OK);
    CHECK(n.vp == 1 && n.pp == 2 && n.dp == 4 && n.micro_batches == 32);
    s = plain_strategy();
    s.tp = INT32_MAX;
    s.pp = -4;
    s.dp = 0;
    s.ep = 9;
    s.zero = 17;
    s.tiles[1] = 0;
    s.shard = -3;
    CHECK_INT(dpar_strategy_nearest(&job, &s, 128, &n, &why), DPAR_OK);
    CHECK_INT(dpari_strategy_check(&job, &n, 128, NULL, NULL), DPAR_OK);
    CHECK_INT(dpar_strategy_nearest(&job, &n, 128, &legal, &why), DPAR_OK);
    CHECK(memcmp(&n, &legal, sizeof n) == 0);
    s.micro_batch = 1 << 20;
    CHECK_INT(dpar_strategy_nearest(&job, &s, 7, &n, &why), DPAR_OK); /* 64 GPUs, 7 samples: dp 1 */
    CHECK_INT((int64_t)n.dp * n.micro_batch * n.micro_batches, 7);
    for (i = 0; i < 2; i++) { /* nothing is offloaded if the host has no memory */
        set("llama-3-8b", "1x8:h100-80", "megatron");
        c.host_bytes = i == 0 ? 1e12 : 0.0;
        s = plain_strategy();
        s.dp = 8;
        s.zero = 1;
        s.offload = DPAR_OFFLOAD_ACTIVATIONS;
        CHECK_INT(dpar_strategy_nearest(&job, &s, 8, &n, &why), DPAR_OK);
        CHECK_INT(n.offload, i == 0 ? DPAR_OFFLOAD_ACTIVATIONS : 0);
    }
    set("grid:1440x720x100,fields=5", "3x4:a100-40,nic=4x25", "fp32");
    s = plain_strategy();
    s.tiles[0] = 5;
    CHECK_INT(dpar_strategy_nearest(&job, &s, 1, &n, &why), DPAR_OK);
    CHECK_INT(dpari_strategy_check(&job, &n, 1, NULL, NULL), DPAR_OK);
}

/* Checks with a full search whether the job fits on this number of GPUs. */
static int holds(dpar_planner_desc *q, const char *model, const char *gpu, const char *recipe,
                 int node, int gpus)
{
    static dpar_plan top[1];
    static dpar_planner p;
    char machine[48];
    dpar_why why;
    snprintf(machine, sizeof machine, "%dx%d:%s,nic=%dx25", gpus < node ? 1 : gpus / node,
             gpus < node ? gpus : node, gpu, node);
    set(model, machine, recipe);
    CHECK_INT(begin_search(&p, &job, q, top, 1, NULL, 0, &why), DPAR_OK);
    return dpar_planner_run(&p, INT64_MAX, &why) == DPAR_DONE;
}

/* Checks the smallest machine: tries every smaller part of a node and number of nodes, and none may
 * hold the job. The jobs' sizes are 1, between divisors of a node, and odd numbers of nodes. */
static void test_smallest(void)
{
    static const struct {
        const char *model, *gpu, *recipe;
        int node;
        int64_t batch;
    } jobs[] = {{"llama-2-70b", "a100-80", "no-master", 8, 0},
                {"llama-3-8b", "v100-16", "megatron", 6, 0}, /* 18: a reader found 24 */
                {"llama-3-8b", "v100-16", "megatron", 6, 96},
                {"llama-2-13b", "v100-32", "megatron", 12, 0}, /* 8 of 12, not a divisor */
                {"llama-3-8b", "h100-80", "megatron", 3, 0},
                {"mixtral-8x7b", "a100-80", "megatron", 8, 0},
                {"unet-0.25deg", "v100-16", "fp32", 4, 0},
                {"gpt-18.4b", "mi250x", "fsdp", 8, 0},
                {"grid:2048x2048x2048,fields=4,element=8", "a100-40", "fp32", 4, 1}};
    dpar_planner_desc q;
    dpar_plan plan;
    dpar_why why;
    char machine[48];
    size_t i;
    memset(&q, 0, sizeof q);
    q.fixed = plain_strategy();
    for (i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        int gpus, found, node = jobs[i].node;
        snprintf(machine, sizeof machine, "1x%d:%s,nic=%dx25", node, jobs[i].gpu, node);
        set(jobs[i].model, machine, jobs[i].recipe);
        q.global_batch = jobs[i].batch;
        CHECK_INT(dpar_plan_smallest(&job, &q, 1024, &plan, &why), DPAR_OK);
        found = dpar_strategy_ranks(&plan.strategy);
        CHECK(plan.fits && (found < node || found % node == 0));
        CHECK(holds(&q, jobs[i].model, jobs[i].gpu, jobs[i].recipe, node, found));
        for (gpus = 1; gpus < found; gpus += gpus < node ? 1 : node) {
            CHECK(!holds(&q, jobs[i].model, jobs[i].gpu, jobs[i].recipe, node, gpus));
        }
    }
    q.global_batch = 0;
    set("gpt2-125m", "4x8:a100-80", "zero");
    CHECK_INT(dpar_plan_smallest(&job, &q, 1024, &plan, &why), DPAR_OK);
    CHECK_INT(dpar_strategy_ranks(&plan.strategy), 1);
}

static void test_nothing_fits(void)
{
    static dpar_plan top[2];
    static dpar_planner p;
    dpar_planner_desc q;
    dpar_why why;
    dpar_plan plan;
    dpar_strategy s = plain_strategy(), legal;
    memset(&q, 0, sizeof q);
    q.global_batch = 64;
    q.fixed = plain_strategy();
    set("llama-3.1-405b", "1x8:a100-40", "megatron");
    CHECK_INT(begin_search(&p, &job, &q, top, 2, NULL, 0, &why), DPAR_OK);
    CHECK_INT(dpar_planner_run(&p, INT64_C(1) << 40, &why), DPAR_E_NONE);
    CHECK(strstr(why.text, "nothing fits") != NULL);
    CHECK(p.rejected[DPAR_STRATEGY_RULE_MEMORY] == p.evaluated && p.evaluated > 0);
    q.global_batch = 0;
    CHECK_INT(dpar_plan_smallest(&job, &q, 8192, &plan, &why), DPAR_OK);
    CHECK(dpar_strategy_ranks(&plan.strategy) > 64 && plan.fits);
    CHECK_INT(dpar_plan_smallest(&job, &q, 8, &plan, &why), DPAR_E_NONE);
    s.tp = 7;
    CHECK_INT(dpar_strategy_nearest(&job, &s, 0, &legal, &why), DPAR_OK);
    CHECK_INT(legal.tp, 8);
    CHECK_INT(dpari_strategy_check(&job, &legal, 0, NULL, NULL), DPAR_OK);
    q.global_batch = -5;
    CHECK_INT(begin_search(&p, &job, &q, top, 2, NULL, 0, &why), DPAR_E_ARG);
    q.global_batch = 7; /* prime: it has hardly any divisors, but there is a message */
    CHECK_INT(begin_search(&p, &job, &q, top, 2, NULL, 0, &why), DPAR_OK);
    CHECK_INT(dpar_planner_run(&p, INT64_C(1) << 40, &why), DPAR_E_NONE);
}

static void test_neighbours(void)
{
    dpar_plan plan;
    dpar_plan_rejection r[18];
    dpar_strategy s = plain_strategy();
    int n, i, zero = 0, stages = 0;
    set("llama-3-8b", "8x8:h100-80", "megatron");
    s.tp = 4;
    s.sp = 1;
    s.pp = 2;
    s.dp = 8;
    s.zero = 1;
    s.micro_batches = 16;
    CHECK_INT(dpar_plan_price(&job, &s, 128, &plan, NULL, NULL), DPAR_OK);
    n = dpar_plan_neighbours(&job, &plan, 128, r, 18);
    CHECK(n >= 10);
    for (i = 0; i < n; i++) {
        CHECK(strlen(r[i].text) > 8);
        zero += strstr(r[i].text, "zero 1 -> 0: ") != NULL && strstr(r[i].text, " GB") != NULL;
        stages += strstr(r[i].text, "pp 2 -> 4: ") != NULL && strstr(r[i].text, "bubble") != NULL;
        CHECK(r[i].rule != DPAR_STRATEGY_RULE_MEMORY || r[i].bytes_over > 0.0);
    }
    CHECK(zero == 1 && stages == 1);
    CHECK(dpar_plan_neighbours(&job, &plan, 0, r, 18) >= 10); /* free: the same batch */
    CHECK_INT(r[0].strategy.dp * r[0].strategy.micro_batch * r[0].strategy.micro_batches, 128);
    CHECK_INT(dpar_plan_neighbours(&job, &plan, 128, r, 2), 2);
    /* shards over all 16 ranks or a node's 8: each becomes the other, and no change has no
     * effect */
    set("llama-3-8b", "2x8:h100-80", "megatron");
    s = plain_strategy();
    s.dp = 16;
    s.zero = 3;
    s.micro_batches = 1;
    for (i = 0; i < 2; i++) {
        int k, fewer = 0, more = 0, all = 0;
        s.shard = i == 0 ? 0 : 8;
        CHECK_INT(dpar_plan_price(&job, &s, 16, &plan, NULL, NULL), DPAR_OK);
        n = dpar_plan_neighbours(&job, &plan, 16, r, 18);
        for (k = 0; k < n; k++) {
            all += strstr(r[k].text, "shard ") != NULL;
            fewer += strstr(r[k].text, "shard 16 -> 8: ") != NULL && r[k].strategy.shard == 8;
            more += strstr(r[k].text, "shard 8 -> 16: ") != NULL && r[k].strategy.shard == 16;
        }
        CHECK(all == 1 && fewer == (i == 0) && more == (i == 1));
    }
}

int main(void)
{
    test_walk();
    test_free();
    test_uneven();
    test_bad_jobs();
    test_bad_fixed();
    test_nearest();
    test_smallest();
    test_nothing_fits();
    test_neighbours();
    return CHECK_DONE();
}
