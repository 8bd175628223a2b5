/* SPDX-License-Identifier: MIT-0 */
#include "workload.h"

#include "inner.h"

/* ---- sums over the list ---------------------------------------------------------------- */

DPARI_API const char *dpari_stack_name(int32_t stack)
{
    static const char name[DPAR_STACKS][12] = {"?", "megatron", "core", "torch", "compiled"};
    return stack > 0 && stack < DPAR_STACKS ? name[stack] : "?";
}

DPARI_API const char *dpari_attention_name(int32_t attention)
{
    static const char name[DPAR_ATTENTIONS][12] = {"?", "unfused", "flash1", "flash"};
    return attention > 0 && attention < DPAR_ATTENTIONS ? name[attention] : "?";
}

DPARI_API const char *dpari_loss_name(int32_t loss)
{
    static const char name[DPAR_LOSSES][12] = {"?",       "eager",   "compiled", "fused",
                                               "inplace", "chunked", "parallel"};
    return loss > 0 && loss < DPAR_LOSSES ? name[loss] : "?";
}

DPARI_API double dpari_layer_params(const dpar_workload *w, int32_t layer)
{
    double sum = 0.0;
    int32_t i;
    for (i = 0; layer >= 0 && layer < w->layers && i < w->layer[layer].ops; i++) {
        sum += w->op[w->layer[layer].first + i].params;
    }
    return sum;
}

DPARI_API double dpari_layer_saved(const dpar_workload *w, int32_t layer, int32_t recompute)
{
    double sum = 0.0;
    int32_t i;
    for (i = 0; layer >= 0 && layer < w->layers && i < w->layer[layer].ops; i++) {
        const dpar_op *op = &w->op[w->layer[layer].first + i];
        int32_t drop = recompute == DPAR_RECOMPUTE_SELECTIVE && op->keep == DPAR_KEEP_SELECTIVE;
        sum += drop ? 0.0 : op->save;
        if (recompute == DPAR_RECOMPUTE_FULL) { /* as wide as what it gives */
            return w->layer[layer].width_bytes;
        }
    }
    return sum;
}

DPARI_API int32_t dpari_workload_largest(const dpar_workload *w)
{
    int32_t i, best = 0;
    for (i = 1; i < w->layers; i++) {
        if (dpari_layer_params(w, i) > dpari_layer_params(w, best)) {
            best = i;
        }
    }
    return best;
}

DPARI_API DPARI_COLD dpar_status dpari_workload_check(const dpar_workload *w, dpar_why *why)
{
    int32_t i;
    double params = 0.0;
    if (w->layers < 1 || w->layers > DPAR_MAX_LAYERS || w->ops < 1 || w->ops > DPAR_MAX_OPS) {
        return dpari_say(DPAR_E_ARG, why, "a workload needs 1 to 24 layer classes, this has #",
                         w->layers, 0, 0, 0);
    }
    for (i = 0; i < w->layers; i++) {
        const dpar_layer *l = &w->layer[i];
        if (l->count < 1 || l->ops < 1 || l->first < 0 || l->first + l->ops > w->ops ||
            !(l->tokens > 0.0) || !dpari_finite(l->tokens)) {
            return dpari_say(DPAR_E_ARG, why, "layer class # is empty: count=#, operations=#", i,
                             l->count, l->ops, 0);
        }
        params += dpari_layer_params(w, i) * l->count;
    }
    if (!(params >= 0.0) || params > 4e18) {
        return dpari_say(DPAR_E_RANGE, why, "the model has more than 4e18 parameters", 0, 0, 0, 0);
    }
    return DPAR_OK;
}

/* ---- building ---------------------------------------------------------------------------- */

static dpar_layer *dpari_add_layer(dpar_workload *w, const char *name, int32_t kind, int32_t count,
                                   double tokens, double width_bytes)
{
    dpar_layer *l;
    if (w->layers >= DPAR_MAX_LAYERS || count < 1) {
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

/* Appends an operation to the newest layer; a full table is caught by dpari_workload_check. */
static dpar_op *dpari_add_op(dpar_workload *w, int kind, int cut, int kernels)
{
    dpar_op *op = &w->op[w->ops < DPAR_MAX_OPS ? w->ops++ : DPAR_MAX_OPS - 1];
    dpari_zero(op, sizeof(*op));
    op->kind = (int8_t)kind;
    op->cut = (int8_t)cut;
    op->save_cut = (int8_t)(cut == DPAR_CUT_COLUMN          ? DPAR_CUT_SEQUENCE
                            : cut == DPAR_CUT_ROW           ? DPAR_CUT_TENSOR
                            : cut == DPAR_CUT_EXPERT_COLUMN ? DPAR_CUT_EXPERT
                            : cut == DPAR_CUT_EXPERT_ROW    ? DPAR_CUT_EXPERT_TENSOR
                                                            : cut);
    op->kernels = (int16_t)kernels;
    op->copies = 1.0;
    if (w->layers > 0) {
        w->layer[w->layers - 1].ops = w->ops - w->layer[w->layers - 1].first;
    }
    return op;
}

/* [tokens, k] x [k, n]; its input is kept for the weight gradient. */
static dpar_op *dpari_add_gemm(dpar_workload *w, int cut, double n, double k, int biases)
{
    dpar_op *op = dpari_add_op(w, DPAR_OP_GEMM, cut, biases ? 2 : 1);
    op->n = n;
    op->k = k;
    op->params = n * k + (biases ? n : 0.0);
    op->save = k * w->element;
    if (cut == DPAR_CUT_COLUMN && w->stack >= DPAR_STACK_TORCH) {
        op->save_cut = DPAR_CUT_NONE; /* DTensor keeps it gathered */
    }
    return op;
}

static dpar_op *dpari_add_stream(dpar_workload *w, int cut, int kernels, double touch,
                                 double touch_back, double save)
{
    dpar_op *op = dpari_add_op(w, DPAR_OP_STREAM, cut, kernels);
    op->touch = touch;
    op->touch_back = touch_back;
    op->save = save;
    return op;
}

/* What the software does to the element-wise work of a layer. */
typedef struct dpari_style {
    double e;      /* bytes of an element */
    double norm;   /* bytes a channel that a norm keeps: its input; an RMSNorm in eager steps keeps
                    * an fp32 copy of it and the 16-bit one before the weight (counted: 6) */
    double passes; /* element-wise traffic over that of fused kernels */
    int32_t fused; /* activation and its product in one kernel, rotary without copies */
    int32_t drop;  /* dropout after attention and after each residual branch */
    int32_t biases;
    int32_t gated;
    int32_t rms;
    int32_t repeat; /* keys and values are repeated for each query's head, and kept so */
} dpari_style;

static dpari_style dpari_style_of(const dpar_workload *w, const dpar_model *m)
{
    dpari_style s;
    int eager = w->stack == DPAR_STACK_TORCH;
    s.e = w->element;
    s.passes = eager ? 1.6 : 1.0;
    s.fused = !eager;
    s.drop = m->family == DPAR_FAMILY_GPT && w->stack == DPAR_STACK_MEGATRON;
    s.biases = m->biases > 0 ||
               (m->family != DPAR_FAMILY_LLAMA && m->family != DPAR_FAMILY_T5 && m->biases == 0);
    s.gated = m->family == DPAR_FAMILY_LLAMA;
    s.rms = m->family == DPAR_FAMILY_LLAMA || m->family == DPAR_FAMILY_T5;
    s.norm = eager && s.rms ? s.e + 4.0 : s.e;
    s.repeat = w->stack >= DPAR_STACK_TORCH;
    return s;
}

static void dpari_add_norm(dpar_workload *w, const dpari_style *s, double h, int keep)
{
    dpar_op *op =
        dpari_add_stream(w, DPAR_CUT_SEQUENCE, s->fused ? 1 : 4, 2.0 * s->e * h * s->passes,
                         3.0 * s->e * h * s->passes, s->norm * h);
    op->params = s->rms ? h : s->biases ? 2.0 * h : h;
    op->keep = (int8_t)keep;
}

/* Residual addition, with dropout and bias where the model has them. */
static void dpari_add_residual(dpar_workload *w, const dpari_style *s, double h)
{
    double mask = s->drop ? 1.0 : 0.0;
    dpari_add_stream(w, DPAR_CUT_SEQUENCE, s->drop && !s->fused ? 3 : 1, (3.0 * s->e + mask) * h,
                     (2.0 * s->e * (s->drop ? 1.0 : 0.5) + mask) * h, mask * h);
}

/* Unfused scores: two batched products and the traffic of a [heads, s, s] tensor between them.
 * Bytes an element of it: softmax 2+2, dropout 2+2+1 forward; 5 and 6 backward; kept 2 (softmax
 * out), with dropout also 1 (mask) and 2 (its output): Korthikanti's 5 a s. What the products
 * themselves read and write is priced with them. */
static void dpari_add_scores(dpar_workload *w, const dpari_style *s, double heads, double width,
                             double keys, double kept)
{
    double cells = heads * keys, e = s->e;
    dpar_op *op = dpari_add_op(w, DPAR_OP_SCORES, DPAR_CUT_TENSOR, 6);
    op->n = heads * width;
    op->k = keys;
    op->heads = (int16_t)(heads < 30000.0 ? heads : 30000.0);
    op->save = kept;
    op = dpari_add_stream(
        w, DPAR_CUT_TENSOR, s->drop ? 2 : 1, cells * (s->drop ? 4.0 * e + 1.0 : 2.0 * e),
        cells * (s->drop ? 5.0 * e + 1.0 : 3.0 * e), cells * (s->drop ? 2.0 * e + 1.0 : e));
    op->keep = DPAR_KEEP_SELECTIVE;
}

/* Attention proper: q, k, v -> context. width = d_qk + d_v of a head. */
static void dpari_add_attention(dpar_workload *w, const dpari_style *s, double heads, double width,
                                double keys, int causal, double kept)
{
    dpar_op *op;
    if (w->attention == DPAR_ATTENTION_UNFUSED) {
        dpari_add_scores(w, s, heads, width, keys, kept);
        return;
    }
    op = dpari_add_op(w, DPAR_OP_ATTENTION, DPAR_CUT_TENSOR, s->fused ? 2 : 4);
    op->n = heads * width;
    op->k = causal ? 0.5 * keys : keys;
    op->heads = (int16_t)(heads < 30000.0 ? heads : 30000.0);
    op->save = kept + 4.0 * heads; /* the softmax statistics, fp32 a head */
}

/* Multi-head or grouped-query attention: norm, QKV, attention, projection, residual. */
static void dpari_add_mha(dpar_workload *w, const dpar_model *m, const dpari_style *s, double keys,
                          int causal, int cross)
{
    double h = m->hidden, d = m->head_width, q = m->heads * d, kv = 2.0 * m->kv_heads * d;
    double rotary = s->gated ? (s->fused ? 1.0 : 2.0) : 0.0;
    dpar_layer *l = &w->layer[w->layers - 1];
    dpari_add_norm(w, s, h, cross ? DPAR_KEEP_ALWAYS : DPAR_KEEP_INPUT);
    dpari_add_gemm(w, DPAR_CUT_COLUMN, q + kv, h, s->biases)->keep = DPAR_KEEP_NORM;
    /* bias, split into heads, transposes, rotary: read and write QKV once, eager twice */
    dpari_add_stream(w, DPAR_CUT_TENSOR, s->fused ? 2 : 6,
                     2.0 * s->e * (q + kv) * (1.0 + 0.5 * rotary),
                     2.0 * s->e * (q + kv) * (1.0 + 0.5 * rotary), 0.0);
    dpari_add_attention(w, s, m->heads, 2.0 * d, keys, causal,
                        s->e * (s->repeat ? 3.0 * q : q + kv));
    dpari_add_stream(w, DPAR_CUT_TENSOR, 1, 2.0 * s->e * q, 2.0 * s->e * q, 0.0);
    dpari_add_gemm(w, DPAR_CUT_ROW, h, q, s->biases);
    dpari_add_residual(w, s, h);
    l->tp_regions++;
    l->cp_kv_bytes += s->e * kv;
    l->cp_qo_bytes += 2.0 * s->e * q;
    l->alternate += s->e * (2.0 * q + 0.5 * kv) + 4.0 * m->heads; /* q, v, attention */
}

/* Multi-head latent attention (DeepSeek-V2): low-rank queries, keys and values. */
static void dpari_add_mla(dpar_workload *w, const dpar_model *m, const dpari_style *s, double keys)
{
    double h = m->hidden, a = m->heads, rope = m->rope_width, e = s->e;
    double qk = m->qk_width, v = m->v_width, q = a * (qk + rope), kv = a * (qk + v);
    dpar_layer *l = &w->layer[w->layers - 1];
    dpar_op *op;
    dpari_add_norm(w, s, h, DPAR_KEEP_INPUT);
    if (m->q_lora > 0) {
        dpari_add_gemm(w, DPAR_CUT_NONE, m->q_lora, h, 0);
        dpari_add_norm(w, s, m->q_lora, DPAR_KEEP_ALWAYS);
        dpari_add_gemm(w, DPAR_CUT_COLUMN, q, m->q_lora, 0)->keep = DPAR_KEEP_NORM;
    } else {
        dpari_add_gemm(w, DPAR_CUT_COLUMN, q, h, 0)->keep = DPAR_KEEP_NORM;
    }
    op = dpari_add_gemm(w, DPAR_CUT_NONE, m->kv_lora + rope, h, 0);
    op->save = 0.0; /* the same input as the query's */
    dpari_add_norm(w, s, m->kv_lora, DPAR_KEEP_ALWAYS);
    dpari_add_gemm(w, DPAR_CUT_COLUMN, kv, m->kv_lora, 0)->keep = DPAR_KEEP_NORM;
    /* keys are assembled from their latent part and one rotary part: concatenated for each head */
    dpari_add_stream(w, DPAR_CUT_TENSOR, 4, 2.0 * e * (2.0 * q + a * v),
                     2.0 * e * (2.0 * q + a * v), 0.0);
    dpari_add_attention(w, s, a, qk + rope + v, keys, 1, e * (2.0 * q + a * v));
    dpari_add_gemm(w, DPAR_CUT_ROW, h, a * v, 0);
    dpari_add_residual(w, s, h);
    l->tp_regions++;
    l->cp_kv_bytes += e * (q + a * v);
    l->cp_qo_bytes += e * (q + a * v);
    l->alternate += e * (m->q_lora + kv + 2.0 * a * v);
}

/* Norm, up (and gate), activation, down, residual. */
static void dpari_add_mlp(dpar_workload *w, const dpar_model *m, const dpari_style *s, double f)
{
    double h = m->hidden, up = s->gated ? 2.0 * f : f, e = s->e;
    dpar_op *op;
    dpari_add_norm(w, s, h, DPAR_KEEP_ALWAYS);
    dpari_add_gemm(w, DPAR_CUT_COLUMN, up, h, s->biases)->keep = DPAR_KEEP_NORM;
    op = dpari_add_stream(w, DPAR_CUT_TENSOR,
                          s->fused   ? 1
                          : s->gated ? 2
                                     : 2,
                          e * (up + f) * s->passes, e * (2.0 * up + f) * s->passes,
                          e * (up + (s->gated && !s->fused ? f : 0.0)));
    op->transient = e * up;
    dpari_add_gemm(w, DPAR_CUT_ROW, h, f, s->biases)->keep = DPAR_KEEP_ACTIVATION;
    dpari_add_residual(w, s, h);
    w->layer[w->layers - 1].alternate += e * (f + h);
    w->layer[w->layers - 1].tp_regions++;
}

/* Router, permutation, grouped products over the experts of a token, combination; shared experts
 * beside them. */
static void dpari_add_moe(dpar_workload *w, const dpar_model *m, const dpari_style *s)
{
    double h = m->hidden, f = m->expert_ffn, t = m->topk, e = s->e, up = 2.0 * f;
    dpar_layer *l = &w->layer[w->layers - 1];
    dpar_op *op;
    dpari_add_norm(w, s, h, DPAR_KEEP_ALWAYS);
    op = dpari_add_gemm(w, DPAR_CUT_SEQUENCE, m->experts, h, 0);
    op->touch = op->touch_back = 40.0 * m->experts; /* fp32 scores, softmax, top-k, masks */
    /* gathers and scatters of rows run at about half of the streaming rate (measured): twice */
    dpari_add_stream(w, DPAR_CUT_SEQUENCE, 6, 4.0 * e * t * h, 4.0 * e * t * h, 8.0 * t);
    op = dpari_add_gemm(w, DPAR_CUT_EXPERT_COLUMN, up, h, 0);
    op->kind = DPAR_OP_EXPERTS;
    op->copies = t;
    op->params = m->experts * up * h;
    op->save = e * t * h;
    op = dpari_add_stream(w, DPAR_CUT_EXPERT_TENSOR, 2, e * t * (up + f), e * t * (2.0 * up + f),
                          e * t * up);
    op->transient = e * t * up;
    op->keep = DPAR_KEEP_EXPERTS;
    op = dpari_add_gemm(w, DPAR_CUT_EXPERT_ROW, h, f, 0);
    op->keep = DPAR_KEEP_ACTIVATION;
    op->kind = DPAR_OP_EXPERTS;
    op->copies = t;
    op->params = m->experts * f * h;
    op->save = e * t * f;
    /* what experts gave is kept where the router's weights are multiplied in here, and not before
     * (Megatron-Core) */
    dpari_add_stream(w, DPAR_CUT_SEQUENCE, 3, 4.0 * e * t * h, 4.0 * e * t * h,
                     w->stack >= DPAR_STACK_TORCH ? e * t * h : 0.0);
    if (m->shared_ffn > 0) {
        op = dpari_add_gemm(w, DPAR_CUT_COLUMN, 2.0 * m->shared_ffn, h, 0);
        op->save = 0.0;
        dpari_add_stream(w, DPAR_CUT_TENSOR, 1, 3.0 * e * m->shared_ffn, 5.0 * e * m->shared_ffn,
                         2.0 * e * m->shared_ffn);
        dpari_add_gemm(w, DPAR_CUT_ROW, h, m->shared_ffn, 0)->keep = DPAR_KEEP_ACTIVATION;
    }
    dpari_add_residual(w, s, h);
    l->tp_regions += m->shared_ffn > 0; /* routed tokens travel by ep_bytes, over ep and etp */
    l->ep_bytes += e * t * h;
}

/* Token embedding, and learned positions where the model has them. */
static void dpari_add_embedding(dpar_workload *w, const dpar_model *m, const dpari_style *s,
                                double tokens, double positions)
{
    double h = m->hidden;
    dpar_op *op;
    dpar_layer *l = dpari_add_layer(w, "embed", DPAR_LAYER_EMBED, 1, tokens, s->e * h);
    if (l == NULL) {
        return;
    }
    op = dpari_add_stream(w, DPAR_CUT_TENSOR, 3, 2.0 * s->e * h, 3.0 * s->e * h, 0.0);
    op->params = (double)m->vocab * h;
    op = dpari_add_stream(w, DPAR_CUT_SEQUENCE, s->drop ? 2 : 1, (s->drop ? 3.0 : 0.0) * s->e * h,
                          (s->drop ? 2.0 : 0.0) * s->e * h, s->drop ? h : 0.0);
    op->params = positions * h;
    l->tp_regions = 1;
}

/* Final norm, logits, loss. Traffic of the loss, bytes a logit: fp32 copy, maximum, subtraction,
 * exponential, sum and back: 30 + 14 unfused; 4 + 4 in one fused kernel. */
static void dpari_add_head(dpar_workload *w, const dpar_model *m, const dpari_style *s,
                           double tokens)
{
    double h = m->hidden, v = m->vocab;
    int fused = w->stack == DPAR_STACK_CORE || w->stack == DPAR_STACK_COMPILED;
    static const float bytes[DPAR_LOSSES] = {0, 14,    6, 4,
                                             2, 1.75f, 10}; /* of a logit, alive at once */
    dpar_op *op;
    dpar_layer *l = dpari_add_layer(w, "head", DPAR_LAYER_HEAD, 1, tokens, s->e * h);
    if (l == NULL) {
        return;
    }
    dpari_add_norm(w, s, h, DPAR_KEEP_ALWAYS);
    op = dpari_add_gemm(w, DPAR_CUT_COLUMN, v, h, 0);
    op->params = m->tied ? 0.0 : v * h;
    op = dpari_add_stream(w, DPAR_CUT_TENSOR, fused ? 2 : 8, v * (fused ? 6.0 : 26.0),
                          v * (fused ? 4.0 : 14.0), 0.0);
    op->transient = v * (double)bytes[w->loss];
    l->tp_regions = 1;
}

static void dpari_build_decoder(dpar_workload *w, const dpar_model *m, double seq)
{
    dpari_style s = dpari_style_of(w, m);
    int32_t dense = m->experts > 0 ? m->dense_layers : m->layers, moe = m->layers - dense;
    int32_t pass;
    double keys = seq;
    dpari_add_embedding(w, m, &s, seq,
                        m->family == DPAR_FAMILY_GPT && !m->rotary ? (double)m->seq : 0.0);
    for (pass = 0; pass < 2; pass++) {
        if (dpari_add_layer(w, pass ? "moe" : "block", DPAR_LAYER_BLOCK, pass ? moe : dense, seq,
                            s.e * m->hidden) == NULL) {
            continue;
        }
        if (m->kv_lora > 0) {
            dpari_add_mla(w, m, &s, keys);
        } else {
            dpari_add_mha(w, m, &s, keys, 1, 0);
        }
        if (pass) {
            dpari_add_moe(w, m, &s);
        } else {
            dpari_add_mlp(w, m, &s, m->ffn);
        }
    }
    dpari_add_head(w, m, &s, seq);
}

/* ViT and DiT: patches in, blocks that see every token, a light head. */
static void dpari_build_vision(dpar_workload *w, const dpar_model *m)
{
    dpari_style s = dpari_style_of(w, m);
    double h = m->hidden, tokens = w->tokens, patch = (double)m->patch * m->patch * m->channels;
    dpar_layer *l = dpari_add_layer(w, "patch", DPAR_LAYER_EMBED, 1, tokens, s.e * h);
    dpar_op *op;
    dpari_add_gemm(w, DPAR_CUT_NONE, h, patch, 1)->params += (tokens + 1.0) * h;
    l->tp_regions = 0;
    l = dpari_add_layer(w, "block", DPAR_LAYER_BLOCK, m->layers, tokens, s.e * h);
    dpari_add_mha(w, m, &s, tokens, 0, 0);
    dpari_add_mlp(w, m, &s, m->ffn);
    if (m->family == DPAR_FAMILY_DIT) {
        /* shift, scale and gate of both branches from the condition: 6 h wide, once a sample */
        op = dpari_add_stream(w, DPAR_CUT_TENSOR, 8, 8.0 * s.e * h, 12.0 * s.e * h, 4.0 * s.e * h);
        op->params = 6.0 * h * h + 6.0 * h;
    }
    dpari_add_layer(w, "head", DPAR_LAYER_HEAD, 1, m->family == DPAR_FAMILY_DIT ? tokens : 1.0,
                    s.e * h);
    dpari_add_norm(w, &s, h, DPAR_KEEP_ALWAYS);
    dpari_add_gemm(w, DPAR_CUT_NONE, m->out_channels > 0 ? m->out_channels : 1000, h, 1);
}

static void dpari_build_t5(dpar_workload *w, const dpar_model *m, double seq)
{
    dpari_style s = dpari_style_of(w, m);
    int32_t decoders = m->decoder_layers > 0 ? m->decoder_layers : m->layers;
    dpari_add_embedding(w, m, &s, seq, 0.0);
    dpari_add_layer(w, "encoder", DPAR_LAYER_BLOCK, m->layers, seq, s.e * m->hidden);
    dpari_add_mha(w, m, &s, seq, 0, 0);
    dpari_add_mlp(w, m, &s, m->ffn);
    dpari_add_layer(w, "decoder", DPAR_LAYER_BLOCK, decoders, seq, s.e * m->hidden);
    dpari_add_mha(w, m, &s, seq, 1, 0);
    dpari_add_mha(w, m, &s, seq, 0, 1);
    dpari_add_mlp(w, m, &s, m->ffn);
    dpari_add_head(w, m, &s, seq);
}

/* A convolution with its norm and activation. taps = kernel area; grow = input pixels an output
 * pixel (stride 2: 4). Kept: the input, and the norm's input (the activation is the next input). */
static void dpari_add_conv(dpar_workload *w, double out, double in, double taps, double grow,
                           int reach)
{
    double e = w->element;
    dpar_layer *l = &w->layer[w->layers - 1];
    dpar_op *op = dpari_add_op(w, DPAR_OP_CONV, DPAR_CUT_COLUMN, 1);
    op->save_cut = DPAR_CUT_NONE;
    op->n = out;
    op->k = in * taps;
    op->params = out * in * taps;
    op->touch = e * in * grow;
    op->touch_back = 2.0 * e * in * grow;
    op->save = e * in * grow;
    /* an eager framework keeps the norm's output too, which is the activation's input */
    op = dpari_add_stream(w, DPAR_CUT_NONE, 2, 4.0 * e * out, 6.0 * e * out,
                          (w->stack == DPAR_STACK_TORCH ? 2.0 : 1.0) * e * out);
    op->params = 2.0 * out;
    op->transient = e * out;
    if (reach > 0) {
        l->reach_bytes += reach * in * e;
        l->reach = (int32_t)dpari_most(l->reach, reach);
        l->exchanges++;
    }
}

/* Bottleneck ResNet: 3, 4, 6, 3 blocks (ResNet-50) scaled to m->layers blocks of 4 stages. */
static void dpari_build_resnet(dpar_workload *w, const dpar_model *m)
{
    static const int8_t depth[4] = {3, 4, 6, 3};
    double side = (double)m->image[0] / 4.0, cells = side * ((double)m->image[1] / 4.0);
    double width = m->hidden, in = m->hidden;
    int32_t stage, part;
    dpar_layer *l =
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
    dpari_add_gemm(w, DPAR_CUT_NONE, m->out_channels > 0 ? m->out_channels : 1000, in, 1);
}

static double dpari_level_width(const dpar_model *m, int32_t level)
{
    double c = m->hidden;
    while (level-- > 0) {
        c *= 2.0;
    }
    return c;
}

/* One half of a U-Net level: `blocks` pairs of convolutions; the first one changes the width. */
static void dpari_add_level(dpar_workload *w, const dpar_model *m, const char *name, int32_t level,
                            double in)
{
    double c = dpari_level_width(m, level), shrink = dpari_level_width(m, level) / m->hidden;
    double cells = (double)m->image[0] * m->image[1] / (shrink * shrink);
    double taps = (double)m->kernel * m->kernel;
    int32_t i, blocks = m->blocks_per_level;
    dpar_layer *l = dpari_add_layer(w, name, DPAR_LAYER_BLOCK, 1, cells, w->element * c);
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
        /* the skip and the upsampled coarse level are concatenated */
        dpari_add_level(w, m, "decode", level, 2.0 * dpari_level_width(m, level));
        /* the up-convolution that brings the coarse level here: 2 x 2, no halo */
        dpari_add_conv(w, dpari_level_width(m, level), dpari_level_width(m, level + 1), 1.0, 0.25,
                       0);
    }
    dpari_add_layer(w, "head", DPAR_LAYER_HEAD, 1, (double)m->image[0] * m->image[1],
                    out * w->element);
    dpari_add_conv(w, out, m->hidden, 1.0, 1.0, 0);
}

/* An explicit stencil code: one layer, one pass over the cells a time step. */
static void dpari_build_grid(dpar_workload *w, const dpar_model *m)
{
    double e = w->element,
           cells = (double)m->extent[0] * (double)m->extent[1] * (double)m->extent[2];
    dpar_layer *l = dpari_add_layer(w, "cells", DPAR_LAYER_BLOCK, 1, cells, e * m->fields);
    dpar_op *op =
        dpari_add_stream(w, DPAR_CUT_NONE, m->fields, m->bytes_per_cell, 0.0, 2.0 * e * m->fields);
    op->keep = DPAR_KEEP_INPUT;
    op->n = 0.5 * m->flops_per_cell;
    op->k = 1.0;
    l->reach = m->halo;
    l->reach_bytes = (double)m->halo * m->fields * e;
    l->exchanges = 1;
}

/* ---- from model to workload --------------------------------------------------------------- */

static int dpari_is_transformer(int32_t family)
{
    return family <= DPAR_FAMILY_T5;
}

static dpar_status dpari_model_widths(dpar_model *m, dpar_why *why)
{
    if (m->layers < 1 || m->hidden < 1 || m->heads < 1) {
        return dpari_say(DPAR_E_ARG, why,
                         "a transformer needs layers, hidden and heads of at least 1: layers=#, "
                         "hidden=#, heads=#",
                         m->layers, m->hidden, m->heads, 0);
    }
    if (m->head_width < 1 && m->hidden % m->heads != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "heads=# does not divide hidden=# (give head_width)",
                         m->heads, m->hidden, 0, 0);
    }
    m->head_width = m->head_width > 0 ? m->head_width : m->hidden / m->heads;
    m->kv_heads = m->kv_heads > 0 ? m->kv_heads : m->heads;
    if (m->kv_heads > m->heads || m->heads % m->kv_heads != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "kv_heads=# does not divide heads=#", m->kv_heads,
                         m->heads, 0, 0);
    }
    if (m->ffn < 1) {
        if (m->hidden > INT32_MAX / 4) {
            return dpari_say(DPAR_E_RANGE, why, "hidden=# is too large", m->hidden, 0, 0, 0);
        }
        m->ffn = 4 * m->hidden;
    }
    return DPAR_OK;
}

static dpar_status dpari_model_tokens(dpar_model *m, int32_t seq, dpar_why *why)
{
    if (m->family == DPAR_FAMILY_VIT || m->family == DPAR_FAMILY_DIT) {
        if (m->patch < 1 || m->image[0] < m->patch || m->image[1] < m->patch || m->channels < 1) {
            return dpari_say(DPAR_E_ARG, why,
                             "image=#x# needs a patch of at least 1 that fits in it, and channels: "
                             "patch=#, channels=#",
                             m->image[0], m->image[1], m->patch, m->channels);
        }
        return DPAR_OK;
    }
    m->seq = seq > 0 ? seq : m->seq;
    if (m->seq < 1 || m->vocab < 1) {
        return dpari_say(DPAR_E_ARG, why, "seq and vocab must be at least 1: seq=#, vocab=#",
                         m->seq, m->vocab, 0, 0);
    }
    return DPAR_OK;
}

static dpar_status dpari_model_experts(dpar_model *m, dpar_why *why)
{
    if (m->experts < 0 || (m->experts > 0 && (m->topk < 1 || m->topk > m->experts))) {
        return dpari_say(DPAR_E_ARG, why, "topk=# must be 1 to experts=#", m->topk, m->experts, 0,
                         0);
    }
    if (m->experts > 0 && m->expert_ffn < 1) {
        m->expert_ffn = m->ffn;
    }
    if (m->dense_layers > m->layers) {
        return dpari_say(DPAR_E_ARG, why, "dense_layers=# of layers=#", m->dense_layers, m->layers,
                         0, 0);
    }
    if (m->kv_lora > 0 && (m->qk_width < 1 || m->v_width < 1)) {
        return dpari_say(DPAR_E_ARG, why,
                         "latent attention (kv_lora=#) needs qk_width and v_width: #, #",
                         m->kv_lora, m->qk_width, m->v_width, 0);
    }
    if (m->capacity < 0.0 || !dpari_finite(m->capacity)) {
        return dpari_say(DPAR_E_ARG, why, "capacity must be a number of at least 1", 0, 0, 0, 0);
    }
    return DPAR_OK;
}

static dpar_status dpari_model_convs(dpar_model *m, dpar_why *why)
{
    int32_t shrink = m->family == DPAR_FAMILY_RESNET ? 32 : 1;
    m->kernel = m->kernel > 0 ? m->kernel : 3;
    m->blocks_per_level = m->blocks_per_level > 0 ? m->blocks_per_level : 1;
    if (m->family == DPAR_FAMILY_UNET) {
        if (m->levels < 1 || m->levels > 8) {
            return dpari_say(DPAR_E_ARG, why, "levels=# must be 1 to 8", m->levels, 0, 0, 0);
        }
        shrink = (int32_t)1 << (m->levels - 1);
    }
    if (m->image[0] < shrink || m->image[1] < shrink || m->channels < 1 || m->hidden < 1) {
        return dpari_say(DPAR_E_ARG, why,
                         "a conv net needs hidden=#, channels=# of at least 1 and an image of at "
                         "least # cells a side",
                         m->hidden, m->channels, shrink, 0);
    }
    return DPAR_OK;
}

static dpar_status dpari_model_grid(dpar_model *m, dpar_why *why)
{
    int64_t cells = 1;
    int32_t i;
    for (i = 0; i < 3; i++) {
        m->extent[i] = i < m->dims ? m->extent[i] : 1;
        if (m->extent[i] < 1 || !dpari_mul(cells, m->extent[i], &cells)) {
            return dpari_say(DPAR_E_ARG, why, "grid axis # has # cells", i, m->extent[i], 0, 0);
        }
    }
    m->fields = m->fields > 0 ? m->fields : 1;
    m->halo = m->halo > 0 ? m->halo : 1;
    m->element = m->element > 0 ? m->element : 4;
    for (i = 0; i < m->dims && m->halo > m->extent[i]; i++) {
    }
    if (m->dims > 0 && i == m->dims) {
        return dpari_say(DPAR_E_ARG, why, "halo=# is wider than the grid: # x # x # cells", m->halo,
                         m->extent[0], m->extent[1], m->extent[2]);
    }
    if (m->dims < 1 || m->dims > 3) {
        return dpari_say(DPAR_E_ARG, why, "a grid has 1 to 3 axes, not #", m->dims, 0, 0, 0);
    }
    if (!(m->flops_per_cell >= 0.0 && m->bytes_per_cell >= 0.0) ||
        !dpari_finite(m->flops_per_cell) || !dpari_finite(m->bytes_per_cell)) {
        return dpari_say(DPAR_E_ARG, why, "flops and bytes a cell must be numbers of at least 0", 0,
                         0, 0, 0);
    }
    if (m->bytes_per_cell <= 0.0) { /* read every field once, write it once */
        m->bytes_per_cell = 2.0 * m->fields * m->element;
    }
    if (m->flops_per_cell <= 0.0) { /* a multiply and an add a neighbour and field */
        m->flops_per_cell = 2.0 * (2.0 * m->dims * m->halo + 1.0) * m->fields;
    }
    return DPAR_OK;
}

/* Fills in what follows from what was said; refuses what cannot be. */
static dpar_status dpari_model_complete(dpar_model *m, int32_t seq, dpar_why *why)
{
    dpar_status st;
    if (m->family == 0) {
        return dpari_say(DPAR_E_ARG, why, "no family: set family, as DPAR_FAMILY_GPT", 0, 0, 0, 0);
    }
    if (m->family < 0 || m->family >= DPAR_FAMILIES) {
        return dpari_say(DPAR_E_ARG, why, "family # does not exist", m->family, 0, 0, 0);
    }
    if (m->element != 0 && m->element != 2 && m->element != 4 && m->element != 8) {
        return dpari_say(DPAR_E_ARG, why, "element=# must be 2, 4 or 8 bytes", m->element, 0, 0, 0);
    }
    if (m->layers > 1000000 || m->decoder_layers > 1000000) {
        return dpari_say(DPAR_E_RANGE, why, "layers=#, decoder_layers=#: at most 1000000",
                         m->layers, m->decoder_layers, 0, 0);
    }
    if (m->family == DPAR_FAMILY_GRID) {
        return dpari_model_grid(m, why);
    }
    m->element = m->element > 0 ? m->element : 2;
    if (!dpari_is_transformer(m->family)) {
        return dpari_model_convs(m, why);
    }
    st = dpari_model_widths(m, why);
    if (st == DPAR_OK) {
        st = dpari_model_tokens(m, seq, why);
    }
    return st == DPAR_OK ? dpari_model_experts(m, why) : st;
}

static double dpari_model_samples_tokens(const dpar_model *m)
{
    if (m->family == DPAR_FAMILY_VIT || m->family == DPAR_FAMILY_DIT) {
        return (double)(m->image[0] / m->patch) * (m->image[1] / m->patch) +
               (m->family == DPAR_FAMILY_VIT ? 1.0 : 0.0);
    }
    if (m->family == DPAR_FAMILY_GRID) {
        return (double)m->extent[0] * (double)m->extent[1] * (double)m->extent[2];
    }
    if (m->family == DPAR_FAMILY_RESNET) {
        return 1.0;
    }
    return m->family == DPAR_FAMILY_UNET ? (double)m->image[0] * m->image[1] : (double)m->seq;
}

static void dpari_workload_head(dpar_workload *w, const dpar_model *m)
{
    int gpt = m->family == DPAR_FAMILY_GPT;
    int transformer = dpari_is_transformer(m->family);
    dpari_copy_text(w->name, sizeof(w->name), m->name, sizeof(m->name));
    w->element = m->element;
    w->stack = m->stack > 0 ? m->stack : gpt ? DPAR_STACK_MEGATRON : DPAR_STACK_CORE;
    w->attention = m->attention > 0                         ? m->attention
                   : gpt && w->stack == DPAR_STACK_MEGATRON ? DPAR_ATTENTION_UNFUSED
                                                            : DPAR_ATTENTION_FLASH;
    /* the library of the first fused attention has a fused loss, which its users took with it */
    w->loss = m->loss > 0                             ? m->loss
              : w->stack == DPAR_STACK_CORE           ? DPAR_LOSS_INPLACE
              : w->stack == DPAR_STACK_MEGATRON       ? DPAR_LOSS_PARALLEL
              : w->stack == DPAR_STACK_COMPILED       ? DPAR_LOSS_COMPILED
              : w->attention == DPAR_ATTENTION_FLASH1 ? DPAR_LOSS_FUSED
                                                      : DPAR_LOSS_EAGER;
    w->causal = m->family == DPAR_FAMILY_GPT || m->family == DPAR_FAMILY_LLAMA;
    w->tokens = dpari_model_samples_tokens(m);
    w->hidden = m->hidden;
    w->heads = transformer ? m->heads : 0;
    w->kv_heads = transformer ? (m->kv_lora > 0 ? m->heads : m->kv_heads) : 0;
    w->vocab = transformer ? m->vocab : 0;
    w->experts = m->experts;
    w->topk = m->topk;
    w->capacity = m->capacity >= 1.0 ? m->capacity : 1.0;
    w->trains = m->family != DPAR_FAMILY_GRID && !m->inference;
    w->time_steps = m->family == DPAR_FAMILY_GRID ? 1 : 0;
    if (m->family == DPAR_FAMILY_GRID) {
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

static void dpari_workload_totals(dpar_workload *w)
{
    int32_t i, k;
    w->blocks = w->shard_units = 0;
    w->params = w->model_flops_full = w->model_flops_causal = 0.0;
    for (i = 0; i < w->layers; i++) {
        const dpar_layer *l = &w->layer[i];
        double plain = 0.0, attention = 0.0;
        for (k = 0; k < l->ops; k++) {
            const dpar_op *op = &w->op[l->first + k];
            double f = 2.0 * op->n * op->k * op->copies * l->tokens * l->count;
            if (op->kind == DPAR_OP_ATTENTION) {
                attention += w->causal ? 2.0 * f : f;
            } else if (op->kind == DPAR_OP_SCORES) {
                attention += f;
            } else {
                plain += f;
            }
        }
        w->params += dpari_layer_params(w, i) * l->count;
        w->model_flops_full += plain + attention;
        w->model_flops_causal += plain + (w->causal ? 0.5 : 1.0) * attention;
        w->blocks += l->kind == DPAR_LAYER_BLOCK ? l->count : 0;
        w->shard_units += l->count;
    }
    if (w->trains) { /* backward: twice the forward */
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
    case DPAR_FAMILY_GPT:
    case DPAR_FAMILY_LLAMA: dpari_build_decoder(w, &m, m.seq); break;
    case DPAR_FAMILY_VIT:
    case DPAR_FAMILY_DIT: dpari_build_vision(w, &m); break;
    case DPAR_FAMILY_T5: dpari_build_t5(w, &m, m.seq); break;
    case DPAR_FAMILY_RESNET: dpari_build_resnet(w, &m); break;
    case DPAR_FAMILY_UNET: dpari_build_unet(w, &m); break;
    default: dpari_build_grid(w, &m); break;
    }
    dpari_workload_totals(w);
    return dpari_workload_check(w, why);
}
