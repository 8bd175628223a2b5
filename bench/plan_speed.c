/* SPDX-License-Identifier: MIT-0 */
/* plan_speed - configurations a second, time and memory both priced, on one core.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. bench/plan_speed.c -o build/plan_speed && build/plan_speed
 *
 * Peers, recomputed on a 2-core machine (facts of the cost wing): Calculon 53.3 configurations a
 * second and core over the same model and GPUs (6,582,816 configurations in its whole space:
 * tp, pp, dp, interleaving, 3 recomputations, optimizer sharding, 3 TP communications, AG redo, DP
 * and TP overlap, 3 offloads, micro-batch, network tier); SimuMax 2.45 to 10.3. */
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include "dpar.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static dpar_workload work;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void measure(const char *model, const char *cluster, int64_t batch, int32_t space)
{
    static dpar_plan top[10], front[32];
    static dpar_planner p;
    dpar_model m;
    dpar_cluster c;
    dpar_job job;
    dpar_search q;
    dpar_why why;
    double start, seconds;
    int i;
    if (dpar_model_parse(&m, model, strlen(model), &why) < 0 ||
        dpar_workload_build(&work, &m, 0, &why) < 0 ||
        dpar_cluster_parse(&c, cluster, strlen(cluster), &why) < 0 ||
        dpar_recipe_find(&job.recipe, "megatron", &why) < 0) {
        printf("%s\n", why.text);
        return;
    }
    job.work = &work;
    job.cluster = &c;
    memset(&q, 0, sizeof q);
    q.global_batch = batch;
    q.space = space;
    q.fixed = dpar_strategy_default();
    start = now();
    if (dpar_planner_init(&p, &job, &q, top, 10, front, 32, &why) < 0) {
        printf("%s\n", why.text);
        return;
    }
    while (dpar_planner_run(&p, 1 << 20, &why) == DPAR_MORE) {
    }
    seconds = now() - start;
    printf("%s on %d GPUs, batch %lld, %s space\n", model, (int)dpar_cluster_gpus(&c),
           (long long)batch, space == DPAR_SPACE_WHOLE ? "whole" : "usual");
    printf(
        "  %lld configurations priced in %.3f s: %.2f M a second (Calculon 53.3: x %.0f; SimuMax "
        "10.3: x %.0f)\n",
        (long long)p.evaluated, seconds, (double)p.evaluated / seconds * 1e-6,
        (double)p.evaluated / seconds / 53.3, (double)p.evaluated / seconds / 10.3);
    printf("  rejected:");
    for (i = 1; i < DPAR_RULES; i++) {
        if (p.rejected[i] > 0) {
            printf(" %s %lld", dpar_rule_name(i), (long long)p.rejected[i]);
        }
    }
    printf("\n  state %d bytes, whatever the space\n", (int)(sizeof p + sizeof top + sizeof front));
    if (p.tops > 0) {
        char text[256];
        dpar_text t;
        dpar_text_init(&t, text, sizeof text);
        dpar_show_strategy(&t, &top[0].strategy);
        printf("  best: %.3f s, %s\n", top[0].step.total, text);
    }
}

int main(void)
{
    measure("gpt3-175b", "64x8:a100-80", 512, DPAR_SPACE_WHOLE);
    measure("gpt3-175b", "64x8:a100-80", 3072, DPAR_SPACE_WHOLE);
    measure("gpt3-175b", "64x8:a100-80", 512, DPAR_SPACE_USUAL);
    measure("llama-3.1-405b", "12500x8:h100-80", 102400, DPAR_SPACE_USUAL);
    measure("deepseek-v3", "16384x8:h100-80", 131072, DPAR_SPACE_USUAL);
    return 0;
}
