/* SPDX-License-Identifier: MIT-0 */
/* fsdp_private - private: functions of fsdp.c that the step and the state of an fsdp call. */
#ifndef DPARI_TRAIN_FSDP_PRIVATE_H
#define DPARI_TRAIN_FSDP_PRIVATE_H

#include "../comm/agree.h"
#include "fsdp_place.h"

/* The values that must be equal on all ranks in dpar_fsdp_make or dpar_fsdp_load. */
typedef struct dpari_fsdp_given {
    /* the communicator of the shards while values are compared across replicas, otherwise NULL */
    const dpar_comm *shard;
    const dpar_fsdp *fsdp;
    int32_t replicas; /* 1 if there are replicas */
    int32_t ranks;    /* argument of dpar_fsdp_load */
    int64_t steps;    /* argument of dpar_fsdp_load */
} dpari_fsdp_given;

/* True if one of the communicators is broken. */
DPARI_INTERNAL int dpari_fsdp_broken(const dpar_fsdp *fsdp);
/* Returns the status of the communicator that is broken. */
DPARI_INTERNAL dpar_status dpari_fsdp_why_broken(const dpar_fsdp *fsdp);
/* Waits for all weights that are being gathered, and marks all slots as free. The caller then
 * changes the masters, from which the weights must be gathered again. If trained is 1, leaves out
 * frozen units. */
DPARI_INTERNAL dpar_status dpari_fsdp_forget(dpar_fsdp *fsdp, int32_t trained);
/* Agrees on a status over both communicators. If state is NULL, no values are compared. */
DPARI_INTERNAL dpar_status dpari_fsdp_agree(dpar_comm *shard, dpar_comm *replicas, dpar_status st,
                                            const char *plan, dpari_state *state,
                                            dpari_fsdp_given *given, dpar_why *why);
/* Lists the position of the rank. Across replicas, ranks must have the same shard of the same
 * number of shards; within a copy of the model, all or none must have replicas. */
DPARI_INTERNAL void dpari_fsdp_facts_place(dpari_facts *facts, const dpari_fsdp_given *g);

#endif
