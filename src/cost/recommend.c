/* SPDX-License-Identifier: MIT-0 */
#include "recommend.h"

#include "../base/inner.h"
#include "../base/text.h"
#include "price.h"
#include "terms.h"

/* ---- what does not fit ---------------------------------------------------------------------- */

/* The kinds of answers. Each is a search with some fields fixed; the planner prices the rest. */
enum {
    DPARI_KIND_DDP,
    DPARI_KIND_DDP_RECOMPUTE,
    DPARI_KIND_DOMAIN_NODE,
    DPARI_KIND_DOMAIN,
    DPARI_KIND_SP_TP,
    DPARI_KIND_PP_FSDP,
    DPARI_KIND_HSDP,
    DPARI_KIND_FSDP,
    DPARI_KIND_TP_FSDP,
    DPARI_KIND_TP_PP_DP,
    DPARI_KIND_PP_DP,
    DPARI_KIND_CP_PP_DP,
    DPARI_KIND_ANY,
    DPARI_KINDS
};

/* What decides: bytes of one replica on one GPU. */
typedef struct dpari_need {
    double state;       /* weights, gradients, optimizer of one replica */
    double activations; /* of one sample, nothing cut, nothing recomputed */
    double gpu;         /* bytes of a GPU that a program may plan with: 90 % */
    int32_t gpus, node; /* in all, and of one node */
    int32_t tp;         /* the widest tensor parallelism inside a node */
    int32_t spatial;    /* a grid of two or three axes: it can be cut into tiles */
    int32_t sequence;   /* the sequence is what does not fit, or very long */
    int32_t wide;       /* the state of a single layer is more than a GPU holds */
    int32_t deep;       /* many layers, each of them small: stages cost little to cut */
} dpari_need;

/* Sequences longer than this are cut rather than recomputed; from the second on they are when their
 * activations are what does not fit. */
static const double dpari_long_sequence = 65536.0;
static const double dpari_medium_sequence = 16384.0;
/* Stages of about so many layers keep their messages rare where layers are small. */
static const int32_t dpari_deep_stage = 50;
/* From here on FSDP's gathers over so many ranks no longer hide (Megatron SC21 Table 2: ZeRO-3
 * falls from 144 to 44 TFLOP/s from 384 to 1536 GPUs); pipelines send far less. */
static const int32_t dpari_many_gpus = 128;
/* The simplest kind that fits is taken when it is at most this much slower than the fastest: the
 * model's own error between kinds is of that size, and fewer kinds are fewer things to go wrong. */
static const double dpari_simpler = 1.3;
/* Staying with DDP by recomputing everything must cost less than this; cutting a deep model into
 * stages may cost more (few micro-batches a rank make it look slow): the field asks for it. */
static const double dpari_simpler_recompute = 1.1;
static const double dpari_simpler_deep = 1.4;

static int dpari_asks(const dpar_search *asked, int32_t field)
{
    return (asked->fixed_fields >> field & 1u) != 0;
}

static dpari_need dpari_need_of(const dpar_job *job, const dpar_search *asked)
{
    const dpar_workload *w = job->work;
    dpari_need n;
    int32_t i;
    dpari_zero(&n, sizeof(n));
    n.state = w->trains ? dpari_zero_bytes(&job->recipe, w->params, 0, 1)
                        : w->params * job->recipe.weight;
    for (i = 0; i < w->layers; i++) {
        n.activations +=
            dpari_layer_saved(w, i, DPAR_RECOMPUTE_NONE) * w->layer[i].tokens * w->layer[i].count;
    }
    n.gpu = 0.9 * job->cluster->gpu.memory_bytes;
    n.node = job->cluster->gpus_per_node;
    n.gpus = dpari_cluster_gpus(job->cluster);
    n.tp = w->heads > 0 ? n.node : 1;
    while (n.tp > 1 && (n.node % n.tp != 0 || w->heads % n.tp != 0 || w->hidden % n.tp != 0)) {
        n.tp--;
    }
    n.tp = dpari_asks(asked, DPAR_FIELD_TP) ? asked->fixed.tp : n.tp;
    n.spatial = w->dims > 1;
    n.wide = dpari_zero_bytes(&job->recipe, dpari_layer_params(w, dpari_workload_largest(w)), 0,
                              1) > n.gpu;
    n.sequence =
        w->heads > 0 && w->vocab > 0 &&
        (w->tokens >= dpari_long_sequence || (n.state < n.gpu && n.state + n.activations > n.gpu &&
                                              w->tokens >= dpari_medium_sequence));
    n.deep = w->blocks >= 2 * dpari_deep_stage && n.state / w->blocks < 0.05 * n.gpu;
    return n;
}

/* ---- the kinds as searches ------------------------------------------------------------------ */

static void dpari_fix(dpar_search *q, int32_t field)
{
    q->fixed_fields |= (uint32_t)1 << field;
}

static void dpari_free(dpar_search *q, int32_t field)
{
    q->fixed_fields &= ~((uint32_t)1 << field);
}

/* One of each, no ZeRO, no recomputation chosen yet: what a kind does not free stays so. */
static void dpari_kind_fix(dpar_search *q)
{
    q->fixed.tp = q->fixed.pp = q->fixed.cp = q->fixed.vp = 1;
    q->fixed.zero = 0;
    q->fixed.tiles[0] = q->fixed.tiles[1] = q->fixed.tiles[2] = 1;
    dpari_fix(q, DPAR_FIELD_TP);
    dpari_fix(q, DPAR_FIELD_PP);
    dpari_fix(q, DPAR_FIELD_CP);
    dpari_fix(q, DPAR_FIELD_VP);
    dpari_fix(q, DPAR_FIELD_ZERO);
    dpari_fix(q, DPAR_FIELD_TILES);
    dpari_free(q, DPAR_FIELD_DP);
    dpari_free(q, DPAR_FIELD_SP);
    dpari_free(q, DPAR_FIELD_SHARD);
    dpari_free(q, DPAR_FIELD_SCHEDULE);
}

static void dpari_kind_shard(dpar_search *q, int32_t shard)
{
    q->fixed.zero = 3;
    q->fixed.shard = shard;
    dpari_fix(q, DPAR_FIELD_SHARD);
}

/* Pipelines with ZeRO-1 over the replicas; stages as many as are best. */
static void dpari_kind_pipeline(dpar_search *q, const dpar_workload *w, const dpari_need *n)
{
    q->fixed.zero = w->trains ? 1 : 0;
    dpari_free(q, DPAR_FIELD_PP);
    dpari_free(q, DPAR_FIELD_VP);
    if (n->sequence) {
        dpari_free(q, DPAR_FIELD_CP);
    }
}

/* Stages of about fifty layers, a power of two of them that leaves ranks to shard over; 0: none. */
static int32_t dpari_deep_stages(const dpar_workload *w, const dpari_need *n)
{
    int32_t pp = 1;
    while (3 * pp * dpari_deep_stage <= 2 * w->blocks && n->gpus % (4 * pp) == 0) {
        pp *= 2;
    }
    return pp > 1 ? pp : 0;
}

/* Fixes what makes a kind a kind; the planner fills in the rest. 0 when it cannot be here. */
static int dpari_kind_search(const dpar_workload *w, const dpari_need *n, int32_t kind,
                             dpar_search *q)
{
    dpari_kind_fix(q);
    switch (kind) {
    case DPARI_KIND_DDP:
    case DPARI_KIND_DDP_RECOMPUTE:
        q->fixed.recompute = kind == DPARI_KIND_DDP ? DPAR_RECOMPUTE_NONE : DPAR_RECOMPUTE_FULL;
        dpari_fix(q, DPAR_FIELD_RECOMPUTE);
        return kind == DPARI_KIND_DDP || w->trains;
    case DPARI_KIND_DOMAIN_NODE: /* halos inside nodes, replicas across */
        q->fixed.dp = n->gpus / n->node;
        dpari_fix(q, DPAR_FIELD_DP);
        dpari_free(q, DPAR_FIELD_TILES);
        return w->dims > 0 && n->node > 1 && n->gpus % n->node == 0;
    case DPARI_KIND_DOMAIN:
        dpari_free(q, DPAR_FIELD_TILES);
        if (n->state >= n->gpu) {
            dpari_free(q, DPAR_FIELD_ZERO);
        }
        return w->dims > 0;
    case DPARI_KIND_SP_TP:
        q->fixed.tp = n->tp;
        dpari_free(q, DPAR_FIELD_ZERO);
        dpari_free(q, DPAR_FIELD_CP);
        return n->tp > 1;
    case DPARI_KIND_PP_FSDP:
        q->fixed.zero = 3;
        q->fixed.pp = dpari_deep_stages(w, n);
        return w->trains && q->fixed.pp > 1;
    case DPARI_KIND_HSDP:
        dpari_kind_shard(q, n->node);
        return w->trains && n->gpus > n->node && n->node > 1;
    case DPARI_KIND_FSDP: dpari_kind_shard(q, 0); return w->trains;
    case DPARI_KIND_TP_FSDP:
        dpari_kind_shard(q, 0);
        q->fixed.tp = n->tp;
        return n->tp > 1 && w->trains;
    case DPARI_KIND_TP_PP_DP:
        q->fixed.tp = n->tp;
        dpari_kind_pipeline(q, w, n);
        return n->tp > 1;
    case DPARI_KIND_PP_DP:
    case DPARI_KIND_CP_PP_DP:
        dpari_kind_pipeline(q, w, n);
        dpari_free(q, DPAR_FIELD_TP);
        if (kind == DPARI_KIND_CP_PP_DP) {
            dpari_free(q, DPAR_FIELD_CP);
        }
        return w->heads > 0;
    default: q->fixed_fields = 0; return 1;
    }
}

/* What the caller fixed binds, too. 0: the kind is another one. */
static int dpari_kind_bind(const dpar_search *asked, dpar_search *q)
{
    dpar_strategy wanted = asked->fixed;
    int32_t f, i;
    for (f = 0; f < DPAR_FIELDS; f++) {
        const int32_t n = f == DPAR_FIELD_TILES ? 3 : 1, *want = dpari_field_at(&wanted, f);
        int32_t *at = dpari_field_at(&q->fixed, f);
        for (i = 0; i < n && dpari_asks(asked, f); i++) {
            if (dpari_asks(q, f) && at[i] != want[i]) {
                return 0;
            }
            at[i] = want[i];
        }
        q->fixed_fields |= asked->fixed_fields & (uint32_t)1 << f;
    }
    return 1;
}

static dpar_status dpari_kind_run(const dpar_job *job, const dpar_search *asked, dpar_plan *plan)
{
    dpar_planner p;
    dpar_search q = *asked;
    dpar_status st;
    q.top = plan;
    q.top_room = 1;
    q.front = NULL;
    st = dpar_planner_init(&p, job, &q, NULL);
    if (st != DPAR_OK) {
        return st;
    }
    do {
        st = dpar_planner_run(&p, INT64_MAX, NULL);
    } while (st == DPAR_MORE);
    return st == DPAR_DONE ? DPAR_OK : st;
}

/* The best with stages of two layers at least, when the best of all has shorter ones: those are
 * never recommended (their messages and the uneven ends are what the model knows least). */
static dpar_status dpari_kind_longer(const dpar_job *job, const dpar_search *free_stages,
                                     dpar_plan *plan)
{
    dpar_search q = *free_stages;
    dpar_status st = DPAR_E_NONE, one;
    dpar_plan other;
    int32_t gpus = dpari_cluster_gpus(job->cluster);
    dpari_fix(&q, DPAR_FIELD_PP);
    for (q.fixed.pp = 1; 2 * q.fixed.pp <= job->work->blocks; q.fixed.pp++) {
        if (gpus % q.fixed.pp != 0) {
            continue;
        }
        one = dpari_kind_run(job, &q, &other);
        if (one == DPAR_OK && (st != DPAR_OK || other.step.total * plan->step.samples <
                                                    plan->step.total * other.step.samples)) {
            *plan = other;
            st = DPAR_OK;
        }
    }
    return st;
}

/* Smaller micro-batches until there are 4 pp of them, unless that costs more than a tenth. */
static void dpari_kind_more_micro(const dpar_job *job, dpar_search *q, dpar_plan *plan)
{
    double limit = 1.1 * plan->step.total / plan->step.samples;
    dpar_plan other;
    q->fixed.pp = plan->strategy.pp;
    dpari_fix(q, DPAR_FIELD_PP);
    dpari_fix(q, DPAR_FIELD_MICRO_BATCH);
    while (plan->strategy.micro_batch > 1 && plan->strategy.micro_batches < 4 * plan->strategy.pp) {
        q->fixed.micro_batch = plan->strategy.micro_batch / 2;
        if (dpari_kind_run(job, q, &other) != DPAR_OK ||
            other.step.total > limit * other.step.samples) {
            return;
        }
        *plan = other;
    }
}

/* Best plan of a kind; E_NONE when it does not fit, the rest as the planner. */
static dpar_status dpari_kind_plan(const dpar_job *job, const dpar_search *asked,
                                   const dpari_need *n, int32_t kind, dpar_plan *plan)
{
    dpar_search q = *asked;
    dpar_status st;
    q.gpus = n->gpus;
    q.space = DPAR_SPACE_USUAL;
    if (!dpari_kind_search(job->work, n, kind, &q) || !dpari_kind_bind(asked, &q)) {
        return DPAR_E_NONE;
    }
    st = dpari_kind_run(job, &q, plan);
    if (st != DPAR_OK || kind == DPARI_KIND_ANY || plan->strategy.pp == 1) {
        return st;
    }
    if (2 * plan->strategy.pp > job->work->blocks && !dpari_asks(asked, DPAR_FIELD_PP)) {
        st = dpari_kind_longer(job, &q, plan);
    }
    if (st == DPAR_OK && plan->strategy.pp > 1 && !dpari_asks(asked, DPAR_FIELD_MICRO_BATCH) &&
        !dpari_asks(asked, DPAR_FIELD_MICRO_BATCHES)) {
        dpari_kind_more_micro(job, &q, plan);
    }
    return st;
}

/* ---- the choice ----------------------------------------------------------------------------- */

/* The kinds worth comparing, simplest first by the flowchart: does it fit on one GPU? is it the
 * parameters (many small layers; else sharding, heavy traffic inside nodes and light across)? is it
 * the activations (a grid; a sequence)? */
static int32_t dpari_kind_order(const dpar_job *job, const dpar_search *asked, const dpari_need *n,
                                int32_t *order)
{
    const dpar_workload *w = job->work;
    int32_t k = 0;
    int large = w->params >= 1e10 && n->gpus >= dpari_many_gpus && n->node >= 8;
    if (n->spatial && (!w->trains || n->state < n->gpu)) {
        order[k++] = DPARI_KIND_DOMAIN_NODE;
        order[k++] = DPARI_KIND_DOMAIN;
    }
    if (n->sequence && !large) {
        order[k++] = DPARI_KIND_SP_TP;
    }
    if (n->state < n->gpu && !n->sequence) {
        order[k++] = DPARI_KIND_DDP_RECOMPUTE;
    }
    if (n->deep) {
        order[k++] = DPARI_KIND_PP_FSDP;
    }
    if (large) {
        order[k++] = DPARI_KIND_TP_PP_DP;
        order[k++] = DPARI_KIND_PP_DP;
        order[k++] = DPARI_KIND_CP_PP_DP;
    }
    if (n->state / n->node < 0.4 * n->gpu) {
        order[k++] = DPARI_KIND_HSDP; /* half empty with one node's share: replicas across nodes */
    }
    if (n->gpus > n->node || n->wide) {
        order[k++] = DPARI_KIND_TP_FSDP;
        order[k++] = DPARI_KIND_TP_PP_DP;
    }
    order[k++] = DPARI_KIND_FSDP;
    if (n->gpus <= n->node) {
        order[k++] = DPARI_KIND_TP_FSDP;
        order[k++] = DPARI_KIND_TP_PP_DP;
    }
    if (n->spatial) {
        order[k++] = DPARI_KIND_DOMAIN;
    }
    if (asked->fixed_fields != 0) {
        order[k++] = DPARI_KIND_ANY; /* what is fixed may be none of them */
    }
    return k;
}

/* Seconds a sample of the best plan of each kind in `order`; 0 where there is none. */
static double dpari_kind_seconds(const dpar_job *job, const dpar_search *asked, const dpari_need *n,
                                 const int32_t *order, int32_t kinds, double *seconds)
{
    double best = 0.0;
    dpar_plan plan;
    int32_t i;
    for (i = 0; i < kinds; i++) {
        seconds[i] = 0.0;
        if (dpari_kind_plan(job, asked, n, order[i], &plan) == DPAR_OK) {
            seconds[i] = plan.step.total / plan.step.samples;
            best = best > 0.0 && best < seconds[i] ? best : seconds[i];
        }
    }
    return best;
}

/* What is taken: the first kind of the order that is not much slower than the fastest. */
static int32_t dpari_kind_choose(const int32_t *order, int32_t kinds, const double *seconds,
                                 double best)
{
    int32_t i;
    for (i = 0; i < kinds; i++) {
        double limit = order[i] == DPARI_KIND_DDP_RECOMPUTE ? dpari_simpler_recompute
                       : order[i] == DPARI_KIND_PP_FSDP     ? dpari_simpler_deep
                                                            : dpari_simpler;
        if (seconds[i] > 0.0 && seconds[i] <= limit * best) {
            return i;
        }
    }
    return -1;
}

/* ---- words ---------------------------------------------------------------------------------- */

static void dpari_name_part(dpar_text *t, const char *name, int32_t degree)
{
    if (t->used > 0) {
        dpar_text_put(t, " + ");
    }
    dpar_text_put(t, name);
    if (degree > 1) {
        dpari_text_char(t, '=');
        dpari_text_int(t, degree);
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
        dpari_name_part(&t, s->sp && job->work->tokens >= dpari_medium_sequence ? "SP+TP" : "TP",
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
    dpari_text_fixed(t, bytes * 1e-9, bytes < 1e10 ? 1 : 0);
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
        dpar_text_put(&t, n->state < n->gpu ? ", which one GPU of "
                          : n->state < gpu  ? ", and leave too little of one GPU's "
                                            : ", more than one GPU's ");
        dpari_gb(&t, gpu);
        if (n->state < n->gpu) {
            dpar_text_put(&t, " holds");
        } else if (n->state >= gpu) {
            dpar_text_put(&t, " by ");
            dpari_gb(&t, n->state - gpu);
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
            dpari_gb(&t, dpari_zero_bytes(&job->recipe, plan->memory.params, plan->strategy.zero,
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

/* Mistakes that the plan makes. */
static void dpari_advice_warnings(const dpar_job *job, const dpar_search *asked,
                                  const dpari_need *n, dpar_advice *a)
{
    const dpar_strategy *s = &a->plan.strategy;
    double over;
    dpar_text t;
    dpar_text_init(&t, a->warning_text, sizeof(a->warning_text));
    if (s->zero == 3 && s->tp == 1 && n->state + n->activations < n->gpu) {
        dpari_warn(a, &t, DPAR_WARN_FSDP_NEEDLESS,
                   "FSDP though the model fits on one GPU: the gathers are needless traffic.");
    }
    if (s->tp > job->cluster->gpus_per_node && n->gpus > n->node) {
        dpari_warn(a, &t, DPAR_WARN_TP_ACROSS,
                   "tensor parallelism across nodes: every layer waits for the network.");
    }
    if (s->pp > 1 && s->micro_batches < 4 * s->pp) {
        dpari_warn(a, &t, DPAR_WARN_FEW_MICRO,
                   "fewer than 4 micro-batches a stage: the bubble passes 20 %.");
    }
    over = a->plan.memory.term[DPAR_MEM_ACTIVATIONS];
    if (s->zero >= 1 && over > 0.5 * a->plan.memory.total) {
        dpari_warn(a, &t, DPAR_WARN_ACTIVATIONS,
                   "activations are most of the memory: sharding state does not shrink them.");
    }
    if (!a->plan.fits && s->zero == 0 && s->tp == 1 && s->pp == 1 && n->state > n->gpu) {
        dpari_warn(a, &t, DPAR_WARN_DDP_STATE,
                   "DDP replicates the state, which does not fit on one GPU.");
    }
    if (job->work->trains && s->dp > 1 && asked->global_batch == 0) {
        dpari_warn(a, &t, DPAR_WARN_LEARNING_RATE,
                   "the global batch grows with the GPUs: scale the learning rate with it.");
    }
}

/* The fastest of the kinds that were not taken, and what it would cost. */
static void dpari_advice_runner_up(const dpar_job *job, const dpar_search *asked,
                                   const dpari_need *n, const int32_t *order, int32_t kinds,
                                   const double *seconds, dpar_advice *a)
{
    dpar_plan plan, other;
    char name[48];
    double ratio, best = 0.0;
    dpar_text t;
    int32_t i;
    for (i = 0; i < kinds; i++) {
        if (seconds[i] <= 0.0 || (best > 0.0 && seconds[i] >= best) ||
            dpari_kind_plan(job, asked, n, order[i], &plan) != DPAR_OK) {
            continue;
        }
        dpari_plan_name(job, &plan, name, sizeof(name));
        if (!dpari_same(name, a->name)) {
            best = seconds[i];
            other = plan;
        }
    }
    if (best <= 0.0) {
        return;
    }
    dpari_plan_name(job, &other, name, sizeof(name));
    ratio = best * a->plan.step.samples / a->plan.step.total;
    dpar_text_init(&t, a->runner_up, sizeof(a->runner_up));
    dpar_text_put(&t, name);
    dpar_text_put(&t, ": ");
    dpari_text_fixed(&t, 100.0 * (ratio > 1.0 ? ratio - 1.0 : 1.0 - ratio), 0);
    dpar_text_put(&t, ratio > 1.0 ? " % slower, " : " % faster by the model, less simple, ");
    dpari_gb(&t, other.memory.total);
    dpar_text_put(&t, " a GPU");
}

/* Something is fixed: what would be recommended otherwise stands in the runner-up's place. */
static void dpari_advice_free(const dpar_job *job, const dpar_search *asked, dpar_advice *a)
{
    dpar_advice other;
    dpar_search q = *asked;
    dpar_text t;
    double ratio;
    q.fixed_fields = 0;
    if (asked->fixed_fields == 0 || dpar_plan_recommend(job, &q, &other, NULL) != DPAR_OK ||
        dpari_same(other.name, a->name)) {
        return;
    }
    dpar_text_init(&t, a->runner_up, sizeof a->runner_up);
    dpar_text_put(&t, "with nothing fixed ");
    dpar_text_put(&t, other.name);
    dpar_text_put(&t, ": ");
    if (a->plan.fits) {
        ratio = other.plan.step.total / other.plan.step.samples * a->plan.step.samples /
                a->plan.step.total;
        dpari_text_fixed(&t, 100.0 * (ratio > 1.0 ? ratio - 1.0 : 1.0 - ratio), 0);
        dpar_text_put(&t, ratio > 1.0 ? " % slower, " : " % faster, ");
    }
    dpari_gb(&t, other.plan.memory.total);
    dpar_text_put(&t, " a GPU");
}

/* What comes nearest when nothing fits: E_MEMORY and a->plan, E_NONE where nothing is legal. */
static dpar_status dpari_advice_near(const dpar_job *job, const dpar_search *asked,
                                     const dpari_need *n, dpar_advice *a)
{
    const dpar_workload *w = job->work;
    dpar_plan plan;
    dpar_strategy s;
    dpar_status st = DPAR_E_NONE, one;
    int32_t k;
    if (asked->fixed_fields != 0) {
        s = asked->fixed;
        one = dpar_strategy_complete(job, &s, asked->fixed_fields, asked->global_batch, NULL);
        one = one == DPAR_OK ? dpar_plan_price(job, &s, 0, &a->plan, NULL, NULL) : one;
        return one == DPAR_OK || one == DPAR_E_MEMORY ? DPAR_E_MEMORY : DPAR_E_NONE;
    }
    for (k = 0; k < 2; k++) { /* sharded over all alone, then with TP in the node */
        dpar_strategy_init(&s);
        s.tp = k == 1 ? n->tp : 1;
        s.sp = s.tp > 1;
        s.dp = n->gpus / s.tp;
        s.zero = w->trains ? 3 : 0;
        s.recompute = w->trains ? DPAR_RECOMPUTE_FULL : DPAR_RECOMPUTE_NONE;
        one = dpar_plan_price(job, &s, 0, &plan, NULL, NULL);
        if ((one == DPAR_OK || one == DPAR_E_MEMORY) && (k == 0 || n->tp > 1)) {
            a->plan = plan;
            st = DPAR_E_MEMORY;
        }
    }
    return st;
}

/* Nothing fits: what comes nearest, by how much it misses, and on how many GPUs it would fit. */
static dpar_status dpari_advice_none(const dpar_job *job, const dpar_search *asked,
                                     const dpari_need *n, dpar_advice *a, dpar_why *why)
{
    dpar_plan plan;
    dpar_search q = *asked;
    dpar_text t;
    if (dpari_advice_near(job, asked, n, a) != DPAR_E_MEMORY) {
        return dpari_say(DPAR_E_NONE, why, "no way to use # GPUs with a global batch of #", n->gpus,
                         asked->global_batch, 0, 0);
    }
    dpari_plan_name(job, &a->plan, a->name, sizeof(a->name));
    if (a->plan.fits &&
        a->plan.memory.upper <= job->cluster->gpu.memory_bytes) { /* it would, with another batch */
        return dpari_say(DPAR_E_NONE, why,
                         "no way of # GPUs divides a global batch of # and fits; with another "
                         "batch it would",
                         n->gpus, asked->global_batch, 0, 0);
    }
    dpari_advice_why(job, n, &a->plan, a->why, sizeof(a->why));
    dpar_text_init(&t, a->runner_up, sizeof(a->runner_up));
    dpar_text_put(&t, "state alone, sharded over all GPUs: ");
    dpari_gb(&t, n->state / n->gpus);
    dpar_text_put(&t, " a GPU");
    q.global_batch = 0;
    if (dpar_plan_smallest(job, &q, (int32_t)dpari_least(64 * (int64_t)n->gpus, INT32_MAX), &plan,
                           NULL) == DPAR_OK) {
        dpar_text_put(&t, "; it fits on ");
        dpari_text_int(&t, dpar_strategy_ranks(&plan.strategy));
        dpar_text_put(&t, " such GPUs");
    }
    dpari_advice_warnings(job, asked, n, a);
    dpari_advice_free(job, asked, a);
    return dpari_say(DPAR_E_MEMORY, why,
                     asked->fixed_fields != 0
                         ? "it does not fit on # GPUs with what is fixed: # GB a GPU, the GPU has "
                           "# GB"
                         : "it does not fit on # GPUs: # GB a GPU when sharded as far as it goes, "
                           "the GPU has # GB",
                     n->gpus, (int64_t)(a->plan.memory.upper * 1e-9 + 0.999),
                     (int64_t)(job->cluster->gpu.memory_bytes * 1e-9 + 0.5), 0);
}

DPAR_API DPARI_COLD dpar_status dpar_plan_recommend(const dpar_job *job, const dpar_search *search,
                                                    dpar_advice *advice, dpar_why *why)
{
    int32_t order[16], kinds, chosen = -1;
    double seconds[16], best;
    dpari_need n;
    dpar_search asked = *search;
    dpar_status st = dpari_workload_check(job->work, why);
    if (st == DPAR_OK) {
        st = dpari_cluster_check(job->cluster, why);
    }
    st = st == DPAR_OK ? dpari_recipe_check(&job->recipe, why) : st;
    if (st != DPAR_OK) {
        return st;
    }
    n = dpari_need_of(job, search);
    if (search->global_batch < 0 || (search->gpus != 0 && search->gpus != n.gpus)) {
        return dpari_say(DPAR_E_ARG, why,
                         "advice for # GPUs and a global batch of #, but the cluster has # GPUs",
                         search->gpus, search->global_batch, n.gpus, 0);
    }
    dpari_zero(advice, sizeof(*advice));
    kinds = dpari_kind_order(job, &asked, &n, order + 1);
    order[0] = DPARI_KIND_DDP;
    if (job->work->trains &&
        dpari_kind_plan(job, &asked, &n, DPARI_KIND_DDP, &advice->plan) == DPAR_OK) {
        chosen = 0;
    }
    best = dpari_kind_seconds(job, &asked, &n, order, kinds + 1, seconds);
    if (chosen < 0) {
        chosen = dpari_kind_choose(order, kinds + 1, seconds, best);
    }
    if (chosen < 0) { /* none of the usual kinds: anything that the planner finds */
        order[0] = DPARI_KIND_ANY;
        chosen = 0;
    }
    if (dpari_kind_plan(job, &asked, &n, order[chosen], &advice->plan) != DPAR_OK) {
        return dpari_advice_none(job, search, &n, advice, why);
    }
    dpari_plan_name(job, &advice->plan, advice->name, sizeof(advice->name));
    dpari_advice_why(job, &n, &advice->plan, advice->why, sizeof(advice->why));
    dpari_advice_warnings(job, search, &n, advice);
    dpari_advice_runner_up(job, search, &n, order, kinds + 1, seconds, advice);
    dpari_advice_free(job, search, advice);
    return DPAR_OK;
}
