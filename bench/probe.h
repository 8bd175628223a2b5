/* SPDX-License-Identifier: MIT-0 */
/* probe - what benchmarks of MPI ranks on one node know of their machine: how far apart the cores
 * of ranks 0 and 1 are, and whether somebody else had them. Belongs to no engine. Define
 * _GNU_SOURCE before all includes. probe_open, probe_sync, probe_line and probe_close are called by
 * all ranks.
 */
#ifndef DPAR_BENCH_PROBE_H
#define DPAR_BENCH_PROBE_H

#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { PROBE_LINE = 128, PROBE_SPINS = 2000 }; /* bytes; looks before a core is let go */

typedef struct {
    uint32_t arrived, ping;
    char pad[PROBE_LINE - 8];
} probe_word;

static struct {
    probe_word *of; /* of each rank, in shared memory; NULL: the ranks are on several nodes */
    MPI_Win window;
    int rank, ranks;
    uint32_t epoch, pings;
} probes;

static double now(void)
{
    struct timespec stamp;
    clock_gettime(CLOCK_MONOTONIC, &stamp);
    return (double)stamp.tv_sec + 1e-9 * (double)stamp.tv_nsec;
}

static void probe_open(void)
{
    MPI_Comm node;
    MPI_Aint bytes;
    int local, unit;
    MPI_Comm_rank(MPI_COMM_WORLD, &probes.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &probes.ranks);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &local);
    if (local == probes.ranks) {
        MPI_Win_allocate_shared((MPI_Aint)sizeof(probe_word), 1, MPI_INFO_NULL, node, &probes.of,
                                &probes.window);
        *probes.of = (probe_word){0};
        MPI_Win_shared_query(probes.window, 0, &bytes, &unit, &probes.of);
        MPI_Barrier(node);
    }
    MPI_Comm_free(&node);
}

static void probe_close(void)
{
    if (probes.of) {
        MPI_Win_free(&probes.window);
    }
}

static void probe_await(const uint32_t *word, uint32_t value)
{
    int spins = 0;
    while ((int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0) {
        if (++spins > PROBE_SPINS) {
            sched_yield();
        }
    }
}

/* A barrier. */
static void probe_sync(void)
{
    if (!probes.of) {
        MPI_Barrier(MPI_COMM_WORLD);
        return;
    }
    __atomic_store_n(&probes.of[probes.rank].arrived, ++probes.epoch, __ATOMIC_RELEASE);
    for (int i = 0; i < probes.ranks; i++) {
        probe_await(&probes.of[i].arrived, probes.epoch);
    }
}

/* Seconds that a cache line takes from rank 0 to rank 1, the mean over that many ways there and
 * back, on those two; 0 elsewhere, where it cannot be had, and for 0 ways. */
static double probe_line(int ways)
{
    double spent = 0;
    probe_sync();
    if (probes.of && probes.ranks > 1 && probes.rank < 2 && ways > 0) {
        spent = now();
        for (int i = 0; i < ways; i++) {
            probes.pings++;
            if (probes.rank == 1) {
                probe_await(&probes.of[0].ping, probes.pings);
            }
            __atomic_store_n(&probes.of[probes.rank].ping, probes.pings, __ATOMIC_RELEASE);
            if (probes.rank == 0) {
                probe_await(&probes.of[1].ping, probes.pings);
            }
        }
        spent = (now() - spent) / ways / 2;
    }
    probe_sync();
    return spent;
}

/* Seconds of a loop that fills a core: the best of a few. Half as long again where a guest of the
 * host runs on the core's other thread. Local. */
static inline double probe_work(void)
{
    static volatile uint64_t words[2][1024];
    volatile uint64_t *from = words[0], *to = words[1];
    double best = 1;
    for (int k = 0; k < 3; k++) {
        double spent = now();
        for (int i = 0; i < 8 * 1024; i += 4) {
            const int at = i % 1024;
            to[at] = from[at];
            to[at + 1] = from[at + 1];
            to[at + 2] = from[at + 2];
            to[at + 3] = from[at + 3];
        }
        spent = now() - spent;
        best = spent < best ? spent : best;
    }
    return best;
}

/* Seconds that this rank waited for a core so far; 0 where the system does not say. */
static double probe_waited(void)
{
    double run = 0, wait = 0;
    FILE *file = fopen("/proc/self/schedstat", "r");
    if (file && fscanf(file, "%lf %lf", &run, &wait) != 2) {
        wait = 0;
    }
    if (file) {
        fclose(file);
    }
    return wait * 1e-9;
}

#endif
