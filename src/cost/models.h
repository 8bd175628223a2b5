/* SPDX-License-Identifier: MIT-0 */
/* models - builds a workload from a description: presets, text, Hugging Face config.json. */
#ifndef DPARI_COST_MODELS_H
#define DPARI_COST_MODELS_H

#include "workload.h"

enum {
    DPAR_FAMILY_GPT,    /* learned positions, LayerNorm, GELU, biases, dropout; Megatron's GPT */
    DPAR_FAMILY_LLAMA,  /* RMSNorm, rotary, gated MLP, no bias; GQA, MLA and experts by fields */
    DPAR_FAMILY_VIT,    /* patches, not causal */
    DPAR_FAMILY_DIT,    /* diffusion transformer: ViT with adaptive norms */
    DPAR_FAMILY_T5,     /* encoder-decoder */
    DPAR_FAMILY_RESNET, /* bottleneck conv net */
    DPAR_FAMILY_UNET,   /* conv encoder-decoder with skips on a grid */
    DPAR_FAMILY_GRID,   /* explicit grid solver: a stencil code */
    DPAR_FAMILIES
};

/* A model in the words of its paper. 0 means "not said": the builder fills in what follows from the
 * rest (head_width = hidden/heads, kv_heads = heads, ffn = 4 hidden) and refuses what cannot be. */
typedef struct dpar_model {
    char name[32];
    int32_t family;
    int32_t layers, hidden, heads, kv_heads, head_width, ffn, vocab;
    int32_t seq;    /* tokens a sample (positions of learned embeddings too) */
    int32_t tied;   /* input and output embedding share their weights */
    int32_t biases; /* 1 yes, -1 no, 0 as the family has it (GPT, ViT, DiT: yes) */
    int32_t rotary; /* GPT: 1 without learned positions (GPT-NeoX, Falcon, ALiBi) */
    int32_t experts, topk, expert_ffn, shared_ffn, dense_layers; /* mixture of experts */
    double capacity; /* load of the fullest expert over the mean; 0: 1 (balanced) */
    int32_t q_lora, kv_lora, rope_width, qk_width, v_width; /* MLA when kv_lora > 0 */
    int32_t decoder_layers; /* T5: layers of the decoder (0: as many as the encoder) */
    int32_t image[2], patch, channels, out_channels; /* ViT, DiT, conv nets */
    int32_t levels, blocks_per_level, kernel;        /* U-Net: level l has hidden * 2^l channels */
    int64_t extent[3];                               /* GRID: cells; U-Net on a grid uses image */
    int32_t dims, fields, halo;
    double flops_per_cell, bytes_per_cell; /* GRID, a time step; 0: from fields and stencil */
    int32_t attention;                     /* DPAR_ATTENTION_* + 1; 0: the family's default */
    int32_t stack;                         /* DPAR_STACK_* + 1; 0: the family's default */
    int32_t element;                       /* bytes of an activation element; 0: 2 (GRID: 4) */
    int32_t inference;                     /* 1: forward only */
} dpar_model;

/* A preset by name ("llama-3-70b", "gpt3-175b", "unet-0.25deg", ...): E_UNKNOWN names the nearest,
 * *m is written on success only. O(presets x letters).
 * dpar_model_name(i) lists them, NULL past the end. */
DPAR_API dpar_status dpar_model_preset(dpar_model *m, const char *name, dpar_why *why);
DPAR_API const char *dpar_model_name(int32_t index);

/* A model from text: "PRESET[,key=value...]" or "FAMILY:key=value,...":
 *   "llama-3-8b,seq=32768"   "gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048"
 *   "grid:1440x720x100,fields=5,halo=2"   "unet:image=1440x720,channels=104,hidden=64,levels=4"
 * Preset names in any case; keys are the field names above; seq=32k is 32768; image=224 is square;
 * also attention=unfused|flash1|flash,
 * stack=megatron|core|torch|compiled. E_PARSE for a setting, E_UNKNOWN for a preset or family, with
 * a sentence; *m is written on success only. O(bytes). */
DPAR_API dpar_status dpar_model_parse(dpar_model *m, const char *text, size_t bytes, dpar_why *why);

/* A model from the text of a Hugging Face config.json (transformers; MoE and MLA families too).
 * Unknown members are skipped. E_PARSE where it is no JSON or a needed member is missing or of
 * another kind, E_RANGE for a number outside 0 .. 2^31 - 1, E_UNKNOWN for a model_type that is not
 * modelled, each named; *m is written on success only. O(bytes). */
DPAR_API dpar_status dpar_model_read_config(dpar_model *m, const char *json, size_t bytes,
                                            dpar_why *why);

/* The workload of a model. seq > 0 overrides m->seq. E_ARG with the numbers (zero heads, hidden not
 * divisible by heads, ...); *w is undefined then. O(layer classes). */
DPAR_API dpar_status dpar_workload_build(dpar_workload *w, const dpar_model *m, int32_t seq,
                                         dpar_why *why);

#endif
