/* SPDX-License-Identifier: MIT-0 */
/* Tests plans of shared ids against brute force. Every rank knows the ids of all ranks, which a
 * seed makes, and computes the results in the order that the header states: the values of each rank
 * by their indices, then the results of the ranks. Arrays are compared as a whole, bit by bit.
 *     ./points_shared [processes|threads] [ranks]        without arguments: both, 1 to 8 and 1 to 4
 */
#include "dpar_points.h"
#include "rank_program.h"
#include "refused.h"

enum { RANKS = 8, VALUES = 40, VECTORS = 3, COMPONENTS = 3, TYPES = 10 };

static const int32_t types[TYPES] = {DPAR_F64, DPAR_F32, DPAR_BF16, DPAR_F16, DPAR_I8,
                                     DPAR_U8,  DPAR_I32, DPAR_U32,  DPAR_I64, DPAR_U64};

/* ---- a world --------------------------------------------------------------------------------- */

typedef struct world {
    int ranks;
    int64_t count[RANKS], id[RANKS][VALUES];
} world;

/* Returns the id of value i of rank r, so that ids that only one rank has occur 8, 4 and 2 times,
 * for which there are loops, and that ids of two ranks and of all occur several times on each. */
static int64_t repeated_id(int r, int64_t i)
{
    const int64_t turn = i / 5;
    switch (i % 5) {
    case 0: return r * INT64_C(1000);
    case 1: return r * INT64_C(1000) + 1 + turn % 2;
    case 2: return r * INT64_C(1000) + 3 + turn % 4;
    case 3: return 50000;
    default: return 50001 + r + turn % 2;
    }
}

/* Gives ids to the values of all ranks: a few ids, many, huge ones, the same one for all, each rank
 * its own, or repeated as in a mesh. Some ranks have no values, some values no id. */
static void build(world *w, int ranks, int kind, uint64_t *seed)
{
    const int64_t pool = 1 + lot_below(seed, kind == 0 ? 4 : 100);
    int64_t i;
    int r;
    memset(w, 0, sizeof *w);
    w->ranks = ranks;
    for (r = 0; r < ranks; r++) {
        w->count[r] = lot_below(seed, 4) == 0 ? 0 : lot_below(seed, VALUES + 1);
        w->count[r] = kind == 6 ? VALUES : w->count[r];
        for (i = 0; i < w->count[r]; i++) {
            int64_t id = lot_below(seed, pool);
            if (kind == 2) {
                id = (INT64_C(1) << 62) - id * (INT64_C(1) << (int)lot_below(seed, 20));
            } else if (kind == 3) {
                id = 7;
            } else if (kind == 4) {
                id = r * INT64_C(1000) + id;
            } else if (kind == 5) { /* a line of elements, as in a mesh */
                id = r * INT64_C(20) + i / 2 + i % 2;
            }
            w->id[r][i] = lot_below(seed, 12) == 0 ? -1 : id;
            if (kind == 6) {
                w->id[r][i] = repeated_id(r, i);
            }
        }
    }
}

/* ---- numbers of all types -------------------------------------------------------------------- */

typedef struct number {
    double f;  /* of a float */
    int64_t i; /* of an integer, extended to 64 bits by its sign */
} number;

static int is_float(int32_t type)
{
    return type == DPAR_F64 || type == DPAR_F32 || type == DPAR_BF16 || type == DPAR_F16;
}

static int64_t wrapped(int32_t type, uint64_t v)
{
    switch (type) {
    case DPAR_I8: return (int8_t)v;
    case DPAR_U8: return (uint8_t)v;
    case DPAR_I32: return (int32_t)v;
    case DPAR_U32: return (uint32_t)v;
    default: return (int64_t)v;
    }
}

static number get(int32_t type, const unsigned char *at)
{
    number x = {0.0, 0};
    uint8_t b;
    uint32_t w;
    uint64_t l;
    if (is_float(type)) {
        x.f = float_get(at, 0, type);
        return x;
    }
    switch (dpar_type_bytes(type)) {
    case 1:
        memcpy(&b, at, 1);
        x.i = wrapped(type, b);
        break;
    case 4:
        memcpy(&w, at, 4);
        x.i = wrapped(type, w);
        break;
    default:
        memcpy(&l, at, 8);
        x.i = (int64_t)l;
        break;
    }
    return x;
}

static void put(int32_t type, unsigned char *at, number x)
{
    const uint8_t b = (uint8_t)x.i;
    const uint32_t w = (uint32_t)x.i;
    if (is_float(type)) {
        float_put(at, 0, type, x.f);
        if (type == DPAR_F16 && signbit(x.f)) {
            *(uint16_t *)(void *)at |= 0x8000u; /* float_put has no -0 */
        }
        return;
    }
    switch (dpar_type_bytes(type)) {
    case 1: memcpy(at, &b, 1); break;
    case 4: memcpy(at, &w, 4); break;
    default: memcpy(at, &x.i, 8); break;
    }
}

/* Rounds to what an array of the type holds. */
static number stored(int32_t type, number x)
{
    unsigned char at[8] __attribute__((aligned(8)));
    put(type, at, x);
    return get(type, at);
}

/* Returns a op b. Floats of at most 32 bits are combined in 32 bits. */
static number combined(int32_t type, int op, number a, number b)
{
    const int less = is_float(type)     ? a.f < b.f
                     : type == DPAR_U64 ? (uint64_t)a.i < (uint64_t)b.i
                                        : a.i < b.i;
    if (op == DPAR_COPY) {
        return a;
    }
    if (op == DPAR_MAX || op == DPAR_MIN) {
        return less == (op == DPAR_MIN) ? a : b;
    }
    if (is_float(type)) {
        a.f = op == DPAR_PRODUCT ? a.f * b.f : a.f + b.f;
        a.f = type == DPAR_F64 ? a.f : (double)(float)a.f;
        return a;
    }
    a.i = wrapped(type, op == DPAR_PRODUCT ? (uint64_t)a.i * (uint64_t)b.i
                                           : (uint64_t)a.i + (uint64_t)b.i);
    return a;
}

static number divided(int32_t type, number a, int64_t n)
{
    if (type == DPAR_U64) {
        a.i = (int64_t)((uint64_t)a.i / (uint64_t)n);
    } else {
        a.i /= n;
    }
    a.f /= (double)n;
    return a;
}

/* Returns small numbers; of F64 and F32, thirds, whose sums depend on their order. */
static number content(int32_t type, int round, int rank, int64_t i, int vector, int k)
{
    const uint32_t h = scrambled((uint32_t)(round * 31 + vector * 7 + k), rank * 1000 + i);
    number x;
    x.f = type == DPAR_F64 || type == DPAR_F32 ? (double)(h % 100000) / 3.0e4 - 1.0
                                               : (double)(h % 1000) / 512.0 - 0.5;
    x.i = wrapped(type, h * UINT64_C(0x9e3779b97f4a7c15) >> (round % 2 ? 57 : 0));
    return stored(type, x);
}

/* Returns the result for an id. */
static number expected(const world *w, int64_t id, int op, int32_t type, int round, int vector,
                       int k)
{
    const int by = op == DPAR_AVG ? DPAR_SUM : op;
    number all = {0.0, 0}, last = {0.0, 0};
    int64_t i, n = 0, sharers = 0;
    int r;
    for (r = 0; r < w->ranks; r++) {
        number mine = {0.0, 0};
        int64_t here = 0;
        for (i = 0; i < w->count[r]; i++) {
            if (w->id[r][i] == id) {
                const number x = content(type, round, r, i, vector, k);
                mine = here++ == 0 ? x : combined(type, by, mine, x);
            }
        }
        if (here > 0) {
            last = mine; /* not rounded: the mean of ids that only one rank has is rounded once */
            mine = stored(type, mine);
            all = sharers++ == 0 ? mine : combined(type, by, all, mine);
            n += here;
        }
    }
    all = sharers == 1 ? last : all;
    return stored(type, op == DPAR_AVG && n > 1 ? divided(type, all, n) : all);
}

/* ---- vectors --------------------------------------------------------------------------------- */

typedef struct array {
    dpar_points_field field;
    int64_t bytes;
    void *memory; /* of dpar_comm_alloc, or NULL */
    unsigned char *expected;
} array;

static unsigned char *number_at(const array *x, unsigned char *base, int64_t i, int k)
{
    const dpar_points_field *f = &x->field;
    const int64_t n = f->components ? f->components : 1;
    const int64_t stride = f->stride ? f->stride : f->component_stride ? 1 : n;
    const int64_t apart = f->component_stride ? f->component_stride : 1;
    return base + dpar_type_bytes(f->type) * (i * stride + k * apart);
}

/* Makes a vector, fills it, and computes what it will be. */
static void make(dpar_comm *c, const world *w, array *x, int32_t type, int op, int round, int j,
                 uint64_t *seed)
{
    const int64_t n = w->count[c->rank];
    const uint64_t mine = lot_next(seed) + (uint64_t)c->rank * 7;
    dpar_points_field *f = &x->field;
    int64_t i;
    int k;
    memset(x, 0, sizeof *x);
    f->type = type;
    f->components = (int32_t)lot_below(seed, COMPONENTS + 1);
    if (mine % 3 == 1) { /* each rank differently */
        f->stride = (f->components ? f->components : 1) + 1;
    } else if (mine % 3 == 2) {
        f->component_stride = n + 1;
    }
    x->bytes = (n + 1) * (COMPONENTS + 1) * 8;
    if (mine / 4 % 2) {
        CHECK_INT(dpar_comm_alloc(c, x->bytes, &x->memory), DPAR_OK);
    }
    f->data = x->memory ? x->memory : zeroed(x->bytes);
    x->expected = (unsigned char *)zeroed(x->bytes);
    for (i = 0; i < n; i++) {
        for (k = 0; k < (f->components ? f->components : 1); k++) {
            const int64_t id = w->id[c->rank][i];
            const number was = content(type, round, c->rank, i, j, k);
            put(type, number_at(x, (unsigned char *)f->data, i, k), was);
            put(type, number_at(x, x->expected, i, k),
                id < 0 ? was : expected(w, id, op, type, round, j, k));
        }
    }
}

static void drop(dpar_comm *c, array *x)
{
    CHECK(memcmp(x->field.data, x->expected, (size_t)x->bytes) == 0);
    if (x->memory) {
        dpar_comm_release(c, x->memory);
    } else {
        free(x->field.data);
    }
    free(x->expected);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static dpar_status plan(dpar_comm *c, const int64_t *id, int64_t n, dpar_points **p, dpar_why *why)
{
    dpar_points_desc d;
    memset(&d, 0, sizeof d);
    d.own_count = n;
    d.own_id = id;
    d.shared = 1;
    return dpar_points_make(c, &d, p, why);
}

/* Combines vectors by all operations, of half of the types each time. */
static void combine(dpar_comm *c, const world *w, dpar_points *p, uint64_t *seed)
{
    int op, t, j, n, round = 0;
    for (op = 0; op < DPAR_OP_COUNT; op++) {
        for (t = (int)lot_below(seed, 2); t < TYPES; t += 2, round++) {
            array x[VECTORS];
            dpar_points_field f[VECTORS];
            n = 1 + (int)lot_below(seed, VECTORS);
            for (j = 0; j < n; j++) {
                make(c, w, &x[j], types[(t + j) % TYPES], op, round, j, seed);
                f[j] = x[j].field;
            }
            CHECK_INT(dpar_points_combine_begin_many(p, f, n, op), DPAR_OK);
            while (round % 3 == 0 && dpar_points_test(p) == DPAR_MORE) {
            }
            CHECK_INT(dpar_points_end(p), DPAR_OK);
            for (j = 0; j < n; j++) {
                drop(c, &x[j]);
            }
        }
    }
}

/* The call for one vector of doubles, many times, so that turns are used again. */
static void repeat(dpar_comm *c, const world *w, dpar_points *p, uint64_t *seed)
{
    int round;
    for (round = 0; round < 12; round++) {
        array x;
        make(c, w, &x, DPAR_F64, DPAR_SUM, round, 0, seed);
        if (x.field.stride || x.field.component_stride || x.field.components > 1) {
            CHECK_INT(dpar_points_combine_many(p, &x.field, 1, DPAR_SUM), DPAR_OK);
        } else { /* other ranks may have planes of one component, which is the same */
            if (round % 2 == 0) {
                CHECK_INT(dpar_points_combine(p, (double *)x.field.data), DPAR_OK);
            } else {
                CHECK_INT(dpar_points_combine_begin(p, (double *)x.field.data), DPAR_OK);
                CHECK_INT(dpar_points_end(p), DPAR_OK);
            }
        }
        drop(c, &x);
    }
}

static void worlds(dpar_comm *c)
{
    uint64_t seed = 1 + (uint64_t)c->size;
    int round; /* and kind of ids */
    for (round = 0; round < 7; round++) {
        world w;
        dpar_points *p = NULL;
        dpar_why why;
        int64_t all = 0;
        int r;
        build(&w, c->size, round, &seed);
        CHECK_INT(plan(c, w.id[c->rank], w.count[c->rank], &p, &why), DPAR_OK);
        if (p == NULL) {
            printf("%s\n", why.text);
            return;
        }
        for (r = 0; r < w.ranks; r++) {
            all += w.count[r];
        }
        CHECK_INT(p->global_count, all);
        CHECK_INT(p->own_count, w.count[c->rank]);
        if (round < 6) { /* the loops of round 6 are for doubles */
            combine(c, &w, p, &seed);
        }
        repeat(c, &w, p, &seed);
        CHECK_INT(dpar_points_free(p), DPAR_OK);
    }
}

/* What is wrong on one rank is refused on all. */
static void refused_plans(dpar_comm *c)
{
    const int last = c->rank == c->size - 1;
    const int64_t good[3] = {0, 5, -1}, bad[3] = {0, INT64_MIN, 1};
    dpar_points_desc d;
    dpar_points *p = NULL;
    dpar_why why;
    REFUSED(plan(c, last ? bad : good, 3, &p, &why), DPAR_E_ARG, "own_id[1] is NULL or not an id");
    REFUSED(plan(c, last ? NULL : good, 3, &p, &why), DPAR_E_ARG, "own_id[0] is NULL or not an id");
    REFUSED(plan(c, good, last ? -1 : 3, &p, &why), DPAR_E_ARG, "own_count -1");
    REFUSED(plan(c, good, last ? INT64_C(1) << 31 : 3, &p, &why), DPAR_E_RANGE, "2147483648");
    memset(&d, 0, sizeof d);
    d.own_count = 3;
    d.own_id = good;
    d.shared = last ? 2 : 1;
    REFUSED(dpar_points_make(c, &d, &p, &why), DPAR_E_ARG, "shared is 2 (1)");
    d.shared = 1;
    d.ghost_count = last;
    d.ghost_id = good;
    REFUSED(dpar_points_make(c, &d, &p, &why), DPAR_E_ARG, "ghost_count is 1 (0)");
    d.ghost_count = 0;
    d.shared = last;
    if (c->size > 1) {
        REFUSED(dpar_points_make(c, &d, &p, &why), DPAR_E_MISMATCH, "shared is 0 on rank");
    }
    CHECK(p == NULL);
}

/* A plan of one kind refuses the calls of the other one, and wrong arguments. */
static void refused_calls(dpar_comm *c)
{
    const int64_t id[2] = {4, 4};
    dpar_points *shared = NULL, *owned = NULL;
    dpar_points_field f;
    dpar_points_desc d;
    double x[2] = {1.0, 2.0};
    int32_t index[2];
    dpar_why why;
    memset(&d, 0, sizeof d);
    d.own_count = 2;
    CHECK_INT(dpar_points_make(c, &d, &owned, &why), DPAR_OK);
    CHECK_INT(plan(c, id, 2, &shared, &why), DPAR_OK);
    memset(&f, 0, sizeof f);
    f.type = DPAR_F64;
    f.data = x;
    CHECK_INT(dpar_points_combine(owned, x), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "dpar_points_combine") != NULL);
    CHECK_INT(dpar_points_exchange(shared, x), DPAR_E_ARG);
    CHECK_INT(dpar_points_reduce(shared, x), DPAR_E_ARG);
    CHECK_INT(dpar_points_to_local(shared, id, 2, index), DPAR_E_ARG);
    CHECK_INT(dpar_points_combine_many(shared, &f, 1, -1), DPAR_E_ARG);
    CHECK_INT(dpar_points_combine_many(shared, &f, 1, DPAR_OP_COUNT), DPAR_E_ARG);
    CHECK_INT(dpar_points_combine_many(shared, &f, 0, DPAR_SUM), DPAR_E_ARG);
    CHECK_INT(dpar_points_combine_many(shared, NULL, 1, DPAR_SUM), DPAR_E_ARG);
    CHECK_INT(dpar_points_combine_many(NULL, &f, 1, DPAR_SUM), DPAR_E_ARG);
    f.type = DPAR_F8;
    CHECK_INT(dpar_points_combine_many(shared, &f, 1, DPAR_SUM), DPAR_E_ARG);
    CHECK(x[0] == 1.0 && x[1] == 2.0);
    if (c->rank == c->size - 1) { /* the others are in the next call meanwhile, and wait */
        CHECK_INT(dpar_points_combine(shared, NULL), DPAR_E_ARG);
    }
    CHECK_INT(dpar_points_combine(shared, x), DPAR_OK);
    CHECK(x[0] == 3.0 * c->size && x[1] == x[0]);
    CHECK_INT(dpar_points_free(shared), DPAR_OK);
    CHECK_INT(dpar_points_free(owned), DPAR_OK);
}

static int each(dpar_comm *c, void *unused)
{
    (void)unused;
    worlds(c);
    refused_plans(c);
    refused_calls(c);
    return failures() > 0;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 8, 4, NULL);
}
