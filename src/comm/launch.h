/* SPDX-License-Identifier: MIT-0 */
/* launch - starts ranks on this machine, as processes or threads, or joins ranks that a launcher
 * has started. For most programs dpar_launch_main or dpar_init_or_launch (simple.h) is enough.
 *
 *     dpar_launch(4, work, NULL, NULL, &why);   forks four ranks; work(world, NULL) in each
 *     dpar_init(&world, NULL, &why);            joins the ranks that mpiexec or srun started */
#ifndef DPARI_COMM_LAUNCH_H
#define DPARI_COMM_LAUNCH_H

#include "comm.h"
#include "options.h"

/* The function that a rank runs. It returns 0 on success. The communicator is closed after it
 * returns. */
typedef int (*dpar_main)(dpar_comm *world, void *arg);

/* Starts ranks on this machine, runs fn(world, arg) in each, and waits until all have ended.
 * Returns DPAR_OK if fn returned 0 on all ranks.
 *
 * ranks: 1 .. 1024. A single rank runs in this process. A rank may launch other ranks.
 * desc:  NULL selects the defaults.
 * why:   on failure says which rank failed and how; may be NULL.
 *
 * Ranks are forked, so each has its own copy of all memory, including `arg`. With desc.threads they
 * are threads, which share memory and cannot be killed. No rank outlives this process: on Linux
 * ranks are killed when it dies, elsewhere their next wait fails. Buffers of stdio are flushed
 * before the fork and when a rank ends. Functions registered with atexit run only once, in this
 * process. Other children of this process are not affected, and SIGCHLD may be ignored. A rank that
 * ends by exit, even with 0, has failed.
 *
 * Threads. A fork copies only the thread that calls it. A library that has started threads, and
 * waits for them in a rank, would wait without end. OpenMP is safe, because dpar_launch ends its
 * threads before it forks (omp_pause_resource_all, from GCC 9 and LLVM 9 on). Parallel regions
 * therefore work before, in and after the ranks, but threadprivate copies of the other threads are
 * lost. Threads that no rank waits for do no harm. If you use another library with threads (TBB, a
 * GPU's runtime), launch before it starts them, or use dpar_init_or_launch, whose ranks are new
 * processes.
 *
 * Fails with DPAR_E_PEER if a rank did not return 0, was killed, or hung. The waits of the others
 * for it end at once. Ranks that have not ended grace_s later are killed, unless they have shrunk
 * the failed rank away (dpar_comm_shrink). Once some ranks have ended, the others count as hung if,
 * for the longer of timeout_s and grace_s, they neither begin an operation nor wait in one. They
 * are then killed.
 *
 * Fails with DPAR_E_TIMEOUT if this process had several threads when it forked, and for timeout_s
 * no rank has begun an operation, waited in one or used its processor. All ranks are killed. The
 * message has the number of threads, as have messages of DPAR_E_PEER about a rank that was killed.
 * This is detected on Linux only, and not for ranks that wait in a busy loop.
 *
 * Fails with DPAR_E_ARG or DPAR_E_SYSTEM if ranks could not be started; then fn has run on none.
 * Starting four ranks takes about a millisecond. Needs POSIX. */
DPAR_API dpar_status dpar_launch(int32_t ranks, dpar_main fn, void *arg,
                                 const dpar_world_desc *desc, dpar_why *why);

/* The launchers that dpar knows, in the order in which it looks for them. The first one found
 * provides all numbers. */
enum {
    DPAR_LAUNCHER_NONE, /* not launched: a single rank */
    DPAR_LAUNCHER_DPAR, /* DPAR_RANK, DPAR_SIZE, ... */
    DPAR_LAUNCHER_TORCHRUN,
    DPAR_LAUNCHER_OPENMPI,
    DPAR_LAUNCHER_HYDRA, /* MPICH, Intel MPI */
    DPAR_LAUNCHER_PALS,  /* Cray PMI */
    DPAR_LAUNCHER_MVAPICH,
    DPAR_LAUNCHER_FLUX,
    DPAR_LAUNCHER_JSRUN,
    DPAR_LAUNCHER_SLURM, /* only inside a step (srun) */
    DPAR_LAUNCHER_COUNT
};
/* A process as its launcher numbers it, filled in by dpar_launcher_detect. */
typedef struct dpar_launcher_info {
    int32_t kind;                   /* DPAR_LAUNCHER_x */
    int32_t rank, size;             /* in the whole job */
    int32_t local_rank, local_size; /* on this node; -1 if the launcher does not say */
    char id[64];                    /* the same on all ranks of the job, different between jobs */
} dpar_launcher_info;

/* Finds out which launcher started this process, and its rank, from environment variables.
 *
 * To launch by hand, set DPAR_RANK and DPAR_SIZE, and optionally DPAR_LOCAL_RANK, DPAR_LOCAL_SIZE
 * and DPAR_JOB, a word that no other job uses. Without DPAR_JOB the parent process identifies the
 * job. Slurm's variables count only inside srun.
 *
 * Local. Fails with DPAR_E_ARG if the variables of a launcher contradict each other (a rank without
 * a size, a rank outside the size, "12x"), or if only PMIx variables are set, which lack the
 * size. */
DPAR_API dpar_status dpar_launcher_detect(dpar_launcher_info *job, dpar_why *why);

/* Joins the ranks of the job that this process belongs to, over shared memory. A process that no
 * launcher started becomes the only rank.
 *
 * world:   the communicator of all ranks; close it with dpar_comm_free.
 * desc: NULL selects the defaults. Memory sizes are those of rank 0; `threads` is ignored.
 *          DPAR_TIMEOUT (seconds) in the environment overrides timeout_s.
 *
 * Collective over the job. Ranks find each other at a socket that belongs to this user and job.
 * Fails with DPAR_E_ARG if the ranks are not all on one node; the message says what to use instead.
 * Fails on all ranks with DPAR_E_TIMEOUT if ranks do not arrive before the deadline, DPAR_E_PEER if
 * ranks end meanwhile, and DPAR_E_MISMATCH if ranks have another build or another number of ranks.
 * The message names those ranks. Takes milliseconds. */
DPAR_API dpar_status dpar_init(dpar_comm **world, const dpar_world_desc *desc, dpar_why *why);

#endif
