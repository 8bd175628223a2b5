/* SPDX-License-Identifier: MIT-0 */
/* workload - a job's work as a short list of layer classes, each a short list of operations with
 * their shapes. Prices, memory and plans are sums over it: a new architecture is a new list, and
 * the cost of a configuration does not grow with the number of layers. */
#ifndef DPARI_COST_WORKLOAD_H
#define DPARI_COST_WORKLOAD_H

#include "../base/base.h"

enum { DPAR_MAX_LAYERS = 24, DPAR_MAX_OPS = 320 };

/* What an operation does. */
enum {
    DPAR_OP_GEMM,      /* [tokens, k] x [k, n], `copies` times */
    DPAR_OP_EXPERTS,   /* grouped GEMM: `copies` rows a token in all, [rows, k] x [k, n] */
    DPAR_OP_ATTENTION, /* fused: 2 * n * k FLOP a token, n = heads (d_qk + d_v), k = keys seen */
    DPAR_OP_SCORES,    /* the same product unfused (batched GEMMs) */
    DPAR_OP_CONV,      /* as GEMM with k = C_in/groups * taps */
    DPAR_OP_STREAM     /* element-wise: only bytes (and few FLOP) */
};

/* How tensor parallelism cuts it. */
enum {
    DPAR_CUT_NONE,     /* every TP rank does or holds all of it */
    DPAR_CUT_SEQUENCE, /* as NONE, or 1/tp of the tokens under sequence parallelism */
    DPAR_CUT_COLUMN,   /* output width / tp */
    DPAR_CUT_ROW,      /* inner width / tp */
    DPAR_CUT_TENSOR,   /* bytes or heads / tp */
    /* of a mixture: experts over ep, each over etp; sequence parallelism shares the tokens out */
    DPAR_CUT_EXPERT,        /* every rank of etp does or holds all of it */
    DPAR_CUT_EXPERT_COLUMN, /* output width / etp */
    DPAR_CUT_EXPERT_ROW,    /* inner width / etp */
    DPAR_CUT_EXPERT_TENSOR  /* bytes / etp */
};

/* When its saved activation is dropped and computed again. */
enum {
    DPAR_KEEP_ALWAYS,    /* kept under none and selective recomputation */
    DPAR_KEEP_SELECTIVE, /* dropped by selective recomputation (attention scores) */
    DPAR_KEEP_INPUT      /* the layer's input: kept even under full recomputation */
};

typedef struct dpar_op {
    int8_t kind;       /* DPAR_OP_* */
    int8_t cut;        /* DPAR_CUT_*, of the work and the weights */
    int8_t save_cut;   /* DPAR_CUT_*, of the saved bytes */
    int8_t keep;       /* DPAR_KEEP_* */
    int16_t kernels;   /* launched in the forward pass; the backward launches twice as many */
    int16_t heads;     /* attention: heads (to cut); 0 otherwise */
    double n, k;       /* see DPAR_OP_* */
    double copies;     /* see DPAR_OP_*; 1 for most */
    double params;     /* weights, all ranks together */
    double touch;      /* HBM bytes a token that the forward moves beside GEMM operands */
    double touch_back; /* and the backward */
    double save;       /* bytes a token kept for the backward */
    double transient;  /* bytes a token alive only while its backward runs */
} dpar_op;

/* Where a layer may stand in a pipeline. */
enum { DPAR_LAYER_EMBED, DPAR_LAYER_BLOCK, DPAR_LAYER_HEAD };

typedef struct dpar_layer {
    char name[12];      /* "embed", "block", "moe", "head", ... */
    int32_t kind;       /* DPAR_LAYER_* */
    int32_t count;      /* how many in a row */
    int32_t first, ops; /* its operations in workload.op */
    double tokens;      /* tokens (pixels, cells) a sample */
    double width_bytes; /* bytes a token of its output: what a pipeline stage sends */
    int32_t tp_regions; /* column-row pairs: each one all-reduce forward and one backward */
    double cp_kv_bytes; /* keys and values, bytes a token, all heads */
    double cp_qo_bytes; /* queries and attention outputs, bytes a token, all heads */
    double ep_bytes;    /* sent to experts, bytes a token (top-k copies); 0: no experts */
    double reach_bytes; /* halo: sum over its convolutions of (cells deep) x bytes a cell */
    int32_t reach;      /* cells: the deepest of its halos */
    int32_t exchanges;  /* halo exchanges in its forward */
    int32_t shrink;     /* cells along an axis = extent / shrink */
} dpar_layer;

/* How attention is computed. */
enum {
    DPAR_ATTENTION_UNFUSED, /* batched GEMMs and a fused scale-mask-softmax (2019-2022) */
    DPAR_ATTENTION_FLASH1,  /* the first fused kernels (2022-23, Triton included) */
    DPAR_ATTENTION_FLASH,   /* FlashAttention-2 and later, cuDNN */
    DPAR_ATTENTIONS
};

/* Which software runs the layers: it decides what is fused, what is kept, how much the host does.
 * Every prediction says which one it assumed. */
enum {
    DPAR_STACK_MEGATRON, /* Megatron-LM 2021-22, Megatron-DeepSpeed: apex kernels, no overlap */
    DPAR_STACK_CORE,     /* Megatron-Core with TransformerEngine */
    DPAR_STACK_TORCH,    /* PyTorch FSDP, eager */
    DPAR_STACK_COMPILED, /* PyTorch FSDP, torch.compile */
    DPAR_STACKS
};

typedef struct dpar_workload {
    char name[32];
    int32_t layers, ops;
    dpar_layer layer[DPAR_MAX_LAYERS]; /* in order of execution */
    dpar_op op[DPAR_MAX_OPS];
    int32_t element;   /* bytes of an activation element: 2, 4 or 8 */
    int32_t attention; /* DPAR_ATTENTION_* */
    int32_t stack;     /* DPAR_STACK_* */
    int32_t causal;    /* attention sees half of the keys */
    double tokens;     /* a sample: what tokens/s counts */
    int32_t heads, kv_heads, hidden, vocab, experts, blocks, topk; /* for the rules; 0: none */
    int32_t dims;            /* of the spatial grid, 0: none */
    int64_t extent[3];       /* cells of the grid */
    int32_t time_steps;      /* a simulation: time steps that one "step" stands for; else 0 */
    int32_t trains;          /* 1: forward and backward and an optimizer; 0: forward only (grids) */
    int32_t shard_units;     /* parameter groups that ZeRO-3 gathers at a time: layers, usually */
    double params;           /* all weights */
    double model_flops_full; /* forward + backward a sample, attention as if not causal */
    double model_flops_causal; /* the same, causal attention at half */
    double capacity; /* mixture of experts: load of the fullest expert over the mean, >= 1 */
} dpar_workload;

/* Parameters of one layer of class `layer` of 0..layers-1, 0 for others; of its experts alone. */
DPAR_API double dpar_layer_params(const dpar_workload *w, int32_t layer);
DPAR_API double dpar_layer_expert_params(const dpar_workload *w, int32_t layer);
/* Saved activation bytes of one layer for one token, nothing cut, under a recomputation
 * (DPAR_RECOMPUTE_*, strategy.h). 0 for a layer that is none. */
DPAR_API double dpar_layer_saved(const dpar_workload *w, int32_t layer, int32_t recompute);
/* Forward FLOP of one layer for one sample, attention as it runs (causal at half). 0 for a layer
 * that is none. */
DPAR_API double dpar_layer_flops(const dpar_workload *w, int32_t layer);
/* Index of the class whose single layer has the most parameters. */
DPAR_API int32_t dpar_workload_largest(const dpar_workload *w);
/* Counts in order, shapes positive and finite, parameters below 2^62. */
DPAR_API dpar_status dpar_workload_check(const dpar_workload *w, dpar_why *why);

#endif
