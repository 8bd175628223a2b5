/* SPDX-License-Identifier: MIT-0 */
/* p2p_speed - measures how long a message takes between two processes of one machine, each on a
 * core of its own, for 12 sizes and the five ways in which dpar can send it.
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. bench/p2p_speed.c -o p2p_speed && ./p2p_speed [SECONDS]
 *
 * SECONDS is for each cell of the table (default 0.03). A sample is a message there and one back,
 * halved, after both ranks have rewritten what they send, so that it is in the caches of its own
 * core. A cell shows the smallest and the median us, and the GB/s of the median. The columns:
 *
 *   private          memory of the program, blocking call: both ranks copy through the ring at once
 *   posted           the same, posted: the receiver reads it from the other process (CMA) where the
 *                    kernel allows that
 *   posted, no CMA   the same without reading from the other process
 *   registered       memory of dpar_comm_alloc, blocking: each rank copies a half
 *   reg., posted     the same, posted: the receiver copies
 *
 * The last message of each cell is checked. Exit codes: 0 done; 1 no memory, or a message failed or
 * was wrong; 2 wrong arguments. */
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

/* Returns the bytes of a row: 4, 64, 256, 1024, ... 64 MiB. */
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

/* Returns the seconds of one way, or -1 if a call failed. */
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

/* Fills a cell of the table. Returns 1 if a call failed or the last message was wrong. */
static int32_t measure(dpar_comm *comm, const job *setup, uint32_t *in, uint32_t *out,
                       int64_t words, result *cell)
{
    static double times[SAMPLES];
    int32_t n, wrong = 0;
    for (n = 0; n < 4; n++) {
        times[n] = sample(comm, setup, in, out, words, (uint32_t)n);
    }
    /* the number of samples depends on a time, so rank 0 decides for both */
    n = SAMPLES;
    if (times[3] > 0.0 && setup->seconds / times[3] < SAMPLES) {
        n = (int32_t)(setup->seconds / times[3]);
    }
    if (n < 5) {
        n = 5;
    }
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

/* What each of the two ranks does for one column. */
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
    double seconds = 0.03;
    int failed = 0;
    if (argc > 1) {
        seconds = atof(argv[1]);
    }
    if (argc > 2 || !(seconds > 0.0)) {
        fprintf(stderr,
                "p2p_speed: SECONDS is '%s' with %d arguments; usage: %s [SECONDS], a number "
                "above 0 for each cell\n",
                argc > 1 ? argv[1] : "", argc - 1, argv[0]);
        return 2;
    }
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
        setup.seconds = seconds;
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
