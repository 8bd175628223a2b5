/* SPDX-License-Identifier: MIT-0 */
/* Tests operations in progress on "two nodes" of two ranks (DPAR_MPI_NODE=2): they must progress
 * while a rank blocks in another call, on another communicator, or while it frees one. Freeing
 * waits for ranks that still receive messages. No call here may run into its timeout. */
#include "dpar_mpi.h"
#include "check.h"
#include <dirent.h>
#include <stdlib.h>

enum { MANY = 1 << 17 };
static double in[MANY], out[MANY];
static float few[8], sums[8];

static dpar_comm *made(double timeout_s, int blocking)
{
    dpar_mpi_desc o;
    dpar_comm *c = NULL;
    dpar_why why;
    memset(&o, 0, sizeof o);
    o.timeout_s = timeout_s;
    o.blocking = blocking;
    if (dpar_mpi_make(MPI_COMM_WORLD, &o, &c, &why) < 0) {
        puts(why.text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return c;
}

/* Rank 0 frees once its message is sent; rank 1 receives it 6 s later. */
static void close_before_receive(void)
{
    dpar_comm *c = made(60, 0);
    int32_t x = 7;
    if (c->rank == 0) {
        CHECK_INT(dpar_send(c, &x, 1, DPAR_I32, 1, 3, NULL), DPAR_OK);
    } else if (c->rank == 1) {
        const double until = MPI_Wtime() + 6;
        while (MPI_Wtime() < until) {
            DPARI_MPI_YIELD();
        }
        x = 0;
        CHECK_INT(dpar_recv(c, &x, 1, DPAR_I32, 0, 3, NULL), DPAR_OK);
        CHECK_INT(x, 7);
    }
    CHECK_INT(dpar_comm_free(c), DPAR_OK);
}

/* With options.blocking: posts a receive, then all ranks block in a collective. */
static void receive_beside_blocking(void)
{
    dpar_comm *c = made(-1, 1);
    dpar_work work;
    memset(&work, 0, sizeof work);
    if (c->rank == 0) {
        CHECK_INT(dpar_recv(c, out, MANY, DPAR_F64, 1, 3, &work), DPAR_OK);
    } else if (c->rank == 1) {
        CHECK_INT(dpar_send(c, in, MANY, DPAR_F64, 0, 3, NULL), DPAR_OK);
    }
    CHECK_INT(dpar_reduce(c, few, sums, 8, DPAR_F32, DPAR_SUM, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_wait(&work), DPAR_OK);
    CHECK_INT(dpar_comm_free(c), DPAR_OK);
}

/* The same with a posted collective: rank 0 blocks in the next one, the others wait first. */
static void posted_beside_blocking(void)
{
    dpar_comm *c = made(-1, 1);
    dpar_work work;
    memset(&work, 0, sizeof work);
    CHECK_INT(dpar_all_reduce(c, in, out, MANY, DPAR_F64, DPAR_SUM, &work), DPAR_OK);
    CHECK(c->rank == 0 || dpar_wait(&work) == DPAR_OK);
    CHECK_INT(dpar_reduce(c, few, sums, 8, DPAR_F32, DPAR_SUM, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_wait(&work), DPAR_OK);
    CHECK_INT(dpar_comm_free(c), DPAR_OK);
}

/* The same with two communicators: rank 0 posts on b before it blocks on a, the others after. */
static void two_communicators(void)
{
    dpar_comm *c = made(-1, 1), *a = NULL, *b = NULL;
    dpar_work work;
    memset(&work, 0, sizeof work);
    CHECK_INT(dpar_comm_split(c, 0, 0, &a), DPAR_OK);
    CHECK_INT(dpar_comm_split(c, 0, 0, &b), DPAR_OK);
    CHECK(c->rank == 0 || dpar_barrier(a, NULL) == DPAR_OK);
    CHECK_INT(dpar_all_reduce(b, in, out, 1000, DPAR_F64, DPAR_SUM, &work), DPAR_OK);
    CHECK(c->rank != 0 || dpar_barrier(a, NULL) == DPAR_OK);
    CHECK_INT(dpar_wait(&work), DPAR_OK);
    CHECK_INT(dpar_comm_free(a), DPAR_OK);
    CHECK_INT(dpar_comm_free(b), DPAR_OK);
    CHECK_INT(dpar_comm_free(c), DPAR_OK);
}

/* All ranks post on b. Rank 0 frees a and then waits; the others do so in the opposite order. */
static void close_beside_posted(void)
{
    dpar_comm *c = made(60, 0), *a = NULL, *b = NULL;
    dpar_work work;
    const double began = MPI_Wtime();
    memset(&work, 0, sizeof work);
    CHECK_INT(dpar_comm_split(c, 0, 0, &a), DPAR_OK);
    CHECK_INT(dpar_comm_split(c, 0, 0, &b), DPAR_OK);
    CHECK_INT(dpar_all_reduce(b, in, out, MANY, DPAR_F64, DPAR_SUM, &work), DPAR_OK);
    CHECK(c->rank != 0 || dpar_comm_free(a) == DPAR_OK);
    CHECK_INT(dpar_wait(&work), DPAR_OK);
    CHECK(c->rank == 0 || dpar_comm_free(a) == DPAR_OK);
    CHECK_INT(dpar_comm_free(b), DPAR_OK);
    CHECK_INT(dpar_comm_free(c), DPAR_OK);
    CHECK(MPI_Wtime() - began < 30);
}

static int open_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (d != NULL && readdir(d) != NULL) {
        n++;
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return n;
}

/* Frees only the world, which frees what was split from it: no shared memory of the node is
 * left. */
static void close_the_world_alone(void)
{
    int first = 0, turn;
    for (turn = 0; turn < 3; turn++) {
        dpar_comm *c = made(60, 0), *a = NULL, *b = NULL;
        CHECK_INT(dpar_comm_split(c, 0, 0, &a), DPAR_OK);
        CHECK_INT(dpar_comm_split(c, c->rank % 2, 0, &b), DPAR_OK);
        CHECK_INT(dpar_all_reduce(a, in, out, 1000, DPAR_F64, DPAR_SUM, NULL), DPAR_OK);
        CHECK_INT(dpar_barrier(b, NULL), DPAR_OK);
        CHECK_INT(dpar_comm_free(c), DPAR_OK);
        (void)MPI_Barrier(MPI_COMM_WORLD);
        first = turn == 0 ? open_files() : first;
    }
    CHECK_INT(open_files(), first);
}

/* The same for a broken world: ranks that wait in a communicator split from it get the error. */
static void close_a_broken_world_alone(void)
{
    dpar_comm *c = made(60, 0), *a = NULL;
    const double began = MPI_Wtime();
    CHECK_INT(dpar_comm_split(c, 0, 0, &a), DPAR_OK);
    if (c->rank == 3) {
        dpar_comm_abort(c, DPAR_E_SYSTEM, "the disk is full");
    } else {
        CHECK_INT(dpar_barrier(a, NULL), DPAR_E_SYSTEM);
        CHECK(strstr(a->why.text, "the disk is full") != NULL);
    }
    (void)dpar_comm_free(c);
    CHECK(MPI_Wtime() - began < 30);
}

int main(int argc, char **argv)
{
    int failed;
    MPI_Init(&argc, &argv);
    close_beside_posted();
    two_communicators();
    posted_beside_blocking();
    receive_beside_blocking();
    close_before_receive();
    close_the_world_alone();
    close_a_broken_world_alone();
    failed = CHECK_DONE();
    MPI_Finalize();
    return failed;
}
