/* SPDX-License-Identifier: MIT-0 */
/* Tests steps: compares slots with lifetimes written down one by one and with known numbers of
 * slots, and the step machine with the lists. Run with: tests/run test schedule. */
#include "dpar_schedule.h"
#include "schedule_calls.h"

#include "check.h"
#include "pipeline_lists.h"

static dpar_action_slots *slots;            /* slots of the last schedule */
static dpar_slot_counts counts[LIST_RANKS]; /* and its counts */

static dpar_status slots_s(const dpar_schedule *s, int flying, dpar_why *why)
{
    int64_t bytes = dpari_schedule_slots_bytes(s), i, n = s->begin[s->ranks];
    void *mem = malloc(bytes > 0 ? (size_t)bytes : 1);
    dpar_status st;
    free(slots);
    slots = (dpar_action_slots *)malloc((size_t)n * sizeof *slots);
    for (i = 0; i < n; i++) {
        slots[i].receive = slots[i].activation = slots[i].send = slots[i].weight = 7777;
    }
    st = give_slots(s, flying, slots, counts, mem, bytes, why);
    free(mem);
    return st;
}

/* ---- lifetimes ------------------------------------------------------------------------------- */

/* A value that is in a slot from one moment to another, both included. */
typedef struct life {
    int from, to, slot;
} life;
static life lives[4 * LIST_MOST];
static int life_count;

/* Returns the moment of action i of a list; both halves of a pair have the first's. */
static int moment(const lists *l, int r, int i)
{
    return i > 0 && l->a[r][i - 1].joined ? i - 1 : i;
}

/* Returns the position of one of two kinds behind i; the list's length if there is none. */
static int find(const lists *l, int r, int kind, int other, int i)
{
    const dpar_action *a = &l->a[r][i];
    for (i++; i < l->n[r]; i++) {
        const dpar_action *b = &l->a[r][i];
        if ((b->kind == kind || b->kind == other) && b->stage == a->stage &&
            b->micro_batch == a->micro_batch) {
            break;
        }
    }
    return i;
}

/* Returns the send that is `flying` sends behind the one at i. */
static int later_send(const lists *l, int r, int i, int flying)
{
    while (i < l->n[r] && flying > 0) {
        i++;
        flying -= i < l->n[r] &&
                  (l->a[r][i].kind == DPAR_ACTION_SEND_F || l->a[r][i].kind == DPAR_ACTION_SEND_B);
    }
    return i;
}

static void live(const lists *l, int r, int from, int to, int slot, int slot_at_end)
{
    lives[life_count].from = moment(l, r, from);
    lives[life_count].to = to < l->n[r] ? moment(l, r, to) : to;
    lives[life_count++].slot = slot;
    CHECK(slot != DPAR_SLOT_NONE);
    CHECK(to >= l->n[r] || slot == slot_at_end);
}

/* Checks that no two values that live at once share a slot, and that all slots are below `count`,
 * which is the most at one moment. */
static void check_lives(int count, int moments)
{
    int i, j, t, most = 0;
    for (i = 0; i < life_count; i++) {
        CHECK(lives[i].slot < count);
        for (j = 0; j < i; j++) {
            if (lives[i].slot == lives[j].slot) {
                CHECK(lives[i].from > lives[j].to || lives[j].from > lives[i].to);
            }
        }
    }
    for (t = 0; t < moments; t++) {
        int now = 0;
        for (i = 0; i < life_count; i++) {
            now += lives[i].from <= t && t <= lives[i].to;
        }
        most = now > most ? now : most;
    }
    CHECK_INT(count, most);
    life_count = 0;
}

enum { RECEIVE, ACTIVATION, SEND, WEIGHT, SLOT_KINDS };
static int slot_of(const dpar_action_slots *s, int kind)
{
    return kind == RECEIVE      ? s->receive
           : kind == ACTIVATION ? s->activation
           : kind == SEND       ? s->send
                                : s->weight;
}

/* Sets from where to where a value lives, by kind of slot; returns 0 if none begins with this
 * action. */
static int span(const lists *l, int r, int i, int kind, int flying, int *end, int *last)
{
    const int k = l->a[r][i].kind, f = k == DPAR_ACTION_FORWARD,
              g = k == DPAR_ACTION_BACKWARD || k == DPAR_ACTION_INPUT;
    switch (kind) {
    case RECEIVE:
        *end = k == DPAR_ACTION_RECV_F ? find(l, r, DPAR_ACTION_FORWARD, -1, i)
                                       : find(l, r, DPAR_ACTION_BACKWARD, DPAR_ACTION_INPUT, i);
        *last = *end;
        return k == DPAR_ACTION_RECV_F || k == DPAR_ACTION_RECV_B;
    case ACTIVATION:
        *end = find(l, r, DPAR_ACTION_BACKWARD, DPAR_ACTION_WEIGHT, i);
        if (f && find(l, r, DPAR_ACTION_OFFLOAD, -1, i) < l->n[r]) {
            *end = find(l, r, DPAR_ACTION_OFFLOAD, -1, i);
        }
        *last = *end;
        return f || k == DPAR_ACTION_RELOAD;
    case SEND:
        *last = find(l, r, f ? DPAR_ACTION_SEND_F : DPAR_ACTION_SEND_B, -1, i);
        *end = later_send(l, r, *last, flying);
        return (f || g) && *last < l->n[r];
    default: *last = *end = find(l, r, DPAR_ACTION_WEIGHT, -1, i); return k == DPAR_ACTION_INPUT;
    }
}

static void check_slots(const lists *l, int flying)
{
    dpar_schedule s;
    dpar_why why;
    void *mem = list_close(l, &s);
    int r, i, kind;
    CHECK_INT(slots_s(&s, flying, &why), DPAR_OK);
    for (r = 0; r < l->ranks; r++) {
        const dpar_action_slots *mine = slots + s.begin[r];
        const int count[SLOT_KINDS] = {counts[r].receive, counts[r].activation, counts[r].send,
                                       counts[r].weight};
        for (kind = 0; kind < SLOT_KINDS; kind++) {
            for (i = 0; i < l->n[r]; i++) {
                int end, last;
                if (span(l, r, i, kind, flying, &end, &last)) {
                    int slot = slot_of(&mine[i], kind);
                    live(l, r, i, end, slot, last < l->n[r] ? slot_of(&mine[last], kind) : slot);
                }
            }
            check_lives(count[kind], l->n[r] + 1);
        }
    }
    free(mem);
}

/* Checks that slots which an action does not use are DPAR_SLOT_NONE, and those it uses are not. */
static void check_uses(const lists *l)
{
    dpar_schedule s;
    void *mem = list_close(l, &s);
    int r, i;
    CHECK_INT(slots_s(&s, 0, NULL), DPAR_OK);
    for (r = 0; r < l->ranks; r++) {
        for (i = 0; i < l->n[r]; i++) {
            const int k = l->a[r][i].kind;
            const dpar_action_slots *x = &slots[s.begin[r] + i];
            const int computes =
                k == DPAR_ACTION_FORWARD || k == DPAR_ACTION_BACKWARD || k == DPAR_ACTION_INPUT;
            const int receives = k == DPAR_ACTION_RECV_F || k == DPAR_ACTION_RECV_B;
            const int sends = k == DPAR_ACTION_SEND_F || k == DPAR_ACTION_SEND_B;
            CHECK_INT(x->activation != DPAR_SLOT_NONE,
                      computes || k == DPAR_ACTION_WEIGHT || k >= DPAR_ACTION_RECOMPUTE);
            CHECK_INT(x->weight != DPAR_SLOT_NONE,
                      k == DPAR_ACTION_INPUT || k == DPAR_ACTION_WEIGHT);
            if (!computes) {
                CHECK_INT(x->receive != DPAR_SLOT_NONE, receives);
                CHECK_INT(x->send != DPAR_SLOT_NONE, sends);
            } else { /* a receive in front, a send behind */
                int back = k != DPAR_ACTION_FORWARD;
                CHECK_INT(x->receive != DPAR_SLOT_NONE,
                          list_has(l, r, back ? DPAR_ACTION_RECV_B : DPAR_ACTION_RECV_F, -1,
                                   l->a[r][i].stage, l->a[r][i].micro_batch));
                CHECK_INT(x->send != DPAR_SLOT_NONE,
                          list_has(l, r, back ? DPAR_ACTION_SEND_B : DPAR_ACTION_SEND_F, -1,
                                   l->a[r][i].stage, l->a[r][i].micro_batch));
            }
        }
    }
    free(mem);
}

static void test_lifetimes(void)
{
    static const char away[] = "0F0,0OFFLOAD0,0F1,0RELOAD0,0F2,0RECOMPUTE0,0I0,0B1,0W0,0B2\n";
    static lists l;
    dpar_schedule s;
    int k;
    for (k = 0; k < LIST_FILES; k++) {
        CHECK(list_load(&s, list_files[k]));
        list_open(&l, &s);
        check_slots(&l, 0);
        CHECK(list_lowered(&l, list_files[k]));
        check_slots(&l, 0);
        check_slots(&l, 1);
        check_slots(&l, 1 + list_random(6));
        check_slots(&l, INT32_MAX);
        check_uses(&l);
    }
    CHECK_INT(list_read(&s, away, sizeof away - 1, 0), DPAR_OK);
    list_open(&l, &s);
    check_slots(&l, 0);
    check_uses(&l);
    CHECK_INT(counts[0].activation, 3);
}

/* ---- known numbers --------------------------------------------------------------------------- */

/* Compares with PyTorch's analyze_pipeline_activation_liveness, the example of its documentation
 * (stage, micro-batch): F0,0 F1,0 F0,1 B1,0 B0,0 F1,1 B1,1 B0,1, where the last may use slot 0
 * again. */
static void test_pytorch(void)
{
    static const int expected[8] = {0, 1, 2, 1, 0, 0, 0, 2};
    dpar_schedule s;
    int k;
    CHECK_INT(list_read(&s, "0F0,1F0,0F1,1B0,0B0,1F1,1B1,0B1", 31, 0), DPAR_OK);
    CHECK_INT(slots_s(&s, 0, NULL), DPAR_OK);
    CHECK_INT(counts[0].activation, 3);
    for (k = 0; k < 8; k++) {
        CHECK_INT(slots[k].activation, expected[k]);
        CHECK_INT(slots[k].receive, DPAR_SLOT_NONE);
        CHECK_INT(slots[k].send, DPAR_SLOT_NONE);
    }
}

/* Compares with tests/data/pipeline/metrics.tsv, column 7: "4/3/2/1". */
static void test_peaks(void)
{
    char line[512], name[128], peaks[64];
    int ranks, files = 0, r;
    FILE *f = fopen("tests/data/pipeline/metrics.tsv", "r");
    CHECK(f != NULL);
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        dpar_schedule s;
        char *p = peaks;
        if (sscanf(line, "%127[^.].csv\t%d\t%*d\t%*d\t%*s\t%*s\t%63s", name, &ranks, peaks) != 3) {
            continue;
        }
        CHECK(list_load(&s, name));
        CHECK_INT(slots_s(&s, 0, NULL), DPAR_OK);
        for (r = 0; r < ranks; r++, p++) {
            CHECK_INT(counts[r].activation, strtol(p, &p, 10));
        }
        files++;
    }
    CHECK_INT(files, 22); /* lines of the file without its heading */
    if (f != NULL) {
        fclose(f);
    }
}

/* Makes interleaved 1F1B on p ranks with v stages each and groups of N = p: w warm-up forwards (the
 * rule as in torch's Interleaved1F1B; v = 1 is plain 1F1B). */
static void list_interleaved(lists *l, int p, int v, int m)
{
    int r, k;
    memset(l, 0, sizeof *l);
    l->ranks = p, l->stages = l->chain = p * v, l->micros = m, l->slices = 1;
    for (k = 0; k < p * v; k++) {
        l->rank_of[k] = k % p;
    }
    for (r = 0; r < p; r++) {
        int count[2][64] = {{0}}, w = v == 1 ? p - 1 - r : (v - 1) * p + 2 * (p - 1 - r);
        w = w < m * v ? w : m * v;
        for (k = 0; k < m * v + w; k++) {
            if (k < m * v) {
                int stage = k / p % v * p + r;
                stage = v == 1 ? r : stage;
                list_insert(l, r, l->n[r],
                            list_action(DPAR_ACTION_FORWARD, stage, count[0][stage]++, 0));
            }
            if (k >= w) {
                int stage = (v - 1 - (k - w) / p % v) * p + r;
                stage = v == 1 ? r : stage;
                list_insert(l, r, l->n[r],
                            list_action(DPAR_ACTION_BACKWARD, stage, count[1][stage]++, 0));
            }
        }
    }
}

static void receives(const lists *l, const int *expected)
{
    dpar_schedule s;
    void *mem = list_close(l, &s);
    int r;
    CHECK_INT(slots_s(&s, 0, NULL), DPAR_OK);
    for (r = 0; r < l->ranks; r++) {
        CHECK_INT(counts[r].receive, expected[r]);
        CHECK_INT(counts[r].send, 1); /* PyTorch's rule puts a SEND directly behind its producer */
    }
    free(mem);
}

/* Counts receives that PyTorch's rule posts before they are used, from an independent event
 * simulation: 1F1B 2, interleaved p = 8, v = 2, m = 32 8 3 3 3 3 3 3 4, ZBV p = 4 2 3 3 2,
 * interleaved zero-bubble p = 4, v = 2 4 2 2 3. Activations: min((v - 1) p + 2 (p - 1 - r) + 1, m
 * v). */
static void test_receives(void)
{
    static const int one[] = {1, 2, 2, 1}, two[] = {8, 3, 3, 3, 3, 3, 3, 4}, zbv[] = {2, 3, 3, 2},
                     zb[] = {4, 2, 2, 3};
    static lists plain, l;
    int r;
    CHECK(list_lowered(&l, "1f1b_p4_m8"));
    receives(&l, one);
    CHECK(list_lowered(&l, "zbv_p4_m8"));
    receives(&l, zbv);
    CHECK(list_lowered(&l, "interleaved_zb_p4_v2_m8"));
    receives(&l, zb);
    list_interleaved(&plain, 8, 2, 32);
    CHECK(list_lower(&l, &plain));
    receives(&l, two);
    for (r = 0; r < 8; r++) {
        CHECK_INT(counts[r].activation, 8 + 2 * (7 - r) + 1);
    }
}

static void test_refusals(void)
{
    static const char csv[] = "0F0,0B0\n";
    dpar_schedule s;
    dpar_action_slots out[2] = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    dpar_slot_counts count = {5, 5, 5, 5};
    dpar_why why;
    int64_t mem[32], needed;
    CHECK_INT(list_read(&s, csv, sizeof csv - 1, 0), DPAR_OK);
    needed = dpari_schedule_slots_bytes(&s);
    CHECK_INT(give_slots(&s, -1, out, &count, mem, sizeof mem, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "in_flight=-1; 0 or more are allowed");
    CHECK_INT(give_slots(&s, 0, out, &count, mem, needed - 1, &why), DPAR_E_ROOM);
    s.action[1].micro_batch = 1;
    CHECK_INT(give_slots(&s, 0, out, &count, mem, sizeof mem, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "rank 0: 0B1 does not exist, there are only 1 micro-batches");
    CHECK(out[0].activation == 1 && count.activation == 5);
    s.action[1].micro_batch = 0;
    CHECK_INT(give_slots(&s, 0, NULL, NULL, mem, needed, NULL), DPAR_OK);
    CHECK_INT(give_slots(&s, 0, out, NULL, mem, needed, NULL), DPAR_OK);
    CHECK_INT(give_slots(&s, 0, NULL, &count, mem, needed, NULL), DPAR_OK);
    CHECK(out[0].activation == 0 && count.activation == 1 && count.weight == 0);
    s.micro_batches = -1;
    CHECK_INT(dpari_schedule_slots_bytes(&s), -1);
    CHECK_INT(give_slots(&s, 0, out, &count, mem, sizeof mem, &why), DPAR_E_ARG);
}

/* Checks the memory: 12 bytes per stage and micro-batch, 8 per action of the longest list. */
static void test_bytes(void)
{
    static const char csv[] = "0F0,0F1,0F2,0F3,0B3,0B2,0B1,0B0\n"
                              "1F0,2F0,1F1,2F1,1F2,2F2,1F3,2F3,2B3,1B3,2B2,1B2,2B1,1B1,2B0,1B0\n"
                              "3F0,3F1,3F2,3F3,3B3,3B2,3B1,3B0\n";
    dpar_schedule s;
    CHECK_INT(list_read(&s, csv, sizeof csv - 1, 0), DPAR_OK);
    CHECK_INT(dpari_schedule_slots_bytes(&s), 12 * 4 * 4 + 8 * 16);
    CHECK_INT(slots_s(&s, 0, NULL), DPAR_OK);
    CHECK_INT(counts[1].activation, 8);
}

/* Checks that 65535 activations are the most that slot numbers can distinguish. */
static void test_most(void)
{
    int32_t stages, m, k;
    for (stages = 1; stages <= 2; stages++) {
        int64_t n = (int64_t)stages * 65535, bytes = dpari_schedule_bytes(1, stages, n);
        void *mem = malloc((size_t)bytes), *work;
        dpar_schedule s;
        dpar_slot_counts count = {5, 5, 5, 5};
        dpar_why why;
        CHECK_INT(schedule_init(&s, 1, stages, n, mem, bytes, NULL), DPAR_OK);
        s.micro_batches = 65535, s.begin[1] = n;
        for (k = 0; k < stages; k++) {
            s.rank_of[k] = 0;
            for (m = 0; m < s.micro_batches; m++) {
                s.action[(int64_t)k * s.micro_batches + m] =
                    list_action(DPAR_ACTION_FORWARD, k, m, 0);
            }
        }
        bytes = dpari_schedule_slots_bytes(&s);
        work = malloc((size_t)bytes);
        CHECK_INT(give_slots(&s, 0, NULL, &count, work, bytes, &why),
                  stages == 1 ? DPAR_OK : DPAR_E_RANGE);
        CHECK_INT(count.activation, stages == 1 ? 65535 : 5);
        if (stages == 2) {
            CHECK_TEXT(why.text, "rank 0 needs more than 65535 slots of a kind");
        }
        free(work);
        free(mem);
    }
}

/* Checks the same for messages in flight: the middle rank of three sends each micro-batch on and
 * back, and no send finishes before the end. */
static dpar_status most_sends(int32_t micros, dpar_slot_counts *count, dpar_why *why)
{
    int64_t n = 14 * (int64_t)micros, bytes = dpari_schedule_bytes(3, 3, n), at = 0;
    void *mem = malloc((size_t)bytes), *work;
    dpar_schedule s;
    dpar_status st;
    int32_t r, m;
    CHECK_INT(schedule_init(&s, 3, 3, n, mem, bytes, NULL), DPAR_OK);
    s.micro_batches = micros;
    for (r = 0; r < 3; r++) {
        s.rank_of[r] = (uint16_t)r;
        for (m = 0; m < micros; m++) {
            if (r > 0) {
                s.action[at++] = list_action(DPAR_ACTION_RECV_F, r, m, r - 1);
            }
            s.action[at++] = list_action(DPAR_ACTION_FORWARD, r, m, 0);
            if (r < 2) {
                s.action[at++] = list_action(DPAR_ACTION_SEND_F, r, m, r + 1);
                s.action[at++] = list_action(DPAR_ACTION_RECV_B, r, m, r + 1);
            }
            s.action[at++] = list_action(DPAR_ACTION_BACKWARD, r, m, 0);
            if (r > 0) {
                s.action[at++] = list_action(DPAR_ACTION_SEND_B, r, m, r - 1);
            }
        }
        s.begin[r + 1] = at;
    }
    CHECK_INT(at, n);
    bytes = dpari_schedule_slots_bytes(&s);
    work = malloc((size_t)bytes);
    st = give_slots(&s, INT32_MAX, NULL, count, work, bytes, why);
    free(work);
    free(mem);
    return st;
}

static void test_most_sends(void)
{
    dpar_slot_counts count[3];
    dpar_why why;
    CHECK_INT(most_sends(32767, count, &why), DPAR_OK);
    CHECK(count[0].send == 32767 && count[1].send == 65534 && count[2].send == 32767);
    CHECK(count[0].activation == 1 && count[1].receive == 1);
    CHECK_INT(most_sends(32768, count, &why), DPAR_E_RANGE);
    CHECK_TEXT(why.text, "rank 1 needs more than 65535 slots of a kind");
}

int main(void)
{
    test_lifetimes();
    test_pytorch();
    test_peaks();
    test_receives();
    test_refusals();
    test_bytes();
    test_most();
    test_most_sends();
    free(slots);
    return CHECK_DONE();
}
