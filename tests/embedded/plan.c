/* SPDX-License-Identifier: MIT-0 */
/* The best plan for a model of 13 billion parameters on 16 GPUs: seconds a step, bytes a GPU. */
#define DPAR_IMPLEMENTATION
#include "dpar_cost.h"

int32_t run(double *step, double *memory, dpar_plan_result *room);
int32_t run(double *step, double *memory, dpar_plan_result *room)
{
    if (dpar_plan_search("llama-2-13b", "2x8:a100-40", "batch=1024", room, NULL) < 0) {
        return -1;
    }
    *step = room->step;
    *memory = room->memory;
    return room->plan[0].strategy.pp;
}
