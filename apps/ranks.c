/* SPDX-License-Identifier: MIT-0 */
/* ranks - real ranks on this machine: what each collective does, how fast it is, and what happens
 * to the others when a rank is killed.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. apps/ranks.c -o ranks
 *   ./ranks 4
 *
 *   4 ranks, engine shm, private memory: each operation, all elements: 0 wrong
 *   4 ranks, engine shm, registered memory: each operation, all elements: 0 wrong
 *
 *   bus bandwidth, GB/s  private memory                   registered memory
 *                       4 KiB   64 KiB    1 MiB   16 MiB      4 KiB   64 KiB    1 MiB   16 MiB
 *   all-reduce           0.58     1.42     0.71     0.65       0.27     1.21     1.96     1.58
 *   reduce-scatter       0.16     0.24     0.52     0.42       0.12     0.54     0.59     0.51
 *   all-gather           0.16     0.46     0.53     0.48       0.11     0.48     0.57     1.29
 *   all-to-all           0.16     0.46     0.45     0.37       0.13     0.59     0.64     0.89
 *   broadcast            0.25     0.45     1.01     1.00       0.16     0.71     1.12     1.07
 *   reduce               0.31     0.96     0.93     0.70       0.15     0.90     1.38     1.74
 *   gather               0.22     1.00     1.64     0.92       0.14     0.77     0.97     1.57
 *   scatter              0.18     0.70     0.94     1.25       0.13     0.76     1.03     1.24
 *   send-recv            0.16     0.51     0.97     1.08       0.26     0.99     1.08     2.10
 *
 *   Again, and now rank 3 is killed (SIGKILL) after three operations.
 *   rank 0 was told: another rank is gone: all-gather #4 (10 f32) of 4 ranks: rank 3 was killed
 *       by signal 9 (last done: all-reduce #3 (1000 f32, sum))
 *
 *   the flight recorder:
 *   rank 0 (process 22874)
 *       all-reduce #1 (1000 f32, sum) done
 *       all-reduce #2 (1000 f32, sum) done
 *       all-reduce #3 (1000 f32, sum) done
 *       all-gather #4 (10 f32) failed
 *   ...
 *   rank 3 (process 22877) was killed by signal 9
 *       all-reduce #1 (1000 f32, sum) done
 *       all-reduce #2 (1000 f32, sum) done
 *       all-reduce #3 (1000 f32, sum) done
 *
 *   dpar_launch says: another rank is gone: rank 3 was killed by signal 9 (SIGKILL)
 *
 * (numbers of two cores that were busy with other work, too)
 *
 * It shows every collective of dpar_comm.h in `run`, the forms with pieces of different sizes
 * (dpar_all_gather_v, dpar_all_to_all_v), memory that other ranks can read (dpar_comm_alloc), and
 * dpar_comm_report after a failure.
 *
 * The same source over MPI (the part that kills a rank is left out: MPI ends the whole job):
 *
 *   mpicc -O2 -DUSE_MPI -DDPAR_IMPLEMENTATION -I. apps/ranks.c -o ranks && mpirun -np 4 ./ranks
 *
 * Exit code: 0 fine, 1 a wrong result or an error that should not be, 2 bad input (one message on
 * stderr). */
#include "dpar_comm.h"
#ifdef USE_MPI
#include "dpar_mpi.h"
#endif

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char program[] = "ranks";
static const char help[] =
    "ranks: starts ranks, runs each collective, measures it, kills a rank\n"
    "\n"
    "  ranks N [--size BYTES]    N ranks, 1 to 64; the largest message of the table,\n"
    "                            1 MiB to 1 GiB (default 16777216)\n"
    "  mpirun -np N ranks        on one node; built with -DUSE_MPI on any number\n"
    "                            (all with -O2: else the table is slow)\n"
    "\n"
    "The table: bus bandwidth as nccl-tests define it, in GB/s: bytes over time, times 2 (n-1)/n\n"
    "for all-reduce, (n-1)/n where pieces of n ranks travel, 1 else. Registered memory comes from\n"
    "dpar_comm_alloc: the other ranks reach it without a copy between. Inputs are rewritten "
    "before\n"
    "each operation, the slowest rank counts.\n"
    "Exit code: 0 fine, 1 a wrong result or an error that should not be, 2 bad input\n"
    "\n"
    "examples\n"
    "  ranks 4\n"
    "  ranks 2 --size 268435456\n"
    "  mpirun -np 4 ranks\n";

#include "../helpers/options.h"
#include "start.h"

enum { SIZES = 4, CHECKED = 1024 }; /* columns of the table; elements of the first check */

typedef struct plan {
    int ranks, kills;    /* kills 1: a rank is killed at the end, if ranks were started here */
    int64_t size[SIZES]; /* bytes of the messages in each column */
} plan;

/* ---- the operations -------------------------------------------------------------------------- */

/* Element i of a rank's input. */
static float mine(int32_t rank, int64_t i)
{
    return (float)((rank + 1) * 3 + i % 61);
}

/* The sum of element i over n ranks, which is small enough to be exact. */
static float sum(int32_t n, int64_t i)
{
    return (float)(3 * n * (n + 1) / 2 + n * (i % 61));
}

static const int32_t kinds[] = {
    DPAR_CALL_ALL_REDUCE, DPAR_CALL_REDUCE_SCATTER, DPAR_CALL_ALL_GATHER,
    DPAR_CALL_ALL_TO_ALL, DPAR_CALL_BROADCAST,      DPAR_CALL_REDUCE,
    DPAR_CALL_GATHER,     DPAR_CALL_SCATTER,        DPAR_CALL_SEND_RECV};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* True if the message consists of pieces of all ranks. */
static int in_pieces(int32_t kind)
{
    return kind == DPAR_CALL_REDUCE_SCATTER || kind == DPAR_CALL_ALL_GATHER ||
           kind == DPAR_CALL_ALL_TO_ALL || kind == DPAR_CALL_GATHER || kind == DPAR_CALL_SCATTER;
}

/* Runs an operation on `count` elements, which are those of a rank's piece or of the whole message.
 * The root is rank 0. SEND_RECV sends to the next rank and receives from the one before. */
static dpar_status run(dpar_comm *comm, int32_t kind, const float *in, float *out, int64_t count)
{
    dpar_work sent, came;
    dpar_status st;
    switch (kind) {
    case DPAR_CALL_ALL_REDUCE:
        return dpar_all_reduce(comm, in, out, count, DPAR_F32, DPAR_SUM, NULL);
    case DPAR_CALL_REDUCE_SCATTER:
        return dpar_reduce_scatter(comm, in, out, count, DPAR_F32, DPAR_SUM, NULL);
    case DPAR_CALL_ALL_GATHER: return dpar_all_gather(comm, in, out, count, DPAR_F32, NULL);
    case DPAR_CALL_ALL_TO_ALL: return dpar_all_to_all(comm, in, out, count, DPAR_F32, NULL);
    case DPAR_CALL_BROADCAST: return dpar_broadcast(comm, out, count, DPAR_F32, 0, NULL);
    case DPAR_CALL_REDUCE: return dpar_reduce(comm, in, out, count, DPAR_F32, DPAR_SUM, 0, NULL);
    case DPAR_CALL_GATHER: return dpar_gather(comm, in, out, count, DPAR_F32, 0, NULL);
    case DPAR_CALL_SCATTER: return dpar_scatter(comm, in, out, count, DPAR_F32, 0, NULL);
    default: break;
    }
    memset(&sent, 0, sizeof sent);
    memset(&came, 0, sizeof came);
    st =
        dpar_recv(comm, out, count, DPAR_F32, (comm->rank + comm->size - 1) % comm->size, 0, &came);
    if (st == DPAR_OK) {
        st = dpar_send(comm, in, count, DPAR_F32, (comm->rank + 1) % comm->size, 0, &sent);
    }
    if (st == DPAR_OK) {
        st = dpar_wait(&came);
    }
    return st == DPAR_OK ? dpar_wait(&sent) : st;
}

/* Element i of this rank's correct result, or -1 if it receives nothing. */
static float expected(const dpar_comm *comm, int32_t kind, int64_t count, int64_t i)
{
    const int32_t n = comm->size, me = comm->rank;
    switch (kind) {
    case DPAR_CALL_ALL_REDUCE: return sum(n, i);
    case DPAR_CALL_REDUCE_SCATTER: return sum(n, me * count + i);
    case DPAR_CALL_ALL_GATHER: return mine((int32_t)(i / count), i % count);
    case DPAR_CALL_ALL_TO_ALL: return mine((int32_t)(i / count), me * count + i % count);
    case DPAR_CALL_BROADCAST: return mine(0, i);
    case DPAR_CALL_REDUCE: return me == 0 ? sum(n, i) : -1;
    case DPAR_CALL_GATHER: return me == 0 ? mine((int32_t)(i / count), i % count) : -1;
    case DPAR_CALL_SCATTER: return mine(0, me * count + i);
    default: return mine((me + n - 1) % n, i);
    }
}

/* Elements of the output. */
static int64_t results(const dpar_comm *comm, int32_t kind, int64_t count)
{
    switch (kind) {
    case DPAR_CALL_ALL_GATHER:
    case DPAR_CALL_ALL_TO_ALL:
    case DPAR_CALL_GATHER: return count * comm->size;
    default: return count;
    }
}

static void fill(const dpar_comm *comm, int32_t kind, float *in, float *out, int64_t elements)
{
    int64_t i;
    for (i = 0; i < elements; i++) {
        in[i] = mine(comm->rank, i);
    }
    for (i = 0; i < elements && kind == DPAR_CALL_BROADCAST && comm->rank == 0; i++) {
        out[i] = mine(0, i);
    }
}

/* Counts wrong elements of the output; every step-th is checked. */
static int64_t wrong(const dpar_comm *comm, int32_t kind, const float *out, int64_t count,
                     int64_t step)
{
    int64_t bad = 0, i;
    for (i = 0; i < results(comm, kind, count); i += step) {
        const float want = expected(comm, kind, count, i);
        bad += want >= 0.0f && (out[i] < want || out[i] > want);
    }
    return bad;
}

/* True, after a message, if an operation failed. */
static int failed(const dpar_comm *comm, int32_t kind, dpar_status st)
{
    if (st == DPAR_OK) {
        return 0;
    }
    fprintf(stderr, "ranks: rank %d: %s failed: %s: %s\n", (int)comm->rank, dpar_call_name(kind),
            dpar_status_text(st), comm->why.text);
    return 1;
}

/* ---- each once, all elements checked --------------------------------------------------------- */

/* Checks the _v forms, with pieces of different sizes: rank r has r + 1 elements. Returns how many
 * elements are wrong. */
static int64_t check_pieces(dpar_comm *comm, float *in, float *out)
{
    int64_t count[64], same[64], bad = 0, at = 0, i;
    int32_t rank;
    for (rank = 0; rank < comm->size; rank++) {
        count[rank] = rank + 1;
        same[rank] = comm->rank + 1;
    }
    fill(comm, DPAR_CALL_ALL_GATHER, in, out, (int64_t)comm->size * comm->size);
    if (failed(comm, DPAR_CALL_ALL_GATHER,
               dpar_all_gather_v(comm, in, out, count, NULL, DPAR_F32, NULL))) {
        return 1;
    }
    for (rank = 0; rank < comm->size; rank++) {
        for (i = 0; i < count[rank]; i++) {
            bad += out[at] < mine(rank, i) || out[at] > mine(rank, i);
            at++;
        }
    }
    if (failed(comm, DPAR_CALL_ALL_TO_ALL,
               dpar_all_to_all_v(comm, in, count, NULL, out, same, NULL, DPAR_F32, NULL))) {
        return 1;
    }
    at = (int64_t)comm->rank * (comm->rank + 1) /
         2; /* where this rank's piece begins in each input */
    for (rank = 0; rank < comm->size; rank++) {
        for (i = 0; i <= comm->rank; i++) {
            const float got = out[(int64_t)rank * (comm->rank + 1) + i];
            bad += got < mine(rank, at + i) || got > mine(rank, at + i);
        }
    }
    return bad;
}

/* Runs each operation once and checks all elements. Returns 1 if something is wrong. */
static int check_all(dpar_comm *comm, float *in, float *out, const char *memory)
{
    const int64_t count = CHECKED / comm->size;
    int64_t bad = 0, all = 0;
    int k;
    for (k = 0; k < KINDS; k++) {
        fill(comm, kinds[k], in, out, count * comm->size);
        if (failed(comm, kinds[k], run(comm, kinds[k], in, out, count))) {
            return 1;
        }
        bad += wrong(comm, kinds[k], out, count, 1);
    }
    bad += check_pieces(comm, in, out);
    if (failed(comm, DPAR_CALL_BARRIER, dpar_barrier(comm, NULL)) ||
        failed(comm, DPAR_CALL_ALL_REDUCE,
               dpar_all_reduce(comm, &bad, &all, 1, DPAR_I64, DPAR_SUM, NULL))) {
        return 1;
    }
    if (comm->rank == 0) {
        printf("%d rank%s, engine %s, %s memory: each operation, all elements: %lld wrong\n",
               (int)comm->size, comm->size > 1 ? "s" : "", comm->engine.name, memory,
               (long long)all);
    }
    return all != 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Seconds of an operation: the median over several runs of the slowest rank's time. Negative after
 * an error. */
static double measure(dpar_comm *comm, int32_t kind, float *in, float *out, int64_t bytes, int *bad)
{
    enum { MOST = 51 };
    const int64_t all = bytes / 4;
    const int64_t count = in_pieces(kind) ? all / comm->size : all;
    double took[MOST], slowest[MOST];
    int i, k, times = MOST; /* fewer runs of large messages */
    if (bytes > (1 << 22)) {
        times = 5;
    } else if (bytes > (1 << 18)) {
        times = 15;
    }
    for (i = 0; i < times; i++) {
        dpar_status st;
        fill(comm, kind, in, out, all);
        st = dpar_barrier(comm, NULL);
        took[i] = now();
        if (st == DPAR_OK) {
            st = run(comm, kind, in, out, count);
        }
        took[i] = now() - took[i];
        if (failed(comm, kind, st)) {
            return -1;
        }
    }
    *bad += wrong(comm, kind, out, count, 97) > 0;
    if (failed(comm, kind, dpar_all_reduce(comm, took, slowest, times, DPAR_F64, DPAR_MAX, NULL))) {
        return -1;
    }
    for (i = 1; i < times; i++) {
        double middle = slowest[i];
        for (k = i; k > 0 && slowest[k - 1] > middle; k--) {
            slowest[k] = slowest[k - 1];
        }
        slowest[k] = middle;
    }
    return slowest[times / 2];
}

/* The bus bandwidth of nccl-tests is bytes over time, times this. */
static double bus_factor(int32_t kind, int32_t n)
{
    if (kind == DPAR_CALL_ALL_REDUCE) {
        return 2.0 * (n - 1) / n;
    }
    return in_pieces(kind) ? (double)(n - 1) / n : 1.0;
}

static void print_size(int64_t bytes)
{
    if (bytes >= 1 << 20) {
        printf("%5lld MiB", (long long)(bytes >> 20));
    } else if (bytes >= 1 << 10) {
        printf("%5lld KiB", (long long)(bytes >> 10));
    } else {
        printf("%7lld B", (long long)bytes);
    }
}

static void print_header(const plan *job)
{
    int mem, column;
    printf("\nbus bandwidth, GB/s  %-*sregistered memory\n                ", 9 * SIZES - 3,
           "private memory");
    for (mem = 0; mem < 2; mem++) {
        for (column = 0; column < SIZES; column++) {
            print_size(job->size[column]);
        }
        printf("%s", mem ? "\n" : "  ");
    }
}

/* Prints the table. memory[0] and [1] are private in and out, [2] and [3] registered ones. Returns
 * 1 if something is wrong. */
static int table(dpar_comm *comm, const plan *job, float **memory)
{
    int k, mem, column, bad = 0;
    if (comm->rank == 0) {
        print_header(job);
    }
    for (k = 0; k < KINDS; k++) {
        for (mem = 0; mem < 2; mem++) {
            for (column = 0; column < SIZES; column++) {
                double seconds = measure(comm, kinds[k], memory[2 * mem], memory[2 * mem + 1],
                                         job->size[column], &bad);
                if (seconds < 0.0) {
                    return 1;
                }
                if (comm->rank == 0) {
                    if (mem == 0 && column == 0) {
                        printf("%-16s", dpar_call_name(kinds[k]));
                    } else if (column == 0) {
                        printf("  ");
                    }
                    printf("%9.2f", (double)job->size[column] / seconds / 1e9 *
                                        bus_factor(kinds[k], comm->size));
                }
            }
        }
        if (comm->rank == 0) {
            printf("\n");
            fflush(stdout);
        }
    }
#ifndef __OPTIMIZE__
    if (comm->rank == 0) {
        printf("(compiled without -O2: slow)\n");
        fflush(stdout);
    }
#endif
    if (bad > 0) {
        fprintf(stderr, "ranks: rank %d: %d of the measured operations gave a wrong result\n",
                (int)comm->rank, bad);
    }
    return bad > 0;
}

/* What each rank runs. */
static int collectives(dpar_comm *comm, void *arg)
{
    const plan *job = (const plan *)arg;
    float *memory[4] = {NULL, NULL, NULL, NULL};
    const size_t bytes = (size_t)job->size[SIZES - 1];
    int k, bad = 0;
    for (k = 0; k < 4; k++) {
        void *at = NULL;
        if (k < 2) {
            at = malloc(bytes);
            if (at != NULL) {
                memset(at, 0, bytes);
            }
        } else {
            (void)dpar_comm_alloc(comm, (int64_t)bytes, &at);
        }
        if (at == NULL) {
            fprintf(stderr, "ranks: rank %d: no memory for %lld bytes: %s\n", (int)comm->rank,
                    (long long)bytes, k < 2 ? "malloc failed" : comm->why.text);
            bad = 1;
        }
        memory[k] = (float *)at;
    }
    bad = bad || check_all(comm, memory[0], memory[1], "private") ||
          check_all(comm, memory[2], memory[3], "registered") || table(comm, job, memory);
    for (k = 0; k < 4; k++) {
        if (k < 2) {
            free(memory[k]);
        } else {
            dpar_comm_release(comm, memory[k]);
        }
    }
#ifdef USE_MPI
    if (comm->rank == 0) {
        printf("\nNo rank is killed here: MPI would end the whole job.\n");
    }
#endif
    return options_finish(bad) != 0;
}

/* ---- a rank is killed ------------------------------------------------------------------------ */

#ifndef USE_MPI

/* The last rank dies in the middle of its work, and the others notice it in the operation that they
 * have called. Rank 0 also prints the report of the flight recorder. */
static int with_a_death(dpar_comm *comm, void *arg)
{
    static float in[1000], out[1000];
    static char text[64 * 512]; /* four operations a rank, a line each */
    dpar_text report;
    dpar_status st = DPAR_OK;
    int i;
    (void)arg;
    for (i = 0; i < 3 && st == DPAR_OK; i++) {
        st = dpar_all_reduce(comm, in, out, 1000, DPAR_F32, DPAR_SUM, NULL);
    }
    if (comm->rank == comm->size - 1) {
        fflush(stdout);
        raise(SIGKILL);
    }
    if (st == DPAR_OK) {
        st = dpar_all_gather(comm, in, out, 10, DPAR_F32, NULL);
    }
    if (comm->rank == 0) {
        printf("rank 0 was told: %s: %s\n", dpar_status_text(st), comm->why.text);
        dpar_text_init(&report, text, sizeof text);
        dpar_comm_report(comm, &report);
        printf("\nthe flight recorder:\n%s", text);
    }
    return st != DPAR_E_PEER; /* the only right result */
}

/* Starts n ranks of which one is killed. Returns 0 if the others were told. */
static int kill_one(int32_t n)
{
    dpar_why why;
    dpar_status st;
    if (n == 1) {
        printf("\nOne rank alone: nobody would see it die.\n");
        return 0;
    }
    printf("\nAgain, and now rank %d is killed (SIGKILL) after three operations.\n", (int)n - 1);
    fflush(stdout);
    st = dpar_launch(n, with_a_death, NULL, NULL, &why);
    printf("\ndpar_launch says: %s: %s\n", dpar_status_text(st), st < 0 ? why.text : "");
    return st != DPAR_E_PEER;
}

#endif

/* ---- arguments ------------------------------------------------------------------------------- */

/* Reads the command line (start_read of apps/start.h). */
static int reads(int argc, char **argv, int *ranks, void *at)
{
    plan *job = (plan *)at;
    const char *word = NULL;
    long long size = 1 << 24;
    int column, n = 0, code;
    const option list[] = {{"--size", OPTION_LONG, &size, 1 << 20, 1 << 30}};
    const option number = {"ranks", OPTION_INT, &n, 1, 64};
    code = options_read(argc, argv, list, 1, &word, 1);
    if (code < 0 && word != NULL && options_number(&number, word) != 0) {
        return 2;
    }
    job->kills = *ranks == 0;
    code = code < 0 ? start_ranks(ranks, n) : code;
    if (code >= 0) {
        return code;
    }
    if (*ranks == 0 || *ranks > 64) {
        return complain("the number of ranks must be 1 to 64, as in: ranks 4", NULL);
    }
    for (column = SIZES - 1; column >= 0; column--) {
        job->size[column] = size / 4 * 4;
        size /= 16;
    }
    job->ranks = *ranks;
    return -1;
}

int main(int argc, char **argv)
{
    plan job;
    int code;
    memset(&job, 0, sizeof job);
    code = start(argc, argv, reads, collectives, &job);
#ifndef USE_MPI
    if (code == 0 && job.ranks > 0 && job.kills) {
        code = options_finish(kill_one(job.ranks));
    }
#endif
    return code;
}
