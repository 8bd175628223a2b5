/* SPDX-License-Identifier: MIT-0 */
/* Prices the operations of a layer, forward and backward, and sums them into stages. memory.c and
 * step.c turn the stages into memory and time; the planner keeps the prices of layers while it
 * walks the options that do not change them.
 *
 * Compute runs at a share of the peak that depends on the shape. Communication is priced by
 * dpar_collective_predict. */
#include "price.h"

#include "../base/real.h"

/* ---- one operation --------------------------------------------------------------------------- */

/* The rates and divisors that every operation of a layer needs, computed once. */
typedef struct dpari_rates {
    double flop_s;      /* seconds per FLOP of a large matrix product */
    double wide_s;      /* the same in 16 bits, for the head of every recipe */
    double casts;       /* bytes moved per element of a product's operands to convert it to 8 or 4
                           bits */
    double attention_s; /* seconds per FLOP of fused attention, forward */
    double vector_s;    /* seconds per FLOP of element-wise arithmetic */
    double byte_s;      /* seconds per byte of device memory */
    double wave;        /* outputs of one wave of tiles: 128 x 256 on every unit */
    double rows;        /* query rows in one wave of attention tiles, all heads */
    double lost;        /* waves of attention tiles that are lost */
    double launch_s;
    double accumulate; /* bytes to add one weight gradient to its sum: read and write */
    double sequence;   /* divisor of SEQUENCE operations: tp with SP, otherwise 1 */
    double routed;     /* rows on an expert rank / (tokens x copies): it has etp of the tp slices */
    double narrow;     /* bytes of a product's input as it is kept, in 8 or 4 bits with scales /
                          bytes of its elements */
    const dpar_strategy *strategy;
    const dpar_workload *work;
} dpari_rates;

/* A matrix product runs in waves of tiles over the units. The last wave is partly empty, and the
 * first and the last tile overlap with nothing, so a share of a wave is lost. Measured shapes
 * (op_efficiency tables) take the time of their waves plus about a third of a wave. */
static const double dpari_wave_lost = 0.30;
/* Convolutions reach about this share of a plain product of the same size (cuDNN, channels last).
 */
static const double dpari_conv_share = 0.60;
/* Grouped products, which are many, short and uneven, reach about this share (medians .65/.75 on
 * A100, .30/.48 on B200). */
static const double dpari_grouped_share = 0.70;
/* Fused attention: the backward takes 2.4 times the forward (it has 2.5 times the products;
 * measured on A100 and B200), one and a half waves of tiles are lost, and the first generation of
 * kernels ran at about 0.6 of the rate of the later ones. */
static const double dpari_attention_back = 2.4;
static const double dpari_attention_lost = 1.5;
static const double dpari_flash1_share = 0.62;
/* Each step of a ring adds a partial output to a sum in 32 bits, and in the backward partial
 * gradients. The bytes that this moves are the following multiples of the bytes of queries and
 * outputs, forward and backward. ring-flash-attention's zigzag with 8 ranks of 8192 tokens loses
 * 2.3 and 3.3 ms on H800, 4.8 and 4.8 ms on A100 (2024): 27 and 33, 38 and 34 bytes per output at
 * 0.8 of the memory's rate. */
static const double dpari_ring_merge = 7.5;
static const double dpari_ring_merge_back = 9.0;
/* The products of unfused attention, batches of [s x d] x [d x s], reach about this share because
 * their inner width is small. */
static const double dpari_scores_share = 0.62;

/* Returns 1 if the chip was new when the software of dpari_age was written: Hopper and later. */
static int dpari_is_young(const dpar_gpu *gpu)
{
    return gpu->generation == DPAR_GEN_HOPPER || gpu->generation == DPAR_GEN_BLACKWELL;
}

DPARI_INTERNAL double dpari_matrix_peak(const dpar_gpu *gpu, int32_t format, int32_t element)
{
    static const int8_t next[DPAR_FORMAT_COUNT] = {DPAR_TYPE_NONE, DPAR_F64,  DPAR_F32, DPAR_F32,
                                                   DPAR_TF32,      DPAR_BF16, DPAR_F8};
    int32_t f = element == 8 ? DPAR_F64 : format;
    while (f > DPAR_F32 && !(gpu->flops[f] > 0.0)) {
        f = next[f];
    }
    return gpu->flops[f] > 0.0 ? gpu->flops[f] : gpu->memory_Bps;
}

/* Outputs that the registers of a CPU core hold: 16 of four f64 (AVX2). A partly filled last tile
 * is assumed to be lost like a last wave on a GPU. */
static const double dpari_core_wave = 64.0;

/* Computes the rates: both[0] for layers, both[1] for the head, which stays in 16 bits. */
static DPARI_COLD void dpari_rates_of(const dpar_job *job, const dpar_strategy *strategy,
                                      dpari_rates *both)
{
    const dpar_gpu *gpu = &job->cluster->gpu;
    const double *cal = job->cluster->cal.value;
    const dpari_generation *age = dpari_age(job->work);
    double units = gpu->units > 0 ? gpu->units : 100.0, peak, bf16;
    double products = 1.0, attention = 1.0, streams = 1.0;
    dpari_rates r;
    dpari_zero(&r, sizeof(r));
    peak = dpari_matrix_peak(gpu, job->recipe.compute, job->work->element);
    bf16 = dpari_matrix_peak(gpu, DPAR_BF16, job->work->element);
    if (dpari_is_young(gpu)) {
        products = (double)age->products;
        attention = (double)age->attention;
        streams = (double)age->streams;
    }
    r.flop_s = 1.0 / (peak * cal[DPAR_CAL_GEMM] * products);
    r.wide_s = 1.0 / (dpari_leastf(peak, bf16) * cal[DPAR_CAL_GEMM] * products);
    r.casts = job->recipe.casts;
    /* fused attention stays in bf16 if the products have 8 bits, and in fp32 if they have fp32 */
    r.attention_s = 1.0 / (dpari_leastf(peak, bf16) * cal[DPAR_CAL_ATTENTION] * attention);
    if (job->work->attention == DPAR_MODEL_ATTENTION_FLASH1) {
        r.attention_s /= dpari_flash1_share;
    }
    r.vector_s = 1.0 / (0.7 * dpari_matrix_peak(gpu, DPAR_F32, job->work->element));
    r.byte_s = 1.0 / (gpu->memory_Bps * cal[DPAR_CAL_HBM] * streams);
    r.wave = units * 128.0 * 256.0;
    r.rows = units * (gpu->generation == DPAR_GEN_BLACKWELL ? 256.0 : 128.0);
    if (gpu->generation == DPAR_GEN_CPU) { /* its tiles are small, so almost nothing is lost */
        r.wave = dpari_core_wave;
        r.rows = 0.25;
    }
    /* TransformerEngine computes the pieces of a ring on two streams. One stream fills the last
     * wave of the other, so only the last piece loses waves. */
    r.lost = dpari_attention_lost;
    if (strategy->cp_kind == DPAR_CP_RING && job->work->stack == DPAR_MODEL_STACK_MEGATRON_CORE) {
        r.lost /= strategy->cp;
    }
    r.launch_s = cal[DPAR_CAL_LAUNCH_S];
    r.accumulate = 2.0 * job->recipe.gradient;
    r.sequence = strategy->sp ? strategy->tp : 1.0;
    r.routed = strategy->etp / r.sequence;
    r.narrow = 1.0;
    if (job->work->stack == DPAR_MODEL_STACK_MEGATRON_CORE) {
        if (job->recipe.compute == DPAR_F8) { /* one byte, and a scale for each 32 elements */
            r.narrow = 1.03125 / job->work->element;
        } else if (job->recipe.compute == DPAR_F4) { /* half a byte, a scale for each 16 */
            r.narrow = 0.5625 / job->work->element;
        }
    }
    r.strategy = strategy;
    r.work = job->work;
    both[0] = both[1] = r;
    both[1].flop_s = r.wide_s;
    both[1].casts = 0.0;
}

/* Tensor cores load 16 bytes at a time. A product whose width is not a multiple of 8 elements, such
 * as GPT-2's 50257 tokens without padding, runs at about a third of the rate. */
static const double dpari_unaligned_share = 0.33;

/* Returns 1 if a width is not a multiple of 8. */
static int dpari_unaligned(double width)
{
    double eighths = width * 0.125;
    return eighths < 1e9 && eighths - (double)(int32_t)eighths > 0.0;
}

/* Returns the seconds of [rows, k] x [k, n]. Only the widths must be multiples of 8, because only
 * they are contiguous in memory; the number of rows may be any. */
static double dpari_product(const dpari_rates *rates, double rows, double n, double k, double lost,
                            double share)
{
    double waves = rows * n / rates->wave;
    return (waves + lost) * rates->wave * 2.0 * k * rates->flop_s / share;
}

/* Returns by how much tensor or expert parallelism divides the bytes of an operation. */
static double dpari_cut(const dpari_rates *rates, int32_t cut)
{
    switch (cut) {
    case DPARI_CUT_SEQUENCE: return rates->sequence;
    case DPARI_CUT_COLUMN:
    case DPARI_CUT_ROW:
    case DPARI_CUT_TENSOR: return rates->strategy->tp;
    case DPARI_CUT_EXPERT: return 1.0 / rates->routed;
    case DPARI_CUT_EXPERT_COLUMN:
    case DPARI_CUT_EXPERT_ROW:
    case DPARI_CUT_EXPERT_TENSOR: return rates->sequence;
    default: return 1.0;
    }
}

/* Prices a matrix product, plain, grouped or of a convolution: its forward, its data gradient and
 * its weight gradient. */
static void dpari_price_product(const dpari_rates *rates, const dpari_layer_op *op, double tokens,
                                dpari_layer_price *price)
{
    double rows = tokens, n = op->n, k = op->k, share = 1.0, wide, weights;
    double e = rates->work->element;
    double lost = dpari_wave_lost; /* of the weight gradient */
    if (op->cut == DPARI_CUT_COLUMN) {
        n /= rates->strategy->tp;
    } else if (op->cut == DPARI_CUT_ROW) {
        k /= rates->strategy->tp;
    } else if (op->cut == DPARI_CUT_EXPERT_COLUMN) {
        n /= rates->strategy->etp;
    } else if (op->cut == DPARI_CUT_EXPERT_ROW) {
        k /= rates->strategy->etp;
    } else if (op->cut == DPARI_CUT_SEQUENCE) {
        rows /= rates->sequence;
    }
    if (op->kind == DPARI_OP_EXPERTS) {
        /* every rank of an expert group computes the tokens of its own experts. If the load is
         * balanced, it has as many rows as its etp group sent; the fullest expert has `capacity`
         * times as many. */
        rows *= op->copies * rates->work->capacity * rates->routed;
        share = dpari_grouped_share;
    } else if (op->kind == DPARI_OP_CONV) {
        share = dpari_conv_share;
        /* the weight gradient has few outputs and a long sum over the pixels, which is divided so
         * that its parts fill a wave */
        lost *= dpari_leastf(n * k / rates->wave, 1.0);
    }
    /* sequence-parallel ranks cast their own tokens and gather afterwards */
    price->forward += rows * k * rates->casts /
                      (op->cut == DPARI_CUT_COLUMN ? rates->sequence : 1.0) * rates->byte_s;
    price->backward += rows * n * rates->casts /
                       (op->cut == DPARI_CUT_ROW ? rates->sequence : 1.0) * rates->byte_s;
    wide = rates->wave > dpari_core_wave && (dpari_unaligned(n) || dpari_unaligned(k))
               ? dpari_unaligned_share * share
               : share;
    share = dpari_unaligned(k) ? wide : share;
    price->forward +=
        dpari_product(rates, rows, n, k, dpari_wave_lost, wide) + rows * n * e * rates->byte_s;
    price->backward +=
        dpari_product(rates, rows, k, n, dpari_wave_lost, wide) + rows * k * e * rates->byte_s;
    /* the weight gradient is added to a wide accumulator, which is read and written once */
    weights = op->kind == DPARI_OP_EXPERTS
                  ? op->params / (rates->strategy->ep * rates->strategy->etp)
                  : n * k;
    price->backward +=
        dpari_product(rates, n, k, rows, lost, share) + weights * rates->accumulate * rates->byte_s;
}

/* Prices attention or a recurrence: fused attention by waves of query tiles, unfused scores as a
 * share of a product. */
static void dpari_price_attention(const dpari_rates *rates, const dpari_layer_op *op, double tokens,
                                  dpari_layer_price *price)
{
    /* with Ulysses and with the ring, a rank computes its tokens x all keys for 1 / tp of the
     * heads */
    double flops = 2.0 * tokens * op->n * op->k / rates->strategy->tp;
    double waves = tokens * (op->heads > 0 ? op->heads : 1) / rates->strategy->tp / rates->rows;
    double t;
    if (op->kind != DPARI_OP_SCORES) {
        t = flops * rates->attention_s * (1.0 + rates->lost / waves);
        price->forward += t;
        price->attention += t;
        price->backward += dpari_attention_back * t;
        return;
    }
    t = flops * rates->flop_s / dpari_scores_share;
    price->forward += t;
    price->attention += t;
    price->backward += 2.0 * t;
    price->again[DPAR_RECOMPUTE_SELECTIVE] += t;
}

/* Returns nonzero if the bits of a recomputation drop what this operation keeps, otherwise 0. */
static DPARI_COLD int dpari_dropped(int32_t recompute, const dpari_layer_op *op)
{
    const int experts = recompute & DPAR_RECOMPUTE_EXPERTS;
    switch (op->keep) {
    case DPARI_KEEP_NORM: return recompute & DPAR_RECOMPUTE_NORM;
    case DPARI_KEEP_ACTIVATION:
        return (recompute & DPAR_RECOMPUTE_ACTIVATION) || (op->cut >= DPARI_CUT_EXPERT && experts);
    case DPARI_KEEP_EXPERTS: return experts;
    default: return 0;
    }
}

/* Returns the bytes of its input that a product in 8 or 4 bits keeps, relative to 16 bits. The
 * output of attention is kept twice, because attention itself needs the wide one. */
static DPARI_COLD double dpari_narrowed(const dpari_layer_op *op, double narrow)
{
    if (op->kind == DPARI_OP_EXPERTS) {
        return narrow;
    }
    if (op->kind != DPARI_OP_GEMM) {
        return 1.0;
    }
    if (op->keep == DPARI_KEEP_NORM || op->keep == DPARI_KEEP_ACTIVATION) {
        return narrow;
    }
    return op->cut == DPARI_CUT_ROW ? 1.0 + narrow : 1.0;
}

/* Prices one operation and adds it to its layer. */
static void dpari_price_op(const dpari_rates *rates, const dpari_layer_op *op, double tokens,
                           dpari_layer_price *price)
{
    double cut = dpari_cut(rates, op->cut), before = price->forward, save;
    if (op->kind == DPARI_OP_ATTENTION || op->kind == DPARI_OP_SCORES ||
        op->kind == DPARI_OP_SCAN) {
        dpari_price_attention(rates, op, tokens, price);
    } else if (op->kind != DPARI_OP_STREAM) {
        dpari_price_product(rates, op, tokens, price);
    } else if (op->n > 0.0) {
        price->forward += dpari_mostf(2.0 * op->n * op->k * tokens * rates->vector_s,
                                      op->touch * tokens * rates->byte_s) -
                          op->touch * tokens * rates->byte_s;
    }
    price->forward += op->touch * tokens / cut * rates->byte_s;
    price->backward += op->touch_back * tokens / cut * rates->byte_s;
    if (op->keep == DPARI_KEEP_SELECTIVE) {
        price->again[DPAR_RECOMPUTE_SELECTIVE] += price->forward - before;
    }
    if (op->kind == DPARI_OP_STREAM) {
        price->again[DPAR_RECOMPUTE_ALTERNATE] += price->forward - before;
    } else if (op->kind != DPARI_OP_ATTENTION) { /* every second product is kept */
        price->again[DPAR_RECOMPUTE_ALTERNATE] += 0.5 * (price->forward - before);
    }
    price->host_forward += op->kernels * rates->launch_s;
    save = op->save * tokens / dpari_cut(rates, op->save_cut);
    save *= op->cut >= DPARI_CUT_EXPERT ? rates->work->capacity : 1.0; /* the fullest expert's */
    if (rates->narrow < 1.0) { /* TransformerEngine keeps the narrow operand */
        save *= dpari_narrowed(op, rates->narrow);
    }
    if (rates->strategy->recompute >= DPAR_RECOMPUTE_COUNT &&
        dpari_dropped(rates->strategy->recompute, op)) {
        double again =
            op->keep == DPARI_KEEP_EXPERTS ? price->forward - before : 2.0 * save * rates->byte_s;
        price->again[DPAR_RECOMPUTE_NONE] += again;
        price->again[DPAR_RECOMPUTE_SELECTIVE] += again;
        price->transient = dpari_mostf(price->transient, save);
        save = 0.0;
    }
    price->kept[DPAR_RECOMPUTE_NONE] += save;
    price->kept[DPAR_RECOMPUTE_SELECTIVE] += op->keep == DPARI_KEEP_SELECTIVE ? 0.0 : save;
    price->transient = dpari_mostf(price->transient, op->transient * tokens / cut);
    if (op->cut >= DPARI_CUT_EXPERT) {
        price->expert_params += op->params / (rates->strategy->ep * rates->strategy->etp);
    } else if (op->cut == DPARI_CUT_ROW && op->params > op->n * op->k) {
        /* the bias is not divided */
        price->params += op->n * op->k / rates->strategy->tp + (op->params - op->n * op->k);
    } else if (op->cut == DPARI_CUT_COLUMN || op->cut == DPARI_CUT_ROW ||
               op->cut == DPARI_CUT_TENSOR) {
        price->params += op->params / rates->strategy->tp;
    } else {
        price->params += op->params;
    }
}

DPARI_INTERNAL int32_t dpari_overlap_of(const dpar_job *job, const dpar_strategy *strategy)
{
    if (!(strategy->overlap & DPAR_OVERLAP_DEFAULT)) {
        return strategy->overlap;
    }
    return dpari_age(job->work)->overlap;
}

DPARI_INTERNAL double dpari_contention(const dpar_job *job)
{
    const double own = (double)dpari_age(job->work)->contention;
    return own > 0.0 && dpari_is_young(&job->cluster->gpu)
               ? own
               : job->cluster->cal.value[DPAR_CAL_CONTENTION];
}

/* ---- communication of a layer ---------------------------------------------------------------- */

DPARI_INTERNAL void dpari_pair_init(dpar_cluster_group *group, const dpar_cluster *cluster,
                                    int32_t n, int32_t stride)
{
    dpar_cluster_group_init(group, cluster, n, stride);
    group->nodes = group->nodes > 1 ? 2 : 1;
    group->size = 2;
    group->per_node = group->nodes == 2 ? 1 : 2;
}

DPARI_INTERNAL void dpari_tally_add(dpari_tally *tally, int32_t what, int32_t kind, int32_t n,
                                    double bytes, double forward, double backward)
{
    double all;
    if (tally == NULL || n < 2) {
        return;
    }
    all =
        kind == DPAR_CALL_SEND_RECV ? bytes * tally->ranks : (n - 1.0) * bytes * (tally->ranks / n);
    all *= kind == DPAR_CALL_ALL_REDUCE ? 2.0 : 1.0;
    tally->forward[what][kind] += all * forward;
    tally->backward[what][kind] += all * backward;
}

/* Returns the seconds of one call, and adds its bytes for as many calls as there are in the forward
 * and in the backward. */
static double dpari_spend(const dpar_job *job, const dpar_cluster_group *group, int32_t kind,
                          double bytes, dpari_layer_price *price, double forward, double backward)
{
    dpar_collective_cost c;
    dpar_collective_predict(job->cluster, group, kind, bytes, &c);
    price->link_forward += c.link_bytes * forward;
    price->nic_forward += c.nic_bytes * forward;
    price->link_backward += c.link_bytes * backward;
    price->nic_backward += c.nic_bytes * backward;
    return c.seconds;
}

/* Does the same, and counts the call in the tally. */
static double dpari_spend_counted(const dpar_job *job, const dpar_cluster_group *group,
                                  int32_t what, int32_t kind, double bytes,
                                  dpari_layer_price *price, double forward, double backward)
{
    dpari_tally_add(price->tally, what, kind, group->size, bytes, forward, backward);
    return dpari_spend(job, group, kind, bytes, price, forward, backward);
}

/* Prices Megatron's tensor-parallel regions. Each has an all-reduce in the forward and one in the
 * backward; with SP there are an all-gather and a reduce-scatter each way, and the input is
 * gathered once more for the weight gradient. The embedding has only the all-reduce of the forward,
 * the head only that of the backward. */
static DPARI_COLD void dpari_price_tp(const dpar_job *job, const dpar_strategy *strategy,
                                      const dpar_workload_layer *layer, double tokens,
                                      dpari_layer_price *price)
{
    double launch_s = job->cluster->cal.value[DPAR_CAL_LAUNCH_S];
    dpar_cluster_group g;
    double n = layer->tp_regions, bytes = tokens * layer->width_bytes, gather, reduce, forward,
           backward;
    if (strategy->tp == 1 || layer->tp_regions == 0) {
        return;
    }
    dpar_cluster_group_init(&g, job->cluster, strategy->tp, 1);
    forward = layer->kind == DPAR_LAYER_HEAD ? 0.0 : n;
    backward = layer->kind == DPAR_LAYER_EMBED ? 0.0 : n;
    price->host_forward += forward * launch_s;
    price->host_backward += backward * launch_s;
    if (!strategy->sp) {
        reduce = dpari_spend_counted(job, &g, DPAR_TRAFFIC_TP, DPAR_CALL_ALL_REDUCE, bytes, price,
                                     forward, backward);
        price->tp_forward = reduce * forward;
        price->tp_backward = reduce * backward;
    } else {
        /* the embedding scatters in the forward and gathers in the backward, the head does the
         * opposite */
        double gathers = layer->kind == DPAR_LAYER_EMBED ? 0.0 : n;
        gather = dpari_spend_counted(job, &g, DPAR_TRAFFIC_TP, DPAR_CALL_ALL_GATHER, bytes, price,
                                     gathers, layer->kind == DPAR_LAYER_BLOCK ? 2.0 * n : n);
        reduce = dpari_spend_counted(job, &g, DPAR_TRAFFIC_TP, DPAR_CALL_REDUCE_SCATTER, bytes,
                                     price, forward, backward);
        price->tp_forward =
            forward * (gather + reduce) + (layer->kind == DPAR_LAYER_HEAD ? gather : 0.0);
        price->tp_backward = backward * (2.0 * gather + reduce);
    }
    if (layer->kind == DPAR_LAYER_HEAD &&
        job->work->vocab > 0) { /* the loss: one maximum, two sums */
        dpari_tally_add(price->tally, DPAR_TRAFFIC_TP, DPAR_CALL_ALL_GATHER, strategy->tp,
                        tokens * strategy->tp * (job->work->element == 8 ? 24.0 : 12.0), 1.0, 0.0);
    }
    price->tp_again = price->tp_forward;
    if (dpari_overlap_of(job, strategy) & DPAR_OVERLAP_TP) {
        /* the data gradient is reduced while the weight gradient is computed */
        double hidden = dpari_leastf(0.9 * price->tp_backward, 0.45 * price->backward);
        price->tp_backward -= hidden * (1.0 - dpari_contention(job));
    }
}

/* Prices the exchange of keys and values between context-parallel ranks. Ulysses makes four
 * all-to-alls each way (queries, keys, values, outputs); the other kinds gather or pass keys and
 * values once in the forward and twice in the backward. */
static DPARI_COLD void dpari_price_cp(const dpar_job *job, const dpar_strategy *strategy,
                                      const dpar_workload_layer *layer, double tokens,
                                      dpari_layer_price *price)
{
    dpar_cluster_group g;
    double kv = tokens * layer->cp_kv_bytes / strategy->tp,
           qo = tokens * layer->cp_qo_bytes / strategy->tp, t;
    if (strategy->cp == 1 || layer->cp_kv_bytes <= 0.0) {
        return;
    }
    dpar_cluster_group_init(&g, job->cluster, strategy->cp, strategy->tp);
    if (strategy->cp_kind == DPAR_CP_ULYSSES) {
        /* the attention output is kept before and after its exchange */
        price->kept[DPAR_RECOMPUTE_NONE] += 0.5 * qo;
        price->kept[DPAR_RECOMPUTE_SELECTIVE] += 0.5 * qo;
        t = 4.0 * dpari_spend_counted(job, &g, DPAR_TRAFFIC_CP, DPAR_CALL_ALL_TO_ALL,
                                      (kv + qo) / 4.0, price, 4.0, 4.0);
        price->cp_forward = t;
        price->cp_backward = t;
        return;
    }
    t = dpari_spend(job, &g, DPAR_CALL_ALL_GATHER, kv * strategy->cp, price, 1.0, 2.0);
    if (strategy->cp_kind == DPAR_CP_GATHER) {
        dpari_tally_add(price->tally, DPAR_TRAFFIC_CP, DPAR_CALL_ALL_GATHER, strategy->cp,
                        kv * strategy->cp, 1.0, 2.0);
        price->cp_forward = t;
        price->cp_backward = 2.0 * t;
    } else {
        /* the ring passes blocks while it computes with the previous one */
        double merge = qo * (strategy->cp - 1.0) /
                       (job->cluster->gpu.memory_Bps * job->cluster->cal.value[DPAR_CAL_HBM]);
        dpari_tally_add(price->tally, DPAR_TRAFFIC_CP, DPAR_CALL_SEND_RECV, strategy->cp,
                        kv * (strategy->cp - 1.0), 1.0, 2.0);
        price->cp_forward =
            dpari_mostf(0.15 * t, t - 0.8 * price->attention) + dpari_ring_merge * merge;
        price->cp_backward =
            dpari_mostf(0.3 * t, 2.0 * t - 0.8 * dpari_attention_back * price->attention) +
            dpari_ring_merge_back * merge;
    }
}

/* Returns the expected number of different places that k random choices of n places reach. */
static DPARI_COLD double dpari_places_reached(double n, int32_t k)
{
    double missed = 1.0;
    for (; k > 0; k--) {
        missed *= 1.0 - 1.0 / n;
    }
    return n * (1.0 - missed);
}

/* Returns the number of nodes on which a token's experts can be. If routing is limited to some
 * groups of experts, these are the nodes of those groups. */
static DPARI_COLD double dpari_routed_nodes(const dpar_workload *work, double nodes)
{
    const double groups = work->expert_groups;
    if (work->topk_groups < 1 || work->topk_groups >= work->expert_groups) {
        return nodes;
    }
    return nodes >= groups ? nodes / groups * work->topk_groups
                           : dpari_places_reached(nodes, work->topk_groups);
}

/* Returns the seconds of one all-to-all of routed tokens. Software that sends a token once to each
 * node sends one copy per node that the token reaches, not topk copies; at the same time the copies
 * are distributed inside the nodes. */
static DPARI_COLD double dpari_routed_seconds(const dpar_job *job, const dpar_cluster_group *group,
                                              double bytes, dpari_layer_price *price)
{
    double sent, t;
    dpar_cluster_group inside = *group;
    const int once = dpari_age(job->work)->once && job->work->topk > 0;
    if (once && job->recipe.casts > 0.0) { /* one of the four messages is sent in 8 bits */
        bytes *= 0.875;
    }
    if (!once || group->nodes < 2) {
        return dpari_spend(job, group, DPAR_CALL_ALL_TO_ALL, bytes, price, 2.0, 2.0);
    }
    sent = dpari_places_reached(dpari_routed_nodes(job->work, group->nodes), job->work->topk);
    t = dpari_spend(job, group, DPAR_CALL_ALL_TO_ALL, bytes * sent / job->work->topk, price, 2.0,
                    2.0);
    inside.size = group->per_node;
    inside.nodes = 1;
    return dpari_mostf(t, dpari_spend(job, &inside, DPAR_CALL_ALL_TO_ALL, bytes, price, 2.0, 2.0));
}

/* Assumed, not measured: nine tenths of the experts' messages can be hidden, and four fifths of the
 * layer can hide them. The command plan notes this assumption if it affects the plan. */
static const double dpari_ep_hidden = 0.9;
static const double dpari_ep_hides = 0.8;

/* Hides t seconds of messages each way behind the work of the forward and the backward. */
static DPARI_COLD void dpari_hide_ep(const dpar_job *job, double t, double forward, double backward,
                                     dpari_layer_price *price)
{
    const double lost = 1.0 - dpari_contention(job);
    price->ep_forward -= lost * dpari_leastf(dpari_ep_hidden * t, forward);
    price->ep_backward -= lost * dpari_leastf(dpari_ep_hidden * t, backward);
}

/* Prices sending the tokens to their experts and back, in the forward and in the backward:
 * all-to-alls over the ep ranks, and an all-gather of tokens and a reduce-scatter of outputs over
 * the etp ranks of an expert. */
static DPARI_COLD void dpari_price_ep(const dpar_job *job, const dpari_rates *rates,
                                      const dpar_workload_layer *layer, double tokens,
                                      dpari_layer_price *p)
{
    const dpar_strategy *strategy = rates->strategy;
    dpar_cluster_group g;
    double t = 0.0, bytes = tokens * layer->ep_bytes * job->work->capacity /
                            (strategy->sp ? strategy->tp : 1);
    if (layer->ep_bytes <= 0.0) {
        return;
    }
    if (strategy->ep > 1) {
        dpar_cluster_group_init(&g, job->cluster, strategy->ep, strategy->etp);
        dpari_tally_add(p->tally, DPAR_TRAFFIC_EP, DPAR_CALL_ALL_TO_ALL, strategy->ep,
                        4.0 * (job->work->experts + (double)strategy->ep), 1.0, 0.0);
        dpari_tally_add(p->tally, DPAR_TRAFFIC_EP, DPAR_CALL_ALL_REDUCE, strategy->ep, 24.0, 1.0,
                        0.0);
        dpari_tally_add(p->tally, DPAR_TRAFFIC_EP, DPAR_CALL_ALL_TO_ALL, strategy->ep, bytes, 2.0,
                        2.0);
        t += 2.0 * dpari_routed_seconds(job, &g, bytes, p);
    }
    if (strategy->etp > 1) {
        dpar_cluster_group_init(&g, job->cluster, strategy->etp, 1);
        t += dpari_spend_counted(job, &g, DPAR_TRAFFIC_EP, DPAR_CALL_ALL_GATHER,
                                 bytes * strategy->etp, p, 1.0, 1.0);
        t += dpari_spend_counted(job, &g, DPAR_TRAFFIC_EP, DPAR_CALL_REDUCE_SCATTER,
                                 bytes * strategy->etp, p, 1.0, 1.0);
    }
    p->ep_forward = t;
    p->ep_backward = t;
    if (dpari_overlap_of(job, strategy) & DPAR_OVERLAP_EP) {
        dpari_hide_ep(job, t, dpari_ep_hides * p->forward, dpari_ep_hides * p->backward, p);
    } else if (strategy->overlap & DPAR_OVERLAP_SHARED) {
        dpari_layer_price shared;
        int32_t k;
        dpari_zero(&shared, sizeof(shared));
        for (k = 0; k < layer->shared_ops; k++) {
            dpari_price_op(rates, &job->work->op[layer->shared + k], tokens, &shared);
        }
        dpari_hide_ep(job, t, shared.forward, shared.backward, p);
    }
}

DPARI_INTERNAL DPARI_COLD double dpari_halo_cells(const dpar_workload *work,
                                                  const dpar_workload_layer *layer,
                                                  const dpar_strategy *strategy)
{
    double cells = 0.0;
    int32_t i, k;
    for (i = 0; i < work->dims; i++) {
        double face = 1.0;
        for (k = 0; k < work->dims; k++) {
            if (k != i) {
                face *= (double)work->extent[k] / layer->shrink / strategy->tiles[k];
            }
        }
        cells += strategy->tiles[i] > 1 ? 2.0 * face : 0.0;
    }
    return cells;
}

/* Prices the halo exchanges of a layer. */
static DPARI_COLD void dpari_price_halo(const dpar_job *job, const dpar_strategy *strategy,
                                        const dpar_workload_layer *layer, dpari_layer_price *price)
{
    int32_t tiles = (int32_t)dpari_tiles(strategy);
    double bytes, t;
    dpar_cluster_group g;
    if (tiles == 1 || layer->exchanges == 0) {
        return;
    }
    dpari_pair_init(&g, job->cluster, tiles, strategy->tp);
    bytes = dpari_halo_cells(job->work, layer, strategy) * layer->reach_bytes *
            strategy->micro_batch / layer->exchanges;
    t = dpari_spend(job, &g, DPAR_CALL_SEND_RECV, bytes, price, layer->exchanges,
                    layer->exchanges) *
        layer->exchanges;
    price->halo_forward = t;
    price->halo_backward = job->work->trains ? t : 0.0;
    dpari_tally_add(price->tally, DPAR_TRAFFIC_HALO, DPAR_CALL_SEND_RECV, tiles, bytes,
                    layer->exchanges, layer->exchanges);
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* Prices one layer of class i for one micro-batch on one rank, and counts its calls if there is a
 * tally. */
static void dpari_price_layer(const dpar_job *job, const dpari_rates *rates, int32_t i,
                              dpari_tally *tally, dpari_layer_price *price)
{
    const dpar_workload *work = job->work;
    const dpar_workload_layer *layer = &work->layer[i];
    const dpari_rates *r = layer->kind == DPAR_LAYER_HEAD ? rates + 1 : rates;
    const dpar_strategy *strategy = r->strategy;
    double parts = (double)strategy->cp * (double)dpari_tiles(strategy);
    double tokens = layer->tokens * strategy->micro_batch / parts;
    int32_t k;
    dpari_zero(price, sizeof(*price));
    price->tally = tally;
    for (k = 0; k < layer->ops; k++) {
        dpari_price_op(r, &work->op[layer->first + k], tokens, price);
    }
    if (layer->kind == DPAR_LAYER_HEAD && work->loss == DPAR_MODEL_LOSS_EAGER && strategy->tp > 1) {
        price->transient *= 18.0 / 14.0;
    }
    price->again[DPAR_RECOMPUTE_FULL] = price->forward;
    price->host_backward = 2.0 * price->host_forward;
    price->send = tokens * layer->width_bytes;
    price->kept[DPAR_RECOMPUTE_FULL] =
        price->send / r->sequence; /* its input, as wide as its output */
    price->kept[DPAR_RECOMPUTE_ALTERNATE] =
        price->send / r->sequence + tokens * layer->alternate / strategy->tp;
    dpari_price_tp(job, strategy, layer, tokens, price);
    dpari_price_cp(job, strategy, layer, tokens, price);
    dpari_price_ep(job, r, layer, tokens, price);
    dpari_price_halo(job, strategy, layer, price);
    if (!work->trains) {
        price->backward = price->host_backward = price->tp_backward = price->cp_backward =
            price->ep_backward = 0.0;
        price->link_backward = price->nic_backward = 0.0;
    }
}

/* Returns the bytes of the dummy weight gradients that TransformerEngine gives to autograd when it
 * accumulates in place. It keeps one dummy for each shape: one for each product of a block (experts
 * share one shape), and one for the head. */
static DPARI_COLD double dpari_layer_dummies(const dpar_job *job, const dpar_strategy *strategy,
                                             int32_t kind)
{
    const dpar_workload *work = job->work;
    double sum = 0.0;
    int32_t i, k;
    if (work->stack != DPAR_MODEL_STACK_MEGATRON_CORE || !work->trains) {
        return 0.0;
    }
    for (i = 0; i < work->layers; i++) {
        const dpar_workload_layer *layer = &work->layer[i];
        for (k = 0; layer->kind == kind && k < layer->ops; k++) {
            const dpari_layer_op *op = &work->op[layer->first + k];
            double cut = strategy->tp;
            if (op->cut >= DPARI_CUT_EXPERT) {
                cut = (double)work->experts * strategy->etp;
            } else if (op->cut == DPARI_CUT_NONE) {
                cut = 1.0;
            }
            sum += op->kind == DPARI_OP_STREAM ? 0.0 : 2.0 * op->params / cut;
        }
    }
    return sum;
}

DPARI_INTERNAL void dpari_price_layers(const dpar_job *job, const dpar_strategy *strategy,
                                       dpari_layers *out)
{
    dpari_rates r[2];
    int32_t i;
    dpari_rates_of(job, strategy, r);
    for (i = 0; i < job->work->layers; i++) {
        dpari_price_layer(job, r, i, NULL, &out->of[i]);
    }
    out->dummies = dpari_layer_dummies(job, strategy, DPAR_LAYER_BLOCK);
    out->head_dummies = dpari_layer_dummies(job, strategy, DPAR_LAYER_HEAD);
}

DPARI_INTERNAL void dpari_tally_layer(const dpar_job *job, const dpar_strategy *strategy, int32_t i,
                                      dpari_tally *tally)
{
    dpari_rates r[2];
    dpari_layer_price p;
    dpari_rates_of(job, strategy, r);
    dpari_price_layer(job, r, i, tally, &p);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_recipe_check(const dpar_recipe *recipe, dpar_why *why)
{
    const double bytes[7] = {recipe->weight,   recipe->gradient, recipe->master, recipe->moments,
                             recipe->gathered, recipe->reduced,  recipe->casts};
    int32_t i, fine = recipe->weight > 0.0 && recipe->compute > DPAR_TYPE_NONE &&
                      recipe->compute < DPAR_FORMAT_COUNT;
    for (i = 0; i < 7; i++) {
        fine = fine && bytes[i] >= 0.0 && bytes[i] <= 1000.0;
    }
    if (fine) {
        return DPAR_OK;
    }
    return dpari_wrong(
        why,
        "recipe: weight must be above 0, the bytes 0 to 1000, and compute=%d a format "
        "of 1 to %d, f64 to f4 (dpar_recipe_find sets all)",
        recipe->compute, (int32_t)DPAR_FORMAT_COUNT - 1);
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* Returns how many blocks of class i are among the blocks [from, to) of the model. */
static double dpari_blocks_within(const dpar_workload *work, int32_t i, int64_t from, int64_t to)
{
    const dpar_workload_layer *layer = &work->layer[i];
    from = dpari_most(from, layer->from);
    to = dpari_least(to, (int64_t)layer->from + layer->span);
    return to > from ? (double)(to - from) * ((double)layer->count / layer->span) : 0.0;
}

/* Returns the first block of chunk c of `chunks`. Chunks have equal shares, and the first ones have
 * one block more, so that the last stage, which has the logits, is never longer than others. If the
 * chunks do not divide the blocks but would divide two more, the embedding and the loss count as
 * layers (126 over 16, 94 over 32 x 3). */
static int64_t dpari_chunk_start(const dpar_workload *work, int64_t chunks, int64_t c)
{
    int64_t blocks = work->blocks, rest = blocks % chunks;
    if (work->head_blocks >
        0) { /* the head counts as head_blocks blocks, so the last stages are shorter */
        return dpari_least(dpari_ceil_div((blocks + work->head_blocks) * c, chunks),
                           blocks - (chunks - c));
    }
    if (rest > 0 && rest == chunks - 2) {
        return c > 0 ? dpari_least(blocks, (blocks / chunks + 1) * c - 1) : 0;
    }
    return blocks / chunks * c + dpari_least(c, rest);
}

/* Chunks are assigned to ranks 0 to pp-1 in turn; with V schedules every second turn goes
 * backwards. */
DPARI_INTERNAL int64_t dpari_chunk_of(const dpar_strategy *strategy, int32_t rank, int32_t v)
{
    int64_t turn = (int64_t)v * strategy->pp;
    return v % 2 == 1 && dpari_v_shaped(strategy->schedule) ? turn + strategy->pp - 1 - rank
                                                            : turn + rank;
}

DPARI_INTERNAL double dpari_stage_blocks(const dpar_workload *work, const dpar_strategy *strategy,
                                         int32_t rank, int32_t i)
{
    int64_t chunks = (int64_t)strategy->pp * strategy->vp;
    double n = 0.0;
    int32_t v;
    for (v = 0; v < strategy->vp; v++) {
        int64_t c = dpari_chunk_of(strategy, rank, v);
        n += dpari_blocks_within(work, i, dpari_chunk_start(work, chunks, c),
                                 dpari_chunk_start(work, chunks, c + 1));
    }
    return n;
}

DPARI_INTERNAL int dpari_ends_apart(const dpar_strategy *strategy)
{
    return dpari_chunk_of(strategy, 0, strategy->vp - 1) !=
           (int64_t)strategy->pp * strategy->vp - 1;
}

/* Adds `count` layers of a class to a stage. again: seconds of a layer's recomputation; kept: bytes
 * that it keeps. */
static void dpari_stage_add(const dpar_strategy *strategy, dpari_stage *st,
                            const dpari_layer_price *price, double count, double again, double kept)
{
    st->forward += count * price->forward;
    st->backward += count * price->backward;
    st->again += count * again;
    st->host += count * (price->host_forward + price->host_backward);
    st->tp +=
        count * (price->tp_forward + price->tp_backward + (again > 0.0 ? price->tp_again : 0.0));
    st->cp += count * (price->cp_forward + price->cp_backward);
    st->ep += count * (price->ep_forward + price->ep_backward);
    st->halo += count * (price->halo_forward + price->halo_backward);
    st->sent +=
        count * (price->tp_forward + price->cp_forward + price->ep_forward + price->halo_forward);
    st->params += count * price->params;
    st->expert_params += count * price->expert_params;
    st->kept += count * kept;
    st->link_bytes += count * (price->link_forward + price->link_backward);
    st->nic_bytes += count * (price->nic_forward + price->nic_backward);
    st->transient = dpari_mostf(st->transient, price->transient);
    st->largest = dpari_mostf(st->largest, price->params + price->expert_params);
    st->boundary = dpari_mostf(st->boundary, price->send / strategy->tp);
}

/* Adds `count` layers of a class to a stage; `full` of them are fully recomputed. */
static void dpari_stage_class(const dpar_strategy *strategy, dpari_stage *st,
                              const dpari_layer_price *price, double count, double full)
{
    int32_t mode = strategy->recompute & 3;
    if (mode != DPAR_RECOMPUTE_FULL) {
        double again = price->again[mode];
        dpari_stage_add(strategy, st, price, count, again, price->kept[mode]);
        st->tp -= again > 0.0 ? count * price->tp_again : 0.0; /* scores need no communication */
        if (mode == DPAR_RECOMPUTE_ALTERNATE) { /* sums are kept, and inputs are gathered again */
            st->tp += 0.5 * count * price->tp_again;
            st->transient =
                dpari_mostf(st->transient, price->transient + price->kept[DPAR_RECOMPUTE_NONE] -
                                               price->kept[mode]);
        }
        return;
    }
    dpari_stage_add(strategy, st, price, full, price->again[DPAR_RECOMPUTE_FULL],
                    price->kept[DPAR_RECOMPUTE_FULL]);
    st->host += full * price->host_forward;
    st->link_bytes += full * price->link_forward;
    st->nic_bytes += full * price->nic_forward;
    st->ep += full * price->ep_forward;
    st->cp += full * price->cp_forward;
    st->halo += full * price->halo_forward;
    dpari_stage_add(strategy, st, price, count - full, 0.0, price->kept[DPAR_RECOMPUTE_NONE]);
    /* while a layer is recomputed, all of its activations exist */
    st->transient = dpari_mostf(st->transient, price->transient + price->kept[DPAR_RECOMPUTE_NONE]);
}

/* Adds the embedding or the head to a stage. */
static DPARI_COLD void dpari_stage_edges(const dpar_job *job, const dpar_strategy *strategy,
                                         const dpari_layers *layers, int32_t kind, dpari_stage *st)
{
    const dpar_workload *work = job->work;
    int32_t i;
    for (i = 0; i < work->layers; i++) {
        dpari_layer_price price;
        if (work->layer[i].kind != kind) {
            continue;
        }
        price = layers->of[i];
        if (kind == DPAR_LAYER_HEAD) {
            st->logits += price.transient;
            price.transient = 0.0;
        }
        dpari_stage_add(strategy, st, &price, work->layer[i].count, 0.0,
                        price.kept[DPAR_RECOMPUTE_NONE]);
        /* tied embeddings: the last stage keeps a copy of the embedding if the first stage is on
         * another rank */
        if (kind == DPAR_LAYER_HEAD && dpari_ends_apart(strategy) && work->vocab > 0 &&
            dpari_layer_params(work, i) < (double)work->vocab * work->hidden) {
            st->params += (double)work->vocab * work->hidden / strategy->tp;
        }
    }
}

/* Sets the time of a stage from those of host and device, which work at the same time. A fast host
 * is hidden, a slow host determines the time, and between these cases the device sometimes waits.
 * With TP every rank waits at each collective for the rank whose host is last, so more of the
 * host's time is exposed (vTrain's single-node rows, tp 1 against 2 to 8). */
static void dpari_stage_total(const dpar_strategy *strategy, dpari_stage *st)
{
    double device = dpari_stage_device(st);
    double share = strategy->tp > 1 ? 0.75 : 0.25;
    double waits = st->host > 0.0 ? share * st->host * st->host / (st->host + device / 2.0) : 0.0;
    st->total = dpari_mostf(device + waits, st->host);
}

DPARI_INTERNAL void dpari_price_stage(const dpar_job *job, const dpar_strategy *strategy,
                                      const dpari_layers *layers, int32_t rank, dpari_stage *st)
{
    const dpar_workload *work = job->work;
    int64_t chunks = (int64_t)strategy->pp * strategy->vp;
    double share;
    int32_t i, v;
    dpari_zero(st, sizeof(*st));
    st->rank = rank;
    st->dummies = layers->dummies;
    st->head_dummies = layers->head_dummies;
    for (v = 0; v < strategy->vp; v++) {
        int64_t c = dpari_chunk_of(strategy, rank, v);
        st->layers +=
            (double)(dpari_chunk_start(work, chunks, c + 1) - dpari_chunk_start(work, chunks, c));
    }
    share = dpari_recomputed_share(strategy, st->layers);
    for (v = 0; v < strategy->vp; v++) {
        int64_t c = dpari_chunk_of(strategy, rank, v);
        int64_t from = dpari_chunk_start(work, chunks, c);
        int64_t to = dpari_chunk_start(work, chunks, c + 1);
        for (i = 0; i < work->layers; i++) {
            double n = work->layer[i].kind == DPAR_LAYER_BLOCK
                           ? dpari_blocks_within(work, i, from, to)
                           : 0.0;
            if (n > 0.0) {
                dpari_stage_class(strategy, st, &layers->of[i], n, n * share);
            }
        }
        if (c == 0) {
            dpari_stage_edges(job, strategy, layers, DPAR_LAYER_EMBED, st);
        }
        if (c == chunks - 1) {
            dpari_stage_edges(job, strategy, layers, DPAR_LAYER_HEAD, st);
        }
    }
    dpari_stage_total(strategy, st);
}

/* Returns 1 if a class of blocks begins inside the chunks of a rank, so that no other rank has the
 * same mix of classes. */
static int dpari_stage_mixed(const dpar_workload *work, const dpar_strategy *strategy, int32_t rank)
{
    int64_t chunks = (int64_t)strategy->pp * strategy->vp;
    int32_t i, v;
    for (i = 0; i < work->layers; i++) {
        int64_t start = work->layer[i].from;
        for (v = 0; v < strategy->vp; v++) {
            int64_t c = dpari_chunk_of(strategy, rank, v);
            if (work->layer[i].kind == DPAR_LAYER_BLOCK && start > 0 &&
                start >= dpari_chunk_start(work, chunks, c) &&
                start <= dpari_chunk_start(work, chunks, c + 1)) {
                return 1;
            }
        }
    }
    return 0;
}

static int32_t dpari_block_classes(const dpar_workload *work)
{
    int32_t i, n = 0;
    for (i = 0; i < work->layers; i++) {
        n += work->layer[i].kind == DPAR_LAYER_BLOCK;
    }
    return n;
}

/* Computes the sum over all ranks, in which every layer occurs once. */
static DPARI_COLD void dpari_price_whole(const dpar_job *job, const dpar_strategy *strategy,
                                         const dpari_layers *layers, dpari_stage *whole)
{
    const dpar_workload *work = job->work;
    double share = dpari_recomputed_share(strategy, (double)work->blocks / strategy->pp);
    int32_t i;
    dpari_zero(whole, sizeof(*whole));
    for (i = 0; i < work->layers; i++) {
        if (work->layer[i].kind == DPAR_LAYER_BLOCK) {
            dpari_stage_class(strategy, whole, &layers->of[i], work->layer[i].count,
                              work->layer[i].count * share);
        }
    }
    dpari_stage_edges(job, strategy, layers, DPAR_LAYER_EMBED, whole);
    dpari_stage_edges(job, strategy, layers, DPAR_LAYER_HEAD, whole);
    dpari_stage_total(strategy, whole);
}

/* Returns 1 if a rank or one next to it is mixed. The ranks next to a mixed one are the longest of
 * the ranks that are not mixed on their side. */
static int dpari_stage_near_mixed(const dpar_workload *work, const dpar_strategy *strategy,
                                  int32_t rank)
{
    return dpari_stage_mixed(work, strategy, rank - 1) || dpari_stage_mixed(work, strategy, rank) ||
           (rank + 1 < strategy->pp && dpari_stage_mixed(work, strategy, rank + 1));
}

/* Returns an entry for one more stage. If the list is full, the fastest of the inner ones is
 * replaced. */
static DPARI_COLD dpari_stage *dpari_stage_place(dpari_stages *out)
{
    int32_t i, quick = 1;
    if (out->n < DPARI_MAX_STAGES) {
        return &out->of[out->n++];
    }
    for (i = 2; i < out->n; i++) {
        quick = out->of[i].total < out->of[quick].total ? i : quick;
    }
    for (i = quick; i + 1 < out->n;
         i++) { /* keeps the order of ranks; the last is the last stage */
        out->of[i] = out->of[i + 1];
    }
    return &out->of[out->n - 1];
}

DPARI_INTERNAL double dpari_boundary_bytes(const dpar_job *job, const dpar_strategy *strategy,
                                           const dpari_layers *layers)
{
    double send = 0.0;
    int32_t i;
    for (i = 0; i < job->work->layers; i++) {
        if (job->work->layer[i].kind == DPAR_LAYER_BLOCK) {
            send = dpari_mostf(send, layers->of[i].send);
        }
    }
    /* each TP rank sends its part, and the receivers gather the parts over the fast links */
    return send / strategy->tp;
}

DPARI_INTERNAL void dpari_price_stages(const dpar_job *job, const dpar_strategy *strategy,
                                       const dpari_layers *layers, dpari_stages *out)
{
    int32_t rank, last = strategy->pp - 1, classes = dpari_block_classes(job->work);
    out->n = 0;
    for (rank = 0; rank <= last; rank++) {
        if (rank <= 1 || rank == last || dpari_stage_near_mixed(job->work, strategy, rank)) {
            dpari_price_stage(job, strategy, layers, rank, dpari_stage_place(out));
        } else if (classes <= 1) {
            rank = last - 1; /* the ranks in between are like rank 1 or shorter */
        }
    }
    dpari_price_whole(job, strategy, layers, &out->whole);
    out->sum_total = out->whole.total;
    out->send = dpari_boundary_bytes(job, strategy, layers);
}
