/* SPDX-License-Identifier: MIT-0 */
/* plan_speed - configurations a second, time and memory both priced, on one core.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. bench/plan_speed.c -o build/plan_speed && build/plan_speed
 *
 * Peers, recomputed on a 2-core machine (noted with the tables of tests/data/cost): Calculon 53.3
 * configurations a second and core over the same model and GPUs; SimuMax 2.45 (405B) to 10.3 (8B).
 * They are fixed figures: nothing of the peers runs here. */
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include "dpar_cost.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static dpar_workload work;

static double now(void)
{
    struct timespec stamp;
    clock_gettime(CLOCK_MONOTONIC, &stamp);
    return (double)stamp.tv_sec + 1e-9 * (double)stamp.tv_nsec;
}

/* How many configurations Calculon's search has for GPT-3 175B (96 heads, 96 blocks, width 12288)
 * on `gpus` A100s with host memory and two networks, by its published rules: 6,582,816 for 512 GPUs
 * and a batch of at most 512. `ours` gets how many different strategies of dpar those are: its
 * choice of network for each degree (up to 8), p2p_rs_ag beside ar, the repeated all-gather of SP
 * and ring beside pipe have no counterpart (2 x 2 x 1.5 at most); all the others are in our walk.
 */
static int64_t calculon_space(int gpus, int batch, int64_t *ours)
{
    int tp, pp, v, mbs, full;
    int64_t theirs = 0;
    *ours = 0;
    for (tp = 1; tp <= 96; tp++) {
        for (pp = 1; pp <= 96 && pp <= gpus / tp; pp++) {
            int dp = gpus / tp / pp, many = dp > 1 ? 2 : 1;
            if (gpus % (tp * pp) != 0 || 96 % tp != 0 || 12288 % tp != 0 || 96 % pp != 0 ||
                dp > batch) {
                continue;
            }
            for (v = 1; v <= (pp == 1 ? 1 : 96 / pp); v++) {
                for (mbs = 1; (96 / pp) % v == 0 && mbs <= batch / dp; mbs++) {
                    if (batch / dp % mbs != 0) {
                        continue;
                    }
                    for (full = 0; full < 2; full++) { /* full recompute; attention only or none */
                        int kinds = full ? 1 : 2, offloads = full ? 4 : 8;
                        int comm = full ? 3 : 4; /* ar, p2p_rs_ag, rs_ag, rs_ag and gather again */
                        int nets = (tp > 1 ? 2 : 1) * (pp > 1 ? 2 : 1) * many;
                        int64_t common = (int64_t)kinds * offloads * many * many;
                        theirs += common * comm * (tp > 1 ? 3 : 1) * nets;
                        *ours += common * (tp > 1 ? 2 * 2 : 1);
                    }
                }
            }
        }
    }
    return theirs;
}

static void measure(const char *model, const char *cluster, int64_t batch, int32_t space)
{
    static dpar_plan top[10];
    static dpar_planner planner;
    dpar_model parsed;
    dpar_cluster machine;
    dpar_job job;
    dpar_planner_desc query;
    dpar_why why;
    double start, seconds, searched;
    int64_t priced;
    int i;
    if (dpar_model_read(&parsed, model, strlen(model), &why) < 0 ||
        dpar_workload_init(&work, &parsed, 0, &why) < 0 ||
        dpar_cluster_read(&machine, cluster, strlen(cluster), &why) < 0 ||
        dpar_recipe_find(&job.recipe, "megatron", &why) < 0) {
        printf("%s\n", why.text);
        return;
    }
    job.work = &work;
    job.cluster = &machine;
    memset(&query, 0, sizeof query);
    query.global_batch = batch;
    query.space = space;
    dpar_strategy_init(&query.fixed);
    start = now(); /* nothing is kept: everything is priced */
    if (dpar_planner_init(&planner, &job, &query, &why) < 0) {
        printf("%s\n", why.text);
        return;
    }
    while (dpar_planner_run(&planner, 1 << 20, &why) == DPAR_MORE) {
    }
    seconds = now() - start;
    priced = planner.evaluated;
    query.top = top; /* the search: what cannot be kept is left out */
    query.top_capacity = 10;
    start = now();
    if (dpar_planner_init(&planner, &job, &query, &why) < 0) {
        return;
    }
    while (dpar_planner_run(&planner, 1 << 20, &why) == DPAR_MORE) {
    }
    searched = now() - start;
    printf("%s on %d GPUs, batch %lld, %s space\n", model,
           (int)(machine.nodes * machine.gpus_per_node), (long long)batch,
           space == DPAR_SPACE_WHOLE ? "whole" : "usual");
    printf(
        "  %lld configurations priced in %.3f s: %.2f M a second (Calculon 53.3: x %.0f; SimuMax "
        "10.3: x %.0f)\n",
        (long long)priced, seconds, (double)priced / seconds * 1e-6,
        (double)priced / seconds / 53.3, (double)priced / seconds / 10.3);
    printf("  rejected:");
    for (i = 1; i < DPAR_STRATEGY_RULE_COUNT; i++) {
        if (planner.rejected[i] > 0) {
            printf(" %s %lld", dpar_strategy_rule_name(i), (long long)planner.rejected[i]);
        }
    }
    printf("\n  the ten best of them in %.3f s: %lld priced, %lld left out by their bounds\n",
           searched, (long long)planner.evaluated, (long long)planner.cut);
    printf("  state %d bytes, whatever the space\n", (int)(sizeof planner + sizeof top));
    if (planner.top_count > 0) {
        char text[256];
        dpar_text written;
        dpar_text_init(&written, text, sizeof text);
        dpar_strategy_write(&top[0].strategy, &written);
        printf("  best: %.3f s, %s\n", top[0].step.total, text);
    }
}

int main(void)
{
    int64_t ours, theirs = calculon_space(512, 512, &ours);
    printf(
        "Calculon's whole space, GPT-3 175B on 512 GPUs, batch at most 512: %lld configurations, "
        "%lld strategies here\n",
        (long long)theirs, (long long)ours);
    measure("gpt3-175b", "64x8:a100-80,host=1000", 512, DPAR_SPACE_WHOLE);
    measure("gpt3-175b", "64x8:a100-80", 512, DPAR_SPACE_USUAL);
    measure("llama-3.1-405b", "12500x8:h100-80", 100000, DPAR_SPACE_USUAL);
    measure("deepseek-v3", "16384x8:h100-80", 131072, DPAR_SPACE_USUAL);
    return 0;
}
