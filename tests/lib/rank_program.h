/* SPDX-License-Identifier: MIT-0 */
/* rank_program: the main of a test of one function on real ranks: as processes, as threads, or
 * under mpirun if built with -DUSE_MPI.
 *
 *   PROGRAM [processes|threads] [ranks]      without arguments: both, with 1 rank and more
 *   mpirun -np 4 PROGRAM                     built with -DUSE_MPI
 *
 * Ranks that are threads count their checks together. */
#ifndef DPAR_RANK_PROGRAM_H
#define DPAR_RANK_PROGRAM_H

#include "dpar_comm.h"
#ifdef USE_MPI
#include "dpar_mpi.h"
#endif

#define CHECK_THREADS
#include "bf16.h"
#include "check.h"

#include "../../helpers/clock.h"

#include <stdlib.h>

typedef int (*rank_test)(dpar_comm *c, void *arg);

static inline int failures(void)
{
    return __atomic_load_n(&checks_failed, __ATOMIC_RELAXED);
}

/* ---- numbers and memory ---- */

/* splitmix64 */
static inline uint64_t lot_next(uint64_t *seed)
{
    uint64_t z = *seed += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static inline int64_t lot_below(uint64_t *seed, int64_t n)
{
    return (int64_t)(lot_next(seed) % (uint64_t)n);
}

/* Returns number i of a random sequence of 32-bit numbers that `a` selects. */
static inline uint32_t scrambled(uint32_t a, int64_t i)
{
    uint32_t h = (uint32_t)i * 2654435761u + a * 40503u + 12345u;
    h ^= h >> 15;
    h *= 0x7feb352du;
    h ^= h >> 13;
    h *= 0x846ca68bu;
    h ^= h >> 16;
    return h;
}

/* Allocates zeroed memory. */
static inline void *zeroed(int64_t bytes)
{
    void *at = calloc((size_t)bytes / 64 + 1, 64);
    if (at == NULL) {
        exit(1);
    }
    return at;
}

/* Allocates memory at a multiple of 64; *whole is the pointer to free. */
static inline void *zeroed_aligned(int64_t bytes, void **whole)
{
    *whole = zeroed(bytes + 64);
    return (char *)*whole + (64 - (size_t)((uintptr_t)*whole % 64)) % 64;
}

/* ---- floats of any type, as doubles and back ----
 * 16 bits by their definition: bfloat16 is the upper half of a float, binary16 has 5 bits of
 * exponent. */

static inline double float_get(const void *at, int64_t i, int32_t type)
{
    uint16_t h;
    if (type == DPAR_F64) {
        return ((const double *)at)[i];
    }
    if (type == DPAR_F32) {
        return (double)((const float *)at)[i];
    }
    h = ((const uint16_t *)at)[i];
    if (type == DPAR_F16) {
        const double m = (double)(h & 1023u) / 1024.0;
        const int e = (int)(h >> 10 & 31u);
        return (h & 0x8000u ? -1.0 : 1.0) * (e == 0 ? ldexp(m, -14) : ldexp(1.0 + m, e - 15));
    }
    return (double)bf16_value(h);
}

/* Rounds v to nearest even; in F16 it must be at most 65504. */
static inline void float_put(void *at, int64_t i, int32_t type, double v)
{
    const float f = (float)v;
    int e;
    if (type == DPAR_F64) {
        ((double *)at)[i] = v;
    } else if (type == DPAR_F32) {
        ((float *)at)[i] = f;
    } else if (type == DPAR_BF16) {
        ((uint16_t *)at)[i] = bf16_of(f);
    } else {
        const double m = frexp(fabs((double)f), &e); /* |f| = m 2^e, m in [0.5, 1) */
        const double steps = e >= -13 ? rint(ldexp(m, 11)) : rint(ldexp(m, e + 24));
        const uint32_t h = f == 0.0f  ? 0u
                           : e >= -13 ? (uint32_t)(steps - 1024.0) + ((uint32_t)(e + 14) << 10)
                                      : (uint32_t)steps;
        ((uint16_t *)at)[i] = (uint16_t)((f < 0.0f ? 0x8000u : 0u) | h);
    }
}

/* ---- ranks ---- */

/* Returns the sum of the ranks' numbers of mistakes, or a million if the sum fails. */
static inline int64_t all_sum(dpar_comm *c, int64_t mine)
{
    int64_t all = 0;
    return dpar_all_reduce(c, &mine, &all, 1, DPAR_I64, DPAR_SUM, NULL) == DPAR_OK ? all : 1000000;
}

/* Returns the result of a test on all ranks: 1 if a rank has counted mistakes. Rank 0 prints how
 * many. */
static inline int all_right(dpar_comm *c, int64_t mistakes, double began)
{
    const int64_t all = all_sum(c, mistakes);
    if (c->rank == 0) {
        printf("%d ranks, engine %s: %lld wrong, %.1f s\n", (int)c->size, c->engine.name,
               (long long)all, now() - began);
        fflush(stdout);
    }
    return all != 0;
}

/* Returns 1 if the message names the value that the last rank passes, unlike the others, and both
 * values, otherwise 0. If others is NULL, the value of the other ranks is not checked. */
static inline int says_who_differs(const char *text, int ranks, const char *what,
                                   const char *others, const char *last)
{
    char word[200];
    int r;
    for (r = 0; r < ranks - 1; r++) {
        (void)(others ? snprintf(word, sizeof word, "%s is %s on rank %d, %s on rank %d", what,
                                 others, r, last, ranks - 1)
                      : snprintf(word, sizeof word, "%s is not the same on ranks %d and %d", what,
                                 r, ranks - 1));
        if (strcmp(text, word) == 0) {
            return 1;
        }
    }
    printf("    \"%s\" does not say that %s is %s, %s on the last\n", text, what,
           others ? others : "something", others ? last : "something else");
    return 0;
}

/* Runs the test on n ranks. what: printed on failure. */
static inline void on_ranks(int n, const char *what, rank_test each, void *arg,
                            const dpar_world_desc *o)
{
    dpar_why why;
    const dpar_status st = dpar_launch(n, each, arg, o, &why);
    CHECK(st == DPAR_OK);
    if (st != DPAR_OK) {
        printf("%d ranks%s: %s\n", n, what, why.text);
    }
}

/* Runs the whole program. `also`, unless NULL, is called for each number of ranks without MPI. */
static int rank_program(int argc, char **argv, rank_test each, void *arg, int processes,
                        int threads, void (*also)(int n, const dpar_world_desc *o))
{
#ifdef USE_MPI
    dpar_comm *c = NULL;
    dpar_why why;
    MPI_Init(&argc, &argv);
    (void)processes, (void)threads, (void)also;
    CHECK_INT(dpar_mpi_make(MPI_COMM_WORLD, NULL, &c, &why), DPAR_OK);
    CHECK(c != NULL && each(c, arg) == 0);
    CHECK_INT(dpar_comm_free(c), DPAR_OK);
    MPI_Finalize();
    return checks_failed > 0 || checks_run == 0;
#else
    dpar_world_desc o;
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
