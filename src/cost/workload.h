/* SPDX-License-Identifier: MIT-0 */
/* workload - describes the work of a job as a short list of layer classes, each of which is a short
 * list of operations with their shapes. Prices, memory and plans are sums over this list. Therefore
 * a new architecture is a new list, and the cost of pricing does not grow with the number of
 * layers.
 *
 *     static dpar_workload w;                                  takes 27 KB
 *     dpar_model_find(&model, "llama-3-8b", &why);             models.h
 *     dpar_workload_init(&w, &model, 0, &why); */
#ifndef DPARI_COST_WORKLOAD_H
#define DPARI_COST_WORKLOAD_H

#include "../base/base.h"

enum {
    DPAR_MAX_LAYER_CLASSES = 24, /* maximum number of layer classes of a workload */
    DPAR_MAX_LAYER_OPS = 320,    /* maximum number of operations of a workload */
    DPAR_MAX_NOTE = 800          /* bytes of a note */
};

/* Private: the kinds of operations. n, k and copies are fields of dpari_layer_op. */
enum {
    DPARI_OP_GEMM,      /* [tokens, k] x [k, n], `copies` times */
    DPARI_OP_EXPERTS,   /* grouped GEMM: [rows, k] x [k, n] with `copies` rows per token in all */
    DPARI_OP_ATTENTION, /* fused: 2 * n * k FLOP per token, n = heads (d_qk + d_v), k = keys seen */
    DPARI_OP_SCORES,    /* the same product unfused (batched GEMMs) */
    DPARI_OP_CONV,      /* convolution: a GEMM with k = C_in/groups * taps */
    DPARI_OP_STREAM,    /* element-wise: moves bytes and has few FLOP */
    DPARI_OP_SCAN /* a recurrence in chunks: FLOP as in ATTENTION, never halved as if causal */
};

/* Private: how tensor parallelism (TP) divides an operation among its ranks. */
enum {
    DPARI_CUT_NONE,     /* every TP rank computes or holds the whole operation */
    DPARI_CUT_SEQUENCE, /* as NONE, but with sequence parallelism 1/tp of the tokens */
    DPARI_CUT_COLUMN,   /* output width / tp */
    DPARI_CUT_ROW,      /* inner width / tp */
    DPARI_CUT_TENSOR,   /* bytes or heads / tp */
    /* For a mixture of experts: the experts are spread over ep ranks, and each expert is cut over
     * etp ranks. Sequence parallelism divides the tokens. */
    DPARI_CUT_EXPERT,        /* every rank of etp computes or holds the whole operation */
    DPARI_CUT_EXPERT_COLUMN, /* output width / etp */
    DPARI_CUT_EXPERT_ROW,    /* inner width / etp */
    DPARI_CUT_EXPERT_TENSOR  /* bytes / etp */
};

/* Which activations are dropped, and computed again in the backward. A value is one of the first
 * four. NONE and SELECTIVE may be combined with the bits below (Megatron-Core's recompute
 * modules). */
enum {
    DPAR_RECOMPUTE_NONE,
    DPAR_RECOMPUTE_SELECTIVE, /* the scores of unfused attention */
    DPAR_RECOMPUTE_FULL,      /* all but the layer's input */
    DPAR_RECOMPUTE_ALTERNATE, /* all but every second product and attention: torchtitan's "op" */
    DPAR_RECOMPUTE_COUNT,     /* number of the values above */
    DPAR_RECOMPUTE_NORM = 4,  /* bit: outputs of norms */
    DPAR_RECOMPUTE_ACTIVATION = 8, /* bit: outputs of activation functions, also in experts */
    DPAR_RECOMPUTE_EXPERTS = 16    /* bit: everything inside the experts */
};

/* Private: the recomputation that drops an operation's saved activation. */
enum {
    DPARI_KEEP_ALWAYS,     /* kept without recomputation and with SELECTIVE */
    DPARI_KEEP_SELECTIVE,  /* dropped by SELECTIVE (attention scores) */
    DPARI_KEEP_INPUT,      /* the layer's input, which is always kept */
    DPARI_KEEP_NORM,       /* the output of a norm */
    DPARI_KEEP_ACTIVATION, /* the output of an activation function */
    DPARI_KEEP_EXPERTS     /* inside the experts, but not the output of an activation function */
};

/* Private: an operation of a layer. */
typedef struct dpari_layer_op {
    int8_t kind;       /* DPARI_OP_* */
    int8_t cut;        /* DPARI_CUT_*, for the work and the weights */
    int8_t save_cut;   /* DPARI_CUT_*, for the saved bytes */
    int8_t keep;       /* DPARI_KEEP_* */
    int16_t kernels;   /* kernels of the forward pass; the backward has twice as many */
    int16_t heads;     /* attention: heads that TP divides; 0 for other operations */
    double n, k;       /* sizes, see DPARI_OP_* */
    double copies;     /* number of products or rows, see DPARI_OP_*; usually 1 */
    double params;     /* weights, all ranks together */
    double touch;      /* bytes of device memory per token that the forward moves, not counting GEMM
                          operands */
    double touch_back; /* the same for the backward */
    double save;       /* bytes per token kept for the backward */
    double transient;  /* bytes per token that exist only during this backward */
} dpari_layer_op;

/* The position of a layer in a pipeline. */
enum {
    DPAR_LAYER_EMBED, /* an embedding, on the first stage */
    DPAR_LAYER_BLOCK, /* a block, on any stage */
    DPAR_LAYER_HEAD   /* the head, on the last stage */
};

/* A class of equal layers. */
typedef struct dpar_workload_layer {
    char name[12];              /* "embed", "block", "moe", "head", ... */
    int32_t kind;               /* DPAR_LAYER_* */
    int32_t count;              /* number of layers */
    int32_t from, span;         /* blocks: spread evenly over [from, from + span) of all blocks */
    int32_t first, ops;         /* its operations: `ops` entries of workload.op from `first` on */
    int32_t shared, shared_ops; /* the same for its shared experts; shared_ops is 0 if there are
                                   none */
    double tokens;              /* tokens (pixels, cells) per sample */
    double width_bytes;         /* bytes per token of its output, which a pipeline stage sends */
    double alternate;   /* bytes per token that RECOMPUTE_ALTERNATE keeps, all ranks together */
    int32_t tp_regions; /* column-row pairs; each has one all-reduce forward and one backward */
    double cp_kv_bytes; /* bytes per token of keys and values, all heads */
    double cp_qo_bytes; /* bytes per token of queries and attention outputs, all heads */
    double ep_bytes;    /* bytes per token sent to experts (top-k copies); 0 without experts */
    double reach_bytes; /* halo: sum over its convolutions of depth in cells x bytes per cell */
    int32_t reach;      /* depth in cells of the deepest of its halos */
    int32_t exchanges;  /* halo exchanges in its forward */
    int32_t shrink;     /* the layer has extent / shrink cells along an axis */
} dpar_workload_layer;

/* How attention is computed. 0 in a model selects the usual one of its family and stack. */
enum {
    DPAR_MODEL_ATTENTION_UNFUSED = 1, /* batched GEMMs and a fused scale-mask-softmax (2019-2022) */
    DPAR_MODEL_ATTENTION_FLASH1,      /* the first fused kernels (2022-23, Triton included) */
    DPAR_MODEL_ATTENTION_FLASH,       /* FlashAttention-2 and later, cuDNN */
    DPAR_MODEL_ATTENTION_END          /* one past the last */
};

/* How the loss is computed. The number is the bytes per logit that exist at the same time. 0 in a
 * model selects the usual one of the stack. */
enum {
    DPAR_MODEL_LOSS_EAGER = 1, /* 14: 16-bit logits, an fp32 softmax, two gradients; 18 with tp */
    DPAR_MODEL_LOSS_COMPILED,  /* 6 */
    DPAR_MODEL_LOSS_FUSED,     /* 4: one kernel, with the gradient next to the logits */
    DPAR_MODEL_LOSS_INPLACE,   /* 2: one kernel, with the gradient in place of the logits */
    DPAR_MODEL_LOSS_CHUNKED,   /* as eager, but in 8 chunks of the tokens */
    DPAR_MODEL_LOSS_PARALLEL,  /* 10: Megatron's over a cut vocabulary, with an fp32 copy */
    DPAR_MODEL_LOSS_END        /* one past the last */
};

/* The software stack that runs the layers. It decides what is fused, what is kept, and how much the
 * host does. Every prediction names the stack that it assumed. 0 in a model selects the usual one
 * of its family. In text a year may follow, as in core@2024. It selects the latest generation up to
 * that year; if no run of that year is known, the note says so. */
enum {
    /* Megatron-LM of 2022, Megatron-DeepSpeed: apex kernels; only TP overlaps */
    DPAR_MODEL_STACK_MEGATRON = 1,
    DPAR_MODEL_STACK_MEGATRON_CORE, /* Megatron-Core with TransformerEngine */
    DPAR_MODEL_STACK_TORCH,         /* PyTorch FSDP, eager */
    DPAR_MODEL_STACK_TORCH_COMPILE, /* PyTorch FSDP, torch.compile */
    /* The four above are the basic stacks. Those below are generations and variants of them, which
     * fuse and keep the same as their stack. */
    DPAR_MODEL_STACK_LLM_FOUNDRY, /* llm-foundry: torch of 2023 */
    DPAR_MODEL_STACK_TORCHTITAN,  /* torchtitan: compiled, of 2025 */
    DPAR_MODEL_STACK_NANOTRON,    /* torch; reduces gradients at the end, cuts stages by work */
    DPAR_MODEL_STACK_NEMO,        /* core of 2025-26; the experts' messages overlap other work */
    DPAR_MODEL_STACK_DEEPEP, /* nemo; sends a token to a node once, with 8-bit recipes in 8 bits */
    DPAR_MODEL_STACK_MEGATRON_2021, /* megatron before TP messages overlapped the weight gradient */
    DPAR_MODEL_STACK_NEMO_2024,     /* core of 2024 */
    DPAR_MODEL_STACK_MAXTEXT,       /* XLA: fuses like compiled, its collectives are asynchronous */
    DPAR_MODEL_STACK_END            /* one past the last */
};

/* The work of a job. dpar_workload_init builds it. */
typedef struct dpar_workload {
    char name[32];
    int32_t layers, ops;                               /* entries of `layer` and of `op` in use */
    dpar_workload_layer layer[DPAR_MAX_LAYER_CLASSES]; /* in order of execution */
    dpari_layer_op op[DPAR_MAX_LAYER_OPS];             /* private */
    int32_t element;       /* bytes of an activation element: 2, 4 or 8 */
    int32_t attention;     /* DPAR_MODEL_ATTENTION_* */
    int32_t stack;         /* DPAR_MODEL_STACK_*, one of the first four */
    int32_t stack_version; /* DPAR_MODEL_STACK_*, the generation or variant that the model names */
    int32_t loss;          /* DPAR_MODEL_LOSS_* */
    int32_t causal;        /* 1 if attention is causal and sees half of the keys on average */
    double tokens;         /* tokens (pixels, cells) of a sample, which tokens/s counts */
    int32_t heads, kv_heads, hidden, vocab, experts, blocks, topk; /* 0 if there are none */
    int32_t expert_groups, topk_groups;                            /* as in dpar_model */
    int32_t head_blocks;       /* blocks with as much work as the head, if stages are cut by work */
    int32_t dims;              /* axes of the spatial grid; 0 if there is none */
    int64_t extent[3];         /* cells of the grid along each axis */
    int32_t time_steps;        /* grid solver: time steps in one "step"; 0 for other families */
    int32_t trains;            /* 1 if it has a backward and an optimizer, 0 if forward only */
    int32_t shard_units;       /* parameter groups that ZeRO-3 gathers one by one, usually layers */
    double params;             /* number of weights */
    double model_flops_full;   /* FLOP per sample, forward and backward, as if not causal */
    double model_flops_causal; /* the same with causal attention at half */
    double capacity;           /* mixture of experts: load of the fullest expert / mean, >= 1 */
    char note[DPAR_MAX_NOTE];  /* what was assumed or left out, one line per fact */
} dpar_workload;

/* The families of models. */
enum {
    /* learned positions, LayerNorm, GELU, biases, dropout: Megatron's GPT */
    DPAR_MODEL_FAMILY_GPT = 1,
    /* RMSNorm, rotary, gated MLP, no biases; fields add GQA, MLA and experts */
    DPAR_MODEL_FAMILY_LLAMA,
    DPAR_MODEL_FAMILY_VIT,    /* vision transformer: patches, not causal */
    DPAR_MODEL_FAMILY_DIT,    /* diffusion transformer: ViT with adaptive norms */
    DPAR_MODEL_FAMILY_T5,     /* encoder-decoder */
    DPAR_MODEL_FAMILY_RESNET, /* bottleneck conv net */
    DPAR_MODEL_FAMILY_UNET,   /* conv encoder-decoder with skips on a grid */
    DPAR_MODEL_FAMILY_GRID,   /* explicit grid solver: a stencil code */
    DPAR_MODEL_FAMILY_END     /* one past the last */
};

/* The kinds of layers. dpar_model.kinds counts layers by DPAR_MODEL_MIXER_*, which is how a layer
 * mixes tokens, and by DPAR_MODEL_FFN_*, which is the part that follows. */
enum {
    DPAR_MODEL_MIXER_FULL,    /* attention to every token */
    DPAR_MODEL_MIXER_WINDOW,  /* attention to the last `window` tokens */
    DPAR_MODEL_MIXER_SCAN,    /* a recurrence: state space, linear attention, short convolution */
    DPAR_MODEL_MIXER_BOTH,    /* attention and a recurrence in parallel */
    DPAR_MODEL_MIXER_NONE,    /* no mixing: only the part that follows */
    DPAR_MODEL_MIXER_COUNT,   /* one past the last */
    DPAR_MODEL_FFN_DENSE = 0, /* a dense MLP */
    DPAR_MODEL_FFN_EXPERTS,   /* a mixture of experts */
    DPAR_MODEL_FFN_NONE,      /* only mixing: nothing follows */
    DPAR_MODEL_FFN_COUNT      /* one past the last */
};

/* The kinds of recurrences, named after the layer that made them known. */
enum {
    DPAR_MODEL_SCAN_MAMBA = 1, /* scan_width channels with scan_state states each */
    DPAR_MODEL_SCAN_MAMBA2,    /* scan_heads of scan_width, scan_groups of scan_state */
    DPAR_MODEL_SCAN_DELTA,     /* gated delta rule: scan_groups keys of scan_state */
    DPAR_MODEL_SCAN_KDA,       /* the same with a decay for each channel */
    DPAR_MODEL_SCAN_LIGHTNING, /* linear attention with an output gate */
    DPAR_MODEL_SCAN_CONV,      /* gated short convolution */
    DPAR_MODEL_SCAN_LRU,       /* gated linear recurrence */
    DPAR_MODEL_SCAN_RWKV,      /* time mixing of RWKV-4 */
    DPAR_MODEL_SCAN_END        /* one past the last */
};

/* The kinds of heads. */
enum {
    DPAR_MODEL_HEAD_VOCAB, /* logits over the vocabulary */
    DPAR_MODEL_HEAD_NONE,  /* no head */
    DPAR_MODEL_HEAD_POOL,  /* a pooler */
    DPAR_MODEL_HEAD_MASKED /* masked language model: a transform, then logits over the vocabulary */
};

/* A model with the parameters that its paper gives. Zero the struct, then fill it in. 0 means "not
 * given". dpar_workload_init derives fields that are not given from the others: head_width = hidden
 * / heads, kv_heads = heads, ffn = 4 hidden. */
typedef struct dpar_model {
    char name[32];
    int32_t family; /* DPAR_MODEL_FAMILY_*; must be given */
    int32_t layers, hidden, heads, kv_heads, head_width, ffn, vocab;
    int32_t seq;    /* tokens per sample, and rows of learned positions */
    int32_t tied;   /* 1 if input and output embedding share their weights */
    int32_t biases; /* 1 yes, -1 no, 0 as usual in the family (yes in GPT, ViT and DiT) */
    int32_t rotary; /* GPT: 1 without learned positions (GPT-NeoX, Falcon, ALiBi) */
    int32_t experts, topk, expert_ffn, shared_ffn, dense_layers; /* mixture of experts */
    int32_t expert_groups, topk_groups; /* groups of experts; groups that a token uses, 0 for all */
    double capacity; /* load of the fullest expert over the mean, >= 1; 0 selects 1, balanced */
    /* latent attention (MLA), if kv_lora > 0 */
    int32_t q_lora, kv_lora, rope_width, qk_width, v_width;
    int32_t decoder_layers; /* T5: layers of the decoder; 0 selects as many as in the encoder */
    int32_t image[2], patch, channels, out_channels; /* ViT, DiT, conv nets */
    /* U-Net: number of levels (level l has hidden * 2^l channels), pairs of convolutions per level,
     * side of a kernel */
    int32_t levels, blocks_per_level, kernel;
    int64_t extent[3]; /* GRID: cells; a U-Net uses image instead */
    /* GRID: number of axes, fields per cell, width of the halo in cells */
    int32_t dims, fields, halo;
    double flops_per_cell, bytes_per_cell; /* GRID, per time step; 0 counts fields and stencil */
    int32_t attention;                     /* DPAR_MODEL_ATTENTION_*; 0 selects the usual one */
    int32_t stack;     /* DPAR_MODEL_STACK_*; 0 selects the family's usual one */
    int32_t loss;      /* DPAR_MODEL_LOSS_*; 0 selects the stack's */
    int32_t element;   /* bytes of an activation element; 0 selects 2, in GRID 4 */
    int32_t inference; /* 1 for forward only */
    int32_t gated;     /* MLP of three matrices: 1 yes, -1 no, 0 as usual in the family */
    int32_t causal;    /* 1 yes, -1 no, 0 as usual in the family */
    int32_t positions; /* rows of learned positions; -1 none, 0 as usual in the family */
    int32_t head;      /* DPAR_MODEL_HEAD_* */
    int32_t embed;     /* width of the token embedding; 0 selects hidden */
    /* a second embedding that every layer has (Gemma 3n): its width in each layer, and its rows */
    int32_t aside, aside_vocab;
    int32_t q_gate; /* 1 if attention gates its output, with a gate as wide as the output */
    int32_t window, window_kv_heads; /* WINDOW layers: tokens that a token sees; key-value heads */
    /* recurrences: DPAR_MODEL_SCAN_*, the sizes named there, and taps of the short convolution */
    int32_t scan, scan_heads, scan_groups, scan_width, scan_state, conv;
    /* layers with experts: those with layer % expert_step = expert_offset; step 0 selects all */
    int32_t expert_step, expert_offset;
    int32_t o_lora, o_groups; /* low-rank, block-diagonal output projection of attention */
    int32_t index_heads, index_width, index_topk; /* sparse attention: an indexer picks top-k */
    int32_t mtp; /* number of extra blocks that predict further tokens (multi-token prediction) */
    /* A vision or audio tower in front of the model: ViT blocks on tower_tokens patches of
     * tower_patch numbers. Its projectors join tower_merge tokens and map them, over a width of
     * tower_inner, to hidden. */
    int32_t tower_layers, tower_hidden, tower_heads, tower_ffn, tower_tokens, tower_patch;
    int32_t tower_positions, tower_merge, tower_inner, tower_mergers, tower_gated, tower_params;
    /* The kinds of the layers in order, repeated: F attends to all tokens, W to a window, S is a
     * scan, B is both. Lower-case letters are such layers without MLP or experts. D is only a dense
     * MLP, E only experts. Empty selects F for all. */
    char pattern[16];
    /* number of layers of each kind, at MIXER_* x FFN_COUNT + FFN_*; all 0 selects the pattern */
    int32_t kinds[DPAR_MODEL_MIXER_COUNT * DPAR_MODEL_FFN_COUNT];
    char note[DPAR_MAX_NOTE]; /* what the reader assumed or left out, one line per fact */
} dpar_model;

/* Builds the workload of a model.
 *
 * work:  the result; undefined on failure.
 * model: the model.
 * seq:   tokens per sample; 0 selects model->seq.
 *
 * O(layer classes). Fails with DPAR_E_ARG or DPAR_E_RANGE if a number of the model is not allowed:
 * no heads, a hidden size that the heads do not divide, ... The message has the numbers. */
DPAR_API dpar_status dpar_workload_init(dpar_workload *work, const dpar_model *model, int32_t seq,
                                        dpar_why *why);

#endif
