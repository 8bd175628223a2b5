/* SPDX-License-Identifier: MIT-0 */
/* launch - where ranks come from: forked here, threads, or started by a launcher and found. */
#ifndef DPARI_COMM_LAUNCH_H
#define DPARI_COMM_LAUNCH_H

#include "comm.h"
#include "options.h"

/* What a rank runs; its result is 0 when all went well. The communicator is closed for it. */
typedef int (*dpar_main)(dpar_comm *world, void *arg);

/* Starts n ranks (1 .. 1024) on this machine, runs fn(world, arg) in each, waits for all. They are
 * forked: each has its own copy of all memory (arg too), and none outlives this process: on Linux
 * they are killed when it dies, elsewhere their next wait ends. n = 1 runs in this process, and a
 * rank may launch others. What printf holds back is written before the fork and when a rank ends;
 * what the program does at its end (atexit) it does once, here. Other children of this process are
 * left alone, and SIGCHLD may be ignored. A rank that leaves by exit, even with 0, has failed.
 * OK when all returned 0; E_PEER when one did not or was killed (the others' waits end at once;
 * those that go on for grace_s more are killed, unless they have left it behind: dpar_comm_shrink),
 * or when it hung: those that are left when others have ended, and neither begin an operation nor
 * wait in one for timeout_s and grace_s, the longer one, are killed; E_ARG, E_SYSTEM when they
 * could not be started: then none has begun. With options.threads the ranks are threads and share
 * memory; nobody can kill them. Needs POSIX. Four ranks take about a millisecond. The sentence of
 * an error: dpar_launch_with. */
DPAR_API dpar_status dpar_launch(int32_t n, dpar_main fn, void *arg);
/* The same, with options (NULL: defaults) and the sentence that says which rank failed and how.
 * Errors and cost as dpar_launch. */
DPAR_API dpar_status dpar_launch_with(int32_t n, dpar_main fn, void *arg,
                                      const dpar_options *options, dpar_why *why);

/* Who started this process? The launchers that dpar knows, in the order in which it looks; all
 * numbers come from one of them. */
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
    DPAR_LAUNCHERS
};
typedef struct dpar_start {
    int32_t launcher;               /* DPAR_LAUNCHER_x */
    int32_t rank, size;             /* of the whole job */
    int32_t local_rank, local_size; /* on this node; -1 where the launcher does not say */
    char id[64];                    /* the same on all ranks of the job, different between jobs */
} dpar_start;

/* Reads the environment (this is its purpose). By hand: DPAR_RANK and DPAR_SIZE, where wanted
 * DPAR_LOCAL_RANK, DPAR_LOCAL_SIZE, and DPAR_JOB, any word of your own that other jobs do not have
 * (else: the process that started this one). Slurm counts only inside srun. E_ARG with a sentence
 * when a launcher's numbers do not fit together: a rank without a size, a rank outside, "12x"; when
 * PMIx alone is there, which does not say the size. *job is written only on success. Not
 * collective. Reads a few variables. */
DPAR_API dpar_status dpar_start_read(dpar_start *job, dpar_why *why);

/* Joins the job that this process was started in, over shared memory: all its ranks must be on one
 * node (else E_ARG, and the sentence says what to use). Started by nothing it becomes one rank.
 * Ranks meet at a socket of this user's and job's; those that do not come before the deadline
 * (E_TIMEOUT), end meanwhile (E_PEER), are of another build or another number of ranks
 * (E_MISMATCH) are named to all. DPAR_TIMEOUT (seconds) in the environment overrides
 * options.timeout_s. The memory is as rank 0's options say; `threads` is not looked at. *world:
 * closed with dpar_comm_close. COLLECTIVE over the job. Milliseconds. */
DPAR_API dpar_status dpar_init(dpar_comm **world, const dpar_options *options, dpar_why *why);

#endif
