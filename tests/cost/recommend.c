/* SPDX-License-Identifier: MIT-0 */
/* Tests the answers of dpar_plan_recommend to hundreds of queries (models x machines x sizes),
 * against the fastest plan of the same search: at most 5 % slower, or slower by an amount that it
 * reports, and only to avoid tensor parallelism over PCIe. Run with: tests/run test cost. */
#include "dpar_cost.h"

#include "check.h"

static dpar_plan_query asked;
static dpar_planner planner;
static dpar_advice a;
static double worst, sum;
static int asks, slower;

/* Returns the seconds per sample of the fastest usual plan; 0 if there is none. */
static double fastest(const dpar_planner_desc *search, dpar_plan *top)
{
    dpar_planner_desc q = *search;
    dpar_status st;
    q.top = top;
    q.top_capacity = 1;
    st = dpar_planner_init(&planner, &asked.job, &q, NULL);
    while (st == DPAR_OK || st == DPAR_MORE) {
        st = dpar_planner_run(&planner, INT64_MAX, NULL);
    }
    return st == DPAR_DONE ? top->step.total / top->step.samples : 0.0;
}

/* Checks that tensor parallelism over PCIe, or wider than a node, is recommended only if it halves
 * the time or nothing else fits. */
static void check_tensor(int pcie)
{
    dpar_planner_desc q = asked.search;
    const dpar_strategy *s = &a.plan.strategy;
    dpar_plan top;
    double without, seconds = a.plan.step.total / a.plan.step.samples;
    CHECK(s->tp <= asked.cluster.gpus_per_node);
    CHECK_INT(s->etp, 1);
    if (s->tp > 1 && pcie) {
        q.fixed.tp = 1;
        q.fixed_fields |= 1u << DPAR_STRATEGY_FIELD_TP;
        without = fastest(&q, &top);
        CHECK(without <= 0.0 || without > 1.9 * seconds);
        CHECK((a.warnings & DPAR_WARN_TP_ACROSS) != 0);
    }
}

static void ask(const char *model, const char *machine, const char *words)
{
    dpar_why why;
    dpar_plan top;
    double best, ours, excess;
    int pcie = strstr(machine, "pcie") != NULL || strstr(machine, "l40s") != NULL;
    why.text[0] = 0;
    if (dpar_plan_query_read(model, machine, words, &asked, &why) != DPAR_OK) {
        printf("%s on %s: %s\n", model, machine, why.text);
        CHECK(!"the ask was read");
        return;
    }
    best = fastest(&asked.search, &top);
    if (best <= 0.0) {
        return; /* does not fit there */
    }
    CHECK_INT(dpar_plan_recommend(&asked.job, &asked.search, &a, &why), DPAR_OK);
    ours = a.plan.step.total / a.plan.step.samples;
    excess = ours / best - 1.0;
    asks++;
    sum += excess;
    worst = excess > worst ? excess : worst;
    slower += excess > 0.05;
    CHECK(a.plan.fits);
    CHECK_NEAR(a.slower + 1.0, ours / best, 1e-6);
    /* a faster plan is reported, with how much faster it is */
    CHECK((excess > 1e-9) == (strstr(a.fastest, " % faster, ") != NULL));
    CHECK(a.runner_up[0] == 0 || strstr(a.runner_up, " % slower, ") != NULL);
    CHECK(strlen(a.fastest) + 1 < sizeof a.fastest && strlen(a.runner_up) + 1 < sizeof a.runner_up);
    if (excess > 0.05) {
        CHECK(pcie && top.strategy.tp > 1 && a.plan.strategy.tp == 1);
        CHECK(strstr(a.fastest, "over slow links") != NULL);
    }
    check_tensor(pcie);
}

int main(void)
{
    dpar_why why;
    static const char *const model[] = {
        "gpt2-1.5b",    "llama-3.2-1b",   "qwen3-4b",        "mistral-7b", "llama-3-8b",
        "llama-2-13b",  "gemma-2-27b",    "qwen3-32b",       "llama-65b",  "llama-3-70b",
        "mixtral-8x7b", "mixtral-8x22b",  "qwen3-235b-a22b", "gpt3-175b",  "llama-3.1-405b",
        "deepseek-v3",  "transformer-1b", "vit-3.2b",        "t5-11b",     "diffusion-5b",
        "unet-0.25deg", "resnet-50"};
    static const char *const machine[] = {
        "1x4:l40s",      "1x8:a100-40",      "4x4:a100-40,nic=4x25",
        "2x8:a100-80",   "8x8:a100-80-pcie", "1x8:h100-80",
        "4x8:h100-80",   "8x8:h100-80",      "64x8:h100-80",
        "256x8:h100-80", "2x8:b200",         "16x8:mi300x",
        "derecho"};
    size_t i, k;
    for (i = 0; i < sizeof model / sizeof *model; i++) {
        for (k = 0; k < sizeof machine / sizeof *machine; k++) {
            ask(model[i], machine[k], "");
        }
    }
    for (i = 0; i < sizeof machine / sizeof *machine; i++) { /* other sizes and precisions */
        ask("llama-3-8b", machine[i], "seq=32768 precision=fsdp");
        ask("qwen3-4b", machine[i], "batch=0 precision=zero");
        ask("mixtral-8x7b", machine[i], "stack=torch precision=pure-bf16");
    }
    /* one layer, 3 heads, 63 tokens: 8 GPUs can only have a sample each */
    CHECK_INT(dpar_plan_query_read("gpt:layers=1,hidden=63,heads=3,vocab=100,seq=63", "1x8:h100-80",
                                   "batch=1", &asked, &why),
              DPAR_OK);
    CHECK_INT(dpar_plan_recommend(&asked.job, &asked.search, &a, &why), DPAR_E_NONE);
    CHECK_TEXT(why.text,
               "no strategy for 8 GPUs divides a global batch of 1 and fits; with another batch "
               "one does");
    CHECK(asks >= 200);
    CHECK(worst <= 1.0 && sum / asks <= 0.01);
    printf("%d asks: %.2f %% slower than the fastest on average, %.1f %% at worst, %d above 5 %%\n",
           asks, 100.0 * sum / asks, 100.0 * worst, slower);
    return CHECK_DONE();
}
