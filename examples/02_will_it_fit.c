/* SPDX-License-Identifier: MIT-0 */
/* 02 - will it fit, how, and how fast? A model of 13 billion parameters on A100s of 40 GB.
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
    static const char *const machine[] = {"1x4:a100-40", "1x8:a100-40", "2x8:a100-40"};
    static dpar_plan_result plan; /* 40 KB */
    char line[300];
    dpar_text text;
    dpar_why why;
    int i;
    for (i = 0; i < 3; i++) {
        if (dpar_plan_search("llama-2-13b", machine[i], "batch=1024", &plan, &why) < 0) {
            printf("%s: %s\n", machine[i], why.text); /* what came nearest, and by how much */
            continue;
        }
        dpar_text_init(&text, line, sizeof line);
        dpar_plan_draw(&text, &plan.report, DPAR_PLAN_DRAW_LINE, NULL);
        printf("%s: %s", machine[i], line);
    }
    /* the numbers, for a program; DPAR_PLAN_DRAW_TEXT and _EXPLAIN are tables, _SVG is a picture */
    printf("%.1f s a step, %.1f GB a GPU, %.0f GB of them activations\n", plan.step,
           plan.memory * 1e-9, plan.plan[0].memory.term[DPAR_MEMORY_ACTIVATIONS] * 1e-9);
    return 0;
}
