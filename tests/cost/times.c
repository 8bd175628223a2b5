/* SPDX-License-Identifier: MIT-0 */
/* times: seconds of published steps under the software that ran them, rows that calibrate apart;
 * and what the generations of software are. bench/accuracy prints all tables. */
#include "memory_rows.h"

#include "check.h"
#include "plan_calls.h"

typedef struct judged {
    const char *table, *part;
    double bar; /* mean absolute error */
    int rows;
    double sum;
} judged;

static judged tables[] = {
    {"dgxc", " BF16 ", 0.02, 0, 0},       {"dgxc", " FP8 ", 0.05, 0, 0},
    {"llm-foundry-h100", "", 0.05, 0, 0}, {"torchtitan", "70B", 0.04, 0, 0},
    {"nanotron", "", 0.14, 0, 0},         {"megatron-bridge", "LLAMA3_70B", 0.06, 0, 0}};

static double seconds_of(const memory_row *r, double *flops)
{
    static dpar_workload w;
    dpar_cluster c;
    dpar_model m;
    dpar_job job;
    dpar_strategy s;
    dpar_plan plan;
    dpar_why why;
    dpar_strategy_init(&s);
    job.work = &w;
    job.cluster = &c;
    CHECK_INT(dpar_model_read(&m, r->model, strlen(r->model), &why), DPAR_OK);
    CHECK_INT(dpar_workload_init(&w, &m, 0, &why), DPAR_OK);
    CHECK_INT(dpar_cluster_read(&c, r->machine, strlen(r->machine), &why), DPAR_OK);
    CHECK_INT(dpar_recipe_find(&job.recipe, r->recipe, &why), DPAR_OK);
    CHECK_INT(dpar_strategy_read(&s, r->strategy, strlen(r->strategy), NULL, &why), DPAR_OK);
    (void)dpar_plan_price(&job, &s, 0, &plan, NULL, &why);
    *flops = w.model_flops_full * s.micro_batch * s.micro_batches * s.dp;
    return plan.step.total;
}

static void judge(const memory_row *r, void *context)
{
    size_t i;
    (void)context;
    for (i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        judged *t = &tables[i];
        if (strcmp(t->table, r->table) == 0 && strstr(r->name, t->part) != NULL && !r->calibrates &&
            (r->seconds > 0.0 || r->flops > 0.0)) {
            double flops, predicted = seconds_of(r, &flops);
            t->sum += fabs(predicted / (r->seconds > 0.0 ? r->seconds : flops / r->flops) - 1.0);
            t->rows++;
        }
    }
}

static void test_published(void)
{
    size_t i;
    memory_rows("tests/data/cost", judge, NULL);
    for (i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        printf("%-18s %-10s %3d rows %5.1f %%\n", tables[i].table, tables[i].part, tables[i].rows,
               100.0 * tables[i].sum / tables[i].rows);
        CHECK(tables[i].rows > 5 && tables[i].sum / tables[i].rows <= tables[i].bar);
    }
}

static memory_row run_of(const char *model, const char *machine, const char *recipe,
                         const char *strategy)
{
    memory_row r = memory_begin("", "");
    snprintf(r.model, sizeof r.model, "%s", model);
    snprintf(r.machine, sizeof r.machine, "%s", machine);
    snprintf(r.recipe, sizeof r.recipe, "%s", recipe);
    snprintf(r.strategy, sizeof r.strategy, "%s", strategy);
    return r;
}

static double priced(const char *model, const char *machine, const char *recipe,
                     const char *strategy)
{
    memory_row r = run_of(model, machine, recipe, strategy);
    double flops;
    return seconds_of(&r, &flops);
}

/* The libraries of 2023 were not at home on Hopper; on Ampere they were. */
static void test_ages(void)
{
    static dpar_workload w;
    dpar_model m;
    dpar_why why;
    const char *fsdp = "dp=8,zero=3,mbs=4";
    CHECK(priced("llama-3-8b,stack=llm-foundry", "1x8:h100-80", "fsdp", fsdp) >
          1.03 * priced("llama-3-8b,stack=torch", "1x8:h100-80", "fsdp", fsdp));
    CHECK(priced("llama-3-8b,stack=llm-foundry", "1x8:a100-80", "fsdp", fsdp) <
          priced("llama-3-8b,stack=torch", "1x8:a100-80", "fsdp", fsdp)); /* FSDP2's copies */
    CHECK_NEAR(priced("llama-3-8b,stack=nemo", "1x8:h100-80", "megatron", "dp=8,zero=1"),
               priced("llama-3-8b,stack=core", "1x8:h100-80", "megatron", "dp=8,zero=1"), 1e-12);
    CHECK_INT(dpar_model_read(&m, "mpt-7b", 6, &why), DPAR_OK);
    CHECK_INT(dpar_workload_init(&w, &m, 0, &why), DPAR_OK);
    CHECK_INT(w.stack, DPAR_STACK_TORCH);
    CHECK_INT(w.age, DPAR_STACK_FOUNDRY);
}

/* nanotron cuts stages by work: a head of four blocks leaves ten and six of sixteen. */
static void test_by_work(void)
{
    const char *const model = "llama:layers=16,hidden=2048,heads=32,ffn=8192,tied=1,vocab=131072,"
                              "seq=4096,stack=";
    char text[160];
    memory_row r;
    memory_said even, uneven;
    snprintf(text, sizeof text, "%storch", model);
    r = run_of(text, "1x8:h100-80", "megatron", "dp=4,pp=2,mbs=1,m=8,zero=1");
    r.rank = 0;
    even = memory_say(&r);
    snprintf(r.model, sizeof r.model, "%snanotron", model);
    uneven = memory_say(&r);
    CHECK(uneven.memory.term[DPAR_MEM_ACTIVATIONS] >
          1.2 * even.memory.term[DPAR_MEM_ACTIVATIONS]); /* 10 of 8 blocks */
    CHECK(uneven.memory.term[DPAR_MEM_ACTIVATIONS] < 1.3 * even.memory.term[DPAR_MEM_ACTIVATIONS]);
}

/* Products in 8 bits: the head stays in 16, operands are cast. A model that is all head gains
 * nothing; one without much of it gains less than half. */
static void test_narrow(void)
{
    const char *const head = "llama:layers=1,hidden=1024,heads=8,ffn=1024,vocab=1048576,seq=4096";
    const char *const deep = "llama:layers=64,hidden=8192,heads=64,ffn=28672,vocab=1024,seq=4096";
    const char *const at = "1x8:h100-80", *const how = "dp=8,zero=1,mbs=1";
    CHECK(priced(head, at, "fp8", how) > 0.9 * priced(head, at, "bf16-grad16", how));
    CHECK(priced(deep, at, "fp8", how) > 0.55 * priced(deep, at, "bf16-grad16", how));
    CHECK(priced(deep, at, "fp8", how) < 0.75 * priced(deep, at, "bf16-grad16", how));
    CHECK(priced(deep, at, "fsdp-fp8", how) > priced(deep, at, "fp8", how));
}

/* A ring's attention goes by pieces, Ulysses' does not. */
static void test_ring(void)
{
    const char *const model = "llama-3-8b,seq=131072", *const at = "1x8:h100-80";
    const double ring = priced(model, at, "megatron", "cp=8,zero=1,mbs=1,cp_kind=ring");
    const double ulysses = priced(model, at, "megatron", "cp=8,zero=1,mbs=1,cp_kind=ulysses");
    CHECK(ring > 1.04 * ulysses && ring < 1.3 * ulysses);
}

/* Experts across nodes: sent once a node where the code does so, or behind another micro-batch. */
static void test_experts(void)
{
    const char *const model = "llama:layers=8,hidden=4096,heads=32,ffn=4096,vocab=32000,seq=4096,"
                              "experts=64,topk=8,expert_ffn=1024,stack=";
    const char *const at = "4x8:h100-80", *const how = "dp=32,zero=1,ep=32,mbs=1,m=8,overlap=";
    char core[160], deep[160], plain[80], hidden[80];
    dpar_strategy s;
    dpar_text t;
    char text[200];
    snprintf(core, sizeof core, "%score", model);
    snprintf(deep, sizeof deep, "%sdeepep", model);
    snprintf(plain, sizeof plain, "%sdp", how);
    snprintf(hidden, sizeof hidden, "%sdp+ep", how);
    CHECK(priced(deep, at, "megatron", plain) < 0.9 * priced(core, at, "megatron", plain));
    CHECK(priced(core, at, "megatron", hidden) < 0.9 * priced(core, at, "megatron", plain));
    CHECK(priced(deep, at, "megatron", hidden) < priced(deep, at, "megatron", plain));
    CHECK(priced(deep, at, "fp8", plain) < 0.99 * priced(core, at, "fp8", plain));
    /* in one node a token crosses nothing; 8-bit dispatch is all the difference */
    CHECK_NEAR(priced(deep, "1x8:h100-80", "megatron", "dp=8,ep=8,mbs=1,overlap=dp"),
               priced(core, "1x8:h100-80", "megatron", "dp=8,ep=8,mbs=1,overlap=dp"), 1e-12);
    /* DeepSeek-V3 (arXiv 2412.19437): 180,000 hours of 2048 H800 a trillion tokens */
    CHECK_NEAR(4096.0 * 15360.0 / 2048.0 /
                   priced("deepseek-v3,stack=deepep", "256x8:h800,nic=8x50", "fp8",
                          "pp=16,schedule=dualpipe,ep=64,dp=128,zero=1,mbs=1,m=120"),
               1e12 / (180e3 * 3600.0), 0.15);
    dpar_strategy_init(&s);
    CHECK_INT(dpar_strategy_read(&s, "overlap=dp+ep", 13, NULL, NULL), DPAR_OK);
    CHECK_INT(s.overlap, DPAR_OVERLAP_DP | DPAR_OVERLAP_EP);
    dpar_text_init(&t, text, sizeof text);
    dpar_strategy_write(&s, &t);
    CHECK(strstr(text, "overlap=dp+ep") != NULL);
}

int main(void)
{
    test_published();
    test_ages();
    test_by_work();
    test_narrow();
    test_ring();
    test_experts();
    return CHECK_DONE();
}
