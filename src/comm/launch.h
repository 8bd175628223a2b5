/* SPDX-License-Identifier: MIT-0 */
/* launch - where ranks come from: forked here, threads, or started by a launcher and found.
 * dpar_launch_main (simple.h) does the usual thing in one line, dpar_init_or_launch with new
 * processes.
 *
 *     dpar_launch(4, work, NULL);          forks four ranks; work(world, NULL) in each
 *     dpar_init(&world, NULL, &why);       joins the ranks that mpiexec, srun, torchrun started */
#ifndef DPARI_COMM_LAUNCH_H
#define DPARI_COMM_LAUNCH_H

#include "comm.h"
#include "options.h"

/* What a rank runs. It returns 0 when all went well. The communicator is closed for it. */
typedef int (*dpar_main)(dpar_comm *world, void *arg);

/* Starts n ranks (1 .. 1024) on this machine, runs fn(world, arg) in each, waits for all. OK: all
 * returned 0. Four ranks take about a millisecond. Needs POSIX.
 *
 * Ranks are forked: each has its own copy of all memory, arg too. None outlives this process: on
 * Linux they are killed when it dies, elsewhere their next wait ends. n = 1 runs in this process,
 * and a rank may launch others. With options.threads ranks are threads and share memory; nobody can
 * kill them.
 *
 * printf's buffers are written before the fork and when a rank ends. What the program does at its
 * end (atexit) it does once, here. Other children of this process are left alone, and SIGCHLD may
 * be ignored. A rank that leaves by exit, even with 0, has failed.
 *
 * Threads. A fork copies the thread that calls, and no other. A library that keeps threads, and
 * waits for them in a rank, would wait there for ever. OpenMP's runtimes do not: dpar_launch lets
 * them end their threads before it forks (omp_pause_resource_all, from GCC 9 and LLVM 9 on).
 * Parallel regions work before, in and after the ranks. Threadprivate copies of OpenMP's other
 * threads are lost. Threads that no rank waits for do no harm. For all others (TBB, a GPU's
 * runtime) launch before they start, or take dpar_init_or_launch, whose ranks are new processes.
 *
 * E_TIMEOUT: this process had several threads when it forked its ranks, and for timeout_s no rank
 * has begun an operation, waited in one or used its processor. All are killed. The message has the
 * number of threads, as messages of E_PEER have where a rank was killed. Only Linux tells; ranks
 * that spin in vain are not found.
 *
 * E_PEER: a rank did not return 0, was killed, or hung. The others' waits end at once. Those that
 * go on for grace_s more are killed, unless they have left the failed one behind
 * (dpar_comm_shrink). A rank hangs that is left when others have ended and neither begins an
 * operation nor waits in one for timeout_s or grace_s, the longer of both. It is killed, too.
 *
 * E_ARG, E_SYSTEM: ranks could not be started; then none has begun. dpar_launch_with gives the
 * sentence of an error. */
DPAR_API dpar_status dpar_launch(int32_t n, dpar_main fn, void *arg);
/* dpar_launch with options (NULL: defaults) and the sentence that says which rank failed and how.
 * Errors and cost as dpar_launch. */
DPAR_API dpar_status dpar_launch_with(int32_t n, dpar_main fn, void *arg,
                                      const dpar_world_desc *options, dpar_why *why);

/* The launchers that dpar knows, in the order in which it looks for them. All numbers come from one
 * of them. */
enum {
    DPAR_LAUNCHER_NONE, /* alone: one rank */
    DPAR_LAUNCHER_DPAR, /* DPAR_RANK, DPAR_SIZE, ... */
    DPAR_LAUNCHER_TORCHRUN,
    DPAR_LAUNCHER_OPENMPI,
    DPAR_LAUNCHER_HYDRA, /* MPICH, Intel MPI */
    DPAR_LAUNCHER_PALS,  /* Cray PMI */
    DPAR_LAUNCHER_MVAPICH,
    DPAR_LAUNCHER_FLUX,
    DPAR_LAUNCHER_JSRUN,
    DPAR_LAUNCHER_SLURM, /* inside a step (srun) only */
    DPAR_LAUNCHER_COUNT
};
typedef struct dpar_launcher_info {
    int32_t launcher;               /* DPAR_LAUNCHER_x */
    int32_t rank, size;             /* of the whole job */
    int32_t local_rank, local_size; /* on this node; -1 where the launcher does not say */
    char id[64];                    /* the same on all ranks of the job, different between jobs */
} dpar_launcher_info;

/* Who started this process? Reads the launcher's environment variables. Not collective. *job is
 * written on success only.
 *
 * By hand: DPAR_RANK and DPAR_SIZE, where wanted DPAR_LOCAL_RANK, DPAR_LOCAL_SIZE, and DPAR_JOB,
 * any word of your own that other jobs do not have. Without DPAR_JOB the process that started this
 * one says which job it is. Slurm counts only inside srun.
 *
 * E_ARG with a sentence: a launcher's numbers do not fit together (a rank without a size, a rank
 * outside, "12x"), or PMIx alone is there, which does not say the size. */
DPAR_API dpar_status dpar_launcher_detect(dpar_launcher_info *job, dpar_why *why);

/* Joins the job that this process was started in, over shared memory. Started by nothing it becomes
 * one rank. *world: closed with dpar_comm_free. COLLECTIVE over the job. Milliseconds.
 *
 * The memory is as rank 0's options say; `threads` does not count. DPAR_TIMEOUT (seconds) in the
 * environment overrides options.timeout_s.
 *
 * E_ARG: the ranks are not all on one node; the sentence says what to use. Ranks meet at a socket
 * of this user's and job's. All are told the names of those that do not come before the deadline
 * (E_TIMEOUT), that end meanwhile (E_PEER), or that are of another build or another number of ranks
 * (E_MISMATCH). */
DPAR_API dpar_status dpar_init(dpar_comm **world, const dpar_world_desc *options, dpar_why *why);

#endif
