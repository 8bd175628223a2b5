/* SPDX-License-Identifier: MIT-0 */
/* ulysses: compares layers of Ulysses attention on real ranks with the textbook formulas
 * (attention_cases.h), and each element that an exchange moves, bit by bit.
 *
 *   ulysses [processes|threads] [ranks]     without arguments: processes 1 to 8, threads 1 to 4
 *   ulysses long [ranks]                    more random layers
 *   mpirun -np 4 ulysses                    built with -DUSE_MPI */
#include "attention_cases.h"

/* One exchange of a plan: of queries (which are then as wide as keys and values), or of keys. */
typedef struct ulysses {
    dpar_split tokens;
    dpar_heads heads;
    int32_t of_groups, type;
    int64_t width, ends[2];
} ulysses;

static void no_kernel(const dpar_attention_call *call)
{
    (void)call;
}

static dpar_attention_desc ulysses_layer(ulysses *u)
{
    dpar_attention_desc a;
    memset(&a, 0, sizeof a);
    u->ends[1] = u->tokens.count;
    a.method = dpar_attention_ulysses;
    a.tokens.docs = 1;
    a.tokens.ends = u->ends;
    a.tokens.ranks = u->heads.ranks;
    a.tokens.rule = DPAR_SPLIT_EVEN;
    a.token_split = &u->tokens;
    a.heads = u->heads.queries;
    a.groups = u->heads.groups;
    a.heads_chunked = u->heads.rule == DPAR_SPLIT_CHUNK;
    a.width = (int32_t)u->width;
    a.type = u->type;
    a.forward = a.backward = no_kernel;
    return a;
}

static dpar_status ulysses_bytes(dpar_comm *c, ulysses *u, int64_t *bytes, dpar_why *why)
{
    const dpar_attention_desc a = ulysses_layer(u);
    return attention_bytes(c, &a, bytes, why);
}

static dpar_status ulysses_init(void *memory, int64_t bytes, dpar_comm *c, ulysses *u,
                                dpar_attention_plan **plan, dpar_why *why)
{
    const dpar_attention_desc a = ulysses_layer(u);
    return attention_in(memory, bytes, c, &a, plan, why);
}

static int32_t array_of(const ulysses *u)
{
    return u->of_groups ? DPAR_ATTENTION_K : DPAR_ATTENTION_Q;
}

/* Returns the number of heads that a rank has; for rank -1 that of all ranks, copies included. */
static int64_t heads_of(const ulysses *u, int32_t rank)
{
    int64_t held = 0;
    int32_t r;
    for (r = 0; r < u->heads.ranks; r++) {
        const dpar_heads_share s = dpar_heads_local(&u->heads, r);
        held += rank < 0 || r == rank ? (u->of_groups ? s.groups : s.queries) : 0;
    }
    return held;
}

static int64_t ulysses_sent(const ulysses *u, int32_t rank, int back)
{
    const int64_t n = dpar_split_part_count(&u->tokens, rank), mine = heads_of(u, rank);
    return u->width * type_bytes(u->type) *
           (back ? mine * (u->tokens.count - n) : n * (heads_of(u, -1) - mine));
}

/* What a rank has between the exchanges: all tokens, but only some heads from `from` on. */
typedef struct middle {
    int heads, first, groups, group;
    void *x[TENSORS], *dx[TENSORS], *out, *dout, *lse, *delta;
} middle;

static int middle_elements(const test_case *t, const middle *m, int tensor)
{
    return tensor == 0 ? m->heads * t->width : m->groups * (tensor == 1 ? t->width : t->values);
}

static void middle_make(const test_case *t, const dpar_heads *h, int rank, middle *m)
{
    const dpar_heads_share s = dpar_heads_local(h, rank);
    int k;
    m->heads = s.queries;
    m->first = s.first_query;
    m->groups = s.groups;
    m->group = s.first_group;
    for (k = 0; k < TENSORS; k++) {
        m->x[k] = fresh(total(t) * middle_elements(t, m, k), type_bytes(t->type));
        m->dx[k] = fresh(total(t) * middle_elements(t, m, k), type_bytes(t->type));
    }
    m->out = fresh(total(t) * m->heads * t->values, type_bytes(t->type));
    m->dout = fresh(total(t) * m->heads * t->values, type_bytes(t->type));
    m->lse = fresh(total(t) * m->heads, type_bytes(t->type));
    m->delta = fresh(total(t) * m->heads, type_bytes(t->type));
}

static void middle_free(middle *m)
{
    int k;
    for (k = 0; k < TENSORS; k++) {
        free(m->x[k]);
        free(m->dx[k]);
    }
    free(m->out);
    free(m->dout);
    free(m->lse);
    free(m->delta);
}

static void *behind(void *base, int64_t elements, int type)
{
    return (char *)base + elements * type_bytes(type);
}

/* Computes attention of this rank's heads, document by document. */
static void middle_attend(const test_case *t, const middle *m, int backward)
{
    const int v = m->heads * t->values;
    dpar_attention_desc local;
    dpar_attention_call call;
    int64_t i;
    int d;
    memset(&local, 0, sizeof local);
    local.heads = m->heads;
    local.groups = m->groups;
    local.width = t->width;
    local.value_width = t->values;
    local.type = t->type;
    for (i = 0; i < total(t) * m->heads && backward; i++) {
        double sum = 0.0;
        for (d = 0; d < t->values; d++) {
            sum += float_get(m->out, i * t->values + d, t->type) *
                   float_get(m->dout, i * t->values + d, t->type);
        }
        float_put(m->delta, i, t->type, sum);
    }
    for (d = 0; d < t->docs && m->heads > 0; d++) {
        const int64_t at = t->ends[d];
        memset(&call, 0, sizeof call);
        call.layer = &local;
        call.queries = call.keys = t->ends[d + 1] - at;
        call.low = t->window > 0 ? -t->window : -call.keys;
        call.high = t->causal ? 0 : t->window > 0 ? t->window : call.keys;
        call.q = behind(m->x[0], at * middle_elements(t, m, 0), t->type);
        call.k = behind(m->x[1], at * middle_elements(t, m, 1), t->type);
        call.v = behind(m->x[2], at * middle_elements(t, m, 2), t->type);
        call.out = behind(m->out, at * v, t->type);
        call.lse = behind(m->lse, at * m->heads, t->type);
        call.out_gradient = behind(m->dout, at * v, t->type);
        call.delta = behind(m->delta, at * m->heads, t->type);
        call.q_gradient = behind(m->dx[0], at * middle_elements(t, m, 0), t->type);
        call.k_gradient = behind(m->dx[1], at * middle_elements(t, m, 1), t->type);
        call.v_gradient = behind(m->dx[2], at * middle_elements(t, m, 2), t->type);
        if (!backward) {
            call.out_gradient = NULL;
        }
        dpar_attention_host(&call);
    }
}

/* Returns 1 if the middle equals these heads of the whole arrays, bit by bit, otherwise 0. */
static int middle_agrees(const test_case *t, const middle *m, int tensor)
{
    const int each = elements(t, tensor), mine = middle_elements(t, m, tensor);
    const int n = tensor == 2 ? t->values : t->width, first = tensor == 0 ? m->first : m->group;
    int64_t i;
    int e, bad = 0;
    for (i = 0; i < total(t); i++) {
        for (e = 0; e < mine; e++) {
            const double want = t->x[tensor][i * each + first * n + e];
            bad += float_get(m->x[tensor], i * mine + e, t->type) != want;
        }
    }
    return bad;
}

/* Repeats the exchange with memory from dpar_comm_alloc; the bits must be the same. If `lacks` is
 * 1, the last rank uses its own memory. If the arrays are registered on all ranks, the ranks of a
 * node read them directly; then only the part of the plan's memory that lists the arrays of all
 * ranks is written. The bytes count as those that the all-to-all sends. */
static int again(dpar_comm *c, const ulysses *u, dpar_attention_plan *plan, const void *memory,
                 int64_t bytes, const void *in, const void *out, int backward, int lacks)
{
#ifdef DEVICE_CUDA
    return 0; /* this test needs host memory */
#endif
    const int64_t each = u->width * type_bytes(u->type);
    const int64_t wide = plan->tokens * (u->of_groups ? u->heads.groups : u->heads.queries) * each;
    const int64_t tall = u->tokens.count * heads_of(u, c->rank) * each;
    const int64_t reads = backward ? tall : wide, writes = backward ? wide : tall;
    const int own = lacks && c->rank == c->size - 1;
    char *got = (char *)fresh(writes + 1, 1), *from = (char *)plan_memory(c, reads + 1, !own);
    char *before = (char *)reached(bytes, 1);
    int64_t i, touched = 0, sent, bad = 0;
    for (i = 0; i < reads; i++) { /* other numbers than in the plan's first exchange */
        from[i] = (char)~((const char *)in)[i];
    }
    memcpy(before, memory, (size_t)bytes);
    bad += dpar_attention_exchange(plan, array_of(u), backward, from, got) != DPAR_OK;
    for (i = 0; i < bytes; i++) {
        touched += before[i] != ((const char *)memory)[i];
    }
    bad += touched > 512 + 64 * c->size && !lacks && strcmp(c->engine.name, "shm") == 0;
    if (reads > 0) {
        memcpy(from, in, (size_t)reads);
    }
    sent = c->sent[DPAR_CALL_ALL_TO_ALL];
    bad += dpar_attention_exchange(plan, array_of(u), backward, from, got) != DPAR_OK;
    bad += writes > 0 && memcmp(got, out, (size_t)writes) != 0;
    bad += c->sent[DPAR_CALL_ALL_TO_ALL] - sent != ulysses_sent(u, c->rank, backward);
    if (bad > 0) {
        printf("rank %d of %d: ulysses %s, %s: differs, or %d bytes packed\n", (int)c->rank,
               (int)c->size, backward ? "back" : "there", lacks ? "one without" : "in place",
               (int)touched);
    }
    reached_free(before);
    free(got);
    plan_release(c, from, !own);
    return bad != 0;
}

/* Exchanges through a plan of its own in one direction and counts the bytes. */
static int exchange(dpar_comm *c, ulysses *u, const void *in, void *out, int backward)
{
    dpar_attention_plan *plan = NULL;
    dpar_why why;
    int64_t bytes = 0, sent;
    void *memory = NULL;
    int bad = 0;
    why.text[0] = 0;
    if (ulysses_bytes(c, u, &bytes, &why) != DPAR_OK ||
        (memory = plan_memory(c, bytes, backward)) == NULL ||
        ulysses_init(memory, bytes, c, u, &plan, &why) != DPAR_OK) {
        printf("rank %d: %s\n", (int)c->rank, why.text);
        return 1;
    }
    engine_run[c->rank] = c->engine.run;
    c->engine.run = counting_run;
    engine_sent[c->rank] = 0;
    bad += dpar_attention_exchange(plan, array_of(u), backward, in, out) != DPAR_OK;
    sent = engine_sent[c->rank];
    c->engine.run = engine_run[c->rank];
    if (sent != ulysses_sent(u, c->rank, backward) || plan->sent_bytes != sent) {
        printf("rank %d of %d: sent %d bytes, foretold %d\n", (int)c->rank, (int)c->size, (int)sent,
               (int)ulysses_sent(u, c->rank, backward));
        bad++;
    }
    bad += again(c, u, plan, memory, bytes, in, out, backward, 0) +
           again(c, u, plan, memory, bytes, in, out, backward, 1);
    bad += dpar_attention_free(plan) != DPAR_OK;
    plan_release(c, memory, backward);
    return bad;
}

/* Runs a whole layer: exchanges q, k and v, computes attention, exchanges out back; then the same
 * for the gradients. */
static int ulysses_case(dpar_comm *c, test_case *t, const dpar_split *split, uint32_t seed)
{
    ulysses u[4]; /* q, k, v, out */
    middle m;
    part p;
    int k, bad = 0;
    memset(u, 0, sizeof u);
    for (k = 0; k < 4; k++) {
        u[k].tokens = *split;
        if (dpar_heads_init(&u[k].heads, t->heads, t->groups, c->size,
                            (int)seed % 2 ? DPAR_SPLIT_EVEN : DPAR_SPLIT_CHUNK, NULL) != DPAR_OK) {
            return 1;
        }
        u[k].of_groups = k == 1 || k == 2;
        u[k].type = t->type;
        u[k].width = k >= 2 ? t->values : t->width;
    }
    textbook(t, seed);
    part_split(t, split, c->rank, &p);
    part_arrays(t, &p);
    middle_make(t, &u[0].heads, c->rank, &m);
    for (k = 0; k < TENSORS; k++) {
        bad += exchange(c, &u[k], p.x[k], m.x[k], 0);
        bad += middle_agrees(t, &m, k) != 0;
    }
    middle_attend(t, &m, 0);
    bad += exchange(c, &u[3], m.out, p.out, 1);
    bad += exchange(c, &u[3], p.dout, m.dout, 0);
    middle_attend(t, &m, 1);
    for (k = 0; k < TENSORS; k++) {
        bad += exchange(c, &u[k], m.dx[k], p.dx[k], 1);
    }
    scatter(t, &p, t->heads, t->lse, p.lse); /* lse is not exchanged, so it is not compared */
    bad += judge(t, &p, "ulysses", c->rank, c->size);
    middle_free(&m);
    part_free(&p);
    textbook_free(t);
    return bad;
}

static int ulysses_cases(dpar_comm *c, int rounds)
{
    static const int rules[] = {DPAR_SPLIT_CHUNK,  DPAR_SPLIT_EVEN,   DPAR_SPLIT_FLOOR,
                                DPAR_SPLIT_ZIGZAG, DPAR_SPLIT_CYCLIC, DPAR_SPLIT_BLOCK_CYCLIC,
                                DPAR_SPLIT_RAGGED};
    uint32_t state = 77;
    int n, r, bad = 0;
    for (n = 0; n < rounds; n++) {
        int64_t cuts[MOST_RANKS + 1], weight[MOST_RANKS];
        test_case t = by_lot(&state);
        dpar_split split;
        const int rule = rules[lot(&state, 7)];
        t = n == 0 ? plain(0) : t;
        t.type = n % 3 > 0 && t.type == DPAR_BF16 ? DPAR_F64 : t.type;
        for (r = 0; r < c->size; r++) {
            weight[r] = 1 + lot(&state, 3) * lot(&state, 3);
        }
        if (rule == DPAR_SPLIT_RAGGED) {
            bad += dpar_split_weighted_cuts(cuts, total(&t), c->size, weight, 1, NULL) != DPAR_OK ||
                   dpar_split_init_ragged(&split, c->size, cuts, NULL) != DPAR_OK;
        } else {
            bad += dpar_split_init(&split, rule, total(&t), c->size, 3, NULL) != DPAR_OK;
        }
        bad += t.type != DPAR_BF16 ? ulysses_case(c, &t, &split, 5000 + (uint32_t)n) : 0;
        t.ulysses = 1;
        t.cut = rule == t.rule ? NULL : &split;
        t.chunked = n % 2;
        bad += layer_case(c, &t, 6000 + (uint32_t)n, n % 8 == 1);
    }
    return bad;
}

/* Sums copies of one group in bf16: one is 1, the others are 2^-8 each. If they were added one by
 * one in bf16, the small ones would be lost. */
static int ulysses_copies(dpar_comm *c)
{
    const int64_t whole = 5;
    ulysses u;
    uint16_t *in = (uint16_t *)fresh(5, 2), *out = (uint16_t *)fresh(5, 2);
    double want = rounded(DPAR_BF16, 1.0 + (c->size - 1) / 256.0);
    int i, bad = 0;
    memset(&u, 0, sizeof u);
    bad += dpar_split_init(&u.tokens, DPAR_SPLIT_EVEN, whole, c->size, 1, NULL) != DPAR_OK;
    bad += dpar_heads_init(&u.heads, c->size, 1, c->size, DPAR_SPLIT_EVEN, NULL) != DPAR_OK;
    u.of_groups = 1;
    u.type = DPAR_BF16;
    u.width = 1;
    for (i = 0; i < whole; i++) {
        float_put(in, i, DPAR_BF16, c->rank == 0 ? 1.0 : 1.0 / 256.0);
    }
    bad += exchange(c, &u, in, out, 1);
    for (i = 0; i < dpar_split_part_count(&u.tokens, c->rank); i++) {
        bad += float_get(out, i, DPAR_BF16) != want;
    }
    free(in);
    free(out);
    return bad;
}

/* Exchanges arrays large enough to be written past the cache, whose rows begin at any address. */
static int ulysses_large(dpar_comm *c)
{
    const int64_t tokens = 1070, row = 16 * 67;
    ulysses u;
    float *in = (float *)fresh(tokens * row, 4), *mid = (float *)fresh(tokens * row, 4);
    float *out = (float *)fresh(tokens * row, 4);
    int64_t i;
    int bad = 0;
    memset(&u, 0, sizeof u);
    bad += dpar_split_init(&u.tokens, DPAR_SPLIT_ZIGZAG, 2 * tokens, c->size, 1, NULL) != DPAR_OK;
    bad += dpar_heads_init(&u.heads, 16, 16, c->size, DPAR_SPLIT_EVEN, NULL) != DPAR_OK;
    u.type = DPAR_F32;
    u.width = 67;
    for (i = 0; i < tokens * row; i++) {
        in[i] = (float)number((uint32_t)c->rank, i);
    }
    bad += exchange(c, &u, in, mid, 0) + exchange(c, &u, mid, out, 1);
    bad += memcmp(in, out, (size_t)(tokens * row) * 4) != 0;
    free(in);
    free(mid);
    free(out);
    return bad;
}

/* Rank 0 exchanges groups and the others queries: as many elements, but another exchange. */
static int ulysses_quarrel(dpar_comm *c)
{
    dpar_comm *other = NULL;
    ulysses u;
    dpar_attention_plan *plan[2] = {NULL, NULL};
    dpar_why why;
    void *memory[3] = {NULL, NULL, NULL};
    int64_t bytes = 0;
    int k, bad = dpar_comm_split(c, 0, 0, &other) != DPAR_OK;
    dpar_status st;
    memset(&u, 0, sizeof u);
    bad += dpar_split_init(&u.tokens, DPAR_SPLIT_EVEN, 2 * c->size, c->size, 1, NULL) != DPAR_OK;
    bad += dpar_heads_init(&u.heads, c->size, c->size, c->size, DPAR_SPLIT_EVEN, NULL) != DPAR_OK;
    u.type = DPAR_F32;
    u.width = 4;
    for (k = 0; k < 1 && bad == 0; k++) {
        bad += ulysses_bytes(other, &u, &bytes, &why) != DPAR_OK;
        bad += dpar_comm_alloc(other, bytes, &memory[k]) != DPAR_OK;
        bad += ulysses_init(memory[k], bytes, other, &u, &plan[k], &why) != DPAR_OK;
    }
    bad += dpar_comm_alloc(c, 4096, &memory[2]) != DPAR_OK;
    if (bad == 0) {
        bad +=
            dpar_attention_exchange(plan[0], 4, 0, memory[2], memory[2]) != DPAR_E_ARG ||
            strcmp(other->why.text, "dpar_attention_exchange: array is 4, but must be 0 to 3, with "
                                    "method dpar_attention_ulysses") != 0;
        bad += dpar_barrier(other, NULL) != DPAR_OK; /* all arrive before the next calls break it */
    }
    if (bad == 0 && c->size > 1 && strcmp(c->engine.name, "shm") == 0) {
        float got[64];
        st = dpar_attention_exchange(plan[0], c->rank == 0 ? DPAR_ATTENTION_K : DPAR_ATTENTION_Q, 0,
                                     memory[2], got);
        bad += st != DPAR_E_MISMATCH || other->status != DPAR_E_MISMATCH ||
               strstr(other->why.text, "tag") == NULL;
    }
    bad += dpar_barrier(c, NULL) != DPAR_OK; /* no rank reads this memory any more */
    for (k = 0; k < 3; k++) {
        dpar_comm_release(c, memory[k]);
    }
    (void)dpar_comm_free(other);
    if (bad) {
        printf("rank %d: another exchange: %d wrong\n", (int)c->rank, bad);
    }
    return bad;
}

static int ulysses_refusals(dpar_comm *c)
{
    static const char *const what[4] = {"", "attention: width", "attention: heads_chunked",
                                        "attention: type"};
    static const char *const others[4] = {"", "4", "0", "f64"}, *const of_last[4] = {"", "5", "1",
                                                                                     "f32"};
    const int odd = c->rank == c->size - 1 && c->size > 1;
    ulysses good, u;
    dpar_attention_plan *plan = NULL;
    dpar_why why;
    int64_t bytes = 0;
    void *memory = aligned_alloc(64, 1 << 16);
    int way, bad = 0;
    memset(&good, 0, sizeof good);
    bad += dpar_split_init(&good.tokens, DPAR_SPLIT_EVEN, 20, c->size, 1, NULL) != DPAR_OK;
    bad += dpar_heads_init(&good.heads, 8, 2, c->size, DPAR_SPLIT_EVEN, NULL) != DPAR_OK;
    good.type = DPAR_F64;
    good.width = 4;
    for (way = 0; way < 6; way++) {
        u = good;
        why.text[0] = 0;
        u.tokens.count = way == 5 ? -1 : way == 1 ? INT64_C(1) << 55 : u.tokens.count;
        u.width = way == 0 ? -1 : u.width;
        u.type = way == 2 ? DPAR_I8 : u.type;
        u.tokens.parts += way == 3;
        u.heads.groups = way == 4 ? 3 : u.heads.groups;
        bad += ulysses_bytes(c, &u, &bytes, &why) == DPAR_OK || why.text[0] == 0;
    }
    for (way = 0; way < 4 && c->size > 1; way++) {
        u = good;
        why.text[0] = 0;
        u.width += way == 1 && odd;
        u.heads.rule = way == 2 && odd ? DPAR_SPLIT_CHUNK : DPAR_SPLIT_EVEN;
        u.type = way == 3 && odd ? DPAR_F32 : DPAR_F64;
        bad += ulysses_init(memory, way == 0 && odd ? 64 : 1 << 16, c, &u, &plan, &why) !=
                   (way == 0 ? DPAR_E_ROOM : DPAR_E_MISMATCH) ||
               why.text[0] == 0 ||
               (way > 0 &&
                !says_who_differs(why.text, (int)c->size, what[way], others[way], of_last[way]));
    }
    bad += dpar_attention_exchange(NULL, DPAR_ATTENTION_Q, 0, NULL, NULL) != DPAR_E_ARG ||
           ulysses_init(NULL, 0, c, &good, NULL, NULL) != DPAR_E_ARG;
    free(memory);
    return bad;
}

/* Runs all tests. arg: number of random rounds. */
static int everything(dpar_comm *c, void *arg)
{
    const int rounds = *(const int *)arg;
    const double began = now();
    int64_t bad = 0;
#ifdef DEVICE_MEMORY
    device_begin((size_t)1 << 28);
    c = device_take(c);
    bad += ulysses_cases(c, rounds / 2) + ulysses_copies(c) + (the_device.calls == 0);
    c = device_return(c);
    device_end();
    return all_right(c, bad, began);
#endif
    bad += c->size == 2 ? ulysses_large(c) : 0;
    bad += ulysses_refusals(c) + ulysses_quarrel(c) + ulysses_copies(c) + ulysses_cases(c, rounds);
    return all_right(c, bad, began);
}

int main(int argc, char **argv)
{
#ifdef USE_MPI
    int rounds = 30;
#else
    int rounds = argc > 1 && strcmp(argv[1], "long") == 0 ? 1500 : 60;
#endif
#ifdef DEVICE_MEMORY
    return rank_program(argc, argv, everything, &rounds, 4, 2, NULL);
#else
    return rank_program(argc, argv, everything, &rounds, 8, 4, NULL);
#endif
}
