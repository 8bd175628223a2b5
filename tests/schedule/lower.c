/* SPDX-License-Identifier: MIT-0 */
/* Tests lower: the two lowered lists among the reference files; PyTorch's passes on every
 * compute-only list (tests/data/pipeline/pt_lowered.tsv states how it was made); a plain and slow
 * restatement of the passes' rules (PyTorch's torch/distributed/pipelining/schedules.py, and the
 * order of the data) on random schedules of any shape; and the numbers of waiting receives, which
 * are not published but simulated from the same rules. Run with: tests/run test schedule. */
#include "dpar_schedule.h"

#include "check.h"
#include "data_lines.h"
#include "schedule_calls.h"

#include <stdlib.h>

enum { ROOM = 1 << 21 };
static char text[1 << 18], again[1 << 18];
static int64_t memory[ROOM / 8], first[ROOM / 8], third[ROOM / 8];

static void read_text(dpar_schedule *s, size_t n, int32_t chain, int64_t *mem)
{
    dpar_why why;
    CHECK_INT(read_csv(s, text, n, chain, mem, ROOM, &why), DPAR_OK);
}

static dpar_schedule read_file(const char *name, int32_t chain)
{
    dpar_schedule s;
    read_text(&s, data_lines(name, text, sizeof text), chain, memory);
    return s;
}

static void read_lines(dpar_schedule *s, const char *lines, int32_t chain, int64_t *mem)
{
    snprintf(text, sizeof text, "%s", lines);
    read_text(s, strlen(text), chain, mem);
}

static const char *written(const dpar_schedule *s)
{
    dpar_text t;
    dpar_text_init(&t, again, sizeof again);
    dpar_schedule_write(s, "\n", &t);
    CHECK(t.used < sizeof again);
    return again;
}

/* Lowers into memory of exactly the requested size, which held other values before. */
static dpar_schedule lower(const dpar_schedule *in, int32_t passes, int32_t max_active,
                           int64_t *mem)
{
    dpar_schedule_lower_desc how = lowering_of(passes, 0);
    dpar_schedule out;
    dpar_why why;
    int64_t bytes;
    how.max_active = max_active;
    memset(&out, 0, sizeof out);
    why.text[0] = 0;
    bytes = dpari_schedule_lower_bytes(in, &how, &why);
    CHECK(bytes > 0 && bytes <= ROOM);
    memset(mem, 0x5a, (size_t)bytes);
    CHECK_INT(dpar_schedule_lower(&out, in, &how, mem, bytes, &why), DPAR_OK);
    CHECK_TEXT(why.text, "");
    CHECK_INT(out.chain, in->chain);
    CHECK_INT(out.micro_batches, in->micro_batches);
    CHECK_INT(out.slices, in->slices);
    return out;
}

static dpar_schedule merge(const dpar_schedule *in, int64_t *mem)
{
    dpar_schedule out;
    int64_t bytes = merge_list_bytes(in, NULL);
    CHECK(bytes > 0 && bytes <= ROOM);
    CHECK_INT(merge_list(&out, in, mem, bytes, NULL), DPAR_OK);
    CHECK_INT(dpari_schedule_bytes(out.ranks, out.stages, out.begin[out.ranks]), bytes);
    return out;
}

static dpar_schedule sink(const dpar_schedule *in, int32_t channel_class, int64_t *mem)
{
    dpar_schedule out;
    int64_t bytes = late_recv_bytes(in, NULL);
    CHECK(bytes > 0 && bytes <= ROOM);
    memset(mem, 0x5a, (size_t)bytes);
    CHECK_INT(late_recv(&out, in, channel_class, mem, bytes, NULL), DPAR_OK);
    CHECK(memcmp(out.begin, in->begin, 8 * (size_t)(in->ranks + 1)) == 0);
    return out;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Derives the messages of both lists from the computations; drops the idle cells of the second. */
static void test_reference(void)
{
    static const char *const name[] = {"1f1b_p4_m8", "interleaved1f1b_p4_v2_m8"};
    static char expected[1 << 12];
    size_t k;
    for (k = 0; k < 2; k++) {
        char comms[64];
        dpar_schedule s, out, again_lowered;
        dpar_why why;
        snprintf(comms, sizeof comms, "%s_comms", name[k]);
        (void)data_lines(comms, text, sizeof text);
        memcpy(expected, text, sizeof expected);
        s = read_file(name[k], 0);
        out = lower(&s, DPAR_LOWER_TURNS, 0, first);
        CHECK_TEXT(written(&out), expected);
        out = lower(&s, DPAR_LOWER_MESSAGES, 0, first);
        CHECK_INT(dpar_schedule_lower(&again_lowered, &s, NULL, third, sizeof third, &why),
                  DPAR_OK);
        CHECK(memcmp(out.action, again_lowered.action,
                     sizeof *out.action * (size_t)out.begin[out.ranks]) == 0);
    }
}

static uint64_t fnv(const char *s)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    while (*s != 0) {
        h = (h ^ (unsigned char)*s++) * UINT64_C(0x100000001b3);
    }
    return h;
}

static int64_t cells(const dpar_schedule *s)
{
    int64_t k, n = s->begin[s->ranks];
    for (k = 0; k < s->begin[s->ranks]; k++) {
        n -= s->action[k].joined;
    }
    return n;
}

static void test_pytorch(void)
{
    char line[256], name[64];
    int passes, active, lines = 0;
    long long count;
    unsigned long long hash;
    FILE *f = fopen("tests/data/pipeline/pt_lowered.tsv", "r");
    CHECK(f != NULL);
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        dpar_schedule s, out;
        if (sscanf(line, "%63s %d %d %lld %llx", name, &passes, &active, &count, &hash) != 5) {
            continue;
        }
        s = read_file(name, 0);
        out = passes == 0 ? merge(&s, first) : lower(&s, passes | DPAR_LOWER_TURNS, active, first);
        if (cells(&out) != count || fnv(written(&out)) != hash) {
            printf("%s, passes %d, max_active %d:\n", name, passes, active);
        }
        CHECK_INT(cells(&out), count);
        CHECK(fnv(written(&out)) == hash);
        lines++;
    }
    CHECK_INT(lines, 20 * 7);
    if (f != NULL) {
        fclose(f);
    }
}

/* ---- the rules, restated --------------------------------------------------------------------- */

/* A cell: an action and optionally its other half. */
typedef struct cell {
    dpar_action a[2];
} cell;
typedef struct lists {
    int ranks, n[5000];
    cell *of[5000];
} lists;

static cell cells_of[1 << 18], more_cells[1 << 18];

static dpar_action action(int kind, int stage, int micro, int peer)
{
    dpar_action a;
    memset(&a, 0, sizeof a);
    a.kind = (uint8_t)kind;
    a.stage = (uint16_t)stage;
    a.micro_batch = (uint16_t)micro;
    a.peer = (uint16_t)peer;
    return a;
}

static void put(lists *l, int rank, dpar_action a)
{
    cell *c = &l->of[rank][l->n[rank]++];
    memset(c, 0, sizeof *c);
    c->a[0] = a;
}

/* Gives each list memory for `room` cells. */
static void empty_lists(lists *l, int ranks, int room, cell *from)
{
    int r;
    CHECK(ranks <= 5000 && (int64_t)ranks * room <= 1 << 18);
    l->ranks = ranks;
    for (r = 0; r < ranks; r++) {
        l->n[r] = 0;
        l->of[r] = from + r * room;
    }
}

static void to_lists(lists *l, const dpar_schedule *s, int room, cell *from)
{
    int64_t k;
    int r;
    empty_lists(l, s->ranks, room, from);
    for (r = 0; r < s->ranks; r++) {
        CHECK(s->begin[r + 1] - s->begin[r] <= room);
        for (k = s->begin[r]; k < s->begin[r + 1]; k += 1 + s->action[k].joined) {
            put(l, r, s->action[k]);
            if (s->action[k].joined) {
                l->of[r][l->n[r] - 1].a[1] = s->action[k + 1];
            }
        }
    }
}

static int same_lists(const lists *l, const dpar_schedule *s)
{
    int r, i, h, same = 1;
    for (r = 0; r < s->ranks; r++) {
        const dpar_action *a = &s->action[s->begin[r]];
        for (i = 0; i < l->n[r]; i++) {
            for (h = 0; h <= l->of[r][i].a[0].joined; h++) {
                same = same && a < &s->action[s->begin[r + 1]] &&
                       memcmp(a++, &l->of[r][i].a[h], sizeof *a) == 0;
            }
        }
        same = same && a == &s->action[s->begin[r + 1]];
    }
    return same;
}

static int listed(const lists *l, int rank, int kind, int stage, int micro)
{
    int i, h;
    for (i = 0; i < l->n[rank]; i++) {
        const dpar_action *a = l->of[rank][i].a;
        for (h = 0; h <= a->joined; h++) {
            if (a[h].kind == kind && a[h].stage == stage && a[h].micro_batch == micro) {
                return 1;
            }
        }
    }
    return 0;
}

static int may_go(const lists *out, int rank, const dpar_schedule *s, const dpar_action *a)
{
    if (a->kind == DPAR_ACTION_FORWARD && a->stage % s->chain != 0) {
        return listed(out, rank, DPAR_ACTION_RECV_F, a->stage, a->micro_batch) ||
               listed(out, rank, DPAR_ACTION_FORWARD, a->stage - 1, a->micro_batch);
    }
    if ((a->kind == DPAR_ACTION_BACKWARD || a->kind == DPAR_ACTION_INPUT) &&
        a->stage % s->chain != s->chain - 1) {
        return listed(out, rank, DPAR_ACTION_RECV_B, a->stage, a->micro_batch) ||
               listed(out, rank, DPAR_ACTION_BACKWARD, a->stage + 1, a->micro_batch) ||
               listed(out, rank, DPAR_ACTION_INPUT, a->stage + 1, a->micro_batch);
    }
    return 1;
}

static void send(lists *out, int rank, const dpar_schedule *s, const dpar_action *a)
{
    int forward = a->kind == DPAR_ACTION_FORWARD, to = a->stage + (forward ? 1 : -1), peer;
    if (!forward && a->kind != DPAR_ACTION_BACKWARD && a->kind != DPAR_ACTION_INPUT) {
        return;
    }
    if (to < 0 || to / s->chain != a->stage / s->chain || to >= s->stages ||
        s->rank_of[to] == rank) {
        return;
    }
    peer = s->rank_of[to];
    put(out, rank,
        action(forward ? DPAR_ACTION_SEND_F : DPAR_ACTION_SEND_B, a->stage, a->micro_batch, peer));
    put(out, peer,
        action(forward ? DPAR_ACTION_RECV_F : DPAR_ACTION_RECV_B, to, a->micro_batch, rank));
}

/* Takes one action per rank and sweep, over all ranks until none can run. Returns 1 if all ran. */
static int round_robin(lists *out, const lists *in, const dpar_schedule *s)
{
    static int at[5000];
    int r, moved = 1, left = 0;
    memset(at, 0, sizeof at);
    while (moved) {
        moved = left = 0;
        for (r = 0; r < in->ranks; r++) {
            const cell *c = &in->of[r][at[r]];
            left += at[r] < in->n[r];
            if (at[r] == in->n[r] || !may_go(out, r, s, &c->a[0]) ||
                (c->a[0].joined && !may_go(out, r, s, &c->a[1]))) {
                continue;
            }
            if (c->a[0].kind != DPAR_ACTION_IDLE) {
                out->of[r][out->n[r]++] = *c;
                send(out, r, s, &c->a[0]);
                if (c->a[0].joined) {
                    send(out, r, s, &c->a[1]);
                }
            }
            at[r]++;
            moved = 1;
        }
    }
    return left == 0;
}

/* An action and the time at which it is done. */
typedef struct timed {
    int64_t end;
    int rank, at;
} timed;

static int by_end(const void *a, const void *b)
{
    const timed *x = (const timed *)a, *y = (const timed *)b;
    if (x->end != y->end) {
        return x->end < y->end ? -1 : 1;
    }
    return x->rank != y->rank ? x->rank - y->rank : x->at - y->at;
}

static int64_t cost_of(const dpar_action *a)
{
    switch (a->kind) {
    case DPAR_ACTION_FORWARD:
    case DPAR_ACTION_INPUT:
    case DPAR_ACTION_WEIGHT: return INT64_C(1) << 30; /* a message between ranks takes 1 */
    case DPAR_ACTION_BACKWARD: return INT64_C(2) << 30;
    default: return 0;
    }
}

/* Puts all actions in the order of the data: computes the time at which each is done, rank by rank
 * until nothing changes, then adds each to its list with its messages. */
static void by_time(lists *out, const lists *in, const dpar_schedule *s)
{
    static int64_t forward[1 << 16], backward[1 << 16];
    static timed all[1 << 18];
    int r, i, h, n = 0, changed = 1;
    memset(forward, 0, sizeof forward);
    memset(backward, 0, sizeof backward);
    while (changed) {
        changed = n = 0;
        for (r = 0; r < in->ranks; r++) {
            int64_t clock = 0;
            for (i = 0; i < in->n[r]; i++) {
                const dpar_action *a = in->of[r][i].a;
                int64_t takes = 0;
                for (h = 0; h <= a->joined; h++) {
                    const int way = a[h].kind == DPAR_ACTION_FORWARD ? -1 : 1,
                              from = a[h].stage + way;
                    const int takes_input = a[h].kind == DPAR_ACTION_FORWARD ||
                                            a[h].kind == DPAR_ACTION_BACKWARD ||
                                            a[h].kind == DPAR_ACTION_INPUT;
                    takes += cost_of(&a[h]);
                    if (takes_input && from >= 0 && from < s->stages &&
                        from / s->chain == a[h].stage / s->chain) {
                        const int64_t there =
                            (way < 0 ? forward
                                     : backward)[from * s->micro_batches + a[h].micro_batch] +
                            (s->rank_of[from] != r);
                        clock = there > clock ? there : clock;
                    }
                }
                clock += takes;
                for (h = 0; h <= a->joined; h++) {
                    int64_t *made = a[h].kind == DPAR_ACTION_FORWARD ? forward : backward;
                    if (a[h].kind == DPAR_ACTION_FORWARD || a[h].kind == DPAR_ACTION_BACKWARD ||
                        a[h].kind == DPAR_ACTION_INPUT) {
                        made += a[h].stage * s->micro_batches + a[h].micro_batch;
                        changed = changed || *made != clock;
                        *made = clock;
                    }
                }
                all[n].end = clock;
                all[n].rank = r;
                all[n++].at = i;
            }
        }
    }
    qsort(all, (size_t)n, sizeof all[0], by_end);
    for (i = 0; i < n; i++) {
        const cell *c = &in->of[all[i].rank][all[i].at];
        r = all[i].rank;
        out->of[r][out->n[r]++] = *c;
        for (h = 0; h <= c->a[0].joined; h++) {
            send(out, r, s, &c->a[h]);
        }
    }
}

static void drop_idle(lists *l)
{
    int r, i, n;
    for (r = 0; r < l->ranks; r++) {
        for (i = n = 0; i < l->n[r]; i++) {
            if (l->of[r][i].a[0].kind != DPAR_ACTION_IDLE) {
                l->of[r][n++] = l->of[r][i];
            }
        }
        l->n[r] = n;
    }
}

static void shards_and_gradients(lists *out, const lists *in, int max_active, int reduce)
{
    int r, i, j, k, h, active[64] = {0}, wanted[64], left;
    for (r = 0; r < in->ranks; r++) {
        for (i = 0; i < in->n[r]; i++) {
            const cell *c = &in->of[r][i];
            int want[64], wants = 0;
            memset(wanted, 0, sizeof wanted);
            for (j = i; max_active > 0 && j < in->n[r] && wants < max_active; j++) {
                for (h = 0; h <= in->of[r][j].a[0].joined; h++) {
                    int stage = in->of[r][j].a[h].stage;
                    if (!wanted[stage]) {
                        wanted[stage] = 1;
                        want[wants++] = stage;
                    }
                }
            }
            for (k = 0; k < 64; k++) {
                if (active[k] && !wanted[k]) {
                    active[k] = 0;
                    put(out, r, action(DPAR_ACTION_RESHARD, k, 0, 0));
                }
            }
            for (k = 0; k < wants; k++) {
                if (!active[want[k]]) {
                    active[want[k]] = 1;
                    put(out, r, action(DPAR_ACTION_UNSHARD, want[k], 0, 0));
                }
            }
            out->of[r][out->n[r]++] = *c;
            for (h = 0; h <= c->a[0].joined && reduce; h++) {
                if (c->a[h].kind != DPAR_ACTION_BACKWARD && c->a[h].kind != DPAR_ACTION_WEIGHT) {
                    continue;
                }
                for (left = 0, j = i + 1; j < in->n[r]; j++) {
                    for (k = 0; k <= in->of[r][j].a[0].joined; k++) {
                        const dpar_action *a = &in->of[r][j].a[k];
                        left += a->stage == c->a[h].stage &&
                                (a->kind == DPAR_ACTION_BACKWARD || a->kind == DPAR_ACTION_WEIGHT);
                    }
                }
                if (left == 0) {
                    put(out, r, action(DPAR_ACTION_REDUCE_GRAD, c->a[h].stage, 0, 0));
                }
            }
        }
        for (k = 0; k < 64; k++) {
            if (active[k]) {
                active[k] = 0;
                put(out, r, action(DPAR_ACTION_RESHARD, k, 0, 0));
            }
        }
    }
}

/* ---- random schedules ------------------------------------------------------------------------ */

static uint64_t seed = 88172645463325252u;

static int below(int n)
{
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (int)((seed >> 11) % (uint64_t)n);
}

enum { TODO, FORWARD_DONE, INPUT_DONE, ALL_DONE };

/* Returns the kind of computation of (stage, micro) that may come next, or idle if none may. */
static int possible(const dpar_schedule *s, const unsigned char *done, int stage, int micro,
                    int split)
{
    int here = done[stage * s->micro_batches + micro];
    int before = stage % s->chain == 0 ? ALL_DONE : done[(stage - 1) * s->micro_batches + micro];
    int behind =
        (stage + 1) % s->chain == 0 ? ALL_DONE : done[(stage + 1) * s->micro_batches + micro];
    if (here == TODO) {
        return before >= FORWARD_DONE ? DPAR_ACTION_FORWARD : DPAR_ACTION_IDLE;
    }
    if (here == FORWARD_DONE) {
        return behind < INPUT_DONE ? DPAR_ACTION_IDLE
               : split             ? DPAR_ACTION_INPUT
                                   : DPAR_ACTION_BACKWARD;
    }
    return here == INPUT_DONE ? DPAR_ACTION_WEIGHT : DPAR_ACTION_IDLE;
}

static dpar_schedule laid(int32_t ranks, int32_t chains, int32_t chain, int32_t micros,
                          int64_t actions, int64_t *mem)
{
    dpar_schedule s;
    dpar_why why;
    CHECK_INT(schedule_init(&s, ranks, chains * chain, actions, mem, ROOM, &why), DPAR_OK);
    s.chain = chain;
    s.micro_batches = micros;
    return s;
}

static void from_lists(dpar_schedule *s, const lists *l)
{
    int64_t n = 0;
    int r, i, h;
    for (r = 0; r < l->ranks; r++) {
        for (i = 0; i < l->n[r]; i++) {
            for (h = 0; h <= l->of[r][i].a[0].joined; h++) {
                s->action[n++] = l->of[r][i].a[h];
            }
        }
        s->begin[r + 1] = n;
    }
}

/* Puts computations of all stages, in an order in which they may run, into the ranks' lists: some
 * backwards in two parts, some joined to a forward that could run as well, some idle cells. */
static dpar_schedule random_schedule(int32_t ranks, int32_t chains, int32_t chain, int32_t micros)
{
    static unsigned char done[1 << 16];
    static lists l;
    dpar_schedule s =
        laid(ranks, chains, chain, micros, 5 * (int64_t)chains * chain * micros, memory);
    int i, left = s.stages * micros, map = below(4);
    for (i = 0; i < s.stages; i++) {
        int r = map == 0   ? below(ranks)
                : map == 1 ? dpari_stage_rank(DPAR_STAGE_MAP_V, ranks, i)
                : map == 2 ? dpari_stage_rank(DPAR_STAGE_MAP_LOOP, ranks, i)
                           : i / 2 % ranks;
        s.rank_of[i] = (uint16_t)r;
    }
    empty_lists(&l, ranks, (1 << 18) / ranks, cells_of);
    memset(done, TODO, sizeof done);
    while (left > 0) {
        int stage = below(s.stages), micro = below(micros), r = s.rank_of[stage];
        int kind = possible(&s, done, stage, micro, below(2)), other, with;
        cell *c;
        if (kind == DPAR_ACTION_IDLE) {
            continue;
        }
        put(&l, r, action(kind, stage, micro, 0));
        c = &l.of[r][l.n[r] - 1];
        other = below(s.stages);
        with = below(micros);
        i = possible(&s, done, other, with, below(2));
        if (kind == DPAR_ACTION_FORWARD && s.rank_of[other] == r &&
            (i == DPAR_ACTION_INPUT || i == DPAR_ACTION_BACKWARD)) {
            c->a[0].joined = 1;
            c->a[1] = action(i, other, with, 0);
            done[other * micros + with] =
                (unsigned char)(i == DPAR_ACTION_INPUT ? INPUT_DONE : ALL_DONE);
            left -= i == DPAR_ACTION_BACKWARD;
        }
        done[stage * micros + micro] = (unsigned char)(kind == DPAR_ACTION_FORWARD ? FORWARD_DONE
                                                       : kind == DPAR_ACTION_INPUT ? INPUT_DONE
                                                                                   : ALL_DONE);
        left -= kind == DPAR_ACTION_BACKWARD || kind == DPAR_ACTION_WEIGHT;
        if (below(8) == 0) {
            put(&l, below(ranks), action(DPAR_ACTION_IDLE, 0, 0, 0));
        }
    }
    from_lists(&s, &l);
    return s;
}

/* ---- sinking, restated ----------------------------------------------------------------------- */

static int needs(const dpar_action *a, const dpar_action *receive)
{
    return a->stage == receive->stage && a->micro_batch == receive->micro_batch &&
           (receive->kind == DPAR_ACTION_RECV_F
                ? a->kind == DPAR_ACTION_FORWARD
                : a->kind == DPAR_ACTION_BACKWARD || a->kind == DPAR_ACTION_INPUT);
}

static int same_class(const dpar_action *receive, const dpar_action *a, int channel_class)
{
    return is_message(a->kind) &&
           (channel_class == DPAR_CHANNEL_ANY ||
            (a->peer == receive->peer && (channel_class == DPAR_CHANNEL_PEER || is_receive(a))));
}

/* Moves each receive, from the last to the first, later until something stops it. */
static void sink_one_by_one(lists *l, int channel_class)
{
    int r, i, k;
    for (r = 0; r < l->ranks; r++) {
        cell *c = l->of[r];
        for (i = l->n[r] - 1; i >= 0; i--) {
            if (!is_receive(&c[i].a[0])) {
                continue;
            }
            for (k = i; k + 1 < l->n[r]; k++) {
                const dpar_action *a = c[k + 1].a;
                cell moved = c[k];
                if (needs(a, c[k].a) || (a->joined && needs(a + 1, c[k].a)) ||
                    same_class(c[k].a, a, channel_class)) {
                    break;
                }
                c[k] = c[k + 1];
                c[k + 1] = moved;
            }
        }
    }
}

/* Sorts receives of different classes that follow each other: any order is right there. */
static void rows_in_order(lists *l)
{
    int r, i, k;
    for (r = 0; r < l->ranks; r++) {
        cell *c = l->of[r];
        for (i = 1; i < l->n[r]; i++) {
            for (k = i; k > 0 && is_receive(c[k].a) && is_receive(c[k - 1].a) &&
                        memcmp(&c[k], &c[k - 1], sizeof *c) < 0;
                 k--) {
                cell moved = c[k];
                c[k] = c[k - 1];
                c[k - 1] = moved;
            }
        }
    }
}

/* Checks that the messages of a class have kept their order. */
static int class_order_kept(const dpar_schedule *a, const dpar_schedule *b, int channel_class)
{
    int32_t r, peer, way;
    for (r = 0; r < a->ranks; r++) {
        for (peer = 0; peer < (channel_class == DPAR_CHANNEL_ANY ? 1 : a->ranks); peer++) {
            for (way = 0; way < (channel_class == DPAR_CHANNEL_EDGE ? 2 : 1); way++) {
                int64_t i = a->begin[r], k = b->begin[r];
                for (;;) {
#define OTHER(x)                                                                                   \
    (!is_message((x)->kind) || (channel_class != DPAR_CHANNEL_ANY && (x)->peer != peer) ||         \
     (channel_class == DPAR_CHANNEL_EDGE && is_receive(x) != way))
                    while (i < a->begin[r + 1] && OTHER(&a->action[i])) {
                        i++;
                    }
                    while (k < b->begin[r + 1] && OTHER(&b->action[k])) {
                        k++;
                    }
                    if (i == a->begin[r + 1] || k == b->begin[r + 1]) {
                        break;
                    }
                    if (memcmp(&a->action[i++], &b->action[k++], sizeof *a->action) != 0) {
                        return 0;
                    }
                }
                if (i != a->begin[r + 1] || k != b->begin[r + 1]) {
                    return 0;
                }
            }
        }
    }
    return 1;
}

static void check_sinks(const dpar_schedule *s)
{
    static lists plain, ours;
    int c, room = (1 << 18) / s->ranks;
    for (c = 0; c < DPAR_CHANNEL_COUNT; c++) {
        dpar_schedule out = sink(s, c, third);
        CHECK(class_order_kept(s, &out, c));
        to_lists(&plain, s, room, cells_of);
        sink_one_by_one(&plain, c);
        rows_in_order(&plain);
        to_lists(&ours, &out, room, more_cells);
        rows_in_order(&ours);
        from_lists(&out, &ours);
        CHECK(same_lists(&plain, &out));
    }
}

/* ---- both on random schedules and on the files ----------------------------------------------- */

static void check_passes(const dpar_schedule *s, int passes, int max_active, int sinks)
{
    static lists plain, computed, expected;
    dpar_schedule out;
    int room = (1 << 18) / s->ranks;
    to_lists(&plain, s, room, cells_of);
    if ((passes & 3) != 0 || (passes & DPAR_LOWER_IDLE) == 0) {
        drop_idle(&plain);
    }
    empty_lists(&computed, s->ranks, room, more_cells);
    if ((passes & 3) != 0) {
        shards_and_gradients(&computed, &plain, (passes & 1) ? max_active : 0, passes & 2);
        plain = computed;
        empty_lists(&computed, s->ranks, room, cells_of);
    }
    expected = plain;
    if ((passes & 3) == 0 || (passes & DPAR_LOWER_MESSAGES) != 0) { /* TURNS adds them too */
        if ((passes & (DPAR_LOWER_TURNS | DPAR_LOWER_IDLE)) != 0) {
            CHECK(round_robin(&computed, &plain, s));
        } else {
            by_time(&computed, &plain, s);
        }
        expected = computed;
    }
    out = lower(s, passes, max_active, first);
    CHECK(same_lists(&expected, &out));
    if (sinks && (passes & DPAR_LOWER_MESSAGES) != 0) {
        check_sinks(&out);
    }
}

static void test_random(void)
{
    int round, passes;
    for (round = 0; round < 400; round++) {
        dpar_schedule s = random_schedule(1 + below(7), 1 + below(2), 1 + below(6), 1 + below(6));
        for (passes = 0; passes < 32; passes++) {
            check_passes(&s, passes % 16 + passes / 16 * DPAR_LOWER_TURNS, 1 + below(4), 1);
        }
    }
    for (round = 0; round < 20; round++) { /* more stages on a rank than may be active */
        dpar_schedule s = random_schedule(1 + below(2), 1, 30 + below(30), 2 + below(3));
        check_passes(&s, 7, DPAR_LOWER_MAX_ACTIVE - below(3), 0);
    }
}

/* Checks ranks in one and in several words of every level of a set, with stages on ranks in any
 * order. */
static void test_many_ranks(void)
{
    static const int32_t ranks[] = {63, 64, 65, 130, 1000, 4096, 4097, 4500};
    size_t k;
    for (k = 0; k < sizeof ranks / sizeof ranks[0]; k++) {
        int32_t p = ranks[k], i, m = p < 500 ? 3 : 1;
        dpar_schedule s = laid(p, 1, p, m, 2 * (int64_t)p * m, memory);
        for (i = 0; i < p; i++) {
            s.rank_of[i] = (uint16_t)i;
        }
        for (i = p - 1; i > 0; i--) { /* a random order */
            int j = below(i + 1);
            uint16_t was = s.rank_of[i];
            s.rank_of[i] = s.rank_of[j];
            s.rank_of[j] = was;
        }
        for (i = 0; i < p; i++) {
            int r = s.rank_of[i], j;
            for (j = 0; j < m; j++) {
                s.action[(2 * r) * m + j] = action(DPAR_ACTION_FORWARD, i, j, 0);
                s.action[(2 * r + 1) * m + j] = action(DPAR_ACTION_BACKWARD, i, j, 0);
            }
            s.begin[r + 1] = 2 * ((int64_t)r + 1) * m;
        }
        check_passes(&s, DPAR_LOWER_MESSAGES, 3, 0);
        check_passes(&s, DPAR_LOWER_TURNS, 3, 0);
    }
}

static void test_files(void)
{
    static const struct {
        const char *name;
        int32_t chain;
        int64_t messages; /* facts: 2m(p-1) linear, 2m(pv-1) loop, 2m(2p-2) V, 2m(p-1) DualPipe */
    } file[] = {{"1f1b_p4_m8", 0, 2 * 8 * 3},
                {"interleaved1f1b_p4_v2_m8", 0, 2 * 8 * 7},
                {"interleaved1f1b_flex_p4_v2_m10", 0, 2 * 10 * 7},
                {"loopedbfs_p4_v2_m4", 0, 2 * 4 * 7},
                {"interleaved_zb_p4_v2_m8", 0, 2 * 8 * 7},
                {"zbv_p4_m8", 0, 2 * 8 * 6},
                {"vmin_p4_m8", 0, 2 * 8 * 6},
                {"vhalf_p4_m8", 0, 2 * 8 * 6},
                {"pt_dualpipev_p4_m10", 0, 2 * 10 * 6},
                {"dualpipe_p4_m8", 4, 2 * 8 * 3},
                {"chimera_p4_m4", 4, 2 * 4 * 3},
                {"forward_only_p4_m4", 0, 4 * 3},
                {"unbalanced_p2_5stages_m1", 0, 2 * 2}, /* [0,0,1,1,0] */
                {"seq1f1b_p4_m4_s2", 0, 2 * 8 * 3},
                {"overlap_1f1b_p4_m8", 0, 2 * 8 * 3}};
    size_t k;
    int64_t i;
    int passes;
    for (k = 0; k < sizeof file / sizeof file[0]; k++) {
        dpar_schedule s = read_file(file[k].name, file[k].chain), out;
        int64_t sends = 0;
        for (passes = 0; passes < 32; passes++) {
            check_passes(&s, passes % 16 + passes / 16 * DPAR_LOWER_TURNS, 3, 1);
        }
        out = lower(&s, 0, 0, first);
        for (i = 0; i < out.begin[out.ranks]; i++) {
            sends += is_message(out.action[i].kind) && !is_receive(&out.action[i]);
        }
        CHECK_INT(sends, file[k].messages);
    }
}

/* ---- receives that wait ---------------------------------------------------------------------- */

static void check_waiting(const dpar_schedule *s, const int *expected)
{
    int32_t r;
    int64_t k;
    for (r = 0; r < s->ranks; r++) {
        int now = 0, most = 0;
        for (k = s->begin[r]; k < s->begin[r + 1]; k++) {
            const dpar_action *a = &s->action[k];
            int32_t from = a->kind == DPAR_ACTION_FORWARD ? dpari_schedule_before(s, a->stage)
                           : a->kind == DPAR_ACTION_BACKWARD || a->kind == DPAR_ACTION_INPUT
                               ? dpari_schedule_behind(s, a->stage)
                               : -1;
            now += is_receive(a) - (from >= 0 && s->rank_of[from] != r);
            most = now > most ? now : most;
        }
        CHECK_INT(now, 0);
        CHECK_INT(most, expected[r]);
    }
}

/* Makes interleaved 1F1B (PyTorch's _get_1f1b_rank_ops) with p micro-batches per round. */
static dpar_schedule interleaved(int32_t p, int32_t v, int32_t m)
{
    dpar_schedule s = laid(p, 1, p * v, m, 2 * (int64_t)p * v * m, memory);
    dpar_action *a = s.action;
    int32_t r, k, i;
    for (i = 0; i < p * v; i++) {
        s.rank_of[i] = (uint16_t)(i % p);
    }
    for (r = 0; r < p; r++) {
        int32_t w = (v - 1) * p + 2 * (p - 1 - r);
        w = w < m * v ? w : m * v;
        for (k = 0; k < m * v + w; k++) {
            i = k - w;
            if (k < m * v) {
                *a++ = action(DPAR_ACTION_FORWARD, k / p % v * p + r, k / (p * v) * p + k % p, 0);
            }
            if (i >= 0) {
                *a++ = action(DPAR_ACTION_BACKWARD, (v - 1 - i / p % v) * p + r,
                              i / (p * v) * p + i % p, 0);
            }
        }
        s.begin[r + 1] = a - s.action;
    }
    return s;
}

/* Compares with figures simulated from PyTorch's rules: the most receives posted and not yet
 * used. */
static void test_waiting(void)
{
    static const int interleaved_8[] = {8, 3, 3, 3, 3, 3, 3, 4},
                     interleaved_any[] = {7, 2, 2, 2, 2, 2, 2, 3},
                     ones[] = {1, 1, 1, 1, 1, 1, 1, 1}, zbv[] = {2, 3, 3, 2},
                     zbv_sunk[] = {1, 2, 2, 2}, izb[] = {4, 2, 2, 3}, one_forward[] = {1, 2, 2, 1};
    dpar_schedule s = interleaved(8, 2, 32), full, sunk;
    full = lower(&s, DPAR_LOWER_TURNS, 0, first);
    check_waiting(&full, interleaved_8);
    sunk = sink(&full, DPAR_CHANNEL_ANY, third);
    check_waiting(&sunk, interleaved_any);
    sunk = sink(&full, DPAR_CHANNEL_PEER, third);
    check_waiting(&sunk, ones);
    sunk = sink(&full, DPAR_CHANNEL_EDGE, third);
    check_waiting(&sunk, ones);
    s = read_file("zbv_p4_m8", 0);
    full = lower(&s, DPAR_LOWER_TURNS, 0, first);
    check_waiting(&full, zbv);
    sunk = sink(&full, DPAR_CHANNEL_PEER, third);
    check_waiting(&sunk, zbv_sunk);
    sunk = sink(&full, DPAR_CHANNEL_EDGE, third);
    check_waiting(&sunk, zbv_sunk);
    s = read_file("interleaved_zb_p4_v2_m8", 0);
    full = lower(&s, DPAR_LOWER_TURNS, 0, first);
    check_waiting(&full, izb);
    sunk = sink(&full, DPAR_CHANNEL_EDGE, third);
    check_waiting(&sunk, ones);
    s = read_file("1f1b_p4_m8", 0);
    full = lower(&s, DPAR_LOWER_TURNS, 0, first);
    check_waiting(&full, one_forward);
    sunk = sink(&full, DPAR_CHANNEL_EDGE, third);
    check_waiting(&sunk, ones);
}

/* ---- one by one ------------------------------------------------------------------------------ */

static void test_merge(void)
{
    dpar_schedule s, out;
    read_lines(&s,
               ",0F0,0I0,,0W0,0I1,0I2,0W1,0W2,0I3,0B0,0W3\n"
               "(1F1;1I0)OVERLAP_F_B,1W0,1I5,1W6,\n\n2W0,2I0,2W0,2W0,2I1,3W1\n",
               0, memory);
    out = merge(&s, first);
    CHECK_TEXT(written(&out), "0F0,0B0,0I1,0I2,0W1,0W2,0I3,0B0,0W3\n"
                              "(1F1;1I0)OVERLAP_F_B,1W0,1I5,1W6\n\n2W0,2B0,2W0,2I1,3W1\n");
}

/* Checks messages that belong to no schedule: they move as far as they may. */
static void test_sink(void)
{
    static const char csv[] =
        "1RECV_F0,1RECV_F1,1RECV_B0,1RECV_F1,1W0,1F0,1F1,1SEND_F0,1W1,1RECV_B1,"
        "1SEND_B0,1B0,\n0F0\n2F0\n";
    static const char *const expected[] = {
        "1RECV_F0,1RECV_F1,1W0,1F0,1RECV_B0,1RECV_F1,1F1,1SEND_F0,1W1,1RECV_B1,1SEND_B0,1B0,\n",
        "1RECV_F0,1RECV_F1,1W0,1F0,1RECV_F1,1F1,1RECV_B0,1SEND_F0,1W1,1SEND_B0,1B0,,1RECV_B1\n",
        "1RECV_F0,1RECV_F1,1W0,1F0,1RECV_F1,1F1,1SEND_F0,1W1,1SEND_B0,1RECV_B0,1B0,,1RECV_B1\n"};
    int c;
    dpar_schedule s, out;
    read_lines(&s, csv, 0, memory);
    for (c = 0; c < DPAR_CHANNEL_COUNT; c++) {
        out = sink(&s, c, third);
        (void)written(&out);
        again[strlen(expected[c])] = 0;
        CHECK_TEXT(again, expected[c]);
    }
}

static void stuck(const char *lines, int32_t chain, const char *sentence)
{
    dpar_schedule s, out;
    dpar_why why;
    read_lines(&s, lines, chain, memory);
    memset(&out, 77, sizeof out);
    CHECK_INT(dpar_schedule_lower(&out, &s, NULL, first, sizeof first, &why), DPAR_E_STUCK);
    CHECK_TEXT(why.text, sentence);
    CHECK_INT(out.ranks, 77 * 0x1010101); /* nothing was written */
    CHECK_INT(dpar_schedule_lower(&out, &s, NULL, first, sizeof first, NULL), DPAR_E_STUCK);
}

static void test_stuck(void)
{
    stuck("0F0\n1F0\n2F0,2F3\n", 0, "rank 2 waits for 2RECV_F3: F3 of stage 1 never runs");
    stuck("0F0,0B0,0F1\n1F0,1F1,1B0,1B1\n", 0,
          "rank 0 waits for 0RECV_B0: B0 of stage 1 never runs");
    stuck("1F0,0F0\n2F0\n", 0,
          "rank 0 waits for F0 of stage 0, which is later in its list or missing");
    stuck("0F0,1F0,0B0,1B0\n", 0,
          "rank 0 waits for B0 of stage 1, which is later in its list or missing");
    stuck("0F0,0F1\n1F0,(1F1;1B0)OVERLAP_F_B,(1F2;1B1)OVERLAP_F_B\n", 0,
          "rank 1 waits for 1RECV_F2: F2 of stage 0 never runs");
    stuck("0F0,0F1,(0F2;0B1)OVERLAP_F_B\n1F0,1F1,1F2,1B1\n", 0,
          "rank 0 waits for 0RECV_B1: B1 of stage 1 never runs");
    stuck("0F0,2B0\n1F0,3F0\n", 2, "rank 0 waits for 2RECV_B0: B0 of stage 3 never runs");
}

/* Checks what every pass refuses, on a list with one error. */
static void refused(const dpar_schedule *s, const char *sentence)
{
    dpar_schedule out;
    dpar_why why;
    CHECK_INT(dpari_schedule_lower_bytes(s, NULL, &why), -1);
    CHECK_TEXT(why.text, sentence);
    CHECK_INT(merge_list_bytes(s, &why), -1);
    CHECK_TEXT(why.text, sentence);
    CHECK_INT(late_recv_bytes(s, &why), -1);
    CHECK_TEXT(why.text, sentence);
    CHECK_INT(dpar_schedule_lower(&out, s, NULL, first, sizeof first, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, sentence);
    CHECK_INT(merge_list(&out, s, first, sizeof first, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, sentence);
    CHECK_INT(late_recv(&out, s, 0, first, sizeof first, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, sentence);
    CHECK_INT(late_recv(&out, s, 0, first, sizeof first, NULL), DPAR_E_ARG);
}

#define REFUSED(what, value, sentence)                                                             \
    do {                                                                                           \
        read_lines(&s, "0F0,0F1,0B0\n(1F1;1B0)OVERLAP_F_B\n", 0, memory);                          \
        (what) = (value);                                                                          \
        refused(&s, sentence);                                                                     \
    } while (0)

static void test_refusals(void)
{
    dpar_schedule s;
    REFUSED(s.ranks, 0,
            "the schedule has 0 ranks, 2 stages and 2 micro-batches; 1 to 65535 ranks and stages "
            "and 0 to 65535 micro-batches are allowed");
    REFUSED(s.ranks, 65536,
            "the schedule has 65536 ranks, 2 stages and 2 micro-batches; 1 to 65535 ranks and "
            "stages and 0 to 65535 micro-batches are allowed");
    REFUSED(s.stages, -1,
            "the schedule has 2 ranks, -1 stages and 2 micro-batches; 1 to 65535 ranks and stages "
            "and 0 to 65535 micro-batches are allowed");
    REFUSED(s.micro_batches, 65536,
            "the schedule has 2 ranks, 2 stages and 65536 micro-batches; 1 to 65535 ranks and "
            "stages and 0 to 65535 micro-batches are allowed");
    REFUSED(s.chain, 0, "chains of 0 stages do not divide 2 stages");
    REFUSED(s.chain, 4, "chains of 4 stages do not divide 2 stages");
    REFUSED(s.rank_of[1], 2, "rank_of[1] is 2, but there are only 2 ranks");
    REFUSED(s.begin[0], 1, "the list of rank 0 begins at action 1 and ends at 3");
    REFUSED(s.begin[1], -1, "the list of rank 0 begins at action 0 and ends at -1");
    REFUSED(s.begin[2], 2, "the list of rank 1 begins at action 3 and ends at 2");
    REFUSED(s.action[1].kind, DPAR_ACTION_COUNT, "rank 0, action 1: this kind does not exist");
    REFUSED(s.action[1].joined, 2, "rank 0, action 1: 0F1: joined is more than 1");
    REFUSED(s.action[1].stage, 2, "rank 0, action 1: 2F1: its stage is not on this rank");
    REFUSED(s.action[1].stage, 1, "rank 0, action 1: 1F1: its stage is not on this rank");
    REFUSED(s.action[4].micro_batch, 2, "rank 1, action 1: 1B2: its micro-batch does not exist");
    REFUSED(s.action[2].joined, 1,
            "rank 0, action 2: 0B0 is joined, but it is not an F that a B or I follows");
    REFUSED(s.action[0].joined, 1,
            "rank 0, action 0: 0F0 is joined, but it is not an F that a B or I follows");
    REFUSED(s.begin[2], 4,
            "rank 1, action 0: 1F1 is joined, but it is not an F that a B or I follows");
    REFUSED(s.action[4].joined, 1,
            "rank 1, action 0: 1F1 is joined, but it is not an F that a B or I follows");
    REFUSED(s.action[1].kind, DPAR_ACTION_RECV_F,
            "rank 0, action 1: 0RECV_F1 does not connect neighbouring stages on two ranks");
    REFUSED(s.action[1].kind, DPAR_ACTION_SEND_F,
            "rank 0, action 1: 0SEND_F1 does not connect neighbouring stages on two ranks");
}

static void check_how(const dpar_schedule *s, int32_t passes, int32_t max_active,
                      const char *sentence)
{
    dpar_schedule out;
    dpar_schedule_lower_desc how = lowering_of(passes, 0);
    dpar_why why;
    how.max_active = max_active;
    CHECK_INT(dpari_schedule_lower_bytes(s, &how, &why), -1);
    CHECK_TEXT(why.text, sentence);
    CHECK_INT(dpar_schedule_lower(&out, s, &how, first, sizeof first, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, sentence);
}

static void test_how(void)
{
    dpar_schedule s, out;
    dpar_schedule_lower_desc how;
    dpar_why why;
    int64_t bytes;
    int k;
    read_lines(&s, "0UNSHARD,0F0,0SEND_F0,0REDUCE_GRAD\n1RECV_F0,1F0,1RESHARD\n", 0, memory);
    check_how(&s, 17, 0,
              "passes=17 is not a sum of DPAR_LOWER_x; MERGE and LATE_RECV cannot be combined with "
              "others");
    check_how(&s, 128, 0,
              "passes=128 is not a sum of DPAR_LOWER_x; MERGE and LATE_RECV cannot be combined "
              "with others");
    check_how(&s, 64 + 16, 0,
              "passes=80 is not a sum of DPAR_LOWER_x; MERGE and LATE_RECV cannot be combined with "
              "others");
    check_how(&s, -1, 0,
              "passes=-1 is not a sum of DPAR_LOWER_x; MERGE and LATE_RECV cannot be combined with "
              "others");
    check_how(&s, 2, -1, "max_active=-1; 1 to 24 are allowed");
    check_how(&s, 2, 25, "max_active=25; 1 to 24 are allowed");
    check_how(&s, DPAR_LOWER_SHARDS, 0,
              "rank 0, action 0: 0UNSHARD is already in the list; the pass adds such actions");
    check_how(&s, DPAR_LOWER_REDUCE, 0,
              "rank 0, action 3: 0REDUCE_GRAD is already in the list; the pass adds such actions");
    check_how(&s, 0, 0,
              "rank 0, action 2: 0SEND_F0 is already in the list; the pass adds such actions");
    check_how(&s, DPAR_LOWER_IDLE, 0,
              "rank 0, action 2: 0SEND_F0 is already in the list; the pass adds such actions");
    CHECK_INT(late_recv(&out, &s, 3, first, sizeof first, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "channel=3; 0 to 2 are allowed");
    CHECK_INT(late_recv(&out, &s, -1, first, sizeof first, &why), DPAR_E_ARG);
    bytes = late_recv_bytes(&s, NULL);
    CHECK_INT(late_recv(&out, &s, 0, first, bytes - 1, &why), DPAR_E_ROOM);
    snprintf(text, sizeof text, "lowering needs %d bytes, got %d", (int)bytes, (int)bytes - 1);
    CHECK_TEXT(why.text, text);
    bytes = merge_list_bytes(&s, NULL);
    CHECK_INT(bytes, 8 * 3 + 8 * 7 + (2 * 2 + 4));
    CHECK_INT(merge_list(&out, &s, first, bytes - 1, &why), DPAR_E_ROOM);
    read_lines(&s, "0F0\n1F0\n", 0, memory);
    bytes = dpari_schedule_lower_bytes(&s, NULL, NULL);
    CHECK_INT(dpar_schedule_lower(&out, &s, NULL, first, bytes - 1, &why), DPAR_E_ROOM);
    /* the sizes that the header states: heads and a number per rank, also with TURNS */
    read_lines(&s, "0F0,0F1,0F2\n1F0\n", 0, memory);
    CHECK_INT(dpari_schedule_lower_bytes(&s, NULL, NULL),
              (8 * 3 + 8 * (4 + 6) + 2 * 2 + 4) + 2 * 48 + 2 * 4 + 8 * 2 + 2 * 3 * 16);
    how = lowering_of(DPAR_LOWER_TURNS, 0);
    CHECK_INT(dpari_schedule_lower_bytes(&s, &how, NULL),
              (8 * 3 + 8 * (4 + 6) + 2 * 2 + 4) + 2 * 48 + 2 * 4 + 8 * 2 + 2 * 3 * 16);
    CHECK_INT(late_recv_bytes(&s, NULL), (8 * 3 + 8 * 4 + 2 * 2 + 4) + 2 * 16 + 8 * 3 + 8);
    /* only what a pass adds may not be in its input */
    read_lines(&s, "0UNSHARD,0F0,0REDUCE_GRAD\n1F0\n", 0, memory);
    out = lower(&s, DPAR_LOWER_MESSAGES, 0, first);
    CHECK_TEXT(written(&out), "0UNSHARD,0F0,0SEND_F0,0REDUCE_GRAD\n1RECV_F0,1F0\n");
    read_lines(&s, "0B0,,0F0\n", 0, memory);
    out = lower(&s, DPAR_LOWER_REDUCE, 0, first);
    CHECK_TEXT(written(&out), "0B0,0REDUCE_GRAD,0F0\n");
    /* more active stages than there are: no stage is resharded before the end */
    read_lines(&s, "0F0,1F0,2F0,3F0,3B0,2B0,1B0,0B0\n", 0, memory);
    out = lower(&s, DPAR_LOWER_SHARDS, DPAR_LOWER_MAX_ACTIVE, first);
    CHECK_TEXT(written(&out),
               "0UNSHARD,1UNSHARD,2UNSHARD,3UNSHARD,0F0,1F0,2F0,3F0,3B0,3RESHARD,2B0,"
               "2RESHARD,1B0,1RESHARD,0B0,0RESHARD\n");
    /* no actions at all */
    s = laid(3, 1, 2, 0, 0, memory);
    s.rank_of[0] = s.rank_of[1] = 2;
    for (k = 0; k < 16; k++) {
        out = lower(&s, k, 0, first);
        CHECK_INT(out.begin[3], 0);
    }
    out = merge(&s, first);
    out = sink(&s, DPAR_CHANNEL_PEER, third);
    CHECK_INT(out.begin[3], 0);
}

/* Checks the caller's times: what they change, and which are refused. */
static void test_times(void)
{
    static int64_t forward[] = {5, 1, 1, 1}, least[] = {1, -1, 1, 1};
    dpar_schedule s, out;
    dpar_schedule_lower_desc how = lowering_of(0, 0);
    dpar_schedule_times t;
    dpar_why why;
    int64_t bytes;
    memset(&t, 0, sizeof t);
    t.forward.each = forward;
    how.times = &t;
    /* rank 2 receives from rank 0 first if all take the same time, last if stage 0 is slow */
    read_lines(&s, "0F0\n2F0\n1F0,3F0\n", 2, memory);
    out = lower(&s, 0, 0, first);
    CHECK_TEXT(written(&out), "0F0,0SEND_F0\n2F0,2SEND_F0\n1RECV_F0,3RECV_F0,1F0,3F0\n");
    bytes = dpari_schedule_lower_bytes(&s, &how, &why);
    CHECK_INT(dpar_schedule_lower(&out, &s, &how, first, bytes, &why), DPAR_OK);
    CHECK_TEXT(written(&out), "0F0,0SEND_F0\n2F0,2SEND_F0\n3RECV_F0,1RECV_F0,1F0,3F0\n");
    t.forward.each = least;
    CHECK_INT(dpari_schedule_lower_bytes(&s, &how, &why), -1);
    CHECK_TEXT(why.text, "stage 1: a time, size or bandwidth is -1; 0 to "
                         "3074457345618258602 are allowed");
    t.forward.each = NULL;
    t.forward.all = INT64_MAX / 3;
    read_lines(&s, "0F0,0F1,0F2,0F3,0F4,0F5,0F6,0F7,0F8,0F9,0F10\n1F0,1F1,1F2,1F3,1F4,1F5,1F6\n", 0,
               memory);
    CHECK_INT(dpar_schedule_lower(&out, &s, &how, first, sizeof first, &why), DPAR_E_RANGE);
    CHECK_TEXT(why.text, "the times add up to more than 9223372036854775807");
}

/* Checks the order of the messages that reach a rank from two others, with the times in `how`. */
static void order_is(const dpar_schedule *s, const dpar_schedule_lower_desc *how, const char *text)
{
    dpar_schedule out;
    dpar_why why;
    const int64_t bytes = dpari_schedule_lower_bytes(s, how, &why);
    CHECK_INT(dpar_schedule_lower(&out, s, how, first, bytes, &why), DPAR_OK);
    CHECK_TEXT(written(&out), text);
}

/* Checks that a backward takes its own time or that of its parts, and a joined pair the time of
 * both together or one after the other. The sender with the smaller sum of times must come
 * first. */
static void test_times_of_kinds(void)
{
    static int64_t of[3][8] = {{1, 5, 1, 1}, {1, 2, 1, 4}, {2, 2, 11, 2}};
    dpar_schedule s;
    dpar_schedule_lower_desc how = lowering_of(0, 0);
    dpar_schedule_times t;
    dpar_why why;
    memset(&t, 0, sizeof t);
    how.times = &t;
    read_lines(&s, "1B0\n3B0\n0B0,2B0\n", 2, memory);
    t.backward.each = of[0]; /* stage 1 is slow, so stage 3 is received first */
    order_is(&s, &how, "1B0,1SEND_B0\n3B0,3SEND_B0\n2RECV_B0,0RECV_B0,0B0,2B0\n");
    t.backward.each = NULL;
    t.input.each = of[0];
    order_is(&s, &how, "1B0,1SEND_B0\n3B0,3SEND_B0\n2RECV_B0,0RECV_B0,0B0,2B0\n");
    t.weight.each = of[1]; /* 5 + 2 and 1 + 4 */
    order_is(&s, &how, "1B0,1SEND_B0\n3B0,3SEND_B0\n2RECV_B0,0RECV_B0,0B0,2B0\n");
    t.input.each = of[1]; /* 2 + 2 and 4 + 4 */
    order_is(&s, &how, "1B0,1SEND_B0\n3B0,3SEND_B0\n0RECV_B0,0B0,2RECV_B0,2B0\n");
    t.weight.all = INT64_MAX / 3 + 1;
    t.weight.each = NULL;
    CHECK_INT(dpari_schedule_lower_bytes(&s, &how, &why), -1);
    CHECK_TEXT(why.text, "stage 0: a time, size or bandwidth is 3074457345618258603; 0 to "
                         "3074457345618258602 are allowed");
    how.passes = DPAR_LOWER_REDUCE; /* reads no times */
    CHECK(dpari_schedule_lower_bytes(&s, &how, &why) > 0);
    how.passes = DPAR_LOWER_MESSAGES; /* lists with messages are refused before times are read */
    read_lines(&s, "1B0,1SEND_B0\n3B0\n0RECV_B0,0B0,2B0\n", 2, memory);
    CHECK_INT(dpari_schedule_lower_bytes(&s, &how, &why), -1);
    /* rank 0 ends its pair at 10 (one after the other) or at 14 (joined); rank 2 ends at 11 */
    memset(&t, 0, sizeof t);
    t.forward.each = of[2];
    t.backward.all = 2;
    how.passes = 0;
    read_lines(&s, "0F0,(0F1;0B0)OVERLAP_F_B\n1F0,1B0,1F1,3F0\n2F0\n", 2, memory);
    order_is(&s, &how,
             "0F0,0SEND_F0,0RECV_B0,(0F1;0B0)OVERLAP_F_B,0SEND_F1\n"
             "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,3RECV_F0,1F1,3F0\n2F0,2SEND_F0\n");
    t.overlap.all = 8;
    order_is(&s, &how,
             "0F0,0SEND_F0,0RECV_B0,(0F1;0B0)OVERLAP_F_B,0SEND_F1\n"
             "1RECV_F0,1F0,1B0,1SEND_B0,3RECV_F0,1RECV_F1,1F1,3F0\n2F0,2SEND_F0\n");
    /* a recomputation takes as long as a forward by default; waiting takes no time */
    how.times = NULL;
    read_lines(&s, "0RECOMPUTE0,0F0\n2F0\n1F0,3F0\n", 2, memory);
    order_is(&s, &how, "0RECOMPUTE0,0F0,0SEND_F0\n2F0,2SEND_F0\n3RECV_F0,1RECV_F0,1F0,3F0\n");
    how.times = &t;
    read_lines(&s, "0WAIT_REDUCE_GRAD,0F0\n2F0\n1F0,3F0\n", 2, memory);
    order_is(&s, &how, "0WAIT_REDUCE_GRAD,0F0,0SEND_F0\n2F0,2SEND_F0\n1RECV_F0,1F0,3RECV_F0,3F0\n");
}

int main(void)
{
    test_reference();
    test_pytorch();
    test_random();
    test_many_ranks();
    test_files();
    test_waiting();
    test_merge();
    test_sink();
    test_stuck();
    test_refusals();
    test_how();
    test_times();
    test_times_of_kinds();
    return CHECK_DONE();
}
