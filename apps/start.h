/* SPDX-License-Identifier: MIT-0 */
/* start - starts the applications: on ranks that are forked here, on those that mpiexec, srun or
 * torchrun has started on one node, or, built with -DUSE_MPI, on those of MPI. If there are more
 * ranks than cores it says so on stderr. It is included after options.h and before main. With
 * -DUSE_MPI it includes dpar_mpi.h. */
#ifndef DPAR_APPS_START_H
#define DPAR_APPS_START_H

#include "dpar_comm.h"
#ifdef USE_MPI
#include "dpar_mpi.h"
#endif

#include <stdio.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

/* Reads the command line into `options`. *ranks is the number of ranks that a launcher has
 * started, or 0; it is set to the number that there are to be. Returns -1 to continue, otherwise
 * the exit code. */
typedef int start_read(int argc, char **argv, int *ranks, void *options);

/* Sets *ranks to the number that --ranks asks for, unless a launcher has started some. Returns -1,
 * or 2 after a message if they differ. */
static inline int start_ranks(int *ranks, int asked)
{
    if (*ranks > 0 && asked > 0 && asked != *ranks) {
        return complain("the launcher sets the number of ranks: leave --ranks out", NULL);
    }
    *ranks = *ranks > 0 ? *ranks : asked;
    return -1;
}

/* The cores that this process may use. For ranks that a launcher has started, which may be bound to
 * one core each: `all`, the cores of the node. 0 if the system does not tell. */
static inline long start_cores(int all)
{
    long cores = 0;
#if defined(SYS_sched_getaffinity) && (defined(_DEFAULT_SOURCE) || defined(_GNU_SOURCE))
    unsigned char allowed[1024]; /* a bit for each core; glibc's own call needs _GNU_SOURCE */
    const long bytes = all ? 0 : syscall(SYS_sched_getaffinity, 0, sizeof allowed, allowed);
    long bit;
    for (bit = 0; bit < 8 * bytes; bit++) {
        cores += allowed[bit / 8] >> bit % 8 & 1;
    }
    if (cores > 0) {
        return cores;
    }
#endif
    (void)all;
#if defined(_SC_NPROCESSORS_ONLN)
    cores = sysconf(_SC_NPROCESSORS_ONLN);
#endif
    return cores > 0 ? cores : 0;
}

/* Says on stderr, on the first rank only, if the ranks of a node have to share its cores. */
static inline void start_shares(int ranks, long cores)
{
    if (!options_quiet && cores > 0 && ranks > cores) {
        fprintf(stderr,
                "%s: %d ranks share %ld core%s: they take turns, so times are not what separate "
                "cores would give\n",
                program, ranks, cores, options_plural(cores, "s"));
    }
}

/* ---- one message of all ranks ---------------------------------------------------------------- */

typedef struct start_call {
    dpar_main each;
    void *options;
} start_call;

static dpar_why start_why; /* the first message of this rank */

static inline void start_says(const char *sentence)
{
    if (start_why.text[0] == 0) {
        snprintf(start_why.text, sizeof start_why.text, "%s", sentence);
    }
}

/* Runs a rank. Its message, if it fails, is passed to dpar_fail, so that it is printed once and not
 * by every rank. */
static inline int start_rank(dpar_comm *world, void *given)
{
    const start_call *call = (const start_call *)given;
    int code;
    start_why.text[0] = 0;
    options_says = start_says;
    code = call->each(world, call->options);
    options_says = NULL;
    if (start_why.text[0] != 0 && code != 0) {
        (void)dpar_fail(world, &start_why);
    } else if (start_why.text[0] != 0) {
        (void)complain(start_why.text, NULL);
    }
    return code;
}

#ifdef USE_MPI

/* The number of ranks on this node. */
static inline int start_ranks_here(void)
{
    MPI_Comm near;
    int ranks = 1;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &near);
    MPI_Comm_size(near, &ranks);
    MPI_Comm_free(&near);
    return ranks;
}

/* Reads the command line, and runs `each` on all ranks. Returns the exit code. */
static inline int start(int argc, char **argv, start_read *reads, dpar_main each, void *options)
{
    start_call call = {each, options};
    dpar_comm *world = NULL;
    dpar_why why;
    int code, here, rank = 0, ranks = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    options_quiet = rank > 0;
    here = start_ranks_here();
    code = reads(argc, argv, &ranks, options);
    if (code < 0) {
        start_shares(here, start_cores(1));
    }
    if (code < 0 && dpar_mpi_make(MPI_COMM_WORLD, NULL, &world, &why) != DPAR_OK) {
        code = complain(why.text, NULL);
    } else if (code < 0) {
        code = start_rank(world, &call);
        if (code != 0) {
            fflush(NULL);
            MPI_Abort(MPI_COMM_WORLD, code); /* MPI_Finalize might never return */
        }
        (void)dpar_comm_free(world);
    }
    MPI_Finalize();
    return code;
}

#else

static inline int start(int argc, char **argv, start_read *reads, dpar_main each, void *options)
{
    dpar_launcher_info job;
    char number[32];
    char *words[4] = {argv[0], NULL, NULL, NULL};
    start_call call = {each, options};
    int code, launched, ranks = 0;
    launched = dpar_launcher_detect(&job, NULL) == DPAR_OK && job.size > 1;
    if (launched) {
        ranks = job.size;
        options_quiet = job.rank > 0;
    }
    code = reads(argc, argv, &ranks, options);
    if (code >= 0) {
        return code;
    }
    start_shares(ranks, start_cores(launched));
    snprintf(number, sizeof number, "--ranks=%d", ranks);
    words[1] = number;
    return dpar_launch_main(2, words, start_rank, &call);
}

#endif

#endif
