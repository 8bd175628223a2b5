/* SPDX-License-Identifier: MIT-0 */
/* Tests messages of the shared-memory engine between processes and between threads, with 2 to 6
 * ranks, by each method of transfer. The expected content is computed on both sides from its seed;
 * the expected messages about a mismatch are written out after src/comm/shm.h. */
#include "dpar_comm.h"

#include "check.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LARGEST = (8 << 20) + 5 };

static int report(const dpar_comm *c, int line, const char *what)
{
    printf("%s:%d: rank %d: %s (%s)\n", __FILE__, line, (int)c->rank, what, c->why.text);
    return 1;
}
#define EXPECT(condition) (bad += (condition) ? 0 : report(c, __LINE__, #condition))

static unsigned char pattern(uint32_t seed, int64_t i)
{
    return (unsigned char)((uint64_t)seed * 31 + (uint64_t)i * 7 + ((uint64_t)i >> 8) * 13);
}

static void fill(unsigned char *at, int64_t bytes, uint32_t seed)
{
    for (int64_t i = 0; i < bytes; i++) {
        at[i] = pattern(seed, i);
    }
}

static int holds(const unsigned char *at, int64_t bytes, uint32_t seed)
{
    for (int64_t i = 0; i < bytes; i++) {
        if (at[i] != pattern(seed, i)) {
            return 0;
        }
    }
    return 1;
}

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525U + 1013904223U;
    return *state >> 8;
}

static unsigned char *memory(dpar_comm *c, int registered, int64_t bytes)
{
    void *at = NULL;
    if (registered) {
        return dpar_comm_alloc(c, bytes, &at) == DPAR_OK ? (unsigned char *)at : NULL;
    }
    return (unsigned char *)malloc((size_t)bytes + 1);
}

static void drop(dpar_comm *c, int registered, unsigned char *at)
{
    if (registered) {
        dpar_comm_release(c, at);
    } else {
        free(at);
    }
}

/* Sends back and forth, from and to each kind of memory, with sizes around each change of
 * method. */
static int ping_pong(dpar_comm *c, void *arg)
{
    static const int64_t size[] = {0,     1,      4,      31,      32,     33,    95,
                                   96,    97,     1000,   4095,    4096,   4097,  8191,
                                   8192,  8193,   16384,  20000,   65535,  65536, 65537,
                                   70000, 262143, 262144, 1048577, LARGEST};
    int bad = 0;
    (void)arg;
    if (c->rank > 1) {
        return 0;
    }
    for (int kind = 0; kind < 4; kind++) {
        unsigned char *in = memory(c, kind & 1, LARGEST), *out = memory(c, kind >> 1, LARGEST);
        EXPECT(in && out);
        for (uint32_t i = 0; i < sizeof size / sizeof size[0] && !bad; i++) {
            const uint32_t seed = 100 * i + (uint32_t)kind;
            out[size[i]] = 99; /* a sentinel after the message */
            if (c->rank == 0) {
                fill(in, size[i], seed);
                EXPECT(dpar_send(c, in, size[i], DPAR_U8, 1, 3, NULL) == DPAR_OK);
                fill(in, size[i], 0); /* the memory may be overwritten again */
                EXPECT(dpar_recv(c, out, size[i], DPAR_U8, 1, 4, NULL) == DPAR_OK);
                EXPECT(holds(out, size[i], seed + 1));
            } else {
                EXPECT(dpar_recv(c, out, size[i], DPAR_U8, 0, 3, NULL) == DPAR_OK);
                EXPECT(holds(out, size[i], seed));
                fill(in, size[i], seed + 1);
                EXPECT(dpar_send(c, in, size[i], DPAR_U8, 0, 4, NULL) == DPAR_OK);
            }
            EXPECT(out[size[i]] == 99);
        }
        drop(c, kind & 1, in);
        drop(c, kind >> 1, out);
    }
    return bad;
}

/* All ranks send to the right, then receive from the left, from registered and private memory. */
static int ring(dpar_comm *c, void *arg)
{
    const int32_t right = (c->rank + 1) % c->size, left = (c->rank + c->size - 1) % c->size;
    int bad = 0;
    (void)arg;
    for (int kind = 0; kind < 4; kind++) {
        unsigned char *in = memory(c, kind & 1, LARGEST), *out = memory(c, kind >> 1, LARGEST);
        for (int64_t bytes = 5; bytes < LARGEST && !bad; bytes = bytes * 5 + 1) {
            dpar_work work = {0};
            fill(in, bytes, (uint32_t)(c->rank + 10));
            EXPECT(dpar_send(c, in, bytes, DPAR_U8, right, 0, &work) == DPAR_OK);
            EXPECT(dpar_recv(c, out, bytes, DPAR_U8, left, 0, NULL) == DPAR_OK);
            EXPECT(holds(out, bytes, (uint32_t)(left + 10)));
            EXPECT(dpar_wait(&work) == DPAR_OK);
        }
        drop(c, kind & 1, in);
        drop(c, kind >> 1, out);
    }
    return bad;
}

enum { EARLY = 1000 };

/* Sends 1000 unexpected messages, some of them large, which are received from the last on. */
static int early(dpar_comm *c, void *arg)
{
    dpar_work *work = (dpar_work *)calloc(EARLY, sizeof *work);
    unsigned char *at = memory(c, 0, EARLY * 320), *large = memory(c, 0, 10 * 100000);
    int bad = 0;
    int32_t go = 0;
    (void)arg;
    for (int32_t i = 0; i < EARLY && c->rank == 0; i++) {
        const int64_t bytes = i % 100 == 0 ? 100000 : i * 7 % 320;
        unsigned char *from = i % 100 == 0 ? large + i / 100 * 100000 : at + i * 320;
        fill(from, bytes, (uint32_t)i);
        EXPECT(dpar_send(c, from, bytes, DPAR_U8, 1, i, &work[i]) == DPAR_OK);
    }
    if (c->rank == 0) {
        EXPECT(dpar_send(c, &go, 1, DPAR_I32, 1, EARLY, NULL) == DPAR_OK);
        EXPECT(dpar_wait_all(work, EARLY) == DPAR_OK);
    } else if (c->rank == 1) {
        EXPECT(dpar_recv(c, &go, 1, DPAR_I32, 0, EARLY, NULL) == DPAR_OK);
        for (int32_t i = EARLY - 1; i >= 0; i--) {
            const int64_t bytes = i % 100 == 0 ? 100000 : i * 7 % 320;
            EXPECT(dpar_recv(c, large, bytes, DPAR_U8, 0, i, NULL) == DPAR_OK);
            EXPECT(holds(large, bytes, (uint32_t)i));
        }
    }
    free(work);
    free(at);
    free(large);
    return bad;
}

/* Posts 500 receives; their messages arrive from the last on, each of another size class. */
static int posted(dpar_comm *c, void *arg)
{
    enum { N = 500, PIECE = 12000 };
    dpar_work *work = (dpar_work *)calloc(N, sizeof *work);
    unsigned char *at = memory(c, 0, (int64_t)N * PIECE);
    int32_t go = 0;
    int bad = 0;
    (void)arg;
    if (c->rank == 1) {
        for (int32_t i = 0; i < N; i++) {
            EXPECT(dpar_recv(c, at + (int64_t)i * PIECE, i * 24, DPAR_U8, 0, i, &work[i]) ==
                   DPAR_OK);
        }
        EXPECT(dpar_send(c, &go, 1, DPAR_I32, 0, 0, NULL) == DPAR_OK);
        EXPECT(dpar_wait_all(work, N) == DPAR_OK);
        for (int32_t i = 0; i < N; i++) {
            EXPECT(holds(at + (int64_t)i * PIECE, i * 24, (uint32_t)i));
        }
    } else if (c->rank == 0) {
        EXPECT(dpar_recv(c, &go, 1, DPAR_I32, 1, 0, NULL) == DPAR_OK);
        for (int32_t i = N - 1; i >= 0; i--) {
            fill(at, i * 24, (uint32_t)i);
            EXPECT(dpar_send(c, at, i * 24, DPAR_U8, 1, i, NULL) == DPAR_OK);
        }
    }
    free(work);
    free(at);
    return bad;
}

/* Sends to the rank itself in either order, and with two tags crossed. */
static int self(dpar_comm *c, void *arg)
{
    int bad = 0;
    (void)arg;
    for (int64_t bytes = 0; bytes < 300000; bytes = bytes * 3 + 1) {
        unsigned char *a = memory(c, 0, bytes), *b = memory(c, 0, bytes), *d = memory(c, 0, bytes);
        dpar_work w[2] = {{0}, {0}};
        fill(a, bytes, 1);
        EXPECT(dpar_recv(c, b, bytes, DPAR_U8, c->rank, 8, &w[0]) == DPAR_OK);
        EXPECT(dpar_test(&w[0]) == DPAR_MORE);
        EXPECT(dpar_send(c, a, bytes, DPAR_U8, c->rank, 8, NULL) == DPAR_OK);
        EXPECT(dpar_wait(&w[0]) == DPAR_OK && holds(b, bytes, 1));
        fill(b, bytes, 2);
        EXPECT(dpar_send(c, a, bytes, DPAR_U8, c->rank, 8, &w[0]) == DPAR_OK);
        EXPECT(dpar_send(c, b, bytes, DPAR_U8, c->rank, 9, &w[1]) == DPAR_OK);
        EXPECT(dpar_recv(c, d, bytes, DPAR_U8, c->rank, 9, NULL) == DPAR_OK);
        EXPECT(holds(d, bytes, 2));
        EXPECT(dpar_recv(c, d, bytes, DPAR_U8, c->rank, 8, NULL) == DPAR_OK);
        EXPECT(holds(d, bytes, 1) && dpar_wait_all(w, 2) == DPAR_OK);
        free(a);
        free(b);
        free(d);
    }
    return bad;
}

/* Returns the size of the message of a pair; each rank sends to each rank at once, also to
 * itself. */
static int64_t pair_bytes(int32_t from, int32_t to, int32_t round)
{
    return ((int64_t)from * 7919 + to * 104729 + round * 65537) % (round % 2 ? 200000 : 3000);
}

static int all_pairs(dpar_comm *c, void *arg)
{
    const int32_t n = c->size;
    dpar_work *work = (dpar_work *)calloc((size_t)n * 2, sizeof *work);
    dpar_call *call = (dpar_call *)calloc((size_t)n * 2, sizeof *call);
    unsigned char *at = memory(c, 0, (int64_t)n * 2 * 200000);
    int bad = 0;
    (void)arg;
    for (int32_t round = 0; round < 8 && !bad; round++) {
        for (int32_t i = 0; i < 2 * n; i++) {
            const int32_t other = (i / 2 + c->rank) % n, sends = i % 2;
            unsigned char *mine = at + (int64_t)i * 200000;
            const int64_t bytes =
                sends ? pair_bytes(c->rank, other, round) : pair_bytes(other, c->rank, round);
            call[i].kind = sends ? DPAR_CALL_SEND : DPAR_CALL_RECV;
            call[i].type = DPAR_U8;
            call[i].root = other;
            call[i].tag = round;
            call[i].count = bytes;
            call[i].in = sends ? mine : NULL;
            call[i].out = sends ? NULL : mine;
            if (sends) {
                fill(mine, bytes, (uint32_t)(c->rank * 64 + other));
            }
        }
        EXPECT(dpar_batch(c, call, 2 * n, work) == DPAR_OK);
        EXPECT(dpar_wait_all(work, 2 * n) == DPAR_OK);
        for (int32_t i = 0; i < 2 * n; i += 2) {
            EXPECT(holds((const unsigned char *)call[i].out, call[i].count,
                         (uint32_t)(call[i].root * 64 + c->rank)));
        }
    }
    free(work);
    free(call);
    free(at);
    return bad;
}

/* A storm between all pairs: 120 messages per pair with random sizes and 3 tags. Each rank receives
 * those of one tag in the order of sending, and the tags in its own order. */
enum { STORM = 120 };
static int64_t storm_bytes(int32_t from, int32_t to, int32_t i)
{
    uint32_t state = (uint32_t)(from * 1000003 + to * 10007 + i);
    uint32_t kind = draw(&state) % 8, x = draw(&state);
    return kind < 4 ? (int64_t)(x % 200) : kind < 7 ? (int64_t)(x % 20000) : (int64_t)(x % 400000);
}

static int storm_send(dpar_comm *c, int32_t to, int32_t i, unsigned char **at, dpar_work *work)
{
    const int64_t bytes = storm_bytes(c->rank, to, i);
    int bad = 0;
    *at = memory(c, 0, bytes);
    fill(*at, bytes, (uint32_t)(c->rank * 4096 + i));
    EXPECT(dpar_send(c, *at, bytes, DPAR_U8, to, i % 3, work) == DPAR_OK);
    return bad;
}

static int storm_recv(dpar_comm *c, int32_t from, int32_t i)
{
    const int64_t bytes = storm_bytes(from, c->rank, i);
    unsigned char *at = memory(c, i & 1, bytes + 1);
    int bad = 0;
    EXPECT(dpar_recv(c, at, bytes, DPAR_U8, from, i % 3, NULL) == DPAR_OK);
    EXPECT(holds(at, bytes, (uint32_t)(from * 4096 + i)));
    drop(c, i & 1, at);
    return bad;
}

static int storm(dpar_comm *c, void *arg)
{
    const int32_t n = c->size;
    dpar_work *work = (dpar_work *)calloc((size_t)(n * STORM), sizeof *work);
    unsigned char **at = (unsigned char **)calloc((size_t)(n * STORM), sizeof *at);
    int bad = 0;
    (void)arg;
    for (int32_t i = 0; i < STORM; i++) {
        for (int32_t to = 0; to < n; to++) {
            bad += to == c->rank ? 0
                                 : storm_send(c, to, i, &at[to * STORM + i], &work[to * STORM + i]);
        }
    }
    for (int32_t tag = 0; tag < 3; tag++) {
        for (int32_t i = (tag + c->rank) % 3; i < STORM && !bad; i += 3) {
            for (int32_t from = n - 1; from >= 0; from--) {
                bad += from == c->rank ? 0 : storm_recv(c, from, i);
            }
        }
    }
    for (int32_t i = 0; i < n * STORM; i++) {
        EXPECT(bad || dpar_wait(&work[i]) == DPAR_OK);
        free(at[i]);
    }
    free(work);
    free(at);
    return bad;
}

/* Checks that messages of two communicators do not mix, also if one arrives before its receiver has
 * the communicator, and that a message left in a freed communicator does not disturb the next
 * one. */
static int groups(dpar_comm *c, void *arg)
{
    int bad = 0;
    (void)arg;
    for (int32_t round = 0; round < 20 && !bad; round++) {
        dpar_comm *other = NULL;
        dpar_work w[2] = {{0}, {0}};
        int32_t sent[2] = {100 + round, 200 + round}, got[2] = {0, 0}, left = 7;
        EXPECT(dpar_comm_split(c, 0, 0, &other) == DPAR_OK);
        if (bad || c->rank > 1) {
            bad += bad ? 0 : dpar_comm_free(other) != DPAR_OK;
            continue;
        }
        EXPECT(dpar_send(other, &sent[1], 1, DPAR_I32, 1 - c->rank, 5, &w[1]) == DPAR_OK);
        EXPECT(dpar_send(other, &left, 1, DPAR_I32, 1 - c->rank, 6, NULL) == DPAR_OK);
        EXPECT(dpar_send(c, &sent[0], 1, DPAR_I32, 1 - c->rank, 5, &w[0]) == DPAR_OK);
        EXPECT(dpar_recv(c, &got[0], 1, DPAR_I32, 1 - c->rank, 5, NULL) == DPAR_OK);
        EXPECT(dpar_recv(other, &got[1], 1, DPAR_I32, 1 - c->rank, 5, NULL) == DPAR_OK);
        EXPECT(got[0] == 100 + round && got[1] == 200 + round);
        EXPECT(dpar_wait_all(w, 2) == DPAR_OK);
        EXPECT(dpar_comm_free(other) == DPAR_OK);
    }
    return bad;
}

/* Rank 1 receives all messages of a communicator and frees it before the channel has space to tell
 * the sender so; then it is stopped. The sender must not fail: it waits until it gets the
 * confirmation. */
static int owes_at_close(dpar_comm *c, void *arg)
{
    enum { LARGE = 20, SMALL = 28, BYTES = 8192 };
    dpar_comm *d = NULL;
    dpar_work work[LARGE] = {{0}};
    unsigned char *at = memory(c, 1, BYTES), small = 7;
    int32_t pid = (int32_t)getpid(), child;
    int bad = 0;
    (void)arg;
    fill(at, BYTES, 3);
    EXPECT(dpar_comm_split(c, 0, 0, &d) == DPAR_OK);
    if (c->rank == 1) {
        EXPECT(dpar_send(c, &pid, 1, DPAR_I32, 0, 1, NULL) == DPAR_OK);
        EXPECT(dpar_recv(c, &small, 1, DPAR_U8, 0, 1, NULL) == DPAR_OK);
        for (int32_t i = 0; i < SMALL; i++) { /* the channel is almost full */
            EXPECT(dpar_send(c, &small, 1, DPAR_U8, 0, 2, NULL) == DPAR_OK);
        }
        for (int32_t i = 0; i < LARGE; i++) {
            EXPECT(dpar_recv(d, at, BYTES, DPAR_U8, 0, 3, NULL) == DPAR_OK);
        }
        EXPECT(dpar_comm_free(d) == DPAR_OK);
    } else {
        EXPECT(dpar_recv(c, &pid, 1, DPAR_I32, 1, 1, NULL) == DPAR_OK);
        for (int32_t i = 0; i < LARGE; i++) {
            EXPECT(dpar_send(d, at, BYTES, DPAR_U8, 1, 3, &work[i]) == DPAR_OK);
        }
        EXPECT(dpar_send(c, &small, 1, DPAR_U8, 1, 1, NULL) == DPAR_OK);
        usleep(200000); /* rank 0 receives nothing meanwhile */
        kill(pid, SIGSTOP);
        child = (int32_t)fork();
        if (child == 0) {
            usleep(200000);
            kill(pid, SIGCONT);
            _exit(0);
        }
        EXPECT(dpar_wait_all(work, LARGE) == DPAR_OK);
        EXPECT(waitpid(child, NULL, 0) == child);
        EXPECT(dpar_comm_free(d) == DPAR_OK);
        for (int32_t i = 0; i < SMALL; i++) {
            EXPECT(dpar_recv(c, &small, 1, DPAR_U8, 1, 2, NULL) == DPAR_OK);
        }
    }
    drop(c, 1, at);
    return bad;
}

/* Makes many blocking sends to ranks that are in a barrier: each kind of wait receives messages. */
static int before_barrier(dpar_comm *c, void *arg)
{
    unsigned char at[300];
    int bad = 0;
    (void)arg;
    for (int32_t i = 0; i < 200 && c->rank == 0; i++) {
        for (int32_t to = 1; to < c->size; to++) {
            fill(at, 300, (uint32_t)i);
            EXPECT(dpar_send(c, at, 300, DPAR_U8, to, 1, NULL) == DPAR_OK);
        }
    }
    EXPECT(dpar_barrier(c, NULL) == DPAR_OK);
    for (int32_t i = 0; i < 200 && c->rank > 0; i++) {
        EXPECT(dpar_recv(c, at, 300, DPAR_U8, 0, 1, NULL) == DPAR_OK);
        EXPECT(holds(at, 300, (uint32_t)i));
    }
    return bad;
}

/* Rank 0 sends something other than rank 1 expects. arg: the number of elements. */
static int mismatch(dpar_comm *c, void *arg)
{
    const int64_t count = *(const int64_t *)arg;
    float *at = (float *)calloc((size_t)count + 4, sizeof *at);
    dpar_status s;
    int bad = 0;
    char text[240];
    if (c->rank == 0) {
        s = dpar_send(c, at, count, DPAR_F32, 1, 3, NULL);
        if (s == DPAR_OK) { /* a small message is complete: the next operation fails */
            s = dpar_recv(c, at, 1, DPAR_F32, 1, 9, NULL);
        }
    } else {
        s = dpar_recv(c, at, 4, DPAR_F32, 0, 3, NULL);
        sprintf(text, "of 4 f32 on rank 1 from rank 0, tag 3: rank 0 sent %d f32", (int)count);
        EXPECT(strstr(c->why.text, text) != NULL);
        EXPECT(at[0] == 0.0F);
    }
    EXPECT(s == DPAR_E_MISMATCH);
    EXPECT(strstr(c->why.text, "rank 0 sent") != NULL);
    EXPECT(dpar_send(c, at, 1, DPAR_F32, 1 - c->rank, 3, NULL) == DPAR_E_MISMATCH);
    free(at);
    return bad;
}

/* The same for a message of another type. */
static int mismatch_type(dpar_comm *c, void *arg)
{
    float at[4] = {0};
    dpar_status s;
    int bad = 0;
    (void)arg;
    if (c->rank == 0) {
        s = dpar_send(c, at, 4, DPAR_F32, 1, 3, NULL);
        s = s == DPAR_OK ? dpar_recv(c, at, 4, DPAR_F32, 1, 3, NULL) : s;
    } else {
        s = dpar_recv(c, at, 4, DPAR_I32, 0, 3, NULL);
        EXPECT(strstr(c->why.text, "of 4 i32 on rank 1 from rank 0, tag 3: rank 0 sent 4 f32") != NULL);
    }
    EXPECT(s == DPAR_E_MISMATCH);
    return bad;
}

/* Tests a receive until the communicator breaks. Returns how it broke. */
static dpar_status look_on(dpar_comm *c)
{
    dpar_work w = {0};
    int32_t never;
    dpar_status s = dpar_recv(c, &never, 1, DPAR_I32, 0, 99, &w);
    while (s == DPAR_OK && (s = dpar_test(&w)) == DPAR_MORE) {
        usleep(1000);
        s = DPAR_OK;
    }
    return s;
}

/* Rank 0 waits for rank 1, which has a longer timeout and waits for rank 2. Rank 2 does not arrive,
 * or is in a barrier with rank 0 (*in_barrier). The rank that times out first must report whom the
 * other one waits for. */
static int behind(dpar_comm *c, void *in_barrier)
{
    const int barrier = *(const int *)in_barrier;
    const char *late = barrier ? "barrier #1 of 3 ranks: 1 did not arrive within "
                               : "(1 i32, from rank 1, tag 5) of 3 ranks: 1 did not arrive within ";
    const char *said;
    dpar_status s;
    int32_t x;
    int bad = 0;
    c->timeout_s = c->rank == 0 ? 2.0 : 60.0;
    if (barrier && c->rank != 1) {
        s = dpar_barrier(c, NULL);
    } else {
        s = c->rank == 2 ? look_on(c) : dpar_recv(c, &x, 1, DPAR_I32, c->rank + 1, 5, NULL);
    }
    EXPECT(s == DPAR_E_TIMEOUT);
    said = strstr(c->why.text, late);
    EXPECT(said != NULL && atof(said + strlen(late)) >= 2.0);
    EXPECT(strstr(c->why.text, " s, rank 1 waits for rank 2: rank 1 (") != NULL);
    return bad;
}

static void run(const char *name, int32_t ranks, dpar_main fn, void *arg, int32_t threads,
                int32_t plain)
{
    dpar_world_desc o = {0};
    dpar_why why;
    dpar_status s;
    o.timeout_s = 60.0;
    o.threads = threads;
    o.disable = plain;
    why.text[0] = '\0';
    fflush(stdout);
    s = dpar_launch(ranks, fn, arg, &o, &why);
    checks_run++;
    if (s != DPAR_OK) {
        checks_failed++;
        printf("%s, %d ranks, threads %d, without %d: %s\n", name, (int)ranks, (int)threads,
               (int)plain, why.text);
    }
}

int main(void)
{
    static const int32_t plain[] = {0,
                                    DPAR_WORLD_NO_CMA,
                                    DPAR_WORLD_NO_DIRECT,
                                    DPAR_WORLD_NO_DIRECT | DPAR_WORLD_NO_CMA,
                                    DPAR_WORLD_NO_FUTEX,
                                    DPAR_WORLD_NO_STREAMING_STORES};
    int64_t small = 8, large = 100000;
    for (int32_t threads = 0; threads < 2; threads++) {
        for (uint32_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
            run("ping_pong", 2, ping_pong, NULL, threads, plain[i]);
            run("ring", 2, ring, NULL, threads, plain[i]);
            run("early", 2, early, NULL, threads, plain[i]);
            run("storm", 3, storm, NULL, threads, plain[i]);
        }
        for (int32_t n = 2; n <= 6; n++) {
            run("all_pairs", n, all_pairs, NULL, threads, n % 2 ? DPAR_WORLD_NO_CMA : 0);
        }
        run("ring", 5, ring, NULL, threads, 0);
        run("posted", 2, posted, NULL, threads, 0);
        run("self", 1, self, NULL, threads, 0);
        run("self", 3, self, NULL, threads, 0);
        run("groups", 3, groups, NULL, threads, 0);
        run("before_barrier", 4, before_barrier, NULL, threads, 0);
        run("mismatch", 2, mismatch, &small, threads, 0);
        run("mismatch", 2, mismatch, &large, threads, 0);
        run("mismatch_type", 2, mismatch_type, NULL, threads, 0);
        for (int in_barrier = 0; in_barrier < 2; in_barrier++) {
            run("behind", 3, behind, &in_barrier, threads, 0);
        }
    }
    run("owes_at_close", 2, owes_at_close, NULL, 0, 0);
    return CHECK_DONE();
}
