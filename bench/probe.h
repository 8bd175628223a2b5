/* SPDX-License-Identifier: MIT-0 */
/* probe - lets benchmarks of MPI ranks on one node tell whether a sample can be trusted: how long a
 * cache line takes between the cores of ranks 0 and 1, and whether another program used the cores.
 * It uses its own shared memory and flags, so that no engine that is measured is at an advantage.
 * Define _GNU_SOURCE before all includes. All ranks have to call probe_open, probe_sync, probe_line
 * and probe_close. */
#ifndef DPAR_BENCH_PROBE_H
#define DPAR_BENCH_PROBE_H

#include "../helpers/clock.h"

#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>

enum {
    PROBE_LINE = 128,  /* bytes; two cache lines, because CPUs fetch them in pairs */
    PROBE_SPINS = 2000 /* looks at a word before a waiting rank yields its core */
};

/* A rank's words in the shared memory. */
typedef struct {
    uint32_t arrived, ping;
    char pad[PROBE_LINE - 8];
} probe_word;

static struct {
    probe_word *of; /* [ranks], shared; NULL if the ranks are on several nodes */
    MPI_Win window;
    int rank, ranks;
    uint32_t epoch, pings;
} probes;

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

/* Waits until *word is `value` or has gone past it. */
static void probe_await(const uint32_t *word, uint32_t value)
{
    int spins = 0;
    while ((int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0) {
        if (++spins > PROBE_SPINS) {
            sched_yield();
        }
    }
}

/* A barrier that belongs to none of the engines. */
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

/* Returns on ranks 0 and 1 the seconds that a cache line takes from one to the other, the mean of
 * so many ways there and back. Returns 0 on all other ranks, on several nodes, and if ways is 0. */
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

/* Returns the seconds of a loop that keeps a core busy, the fastest of three. It takes half as long
 * again while another guest of the host runs on the core's other thread. Local. */
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

/* Returns the seconds that this rank has waited for a core so far, or 0 if the system has no
 * schedstat. */
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
