/* SPDX-License-Identifier: MIT-0 */
/* Builds a workload from a model. dpar_workload_init completes and checks the model, appends the
 * classes of layers of its family, each with its operations, and at last sums parameters and FLOP.
 *
 * The numbers of an operation are those of the whole layer and of one token. price.c divides them
 * by the degrees of parallelism. */
#include "workload.h"

#include "../base/inner.h"
#include "inner.h"

/* ---- software stacks, names, sums over the list ----------------------------------------- */

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

DPARI_INTERNAL const dpari_generation *dpari_age(const dpar_workload *w)
{
    return dpari_generation_at(w->stack_version > 0 && w->stack_version < DPAR_MODEL_STACK_END
                                   ? w->stack_version
                                   : w->stack);
}

/* Returns the latest generation of a stack that had begun by a year, or its first one. Of those
 * that began in the same year it prefers the stack itself. */
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

DPARI_INTERNAL DPARI_COLD int dpari_stack_read(dpar_model *m, const char *s, size_t n)
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
            m->stack = i;
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
    m->stack = dpari_stack_in(stack, year);
    g = dpari_generation_at(m->stack);
    if (year < g->from || year > g->to) {
        dpar_text_init(&t, m->note + dpari_length(m->note),
                       sizeof(m->note) - dpari_length(m->note));
        dpari_text_slice(&t, s, n);
        dpari_text_print(&t, ": no published run of that year is known here; priced as %s of %d\n",
                         dpari_stack_name(m->stack), g->from);
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

DPARI_INTERNAL double dpari_layer_params(const dpar_workload *w, int32_t layer)
{
    double sum = 0.0;
    int32_t i;
    if (layer < 0 || layer >= w->layers) {
        return 0.0;
    }
    for (i = 0; i < w->layer[layer].ops; i++) {
        sum += w->op[w->layer[layer].first + i].params;
    }
    return sum;
}

DPARI_INTERNAL double dpari_layer_saved(const dpar_workload *w, int32_t layer, int32_t recompute)
{
    double sum = 0.0;
    int32_t i;
    if (layer < 0 || layer >= w->layers || w->layer[layer].ops < 1) {
        return 0.0;
    }
    if (recompute == DPAR_RECOMPUTE_FULL) { /* only the input, which is as wide as the output */
        return w->layer[layer].width_bytes;
    }
    for (i = 0; i < w->layer[layer].ops; i++) {
        const dpari_layer_op *op = &w->op[w->layer[layer].first + i];
        int32_t drop = recompute == DPAR_RECOMPUTE_SELECTIVE && op->keep == DPARI_KEEP_SELECTIVE;
        sum += drop ? 0.0 : op->save;
    }
    return sum;
}

DPARI_INTERNAL int32_t dpari_workload_largest(const dpar_workload *w)
{
    int32_t i, best = 0;
    for (i = 1; i < w->layers; i++) {
        if (dpari_layer_params(w, i) > dpari_layer_params(w, best)) {
            best = i;
        }
    }
    return best;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_workload_check(const dpar_workload *w, dpar_why *why)
{
    int32_t i;
    double params = 0.0;
    if (w->layers < 1 || w->layers > DPAR_MAX_LAYER_CLASSES || w->ops < 1 ||
        w->ops > DPAR_MAX_LAYER_OPS) {
        return dpari_wrong(why,
                           "the workload has %d layer classes with %d operations; allowed are 1 to "
                           "24 with 1 to 320",
                           w->layers, w->ops);
    }
    for (i = 0; i < w->layers; i++) {
        const dpar_workload_layer *l = &w->layer[i];
        if (l->count < 1 || l->ops < 1 || l->first < 0 || l->first + l->ops > w->ops ||
            !(l->tokens > 0.0) || !dpari_finite(l->tokens)) {
            return dpari_wrong(why,
                               "layer class %d is empty: count=%d, operations=%d (of 320 in all)",
                               i, l->count, l->ops);
        }
        params += dpari_layer_params(w, i) * l->count;
    }
    if (!(params >= 0.0) || params > 4e18) {
        return dpari_say(DPAR_E_RANGE, why, "the model has more than 4e18 parameters");
    }
    return DPAR_OK;
}

/* ---- building ---------------------------------------------------------------------------- */

/* Appends a class of `count` equal layers without operations. Returns NULL if count is 0 or the
 * table is full. */
static dpar_workload_layer *dpari_add_layer(dpar_workload *w, const char *name, int32_t kind,
                                            int32_t count, double tokens, double width_bytes)
{
    dpar_workload_layer *l;
    if (w->layers >= DPAR_MAX_LAYER_CLASSES || count < 1) {
        return NULL;
    }
    l = &w->layer[w->layers++];
    dpari_zero(l, sizeof(*l));
    dpari_copy_text(l->name, sizeof(l->name), name, sizeof(l->name));
    l->kind = kind;
    l->count = count;
    l->first = w->ops;
    l->tokens = tokens;
    l->width_bytes = width_bytes;
    l->shrink = 1;
    return l;
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

/* Appends an operation to the newest layer. If the table is full it replaces the last one; layers
 * that are added later then have no operations, which dpari_workload_check refuses. */
static dpari_layer_op *dpari_add_op(dpar_workload *w, int kind, int cut, int kernels)
{
    dpari_layer_op *op = &w->op[w->ops < DPAR_MAX_LAYER_OPS ? w->ops++ : DPAR_MAX_LAYER_OPS - 1];
    dpari_zero(op, sizeof(*op));
    op->kind = (int8_t)kind;
    op->cut = (int8_t)cut;
    op->save_cut = (int8_t)dpari_save_cut(cut);
    op->kernels = (int16_t)kernels;
    op->copies = 1.0;
    if (w->layers > 0) {
        w->layer[w->layers - 1].ops = w->ops - w->layer[w->layers - 1].first;
    }
    return op;
}

/* Appends [tokens, k] x [k, n]. Its input is kept for the weight gradient. */
static dpari_layer_op *dpari_add_gemm(dpar_workload *w, int cut, double n, double k, int biases)
{
    dpari_layer_op *op = dpari_add_op(w, DPARI_OP_GEMM, cut, biases ? 2 : 1);
    op->n = n;
    op->k = k;
    op->params = n * k + (biases ? n : 0.0);
    op->save = k * w->element;
    if (cut == DPARI_CUT_COLUMN && w->stack >= DPAR_MODEL_STACK_TORCH) {
        op->save_cut = DPARI_CUT_NONE; /* PyTorch's DTensor keeps the gathered input */
    }
    return op;
}

/* Appends an element-wise operation with the bytes per token that its forward and its backward move
 * and that it keeps for the backward. */
DPARI_STATIC_NOINLINE dpari_layer_op *dpari_add_stream(dpar_workload *w, int cut, int kernels,
                                                       double touch, double touch_back, double save)
{
    dpari_layer_op *op = dpari_add_op(w, DPARI_OP_STREAM, cut, kernels);
    op->touch = touch;
    op->touch_back = touch_back;
    op->save = save;
    return op;
}

/* How the model and its software do the element-wise work of a layer. All int32_t are 0 or 1. */
typedef struct dpari_style {
    double element; /* bytes of an element */
    double norm;   /* bytes per channel that a norm keeps: its input; an eager RMSNorm keeps an fp32
                    * copy of it and the 16-bit one before the weight (6 bytes, counted) */
    double passes; /* element-wise traffic relative to fused kernels */
    int32_t fused; /* the activation and its product are one kernel, rotary makes no copies */
    int32_t drop;  /* dropout after attention and after each residual branch */
    int32_t biases;
    int32_t gated; /* the MLP has a gate: three matrices */
    int32_t rotary;
    int32_t rms;    /* norms are RMSNorms */
    int32_t repeat; /* keys and values are repeated for each query head, and kept that way */
} dpari_style;

/* Returns the style of a model with the software of its workload. */
static dpari_style dpari_style_of(const dpar_workload *w, const dpar_model *m)
{
    dpari_style s;
    int eager = w->stack == DPAR_MODEL_STACK_TORCH;
    s.element = w->element;
    s.passes = eager ? 1.6 : 1.0;
    s.fused = !eager;
    s.drop = m->family == DPAR_MODEL_FAMILY_GPT && w->stack == DPAR_MODEL_STACK_MEGATRON;
    s.biases = m->biases > 0 || (m->family != DPAR_MODEL_FAMILY_LLAMA &&
                                 m->family != DPAR_MODEL_FAMILY_T5 && m->biases == 0);
    s.rotary = m->family == DPAR_MODEL_FAMILY_LLAMA;
    s.gated = m->gated > 0 || (m->gated == 0 && s.rotary);
    s.rms = m->family == DPAR_MODEL_FAMILY_LLAMA || m->family == DPAR_MODEL_FAMILY_T5;
    s.norm = eager && s.rms ? s.element + 4.0 : s.element;
    s.repeat = w->stack >= DPAR_MODEL_STACK_TORCH;
    return s;
}

/* Appends a norm over h channels: the forward reads and writes them, the backward moves three times
 * their bytes. */
static void dpari_add_norm(dpar_workload *w, const dpari_style *s, double h, int keep)
{
    dpari_layer_op *op =
        dpari_add_stream(w, DPARI_CUT_SEQUENCE, s->fused ? 1 : 4, 2.0 * s->element * h * s->passes,
                         3.0 * s->element * h * s->passes, s->norm * h);
    op->params = !s->rms && s->biases ? 2.0 * h : h;
    op->keep = (int8_t)keep;
}

/* Appends a residual addition, with dropout and bias if the model has them. */
static void dpari_add_residual(dpar_workload *w, const dpari_style *s, double h)
{
    double mask = s->drop ? 1.0 : 0.0;
    dpari_add_stream(w, DPARI_CUT_SEQUENCE, s->drop && !s->fused ? 3 : 1,
                     (3.0 * s->element + mask) * h,
                     (2.0 * s->element * (s->drop ? 1.0 : 0.5) + mask) * h, mask * h);
}

/* Appends unfused attention: two batched products, and between them the traffic of a [heads, s, s]
 * tensor. With 2-byte elements the forward moves 2 + 2 bytes per element for the softmax and
 * 2 + 2 + 1 for dropout, the backward 6 and 5. Kept are 2 bytes (the softmax's output), with
 * dropout 1 (its mask) and 2 (its output) more, which is the 5 a s of Korthikanti (2022). What the
 * products themselves read and write is part of their price. */
static void dpari_add_scores(dpar_workload *w, const dpari_style *s, double heads, double width,
                             double keys, double kept)
{
    double cells = heads * keys, e = s->element;
    dpari_layer_op *op = dpari_add_op(w, DPARI_OP_SCORES, DPARI_CUT_TENSOR, 6);
    op->n = heads * width;
    op->k = keys;
    op->heads = (int16_t)(heads < 30000.0 ? heads : 30000.0); /* the range of int16_t */
    op->save = kept;
    if (s->drop) {
        op = dpari_add_stream(w, DPARI_CUT_TENSOR, 2, cells * (4.0 * e + 1.0),
                              cells * (5.0 * e + 1.0), cells * (2.0 * e + 1.0));
    } else {
        op = dpari_add_stream(w, DPARI_CUT_TENSOR, 1, cells * (2.0 * e), cells * (3.0 * e),
                              cells * e);
    }
    op->keep = DPARI_KEEP_SELECTIVE;
}

/* Returns the keys that a token sees: with causal attention half of them on average, in a window
 * fewer. */
static double dpari_keys_seen(double keys, int causal, double window)
{
    if (window > 0.0 && window < keys) {
        return causal ? window * (1.0 - 0.5 * window / keys) : window;
    }
    return causal ? 0.5 * keys : keys;
}

/* Appends attention without its projections. width: d_qk + d_v of a head. kept: bytes per token of
 * queries, keys and values that it keeps. */
static void dpari_add_attention(dpar_workload *w, const dpari_style *s, double heads, double width,
                                double keys, int causal, double window, double kept)
{
    dpari_layer_op *op;
    if (w->attention == DPAR_MODEL_ATTENTION_UNFUSED) {
        dpari_add_scores(w, s, heads, width, keys, kept);
        return;
    }
    op = dpari_add_op(w, DPARI_OP_ATTENTION, DPARI_CUT_TENSOR, s->fused ? 2 : 4);
    op->n = heads * width;
    op->k = dpari_keys_seen(keys, causal, window);
    op->heads = (int16_t)(heads < 30000.0 ? heads : 30000.0);
    op->save = kept + 4.0 * heads; /* the statistics of the softmax: one fp32 per head */
}

/* Appends an indexer if the model has one: a few narrow heads that score every key, so that
 * attention only sees the best keys. */
static void dpari_add_indexer(dpar_workload *w, const dpar_model *m, double keys)
{
    double width = (double)m->index_heads * m->index_width;
    dpari_layer_op *op;
    if (m->index_heads < 1) {
        return;
    }
    dpari_add_gemm(w, DPARI_CUT_NONE, width, m->q_lora > 0 ? m->q_lora : m->hidden, 0)->save = 0.0;
    dpari_add_gemm(w, DPARI_CUT_NONE, m->index_width + m->index_heads, m->hidden, 0)->save = 0.0;
    op = dpari_add_op(w, DPARI_OP_SCAN, DPARI_CUT_NONE, 3);
    op->n = width;
    op->k = 0.5 * keys;
}

/* Appends multi-head or grouped-query attention: norm, QKV, attention, projection, residual. cross
 * is 1 if its input is not the layer's; window is 0 if there is none. */
static void dpari_add_mha(dpar_workload *w, const dpar_model *m, const dpari_style *s, double keys,
                          int causal, int cross, double window)
{
    double h = m->hidden, d = m->head_width, v = m->v_width > 0 && m->kv_lora == 0 ? m->v_width : d;
    double q = m->heads * d, out = m->heads * v;
    double kvs = window > 0.0 && m->window_kv_heads > 0 ? m->window_kv_heads : m->kv_heads;
    double kv = kvs * (d + v), gate = m->q_gate ? out : 0.0;
    double rotary = 0.0;
    dpar_workload_layer *l = &w->layer[w->layers - 1];
    if (s->rotary) {
        rotary = s->fused ? 1.0 : 2.0;
    }
    dpari_add_norm(w, s, h, cross ? DPARI_KEEP_ALWAYS : DPARI_KEEP_INPUT);
    if (m->q_lora > 0) {
        dpari_add_gemm(w, DPARI_CUT_NONE, m->q_lora, h, 0)->keep = DPARI_KEEP_NORM;
        dpari_add_gemm(w, DPARI_CUT_COLUMN, q + gate, m->q_lora, 0)->keep = DPARI_KEEP_NORM;
        dpari_add_gemm(w, DPARI_CUT_COLUMN, kv, h, s->biases)->save = 0.0;
    } else {
        dpari_add_gemm(w, DPARI_CUT_COLUMN, q + gate + kv, h, s->biases)->keep = DPARI_KEEP_NORM;
    }
    dpari_add_indexer(w, m, keys);
    /* bias, split into heads and transposes read and write QKV once; rotary adds half of that, in
     * eager mode all of it */
    dpari_add_stream(w, DPARI_CUT_TENSOR, s->fused ? 2 : 6,
                     2.0 * s->element * (q + kv) * (1.0 + 0.5 * rotary),
                     2.0 * s->element * (q + kv) * (1.0 + 0.5 * rotary), 0.0);
    dpari_add_attention(w, s, m->heads, d + v, keys, causal, window,
                        s->element * (gate + (s->repeat ? 3.0 * q : q + kv)));
    dpari_add_stream(w, DPARI_CUT_TENSOR, 1, 2.0 * s->element * (out + gate),
                     2.0 * s->element * (out + gate), 0.0);
    if (m->o_lora > 0) { /* block-diagonal to o_lora for each group; the next product goes up */
        double groups = m->o_groups > 0 ? m->o_groups : 1.0;
        dpari_add_gemm(w, DPARI_CUT_COLUMN, groups * m->o_lora, out / groups, 0);
        out = groups * m->o_lora;
    }
    dpari_add_gemm(w, DPARI_CUT_ROW, h, out, s->biases);
    dpari_add_residual(w, s, h);
    l->tp_regions++;
    l->cp_kv_bytes += s->element * kv;
    l->cp_qo_bytes += 2.0 * s->element * q;
    l->alternate +=
        s->element * (2.0 * q + 0.5 * kv) + 4.0 * m->heads; /* queries, values, output */
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
static dpari_scan dpari_scan_of(const dpar_model *m)
{
    double a = m->scan_heads, di = a * m->scan_width, gn = (double)m->scan_groups * m->scan_state;
    double h = m->hidden;
    dpari_scan c = {0, 0, 0, 0, 0, 0, 0};
    c.in = 2.0 * di;
    c.inner = c.conv = di;
    switch (m->scan) {
    case DPAR_MODEL_SCAN_MAMBA: /* low-rank: from the channels to dt (h / 16) and back */
        c.low = (double)((m->hidden + 15) / 16);
        c.low_n = 2.0 * di;
        c.side = di * (3.0 * m->scan_state + 3.0); /* A; B and C; conv bias, dt bias, D */
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
        c.low = m->scan_width; /* of the decay and of the output gate */
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
    case DPAR_MODEL_SCAN_LRU: c.side = 2.0 * di * m->scan_width + 4.0 * di; break;
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
static void dpari_add_recurrence(dpar_workload *w, const dpar_model *m, const dpari_style *s)
{
    dpari_scan c = dpari_scan_of(m);
    double h = m->hidden, e = s->element, n = m->scan_state, state = c.inner * n;
    double taps = m->conv > 0 ? m->conv : 4.0;
    dpar_workload_layer *l = &w->layer[w->layers - 1];
    dpari_layer_op *op;
    dpari_add_norm(w, s, h, DPARI_KEEP_INPUT);
    dpari_add_gemm(w, DPARI_CUT_COLUMN, c.in, h, 0);
    if (c.low_n > 0.0) {
        dpari_add_gemm(w, DPARI_CUT_COLUMN, c.low_n, c.low, 0)->save = 0.0;
    }
    op = dpari_add_stream(w, DPARI_CUT_TENSOR, s->fused ? 2 : 5, 2.0 * e * c.conv * s->passes,
                          4.0 * e * c.conv * s->passes, e * c.conv);
    op->params = taps * c.conv + c.side;
    if (c.chunk > 0.0) { /* scores inside the chunk, and the state read and written */
        op = dpari_add_op(w, DPARI_OP_SCAN, DPARI_CUT_TENSOR, s->fused ? 4 : 8);
        op->n = c.inner + (double)m->scan_heads * n;
        op->k = 0.5 * c.chunk + 2.0 * state / op->n;
        if (m->scan == DPAR_MODEL_SCAN_DELTA || m->scan == DPAR_MODEL_SCAN_KDA) {
            op->k += c.chunk; /* the delta rule solves a triangular system in each chunk */
        }
        op->heads = (int16_t)(m->scan_heads < 30000 ? m->scan_heads : 30000);
    } else { /* token by token: 9 FLOP per state, and a state kept every 128 tokens */
        op = dpari_add_op(w, DPARI_OP_STREAM, DPARI_CUT_TENSOR, 2);
        op->n = 4.5 * c.inner;
        op->k = n > 0.0 ? n : 1.0;
        c.chunk = 128.0;
    }
    op->touch = e * (c.in + c.inner) + 8.0 * state / c.chunk;
    op->touch_back = 2.5 * op->touch;
    op->save = e * (c.in + c.inner) + 4.0 * state / c.chunk;
    dpari_add_gemm(w, DPARI_CUT_ROW, h, c.inner, 0);
    dpari_add_residual(w, s, h);
    l->tp_regions++;
}

/* Appends multi-head latent attention (DeepSeek-V2): low-rank queries, keys and values. */
static void dpari_add_mla(dpar_workload *w, const dpar_model *m, const dpari_style *s, double keys)
{
    double h = m->hidden, a = m->heads, rope = m->rope_width, e = s->element;
    double qk = m->qk_width, v = m->v_width, q = a * (qk + rope), kv = a * (qk + v);
    dpar_workload_layer *l = &w->layer[w->layers - 1];
    dpari_layer_op *op;
    dpari_add_norm(w, s, h, DPARI_KEEP_INPUT);
    if (m->q_lora > 0) {
        dpari_add_gemm(w, DPARI_CUT_NONE, m->q_lora, h, 0);
        dpari_add_norm(w, s, m->q_lora, DPARI_KEEP_ALWAYS);
        dpari_add_gemm(w, DPARI_CUT_COLUMN, q, m->q_lora, 0)->keep = DPARI_KEEP_NORM;
    } else {
        dpari_add_gemm(w, DPARI_CUT_COLUMN, q, h, 0)->keep = DPARI_KEEP_NORM;
    }
    op = dpari_add_gemm(w, DPARI_CUT_NONE, m->kv_lora + rope, h, 0);
    op->save = 0.0; /* the same input as the query's */
    dpari_add_norm(w, s, m->kv_lora, DPARI_KEEP_ALWAYS);
    dpari_add_gemm(w, DPARI_CUT_COLUMN, kv, m->kv_lora, 0)->keep = DPARI_KEEP_NORM;
    /* keys are assembled from their latent part and one rotary part: concatenated for each head */
    dpari_add_stream(w, DPARI_CUT_TENSOR, 4, 2.0 * e * (2.0 * q + a * v),
                     2.0 * e * (2.0 * q + a * v), 0.0);
    dpari_add_indexer(w, m, keys);
    dpari_add_attention(w, s, a, qk + rope + v, keys, 1, m->index_topk, e * (2.0 * q + a * v));
    dpari_add_gemm(w, DPARI_CUT_ROW, h, a * v, 0);
    dpari_add_residual(w, s, h);
    l->tp_regions++;
    l->cp_kv_bytes += e * (q + a * v);
    l->cp_qo_bytes += e * (q + a * v);
    l->alternate += e * (m->q_lora + kv + 2.0 * a * v);
}

/* Appends an MLP with f inner channels: norm, up (and gate), activation, down, residual. */
static void dpari_add_mlp(dpar_workload *w, const dpar_model *m, const dpari_style *s, double f)
{
    double h = m->hidden, up = s->gated ? 2.0 * f : f, e = s->element;
    dpari_layer_op *op;
    dpari_add_norm(w, s, h, DPARI_KEEP_ALWAYS);
    dpari_add_gemm(w, DPARI_CUT_COLUMN, up, h, s->biases)->keep = DPARI_KEEP_NORM;
    op = dpari_add_stream(w, DPARI_CUT_TENSOR, s->fused ? 1 : 2, e * (up + f) * s->passes,
                          e * (2.0 * up + f) * s->passes,
                          e * (up + (s->gated && !s->fused ? f : 0.0)));
    op->transient = e * up;
    dpari_add_gemm(w, DPARI_CUT_ROW, h, f, s->biases)->keep = DPARI_KEEP_ACTIVATION;
    dpari_add_residual(w, s, h);
    w->layer[w->layers - 1].alternate += e * (f + h);
    w->layer[w->layers - 1].tp_regions++;
}

/* Appends a mixture of experts: norm, router, permutation, grouped products over the experts of
 * each token, combination, shared experts, residual. */
static void dpari_add_moe(dpar_workload *w, const dpar_model *m, const dpari_style *s)
{
    double h = m->hidden, f = m->expert_ffn, t = m->topk, e = s->element,
           up = s->gated ? 2.0 * f : f;
    dpar_workload_layer *l = &w->layer[w->layers - 1];
    dpari_layer_op *op;
    dpari_add_norm(w, s, h, DPARI_KEEP_ALWAYS);
    op = dpari_add_gemm(w, DPARI_CUT_SEQUENCE, m->experts, h, 0);
    op->touch = op->touch_back = 40.0 * m->experts; /* fp32 scores, softmax, top-k, masks */
    /* gathers and scatters of rows run at about half of the streaming rate (measured), so their
     * bytes count twice */
    dpari_add_stream(w, DPARI_CUT_SEQUENCE, 6, 4.0 * e * t * h, 4.0 * e * t * h, 8.0 * t);
    op = dpari_add_gemm(w, DPARI_CUT_EXPERT_COLUMN, up, h, 0);
    op->kind = DPARI_OP_EXPERTS;
    op->copies = t;
    op->params = m->experts * up * h;
    op->save = e * t * h;
    op = dpari_add_stream(w, DPARI_CUT_EXPERT_TENSOR, 2, e * t * (up + f), e * t * (2.0 * up + f),
                          e * t * up);
    op->transient = e * t * up;
    op->keep = DPARI_KEEP_EXPERTS;
    op = dpari_add_gemm(w, DPARI_CUT_EXPERT_ROW, h, f, 0);
    op->keep = DPARI_KEEP_ACTIVATION;
    op->kind = DPARI_OP_EXPERTS;
    op->copies = t;
    op->params = m->experts * f * h;
    op->save = e * t * f;
    /* PyTorch multiplies the experts' outputs by the router's weights here, and keeps them for
     * that; Megatron-Core multiplies earlier */
    dpari_add_stream(w, DPARI_CUT_SEQUENCE, 3, 4.0 * e * t * h, 4.0 * e * t * h,
                     w->stack >= DPAR_MODEL_STACK_TORCH ? e * t * h : 0.0);
    if (m->shared_ffn > 0) {
        double wide = (s->gated ? 2.0 : 1.0) * m->shared_ffn;
        op = dpari_add_gemm(w, DPARI_CUT_COLUMN, wide, h, 0);
        op->save = 0.0;
        dpari_add_stream(w, DPARI_CUT_TENSOR, 1, e * (wide + m->shared_ffn),
                         e * (2.0 * wide + m->shared_ffn), e * wide);
        dpari_add_gemm(w, DPARI_CUT_ROW, h, m->shared_ffn, 0)->keep = DPARI_KEEP_ACTIVATION;
        l->shared = w->ops - 3;
        l->shared_ops = 3;
    }
    dpari_add_residual(w, s, h);
    l->tp_regions += m->shared_ffn > 0; /* ep_bytes has the routed tokens, over ep and etp */
    l->ep_bytes += e * t * h;
}

/* Appends the token embedding, and learned positions if the model has them. */
static void dpari_add_embedding(dpar_workload *w, const dpar_model *m, const dpari_style *s,
                                double tokens, double positions)
{
    double h = m->hidden;
    dpari_layer_op *op;
    dpar_workload_layer *l =
        dpari_add_layer(w, "embed", DPAR_LAYER_EMBED, 1, tokens, s->element * h);
    if (l == NULL) {
        return;
    }
    op = dpari_add_stream(w, DPARI_CUT_TENSOR, 3, 2.0 * s->element * h, 3.0 * s->element * h, 0.0);
    op->params = (double)m->vocab * (m->embed > 0 ? m->embed : h);
    if (m->embed > 0) {
        dpari_add_gemm(w, DPARI_CUT_NONE, h, m->embed, 0);
    }
    if (m->aside > 0) { /* a second embedding: looked up and projected once for all layers */
        double wide = (double)m->aside * m->layers;
        dpari_add_gemm(w, DPARI_CUT_NONE, wide, h, 0)->params +=
            wide * (m->aside_vocab > 0 ? m->aside_vocab : m->vocab);
        dpari_add_gemm(w, DPARI_CUT_NONE, 2.0 * wide, h, 0);
    }
    op = dpari_add_stream(w, DPARI_CUT_SEQUENCE, s->drop ? 2 : 1,
                          (s->drop ? 3.0 : 0.0) * s->element * h,
                          (s->drop ? 2.0 : 0.0) * s->element * h, s->drop ? h : 0.0);
    op->params = positions * h;
    l->tp_regions = 1;
}

/* Appends the final norm, the logits and the loss. An unfused loss moves 26 bytes per logit in the
 * forward (fp32 copy, maximum, subtraction, exponential, sum) and 14 in the backward, a fused one 6
 * and 4. */
static void dpari_add_head(dpar_workload *w, const dpar_model *m, const dpari_style *s,
                           double tokens)
{
    double h = m->hidden, v = m->vocab;
    int fused = (w->stack == DPAR_MODEL_STACK_MEGATRON_CORE ||
                 w->stack == DPAR_MODEL_STACK_TORCH_COMPILE) &&
                w->loss != DPAR_MODEL_LOSS_EAGER;
    /* bytes per logit that exist at the same time, by DPAR_MODEL_LOSS_* */
    static const float bytes[DPAR_MODEL_LOSS_END] = {0, 14, 6, 4, 2, 1.75f, 10};
    dpari_layer_op *op;
    dpar_workload_layer *l = dpari_add_layer(w, "head", DPAR_LAYER_HEAD, 1, tokens, s->element * h);
    if (l == NULL) {
        return;
    }
    dpari_add_norm(w, s, h, DPARI_KEEP_ALWAYS);
    if (m->head == DPAR_MODEL_HEAD_POOL || m->head == DPAR_MODEL_HEAD_MASKED) {
        dpari_add_gemm(w, DPARI_CUT_NONE, h, h, 1);
    }
    if (w->vocab == 0) {
        return;
    }
    if (m->embed > 0) {
        dpari_add_gemm(w, DPARI_CUT_NONE, m->embed, h, 0);
        h = m->embed;
    }
    op = dpari_add_gemm(w, DPARI_CUT_COLUMN, v, h, 0);
    op->params = m->tied ? 0.0 : v * h;
    op = dpari_add_stream(w, DPARI_CUT_TENSOR, fused ? 2 : 8, v * (fused ? 6.0 : 26.0),
                          v * (fused ? 4.0 : 14.0), 0.0);
    op->transient = v * (double)bytes[w->loss];
    l->tp_regions = 1;
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
static void dpari_add_kind(dpar_workload *w, const dpar_model *m, const dpari_style *s, double seq,
                           int32_t mix, int32_t feed, int32_t count)
{
    const int causal = w->causal;
    if (dpari_add_layer(w, dpari_kind_name(mix, feed), DPAR_LAYER_BLOCK, count, seq,
                        s->element * m->hidden) == NULL) {
        return;
    }
    if (mix != DPAR_MODEL_MIXER_SCAN && mix != DPAR_MODEL_MIXER_NONE && m->heads > 0) {
        if (m->kv_lora > 0) {
            dpari_add_mla(w, m, s, seq);
        } else {
            dpari_add_mha(w, m, s, seq, causal, 0,
                          mix == DPAR_MODEL_MIXER_WINDOW ? m->window : m->index_topk);
        }
    }
    if (mix == DPAR_MODEL_MIXER_SCAN || mix == DPAR_MODEL_MIXER_BOTH) {
        dpari_add_recurrence(w, m, s);
    }
    if (feed == DPAR_MODEL_FFN_EXPERTS) {
        dpari_add_moe(w, m, s);
    } else if (feed == DPAR_MODEL_FFN_DENSE) {
        dpari_add_mlp(w, m, s, m->ffn);
    }
    if (w->ops > w->layer[w->layers - 1].first) {
        w->op[w->layer[w->layers - 1].first].keep = DPARI_KEEP_INPUT;
    }
}

/* Returns the mixing of a letter of a pattern, and sets *feed if the letter implies it. */
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

DPARI_INTERNAL DPARI_COLD void dpari_model_kinds(dpar_model *m, const char *mix, int32_t mixes,
                                                 const int8_t *feeds, int32_t n)
{
    int32_t i, plain = 1;
    if (mixes < 1) {
        mix = m->pattern;
        mixes = (int32_t)dpari_length(mix);
    }
    dpari_zero(m->kinds, sizeof(m->kinds));
    for (i = 0; i < m->layers && m->layers <= 1000000; i++) {
        int32_t moe = m->experts > 0 && i >= m->dense_layers &&
                      (m->expert_step < 2 || i % m->expert_step == m->expert_offset);
        int32_t feed = i < n ? feeds[i] : moe;
        int32_t expected = m->experts > 0 && i >= m->dense_layers;
        int32_t kind = mixes > 0 ? dpari_kind_of(mix[i % mixes], &feed) : DPAR_MODEL_MIXER_FULL;
        plain = plain && kind == DPAR_MODEL_MIXER_FULL && feed == expected;
        m->kinds[kind * DPAR_MODEL_FFN_COUNT + feed]++;
    }
    if (plain) { /* first dense_layers dense ones, then experts: as dpari_build_decoder has it
                  * without counts */
        dpari_zero(m->kinds, sizeof(m->kinds));
    }
}

/* Returns 1 if the counts of kinds add up to the layers. They do not if there are none, or if
 * `layers` changed after they were counted; the pattern then decides again. */
static int dpari_model_mixed(const dpar_model *m)
{
    int32_t i, sum = 0;
    for (i = 0; i < DPAR_MODEL_MIXER_COUNT * DPAR_MODEL_FFN_COUNT; i++) {
        if (m->kinds[i] < 0 || m->kinds[i] > m->layers - sum) {
            return 0;
        }
        sum += m->kinds[i];
    }
    return sum > 0 && sum == m->layers;
}

/* Appends a tower if the model has one: patches, blocks that attend to every token of the image,
 * and a projector. It is in front of the language model, on its first stage. */
static void dpari_add_tower(dpar_workload *w, const dpar_model *m)
{
    dpar_model v;
    dpari_style s;
    double tokens = m->tower_tokens, h = m->tower_hidden;
    double merged = h * (m->tower_merge > 1 ? m->tower_merge : 1), to = m->hidden;
    int32_t at;
    dpar_workload_layer *l;
    if (m->tower_layers < 1) {
        return;
    }
    l = dpari_add_layer(w, "tower", DPAR_LAYER_EMBED, m->tower_layers, tokens, w->element * h);
    if (l == NULL) {
        return;
    }
    dpari_zero(&v, sizeof(v));
    v.family = DPAR_MODEL_FAMILY_VIT;
    v.gated = m->tower_gated ? 1 : -1;
    v.hidden = m->tower_hidden;
    v.heads = v.kv_heads = m->tower_heads;
    v.head_width = m->tower_hidden / m->tower_heads;
    s = dpari_style_of(w, &v);
    dpari_add_mha(w, &v, &s, tokens, 0, 0, 0.0);
    dpari_add_mlp(w, &v, &s, m->tower_ffn);
    for (at = l->first; at < w->ops; at++) { /* SCAN is never halved: nothing here is causal */
        if (w->op[at].kind == DPARI_OP_ATTENTION) {
            w->op[at].kind = DPARI_OP_SCAN;
        }
    }
    l = dpari_add_layer(w, "projector", DPAR_LAYER_EMBED, 1, tokens, w->element * to);
    if (l == NULL) {
        return;
    }
    dpari_add_gemm(w, DPARI_CUT_NONE, h, m->tower_patch, 1)->params +=
        (double)m->tower_positions * h + 1000.0 * m->tower_params;
    for (at = 0; at < m->tower_mergers; at++) {
        double share = m->tower_merge > 1 ? m->tower_merge : 1.0, inner = m->tower_inner;
        dpari_layer_op *op;
        /* `share` tokens are merged into one, so each has that part of the work; the weights are
         * whole */
        op = dpari_add_gemm(w, DPARI_CUT_NONE, (inner > 0.0 ? inner : to), merged, 1);
        op->save /= share;
        op->params = op->n * op->k + op->n;
        op->k /= share;
        if (inner > 0.0) {
            op = dpari_add_gemm(w, DPARI_CUT_NONE, to, inner, 1);
            op->save /= share;
            op->params = op->n * op->k + op->n;
            op->k /= share;
        }
    }
}

/* Returns the rows of learned positions: those of the model, or for a GPT one per token. */
static double dpari_decoder_positions(const dpar_model *m)
{
    if (m->positions != 0) {
        return dpari_mostf(m->positions, 0.0);
    }
    return m->family == DPAR_MODEL_FAMILY_GPT && !m->rotary ? (double)m->seq : 0.0;
}

static void dpari_build_decoder(dpar_workload *w, const dpar_model *model, double seq)
{
    dpar_model m = *model;
    dpari_style s = dpari_style_of(w, &m);
    int32_t dense = m.experts > 0 ? m.dense_layers : m.layers, first, mix, feed;
    dpari_add_embedding(w, &m, &s, seq, dpari_decoder_positions(&m));
    dpari_add_tower(w, &m);
    first = w->layers;
    if (dpari_model_mixed(&m)) {
        for (mix = 0; mix < DPAR_MODEL_MIXER_COUNT; mix++) {
            for (feed = 0; feed < DPAR_MODEL_FFN_COUNT; feed++) {
                dpari_add_kind(w, &m, &s, seq, mix, feed,
                               m.kinds[mix * DPAR_MODEL_FFN_COUNT + feed]);
            }
        }
        for (; first < w->layers; first++) {
            w->layer[first].span = m.layers;
        }
    } else {
        dpari_add_kind(w, &m, &s, seq, DPAR_MODEL_MIXER_FULL, DPAR_MODEL_FFN_DENSE, dense);
        dpari_add_kind(w, &m, &s, seq, DPAR_MODEL_MIXER_FULL, DPAR_MODEL_FFN_EXPERTS,
                       m.layers - dense);
    }
    if (m.mtp > 0) { /* blocks like the last one, and a projection of two vectors to one */
        dpari_add_kind(w, &m, &s, seq, DPAR_MODEL_MIXER_FULL,
                       m.experts > 0 ? DPAR_MODEL_FFN_EXPERTS : DPAR_MODEL_FFN_DENSE, m.mtp);
        dpari_add_gemm(w, DPARI_CUT_NONE, m.hidden, 2.0 * m.hidden, 0);
    }
    dpari_add_head(w, &m, &s, seq);
}

/* Builds ViT and DiT: patches, blocks that attend to every token, a small head. */
static void dpari_build_vision(dpar_workload *w, const dpar_model *m)
{
    dpari_style s = dpari_style_of(w, m);
    double h = m->hidden, tokens = w->tokens, patch = (double)m->patch * m->patch * m->channels;
    double out = m->out_channels != 0 ? dpari_mostf(m->out_channels, 0.0) : 1000.0;
    dpar_workload_layer *l =
        dpari_add_layer(w, "patch", DPAR_LAYER_EMBED, 1, tokens, s.element * h);
    dpari_layer_op *op;
    dpari_add_gemm(w, DPARI_CUT_NONE, h, patch, 1)->params += (tokens + 1.0) * h;
    l->tp_regions = 0;
    l = dpari_add_layer(w, "block", DPAR_LAYER_BLOCK, m->layers, tokens, s.element * h);
    dpari_add_mha(w, m, &s, tokens, 0, 0, 0.0);
    dpari_add_mlp(w, m, &s, m->ffn);
    if (m->family == DPAR_MODEL_FAMILY_DIT) {
        /* shift, scale and gate of both branches from the condition: 6 h wide, once per sample */
        op = dpari_add_stream(w, DPARI_CUT_TENSOR, 8, 8.0 * s.element * h, 12.0 * s.element * h,
                              4.0 * s.element * h);
        op->params = 6.0 * h * h + 6.0 * h;
    }
    dpari_add_layer(w, "head", DPAR_LAYER_HEAD, 1,
                    m->family == DPAR_MODEL_FAMILY_DIT ? tokens : 1.0, s.element * h);
    dpari_add_norm(w, &s, h, DPARI_KEEP_ALWAYS);
    if (m->head == DPAR_MODEL_HEAD_POOL) {
        dpari_add_gemm(w, DPARI_CUT_NONE, h, h, 1);
    }
    if (out > 0.0) {
        dpari_add_gemm(w, DPARI_CUT_NONE, out, h, 1);
    }
}

/* Builds an encoder and a decoder. If the model reads sound, `channels` are those of its
 * spectrogram; two convolutions come first, the second of stride 2, and the encoder has image[0]
 * tokens. */
static void dpari_build_t5(dpar_workload *w, const dpar_model *m, double seq)
{
    dpari_style s = dpari_style_of(w, m);
    int32_t decoders = m->decoder_layers > 0 ? m->decoder_layers : m->layers;
    double heard = m->channels > 0 && m->image[0] > 0 ? (double)m->image[0] : seq, h = m->hidden;
    dpari_add_embedding(w, m, &s, seq, dpari_mostf(m->positions, 0.0));
    if (m->channels > 0) {
        dpari_add_layer(w, "hear", DPAR_LAYER_EMBED, 1, heard, s.element * h);
        dpari_add_gemm(w, DPARI_CUT_NONE, h, 3.0 * (h + 2.0 * m->channels), 1)->params -=
            3.0 * m->channels * h;
    }
    dpari_add_layer(w, "encoder", DPAR_LAYER_BLOCK, m->layers, heard, s.element * h);
    dpari_add_mha(w, m, &s, heard, 0, 0, 0.0);
    dpari_add_mlp(w, m, &s, m->ffn);
    dpari_add_layer(w, "decoder", DPAR_LAYER_BLOCK, decoders, seq, s.element * h);
    dpari_add_mha(w, m, &s, seq, 1, 0, 0.0);
    dpari_add_mha(w, m, &s, heard, 0, 1, 0.0);
    dpari_add_mlp(w, m, &s, m->ffn);
    dpari_add_head(w, m, &s, seq);
}

/* Appends a convolution with its norm and activation. taps: area of the kernel; grow: input pixels
 * per output pixel, 4 for stride 2; reach: depth of its halo, 0 without one. It keeps its input and
 * the norm's input; the activation is kept as the input of the next one. */
static void dpari_add_conv(dpar_workload *w, double out, double in, double taps, double grow,
                           int reach)
{
    double e = w->element;
    dpar_workload_layer *l = &w->layer[w->layers - 1];
    dpari_layer_op *op = dpari_add_op(w, DPARI_OP_CONV, DPARI_CUT_COLUMN, 1);
    op->save_cut = DPARI_CUT_NONE;
    op->n = out;
    op->k = in * taps;
    op->params = out * in * taps;
    op->touch = e * in * grow;
    op->touch_back = 2.0 * e * in * grow;
    op->save = e * in * grow;
    /* an eager framework keeps the norm's output too, which is the activation's input */
    op = dpari_add_stream(w, DPARI_CUT_NONE, 2, 4.0 * e * out, 6.0 * e * out,
                          (w->stack == DPAR_MODEL_STACK_TORCH ? 2.0 : 1.0) * e * out);
    op->params = 2.0 * out;
    op->transient = e * out;
    if (reach > 0) {
        l->reach_bytes += reach * in * e;
        l->reach = (int32_t)dpari_most(l->reach, reach);
        l->exchanges++;
    }
}

/* Builds a bottleneck ResNet with the 3, 4, 6 and 3 blocks of ResNet-50; m->layers is not used. */
static void dpari_build_resnet(dpar_workload *w, const dpar_model *m)
{
    static const int8_t depth[4] = {3, 4, 6, 3};
    double side = (double)m->image[0] / 4.0, cells = side * ((double)m->image[1] / 4.0);
    double width = m->hidden, in = m->hidden;
    int32_t stage, part;
    dpar_workload_layer *l =
        dpari_add_layer(w, "stem", DPAR_LAYER_BLOCK, 1, 4.0 * cells, w->element * width);
    l->shrink = 2;
    dpari_add_conv(w, width, m->channels, 49.0, 4.0, 3);
    for (stage = 0; stage < 4; stage++) {
        for (part = 0; part < 2; part++) {
            double out = 4.0 * width, grow = part == 0 && stage > 0 ? 4.0 : 1.0;
            l = dpari_add_layer(w, part ? "bottleneck" : "downsample", DPAR_LAYER_BLOCK,
                                part ? depth[stage] - 1 : 1, cells, w->element * out);
            l->shrink = 4 << stage;
            dpari_add_conv(w, width, in, 1.0, grow, 0);
            dpari_add_conv(w, width, width, 9.0, 1.0, 1);
            dpari_add_conv(w, out, width, 1.0, 1.0, 0);
            if (part == 0) {
                dpari_add_conv(w, out, in, 1.0, grow, 0);
            }
            in = out;
        }
        width *= 2.0;
        cells /= 4.0;
    }
    dpari_add_layer(w, "head", DPAR_LAYER_HEAD, 1, 1.0, 1000.0 * w->element);
    dpari_add_gemm(w, DPARI_CUT_NONE, m->out_channels > 0 ? m->out_channels : 1000, in, 1);
}

static double dpari_level_width(const dpar_model *m, int32_t level)
{
    double c = m->hidden;
    while (level-- > 0) {
        c *= 2.0;
    }
    return c;
}

/* Appends one half of a U-Net level: pairs of convolutions. The first one changes the width. */
static void dpari_add_level(dpar_workload *w, const dpar_model *m, const char *name, int32_t level,
                            double in)
{
    double c = dpari_level_width(m, level), shrink = c / m->hidden;
    double cells = (double)m->image[0] * m->image[1] / (shrink * shrink);
    double taps = (double)m->kernel * m->kernel;
    int32_t i, blocks = m->blocks_per_level;
    dpar_workload_layer *l = dpari_add_layer(w, name, DPAR_LAYER_BLOCK, 1, cells, w->element * c);
    if (l == NULL) {
        return;
    }
    l->shrink = (int32_t)shrink;
    for (i = 0; i < blocks; i++) {
        dpari_add_conv(w, c, i == 0 ? in : c, taps, 1.0, m->kernel / 2);
        dpari_add_conv(w, c, c, taps, 1.0, m->kernel / 2);
    }
}

static void dpari_build_unet(dpar_workload *w, const dpar_model *m)
{
    int32_t level;
    double out = m->out_channels > 0 ? m->out_channels : m->channels;
    for (level = 0; level < m->levels; level++) {
        dpari_add_level(w, m, "encode", level,
                        level == 0 ? m->channels : dpari_level_width(m, level - 1));
    }
    for (level = m->levels - 2; level >= 0; level--) {
        const double width = dpari_level_width(m, level);
        /* the skip and the upsampled coarse level are concatenated */
        dpari_add_level(w, m, "decode", level, 2.0 * width);
        /* the up-convolution from the coarse level to this one: 2 x 2, without a halo */
        dpari_add_conv(w, width, dpari_level_width(m, level + 1), 1.0, 0.25, 0);
    }
    dpari_add_layer(w, "head", DPAR_LAYER_HEAD, 1, (double)m->image[0] * m->image[1],
                    out * w->element);
    dpari_add_conv(w, out, m->hidden, 1.0, 1.0, 0);
}

/* Builds an explicit stencil code: one layer, which passes over the cells once per time step. */
static void dpari_build_grid(dpar_workload *w, const dpar_model *m)
{
    double e = w->element,
           cells = (double)m->extent[0] * (double)m->extent[1] * (double)m->extent[2];
    dpar_workload_layer *l = dpari_add_layer(w, "cells", DPAR_LAYER_BLOCK, 1, cells, e * m->fields);
    dpari_layer_op *op =
        dpari_add_stream(w, DPARI_CUT_NONE, m->fields, m->bytes_per_cell, 0.0, 2.0 * e * m->fields);
    op->keep = DPARI_KEEP_INPUT;
    op->n = 0.5 * m->flops_per_cell;
    op->k = 1.0;
    l->reach = m->halo;
    l->reach_bytes = (double)m->halo * m->fields * e;
    l->exchanges = 1;
}

/* ---- from model to workload --------------------------------------------------------------- */

static int dpari_is_transformer(int32_t family)
{
    return family <= DPAR_MODEL_FAMILY_T5;
}

/* Checks the sizes of a transformer and completes head_width, kv_heads and ffn. */
DPARI_STATIC_NOINLINE dpar_status dpari_model_widths(dpar_model *m, dpar_why *why)
{
    if (m->scan > 0 && m->heads == 0) { /* a model of recurrences only has no attention heads */
        m->heads = m->kv_heads = 0;
    } else if (m->layers < 1 || m->hidden < 1 || m->heads < 1) {
        return dpari_wrong(why,
                           "a transformer needs layers, hidden and heads of at least 1: layers=%d, "
                           "hidden=%d, heads=%d",
                           m->layers, m->hidden, m->heads);
    }
    if (m->head_width < 1 && m->kv_lora < 1 && m->heads > 0 && m->hidden % m->heads != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "heads=%d does not divide hidden=%d (give head_width)",
                         m->heads, m->hidden);
    }
    if (m->head_width < 1) {
        m->head_width = m->heads > 0 ? m->hidden / m->heads : 0;
    }
    m->kv_heads = m->kv_heads > 0 ? m->kv_heads : m->heads;
    if (m->heads > 0 && (m->kv_heads > m->heads || m->heads % m->kv_heads != 0)) {
        return dpari_say(DPAR_E_DIVIDE, why, "kv_heads=%d does not divide heads=%d", m->kv_heads,
                         m->heads);
    }
    if (m->ffn < 1) {
        if (m->hidden > INT32_MAX / 4) {
            return dpari_say(DPAR_E_RANGE, why,
                             "hidden=%d is too large for ffn = 4 hidden (give ffn)", m->hidden);
        }
        m->ffn = 4 * m->hidden;
    }
    return DPAR_OK;
}

/* Checks the image of a vision model. For other transformers sets seq, and checks it and vocab. */
static dpar_status dpari_model_tokens(dpar_model *m, int32_t seq, dpar_why *why)
{
    if (m->family == DPAR_MODEL_FAMILY_VIT || m->family == DPAR_MODEL_FAMILY_DIT) {
        if (m->patch < 1 || m->image[0] < m->patch || m->image[1] < m->patch || m->channels < 1) {
            return dpari_wrong(
                why,
                "image=%dx%d: patch=%d must be at least 1 and fit into the image, channels=%d "
                "must be at least 1",
                m->image[0], m->image[1], m->patch, m->channels);
        }
        return DPAR_OK;
    }
    m->seq = seq > 0 ? seq : m->seq;
    if (m->seq < 1 || m->vocab < 1) {
        return dpari_wrong(why, "seq and vocab must be at least 1: seq=%d, vocab=%d", m->seq,
                           m->vocab);
    }
    return DPAR_OK;
}

/* Checks and completes experts, latent attention, windows, recurrences and the tower. */
DPARI_STATIC_NOINLINE dpar_status dpari_model_experts(dpar_model *m, dpar_why *why)
{
    int32_t i, sees = 0, scans = 0;
    if (m->experts < 0 || (m->experts > 0 && (m->topk < 1 || m->topk > m->experts))) {
        return dpari_wrong(why, "topk=%d must be 1 to experts=%d", m->topk, m->experts);
    }
    if (m->experts > 0 && m->expert_ffn < 1) {
        m->expert_ffn = m->ffn;
    }
    if (m->dense_layers > m->layers) {
        return dpari_wrong(why, "dense_layers=%d must be at most layers=%d", m->dense_layers,
                           m->layers);
    }
    if (m->kv_lora > 0 && (m->qk_width < 1 || m->v_width < 1)) {
        return dpari_wrong(why,
                           "latent attention (kv_lora=%d) needs qk_width and v_width of at least "
                           "1, not %d and %d",
                           m->kv_lora, m->qk_width, m->v_width);
    }
    if (!dpari_model_mixed(m)) {
        dpari_model_kinds(m, NULL, 0, NULL, 0);
    }
    for (i = 0; i < DPAR_MODEL_FFN_COUNT; i++) {
        const int32_t *kinds = m->kinds;
        sees += kinds[DPAR_MODEL_MIXER_WINDOW * DPAR_MODEL_FFN_COUNT + i];
        scans += kinds[DPAR_MODEL_MIXER_SCAN * DPAR_MODEL_FFN_COUNT + i] +
                 kinds[DPAR_MODEL_MIXER_BOTH * DPAR_MODEL_FFN_COUNT + i];
    }
    if (m->scan < 0 || m->scan >= DPAR_MODEL_SCAN_END || (scans > 0 && m->scan == 0) ||
        (sees > 0 && m->window < 1)) {
        return dpari_wrong(why,
                           "%d layers with a window need window=%d of at least 1, %d with a scan "
                           "need scan=%d of 1 to 8",
                           sees, m->window, scans, m->scan);
    }
    if (m->scan > 0) {
        m->scan_heads = m->scan_heads > 0 ? m->scan_heads : 1;
        m->scan_width = m->scan_width > 0 ? m->scan_width : m->hidden / m->scan_heads;
        m->scan_groups = m->scan_groups > 0 ? m->scan_groups : 1;
    }
    if (m->tower_layers > 0) {
        if (m->tower_hidden < 1 || m->tower_heads < 1 || m->tower_hidden % m->tower_heads != 0) {
            return dpari_wrong(why, "tower_heads=%d does not divide tower_hidden=%d",
                               m->tower_heads, m->tower_hidden);
        }
        m->tower_ffn = m->tower_ffn > 0
                           ? m->tower_ffn
                           : (int32_t)dpari_least(4 * (int64_t)m->tower_hidden, INT32_MAX);
        m->tower_tokens = m->tower_tokens > 0 ? m->tower_tokens : 256;
    }
    if (m->capacity < 0.0 || !dpari_finite(m->capacity)) {
        return dpari_wrong(why, "capacity must be 0 or a finite number of at least 1");
    }
    return DPAR_OK;
}

/* Checks a conv net and completes kernel and blocks_per_level. Each side of the image must have a
 * cell on the coarsest level. */
static dpar_status dpari_model_convs(dpar_model *m, dpar_why *why)
{
    int32_t shrink = m->family == DPAR_MODEL_FAMILY_RESNET ? 32 : 1, most;
    m->kernel = m->kernel > 0 ? m->kernel : 3;
    m->blocks_per_level = m->blocks_per_level > 0 ? m->blocks_per_level : 1;
    if (m->family == DPAR_MODEL_FAMILY_UNET) {
        if (m->levels < 1 || m->levels > 8) {
            return dpari_wrong(why, "levels=%d must be 1 to 8", m->levels);
        }
        /* four operations per block, on the way down and up; two between levels and for the head */
        most = (DPAR_MAX_LAYER_OPS - 2 * m->levels) / 4 / (2 * m->levels - 1);
        if (m->blocks_per_level > most) {
            return dpari_wrong(why, "blocks_per_level=%d with levels=%d must be at most %d",
                               m->blocks_per_level, m->levels, most);
        }
        shrink = (int32_t)1 << (m->levels - 1);
    }
    if (m->image[0] < shrink || m->image[1] < shrink || m->channels < 1 || m->hidden < 1) {
        return dpari_wrong(
            why,
            "hidden=%d and channels=%d must be at least 1, the sides of image=%dx%d at least %d",
            m->hidden, m->channels, m->image[0], m->image[1], shrink);
    }
    return DPAR_OK;
}

/* Checks a grid solver and completes its fields. */
static dpar_status dpari_model_grid(dpar_model *m, dpar_why *why)
{
    int64_t cells = 1;
    int32_t i;
    for (i = 0; i < 3; i++) {
        m->extent[i] = i < m->dims ? m->extent[i] : 1;
        if (m->extent[i] < 1 || !dpari_mul(cells, m->extent[i], &cells)) {
            return dpari_wrong(why,
                               "grid axis %d has %ld cells; the grid needs 1 to 2^63 - 1 in all", i,
                               m->extent[i]);
        }
    }
    m->fields = m->fields > 0 ? m->fields : 1;
    m->halo = m->halo > 0 ? m->halo : 1;
    m->element = m->element > 0 ? m->element : 4;
    for (i = 0; i < m->dims && m->halo > m->extent[i]; i++) { /* to the end if all are narrower */
    }
    if (m->dims > 0 && i == m->dims) {
        return dpari_wrong(why, "halo=%d is wider than the grid: %ld x %ld x %ld cells", m->halo,
                           m->extent[0], m->extent[1], m->extent[2]);
    }
    if (m->dims < 1 || m->dims > 3) {
        return dpari_wrong(why, "a grid has 1 to 3 axes, not %d", m->dims);
    }
    if (!(m->flops_per_cell >= 0.0 && m->bytes_per_cell >= 0.0) ||
        !dpari_finite(m->flops_per_cell) || !dpari_finite(m->bytes_per_cell)) {
        return dpari_wrong(
            why, "flops_per_cell and bytes_per_cell must be finite numbers of at least 0");
    }
    if (m->bytes_per_cell <= 0.0) { /* every field is read once and written once */
        m->bytes_per_cell = 2.0 * m->fields * m->element;
    }
    if (m->flops_per_cell <= 0.0) { /* a product and a sum for each neighbour and field */
        m->flops_per_cell = 2.0 * (2.0 * m->dims * m->halo + 1.0) * m->fields;
    }
    return DPAR_OK;
}

#define DPARI_AT(name) (int16_t)(offsetof(dpar_model, name) / sizeof(int32_t))

/* Returns an integer of the model that is below -1, or 0 if there is none. */
static int32_t dpari_model_negative(const dpar_model *m)
{
    /* the fields of type int32_t are in three runs, with fields of other types between them */
    static const int16_t run[][2] = {{DPARI_AT(family), DPARI_AT(capacity)},
                                     {DPARI_AT(q_lora), DPARI_AT(extent)},
                                     {DPARI_AT(attention), DPARI_AT(pattern)}};
    int32_t k, i;
    for (k = 0; k < 3; k++) {
        for (i = run[k][0]; i < run[k][1]; i++) {
            const int32_t value = ((const int32_t *)(const void *)m)[i];
            if (value < -1) {
                return value;
            }
        }
    }
    return 0;
}
#undef DPARI_AT

/* Fills in the fields that follow from the given ones, and refuses numbers that are not allowed. */
static dpar_status dpari_model_complete(dpar_model *m, int32_t seq, dpar_why *why)
{
    dpar_status st;
    if (m->family == 0) {
        return dpari_wrong(why,
                           "the model has no family: set family, such as DPAR_MODEL_FAMILY_GPT");
    }
    if (m->family < 0 || m->family >= DPAR_MODEL_FAMILY_END) {
        return dpari_wrong(why, "family=%d is not one of DPAR_MODEL_FAMILY_*", m->family);
    }
    if (dpari_model_negative(m) < 0) {
        return dpari_wrong(why, "a field of the model is %d; none may be below -1",
                           dpari_model_negative(m));
    }
    if (m->element != 0 && m->element != 2 && m->element != 4 && m->element != 8) {
        return dpari_wrong(why, "element=%d must be 2, 4 or 8 bytes", m->element);
    }
    if (m->attention >= DPAR_MODEL_ATTENTION_END || m->stack >= DPAR_MODEL_STACK_END ||
        m->loss >= DPAR_MODEL_LOSS_END) {
        return dpari_wrong(why, "attention=%d, stack=%d or loss=%d is not one of DPAR_MODEL_*",
                           m->attention, m->stack, m->loss);
    }
    if (m->layers > 1000000 || m->decoder_layers > 1000000 || m->mtp > 1000000 ||
        m->tower_layers > 1000000) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "layers=%d, decoder_layers=%d, mtp=%d, tower_layers=%d: each at most 1000000",
            m->layers, m->decoder_layers, m->mtp, m->tower_layers);
    }
    if (m->family == DPAR_MODEL_FAMILY_GRID) {
        return dpari_model_grid(m, why);
    }
    m->element = m->element > 0 ? m->element : 2;
    if (!dpari_is_transformer(m->family)) {
        return dpari_model_convs(m, why);
    }
    st = dpari_model_widths(m, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_model_tokens(m, seq, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_model_experts(m, why);
}

/* Returns the tokens, pixels or cells of a sample. A sample of a ResNet counts as one. */
static double dpari_model_samples_tokens(const dpar_model *m)
{
    if (m->family == DPAR_MODEL_FAMILY_VIT || m->family == DPAR_MODEL_FAMILY_DIT) {
        return (double)(m->image[0] / m->patch) * (m->image[1] / m->patch) +
               (m->family == DPAR_MODEL_FAMILY_VIT ? 1.0 : 0.0);
    }
    if (m->family == DPAR_MODEL_FAMILY_GRID) {
        return (double)m->extent[0] * (double)m->extent[1] * (double)m->extent[2];
    }
    if (m->family == DPAR_MODEL_FAMILY_RESNET) {
        return 1.0;
    }
    return m->family == DPAR_MODEL_FAMILY_UNET ? (double)m->image[0] * m->image[1] : (double)m->seq;
}

/* Returns the loss that a stack has if the model names none. The library with the first fused
 * attention also has a fused loss, so a model with the one is assumed to use the other. */
static int32_t dpari_loss_of(const dpar_workload *w)
{
    switch (w->stack) {
    case DPAR_MODEL_STACK_MEGATRON_CORE: return DPAR_MODEL_LOSS_INPLACE;
    case DPAR_MODEL_STACK_MEGATRON: return DPAR_MODEL_LOSS_PARALLEL;
    case DPAR_MODEL_STACK_TORCH_COMPILE: return DPAR_MODEL_LOSS_COMPILED;
    default: break;
    }
    return w->attention == DPAR_MODEL_ATTENTION_FLASH1 ? DPAR_MODEL_LOSS_FUSED
                                                       : DPAR_MODEL_LOSS_EAGER;
}

/* Fills in all fields of a workload except its layers and the sums over them. */
DPARI_STATIC_NOINLINE void dpari_workload_head(dpar_workload *w, const dpar_model *m)
{
    int gpt = m->family == DPAR_MODEL_FAMILY_GPT;
    int transformer = dpari_is_transformer(m->family);
    dpari_copy_text(w->name, sizeof(w->name), m->name, sizeof(m->name));
    w->element = m->element;
    w->stack_version = m->stack;
    if (m->stack <= 0) {
        w->stack_version = gpt ? DPAR_MODEL_STACK_MEGATRON : DPAR_MODEL_STACK_MEGATRON_CORE;
    }
    w->stack = dpari_age(w)->stack;
    w->attention = m->attention;
    if (m->attention <= 0) {
        w->attention = gpt && w->stack == DPAR_MODEL_STACK_MEGATRON ? DPAR_MODEL_ATTENTION_UNFUSED
                                                                    : DPAR_MODEL_ATTENTION_FLASH;
    }
    w->loss = m->loss > 0 ? m->loss : dpari_loss_of(w);
    w->causal = m->causal > 0 || (m->causal == 0 && (m->family == DPAR_MODEL_FAMILY_GPT ||
                                                     m->family == DPAR_MODEL_FAMILY_LLAMA));
    w->tokens = dpari_model_samples_tokens(m);
    w->hidden = m->hidden;
    if (transformer) { /* others keep the zeros */
        w->heads = m->heads;
        w->kv_heads = m->kv_lora > 0 ? m->heads : m->kv_heads;
    }
    if (transformer && (m->head == DPAR_MODEL_HEAD_VOCAB || m->head == DPAR_MODEL_HEAD_MASKED)) {
        w->vocab = m->vocab;
    }
    dpari_copy_text(w->note, sizeof(w->note), m->note, sizeof(m->note));
    w->experts = m->experts;
    w->topk = m->topk;
    w->expert_groups = m->expert_groups;
    w->topk_groups = m->topk_groups;
    w->capacity = m->capacity >= 1.0 ? m->capacity : 1.0;
    w->trains = m->family != DPAR_MODEL_FAMILY_GRID && !m->inference;
    w->time_steps = m->family == DPAR_MODEL_FAMILY_GRID ? 1 : 0;
    if (m->family == DPAR_MODEL_FAMILY_GRID) {
        w->dims = m->dims;
        w->extent[0] = m->extent[0];
        w->extent[1] = m->extent[1];
        w->extent[2] = m->extent[2];
    } else if (!transformer) {
        w->dims = 2;
        w->extent[0] = m->image[0];
        w->extent[1] = m->image[1];
        w->extent[2] = 1;
    }
}

/* Returns the number of blocks whose matrix products are as much work as those of the head. */
static DPARI_COLD int32_t dpari_head_blocks(const dpar_workload *w)
{
    double head = 0.0, block = 0.0;
    int32_t i, k;
    for (i = 0; i < w->layers; i++) {
        double *to = w->layer[i].kind == DPAR_LAYER_HEAD ? &head : &block;
        for (k = 0; k < w->layer[i].ops; k++) {
            const dpari_layer_op *op = &w->op[w->layer[i].first + k];
            if (op->kind == DPARI_OP_GEMM && w->layer[i].kind != DPAR_LAYER_EMBED) {
                *to += op->n * op->k * op->copies * w->layer[i].count;
            }
        }
    }
    return block > 0.0 ? (int32_t)(head * w->blocks / block + 0.5) : 0;
}

/* Numbers the blocks and sums blocks, parameters and FLOP over the layers. */
static void dpari_workload_totals(dpar_workload *w)
{
    int32_t i, k;
    w->blocks = w->shard_units = 0;
    w->params = w->model_flops_full = w->model_flops_causal = 0.0;
    for (i = 0; i < w->layers; i++) {
        dpar_workload_layer *l = &w->layer[i];
        double plain = 0.0, attention = 0.0;
        if (l->span == 0 && l->kind == DPAR_LAYER_BLOCK) {
            l->from = w->blocks;
            l->span = l->count;
        }
        for (k = 0; k < l->ops; k++) {
            const dpari_layer_op *op = &w->op[l->first + k];
            double flop = 2.0 * op->n * op->k * op->copies * l->tokens * l->count;
            if (op->kind == DPARI_OP_ATTENTION) { /* k of causal attention is half of the keys */
                attention += w->causal ? 2.0 * flop : flop;
            } else if (op->kind == DPARI_OP_SCORES) {
                attention += flop;
            } else {
                plain += flop;
            }
        }
        w->params += dpari_layer_params(w, i) * l->count;
        w->model_flops_full += plain + attention;
        w->model_flops_causal += plain + (w->causal ? 0.5 : 1.0) * attention;
        w->blocks += l->kind == DPAR_LAYER_BLOCK ? l->count : 0;
        w->shard_units += l->count;
    }
    if (dpari_age(w)->by_work) {
        w->head_blocks = dpari_head_blocks(w);
    }
    if (w->trains) { /* the backward has twice the FLOP of the forward */
        w->model_flops_full *= 3.0;
        w->model_flops_causal *= 3.0;
    }
}

DPAR_API DPARI_COLD dpar_status dpar_workload_init(dpar_workload *w, const dpar_model *model,
                                                   int32_t seq, dpar_why *why)
{
    dpar_model m = *model;
    dpar_status st = dpari_model_complete(&m, seq, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(w, sizeof(*w));
    dpari_workload_head(w, &m);
    switch (m.family) {
    case DPAR_MODEL_FAMILY_GPT:
    case DPAR_MODEL_FAMILY_LLAMA: dpari_build_decoder(w, &m, m.seq); break;
    case DPAR_MODEL_FAMILY_VIT:
    case DPAR_MODEL_FAMILY_DIT: dpari_build_vision(w, &m); break;
    case DPAR_MODEL_FAMILY_T5: dpari_build_t5(w, &m, m.seq); break;
    case DPAR_MODEL_FAMILY_RESNET: dpari_build_resnet(w, &m); break;
    case DPAR_MODEL_FAMILY_UNET: dpari_build_unet(w, &m); break;
    default: dpari_build_grid(w, &m); break;
    }
    dpari_workload_totals(w);
    return dpari_workload_check(w, why);
}
