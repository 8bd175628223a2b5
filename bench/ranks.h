/* SPDX-License-Identifier: MIT-0 */
/* ranks - the clock, and a core for each rank, for benchmarks whose ranks dpar or MPI starts.
 * Define _GNU_SOURCE before all includes. */
#ifndef DPAR_BENCH_RANKS_H
#define DPAR_BENCH_RANKS_H

#include "../helpers/clock.h"

#include <sched.h>
#include <stdint.h>

/* Keeps rank r on the r-th of the cores that this process may use. If it may use only one, a
 * launcher has chosen it, and nothing changes. */
static void pin(int32_t rank)
{
#if defined(__linux__) && defined(CPU_SET)
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) > 1) {
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
            if (CPU_ISSET(cpu, &allowed) && rank-- == 0) {
                CPU_ZERO(&one);
                CPU_SET(cpu, &one);
                sched_setaffinity(0, sizeof one, &one);
            }
        }
    }
#else
    (void)rank;
#endif
}

#endif
