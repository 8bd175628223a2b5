/* SPDX-License-Identifier: MIT-0 */
/* Tests wrong arguments: each gives its status and a message, writes nothing, and leaves the
 * communicator usable. Also tests what is documented about registered memory, and aborting.
 *   cc -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/comm/ranks/errors.c -o errors && ./errors */
#include "run_oracle.h"

static void expect(oracle *o, const char *what, long long got, long long want)
{
    o->cases++;
    if (got != want && o->failed++ < 8) {
        printf("WRONG rank %d of %d: %s is %lld, expected %lld\n", o->world->rank, o->world->size,
               what, got, want);
        fflush(stdout);
    }
}

/* Checks the status of a call that must fail, and that its message contains a word ("" for any). */
static void refused(oracle *o, const char *call, dpar_status got, dpar_status want,
                    const char *word)
{
    const char *text = o->world->why.text;
    o->cases++;
    if (got != want || text[0] == '\0' || strstr(text, word) == NULL ||
        strlen(text) >= sizeof o->world->why.text) {
        if (o->failed++ < 8) {
            printf("WRONG rank %d of %d: %s: status %d, expected %d; the sentence \"%s\" should "
                   "hold \"%s\"\n",
                   o->world->rank, o->world->size, call, (int)got, (int)want, text, word);
            fflush(stdout);
        }
    }
    o->world->why.text[0] = '\0';
    expect(o, "the communicator's status after a refused call", o->world->status, DPAR_OK);
}
#define REFUSED(call, want, word) refused(o, #call, call, want, word)

/* Runs one sum to check that the communicator still works. */
static void works(oracle *o, dpar_comm *c)
{
    int64_t one = c->rank + 1, sum = 0;
    dpar_status s = dpar_all_reduce(c, &one, &sum, 1, DPAR_I64, DPAR_SUM, NULL);
    expect(o, "status of a good call after bad ones", s, DPAR_OK);
    expect(o, "sum after bad calls", sum, c->size * (c->size + 1) / 2);
}

static void plain_arguments(oracle *o)
{
    dpar_comm *c = o->world;
    const int n = c->size;
    const int64_t large = INT64_MAX / 8;
    float a[64], b[64];
    int i;
    for (i = 0; i < 64; i++) {
        a[i] = b[i] = (float)i;
    }
    expect(o, "barrier of NULL", dpar_barrier(NULL, NULL), DPAR_E_ARG);
    expect(o, "wait for works of NULL", dpar_wait_all(NULL, 2), DPAR_E_ARG);
    expect(o, "wait for no works", dpar_wait_all(NULL, 0), DPAR_OK);
    REFUSED(dpari_post(c, NULL, NULL), DPAR_E_ARG, "call");
    REFUSED(dpar_all_reduce(c, NULL, b, 4, DPAR_F32, DPAR_SUM, NULL), DPAR_E_ARG, "in");
    REFUSED(dpar_all_reduce(c, a, NULL, 4, DPAR_F32, DPAR_SUM, NULL), DPAR_E_ARG, "out");
    REFUSED(dpar_broadcast(c, NULL, 4, DPAR_F32, 0, NULL), DPAR_E_ARG, "NULL");
    REFUSED(dpar_all_reduce(c, a, b, -1, DPAR_F32, DPAR_SUM, NULL), DPAR_E_ARG, "-1");
    REFUSED(dpar_all_gather(c, a, b, -5, DPAR_F32, NULL), DPAR_E_ARG, "-5");
    REFUSED(dpar_all_reduce(c, a, b, INT64_MAX, DPAR_F32, DPAR_SUM, NULL), DPAR_E_RANGE,
            "9223372036854775807");
    REFUSED(dpar_all_gather(c, a, b, large, DPAR_F64, NULL), DPAR_E_RANGE, "all-gather");
    REFUSED(dpar_all_to_all(c, a, b, large, DPAR_F64, NULL), DPAR_E_RANGE, "all-to-all");
    REFUSED(dpar_all_reduce(c, a, b, 4, -1, DPAR_SUM, NULL), DPAR_E_ARG, "type");
    REFUSED(dpar_all_reduce(c, a, b, 4, DPAR_TYPE_COUNT, DPAR_SUM, NULL), DPAR_E_ARG, "type");
    REFUSED(dpar_all_reduce(c, a, b, 4, DPAR_TF32, DPAR_SUM, NULL), DPAR_E_ARG, "type");
    REFUSED(dpar_reduce(c, a, b, 4, DPAR_F8, DPAR_SUM, 0, NULL), DPAR_E_ARG, "type");
    REFUSED(dpar_all_gather(c, a, b, 4, DPAR_F4, NULL), DPAR_E_ARG, "type");
    REFUSED(dpar_send(c, a, 4, 99, 0, 0, NULL), DPAR_E_ARG, "type");
    REFUSED(dpar_all_reduce(c, a, b, 4, DPAR_F32, DPAR_COPY, NULL), DPAR_E_ARG, "op");
    REFUSED(dpar_all_reduce(c, a, b, 4, DPAR_F32, DPAR_OP_COUNT, NULL), DPAR_E_ARG, "op");
    REFUSED(dpar_reduce_scatter(c, a, b, 4, DPAR_F32, -1, NULL), DPAR_E_ARG, "op");
    REFUSED(dpar_broadcast(c, a, 4, DPAR_F32, -1, NULL), DPAR_E_ARG, "root");
    REFUSED(dpar_broadcast(c, a, 4, DPAR_F32, n, NULL), DPAR_E_ARG, "root");
    REFUSED(dpar_reduce(c, a, b, 4, DPAR_F32, DPAR_SUM, n, NULL), DPAR_E_ARG, "root");
    REFUSED(dpar_gather(c, a, b, 1, DPAR_F32, n, NULL), DPAR_E_ARG, "root");
    REFUSED(dpar_scatter(c, a, b, 1, DPAR_F32, -7, NULL), DPAR_E_ARG, "-7");
    REFUSED(dpar_send(c, a, 4, DPAR_F32, n, 0, NULL), DPAR_E_ARG, "peer");
    REFUSED(dpar_recv(c, a, 4, DPAR_F32, -1, 0, NULL), DPAR_E_ARG, "peer");
    REFUSED(dpar_send(c, a, 4, DPAR_F32, 0, -1, NULL), DPAR_E_ARG, "tag");
    REFUSED(dpar_send(c, NULL, 4, DPAR_F32, 0, 0, NULL), DPAR_E_ARG, "NULL");
    REFUSED(dpar_recv(c, NULL, 4, DPAR_F32, 0, 0, NULL), DPAR_E_ARG, "NULL");
    REFUSED(dpar_all_reduce(c, a, a + 1, 4, DPAR_F32, DPAR_SUM, NULL), DPAR_E_ARG, "overlap");
    REFUSED(dpar_all_reduce(c, a + 3, a, 4, DPAR_F32, DPAR_SUM, NULL), DPAR_E_ARG, "overlap");
    REFUSED(dpar_all_to_all(c, a, a + 1, 4, DPAR_F32, NULL), DPAR_E_ARG, "overlap");
    REFUSED(dpar_all_gather(c, a + 4 * c->rank + 1, a, 4, DPAR_F32, NULL), DPAR_E_ARG, "overlap");
    REFUSED(dpar_reduce_scatter(c, a, a + 4 * c->rank + 1, 4, DPAR_F32, DPAR_SUM, NULL), DPAR_E_ARG,
            "overlap");
    for (i = 0; i < 64; i++) {
        expect(o, "an element after refused calls", (long long)a[i] + (long long)b[i], 2 * i);
    }
    works(o, c);
}

static void pieces(oracle *o)
{
    dpar_comm *c = o->world;
    int64_t good[ORACLE_RANKS], bad[ORACLE_RANKS], begin[ORACLE_RANKS], same[ORACLE_RANKS];
    float a[64], b[64];
    int r, n = c->size;
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    for (r = 0; r < n; r++) {
        good[r] = 2, bad[r] = 2, begin[r] = 2 * r, same[r] = 0;
    }
    bad[n - 1] = -3;
    REFUSED(dpar_all_gather_v(c, a, b, NULL, NULL, DPAR_F32, NULL), DPAR_E_ARG, "counts");
    REFUSED(dpar_all_gather_v(c, a, b, bad, NULL, DPAR_F32, NULL), DPAR_E_ARG, "-3");
    REFUSED(dpar_reduce_scatter_v(c, a, b, bad, DPAR_F32, DPAR_SUM, NULL), DPAR_E_ARG, "-3");
    REFUSED(dpar_reduce_scatter_v(c, a, b, NULL, DPAR_F32, DPAR_SUM, NULL), DPAR_E_ARG, "");
    REFUSED(dpar_all_to_all_v(c, a, bad, NULL, b, good, NULL, DPAR_F32, NULL), DPAR_E_ARG, "-3");
    REFUSED(dpar_all_to_all_v(c, a, good, NULL, b, bad, NULL, DPAR_F32, NULL), DPAR_E_ARG, "-3");
    REFUSED(dpar_all_to_all_v(c, a, NULL, NULL, b, good, NULL, DPAR_F32, NULL), DPAR_E_ARG, "");
    REFUSED(dpar_all_to_all_v(c, a, good, NULL, b, NULL, NULL, DPAR_F32, NULL), DPAR_E_ARG, "");
    bad[n - 1] = INT64_MAX / 4;
    REFUSED(dpar_all_gather_v(c, a, b, bad, NULL, DPAR_F32, NULL), DPAR_E_RANGE, "");
    bad[n - 1] = INT64_C(1) << 60;
    begin[n - 1] = INT64_C(1) << 60;
    REFUSED(dpar_all_to_all_v(c, a, good, NULL, b, bad, begin, DPAR_F32, NULL), DPAR_E_RANGE, "");
    begin[n - 1] = -1;
    REFUSED(dpar_all_gather_v(c, a, b, good, begin, DPAR_F32, NULL), DPAR_E_ARG, "-1");
    REFUSED(dpar_all_to_all_v(c, a, good, begin, b, good, NULL, DPAR_F32, NULL), DPAR_E_ARG, "-1");
    if (n > 1) {
        REFUSED(dpar_all_gather_v(c, a, b, good, same, DPAR_F32, NULL), DPAR_E_ARG, "disjoint");
        REFUSED(dpar_all_to_all_v(c, a, good, NULL, b, good, same, DPAR_F32, NULL), DPAR_E_ARG,
                "disjoint");
    }
    works(o, c);
}

static void calls_and_works(oracle *o)
{
    dpar_comm *c = o->world;
    dpar_call call, two[2];
    dpar_work work, spare, pair[2];
    int32_t x = 1, y = 0;
    memset(&call, 0, sizeof call);
    memset(&work, 0, sizeof work);
    memset(&spare, 0, sizeof spare);
    expect(o, "wait for NULL", dpar_wait(NULL), DPAR_E_ARG);
    expect(o, "test of NULL", dpar_test(NULL), DPAR_E_ARG);
    expect(o, "wait for work that was never posted", dpar_wait(&work), DPAR_OK);
    expect(o, "test of work that was never posted", dpar_test(&work), DPAR_OK);
    expect(o, "wait for no works", dpar_wait_all(NULL, 0), DPAR_OK);
    call.type = DPAR_I32, call.count = 1, call.in = &x, call.out = &y, call.op = DPAR_SUM;
    /* the kind is 0 */
    REFUSED(dpari_post(c, &call, NULL), DPAR_E_ARG, "kind 0 is not an operation");
    REFUSED(dpar_batch(c, &call, 1, NULL), DPAR_E_ARG, "a batch takes");
    call.kind = -1;
    REFUSED(dpari_post(c, &call, NULL), DPAR_E_ARG, "-1");
    call.kind = DPAR_CALL_COUNT;
    REFUSED(dpari_post(c, &call, &work), DPAR_E_ARG, "kind");
    call.kind = DPAR_CALL_SEND_RECV;
    REFUSED(dpari_post(c, &call, NULL), DPAR_E_ARG, "kind");
    expect(o, "a refused post leaves the work free", work.comm == NULL, 1);
    call.kind = DPAR_CALL_COUNT;
    (void)dpari_post(c, &call, &work);
    expect(o, "wait for a work whose post was refused", dpar_wait(&work), DPAR_E_ARG);
    expect(o, "and test of it", dpar_test(&work), DPAR_E_ARG);
    memset(pair, 0, sizeof pair);
    (void)dpari_post(c, &call, &pair[0]);
    expect(o, "a message", dpar_recv(c, &y, 1, DPAR_I32, c->rank, 76, &pair[1]), DPAR_OK);
    expect(o, "to oneself", dpar_send(c, &x, 1, DPAR_I32, c->rank, 76, &spare), DPAR_OK);
    expect(o, "the first failure of all", dpar_wait_all(pair, 2), DPAR_E_ARG);
    expect(o, "and the second is done", pair[1].comm == NULL && y == 1, 1);
    expect(o, "the message has left", dpar_wait(&spare), DPAR_OK);
    y = 0;
    memset(&work, 0, sizeof work);
    call.kind = DPAR_CALL_ALL_REDUCE;
    REFUSED(dpar_batch(c, &call, 1, NULL), DPAR_E_ARG, "batch");
    REFUSED(dpar_batch(c, &call, -1, NULL), DPAR_E_ARG, "batch");
    REFUSED(dpar_batch(c, NULL, 1, NULL), DPAR_E_ARG, "NULL");
    expect(o, "a batch of none", dpar_batch(c, NULL, 0, NULL), DPAR_OK);
    /* One call in a batch is wrong: no call is posted. */
    memset(two, 0, sizeof two);
    two[0].kind = DPAR_CALL_SEND, two[0].type = DPAR_I32, two[0].count = 1, two[0].in = &x;
    two[0].root = c->rank;
    two[1] = two[0];
    two[1].root = c->size;
    REFUSED(dpar_batch(c, two, 2, NULL), DPAR_E_ARG, "peer");
    /* A work that is in progress cannot be posted again. */
    expect(o, "posting a receive", dpar_recv(c, &y, 1, DPAR_I32, c->rank, 77, &work), DPAR_OK);
    REFUSED(dpar_recv(c, &y, 1, DPAR_I32, c->rank, 77, &work), DPAR_E_ARG, "in progress");
    expect(o, "sending to oneself", dpar_send(c, &x, 1, DPAR_I32, c->rank, 77, &spare), DPAR_OK);
    expect(o, "waiting for it", dpar_wait(&work), DPAR_OK);
    expect(o, "and for the send", dpar_wait(&spare), DPAR_OK);
    expect(o, "what came", y, 1);
    works(o, c);
}

static void groups(oracle *o)
{
    dpar_comm *c = o->world, *part = NULL;
    const dpar_mem *was = c->mem;
    const double deadline = c->timeout_s;
    int32_t size = c->size;
    dpar_mem mem;
    dpar_mesh mesh;
    dpar_why why;
    REFUSED(dpar_comm_split(c, 0, 0, NULL), DPAR_E_ARG, "out");
    REFUSED(dpar_comm_split_axes(c, NULL, 1, &part), DPAR_E_ARG, "mesh");
    expect(o, "split of NULL", dpar_comm_split(NULL, 0, 0, &part), DPAR_E_ARG);
    expect(o, "a mesh", dpar_mesh_init(&mesh, "a", &size, DPAR_ORDER_LAST_FASTEST, size, &why), 0);
    mesh.first_rank = 1;
    REFUSED(dpar_comm_split_axes(c, &mesh, 1, &part), DPAR_E_ARG, "mesh");
    mesh.first_rank = 0;
    mesh.axis[0].stride = c->size > 1 ? 0 : 1;
    if (c->size > 1) {
        REFUSED(dpar_comm_split_axes(c, &mesh, 1, &part), DPAR_E_ARG, "twice");
    }
    expect(o, "out after refused splits", part != NULL, 0);
    expect(o, "closing NULL", dpar_comm_free(NULL), DPAR_OK);
    memset(&mem, 0, sizeof mem);
    c->mem = &mem; /* communicators that are split from it inherit it and the timeout */
    c->timeout_s = 77.0;
    expect(o, "dup", dpar_comm_split(c, 0, 0, &part), DPAR_OK);
    c->mem = was;
    c->timeout_s = deadline;
    expect(o, "the memory of a duplicate", part->mem == &mem, 1);
    expect(o, "the deadline of a duplicate", (long long)part->timeout_s, 77);
    expect(o, "closing it", dpar_comm_free(part), DPAR_OK);
#if !defined(USE_MPI)
    REFUSED(dpar_comm_free(c), DPAR_E_ARG, "dpar_launch closes");
#endif
    works(o, c);
}

/* Uses a communicator that was freed, also after up to 16 others were freed: the message says
 * so. */
static void after_close(oracle *o)
{
    dpar_comm *part[20];
    void *memory = part;
    int32_t word = 0;
    int i;
    for (i = 0; i < 20; i++) {
        dpar_comm *other = NULL, *c = NULL;
        char text[200] = "";
        dpar_work work;
        dpar_text t;
        memset(&work, 0, sizeof work);
        expect(o, "split", dpar_comm_split(o->world, 0, 0, &part[i]), DPAR_OK);
        expect(o, "close", dpar_comm_free(part[i]), DPAR_OK);
        c = part[i < 15 ? 0 : i - 15];
        expect(o, "status", c->status, DPAR_E_ARG);
        expect(o, "sum", dpar_all_reduce(c, &word, &word, 1, DPAR_I32, DPAR_SUM, NULL), DPAR_E_ARG);
        expect(o, "sentence", strcmp(c->why.text, "this communicator was closed before"), 0);
        expect(o, "posted", dpar_send(c, &word, 1, DPAR_I32, 0, 0, &work), DPAR_E_ARG);
        expect(o, "its wait", dpar_wait(&work), DPAR_E_ARG);
        expect(o, "split of it", dpar_comm_split(c, 0, 0, &other), DPAR_E_ARG);
        expect(o, "alloc", dpar_comm_alloc(c, 64, &memory), DPAR_E_ARG);
        expect(o, "memory", memory == NULL, 1);
        expect(o, "progress", dpar_comm_progress(c, 1), DPAR_E_ARG);
        dpar_comm_release(c, part);
        dpar_comm_abort(c, DPAR_E_PEER, "no");
        dpar_text_init(&t, text, sizeof text);
        dpar_comm_describe(c, &t);
        expect(o, "description", strstr(text, ", closed") != NULL, 1);
        dpar_comm_report(c, &t);
        expect(o, "report", strstr(text, "closed before") != NULL, 1);
        expect(o, "close of it", dpar_comm_free(c), DPAR_E_ARG);
    }
    works(o, o->world);
}

/* Checks what comm.h documents: memory is zeroed, also when it was used before, aligned to 4096,
 * and E_MEMORY is returned if there is no more. */
static void memory(oracle *o)
{
    dpar_comm *c = o->world;
    unsigned char *kept[40];
    void *p = NULL;
    uint64_t own = o->own;
    int i, k, nonzero = 0;
    memset(kept, 0, sizeof kept);
    REFUSED(dpar_comm_alloc(c, -1, &p), DPAR_E_ARG, "-1");
    REFUSED(dpar_comm_alloc(c, 1, NULL), DPAR_E_ARG, "memory");
    REFUSED(dpar_comm_alloc(c, INT64_C(1) << 60, &p), DPAR_E_MEMORY, "");
    REFUSED(dpar_comm_alloc(c, INT64_MAX, &p), DPAR_E_MEMORY, "");
    expect(o, "memory after refused calls", p != NULL, 0);
    dpar_comm_release(c, NULL);
    for (k = 0; k < 400; k++) {
        i = (int)oracle_below(&own, 40);
        if (kept[i] != NULL) {
            dpar_comm_release(c, kept[i]);
            kept[i] = NULL;
        } else {
            int64_t j, bytes = 1 + oracle_below(&own, 40000);
            if (dpar_comm_alloc(c, bytes, &p) != DPAR_OK) {
                expect(o, c->why.text, 1, 0);
                break;
            }
            kept[i] = (unsigned char *)p;
            expect(o, "alignment", (long long)((uintptr_t)p % 4096), 0);
            for (j = 0; j < bytes; j++) {
                nonzero += kept[i][j] != 0;
                kept[i][j] = (unsigned char)(i + 1);
            }
        }
    }
    expect(o, "bytes that are not zero in new memory", nonzero, 0);
    for (i = 0; i < 40; i++) {
        if (kept[i] != NULL) {
            expect(o, "first byte of memory that was kept", kept[i][0], i + 1);
            dpar_comm_release(c, kept[i]);
        }
    }
    works(o, c);
}

/* Frees a communicator with an operation in progress: the operation is lost, and free reports
 * it. */
static void unfinished(oracle *o)
{
    dpar_comm *d = NULL;
    dpar_work work;
    int32_t x = 0;
    int under_way;
    memset(&work, 0, sizeof work);
    expect(o, "dup", dpar_comm_split(o->world, 0, 0, &d), DPAR_OK);
    if (d != NULL) {
        expect(o, "posting", dpar_recv(d, &x, 1, DPAR_I32, (d->rank + 1) % d->size, 1, &work),
               DPAR_OK);
        /* If another rank has freed it already, the receive has failed with that message. */
        under_way = work.comm != NULL;
        expect(o, "closing with work under way", dpar_comm_free(d),
               under_way ? DPAR_E_ARG : DPAR_OK);
    }
    works(o, o->world);
#if !defined(USE_MPI)
    expect(o, "dup", dpar_comm_split(o->world, 0, 0, &d), DPAR_OK);
    if (d->rank == 0) { /* the other ranks get the error */
        memset(&work, 0, sizeof work);
        expect(o, "posting", dpar_recv(d, &x, 1, DPAR_I32, 0, 1, &work), DPAR_OK);
        expect(o, "closing with work under way", dpar_comm_free(d), DPAR_E_ARG);
    } else {
        expect(o, "waiting for one that lost its work", dpar_barrier(d, NULL), DPAR_E_ARG);
        expect(o, "its sentence",
               strstr(d->why.text,
                      "rank 0 closed the communicator without waiting for 1 operation") != NULL,
               1);
        (void)dpar_comm_free(d);
    }
    works(o, o->world);
#endif
}

/* Rank 0 frees a duplicate while rank 1 waits for its message. Rank 1 must get the error at once,
 * not after the timeout, but messages that were sent before arrive first. */
static void closed_early(oracle *o)
{
#if !defined(USE_MPI)
    dpar_comm *d = NULL;
    double x = 1.5, y = 0.0;
    expect(o, "dup", dpar_comm_split(o->world, 0, 0, &d), DPAR_OK);
    if (d == NULL || d->size == 1) {
        (void)dpar_comm_free(d);
        return;
    }
    if (d->rank == 0) {
        expect(o, "send", dpar_send(d, &x, 1, DPAR_F64, 1, 3, NULL), DPAR_OK);
    } else if (d->rank == 1) {
        usleep((useconds_t)oracle_below(&o->own, 3000));
        expect(o, "receive", dpar_recv(d, &y, 1, DPAR_F64, 0, 3, NULL), DPAR_OK);
        expect(o, "what came", y == 1.5, 1);
        expect(o, "a receive that nobody sends", dpar_recv(d, &y, 1, DPAR_F64, 0, 3, NULL),
               DPAR_E_PEER);
        expect(o, "its sentence",
               strstr(d->why.text, "rank 0 closed the communicator or returned") != NULL, 1);
    }
    (void)dpar_comm_free(d);
    works(o, o->world);
#else
    (void)o;
#endif
}

/* Rank 0 breaks a duplicate while the others wait on it. All ranks get its status and text, also
 * from posted works and later calls; the world still works. */
static void aborting(oracle *o)
{
#if !defined(USE_MPI)
    dpar_comm *d = NULL;
    dpar_work work;
    dpar_status s;
    int32_t x = 1, y[ORACLE_RANKS];
    memset(&work, 0, sizeof work);
    expect(o, "dup", dpar_comm_split(o->world, 0, 0, &d), DPAR_OK);
    if (d == NULL) {
        return;
    }
    if (d->rank == 0) {
        usleep((useconds_t)oracle_below(&o->own, 3000));
        dpar_comm_abort(d, DPAR_E_ROOM, "the grid does not fit");
        s = dpar_all_gather(d, &x, y, 1, DPAR_I32, NULL);
    } else {
        s = dpar_all_gather(d, &x, y, 1, DPAR_I32, &work);
        s = s == DPAR_OK ? dpar_wait(&work) : s;
        expect(o, "status of the work itself", work.status, s);
    }
    expect(o, "status after abort", s, DPAR_E_ROOM);
    expect(o, "the text of the abort is in the sentence",
           strstr(d->why.text, "the grid does not fit") != NULL, 1);
    expect(o, "status of the broken communicator", d->status, DPAR_E_ROOM);
    expect(o, "status of a later call", dpar_barrier(d, NULL), DPAR_E_ROOM);
    expect(o, "status of a later split", dpar_comm_split(d, 0, 0, &d), DPAR_E_ROOM);
    (void)dpar_comm_free(d);
    works(o, o->world);
    /* A status that is not an error, without a text. */
    expect(o, "dup", dpar_comm_split(o->world, 0, 0, &d), DPAR_OK);
    if (d->rank == 0) {
        dpar_comm_abort(d, DPAR_MORE, NULL);
    }
    expect(o, "status after an abort with a condition", dpar_barrier(d, NULL), DPAR_E_PEER);
    expect(o, "its sentence", strstr(d->why.text, "aborted") != NULL, 1);
    (void)dpar_comm_free(d);
    works(o, o->world);
#else
    (void)o;
#endif
}

/* Checks that the report names the last operation. */
static void reporting(oracle *o)
{
#if !defined(USE_MPI)
    static char text[100000];
    char *room = o->threads ? (char *)oracle_memory(sizeof text) : text;
    dpar_text t;
    int32_t x[4] = {1, 2, 3, 4};
    expect(o, "broadcast", dpar_broadcast(o->world, x, 3, DPAR_I32, 0, NULL), DPAR_OK);
    dpar_text_init(&t, room, sizeof text);
    dpar_comm_report(o->world, &t);
    expect(o, "the report speaks of the broadcast", strstr(room, "broadcast") != NULL, 1);
    expect(o, "the report speaks of its type", strstr(room, "i32") != NULL, 1);
    expect(o, "the report fits", t.used < sizeof text, 1);
    dpar_text_init(&t, room, sizeof text);
    dpar_comm_describe(o->world, &t);
    expect(o, "the description begins with the engine", strstr(room, "shm: ") == room, 1);
    expect(o, "the description says how private memory goes",
           o->world->size == 1 || strstr(room, "threads of one process") != NULL ||
               strstr(room, "process_vm_readv") != NULL,
           1);
    works(o, o->world);
    if (o->threads) {
        free(room);
    }
#endif
    dpar_comm_report(NULL, NULL);
    dpar_comm_describe(NULL, NULL);
}

static void errors(oracle *o)
{
    plain_arguments(o);
    pieces(o);
    calls_and_works(o);
    groups(o);
    after_close(o);
    memory(o);
    unfinished(o);
    closed_early(o);
    aborting(o);
    reporting(o);
}

int main(int argc, char **argv)
{
    return oracle_program(argc, argv, "errors", errors);
}
