/* SPDX-License-Identifier: MIT-0 */
/* wire - what the wire types of a ddp cost: dpar_ddp_end of N gradients in F32, BF16, I8 and F8, in
 * turns in the same run. The ratios are to F32. Codes of 8 bits have a quarter of the bytes, but
 * are computed, so they pay where the network is slow.
 *
 *     wire [N] [--ranks R]     default 25 million gradients
 *
 * Between nodes, build it with mpicc -DUSE_MPI and start it with mpiexec. Prints the shortest time
 * of ROUNDS on the slowest rank. */
#define _GNU_SOURCE
#define DPAR_IMPLEMENTATION
#include "dpar_train.h"
#ifdef USE_MPI
#define DPAR_MPI_IMPLEMENTATION
#include "dpar_mpi.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TYPES = 4, ROUNDS = 6 };

static const int32_t types[TYPES] = {DPAR_F32, DPAR_BF16, DPAR_I8, DPAR_F8};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Returns the seconds that the slowest rank takes to average new gradients. */
static double average(dpar_comm *world, dpar_ddp *ddp, float *gradients, int64_t n)
{
    double seconds;
    for (int64_t i = 0; i < n; i++) {
        gradients[i] = (float)((i * 7919 + world->rank) % 1000) * 1e-3f;
    }
    dpar_require(world, dpar_barrier(world, NULL), NULL);
    seconds = now();
    dpar_require(world, dpar_ddp_end(ddp), NULL);
    return dpar_max(world, now() - seconds);
}

int main(int argc, char **argv)
{
    double best[TYPES] = {0.0};
    dpar_comm *world = NULL;
    dpar_ddp *ddp[TYPES];
    dpar_why why;
    void *memory = NULL;
    int64_t n = 25000000;
    int k, round;
#ifdef USE_MPI
    MPI_Init(&argc, &argv);
    dpar_require(NULL, dpar_mpi_make(MPI_COMM_WORLD, NULL, &world, &why), &why);
#else
    dpar_require(NULL, dpar_init_or_launch(&argc, &argv, NULL, &world, &why), &why);
#endif
    dpar_quiet(world);
    n = argc > 1 ? atoll(argv[1]) : n;
    if (n < 1 || n > 1 << 30) {
        fprintf(stderr, "wire: N is %s, but must be 1 to 2^30\n", argv[1]);
        return 2;
    }
    dpar_require(world, dpar_comm_alloc(world, n * 4, &memory), NULL);
    for (k = 0; k < TYPES; k++) {
        dpar_ddp_desc desc = {0};
        desc.params = 1;
        desc.count = &n;
        desc.type = DPAR_F32;
        desc.gradients = memory;
        desc.wire_type = types[k];
        dpar_require(world, dpar_ddp_make(world, &desc, &ddp[k], &why), &why);
    }
    for (round = 0; round < ROUNDS; round++) {
        for (k = 0; k < TYPES; k++) {
            const double seconds = average(world, ddp[k], (float *)memory, n);
            best[k] = round == 0 || seconds < best[k] ? seconds : best[k];
        }
    }
    for (k = 0; k < TYPES; k++) {
        printf("%-4s %8.2f ms, ratio %.2f\n", dpar_type_name(types[k]), best[k] * 1e3,
               best[k] / best[0]);
        dpar_require(world, dpar_ddp_free(ddp[k]), NULL);
    }
    fflush(stdout);
#ifdef USE_MPI
    dpar_require(NULL, dpar_comm_free(world), NULL);
    MPI_Finalize();
    return 0;
#else
    return dpar_finalize(world);
#endif
}
