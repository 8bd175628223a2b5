/* SPDX-License-Identifier: MIT-0 */
/* A code that has MPI: the three lines, what is refused, groups, memory, the report. Also compiled
 * as C++. */
#include "dpar_mpi.h"
#include "check.h"

static void three_lines(void)
{
    double mine[2], sum[2];
    dpar_comm *world = NULL;
    dpar_why why;
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    mine[0] = rank;
    mine[1] = 1;
    CHECK_INT(dpar_mpi_make(MPI_COMM_WORLD, NULL, &world, &why), DPAR_OK);
    CHECK_INT(dpar_all_reduce(world, mine, sum, 2, DPAR_F64, DPAR_SUM, NULL), DPAR_OK);
    CHECK_INT(dpar_comm_free(world), DPAR_OK);
    CHECK_INT(sum[0], size * (size - 1) / 2);
    CHECK_INT(sum[1], size);
}

static void refused(dpar_comm *c)
{
    dpar_mpi_desc options;
    dpar_comm *other = NULL;
    dpar_why why;
    MPI_Comm half, joined;
    CHECK_INT(dpar_mpi_make(MPI_COMM_NULL, NULL, &other, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "the communicator is MPI_COMM_NULL");
    memset(&options, 0, sizeof options);
    options.blocking = 1; /* with the default deadline */
    CHECK_INT(dpar_mpi_make(MPI_COMM_WORLD, &options, &other, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "blocking = 1") != NULL);
    options.blocking = 0;
    options.check = c->rank == 0;
    if (c->size > 1) {
        CHECK_INT(dpar_mpi_make(MPI_COMM_WORLD, &options, &other, &why), DPAR_E_MISMATCH);
        MPI_Comm_split(MPI_COMM_WORLD, c->rank == 0, 0, &half);
        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, c->rank == 0 ? 1 : 0, 4, &joined);
        CHECK_INT(dpar_mpi_make(joined, NULL, &other, &why), DPAR_E_ARG);
        CHECK(strstr(why.text, "inter-communicator") != NULL);
        MPI_Comm_free(&joined);
        MPI_Comm_free(&half);
    }
    CHECK(other == NULL);
    CHECK_INT(dpar_comm_progress(c, 1), DPAR_E_SYSTEM);
    CHECK(strstr(c->why.text, "progress thread") != NULL);
    CHECK_INT(dpar_comm_progress(c, 0), DPAR_OK);
    CHECK_INT(c->status, DPAR_OK);
}

static void alone(void)
{
    dpar_comm *c = NULL;
    int32_t x[3] = {1, -2, 3}, y[3] = {0, 0, 0};
    CHECK_INT(dpar_mpi_make(MPI_COMM_SELF, NULL, &c, NULL), DPAR_OK);
    CHECK_INT(c->size, 1);
    CHECK_INT(dpar_reduce_scatter(c, x, y, 3, DPAR_I32, DPAR_AVG, NULL), DPAR_OK);
    CHECK(y[0] == 1 && y[1] == -2 && y[2] == 3);
    CHECK_INT(dpar_comm_free(c), DPAR_OK);
}

/* A 2 x n/2 mesh: rows and columns; a second communicator over the same ranks. */
static void groups(dpar_comm *c)
{
    dpar_comm *row = NULL, *twin = NULL;
    dpar_work work[2];
    int32_t a = 1, b = 10, sum_a = 0, sum_b = 0;
    memset(work, 0, sizeof work);
    CHECK_INT(dpar_comm_split(c, 0, 0, &twin), DPAR_OK);
    CHECK(twin->rank == c->rank && twin->size == c->size && twin->timeout_s == c->timeout_s);
    /* posted on two communicators in different orders on even and odd ranks */
    if (c->rank % 2 == 0) {
        dpar_all_reduce(c, &a, &sum_a, 1, DPAR_I32, DPAR_SUM, &work[0]);
        dpar_all_reduce(twin, &b, &sum_b, 1, DPAR_I32, DPAR_SUM, &work[1]);
    } else {
        dpar_all_reduce(twin, &b, &sum_b, 1, DPAR_I32, DPAR_SUM, &work[1]);
        dpar_all_reduce(c, &a, &sum_a, 1, DPAR_I32, DPAR_SUM, &work[0]);
    }
    CHECK_INT(dpar_wait_all(work, 2), DPAR_OK);
    CHECK_INT(sum_a, c->size);
    CHECK_INT(sum_b, 10 * c->size);
    CHECK_INT(dpar_comm_split(c, c->rank / 2, 0, &row), DPAR_OK);
    CHECK_INT(row->rank, c->rank % 2);
    a = c->rank;
    CHECK_INT(dpar_all_reduce(row, &a, &sum_a, 1, DPAR_I32, DPAR_MAX, NULL), DPAR_OK);
    CHECK_INT(sum_a, c->rank / 2 * 2 + row->size - 1);
    CHECK_INT(dpar_comm_free(row), DPAR_OK);
    CHECK_INT(dpar_comm_free(twin), DPAR_OK);
}

/* Work that nobody waits for is lost, and said to be. */
static void lost_work(void)
{
    dpar_comm *c = NULL;
    dpar_work work;
    static int32_t x;
    char text[2000];
    dpar_text t;
    memset(&work, 0, sizeof work);
    CHECK_INT(dpar_mpi_make(MPI_COMM_WORLD, NULL, &c, NULL), DPAR_OK);
    CHECK_INT(dpar_broadcast(c, &x, 1, DPAR_I32, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_recv(c, &x, 1, DPAR_I32, c->rank, 1, &work), DPAR_OK);
    dpar_text_init(&t, text, sizeof text);
    dpar_comm_report(c, &t);
    CHECK(strstr(text, "broadcast #0 of 1 i32 root 0: done\n") != NULL);
    CHECK(strstr(text, "recv of 1 i32 from ") != NULL);
    CHECK(strstr(text, ": in progress\n") != NULL);
    CHECK_INT(dpar_comm_free(c), DPAR_E_ARG);
    CHECK_INT(dpar_wait(&work), DPAR_E_ARG);
}

int main(int argc, char **argv)
{
    dpar_comm *c = NULL;
    dpar_why why;
    void *memory = NULL;
    CHECK_INT(dpar_mpi_make(MPI_COMM_WORLD, NULL, &c, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "MPI is not initialised: call MPI_Init first");
    MPI_Init(&argc, &argv);
    three_lines();
    CHECK_INT(dpar_mpi_make(MPI_COMM_WORLD, NULL, &c, &why), DPAR_OK);
    CHECK_TEXT(c->engine.name, "mpi");
    refused(c);
    alone();
    groups(c);
    lost_work();
    CHECK_INT(dpar_comm_alloc(c, 100, &memory), DPAR_OK);
    CHECK_INT((uintptr_t)memory % 4096, 0);
    dpar_comm_release(c, memory);
    CHECK_INT(dpar_comm_alloc(c, INT64_MAX, &memory), DPAR_E_MEMORY);
    CHECK_INT(dpar_comm_free(c), DPAR_OK);
    MPI_Finalize();
    CHECK_INT(dpar_mpi_make(MPI_COMM_WORLD, NULL, &c, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "MPI is finalised already");
    return CHECK_DONE();
}
