/* SPDX-License-Identifier: MIT-0 */
/* Tests dpar_mpi_grid_make: a grid on an MPI process grid. Each rank's block is where
 * MPI_Cart_coords puts it, with dims in either order, and halos come from the ranks that
 * MPI_Cart_shift returns. Also tests what is refused on all ranks, and a grid that is freed after
 * its world. */
#include "dpar_halo.h"
/* dpar_mpi.h declares dpar_mpi_grid_make only after dpar_halo.h */
#include "dpar_mpi.h"
#include "check.h"
#include <stdlib.h>

enum { N0 = 13, N1 = 17 }; /* cells of the communicator's dims */

static void says(const char *text, const char *want)
{
    CHECK(strstr(text, want) != NULL);
    if (strstr(text, want) == NULL) {
        printf("    \"%s\" does not say \"%s\"\n", text, want);
    }
}

static int64_t share(int64_t n, int parts, int part, int64_t *first)
{
    *first = part * (n / parts) + (part < n % parts ? part : n % parts);
    return n / parts + (part < n % parts);
}

/* Compares blocks and halos. turned: the grid's dims are those of cart from the last to the first,
 * as in Fortran. */
static void blocks(MPI_Comm cart, int turned, const int *periods)
{
    const int64_t n[2] = {N0, N1};
    int parts[2], period[2], at[2], d;
    int64_t first[2], own[2], i[2], mistakes = 0;
    dpar_grid_desc desc;
    dpar_grid *g = NULL;
    dpar_why why;
    double *u;
    MPI_Cart_get(cart, 2, parts, period, at);
    memset(&desc, 0, sizeof desc);
    desc.halo = 1;
    desc.type = DPAR_F64;
    desc.order = turned ? DPAR_ORDER_FIRST_FASTEST : DPAR_ORDER_LAST_FASTEST;
    for (d = 0; d < 2; d++) {
        desc.cells[turned ? 1 - d : d] = n[d];
        own[d] = share(n[d], parts[d], at[d], &first[d]);
    }
    CHECK_INT(dpar_mpi_grid_make(cart, NULL, &desc, &g, &why), DPAR_OK);
    if (!g) {
        puts(why.text);
        return;
    }
    for (d = 0; d < 2; d++) {
        const int e = turned ? 1 - d : d;
        CHECK_INT(g->parts[e], parts[d]);
        CHECK_INT(g->coord[e], at[d]);
        CHECK_INT(g->first[e], first[d]);
        CHECK_INT(g->count[e], own[d]);
    }
    u = (double *)calloc((size_t)((own[0] + 2) * (own[1] + 2)), sizeof *u);
    for (i[0] = 0; i[0] < own[0]; i[0]++) {
        for (i[1] = 0; i[1] < own[1]; i[1]++) {
            u[turned ? (i[1] + 1) * (own[0] + 2) + i[0] + 1
                     : (i[0] + 1) * (own[1] + 2) + i[1] + 1] =
                (double)(1 + (first[0] + i[0]) * N1 + first[1] + i[1]);
        }
    }
    CHECK_INT(dpar_grid_exchange(g, u + (turned ? own[0] + 3 : own[1] + 3)), DPAR_OK);
    for (i[0] = -1; i[0] <= own[0]; i[0]++) {
        for (i[1] = -1; i[1] <= own[1]; i[1]++) {
            double want = 1;
            for (d = 0; d < 2; d++) {
                const int64_t x = first[d] + i[d], y = (x + n[d]) % n[d];
                want = (x == y || periods[d]) && want > 0 ? want + (double)(d ? y : y * N1) : 0;
            }
            mistakes += u[turned ? (i[1] + 1) * (own[0] + 2) + i[0] + 1
                                 : (i[0] + 1) * (own[1] + 2) + i[1] + 1] != want;
        }
    }
    CHECK_INT(mistakes, 0);
    free(u);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
}

static void refused(MPI_Comm comm, const dpar_grid_desc *desc, const char *want)
{
    dpar_grid *g = NULL;
    dpar_why why;
    why.text[0] = 0;
    CHECK_INT(dpar_mpi_grid_make(comm, NULL, desc, &g, &why), DPAR_E_ARG);
    CHECK(g == NULL);
    says(why.text, want);
}

/* Passes the caller's sizes, first right and then wrong on the last rank: all ranks get the
 * error. */
static void own_sizes(MPI_Comm cart, const int *parts, int rank, int size)
{
    const int64_t cells[2] = {23, 19};
    dpar_grid_desc d;
    dpar_grid *g = NULL;
    dpar_why why;
    int coord[2], k;
    char words[80];
    memset(&d, 0, sizeof d);
    MPI_Cart_coords(cart, rank, 2, coord);
    for (k = 0; k < 2; k++) {
        d.cells[k] = cells[k];
        d.expected_count[k] = cells[k] / parts[k] + (coord[k] < cells[k] % parts[k]);
    }
    d.halo = 1;
    CHECK_INT(dpar_mpi_grid_make(cart, NULL, &d, &g, &why), DPAR_OK);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
    d.dims = 2; /* without a process grid the counts say how many parts there are */
    CHECK_INT(dpar_mpi_grid_make(MPI_COMM_WORLD, NULL, &d, &g, &why), DPAR_OK);
    for (k = 0; k < 2; k++) {
        CHECK_INT(g->parts[k], parts[k]);
        CHECK_INT(g->count[k], d.expected_count[k]);
    }
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
    d.expected_count[1] += rank == size - 1;
    CHECK_INT(dpar_mpi_grid_make(cart, NULL, &d, &g, &why), DPAR_E_ARG);
    (void)snprintf(words, sizeof words, "rank %d has %d cells in dim 1, but expected_count is %d",
                   size - 1, 19 / parts[1], 19 / parts[1] + 1);
    CHECK(strstr(why.text, words) != NULL);
}

static void refusals(MPI_Comm cart, const int *parts, int rank, int size)
{
    dpar_grid_desc good, d;
    dpar_grid *g = NULL;
    dpar_why why;
    memset(&good, 0, sizeof good);
    good.cells[0] = N0, good.cells[1] = N1;
    good.halo = 1;
    refused(MPI_COMM_NULL, &good, "MPI_COMM_NULL");
    refused(cart, NULL, "NULL");
    CHECK_INT(dpar_mpi_grid_make(cart, NULL, &good, NULL, &why), DPAR_E_ARG);
    d = good, d.dims = 3;
    refused(cart, &d, "process grid has 2 dims, but must have at most 6, and desc.dims is 3");
    d = good, d.parts[1] = parts[1] + 1;
    refused(cart, &d, "desc.parts[1] is ");
    d = good, d.parts[0] = rank == size - 1 ? parts[0] + 1 : parts[0]; /* only on one rank */
    refused(cart, &d, "desc.parts[0] is ");
    d = good, d.halo = -1; /* an error of dpar_grid_make */
    refused(cart, &d, "the halo is -1 wide below");
    d = good, d.dims = 2;
    refused(MPI_COMM_WORLD, &d, "has no process grid");
    d.parts[0] = size, d.parts[1] = 1; /* without a process grid the parts must be passed */
    CHECK_INT(dpar_mpi_grid_make(MPI_COMM_WORLD, NULL, &d, &g, &why),
              size <= N0 ? DPAR_OK : DPAR_E_NONE);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
}

/* Frees the world before the grid: the grid's memory is then released by dpar_grid_free. */
static void closed_first(MPI_Comm cart)
{
    dpar_grid_desc d;
    dpar_grid *g = NULL, *made = NULL;
    dpar_comm *world;
    double *u;
    memset(&d, 0, sizeof d);
    d.dims = 2, d.halo = 1;
    d.cells[0] = N0, d.cells[1] = N1;
    CHECK_INT(dpar_mpi_make(cart, NULL, &world, NULL), DPAR_OK);
    CHECK_INT(dpar_grid_make(world, &d, &g, NULL), DPAR_OK);
    u = (double *)dpar_grid_array(g, DPAR_F64, NULL);
    CHECK_INT(dpar_grid_exchange(g, u), DPAR_OK);
    CHECK_INT(dpar_comm_free(world), DPAR_OK);
    CHECK(g->comm == NULL);
    CHECK_INT(dpar_grid_exchange(g, u), DPAR_E_ARG);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
    CHECK_INT(dpar_mpi_grid_make(cart, NULL, &d, &made, NULL), DPAR_OK);
    CHECK_INT(dpar_comm_free(made->comm), DPAR_OK); /* the world that dpar_mpi_grid_make made */
    CHECK(made->comm == NULL);
    CHECK_INT(dpar_grid_free(made), DPAR_OK);
}

/* Checks the timeout: that of the environment unless the options set one, equal on all ranks. */
static void deadlines(MPI_Comm cart, int rank, int size)
{
    dpar_grid_desc d;
    dpar_mpi_desc o;
    dpar_grid *g = NULL;
    dpar_comm *c = NULL;
    dpar_why why;
    memset(&d, 0, sizeof d);
    memset(&o, 0, sizeof o);
    d.halo = 1, d.cells[0] = N0, d.cells[1] = N1;
    CHECK_INT(dpar_mpi_make(cart, NULL, &c, &why), DPAR_OK);
    CHECK(c->timeout_s == 300.0);
    CHECK_INT(dpar_comm_free(c), DPAR_OK);
    setenv("DPAR_TIMEOUT", "12.5", 1);
    CHECK_INT(dpar_mpi_grid_make(cart, NULL, &d, &g, &why), DPAR_OK);
    CHECK(g->comm->timeout_s == 12.5);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
    o.timeout_s = 7;
    CHECK_INT(dpar_mpi_make(cart, &o, &c, &why), DPAR_OK);
    CHECK(c->timeout_s == 7.0);
    CHECK_INT(dpar_comm_free(c), DPAR_OK);
    if (rank == size - 1) {
        setenv("DPAR_TIMEOUT", "soon", 1);
    }
    CHECK_INT(dpar_mpi_make(cart, NULL, &c, &why), DPAR_E_ARG);
    says(why.text, rank == size - 1 ? "DPAR_TIMEOUT is \"soon\", which is not a number of seconds"
                                    : "DPAR_TIMEOUT of another rank is not a number of seconds");
    if (size > 1) {
        setenv("DPAR_TIMEOUT", rank == 0 ? "20" : "30", 1);
        CHECK_INT(dpar_mpi_grid_make(cart, NULL, &d, &g, &why), DPAR_E_MISMATCH);
        says(why.text,
             "ranks have different deadlines (timeout_s or DPAR_TIMEOUT), from 20 to 30 s");
    }
    unsetenv("DPAR_TIMEOUT");
}

int main(int argc, char **argv)
{
    dpar_grid_desc late;
    dpar_grid *g = NULL;
    dpar_why why, freed;
    dpar_status st;
    double u[200] = {0};
    int rank, size, parts[2] = {0, 0}, failed, k;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Dims_create(size, 2, parts);
    for (k = 0; k < 4; k++) {
        const int periods[2] = {k % 2, k / 2};
        MPI_Comm cart;
        MPI_Cart_create(MPI_COMM_WORLD, 2, parts, periods, 0, &cart);
        blocks(cart, k == 1 || k == 2, periods);
        if (k == 0) {
            blocks(cart, 1, periods);
            refusals(cart, parts, rank, size);
            own_sizes(cart, parts, rank, size);
            closed_first(cart);
            deadlines(cart, rank, size);
        }
        if (k == 3) { /* freed too late: an error with MPI messages, allowed in shared memory */
            memset(&late, 0, sizeof late);
            memset(&freed, 0, sizeof freed);
            late.halo = 1, late.cells[0] = late.cells[1] = 8, late.free_why = &freed;
            late.type = DPAR_F64;
            CHECK_INT(dpar_mpi_grid_make(cart, NULL, &late, &g, &why), DPAR_OK);
            CHECK_INT(dpar_grid_exchange(g, u + 40), DPAR_OK);
        }
        MPI_Comm_free(&cart);
    }
    MPI_Finalize();
    st = dpar_grid_free(g);
    CHECK(st == DPAR_OK || st == DPAR_E_ARG);
    if (st != DPAR_OK) {
        says(freed.text, "MPI is finalised already");
    }
    failed = CHECK_DONE();
    return failed;
}
