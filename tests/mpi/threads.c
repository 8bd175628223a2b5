/* SPDX-License-Identifier: MIT-0 */
/* Tests an MPI program with threads that requests only the level of MPI_Init_thread that it needs:
 *
 *   threads funneled     only the main thread calls, others compute on the same memory meanwhile
 *   threads serialized   three threads take turns on one communicator
 *   threads multiple     three threads call at the same time, each on its own communicator
 *
 * A progress thread is refused with MPI messages; the error says what it needs. */
#include "dpar_mpi.h"
#include "teams.h"

static dpar_comm *made(void)
{
    dpar_comm *c = NULL;
    dpar_why why;
    if (dpar_mpi_make(MPI_COMM_WORLD, NULL, &c, &why) < 0) {
        puts(why.text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return c;
}

static void progress(dpar_comm *c, int level)
{
    if (strcmp(c->engine.name, "mpi") != 0) { /* on one node MPI is not used for messages */
        CHECK_INT(dpar_comm_progress(c, 1), DPAR_OK);
        team_ask(c, 0, (int64_t[2 * TEAM_N]){0});
    } else {
        CHECK_INT(dpar_comm_progress(c, 1), DPAR_E_SYSTEM);
        CHECK_TEXT(c->why.text, level == MPI_THREAD_MULTIPLE
                                    ? "dpar_comm_progress: the MPI engine has no progress thread: "
                                      "call dpar_test now and then, or enable MPI's own progress "
                                      "thread"
                                    : "dpar_comm_progress: no progress thread is possible: MPI "
                                      "was initialised without MPI_THREAD_MULTIPLE");
        CHECK_INT(c->status, DPAR_OK);
    }
    CHECK_INT(dpar_comm_progress(c, 0), DPAR_OK);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "funneled";
    const int funneled = strcmp(how, "funneled") == 0, multiple = strcmp(how, "multiple") == 0;
    const int level = funneled   ? MPI_THREAD_FUNNELED
                      : multiple ? MPI_THREAD_MULTIPLE
                                 : MPI_THREAD_SERIALIZED;
    dpar_comm *c[TEAM];
    static team t;
    int given, i;
    MPI_Init_thread(&argc, &argv, level, &given);
    if (given < level) {
        printf("skipped: threads %s: this MPI gives no such level of threads\n", how);
        return MPI_Finalize();
    }
    for (i = 0; i < TEAM; i++) {
        c[i] = i == 0 || multiple ? made() : NULL;
    }
    progress(c[0], given);
    team_open(&t, c[0], 60);
    t.comm[1] = c[1];
    t.comm[2] = c[2];
    team_run(&t, funneled ? team_funneled : multiple ? team_multiple : team_serialized);
    team_close(&t);
    for (i = 0; i < TEAM; i++) {
        CHECK_INT(dpar_comm_free(c[i]), DPAR_OK);
    }
    MPI_Finalize();
    return CHECK_DONE();
}
