/* SPDX-License-Identifier: MIT-0 */
/* 09 - a pipeline schedule by name, drawn: 1F1B, and zero bubble, which splits the backward.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/09_schedule.c -o build/09 && build/09
 *
 *   4 ranks, 4 stages, 8 micro-batches, makespan 33; 66 columns = 33
 *   rank 0 |F0F1F2F3............B0--F4B1--F5B2--F6B3--F7B4--..B5--..B6--..B7--|
 *   rank 1 |..F0F1F2........B0--F3B1--F4B2--F5B3--F6B4--F7B5--..B6--..B7--....|
 *   rank 2 |....F0F1....B0--F2B1--F3B2--F4B3--F5B4--F6B5--F7B6--..B7--........|
 *   rank 3 |......F0B0--F1B1--F2B2--F3B3--F4B4--F5B5--F6B6--F7B7--............|
 *   time    0         5         10        15        20        25        30
 *   F forward  B backward  . idle
 *   4 ranks, 4 stages, 8 micro-batches, makespan 27; 54 columns = 27
 *   rank 0 |F0F1F2F3......I0W0F4I1W1F5I2W2F6I3W3F7I4W4I5W5I6W6I7W7|
 *   rank 1 |..F0F1F2....I0F3I1W0F4I2W1F5I3W2F6I4W3F7I5W4I6W5I7W6W7|
 *   rank 2 |....F0F1..I0F2I1F3I2W0F4I3W1F5I4W2F6I5W3F7I6W4I7W5W6W7|
 *   rank 3 |......F0I0F1I1F2I2F3I3W0F4I4W1F5I5W2F6I6W3F7I7W4W5W6W7|
 *   time    0         5         10        15        20
 *   F forward  I input gradient  W weight gradient  . idle
 *
 *   build/09 svg > build/09.svg && head -c 4 build/09.svg && echo
 *
 *   <svg
 */
#include "dpar_schedule.h"
#include <stdio.h>

int main(int argc, char **argv)
{
    static const char *const name[] = {"1f1b", "zb-h1"};
    static int64_t memory[1000], work[4000]; /* too small: E_ROOM, and why says how many bytes */
    static char text[1 << 16];
    const int32_t format = argc > 1 ? DPAR_SCHEDULE_DRAW_SVG : DPAR_SCHEDULE_DRAW_TEXT;
    dpar_schedule s;
    dpar_text t;
    dpar_why why;
    int i;
    (void)argv;
    for (i = argc > 1; i < 2; i++) { /* 4 stages, 8 micro-batches */
        dpar_text_init(&t, text, sizeof text);
        if (dpar_schedule_make(memory, sizeof memory, name[i], 4, 8, &s, &why) < 0 ||
            dpar_schedule_sketch(&s, format, work, sizeof work, &t, &why) < 0) {
            return puts(why.text);
        }
        fputs(text, stdout);
    }
    return 0;
}
