/* SPDX-License-Identifier: MIT-0 */
/* mpi_coll - measures the collectives of an MPI library and, in the same run, those of other
 * engines: dpar and copies of as many bytes, which bench/comm_engine.h adds. bench/comm_speed.sh
 * and bench/over_mpi.sh run it and divide dpar's times by MPI's: less than 1 means that dpar is
 * faster.
 *
 *   mpicc -O2 bench/mpi_coll.c -o build/mpi_coll
 *   mpirun -np 2 build/mpi_coll [label=mpi] [seconds=0.03] [dirty=1] [rounds=1] [min=0]
 *                               [max=67108864] [ops=barrier,p2p] [engines=mpi,dpar]
 *
 * Prints one CSV row for each round, op, size and engine:
 *     engine,ranks,op,bytes,dirty,round,samples,min_us,median_us,busbw_GBps,probe_ns,lost
 *
 * bytes are counted as in nccl-tests: for all_reduce, broadcast and p2p the vector, for all_gather
 * the whole output, for reduce_scatter the whole input, for all_to_all what one rank sends (itself
 * included). For the last three a block has at least one float, so that fewer bytes than 4 x ranks
 * move more than the row says. all_to_all_v is all_to_all by the call that takes a count for each
 * rank. busbw is bytes over the median, times 2(n-1)/n for all_reduce, (n-1)/n for the last three,
 * and 1 for broadcast and p2p (one way).
 *
 * With dirty=1 every rank rewrites its input before every timed op, because an input that nobody
 * has touched since the last op is in the caches and looks up to 2.4 times faster than it is in a
 * program. A sample is then one op: the slowest rank's time after a common start. With dirty=0, and
 * always for the barrier, 9 blocks of ops back to back are timed.
 *
 * Engines take turns within each round. Each row has the latency of a cache line between ranks 0
 * and 1, measured just before and just after (the larger of the two; 0 if ranks share cores), and
 * the share of the time in which a rank could run but something else had its core (of the worst
 * rank; 0 if the system does not tell). Results are checked before anything is timed, except those
 * of engines with `floor`.
 *
 * Another engine is added with -DENGINE_H='"my_engine.h"', a file that defines EXTRA_ENGINES as one
 * or more initialisers of `engine`, each followed by a comma.
 *
 * Exit codes: 0 measured; 1 a wrong result, or no memory; 2 wrong options. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <signal.h>
#include <sys/prctl.h>
#endif

#include "probe.h"

enum {
    BARRIER,
    BROADCAST,
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    ALL_TO_ALL_V,
    P2P,
    OPS
};
enum { MAX_SAMPLES = 2000, BLOCKS = 9, PINGS = 2000 };

static const char *const op_name[OPS] = {
    "barrier",        "broadcast",  "all_reduce",   "all_gather",
    "reduce_scatter", "all_to_all", "all_to_all_v", "p2p"};
static const size_t op_bytes[] = {4,      64,      1024,    4096,     16384,   65536,
                                  262144, 1048576, 4194304, 16777216, 67108864};

/* One of the contestants. */
typedef struct {
    const char *name;
    /* Allocates the engine's input and output, `bytes` each, aligned to 64. Returns nonzero if it
     * cannot run here. */
    int (*open)(int rank, int size, size_t bytes, float **in, float **out);
    /* Does one op, which is finished on return. `count` is the count of the MPI call: floats of a
     * block for the gather, scatter and all-to-all kinds. Returns nonzero, on all ranks alike, if
     * the engine does not have that op. */
    int (*run)(int op, const float *in, float *out, size_t count);
    void (*close)(void);
    int floor; /* 1 if it only moves as many bytes as the op must, so that no result is checked */
} engine;

typedef struct {
    size_t samples;
    double min, median, probe; /* seconds */
    double lost;               /* share of the time, 0 to 1 */
} result;

static int rank, size, dirty = 1;
static int own_core; /* 1 if each rank has a core of its own */
static double seconds = 0.03;
static double sample[MAX_SAMPLES];

/* ---- the cores ------------------------------------------------------------------------------- */

#ifdef __linux__
/* Ends this rank if its launcher is killed. It would spin on and spoil every later measurement. */
static void end_with_launcher(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* Keeps each rank on a CPU of its own, unless the launcher has pinned it or there are too few. */
static void pin(void)
{
    cpu_set_t allowed, one;
    int wanted = rank, cpus = 0, cpu;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
        cpus = CPU_COUNT(&allowed);
    }
    own_core = cpus >= size;
    for (cpu = 0; own_core && cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET((size_t)cpu, &allowed) && wanted-- == 0) {
            CPU_ZERO(&one);
            CPU_SET((size_t)cpu, &one);
            sched_setaffinity(0, sizeof one, &one);
        }
    }
    if (cpus == 1) { /* the launcher has pinned the ranks, perhaps several to one core */
        int mine = sched_getcpu(), low, high;
        MPI_Allreduce(&mine, &low, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        MPI_Allreduce(&mine, &high, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        own_core = high - low >= size - 1;
    }
}
#else
static void end_with_launcher(void)
{
}

static void pin(void)
{
    own_core = 1; /* unknown; if it is not so, the probe and `lost` show it */
}
#endif

/* ---- the MPI engine -------------------------------------------------------------------------- */

static float *mpi_memory[2];
static int *mpi_counts; /* [2][size]: counts, then where the blocks begin */

/* Sets mpi_counts to blocks of `count` floats. */
static void mpi_count_each(int count)
{
    if (mpi_counts == NULL) {
        mpi_counts = malloc((size_t)size * 2 * sizeof *mpi_counts);
    }
    if (mpi_counts == NULL) {
        fprintf(stderr, "mpi_coll: rank %d: no memory for two counts for each of %d ranks\n", rank,
                size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (int r = 0; r < size; r++) {
        mpi_counts[r] = count;
        mpi_counts[size + r] = r * count;
    }
}

static int mpi_open(int r, int n, size_t bytes, float **in, float **out)
{
    (void)r;
    (void)n;
    for (int k = 0; k < 2; k++) {
        void *memory;
        if (posix_memalign(&memory, 4096, bytes)) {
            return 1;
        }
        mpi_memory[k] = memory;
    }
    *in = mpi_memory[0];
    *out = mpi_memory[1];
    return 0;
}

static int mpi_run(int op, const float *in, float *out, size_t count)
{
    const MPI_Comm world = MPI_COMM_WORLD;
    int c = (int)count, peer = 1 - rank;
    switch (op) {
    case BARRIER: return MPI_Barrier(world);
    case BROADCAST: return MPI_Bcast(rank == 0 ? mpi_memory[0] : out, c, MPI_FLOAT, 0, world);
    case ALL_REDUCE: return MPI_Allreduce(in, out, c, MPI_FLOAT, MPI_SUM, world);
    case ALL_GATHER: return MPI_Allgather(in, c, MPI_FLOAT, out, c, MPI_FLOAT, world);
    case REDUCE_SCATTER: return MPI_Reduce_scatter_block(in, out, c, MPI_FLOAT, MPI_SUM, world);
    case ALL_TO_ALL: return MPI_Alltoall(in, c, MPI_FLOAT, out, c, MPI_FLOAT, world);
    case ALL_TO_ALL_V:
        mpi_count_each(c);
        return MPI_Alltoallv(in, mpi_counts, mpi_counts + size, MPI_FLOAT, out, mpi_counts,
                             mpi_counts + size, MPI_FLOAT, world);
    case P2P: /* there and back; ranks above 1 do nothing */
        if (rank == 0) {
            MPI_Send(in, c, MPI_FLOAT, peer, 0, world);
        }
        if (rank < 2) {
            MPI_Recv(out, c, MPI_FLOAT, peer, 0, world, MPI_STATUS_IGNORE);
        }
        if (rank == 1) {
            MPI_Send(in, c, MPI_FLOAT, peer, 0, world);
        }
        return 0;
    default: return 1;
    }
}

static void mpi_close(void)
{
    free(mpi_memory[0]);
    free(mpi_memory[1]);
    free(mpi_counts);
}

#ifdef ENGINE_H
#include ENGINE_H
#else
#define EXTRA_ENGINES
#endif

static const engine engines[] = {{"mpi", mpi_open, mpi_run, mpi_close, 0}, EXTRA_ENGINES};
enum { ENGINES = sizeof engines / sizeof engines[0] };

/* ---- data: small whole numbers, so that every sum is exact ----------------------------------- */

static int is_blocked(int op)
{
    return op == ALL_GATHER || op == REDUCE_SCATTER || op == ALL_TO_ALL || op == ALL_TO_ALL_V;
}

/* Returns the count of a call that moves so many bytes. */
static size_t count_of(int op, size_t bytes)
{
    size_t count = bytes / sizeof(float);
    if (is_blocked(op)) {
        count /= (size_t)size;
    }
    return count ? count : 1;
}

static void fill(float *in, int op, size_t count)
{
    size_t n = op == REDUCE_SCATTER || op == ALL_TO_ALL || op == ALL_TO_ALL_V ? count * (size_t)size
                                                                              : count;
    for (size_t i = 0; i < n; i++) {
        in[i] = (float)(rank + 1) + (float)(i & 7);
    }
    __asm__ volatile("" : : "r"(in) : "memory");
}

/* Returns element i of this rank's output. */
static float expected(int op, size_t count, size_t i)
{
    size_t mine = (size_t)rank * count;
    switch (op) {
    case ALL_REDUCE: return (float)(size * (size + 1) / 2) + (float)size * (float)(i & 7);
    case REDUCE_SCATTER:
        return (float)(size * (size + 1) / 2) + (float)size * (float)((mine + i) & 7);
    case ALL_GATHER: return (float)(i / count + 1) + (float)((i % count) & 7);
    case ALL_TO_ALL:
    case ALL_TO_ALL_V: return (float)(i / count + 1) + (float)((mine + i % count) & 7);
    case P2P: return (float)(2 - rank) + (float)(i & 7);
    default: return 1 + (float)(i & 7);
    }
}

/* Runs the op once into a cleared output. Returns 1 if an element is wrong. */
static int check(const engine *tried, int op, float *in, float *out, size_t count)
{
    size_t n =
        op == ALL_GATHER || op == ALL_TO_ALL || op == ALL_TO_ALL_V ? count * (size_t)size : count;
    if (op == BARRIER || (op == P2P && rank > 1) || (op == BROADCAST && rank == 0)) {
        n = 0;
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = -1;
    }
    probe_sync();
    tried->run(op, in, out, count);
    for (size_t i = 0; i < n; i++) {
        if (out[i] != expected(op, count, i)) {
            return 1;
        }
    }
    return 0;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static int by_value(const void *first, const void *second)
{
    double x = *(const double *)first, y = *(const double *)second;
    return (x > y) - (x < y);
}

/* Returns the slowest rank's seconds for one op, the mean of two after three that warm up, or -1 if
 * the engine does not have the op. */
static double estimate(const engine *tried, int op, float *in, float *out, size_t count)
{
    double spent = 0;
    for (int k = 0; k < 5; k++) {
        if (k == 3) {
            probe_sync();
            spent = now();
        }
        if (tried->run(op, in, out, count)) {
            return -1;
        }
    }
    spent = (now() - spent) / 2;
    MPI_Allreduce(MPI_IN_PLACE, &spent, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return spent;
}

/* Measures an op. Returns 0, or 1 if the engine does not have it, or -1 if its result is wrong. */
static int measure(const engine *tried, int op, float *in, float *out, size_t count,
                   result *measured)
{
    int block = !dirty || op == BARRIER, wrong;
    double before, after, each, all;
    size_t ops, inner;
    fill(in, op, count);
    each = estimate(tried, op, in, out, count);
    if (each < 0) {
        return 1;
    }
    wrong = !tried->floor && check(tried, op, in, out, count);
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (wrong) {
        return -1;
    }
    ops = (size_t)(seconds / (each > 1e-7 ? each : 1e-7));
    inner = block ? ops / BLOCKS + 1 : 1;
    measured->samples = ops;
    if (block) {
        measured->samples = BLOCKS;
    } else if (ops < 5) {
        measured->samples = 5;
    } else if (ops > MAX_SAMPLES) {
        measured->samples = MAX_SAMPLES;
    }
    before = probe_line(own_core ? PINGS : 0);
    measured->lost = probe_waited();
    all = now();
    for (size_t k = 0; k < measured->samples; k++) {
        if (dirty) {
            fill(in, op, count);
        }
        probe_sync();
        double began = now();
        for (size_t j = 0; j < inner; j++) {
            tried->run(op, in, out, count);
        }
        sample[k] = (now() - began) / (double)inner / (op == P2P ? 2 : 1);
    }
    measured->lost = (probe_waited() - measured->lost) / (now() - all);
    after = probe_line(own_core ? PINGS : 0);
    MPI_Allreduce(MPI_IN_PLACE, &measured->lost, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, sample, (int)measured->samples, MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
    qsort(sample, measured->samples, sizeof sample[0], by_value);
    measured->min = sample[0];
    measured->median = sample[measured->samples / 2];
    measured->probe = before > after ? before : after;
    return 0;
}

static void print_row(const char *name, int op, size_t bytes, int round, const result *measured)
{
    double n = size, factor = 1;
    if (is_blocked(op)) {
        factor = (n - 1) / n;
    } else if (op == ALL_REDUCE) {
        factor = 2 * (n - 1) / n;
    }
    if (rank == 0) {
        printf("%s,%d,%s,%zu,%d,%d,%zu,%.3f,%.3f,%.3f,%.1f,%.3f\n", name, size, op_name[op], bytes,
               dirty, round, measured->samples, measured->min * 1e6, measured->median * 1e6,
               factor * (double)bytes / measured->median / 1e9, measured->probe * 1e9,
               measured->lost);
        fflush(stdout);
    }
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Returns the value of the argument "name=value", or `otherwise` if there is none. */
static const char *option(int argc, char **argv, const char *name, const char *otherwise)
{
    size_t n = strlen(name);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=') {
            return argv[i] + n + 1;
        }
    }
    return otherwise;
}

/* Returns 1 if a list with commas has the word or is empty. */
static int listed(const char *list, const char *word)
{
    size_t n = strlen(word);
    const char *at = list;
    while (*list && (at = strstr(at, word)) != NULL) {
        if ((at == list || at[-1] == ',') && (at[n] == ',' || at[n] == 0)) {
            return 1;
        }
        at += n;
    }
    return *list == 0;
}

/* Prints a message on rank 0 and ends all ranks with exit code 2. */
static void refuse(const char *what, const char *word)
{
    if (rank == 0) {
        fprintf(stderr, "mpi_coll: '%s': %s\n", word, what);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    exit(2);
}

/* Refuses arguments and operations that do not exist. */
static void check_arguments(int argc, char **argv)
{
    static const char *const known[] = {"label", "seconds", "dirty", "rounds",
                                        "min",   "max",     "ops",   "engines"};
    const char *word = option(argc, argv, "ops", "");
    for (int i = 1; i < argc; i++) {
        int found = 0;
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
            const size_t n = strlen(known[k]);
            found |= strncmp(argv[i], known[k], n) == 0 && argv[i][n] == '=';
        }
        if (!found) {
            refuse("unknown argument; the options are label, seconds, dirty, rounds, min, max, ops "
                   "and engines, each followed by =VALUE",
                   argv[i]);
        }
    }
    while (*word) {
        const size_t n = strcspn(word, ",");
        int found = 0;
        for (int op = 0; op < OPS; op++) {
            found |= strlen(op_name[op]) == n && strncmp(op_name[op], word, n) == 0;
        }
        if (!found) {
            refuse("unknown operation; they are barrier, broadcast, all_reduce, all_gather, "
                   "reduce_scatter, all_to_all, all_to_all_v and p2p",
                   word);
        }
        word += n + (word[n] == ',');
    }
}

static float *in[ENGINES], *out[ENGINES];
static int usable[ENGINES], failed;

/* Measures and prints a row, if engine k has it. */
static void one_row(int k, const char *label, int op, size_t bytes, int round)
{
    const char *name = k ? engines[k].name : label;
    result measured;
    int bad =
        usable[k] ? measure(&engines[k], op, in[k], out[k], count_of(op, bytes), &measured) : 1;
    if (bad < 0) {
        fprintf(stderr, "mpi_coll: rank %d: engine %s: a wrong result in %s of %zu bytes\n", rank,
                name, op_name[op], bytes);
        failed = 1;
    } else if (!bad) {
        print_row(name, op, op == BARRIER ? 0 : bytes, round, &measured);
    }
}

static void one_op(int op, const char *label, size_t min_bytes, size_t max_bytes, int round)
{
    for (size_t s = 0; s < sizeof op_bytes / sizeof op_bytes[0]; s++) {
        size_t bytes = op_bytes[s];
        if (op == BARRIER && s > 0) {
            break;
        }
        if (op != BARRIER && (bytes > max_bytes || (op == P2P && size < 2))) {
            break;
        }
        for (int k = 0; k < ENGINES && (op == BARRIER || bytes >= min_bytes); k++) {
            one_row(k, label, op, bytes, round);
        }
    }
}

int main(int argc, char **argv)
{
    const char *label = option(argc, argv, "label", "mpi");
    const char *ops = option(argc, argv, "ops", ""), *names = option(argc, argv, "engines", "");
    int rounds = atoi(option(argc, argv, "rounds", "1"));
    size_t min_bytes = (size_t)atoll(option(argc, argv, "min", "0"));
    size_t max_bytes = (size_t)atoll(option(argc, argv, "max", "67108864"));
    end_with_launcher();
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    seconds = atof(option(argc, argv, "seconds", "0.03"));
    dirty = atoi(option(argc, argv, "dirty", "1"));
    check_arguments(argc, argv);
    if (!(seconds > 0) || rounds < 1) {
        refuse("seconds has to be above 0 and rounds at least 1",
               rounds < 1 ? option(argc, argv, "rounds", "1")
                          : option(argc, argv, "seconds", "0.03"));
    }
    pin();
    probe_open();
    for (int k = 0; k < ENGINES; k++) {
        usable[k] =
            listed(names, engines[k].name) &&
            !engines[k].open(rank, size, max_bytes + PROBE_LINE * (size_t)size, &in[k], &out[k]);
        MPI_Allreduce(MPI_IN_PLACE, &usable[k], 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        if (!usable[k] && rank == 0 && listed(names, engines[k].name)) {
            fprintf(stderr,
                    "mpi_coll: engine %s has no rows: it cannot be opened with two buffers of %zu "
                    "bytes on %d ranks\n",
                    engines[k].name, max_bytes + PROBE_LINE * (size_t)size, size);
        }
    }
    if (rank == 0) {
        printf("engine,ranks,op,bytes,dirty,round,samples,min_us,median_us,busbw_GBps,probe_ns,"
               "lost\n");
    }
    for (int round = 0; round < rounds; round++) {
        for (int op = 0; op < OPS; op++) {
            if (listed(ops, op_name[op])) {
                one_op(op, label, min_bytes, max_bytes, round);
            }
        }
    }
    for (int k = 0; k < ENGINES; k++) {
        if (usable[k]) {
            engines[k].close();
        }
    }
    probe_close();
    MPI_Finalize();
    return failed;
}
