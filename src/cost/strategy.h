/* SPDX-License-Identifier: MIT-0 */
/* strategy - one way to spread a workload: the degrees of parallelism, the options, the bytes a
 * parameter.
 *
 *     dpar_strategy s;
 *     dpar_strategy_init(&s);
 *     dpar_strategy_read(&s, "tp=8,sp=1,pp=4,dp=2,zero=1,m=64", 31, NULL, &why); */
#ifndef DPARI_COST_STRATEGY_H
#define DPARI_COST_STRATEGY_H

#include "../base/text.h"
#include "../schedule/generate.h"
#include "cluster.h"
#include "workload.h"

/* How context parallel ranks come to each other's keys. */
enum { DPAR_CP_RING, DPAR_CP_ULYSSES, DPAR_CP_GATHER, DPAR_CP_KIND_COUNT };
enum {
    DPAR_SCHEDULE_PRICED_END = DPAR_SCHEDULE_DUALPIPEV + 1
}; /* dpar_schedule_desc's rules below it have a price */
/* What lies in the host's memory. */
enum {
    DPAR_OFFLOAD_OPTIMIZER = 1,
    DPAR_OFFLOAD_WEIGHTS = 2,
    DPAR_OFFLOAD_ACTIVATIONS = 4,
    DPAR_OFFLOAD_NVME = 8 /* the optimizer's state on the node's NVMe, not in its memory */
};
/* Whose messages travel while ranks compute. */
enum {
    DPAR_OVERLAP_DP = 1,
    DPAR_OVERLAP_TP = 2,
    DPAR_OVERLAP_PP = 4,
    DPAR_OVERLAP_DEFAULT = 8,
    DPAR_OVERLAP_EP = 16, /* the experts' messages behind another micro-batch, or another chunk */
    DPAR_OVERLAP_SHARED = 32 /* behind the shared experts of their own layer */
};

/* Bytes a parameter, by what they are for. Activations do not count here: dpar_model.element says
 * their type; set it to 4 for fp32 training. */
typedef struct dpar_recipe {
    char name[16];
    /* bytes a parameter; their sum is the 8 to 20 of the literature */
    double weight, gradient, master, moments;
    double gathered; /* bytes of a weight that ZeRO-3 gathered, and of a gathered gradient */
    double reduced;  /* bytes of a gradient on the wire */
    double bucket; /* ZeRO-2 and 3: elements of a bucket, where they are none of a layer's; or 0 */
    double casts;  /* bytes moved for each element of a product's operands to make it narrow */
    int32_t compute; /* DPAR_BF16, ...: the format of the matrix products; the head's: 16 bits */
} dpar_recipe;

/* Recipes by name. "megatron" (alias "bf16") is the default. E_UNKNOWN lists them. O(recipes).
 *
 *     zero          16 = 2+2+4+8             megatron   18 = 2+4+4+8
 *     deepspeed     20                       fp32       16 = 4+4+8
 *     pure-bf16     8                        adam8      12
 *     no-master     12 = 2+2+8               fsdp       16 sharded + 2 gathered
 *     fp8           17 = 3+2+4+8             fp8-grad32    19 = 3+4+4+8
 *     bf16-grad16   16 = 2+2+4+8             bf16-moments  14
 *     fsdp-fp8      as fsdp, products in 8 bits
 *     fsdp-fp8-row  scaled by rows: no faster than 16 bits in PyTorch of 2025 (unverified)
 *     mxfp8         16 = 2.06+2+4+8          nvfp4         17 = 3.12+2+4+8
 *     zero++        16; weights gathered in int8, gradients reduced in int4 (ZeRO++ 2023,
 *                   without its second copy inside nodes: shard= has one) */
DPAR_API dpar_status dpar_recipe_find(dpar_recipe *r, const char *name, dpar_why *why);
/* Their names: index 0..n-1; NULL past the end. O(1). */
DPAR_API const char *dpar_recipe_name(int32_t index);

/* One way to spread a workload: tp * cp * dp * pp * tiles ranks. tp is the fastest axis, then cp,
 * then dp, then pp (Megatron's tp-cp-dp-pp). Tiles of a domain take the place of cp. */
typedef struct dpar_strategy {
    int32_t tp, sp, cp, cp_kind; /* tensor, sequence (0 or 1), context parallel; DPAR_CP_x */
    int32_t dp;                  /* data-parallel ranks in all: replicas x shards */
    int32_t shard;               /* ranks of a ZeRO group, 1..dp; 0: dp (HSDP: less) */
    int32_t zero;                /* 0..3 */
    int32_t pp, vp,
        schedule;        /* pipeline: ranks, chunks of each, DPAR_SCHEDULE_1F1B, ... (to be said) */
    int32_t ep, etp;     /* experts in ep shares, each of them cut by etp */
    int32_t micro_batch; /* samples */
    int32_t micro_batches;    /* a step and data-parallel rank */
    int32_t recompute;        /* DPAR_RECOMPUTE_* */
    int32_t recompute_layers; /* FULL: how many layers of each stage; 0: all */
    int32_t offload;          /* bits DPAR_OFFLOAD_* */
    int32_t overlap;          /* bits DPAR_OVERLAP_*; DEFAULT: what the stack does */
    int32_t tiles[3];         /* domain parallelism: parts along each grid axis */
} dpar_strategy;

/* A strategy of one rank: every degree 1, micro_batch = micro_batches = 1, no recomputation, 1F1B,
 * default overlap. O(1). */
DPAR_API void dpar_strategy_init(dpar_strategy *s);
/* Fields of a strategy, as bits of a mask and in the order of `named`. */
enum {
    DPAR_STRATEGY_FIELD_TP,
    DPAR_STRATEGY_FIELD_SP,
    DPAR_STRATEGY_FIELD_CP,
    DPAR_STRATEGY_FIELD_CP_KIND,
    DPAR_STRATEGY_FIELD_DP,
    DPAR_STRATEGY_FIELD_SHARD,
    DPAR_STRATEGY_FIELD_ZERO,
    DPAR_STRATEGY_FIELD_PP,
    DPAR_STRATEGY_FIELD_VP,
    DPAR_STRATEGY_FIELD_SCHEDULE,
    DPAR_STRATEGY_FIELD_EP,
    DPAR_STRATEGY_FIELD_ETP,
    DPAR_STRATEGY_FIELD_MICRO_BATCH,
    DPAR_STRATEGY_FIELD_MICRO_BATCHES,
    DPAR_STRATEGY_FIELD_RECOMPUTE,
    DPAR_STRATEGY_FIELD_RECOMPUTE_LAYERS,
    DPAR_STRATEGY_FIELD_OFFLOAD,
    DPAR_STRATEGY_FIELD_OVERLAP,
    DPAR_STRATEGY_FIELD_TILES,
    DPAR_STRATEGY_FIELD_COUNT
};

/* Reads a strategy from text and changes only what is named, in any order:
 *
 *     "tp=8,sp=1,pp=12,vp=2,dp=4,zero=1,shard=8,cp=2,cp_kind=ring,ep=8,etp=1,mbs=1,m=64,
 *      recompute=full,recompute_layers=4,schedule=1f1b,offload=optimizer+activations,
 *      overlap=dp+tp,tiles=2x2"
 *
 * `named` (may be NULL) gets bit DPAR_STRATEGY_FIELD_x for each field named. E_PARSE with a
 * sentence: *s is as it was. O(bytes). */
DPAR_API dpar_status dpar_strategy_read(dpar_strategy *s, const char *text, size_t bytes,
                                        uint32_t *named, dpar_why *why);
/* Appends a strategy as text that dpar_strategy_read reads back: "dp=2,zero=1,tp=8,sp=1,pp=4,...".
 * Defaults are left out. O(fields). */
DPAR_API void dpar_strategy_write(const dpar_strategy *s, dpar_text *t);

/* Ranks that the strategy uses: tp x cp x dp x pp x tiles. 0 when a degree is below 1 or the
 * product passes 2^31 - 1. O(1). */
DPAR_API int32_t dpar_strategy_ranks(const dpar_strategy *s);

/* What is to be spread, on which machine, with which bytes a parameter. */
typedef struct dpar_job {
    const dpar_workload *work;
    const dpar_cluster *cluster;
    dpar_recipe recipe;
} dpar_job;

/* What is not among the fields of `named` (bits DPAR_STRATEGY_FIELD_x) follows from the cluster's
 * GPUs and the batch: dp, and with a batch above 0 the micro-batches. E_DIVIDE with a sentence: the
 * GPUs are no multiple of the other degrees. O(1). */
DPAR_API dpar_status dpar_strategy_complete(const dpar_job *job, dpar_strategy *s, uint32_t named,
                                            int64_t batch, dpar_why *why);

/* Which rule a configuration breaks. The planner counts rejections by it. */
enum {
    DPAR_STRATEGY_RULE_NONE,
    DPAR_STRATEGY_RULE_DEGREE,   /* a degree below 1, or an option that does not exist */
    DPAR_STRATEGY_RULE_RANKS,    /* the product is not the number of GPUs */
    DPAR_STRATEGY_RULE_TP_HEADS, /* tp does not divide the heads, or the hidden size */
    DPAR_STRATEGY_RULE_TP_WIDE,  /* tp spans nodes: the usual search leaves it out, pricing does not
                                  */
    DPAR_STRATEGY_RULE_PP_LAYERS, /* fewer layers than pp * vp */
    DPAR_STRATEGY_RULE_SCHEDULE,  /* the schedule cannot have this vp or these micro-batches */
    DPAR_STRATEGY_RULE_CP,        /* 2 cp does not divide the sequence; heads for Ulysses */
    DPAR_STRATEGY_RULE_EP,        /* ep does not divide experts or the ranks of a stage */
    DPAR_STRATEGY_RULE_ZERO,      /* shard does not divide dp */
    DPAR_STRATEGY_RULE_BATCH,     /* the global batch is not dp * micro_batch * micro_batches */
    DPAR_STRATEGY_RULE_TILES, /* a tile thinner than its halo, or tiles of a model without a grid */
    DPAR_STRATEGY_RULE_OPTION,  /* an option without effect here (SP without TP, ...) */
    DPAR_STRATEGY_RULE_OFFLOAD, /* no host memory, or no NVMe, to offload to */
    DPAR_STRATEGY_RULE_MEMORY,  /* does not fit */
    DPAR_STRATEGY_RULE_COUNT
};
/* The name of a rule: "degree", "tp-heads", ...; "?" for any other number. Static text. O(1). */
DPAR_API const char *dpar_strategy_rule_name(int32_t rule);

/* What ranks send for. */
enum {
    DPAR_TRAFFIC_DP, /* gradients, and the weights of ZeRO */
    DPAR_TRAFFIC_TP, /* tensor and sequence parallel layers, embedding, loss, gradients of norms */
    DPAR_TRAFFIC_CP,
    DPAR_TRAFFIC_EP,
    DPAR_TRAFFIC_PP, /* messages between stages, and the sum of tied embeddings */
    DPAR_TRAFFIC_HALO,
    DPAR_TRAFFIC_COUNT
};

#endif
