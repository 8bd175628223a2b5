/* SPDX-License-Identifier: MIT-0 */
/* 14 - a mixture of experts: each token goes to two experts, on whatever ranks they are, and comes
 * back weighted, the same on any number of ranks. Expert e multiplies by e + 1.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/14_experts.c -o build/14 && build/14 --ranks 4
 *
 *   token 10: 0.75 of expert 2 and 0.25 of 4 make 35.00, and 35.00 came back
 *   token 11: 0.75 of expert 1 and 0.25 of 4 make 30.25, and 30.25 came back
 */
#include "dpar_train.h"
#include <stdio.h>
enum { TOKENS = 12, EXPERTS = 6, CHOICES = 2, MOST = TOKENS * CHOICES };

static int mixture(dpar_comm *world, void *unused)
{
    double x[TOKENS], y[TOKENS], weight[MOST], rows[MOST]; /* a token is one number */
    int32_t chosen[MOST], e;
    dpar_experts_desc layer = {0};
    dpar_experts_plan *plan = NULL;
    dpar_experts_routing *to = NULL; /* where tokens go */
    dpar_experts_choices choices = {0};
    dpar_experts_arrays a = {0};
    dpar_why why;
    int64_t first = 0, count = 0, i;
    dpar_split_range(DPAR_SPLIT_EVEN, TOKENS, world->size, world->rank, &first, &count);
    for (i = 0; i < count; i++) { /* what a router decides: dpar_router_forward */
        x[i] = (double)(first + i);
        chosen[2 * i] = (int32_t)((first + i) * 5 % EXPERTS);
        chosen[2 * i + 1] = (int32_t)((chosen[2 * i] + 1 + (first + i) % 3) % EXPERTS);
        weight[2 * i] = 0.75, weight[2 * i + 1] = 0.25;
    }
    dpar_split_init(&layer.experts, DPAR_SPLIT_EVEN, EXPERTS, world->size, 1, NULL);
    layer.choices = CHOICES, layer.tokens = TOKENS, layer.width = 1, layer.type = DPAR_F64;
    choices.tokens = count, choices.chosen = chosen;
    a.x = x, a.rows = rows, a.results = rows, a.weight = weight, a.y = y;
    if (unused || dpar_experts_make(world, &layer, &plan, &why) < 0 ||
        dpar_experts_route(plan, NULL, 0, &choices, &to, &why) < 0) {
        return dpar_fail(world, &why);
    }
    dpar_experts_dispatch(plan, to, &a); /* rows: the tokens of this rank's experts */
    for (e = 0; e < plan->own; e++) {
        for (i = to->begin[e]; i < to->begin[e] + to->count[e]; i++) {
            rows[i] *= plan->first + e + 1;
        }
    }
    dpar_experts_combine(plan, to, &a); /* y: weighted sums, at home */
    for (i = first < 10 ? 10 - first : 0; i < count && world->status == 0; i++) {
        const int32_t *c = chosen + 2 * i;
        printf("token %d: 0.75 of expert %d and 0.25 of %d make %.2f, and %.2f came back\n",
               (int)(first + i), (int)c[0], (int)c[1],
               x[i] * (0.75 * (c[0] + 1) + 0.25 * (c[1] + 1)), y[i]);
    }
    return dpar_experts_free(plan) < 0 || world->status < 0 ? dpar_fail(world, NULL) : 0;
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, mixture, NULL);
}
