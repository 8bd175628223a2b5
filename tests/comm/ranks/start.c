/* SPDX-License-Identifier: MIT-0 */
/* start: a program with the single call in main or, with -DBEGIN, with the two calls
 * dpar_init_or_launch and dpar_finalize. start.sh runs both in all ways and checks what they print.
 *   start [--ranks N] [HOW]
 * HOW says what happens after a first sum: all (all ranks are refused the same call), one (only
 * rank 1 fails), quiet (all print before and after dpar_quiet, then rank 1 fails), die (rank 1 is
 * killed), five (rank 1 returns 5), leave (rank 1 exits), post (rank 1 leaves a work in progress),
 * no (an error before there is a communicator), shrink (rank 1 is killed, the others shrink and
 * fail again). Only with BEGIN: args (rank 0 prints the remaining arguments), child (rank 1 starts
 * this program without arguments), hang (rank 1 waits for ever after the others have ended), before
 * (ends as rank 1 before dpar_init_or_launch). */
#include "dpar_comm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const dpar_why refused = {"tp=12 does not divide 32 attention heads", 0};

static int alone(dpar_comm *c, const char *how)
{
    static dpar_work work;
    if (strcmp(how, "one") == 0 || strcmp(how, "quiet") == 0) {
        return dpar_fail(c, &refused);
    }
    if (strcmp(how, "require") == 0) {
        dpar_require(c, DPAR_MORE, &refused); /* not an error */
        dpar_require(c, DPAR_E_ARG, &refused);
        return 9;
    }
    if (strcmp(how, "post") == 0) {
        static int32_t here;
        dpar_recv(c, &here, 1, DPAR_I32, 0, 3, &work);
        return 0;
    }
    if (strcmp(how, "die") == 0 || strcmp(how, "shrink") == 0) {
        raise(SIGKILL);
    }
    if (strcmp(how, "leave") == 0) {
        _Exit(7);
    }
    if (strcmp(how, "hang") == 0) {
        pause();
    }
    return strcmp(how, "five") == 0 ? 5 : 0;
}

static int work(dpar_comm *c, void *arg)
{
    const char *how = (const char *)arg;
    dpar_comm *next = NULL;
    const double sum = dpar_sum(c, c->rank + 1);
    if (c->status < 0) {
        return dpar_fail(c, NULL);
    }
    if (strcmp(how, "quiet") == 0) {
        printf("rank %d is here\n", (int)c->rank); /* must not be lost in a buffer */
        if (dpar_quiet(c) != DPAR_OK || dpar_quiet(NULL) != DPAR_E_ARG) {
            return 9;
        }
        printf("rank %d prints\n", (int)c->rank);
    }
    if (c->rank == 0) {
        printf("sum %g of %d\n", sum, (int)c->size);
        fflush(stdout);
    }
    dpar_barrier(c, NULL); /* no rank fails before rank 0 has its sum */
    if (strcmp(how, "all") == 0) {
        return dpar_fail(c, &refused);
    }
    if (strcmp(how, "require_all") == 0) {
        printf("rank %d is here\n", (int)c->rank); /* must not be lost in a buffer */
        dpar_require(c, DPAR_E_ARG, &refused);
    }
    if (strcmp(how, "require_text") == 0) {
        dpar_require(NULL, DPAR_E_DIVIDE, NULL);
    }
    if (strcmp(how, "no") == 0) {
        return dpar_fail(NULL, &refused);
    }
    if (strcmp(how, "silent") == 0) {
        return dpar_fail(c, NULL);
    }
    if (c->rank == 1 && how[0] != 0) {
        return alone(c, how);
    }
    /* waits until rank 1 is gone: a rank that frees earlier would get the error too */
    if (strcmp(how, "post") == 0) {
        const struct timespec pause = {0, 300000000};
        nanosleep(&pause, NULL);
        return 0;
    }
    dpar_max(c, 1.0);
    if (c->status < 0 && strcmp(how, "shrink") == 0) {
        dpar_fail(c, NULL);
        if (dpar_comm_shrink(c, &next, NULL, NULL) < 0) {
            return 9;
        }
        return dpar_fail(next, &refused);
    }
    return c->status < 0 ? dpar_fail(c, NULL) : 0;
}

#ifdef BEGIN
int main(int argc, char **argv)
{
    dpar_comm *world = NULL;
    dpar_world_desc o;
    dpar_why why;
    dpar_launcher_info job;
    const char *how;
    int result, i;
    memset(&o, 0, sizeof o);
    if (argc > 1 && strcmp(argv[argc - 1], "before") == 0 &&
        dpar_launcher_detect(&job, NULL) == DPAR_OK && job.rank == 1) {
        return 6;
    }
    if (argc > 1 && strcmp(argv[argc - 1], "hang") == 0) {
        o.timeout_s = 1;
        o.grace_s = 0.5;
    }
    if (argc > 1 && strcmp(argv[argc - 1], "desc") == 0) {
        o.ranks = 2;
        o.threads = 1; /* has no effect */
    }
    if (dpar_init_or_launch(&argc, &argv, &o, &world, &why) < 0) {
        return dpar_fail(NULL, &why);
    }
    how = argc > 1 ? argv[argc - 1] : "";
    for (i = 1; strcmp(how, "args") == 0 && world->rank == 0 && i <= argc; i++) {
        printf("%s%s", argv[i] != NULL ? argv[i] : "none", i < argc ? " " : "\n");
    }
    if (strcmp(how, "child") == 0 && world->rank == 1) {
        result = system(argv[0]);
        if (result != 0) {
            return 8;
        }
    }
    if (strcmp(how, "args") == 0 || strcmp(how, "child") == 0 || strcmp(how, "desc") == 0) {
        how = "";
    }
    result = work(world, (void *)(uintptr_t)how);
    if (result != 0 || (world->rank == 1 && strcmp(how, "leave") == 0)) {
        return result;
    }
    return dpar_finalize(world);
}
#else
int main(int argc, char **argv)
{
    char *how = argc > 1 && argv[argc - 1][0] >= 'a' ? argv[argc - 1] : argv[argc];
    char none[1] = "";
    return dpar_launch_main(argc, argv, work, how != NULL ? how : none);
}
#endif
