/* SPDX-License-Identifier: MIT-0 */
/* order_speed - nanoseconds an action of the passes over schedules: interleaved 1F1B lists of
 * growing size, up to 64 ranks, 8 chunks and 1024 micro-batches (1 million computations, 3 million
 * actions with messages).
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. bench/order_speed.c -o build/order_speed && build/order_speed
 *   build/order_speed PASSES < compute_only.csv > lowered.csv     (for bench/order_peer.py)
 */
#define _POSIX_C_SOURCE 199309L
#include "dpar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *get(int64_t bytes)
{
    void *mem = bytes < 0 ? NULL : malloc((size_t)bytes + 1);
    if (mem == NULL) {
        fprintf(stderr, "no memory for %.0f bytes\n", (double)bytes);
        exit(1);
    }
    memset(mem, 1, (size_t)bytes); /* so that no pass pays for the first touch of a page */
    return mem;
}

static void must(dpar_status st, const dpar_why *why)
{
    if (st != DPAR_OK) {
        fprintf(stderr, "%s\n", why->text);
        exit(1);
    }
}

static dpar_action action(int32_t kind, int32_t stage, int32_t micro)
{
    dpar_action a;
    memset(&a, 0, sizeof a);
    a.kind = (uint8_t)kind;
    a.stage = (uint16_t)stage;
    a.micro = (uint16_t)micro;
    return a;
}

/* Interleaved 1F1B, groups of p micro-batches: w forwards, then one and one, then backwards. */
static void interleaved(dpar_schedule *s, int32_t p, int32_t v, int32_t m, void *mem)
{
    int32_t r, k, i, each = m * v;
    dpar_action *a;
    (void)dpar_schedule_lay(s, p, p * v, 2 * (int64_t)p * each, mem, INT64_MAX, NULL);
    s->micros = m;
    for (i = 0; i < p * v; i++) {
        s->rank_of[i] = (uint16_t)dpar_stage_rank(DPAR_MAP_LOOP, p, i);
    }
    a = s->action;
    for (r = 0; r < p; r++) {
        int32_t w = (v - 1) * p + 2 * (p - 1 - r);
        w = w < each ? w : each;
        for (k = 0; k < each + w; k++) {
            if (k < each) {
                *a++ = action(DPAR_FORWARD, k / p % v * p + r, k / (p * v) * p + k % p);
            }
            if (k >= w) {
                i = k - w;
                *a++ = action(DPAR_BACKWARD, (v - 1 - i / p % v) * p + r, i / (p * v) * p + i % p);
            }
        }
        s->begin[r + 1] = a - s->action;
    }
}

/* Seconds of a pass, the fastest of several; its list. */
static double lowered(dpar_schedule *out, const dpar_schedule *in, int32_t passes, int times)
{
    dpar_lowering how = {0, 0};
    dpar_why why;
    double since, least = 1e9;
    int64_t bytes;
    void *mem;
    how.passes = passes;
    bytes = dpar_schedule_lower_bytes(in, &how, &why);
    must(bytes < 0 ? DPAR_E_ARG : DPAR_OK, &why);
    mem = get(bytes);
    while (times-- > 0) {
        since = now();
        must(dpar_schedule_lower(out, in, &how, mem, bytes, &why), &why);
        since = now() - since;
        least = since < least ? since : least;
    }
    return least;
}

static double sunk(const dpar_schedule *in, int32_t channel_class, int times)
{
    dpar_schedule out;
    dpar_why why;
    double since, least = 1e9;
    int64_t bytes = dpar_schedule_sink_bytes(in, &why);
    void *mem;
    must(bytes < 0 ? DPAR_E_ARG : DPAR_OK, &why);
    mem = get(bytes);
    while (times-- > 0) {
        since = now();
        must(dpar_schedule_sink(&out, in, channel_class, mem, bytes, &why), &why);
        since = now() - since;
        least = since < least ? since : least;
    }
    free(mem);
    return least;
}

static void line(int32_t p, int32_t v, int32_t m, int times)
{
    dpar_schedule in, out, full;
    int64_t computes = 2 * (int64_t)p * v * m, n;
    void *mem = get(dpar_schedule_bytes(p, p * v, computes));
    double messages, all, sink;
    interleaved(&in, p, v, m, mem);
    messages = lowered(&out, &in, DPAR_LOWER_MESSAGES, times);
    n = out.begin[p];
    all = lowered(&full, &in, DPAR_LOWER_SHARDS | DPAR_LOWER_REDUCE | DPAR_LOWER_MESSAGES, times);
    sink = sunk(&out, DPAR_SINK_EDGE, times);
    printf("%4d %3d %5d %9.0f %9.0f %9.5f %6.2f %9.5f %6.2f %9.5f %6.2f\n", p, v, m,
           (double)computes, (double)n, messages, messages * 1e9 / (double)n, all,
           all * 1e9 / (double)full.begin[p], sink, sink * 1e9 / (double)n);
    free(mem);
    free(out.begin);
    free(full.begin);
}

/* Lowers the text on standard input; the seconds of that go to standard error. */
static int lower_text(int32_t passes)
{
    static char text[1 << 24], written[1 << 26];
    size_t n = fread(text, 1, sizeof text, stdin);
    dpar_schedule in, out;
    dpar_text t;
    dpar_why why;
    int64_t bytes = dpar_schedule_read_bytes(text, n, &why);
    must(bytes < 0 ? DPAR_E_PARSE : DPAR_OK, &why);
    must(dpar_schedule_read(&in, text, n, 0, get(bytes), bytes, &why), &why);
    fprintf(stderr, "%.6f\n", lowered(&out, &in, passes, 3));
    dpar_text_init(&t, written, sizeof written);
    dpar_schedule_write(&out, "\r\n", &t);
    fputs(written, stdout);
    return t.used >= sizeof written;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        return lower_text(atoi(argv[1]));
    }
    printf(
        "interleaved 1F1B, seconds (the fastest of several) and ns an action of the result\n"
        "                                    messages         + shards, reduce    sinking\n"
        "   p   v     m  computes   actions   seconds     ns   seconds     ns   seconds     ns\n");
    line(8, 2, 32, 101);
    line(8, 2, 256, 21);
    line(16, 4, 256, 11);
    line(64, 8, 128, 9);
    line(64, 8, 1024, 7);
    line(1024, 1, 1024, 5);
    return 0;
}
