/* SPDX-License-Identifier: MIT-0 */
/* Tests ranks with threads: one thread calls while the others compute on the same memory; threads
 * take turns on one communicator; each thread has its own world and calls at any time. Also runs
 * with a progress thread. */
#include "rank_program.h"
#include "teams.h"

static int each(dpar_comm *c, void *arg)
{
    team t;
    const int before = failures();
    (void)arg;
    team_open(&t, c, 40);
    team_run(&t, team_funneled);
    team_run(&t, team_serialized);
    CHECK_INT(dpar_comm_progress(c, 1), DPAR_OK);
    team_run(&t, team_serialized);
    CHECK_INT(dpar_comm_progress(c, 0), DPAR_OK);
    team_close(&t);
    return failures() - before;
}

static int asks(dpar_comm *c, void *arg)
{
    int64_t *room = (int64_t *)zeroed((int64_t)(TEAM_RANKS + 1) * TEAM_N * 8), k;
    for (k = 0; k < *(const int64_t *)arg; k++) {
        team_ask(c, k, room);
    }
    free(room);
    return 0;
}

static void launches(team *t, int me)
{
    dpar_world_desc o;
    (void)me;
    memset(&o, 0, sizeof o);
    o.timeout_s = 60;
    o.threads = 1;
    CHECK_INT(dpar_launch(2, asks, &t->rounds, &o, NULL), DPAR_OK);
}

/* Starts worlds from several threads at once, besides ranks that are threads. */
static void worlds(int n, const dpar_world_desc *o)
{
    team t;
    memset(&t, 0, sizeof t);
    t.rounds = 40;
    if (o->threads && n == 2) {
        team_run(&t, launches);
    }
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 3, 2, worlds);
}
