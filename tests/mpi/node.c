/* SPDX-License-Identifier: MIT-0 */
/* The ranks of a node beside those of MPI: the same order, shared memory, one answer for all when
 * one rank's options are wrong; closed after MPI is finalised. */
#include "dpar_mpi.h"
#include "../check.h"

static void joined(void)
{
    dpar_comm *world = NULL, *node = NULL;
    MPI_Comm same;
    dpar_why why;
    int64_t mine, sum = 0;
    int rank, size;
    int32_t place = -1;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &same);
    MPI_Comm_rank(same, &rank);
    MPI_Comm_size(same, &size);
    MPI_Comm_free(&same);
    CHECK_INT(dpar_mpi_make(MPI_COMM_WORLD, NULL, &world, &why), DPAR_OK);
    CHECK_INT(dpar_mpi_make_node(MPI_COMM_WORLD, NULL, &node, &why), DPAR_OK);
    if (node == NULL) {
        printf("%s\n", why.text);
        return;
    }
    CHECK_INT(node->rank, rank);
    CHECK_INT(node->size, size);
    CHECK_TEXT(node->engine.name, "shm");
    mine = world->rank + 1;
    CHECK_INT(dpar_all_reduce(node, &mine, &sum, 1, DPAR_I64, DPAR_SUM, NULL), DPAR_OK);
    CHECK_INT(dpar_all_reduce(world, &mine, &mine, 1, DPAR_I64, DPAR_SUM, NULL), DPAR_OK);
    CHECK(size < world->size || sum == mine);
    place = node->rank;
    CHECK_INT(dpar_broadcast(node, &place, 1, DPAR_I32, node->size - 1, NULL), DPAR_OK);
    CHECK_INT(place, node->size - 1);
    CHECK_INT(dpar_comm_close(node), DPAR_OK);
    CHECK_INT(dpar_comm_close(world), DPAR_OK);
}

static void parts(void)
{
    dpar_comm *node = NULL, *second = NULL;
    MPI_Comm half;
    int rank;
    int64_t n = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    CHECK_INT(dpar_mpi_make_node(half, NULL, &node, NULL), DPAR_OK);
    CHECK_INT(dpar_mpi_make_node(half, NULL, &second, NULL), DPAR_OK);
    MPI_Comm_rank(half, &rank);
    CHECK_INT(node->rank, rank); /* key -rank: the order of `half` */
    CHECK_INT(dpar_all_reduce(second, &n, &n, 1, DPAR_I64, DPAR_SUM, NULL), DPAR_OK);
    CHECK_INT(n, node->size);
    CHECK_INT(dpar_comm_close(node), DPAR_OK);
    CHECK_INT(dpar_barrier(second, NULL), DPAR_OK);
    CHECK_INT(dpar_comm_close(second), DPAR_OK);
    MPI_Comm_free(&half);
}

static void refused(void)
{
    dpar_options options;
    dpar_comm *node = NULL;
    dpar_why why;
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK_INT(dpar_mpi_make_node(MPI_COMM_NULL, NULL, &node, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "the communicator is MPI_COMM_NULL");
    CHECK_INT(dpar_mpi_make_node(MPI_COMM_SELF, NULL, NULL, &why), DPAR_E_ARG);
    memset(&options, 0, sizeof options);
    options.slot_bytes = rank == 0 ? 5000 : 0; /* rank 0 makes the memory */
    CHECK_INT(dpar_mpi_make_node(MPI_COMM_WORLD, &options, &node, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "slot_bytes") != NULL);
    options.slot_bytes = 0;
    options.grace_s = rank == size - 1 ? -1 : 0;
    CHECK_INT(dpar_mpi_make_node(MPI_COMM_WORLD, &options, &node, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "grace_s") != NULL);
    CHECK(node == NULL);
}

int main(int argc, char **argv)
{
    dpar_comm *last = NULL;
    MPI_Init(&argc, &argv);
    refused();
    joined();
    parts();
    CHECK_INT(dpar_mpi_make_node(MPI_COMM_WORLD, NULL, &last, NULL), DPAR_OK);
    MPI_Finalize();
    CHECK_INT(dpar_barrier(last, NULL), DPAR_OK);
    CHECK_INT(dpar_comm_close(last), DPAR_OK);
    return CHECK_DONE();
}
