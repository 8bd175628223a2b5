/* SPDX-License-Identifier: MIT-0 */
/* start: a program with the one line in main; start.sh runs it in every way and reads what it says.
 *     start [--ranks N] [HOW]
 * HOW, after a first sum: all (are refused the same), one (rank 1 fails alone), die (rank 1 is
 * killed), five (rank 1 returns 5), leave (rank 1 exits), post (rank 1 leaves a work), no (before
 * there is a communicator), shrink (rank 1 is killed, the others go on and fail again). */
#include "dpar_comm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const dpar_why refused = {"tp=12 does not divide 32 attention heads"};

static int alone(dpar_comm *c, const char *how)
{
    static dpar_work work;
    if (strcmp(how, "one") == 0) {
        return dpar_fail(c, &refused);
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
    if (c->rank == 0) {
        printf("sum %g of %d\n", sum, (int)c->size);
        fflush(stdout);
    }
    dpar_barrier(c, NULL); /* nobody fails before rank 0 has its sum */
    if (strcmp(how, "all") == 0) {
        return dpar_fail(c, &refused);
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
    if (strcmp(how, "post") == 0) { /* when rank 1 is gone: who closes before is told, too */
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

int main(int argc, char **argv)
{
    char *how = argc > 1 && argv[argc - 1][0] >= 'a' ? argv[argc - 1] : argv[argc];
    char none[1] = "";
    return dpar_launch_main(argc, argv, work, how != NULL ? how : none);
}
