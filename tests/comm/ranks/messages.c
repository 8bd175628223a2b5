/* SPDX-License-Identifier: MIT-0 */
/* Tests messages: tags out of order, a thousand unexpected ones, messages to the rank itself, large
 * ones in both directions at once, all neighbours in one batch, a ring of all sizes, random
 * traffic.
 *   cc -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/comm/ranks/messages.c -o messages
 *   ./messages */
#include "run_oracle.h"

/* One message as this rank sees it. Its content follows from `start` and the sender. */
typedef struct parcel {
    int from, to, tag, type, registered;
    int64_t count;
    uint64_t start;
    unsigned char *memory; /* guard, content, guard */
    dpar_work work;
} parcel;

static parcel parcel_of(int from, int to, int tag, int type, int64_t count, uint64_t seed)
{
    parcel p;
    memset(&p, 0, sizeof p);
    p.from = from, p.to = to, p.tag = tag, p.type = type, p.count = count;
    p.start = oracle_mix(seed) % ORACLE_PERIOD;
    return p;
}

static size_t parcel_bytes(const parcel *p)
{
    return (size_t)p->count * (size_t)dpar_type_bytes(p->type);
}

static void parcel_image(oracle *o, const parcel *p, int arrived, unsigned char *to)
{
    memset(to, ORACLE_POISON, parcel_bytes(p) + 2 * ORACLE_GUARD);
    if (arrived) {
        oracle_fill(to + ORACLE_GUARD, oracle_values(o, o->world->size, p->type, p->from),
                    (size_t)dpar_type_bytes(p->type), p->start, p->count);
    }
}

/* Allocates the memory of the sending or the receiving end. */
static void parcel_open(oracle *o, parcel *p, int sends)
{
    size_t bytes = parcel_bytes(p) + 2 * ORACLE_GUARD;
    void *at = NULL;
    if (p->registered && dpar_comm_alloc(o->world, (int64_t)bytes, &at) != DPAR_OK) {
        printf("WRONG dpar_comm_alloc: %s\n", o->world->why.text);
        o->failed++;
        p->registered = 0;
    }
    p->memory = p->registered ? (unsigned char *)at : (unsigned char *)oracle_memory(bytes);
    parcel_image(o, p, sends, p->memory);
}

static int parcel_failed(oracle *o, const parcel *p, const char *what, dpar_status s)
{
    if (s == DPAR_OK) {
        return 0;
    }
    if (o->failed++ < 4) {
        printf("WRONG rank %d of %d: message %d -> %d, tag %d, %lld %s: %s: %s: %s\n",
               o->world->rank, o->world->size, p->from, p->to, p->tag, (long long)p->count,
               dpar_type_name(p->type), what, dpar_status_text(s), o->world->why.text);
        fflush(stdout);
    }
    return 1;
}

/* Checks that both ends hold the content afterwards, so that the sender's is unchanged. Frees the
 * memory. */
static void parcel_close(oracle *o, parcel *p)
{
    size_t i, bytes = parcel_bytes(p) + 2 * ORACLE_GUARD;
    unsigned char *want = (unsigned char *)oracle_memory(bytes);
    parcel_image(o, p, 1, want);
    for (i = 0; memcmp(want, p->memory, bytes) != 0 && i < bytes; i++) {
        if (want[i] != p->memory[i]) {
            if (o->failed++ < 4) {
                printf("WRONG rank %d of %d: message %d -> %d, tag %d, %lld %s, %s: byte %lld is "
                       "%02x, expected %02x\n",
                       o->world->rank, o->world->size, p->from, p->to, p->tag, (long long)p->count,
                       dpar_type_name(p->type), p->registered ? "registered" : "private",
                       (long long)i - (long long)ORACLE_GUARD, p->memory[i], want[i]);
                fflush(stdout);
            }
            break;
        }
    }
    free(want);
    if (p->registered) {
        dpar_comm_release(o->world, p->memory);
    } else {
        free(p->memory);
    }
    p->memory = NULL;
    o->cases++;
}

static dpar_status parcel_go(oracle *o, parcel *p, int sends, dpar_work *work)
{
    oracle_delay(o);
    return sends ? dpar_send(o->world, p->memory + ORACLE_GUARD, p->count, p->type, p->to, p->tag,
                             work)
                 : dpar_recv(o->world, p->memory + ORACLE_GUARD, p->count, p->type, p->from, p->tag,
                             work);
}

static dpar_call parcel_call(const parcel *p, int sends)
{
    dpar_call c;
    memset(&c, 0, sizeof c);
    c.kind = sends ? DPAR_CALL_SEND : DPAR_CALL_RECV;
    c.type = p->type, c.count = p->count, c.tag = p->tag;
    c.root = sends ? p->to : p->from;
    if (sends) {
        c.in = p->memory + ORACLE_GUARD;
    } else {
        c.out = p->memory + ORACLE_GUARD;
    }
    return c;
}

/* Sends all sizes around a ring, with the receive posted first or last, blocking or not. */
static int ring(oracle *o)
{
    static const int64_t sizes[] = {0,     1,      7,      56,      60,      64,     120,
                                    121,   1000,   4096,   8192,    8193,    16384,  65536,
                                    65537, 262144, 262145, 1000003, 1 << 20, 8 << 20};
    int i, form, me = o->world->rank, n = o->world->size;
    int right = (me + 1) % n, left = (me + n - 1) % n;
    for (i = 0; i < (int)(sizeof sizes / sizeof sizes[0]); i++) {
        for (form = 0; form < 4; form++) {
            uint64_t seed = o->seed * 977 + (uint64_t)(i * 4 + form);
            parcel s = parcel_of(me, right, i, DPAR_U8, sizes[i], seed);
            parcel r = parcel_of(left, me, i, DPAR_U8, sizes[i], seed);
            int bad = 0;
            if (sizes[i] >= (8 << 20) && form > 1 && o->effort == 0) {
                continue;
            }
            s.registered = (int)(oracle_mix(seed + (uint64_t)me) & 1);
            r.registered = (int)(oracle_mix(seed + (uint64_t)me) & 2) >> 1;
            parcel_open(o, &s, 1);
            parcel_open(o, &r, 0);
            if (form == 0) {
                bad = parcel_failed(o, &r, "recv", parcel_go(o, &r, 0, &r.work)) ||
                      parcel_failed(o, &s, "send", parcel_go(o, &s, 1, NULL)) ||
                      parcel_failed(o, &r, "wait", dpar_wait(&r.work));
            } else if (form == 1) {
                bad = parcel_failed(o, &s, "send", parcel_go(o, &s, 1, &s.work)) ||
                      parcel_failed(o, &r, "recv", parcel_go(o, &r, 0, NULL)) ||
                      parcel_failed(o, &s, "wait", dpar_wait(&s.work));
            } else if (form == 2) {
                dpar_call c[2];
                c[0] = parcel_call(&s, 1);
                c[1] = parcel_call(&r, 0);
                bad = parcel_failed(o, &s, "batch", dpar_batch(o->world, c, 2, NULL));
            } else if (n > 1) { /* only blocking calls: even ranks send first */
                int first = me % 2 == 0;
                parcel *a = first ? &s : &r, *b = first ? &r : &s;
                bad = parcel_failed(o, a, "first", parcel_go(o, a, first, NULL)) ||
                      parcel_failed(o, b, "second", parcel_go(o, b, !first, NULL));
            } else {
                parcel_image(o, &r, 1, r.memory); /* with one rank there is nothing to do */
            }
            if (bad) {
                return 1;
            }
            parcel_close(o, &s);
            parcel_close(o, &r);
        }
    }
    return 0;
}

/* Sends `count` messages with tags 0, 1, ... from each rank to the next but one (of two ranks: to
 * the other). The last one is received first, then the others in a random order. */
static int unexpected(oracle *o, int count, int64_t most)
{
    int me = o->world->rank, n = o->world->size, step = n > 2 ? 2 : 1;
    int to = (me + step) % n, from = (me + n - step) % n;
    parcel *s = (parcel *)oracle_memory(sizeof(parcel) * (size_t)count);
    parcel *r = (parcel *)oracle_memory(sizeof(parcel) * (size_t)count);
    int *order = (int *)oracle_memory(sizeof(int) * (size_t)count);
    uint64_t h = o->seed + (uint64_t)count;
    int i, bad = 0;
    for (i = 0; i < count; i++) {
        uint64_t seed = o->seed * 31 + (uint64_t)i;
        int64_t size = (int64_t)(oracle_mix(seed) % (uint64_t)(most + 1));
        int j = (int)oracle_below(&h, i + 1);
        size = i % 7 == 0 ? size : size % 64; /* most are small */
        s[i] = parcel_of(me, to, i, DPAR_I8, size, seed);
        r[i] = parcel_of(from, me, i, DPAR_I8, size, seed);
        s[i].registered = i % 97 == 0;
        parcel_open(o, &s[i], 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (i = 0; i < count; i++) {
        if (order[i] == count - 1) {
            order[i] = order[0];
            order[0] = count - 1;
        }
    }
    for (i = 0; i < count && !bad; i++) {
        bad = parcel_failed(o, &s[i], "post", parcel_go(o, &s[i], 1, &s[i].work));
    }
    for (i = 0; i < count && !bad; i++) {
        parcel *p = &r[order[i]];
        parcel_open(o, p, 0);
        bad = parcel_failed(o, p, "recv", parcel_go(o, p, 0, NULL));
        if (!bad) {
            parcel_close(o, p);
        }
    }
    for (i = 0; i < count && !bad; i++) {
        bad = parcel_failed(o, &s[i], "wait", dpar_wait(&s[i].work));
        if (!bad) {
            parcel_close(o, &s[i]);
        }
    }
    free(s), free(r), free(order);
    return bad;
}

/* Sends many messages with one tag and varying sizes: they are received in the order of sending. */
static int in_order(oracle *o)
{
    enum { K = 60 };
    int me = o->world->rank, n = o->world->size, right = (me + 1) % n, left = (me + n - 1) % n;
    static const int64_t sizes[6] = {3, 20000, 0, 400000, 100, 5000};
    parcel *s = (parcel *)oracle_memory(sizeof(parcel) * K * 2), *r = s + K;
    int i, bad = 0;
    for (i = 0; i < K && !bad; i++) {
        s[i] = parcel_of(me, right, 9, DPAR_U8, sizes[i % 6] + i, o->seed + (uint64_t)i);
        parcel_open(o, &s[i], 1);
        bad = parcel_failed(o, &s[i], "post", parcel_go(o, &s[i], 1, &s[i].work));
    }
    for (i = 0; i < K && !bad; i++) {
        r[i] = parcel_of(left, me, 9, DPAR_U8, sizes[i % 6] + i, o->seed + (uint64_t)i);
        parcel_open(o, &r[i], 0);
        bad = parcel_failed(o, &r[i], "post", parcel_go(o, &r[i], 0, &r[i].work));
    }
    for (i = K - 1; i >= 0 && !bad; i--) {
        bad = parcel_failed(o, &r[i], "wait", dpar_wait(&r[i].work)) ||
              parcel_failed(o, &s[i], "wait", dpar_wait(&s[i].work));
    }
    for (i = 0; i < K && !bad; i++) {
        parcel_close(o, &s[i]);
        parcel_close(o, &r[i]);
    }
    free(s);
    return bad;
}

/* Sends to the rank itself: send posted first, then receive posted first; also large. */
static int to_oneself(oracle *o)
{
    static const int64_t sizes[5] = {0, 5, 5000, 300000, 2000000};
    int i, me = o->world->rank, first;
    for (i = 0; i < 10; i++) {
        parcel s = parcel_of(me, me, 3 + i, DPAR_I32, sizes[i / 2] / 4, o->seed + (uint64_t)i);
        parcel r = s;
        parcel *a = i % 2 == 0 ? &s : &r, *b = i % 2 == 0 ? &r : &s;
        first = i % 2 == 0;
        parcel_open(o, &s, 1);
        parcel_open(o, &r, 0);
        if (parcel_failed(o, a, "post", parcel_go(o, a, first, &a->work)) ||
            parcel_failed(o, b, "blocking", parcel_go(o, b, !first, NULL)) ||
            parcel_failed(o, a, "wait", dpar_wait(&a->work))) {
            return 1;
        }
        parcel_close(o, &s);
        parcel_close(o, &r);
    }
    return 0;
}

/* Sends from each rank to each rank, itself included, in one batch; waits in each form. */
static int everyone(oracle *o, int64_t most, int form)
{
    int me = o->world->rank, n = o->world->size, i, bad = 0;
    parcel p[2 * ORACLE_RANKS];
    dpar_call c[2 * ORACLE_RANKS];
    dpar_work w[2 * ORACLE_RANKS];
    memset(w, 0, sizeof w);
    for (i = 0; i < 2 * n; i++) {
        int peer = i / 2, sends = i % 2 == (me > peer); /* half of the ranks list receives first */
        int from = sends ? me : peer, to = sends ? peer : me;
        uint64_t seed = o->seed * 131 + (uint64_t)(from * 64 + to * 8 + form);
        int64_t size = (int64_t)(oracle_mix(seed) % (uint64_t)(most / 8 + 1));
        p[i] = parcel_of(from, to, 5, DPAR_F64, size, seed);
        p[i].registered = (int)(oracle_mix(seed + (uint64_t)me) % 2);
        parcel_open(o, &p[i], sends);
        c[i] = parcel_call(&p[i], sends);
    }
    bad = parcel_failed(o, &p[0], "batch", dpar_batch(o->world, c, 2 * n, form == 0 ? NULL : w));
    for (i = 2 * n - 1; i >= 0 && !bad && form == 1; i--) {
        bad = parcel_failed(o, &p[i], "wait", dpar_wait(&w[i]));
    }
    if (!bad && form == 2) {
        bad = parcel_failed(o, &p[0], "wait_all", dpar_wait_all(w, 2 * n));
    }
    for (i = 0; i < 2 * n && !bad; i++) {
        parcel_close(o, &p[i]);
    }
    return bad;
}

/* Two posted sends of 8 MiB cross, then both ranks receive. */
static int crossing(oracle *o)
{
    int me = o->world->rank, n = o->world->size, peer = me ^ 1, reg;
    for (reg = 0; reg < 3 && peer < n; reg++) {
        parcel s = parcel_of(me, peer, 1, DPAR_F32, 2 << 20, o->seed + (uint64_t)me);
        parcel r = parcel_of(peer, me, 1, DPAR_F32, 2 << 20, o->seed + (uint64_t)peer);
        s.registered = reg == 1 || (reg == 2 && me % 2 == 0);
        r.registered = reg == 1 || (reg == 2 && me % 2 == 1);
        parcel_open(o, &s, 1);
        parcel_open(o, &r, 0);
        if (parcel_failed(o, &s, "post", parcel_go(o, &s, 1, &s.work)) ||
            parcel_failed(o, &r, "recv", parcel_go(o, &r, 0, NULL)) ||
            parcel_failed(o, &s, "wait", dpar_wait(&s.work))) {
            return 1;
        }
        parcel_close(o, &s);
        parcel_close(o, &r);
    }
    return 0;
}

#if defined(USE_MPI)
enum { TAG_STEP = 80000000 }; /* MPICH accepts tags below 2^28 */
#else
enum { TAG_STEP = 500000000 };
#endif

/* Runs random traffic. Each rank posts its ends in its own order (those with equal pair and tag in
 * the order of the list), tests some of them meanwhile, then waits in another order. */
static int traffic(oracle *o, int messages, uint64_t seed)
{
    int me = o->world->rank, n = o->world->size, i, j, ends = 0, bad = 0;
    uint64_t h = seed, own = oracle_mix(seed + 77u * (uint64_t)me);
    parcel *p = (parcel *)oracle_memory(sizeof(parcel) * 2 * (size_t)messages);
    int *sends = (int *)oracle_memory(sizeof(int) * 2 * (size_t)messages);
    int *order = (int *)oracle_memory(sizeof(int) * 2 * (size_t)messages);
    for (i = 0; i < messages; i++) {
        int from = (int)oracle_below(&h, n), to = (int)oracle_below(&h, n);
        int tag = (int)oracle_below(&h, 4) * TAG_STEP, e;
        int64_t size = oracle_below(&h, INT64_C(1) << oracle_below(&h, 19));
        uint64_t s = oracle_next(&h);
        for (e = 0; e < 2; e++) {
            if (me == (e == 0 ? from : to)) {
                p[ends] = parcel_of(from, to, tag, DPAR_U8, size, s);
                p[ends].registered = oracle_below(&own, 4) == 0;
                sends[ends++] = e == 0;
            }
        }
    }
    for (i = 0; i < ends; i++) {
        j = (int)oracle_below(&own, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    /* Restores the order among ends with equal pair and tag: the earliest is first. */
    for (i = 0; i < ends; i++) {
        for (j = i + 1; j < ends; j++) {
            parcel *a = &p[order[i]], *b = &p[order[j]];
            if (a->from == b->from && a->to == b->to && a->tag == b->tag &&
                sends[order[i]] == sends[order[j]] && order[j] < order[i]) {
                int t = order[i];
                order[i] = order[j];
                order[j] = t;
            }
        }
    }
    for (i = 0; i < ends && !bad; i++) {
        parcel *q = &p[order[i]];
        parcel_open(o, q, sends[order[i]]);
        bad = parcel_failed(o, q, "post", parcel_go(o, q, sends[order[i]], &q->work));
        if (!bad && oracle_below(&own, 4) == 0) {
            q = &p[order[oracle_below(&own, i + 1)]];
            bad = dpar_test(&q->work) < 0 && parcel_failed(o, q, "test", q->work.status);
        }
    }
    for (i = 0; i < ends && !bad; i++) {
        j = i + (int)oracle_below(&own, ends - i);
        bad = parcel_failed(o, &p[order[j]], "wait", dpar_wait(&p[order[j]].work));
        if (!bad) {
            parcel_close(o, &p[order[j]]);
        }
        order[j] = order[i];
    }
    free(p), free(sends), free(order);
    return bad;
}

static void messages(oracle *o)
{
    int i, bad;
    bad = ring(o) || to_oneself(o) || in_order(o) || unexpected(o, 1000, 3000) ||
          unexpected(o, 40, 200000) || crossing(o);
    for (i = 0; i < 9 && !bad; i++) {
        static const int64_t sizes[3] = {100, 30000, 1000000};
        bad = everyone(o, sizes[i / 3], i % 3);
    }
    for (i = 0; i < (o->effort ? 40 : 4) && !bad; i++) {
        bad = traffic(o, 150, oracle_mix(o->seed) + (uint64_t)i);
    }
}

int main(int argc, char **argv)
{
    return oracle_program(argc, argv, "messages", messages);
}
