/* SPDX-License-Identifier: MIT-0 */
/* points - measures exchanges by index lists (dpar_points.h) and compares them with MPI written by
 * hand and with PETSc's SF, which all fill the same ghosts in the same run. bench/points.sh divides
 * all times by the time of "hand", so a value below 1 is faster than MPI written by hand.
 *
 *   mpiexec -np 2 points label n=16,32,64 samples=15 seconds=0.01
 *
 * The lists are those of the 27-point stencil of HPCG. Each rank has a cube of n^3 values with its
 * ghosts behind them. With 2 ranks there are two cases: a cut in x, where each value sent is a run
 * of its own, and a cut in z, where all values sent form one run. With 4 ranks the cuts are in x
 * and y, with 8 in all dims. Prints rows "label,grid,n,way,us,ok". The ways take turns. The time of
 * a sample is that of the slowest rank, us is the fastest sample, and ok is 1 if the ghosts have
 * the right values.
 *
 *   hand       posts receives into the ghosts, packs the values, sends them, and waits
 *   messages   dpar_points by messages of MPI (dpar_mpi_desc.flat)
 *   private    dpar_points through the node's memory, with vectors of malloc
 *   registered the same with vectors of dpar_comm_alloc
 *   sf         PetscSFBcast with REPLACE (-DPOINTS_PETSC)
 *
 * On 2 ranks it also prints rows "label,plan,IDS,KIND,seconds,1": the time to make a plan for so
 * many ids per rank, of which a hundredth is read from the other rank. The ids are scattered (which
 * needs a directory) or consecutive (range), or both ranks pass their lists.
 *
 * Exit codes: 0 measured (wrong ghosts have ok 0); 1 an operation failed; 2 wrong arguments. */
#define _GNU_SOURCE
#ifdef POINTS_PETSC
#include <petscsf.h>
#endif
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpar_points.h"
#include "dpar_mpi.h"
#include "ranks.h"

enum { WAYS = 5, AROUND = 26 };
enum { HAND, MESSAGES, PRIVATE, REGISTERED, SF };
static const char *const names[WAYS] = {"hand", "messages", "private", "registered", "sf"};

static dpar_comm *world, *flat; /* world uses the node's memory; flat only messages of MPI */
static int me, ranks;

/* Ends all ranks if something has failed. */
static void must(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "points: rank %d: failed: %s: %s\n", me, what,
                world != NULL ? world->why.text : "");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* ---- one case -------------------------------------------------------------------------------- */

typedef struct pattern {
    int64_t own, ghosts;
    int32_t peers, peer[AROUND];
    int64_t count[AROUND]; /* to and from each peer: both sides send the same number */
    int32_t *send_at;
    int32_t *from; /* [ghosts] index at the owner */
    double *values, *shared, *buffer;
    dpar_points *messages, *node;
#ifdef POINTS_PETSC
    PetscSF sf;
#endif
} pattern;

static double value(int rank, int64_t at)
{
    return (double)(rank + 1) + 1e-7 * (double)at;
}

/* Makes the plan of a pattern. */
static dpar_points *plan(dpar_comm *comm, const pattern *wanted)
{
    dpar_points_lists lists = {wanted->peers, wanted->peer,    wanted->count,
                               wanted->count, wanted->send_at, NULL};
    dpar_points_desc desc;
    dpar_points *points = NULL;
    dpar_why why;
    memset(&desc, 0, sizeof desc);
    desc.own_count = wanted->own;
    desc.ghost_count = wanted->ghosts;
    desc.lists = &lists;
    must(dpar_points_make(comm, &desc, &points, &why) == DPAR_OK, why.text);
    return points;
}

/* Sets [*lo, *hi) to a range of cells in one dim of a cube: the last cell (way 1), the first cell
 * (way -1), or all n (way 0). */
static void side(int n, int way, int *lo, int *hi)
{
    *lo = way > 0 ? n - 1 : 0;
    *hi = way < 0 ? 1 : n;
}

/* Lists the cells that are sent to the neighbour in direction `way` (send_at), and the indices at
 * that neighbour of the values that it sends back (from). With NULL lists it only counts.
 * Returns the number. */
static int64_t neighbour(int n, const int way[3], int32_t *send_at, int32_t *from)
{
    int lo[3], hi[3], their[3], unused, i, x, y, z;
    int64_t k = 0;
    for (i = 0; i < 3; i++) {
        side(n, way[i], &lo[i], &hi[i]);
        side(n, -way[i], &their[i], &unused);
    }
    for (z = lo[2]; z < hi[2]; z++) {
        for (y = lo[1]; y < hi[1]; y++) {
            for (x = lo[0]; x < hi[0]; x++) {
                if (send_at) {
                    send_at[k] = x + n * (y + n * z);
                    from[k] = x - lo[0] + their[0] +
                              n * (y - lo[1] + their[1] + n * (z - lo[2] + their[2]));
                }
                k++;
            }
        }
    }
    return k;
}

/* Finds the peers in ascending order of ranks, in which x runs fastest. fill: 1 to write the lists,
 * 0 to count them. */
static void find_peers(pattern *wanted, int n, const int grid[3], int fill)
{
    const int at[3] = {me % grid[0], me / grid[0] % grid[1], me / grid[0] / grid[1]};
    int64_t before = 0;
    int k, i;
    wanted->peers = 0;
    for (k = 0; k < 27; k++) {
        const int way[3] = {k % 3 - 1, k / 3 % 3 - 1, k / 9 - 1};
        int there[3], inside = k != 13;
        for (i = 0; i < 3; i++) {
            there[i] = at[i] + way[i];
            inside = inside && there[i] >= 0 && there[i] < grid[i];
        }
        if (inside) {
            wanted->peer[wanted->peers] = there[0] + grid[0] * (there[1] + grid[1] * there[2]);
            int32_t *send_at = NULL, *from = NULL;
            int64_t count;
            if (fill) {
                send_at = wanted->send_at + before;
                from = wanted->from + before;
            }
            count = neighbour(n, way, send_at, from);
            wanted->count[wanted->peers] = count;
            wanted->peers++;
            before += count;
        }
    }
    wanted->ghosts = before;
}

#ifdef POINTS_PETSC
static void setup_sf(pattern *wanted)
{
    PetscSFNode *remote = (PetscSFNode *)malloc((size_t)wanted->ghosts * sizeof *remote);
    int64_t k = 0, in;
    int i;
    must(remote != NULL, "allocating the graph of the SF");
    for (i = 0; i < wanted->peers; i++) {
        for (in = 0; in < wanted->count[i]; in++) {
            remote[k].rank = wanted->peer[i];
            remote[k].index = (PetscInt)wanted->from[k];
            k++;
        }
    }
    PetscSFCreate(PETSC_COMM_WORLD, &wanted->sf);
    PetscSFSetFromOptions(wanted->sf);
    PetscSFSetGraph(wanted->sf, (PetscInt)wanted->own, (PetscInt)wanted->ghosts, NULL,
                    PETSC_OWN_POINTER, remote, PETSC_COPY_VALUES);
    PetscSFSetUp(wanted->sf);
    free(remote);
}
#endif

static void setup(pattern *wanted, int n, const int grid[3])
{
    void *shared = NULL;
    int64_t i;
    find_peers(wanted, n, grid, 0);
    wanted->own = (int64_t)n * n * n;
    wanted->send_at = (int32_t *)malloc((size_t)wanted->ghosts * sizeof *wanted->send_at);
    wanted->from = (int32_t *)malloc((size_t)wanted->ghosts * sizeof *wanted->from);
    wanted->values =
        (double *)malloc((size_t)(wanted->own + wanted->ghosts) * sizeof *wanted->values);
    wanted->buffer = (double *)malloc((size_t)wanted->ghosts * sizeof *wanted->buffer);
    (void)dpar_comm_alloc(world, (wanted->own + wanted->ghosts) * 8, &shared);
    wanted->shared = (double *)shared;
    must(wanted->send_at && wanted->from && wanted->values && wanted->buffer && wanted->shared,
         "allocating the lists and vectors");
    find_peers(wanted, n, grid, 1);
    for (i = 0; i < wanted->own; i++) {
        wanted->values[i] = wanted->shared[i] = value(me, i);
    }
    wanted->messages = plan(flat, wanted);
    wanted->node = plan(world, wanted);
#ifdef POINTS_PETSC
    setup_sf(wanted);
#endif
}

static void tear_down(pattern *wanted)
{
    must(dpar_points_free(wanted->messages) == DPAR_OK && dpar_points_free(wanted->node) == DPAR_OK,
         "dpar_points_free");
#ifdef POINTS_PETSC
    PetscSFDestroy(&wanted->sf);
#endif
    dpar_comm_release(world, wanted->shared);
    free(wanted->send_at);
    free(wanted->from);
    free(wanted->values);
    free(wanted->buffer);
}

static void by_hand(const pattern *wanted, double *values)
{
    MPI_Request request[AROUND];
    double *ghost = values + wanted->own, *from = wanted->buffer;
    int64_t k;
    int i;
    for (i = 0; i < wanted->peers; i++) {
        MPI_Irecv(ghost, (int)wanted->count[i], MPI_DOUBLE, wanted->peer[i], 99, MPI_COMM_WORLD,
                  &request[i]);
        ghost += wanted->count[i];
    }
    for (k = 0; k < wanted->ghosts; k++) {
        wanted->buffer[k] = values[wanted->send_at[k]];
    }
    for (i = 0; i < wanted->peers; i++) {
        MPI_Send(from, (int)wanted->count[i], MPI_DOUBLE, wanted->peer[i], 99, MPI_COMM_WORLD);
        from += wanted->count[i];
    }
    for (i = 0; i < wanted->peers; i++) {
        MPI_Wait(&request[i], MPI_STATUS_IGNORE);
    }
}

static void run(const pattern *wanted, int way)
{
    switch (way) {
    case HAND: by_hand(wanted, wanted->values); break;
    case MESSAGES: dpar_points_exchange(wanted->messages, wanted->values); break;
    case PRIVATE: dpar_points_exchange(wanted->node, wanted->values); break;
    case REGISTERED: dpar_points_exchange(wanted->node, wanted->shared); break;
    default:
#ifdef POINTS_PETSC
        PetscSFBcastBegin(wanted->sf, MPI_DOUBLE, wanted->values, wanted->values + wanted->own,
                          MPI_REPLACE);
        PetscSFBcastEnd(wanted->sf, MPI_DOUBLE, wanted->values, wanted->values + wanted->own,
                        MPI_REPLACE);
#endif
        break;
    }
}

/* Returns 1 if the ghosts of all ranks have the peers' values, otherwise 0. */
static int right(const pattern *wanted, const double *values)
{
    int64_t k = 0, in;
    int good = 1, all, i;
    for (i = 0; i < wanted->peers; i++) {
        for (in = 0; in < wanted->count[i]; in++) {
            good = good && values[wanted->own + k] == value(wanted->peer[i], wanted->from[k]);
            k++;
        }
    }
    MPI_Allreduce(&good, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all;
}

/* Returns the slowest rank's mean of `times` exchanges. */
static double sample(const pattern *wanted, int way, int64_t times)
{
    double began, mine, slowest;
    int64_t i;
    MPI_Barrier(MPI_COMM_WORLD);
    began = now();
    for (i = 0; i < times; i++) {
        run(wanted, way);
    }
    mine = (now() - began) / (double)times;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

/* Measures and prints the rows of one grid of ranks and one size. */
static void measure(const char *label, int n, const int grid[3], int samples, double seconds)
{
    pattern wanted;
    double best[WAYS];
    int64_t times[WAYS];
    int ok[WAYS], way, s;
#ifdef POINTS_PETSC
    const int ways = WAYS;
#else
    const int ways = WAYS - 1;
#endif
    memset(&wanted, 0, sizeof wanted);
    setup(&wanted, n, grid);
    for (way = 0; way < ways; way++) {
        double *values = way == REGISTERED ? wanted.shared : wanted.values;
        memset(values + wanted.own, 0, (size_t)wanted.ghosts * sizeof *values);
        run(&wanted, way);
        ok[way] = right(&wanted, values);
        times[way] = 1 + (int64_t)(seconds / sample(&wanted, way, 50)); /* the same on all ranks */
        best[way] = 1.0;
    }
    for (s = 0; s < samples; s++) {
        for (way = 0; way < ways; way++) {
            const double once = sample(&wanted, way, times[way]);
            best[way] = once < best[way] ? once : best[way];
        }
    }
    for (way = 0; way < ways && me == 0; way++) {
        printf("%s,%dx%dx%d,%d,%s,%.3f,%d\n", label, grid[0], grid[1], grid[2], n, names[way],
               best[way] * 1e6, ok[way]);
    }
    fflush(stdout);
    tear_down(&wanted);
}

/* ---- planning -------------------------------------------------------------------------------- */

/* Returns an id that is far from those of i - 1 and i + 1. */
static int64_t scattered(int64_t i)
{
    return (int64_t)(((uint64_t)i * UINT64_C(0x9e3779b97f4a7c15)) >> 1);
}

/* Measures how long it takes to make plans for n ids per rank, and prints the rows. */
static void plan_time(const char *label, int64_t n)
{
    static const char *const kinds[] = {"directory", "range", "lists"};
    const int64_t m = n / 100;
    int64_t *own = (int64_t *)malloc((size_t)n * 8), *ghost = (int64_t *)malloc((size_t)m * 8), i;
    int32_t *send_at = (int32_t *)malloc((size_t)m * 4), peer = 1 - me, peers[1] = {1 - me};
    const int64_t count[1] = {m};
    dpar_points_lists lists = {1, peers, count, count, send_at, NULL};
    int kind;
    must(own && ghost && send_at, "allocating the lists and vectors");
    for (kind = 0; kind < 3; kind++) {
        dpar_points_desc desc;
        dpar_points *points = NULL;
        dpar_why why;
        double best = 1e9;
        int turn;
        memset(&desc, 0, sizeof desc);
        desc.own_count = n;
        desc.ghost_count = m;
        for (i = 0; i < n; i++) {
            own[i] = scattered(me + 2 * i);
        }
        for (i = 0; i < m; i++) {
            ghost[i] = kind == 0 ? scattered(peer + 2 * (100 * i)) : peer * n + 100 * i;
            send_at[i] = (int32_t)(100 * i);
        }
        desc.own_id = kind == 0 ? own : NULL;
        desc.ghost_id = ghost;
        desc.lists = kind == 2 ? &lists : NULL;
        for (turn = 0; turn < 3; turn++) {
            double began, mine, slowest;
            MPI_Barrier(MPI_COMM_WORLD);
            began = now();
            must(dpar_points_make(world, &desc, &points, &why) == DPAR_OK, why.text);
            mine = now() - began;
            MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            best = slowest < best ? slowest : best;
            must(dpar_points_free(points) == DPAR_OK, "dpar_points_free");
        }
        if (me == 0) {
            printf("%s,plan,%lld,%s,%.4f,1\n", label, (long long)n, kinds[kind], best);
        }
    }
    free(own);
    free(ghost);
    free(send_at);
}

/* Ends all ranks because of a wrong argument. */
static void refuse(const char *word)
{
    fprintf(stderr,
            "points: rank %d: argument '%s': expected n=LIST (sizes from 1 to 1000 with commas "
            "between), samples=N (1 or more) or seconds=S (above 0)\n",
            me, word);
    MPI_Abort(MPI_COMM_WORLD, 2);
}

/* Reads the next size of a list with commas, and sets *list to what follows it. */
static int next_size(const char **list)
{
    char *end;
    const long n = strtol(*list, &end, 10);
    if (n < 1 || n > 1000 || (*end != ',' && *end != 0)) {
        refuse(*list);
    }
    *list = *end == ',' ? end + 1 : end;
    return (int)n;
}

int main(int argc, char **argv)
{
    static const int grids[][3] = {{2, 1, 1}, {1, 1, 2}, {2, 2, 1}, {2, 2, 2}};
    const char *label = argc > 1 ? argv[1] : "mpi", *sizes = "16,32,64";
    int samples = 15, i, done = 0;
    double seconds = 0.01;
    dpar_mpi_desc options;
    dpar_why why;
#ifdef POINTS_PETSC
    PetscInitialize(&argc, &argv, NULL, NULL);
#else
    MPI_Init(&argc, &argv);
#endif
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks == 2) {
        pin(me);
    }
    must(dpar_mpi_make(MPI_COMM_WORLD, NULL, &world, &why) == DPAR_OK, why.text);
    memset(&options, 0, sizeof options);
    options.flat = 1;
    must(dpar_mpi_make(MPI_COMM_WORLD, &options, &flat, &why) == DPAR_OK, why.text);
    for (i = 2; i < argc; i++) {
        if (strncmp(argv[i], "n=", 2) == 0) {
            sizes = argv[i] + 2;
        } else if (strncmp(argv[i], "samples=", 8) == 0) {
            samples = atoi(argv[i] + 8);
        } else if (strncmp(argv[i], "seconds=", 8) == 0) {
            seconds = atof(argv[i] + 8);
        } else {
            refuse(argv[i]);
        }
        if (samples < 1 || !(seconds > 0.0)) {
            refuse(argv[i]);
        }
    }
    for (i = 0; i < (int)(sizeof grids / sizeof *grids); i++) {
        const int *grid = grids[i];
        const char *at = sizes;
        while (*at && grid[0] * grid[1] * grid[2] == ranks) {
            measure(label, next_size(&at), grid, samples, seconds);
            done = 1;
        }
    }
    if (!done) {
        fprintf(
            stderr,
            "points: %d ranks and the sizes '%s': there have to be 2, 4 or 8 ranks and at least "
            "one size\n",
            ranks, sizes);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (ranks == 2) {
        plan_time(label, 1000000);
    }
    must(dpar_comm_free(flat) == DPAR_OK && dpar_comm_free(world) == DPAR_OK, "dpar_comm_free");
#ifdef POINTS_PETSC
    PetscFinalize();
#else
    MPI_Finalize();
#endif
    return 0;
}
