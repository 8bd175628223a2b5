/* SPDX-License-Identifier: MIT-0 */
/* pencil - times the transposes of dpar_pencil.h beside the two ways in which FFT codes do them with
 * MPI: boxes packed, MPI_Alltoallv, unpacked (2DECOMP, P3DFFT), and FFTW's own transposes.
 *
 *   mpicc -O2 -DDPAR_IMPLEMENTATION -I. bench/pencil.c -o build/bench_pencil
 *   mpicc -O2 -DDPAR_IMPLEMENTATION -DPENCIL_FFTW -I. bench/pencil.c -lfftw3_mpi -lfftw3 -lm -o ...
 *   mpiexec -n 2 build/bench_pencil [SAMPLES [SECONDS_A_SAMPLE]]       default 15 and 0.01
 *
 * Prints a line for each array, grid and order of memory: microseconds of a transpose by
 *
 *   dpar     arrays of dpar_pencil_array
 *   private  arrays of malloc
 *   mpi      MPI_Alltoallv, in a communicator of the ranks that exchange points
 *   fftw     fftw_mpi_plan_many_transpose, for slabs
 *
 * and the ratio of dpar to the faster of mpi and fftw. A time is that of the slowest rank in the
 * fastest sample; samples are taken in turns. dpar_mpi.h uses the memory of a node unless
 * DPAR_MPI_FLAT=1. Points are complex doubles. Results are compared before anything is timed. */
#define _GNU_SOURCE
#include "dpar_mpi.h"
#include "dpar_pencil.h"

#include "ranks.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef PENCIL_FFTW
#include <fftw3-mpi.h>
#endif

enum { POINT = 16, MOST = 64, WAYS = 4 }; /* bytes; ranks; methods */

static void must(int fine, const char *what)
{
    if (!fine) {
        fprintf(stderr, "bench/pencil: %s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* ---- by MPI_Alltoallv ------------------------------------------------------------------------ */

typedef struct box {
    int64_t first[3], count[3], stride[3]; /* strides in points */
} box;

/* One direction of a transpose: what goes to and comes from each rank of `comm`. */
typedef struct alltoall {
    MPI_Comm comm;
    int ranks, send[MOST], receive[MOST], send_at[MOST], receive_at[MOST]; /* bytes */
    box gives[MOST], takes[MOST];
    box from, to;
    char *packed, *arrived;
} alltoall;

static int64_t common(const box *a, const box *b, box *both)
{
    int64_t points = 1;
    for (int d = 0; d < 3; d++) {
        const int64_t a_end = a->first[d] + a->count[d], b_end = b->first[d] + b->count[d];
        const int64_t end = a_end < b_end ? a_end : b_end;
        both->first[d] = a->first[d] > b->first[d] ? a->first[d] : b->first[d];
        both->count[d] = end > both->first[d] ? end - both->first[d] : 0;
        points *= both->count[d];
    }
    return points;
}

/* Copies a box of `in` to or from dense memory, whose dims are in the order of `like`. */
static void copy_box(const box *part, const box *in, const box *like, char *array, char *dense,
                     int packs)
{
    int dim[3] = {0, 1, 2};
    int64_t step[3], n = 1, i[3];
    for (int a = 0; a < 2; a++) { /* the slowest dim of `like` first */
        for (int b = 0; b < 2; b++) {
            if (like->stride[dim[b]] < like->stride[dim[b + 1]]) {
                const int swap = dim[b];
                dim[b] = dim[b + 1];
                dim[b + 1] = swap;
            }
        }
    }
    for (int d = 2; d >= 0; d--) {
        step[d] = n;
        n *= part->count[dim[d]];
    }
    for (int d = 0; d < 3; d++) {
        array += (part->first[dim[d]] - in->first[dim[d]]) * in->stride[dim[d]] * POINT;
    }
    const int64_t *count = part->count, *stride = in->stride;
    const int64_t run = stride[dim[2]] == 1 ? count[dim[2]] : 1;
    const int joined = run > 1 && stride[dim[1]] == run; /* planes are contiguous */
    const int64_t rows = joined ? 1 : count[dim[1]], bytes = (joined ? run * count[dim[1]] : run) * POINT;
    for (i[0] = 0; i[0] < count[dim[0]]; i[0]++) {
        for (i[1] = 0; i[1] < rows; i[1]++) {
            char *at = array + (i[0] * stride[dim[0]] + i[1] * stride[dim[1]]) * POINT;
            char *to = dense + (i[0] * step[0] + i[1] * step[1]) * POINT;
            if (run > 1) {
                memcpy(packs ? to : at, packs ? at : to, (size_t)bytes);
                continue;
            }
            for (i[2] = 0; i[2] < count[dim[2]]; i[2]++) {
                char *one = at + i[2] * stride[dim[2]] * POINT;
                if (packs) {
                    memcpy(to + i[2] * POINT, one, POINT);
                } else {
                    memcpy(one, to + i[2] * POINT, POINT);
                }
            }
        }
    }
}

static void plan_alltoall(alltoall *t, dpar_pencil *p, MPI_Comm comm, int from, int to)
{
    box mine[2], all[2 * MOST];
    int64_t sends = 0, receives = 0;
    memset(t, 0, sizeof *t);
    t->comm = comm;
    MPI_Comm_size(comm, &t->ranks);
    dpar_pencil_box(p, from, mine[0].first, mine[0].count, mine[0].stride);
    dpar_pencil_box(p, to, mine[1].first, mine[1].count, mine[1].stride);
    t->from = mine[0];
    t->to = mine[1];
    MPI_Allgather(mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, comm);
    for (int r = 0; r < t->ranks; r++) {
        t->send[r] = (int)common(&mine[0], &all[2 * r + 1], &t->gives[r]) * POINT;
        t->receive[r] = (int)common(&mine[1], &all[2 * r], &t->takes[r]) * POINT;
        t->send_at[r] = (int)sends;
        t->receive_at[r] = (int)receives;
        sends += t->send[r];
        receives += t->receive[r];
    }
    t->packed = (char *)calloc(1, (size_t)sends + 64);
    t->arrived = (char *)calloc(1, (size_t)receives + 64);
    must(t->packed && t->arrived, "no memory");
}

static void run_alltoall(const alltoall *t, char *in, char *out)
{
    for (int r = 0; r < t->ranks; r++) {
        copy_box(&t->gives[r], &t->from, &t->from, in, t->packed + t->send_at[r], 1);
    }
    MPI_Alltoallv(t->packed, t->send, t->send_at, MPI_BYTE, t->arrived, t->receive, t->receive_at,
                  MPI_BYTE, t->comm);
    for (int r = 0; r < t->ranks; r++) {
        copy_box(&t->takes[r], &t->to, &t->from, out, t->arrived + t->receive_at[r], 0);
    }
}

/* ---- one case -------------------------------------------------------------------------------- */

typedef struct one_case {
    dpar_pencil *pencil;
    int from, to;
    char *shared[2], *private_[2], *mpi[2];
    alltoall there, back;
#ifdef PENCIL_FFTW
    fftw_plan fftw[2];
    double *slab[2];
#endif
} one_case;

/* Transposes there and back once, by a method. */
static void turn(one_case *k, int method)
{
    int fine = 1;
    char **two = method == 0 ? k->shared : k->private_;
    switch (method) {
    case 0:
    case 1:
        fine = dpar_pencil_transpose(k->pencil, k->from, k->to, two[0], two[1]) == DPAR_OK &&
               dpar_pencil_transpose(k->pencil, k->to, k->from, two[1], two[0]) == DPAR_OK;
        break;
    case 2:
        run_alltoall(&k->there, k->mpi[0], k->mpi[1]);
        run_alltoall(&k->back, k->mpi[1], k->mpi[0]);
        break;
    default:
#ifdef PENCIL_FFTW
        fftw_execute(k->fftw[0]);
        fftw_execute(k->fftw[1]);
#endif
        break;
    }
    must(fine, k->pencil->comm->why.text);
}

static double sample(one_case *k, int method, int rounds)
{
    double began, mine, all;
    MPI_Barrier(MPI_COMM_WORLD);
    began = now();
    for (int i = 0; i < rounds; i++) {
        turn(k, method);
    }
    mine = (now() - began) / (2.0 * rounds);
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

/* Compares dpar with MPI_Alltoallv. */
static void compare(one_case *k)
{
    const int64_t bytes = k->pencil->bytes[k->from];
    for (int64_t i = 0; i < bytes; i++) {
        k->shared[0][i] = k->private_[0][i] = k->mpi[0][i] =
            (char)(i * 7 + i / 251 + 31 * k->pencil->comm->rank);
    }
    must(dpar_pencil_transpose(k->pencil, k->from, k->to, k->shared[0], k->shared[1]) == DPAR_OK &&
             dpar_pencil_transpose(k->pencil, k->from, k->to, k->private_[0], k->private_[1]) ==
                 DPAR_OK,
         "a transpose failed");
    run_alltoall(&k->there, k->mpi[0], k->mpi[1]);
    must(memcmp(k->shared[1], k->mpi[1], (size_t)k->pencil->bytes[k->to]) == 0 &&
             memcmp(k->private_[1], k->mpi[1], (size_t)k->pencil->bytes[k->to]) == 0,
         "dpar and MPI_Alltoallv disagree");
}

#ifdef PENCIL_FFTW
/* Plans the transposes of slabs between dims 0 and 1, in which a row of dim 2 is one element. */
static void plan_fftw(one_case *k, int there)
{
    const int64_t *n = k->pencil->size;
    ptrdiff_t local, at, local_out, at_out;
    const ptrdiff_t many = (ptrdiff_t)(2 * n[2]);
    const ptrdiff_t n0 = (ptrdiff_t)n[there ? 0 : 1], n1 = (ptrdiff_t)n[there ? 1 : 0];
    const ptrdiff_t all = fftw_mpi_local_size_many_transposed(
        2, (ptrdiff_t[]){n0, n1}, many, FFTW_MPI_DEFAULT_BLOCK, FFTW_MPI_DEFAULT_BLOCK,
        MPI_COMM_WORLD, &local, &at, &local_out, &at_out);
    if (there) {
        k->slab[0] = fftw_alloc_real((size_t)all);
        k->slab[1] = fftw_alloc_real((size_t)all);
    }
    must(k->slab[0] && k->slab[1], "no memory");
    k->fftw[there ? 0 : 1] = fftw_mpi_plan_many_transpose(
        n0, n1, many, FFTW_MPI_DEFAULT_BLOCK, FFTW_MPI_DEFAULT_BLOCK, k->slab[there ? 0 : 1],
        k->slab[there ? 1 : 0], MPI_COMM_WORLD, FFTW_MEASURE);
    must(k->fftw[there ? 0 : 1] != NULL, "FFTW has no plan");
    memset(k->slab[0], 0, (size_t)all * sizeof(double));
    memset(k->slab[1], 0, (size_t)all * sizeof(double));
}
#endif

/* grid0: ranks along grid[0]. Transposes from 1 to 0 if it is more than 1, otherwise from 2 to 1. */
static void measure(dpar_comm *comm, const int64_t *size, int grid0, int order, int samples,
                    double seconds)
{
    dpar_pencil_desc desc;
    one_case k;
    dpar_why why;
    MPI_Comm part;
    double best[WAYS];
    int rounds[WAYS], methods = 3;
    memset(&desc, 0, sizeof desc);
    memset(&k, 0, sizeof k);
    memcpy(desc.size, size, sizeof desc.size);
    desc.grid[0] = grid0;
    desc.type = DPAR_F64;
    desc.components = 2;
    desc.order = order;
    must(dpar_pencil_make(comm, &desc, &k.pencil, &why) == DPAR_OK, why.text);
    k.from = grid0 > 1 ? 1 : 2;
    k.to = k.from - 1;
    MPI_Comm_split(MPI_COMM_WORLD,
                   k.from == 1 ? comm->rank % k.pencil->grid[1] : comm->rank / k.pencil->grid[1],
                   comm->rank, &part);
    plan_alltoall(&k.there, k.pencil, part, k.from, k.to);
    plan_alltoall(&k.back, k.pencil, part, k.to, k.from);
    for (int i = 0; i < 2; i++) {
        const int64_t *b = k.pencil->bytes;
        const int64_t most = b[0] > b[1] ? (b[0] > b[2] ? b[0] : b[2]) : (b[1] > b[2] ? b[1] : b[2]);
        k.shared[i] = (char *)dpar_pencil_array(k.pencil);
        k.private_[i] = (char *)calloc(1, (size_t)most + 64);
        k.mpi[i] = (char *)calloc(1, (size_t)most + 64);
        must(k.shared[i] && k.private_[i] && k.mpi[i], "no memory");
    }
    compare(&k);
#ifdef PENCIL_FFTW
    if (k.pencil->grid[1] == 1 && comm->size > 1) {
        plan_fftw(&k, 1);
        plan_fftw(&k, 0);
        methods = 4;
    }
#endif
    for (int m = 0; m < methods; m++) {
        (void)sample(&k, m, 2);
        best[m] = sample(&k, m, 3);
        rounds[m] = 1 + (int)(seconds / (2 * best[m]));
        MPI_Bcast(&rounds[m], 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    for (int s = 0; s < samples; s++) {
        for (int m = 0; m < methods; m++) {
            const double t = sample(&k, m, rounds[m]);
            best[m] = t < best[m] ? t : best[m];
        }
    }
    if (comm->rank == 0) {
        const double peer = methods > 3 && best[3] < best[2] ? best[3] : best[2];
        printf("%4d x %4d x %4d  %2d x %-2d  %s  %d to %d %10.1f %10.1f %10.1f ", (int)size[0],
               (int)size[1], (int)size[2], (int)k.pencil->grid[0], (int)k.pencil->grid[1],
               order ? "axis last" : "global   ", k.from, k.to, best[0] * 1e6, best[1] * 1e6,
               best[2] * 1e6);
        if (methods > 3) {
            printf("%10.1f", best[3] * 1e6);
        } else {
            printf("%10s", "-");
        }
        printf("   %5.2f  %7.2f\n", best[0] / peer, best[1] / peer);
        fflush(stdout);
    }
#ifdef PENCIL_FFTW
    for (int i = 0; i < 2 && methods > 3; i++) {
        fftw_destroy_plan(k.fftw[i]);
        fftw_free(k.slab[i]);
    }
#endif
    for (int i = 0; i < 2; i++) {
        dpar_comm_release(comm, k.shared[i]);
        free(k.private_[i]);
        free(k.mpi[i]);
    }
    free(k.there.packed);
    free(k.there.arrived);
    free(k.back.packed);
    free(k.back.arrived);
    MPI_Comm_free(&part);
    must(dpar_pencil_free(k.pencil) == DPAR_OK, "dpar_pencil_free failed");
}

int main(int argc, char **argv)
{
    static const int64_t size[4][3] = {{32, 32, 32}, {64, 64, 64}, {128, 128, 128}, {61, 53, 70}};
    const int samples = argc > 1 ? atoi(argv[1]) : 15;
    const double seconds = argc > 2 ? atof(argv[2]) : 0.01;
    dpar_comm *comm = NULL;
    dpar_why why;
    MPI_Init(&argc, &argv);
#ifdef PENCIL_FFTW
    fftw_mpi_init();
#endif
    must(dpar_mpi_make(MPI_COMM_WORLD, NULL, &comm, &why) == DPAR_OK, why.text);
    must(comm->size <= MOST, "at most 64 ranks");
    must(samples > 0 && seconds >= 0, "SAMPLES is at least 1, SECONDS_A_SAMPLE at least 0");
    pin(comm->rank);
    if (comm->rank == 0) {
        printf("%d ranks, engine %s; us a transpose\n", (int)comm->size, comm->engine.name);
        printf("%-18s %-8s %-10s %-6s %10s %10s %10s %10s   %s  %s\n", "array", "grid", "order",
               "axes", "dpar", "private", "mpi", "fftw", "ratio", "private");
    }
    for (int i = 0; i < 4; i++) {
        measure(comm, size[i], comm->size, 0, samples, seconds); /* slabs, as in FFTW */
        measure(comm, size[i], 1, 0, samples, seconds);          /* cut along x and y */
        measure(comm, size[i], 1, 1, samples, seconds);
    }
    must(dpar_comm_free(comm) == DPAR_OK, "dpar_comm_free failed");
#ifdef PENCIL_FFTW
    fftw_mpi_cleanup();
#endif
    MPI_Finalize();
    return 0;
}
