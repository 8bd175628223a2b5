/* SPDX-License-Identifier: MIT-0 */
/* simple - the short way to ranks: one line in main, one error exit, one number from all.
 *
 *     static int work(dpar_comm *world, void *unused)
 *     {
 *         const double sum = dpar_sum(world, world->rank + 1);
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
 *     mpiexec -n 4 ./sum      joins the four that mpiexec has started; so with srun and torchrun
 *
 * A main that was serial becomes parallel by two lines, dpar_init_or_launch and dpar_finalize; its
 * ranks are new processes, which OpenMP and GPUs want.
 *
 * All of it is made of the functions of comm.h and launch.h. */
#ifndef DPARI_COMM_SIMPLE_H
#define DPARI_COMM_SIMPLE_H

#include "comm.h"
#include "launch.h"

/* Runs fn(world, arg) on every rank and returns the program's exit code. Where a launcher has
 * started several processes (dpar_launcher_detect finds it), this one joins them: dpar_init. Else
 * it forks N ranks, as dpar_launch does. COLLECTIVE over the job.
 *
 * N comes from `--ranks N` or `--ranks=N` among the arguments, or else from DPAR_RANKS in the
 * environment. Without both it is the number of cores, 4 at most. The last --ranks counts, those
 * behind "--" do not. argv is only read; its other words are yours. Under a launcher N must be its
 * number of ranks. Where neither says N, a word that is nearly --ranks (--rank, -ranks=4, --rnaks)
 * is refused. A program with such an option of its own says --ranks beside it, or passes argc 1 and
 * argv[0]. DPAR_TIMEOUT in the environment is the deadline of operations, in seconds (300).
 *
 * Exit code 0: fn returned 0 on all ranks. 1: it could not start, or a rank was killed. 2: --ranks,
 * DPAR_TIMEOUT or a launcher's variables are wrong. Else what the first rank returned that failed,
 * or 1 where that is not 1 .. 255. The sentence goes to stderr, once, unless dpar_fail has said
 * one. Where processes of a launcher do not meet, each says it. */
DPAR_API int dpar_launch_main(int argc, char **argv, dpar_main fn, void *arg);

/* Starts ranks or joins those that were started, and returns in each with its communicator:
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
 * argc, argv: as main has them. --ranks and its number are taken out, the rest is yours.
 * options:    NULL selects the defaults. `threads` does not count.
 *
 * Under a launcher it joins, as dpar_init does. Otherwise the number of ranks is that of --ranks,
 * of DPAR_RANKS in the environment, or options->ranks, the first that is there, else 1. More than
 * one rank are new processes of this program with the same arguments. Each runs main from its
 * start, as under mpiexec, so do nothing before dpar_init_or_launch that only one process should
 * do. They inherit no thread and no lock, and are safe where forked ranks are not (dpar_launch):
 * after OpenMP, with a GPU's runtime, with any library that has threads.
 *
 * The process that started them does not return. It watches them as dpar_launch does, kills those
 * that hang, and calls exit with 0 or the exit status of the first rank that failed. It says on
 * stderr who failed and how, unless dpar_fail did. A rank fails if it ends without dpar_finalize.
 *
 * COLLECTIVE. Starting takes milliseconds. Call it once. E_ARG: --ranks, DPAR_RANKS, DPAR_TIMEOUT,
 * options or a launcher's variables are wrong. Else as dpar_init. */
DPAR_API dpar_status dpar_init_or_launch(int *argc, char ***argv, const dpar_world_desc *options,
                                         dpar_comm **world, dpar_why *why);
/* Waits for all ranks, closes the communicator of dpar_init_or_launch and returns the program's
 * exit code: 0, or 1 if a rank is gone, world is broken or NULL, or work was not waited for. The
 * reason goes to stderr, once, as by dpar_fail. COLLECTIVE. */
DPAR_API int dpar_finalize(dpar_comm *world);

/* Ends the job in order: `return dpar_fail(world, &why);`. Returns 1. The first rank that comes
 * here writes "rank 2 of 4: " and the sentence to stderr. All others keep quiet: they were refused
 * the same call, or their operations now end in E_PEER because c is broken.
 *
 * why NULL: the sentence of c->why. c NULL (it could not be made): the sentence alone. Over MPI one
 * rank a node writes. Not collective: it waits for nobody. */
DPAR_API int dpar_fail(dpar_comm *c, const dpar_why *why);

/* Memory that other ranks reach directly, by dpar_comm_alloc: zeroed, aligned to 4096, until
 * dpar_comm_release or the end of the world. NULL: c->why has the sentence. Not collective. */
DPAR_API void *dpar_alloc(dpar_comm *c, int64_t bytes);

/* The largest or smallest x of all ranks, their sum, their mean: the same bits on all ranks. NaN
 * after an error: c->status and c->why say which, and later ones are NaN at once. Where an x is NaN
 * the result is NaN, too, but c->status stays 0. COLLECTIVE: an all-reduce of 8 bytes. */
DPAR_API double dpar_max(dpar_comm *c, double x);
DPAR_API double dpar_min(dpar_comm *c, double x);
DPAR_API double dpar_sum(dpar_comm *c, double x);
DPAR_API double dpar_mean(dpar_comm *c, double x);

/* Do all ranks have the same count elements of `type` at data, bit by bit? Training asks this of
 * its first weights. data: memory that the CPU reads. COLLECTIVE. OK: yes.
 *
 * E_MISMATCH: no. On all ranks *why names the first element in which any rank differs from rank 0,
 * "element 7 is 0.25 on rank 0, 0.75 on rank 3", or what differs of count and type. E_ARG: a type
 * without an address (F4), a count below 0, NULL; all ranks hear of it. Else as the collectives.
 * The sentence is in c->why, too.
 *
 * It reads the data once, and takes two all-reduces of 24 bytes. Where data differ it reads them
 * once more, with an all-reduce for each bit of count. */
DPAR_API dpar_status dpar_comm_check_equal(dpar_comm *c, const void *data, int64_t count,
                                           int32_t type, dpar_why *why);

#endif
