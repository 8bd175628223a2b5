/* SPDX-License-Identifier: MIT-0 */
/* strategy - describes how a workload is spread over ranks: the degrees of parallelism, the options
 * and the bytes per parameter.
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

/* How context-parallel ranks exchange keys and values. */
enum {
    DPAR_CP_RING,      /* ring attention: keys and values are passed from rank to rank */
    DPAR_CP_ULYSSES,   /* all-to-all: each rank gets the whole sequence for some of the heads */
    DPAR_CP_GATHER,    /* every rank gathers all keys and values */
    DPAR_CP_KIND_COUNT /* number of kinds */
};
enum {
    DPAR_SCHEDULE_PRICED_END = DPAR_SCHEDULE_DUALPIPEV + 1
}; /* the rules of dpar_schedule_desc below this number are priced */
/* Bits of dpar_strategy.offload: what is kept in the host's memory. */
enum {
    DPAR_OFFLOAD_OPTIMIZER = 1,
    DPAR_OFFLOAD_WEIGHTS = 2,
    DPAR_OFFLOAD_ACTIVATIONS = 4,
    DPAR_OFFLOAD_NVME = 8 /* the optimizer state is kept on the node's NVMe, not in its memory */
};
/* Bits of dpar_strategy.overlap: which messages are sent while ranks compute. */
enum {
    DPAR_OVERLAP_DP = 1,
    DPAR_OVERLAP_TP = 2,
    DPAR_OVERLAP_PP = 4,
    DPAR_OVERLAP_DEFAULT = 8, /* as the software stack does it (DPAR_MODEL_STACK_*) */
    DPAR_OVERLAP_EP = 16,     /* the experts' messages, during another micro-batch or chunk */
    DPAR_OVERLAP_SHARED = 32  /* the experts' messages, during the shared experts of their layer */
};

/* The bytes per parameter, by purpose. Activations are not included: dpar_model.element is their
 * size. Set it to 4 for training in fp32. */
typedef struct dpar_recipe {
    char name[16];
    /* bytes per parameter; their sum is the 8 to 20 of the literature */
    double weight, gradient, master, moments;
    double gathered; /* bytes of a weight when ZeRO gathers it */
    double reduced;  /* bytes of a gradient when it is sent */
    double bucket;   /* ZeRO-2 and 3: elements of a bucket; 0 if the buckets are layers */
    double casts; /* bytes moved per element of a product's operands to convert it to 8 or 4 bits */
    int32_t compute; /* format of the matrix products, DPAR_BF16, ...; the head uses 16 bits */
} dpar_recipe;

/* Finds a recipe by its name. "megatron", also called "bf16", is the default. O(recipes). Fails
 * with DPAR_E_UNKNOWN; the message lists the recipes. The numbers are bytes per parameter.
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
 *                   without its second copy of the weights inside nodes, which shard= describes) */
DPAR_API dpar_status dpar_recipe_find(dpar_recipe *recipe, const char *name, dpar_why *why);
/* Returns the name of recipe number `index`, or NULL if there is none. Indices count from 0. The
 * text is static. O(1). */
DPAR_API const char *dpar_recipe_name(int32_t index);

/* How a workload is spread over tp * cp * dp * pp * tiles ranks. tp is the fastest axis, then cp,
 * then dp, then pp (Megatron's tp-cp-dp-pp). The tiles of a grid take the place of cp. */
typedef struct dpar_strategy {
    int32_t tp, sp, cp, cp_kind; /* tensor, sequence (0 or 1) and context parallel; DPAR_CP_* */
    int32_t dp;                  /* all data-parallel ranks: replicas x shards */
    int32_t shard;               /* ranks of a ZeRO group, 1..dp; less than dp is HSDP; 0 is dp */
    int32_t zero;                /* ZeRO stage, 0..3 */
    int32_t pp, vp;              /* pipeline: ranks, and chunks per rank */
    int32_t schedule;            /* DPAR_SCHEDULE_1F1B, ...; never 0 */
    int32_t ep, etp;             /* ranks that share the experts; ranks that share one expert */
    int32_t micro_batch;         /* samples per micro-batch */
    int32_t micro_batches;       /* number of micro-batches per step and data-parallel rank */
    int32_t recompute;           /* DPAR_RECOMPUTE_* */
    int32_t recompute_layers;    /* with RECOMPUTE_FULL: layers of each stage; 0 selects all */
    int32_t offload;             /* bits DPAR_OFFLOAD_* */
    int32_t overlap;             /* bits DPAR_OVERLAP_* */
    int32_t tiles[3];            /* domain parallelism: parts along each axis of the grid */
} dpar_strategy;

/* Sets the strategy of a single rank: every degree 1, one micro-batch of one sample, no
 * recomputation, the schedule 1F1B, default overlap. O(1). */
DPAR_API void dpar_strategy_init(dpar_strategy *strategy);
/* The fields of a strategy. Masks of fields, such as `named`, have bit 1 << DPAR_STRATEGY_FIELD_x.
 */
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
    DPAR_STRATEGY_FIELD_COUNT /* number of fields */
};

/* Reads a strategy from text. Only the fields that the text names change; their order is free.
 *
 *     "tp=8,sp=1,pp=12,vp=2,dp=4,zero=1,shard=8,cp=2,cp_kind=ring,ep=8,etp=1,mbs=1,m=64,
 *      recompute=full,recompute_layers=4,schedule=1f1b,offload=optimizer+activations,
 *      overlap=dp+tp,tiles=2x2"
 *
 * *named receives bit 1 << DPAR_STRATEGY_FIELD_x for each field in the text; `named` may be NULL.
 * O(bytes). Fails with DPAR_E_PARSE if the text cannot be read; *strategy is then unchanged. */
DPAR_API dpar_status dpar_strategy_read(dpar_strategy *strategy, const char *text, size_t bytes,
                                        uint32_t *named, dpar_why *why);
/* Appends a strategy to a text in the form that dpar_strategy_read reads:
 * "dp=2,zero=1,tp=8,sp=1,pp=4,...". Fields that have their default are left out. O(fields). */
DPAR_API void dpar_strategy_write(const dpar_strategy *strategy, dpar_text *text);

/* Returns the number of ranks of a strategy, tp x cp x dp x pp x tiles, or 0 if a degree is below 1
 * or the product exceeds 2^31 - 1. O(1). */
DPAR_API int32_t dpar_strategy_ranks(const dpar_strategy *strategy);

/* A job: the workload, the machine, and the bytes per parameter. */
typedef struct dpar_job {
    const dpar_workload *work;
    const dpar_cluster *cluster;
    dpar_recipe recipe;
} dpar_job;

/* Completes a strategy so that it uses all GPUs of the cluster and the whole batch.
 *
 * named: bits 1 << DPAR_STRATEGY_FIELD_x of the fields that the caller has set and that must not
 *        change. The function sets dp, and micro_batches if batch > 0, unless their bits are set.
 * batch: samples per step; 0 allows any batch.
 *
 * O(1). Fails with DPAR_E_DIVIDE if the GPUs are not a multiple of the other degrees. */
DPAR_API dpar_status dpar_strategy_complete(const dpar_job *job, dpar_strategy *strategy,
                                            uint32_t named, int64_t batch, dpar_why *why);

/* The rules that a legal strategy obeys. The planner counts the strategies that it rejects by
 * rule. */
enum {
    DPAR_STRATEGY_RULE_NONE,
    DPAR_STRATEGY_RULE_DEGREE,    /* a degree below 1, or an option that does not exist */
    DPAR_STRATEGY_RULE_RANKS,     /* the product of the degrees is not the number of GPUs */
    DPAR_STRATEGY_RULE_TP_HEADS,  /* tp does not divide the heads, or the hidden size */
    DPAR_STRATEGY_RULE_TP_WIDE,   /* tp spans nodes; only the usual search refuses that */
    DPAR_STRATEGY_RULE_PP_LAYERS, /* fewer layers than pp * vp, unless embedding and loss count as
                                     two */
    DPAR_STRATEGY_RULE_SCHEDULE,  /* the schedule cannot have this vp or these micro-batches */
    DPAR_STRATEGY_RULE_CP, /* cp does not divide the sequence (ring: 2 cp) or the heads (Ulysses) */
    DPAR_STRATEGY_RULE_EP, /* ep does not divide the experts or the ranks of a stage */
    DPAR_STRATEGY_RULE_ZERO,    /* shard does not divide dp */
    DPAR_STRATEGY_RULE_BATCH,   /* the global batch is not dp * micro_batch * micro_batches */
    DPAR_STRATEGY_RULE_TILES,   /* a tile is thinner than its halo, or the model has no grid */
    DPAR_STRATEGY_RULE_OPTION,  /* an option has no effect here, such as SP without TP */
    DPAR_STRATEGY_RULE_OFFLOAD, /* the node has no memory, or no NVMe, to offload to */
    DPAR_STRATEGY_RULE_MEMORY,  /* the plan does not fit into memory */
    DPAR_STRATEGY_RULE_COUNT    /* number of rules */
};
/* Returns the name of a rule, such as "degree" or "tp-heads", or "?" if there is no such rule. The
 * text is static. O(1). */
DPAR_API const char *dpar_strategy_rule_name(int32_t rule);

/* The purposes of traffic. */
enum {
    DPAR_TRAFFIC_DP, /* gradients, and the weights of ZeRO */
    DPAR_TRAFFIC_TP, /* tensor and sequence parallel layers, embedding, loss, gradients of norms */
    DPAR_TRAFFIC_CP, /* attention of a sequence that is cut */
    DPAR_TRAFFIC_EP, /* tokens to their experts and back */
    DPAR_TRAFFIC_PP, /* messages between stages, and the sum of tied embeddings */
    DPAR_TRAFFIC_HALO, /* halos of tiles */
    DPAR_TRAFFIC_COUNT /* number of purposes */
};

#endif
