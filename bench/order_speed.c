/* SPDX-License-Identifier: MIT-0 */
/* order_speed - measures how long it takes to generate, lower, simulate and check schedules:
 * interleaved 1F1B lists of growing size, up to 64 ranks, 8 chunks and 1024 micro-batches (1
 * million computations, 3 million actions with messages). Columns are seconds, the fastest of
 * several runs, and for the simulation million actions a second.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. bench/order_speed.c -o build/order_speed && build/order_speed
 *   build/order_speed PASSES < compute_only.csv > lowered.csv
 *
 * With PASSES, a sum of DPAR_LOWER_x, it lowers the schedule on standard input instead and prints
 * the seconds to standard error. bench/order_peer.py calls it so and compares the result and the
 * time with PyTorch's.
 *
 * Exit codes: 0 done; 1 no memory, or dpar refused a schedule; 2 wrong arguments. */
#define _POSIX_C_SOURCE 199309L
#include "dpar_schedule.h"

#include "../helpers/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns memory that has been written to. Ends the program if there is none. */
static void *get(int64_t bytes)
{
    void *mem = bytes < 0 ? NULL : malloc((size_t)bytes + 1);
    if (mem == NULL) {
        fprintf(stderr, "order_speed: no memory for %lld bytes\n", (long long)bytes);
        exit(1);
    }
    memset(mem, 1, (size_t)bytes); /* so that no pass pays for the first touch of a page */
    return mem;
}

/* Ends the program with dpar's message if a call failed. */
static void must(dpar_status st, const dpar_why *why)
{
    if (st != DPAR_OK) {
        fprintf(stderr, "order_speed: %s\n", why->text);
        exit(1);
    }
}

/* The same for a call without memory, which has to fail with DPAR_E_ROOM and sets why->bytes to how
 * many bytes it needs. */
static void needs(dpar_status st, const dpar_why *why)
{
    if (st != DPAR_E_ROOM) {
        must(st, why);
    }
}

static double least_of(double first, double second)
{
    return first < second ? first : second;
}

/* Generates an interleaved 1F1B list `times` times. Returns the fewest seconds. */
static double generated(dpar_schedule *list, int32_t ranks, int32_t chunks, int32_t micro_batches,
                        int times)
{
    dpar_schedule_desc order;
    dpar_why why;
    double since, least = 1e9;
    int64_t bytes;
    void *mem;
    memset(&order, 0, sizeof order);
    order.rule = DPAR_SCHEDULE_INTERLEAVED;
    order.ranks = ranks;
    order.chunks = chunks;
    order.micro_batches = micro_batches;
    needs(dpar_schedule_generate(list, &order, NULL, 0, &why), &why);
    bytes = why.bytes;
    mem = get(bytes);
    while (times-- > 0) {
        since = now();
        must(dpar_schedule_generate(list, &order, mem, bytes, &why), &why);
        least = least_of(least, now() - since);
    }
    return least;
}

/* Simulates a list `times` times and keeps the times of all actions and messages. Returns the
 * fewest seconds. sends: DPAR_SEND_MODE_x. */
static double simulated(const dpar_schedule *list, int32_t sends, int times)
{
    dpar_schedule_times durations;
    dpar_schedule_simulate_desc how;
    dpar_timing timing;
    dpar_why why;
    double since, least = 1e9;
    int64_t actions = list->begin[list->ranks], bytes;
    int64_t *start = (int64_t *)get(8 * actions), *end = (int64_t *)get(8 * actions);
    void *mem;
    memset(&durations, 0, sizeof durations);
    durations.forward.all = 100;
    durations.input.all = durations.weight.all = 90;
    durations.latency.all = 7;
    durations.sends = sends;
    memset(&how, 0, sizeof how);
    how.times = &durations;
    how.start = start;
    how.end = end;
    needs(dpar_schedule_simulate(list, &how, &timing, NULL, 0, &why), &why);
    bytes = why.bytes;
    mem = get(bytes);
    while (times-- > 0) {
        since = now();
        must(dpar_schedule_simulate(list, &how, &timing, mem, bytes, &why), &why);
        least = least_of(least, now() - since);
    }
    free(start);
    free(end);
    free(mem);
    return least;
}

/* Checks `times` times that a list is correct and ends over the strictest transport. Returns the
 * fewest seconds. */
static double proved(const dpar_schedule *list, int times)
{
    dpar_schedule_check_desc how;
    dpar_why why;
    double since, least = 1e9;
    int64_t bytes;
    void *mem;
    memset(&how, 0, sizeof how);
    how.transport = DPAR_TRANSPORT_BLOCKING;
    needs(dpar_schedule_check(list, &how, NULL, 0, &why), &why);
    bytes = why.bytes;
    mem = get(bytes);
    while (times-- > 0) {
        since = now();
        must(dpar_schedule_check(list, &how, mem, bytes, &why), &why);
        least = least_of(least, now() - since);
    }
    free(mem);
    return least;
}

/* Runs passes over `in` `times` times and makes `out`. Returns the fewest seconds. */
static double lowered(dpar_schedule *out, const dpar_schedule *in, int32_t passes, int times)
{
    dpar_schedule_lower_desc how;
    dpar_why why;
    double since, least = 1e9;
    int64_t bytes;
    void *mem;
    memset(&how, 0, sizeof how);
    how.passes = passes;
    how.channel = DPAR_CHANNEL_EDGE;
    needs(dpar_schedule_lower(out, in, &how, NULL, 0, &why), &why);
    bytes = why.bytes;
    mem = get(bytes);
    while (times-- > 0) {
        since = now();
        must(dpar_schedule_lower(out, in, &how, mem, bytes, &why), &why);
        least = least_of(least, now() - since);
    }
    return least;
}

/* Measures and prints one line of the table. */
static void line(int32_t ranks, int32_t chunks, int32_t micro_batches, int times)
{
    dpar_schedule in, out, full, moved;
    double make, messages, all, late, plain, sent, proof, n, computes;
    make = generated(&in, ranks, chunks, micro_batches, times);
    messages = lowered(&out, &in, DPAR_LOWER_MESSAGES, times);
    all = lowered(&full, &in, DPAR_LOWER_SHARDS | DPAR_LOWER_REDUCE | DPAR_LOWER_MESSAGES, times);
    late = lowered(&moved, &out, DPAR_LOWER_LATE_RECV, times);
    plain = simulated(&in, DPAR_SEND_MODE_BUFFERED, times);
    sent = simulated(&out, DPAR_SEND_MODE_POSTED, times);
    proof = proved(&out, times);
    computes = (double)in.begin[ranks];
    n = (double)out.begin[ranks];
    printf("%4d %2d %5d %8.0f %8.0f %9.5f %9.5f %9.5f %9.5f %9.5f %8.1f %8.1f %9.5f\n", ranks,
           chunks, micro_batches, computes, n, make, messages, make + messages, all, late,
           computes / plain * 1e-6, n / sent * 1e-6, proof);
    free(in.begin);
    free(out.begin);
    free(full.begin);
    free(moved.begin);
}

/* Lowers the list on standard input to standard output. Prints the seconds to standard error. */
static int lower_text(int32_t passes)
{
    static char text[1 << 24], written[1 << 26];
    dpar_schedule_read_desc read;
    dpar_schedule in, out;
    dpar_text output;
    dpar_why why;
    int64_t bytes;
    read.text = text;
    read.bytes = fread(text, 1, sizeof text, stdin);
    read.chain = 0;
    needs(dpar_schedule_read(&in, &read, NULL, 0, &why), &why);
    bytes = why.bytes;
    must(dpar_schedule_read(&in, &read, get(bytes), bytes, &why), &why);
    fprintf(stderr, "%.6f\n", lowered(&out, &in, passes, 3));
    dpar_text_init(&output, written, sizeof written);
    dpar_schedule_write(&out, "\r\n", &output);
    fputs(written, stdout);
    return output.used >= sizeof written;
}

int main(int argc, char **argv)
{
    if (argc > 2 || (argc == 2 && strspn(argv[1], "0123456789") != strlen(argv[1]))) {
        fprintf(
            stderr,
            "order_speed: PASSES is '%s', with %d arguments; usage: %s [PASSES < LIST], PASSES a "
            "sum of DPAR_LOWER_x\n",
            argv[1], argc - 1, argv[0]);
        return 2;
    }
    if (argc == 2) {
        return lower_text(atoi(argv[1]));
    }
    printf("interleaved 1F1B: seconds, the fastest of several; simulation in million actions a "
           "second\n"
           "                                               lower:    generate lower: all   "
           "          simulate: proof and\n"
           "   p  v     m computes  actions  generate  messages   + lower    passes late recv"
           "  compute   posted  blocking\n");
    line(8, 2, 32, 101);
    line(8, 2, 256, 21);
    line(16, 4, 256, 11);
    line(64, 8, 128, 9);
    line(64, 8, 1024, 7);
    line(1024, 1, 1024, 5);
    return 0;
}
