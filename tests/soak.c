/* SPDX-License-Identifier: MIT-0 */
/* The soak: ranks that work for hours, and are hit. In each round a communicator is made, a few
 * hundred random operations of all kinds run over it (soak_work.h), each result compared, and most
 * rounds end in a fault: a rank is killed, ends, stops, comes late, calls something else, aborts,
 * leaves, or their launcher is killed, or /dev/shm is full. Every other rank must then get a status
 * with a sentence before its deadline; and the next round begins with a new communicator.
 *
 *     soak SECONDS SEED [--ops N] [--limit S] [--first ROUND]   ranks of this machine
 *     soak SECONDS SEED --start 'mpirun -np 4 soak_mpi' ...     soak_mpi: built with -DUSE_MPI
 *
 * The process that counts starts groups of ranks and reads their lines; for shared memory it forks
 * them: they join a job a round (dpar_init) and outlive it, or dpar_launch starts them for one. A
 * dead one is replaced. It ends with 0 if there was no hang, no leak and no wrong result.
 * tests/soak.sh builds and starts it. SOAK_SPOIL=value, fd, map, memory, file, process, crash,
 * sentence or hang breaks something on purpose. Needs Linux (/proc). */
#include "soak_work.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>

enum {
    NONE,
    PAUSED,  /* SIGSTOP for 0.4 s */
    DELAYED, /* 0.3 s late */
    REFUSED, /* all are refused a call */
    QUARREL, /* one plans something else: all are told, and go on */
    KILLED,
    ENDS,    /* _exit(3) */
    STOPPED, /* SIGSTOP until the others have given up */
    LATE,    /* asleep until then */
    OTHER,   /* another collective, count, type, op or root */
    ABORTS,
    LEAVES,   /* closes, while the others go on */
    LAUNCHER, /* kill -9 of the process that started them */
    FULL,     /* /dev/shm is full, and there is no other memory to share */
    FAULTS
};
#if !defined(USE_MPI)
static const char *const fault_names[FAULTS] = {"none",
                                                "paused, 0.4 s",
                                                "late, 0.3 s",
                                                "a refused call",
                                                "another plan",
                                                "killed",
                                                "ended",
                                                "stopped till after the deadline",
                                                "late beyond the deadline",
                                                "another call",
                                                "aborted",
                                                "left",
                                                "launcher killed",
                                                "full /dev/shm"};
#endif

enum { RANKS = 4, SHRINK_OPS = 30, FLEETING = 16 };

typedef struct settings {
    uint64_t seed;
    double until; /* CLOCK_MONOTONIC */
    int ops, mpi;
} settings;

typedef struct plan {
    int64_t round;
    uint64_t seed;
    int fault, victim, at, ops, timer, plain, slot_bytes, flat, shrink, launch;
    double deadline;
} plan;

static int fatal(int fault)
{
    return fault == KILLED || fault == ENDS;
}

static int harmless(int fault)
{
    return fault <= QUARREL;
}

/* Rounds 20 to 109 of each 200 are of harmless faults, so that processes live for long; from 120 on
 * dpar_launch starts the ranks of every other eight. */
static plan plan_of(const settings *of, int64_t round, int ranks)
{
    static const int plains[8] = {0,
                                  0,
                                  DPAR_WORLD_NO_MEMFD,
                                  DPAR_WORLD_NO_MEMFD | DPAR_WORLD_NO_DIRECT,
                                  DPAR_WORLD_NO_FUTEX,
                                  DPAR_WORLD_NO_CMA | DPAR_WORLD_NO_DIRECT,
                                  DPAR_WORLD_NO_FLAT,
                                  DPAR_WORLD_NO_FLAT | DPAR_WORLD_NO_DIRECT};
    /* of 40, among those that break a communicator: kills most of all; waits cost deadlines */
    static const int weight[FAULTS] = {0, 0, 0, 0, 0, 11, 5, 2, 2, 8, 5, 7, 0, 0};
    uint64_t lot = oracle_mix(of->seed * 1000003u + (uint64_t)round);
    const int64_t place = round % 200;
    int64_t draw;
    plan p;
    memset(&p, 0, sizeof p);
    p.round = round;
    p.launch = !of->mpi && place >= 120 && place / 8 % 2 == 1;
    p.ops = of->ops / 2 + (int)oracle_below(&lot, of->ops);
    p.victim = (int)oracle_below(&lot, ranks);
    p.at = (int)oracle_below(&lot, p.ops);
    p.timer = oracle_below(&lot, 2) ? 1 + (int)oracle_below(&lot, 3000) : 0; /* us into it */
    p.plain = plains[oracle_below(&lot, 8)];
    p.slot_bytes = oracle_below(&lot, 3) == 0 ? 4096 : 0;
    p.flat = oracle_below(&lot, 4) == 0;
    p.shrink = (int)oracle_below(&lot, 2);
    if ((place >= 20 && place < 110) || oracle_below(&lot, 3) == 0) {
        p.fault = (int)oracle_below(&lot, QUARREL + 1);
    } else {
        draw = oracle_below(&lot, 40);
        for (p.fault = 0; draw >= weight[p.fault]; p.fault++) {
            draw -= weight[p.fault];
        }
        if (p.launch && oracle_below(&lot, 3) == 0) {
            p.fault = oracle_below(&lot, 2) ? LAUNCHER : FULL;
        }
    }
    p.deadline = p.fault == STOPPED || p.fault == LATE || p.fault == LEAVES ? 10
                 : of->mpi && fatal(p.fault)                                ? 20
                                                                            : 60;
    p.seed = oracle_next(&lot);
    return p;
}

/* ---- a rank ---- */

/* What a process holds: open files, mappings, KB of memory. */
typedef struct held {
    int files, maps;
    int64_t kb;
} held;

static int entries(const char *folder)
{
    DIR *d = opendir(folder);
    int n = 0;
    while (d != NULL && readdir(d) != NULL) {
        n++;
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

static held held_now(void)
{
    held h;
    FILE *f = fopen("/proc/self/maps", "r");
    long pages = 0, all = 0;
    int c;
    h.maps = 0;
    while (f != NULL && (c = getc(f)) != EOF) {
        h.maps += c == '\n';
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    f = fopen("/proc/self/statm", "r");
    if (f != NULL) {
        (void)(fscanf(f, "%ld %ld", &all, &pages) == 2);
        (void)fclose(f);
    }
    h.kb = (int64_t)pages * (sysconf(_SC_PAGESIZE) / 1024);
    h.files = entries("/proc/self/fd");
    return h;
}

enum { FILES = 256 };

typedef struct life {
    const settings *of;
    int rank, rounds;  /* that this process has ended */
    held first;        /* after the first few */
    char known[FILES]; /* open then */
    soak_job j;
    double ticked;
    const char *spoil;
} life;

static void line(const char *format, ...)
{
    char text[1600];
    va_list list;
    int n;
    va_start(list, format);
    n = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    n = n < (int)sizeof text - 1 ? n : (int)sizeof text - 2;
    text[n++] = '\n';
    if (write(1, text, (size_t)n) != n) {
        _exit(5);
    }
}

static void tick(life *l, const plan *p)
{
    if (oracle_now() > l->ticked + 2) {
        l->ticked = oracle_now();
        line("soak tick %lld %d %d", (long long)p->round, l->rank, (int)getpid());
    }
}

static void nap(double s)
{
    const double end = oracle_now() + s;
    while (oracle_now() < end) {
        usleep(10000);
    }
}

/* What is open that was not after the first rounds. */
static void tell_files(const life *l, int64_t round)
{
    int i;
    for (i = 3; i < FILES; i++) {
        char path[40], what[120];
        ssize_t n;
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", i);
        n = l->known[i] ? -1 : readlink(path, what, sizeof what - 1);
        if (n > 0) {
            what[n] = 0;
            line("soak: rank %d, round %lld, new: %d is %s", l->rank, (long long)round, i, what);
        }
    }
}

static int strikes;
static volatile sig_atomic_t sheltered; /* in MPI_Comm_split and the like, which know no deadline */

/* In 1 ms again. */
static void strike_later(void)
{
    struct itimerval soon;
    memset(&soon, 0, sizeof soon);
    soon.it_value.tv_usec = 1000;
    (void)setitimer(ITIMER_REAL, &soon, NULL);
}

static void strike(int unused)
{
    (void)unused;
    if (sheltered) {
        strike_later();
        return;
    }
    if (strikes == ENDS) {
        _exit(3);
    }
    (void)raise(strikes == KILLED ? SIGKILL : SIGSTOP);
}

/* What the victim does before its operation, or somewhere in it. */
static void prepare(const plan *p, dpar_comm *world)
{
    struct itimerval when;
    char words[120];
    strikes = p->fault;
    if (p->fault == PAUSED || p->fault == STOPPED) {
        (void)snprintf(words, sizeof words,
                       "setsid sh -c 'sleep %g; kill -CONT %ld' < /dev/null > /dev/null 2>&1 &",
                       p->fault == PAUSED ? 0.4 : p->deadline + 4, (long)getpid());
        if (system(words) != 0) {
            line("soak note no shell");
            return;
        }
    }
    if (fatal(p->fault) || p->fault == PAUSED || p->fault == STOPPED) {
        memset(&when, 0, sizeof when);
        when.it_value.tv_usec = p->timer;
        (void)signal(SIGALRM, strike);
        if (p->timer == 0 || setitimer(ITIMER_REAL, &when, NULL) != 0) {
            strike(0);
        }
    } else if (p->fault == DELAYED || p->fault == LATE) {
        nap(p->fault == DELAYED ? 0.3 : p->deadline + 4);
    } else if (p->fault == ABORTS) {
        dpar_comm_abort(world, DPAR_E_SYSTEM, "the disk is full");
    }
}

/* One sum by all, which the victim takes for something else. */
static dpar_status quarrel(soak_job *j, const plan *p, int mine)
{
    int64_t in[3] = {1, 2, 3}, out[3];
    const int how = mine ? 1 + (int)(p->seed % 4) : 0;
    j->failed = j->world;
    return how == 3 ? dpar_broadcast(j->world, out, 2, DPAR_I64, 0, NULL)
                    : dpar_all_reduce(j->world, in, out, how == 1 ? 3 : 2,
                                      how == 2 ? DPAR_U64 : DPAR_I64,
                                      how == 4 ? DPAR_MAX : DPAR_SUM, NULL);
}

/* All plan a halo, the victim with another tag: all are told who, and the communicator lives. */
static dpar_status another_plan(soak_job *j, const plan *p, int mine)
{
    halo_work w;
    dpar_halo_plan *x = NULL;
    dpar_why why;
    dpar_status s = halo_work_open(&w, j->world, p->seed), told;
    char rank[24];
    j->failed = j->world;
    if (s < 0) {
        return s;
    }
    (void)snprintf(rank, sizeof rank, "%d", p->victim);
    why.text[0] = 0;
    w.options.tag += mine;
    told = plan_init(soak_memory(j, w.c, w.bytes, 0), w.bytes, w.c, w.f, HALO_WORK_FIELDS,
                     &w.options, &x, &why);
    if (w.c->status == DPAR_OK &&
        (told != DPAR_E_MISMATCH || (w.c->size > 1 && strstr(why.text, rank) == NULL))) {
        soak_wrong(j, "another plan is not told of", told, 0, 0);
        (void)snprintf(j->text, sizeof j->text, "another plan: %d %.150s", (int)told, why.text);
    }
    s = w.c->status;
    return soak_first(s, halo_work_close(&w));
}

/* Calls that must be refused, each with a sentence. */
static dpar_status refused(soak_job *j)
{
    double x = 0;
    dpar_why why;
    dpar_redistribute_desc move;
    memset(&move, 0, sizeof move);
    why.text[0] = 0;
    j->failed = j->world;
    if (dpar_all_reduce(j->world, &x, &x, -1, DPAR_F64, DPAR_SUM, NULL) != DPAR_E_ARG ||
        j->world->why.text[0] == 0 || j->world->status != DPAR_OK) {
        soak_wrong(j, "a count below 0 is not refused", 0, 0, 0);
    }
    if (dpar_redistribute(j->world, &move, &why) != DPAR_E_ARG || why.text[0] == 0) {
        soak_wrong(j, "a move without layouts is not refused", 0, 0, 0);
    }
    return j->world->status;
}

/* Until something fails, or all is done. 1: the victim's part is over. */
static int turns(life *l, const plan *p, dpar_status *s, double *took)
{
    soak_job *j = &l->j;
    const int mine = l->rank == p->victim, last = harmless(p->fault) ? p->ops : p->at + 5000;
    uint64_t seed = p->seed;
    int i;
    for (i = 0; i < last && *s >= 0; i++) {
        const uint64_t lot = oracle_next(&seed);
        const double began = oracle_now();
        tick(l, p);
        if (i == p->at && mine && p->fault == LEAVES) {
            return 1;
        }
        if (i == p->at && mine) {
            prepare(p, j->world);
        }
        if (i > p->at + 3 && mine && (fatal(p->fault) || p->fault == STOPPED)) {
            nap(0.02); /* by then the timer has struck, however fast all were */
        }
        if (i == p->at && p->fault == OTHER) {
            *s = quarrel(j, p, mine);
        } else if (i == p->at && p->fault == QUARREL) {
            *s = another_plan(j, p, mine);
            soak_clear(j, *s);
        } else if (i == p->at && p->fault == REFUSED) {
            *s = refused(j);
        } else {
            *s = soak_operation(j, lot);
        }
        *took = oracle_now() - began;
        if (l->spoil != NULL && strcmp(l->spoil, "hang") == 0 && l->rank == 1 && p->round == 1) {
            for (;;) {
                (void)pause();
            }
        }
    }
    return 0;
}

/* Has the rank been told rightly? NULL: yes. */
static const char *judge(const life *l, const plan *p, dpar_status s, const char *text, double took)
{
    const int mpi = l->of->mpi, mine = l->rank == p->victim;
    if (harmless(p->fault)) {
        return s < 0 ? "a harmless fault broke it" : NULL;
    }
    if (s >= 0) {
        return "nothing was said";
    }
    if (took > p->deadline + 45) {
        return "too late";
    }
    if (text[0] == 0) {
        return "no sentence";
    }
    if (mine) {
        return NULL; /* the culprit itself is told of any */
    }
    if (strstr(text, "rank") == NULL && strstr(text, "the disk is full") == NULL) {
        return "it names no rank";
    }
    switch (p->fault) {
    case KILLED:
    case ENDS:
        return s == DPAR_E_PEER ||
                       (mpi && (s == DPAR_E_TIMEOUT ||
                                (s == DPAR_E_SYSTEM && strstr(text, "MPI says") != NULL) ||
                                (s == DPAR_E_MISMATCH && strstr(text, "close #") != NULL)))
                   ? NULL
                   : "the status";
    case STOPPED:
    case LATE: /* or another, that had given up before, has left */
        return s == DPAR_E_TIMEOUT || (s == DPAR_E_PEER && strstr(text, "failed: ") != NULL) || mpi
                   ? NULL
                   : "the status";
    case ABORTS: return s == DPAR_E_SYSTEM || mpi ? NULL : "the status";
    case OTHER: return s == DPAR_E_MISMATCH || mpi ? NULL : "the status";
    default: /* who waits in one that was split from what the victim closes hears at the deadline */
        return s == DPAR_E_MISMATCH || s == DPAR_E_PEER || s == DPAR_E_TIMEOUT || mpi
                   ? NULL
                   : "the status";
    }
}

/* The survivors go on, on a smaller communicator. */
static const char *shrink(life *l, const plan *p, dpar_comm *world)
{
    static soak_job j;
    dpar_comm *next = NULL;
    int32_t was[ORACLE_RANKS];
    dpar_why why;
    dpar_status s;
    uint64_t seed = p->seed + 1;
    int i;
    dpar_comm_abort(l->j.twin, DPAR_E_PEER,
                    "a rank shrinks the world"); /* who waits there hears of it */
    dpar_comm_abort(l->j.half, DPAR_E_PEER, "a rank shrinks the world");
    s = dpar_comm_shrink(world, &next, was, &why);
    if (s < 0) {
        return "it cannot be shrunk";
    }
    if (next->size != world->size - 1) {
        return "it was shrunk to another size";
    }
    memset(&j, 0, sizeof j);
    memcpy(j.o.tables, l->j.o.tables, sizeof j.o.tables);
    s = soak_open(&j, next);
    for (i = 0; i < SHRINK_OPS && s >= 0; i++) {
        s = soak_operation(&j, oracle_next(&seed));
        tick(l, p);
    }
    l->j.wrong += j.wrong;
    if (j.wrong > 0) {
        memcpy(l->j.text, j.text, sizeof j.text);
    }
    for (i = 0; i < SOAK_KINDS; i++) {
        l->j.done[i] += j.done[i];
    }
    s = soak_close(&j, s);
    s = soak_first(s, dpar_comm_free(next));
    return s < 0 ? "it broke after it was shrunk" : NULL;
}

/* Something goes wrong on purpose, at each round of rank 1. */
static void spoil(life *l, const plan *p)
{
    char name[60];
    l->spoil = getenv("SOAK_SPOIL");
    if (l->spoil == NULL || l->rank != 1) {
        return;
    }
    if (strcmp(l->spoil, "value") == 0) {
        l->j.spoil = 20;
    } else if (strcmp(l->spoil, "fd") == 0) {
        (void)dup(0);
    } else if (strcmp(l->spoil, "map") == 0) {
        int i;
        for (i = 0; i < 20; i++) { /* neighbours that differ are not merged */
            (void)mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1,
                       0);
        }
    } else if (strcmp(l->spoil, "memory") == 0) {
        void *p64 = malloc(16 << 20);
        memset(p64, 1, 16 << 20);
        line("soak note %p", p64);
    } else if (strcmp(l->spoil, "file") == 0) {
        (void)snprintf(name, sizeof name, "/dev/shm/dpar.%d.soak", (int)getpid());
        (void)close(open(name, O_CREAT | O_RDWR, 0600));
    } else if (strcmp(l->spoil, "crash") == 0 && p->round == 1) {
        (void)raise(SIGSEGV);
    } else if (strcmp(l->spoil, "process") == 0 && p->round == 1) {
        if (fork() == 0) {
            (void)setsid();
            (void)close(1);
            (void)sleep(1000);
            _exit(0);
        }
    }
}

/* One round on a communicator that was just made. */
static void one_round(life *l, const plan *p, dpar_comm *world, int close_it)
{
    soak_job *j = &l->j;
    dpar_status s, first;
    const char *bad;
    char text[sizeof j->failed->why.text] = "", kinds[300];
    double took = 0, closing = 0;
    int over = 0, i, n = 0;
    held h;
    j->keep = l->of->mpi;
    j->o.delays = 1;
    j->o.own = oracle_mix(p->seed + (uint64_t)l->rank);
    j->bytes = j->wrong = 0;
    j->text[0] = 0;
    memset(j->done, 0, sizeof j->done);
    spoil(l, p);
    s = soak_open(j, world);
    over = turns(l, p, &s, &took);
    first = s;
    if (s < 0) {
        memcpy(text, j->failed->why.text, sizeof text);
    }
    if (l->spoil != NULL && strcmp(l->spoil, "sentence") == 0) {
        text[0] = 0;
    }
    bad = over ? NULL : judge(l, p, s, text, took);
    if (bad == NULL && s < 0 && j->failed->status < 0) { /* later calls say the same, at once */
        const double began = oracle_now();
        const dpar_status again = dpar_barrier(j->failed, NULL);
        bad = again != j->failed->status  ? "another status afterwards"
              : oracle_now() > began + 30 ? "a later call waits"
                                          : NULL;
    }
    if (bad == NULL && fatal(p->fault) && !l->of->mpi && p->shrink) {
        bad = shrink(l, p, world);
    }
    if (l->of->mpi && s < 0) { /* each communicator breaks alone: those who wait in others hear */
        dpar_comm_abort(world, s, text);
        dpar_comm_abort(j->twin, s, text);
        dpar_comm_abort(j->half, s, text);
    }
    closing = oracle_now();
    if (!over) {
        s = soak_close(j, s);
    }
    if (close_it) {
        s = soak_first(s, dpar_comm_free(world));
    }
    closing = oracle_now() - closing;
    if (bad == NULL && harmless(p->fault) && s < 0) {
        bad = "the close failed";
    }
    if (bad == NULL && closing > p->deadline + 45) {
        bad = "the close waited";
    }
    if (over) {
        for (i = 0; i < SOAK_SLOTS; i++) { /* registered memory has gone with the world */
            free(j->slot[i].memory[0][0]);
            free(j->slot[i].memory[0][1]);
            free(j->slot[i].image);
        }
    }
    for (i = 0; i < SOAK_KINDS; i++) {
        n += snprintf(kinds + n, sizeof kinds - (size_t)n, "%s%lld", i ? "," : "",
                      (long long)j->done[i]);
    }
    h = held_now();
    if (l->rounds++ < 3) {
        l->first = h;
        for (i = 0; i < FILES; i++) {
            l->known[i] = fcntl(i, F_GETFD) >= 0;
        }
    }
    if (h.files > l->first.files) {
        tell_files(l, p->round);
    }
    line("soak end %lld %d %d %d %d %.2f %d %d %lld %lld %lld %d %s | %s | %s%s%s%s%s",
         (long long)p->round, l->rank, (int)getpid(), first, bad != NULL, took,
         h.files - l->first.files, h.maps - l->first.maps, (long long)(h.kb - l->first.kb),
         (long long)j->bytes, (long long)j->wrong, l->rounds, kinds, text, bad ? bad : "",
         bad ? ", in " : "", bad ? soak_names[j->kind] : "", bad && j->wrong ? "; " : "",
         j->wrong ? j->text : "");
}

/* Does the time allow another round? Rank 0's clock says it for all. */
static int goes_on(const life *l, dpar_comm *world)
{
    int32_t go = oracle_now() < l->of->until;
    return dpar_broadcast(world, &go, 1, DPAR_I32, 0, NULL) == DPAR_OK && go;
}

static void broken_start(const life *l, const plan *p, const char *text)
{
    line("soak end %lld %d %d -99 1 0 0 0 0 0 0 %d 0 | %s | no communicator", (long long)p->round,
         l->rank, (int)getpid(), l->rounds, text);
}

static life *life_new(const settings *of, int rank, int ranks)
{
    life *l = (life *)calloc(1, sizeof *l);
    if (l == NULL) {
        _exit(4);
    }
    l->of = of;
    l->rank = rank;
    l->j.o.whole = of->mpi;
    soak_tables(&l->j.o, ranks);
    return l;
}

#if defined(USE_MPI)

static dpar_status (*mpi_split)(dpar_comm *, int32_t, int32_t, dpar_comm **);

/* A split that no timer strikes. dpar_mpi.h says that MPI has no deadline there. */
static dpar_status sheltered_split(dpar_comm *c, int32_t color, int32_t key, dpar_comm **out)
{
    dpar_status s;
    sheltered = 1;
    s = mpi_split(c, color, key, out);
    sheltered = 0;
    if (s == DPAR_OK && *out != NULL) {
        (*out)->engine.split = sheltered_split;
    }
    return s;
}

/* soak_mpi FIRST SEED SECONDS_LEFT OPS: rounds until one breaks. */
int main(int argc, char **argv)
{
    settings of;
    dpar_comm *world = NULL;
    dpar_mpi_desc o;
    dpar_why why;
    life *l;
    int64_t round = argc > 1 ? atoll(argv[1]) : 0;
    int rank, size, go = 1;
    memset(&of, 0, sizeof of);
    of.seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    of.until = oracle_now() + (argc > 3 ? atof(argv[3]) : 10);
    of.ops = argc > 4 ? atoi(argv[4]) : 100;
    of.mpi = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    l = life_new(&of, rank, size);
    for (;; round++) {
        const plan p = plan_of(&of, round, size);
        memset(&o, 0, sizeof o);
        o.timeout_s = p.deadline;
        o.flat = p.flat;
        o.check = p.fault == OTHER;
        why.text[0] = 0;
        tick(l, &p);
        if (dpar_mpi_make(MPI_COMM_WORLD, &o, &world, &why) < 0) {
            broken_start(l, &p, why.text);
            _exit(1);
        }
        mpi_split = world->engine.split;
        world->engine.split = sheltered_split;
        go = goes_on(l, world);
        if (!go) {
            break;
        }
        one_round(l, &p, world, 1);
        if (!harmless(p.fault)) {
            if (!fatal(p.fault)) {
                MPI_Barrier(MPI_COMM_WORLD);
            }
            _exit(0); /* what broke may have left MPI messages for ever */
        }
    }
    line("soak over %lld %d %d", (long long)round, rank, (int)getpid());
    (void)dpar_comm_free(world);
    MPI_Finalize();
    return 0;
}

#else

/* ---- ranks of shared memory: a group of processes ---- */

static void join_rounds(const settings *of, int rank, int64_t round, volatile int64_t *at)
{
    life *l = life_new(of, rank, RANKS);
    char number[60];
    (void)snprintf(number, sizeof number, "%d", rank);
    (void)setenv("DPAR_RANK", number, 1);
    (void)snprintf(number, sizeof number, "%d", RANKS);
    (void)setenv("DPAR_SIZE", number, 1);
    for (;; round++) {
        const plan p = plan_of(of, round, RANKS);
        dpar_comm *world = NULL;
        dpar_world_desc o;
        dpar_why why;
        at[rank] = round;
        if (p.launch) {
            break;
        }
        memset(&o, 0, sizeof o);
        o.timeout_s = 170;
        o.disable = p.plain;
        o.slot_bytes = p.slot_bytes;
        why.text[0] = 0;
        (void)snprintf(number, sizeof number, "soak.%d.%lld", (int)getppid(), (long long)round);
        (void)setenv("DPAR_JOB", number, 1);
        tick(l, &p);
        if (dpar_init(&world, &o, &why) < 0) {
            broken_start(l, &p, why.text);
            _exit(1);
        }
        world->timeout_s = p.deadline;
        if (!goes_on(l, world)) {
            (void)dpar_comm_free(world);
            break;
        }
        one_round(l, &p, world, 1);
    }
    line("soak over %lld %d %d", (long long)round, rank, (int)getpid());
    _exit(0);
}

static pid_t join_start(const settings *of, int rank, int64_t round, volatile int64_t *at)
{
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        join_rounds(of, rank, round, at);
    }
    return pid;
}

/* Ranks that outlive their jobs; one that has died is replaced. */
static void joined(const settings *of, int64_t round)
{
    volatile int64_t *at = (volatile int64_t *)mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[RANKS], gone;
    int r, left = RANKS, status;
    for (r = 0; r < RANKS; r++) {
        pid[r] = join_start(of, r, round, at);
    }
    while (left > 0 && (gone = waitpid(-1, &status, 0)) > 0) {
        for (r = 0; r < RANKS && pid[r] != gone; r++) {
        }
        if (r == RANKS) {
            continue;
        }
        if (status == 0) {
            left--;
            continue;
        }
        if (!fatal(plan_of(of, at[r], RANKS).fault) || plan_of(of, at[r], RANKS).victim != r) {
            line("soak crash %lld %d %d status %d", (long long)at[r], r, (int)gone, status);
        }
        pid[r] = join_start(of, r, at[r] + 1, at);
    }
}

typedef struct launch_arg {
    const settings *of;
    const plan *p;
} launch_arg;

static int launched_rank(dpar_comm *world, void *arg)
{
    const launch_arg *a = (const launch_arg *)arg;
    life *l = life_new(a->of, world->rank, RANKS);
    tick(l, a->p);
    one_round(l, a->p, world, 0);
    return 0;
}

/* What does not fit is refused with a sentence, and the rest goes on; no rank dies of SIGBUS. */
static int launched_full(dpar_comm *world, void *arg)
{
    const launch_arg *a = (const launch_arg *)arg;
    double sum;
    void *memory = NULL;
    int bad;
    (void)a;
    bad = dpar_comm_alloc(world, 64 << 20, &memory) != DPAR_E_MEMORY || memory != NULL ||
          world->why.text[0] == 0;
    sum = dpar_sum(world, world->rank);
    return bad || sum != RANKS * (RANKS - 1) / 2;
}

static int small_shm(int kib)
{
    char size[40];
    (void)snprintf(size, sizeof size, "size=%dk", kib);
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", "/dev/shm", "tmpfs", 0, size) == 0;
}

static void launched(const settings *of, int64_t round)
{
    const plan p = plan_of(of, round, RANKS);
    const int before = entries("/proc/self/fd");
    launch_arg a;
    dpar_world_desc o;
    dpar_why why;
    dpar_status s;
    const char *bad = NULL;
    a.of = of, a.p = &p;
    memset(&o, 0, sizeof o);
    why.text[0] = 0;
    o.timeout_s = p.deadline;
    o.grace_s = 100;
    o.disable = p.plain;
    o.slot_bytes = p.slot_bytes;
    if (p.fault == FULL) {
        if (!small_shm(64 << p.timer % 8)) {
            line("soak launch %lld 0 0 | no mount namespace: skipped |", (long long)round);
            return;
        }
        o.disable = DPAR_WORLD_NO_MEMFD;
        s = dpar_launch(RANKS, launched_full, &a, &o, &why);
        bad = s == DPAR_OK || ((s == DPAR_E_MEMORY || s == DPAR_E_SYSTEM || s == DPAR_E_PEER) &&
                               strstr(why.text, "space") != NULL)
                  ? NULL
                  : "a full /dev/shm";
    } else {
        s = dpar_launch(RANKS, launched_rank, &a, &o, &why);
        bad = fatal(p.fault) != (s == DPAR_E_PEER) ? "the launch's status" : NULL;
    }
    bad = bad == NULL && s < 0 && why.text[0] == 0 ? "the launch has no sentence" : bad;
    line("soak launch %lld %d %d | %s | %s", (long long)round, s, entries("/proc/self/fd") - before,
         why.text, bad ? bad : "");
}

/* ---- who counts ---- */

typedef struct fleeting { /* a round that is going on */
    int64_t round, done[SOAK_KINDS];
    int told, expected;
} fleeting;

typedef struct process_seen {
    int pid, leaks;
} process_seen;

enum { SEEN = 4096, WORDS = 12, BY_MPI = 2 };

typedef struct tally {
    settings of;
    const char *start;
    double began, limit, heard, minute; /* when a line of progress was last written */
    int64_t rounds, operations[SOAK_KINDS], bytes;
    int64_t faults[FAULTS], told[FAULTS][16], skipped;
    double slowest[FAULTS];
    int64_t hangs, files, maps, memory, names, processes, wrong, judged, silent, crashes, fell,
        by_mpi;
    int64_t groups, most_rounds, most_kb, most_kb_rounds, most_maps;
    int64_t round;          /* the last that was heard of */
    int last_told;          /* of a round that breaks: 1: some have told, 2: all */
    char words[WORDS][200]; /* the last that a launcher said */
    int worded;
    fleeting now[FLEETING];
    process_seen seen[SEEN];
    int pids;
} tally;

static int64_t all_leaks(const tally *t)
{
    return t->files + t->maps + t->memory + t->names + t->processes;
}

static int64_t all_wrong(const tally *t)
{
    return t->wrong + t->judged + t->silent + t->crashes;
}

static int64_t sum_of(const int64_t *x, int n)
{
    int64_t sum = 0;
    while (n > 0) {
        sum += x[--n];
    }
    return sum;
}

static void progress(const tally *t)
{
    printf("%5.1f min: %lld rounds, %lld operations, %.2f GB compared, %lld faults, %lld hangs, "
           "%lld leaks, %lld wrong\n",
           (oracle_now() - t->began) / 60, (long long)t->rounds,
           (long long)sum_of(t->operations, SOAK_KINDS), (double)t->bytes * 1e-9,
           (long long)sum_of(t->faults + 1, FAULTS - 1), (long long)t->hangs,
           (long long)all_leaks(t), (long long)all_wrong(t));
    fflush(stdout);
}

static void show_words(tally *t)
{
    int k;
    for (k = t->worded > WORDS ? t->worded - WORDS : 0; k < t->worded; k++) {
        printf("  : %s\n", t->words[k % WORDS]);
    }
    t->worded = 0;
}

static void flush_round(tally *t, fleeting *f, int ended)
{
    int k;
    if (f->round < 0) {
        return;
    }
    for (k = 0; k < SOAK_KINDS; k++) {
        t->operations[k] += f->done[k];
    }
    if (ended == BY_MPI && f->told < f->expected) {
        t->by_mpi += f->expected - f->told;
    } else if (ended && f->told < f->expected) {
        t->silent += f->expected - f->told;
        printf("SILENT: round %lld: %d of %d ranks have told\n", (long long)f->round, f->told,
               f->expected);
        show_words(t);
    }
    f->round = -1;
}

/* The slot of a round, counted when it is first heard of. */
static fleeting *round_of(tally *t, int64_t round)
{
    fleeting *f = &t->now[round % FLEETING];
    if (f->round != round) {
        const plan p = plan_of(&t->of, round, RANKS);
        flush_round(t, f, 1);
        memset(f, 0, sizeof *f);
        f->round = round;
        f->expected = p.fault == FULL || p.fault == LAUNCHER ? 0 : RANKS - fatal(p.fault);
        t->rounds++;
        t->faults[p.fault]++;
        t->round = round > t->round ? round : t->round;
        t->last_told = 0;
    }
    return f;
}

/* It was not played: the time was over, or others play it. */
static void forget_round(tally *t, int64_t round)
{
    fleeting *f = &t->now[round % FLEETING];
    if (f->round == round && f->told == 0) {
        f->round = -1;
        t->rounds--;
        t->faults[plan_of(&t->of, round, RANKS).fault]--;
    }
    t->round = round - 1;
}

static process_seen *seen(tally *t, int pid)
{
    int i;
    for (i = 0; i < t->pids; i++) {
        if (t->seen[i].pid == pid) {
            return &t->seen[i];
        }
    }
    t->pids = t->pids == SEEN ? 0 : t->pids;
    t->seen[t->pids].pid = pid;
    t->seen[t->pids].leaks = 0;
    return &t->seen[t->pids++];
}

/* Once for each process and what leaks. */
static void leak(tally *t, int pid, int what, int64_t *counter, const char *name, long long by,
                 int rounds)
{
    process_seen *s = seen(t, pid);
    if (s->leaks >> what & 1) {
        return;
    }
    s->leaks |= 1 << what;
    ++*counter;
    printf("LEAK: process %d has %lld %s more after %d rounds\n", pid, by, name, rounds);
}

static void hear_end(tally *t, const char *text)
{
    long long round, kb, bytes, wrong;
    int rank, pid, status, bad, files, maps, rounds, n = 0, k;
    double took;
    fleeting *f;
    plan p;
    if (sscanf(text, "soak end %lld %d %d %d %d %lf %d %d %lld %lld %lld %d %n", &round, &rank,
               &pid, &status, &bad, &took, &files, &maps, &kb, &bytes, &wrong, &rounds, &n) < 12) {
        t->judged++;
        printf("UNREADABLE: %s\n", text);
        return;
    }
    f = round_of(t, round);
    p = plan_of(&t->of, round, RANKS);
    f->told++;
    t->last_told = harmless(p.fault) ? 0 : f->told == f->expected ? 2 : 1;
    (void)seen(t, pid);
    for (k = 0; k < SOAK_KINDS && text[n] >= '0' && text[n] <= '9'; k++) {
        char *end;
        const int64_t done = strtoll(text + n, &end, 10);
        f->done[k] = done > f->done[k] ? done : f->done[k];
        n = (int)(end - text) + (*end == ',');
    }
    t->bytes += bytes;
    t->wrong += wrong;
    t->judged += bad;
    if (bad || wrong) {
        printf(
            "WRONG: round %lld (%s, victim %d, deadline %g): rank %d: status %d after %.1f s%s\n",
            round, fault_names[p.fault], p.victim, p.deadline, rank, status, took, text + n);
    }
    if (rank != p.victim && -status >= 0 && -status < 16) {
        t->told[p.fault][-status]++;
        if (!harmless(p.fault) && took > t->slowest[p.fault]) {
            t->slowest[p.fault] = took;
        }
    }
    if (files > 0) {
        leak(t, pid, 0, &t->files, "open files", files, rounds);
    }
    if (maps > 100) {
        leak(t, pid, 1, &t->maps, "mappings", maps, rounds);
    }
    if (kb > 64 * 1024) {
        leak(t, pid, 2, &t->memory, "KB of memory", kb, rounds);
    }
    t->most_maps = maps > t->most_maps ? maps : t->most_maps;
    t->most_rounds = rounds > t->most_rounds ? rounds : t->most_rounds;
    if (kb > t->most_kb) {
        t->most_kb = kb;
        t->most_kb_rounds = rounds;
    }
}

static void hear_launch(tally *t, const char *text)
{
    long long round;
    int status, files;
    const char *bad = strrchr(text, '|');
    if (sscanf(text, "soak launch %lld %d %d", &round, &status, &files) < 3) {
        return;
    }
    (void)round_of(t, round);
    if (files > 0) {
        t->files++;
        printf("LEAK: a launcher has %d open files more\n", files);
    }
    t->skipped += strstr(text, "skipped") != NULL;
    if (-status >= 0 && -status < 16 && plan_of(&t->of, round, RANKS).fault == FULL) {
        t->told[FULL][-status]++;
    }
    if (bad != NULL && bad[1] == ' ' && bad[2] != 0) {
        t->judged++;
        printf("WRONG: %s\n", text);
    }
}

static void hear(tally *t, const char *text)
{
    long long round;
    int rank, pid;
    const char *at = strstr(text, "soak "); /* a launcher may put its own words before */
    if (at != NULL && strncmp(at, "soak end ", 9) == 0) {
        hear_end(t, at);
    } else if (at != NULL && strncmp(at, "soak launch ", 12) == 0) {
        hear_launch(t, at);
    } else if (at != NULL && sscanf(at, "soak tick %lld %d %d", &round, &rank, &pid) == 3) {
        (void)round_of(t, round);
        (void)seen(t, pid);
    } else if (at != NULL && sscanf(at, "soak over %lld", &round) == 1) {
        forget_round(t, round);
    } else if (at != NULL && strncmp(at, "soak crash ", 11) == 0) {
        t->crashes++;
        printf("CRASH: %s\n", at);
    } else if (strstr(text, "WRONG") != NULL || strstr(text, "soak: ") != NULL) {
        printf("%s\n", text);
    } else if (strstr(text, "failed to TCP connect") != NULL ||
               strstr(text, "(pmix_server_message_handler+") != NULL) {
        t->fell++; /* the second: mpirun itself has crashed, and says where */
    }
    if (at == NULL && text[0] != 0 && strstr(text, "UCX") == NULL) { /* the launcher's words */
        (void)snprintf(t->words[t->worded++ % WORDS], sizeof t->words[0], "%.190s", text);
    }
    t->heard = oracle_now();
}

/* ---- processes ---- */

static int parent_of(const char *pid, char *state)
{
    char path[64], text[600];
    const char *p;
    size_t got;
    int parent = 0;
    FILE *f;
    (void)snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    f = fopen(path, "r");
    if (f == NULL) {
        return 0;
    }
    got = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    text[got] = 0;
    p = strrchr(text, ')');
    return p != NULL && sscanf(p + 1, " %c %d", state, &parent) == 2 ? parent : 0;
}

/* Ranks of a group that live: soak_mpi, by name. */
static int ranks_of(pid_t group)
{
    DIR *d = opendir("/proc");
    struct dirent *e;
    int n = 0;
    while (d != NULL && (e = readdir(d)) != NULL) {
        char path[40], text[200], state;
        int session;
        FILE *f;
        (void)snprintf(path, sizeof path, "/proc/%.20s/stat", e->d_name);
        f = e->d_name[0] >= '1' && e->d_name[0] <= '9' ? fopen(path, "r") : NULL;
        if (f != NULL) {
            n += fgets(text, sizeof text, f) != NULL &&
                 sscanf(text, "%*d (soak%*[^)]) %c %*d %*d %d", &state, &session) == 2 &&
                 session == (int)group && state != 'Z' && state != 'X';
            (void)fclose(f);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

/* Living children of this process: orphans of a group come to it. end: they are killed. */
static int children(int end)
{
    DIR *d = opendir("/proc");
    struct dirent *e;
    int n = 0;
    while (d != NULL && (e = readdir(d)) != NULL) {
        char state = 'Z';
        if (e->d_name[0] >= '1' && e->d_name[0] <= '9' &&
            parent_of(e->d_name, &state) == (int)getpid() && state != 'Z' && state != 'X') {
            n++;
            if (end) {
                (void)kill((pid_t)atoi(e->d_name), SIGKILL);
            }
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

/* Names in /dev/shm that begin with dpar.PID of a rank of ours; they are removed. */
static int names_left(const tally *t)
{
    DIR *d = opendir("/dev/shm");
    struct dirent *e;
    int n = 0, pid, i;
    while (d != NULL && (e = readdir(d)) != NULL) {
        if (sscanf(e->d_name, "dpar.%d.", &pid) != 1) {
            continue;
        }
        for (i = 0; i < t->pids && t->seen[i].pid != pid; i++) {
        }
        if (i < t->pids) {
            char path[300];
            (void)snprintf(path, sizeof path, "/dev/shm/%.200s", e->d_name);
            (void)unlink(path);
            n++;
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

static void reap(void)
{
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

static void hang(tally *t, pid_t group)
{
    const plan p = plan_of(&t->of, t->round, RANKS);
    char words[200];
    t->hangs++;
    printf("HANG: nothing was heard for %.0f s in round %lld (%s, victim %d)\n", t->limit,
           (long long)t->round, fault_names[p.fault], p.victim);
    (void)snprintf(words, sizeof words,
                   "ps -e -o pid=,ppid=,stat=,wchan:20=,args= | grep -e soak | "
                   "grep -v -e grep | cut -c1-110");
    fflush(stdout);
    (void)!system(words);
    (void)kill(-group, SIGKILL);
    (void)kill(group, SIGKILL);
}

/* A group of ranks from a round on, until it ends. */
static void one_group(tally *t, int64_t first)
{
    const plan p = plan_of(&t->of, first, RANKS);
    int pipes[2], status, over = 0, hung = 0, k;
    char text[8192];
    size_t used = 0;
    double dead = 0, strike_at = 0, until;
    int64_t fell;
    pid_t group;
    if (pipe(pipes) != 0) {
        exit(2);
    }
    fflush(stdout);
    t->groups++;
    group = fork();
    if (group == 0) {
        (void)setsid();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(pipes[1], 1);
        (void)close(pipes[0]);
        (void)close(pipes[1]);
        if (t->start != NULL) {
            (void)snprintf(text, sizeof text, "exec %s %lld %llu %.1f %d 2>&1", t->start,
                           (long long)first, (unsigned long long)t->of.seed,
                           t->of.until - oracle_now(), t->of.ops);
            (void)execl("/bin/sh", "sh", "-c", text, (char *)NULL);
            _exit(6);
        }
        p.launch ? launched(&t->of, first) : joined(&t->of, first);
        _exit(0);
    }
    (void)close(pipes[1]);
    (void)fcntl(pipes[0], F_SETFD, FD_CLOEXEC);
    t->heard = oracle_now();
    t->last_told = 0;
    fell = t->fell;
    if (p.launch && p.fault == LAUNCHER) {
        strike_at = oracle_now() + 0.0003 * p.timer;
        (void)round_of(t, first);
    }
    while (!over) {
        struct pollfd one;
        char *end;
        one.fd = pipes[0], one.events = POLLIN;
        if (poll(&one, 1, 100) > 0) {
            const ssize_t got = read(pipes[0], text + used, sizeof text - 1 - used);
            over = got <= 0 && errno != EINTR;
            used += got > 0 ? (size_t)got : 0;
            text[used] = 0;
            while ((end = strchr(text, '\n')) != NULL) {
                *end = 0;
                hear(t, text);
                used -= (size_t)(end + 1 - text);
                memmove(text, end + 1, used + 1);
            }
            used = used == sizeof text - 1 ? 0 : used;
        }
        if (oracle_now() > t->minute + 60) {
            t->minute = oracle_now();
            progress(t);
        }
        if (strike_at > 0 && oracle_now() > strike_at) {
            (void)kill(group, SIGKILL);
            strike_at = 0;
        }
        /* where ranks end without MPI_Finalize Open MPI's launcher may wait for ever, and it may
         * end one that cannot connect to the dead */
        if (t->start != NULL && dead == 0 &&
            (t->last_told == 2 || (t->last_told == 1 && oracle_now() > t->heard + 90))) {
            dead = oracle_now();
            t->fell += t->last_told == 1 && ranks_of(group) == 0; /* MPI ended who has not told */
        }
        if (dead > 0 && oracle_now() > dead + 2) {
            (void)kill(-group, oracle_now() > dead + 15 ? SIGKILL : SIGTERM);
        }
        if (oracle_now() > t->heard + t->limit) {
            hang(t, group);
            t->heard = oracle_now();
            over = hung = 1;
        }
        if (!over && waitpid(group, &status, WNOHANG) == group) {
            group = 0;
            over = one.revents == 0; /* what is in the pipe is still to be read */
        }
        over |= group == 0 && poll(&one, 1, 300) == 0;
    }
    (void)close(pipes[0]);
    for (until = oracle_now() + 30; oracle_now() < until; usleep(20000)) {
        reap();
        if (children(0) == 0) {
            break;
        }
    }
    if (children(0) > 0) {
        t->processes += children(0);
        printf("LEFT: %d processes after round %lld\n", children(1), (long long)t->round);
        fflush(stdout);
        for (until = oracle_now() + 30; oracle_now() < until && children(1) > 0; usleep(20000)) {
            reap();
        }
        reap();
    }
    t->names += names_left(t);
    for (k = 0; k < FLEETING; k++) {
        flush_round(t, &t->now[k], hung ? 0 : fell == t->fell ? 1 : BY_MPI);
    }
}

static int summary(tally *t)
{
    int k, s;
    printf("\n| %.2f hours, seed %llu | |\n|---|---|\n", (oracle_now() - t->began) / 3600,
           (unsigned long long)t->of.seed);
    printf("| rounds, each with a new communicator | %lld |\n", (long long)t->rounds);
    printf("| groups of processes | %lld |\n", (long long)t->groups);
    printf("| operations | %lld |\n", (long long)sum_of(t->operations, SOAK_KINDS));
    for (k = 0; k < SOAK_KINDS; k++) {
        printf("|  %s | %lld |\n", soak_names[k], (long long)t->operations[k]);
    }
    printf("| GB of results compared | %.2f |\n", (double)t->bytes * 1e-9);
    printf("| faults | %lld |\n", (long long)sum_of(t->faults + 1, FAULTS - 1));
    for (k = 0; k < FAULTS; k++) {
        printf("|  %s | %lld%s", fault_names[k], (long long)t->faults[k],
               harmless(k) ? "" : ": the other ranks");
        for (s = 0; s < 16; s++) {
            if (!harmless(k) && t->told[k][s] > 0) {
                printf(" %lld x \"%s\"", (long long)t->told[k][s], dpar_status_text(-s));
            }
        }
        if (t->slowest[k] > 0) {
            printf(", after %.1f s at most", t->slowest[k]);
        }
        printf(" |\n");
    }
    if (t->skipped > 0) {
        printf("|  of these without a mount namespace, skipped | %lld |\n", (long long)t->skipped);
    }
    printf("| most rounds of one process | %lld |\n", (long long)t->most_rounds);
    printf("| most that a process grew | %.1f MB, after %lld rounds; %lld mappings |\n",
           (double)t->most_kb / 1024, (long long)t->most_kb_rounds, (long long)t->most_maps);
    if (t->start != NULL) {
        printf("| MPI did not start, ended a rank for a dead one, or mpirun crashed | %lld; so it "
               "ended %lld ranks |\n",
               (long long)t->fell, (long long)t->by_mpi);
    }
    printf("| hangs | %lld |\n", (long long)t->hangs);
    printf("| leaks | %lld (open files %lld, mappings %lld, memory %lld, names in /dev/shm %lld, "
           "processes %lld) |\n",
           (long long)all_leaks(t), (long long)t->files, (long long)t->maps, (long long)t->memory,
           (long long)t->names, (long long)t->processes);
    printf("| wrong results | %lld |\n", (long long)t->wrong);
    printf(
        "| faults told wrongly | %lld (status or sentence %lld, silent ranks %lld, crashes %lld) "
        "|\n",
        (long long)(t->judged + t->silent + t->crashes), (long long)t->judged, (long long)t->silent,
        (long long)t->crashes);
    fflush(stdout);
    return t->hangs != 0 || all_leaks(t) != 0 || all_wrong(t) != 0 || t->rounds == 0 ||
           sum_of(t->operations, SOAK_KINDS) == 0 || t->bytes == 0;
}

/* All of a word, which is at most 2^53; -1: it is not a number from `least` on. */
static double number_of(const char *word, double least)
{
    char *end;
    const double x = strtod(word, &end);
    return end != word && *end == 0 && x >= least && x <= 9007199254740992.0 ? x : -1;
}

int main(int argc, char **argv)
{
    static tally t;
    double seconds = argc > 1 ? number_of(argv[1], 1) : -1,
           seed = argc > 2 ? number_of(argv[2], 0) : 1;
    double ops = 400, first = 0;
    int64_t before;
    int i, idle = 0;
    memset(&t, 0, sizeof t);
    t.limit = 200;
    for (i = 3; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--ops") == 0) {
            ops = number_of(argv[i + 1], 2);
        } else if (strcmp(argv[i], "--limit") == 0) {
            t.limit = number_of(argv[i + 1], 1);
        } else if (strcmp(argv[i], "--first") == 0) {
            first = number_of(argv[i + 1], 0);
        } else if (strcmp(argv[i], "--start") == 0) {
            t.start = argv[i + 1];
        } else {
            seconds = -1;
        }
    }
    if (seconds < 0 || seed < 0 || ops < 0 || ops > 100000 || t.limit < 0 || first < 0 ||
        i < argc) {
        printf("usage: %s SECONDS SEED [--ops N] [--limit S] [--first ROUND] [--start COMMAND]\n",
               argv[0]);
        return 2;
    }
    t.of.seed = (uint64_t)seed;
    t.of.ops = (int)ops;
    t.of.mpi = t.start != NULL;
    t.began = t.minute = oracle_now();
    t.of.until = t.began + seconds;
    t.round = (int64_t)first - 1;
    for (i = 0; i < FLEETING; i++) {
        t.now[i].round = -1;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    while (oracle_now() < t.of.until) {
        before = t.round;
        one_group(&t, t.round + 1);
        if (t.round == before) { /* it has not even begun */
            t.fell++;
            printf("the launcher fell at round %lld\n", (long long)before + 1);
            show_words(&t);
            if (++idle == 4) {
                printf("the ranks do not start\n");
                t.crashes++;
                break;
            }
            usleep(500000);
        } else {
            idle = 0;
        }
    }
    return summary(&t);
}

#endif
