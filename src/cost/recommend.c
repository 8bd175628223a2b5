/* SPDX-License-Identifier: MIT-0 */
#include "planner.h"

#include "../base/arith.h"
#include "../base/text.h"

/* ---- what does not fit ---------------------------------------------------------------------- */

/* The kinds of answers, in the order of the flowchart: simplest first. */
enum {
    DPARI_KIND_DDP,
    DPARI_KIND_DDP_RECOMPUTE,
    DPARI_KIND_DOMAIN,
    DPARI_KIND_FSDP,
    DPARI_KIND_HSDP,
    DPARI_KIND_PP_FSDP,
    DPARI_KIND_TP_SP,
    DPARI_KIND_TP_FSDP,
    DPARI_KIND_TP_PP_DP,
    DPARI_KIND_ANY,
    DPARI_KINDS
};

/* What decides: bytes of one replica on one GPU. */
typedef struct dpari_need {
    double state;       /* weights, gradients, optimizer of one replica */
    double activations; /* of one sample, nothing cut, nothing recomputed */
    double gpu;         /* bytes of a GPU that a program may plan with: 90 % */
    double node;        /* GPUs of a node */
    int32_t spatial, sequence, deep, gpus;
} dpari_need;

/* Sequences longer than this are cut rather than recomputed; deeper models are cut by layers. */
static const double dpari_long_sequence = 65536.0;
static const int32_t dpari_deep_layers = 150;
/* From here on FSDP's gathers over so many ranks no longer hide; pipelines send far less. */
static const int32_t dpari_many_gpus = 128;

static dpari_need dpari_need_of(const dpar_job *job)
{
    const dpar_workload *w = job->work;
    dpari_need n;
    int32_t i;
    dpari_zero(&n, sizeof(n));
    n.state = dpar_zero_bytes(&job->recipe, w->params, 0, 1);
    for (i = 0; i < w->layers; i++) {
        n.activations +=
            dpar_layer_saved(w, i, DPAR_RECOMPUTE_NONE) * w->layer[i].tokens * w->layer[i].count;
    }
    n.gpu = 0.9 * job->cluster->gpu.memory_bytes;
    n.node = job->cluster->gpus_per_node;
    n.gpus = dpar_cluster_gpus(job->cluster);
    n.spatial = w->dims > 1;
    n.sequence = w->heads > 0 && w->tokens >= dpari_long_sequence;
    n.deep = w->blocks >= dpari_deep_layers;
    return n;
}

/* ---- the kinds as searches ------------------------------------------------------------------ */

static void dpari_fix(dpar_search *q, int32_t field)
{
    q->fixed_fields |= (uint32_t)1 << field;
}

static void dpari_kind_fix(dpar_search *q, int32_t kind)
{
    q->fixed.tp = q->fixed.pp = q->fixed.cp = q->fixed.vp = 1;
    q->fixed.zero = 0;
    q->fixed.tiles[0] = q->fixed.tiles[1] = q->fixed.tiles[2] = 1;
    dpari_fix(q, DPAR_FIELD_TP);
    dpari_fix(q, DPAR_FIELD_PP);
    dpari_fix(q, DPAR_FIELD_CP);
    dpari_fix(q, DPAR_FIELD_ZERO);
    dpari_fix(q, DPAR_FIELD_TILES);
    if (kind != DPARI_KIND_ANY && kind != DPARI_KIND_TP_PP_DP) {
        dpari_fix(q, DPAR_FIELD_VP);
    }
}

/* Fixes what makes a kind a kind; the planner fills in the rest. 0 when it cannot be here. */
static int dpari_kind_search(const dpar_job *job, const dpari_need *n, int32_t kind, dpar_search *q)
{
    const dpar_workload *w = job->work;
    int32_t node = (int32_t)n->node, tp = node;
    while (tp > 1 && w->heads > 0 && (w->heads % tp != 0 || w->hidden % tp != 0)) {
        tp--;
    }
    dpari_kind_fix(q, kind);
    switch (kind) {
    case DPARI_KIND_DDP:
        q->fixed.recompute = DPAR_RECOMPUTE_NONE;
        dpari_fix(q, DPAR_FIELD_RECOMPUTE);
        return 1;
    case DPARI_KIND_DDP_RECOMPUTE:
        q->fixed.recompute = DPAR_RECOMPUTE_FULL;
        dpari_fix(q, DPAR_FIELD_RECOMPUTE);
        return w->trains;
    case DPARI_KIND_DOMAIN:
        q->fixed_fields &= ~((uint32_t)1 << DPAR_FIELD_TILES);
        return n->spatial;
    case DPARI_KIND_FSDP:
        q->fixed.zero = 3;
        q->fixed.shard = 0;
        dpari_fix(q, DPAR_FIELD_SHARD);
        return w->trains;
    case DPARI_KIND_HSDP:
        q->fixed.zero = 3;
        q->fixed.shard = node;
        dpari_fix(q, DPAR_FIELD_SHARD);
        return w->trains && n->gpus > node;
    case DPARI_KIND_PP_FSDP:
        q->fixed.zero = 3;
        q->fixed.pp = 4; /* 50 layers a stage of 200: stages stay long against their messages */
        return w->trains && n->gpus % 4 == 0 && n->gpus >= 8;
    case DPARI_KIND_TP_SP:
        q->fixed.tp = (int32_t)dpari_least(tp, n->gpus);
        q->fixed_fields &= ~((uint32_t)1 << DPAR_FIELD_ZERO | (uint32_t)1 << DPAR_FIELD_CP);
        return w->heads > 0 && tp > 1;
    case DPARI_KIND_TP_FSDP:
        q->fixed.tp = tp;
        q->fixed.zero = 3;
        q->fixed.shard = 0;
        dpari_fix(q, DPAR_FIELD_SHARD);
        return w->heads > 0 && tp > 1 && w->trains;
    case DPARI_KIND_TP_PP_DP:
        q->fixed.tp = tp;
        q->fixed.zero = w->trains;
        q->fixed_fields &= ~((uint32_t)1 << DPAR_FIELD_PP);
        if (n->sequence) {
            q->fixed_fields &= ~((uint32_t)1 << DPAR_FIELD_CP);
        }
        return w->heads > 0 && tp > 1;
    default: q->fixed_fields = 0; return 1;
    }
}

/* Best plan of a kind; E_NONE when it does not fit, the rest as the planner. */
static dpar_status dpari_kind_plan(const dpar_job *job, const dpar_search *asked,
                                   const dpari_need *n, int32_t kind, dpar_plan *plan)
{
    dpar_planner p;
    dpar_search q = *asked;
    dpar_status st;
    q.gpus = n->gpus;
    if (!dpari_kind_search(job, n, kind, &q)) {
        return DPAR_E_NONE;
    }
    st = dpar_planner_init(&p, job, &q, plan, 1, NULL, 0, NULL);
    while (st >= 0 && st != DPAR_DONE) {
        st = dpar_planner_run(&p, INT64_MAX / 2, NULL);
    }
    return st == DPAR_DONE ? DPAR_OK : st;
}

/* The order in which kinds are tried: the flowchart "fits? parameters? activations?". */
static int32_t dpari_kind_order(const dpar_job *job, const dpari_need *n, int32_t *order)
{
    const dpar_workload *w = job->work;
    int32_t k = 0, several = n->gpus > (int32_t)n->node;
    if (!w->trains || (n->spatial && n->state < n->gpu && n->activations > n->gpu)) {
        order[k++] = DPARI_KIND_DOMAIN;
    }
    if (n->state < n->gpu && !n->sequence) {
        order[k++] = DPARI_KIND_DDP;
        order[k++] = DPARI_KIND_DDP_RECOMPUTE;
    }
    if (n->sequence && n->gpus < dpari_many_gpus) {
        order[k++] = DPARI_KIND_TP_SP;
    }
    if (n->deep && n->state >= 0.5 * n->gpu) {
        order[k++] = DPARI_KIND_PP_FSDP;
    }
    if (w->params >= 1e10 && n->gpus >= dpari_many_gpus && job->cluster->gpus_per_node >= 8) {
        order[k++] = DPARI_KIND_TP_PP_DP;
    }
    if (!several) {
        order[k++] = DPARI_KIND_FSDP;
    } else if (n->state / n->node < 0.4 * n->gpu) {
        order[k++] = DPARI_KIND_HSDP; /* half empty with one node's share: replicas across nodes */
    }
    order[k++] = DPARI_KIND_TP_FSDP;
    order[k++] = DPARI_KIND_FSDP;
    order[k++] = DPARI_KIND_DOMAIN;
    order[k++] = DPARI_KIND_TP_PP_DP;
    order[k++] = DPARI_KIND_ANY;
    return k;
}

/* ---- words ---------------------------------------------------------------------------------- */

static void dpari_name_part(dpar_text *t, const char *name, int32_t degree)
{
    if (t->used > 0) {
        dpar_text_put(t, " + ");
    }
    dpar_text_put(t, name);
    if (degree > 1) {
        dpar_text_char(t, '=');
        dpar_text_int(t, degree);
    }
}

/* "TP=4 + FSDP=4", "DDP", "domain=4 + DDP=2", "PP=4 + FSDP=4". */
static void dpari_plan_name(const dpar_job *job, const dpar_plan *plan, char *name, size_t room)
{
    const dpar_strategy *s = &plan->strategy;
    int32_t tiles = s->tiles[0] * s->tiles[1] * s->tiles[2];
    dpar_text t;
    dpar_text_init(&t, name, room);
    if (tiles > 1) {
        dpari_name_part(&t, "domain", tiles);
    }
    if (s->tp > 1) {
        dpari_name_part(&t, s->sp && job->work->tokens >= dpari_long_sequence ? "SP+TP" : "TP",
                        s->tp);
    }
    if (s->cp > 1) {
        dpari_name_part(&t, s->cp_kind == DPAR_CP_ULYSSES ? "Ulysses SP" : "CP", s->cp);
    }
    if (s->pp > 1) {
        dpari_name_part(&t, "PP", s->pp);
    }
    if (s->ep > 1) {
        dpari_name_part(&t, "EP", s->ep);
    }
    if (s->dp > 1 && s->zero == 3) {
        dpari_name_part(&t, s->shard > 0 && s->shard < s->dp ? "HSDP" : "FSDP", s->dp);
    } else if (s->dp > 1) {
        dpari_name_part(&t,
                        s->zero == 0   ? (s->tp * s->pp == 1 ? "DDP" : "DP")
                        : s->zero == 1 ? "DP(ZeRO-1)"
                                       : "DP(ZeRO-2)",
                        s->dp);
    }
    if (t.used == 0) {
        dpari_name_part(&t, "one GPU", 1);
    }
    if (s->recompute == DPAR_RECOMPUTE_FULL) {
        dpari_name_part(&t, "recompute", 1);
    }
}

static void dpari_gb(dpar_text *t, double bytes)
{
    dpar_text_fixed(t, bytes * 1e-9, bytes < 1e10 ? 1 : 0);
    dpar_text_put(t, " GB");
}

static void dpari_advice_why(const dpar_job *job, const dpari_need *n, const dpar_plan *plan,
                             char *why, size_t room)
{
    double gpu = job->cluster->gpu.memory_bytes;
    dpar_text t;
    dpar_text_init(&t, why, room);
    if (job->work->trains) {
        dpar_text_put(&t, "weights, gradients and optimizer take ");
        dpari_gb(&t, n->state);
        dpar_text_put(&t, n->state < n->gpu ? ", which one GPU of " : ", more than one GPU's ");
        dpari_gb(&t, gpu);
        if (n->state < n->gpu) {
            dpar_text_put(&t, " holds");
        } else {
            dpar_text_put(&t, " by ");
            dpari_gb(&t, n->state - gpu > 0.0 ? n->state - gpu : 0.1e9);
        }
        dpar_text_put(&t, "; ");
    }
    if (n->activations > n->gpu) {
        dpar_text_put(&t, "the activations of one sample are ");
        dpari_gb(&t, n->activations);
        dpar_text_put(&t, "; ");
    }
    if (plan->fits) {
        dpar_text_put(&t, "this way a GPU holds ");
        dpari_gb(&t, plan->memory.total);
        if (plan->strategy.zero >= 1 && plan->strategy.dp > 1) {
            dpar_text_put(&t, ", ");
            dpari_gb(&t, dpar_zero_bytes(&job->recipe, plan->memory.params, plan->strategy.zero,
                                         plan->strategy.shard > 0 ? plan->strategy.shard
                                                                  : plan->strategy.dp));
            dpar_text_put(&t, " of them state");
        }
    } else {
        dpar_text_put(&t, "even this way it does not fit: ");
        dpari_gb(&t, plan->memory.upper);
        dpar_text_put(&t, " a GPU, ");
        dpari_gb(&t, plan->memory.upper - gpu);
        dpar_text_put(&t, " too much");
    }
}

static void dpari_warn(dpar_advice *a, dpar_text *t, int32_t bit, const char *text)
{
    a->warnings |= bit;
    dpar_text_put(t, t->used > 0 ? " " : "");
    dpar_text_put(t, text);
}

/* Mistakes that the asked-for or chosen plan makes. */
static void dpari_advice_warnings(const dpar_job *job, const dpar_search *asked,
                                  const dpari_need *n, dpar_advice *a)
{
    const dpar_strategy *s = &a->plan.strategy, *f = &asked->fixed;
    uint32_t named = asked->fixed_fields;
    int32_t zero = named >> DPAR_FIELD_ZERO & 1u ? f->zero : s->zero;
    int32_t tp = named >> DPAR_FIELD_TP & 1u ? f->tp : s->tp;
    int32_t pp = named >> DPAR_FIELD_PP & 1u ? f->pp : s->pp;
    int32_t m = named >> DPAR_FIELD_MICRO_BATCHES & 1u ? f->micro_batches : s->micro_batches;
    double over;
    dpar_text t;
    dpar_text_init(&t, a->warning_text, sizeof(a->warning_text));
    if (zero == 3 && tp == 1 && n->state + n->activations < n->gpu) {
        dpari_warn(a, &t, DPAR_WARN_FSDP_NEEDLESS,
                   "FSDP though the model fits on one GPU: the gathers are needless traffic.");
    }
    if (tp > job->cluster->gpus_per_node && dpar_cluster_gpus(job->cluster) > (int32_t)n->node) {
        dpari_warn(a, &t, DPAR_WARN_TP_ACROSS,
                   "tensor parallelism across nodes: every layer waits for the network.");
    }
    if (pp > 1 && m < 4 * pp) {
        dpari_warn(a, &t, DPAR_WARN_FEW_MICRO,
                   "fewer than 4 micro-batches a stage: the bubble passes 20 %.");
    }
    over = a->plan.memory.term[DPAR_MEM_ACTIVATIONS];
    if (s->zero >= 1 && over > 0.5 * a->plan.memory.total) {
        dpari_warn(a, &t, DPAR_WARN_ACTIVATIONS,
                   "activations are most of the memory: sharding state does not shrink them.");
    }
    if ((named >> DPAR_FIELD_ZERO & 1u) && zero == 0 && tp == 1 && pp == 1 && n->state > n->gpu) {
        dpari_warn(a, &t, DPAR_WARN_DDP_STATE,
                   "DDP replicates the state, which does not fit on one GPU.");
    }
    if (job->work->trains && s->dp > 1 && asked->global_batch == 0) {
        dpari_warn(a, &t, DPAR_WARN_LEARNING_RATE,
                   "the global batch grows with the GPUs: scale the learning rate with it.");
    }
}

static void dpari_advice_runner_up(const dpar_job *job, const dpar_search *asked,
                                   const dpari_need *n, const int32_t *order, int32_t from,
                                   int32_t kinds, dpar_advice *a)
{
    dpar_plan other;
    char name[48];
    dpar_text t;
    for (; from < kinds; from++) {
        double ratio;
        if (dpari_kind_plan(job, asked, n, order[from], &other) != DPAR_OK) {
            continue;
        }
        dpari_plan_name(job, &other, name, sizeof(name));
        if (dpari_same(name, a->name)) {
            continue;
        }
        ratio = other.step.total * a->plan.step.samples / (a->plan.step.total * other.step.samples);
        dpar_text_init(&t, a->runner_up, sizeof(a->runner_up));
        dpar_text_put(&t, name);
        dpar_text_put(&t, ": ");
        dpar_text_fixed(&t, 100.0 * (ratio > 1.0 ? ratio - 1.0 : 1.0 - ratio), 0);
        dpar_text_put(&t, ratio > 1.0 ? " % slower, " : " % faster, ");
        dpari_gb(&t, other.memory.total);
        dpar_text_put(&t, " a GPU");
        return;
    }
}

DPAR_API dpar_status dpar_recommend(const dpar_job *job, const dpar_search *search,
                                    dpar_advice *advice, dpar_why *why)
{
    int32_t order[16], kinds, i;
    dpari_need n;
    dpar_status st = dpar_workload_check(job->work, why);
    if (st == DPAR_OK) {
        st = dpar_cluster_check(job->cluster, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    n = dpari_need_of(job);
    kinds = dpari_kind_order(job, &n, order);
    dpari_zero(advice, sizeof(*advice));
    for (i = 0; i < kinds; i++) {
        if (dpari_kind_plan(job, search, &n, order[i], &advice->plan) == DPAR_OK) {
            dpari_plan_name(job, &advice->plan, advice->name, sizeof(advice->name));
            dpari_advice_why(job, &n, &advice->plan, advice->why, sizeof(advice->why));
            dpari_advice_warnings(job, search, &n, advice);
            dpari_advice_runner_up(job, search, &n, order, i + 1, kinds, advice);
            return DPAR_OK;
        }
    }
    /* nothing fits: TP in the node and FSDP across is the least, and says by how much it misses */
    advice->plan.strategy = dpar_strategy_default();
    advice->plan.strategy.tp = job->work->heads > 0 ? (int32_t)n.node : 1;
    advice->plan.strategy.dp = n.gpus / advice->plan.strategy.tp;
    advice->plan.strategy.sp = advice->plan.strategy.tp > 1;
    advice->plan.strategy.zero = job->work->trains ? 3 : 0;
    advice->plan.strategy.recompute = job->work->trains ? DPAR_RECOMPUTE_FULL : DPAR_RECOMPUTE_NONE;
    st = dpar_plan_of(job, &advice->plan.strategy, 0, &advice->plan, NULL, why);
    dpari_plan_name(job, &advice->plan, advice->name, sizeof(advice->name));
    if (st == DPAR_E_MEMORY) {
        dpari_advice_why(job, &n, &advice->plan, advice->why, sizeof(advice->why));
    }
    return st;
}
