/* SPDX-License-Identifier: MIT-0 */
/* Tests failures on three ranks or more: a late rank, calls that do not match, messages of another
 * length, an abort, and errors of MPI. Each part breaks its own communicator. A late rank arrives
 * in the end, so that nothing is pending in MPI_Finalize. */
#include "dpar_mpi.h"
#include "check.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static dpar_comm *make(double timeout_s, int32_t check)
{
    dpar_mpi_desc options;
    dpar_comm *c = NULL;
    dpar_why why;
    memset(&options, 0, sizeof options);
    options.timeout_s = timeout_s;
    options.check = check;
    if (dpar_mpi_make(MPI_COMM_WORLD, &options, &c, &why) < 0) {
        puts(why.text);
        exit(1);
    }
    return c;
}

/* Checks that a text contains a part. "rank 2<1>" stands for rank 2 and, if there are several
 * nodes, the name of its node: "rank 2 on host#1". */
static void has(const char *text, const char *part)
{
    const char *fake = getenv("DPAR_MPI_NODE");
    const int nodes = fake != NULL && atoi(fake) > 0;
    char whole[400] = "", host[MPI_MAX_PROCESSOR_NAME + 1] = "";
    int length;
    MPI_Get_processor_name(host, &length);
    for (const char *p = part; *p != 0; p++) {
        const size_t at = strlen(whole);
        if (*p == '<') {
            (void)snprintf(whole + at, sizeof whole - at, nodes ? " on %.55s#%c" : "", host, p[1]);
            p += 2;
        } else {
            whole[at] = *p;
        }
    }
    CHECK(strstr(text, whole) != NULL);
    if (strstr(text, whole) == NULL) {
        printf("   \"%s\" lacks \"%s\"\n", text, whole);
    }
}

static void nap(double s)
{
    double end = MPI_Wtime() + s;
    while (MPI_Wtime() < end) {
        DPARI_MPI_YIELD();
    }
}

/* Makes rank 1 wait until all other ranks have sent it a message that they timed out, however long
 * that takes on a busy machine. */
static void told(const dpar_comm *c)
{
    if (c->rank != 1) {
        MPI_Send(NULL, 0, MPI_INT, 1, 77, MPI_COMM_WORLD);
        return;
    }
    for (int32_t r = 0; r < c->size; r++) {
        double end = MPI_Wtime() + 60;
        int flag = r == 1;
        while (!flag && MPI_Wtime() < end) {
            MPI_Iprobe(r, 77, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
            DPARI_MPI_YIELD();
        }
        CHECK(flag);
        if (flag && r != 1) {
            MPI_Recv(NULL, 0, MPI_INT, r, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    }
}

/* Rank 1 is late for a collective. */
static void late(int64_t n)
{
    dpar_comm *c = make(60, 0);
    static float x[20000], y[20000];
    dpar_status s;
    double begin;
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    c->timeout_s = 2.5;
    begin = MPI_Wtime();
    if (c->rank == 1) {
        told(c);
        s = dpar_all_reduce(c, x, y, n, DPAR_F32, DPAR_SUM, NULL);
        /* Rank 1 may find all data that it needs, or the others' timeout. */
        CHECK(s == DPAR_OK || s == DPAR_E_TIMEOUT);
    } else {
        s = dpar_all_reduce(c, x, y, n, DPAR_F32, DPAR_SUM, NULL);
        CHECK_INT(s, DPAR_E_TIMEOUT);
        CHECK(MPI_Wtime() - begin > 2.4 && MPI_Wtime() - begin < 20);
        CHECK_INT(c->status, DPAR_E_TIMEOUT);
        CHECK_INT(dpar_barrier(c, NULL), DPAR_E_TIMEOUT);
        has(c->why.text, "all-reduce #1 of ");
        has(c->why.text,
            "not finished after 2.5 s; nothing heard from ranks: 1<0>; also waiting in ");
        told(c);
    }
    dpar_comm_free(c);
}

/* Stops all ranks for 4 s, longer than the timeout of 2.5 s, and continues them: no rank was late.
 * Rank 1 computes for half a second of the time in which it runs. */
static void suspended(void)
{
    dpar_comm *c = make(60, 0);
    float x = 1, sum = 0;
    int32_t pid = (int32_t)getpid(), pids[64];
    pid_t warden = -1;
    CHECK_INT(dpar_all_gather(c, &pid, pids, 1, DPAR_I32, NULL), DPAR_OK);
    c->timeout_s = 2.5;
    if (c->rank == 0) {
        warden = fork();
    }
    if (warden == 0) {
        for (int32_t way = 0; way < 2; way++) {
            usleep(way == 0 ? 200000 : 4000000);
            for (int32_t r = 0; r < c->size; r++) {
                kill(pids[r], way == 0 ? SIGSTOP : SIGCONT);
            }
        }
        _exit(0);
    }
    if (c->rank == 1) {
        double last = MPI_Wtime(), left = 0.5;
        while (left > 0) {
            const double now = MPI_Wtime();
            left -= now - last < 0.1 ? now - last : 0;
            last = now;
        }
    }
    CHECK_INT(dpar_all_reduce(c, &x, &sum, 1, DPAR_F32, DPAR_SUM, NULL), DPAR_OK);
    CHECK(sum > (float)c->size - 0.5f && sum < (float)c->size + 0.5f);
    if (c->rank == 0) {
        waitpid(warden, NULL, 0);
    }
    dpar_comm_free(c);
}

/* Rank 1 is late for a split: MPI_Comm_split, where a rank would wait for ever, is not called. */
static void late_split(void)
{
    dpar_comm *c = make(60, 0), *part = NULL;
    double begin;
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    c->timeout_s = 2.5;
    if (c->rank == 1) {
        told(c);
    }
    begin = MPI_Wtime();
    CHECK_INT(dpar_comm_split(c, 0, 0, &part), DPAR_E_TIMEOUT);
    CHECK(MPI_Wtime() - begin < 20);
    CHECK(part == NULL);
    has(c->why.text, "split #1 ");
    if (c->rank != 1) {
        told(c);
    }
    dpar_comm_free(c);
}

/* Tests calls that do not match, without check. A rank that has waited for some time sends the
 * others its call, so that both sides get the mismatch: other kinds, or all-gathers with different
 * tags (as in layers with different options). */
static void unlike(int what)
{
    dpar_comm *c = make(60, 0), *part = NULL;
    const int last = c->rank == c->size - 1;
    const double begin = MPI_Wtime();
    static float x[2], y[2 * 64];
    dpar_status s;
    dpar_call tagged;
    memset(&tagged, 0, sizeof tagged);
    tagged.kind = DPAR_CALL_ALL_GATHER;
    tagged.type = DPAR_F32;
    tagged.in = x;
    tagged.out = y;
    tagged.count = 2;
    tagged.tag = last ? 7 : 6;
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    if (what == 0) {
        s = last ? dpar_comm_split(c, 0, 0, &part) : dpar_barrier(c, NULL);
    } else if (what == 1) {
        s = dpari_post(c, &tagged, NULL);
    } else { /* the plan is named, not the all-reduce by which ranks agree on it */
        s = last ? dpar_comm_check_equal(c, x, 1, DPAR_F32, NULL) : dpar_barrier(c, NULL);
    }
    CHECK_INT(s, DPAR_E_MISMATCH);
    CHECK(MPI_Wtime() - begin < 20);
    has(c->why.text, what == 0   ? "calls barrier #1, rank 2<1> calls split #1"
                     : what == 2 ? "calls barrier #1, rank 2<1> calls the planning of "
                                   "dpar_comm_check_equal (all-reduce #1)"
                                 : "calls all-gather #1 of 2 f32 tag 6, rank 2<1> calls all-gather "
                                   "#1 of 2 f32 tag 7");
    dpar_comm_free(c);
}

/* Tests a message that is never sent, waited for as a work; then a timeout that all ranks meet. */
static void no_message(void)
{
    dpar_comm *c = make(60, 0);
    dpar_work work;
    static int32_t x;
    memset(&work, 0, sizeof work);
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    c->timeout_s = 0.4;
    if (c->rank == 0) {
        CHECK_INT(dpar_recv(c, &x, 1, DPAR_I32, 2, 7, &work), DPAR_OK);
        CHECK_INT(dpar_test(&work), DPAR_MORE);
        CHECK_INT(dpar_wait(&work), DPAR_E_TIMEOUT);
        CHECK(work.comm == NULL);
        has(c->why.text, "recv of 1 i32 from 2 on rank 0");
        MPI_Send(NULL, 0, MPI_INT, 2, 78, MPI_COMM_WORLD);
        nap(0.3);
    } else if (c->rank == 2) { /* so that nothing is pending in MPI at the end */
        MPI_Recv(NULL, 0, MPI_INT, 0, 78, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        x = 5;
        dpar_send(c, &x, 1, DPAR_I32, 0, 7, NULL);
    } else {
        nap(1.0);
    }
    dpar_comm_free(c);
}

/* With check = 1 the last rank calls something else. */
static void mismatch(int what)
{
    dpar_comm *c = make(5, 1), *part = NULL;
    int32_t last = c->rank == c->size - 1, n = c->size;
    static float x[400], y[400];
    int64_t count[64];
    dpar_status s;
    dpar_call tagged;
    memset(&tagged, 0, sizeof tagged);
    tagged.kind = DPAR_CALL_ALL_GATHER;
    tagged.type = DPAR_F32;
    tagged.in = x;
    tagged.out = y;
    tagged.count = 2;
    tagged.tag = last ? 7 : 6;
    for (int32_t r = 0; r < n; r++) {
        count[r] = what == 3 && last ? r : 2;
    }
    CHECK_INT(dpar_all_reduce(c, x, y, 10, DPAR_F32, DPAR_SUM, NULL), DPAR_OK);
    switch (what) {
    case 0: s = dpar_all_reduce(c, x, y, last ? 11 : 10, DPAR_F32, DPAR_SUM, NULL); break;
    case 1: s = last ? dpar_broadcast(c, x, 10, DPAR_F32, 1, NULL) : dpar_barrier(c, NULL); break;
    case 2: s = dpar_all_reduce(c, x, y, 10, DPAR_F32, last ? DPAR_MAX : DPAR_SUM, NULL); break;
    case 4: s = last ? dpar_comm_split(c, 0, 0, &part) : dpar_barrier(c, NULL); break;
    case 5: s = dpari_post(c, &tagged, NULL); break;
    case 6:
        s = last ? dpar_comm_check_equal(c, x, 1, DPAR_F32, NULL) : dpar_barrier(c, NULL);
        break;
    default: s = dpar_reduce_scatter_v(c, x, y, count, DPAR_F32, DPAR_SUM, NULL); break;
    }
    CHECK_INT(s, DPAR_E_MISMATCH);
    has(c->why.text, "rank 0<0> calls ");
    has(c->why.text, what == 1 || what == 4 || what == 6 ? "barrier #1"
                     : what == 3                         ? "reduce-scatter #1"
                     : what == 5                         ? "all-gather #1 of 2 f32 tag 6"
                                                         : "all-reduce #1");
    has(c->why.text, what == 0   ? "calls all-reduce #1 of 11 f32 sum"
                     : what == 1 ? "calls broadcast #1 of 10 f32 root 1"
                     : what == 2 ? "f32 max"
                     : what == 4 ? "calls split #1"
                     : what == 5 ? "calls all-gather #1 of 2 f32 tag 7"
                     : what == 6 ? "calls the planning of dpar_comm_check_equal (all-reduce #1)"
                                 : "with different counts of the pieces");
    CHECK_INT(dpar_barrier(c, NULL), DPAR_E_MISMATCH);
    dpar_comm_free(c);
}

/* Tests messages of 65 to 128 bytes, which are sent in two parts. If the other rank expects one
 * part, or the other way round, the error is that of another length. */
static void parts(int32_t sent, int32_t expected)
{
    dpar_comm *c = make(30, 0);
    const double began = MPI_Wtime();
    int32_t x[64] = {0}, y[64];
    ((dpari_mpi_ctx *)c->context)->world->at_once = 64;
    if (c->rank == 0) {
        CHECK_INT(dpar_send(c, x, sent, DPAR_I32, 2, 3, NULL), DPAR_OK);
    } else if (c->rank == 2) {
        CHECK_INT(dpar_recv(c, y, expected, DPAR_I32, 0, 3, NULL),
                  sent == expected ? DPAR_OK : DPAR_E_MISMATCH);
        has(c->why.text, sent == expected ? "" : "recv of ");
        CHECK(MPI_Wtime() - began < 20);
    }
    if (sent == expected) {
        CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    }
    dpar_comm_free(c);
}

/* Tests a message longer or shorter than the receive, by itself and as a piece of a _v form. */
static void lengths(int64_t sent)
{
    dpar_comm *c = make(5, 0);
    int32_t x[64] = {0}, y[64 * 8];
    int64_t to[64], from[64];
    if (c->rank == 0) {
        CHECK_INT(dpar_send(c, x, sent, DPAR_I32, 1, 3, NULL), DPAR_OK);
    } else if (c->rank == 1) {
        CHECK_INT(dpar_recv(c, y, 10, DPAR_I32, 0, 3, NULL), DPAR_E_MISMATCH);
        has(c->why.text,
            c->node != NULL ? (sent < 10 ? "rank 0<0> sent 4 i32" : "rank 0<0> sent 40 i32")
            : sent < 10     ? "recv of 10 i32 from 0: rank 0<0> sent 4 elements, not the 10"
                            : "recv of 10 i32 from 0: rank 0<0> sent more elements than the 10");
    }
    dpar_comm_free(c);
    c = make(5, 0);
    for (int32_t r = 0; r < c->size; r++) { /* rank 1 expects another length from rank 0 */
        to[r] = 3;
        from[r] = c->rank == 1 && r == 0 ? (sent < 10 ? 6 : 0) : 3;
    }
    if (c->rank == 1) {
        CHECK_INT(dpar_all_to_all_v(c, x, to, NULL, y, from, NULL, DPAR_I32, NULL),
                  DPAR_E_MISMATCH);
        has(c->why.text, "rank 0<0> sent ");
    } else { /* complete, or failed with rank 1's message */
        dpar_status s = dpar_all_to_all_v(c, x, to, NULL, y, from, NULL, DPAR_I32, NULL);
        CHECK(s == DPAR_OK || s == DPAR_E_MISMATCH);
    }
    dpar_comm_free(c);
}

/* Rank 2 aborts while the others wait. */
static void aborted(void)
{
    dpar_comm *c = make(20, 0);
    double begin = MPI_Wtime();
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    if (c->rank == 2) {
        nap(0.2);
        dpar_comm_abort(c, DPAR_E_SYSTEM, "the disk is full");
        CHECK_INT(c->status, DPAR_E_SYSTEM);
        nap(0.5);
        MPI_Barrier(MPI_COMM_WORLD);
        return;
    }
    CHECK_INT(dpar_barrier(c, NULL), DPAR_E_SYSTEM);
    CHECK(MPI_Wtime() - begin < 10);
    has(c->why.text, "rank 2<1> says: the disk is full");
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Checks that an error of MPI is returned with MPI's text: a tag above MPI_TAG_UB. */
static void refused(void)
{
    dpar_comm *c = make(5, 0);
    int32_t x = 0;
    if (((dpari_mpi_ctx *)c->context)->tag_most < INT_MAX) {
        CHECK_INT(dpar_send(c, &x, 1, DPAR_I32, c->rank, INT_MAX, NULL), DPAR_E_ARG);
        has(c->why.text, "2147483647");
        CHECK_INT(c->status, DPAR_OK);
    }
    CHECK_INT(dpari_mpi_failed((dpari_mpi_ctx *)c->context, NULL, "a call", MPI_ERR_TRUNCATE),
              DPAR_E_MISMATCH);
    has(c->why.text, "a call failed: MPI says: ");
    dpar_comm_free(c);
}

int main(int argc, char **argv)
{
    int failed, rank, part = argc > 1 ? atoi(argv[1]) : -1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); /* for MPICH, see dpar_mpi.h */
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    if (part < 0 || part == 0) {
        late(10);
        late(20000);
        late_split();
        suspended();
        unlike(0);
        unlike(1);
        unlike(2);
    }
    if (part < 0 || part == 1) {
        no_message();
    }
    for (int what = 0; what < 7 && (part < 0 || part == 2); what++) {
        mismatch(what);
    }
    if (part < 0 || part == 3) {
        static const int32_t counts[] = {1, 16, 17, 18, 31, 32, 33, 64};
        lengths(4);
        lengths(40);
        for (int i = 0; i < 8; i++) {
            parts(counts[i], counts[i]);
            parts(counts[i], counts[(i + 1) % 8]);
            parts(counts[i], counts[(i + 3) % 8]);
            parts(counts[i], counts[(i + 5) % 8]);
        }
    }
    if (part < 0 || part == 4) {
        refused();
    }
    if (part < 0 || part == 5) { /* the last part: a barrier of MPI remains pending */
        aborted();
    }
    failed = CHECK_DONE();
    MPI_Finalize();
    return failed;
}
