/* SPDX-License-Identifier: MIT-0 */
/* Tests what dpar_comm.h refuses before any rank runs, and what a world of one rank refuses in a
 * move: one wrong number at a time, each with its message. Also tests the messages when memory or
 * files run out.
 *   comm_refusals slow    the tests that take seconds */
#include "dpar_comm.h"

#include "axes.h"
#include "check.h"
#include "no_memory.h"
#include "refused.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int nothing(dpar_comm *c, void *arg)
{
    return c->size < 0 && arg != NULL;
}

static void test_launch(void)
{
    dpar_world_desc o;
    dpar_why why;
    memset(&o, 0, sizeof o);
    REFUSED(dpar_launch(1, NULL, NULL, NULL, &why), DPAR_E_ARG,
            "dpar_launch: the function is NULL");
    REFUSED(dpar_launch(0, nothing, NULL, NULL, &why), DPAR_E_ARG, "0 ranks, but 1 .. 1024");
    REFUSED(dpar_launch(1 << 30, nothing, NULL, NULL, &why), DPAR_E_ARG, "1073741824 ranks, but");
    o.grace_s = -1.0;
    REFUSED(dpar_launch(1, nothing, NULL, &o, &why), DPAR_E_ARG, "grace_s must be 0 .. 1e9");
    o.grace_s = 0.0, o.timeout_s = (double)NAN;
    REFUSED(dpar_launch(1, nothing, NULL, &o, &why), DPAR_E_ARG,
            "timeout_s is not a finite number");
    o.timeout_s = 0.0, o.threads = 2;
    REFUSED(dpar_launch(1, nothing, NULL, &o, &why), DPAR_E_ARG, "threads must be 0 or 1, not 2");
    REFUSED(dpar_init(NULL, NULL, &why), DPAR_E_ARG, "world is NULL");
}

/* Tests jobs whose environment variables are wrong or incomplete. */
static void test_jobs(void)
{
    static const char *const names[] = {"DPAR_RANK", "DPAR_SIZE", "DPAR_LOCAL_RANK",
                                        "DPAR_LOCAL_SIZE", "DPAR_JOB"};
    dpar_comm *world = NULL;
    dpar_why why;
    size_t i;
    CHECK_INT(setenv("DPAR_JOB", "refusals", 1), 0);
    CHECK_INT(setenv("DPAR_RANK", "0", 1), 0);
    CHECK_INT(setenv("DPAR_SIZE", "100000", 1), 0);
    REFUSED(dpar_init(&world, NULL, &why), DPAR_E_ARG,
            "reports 100000 ranks: dpar_comm.h joins at most");
    CHECK_INT(setenv("DPAR_SIZE", "4", 1), 0);
    CHECK_INT(setenv("DPAR_LOCAL_RANK", "0", 1), 0);
    CHECK_INT(setenv("DPAR_LOCAL_SIZE", "2", 1), 0);
    REFUSED(dpar_init(&world, NULL, &why), DPAR_E_ARG, "reports 4 ranks, 2 of them on this node");
    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK_INT(unsetenv(names[i]), 0);
    }
    /* Flux sets ranks, nodes and this rank, but not how many ranks are on this node */
    for (i = 0; i < 3; i++) {
        static const char *const flux[] = {"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES"};
        CHECK_INT(setenv(flux[i], i == 0 ? "0" : i == 1 ? "5" : "2", 1), 0);
        if (i == 2) {
            REFUSED(dpar_init(&world, NULL, &why), DPAR_E_ARG, "Flux reports 5 ranks on 2 nodes: ");
            CHECK_INT(unsetenv(flux[0]) + unsetenv(flux[1]) + unsetenv(flux[2]), 0);
        }
    }
    CHECK_INT(setenv("DPAR_TIMEOUT", "soon", 1), 0);
    REFUSED(dpar_init(&world, NULL, &why), DPAR_E_ARG,
            "DPAR_TIMEOUT is \"soon\", which is not a number");
    CHECK_INT(unsetenv("DPAR_TIMEOUT"), 0);
    CHECK(world == NULL);
}

static void test_moves(dpar_comm *c)
{
    dpar_mesh m;
    dpar_layout l, huge;
    dpar_placement p = dpar_replicate();
    dpar_redistribute_desc move, fine;
    dpar_transfer t, many[4];
    dpar_why why;
    int i;
    int64_t extent[3] = {4, 4, 4}, shape[3] = {4, 4, 4}, far[1];
    int32_t one = 1;
    double in[64], out[64];
    memset(in, 0, sizeof in);
    CHECK_INT(dpar_mesh_init(&m, "a", &one, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&l, &m, 3, extent, &p, NULL), DPAR_OK);
    memset(&fine, 0, sizeof fine);
    fine.type = DPAR_F64, fine.from = fine.to = &l, fine.in = in, fine.out = out;
    CHECK_INT(dpar_redistribute(c, &fine, &why), DPAR_OK);
    move = fine;
    move.type = DPAR_F4;
    REFUSED(dpar_redistribute(c, &move, &why), DPAR_E_ARG,
            "type f4 (6) has no elements of whole bytes");
    move = fine;
    move.ranks_per_node = -2;
    REFUSED(dpar_redistribute(c, &move, &why), DPAR_E_ARG, "ranks_per_node is -2");
    move = fine;
    shape[1] = 3;
    move.in_shape = shape;
    REFUSED(dpar_redistribute(c, &move, &why), DPAR_E_ARG, "the shape is 3, but this rank has 4");
    shape[1] = -1;
    CHECK(dpar_redistribute(c, &move, &why) == DPAR_E_ARG);
    move = fine;
    move.scratch_bytes = 1;
    REFUSED(dpar_redistribute(c, &move, &why), DPAR_E_ROOM, "scratch has 1 bytes");
    CHECK(why.bytes > 1);
    memset(&move, 0, sizeof move);
    memset(&t, 0, sizeof t);
    move.type = DPAR_F64, move.in = in, move.out = out, move.in_shape = move.out_shape = shape;
    t.dims = 3, t.extent[0] = t.extent[1] = t.extent[2] = 1;
    move.send = move.receive = &t, move.send_count = move.receive_count = 1;
    REFUSED(dpar_transfers_exchange(c, &move, &why), DPAR_E_ARG, "dim 1 of a shape is -1");
    t.dims = 7; /* more than the maximum */
    CHECK(dpar_transfers_exchange(c, &move, &why) == DPAR_E_ARG);
    t.dims = -1;
    CHECK(dpar_transfers_exchange(c, &move, &why) == DPAR_E_ARG);
    far[0] = INT64_C(1) << 61; /* the count of elements fits, the count of bytes does not */
    t.dims = 1;
    move.in_shape = move.out_shape = far;
    REFUSED(dpar_transfers_exchange(c, &move, &why), DPAR_E_RANGE,
            "2305843009213693952 elements of 8 bytes");
    /* 2^63 bytes: pieces of any size are allowed, but the total of both copies is not. Values that
     * a rank adds to its own need these copies; those that it only copies to itself do not. */
    for (i = 0; i < 4; i++) {
        memset(&many[i], 0, sizeof many[i]);
        many[i].op = DPAR_SUM;
        many[i].dims = 1, many[i].extent[0] = INT64_C(1) << 58;
    }
    far[0] = INT64_C(1) << 59;
    move.send = move.receive = many, move.send_count = move.receive_count = 4;
    move.piece_bytes = INT64_MAX;
    move.out = in; /* arrays of this size cannot be disjoint */
    REFUSED(dpar_transfers_exchange(c, &move, &why), DPAR_E_RANGE, "more than 2^62 bytes of");
    extent[0] = INT64_C(1) << 61, extent[1] = extent[2] = 4;
    CHECK_INT(dpar_layout_init(&huge, &m, 3, extent, &p, NULL), DPAR_OK);
    move = fine;
    move.from = move.to = &huge;
    CHECK(dpar_redistribute(c, &move, &why) == DPAR_E_RANGE);
}

/* ---- without memory ---- */

enum { CALLS = 100 };

static void too_many_calls(void *arg, char *text)
{
    dpar_comm *c = (dpar_comm *)arg;
    static dpar_call calls[CALLS];
    static double from[CALLS], to[CALLS];
    int32_t i;
    memset(calls, 0, sizeof calls);
    for (i = 0; i < CALLS; i++) {
        calls[i].kind = i % 2 ? DPAR_CALL_RECV : DPAR_CALL_SEND; /* each to this rank */
        calls[i].type = DPAR_F64, calls[i].tag = i / 2, calls[i].count = 1;
        calls[i].in = &from[i], calls[i].out = &to[i];
    }
    strcpy(text, dpar_batch(c, calls, CALLS, NULL) == DPAR_E_MEMORY ? c->why.text : "");
}

static void a_thread(void *arg, char *text)
{
    /* the first call does nothing: a thread that has ended leaves its stack behind */
    static int calls;
    dpar_comm *c = (dpar_comm *)arg;
    text[0] = 0;
    if (calls++ == 0) {
        return;
    }
    strcpy(text, dpar_comm_progress(c, 1) == DPAR_E_SYSTEM ? c->why.text : "");
    (void)dpar_comm_progress(c, 0);
}

/* Communicators to shrink, made before memory is limited. */
typedef struct shrinks {
    dpar_comm *from[40];
    int next;
} shrinks;

static void shrunk(void *arg, char *text)
{
    shrinks *s = (shrinks *)arg;
    dpar_comm *out = NULL;
    dpar_why why;
    why.text[0] = 0;
    if (s->next < 40 && dpar_comm_shrink(s->from[s->next++], &out, NULL, &why) == DPAR_OK) {
        why.text[0] = 0;
        (void)dpar_comm_free(out);
    }
    strcpy(text, why.text);
}

static void splits(void *arg, char *text)
{
    dpar_comm *c = (dpar_comm *)arg, *out = NULL;
    text[0] = 0;
    if (dpar_comm_split(c, 0, 0, &out) == DPAR_OK) {
        (void)dpar_comm_free(out);
    } else {
        strcpy(text, c->why.text);
    }
}

static void alone(void *arg, char *text)
{
    dpar_comm *world = NULL;
    dpar_world_desc o;
    dpar_why why;
    memset(&o, 0, sizeof o);
    o.heap_bytes = 1 << 16;
    o.timeout_s = 1e-3;
    why.text[0] = 0;
    if (dpar_init(&world, &o, &why) == DPAR_OK) {
        (void)dpar_comm_free(world);
        why.text[0] = 0;
    }
    strcpy(text, why.text);
    (void)arg;
}

static void threads(void *arg, char *text)
{
    dpar_world_desc o;
    dpar_why why;
    memset(&o, 0, sizeof o);
    o.heap_bytes = 1 << 16;
    o.threads = 1;
    why.text[0] = 0;
    strcpy(text, dpar_launch(8, nothing, NULL, &o, &why) == DPAR_OK ? "" : why.text);
    if (strstr(text, "could not join: ") != NULL) { /* any of the ranks */
        CHECK(strstr(text, "could not join: memory for this rank: out of ") != NULL);
        text[0] = 0;
    } else if (strncmp(text, "thread ", 7) == 0) {
        memcpy(text, "thread #", 8);
    }
    (void)arg;
}

static void test_no_memory(dpar_comm *c)
{
    static few_pages few;
    static shrinks s;
    int i;
    if (!few_pages_said(&few, a_thread, c, 1 << 14)) {
        puts("a limit of memory: not kept, skipped");
        return;
    }
    CHECK(few_pages_has(&few, "no thread could be started for progress"));
    for (i = 0; i < 40; i++) {
        CHECK_INT(dpar_comm_split(c, 0, 0, &s.from[i]), DPAR_OK);
    }
    s.next = 0;
    CHECK(few_pages_said(&few, shrunk, &s, 1 << 12));
    CHECK(few_pages_has(&few, "shrink: rank 0 has no memory for a communicator"));
    CHECK(few_pages_said(&few, splits, c, 1 << 12));
    CHECK(few_pages_has(&few, "split: rank 0 has no memory for a communicator: out of addresses"));
    CHECK(few_pages_said(&few, too_many_calls, c, 64));
    CHECK(few_pages_has(&few, "batch: no memory for "));
}

static void test_no_start(void)
{
    static few_pages few;
    if (!few_pages_said(&few, alone, NULL, 1 << 17)) {
        return;
    }
    CHECK(few_pages_has(&few, "shared memory of "));
    CHECK(few_pages_has(&few, "memory for this rank"));
    CHECK(few_pages_said(&few, threads, NULL, 1 << 19));
    CHECK(few_pages_has(&few, "are needed to watch 8 ranks"));
    CHECK(few_pages_has(&few, "of 8 could not be started"));
    CHECK_INT(setenv("DPAR_JOB", "few pages", 1) + setenv("DPAR_RANK", "0", 1), 0);
    CHECK_INT(setenv("DPAR_SIZE", "2", 1) + setenv("DPAR_TIMEOUT", "0.001", 1), 0);
    CHECK(few_pages_said(&few, alone, NULL, 1 << 17));
    CHECK(few_pages_has(&few, "the table of ranks"));
    CHECK_INT(unsetenv("DPAR_JOB") + unsetenv("DPAR_RANK"), 0);
    CHECK_INT(unsetenv("DPAR_SIZE") + unsetenv("DPAR_TIMEOUT"), 0);
}

/* ---- two processes, one of which fails or does not join ---- */

static void as_rank(int rank, const char *size, const char *limit)
{
    CHECK_INT(setenv("DPAR_JOB", "of refusals", 1) + setenv("DPAR_SIZE", size, 1), 0);
    CHECK_INT(setenv("DPAR_RANK", rank ? "1" : "0", 1) + setenv("DPAR_TIMEOUT", limit, 1), 0);
}

static dpar_status joins(dpar_why *why)
{
    dpar_comm *world = NULL;
    dpar_world_desc o;
    dpar_status st;
    memset(&o, 0, sizeof o);
    o.heap_bytes = 1 << 16;
    st = dpar_init(&world, &o, why);
    if (world != NULL) {
        (void)dpar_comm_free(world);
    }
    return st;
}

/* Limits open files to the current number plus 0, 1 and 2: a socket needs one, the segment
 * another. */
static void test_no_files(void)
{
    struct rlimit before, less;
    dpar_why why;
    int rank, n, found[2] = {0, 0}, next = dup(0);
    if (next < 0 || getrlimit(RLIMIT_NOFILE, &before) != 0) {
        return;
    }
    close(next);
    for (rank = 0; rank < 2; rank++) {
        as_rank(rank, "2", "0.001");
        for (n = 0; n < 3; n++) {
            less = before;
            less.rlim_cur = (rlim_t)next + (rlim_t)n;
            CHECK_INT(setrlimit(RLIMIT_NOFILE, &less), 0);
            CHECK(joins(&why) < 0);
            CHECK_INT(setrlimit(RLIMIT_NOFILE, &before), 0);
            found[rank] += strstr(why.text, "the socket where ranks meet: ") != NULL;
        }
    }
    CHECK(found[0] > 0 && found[1] > 0);
}

/* Limits rank 1 to so many pages of address space that it cannot map the segment's head (12 pages)
 * or the rest that it needs (64 pages). */
static void rank_without_room(rlim_t pages, dpar_status status, const char *words)
{
    struct rlimit less;
    dpar_why why;
    pid_t other;
    rlim_t used = few_pages_used();
    if (used == 0 || used >> 12 > (rlim_t)1 << 26) {
        return;
    }
    fflush(stdout);
    other = fork();
    if (other == 0) {
        less.rlim_cur = less.rlim_max = few_pages_used() + (pages << 12);
        (void)setrlimit(RLIMIT_AS, &less);
        as_rank(1, "2", "10");
        _exit(joins(&why) < 0 ? 0 : 1);
    }
    as_rank(0, "2", "10");
    REFUSED(joins(&why), status, words);
    CHECK_INT(waitpid(other, NULL, 0), other);
    CHECK_INT(unsetenv("DPAR_JOB") + unsetenv("DPAR_RANK"), 0);
    CHECK_INT(unsetenv("DPAR_SIZE") + unsetenv("DPAR_TIMEOUT"), 0);
}

static void test_no_room(void)
{
    rank_without_room(12, DPAR_E_SYSTEM, "rank 1 cannot map the segment: ");
    rank_without_room(64, DPAR_E_PEER, "start: rank 1 has ended (1 of 2 ranks)");
}

/* Rank 0 accepts rank 1 and waits for rank 2 longer than rank 1 does, which waits 5 s more for a
 * message of rank 0. */
static void test_third(void)
{
    dpar_why why;
    pid_t other = fork();
    if (other == 0) {
        as_rank(0, "3", "20");
        _exit(joins(&why) < 0 ? 0 : 1);
    }
    as_rank(1, "3", "0.3");
    REFUSED(joins(&why), DPAR_E_TIMEOUT,
            "rank 0 of 3 accepted rank 1, but then did not answer any more");
    CHECK_INT(kill(other, SIGKILL), 0);
    CHECK_INT(waitpid(other, NULL, 0), other);
}

/* Tests an engine that cannot shrink. */
static void test_engine(dpar_comm *c)
{
    dpar_comm without = *c, *out = NULL;
    dpar_why why;
    without.engine.shrink = NULL;
    REFUSED(dpar_comm_shrink(&without, &out, NULL, &why), DPAR_E_SYSTEM,
            "shrink: the engine shm cannot continue without the ranks that failed");
}

static int one_rank(dpar_comm *c, void *arg)
{
    (void)arg;
    test_engine(c);
    test_no_memory(c);
    test_moves(c);
    return checks_failed > 0;
}

int main(int argc, char **argv)
{
    dpar_world_desc o;
    dpar_why why;
    if (argc > 1 && strcmp(argv[1], "slow") == 0) {
        test_third();
        return CHECK_DONE();
    }
    memset(&o, 0, sizeof o);
    o.threads = 1; /* so that the checks count in this process */
    test_launch();
    test_jobs();
    CHECK_INT(dpar_launch(1, one_rank, NULL, &o, &why), DPAR_OK);
    test_no_start();
    test_no_files();
    test_no_room();
    return CHECK_DONE();
}
