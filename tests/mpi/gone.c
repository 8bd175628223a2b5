/* SPDX-License-Identifier: MIT-0 */
/* Four ranks on "two nodes" (DPAR_MPI_NODE=2), collectives of all kinds that go by level; at the
 * 50th rank 3 is killed, aborts, calls something else, or comes too late. Each of the others hears
 * of it, at once or at the deadline, with a sentence that names it (what it calls instead: with
 * check = 1).
 *
 *   DPAR_MPI_NODE=2 mpirun --mca orte_enable_recovery 1 -np 4 gone killed|aborts|other|late */
#include "dpar_mpi.h"
#include "../check.h"
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
    const char *part = strcmp(what, "killed") == 0   ? "rank 1 has ended" /* of ranks 2, 3 */
                       : strcmp(what, "aborts") == 0 ? "rank 3 says: the disk is full"
                       : late                        ? "not heard of ranks: 3"
                                                     : " calls ";
    CHECK_INT(st, strcmp(what, "killed") == 0   ? DPAR_E_PEER
                  : strcmp(what, "aborts") == 0 ? DPAR_E_SYSTEM
                  : late                        ? DPAR_E_TIMEOUT
                                                : DPAR_E_MISMATCH);
    CHECK(seconds < (late ? 20 : 15));
    CHECK(strstr(c->why.text, part) != NULL);
    if (strstr(c->why.text, part) == NULL) {
        printf("   \"%s\" lacks \"%s\"\n", c->why.text, part);
    }
}

/* `first`: which kind comes at the fatal turn. */
static void one(const char *what, int first, int64_t n)
{
    dpar_mpi_options o;
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
    (void)dpar_comm_close(c);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "aborts";
    int kind, failed;
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (kind = 0; kind < (strcmp(what, "killed") == 0 || strcmp(what, "late") == 0 ? 1 : 5);
         kind++) {
        one(what, argc > 2 ? atoi(argv[2]) : kind, kind % 2 ? 10 : MOST);
        if (strcmp(what, "killed") != 0) {
            (void)MPI_Barrier(MPI_COMM_WORLD);
        }
    }
    failed = CHECK_DONE();
    (void)fflush(stdout);
    _exit(failed); /* with a rank gone MPI_Finalize may wait for it */
}
