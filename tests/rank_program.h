/* SPDX-License-Identifier: MIT-0 */
/* rank_program - a test of one function on real ranks: as processes, as threads, or under mpirun
 * when built with -DUSE_MPI.
 *
 *   PROGRAM [processes|threads] [ranks]      without arguments: both, 1 to as many as the test says
 *   mpirun -np 4 PROGRAM                     built with -DUSE_MPI
 *
 * Ranks that are threads count their checks together. */
#ifndef DPAR_RANK_PROGRAM_H
#define DPAR_RANK_PROGRAM_H

#include "dpar.h"
#ifdef USE_MPI
#include "dpar_mpi.h"
#endif

#define CHECK_THREADS
#include "check.h"

#include <stdlib.h>
#include <time.h>

typedef int (*rank_test)(dpar_comm *c, void *arg);

static DPARI_UNUSED int failures(void)
{
    return __atomic_load_n(&checks_failed, __ATOMIC_RELAXED);
}

static DPARI_UNUSED double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The sum of the ranks' numbers of mistakes; a million where it cannot be had. */
static DPARI_UNUSED int64_t all_sum(dpar_comm *c, int64_t mine)
{
    int64_t all = 0;
    return dpar_all_reduce(c, &mine, &all, 1, DPAR_I64, DPAR_SUM, NULL) == DPAR_OK ? all : 1000000;
}

/* What a test of all ranks returns: 1 when one of them counted mistakes; rank 0 says how many. */
static DPARI_UNUSED int all_right(dpar_comm *c, int64_t mistakes, double began)
{
    const int64_t all = all_sum(c, mistakes);
    if (c->rank == 0) {
        printf("%d ranks, engine %s: %lld wrong, %.1f s\n", (int)c->size, c->engine.name,
               (long long)all, now() - began);
        fflush(stdout);
    }
    return all != 0;
}

/* Runs it on n ranks; what: where it failed. */
static DPARI_UNUSED void on_ranks(int n, const char *what, rank_test each, void *arg,
                                  const dpar_options *o)
{
    dpar_why why;
    const dpar_status st = dpar_launch_with(n, each, arg, o, &why);
    CHECK(st == DPAR_OK);
    if (st != DPAR_OK) {
        printf("%d ranks%s: %s\n", n, what, why.text);
    }
}

/* The whole program. `also`, or NULL, is called for each number of ranks, without MPI. */
static int rank_program(int argc, char **argv, rank_test each, void *arg, int processes,
                        int threads, void (*also)(int n, const dpar_options *o))
{
#ifdef USE_MPI
    dpar_comm *c = NULL;
    dpar_why why;
    MPI_Init(&argc, &argv);
    (void)processes, (void)threads, (void)also;
    CHECK_INT(dpar_mpi_comm(MPI_COMM_WORLD, NULL, &c, &why), DPAR_OK);
    CHECK(c != NULL && each(c, arg) == 0);
    CHECK_INT(dpar_comm_close(c), DPAR_OK);
    MPI_Finalize();
    return checks_failed > 0 || checks_run == 0;
#else
    dpar_options o;
    int n, first = 1, last;
    memset(&o, 0, sizeof o);
    o.timeout_s = 60;
    for (o.threads = 0; o.threads < 2; o.threads++) {
        if (argc > 1 && strcmp(argv[1], o.threads ? "processes" : "threads") == 0) {
            continue;
        }
        last = o.threads ? threads : processes;
        if (argc > 2 && atoi(argv[2]) > 0) {
            first = last = atoi(argv[2]);
        }
        for (n = first; n <= last; n++) {
            on_ranks(n, "", each, arg, &o);
            if (also != NULL) {
                also(n, &o);
            }
        }
    }
    return CHECK_DONE();
#endif
}

#endif
