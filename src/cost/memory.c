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

DPARI_INTERNAL double dpari_zero_bytes(const dpar_recipe *recipe, double params, int32_t stage,
                                       int32_t d)
{
    const double n = d > 0 ? d : 1;
    const double weight = recipe->weight / (stage >= 3 ? n : 1.0);
    const double gradient = recipe->gradient / (stage >= 2 ? n : 1.0);
    const double state = (recipe->master + recipe->moments) / (stage >= 1 ? n : 1.0);
    return params * (weight + gradient + state);
}

/* These are the published rules of the schedules; a simulation of the schedules gives the same
 * numbers. The unit is the activations of a full stage, so a chunk of an interleaved stage counts
 * 1/v. GPipe and breadth-first keep all micro-batches, and no schedule keeps more than there
 * are. */
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

/* ---- terms ----------------------------------------------------------------------------------- */

/* Sets the terms of weights, gradients, master weights and moments, divided as the ZeRO stage says.
 * Context-parallel ranks and the tiles of a sample hold the same weights, so they share the state
 * too (Megatron's distributed optimizer). */
static void dpari_memory_states(const dpar_job *job, const dpar_strategy *strategy,
                                const dpari_stage *st, dpar_memory_usage *memory)
{
    const dpar_recipe *recipe = &job->recipe;
    double d = dpari_zero_ranks(strategy);
    double experts = dpari_mostf(1.0, d * strategy->tp / ((double)strategy->ep * strategy->etp));
    double dense = st->params, moe = st->expert_params;
    double state = strategy->zero >= 1 ? dense / d + moe / experts : dense + moe;
    double grads = strategy->zero >= 2 ? dense / d + moe / experts : dense + moe;
    double held = strategy->zero >= 3 ? dense / d + moe / experts : dense + moe;
    /* With DualPipe a rank holds two stages, one from each end. The rank at the mirrored position
     * holds the same two, so ZeRO divides their optimizer state between both ranks. */
    if (strategy->schedule == DPAR_SCHEDULE_DUALPIPE && strategy->pp > 1) {
        held *= 2.0;
        grads *= 2.0;
        state *= strategy->zero >= 1 ? 1.0 : 2.0;
    }
    memory->params = dense + moe;
    memory->term[DPAR_MEMORY_WEIGHTS] = held * recipe->weight;
    if (!job->work->trains) {
        return;
    }
    memory->term[DPAR_MEMORY_GRADIENTS] = grads * recipe->gradient;
    memory->term[DPAR_MEMORY_MASTER] = state * recipe->master;
    memory->term[DPAR_MEMORY_OPTIMIZER] = state * recipe->moments;
}

/* Reduces a term to at most `stay` bytes on the GPU. The rest moves to the host's memory if
 * `in_memory`, otherwise to NVMe, which is not counted. */
static DPARI_COLD void dpari_memory_leave(dpar_memory_usage *memory, int32_t term, double stay,
                                          int in_memory)
{
    double left = dpari_leastf(memory->term[term], stay);
    if (in_memory) {
        memory->host += memory->term[term] - left;
    }
    memory->term[term] = left;
}

/* Moves the terms that the strategy offloads to the host or to NVMe. */
static DPARI_COLD void dpari_memory_offload(const dpar_job *job, const dpar_strategy *strategy,
                                            const dpari_stage *st, dpar_memory_usage *memory)
{
    if (strategy->offload & DPAR_OFFLOAD_OPTIMIZER) {
        int in_memory = !(strategy->offload & DPAR_OFFLOAD_NVME);
        dpari_memory_leave(memory, DPAR_MEMORY_MASTER, 0.0, in_memory);
        dpari_memory_leave(memory, DPAR_MEMORY_OPTIMIZER, 0.0, in_memory);
        if (strategy->zero >=
            2) { /* gradients are sent to the host at once; only the buckets stay */
            dpari_memory_leave(memory, DPAR_MEMORY_GRADIENTS, 0.0, 1);
        }
    }
    if (strategy->offload & DPAR_OFFLOAD_WEIGHTS) { /* two layers at a time stay on the device */
        dpari_memory_leave(memory, DPAR_MEMORY_WEIGHTS, 2.0 * st->largest * job->recipe.weight, 1);
    }
    if (strategy->offload & DPAR_OFFLOAD_ACTIVATIONS) { /* one micro-batch and two layers stay */
        dpari_memory_leave(memory, DPAR_MEMORY_ACTIVATIONS,
                           2.0 * st->kept / dpari_mostf(1.0, st->layers), 1);
    }
}

/* Sets the terms of gathered weights and of gradient buckets.
 *
 * FSDP gathers units: ZeRO-3 holds the current unit and the next one, which is prefetched. With
 * ZeRO-2 and 3 the gradients of one unit exist in full before they are scattered, in the format in
 * which they are sent, but at least 16 bits.
 *
 * DeepSpeed has no units but buckets, of 5e8 elements by default. Up to two buckets of weights are
 * alive and one more is being fetched, all in 16 bits; two buckets of gradients are in flight, in
 * 32 bits. */
static void dpari_memory_buffers(const dpar_job *job, const dpar_strategy *strategy,
                                 const dpari_stage *st, dpar_memory_usage *memory)
{
    const dpar_recipe *recipe = &job->recipe;
    double unit = st->largest, bucket = dpari_leastf(recipe->bucket, memory->params);
    if (job->work->stack == DPAR_MODEL_STACK_MEGATRON && strategy->zero >= 2) {
        bucket = dpari_leastf(5e8, memory->params);
    }
    if (strategy->zero >= 2 && bucket > 0.0 && dpari_zero_ranks(strategy) > 1.0) {
        memory->term[DPAR_MEMORY_BUCKETS] = 2.0 * 4.0 * bucket;
        if (strategy->zero == 3) { /* the largest weight of a layer is about a third of the layer */
            memory->term[DPAR_MEMORY_GATHERED] =
                2.0 * (dpari_mostf(2.0 * bucket, unit / 3.0) + bucket);
        }
        return;
    }
    if (strategy->zero >= 3 && dpari_zero_ranks(strategy) > 1.0) {
        /* the products need at least 16 bits, even if fewer are sent */
        memory->term[DPAR_MEMORY_GATHERED] = 2.0 * unit * dpari_mostf(2.0, recipe->gathered);
        memory->term[DPAR_MEMORY_BUCKETS] = unit * dpari_mostf(2.0, recipe->reduced);
    } else if (strategy->dp > 1 && job->work->stack >= DPAR_MODEL_STACK_TORCH &&
               recipe->gradient <= recipe->weight) {
        /* PyTorch DDP copies the gradients into buckets of 25 MB and sends those. Gradients that
         * are wider than the weights are in a separate buffer, which is sent without a copy. */
        memory->term[DPAR_MEMORY_BUCKETS] =
            strategy->zero == 0 ? memory->params * recipe->reduced : 4.0 * 25e6;
    } else if (strategy->zero == 2 && dpari_zero_ranks(strategy) > 1.0) {
        memory->term[DPAR_MEMORY_BUCKETS] = unit * dpari_mostf(2.0, recipe->reduced);
    }
}

/* Sets the term of halos: the two faces of a tile along each dim that is cut. */
static DPARI_COLD void dpari_memory_halo(const dpar_job *job, const dpar_strategy *strategy,
                                         dpar_memory_usage *memory)
{
    const dpar_workload *work = job->work;
    double bytes = 0.0;
    int32_t i;
    for (i = 0; i < work->layers && work->dims > 0; i++) {
        bytes += dpari_halo_cells(work, &work->layer[i], strategy) * work->layer[i].reach_bytes *
                 work->layer[i].count;
    }
    memory->term[DPAR_MEMORY_HALO] =
        2.0 * bytes * strategy->micro_batch; /* received cells and a send buffer */
}

/* Sets the terms of the peak. In the backward of a block its gradients and all dummies so far are
 * alive; in Megatron-Core without a pipeline the logits are alive too. In other programs the logits
 * are freed before (a pipeline frees the output of a stage once it is sent), so the loss is a peak
 * of its own, and only its excess over the block's peak counts as LOGITS. */
static void dpari_memory_peak(const dpar_job *job, const dpar_strategy *strategy,
                              const dpari_stage *st, dpar_memory_usage *memory)
{
    double head = st->logits > 0.0 && strategy->zero < 3 ? st->head_dummies : 0.0;
    double block = st->transient + (strategy->zero < 3 ? st->dummies : 0.0) + head;
    if (strategy->pp > 1) { /* an activation received and a gradient to send */
        block += 2.0 * st->boundary;
    }
    if (strategy->pp > 1 || job->work->stack != DPAR_MODEL_STACK_MEGATRON_CORE) {
        memory->term[DPAR_MEMORY_LOGITS] = dpari_mostf(0.0, st->logits + head - block);
    } else {
        memory->term[DPAR_MEMORY_LOGITS] = st->logits;
    }
    memory->term[DPAR_MEMORY_TRANSIENT] = block;
    memory->moment = st->logits + head > block ? DPAR_MEMORY_PEAK_LOSS : DPAR_MEMORY_PEAK_LAYER;
}

/* Returns 1 if gathered weights are released late, otherwise 0.
 *
 * DeepSpeed's ZeRO-3 releases them late. If computing takes longer than gathering, all weights
 * accumulate, in 16 bits. There are two causes. The backward of a product keeps the weight of its
 * forward; DeepSpeed's own linear layer does not, but it is used only under zero.Init
 * (deepspeedai/DeepSpeed PR 8189). In a recomputed layer, where the weight is not kept, the block
 * of a gather is released only when the computing stream has caught up with the host, which may be
 * a whole pass ahead. If the weights come from the host, the gathers take longer than the products,
 * so the host is not ahead. The allocator waits for such blocks before it fails, so they never
 * prevent a plan from fitting. */
static int dpari_memory_late(const dpar_job *job, const dpar_strategy *strategy)
{
    return strategy->zero == 3 && job->work->trains && dpari_zero_ranks(strategy) > 1.0 &&
           (job->recipe.bucket > 0.0 || job->work->stack == DPAR_MODEL_STACK_MEGATRON) &&
           !((strategy->offload & DPAR_OFFLOAD_WEIGHTS) &&
             strategy->recompute == DPAR_RECOMPUTE_FULL);
}

/* Predicts the memory of a stage: all terms and their sums. */
static void dpari_stage_bytes(const dpar_job *job, const dpar_strategy *strategy,
                              const dpari_stage *st, dpar_memory_usage *memory)
{
    int32_t i, ranks = dpar_strategy_ranks(strategy);
    double sum = 0.0, spread = 0.05;
    dpari_zero(memory, sizeof(*memory));
    memory->worst = st->rank;
    dpari_memory_states(job, strategy, st, memory);
    memory->term[DPAR_MEMORY_ACTIVATIONS] = st->kept;
    if (job->work->trains) {
        memory->term[DPAR_MEMORY_ACTIVATIONS] *= dpari_in_flight(
            strategy->schedule, strategy->pp, strategy->vp, st->rank, strategy->micro_batches);
    }
    if (strategy->offload != 0) {
        dpari_memory_offload(job, strategy, st, memory);
    }
    dpari_memory_buffers(job, strategy, st, memory);
    dpari_memory_halo(job, strategy, memory);
    dpari_memory_peak(job, strategy, st, memory);
    for (i = 0; i < DPAR_MEMORY_COMM; i++) {
        sum += memory->term[i];
    }
    memory->allocated = sum;
    if (job->cluster->gpu.generation != DPAR_GEN_CPU) {
        /* measured: 0.3 to 1 GB for NCCL's buffers, 0.4 to 0.8 GB for a CUDA context */
        memory->term[DPAR_MEMORY_COMM] = ranks > 1 ? 0.6e9 : 0.0;
        memory->term[DPAR_MEMORY_CONTEXT] = 0.6e9;
    }
    if (strategy->zero == 3 &&
        (job->recipe.bucket > 0.0 || job->work->stack == DPAR_MODEL_STACK_MEGATRON)) {
        spread = 0.2; /* DeepSpeed gathers parameter by parameter, between activations */
    }
    memory->term[DPAR_MEMORY_FRAGMENTATION] = job->work->trains ? spread * sum : 0.0;
    for (i = DPAR_MEMORY_COMM; i < DPAR_MEMORY_COUNT; i++) {
        sum += memory->term[i];
    }
    memory->total = sum;
    /* 3 % to 10 % in place of 5 %, and 12 % to 25 % in place of 20 % */
    memory->lower = sum - memory->term[DPAR_MEMORY_FRAGMENTATION] * 0.4;
    memory->upper = sum + memory->term[DPAR_MEMORY_FRAGMENTATION] * 0.05 / spread;
    if (dpari_memory_late(job, strategy)) {
        memory->late = dpari_leastf(
            2.0 * memory->params, dpari_mostf(0.0, job->cluster->gpu.memory_bytes - memory->upper));
        memory->term[DPAR_MEMORY_GATHERED] += memory->late;
        memory->allocated += memory->late;
        memory->total += memory->late;
        memory->upper += memory->late;
    }
}

DPARI_INTERNAL void dpari_price_memory(const dpar_job *job, const dpar_strategy *strategy,
                                       const dpari_stages *stages, dpar_memory_usage *memory)
{
    int32_t i;
    double first = 0.0, last = 0.0;
    dpari_zero(memory, sizeof(*memory));
    for (i = 0; i < stages->n; i++) {
        dpar_memory_usage one;
        dpari_stage_bytes(job, strategy, &stages->of[i], &one);
        if (i == 0) {
            first = one.total;
        }
        last = one.total;
        if (i == 0 || one.total - one.late > memory->total - memory->late) {
            *memory = one;
        }
    }
    memory->first = first;
    memory->last = last;
}

DPAR_API DPARI_COLD void dpar_memory_stage(const dpar_job *job, const dpar_strategy *strategy,
                                           int32_t rank, dpar_memory_usage *memory)
{
    dpari_layers layers;
    dpari_stage st;
    rank = (int32_t)dpari_most(0, dpari_least(rank, (int64_t)strategy->pp - 1));
    dpari_price_layers(job, strategy, &layers);
    dpari_price_stage(job, strategy, &layers, rank, &st);
    dpari_stage_bytes(job, strategy, &st, memory);
    memory->first = memory->last = memory->total;
}

DPARI_INTERNAL int32_t dpari_memory_runs(const dpar_job *job, const dpar_memory_usage *memory)
{
    const dpar_cluster *cluster = job->cluster;
    return memory->lower <= cluster->gpu.memory_bytes &&
           memory->host * cluster->gpus_per_node <= cluster->host_bytes;
}

DPARI_INTERNAL int32_t dpari_memory_fits(const dpar_job *job, const dpar_memory_usage *memory,
                                         double limit)
{
    const dpar_cluster *cluster = job->cluster;
    return memory->upper - memory->late <= (limit > 0.0 ? limit : cluster->gpu.memory_bytes) &&
           memory->host * cluster->gpus_per_node <= cluster->host_bytes;
}
