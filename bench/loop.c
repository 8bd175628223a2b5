/* SPDX-License-Identifier: MIT-0 */
/* loop - the parts of bench/loop.sh that measure calls, predict them, and fit constants. All three
 * read FILE, the cluster file that doctor --cluster wrote on the same machine.
 *
 *     loop calls FILE SECONDS    measures all_reduces and halos on the ranks of a launcher, each
 *                                for SECONDS
 *     loop price FILE            predicts the same calls by dpar_cost.h, without ranks
 *     loop fit FILE NAMES MODEL|EVALUATE|SECONDS...
 *                                fits the constants NAMES ("gemm hbm") to measured steps of one
 *                                rank; prints them as settings for the end of FILE, and on stderr
 *                                the mean error that is left
 *
 * calls and price print rows "what|mesh|nodes|seconds", which bench/loop.sh joins: predicted over
 * measured, where 1 is exact and above 1 means that the prediction is too slow. Compiled with
 * mpicc -DUSE_MPI, calls runs on several nodes.
 *
 * Exit codes: 0 done; 1 a measurement failed; 2 wrong arguments, or a file that cannot be used. */
#include "dpar_cost.h"
#include "dpar_halo.h"
#ifdef USE_MPI
#include "dpar_mpi.h"
#endif

static const char program[] = "loop";
static const char help[] =
    "loop: measures calls, predicts them, and fits constants; bench/loop.sh calls it\n"
    "\n"
    "  loop calls FILE SECONDS   measures all_reduces and halos on the ranks of a launcher\n"
    "  loop price FILE           predicts the same calls, without ranks\n"
    "  loop fit FILE NAMES MODEL|EVALUATE|SECONDS...\n"
    "                            fits constants to 1 to 16 measured steps of one rank\n"
    "\n"
    "  FILE      a cluster file of doctor --cluster, at most 65535 bytes\n"
    "  SECONDS   of each measurement, above 0\n"
    "  NAMES     constants of dpar_calibration_name with blanks between: \"gemm hbm\"\n";

#include "../helpers/options.h"

#include "../helpers/measure.h"

enum { FITS = 16, FILE_BYTES = 65536 };

/* Returns the text of a file, which the caller frees, or NULL after a message. */
static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text;
    size_t bytes;
    if (file == NULL) {
        (void)complain("the cluster file cannot be opened:", path);
        return NULL;
    }
    text = (char *)calloc(1, FILE_BYTES);
    if (text == NULL) {
        (void)complain("no memory for 65536 bytes of the cluster file", path);
        fclose(file);
        return NULL;
    }
    bytes = fread(text, 1, FILE_BYTES, file);
    fclose(file);
    if (bytes == 0 || bytes == FILE_BYTES) {
        (void)complain(bytes == 0 ? "the cluster file is empty or cannot be read:"
                                  : "the cluster file has more than 65535 bytes:",
                       path);
        free(text);
        return NULL;
    }
    return text;
}

/* ---- calls ----------------------------------------------------------------------------------- */

typedef struct calls {
    dpar_cluster machine;
    double seconds; /* of each measurement */
} calls;

/* In this section `world` is NULL if calls are predicted and not measured. The number of ranks is
 * then that of the cluster file. */
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

/* Predicts or measures all_reduces. The sizes lie between those that doctor measured for the
 * cluster file, so that the prediction has to interpolate; the largest does not fit the caches. */
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

/* Predicts or measures halos one cell wide of cubes of f64 that are cut along one dim. */
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

/* What each rank of `loop calls` does. */
static int both(dpar_comm *world, void *given)
{
    const calls *setup = (const calls *)given;
    dpar_why why;
    if (world->size != setup->machine.nodes * setup->machine.gpus_per_node) {
        snprintf(why.text, sizeof why.text,
                 "loop calls: there are %d ranks, but the cluster file is of %d nodes of %d ranks",
                 (int)world->size, (int)setup->machine.nodes, (int)setup->machine.gpus_per_node);
        return dpar_fail(world, &why);
    }
    if (all_reduces(world, setup)) {
        return dpar_fail(world, NULL);
    }
    return halos(world, setup, &why) ? dpar_fail(world, &why) : 0;
}

/* Predicts the calls if `seconds` is NULL, otherwise measures them for so long each. */
static int run_calls(char *name, const char *path, const char *seconds)
{
    calls setup;
    dpar_why why;
    char *text;
    int code;
    setup.seconds = seconds != NULL ? atof(seconds) : 0.0;
    if (seconds != NULL && !(setup.seconds > 0.0)) {
        return complain("SECONDS has to be a number above 0, not", seconds);
    }
    text = read_text(path);
    if (text == NULL) {
        return 2;
    }
    memset(&why, 0, sizeof why);
    code = dpar_cluster_read(&setup.machine, text, strlen(text), &why) < 0;
    free(text);
    if (code != 0) {
        return complain(why.text, path);
    }
    if (seconds == NULL) {
        code = all_reduces(NULL, &setup) || halos(NULL, &setup, &why);
        return code != 0 ? complain(why.text, path) : 0;
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

/* Returns the bits of the constants in "gemm hbm", or 0 if one of the names is unknown. */
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

/* Returns what one unit of a constant is in SI units: names end with _us or _ms where the cluster
 * file has it in micro- or milliseconds. */
static double unit_of(const char *name)
{
    const size_t length = strlen(name);
    const char *end = length > 3 ? name + length - 3 : "";
    if (strcmp(end, "_us") == 0) {
        return 1e-6;
    }
    return strcmp(end, "_ms") == 0 ? 1e-3 : 1.0;
}

static int fit(const char *path, const char *names, char **rows, int n)
{
    static dpar_plan_query asked[FITS];
    dpar_measurement runs[FITS];
    dpar_calibration cal;
    const uint32_t which = which_of(names);
    char *text;
    dpar_why why;
    double off = 0.0;
    int i;
    if (which == 0) {
        return complain("fit: NAMES has to be names of dpar_calibration_name with blanks between, "
                        "such as 'gemm hbm', not",
                        names);
    }
    if (n > FITS) {
        return complain("fit: at most 16 rows MODEL|EVALUATE|SECONDS; there are more for", names);
    }
    text = read_text(path);
    if (text == NULL) {
        return 2;
    }
    for (i = 0; i < n; i++) {
        char *strategy = strchr(rows[i], '|'), *seconds = strrchr(rows[i], '|'), words[300];
        if (strategy == NULL || strategy == seconds) {
            return complain("fit: a row has to be MODEL|EVALUATE|SECONDS, not", rows[i]);
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
        if (!(runs[i].seconds > 0.0)) {
            return complain("fit: the SECONDS of a row have to be above 0, not", seconds + 1);
        }
        runs[i].weight = 1.0;
    }
    cal = asked[0].cluster.cal;
    if (dpar_calibration_fit(&cal, runs, n, which, &off, &why) < 0) {
        return complain(why.text, NULL);
    }
    for (i = 0; i < DPAR_CAL_COUNT; i++) {
        if (which >> i & 1u) {
            const char *name = dpar_calibration_name(i);
            printf("%-15s = %-22.6g # fitted to %d runs of one rank\n", name,
                   cal.value[i] / unit_of(name), n);
        }
    }
    fprintf(stderr, "%s: off by %.1f %% on average in %d runs of one rank\n", names, 100.0 * off,
            n);
    free(text);
    return options_finish(0);
}

int main(int argc, char **argv)
{
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(help, stdout);
        return options_finish(0);
    }
    if (argc == 4 && strcmp(argv[1], "calls") == 0) {
        return run_calls(argv[0], argv[2], argv[3]);
    }
    if (argc == 3 && strcmp(argv[1], "price") == 0) {
        return run_calls(argv[0], argv[2], NULL);
    }
    if (argc >= 5 && strcmp(argv[1], "fit") == 0) {
        return fit(argv[2], argv[3], argv + 4, argc - 4);
    }
    return complain(
        "expected: calls FILE SECONDS, price FILE, or fit FILE NAMES ROW... (loop --help "
        "explains them), not",
        argc > 1 ? argv[1] : "");
}
