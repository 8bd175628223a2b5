/* SPDX-License-Identifier: MIT-0 */
/* One way of a message between two processes of one machine, each on a core of its own:
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. bench/p2p_speed.c -o p2p_speed && ./p2p_speed [seconds a
 * row]
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

static dpar_status send_one(dpar_comm *comm, const job *setup, const void *at, int64_t words)
{
    dpar_work work = {0};
    dpar_status status;
    if (!setup->posted) {
        return dpar_send(comm, at, words, DPAR_U32, 1 - comm->rank, 0, NULL);
    }
    status = dpar_send(comm, at, words, DPAR_U32, 1 - comm->rank, 0, &work);
    return status == DPAR_OK ? dpar_wait(&work) : status;
}

/* Seconds one way; < 0: it failed. */
static double sample(dpar_comm *comm, const job *setup, uint32_t *in, uint32_t *out, int64_t words,
                     uint32_t with)
{
    dpar_status status = DPAR_OK;
    double began;
    rewrite(in, words, with + (uint32_t)comm->rank);
    status = dpar_barrier(comm, NULL);
    began = now();
    if (comm->rank == 0 && status == DPAR_OK) {
        status = send_one(comm, setup, in, words);
    }
    if (status == DPAR_OK) {
        status = dpar_recv(comm, out, words, DPAR_U32, 1 - comm->rank, 0, NULL);
    }
    if (comm->rank == 1 && status == DPAR_OK) {
        status = send_one(comm, setup, in, words);
    }
    return status == DPAR_OK ? (now() - began) / 2 : -1.0;
}

static int by_value(const void *first, const void *second)
{
    double x = *(const double *)first, y = *(const double *)second;
    return (x > y) - (x < y);
}

static int32_t measure(dpar_comm *comm, const job *setup, uint32_t *in, uint32_t *out,
                       int64_t words, result *cell)
{
    static double times[SAMPLES];
    int32_t n, wrong = 0;
    for (n = 0; n < 4; n++) {
        times[n] = sample(comm, setup, in, out, words, (uint32_t)n);
    }
    /* rank 0 knows how long one takes, and decides for both */
    n = times[3] > 0.0 && setup->seconds / times[3] < SAMPLES ? (int32_t)(setup->seconds / times[3])
                                                              : SAMPLES;
    n = n < 5 ? 5 : n;
    if (dpar_broadcast(comm, &n, 1, DPAR_I32, 0, NULL) != DPAR_OK) {
        return 1;
    }
    for (int32_t i = 0; i < n; i++) {
        times[i] = sample(comm, setup, in, out, words, (uint32_t)i);
        wrong |= times[i] < 0.0;
    }
    for (int64_t i = 0; i < words; i++) {
        wrong |= out[i] != (uint32_t)i + (uint32_t)(n - 1) + (uint32_t)(1 - comm->rank);
    }
    qsort(times, (size_t)n, sizeof times[0], by_value);
    if (comm->rank == 0) {
        cell->min = times[0];
        cell->median = times[n / 2];
    }
    return wrong;
}

static int rank_main(dpar_comm *comm, void *arg)
{
    const job *setup = (const job *)arg;
    const size_t bytes = (size_t)size_of_row(SIZES - 1);
    void *in = NULL, *out = NULL;
    int32_t wrong = 0;
    pin(comm->rank);
    if (setup->registered) {
        wrong = dpar_comm_alloc(comm, (int64_t)bytes, &in) != DPAR_OK ||
                dpar_comm_alloc(comm, (int64_t)bytes, &out) != DPAR_OK;
    } else {
        in = malloc(bytes);
        out = malloc(bytes);
        wrong = !in || !out;
    }
    if (wrong) {
        fprintf(stderr, "p2p_speed: rank %d: no memory for two messages of %zu bytes\n", comm->rank,
                bytes);
        return 1;
    }
    memset(in, 1, bytes);
    memset(out, 1, bytes);
    for (int32_t row = 0; row < SIZES; row++) {
        wrong |= measure(comm, setup, (uint32_t *)in, (uint32_t *)out, size_of_row(row) / 4,
                         &setup->results[row]);
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
        dpar_world_desc desc;
        dpar_why why;
        job setup;
        memset(&desc, 0, sizeof desc);
        memset(&why, 0, sizeof why);
        desc.timeout_s = 60.0;
        desc.disable = k == 2 ? DPAR_WORLD_NO_CMA : 0;
        setup.results = results + k * SIZES;
        setup.registered = k >= 3;
        setup.posted = k == 1 || k == 2 || k == 4;
        setup.seconds = argc > 1 ? atof(argv[1]) : 0.03;
        printf("%28s", column_name[k]);
        fflush(stdout);
        if (dpar_launch(2, rank_main, &setup, &desc, &why) != DPAR_OK) {
            failed = 1;
            printf("\n");
            fprintf(stderr, "p2p_speed: column '%s': %s\n", column_name[k], why.text);
        }
    }
    printf("\n");
    for (int32_t row = 0; row < SIZES && !failed; row++) {
        printf("%10lld", (long long)size_of_row(row));
        for (int32_t k = 0; k < COLUMNS; k++) {
            const result *cell = &results[k * SIZES + row];
            printf("%9.2f /%9.2f (%5.2f)", cell->min * 1e6, cell->median * 1e6,
                   (double)size_of_row(row) / cell->median / 1e9);
        }
        printf("\n");
    }
    munmap(results, bytes);
    return failed;
}
