/* SPDX-License-Identifier: MIT-0 */
/* 09 - draws two schedules of a pipeline: 1F1B, and zero bubble, which splits the backward. With
 * the argument `svg` it draws the second as a picture.
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
#include <string.h>

/* Draws a schedule of 4 stages and 8 micro-batches. Returns 1 after an error. */
static int draw(const char *name, int32_t format)
{
    static int64_t memory[1000], work[4000]; /* if too small, the message says how many bytes */
    static char buffer[1 << 16];
    dpar_schedule_desc desc = {0};
    dpar_schedule schedule;
    dpar_text text;
    dpar_why why;
    desc.name = name;
    desc.ranks = 4;
    desc.micro_batches = 8;
    dpar_text_init(&text, buffer, sizeof buffer);
    if (dpar_schedule_generate(&schedule, &desc, memory, sizeof memory, &why) < 0 ||
        dpar_schedule_sketch(&schedule, format, work, sizeof work, &text, &why) < 0) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    printf("%s", buffer);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "svg") == 0) {
        return draw("zb-h1", DPAR_SCHEDULE_DRAW_SVG);
    }
    if (draw("1f1b", DPAR_SCHEDULE_DRAW_TEXT) != 0) {
        return 1;
    }
    return draw("zb-h1", DPAR_SCHEDULE_DRAW_TEXT);
}
