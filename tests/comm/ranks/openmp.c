/* SPDX-License-Identifier: MIT-0 */
/* openmp: tests ranks in a process that has threads. openmp.sh builds it with each OpenMP that this
 * machine has, and without. Usage: openmp WHAT
 *
 * With OpenMP, WHAT is: before (parallel regions, then forked ranks with such regions, twice),
 * inside (only in forked ranks), threads (ranks are threads), begin (dpar_init_or_launch after a
 * region; argv contains --ranks). Each rank prints "rank R PID P: SUM", the sum over all ranks of 0
 * + 1 + ... + 999.
 *
 * Without OpenMP, WHAT is: pool (the program's own pool, whose thread is lost in a fork and which
 * each rank waits for), one (only rank 1 waits for it, the others are in dpar), helper (a thread
 * that nobody waits for), late (the same, and ranks compute for longer than the timeout), die (the
 * same, and rank 1 is killed), sleep (no thread, and ranks sleep for longer than the timeout).
 * Prints the status and the message. */
#include "dpar_comm.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double sum(void)
{
    double s = 0.0;
    int i;
#pragma omp parallel for reduction(+ : s)
    for (i = 0; i < 1000; i++) {
        s += i;
    }
    return s;
}

static int adds(dpar_comm *c, void *unused)
{
    const double all = dpar_sum(c, sum());
    (void)unused;
    printf("rank %d PID %ld: %g\n", (int)c->rank, (long)getpid(), all);
    return c->status != DPAR_OK;
}

/* ---- a pool of one thread, which computes sums ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;
static int asked, answered;

static void *pool(void *unused)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        while (asked == answered) {
            pthread_cond_wait(&news, &lock);
        }
        answered = asked;
        pthread_cond_broadcast(&news);
    }
    return unused;
}

static void ask(void)
{
    pthread_mutex_lock(&lock);
    asked++;
    pthread_cond_broadcast(&news);
    while (asked != answered) {
        pthread_cond_wait(&news, &lock);
    }
    pthread_mutex_unlock(&lock);
}

static double own_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int works(dpar_comm *c, void *arg)
{
    const char *what = (const char *)arg;
    const struct timespec pause = {2, 0};
    volatile double spin = 0.0;
    dpar_barrier(c, NULL);
    if (strcmp(what, "pool") == 0 || (strcmp(what, "one") == 0 && c->rank == 1)) {
        ask();
    }
    if (strcmp(what, "sleep") == 0) {
        nanosleep(&pause, NULL);
    }
    if (strcmp(what, "die") == 0 && c->rank == 1) {
        raise(SIGKILL);
    }
    while (strcmp(what, "late") == 0 && own_time() < 1.5) {
        spin = spin + 1.0;
    }
    return dpar_sum(c, 1.0) != c->size;
}

static int launches(dpar_main fn, char *what, int threads)
{
    dpar_world_desc o;
    dpar_why why = {"", 0};
    dpar_status status;
    memset(&o, 0, sizeof o);
    o.timeout_s = fn == works ? 1 : 20;
    o.grace_s = 0.5;
    o.threads = threads;
    status = dpar_launch(3, fn, what, &o, &why);
    if (fn == works || status != DPAR_OK) {
        printf("%d %s\n", (int)status, why.text);
    }
    return status != DPAR_OK;
}

static int begins(int argc, char **argv)
{
    dpar_comm *world = NULL;
    dpar_why why;
    if (dpar_init_or_launch(&argc, &argv, NULL, &world, &why) < 0) {
        return dpar_fail(NULL, &why);
    }
    if (adds(world, NULL) != 0) {
        return dpar_fail(world, NULL);
    }
    return dpar_finalize(world);
}

int main(int argc, char **argv)
{
    char *what = argv[argc - 1];
    pthread_t thread;
    int failed;
    if (strcmp(what, "pool") == 0 || strcmp(what, "one") == 0 || strcmp(what, "helper") == 0 ||
        strcmp(what, "late") == 0 || strcmp(what, "die") == 0 || strcmp(what, "sleep") == 0) {
        if (strcmp(what, "sleep") != 0 && pthread_create(&thread, NULL, pool, NULL) == 0) {
            ask();
        }
        return launches(works, what, 0);
    }
    if (strcmp(what, "inside") != 0 && sum() != 499500.0) {
        return 2;
    }
    if (strcmp(what, "begin") == 0) {
        return begins(argc, argv);
    }
    failed = launches(adds, what, strcmp(what, "threads") == 0);
    failed += launches(adds, what, 0);
    return failed + (sum() != 499500.0);
}
