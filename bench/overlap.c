/* SPDX-License-Identifier: MIT-0 */
/* overlap - measures how much of the time in which gradients are sent is hidden behind backward.
 * Two ranks train 24 layers with 4 MiB of gradients each, in buckets of 8 MiB. A step of dpar_ddp
 * in which backward computes is compared with the sum of backward alone and the buckets alone:
 * below 1 something was hidden.
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. bench/overlap.c -o overlap
 *     ./overlap [--steps N] [--trace FILE]
 *
 * What can be hidden depends on who computes, because dpar's copies take time of a core:
 *     device   A layer takes its time on a device, and the thread of the host sleeps until it is
 *              done, as it does with a GPU. The core is free for copies, so that all but those of
 *              the last bucket can be hidden.
 *     host     A layer is arithmetic on the core of the rank. Copies take turns with it, so that
 *              with as many cores as ranks only waiting for the other rank can be hidden.
 * Buckets go on in two ways:
 *     calls    only inside dpar_ddp_ready and dpar_ddp_end
 *     thread   also in the thread of dpar_comm_progress
 * Columns are medians over steps, in us, of the slower rank: backward alone; buckets alone (all
 * gradients are ready at once); the sum of both; the step; its ratio to the sum; and what share of
 * the shorter of the two was hidden. The results of each step are checked.
 *
 * --trace writes one more step, with a device and the thread, as JSON for Perfetto
 * (ui.perfetto.dev): the layers, and each bucket from its posting to its arrival, which each rank
 * checks every 20 us.
 *
 * Exit codes: 0 done; 1 an operation failed or a result is wrong; 2 wrong arguments. */
#define _GNU_SOURCE
#include "dpar_train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

enum { RANKS = 2, LAYERS = 24, NUMEL = 1 << 20, BUCKETS = LAYERS, STEPS = 400 };
static const double layer_s = 0.8e-3;

/* Begin and end in seconds since the step began. A bucket begins when it is posted and ends when it
 * is seen to have arrived. */
typedef struct times {
    double layer[LAYERS][2], bucket[BUCKETS][2];
    int32_t buckets;
} times;

typedef struct step_of {
    dpar_comm *comm;
    dpar_ddp *ddp;
    int host;      /* 1 if layers are computed on the core */
    int looks;     /* 1 to note when buckets arrive, for the trace */
    double began;  /* of the step */
    double rounds; /* of arithmetic in a layer */
    dpar_work *work[BUCKETS];
    times marks;
} step_of;

static void sleep_until(double when)
{
    struct timespec until;
    until.tv_sec = (time_t)when;
    until.tv_nsec = (long)((when - (double)until.tv_sec) * 1e9);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0) {
    }
}

/* Does arithmetic in which each operation needs the one before, so that its time does not vary. */
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

/* Notes which buckets have arrived since the last look. */
static void look(step_of *state)
{
    for (int32_t k = 0; state->looks && k < state->marks.buckets; k++) {
        if (state->marks.bucket[k][1] == 0.0 &&
            __atomic_load_n(&state->work[k]->comm, __ATOMIC_ACQUIRE) == NULL) {
            state->marks.bucket[k][1] = now() - state->began;
        }
    }
}

/* Computes layer k, counted from the last. On a device it begins when the layer before it has
 * ended, whatever the host does in the meantime. */
static void layer(step_of *state, int32_t k)
{
    const double end = state->began + (k + 1) * layer_s;
    state->marks.layer[k][0] = state->host ? now() - state->began : k * layer_s;
    if (state->host) {
        compute(state->rounds);
    } else if (!state->looks) {
        sleep_until(end);
    } else {
        while (now() < end) {
            double next = now() + 20e-6;
            sleep_until(next < end ? next : end);
            look(state);
        }
    }
    state->marks.layer[k][1] = state->host ? now() - state->began : (k + 1) * layer_s;
}

/* Does what dpar_ddp does without a hook, and notes the work for `look`. */
static dpar_status hook(void *ctx, dpar_comm *comm, int32_t bucket, void *data, int64_t count,
                        int32_t type, dpar_work *work)
{
    step_of *state = (step_of *)ctx;
    state->work[bucket] = work;
    state->marks.bucket[bucket][0] = now() - state->began;
    state->marks.bucket[bucket][1] = 0.0;
    state->marks.buckets = bucket + 1;
    return dpar_all_reduce(comm, data, data, count, type, DPAR_AVG, work);
}

enum { COMPUTE = 1, TRAVEL = 2 };

/* Does a step with one or both of them. Sets *seconds to the time of the slower rank. */
static dpar_status step(step_of *state, int what, double *seconds)
{
    double spent;
    dpar_status st = dpar_barrier(state->comm, NULL);
    state->marks.buckets = 0;
    state->began = now();
    if (st == DPAR_OK && (what & TRAVEL)) {
        st = dpar_ddp_begin(state->ddp, 1);
    }
    for (int32_t k = 0; k < LAYERS && st == DPAR_OK; k++) {
        if (what & COMPUTE) {
            layer(state, k);
        }
        if (what & TRAVEL) {
            st = dpar_ddp_ready(state->ddp, LAYERS - 1 - k);
            look(state);
        }
    }
    if (st == DPAR_OK && (what & TRAVEL)) {
        while (state->looks && state->marks.bucket[state->marks.buckets - 1][1] == 0.0) {
            sleep_until(now() + 20e-6);
            look(state);
        }
        st = dpar_ddp_end(state->ddp);
    }
    spent = now() - state->began;
    return st == DPAR_OK
               ? dpar_all_reduce(state->comm, &spent, seconds, 1, DPAR_F64, DPAR_MAX, NULL)
               : st;
}

/* Writes the gradients of this rank. */
static void rewrite(const step_of *state)
{
    for (int32_t i = 0; i < LAYERS; i++) {
        float *gradient = (float *)dpar_ddp_gradient(state->ddp, i, NULL);
        for (int64_t e = 0; e < NUMEL; e++) {
            gradient[e] = (float)(state->comm->rank + 1);
        }
    }
}

/* Returns how many gradients are not the average of both ranks. */
static int64_t wrong(const step_of *state)
{
    int64_t n = 0;
    for (int32_t i = 0; i < LAYERS; i++) {
        const float *gradient = (const float *)dpar_ddp_gradient(state->ddp, i, NULL);
        for (int64_t e = 0; e < NUMEL; e++) {
            n += gradient[e] != 1.5f; /* (1 + 2) / 2 */
        }
    }
    return n;
}

static int by_value(const void *first, const void *second)
{
    double x = *(const double *)first, y = *(const double *)second;
    return (x > y) - (x < y);
}

/* Measures and prints one row. The three kinds of steps take turns. */
static dpar_status row(step_of *state, int host, int thread, int steps)
{
    static const char *const computes[] = {"device", "host"};
    static const char *const goes_on[] = {"calls", "thread"};
    static double samples[3][STEPS];
    double backward, buckets, both;
    int64_t bad = 0, all = 0;
    dpar_status st = dpar_comm_progress(state->comm, thread);
    state->host = host;
    for (int n = 0; n < steps && st == DPAR_OK; n++) {
        st = step(state, COMPUTE, &samples[0][n]);
        for (int k = 1; k < 3 && st == DPAR_OK; k++) {
            rewrite(state);
            st = step(state, k == 1 ? TRAVEL : COMPUTE | TRAVEL, &samples[k][n]);
            bad += wrong(state);
        }
    }
    if (st == DPAR_OK) {
        st = dpar_comm_progress(state->comm, 0);
    }
    if (st == DPAR_OK) {
        st = dpar_all_reduce(state->comm, &bad, &all, 1, DPAR_I64, DPAR_SUM, NULL);
    }
    if (st != DPAR_OK || all > 0) {
        fprintf(stderr, "overlap: rank %d: %s: %s; %lld elements are wrong on all ranks\n",
                state->comm->rank, dpar_status_text(st), state->comm->why.text, (long long)all);
        return st != DPAR_OK ? st : DPAR_E_ARG;
    }
    for (int k = 0; k < 3; k++) {
        qsort(samples[k], (size_t)steps, sizeof samples[0][0], by_value);
    }
    backward = samples[0][steps / 2];
    buckets = samples[1][steps / 2];
    both = samples[2][steps / 2];
    if (state->comm->rank == 0) {
        const double shorter = backward < buckets ? backward : buckets, sum = backward + buckets;
        printf("| %s | %s | %.0f | %.0f | %.0f | %.0f | %.2f | %.0f %% |\n", computes[host],
               goes_on[thread], 1e6 * backward, 1e6 * buckets, 1e6 * sum, 1e6 * both, both / sum,
               100.0 * (sum - both) / shorter);
        fflush(stdout);
    }
    return DPAR_OK;
}

static void slice(FILE *file, int32_t rank, int32_t track, const char *name, int32_t k,
                  const double *span)
{
    fprintf(file,
            ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s %d\",\"ts\":%.1f,\"dur\":%.1f}",
            rank, track, name, k, 1e6 * span[0], 1e6 * (span[1] - span[0]));
}

/* Writes the trace. Buckets overlap each other while they are under way, so that they take turns on
 * two tracks. */
static dpar_status trace(step_of *state, const char *path)
{
    static times all[RANKS];
    static const char *const track[] = {"backward", "buckets", "buckets "};
    double seconds = 0.0;
    FILE *file;
    dpar_status st = dpar_comm_progress(state->comm, 1);
    state->host = 0;
    state->looks = 1;
    rewrite(state);
    if (st == DPAR_OK) {
        st = step(state, COMPUTE | TRAVEL, &seconds);
    }
    if (st == DPAR_OK) {
        st = dpar_comm_progress(state->comm, 0);
    }
    if (st == DPAR_OK) {
        st = dpar_gather(state->comm, &state->marks, all, (int64_t)sizeof all[0], DPAR_U8, 0, NULL);
    }
    if (st != DPAR_OK || state->comm->rank != 0) {
        return st;
    }
    file = fopen(path, "w");
    if (file == NULL) {
        fprintf(stderr, "overlap: the trace file '%s' cannot be written\n", path);
        return DPAR_E_SYSTEM;
    }
    fprintf(file, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":0,\"name\":"
                  "\"process_name\",\"args\":{\"name\":\"rank 0\"}}");
    for (int32_t r = 0; r < RANKS; r++) {
        if (r > 0) {
            fprintf(file,
                    ",\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":"
                    "\"rank %d\"}}",
                    r, r);
        }
        for (int32_t k = 0; k < 3; k++) {
            fprintf(file,
                    ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{"
                    "\"name\":\"%s\"}}",
                    r, k, track[k]);
        }
        for (int32_t k = 0; k < LAYERS; k++) {
            slice(file, r, 0, "layer", LAYERS - 1 - k, all[r].layer[k]);
        }
        for (int32_t k = 0; k < all[r].buckets; k++) {
            slice(file, r, 1 + k % 2, "bucket", k, all[r].bucket[k]);
        }
    }
    fprintf(file, "\n]}\n");
    return fclose(file) == 0 ? DPAR_OK : DPAR_E_SYSTEM;
}

typedef struct asked {
    int steps;
    const char *trace;
} asked;

/* What each rank does. */
static int each(dpar_comm *comm, void *arg)
{
    const asked *options = (const asked *)arg;
    static step_of state;
    int64_t numel[LAYERS];
    dpar_ddp_desc desc;
    dpar_why why;
    double began;
    dpar_status st;
    memset(&desc, 0, sizeof desc);
    pin(comm->rank);
    for (int32_t i = 0; i < LAYERS; i++) {
        numel[i] = NUMEL;
    }
    desc.params = LAYERS;
    desc.count = numel;
    desc.type = DPAR_F32;
    desc.first_bucket_bytes = desc.bucket_bytes = 8 << 20;
    desc.require_ready = 1;
    desc.hook = hook;
    desc.ctx = &state;
    state.comm = comm;
    st = dpar_ddp_make(comm, &desc, &state.ddp, &why);
    if (st != DPAR_OK) {
        fprintf(stderr, "overlap: rank %d: dpar_ddp_make failed: %s\n", comm->rank, why.text);
        return 1;
    }
    state.rounds = 1e6;
    compute(state.rounds);
    began = now();
    compute(state.rounds);
    state.rounds *= layer_s / (now() - began);
    for (int k = 0; k < 4 && st == DPAR_OK; k++) {
        st = row(&state, k / 2, k % 2, options->steps);
    }
    if (st == DPAR_OK && options->trace != NULL) {
        st = trace(&state, options->trace);
    }
    if (st == DPAR_OK) {
        st = dpar_ddp_free(state.ddp);
    }
    return st != DPAR_OK;
}

int main(int argc, char **argv)
{
    asked options = {30, NULL};
    dpar_world_desc desc = {0};
    dpar_why why;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc) {
            options.steps = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--trace") == 0 && i + 1 < argc) {
            options.trace = argv[++i];
        } else {
            fprintf(stderr,
                    "overlap: argument '%s' is unknown or lacks its value; usage: %s [--steps N] "
                    "[--trace FILE]\n",
                    argv[i], argv[0]);
            return 2;
        }
    }
    if (options.steps < 1 || options.steps > STEPS) {
        fprintf(stderr, "overlap: --steps is %d; it has to be 1 to %d\n", options.steps, STEPS);
        return 2;
    }
    printf("| computes | goes on in | backward us | buckets us | sum us | together us | ratio | "
           "hidden "
           "|\n|---|---|---|---|---|---|---|---|\n");
    fflush(stdout);
    if (dpar_launch(RANKS, each, &options, &desc, &why) != DPAR_OK) {
        fprintf(stderr, "overlap: the two ranks did not finish: %s\n", why.text);
        return 1;
    }
    return 0;
}
