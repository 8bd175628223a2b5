/* SPDX-License-Identifier: MIT-0 */
/* 02 - predicts whether a model of 13 billion parameters fits on A100s of 40 GB, how it is best
 * spread over them, and how fast it then trains.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/02_will_it_fit.c -o build/02 && build/02
 *
 *   1x4:a100-40: nothing fits: the nearest of 1659 configurations needs 66.8 GB, the GPU has 42 GB
 *   1x8:a100-40: dp=1,zero=0,tp=4,sp=1,pp=2,...: 261 s a step, 2.01k tokens/s a GPU, MFU 56.2 ...
 *   2x8:a100-40: dp=2,zero=1,tp=2,sp=1,pp=4,...: 120 s a step, 2.18k tokens/s a GPU, MFU 60.9 ...
 *   120.3 s a step, 38.0 GB a GPU, 15 GB of them activations
 */
#include "dpar_cost.h"
#include <stdio.h>

int main(void)
{
    static const char *const machines[] = {"1x4:a100-40", "1x8:a100-40", "2x8:a100-40"};
    static dpar_plan_result plan; /* 40 KB, too much for some stacks */
    char line[300];
    dpar_text text;
    dpar_status status = DPAR_OK;
    dpar_why why;
    for (int i = 0; i < 3; i++) {
        status = dpar_plan_search("llama-2-13b", machines[i], "batch=1024", &plan, &why);
        if (status < 0) { /* the message names the closest plan and the memory that it needs */
            printf("%s: %s\n", machines[i], why.text);
            continue;
        }
        dpar_text_init(&text, line, sizeof line);
        status = dpar_plan_draw(&text, &plan.report, DPAR_PLAN_DRAW_LINE, &why);
        if (status < 0) {
            break;
        }
        printf("%s: %s", machines[i], line);
    }
    if (status < 0) { /* the last machine is large enough, so this is an error */
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    /* The numbers of the last plan. DPAR_PLAN_DRAW_TEXT and DPAR_PLAN_DRAW_EXPLAIN draw tables,
     * DPAR_PLAN_DRAW_SVG draws a picture. */
    const dpar_memory_usage *memory = &plan.plan[0].memory;
    printf("%.1f s a step, %.1f GB a GPU, %.0f GB of them activations\n", plan.step,
           plan.memory * 1e-9, memory->term[DPAR_MEMORY_ACTIVATIONS] * 1e-9);
    return 0;
}
