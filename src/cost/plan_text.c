/* SPDX-License-Identifier: MIT-0 */
/* Reads a request for a plan from text. dpar_plan_query_read splits the options into words, then
 * reads precision, model, machine and strategies in this order. dpar_plan_search also prices the
 * strategy of evaluate= or searches. The command `plan` passes its options on as such words. */
#include "plan_text.h"

#include "../base/base_private.h"
#include "cost_private.h"
#include "fields.h"

/* ---- words ----------------------------------------------------------------------------------- */

/* The options. The first three take numbers. */
enum {
    DPARI_ASK_GPUS,
    DPARI_ASK_SEQ,
    DPARI_ASK_BATCH,
    DPARI_ASK_PRECISION,
    DPARI_ASK_STACK,
    DPARI_ASK_ATTENTION,
    DPARI_ASK_FIX,
    DPARI_ASK_EVALUATE,
    DPARI_ASK_WHOLE,
    DPARI_ASKS
};

static const char *dpari_ask_name(int32_t i)
{
    static const char name[DPARI_ASKS][10] = {"gpus",      "seq", "batch",    "precision", "stack",
                                              "attention", "fix", "evaluate", "whole"};
    return name[i];
}

/* The values of the options: the beginning, which is NULL if the option is not given, and the
 * length. */
typedef struct dpari_ask {
    const char *value[DPARI_ASKS];
    size_t length[DPARI_ASKS];
    int64_t number[DPARI_ASK_BATCH + 1]; /* values of the first three; -1 if not given */
} dpari_ask;

/* Returns which option the word [s, s + n) is, or -1. *value gets the text after '=', or NULL if
 * there is none. */
static int32_t dpari_ask_find(const char *s, size_t n, const char **value)
{
    const size_t key = dpari_until(s, n, '=');
    int32_t i;
    *value = key < n ? s + key + 1 : NULL;
    for (i = 0; i < DPARI_ASKS; i++) {
        if (dpari_spells(s, key, dpari_ask_name(i))) {
            return i;
        }
    }
    return -1;
}

/* Reads one word, which must be an option that was not given before. */
static dpar_status dpari_ask_word(dpari_ask *a, const char *s, size_t n, dpar_why *why)
{
    const char *value = NULL;
    const int32_t i = dpari_ask_find(s, n, &value);
    if (i < 0 || (value == NULL) != (i == DPARI_ASK_WHOLE)) {
        return dpari_wrong(why,
                           "'%.*s' is not an option of a plan; known: gpus=, batch=, seq=, "
                           "precision=, stack=, attention=, fix=, evaluate=, whole",
                           (int32_t)n, s);
    }
    if (a->value[i] != NULL) {
        return dpari_wrong(why, "'%.*s' is given twice", (int32_t)n, s);
    }
    a->value[i] = value != NULL ? value : s;
    a->length[i] = n - (size_t)(a->value[i] - s);
    if (i <= DPARI_ASK_BATCH) {
        const int64_t least = i != DPARI_ASK_BATCH;
        const int64_t most = least ? 100000000 : INT32_MAX;
        if (!dpari_whole(a->value[i], a->length[i], least, most, &a->number[i])) {
            return dpari_wrong(why, "%.*s needs a whole number of %ld to %ld", (int32_t)n, s, least,
                               most);
        }
    }
    return DPAR_OK;
}

/* Reads all words of the options. */
static dpar_status dpari_ask_words(dpari_ask *a, const char *s, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    dpari_zero(a, sizeof *a);
    a->number[0] = a->number[1] = a->number[2] = -1;
    while (s != NULL && st == DPAR_OK) {
        size_t n = 0;
        for (; *s == ' ' || *s == '\t' || *s == '\n'; s++) {
        }
        for (; s[n] != 0 && s[n] != ' ' && s[n] != '\t' && s[n] != '\n'; n++) {
        }
        if (n == 0) {
            break;
        }
        st = dpari_ask_word(a, s, n, why);
        s += n;
    }
    return st;
}

/* Sets the software stack and the attention of a model. */
static dpar_status dpari_ask_software(const dpari_ask *a, dpar_model *model, dpar_why *why)
{
    const char *s = a->value[DPARI_ASK_STACK], *attention = a->value[DPARI_ASK_ATTENTION];
    int32_t i;
    if (s != NULL && !dpari_stack_read(model, s, a->length[DPARI_ASK_STACK])) {
        return dpari_say(
            DPAR_E_UNKNOWN, why,
            "stack must be megatron, core, torch, compiled or a generation of these: "
            "llm-foundry, torchtitan, nanotron, nemo, deepep, maxtext (@ and a year may follow); "
            "not '%.*s'",
            (int32_t)(a->length[DPARI_ASK_STACK]), s);
    }
    if (attention == NULL) {
        return DPAR_OK;
    }
    for (i = 1; i < DPAR_MODEL_ATTENTION_END; i++) {
        if (dpari_spells(attention, a->length[DPARI_ASK_ATTENTION], dpari_attention_name(i))) {
            model->attention = i;
            return DPAR_OK;
        }
    }
    return dpari_say(DPAR_E_UNKNOWN, why, "attention must be unfused, flash1 or flash, not '%.*s'",
                     (int32_t)(a->length[DPARI_ASK_ATTENTION]), attention);
}

/* ---- the request ----------------------------------------------------------------------------- */

/* Reads the precision. A word that is too long for a name is cut, so that it is unknown. */
static dpar_status dpari_ask_precision(const dpari_ask *a, dpar_recipe *recipe, dpar_why *why)
{
    char name[24];
    const char *word = "megatron";
    size_t length = sizeof name;
    if (a->value[DPARI_ASK_PRECISION] != NULL) {
        word = a->value[DPARI_ASK_PRECISION];
        length = a->length[DPARI_ASK_PRECISION];
    }
    dpari_copy_text(name, sizeof name, word, length);
    return dpar_recipe_find(recipe, name, why);
}

/* Reads the model and builds its workload. The precision must have been read. */
static dpar_status dpari_ask_model(const dpari_ask *a, const char *text, dpar_plan_query *query,
                                   dpar_why *why)
{
    dpar_model m;
    const int32_t seq = a->number[DPARI_ASK_SEQ] > 0 ? (int32_t)a->number[DPARI_ASK_SEQ] : 0;
    dpar_status st = dpar_model_read(&m, text, dpari_length(text), why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_ask_software(a, &m, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (m.element == 0 && m.family != DPAR_MODEL_FAMILY_GRID &&
        query->job.recipe.compute <= DPAR_TF32) {
        m.element = 4; /* training in fp32 has activations in fp32 */
    }
    if (seq > 0 && m.family != DPAR_MODEL_FAMILY_GPT && m.family != DPAR_MODEL_FAMILY_LLAMA &&
        m.family != DPAR_MODEL_FAMILY_T5) {
        return dpari_wrong(
            why, "seq sets the tokens of a language model's sample, but this is no language model");
    }
    return dpar_workload_init(&query->work, &m, seq, why);
}

/* Reads the machine and resizes it to the option gpus. */
static dpar_status dpari_ask_machine(const dpari_ask *a, const char *text, dpar_plan_query *query,
                                     dpar_why *why)
{
    const int64_t gpus = a->number[DPARI_ASK_GPUS];
    dpar_status st = dpar_cluster_read(&query->cluster, text, dpari_length(text), why);
    if (st == DPAR_OK && gpus > 0) {
        const int32_t had = dpari_cluster_gpus(&query->cluster);
        st = dpar_cluster_resize(&query->cluster, (int32_t)gpus, why);
        query->machine_gpus = gpus > had ? had : 0;
    }
    return st;
}

/* Returns the default batch: about four million tokens per step for language models, 16 samples per
 * GPU for others. It is a power of two times the GPUs, so that every data-parallel degree and
 * micro-batch divides it. */
static int64_t dpari_ask_batch(const dpar_workload *work, int32_t gpus)
{
    const double wanted = work->vocab > 0 ? 4194304.0 / work->tokens : 16.0 * gpus;
    int64_t batch = gpus;
    while (work->trains && (double)batch < 0.75 * wanted) {
        batch *= 2;
    }
    return work->trains ? batch : 1;
}

/* Reads the strategy of fix= or evaluate=. Without the option the strategy is the default one and
 * *named does not change. */
static dpar_status dpari_ask_strategy(const dpari_ask *a, int32_t which, dpar_strategy *strategy,
                                      uint32_t *named, dpar_why *why)
{
    dpar_strategy_init(strategy);
    if (a->value[which] == NULL) {
        return DPAR_OK;
    }
    if (a->length[which] == 0) {
        return dpari_wrong(why, "%s needs name=value, as in %s=tp=8", dpari_ask_name(which),
                           dpari_ask_name(which));
    }
    return dpar_strategy_read(strategy, a->value[which], a->length[which], named, why);
}

DPAR_API DPARI_COLD dpar_status dpar_plan_query_read(const char *model, const char *machine,
                                                     const char *options, dpar_plan_query *query,
                                                     dpar_why *why)
{
    dpari_ask a;
    dpar_status st;
    if (model == NULL || machine == NULL || query == NULL) {
        return dpari_wrong(why, "model, machine or query is NULL");
    }
    st = dpari_ask_words(&a, options, why);
    dpari_zero(query, sizeof *query);
    query->job.work = &query->work;
    query->job.cluster = &query->cluster;
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_ask_precision(&a, &query->job.recipe, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_ask_model(&a, model, query, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_ask_machine(&a, machine, query, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_ask_strategy(&a, DPARI_ASK_FIX, &query->search.fixed, &query->search.fixed_fields,
                            why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_ask_strategy(&a, DPARI_ASK_EVALUATE, &query->strategy, &query->strategy_fields, why);
    if (st != DPAR_OK) {
        return st;
    }
    query->batch = a.number[DPARI_ASK_BATCH];
    query->search.global_batch = query->batch;
    if (query->batch < 0) {
        query->search.global_batch =
            dpari_ask_batch(&query->work, dpari_cluster_gpus(&query->cluster));
    }
    query->search.space = a.value[DPARI_ASK_WHOLE] != NULL ? DPAR_SPACE_WHOLE : DPAR_SPACE_USUAL;
    return DPAR_OK;
}

/* ---- the result ------------------------------------------------------------------------------ */

/* Prices the strategy of evaluate=. Without the option batch the strategy may have any batch. */
static dpar_status dpari_planned_price(dpar_plan_result *p, dpar_why *why)
{
    dpar_plan_query *a = &p->query;
    dpar_strategy *strategy = &a->strategy;
    int64_t samples = 0, batch = a->search.global_batch;
    dpar_status st = dpar_strategy_complete(&a->job, strategy, a->strategy_fields, batch, why);
    if (a->batch <= 0 &&
        (a->batch < 0 || a->strategy_fields >> DPAR_STRATEGY_FIELD_MICRO_BATCHES & 1u)) {
        batch = 0; /* stays 0 if the product is too large, because dpar_plan_price then refuses the
                      strategy */
        if (dpari_mul(strategy->dp, strategy->micro_batch, &samples) &&
            dpari_mul(samples, strategy->micro_batches, &samples)) {
            batch = samples;
        }
    }
    p->report.global_batch = batch;
    p->report.evaluated = 1;
    p->report.plan_count = 1;
    if (st != DPAR_OK) {
        return st;
    }
    return dpar_plan_price(&a->job, strategy, batch, &p->plan[0], NULL, why);
}

/* Searches, and reports the best plans. */
static dpar_status dpari_planned_search(dpar_plan_result *p, dpar_why *why)
{
    dpar_planner_desc q = p->query.search;
    dpar_status st;
    q.top = p->plan;
    q.top_capacity = (int32_t)(sizeof p->plan / sizeof p->plan[0]);
    st = dpar_planner_init(&p->planner, &p->query.job, &q, why);
    while (st == DPAR_OK || st == DPAR_MORE) {
        st = dpar_planner_run(&p->planner, 1000000, why);
    }
    p->report.plan_count = p->planner.top_count;
    p->report.evaluated = p->planner.evaluated;
    p->report.global_batch = q.global_batch;
    return st == DPAR_DONE ? DPAR_OK : st;
}

DPAR_API DPARI_COLD dpar_status dpar_plan_search(const char *model, const char *machine,
                                                 const char *options, dpar_plan_result *planned,
                                                 dpar_why *why)
{
    dpar_status st;
    if (planned == NULL) { /* dpar_plan_query_read refuses it */
        return dpar_plan_query_read(model, machine, options, NULL, why);
    }
    dpari_zero(planned, sizeof *planned);
    planned->report.job = &planned->query.job;
    planned->report.plan = planned->plan;
    st = dpar_plan_query_read(model, machine, options, &planned->query, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = planned->query.strategy_fields != 0 ? dpari_planned_price(planned, why)
                                             : dpari_planned_search(planned, why);
    planned->step = planned->plan[0].step.total;
    planned->memory = planned->plan[0].memory.total;
    return st;
}
