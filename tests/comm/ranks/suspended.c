/* SPDX-License-Identifier: MIT-0 */
/* Checks that a job that is suspended as a whole (scontrol suspend, gang scheduling, a laptop that
 * sleeps) and continued later works on, however long it was suspended: no rank counts as late. A
 * single rank that is stopped is late, and is named.
 *
 *   cc -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/comm/ranks/suspended.c -o suspended
 *   ./suspended
 *
 * The timeout is 3 s. Rank 1 arrives about 5.1 s after the others by wall clock: it computes for
 * 0.6 s, and the job is suspended for 4.5 s. Of these only 0.6 + 0.25 s count (a gap counts as 0.25
 * s, see dpari_os_suspended), which is less than 3 s. */
#include "exchange_work.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BARRIER, TESTED, HALO, POINTS, WAYS };
static const char *const name[WAYS] = {"all_reduce", "dpar_test", "halo exchange", "points"};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Computes until this process has run for so many seconds. */
static void busy(double seconds)
{
    double last = now();
    while (seconds > 0.0) {
        const double at = now();
        seconds -= at - last < 0.1 ? at - last : 0.0;
        last = at;
    }
}

static dpar_status tested(dpar_comm *c)
{
    double in = c->rank, out = 0;
    dpar_work k;
    dpar_status status;
    memset(&k, 0, sizeof k);
    status = dpar_all_reduce(c, &in, &out, 1, DPAR_F64, DPAR_SUM, &k);
    while (status == DPAR_OK && (status = dpar_test(&k)) == DPAR_MORE) {
        usleep(1000);
        status = DPAR_OK;
    }
    return status;
}

static int work(dpar_comm *c, void *arg)
{
    const int way = *(const int *)arg;
    exchange_work ring;
    dpar_why why;
    dpar_status status;
    if (exchange_make(&ring, way == POINTS ? EXCHANGE_POINTS : EXCHANGE_GRID, c, NULL, &why) < 0) {
        puts(why.text);
        return 2;
    }
    if (c->rank == 1) {
        busy(0.6);
    }
    if (way == BARRIER) {
        status = dpar_barrier(c, NULL);
    } else if (way == TESTED) {
        status = tested(c);
    } else {
        status = exchange_run(&ring);
    }
    if (status < 0) {
        printf("rank %d: %s\n", (int)c->rank, c->why.text);
        fflush(stdout);
    }
    (void)exchange_free(&ring);
    return status < 0;
}

/* Suspends the whole job for 4.5 s, 0.3 s after its start. */
static int suspended(int way)
{
    dpar_world_desc o;
    int status = 0;
    pid_t pid;
    memset(&o, 0, sizeof o);
    o.timeout_s = 3;
    pid = fork();
    if (pid == 0) {
        dpar_why why;
        const int failed = setpgid(0, 0) != 0 || dpar_launch(3, work, &way, &o, &why) != DPAR_OK;
        if (failed) {
            puts(why.text);
            fflush(stdout);
        }
        _exit(failed);
    }
    usleep(300000);
    kill(-pid, SIGSTOP);
    usleep(4500000);
    kill(-pid, SIGCONT);
    waitpid(pid, &status, 0);
    printf("%-14s %s\n", name[way], status == 0 ? "went on" : "FAILED");
    fflush(stdout);
    return status != 0;
}

/* Rank 1 stops itself: the others wait for it no longer than the timeout. */
static int stopper(dpar_comm *c, void *unused)
{
    (void)unused;
    dpar_barrier(c, NULL);
    if (c->rank == 1) {
        raise(SIGSTOP);
        return 0;
    }
    return dpar_barrier(c, NULL) == DPAR_E_TIMEOUT && strstr(c->why.text, "rank 1") != NULL ? 0 : 3;
}

static int one_stops(void)
{
    dpar_world_desc o;
    dpar_why why = {"", 0};
    double began = now();
    dpar_status status;
    memset(&o, 0, sizeof o);
    o.timeout_s = 1;
    o.grace_s = 0.5;
    status = dpar_launch(2, stopper, NULL, &o, &why);
    began = now() - began;
    printf("one rank that stops: after %.1f s: %s\n", began, why.text);
    return status != DPAR_E_PEER || strstr(why.text, "rank 1") == NULL || began > 10.0;
}

int main(void)
{
    int failed = 0, way, status;
    pid_t pid[WAYS];
    /* all ways run at the same time, because they are suspended most of the time */
    for (way = 0; way < WAYS; way++) {
        pid[way] = fork();
        if (pid[way] == 0) {
            _exit(suspended(way));
        }
    }
    for (way = 0; way < WAYS; way++) {
        waitpid(pid[way], &status, 0);
        failed += status != 0;
    }
    failed += one_stops();
    printf("%d passed, %d failed\n", WAYS + 1 - failed, failed);
    return failed != 0;
}
