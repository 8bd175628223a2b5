/* SPDX-License-Identifier: MIT-0 */
/* GPipe on 4 ranks, 8 micro-batches: what does this rank do, in which order? */
#define DPAR_IMPLEMENTATION
#include "dpar_schedule.h"

int32_t run(int32_t rank, int64_t *memory, int64_t bytes, const dpar_action **first);
int32_t run(int32_t rank, int64_t *memory, int64_t bytes, const dpar_action **first)
{
    dpar_schedule_desc order = {0};
    dpar_schedule s;
    order.rule = DPAR_SCHEDULE_GPIPE;
    order.ranks = 4;
    order.micro_batches = 8;
    if (dpar_schedule_generate(&s, &order, memory, bytes, NULL) != DPAR_OK) {
        return -1;
    }
    *first = s.action + s.begin[rank];
    return (int32_t)(s.begin[rank + 1] - s.begin[rank]);
}
