/* SPDX-License-Identifier: MIT-0 */
/* One way of a message between two processes of one machine, each on a core of its own:
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. bench/p2p_speed.c -o p2p_speed && ./p2p_speed [seconds a row]
 *
 * A sample is a message there and one back, halved, after both ranks have rewritten what they send;
 * smallest / median us, and GB/s of the median. Columns: private memory sent by a blocking call
 * (the ranks copy through the ring at the same time); private, sent by a posted one (read from the
 * other process where the kernel allows it), and the same without that; registered memory, blocking
 * (both ranks copy a half) and posted (the receiver copies). The last message of each row is
 * checked. */
#include "dpar_comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ranks.h"

enum { SAMPLES = 2000, COLUMNS = 5, SIZES = 12 };

static const char *const column_name[COLUMNS] = {"private", "posted", "posted, no CMA",
                                                 "registered", "reg., posted"};

typedef struct result {
    double min, median;
    int32_t wrong;
} result;

typedef struct job {
    result *results; /* shared by the processes: [SIZES] */
    int32_t registered, posted;
    double seconds;
} job;

static int64_t size_of_row(int32_t row)
{
    if (row == 0) {
        return 4;
    }
    return row == 1 ? 64 : INT64_C(256) << 2 * (row - 2);
}

static void rewrite(uint32_t *at, int64_t words, uint32_t with)
{
    for (int64_t i = 0; i < words; i++) {
        at[i] = (uint32_t)i + with;
    }
#if defined(__GNUC__)
    __asm__ volatile("" : : "r"(at) : "memory");
#endif
}

static dpar_status send_one(dpar_comm *c, const job *j, const void *at, int64_t words)
{
    dpar_work work = {0};
    dpar_status s;
    if (!j->posted) {
        return dpar_send(c, at, words, DPAR_U32, 1 - c->rank, 0, NULL);
    }
    s = dpar_send(c, at, words, DPAR_U32, 1 - c->rank, 0, &work);
    return s == DPAR_OK ? dpar_wait(&work) : s;
}

/* Seconds one way; < 0: it failed. */
static double sample(dpar_comm *c, const job *j, uint32_t *in, uint32_t *out, int64_t words,
                     uint32_t with)
{
    dpar_status s = DPAR_OK;
    double t;
    rewrite(in, words, with + (uint32_t)c->rank);
    s = dpar_barrier(c, NULL);
    t = now();
    if (c->rank == 0 && s == DPAR_OK) {
        s = send_one(c, j, in, words);
    }
    if (s == DPAR_OK) {
        s = dpar_recv(c, out, words, DPAR_U32, 1 - c->rank, 0, NULL);
    }
    if (c->rank == 1 && s == DPAR_OK) {
        s = send_one(c, j, in, words);
    }
    return s == DPAR_OK ? (now() - t) / 2 : -1.0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int32_t measure(dpar_comm *c, const job *j, uint32_t *in, uint32_t *out, int64_t words,
                       result *r)
{
    static double t[SAMPLES];
    int32_t n, wrong = 0;
    for (n = 0; n < 4; n++) {
        t[n] = sample(c, j, in, out, words, (uint32_t)n);
    }
    /* rank 0 knows how long one takes, and decides for both */
    n = t[3] > 0.0 && j->seconds / t[3] < SAMPLES ? (int32_t)(j->seconds / t[3]) : SAMPLES;
    n = n < 5 ? 5 : n;
    if (dpar_broadcast(c, &n, 1, DPAR_I32, 0, NULL) != DPAR_OK) {
        return 1;
    }
    for (int32_t i = 0; i < n; i++) {
        t[i] = sample(c, j, in, out, words, (uint32_t)i);
        wrong |= t[i] < 0.0;
    }
    for (int64_t i = 0; i < words; i++) {
        wrong |= out[i] != (uint32_t)i + (uint32_t)(n - 1) + (uint32_t)(1 - c->rank);
    }
    qsort(t, (size_t)n, sizeof t[0], by_value);
    if (c->rank == 0) {
        r->min = t[0];
        r->median = t[n / 2];
    }
    return wrong;
}

static int rank_main(dpar_comm *c, void *arg)
{
    const job *j = (const job *)arg;
    const size_t bytes = (size_t)size_of_row(SIZES - 1);
    void *in = NULL, *out = NULL;
    int32_t wrong = 0;
    pin(c->rank);
    if (j->registered) {
        wrong = dpar_comm_alloc(c, (int64_t)bytes, &in) != DPAR_OK ||
                dpar_comm_alloc(c, (int64_t)bytes, &out) != DPAR_OK;
    } else {
        in = malloc(bytes);
        out = malloc(bytes);
        wrong = !in || !out;
    }
    if (wrong) {
        fprintf(stderr, "p2p_speed: rank %d: no memory for two messages of %zu bytes\n", c->rank,
                bytes);
        return 1;
    }
    memset(in, 1, bytes);
    memset(out, 1, bytes);
    for (int32_t row = 0; row < SIZES; row++) {
        wrong |=
            measure(c, j, (uint32_t *)in, (uint32_t *)out, size_of_row(row) / 4, &j->results[row]);
    }
    return wrong;
}

int main(int argc, char **argv)
{
    const size_t bytes = COLUMNS * SIZES * sizeof(result);
    result *results =
        (result *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int failed = 0;
    if (results == MAP_FAILED) {
        fprintf(stderr, "p2p_speed: no memory for the results (%zu bytes)\n", bytes);
        return 1;
    }
    printf("%10s", "bytes");
    for (int32_t k = 0; k < COLUMNS; k++) {
        dpar_world_desc o;
        dpar_why why;
        job j;
        memset(&o, 0, sizeof o);
        memset(&why, 0, sizeof why);
        o.timeout_s = 60.0;
        o.disable = k == 2 ? DPAR_WORLD_NO_CMA : 0;
        j.results = results + k * SIZES;
        j.registered = k >= 3;
        j.posted = k == 1 || k == 2 || k == 4;
        j.seconds = argc > 1 ? atof(argv[1]) : 0.03;
        printf("%28s", column_name[k]);
        fflush(stdout);
        if (dpar_launch(2, rank_main, &j, &o, &why) != DPAR_OK) {
            failed = 1;
            printf("\n");
            fprintf(stderr, "p2p_speed: column '%s': %s\n", column_name[k], why.text);
        }
    }
    printf("\n");
    for (int32_t row = 0; row < SIZES && !failed; row++) {
        printf("%10lld", (long long)size_of_row(row));
        for (int32_t k = 0; k < COLUMNS; k++) {
            const result *r = &results[k * SIZES + row];
            printf("%9.2f /%9.2f (%5.2f)", r->min * 1e6, r->median * 1e6,
                   (double)size_of_row(row) / r->median / 1e9);
        }
        printf("\n");
    }
    munmap(results, bytes);
    return failed;
}
