/* SPDX-License-Identifier: MIT-0 */
/* plan_speed - measures how many configurations a second the planner prices on one core, each with
 * its time and its memory, for four models and machines.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. bench/plan_speed.c -o build/plan_speed && build/plan_speed
 *
 * It is compared with two other planners: Calculon prices 53.3 configurations a second and core for
 * the same model and GPUs, SimuMax 2.45 (405B) to 10.3 (8B). "x N" is dpar's rate over theirs, so
 * more is better. Both figures were measured on a 2-core machine (see the tables of
 * tests/data/cost) and are constants here: nothing of these programs runs.
 *
 * Then it times the search for the ten best of the same configurations, which skips those that
 * cannot be among them.
 *
 * It takes no arguments. Exit codes: 0 done; 1 dpar refused a model or a machine; 2 arguments. */
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include "dpar_cost.h"

#include "../helpers/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double calculon_rate = 53.3, simumax_rate = 10.3; /* configurations a second */
static dpar_workload work;

/* How many configurations two planners have for the same degrees. */
typedef struct choices {
    int64_t calculon; /* of Calculon */
    int64_t dpar;     /* different strategies of dpar that those are */
} choices;

/* tp, pp, dp: degrees, 1 or more. full: 1 if all activations are recomputed. */
static choices choices_of(int tp, int pp, int dp, int full)
{
    const int many = dp > 1 ? 2 : 1;
    int kinds = 2, offloads = 8; /* attention only or nothing is recomputed */
    int comm = 4;                /* ar, p2p_rs_ag, rs_ag, rs_ag and gather again */
    int nets = many;
    int64_t common;
    choices result;
    if (full) {
        kinds = 1;
        offloads = 4;
        comm = 3;
    }
    if (pp > 1) {
        nets *= 2;
    }
    common = (int64_t)kinds * offloads * many * many;
    if (tp > 1) {
        result.calculon = common * comm * 3 * nets * 2;
        result.dpar = common * 2 * 2;
    } else {
        result.calculon = common * comm * nets;
        result.dpar = common;
    }
    return result;
}

/* Returns how many configurations Calculon's search has for GPT-3 175B (96 heads, 96 blocks, width
 * 12288) on `gpus` A100s with host memory and two networks, by its published rules: 6,582,816 for
 * 512 GPUs and a batch of at most 512. `ours` gets the number of different strategies of dpar that
 * those are. It is smaller because four of Calculon's choices have no counterpart in dpar: the
 * network of each degree (a factor of up to 8), p2p_rs_ag instead of ar, the repeated all-gather of
 * sequence parallelism, and ring instead of pipe (2 x 2 x 1.5 together). */
static int64_t calculon_space(int gpus, int batch, int64_t *ours)
{
    int tp, pp, v, mbs, full;
    int64_t theirs = 0;
    *ours = 0;
    for (tp = 1; tp <= 96; tp++) {
        for (pp = 1; pp <= 96 && pp <= gpus / tp; pp++) {
            const int dp = gpus / tp / pp, most_chunks = pp == 1 ? 1 : 96 / pp;
            if (gpus % (tp * pp) != 0 || 96 % tp != 0 || 12288 % tp != 0 || 96 % pp != 0 ||
                dp > batch) {
                continue;
            }
            for (v = 1; v <= most_chunks; v++) {
                for (mbs = 1; (96 / pp) % v == 0 && mbs <= batch / dp; mbs++) {
                    if (batch / dp % mbs != 0) {
                        continue;
                    }
                    for (full = 0; full < 2; full++) {
                        const choices found = choices_of(tp, pp, dp, full);
                        theirs += found.calculon;
                        *ours += found.dpar;
                    }
                }
            }
        }
    }
    return theirs;
}

/* Ends the program because dpar refused a model, a machine or a query. */
static void refused(const char *model, const char *cluster, const dpar_why *why)
{
    fprintf(stderr, "plan_speed: model '%s' on '%s': %s\n", model, cluster, why->text);
    exit(1);
}

/* Prices a space of strategies twice and prints a paragraph: once all of it, then only what the
 * search for the ten best needs. */
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
        refused(model, cluster, &why);
    }
    job.work = &work;
    job.cluster = &machine;
    memset(&query, 0, sizeof query);
    query.global_batch = batch;
    query.space = space;
    dpar_strategy_init(&query.fixed);
    start = now(); /* query.top is NULL: nothing is kept, so everything is priced */
    if (dpar_planner_init(&planner, &job, &query, &why) < 0) {
        refused(model, cluster, &why);
    }
    while (dpar_planner_run(&planner, 1 << 20, &why) == DPAR_MORE) {
    }
    seconds = now() - start;
    priced = planner.evaluated;
    query.top = top; /* now what cannot be among the ten best is left out */
    query.top_capacity = 10;
    start = now();
    if (dpar_planner_init(&planner, &job, &query, &why) < 0) {
        refused(model, cluster, &why);
    }
    while (dpar_planner_run(&planner, 1 << 20, &why) == DPAR_MORE) {
    }
    searched = now() - start;
    printf("%s on %d GPUs, batch %lld, %s space\n", model,
           (int)(machine.nodes * machine.gpus_per_node), (long long)batch,
           space == DPAR_SPACE_WHOLE ? "whole" : "usual");
    printf(
        "  %lld configurations priced in %.3f s: %.2f M a second (Calculon %.1f: x %.0f; SimuMax "
        "%.1f: x %.0f)\n",
        (long long)priced, seconds, (double)priced / seconds * 1e-6, calculon_rate,
        (double)priced / seconds / calculon_rate, simumax_rate,
        (double)priced / seconds / simumax_rate);
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

int main(int argc, char **argv)
{
    int64_t ours, theirs;
    if (argc > 1) {
        fprintf(stderr, "plan_speed: argument '%s': this program takes no arguments\n", argv[1]);
        return 2;
    }
    theirs = calculon_space(512, 512, &ours);
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
