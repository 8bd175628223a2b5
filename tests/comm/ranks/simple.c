/* SPDX-License-Identifier: MIT-0 */
/* simple: tests the functions for one number from all ranks, memory, and the check that all ranks
 * have the same values. The sums are exact in binary. The expected message of dpar_comm_check_equal
 * is composed here from the value that was changed and its rank.
 *   cc -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/comm/ranks/simple.c -o simple -lm
 *   ./simple */
#include "rank_program.h"

/* Checks sums of exact numbers: that of rank + 0.5 is n (n - 1) / 2 + n / 2 = n^2 / 2. */
static void scalars(dpar_comm *c)
{
    const double n = c->size, x = c->rank + 0.5;
    CHECK(dpar_sum(c, x) == n * n / 2);
    CHECK(dpar_mean(c, x) == n / 2);
    CHECK(dpar_max(c, x) == n - 0.5);
    CHECK(dpar_min(c, x) == 0.5);
    CHECK(dpar_max(c, -x) == -0.5);
    CHECK(dpar_min(c, c->rank == c->size - 1 ? -HUGE_VAL : x) == -HUGE_VAL);
    /* A NaN among the numbers is a valid result, not an error. */
    CHECK(isnan(dpar_max(c, c->rank == c->size - 1 ? (double)NAN : x)));
    CHECK(isnan(dpar_sum(c, c->rank == 0 ? (double)NAN : x)));
    CHECK_INT(c->status, DPAR_OK);
    CHECK(dpar_sum(c, 1.0) == n);
}

/* Checks that after an error each function returns NaN at once and the message is kept. */
static void after_an_error(dpar_comm *world)
{
    dpar_comm *c = NULL;
    CHECK_INT(dpar_comm_split(world, 0, 0, &c), DPAR_OK);
    if (c == NULL) {
        return;
    }
    CHECK(dpar_sum(c, 1.0) == c->size);
    dpar_barrier(world, NULL); /* no rank is in that sum any more */
    if (c->rank == c->size - 1) {
        dpar_comm_abort(c, DPAR_E_PEER, "as a test");
    }
    CHECK(isnan(dpar_max(c, 1.0)));
    CHECK_INT(c->status, DPAR_E_PEER);
    CHECK(strstr(c->why.text, "as a test") != NULL);
    CHECK(isnan(dpar_min(c, 1.0)) && isnan(dpar_sum(c, 1.0)) && isnan(dpar_mean(c, 1.0)));
    CHECK(strstr(c->why.text, "as a test") != NULL);
    dpar_comm_free(c);
    CHECK(isnan(dpar_sum(NULL, 1.0)));
}

static void memory(dpar_comm *c)
{
    void *memory = NULL;
    unsigned char *a;
    int64_t i, set = 0;
    CHECK_INT(dpar_comm_alloc(c, 100000, &memory), DPAR_OK);
    a = (unsigned char *)memory;
    CHECK(a != NULL && (uintptr_t)a % 4096 == 0);
    for (i = 0; a != NULL && i < 100000; i++) {
        set += a[i] != 0;
    }
    CHECK_INT(set, 0);
    dpar_comm_release(c, a);
    c->why.text[0] = 0;
    memory = NULL;
    CHECK_INT(dpar_comm_alloc(c, -1, &memory), DPAR_E_ARG);
    CHECK(c->why.text[0] != 0);
    CHECK(dpar_comm_alloc(c, INT64_C(1) << 60, &memory) < 0);
    CHECK(memory == NULL);
    CHECK_INT(c->status, DPAR_OK);
}

/* ---- checks that all ranks have the same values ---- */

/* Stores a value that is exact in each type and that %g prints completely. */
static void put(void *at, int64_t i, int32_t type, int v)
{
    switch (type) {
    case DPAR_F64:
    case DPAR_F32:
    case DPAR_F16:
    case DPAR_BF16: float_put(at, i, type, 0.25 * v); return;
    case DPAR_TF32: float_put(at, i, DPAR_F32, 0.25 * v); return;
    case DPAR_I32: ((int32_t *)at)[i] = -v; return;
    case DPAR_U32: ((uint32_t *)at)[i] = UINT32_MAX - (uint32_t)v; return;
    case DPAR_I64: ((int64_t *)at)[i] = INT64_MIN + v; return;
    case DPAR_U64: ((uint64_t *)at)[i] = UINT64_MAX - (uint64_t)v; return;
    case DPAR_I8: ((int8_t *)at)[i] = (int8_t)-v; return;
    default: ((uint8_t *)at)[i] = (uint8_t)(v + 100); return;
    }
}

static void print(char *text, size_t room, int32_t type, int v)
{
    switch (type) {
    case DPAR_I32:
    case DPAR_I8: (void)snprintf(text, room, "%d", -v); return;
    case DPAR_U32: (void)snprintf(text, room, "%lld", (long long)UINT32_MAX - v); return;
    case DPAR_I64: (void)snprintf(text, room, "%lld", (long long)(INT64_MIN + v)); return;
    case DPAR_U64:
        (void)snprintf(text, room, "%llu", (unsigned long long)(UINT64_MAX - (uint64_t)v));
        return;
    case DPAR_U8:
    case DPAR_F8: (void)snprintf(text, room, "%d", v + 100); return;
    default: (void)snprintf(text, room, "%g", 0.25 * v); return;
    }
}

static void fill(void *at, int64_t count, int32_t type)
{
    int64_t i;
    for (i = 0; i < count; i++) {
        put(at, i, type, (int)(scrambled(7, i) % 100));
    }
}

/* Checks that a changed value is found: `first` on rank `who`, where later values differ on all
 * ranks but 0. */
static void differs(dpar_comm *c, void *at, int64_t count, int32_t type, int64_t first, int who)
{
    char expected[200], mine[40], theirs[40];
    const int was = (int)(scrambled(7, first) % 100), now_is = was + 3;
    int64_t behind = first + 1 + c->rank * 2;
    dpar_why why;
    if (c->rank == who) {
        put(at, first, type, now_is);
    }
    if (c->rank > 0 && behind < count) {
        put(at, behind, type, (int)(scrambled(7, behind) % 100) + 1);
    }
    print(mine, sizeof mine, type, was);
    print(theirs, sizeof theirs, type, now_is);
    (void)snprintf(expected, sizeof expected, "element %lld is %s on rank 0, %s on rank %d",
                   (long long)first, mine, theirs, who);
    CHECK_INT(dpar_comm_check_equal(c, at, count, type, &why), DPAR_E_MISMATCH);
    CHECK_TEXT(why.text, expected);
    CHECK_TEXT(c->why.text, expected);
    CHECK_INT(c->status, DPAR_OK);
    fill(at, count, type);
}

static void agree(dpar_comm *c)
{
    static const int64_t counts[] = {1, 2, 3, 8, 9, 31, 33, 1000, 20011};
    int32_t type, k;
    uint64_t seed = 11;
    void *at = zeroed(20011 * 8);
    for (type = DPAR_TYPE_NONE + 1; type < DPAR_TYPE_COUNT; type++) {
        if (dpar_type_bytes(type) == 0) {
            continue;
        }
        for (k = 0; k < (int)(sizeof counts / sizeof counts[0]); k++) {
            const int64_t count = counts[k];
            fill(at, count, type);
            CHECK_INT(dpar_comm_check_equal(c, at, count, type, NULL), DPAR_OK);
            if (c->size > 1) {
                differs(c, at, count, type, 0, c->size - 1);
                differs(c, at, count, type, count - 1, 1);
                differs(c, at, count, type, lot_below(&seed, count),
                        1 + (int)lot_below(&seed, c->size - 1));
            }
            CHECK_INT(dpar_comm_check_equal(c, at, count, type, NULL), DPAR_OK);
        }
    }
    CHECK_INT(dpar_comm_check_equal(c, NULL, 0, DPAR_F32, NULL), DPAR_OK);
    free(at);
}

/* Checks that nearly equal floats are printed with enough digits, and zeros of both signs alike. */
static void near_ones(dpar_comm *c)
{
    const int last = c->rank == c->size - 1;
    char expected[200];
    dpar_why why;
    double d = last ? 1.0 + 0x1p-52 : 1.0, zero = last ? -0.0 : 0.0;
    float f = last ? 1.0f + 0x1p-23f : 1.0f;
    if (c->size == 1) {
        return;
    }
    CHECK_INT(dpar_comm_check_equal(c, &d, 1, DPAR_F64, &why), DPAR_E_MISMATCH);
    (void)snprintf(expected, sizeof expected,
                   "element 0 is 1 on rank 0, 1.0000000000000002 on rank %d", c->size - 1);
    CHECK_TEXT(why.text, expected);
    CHECK_INT(dpar_comm_check_equal(c, &f, 1, DPAR_F32, &why), DPAR_E_MISMATCH);
    (void)snprintf(expected, sizeof expected, "element 0 is 1 on rank 0, 1.00000012 on rank %d",
                   c->size - 1);
    CHECK_TEXT(why.text, expected);
    CHECK_INT(dpar_comm_check_equal(c, &zero, 1, DPAR_F64, &why), DPAR_E_MISMATCH);
    CHECK(strncmp(why.text, "element 0 is ", 13) == 0);
}

/* Passes wrong or different arguments on one rank: all ranks get the error. */
static void wrongly(dpar_comm *c)
{
    float f[4] = {1, 2, 3, 4};
    char word[80];
    dpar_why why;
    const int last = c->rank == c->size - 1;
    if (c->size > 1) {
        CHECK_INT(dpar_comm_check_equal(c, f, last ? 3 : 4, DPAR_F32, &why), DPAR_E_MISMATCH);
        CHECK(says_who_differs(why.text + sizeof "dpar_comm_check_equal:", c->size, "count", "4",
                               "3"));
        CHECK_INT(dpar_comm_check_equal(c, f, 2, last ? DPAR_I32 : DPAR_F32, &why),
                  DPAR_E_MISMATCH);
        CHECK(says_who_differs(why.text + sizeof "dpar_comm_check_equal:", c->size, "type", "f32",
                               "i32"));
    }
    CHECK_INT(dpar_comm_check_equal(c, last ? NULL : f, 4, DPAR_F32, &why), DPAR_E_ARG);
    (void)snprintf(word, sizeof word,
                   last ? "dpar_comm_check_equal: data is NULL"
                        : "rank %d: dpar_comm_check_equal: data is NULL",
                   c->size - 1);
    CHECK_TEXT(why.text, word);
    CHECK_INT(dpar_comm_check_equal(c, f, -3, DPAR_F32, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "-3") != NULL);
    CHECK_INT(dpar_comm_check_equal(c, f, 4, DPAR_F4, &why), DPAR_E_ARG);
    CHECK_INT(dpar_comm_check_equal(c, f, 4, DPAR_TYPE_NONE, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_comm_check_equal(NULL, f, 4, DPAR_F32, &why), DPAR_E_ARG);
    CHECK_INT(dpar_comm_check_equal(c, f, 4, DPAR_F32, NULL), DPAR_OK);
}

static int each(dpar_comm *c, void *arg)
{
    const double began = now();
    const int before = failures();
    (void)arg;
    scalars(c);
    memory(c);
    agree(c);
    near_ones(c);
    wrongly(c);
    after_an_error(c);
    return all_right(c, failures() - before, began);
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 4, 3, NULL);
}
