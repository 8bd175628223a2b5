/* SPDX-License-Identifier: MIT-0 */
/* Four ranks on "two nodes" (DPAR_MPI_NODE=2) run collectives of all kinds by level. At the 50th
 * one rank 3 is killed, aborts, calls something else, or is late. Each of the others must get an
 * error, at once or after the timeout, whose message names rank 3 and its node (with check = 1 also
 * what it calls instead). After a death the others continue, on one node, and on several with an
 * MPI that has ULFM (Open MPI 5: mpirun --with-ft ulfm).
 *
 *   DPAR_MPI_NODE=2 mpirun --mca orte_enable_recovery 1 -np 4 gone killed|aborts|other|late
 *   mpirun --mca orte_enable_recovery 1 -np 4 gone one_node */
#include "dpar_mpi.h"
#include "check.h"
#include <signal.h>
#include <stdlib.h>

enum { AT = 50, MOST = 30000 };
static float in[MOST], out[4 * MOST];

static dpar_status go(dpar_comm *c, int kind, int64_t n)
{
    switch (kind % 5) {
    case 0: return dpar_all_reduce(c, in, out, n, DPAR_F32, DPAR_SUM, NULL);
    case 1: return dpar_broadcast(c, out, n, DPAR_F32, kind % 4, NULL);
    case 2: return dpar_all_gather(c, in, out, n, DPAR_F32, NULL);
    case 3: return dpar_reduce_scatter(c, out, in, n, DPAR_F32, DPAR_SUM, NULL);
    default: return dpar_barrier(c, NULL);
    }
}

static void heard(const dpar_comm *c, const char *what, dpar_status st, double seconds)
{
    const int late = strcmp(what, "late") == 0;
    char host[MPI_MAX_PROCESSOR_NAME + 1] = "", part[MPI_MAX_PROCESSOR_NAME + 100];
    int length;
    MPI_Get_processor_name(host, &length);
    if (strcmp(what, "killed") == 0) {
        (void)snprintf(part, sizeof part, "rank 3 on %.55s#1 has ended", host);
    } else if (late) {
        (void)snprintf(part, sizeof part, "nothing heard from ranks: 3 on %.55s#1", host);
    } else if (strcmp(what, "aborts") == 0) {
        (void)snprintf(part, sizeof part, "rank 3 on %.55s#1 says: the disk is full", host);
    } else {
        (void)snprintf(part, sizeof part, ", rank 3 on %.55s#1 calls ", host);
    }
    CHECK_INT(st, strcmp(what, "killed") == 0   ? DPAR_E_PEER
                  : strcmp(what, "aborts") == 0 ? DPAR_E_SYSTEM
                  : late                        ? DPAR_E_TIMEOUT
                                                : DPAR_E_MISMATCH);
    CHECK(seconds < (late ? 20 : 15));
#if defined(OMPI_HAVE_MPI_EXT_FTMPI)
    if (strstr(c->why.text, "MPI_ERR_PROC_FAILED") != NULL) { /* rank 1 noticed it first */
        (void)snprintf(part, sizeof part, ", rank 3 on %.55s#1 has died", host);
    }
#endif
    CHECK(strstr(c->why.text, part) != NULL);
    if (strstr(c->why.text, part) == NULL) {
        printf("   \"%s\" lacks \"%s\"\n", c->why.text, part);
    }
}

/* Shrinks after rank 3 has died: the sum of the ranks is 0 + 1 + 2. */
static void goes_on(dpar_comm *c, int can)
{
    dpar_comm *next = NULL;
    dpar_why why;
    int32_t was[4], sum = 0, r;
    const dpar_status broke = c->status, st = dpar_comm_shrink(c, &next, was, &why);
    CHECK_INT(c->status, broke);
    if (!can) {
        CHECK_INT(st, DPAR_E_SYSTEM);
        CHECK(next == NULL && strstr(why.text, "this MPI has no ULFM (MPIX_Comm_shrink)") != NULL);
        return;
    }
    CHECK_INT(st, DPAR_OK);
    if (st < 0) {
        puts(why.text);
        return;
    }
    CHECK(next->size == 3 && next->rank == c->rank);
    for (r = 0; r < 3; r++) {
        CHECK_INT(was[r], r);
    }
    CHECK_INT(dpar_all_reduce(next, &next->rank, &sum, 1, DPAR_I32, DPAR_SUM, NULL), DPAR_OK);
    CHECK_INT(sum, 3);
    for (r = 0; r < MOST; r++) {
        in[r] = (float)(r % 100 + next->rank);
    }
    CHECK_INT(dpar_all_reduce(next, in, out, MOST, DPAR_F32, DPAR_SUM, NULL), DPAR_OK);
    for (sum = 0, r = 0; r < MOST; r++) {
        sum += out[r] != (float)(3 * (r % 100) + 3);
    }
    CHECK_INT(sum, 0);
    CHECK_INT(dpar_comm_free(next), DPAR_OK);
}

static void on_one_node(void)
{
    dpar_comm *c = NULL;
    dpar_why why;
    int i;
    CHECK_INT(dpar_mpi_make(MPI_COMM_WORLD, NULL, &c, &why), DPAR_OK);
    for (i = 0; i < AT; i++) {
        CHECK_INT(go(c, i, 10), DPAR_OK);
    }
    if (c->rank == 3) {
        (void)raise(SIGKILL);
    }
    CHECK_INT(dpar_barrier(c, NULL), DPAR_E_PEER);
    goes_on(c, 1);
    (void)dpar_comm_free(c);
}

/* `first`: the kind of collective at the 50th turn. */
static void one(const char *what, int first, int64_t n)
{
    dpar_mpi_desc o;
    dpar_comm *c = NULL;
    dpar_why why;
    dpar_status st = DPAR_OK;
    double began = 0;
    int i;
    memset(&o, 0, sizeof o);
    o.check = strcmp(what, "other") == 0;
    o.timeout_s = strcmp(what, "late") == 0 ? 2.5 : 30;
    if (dpar_mpi_make(MPI_COMM_WORLD, &o, &c, &why) < 0) {
        puts(why.text);
        exit(1);
    }
    CHECK(c->node != NULL && c->node->size == 2);
    for (i = 0; i <= AT && st == DPAR_OK; i++) {
        began = MPI_Wtime();
        if (i == AT && c->rank == 3 && strcmp(what, "killed") == 0) {
            (void)raise(SIGKILL);
        } else if (i == AT && c->rank == 3 && strcmp(what, "aborts") == 0) {
            dpar_comm_abort(c, DPAR_E_SYSTEM, "the disk is full");
        } else if (i == AT && c->rank == 3 && strcmp(what, "late") == 0) {
            while (MPI_Wtime() < began + 6) {
                DPARI_MPI_YIELD();
            }
        }
        st = i == AT && c->rank == 3 && strcmp(what, "other") == 0 ? go(c, first + i + 2, n)
                                                                   : go(c, first + i, n);
    }
    if (c->rank != 3) {
        heard(c, what, st, MPI_Wtime() - began);
    }
    CHECK(c->rank != 3 || st < 0);
    if (strcmp(what, "killed") == 0) {
#if defined(OMPI_HAVE_MPI_EXT_FTMPI)
        goes_on(c, 1);
#else
        goes_on(c, 0);
#endif
    }
    (void)dpar_comm_free(c);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "aborts";
    int kind, failed;
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (strcmp(what, "one_node") == 0) {
        on_one_node();
        _exit(CHECK_DONE());
    }
    for (kind = 0; kind < (strcmp(what, "killed") == 0 || strcmp(what, "late") == 0 ? 1 : 5);
         kind++) {
        one(what, argc > 2 ? atoi(argv[2]) : kind, kind % 2 ? 10 : MOST);
        if (strcmp(what, "killed") != 0) {
            (void)MPI_Barrier(MPI_COMM_WORLD);
        }
    }
    failed = CHECK_DONE();
    (void)fflush(stdout);
    _exit(failed); /* MPI_Finalize may wait for the dead rank */
}
