/* SPDX-License-Identifier: MIT-0 */
/* Counts the traffic of a step. It prices the strategy with a tally (price.h), which records every
 * call that the prices include, and adds the calls that are too small to be priced. Programs call
 * dpar_traffic_count, to compare its numbers with those that communicators count. */
#include "traffic.h"

#include "terms.h"

/* Counts the layers of class i in all stages together, and how many of them repeat their
 * forward. */
static void dpari_traffic_layers(const dpar_job *job, const dpar_strategy *strategy, int32_t i,
                                 double *layers, double *again)
{
    const dpar_workload *work = job->work;
    int32_t rank, k;
    *layers = *again = 0.0;
    if (work->layer[i].kind != DPAR_LAYER_BLOCK) {
        *layers = work->layer[i].count;
        return;
    }
    for (rank = 0; rank < strategy->pp; rank++) {
        double mine = dpari_stage_blocks(work, strategy, rank, i), all = 0.0;
        for (k = 0; k < work->layers; k++) {
            all += work->layer[k].kind == DPAR_LAYER_BLOCK
                       ? dpari_stage_blocks(work, strategy, rank, k)
                       : 0.0;
        }
        *layers += mine;
        if (strategy->recompute == DPAR_RECOMPUTE_FULL) {
            *again += mine * dpari_recomputed_share(strategy, all);
        }
    }
}

/* Adds the bytes that the layers send in the micro-batches of a step. */
static void dpari_traffic_of_layers(const dpar_job *job, const dpar_strategy *strategy,
                                    double ranks, dpar_traffic *t)
{
    int32_t i, what, kind;
    for (i = 0; i < job->work->layers; i++) {
        dpari_tally tally;
        double layers, again;
        dpari_zero(&tally, sizeof(tally));
        tally.ranks = ranks;
        dpari_tally_layer(job, strategy, i, &tally);
        dpari_traffic_layers(job, strategy, i, &layers, &again);
        for (what = 0; what < DPAR_TRAFFIC_COUNT; what++) {
            for (kind = 0; kind < DPAR_CALL_COLLECTIVE_COUNT; kind++) {
                double back = job->work->trains ? tally.backward[what][kind] : 0.0;
                t->bytes[what][kind] +=
                    strategy->micro_batches *
                    ((layers + again) * tally.forward[what][kind] + layers * back);
            }
        }
    }
}

/* Adds the all-reduce of the weights that are not cut: with sequence parallelism a rank has their
 * gradients for its own tokens only, so they are summed once per step. */
static void dpari_traffic_of_norms(const dpar_job *job, const dpar_strategy *strategy,
                                   dpari_tally *tally)
{
    const dpar_workload *work = job->work;
    double params = 0.0;
    int32_t i, k;
    for (i = 0; i < work->layers; i++) {
        for (k = 0; k < work->layer[i].ops; k++) {
            const dpari_layer_op *op = &work->op[work->layer[i].first + k];
            params += op->cut == DPARI_CUT_SEQUENCE ? op->params * work->layer[i].count : 0.0;
        }
    }
    if (strategy->sp && work->trains) {
        dpari_tally_add(tally, DPAR_TRAFFIC_TP, DPAR_CALL_ALL_REDUCE, strategy->tp,
                        params * job->recipe.reduced, 0.0, 1.0);
    }
}

/* Returns the weights of the first two units that have weights, or of the last two if step is -1.
 */
static double dpari_traffic_ends(const dpar_workload *work, const dpari_layers *layers, int experts,
                                 int32_t step)
{
    double sum = 0.0, left = 2.0;
    int32_t i;
    for (i = step > 0 ? 0 : work->layers - 1; i >= 0 && i < work->layers; i += step) {
        double each = experts ? layers->of[i].expert_params : layers->of[i].params;
        double n = each > 0.0 ? dpari_leastf(left, work->layer[i].count) : 0.0;
        sum += n * each;
        left -= n;
    }
    return sum;
}

/* Subtracts the weights that ZeRO-3 does not gather again, because they are still in memory: the
 * last two units at the m turns from forward to backward, and the first two at the m - 1 turns
 * back. */
static void dpari_traffic_of_turns(const dpar_job *job, const dpar_strategy *strategy,
                                   const dpari_layers *layers, dpari_tally *tally)
{
    double m = strategy->micro_batches, bytes = job->recipe.gathered;
    int32_t experts, ranks[2]; /* numbers of ranks that share the dense weights, and the experts'
                                  weights */
    if (strategy->zero != 3 || strategy->pp != 1 || !job->work->trains) {
        return;
    }
    ranks[0] = (int32_t)dpari_zero_ranks(strategy);
    ranks[1] = (int32_t)((int64_t)strategy->tp * strategy->dp * strategy->cp /
                         ((int64_t)strategy->ep * strategy->etp));
    for (experts = 0; experts < 2; experts++) {
        double here = dpari_traffic_ends(job->work, layers, experts, -1) * m +
                      dpari_traffic_ends(job->work, layers, experts, 1) * (m - 1.0);
        dpari_tally_add(tally, DPAR_TRAFFIC_DP, DPAR_CALL_ALL_GATHER, ranks[experts], here * bytes,
                        0.0, -1.0);
    }
}

/* Returns the number of pairs of neighbouring chunks on different ranks. */
static double dpari_traffic_borders(const dpar_strategy *strategy)
{
    double n = 0.0;
    int32_t rank, v;
    int64_t chunks = (int64_t)strategy->pp * strategy->vp;
    for (rank = 0; rank < strategy->pp; rank++) {
        for (v = 0; v < strategy->vp; v++) {
            int64_t c = dpari_chunk_of(strategy, rank, v);
            int next_here = v + 1 < strategy->vp && dpari_chunk_of(strategy, rank, v + 1) == c + 1;
            n += c + 1 < chunks && !next_here;
        }
    }
    return n;
}

/* Adds the messages of the micro-batches, and the gradient of an embedding that the first and the
 * last stage share. */
static void dpari_traffic_of_pipeline(const dpar_job *job, const dpar_strategy *strategy,
                                      const dpari_layers *layers, dpari_tally *tally)
{
    const dpar_workload *work = job->work;
    double ways = work->trains ? 2.0 : 1.0, table = (double)work->vocab * work->hidden;
    int32_t i, tied = 0;
    for (i = 0; i < work->layers; i++) {
        /* a head with fewer weights than the table shares it with the embedding */
        tied |= work->layer[i].kind == DPAR_LAYER_HEAD && work->vocab > 0 &&
                dpari_layer_params(work, i) < table;
    }
    dpari_tally_add(tally, DPAR_TRAFFIC_PP, DPAR_CALL_SEND_RECV, strategy->pp,
                    dpari_boundary_bytes(job, strategy, layers), 0.0,
                    ways * strategy->micro_batches * dpari_traffic_borders(strategy));
    if (tied && dpari_ends_apart(strategy) && work->trains) { /* one pair for each rank of a
                                                                 stage */
        tally->backward[DPAR_TRAFFIC_PP][DPAR_CALL_ALL_REDUCE] +=
            2.0 * tally->ranks * (table / strategy->tp * job->recipe.reduced);
    }
}

DPAR_API DPARI_COLD void dpar_traffic_count(const dpar_job *job, const dpar_strategy *strategy,
                                            dpar_traffic *traffic)
{
    dpari_layers layers;
    dpari_stage st;
    dpari_tally tally;
    int32_t i, kind;
    dpari_zero(traffic, sizeof(*traffic));
    dpari_zero(&tally, sizeof(tally));
    tally.ranks = (double)dpar_strategy_ranks(strategy) / strategy->pp;
    dpari_price_layers(job, strategy, &layers);
    dpari_traffic_of_layers(job, strategy, tally.ranks, traffic);
    for (i = 0; i < strategy->pp; i++) {
        dpari_price_stage(job, strategy, &layers, i, &st);
        dpari_tally_data(job, strategy, &st, &tally);
    }
    dpari_traffic_of_turns(job, strategy, &layers, &tally);
    dpari_traffic_of_norms(job, strategy, &tally);
    dpari_traffic_of_pipeline(job, strategy, &layers, &tally);
    for (i = 0; i < DPAR_TRAFFIC_COUNT; i++) {
        for (kind = 0; kind < DPAR_CALL_COLLECTIVE_COUNT; kind++) {
            traffic->bytes[i][kind] += tally.backward[i][kind];
            traffic->total += traffic->bytes[i][kind];
        }
    }
}
