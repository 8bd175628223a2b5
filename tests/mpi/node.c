/* SPDX-License-Identifier: MIT-0 */
/* Ranks that share a node's memory, as a communicator over MPI finds them: all of them, some (as if
 * nodes had two ranks), none (flat); their order, splits, memory, closing; and what describes it.
 */
#include "dpar_mpi.h"
#include "check.h"

static void describes(dpar_comm *c, const char *part)
{
    char text[600];
    dpar_text t;
    dpar_text_init(&t, text, sizeof text);
    dpar_comm_describe(c, &t);
    CHECK(strstr(text, part) != NULL);
    if (strstr(text, part) == NULL) {
        printf("\"%s\" does not say \"%s\"\n", text, part);
    }
}

static dpar_comm *made(const dpar_mpi_desc *options)
{
    dpar_comm *c = NULL;
    dpar_why why;
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    CHECK_INT(dpar_mpi_make(MPI_COMM_WORLD, options, &c, &why), DPAR_OK);
    if (c == NULL) {
        printf("%s\n", why.text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    CHECK_INT(c->rank, rank);
    return c;
}

/* The sum of ranks over c, and over its ranks of this node where it goes over MPI. */
static void adds(dpar_comm *c)
{
    const int64_t n = c->size;
    int64_t mine = c->rank, sum = -1;
    CHECK_INT(dpar_all_reduce(c, &mine, &sum, 1, DPAR_I64, DPAR_SUM, NULL), DPAR_OK);
    CHECK_INT(sum, n * (n - 1) / 2);
    if (c->node != NULL) {
        mine = 1;
        CHECK_INT(dpar_all_reduce(c->node, &mine, &sum, 1, DPAR_I64, DPAR_SUM, NULL), DPAR_OK);
        CHECK_INT(sum, c->node->size);
    }
}

/* Memory of one communicator goes back by way of another. */
static void parts(dpar_comm *world)
{
    dpar_comm *half = NULL;
    void *memory = NULL;
    CHECK_INT(dpar_comm_split(world, world->rank % 2, -world->rank, &half), DPAR_OK);
    CHECK_INT(half->size, (world->size + 1 - world->rank % 2) / 2);
    CHECK_INT(half->rank, half->size - 1 - world->rank / 2);
    adds(half);
    CHECK_INT(dpar_comm_alloc(half, 1000, &memory), DPAR_OK);
    memset(memory, 1, 1000);
    dpar_comm_release(world, memory);
    CHECK_INT(dpar_comm_free(half), DPAR_OK);
    CHECK_INT(dpar_comm_split(world, world->rank == 0 ? -1 : 0, 0, &half), DPAR_OK);
    CHECK((half == NULL) == (world->rank == 0));
    CHECK_INT(dpar_comm_free(half), DPAR_OK);
}

/* Rank r shares memory with r ^ 1. */
static void nodes_of_two(void)
{
    dpar_comm *c;
    setenv("DPAR_MPI_NODE", "2", 1);
    c = made(NULL);
    setenv("DPAR_MPI_NODE", "0", 1);
    if (c->size > 2) {
        CHECK_TEXT(c->engine.name, "mpi");
        CHECK_INT(c->node->size, c->rank / 2 * 2 + 1 < c->size ? 2 : 1);
        CHECK_INT(c->node->rank, c->rank % 2);
        describes(c, "nodes that exchange MPI messages");
    }
    adds(c);
    parts(c);
    CHECK_INT(dpar_comm_free(c), DPAR_OK);
}

/* One rank that says so is enough. */
static void flat(void)
{
    dpar_mpi_desc o;
    dpar_comm *c;
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    memset(&o, 0, sizeof o);
    o.flat = rank == size - 1;
    c = made(&o);
    CHECK_TEXT(c->engine.name, "mpi");
    CHECK(c->node == NULL);
    describes(c, "by MPI messages: flat = 1 or DPAR_MPI_FLAT is set");
    adds(c);
    CHECK_INT(dpar_comm_free(c), DPAR_OK);
}

int main(int argc, char **argv)
{
    dpar_comm *all;
    int size;
    setenv("DPAR_MPI_FLAT", "0", 1);
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    flat();
    nodes_of_two();
    all = made(NULL);
    CHECK_TEXT(all->engine.name, "shm");
    describes(all, size == 1 ? "shm: 1 rank" : " of one node; ");
    parts(all);
    MPI_Finalize(); /* it needs MPI no more */
    adds(all);
    CHECK_INT(dpar_comm_free(all), DPAR_OK);
    return CHECK_DONE();
}
