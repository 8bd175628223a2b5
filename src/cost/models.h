/* SPDX-License-Identifier: MIT-0 */
/* models - reads models from text: a preset's name, settings, or Hugging Face's config.json.
 *
 *     dpar_model_read(&m, "llama-3-8b,seq=32k", 18, &why); */
#ifndef DPARI_COST_MODELS_H
#define DPARI_COST_MODELS_H

#include "workload.h"

/* Finds a model by its name ("llama-3-70b", "gpt3-175b", "unet-0.25deg", ...), in upper or lower
 * case. *model is written on success only. O(presets x letters). Fails with DPAR_E_UNKNOWN; the
 * message names similar models, if there are any. */
DPAR_API dpar_status dpar_model_find(dpar_model *model, const char *name, dpar_why *why);
/* Returns the name of preset number `index`, or NULL if there is none. Indices count from 0.
 * O(1). */
DPAR_API const char *dpar_model_name(int32_t index);

/* Reads a model from text: "PRESET[,key=value...]", "FAMILY:key=value,...", or a Hugging Face
 * config.json, which begins with '{'.
 *
 *     "llama-3-8b,seq=32768"
 *     "gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048"
 *     "grid:1440x720x100,fields=5,halo=2"
 *     "unet:image=1440x720,channels=104,hidden=64,levels=4"
 *
 * The keys are the field names of dpar_model, and these three:
 *
 *     attention=unfused|flash1|flash
 *     loss=eager|compiled|fused|inplace|chunked|parallel
 *     stack=megatron|core|torch|compiled|llm-foundry|torchtitan|nanotron|nemo|deepep|maxtext;
 *     a year may follow, as in core@2024, and selects the software of that time
 *
 * seq=32k is 32768, and image=224 is a square. Preset names may be in upper or lower case. A
 * config.json is one of transformers, with MoE and MLA families; unknown members are skipped.
 * *model is written on success only. O(bytes).
 *
 * Fails with DPAR_E_UNKNOWN for a preset, family or model_type that does not exist here. Fails with
 * DPAR_E_PARSE for a setting that cannot be read, and for a config.json that is not JSON or lacks a
 * member that is needed. Fails with DPAR_E_RANGE for a number of a config.json outside 0..2^31 - 1.
 * The message names the setting or member. */
DPAR_API dpar_status dpar_model_read(dpar_model *model, const char *text, size_t bytes,
                                     dpar_why *why);

#endif
