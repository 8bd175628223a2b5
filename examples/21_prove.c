/* SPDX-License-Identifier: MIT-0 */
/* 21 - proves the halo exchange of 4096 ranks on one core, and finds the deadlock of another one.
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/21_prove.c -o build/21 && build/21
 *   4096 ranks: each halo cell comes once, from its owner; at most 592 bytes per rank in 8 messages
 *   shift, eager: each rank reaches its end
 *   shift, blocking: 4 ranks wait for each other: rank 0 waits at action 0 for its send to rank 1;
 */
#include "dpar_proof.h"
#include <stdio.h>
#include <string.h>
enum { RANKS = 4 };
static int64_t memory[1 << 20];

/* Proves the exchange of a halo of one cell, which is periodic along the last dim. */
static dpar_status prove_grid(dpar_why *why)
{
    const int32_t parts[2] = {64, 64};
    const int64_t cells[2] = {720, 1440};
    const dpar_placement cut[2] = {dpar_shard_by(0, DPAR_SPLIT_EVEN, 0),
                                   dpar_shard_by(1, DPAR_SPLIT_EVEN, 0)};
    dpar_proof_desc desc = {.memory = memory, .bytes = sizeof memory};
    dpar_halo halo = {.shape = DPAR_STENCIL_BOX, .periodic = 1 << 1};
    dpar_proof_report report;
    dpar_mesh mesh;
    dpar_status status = dpar_mesh_init(&mesh, "y x", parts, DPAR_ORDER_LAST_FASTEST, 0, why);
    if (status == DPAR_OK) {
        status = dpar_layout_init(&halo.grid, &mesh, 2, cells, cut, why);
    }
    halo.low[0] = halo.high[0] = halo.low[1] = halo.high[1] = 1;
    if (status == DPAR_OK) {
        status = dpar_proof_halo(&halo, &desc, &report, why);
    }
    if (status == DPAR_OK) {
        printf("%d ranks: each halo cell comes once, from its owner; at most %lld bytes per rank "
               "in %lld messages\n",
               (int)report.ranks, (long long)report.sent.most, (long long)report.messages.most);
    }
    return status;
}

/* Every rank sends to its right neighbour, then receives from its left one. */
static void shift(int32_t transport, const char *name)
{
    dpar_proof_action action[2 * RANKS] = {{0}};
    dpar_proof_order_desc order = {.ranks = RANKS, .action = action, .transport = transport};
    int64_t first[RANKS + 1];
    dpar_why why = {"each rank reaches its end", 0};
    for (int rank = 0; rank < RANKS; rank++) {
        first[rank] = 2 * rank;
        action[2 * rank].kind = DPAR_PROOF_SEND;
        action[2 * rank].peer = (rank + 1) % RANKS;
        action[2 * rank + 1].kind = DPAR_PROOF_RECV;
        action[2 * rank + 1].peer = (rank + RANKS - 1) % RANKS;
    }
    first[RANKS] = 2 * RANKS;
    order.first = first;
    order.capacity = 1; /* an eager channel buffers one message from each rank to each other */
    order.memory = memory;
    order.bytes = sizeof memory;
    (void)dpar_proof_order(&order, &why);
    printf("shift, %s: %.*s\n", name, (int)(strcspn(why.text, ";") + 1), why.text);
}

int main(void)
{
    dpar_why why;
    if (prove_grid(&why) != DPAR_OK) {
        printf("%s\n", why.text);
        return 1;
    }
    shift(DPAR_PROOF_EAGER, "eager");
    shift(DPAR_PROOF_BLOCKING, "blocking");
    return 0;
}
