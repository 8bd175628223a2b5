/* SPDX-License-Identifier: MIT-0 */
/* kinds - private: the best plan of each kind, kept while a search walks. recommend.c says what a
 * kind is and chooses among them. */
#ifndef DPARI_COST_KINDS_H
#define DPARI_COST_KINDS_H

#include "planner.h"

enum { DPARI_KINDS = 160 };
/* The fastest plan that has just these bits. */
typedef struct dpari_kind {
    int32_t bits;
    double seconds; /* a sample */
    dpar_strategy strategy;
} dpari_kind;
typedef struct dpari_kinds {
    int32_t n;
    dpari_kind of[DPARI_KINDS];
} dpari_kinds;
DPARI_API void dpari_kind_keep(dpari_kinds *k, const dpar_job *job, const dpar_plan *plan);

#endif
