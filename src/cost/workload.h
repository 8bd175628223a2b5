/* SPDX-License-Identifier: MIT-0 */
/* workload - a job's work: a short list of layer classes, each a short list of operations with
 * their shapes. Prices, memory and plans are sums over it. So a new architecture is a new list, and
 * the cost of pricing does not grow with the number of layers.
 *
 *     static dpar_workload w;                                  27 KB
 *     dpar_model_find(&model, "llama-3-8b", &why);             models.h
 *     dpar_workload_init(&w, &model, 0, &why); */
#ifndef DPARI_COST_WORKLOAD_H
#define DPARI_COST_WORKLOAD_H

#include "../base/base.h"

enum { DPAR_MAX_LAYER_CLASSES = 24, DPAR_MAX_LAYER_OPS = 320, DPAR_MAX_NOTE = 800 };

/* What an operation does. */
enum {
    DPAR_OP_GEMM,      /* [tokens, k] x [k, n], `copies` times */
    DPAR_OP_EXPERTS,   /* grouped GEMM: `copies` rows a token in all, [rows, k] x [k, n] */
    DPAR_OP_ATTENTION, /* fused: 2 * n * k FLOP a token, n = heads (d_qk + d_v), k = keys seen */
    DPAR_OP_SCORES,    /* the same product unfused (batched GEMMs) */
    DPAR_OP_CONV,      /* as GEMM with k = C_in/groups * taps */
    DPAR_OP_STREAM,    /* element-wise: only bytes (and few FLOP) */
    DPAR_OP_SCAN       /* a recurrence by chunks in matrix products: as ATTENTION, nothing halved */
};

/* How tensor parallelism (TP) cuts it. */
enum {
    DPAR_CUT_NONE,     /* every TP rank does or holds all of it */
    DPAR_CUT_SEQUENCE, /* as NONE; under sequence parallelism 1/tp of the tokens */
    DPAR_CUT_COLUMN,   /* output width / tp */
    DPAR_CUT_ROW,      /* inner width / tp */
    DPAR_CUT_TENSOR,   /* bytes or heads / tp */
    /* Of a mixture of experts: experts over ep, each over etp. Sequence parallelism shares the
     * tokens out. */
    DPAR_CUT_EXPERT,        /* every rank of etp does or holds all of it */
    DPAR_CUT_EXPERT_COLUMN, /* output width / etp */
    DPAR_CUT_EXPERT_ROW,    /* inner width / etp */
    DPAR_CUT_EXPERT_TENSOR  /* bytes / etp */
};

/* Which activations are dropped and computed again in the backward: one of the first four, and with
 * NONE and SELECTIVE any of the bits behind them (Megatron-Core's recompute modules). */
enum {
    DPAR_RECOMPUTE_NONE,
    DPAR_RECOMPUTE_SELECTIVE, /* the scores of unfused attention */
    DPAR_RECOMPUTE_FULL,      /* all but the layer's input */
    DPAR_RECOMPUTE_ALTERNATE, /* all but every second product and attention: torchtitan's "op" */
    DPAR_RECOMPUTE_COUNT,
    DPAR_RECOMPUTE_NORM = 4,       /* what norms give */
    DPAR_RECOMPUTE_ACTIVATION = 8, /* what activations give, those of experts too */
    DPAR_RECOMPUTE_EXPERTS = 16    /* all inside the experts */
};

/* When its saved activation is dropped and computed again. */
enum {
    DPAR_KEEP_ALWAYS,     /* kept under none and selective recomputation */
    DPAR_KEEP_SELECTIVE,  /* dropped by selective recomputation (attention scores) */
    DPAR_KEEP_INPUT,      /* the layer's input */
    DPAR_KEEP_NORM,       /* what a norm gave */
    DPAR_KEEP_ACTIVATION, /* what an activation gave */
    DPAR_KEEP_EXPERTS     /* inside the experts, and no activation's */
};

/* An operation of a layer. */
typedef struct dpar_op {
    int8_t kind;       /* DPAR_OP_* */
    int8_t cut;        /* DPAR_CUT_*, of the work and the weights */
    int8_t save_cut;   /* DPAR_CUT_*, of the saved bytes */
    int8_t keep;       /* DPAR_KEEP_* */
    int16_t kernels;   /* kernels of the forward pass; the backward has twice as many */
    int16_t heads;     /* attention: heads (to cut); 0 otherwise */
    double n, k;       /* as DPAR_OP_* says */
    double copies;     /* as DPAR_OP_* says; 1 for most */
    double params;     /* weights, all ranks together */
    double touch;      /* HBM bytes a token that the forward moves besides GEMM operands */
    double touch_back; /* and that the backward moves */
    double save;       /* bytes a token kept for the backward */
    double transient;  /* bytes a token alive only while its backward runs */
} dpar_op;

/* Where a layer may stand in a pipeline. */
enum { DPAR_LAYER_EMBED, DPAR_LAYER_BLOCK, DPAR_LAYER_HEAD };

/* A class of layers: so many alike ones in a row. */
typedef struct dpar_workload_layer {
    char name[12];              /* "embed", "block", "moe", "head", ... */
    int32_t kind;               /* DPAR_LAYER_* */
    int32_t count;              /* how many */
    int32_t from, span;         /* blocks: spread evenly over [from, from + span) of all blocks */
    int32_t first, ops;         /* its operations in workload.op */
    int32_t shared, shared_ops; /* of them those of shared experts */
    double tokens;              /* tokens (pixels, cells) a sample */
    double width_bytes;         /* bytes a token of its output: what a pipeline stage sends */
    double alternate;   /* bytes a token that every second product and attention give, all ranks */
    int32_t tp_regions; /* column-row pairs: each one all-reduce forward and one backward */
    double cp_kv_bytes; /* keys and values, bytes a token, all heads */
    double cp_qo_bytes; /* queries and attention outputs, bytes a token, all heads */
    double ep_bytes;    /* bytes a token sent to experts (top-k copies); 0: no experts */
    double reach_bytes; /* halo: the sum over its convolutions of (cells deep) x bytes a cell */
    int32_t reach;      /* cells: the deepest of its halos */
    int32_t exchanges;  /* halo exchanges in its forward */
    int32_t shrink;     /* cells along an axis = extent / shrink */
} dpar_workload_layer;

/* How attention is computed. 0 in a model: as its family and stack have it. */
enum {
    DPAR_MODEL_ATTENTION_UNFUSED = 1, /* batched GEMMs and a fused scale-mask-softmax (2019-2022) */
    DPAR_MODEL_ATTENTION_FLASH1,      /* the first fused kernels (2022-23, Triton included) */
    DPAR_MODEL_ATTENTION_FLASH,       /* FlashAttention-2 and later, cuDNN */
    DPAR_MODEL_ATTENTION_END          /* one past the last */
};

/* How the loss is computed: it decides how many bytes a logit are alive at once. 0 in a model: as
 * the stack has it. */
enum {
    DPAR_MODEL_LOSS_EAGER =
        1, /* 16 bits, an fp32 softmax, two gradients: 14; with tp a fourth: 18 */
    DPAR_MODEL_LOSS_COMPILED, /* 6 */
    DPAR_MODEL_LOSS_FUSED,    /* one kernel, a gradient beside the logits: 4 */
    DPAR_MODEL_LOSS_INPLACE,  /* one kernel, the gradient in the logits' place: 2 */
    DPAR_MODEL_LOSS_CHUNKED,  /* eager, in 8 chunks of the tokens */
    DPAR_MODEL_LOSS_PARALLEL, /* Megatron's over a cut vocabulary: an fp32 copy, its exponentials:
                                 10 */
    DPAR_MODEL_LOSS_END       /* one past the last */
};

/* Which software runs the layers. It decides what is fused, what is kept, and how much the host
 * does. Every prediction says which one it assumed. 0 in a model: as its family has it. In text a
 * year may follow, as in core@2024: the latest generation up to then, and where no run of that year
 * is known a line of the note. */
enum {
    DPAR_MODEL_STACK_MEGATRON =
        1, /* Megatron-LM 2021-22, Megatron-DeepSpeed: apex kernels, no overlap */
    DPAR_MODEL_STACK_MEGATRON_CORE, /* Megatron-Core with TransformerEngine */
    DPAR_MODEL_STACK_TORCH,         /* PyTorch FSDP, eager */
    DPAR_MODEL_STACK_TORCH_COMPILE, /* PyTorch FSDP, torch.compile */
    /* These are today's. Generations of them that share what they fuse and keep: */
    DPAR_MODEL_STACK_LLM_FOUNDRY, /* llm-foundry: torch of 2023 */
    DPAR_MODEL_STACK_TORCHTITAN,  /* compiled, of 2025 */
    DPAR_MODEL_STACK_NANOTRON,    /* torch; gradients reduced after the last micro-batch, stages by
                                     work */
    DPAR_MODEL_STACK_NEMO,        /* core of 2025-26, the experts' messages behind other work */
    DPAR_MODEL_STACK_DEEPEP, /* nemo; a token crosses to a node once; 8-bit recipes dispatch in 8
                                bits */
    DPAR_MODEL_STACK_MEGATRON_2021, /* before gradients were reduced behind the weight gradient */
    DPAR_MODEL_STACK_NEMO_2024,     /* core of 2024 */
    DPAR_MODEL_STACK_MAXTEXT,       /* XLA: fused as compiled, its collectives are asynchronous */
    DPAR_MODEL_STACK_END            /* one past the last */
};

/* A job's work. dpar_workload_init builds it. */
typedef struct dpar_workload {
    char name[32];
    int32_t layers, ops;
    dpar_workload_layer layer[DPAR_MAX_LAYER_CLASSES]; /* in order of execution */
    dpar_op op[DPAR_MAX_LAYER_OPS];
    int32_t element;   /* bytes of an activation element: 2, 4 or 8 */
    int32_t attention; /* DPAR_MODEL_ATTENTION_* */
    int32_t stack;     /* DPAR_MODEL_STACK_*, one of the first four */
    int32_t age;       /* DPAR_MODEL_STACK_* as it was said */
    int32_t loss;      /* DPAR_MODEL_LOSS_* */
    int32_t causal;    /* attention sees half of the keys */
    double tokens;     /* of a sample: what tokens/s counts */
    int32_t heads, kv_heads, hidden, vocab, experts, blocks, topk; /* for the rules; 0: none */
    int32_t expert_groups, topk_groups;                            /* as the model has them */
    int32_t head_blocks;     /* blocks that the head counts for where stages are cut by work */
    int32_t dims;            /* of the spatial grid, 0: none */
    int64_t extent[3];       /* cells of the grid */
    int32_t time_steps;      /* of a simulation: time steps that one "step" stands for; else 0 */
    int32_t trains;          /* 1: forward and backward and an optimizer; 0: forward only (grids) */
    int32_t shard_units;     /* parameter groups that ZeRO-3 gathers at a time: layers, usually */
    double params;           /* all weights */
    double model_flops_full; /* forward + backward a sample, attention as if not causal */
    double model_flops_causal; /* the same, causal attention at half */
    double capacity; /* mixture of experts: load of the fullest expert over the mean, >= 1 */
    char note[DPAR_MAX_NOTE]; /* of the model: what was assumed or left out, a line each */
} dpar_workload;

enum {
    DPAR_MODEL_FAMILY_GPT =
        1, /* learned positions, LayerNorm, GELU, biases, dropout; Megatron's GPT */
    DPAR_MODEL_FAMILY_LLAMA,  /* RMSNorm, rotary, gated MLP, no bias; GQA, MLA and experts by fields
                               */
    DPAR_MODEL_FAMILY_VIT,    /* patches, not causal */
    DPAR_MODEL_FAMILY_DIT,    /* diffusion transformer: ViT with adaptive norms */
    DPAR_MODEL_FAMILY_T5,     /* encoder-decoder */
    DPAR_MODEL_FAMILY_RESNET, /* bottleneck conv net */
    DPAR_MODEL_FAMILY_UNET,   /* conv encoder-decoder with skips on a grid */
    DPAR_MODEL_FAMILY_GRID,   /* explicit grid solver: a stencil code */
    DPAR_MODEL_FAMILY_END     /* one past the last */
};

/* How a layer mixes tokens: in dpar_model.kinds, with what it does behind that. */
enum {
    DPAR_MODEL_MIXER_FULL,   /* attention to every token */
    DPAR_MODEL_MIXER_WINDOW, /* attention to the last `window` tokens */
    DPAR_MODEL_MIXER_SCAN,   /* a recurrence: state space, linear attention, short convolution */
    DPAR_MODEL_MIXER_BOTH,   /* attention and a recurrence side by side */
    DPAR_MODEL_MIXER_NONE,
    DPAR_MODEL_MIXER_COUNT, /* one past the last */
    DPAR_MODEL_FFN_DENSE = 0,
    DPAR_MODEL_FFN_EXPERTS,
    DPAR_MODEL_FFN_NONE,
    DPAR_MODEL_FFN_COUNT
};

/* Recurrences, by the layer that made them known. */
enum {
    DPAR_MODEL_SCAN_MAMBA = 1, /* scan_width channels, scan_state states a channel */
    DPAR_MODEL_SCAN_MAMBA2,    /* scan_heads of scan_width, scan_groups of scan_state */
    DPAR_MODEL_SCAN_DELTA,     /* gated delta rule: scan_groups keys of scan_state */
    DPAR_MODEL_SCAN_KDA,       /* the same with a decay for each channel */
    DPAR_MODEL_SCAN_LIGHTNING, /* linear attention with an output gate */
    DPAR_MODEL_SCAN_CONV,      /* gated short convolution */
    DPAR_MODEL_SCAN_LRU,       /* gated linear recurrence */
    DPAR_MODEL_SCAN_RWKV,      /* time mixing of RWKV-4 */
    DPAR_MODEL_SCAN_END        /* one past the last */
};

/* What a language model ends in. */
enum { DPAR_MODEL_HEAD_VOCAB, DPAR_MODEL_HEAD_NONE, DPAR_MODEL_HEAD_POOL, DPAR_MODEL_HEAD_MASKED };

/* A model in the words of its paper. Zero it and fill it in. 0 means "not said": dpar_workload_init
 * fills in what follows from the rest (head_width = hidden/heads, kv_heads = heads, ffn = 4 hidden)
 * and refuses what cannot be. */
typedef struct dpar_model {
    char name[32];
    int32_t family; /* DPAR_MODEL_FAMILY_*; must be said */
    int32_t layers, hidden, heads, kv_heads, head_width, ffn, vocab;
    int32_t seq;    /* tokens a sample (positions of learned embeddings too) */
    int32_t tied;   /* input and output embedding share their weights */
    int32_t biases; /* 1 yes, -1 no, 0 as the family has it (GPT, ViT, DiT: yes) */
    int32_t rotary; /* GPT: 1 without learned positions (GPT-NeoX, Falcon, ALiBi) */
    int32_t experts, topk, expert_ffn, shared_ffn, dense_layers; /* mixture of experts */
    int32_t expert_groups, topk_groups; /* a token's experts lie in so many of the groups; 0: all */
    double capacity; /* load of the fullest expert over the mean; 0: 1 (balanced) */
    int32_t q_lora, kv_lora, rope_width, qk_width, v_width; /* MLA when kv_lora > 0 */
    int32_t decoder_layers; /* T5: layers of the decoder (0: as many as the encoder) */
    int32_t image[2], patch, channels, out_channels; /* ViT, DiT, conv nets */
    int32_t levels, blocks_per_level, kernel;        /* U-Net: level l has hidden * 2^l channels */
    int64_t extent[3];                               /* GRID: cells; U-Net on a grid uses image */
    int32_t dims, fields, halo;
    double flops_per_cell, bytes_per_cell; /* GRID, a time step; 0: from fields and stencil */
    int32_t attention;                     /* DPAR_MODEL_ATTENTION_*; 0: the family's default */
    int32_t stack;                         /* DPAR_MODEL_STACK_*; 0: the family's default */
    int32_t loss;                          /* DPAR_MODEL_LOSS_*; 0: the stack's */
    int32_t element;                       /* bytes of an activation element; 0: 2 (GRID: 4) */
    int32_t inference;                     /* 1: forward only */
    int32_t gated;     /* MLP of three matrices: 1 yes, -1 no, 0 as the family has it */
    int32_t causal;    /* 1 yes, -1 no, 0 as the family has it */
    int32_t positions; /* rows of learned positions and the like; -1 none, 0 as the family has it */
    int32_t head;      /* DPAR_MODEL_HEAD_* */
    int32_t embed;     /* width of the token embedding, 0: hidden */
    int32_t aside, aside_vocab;      /* width and rows of a second embedding, one for each layer */
    int32_t q_gate;                  /* 1: as many output gates as queries */
    int32_t window, window_kv_heads; /* tokens that a layer of a window sees */
    int32_t scan, scan_heads, scan_groups, scan_width, scan_state, conv; /* DPAR_MODEL_SCAN_* */
    int32_t expert_step, expert_offset;           /* experts where layer % step = offset; 0: all */
    int32_t o_lora, o_groups;                     /* low-rank output of attention, block diagonal */
    int32_t index_heads, index_width, index_topk; /* sparse attention: an indexer picks top-k */
    int32_t mtp; /* blocks more that predict tokens further on; counted where it is said */
    /* A tower that sees or hears, in front: ViT blocks on tower_tokens patches of tower_patch
     * numbers, and projectors of tower_merge tokens each, over tower_inner, to hidden. */
    int32_t tower_layers, tower_hidden, tower_heads, tower_ffn, tower_tokens, tower_patch;
    int32_t tower_positions, tower_merge, tower_inner, tower_mergers, tower_gated, tower_params;
    /* Layers in turn, repeated: F sees all, W a window, S is a scan, B both; small letters have
     * nothing behind that; D and E are a dense MLP or experts alone. Empty: all F. */
    char pattern[16];
    int32_t kinds[DPAR_MODEL_MIXER_COUNT *
                  DPAR_MODEL_FFN_COUNT]; /* layers of each kind; all 0: by the pattern */
    char note[DPAR_MAX_NOTE];            /* what a reader assumed or left out, a line each */
} dpar_model;

/* The workload of a model, built in place. seq > 0 overrides m->seq. E_ARG with the numbers: zero
 * heads, hidden that heads do not divide, ... *w is undefined then. O(layer classes). */
DPAR_API dpar_status dpar_workload_init(dpar_workload *w, const dpar_model *m, int32_t seq,
                                        dpar_why *why);

#endif
