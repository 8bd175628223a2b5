/* SPDX-License-Identifier: MIT-0 */
/* Simulates the pipeline of a plan with dpar_schedule_simulate. Each chunk of the schedule gets the
 * time and the activations of the layers in it. The result replaces the closed forms of the bubble,
 * of the messages between stages and of the activations; the other terms of the plan are unchanged.
 *
 * Times are in ns. The caller's memory holds the arrays of dpari_sim_rows, then the schedule, then
 * the memory of the simulation. */
#include "simulated.h"

#include "../base/base_private.h"
#include "../schedule/needed_bytes.h"
#include "../schedule/simulate.h"
#include "terms.h"

/* The times and bytes of the schedule's stages, which are the chunks of the strategy. */
typedef struct dpari_sim_rows {
    int64_t *forward, *input, *weight; /* ns of forward, input gradient and weight gradient */
    int64_t *kept, *back;              /* bytes that the forward keeps; their negative */
    dpar_rank_timing *rank;
    int32_t stages; /* number of chunks */
} dpari_sim_rows;

/* Returns 1 if the schedule has a second chain of stages, in the opposite direction, otherwise
 * 0. */
static int dpari_sim_second_chain(const dpar_strategy *strategy)
{
    return strategy->schedule == DPAR_SCHEDULE_DUALPIPE;
}

/* Returns how many micro-batches to simulate: all, or about 100,000 forwards with the last group of
 * 2 pp micro-batches complete. */
static int32_t dpari_simulated_micros(const dpar_strategy *strategy)
{
    const int64_t most = INT64_C(100000) / ((int64_t)strategy->pp * strategy->vp),
                  group = 2 * (int64_t)strategy->pp;
    int64_t m = strategy->micro_batches;
    if (m > most && m > 4 * group) {
        m -= (m - dpari_most(most, 3 * group)) / group * group;
    }
    return (int32_t)m;
}

/* Returns the share of a stage's time that its forward takes, compute and messages together. */
static double dpari_forward_share(const dpari_stage *st)
{
    double device = dpari_stage_device(st);
    return device > 0.0 ? (st->forward + st->sent) / device : 0.5;
}

/* Prices each chunk as a stage of a pipeline with as many ranks as chunks. The prices are scaled so
 * that a rank's chunks add up to the rank's own price, which includes waits for the host and layers
 * that are recomputed in part. held_send: ns that a message adds to forward and backward. */
static DPARI_COLD void dpari_sim_price(const dpar_job *job, const dpar_strategy *strategy,
                                       double held_send, dpari_sim_rows *c)
{
    dpari_layers layers;
    dpar_strategy each = *strategy;
    int32_t r, v, i;
    each.pp = c->stages;
    each.vp = 1;
    each.schedule = DPAR_SCHEDULE_1F1B;
    each.recompute_layers = (strategy->recompute_layers + strategy->vp - 1) / strategy->vp;
    dpari_price_layers(job, strategy, &layers);
    for (r = 0; r < strategy->pp; r++) {
        dpari_stage rank, st;
        double sum = 0.0, kept = 0.0;
        dpari_price_stage(job, strategy, &layers, r, &rank);
        for (v = 0; v < strategy->vp; v++) {
            dpari_price_stage(job, &each, &layers, (int32_t)dpari_chunk_of(strategy, r, v), &st);
            sum += st.total;
            kept += st.kept;
        }
        for (v = 0; v < strategy->vp; v++) {
            double scale = 1e9, share, backward;
            i = (int32_t)dpari_chunk_of(strategy, r, v);
            dpari_price_stage(job, &each, &layers, i, &st);
            scale *= sum > 0.0 ? rank.total / sum : 0.0;
            share = job->work->trains ? dpari_forward_share(&st) : 1.0;
            backward = (1.0 - share) * st.total * scale;
            c->forward[i] = (int64_t)(share * st.total * scale + held_send);
            /* half of the backward's compute is the weight gradient */
            c->weight[i] = (int64_t)dpari_leastf(0.5 * st.backward * scale, backward);
            c->input[i] = (int64_t)(backward + held_send) - c->weight[i];
            c->kept[i] = 1 + (int64_t)(kept > 0.0 ? st.kept * rank.kept / kept : 0.0);
            c->back[i] = -c->kept[i];
        }
    }
    for (i = c->stages; i < c->stages * (1 + dpari_sim_second_chain(strategy)); i++) {
        c->forward[i] = c->forward[i - c->stages];
        c->input[i] = c->input[i - c->stages];
        c->weight[i] = c->weight[i - c->stages];
        c->kept[i] = c->kept[i - c->stages];
        c->back[i] = c->back[i - c->stages];
    }
}

/* Returns the memory of the rank that needs the most, with the activations that the simulation
 * counts and 5 % of fragmentation on the difference. */
static DPARI_COLD double dpari_simulated_memory(const dpar_job *job, const dpar_plan *plan,
                                                const dpari_sim_rows *c)
{
    const dpar_strategy *strategy = &plan->strategy;
    double most = 0.0;
    int32_t r;
    if (strategy->offload & DPAR_OFFLOAD_ACTIVATIONS) {
        return plan->memory.total;
    }
    for (r = 0; r < strategy->pp; r++) {
        dpar_memory_usage m;
        double more;
        dpar_memory_stage(job, strategy, r, &m);
        more = (double)c->rank[r].peak_bytes - m.term[DPAR_MEMORY_ACTIVATIONS];
        most = dpari_mostf(most, m.total + more * (job->work->trains ? 1.05 : 1.0));
    }
    return most;
}

/* Generates the schedule and simulates it. mem has `bytes` bytes. */
static DPARI_COLD dpar_status dpari_simulated_run(const dpar_job *job, const dpar_plan *plan,
                                                  int32_t micros, double send,
                                                  dpari_sim_rows *chunks, dpar_timing *timing,
                                                  char *mem, int64_t bytes, dpar_why *why)
{
    const dpar_strategy *strategy = &plan->strategy;
    dpar_schedule_desc order;
    dpar_schedule schedule;
    dpar_schedule_times times;
    dpar_schedule_simulate_desc how;
    dpar_status st;
    int64_t need;
    int looped = dpari_looped(strategy->schedule);
    /* 1 if the software stack sends between its computations, so that ranks wait for the
     * messages */
    int holds = looped && !(dpari_overlap_of(job, strategy) & DPAR_OVERLAP_PP);
    dpari_zero(&order, sizeof order);
    order.rule = job->work->trains ? strategy->schedule : DPAR_SCHEDULE_FORWARD_ONLY;
    order.ranks = strategy->pp;
    order.micro_batches = micros;
    order.chunks = looped || !job->work->trains ? strategy->vp : 0;
    st = dpar_schedule_generate(&schedule, &order, mem, bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    need = dpari_schedule_generate_bytes(&order, NULL);
    dpari_sim_price(job, strategy, holds ? 1e9 * send : 0.0, chunks);
    dpari_zero(&times, sizeof times);
    dpari_zero(&how, sizeof how);
    times.forward.each = chunks->forward;
    times.input.each = chunks->input;
    times.weight.each = chunks->weight;
    times.hold_forward.each = chunks->kept;
    times.hold_weight.each = chunks->back;
    times.latency.all = holds ? 0 : (int64_t)(1e9 * send);
    how.times = &times;
    how.rank = chunks->rank;
    st = dpar_schedule_simulate(&schedule, &how, timing, mem + need, bytes - need, why);
    if (st == DPAR_E_ROOM && why != NULL) { /* the schedule is in front of it in the memory */
        why->bytes += need;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_plan_simulate(const dpar_job *job, const dpar_plan *plan,
                                                   dpar_plan_simulation *sim, void *mem,
                                                   int64_t bytes, dpar_why *why)
{
    const dpar_strategy *strategy = &plan->strategy;
    const dpar_step_cost *step = &plan->step;
    int32_t stages, rows, micros;
    int64_t head, *at = (int64_t *)mem;
    dpari_sim_rows chunks;
    dpar_timing timing;
    double pipeline, send;
    dpar_status st = dpari_strategy_check(job, strategy, 0, NULL, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(sim, sizeof *sim);
    sim->total = step->total;
    sim->memory = plan->memory.total;
    if (strategy->pp == 1) {
        return DPAR_OK;
    }
    stages = strategy->pp * strategy->vp; /* not more than there are layers */
    rows = stages * (1 + dpari_sim_second_chain(strategy));
    head = 5 * (int64_t)rows * 8 + strategy->pp * (int64_t)sizeof(dpar_rank_timing);
    micros = dpari_simulated_micros(strategy);
    if (bytes < head) {
        dpari_needs_bytes(why, head);
        return dpari_say(DPAR_E_ROOM, why,
                         "memory of %ld bytes is too small: the stages alone need %ld", bytes,
                         head);
    }
    chunks.stages = stages;
    chunks.forward = at;
    chunks.input = at + rows;
    chunks.weight = at + 2 * (int64_t)rows;
    chunks.back = at + 3 * (int64_t)rows;
    chunks.kept = at + 4 * (int64_t)rows;
    chunks.rank = (dpar_rank_timing *)(void *)(at + 5 * (int64_t)rows);
    send = dpari_boundary_seconds(job, strategy);
    dpari_needs_bytes(why, 0);
    st = dpari_simulated_run(job, plan, micros, send, &chunks, &timing, (char *)mem + head,
                             bytes - head, why);
    if (st == DPAR_E_ROOM && why != NULL) { /* the stages are in front of it in the memory */
        why->bytes += head;
    }
    if (st != DPAR_OK) {
        return st;
    }
    pipeline = 1e-9 * (double)timing.makespan +
               (double)(strategy->micro_batches - micros) *
                   (step->largest_stage_s + step->term[DPAR_TIME_PP] / strategy->micro_batches);
    sim->total += pipeline - strategy->micro_batches * step->largest_stage_s -
                  step->term[DPAR_TIME_BUBBLE] - step->term[DPAR_TIME_PP];
    sim->slower = sim->total / step->total - 1.0;
    sim->bubble = 1.0 - step->mean_stage_s * strategy->micro_batches / pipeline;
    sim->memory = dpari_simulated_memory(job, plan, &chunks);
    sim->larger = sim->memory / plan->memory.total - 1.0;
    return DPAR_OK;
}
