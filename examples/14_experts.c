/* SPDX-License-Identifier: MIT-0 */
/* 14 - computes a mixture of experts. Each token is sent to two experts, whatever ranks they are
 * on, and their results come back as a weighted sum. Expert e multiplies by e + 1.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/14_experts.c -o build/14 && build/14 --ranks 4
 *   token 10: 0.75 of expert 2 and 0.25 of 4 make 35.00, and 35.00 came back
 *   token 11: 0.75 of expert 1 and 0.25 of 4 make 30.25, and 30.25 came back
 */
#include "dpar_train.h"
#include <stdio.h>
enum { TOKENS = 12, EXPERTS = 6, CHOICES = 2, MOST = TOKENS * CHOICES };

static int mixture(dpar_comm *world, void *unused)
{
    double tokens[TOKENS], sums[TOKENS]; /* a token is one number */
    double weight[MOST], rows[MOST];
    int32_t chosen[MOST];
    int64_t first = 0, count = 0; /* this rank's tokens */
    dpar_experts_desc desc = {
        .choices = CHOICES, .max_tokens = TOKENS, .width = 1, .type = DPAR_F64};
    dpar_experts_plan *plan = NULL;
    dpar_experts_routing *routing = NULL;
    dpar_why why;
    (void)unused;
    dpar_split_range(DPAR_SPLIT_EVEN, TOKENS, world->size, world->rank, &first, &count);
    for (int64_t i = 0; i < count; i++) { /* in a model dpar_router_forward chooses the experts */
        const int64_t token = first + i, expert = token * 5 % EXPERTS;
        tokens[i] = (double)token;
        chosen[2 * i] = (int32_t)expert;
        chosen[2 * i + 1] = (int32_t)((expert + 1 + token % 3) % EXPERTS);
        weight[2 * i] = 0.75;
        weight[2 * i + 1] = 0.25;
    }
    const dpar_experts_choices choices = {.tokens = count, .chosen = chosen};
    const dpar_experts_arrays arrays = {
        .x = tokens, .rows = rows, .results = rows, .weight = weight, .y = sums};
    if (dpar_split_init(&desc.experts, DPAR_SPLIT_EVEN, EXPERTS, world->size, 1, &why) < 0 ||
        dpar_experts_make(world, &desc, &plan, &why) < 0 ||
        dpar_experts_route(plan, NULL, 0, &choices, &routing, &why) < 0) {
        return dpar_fail(world, &why);
    }
    if (dpar_experts_dispatch(plan, routing, &arrays) < 0) { /* fills rows for own experts */
        return dpar_fail(world, NULL);
    }
    for (int32_t e = 0; e < plan->count; e++) {
        for (int64_t i = 0; i < routing->count[e]; i++) {
            rows[routing->first[e] + i] *= plan->first + e + 1;
        }
    }
    if (dpar_experts_combine(plan, routing, &arrays) < 0) { /* fills the sums of own tokens */
        return dpar_fail(world, NULL);
    }
    for (int64_t i = 0; i < count; i++) {
        const int32_t *expert = chosen + 2 * i;
        if (first + i >= 10) {
            printf("token %d: 0.75 of expert %d and 0.25 of %d make %.2f, and %.2f came back\n",
                   (int)(first + i), (int)expert[0], (int)expert[1],
                   tokens[i] * (0.75 * (expert[0] + 1) + 0.25 * (expert[1] + 1)), sums[i]);
        }
    }
    return dpar_experts_free(plan) < 0;
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, mixture, NULL);
}
