/* SPDX-License-Identifier: MIT-0 */
/* Tests what goes wrong in exchanges, once for all kinds of exchanges and methods
 * (tests/lib/exchange_work.h): calls that are refused, communicators that are closed or aborted,
 * ranks that call something else, die, are late, or are stopped and continue. Each rank must get
 * the right status and a message that names the rank at fault.
 *   cc -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/exchange/ranks/exchange_faults.c -lm */
#include "exchange_work.h"
#include "rank_program.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the ranks of a launch do, and words that they share. */
typedef struct trial {
    int32_t kind, method, when, node;
    volatile int32_t begun, over, done, pid, found;
} trial;

/* Returns the status of a barrier if this rank has failed in nothing, so that it hears of it. */
static dpar_status heard(dpar_comm *comm, dpar_status status)
{
    return status == DPAR_OK ? dpar_barrier(comm, NULL) : status;
}

static void says(const char *text, const char *words)
{
    CHECK(strstr(text, words) != NULL);
    if (strstr(text, words) == NULL) {
        printf("    \"%s\" does not contain \"%s\"\n", text, words);
    }
}

/* Makes a ring on a communicator of its own. */
static dpar_comm *ring(exchange_work *w, dpar_comm *world, const trial *t)
{
    exchange_desc desc;
    dpar_comm *comm = NULL;
    dpar_why why;
    memset(&desc, 0, sizeof desc);
    desc.method = t->method;
    desc.tag = 7;
    CHECK_INT(dpar_comm_split(world, 0, 0, &comm), DPAR_OK);
    CHECK_INT(exchange_make(w, t->kind, comm, &desc, &why), DPAR_OK);
    return comm;
}

/* ---- one rank after the other goes on -------------------------------------------------------- */

/* Checks calls while an exchange is in progress, and that it ends well all the same. */
static void in_progress(dpar_comm *world, const trial *t)
{
    exchange_work w;
    char words[80];
    int round;
    dpar_comm *comm = ring(&w, world, t);
    const int grid = t->kind == EXCHANGE_GRID;
    (void)snprintf(words, sizeof words, "%s exchange 1 has not ended; call %s first", w.kind->name,
                   w.kind->end_name);
    for (round = 1; round < 4; round++) {
        exchange_fill(&w, round);
        CHECK_INT(w.kind->begin(&w), DPAR_OK);
        CHECK_INT(w.kind->begin(&w), DPAR_E_ARG);
        says(comm->why.text, grid         ? "call dpar_grid_end first"
                             : round == 1 ? words
                                          : "has not ended");
        if (w.kind->reduce) {
            CHECK_INT(w.kind->reduce(&w, DPAR_SUM), DPAR_E_ARG);
        }
        comm->why.text[0] = 0;
        CHECK_INT(exchange_free(&w), DPAR_E_ARG);
        says(comm->why.text, "_free: ");
        says(comm->why.text, grid || round > 1 ? "has not ended" : words);
        CHECK_INT(exchange_finish(&w, DPAR_OK, round == 2 ? 1 << 30 : 0), DPAR_OK);
        CHECK_INT(exchange_wrong(&w, round), 0);
        if (!grid) { /* nothing is in progress, which is no error */
            CHECK_INT(w.kind->end(&w), DPAR_OK);
            CHECK_INT(w.kind->test(&w), DPAR_OK);
        }
        if (w.kind->reduce) {
            CHECK_INT(w.kind->reduce(&w, DPAR_PRODUCT), DPAR_E_ARG);
            exchange_fill(&w, round);
            CHECK_INT(exchange_finish(&w, w.kind->reduce(&w, DPAR_SUM), 0), DPAR_OK);
            CHECK_INT(exchange_wrong_sum(&w, round), 0);
        }
    }
    CHECK_INT(exchange_free(&w), DPAR_OK);
    CHECK_INT(dpar_comm_free(comm), DPAR_OK);
}

/* Values go up only. The first rank, which only sends, must not be more than its two turns ahead of
 * the others, which receive later. */
static void one_way(dpar_comm *comm, const trial *t)
{
    exchange_work w;
    exchange_desc desc;
    dpar_why why;
    int round;
    memset(&desc, 0, sizeof desc);
    desc.method = t->method;
    desc.open = desc.one_way = 1;
    CHECK_INT(exchange_make(&w, t->kind, comm, &desc, &why), DPAR_OK);
    for (round = 1; round < 30; round++) {
        const int adds = w.kind->reduce != NULL && round > 20 && round % 2 == 0;
        exchange_fill(&w, round);
        if (comm->rank > 0) {
            usleep(500);
        }
        CHECK_INT(exchange_finish(&w, adds ? w.kind->reduce(&w, DPAR_SUM) : w.kind->begin(&w), 0),
                  DPAR_OK);
        CHECK_INT(adds ? exchange_wrong_sum(&w, round) : exchange_wrong(&w, round), 0);
    }
    CHECK_INT(exchange_free(&w), DPAR_OK);
}

/* Checks each call after the communicator was closed, without and with an exchange in progress. A
 * communicator with messages in progress cannot be closed. */
static void closed(dpar_comm *world, const trial *t)
{
    const int messages = t->method == DPAR_HALO_MESSAGES || strcmp(world->engine.name, "shm") != 0;
    const int ways = messages ? 1 : 3;
    int way; /* 0 begins nothing, 1 tests what has begun, 2 ends it */
    for (way = 0; way < ways; way++) {
        exchange_work w, other;
        dpar_comm *comm = ring(&w, world, t);
        dpar_why why;
        if (way > 0) {
            CHECK_INT(w.kind->begin(&w), DPAR_OK);
        } else {
            CHECK_INT(exchange_run(&w), DPAR_OK);
        }
        CHECK_INT(dpar_comm_free(comm), DPAR_OK);
        if (way == 0) {
            CHECK_INT(w.kind->begin(&w), DPAR_E_ARG);
            says(comm->why.text, "was closed before");
            CHECK(w.kind->reduce == NULL || w.kind->reduce(&w, DPAR_SUM) == DPAR_E_ARG);
            CHECK_INT(exchange_make(&other, t->kind, comm, NULL, &why), DPAR_E_ARG);
        } else {
            CHECK_INT(way == 1 ? w.kind->test(&w) : w.kind->end(&w), DPAR_E_ARG);
        }
        CHECK_INT(exchange_free(&w), t->kind == EXCHANGE_GRID ? DPAR_OK : DPAR_E_ARG);
    }
}

/* The last rank aborts while the others exchange, before or after it has begun itself, or before
 * the others have begun, whose next call reports it if ranks share memory. */
static void aborted(dpar_comm *world, const trial *t)
{
    enum { NOBODY = 2 };
    int begins;
    for (begins = 0; begins < 3; begins++) {
        exchange_work w;
        dpar_comm *comm = ring(&w, world, t);
        dpar_status status = exchange_run(&w);
        CHECK_INT(status, DPAR_OK);
        CHECK_INT(dpar_barrier(world, NULL), DPAR_OK); /* nothing else is broken by what follows */
        if (comm->rank == comm->size - 1) {
            CHECK_INT(begins == 1 ? w.kind->begin(&w) : DPAR_OK, DPAR_OK);
            dpar_comm_abort(comm, DPAR_E_SYSTEM, "the disk is full");
            status = begins == 1 ? w.kind->end(&w) : w.kind->begin(&w);
            CHECK(status == DPAR_E_SYSTEM || (status == DPAR_OK && begins == 1));
        }
        CHECK_INT(begins == NOBODY ? dpar_barrier(world, NULL) : DPAR_OK, DPAR_OK);
        if (comm->rank < comm->size - 1) {
            status = w.kind->begin(&w);
            CHECK(begins != NOBODY || t->method == DPAR_HALO_MESSAGES || status == DPAR_E_SYSTEM);
            status = exchange_finish(&w, status, 0);
        }
        CHECK_INT(heard(comm, status), DPAR_E_SYSTEM);
        says(comm->why.text, "the disk is full");
        CHECK_INT(w.kind->begin(&w), DPAR_E_SYSTEM);
        CHECK_INT(exchange_free(&w), DPAR_E_SYSTEM);
        (void)dpar_comm_free(comm);
    }
}

/* ---- ranks that call something else ---------------------------------------------------------- */

/* The last rank runs another mode or operation than the others. Messages of different modes may
 * match, so that they are left out. */
static void other_mode(dpar_comm *world, const trial *t)
{
    static const char *const names[3] = {"a forward exchange", "an adjoint (sum)",
                                         "an adjoint (max)"};
    static const int32_t ops[3] = {DPAR_COPY, DPAR_SUM, DPAR_MAX};
    int most, odd;
    for (most = 0; most < 3; most++) {
        exchange_work w;
        dpar_comm *comm;
        dpar_status status;
        int32_t op;
        odd = (most + 1) % 3;
        if (t->method == DPAR_HALO_MESSAGES || exchange_kinds[t->kind].reduce == NULL) {
            return;
        }
        comm = ring(&w, world, t);
        CHECK_INT(exchange_run(&w), DPAR_OK);
        CHECK_INT(dpar_barrier(world, NULL), DPAR_OK);
        op = ops[comm->rank == comm->size - 1 ? odd : most];
        status = op == DPAR_COPY ? w.kind->begin(&w) : w.kind->reduce(&w, op);
        status = exchange_finish(&w, status, most * 100);
        CHECK_INT(heard(comm, status), DPAR_E_MISMATCH);
        says(comm->why.text, names[most]);
        says(comm->why.text, names[odd]);
        says(comm->why.text, " runs ");
        CHECK_INT(exchange_free(&w), DPAR_E_MISMATCH);
        (void)dpar_comm_free(comm);
    }
}

/* Points compare types and components of vectors, too. */
static void other_vector(dpar_comm *world, const trial *t)
{
    exchange_work w;
    dpar_comm *comm;
    if (t->method == DPAR_POINTS_MESSAGES || t->kind != EXCHANGE_POINTS) {
        return;
    }
    comm = ring(&w, world, t);
    w.vector.type = comm->rank == 0 ? DPAR_F64 : DPAR_I64;
    CHECK_INT(heard(comm, exchange_run(&w)), DPAR_E_MISMATCH);
    says(comm->why.text, "a forward exchange of other vectors");
    CHECK_INT(exchange_free(&w), DPAR_E_MISMATCH);
    (void)dpar_comm_free(comm);
}

/* Rank 0 exchanges while the others call a barrier: reported long before the deadline if ranks
 * share memory. */
static void other_call(dpar_comm *world, const trial *t)
{
    const double began = now();
    exchange_work w;
    dpar_comm *comm;
    if (t->method != DPAR_HALO_AUTO) {
        return;
    }
    comm = ring(&w, world, t);
    CHECK_INT(exchange_run(&w), DPAR_OK);
    CHECK_INT(dpar_barrier(world, NULL), DPAR_OK);
    CHECK_INT(comm->rank > 0 ? dpar_barrier(comm, NULL) : exchange_run(&w), DPAR_E_MISMATCH);
    says(comm->why.text, " called barrier #");
    CHECK(now() - began < 20);
    (void)exchange_free(&w);
    (void)dpar_comm_free(comm);
}

/* Rank 0 exchanges a halo, rank 1 points: both are late for the other. */
static void other_kind(dpar_comm *world)
{
    exchange_work w[2];
    dpar_comm *comm = NULL;
    dpar_why why;
    CHECK_INT(dpar_comm_split(world, 0, 0, &comm), DPAR_OK);
    CHECK_INT(exchange_make(&w[0], EXCHANGE_HALO, comm, NULL, &why), DPAR_OK);
    CHECK_INT(exchange_make(&w[1], EXCHANGE_POINTS, comm, NULL, &why), DPAR_OK);
    comm->timeout_s = 0.3;
    CHECK_INT(exchange_run(&w[comm->rank == 0 ? 0 : 1]), DPAR_E_TIMEOUT);
    CHECK(strstr(comm->why.text, "halo exchange #1 of 1 field: rank 1") != NULL ||
          strstr(comm->why.text, "points exchange #1 of 1 vector: rank 0") != NULL);
    says(comm->why.text, "; it has begun exchange #0");
    CHECK_INT(exchange_free(&w[0]), DPAR_E_TIMEOUT);
    CHECK_INT(exchange_free(&w[1]), DPAR_E_TIMEOUT);
    (void)dpar_comm_free(comm);
}

/* ---- exchanges of two plans ------------------------------------------------------------------- */

/* An exchange with more than one step is in progress, of which only the first has posted messages,
 * when points begin that must wait for a peer. The peer waits for the messages of the second
 * step. */
static void before_the_rest(dpar_comm *world)
{
    const int32_t parts[2] = {2, 2};
    const int64_t cells[2] = {4, 4};
    dpar_placement cut[2];
    double at[4 * 4], many[8][4];
    dpar_points_field vectors[8];
    dpar_points_desc points;
    dpar_points *plan = NULL;
    dpar_halo_plan *halo = NULL;
    dpar_halo_plan_desc ordered;
    dpar_halo_field field;
    dpar_halo around;
    dpar_mesh mesh;
    dpar_why why;
    const int64_t ghost[3] = {(world->rank + 1) % 4, (world->rank + 2) % 4, (world->rank + 3) % 4};
    int i;
    memset(&points, 0, sizeof points);
    memset(&ordered, 0, sizeof ordered);
    memset(&field, 0, sizeof field);
    memset(&around, 0, sizeof around);
    memset(vectors, 0, sizeof vectors);
    memset(at, 0, sizeof at);
    memset(many, 0, sizeof many);
    for (i = 0; i < 2; i++) {
        cut[i] = dpar_shard(i);
        around.low[i] = around.high[i] = 1;
    }
    (void)dpar_mesh_init(&mesh, "y x", parts, DPAR_ORDER_LAST_FASTEST, 4, NULL);
    (void)dpar_layout_init(&around.grid, &mesh, 2, cells, cut, NULL);
    around.periodic = 3;
    field.halo = &around;
    field.type = DPAR_F64;
    field.data = at;
    ordered.field = &field;
    ordered.field_count = 1;
    ordered.method = DPAR_HALO_MESSAGES;
    ordered.ordered = 1;
    ordered.tag = 3;
    points.own_count = 1;
    points.ghost_count = 3;
    points.ghost_id = ghost;
    CHECK_INT(dpar_halo_plan_make(world, &ordered, &halo, &why), DPAR_OK);
    CHECK_INT(dpar_points_make(world, &points, &plan, &why), DPAR_OK);
    for (i = 0; i < 8; i++) {
        vectors[i].type = DPAR_F64;
        vectors[i].data = many[i];
        many[i][0] = (double)(10 * i + world->rank);
    }
    world->timeout_s = 5;
    CHECK_INT(dpar_points_begin_many(plan, vectors, 1), DPAR_OK);
    CHECK_INT(dpar_halo_plan_begin(halo), DPAR_OK);
    if (world->rank % 3 == 0) { /* these ranks wait for what their neighbours still have to post */
        CHECK_INT(dpar_halo_plan_end(halo), DPAR_OK);
    }
    if (world->rank % 3 == 0) { /* the others must keep what these ranks have not taken */
        usleep(20000);
    }
    CHECK_INT(dpar_points_end(plan), DPAR_OK);
    for (i = 0; i < 3; i++) {
        CHECK(many[0][1 + i] == ghost[i]);
    }
    CHECK_INT(dpar_points_begin_many(plan, vectors, 8), DPAR_OK); /* needs more memory */
    CHECK_INT(dpar_points_end(plan), DPAR_OK);
    CHECK_INT(dpar_halo_plan_end(halo), DPAR_OK);
    for (i = 0; i < 8; i++) {
        CHECK(many[i][1] == 10 * i + ghost[0] && many[i][2] == 10 * i + ghost[1] &&
              many[i][3] == 10 * i + ghost[2]);
    }
    CHECK_INT(dpar_points_free(plan), DPAR_OK);
    CHECK_INT(dpar_halo_plan_free(halo), DPAR_OK);
    world->timeout_s = 60;
}

/* ---- ranks of a launch of their own ----------------------------------------------------------- */

enum { BEFORE, WITHIN, AFTER, TIMES };

/* Rank 2 of 3 dies before it begins exchange #4, while it is in progress, or after it. */
static int dies(dpar_comm *comm, void *arg)
{
    const trial *t = (const trial *)arg;
    const int victim = comm->rank == 2;
    exchange_work w;
    exchange_desc desc;
    dpar_why why;
    dpar_status status = DPAR_OK;
    int k;
    memset(&desc, 0, sizeof desc);
    desc.method = t->method;
    CHECK_INT(exchange_make(&w, t->kind, comm, &desc, &why), DPAR_OK);
    for (k = 1; status == DPAR_OK && k < 8; k++) {
        if (victim && k == 4 && t->when == BEFORE) {
            raise(SIGKILL);
        }
        exchange_fill(&w, k);
        status = w.kind->begin(&w);
        if (victim && k == 4 && t->when == WITHIN) {
            raise(SIGKILL);
        }
        status = exchange_finish(&w, status, k % 2 ? 1 << 30 : 0); /* tests notice a death, too */
        CHECK(status != DPAR_OK || exchange_wrong(&w, k) == 0);
        if (victim && k == 4) {
            raise(SIGKILL);
        }
    }
    CHECK_INT(status, DPAR_E_PEER);
    says(comm->why.text, "rank 2 ");
    CHECK_INT(w.kind->begin(&w), DPAR_E_PEER);
    CHECK_INT(exchange_free(&w), DPAR_E_PEER);
    return failures() > 0;
}

/* Rank 2 of 3 is late for exchange #3. */
static int is_late(dpar_comm *comm, void *arg)
{
    trial *t = (trial *)arg;
    exchange_work w;
    exchange_desc desc;
    char words[80], page[4000];
    const char *waited;
    dpar_text text;
    dpar_why why;
    dpar_status status = DPAR_OK;
    int k;
    memset(&desc, 0, sizeof desc);
    desc.method = t->method;
    desc.timers = 1;
    CHECK_INT(exchange_make(&w, t->kind, comm, &desc, &why), DPAR_OK);
    CHECK_INT(exchange_run(&w), DPAR_OK);
    CHECK_INT(exchange_run(&w), DPAR_OK);
    comm->timeout_s = 0.5;
    for (k = 0; comm->rank == 2 && k < 20000 && t->over < 2; k++) {
        usleep(1000);
    }
    status = exchange_finish(&w, w.kind->begin(&w), 20);
    CHECK_INT(status, DPAR_E_TIMEOUT);
    (void)__atomic_add_fetch(&t->over, 1, __ATOMIC_SEQ_CST);
    says(comm->why.text, " did not arrive within ");
    if (t->method != DPAR_HALO_MESSAGES) {
        (void)snprintf(words, sizeof words, "%s exchange #3 of 1 %s: rank 2", w.kind->name,
                       w.kind->item);
        says(comm->why.text, words);
        says(comm->why.text, "; it has begun exchange #2");
    }
    if (comm->rank < 2 && w.kind->report) {
        dpar_text_init(&text, page, sizeof page);
        w.kind->report(&w, &text);
        waited = strstr(page, ", waiting ");
        CHECK(waited != NULL && atof(waited + 10) > 1e5); /* us */
    }
    CHECK_INT(w.kind->begin(&w), DPAR_E_TIMEOUT);
    CHECK_INT(exchange_free(&w), DPAR_E_TIMEOUT);
    return failures() > 0;
}

/* Four ranks in a row, the last of which is late. The first times out on the second, which waits
 * for the third, which waits for the last: all report the last. */
static int chain(dpar_comm *comm, void *arg)
{
    static const char late[] = "rank 3 did not arrive within ";
    trial *t = (trial *)arg;
    exchange_work w;
    exchange_desc desc;
    dpar_comm *node = NULL;
    dpar_why why;
    dpar_status status = DPAR_OK;
    const char *at;
    int k;
    memset(&desc, 0, sizeof desc);
    desc.open = 1;
    CHECK_INT(t->node ? dpar_comm_split(comm, 0, 0, &node) : DPAR_OK, DPAR_OK);
    comm->node = node;
    CHECK_INT(exchange_make(&w, t->kind, comm, &desc, &why), DPAR_OK);
    CHECK_INT(exchange_run(&w), DPAR_OK);
    comm->timeout_s = comm->rank == 0 ? 1.0 : 60.0;
    for (k = 0; comm->rank == 3 && k < 20000 && t->over == 0; k++) {
        usleep(1000);
    }
    for (k = 0; k < 5 && status == DPAR_OK; k++) {
        status = exchange_run(&w);
    }
    CHECK_INT(status, DPAR_E_TIMEOUT);
    CHECK(comm->rank > 0 || k == 3); /* the second has begun #3 and waits for the third */
    if (comm->rank == 0) {
        t->over = 1;
    }
    at = strstr(comm->why.text, late);
    CHECK(at != NULL && atof(at + strlen(late)) >= 1.0);
    says(comm->why.text, "rank 1 waits for others that wait for it, and has begun exchange #3");
    CHECK_INT(exchange_free(&w), DPAR_E_TIMEOUT);
    comm->node = NULL;
    (void)dpar_comm_free(node);
    return failures() > 0;
}

/* Rank 1 of 2 is stopped in an exchange. Rank 0 times out, writes other values, and has rank 1
 * continue, which must not take those values for the right ones. */
static int stops(dpar_comm *comm, void *arg)
{
    trial *t = (trial *)arg;
    exchange_work w;
    exchange_desc desc;
    dpar_why why;
    dpar_status status;
    int k;
    memset(&desc, 0, sizeof desc);
    desc.method = t->method;
    CHECK_INT(exchange_make(&w, t->kind, comm, &desc, &why), DPAR_OK);
    exchange_fill(&w, 1);
    CHECK_INT(exchange_run(&w), DPAR_OK);
    exchange_fill(&w, 2);
    CHECK_INT(dpar_barrier(comm, NULL), DPAR_OK);
    comm->timeout_s = 0.2;
    if (comm->rank == 1) {
        t->pid = (int32_t)getpid();
        status = t->when == BEFORE ? DPAR_OK : w.kind->begin(&w);
        t->begun = 1;
        raise(SIGSTOP);
        status = t->when == BEFORE ? w.kind->begin(&w) : status;
        status = exchange_finish(&w, status, 0);
        CHECK(status != DPAR_OK || exchange_wrong(&w, 2) == 0);
        t->found = status;
        t->done = 1;
        (void)exchange_free(&w);
        return failures() > 0;
    }
    for (k = 0; k < 20000 && t->begun == 0; k++) {
        usleep(1000);
    }
    status = exchange_run(&w);
    if (t->when == BEFORE) {
        CHECK_INT(status, DPAR_E_TIMEOUT);
    }
    t->over = status == DPAR_E_TIMEOUT;
    exchange_fill(&w, 9);
    for (k = 0; k < 20000 && t->done == 0; k++) {
        kill(t->pid, SIGCONT);
        usleep(1000);
    }
    CHECK(t->done);
    CHECK(!t->over || t->when != BEFORE || t->found == DPAR_E_TIMEOUT);
    (void)exchange_free(&w);
    return failures() > 0;
}

/* Runs a trial on ranks of its own. */
static int launch(int ranks, rank_test each, trial *t, dpar_status want)
{
    dpar_world_desc desc;
    dpar_why why;
    dpar_status status;
    memset(&desc, 0, sizeof desc);
    desc.timeout_s = 30;
    why.text[0] = 0;
    status = dpar_launch(ranks, each, t, &desc, &why);
    if (status != want) {
        printf("kind %d, method %d, time %d, node %d: %d %s\n", t->kind, t->method, t->when,
               t->node, (int)status, why.text);
    }
    return status != want || (want == DPAR_E_PEER && strstr(why.text, "rank 2") == NULL);
}

/* A fault with the ranks, the times and the nodes for which it is tried. */
typedef struct fault {
    int ranks;
    rank_test each;
    dpar_status want;
    int times, nodes;
} fault;

/* Tries a fault with all kinds and methods, three at a time, because they mostly wait. Returns how
 * many failed. */
static int try_all(const fault *f)
{
    trial *t = (trial *)mmap(NULL, 100 * sizeof *t, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int failed = 0, running = 0, status, n = 0;
    int32_t kind, method, when, node;
    for (kind = 0; kind < EXCHANGE_KINDS; kind++) {
        const int methods = f->nodes > 1 ? 1 : exchange_kinds[kind].methods;
        for (method = 0; method < methods; method++) {
            for (when = 0; when < f->times; when++) {
                for (node = 0; node < f->nodes; node++, n++) {
                    t[n].kind = kind;
                    t[n].method = method;
                    t[n].when = when;
                    t[n].node = node;
                    if (running == 3) {
                        (void)wait(&status);
                        failed += status != 0;
                        running--;
                    }
                    fflush(stdout);
                    if (fork() == 0) {
                        status = launch(f->ranks, f->each, &t[n], f->want);
                        fflush(stdout);
                        _exit(status);
                    }
                    running++;
                }
            }
        }
    }
    for (; running > 0; running--) {
        (void)wait(&status);
        failed += status != 0;
    }
    munmap(t, 100 * sizeof *t);
    return failed;
}

static int together(dpar_comm *comm, void *arg)
{
    trial t;
    (void)arg;
    memset(&t, 0, sizeof t);
    for (t.kind = 0; t.kind < EXCHANGE_KINDS; t.kind++) {
        for (t.method = 0; t.method < exchange_kinds[t.kind].methods; t.method++) {
            in_progress(comm, &t);
            one_way(comm, &t);
            closed(comm, &t);
#ifdef USE_MPI
            continue; /* tests/mpi has the faults of ranks that MPI has started */
#endif
            aborted(comm, &t);
            if (comm->size > 1) {
                other_mode(comm, &t);
                other_vector(comm, &t);
                other_call(comm, &t);
            }
        }
    }
#ifndef USE_MPI
    if (comm->size == 2) {
        other_kind(comm);
    }
#endif
    if (comm->size == 4) {
        before_the_rest(comm);
    }
    return failures() > 0;
}

int main(int argc, char **argv)
{
#ifndef USE_MPI
    static const fault faults[4] = {{3, dies, DPAR_E_PEER, TIMES, 1},
                                    {3, is_late, DPAR_OK, 1, 1},
                                    {4, chain, DPAR_OK, 1, 2},
                                    {2, stops, DPAR_OK, 2, 1}};
    int i;
    for (i = 0; i < 4 && argc == 1; i++) {
        CHECK_INT(try_all(&faults[i]), 0);
    }
#endif
    return rank_program(argc, argv, together, NULL, 4, 3, NULL);
}
