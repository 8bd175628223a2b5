/* SPDX-License-Identifier: MIT-0 */
/* Tests src/exchange by itself: plans of numbers with random peers, steps and modes, over shared
 * memory, messages, or both (as if every two ranks were a node). Values are packed or read in
 * place. What a rank sends in a step depends on what it has received in the steps before. Each rank
 * computes the state of all ranks by a plain loop and compares its own after each exchange. An
 * adjoint combines in the order of ranks.
 *   cc -DDPAR_STATIC -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/exchange/ranks/exchange.c -lm */
#include "dpar_comm.h"
#include "rank_program.h"

#include <unistd.h>

enum { RANKS = 5, STEPS = 4, MOST = 5, PLANS = 2, ROUNDS = 40 };
enum { FORWARD = DPARI_EXCHANGE_FORWARD, ADJOINT = DPARI_EXCHANGE_ADJOINT };

/* What all ranks exchange, the same on all of them. In a forward exchange rank a sends count[s][a]
 * [b] numbers to rank b in step s. */
typedef struct scheme {
    int32_t ranks, steps, early, together;
    int32_t modes[STEPS], line[STEPS];
    int32_t count[STEPS][RANKS][RANKS];
    int32_t direct[STEPS][RANKS][RANKS]; /* 1 if read in place in a forward exchange */
    uint64_t seed;
} scheme;

/* In registered memory: what peers read. Numbers that are read in place have no turns. */
typedef struct shared_part {
    dpari_exchange_line line[STEPS];
    uint64_t packed[2][STEPS][RANKS][MOST];
    uint64_t place[STEPS][RANKS][MOST];
} shared_part;

typedef struct plan {
    dpari_exchange x;
    const scheme *of;
    dpar_comm *comm;
    void *memory, *tables;
    shared_part *mine;
    const shared_part *theirs[RANKS]; /* by peer; NULL unless it shares memory */
    uint64_t out[STEPS][RANKS][MOST], in[STEPS][RANKS][MOST]; /* messages, by peer */
    uint64_t start[STEPS]; /* the state when the step was packed */
    uint64_t state;
    uint64_t every[RANKS]; /* the states of all ranks, by the plain loop */
    int32_t finished;
} plan;

/* ---- values ---------------------------------------------------------------------------------- */

static uint64_t mixed(uint64_t a, uint64_t b)
{
    uint64_t seed = a * UINT64_C(0x9e3779b97f4a7c15) + b;
    return lot_next(&seed);
}

/* Returns number k that rank `from`, whose state is `start`, sends to rank `to` in a step. */
static uint64_t value_of(const scheme *of, int64_t round, int32_t s, int32_t from, int32_t to,
                         int32_t k, uint64_t start)
{
    const uint64_t place = (uint64_t)(((s * RANKS + from) * RANKS + to) * MOST + k);
    return mixed(of->seed + (uint64_t)round, place) + start;
}

/* Returns how many numbers rank `from` sends to rank `to`. */
static int32_t count_of(const scheme *of, int32_t mode, int32_t s, int32_t from, int32_t to)
{
    return mode == FORWARD ? of->count[s][from][to] : of->count[s][to][from];
}

/* Adds a number to a state: in any order in a forward exchange, in one order in an adjoint. */
static uint64_t taken(uint64_t state, int32_t mode, int32_t k, uint64_t value)
{
    return mode == FORWARD ? state + value * (uint64_t)(k + 1) : state * 31 + value;
}

/* Advances the states of all ranks by an exchange. */
static void by_hand(plan *p, int32_t mode, int64_t round)
{
    const scheme *of = p->of;
    uint64_t before[RANKS], start[RANKS];
    int32_t n, from, to, k;
    memcpy(before, p->every, sizeof before);
    for (n = 0; n < of->steps; n++) {
        const int32_t s = mode == FORWARD ? n : of->steps - 1 - n;
        if (!(of->modes[s] >> mode & 1)) {
            continue;
        }
        memcpy(start, mode == FORWARD && s == of->early && s > 0 ? before : p->every, sizeof start);
        for (to = 0; to < of->ranks; to++) {
            for (from = 0; from < of->ranks; from++) {
                for (k = 0; k < count_of(of, mode, s, from, to); k++) {
                    p->every[to] = taken(p->every[to], mode, k,
                                         value_of(of, round, s, from, to, k, start[from]));
                }
            }
        }
    }
}

/* ---- the functions of a plan ------------------------------------------------------------------ */

static dpar_status pack(void *at, int32_t s)
{
    plan *p = (plan *)at;
    const int32_t me = p->comm->rank, mode = p->x.mode;
    int32_t i, k;
    p->start[s] = p->state;
    for (i = 0; i < p->x.peers; i++) {
        const int32_t to = p->x.peer[i].rank, count = count_of(p->of, mode, s, me, to);
        for (k = 0; k < count; k++) {
            const uint64_t value = value_of(p->of, p->x.count, s, me, to, k, p->state);
            if (i == p->x.self) {
                continue;
            }
            if (p->x.peer[i].world < 0) {
                p->out[s][i][k] = value;
            } else if (mode == FORWARD && p->of->direct[s][me][to]) {
                p->mine->place[s][to][k] = value;
            } else {
                p->mine->packed[dpari_exchange_turn(&p->x)][s][to][k] = value;
            }
        }
    }
    return DPAR_OK;
}

static unsigned char *message(void *at, int32_t s, int32_t i, int sends)
{
    plan *p = (plan *)at;
    return (unsigned char *)(sends ? p->out[s][i] : p->in[s][i]);
}

static void take_numbers(plan *p, int32_t s, int32_t from, const uint64_t *value)
{
    int32_t k;
    for (k = 0; k < count_of(p->of, p->x.mode, s, from, p->comm->rank); k++) {
        p->state = taken(p->state, p->x.mode, k, value[k]);
    }
}

static void take_from_myself(plan *p, int32_t s)
{
    const int32_t me = p->comm->rank;
    uint64_t value[MOST];
    int32_t k;
    for (k = 0; k < MOST; k++) {
        value[k] = value_of(p->of, p->x.count, s, me, me, k, p->start[s]);
    }
    take_numbers(p, s, me, value);
}

static void take_own(void *at, int32_t s)
{
    plan *p = (plan *)at;
    if (p->x.mode == ADJOINT && !p->x.step[s].alone) {
        return; /* in its turn */
    }
    if (p->x.step[s].alone && (p->x.mode == ADJOINT || s != p->x.early || s == 0)) {
        p->start[s] = p->state; /* because nothing was packed */
    }
    take_from_myself(p, s);
}

static dpar_status take(void *at, int32_t s, int32_t i)
{
    plan *p = (plan *)at;
    const int32_t from = p->x.peer[i].rank, me = p->comm->rank;
    if (i == p->x.self) {
        take_from_myself(p, s);
    } else if (p->x.peer[i].world < 0) {
        take_numbers(p, s, from, p->in[s][i]);
    } else if (p->x.mode == FORWARD && p->of->direct[s][from][me]) {
        CHECK(p->x.peer[i].lends);
        take_numbers(p, s, from, p->theirs[i]->place[s][me]);
    } else {
        take_numbers(p, s, from, p->theirs[i]->packed[dpari_exchange_turn(&p->x)][s][me]);
    }
    return DPAR_OK;
}

static dpar_status finish(void *at, int32_t s)
{
    plan *p = (plan *)at;
    CHECK(!p->x.step[s].alone);
    p->finished++;
    return DPAR_OK;
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* Draws a scheme. With `early`, all but one step of each mode are for each rank alone, and the
 * steps share a line, as in a halo that is cut along one dim. */
static void draw(scheme *of, int32_t ranks, uint64_t *seed)
{
    const int32_t dense = 1 + (int32_t)lot_below(seed, 3);
    int32_t s, a, b;
    memset(of, 0, sizeof *of);
    of->ranks = ranks;
    of->early = lot_below(seed, 3) == 0;
    of->together = (int32_t)lot_below(seed, 2);
    of->steps = of->early ? 4 : 1 + (int32_t)lot_below(seed, STEPS);
    of->seed = lot_next(seed);
    for (s = 0; s < of->steps; s++) {
        of->modes[s] = of->early ? 1 << (s < 3 ? FORWARD : ADJOINT) : 1 << FORWARD | 1 << ADJOINT;
        of->line[s] = of->early ? 0 : s;
        for (a = 0; a < ranks; a++) {
            for (b = 0; b < ranks; b++) {
                const int exists = a == b || !of->early || s % 2 == 1;
                of->count[s][a][b] =
                    exists && lot_below(seed, 4) < dense ? 1 + (int32_t)lot_below(seed, MOST) : 0;
                of->direct[s][a][b] = lot_below(seed, 3) == 0;
            }
        }
    }
    for (a = 0; a < ranks && of->early; a++) { /* the same peers in both modes */
        for (b = 0; b < ranks; b++) {
            of->count[3][a][b] = of->count[1][a][b];
        }
    }
}

/* Sets what this rank and peer i exchange. */
static void set_flows(plan *p, int32_t i)
{
    const scheme *of = p->of;
    const int32_t me = p->comm->rank, other = p->x.peer[i].rank;
    const int shares = p->x.peer[i].world >= 0 && i != p->x.self;
    int32_t s, t, mode;
    for (s = 0; s < of->steps; s++) {
        dpari_exchange_flow *flow = &p->x.flow[i * of->steps + s];
        const int32_t gives = of->count[s][me][other], gets = of->count[s][other][me];
        for (mode = 0; mode < 2; mode++) {
            if (!(of->modes[s] >> mode & 1)) {
                continue;
            }
            flow->out_bytes[mode] = 8 * count_of(of, mode, s, me, other);
            flow->in_bytes[mode] = 8 * count_of(of, mode, s, other, me);
            flow->takes[mode] = flow->in_bytes[mode] > 0 && (mode == ADJOINT || other != me);
        }
        flow->lends[FORWARD] = shares && flow->out_bytes[FORWARD] > 0 && of->direct[s][me][other];
        p->x.lends |= flow->lends[FORWARD];
        p->x.step[s].meets |= shares && gives + gets > 0;
        p->x.step[s].alone &= other == me || gives + gets == 0;
        p->x.oneway |= shares && (gives == 0) != (gets == 0);
    }
    for (s = 0; s < of->steps && shares; s++) { /* steps that share a line share memory */
        for (t = 0; t < of->steps; t++) {
            const dpari_exchange_flow *flow = &p->x.flow[i * of->steps + t];
            const int packs = (flow->out_bytes[FORWARD] > 0 && !flow->lends[FORWARD]) ||
                              flow->out_bytes[ADJOINT] > 0;
            p->x.flow[i * of->steps + s].packed |= of->line[s] == of->line[t] && packs;
        }
    }
}

/* Finds the memory of the peers, by the library's own records. */
static void connect_peers(plan *p)
{
    int64_t mine[RANKS], theirs[RANKS];
    int32_t i;
    for (i = 0; i < p->x.peers; i++) {
        mine[i] =
            p->x.peer[i].world >= 0 && p->x.world ? (int64_t)dpari_ref(p->x.world, p->mine, 1) : 0;
    }
    CHECK_INT(dpari_exchange_records(&p->x, mine, theirs, 1), DPAR_OK);
    for (i = 0; i < p->x.peers; i++) {
        if (i == p->x.self) {
            continue;
        }
        if (p->x.peer[i].world < 0 || theirs[i] == 0) {
            p->x.peer[i].world = -1;
            continue;
        }
        p->theirs[i] = (const shared_part *)dpari_at(p->x.world, (uint64_t)theirs[i]);
        p->x.peer[i].line = (dpari_exchange_line *)(uintptr_t)p->theirs[i]->line;
        p->x.shared++;
    }
}

static void make(plan *p, const scheme *of, dpar_comm *comm, int messages, int32_t tag)
{
    dpari_room room;
    int32_t a, s, pass;
    memset(p, 0, sizeof *p);
    p->of = of;
    p->comm = comm;
    p->x.comm = comm;
    p->x.node = comm->node ? comm->node : comm;
    p->x.world = messages ? NULL : dpari_world_of(p->x.node);
    p->x.plan = p;
    p->x.pack = pack;
    p->x.message = message;
    p->x.take_own = take_own;
    p->x.take = take;
    p->x.finish = finish;
    p->x.name = "test";
    p->x.end = "end";
    p->x.item = "number";
    p->x.items = 1;
    p->x.steps = of->steps;
    p->x.early = of->early;
    p->x.together = of->together;
    p->x.tag = tag;
    p->x.self = -1;
    room.at = NULL;
    for (pass = 0; pass < 2; pass++) {
        room.used = 0;
        dpari_exchange_room(&p->x, &room, of->ranks, of->steps, of->ranks);
        if (pass == 0) {
            p->tables = zeroed(room.used);
            room.at = (unsigned char *)p->tables;
        }
    }
    CHECK_INT(dpar_comm_alloc(p->x.node, (int64_t)sizeof *p->mine, &p->memory), DPAR_OK);
    p->mine = (shared_part *)p->memory;
    memset(p->mine, 0, sizeof *p->mine);
    p->x.line = p->mine->line;
    for (a = 0; a < of->ranks; a++) {
        int32_t all = 0;
        for (s = 0; s < of->steps; s++) {
            all += of->count[s][a][comm->rank] + of->count[s][comm->rank][a];
        }
        if (all > 0) {
            p->x.self = a == comm->rank ? p->x.peers : p->x.self;
            p->x.peer[p->x.peers].rank = a;
            p->x.peer[p->x.peers++].world = a == comm->rank ? 0 : -1;
        }
    }
    CHECK_INT(dpari_exchange_find_node(&p->x), DPAR_OK);
    connect_peers(p);
    for (s = 0; s < of->steps; s++) {
        p->x.step[s].modes = of->modes[s];
        p->x.step[s].line = of->line[s];
        p->x.step[s].alone = 1;
    }
    for (a = 0; a < p->x.peers; a++) {
        set_flows(p, a);
    }
}

static void destroy(plan *p)
{
    int32_t refused;
    CHECK_INT(dpari_exchange_close(&p->x, "", &refused), DPAR_OK);
    dpar_comm_release(p->x.node, p->memory);
    free(p->tables);
}

/* ---- exchanges -------------------------------------------------------------------------------- */

static void begin(plan *p, int32_t op)
{
    const int32_t lends = p->x.lends;
    CHECK_INT(dpari_exchange_may_begin(&p->x), DPAR_OK);
    p->x.lends = lends && op == DPAR_COPY;
    p->finished = 0;
    CHECK_INT(dpari_exchange_begin(&p->x, op, p->of->seed), DPAR_OK);
    p->x.lends = lends;
}

/* Ends an exchange, by tests if `tests` is 1, and compares the state. */
static void end(plan *p, int32_t op, int tests)
{
    const int32_t mode = op == DPAR_COPY ? FORWARD : ADJOINT;
    dpar_status status = DPAR_MORE;
    int32_t s, meets = 0;
    while (tests && status == DPAR_MORE) {
        status = dpari_exchange_advance(&p->x, 0);
    }
    CHECK_INT(dpari_exchange_advance(&p->x, 1), DPAR_OK);
    for (s = 0; s < p->of->steps; s++) {
        meets += (p->of->modes[s] >> mode & 1) && !p->x.step[s].alone;
    }
    CHECK_INT(p->finished, meets);
    by_hand(p, mode, p->x.count);
    CHECK(p->state == p->every[p->comm->rank]);
}

/* Runs exchanges of two plans, each of them alone or both at the same time. */
static void case_of(dpar_comm *comm, uint64_t seed, int messages)
{
    static const int32_t ops[4] = {DPAR_COPY, DPAR_COPY, DPAR_SUM, DPAR_MIN};
    uint64_t own = seed + 77 * (uint64_t)comm->rank;
    scheme of[PLANS];
    plan *p = (plan *)zeroed(PLANS * (int64_t)sizeof *p);
    int32_t i, round;
    for (i = 0; i < PLANS; i++) {
        draw(&of[i], comm->size, &seed);
        make(&p[i], &of[i], comm, messages, 10 + i);
    }
    for (round = 0; round < ROUNDS && failures() == 0; round++) {
        const int32_t op[PLANS] = {ops[lot_below(&seed, 4)], ops[lot_below(&seed, 4)]};
        const int64_t which = lot_below(&seed, 3);
        const int tests = lot_below(&own, 3) == 0;
        const int32_t first = (int32_t)lot_below(&seed, 2); /* steps meet in the same order */
        if (lot_below(&own, 12) == 0) {
            usleep((unsigned)lot_below(&own, 300));
        }
        if (which < PLANS) {
            begin(&p[which], op[which]);
            end(&p[which], op[which], tests);
            continue;
        }
        begin(&p[0], op[0]);
        begin(&p[1], op[1]);
        end(&p[first], op[first], tests);
        end(&p[1 - first], op[1 - first], 0);
    }
    for (i = 0; i < PLANS; i++) {
        destroy(&p[i]);
    }
    free(p);
}

static int each(dpar_comm *comm, void *arg)
{
    const int cases = getenv("EXCHANGE_CASES") ? atoi(getenv("EXCHANGE_CASES")) : 9;
    dpar_comm *node = NULL;
    int i;
    (void)arg;
#ifndef USE_MPI
    CHECK_INT(dpar_comm_split(comm, comm->rank / 2, 0, &node), DPAR_OK);
#endif
    for (i = 0; i < cases && failures() == 0; i++) {
        comm->node = i % 3 == 1 && node ? node : comm->node;
        case_of(comm, 1000003 * (uint64_t)i + (uint64_t)comm->size, i % 3 == 2);
        comm->node = node ? NULL : comm->node;
    }
    CHECK_INT(dpar_comm_free(node), DPAR_OK);
    return failures() > 0;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, RANKS, 4, NULL);
}
