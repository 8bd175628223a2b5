/* SPDX-License-Identifier: MIT-0 */
/* Tests random faults over MPI. Four ranks or so run random operations of random sizes, by level or
 * by messages only. At a random operation one rank is killed, stopped, late, ends, or calls
 * something else. Then each other rank's call must end in time, with the right status and a message
 * that names the rank and its node. Later calls return the same, and all results before the fault
 * were right.
 *
 *   mpirun -np 4 ./faults FIRST ROUNDS SEED
 *
 * runs rounds FIRST, FIRST + 1, ... until a rank has died or all are done; each rank prints a line
 * per round. tests/mpi/faults.sh starts it again from there and counts. Needs an MPI that survives
 * the death of a rank. */
#include "dpar_halo.h"
#include "dpar_mpi.h"
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

enum {
    BARRIER,
    BROADCAST,
    ALL_REDUCE,
    REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    ALL_TO_ALL_V,
    P2P,
    HALO,
    MOVE,
    OPERATIONS
};
static const char *const operations[] = {
    "barrier",    "broadcast",    "all_reduce", "reduce", "all_gather", "reduce_scatter",
    "all_to_all", "all_to_all_v", "p2p",        "halo",   "transfers"};
enum {
    NONE,
    KILLED,
    ENDS,
    STOPPED,
    STOPPED_KILLED,
    PAUSED,
    LATE,
    DELAYED,
    COUNT,
    OTHER,
    ABORTS,
    CLOSES,
    FAULTS
};
static const char *const faults[] = {"none",   "killed", "ends",    "stopped", "stopped, killed",
                                     "paused", "late",   "delayed", "count",   "other",
                                     "aborts", "closes"};
enum { RANKS = 16, MOST = 1 << 20, WARM = 12, AFTER = 60 };
static const double deadline = 1.5, margin = 8;

typedef struct plan {
    uint64_t seed;
    int round, fault, victim, at, timer, flat, check, operation;
    int64_t n;
} plan;

typedef struct job {
    const plan *p;
    dpar_comm *c;
    dpar_halo_plan *x;
    float *in, *out, *grid;
    int wrong;
    char text[300];
} job;

static char host[RANKS][MPI_MAX_PROCESSOR_NAME + 20];

static uint64_t next(uint64_t *seed)
{
    uint64_t x = *seed += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static int below(uint64_t *seed, int n)
{
    return (int)(next(seed) % (uint64_t)n);
}

static void nap(double s)
{
    const double end = MPI_Wtime() + s;
    while (MPI_Wtime() < end) {
        usleep(1000);
    }
}

static void wrong(job *j, const char *format, ...)
{
    va_list list;
    if (j->wrong++ == 0) {
        va_start(list, format);
        (void)vsnprintf(j->text, sizeof j->text, format, list);
        va_end(list);
    }
}

/* ---- expected values: element i of rank r ---- */

static float value(int r, int64_t i)
{
    return (float)(r * 8 + (int)(i % 7));
}

static float sum_of(int ranks, int64_t i)
{
    return (float)(4 * ranks * (ranks - 1) + ranks * (int)(i % 7));
}

static void same(job *j, const char *what, const float *got, int64_t i, float want)
{
    if (!(fabsf(got[i] - want) < 0.5f)) {
        wrong(j, "%s: element %ld is %g, not %g", what, (long)i, (double)got[i], (double)want);
    }
}

static dpar_status ring(job *j, int64_t n, int64_t more)
{
    dpar_comm *c = j->c;
    dpar_call call[2];
    memset(call, 0, sizeof call);
    call[0].kind = DPAR_CALL_RECV;
    call[1].kind = DPAR_CALL_SEND;
    call[0].root = (c->rank + c->size - 1) % c->size;
    call[1].root = (c->rank + 1) % c->size;
    call[0].type = call[1].type = DPAR_F32;
    call[0].count = call[1].count = n + more;
    call[0].out = j->out;
    call[1].in = j->in;
    return dpar_batch(c, call, 2, NULL);
}

static dpar_status shift(job *j, int64_t n, int64_t more)
{
    dpar_comm *c = j->c;
    const int64_t shape = n + more;
    dpar_transfer send, receive;
    dpar_redistribute_desc move;
    memset(&send, 0, sizeof send);
    memset(&move, 0, sizeof move);
    send.dims = 1;
    send.extent[0] = n + more;
    receive = send;
    send.peer = (c->rank + 1) % c->size;
    receive.peer = (c->rank + c->size - 1) % c->size;
    move.type = DPAR_F32;
    move.send = &send;
    move.receive = &receive;
    move.send_count = move.receive_count = 1;
    move.in = j->in;
    move.out = j->out;
    move.in_shape = move.out_shape = &shape;
    return dpar_transfers_exchange(c, &move, &c->why);
}

static dpar_status halo_init(job *j, int64_t n)
{
    dpar_comm *c = j->c;
    const int64_t cells[2] = {2 * c->size, n};
    dpar_placement cut = dpar_shard(0);
    dpar_mesh mesh;
    dpar_halo halo;
    dpar_halo_field field;
    dpar_halo_plan_desc options;
    dpar_status s;
    memset(&halo, 0, sizeof halo);
    memset(&field, 0, sizeof field);
    memset(&options, 0, sizeof options);
    halo.low[0] = halo.high[0] = 1;
    halo.periodic = 1;
    field.halo = &halo;
    field.type = DPAR_F32;
    field.data = j->grid;
    options.field = &field;
    options.field_count = 1;
    s = dpar_mesh_init(&mesh, "y", &c->size, DPAR_ORDER_LAST_FASTEST, 0, &c->why);
    s = s < 0 ? s : dpar_layout_init(&halo.grid, &mesh, 2, cells, &cut, &c->why);
    return s < 0 ? s : dpar_halo_plan_make(c, &options, &j->x, &c->why);
}

static dpar_status halo(job *j, int64_t n)
{
    dpar_comm *c = j->c;
    dpar_status s;
    int64_t i;
    for (i = 0; i < n; i++) { /* rows: the low halo, two own ones, the high halo */
        j->grid[i] = j->grid[3 * n + i] = -1;
        j->grid[n + i] = value(c->rank, i);
        j->grid[2 * n + i] = value(c->rank, i) + 1;
    }
    s = dpar_halo_plan_exchange(j->x);
    for (i = 0; i < n && s >= 0; i += 1 + n / 50) {
        same(j, "low halo", j->grid, i, value((c->rank + c->size - 1) % c->size, i) + 1);
        same(j, "high halo", j->grid, 3 * n + i, value((c->rank + 1) % c->size, i));
    }
    return s;
}

/* ---- an operation, and its result ---- */

static void look(job *j, int operation, int64_t n, int root)
{
    const int ranks = j->c->size, me = j->c->rank;
    const char *what = operations[operation];
    const int64_t step = 1 + n / 50;
    int64_t i;
    int r;
    for (i = 0; i < n; i += step) {
        switch (operation) {
        case BROADCAST: same(j, what, j->out, i, value(root, i)); break;
        case ALL_REDUCE: same(j, what, j->out, i, sum_of(ranks, i)); break;
        case REDUCE: me == root ? same(j, what, j->out, i, sum_of(ranks, i)) : (void)0; break;
        case REDUCE_SCATTER: same(j, what, j->out, i, sum_of(ranks, me * n + i)); break;
        case P2P:
        case MOVE: same(j, what, j->out, i, value((me + ranks - 1) % ranks, i)); break;
        case ALL_GATHER:
        case ALL_TO_ALL:
        case ALL_TO_ALL_V:
            for (r = 0; r < ranks; r++) {
                same(j, what, j->out, r * n + i,
                     value(r, operation == ALL_GATHER ? i : me * n + i));
            }
            break;
        default: break;
        }
    }
}

/* more: number of elements that are expected from rank 0 in addition to those that it sends. */
static dpar_status each(job *j, int64_t n, int64_t more)
{
    int64_t to[RANKS], from[RANKS], begin[RANKS];
    int r;
    for (r = 0; r < j->c->size; r++) {
        to[r] = n;
        from[r] = n + (r == 0 ? more : 0);
        begin[r] = r * (n + more);
    }
    return dpar_all_to_all_v(j->c, j->in, to, NULL, j->out, from, begin, DPAR_F32, NULL);
}

/* more: number of elements in addition to those of the other ranks. */
static dpar_status go(job *j, int operation, int64_t n, int root, int64_t more)
{
    dpar_comm *c = j->c;
    const int64_t all =
        operation == ALL_GATHER || operation == ALL_TO_ALL || operation == ALL_TO_ALL_V
            ? n * c->size
            : n;
    dpar_status s;
    int64_t i;
    for (i = 0; i < all && operation != BARRIER; i++) {
        j->out[i] = operation == BROADCAST && c->rank == root ? value(root, i) : -1;
    }
    switch (operation) {
    case BARRIER: s = dpar_barrier(c, NULL); break;
    case BROADCAST: s = dpar_broadcast(c, j->out, n + more, DPAR_F32, root, NULL); break;
    case ALL_REDUCE:
        s = dpar_all_reduce(c, j->in, j->out, n + more, DPAR_F32, DPAR_SUM, NULL);
        break;
    case REDUCE: s = dpar_reduce(c, j->in, j->out, n + more, DPAR_F32, DPAR_SUM, root, NULL); break;
    case ALL_GATHER: s = dpar_all_gather(c, j->in, j->out, n + more, DPAR_F32, NULL); break;
    case REDUCE_SCATTER:
        s = dpar_reduce_scatter(c, j->in, j->out, n + more, DPAR_F32, DPAR_SUM, NULL);
        break;
    case ALL_TO_ALL: s = dpar_all_to_all(c, j->in, j->out, n + more, DPAR_F32, NULL); break;
    case ALL_TO_ALL_V: s = each(j, n, more); break;
    case P2P: s = ring(j, n, more); break;
    case HALO: s = halo(j, n); break;
    default: s = shift(j, n, more); break;
    }
    if (s >= 0 && more == 0) {
        look(j, operation, n, root);
    }
    return s;
}

/* ---- the fault ---- */

static int fatal(int fault)
{
    return fault == KILLED || fault == ENDS || fault == STOPPED_KILLED;
}

static int harmless(int fault)
{
    return fault == NONE || fault == PAUSED || fault == DELAYED;
}

static int stops(int fault)
{
    return fault == STOPPED || fault == STOPPED_KILLED || fault == PAUSED;
}

static plan plan_of(int round, uint64_t seed, int ranks)
{
    static const int64_t sizes[] = {1, 30, 1500, 20000, 60000};
    plan p;
    p.round = round;
    p.seed = seed * 1000003u + (uint64_t)round;
    (void)next(&p.seed);
    p.fault = below(&p.seed, FAULTS);
    p.victim = below(&p.seed, ranks);
    p.at = below(&p.seed, WARM);
    p.timer = below(&p.seed, 2) ? 1 + below(&p.seed, 3000) : 0; /* microseconds after it began */
    p.flat = below(&p.seed, 3) == 0;
    p.check = below(&p.seed, 2);
    p.operation = below(&p.seed, OPERATIONS);
    p.n = sizes[below(&p.seed, 5)];
    if (below(&p.seed, 8) == 0) {
        p.n = MOST / RANKS;
        p.n *= p.operation == ALL_GATHER || p.operation == ALL_TO_ALL ||
                       p.operation == ALL_TO_ALL_V || p.operation == REDUCE_SCATTER
                   ? 1
                   : 8;
    }
    if (p.fault == COUNT && (p.operation == BARRIER || p.operation == HALO)) {
        p.operation = ALL_REDUCE;
    }
    if (p.fault == COUNT && p.operation == REDUCE) { /* MPI's own reduce may notice this or not */
        p.check = 1;
    }
    return p;
}

static int now_fault;

static void strike(int unused)
{
    (void)unused;
    if (now_fault == ENDS) {
        _exit(3);
    }
    (void)raise(stops(now_fault) ? SIGSTOP : SIGKILL);
}

/* Does the victim's fault before the operation, or starts a timer for a fault during it. */
static void prepare(job *j)
{
    const plan *p = j->p;
    char line[140];
    now_fault = p->fault;
    if (stops(p->fault)) {
        (void)snprintf(line, sizeof line,
                       "setsid sh -c 'sleep %g; kill -%s %ld' < /dev/null > /dev/null 2>&1 &",
                       p->fault == PAUSED ? 0.4 : deadline + 2,
                       p->fault == STOPPED_KILLED ? "KILL" : "CONT", (long)getpid());
        if (system(line) != 0) {
            wrong(j, "no shell");
        }
    }
    if (fatal(p->fault) || stops(p->fault)) {
        struct itimerval when;
        memset(&when, 0, sizeof when);
        when.it_value.tv_usec = p->timer;
        (void)signal(SIGALRM, strike);
        if (p->timer == 0 || setitimer(ITIMER_REAL, &when, NULL) != 0) {
            strike(0);
        }
    } else if (p->fault == LATE || p->fault == DELAYED) {
        nap(p->fault == LATE ? deadline + 2 : 0.3);
    } else if (p->fault == ABORTS) {
        dpar_comm_abort(j->c, DPAR_E_SYSTEM, "the disk is full");
    }
}

/* ---- a round ---- */

static int names_victim(const job *j)
{
    char part[MPI_MAX_PROCESSOR_NAME + 40], listed[40], among[40];
    const char *list;
    (void)snprintf(part, sizeof part, host[j->p->victim][0] != 0 ? "%d on %s" : "rank %d",
                   j->p->victim, host[j->p->victim]);
    if (j->p->fault == COUNT &&
        j->p->operation == MOVE) { /* reported by the lists, not the engine */
        (void)snprintf(part, sizeof part, "rank %d", j->p->victim);
    }
    if (j->p->fault == ABORTS && host[0][0] == 0) {
        return 1; /* in a single shared memory only the words are reported */
    }
    if (strncmp(j->c->why.text, "halo ", 5) == 0 || strstr(j->c->why.text, ": halo ") != NULL ||
        (j->p->fault == OTHER && j->p->operation == HALO)) {
        /* The message names the rank that this one waits for, which may wait for another rank.
         * A halo and a collective that wait for each other are both late. */
        return 1;
    }
    (void)snprintf(listed, sizeof listed, "ranks: %d", j->p->victim);
    (void)snprintf(among, sizeof among, "%d, ", j->p->victim); /* one of several on its node */
    list = strstr(j->c->why.text, "ranks: ");
    return strstr(j->c->why.text, part) != NULL ||
           (host[0][0] == 0 && strstr(j->c->why.text, listed) != NULL) ||
           (list != NULL && strstr(list, among) != NULL &&
            strstr(list, host[j->p->victim]) != NULL);
}

/* Returns 1 if MPI noticed first that a rank has died, and reported it in its own words. */
static int by_mpi(const job *j, dpar_status s)
{
    return s == DPAR_E_SYSTEM && fatal(j->p->fault) && strstr(j->c->why.text, "MPI says") != NULL;
}

static int expected(const job *j, dpar_status s)
{
    switch (j->p->fault) {
    case KILLED:
    case ENDS:
    case STOPPED_KILLED: return s == DPAR_E_PEER || s == DPAR_E_TIMEOUT || by_mpi(j, s);
    case STOPPED:
    case LATE: return s == DPAR_E_TIMEOUT;
    case ABORTS: return s == DPAR_E_SYSTEM;
    case CLOSES: return s == DPAR_E_MISMATCH || s == DPAR_E_PEER || s == DPAR_E_TIMEOUT;
    default: return s == DPAR_E_MISMATCH || s == DPAR_E_TIMEOUT;
    }
}

/* Checks the calls after the first failure. */
static void afterwards(job *j, dpar_status s, double took)
{
    const plan *p = j->p;
    const int me = j->c->rank == p->victim;
    double began = MPI_Wtime();
    if (!me && !expected(j, s)) {
        wrong(j, "status %d", (int)s);
    }
    if (!me && took > deadline + margin) {
        wrong(j, "after %.1f s", took);
    }
    if (!me && !names_victim(j) && !by_mpi(j, s)) {
        wrong(j, "does not name rank %d on %s", p->victim, host[p->victim]);
    }
    if (!me && p->fault == ABORTS && strstr(j->c->why.text, "the disk is full") == NULL) {
        wrong(j, "not the victim's words");
    }
    /* nothing was moved, and the communicator still works */
    if (p->fault == COUNT && p->operation == MOVE) {
        if (j->c->status != DPAR_OK || dpar_barrier(j->c, NULL) != DPAR_OK) {
            wrong(j, "lists that do not fit broke the communicator");
        }
    } else if (j->c->status != s || dpar_barrier(j->c, NULL) != s || MPI_Wtime() - began > margin) {
        wrong(j, "another status afterwards");
    }
}

static dpar_status turns(job *j, double *took)
{
    const plan *p = j->p;
    uint64_t seed = p->seed;
    dpar_status s = DPAR_OK;
    int i, last = harmless(p->fault) ? p->at + 4 : p->at + AFTER;
    for (i = 0; i < last && s >= 0; i++) {
        const int fatal_turn = i == p->at, here = fatal_turn && j->c->rank == p->victim;
        const int root = below(&seed, j->c->size);
        int operation = below(&seed, OPERATIONS);
        int64_t n = 1 + below(&seed, 3000);
        int64_t more = 0;
        if (operation == HALO || fatal_turn) {
            n = p->n;
        }
        operation = fatal_turn ? p->operation : operation;
        if (here) {
            prepare(j);
            more = p->fault == COUNT ? 3 : 0;
            operation = p->fault != OTHER                        ? operation
                        : operation == HALO || operation == MOVE ? BARRIER
                                                                 : (operation + 1) % P2P;
        }
        if (here && p->fault == CLOSES) {
            return DPAR_E_PEER;
        }
        if (i == last - 1 && j->c->rank == p->victim && p->timer > 0) {
            nap(0.02); /* by then the timer has fired, however fast the ranks were */
        }
        *took = MPI_Wtime();
        s = go(j, operation, n, root, more);
        *took = MPI_Wtime() - *took;
    }
    return s;
}

static void tell(job *j, dpar_status s, double took, double closing, const char *text)
{
    const plan *p = j->p;
    char line[900];
    int length = snprintf(line, sizeof line,
                          "round %d rank %d%s | %s | %s | %ld | %s%s | %d | %.2f s, closed in %.2f "
                          "s | %s%s | %s\n",
                          p->round, (int)(j->c != NULL ? j->c->rank : -1),
                          j->c != NULL && j->c->rank == p->victim ? " (victim)" : "",
                          faults[p->fault], operations[p->operation], (long)p->n,
                          p->flat ? "flat" : "levels", p->check ? ", check" : "", (int)s, took,
                          closing, j->wrong > 0 ? "WRONG: " : "fine", j->text, text);
    if (length > 0 && write(1, line, (size_t)length) != length) {
        _exit(4);
    }
}

static void one_round(const plan *p, float *memory)
{
    job j;
    dpar_mpi_desc o;
    dpar_why why;
    dpar_status s;
    double took = 0, closing;
    int64_t i;
    char text[sizeof why.text];
    memset(&j, 0, sizeof j);
    memset(&o, 0, sizeof o);
    memset(&why, 0, sizeof why);
    j.p = p;
    j.in = memory;
    j.out = memory + MOST;
    j.grid = memory + 2 * MOST;
    o.timeout_s = deadline;
    o.flat = p->flat;
    o.check = p->check;
    if (dpar_mpi_make(MPI_COMM_WORLD, &o, &j.c, &why) < 0) {
        wrong(&j, "%s", why.text);
        tell(&j, DPAR_E_SYSTEM, 0, 0, "no communicator");
        _exit(1);
    }
    if (p->round % 2) { /* by nodes, even if that is slower here */
        dpari_mpi_world *w = dpari_mpi_ctx_of(j.c)->world;
        w->dealt[0] = w->dealt[1] = DPARI_MPI_DEALT;
    }
    for (i = 0; i < MOST; i++) {
        j.in[i] = value(j.c->rank, i);
    }
    s = halo_init(&j, p->n);
    if (s < 0) {
        wrong(&j, "no halo");
    }
    s = s < 0 ? s : turns(&j, &took);
    if (harmless(p->fault) ? s < 0 : s >= 0) {
        wrong(&j, "status %d", (int)s);
    } else if (!harmless(p->fault) && !(p->fault == CLOSES && j.c->rank == p->victim)) {
        afterwards(&j, s, took);
    }
    memcpy(text, j.c->why.text, sizeof text);
    closing = MPI_Wtime();
    {
        dpar_comm *c = j.c, copy = *c;
        (void)dpar_comm_free(c);
        closing = MPI_Wtime() - closing;
        j.c = &copy;
        if (closing > deadline + 2 * margin) {
            wrong(&j, "the close took %.1f s", closing);
        }
        tell(&j, s, took, closing, s < 0 ? text : "");
    }
}

int main(int argc, char **argv)
{
    const char *fake = getenv("DPAR_MPI_NODE");
    const int first = argc > 1 ? atoi(argv[1]) : 0, rounds = argc > 2 ? atoi(argv[2]) : 1;
    const uint64_t seed = argc > 3 ? (uint64_t)atol(argv[3]) : 1;
    const int per = fake != NULL ? atoi(fake) : 0;
    float *memory = (float *)malloc((size_t)MOST * 4 * sizeof *memory);
    int rank, size, length, round, r, several = per > 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (memory == NULL || size > RANKS) {
        return 2;
    }
    MPI_Get_processor_name(host[rank], &length);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_CHAR, host, (int)sizeof host[0], MPI_CHAR, MPI_COMM_WORLD);
    for (r = 1; r < size; r++) {
        several |= strcmp(host[r], host[0]) != 0;
    }
    /* the name of each rank's node in messages, if there are several nodes */
    for (r = 0; r < size; r++) {
        if (!several) {
            host[r][0] = 0;
        } else if (per > 0) {
            (void)snprintf(host[r] + strlen(host[r]), 20, "#%d", r / per);
        }
    }
    if (rank == 0) {
        char line[40];
        const int n = snprintf(line, sizeof line, "ranks %d\n", size);
        if (write(1, line, (size_t)n) != n) {
            return 4;
        }
    }
    for (round = first; round < first + rounds; round++) {
        const plan p = plan_of(round, seed, size);
        one_round(&p, memory);
        if (fatal(p.fault)) {
            _exit(0);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    _exit(0); /* what broke may leave MPI messages that never complete */
}
