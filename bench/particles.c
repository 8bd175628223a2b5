/* SPDX-License-Identifier: MIT-0 */
/* Times ghosts of particles beside hand-written MPI, in turns in the same run. By hand means as in
 * CoMD and LAMMPS: dim by dim, two messages by MPI_Sendrecv in each, where particles that have
 * arrived are sent on in the next dim. Prints microseconds and the ratio dpar / by hand for finding
 * ghosts anew, for updating their positions, and for adding their forces to the owners.
 *     mpicc -O2 -DDPAR_IMPLEMENTATION -I. bench/particles.c -o build/particles -lm
 *     mpiexec -n 2 build/particles [particles of each rank = 4000] [turns = 200] */
#include "dpar_mpi.h"
#include "dpar_particles.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS = 3, TURNS = 2000, FIND = 0, UPDATE, ADD };
static const char *const name[KINDS] = {"find ghosts", "update", "add forces"};

static int64_t capacity;
static double (*x)[3], (*f)[3], (*hand_x)[3], (*hand_f)[3], *out_buffer, *in_buffer;
static int32_t *list[6]; /* by hand: what is sent in each of six messages */
static int sends[6], receives[6], first[6], lower[3], upper[3];
static double shift[6];

/* Sends particles down (side 0) or up in a dim, and receives as many as the other side sends. */
static int pass(int m, int width, const double *from, int count, double *to)
{
    MPI_Status status;
    int got, k, d;
    for (k = 0; k < count; k++) {
        for (d = 0; d < 3; d++) {
            out_buffer[3 * k + d] = from[3 * (list[m] ? list[m][k] : k) + d];
        }
    }
    for (k = 0; k < count && width > 0; k++) {
        out_buffer[3 * k + m / 2] += shift[m];
    }
    MPI_Sendrecv(out_buffer, 3 * count, MPI_DOUBLE, m % 2 ? upper[m / 2] : lower[m / 2], m, to,
                 (int)(3 * capacity), MPI_DOUBLE, m % 2 ? lower[m / 2] : upper[m / 2], m,
                 MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_DOUBLE, &got);
    return got / 3;
}

static int hand_find(const dpar_particles *p, int own, double cutoff)
{
    int m, k, all = own, now;
    for (m = 0; m < 6; m++) {
        now = m % 2 ? now : all; /* both messages of a dim send the particles from before it */
        sends[m] = 0;
        for (k = 0; k < now; k++) {
            const double at = hand_x[k][m / 2];
            if (m % 2 ? p->high[m / 2] - at <= cutoff : at - p->low[m / 2] <= cutoff) {
                list[m][sends[m]++] = k;
            }
        }
        first[m] = all;
        receives[m] = pass(m, 1, hand_x[0], sends[m], hand_x[all]);
        all += receives[m];
    }
    return all - own;
}

static void hand_update(void)
{
    int m;
    for (m = 0; m < 6; m++) {
        (void)pass(m, 1, hand_x[0], sends[m], hand_x[first[m]]);
    }
}

static void hand_add(void)
{
    MPI_Status status;
    int m, k, d;
    for (m = 5; m >= 0; m--) { /* backwards, so that forces travel the whole way */
        MPI_Sendrecv(hand_f[first[m]], 3 * receives[m], MPI_DOUBLE,
                     m % 2 ? lower[m / 2] : upper[m / 2], m, in_buffer, (int)(3 * capacity),
                     MPI_DOUBLE, m % 2 ? upper[m / 2] : lower[m / 2], m, MPI_COMM_WORLD, &status);
        for (k = 0; k < sends[m]; k++) {
            for (d = 0; d < 3; d++) {
                hand_f[list[m][k]][d] += in_buffer[3 * k + d];
            }
        }
    }
}

static void fail(dpar_comm *comm, const char *what)
{
    fprintf(stderr, "bench/particles: %s: %s\n", what, comm->why.text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv)
{
    const int n = argc > 1 ? atoi(argv[1]) : 4000, turns = argc > 2 ? atoi(argv[2]) : 200;
    static double took[KINDS][2][TURNS];
    dpar_particles_desc desc = {0};
    dpar_particles_field position = {0}, force;
    dpar_particles_arrays arrays = {0};
    dpar_particles *p = NULL;
    dpar_comm *comm = NULL;
    dpar_why why;
    unsigned lot = 1;
    double sum[2] = {0.0, 0.0}, most;
    int kind, way, t, m, d, ghosts = 0, i;
    MPI_Init(&argc, &argv);
    if (n < 1 || n > 10000000 || turns < 1 || turns > TURNS) {
        fprintf(stderr, "bench/particles: %d particles (1 to 10^7), %d turns (1 to %d)\n", n, turns,
                TURNS);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (dpar_mpi_make(MPI_COMM_WORLD, NULL, &comm, &why) < 0) {
        fprintf(stderr, "bench/particles: %s\n", why.text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    desc.dims = 3;
    desc.cutoff = 0.1;
    for (d = 0; d < 3; d++) {
        desc.high[d] = 1.0;
        desc.periodic[d] = 1;
    }
    if (dpar_particles_make(comm, &desc, &p, &why) < 0) {
        fail(comm, "dpar_particles_make");
    }
    capacity = 12 * (int64_t)n + 1000;
    x = malloc(sizeof *x * (size_t)capacity);
    f = malloc(sizeof *f * (size_t)capacity);
    hand_x = malloc(sizeof *x * (size_t)capacity);
    hand_f = malloc(sizeof *f * (size_t)capacity);
    out_buffer = malloc(sizeof *x * (size_t)capacity);
    in_buffer = malloc(sizeof *x * (size_t)capacity);
    for (m = 0; m < 6; m++) {
        int coord[3] = {p->coord[0], p->coord[1], p->coord[2]}, other[2], side;
        list[m] = malloc(sizeof **list * (size_t)capacity);
        for (side = 0; side < 2; side++) {
            d = m / 2;
            coord[d] = (p->coord[d] + (side ? 1 : p->parts[d] - 1)) % p->parts[d];
            other[side] = (coord[0] * p->parts[1] + coord[1]) * p->parts[2] + coord[2];
        }
        lower[d] = other[0];
        upper[d] = other[1];
        shift[m] =
            m % 2 ? (p->coord[d] == p->parts[d] - 1 ? -1.0 : 0.0) : (p->coord[d] == 0 ? 1.0 : 0.0);
    }
    for (i = 0; i < n; i++) {
        for (d = 0; d < 3; d++) {
            lot = lot * 1664525u + 1013904223u;
            x[i][d] = hand_x[i][d] = p->low[d] + (p->high[d] - p->low[d]) * (lot >> 8) / 16777216.0;
        }
    }
    position.data = x;
    position.type = DPAR_F64;
    position.components = 3;
    position.is_position = 1;
    force = position;
    force.data = f;
    arrays.count = n;
    arrays.capacity = capacity;
    arrays.position = position;
    arrays.fields = &position;
    arrays.field_count = 1;
    for (t = 0; t < turns; t++) {
        for (kind = 0; kind < KINDS; kind++) {
            for (way = 0; way < 2; way++) {
                int failed = 0;
                double began;
                for (i = 0; i < n + ghosts && kind == ADD; i++) {
                    for (d = 0; d < 3; d++) {
                        (way ? f : hand_f)[i][d] = 1.0;
                    }
                }
                MPI_Barrier(MPI_COMM_WORLD);
                began = MPI_Wtime();
                if (way == 0 && kind == FIND) {
                    ghosts = hand_find(p, n, desc.cutoff);
                } else if (way == 0 && kind == UPDATE) {
                    hand_update();
                } else if (way == 0) {
                    hand_add();
                } else if (kind == FIND) {
                    failed = dpar_particles_ghosts(p, &arrays) < 0 || p->ghost_count != ghosts;
                } else if (kind == UPDATE) {
                    failed = dpar_particles_update(p, &position, 1) < 0;
                } else {
                    failed = dpar_particles_reduce(p, &force, 1) < 0;
                }
                took[kind][way][t] = MPI_Wtime() - began;
                if (failed) {
                    fail(comm, "another number of ghosts than by hand, or");
                }
            }
        }
    }
    for (i = 0; i < n; i++) { /* forces of 1: an owner has as many as it has ghosts, and one */
        if (f[i][0] < hand_f[i][0] || f[i][0] > hand_f[i][0]) {
            fail(comm, "another sum than by hand");
        }
    }
    for (i = n; i < n + ghosts; i++) {
        sum[0] += x[i][0] + x[i][1] + x[i][2];
        sum[1] += hand_x[i][0] + hand_x[i][1] + hand_x[i][2];
    }
    if (sum[0] - sum[1] > 1e-6 || sum[1] - sum[0] > 1e-6) {
        fail(comm, "other positions than by hand");
    }
    for (kind = 0; kind < KINDS; kind++) {
        double least[2] = {1e9, 1e9};
        for (t = 0; t < turns; t++) {
            for (way = 0; way < 2; way++) {
                MPI_Allreduce(&took[kind][way][t], &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
                least[way] = most < least[way] ? most : least[way];
            }
        }
        if (comm->rank == 0) {
            printf("%-11s %d ranks, %d particles, %d ghosts: by hand %.1f us, dpar %.1f us, %.2f\n",
                   name[kind], comm->size, n, ghosts, least[0] * 1e6, least[1] * 1e6,
                   least[1] / least[0]);
        }
    }
    if (dpar_particles_free(p) < 0 || dpar_comm_free(comm) < 0) {
        fprintf(stderr, "bench/particles: closing failed\n");
    }
    MPI_Finalize();
    return 0;
}
