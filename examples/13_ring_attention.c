/* SPDX-License-Identifier: MIT-0 */
/* 13 - ring attention: tokens are cut over the ranks, keys and values go round, and each rank's
 * tokens see all before them, on any number of ranks as if one had them all.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/13_ring_attention.c -o build/13 && build/13 --ranks 4
 *
 *   token 23, by the ring:  -0.0463 0.0139 0.0184 0.0141
 *   token 23, on one rank:  -0.0463 0.0139 0.0184 0.0141
 */
#include "dpar_train.h"
#include <stdio.h>
enum { TOKENS = 24, HEADS = 2, WIDTH = 2, ROW = HEADS * WIDTH }; /* 1, 2, 3, 4 ... ranks */

/* out[own tokens][ROW] from queries, keys and values of the own tokens; returns how many. */
static int64_t attend(dpar_comm *c, double *out)
{
    const int64_t ends[2] = {0, TOKENS}; /* one document */
    double q[TOKENS * ROW], k[TOKENS * ROW], v[TOKENS * ROW], lse[TOKENS * HEADS];
    dpar_attention_desc layer = {0};
    dpar_attention_plan *plan = NULL;
    dpar_attention_arrays a = {0};
    int64_t first = 0, count = 0;
    dpar_split_range(DPAR_SPLIT_EVEN, TOKENS, c->size, c->rank, &first, &count);
    for (int i = 0; i < count * ROW; i++) {
        const int at = (int)first * ROW + i; /* among all tokens */
        q[i] = at * 7 % 11 / 5.0 - 1.0;
        k[i] = at * 5 % 13 / 6.0 - 1.0;
        v[i] = at * 3 % 17 / 8.0 - 1.0;
    }
    dpar_packed_init(&layer.tokens, 1, ends, c->size, DPAR_SPLIT_EVEN, NULL); /* ZIGZAG balances */
    layer.heads = HEADS, layer.width = WIDTH, layer.type = DPAR_F64, layer.causal = 1;
    dpar_attention_make(c, &layer, &plan, NULL);
    a.q = q, a.k = k, a.v = v, a.out = out, a.lse = lse;
    if (dpar_attention_forward(plan, &a) < 0 || dpar_attention_free(plan) < 0) {
        return 0;
    }
    return count;
}

static int ring(dpar_comm *world, void *unused)
{
    double out[2][TOKENS * ROW];
    dpar_comm *alone = NULL; /* each rank by itself */
    const int64_t n = attend(world, out[0]);
    if (unused || n < 1 || dpar_comm_split(world, world->rank, 0, &alone) < 0 ||
        attend(alone, out[1]) < 1) {
        return dpar_fail(world, NULL);
    }
    if (world->rank == world->size - 1) { /* which has the last token */
        const double *by = out[0] + (n - 1) * ROW, *on = out[1] + (TOKENS - 1) * ROW;
        printf("token 23, by the ring:  %.4f %.4f %.4f %.4f\n", by[0], by[1], by[2], by[3]);
        printf("token 23, on one rank:  %.4f %.4f %.4f %.4f\n", on[0], on[1], on[2], on[3]);
    }
    return dpar_comm_free(alone) < 0;
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, ring, NULL);
}
