/* SPDX-License-Identifier: MIT-0 */
/* Tests plan_text: a query in words gives the same numbers as the full API called by hand; each
 * wrong word is named; the line is composed here from the plan's numbers. Run with:
 * tests/run test cost. */
#include "dpar_cost.h"

#include "check.h"

#include <stdlib.h>

static dpar_plan_result p;
static dpar_plan_query a;
static dpar_why why;

static void says(const char *word)
{
    if (strstr(why.text, word) == NULL) {
        CHECK_TEXT(why.text, word);
    }
    CHECK(1);
}

/* Finds the best plan with the full API, as the command's users had to write it before. */
static void by_hand(const char *model, const char *machine, int32_t gpus, int64_t batch,
                    int32_t seq, const char *precision, const char *fix, dpar_plan *best)
{
    static dpar_workload work;
    static dpar_planner planner;
    dpar_model m;
    dpar_cluster c;
    dpar_job job;
    dpar_planner_desc q;
    dpar_status st;
    memset(&q, 0, sizeof q);
    dpar_strategy_init(&q.fixed);
    CHECK_INT(dpar_recipe_find(&job.recipe, precision, &why), DPAR_OK);
    CHECK_INT(dpar_model_read(&m, model, strlen(model), &why), DPAR_OK);
    if (strcmp(precision, "fp32") == 0) {
        m.element = 4;
    }
    CHECK_INT(dpar_workload_init(&work, &m, seq, &why), DPAR_OK);
    CHECK_INT(dpar_cluster_read(&c, machine, strlen(machine), &why), DPAR_OK);
    CHECK(gpus == 0 || dpar_cluster_resize(&c, gpus, &why) == DPAR_OK);
    CHECK(fix == NULL ||
          dpar_strategy_read(&q.fixed, fix, strlen(fix), &q.fixed_fields, &why) == DPAR_OK);
    job.work = &work;
    job.cluster = &c;
    q.global_batch = batch;
    q.top = best;
    q.top_capacity = 1;
    CHECK_INT(dpar_planner_init(&planner, &job, &q, &why), DPAR_OK);
    do {
        st = dpar_planner_run(&planner, 1000, &why);
    } while (st == DPAR_MORE);
    CHECK_INT(st, DPAR_DONE);
}

static void same(const dpar_plan *best)
{
    char mine[256], theirs[256];
    dpar_text t;
    CHECK(p.report.plan_count > 0 && p.report.plan == p.plan);
    CHECK(p.step == best->step.total && p.memory == best->memory.total);
    dpar_text_init(&t, mine, sizeof mine);
    dpar_strategy_write(&p.plan[0].strategy, &t);
    dpar_text_init(&t, theirs, sizeof theirs);
    dpar_strategy_write(&best->strategy, &t);
    CHECK_TEXT(mine, theirs);
}

static void test_as_by_hand(void)
{
    dpar_plan best;
    by_hand("llama-3-70b", "8x8:a100-80", 0, 512, 0, "megatron", NULL, &best);
    CHECK_INT(dpar_plan_search("llama-3-70b", "8x8:a100-80", "batch=512", &p, &why), DPAR_OK);
    same(&best);
    CHECK_INT(p.report.global_batch, 512);
    CHECK_INT(p.report.plan_count, 8);
    /* 4194304 / 8192 tokens are 512 samples, and 512 is a power of two times 64 GPUs */
    CHECK_INT(dpar_plan_search("llama-3-70b", "8x8:a100-80", NULL, &p, &why), DPAR_OK);
    same(&best);
    by_hand("llama-3-8b", "derecho", 16, 64, 4096, "fp32", "tp=2,pp=2", &best);
    CHECK_INT(dpar_plan_search("llama-3-8b", "derecho",
                               " gpus=16\tbatch=64  seq=4096\nprecision=fp32 fix=tp=2,pp=2 ", &p,
                               &why),
              DPAR_OK);
    same(&best);
    by_hand("llama-3-8b,stack=torch,attention=flash1", "dgx-h100", 0, 64, 0, "fsdp", NULL, &best);
    CHECK_INT(dpar_plan_search("llama-3-8b", "dgx-h100",
                               "stack=torch attention=flash1 batch=64 precision=fsdp", &p, &why),
              DPAR_OK);
    same(&best);
    /* a grid: one sample */
    by_hand("grid:1440x720x100,fields=5", "derecho", 64, 1, 0, "megatron", NULL, &best);
    CHECK_INT(dpar_plan_search("grid:1440x720x100,fields=5", "derecho", "gpus=64", &p, &why),
              DPAR_OK);
    same(&best);
}

/* Checks queries without a model, a machine or a result. */
static void test_nothing(void)
{
    const char *says = "model, machine or query is NULL";
    CHECK_INT(dpar_plan_search(NULL, "derecho", NULL, &p, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, says);
    CHECK_INT(dpar_plan_search("gpt2", NULL, NULL, &p, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, says);
    CHECK_INT(dpar_plan_search("gpt2", "derecho", NULL, NULL, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, says);
}

static void test_ask(void)
{
    CHECK_INT(dpar_plan_query_read("llama-3-8b", "dgx-h100", "gpus=16 whole", &a, &why), DPAR_OK);
    CHECK_INT(a.machine_gpus, 8);
    CHECK_INT(a.batch, -1);
    CHECK_INT(a.search.space, DPAR_SPACE_WHOLE);
    CHECK_INT(a.search.global_batch, 512);
    CHECK_INT(a.strategy_fields, 0);
    CHECK(a.job.work == &a.work && a.job.cluster == &a.cluster);
    CHECK_TEXT(a.job.recipe.name, "megatron");
    CHECK_INT(dpar_plan_query_read("llama-3-8b", "dgx-h100", "batch=0", &a, &why), DPAR_OK);
    CHECK_INT(a.batch, 0);
    CHECK_INT(a.search.global_batch, 0);
    CHECK_INT(a.machine_gpus, 0);
    CHECK_INT(a.search.space, DPAR_SPACE_USUAL);
}

static void test_evaluate(void)
{
    dpar_plan plan;
    dpar_strategy s;
    /* dp = 64 / 32, and 512 = dp mbs m: m = 256 */
    CHECK_INT(dpar_plan_search("llama-3-70b", "8x8:a100-80",
                               "batch=512 evaluate=tp=8,sp=1,pp=4,zero=1", &p, &why),
              DPAR_OK);
    dpar_strategy_init(&s);
    s.tp = 8;
    s.sp = 1;
    s.pp = 4;
    s.zero = 1;
    s.dp = 2;
    s.micro_batches = 256;
    CHECK_INT(dpar_plan_price(&p.query.job, &s, 512, &plan, NULL, &why), DPAR_OK);
    same(&plan);
    CHECK_INT(p.report.plan_count, 1);
    /* its own batch if none is requested */
    CHECK_INT(dpar_plan_search("llama-3-70b", "8x8:a100-80",
                               "evaluate=tp=8,sp=1,pp=4,zero=1,mbs=2,m=16", &p, &why),
              DPAR_OK);
    CHECK_INT(p.report.global_batch, 2 * 2 * 16);
    CHECK_INT(dpar_plan_search("llama-3-70b", "8x8:a100-80", "evaluate=tp=8,mbs=1", &p, &why),
              DPAR_E_MEMORY);
    says("per GPU");
    CHECK(p.memory > 80e9 && p.step > 0);
    CHECK_INT(dpar_plan_search("llama-3-70b", "8x8:a100-80", "evaluate=tp=3", &p, &why),
              DPAR_E_DIVIDE);
    says("= 3 ranks do not divide the cluster's 64 GPUs");
    CHECK_INT(dpar_plan_search("llama-3-70b", "8x8:a100-80", "batch=7 evaluate=tp=8", &p, &why),
              DPAR_E_DIVIDE);
}

/* Checks that with 64 GPUs named values stay and the others follow. */
static void test_complete(void)
{
    dpar_strategy s;
    CHECK_INT(dpar_plan_query_read("llama-3-70b", "8x8:a100-80", NULL, &a, &why), DPAR_OK);
    dpar_strategy_init(&s);
    s.tp = 8;
    s.pp = 2;
    s.micro_batch = 2;
    CHECK_INT(dpar_strategy_complete(&a.job, &s, 0, 64, &why), DPAR_OK);
    CHECK_INT(s.dp, 4);
    CHECK_INT(s.micro_batches, 8);
    CHECK_INT(dpar_strategy_complete(&a.job, &s, 0, 3, &why), DPAR_OK);
    CHECK_INT(s.micro_batches, 1);
    s.dp = 3;
    s.micro_batches = 5;
    CHECK_INT(dpar_strategy_complete(
                  &a.job, &s,
                  1u << DPAR_STRATEGY_FIELD_DP | 1u << DPAR_STRATEGY_FIELD_MICRO_BATCHES, 64, &why),
              DPAR_OK);
    CHECK_INT(s.dp, 3);
    CHECK_INT(s.micro_batches, 5);
    s.tp = 6;
    CHECK_INT(dpar_strategy_complete(&a.job, &s, 0, 64, &why), DPAR_E_DIVIDE);
    CHECK_INT(s.dp, 3);
}

static void refused(const char *model, const char *machine, const char *options, dpar_status st,
                    const char *word)
{
    why.text[0] = 0;
    CHECK_INT(dpar_plan_query_read(model, machine, options, &a, &why), st);
    says(word);
    why.text[0] = 0;
    CHECK_INT(dpar_plan_search(model, machine, options, &p, &why), st);
    says(word);
    CHECK_INT(dpar_plan_search(model, machine, options, &p, NULL), st);
}

static void test_refused(void)
{
    refused("lama-3-8b", "dgx-h100", NULL, DPAR_E_UNKNOWN, "the nearest is 'llama-3-8b'");
    refused("llama-3-8b", "dxg-h100", NULL, DPAR_E_UNKNOWN, "the nearest is 'dgx-h100'");
    refused("llama-3-8b", "8x8:a100", NULL, DPAR_E_UNKNOWN, "the nearest is 'a100-");
    refused("llama-3-8b", "dgx-h100", "bach=5", DPAR_E_ARG,
            "'bach=5' is not an option of a plan; known: gpus=, batch=");
    refused("llama-3-8b", "dgx-h100", "batch", DPAR_E_ARG, "'batch' is not an option");
    refused("llama-3-8b", "dgx-h100", "whole=1", DPAR_E_ARG, "'whole=1' is not an option");
    refused("llama-3-8b", "dgx-h100", "gpus=8 gpus=8", DPAR_E_ARG, "'gpus=8' is given twice");
    refused("llama-3-8b", "dgx-h100", "gpus=0", DPAR_E_ARG,
            "gpus=0 needs a whole number of 1 to 100000000");
    refused("llama-3-8b", "dgx-h100", "gpus=-1", DPAR_E_ARG, "gpus=-1 needs");
    refused("llama-3-8b", "dgx-h100", "gpus=", DPAR_E_ARG, "gpus= needs");
    refused("llama-3-8b", "dgx-h100", "seq=8k", DPAR_E_ARG, "seq=8k needs");
    refused("llama-3-8b", "dgx-h100", "batch=99999999999999999999999", DPAR_E_ARG,
            "of 0 to 2147483647");
    refused("llama-3-8b", "dgx-h100", "precision=half", DPAR_E_UNKNOWN,
            "unknown precision 'half'; one of megatron");
    refused("llama-3-8b", "dgx-h100", "stack=jax", DPAR_E_UNKNOWN,
            "stack must be megatron, core, torch, compiled or a generation of these: llm-foundry, "
            "torchtitan, nanotron, nemo, deepep, maxtext (@ and a year may follow); not 'jax'");
    refused("llama-3-8b", "dgx-h100", "attention=slow", DPAR_E_UNKNOWN,
            "attention must be unfused, flash1 or flash, not 'slow'");
    refused("llama-3-8b", "dgx-h100", "fix=", DPAR_E_ARG, "fix needs name=value");
    refused("llama-3-8b", "dgx-h100", "fix=tpx=3", DPAR_E_PARSE, "tpx");
    refused("llama-3-8b", "dgx-h100", "evaluate=tp=x", DPAR_E_PARSE, "whole number");
    refused("llama-3-8b", "selene", "gpus=12", DPAR_E_DIVIDE,
            "is not a multiple of 8 GPUs per node");
    refused("resnet-50", "dgx-h100", "seq=5", DPAR_E_ARG,
            "seq sets the tokens of a language model's sample");
    CHECK_INT(dpar_plan_search("llama-3.1-405b", "1x8:a100-80", NULL, &p, &why), DPAR_E_NONE);
    says("fits");
}

static void test_line(void)
{
    char text[400], expected[400];
    dpar_text t;
    dpar_text_init(&t, text, sizeof text);
    CHECK_INT(dpar_plan_search("llama-3-70b", "8x8:a100-80", "batch=512", &p, &why), DPAR_OK);
    CHECK_INT(dpar_plan_draw(&t, &p.report, DPAR_PLAN_DRAW_LINE, &why), DPAR_OK);
    snprintf(expected, sizeof expected,
             "dp=2,zero=1,tp=8,sp=1,pp=4,vp=20,schedule=interleaved,mbs=2,m=128: %.0f s a step, "
             "%.3g tokens/s a "
             "GPU, MFU %.1f %%, %.1f of %.1f GB\n",
             p.step, p.plan[0].step.tokens_per_s_gpu, 100 * p.plan[0].step.mfu, p.memory * 1e-9,
             p.query.cluster.gpu.memory_bytes * 1e-9);
    CHECK_TEXT(text, expected);
    dpar_text_init(&t, text, sizeof text);
    CHECK_INT(dpar_plan_search("llama-3-70b", "8x8:a100-80", "evaluate=tp=8,mbs=1", &p, &why),
              DPAR_E_MEMORY);
    CHECK_INT(dpar_plan_draw(&t, &p.report, DPAR_PLAN_DRAW_LINE, &why), DPAR_OK);
    CHECK(strstr(text, " GB: does not fit\n") != NULL);
    dpar_text_init(&t, text, sizeof text);
    CHECK_INT(dpar_plan_search("llama-3.1-405b", "1x8:a100-80", NULL, &p, &why), DPAR_E_NONE);
    CHECK_INT(dpar_plan_draw(&t, &p.report, DPAR_PLAN_DRAW_LINE, &why), DPAR_OK);
    CHECK_TEXT(text, "nothing fits\n");
    CHECK_INT(dpar_plan_draw(&t, &p.report, 6, &why), DPAR_E_ARG);
}

/* Checks that a classifier's config.json of about 70,000 bytes, with its labels before its sizes,
 * gives the model without the labels; machines and lists of layers have no limit except the
 * reported one. */
static void test_long(void)
{
    static const char sizes[] = "\"hidden_size\": 768, \"num_hidden_layers\": 12, "
                                "\"num_attention_heads\": 12, \"intermediate_size\": 3072, "
                                "\"image_size\": 224, \"patch_size\": 16}";
    static char text[100000];
    static dpar_plan_result with, without;
    size_t at = (size_t)snprintf(text, sizeof text, "{\"model_type\": \"vit\", \"id2label\": {");
    dpar_why why;
    int i;
    for (i = 0; i < 1000; i++) {
        at += (size_t)snprintf(text + at, sizeof text - at,
                               "%s\"%d\": \"what is in the picture if the answer is number %d\"",
                               i > 0 ? ", " : "", i, i);
    }
    snprintf(text + at, sizeof text - at, "}, %s", sizes);
    CHECK(strlen(text) > 60000);
    CHECK_INT(dpar_plan_search(text, "1x8:a100-80", NULL, &with, &why), DPAR_OK);
    snprintf(text, sizeof text, "{\"model_type\": \"vit\", %s", sizes);
    CHECK_INT(dpar_plan_search(text, "1x8:a100-80", NULL, &without, &why), DPAR_OK);
    CHECK(with.step > 0.0 && with.query.work.layers == without.query.work.layers);
    CHECK_NEAR(with.step, without.step, 1e-2); /* the head of one of them has 1000 classes */
    at = (size_t)snprintf(text, sizeof text, "1x8:a100-80");
    for (i = 0; i < 5000; i++) {
        at += (size_t)snprintf(text + at, sizeof text - at, ",taper=1");
    }
    snprintf(text + at, sizeof text - at, ",nvlink=1");
    CHECK_INT(dpar_plan_query_read("llama-3-8b", text, NULL, &with.query, &why), DPAR_OK);
    CHECK_NEAR(with.query.cluster.link_Bps, 1e9, 1e-9);
    snprintf(text, sizeof text, "1x8:a100-80,nvlink=%0200d", 1);
    CHECK_INT(dpar_plan_query_read("llama-3-8b", text, NULL, &with.query, &why), DPAR_E_PARSE);
    CHECK_TEXT(why.text, "'nvlink=00000000000000000000000000000000000000000000000000000...' has 207 "
                         "bytes: a setting has at most 95");
    at = (size_t)snprintf(text, sizeof text, "{\"model_type\": \"qwen3\", \"hidden_size\": 64, "
                                             "\"num_hidden_layers\": 600, "
                                             "\"num_attention_heads\": 4, \"vocab_size\": 100, "
                                             "\"intermediate_size\": 64, \"layer_types\": [");
    for (i = 0; i < 600; i++) {
        at += (size_t)snprintf(text + at, sizeof text - at, "%s\"full_attention\"",
                               i > 0 ? ", " : "");
    }
    snprintf(text + at, sizeof text - at, "]}");
    CHECK_INT(dpar_plan_query_read(text, "1x8:a100-80", NULL, &with.query, &why), DPAR_E_RANGE);
    CHECK_TEXT(why.text, "config.json: a list describes 600 layers, but at most 512 are possible");
}

int main(void)
{
    test_long();
    test_as_by_hand();
    test_nothing();
    test_ask();
    test_evaluate();
    test_complete();
    test_refused();
    test_line();
    return CHECK_DONE();
}
