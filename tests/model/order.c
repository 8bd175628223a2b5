/* SPDX-License-Identifier: MIT-0 */
/* order - checks the flag protocols on weakly ordered memory. The models in Promela take steps in
 * the order of the program; this program tries every execution that C11's release and acquire
 * allow, in which a load may find any store that is not yet known to be overwritten.
 *
 * A location is the list of its stores. A thread knows for each location the oldest store that it
 * may still read: its view. A store with release carries its thread's view, and a load with acquire
 * takes it over. A sequentially consistent store makes older stores unreadable for all later
 * sequentially consistent loads; a fence publishes its view to all such steps and takes theirs
 * over. Later stores carry what an earlier fence with release knew; a fence with acquire takes over
 * what earlier loads found. A read-modify-write is at the end of the list. (This is the view
 * machine of Kang and others, 2017, without promises: loads do not read future stores. No load of
 * these protocols feeds a store of another word before it in the program, and compilers and
 * processors keep control dependencies to stores.)
 *
 * Payloads are plain memory: two accesses, at least one of them a store, that no release and
 * acquire order (by vector clocks) are a race, and a race is a fault.
 *
 * Each protocol must hold, and must break with any one of its orders removed (made relaxed; a fence
 * left out), so that each order is known to be necessary. Run with: tests/compile/model.sh. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, PLACES = 12, STORES = 6, STEPS = 40, REGISTERS = 4 };
enum {
    RELAXED,
    RELEASE,
    ACQUIRE,
    TOTAL
}; /* TOTAL: sequentially consistent, with acquire and release */
enum { END, WRITE, READ, STORE, LOAD, AWAIT, ADD, SWAP, CLAIM, FENCE, IS, UNLESS, SLEEP };

/* A step of a thread. `order` is the id of a name that can be weakened, -1 if there is none. */
typedef struct step {
    int op, place, how, value, reg, name;
} step;
static step program[THREADS][STEPS];
static int length[THREADS], threads;
static const char *names[32];
static int name_count, weak; /* weak: the order that is removed; -1 if none */

typedef struct store {
    uint8_t value, carries; /* carries: it has a view and a clock */
    uint8_t view[PLACES], clock[THREADS];
} store;
typedef struct state {
    uint8_t at[THREADS], reg[THREADS][REGISTERS], view[THREADS][PLACES], clock[THREADS][THREADS];
    uint8_t total[PLACES]; /* what sequentially consistent steps have published */
    uint8_t fenced[THREADS], gives[THREADS][PLACES], found[THREADS][PLACES]; /* for fences */
    uint8_t n[PLACES];
    store list[PLACES][STORES];
    uint8_t writer[PLACES], written[PLACES],
        read[PLACES][THREADS]; /* plain memory: clocks of the last accesses */
} state;

static uint64_t *seen, states, room;
static const char *fault;

static int is_new(const state *s)
{
    const uint8_t *p = (const uint8_t *)s;
    uint64_t h = UINT64_C(14695981039346656037), i;
    for (i = 0; i < sizeof *s; i++) {
        h = (h ^ p[i]) * UINT64_C(1099511628211);
    }
    h ^= h >> 29;
    h += h == 0;
    for (i = h % room; seen[i] != 0; i = (i + 1) % room) {
        if (seen[i] == h) {
            return 0;
        }
    }
    if (states > room / 2) {
        puts("order: more states than there is room for");
        exit(2);
    }
    seen[i] = h;
    states++;
    return 1;
}

static void take(uint8_t *mine, const uint8_t *theirs, int n)
{
    int i;
    for (i = 0; i < n; i++) {
        mine[i] = mine[i] > theirs[i] ? mine[i] : theirs[i];
    }
}

static void put(state *s, int t, const step *p, int how, int value)
{
    store *m;
    if (s->n[p->place] == STORES) {
        puts("order: more stores than there is room for");
        exit(2);
    }
    m = &s->list[p->place][s->n[p->place]];
    s->view[t][p->place] = s->n[p->place]++;
    m->value = (uint8_t)value;
    if (how == RELEASE || how == TOTAL) {
        m->carries = 1;
        memcpy(m->view, s->view[t], PLACES);
        memcpy(m->clock, s->clock[t], THREADS);
        s->clock[t][t]++;
    } else if (s->fenced[t]) {
        m->carries = 1;
        memcpy(m->view, s->gives[t], PLACES);
        m->view[p->place] = s->view[t][p->place];
    }
    if (how == TOTAL) {
        s->total[p->place] = s->view[t][p->place];
    }
}

/* Makes thread t read store k. */
static int get(state *s, int t, const step *p, int how, int k)
{
    const store *m = &s->list[p->place][k];
    s->view[t][p->place] = (uint8_t)k;
    if (how >= ACQUIRE && m->carries) {
        take(s->view[t], m->view, PLACES);
        take(s->clock[t], m->clock, THREADS);
    } else if (m->carries) {
        take(s->found[t], m->view, PLACES);
    }
    return m->value;
}

static void plain(state *s, int t, const step *p)
{
    int u, x = p->place;
    for (u = 0; u < threads; u++) {
        if (u != t && ((s->writer[x] == u + 1 && s->written[x] > s->clock[t][u]) ||
                       (p->op == WRITE && s->read[x][u] > s->clock[t][u]))) {
            fault = "a race";
        }
    }
    if (p->op == WRITE) {
        s->list[x][0].value = (uint8_t)p->value;
        s->writer[x] = (uint8_t)(t + 1);
        s->written[x] = s->clock[t][t];
        memset(s->read[x], 0, THREADS);
    } else {
        s->read[x][t] = s->clock[t][t];
        if (s->list[x][0].value != p->value) {
            fault = "a wrong value";
        }
    }
}

static void explore(const state *s);

/* Tries all possible next steps of thread t; returns 0 if it waits or has ended. */
static int walk(const state *s, int t)
{
    const step *p = &program[t][s->at[t]];
    int how = p->name >= 0 && p->name == weak ? RELAXED : p->how, k, last = s->n[p->place] - 1,
        moved = 0;
    state next = *s;
    next.at[t]++;
    switch (p->op) {
    case END: return 0;
    case WRITE:
    case READ: plain(&next, t, p); break;
    case STORE: put(&next, t, p, how, p->value); break;
    case LOAD:
    case AWAIT:
        k = s->view[t][p->place];
        k = how == TOTAL && s->total[p->place] > k ? s->total[p->place] : k;
        for (; k <= last; k++) {
            if (p->op == LOAD || s->list[p->place][k].value >= p->value) {
                next = *s;
                next.at[t]++;
                next.reg[t][p->reg] = (uint8_t)get(&next, t, p, how, k);
                explore(&next);
                moved = 1;
            }
        }
        return moved;
    case ADD:
    case SWAP:
    case CLAIM: /* from the value to 0; the result is 1 if that worked */
        k = get(&next, t, p, how == TOTAL ? TOTAL : RELAXED, last);
        next.reg[t][p->reg] = (uint8_t)(p->op == CLAIM ? k == p->value : k);
        if (p->op != CLAIM || k == p->value) {
            put(&next, t, p, how, p->op == ADD ? k + p->value : p->op == SWAP ? p->value : 0);
        }
        break;
    case FENCE:
        if (p->name == weak && weak >= 0) {
        } else if (how == RELEASE) {
            next.fenced[t] = 1;
            memcpy(next.gives[t], next.view[t], PLACES);
        } else if (how == ACQUIRE) {
            take(next.view[t], next.found[t], PLACES);
        } else {
            take(next.view[t], s->total, PLACES);
            take(next.total, next.view[t], PLACES);
        }
        break;
    case IS:
        if (s->reg[t][p->reg] != p->value) {
            fault = "a wrong value";
        }
        break;
    case UNLESS: /* skips `place` steps unless the register has the value */
        next.at[t] = (uint8_t)(next.at[t] + (s->reg[t][p->reg] == p->value ? 0 : p->place));
        break;
    case SLEEP: /* the kernel compares the newest value; a rank that rings changes it */
        if (s->list[p->place][last].value == s->reg[t][p->reg]) {
            return 0;
        }
        break;
    default: return 0;
    }
    explore(&next);
    return 1;
}

static void explore(const state *s)
{
    int t, moved = 0, ended = 0;
    if (fault != NULL || !is_new(s)) {
        return;
    }
    for (t = 0; t < threads && fault == NULL; t++) {
        moved += walk(s, t);
        ended += program[t][s->at[t]].op == END;
    }
    if (fault == NULL && moved == 0 && ended < threads) {
        fault = "a thread waits for ever";
    }
}

/* ---- the protocols ---- */

static int named(const char *name)
{
    int i;
    if (name == NULL) {
        return -1;
    }
    for (i = 0; i < name_count && strcmp(names[i], name) != 0; i++) {
    }
    names[i] = name;
    name_count += i == name_count;
    return i;
}
static void does(int t, int op, int place, int how, int value, const char *name)
{
    step *p = &program[t][length[t]++];
    p->op = op;
    p->place = place;
    p->how = how;
    p->value = value;
    p->reg = 0;
    p->name = named(name);
    threads = t >= threads ? t + 1 : threads;
}
static void with(int t, int reg)
{
    program[t][length[t] - 1].reg = reg;
}

/* p2p.c, collectives.c: cells that are used again. Rank 0 writes; rank 1 reads and reports how far
 * it is. */
static void ring(void)
{
    enum { CELLS = 2, MESSAGES = 5, CELL = 0, WORD = 2, CONSUMED = 4 };
    int i;
    for (i = 0; i < MESSAGES; i++) {
        if (i >= CELLS) {
            does(0, AWAIT, CONSUMED, ACQUIRE, i + 1 - CELLS, "load consumed");
        }
        does(0, WRITE, CELL + i % CELLS, 0, 10 + i, NULL);
        does(0, STORE, WORD + i % CELLS, RELEASE, i + 1, "store word");
        does(1, AWAIT, WORD + i % CELLS, ACQUIRE, i + 1, "load word");
        does(1, READ, CELL + i % CELLS, 0, 10 + i, NULL);
        does(1, STORE, CONSUMED, RELEASE, i + 1, "store consumed");
    }
}

/* collectives.c: two lines per rank, by the parity of the operation; all ranks wait for all words,
 * then read. Only the next word of a reader shows that it has read a line. */
static void entry(void)
{
    enum { N = 3, OPERATIONS = 3 };
    int r, k, p;
    for (r = 0; r < N; r++) {
        for (k = 1; k <= OPERATIONS; k++) {
            does(r, WRITE, 2 * r + k % 2, 0, 10 * r + k, NULL);
            does(r, STORE, 6 + 2 * r + k % 2, RELEASE, k, "store word");
            for (p = 0; p < N; p++) {
                if (p != r) {
                    does(r, AWAIT, 6 + 2 * p + k % 2, ACQUIRE, k, "load word");
                }
            }
            for (p = 0; p < N; p++) {
                if (p != r) {
                    does(r, READ, 2 * p + k % 2, 0, 10 * p + k, NULL);
                }
            }
        }
    }
}

/* arrival.c: 0 and 2 lead; the payload of 1 is copied through `up` to 2 and through `down` to 3, which
 * also reads it where 1 wrote it. */
static void gate(void)
{
    enum { PAYLOAD, WORD, BOX, UP, RESULT, DOWN, BACK };
    does(1, WRITE, PAYLOAD, 0, 7, NULL);
    does(1, STORE, WORD, RELEASE, 1, "store word");
    does(1, AWAIT, BACK, ACQUIRE, 1, "load the next word");
    does(1, WRITE, PAYLOAD, 0, 8, NULL); /* reuses the line */
    does(0, AWAIT, WORD, ACQUIRE, 1, "load word");
    does(0, READ, PAYLOAD, 0, 7, NULL);
    does(0, WRITE, BOX, 0, 7, NULL);
    does(0, STORE, UP, RELEASE, 1, "store up");
    does(2, AWAIT, UP, ACQUIRE, 1, "load up");
    does(2, READ, BOX, 0, 7, NULL);
    does(2, WRITE, RESULT, 0, 9, NULL);
    does(2, STORE, DOWN, RELEASE, 1, "store down");
    does(3, AWAIT, DOWN, ACQUIRE, 1, "load down");
    does(3, READ, RESULT, 0, 9, NULL);
    does(3, READ, BOX, 0, 7, NULL);
    does(3, READ, PAYLOAD, 0, 7, NULL);
    does(3, STORE, BACK, RELEASE, 1, "store the next word");
}

/* wait.c: 0 waits for the word of 1 and goes to sleep; 1 rings if it sees it asleep. These are the
 * steps of dpari_wait_slow and dpari_publish. */
static void sleepers(void)
{
    enum { WORD, SLEEPERS, FOR, ASLEEP, BELL, PAYLOAD };
    does(0, LOAD, BELL, TOTAL, 0, NULL);
    with(0, 1);
    does(0, ADD, SLEEPERS, TOTAL, 1, NULL);
    does(0, STORE, FOR, RELEASE, 1, NULL);
    does(0, SWAP, ASLEEP, TOTAL, 1, "exchange asleep");
    with(0, 3);
    does(0, FENCE, 0, 0, 0, "fence");
    does(0, LOAD, WORD, ACQUIRE, 0, NULL);
    does(0, UNLESS, 1, 0, 0, NULL); /* it has arrived: no sleep */
    does(0, SLEEP, BELL, 0, 0, NULL);
    with(0, 1);
    does(0, AWAIT, WORD, ACQUIRE, 1, "load word");
    does(0, READ, PAYLOAD, 0, 5, NULL);

    does(1, WRITE, PAYLOAD, 0, 5, NULL);
    does(1, STORE, WORD, TOTAL, 1, "store word");
    does(1, LOAD, SLEEPERS, TOTAL, 0, "load sleepers");
    does(1, UNLESS, 6, 0, 1, NULL);
    does(1, LOAD, ASLEEP, TOTAL, 0, "load asleep");
    does(1, UNLESS, 4, 0, 1, NULL);
    does(1, LOAD, FOR, ACQUIRE, 0, NULL);
    does(1, IS, 0, 0, 1, NULL); /* whom the sleeper waits for */
    does(1, CLAIM, ASLEEP, TOTAL, 1, NULL);
    does(1, ADD, BELL, TOTAL, 1, NULL);
}

/* group.c, shm.c: 0 breaks the communicator, 1 learns of it; both then write to their memory, which
 * 2, who was suspended, still reads. If it read those writes, it must learn that the communicator
 * is broken. */
static void given_up(void)
{
    enum { BROKEN, MEMORY, MORE };
    int k;
    does(0, STORE, BROKEN, RELEASE, 1, NULL);
    does(0, FENCE, 0, RELEASE, 0, "fence of who breaks");
    does(0, STORE, MEMORY, RELAXED, 2, NULL);
    does(1, AWAIT, BROKEN, ACQUIRE, 1, NULL);
    does(1, FENCE, 0, RELEASE, 0, "fence of who hears");
    does(1, STORE, MORE, RELAXED, 2, NULL);
    for (k = MEMORY; k <= MORE; k++) {
        does(2, LOAD, k, RELAXED, 0, NULL);
        with(2, k);
    }
    does(2, FENCE, 0, ACQUIRE, 0, "fence of who reads");
    does(2, LOAD, BROKEN, ACQUIRE, 0, NULL);
    for (k = MEMORY; k <= MORE; k++) {
        does(2, UNLESS, 1, 0, 2, NULL);
        with(2, k);
        does(2, IS, 0, 0, 1, NULL);
    }
}

static int holds(void)
{
    static state first;
    int x;
    memset(&first, 0, sizeof first);
    for (x = 0; x < PLACES; x++) {
        first.n[x] = 1;
    }
    for (x = 0; x < THREADS; x++) {
        first.clock[x][x] = 1;
    }
    memset(seen, 0, room * sizeof *seen);
    states = 0;
    fault = NULL;
    explore(&first);
    return fault == NULL;
}

static int judge(const char *name, void (*make)(void))
{
    int bad = 0;
    memset(program, 0, sizeof program);
    memset(length, 0, sizeof length);
    threads = name_count = 0;
    make();
    weak = -1;
    bad |= !holds();
    printf("order %s: %s, %llu states\n", name, fault == NULL ? "holds" : fault,
           (unsigned long long)states);
    for (weak = 0; weak < name_count; weak++) {
        int held = holds();
        printf("order %s without \"%s\": %s\n", name, names[weak],
               held ? "holds: the fault is not found" : fault);
        bad |= held;
    }
    return bad;
}

int main(void)
{
    int bad = 0;
    room = UINT64_C(1) << 23;
    seen = (uint64_t *)calloc(room, sizeof *seen);
    if (seen == NULL) {
        return 2;
    }
    bad |= judge("ring", ring);
    bad |= judge("entry", entry);
    bad |= judge("gate", gate);
    bad |= judge("sleep", sleepers);
    bad |= judge("given up", given_up);
    free(seen);
    return bad;
}
