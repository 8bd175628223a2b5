/* SPDX-License-Identifier: MIT-0 */
/* Combines the prices of stages into the time of a step. The slowest stage sets the pace of the
 * pipeline. Its data-parallel messages and its optimizer are added. The terms add up to the time of
 * the step. The planner calls dpari_price_step for every strategy that fits. */
#include "step.h"

#include "../base/real.h"
#include "terms.h"

DPAR_API DPARI_COLD const char *dpar_time_name(int32_t term)
{
    static const char name[DPAR_TIME_COUNT][12] = {
        "forward", "backward", "recompute", "tp", "cp",        "ep",      "halo",
        "pp",      "bubble",   "imbalance", "dp", "optimizer", "offload", "host"};
    return term >= 0 && term < DPAR_TIME_COUNT ? name[term] : "?";
}

/* ---- data parallelism ------------------------------------------------------------------------ */

/* The messages of data parallelism. */
typedef struct dpari_data {
    double before, after;     /* seconds once per step, to gather weights and to reduce gradients */
    double forward, backward; /* seconds in every micro-batch (ZeRO-2 and 3) */
    double unit;              /* part of `forward`, to gather the first unit, which no compute
                                 hides */
    double link_bytes, nic_bytes; /* bytes per step */
    dpari_tally *tally;           /* NULL if the calls are not counted */
} dpari_data;

/* Returns the seconds of `calls` calls that together send `bytes`. Adds these bytes `times`
 * times. */
static double dpari_data_spend(const dpar_job *job, const dpar_cluster_group *group, int32_t kind,
                               double bytes, double calls, double times, dpari_data *d)
{
    dpar_collective_cost c;
    dpari_tally_add(d->tally, DPAR_TRAFFIC_DP, kind, group->size, bytes, 0.0, times);
    dpar_collective_predict(job->cluster, group, kind, bytes / calls, &c);
    d->link_bytes += c.link_bytes * calls * times;
    d->nic_bytes += c.nic_bytes * calls * times;
    return c.seconds * calls;
}

/* Adds the traffic of the gradients and weights of one kind, dense or experts. n: ranks with the
 * same weights, `stride` apart; shard: ranks of a ZeRO group; units: parts in which ZeRO-3
 * gathers. */
static void dpari_data_of(const dpar_job *job, const dpar_strategy *strategy, double params,
                          double units, int32_t n, int32_t shard, int32_t stride, dpari_data *d)
{
    const dpar_recipe *recipe = &job->recipe;
    dpar_cluster_group in, across;
    double grads = params * recipe->reduced, weights = params * recipe->gathered,
           m = strategy->micro_batches, t;
    if (n <= 1 || params <= 0.0) {
        return;
    }
    dpar_cluster_group_init(&in, job->cluster, strategy->zero == 0 ? n : shard, stride);
    if (strategy->zero == 0) {
        d->after += dpari_data_spend(job, &in, DPAR_CALL_ALL_REDUCE, grads, 1.0, 1.0, d);
        return;
    }
    if (shard < n) { /* HSDP: the replicas of a shard reduce its gradients */
        dpar_cluster_group_init(&across, job->cluster, n / shard, stride * shard);
        d->after +=
            dpari_data_spend(job, &across, DPAR_CALL_ALL_REDUCE, grads / shard, 1.0, 1.0, d);
    }
    if (shard <= 1) {
        return;
    }
    if (strategy->zero == 3) {
        t = dpari_data_spend(job, &in, DPAR_CALL_ALL_GATHER, weights, units, 2.0 * m, d);
        d->forward += t;
        d->backward += t + dpari_data_spend(job, &in, DPAR_CALL_REDUCE_SCATTER, grads, units, m, d);
        d->unit += t / units;
        return;
    }
    if (strategy->zero == 2) {
        d->backward += dpari_data_spend(job, &in, DPAR_CALL_REDUCE_SCATTER, grads, 1.0, m, d);
    } else {
        const int32_t kind =
            dpari_age(job->work)->sliced ? DPAR_CALL_ALL_REDUCE : DPAR_CALL_REDUCE_SCATTER;
        d->after += dpari_data_spend(job, &in, kind, grads, 1.0, 1.0, d);
    }
    d->before += dpari_data_spend(job, &in, DPAR_CALL_ALL_GATHER, weights, 1.0, 1.0, d);
}

/* Prices the messages of data parallelism of one stage. */
static dpari_data dpari_data_time(const dpar_job *job, const dpar_strategy *strategy,
                                  const dpari_stage *st, dpari_tally *tally)
{
    dpari_data d;
    int32_t n = strategy->dp * strategy->cp,
            shard = (strategy->shard > 0 ? strategy->shard : strategy->dp) * strategy->cp, en;
    int32_t tiles = (int32_t)dpari_tiles(strategy);
    dpari_zero(&d, sizeof(d));
    d.tally = tally;
    if (!job->work->trains) {
        return d;
    }
    /* the tiles of a sample have the same weights, so their gradients are summed as well */
    dpari_data_of(job, strategy, st->params, dpari_mostf(1.0, st->layers), n * tiles,
                  strategy->zero == 0 ? n * tiles : shard * tiles, strategy->tp, &d);
    en = (int32_t)((int64_t)strategy->tp * n / ((int64_t)strategy->ep * strategy->etp));
    dpari_data_of(job, strategy, st->expert_params, dpari_mostf(1.0, st->layers), en, en,
                  strategy->ep * strategy->etp, &d);
    return d;
}

DPARI_INTERNAL void dpari_tally_data(const dpar_job *job, const dpar_strategy *strategy,
                                     const dpari_stage *st, dpari_tally *tally)
{
    (void)dpari_data_time(job, strategy, st, tally);
}

/* Returns the part of the communication that the compute does not hide, plus the time by which the
 * hidden part slows the compute down. Adds the hidden part to *hidden. */
static double dpari_exposed(double communication, double compute, double contention, double *hidden)
{
    double overlap = dpari_leastf(communication, compute);
    *hidden += overlap;
    return communication - overlap + contention * overlap;
}

/* Returns the number of tensors of a block: one for each operation that has parameters. */
static DPARI_COLD double dpari_block_tensors(const dpar_workload *work)
{
    double n = 0.0;
    int32_t i, k;
    for (i = 0; i < work->layers && n == 0.0; i++) {
        for (k = 0; work->layer[i].kind == DPAR_LAYER_BLOCK && k < work->layer[i].ops; k++) {
            n += work->op[work->layer[i].first + k].params > 0.0;
        }
    }
    return n;
}

/* Sets the time that data parallelism adds to a step. */
static void dpari_step_data(const dpar_job *job, const dpar_strategy *strategy,
                            const dpari_stage *st, dpar_step_cost *cost)
{
    dpari_data d = dpari_data_time(job, strategy, st, NULL);
    double c = dpari_contention(job), m = strategy->micro_batches, exposed = 0.0;
    double device = st->forward + st->backward + st->again;
    /* the time that can hide communication is that of the compute, stretched by its waits for the
     * host */
    double stretch =
        device > 0.0 ? dpari_mostf(1.0, (st->total - st->tp - st->cp - st->ep - st->halo) / device)
                     : 1.0;
    double forward = st->forward * stretch, backward = (st->backward + st->again) * stretch;
    if (dpari_overlap_of(job, strategy) & DPAR_OVERLAP_DP) {
        double gathers = dpari_mostf(0.0, d.forward - d.unit), hidden = 0.0;
        exposed += m * dpari_exposed(gathers, forward, c, &hidden);
        exposed += m * dpari_exposed(d.backward, backward, c, &hidden);
        exposed += m * d.unit;
        cost->dp_hidden_s += m * hidden;
        /* messages sent once per step hide in the rest of the first and the last micro-batch */
        forward = dpari_mostf(0.0, 0.9 * forward - gathers);
        backward = dpari_mostf(0.0, 0.9 * backward - d.backward);
        exposed += dpari_exposed(d.before, forward, c, &cost->dp_hidden_s);
        exposed += dpari_exposed(d.after, backward, c, &cost->dp_hidden_s);
    } else {
        exposed = d.before + d.after + m * (d.forward + d.backward);
    }
    if (strategy->zero == 3 && d.unit > 0.0) { /* copies of gathered weights and of gradients */
        exposed += m * (st->params + st->expert_params) * dpari_age(job->work)->copies /
                   (job->cluster->gpu.memory_Bps * job->cluster->cal.value[DPAR_CAL_HBM]);
    }
    if (strategy->zero == 1 && d.after > 0.0 && dpari_age(job->work)->sliced) {
        /* the host slices and copies each tensor for each rank */
        exposed += 2.0 * st->layers * dpari_block_tensors(job->work) * dpari_zero_ranks(strategy) *
                   job->cluster->cal.value[DPAR_CAL_LAUNCH_S];
    }
    cost->term[DPAR_TIME_DP] = exposed;
    cost->link_bytes += d.link_bytes;
    cost->nic_bytes += d.nic_bytes;
    cost->dp_bytes = d.link_bytes + d.nic_bytes;
}

/* ---- optimizer and offload ------------------------------------------------------------------- */

/* Returns the bytes of device memory per parameter that Adam moves: the gradient is read twice (for
 * its norm, then for the update), master and moments are read and written, the weight is written. A
 * weight without a master copy is also read. */
static double dpari_adam_bytes(const dpar_recipe *recipe)
{
    return 2.0 * recipe->gradient + 2.0 * (recipe->master + recipe->moments) +
           (recipe->master > 0.0 ? recipe->weight : 2.0 * recipe->weight);
}

/* Sets the time of the optimizer and of offloading. */
static void dpari_step_optimizer(const dpar_job *job, const dpar_strategy *strategy,
                                 const dpari_stage *st, dpar_step_cost *cost)
{
    const dpar_cluster *cluster = job->cluster;
    const dpar_recipe *recipe = &job->recipe;
    double d = strategy->zero >= 1 ? dpari_zero_ranks(strategy) : 1.0;
    double experts = strategy->zero >= 1
                         ? dpari_mostf(1.0, (double)strategy->tp * strategy->cp * strategy->dp /
                                                ((double)strategy->ep * strategy->etp))
                         : 1.0;
    double local = st->params / d + st->expert_params / experts, pcie = cluster->gpu.pcie_Bps,
           moved;
    if (!job->work->trains) {
        return;
    }
    cost->term[DPAR_TIME_OPTIMIZER] = local * dpari_adam_bytes(recipe) /
                                      (cluster->gpu.memory_Bps * cluster->cal.value[DPAR_CAL_HBM]);
    if (strategy->offload & DPAR_OFFLOAD_OPTIMIZER) {
        /* the host updates the weights, with about 25 GB/s of its memory per GPU; gradients are
         * sent to the host and weights back */
        cost->term[DPAR_TIME_OPTIMIZER] = local * dpari_adam_bytes(recipe) / 25e9;
        cost->term[DPAR_TIME_OFFLOAD] += local * (recipe->gradient + recipe->weight) / (0.8 * pcie);
    }
    if (strategy->offload &
        DPAR_OFFLOAD_NVME) { /* the state is read and written while the host updates */
        moved = 2.0 * local * (recipe->master + recipe->moments) * cluster->gpus_per_node;
        cost->term[DPAR_TIME_OFFLOAD] +=
            dpari_mostf(0.0, moved / cluster->nvme_Bps - cost->term[DPAR_TIME_OPTIMIZER]);
    }
    /* weights and activations are moved while the device computes, over the same link */
    moved = 0.0;
    if (strategy->offload & DPAR_OFFLOAD_WEIGHTS) {
        moved = (st->params + st->expert_params) * recipe->weight;
    }
    if (strategy->offload & DPAR_OFFLOAD_ACTIVATIONS) {
        moved += st->kept;
    }
    moved *= 2.0 * strategy->micro_batches;
    if (moved > 0.0) {
        cost->term[DPAR_TIME_OFFLOAD] += dpari_mostf(
            0.05 * moved / (0.8 * pcie),
            moved / (0.8 * pcie) - strategy->micro_batches * (st->forward + st->backward));
    }
}

/* ---- pipeline -------------------------------------------------------------------------------- */

/* Returns the idle time of filling and draining the pipeline, as a share of the time of a
 * micro-batch through all stages but one. These are the schedules' closed forms for input and
 * weight gradients of equal time. w: share of the forward in a stage's compute. */
static double dpari_fill_share(int32_t schedule, int32_t vp, double w)
{
    switch (schedule) {
    case DPAR_SCHEDULE_INTERLEAVED:
    case DPAR_SCHEDULE_BREADTH_FIRST: return 1.0 / vp;
    case DPAR_SCHEDULE_ZB_H1:
    case DPAR_SCHEDULE_ZB_2P:
        /* 2P has the makespan of H1. Its zero bubble is that of each rank's own span, which counts
         * only if the ranks step their optimizers one by one. */
        return w;
    case DPAR_SCHEDULE_ZBV: return 1.0 / 6.0;
    case DPAR_SCHEDULE_V_HALF: return 0.5;
    case DPAR_SCHEDULE_V_MIN: return 0.67;
    case DPAR_SCHEDULE_DUALPIPE: return 1.0 / 3.0;
    case DPAR_SCHEDULE_DUALPIPEV: return 1.0 / 3.0;
    default: return 1.0;
    }
}

/* Returns the share for few micro-batches. The closed forms are valid from p micro-batches on. A
 * single micro-batch waits for p-1 forwards and input gradients under any schedule. Between these
 * two cases a straight line is assumed, not derived. */
static double dpari_fill_short(const dpar_strategy *strategy, double share, double w)
{
    double full = strategy->pp, one = 0.5 * (1.0 + w);
    if (strategy->schedule < DPAR_SCHEDULE_ZB_H1 || strategy->micro_batches >= full ||
        share >= one) {
        return share;
    }
    return share + (one - share) * (full - strategy->micro_batches) / (full - 1.0);
}

/* Returns the seconds of a message between stages. Adds the bytes of `times` such messages. */
static double dpari_send_seconds(const dpar_job *job, const dpar_strategy *strategy, double bytes,
                                 dpar_step_cost *cost, double times)
{
    dpar_collective_cost c;
    dpar_cluster_group g;
    dpari_pair_init(&g, job->cluster, strategy->pp, strategy->tp * strategy->cp * strategy->dp);
    dpar_collective_predict(job->cluster, &g, DPAR_CALL_SEND_RECV, bytes, &c);
    cost->link_bytes += c.link_bytes * times;
    cost->nic_bytes += c.nic_bytes * times;
    return c.seconds;
}

DPARI_INTERNAL double dpari_boundary_seconds(const dpar_job *job, const dpar_strategy *strategy)
{
    dpari_layers layers;
    dpari_stages stages;
    dpar_step_cost t;
    dpari_zero(&t, sizeof(t));
    dpari_price_layers(job, strategy, &layers);
    dpari_price_stages(job, strategy, &layers, &stages);
    return dpari_send_seconds(job, strategy, stages.send, &t, 0.0);
}

/* Computes bubble, imbalance and messages between stages. The slowest stage sets the pace, and the
 * others wait for it. */
static void dpari_step_pipeline(const dpar_job *job, const dpar_strategy *strategy,
                                const dpari_stages *stages, const dpari_stage *slow,
                                dpar_step_cost *cost)
{
    double m = strategy->micro_batches, p = strategy->pp, v = strategy->vp,
           mean = stages->sum_total / p, send, fill;
    double w = slow->forward / (slow->forward + slow->backward + slow->again), ways;
    int looped = dpari_looped(strategy->schedule);
    int32_t flying = dpari_overlap_of(job, strategy);
    cost->largest_stage_s = slow->total;
    cost->mean_stage_s = mean;
    cost->term[DPAR_TIME_IMBALANCE] += m * (slow->total - mean);
    if (strategy->pp == 1) {
        return;
    }
    fill = (stages->sum_total - mean) *
           dpari_fill_short(strategy, dpari_fill_share(strategy->schedule, strategy->vp, w), w);
    if (looped && job->work->blocks > 0) { /* the first round fills the pipeline and has the longest
                                              chunks */
        int64_t blocks = job->work->blocks, chunks = (int64_t)strategy->pp * strategy->vp;
        int64_t first = blocks / chunks * strategy->pp + dpari_least(blocks % chunks, strategy->pp);
        fill *= v * (double)first / (double)blocks;
    }
    if (looped && m < p) { /* every chunk waits for a whole round of ranks */
        fill = fill * (m - 1.0) / (p - 1.0) + (p - m) * slow->total;
    }
    ways = job->work->trains ? 2.0 : 1.0;
    send = dpari_send_seconds(job, strategy, stages->send, cost, ways * m * v);
    cost->term[DPAR_TIME_BUBBLE] = fill;
    cost->term[DPAR_TIME_PP] = ways * send * ((p - 2.0) + m * v * (p - 1.0) / p);
    if ((strategy->schedule == DPAR_SCHEDULE_GPIPE && (strategy->overlap & DPAR_OVERLAP_DEFAULT)) ||
        ((strategy->schedule == DPAR_SCHEDULE_GPIPE || looped) && (flying & DPAR_OVERLAP_PP))) {
        cost->term[DPAR_TIME_PP] =
            dpari_leastf(cost->term[DPAR_TIME_PP], ways * (p * v - 1.0) * send);
    }
    cost->bubble = fill / (m * slow->total + fill + cost->term[DPAR_TIME_PP]);
}

/* ---- the step -------------------------------------------------------------------------------- */

/* Sets the terms that are sums over the stages. */
static void dpari_step_terms(const dpar_strategy *strategy, const dpari_stages *stages,
                             dpar_step_cost *cost)
{
    const dpari_stage *all = &stages->whole;
    double k = (double)strategy->micro_batches / strategy->pp;
    cost->term[DPAR_TIME_FORWARD] = k * all->forward;
    cost->term[DPAR_TIME_BACKWARD] = k * all->backward;
    cost->term[DPAR_TIME_RECOMPUTE] = k * all->again;
    cost->term[DPAR_TIME_TP] = k * all->tp;
    cost->term[DPAR_TIME_CP] = k * all->cp;
    cost->term[DPAR_TIME_EP] = k * all->ep;
    cost->term[DPAR_TIME_HALO] = k * all->halo;
    cost->term[DPAR_TIME_HOST] = k * (all->total - dpari_stage_device(all)); /* waits */
    cost->link_bytes = k * all->link_bytes;
    cost->nic_bytes = k * all->nic_bytes;
}

/* Returns the forward FLOP of a layer and sample that recomputation repeats, with attention counted
 * in full: everything with FULL, half of the products with ALTERNATE, and the scores with any
 * recomputation. */
static double dpari_flops_again(const dpar_workload *work, int32_t layer, int32_t recompute)
{
    const dpar_workload_layer *l = &work->layer[layer];
    double sum = 0.0;
    int32_t i;
    for (i = 0; i < l->ops; i++) {
        const dpari_layer_op *op = &work->op[l->first + i];
        double f = 2.0 * op->n * op->k * op->copies * l->tokens;
        if (recompute == DPAR_RECOMPUTE_FULL || op->kind == DPARI_OP_SCORES) {
            sum += op->kind == DPARI_OP_ATTENTION && work->causal ? 2.0 * f : f;
        } else if (recompute == DPAR_RECOMPUTE_ALTERNATE && op->kind != DPARI_OP_ATTENTION) {
            sum += 0.5 * f;
        }
    }
    return sum;
}

/* Sets what follows from the total: rates, FLOP and utilization. */
static void dpari_step_rates(const dpar_job *job, const dpar_strategy *strategy,
                             const dpari_stages *stages, dpar_step_cost *cost)
{
    const dpar_workload *work = job->work;
    double gpus = dpar_strategy_ranks(strategy), again = 0.0;
    double peak = dpari_matrix_peak(&job->cluster->gpu, job->recipe.compute, work->element);
    cost->samples = (double)strategy->dp * strategy->micro_batch * strategy->micro_batches;
    cost->tokens_per_s_gpu = cost->samples * work->tokens / (cost->total * gpus);
    cost->model_flops = cost->samples * work->model_flops_full;
    cost->model_flops_causal = cost->samples * work->model_flops_causal;
    if (strategy->recompute != DPAR_RECOMPUTE_NONE && stages->of[0].layers > 0.0) {
        double share = dpari_recomputed_share(strategy, stages->of[0].layers);
        int32_t i;
        for (i = 0; i < work->layers; i++) {
            if (work->layer[i].kind == DPAR_LAYER_BLOCK) {
                again +=
                    dpari_flops_again(work, i, strategy->recompute) * work->layer[i].count * share;
            }
        }
    }
    cost->hardware_flops = cost->model_flops + cost->samples * again;
    cost->mfu = cost->model_flops / (cost->total * gpus * peak);
    cost->mfu_causal = cost->model_flops_causal / (cost->total * gpus * peak);
    cost->hfu = cost->hardware_flops / (cost->total * gpus * peak);
    cost->tflops_gpu = cost->model_flops / (cost->total * gpus) * 1e-12;
}

DPARI_INTERNAL void dpari_price_step(const dpar_job *job, const dpar_strategy *strategy,
                                     const dpari_stages *stages, dpar_step_cost *cost)
{
    const dpari_stage *slow = &stages->of[0];
    const double *cal = job->cluster->cal.value;
    double compute;
    int32_t i;
    dpari_zero(cost, sizeof(*cost));
    for (i = 1; i < stages->n; i++) {
        slow = stages->of[i].total > slow->total ? &stages->of[i] : slow;
    }
    dpari_step_terms(strategy, stages, cost);
    dpari_step_pipeline(job, strategy, stages, slow, cost);
    dpari_step_data(job, strategy, slow, cost);
    dpari_step_optimizer(job, strategy, slow, cost);
    compute = cost->term[DPAR_TIME_FORWARD] + cost->term[DPAR_TIME_BACKWARD] +
              cost->term[DPAR_TIME_RECOMPUTE];
    /* all ranks that sum their gradients wait for the last of them */
    cost->term[DPAR_TIME_IMBALANCE] +=
        cal[DPAR_CAL_SKEW] * compute *
        dpari_log2((double)strategy->dp * strategy->cp * (double)dpari_tiles(strategy));
    cost->term[DPAR_TIME_HOST] += job->work->trains ? cal[DPAR_CAL_STEP_S] : 0.0;
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        cost->total += cost->term[i];
    }
    dpari_step_rates(job, strategy, stages, cost);
}

DPARI_INTERNAL void dpari_step_of(const dpar_job *job, const dpar_strategy *strategy,
                                  dpar_step_cost *cost)
{
    dpari_layers layers;
    dpari_stages stages;
    dpari_price_layers(job, strategy, &layers);
    dpari_price_stages(job, strategy, &layers, &stages);
    dpari_price_step(job, strategy, &stages, cost);
}
