/* SPDX-License-Identifier: MIT-0 */
/* Starts ranks on this machine and supervises them (dpar_launch, dpar_launch_main,
 * dpar_init_or_launch), or joins ranks that a launcher has started (dpar_init).
 *
 * Starting. The calling process makes the shared segment, then one rank after the other: a forked
 * process that runs the user's function, a new process of the same program that inherits the
 * segment as an open file (dpar_init_or_launch), or a thread. A single rank of dpar_launch runs in
 * the calling process. Each rank has a seat, a record in memory that all processes share. The rank
 * writes into it what its function returned, and the supervisor writes how the process ended.
 *
 * Supervising processes. The caller sleeps until a rank may have ended (a pidfd for each rank, or
 * short naps), and then
 *   1. reaps the ranks that have ended and marks them dead in the segment, which ends all waits for
 *      them at once;
 *   2. once a rank has failed, gives the others grace_s to end, and then kills them, unless they
 *      have shrunk the failed rank away;
 *   3. once a rank has ended, kills the others if none of them has made progress for the longer of
 *      timeout_s and grace_s. Progress means that the rank's pulse changes, a number that advances
 *      with each operation that it begins and while it waits in one (dpari_segment_pulse);
 *   4. kills all ranks if none has ended, this process had several threads when it forked, and for
 *      timeout_s no rank has advanced its pulse or used its processor, and all of them are asleep.
 * Threads cannot be killed, and are only joined.
 *
 * Result. The rank that failed first on its own, rather than because another one had failed,
 * determines status and message.
 *
 * Joining. dpar_init opens the segment that it inherited, if dpar_init_or_launch started this
 * process; otherwise the ranks of the job agree on one through a socket (rendezvous.c). dpar_mpi.h
 * also uses dpari_job_join, for ranks that are all on one node. */
#include "launch.h"
#include "../base/base_private.h"
#include "comm.h"
#include "flight.h"
#include "group.h"
#include "job.h"
#include "launch_private.h"
#include "rendezvous.h"
#include "os.h"
#include "shm.h"
#include "world.h"

/* The state of one rank in a launch, in memory that the rank and the supervisor share. The rank
 * writes the first four fields, `ended` and `follows` before it ends, the supervisor the rest. */
typedef struct dpari_seat {
    int32_t returned;   /* 1 if fn has returned */
    int32_t result;     /* what fn returned; 0 is success */
    dpar_status status; /* of joining and closing */
    dpar_why why;       /* why joining, closing or starting the program failed */
    double ended;       /* s, when fn returned or the rank was found ended; orders the failures */
    double found;       /* s, when it was found ended; until then, when its pulse last changed */
    uint64_t pulse;     /* dpari_segment_pulse at `found` */
    uint64_t heard;     /* the pulse when the supervisor last checked whether all are silent */
    int64_t used;       /* ns of processor time that it had used then */
    int32_t follows;    /* 1 if its communicator was already broken by another rank's failure */
    pid_t pid;
    dpari_thread thread;
    int32_t gone;                /* 1 if it has ended and was waited for */
    int32_t ending;              /* exit status, or -signal, or DPARI_ENDING_UNKNOWN */
    int32_t killed;              /* 1 if the supervisor killed it */
    struct dpari_launch *launch; /* for a thread, to which only its seat is passed */
} dpari_seat;

/* How to start ranks that are new processes of this program. The environment begins with dpar's own
 * variables, in `text`, whose numbers each child fills in after the fork. */
enum { DPARI_IMAGE_TEXTS = 5 };
typedef struct dpari_image {
    char path[4096];
    char **words;
    char **environment;
    int64_t bytes; /* size of `environment` */
    char text[DPARI_IMAGE_TEXTS][48];
} dpari_image;

typedef struct dpari_launch {
    int32_t n, left; /* number of ranks, and of ranks that have not ended */
    dpar_main fn;
    void *arg;
    dpari_image *image; /* NULL if ranks run fn */
    const dpar_world_desc *options;
    double grace_s, timeout_s; /* timeout_s is 0 if there is no deadline */
    double forgiven;           /* s, when it last checked whether the whole job was suspended */
    pid_t parent;
    int64_t threads;      /* threads of this process when it forked; 1 if that does not matter */
    double looked;        /* s, when it last checked whether ranks are silent */
    double silent_s;      /* s for which all ranks have been silent */
    int32_t silent;       /* 1 if all ranks were killed because they were silent */
    int32_t hung;         /* 1 if the remaining ranks were killed because they made no progress */
    double nap;           /* s to sleep next if there are no pidfds */
    int32_t watching;     /* 1 if every rank has a pidfd */
    struct pollfd *watch; /* [n]; fd is -1 if the rank has ended */
    dpari_seat *seat;     /* [n] */
    dpari_segment segment;
} dpari_launch;

/* The exit status is unknown because the system discarded it, as it does if the program ignores
 * SIGCHLD. The value is larger than any exit status. */
enum { DPARI_ENDING_UNKNOWN = 1 << 20 };

/* Checks the options that matter to a launch. dpari_segment_make checks the others. */
static dpar_status dpari_launch_options(const dpar_world_desc *options, dpar_why *why)
{
    if (options == NULL) {
        return DPAR_OK;
    }
    if (!(options->grace_s >= 0.0 && options->grace_s <= 1e9)) {
        return dpari_wrong(why, "grace_s must be 0 .. 1e9 seconds");
    }
    if (!dpari_finite(options->timeout_s)) {
        return dpari_wrong(why, "timeout_s is not a finite number");
    }
    if (options->threads != 0 && options->threads != 1) {
        return dpari_wrong(why, "threads must be 0 or 1, not %d", options->threads);
    }
    return DPAR_OK;
}

static dpar_status dpari_launch_check(int32_t n, dpar_main fn, const dpar_world_desc *options,
                                      dpar_why *why)
{
    if (fn == NULL) {
        return dpari_wrong(why, "dpar_launch: the function is NULL");
    }
    if (n < 1 || n > DPARI_MAX_RANKS) {
        return dpari_wrong(why, "dpar_launch: %d ranks, but 1 .. %d are allowed", n,
                           (int32_t)DPARI_MAX_RANKS);
    }
    return dpari_launch_options(options, why);
}

/* ---- one rank -------------------------------------------------------------------------------- */

/* Joins the world, runs fn, closes the communicator, and stores the results in the seat. */
static void dpari_seat_run(dpari_launch *launch, int32_t rank)
{
    dpari_seat *seat = &launch->seat[rank];
    dpar_comm *world = NULL;
    dpar_why why;
    dpar_text out;
    dpar_status status;
    int result, broken;
    seat->status = dpari_shm_join(&launch->segment, rank, 0, launch->options, &world, &seat->why);
    if (seat->status != DPAR_OK) {
        seat->follows = seat->status == DPAR_E_PEER;
        seat->ended = dpari_os_now();
        /* needed for threads, whose end no supervisor reports */
        dpari_segment_ended(&launch->segment, rank, 1);
        return;
    }
    dpari_shm_lend(world, 1);
    result = launch->fn(world, launch->arg);
    dpari_shm_lend(world, 0);
    broken = world->status != DPAR_OK;
    seat->ended = dpari_os_now();
    seat->follows = broken;
    seat->result = result;
    seat->returned = 1;
    if (result != 0) { /* so that the others need not wait until the supervisor notices it */
        dpari_text_why(&out, &why);
        dpari_text_print(&out, "rank %d returned %d", rank, result);
        dpari_put_failed(&out, dpari_world_of(world), rank);
        dpar_comm_abort(world, DPAR_E_PEER, why.text);
    }
    status = dpar_comm_free(world);
    /* DPAR_E_ARG means that operations were not waited for. If the communicator was broken before,
     * the rank that broke it has the better message. */
    if (status == DPAR_E_ARG && !broken) {
        seat->status = status;
        dpari_copy_text(seat->why.text, sizeof seat->why.text, dpar_status_text(status),
                        sizeof seat->why.text);
        seat->ended = dpari_os_now();
        seat->follows = status == DPAR_E_PEER;
    }
}

/* On Linux, makes this child die with the process that launched it. */
static void dpari_seat_bind(const dpari_launch *launch)
{
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, (unsigned long)SIGKILL, 0UL, 0UL, 0UL);
#endif
    if (getppid() != launch->parent) {
        _exit(1); /* the parent died before the line above */
    }
}

/* Runs a forked rank to its end; does not return. Uses _exit because functions registered with
 * atexit should run only once, in the process that launched. */
static void dpari_seat_live(dpari_launch *launch, int32_t rank)
{
    int fine;
    dpari_seat_run(launch, rank);
    fine = launch->seat[rank].returned && launch->seat[rank].result == 0 &&
           launch->seat[rank].status == DPAR_OK;
    dpari_os_pause_openmp(DPARI_OPENMP_HARD);
    fflush(NULL);
    _exit(fine ? 0 : 1);
}

/* ---- ranks that are new processes of this program ----------------------------------------------
 * A fork copies only one thread, so locks that other threads hold stay locked and work that they
 * should do is never done. A new process does not depend on the threads of its parent: it runs main
 * from the start, finds in its environment which rank it is (dpari_job_join), and ends by itself.
 * It inherits the segment of the launching process as an open file, so the supervisor watches it in
 * the same way as forked ranks. */

/* True if this entry of the environment sets a variable that dpari_image_fill also sets. */
static int dpari_image_sets(const dpari_image *image, const char *entry)
{
    for (int i = 0; i < DPARI_IMAGE_TEXTS; i++) {
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

/* Writes text i as NAME=value, or as NAME=value.more unless more is negative. */
static void dpari_image_put(dpari_image *image, int i, const char *name, int64_t value,
                            int64_t more)
{
    dpar_text out;
    dpar_text_init(&out, image->text[i], sizeof image->text[i]);
    dpari_text_print(&out, "%s=%ld", name, value);
    if (more >= 0) {
        dpari_text_print(&out, ".%ld", more);
    }
}

static void dpari_image_fill(dpari_image *image, const dpari_launch *launch, int32_t rank)
{
    dpari_image_put(image, 0, "DPAR_RANK", rank, -1);
    dpari_image_put(image, 1, "DPAR_SIZE", launch->n, -1);
    dpari_image_put(image, 2, "DPAR_LOCAL_RANK", rank, -1);
    dpari_image_put(image, 3, "DPAR_LOCAL_SIZE", launch->n, -1);
    dpari_image_put(image, 4, DPARI_JOB_SEGMENT, launch->segment.fd, (int64_t)getpid());
}

/* Copies the environment of this process, in which dpar's variables replace those of the same
 * names. */
static dpar_status dpari_image_make(dpari_image *image, const dpari_launch *launch, char **words,
                                    dpar_why *why)
{
    char **mine = dpari_os_environment();
    int64_t count = 0, used = 0;
    if (words == NULL || words[0] == NULL || dpari_os_program(words[0], image->path, 4096) != 0) {
        return dpari_wrong(why, "%d ranks cannot be started: argv[0] does not name this program",
                           launch->n);
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
    dpari_image_fill(image, launch, 0);
    for (int i = 0; i < DPARI_IMAGE_TEXTS; i++) {
        image->environment[used++] = image->text[i];
    }
    for (int64_t i = 0; i < count; i++) {
        if (!dpari_image_sets(image, mine[i])) {
            image->environment[used++] = mine[i];
        }
    }
    return DPAR_OK;
}

/* Becomes a new process of the program; does not return. If that fails, the seat has the reason. */
static void dpari_seat_exec(dpari_launch *launch, int32_t rank)
{
    dpari_image *image = launch->image;
    dpari_seat *seat = &launch->seat[rank];
    dpar_text out;
    dpari_image_fill(image, launch, rank);
    fcntl(launch->segment.fd, F_SETFD, 0); /* otherwise execve would close it */
    execve(image->path, image->words, image->environment);
    dpari_text_why(&out, &seat->why);
    dpari_text_print(&out, "%s cannot be started: ", image->path);
    dpari_os_error(&out, errno);
    seat->status = DPAR_E_SYSTEM;
    _exit(127);
}

/* ---- the supervisor -------------------------------------------------------------------------- */

static int dpari_seat_failed(const dpari_seat *seat)
{
    return !seat->returned || seat->result != 0 || seat->status != DPAR_OK || seat->ending != 0;
}

/* Returns 1 if a rank has ended, and records how it ended. Waits for each rank by its own process
 * id, because the program may have other children that it waits for itself. */
static int dpari_seat_reap(const dpari_launch *launch, dpari_seat *seat)
{
    int ending = 0;
    pid_t got;
    do {
        got = waitpid(seat->pid, &ending, WNOHANG);
    } while (got < 0 && errno == EINTR);
    if (got == 0) {
        return 0;
    }
    seat->gone = 1;
    if (launch->image != NULL) { /* a forked rank has written this itself */
        seat->returned = dpari_segment_has_left(&launch->segment, (int32_t)(seat - launch->seat));
    }
    if (got > 0) {
        seat->ending = WIFSIGNALED(ending) ? -WTERMSIG(ending) : WEXITSTATUS(ending);
    } else if (!seat->returned) { /* the exit status was discarded */
        seat->ending = DPARI_ENDING_UNKNOWN;
    } else {
        seat->ending = seat->result != 0 || seat->status != DPAR_OK;
    }
    return 1;
}

/* Reaps the ranks that have ended, and ends the waits of the others for them. */
static void dpari_launch_reap(dpari_launch *launch)
{
    for (int32_t r = 0; r < launch->n; r++) {
        dpari_seat *seat = &launch->seat[r];
        if (seat->gone || (launch->watching && launch->watch[r].revents == 0) ||
            !dpari_seat_reap(launch, seat)) {
            continue;
        }
        launch->left--;
        launch->nap = 0.0;
        if (launch->watching) {
            close(launch->watch[r].fd);
            launch->watch[r].fd = -1;
        }
        dpari_segment_ended(&launch->segment, r, seat->ending);
        seat->found = dpari_os_now();
        if (!(seat->ended > 0.0)) {
            seat->ended = seat->found;
        }
    }
}

/* Returns the time at which the first rank failed that the others have not shrunk away, or 0 if
 * there is none. */
static double dpari_launch_failed(const dpari_launch *launch)
{
    double first = 0.0;
    for (int32_t r = 0; r < launch->n; r++) {
        const dpari_seat *seat = &launch->seat[r];
        if (seat->gone && dpari_seat_failed(seat) &&
            !dpari_segment_is_behind(&launch->segment, r) &&
            (first <= 0.0 || seat->found < first)) {
            first = seat->found;
        }
    }
    return first;
}

/* Returns the last time at which a rank ended or a remaining rank made progress. */
static double dpari_launch_still(dpari_launch *launch, double now)
{
    double last = 0.0;
    for (int32_t r = 0; r < launch->n; r++) {
        dpari_seat *seat = &launch->seat[r];
        const uint64_t pulse = dpari_segment_pulse(&launch->segment, r);
        if (!seat->gone && (pulse != seat->pulse || seat->found <= 0.0)) {
            seat->pulse = pulse;
            seat->found = now;
        }
        last = dpari_mostf(last, seat->found);
    }
    return last;
}

/* True if this rank has neither begun an operation, nor waited in one, nor used its processor since
 * the last look. */
static int dpari_launch_is_silent(dpari_launch *launch, int32_t rank)
{
    dpari_seat *seat = &launch->seat[rank];
    const uint64_t pulse = dpari_segment_pulse(&launch->segment, rank);
    const int64_t used = dpari_os_used((int32_t)seat->pid);
    const int silent = used >= 0 && used == seat->used && pulse == seat->heard;
    seat->heard = pulse;
    seat->used = used;
    return silent;
}

/* Counts for how long all ranks have been silent. A library whose threads were lost in the fork
 * waits for them in every rank, outside of dpar, so that no deadline of an operation ever passes.
 * This is done only if this process had other threads. Without such threads, ranks may wait for
 * events of their own as long as they like. */
static void dpari_launch_listen(dpari_launch *launch)
{
    const double now = dpari_os_now();
    int32_t silent = launch->threads > 1 && launch->left == launch->n;
    for (int32_t r = 0; r < launch->n && launch->threads > 1; r++) {
        if (!launch->seat[r].gone && !dpari_launch_is_silent(launch, r)) {
            silent = 0;
        }
    }
    launch->silent_s = silent ? launch->silent_s + (now - launch->looked) : 0.0;
    launch->looked = now;
    if (launch->timeout_s > 0.0 && launch->silent_s >= launch->timeout_s) {
        for (int32_t r = 0; r < launch->n && silent; r++) {
            /* sleeps until an event, and is not stopped by a debugger or waiting for a disk */
            silent = dpari_job_process(launch->seat[r].pid, DPARI_PROCESS_STATE) == 'S';
        }
        launch->silent = silent;
        launch->silent_s = silent ? launch->silent_s : 0.0;
    }
}

/* Returns the seconds until the remaining ranks must be killed, or a negative number if there is no
 * reason to kill them. Without this a rank that hangs would keep this process waiting for ever,
 * after the others have seen their deadline pass and have returned. */
static double dpari_launch_left(dpari_launch *launch)
{
    const double now = dpari_os_now();
    const double failed = dpari_launch_failed(launch);
    const double still = launch->left < launch->n ? dpari_launch_still(launch, now) : 0.0;
    if (failed > 0.0) {
        return dpari_mostf(failed + launch->grace_s - now, 0.0);
    }
    if (launch->silent) {
        return 0.0;
    }
    if (still > 0.0 && launch->timeout_s > 0.0) {
        return dpari_mostf(still + dpari_mostf(launch->timeout_s, launch->grace_s) - now, 0.0);
    }
    return -1.0;
}

static void dpari_launch_kill(dpari_launch *launch)
{
    for (int32_t r = 0; r < launch->n; r++) {
        /* a rank that writes a core file ends by itself, with the signal of its crash */
        if (!launch->seat[r].gone && !launch->seat[r].killed &&
            !dpari_os_dumps((int32_t)launch->seat[r].pid)) {
            kill(launch->seat[r].pid, SIGKILL);
            launch->seat[r].killed = 1;
        }
    }
}

/* Opens a descriptor (pidfd) for each rank that becomes readable when the rank ends. If that fails
 * (an old kernel, too many files), the supervisor naps between looks instead. */
static void dpari_launch_watch(dpari_launch *launch)
{
    int32_t r;
    launch->watching = 0;
#if defined(__linux__) && defined(SYS_pidfd_open)
    launch->watching = 1;
    for (r = 0; r < launch->n; r++) {
        launch->watch[r].events = POLLIN;
        launch->watch[r].fd = (int)syscall(SYS_pidfd_open, launch->seat[r].pid, 0U);
        if (launch->watch[r].fd < 0) {
            launch->watching = 0;
            break;
        }
    }
    if (!launch->watching) {
        while (--r >= 0) {
            close(launch->watch[r].fd);
        }
    }
#else
    (void)r;
#endif
}

/* Sleeps until a rank may have ended, at most `seconds` and at most 0.2 s, so that
 * dpari_launch_forgive notices when the job was suspended. */
static void dpari_launch_pause(dpari_launch *launch, double seconds)
{
    if (launch->watching) {
        double ms = seconds * 1e3 + 1.0;
        if (poll(launch->watch, (nfds_t)launch->n, ms < 200.0 ? (int)ms : 200) < 0) {
            for (int32_t r = 0; r < launch->n; r++) { /* interrupted by a signal: look at all */
                launch->watch[r].revents = launch->watch[r].fd >= 0 ? POLLIN : 0;
            }
        }
        return;
    }
    launch->nap = dpari_leastf(launch->nap < 50e-6 ? 50e-6 : 1.5 * launch->nap, 5e-3);
    dpari_os_sleep(dpari_leastf(launch->nap, seconds));
}

/* Moves all deadlines by the time for which this process, and with it the whole job, was suspended.
 * The ranks do not count as silent in that time. */
static void dpari_launch_forgive(dpari_launch *launch)
{
    const double suspended = dpari_os_suspended(&launch->forgiven, dpari_os_now());
    launch->looked += suspended;
    for (int32_t r = 0; r < launch->n && suspended > 0.0; r++) {
        launch->seat[r].found += launch->seat[r].found > 0.0 ? suspended : 0.0;
    }
}

/* Returns the seconds to the next look at the ranks. */
static double dpari_launch_look(const dpari_launch *launch)
{
    if (launch->threads > 1 && launch->timeout_s > 0.0) {
        return dpari_leastf(1.0, dpari_mostf(launch->timeout_s - launch->silent_s, 0.01));
    }
    return 1.0;
}

static void dpari_launch_supervise(dpari_launch *launch)
{
    dpari_launch_watch(launch);
    launch->looked = dpari_os_now();
    while (launch->left > 0) {
        const double left = dpari_launch_left(launch);
        dpari_launch_pause(launch, left < 0.0 ? dpari_launch_look(launch) : left);
        dpari_launch_forgive(launch);
        dpari_launch_reap(launch);
        dpari_launch_listen(launch);
        if (launch->left > 0 && dpari_launch_left(launch) == 0.0) {
            launch->hung = dpari_launch_failed(launch) <= 0.0 && !launch->silent;
            dpari_launch_kill(launch);
        }
    }
}

/* Forks all ranks and supervises them to their end. If one cannot be forked, kills the others. */
DPARI_STATIC_NOINLINE DPARI_COLD dpar_status dpari_launch_fork(dpari_launch *launch, dpar_why *why)
{
    int32_t started;
    int number = 0;
    dpar_text out;
    launch->parent = getpid();
    launch->threads = 1;
    if (launch->image == NULL) {
        dpari_os_pause_openmp(DPARI_OPENMP_SOFT);
        launch->threads = dpari_job_process(launch->parent, DPARI_PROCESS_THREADS);
    }
    fflush(NULL); /* otherwise each rank would print what is in the buffers now */
    for (started = 0; started < launch->n; started++) {
        pid_t pid = fork();
        if (pid == 0) {
            dpari_seat_bind(launch);
            if (launch->image != NULL) {
                dpari_seat_exec(launch, started);
            }
            dpari_seat_live(launch, started);
        }
        if (pid < 0) {
            number = errno;
            break;
        }
        launch->seat[started].pid = pid;
    }
    if (started == launch->n) {
        dpari_launch_supervise(launch);
        return DPAR_OK;
    }
    for (int32_t r = 0; r < started; r++) { /* they wait for the missing ranks and have not begun
                                               fn */
        kill(launch->seat[r].pid, SIGKILL);
        while (waitpid(launch->seat[r].pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    dpari_text_why(&out, why);
    dpari_text_print(&out, "rank %d of %d could not be forked: ", started, launch->n);
    dpari_os_error(&out, number);
    return DPAR_E_SYSTEM;
}

static void *dpari_seat_thread(void *at)
{
    dpari_seat *seat = (dpari_seat *)at;
    dpari_seat_run(seat->launch, (int32_t)(seat - seat->launch->seat));
    return NULL;
}

/* Starts all ranks as threads and joins them. */
static dpar_status dpari_launch_threads(dpari_launch *launch, dpar_why *why)
{
    int32_t started;
    for (started = 0; started < launch->n; started++) {
        dpari_seat *seat = &launch->seat[started];
        seat->launch = launch;
        if (dpari_os_thread(&seat->thread, dpari_seat_thread, seat) != 0) {
            break;
        }
    }
    for (int32_t r = started; r < launch->n; r++) {
        dpari_segment_ended(&launch->segment, r, 1); /* so that the others do not wait for it */
    }
    for (int32_t r = 0; r < started; r++) {
        dpari_os_join(launch->seat[r].thread);
    }
    if (started < launch->n) {
        return dpari_say(DPAR_E_SYSTEM, why, "thread %d of %d could not be started", started,
                         launch->n);
    }
    return DPAR_OK;
}

/* ---- the result: which rank failed first, and the message ------------------------------------ */

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

/* Writes how a rank ended, if it was a new process and was not killed by a signal. */
static void dpari_seat_say_program(const dpari_seat *seat, int32_t rank, dpar_text *out)
{
    if (seat->status != DPAR_OK) {
        dpari_text_print(out, "rank %d: %s", rank, seat->why.text);
    } else if (seat->ending == DPARI_ENDING_UNKNOWN) {
        dpari_text_print(out,
                         "rank %d ended before dpar_finalize (its exit status is not known, "
                         "because SIGCHLD is ignored)",
                         rank);
    } else {
        dpari_text_print(out, "rank %d ended with exit status %d%s", rank, seat->ending,
                         seat->returned ? "" : " before dpar_finalize");
    }
}

/* Writes how a rank failed, as "rank 2 was killed by signal 9 (SIGKILL)". */
static void dpari_seat_say(const dpari_launch *launch, int32_t rank, dpar_text *out)
{
    const dpari_seat *seat = &launch->seat[rank];
    if (launch->image != NULL && seat->ending >= 0) {
        dpari_seat_say_program(seat, rank, out);
        return;
    }
    dpari_text_print(out, "rank %d", rank);
    if (seat->ending < 0) {
        dpari_text_print(out, "%s was killed by signal %d (%s)",
                         seat->returned ? " returned and then" : "", -seat->ending,
                         dpari_signal_name(-seat->ending));
    } else if (seat->status != DPAR_OK && seat->returned) {
        dpar_text_put(out, " returned 0 without waiting for all operations that it had posted");
    } else if (seat->status != DPAR_OK) {
        dpari_text_print(out, " could not join: %s", seat->why.text);
    } else if (seat->returned) {
        dpari_text_print(out, " returned %d", seat->result);
    } else if (seat->ending == DPARI_ENDING_UNKNOWN) {
        dpar_text_put(out, " ended before its function returned (its exit status is not known, "
                           "because SIGCHLD is ignored)");
    } else {
        dpari_text_print(out, " left the program with status %d before its function returned",
                         seat->ending);
    }
}

/* Returns the rank that failed first, or -1 if none did. Ranks that failed on their own count
 * before ranks that failed after another rank had broken their communicator. */
static int32_t dpari_launch_culprit(const dpari_launch *launch)
{
    const dpari_seat *first = NULL;
    for (int32_t r = 0; r < launch->n; r++) {
        const dpari_seat *seat = &launch->seat[r];
        if (!dpari_seat_failed(seat) || seat->killed) {
            continue;
        }
        if (first == NULL || seat->follows < first->follows ||
            (seat->follows == first->follows && seat->ended < first->ended)) {
            first = seat;
        }
    }
    return first != NULL ? (int32_t)(first - launch->seat) : -1;
}

/* Appends which ranks were killed and why, and returns their number. Names at most 8 of them. */
static int32_t dpari_launch_put_killed(const dpari_launch *launch, dpar_text *out)
{
    int32_t killed = 0;
    for (int32_t r = 0; r < launch->n; r++) {
        if (!launch->seat[r].killed || !dpari_seat_failed(&launch->seat[r])) {
            continue;
        }
        killed++;
        if (killed == 1) {
            dpar_text_put(out, out->used > 0 ? "; killed because they " : "killed because they ");
            dpar_text_put(out, launch->hung ? "made no progress after others had ended: rank "
                                            : "did not end: rank ");
        }
        if (killed <= 8) {
            dpari_text_print(out, "%s%d", killed > 1 ? ", " : "", r);
        }
    }
    dpar_text_put(out, killed > 8 ? ", ..." : "");
    return killed;
}

static dpar_status dpari_launch_say_silent(const dpari_launch *launch, dpar_why *why)
{
    dpar_text out;
    dpari_text_why(&out, why);
    dpari_text_print(&out,
                     "no rank made a call or used its processor for %.1f s. This process had %ld "
                     "threads when it forked its ranks, and some libraries do not work after that: "
                     "start the ranks before any library starts threads, or use "
                     "dpar_init_or_launch",
                     launch->timeout_s, launch->threads);
    return DPAR_E_TIMEOUT;
}

/* Returns the status of the launch and writes the message. */
static dpar_status dpari_launch_result(const dpari_launch *launch, dpar_why *why)
{
    const int32_t first = dpari_launch_culprit(launch);
    int32_t killed;
    dpar_why broke;
    dpar_text out;
    if (launch->silent) {
        return dpari_launch_say_silent(launch, why);
    }
    if (first < 0 && !launch->hung) {
        return DPAR_OK;
    }
    dpari_text_why(&out, why);
    if (first >= 0) {
        dpari_seat_say(launch, first, &out);
        if (launch->seat[first].follows && dpari_segment_broke(&launch->segment, &broke)) {
            dpari_text_print(&out, " after: %s", broke.text);
        }
        if (dpari_segment_is_behind(&launch->segment, first)) {
            dpar_text_put(&out, "; the others continue without it");
        }
    }
    killed = dpari_launch_put_killed(launch, &out);
    if (launch->threads > 1 && (killed > 0 || (first >= 0 && launch->seat[first].ending < 0))) {
        dpari_text_print(&out, "; this process had %ld threads when it forked its ranks",
                         launch->threads);
    }
    return first < 0 && killed == 0 ? DPAR_OK : DPAR_E_PEER;
}

/* ---- a whole launch -------------------------------------------------------------------------- */

/* Returns the exit code that a failed rank chose for the program, or 0 if it chose none. */
static int32_t dpari_seat_result(const dpari_launch *launch, const dpari_seat *seat)
{
    if (launch->image != NULL) {
        return seat->ending > 0 && seat->ending < 256 ? seat->ending : 0;
    }
    return seat->returned ? seat->result : 0;
}

/* Makes the segment, runs all ranks to their end and determines the result. */
static dpar_status dpari_launch_run(dpari_launch *launch, dpari_verdict *verdict, dpar_why *why)
{
    dpar_status status = dpari_segment_make(&launch->segment, launch->n, launch->options, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (launch->n == 1 && launch->image == NULL) {
        dpari_seat_run(launch, 0);
    } else if (launch->options != NULL && launch->options->threads) {
        status = dpari_launch_threads(launch, why);
    } else {
        status = dpari_launch_fork(launch, why);
    }
    if (status == DPAR_OK) { /* all ranks were started and have ended */
        const int32_t first = dpari_launch_culprit(launch);
        const int32_t result = first >= 0 ? dpari_seat_result(launch, &launch->seat[first]) : 0;
        verdict->said = dpari_segment_said(&launch->segment);
        verdict->result = result != 0 ? result : 1;
        status = dpari_launch_result(launch, why);
    }
    dpari_segment_close(&launch->segment);
    return status;
}

static void dpari_launch_begin(dpari_launch *launch, int32_t n, const dpar_world_desc *options,
                               dpari_verdict *verdict)
{
    dpari_zero(launch, sizeof *launch);
    launch->n = launch->left = n;
    launch->options = options;
    launch->timeout_s = dpari_world_timeout(options);
    launch->grace_s = options != NULL && options->grace_s > 0.0 ? options->grace_s : 10.0;
    verdict->said = 0;
    verdict->result = 1;
}

/* Starts all ranks and waits for them. The caller has called dpari_launch_begin and set the
 * function or the image. */
static dpar_status dpari_launch_all(dpari_launch *launch, dpari_verdict *verdict, dpar_why *why)
{
    const int64_t bytes = launch->n * (int64_t)(sizeof(dpari_seat) + sizeof(struct pollfd));
    dpar_status status;
    /* zeroed pages that forked ranks share with this process */
    void *seats =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seats == MAP_FAILED) {
        return dpari_say(DPAR_E_SYSTEM, why, "no memory: %ld bytes are needed to watch %d ranks",
                         bytes, launch->n);
    }
    launch->seat = (dpari_seat *)seats;
    launch->watch = (struct pollfd *)(void *)(launch->seat + launch->n);
    status = dpari_launch_run(launch, verdict, why);
    dpari_os_unmap(launch->seat, bytes);
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_launch_verdict(int32_t n, dpar_main fn, void *arg,
                                                      const dpar_world_desc *options,
                                                      dpari_verdict *verdict, dpar_why *why)
{
    const dpar_status status = dpari_launch_check(n, fn, options, why);
    dpari_launch launch;
    dpari_launch_begin(&launch, n, options, verdict);
    if (status != DPAR_OK) {
        return status;
    }
    launch.fn = fn;
    launch.arg = arg;
    return dpari_launch_all(&launch, verdict, why);
}

DPARI_API DPARI_COLD dpar_status dpari_launch_programs(int32_t n, char **words,
                                                       const dpar_world_desc *options,
                                                       dpari_verdict *verdict, dpar_why *why)
{
    dpari_image image;
    dpari_launch launch;
    dpar_status status = dpari_launch_options(options, why);
    dpari_launch_begin(&launch, n, options, verdict);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&image, sizeof image);
    launch.image = &image;
    status = dpari_image_make(&image, &launch, words, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_launch_all(&launch, verdict, why);
    dpari_os_unmap(image.environment, image.bytes);
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_launch(int32_t ranks, dpar_main fn, void *arg,
                                            const dpar_world_desc *desc, dpar_why *why)
{
    dpari_verdict verdict;
    return dpari_launch_verdict(ranks, fn, arg, desc, &verdict, why);
}

/* ---- ranks that a launcher started ----------------------------------------------------------- */

DPARI_API dpar_status dpari_timeout_here(const dpari_site *site, dpar_world_desc *options,
                                         dpar_why *why)
{
    const char *text = dpari_site_env(site, "DPAR_TIMEOUT");
    double value;
    size_t length;
    if (text == NULL) {
        return DPAR_OK;
    }
    length = dpari_length(text);
    if (length == 0 || dpari_text_number(text, length, &value) != length || !dpari_finite(value)) {
        return dpari_wrong(why, "DPAR_TIMEOUT is \"%s\", which is not a number of seconds", text);
    }
    options->timeout_s = value;
    return DPAR_OK;
}

/* The end of the messages below. The engine of this header works only within a node. */
#define DPARI_OTHER_NODES                                                                          \
    "across nodes add dpar_mpi.h and compile with mpicc, or dpar_nccl.h for GPUs"

/* Checks that all ranks are on one node, as far as the launcher's variables show. */
static dpar_status dpari_init_one_node(const dpar_launcher_info *job, int32_t nodes, dpar_why *why)
{
    const char *name = dpari_launcher_name(job->kind);
    if (job->size > DPARI_MAX_RANKS) {
        return dpari_wrong(
            why,
            "%s reports %d ranks: dpar_comm.h joins at most %d, on one node; " DPARI_OTHER_NODES,
            name, job->size, (int32_t)DPARI_MAX_RANKS);
    }
    if (job->local_size > 0 && job->local_size != job->size) {
        return dpari_wrong(why,
                           "%s reports %d ranks, %d of them on this node: dpar_comm.h joins only "
                           "ranks of one node; " DPARI_OTHER_NODES,
                           name, job->size, job->local_size);
    }
    if (nodes > 1) {
        return dpari_wrong(why,
                           "%s reports %d ranks on %d nodes: dpar_comm.h joins only ranks of one "
                           "node; " DPARI_OTHER_NODES,
                           name, job->size, nodes);
    }
    return DPAR_OK;
}

/* Opens the segment that was made by the process that started this rank. Opens a copy of the
 * descriptor, and closes the original only if it was a segment: in a second dpar_init the number
 * may belong to another file, which must stay open. */
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

/* Finds the segment that the ranks of this job share. A single rank makes it; otherwise it is
 * inherited, or the ranks agree on one through a socket. */
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
    fd = job->kind == DPAR_LAUNCHER_DPAR ? dpari_job_segment(&here) : -1;
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
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_shm_join(&segment, job->rank, 1, options, world, why);
    if (status != DPAR_OK) {
        dpari_segment_close(&segment);
    }
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_job_try(const dpar_launcher_info *job,
                                               const dpar_world_desc *options, dpar_why *why)
{
    dpari_segment segment;
    dpar_status status = dpari_launch_options(options, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (job->size > DPARI_MAX_RANKS) {
        return dpari_wrong(why, "%d ranks, but shared memory joins at most %d", job->size,
                           (int32_t)DPARI_MAX_RANKS);
    }
    if (job->rank != 0) { /* rank 0 makes the segment */
        return DPAR_OK;
    }
    status = dpari_segment_make(&segment, job->size, options, why);
    if (status == DPAR_OK) {
        dpari_segment_close(&segment);
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_init(dpar_comm **world, const dpar_world_desc *desc,
                                          dpar_why *why)
{
    dpar_launcher_info job;
    dpar_world_desc own;
    dpari_site site;
    int32_t nodes = 0;
    dpar_status status;
    if (world == NULL) {
        return dpari_wrong(why, "dpar_init: world is NULL");
    }
    dpari_zero(&own, sizeof own);
    if (desc != NULL) {
        own = *desc;
    }
    own.threads = 0;
    dpari_site_here(&site);
    status = dpari_launch_options(&own, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_timeout_here(&site, &own, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_job_here(&job, &nodes, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_init_one_node(&job, nodes, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_job_join(&job, &own, world, why);
}
