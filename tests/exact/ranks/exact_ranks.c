/* SPDX-License-Identifier: MIT-0 */
/* Tests exact sums over ranks against integers that are added bit by bit on every rank: arrays cut
 * anywhere, several terms in one collective, grids with faces, components and halos full of NaN,
 * points by ids and in mixed arrays, wrong arguments on one rank and calls that differ.
 *     ./exact_ranks [processes|threads] [ranks]     without arguments: both, 1 to 7 and 1 to 4 */
#include "dpar_halo.h"
#include "dpar_points.h"

#include "dpar_exact.h"
#include "exact_oracle.h"
#include "rank_program.h"
#include "refused.h"

enum { MOST = 1500, ROUNDS = 12 };

static const int32_t types[] = {DPAR_F64, DPAR_F32, DPAR_BF16, DPAR_F16};

/* The lowest bits of a number that only i and `round` determine, as element i of an array. */
static void put(void *x, int64_t at, int32_t type, uint32_t round, int64_t i)
{
    int fraction, exponents, smallest, b;
    const uint64_t low = scrambled(round, 3 * i), high = scrambled(round, 3 * i + 1);
    const int64_t spread = round % 3 == 0 ? 12 : round % 3 == 1 ? 60 : 200;
    uint64_t bits;
    int64_t e;
    oracle_type(type, &fraction, &exponents, &smallest);
    e = (INT64_C(1) << exponents) / 2 + (int64_t)(scrambled(round, 3 * i + 2) % (uint32_t)spread) - spread / 2;
    e = e < 0 ? 0 : e;
    e = e > (INT64_C(1) << exponents) - 2 ? (INT64_C(1) << exponents) - 2 : e;
    bits = (high & 1) << (fraction + exponents) | (uint64_t)e << fraction |
           (low << 20 ^ high) % (UINT64_C(1) << fraction);
    for (b = 0; b < dpar_type_bytes(type); b++) {
        ((unsigned char *)x)[at * dpar_type_bytes(type) + b] = (unsigned char)(bits >> 8 * b);
    }
}

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
}

static void *filled_with_nan(int64_t bytes)
{
    void *at = zeroed(bytes);
    memset(at, 255, (size_t)bytes);
    return at;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* Element i belongs to a rank that this random number selects; some ranks own nothing. */
static int owns(const dpar_comm *c, uint32_t round, int64_t i)
{
    const int32_t some = round % 4 == 3 ? 1 : c->size;
    if (round % 2 == 0) {
        return (int32_t)(scrambled(round + 1000, i) % (uint32_t)some) == c->rank;
    }
    return (int32_t)(i * some / MOST) == c->rank;
}

static void arrays(dpar_comm *c, uint32_t round)
{
    const int32_t type = types[round % 4];
    const int64_t all = round % 7 == 0 ? 3 : 100 + scrambled(round, -1) % (round % 4 == 0 ? 300 : MOST - 100);
    oracle *sum = (oracle *)zeroed((int64_t)sizeof *sum), *dot = (oracle *)zeroed((int64_t)sizeof *dot);
    oracle *square = (oracle *)zeroed((int64_t)sizeof *square);
    void *x = zeroed(8 * MOST), *y = zeroed(8 * MOST), *one = zeroed(8);
    dpar_exact_term terms[11];
    dpar_exact sums[2];
    double result[11];
    int64_t i, n = 0;
    int k;
    for (i = 0; i < all; i++) {
        oracle_number a, b;
        put(one, 0, type, round, i);
        a = oracle_read(one, 0, type);
        oracle_add(sum, one, 0, type);
        put(one, 0, type, round + 77, i);
        b = oracle_read(one, 0, type);
        oracle_add_product(dot, a, b);
        oracle_add_product(square, a, a);
        if (owns(c, round, i)) {
            put(x, n, type, round, i);
            put(y, n, type, round + 77, i);
            n++;
        }
    }
    CHECK_INT(dpar_exact_sum(c, x, n, type, &result[0]), 0);
    CHECK(bits_of(result[0]) == oracle_result(sum, type));
    CHECK_INT(dpar_exact_dot(c, x, y, n, type, &result[0]), 0);
    CHECK(bits_of(result[0]) == oracle_result(dot, type));
    CHECK_INT(dpar_exact_norm(c, x, n, type, &result[0]), 0);
    CHECK(oracle_is_root(square, type, bits_of(result[0])));
    for (k = 0; k < 11; k++) {
        terms[k] = k % 3 == 0   ? dpar_exact_sum_of(x, n, type)
                   : k % 3 == 1 ? dpar_exact_dot_of(x, y, n, type)
                                : dpar_exact_norm_of(x, n, type);
    }
    CHECK_INT(dpar_exact_many(c, terms, 11, result), 0);
    for (k = 0; k < 11; k++) {
        CHECK(k % 3 == 0   ? bits_of(result[k]) == oracle_result(sum, type)
              : k % 3 == 1 ? bits_of(result[k]) == oracle_result(dot, type)
                           : oracle_is_root(square, type, bits_of(result[k])));
    }
    memset(sums, 0, sizeof sums);
    CHECK_INT(dpar_exact_add(&sums[0], x, n, type), 0);
    CHECK_INT(dpar_exact_add_dot(&sums[1], x, y, n, type), 0);
    CHECK_INT(dpar_exact_all_reduce(c, sums, 2), 0);
    CHECK(bits_of(dpar_exact_result(&sums[0], type)) == oracle_result(sum, type));
    CHECK(bits_of(dpar_exact_result(&sums[1], type)) == oracle_result(dot, type));
    free(one);
    free(y);
    free(x);
    free(square);
    free(dot);
    free(sum);
}

/* NaN and infinities on different ranks. */
static void specials(dpar_comm *c)
{
    double x[1], sum, norm;
    uint64_t bits = UINT64_C(0x7ff) << 52;
    x[0] = 1.0;
    if (c->rank == c->size - 1) {
        memcpy(x, &bits, 8);
    }
    CHECK_INT(dpar_exact_sum(c, x, 1, DPAR_F64, &sum), 0);
    CHECK(bits_of(sum) == bits);
    CHECK_INT(dpar_exact_norm(c, x, 1, DPAR_F64, &norm), 0);
    CHECK(bits_of(norm) == bits);
    if (c->size > 1) {
        bits |= UINT64_C(1) << 63;
        if (c->rank == 0) {
            memcpy(x, &bits, 8);
        }
        CHECK_INT(dpar_exact_sum(c, x, 1, DPAR_F64, &sum), 0);
        CHECK(bits_of(sum) == UINT64_C(0xfff) << 51);
        CHECK_INT(dpar_exact_norm(c, x, 1, DPAR_F64, &norm), 0);
        CHECK(bits_of(norm) == UINT64_C(0x7ff) << 52);
    }
    CHECK_INT(dpar_exact_sum(c, NULL, 0, DPAR_F64, &sum), 0);
    CHECK(bits_of(sum) == 0);
}

/* ---- grids ----------------------------------------------------------------------------------- */

static void grids(dpar_comm *c, uint32_t round)
{
    const int32_t type = types[round % 4], dims = 1 + (int32_t)(round % 3);
    const int32_t components = round % 5 == 4 ? 9 : 1 + (int32_t)(round / 2 % 3);
    dpar_grid_desc desc;
    dpar_grid_field field;
    dpar_grid_part part;
    dpar_grid *grid = NULL;
    dpar_exact_term term;
    oracle *sums = (oracle *)zeroed(components * (int64_t)sizeof *sums);
    oracle *dot = (oracle *)zeroed((int64_t)sizeof *dot);
    oracle *square = (oracle *)zeroed((int64_t)sizeof *square);
    dpar_why why;
    double result[9];
    void *x, *y, *one = zeroed(8);
    int64_t points[3] = {1, 1, 1}, own[3] = {1, 1, 1}, at[3], size = components, start = 0;
    int32_t d, k;
    memset(&desc, 0, sizeof desc);
    memset(&field, 0, sizeof field);
    desc.dims = dims;
    desc.halo = round % 3;
    desc.array_start = (int32_t)(round / 3 % 2);
    field.components = components;
    field.order = round % 2 ? DPAR_ORDER_FIRST_FASTEST : DPAR_ORDER_LAST_FASTEST;
    for (d = 0; d < dims; d++) {
        desc.cells[d] = dims == 1 ? 7 + scrambled(round, d) % 300 : 7 + scrambled(round, d) % (dims == 2 ? 8 : 2);
        desc.periodic[d] = (int32_t)(scrambled(round, 10 + d) % 2);
        field.location[d] = scrambled(round, 20 + d) % 3 == 0 ? DPAR_HALO_AT_FACES : DPAR_HALO_AT_CELLS;
        points[d] = desc.cells[d] + (field.location[d] == DPAR_HALO_AT_FACES && !desc.periodic[d]);
    }
    CHECK_INT(dpar_grid_make(c, &desc, &grid, &why), 0);
    CHECK_INT(dpar_grid_block(grid, &field, &part), 0);
    for (d = 0; d < dims; d++) {
        size *= part.local_count[d];
        start += part.local_start[d] * part.stride[d];
        own[d] = part.count[d];
    }
    x = filled_with_nan(size * dpar_type_bytes(type));
    y = filled_with_nan(size * dpar_type_bytes(type));
    for (at[0] = 0; at[0] < points[0]; at[0]++) {
        for (at[1] = 0; at[1] < points[1]; at[1]++) {
            for (at[2] = 0; at[2] < points[2]; at[2]++) {
                for (k = 0; k < components; k++) {
                    const int64_t i =
                        ((at[0] * points[1] + at[1]) * points[2] + at[2]) * components + k;
                    int64_t place = start + k * part.component_stride;
                    int mine = 1;
                    oracle_number a, b;
                    put(one, 0, type, round, i);
                    a = oracle_read(one, 0, type);
                    oracle_add(&sums[k], one, 0, type);
                    put(one, 0, type, round + 5, i);
                    b = oracle_read(one, 0, type);
                    oracle_add_product(dot, a, b);
                    oracle_add_product(square, a, a);
                    for (d = 0; d < dims; d++) {
                        mine = mine && at[d] >= part.start[d] && at[d] < part.start[d] + own[d];
                        place += (at[d] - part.start[d]) * part.stride[d];
                    }
                    if (mine) {
                        put(x, place, type, round, i);
                        put(y, place, type, round + 5, i);
                    }
                }
            }
        }
    }
    {
        const int64_t begin = desc.array_start ? 0 : start * dpar_type_bytes(type);
        const char *u = (const char *)x + begin, *v = (const char *)y + begin;
        CHECK_INT(dpar_exact_grid_sum(grid, u, type, &field, result), 0);
        for (k = 0; k < components; k++) {
            CHECK(bits_of(result[k]) == oracle_result(&sums[k], type));
        }
        CHECK_INT(dpar_exact_grid_dot(grid, u, v, type, &field, result), 0);
        CHECK(bits_of(result[0]) == oracle_result(dot, type));
        CHECK_INT(dpar_exact_grid_norm(grid, u, type, &field, result), 0);
        CHECK(oracle_is_root(square, type, bits_of(result[0])));
        CHECK_INT(dpar_exact_grid_term(grid, u, type, &field, &term), 0);
        term.kind = DPAR_EXACT_NORM;
        CHECK_INT(dpar_exact_many(c, &term, 1, result), 0);
        CHECK(oracle_is_root(square, type, bits_of(result[0])));
        field.components = -1;
        CHECK(dpar_exact_grid_term(grid, u, type, &field, &term) < 0);
        CHECK_INT(dpar_exact_grid_sum(grid, u, type, &field, result), DPAR_E_ARG);
        CHECK(strstr(c->why.text, "the grid does not allow this field") != NULL);
        CHECK_INT(dpar_exact_grid_norm(grid, u, type, &field, result), DPAR_E_ARG);
        CHECK_INT(dpar_exact_grid_norm(NULL, u, type, NULL, result), DPAR_E_ARG);
        CHECK_INT(dpar_exact_grid_sum(NULL, u, type, NULL, result), DPAR_E_ARG);
    }
    CHECK_INT(dpar_grid_free(grid), 0);
    free(one);
    free(y);
    free(x);
    free(square);
    free(dot);
    free(sums);
}

/* ---- points ---------------------------------------------------------------------------------- */

/* Each rank owns 10 + rank ids and reads two ids of the next rank. */
static void points_by_ids(dpar_comm *c, uint32_t round)
{
    const int32_t type = types[round % 4], components = 1 + (int32_t)(round % 2) * 9;
    const int planes = round % 3 == 0;
    oracle *sums = (oracle *)zeroed(components * (int64_t)sizeof *sums);
    oracle *dot = (oracle *)zeroed((int64_t)sizeof *dot);
    dpar_points_desc desc;
    dpar_points_field x, y;
    dpar_points *points = NULL;
    dpar_exact_term term;
    dpar_why why;
    double result[10];
    void *one = zeroed(8);
    int64_t ghost[2], n = 10 + c->rank, all = 0, first = 0, i;
    int32_t k, r;
    for (r = 0; r < c->size; r++) {
        first += r < c->rank ? 10 + r : 0;
        all += 10 + r;
    }
    ghost[0] = (first + n) % all;
    ghost[1] = (first + n + 1) % all;
    memset(&desc, 0, sizeof desc);
    memset(&x, 0, sizeof x);
    desc.own_count = n;
    desc.ghost_count = 2;
    desc.ghost_id = ghost;
    CHECK_INT(dpar_points_make(c, &desc, &points, &why), 0);
    x.type = type;
    x.components = components;
    if (planes) {
        x.component_stride = n + 2;
    }
    x.data = filled_with_nan((n + 2) * components * 8);
    y = x;
    y.data = filled_with_nan((n + 2) * components * 8);
    for (i = 0; i < all; i++) {
        for (k = 0; k < components; k++) {
            const int64_t place = planes ? k * (n + 2) + i - first : (i - first) * components + k;
            oracle_number a, b;
            put(one, 0, type, round, i * components + k);
            a = oracle_read(one, 0, type);
            oracle_add(&sums[k], one, 0, type);
            put(one, 0, type, round + 3, i * components + k);
            b = oracle_read(one, 0, type);
            oracle_add_product(dot, a, b);
            if (i >= first && i < first + n) {
                put(x.data, place, type, round, i * components + k);
                put(y.data, place, type, round + 3, i * components + k);
            }
        }
    }
    CHECK_INT(dpar_exact_points_sum(points, &x, result), 0);
    for (k = 0; k < components; k++) {
        CHECK(bits_of(result[k]) == oracle_result(&sums[k], type));
    }
    CHECK_INT(dpar_exact_points_dot(points, &x, &y, result), 0);
    CHECK(bits_of(result[0]) == oracle_result(dot, type));
    CHECK_INT(dpar_exact_points_term(points, &x, &y, &term, &why), 0);
    term.kind = DPAR_EXACT_DOT;
    CHECK_INT(dpar_exact_many(c, &term, 1, result), 0);
    CHECK(bits_of(result[0]) == oracle_result(dot, type));
    CHECK_INT(dpar_exact_points_term(points, &x, NULL, NULL, &why), DPAR_E_ARG);
    CHECK_INT(dpar_exact_points_dot(points, &x, NULL, result), DPAR_E_ARG);
    CHECK_INT(dpar_exact_points_norm(points, NULL, result), DPAR_E_ARG);
    CHECK_INT(dpar_exact_points_sum(points, NULL, result), DPAR_E_ARG);
    CHECK_INT(dpar_exact_points_sum(NULL, &x, result), DPAR_E_ARG);
    CHECK_INT(dpar_exact_points_norm(NULL, &x, result), DPAR_E_ARG);
    k = y.components;
    y.components = k + 1;
    CHECK_INT(dpar_exact_points_dot(points, &x, &y, result), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "these must be the same") != NULL);
    free(y.data);
    free(x.data);
    CHECK_INT(dpar_points_free(points), 0);
    free(one);
    free(dot);
    free(sums);
}

/* Two own places around one that is received from the next rank; and shared ids, which are refused. */
static void points_mixed(dpar_comm *c)
{
    const int32_t peer[2] = {(c->rank + 1) % c->size, (c->rank + c->size - 1) % c->size};
    const int64_t send[2] = {0, 1}, receive[2] = {1, 0};
    const int64_t both[1] = {1}, id[2] = {0, 1};
    const int32_t send_index[1] = {0}, receive_index[1] = {1};
    dpar_points_lists lists;
    dpar_points_desc desc;
    dpar_points_field x;
    dpar_points *points = NULL;
    dpar_why why;
    double u[3], result;
    memset(&lists, 0, sizeof lists);
    memset(&desc, 0, sizeof desc);
    memset(&x, 0, sizeof x);
    lists.peer = peer;
    lists.peer_count = peer[0] == peer[1] ? 1 : 2;
    lists.send_count = peer[0] == peer[1] ? both : send;
    lists.receive_count = peer[0] == peer[1] ? both : receive;
    lists.send_index = send_index;
    lists.receive_index = receive_index;
    desc.lists = &lists;
    desc.mixed_count = 3;
    CHECK_INT(dpar_points_make(c, &desc, &points, &why), 0);
    u[0] = 0x1p60 + 0x1p10 * c->rank;
    u[1] = 1e300;
    u[2] = -0x1p60 + 256.0;
    x.type = DPAR_F64;
    x.data = u;
    CHECK_INT(dpar_exact_points_sum(points, &x, &result), 0);
    CHECK(result == 0x1p10 * (c->size * (c->size - 1) / 2) + 256.0 * c->size);
    CHECK_INT(dpar_points_free(points), 0);
    memset(&desc, 0, sizeof desc);
    desc.own_count = 2;
    desc.own_id = id;
    desc.shared = 1;
    CHECK_INT(dpar_points_make(c, &desc, &points, &why), 0);
    CHECK_INT(dpar_exact_points_sum(points, &x, &result), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "shared ids") != NULL);
    CHECK_INT(dpar_exact_points_norm(points, &x, &result), DPAR_E_ARG);
    CHECK_INT(dpar_points_free(points), 0);
}

/* ---- wrong calls ----------------------------------------------------------------------------- */

static void wrong_calls(dpar_comm *c)
{
    const int last = c->rank == c->size - 1;
    double x[2] = {1.0, 2.0}, result = 7.0;
    dpar_exact_term term = dpar_exact_sum_of(x, 2, DPAR_F64);
    char words[80];
    CHECK_INT(dpar_exact_sum(NULL, x, 2, DPAR_F64, &result), DPAR_E_ARG);
    CHECK_INT(dpar_exact_all_reduce(NULL, NULL, 0), DPAR_E_ARG);
    CHECK_INT(dpar_exact_sum(c, last ? NULL : x, 2, DPAR_F64, &result), DPAR_E_ARG);
    (void)snprintf(words, sizeof words, "rank %d: exact: x is NULL", (int)c->size - 1);
    CHECK(strstr(c->why.text, last ? "exact: x is NULL" : words) != NULL);
    CHECK_INT(dpar_exact_sum(c, x, last ? -3 : 2, DPAR_F64, &result), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "count is -3") != NULL);
    CHECK_INT(dpar_exact_dot(c, x, last ? NULL : x, 2, DPAR_F64, &result), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "y is NULL") != NULL);
    CHECK_INT(dpar_exact_sum(c, x, 2, DPAR_I32, &result), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "type is i32") != NULL);
    CHECK_INT(dpar_exact_sum(c, x, 2, DPAR_F64, last ? NULL : &result), DPAR_E_ARG);
    CHECK_INT(dpar_exact_many(c, NULL, 1, &result), DPAR_E_ARG);
    CHECK_INT(dpar_exact_many(c, &term, -1, &result), DPAR_E_ARG);
    CHECK_INT(dpar_exact_all_reduce(c, NULL, 1), DPAR_E_ARG);
    term.kind = 3;
    CHECK_INT(dpar_exact_many(c, &term, 1, &result), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "kind is 3") != NULL);
    term.kind = DPAR_EXACT_SUM;
    term.dims = 1;
    term.extent[0] = last ? -1 : 1;
    CHECK_INT(dpar_exact_many(c, &term, 1, &result), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "extent[0] is -1") != NULL);
    CHECK(result == 7.0);
    CHECK_INT(dpar_exact_many(c, NULL, 0, &result), 0);
    CHECK_INT(dpar_exact_sum(c, x, 2, DPAR_F64, &result), 0); /* and it still works */
    CHECK(result == 3.0 * c->size);
}

/* Calls that differ: of another kind, with as many words. */
static void other_calls(dpar_comm *world)
{
    const int last = world->rank == world->size - 1;
    dpar_comm *c = NULL;
    double x[2] = {1.0, 2.0}, result = 7.0;
    dpar_status status;
    if (world->size == 1 || strcmp(world->engine.name, "shm") != 0) {
        return; /* over MPI, collectives that differ are noticed only in checked mode */
    }
    CHECK_INT(dpar_comm_split(world, 0, 0, &c), 0);
    status = last ? dpar_exact_norm(c, x, 2, DPAR_F64, &result)
                  : dpar_exact_dot(c, x, x, 2, DPAR_F64, &result);
    CHECK_INT(status, DPAR_E_MISMATCH);
    CHECK(strstr(c->why.text, "exact: kinds, types or numbers of terms differ") != NULL);
    CHECK(result == 7.0);
    (void)dpar_comm_free(c);
}

static int each(dpar_comm *c, void *arg)
{
    const double began = now();
    const int before = failures();
    uint32_t round;
    (void)arg;
    for (round = 0; round < ROUNDS; round++) {
        arrays(c, round);
        grids(c, round);
        points_by_ids(c, round);
    }
    specials(c);
    points_mixed(c);
    wrong_calls(c);
    other_calls(c);
    return all_right(c, failures() - before, began);
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 7, 4, NULL);
}
