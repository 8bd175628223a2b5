/* SPDX-License-Identifier: MIT-0 */
/* sequence: compares ring attention on real ranks with the textbook formulas (attention_cases.h),
 * and checks its balance and what attention refuses.
 *
 *   sequence [processes|threads] [ranks]     without arguments: processes 1 to 8, threads 1 to 4
 *   sequence long [ranks]                    more random layers
 *   mpirun -np 4 sequence                    built with -DUSE_MPI */
#include "attention_cases.h"

/* Tests shapes that must work on any number of ranks. */
static int ring_cases(dpar_comm *c, int rounds)
{
    static const int lengths[] = {1, 3, 16, 37};
    uint32_t state = 2024;
    test_case t;
    int n, bad = 0;
    for (n = 0; n < 4; n++) {
        t = plain(lengths[n]);
        bad += layer_case(c, &t, 100 + (uint32_t)n, n > 1);
        t.causal = 0;
        t.groups = 1;
        bad += layer_case(c, &t, 200 + (uint32_t)n, n > 1);
        t.window = 2;
        t.docs = 3; /* the second document is empty */
        t.ends[2] = t.ends[1];
        t.ends[3] = t.ends[1] + 5;
        bad += layer_case(c, &t, 300 + (uint32_t)n, n > 1);
    }
    t = plain(c->size > 2 ? 90 : 700); /* more keys than one block of the plain kernel */
    t.heads = t.groups = 1;
    t.causal = 0;
    t.rule = DPAR_SPLIT_CHUNK;
    t.loud = 20.0;
    bad += layer_case(c, &t, 400, 0);
    for (n = 0; n < rounds; n++) {
        t = by_lot(&state);
        bad += layer_case(c, &t, 1000 + (uint32_t)n, n % 8 == 0);
    }
    return bad;
}

/* Checks the balance: with zigzag and lengths that are multiples of 2 P, each rank has the same
 * number of pairs in each step. With tokens cut in order it has not. */
static int balance(dpar_comm *c)
{
    test_case t = plain(2 * c->size * 6);
    dpar_attention_desc layer;
    int64_t whole = 0, same = 0, in_order = 0, most = 0;
    int step, rank, bad = 0;
    t.docs = 2;
    t.ends[2] = t.ends[1] + 2 * c->size * 3;
    describe(&t, c->size, NULL, &layer);
    for (step = 0; step < c->size; step++) {
        const int64_t first = pairs_between(&t, &layer, 0, (c->size - step) % c->size);
        for (rank = 0; rank < c->size; rank++) {
            const int from = (rank - step + c->size) % c->size;
            bad += pairs_between(&t, &layer, rank, from) != first;
            whole += pairs_between(&t, &layer, rank, from);
        }
    }
    layer.tokens.rule = DPAR_SPLIT_CHUNK;
    for (step = 0; step < c->size; step++) {
        for (rank = 0, most = 0; rank < c->size; rank++) {
            const int64_t n = pairs_between(&t, &layer, rank, (rank - step + c->size) % c->size);
            most = n > most ? n : most;
            same += n;
        }
        in_order += most;
    }
    bad += whole != same; /* the total number of pairs does not depend on the split */
    /* The sum over P steps of the slowest rank's pairs, relative to P even shares: (2 P - 1) /
     * P. */
    bad += c->size > 1 && 10 * in_order * c->size < (c->size > 2 ? 15 : 13) * whole;
    return bad;
}

static void merge(int32_t type, int64_t rows, int64_t values, void *out, void *lse,
                  const void *more, const void *more_lse)
{
    dpar_mem_attention_merge m;
    memset(&m, 0, sizeof m);
    m.type = type;
    m.rows = rows;
    m.values = values;
    m.out = out;
    m.lse = lse;
    m.more = more;
    m.more_lse = more_lse;
    CHECK_INT(dpar_mem_host_layers().attention_merge(NULL, &m), DPAR_OK);
}

/* Merges hand-made pieces: rows that see no key, NaN, both types. */
static int merges(void)
{
    double out[6] = {1, 2, 3, 4, 5, 6}, more[6] = {3, 2, 1, 0, 7, 8}, lse[3], other[3];
    float small[2] = {1.0f, 3.0f}, small_more[2] = {2.0f, 2.0f}, a[1] = {0.0f}, b[1] = {0.0f};
    int bad = 0;
    lse[0] = log(1.0);
    other[0] = log(3.0);
    lse[1] = -1e30;
    other[1] = 5.0;
    lse[2] = 2.0;
    other[2] = -HUGE_VAL;
    merge(DPAR_F64, 3, 2, out, lse, more, other);
    bad += !(fabs(out[0] - 2.5) < 1e-15 && fabs(out[1] - 2.0) < 1e-15 &&
             fabs(lse[0] - log(4.0)) < 1e-15);
    bad += !(out[2] == more[2] && out[3] == more[3] && lse[1] == 5.0);
    bad += !(out[4] == 5.0 && out[5] == 6.0 && lse[2] == 2.0);
    other[0] = HUGE_VAL - HUGE_VAL;
    merge(DPAR_F64, 1, 2, out, lse, more, other);
    bad += out[0] == out[0]; /* a NaN stays a NaN */
    merge(DPAR_F32, 1, 2, small, a, small_more, b);
    bad += !(small[0] == 1.5f && small[1] == 2.5f && fabs((double)a[0] - log(2.0)) < 1e-7);
    return bad;
}

/* ---- what is refused ------------------------------------------------------------------------- */

static int refusals(dpar_comm *c)
{
    test_case t = plain(12);
    dpar_attention_desc good, a;
    dpar_attention_plan *plan = NULL;
    dpar_why why;
    int64_t ends[2] = {0, INT64_C(1) << 55};
    int way, bad = 0;
    describe(&t, c->size, NULL, &good);
    for (way = 0; way < 13; way++) {
        dpar_status st, wanted = way == 3 ? DPAR_E_DIVIDE : way == 9 ? DPAR_E_RANGE : DPAR_E_ARG;
        a = good;
        why.text[0] = 0;
        a.tokens.docs = way == 0 ? 0 : a.tokens.docs;
        a.tokens.ranks = way == 1 ? c->size + 1 : a.tokens.ranks;
        a.heads = way == 2 ? 0 : way == 3 ? 3 : a.heads;
        a.width = way == 4 ? -1 : a.width;
        a.type = way == 5 ? DPAR_I32 : way == 6 ? DPAR_F16 : a.type;
        a.window = way == 7 ? -1 : 0;
        a.tag = way == 8 ? -1 : 0;
        a.tokens.ends = way == 9 ? ends : a.tokens.ends;
        a.tokens.rule = way == 10 ? DPAR_SPLIT_FLOOR : a.tokens.rule;
        a.method = way >= 11 ? dpar_attention_halo : NULL;
        a.tokens.rule = way == 11 ? DPAR_SPLIT_EVEN : a.tokens.rule; /* 11: no window, 12: zigzag */
        a.window = way == 12 ? 3 : a.window;
        st = dpar_attention_make(c, &a, &plan, &why);
        if (st != wanted || why.text[0] == 0) {
            printf("refusal %d: %s: %s\n", way, dpar_status_text(st), why.text);
            bad++;
        }
    }
    bad += dpar_attention_make(NULL, &good, &plan, NULL) != DPAR_E_ARG ||
           dpar_attention_make(c, NULL, &plan, NULL) != DPAR_E_ARG ||
           dpar_attention_make(c, &good, NULL, NULL) != DPAR_E_ARG ||
           dpar_attention_forward(NULL, NULL) != DPAR_E_ARG ||
           dpar_attention_backward(NULL, NULL) != DPAR_E_ARG ||
           dpar_attention_free(NULL) != DPAR_OK;
    return bad;
}

/* Passes other values on the last rank: all ranks get the error. */
static int misuse(dpar_comm *c)
{
    static const char *const differs[9][3] = {{"", "", ""},
                                              {"", "", ""},
                                              {"attention: scale", "0.5", "0.25"},
                                              {"attention: window", "0", "4"},
                                              {"attention: causal", "1", "0"},
                                              {"attention: type", "f64", "f32"},
                                              {"attention: tokens.rule", "6", "1"},
                                              {"attention: tokens.ends[1]", "20", "21"},
                                              {"attention: method", "0", "1"}};
    const int odd = c->rank == c->size - 1 && c->size > 1;
    int way, bad = 0;
    for (way = 0; way < 9 && c->size > 1; way++) {
        test_case t = plain(20);
        dpar_attention_desc layer;
        dpar_attention_plan *plan = NULL;
        dpar_why why;
        dpar_status st, wanted = way == 0   ? DPAR_E_ROOM
                                 : way == 1 ? DPAR_E_DIVIDE
                                            : DPAR_E_MISMATCH;
        why.text[0] = 0;
        why.bytes = 0;
        describe(&t, c->size, NULL, &layer);
        if (odd) {
            layer.heads = way == 1 ? 3 : layer.heads;
            layer.scale = way == 2 ? 0.25 : layer.scale;
            layer.window = way == 3 ? 4 : layer.window;
            layer.causal = way == 4 ? 0 : layer.causal;
            layer.type = way == 5 ? DPAR_F32 : layer.type;
            layer.tokens.rule = way == 6 ? DPAR_SPLIT_EVEN : layer.tokens.rule;
            t.ends[1] += way == 7;
            layer.method = way == 8 ? dpar_attention_halo : layer.method;
            layer.window = way == 8 ? 4 : layer.window;
            layer.tokens.rule = way == 8 ? DPAR_SPLIT_EVEN : layer.tokens.rule;
        }
        layer.memory = aligned_alloc(64, 1 << 16);
        layer.bytes = odd && way == 0 ? 64 : 1 << 16;
        st = dpar_attention_make(c, &layer, &plan, &why);
        if (st != wanted || why.text[0] == 0 || (way == 0) != (why.bytes > 64) ||
            (way > 1 && !says_who_differs(why.text, (int)c->size, differs[way][0], differs[way][1],
                                          differs[way][2]))) {
            printf("rank %d of %d: misuse %d: %s, %s\n", (int)c->rank, (int)c->size, way,
                   dpar_status_text(st), why.text);
            bad++;
        }
        free(layer.memory);
    }
    return bad;
}

/* Leaves out the keys on the last rank. All ranks get the error in the next operation at the
 * latest. Breaks the communicator. */
static int forgets_keys(dpar_comm *c, void *arg)
{
    test_case t = plain(32);
    dpar_attention_desc layer;
    dpar_attention_plan *plan = NULL;
    dpar_attention_arrays a;
    dpar_why why;
    part p;
    int64_t bytes = 0;
    void *memory;
    int bad = 1;
    (void)arg;
    describe(&t, c->size, NULL, &layer);
    layer.forward = NULL;
    textbook(&t, 5);
    part_packed(&t, &layer.tokens, c->rank, &p);
    part_arrays(&t, &p);
    arrays_of(&p, &a);
    (void)attention_bytes(c, &layer, &bytes, &why);
    memory = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
    if (attention_in(memory, bytes, c, &layer, &plan, NULL) == DPAR_OK) {
        a.k = c->rank == c->size - 1 ? NULL : a.k;
        (void)dpar_attention_forward(plan, &a);
        bad = dpar_barrier(c, NULL) == DPAR_OK;
    } else {
        bad = 0; /* the last rank's error arrived before this rank's init ended */
    }
    bad |= strstr(c->why.text, "arrays that this call needs") == NULL;
    part_free(&p);
    textbook_free(&t);
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
    bad += ring_cases(c, rounds / 2) + (the_device.calls == 0);
    c = device_return(c);
    device_end();
    return all_right(c, bad, began);
#endif
    bad += refusals(c) + misuse(c) + merges() + balance(c);
    bad += ring_cases(c, rounds);
    return all_right(c, bad, began);
}

static void also(int n, const dpar_world_desc *o)
{
    on_ranks(n, " without keys", forgets_keys, NULL, o);
}

int main(int argc, char **argv)
{
#ifdef USE_MPI
    int rounds = 30;
#else
    int rounds = argc > 1 && strcmp(argv[1], "long") == 0 ? 1500 : 60;
#endif
#ifdef DEVICE_MEMORY
    (void)also;
    return rank_program(argc, argv, everything, &rounds, 4, 2, NULL);
#else
    return rank_program(argc, argv, everything, &rounds, 8, 4, also);
#endif
}
