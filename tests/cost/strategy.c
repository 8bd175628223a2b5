/* SPDX-License-Identifier: MIT-0 */
/* Tests strategy, memory and step with the numbers worked out in teaching texts and papers. Each
 * expected value names its source. Run with: tests/run test cost. */
#include "dpar_cost.h"

#include "check.h"
#include "plan_calls.h"
#include "plan_job.h"
#include "schedule_calls.h"

/* Predicts the memory of a strategy, even of one that the planner refuses. */
static void memory_at(const dpar_job *on, const dpar_strategy *strategy, dpar_memory_usage *memory)
{
    dpari_layers layers;
    dpari_stages stages;
    dpari_price_layers(on, strategy, &layers);
    dpari_price_stages(on, strategy, &layers, &stages);
    dpari_price_memory(on, strategy, &stages, memory);
}

static dpar_strategy of(const char *text)
{
    dpar_strategy s = plain_strategy();
    dpar_why why;
    uint32_t named;
    CHECK_INT(dpar_strategy_read(&s, text, strlen(text), &named, &why), DPAR_OK);
    return s;
}

/* Checks recipes: 8 to 20 bytes per parameter (facts 5.3), and the texts' model states. */
static void test_states(void)
{
    static const struct {
        const char *name;
        double bytes;
    } recipe[] = {{"megatron", 18}, {"bf16", 18},     {"zero", 16},        {"deepspeed", 20},
                  {"fp32", 16},     {"pure-bf16", 8}, {"adam8", 12},       {"no-master", 12},
                  {"fsdp", 16},     {"fp8", 17},      {"bf16-moments", 14}};
    dpar_recipe r;
    dpar_why why;
    size_t i;
    for (i = 0; i < sizeof recipe / sizeof recipe[0]; i++) {
        CHECK_INT(dpar_recipe_find(&r, recipe[i].name, &why), DPAR_OK);
        CHECK_NEAR(dpari_zero_bytes(&r, 1.0, 0, 1), recipe[i].bytes, 1e-12);
        CHECK(dpar_recipe_name((int32_t)i) != NULL);
    }
    CHECK_INT(dpar_recipe_find(&r, "half", &why), DPAR_E_UNKNOWN);
    CHECK_INT(dpar_recipe_find(&r, "zero", &why), DPAR_OK);
    CHECK_NEAR(dpari_zero_bytes(&r, 25e6, 0, 1), 400e6, 1e-12);   /* ResNet-50: 400 MB */
    CHECK_NEAR(dpari_zero_bytes(&r, 7e9, 0, 1), 112e9, 1e-12);    /* LLaMA-7B: 112 GB */
    CHECK_NEAR(dpari_zero_bytes(&r, 70e9, 0, 1), 1.12e12, 1e-12); /* 70B: 140 + 140 + 840 GB */
    CHECK_NEAR(r.weight * 175e9, 350e9, 1e-12);                   /* GPT-3 in fp16: 350 GB */
    CHECK_INT(dpar_recipe_find(&r, "no-master", &why), DPAR_OK);
    CHECK_NEAR(dpari_zero_bytes(&r, 7e9, 0, 1), 84e9, 1e-12); /* case 8: 84 GB, 10.5 per GPU */
    CHECK_NEAR(dpari_zero_bytes(&r, 7e9, 3, 8), 10.5e9, 1e-12);
    CHECK_NEAR(dpari_zero_bytes(&r, 70e9, 3, 8), 105e9, 1e-12); /* case 9: 105 GB per GPU */
    /* ZeRO on 1.3B (2+2+8), 8 ranks: 15.6, 6.5, 4.225, 1.95 GB */
    CHECK_NEAR(dpari_zero_bytes(&r, 1.3e9, 0, 8), 15.6e9, 1e-12);
    CHECK_NEAR(dpari_zero_bytes(&r, 1.3e9, 1, 8), 6.5e9, 1e-12);
    CHECK_NEAR(dpari_zero_bytes(&r, 1.3e9, 2, 8), 4.225e9, 1e-12);
    CHECK_NEAR(dpari_zero_bytes(&r, 1.3e9, 3, 8), 1.95e9, 1e-12);
    CHECK_INT(dpar_recipe_find(&r, "fp32", &why), DPAR_OK);
    CHECK_NEAR(r.weight * 3.2e9, 12.8e9, 1e-12); /* ViT 3.2B in fp32 */
    CHECK_NEAR(r.moments * 3.2e9, 25.6e9, 1e-12);
    CHECK_NEAR((r.weight + r.moments) * 3.2e9 / 64, 0.6e9, 1e-12);
}

/* Compares with ZeRO Table 1 (arXiv 1910.02054), K = 12, printed to three digits, rounded or
 * truncated. */
static void test_zero_table(void)
{
    FILE *f = fopen("tests/data/cost/zero_table1.csv", "r");
    char line[256];
    dpar_recipe r;
    int n = 0;
    CHECK(f != NULL);
    CHECK_INT(dpar_recipe_find(&r, "zero", NULL), DPAR_OK);
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        double d, p, gb[3];
        int stage;
        if (sscanf(line, "%lf,%lf,%lf,%lf,%lf", &d, &p, &gb[0], &gb[1], &gb[2]) != 5) {
            continue;
        }
        for (stage = 1; stage <= 3; stage++) {
            double got = dpari_zero_bytes(&r, p * 1e9, stage, (int32_t)d) * 1e-9;
            double unit = gb[stage - 1] >= 1000  ? 1.0
                          : gb[stage - 1] >= 100 ? 1.0
                          : gb[stage - 1] >= 10  ? 0.1
                                                 : 0.01;
            CHECK(fabs(got - gb[stage - 1]) <= unit); /* the last printed digit */
            n++;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    CHECK_INT(n, 54);
}

/* Compares with Korthikanti's Figures 1 and 7: 18 B x 12 L h^2 / (t p) and the activation formulas,
 * exactly. */
static void test_korthikanti(void)
{
    static const struct {
        const char *model;
        double params_gib, none_gib, sp_selective_gib;
        int pp, vp, mbs;
    } row[] = {{"megatron-22b", 45.5625, 59.25, 9.5625, 1, 1, 4},
               {"gpt3-175b", 45.5625, 66.84375, 12.3515625, 8, 3, 1},
               {"megatron-530b", 31.640625, 114.0234375, 23.076171875, 35, 3, 1},
               {"megatron-1t", 32.958984375, 131.25, 26.5625, 64, 1, 1}};
    int i;
    for (i = 0; i < 4; i++) {
        double h, l, gib = 1073741824.0, more, b, s = 2048, t = 8, a;
        set(row[i].model, "1x8:a100-80", "megatron");
        h = w.hidden;
        l = w.blocks;
        a = w.heads;
        b = row[i].mbs;
        more = row[i].vp > 1 ? 1.0 + (row[i].pp - 1.0) / (row[i].pp * row[i].vp) : 1.0;
        CHECK_NEAR(18 * 12 * l * h * h / (t * row[i].pp) / gib, row[i].params_gib, 1e-9);
        CHECK_NEAR(s * b * h * l * (10 + 24 / t + 5 * a * s / (h * t)) * more / gib,
                   row[i].none_gib, 1e-9);
        CHECK_NEAR(34 * s * b * h * l / t * more / gib, row[i].sp_selective_gib, 1e-9);
        { /* and the memory module gives the same for its first stage's blocks */
            dpar_strategy st = plain_strategy();
            dpar_memory_usage m;
            char cluster[32];
            double blocks, edge = s * b * h / (t * gib), none;
            st.tp = 8;
            st.pp = row[i].pp;
            st.vp = row[i].vp;
            st.schedule = row[i].vp > 1 ? DPAR_SCHEDULE_INTERLEAVED : DPAR_SCHEDULE_1F1B;
            st.micro_batch = row[i].mbs;
            st.micro_batches = 8 * row[i].pp;
            snprintf(cluster, sizeof cluster, "%dx8:a100-80", row[i].pp);
            CHECK_INT(dpar_cluster_read(&c, cluster, strlen(cluster), NULL), DPAR_OK);
            st.sp = 1;
            st.recompute = DPAR_RECOMPUTE_SELECTIVE;
            CHECK_INT(dpari_strategy_check(&job, &st, 0, NULL, NULL), DPAR_OK);
            memory_at(&job, &st, &m);
            blocks = row[i].sp_selective_gib;
            /* in addition to the blocks: the dropout mask of the embedding (p in flight), and if p
             * = 1 the final norm's and the logits' inputs */
            none = m.term[DPAR_MEMORY_ACTIVATIONS] / gib -
                   edge * (row[i].pp == 1 ? 1.0 + 4.0 : row[i].pp * more);
            CHECK_NEAR(none, blocks, 2e-3);
        }
    }
}

/* Compares with GPipe's table of the teaching texts: bubble and makespan for f = 1, b = 2. */
static void test_bubbles(void)
{
    static const struct {
        int p, m;
        double percent, makespan;
    } row[] = {{2, 4, 20.0, 15},  {2, 8, 11.1, 27},   {2, 16, 5.9, 51}, {2, 32, 3.0, 99},
               {2, 64, 1.5, 195}, {4, 4, 42.9, 21},   {4, 8, 27.3, 33}, {4, 16, 15.8, 57},
               {4, 32, 8.6, 105}, {4, 64, 4.5, 201},  {8, 4, 63.6, 33}, {8, 8, 46.7, 45},
               {8, 16, 30.4, 69}, {8, 32, 17.9, 117}, {8, 64, 9.9, 213}};
    size_t i;
    for (i = 0; i < sizeof row / sizeof row[0]; i++) {
        dpar_schedule_desc order;
        dpar_schedule_times times;
        dpar_formula makespan;
        memset(&order, 0, sizeof order);
        memset(&times, 0, sizeof times);
        order.rule = DPAR_SCHEDULE_GPIPE;
        order.ranks = row[i].p;
        order.micro_batches = row[i].m;
        times.forward.all = 1;
        times.backward.all = 2;
        CHECK_INT(
            dpar_schedule_closed_form(&order, &times, DPAR_FORMULA_MAKESPAN, 0, &makespan, NULL),
            DPAR_OK);
        CHECK_INT(makespan.value, row[i].makespan);
        CHECK(fabs(100.0 * (1.0 - 3.0 * row[i].m / (double)makespan.value) - row[i].percent) <
              0.051);
    }
    /* peak activations: GPipe m, 1F1B at most p; interleaved 11/2 of metrics.tsv (p4 v2 m8) */
    CHECK_NEAR(dpari_in_flight(DPAR_SCHEDULE_GPIPE, 4, 1, 0, 8), 8, 1e-12);
    CHECK_NEAR(dpari_in_flight(DPAR_SCHEDULE_1F1B, 4, 1, 0, 8), 4, 1e-12);
    CHECK_NEAR(dpari_in_flight(DPAR_SCHEDULE_1F1B, 4, 1, 3, 8), 1, 1e-12);
    CHECK_NEAR(dpari_in_flight(DPAR_SCHEDULE_1F1B, 4, 1, 0, 2), 2, 1e-12);
    CHECK_NEAR(dpari_in_flight(DPAR_SCHEDULE_INTERLEAVED, 4, 2, 0, 8), 5.5, 1e-12);
    CHECK_NEAR(dpari_in_flight(DPAR_SCHEDULE_INTERLEAVED, 4, 2, 3, 8), 2.5, 1e-12);
    CHECK_NEAR(dpari_in_flight(DPAR_SCHEDULE_ZB_H1, 4, 1, 2, 8), 4, 1e-12);
    CHECK_NEAR(dpari_in_flight(DPAR_SCHEDULE_ZBV, 4, 2, 0, 8), 4, 1e-12);
    CHECK_NEAR(dpari_in_flight(DPAR_SCHEDULE_V_HALF, 4, 2, 0, 8), 3, 1e-12);
    CHECK_NEAR(dpari_in_flight(DPAR_SCHEDULE_V_MIN, 4, 2, 0, 8), 2, 1e-12);
    CHECK_NEAR(dpari_in_flight(DPAR_SCHEDULE_DUALPIPEV, 4, 2, 0, 10), 4.5, 1e-12);
}

/* Compares the pipeline terms of the step with event-simulated makespans
 * (facts/pipeline/metrics.tsv) for a model of equal layers with free messages; times in units of a
 * stage's micro-batch. */
static void test_schedules(void)
{
    static const struct {
        const char *strategy;
        double makespan, work; /* of metrics.tsv, and m times one rank's work, in the same units */
    } row[] = {
        {"tp=1,pp=4,m=4,schedule=gpipe", 21, 12},
        {"tp=1,pp=4,m=8", 33, 24},
        {"tp=1,pp=4,m=2", 15, 6},
        {"tp=1,pp=4,vp=2,m=8", 57, 48},
        {"tp=1,pp=4,vp=2,m=10", 69, 60},
        {"tp=1,pp=4,vp=2,m=4,schedule=breadth-first", 33, 24},
        {"tp=1,pp=4,m=8,schedule=zb-h1", 27, 24},
        {"tp=1,pp=4,vp=2,m=8,schedule=zbv", 51, 48},
        {"tp=1,pp=4,vp=2,m=8,schedule=v-half", 53, 48},
        /* chunks of two lengths, of simulate_list in layers: 4 x 6 and 8 x 5, ... 4 x 2 and 56 */
        {"tp=1,pp=4,vp=3,m=8", 438, 384},
        {"tp=1,pp=4,vp=5,m=8", 420, 384},
        {"tp=1,pp=4,vp=7,m=8", 411, 384},
        {"tp=1,pp=4,vp=15,m=4", 210, 192}};
    size_t i;
    for (i = 0; i < sizeof row / sizeof row[0]; i++) {
        dpar_strategy s = of(row[i].strategy);
        dpar_step_cost t;
        double stage;
        set("llama:layers=64,hidden=8192,heads=64,vocab=8,seq=4096",
            "1x4:h100-80,nvlink=1e9,base_us=0,link_us=0", "zero");
        CHECK_INT(dpari_strategy_check(&job, &s, 0, NULL, NULL), DPAR_OK);
        dpari_step_of(&job, &s, &t);
        stage = t.mean_stage_s * s.micro_batches;
        CHECK_NEAR(1.0 + t.term[DPAR_TIME_BUBBLE] / stage, row[i].makespan / row[i].work,
                   i == 8   ? 0.08
                   : i == 6 ? 0.03
                            : 0.015);
    }
}

static void test_checks(void)
{
    static const struct {
        const char *strategy;
        int rule;
    } bad[] = {{"tp=3", DPAR_STRATEGY_RULE_RANKS},
               {"tp=0", DPAR_STRATEGY_RULE_DEGREE},
               {"dp=8,zero=4", DPAR_STRATEGY_RULE_DEGREE},
               {"dp=8,sp=1", DPAR_STRATEGY_RULE_OPTION},
               {"dp=4,pp=2,vp=2,schedule=1f1b", DPAR_STRATEGY_RULE_SCHEDULE},
               {"dp=4,pp=2,vp=1,schedule=zbv", DPAR_STRATEGY_RULE_SCHEDULE},
               {"dp=4,pp=2,vp=40", DPAR_STRATEGY_RULE_PP_LAYERS},
               {"dp=8,ep=2", DPAR_STRATEGY_RULE_EP},
               {"dp=4,tiles=2", DPAR_STRATEGY_RULE_TILES},
               {"dp=8,zero=3,shard=3", DPAR_STRATEGY_RULE_ZERO},
               {"dp=8,mbs=3", DPAR_STRATEGY_RULE_BATCH},
               {"dp=4,pp=2,m=3,schedule=dualpipe", DPAR_STRATEGY_RULE_SCHEDULE},
               {"dp=8,recompute_layers=4", DPAR_STRATEGY_RULE_OPTION},
               {"dp=8,recompute=full,recompute_layers=33", DPAR_STRATEGY_RULE_OPTION},
               {"dp=8,m=8,offload=nvme", DPAR_STRATEGY_RULE_OFFLOAD}};
    static const char *const words[] = {"tp",       "tp=",           "tp=x",       "tp=-1",
                                        "colour=3", "schedule=fast", "schedule=?", "offload=disk",
                                        "offload=", "overlap=",      "tiles=0x2",  "tiles=axb",
                                        "=3",       "tp=99999999999"};
    dpar_why why;
    size_t i;
    int32_t rule;
    dpar_strategy s;
    set("llama-3-8b", "1x8:h100-80", "megatron");
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        s = of(bad[i].strategy);
        why.text[0] = 0;
        CHECK(dpari_strategy_check(&job, &s, 64, &rule, &why) < 0);
        CHECK_INT(rule, bad[i].rule);
        CHECK(strlen(why.text) > 10);
        CHECK(dpar_strategy_rule_name(rule)[0] != '?');
    }
    for (i = 0; i < sizeof words / sizeof words[0]; i++) {
        s = plain_strategy();
        CHECK(dpar_strategy_read(&s, words[i], strlen(words[i]), NULL, &why) < 0);
        CHECK_INT(s.tp, 1);
    }
    set("llama-3-8b,heads=30,kv_heads=30,head_width=128", "1x8:h100-80", "megatron");
    s = of("tp=8");
    CHECK(dpari_strategy_check(&job, &s, 0, &rule, &why) < 0);
    CHECK_TEXT(why.text, "tp=8 does not divide 30 attention heads");
    set("llama-3-8b,hidden=4100,head_width=128", "1x8:h100-80", "megatron");
    CHECK(dpari_strategy_check(&job, &s, 0, &rule, &why) < 0);
    CHECK_TEXT(why.text, "tp=8 does not divide hidden=4100");
    s = of("dp=8");
    s.schedule = 0;
    CHECK_INT(dpari_strategy_check(&job, &s, 0, &rule, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text,
               "schedule=0: set a schedule, such as DPAR_SCHEDULE_1F1B (dpar_strategy_init does)");
    s = of("tp=2,dp=3,pp=5,cp=7,tiles=2x2");
    CHECK_INT(dpar_strategy_ranks(&s), 840);
    s.dp = 2147483647;
    CHECK_INT(dpar_strategy_ranks(&s), 0);
    set("llama-3-8b", "1x8:h100-80", "megatron");
    s = of("tp=2");
    s.dp = 2147483647;
    CHECK(dpari_strategy_check(&job, &s, 0, &rule, &why) < 0);
    CHECK_INT(rule, DPAR_STRATEGY_RULE_RANKS);
    CHECK_TEXT(why.text,
               "tp x cp x dp x pp x tiles are more than 2^31 - 1 ranks, the cluster has 8 GPUs");
    CHECK_TEXT(dpar_schedule_name(DPAR_SCHEDULE_ZBV), "zbv");
    CHECK_TEXT(dpari_cp_name(DPAR_CP_ULYSSES), "ulysses");
    CHECK_TEXT(dpari_stack_name(DPAR_MODEL_STACK_MEGATRON_CORE), "core");
    CHECK_TEXT(dpari_attention_name(DPAR_MODEL_ATTENTION_FLASH), "flash");
    CHECK_TEXT(dpari_stack_name(0), "?");
    CHECK_TEXT(dpari_attention_name(0), "?");
    CHECK_TEXT(dpar_memory_name(DPAR_MEMORY_LOGITS), "logits");
    CHECK_TEXT(dpar_time_name(DPAR_TIME_BUBBLE), "bubble");
}

/* Checks that terms add up, and that more GPUs, more memory or less work never make it worse where
 * they must not. */
/* Checks that shares of a peak are shares: of the format that multiplies, at every precision; the
 * long sequences are those on which a reader found more than the whole GPU. Waiting is never
 * negative, whatever the classes of layers in a stage are. */
static void test_shares(void)
{
    static const char *const model[] = {"gpt-1.3b,seq=524288", "llama-3-8b,seq=131072",
                                        "llama-3.1-405b",      "deepseek-v3",
                                        "qwen3-235b-a22b",     "t5-11b",
                                        "unet-0.25deg",        "resnet-50"};
    static const char *const machine[] = {"8x8:a100-80", "8x8:h100-80", "8x8:tpu-v5p", "8x8:b300",
                                          "8x8:v100-32"};
    static const char *const recipe[] = {"fp32", "megatron", "fsdp-fp8"};
    int32_t i, j, k, pp, z;
    for (i = 0; i < 8; i++)
        for (j = 0; j < 5; j++)
            for (k = 0; k < 3; k++)
                for (pp = 1; pp <= 32; pp *= 2)
                    for (z = 0; z < DPAR_RECOMPUTE_COUNT; z++) {
                        dpar_strategy s = plain_strategy();
                        dpar_step_cost t;
                        set(model[i], machine[j], recipe[k]);
                        s.pp = pp;
                        s.dp = 64 / pp;
                        s.micro_batches = 2 * pp;
                        s.recompute = z;
                        if (dpari_strategy_check(&job, &s, 0, NULL, NULL) != DPAR_OK) {
                            continue;
                        }
                        dpari_step_of(&job, &s, &t);
                        CHECK(t.mfu > 0.0 && t.mfu <= 1.0 && t.hfu <= 1.0 && t.hfu >= t.mfu);
                        CHECK(t.term[DPAR_TIME_IMBALANCE] >= 0.0);
                        CHECK(t.largest_stage_s >= t.mean_stage_s * (1.0 - 1e-12));
                    }
}

/* Checks the hardware's FLOP: SC21's 96 B s L h^2 (1 + s/(6h) + V/(16 L h)) with everything
 * recomputed; with selective recomputation the scores once more, 4/3 s/(6h) of 72 B s L h^2. */
static void test_hardware_flops(void)
{
    double h = 12288, s = 2048, l = 96, v = 51200, unit = 72.0 * s * l * h * h;
    dpar_strategy one = of("tp=8,pp=8,m=8,recompute=full");
    dpar_step_cost t;
    set("gpt3-175b", "8x8:a100-80", "megatron");
    dpari_step_of(&job, &one, &t);
    CHECK_NEAR(t.model_flops / t.samples, unit * (1 + s / (6 * h) + v / (12 * l * h)), 1e-3);
    CHECK_NEAR(t.hardware_flops / t.samples, unit * 4 / 3 * (1 + s / (6 * h) + v / (16 * l * h)),
               1e-3);
    one.recompute = DPAR_RECOMPUTE_SELECTIVE;
    dpari_step_of(&job, &one, &t);
    CHECK_NEAR(t.hardware_flops - t.model_flops, unit * t.samples * s / (6 * h) / 3, 1e-3);
    CHECK(t.hfu > t.mfu);
}

/* Checks sequences of any length: one token less does not cost more; sequence parallelism cuts only
 * lengths that it divides. */
static void test_sequences(void)
{
    dpar_strategy s = of("tp=8,dp=1,sp=0,zero=0,m=4");
    dpar_step_cost even, odd;
    int32_t rule = 0;
    dpar_why why;
    set("llama-3-8b,seq=8192", "1x8:h100-80", "megatron");
    dpari_step_of(&job, &s, &even);
    set("llama-3-8b,seq=8191", "1x8:h100-80", "megatron");
    dpari_step_of(&job, &s, &odd);
    CHECK(odd.total <= even.total && odd.total > 0.98 * even.total);
    s.sp = 1;
    CHECK_INT(dpari_strategy_check(&job, &s, 0, &rule, &why), DPAR_E_DIVIDE);
    CHECK_INT(rule, DPAR_STRATEGY_RULE_OPTION);
    CHECK(strstr(why.text, "8191 tokens") != NULL);
}

/* Checks for any strategy: faster memory never slows a step down, more samples never speed it up,
 * and no more communication is hidden than there is compute to hide it. Allows 2 %, because where
 * the host limits a step the division of its waits between forward and backward is a guess. */
static void test_monotone(void)
{
    static const char *const model[] = {"vit-3.2b",     "llama-3-8b", "llama-3-70b",
                                        "mixtral-8x7b", "gpt2-1.5b",  "unet-0.25deg"};
    static const char *const machine[] = {"8xp4d", "8xdgx-h100", "alps,nodes=16"};
    static const int32_t degree[] = {1, 2, 4, 8};
    uint32_t state = 7;
    int32_t trial, done = 0;
    for (trial = 0; trial < 6000; trial++) {
        dpar_strategy s = plain_strategy();
        dpar_step_cost t, faster, more;
        double busy;
        int32_t pick[8], i;
        for (i = 0; i < 8; i++) {
            state = state * 1664525u + 1013904223u;
            pick[i] = (int32_t)(state >> 16);
        }
        set(model[trial % 6], machine[trial / 6 % 3], trial % 2 ? "megatron" : "fsdp");
        s.tp = degree[pick[0] % 4];
        s.sp = s.tp > 1;
        s.pp = degree[pick[1] % 4];
        s.dp = 64 / s.tp / s.pp;
        s.cp = pick[2] % 3 == 0 && s.dp > 1 ? 2 : 1;
        s.dp /= s.cp;
        s.zero = pick[3] % 4;
        s.shard = pick[4] % 2 && s.dp % 2 == 0 ? s.dp / 2 : 0;
        s.micro_batch = degree[pick[5] % 4];
        s.micro_batches = s.pp * degree[pick[6] % 4];
        s.recompute = pick[7] % 2 ? DPAR_RECOMPUTE_FULL : DPAR_RECOMPUTE_NONE;
        if (dpari_strategy_check(&job, &s, 0, NULL, NULL) != DPAR_OK) {
            continue;
        }
        done++;
        dpari_step_of(&job, &s, &t);
        /* one rank may be the slowest of its pipeline, for as long as pp ranks on average */
        busy = s.micro_batches * t.largest_stage_s;
        CHECK(t.dp_hidden_s <= busy * 1.000001);
        c.gpu.memory_Bps *= 2.0;
        dpari_step_of(&job, &s, &faster);
        CHECK(faster.total <= t.total * 1.02);
        c.gpu.memory_Bps *= 0.5;
        s.micro_batch *= 2;
        dpari_step_of(&job, &s, &more);
        CHECK(more.total >= t.total * 0.98);
    }
    CHECK(done > 1000);
}

/* Checks bytes on the wire: recomputation sends TP's forward once more, 6 all-reduces per layer
 * instead of 4 (facts 5.6); the backward of a ring of keys and values sends twice its forward. */
static void test_traffic(void)
{
    dpar_strategy tp = of("tp=8,dp=1,m=8"), cp = of("cp=8,dp=1,m=4"), one = of("dp=8,m=4");
    dpar_step_cost none, full, ring, data;
    set("llama-2-7b", "1x8:a100-80", "megatron");
    dpari_step_of(&job, &tp, &none);
    tp.recompute = DPAR_RECOMPUTE_FULL;
    dpari_step_of(&job, &tp, &full);
    /* the embedding's and the head's all-reduce are not repeated */
    CHECK_NEAR((full.link_bytes - none.link_bytes) / none.link_bytes, 64.0 / (128 + 2), 0.01);
    dpari_step_of(&job, &cp, &ring);
    dpari_step_of(&job, &one, &data);
    /* 7 blocks of s/8 tokens of keys and values, 32 layers, 4 micro-batches: once and twice */
    CHECK_NEAR(ring.link_bytes - ring.dp_bytes, 3.0 * 7 * (4096 / 8) * 2 * 4096 * 2 * 32 * 4, 0.01);
    CHECK_NEAR(ring.dp_bytes, data.dp_bytes, 1e-9);
}

static double reserved(const dpar_memory_usage *m)
{
    return m->allocated + m->term[DPAR_MEMORY_FRAGMENTATION];
}

/* Checks a 13B on 8 A100-80: ZeRO-3 reserved 69.21 GiB where ZeRO-2 reserved 57.14 (DeepSpeed issue
 * 3734; the batch is not known, so only their difference is compared). Memory that is released late
 * is released earlier if it is needed, so it never makes a plan not fit. */
static void test_late(void)
{
    const char *model = "gpt:layers=40,hidden=5120,heads=40,vocab=50272,seq=512,stack=torch";
    dpar_strategy three = of("dp=8,zero=3"), two = of("dp=8,zero=2"), big = of("dp=8,zero=3,mbs=4");
    dpar_strategy again = of("dp=8,zero=3,recompute=full");
    dpar_memory_usage a, b;
    double must;
    set(model, "1x8:a100-80", "deepspeed");
    memory_at(&job, &two, &b);
    memory_at(&job, &three, &a);
    CHECK(b.late <= 0.0 && a.upper <= c.gpu.memory_bytes);
    CHECK_NEAR((reserved(&a) - reserved(&b)) / 1073741824.0, 69.21 - 57.14, 0.1);
    CHECK_NEAR(a.late, 2.0 * a.params, 1e-9);
    CHECK(a.late <= a.term[DPAR_MEMORY_GATHERED]);
    must = a.upper - a.late;
    CHECK(dpari_memory_fits(&job, &a, must) && !dpari_memory_fits(&job, &a, 0.99 * must));
    memory_at(&job, &again, &b); /* there too the host is ahead of the GPU */
    CHECK_NEAR(b.late, a.late, 1e-9);
    again.offload = DPAR_OFFLOAD_WEIGHTS; /* and here it waits for the host's memory */
    memory_at(&job, &again, &b);
    CHECK(b.late <= 0.0);
    memory_at(&job, &big, &b); /* the rest of the GPU is less than the weights */
    CHECK(b.late > 0.0 && b.late < a.late && dpari_memory_fits(&job, &b, 0.0));
    set(model, "1x8:a100-80", "fsdp");
    memory_at(&job, &three, &b);
    CHECK(b.late <= 0.0);
}

/* Checks what offloading needs and frees; what quantised communication saves (ZeRO++: weights in 1
 * byte instead of 2, gradients in 1/2 instead of 2); that DualPipe holds two stages. */
static void test_elsewhere(void)
{
    dpar_strategy host = of("dp=8,zero=1,recompute=full,offload=optimizer"), disk,
                  plain = of("dp=8,zero=1,recompute=full");
    dpar_strategy three = of("dp=16,zero=3"), dual = of("dp=1,pp=8,m=16,schedule=dualpipe");
    dpar_strategy one = of("dp=1,pp=8,m=16");
    dpar_memory_usage a, b, d;
    dpar_step_cost x, y;
    dpar_plan plan;
    dpar_why why;
    set("llama-3-8b", "1x8:h100-80,nvme=10", "megatron");
    disk = host;
    disk.offload |= DPAR_OFFLOAD_NVME;
    memory_at(&job, &host, &a);
    memory_at(&job, &disk, &b);
    memory_at(&job, &plain, &d);
    CHECK_NEAR(a.total, b.total, 1e-12);
    CHECK_NEAR(a.host, 12.0 * w.params / 8, 1e-9);
    CHECK(b.host <= 0.0 && dpari_memory_fits(&job, &a, 0.0));
    CHECK_NEAR(d.total - a.total, 1.05 * 12.0 * w.params / 8, 1e-6); /* and its fragmentation */
    CHECK(!dpari_memory_fits(&job, &a, a.upper * 0.99) && dpari_memory_fits(&job, &a, a.upper));
    dpari_step_of(&job, &host, &x);
    dpari_step_of(&job, &disk, &y);
    /* 12 bytes per parameter read and written through 10 GB/s of a node */
    CHECK_NEAR(y.term[DPAR_TIME_OFFLOAD] - x.term[DPAR_TIME_OFFLOAD] + x.term[DPAR_TIME_OPTIMIZER],
               2.0 * 12.0 * w.params / 10e9, 1e-6);
    set("llama-3-8b", "1x8:h100-80,host=90", "megatron"); /* 96.4 GB would have to go there */
    CHECK_INT(dpar_plan_price(&job, &host, 0, &plan, NULL, &why), DPAR_E_MEMORY);
    CHECK(strstr(why.text, "90 GB of a node") != NULL);
    set("llama-3-8b", "2x8:h100-80", "zero");
    dpari_step_of(&job, &three, &x);
    set("llama-3-8b", "2x8:h100-80", "zero++");
    dpari_step_of(&job, &three, &y);
    CHECK_NEAR(y.dp_bytes / x.dp_bytes, (1 + 1 + 0.5) / (2 + 2 + 2), 0.01);
    dpar_memory_stage(&job, &one, 3, &a);
    dpar_memory_stage(&job, &dual, 3, &b);
    CHECK_NEAR(b.term[DPAR_MEMORY_WEIGHTS], 2.0 * a.term[DPAR_MEMORY_WEIGHTS], 1e-12);
    memory_at(&job, &one, &d);
    dpar_memory_stage(&job, &one, -1, &a);
    CHECK_NEAR(a.total, d.first, 1e-12);
    dpar_memory_stage(&job, &one, 99, &a);
    CHECK_NEAR(a.total, d.last, 1e-12);
    dpar_memory_stage(&job, &one, d.worst, &a);
    CHECK_NEAR(a.total, d.total, 1e-12);
    { /* the blocks' outputs go between stages, however wide a tower before the first of them is */
        static const char plain_model[] = "llama:layers=4,hidden=512,heads=8,vocab=1000,seq=256";
        char text[256];
        dpar_strategy halves = of("pp=2,dp=1");
        double seconds;
        set(plain_model, "1x2:h100-80", "megatron");
        seconds = dpari_boundary_seconds(&job, &halves);
        CHECK(seconds > 0.0);
        snprintf(text, sizeof text,
                 "%s,tower_layers=2,tower_hidden=1024,tower_heads=8,tower_ffn=4096,"
                 "tower_tokens=4096,tower_patch=588,tower_positions=4096",
                 plain_model);
        set(text, "1x2:h100-80", "megatron");
        CHECK_NEAR(dpari_boundary_seconds(&job, &halves), seconds, 1e-12);
    }
    { /* weights and activations share the link: together they take the rest of the sum */
        dpar_strategy both = of("dp=8,zero=1,m=1,offload=weights+activations"), half = both;
        set("llama-3-8b", "1x8:a100-80", "megatron");
        dpari_step_of(&job, &both, &x);
        half.offload = DPAR_OFFLOAD_ACTIVATIONS;
        dpari_step_of(&job, &half, &y);
        CHECK_NEAR(x.term[DPAR_TIME_OFFLOAD] - y.term[DPAR_TIME_OFFLOAD],
                   2.0 * w.params * 2.0 / (0.8 * c.gpu.pcie_Bps), 0.01);
        /* the tiles of a sample share its state */
        set("unet-0.25deg", "1x4:a100-40", "megatron");
        half = of("dp=1,tiles=2x2,zero=3");
        memory_at(&job, &half, &a);
        CHECK_NEAR(a.term[DPAR_MEMORY_OPTIMIZER], 8.0 * w.params / 4, 1e-6);
        CHECK(a.term[DPAR_MEMORY_GATHERED] > 0.0);
        /* 2 x 2 tiles of 64 x 32 x 16 cells have faces of 16 x 16 and 32 x 16 on both sides; halos
         * of 2 cells of 5 numbers of 4 bytes, received and in a send buffer, for 3 samples */
        set("grid:64x32x16,fields=5,halo=2,element=4", "1x4:a100-40", "megatron");
        half = of("dp=1,tiles=2x2,mbs=3");
        memory_at(&job, &half, &a);
        CHECK_NEAR(a.term[DPAR_MEMORY_HALO], 2.0 * (2 * 16 * 16 + 2 * 32 * 16) * 2 * 5 * 4 * 3,
                   1e-12);
        set("llama-3-8b", "2x8:h100-80", "megatron");
    }
    /* activations of fp32 training */
    memory_at(&job, &plain, &a);
    set("llama-3-8b,element=4", "2x8:h100-80", "fp32");
    memory_at(&job, &plain, &b);
    CHECK(b.term[DPAR_MEMORY_ACTIVATIONS] > 1.8 * a.term[DPAR_MEMORY_ACTIVATIONS]);
    CHECK_NEAR(dpari_in_flight(DPAR_SCHEDULE_1F1B, 4, 1, 9, 8) +
                   dpari_in_flight(DPAR_SCHEDULE_1F1B, 4, 1, -1, 8),
               0, 0);
}

static void test_properties(void)
{
    static const char *const strategies[] = {"dp=64,zero=0",
                                             "dp=64,zero=1",
                                             "dp=64,zero=3",
                                             "tp=8,sp=1,dp=8,zero=1",
                                             "tp=8,dp=2,pp=4,m=16",
                                             "tp=4,dp=2,pp=8,vp=2,m=16",
                                             "dp=64,zero=3,recompute=full",
                                             "tp=4,cp=4,dp=4,zero=3",
                                             "dp=64,zero=3,shard=8"};
    size_t i;
    double last = 1e30;
    int32_t z, k;
    set("llama-3-8b", "8x8:h100-80", "megatron");
    for (i = 0; i < sizeof strategies / sizeof strategies[0]; i++) {
        dpar_strategy s = of(strategies[i]);
        dpar_memory_usage m;
        dpar_step_cost t;
        double sum = 0.0;
        CHECK_INT(dpari_strategy_check(&job, &s, 0, NULL, NULL), DPAR_OK);
        memory_at(&job, &s, &m);
        dpari_step_of(&job, &s, &t);
        for (k = 0; k < DPAR_TIME_COUNT; k++) {
            CHECK(t.term[k] >= 0.0);
            sum += t.term[k];
        }
        CHECK_NEAR(t.total, sum, 1e-9);
        for (sum = 0.0, k = 0; k < DPAR_MEMORY_COUNT; k++) {
            CHECK(m.term[k] >= 0.0);
            sum += m.term[k];
        }
        CHECK_NEAR(m.total, sum, 1e-9);
        CHECK(m.lower <= m.total && m.total <= m.upper && m.first <= m.total * 1.0000001);
        CHECK(t.mfu > 0.0 && t.mfu < 1.0 && t.mfu_causal <= t.mfu && t.hfu >= t.mfu);
    }
    for (z = 0; z <= 3; z++) { /* ZeRO: less memory stage by stage */
        dpar_strategy s = of("dp=64");
        dpar_memory_usage m;
        s.zero = z;
        memory_at(&job, &s, &m);
        CHECK(m.term[DPAR_MEMORY_WEIGHTS] + m.term[DPAR_MEMORY_GRADIENTS] +
                  m.term[DPAR_MEMORY_OPTIMIZER] <
              last);
        last = m.term[DPAR_MEMORY_WEIGHTS] + m.term[DPAR_MEMORY_GRADIENTS] +
               m.term[DPAR_MEMORY_OPTIMIZER];
        /* states equal the formula */
        CHECK_NEAR(last + m.term[DPAR_MEMORY_MASTER],
                   dpari_zero_bytes(&job.recipe, w.params, z, 64), 1e-9);
    }
    { /* activations shrink with recomputation and grow with the micro-batch */
        dpar_strategy a = of("dp=64,zero=3,mbs=1"), b = of("dp=64,zero=3,mbs=2"),
                      f = of("dp=64,zero=3,recompute=full");
        dpar_memory_usage x, y, z3;
        memory_at(&job, &a, &x);
        memory_at(&job, &b, &y);
        memory_at(&job, &f, &z3);
        CHECK_NEAR(y.term[DPAR_MEMORY_ACTIVATIONS], 2.0 * x.term[DPAR_MEMORY_ACTIVATIONS], 1e-9);
        CHECK(z3.term[DPAR_MEMORY_ACTIVATIONS] < 0.1 * x.term[DPAR_MEMORY_ACTIVATIONS]);
    }
}

/* Checks domain parallelism: halo bytes of a tile are exactly its surface times the width. */
static void test_domain(void)
{
    dpar_strategy s = of("tiles=4x2");
    dpar_step_cost t;
    dpar_memory_usage m;
    set("grid:1440x720x100,fields=5,halo=2", "2x4:a100-40,nic=4x25", "fp32");
    CHECK_INT(dpari_strategy_check(&job, &s, 0, NULL, NULL), DPAR_OK);
    dpari_step_of(&job, &s, &t);
    memory_at(&job, &s, &m);
    /* both sides of both cut axes: 2 (720/2 100) + 2 (1440/4 100) cells, 2 deep, 5 fields, 4 B */
    CHECK_NEAR(t.nic_bytes + t.link_bytes, (2.0 * 360 * 100 + 2.0 * 360 * 100) * 2 * 5 * 4, 1e-9);
    CHECK(t.term[DPAR_TIME_HALO] > 0.0 && t.term[DPAR_TIME_BACKWARD] <= 0.0);
    CHECK_NEAR(m.term[DPAR_MEMORY_ACTIVATIONS], 1440.0 * 720 * 100 / 8 * 5 * 4 * 2, 1e-9);
}

/* Checks that the work of a step does not depend on which rank does it: a mixture of experts
 * computes as long and holds as many expert weights however tp, etp and ep cut it over the same 8
 * ranks; only the exchanges differ. This is conservation, not a published number. */
static void test_experts(void)
{
    static const char *const cut[] = {
        "dp=8,mbs=8,m=1,ep=8", "tp=8,sp=1,dp=1,mbs=8,m=8,ep=8", "tp=8,sp=1,dp=1,mbs=8,m=8,etp=8",
        "tp=4,sp=1,dp=2,mbs=8,m=4,ep=4,etp=2", "tp=2,sp=1,dp=4,mbs=8,m=2,ep=2,etp=4"};
    dpar_why why;
    dpar_plan plan;
    dpar_strategy s;
    double forward = 0.0, kept = 0.0, ep[5];
    int32_t i;
    set("mixtral-8x7b", "1x8:h100-80", "megatron");
    for (i = 0; i < 5; i++) {
        dpar_status st;
        s = of(cut[i]);
        st = dpar_plan_price(&job, &s, 64, &plan, NULL, &why);
        CHECK(st == DPAR_OK || st == DPAR_E_MEMORY);
        if (i == 0) {
            forward = plan.step.term[DPAR_TIME_FORWARD];
            kept = plan.memory.term[DPAR_MEMORY_ACTIVATIONS] / 8.0; /* per sample */
        }
        CHECK_NEAR(plan.step.term[DPAR_TIME_FORWARD], forward, 0.06);
        if (s.tp == 8 && s.etp == 1) { /* sequence parallelism keeps an eighth of everything */
            CHECK_NEAR(plan.memory.term[DPAR_MEMORY_ACTIVATIONS], kept, 0.01);
        }
        ep[i] = plan.step.term[DPAR_TIME_EP];
        CHECK(ep[i] > 0.0);
    }
    CHECK(ep[2] > ep[1]); /* gathering for every rank of an expert moves more than sending to it */
    s = of("tp=8,dp=1,ep=8");
    CHECK_INT(dpar_plan_price(&job, &s, 0, &plan, &i, &why), DPAR_E_DIVIDE);
    CHECK_INT(i, DPAR_STRATEGY_RULE_EP);
    CHECK(strstr(why.text, "sp=1") != NULL);
}

int main(void)
{
    test_states();
    test_zero_table();
    test_korthikanti();
    test_bubbles();
    test_schedules();
    test_checks();
    test_shares();
    test_hardware_flops();
    test_sequences();
    test_traffic();
    test_monotone();
    test_late();
    test_elsewhere();
    test_properties();
    test_domain();
    test_experts();
    return CHECK_DONE();
}
