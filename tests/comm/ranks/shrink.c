/* SPDX-License-Identifier: MIT-0 */
/* Checks that when ranks die or are stopped, the others continue with a communicator of the
 * remaining ranks (dpar_comm_shrink). All get the same ranks in their old order, each collective
 * and message on it is right, and the launcher does not end them. In random rounds ranks are killed
 * one after the other and several at a time, during any operation, also during the shrink.
 *   cc -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/comm/ranks/shrink.c -o shrink -lm
 *   ./shrink [ROUNDS [SEED [FIRST]]]
 * Needs Linux (/proc, /dev/shm). */
#include "run_oracle.h"

#define CHECK_THREADS
#include "check.h"

#include <dirent.h>
#include <sys/wait.h>

/* What ranks do when one of them is hit. */
enum { BARRIERS, SUMS, MESSAGES, MIXED, IDLE, IN_SHRINK, PLACES };
static const char *const places[PLACES] = {"barriers",     "sums", "messages",
                                           "all mixed up", "idle", "the shrink"};

enum { MOST = 6, DEATHS = 4, ROOM = 60000, CASES = 25, LARGE = 40000 };

/* A signal to one rank. */
typedef struct hit {
    int rank, with; /* rank in the world; with is 1 if at the same time as the hit before */
    int how;        /* SIGKILL or SIGSTOP */
    int place;
} hit;

/* What a rank reports to the test, in shared memory. */
typedef struct seat {
    volatile int pid;
    volatile int stage;     /* number of shrinks before the communicator in use */
    volatile int entered;   /* operations on this communicator */
    volatile int shrinking; /* number of the shrink that it is about to begin */
    volatile int closing;   /* 1 before it frees the last communicator */
    volatile int done;      /* 1 when its function returns */
    volatile int wrong;     /* wrong results */
    volatile int rounds;    /* rounds of checks on the last communicator */
    /* of a rank that was stopped: status of its call; `later` is that of the shrink */
    volatile dpar_status late;
    volatile dpar_status later;
    volatile uint64_t set[DEATHS + 1]; /* for each communicator, a bit for each world rank in it */
    char text[240];
} seat;

typedef struct board {
    int n, hits, threads;
    hit hit[DEATHS];
    uint64_t seed;
    volatile int struck; /* number of hits that are done */
    volatile int freed;  /* 1 when stopped ranks have been continued */
    seat rank[MOST];
} board;

/* ---- a rank ---- */

typedef struct job {
    board *b;
    seat *me;
    dpar_comm *c;
    int world_of[MOST]; /* world rank of each rank of c */
    int generation;
    uint8_t *shared[2]; /* registered, of LARGE bytes */
    uint8_t *old[2];    /* those from before a rank was stopped, which may still write to them */
} job;

static void nap(void)
{
    usleep(300);
}

static void wrong(job *j, const char *what)
{
    if (j->me->wrong++ == 0) {
        (void)snprintf(j->me->text, sizeof j->me->text, "%s: %.150s", what, j->c->why.text);
    }
}

/* Sends to the right and receives from the left values that follow from the sender's world rank and
 * the round. */
static dpar_status ring(job *j, int round, int64_t bytes, int registered)
{
    const int n = j->c->size, left = (j->c->rank + n - 1) % n;
    uint8_t own[2][LARGE];
    uint8_t *out = registered ? j->shared[0] : own[0], *in = registered ? j->shared[1] : own[1];
    dpar_call call[2];
    dpar_status st;
    int64_t i;
    memset(call, 0, sizeof call);
    memset(out, 16 * (round % 7) + j->world_of[j->c->rank], (size_t)bytes);
    memset(in, 255, (size_t)bytes);
    call[0].kind = DPAR_CALL_RECV, call[0].root = left, call[0].out = in;
    call[1].kind = DPAR_CALL_SEND, call[1].root = (j->c->rank + 1) % n, call[1].in = out;
    call[0].type = call[1].type = DPAR_U8;
    call[0].count = call[1].count = bytes;
    st = dpar_batch(j->c, call, 2, NULL);
    for (i = 0; st == DPAR_OK && i < bytes; i++) {
        if (in[i] != 16 * (round % 7) + j->world_of[left]) {
            wrong(j, "a message");
            break;
        }
    }
    return st;
}

/* Sums 2 to the power of each rank's world rank: the result is the set of ranks that took part. */
static dpar_status sum(job *j, int64_t count, int registered)
{
    int32_t own[LARGE / 4];
    int32_t *x = registered ? (int32_t *)(void *)j->shared[0] : own, all = 0;
    dpar_status st;
    int64_t i;
    for (i = 0; i < j->c->size; i++) {
        all += 1 << j->world_of[i];
    }
    for (i = 0; i < count; i++) {
        x[i] = 1 << j->world_of[j->c->rank];
    }
    st = dpar_all_reduce(j->c, x, x, count, DPAR_I32, DPAR_SUM, NULL);
    for (i = 0; st == DPAR_OK && i < count; i++) {
        if (x[i] != all) {
            wrong(j, "a sum");
            break;
        }
    }
    return st;
}

static dpar_status operation(job *j, int place, int i)
{
    static const int64_t size[4] = {4, 900, 9000, LARGE};
    switch (place == MIXED ? i / 4 % 3 : place) {
    case SUMS: return sum(j, size[i % 4] / 4, i / 4 % 2);
    case MESSAGES: return ring(j, i, size[i % 4], i / 4 % 2);
    default: return dpar_barrier(j->c, NULL);
    }
}

/* Returns the hit of a world rank; NULL if it is not hit. */
static const hit *hit_of(const board *b, int world_rank)
{
    int k;
    for (k = 0; k < b->hits; k++) {
        if (b->hit[k].rank == world_rank) {
            return &b->hit[k];
        }
    }
    return NULL;
}

/* Returns the first hit whose rank is in this communicator; NULL if it is the last communicator. */
static const hit *next_hit(const job *j)
{
    int k;
    for (k = 0; k < j->b->hits; k++) {
        int i;
        for (i = 0; i < j->c->size; i++) {
            if (j->world_of[i] == j->b->hit[k].rank) {
                return &j->b->hit[k];
            }
        }
    }
    return NULL;
}

/* Runs operations until one fails; on the last communicator until all checks are done. */
static dpar_status steps(job *j)
{
    const hit *h = next_hit(j);
    const int mine = h && h->rank == j->world_of[j->c->rank];
    dpar_status st = DPAR_OK;
    void *p[2] = {NULL, NULL};
    int i;
    for (i = 0; i < 2; i++) {
        if (dpar_comm_alloc(j->c, LARGE, &p[i]) != DPAR_OK) {
            wrong(j, "no memory");
        }
        j->shared[i] = (uint8_t *)p[i];
        if (j->old[0] && j->shared[i] < j->old[1] + LARGE && j->old[0] < j->shared[i] + LARGE) {
            wrong(j, "memory that one which is stopped may write to");
        }
    }
    j->me->entered = 0;
    j->me->stage = j->generation + 1;
    for (i = 0; h && st == DPAR_OK; i++) {
        if (h->place == IDLE && mine && h->how == SIGKILL) {
            pause();
        }
        j->me->entered = i + 1;
        st = operation(j, h->place, i);
    }
    return st;
}

/* Checks all operations of a communicator against serial references. */
static void check_all(job *j)
{
    oracle o;
    oracle_slot slot;
    dpar_comm *again = NULL;
    uint64_t seed = j->b->seed;
    int i;
    memset(&o, 0, sizeof o);
    memset(&slot, 0, sizeof slot);
    o.world = j->c;
    if (oracle_slot_make(&o, &slot, (int64_t)ROOM * j->c->size) != DPAR_OK) {
        wrong(j, "no memory");
        return;
    }
    /* Continues until a stopped rank has noticed that it was left behind. */
    for (i = 0; i < CASES; i++) {
        oracle_case k = oracle_random_case(oracle_next(&seed), j->c->size, ROOM);
        int32_t waits = 0, all = 0, r;
        oracle_run(&o, j->c, &k, &slot);
        if (operation(j, MIXED, i) != DPAR_OK) {
            wrong(j, "an operation on the last communicator");
            break;
        }
        for (r = 0; r < j->b->n; r++) {
            const hit *h = hit_of(j->b, r);
            waits |= h && h->how == SIGSTOP && !j->b->rank[r].done;
        }
        if (dpar_all_reduce(j->c, &waits, &all, 1, DPAR_I32, DPAR_MAX, NULL) != DPAR_OK) {
            wrong(j, "a maximum");
            break;
        }
        i -= all && i == CASES - 1;
        j->me->rounds++;
    }
    if (o.failed > 0) {
        wrong(j, "a collective");
    }
    if (dpar_comm_split(j->c, 0, -j->c->rank, &again) != DPAR_OK ||
        dpar_barrier(again, NULL) != DPAR_OK || dpar_comm_free(again) != DPAR_OK) {
        wrong(j, "a split");
    }
    oracle_slot_free(&o, &slot);
    oracle_free(&o);
}

static void note_set(job *j)
{
    uint64_t set = 0;
    int i;
    for (i = 0; i < j->c->size; i++) {
        set |= UINT64_C(1) << j->world_of[i];
    }
    j->me->set[j->generation] = set;
}

static int rank_main(dpar_comm *world, void *arg)
{
    job j;
    dpar_comm *chain[DEATHS + 2];
    dpar_why why;
    dpar_status st;
    int i, over = 0;
    memset(&j, 0, sizeof j);
    alarm(110);
    j.b = (board *)arg;
    j.me = &j.b->rank[world->rank];
    j.c = chain[0] = world;
    for (i = 0; i < world->size; i++) {
        j.world_of[i] = i;
    }
    j.me->pid = (int)getpid();
    note_set(&j);
    while (!over && (st = steps(&j)) != DPAR_OK) {
        const hit *h = next_hit(&j);
        const dpar_status said = st;
        int32_t was[MOST];
        dpar_comm *next = NULL;
        const char sentence = j.c->why.text[0];
        if (st != DPAR_E_PEER && st != DPAR_E_TIMEOUT) {
            wrong(&j, "a status");
        }
        j.me->shrinking = j.generation + 1;
        /* A rank that is to die during the shrink waits here until it is killed. */
        for (i = h ? (int)(h - j.b->hit) : DEATHS; i < j.b->hits; i++) {
            const hit *in = &j.b->hit[i];
            if (in != h && !in->with) {
                break;
            }
            while (in->place == IN_SHRINK && in->rank != world->rank && j.b->struck <= i) {
                nap();
            }
        }
        for (i = 0; i < 2; i++) {
            dpar_comm_release(j.c, j.shared[i]);
            j.old[i] = h && h->how == SIGSTOP ? j.shared[i] : NULL;
        }
        st = dpar_comm_shrink(j.c, &next, was, &why);
        if (st != DPAR_OK) {
            j.me->late = said;
            j.me->later = st;
            memcpy(j.me->text, why.text, sizeof j.me->text);
            over = 1;
            break;
        }
        if (j.c->status != said || j.c->why.text[0] != sentence ||
            dpar_barrier(j.c, NULL) != said || was[next->rank] != j.c->rank ||
            dpar_comm_shrink(j.c, &next, was, &why) != DPAR_E_ARG) {
            wrong(&j, "the old communicator");
        }
        for (i = 0; i < next->size; i++) {
            if (was[i] < (i > 0 ? was[i - 1] + 1 : 0) || was[i] >= j.c->size) {
                wrong(&j, "the old ranks");
                break;
            }
            j.world_of[i] = j.world_of[was[i]];
        }
        j.c = chain[++j.generation] = next;
        note_set(&j);
    }
    if (!over) {
        check_all(&j);
    }
    for (i = j.generation; i > 0; i--) {
        int r, open = 0;
        const int last = i == j.generation && !over;
        if (last) { /* does what a barrier would, since the old ones are broken */
            usleep((useconds_t)(world->rank * 5000));
            j.me->closing = 1;
        }
        st = dpar_comm_free(chain[i]);
        for (r = 0; r < j.c->size && last; r++) {
            open += !j.b->rank[j.world_of[r]].closing;
        }
        if (last && (st != DPAR_OK || open > 0)) {
            wrong(&j, "the close");
        }
    }
    j.me->done = 1;
    return 0;
}

/* ---- shrinking without a death, also with ranks that are threads ---- */

static int adds_up(dpar_comm *c, int64_t expected)
{
    int64_t mine = c->rank + 1, all = 0;
    return dpar_all_reduce(c, &mine, &all, 1, DPAR_I64, DPAR_SUM, NULL) == DPAR_OK &&
           all == expected;
}

/* Tests three ranks: shrinking an intact communicator, one that rank 0 leaves, and invalid ones. */
static int quiet(dpar_comm *world, void *arg)
{
    dpar_comm *whole = NULL, *part = NULL, *next = NULL, *other = NULL;
    dpar_work posted;
    dpar_why why;
    int32_t was[3] = {9, 9, 9}, r;
    (void)arg;
    memset(&posted, 0, sizeof posted);
    CHECK_INT(dpar_comm_split(world, 0, -world->rank, &whole), DPAR_OK);
    CHECK_INT(dpar_comm_split(world, 0, 0, &part), DPAR_OK);
    CHECK_INT(dpar_comm_shrink(whole, &next, was, NULL), DPAR_OK);
    CHECK(next->size == 3 && next->rank == whole->rank && next->timeout_s == whole->timeout_s);
    for (r = 0; r < 3; r++) {
        CHECK_INT(was[r], r);
    }
    CHECK_INT(whole->status, DPAR_E_PEER);
    CHECK(strstr(whole->why.text, " shrinks this communicator") != NULL);
    CHECK(adds_up(next, 6) && adds_up(world, 6));
    /* Rank 0 breaks the communicator and frees it: no rank waits for it. */
    if (world->rank > 0) {
        CHECK_INT(dpar_barrier(part, &posted), DPAR_OK);
    }
    CHECK(adds_up(world, 6));
    if (world->rank == 0) {
        dpar_comm_abort(part, DPAR_E_NONE, "no data is left");
        CHECK_INT(dpar_comm_free(part), DPAR_OK);
        CHECK_INT(dpar_comm_shrink(part, &other, NULL, &why), DPAR_E_ARG);
        CHECK_TEXT(why.text, "shrink: this communicator was closed before");
        CHECK_INT(dpar_comm_shrink(NULL, &other, NULL, &why), DPAR_E_ARG);
        CHECK_INT(dpar_comm_shrink(world, NULL, NULL, &why), DPAR_E_ARG);
    } else {
        const dpar_status st = dpar_comm_shrink(part, &other, was, &why);
        CHECK_INT(st, DPAR_OK);
        CHECK(other->size == 2 && was[0] == 1 && was[1] == 2 && other->rank == world->rank - 1);
        CHECK(adds_up(other, 3));
        CHECK(posted.comm == NULL); /* it has ended with the status that broke the communicator */
        CHECK(dpar_wait(&posted) == part->status);
        CHECK_INT(dpar_comm_shrink(part, &other, was, &why), DPAR_E_ARG);
        CHECK_INT(dpar_comm_free(other), DPAR_OK);
        CHECK_INT(dpar_comm_free(part), DPAR_OK);
    }
    CHECK(adds_up(world, 6));
    CHECK_INT(dpar_comm_free(next), DPAR_OK);
    CHECK_INT(dpar_comm_free(whole), DPAR_OK);
    return checks_failed > 0;
}

static void without_a_death(void)
{
    dpar_world_desc o;
    dpar_why why;
    memset(&o, 0, sizeof o);
    why.text[0] = '\0';
    for (o.threads = 0; o.threads < 2; o.threads++) {
        CHECK_INT(dpar_launch(3, quiet, NULL, &o, &why), DPAR_OK);
        if (why.text[0] != '\0') {
            printf("  threads %d: %s\n", (int)o.threads, why.text);
        }
    }
}

/* ---- the process that sends signals ---- */

/* Returns 1 if the process is dead, even if its parent has not waited for it yet. */
static int is_dead(int pid)
{
    char path[64], line[400];
    const char *p;
    size_t got;
    FILE *f;
    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    f = fopen(path, "r");
    if (f == NULL) {
        return 1;
    }
    got = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[got] = '\0';
    p = strrchr(line, ')');
    return p == NULL || p[2] == 'Z' || p[2] == 'X';
}

/* Sends the signals, in a separate process. */
static void hunt(board *b)
{
    uint64_t seed = b->seed + 1;
    int k, generation = 0;
    for (k = 0; k < b->hits; k++) {
        const hit *h = &b->hit[k];
        seat *s = &b->rank[h->rank];
        const int enough = (int)oracle_below(&seed, 40);
        if (h->place == IN_SHRINK && h->with) {
            while (s->shrinking < generation) {
                nap();
            }
            usleep((useconds_t)oracle_below(&seed, 3000));
        } else if (!h->with) {
            generation++;
            while (s->stage < generation || (h->place != IDLE && s->entered <= enough)) {
                nap();
            }
        }
        usleep((useconds_t)oracle_below(&seed, 500));
        kill((pid_t)s->pid, h->how);
        while (h->how == SIGKILL && !is_dead(s->pid)) {
            nap();
        }
        b->struck = k + 1;
    }
    for (k = 0; k < b->hits; k++) {
        int r, there = 0;
        while (b->hit[k].how == SIGSTOP && !there) {
            for (r = 0; r < b->n; r++) { /* some ranks work again without the stopped one */
                there |= b->rank[r].rounds > 5;
            }
            nap();
        }
        kill((pid_t)b->rank[b->hit[k].rank].pid, SIGCONT);
    }
    b->freed = 1;
}

/* ---- rounds ---- */

static int files_of_dpar(void)
{
    DIR *d = opendir("/dev/shm");
    struct dirent *e;
    int n = 0;
    while (d != NULL && (e = readdir(d)) != NULL) {
        int pid;
        n += sscanf(e->d_name, "dpar.%d.", &pid) == 1 && is_dead(pid);
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

static void show(const board *b, const char *name, dpar_status st, const dpar_why *why)
{
    int k, r;
    printf("  in %s of %d ranks:", name, b->n);
    for (k = 0; k < b->hits; k++) {
        printf(" %s rank %d %s in %s;", b->hit[k].with ? "with it" : "then", b->hit[k].rank,
               b->hit[k].how == SIGKILL ? "killed" : "stopped", places[b->hit[k].place]);
    }
    printf(" launch: %s: %s\n", dpar_status_text(st), why->text);
    for (r = 0; r < b->n; r++) {
        const seat *s = &b->rank[r];
        printf("  rank %d: stage %d, entered %d, done %d, wrong %d, late %d, %d, sets %lx %lx %lx: "
               "%s\n",
               r, s->stage, s->entered, s->done, s->wrong, s->late, s->later,
               (unsigned long)s->set[0], (unsigned long)s->set[1], (unsigned long)s->set[2],
               s->text);
    }
}

/* Checks that each rank that lives has worked with the same communicators as the first such
 * rank. */
static void judge(const board *b, dpar_status st, const dpar_why *why)
{
    int r, g, k, first = -1, deaths = 0;
    uint64_t left = (UINT64_C(1) << b->n) - 1;
    char word[80];
    for (k = 0; k < b->hits; k++) {
        left &= ~(UINT64_C(1) << b->hit[k].rank);
        deaths += b->hit[k].how == SIGKILL;
    }
    for (r = 0; r < b->n; r++) {
        const seat *s = &b->rank[r];
        if (!(left >> r & 1u)) {
            continue;
        }
        first = first < 0 ? r : first;
        CHECK_INT(s->wrong, 0);
        CHECK(s->done && s->rounds >= CASES);
        for (g = 0; g <= DEATHS; g++) {
            CHECK(s->set[g] == b->rank[first].set[g]);
        }
        for (g = DEATHS; g > 0 && s->set[g] == 0; g--) {
        }
        CHECK(s->set[g] == left);
    }
    for (k = 0; k < b->hits; k++) {
        const seat *s = &b->rank[b->hit[k].rank];
        if (b->hit[k].how == SIGSTOP) { /* it continues and gets the error */
            CHECK(s->late == DPAR_E_TIMEOUT || (deaths > 0 && s->late == DPAR_E_PEER));
            CHECK_INT(s->later, DPAR_E_TIMEOUT);
            CHECK(strstr(s->text, "arrived too late: the others continue without it: rank ") != NULL);
            CHECK_INT(s->wrong, 0);
        }
    }
    CHECK_INT(st, deaths > 0 ? DPAR_E_PEER : DPAR_OK);
    for (k = 0, g = 0; k < b->hits && deaths > 0; k++) {
        (void)snprintf(word, sizeof word,
                       "rank %d was killed by signal 9 (SIGKILL); the others continue without it",
                       b->hit[k].rank);
        g |= strncmp(why->text, word, strlen(word)) == 0 && strlen(why->text) == strlen(word);
    }
    CHECK(deaths == 0 || g);
}

static void run_round(board *b, const char *name, const dpar_world_desc *o)
{
    const int failed = checks_failed;
    pid_t hunter;
    dpar_why why;
    dpar_status st;
    int ending = 0;
    why.text[0] = '\0';
    fflush(stdout);
    hunter = fork();
    if (hunter == 0) {
        alarm(100);
        hunt(b);
        _exit(0);
    }
    st = dpar_launch(b->n, rank_main, b, o, &why);
    (void)waitpid(hunter, &ending, 0);
    CHECK_INT(ending, 0);
    CHECK_INT(files_of_dpar(), 0);
    judge(b, st, &why);
    if (checks_failed > failed) {
        show(b, name, st, &why);
    }
}

static void fixed(board *b, int n, const hit *hits, int count, const char *name)
{
    dpar_world_desc o;
    int k, stops = 0;
    memset(b, 0, sizeof *b);
    memset(&o, 0, sizeof o);
    b->n = n;
    b->hits = count;
    for (k = 0; k < count; k++) {
        b->hit[k] = hits[k];
        stops |= hits[k].how == SIGSTOP;
    }
    b->seed = oracle_mix((uint64_t)n + 100 * (uint64_t)hits[0].place);
    o.timeout_s = stops ? 1.5 : 60.0;
    run_round(b, name, &o);
}

static void random_round(board *b, uint64_t seed)
{
    static const int plain[4] = {0, DPAR_WORLD_NO_FLAT, DPAR_WORLD_NO_MEMFD | DPAR_WORLD_NO_DIRECT,
                                 DPAR_WORLD_NO_CMA | DPAR_WORLD_NO_FUTEX};
    dpar_world_desc o;
    int k, taken = 0;
    memset(b, 0, sizeof *b);
    memset(&o, 0, sizeof o);
    b->n = 2 + (int)oracle_below(&seed, MOST - 1);
    b->hits = 1 + (int)oracle_below(&seed, b->n - 1 < DEATHS ? b->n - 1 : DEATHS);
    for (k = 0; k < b->hits; k++) {
        hit *h = &b->hit[k];
        do {
            h->rank = (int)oracle_below(&seed, b->n);
        } while (taken >> h->rank & 1);
        taken |= 1 << h->rank;
        h->how = SIGKILL;
        h->with = k > 0 && oracle_below(&seed, 2) == 0;
        h->place = h->with ? oracle_below(&seed, 2) ? (int)IN_SHRINK : b->hit[k - 1].place
                           : (int)oracle_below(&seed, IDLE + 1);
        if (h->with && b->hit[k - 1].place == IN_SHRINK) {
            h->place = IN_SHRINK;
        }
    }
    b->seed = oracle_next(&seed);
    o.timeout_s = 60.0;
    o.disable = plain[oracle_below(&seed, 4)];
    o.slot_bytes = oracle_below(&seed, 2) ? 4096 : 0;
    run_round(b, "a random round", &o);
}

int main(int argc, char **argv)
{
    static const hit one[] = {{2, 0, SIGKILL, BARRIERS}}, zero[] = {{0, 0, SIGKILL, SUMS}},
                     two[] = {{0, 0, SIGKILL, MESSAGES}, {1, 1, SIGKILL, MESSAGES}},
                     after[] = {{1, 0, SIGKILL, IDLE},
                                {3, 0, SIGKILL, MIXED},
                                {0, 0, SIGKILL, SUMS}},
                     inside[] = {{1, 0, SIGKILL, BARRIERS}, {0, 1, SIGKILL, IN_SHRINK}},
                     alone[] = {{1, 0, SIGKILL, SUMS}}, stopped[] = {{1, 0, SIGSTOP, SUMS}},
                     both[] = {{3, 0, SIGKILL, MESSAGES}, {0, 1, SIGSTOP, MESSAGES}};
    const long rounds = argc > 1 ? atol(argv[1]) : 20, first = argc > 3 ? atol(argv[3]) : 0;
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    const double began = oracle_now();
    board *b =
        (board *)mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    long i;
    if (b == MAP_FAILED || rounds < 0) {
        printf("usage: %s [ROUNDS [SEED [FIRST]]]\n", argv[0]);
        return 2;
    }
    if (first == 0) {
        without_a_death();
        fixed(b, 4, one, 1, "one");
        fixed(b, 4, zero, 1, "rank 0");
        fixed(b, 4, two, 2, "two at a time");
        fixed(b, 5, after, 3, "one after the other");
        fixed(b, 4, inside, 2, "inside");
        CHECK(b->rank[2].set[1] == 12); /* ranks 2 and 3 at the same time */
        fixed(b, 2, alone, 1, "to one");
        fixed(b, 3, stopped, 1, "stopped");
        fixed(b, 4, both, 2, "stopped and killed");
    }
    for (i = first; i < first + rounds; i++) {
        const int failed = checks_failed;
        random_round(b, oracle_mix(seed * 1000003u + (uint64_t)i));
        if (checks_failed > failed) {
            printf("  round %ld\n", i);
        }
    }
    printf("%ld rounds, %.1f s\n", rounds, oracle_now() - began);
    return CHECK_DONE();
}
