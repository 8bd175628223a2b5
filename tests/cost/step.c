/* SPDX-License-Identifier: MIT-0 */
/* Tests times: seconds of published steps under the software that ran them, without rows that
 * calibrate; and the generations of software. bench/accuracy prints all tables. Run with:
 * tests/run test cost. */
#include "../../helpers/memory_rows.h"

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
    {"nanotron", "", 0.09, 0, 0},         {"megatron-bridge", "LLAMA3_70B", 0.06, 0, 0},
    {"nemo-long", " h100", 0.03, 0, 0},   {"nemo-long", " b200", 0.16, 0, 0}};

static dpar_step_cost step_of(const memory_row *r, double *flops)
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
    return plan.step;
}

static double seconds_of(const memory_row *r, double *flops)
{
    return step_of(r, flops).total;
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

static dpar_step_cost step_priced(const char *model, const char *machine, const char *strategy)
{
    memory_row r = run_of(model, machine, "megatron", strategy);
    double flops;
    return step_of(&r, &flops);
}

/* Checks that the libraries of 2023 were slow on Hopper but not on Ampere. */
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
    CHECK_INT(w.stack, DPAR_MODEL_STACK_TORCH);
    CHECK_INT(w.stack_version, DPAR_MODEL_STACK_LLM_FOUNDRY);
}

/* Checks that a year selects a generation, and that a year without runs is reported. */
static void test_years(void)
{
    static const struct {
        const char *said, *priced;
        int note;
    } row[] = {{"core@2024", "nemo@2024", 0},
               {"core@2023", "nemo@2024", 1},
               {"core@2022", "nemo@2024", 1},

               {"core@2025", "core", 0},
               {"core@2026", "core", 0},
               {"core@2031", "core", 1},
               {"nemo@2025", "nemo", 0},
               {"nemo@2024", "nemo@2024", 0},
               {"megatron@2022", "megatron", 0},
               {"megatron@2019", "megatron@2021", 1},
               {"megatron@2024", "megatron", 1},
               {"torch@2023", "llm-foundry", 0},
               {"torch@2021", "llm-foundry", 1},
               {"torch@2025", "torch", 0},
               {"compiled@2023", "compiled", 1},
               {"torchtitan@2025", "torchtitan", 0},
               {"nanotron@2023", "nanotron", 1},
               {"deepep@2025", "deepep", 0},
               {"maxtext@2024", "maxtext", 0}};
    size_t i;
    for (i = 0; i < sizeof row / sizeof row[0]; i++) {
        char text[80];
        dpar_model m;
        snprintf(text, sizeof text, "llama-3-8b,stack=%s", row[i].said);
        CHECK_INT(dpar_model_read(&m, text, strlen(text), NULL), DPAR_OK);
        CHECK_TEXT(dpari_stack_name(m.stack), row[i].priced);
        CHECK_INT(strstr(m.note, "no published run of that year") != NULL, row[i].note);
    }
    CHECK(priced("llama-3-8b,stack=core@2024", "1x8:h100-80", "megatron", "dp=8,zero=1") >
          1.1 * priced("llama-3-8b,stack=core", "1x8:h100-80", "megatron", "dp=8,zero=1"));
    CHECK(priced("gpt3-175b,stack=megatron@2021", "8x8:a100-80", "fp16", "tp=8,pp=8,mbs=1,m=8") >
          priced("gpt3-175b,stack=megatron", "8x8:a100-80", "fp16", "tp=8,pp=8,mbs=1,m=8"));
}

/* Checks nanotron, which cuts stages by work: a head worth four blocks leaves ten and six of
 * sixteen. */
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
    CHECK(uneven.memory.term[DPAR_MEMORY_ACTIVATIONS] >
          1.2 * even.memory.term[DPAR_MEMORY_ACTIVATIONS]); /* 10 instead of 8 blocks */
    CHECK(uneven.memory.term[DPAR_MEMORY_ACTIVATIONS] <
          1.3 * even.memory.term[DPAR_MEMORY_ACTIVATIONS]);
}

/* Checks nanotron's ZeRO-1, which sums whole gradients (its trainer requests no reduce-scatter) and
 * makes a call for each rank's slice of each tensor: twice per step, 8 blocks of 6 tensors by 128
 * ranks (norms, attention's two products, the MLP's two). There the host takes all of the time. */
static void test_slices(void)
{
    const char *const text = "llama:layers=8,hidden=1024,heads=8,ffn=4096,vocab=32,seq=4096,";
    static dpar_workload work;
    static dpar_cluster machine;
    char torch[160], nanotron[160];
    dpar_step_cost t, n;
    dpar_model m;
    dpar_cluster_group g;
    dpar_collective_cost all, part;
    dpar_calibration cal;
    dpar_calibration_init(&cal, DPAR_GEN_HOPPER);
    snprintf(torch, sizeof torch, "%sstack=torch", text);
    snprintf(nanotron, sizeof nanotron, "%sstack=nanotron", text);
    CHECK_INT(dpar_model_read(&m, torch, strlen(torch), NULL), DPAR_OK);
    CHECK_INT(dpar_workload_init(&work, &m, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_cluster_read(&machine, "16x8:h100-80", 12, NULL), DPAR_OK);
    dpar_cluster_group_init(&g, &machine, 128, 1);
    dpar_collective_predict(&machine, &g, DPAR_CALL_ALL_REDUCE, 4.0 * work.params, &all);
    dpar_collective_predict(&machine, &g, DPAR_CALL_REDUCE_SCATTER, 4.0 * work.params, &part);
    t = step_priced(torch, "16x8:h100-80", "dp=128,zero=1,mbs=1,overlap=tp");
    n = step_priced(nanotron, "16x8:h100-80", "dp=128,zero=1,mbs=1,overlap=tp");
    CHECK_NEAR(n.term[DPAR_TIME_DP] - t.term[DPAR_TIME_DP],
               2.0 * 8 * 6 * 128 * cal.value[DPAR_CAL_LAUNCH_S] + all.seconds - part.seconds, 1e-9);
    t = step_priced(torch, "16x8:h100-80", "dp=128,zero=0,mbs=1,overlap=tp");
    n = step_priced(nanotron, "16x8:h100-80", "dp=128,zero=0,mbs=1,overlap=tp");
    CHECK_NEAR(n.term[DPAR_TIME_DP], t.term[DPAR_TIME_DP], 1e-9);
    CHECK_NEAR(n.term[DPAR_TIME_DP], all.seconds, 1e-9);
}

/* Checks products in 8 bits: the head stays in 16 bits, and operands are cast. A model that is only
 * a head gains nothing; one with a small head gains less than half. */
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

/* Compares with ring-flash-attention's zigzag (2024): 8 ranks of 8192 tokens, 32 heads of 128 over
 * 8; forward and backward take 1/17.4 s where 8 of one kernel would take 8/154.7 (H800), 1/10.6 and
 * 8/94.7 (A100). */
static void test_ring_published(void)
{
    const char *const model = "llama-3-8b,layers=1,vocab=32,seq=65536,stack=torch";
    const char *const how = "cp=8,zero=0,mbs=1,cp_kind=ring";
    CHECK_NEAR(step_priced(model, "1x8:h800", how).term[DPAR_TIME_CP], 1 / 17.4 - 8 / 154.7, 0.2);
    CHECK_NEAR(step_priced(model, "1x8:a100-80", how).term[DPAR_TIME_CP], 1 / 10.6 - 8 / 94.7, 0.2);
}

/* Checks that a ring's losses grow with the tokens per rank, and attention with their square. With
 * TransformerEngine one piece fills the other's last wave. */
static void test_ring(void)
{
    const char *const at = "1x8:h100-80", *const ring = "cp=8,zero=1,mbs=1,cp_kind=ring";
    const char *const ulysses = "cp=8,zero=1,mbs=1,cp_kind=ulysses";
    const double near = priced("llama-3-8b,seq=32768,stack=torch", at, "megatron", ring) /
                        priced("llama-3-8b,seq=32768,stack=torch", at, "megatron", ulysses);
    const double far = priced("llama-3-8b,seq=1048576,stack=torch", at, "megatron", ring) /
                       priced("llama-3-8b,seq=1048576,stack=torch", at, "megatron", ulysses);
    const dpar_step_cost core = step_priced("llama-3-8b,seq=131072,stack=core", at, ring);
    const dpar_step_cost whole = step_priced("llama-3-8b,seq=131072,stack=core", at, ulysses);
    CHECK(near > 1.05 && near < 1.3 && far > 0.99 && far < 1.02);
    CHECK(core.term[DPAR_TIME_FORWARD] < 0.97 * whole.term[DPAR_TIME_FORWARD]);
}

/* Checks Ulysses over two nodes: half of each of the eight exchanges of queries, keys, values and
 * outputs crosses. On one node none does, and it is faster. */
static void test_ulysses_across(void)
{
    const char *const model = "llama-3-8b,layers=1,vocab=32,seq=65536";
    const dpar_step_cost two =
        step_priced(model, "2x8:h100-80,nic=8x50", "cp=16,zero=0,mbs=1,cp_kind=ulysses");
    const dpar_step_cost one =
        step_priced(model, "1x16:h100-80", "cp=16,zero=0,mbs=1,cp_kind=ulysses");
    const double bytes = 65536.0 / 16 * (2 * 4096 + 2 * 1024) * 2; /* per rank, 2 per element */
    const double weights = two.nic_bytes - 8 * bytes / 4 * 8 / 16;
    CHECK_NEAR(weights,
               step_priced(model, "2x8:h100-80,nic=8x50", "cp=1,dp=16,zero=0,mbs=1,recompute=none")
                   .nic_bytes,
               1.0); /* gradients: the same over dp */
    CHECK(one.nic_bytes == 0.0);
    CHECK(two.term[DPAR_TIME_CP] > 2.0 * one.term[DPAR_TIME_CP]);
}

/* Checks that a loss which is not compiled with the layers reads its logits again and again. */
static void test_loss(void)
{
    const char *const head = "llama:layers=1,hidden=1024,heads=8,ffn=1024,vocab=1048576,seq=4096,";
    char eager[160], fused[160];
    snprintf(eager, sizeof eager, "%sstack=torchtitan,loss=eager", head);
    snprintf(fused, sizeof fused, "%sstack=torchtitan", head);
    CHECK(priced(eager, "1x8:h100-80", "fsdp", "dp=8,zero=1,mbs=1") >
          1.1 * priced(fused, "1x8:h100-80", "fsdp", "dp=8,zero=1,mbs=1"));
}

static double reached(double n, int k)
{
    return n * (1.0 - pow(1.0 - 1.0 / n, k));
}

/* Checks messages of routed experts that overlap the shared ones of their layer: they hide at most
 * the time of these. */
static void test_shared(void)
{
    const char *const model = "llama:layers=8,hidden=4096,heads=32,ffn=4096,vocab=32000,seq=4096,"
                              "experts=64,topk=8,expert_ffn=1024,shared_ffn=";
    const char *const at = "4x8:h100-80", *const how = "dp=32,zero=1,ep=32,mbs=1,m=8,overlap=";
    char plain[80], shared[80], none[200], some[200];
    double gain;
    snprintf(plain, sizeof plain, "%sdp", how);
    snprintf(shared, sizeof shared, "%sdp+shared", how);
    snprintf(none, sizeof none, "%s0", model);
    snprintf(some, sizeof some, "%s2048", model);
    CHECK_NEAR(step_priced(none, at, plain).total, step_priced(none, at, shared).total, 1e-12);
    gain = step_priced(some, at, plain).term[DPAR_TIME_EP] -
           step_priced(some, at, shared).term[DPAR_TIME_EP];
    CHECK(gain > 0.0);
    CHECK(gain < step_priced(some, at, plain).total - step_priced(none, at, plain).total);
}

/* Checks experts across nodes: sent once per node where the code does that, or behind another
 * micro-batch. */
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
    /* in one node a token crosses nothing; 8-bit dispatch is the only difference */
    CHECK_NEAR(priced(deep, "1x8:h100-80", "megatron", "dp=8,ep=8,mbs=1,overlap=dp"),
               priced(core, "1x8:h100-80", "megatron", "dp=8,ep=8,mbs=1,overlap=dp"), 1e-12);
    /* experts in 4 of 8 groups: of 8 copies to 32 ranks on 4 nodes, 3.6 of 4 nodes without (4 (1 -
     * .75^8)); with it 2.73 (4 (1 - .75^4)) nodes hold the groups and 2.7 are reached */
    {
        const double bytes = 4096.0 * 8 * 4096 * 2 * (24.0 / 32) * 8 * 4;
        char limited[200];
        dpar_step_cost all, some;
        snprintf(limited, sizeof limited, "%s,expert_groups=8,topk_groups=4", deep);
        all = step_priced(deep, at, plain);
        some = step_priced(limited, at, plain);
        CHECK_NEAR((all.nic_bytes - some.nic_bytes) / 8,
                   bytes * (reached(4, 8) - reached(reached(4, 4), 8)) / 8, 1e-9);
        CHECK_NEAR(step_priced(core, at, plain).nic_bytes - all.nic_bytes,
                   8 * bytes * (1 - reached(4, 8) / 8), 1e-9);
    }
    /* DeepSeek-V3 (arXiv 2412.19437): 180,000 hours of 2048 H800 a trillion tokens; norms and the
     * experts' activation are recomputed; real routing, the fullest expert 1.2 times the mean */
    CHECK_NEAR(4096.0 * 15360.0 / 2048.0 /
                   priced("deepseek-v3,stack=deepep,capacity=1.2", "256x8:h800,nic=8x50", "fp8",
                          "pp=16,schedule=dualpipe,ep=64,dp=128,zero=1,mbs=1,m=120,"
                          "recompute=norm+activation"),
               1e12 / (180e3 * 3600.0), 0.15);
    dpar_strategy_init(&s);
    CHECK_INT(dpar_strategy_read(&s, "overlap=dp+shared", 17, NULL, NULL), DPAR_OK);
    CHECK_INT(s.overlap, DPAR_OVERLAP_DP | DPAR_OVERLAP_SHARED);
    dpar_text_init(&t, text, sizeof text);
    dpar_strategy_write(&s, &t);
    CHECK(strstr(text, "overlap=dp+shared") != NULL);
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
    test_years();
    test_by_work();
    test_slices();
    test_narrow();
    test_ring_published();
    test_ring();
    test_ulysses_across();
    test_loss();
    test_shared();
    test_experts();
    return CHECK_DONE();
}
