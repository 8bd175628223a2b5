/* SPDX-License-Identifier: MIT-0 */
/* Makes a schedule by each rule and compares a checksum of all actions with that of other targets.
 */
#include "schedule_selftest.h"

#include "../index/index_private.h"
#include "generate.h"

DPAR_API DPARI_COLD dpar_status dpar_schedule_selftest(dpar_why *why)
{
    int64_t memory[64], i;
    dpar_schedule_desc order;
    dpar_schedule s;
    uint32_t sum = 0;
    dpari_zero(&order, sizeof(order));
    order.ranks = 2;
    order.micro_batches = 4;
    /* Three rules need more memory. They add their status and the schedule of the rule before. */
    for (order.rule = 1; order.rule < DPAR_SCHEDULE_END; order.rule++) {
        sum = dpari_digest(sum, dpar_schedule_generate(&s, &order, memory, sizeof(memory), NULL));
        for (i = 0; i < s.begin[2]; i++) {
            const dpar_action *action = &s.action[i];
            sum = dpari_digest(sum, action->kind * INT32_C(4096) + action->stage * 256 +
                                        action->micro_batch);
        }
    }
    return dpari_differs(sum, UINT32_C(1481399199), "schedules", why);
}
