/* SPDX-License-Identifier: MIT-0 */
/* expert_private - private: the plan and the routing of experts, which expert.c makes and
 * expert_rows.c uses. */
#ifndef DPARI_TRAIN_EXPERT_PRIVATE_H
#define DPARI_TRAIN_EXPERT_PRIVATE_H

#include "../base/arith.h"
#include "../comm/peer_arrays.h"
#include "../host/mem.h"
#include "expert.h"

/* A plan. The public part comes first, so that a pointer to it is a pointer to the plan. */
typedef struct dpari_experts {
    dpar_experts_plan head;
    dpar_comm *comm;
    /* number of counts per expert: with DPAR_EXPERTS_DROP_POSITION k, one for each position of a
     * choice, otherwise 1 */
    int32_t slots;
    int32_t tag;    /* from a hash of the layer, the same on all ranks */
    int32_t routes; /* calls of dpar_experts_route so far, modulo DPARI_EXPERT_ROUTES */

    /* The exchange of counts. For each rank: the number of tokens, then [slots][experts of the
     * receiving rank] counts. */
    int32_t *sent_counts, *received_counts;
    int64_t *sent_number, *received_number; /* [ranks] length of these lists for each rank */

    int32_t *tally;          /* [slots][experts] number of choices, or of free rows */
    int32_t *order;          /* choices sorted by expert, for DPAR_EXPERTS_DROP_WEIGHT_LOCAL */
    int64_t *send, *receive; /* [ranks] elements of an all-to-all-v */
    /* [experts] next position of each expert in a list that is sorted by expert; in
     * dpari_expert_find the offset from a kept choice to its row in from[e] */
    int64_t *fill;

    /* [experts] the array that contains the rows of each expert. The rest, [2][k], holds the rows
     * of two tokens that are added, with the weights by[2][k]. */
    const void **from;
    double *by;

    dpari_peer *peer; /* [ranks] */
    void *packed;     /* rows of the kept choices in the order of experts, as they are sent */
    void *staged;     /* rows in the order of ranks; NULL if that is the order of experts */

    /* Memory of the device if comm->mem is one. It contains packed, staged, `weight`, and copies
     * (place, token, choice) of three arrays of the routing `indexed`, whose tag was indexed_tag.
     */
    void *device;
    int64_t device_bytes;
    int32_t *place, *token, *choice;
    void *weight; /* weights of the kept choices, in the order of experts */
    const struct dpari_routing *indexed;
    int32_t indexed_tag;

    /* memory for one routing if dpar_experts_make allocated the plan without comm->mem, or NULL */
    void *routing_memory;
    dpar_mem_span *span; /* on a device: [ranks][own], and at least DPARI_EXPERT_INDICES */
} dpari_experts;

/* A routing. Other ranks read the first four arrays, which are at the same offsets in every rank's
 * routing. The kept choices are sorted by expert, then by token. */
typedef struct dpari_routing {
    dpar_experts_routing head;
    int64_t *send;   /* [ranks] rows that are sent to each rank */
    int64_t *take;   /* [ranks] rows that are received from each rank */
    int32_t *choice; /* [kept] index token k + position of each kept choice */
    int64_t *row;    /* [ranks][own] first row of the piece from a rank to an expert of this rank */
    int64_t *piece;  /* [ranks][own] number of rows of that piece */
    int64_t *start;  /* [experts] first kept choice of each expert */
    int32_t *expert; /* [tokens][k] expert of each choice that is kept */
    int32_t *token;  /* [kept] token of each kept choice; NULL without a device */
    int32_t tag;     /* identifies the layer and this call of dpar_experts_route on all ranks */
} dpari_routing;

enum { DPARI_EXPERT_INDICES = 3 }; /* arrays of a routing that a device reads */

/* Returns the number of choices of the tokens of a routing, including dropped ones. */
DPARI_FN int64_t dpari_expert_choices(const dpari_experts *plan, const dpari_routing *routing)
{
    return routing->head.tokens * plan->head.layer.choices;
}

/* Returns the sum of counts over the other ranks. */
DPARI_INTERNAL int64_t dpari_expert_away(const dpar_comm *comm, const int64_t *counts);
/* Exchanges values between ranks, and counts the bytes sent. Except for direct reads, this function
 * sends all data of experts. */
DPARI_INTERNAL dpar_status dpari_expert_send(dpari_experts *plan, const void *in,
                                             const int64_t *in_count, void *out,
                                             const int64_t *out_count, int32_t type);

#endif
