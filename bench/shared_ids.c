/* SPDX-License-Identifier: MIT-0 */
/* shared_ids - measures sums of shared ids (dpar_points_combine) and compares them with MPI written
 * by hand as gslib does it, in the same run: values of this rank are added in place of the first
 * one, packed by index for each rank that shares their ids, sent, added, and stored at all values.
 *
 *   mpicc -O2 -I. -DDPAR_IMPLEMENTATION bench/shared_ids.c -o shared_ids && mpiexec -n 2 shared_ids
 *
 * Arguments: samples=40 and seconds=0.002 for each. The cases are spectral elements of several
 * orders, whose nodes are repeated in each element, and the nodes of a cube without repeats (as
 * LULESH has them), all cut in z or x. Prints a row for each case: "name: values, us by hand, us of
 * dpar, ratio". The time is that of the slowest rank, the fastest of the samples, which take turns.
 * A ratio below 1 is faster than by hand.
 *
 * Exit codes: 0 measured; 1 sums differ or an operation failed; 2 wrong arguments. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpar_points.h"
#include "dpar_mpi.h"
#include "ranks.h"

static int me, ranks;

static void must(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "shared_ids: rank %d: failed: %s\n", me, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void *room(int64_t n, size_t bytes)
{
    void *at = calloc((size_t)n + 1, bytes);
    must(at != NULL, "calloc");
    return at;
}

/* ---- ids ------------------------------------------------------------------------------------- */

/* A block of elements^3 elements with (order + 1)^3 nodes each, and the cut of the whole: dim 0 (x)
 * or 2 (z). repeat 0 lists each node of the block once. */
typedef struct ids {
    const char *name;
    int elements, order, dim, repeat;
} ids;

static int64_t node_id(const ids *what, int64_t x, int64_t y, int64_t z)
{
    const int64_t side = what->elements * (int64_t)what->order;
    const int64_t width = (what->dim == 0 ? ranks : 1) * side + 1;
    x += what->dim == 0 ? me * side : 0;
    z += what->dim == 2 ? me * side : 0;
    return x + width * (y + (side + 1) * z);
}

/* Lists the ids of this rank. Returns their number. With id NULL only counts. */
static int64_t list_ids(const ids *what, int64_t *id)
{
    const int blocks = what->repeat ? what->elements : 1;
    const int nodes = what->repeat ? what->order + 1 : what->elements * what->order + 1;
    const int64_t all = (int64_t)blocks * blocks * blocks * nodes * nodes * nodes;
    int64_t k;
    for (k = 0; k < all && id; k++) {
        const int64_t in = k % ((int64_t)nodes * nodes * nodes);
        const int64_t element = k / ((int64_t)nodes * nodes * nodes);
        id[k] = node_id(what, element % blocks * what->order + in % nodes,
                        element / blocks % blocks * what->order + in / nodes % nodes,
                        element / blocks / blocks * what->order + in / nodes / nodes);
    }
    return all;
}

/* ---- by hand --------------------------------------------------------------------------------- */

typedef struct hand {
    int *repeats; /* first index, other indices, -1; for each repeated id */
    int ends;     /* of repeats */
    int peers, *peer, *count, **index;
    double **out, **in;
    MPI_Request *request;
} hand;

typedef struct entry {
    int64_t id;
    int index;
} entry;

static int by_id(const void *a, const void *b)
{
    const entry *x = (const entry *)a, *y = (const entry *)b;
    if (x->id != y->id) {
        return x->id < y->id ? -1 : 1;
    }
    return x->index < y->index ? -1 : 1;
}

/* Finds the ids that rank r has as well, in ascending order. */
static void find_peer(hand *plan, int r, const entry *mine, int n, const int64_t *theirs, int m)
{
    int i = 0, k = 0, found = 0, *index = (int *)room(n, sizeof *index);
    while (i < n && k < m) {
        if (mine[i].id == theirs[k]) {
            index[found++] = mine[i].index;
            i++;
            k++;
        } else if (mine[i].id < theirs[k]) {
            i++;
        } else {
            k++;
        }
    }
    if (found == 0) {
        free(index);
        return;
    }
    plan->peer[plan->peers] = r;
    plan->count[plan->peers] = found;
    plan->index[plan->peers] = index;
    plan->out[plan->peers] = (double *)room(found, sizeof(double));
    plan->in[plan->peers] = (double *)room(found, sizeof(double));
    plan->peers++;
}

static void make_hand(hand *plan, const int64_t *id, int n)
{
    entry *all = (entry *)room(n, sizeof *all), *unique = (entry *)room(n, sizeof *unique);
    int64_t *keys = (int64_t *)room(n, sizeof *keys);
    int i, j, r, count = 0;
    memset(plan, 0, sizeof *plan);
    plan->repeats = (int *)room(2 * (int64_t)n, sizeof(int));
    plan->peer = (int *)room(ranks, sizeof(int));
    plan->count = (int *)room(ranks, sizeof(int));
    plan->index = (int **)room(ranks, sizeof(int *));
    plan->out = (double **)room(ranks, sizeof(double *));
    plan->in = (double **)room(ranks, sizeof(double *));
    plan->request = (MPI_Request *)room(2 * (int64_t)ranks, sizeof(MPI_Request));
    for (i = 0; i < n; i++) {
        all[i].id = id[i];
        all[i].index = i;
    }
    qsort(all, (size_t)n, sizeof *all, by_id);
    for (i = 0; i < n; i = j) {
        for (j = i + 1; j < n && all[j].id == all[i].id; j++) {
        }
        unique[count] = all[i];
        keys[count++] = all[i].id;
        if (j > i + 1) {
            int k;
            for (k = i; k < j; k++) {
                plan->repeats[plan->ends++] = all[k].index;
            }
            plan->repeats[plan->ends++] = -1;
        }
    }
    for (r = 0; r < ranks; r++) {
        int64_t *theirs;
        int m = count;
        MPI_Bcast(&m, 1, MPI_INT, r, MPI_COMM_WORLD);
        theirs = r == me ? keys : (int64_t *)room(m, sizeof *theirs);
        MPI_Bcast(theirs, m, MPI_INT64_T, r, MPI_COMM_WORLD);
        if (r != me) {
            find_peer(plan, r, unique, count, theirs, m);
            free(theirs);
        }
    }
    free(all);
    free(unique);
    free(keys);
}

static void free_hand(hand *plan)
{
    int i;
    for (i = 0; i < plan->peers; i++) {
        free(plan->index[i]);
        free(plan->out[i]);
        free(plan->in[i]);
    }
    free(plan->repeats);
    free(plan->peer);
    free(plan->count);
    free(plan->index);
    free(plan->out);
    free(plan->in);
    free(plan->request);
}

static void sum_by_hand(hand *plan, double *x)
{
    const int *at, *end = plan->repeats + plan->ends;
    int i, k;
    for (i = 0; i < plan->peers; i++) {
        MPI_Irecv(plan->in[i], plan->count[i], MPI_DOUBLE, plan->peer[i], 0, MPI_COMM_WORLD,
                  &plan->request[i]);
    }
    for (at = plan->repeats; at < end; at++) {
        double *first = &x[*at++];
        double sum = *first;
        while (*at >= 0) {
            sum += x[*at++];
        }
        *first = sum;
    }
    for (i = 0; i < plan->peers; i++) {
        for (k = 0; k < plan->count[i]; k++) {
            plan->out[i][k] = x[plan->index[i][k]];
        }
        MPI_Isend(plan->out[i], plan->count[i], MPI_DOUBLE, plan->peer[i], 0, MPI_COMM_WORLD,
                  &plan->request[plan->peers + i]);
    }
    MPI_Waitall(2 * plan->peers, plan->request, MPI_STATUSES_IGNORE);
    for (i = 0; i < plan->peers; i++) {
        for (k = 0; k < plan->count[i]; k++) {
            x[plan->index[i][k]] += plan->in[i][k];
        }
    }
    for (at = plan->repeats; at < end; at++) {
        const double sum = x[*at++];
        while (*at >= 0) {
            x[*at++] = sum;
        }
    }
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Returns the us of one sum, of the slowest rank. points NULL measures by hand. */
static double sample(hand *plan, dpar_points *points, double *x, int times)
{
    double took, slowest;
    int i;
    MPI_Barrier(MPI_COMM_WORLD);
    took = now();
    for (i = 0; i < times; i++) {
        if (points == NULL) {
            sum_by_hand(plan, x);
        } else {
            must(dpar_points_combine(points, x) == DPAR_OK, "dpar_points_combine");
        }
    }
    took = (now() - took) / times;
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return 1e6 * slowest;
}

static void measure(dpar_comm *world, const ids *what, int samples, double seconds)
{
    const int64_t n = list_ids(what, NULL);
    int64_t *id = (int64_t *)room(n, sizeof *id), i;
    double *x = (double *)room(n, sizeof *x), *y = (double *)room(n, sizeof *y);
    double by_hand = 1e30, ours = 1e30, once;
    dpar_points_desc desc;
    dpar_points *points = NULL;
    dpar_why why;
    hand plan;
    int k, times;
    (void)list_ids(what, id);
    memset(&desc, 0, sizeof desc);
    desc.own_count = n;
    desc.own_id = id;
    desc.shared = 1;
    must(dpar_points_make(world, &desc, &points, &why) == DPAR_OK, why.text);
    make_hand(&plan, id, (int)n);
    for (i = 0; i < n; i++) {
        x[i] = y[i] = (double)((i * 7919 + me * 31) % 1000); /* whole numbers: sums are exact */
    }
    sum_by_hand(&plan, x);
    must(dpar_points_combine(points, y) == DPAR_OK, "dpar_points_combine");
    for (i = 0; i < n; i++) {
        must(x[i] == y[i], "the sums differ");
        x[i] = y[i] = 0.0; /* so that repeated sums do not overflow */
    }
    once = sample(&plan, NULL, x, 10);
    times = once * 1e-6 < seconds ? (int)(seconds / (once * 1e-6)) + 1 : 1;
    for (k = 0; k < samples; k++) {
        const double a = sample(&plan, NULL, x, times), b = sample(&plan, points, y, times);
        by_hand = a < by_hand ? a : by_hand;
        ours = b < ours ? b : ours;
    }
    if (me == 0) {
        printf("%-28s %8lld values: by hand %8.2f us, dpar %8.2f us, ratio %.2f\n", what->name,
               (long long)n, by_hand, ours, ours / by_hand);
        fflush(stdout);
    }
    must(dpar_points_free(points) == DPAR_OK, "dpar_points_free");
    free_hand(&plan);
    free(id);
    free(x);
    free(y);
}

int main(int argc, char **argv)
{
    static const ids cases[] = {
        {"order 7, 4^3 elements", 4, 7, 2, 1},    {"order 9, 6^3 elements", 6, 9, 2, 1},
        {"order 1, 12^3 elements", 12, 1, 2, 1},  {"nodes of 8^3, cut in x", 8, 1, 0, 0},
        {"nodes of 20^3, cut in x", 20, 1, 0, 0}, {"nodes of 20^3, cut in z", 20, 1, 2, 0},
        {"nodes of 60^3, cut in x", 60, 1, 0, 0}};
    int samples = 40, i;
    double seconds = 0.002;
    dpar_comm *world = NULL;
    dpar_why why;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (i = 1; i < argc; i++) {
        if (strncmp(argv[i], "samples=", 8) == 0) {
            samples = atoi(argv[i] + 8);
        } else if (strncmp(argv[i], "seconds=", 8) == 0) {
            seconds = atof(argv[i] + 8);
        } else {
            samples = 0;
        }
        if (samples < 1 || !(seconds > 0.0)) {
            fprintf(stderr,
                    "shared_ids: the argument '%s' must be samples=COUNT or seconds=TIME, at "
                    "least 1 and more than 0\n",
                    argv[i]);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
    }
    if (ranks == 2) {
        pin(me);
    }
    must(dpar_mpi_make(MPI_COMM_WORLD, NULL, &world, &why) == DPAR_OK, why.text);
    for (i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        measure(world, &cases[i], samples, seconds);
    }
    must(dpar_comm_free(world) == DPAR_OK, "dpar_comm_free");
    MPI_Finalize();
    return 0;
}
