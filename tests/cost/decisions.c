/* SPDX-License-Identifier: MIT-0 */
/* Tests the decisions that teaching texts expect: 15 cases and the Derecho table (an NCAR guide, a
 * benchmark post, a course lesson, a case study, a five-dimensional recipe). The advice must be
 * theirs or a faster one: then the taught layout is priced at its best and must not be faster. Run
 * with: tests/run test cost. */
#include "dpar_cost.h"

#include <stdlib.h>

#include "check.h"
#include "plan_calls.h"

static dpar_workload w;
static dpar_advice a;
static dpar_cluster c;
static dpar_job job;
static dpar_planner_desc asked;

static const char *advise(const char *model, const char *cluster, const char *recipe,
                          long long batch)
{
    dpar_model m;
    dpar_why why;
    dpar_status st;
    why.text[0] = 0;
    memset(&asked, 0, sizeof asked);
    asked.fixed = plain_strategy();
    asked.global_batch = batch;
    CHECK_INT(dpar_model_read(&m, model, strlen(model), &why), DPAR_OK);
    CHECK_INT(dpar_workload_init(&w, &m, 0, &why), DPAR_OK);
    CHECK_INT(dpar_cluster_read(&c, cluster, strlen(cluster), &why), DPAR_OK);
    CHECK_INT(dpar_recipe_find(&job.recipe, recipe, &why), DPAR_OK);
    job.work = &w;
    job.cluster = &c;
    st = dpar_plan_recommend(&job, &asked, &a, &why);
    if (st != DPAR_OK && st != DPAR_E_MEMORY) {
        printf("%s on %s: %s\n", model, cluster, why.text);
    }
    CHECK(st == DPAR_OK || st == DPAR_E_MEMORY);
    CHECK(strlen(a.why) > 20);
    return a.name;
}

static int taught, beaten;

/* Returns the degree behind "NAME=" in a taught answer: 0 if the name is missing, -1 if it has no
 * degree. */
static int degree(const char *part, const char *name)
{
    const char *at = strstr(part, name);
    int d;
    if (at == NULL || (at > part && at[-1] != ' ' && at[-1] != '+')) {
        return 0;
    }
    at += strlen(name);
    d = *at == '=' ? atoi(at + 1) : 0;
    return d > 0 ? d : -1;
}

static void fix(dpar_planner_desc *q, int32_t *field, int32_t value, int32_t which)
{
    if (value > 0) {
        *field = value;
        q->fixed_fields |= (uint32_t)1 << which;
    }
}

/* Returns the seconds per sample of the best plan that is a taught answer; 0 if there is none. */
static double taught_seconds(const char *part)
{
    static dpar_planner p;
    dpar_plan top;
    dpar_planner_desc q = asked;
    dpar_status st;
    int tiles = degree(part, "domain"), fsdp = degree(part, "FSDP"), hsdp = degree(part, "HSDP");
    int shards = fsdp > 0 ? fsdp : hsdp, i;
    double best = 0.0;
    fix(&q, &q.fixed.tp, degree(part, "TP"), DPAR_STRATEGY_FIELD_TP);
    fix(&q, &q.fixed.pp, degree(part, "PP"), DPAR_STRATEGY_FIELD_PP);
    fix(&q, &q.fixed.dp, degree(part, "DDP"), DPAR_STRATEGY_FIELD_DP);
    fix(&q, &q.fixed.dp, shards, DPAR_STRATEGY_FIELD_DP);
    if (fsdp != 0 || hsdp != 0) {
        fix(&q, &q.fixed.zero, 3, DPAR_STRATEGY_FIELD_ZERO);
        fix(&q, &q.fixed.shard, hsdp != 0 ? job.cluster->gpus_per_node : 0,
            DPAR_STRATEGY_FIELD_SHARD);
    }
    for (i = 1; i == 1 || i <= tiles; i++) {
        if (tiles > 0) {
            fix(&q, &q.fixed.tiles[0], i, DPAR_STRATEGY_FIELD_TILES);
            q.fixed.tiles[1] = tiles / i;
            q.fixed.tiles[2] = 1;
        }
        if (tiles > 0 && tiles % i != 0) {
            continue;
        }
        q.top = &top;
        q.top_capacity = 1;
        st = dpar_planner_init(&p, &job, &q, NULL);
        while (st == DPAR_OK || st == DPAR_MORE) {
            st = dpar_planner_run(&p, INT64_MAX, NULL);
        }
        if (st == DPAR_DONE && (best <= 0.0 || top.step.total / top.step.samples < best)) {
            best = top.step.total / top.step.samples;
        }
    }
    return best;
}

/* Accepts the taught answer, or another one that is faster, or simpler and at most 5 % slower. */
#define EXPECT(got, part)                                                                          \
    do {                                                                                           \
        const char *name = (got);                                                                  \
        double theirs = 0.0, ours = a.plan.step.total / a.plan.step.samples;                       \
        checks_run++;                                                                              \
        if (strstr(name, part) != NULL) {                                                          \
            taught++;                                                                              \
        } else if (1.05 * (theirs = taught_seconds(part)) > ours) {                                \
            beaten++;                                                                              \
        } else {                                                                                   \
            checks_failed++;                                                                       \
            printf("%s:%d: '%s', expected %s (%s): %g s, not %g s\n", __FILE__, __LINE__, name,    \
                   part, a.why, theirs, ours);                                                     \
        }                                                                                          \
    } while (0)

/* Checks the 15 cases of strategies.md section 3, in its order. */
static void test_cases(void)
{
    /* 1: ResNet-50, 400 MB of state, 4 to 16 A100-40: DDP */
    EXPECT(advise("resnet-50", "1x4:a100-40", "zero", 1024), "DDP=4");
    EXPECT(advise("resnet-50", "4x4:a100-40,nic=4x25", "zero", 4096), "DDP=16");
    /* 2: LLaMA-7B, 112 GB of state, 4 nodes of 4 A100-40: TP=4 in the node, FSDP across */
    EXPECT(advise("llama-7b", "derecho,nodes=4", "zero", 256), "TP=4 + FSDP=4");
    /* 3: U-Net of 50M on 1440 x 720, 100+ channels, 4 A100: domain parallel over 4 tiles */
    EXPECT(advise("unet-50m", "1x4:a100-40", "fp32", 4), "domain=4");
    /* 4: transformer of 1B, 128K tokens, 4 GPUs: SP (Megatron or Ulysses) + TP */
    EXPECT(advise("transformer-1b", "1x4:a100-80", "zero", 4), "SP");
    EXPECT(a.name, "TP");
    /* 5: diffusion of 200 layers, about 5B, 16 GPUs: PP of 4 stages of 50 layers + FSDP, m >= 16 */
    EXPECT(advise("diffusion-5b", "2x8:a100-40", "zero", 256), "PP=4 + FSDP=4");
    /* 6: 0.025B and 0.125B on 8 x 80 GB: DDP */
    EXPECT(advise("resnet-50", "1x8:a100-80", "zero", 512), "DDP=8");
    EXPECT(advise("gpt2-125m", "1x8:a100-80", "zero", 512), "DDP=8");
    /* 7: 1.3B on 8 x 80 GB: DDP with activation checkpointing by a conservative rule; by arithmetic
     * it fits without (16 B x 1.3e9 = 21 GB and one micro-batch): DDP either way */
    EXPECT(advise("gpt-1.3b", "1x8:a100-80", "no-master", 512), "DDP=8");
    CHECK_INT(a.plan.strategy.recompute, DPAR_RECOMPUTE_NONE);
    /* 8: 7B on 8 x 80 GB: ZeRO-3; 84 GB static at 12 B a parameter */
    EXPECT(advise("llama-7b", "1x8:a100-80", "no-master", 512), "FSDP=8");
    /* 9: 70B on 8 x 80 GB: TP in the node + FSDP; only FSDP is 105 GB per GPU (103 with the exact
     * 69.0e9 parameters): does not fit, say so, and say what would */
    EXPECT(advise("llama-2-70b", "1x8:a100-80", "no-master", 64), "TP=8");
    CHECK(!a.plan.fits && strstr(a.why, "does not fit") != NULL);
    CHECK(strstr(a.runner_up, "103 GB a GPU") != NULL);
    CHECK(strstr(a.runner_up, "it fits on 16") != NULL);
    /* 10: 70B on 64 A100-80, 8 nodes of 8, 200 Gb/s: TP inside, PP or FSDP across */
    EXPECT(advise("llama-2-70b", "8x8:a100-80,nic=1x25", "zero", 512), "TP=8");
    CHECK(strstr(a.name, "FSDP") != NULL || strstr(a.name, "PP") != NULL);
    /* 11: 30B on 32 A100-80: FSDP over 32 holds 15 GB of state a GPU; TP=8 + DP=4 is preferred */
    EXPECT(advise("mpt-30b,stack=core,attention=flash", "4x8:a100-80", "zero", 512),
           "TP=8 + FSDP=4");
    /* 12: ViT of 3.2B on 8 p4d (8 A100-40 each, EFA): sharded in the node, replicas across */
    EXPECT(advise("vit-3.2b", "8xp4d", "zero", 4096), "HSDP");
    /* 13: below 10B on 8 H100: TP=8 or ZeRO-3 */
    EXPECT(advise("llama-3-8b", "1x8:h100-80", "megatron", 512), "FSDP=8");
    /* 14: 10-100B on 16-64 H100: TP=8 + PP or ZeRO-3; on 128-512: TP=8 + PP + DP(ZeRO-1) */
    EXPECT(advise("llama-3-70b", "8x8:h100-80", "megatron", 512), "TP=8 + FSDP=8");
    EXPECT(advise("llama-3-70b", "32x8:h100-80", "megatron", 1024), "TP=8 + PP=");
    CHECK(a.plan.strategy.zero == 1 && a.plan.strategy.pp > 1);
    /* 15: 100B+ on 1024+ H100: TP=8 + PP + DP; CP for long sequences, EP for mixtures of experts */
    EXPECT(advise("llama-3.1-405b", "128x8:h100-80", "megatron", 2048), "TP=8 + PP=");
    EXPECT(advise("llama-3.1-405b,seq=131072", "128x8:h100-80", "megatron", 128), "CP=");
    EXPECT(advise("deepseek-v3", "128x8:h100-80", "megatron", 8192), "EP=");
    CHECK(a.plan.strategy.pp > 1 && a.plan.strategy.zero <= 2);
}

/* Checks the Derecho table: 1 node: DDP if it fits, FSDP for 40-160 GB of state; TP=4 + FSDP
 * beyond. */
static void test_derecho(void)
{
    EXPECT(advise("gpt2-125m", "derecho,nodes=1", "zero", 64), "DDP=4");
    EXPECT(advise("gpt-5.9b,stack=core", "derecho,nodes=1", "zero", 64), "FSDP=4");
    EXPECT(advise("gpt2-125m", "derecho,nodes=2", "zero", 64), "DDP=8");
    EXPECT(advise("llama-2-13b", "derecho,nodes=2", "zero", 64), "TP=4 + FSDP=2");
    EXPECT(advise("llama-2-13b", "derecho,nodes=4", "zero", 64), "TP=4 + FSDP=4");
    EXPECT(advise("llama-30b", "derecho,nodes=8", "zero", 64), "TP=4 + FSDP=8");
    EXPECT(advise("llama-2-70b", "derecho,nodes=20", "zero", 80), "TP=4 + FSDP=20");
    EXPECT(advise("llama-2-70b", "derecho", "zero", 328), "TP=4 + FSDP=82");
}

/* Checks that answers do not depend on a case's exact numbers: another batch (free, about 4 million
 * tokens), and models, machines and recipes close to those of the cases. */
static void test_variants(void)
{
    EXPECT(advise("llama-7b", "derecho,nodes=4", "zero", 0), "TP=4 + FSDP=4");
    EXPECT(advise("llama-7b", "derecho,nodes=4", "zero", 2048), "TP=4 + FSDP=4");
    EXPECT(advise("llama-7b", "derecho,nodes=2", "zero", 256), "TP=4 + FSDP=2");
    EXPECT(advise("llama-2-13b", "derecho,nodes=4", "zero", 0), "TP=4 + FSDP=4");
    EXPECT(advise("llama-30b", "derecho,nodes=8", "zero", 2048), "TP=4 + FSDP=8");
    EXPECT(advise("llama-2-70b", "derecho,nodes=20", "zero", 1040), "TP=4 + FSDP=20");
    EXPECT(advise("llama-2-70b", "derecho,nodes=40", "zero", 320), "TP=4 + FSDP=40");
    EXPECT(advise("llama-2-70b", "derecho", "zero", 0), "TP=4 + FSDP=82");
    EXPECT(advise("unet-50m", "1x4:a100-40", "fp32", 64), "domain=4");
    EXPECT(advise("unet-50m", "2x4:a100-40,nic=4x25", "fp32", 8), "domain=4 + DDP=2");
    EXPECT(advise("unet-50m", "1x4:a100-80", "fp32", 4), "DDP=4"); /* 80 GB hold a sample */
    EXPECT(advise("transformer-1b,seq=65536", "1x4:a100-80", "zero", 4), "SP+TP=4");
    EXPECT(advise("transformer-1b,seq=32768", "1x4:a100-40", "zero", 4), "SP+TP=4");
    EXPECT(advise("transformer-1b", "1x8:a100-40", "zero", 8), "SP+TP=8");
    EXPECT(advise("diffusion-5b", "2x8:a100-80", "zero", 256), "PP=4 + FSDP=4");
    EXPECT(advise("diffusion-5b", "4x4:a100-40,nic=4x25", "zero", 0), "PP=4 + FSDP=4");
    EXPECT(advise("diffusion-5b,layers=100", "2x8:a100-40", "zero", 256), "PP=2 + FSDP=8");
    EXPECT(advise("llama-2-13b", "1x8:a100-80", "zero", 512), "FSDP=8");
    EXPECT(advise("llama-2-70b", "8x8:a100-80,nic=1x25", "zero", 0), "TP=8");
    EXPECT(advise("llama-2-70b", "16x8:a100-80", "zero", 512), "TP=8 + PP=");
    EXPECT(advise("mpt-30b", "4x8:a100-80", "zero", 0), "TP=8");
    EXPECT(advise("vit-3.2b", "4xp4d", "zero", 2048), "HSDP=32");
    EXPECT(advise("vit-3.2b", "1xp4d", "zero", 512), "FSDP=8");
    EXPECT(advise("gpt3-175b", "128x8:h100-80", "megatron", 1536), "TP=8 + PP=8 + DP");
    EXPECT(advise("megatron-1t", "384x8:a100-80", "megatron", 3072), "TP=8 + PP=");
    EXPECT(advise("mixtral-8x22b", "128x8:h100-80", "megatron", 2048), "EP=");
    EXPECT(advise("llama-3-70b,seq=131072", "8x8:h100-80", "megatron", 64), "CP=");
    EXPECT(advise("grid:1440x720x100,fields=5", "derecho,nodes=3", "fp32", 1), "domain=12");
    EXPECT(advise("resnet-50", "1x1:a100-40", "zero", 64), "one GPU");
}

/* Checks that each field that the caller fixes constrains the answer, and that the answer without
 * it is reported too. */
static void test_fixed(void)
{
    static const char *const fixed[] = {
        "tp=8", "tp=2",           "tp=8,pp=2", "pp=4",  "zero=0",  "zero=3",       "cp=2",
        "dp=4", "recompute=full", "vp=2",      "mbs=2", "shard=4", "schedule=zbv", "zero=1,tp=1"};
    dpar_model m;
    dpar_planner_desc q;
    dpar_why why;
    dpar_strategy got;
    uint32_t named;
    size_t i;
    CHECK_INT(dpar_model_read(&m, "llama-3-8b", 10, NULL), DPAR_OK);
    CHECK_INT(dpar_workload_init(&w, &m, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_cluster_read(&c, "2x8:a100-80", 11, NULL), DPAR_OK);
    CHECK_INT(dpar_recipe_find(&job.recipe, "megatron", NULL), DPAR_OK);
    job.work = &w;
    job.cluster = &c;
    for (i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        memset(&q, 0, sizeof q);
        dpar_strategy_init(&q.fixed);
        q.global_batch = 512;
        CHECK_INT(dpar_strategy_read(&q.fixed, fixed[i], strlen(fixed[i]), &q.fixed_fields, NULL),
                  DPAR_OK);
        CHECK_INT(dpar_plan_recommend(&job, &q, &a, &why), DPAR_OK);
        /* the same text read into the answer changes nothing */
        got = a.plan.strategy;
        CHECK_INT(dpar_strategy_read(&got, fixed[i], strlen(fixed[i]), &named, NULL), DPAR_OK);
        if (memcmp(&got, &a.plan.strategy, sizeof got) != 0) {
            CHECK(!"what was fixed does not bind");
            printf("%s: %s\n", fixed[i], a.name);
        }
        if (strcmp(fixed[i], "tp=8") == 0) {
            CHECK(strstr(a.runner_up, "with nothing fixed DP(ZeRO-2)=16: 15 % faster") != NULL);
        }
    }
    CHECK_INT(dpar_strategy_read(&q.fixed, "pp=99", 5, &q.fixed_fields, NULL), DPAR_OK);
    CHECK_INT(dpar_plan_recommend(&job, &q, &a, &why), DPAR_E_NONE);
}

int main(void)
{
    test_cases();
    test_derecho();
    test_variants();
    { /* warnings: FSDP requested for what fits, too few micro-batches, DDP for what does not fit */
        dpar_model m;
        dpar_planner_desc q;
        memset(&q, 0, sizeof q);
        q.fixed = plain_strategy();
        dpar_model_read(&m, "gpt2-125m", 9, NULL);
        dpar_workload_init(&w, &m, 0, NULL);
        dpar_cluster_read(&c, "1x8:a100-80", 11, NULL);
        dpar_recipe_find(&job.recipe, "zero", NULL);
        job.work = &w;
        job.cluster = &c;
        q.fixed.zero = 3;
        q.fixed_fields = 1u << DPAR_STRATEGY_FIELD_ZERO;
        CHECK_INT(dpar_plan_recommend(&job, &q, &a, NULL), DPAR_OK);
        CHECK((a.warnings & DPAR_WARN_FSDP_NEEDLESS) != 0);
        CHECK((a.warnings & DPAR_WARN_LEARNING_RATE) != 0);
        q.fixed.pp = 4;
        q.fixed.micro_batches = 4;
        q.fixed_fields = 1u << DPAR_STRATEGY_FIELD_PP | 1u << DPAR_STRATEGY_FIELD_MICRO_BATCHES;
        CHECK_INT(dpar_plan_recommend(&job, &q, &a, NULL), DPAR_OK);
        CHECK((a.warnings & DPAR_WARN_FEW_MICRO) != 0);
        dpar_model_read(&m, "llama-7b", 8, NULL);
        dpar_workload_init(&w, &m, 0, NULL);
        q.fixed.zero = 0;
        q.fixed_fields = 1u << DPAR_STRATEGY_FIELD_ZERO;
        CHECK_INT(dpar_plan_recommend(&job, &q, &a, NULL), DPAR_OK);
        CHECK(a.plan.strategy.zero == 0 && (a.warnings & DPAR_WARN_DDP_STATE) == 0);
        q.fixed_fields |= 1u << DPAR_STRATEGY_FIELD_TP | 1u << DPAR_STRATEGY_FIELD_PP;
        q.fixed.pp = 1;
        CHECK_INT(dpar_plan_recommend(&job, &q, &a, NULL), DPAR_E_MEMORY);
        CHECK((a.warnings & DPAR_WARN_DDP_STATE) != 0);
        CHECK(strstr(a.runner_up, "with nothing fixed DP(ZeRO-1)=8") != NULL);
        dpar_cluster_read(&c, "2x8:a100-80", 11, NULL);
        q.fixed.tp = 16;
        q.fixed_fields = 1u << DPAR_STRATEGY_FIELD_TP;
        CHECK_INT(dpar_plan_recommend(&job, &q, &a, NULL), DPAR_OK);
        CHECK((a.warnings & DPAR_WARN_TP_ACROSS) != 0);
        CHECK(strstr(a.name, "TP=16") != NULL);
        q.fixed.micro_batch = 8; /* 2.7 GB of activations per sample and layer: state is sharded */
        q.fixed_fields = 1u << DPAR_STRATEGY_FIELD_MICRO_BATCH;
        CHECK_INT(dpar_plan_recommend(&job, &q, &a, NULL), DPAR_OK);
        CHECK((a.warnings & DPAR_WARN_ACTIVATIONS) != 0);
    }
    test_fixed();
    printf("%d answers as taught, %d as good or better\n", taught, beaten);
    return CHECK_DONE();
}
