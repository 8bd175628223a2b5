/* SPDX-License-Identifier: MIT-0 */
/* simple - makes a program parallel in a few lines: one call in main, one function that reports
 * errors, and reductions of one number.
 *
 *     static int work(dpar_comm *world, void *unused)
 *     {
 *         const double sum = dpar_sum(world, world->rank + 1);
 *         (void)unused;
 *         if (world->status < 0) {
 *             return dpar_fail(world, NULL);
 *         }
 *         ...
 *         return 0;
 *     }
 *     int main(int argc, char **argv)
 *     {
 *         return dpar_launch_main(argc, argv, work, NULL);
 *     }
 *
 *     ./sum --ranks 4         forks four ranks
 *     mpiexec -n 4 ./sum      joins the four ranks that mpiexec started; so do srun and torchrun
 *
 * A serial main becomes parallel by two calls, dpar_init_or_launch and dpar_finalize. Their ranks
 * are new processes, as OpenMP and GPUs require. All of this is built on comm.h and launch.h. */
#ifndef DPARI_COMM_SIMPLE_H
#define DPARI_COMM_SIMPLE_H

#include "comm.h"
#include "launch.h"

/* Runs fn(world, arg) on every rank and returns the program's exit code. If a launcher started this
 * process (dpar_launcher_detect finds that out), it joins the launcher's ranks as dpar_init does.
 * Otherwise it forks N ranks as dpar_launch does.
 *
 * argc, argv: as main has them; they are only read. N is the number after the last `--ranks N` or
 *             `--ranks=N` before "--". Without that it is DPAR_RANKS in the environment, or else
 *             the number of cores, at most 4. Under a launcher N must be the launcher's number of
 *             ranks. If neither says N, a word that resembles --ranks (--rank, -ranks=4, --rnaks)
 *             is refused. If your program has such an option itself, also pass --ranks, or call
 *             dpar_launch_main with argc 1 and argv[0] only. All other words are yours.
 *
 * DPAR_TIMEOUT in the environment sets the deadline of operations in seconds (300). Collective over
 * the job.
 *
 * The exit code is 0 if fn returned 0 on all ranks. It is 1 if the program could not start or a
 * rank was killed, and 2 if --ranks, DPAR_TIMEOUT or the variables of a launcher are wrong.
 * Otherwise it is what fn returned on the first rank that failed, or 1 if that is not in 1 .. 255.
 * The error is printed to stderr once, unless dpar_fail has printed it. If processes of a launcher
 * do not find each other, each of them prints it. */
DPAR_API int dpar_launch_main(int argc, char **argv, dpar_main fn, void *arg);

/* Starts ranks, or joins those that a launcher started, and returns in each with its communicator:
 *
 *     int main(int argc, char **argv)
 *     {
 *         dpar_comm *world;
 *         dpar_why why;
 *         if (dpar_init_or_launch(&argc, &argv, NULL, &world, &why) < 0) {
 *             return dpar_fail(NULL, &why);
 *         }
 *         ... what main did before, on world->rank of world->size ...
 *         return dpar_finalize(world);
 *     }
 *
 * argc, argv: as main has them. --ranks and its number are removed; the rest is yours. With NULL,
 *          it can join a launcher's ranks or be the only rank, but not start ranks.
 * desc:    NULL selects the defaults. `threads` is ignored.
 * world:      the communicator of all ranks; close it with dpar_finalize.
 *
 * Under a launcher it joins, as dpar_init does. Otherwise the number of ranks is that of --ranks,
 * of DPAR_RANKS in the environment, or desc->ranks, the first that is set, and 1 if none is.
 * More than one rank are new processes of this program with the same arguments. Each runs main from
 * its start, as under mpiexec, so do nothing before dpar_init_or_launch that only one process
 * should do. New processes inherit neither threads nor locks. They are therefore safe where forked
 * ranks are not (dpar_launch): after OpenMP, with a GPU's runtime, with any library that has
 * threads.
 *
 * The process that started them does not return. It watches them as dpar_launch does, kills those
 * that hang, and calls exit with 0 or the exit status of the first rank that failed. It prints to
 * stderr which rank failed and how, unless dpar_fail did. A rank that ends without dpar_finalize
 * has failed.
 *
 * Collective; call it once. Fails with DPAR_E_ARG if --ranks, DPAR_RANKS, DPAR_TIMEOUT, desc or
 * the variables of a launcher are wrong, otherwise as dpar_init. Starting takes milliseconds. */
DPAR_API dpar_status dpar_init_or_launch(int *argc, char ***argv, const dpar_world_desc *desc,
                                         dpar_comm **world, dpar_why *why);
/* Waits for all ranks, closes the communicator of dpar_init_or_launch and returns the program's
 * exit code. The code is 0, or 1 if a rank has died, world is broken or NULL, or posted work was
 * not waited for. The reason is printed to stderr once, as by dpar_fail. Collective. */
DPAR_API int dpar_finalize(dpar_comm *world);

/* Silences stdout on all ranks except rank 0, so that a program that was serial prints each line
 * once and not once per rank. Call it right after the communicator is made:
 *
 *     dpar_quiet(world);
 *
 * File descriptor 1 is redirected to /dev/null, which also silences C++, Fortran and child
 * processes. Text that stdio has buffered is written first. stderr is not changed: error messages
 * of every rank still appear, and dpar_fail puts the number of the rank before them.
 *
 * Local. There is no call that undoes it. Does nothing if the ranks are threads, because threads
 * share stdout. Fails with DPAR_E_SYSTEM if /dev/null cannot be opened, with the reason in
 * comm->why; stdout is then unchanged. */
DPAR_API dpar_status dpar_quiet(dpar_comm *comm);

/* Reports an error and ends the job: `return dpar_fail(world, &why);`. Returns 1. The first rank
 * that calls it prints "rank 2 of 4: " and the message to stderr. The others print nothing, because
 * they were refused the same call, or their operations fail with DPAR_E_PEER now that comm is
 * broken.
 *
 * comm: NULL if the communicator could not be made; then only the message is printed.
 * why:  NULL prints the message of comm->why.
 *
 * Over MPI one rank of each node prints. Not collective: it waits for nobody. */
DPAR_API int dpar_fail(dpar_comm *comm, const dpar_why *why);
/* Ends the job if a call has failed, for codes that do nothing else with errors:
 *
 *     dpar_require(world, dpar_grid_make(world, &desc, &grid, NULL), NULL);
 *     dpar_require(world, dpar_grid_exchange(grid, u), NULL);
 *
 * If the call makes or frees the communicator, pass NULL for comm and the `why` that you passed to
 * the call, otherwise only the text of the status is printed:
 *
 *     dpar_require(NULL, dpar_mpi_make(MPI_COMM_WORLD, NULL, &world, &why), &why);
 *
 * Returns if status is not an error. Otherwise reports it as dpar_fail(comm, why) does, and ends
 * this process with exit status 1, without functions registered with atexit. The launcher then ends
 * the other ranks, whose calls fail. Not collective: it waits for nobody. */
DPAR_API void dpar_require(dpar_comm *comm, dpar_status status, const dpar_why *why);

/* Computes the largest x of all ranks, with the same bits on all ranks. Returns NaN after an error.
 * comm->status and comm->why then say which error it is, and later calls return NaN at once. If an
 * x is NaN, the result is NaN too, but comm->status stays 0. Collective. Costs an all-reduce of 8
 * bytes. */
DPAR_API double dpar_max(dpar_comm *comm, double x);
/* Computes the smallest x of all ranks, otherwise as dpar_max. */
DPAR_API double dpar_min(dpar_comm *comm, double x);
/* Computes the sum of x over all ranks, otherwise as dpar_max. */
DPAR_API double dpar_sum(dpar_comm *comm, double x);
/* Computes the mean of x over all ranks, otherwise as dpar_max. */
DPAR_API double dpar_mean(dpar_comm *comm, double x);
/* Computes the largest x of all ranks as dpar_max does, and finds where it is.
 *
 * index: input, a number that says where this rank's x is, such as the index of a cell or the rank.
 *        Receives the index of the largest x, or the lowest one if several ranks have it. If any x
 *        is NaN, receives the lowest index passed with a NaN. Undefined after an error.
 *
 * Costs two all-reduces of 8 bytes. scan.h has the form for many values. */
DPAR_API double dpar_max_location(dpar_comm *comm, double x, int64_t *index);
/* Computes the smallest x of all ranks and finds where it is, otherwise as dpar_max_location. */
DPAR_API double dpar_min_location(dpar_comm *comm, double x, int64_t *index);
/* Numbers elements in rank order: returns the global index of the first of this rank's `count`
 * elements, which is the sum of the counts of all lower ranks. Returns -1 after an error, which
 * comm->status and comm->why then describe. Collective. Costs an all-gather of 8 bytes. */
DPAR_API int64_t dpar_first_index(dpar_comm *comm, int64_t count);

/* Checks that all ranks have the same count elements of `type` at data, bit by bit, as initial
 * weights in training must be. Returns DPAR_OK if they have.
 *
 * data: [count], in memory that the CPU reads.
 *
 * Collective. Fails with DPAR_E_MISMATCH if they differ. On all ranks the message then names the
 * first element in which a rank differs from rank 0, "element 7 is 0.25 on rank 0, 0.75 on rank 3".
 * It names the count or type instead if that differs. Fails on all ranks with DPAR_E_ARG for a type
 * whose elements share bytes (F4), a negative count or NULL; otherwise as the collectives. The
 * message is in comm->why, too.
 *
 * Reads the data once and costs two all-reduces of 24 bytes. If data differ, it reads them once
 * more and costs an all-reduce for each bit of count. */
DPAR_API dpar_status dpar_comm_check_equal(dpar_comm *comm, const void *data, int64_t count,
                                           int32_t type, dpar_why *why);

#endif
