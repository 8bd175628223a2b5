/* SPDX-License-Identifier: MIT-0 */
/* The fault suite. Each round starts 2 to 6 ranks that run random operations in an endless loop. At
 * a random moment one of them is killed, stopped, delayed, returns, crashes or calls something
 * else, or their launcher is killed. Then each other rank's call must return in time, with the
 * right status and a message that names the culprit. Later calls return the same, and all results
 * before the fault were right. No process, no file in /dev/shm and no descriptor is left. With
 * `halo` most operations are exchanges of halos and of points, forward and adjoint, by each method,
 * and a rank may plan something else.
 *   cc -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/comm/ranks/faults.c -o faults -lm
 *   ./faults ROUNDS [SEED [FIRST [halo]]]     (ROUNDS 1 and FIRST repeat a single round)
 * Needs Linux (/proc). */
#include "dpar_halo.h"
#include "exchange_work.h"
#include "halo_work.h"

#include <dirent.h>
#include <errno.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum {
    NONE,
    KILL,       /* kill -9 during operations */
    KILL_EARLY, /* kill -9 at any time after the fork */
    STOP_CONT,  /* SIGSTOP; continues after the others have timed out */
    STOP_KILL,
    STOP_ONLY, /* remains stopped: the launcher must kill it */
    DELAY_SHORT,
    DELAY_LONG, /* longer than the timeout */
    MISMATCH,
    RETURN_0, /* returns normally while the others continue */
    RETURN_1,
    EXIT,
    CRASH,
    ABORT,
    LAUNCHER, /* kill -9 of the process that started the ranks */
    FAULTS
};
static const char *const fault_names[FAULTS] = {
    "none",     "kill -9",  "kill -9 early", "stop, go on", "stop, kill",
    "stop",     "delay",    "long delay",    "mismatch",    "return 0",
    "return 1", "_exit(3)", "crash",         "abort",       "kill launcher"};

/* What a rank reports to the driver, in shared memory, so that it is readable after a kill. */
typedef struct seat {
    /* 0 not started, 1 in operations, 2 its calls have failed or ended */
    volatile int32_t pid, stage;
    volatile int32_t entered; /* operations begun */
    volatile int32_t kind;    /* of the last operation */
    /* first failure, that of a later call, that of the world */
    volatile int32_t status, later, other;
    volatile int32_t wrong;  /* wrong results */
    volatile int32_t strict; /* the message must name the culprit */
    volatile double when;
    char text[240], report[6000];
} seat;

typedef struct board {
    /* the settings of the round */
    uint64_t seed;
    int32_t n, fault, victim, at, plain, threads, slot_bytes, operations;
    int32_t halo;    /* 1: mostly exchanges of halos and of points */
    int32_t quarrel; /* MISMATCH: in a collective, an exchange or a plan */
    double timeout_s, pause_s;
    /* the results */
    seat rank[ORACLE_RANKS];
    volatile int32_t launched, launch_status, fds;
    char launch_text[240];
} board;

enum { ROOM = 200000, SLOTS = 3, HALOS = 3 };
enum { COLLECTIVE, EXCHANGE, PLAN };

/* --- a rank --- */

typedef struct job {
    oracle o;
    board *b;
    seat *me;
    dpar_comm *comm[3]; /* the world, a duplicate, half of the world */
    oracle_slot slot[SLOTS];
    halo_work halo[HALOS];
    exchange_work points;
    uint64_t exchanges;
    dpar_comm *failed; /* the communicator whose call failed */
} job;

static void sleep_s(double s)
{
    struct timespec t;
    t.tv_sec = (time_t)s;
    t.tv_nsec = (long)((s - (double)t.tv_sec) * 1e9);
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

static dpar_status collective(job *j, int which, uint64_t seed)
{
    dpar_comm *c = j->comm[which];
    oracle_case k = oracle_random_case(seed, c->size, ROOM);
    oracle_flight f;
    dpar_status s;
    j->me->kind = k.kind;
    s = oracle_begin(&j->o, c, &k, &j->slot[0], &f);
    s = s == DPAR_OK ? oracle_wait(&j->o, &f) : s;
    j->failed = c;
    if (s == DPAR_OK) {
        oracle_check(&j->o, &f);
    }
    return s;
}

/* Runs three posted collectives. After a failure the other works must end too. */
static dpar_status posted(job *j, uint64_t seed)
{
    oracle_flight f[SLOTS];
    dpar_status s = DPAR_OK, first = DPAR_OK;
    int i, begun = 0;
    for (i = 0; i < SLOTS && s == DPAR_OK; i++) {
        dpar_comm *c = j->comm[oracle_below(&seed, 2)];
        oracle_case k = oracle_random_case(oracle_next(&seed), c->size, ROOM / 4);
        k.how = k.how == ORACLE_BLOCKING ? ORACLE_WAIT : k.how;
        j->me->kind = k.kind;
        s = oracle_begin(&j->o, c, &k, &j->slot[i], &f[i]);
        j->failed = c;
        begun += s == DPAR_OK;
    }
    first = s;
    for (i = begun - 1; i >= 0; i--) {
        s = oracle_wait(&j->o, &f[i]);
        if (s == DPAR_OK) {
            oracle_check(&j->o, &f[i]);
        } else if (first == DPAR_OK) {
            first = s;
            j->failed = f[i].comm;
        }
    }
    return first;
}

/* Runs a ring of messages, or a batch to all ranks, and checks all contents. */
static dpar_status message(job *j, uint64_t seed)
{
    dpar_comm *c = j->comm[oracle_below(&seed, 2)];
    int form = (int)oracle_below(&seed, 3), me = c->rank, n = c->size, r, k = 0;
    int64_t i, count = oracle_below(&seed, INT64_C(1) << oracle_below(&seed, 17));
    uint8_t *out = j->slot[0].memory[oracle_below(&seed, 2)][0];
    uint8_t *in = j->slot[0].memory[oracle_below(&seed, 2)][1];
    dpar_work w[2];
    dpar_call call[2 * ORACLE_RANKS];
    dpar_status s = DPAR_OK;
    count = form == 2 ? count / 8 : count;
    memset(w, 0, sizeof w);
    memset(call, 0, sizeof call);
    memset(out, (int)(seed & 127) + me, (size_t)count);
    j->me->kind = DPAR_CALL_SEND;
    j->failed = c;
    if (form < 2) { /* both posted, or only the send */
        s = dpar_send(c, out, count, DPAR_U8, (me + 1) % n, 3, &w[0]);
        if (s == DPAR_OK) {
            s = dpar_recv(c, in, count, DPAR_U8, (me + n - 1) % n, 3, form == 0 ? NULL : &w[1]);
        }
        for (r = 1; r >= 0; r--) {
            dpar_status t = dpar_wait(&w[r]);
            s = s == DPAR_OK ? t : s;
        }
        for (i = 0; i < count && s == DPAR_OK; i++) {
            j->me->wrong += in[i] != (uint8_t)((int)(seed & 127) + (me + n - 1) % n);
        }
        return s;
    }
    for (r = 0; r < n; r++) {
        call[k].kind = DPAR_CALL_SEND, call[k].root = r, call[k].in = out;
        call[k + 1].kind = DPAR_CALL_RECV, call[k + 1].root = r;
        call[k + 1].out = in + r * count;
        call[k].type = call[k + 1].type = DPAR_U8;
        call[k].count = call[k + 1].count = count;
        k += 2;
    }
    s = dpar_batch(c, call, k, NULL);
    for (i = 0; i < n * count && s == DPAR_OK; i++) {
        j->me->wrong += in[i] != (uint8_t)((int)(seed & 127) + (int)(i / count));
    }
    return s;
}

static dpar_status exchange_points(job *j, uint64_t seed)
{
    exchange_work *w = &j->points;
    const int round = (int)(j->exchanges++ % 1000), adds = oracle_below(&seed, 3) == 0;
    const int tests = oracle_below(&seed, 3) == 0 ? 1000 : 0;
    dpar_status s;
    exchange_fill(w, round);
    s = adds ? w->kind->reduce(w, DPAR_SUM) : w->kind->begin(w);
    if (oracle_below(&seed, 4) == 0) {
        oracle_delay(&j->o);
    }
    s = exchange_finish(w, s, tests);
    if (s == DPAR_OK) {
        j->me->wrong += adds ? exchange_wrong_sum(w, round) : exchange_wrong(w, round);
    }
    j->failed = w->comm;
    return s;
}

static dpar_status exchange(job *j, uint64_t seed)
{
    halo_work *w = &j->halo[oracle_below(&seed, HALOS)];
    int adds = oracle_below(&seed, 3) == 0;
    dpar_status s =
        halo_work_run(w, &j->o, j->exchanges++, adds, (int)oracle_below(&seed, 4), &j->me->wrong);
    j->failed = w->c;
    return s;
}

static dpar_status operation(job *j, uint64_t seed)
{
    int64_t which = oracle_below(&seed, 10);
    if (j->b->halo && oracle_below(&seed, 5) > 0) {
        return oracle_below(&seed, 3) == 0 ? exchange_points(j, seed) : exchange(j, seed);
    }
    if (which < 5) {
        return collective(j, (int)oracle_below(&seed, 2), seed);
    }
    return which < 7 ? posted(j, seed) : which < 9 ? message(j, seed) : collective(j, 2, seed);
}

/* Runs the sum that all ranks do together before the victim's fault. `odd` changes its count. */
static dpar_status together(job *j, int odd)
{
    int32_t x[2] = {1, 1}, y[2] = {0, 0};
    dpar_status s = dpar_all_reduce(j->comm[0], x, y, odd ? 2 : 1, DPAR_I32, DPAR_SUM, NULL);
    j->me->kind = DPAR_CALL_ALL_REDUCE;
    j->failed = j->comm[0];
    return s;
}

/* All ranks exchange, the victim in the opposite direction. A rank that needs nothing from the
 * victim gets the error in the sum that follows. */
static dpar_status against_the_others(job *j, int mine)
{
    halo_work *w = &j->halo[0];
    dpar_status s;
    for (; w < &j->halo[HALOS - 1] && w->options.method == DPAR_HALO_MESSAGES; w++) {
    }
    if (w->options.method == DPAR_HALO_MESSAGES) { /* messages of different modes may match */
        return together(j, mine);
    }
    s = halo_work_run(w, &j->o, j->exchanges++, mine, 1, &j->me->wrong);
    j->failed = w->c;
    return s == DPAR_OK ? together(j, 0) : s;
}

/* The victim plans another exchange: all ranks get a message with its number and continue. */
static void plan_quarrel(job *j, int mine)
{
    halo_work *w = &j->halo[0];
    dpar_halo_plan *x = NULL;
    dpar_why why;
    void *memory = NULL;
    char rank[32];
    (void)snprintf(rank, sizeof rank, "%d", j->b->victim);
    why.text[0] = '\0';
    w->options.tag += mine;
    if (posix_memalign(&memory, 64, (size_t)w->bytes) != 0 ||
        plan_init(memory, w->bytes, w->c, w->f, HALO_WORK_FIELDS, &w->options, &x, &why) !=
            DPAR_E_MISMATCH ||
        strstr(why.text, rank) == NULL || w->c->status != DPAR_OK) {
        j->me->wrong += 1000;
    }
    free(memory);
    w->options.tag -= mine;
}

/* Does the victim's fault, if it is one inside the process. Returns 1 if the victim is to
 * return. */
static int misbehave(job *j)
{
    volatile int *nowhere = NULL;
    switch (j->b->fault) {
    case DELAY_SHORT:
    case DELAY_LONG: sleep_s(j->b->pause_s); return 0;
    case RETURN_0:
    case RETURN_1: return 1;
    case EXIT: _exit(3);
    case CRASH: *nowhere = 1; return 1;
    case ABORT: dpar_comm_abort(j->comm[0], DPAR_E_NONE, "no data is left"); return 0;
    default: return 0;
    }
}

/* Runs the operation in which the fault of the victim happens. */
static dpar_status at_once(job *j, int mine)
{
    if (j->b->fault == MISMATCH && j->b->quarrel == EXCHANGE) {
        return against_the_others(j, mine);
    }
    if (j->b->fault == MISMATCH && j->b->quarrel == PLAN) {
        plan_quarrel(j, mine);
        return DPAR_OK;
    }
    return together(j, mine && j->b->fault == MISMATCH);
}

static void tell(job *j, dpar_status s)
{
    board *b = j->b;
    dpar_comm *c = j->failed;
    dpar_text t;
    memcpy(j->me->text, c->why.text, sizeof j->me->text);
    j->me->status = s;
    j->me->strict = c != j->comm[2];
    j->me->when = oracle_now();
    j->me->later = dpar_barrier(c, NULL);
    if (strcmp(j->me->text, c->why.text) != 0) {
        j->me->later = 100; /* the message changed */
    }
    if (b->fault == KILL || b->fault == CRASH || b->fault == EXIT || b->fault == RETURN_1) {
        j->me->other = dpar_barrier(j->comm[0], NULL);
    }
    dpar_text_init(&t, j->me->report, sizeof j->me->report);
    dpar_comm_report(j->comm[0], &t);
}

static int rank_main(dpar_comm *world, void *arg)
{
    job j;
    board *b = (board *)arg;
    dpar_status s = DPAR_OK;
    uint64_t seed = b->seed;
    exchange_desc desc;
    dpar_why why;
    int i, over = 0, mine = world->rank == b->victim;
    memset(&j, 0, sizeof j);
    memset(&desc, 0, sizeof desc);
    if (!b->threads) {
        alarm(110);
        signal(SIGSEGV, SIG_DFL);
    }
    j.b = b, j.me = &b->rank[world->rank];
    j.o.world = j.comm[0] = j.failed = world;
    j.o.own = oracle_mix(b->seed + (uint64_t)world->rank);
    j.o.delays = 1;
    for (i = 0; i < SLOTS && s == DPAR_OK; i++) {
        s = oracle_slot_make(&j.o, &j.slot[i], ROOM * b->n);
    }
    j.me->pid = (int32_t)getpid();
    j.me->stage = 1;
    s = s == DPAR_OK ? dpar_comm_split(world, 0, 0, &j.comm[1]) : s;
    s = s == DPAR_OK ? dpar_comm_split(world, world->rank % 2, -world->rank, &j.comm[2]) : s;
    for (i = 0; i < HALOS && b->halo && s == DPAR_OK; i++) {
        j.failed = j.comm[i % 2];
        s = halo_work_open(&j.halo[i], j.failed, oracle_mix(b->seed + 77 + (uint64_t)i));
    }
    if (b->halo && s == DPAR_OK) {
        desc.method = (int32_t)(b->seed % EXCHANGE_METHODS);
        desc.open = (int32_t)(b->seed / EXCHANGE_METHODS % 2);
        j.failed = j.comm[b->seed / 16 % 2];
        s = exchange_make(&j.points, EXCHANGE_POINTS, j.failed, &desc, &why);
    }
    for (i = 0; s == DPAR_OK && !over && (b->operations == 0 || i < b->operations); i++) {
        j.me->entered = i + 1;
        if (b->fault >= DELAY_SHORT && b->fault <= ABORT && i == b->at) {
            over = mine && misbehave(&j);
            s = over ? s : at_once(&j, mine);
        }
        s = s == DPAR_OK && !over ? operation(&j, oracle_next(&seed)) : s;
    }
    j.me->wrong += j.o.failed;
    if (s != DPAR_OK) {
        tell(&j, s);
    } else {
        j.me->when = oracle_now();
    }
    j.me->stage = 2;
    if (!over) { /* a rank that returns early frees nothing, because that would be a call */
        if (j.points.points != NULL) {
            j.me->wrong += exchange_free(&j.points) != DPAR_OK && s == DPAR_OK;
        }
        for (i = HALOS - 1; i >= 0 && b->halo; i--) {
            dpar_status closed = halo_work_close(&j.halo[i]);
            j.me->wrong += s == DPAR_OK && closed != DPAR_OK;
        }
        (void)dpar_comm_free(j.comm[2]);
        (void)dpar_comm_free(j.comm[1]);
    }
    for (i = 0; i < SLOTS; i++) {
        if (j.slot[i].image != NULL) {
            oracle_slot_free(&j.o, &j.slot[i]);
        }
    }
    oracle_free(&j.o);
    return (over && b->fault == RETURN_1) || (s != DPAR_OK && b->fault == STOP_ONLY);
}

/* --- the launcher of a round, in a separate process --- */

static int count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (d != NULL && readdir(d) != NULL) {
        n++;
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

static void launch(board *b)
{
    dpar_world_desc options;
    dpar_why why;
    int fds = count_fds();
    memset(&options, 0, sizeof options);
    why.text[0] = '\0';
    options.timeout_s = b->timeout_s;
    options.grace_s = b->fault == STOP_ONLY ? 0.5 : 8.0;
    options.slot_bytes = b->slot_bytes;
    options.disable = b->plain;
    options.threads = b->threads;
    b->launch_status = dpar_launch(b->n, rank_main, b, &options, &why);
    memcpy(b->launch_text, why.text, sizeof b->launch_text);
    b->fds = count_fds() - fds;
    b->launched = 1;
}

/* --- the driver --- Without a fault of the library nothing takes this long. But on a busy machine
 * a rank once got 20 ms of a core in 10 s, so only what has lasted a minute or more counts as a
 * hang. */

static int shown;

static int complain(const board *b, long round, const char *what)
{
    int r;
    if (shown++ < 12) {
        printf("WRONG round %ld: %d %s, %s of rank %d, plain %d: %s\n  launch: %s: \"%s\"\n", round,
               b->n, b->threads ? "threads" : "ranks", fault_names[b->fault], b->victim, b->plain,
               what, b->launched ? dpar_status_text(b->launch_status) : "did not return",
               b->launch_text);
        for (r = 0; r < b->n; r++) {
            printf("  rank %d: stage %d, operation %d, status %d, later %d, other %d: \"%s\"\n", r,
                   b->rank[r].stage, b->rank[r].entered, b->rank[r].status, b->rank[r].later,
                   b->rank[r].other, b->rank[r].text);
        }
        fflush(stdout);
    }
    return 1;
}

/* Reads state, parent and session of a process. Returns 0 if it does not exist any more. */
static int process(const char *pid, char *state, int *parent, int *session)
{
    char path[64], line[600];
    char *p;
    int group;
    size_t got;
    FILE *f;
    (void)snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    f = fopen(path, "r");
    if (f == NULL) {
        return 0;
    }
    got = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[got] = '\0';
    p = strrchr(line, ')');
    return p != NULL && sscanf(p + 1, " %c %d %d %d", state, parent, &group, session) == 4;
}

/* Returns the number of living processes of a session, or the first living child of a process. */
static int living(int of_session, int child_of)
{
    DIR *d = opendir("/proc");
    struct dirent *e;
    int n = 0;
    while (d != NULL && (e = readdir(d)) != NULL) {
        char state;
        int parent, session;
        if (e->d_name[0] < '0' || e->d_name[0] > '9' ||
            !process(e->d_name, &state, &parent, &session) || state == 'Z' || state == 'X') {
            continue;
        }
        if (child_of != 0 && parent == child_of) {
            n = atoi(e->d_name);
            break;
        }
        n += child_of == 0 && session == of_session;
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

/* Returns the number of files that these processes left in /dev/shm. Their names begin with
 * dpar.PID. */
static int files_left(const board *b, int launcher)
{
    DIR *d = opendir("/dev/shm");
    struct dirent *e;
    int n = 0, r;
    while (d != NULL && (e = readdir(d)) != NULL) {
        int pid;
        if (sscanf(e->d_name, "dpar.%d.", &pid) != 1) {
            continue;
        }
        n += pid == launcher;
        for (r = 0; r < b->n; r++) {
            n += pid == b->rank[r].pid;
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

/* Waits until the process ends. Returns 0 if it does not. */
static int ended(pid_t pid, double seconds)
{
    double until = oracle_now() + seconds;
    while (waitpid(pid, NULL, WNOHANG) == 0) {
        if (oracle_now() > until) {
            return 0;
        }
        usleep(200);
    }
    return 1;
}

/* Waits until all ranks but the victim have reported. Returns 0 if they do not. */
static int all_told(const board *b, double seconds)
{
    double until = oracle_now() + seconds;
    int r;
    for (r = 0; r < b->n; r++) {
        while (r != b->victim && b->rank[r].stage != 2) {
            if (oracle_now() > until) {
                return 0;
            }
            usleep(200);
        }
    }
    return 1;
}

static void plan(board *b, uint64_t seed, int halo)
{
    /* The frequency of each fault, of 40. */
    static const int weight[FAULTS] = {1, 10, 5, 1, 1, 1, 1, 1, 3, 3, 2, 2, 2, 2, 5};
    static const int plain[8] = {0,
                                 0,
                                 DPAR_WORLD_NO_MEMFD,
                                 DPAR_WORLD_NO_MEMFD | DPAR_WORLD_NO_DIRECT,
                                 DPAR_WORLD_NO_FUTEX,
                                 DPAR_WORLD_NO_CMA | DPAR_WORLD_NO_DIRECT,
                                 DPAR_WORLD_NO_FLAT,
                                 DPAR_WORLD_NO_FLAT | DPAR_WORLD_NO_DIRECT};
    int64_t draw = oracle_below(&seed, 40);
    memset(b, 0, sizeof *b);
    for (b->fault = 0; draw >= weight[b->fault]; b->fault++) {
        draw -= weight[b->fault];
    }
    b->n = 2 + (int32_t)oracle_below(&seed, 5);
    b->victim = (int32_t)oracle_below(&seed, b->n);
    b->at = (int32_t)oracle_below(&seed, INT64_C(1) << oracle_below(&seed, 7));
    b->plain = plain[oracle_below(&seed, 8)];
    b->slot_bytes = oracle_below(&seed, 2) == 0 ? 4096 : 0;
    b->threads =
        oracle_below(&seed, 4) == 0 &&
        (b->fault == NONE || b->fault == DELAY_SHORT || b->fault == DELAY_LONG ||
         b->fault == MISMATCH || b->fault == RETURN_0 || b->fault == RETURN_1 || b->fault == ABORT);
    b->timeout_s = b->fault >= STOP_CONT && b->fault <= STOP_ONLY ? 1.0
                   : b->fault == DELAY_LONG                       ? 1.0
                                                                  : 60.0;
    /* Before a signal: 50 us to 26 ms, evenly in the logarithm. Inside a rank: depends on the
     * fault. */
    b->pause_s = 50e-6 * (double)(1 + oracle_below(&seed, 100) / 50.0) *
                 (double)(1 << oracle_below(&seed, 9));
    b->pause_s = b->fault == DELAY_SHORT ? 0.2 : b->fault == DELAY_LONG ? 1.8 : b->pause_s;
    b->operations = b->fault == NONE || b->fault == DELAY_SHORT ? 60 : 0;
    b->operations += b->operations > 0 ? b->at : 0;
    b->seed = oracle_next(&seed);
    b->halo = halo;
    b->quarrel = halo ? (int32_t)oracle_below(&seed, 3) : COLLECTIVE;
    if (b->fault == MISMATCH && b->quarrel == PLAN) {
        b->operations = b->at + 20;
    }
}

/* Does the faults that come from outside of the victim. Returns 0 if something hangs. Sets *when to
 * the time of the fault. */
static int inflict(board *b, pid_t launcher, double *when)
{
    double until = oracle_now() + 60; /* ranks start late on a busy machine */
    pid_t pid = 0;
    *when = oracle_now();
    if (b->fault == LAUNCHER || b->fault == KILL_EARLY) {
        sleep_s(b->pause_s / 4);
        if (b->fault == KILL_EARLY) {
            while (pid == 0 && !b->launched && oracle_now() < until) {
                pid = (pid_t)living(0, (int)launcher);
            }
            if (pid > 0) {
                kill(pid, SIGKILL);
            }
        } else {
            kill(launcher, SIGKILL);
        }
        *when = oracle_now();
        return 1;
    }
    if (b->fault < KILL || b->fault > STOP_ONLY) {
        return 1;
    }
    while (b->rank[b->victim].stage == 0) {
        if (oracle_now() > until) {
            return 0;
        }
        usleep(50);
    }
    sleep_s(b->pause_s);
    pid = (pid_t)b->rank[b->victim].pid;
    kill(pid, b->fault == KILL ? SIGKILL : SIGSTOP);
    *when = oracle_now();
    if (b->fault != KILL) {
        if (!all_told(b, 60)) {
            kill(pid, SIGKILL);
            return 0;
        }
        if (b->fault != STOP_ONLY) {
            kill(pid, b->fault == STOP_CONT ? SIGCONT : SIGKILL);
        }
    }
    return 1;
}

/* Returns the status that ranks other than the victim must get. */
static dpar_status expected(const board *b)
{
    switch (b->fault) {
    case KILL:
    case KILL_EARLY:
    case RETURN_0:
    case RETURN_1:
    case EXIT:
    case CRASH: return DPAR_E_PEER;
    case STOP_CONT:
    case STOP_KILL:
    case STOP_ONLY:
    case DELAY_LONG: return DPAR_E_TIMEOUT;
    case MISMATCH: return b->quarrel == PLAN ? DPAR_OK : DPAR_E_MISMATCH;
    case ABORT: return DPAR_E_NONE;
    default: return DPAR_OK;
    }
}

/* Checks the status and message of the launch. */
static int judge_launch(const board *b, long round)
{
    char rank[32];
    int f = b->fault, dies = f == KILL || f == KILL_EARLY || f == STOP_KILL || f == CRASH;
    int bad = dies || f == STOP_ONLY || f == RETURN_1 || f == EXIT;
    (void)snprintf(rank, sizeof rank, "rank %d", b->victim);
    if (f == LAUNCHER) {
        return 0;
    }
    if (bad != (b->launch_status == DPAR_E_PEER) && f != STOP_CONT && f != DELAY_LONG) {
        return complain(b, round, "the launch's status");
    }
    if ((dies || f == RETURN_1 || f == EXIT) &&
        strstr(b->launch_text, f == KILL_EARLY ? "rank" : rank) == NULL) {
        return complain(b, round, "the launch's sentence does not name the rank");
    }
    if (((f == KILL || f == KILL_EARLY) && strstr(b->launch_text, "9") == NULL) ||
        (f == EXIT && strstr(b->launch_text, "3") == NULL)) {
        return complain(b, round, "the launch's sentence does not say how it ended");
    }
    return b->fds != 0 ? complain(b, round, "the launcher's descriptors changed") : 0;
}

/* Returns the world rank that did not arrive according to a message: "rank 2 did not arrive within
 * 1.0 s", or in a group "2 ranks: 1 did not arrive within 1.0 s: rank 0 (3 in the world)". Of
 * several ranks it returns the victim if it is among them, otherwise the first; -1 if there is
 * none. */
static int late_rank(const board *b, const char *text)
{
    const char *end = strstr(text, " did not arrive within "), *name;
    char victim[32];
    (void)snprintf(victim, sizeof victim, "(%d in the world)", b->victim);
    if (end == NULL || strstr(end, victim) != NULL) {
        return end == NULL ? -1 : b->victim;
    }
    if (end - text >= 6 && strncmp(end - 6, "rank ", 5) == 0) {
        name = end - 1;
    } else if ((name = strstr(end, " in the world)")) != NULL) {
        name -= 1;
    } else if ((name = strstr(end, ": rank ")) != NULL) {
        name += 7;
    }
    return name != NULL && *name >= '0' && *name < '0' + b->n ? *name - '0' : -1;
}

/* Returns 1 if rank r reports the victim as late, directly or through other ranks that report each
 * other as late; otherwise 0. */
static int blames(const board *b, int r)
{
    int steps;
    for (steps = 0; steps < b->n && r >= 0 && r != b->victim; steps++) {
        r = late_rank(b, b->rank[r].text);
    }
    return r == b->victim;
}

/* Returns 1 if the message names a rank that has failed in the exchange with the culprit and ended,
 * while this rank, which needs nothing of that exchange, was already in the sum; otherwise 0. */
static int hears_of_another(const board *b, const seat *s, const char *culprit)
{
    const char *at = strstr(s->text, " called barrier #");
    int r;
    if (at == NULL || at[-1] < '0' || at[-1] >= '0' + b->n) {
        return 0;
    }
    r = at[-1] - '0';
    return b->rank[r].status == DPAR_E_MISMATCH && strstr(b->rank[r].text, culprit) != NULL;
}

/* Checks what a rank other than the victim has reported. */
static int judge_rank(const board *b, long round, int r)
{
    const seat *s = &b->rank[r];
    dpar_status want = expected(b);
    int f = b->fault, message;
    char rank[32];
    (void)snprintf(rank, sizeof rank, "rank %d", b->victim);
    if (s->wrong != 0) {
        return complain(b, round, "wrong data");
    }
    if (f == LAUNCHER || ((f == KILL_EARLY || f == KILL) && s->stage == 0)) {
        return 0; /* it was still starting: the launcher has reported it */
    }
    if (s->stage != 2) {
        return complain(b, round, "a rank did not come to its end");
    }
    /* Another rank timed out before and has left: this rank may report that. */
    if (want == DPAR_E_TIMEOUT && s->status == DPAR_E_PEER && s->later == s->status &&
        (strstr(s->text, "has left (failed: ") != NULL ||
         strstr(s->text, " returned 1 (failed: ") != NULL ||
         strstr(s->text, "closed the communicator or returned (failed: ") != NULL)) {
        return 0;
    }
    /* A rank that returned 0 has freed the world, which is a call that the others did not make. */
    if (f == RETURN_0 && s->status == DPAR_E_MISMATCH) {
        want = s->status;
    }
    if (s->status != want) {
        return complain(b, round, "a rank's status");
    }
    if (want == DPAR_OK) {
        return 0;
    }
    if (s->later != want) {
        return complain(b, round, "a later call says something else");
    }
    if (s->other != 0 && s->other != want) {
        return complain(b, round, "the world says something else");
    }
    if (f == ABORT) {
        return strstr(s->text, "no data is left") == NULL
                   ? complain(b, round, "the sentence of the abort")
                   : 0;
    }
    /* A rank that waits for a message may time out on a rank that waits for the culprit itself, and
     * the first message is the one that all ranks get. The same holds for a rank whose neighbour in
     * a grid timed out in another communicator a moment before. */
    if (want == DPAR_E_TIMEOUT && blames(b, r)) {
        return 0;
    }
    message = want == DPAR_E_TIMEOUT && (strstr(s->text, "send") || strstr(s->text, "recv"));
    message |= f == MISMATCH && b->quarrel == EXCHANGE && hears_of_another(b, s, rank);
    if (strstr(s->text, f != KILL_EARLY && s->strict && !message ? rank : "rank") == NULL) {
        return complain(b, round, "the sentence does not name the culprit");
    }
    return 0;
}

/* Checks the flight recorder as a survivor reads it after a kill: it contains the victim's last
 * operation. */
static int judge_report(const board *b, long round, int r)
{
    char rank[32];
    const seat *v = &b->rank[b->victim];
    const char *line;
    (void)snprintf(rank, sizeof rank, "rank %d", b->victim);
    if (b->fault != KILL || v->entered < 2) {
        return 0;
    }
    line = strstr(b->rank[r].report, rank);
    if (line == NULL || strstr(line, " #") == NULL) {
        if (complain(b, round, "the report does not show the killed rank's operations")) {
            printf("%s\n", b->rank[r].report);
        }
        return 1;
    }
    return 0;
}

static int judge(const board *b, long round)
{
    int r, bad, first = 0;
    if (expected(b) == DPAR_E_TIMEOUT && strstr(b->launch_text, "could not join") != NULL) {
        return 0; /* busy machine: not all ranks had arrived when the short timeout ended */
    }
    bad = judge_launch(b, round);
    for (r = 0; r < b->n; r++) {
        first += r != b->victim && b->rank[r].status == DPAR_E_TIMEOUT;
    }
    if (expected(b) == DPAR_E_TIMEOUT && first == 0 && !bad) {
        bad = complain(b, round, "no rank saw the deadline pass");
    }
    for (r = 0; r < b->n && !bad; r++) {
        if (r == b->victim && b->fault != NONE && b->fault != DELAY_SHORT) {
            continue;
        }
        bad = judge_rank(b, round, r) || judge_report(b, round, r);
    }
    return bad;
}

/* Counts of the outcomes of a fault. */
typedef struct tally {
    long rounds[FAULTS], status[FAULTS][16];
    double slowest[FAULTS];
} tally;

static void count(tally *t, const board *b, double when)
{
    int r;
    t->rounds[b->fault]++;
    for (r = 0; r < b->n; r++) {
        int s = -b->rank[r].status;
        if (b->rank[r].stage == 2 && r != b->victim && s >= 0 && s < 16) {
            t->status[b->fault][s]++;
            if (b->rank[r].when - when > t->slowest[b->fault]) {
                t->slowest[b->fault] = b->rank[r].when - when;
            }
        }
    }
}

static int one_round(board *b, uint64_t seed, long round, int halo, tally *t)
{
    pid_t launcher;
    double when;
    int fine, bad = 0;
    plan(b, oracle_mix(seed * 1000003u + (uint64_t)round), halo);
    fflush(stdout);
    launcher = fork();
    if (launcher < 0) {
        return complain(b, round, "fork failed");
    }
    if (launcher == 0) {
        setsid();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(240);
        launch(b);
        _exit(0);
    }
    fine = inflict(b, launcher, &when);
    fine = ended(launcher, 100) && fine;
    if (!fine) {
        bad = complain(b, round, "HANG");
        kill(launcher, SIGKILL);
        kill(-launcher, SIGKILL);
        (void)waitpid(launcher, NULL, 0);
        usleep(20000);
    }
    if (b->fault == LAUNCHER || !fine) { /* the ranks must end too */
        double until = oracle_now() + 20;
        while (living((int)launcher, 0) > 0 && oracle_now() < until) {
            usleep(1000);
        }
    }
    if (living((int)launcher, 0) > 0) {
        bad = complain(b, round, "processes are left");
        kill(-launcher, SIGKILL);
    }
    while (waitpid(-1, NULL, WNOHANG) > 0) { /* orphans become children of this process */
    }
    if (files_left(b, (int)launcher) > 0) {
        bad = complain(b, round, "a file is left in /dev/shm");
    }
    /* any child was killed: only the launcher knows which rank it was */
    if (b->fault == KILL_EARLY) {
        const char *at = strstr(b->launch_text, "rank ");
        b->victim = at != NULL ? at[5] - '0' : 0;
    }
    count(t, b, when);
    return bad || judge(b, round);
}

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? atol(argv[1]) : 100, first = argc > 3 ? atol(argv[3]) : 0, i;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    double begin = oracle_now();
    void *p = mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    tally t;
    int f, s, bad = 0, halo = argc > 4 && strcmp(argv[4], "halo") == 0;
    if (rounds < 1 || p == MAP_FAILED) {
        printf("usage: %s ROUNDS [SEED [FIRST [halo]]]\n", argv[0]);
        return 2;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    memset(&t, 0, sizeof t);
    for (i = first; i < first + rounds; i++) {
        bad += one_round((board *)p, seed, i, halo, &t);
    }
    for (f = 0; f < FAULTS; f++) {
        printf("%-14s %4ld rounds, slowest %6.3f s:", fault_names[f], t.rounds[f], t.slowest[f]);
        for (s = 0; s < 16; s++) {
            if (t.status[f][s] > 0) {
                printf(" %ld x \"%s\"", t.status[f][s], dpar_status_text(-s));
            }
        }
        printf("\n");
    }
    printf("%ld rounds, seed %llu, %d wrong, %.1f s, %.1f rounds a second\n", rounds,
           (unsigned long long)seed, bad, oracle_now() - begin,
           (double)rounds / (oracle_now() - begin));
    return bad != 0;
}
