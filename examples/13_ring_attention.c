/* SPDX-License-Identifier: MIT-0 */
/* 13 - computes ring attention. Tokens are cut over the ranks and keys and values go round, so that
 * each token sees all tokens before it, on any number of ranks as on one.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/13_ring_attention.c -o build/13 && build/13 --ranks 4
 *   token 23, by the ring:  -0.0463 0.0139 0.0184 0.0141
 *   token 23, on one rank:  -0.0463 0.0139 0.0184 0.0141
 */
#include "dpar_train.h"
#include <stdio.h>
enum { TOKENS = 24, HEADS = 2, WIDTH = 2, ROW = HEADS * WIDTH };

/* Computes the attention of this rank's tokens and the output of its last token, last[ROW]. */
static int attend(dpar_comm *comm, double *last)
{
    const int64_t ends[2] = {0, TOKENS}; /* one document */
    double q[TOKENS * ROW], k[TOKENS * ROW], v[TOKENS * ROW], out[TOKENS * ROW];
    double lse[TOKENS * HEADS];
    const dpar_attention_arrays arrays = {.q = q, .k = k, .v = v, .out = out, .lse = lse};
    dpar_attention_desc desc = {.heads = HEADS, .width = WIDTH, .type = DPAR_F64, .causal = 1};
    dpar_attention_plan *plan = NULL;
    int64_t first = 0, count = 0; /* this rank's tokens */
    dpar_why why;
    /* EVEN gives each rank consecutive tokens; ZIGZAG would give all ranks the same work. */
    if (dpar_packed_init(&desc.tokens, 1, ends, comm->size, DPAR_SPLIT_EVEN, &why) < 0 ||
        dpar_attention_make(comm, &desc, &plan, &why) < 0) {
        return dpar_fail(comm, &why);
    }
    dpar_split_range(DPAR_SPLIT_EVEN, TOKENS, comm->size, comm->rank, &first, &count);
    for (int64_t i = 0; i < count * ROW; i++) {
        const int64_t n = first * ROW + i; /* the same values on any number of ranks */
        q[i] = n * 7 % 11 / 5.0 - 1.0;
        k[i] = n * 5 % 13 / 6.0 - 1.0;
        v[i] = n * 3 % 17 / 8.0 - 1.0;
    }
    if (dpar_attention_forward(plan, &arrays) < 0 || dpar_attention_free(plan) < 0) {
        return dpar_fail(comm, NULL);
    }
    for (int i = 0; i < ROW && count > 0; i++) {
        last[i] = out[(count - 1) * ROW + i];
    }
    return 0;
}

static int ring(dpar_comm *world, void *unused)
{
    double a[ROW], b[ROW];
    dpar_comm *self = NULL; /* a communicator of this rank only */
    (void)unused;
    if (dpar_comm_split(world, world->rank, 0, &self) < 0 || attend(world, a) != 0 ||
        attend(self, b) != 0) {
        return dpar_fail(world, NULL);
    }
    if (world->rank == world->size - 1) { /* it has the last token */
        printf("token 23, by the ring:  %.4f %.4f %.4f %.4f\n", a[0], a[1], a[2], a[3]);
        printf("token 23, on one rank:  %.4f %.4f %.4f %.4f\n", b[0], b[1], b[2], b[3]);
    }
    return dpar_comm_free(self) < 0;
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, ring, NULL);
}
