/* SPDX-License-Identifier: MIT-0 */
/* scan: tests dpar_scan, dpar_exscan and reductions with locations against loops over the inputs of
 * all ranks, which each rank computes itself, for every type, operation and kind of length.
 *   cc -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/comm/ranks/scan.c -o scan -lm
 *   ./scan */
#include "rank_program.h"

static const int32_t types[] = {DPAR_F64, DPAR_F32, DPAR_BF16, DPAR_F16, DPAR_I8,
                                DPAR_U8,  DPAR_I32, DPAR_U32,  DPAR_I64, DPAR_U64};
enum { TYPES = sizeof types / sizeof types[0] };

static int is_float(int32_t type)
{
    return type == DPAR_F64 || type == DPAR_F32 || type == DPAR_BF16 || type == DPAR_F16;
}

/* Reads an integer, extended to 64 bits as its type says. */
static uint64_t int_get(const void *at, int64_t i, int32_t type)
{
    switch (type) {
    case DPAR_I8: return (uint64_t)(int64_t)((const int8_t *)at)[i];
    case DPAR_U8: return ((const uint8_t *)at)[i];
    case DPAR_I32: return (uint64_t)(int64_t)((const int32_t *)at)[i];
    case DPAR_U32: return ((const uint32_t *)at)[i];
    default: return ((const uint64_t *)at)[i];
    }
}

static void int_put(void *at, int64_t i, int32_t type, uint64_t v)
{
    switch (dpar_type_bytes(type)) {
    case 1: ((uint8_t *)at)[i] = (uint8_t)v; return;
    case 4: ((uint32_t *)at)[i] = (uint32_t)v; return;
    default: ((uint64_t *)at)[i] = v; return;
    }
}

/* Stores element i of the input of a rank: a float of 1 to 1.5 with either sign, or any integer. */
static void input(void *at, int64_t i, int32_t type, int rank, uint32_t which)
{
    const uint32_t h = scrambled(which * 64u + (uint32_t)rank, i);
    if (is_float(type)) {
        float_put(at, i, type, ((h & 1u) != 0 ? -1.0 : 1.0) * (1.0 + (h >> 8) / 33554432.0));
        return;
    }
    int_put(at, i, type, (uint64_t)h * UINT64_C(0x9e3779b97f4a7c15));
}

/* Computes element i of a op b into a. */
static void combine(void *a, const void *b, int64_t i, int32_t type, int32_t op)
{
    if (is_float(type)) {
        const double x = float_get(a, i, type), y = float_get(b, i, type);
        const double extreme = (op == DPAR_MAX) == (x > y) ? x : y;
        float_put(a, i, type, op == DPAR_SUM ? x + y : op == DPAR_PRODUCT ? x * y : extreme);
        return;
    }
    {
        const uint64_t x = int_get(a, i, type), y = int_get(b, i, type);
        const int is_signed = type == DPAR_I8 || type == DPAR_I32 || type == DPAR_I64;
        const int above = is_signed ? (int64_t)x > (int64_t)y : x > y;
        const uint64_t extreme = (op == DPAR_MAX) == above ? x : y;
        int_put(a, i, type, op == DPAR_SUM ? x + y : op == DPAR_PRODUCT ? x * y : extreme);
    }
}

/* Checks one scan. in_place: whether the output is the input. */
static void one(dpar_comm *c, int64_t count, int32_t type, int32_t op, int exclusive, int in_place,
                uint32_t which)
{
    const size_t bytes = (size_t)(count * dpar_type_bytes(type));
    unsigned char *in = (unsigned char *)zeroed((int64_t)bytes + 64);
    unsigned char *out = in_place ? in : (unsigned char *)zeroed((int64_t)bytes + 64);
    unsigned char *expected = (unsigned char *)zeroed((int64_t)bytes + 64);
    unsigned char *other = (unsigned char *)zeroed((int64_t)bytes + 64);
    for (int64_t i = 0; i < count; i++) {
        input(in, i, type, c->rank, which);
    }
    memset(out + bytes, 77, 64);
    memcpy(expected, out, bytes + 64);
    if (exclusive && op == DPAR_SUM) {
        memset(expected, 0, bytes);
    }
    for (int rank = 0; rank < c->rank + !exclusive; rank++) {
        for (int64_t i = 0; i < count; i++) {
            input(rank == 0 ? expected : other, i, type, rank, which);
            if (rank > 0) {
                combine(expected, other, i, type, op);
            }
        }
    }
    CHECK_INT(exclusive ? dpar_exscan(c, in, out, count, type, op)
                        : dpar_scan(c, in, out, count, type, op),
              DPAR_OK);
    CHECK(memcmp(out, expected, bytes + 64) == 0);
    free(other);
    free(expected);
    free(in_place ? NULL : out);
    free(in);
}

static void scans(dpar_comm *c)
{
    static const int32_t ops[] = {DPAR_SUM, DPAR_PRODUCT, DPAR_MAX, DPAR_MIN};
    static const int64_t counts[] = {1, 0, 3, 200, 1025};
    uint32_t which = 0;
    for (int type = 0; type < TYPES; type++) {
        for (int k = 0; k < 4 * 2 * 5; k++) {
            one(c, counts[k / 8], types[type], ops[k % 4], k / 4 % 2, (int)(which % 2), which);
            which++;
            which += k % 8 == 7;
        }
    }
    /* several pieces */
    one(c, 140001, DPAR_I64, DPAR_SUM, 1, 0, 1);
    one(c, 70001, DPAR_F64, DPAR_SUM, 0, 1, 2);
}

/* The last rank gets the bits of an all-reduce. */
static void same_as_all_reduce(dpar_comm *c)
{
    double x[100], sum[100], all[100];
    for (int64_t i = 0; i < 100; i++) {
        input(x, i, DPAR_F64, c->rank, 7);
    }
    CHECK_INT(dpar_scan(c, x, sum, 100, DPAR_F64, DPAR_SUM), DPAR_OK);
    CHECK_INT(dpar_reduce(c, x, all, 100, DPAR_F64, DPAR_SUM, c->size - 1, NULL), DPAR_OK);
    if (c->rank == c->size - 1 && strcmp(c->engine.name, "shm") == 0) {
        CHECK(memcmp(sum, all, sizeof all) == 0);
    }
}

static void numbering(dpar_comm *c)
{
    int64_t first = 0;
    for (int rank = 0; rank < c->rank; rank++) {
        first += INT64_C(5000000000) * rank + 3;
    }
    CHECK_INT(dpar_first_index(c, INT64_C(5000000000) * c->rank + 3), first);
    CHECK_INT(dpar_first_index(c, 0), 0);
}

/* Passes wrong arguments on all ranks, and different ones. */
static void refusals(dpar_comm *c)
{
    double x[4] = {1, 2, 3, 4}, y[4] = {0};
    dpar_comm *other = NULL;
    CHECK_INT(dpar_scan(c, x, y, 4, DPAR_F64, DPAR_AVG), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "dpar_scan") != NULL && strstr(c->why.text, "op 2") != NULL);
    CHECK_INT(dpar_scan(c, x, y, -4, DPAR_F64, DPAR_SUM), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "count -4") != NULL);
    CHECK(strlen(c->why.text) < 230);
    CHECK_INT(dpar_scan(c, x, y, INT64_C(1) << 61, DPAR_F64, DPAR_SUM), DPAR_E_ARG);
    CHECK_INT(dpar_scan(c, x, y, 4, DPAR_F4, DPAR_SUM), DPAR_E_ARG);
    CHECK_INT(dpar_scan(c, x, y, 4, 99, DPAR_SUM), DPAR_E_ARG);
    CHECK_INT(dpar_exscan(c, x, x + 1, 3, DPAR_F64, DPAR_SUM), DPAR_E_ARG);
    CHECK_INT(dpar_exscan(c, NULL, x, 3, DPAR_F64, DPAR_SUM), DPAR_E_ARG);
    CHECK_INT(dpar_exscan(c, x, NULL, 3, DPAR_F64, DPAR_SUM), DPAR_E_ARG);
    CHECK_INT(dpar_exscan(c, NULL, NULL, 0, DPAR_F64, DPAR_SUM), DPAR_OK);
    CHECK_INT(dpar_scan(NULL, x, y, 1, DPAR_F64, DPAR_SUM), DPAR_E_ARG);
    CHECK_INT(dpar_first_index(NULL, 1), -1);
    CHECK(x[0] == 1 && y[0] == 0);
    CHECK_INT(c->status, DPAR_OK);
    if (c->size < 2 || strcmp(c->engine.name, "shm") != 0) {
        return;
    }
    CHECK_INT(dpar_comm_split(c, 0, 0, &other), DPAR_OK);
    CHECK_INT(dpar_scan(other, x, y, 4, DPAR_F64, c->rank == 0 ? DPAR_MAX : DPAR_MIN),
              DPAR_E_MISMATCH);
    CHECK(strncmp(other->why.text, "dpar_scan: ", 11) == 0);
    dpar_comm_free(other);
}

/* ---- extremes with locations ---- */

/* Returns value i of a rank: one of few, so that ranks often agree, and now and then NaN. */
static dpar_location located(int rank, int64_t i)
{
    const uint32_t h = scrambled((uint32_t)rank + 1000u, i);
    dpar_location pair;
    pair.value = h % 41u == 0 ? (double)NAN : (double)(h / 64u % 5u) - 2.0;
    pair.index = (int64_t)(h >> 4) - (INT64_C(1) << 40) * (h % 3u);
    return pair;
}

/* True if a comes before b: the rule of dpar_all_reduce_location, as an order of pairs. */
static int before(dpar_location a, dpar_location b, int32_t op)
{
    if (isnan(a.value) || isnan(b.value)) {
        return isnan(a.value) && (!isnan(b.value) || a.index < b.index);
    }
    if (a.value == b.value) {
        return a.index < b.index;
    }
    return op == DPAR_MIN ? a.value < b.value : a.value > b.value;
}

static void locations(dpar_comm *c, int64_t count, int32_t op)
{
    dpar_location *pairs = (dpar_location *)zeroed((count + 1) * (int64_t)sizeof *pairs);
    for (int64_t i = 0; i < count; i++) {
        pairs[i] = located(c->rank, i);
    }
    CHECK_INT(dpar_all_reduce_location(c, pairs, count, op), DPAR_OK);
    for (int64_t i = 0; i < count; i++) {
        dpar_location best = located(0, i);
        for (int rank = 1; rank < c->size; rank++) {
            best = before(located(rank, i), best, op) ? located(rank, i) : best;
        }
        CHECK(pairs[i].value == best.value || (isnan(pairs[i].value) && isnan(best.value)));
        CHECK(pairs[i].index == best.index);
    }
    free(pairs);
}

static void extremes(dpar_comm *c)
{
    dpar_location pair = {0.0, 0};
    int64_t index = 100 - c->rank;
    for (int64_t count = 0; count < 400; count = 2 * count + 1) {
        locations(c, count, DPAR_MIN);
        locations(c, count, DPAR_MAX);
    }
    locations(c, 128, DPAR_MAX);
    CHECK(dpar_max_location(c, 2.5 * c->rank, &index) == 2.5 * (c->size - 1));
    CHECK_INT(index, 100 - (c->size - 1));
    index = c->rank;
    CHECK(dpar_min_location(c, c->rank / 2 == 0 ? 1.0 : 7.0, &index) == 1.0);
    CHECK_INT(index, 0);
    CHECK_INT(dpar_all_reduce_location(c, &pair, 1, DPAR_SUM), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "op is 1") != NULL);
    CHECK_INT(dpar_all_reduce_location(c, &pair, -1, DPAR_MIN), DPAR_E_ARG);
    CHECK_INT(dpar_all_reduce_location(c, &pair, (INT64_C(1) << 58) + 1, DPAR_MIN), DPAR_E_ARG);
    CHECK_INT(dpar_all_reduce_location(c, NULL, 1, DPAR_MIN), DPAR_E_ARG);
    CHECK_INT(dpar_all_reduce_location(NULL, &pair, 1, DPAR_MIN), DPAR_E_ARG);
    CHECK(isnan(dpar_min_location(NULL, 1.0, &index)));
}

static int each(dpar_comm *c, void *arg)
{
    const double began = now();
    const int before_it = failures();
    (void)arg;
    scans(c);
    same_as_all_reduce(c);
    numbering(c);
    extremes(c);
    refusals(c);
    return all_right(c, failures() - before_it, began);
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 8, 3, NULL);
}
