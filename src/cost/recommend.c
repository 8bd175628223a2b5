/* SPDX-License-Identifier: MIT-0 */
/* Chooses the plan to recommend. A search of the usual space keeps the fastest plan of each kind
 * (plan_kinds.h). Of the kinds that are nearly as fast as the fastest one, it takes the simplest.
 * The rest of the file puts the result into words. */
#include "recommend.h"

#include "../base/base_private.h"
#include "../base/text.h"
#include "plan_kinds.h"
#include "price.h"
#include "terms.h"

/* ---- what the job needs ---------------------------------------------------------------------- */

/* The numbers that decide what fits. */
typedef struct dpari_need {
    double state;       /* bytes of weights, gradients and optimizer of one replica */
    double activations; /* bytes of the activations of one sample, not divided and not recomputed */
    double gpu;         /* bytes of a GPU that a program can use: 90 % of its memory */
    int32_t gpus, node; /* number of all GPUs, and of the GPUs of one node */
    int32_t tp;         /* the widest tensor parallelism in a node, or the fixed one */
} dpari_need;

enum { DPARI_NAME = sizeof(((dpar_advice *)0)->name) };
/* Sequence parallelism is part of the name from this number of tokens on, because without it such
 * sequences do not fit. */
static const double dpari_medium_sequence = 16384.0;
/* The recommended plan is at most this much slower than the fastest. Within that limit each unit of
 * dpari_kind_weight counts as 1.6 % of the time. A kind of parallelism has three units, which
 * nearly reaches the limit, because with fewer kinds fewer things can go wrong. */
static const double dpari_near_best = 1.05;
static const double dpari_kind_unit = 0.016;
/* Tensor parallelism over slow links is only recommended if everything else takes twice as long. */
static const double dpari_poor_pays = 2.0;
/* A simpler plan is mentioned up to this ratio of times. */
static const double dpari_worth_saying = 1.6;

/* Computes what the job needs on one GPU, and the tensor parallelism that a node allows. */
static DPARI_COLD dpari_need dpari_need_of(const dpar_job *job, const dpar_planner_desc *search)
{
    const dpar_workload *work = job->work;
    dpari_need n;
    int32_t i;
    dpari_zero(&n, sizeof(n));
    n.state = work->trains ? dpari_zero_bytes(&job->recipe, work->params, 0, 1)
                           : work->params * job->recipe.weight;
    for (i = 0; i < work->layers; i++) {
        n.activations += dpari_layer_saved(work, i, DPAR_RECOMPUTE_NONE) * work->layer[i].tokens *
                         work->layer[i].count;
    }
    n.gpu = 0.9 * job->cluster->gpu.memory_bytes;
    n.node = job->cluster->gpus_per_node;
    n.gpus = dpari_cluster_gpus(job->cluster);
    n.tp = work->heads > 0 ? n.node : 1;
    while (n.tp > 1 &&
           (n.node % n.tp != 0 || work->heads % n.tp != 0 || work->hidden % n.tp != 0)) {
        n.tp--;
    }
    if (dpari_fixed(search, DPAR_STRATEGY_FIELD_TP)) {
        n.tp = search->fixed.tp;
    }
    return n;
}

/* ---- kinds ----------------------------------------------------------------------------------- */

/* Returns the weight of a plan: three for each kind of parallelism, one for each option. Sharded
 * optimizer state counts as a kind of parallelism with plain DDP, but with tp or pp it is only a
 * setting of the software and counts nothing. */
static int32_t dpari_kind_weight(int32_t bits)
{
    static const int8_t weight[9] = {3, 3, 3, 1, 1, 3, 3, 1, 2}; /* by the bits of DPARI_KIND_* */
    int32_t i, sum = 0;
    for (i = 0; i < 9; i++) {
        sum += bits >> i & 1 ? weight[i] : 0;
    }
    if (bits & (DPARI_KIND_TP | DPARI_KIND_PP) && bits & DPARI_KIND_SHARDS) {
        sum -= 3;
    }
    return sum;
}

/* Walks all usual plans and keeps the best of each kind. */
DPARI_STATIC_NOINLINE DPARI_COLD dpar_status dpari_kinds_find(const dpar_job *job,
                                                              const dpar_planner_desc *search,
                                                              dpari_kinds *kinds, dpar_why *why)
{
    dpar_planner p;
    dpar_plan top;
    dpar_planner_desc q = *search;
    dpar_status st;
    kinds->n = 0;
    q.space = DPAR_SPACE_USUAL;
    q.top = &top;
    q.top_capacity = 1;
    q.front = NULL;
    st = dpar_planner_init(&p, job, &q, why);
    p.kinds = kinds;
    p.slack = dpari_worth_saying;
    while (st == DPAR_OK || st == DPAR_MORE) {
        st = dpar_planner_run(&p, INT64_MAX, why);
    }
    return st == DPAR_DONE ? DPAR_OK : st;
}

/* Returns the fastest kind that has none of the bits `without`, or NULL. */
static const dpari_kind *dpari_kind_fastest(const dpari_kinds *kinds, int32_t without)
{
    const dpari_kind *best = NULL;
    int32_t i;
    for (i = 0; i < kinds->n; i++) {
        const dpari_kind *x = &kinds->of[i];
        if ((x->bits & without) == 0 && (best == NULL || x->seconds < best->seconds)) {
            best = x;
        }
    }
    return best;
}

/* Chooses the plan to recommend. Of the plans that are nearly as fast as the fastest, it is the one
 * with the least time after the penalty for its kind. Poor kinds are considered only if all others
 * take twice as long. */
static const dpari_kind *dpari_kind_choose(const dpari_kinds *kinds)
{
    const dpari_kind *best = dpari_kind_fastest(kinds, DPARI_KIND_POOR), *chosen = NULL;
    const dpari_kind *any = dpari_kind_fastest(kinds, 0);
    double least = 0.0;
    int32_t i;
    best = best != NULL && best->seconds <= dpari_poor_pays * any->seconds ? best : any;
    for (i = 0; i < kinds->n; i++) {
        const dpari_kind *x = &kinds->of[i];
        double cost = x->seconds / best->seconds + dpari_kind_unit * dpari_kind_weight(x->bits);
        if (x->seconds <= dpari_near_best * best->seconds * (1.0 - 1e-6) &&
            (x->bits & ~best->bits & DPARI_KIND_POOR) == 0 && (chosen == NULL || cost < least)) {
            chosen = x;
            least = cost;
        }
    }
    return chosen;
}

/* Returns the fastest plan that is simpler by more than an option, or NULL if there is none or it
 * is too slow to mention. */
static const dpari_kind *dpari_kind_simpler(const dpari_kinds *kinds, const dpari_kind *than)
{
    const dpari_kind *best = NULL;
    int32_t i;
    for (i = 0; i < kinds->n; i++) {
        const dpari_kind *x = &kinds->of[i];
        if (dpari_kind_weight(x->bits) + 2 <= dpari_kind_weight(than->bits) &&
            (x->bits & ~than->bits & DPARI_KIND_POOR) == 0 && x->seconds > than->seconds &&
            x->seconds < dpari_worth_saying * than->seconds &&
            (best == NULL || x->seconds < best->seconds)) {
            best = x;
        }
    }
    return best;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* Appends a part of a name, with its degree if that is above 1. */
static void dpari_name_part(dpar_text *text, const char *name, int32_t degree)
{
    if (text->used > 0) {
        dpar_text_put(text, " + ");
    }
    dpar_text_put(text, name);
    if (degree > 1) {
        dpari_text_print(text, "=%d", degree);
    }
}

/* Returns the name of data parallelism without sharded weights. */
static const char *dpari_data_name(const dpar_strategy *strategy)
{
    if (strategy->zero == 1) {
        return "DP(ZeRO-1)";
    }
    if (strategy->zero != 0) {
        return "DP(ZeRO-2)";
    }
    return strategy->tp * strategy->pp == 1 ? "DDP" : "DP";
}

/* Writes the name of a plan, such as "TP=4 + FSDP=4", "DDP" or "domain=4 + DDP=2". */
static void dpari_plan_name(const dpar_job *job, const dpar_plan *plan, char *name, size_t room)
{
    const dpar_strategy *strategy = &plan->strategy;
    int32_t tiles = (int32_t)dpari_tiles(strategy);
    dpar_text t;
    dpar_text_init(&t, name, room);
    if (tiles > 1) {
        dpari_name_part(&t, "domain", tiles);
    }
    if (strategy->tp > 1) {
        dpari_name_part(&t,
                        strategy->sp && job->work->tokens >= dpari_medium_sequence ? "SP+TP" : "TP",
                        strategy->tp);
    }
    if (strategy->cp > 1) {
        dpari_name_part(&t, strategy->cp_kind == DPAR_CP_ULYSSES ? "Ulysses SP" : "CP",
                        strategy->cp);
    }
    if (strategy->pp > 1) {
        dpari_name_part(&t, "PP", strategy->pp);
    }
    if (strategy->ep > 1) {
        dpari_name_part(&t, "EP", strategy->ep);
    }
    if (strategy->dp > 1 && strategy->zero == 3) {
        dpari_name_part(&t, strategy->shard > 0 && strategy->shard < strategy->dp ? "HSDP" : "FSDP",
                        strategy->dp);
    } else if (strategy->dp > 1) {
        dpari_name_part(&t, dpari_data_name(strategy), strategy->dp);
    }
    if (t.used == 0) {
        dpari_name_part(&t, "one GPU", 1);
    }
    if (strategy->recompute == DPAR_RECOMPUTE_FULL) {
        dpari_name_part(&t, "recompute", 1);
    }
}

/* Appends a text, and then bytes in GB. */
static void dpari_gb(dpar_text *text, const char *before, double bytes)
{
    dpar_text_put(text, before);
    dpari_text_fixed(text, bytes * 1e-9, bytes < 1e10 ? 1 : 0);
    dpar_text_put(text, " GB");
}

/* Writes why one GPU is not enough, and what a GPU holds with the plan. */
static void dpari_advice_why(const dpar_job *job, const dpari_need *need, const dpar_plan *plan,
                             char *why, size_t room)
{
    double gpu = job->cluster->gpu.memory_bytes;
    dpar_text t;
    dpar_text_init(&t, why, room);
    if (job->work->trains) {
        dpari_gb(&t, "weights, gradients and optimizer take ", need->state);
        if (need->state < need->gpu) {
            dpari_gb(&t, ", which one GPU of ", gpu);
            dpar_text_put(&t, " holds");
        } else if (need->state < gpu) {
            dpari_gb(&t, ", and leave too little of one GPU's ", gpu);
        } else {
            dpari_gb(&t, ", more than one GPU's ", gpu);
            dpari_gb(&t, " by ", need->state - gpu);
        }
        dpar_text_put(&t, "; ");
    }
    if (need->activations > need->gpu) {
        dpari_gb(&t, "the activations of one sample are ", need->activations);
        dpar_text_put(&t, "; ");
    }
    if (plan->fits) {
        dpari_gb(&t, "this way a GPU holds ", plan->memory.total);
        if (plan->strategy.zero >= 1 && plan->strategy.dp > 1) {
            dpari_gb(&t, ", ",
                     dpari_zero_bytes(&job->recipe, plan->memory.params, plan->strategy.zero,
                                      plan->strategy.shard > 0 ? plan->strategy.shard
                                                               : plan->strategy.dp));
            dpar_text_put(&t, " of them state");
        }
    } else {
        dpari_gb(&t, "even this way it does not fit: up to ", plan->memory.upper);
        dpari_gb(&t, " a GPU, ", plan->memory.upper - gpu);
        dpar_text_put(&t, " too much");
    }
}

/* Sets the bit of a warning and appends its text. */
static void dpari_warn(dpar_advice *advice, dpar_text *out, int32_t bit, const char *text)
{
    advice->warnings |= bit;
    dpari_text_print(out, "%s%s", out->used > 0 ? " " : "", text);
}

/* Lists the common mistakes that the plan makes. */
static void dpari_advice_warnings(const dpar_job *job, const dpar_planner_desc *search,
                                  const dpari_need *need, dpar_advice *advice)
{
    const dpar_strategy *strategy = &advice->plan.strategy;
    double over;
    dpar_text t;
    dpar_text_init(&t, advice->warning_text, sizeof(advice->warning_text));
    if (strategy->zero == 3 && strategy->tp == 1 && need->state + need->activations < need->gpu) {
        dpari_warn(advice, &t, DPAR_WARN_FSDP_NEEDLESS,
                   "FSDP though the model fits on one GPU: the gathers are needless traffic.");
    }
    if (strategy->tp > 1 && dpari_over_pcie(job->cluster)) {
        dpari_warn(advice, &t, DPAR_WARN_TP_ACROSS,
                   "tensor parallelism over PCIe: every layer waits for slow links.");
    } else if (strategy->tp > job->cluster->gpus_per_node && need->gpus > need->node) {
        dpari_warn(advice, &t, DPAR_WARN_TP_ACROSS,
                   "tensor parallelism across nodes: every layer waits for the network.");
    }
    if (strategy->pp > 1 && strategy->micro_batches < 4 * strategy->pp) {
        dpari_warn(advice, &t, DPAR_WARN_FEW_MICRO,
                   advice->plan.step.bubble > 0.15
                       ? "fewer than 4 micro-batches a stage: much of a step is bubble."
                       : "fewer than 4 micro-batches a stage: mind the bubble.");
    }
    over = advice->plan.memory.term[DPAR_MEMORY_ACTIVATIONS];
    if (strategy->zero >= 1 && over > 0.5 * advice->plan.memory.total) {
        dpari_warn(advice, &t, DPAR_WARN_ACTIVATIONS,
                   "activations are most of the memory: sharding state does not shrink them.");
    }
    if (!advice->plan.fits && strategy->zero == 0 && strategy->tp == 1 && strategy->pp == 1 &&
        need->state > need->gpu) {
        dpari_warn(advice, &t, DPAR_WARN_DDP_STATE,
                   "DDP replicates the state, which does not fit on one GPU.");
    }
    if (job->work->trains && strategy->dp > 1 && search->global_batch == 0) {
        dpari_warn(advice, &t, DPAR_WARN_LEARNING_RATE,
                   "the global batch grows with the GPUs: scale the learning rate with it.");
    }
}

/* Appends in words what the first kind needs and the second does not. */
static DPARI_COLD void dpari_advice_saved(dpar_text *text, const char *how, int32_t bits,
                                          int32_t than)
{
    static const char name[9][24] = {
        "tensor parallelism",    "a cut of the sample", "a pipeline",
        "several stages a rank", "recomputation",       "sharded optimizer state",
        "sharded weights",       "groups of shards",    "stages of single layers"};
    int32_t i;
    for (i = 0; i < 9; i++) {
        if ((bits & ~than) >> i & 1) {
            dpari_text_print(text, "%s%s", how, name[i]);
            how = ", ";
        }
    }
}

/* Appends "12 % slower, " or "3.1 % faster, " for a ratio of times. */
static DPARI_COLD void dpari_advice_ratio(dpar_text *text, double ratio)
{
    double by = 100.0 * (ratio > 1.0 ? ratio - 1.0 : 1.0 / ratio - 1.0);
    dpari_text_fixed(text, by, by < 9.95);
    dpar_text_put(text, ratio > 1.0 ? " % slower, " : " % faster, ");
}

/* Compares another plan with the chosen one: "PP=2 + DP=4: 12 % faster, 34 GB a GPU, with a
 * pipeline". */
static DPARI_COLD void dpari_advice_other(const dpar_job *job, const dpar_planner_desc *search,
                                          const dpari_kind *other, const dpari_kind *chosen,
                                          const dpar_advice *advice, dpar_text *text)
{
    dpar_plan plan;
    char name[DPARI_NAME];
    double ratio = other->seconds / chosen->seconds;
    (void)dpar_plan_price(job, &other->strategy, search->global_batch, &plan, NULL, NULL);
    dpari_plan_name(job, &plan, name, sizeof(name));
    if (dpari_same(name, advice->name)) { /* they differ only in options that the name does not
                                             show */
        dpar_strategy_write(&plan.strategy, text);
    } else {
        dpar_text_put(text, name);
    }
    dpar_text_put(text, ": ");
    dpari_advice_ratio(text, ratio);
    dpari_gb(text, "", plan.memory.total);
    dpar_text_put(text, " a GPU");
    if (ratio > 1.0) {
        dpari_advice_saved(text, ", without ", chosen->bits, other->bits);
    } else {
        dpari_advice_saved(text, ", with ", other->bits, chosen->bits);
    }
    if (other->bits & ~chosen->bits & DPARI_KIND_POOR) {
        dpar_text_put(text, " over slow links");
    }
}

/* Describes the fastest plan if it is not the chosen one, and a simpler one if there is one. */
static DPARI_COLD void dpari_advice_others(const dpar_job *job, const dpar_planner_desc *search,
                                           const dpari_kinds *kinds, const dpari_kind *chosen,
                                           dpar_advice *advice)
{
    const dpari_kind *fastest = dpari_kind_fastest(kinds, 0);
    const dpari_kind *simpler = dpari_kind_simpler(kinds, chosen);
    dpar_text t;
    advice->slower = chosen->seconds / fastest->seconds - 1.0;
    dpar_text_init(&t, advice->fastest, sizeof(advice->fastest));
    if (fastest != chosen) {
        dpari_advice_other(job, search, fastest, chosen, advice, &t);
    }
    dpar_text_init(&t, advice->runner_up, sizeof(advice->runner_up));
    if (simpler != NULL) {
        dpari_advice_other(job, search, simpler, chosen, advice, &t);
    }
}

/* If a field is fixed, replaces the runner-up by the plan that would be recommended with nothing
 * fixed. */
static void dpari_advice_free(const dpar_job *job, const dpar_planner_desc *search,
                              dpar_advice *advice)
{
    dpar_advice other;
    dpar_planner_desc q = *search;
    dpar_text t;
    double ratio;
    q.fixed_fields = 0;
    if (search->fixed_fields == 0 || dpar_plan_recommend(job, &q, &other, NULL) != DPAR_OK ||
        dpari_same(other.name, advice->name)) {
        return;
    }
    dpar_text_init(&t, advice->runner_up, sizeof advice->runner_up);
    dpari_text_print(&t, "with nothing fixed %s: ", other.name);
    if (advice->plan.fits) {
        ratio = other.plan.step.total / other.plan.step.samples * advice->plan.step.samples /
                advice->plan.step.total;
        dpari_advice_ratio(&t, ratio);
    }
    dpari_gb(&t, "", other.plan.memory.total);
    dpar_text_put(&t, " a GPU");
}

/* Finds the plan that comes nearest to fitting: the fixed one if something is fixed, otherwise one
 * that is sharded and recomputed as far as possible. Returns DPAR_E_MEMORY with advice->plan, or
 * DPAR_E_NONE if it is not legal. */
static dpar_status dpari_advice_near(const dpar_job *job, const dpar_planner_desc *search,
                                     const dpari_need *need, dpar_advice *advice)
{
    const dpar_workload *work = job->work;
    dpar_plan plan;
    dpar_strategy s;
    dpar_status st = DPAR_E_NONE, one;
    int32_t k;
    if (search->fixed_fields != 0) {
        s = search->fixed;
        one = dpar_strategy_complete(job, &s, search->fixed_fields, search->global_batch, NULL);
        if (one == DPAR_OK) {
            one = dpar_plan_price(job, &s, 0, &advice->plan, NULL, NULL);
        }
        return one == DPAR_OK || one == DPAR_E_MEMORY ? DPAR_E_MEMORY : DPAR_E_NONE;
    }
    for (k = 0; k < 2; k++) { /* sharded over all GPUs, first without and then with TP in a node */
        dpar_strategy_init(&s);
        s.tp = k == 1 ? need->tp : 1;
        s.sp = s.tp > 1;
        s.dp = need->gpus / s.tp;
        s.zero = work->trains ? 3 : 0;
        s.recompute = work->trains ? DPAR_RECOMPUTE_FULL : DPAR_RECOMPUTE_NONE;
        one = dpar_plan_price(job, &s, 0, &plan, NULL, NULL);
        if ((one == DPAR_OK || one == DPAR_E_MEMORY) && (k == 0 || need->tp > 1)) {
            advice->plan = plan;
            st = DPAR_E_MEMORY;
        }
    }
    return st;
}

/* Reports that nothing fits: which plan comes nearest, how much memory it lacks, and on how many
 * GPUs it would fit. */
static dpar_status dpari_advice_none(const dpar_job *job, const dpar_planner_desc *search,
                                     const dpari_need *need, dpar_advice *advice, dpar_why *why)
{
    dpar_plan plan;
    dpar_planner_desc q = *search;
    dpar_text t;
    if (dpari_advice_near(job, search, need, advice) != DPAR_E_MEMORY) {
        return dpari_say(DPAR_E_NONE, why,
                         "no legal strategy for %d GPUs and a global batch of %ld", need->gpus,
                         search->global_batch);
    }
    dpari_plan_name(job, &advice->plan, advice->name, sizeof(advice->name));
    if (advice->plan.fits && advice->plan.memory.upper <= job->cluster->gpu.memory_bytes) {
        return dpari_say(DPAR_E_NONE, why,
                         "no strategy for %d GPUs divides a global batch of %ld and fits; with "
                         "another batch one does",
                         need->gpus, search->global_batch);
    }
    dpari_advice_why(job, need, &advice->plan, advice->why, sizeof(advice->why));
    dpar_text_init(&t, advice->runner_up, sizeof(advice->runner_up));
    dpari_gb(&t, "state alone, sharded over all GPUs: ", need->state / need->gpus);
    dpar_text_put(&t, " a GPU");
    q.global_batch = 0;
    if (dpar_plan_smallest(job, &q, (int32_t)dpari_least(64 * (int64_t)need->gpus, INT32_MAX),
                           &plan, NULL) == DPAR_OK) {
        const int32_t gpus = dpar_strategy_ranks(&plan.strategy);
        dpari_text_print(&t, "; it fits on %d such GPUs (nodes of %d)", gpus,
                         (int32_t)dpari_least(gpus, job->cluster->gpus_per_node));
    }
    dpari_advice_warnings(job, search, need, advice);
    dpari_advice_free(job, search, advice);
    return dpari_say(
        DPAR_E_MEMORY, why,
        search->fixed_fields != 0
            ? "the job does not fit on %d GPUs with the fixed values: up to %ld GB a GPU, the GPU "
              "has %ld GB"
            : "the job does not fit on %d GPUs: up to %ld GB a GPU when sharded as far as "
              "possible, "
              "the GPU has %ld GB",
        need->gpus, (int64_t)(advice->plan.memory.upper * 1e-9 + 0.999),
        (int64_t)(job->cluster->gpu.memory_bytes * 1e-9 + 0.5));
}

DPAR_API DPARI_COLD dpar_status dpar_plan_recommend(const dpar_job *job,
                                                    const dpar_planner_desc *search,
                                                    dpar_advice *advice, dpar_why *why)
{
    dpari_kinds kinds;
    const dpari_kind *chosen;
    dpari_need n;
    dpar_status st = dpari_search_check(job, search, why);
    if (st != DPAR_OK) {
        return st;
    }
    n = dpari_need_of(job, search);
    dpari_zero(advice, sizeof(*advice));
    if (dpari_kinds_find(job, search, &kinds, why) != DPAR_OK) {
        return dpari_advice_none(job, search, &n, advice, why);
    }
    chosen = dpari_kind_choose(&kinds);
    (void)dpar_plan_price(job, &chosen->strategy, search->global_batch, &advice->plan, NULL, NULL);
    dpari_plan_name(job, &advice->plan, advice->name, sizeof(advice->name));
    dpari_advice_others(job, search, &kinds, chosen, advice);
    dpari_advice_why(job, &n, &advice->plan, advice->why, sizeof(advice->why));
    dpari_advice_warnings(job, search, &n, advice);
    dpari_advice_free(job, search, advice);
    return DPAR_OK;
}
