/* SPDX-License-Identifier: MIT-0 */
/* Starts ranks on this machine and supervises them, for dpar_launch and dpar_init_or_launch; joins
 * ranks that a launcher started, for dpar_init.
 *
 * The calling process makes the shared segment and forks one process per rank (or starts a new
 * process of the program, for dpar_init_or_launch, or a thread). It then waits for them as their
 * supervisor: it records how each ends, breaks the communicator if one fails, and kills ranks that
 * do not end in time. A rank whose function never returns is detected by counters in the segment
 * that each rank advances when it begins an operation or waits. The first rank that failed
 * determines status and message. */
#include "launch.h"
#include "../base/inner.h"
#include "comm.h"
#include "group.h"
#include "job.h"
#include "launch_private.h"
#include "meet.h"
#include "os.h"
#include "shm.h"
#include "world.h"

/* What a launch knows of one rank. The first part is written by the rank, before it ends, the rest
 * by the supervisor. It lies in memory that both see. */
typedef struct dpari_seat {
    int32_t returned;   /* 1: result is what fn returned */
    int32_t result;     /* of fn; 0: fine */
    dpar_status status; /* of joining and closing */
    dpar_why why;       /* when that failed */
    double ended;       /* when it returned, or was found ended: orders the failures */
    double found;       /* when it was found ended; before that: when its pulse last changed */
    uint64_t pulse;     /* dpari_segment_pulse */
    uint64_t heard;     /* the same, when it was last compared to see whether all are silent */
    int64_t used;       /* nanoseconds of processor time by then */
    int32_t follows;    /* 1: its communicator was broken by then, by another's failure */
    pid_t pid;
    dpari_thread thread;
    int32_t gone;   /* 1: it has ended and was waited for */
    int32_t ending; /* exit status, or -signal; unknown: see dpari_seat_reap */
    int32_t killed; /* by the supervisor */
    struct dpari_launch *launch;
} dpari_seat;

/* What ranks that are new processes of this program are started with. The environment begins with
 * dpar's own variables, in `text`, whose numbers each child fills in after the fork. */
enum { DPARI_IMAGE_TEXTS = 5 };
typedef struct dpari_image {
    char path[4096];
    char **words;
    char **environment;
    int64_t bytes; /* of it */
    char text[DPARI_IMAGE_TEXTS][48];
} dpari_image;

typedef struct dpari_launch {
    int32_t n, left;
    dpar_main fn;
    void *arg;
    dpari_image *image; /* NULL: ranks run fn */
    const dpar_world_desc *options;
    double grace_s, timeout_s;
    double forgiven; /* when it was last looked whether the whole job was suspended */
    pid_t parent;
    int64_t threads;      /* of this process when it forked; 1 where ranks do not depend on that */
    double looked;        /* when it was last looked whether ranks are silent, */
    double silent_s;      /* and for how long all have been */
    int32_t silent;       /* all were killed for that */
    int32_t hung;         /* those that were left did nothing any more, and were killed for that */
    double nap;           /* without pidfds: how long to sleep next */
    int32_t watching;     /* every rank has a pidfd */
    struct pollfd *watch; /* fd -1: it has ended */
    dpari_seat *seat;
    dpari_segment segment;
    dpari_verdict verdict;
} dpari_launch;

/* The signal is not known: somebody else took the exit status (SIGCHLD is ignored). */
enum { DPARI_ENDING_UNKNOWN = 1 << 20 };

/* The options that are judged here; the rest are by whoever makes the segment. */
static dpar_status dpari_launch_options(const dpar_world_desc *o, dpar_why *why)
{
    if (o != NULL && !(o->grace_s >= 0.0 && o->grace_s <= 1e9)) {
        return dpari_say(DPAR_E_ARG, why, "grace_s is 0 .. 1e9 seconds", 0, 0, 0, 0);
    }
    if (o != NULL && !dpari_finite(o->timeout_s)) {
        return dpari_say(DPAR_E_ARG, why, "timeout_s is no number of seconds", 0, 0, 0, 0);
    }
    if (o != NULL && o->threads != 0 && o->threads != 1) {
        return dpari_say(DPAR_E_ARG, why, "threads is 0 or 1, not #", o->threads, 0, 0, 0);
    }
    return DPAR_OK;
}

static dpar_status dpari_launch_check(int32_t n, dpar_main fn, const dpar_world_desc *o,
                                      dpar_why *why)
{
    if (fn == NULL) {
        return dpari_say(DPAR_E_ARG, why, "dpar_launch needs a function to run", 0, 0, 0, 0);
    }
    if (n < 1 || n > DPARI_MAX_RANKS) {
        return dpari_say(DPAR_E_ARG, why, "dpar_launch starts 1 .. # ranks, not #", DPARI_MAX_RANKS,
                         n, 0, 0);
    }
    return dpari_launch_options(o, why);
}

/* Pages that forked ranks share with this process. */
static void *dpari_launch_shared(int64_t bytes)
{
    void *at = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* ---- one rank ---------------------------------------------------------------------------------
 */

/* Joins, runs fn, closes; the result is in the seat. */
static void dpari_seat_run(dpari_launch *l, int32_t rank)
{
    dpari_seat *seat = &l->seat[rank];
    dpar_comm *world = NULL;
    dpar_why why;
    dpar_text t;
    dpar_status status;
    int result, broken;
    seat->status = dpari_shm_join(&l->segment, rank, 0, l->options, &world, &seat->why);
    if (seat->status != DPAR_OK) {
        seat->follows = seat->status == DPAR_E_PEER;
        seat->ended = dpari_os_now();
        dpari_segment_ended(&l->segment, rank, 1); /* of a thread nobody else tells the others */
        return;
    }
    dpari_shm_lend(world, 1);
    result = l->fn(world, l->arg);
    dpari_shm_lend(world, 0);
    broken = world->status != DPAR_OK;
    seat->ended = dpari_os_now();
    seat->follows = broken;
    seat->result = result;
    seat->returned = 1;
    if (result != 0) { /* the others learn it now, and not when the supervisor has noticed */
        dpar_text_init(&t, why.text, sizeof why.text);
        dpari_text_print(&t, "rank %d returned %d", rank, result);
        dpari_put_failed(&t, dpari_world_of(world), rank);
        dpar_comm_abort(world, DPAR_E_PEER, why.text);
    }
    status = dpar_comm_free(world);
    if (status == DPAR_E_ARG && !broken) { /* work was lost; else the others say what went wrong */
        seat->status = status;
        dpari_copy_text(seat->why.text, sizeof seat->why.text, dpar_status_text(status),
                        sizeof seat->why.text);
        seat->ended = dpari_os_now();
        seat->follows = status == DPAR_E_PEER;
    }
}

/* A child dies with the process that launched it. */
static void dpari_seat_bind(const dpari_launch *l)
{
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, (unsigned long)SIGKILL, 0UL, 0UL, 0UL);
#endif
    if (getppid() != l->parent) {
        _exit(1); /* it died before the line above */
    }
}

/* The life of a forked rank; does not return. _exit: what the program does at its end, it does
 * once, in the process that launched. */
static void dpari_seat_live(dpari_launch *l, int32_t rank)
{
    int fine;
    dpari_seat_run(l, rank);
    fine = l->seat[rank].returned && l->seat[rank].result == 0 && l->seat[rank].status == DPAR_OK;
    dpari_os_pause_openmp(DPARI_OPENMP_HARD);
    fflush(NULL);
    _exit(fine ? 0 : 1);
}

/* ---- ranks that are new processes of this program ----------------------------------------------
 * A fork copies one thread of many, and whatever the others hold or are waited for to do is lost. A
 * new process has nothing of its parent's: it runs main from the start, finds by its environment
 * which rank it is (dpari_job_join), and ends by itself. Its memory is the segment that the
 * launching process has made, which it inherits as an open file. So whoever launched watches it as
 * it does forked ranks. */

/* True if this entry of the environment is a variable that dpari_seat_exec sets. */
static int dpari_image_says(const dpari_image *image, const char *entry)
{
    int i;
    for (i = 0; i < DPARI_IMAGE_TEXTS; i++) {
        const char *name = image->text[i];
        size_t at = 0;
        while (name[at] != '=' && entry[at] == name[at]) {
            at++;
        }
        if (name[at] == '=' && entry[at] == '=') {
            return 1;
        }
    }
    return 0;
}

/* NAME=value, or NAME=value.more unless more is negative. */
static void dpari_image_put(dpari_image *image, int i, const char *name, int64_t value,
                            int64_t more)
{
    dpar_text t;
    dpar_text_init(&t, image->text[i], sizeof image->text[i]);
    dpari_text_print(&t, "%s=%ld", name, value);
    if (more >= 0) {
        dpari_text_print(&t, ".%ld", more);
    }
}

static void dpari_image_fill(dpari_image *image, const dpari_launch *l, int32_t rank)
{
    dpari_image_put(image, 0, "DPAR_RANK", rank, -1);
    dpari_image_put(image, 1, "DPAR_SIZE", l->n, -1);
    dpari_image_put(image, 2, "DPAR_LOCAL_RANK", rank, -1);
    dpari_image_put(image, 3, "DPAR_LOCAL_SIZE", l->n, -1);
    dpari_image_put(image, 4, DPARI_JOB_SEGMENT, l->segment.fd, (int64_t)getpid());
}

/* The environment of this process with dpar's variables in place of those that it has. */
static dpar_status dpari_image_make(dpari_image *image, const dpari_launch *l, char **words,
                                    dpar_why *why)
{
    char **mine = dpari_os_environment();
    int64_t i, count = 0, used = 0;
    if (words == NULL || words[0] == NULL || dpari_os_program(words[0], image->path, 4096) != 0) {
        return dpari_say(DPAR_E_ARG, why,
                         "# ranks cannot be started: argv does not say which program this is", l->n,
                         0, 0, 0);
    }
    while (mine != NULL && mine[count] != NULL) {
        count++;
    }
    image->words = words;
    image->bytes = (count + DPARI_IMAGE_TEXTS + 1) * (int64_t)sizeof(char *);
    image->environment = (char **)dpari_os_pages(image->bytes);
    if (image->environment == NULL) {
        return dpari_os_why(why, "a copy of the environment", image->bytes, ENOMEM);
    }
    dpari_image_fill(image, l, 0);
    for (i = 0; i < DPARI_IMAGE_TEXTS; i++) {
        image->environment[used++] = image->text[i];
    }
    for (i = 0; i < count; i++) {
        if (!dpari_image_says(image, mine[i])) {
            image->environment[used++] = mine[i];
        }
    }
    return DPAR_OK;
}

/* Becomes a new process of the program; does not return. What fails is in the seat. */
static void dpari_seat_exec(dpari_launch *l, int32_t rank)
{
    dpari_image *image = l->image;
    dpari_seat *seat = &l->seat[rank];
    dpar_text t;
    dpari_image_fill(image, l, rank);
    fcntl(l->segment.fd, F_SETFD, 0);
    execve(image->path, image->words, image->environment);
    dpar_text_init(&t, seat->why.text, sizeof seat->why.text);
    dpari_text_print(&t, "%s cannot be started: ", image->path);
    dpari_os_error(&t, errno);
    seat->status = DPAR_E_SYSTEM;
    _exit(127);
}

/* ---- the supervisor ---------------------------------------------------------------------------
 */

static int dpari_seat_failed(const dpari_seat *s)
{
    return !s->returned || s->result != 0 || s->status != DPAR_OK || s->ending != 0;
}

/* Tests whether a rank has ended, and records how. Each rank is waited for by its own process id,
 * because the program may have other children that it waits for itself. */
static int dpari_seat_reap(const dpari_launch *l, dpari_seat *s)
{
    int ending = 0;
    pid_t got;
    do {
        got = waitpid(s->pid, &ending, WNOHANG);
    } while (got < 0 && errno == EINTR);
    if (got == 0) {
        return 0;
    }
    s->gone = 1;
    if (l->image != NULL) { /* a forked rank has written it itself */
        s->returned = dpari_segment_has_left(&l->segment, (int32_t)(s - l->seat));
    }
    if (got < 0) {
        int fine = s->returned && s->result == 0 && s->status == DPAR_OK;
        s->ending = fine ? 0 : s->returned ? 1 : DPARI_ENDING_UNKNOWN;
    } else {
        s->ending = WIFSIGNALED(ending) ? -WTERMSIG(ending) : WEXITSTATUS(ending);
    }
    return 1;
}

static void dpari_launch_reap(dpari_launch *l)
{
    int32_t r;
    for (r = 0; r < l->n; r++) {
        dpari_seat *s = &l->seat[r];
        if (s->gone || (l->watching && l->watch[r].revents == 0) || !dpari_seat_reap(l, s)) {
            continue;
        }
        l->left--;
        l->nap = 0.0;
        if (l->watching) {
            close(l->watch[r].fd);
            l->watch[r].fd = -1;
        }
        dpari_segment_ended(&l->segment, r, s->ending);
        s->found = dpari_os_now();
        s->ended = s->ended > 0.0 ? s->ended : s->found;
    }
}

/* Returns when the first rank failed that the others have not shrunk away, or 0 if none has. */
static double dpari_launch_failed(const dpari_launch *l)
{
    double first = 0.0;
    int32_t r;
    for (r = 0; r < l->n; r++) {
        const dpari_seat *s = &l->seat[r];
        if (s->gone && dpari_seat_failed(s) && !dpari_segment_is_behind(&l->segment, r) &&
            (first <= 0.0 || s->found < first)) {
            first = s->found;
        }
    }
    return first;
}

/* Returns the time since which no rank has ended and the remaining ranks have done nothing. */
static double dpari_launch_still(dpari_launch *l, double now)
{
    double last = 0.0;
    int32_t r;
    for (r = 0; r < l->n; r++) {
        dpari_seat *s = &l->seat[r];
        const uint64_t pulse = dpari_segment_pulse(&l->segment, r);
        if (!s->gone && (pulse != s->pulse || s->found <= 0.0)) {
            s->pulse = pulse;
            s->found = now;
        }
        last = dpari_mostf(last, s->found);
    }
    return last;
}

/* True if this rank has neither begun an operation, nor waited in one, nor used its processor since
 * the last look. */
static int dpari_launch_is_silent(dpari_launch *l, int32_t rank)
{
    dpari_seat *s = &l->seat[rank];
    const uint64_t pulse = dpari_segment_pulse(&l->segment, rank);
    const int64_t used = dpari_os_used((int32_t)s->pid);
    const int silent = used >= 0 && used == s->used && pulse == s->heard;
    s->heard = pulse;
    s->used = used;
    return silent;
}

/* True if it sleeps until an event. One that a debugger has stopped or that waits for a disk does
 * not. */
static int dpari_seat_sleeps(const dpari_seat *s)
{
    return dpari_job_process(s->pid, DPARI_PROCESS_STATE) == 'S';
}

/* Counts for how long all ranks have been silent. A library whose threads were lost in the fork
 * waits for them in every rank, outside of dpar, and nobody's deadline passes. Only where this
 * process had such threads: otherwise ranks that wait for something of their own are let wait. */
static void dpari_launch_listen(dpari_launch *l)
{
    const double now = dpari_os_now();
    int32_t r, silent = l->threads > 1 && l->left == l->n;
    for (r = 0; r < l->n && l->threads > 1; r++) {
        if (!l->seat[r].gone && !dpari_launch_is_silent(l, r)) {
            silent = 0;
        }
    }
    l->silent_s = silent ? l->silent_s + (now - l->looked) : 0.0;
    l->looked = now;
    if (l->timeout_s > 0.0 && l->silent_s >= l->timeout_s) {
        for (r = 0; r < l->n && silent; r++) {
            silent = dpari_seat_sleeps(&l->seat[r]);
        }
        l->silent = silent;
        l->silent_s = silent ? l->silent_s : 0.0;
    }
}

/* Returns the seconds until the ranks that are left are killed; < 0: they are not, as things are.
 * Without this a rank that hangs would keep this process waiting for ever, after the others have
 * seen their deadline pass and have returned. */
static double dpari_launch_left(dpari_launch *l)
{
    const double now = dpari_os_now(), failed = dpari_launch_failed(l);
    const double still = l->left < l->n ? dpari_launch_still(l, now) : 0.0;
    if (failed > 0.0) {
        return dpari_mostf(failed + l->grace_s - now, 0.0);
    }
    if (l->silent) {
        return 0.0;
    }
    if (still > 0.0 && l->timeout_s > 0.0) {
        return dpari_mostf(still + dpari_mostf(l->timeout_s, l->grace_s) - now, 0.0);
    }
    return -1.0;
}

static void dpari_launch_kill(dpari_launch *l)
{
    int32_t r;
    for (r = 0; r < l->n; r++) {
        /* one that writes a core file ends when that is done, with the signal that says why */
        if (!l->seat[r].gone && !l->seat[r].killed && !dpari_os_dumps((int32_t)l->seat[r].pid)) {
            kill(l->seat[r].pid, SIGKILL);
            l->seat[r].killed = 1;
        }
    }
}

/* A descriptor of each rank that becomes readable when it ends; without them (an old kernel, too
 * many files) the supervisor naps between looks. */
static void dpari_launch_watch(dpari_launch *l)
{
    int32_t r;
    l->watching = 0;
#if defined(__linux__) && defined(SYS_pidfd_open)
    l->watching = 1;
    for (r = 0; r < l->n; r++) {
        l->watch[r].events = POLLIN;
        l->watch[r].fd = (int)syscall(SYS_pidfd_open, l->seat[r].pid, 0U);
        if (l->watch[r].fd < 0) {
            l->watching = 0;
            break;
        }
    }
    if (!l->watching) {
        while (--r >= 0) {
            close(l->watch[r].fd);
        }
    }
#else
    (void)r;
#endif
}

/* Until a rank may have ended, at most `seconds`. */
static void dpari_launch_pause(dpari_launch *l, double seconds)
{
    int32_t r;
    if (l->watching) {
        double ms = seconds * 1e3 + 1.0;
        if (poll(l->watch, (nfds_t)l->n, ms < 200.0 ? (int)ms : 200) < 0) {
            for (r = 0; r < l->n; r++) { /* interrupted: look at all */
                l->watch[r].revents = l->watch[r].fd >= 0 ? POLLIN : 0;
            }
        }
        return;
    }
    l->nap = dpari_leastf(l->nap < 50e-6 ? 50e-6 : 1.5 * l->nap, 5e-3);
    dpari_os_sleep(dpari_leastf(l->nap, seconds));
}

/* Ranks have as much longer as this process, and so the whole job, was suspended. They have not
 * been silent in that time, either. */
static void dpari_launch_forgive(dpari_launch *l)
{
    const double suspended = dpari_os_suspended(&l->forgiven, dpari_os_now());
    l->looked += suspended;
    for (int32_t r = 0; r < l->n && suspended > 0.0; r++) {
        l->seat[r].found += l->seat[r].found > 0.0 ? suspended : 0.0;
    }
}

/* Seconds to the next look. */
static double dpari_launch_look(const dpari_launch *l)
{
    if (l->threads > 1 && l->timeout_s > 0.0) {
        return dpari_leastf(1.0, dpari_mostf(l->timeout_s - l->silent_s, 0.01));
    }
    return 1.0;
}

static void dpari_launch_supervise(dpari_launch *l)
{
    dpari_launch_watch(l);
    l->looked = dpari_os_now();
    while (l->left > 0) {
        const double left = dpari_launch_left(l);
        dpari_launch_pause(l, left < 0.0 ? dpari_launch_look(l) : left);
        dpari_launch_forgive(l);
        dpari_launch_reap(l);
        dpari_launch_listen(l);
        if (l->left > 0 && dpari_launch_left(l) == 0.0) {
            l->hung = dpari_launch_failed(l) <= 0.0 && !l->silent;
            dpari_launch_kill(l);
        }
    }
}

DPARI_STATIC_NOINLINE DPARI_COLD dpar_status dpari_launch_fork(dpari_launch *l, dpar_why *why)
{
    int32_t r, started;
    int number = 0;
    dpar_text t;
    l->parent = getpid();
    l->threads = 1;
    if (l->image == NULL) {
        dpari_os_pause_openmp(DPARI_OPENMP_SOFT);
        l->threads = dpari_job_process(l->parent, DPARI_PROCESS_THREADS);
    }
    fflush(NULL); /* what is in the buffers now is printed once, by this process */
    for (started = 0; started < l->n; started++) {
        pid_t pid = fork();
        if (pid == 0) {
            dpari_seat_bind(l);
            if (l->image != NULL) {
                dpari_seat_exec(l, started);
            }
            dpari_seat_live(l, started);
        }
        if (pid < 0) {
            number = errno;
            break;
        }
        l->seat[started].pid = pid;
    }
    if (started == l->n) {
        dpari_launch_supervise(l);
        return DPAR_OK;
    }
    for (r = 0; r < started; r++) { /* they wait for the missing ones and have not begun */
        kill(l->seat[r].pid, SIGKILL);
        while (waitpid(l->seat[r].pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    dpar_text_init(&t, why != NULL ? why->text : NULL, why != NULL ? sizeof why->text : 0);
    dpari_text_print(&t, "rank %d of %d could not be forked: ", started, l->n);
    dpari_os_error(&t, number);
    return DPAR_E_SYSTEM;
}

static void *dpari_seat_thread(void *at)
{
    dpari_seat *s = (dpari_seat *)at;
    dpari_seat_run(s->launch, (int32_t)(s - s->launch->seat));
    return NULL;
}

static dpar_status dpari_launch_threads(dpari_launch *l, dpar_why *why)
{
    int32_t r, started;
    for (started = 0; started < l->n; started++) {
        dpari_seat *s = &l->seat[started];
        s->launch = l;
        if (dpari_os_thread(&s->thread, dpari_seat_thread, s) != 0) {
            break;
        }
    }
    for (r = started; r < l->n; r++) {
        dpari_segment_ended(&l->segment, r, 1);
    }
    for (r = 0; r < started; r++) {
        dpari_os_join(l->seat[r].thread);
    }
    if (started < l->n) {
        return dpari_say(DPAR_E_SYSTEM, why, "thread # of # could not be started", started, l->n, 0,
                         0);
    }
    return DPAR_OK;
}

/* ---- what is said of it -----------------------------------------------------------------------
 */

static const char *dpari_signal_name(int number)
{
    switch (number) {
    case SIGHUP: return "SIGHUP";
    case SIGINT: return "SIGINT";
    case SIGQUIT: return "SIGQUIT";
    case SIGILL: return "SIGILL";
    case SIGTRAP: return "SIGTRAP";
    case SIGABRT: return "SIGABRT";
    case SIGBUS: return "SIGBUS";
    case SIGFPE: return "SIGFPE";
    case SIGKILL: return "SIGKILL";
    case SIGSEGV: return "SIGSEGV";
    case SIGPIPE: return "SIGPIPE";
    case SIGALRM: return "SIGALRM";
    case SIGTERM: return "SIGTERM";
    case SIGUSR1: return "SIGUSR1";
    case SIGUSR2: return "SIGUSR2";
    case SIGXCPU: return "SIGXCPU";
    default: return "?";
    }
}

/* The end of a rank that is a process of its own, which no signal killed. */
static void dpari_seat_say_program(const dpari_seat *s, int32_t rank, dpar_text *t)
{
    if (s->status != DPAR_OK) {
        dpari_text_print(t, "rank %d: %s", rank, s->why.text);
    } else if (s->ending == DPARI_ENDING_UNKNOWN) {
        dpari_text_print(
            t, "rank %d ended before dpar_finalize (SIGCHLD is ignored, so nobody knows how)",
            rank);
    } else {
        dpari_text_print(t, "rank %d ended with exit status %d%s", rank, s->ending,
                         s->returned ? "" : " before dpar_finalize");
    }
}

/* "rank 2 was killed by signal 9 (SIGKILL)". */
static void dpari_seat_say(const dpari_launch *l, int32_t rank, dpar_text *t)
{
    const dpari_seat *s = &l->seat[rank];
    if (l->image != NULL && s->ending >= 0) {
        dpari_seat_say_program(s, rank, t);
        return;
    }
    dpari_text_print(t, "rank %d", rank);
    if (s->ending < 0) {
        dpari_text_print(t, "%s%d (%s)",
                         s->returned ? " returned and was then killed by signal "
                                     : " was killed by signal ",
                         -s->ending, dpari_signal_name(-s->ending));
    } else if (s->status != DPAR_OK) {
        dpari_text_print(t, "%s%s",
                         s->returned ? " returned 0, but had not waited for all that it had posted"
                                     : " could not join: ",
                         s->returned ? "" : s->why.text);
    } else if (s->returned) {
        dpari_text_print(t, " returned %d", s->result);
    } else if (s->ending == DPARI_ENDING_UNKNOWN) {
        dpar_text_put(t, " ended before its function returned (SIGCHLD is ignored, so nobody "
                         "knows how)");
    } else {
        dpari_text_print(t, " left the program with status %d before its function returned",
                         s->ending);
    }
}

/* The rank whose failure came first; one that only followed another's counts last. -1: none. */
static int32_t dpari_launch_culprit(const dpari_launch *l)
{
    int32_t r, first = -1;
    for (r = 0; r < l->n; r++) {
        const dpari_seat *s = &l->seat[r], *f = &l->seat[first < 0 ? 0 : first];
        if (!dpari_seat_failed(s) || s->killed) {
            continue;
        }
        if (first < 0 || s->follows < f->follows ||
            (s->follows == f->follows && s->ended < f->ended)) {
            first = r;
        }
    }
    return first;
}

static const char *dpari_launch_killed_why(const dpari_launch *l)
{
    return l->hung ? "killed because they did nothing more when others had ended: rank "
                   : "killed because they went on: rank ";
}

static dpar_status dpari_launch_say_silent(const dpari_launch *l, dpar_why *why)
{
    dpar_text t;
    dpar_text_init(&t, why != NULL ? why->text : NULL, why != NULL ? sizeof why->text : 0);
    dpari_text_print(&t,
                     "no rank made a call or used its processor for %.1f s. This process had %ld "
                     "threads when it forked its ranks, which not all libraries survive: launch "
                     "before they start threads, or use dpar_init_or_launch",
                     l->timeout_s, l->threads);
    return DPAR_E_TIMEOUT;
}

static dpar_status dpari_launch_judge(const dpari_launch *l, dpar_why *why)
{
    int32_t r, killed = 0, first = dpari_launch_culprit(l);
    dpar_why broke;
    dpar_text t;
    if (l->silent) {
        return dpari_launch_say_silent(l, why);
    }
    if (first < 0 && !l->hung) {
        return DPAR_OK;
    }
    dpar_text_init(&t, why != NULL ? why->text : NULL, why != NULL ? sizeof why->text : 0);
    if (first >= 0) {
        dpari_seat_say(l, first, &t);
        if (l->seat[first].follows && dpari_segment_broke(&l->segment, &broke)) {
            dpari_text_print(&t, " after: %s", broke.text);
        }
        dpar_text_put(&t, dpari_segment_is_behind(&l->segment, first)
                              ? "; others have gone on without it"
                              : "");
    }
    for (r = 0; r < l->n; r++) {
        if (l->seat[r].killed && dpari_seat_failed(&l->seat[r]) && killed++ < 8) {
            dpari_text_print(&t, "%s%s%d",
                             killed > 1   ? ", "
                             : first >= 0 ? "; "
                                          : "",
                             killed > 1 ? "" : dpari_launch_killed_why(l), r);
        }
    }
    dpar_text_put(&t, killed > 8 ? ", ..." : "");
    if (l->threads > 1 && (killed > 0 || (first >= 0 && l->seat[first].ending < 0))) {
        dpari_text_print(&t, "; this process had %ld threads when it forked its ranks", l->threads);
    }
    return first < 0 && killed == 0 ? DPAR_OK : DPAR_E_PEER;
}

/* ---- all of it --------------------------------------------------------------------------------
 */

/* What the program returns for a rank that failed; 0 where it says nothing itself. */
static int32_t dpari_seat_result(const dpari_launch *l, const dpari_seat *s)
{
    if (l->image != NULL) {
        return s->ending > 0 && s->ending < 256 ? s->ending : 0;
    }
    return s->returned ? s->result : 0;
}

static dpar_status dpari_launch_run(dpari_launch *l, dpar_why *why)
{
    dpar_status status = dpari_segment_make(&l->segment, l->n, l->options, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (l->n == 1 && l->image == NULL) {
        dpari_seat_run(l, 0);
    } else if (l->options != NULL && l->options->threads) {
        status = dpari_launch_threads(l, why);
    } else {
        status = dpari_launch_fork(l, why);
    }
    if (status == DPAR_OK) {
        const int32_t first = dpari_launch_culprit(l);
        const int32_t result = first >= 0 ? dpari_seat_result(l, &l->seat[first]) : 0;
        l->verdict.said = dpari_segment_said(&l->segment);
        l->verdict.result = result != 0 ? result : 1;
        status = dpari_launch_judge(l, why);
    }
    dpari_segment_close(&l->segment);
    return status;
}

/* Starts all ranks and waits for them. n, options and the function are set in l; the rest is
 * zero. */
static dpar_status dpari_launch_all(dpari_launch *l, dpari_verdict *verdict, dpar_why *why)
{
    const dpar_world_desc *options = l->options;
    const int64_t bytes = l->n * (int64_t)(sizeof(dpari_seat) + sizeof(struct pollfd));
    dpar_status status;
    l->verdict = *verdict;
    l->seat = (dpari_seat *)dpari_launch_shared(bytes);
    if (l->seat == NULL) {
        return dpari_say(DPAR_E_SYSTEM, why, "# bytes to watch # ranks: there is no memory", bytes,
                         l->n, 0, 0);
    }
    l->watch = (struct pollfd *)(void *)(l->seat + l->n);
    l->left = l->n;
    l->timeout_s = options == NULL || options->timeout_s == 0.0 ? 300.0 : options->timeout_s;
    l->grace_s = options != NULL && options->grace_s > 0.0 ? options->grace_s : 10.0;
    status = dpari_launch_run(l, why);
    *verdict = l->verdict;
    dpari_os_unmap(l->seat, bytes);
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_launch_judged(int32_t n, dpar_main fn, void *arg,
                                                     const dpar_world_desc *options,
                                                     dpari_verdict *verdict, dpar_why *why)
{
    const dpar_status status = dpari_launch_check(n, fn, options, why);
    dpari_launch l;
    verdict->said = 0;
    verdict->result = 1;
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&l, sizeof l);
    l.n = n;
    l.fn = fn;
    l.arg = arg;
    l.options = options;
    return dpari_launch_all(&l, verdict, why);
}

DPARI_API DPARI_COLD dpar_status dpari_launch_programs(int32_t n, char **words,
                                                       const dpar_world_desc *options,
                                                       dpari_verdict *verdict, dpar_why *why)
{
    dpari_image image;
    dpari_launch l;
    dpar_status status = dpari_launch_options(options, why);
    verdict->said = 0;
    verdict->result = 1;
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&image, sizeof image);
    dpari_zero(&l, sizeof l);
    l.n = n;
    l.image = &image;
    l.options = options;
    status = dpari_image_make(&image, &l, words, why);
    if (status == DPAR_OK) {
        status = dpari_launch_all(&l, verdict, why);
        dpari_os_unmap(image.environment, image.bytes);
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_launch(int32_t ranks, dpar_main fn, void *arg,
                                            const dpar_world_desc *desc, dpar_why *why)
{
    dpari_verdict verdict;
    return dpari_launch_judged(ranks, fn, arg, desc, &verdict, why);
}

/* ---- ranks that somebody else started ---------------------------------------------------------
 */

DPARI_API dpar_status dpari_timeout_here(const dpari_site *site, dpar_world_desc *o, dpar_why *why)
{
    const char *text = dpari_site_env(site, "DPAR_TIMEOUT");
    double value;
    if (text != NULL) {
        size_t n = dpari_length(text);
        if (n == 0 || dpari_text_number(text, n, &value) != n || !dpari_finite(value)) {
            return dpari_job_says(DPAR_E_ARG, why, "DPAR_TIMEOUT is \"", text,
                                  "\", which is no number of seconds", NULL);
        }
        o->timeout_s = value;
    }
    return DPAR_OK;
}

/* Across nodes there is no engine in this header. */
#define DPARI_OTHER_NODES                                                                          \
    "across nodes add dpar_mpi.h and compile with mpicc, or dpar_nccl.h for GPUs"

/* All ranks on one node, as far as the launcher says where they are. */
static dpar_status dpari_init_one_node(const dpar_launcher_info *job, int32_t nodes, dpar_why *why)
{
    const char *name = dpari_launcher_name(job->launcher);
    if (job->size > DPARI_MAX_RANKS) {
        return dpari_say_word(
            DPAR_E_ARG, why,
            "@ says # ranks: dpar_comm.h joins at most # of one node; " DPARI_OTHER_NODES, name,
            DPARI_WHOLE, job->size, DPARI_MAX_RANKS, 0, 0);
    }
    if (job->local_size > 0 && job->local_size != job->size) {
        return dpari_say_word(DPAR_E_ARG, why,
                              "@ says # ranks, # of them on this node: dpar_comm.h joins ranks "
                              "of one node; " DPARI_OTHER_NODES,
                              name, DPARI_WHOLE, job->size, job->local_size, 0, 0);
    }
    if (nodes > 1) {
        return dpari_say_word(DPAR_E_ARG, why,
                              "@ says # ranks on # nodes: dpar_comm.h joins ranks of one "
                              "node; " DPARI_OTHER_NODES,
                              name, DPARI_WHOLE, job->size, nodes, 0, 0);
    }
    return DPAR_OK;
}

/* The segment that whoever started this rank has made. Its copy of the descriptor is what is tried
 * and kept: a second dpar_init may find another file under the old number, which stays as it is. */
static dpar_status dpari_job_inherit(int fd, dpari_segment *segment, dpar_why *why)
{
    const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    dpar_status status;
    if (copy < 0) {
        return dpari_os_why(why, "the memory that dpar_init_or_launch made for this rank", 0,
                            errno);
    }
    status = dpari_segment_open(segment, copy, why);
    if (status == DPAR_OK) {
        close(fd);
    }
    return status;
}

/* The memory in which the ranks of this job find each other. */
static dpar_status dpari_job_segment_find(const dpar_launcher_info *job,
                                          const dpar_world_desc *options, dpari_segment *segment,
                                          dpar_why *why)
{
    dpari_site here;
    int fd;
    if (job->size == 1) {
        return dpari_segment_make(segment, 1, options, why);
    }
    dpari_site_here(&here);
    fd = job->launcher == DPAR_LAUNCHER_DPAR ? dpari_job_segment(&here) : -1;
    if (fd >= 0) {
        return dpari_job_inherit(fd, segment, why);
    }
    return dpari_meet_ranks(job, options, segment, why);
}

DPARI_API DPARI_COLD dpar_status dpari_job_join(const dpar_launcher_info *job,
                                                const dpar_world_desc *options, dpar_comm **world,
                                                dpar_why *why)
{
    dpari_segment segment;
    dpar_status status = dpari_job_segment_find(job, options, &segment, why);
    if (status == DPAR_OK) {
        status = dpari_shm_join(&segment, job->rank, 1, options, world, why);
        if (status != DPAR_OK) {
            dpari_segment_close(&segment);
        }
    }
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_job_try(const dpar_launcher_info *job,
                                               const dpar_world_desc *options, dpar_why *why)
{
    dpari_segment segment;
    dpar_status status = dpari_launch_options(options, why);
    if (status == DPAR_OK && job->size > DPARI_MAX_RANKS) {
        return dpari_say(DPAR_E_ARG, why, "# ranks: shared memory joins at most #", job->size,
                         DPARI_MAX_RANKS, 0, 0);
    }
    if (status == DPAR_OK && job->rank == 0) {
        status = dpari_segment_make(&segment, job->size, options, why);
        if (status == DPAR_OK) {
            dpari_segment_close(&segment);
        }
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_init(dpar_comm **world, const dpar_world_desc *options,
                                          dpar_why *why)
{
    dpar_launcher_info job;
    dpar_world_desc o;
    dpari_site site;
    int32_t nodes = 0;
    dpar_status status;
    if (world == NULL) {
        return dpari_say(DPAR_E_ARG, why, "dpar_init: world is NULL", 0, 0, 0, 0);
    }
    dpari_zero(&o, sizeof o);
    o = options != NULL ? *options : o;
    o.threads = 0;
    dpari_site_here(&site);
    status = dpari_launch_options(&o, why);
    status = status == DPAR_OK ? dpari_timeout_here(&site, &o, why) : status;
    status = status == DPAR_OK ? dpari_job_here(&job, &nodes, why) : status;
    status = status == DPAR_OK ? dpari_init_one_node(&job, nodes, why) : status;
    return status == DPAR_OK ? dpari_job_join(&job, &o, world, why) : status;
}
