/* SPDX-License-Identifier: MIT-0 */
/* models - models by name and from text: presets, settings, Hugging Face's config.json.
 *
 *     dpar_model_read(&m, "llama-3-8b,seq=32k", 18, &why); */
#ifndef DPARI_COST_MODELS_H
#define DPARI_COST_MODELS_H

#include "workload.h"

/* A model by name ("llama-3-70b", "gpt3-175b", "unet-0.25deg", ...), case apart. E_UNKNOWN names
 * the nearest; *m is written on success only. O(presets x letters). */
DPAR_API dpar_status dpar_model_find(dpar_model *m, const char *name, dpar_why *why);
/* Their names: index 0..n-1; NULL past the end. O(1). */
DPAR_API const char *dpar_model_name(int32_t index);

/* A model from text: "PRESET[,key=value...]", "FAMILY:key=value,...", or a Hugging Face
 * config.json, whose first character is a '{'. *m is written on success only. O(bytes).
 *
 *     "llama-3-8b,seq=32768"
 *     "gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048"
 *     "grid:1440x720x100,fields=5,halo=2"
 *     "unet:image=1440x720,channels=104,hidden=64,levels=4"
 *
 * Keys are the field names of dpar_model, and attention=unfused|flash1|flash,
 * stack=megatron|core|torch|compiled (or llm-foundry, torchtitan, nanotron, nemo, deepep, maxtext;
 * or one with a year, core@2024: as it was then),
 * loss=eager|compiled|fused|inplace|chunked|parallel. seq=32k is 32768; image=224 is square. Preset
 * names may be in any case. E_PARSE for a setting, E_UNKNOWN for a preset or family, with a
 * sentence.
 *
 * A config.json is transformers', MoE and MLA families too; unknown members are skipped. E_PARSE:
 * it is no JSON, or a needed member is missing or of another kind. E_RANGE: a number outside 0 ..
 * 2^31 - 1. E_UNKNOWN: a model_type that is not modelled. Each is named. */
DPAR_API dpar_status dpar_model_read(dpar_model *m, const char *text, size_t bytes, dpar_why *why);

#endif
