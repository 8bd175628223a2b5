/* SPDX-License-Identifier: MIT-0 */
/* Checks that each way in which ranks can disagree about an operation ends in DPAR_E_MISMATCH on
 * all ranks, long before the timeout, with a message that names both sides; later calls return the
 * same. The odd rank is the first, one in the middle, or the last.
 *   cc -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/comm/ranks/mismatch.c -o mismatch
 *   ./mismatch */
#include "run_oracle.h"

/* What most ranks call, what the odd rank calls, and words of the message. */
typedef struct quarrel {
    const char *name;
    dpar_call most, odd;
    const char *words[4];
    int64_t piece; /* the v forms: the odd rank passes this for one piece, the others `count` */
} quarrel;

static dpar_call call_of(int kind, int type, int op, int root, int64_t count)
{
    dpar_call c;
    memset(&c, 0, sizeof c);
    c.kind = kind, c.type = type, c.op = op, c.root = root, c.count = count;
    return c;
}

static quarrel quarrel_of(const char *name, dpar_call most, dpar_call odd, const char *a,
                          const char *b, const char *c)
{
    quarrel q;
    memset(&q, 0, sizeof q);
    q.name = name, q.most = most, q.odd = odd;
    q.words[0] = a, q.words[1] = b, q.words[2] = c;
    return q;
}

enum { QUARRELS = 32 };

/* Returns quarrel i; those of the v forms have piece > 0. */
static quarrel quarrel_number(int i)
{
    const int f = DPAR_F32, s = DPAR_SUM;
    const dpar_call sum = call_of(DPAR_CALL_ALL_REDUCE, f, s, 0, 10);
    quarrel q;
    switch (i) {
#define KIND(a, b)                                                                                 \
    call_of(a, f, a == DPAR_CALL_ALL_REDUCE || a == DPAR_CALL_REDUCE ? s : 0, 0, 10),              \
        call_of(b, f, b == DPAR_CALL_ALL_REDUCE || b == DPAR_CALL_REDUCE ? s : 0, 0, 10)
    case 0:
        return quarrel_of("kind: sum and broadcast",
                          KIND(DPAR_CALL_ALL_REDUCE, DPAR_CALL_BROADCAST), "all-reduce",
                          "broadcast", "10 f32");
    case 1:
        return quarrel_of("kind: gather and exchange",
                          KIND(DPAR_CALL_ALL_GATHER, DPAR_CALL_ALL_TO_ALL), "all-gather",
                          "all-to-all", "");
    case 2:
        return quarrel_of("kind: barrier and sum", call_of(DPAR_CALL_BARRIER, 0, 0, 0, 0), sum,
                          "barrier", "all-reduce", "");
    case 3:
        return quarrel_of("kind: sum and barrier", sum, call_of(DPAR_CALL_BARRIER, 0, 0, 0, 0),
                          "barrier", "all-reduce", "");
    case 4:
        return quarrel_of("kind: reduce and gather", KIND(DPAR_CALL_REDUCE, DPAR_CALL_GATHER),
                          "reduce", "gather", "");
    case 5:
        return quarrel_of("kind: scatter and broadcast",
                          KIND(DPAR_CALL_SCATTER, DPAR_CALL_BROADCAST), "scatter", "broadcast", "");
#undef KIND
    case 6:
        return quarrel_of("type of equal size", sum,
                          call_of(DPAR_CALL_ALL_REDUCE, DPAR_I32, s, 0, 10), "f32", "i32", "");
    case 7:
        return quarrel_of("type", sum, call_of(DPAR_CALL_ALL_REDUCE, DPAR_F64, s, 0, 10), "f32",
                          "f64", "");
    case 8:
        return quarrel_of("type of what is not added", call_of(DPAR_CALL_ALL_GATHER, f, 0, 0, 10),
                          call_of(DPAR_CALL_ALL_GATHER, DPAR_U32, 0, 0, 10), "f32", "u32", "");
    case 9:
        return quarrel_of("op", sum, call_of(DPAR_CALL_ALL_REDUCE, f, DPAR_MAX, 0, 10), "sum",
                          "max", "");
    case 10:
        return quarrel_of("op: sum and average", sum,
                          call_of(DPAR_CALL_ALL_REDUCE, f, DPAR_AVG, 0, 10), "sum", "avg", "");
    case 11:
        return quarrel_of("op of reduce-scatter",
                          call_of(DPAR_CALL_REDUCE_SCATTER, f, DPAR_MIN, 0, 10),
                          call_of(DPAR_CALL_REDUCE_SCATTER, f, s, 0, 10), "min", "sum", "");
    case 12:
        return quarrel_of("root of broadcast", call_of(DPAR_CALL_BROADCAST, f, 0, 0, 10),
                          call_of(DPAR_CALL_BROADCAST, f, 0, 1, 10), "root 0", "root 1", "");
    case 13:
        return quarrel_of("root of reduce", call_of(DPAR_CALL_REDUCE, f, s, 1, 10),
                          call_of(DPAR_CALL_REDUCE, f, s, 0, 10), "root 0", "root 1", "");
    case 14:
        return quarrel_of("root of gather", call_of(DPAR_CALL_GATHER, f, 0, 0, 10),
                          call_of(DPAR_CALL_GATHER, f, 0, 1, 10), "root 0", "root 1", "");
    case 15:
        return quarrel_of("root of scatter", call_of(DPAR_CALL_SCATTER, f, 0, 1, 100000),
                          call_of(DPAR_CALL_SCATTER, f, 0, 0, 100000), "root 0", "root 1", "");
    case 16:
        return quarrel_of("count", sum, call_of(DPAR_CALL_ALL_REDUCE, f, s, 0, 11), "10 f32",
                          "11 f32", "");
    case 17:
        return quarrel_of("count: nothing and one", call_of(DPAR_CALL_ALL_REDUCE, f, s, 0, 0),
                          call_of(DPAR_CALL_ALL_REDUCE, f, s, 0, 1), "0 f32", "1 f32", "");
    case 18:
        return quarrel_of("count of broadcast", call_of(DPAR_CALL_BROADCAST, f, 0, 0, 1000),
                          call_of(DPAR_CALL_BROADCAST, f, 0, 0, 999), "1000 f32", "999 f32", "");
    case 19:
        return quarrel_of("count of much", call_of(DPAR_CALL_ALL_REDUCE, f, s, 0, 300000),
                          call_of(DPAR_CALL_ALL_REDUCE, f, s, 0, 300001), "300000", "300001", "");
    case 20:
        return quarrel_of("count: small and much", call_of(DPAR_CALL_ALL_GATHER, f, 0, 0, 300000),
                          call_of(DPAR_CALL_ALL_GATHER, f, 0, 0, 3), "300000", "3 f32", "");
    case 21:
        return quarrel_of("count of reduce-scatter",
                          call_of(DPAR_CALL_REDUCE_SCATTER, f, s, 0, 20000),
                          call_of(DPAR_CALL_REDUCE_SCATTER, f, s, 0, 20001), "20000", "20001", "");
    case 22:
        return quarrel_of("count of all-to-all", call_of(DPAR_CALL_ALL_TO_ALL, f, 0, 0, 7),
                          call_of(DPAR_CALL_ALL_TO_ALL, f, 0, 0, 70), "7 f32", "70 f32", "");
    case 23:
        return quarrel_of("count of gather", call_of(DPAR_CALL_GATHER, f, 0, 0, 7),
                          call_of(DPAR_CALL_GATHER, f, 0, 0, 8), "7 f32", "8 f32", "");
    case 24:
        q = quarrel_of("pieces of all-gather-v", call_of(DPAR_CALL_ALL_GATHER, f, 0, 0, 6),
                       call_of(DPAR_CALL_ALL_GATHER, f, 0, 0, 6), "all-gather", "", "");
        q.piece = 5;
        return q;
    case 25:
        q = quarrel_of("pieces of reduce-scatter-v", call_of(DPAR_CALL_REDUCE_SCATTER, f, s, 0, 6),
                       call_of(DPAR_CALL_REDUCE_SCATTER, f, s, 0, 6), "reduce-scatter", "", "");
        q.piece = 7;
        return q;
    case 26:
        q = quarrel_of("pieces of all-to-all-v", call_of(DPAR_CALL_ALL_TO_ALL, f, 0, 0, 6),
                       call_of(DPAR_CALL_ALL_TO_ALL, f, 0, 0, 6), "all-to-all", "6", "17");
        q.piece = 17;
        return q;
    case 27:
        q = quarrel_of("pieces of gather-v", call_of(DPAR_CALL_GATHER, f, 0, 0, 6),
                       call_of(DPAR_CALL_GATHER, f, 0, 0, 6), "gather", "6", "17");
        q.piece = 17;
        return q;
    case 28:
        q = quarrel_of("pieces of scatter-v", call_of(DPAR_CALL_SCATTER, f, 0, 0, 6),
                       call_of(DPAR_CALL_SCATTER, f, 0, 0, 6), "scatter", "6", "17");
        q.piece = 17;
        return q;
    case 29:
        q = quarrel_of(
            "large pieces of all-to-all-v", call_of(DPAR_CALL_ALL_TO_ALL, f, 0, 0, 90000),
            call_of(DPAR_CALL_ALL_TO_ALL, f, 0, 0, 90000), "all-to-all", "90000", "90001");
        q.piece = 90001;
        return q;
    case 30:
        q = quarrel_of("tag of reduce-scatter", call_of(DPAR_CALL_REDUCE_SCATTER, f, s, 0, 100000),
                       call_of(DPAR_CALL_REDUCE_SCATTER, f, s, 0, 100000), "100000 f32", "tag 7",
                       "");
        q.odd.tag = 7;
        return q;
    default:
        return quarrel_of("order of two operations", sum, call_of(DPAR_CALL_BROADCAST, f, 0, 0, 10),
                          "all-reduce", "broadcast", "");
    }
}

enum { AREA = 5 << 20 }; /* bytes; the longest buffer has 8 x 300000 elements of 4 bytes */

typedef struct memory {
    char *in, *out;
    int64_t in_count[ORACLE_RANKS], out_count[ORACLE_RANKS];
} memory;

static void wrong(oracle *o, const char *name, const char *what, const char *text)
{
    if (o->failed++ < 4) {
        printf("WRONG rank %d of %d: %s: %s: \"%s\"\n", o->world->rank, o->world->size, name, what,
               text);
        fflush(stdout);
    }
}

/* Makes the call, blocking or posted. */
static dpar_status go(dpar_comm *c, const dpar_call *call, int posts)
{
    dpar_work work;
    dpar_status s;
    memset(&work, 0, sizeof work);
    s = dpari_post(c, call, posts ? &work : NULL);
    return s == DPAR_OK && posts ? dpar_wait(&work) : s;
}

static dpar_call ready(const quarrel *q, int is_odd, int odd, memory *m, dpar_comm *c)
{
    dpar_call call = is_odd ? q->odd : q->most;
    int r;
    call.in = call.kind == DPAR_CALL_BROADCAST ? m->out : m->in;
    call.out = m->out;
    if (q->piece > 0) { /* the odd rank sends or receives one piece of another size */
        int peer = (odd + 1) % c->size;
        for (r = 0; r < c->size; r++) {
            m->in_count[r] = m->out_count[r] = call.count;
        }
        call.variable_counts = 1;
        call.in_count = m->in_count;
        call.out_count = m->out_count;
        if (call.kind == DPAR_CALL_GATHER || call.kind == DPAR_CALL_SCATTER) {
            call.root = peer;
        }
        if (is_odd) {
            m->in_count[peer] = q->piece;
            m->out_count[peer] = call.kind == DPAR_CALL_ALL_TO_ALL ? call.count : q->piece;
            call.count = call.kind == DPAR_CALL_GATHER || call.kind == DPAR_CALL_SCATTER
                             ? q->piece
                             : call.count;
        }
        if (call.kind == DPAR_CALL_ALL_GATHER) {
            call.count = m->out_count[c->rank];
        } else if (call.kind == DPAR_CALL_REDUCE_SCATTER) {
            call.count = m->in_count[c->rank];
        }
    }
    return call;
}

/* Checks the message, the status of the communicator, and the status of later calls. */
static void judge(oracle *o, const quarrel *q, dpar_comm *c, dpar_status s, double took, int odd)
{
    char rank[32], first[sizeof c->why.text];
    double begin;
    int i;
    int32_t x = 0;
    (void)snprintf(rank, sizeof rank, "rank %d", odd);
    memcpy(first, c->why.text, sizeof first);
    o->cases++;
    if (s != DPAR_E_MISMATCH) {
        wrong(o, q->name, dpar_status_text(s), first);
        return;
    }
    if (took > 2.0) {
        wrong(o, q->name, "it took more than 2 s", first);
    }
    for (i = 0; i < 4; i++) {
        if (q->words[i] != NULL && strstr(first, q->words[i]) == NULL) {
            wrong(o, q->name, q->words[i], first);
        }
    }
    if (strstr(first, rank) == NULL || strstr(strstr(first, "rank") + 4, "rank") == NULL) {
        wrong(o, q->name, "the sentence does not name both ranks", first);
    }
    begin = oracle_now();
    if (c->status != DPAR_E_MISMATCH || dpar_barrier(c, NULL) != DPAR_E_MISMATCH ||
        dpar_broadcast(c, &x, 1, DPAR_I32, 0, NULL) != DPAR_E_MISMATCH ||
        strcmp(first, c->why.text) != 0) {
        wrong(o, q->name, "a later call does not return the same", c->why.text);
    }
    if (oracle_now() - begin > 0.5) {
        wrong(o, q->name, "a later call does not return at once", first);
    }
}

/* Runs all quarrels, each on its own communicator. */
static void quarrels(oracle *o)
{
    memory m;
    int i, n = o->world->size, me = o->world->rank;
    m.in = (char *)oracle_memory(2 * AREA * 2);
    m.out = m.in + 2 * AREA;
    memset(m.in, 0, 2 * AREA * 2);
    for (i = 0; i < QUARRELS; i++) {
        quarrel q = quarrel_number(i);
        int odd = (i + (int)o->seed) % n;
        int posts = (i / 3 + (int)o->seed) % 2;
        dpar_comm *c = NULL;
        dpar_call call;
        dpar_status s;
        double begin;
        if (dpar_comm_split(o->world, 0, 0, &c) != DPAR_OK) {
            wrong(o, q.name, "no duplicate", o->world->why.text);
            break;
        }
        call = ready(&q, me == odd, odd, &m, c);
        oracle_delay(o);
        (void)dpar_barrier(c, NULL);
        begin = oracle_now();
        s = go(c, &call, posts);
        if (i == QUARRELS - 1 && s == DPAR_OK) { /* the ranks make both calls, in different order */
            call = ready(&q, me != odd, odd, &m, c);
            s = go(c, &call, posts);
        }
        judge(o, &q, c, s, oracle_now() - begin, odd);
        (void)dpar_comm_free(c);
        if (dpar_barrier(o->world, NULL) != DPAR_OK) {
            wrong(o, q.name, "the world is broken too", o->world->why.text);
            break;
        }
    }
    free(m.in);
}

/* Tests messages whose receiver expects another count or type. Both sides get the error, and all
 * ranks do in their next collective. A send may have been complete before. */
static void messages(oracle *o)
{
    static const int64_t counts[4][2] = {{10, 11}, {0, 1}, {300000, 299999}, {10, 10}};
    static const char *const words[4][2] = {
        {"10", "11"}, {"0", "1"}, {"300000", "299999"}, {"f32", "i32"}};
    char *area = (char *)oracle_memory(2 * AREA);
    int i, posts, n = o->world->size, me = o->world->rank;
    memset(area, 0, 2 * AREA);
    for (i = 0; i < 8 && n > 1; i++) {
        quarrel q;
        int from = i % n, to = (i + 1) % n, how = i % 4;
        double begin;
        dpar_comm *c = NULL;
        dpar_status s = DPAR_OK;
        posts = (i / 4 + how) % 2;
        memset(&q, 0, sizeof q);
        q.name = how == 3 ? "type of a message" : "count of a message";
        q.words[0] = words[how][0], q.words[1] = words[how][1];
        if (dpar_comm_split(o->world, 0, 0, &c) != DPAR_OK) {
            wrong(o, q.name, "no duplicate", o->world->why.text);
            break;
        }
        begin = oracle_now();
        if (me == from || me == to) {
            dpar_call call = call_of(me == from ? DPAR_CALL_SEND : DPAR_CALL_RECV,
                                     how == 3 && me == to ? DPAR_I32 : DPAR_F32, 0,
                                     me == from ? to : from, counts[how][me == to]);
            call.in = me == from ? area : NULL;
            call.out = me == to ? area : NULL;
            s = go(c, &call, posts);
            if (me == to && s != DPAR_E_MISMATCH) {
                wrong(o, q.name, "the receiver is content", dpar_status_text(s));
            }
        }
        if (s == DPAR_OK) {
            s = dpar_barrier(c, NULL);
        }
        judge(o, &q, c, s, oracle_now() - begin, from);
        (void)dpar_comm_free(c);
        if (dpar_barrier(o->world, NULL) != DPAR_OK) {
            wrong(o, q.name, "the world is broken too", o->world->why.text);
            break;
        }
    }
    free(area);
}

static void everything(oracle *o)
{
    quarrels(o);
    messages(o);
}

int main(int argc, char **argv)
{
    oracle_args a;
    oracle_total t = {0, 0, 0};
    oracle base;
    dpar_world_desc options;
    int n;
    if (!oracle_read_args(&a, argc, argv)) {
        return 2;
    }
    for (n = a.from > 2 ? a.from : 2; n <= a.to; n++) {
        oracle_base(&base, &a, &options);
        base.delays = 1;
        base.seed = a.seed + (uint64_t)n;
        options.timeout_s = 10;
        options.disable = (n % 2 == 1 ? DPAR_WORLD_NO_DIRECT | DPAR_WORLD_NO_CMA : 0) |
                          (n % 4 >= 2 ? DPAR_WORLD_NO_FLAT : 0);
        oracle_launch(&t, "mismatch", n, everything, &base, &options);
    }
    return oracle_end(&t);
}
