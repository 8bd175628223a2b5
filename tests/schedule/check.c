/* SPDX-License-Identifier: MIT-0 */
/* Tests check: every list of tests/data/pipeline is accepted, with and without messages; thousands
 * of changed lists get the same verdict from a plain restatement of the rules here; and the runs
 * get stuck where a simulation that takes any possible step at random gets stuck. Run with:
 * tests/run test schedule. */
#include "dpar_schedule.h"
#include "schedule_calls.h"

#include "check.h"
#include "pipeline_lists.h"

/* Calls the check and the run with exactly as much memory as they ask for. */
static dpar_status check_s(const dpar_schedule *s, int flags, dpar_why *why)
{
    int64_t bytes = check_list_bytes(s);
    void *mem = malloc(bytes > 0 ? (size_t)bytes : 1);
    dpar_status st = check_list(s, flags, mem, bytes, why);
    free(mem);
    return st;
}

static dpar_status run_s(const dpar_schedule *s, int transport, int room, int64_t *stuck,
                         dpar_why *why)
{
    int64_t bytes = check_run_bytes(s);
    void *mem = malloc(bytes > 0 ? (size_t)bytes : 1);
    dpar_status st = check_run(s, transport, room, stuck, mem, bytes, why);
    free(mem);
    return st;
}

static dpar_status check_lists(const lists *l, int flags, dpar_why *why)
{
    dpar_schedule s;
    void *mem = list_close(l, &s);
    dpar_status st = check_s(&s, flags, why);
    free(mem);
    return st;
}

/* ---- the rules, restated --------------------------------------------------------------------- */

enum { KINDS = DPAR_ACTION_COUNT, CELLS = 512 };
static int times[KINDS][CELLS], place[KINDS][CELLS]; /* per action: how often and where */

static int cell_of(const lists *l, int stage, int micro)
{
    return stage * l->micros + micro;
}

static int judge_ids(const lists *l)
{
    int r, i;
    memset(times, 0, sizeof times);
    for (r = 0; r < l->ranks; r++) {
        for (i = 0; i < l->n[r]; i++) {
            const dpar_action *a = &l->a[r][i];
            if (a->kind >= KINDS) {
                return 0;
            }
            if (a->joined) {
                const dpar_action *b = a + 1;
                if (a->joined != 1 || a->kind != DPAR_ACTION_FORWARD || i + 1 == l->n[r] ||
                    b->joined ||
                    (b->kind != DPAR_ACTION_BACKWARD && b->kind != DPAR_ACTION_INPUT) ||
                    (a->stage == b->stage && a->micro_batch == b->micro_batch)) {
                    return 0;
                }
            }
            if (a->kind == DPAR_ACTION_IDLE) {
                continue;
            }
            if (a->stage >= l->stages || l->rank_of[a->stage] != r) {
                return 0;
            }
            if (dpari_action_has_micro(a->kind)) {
                if (a->micro_batch >= l->micros) {
                    return 0;
                }
                times[a->kind][cell_of(l, a->stage, a->micro_batch)]++;
                place[a->kind][cell_of(l, a->stage, a->micro_batch)] = i;
            }
        }
    }
    return 1;
}

static int any_of(const lists *l, int from, int to)
{
    int r, i, found = 0;
    for (r = 0; r < l->ranks; r++) {
        for (i = 0; i < l->n[r]; i++) {
            found |= l->a[r][i].kind >= from && l->a[r][i].kind <= to;
        }
    }
    return found;
}

static int crosses(const lists *l, int stage, int other)
{
    return other >= 0 && l->rank_of[stage] != l->rank_of[other];
}

/* Checks a stage and a micro-batch that belongs there. */
static int judge_cell(const lists *l, int stage, int micro)
{
    static const int order[][2] = {
        {DPAR_ACTION_RECV_F, DPAR_ACTION_FORWARD},     {DPAR_ACTION_FORWARD, DPAR_ACTION_BACKWARD},
        {DPAR_ACTION_FORWARD, DPAR_ACTION_INPUT},      {DPAR_ACTION_FORWARD, DPAR_ACTION_SEND_F},
        {DPAR_ACTION_FORWARD, DPAR_ACTION_OFFLOAD},    {DPAR_ACTION_FORWARD, DPAR_ACTION_RECOMPUTE},
        {DPAR_ACTION_FORWARD, DPAR_ACTION_RELOAD},     {DPAR_ACTION_OFFLOAD, DPAR_ACTION_RELOAD},
        {DPAR_ACTION_OFFLOAD, DPAR_ACTION_RECOMPUTE},  {DPAR_ACTION_RELOAD, DPAR_ACTION_RECOMPUTE},
        {DPAR_ACTION_RELOAD, DPAR_ACTION_BACKWARD},    {DPAR_ACTION_RELOAD, DPAR_ACTION_INPUT},
        {DPAR_ACTION_OFFLOAD, DPAR_ACTION_BACKWARD},   {DPAR_ACTION_OFFLOAD, DPAR_ACTION_INPUT},
        {DPAR_ACTION_RECOMPUTE, DPAR_ACTION_BACKWARD}, {DPAR_ACTION_RECOMPUTE, DPAR_ACTION_INPUT},
        {DPAR_ACTION_RECV_B, DPAR_ACTION_BACKWARD},    {DPAR_ACTION_RECV_B, DPAR_ACTION_INPUT},
        {DPAR_ACTION_BACKWARD, DPAR_ACTION_SEND_B},    {DPAR_ACTION_INPUT, DPAR_ACTION_SEND_B},
        {DPAR_ACTION_INPUT, DPAR_ACTION_WEIGHT}};
    const int c = cell_of(l, stage, micro),
              trains = any_of(l, DPAR_ACTION_BACKWARD, DPAR_ACTION_WEIGHT);
    const int lowered = any_of(l, DPAR_ACTION_SEND_F, DPAR_ACTION_RECV_B);
    const int before = crosses(l, stage, list_before(l, stage));
    const int behind = crosses(l, stage, list_behind(l, stage));
    size_t k;
    int whole = times[DPAR_ACTION_BACKWARD][c] == 1 &&
                times[DPAR_ACTION_INPUT][c] + times[DPAR_ACTION_WEIGHT][c] == 0;
    int split = times[DPAR_ACTION_BACKWARD][c] == 0 && times[DPAR_ACTION_INPUT][c] == 1 &&
                times[DPAR_ACTION_WEIGHT][c] == 1;
    if (times[DPAR_ACTION_FORWARD][c] != 1 || (trains && !whole && !split) ||
        times[DPAR_ACTION_SEND_F][c] != (lowered && behind) ||
        times[DPAR_ACTION_RECV_F][c] != (lowered && before) ||
        times[DPAR_ACTION_SEND_B][c] != (lowered && trains && before) ||
        times[DPAR_ACTION_RECV_B][c] != (lowered && trains && behind) ||
        times[DPAR_ACTION_RECOMPUTE][c] > 1 || times[DPAR_ACTION_OFFLOAD][c] > 1 ||
        times[DPAR_ACTION_RELOAD][c] > times[DPAR_ACTION_OFFLOAD][c] ||
        (trains && times[DPAR_ACTION_RELOAD][c] != times[DPAR_ACTION_OFFLOAD][c])) {
        return 0;
    }
    for (k = 0; k < sizeof order / sizeof order[0]; k++) {
        if (times[order[k][0]][c] && times[order[k][1]][c] &&
            place[order[k][0]][c] > place[order[k][1]][c]) {
            return 0;
        }
    }
    return 1;
}

/* Returns the kind of action that makes the gradient of a stage's input. */
static int gradient_at(int c)
{
    return times[DPAR_ACTION_BACKWARD][c] ? place[DPAR_ACTION_BACKWARD][c]
                                          : place[DPAR_ACTION_INPUT][c];
}

/* Checks two cells of one rank: the first's forward comes before the second's, and the second's
 * backward before the first's. */
static int judge_two(const lists *l, int first, int second)
{
    return place[DPAR_ACTION_FORWARD][first] < place[DPAR_ACTION_FORWARD][second] &&
           (!any_of(l, DPAR_ACTION_BACKWARD, DPAR_ACTION_WEIGHT) ||
            gradient_at(second) < gradient_at(first));
}

static int judge_micro(const lists *l, int micro, int *chain)
{
    int k, s, where[CELLS] = {0}, chains = 0;
    for (s = 0; s < l->stages; s++) {
        for (k = 0; k < KINDS; k++) {
            where[s / l->chain] |= times[k][cell_of(l, s, micro)] > 0;
        }
    }
    for (k = 0; k < l->stages / l->chain; k++) {
        chains += where[k];
        *chain = where[k] ? k : *chain;
    }
    if (chains != 1) {
        return 0;
    }
    for (s = *chain * l->chain; s < (*chain + 1) * l->chain; s++) {
        int next = list_behind(l, s);
        if (!judge_cell(l, s, micro)) {
            return 0;
        }
        if (next >= 0 && !crosses(l, s, next) &&
            !judge_two(l, cell_of(l, s, micro), cell_of(l, next, micro))) {
            return 0;
        }
        if (micro % l->slices > 0 &&
            !judge_two(l, cell_of(l, s, micro - 1), cell_of(l, s, micro))) {
            return 0;
        }
    }
    return 1;
}

static int judge_stage(const lists *l, int stage)
{
    const int shards = any_of(l, DPAR_ACTION_UNSHARD, DPAR_ACTION_RESHARD);
    const int reduces = any_of(l, DPAR_ACTION_REDUCE_GRAD, DPAR_ACTION_REDUCE_GRAD);
    int i, r = l->rank_of[stage], open = 0, reduced = 0, trained = 0, waited = 0;
    for (i = 0; i < l->n[r]; i++) {
        int kind = l->a[r][i].kind;
        int computes = (kind >= DPAR_ACTION_FORWARD && kind <= DPAR_ACTION_WEIGHT) ||
                       kind == DPAR_ACTION_RECOMPUTE;
        if (kind == DPAR_ACTION_IDLE || l->a[r][i].stage != stage) {
            continue;
        }
        if ((kind == DPAR_ACTION_UNSHARD && open) || (kind == DPAR_ACTION_RESHARD && !open) ||
            (computes && shards && !open)) {
            return 0;
        }
        open = kind == DPAR_ACTION_UNSHARD ? 1 : kind == DPAR_ACTION_RESHARD ? 0 : open;
        if (reduced && kind >= DPAR_ACTION_BACKWARD && kind <= DPAR_ACTION_WEIGHT) {
            return 0;
        }
        reduced += kind == DPAR_ACTION_REDUCE_GRAD;
        waited += kind == DPAR_ACTION_WAIT_REDUCE;
        if (waited > 1 || (waited == 1 && reduced == 0)) {
            return 0;
        }
        trained |= kind >= DPAR_ACTION_BACKWARD && kind <= DPAR_ACTION_WEIGHT;
    }
    return !open && (reduced == reduces || (!trained && reduced == 0)) &&
           (!reduces || any_of(l, DPAR_ACTION_BACKWARD, DPAR_ACTION_WEIGHT));
}

/* Returns the n-th message from q to r as cell and direction at its sender; -1 if there is none. */
static int nth_message(const lists *l, int q, int r, int n, int sends)
{
    int owner = sends ? q : r, other = sends ? r : q, i;
    for (i = 0; i < l->n[owner]; i++) {
        const dpar_action *a = &l->a[owner][i];
        int forward = a->kind == DPAR_ACTION_SEND_F || a->kind == DPAR_ACTION_RECV_F;
        int is_send = a->kind == DPAR_ACTION_SEND_F || a->kind == DPAR_ACTION_SEND_B;
        if (is_message(a->kind) && is_send == sends && a->peer == other && n-- == 0) {
            int stage = sends ? a->stage : forward ? a->stage - 1 : a->stage + 1;
            return 2 * cell_of(l, stage, a->micro_batch) + forward;
        }
    }
    return -1;
}

static int judge_channels(const lists *l)
{
    int q, r, n;
    for (q = 0; q < l->ranks; q++) {
        for (r = 0; r < l->ranks; r++) {
            for (n = 0; nth_message(l, q, r, n, 1) >= 0; n++) {
                if (nth_message(l, q, r, n, 1) != nth_message(l, q, r, n, 0)) {
                    return 0;
                }
            }
        }
    }
    return 1;
}

static int judge_peers(const lists *l)
{
    int r, i;
    for (r = 0; r < l->ranks; r++) {
        for (i = 0; i < l->n[r]; i++) {
            const dpar_action *a = &l->a[r][i];
            int up = a->kind == DPAR_ACTION_SEND_F || a->kind == DPAR_ACTION_RECV_B;
            int other = up ? list_behind(l, a->stage) : list_before(l, a->stage);
            if (is_message(a->kind) && (other < 0 || l->rank_of[other] != a->peer)) {
                return 0;
            }
        }
    }
    return 1;
}

/* Returns 1 if the data of a computation or a receive is there. `done` is indexed by kind and
 * cell. */
static int has_data(const lists *l, char done[KINDS][CELLS], const dpar_action *a)
{
    const int lowered = any_of(l, DPAR_ACTION_SEND_F, DPAR_ACTION_RECV_B);
    int up = a->kind == DPAR_ACTION_BACKWARD || a->kind == DPAR_ACTION_INPUT ||
             a->kind == DPAR_ACTION_RECV_B;
    int from = up ? list_behind(l, a->stage) : list_before(l, a->stage), c;
    if (a->kind == DPAR_ACTION_RECV_F || a->kind == DPAR_ACTION_RECV_B) {
        return done[a->kind - 1][cell_of(l, from, a->micro_batch)];
    }
    if ((a->kind != DPAR_ACTION_FORWARD && !up) || !crosses(l, a->stage, from)) {
        return 1;
    }
    c = cell_of(l, from, a->micro_batch);
    return lowered ? done[up ? DPAR_ACTION_RECV_B : DPAR_ACTION_RECV_F]
                         [cell_of(l, a->stage, a->micro_batch)]
           : up ? done[DPAR_ACTION_BACKWARD][c] || done[DPAR_ACTION_INPUT][c]
                : done[DPAR_ACTION_FORWARD][c];
}

static int judge_data(const lists *l)
{
    static char done[KINDS][CELLS];
    int at[LIST_RANKS] = {0}, r, k, went = 1;
    memset(done, 0, sizeof done);
    while (went) {
        went = 0;
        for (r = 0; r < l->ranks; r++) {
            const dpar_action *a = &l->a[r][at[r]];
            int count = at[r] < l->n[r] ? 1 + a->joined : 0;
            if (count == 0 || !(a->kind == DPAR_ACTION_IDLE || has_data(l, done, a)) ||
                (count == 2 && !has_data(l, done, a + 1))) {
                continue;
            }
            for (k = 0; k < count; k++) {
                if (dpari_action_has_micro(a[k].kind)) {
                    done[a[k].kind][cell_of(l, a[k].stage, a[k].micro_batch)] = 1;
                }
            }
            at[r] += count;
            went = 1;
        }
    }
    for (r = 0; r < l->ranks; r++) {
        if (at[r] < l->n[r]) {
            return 0;
        }
    }
    return 1;
}

static int judge(const lists *l, int tagged)
{
    int m, k, chain[CELLS];
    if (!judge_ids(l) || !judge_peers(l)) {
        return 0;
    }
    for (m = 0; m < l->micros; m++) {
        if (!judge_micro(l, m, &chain[m]) || chain[m] != chain[m - m % l->slices]) {
            return 0;
        }
    }
    for (k = 0; k < l->stages; k++) {
        if (!judge_stage(l, k)) {
            return 0;
        }
    }
    return (tagged || judge_channels(l)) && judge_data(l);
}

/* ---- changed lists --------------------------------------------------------------------------- */

static dpar_action list_delete(lists *l, int r, int at)
{
    dpar_action a = l->a[r][at];
    l->n[r]--;
    memmove(&l->a[r][at], &l->a[r][at + 1], (size_t)(l->n[r] - at) * sizeof a);
    return a;
}

static int pick_rank(const lists *l)
{
    int r;
    do {
        r = list_random(l->ranks);
    } while (l->n[r] == 0);
    return r;
}

static void change_field(const lists *l, dpar_action *a)
{
    switch (list_random(5)) {
    case 0: a->kind = (uint8_t)list_random(KINDS + 1); break;
    case 1: a->stage = (uint16_t)list_random(l->stages + 1); break;
    case 2: a->micro_batch = (uint16_t)list_random(l->micros + 1); break;
    case 3: a->peer = (uint16_t)list_random(l->ranks + 1); break;
    default: a->joined = (uint8_t)list_random(3); break;
    }
}

/* Changes a list. Most changes keep it right or nearly right, because there the two checks may
 * differ. */
static void change(lists *l)
{
    int r = pick_rank(l), i = list_random(l->n[r]), j = list_random(l->n[r]);
    dpar_action a = l->a[r][i];
    switch (list_random(9)) {
    case 0: (void)list_delete(l, r, i); break;
    case 1: list_insert(l, r, j, a); break;
    case 2: l->a[r][i] = l->a[r][j], l->a[r][j] = a; break;
    case 3: list_insert(l, pick_rank(l), 0, list_delete(l, r, i)); break;
    case 4: change_field(l, &l->a[r][i]); break;
    case 5: list_insert(l, r, i, list_action(DPAR_ACTION_IDLE, 0, 0, 0)); break;
    case 6: /* RECOMPUTE, OFFLOAD or RELOAD, at any place, of something in the list */
        list_insert(l, r, j,
                    list_action(DPAR_ACTION_RECOMPUTE + list_random(3), a.stage, a.micro_batch, 0));
        break;
    default: /* a step or two earlier or later */
        (void)list_delete(l, r, i);
        j = i + list_random(7) - 3;
        list_insert(l, r, j < 0 ? 0 : j > l->n[r] ? l->n[r] : j, a);
        break;
    }
}

static int right, wrong;

static void compare(const lists *l)
{
    int flags = list_random(2) ? DPAR_CHECK_TAGGED : 0;
    int expected = judge(l, flags != 0);
    dpar_why why;
    dpar_status st = check_lists(l, flags, &why);
    CHECK_INT(st, expected                               ? DPAR_OK
                  : strncmp(why.text, "endless", 7) == 0 ? DPAR_E_STUCK
                                                         : DPAR_E_ARG);
    if ((st == DPAR_OK) != expected) {
        printf("  %s\n", st == DPAR_OK ? "accepted" : why.text);
    }
    right += expected;
    wrong += !expected;
}

/* Adds shards and reductions around each stage's work as a runner does. */
static void add_shards(lists *l)
{
    int s;
    for (s = l->stages - 1; s >= 0; s--) {
        int r = l->rank_of[s];
        list_insert(l, r, 0, list_action(DPAR_ACTION_UNSHARD, s, 0, 0));
        list_insert(l, r, l->n[r], list_action(DPAR_ACTION_REDUCE_GRAD, s, 0, 0));
        list_insert(l, r, l->n[r], list_action(DPAR_ACTION_RESHARD, s, 0, 0));
    }
}

/* Sends the activation of every third forward to the host and back, and recomputes others. */
static void add_offloads(lists *l)
{
    int r, i;
    for (r = 0; r < l->ranks; r++) {
        for (i = l->n[r] - 1; i >= 0; i--) {
            dpar_action a = l->a[r][i];
            if (i > 0 && l->a[r][i - 1].joined) {
                continue;
            }
            if ((a.kind == DPAR_ACTION_BACKWARD || a.kind == DPAR_ACTION_INPUT) &&
                a.micro_batch % 3 == 0) {
                list_insert(l, r, i, list_action(DPAR_ACTION_RELOAD, a.stage, a.micro_batch, 0));
            } else if (a.kind == DPAR_ACTION_BACKWARD && a.micro_batch % 3 == 1) {
                list_insert(l, r, i, list_action(DPAR_ACTION_RECOMPUTE, a.stage, a.micro_batch, 0));
            } else if (a.kind == DPAR_ACTION_FORWARD && a.micro_batch % 3 == 0) {
                list_insert(l, r, i + 1,
                            list_action(DPAR_ACTION_OFFLOAD, a.stage, a.micro_batch, 0));
            }
        }
    }
}

static void test_files_and_changes(void)
{
    static lists plain, one;
    int k, n, form, most;
    for (k = 0; k < LIST_FILES; k++) {
        const int trains = strstr(list_files[k], "forward_only") == NULL;
        for (form = 0; form < 4; form++) { /* unchanged; messages; shards; offloads */
            dpar_schedule s;
            dpar_why why;
            CHECK(list_load(&s, list_files[k]));
            list_open(&plain, &s);
            if (form > 0) {
                CHECK(list_lowered(&plain, list_files[k]));
            }
            if (form == 2 && trains && !any_of(&plain, DPAR_ACTION_UNSHARD, DPAR_ACTION_UNSHARD)) {
                add_shards(&plain);
            }
            if (form == 3 && !any_of(&plain, DPAR_ACTION_INPUT, DPAR_ACTION_INPUT)) {
                int joined = 0, r;
                for (r = 0; r < plain.ranks; r++) {
                    for (n = 0; n < plain.n[r]; n++) {
                        joined |= plain.a[r][n].joined;
                    }
                }
                if (!joined) {
                    add_offloads(&plain);
                }
            }
            CHECK_INT(check_lists(&plain, trains ? DPAR_CHECK_TRAINS : 0, &why), DPAR_OK);
            CHECK(judge(&plain, 0));
            for (n = 0; n < 500; n++) {
                one = plain;
                for (most = list_random(3); most >= 0; most--) {
                    change(&one);
                }
                compare(&one);
            }
        }
    }
    CHECK(right > 1000 && wrong > 1000);
}

/* Checks lists of random values: no crash (the sanitizers check that) and the same verdict. */
static void test_garbage(void)
{
    static lists l;
    int n, r, i;
    for (n = 0; n < 10000; n++) {
        memset(&l, 0, sizeof l);
        l.ranks = 1 + list_random(3), l.chain = 1 + list_random(3);
        l.stages = l.chain * (1 + list_random(2));
        l.slices = 1 + list_random(2), l.micros = l.slices * (1 + list_random(2));
        for (i = 0; i < l.stages; i++) {
            l.rank_of[i] = list_random(l.ranks);
        }
        for (r = 0; r < l.ranks; r++) {
            l.n[r] = list_random(14);
            for (i = 0; i < l.n[r]; i++) {
                l.a[r][i] = list_action(list_random(KINDS + (n % 50 == 0)), list_random(l.stages),
                                        list_random(l.micros), list_random(l.ranks));
                if (n % 3 == 0) {
                    l.a[r][i].kind = (uint8_t)(1 + list_random(2));
                }
                l.a[r][i].joined = list_random(9) == 0;
                if (!dpari_action_has_micro(l.a[r][i].kind) && list_random(2)) {
                    l.a[r][i].micro_batch = (uint16_t)list_random(65536); /* ignored */
                }
                if (l.a[r][i].kind == DPAR_ACTION_IDLE) {
                    l.a[r][i].stage = (uint16_t)list_random(65536);
                }
            }
        }
        compare(&l);
    }
}

/* ---- each message ---------------------------------------------------------------------------- */

static void sentence(const char *csv, int chain, int flags, const char *expected)
{
    dpar_schedule s;
    dpar_status st;
    dpar_why why;
    CHECK_INT(list_read(&s, csv, strlen(csv), chain), DPAR_OK);
    strcpy(why.text, "right");
    st = strcmp(expected, "right") == 0 ? DPAR_OK : DPAR_E_ARG;
    st = strncmp(expected, "endless", 7) == 0 ? DPAR_E_STUCK : st;
    CHECK_INT(check_s(&s, flags, &why), st);
    CHECK_TEXT(why.text, expected);
    CHECK_INT(check_s(&s, flags, NULL), st);
}

static void test_sentences(void)
{
    sentence("0F0,0B0\n", 0, DPAR_CHECK_TRAINS, "right");
    sentence("0F0\n", 0, 0, "right");
    sentence("0F0\n", 0, DPAR_CHECK_TRAINS,
             "the schedule has no backward, which DPAR_CHECK_TRAINS requires");
    sentence("0F0,0B0,0B0\n", 0, 0, "rank 0: 0B0 is listed twice");
    sentence("0F0,0F1,0B0\n", 0, 0, "rank 0: 0B1 is missing");
    sentence("0F0,0F1,0I0,0B1\n", 0, 0, "rank 0: 0W0 is missing");
    sentence("0F0,0I0,0B0\n", 0, 0,
             "rank 0: 0I0 and 0B0 exclude each other, because a B is I and W in one");
    sentence("0F0,0B0,0W0\n", 0, 0,
             "rank 0: 0B0 and 0W0 exclude each other, because a B is I and W in one");
    sentence("0F0,0W0,0I0\n", 0, 0, "rank 0: 0I0 comes after 0W0, which needs it");
    sentence("0B0,0F0\n", 0, 0, "rank 0: 0F0 comes after 0B0, which needs it");
    sentence("1F0,0F0,1B0,0B0\n", 0, 0, "rank 0: 0F0 comes after 1F0, which needs it");
    sentence("0F0,1F0,0B0,1B0\n", 0, 0, "rank 0: 1B0 comes after 0B0, which needs it");
    sentence("0F0,0F2,0B0,0B2\n", 0, 0, "micro-batch 1 of 3 is in no list");
    sentence("0F0,1F0\n", 1, 0,
             "rank 0: the micro-batch of 1F0 is also in the chain from stage 0 on");
    sentence("0F0,1F1\n", 1, 0, "right");
    sentence("0F1\n1F0\n", 1, 0, "right");
    sentence("0F0,0B0\n\n", 0, 0, "right"); /* a rank without actions */
    sentence("0F1,0B1,0F2\n", 0, 0, "micro-batch 0 of 3 is in no list");
    sentence("0F0,1F0,0F1\n", 0, 0,
             "2 stages per chain and 2 micro-batches need more than 3 actions");
    sentence("0F0,(0F1;0B1)OVERLAP_F_B,0B0\n", 0, 0, "rank 0: 0F1 is joined with its own 0B1");
    sentence("0F0,0OFFLOAD0,0B0\n", 0, 0, "rank 0: 0RELOAD0 is missing");
    sentence("0F0,0RELOAD0,0B0\n", 0, 0, "rank 0: 0OFFLOAD0 is missing");
    sentence("0F0,0RELOAD0\n", 0, 0, "rank 0: 0OFFLOAD0 is missing");
    sentence("0F0,0OFFLOAD0\n", 0, 0, "right");
    sentence("0F0,0OFFLOAD0,0B0,0RELOAD0\n", 0, 0,
             "rank 0: 0RELOAD0 comes after 0B0, which needs it");
    sentence("0F0,0B0,0RECOMPUTE0\n", 0, 0, "rank 0: 0RECOMPUTE0 comes after 0B0, which needs it");
    sentence("0UNSHARD,0F0,0B0\n", 0, 0, "rank 0: the last 0UNSHARD has no 0RESHARD after it");
    sentence("0F0,0UNSHARD,0B0,0RESHARD\n", 0, 0,
             "rank 0: 0F0, but stage 0 is not unsharded there");
    sentence("0UNSHARD,0F0,0UNSHARD,0B0,0RESHARD\n", 0, 0,
             "rank 0: 0UNSHARD, but stage 0 is already unsharded");
    sentence("0UNSHARD,0F0,0B0,0RESHARD,0RESHARD\n", 0, 0,
             "rank 0: 0RESHARD, but stage 0 is not unsharded there");
    sentence("0UNSHARD,0F0,0RESHARD,0RECOMPUTE0,0UNSHARD,0B0,0RESHARD\n", 0, 0,
             "rank 0: 0RECOMPUTE0, but stage 0 is not unsharded there");
    sentence("0F0,0F1,0B0,0REDUCE_GRAD,0B1\n", 0, 0, "rank 0: 0B1 comes after 0REDUCE_GRAD");
    sentence("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n", 0, 0,
             "rank 0: 0REDUCE_GRAD comes after 0REDUCE_GRAD");
    sentence("0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n", 0, 0, "right");
    sentence("0F0,0B0,0WAIT_REDUCE_GRAD,0REDUCE_GRAD\n", 0, 0,
             "rank 0: 0WAIT_REDUCE_GRAD has no 0REDUCE_GRAD before it");
    sentence("0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0WAIT_REDUCE_GRAD\n", 0, 0,
             "rank 0: 0WAIT_REDUCE_GRAD has no 0REDUCE_GRAD before it");
    sentence("0F0,1F0,1B0,1REDUCE_GRAD,0B0\n", 0, 0, "rank 0: 0REDUCE_GRAD is missing");
    sentence("0F0,0B0,0REDUCE_GRAD\n1F1,1B1\n", 1, 0, "rank 1: 1REDUCE_GRAD is missing");
    sentence("0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD\n1UNSHARD,1RESHARD\n", 1, 0, "right");
    sentence("0F0,0REDUCE_GRAD\n", 0, 0, "there is a REDUCE_GRAD, but no backward");
    /* messages */
    sentence("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 0, 0, "rank 0: 0RECV_B0 is missing");
    sentence("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 0, 0, "rank 0: 0SEND_F0 is missing");
    sentence("0F0,0SEND_F0\n1F0,1RECV_F0\n", 0, 0,
             "rank 1: 1RECV_F0 comes after 1F0, which needs it");
    sentence("0SEND_F0,0F0\n1RECV_F0,1F0\n", 0, 0,
             "rank 0: 0F0 comes after 0SEND_F0, which needs it");
    sentence("0F0,0SEND_F0,0RECV_B0\n1RECV_F0,1F0,1SEND_B0\n", 0, 0,
             "rank 0: 0RECV_B0 is not needed, because there is no backward");
    sentence("0F0,0SEND_F0\n1RECV_F0,1F0,1SEND_F0\n2RECV_F0,2F0\n", 0, 0, "right");
    sentence("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F1,1F1,1RECV_F0,1F0\n", 0, 0,
             "rank 1: 1RECV_F1 is in the place where rank 0 sends 0SEND_F0; without tags (NCCL) it "
             "receives the wrong data");
    sentence("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F1,1F1,1RECV_F0,1F0\n", 0, DPAR_CHECK_TAGGED,
             "right");
}

/* Checks headers that no schedule has, and memory that is too small. */
static void test_shapes(void)
{
    static const char csv[] = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n";
    dpar_schedule s, bad;
    dpar_why why;
    int64_t mem[64], stuck[2];
    int64_t bytes, needed;
    CHECK_INT(list_read(&s, csv, sizeof csv - 1, 0), DPAR_OK);
    needed = check_list_bytes(&s);
    /* 12 per stage and micro-batch, 24 per rank, 2 per micro-batch, 1 per stage, up to 4 to reach a
     * multiple of 8; 16 per action */
    CHECK_INT(needed, 12 * 2 + 24 * 2 + 2 + 2 + 4);
    CHECK_INT(check_run_bytes(&s), needed + 16 * 8);
    for (bytes = 0; bytes < needed; bytes++) {
        CHECK_INT(check_list(&s, 0, mem, bytes, &why), DPAR_E_ROOM);
    }
    CHECK_INT(check_list(&s, 0, mem, needed, &why), DPAR_OK);
    needed = check_run_bytes(&s);
    CHECK(needed <= (int64_t)sizeof mem);
    CHECK_INT(check_run(&s, DPAR_TRANSPORT_BLOCKING, 0, stuck, mem, needed - 1, &why), DPAR_E_ROOM);
    CHECK_INT(check_run(&s, DPAR_TRANSPORT_BLOCKING, 0, stuck, mem, needed, &why), DPAR_OK);
    CHECK_INT(check_run(&s, DPAR_TRANSPORT_COUNT, 0, stuck, mem, needed, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "transport=7; 0 to 6 are allowed");
    CHECK_INT(check_run(&s, -1, 0, stuck, mem, needed, NULL), DPAR_E_ARG);
    CHECK_INT(check_run(&s, DPAR_TRANSPORT_EAGER, 0, stuck, mem, needed, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "capacity=0; an eager buffer needs 1 or more");
#define SHAPE(field, value, said)                                                                  \
    bad = s, bad.field = value;                                                                    \
    CHECK_INT(check_list_bytes(&bad), -1);                                                         \
    CHECK_INT(check_run_bytes(&bad), -1);                                                          \
    CHECK_INT(check_list(&bad, 0, mem, sizeof mem, &why), DPAR_E_ARG);                             \
    CHECK_TEXT(why.text, said);                                                                    \
    CHECK_INT(check_run(&bad, 0, 0, stuck, mem, sizeof mem, &why), DPAR_E_ARG);                    \
    CHECK_TEXT(why.text, said)
    SHAPE(ranks, 0, "the schedule has 0 ranks and 2 stages; 1 to 65535 are allowed");
    SHAPE(stages, -5, "the schedule has 2 ranks and -5 stages; 1 to 65535 are allowed");
    SHAPE(chain, 0, "chains of 0 stages do not divide 2 stages");
    SHAPE(chain, 4, "chains of 4 stages do not divide 2 stages");
    SHAPE(micro_batches, 0, "the schedule has 0 micro-batches; 1 to 65535 are allowed");
    SHAPE(micro_batches, 65536, "the schedule has 65536 micro-batches; 1 to 65535 are allowed");
    SHAPE(slices, 2, "slices of 2 do not divide 1 micro-batches");
    SHAPE(slices, INT32_MIN, "slices of -2147483648 do not divide 1 micro-batches");
#undef SHAPE
    bad = s, bad.micro_batches = 65535;
    CHECK_INT(check_list(&bad, 0, mem, sizeof mem, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "2 stages per chain and 65535 micro-batches need more than 8 actions");
    bad = s, bad.micro_batches = 3;
    CHECK_INT(check_list(&bad, 0, mem, sizeof mem, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "micro-batch 1 of 3 is in no list");
    s.rank_of[1] = 2;
    CHECK_INT(check_list(&s, 0, mem, sizeof mem, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "rank_of[1] is 2, but there are only 2 ranks");
    s.rank_of[1] = 1, s.action[0].kind = 99;
    CHECK_INT(check_list(&s, 0, mem, sizeof mem, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "rank 0: action 0 of its list has kind 99; kinds are 0 to 15");
    s.action[0].kind = DPAR_ACTION_COUNT;
    CHECK_INT(check_list(&s, 0, mem, sizeof mem, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "rank 0: action 0 of its list has kind 16; kinds are 0 to 15");
    s.action[0].kind = DPAR_ACTION_FORWARD, s.action[0].stage = 2;
    CHECK_INT(check_list(&s, 0, mem, sizeof mem, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "rank 0: 2F0 does not exist, there are only 2 stages");
    s.action[0].stage = 1;
    CHECK_INT(check_list(&s, 0, mem, sizeof mem, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "rank 0: the stage of 1F0 is on rank 1");
    s.action[0].stage = 0, s.action[0].micro_batch = 1;
    CHECK_INT(check_list(&s, 0, mem, sizeof mem, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "rank 0: 0F1 does not exist, there are only 1 micro-batches");
    s.action[0].micro_batch = 0, s.action[1].peer = 0;
    CHECK_INT(check_list(&s, 0, mem, sizeof mem, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "rank 0: 0SEND_F0 has peer 0, but its other end is on another rank");
    s.action[1].peer = 1, s.action[0].joined = 1;
    CHECK_INT(check_list(&s, 0, mem, sizeof mem, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "rank 0: 0F0 is joined, but it is not an F that a B or I follows");
    s.action[0].joined = 0;
    s.action[0].kind = DPAR_ACTION_FORWARD, s.begin[1] = 9;
    CHECK_INT(check_list(&s, 0, mem, sizeof mem, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "the list of rank 1 begins at action 9 and ends at 8");
    s.begin[1] = 4, s.begin[0] = 1;
    CHECK_INT(check_list(&s, 0, mem, sizeof mem, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "begin[0] is 1; it must be 0");
    s.begin[0] = 0, s.begin[2] = INT64_MAX;
    CHECK_INT(check_list(&s, 0, mem, sizeof mem, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text,
               "the schedule has 9223372036854775807 actions; at most 2147483646 can be checked");
}

/* Checks the largest numbers of ranks and stages: one forward goes through all of them. */
static void test_most(void)
{
    enum { MOST = 65535 };
    int64_t bytes = dpari_schedule_bytes(MOST, MOST, MOST);
    void *mem = malloc((size_t)bytes);
    dpar_schedule s;
    int32_t k;
    CHECK_INT(schedule_init(&s, MOST, MOST, MOST, mem, bytes, NULL), DPAR_OK);
    s.micro_batches = 1;
    for (k = 0; k < MOST; k++) {
        s.action[k] = list_action(DPAR_ACTION_FORWARD, k, 0, 0);
        s.rank_of[k] = (uint16_t)(MOST - 1 - k);
        s.begin[k + 1] = k + 1;
    }
    for (k = 0; k < MOST; k++) {
        s.action[k].stage = (uint16_t)(MOST - 1 - k);
    }
    CHECK_INT(check_s(&s, 0, NULL), DPAR_OK);
    s.action[MOST - 1].kind = DPAR_ACTION_BACKWARD;
    CHECK_INT(check_s(&s, 0, NULL), DPAR_E_ARG);
    free(mem);
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* A transition system: every rank has a position in its list; a message is posted, then
 * finished. */
static int at[LIST_RANKS], over[LIST_RANKS][LIST_MOST];

/* Finds the other end of a message. */
static void other_end(const lists *l, int r, int i, int *q, int *j)
{
    const dpar_action *a = &l->a[r][i];
    int sends = a->kind == DPAR_ACTION_SEND_F || a->kind == DPAR_ACTION_SEND_B;
    int up = a->kind == DPAR_ACTION_SEND_F || a->kind == DPAR_ACTION_RECV_B;
    *q = l->rank_of[up ? a->stage + 1 : a->stage - 1];
    for (*j = 0;; ++*j) {
        const dpar_action *b = &l->a[*q][*j];
        if (b->kind == (sends ? a->kind + 1 : a->kind - 1) && b->micro_batch == a->micro_batch &&
            b->stage == (up ? a->stage + 1 : a->stage - 1)) {
            return;
        }
    }
}

static int is_send(const dpar_action *a)
{
    return a->kind == DPAR_ACTION_SEND_F || a->kind == DPAR_ACTION_SEND_B;
}

static int one_queue(int transport, const dpar_action *a, const dpar_action *b)
{
    int way = (a->kind >= DPAR_ACTION_SEND_B) == (b->kind >= DPAR_ACTION_SEND_B);
    switch (transport) {
    case DPAR_TRANSPORT_RANK: return 1;
    case DPAR_TRANSPORT_DIRECTION: return way;
    case DPAR_TRANSPORT_PAIR: return a->peer == b->peer;
    default: return a->peer == b->peer && is_send(a) == is_send(b);
    }
}

/* Returns the first unfinished message of i's queue in rank r's list. */
static int queue_head(const lists *l, int transport, int r, int i)
{
    int k = 0;
    while (!is_message(l->a[r][k].kind) || over[r][k] ||
           !one_queue(transport, &l->a[r][k], &l->a[r][i])) {
        k++;
    }
    return k;
}

/* Returns the receive that a computation waits for; -1 if it can run. */
static int lacks(const lists *l, int r, const dpar_action *a)
{
    int k;
    for (k = 0; k < l->n[r]; k++) {
        const dpar_action *b = &l->a[r][k];
        int needed = a->kind == DPAR_ACTION_FORWARD ? DPAR_ACTION_RECV_F
                     : a->kind == DPAR_ACTION_BACKWARD || a->kind == DPAR_ACTION_INPUT
                         ? DPAR_ACTION_RECV_B
                         : -1;
        if (b->kind == needed && b->stage == a->stage && b->micro_batch == a->micro_batch &&
            !over[r][k]) {
            return k;
        }
    }
    return -1;
}

static int queued_transport(int t)
{
    return t >= DPAR_TRANSPORT_RANK && t <= DPAR_TRANSPORT_EDGE;
}

static int can_buffer(const lists *l, int r, int i, int q, int j, int room)
{
    const dpar_action *a = &l->a[r][i];
    int k, held = 0;
    if (!is_send(a)) { /* every earlier send to this rank was received, and this one is posted */
        for (k = 0; k < j; k++) {
            if (is_send(&l->a[q][k]) && l->a[q][k].peer == r) {
                int x, y;
                other_end(l, q, k, &x, &y);
                if (!over[x][y]) {
                    return 0;
                }
            }
        }
        return over[q][j];
    }
    for (k = 0; k < i; k++) {
        if (is_send(&l->a[r][k]) && l->a[r][k].peer == q) {
            int x, y;
            other_end(l, r, k, &x, &y);
            held += over[r][k] && !over[x][y];
        }
    }
    return held < room;
}

/* Takes one step of rank r if possible. */
static int try_step(const lists *l, int transport, int room, int r)
{
    int i = at[r], q, j;
    const dpar_action *a = &l->a[r][i];
    if (i == l->n[r]) {
        return 0;
    }
    if (!is_message(a->kind)) {
        if (lacks(l, r, a) >= 0 || (a->joined && lacks(l, r, a + 1) >= 0)) {
            return 0;
        }
        at[r] += 1 + a->joined;
        return 1;
    }
    if (queued_transport(transport)) {
        at[r]++;
        return 1;
    }
    other_end(l, r, i, &q, &j);
    if (transport == DPAR_TRANSPORT_BLOCKING ? at[q] != j : !can_buffer(l, r, i, q, j, room)) {
        return 0;
    }
    at[r]++, over[r][i] = 1;
    if (transport == DPAR_TRANSPORT_BLOCKING) {
        at[q]++, over[q][j] = 1;
    }
    return 1;
}

/* Delivers a posted message of rank r if possible. */
static int try_delivery(const lists *l, int transport, int r)
{
    int i, q, j;
    for (i = 0; i < at[r]; i++) {
        if (is_message(l->a[r][i].kind) && !over[r][i] && queue_head(l, transport, r, i) == i) {
            other_end(l, r, i, &q, &j);
            if (j < at[q] && queue_head(l, transport, q, j) == j) {
                over[r][i] = over[q][j] = 1;
                return 1;
            }
        }
    }
    return 0;
}

/* Takes random possible steps until there are none. Stores each rank's position, -1 if it
 * finished. */
static int simulate(const lists *l, int transport, int room, int *stuck)
{
    int r, went, all = 1;
    memset(at, 0, sizeof at);
    memset(over, 0, sizeof over);
    do {
        int first = list_random(l->ranks), k;
        for (went = 0, k = 0; k < l->ranks && !went; k++) {
            r = (first + k) % l->ranks;
            if (queued_transport(transport) && list_random(2)) {
                went = try_delivery(l, transport, r) || try_step(l, transport, room, r);
            } else {
                went = try_step(l, transport, room, r) ||
                       (queued_transport(transport) && try_delivery(l, transport, r));
            }
        }
    } while (went);
    for (r = 0; r < l->ranks; r++) {
        const dpar_action *a = &l->a[r][at[r]];
        int k, wait;
        stuck[r] = -1;
        if (at[r] < l->n[r]) {
            wait = lacks(l, r, a) >= 0 ? lacks(l, r, a) : a->joined ? lacks(l, r, a + 1) : -1;
            stuck[r] = queued_transport(transport) ? queue_head(l, transport, r, wait) : at[r];
        }
        for (k = l->n[r] - 1; k >= 0 && at[r] == l->n[r]; k--) {
            if (is_message(l->a[r][k].kind) && !over[r][k]) {
                stuck[r] = k;
            }
        }
        all = all && stuck[r] < 0;
    }
    return all;
}

static int passes[DPAR_TRANSPORT_COUNT], stops[DPAR_TRANSPORT_COUNT];

static void compare_runs(const lists *l)
{
    dpar_schedule s;
    void *mem = list_close(l, &s);
    int t, r, through[DPAR_TRANSPORT_COUNT];
    for (t = 1; t < DPAR_TRANSPORT_COUNT; t++) {
        int expected[LIST_RANKS], room = 1 + list_random(3);
        int64_t stuck[LIST_RANKS] = {-7, -7, -7, -7, -7, -7, -7, -7};
        dpar_why why;
        dpar_status st = run_s(&s, t, room, stuck, &why);
        through[t] = simulate(l, t, room, expected);
        CHECK_INT(st, through[t] ? DPAR_OK : DPAR_E_STUCK);
        for (r = 0; r < l->ranks; r++) {
            CHECK_INT(stuck[r], through[t] ? -7 : expected[r] < 0 ? -1 : s.begin[r] + expected[r]);
        }
        if (!through[t]) {
            CHECK(strncmp(why.text, dpari_transport_name(t), strlen(dpari_transport_name(t))) == 0);
            CHECK(strstr(why.text, " waits for ") != NULL);
        }
        passes[t] += through[t];
        stops[t] += !through[t];
    }
    if (through[DPAR_TRANSPORT_BLOCKING]) { /* the header's promise */
        for (t = 1; t < DPAR_TRANSPORT_COUNT; t++) {
            CHECK(through[t]);
        }
    }
    free(mem);
}

/* Makes the last rank the first. */
static void turn_around(lists *l)
{
    static lists old;
    int r, i;
    old = *l;
    for (r = 0; r < l->ranks; r++) {
        l->n[r] = old.n[l->ranks - 1 - r];
        memcpy(l->a[r], old.a[l->ranks - 1 - r], sizeof l->a[r]);
        for (i = 0; i < l->n[r]; i++) {
            if (is_message(l->a[r][i].kind)) {
                l->a[r][i].peer = (uint16_t)(l->ranks - 1 - l->a[r][i].peer);
            }
        }
    }
    for (i = 0; i < l->stages; i++) {
        l->rank_of[i] = l->ranks - 1 - l->rank_of[i];
    }
}

/* Moves a message as far as the data allow, or a little. */
static void move_message(lists *l)
{
    int r, i, tries = 0;
    do {
        r = pick_rank(l);
        i = list_random(l->n[r]);
    } while (!is_message(l->a[r][i].kind) && tries++ < 1000);
    {
        dpar_action a = list_delete(l, r, i);
        int j = i + list_random(13) - 6;
        list_insert(l, r, j < 0 ? 0 : j > l->n[r] ? l->n[r] : j, a);
    }
}

static void test_runs(void)
{
    static lists plain, one, last;
    static const char *const small[] = {"1f1b_p4_m2_fewer_mb_than_stages",
                                        "unbalanced_p2_5stages_m1",
                                        "megatron_tunable_p2_v2_m5_N3",
                                        "chimera_p4_m4",
                                        "overlap_1f1b_p4_m8",
                                        "pt_interleaved_p2_v2_m4_recv_late_DEADLOCK",
                                        "gpipe_lifo_p4_m4"};
    int k, n, t, moves;
    for (k = 0; k < LIST_FILES; k++) { /* lowered as PyTorch does it: passes on all */
        if (strstr(list_files[k], "DEADLOCK") == NULL) {
            dpar_schedule s;
            void *mem;
            CHECK(list_lowered(&plain, list_files[k]));
            mem = list_close(&plain, &s);
            CHECK_INT(check_s(&s, 0, NULL), DPAR_OK);
            for (t = 1; t < DPAR_TRANSPORT_COUNT; t++) {
                CHECK_INT(run_s(&s, t, 1, NULL, NULL), DPAR_OK);
            }
            free(mem);
        }
    }
    for (k = 0; k < (int)(sizeof small / sizeof small[0]); k++) {
        CHECK(list_lowered(&plain, small[k]));
        compare_runs(&plain);
        for (n = 0; n < 100; n++) {
            one = plain;
            if (n % 2) {
                turn_around(&one);
            }
            for (moves = list_random(30); moves >= 0; moves--) {
                last = one;
                move_message(&one);
                if (!judge(&one, 1)) {
                    one = last;
                }
            }
            compare_runs(&one);
        }
    }
    for (t = 1; t < DPAR_TRANSPORT_COUNT; t++) {
        CHECK(passes[t] > 20 && stops[t] > 20);
    }
}

/* Checks the whole message of a run that gets stuck. */
static void run_sentence(const char *csv, int transport, int room, const char *expected)
{
    dpar_schedule s;
    dpar_why why;
    CHECK_INT(list_read(&s, csv, strlen(csv), 0), DPAR_OK);
    CHECK_INT(run_s(&s, transport, room, NULL, &why), DPAR_E_STUCK);
    CHECK_TEXT(why.text, expected);
    CHECK_INT(run_s(&s, transport, room, NULL, NULL), DPAR_E_STUCK);
}

/* Checks receives in another order than the sends, and a first rank without actions. */
static void test_run_sentences(void)
{
    static const char csv[] = "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F1,1F1,1RECV_F0,1F0\n";
    static const char behind[] = "\n0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F1,1F1,1RECV_F0,1F0\n";
    static const char ahead[] = "1RECV_F1,1F1,1RECV_F0,1F0\n0F0,0SEND_F0,0F1,0SEND_F1\n";
    run_sentence(csv, DPAR_TRANSPORT_EAGER, 1,
                 "eager: rank 0 at 0SEND_F1 waits for 1RECV_F0 that rank 1 has after 1RECV_F1; "
                 "rank 1 at 1RECV_F1 waits for 0SEND_F1 of rank 0");
    run_sentence(csv, DPAR_TRANSPORT_EAGER, 2,
                 "eager: rank 1 at 1RECV_F1 waits for 1RECV_F0 that rank 1 has after 1RECV_F1");
    run_sentence(csv, DPAR_TRANSPORT_EDGE, 0,
                 "edge: rank 0 at 0SEND_F0 waits for 1RECV_F0 that rank 1 has after 1RECV_F1; "
                 "rank 1 at 1RECV_F1 waits for 0SEND_F1 that rank 0 has after 0SEND_F0");
    run_sentence(behind, DPAR_TRANSPORT_BLOCKING, 0,
                 "blocking: rank 1 at 0SEND_F0 waits for 1RECV_F0 that rank 2 has after 1RECV_F1; "
                 "rank 2 at 1RECV_F1 waits for 0SEND_F1 that rank 1 has after 0SEND_F0");
    run_sentence(ahead, DPAR_TRANSPORT_RANK, 0,
                 "rank: rank 0 at 1RECV_F1 waits for 0SEND_F1 that rank 1 has after 0SEND_F0; "
                 "rank 1 at 0SEND_F0 waits for 1RECV_F0 that rank 0 has after 1RECV_F1");
    /* each rank has, before the backward that the other waits for, one that waits for the other */
    sentence("0F0,3F1,0B0,3B1\n2F1,1F0,2B1,1B0\n", 2, 0,
             "endless: rank 0 at 0B0 waits for 1B0 that rank 1 has after 2B1; rank 1 at 2B1 waits "
             "for 3B1 that rank 0 has after 0B0");
}

/* Checks PyTorch's issue #172668: both lines that it quotes, and what the file's header states for
 * each transport. */
static void test_negative(void)
{
    static const int passes_it[DPAR_TRANSPORT_COUNT] = {0, 0, 0, 0,
                                                        0, 1, 1}; /* indexed by DPAR_TRANSPORT_* */
    dpar_schedule s;
    int t;
    CHECK(list_load(&s, "pt_interleaved_p2_v2_m4_recv_late_DEADLOCK"));
    CHECK_INT(check_s(&s, 0, NULL), DPAR_OK);
    for (t = 1; t < DPAR_TRANSPORT_COUNT; t++) {
        int64_t stuck[2];
        char word[2][32], expected[240];
        dpar_text text;
        dpar_why why;
        CHECK_INT(run_s(&s, t, 2, stuck, &why), passes_it[t] ? DPAR_OK : DPAR_E_STUCK);
        if (!passes_it[t]) {
            dpar_text_init(&text, word[0], sizeof word[0]);
            dpar_action_write(&s.action[stuck[0]], &text);
            dpar_text_init(&text, word[1], sizeof word[1]);
            dpar_action_write(&s.action[stuck[1]], &text);
            CHECK_TEXT(word[0], "0SEND_F1");
            CHECK_TEXT(word[1], "1SEND_F0");
            snprintf(expected, sizeof expected,
                     "%s: rank 0 at 0SEND_F1 waits for 1RECV_F1 that rank 1 has after 1SEND_F0; "
                     "rank 1 at 1SEND_F0 waits for 2RECV_F0 that rank 0 has after 0SEND_F1",
                     dpari_transport_name(t));
            CHECK_TEXT(why.text, expected);
        }
    }
    CHECK(list_load(&s, "1f1b_p4_m8"));
    {
        dpar_why why;
        CHECK_INT(run_s(&s, DPAR_TRANSPORT_EDGE, 0, NULL, &why), DPAR_E_ARG);
        CHECK_TEXT(why.text, "stage 0 on rank 0 feeds stage 1 on rank 1, but the schedule has no "
                             "messages; call dpar_schedule_lower first");
    }
    CHECK_INT(list_read(&s, "0F0,1F0,1B0,0B0", 15, 0), DPAR_OK); /* one rank needs no messages */
    CHECK_INT(run_s(&s, DPAR_TRANSPORT_EDGE, 0, NULL, NULL), DPAR_OK);
}

/* Checks ten stages on five ranks, with all micro-batches of the first five first: rank 4's send
 * waits for rank 0, which is still sending, and so on in a circle. The message names two ranks and
 * gives the number of the others. */
static void test_long_circle(void)
{
    static lists l;
    dpar_schedule s;
    dpar_why why;
    void *mem;
    int k, m;
    memset(&l, 0, sizeof l);
    l.ranks = 5, l.stages = l.chain = 10, l.micros = 5, l.slices = 1;
    for (k = 0; k < 10; k++) {
        int r = l.rank_of[k] = k % 5;
        for (m = 0; m < 5; m++) {
            if (k > 0) {
                list_insert(&l, r, l.n[r], list_action(DPAR_ACTION_RECV_F, k, m, (r + 4) % 5));
            }
            list_insert(&l, r, l.n[r], list_action(DPAR_ACTION_FORWARD, k, m, 0));
            if (k < 9) {
                list_insert(&l, r, l.n[r], list_action(DPAR_ACTION_SEND_F, k, m, (r + 1) % 5));
            }
        }
    }
    mem = list_close(&l, &s);
    CHECK_INT(run_s(&s, DPAR_TRANSPORT_BLOCKING, 0, NULL, &why), DPAR_E_STUCK);
    CHECK_TEXT(why.text,
               "blocking: rank 0 at 0SEND_F4 waits for 1RECV_F4 that rank 1 has after 1SEND_F3; "
               "rank 1 at 1SEND_F3 waits for 2RECV_F3 that rank 2 has after 2SEND_F2; and 3 more");
    CHECK_INT(run_s(&s, DPAR_TRANSPORT_EAGER, 1, NULL, NULL), DPAR_OK);
    free(mem);
}

int main(void)
{
    test_files_and_changes();
    test_garbage();
    test_sentences();
    test_shapes();
    test_most();
    test_runs();
    test_run_sentences();
    test_negative();
    test_long_circle();
    return CHECK_DONE();
}
