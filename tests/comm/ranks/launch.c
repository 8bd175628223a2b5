/* SPDX-License-Identifier: MIT-0 */
/* launch: tests ranks that are forked or threads, each way in which one can fail, and that nothing
 * is left behind. Without arguments it tests dpar_launch; launch.sh runs the rest:
 *   launch join [plain]    dpar_init, one all_reduce; prints "rank R of N: sum S"
 *   launch shrink          the same; rank 1 dies, the others continue
 *   launch where           prints the name of the job's socket if it is a file
 *   launch squat S [uid]   occupies the job's socket name for S seconds, as another user
 *   launch print           prints before, in and after the ranks
 *   launch wait            joins, then waits for a signal */
#include "dpar_comm.h"

#include "check.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static dpar_why why;
static int32_t *seen; /* memory shared by all ranks of a forked launch */

/* Returns 1 if the sum of rank + 1 over all ranks is n (n + 1) / 2. */
static int adds_up(dpar_comm *w)
{
    int64_t mine = w->rank + 1, sum = 0;
    return dpar_all_reduce(w, &mine, &sum, 1, DPAR_I64, DPAR_SUM, NULL) == DPAR_OK &&
           sum == (int64_t)w->size * (w->size + 1) / 2;
}

static int fine(dpar_comm *w, void *arg)
{
    (void)arg;
    return adds_up(w) ? 0 : 90;
}

/* What rank `who` does after the first all_reduce. The others continue and get the error. */
enum { RETURN_3, KILL, SEGV, ABORT, EXIT_0, EXIT_4, STOP, HANG, SPIN };
typedef struct fate {
    int who, what, others_hang;
} fate;

static int meets_fate(dpar_comm *w, void *arg)
{
    const fate *f = (const fate *)arg;
    int i;
    if (!adds_up(w)) {
        return 90;
    }
    if (w->rank == f->who) {
        switch (f->what) {
        case RETURN_3: return 3;
        case KILL: raise(SIGKILL); break;
        case SEGV:
            signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would exit */
            raise(SIGSEGV);
            break;
        case ABORT:
            signal(SIGABRT, SIG_DFL);
            raise(SIGABRT);
            break;
        case EXIT_0: _exit(0);
        case EXIT_4: _exit(4);
        case STOP: raise(SIGSTOP); break;
        default:
            for (;;) {
                pause();
            }
        }
    }
    for (i = 0; f->others_hang; i++) {
        pause();
    }
    for (i = 0; i < 1000000; i++) {
        if (!adds_up(w)) {
            return w->status == DPAR_E_PEER ? 5 : 91;
        }
    }
    return 92;
}

static dpar_status run(int n, dpar_main fn, void *arg, const dpar_world_desc *o)
{
    why.text[0] = 0;
    return dpar_launch(n, fn, arg, o, &why);
}

static void says(const char *word)
{
    if (strstr(why.text, word) == NULL) {
        CHECK_TEXT(why.text, word);
    }
    CHECK(1);
}

/* Checks that no child is left, not even a zombie. */
static void no_child(void)
{
    CHECK_INT(waitpid(-1, NULL, WNOHANG), -1);
    CHECK_INT(errno, ECHILD);
}

static void test_fine(void)
{
    dpar_world_desc o;
    int n;
    memset(&o, 0, sizeof o);
    for (n = 1; n <= 8; n++) {
        o.threads = 0;
        CHECK_INT(run(n, fine, NULL, &o), DPAR_OK);
        o.threads = 1;
        CHECK_INT(run(n, fine, NULL, &o), DPAR_OK);
        no_child();
    }
    o.threads = 0;
    o.disable = DPAR_WORLD_NO_MEMFD;
    CHECK_INT(run(4, fine, NULL, &o), DPAR_OK);
    CHECK_TEXT(why.text, "");
    CHECK_INT(dpar_launch(2, fine, NULL, NULL, NULL), DPAR_OK);
}

static void test_arguments(void)
{
    dpar_world_desc o;
    memset(&o, 0, sizeof o);
    CHECK_INT(run(0, fine, NULL, NULL), DPAR_E_ARG);
    says("dpar_launch: 0 ranks, but 1 .. 1024 are allowed");
    CHECK_INT(run(-5, fine, NULL, NULL), DPAR_E_ARG);
    CHECK_INT(run(1025, fine, NULL, NULL), DPAR_E_ARG);
    says("dpar_launch: 1025 ranks, but 1 .. 1024 are allowed");
    CHECK_INT(run(2, NULL, NULL, NULL), DPAR_E_ARG);
    o.grace_s = -1.0;
    CHECK_INT(run(2, fine, NULL, &o), DPAR_E_ARG);
    says("grace_s");
    o.grace_s = 0.0;
    o.threads = 2;
    CHECK_INT(run(2, fine, NULL, &o), DPAR_E_ARG);
    o.threads = 0;
    o.slot_bytes = 5000;
    CHECK_INT(run(2, fine, NULL, &o), DPAR_E_ARG);
    says("slot_bytes");
    o.slot_bytes = 0;
    o.heap_bytes = -1;
    CHECK_INT(run(2, fine, NULL, &o), DPAR_E_ARG);
    CHECK_INT(dpar_launch(2, NULL, NULL, NULL, NULL), DPAR_E_ARG);
}

/* Tests each fate of each rank: the right rank and cause are reported, the others are not
 * harmed. */
static void fates(int rounds)
{
    static const char *const said[] = {"returned 3",
                                       "was killed by signal 9 (SIGKILL)",
                                       "was killed by signal 11 (SIGSEGV)",
                                       "was killed by signal 6 (SIGABRT)",
                                       "left the program with status 0 before",
                                       "left the program with status 4 before"};
    char word[80];
    fate f;
    int i;
    f.others_hang = 0;
    for (i = 0; i < rounds; i++) {
        f.who = i % 4;
        f.what = i / 4 % 6;
        CHECK_INT(run(4, meets_fate, &f, NULL), DPAR_E_PEER);
        snprintf(word, sizeof word, "rank %d %s", f.who, said[f.what]);
        if (strncmp(why.text, word, strlen(word)) != 0) {
            CHECK_TEXT(why.text, word);
        }
        CHECK(strstr(why.text, "did not end") == NULL);
        no_child();
    }
}

/* Checks that a rank that continues after another one failed is killed after the grace period, also
 * if it is stopped. */
static void test_grace(void)
{
    dpar_world_desc o;
    fate f;
    double began = dpari_os_now();
    memset(&o, 0, sizeof o);
    o.grace_s = 0.3;
    f.who = 1;
    f.what = RETURN_3;
    f.others_hang = 1;
    CHECK_INT(run(3, meets_fate, &f, &o), DPAR_E_PEER);
    says("rank 1 returned 3; killed because they did not end: rank 0, 2");
    began = dpari_os_now() - began;
    CHECK(began >= 0.3 && began < 5.0);
    f.what = STOP; /* the others time out */
    f.others_hang = 0;
    o.timeout_s = 0.5;
    CHECK_INT(run(3, meets_fate, &f, &o), DPAR_E_PEER);
    says("killed because they did not end: rank 1");
    no_child();
}

/* Rank `who` stops, spins or waits for ever. The others time out and still return 0. work_on: if
 * above 0, ranks 0 and 1 shrink the communicator and work for this many seconds first. */
typedef struct hang {
    int who, what;
    double work_on;
} hang;

static int ignores_it(dpar_comm *w, void *arg)
{
    const hang *h = (const hang *)arg;
    dpar_comm *next = NULL;
    int i;
    volatile int spins = 1;
    if (w->rank == h->who) {
        if (h->what == STOP) {
            raise(SIGSTOP);
        }
        while (h->what == SPIN && spins) {
        }
        for (;;) {
            pause();
        }
    }
    if (dpar_barrier(w, NULL) != DPAR_E_TIMEOUT) {
        return 90;
    }
    if (h->work_on > 0.0 && w->rank < 2) {
        const double until = dpari_os_now() + h->work_on;
        int32_t last = 0, any = 0;
        if (dpar_comm_shrink(w, &next, NULL, NULL) != DPAR_OK || next->size != 2) {
            return 91;
        }
        while (!any) {
            dpari_os_sleep(0.01);
            last = dpari_os_now() > until;
            if (dpar_all_reduce(next, &last, &any, 1, DPAR_I32, DPAR_MAX, NULL) != DPAR_OK) {
                return 92;
            }
        }
        seen[w->rank] = 1;
        return dpar_comm_free(next) == DPAR_OK ? 0 : 93;
    }
    for (i = 0; i < 3; i++) {
        (void)dpar_barrier(w, NULL);
    }
    return 0;
}

/* Checks that a rank that hangs after the others have ended is killed after another timeout, and
 * named. Ranks that still work are not killed. */
static void test_hung(void)
{
    static const int ways[3] = {STOP, SPIN, HANG};
    const char *word = "killed because they made no progress after others had ended: rank ";
    char all[120];
    dpar_world_desc o;
    hang h;
    int i;
    memset(&o, 0, sizeof o);
    o.timeout_s = 0.5;
    o.grace_s = 0.2;
    h.work_on = 0.0;
    for (i = 0; i < 3; i++) {
        h.who = i;
        h.what = ways[i];
        CHECK_INT(run(3, ignores_it, &h, &o), DPAR_E_PEER);
        snprintf(all, sizeof all, "%s%d", word, i);
        CHECK_TEXT(why.text, all);
        no_child();
    }
    h.who = 3; /* rank 2 returns at once */
    h.what = STOP;
    h.work_on = 2.0;
    seen[0] = seen[1] = 0;
    CHECK_INT(run(4, ignores_it, &h, &o), DPAR_E_PEER);
    snprintf(all, sizeof all, "%s3", word);
    CHECK_TEXT(why.text, all);
    CHECK_INT(seen[0], 1);
    CHECK_INT(seen[1], 1);
    no_child();
}

static int fails_in_thread(dpar_comm *w, void *arg)
{
    int *count = (int *)arg;
    if (!adds_up(w)) {
        return 90;
    }
    __atomic_fetch_add(count, 1, __ATOMIC_SEQ_CST);
    if (w->rank == 2) {
        return 300; /* more than an exit status can hold */
    }
    return dpar_barrier(w, NULL) == DPAR_E_PEER ? 0 : 91;
}

static void test_threads(void)
{
    dpar_world_desc o;
    int count = 0;
    memset(&o, 0, sizeof o);
    o.threads = 1;
    CHECK_INT(run(4, fails_in_thread, &count, &o), DPAR_E_PEER);
    CHECK_TEXT(why.text, "rank 2 returned 300");
    CHECK_INT(count, 4);
    o.threads = 0;
    CHECK_INT(run(4, fails_in_thread, &count, &o), DPAR_E_PEER);
    CHECK_TEXT(why.text, "rank 2 returned 300");
    CHECK_INT(count, 4); /* forked ranks increment their own copy */
}

static int own_process(dpar_comm *w, void *arg)
{
    return w->size == 1 && w->rank == 0 && *(pid_t *)arg == getpid() ? 0 : 1;
}

static int returns_8(dpar_comm *w, void *arg)
{
    (void)w;
    (void)arg;
    return 8;
}

static void test_one(void)
{
    pid_t me = getpid();
    CHECK_INT(run(1, own_process, &me, NULL), DPAR_OK);
    CHECK_INT(run(1, returns_8, NULL, NULL), DPAR_E_PEER);
    CHECK_TEXT(why.text, "rank 0 returned 8");
}

/* Ranks 1 and 3 are killed. The others call after both have died: the message names both. */
static int two_die(dpar_comm *w, void *arg)
{
    char text[4000];
    dpar_text t;
    int i;
    if (w->rank == 1 || w->rank == 3) {
        raise(SIGKILL);
    }
    for (i = 0; i < 10000; i++) {
        const char *at;
        dpar_text_init(&t, text, sizeof text);
        dpar_comm_report(w, &t);
        at = strstr(text, "killed by signal 9");
        if (at != NULL && strstr(at + 1, "killed by signal 9") != NULL) {
            break;
        }
        usleep(1000);
    }
    if (dpar_barrier(w, NULL) == DPAR_E_PEER &&
        strstr(w->why.text, "rank 1 was killed by signal 9") != NULL &&
        strstr(w->why.text, "; also ended: rank 3") != NULL) {
        __atomic_fetch_add((int *)arg, 1, __ATOMIC_SEQ_CST);
    }
    return 0;
}

static void test_two_die(void)
{
    void *told = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK_INT(run(5, two_die, told, NULL), DPAR_E_PEER);
    CHECK_INT(*(int *)told, 3);
    munmap(told, 4096);
    no_child();
}

static int launches(dpar_comm *w, void *arg)
{
    const dpar_world_desc *o = (const dpar_world_desc *)arg;
    fate f;
    dpar_why inner;
    f.who = 0;
    f.what = KILL;
    f.others_hang = 0;
    if (!adds_up(w) || dpar_launch(2, fine, NULL, o, NULL) != DPAR_OK) {
        return 1;
    }
    if (o->threads == 0 && (dpar_launch(2, meets_fate, &f, o, &inner) != DPAR_E_PEER ||
                            strncmp(inner.text, "rank 0 was killed", 17) != 0)) {
        return 2;
    }
    return adds_up(w) ? 0 : 3;
}

static void test_nested(void)
{
    dpar_world_desc o;
    memset(&o, 0, sizeof o);
    CHECK_INT(run(3, launches, &o, NULL), DPAR_OK);
    o.threads = 1;
    CHECK_INT(run(3, launches, &o, NULL), DPAR_OK);
    CHECK_INT(run(2, launches, &o, &o), DPAR_OK);
    no_child();
}

/* Tests a program with other children, which the launch must leave to it, with SIGCHLD ignored, and
 * with calls that signals interrupt. */
static void tick(int number)
{
    (void)number;
}

static void test_company(void)
{
    struct itimerval every;
    struct sigaction act;
    int status = 0;
    pid_t child = fork();
    fate f;
    if (child == 0) {
        _exit(7);
    }
    usleep(20000); /* it is dead before the launch looks at its children */
    CHECK_INT(run(3, fine, NULL, NULL), DPAR_OK);
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(WEXITSTATUS(status), 7);
    signal(SIGCHLD, SIG_IGN);
    CHECK_INT(run(3, fine, NULL, NULL), DPAR_OK);
    f.who = 1;
    f.what = RETURN_3;
    f.others_hang = 0;
    CHECK_INT(run(3, meets_fate, &f, NULL), DPAR_E_PEER);
    CHECK_TEXT(why.text, "rank 1 returned 3");
    f.what = KILL;
    CHECK_INT(run(3, meets_fate, &f, NULL), DPAR_E_PEER);
    says("rank 1 ended before its function returned");
    signal(SIGCHLD, SIG_DFL);
    memset(&act, 0, sizeof act);
    act.sa_handler = tick; /* without SA_RESTART */
    sigaction(SIGALRM, &act, NULL);
    memset(&every, 0, sizeof every);
    every.it_interval.tv_usec = every.it_value.tv_usec = 500;
    setitimer(ITIMER_REAL, &every, NULL);
    CHECK_INT(run(4, fine, NULL, NULL), DPAR_OK);
    CHECK_INT(run(3, meets_fate, &f, NULL), DPAR_E_PEER);
    says("rank 1 was killed by signal 9");
    memset(&every, 0, sizeof every);
    setitimer(ITIMER_REAL, &every, NULL);
    no_child();
}

/* Limits open files: the supervisor then works without a descriptor per rank. */
static void test_few_files(void)
{
    struct rlimit old, few;
    fate f;
    getrlimit(RLIMIT_NOFILE, &old);
    few = old;
    few.rlim_cur = 9;
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &few), 0);
    CHECK_INT(run(8, fine, NULL, NULL), DPAR_OK);
    f.who = 5;
    f.what = KILL;
    f.others_hang = 0;
    CHECK_INT(run(8, meets_fate, &f, NULL), DPAR_E_PEER);
    says("rank 5 was killed by signal 9");
    few.rlim_cur = 3; /* not even the segment can be opened */
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &few), 0);
    CHECK_INT(run(2, fine, NULL, NULL), DPAR_E_SYSTEM);
    says("too many open files");
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &old), 0);
    no_child();
}

static int counts_itself(dpar_comm *w, void *arg)
{
    (void)w;
    (void)arg;
    __atomic_fetch_add(seen, 1, __ATOMIC_SEQ_CST);
    return 0;
}

/* Makes the third fork of six fail: the first two ranks are ended before they begin. Runs in a
 * separate process, as a user without other processes, because the limit does not apply to root. */
static void test_fork_fails(void)
{
    int status = 0;
    pid_t child;
    if (getuid() != 0) {
        return;
    }
    *seen = 0;
    child = fork();
    if (child == 0) {
        struct rlimit few;
        dpar_status got;
        few.rlim_cur = few.rlim_max = 3;
        if (setuid(64123) != 0 || setrlimit(RLIMIT_NPROC, &few) != 0) {
            _exit(1);
        }
        got = run(6, counts_itself, NULL, NULL);
        _exit(got != DPAR_E_SYSTEM                                ? 2
              : strncmp(why.text, "rank 2 of 6 could not be", 24) ? 3
              : waitpid(-1, NULL, WNOHANG) != -1                  ? 4
                                                                  : 0);
    }
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
    CHECK_INT(*seen, 0);
}

/* Returns the number of open descriptors; those that the count itself uses are the same each
 * time. */
static int open_files(void)
{
    DIR *at = opendir("/proc/self/fd");
    int n = 0;
    while (at != NULL && readdir(at) != NULL) {
        n++;
    }
    if (at != NULL) {
        closedir(at);
    }
    return n;
}

static int mappings(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    int n = 0, c;
    while (f != NULL && (c = fgetc(f)) != EOF) {
        n += c == '\n';
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

/* Checks that a hundred launches leave no descriptor and no mapping, and prints how long one
 * takes. */
static void test_leaks(void)
{
    int i, files_before, maps_before;
    double began;
    fate f;
    CHECK_INT(run(4, fine, NULL, NULL), DPAR_OK);
    files_before = open_files();
    maps_before = mappings();
    began = dpari_os_now();
    for (i = 0; i < 100; i++) {
        CHECK_INT(run(4, fine, NULL, NULL), DPAR_OK);
    }
    printf("a launch of 4 ranks, one all_reduce, the end: %.2f ms\n",
           (dpari_os_now() - began) * 10.0);
    for (i = 0; i < 8; i++) {
        f.who = i % 2;
        f.what = i % 4;
        f.others_hang = 0;
        CHECK_INT(run(2, meets_fate, &f, NULL), DPAR_E_PEER);
        CHECK_INT(run(1025, fine, NULL, NULL), DPAR_E_ARG);
    }
    CHECK_INT(open_files(), files_before);
    CHECK(mappings() <= maps_before + 8); /* a sanitizer adds some mappings */
    no_child();
}

static int tells_its_number(dpar_comm *w, void *arg)
{
    (void)arg;
    seen[w->rank] = (int32_t)getpid();
    while (w->rank == 3) { /* a rank that spins must end as well */
        __atomic_fetch_add(&seen[100], 1, __ATOMIC_SEQ_CST);
    }
    adds_up(w);
    while (seen[w->rank] != 0) {
        pause();
    }
    return 0;
}

/* Kills the launcher with SIGKILL: within a second all its ranks are gone, and their ranks too. */
static int launches_those(dpar_comm *w, void *arg)
{
    seen[8 + w->rank] = (int32_t)getpid();
    return (int)dpar_launch(4, tells_its_number, arg, NULL, NULL);
}

static void orphans(dpar_main fn, int n, int all)
{
    pid_t launcher;
    int i, left = all, tries;
    memset(seen, 0, 64);
    launcher = fork();
    if (launcher == 0) {
        dpar_launch(n, fn, NULL, NULL, NULL);
        _exit(0);
    }
    for (tries = 0; tries < 3000 && left > 0; tries++) { /* starting is slow on a busy machine */
        usleep(10000);
        for (i = 0, left = all; i < 16; i++) {
            left -= __atomic_load_n(&seen[i], __ATOMIC_SEQ_CST) != 0;
        }
    }
    CHECK_INT(left, 0);
    kill(launcher, SIGKILL);
    waitpid(launcher, NULL, 0);
    for (tries = 0, left = 1; tries < 100 && left > 0; tries++) {
        usleep(10000);
        for (i = 0, left = 0; i < 16; i++) {
            char path[40], state[64] = "";
            FILE *f;
            if (seen[i] == 0 || kill((pid_t)seen[i], 0) != 0) {
                continue;
            }
            snprintf(path, sizeof path, "/proc/%d/stat", (int)seen[i]);
            f = fopen(path, "r");
            if (f != NULL) { /* a zombie that init has not waited for yet counts as gone */
                if (fgets(state, sizeof state, f) == NULL) {
                    state[0] = 0;
                }
                fclose(f);
                left += state[0] != 0 && strstr(state, ") Z") == NULL;
            }
        }
    }
    CHECK_INT(left, 0);
    for (i = 0; i < 16 && left > 0; i++) { /* a failed test must not leave processes behind */
        if (seen[i] > 0) {
            kill((pid_t)seen[i], SIGKILL);
        }
    }
}

/* Four ranks store their process numbers; then four ranks inside a rank do. */
static void test_orphans(void)
{
#if defined(__linux__)
    orphans(tells_its_number, 4, 4);
    orphans(launches_those, 1, 5);
#endif
}

/* ---- what launch.sh runs --------------------------------------------------------------------- */

/* Joins; rank 1 dies, the others continue. */
static int shrink(void)
{
    dpar_comm *w = NULL, *next = NULL;
    int32_t was[8];
    int ok;
    if (dpar_init(&w, NULL, &why) != DPAR_OK || w->size > 8 || !adds_up(w)) {
        return 1;
    }
    if (w->rank == 1) {
        raise(SIGKILL);
    }
    while (adds_up(w)) {
    }
    ok = w->status == DPAR_E_PEER && dpar_comm_shrink(w, &next, was, &why) == DPAR_OK &&
         next->size == w->size - 1 && was[next->rank] == w->rank && adds_up(next);
    printf("rank %d of %d: %s without %d\n", (int)w->rank, (int)w->size, ok ? "adds up" : why.text,
           1);
    fflush(stdout);
    return dpar_comm_free(next) != DPAR_OK || dpar_comm_free(w) != DPAR_OK || !ok;
}

static int join(int plain, int then_wait)
{
    dpar_world_desc o;
    dpar_comm *w = NULL;
    dpar_launcher_info start;
    dpar_status status;
    int ok;
    memset(&o, 0, sizeof o);
    o.disable = plain;
    status = dpar_init(&w, &o, &why);
    if (status != DPAR_OK) {
        printf("status %d: %s\n", (int)status, why.text);
        return 1;
    }
    ok = adds_up(w);
    if (dpar_launcher_detect(&start, NULL) != DPAR_OK || start.rank != w->rank) {
        return 2;
    }
    printf("rank %d of %d: %s (%s)\n", (int)w->rank, (int)w->size, ok ? "adds up" : w->why.text,
           dpari_launcher_name(start.kind));
    fflush(stdout);
    while (then_wait) {
        pause();
    }
    return dpar_comm_free(w) != DPAR_OK || !ok;
}

static int squat(double seconds, int uid)
{
    struct sockaddr_un name;
    dpar_launcher_info start;
    socklen_t bytes;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (dpar_launcher_detect(&start, &why) != DPAR_OK) {
        return 1;
    }
    bytes = dpari_meet_name(&start, 0, 0, &name);
    if ((uid >= 0 && setuid((uid_t)uid) != 0) ||
        bind(fd, (struct sockaddr *)(void *)&name, bytes) != 0 || listen(fd, 8) != 0) {
        return 1;
    }
    printf("sits\n");
    fflush(stdout);
    dpari_os_sleep(seconds);
    return 0;
}

/* Prints the name of the job's socket where such names are files. */
static int where(void)
{
    struct sockaddr_un name;
    dpar_launcher_info start;
    if (dpar_launcher_detect(&start, &why) != DPAR_OK) {
        return 1;
    }
    dpari_meet_name(&start, 0, 1, &name);
    printf("%s\n", name.sun_path);
    return 0;
}

static int prints(dpar_comm *w, void *arg)
{
    (void)arg;
    printf("in %d\n", (int)w->rank);
    return 0;
}

/* Prints a lot to stdout and stderr and then works, wherever the output goes. */
static int talks(dpar_comm *w, void *arg)
{
    int i;
    (void)arg;
    for (i = 0; i < 2000; i++) {
        printf("rank %d says line %d on stdout\n", (int)w->rank, i);
        fprintf(stderr, "rank %d says line %d on stderr\n", (int)w->rank, i);
    }
    fflush(stdout);
    return !adds_up(w);
}

static int talk(void)
{
    dpar_comm *w = NULL;
    int bad;
    if (getenv("DPAR_SIZE") == NULL) {
        return dpar_launch(3, talks, NULL, NULL, NULL) != DPAR_OK;
    }
    bad = dpar_init(&w, NULL, &why) != DPAR_OK || talks(w, NULL);
    return bad || dpar_comm_free(w) != DPAR_OK;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "talk") == 0) {
        return talk();
    }
    if (argc > 1 && strcmp(argv[1], "join") == 0) {
        return join(argc > 2 ? atoi(argv[2]) : 0, 0);
    }
    if (argc > 1 && strcmp(argv[1], "shrink") == 0) {
        return shrink();
    }
    if (argc > 1 && strcmp(argv[1], "where") == 0) {
        return where();
    }
    if (argc > 1 && strcmp(argv[1], "wait") == 0) {
        return join(0, 1);
    }
    if (argc > 2 && strcmp(argv[1], "squat") == 0) {
        return squat(atof(argv[2]), argc > 3 ? atoi(argv[3]) : -1);
    }
    if (argc > 1 && strcmp(argv[1], "print") == 0) {
        printf("before\n"); /* buffered if stdout is a file */
        if (dpar_launch(3, prints, NULL, NULL, NULL) != DPAR_OK) {
            return 1;
        }
        printf("after\n");
        return 0;
    }
    alarm(120); /* ends a test that hangs */
    seen = (int32_t *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    test_fine();
    test_arguments();
    fates(argc > 1 ? atoi(argv[1]) : 24);
    test_grace();
    test_hung();
    test_threads();
    test_one();
    test_two_die();
    test_nested();
    test_company();
    test_few_files();
    test_fork_fails();
    test_leaks();
    test_orphans();
    return CHECK_DONE();
}
