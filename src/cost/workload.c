/* SPDX-License-Identifier: MIT-0 */
/* Builds a workload from a model. dpar_workload_init completes and checks the model, appends the
 * layer classes of its family, each with its operations, and finally sums parameters and FLOP.
 *
 * The numbers of an operation are those of the whole layer, for one token. price.c divides them by
 * the degrees of parallelism. */
#include "workload.h"

#include "../base/base_private.h"
#include "cost_private.h"

/* ---- software stacks, names, sums over the list ---------------------------------------------- */

DPARI_INTERNAL const char *dpari_stack_name(int32_t stack)
{
    static const char name[DPAR_MODEL_STACK_END][14] = {
        "?",        "megatron", "core",   "torch",         "compiled",  "llm-foundry", "torchtitan",
        "nanotron", "nemo",     "deepep", "megatron@2021", "nemo@2024", "maxtext"};
    return stack > 0 && stack < DPAR_MODEL_STACK_END ? name[stack] : "?";
}

/* Returns the generation of a stack. Where the numbers come from:
 *
 * products, attention, streams, contention: fitted to marked rows of docs/records/accuracy.md,
 *     llm-foundry to those of its H100 table, torchtitan to the 70B rows in 16 bits, nemo@2024 to
 *     the shortest and the longest H100 row of nemo-long. PyTorch's attention is FlashAttention-2,
 *     that of NVIDIA's stacks is cuDNN's. nanotron, maxtext and deepep have no row to fit. nanotron
 *     has the rates of torch, and deepep is the software of DeepSeek-V3.
 * overlap: nanotron overlaps tensor parallelism, as its benchmark script sets it.
 * copies: FSDP2 writes each gathered weight to its place, twice per micro-batch, and its 32-bit
 *     gradients into one buffer: 2 (2 + 2) + 2 + 4 bytes.
 * sliced: nanotron's zero.py makes one list entry per tensor and rank, and its trainer does not
 *     request a reduce-scatter. */
static const dpari_generation *dpari_generation_at(int32_t stack)
{
    enum { DP = DPAR_OVERLAP_DP, TP = DPAR_OVERLAP_TP, PP = DPAR_OVERLAP_PP, EP = DPAR_OVERLAP_EP };
    enum { LM = DPAR_MODEL_STACK_MEGATRON, CORE, PT, PTC }; /* the basic stacks, in order */
    static const dpari_generation age[DPAR_MODEL_STACK_END] = {
        {CORE, DP | PP | TP, 0, 0, 0, 0, 1, 1, 1, 0, CORE, 2025, 2026},
        {LM, TP, 0, 0, 0, 0, 1, 1, 1, 0, LM, 2022, 2022},
        {CORE, DP | PP | TP, 0, 0, 0, 0, 1, 1, 1, 0, CORE, 2025, 2026},
        {PT, DP, 0, 14, 0, 0, 1, .7f, .8f, 0, PT, 2024, 2026},
        {PTC, DP, 0, 14, 0, 0, 1, .7f, 1, 0, PTC, 2024, 2026},
        {PT, DP, 0, 0, 0, 0, .9f, .7f, .8f, .4f, PT, 2023, 2023},
        {PTC, DP, 0, 14, 0, 0, 1, .7f, 1, 0, PTC, 2024, 2025},
        {PT, TP, 1, 14, 1, 0, 1, .7f, .8f, 0, DPAR_MODEL_STACK_NANOTRON, 2025, 2025},
        {CORE, DP | PP | TP | EP, 0, 0, 0, 0, 1, 1, 1, 0, CORE, 2025, 2026},
        {CORE, DP | PP | TP | EP, 0, 0, 0, 1, 1, 1, 1, 0, DPAR_MODEL_STACK_DEEPEP, 2024, 2025},
        {LM, 0, 0, 0, 0, 0, 1, 1, 1, 0, LM, 2021, 2021},
        {CORE, DP | PP | TP, 0, 0, 0, 0, .85f, .80f, 1, 0, CORE, 2024, 2024},
        {PTC, DP | TP, 0, 0, 0, 0, 1, 1, 1, 0, DPAR_MODEL_STACK_MAXTEXT, 2024, 2024}};
    return &age[stack];
}

DPARI_INTERNAL const dpari_generation *dpari_age(const dpar_workload *work)
{
    return dpari_generation_at(work->stack_version > 0 && work->stack_version < DPAR_MODEL_STACK_END
                                   ? work->stack_version
                                   : work->stack);
}

/* Returns the latest generation of a stack that began in or before a year, or its first generation.
 * Of those that began in the same year it prefers the stack itself. */
static DPARI_COLD int32_t dpari_stack_in(int32_t stack, int32_t year)
{
    const int32_t of = dpari_generation_at(stack)->of;
    int32_t i, best = 0, first = stack;
    for (i = 1; i < DPAR_MODEL_STACK_END; i++) {
        const dpari_generation *g = dpari_generation_at(i);
        if (g->of != of) {
            continue;
        }
        first = g->from < dpari_generation_at(first)->from ? i : first;
        if (g->from <= year && (best == 0 || g->from > dpari_generation_at(best)->from ||
                                (i == stack && g->from == dpari_generation_at(best)->from))) {
            best = i;
        }
    }
    return best > 0 ? best : first;
}

DPARI_INTERNAL DPARI_COLD int dpari_stack_read(dpar_model *model, const char *s, size_t n)
{
    const dpari_generation *g;
    dpar_text t;
    int32_t i, stack = 0, year = 0;
    size_t at = 0, k;
    while (at < n && s[at] != '@') {
        at++;
    }
    for (i = 1; i < DPAR_MODEL_STACK_END; i++) {
        if (dpari_spells(s, n, dpari_stack_name(i))) {
            model->stack = i;
            return 1;
        }
        stack = dpari_spells(s, at, dpari_stack_name(i)) ? i : stack;
    }
    for (k = at + 1; at + 5 == n && k < n && s[k] >= '0' && s[k] <= '9'; k++) {
        year = 10 * year + (s[k] - '0');
    }
    if (stack == 0 || k < at + 5) {
        return 0;
    }
    model->stack = dpari_stack_in(stack, year);
    g = dpari_generation_at(model->stack);
    if (year < g->from || year > g->to) {
        dpar_text_init(&t, model->note + dpari_length(model->note),
                       sizeof(model->note) - dpari_length(model->note));
        dpari_text_slice(&t, s, n);
        dpari_text_print(&t, ": no published run of that year is known here; priced as %s of %d\n",
                         dpari_stack_name(model->stack), g->from);
    }
    return 1;
}

DPARI_INTERNAL const char *dpari_attention_name(int32_t attention)
{
    static const char name[DPAR_MODEL_ATTENTION_END][8] = {"?", "unfused", "flash1", "flash"};
    return attention > 0 && attention < DPAR_MODEL_ATTENTION_END ? name[attention] : "?";
}

DPARI_INTERNAL const char *dpari_loss_name(int32_t loss)
{
    static const char name[DPAR_MODEL_LOSS_END][9] = {"?",       "eager",   "compiled", "fused",
                                                      "inplace", "chunked", "parallel"};
    return loss > 0 && loss < DPAR_MODEL_LOSS_END ? name[loss] : "?";
}

DPARI_INTERNAL double dpari_layer_params(const dpar_workload *work, int32_t layer)
{
    double sum = 0.0;
    int32_t i;
    if (layer < 0 || layer >= work->layers) {
        return 0.0;
    }
    for (i = 0; i < work->layer[layer].ops; i++) {
        sum += work->op[work->layer[layer].first + i].params;
    }
    return sum;
}

DPARI_INTERNAL double dpari_layer_saved(const dpar_workload *work, int32_t layer, int32_t recompute)
{
    double sum = 0.0;
    int32_t i;
    if (layer < 0 || layer >= work->layers || work->layer[layer].ops < 1) {
        return 0.0;
    }
    if (recompute == DPAR_RECOMPUTE_FULL) { /* it keeps only the input, which is as wide as the
                                               output */
        return work->layer[layer].width_bytes;
    }
    for (i = 0; i < work->layer[layer].ops; i++) {
        const dpari_layer_op *op = &work->op[work->layer[layer].first + i];
        int32_t drop = recompute == DPAR_RECOMPUTE_SELECTIVE && op->keep == DPARI_KEEP_SELECTIVE;
        sum += drop ? 0.0 : op->save;
    }
    return sum;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_workload_check(const dpar_workload *work, dpar_why *why)
{
    int32_t i;
    double params = 0.0;
    if (work->layers < 1 || work->layers > DPAR_MAX_LAYER_CLASSES || work->ops < 1 ||
        work->ops > DPAR_MAX_LAYER_OPS) {
        return dpari_wrong(why,
                           "the workload has %d layer classes with %d operations; allowed are 1 to "
                           "24 with 1 to 320",
                           work->layers, work->ops);
    }
    for (i = 0; i < work->layers; i++) {
        const dpar_workload_layer *layer = &work->layer[i];
        if (layer->count < 1 || layer->ops < 1 || layer->first < 0 ||
            layer->first + layer->ops > work->ops || !(layer->tokens > 0.0) ||
            !dpari_finite(layer->tokens)) {
            return dpari_wrong(why,
                               "layer class %d is empty: count=%d, operations=%d (of 320 in all)",
                               i, layer->count, layer->ops);
        }
        params += dpari_layer_params(work, i) * layer->count;
    }
    if (!(params >= 0.0) || params > 4e18) {
        return dpari_say(DPAR_E_RANGE, why, "the model has more than 4e18 parameters");
    }
    return DPAR_OK;
}

/* ---- building -------------------------------------------------------------------------------- */

/* Appends a class of `count` equal layers without operations. Returns NULL if count is 0 or the
 * table is full. */
static dpar_workload_layer *dpari_add_layer(dpar_workload *work, const char *name, int32_t kind,
                                            int32_t count, double tokens, double width_bytes)
{
    dpar_workload_layer *layer;
    if (work->layers >= DPAR_MAX_LAYER_CLASSES || count < 1) {
        return NULL;
    }
    layer = &work->layer[work->layers++];
    dpari_zero(layer, sizeof(*layer));
    dpari_copy_text(layer->name, sizeof(layer->name), name, sizeof(layer->name));
    layer->kind = kind;
    layer->count = count;
    layer->first = work->ops;
    layer->tokens = tokens;
    layer->width_bytes = width_bytes;
    layer->shrink = 1;
    return layer;
}

/* Returns how tensor parallelism divides the input that an operation keeps for the backward. The
 * input of a column-parallel product comes from a norm, which is divided along the sequence. The
 * input of a row-parallel product comes from a column-parallel one, which divides its output. */
static int dpari_save_cut(int cut)
{
    switch (cut) {
    case DPARI_CUT_COLUMN: return DPARI_CUT_SEQUENCE;
    case DPARI_CUT_ROW: return DPARI_CUT_TENSOR;
    case DPARI_CUT_EXPERT_COLUMN: return DPARI_CUT_EXPERT;
    case DPARI_CUT_EXPERT_ROW: return DPARI_CUT_EXPERT_TENSOR;
    default: return cut;
    }
}

/* Appends an operation to the newest layer. If the table is full, the operation replaces the last
 * one. Layers that are added later then have no operations, so that dpari_workload_check refuses
 * the workload. */
static dpari_layer_op *dpari_add_op(dpar_workload *work, int kind, int cut, int kernels)
{
    dpari_layer_op *op =
        &work->op[work->ops < DPAR_MAX_LAYER_OPS ? work->ops++ : DPAR_MAX_LAYER_OPS - 1];
    dpari_zero(op, sizeof(*op));
    op->kind = (int8_t)kind;
    op->cut = (int8_t)cut;
    op->save_cut = (int8_t)dpari_save_cut(cut);
    op->kernels = (int16_t)kernels;
    op->copies = 1.0;
    if (work->layers > 0) {
        work->layer[work->layers - 1].ops = work->ops - work->layer[work->layers - 1].first;
    }
    return op;
}

/* Appends the product [tokens, k] x [k, n]. Its input is kept for the weight gradient. */
static dpari_layer_op *dpari_add_gemm(dpar_workload *work, int cut, double n, double k, int biases)
{
    dpari_layer_op *op = dpari_add_op(work, DPARI_OP_GEMM, cut, biases ? 2 : 1);
    op->n = n;
    op->k = k;
    op->params = n * k + (biases ? n : 0.0);
    op->save = k * work->element;
    if (cut == DPARI_CUT_COLUMN && work->stack >= DPAR_MODEL_STACK_TORCH) {
        op->save_cut = DPARI_CUT_NONE; /* PyTorch's DTensor keeps the gathered input */
    }
    return op;
}

/* Appends an element-wise operation with the bytes per token that its forward and its backward move
 * and that it keeps for the backward. */
DPARI_STATIC_NOINLINE dpari_layer_op *dpari_add_stream(dpar_workload *work, int cut, int kernels,
                                                       double touch, double touch_back, double save)
{
    dpari_layer_op *op = dpari_add_op(work, DPARI_OP_STREAM, cut, kernels);
    op->touch = touch;
    op->touch_back = touch_back;
    op->save = save;
    return op;
}

/* How the model and its software do the element-wise work of a layer. All int32_t are 0 or 1. */
typedef struct dpari_style {
    double element; /* bytes of an element */
    double norm;    /* bytes per channel that a norm keeps: its input, or for an eager RMSNorm an
                     * fp32 copy of the input and the 16-bit value before the weight (6 bytes) */
    double passes;  /* element-wise traffic / that of fused kernels */
    int32_t fused;  /* the activation and its product are one kernel, rotary makes no copies */
    int32_t drop;   /* dropout after attention and after each residual branch */
    int32_t biases;
    int32_t gated; /* the MLP has a gate: three matrices */
    int32_t rotary;
    int32_t rms;    /* norms are RMSNorms */
    int32_t repeat; /* keys and values are repeated for each query head, and kept that way */
} dpari_style;

/* Returns the style of a model with the software of its workload. */
static dpari_style dpari_style_of(const dpar_workload *work, const dpar_model *model)
{
    dpari_style s;
    int eager = work->stack == DPAR_MODEL_STACK_TORCH;
    s.element = work->element;
    s.passes = eager ? 1.6 : 1.0;
    s.fused = !eager;
    s.drop = model->family == DPAR_MODEL_FAMILY_GPT && work->stack == DPAR_MODEL_STACK_MEGATRON;
    s.biases = model->biases > 0 || (model->family != DPAR_MODEL_FAMILY_LLAMA &&
                                     model->family != DPAR_MODEL_FAMILY_T5 && model->biases == 0);
    s.rotary = model->family == DPAR_MODEL_FAMILY_LLAMA;
    s.gated = model->gated > 0 || (model->gated == 0 && s.rotary);
    s.rms = model->family == DPAR_MODEL_FAMILY_LLAMA || model->family == DPAR_MODEL_FAMILY_T5;
    s.norm = eager && s.rms ? s.element + 4.0 : s.element;
    s.repeat = work->stack >= DPAR_MODEL_STACK_TORCH;
    return s;
}

/* Appends a norm over h channels: the forward reads and writes them, the backward moves three times
 * their bytes. */
static void dpari_add_norm(dpar_workload *work, const dpari_style *style, double h, int keep)
{
    dpari_layer_op *op = dpari_add_stream(
        work, DPARI_CUT_SEQUENCE, style->fused ? 1 : 4, 2.0 * style->element * h * style->passes,
        3.0 * style->element * h * style->passes, style->norm * h);
    op->params = !style->rms && style->biases ? 2.0 * h : h;
    op->keep = (int8_t)keep;
}

/* Appends a residual addition, with dropout and bias if the model has them. */
static void dpari_add_residual(dpar_workload *work, const dpari_style *style, double h)
{
    const double mask = style->drop ? 1.0 : 0.0;
    const double back = style->drop ? 2.0 : 1.0; /* elements that the backward moves */
    const int32_t kernels = style->drop && !style->fused ? 3 : 1;
    dpari_add_stream(work, DPARI_CUT_SEQUENCE, kernels, (3.0 * style->element + mask) * h,
                     (back * style->element + mask) * h, mask * h);
}

/* Appends unfused attention: two batched products, and between them the traffic of a [heads, s, s]
 * tensor. With 2-byte elements the forward moves 2 + 2 bytes per element for the softmax and 2 + 2
 * + 1 for dropout, the backward 6 and 5. The operation keeps 2 bytes (the output of the softmax),
 * and with dropout 1 (the mask) and 2 (its output) more, which is the 5 a s of Korthikanti (2022).
 * The bytes that the products read and write are part of the products' price. */
static void dpari_add_scores(dpar_workload *work, const dpari_style *style, double heads,
                             double width, double keys, double kept)
{
    double cells = heads * keys, e = style->element;
    dpari_layer_op *op = dpari_add_op(work, DPARI_OP_SCORES, DPARI_CUT_TENSOR, 6);
    op->n = heads * width;
    op->k = keys;
    op->heads = (int16_t)(heads < 30000.0 ? heads : 30000.0); /* the range of int16_t */
    op->save = kept;
    if (style->drop) {
        op = dpari_add_stream(work, DPARI_CUT_TENSOR, 2, cells * (4.0 * e + 1.0),
                              cells * (5.0 * e + 1.0), cells * (2.0 * e + 1.0));
    } else {
        op = dpari_add_stream(work, DPARI_CUT_TENSOR, 1, cells * (2.0 * e), cells * (3.0 * e),
                              cells * e);
    }
    op->keep = DPARI_KEEP_SELECTIVE;
}

/* Returns the number of keys that a token sees: half of them on average with causal attention, and
 * fewer in a window. */
static double dpari_keys_seen(double keys, int causal, double window)
{
    if (window > 0.0 && window < keys) {
        return causal ? window * (1.0 - 0.5 * window / keys) : window;
    }
    return causal ? 0.5 * keys : keys;
}

/* Appends attention without its projections. width: d_qk + d_v of a head. kept: bytes per token of
 * queries, keys and values that it keeps. */
static void dpari_add_attention(dpar_workload *work, const dpari_style *style, double heads,
                                double width, double keys, int causal, double window, double kept)
{
    dpari_layer_op *op;
    if (work->attention == DPAR_MODEL_ATTENTION_UNFUSED) {
        dpari_add_scores(work, style, heads, width, keys, kept);
        return;
    }
    op = dpari_add_op(work, DPARI_OP_ATTENTION, DPARI_CUT_TENSOR, style->fused ? 2 : 4);
    op->n = heads * width;
    op->k = dpari_keys_seen(keys, causal, window);
    op->heads = (int16_t)(heads < 30000.0 ? heads : 30000.0);
    op->save = kept + 4.0 * heads; /* the statistics of the softmax: one fp32 per head */
}

/* Appends an indexer if the model has one: a few narrow heads that score every key, so that
 * attention only sees the best keys. */
static void dpari_add_indexer(dpar_workload *work, const dpar_model *model, double keys)
{
    double width = (double)model->index_heads * model->index_width;
    dpari_layer_op *op;
    if (model->index_heads < 1) {
        return;
    }
    dpari_add_gemm(work, DPARI_CUT_NONE, width, model->q_lora > 0 ? model->q_lora : model->hidden,
                   0)
        ->save = 0.0;
    dpari_add_gemm(work, DPARI_CUT_NONE, model->index_width + model->index_heads, model->hidden, 0)
        ->save = 0.0;
    op = dpari_add_op(work, DPARI_OP_SCAN, DPARI_CUT_NONE, 3);
    op->n = width;
    op->k = 0.5 * keys;
}

/* Appends multi-head or grouped-query attention: norm, QKV, attention, projection, residual. cross
 * is 1 if its input is not the layer's; window is 0 if there is none. */
static void dpari_add_mha(dpar_workload *work, const dpar_model *model, const dpari_style *style,
                          double keys, int causal, int cross, double window)
{
    double h = model->hidden, d = model->head_width,
           v = model->v_width > 0 && model->kv_lora == 0 ? model->v_width : d;
    double q = model->heads * d, out = model->heads * v;
    double kvs =
        window > 0.0 && model->window_kv_heads > 0 ? model->window_kv_heads : model->kv_heads;
    double kv = kvs * (d + v), gate = model->q_gate ? out : 0.0;
    double rotary = 0.0;
    dpar_workload_layer *layer = &work->layer[work->layers - 1];
    if (style->rotary) {
        rotary = style->fused ? 1.0 : 2.0;
    }
    dpari_add_norm(work, style, h, cross ? DPARI_KEEP_ALWAYS : DPARI_KEEP_INPUT);
    if (model->q_lora > 0) {
        dpari_add_gemm(work, DPARI_CUT_NONE, model->q_lora, h, 0)->keep = DPARI_KEEP_NORM;
        dpari_add_gemm(work, DPARI_CUT_COLUMN, q + gate, model->q_lora, 0)->keep = DPARI_KEEP_NORM;
        dpari_add_gemm(work, DPARI_CUT_COLUMN, kv, h, style->biases)->save = 0.0;
    } else {
        dpari_add_gemm(work, DPARI_CUT_COLUMN, q + gate + kv, h, style->biases)->keep =
            DPARI_KEEP_NORM;
    }
    dpari_add_indexer(work, model, keys);
    /* bias, split into heads and transposes read and write QKV once; rotary adds half of that, in
     * eager mode all of it */
    dpari_add_stream(work, DPARI_CUT_TENSOR, style->fused ? 2 : 6,
                     2.0 * style->element * (q + kv) * (1.0 + 0.5 * rotary),
                     2.0 * style->element * (q + kv) * (1.0 + 0.5 * rotary), 0.0);
    dpari_add_attention(work, style, model->heads, d + v, keys, causal, window,
                        style->element * (gate + (style->repeat ? 3.0 * q : q + kv)));
    dpari_add_stream(work, DPARI_CUT_TENSOR, 1, 2.0 * style->element * (out + gate),
                     2.0 * style->element * (out + gate), 0.0);
    if (model->o_lora > 0) { /* block-diagonal to o_lora for each group; the next product leads back
                                to h */
        double groups = model->o_groups > 0 ? model->o_groups : 1.0;
        dpari_add_gemm(work, DPARI_CUT_COLUMN, groups * model->o_lora, out / groups, 0);
        out = groups * model->o_lora;
    }
    dpari_add_gemm(work, DPARI_CUT_ROW, h, out, style->biases);
    dpari_add_residual(work, style, h);
    layer->tp_regions++;
    layer->cp_kv_bytes += style->element * kv;
    layer->cp_qo_bytes += 2.0 * style->element * q;
    layer->alternate +=
        style->element * (2.0 * q + 0.5 * kv) + 4.0 * model->heads; /* queries, values, output */
}

/* The sizes of a recurrence. */
typedef struct dpari_scan {
    double in;    /* width of its input projection */
    double inner; /* width of its output */
    double conv;  /* channels of its short convolution; 0 if it has none */
    double side;  /* parameters outside of matrix products */
    double low;   /* inner width of its low-rank projections */
    double low_n; /* sum of their outer widths; 0 if it has none */
    double chunk; /* tokens per chunk of matrix products; 0 if it works token by token */
} dpari_scan;

/* Returns the sizes of the model's recurrence. */
static dpari_scan dpari_scan_of(const dpar_model *model)
{
    double a = model->scan_heads, di = a * model->scan_width,
           gn = (double)model->scan_groups * model->scan_state;
    double h = model->hidden;
    dpari_scan c = {0, 0, 0, 0, 0, 0, 0};
    c.in = 2.0 * di;
    c.inner = c.conv = di;
    switch (model->scan) {
    case DPAR_MODEL_SCAN_MAMBA: /* low-rank: from the channels to dt (h / 16) and back */
        c.low = (double)((model->hidden + 15) / 16);
        c.low_n = 2.0 * di;
        c.side = di * (3.0 * model->scan_state + 3.0); /* A; B and C; conv bias, dt bias, D */
        break;
    case DPAR_MODEL_SCAN_MAMBA2:
        c.in += 2.0 * gn + a;
        c.conv += 2.0 * gn;
        c.side = 3.0 * a + 2.0 * di + 2.0 * gn;
        c.chunk = 256.0;
        break;
    case DPAR_MODEL_SCAN_DELTA:
        c.in += 2.0 * gn + 2.0 * a;
        c.conv += 2.0 * gn;
        c.side = 2.0 * a;
        c.chunk = 64.0;
        break;
    case DPAR_MODEL_SCAN_KDA:
        c.in = di + 2.0 * gn + a;
        c.conv += 2.0 * gn;
        c.low = model->scan_width; /* of the decay and of the output gate */
        c.low_n = 2.0 * h + di + gn;
        c.side = a + gn;
        c.chunk = 64.0;
        break;
    case DPAR_MODEL_SCAN_LIGHTNING:
        c.in += 2.0 * di;
        c.conv = 0.0;
        c.side = di;
        c.chunk = 256.0;
        break;
    case DPAR_MODEL_SCAN_CONV: c.in += di; break;
    case DPAR_MODEL_SCAN_LRU: c.side = 2.0 * di * model->scan_width + 4.0 * di; break;
    default: /* RWKV-4: key, value, receptance; the feed-forward part has a receptance too */
        c.in += di + h;
        c.conv = 0.0;
        c.side = 7.0 * h;
        break;
    }
    return c;
}

/* Appends a recurrence: norm, projections, short convolution, scan, projection, residual. It keeps
 * what the scan reads, and per chunk one state of heads x width x state numbers in fp32. */
static void dpari_add_recurrence(dpar_workload *work, const dpar_model *model,
                                 const dpari_style *style)
{
    dpari_scan c = dpari_scan_of(model);
    double h = model->hidden, e = style->element, n = model->scan_state, state = c.inner * n;
    double taps = model->conv > 0 ? model->conv : 4.0;
    dpar_workload_layer *layer = &work->layer[work->layers - 1];
    dpari_layer_op *op;
    dpari_add_norm(work, style, h, DPARI_KEEP_INPUT);
    dpari_add_gemm(work, DPARI_CUT_COLUMN, c.in, h, 0);
    if (c.low_n > 0.0) {
        dpari_add_gemm(work, DPARI_CUT_COLUMN, c.low_n, c.low, 0)->save = 0.0;
    }
    op = dpari_add_stream(work, DPARI_CUT_TENSOR, style->fused ? 2 : 5,
                          2.0 * e * c.conv * style->passes, 4.0 * e * c.conv * style->passes,
                          e * c.conv);
    op->params = taps * c.conv + c.side;
    if (c.chunk > 0.0) { /* scores inside the chunk, and the state read and written */
        op = dpari_add_op(work, DPARI_OP_SCAN, DPARI_CUT_TENSOR, style->fused ? 4 : 8);
        op->n = c.inner + (double)model->scan_heads * n;
        op->k = 0.5 * c.chunk + 2.0 * state / op->n;
        if (model->scan == DPAR_MODEL_SCAN_DELTA || model->scan == DPAR_MODEL_SCAN_KDA) {
            op->k += c.chunk; /* the delta rule solves a triangular system in each chunk */
        }
        op->heads = (int16_t)(model->scan_heads < 30000 ? model->scan_heads : 30000);
    } else { /* token by token: 9 FLOP per state, and a state kept every 128 tokens */
        op = dpari_add_op(work, DPARI_OP_STREAM, DPARI_CUT_TENSOR, 2);
        op->n = 4.5 * c.inner;
        op->k = n > 0.0 ? n : 1.0;
        c.chunk = 128.0;
    }
    op->touch = e * (c.in + c.inner) + 8.0 * state / c.chunk;
    op->touch_back = 2.5 * op->touch;
    op->save = e * (c.in + c.inner) + 4.0 * state / c.chunk;
    dpari_add_gemm(work, DPARI_CUT_ROW, h, c.inner, 0);
    dpari_add_residual(work, style, h);
    layer->tp_regions++;
}

/* Appends multi-head latent attention (DeepSeek-V2): low-rank queries, keys and values. */
static void dpari_add_mla(dpar_workload *work, const dpar_model *model, const dpari_style *style,
                          double keys)
{
    double h = model->hidden, a = model->heads, rope = model->rope_width, e = style->element;
    double qk = model->qk_width, v = model->v_width, q = a * (qk + rope), kv = a * (qk + v);
    dpar_workload_layer *layer = &work->layer[work->layers - 1];
    dpari_layer_op *op;
    dpari_add_norm(work, style, h, DPARI_KEEP_INPUT);
    if (model->q_lora > 0) {
        dpari_add_gemm(work, DPARI_CUT_NONE, model->q_lora, h, 0);
        dpari_add_norm(work, style, model->q_lora, DPARI_KEEP_ALWAYS);
        dpari_add_gemm(work, DPARI_CUT_COLUMN, q, model->q_lora, 0)->keep = DPARI_KEEP_NORM;
    } else {
        dpari_add_gemm(work, DPARI_CUT_COLUMN, q, h, 0)->keep = DPARI_KEEP_NORM;
    }
    op = dpari_add_gemm(work, DPARI_CUT_NONE, model->kv_lora + rope, h, 0);
    op->save = 0.0; /* the same input as the query's */
    dpari_add_norm(work, style, model->kv_lora, DPARI_KEEP_ALWAYS);
    dpari_add_gemm(work, DPARI_CUT_COLUMN, kv, model->kv_lora, 0)->keep = DPARI_KEEP_NORM;
    /* keys are assembled from their latent part and one rotary part: concatenated for each head */
    dpari_add_stream(work, DPARI_CUT_TENSOR, 4, 2.0 * e * (2.0 * q + a * v),
                     2.0 * e * (2.0 * q + a * v), 0.0);
    dpari_add_indexer(work, model, keys);
    dpari_add_attention(work, style, a, qk + rope + v, keys, 1, model->index_topk,
                        e * (2.0 * q + a * v));
    dpari_add_gemm(work, DPARI_CUT_ROW, h, a * v, 0);
    dpari_add_residual(work, style, h);
    layer->tp_regions++;
    layer->cp_kv_bytes += e * (q + a * v);
    layer->cp_qo_bytes += e * (q + a * v);
    layer->alternate += e * (model->q_lora + kv + 2.0 * a * v);
}

/* Appends an MLP with f inner channels: norm, up (and gate), activation, down, residual. */
static void dpari_add_mlp(dpar_workload *work, const dpar_model *model, const dpari_style *style,
                          double f)
{
    const double h = model->hidden, e = style->element;
    const double up = style->gated ? 2.0 * f : f;
    const double kept = style->gated && !style->fused ? up + f : up;
    const int32_t kernels = style->fused ? 1 : 2;
    dpari_layer_op *op;
    dpari_add_norm(work, style, h, DPARI_KEEP_ALWAYS);
    dpari_add_gemm(work, DPARI_CUT_COLUMN, up, h, style->biases)->keep = DPARI_KEEP_NORM;
    op = dpari_add_stream(work, DPARI_CUT_TENSOR, kernels, e * (up + f) * style->passes,
                          e * (2.0 * up + f) * style->passes, e * kept);
    op->transient = e * up;
    dpari_add_gemm(work, DPARI_CUT_ROW, h, f, style->biases)->keep = DPARI_KEEP_ACTIVATION;
    dpari_add_residual(work, style, h);
    work->layer[work->layers - 1].alternate += e * (f + h);
    work->layer[work->layers - 1].tp_regions++;
}

/* Appends a mixture of experts: norm, router, permutation, grouped products over the experts of
 * each token, combination, shared experts, residual. */
static void dpari_add_moe(dpar_workload *work, const dpar_model *model, const dpari_style *style)
{
    double h = model->hidden, f = model->expert_ffn, t = model->topk, e = style->element,
           up = style->gated ? 2.0 * f : f;
    dpar_workload_layer *layer = &work->layer[work->layers - 1];
    dpari_layer_op *op;
    dpari_add_norm(work, style, h, DPARI_KEEP_ALWAYS);
    op = dpari_add_gemm(work, DPARI_CUT_SEQUENCE, model->experts, h, 0);
    op->touch = op->touch_back = 40.0 * model->experts; /* fp32 scores, softmax, top-k, masks */
    /* gathers and scatters of rows run at about half of the streaming rate (measured), so their
     * bytes count twice */
    dpari_add_stream(work, DPARI_CUT_SEQUENCE, 6, 4.0 * e * t * h, 4.0 * e * t * h, 8.0 * t);
    op = dpari_add_gemm(work, DPARI_CUT_EXPERT_COLUMN, up, h, 0);
    op->kind = DPARI_OP_EXPERTS;
    op->copies = t;
    op->params = model->experts * up * h;
    op->save = e * t * h;
    op = dpari_add_stream(work, DPARI_CUT_EXPERT_TENSOR, 2, e * t * (up + f),
                          e * t * (2.0 * up + f), e * t * up);
    op->transient = e * t * up;
    op->keep = DPARI_KEEP_EXPERTS;
    op = dpari_add_gemm(work, DPARI_CUT_EXPERT_ROW, h, f, 0);
    op->keep = DPARI_KEEP_ACTIVATION;
    op->kind = DPARI_OP_EXPERTS;
    op->copies = t;
    op->params = model->experts * f * h;
    op->save = e * t * f;
    /* PyTorch multiplies the experts' outputs by the router's weights here, and keeps them for
     * that; Megatron-Core multiplies earlier */
    dpari_add_stream(work, DPARI_CUT_SEQUENCE, 3, 4.0 * e * t * h, 4.0 * e * t * h,
                     work->stack >= DPAR_MODEL_STACK_TORCH ? e * t * h : 0.0);
    if (model->shared_ffn > 0) {
        double wide = (style->gated ? 2.0 : 1.0) * model->shared_ffn;
        op = dpari_add_gemm(work, DPARI_CUT_COLUMN, wide, h, 0);
        op->save = 0.0;
        dpari_add_stream(work, DPARI_CUT_TENSOR, 1, e * (wide + model->shared_ffn),
                         e * (2.0 * wide + model->shared_ffn), e * wide);
        dpari_add_gemm(work, DPARI_CUT_ROW, h, model->shared_ffn, 0)->keep = DPARI_KEEP_ACTIVATION;
        layer->shared = work->ops - 3;
        layer->shared_ops = 3;
    }
    dpari_add_residual(work, style, h);
    layer->tp_regions +=
        model->shared_ffn > 0; /* ep_bytes has the routed tokens, over ep and etp */
    layer->ep_bytes += e * t * h;
}

/* Appends the token embedding, and learned positions if the model has them. */
static void dpari_add_embedding(dpar_workload *work, const dpar_model *model,
                                const dpari_style *style, double tokens, double positions)
{
    double h = model->hidden;
    dpari_layer_op *op;
    dpar_workload_layer *layer =
        dpari_add_layer(work, "embed", DPAR_LAYER_EMBED, 1, tokens, style->element * h);
    if (layer == NULL) {
        return;
    }
    op = dpari_add_stream(work, DPARI_CUT_TENSOR, 3, 2.0 * style->element * h,
                          3.0 * style->element * h, 0.0);
    op->params = (double)model->vocab * (model->embed > 0 ? model->embed : h);
    if (model->embed > 0) {
        dpari_add_gemm(work, DPARI_CUT_NONE, h, model->embed, 0);
    }
    if (model->aside > 0) { /* a second embedding: looked up and projected once for all layers */
        double wide = (double)model->aside * model->layers;
        dpari_add_gemm(work, DPARI_CUT_NONE, wide, h, 0)->params +=
            wide * (model->aside_vocab > 0 ? model->aside_vocab : model->vocab);
        dpari_add_gemm(work, DPARI_CUT_NONE, 2.0 * wide, h, 0);
    }
    if (style->drop) {
        op = dpari_add_stream(work, DPARI_CUT_SEQUENCE, 2, 3.0 * style->element * h,
                              2.0 * style->element * h, h);
    } else {
        op = dpari_add_stream(work, DPARI_CUT_SEQUENCE, 1, 0.0, 0.0, 0.0);
    }
    op->params = positions * h;
    layer->tp_regions = 1;
}

/* Appends the final norm, the logits and the loss. An unfused loss moves 26 bytes per logit in the
 * forward (fp32 copy, maximum, subtraction, exponential, sum) and 14 in the backward, a fused one 6
 * and 4. */
static void dpari_add_head(dpar_workload *work, const dpar_model *model, const dpari_style *style,
                           double tokens)
{
    double h = model->hidden, v = model->vocab;
    int fused = (work->stack == DPAR_MODEL_STACK_MEGATRON_CORE ||
                 work->stack == DPAR_MODEL_STACK_TORCH_COMPILE) &&
                work->loss != DPAR_MODEL_LOSS_EAGER;
    /* bytes per logit that exist at the same time, by DPAR_MODEL_LOSS_* */
    static const float bytes[DPAR_MODEL_LOSS_END] = {0, 14, 6, 4, 2, 1.75f, 10};
    dpari_layer_op *op;
    dpar_workload_layer *layer =
        dpari_add_layer(work, "head", DPAR_LAYER_HEAD, 1, tokens, style->element * h);
    if (layer == NULL) {
        return;
    }
    dpari_add_norm(work, style, h, DPARI_KEEP_ALWAYS);
    if (model->head == DPAR_MODEL_HEAD_POOL || model->head == DPAR_MODEL_HEAD_MASKED) {
        dpari_add_gemm(work, DPARI_CUT_NONE, h, h, 1);
    }
    if (work->vocab == 0) {
        return;
    }
    if (model->embed > 0) {
        dpari_add_gemm(work, DPARI_CUT_NONE, model->embed, h, 0);
        h = model->embed;
    }
    op = dpari_add_gemm(work, DPARI_CUT_COLUMN, v, h, 0);
    op->params = model->tied ? 0.0 : v * h;
    if (fused) {
        op = dpari_add_stream(work, DPARI_CUT_TENSOR, 2, 6.0 * v, 4.0 * v, 0.0);
    } else {
        op = dpari_add_stream(work, DPARI_CUT_TENSOR, 8, 26.0 * v, 14.0 * v, 0.0);
    }
    op->transient = v * (double)bytes[work->loss];
    layer->tp_regions = 1;
}

/* Returns the name of a class of layers. */
static const char *dpari_kind_name(int32_t mix, int32_t feed)
{
    static const char name[DPAR_MODEL_MIXER_COUNT][8] = {"block", "window", "scan", "both", "feed"};
    if (feed != DPAR_MODEL_FFN_EXPERTS) {
        return name[mix];
    }
    switch (mix) {
    case DPAR_MODEL_MIXER_FULL: return "moe";
    case DPAR_MODEL_MIXER_SCAN: return "scan-moe";
    case DPAR_MODEL_MIXER_NONE: return "experts";
    default: return "window-moe";
    }
}

/* Appends one class of a decoder's layers. */
static void dpari_add_kind(dpar_workload *work, const dpar_model *model, const dpari_style *style,
                           double seq, int32_t mix, int32_t feed, int32_t count)
{
    const int causal = work->causal;
    if (dpari_add_layer(work, dpari_kind_name(mix, feed), DPAR_LAYER_BLOCK, count, seq,
                        style->element * model->hidden) == NULL) {
        return;
    }
    if (mix != DPAR_MODEL_MIXER_SCAN && mix != DPAR_MODEL_MIXER_NONE && model->heads > 0) {
        if (model->kv_lora > 0) {
            dpari_add_mla(work, model, style, seq);
        } else {
            dpari_add_mha(work, model, style, seq, causal, 0,
                          mix == DPAR_MODEL_MIXER_WINDOW ? model->window : model->index_topk);
        }
    }
    if (mix == DPAR_MODEL_MIXER_SCAN || mix == DPAR_MODEL_MIXER_BOTH) {
        dpari_add_recurrence(work, model, style);
    }
    if (feed == DPAR_MODEL_FFN_EXPERTS) {
        dpari_add_moe(work, model, style);
    } else if (feed == DPAR_MODEL_FFN_DENSE) {
        dpari_add_mlp(work, model, style, model->ffn);
    }
    if (work->ops > work->layer[work->layers - 1].first) {
        work->op[work->layer[work->layers - 1].first].keep = DPARI_KEEP_INPUT;
    }
}

/* Returns the mixer that a letter of a pattern stands for, and sets *feed if the letter implies
 * it. */
static int32_t dpari_kind_of(char letter, int32_t *feed)
{
    static const char letters[11] = "FWSBfwsbDE";
    int32_t at = 0;
    while (at < 9 && letters[at] != letter) {
        at++;
    }
    if (at >= 8) { /* D is dense; E and all other characters are experts */
        *feed = at - 8;
        return DPAR_MODEL_MIXER_NONE;
    }
    if (at >= 4) { /* lower-case letters only mix */
        *feed = DPAR_MODEL_FFN_NONE;
    }
    return at % 4;
}

DPARI_INTERNAL DPARI_COLD void dpari_model_kinds(dpar_model *model, const char *mix, int32_t mixes,
                                                 const int8_t *feeds, int32_t n)
{
    int32_t i, plain = 1;
    if (mixes < 1) {
        mix = model->pattern;
        mixes = (int32_t)dpari_length(mix);
    }
    dpari_zero(model->kinds, sizeof(model->kinds));
    for (i = 0; i < model->layers && model->layers <= 1000000; i++) {
        int32_t moe = model->experts > 0 && i >= model->dense_layers &&
                      (model->expert_step < 2 || i % model->expert_step == model->expert_offset);
        int32_t feed = i < n ? feeds[i] : moe;
        int32_t expected = model->experts > 0 && i >= model->dense_layers;
        int32_t kind = mixes > 0 ? dpari_kind_of(mix[i % mixes], &feed) : DPAR_MODEL_MIXER_FULL;
        plain = plain && kind == DPAR_MODEL_MIXER_FULL && feed == expected;
        model->kinds[kind * DPAR_MODEL_FFN_COUNT + feed]++;
    }
    if (plain) { /* dense_layers dense layers, then experts, which is what dpari_build_decoder
                  * builds without counts */
        dpari_zero(model->kinds, sizeof(model->kinds));
    }
}

/* Returns 1 if the counts of kinds add up to the layers. They do not if there are none, or if
 * `layers` changed after they were counted; the pattern then decides again. */
static int dpari_model_mixed(const dpar_model *model)
{
    int32_t i, sum = 0;
    for (i = 0; i < DPAR_MODEL_MIXER_COUNT * DPAR_MODEL_FFN_COUNT; i++) {
        if (model->kinds[i] < 0 || model->kinds[i] > model->layers - sum) {
            return 0;
        }
        sum += model->kinds[i];
    }
    return sum > 0 && sum == model->layers;
}

/* Appends a tower if the model has one: patches, blocks that attend to every token of the image,
 * and a projector. The tower is on the first stage of the language model. */
static void dpari_add_tower(dpar_workload *work, const dpar_model *model)
{
    dpar_model v;
    dpari_style s;
    double tokens = model->tower_tokens, h = model->tower_hidden;
    double merged = h * (model->tower_merge > 1 ? model->tower_merge : 1), to = model->hidden;
    int32_t at;
    dpar_workload_layer *layer;
    if (model->tower_layers < 1) {
        return;
    }
    layer = dpari_add_layer(work, "tower", DPAR_LAYER_EMBED, model->tower_layers, tokens,
                            work->element * h);
    if (layer == NULL) {
        return;
    }
    dpari_zero(&v, sizeof(v));
    v.family = DPAR_MODEL_FAMILY_VIT;
    v.gated = model->tower_gated ? 1 : -1;
    v.hidden = model->tower_hidden;
    v.heads = v.kv_heads = model->tower_heads;
    v.head_width = model->tower_hidden / model->tower_heads;
    s = dpari_style_of(work, &v);
    dpari_add_mha(work, &v, &s, tokens, 0, 0, 0.0);
    dpari_add_mlp(work, &v, &s, model->tower_ffn);
    for (at = layer->first; at < work->ops;
         at++) { /* SCAN is never halved, because attention in a tower is not causal */
        if (work->op[at].kind == DPARI_OP_ATTENTION) {
            work->op[at].kind = DPARI_OP_SCAN;
        }
    }
    layer = dpari_add_layer(work, "projector", DPAR_LAYER_EMBED, 1, tokens, work->element * to);
    if (layer == NULL) {
        return;
    }
    dpari_add_gemm(work, DPARI_CUT_NONE, h, model->tower_patch, 1)->params +=
        (double)model->tower_positions * h + 1000.0 * model->tower_params;
    for (at = 0; at < model->tower_mergers; at++) {
        double share = model->tower_merge > 1 ? model->tower_merge : 1.0,
               inner = model->tower_inner;
        dpari_layer_op *op;
        /* `share` tokens are merged into one, so each has that part of the work; the weights are
         * whole */
        op = dpari_add_gemm(work, DPARI_CUT_NONE, (inner > 0.0 ? inner : to), merged, 1);
        op->save /= share;
        op->params = op->n * op->k + op->n;
        op->k /= share;
        if (inner > 0.0) {
            op = dpari_add_gemm(work, DPARI_CUT_NONE, to, inner, 1);
            op->save /= share;
            op->params = op->n * op->k + op->n;
            op->k /= share;
        }
    }
}

/* Returns the number of rows of learned positions: that of the model, or for a GPT one per
 * token. */
static double dpari_decoder_positions(const dpar_model *model)
{
    if (model->positions != 0) {
        return dpari_mostf(model->positions, 0.0);
    }
    return model->family == DPAR_MODEL_FAMILY_GPT && !model->rotary ? (double)model->seq : 0.0;
}

static void dpari_build_decoder(dpar_workload *work, const dpar_model *model, double seq)
{
    dpar_model m = *model;
    dpari_style s = dpari_style_of(work, &m);
    int32_t dense = m.experts > 0 ? m.dense_layers : m.layers, first, mix, feed;
    dpari_add_embedding(work, &m, &s, seq, dpari_decoder_positions(&m));
    dpari_add_tower(work, &m);
    first = work->layers;
    if (dpari_model_mixed(&m)) {
        for (mix = 0; mix < DPAR_MODEL_MIXER_COUNT; mix++) {
            for (feed = 0; feed < DPAR_MODEL_FFN_COUNT; feed++) {
                dpari_add_kind(work, &m, &s, seq, mix, feed,
                               m.kinds[mix * DPAR_MODEL_FFN_COUNT + feed]);
            }
        }
        for (; first < work->layers; first++) {
            work->layer[first].span = m.layers;
        }
    } else {
        dpari_add_kind(work, &m, &s, seq, DPAR_MODEL_MIXER_FULL, DPAR_MODEL_FFN_DENSE, dense);
        dpari_add_kind(work, &m, &s, seq, DPAR_MODEL_MIXER_FULL, DPAR_MODEL_FFN_EXPERTS,
                       m.layers - dense);
    }
    if (m.mtp > 0) { /* blocks like the last one, and a projection of two vectors to one */
        dpari_add_kind(work, &m, &s, seq, DPAR_MODEL_MIXER_FULL,
                       m.experts > 0 ? DPAR_MODEL_FFN_EXPERTS : DPAR_MODEL_FFN_DENSE, m.mtp);
        dpari_add_gemm(work, DPARI_CUT_NONE, m.hidden, 2.0 * m.hidden, 0);
    }
    dpari_add_head(work, &m, &s, seq);
}

/* Builds ViT and DiT: patches, blocks that attend to every token, a small head. */
static void dpari_build_vision(dpar_workload *work, const dpar_model *model)
{
    dpari_style s = dpari_style_of(work, model);
    double h = model->hidden, tokens = work->tokens,
           patch = (double)model->patch * model->patch * model->channels;
    double out = model->out_channels != 0 ? dpari_mostf(model->out_channels, 0.0) : 1000.0;
    dpar_workload_layer *layer =
        dpari_add_layer(work, "patch", DPAR_LAYER_EMBED, 1, tokens, s.element * h);
    dpari_layer_op *op;
    dpari_add_gemm(work, DPARI_CUT_NONE, h, patch, 1)->params += (tokens + 1.0) * h;
    layer->tp_regions = 0;
    layer = dpari_add_layer(work, "block", DPAR_LAYER_BLOCK, model->layers, tokens, s.element * h);
    dpari_add_mha(work, model, &s, tokens, 0, 0, 0.0);
    dpari_add_mlp(work, model, &s, model->ffn);
    if (model->family == DPAR_MODEL_FAMILY_DIT) {
        /* shift, scale and gate of both branches from the condition: 6 h wide, once per sample */
        op = dpari_add_stream(work, DPARI_CUT_TENSOR, 8, 8.0 * s.element * h, 12.0 * s.element * h,
                              4.0 * s.element * h);
        op->params = 6.0 * h * h + 6.0 * h;
    }
    dpari_add_layer(work, "head", DPAR_LAYER_HEAD, 1,
                    model->family == DPAR_MODEL_FAMILY_DIT ? tokens : 1.0, s.element * h);
    dpari_add_norm(work, &s, h, DPARI_KEEP_ALWAYS);
    if (model->head == DPAR_MODEL_HEAD_POOL) {
        dpari_add_gemm(work, DPARI_CUT_NONE, h, h, 1);
    }
    if (out > 0.0) {
        dpari_add_gemm(work, DPARI_CUT_NONE, out, h, 1);
    }
}

/* Builds an encoder and a decoder. If the model reads sound, `channels` are those of its
 * spectrogram; two convolutions come first, the second of stride 2, and the encoder has image[0]
 * tokens. */
static void dpari_build_t5(dpar_workload *work, const dpar_model *model, double seq)
{
    dpari_style s = dpari_style_of(work, model);
    int32_t decoders = model->decoder_layers > 0 ? model->decoder_layers : model->layers;
    double heard = model->channels > 0 && model->image[0] > 0 ? (double)model->image[0] : seq,
           h = model->hidden;
    dpari_add_embedding(work, model, &s, seq, dpari_mostf(model->positions, 0.0));
    if (model->channels > 0) {
        dpari_add_layer(work, "hear", DPAR_LAYER_EMBED, 1, heard, s.element * h);
        dpari_add_gemm(work, DPARI_CUT_NONE, h, 3.0 * (h + 2.0 * model->channels), 1)->params -=
            3.0 * model->channels * h;
    }
    dpari_add_layer(work, "encoder", DPAR_LAYER_BLOCK, model->layers, heard, s.element * h);
    dpari_add_mha(work, model, &s, heard, 0, 0, 0.0);
    dpari_add_mlp(work, model, &s, model->ffn);
    dpari_add_layer(work, "decoder", DPAR_LAYER_BLOCK, decoders, seq, s.element * h);
    dpari_add_mha(work, model, &s, seq, 1, 0, 0.0);
    dpari_add_mha(work, model, &s, heard, 0, 1, 0.0);
    dpari_add_mlp(work, model, &s, model->ffn);
    dpari_add_head(work, model, &s, seq);
}

/* Appends a convolution with its norm and activation. taps: area of the kernel; grow: input pixels
 * per output pixel, 4 for stride 2; reach: depth of its halo, 0 without one. It keeps its input and
 * the norm's input; the activation is kept as the input of the next convolution. */
static void dpari_add_conv(dpar_workload *work, double out, double in, double taps, double grow,
                           int reach)
{
    double e = work->element;
    dpar_workload_layer *layer = &work->layer[work->layers - 1];
    dpari_layer_op *op = dpari_add_op(work, DPARI_OP_CONV, DPARI_CUT_COLUMN, 1);
    op->save_cut = DPARI_CUT_NONE;
    op->n = out;
    op->k = in * taps;
    op->params = out * in * taps;
    op->touch = e * in * grow;
    op->touch_back = 2.0 * e * in * grow;
    op->save = e * in * grow;
    /* an eager framework keeps the norm's output too, which is the activation's input */
    op = dpari_add_stream(work, DPARI_CUT_NONE, 2, 4.0 * e * out, 6.0 * e * out,
                          (work->stack == DPAR_MODEL_STACK_TORCH ? 2.0 : 1.0) * e * out);
    op->params = 2.0 * out;
    op->transient = e * out;
    if (reach > 0) {
        layer->reach_bytes += reach * in * e;
        layer->reach = (int32_t)dpari_most(layer->reach, reach);
        layer->exchanges++;
    }
}

/* Builds a bottleneck ResNet with the 3, 4, 6 and 3 blocks of ResNet-50; model->layers is not used.
 */
static void dpari_build_resnet(dpar_workload *work, const dpar_model *model)
{
    static const int8_t depth[4] = {3, 4, 6, 3};
    double side = (double)model->image[0] / 4.0, cells = side * ((double)model->image[1] / 4.0);
    double width = model->hidden, in = model->hidden;
    int32_t stage, part;
    dpar_workload_layer *layer =
        dpari_add_layer(work, "stem", DPAR_LAYER_BLOCK, 1, 4.0 * cells, work->element * width);
    layer->shrink = 2;
    dpari_add_conv(work, width, model->channels, 49.0, 4.0, 3);
    for (stage = 0; stage < 4; stage++) {
        for (part = 0; part < 2; part++) {
            const double out = 4.0 * width;
            const double grow = part == 0 && stage > 0 ? 4.0 : 1.0;
            const char *name = part ? "bottleneck" : "downsample";
            const int32_t count = part ? depth[stage] - 1 : 1;
            layer =
                dpari_add_layer(work, name, DPAR_LAYER_BLOCK, count, cells, work->element * out);
            layer->shrink = 4 << stage;
            dpari_add_conv(work, width, in, 1.0, grow, 0);
            dpari_add_conv(work, width, width, 9.0, 1.0, 1);
            dpari_add_conv(work, out, width, 1.0, 1.0, 0);
            if (part == 0) {
                dpari_add_conv(work, out, in, 1.0, grow, 0);
            }
            in = out;
        }
        width *= 2.0;
        cells /= 4.0;
    }
    dpari_add_layer(work, "head", DPAR_LAYER_HEAD, 1, 1.0, 1000.0 * work->element);
    dpari_add_gemm(work, DPARI_CUT_NONE, model->out_channels > 0 ? model->out_channels : 1000, in,
                   1);
}

static double dpari_level_width(const dpar_model *model, int32_t level)
{
    double c = model->hidden;
    while (level-- > 0) {
        c *= 2.0;
    }
    return c;
}

/* Appends one half of a U-Net level: pairs of convolutions. The first one changes the width. */
static void dpari_add_level(dpar_workload *work, const dpar_model *model, const char *name,
                            int32_t level, double in)
{
    double c = dpari_level_width(model, level), shrink = c / model->hidden;
    double cells = (double)model->image[0] * model->image[1] / (shrink * shrink);
    double taps = (double)model->kernel * model->kernel;
    int32_t i, blocks = model->blocks_per_level;
    dpar_workload_layer *layer =
        dpari_add_layer(work, name, DPAR_LAYER_BLOCK, 1, cells, work->element * c);
    if (layer == NULL) {
        return;
    }
    layer->shrink = (int32_t)shrink;
    for (i = 0; i < blocks; i++) {
        dpari_add_conv(work, c, i == 0 ? in : c, taps, 1.0, model->kernel / 2);
        dpari_add_conv(work, c, c, taps, 1.0, model->kernel / 2);
    }
}

static void dpari_build_unet(dpar_workload *work, const dpar_model *model)
{
    int32_t level;
    double out = model->out_channels > 0 ? model->out_channels : model->channels;
    for (level = 0; level < model->levels; level++) {
        dpari_add_level(work, model, "encode", level,
                        level == 0 ? model->channels : dpari_level_width(model, level - 1));
    }
    for (level = model->levels - 2; level >= 0; level--) {
        const double width = dpari_level_width(model, level);
        /* the skip and the upsampled coarse level are concatenated */
        dpari_add_level(work, model, "decode", level, 2.0 * width);
        /* the up-convolution from the coarse level to this one: 2 x 2, without a halo */
        dpari_add_conv(work, width, dpari_level_width(model, level + 1), 1.0, 0.25, 0);
    }
    dpari_add_layer(work, "head", DPAR_LAYER_HEAD, 1, (double)model->image[0] * model->image[1],
                    out * work->element);
    dpari_add_conv(work, out, model->hidden, 1.0, 1.0, 0);
}

/* Builds an explicit stencil code: one layer, which passes over the cells once per time step. */
static void dpari_build_grid(dpar_workload *work, const dpar_model *model)
{
    double e = work->element,
           cells = (double)model->extent[0] * (double)model->extent[1] * (double)model->extent[2];
    dpar_workload_layer *layer =
        dpari_add_layer(work, "cells", DPAR_LAYER_BLOCK, 1, cells, e * model->fields);
    dpari_layer_op *op = dpari_add_stream(work, DPARI_CUT_NONE, model->fields,
                                          model->bytes_per_cell, 0.0, 2.0 * e * model->fields);
    op->keep = DPARI_KEEP_INPUT;
    op->n = 0.5 * model->flops_per_cell;
    op->k = 1.0;
    layer->reach = model->halo;
    layer->reach_bytes = (double)model->halo * model->fields * e;
    layer->exchanges = 1;
}

/* ---- from model to workload ------------------------------------------------------------------ */

static int dpari_is_transformer(int32_t family)
{
    return family <= DPAR_MODEL_FAMILY_T5;
}

/* Checks the sizes of a transformer and completes head_width, kv_heads and ffn. */
DPARI_STATIC_NOINLINE dpar_status dpari_model_widths(dpar_model *model, dpar_why *why)
{
    if (model->scan > 0 &&
        model->heads == 0) { /* a model that has only recurrences needs no attention heads */
        model->heads = model->kv_heads = 0;
    } else if (model->layers < 1 || model->hidden < 1 || model->heads < 1) {
        return dpari_wrong(why,
                           "a transformer needs layers, hidden and heads of at least 1: layers=%d, "
                           "hidden=%d, heads=%d",
                           model->layers, model->hidden, model->heads);
    }
    if (model->head_width < 1 && model->kv_lora < 1 && model->heads > 0 &&
        model->hidden % model->heads != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "heads=%d does not divide hidden=%d (give head_width)",
                         model->heads, model->hidden);
    }
    if (model->head_width < 1) {
        model->head_width = model->heads > 0 ? model->hidden / model->heads : 0;
    }
    model->kv_heads = model->kv_heads > 0 ? model->kv_heads : model->heads;
    if (model->heads > 0 &&
        (model->kv_heads > model->heads || model->heads % model->kv_heads != 0)) {
        return dpari_say(DPAR_E_DIVIDE, why, "kv_heads=%d does not divide heads=%d",
                         model->kv_heads, model->heads);
    }
    if (model->ffn < 1) {
        if (model->hidden > INT32_MAX / 4) {
            return dpari_say(DPAR_E_RANGE, why,
                             "hidden=%d is too large for ffn = 4 hidden (give ffn)", model->hidden);
        }
        model->ffn = 4 * model->hidden;
    }
    return DPAR_OK;
}

/* Checks the image of a vision model. For other transformers sets seq, and checks it and vocab. */
static dpar_status dpari_model_tokens(dpar_model *model, int32_t seq, dpar_why *why)
{
    if (model->family == DPAR_MODEL_FAMILY_VIT || model->family == DPAR_MODEL_FAMILY_DIT) {
        if (model->patch < 1 || model->image[0] < model->patch || model->image[1] < model->patch ||
            model->channels < 1) {
            return dpari_wrong(
                why,
                "image=%dx%d: patch=%d must be at least 1 and fit into the image, channels=%d "
                "must be at least 1",
                model->image[0], model->image[1], model->patch, model->channels);
        }
        return DPAR_OK;
    }
    model->seq = seq > 0 ? seq : model->seq;
    if (model->seq < 1 || model->vocab < 1) {
        return dpari_wrong(why, "seq and vocab must be at least 1: seq=%d, vocab=%d", model->seq,
                           model->vocab);
    }
    return DPAR_OK;
}

/* Checks and completes experts, latent attention, windows, recurrences and the tower. */
DPARI_STATIC_NOINLINE dpar_status dpari_model_experts(dpar_model *model, dpar_why *why)
{
    int32_t i, sees = 0, scans = 0;
    if (model->experts < 0 ||
        (model->experts > 0 && (model->topk < 1 || model->topk > model->experts))) {
        return dpari_wrong(why, "topk=%d must be 1 to experts=%d", model->topk, model->experts);
    }
    if (model->experts > 0 && model->expert_ffn < 1) {
        model->expert_ffn = model->ffn;
    }
    if (model->dense_layers > model->layers) {
        return dpari_wrong(why, "dense_layers=%d must be at most layers=%d", model->dense_layers,
                           model->layers);
    }
    if (model->kv_lora > 0 && (model->qk_width < 1 || model->v_width < 1)) {
        return dpari_wrong(why,
                           "latent attention (kv_lora=%d) needs qk_width and v_width of at least "
                           "1, not %d and %d",
                           model->kv_lora, model->qk_width, model->v_width);
    }
    if (!dpari_model_mixed(model)) {
        dpari_model_kinds(model, NULL, 0, NULL, 0);
    }
    for (i = 0; i < DPAR_MODEL_FFN_COUNT; i++) {
        const int32_t *kinds = model->kinds;
        sees += kinds[DPAR_MODEL_MIXER_WINDOW * DPAR_MODEL_FFN_COUNT + i];
        scans += kinds[DPAR_MODEL_MIXER_SCAN * DPAR_MODEL_FFN_COUNT + i] +
                 kinds[DPAR_MODEL_MIXER_BOTH * DPAR_MODEL_FFN_COUNT + i];
    }
    if (model->scan < 0 || model->scan >= DPAR_MODEL_SCAN_END || (scans > 0 && model->scan == 0) ||
        (sees > 0 && model->window < 1)) {
        return dpari_wrong(why,
                           "%d layers with a window need window=%d of at least 1, %d with a scan "
                           "need scan=%d of 1 to 8",
                           sees, model->window, scans, model->scan);
    }
    if (model->scan > 0) {
        model->scan_heads = model->scan_heads > 0 ? model->scan_heads : 1;
        model->scan_width =
            model->scan_width > 0 ? model->scan_width : model->hidden / model->scan_heads;
        model->scan_groups = model->scan_groups > 0 ? model->scan_groups : 1;
    }
    if (model->tower_layers > 0) {
        if (model->tower_hidden < 1 || model->tower_heads < 1 ||
            model->tower_hidden % model->tower_heads != 0) {
            return dpari_wrong(why, "tower_heads=%d does not divide tower_hidden=%d",
                               model->tower_heads, model->tower_hidden);
        }
        model->tower_ffn = model->tower_ffn > 0
                               ? model->tower_ffn
                               : (int32_t)dpari_least(4 * (int64_t)model->tower_hidden, INT32_MAX);
        model->tower_tokens = model->tower_tokens > 0 ? model->tower_tokens : 256;
    }
    if (model->capacity < 0.0 || (model->capacity > 0.0 && model->capacity < 1.0) ||
        !dpari_finite(model->capacity)) {
        return dpari_wrong(why, "capacity must be 0 or a finite number of at least 1");
    }
    return DPAR_OK;
}

/* Checks a conv net and completes kernel and blocks_per_level. Each side of the image must have a
 * cell on the coarsest level. */
static dpar_status dpari_model_convs(dpar_model *model, dpar_why *why)
{
    int32_t shrink = model->family == DPAR_MODEL_FAMILY_RESNET ? 32 : 1, most;
    model->kernel = model->kernel > 0 ? model->kernel : 3;
    model->blocks_per_level = model->blocks_per_level > 0 ? model->blocks_per_level : 1;
    if (model->family == DPAR_MODEL_FAMILY_UNET) {
        if (model->levels < 1 || model->levels > 8) {
            return dpari_wrong(why, "levels=%d must be 1 to 8", model->levels);
        }
        /* four operations per block, on the way down and up; two between levels and for the head */
        most = (DPAR_MAX_LAYER_OPS - 2 * model->levels) / 4 / (2 * model->levels - 1);
        if (model->blocks_per_level > most) {
            return dpari_wrong(why, "blocks_per_level=%d with levels=%d must be at most %d",
                               model->blocks_per_level, model->levels, most);
        }
        shrink = (int32_t)1 << (model->levels - 1);
    }
    if (model->image[0] < shrink || model->image[1] < shrink || model->channels < 1 ||
        model->hidden < 1) {
        return dpari_wrong(
            why,
            "hidden=%d and channels=%d must be at least 1, the sides of image=%dx%d at least %d",
            model->hidden, model->channels, model->image[0], model->image[1], shrink);
    }
    return DPAR_OK;
}

/* Checks a grid solver and completes its fields. */
static dpar_status dpari_model_grid(dpar_model *model, dpar_why *why)
{
    int64_t cells = 1;
    int32_t i, narrow = 0;
    if (model->dims < 1 || model->dims > 3) {
        return dpari_wrong(why, "a grid has 1 to 3 axes, not %d", model->dims);
    }
    for (i = 0; i < 3; i++) {
        model->extent[i] = i < model->dims ? model->extent[i] : 1;
        if (model->extent[i] < 1 || !dpari_mul(cells, model->extent[i], &cells)) {
            return dpari_wrong(why,
                               "grid axis %d has %ld cells; the grid needs 1 to 2^63 - 1 in all", i,
                               model->extent[i]);
        }
    }
    model->fields = model->fields > 0 ? model->fields : 1;
    model->halo = model->halo > 0 ? model->halo : 1;
    model->element = model->element > 0 ? model->element : 4;
    for (i = 0; i < model->dims; i++) {
        narrow += model->halo > model->extent[i];
    }
    if (narrow == model->dims) {
        return dpari_wrong(why, "halo=%d is wider than the grid: %ld x %ld x %ld cells",
                           model->halo, model->extent[0], model->extent[1], model->extent[2]);
    }
    if (!(model->flops_per_cell >= 0.0 && model->bytes_per_cell >= 0.0) ||
        !dpari_finite(model->flops_per_cell) || !dpari_finite(model->bytes_per_cell)) {
        return dpari_wrong(
            why, "flops_per_cell and bytes_per_cell must be finite numbers of at least 0");
    }
    if (model->bytes_per_cell <= 0.0) { /* assumes that every field is read once and written once */
        model->bytes_per_cell = 2.0 * model->fields * model->element;
    }
    if (model->flops_per_cell <= 0.0) { /* assumes a product and a sum for each neighbour and
                                           field */
        model->flops_per_cell = 2.0 * (2.0 * model->dims * model->halo + 1.0) * model->fields;
    }
    return DPAR_OK;
}

#define DPARI_AT(name) (int16_t)(offsetof(dpar_model, name) / sizeof(int32_t))

/* Returns an integer of the model that is below -1, or 0 if there is none. */
static int32_t dpari_model_negative(const dpar_model *model)
{
    /* the fields of type int32_t are in three runs, which fields of other types separate */
    static const int16_t run[][2] = {{DPARI_AT(family), DPARI_AT(capacity)},
                                     {DPARI_AT(q_lora), DPARI_AT(extent)},
                                     {DPARI_AT(attention), DPARI_AT(pattern)}};
    int32_t k, i;
    for (k = 0; k < 3; k++) {
        for (i = run[k][0]; i < run[k][1]; i++) {
            const int32_t value = ((const int32_t *)(const void *)model)[i];
            if (value < -1) {
                return value;
            }
        }
    }
    return 0;
}
#undef DPARI_AT

/* Fills in the fields that follow from the given ones, and refuses numbers that are not allowed. */
static dpar_status dpari_model_complete(dpar_model *model, int32_t seq, dpar_why *why)
{
    dpar_status st;
    if (model->family == 0) {
        return dpari_wrong(why,
                           "the model has no family: set family, such as DPAR_MODEL_FAMILY_GPT");
    }
    if (model->family < 0 || model->family >= DPAR_MODEL_FAMILY_END) {
        return dpari_wrong(why, "family=%d is not one of DPAR_MODEL_FAMILY_*", model->family);
    }
    if (dpari_model_negative(model) < 0) {
        return dpari_wrong(why, "a field of the model is %d; none may be below -1",
                           dpari_model_negative(model));
    }
    if (model->element != 0 && model->element != 2 && model->element != 4 && model->element != 8) {
        return dpari_wrong(why, "element=%d must be 2, 4 or 8 bytes", model->element);
    }
    if (model->attention >= DPAR_MODEL_ATTENTION_END || model->stack >= DPAR_MODEL_STACK_END ||
        model->loss >= DPAR_MODEL_LOSS_END) {
        return dpari_wrong(why, "attention=%d, stack=%d or loss=%d is not one of DPAR_MODEL_*",
                           model->attention, model->stack, model->loss);
    }
    if (model->layers > 1000000 || model->decoder_layers > 1000000 || model->mtp > 1000000 ||
        model->tower_layers > 1000000) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "layers=%d, decoder_layers=%d, mtp=%d, tower_layers=%d: each at most 1000000",
            model->layers, model->decoder_layers, model->mtp, model->tower_layers);
    }
    if (model->family == DPAR_MODEL_FAMILY_GRID) {
        return dpari_model_grid(model, why);
    }
    model->element = model->element > 0 ? model->element : 2;
    if (!dpari_is_transformer(model->family)) {
        return dpari_model_convs(model, why);
    }
    st = dpari_model_widths(model, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_model_tokens(model, seq, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_model_experts(model, why);
}

/* Returns the tokens, pixels or cells of a sample. A sample of a ResNet counts as one. */
static double dpari_model_samples_tokens(const dpar_model *model)
{
    if (model->family == DPAR_MODEL_FAMILY_VIT || model->family == DPAR_MODEL_FAMILY_DIT) {
        return (double)(model->image[0] / model->patch) * (model->image[1] / model->patch) +
               (model->family == DPAR_MODEL_FAMILY_VIT ? 1.0 : 0.0);
    }
    if (model->family == DPAR_MODEL_FAMILY_GRID) {
        return (double)model->extent[0] * (double)model->extent[1] * (double)model->extent[2];
    }
    if (model->family == DPAR_MODEL_FAMILY_RESNET) {
        return 1.0;
    }
    return model->family == DPAR_MODEL_FAMILY_UNET ? (double)model->image[0] * model->image[1]
                                                   : (double)model->seq;
}

/* Returns the loss that a stack has if the model names none. The library that has the first fused
 * attention also has a fused loss, so a model that uses its attention is assumed to use its
 * loss. */
static int32_t dpari_loss_of(const dpar_workload *work)
{
    switch (work->stack) {
    case DPAR_MODEL_STACK_MEGATRON_CORE: return DPAR_MODEL_LOSS_INPLACE;
    case DPAR_MODEL_STACK_MEGATRON: return DPAR_MODEL_LOSS_PARALLEL;
    case DPAR_MODEL_STACK_TORCH_COMPILE: return DPAR_MODEL_LOSS_COMPILED;
    default: break;
    }
    return work->attention == DPAR_MODEL_ATTENTION_FLASH1 ? DPAR_MODEL_LOSS_FUSED
                                                          : DPAR_MODEL_LOSS_EAGER;
}

/* Fills in all fields of a workload except its layers and the sums over them. */
DPARI_STATIC_NOINLINE void dpari_workload_head(dpar_workload *work, const dpar_model *model)
{
    int gpt = model->family == DPAR_MODEL_FAMILY_GPT;
    int transformer = dpari_is_transformer(model->family);
    dpari_copy_text(work->name, sizeof(work->name), model->name, sizeof(model->name));
    work->element = model->element;
    work->stack_version = model->stack;
    if (model->stack <= 0) {
        work->stack_version = gpt ? DPAR_MODEL_STACK_MEGATRON : DPAR_MODEL_STACK_MEGATRON_CORE;
    }
    work->stack = dpari_age(work)->stack;
    work->attention = model->attention;
    if (model->attention <= 0) {
        work->attention = gpt && work->stack == DPAR_MODEL_STACK_MEGATRON
                              ? DPAR_MODEL_ATTENTION_UNFUSED
                              : DPAR_MODEL_ATTENTION_FLASH;
    }
    work->loss = model->loss > 0 ? model->loss : dpari_loss_of(work);
    work->causal =
        model->causal > 0 || (model->causal == 0 && (model->family == DPAR_MODEL_FAMILY_GPT ||
                                                     model->family == DPAR_MODEL_FAMILY_LLAMA));
    work->tokens = dpari_model_samples_tokens(model);
    work->hidden = model->hidden;
    if (transformer) { /* in other families these fields stay 0 */
        work->heads = model->heads;
        work->kv_heads = model->kv_lora > 0 ? model->heads : model->kv_heads;
    }
    if (transformer &&
        (model->head == DPAR_MODEL_HEAD_VOCAB || model->head == DPAR_MODEL_HEAD_MASKED)) {
        work->vocab = model->vocab;
    }
    dpari_copy_text(work->note, sizeof(work->note), model->note, sizeof(model->note));
    work->experts = model->experts;
    work->topk = model->topk;
    work->expert_groups = model->expert_groups;
    work->topk_groups = model->topk_groups;
    work->capacity = model->capacity >= 1.0 ? model->capacity : 1.0;
    work->trains = model->family != DPAR_MODEL_FAMILY_GRID && !model->inference;
    work->time_steps = model->family == DPAR_MODEL_FAMILY_GRID ? 1 : 0;
    if (model->family == DPAR_MODEL_FAMILY_GRID) {
        work->dims = model->dims;
        work->extent[0] = model->extent[0];
        work->extent[1] = model->extent[1];
        work->extent[2] = model->extent[2];
    } else if (!transformer) {
        work->dims = 2;
        work->extent[0] = model->image[0];
        work->extent[1] = model->image[1];
        work->extent[2] = 1;
    }
}

/* Returns the number of blocks whose matrix products are as much work as those of the head. */
static DPARI_COLD int32_t dpari_head_blocks(const dpar_workload *work)
{
    double head = 0.0, block = 0.0;
    int32_t i, k;
    for (i = 0; i < work->layers; i++) {
        double *to = work->layer[i].kind == DPAR_LAYER_HEAD ? &head : &block;
        for (k = 0; k < work->layer[i].ops; k++) {
            const dpari_layer_op *op = &work->op[work->layer[i].first + k];
            if (op->kind == DPARI_OP_GEMM && work->layer[i].kind != DPAR_LAYER_EMBED) {
                *to += op->n * op->k * op->copies * work->layer[i].count;
            }
        }
    }
    return block > 0.0 ? (int32_t)(head * work->blocks / block + 0.5) : 0;
}

/* Numbers the blocks and sums blocks, parameters and FLOP over the layers. */
static void dpari_workload_totals(dpar_workload *work)
{
    int32_t i, k;
    work->blocks = work->shard_units = 0;
    work->params = work->model_flops_full = work->model_flops_causal = 0.0;
    for (i = 0; i < work->layers; i++) {
        dpar_workload_layer *layer = &work->layer[i];
        double plain = 0.0, attention = 0.0;
        if (layer->span == 0 && layer->kind == DPAR_LAYER_BLOCK) {
            layer->from = work->blocks;
            layer->span = layer->count;
        }
        for (k = 0; k < layer->ops; k++) {
            const dpari_layer_op *op = &work->op[layer->first + k];
            double flop = 2.0 * op->n * op->k * op->copies * layer->tokens * layer->count;
            if (op->kind == DPARI_OP_ATTENTION) { /* k of causal attention is half of the keys */
                attention += work->causal ? 2.0 * flop : flop;
            } else if (op->kind == DPARI_OP_SCORES) {
                attention += flop;
            } else {
                plain += flop;
            }
        }
        work->params += dpari_layer_params(work, i) * layer->count;
        work->model_flops_full += plain + attention;
        work->model_flops_causal += plain + (work->causal ? 0.5 : 1.0) * attention;
        work->blocks += layer->kind == DPAR_LAYER_BLOCK ? layer->count : 0;
        work->shard_units += layer->count;
    }
    if (dpari_age(work)->by_work) {
        work->head_blocks = dpari_head_blocks(work);
    }
    if (work->trains) { /* the backward has twice the FLOP of the forward */
        work->model_flops_full *= 3.0;
        work->model_flops_causal *= 3.0;
    }
}

DPAR_API DPARI_COLD dpar_status dpar_workload_init(dpar_workload *work, const dpar_model *model,
                                                   int32_t seq, dpar_why *why)
{
    dpar_model m = *model;
    dpar_status st = dpari_model_complete(&m, seq, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(work, sizeof(*work));
    dpari_workload_head(work, &m);
    switch (m.family) {
    case DPAR_MODEL_FAMILY_GPT:
    case DPAR_MODEL_FAMILY_LLAMA: dpari_build_decoder(work, &m, m.seq); break;
    case DPAR_MODEL_FAMILY_VIT:
    case DPAR_MODEL_FAMILY_DIT: dpari_build_vision(work, &m); break;
    case DPAR_MODEL_FAMILY_T5: dpari_build_t5(work, &m, m.seq); break;
    case DPAR_MODEL_FAMILY_RESNET: dpari_build_resnet(work, &m); break;
    case DPAR_MODEL_FAMILY_UNET: dpari_build_unet(work, &m); break;
    default: dpari_build_grid(work, &m); break;
    }
    dpari_workload_totals(work);
    return dpari_workload_check(work, why);
}
