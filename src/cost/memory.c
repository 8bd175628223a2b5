/* SPDX-License-Identifier: MIT-0 */
/* Predicts the memory of each pipeline stage term by term, with the formulas that are published for
 * Megatron, FSDP and DeepSpeed, and takes the stage that needs the most. The planner calls
 * dpari_price_memory for each strategy, and dpari_memory_fits to drop those that do not fit. */
#include "memory.h"

#include "terms.h"

DPAR_API const char *dpar_memory_name(int32_t term)
{
    static const char name[DPAR_MEMORY_COUNT][16] = {
        "weights", "gradients", "master",    "optimizer", "activations", "logits",       "gathered",
        "buckets", "halo",      "transient", "comm",      "context",     "fragmentation"};
    return term >= 0 && term < DPAR_MEMORY_COUNT ? name[term] : "?";
}

DPARI_INTERNAL double dpari_zero_bytes(const dpar_recipe *r, double params, int32_t stage,
                                       int32_t d)
{
    double n = d > 0 ? d : 1;
    return params * (r->weight / (stage >= 3 ? n : 1.0) + r->gradient / (stage >= 2 ? n : 1.0) +
                     (r->master + r->moments) / (stage >= 1 ? n : 1.0));
}

/* The rules of the schedules as published; a simulation of the schedules counts the same. The unit
 * is the activations of a full stage, so a chunk of an interleaved stage counts 1/v. GPipe and
 * breadth-first keep all micro-batches, and no schedule keeps more than there are. */
DPARI_INTERNAL double dpari_in_flight(int32_t schedule, int32_t pp, int32_t vp, int32_t rank,
                                      int32_t micro_batches)
{
    double p = pp, v = vp, r = rank, m = micro_batches, n;
    if (pp < 1 || vp < 1 || rank < 0 || rank >= pp || micro_batches < 1) {
        return 0.0;
    }
    switch (pp > 1 ? schedule : DPAR_SCHEDULE_1F1B) {
    case DPAR_SCHEDULE_GPIPE:
    case DPAR_SCHEDULE_BREADTH_FIRST: return m;
    case DPAR_SCHEDULE_INTERLEAVED: n = ((v - 1.0) * p + 2.0 * (p - 1.0 - r) + 1.0) / v; break;
    case DPAR_SCHEDULE_ZB_H1:
    case DPAR_SCHEDULE_ZBV: n = p; break;
    case DPAR_SCHEDULE_ZB_2P: n = 2.0 * p; break;
    case DPAR_SCHEDULE_V_HALF: n = (double)((pp + 2) / 2); break;
    case DPAR_SCHEDULE_V_MIN: n = (double)((pp + 4) / 3); break;
    case DPAR_SCHEDULE_DUALPIPE: n = p + 1.0; break;
    case DPAR_SCHEDULE_DUALPIPEV: n = p + 0.5; break;
    default: n = p - r; break;
    }
    return dpari_leastf(n, m);
}

/* ---- terms ---------------------------------------------------------------------------------- */

/* Sets the terms of weights, gradients, master weights and moments, divided as the ZeRO stage says.
 * Context-parallel ranks and the tiles of a sample hold the same weights, so they share the state
 * too (Megatron's distributed optimizer). */
static void dpari_memory_states(const dpar_job *job, const dpar_strategy *s, const dpari_stage *st,
                                dpar_memory_usage *m)
{
    const dpar_recipe *r = &job->recipe;
    double d = dpari_zero_ranks(s);
    double experts = dpari_mostf(1.0, d * s->tp / ((double)s->ep * s->etp));
    double dense = st->params, moe = st->expert_params;
    double state = s->zero >= 1 ? dense / d + moe / experts : dense + moe;
    double grads = s->zero >= 2 ? dense / d + moe / experts : dense + moe;
    double held = s->zero >= 3 ? dense / d + moe / experts : dense + moe;
    /* DualPipe: a rank holds two stages, one from each end. The rank at the mirrored place holds
     * the same two, so ZeRO divides their optimizer state between them. */
    if (s->schedule == DPAR_SCHEDULE_DUALPIPE && s->pp > 1) {
        held *= 2.0;
        grads *= 2.0;
        state *= s->zero >= 1 ? 1.0 : 2.0;
    }
    m->params = dense + moe;
    m->term[DPAR_MEMORY_WEIGHTS] = held * r->weight;
    if (!job->work->trains) {
        return;
    }
    m->term[DPAR_MEMORY_GRADIENTS] = grads * r->gradient;
    m->term[DPAR_MEMORY_MASTER] = state * r->master;
    m->term[DPAR_MEMORY_OPTIMIZER] = state * r->moments;
}

/* Reduces a term to at most `stay` bytes on the GPU. The rest moves to the host's memory if
 * `in_memory`, otherwise to NVMe, which is not counted. */
static DPARI_COLD void dpari_memory_leave(dpar_memory_usage *m, int32_t term, double stay,
                                          int in_memory)
{
    double left = dpari_leastf(m->term[term], stay);
    if (in_memory) {
        m->host += m->term[term] - left;
    }
    m->term[term] = left;
}

/* Moves the terms that the strategy offloads. */

static DPARI_COLD void dpari_memory_offload(const dpar_job *job, const dpar_strategy *s,
                                            const dpari_stage *st, dpar_memory_usage *m)
{
    if (s->offload & DPAR_OFFLOAD_OPTIMIZER) {
        int in_memory = !(s->offload & DPAR_OFFLOAD_NVME);
        dpari_memory_leave(m, DPAR_MEMORY_MASTER, 0.0, in_memory);
        dpari_memory_leave(m, DPAR_MEMORY_OPTIMIZER, 0.0, in_memory);
        if (s->zero >= 2) { /* gradients are sent to the host at once; only the buckets stay */
            dpari_memory_leave(m, DPAR_MEMORY_GRADIENTS, 0.0, 1);
        }
    }
    if (s->offload & DPAR_OFFLOAD_WEIGHTS) { /* two layers at a time stay on the device */
        dpari_memory_leave(m, DPAR_MEMORY_WEIGHTS, 2.0 * st->largest * job->recipe.weight, 1);
    }
    if (s->offload & DPAR_OFFLOAD_ACTIVATIONS) { /* one micro-batch and two layers stay */
        dpari_memory_leave(m, DPAR_MEMORY_ACTIVATIONS,
                           2.0 * st->kept / dpari_mostf(1.0, st->layers), 1);
    }
}

/* Sets the terms of gathered weights and of gradient buckets.
 *
 * FSDP gathers units: ZeRO-3 holds this unit and the next one, which is prefetched. With ZeRO-2 and
 * 3 the gradients of one unit exist in full before they are scattered, in the format in which they
 * are sent, but at least 16 bits.
 *
 * DeepSpeed has no units but buckets, of 5e8 elements by default. Up to two buckets of weights are
 * alive and one more is being fetched, all in 16 bits; two buckets of gradients are in flight, in
 * 32 bits. */
static void dpari_memory_buffers(const dpar_job *job, const dpar_strategy *s, const dpari_stage *st,
                                 dpar_memory_usage *m)
{
    const dpar_recipe *r = &job->recipe;
    double unit = st->largest, bucket = dpari_leastf(r->bucket, m->params);
    if (job->work->stack == DPAR_MODEL_STACK_MEGATRON && s->zero >= 2) {
        bucket = dpari_leastf(5e8, m->params);
    }
    if (s->zero >= 2 && bucket > 0.0 && dpari_zero_ranks(s) > 1.0) {
        m->term[DPAR_MEMORY_BUCKETS] = 2.0 * 4.0 * bucket;
        if (s->zero == 3) { /* the largest weight of a layer is about a third of the layer */
            m->term[DPAR_MEMORY_GATHERED] = 2.0 * (dpari_mostf(2.0 * bucket, unit / 3.0) + bucket);
        }
        return;
    }
    if (s->zero >= 3 && dpari_zero_ranks(s) > 1.0) {
        /* the products need at least 16 bits, even if fewer are sent */
        m->term[DPAR_MEMORY_GATHERED] = 2.0 * unit * dpari_mostf(2.0, r->gathered);
        m->term[DPAR_MEMORY_BUCKETS] = unit * dpari_mostf(2.0, r->reduced);
    } else if (s->dp > 1 && job->work->stack >= DPAR_MODEL_STACK_TORCH &&
               r->gradient <= r->weight) {
        /* PyTorch DDP copies the gradients into buckets of 25 MB and sends those. Gradients that
         * are wider than the weights have a buffer of their own, which is sent without a copy. */
        m->term[DPAR_MEMORY_BUCKETS] = s->zero == 0 ? m->params * r->reduced : 4.0 * 25e6;
    } else if (s->zero == 2 && dpari_zero_ranks(s) > 1.0) {
        m->term[DPAR_MEMORY_BUCKETS] = unit * dpari_mostf(2.0, r->reduced);
    }
}

/* Sets the term of halos: the two faces of a tile along each dim that is cut. */
static DPARI_COLD void dpari_memory_halo(const dpar_job *job, const dpar_strategy *s,
                                         dpar_memory_usage *m)
{
    const dpar_workload *w = job->work;
    double bytes = 0.0;
    int32_t i, k, j;
    for (i = 0; i < w->layers; i++) {
        double cells = 0.0;
        for (k = 0; k < w->dims; k++) {
            double face = 1.0;
            for (j = 0; j < w->dims; j++) {
                face *= j == k ? 1.0 : (double)w->extent[j] / w->layer[i].shrink / s->tiles[j];
            }
            if (s->tiles[k] > 1) {
                cells += 2.0 * face;
            }
        }
        bytes += cells * w->layer[i].reach_bytes * w->layer[i].count;
    }
    m->term[DPAR_MEMORY_HALO] = 2.0 * bytes * s->micro_batch; /* received cells and a send buffer */
}

/* Sets the terms of the peak. In the backward of a block its gradients and all dummies so far are
 * alive; in Megatron-Core without a pipeline the logits are alive too. In other programs the logits
 * are freed before (a pipeline frees the output of a stage once it is sent), so the loss is a peak
 * of its own, and only its excess over the block's peak counts as LOGITS. */
static void dpari_memory_peak(const dpar_job *job, const dpar_strategy *s, const dpari_stage *st,
                              dpar_memory_usage *m)
{
    double head = st->logits > 0.0 && s->zero < 3 ? st->head_dummies : 0.0;
    double block = st->transient + (s->zero < 3 ? st->dummies : 0.0) + head;
    if (s->pp > 1) { /* an activation received and a gradient to send */
        block += 2.0 * st->boundary;
    }
    if (s->pp > 1 || job->work->stack != DPAR_MODEL_STACK_MEGATRON_CORE) {
        m->term[DPAR_MEMORY_LOGITS] = dpari_mostf(0.0, st->logits + head - block);
    } else {
        m->term[DPAR_MEMORY_LOGITS] = st->logits;
    }
    m->term[DPAR_MEMORY_TRANSIENT] = block;
    m->moment = st->logits + head > block ? DPAR_MEMORY_PEAK_LOSS : DPAR_MEMORY_PEAK_LAYER;
}

/* Returns 1 if gathered weights are released late, otherwise 0.
 *
 * DeepSpeed's ZeRO-3 does that. If the GPU computes longer than it gathers, all weights accumulate,
 * in 16 bits. There are two causes. The backward of a product keeps the weight of its forward;
 * DeepSpeed's own linear layer does not, but it is used only under zero.Init (deepspeedai/DeepSpeed
 * PR 8189). In a recomputed layer, where the weight is not kept, the block of a gather is released
 * only when the computing stream has caught up with the host, which may be a whole pass ahead. If
 * the weights come from the host, the gathers take longer than the products, so the host is not
 * ahead. The allocator waits for such blocks before it fails, so they never prevent a plan from
 * fitting. */
static int dpari_memory_late(const dpar_job *job, const dpar_strategy *s)
{
    return s->zero == 3 && job->work->trains && dpari_zero_ranks(s) > 1.0 &&
           (job->recipe.bucket > 0.0 || job->work->stack == DPAR_MODEL_STACK_MEGATRON) &&
           !((s->offload & DPAR_OFFLOAD_WEIGHTS) && s->recompute == DPAR_RECOMPUTE_FULL);
}

/* Predicts the memory of a stage, all terms and their sums. */
static void dpari_stage_bytes(const dpar_job *job, const dpar_strategy *s, const dpari_stage *st,
                              dpar_memory_usage *m)
{
    int32_t i, ranks = dpar_strategy_ranks(s);
    double sum = 0.0, spread = 0.05;
    dpari_zero(m, sizeof(*m));
    m->worst = st->rank;
    dpari_memory_states(job, s, st, m);
    m->term[DPAR_MEMORY_ACTIVATIONS] = st->kept;
    if (job->work->trains) {
        m->term[DPAR_MEMORY_ACTIVATIONS] *=
            dpari_in_flight(s->schedule, s->pp, s->vp, st->rank, s->micro_batches);
    }
    if (s->offload != 0) {
        dpari_memory_offload(job, s, st, m);
    }
    dpari_memory_buffers(job, s, st, m);
    dpari_memory_halo(job, s, m);
    dpari_memory_peak(job, s, st, m);
    for (i = 0; i < DPAR_MEMORY_COMM; i++) {
        sum += m->term[i];
    }
    m->allocated = sum;
    if (job->cluster->gpu.generation != DPAR_GEN_CPU) {
        m->term[DPAR_MEMORY_COMM] = ranks > 1 ? 0.6e9 : 0.0;
        m->term[DPAR_MEMORY_CONTEXT] = 0.6e9;
    }
    if (s->zero == 3 &&
        (job->recipe.bucket > 0.0 || job->work->stack == DPAR_MODEL_STACK_MEGATRON)) {
        spread = 0.2; /* DeepSpeed gathers parameter by parameter, between activations */
    }
    m->term[DPAR_MEMORY_FRAGMENTATION] = job->work->trains ? spread * sum : 0.0;
    for (i = DPAR_MEMORY_COMM; i < DPAR_MEMORY_COUNT; i++) {
        sum += m->term[i];
    }
    m->total = sum;
    /* 3 % to 10 % in place of 5 %, and 12 % to 25 % in place of 20 % */
    m->lower = sum - m->term[DPAR_MEMORY_FRAGMENTATION] * 0.4;
    m->upper = sum + m->term[DPAR_MEMORY_FRAGMENTATION] * 0.05 / spread;
    if (dpari_memory_late(job, s)) {
        m->late = dpari_leastf(2.0 * m->params,
                               dpari_mostf(0.0, job->cluster->gpu.memory_bytes - m->upper));
        m->term[DPAR_MEMORY_GATHERED] += m->late;
        m->allocated += m->late;
        m->total += m->late;
        m->upper += m->late;
    }
}

DPARI_INTERNAL void dpari_price_memory(const dpar_job *job, const dpar_strategy *s,
                                       const dpari_stages *stages, dpar_memory_usage *m)
{
    int32_t i;
    double first = 0.0, last = 0.0;
    dpari_zero(m, sizeof(*m));
    for (i = 0; i < stages->n; i++) {
        dpar_memory_usage one;
        dpari_stage_bytes(job, s, &stages->of[i], &one);
        if (i == 0) {
            first = one.total;
        }
        last = one.total;
        if (i == 0 || one.total - one.late > m->total - m->late) {
            *m = one;
        }
    }
    m->first = first;
    m->last = last;
}

DPAR_API DPARI_COLD void dpar_memory_stage(const dpar_job *job, const dpar_strategy *s,
                                           int32_t rank, dpar_memory_usage *m)
{
    dpari_layers layers;
    dpari_stage st;
    rank = (int32_t)dpari_most(0, dpari_least(rank, (int64_t)s->pp - 1));
    dpari_price_layers(job, s, &layers);
    dpari_price_stage(job, s, &layers, rank, &st);
    dpari_stage_bytes(job, s, &st, m);
    m->first = m->last = m->total;
}

DPARI_INTERNAL int32_t dpari_memory_runs(const dpar_job *job, const dpar_memory_usage *m)
{
    const dpar_cluster *c = job->cluster;
    return m->lower <= c->gpu.memory_bytes && m->host * c->gpus_per_node <= c->host_bytes;
}

DPARI_INTERNAL int32_t dpari_memory_fits(const dpar_job *job, const dpar_memory_usage *m,
                                         double limit)
{
    const dpar_cluster *c = job->cluster;
    return m->upper - m->late <= (limit > 0.0 ? limit : c->gpu.memory_bytes) &&
           m->host * c->gpus_per_node <= c->host_bytes;
}

DPARI_INTERNAL void dpari_memory_of(const dpar_job *job, const dpar_strategy *s,
                                    dpar_memory_usage *m)
{
    dpari_layers layers;
    dpari_stages stages;
    dpari_price_layers(job, s, &layers);
    dpari_price_stages(job, s, &layers, &stages);
    dpari_price_memory(job, s, &stages, m);
}
