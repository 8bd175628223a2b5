/* SPDX-License-Identifier: MIT-0 */
/* points - exchanges by index lists beside MPI written by hand and PETSc's SF, on 2 ranks.
 *
 *   mpiexec -np 2 points label n=16,32,64 samples=15 seconds=0.01
 *
 * The lists are those of the 27-point pattern of HPCG: a cube of n^3 a rank, cut in x (each value a
 * run of its own) or in z (one run). Ghosts lie behind own values. Rows "label,cut,n,way,us,ok": the
 * ways take turns, us is the slowest rank's fastest sample; ok: the ghosts are the peer's values.
 *
 *   hand       receives posted into the ghosts, own values packed, blocking sends, waits
 *   messages   dpar_points by messages of MPI (dpar_mpi_options.flat)
 *   private    dpar_points through the node's memory, vectors of malloc
 *   registered vectors of dpar_comm_alloc
 *   sf         PetscSFBcast with REPLACE (-DPOINTS_PETSC)
 *
 * Then "label,plan,IDS,KIND,seconds,ok": planning of so many ids a rank, a hundredth of it read of
 * the other rank, as scattered ids (directory), consecutive ones (range), lists of both sides. */
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

enum { WAYS = 5, ARRAYS = 2, MOST_SAMPLES = 400 };
enum { HAND, MESSAGES, PRIVATE, REGISTERED, SF };
static const char *const names[WAYS] = {"hand", "messages", "private", "registered", "sf"};

static dpar_comm *world, *flat; /* through the node's memory; messages of MPI alone */
static int me, peer;

static void must(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "rank %d: %s: %s\n", me, what, world ? world->why.text : "");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* ---- one case --------------------------------------------------------------------------------- */

typedef struct pattern {
    int64_t own, ghosts;
    int32_t *send_at;
    double *x, *shared, *buffer;
    dpar_points *messages, *node;
#ifdef POINTS_PETSC
    PetscSF sf;
#endif
} pattern;

static dpar_points *plan(dpar_comm *comm, const pattern *c)
{
    const int32_t peers[1] = {peer};
    const int64_t count[1] = {c->ghosts};
    dpar_points_lists l = {1, peers, count, count, c->send_at, NULL};
    dpar_points_desc d;
    dpar_points *p = NULL;
    dpar_why why;
    memset(&d, 0, sizeof d);
    d.own = c->own;
    d.ghosts = c->ghosts;
    d.lists = &l;
    must(dpar_points_make_of(comm, &d, &p, &why) == DPAR_OK, why.text);
    return p;
}

static void setup(pattern *c, int n, int along_x)
{
    int64_t i, k;
    c->own = (int64_t)n * n * n;
    c->ghosts = (int64_t)n * n;
    c->send_at = (int32_t *)malloc((size_t)c->ghosts * sizeof *c->send_at);
    c->x = (double *)malloc((size_t)(c->own + c->ghosts) * sizeof *c->x);
    c->buffer = (double *)malloc((size_t)c->ghosts * sizeof *c->buffer);
    c->shared = (double *)dpar_alloc(world, (c->own + c->ghosts) * 8);
    must(c->send_at && c->x && c->buffer && c->shared, "memory");
    for (k = 0; k < c->ghosts; k++) {
        c->send_at[k] = (int32_t)(along_x ? k * n + (me == 0 ? n - 1 : 0)
                                          : k + (me == 0 ? (int64_t)(n - 1) * n * n : 0));
    }
    for (i = 0; i < c->own; i++) {
        c->x[i] = c->shared[i] = (double)(me + 1) + 1e-7 * (double)i;
    }
    c->messages = plan(flat, c);
    c->node = plan(world, c);
#ifdef POINTS_PETSC
    {
        PetscSFNode *remote = (PetscSFNode *)malloc((size_t)c->ghosts * sizeof *remote);
        for (k = 0; k < c->ghosts; k++) { /* what the peer sends, in its order */
            remote[k].rank = peer;
            remote[k].index = (PetscInt)(along_x ? k * n + (me == 0 ? 0 : n - 1)
                                                 : k + (me == 0 ? 0 : (int64_t)(n - 1) * n * n));
        }
        PetscSFCreate(PETSC_COMM_WORLD, &c->sf);
        PetscSFSetFromOptions(c->sf);
        PetscSFSetGraph(c->sf, (PetscInt)c->own, (PetscInt)c->ghosts, NULL, PETSC_OWN_POINTER,
                        remote, PETSC_COPY_VALUES);
        PetscSFSetUp(c->sf);
        free(remote);
    }
#endif
}

static void tear_down(pattern *c)
{
    must(dpar_points_free(c->messages) == DPAR_OK && dpar_points_free(c->node) == DPAR_OK, "free");
#ifdef POINTS_PETSC
    PetscSFDestroy(&c->sf);
#endif
    dpar_comm_release(world, c->shared);
    free(c->send_at);
    free(c->x);
    free(c->buffer);
}

static void by_hand(const pattern *c, double *x)
{
    MPI_Request request;
    int64_t k;
    MPI_Irecv(x + c->own, (int)c->ghosts, MPI_DOUBLE, peer, 99, MPI_COMM_WORLD, &request);
    for (k = 0; k < c->ghosts; k++) {
        c->buffer[k] = x[c->send_at[k]];
    }
    MPI_Send(c->buffer, (int)c->ghosts, MPI_DOUBLE, peer, 99, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static void run(const pattern *c, int way)
{
    switch (way) {
    case HAND: by_hand(c, c->x); break;
    case MESSAGES: dpar_points_exchange(c->messages, c->x); break;
    case PRIVATE: dpar_points_exchange(c->node, c->x); break;
    case REGISTERED: dpar_points_exchange(c->node, c->shared); break;
    default:
#ifdef POINTS_PETSC
        PetscSFBcastBegin(c->sf, MPI_DOUBLE, c->x, c->x + c->own, MPI_REPLACE);
        PetscSFBcastEnd(c->sf, MPI_DOUBLE, c->x, c->x + c->own, MPI_REPLACE);
#endif
        break;
    }
}

/* Are the ghosts the peer's values? */
static int right(const pattern *c, int n, int along_x, const double *x)
{
    int64_t k;
    int good = 1, all;
    for (k = 0; k < c->ghosts; k++) {
        const int64_t at = along_x ? k * n + (me == 0 ? 0 : n - 1)
                                   : k + (me == 0 ? 0 : (int64_t)(n - 1) * n * n);
        good = good && x[c->own + k] == (double)(peer + 1) + 1e-7 * (double)at;
    }
    MPI_Allreduce(&good, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all;
}

static double sample(const pattern *c, int way, int64_t times)
{
    double began, mine, slowest;
    int64_t i;
    MPI_Barrier(MPI_COMM_WORLD);
    began = now();
    for (i = 0; i < times; i++) {
        run(c, way);
    }
    mine = (now() - began) / (double)times;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static void measure(const char *label, int n, int along_x, int samples, double seconds)
{
    pattern c;
    double best[WAYS];
    int64_t times[WAYS];
    int ok[WAYS], way, s;
#ifdef POINTS_PETSC
    const int ways = WAYS;
#else
    const int ways = WAYS - 1;
#endif
    memset(&c, 0, sizeof c);
    setup(&c, n, along_x);
    for (way = 0; way < ways; way++) {
        double *x = way == REGISTERED ? c.shared : c.x;
        memset(x + c.own, 0, (size_t)c.ghosts * sizeof *x);
        run(&c, way);
        ok[way] = right(&c, n, along_x, x);
        times[way] = 1 + (int64_t)(seconds / sample(&c, way, 100));
        best[way] = 1.0;
    }
    for (s = 0; s < samples; s++) {
        for (way = 0; way < ways; way++) {
            const double t = sample(&c, way, times[way]);
            best[way] = t < best[way] ? t : best[way];
        }
    }
    for (way = 0; way < ways && me == 0; way++) {
        printf("%s,%c,%d,%s,%.3f,%d\n", label, along_x ? 'x' : 'z', n, names[way], best[way] * 1e6,
               ok[way]);
    }
    fflush(stdout);
    tear_down(&c);
}

/* ---- planning --------------------------------------------------------------------------------- */

/* Numbers 0 .. 2^b - 1, each to another: an odd factor and a shift. */
static int64_t scattered(int64_t i)
{
    return (int64_t)(((uint64_t)i * UINT64_C(0x9e3779b97f4a7c15)) >> 1);
}

static void plan_time(const char *label, int64_t n)
{
    static const char *const kinds[] = {"directory", "range", "lists"};
    const int64_t m = n / 100;
    int64_t *own = (int64_t *)malloc((size_t)n * 8), *ghost = (int64_t *)malloc((size_t)m * 8), i;
    int32_t *send_at = (int32_t *)malloc((size_t)m * 4), peers[1] = {peer};
    const int64_t count[1] = {m};
    dpar_points_lists l = {1, peers, count, count, send_at, NULL};
    int kind;
    must(own && ghost && send_at, "memory");
    for (kind = 0; kind < 3; kind++) {
        dpar_points_desc d;
        dpar_points *p = NULL;
        dpar_why why;
        double best = 1e9;
        int turn;
        memset(&d, 0, sizeof d);
        d.own = n;
        d.ghosts = m;
        for (i = 0; i < n; i++) {
            own[i] = scattered(me + 2 * i);
        }
        for (i = 0; i < m; i++) {
            ghost[i] = kind == 0 ? scattered(peer + 2 * (100 * i)) : peer * n + 100 * i;
            send_at[i] = (int32_t)(100 * i);
        }
        d.own_id = kind == 0 ? own : NULL;
        d.ghost_id = ghost;
        d.lists = kind == 2 ? &l : NULL;
        for (turn = 0; turn < 3; turn++) {
            double began, mine, slowest;
            MPI_Barrier(MPI_COMM_WORLD);
            began = now();
            must(dpar_points_make_of(world, &d, &p, &why) == DPAR_OK, why.text);
            mine = now() - began;
            MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            best = slowest < best ? slowest : best;
            must(dpar_points_free(p) == DPAR_OK, "free");
        }
        if (me == 0) {
            printf("%s,plan,%lld,%s,%.4f,1\n", label, (long long)n, kinds[kind], best);
        }
    }
    free(own);
    free(ghost);
    free(send_at);
}

int main(int argc, char **argv)
{
    const char *label = argc > 1 ? argv[1] : "mpi", *sizes = "16,32,64";
    int samples = 15, i, along_x, ranks;
    double seconds = 0.01;
    dpar_mpi_options options;
    dpar_why why;
#ifdef POINTS_PETSC
    PetscInitialize(&argc, &argv, NULL, NULL);
#else
    MPI_Init(&argc, &argv);
#endif
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    must(ranks == 2, "for 2 ranks");
    peer = 1 - me;
    pin(me);
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
        }
    }
    for (along_x = 1; along_x >= 0; along_x--) {
        const char *at = sizes;
        while (*at) {
            measure(label, (int)strtol(at, (char **)(uintptr_t)&at, 10), along_x, samples, seconds);
            at += *at == ',';
        }
    }
    plan_time(label, 1000000);
    must(dpar_comm_close(flat) == DPAR_OK && dpar_comm_close(world) == DPAR_OK, "close");
#ifdef POINTS_PETSC
    PetscFinalize();
#else
    MPI_Finalize();
#endif
    return 0;
}
