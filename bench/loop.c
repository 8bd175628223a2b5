/* SPDX-License-Identifier: MIT-0 */
/* loop - what dpar_cost.h says of calls beside what they take, by a cluster file of doctor; and the
 * shares that a program's own loops reach, fitted to runs of one rank. bench/loop.sh calls it.
 *
 *     loop calls FILE SECONDS           ranks of a launcher: rows of all_reduce and of halos
 *     loop price FILE                   the same rows with nothing measured, no ranks
 *     loop fit FILE NAMES MODEL|EVALUATE|SECONDS...
 *                                       settings for the end of FILE: the constants NAMES ("gemm
 *                                       hbm") by these steps; on stderr, what they are off by
 *
 * Rows: what|mesh|nodes|seconds. With -DUSE_MPI (mpicc): calls on several nodes. */
#include "dpar_cost.h"
#include "dpar_halo.h"
#ifdef USE_MPI
#include "dpar_mpi.h"
#endif

static const char program[] = "loop";
static const char help[] = "loop: see bench/loop.c\n";

#include "commands/options.h"

#include "commands/measure.h"

enum { FITS = 16 };

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = (char *)calloc(1, 65536);
    if (file == NULL || text == NULL || fread(text, 1, 65535, file) == 0) {
        (void)complain("cannot read", path);
        free(text);
        text = NULL;
    }
    if (file != NULL) {
        fclose(file);
    }
    return text;
}

/* ---- calls ----------------------------------------------------------------------------------- */

typedef struct calls {
    dpar_cluster machine;
    double seconds;
} calls;

/* world NULL: predicted. */
static int32_t ranks_of(const dpar_comm *world, const calls *setup)
{
    return world != NULL ? world->size : setup->machine.nodes * setup->machine.gpus_per_node;
}

static void row(const dpar_comm *world, const calls *setup, const char *what, const char *along,
                double seconds)
{
    if (world == NULL || world->rank == 0) {
        printf("%s|%d%s|%d|%.6g\n", what, (int)ranks_of(world, setup), along,
               (int)setup->machine.nodes, seconds);
        fflush(stdout);
    }
}

/* Sizes between the points of the cluster file, in and out of the caches. */
static int all_reduces(dpar_comm *world, const calls *setup)
{
    static const int64_t bytes[] = {2000, 40000, 600000, 10000000};
    char what[64];
    dpar_collective_cost cost;
    dpar_cluster_group group;
    measure_call call;
    int i;
    memset(&call, 0, sizeof call);
    call.run = measure_all_reduce;
    call.world = call.comm = world;
    if (world != NULL && dpar_comm_alloc(world, bytes[3], &call.in) < 0) {
        return 1;
    }
    if (world != NULL) {
        memset(call.in, 0, (size_t)bytes[3]);
    }
    dpar_cluster_group_init(&group, &setup->machine, ranks_of(world, setup), 1);
    for (i = 0; i < 4; i++) {
        call.count = bytes[i] / 4;
        dpar_collective_predict(&setup->machine, &group, DPAR_CALL_ALL_REDUCE, (double)bytes[i],
                                &cost);
        if (world != NULL) {
            cost.seconds = measure_time(&call, setup->seconds);
        }
        if (cost.seconds < 0.0) {
            return 1;
        }
        snprintf(what, sizeof what, "all_reduce %.0f KB", (double)bytes[i] / 1e3);
        row(world, setup, what, "", cost.seconds);
    }
    if (world != NULL) {
        dpar_comm_release(world, call.in);
    }
    return 0;
}

static int halos(dpar_comm *world, const calls *setup, dpar_why *why)
{
    static const int64_t cells[] = {32, 64, 128};
    char what[64];
    int i;
    for (i = 0; i < 3; i++) {
        measure_halo halo = {0, 1, 0, 0.0};
        dpar_halo_cost grid;
        dpar_halo_cost_desc job;
        halo.n = cells[i];
        job = measure_halo_job(&halo, ranks_of(world, setup), setup->machine.gpus_per_node, &grid);
        if (dpar_halo_cost_predict(&job, &setup->machine.halo, &grid, why) < 0 ||
            (world != NULL && measure_one_halo(world, &halo, setup->seconds, why))) {
            return 1;
        }
        snprintf(what, sizeof what, "halo %d^3 f64", (int)halo.n);
        row(world, setup, what, "x1x1", world != NULL ? halo.seconds : grid.seconds);
    }
    return 0;
}

static int both(dpar_comm *world, void *given)
{
    const calls *setup = (const calls *)given;
    dpar_why why;
    if (world->size != setup->machine.nodes * setup->machine.gpus_per_node) {
        snprintf(why.text, sizeof why.text, "%d ranks, the file is of %d", (int)world->size,
                 (int)(setup->machine.nodes * setup->machine.gpus_per_node));
        return dpar_fail(world, &why);
    }
    if (all_reduces(world, setup)) {
        return dpar_fail(world, NULL);
    }
    return halos(world, setup, &why) ? dpar_fail(world, &why) : 0;
}

static int run_calls(char *name, const char *path, const char *seconds)
{
    calls setup;
    dpar_why why;
    char *text = read_text(path);
    int code;
    setup.seconds = seconds != NULL ? atof(seconds) : 0.0;
    if (text == NULL || dpar_cluster_read(&setup.machine, text, strlen(text), &why) < 0) {
        return text == NULL ? 2 : complain(why.text, path);
    }
    free(text);
    if (seconds == NULL) {
        return all_reduces(NULL, &setup) || halos(NULL, &setup, &why) ? complain(why.text, NULL)
                                                                      : 0;
    }
#ifdef USE_MPI
    (void)name;
    MPI_Init(NULL, NULL);
    {
        dpar_comm *world = NULL;
        code = dpar_mpi_make(MPI_COMM_WORLD, NULL, &world, &why) < 0 ? complain(why.text, NULL)
                                                                     : both(world, &setup);
        if (code == 0) {
            (void)dpar_comm_free(world);
        } else {
            MPI_Abort(MPI_COMM_WORLD, code);
        }
    }
    MPI_Finalize();
#else
    {
        char *words[] = {name, NULL};
        code = dpar_launch_main(1, words, both, &setup);
    }
#endif
    return code;
}

/* ---- fits ------------------------------------------------------------------------------------ */

/* "gemm hbm" as bits; 0: one of them is none. */
static uint32_t which_of(const char *names)
{
    uint32_t bits = 0;
    while (*names != 0) {
        const size_t n = strcspn(names, " ");
        int i, found = -1;
        for (i = 0; i < DPAR_CAL_COUNT; i++) {
            const char *name = dpar_calibration_name(i);
            found = strlen(name) == n && strncmp(name, names, n) == 0 ? i : found;
        }
        if (found < 0) {
            return 0;
        }
        bits |= 1u << found;
        names += n + (names[n] == ' ');
    }
    return bits;
}

static int fit(const char *path, const char *names, char **rows, int n)
{
    static dpar_plan_query asked[FITS];
    dpar_measurement runs[FITS];
    dpar_calibration cal;
    const uint32_t which = which_of(names);
    char *text = read_text(path);
    dpar_why why;
    double off = 0.0;
    int i;
    if (text == NULL || which == 0 || n < 1 || n > FITS) {
        return text == NULL ? 2
                            : complain("no such constant among, or not 1 to 16 rows for", names);
    }
    for (i = 0; i < n; i++) {
        char *strategy = strchr(rows[i], '|'), *seconds = strrchr(rows[i], '|'), words[300];
        if (strategy == NULL || strategy == seconds) {
            return complain("MODEL|EVALUATE|SECONDS was expected, not", rows[i]);
        }
        *strategy = *seconds = 0;
        snprintf(words, sizeof words, "precision=fp32 gpus=1 evaluate=%s", strategy + 1);
        if (dpar_plan_query_read(rows[i], text, words, &asked[i], &why) < 0) {
            return complain(why.text, rows[i]);
        }
        runs[i].work = &asked[i].work;
        runs[i].cluster = &asked[i].cluster;
        runs[i].recipe = asked[i].job.recipe;
        runs[i].strategy = asked[i].strategy;
        runs[i].seconds = atof(seconds + 1);
        runs[i].weight = 1.0;
    }
    cal = asked[0].cluster.cal;
    if (dpar_calibration_fit(&cal, runs, n, which, &off, &why) < 0) {
        return complain(why.text, NULL);
    }
    for (i = 0; i < DPAR_CAL_COUNT; i++) {
        if (which >> i & 1u) {
            const char *name = dpar_calibration_name(i);
            const size_t k = strlen(name);
            const double unit = k > 3 && strcmp(name + k - 3, "_us") == 0   ? 1e-6
                                : k > 3 && strcmp(name + k - 3, "_ms") == 0 ? 1e-3
                                                                            : 1.0;
            printf("%-15s = %-22.6g # fitted to %d runs of one rank\n", name, cal.value[i] / unit,
                   n);
        }
    }
    fprintf(stderr, "%s: off by %.1f %% on average in %d runs of one rank\n", names, 100.0 * off,
            n);
    free(text);
    return options_finish(0);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "calls") == 0) {
        return run_calls(argv[0], argv[2], argv[3]);
    }
    if (argc == 3 && strcmp(argv[1], "price") == 0) {
        return run_calls(argv[0], argv[2], NULL);
    }
    if (argc >= 5 && strcmp(argv[1], "fit") == 0) {
        return fit(argv[2], argv[3], argv + 4, argc - 4);
    }
    return complain("calls FILE SECONDS, or fit FILE NAMES ROW...", NULL);
}
