/* SPDX-License-Identifier: MIT-0 */
/* Do gradients travel while backward computes? Two ranks, 24 layers of 4 MiB of gradients, buckets
 * of 8 MiB. A step of ddp with backward's time in it, beside backward alone plus the buckets alone.
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. bench/overlap.c -o overlap
 *     ./overlap [--steps N] [--trace FILE]
 *
 * Who computes decides what can be hidden, for the engine's copies take time of a core:
 *     device   a layer takes its time on a device; the host's thread sleeps until it is done, as
 *              it does beside a GPU. The core is free for copies: they can be hidden, all but those
 *              of the last bucket.
 *     host     the layer is arithmetic on the rank's own core. Copies take turns with it: on as
 *              many cores as ranks no copy can be hidden, only waiting for the other rank; what
 *              the two cost together is as much as apart, and a thread makes it no better.
 * How work goes on:
 *     calls    inside dpar_ddp_ready and dpar_ddp_end alone
 *     thread   dpar_comm_progress's, too
 * Columns: medians over steps of the slower rank, in us: backward alone; buckets alone (all
 * gradients ready at once); the sum of both; the step; its ratio to the sum (below 1: something was
 * hidden), and how much of the shorter of the two was. Results of each step are checked.
 * --trace: one more step with a device and the thread (each rank looks every 20 us which buckets
 * have arrived) as JSON for Perfetto (ui.perfetto.dev): layers, and each bucket from its posting to
 * its arrival. */
#define _GNU_SOURCE
#include "dpar_train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

enum { RANKS = 2, LAYERS = 24, NUMEL = 1 << 20, BUCKETS = LAYERS, STEPS = 400 };
static const double layer_s = 0.8e-3;

/* In seconds since the step began; of a bucket: posted and seen there. */
typedef struct times {
    double layer[LAYERS][2], bucket[BUCKETS][2];
    int32_t buckets;
} times;

typedef struct step_of {
    dpar_comm *c;
    dpar_ddp *d;
    int host; /* computes on the core */
    int looks;
    double began, rounds; /* of arithmetic, a layer's */
    dpar_work *work[BUCKETS];
    times t;
} step_of;

static void sleep_until(double when)
{
    struct timespec t;
    t.tv_sec = (time_t)when;
    t.tv_nsec = (long)((when - (double)t.tv_sec) * 1e9);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0) {
    }
}

/* Dependent arithmetic, which no compiler leaves out. */
static void compute(double rounds)
{
    static volatile double sink;
    double x = 1.0;
    for (double i = 0.0; i < rounds; i += 1.0) {
        x = x * 0.999999 + 1e-6;
    }
    sink = x;
    (void)sink;
}

/* Buckets that have arrived since the last look. */
static void look(step_of *s)
{
    for (int32_t k = 0; s->looks && k < s->t.buckets; k++) {
        if (s->t.bucket[k][1] == 0.0 &&
            __atomic_load_n(&s->work[k]->comm, __ATOMIC_ACQUIRE) == NULL) {
            s->t.bucket[k][1] = now() - s->began;
        }
    }
}

/* Layer k (the last first) takes its time. On a device it began when the one before had ended
 * there, whatever the host did meanwhile. */
static void layer(step_of *s, int32_t k)
{
    const double end = s->began + (k + 1) * layer_s;
    s->t.layer[k][0] = s->host ? now() - s->began : k * layer_s;
    if (s->host) {
        compute(s->rounds);
    } else if (!s->looks) {
        sleep_until(end);
    } else {
        while (now() < end) {
            double next = now() + 20e-6;
            sleep_until(next < end ? next : end);
            look(s);
        }
    }
    s->t.layer[k][1] = s->host ? now() - s->began : (k + 1) * layer_s;
}

/* What ddp does without a hook; keeps the work in view. */
static dpar_status hook(void *ctx, dpar_comm *c, int32_t bucket, void *data, int64_t count,
                        int32_t type, dpar_work *work)
{
    step_of *s = (step_of *)ctx;
    s->work[bucket] = work;
    s->t.bucket[bucket][0] = now() - s->began;
    s->t.bucket[bucket][1] = 0.0;
    s->t.buckets = bucket + 1;
    return dpar_all_reduce(c, data, data, count, type, DPAR_AVG, work);
}

enum { COMPUTE = 1, TRAVEL = 2 };

/* Seconds of the slower rank for a step with one of them, or both. */
static dpar_status step(step_of *s, int what, double *seconds)
{
    double t;
    dpar_status st = dpar_barrier(s->c, NULL);
    s->t.buckets = 0;
    s->began = now();
    if (st == DPAR_OK && (what & TRAVEL)) {
        st = dpar_ddp_begin(s->d, 1);
    }
    for (int32_t k = 0; k < LAYERS && st == DPAR_OK; k++) {
        if (what & COMPUTE) {
            layer(s, k);
        }
        if (what & TRAVEL) {
            st = dpar_ddp_ready(s->d, LAYERS - 1 - k);
            look(s);
        }
    }
    if (st == DPAR_OK && (what & TRAVEL)) {
        while (s->looks && s->t.bucket[s->t.buckets - 1][1] == 0.0) {
            sleep_until(now() + 20e-6);
            look(s);
        }
        st = dpar_ddp_end(s->d);
    }
    t = now() - s->began;
    return st == DPAR_OK ? dpar_all_reduce(s->c, &t, seconds, 1, DPAR_F64, DPAR_MAX, NULL) : st;
}

static void rewrite(const step_of *s)
{
    for (int32_t i = 0; i < LAYERS; i++) {
        float *g = (float *)dpar_ddp_gradient(s->d, i, NULL);
        for (int64_t e = 0; e < NUMEL; e++) {
            g[e] = (float)(s->c->rank + 1);
        }
    }
}

static int64_t wrong(const step_of *s)
{
    int64_t n = 0;
    for (int32_t i = 0; i < LAYERS; i++) {
        const float *g = (const float *)dpar_ddp_gradient(s->d, i, NULL);
        for (int64_t e = 0; e < NUMEL; e++) {
            n += g[e] != 1.5f; /* (1 + 2) / 2 */
        }
    }
    return n;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One row: medians of the three, taken in turns. */
static dpar_status row(step_of *s, int host, int thread, int steps)
{
    static double t[3][STEPS];
    double c, m, both;
    int64_t bad = 0, all = 0;
    dpar_status st = dpar_comm_progress(s->c, thread);
    s->host = host;
    for (int n = 0; n < steps && st == DPAR_OK; n++) {
        st = step(s, COMPUTE, &t[0][n]);
        for (int k = 1; k < 3 && st == DPAR_OK; k++) {
            rewrite(s);
            st = step(s, k == 1 ? TRAVEL : COMPUTE | TRAVEL, &t[k][n]);
            bad += wrong(s);
        }
    }
    if (st == DPAR_OK) {
        st = dpar_comm_progress(s->c, 0);
    }
    if (st == DPAR_OK) {
        st = dpar_all_reduce(s->c, &bad, &all, 1, DPAR_I64, DPAR_SUM, NULL);
    }
    if (st != DPAR_OK || all > 0) {
        printf("rank %d: %s %s, %lld elements wrong\n", s->c->rank, dpar_status_text(st),
               s->c->why.text, (long long)all);
        return st != DPAR_OK ? st : DPAR_E_ARG;
    }
    for (int k = 0; k < 3; k++) {
        qsort(t[k], (size_t)steps, sizeof t[0][0], by_value);
    }
    c = t[0][steps / 2];
    m = t[1][steps / 2];
    both = t[2][steps / 2];
    if (s->c->rank == 0) {
        printf("| %s | %s | %.0f | %.0f | %.0f | %.0f | %.2f | %.0f %% |\n",
               host ? "host" : "device", thread ? "thread" : "calls", 1e6 * c, 1e6 * m,
               1e6 * (c + m), 1e6 * both, both / (c + m), 100.0 * (c + m - both) / (c < m ? c : m));
        fflush(stdout);
    }
    return DPAR_OK;
}

static void slice(FILE *f, int32_t rank, int32_t track, const char *name, int32_t k,
                  const double *t)
{
    fprintf(f,
            ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s %d\",\"ts\":%.1f,\"dur\":%.1f}",
            rank, track, name, k, 1e6 * t[0], 1e6 * (t[1] - t[0]));
}

/* Buckets overlap each other while they are under way: a track for each second one. */
static dpar_status trace(step_of *s, const char *path)
{
    static times all[RANKS];
    static const char *const track[] = {"backward", "buckets", "buckets "};
    double seconds = 0.0;
    FILE *f;
    dpar_status st = dpar_comm_progress(s->c, 1);
    s->host = 0;
    s->looks = 1;
    rewrite(s);
    if (st == DPAR_OK) {
        st = step(s, COMPUTE | TRAVEL, &seconds);
    }
    if (st == DPAR_OK) {
        st = dpar_comm_progress(s->c, 0);
    }
    if (st == DPAR_OK) {
        st = dpar_gather(s->c, &s->t, all, (int64_t)sizeof all[0], DPAR_U8, 0, NULL);
    }
    if (st != DPAR_OK || s->c->rank != 0) {
        return st;
    }
    f = fopen(path, "w");
    if (f == NULL) {
        fprintf(stderr, "overlap: the trace file '%s' cannot be written\n", path);
        return DPAR_E_SYSTEM;
    }
    fprintf(f, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":0,\"name\":"
               "\"process_name\",\"args\":{\"name\":\"rank 0\"}}");
    for (int32_t r = 0; r < RANKS; r++) {
        if (r > 0) {
            fprintf(f,
                    ",\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":"
                    "\"rank %d\"}}",
                    r, r);
        }
        for (int32_t k = 0; k < 3; k++) {
            fprintf(f,
                    ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{"
                    "\"name\":\"%s\"}}",
                    r, k, track[k]);
        }
        for (int32_t k = 0; k < LAYERS; k++) {
            slice(f, r, 0, "layer", LAYERS - 1 - k, all[r].layer[k]);
        }
        for (int32_t k = 0; k < all[r].buckets; k++) {
            slice(f, r, 1 + k % 2, "bucket", k, all[r].bucket[k]);
        }
    }
    fprintf(f, "\n]}\n");
    return fclose(f) == 0 ? DPAR_OK : DPAR_E_SYSTEM;
}

typedef struct asked {
    int steps;
    const char *trace;
} asked;

static int each(dpar_comm *c, void *arg)
{
    const asked *a = (const asked *)arg;
    static step_of s;
    int64_t numel[LAYERS];
    dpar_ddp_desc o;
    dpar_why why;
    double began;
    dpar_status st;
    memset(&o, 0, sizeof o);
    pin(c->rank);
    for (int32_t i = 0; i < LAYERS; i++) {
        numel[i] = NUMEL;
    }
    o.params = LAYERS;
    o.count = numel;
    o.type = DPAR_F32;
    o.first_bucket_bytes = o.bucket_bytes = 8 << 20;
    o.require_ready = 1;
    o.hook = hook;
    o.ctx = &s;
    s.c = c;
    st = dpar_ddp_make(c, &o, &s.d, &why);
    s.rounds = 1e6;
    compute(s.rounds);
    began = now();
    compute(s.rounds);
    s.rounds *= layer_s / (now() - began);
    for (int k = 0; k < 4 && st == DPAR_OK; k++) {
        st = row(&s, k / 2, k % 2, a->steps);
    }
    if (st == DPAR_OK && a->trace != NULL) {
        st = trace(&s, a->trace);
    }
    if (st == DPAR_OK) {
        st = dpar_ddp_free(s.d);
    }
    return st != DPAR_OK;
}

int main(int argc, char **argv)
{
    asked a = {30, NULL};
    dpar_world_desc o = {0};
    dpar_why why;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc) {
            a.steps = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--trace") == 0 && i + 1 < argc) {
            a.trace = argv[++i];
        } else {
            a.steps = 0;
        }
    }
    if (a.steps < 1 || a.steps > STEPS) {
        fprintf(stderr, "usage: %s [--steps 1..%d] [--trace FILE]\n", argv[0], STEPS);
        return 2;
    }
    printf("| computes | goes on in | backward us | buckets us | sum us | together us | ratio | "
           "hidden "
           "|\n|---|---|---|---|---|---|---|---|\n");
    fflush(stdout);
    if (dpar_launch(RANKS, each, &a, &o, &why) != DPAR_OK) {
        fprintf(stderr, "overlap: the ranks did not end well: %s\n", why.text);
        return 1;
    }
    return 0;
}
