/* SPDX-License-Identifier: MIT-0 */
/* config_json - private: reads a model from a config.json. */
#ifndef DPARI_COST_CONFIG_JSON_H
#define DPARI_COST_CONFIG_JSON_H

#include "../base/arith.h"
#include "workload.h"

/* Reads a config.json of transformers, of Meta or of others. *model is written on success only. */
DPARI_INTERNAL dpar_status dpari_model_config(dpar_model *model, const char *json, size_t bytes,
                                              dpar_why *why);

#endif
