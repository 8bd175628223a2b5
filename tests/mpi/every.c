/* SPDX-License-Identifier: MIT-0 */
/* Tests each kind of operation over MPI with values that are small whole numbers and therefore
 * exact in each type: rank r has (r * 3 + i) % 5 + 1 at element i. Calls are blocking, posted, or
 * mixed between the ranks; in place on all ranks, on none, or on each second one. Words on the
 * command line set options: order, check, block (without a timeout); private: the arrays are not
 * registered; turned, ragged: on a part of the communicator; two: messages of 300 to 600 bytes are
 * sent in two parts. With -DDPAR_MPI_LIMIT=7 each count above 7 uses the code for counts above 2^31
 * - 1. */
#include "dpar_mpi.h"
#include "check.h"
#include "bf16.h"
#include "f16.h"
#include <stdlib.h>

enum { MOST = 6000, MIXED = 2 };
static dpar_comm *c;
static int32_t mode; /* 0: blocking, 1: posted, 2: odd ranks post */

static int64_t value(int64_t rank, int64_t i)
{
    return (rank * 3 + i) % 5 + 1;
}

static void put(void *p, int32_t type, int64_t i, int64_t v)
{
    switch (type) {
    case DPAR_F64: ((double *)p)[i] = (double)v; break;
    case DPAR_F32: ((float *)p)[i] = (float)v; break;
    case DPAR_F16: ((uint16_t *)p)[i] = f16_of((float)v); break;
    case DPAR_BF16: ((uint16_t *)p)[i] = bf16_of((float)v); break;
    case DPAR_I8:
    case DPAR_U8: ((uint8_t *)p)[i] = (uint8_t)v; break;
    case DPAR_I32:
    case DPAR_U32: ((uint32_t *)p)[i] = (uint32_t)v; break;
    default: ((uint64_t *)p)[i] = (uint64_t)v; break;
    }
}

static double get(const void *p, int32_t type, int64_t i)
{
    switch (type) {
    case DPAR_F64: return ((const double *)p)[i];
    case DPAR_F32: return ((const float *)p)[i];
    case DPAR_F16: return f16_value(((const uint16_t *)p)[i]);
    case DPAR_BF16: return bf16_value(((const uint16_t *)p)[i]);
    case DPAR_I8: return ((const int8_t *)p)[i];
    case DPAR_U8: return ((const uint8_t *)p)[i];
    case DPAR_I32: return ((const int32_t *)p)[i];
    case DPAR_U32: return ((const uint32_t *)p)[i];
    case DPAR_I64: return (double)((const int64_t *)p)[i];
    default: return (double)((const uint64_t *)p)[i];
    }
}

static int is_float(int32_t type)
{
    return type == DPAR_F64 || type == DPAR_F32 || type == DPAR_F16 || type == DPAR_BF16;
}

/* Returns the reduced value of element i. 8-bit integers wrap; the largest product is 5^8. */
static double reduced(int32_t type, int32_t op, int64_t i)
{
    int64_t acc = value(0, i);
    double x;
    for (int32_t r = 1; r < c->size; r++) {
        int64_t v = value(r, i);
        acc = op == DPAR_PRODUCT ? acc * v
              : op == DPAR_MAX   ? (v > acc ? v : acc)
              : op == DPAR_MIN   ? (v < acc ? v : acc)
                                 : acc + v;
    }
    if (type == DPAR_I8) {
        acc = (int8_t)(uint8_t)acc;
    } else if (type == DPAR_U8) {
        acc = (uint8_t)acc;
    }
    if (op != DPAR_AVG) {
        x = (double)acc;
    } else if (!is_float(type)) {
        x = (double)(acc / c->size);
    } else {
        x = type == DPAR_F64 ? (double)acc / c->size : (double)((float)acc / (float)c->size);
    }
    /* Rounds once: inputs and partial results are exact in f32. */
    return type == DPAR_BF16  ? bf16_value(bf16_of((float)x))
           : type == DPAR_F16 ? f16_value(f16_of((float)x))
                              : x;
}

/* Makes the call in the current mode. Returns its final status. */
static dpar_status go(const dpar_call *call)
{
    dpar_work work;
    dpar_status s;
    memset(&work, 0, sizeof work);
    if (mode == 0 || (mode == MIXED && c->rank % 2 == 0)) {
        return dpari_post(c, call, NULL);
    }
    s = dpari_post(c, call, &work);
    for (int k = 0; k < 20 && s == DPAR_OK && work.comm != NULL; k++) {
        s = dpar_test(&work);
        s = s == DPAR_MORE ? (dpar_status)DPAR_OK : s;
    }
    return s == DPAR_OK ? dpar_wait(&work) : s;
}

static void same(const void *p, int32_t type, int64_t from, int64_t n, int64_t rank, int64_t first,
                 const char *what)
{
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        bad += get(p, type, from + i) != (double)value(rank, first + i);
    }
    if (bad > 0) {
        printf("%s: rank %d of %d, mode %d, %s, %lld elements\n", what, c->rank, c->size, mode,
               dpar_type_name(type), (long long)n);
    }
    CHECK_INT(bad, 0);
}

static void same_reduced(const void *p, int32_t type, int32_t op, int64_t n, int64_t first,
                         const char *what)
{
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = reduced(type, op, first + i), g = get(p, type, i);
        if (g != e) {
            bad++;
            if (bad == 1) {
                printf(
                    "%s: rank %d of %d, mode %d, %s, op %d, element %lld of %lld: %.9g, not %.9g\n",
                    what, c->rank, c->size, mode, dpar_type_name(type), op, (long long)i,
                    (long long)n, g, e);
            }
        }
    }
    CHECK_INT(bad, 0);
}

static void fill(void *p, int32_t type, int64_t at, int64_t n, int64_t rank, int64_t first)
{
    for (int64_t i = 0; i < n; i++) {
        put(p, type, at + i, value(rank, first + i));
    }
}

static dpar_call make(int32_t kind, const void *in, void *out, int64_t count, int32_t type)
{
    dpar_call call;
    memset(&call, 0, sizeof call);
    call.kind = kind;
    call.in = in;
    call.out = out;
    call.count = count;
    call.type = type;
    return call;
}

static char *a, *b; /* 2 * 8 ranks * MOST elements of 8 bytes each */

static void reductions(int64_t n, int32_t type, int32_t op, int in_place, int32_t root)
{
    dpar_call call;
    int64_t own = n * c->rank;
    void *out = in_place ? a : b, *piece;
    memset(b, 0x55, (size_t)(n * c->size * 8));
    fill(a, type, 0, n, c->rank, 0);
    call = make(DPAR_CALL_ALL_REDUCE, a, out, n, type);
    call.op = op;
    CHECK_INT(go(&call), DPAR_OK);
    same_reduced(out, type, op, n, 0, "all_reduce");

    fill(a, type, 0, n, c->rank, 0);
    call = make(DPAR_CALL_REDUCE, a, c->rank == root ? out : NULL, n, type);
    call.op = op;
    call.root = root;
    CHECK_INT(go(&call), DPAR_OK);
    if (c->rank == root) {
        same_reduced(out, type, op, n, 0, "reduce");
    } else {
        same(a, type, 0, n, c->rank, 0, "reduce leaves the input");
    }

    fill(a, type, 0, n * c->size, c->rank, 0);
    piece = in_place ? a + own * dpar_type_bytes(type) : b;
    call = make(DPAR_CALL_REDUCE_SCATTER, a, piece, n, type);
    call.op = op;
    CHECK_INT(go(&call), DPAR_OK);
    same_reduced(piece, type, op, n, own, "reduce_scatter");
}

static void moves(int64_t n, int32_t type, int in_place, int32_t root)
{
    dpar_call call;
    int64_t own = n * c->rank, bytes = dpar_type_bytes(type);
    int32_t r;
    void *mine;

    memset(a, 0, (size_t)(n * bytes));
    if (c->rank == root) {
        fill(a, type, 0, n, root, 0);
    }
    call = make(DPAR_CALL_BROADCAST, a, a, n, type);
    call.root = root;
    CHECK_INT(go(&call), DPAR_OK);
    same(a, type, 0, n, root, 0, "broadcast");

    memset(b, 0, (size_t)(n * c->size * bytes));
    mine = in_place ? b + own * bytes : a;
    fill(mine, type, 0, n, c->rank, 0);
    call = make(DPAR_CALL_ALL_GATHER, mine, b, n, type);
    CHECK_INT(go(&call), DPAR_OK);
    for (r = 0; r < c->size; r++) {
        same(b, type, r * n, n, r, 0, "all_gather");
    }

    memset(b, 0, (size_t)(n * c->size * bytes));
    mine = in_place && c->rank == root ? b + own * bytes : a;
    fill(mine, type, 0, n, c->rank, 0);
    call = make(DPAR_CALL_GATHER, mine, c->rank == root ? b : NULL, n, type);
    call.root = root;
    CHECK_INT(go(&call), DPAR_OK);
    for (r = 0; r < c->size && c->rank == root; r++) {
        same(b, type, r * n, n, r, 0, "gather");
    }

    fill(a, type, 0, n * c->size, root, 0);
    mine = in_place && c->rank == root ? a + own * bytes : b;
    call = make(DPAR_CALL_SCATTER, c->rank == root ? a : NULL, mine, n, type);
    call.root = root;
    CHECK_INT(go(&call), DPAR_OK);
    same(mine, type, 0, n, root, own, "scatter");

    fill(a, type, 0, n * c->size, c->rank, 0);
    mine = in_place ? a : b;
    call = make(DPAR_CALL_ALL_TO_ALL, a, mine, n, type);
    CHECK_INT(go(&call), DPAR_OK);
    for (r = 0; r < c->size; r++) {
        same(mine, type, r * n, n, r, own, "all_to_all");
    }

    call = make(DPAR_CALL_BARRIER, NULL, NULL, 0, DPAR_U8);
    CHECK_INT(go(&call), DPAR_OK);
}

/* Tests pieces of different sizes: that of rank r is (r * 7) % 5 * k. With begins they are in
 * reverse order. */
static void varying(int64_t k, int32_t type, int32_t op, int reverse, int32_t root)
{
    int64_t count[8], begin[8], to[8], from[8], sum = 0, at = 0, own = 0;
    int32_t r, n = c->size, me = c->rank;
    dpar_call call;
    for (r = 0; r < n; r++) {
        count[r] = (r * 7) % 5 * k;
        sum += count[r];
    }
    for (r = n - 1; r >= 0; r--) { /* begins: the last rank first, with a gap of one element */
        begin[r] = at;
        at += count[r] + 1;
    }
    for (r = 0; !reverse && r < n; r++) {
        begin[r] = r > 0 ? begin[r - 1] + count[r - 1] : 0;
    }
    for (r = 0; r < me; r++) {
        own += count[r];
    }
    memset(b, 0, (size_t)((sum + n) * 8));
    fill(a, type, 0, count[me], me, 0);
    call = make(DPAR_CALL_ALL_GATHER, a, b, count[me], type);
    call.variable_counts = 1;
    call.out_count = count;
    call.out_first = reverse ? begin : NULL;
    CHECK_INT(go(&call), DPAR_OK);
    for (r = 0; r < n; r++) {
        same(b, type, begin[r], count[r], r, 0, "all_gather_v");
    }

    memset(b, 0, (size_t)((sum + n) * 8));
    call.kind = DPAR_CALL_GATHER;
    call.root = root;
    CHECK_INT(go(&call), DPAR_OK);
    for (r = 0; r < n && me == root; r++) {
        same(b, type, begin[r], count[r], r, 0, "gather_v");
    }

    for (r = 0; r < n; r++) {
        fill(a, type, begin[r], count[r], root, r);
    }
    call = make(DPAR_CALL_SCATTER, a, b, count[me], type);
    call.variable_counts = 1;
    call.root = root;
    call.in_count = count;
    call.in_first = reverse ? begin : NULL;
    CHECK_INT(go(&call), DPAR_OK);
    same(b, type, 0, count[me], root, me, "scatter_v");

    fill(a, type, 0, sum, me, 0);
    call = make(DPAR_CALL_REDUCE_SCATTER, a, reverse ? a + own * dpar_type_bytes(type) : b,
                count[me], type);
    call.variable_counts = 1;
    call.op = op;
    call.in_count = count;
    CHECK_INT(go(&call), DPAR_OK);
    same_reduced(call.out, type, op, count[me], own, "reduce_scatter_v");

    /* all_to_all_v: rank s sends (s + 2 r) % 3 * k to rank r. */
    for (r = 0, at = 0; r < n; r++) {
        to[r] = (me + 2 * r) % 3 * k;
        from[r] = (r + 2 * me) % 3 * k;
        fill(a, type, at, to[r], me, r);
        at += to[r];
    }
    call = make(DPAR_CALL_ALL_TO_ALL, a, b, 0, type);
    call.variable_counts = 1;
    call.in_count = to;
    call.out_count = from;
    CHECK_INT(go(&call), DPAR_OK);
    for (r = 0, at = 0; r < n; r++) {
        same(b, type, at, from[r], r, me, "all_to_all_v");
        at += from[r];
    }
    /* In place both directions have (s + r) % 3 * k. */
    for (r = 0, at = 0; r < n; r++) {
        to[r] = (me + r) % 3 * k;
        fill(a, type, at, to[r], me, r);
        at += to[r];
    }
    call = make(DPAR_CALL_ALL_TO_ALL, a, a, 0, type);
    call.variable_counts = 1;
    call.in_count = to;
    call.out_count = to;
    CHECK_INT(go(&call), DPAR_OK);
    for (r = 0, at = 0; r < n; r++) {
        same(a, type, at, to[r], r, me, "all_to_all_v in place");
        at += to[r];
    }
}

/* Sends around a ring in both directions, as a batch; to the rank itself; with two tags out of
 * order. */
static void messages(int64_t n, int32_t type)
{
    int32_t right = (c->rank + 1) % c->size, left = (c->rank + c->size - 1) % c->size;
    int64_t bytes = dpar_type_bytes(type);
    dpar_call call[4];
    dpar_work work[2];
    memset(b, 0, (size_t)(2 * n * bytes));
    fill(a, type, 0, n, c->rank, 0);
    call[0] = make(DPAR_CALL_SEND, a, NULL, n, type);
    call[1] = call[0];
    call[2] = make(DPAR_CALL_RECV, NULL, b, n, type);
    call[3] = make(DPAR_CALL_RECV, NULL, b + n * bytes, n, type);
    call[0].root = right, call[0].tag = 5;
    call[1].root = left, call[1].tag = 6;
    call[2].root = right, call[2].tag = 6;
    call[3].root = left, call[3].tag = 5;
    CHECK_INT(dpar_batch(c, call, 4, NULL), DPAR_OK);
    same(b, type, 0, n, right, 0, "from the right");
    same(b, type, n, n, left, 0, "from the left");

    memset(work, 0, sizeof work);
    memset(b, 0, (size_t)(2 * n * bytes));
    CHECK_INT(dpar_recv(c, b, n, type, c->rank, 9, &work[0]), DPAR_OK);
    CHECK_INT(dpar_recv(c, b + n * bytes, n, type, c->rank, 8, &work[1]), DPAR_OK);
    CHECK_INT(dpar_send(c, a, n, type, c->rank, 8, NULL), DPAR_OK);
    CHECK_INT(dpar_send(c, a, n, type, c->rank, 9, NULL), DPAR_OK);
    CHECK_INT(dpar_wait_all(work, 2), DPAR_OK);
    same(b, type, 0, 2 * n > n ? n : n, c->rank, 0, "from oneself, tag 9");
    same(b, type, n, n, c->rank, 0, "from oneself, tag 8");
}

/* Posts twelve operations, of one and of several steps, on a communicator and on a part of it, and
 * waits for them in reverse order. */
static void at_once(void)
{
    enum { N = 600 };
    static float x[12][N], y[12][N];
    static uint16_t h[12][N], g[12][N];
    dpar_work work[24];
    dpar_comm *all = c, *half = NULL;
    int32_t k;
    memset(work, 0, sizeof work);
    CHECK_INT(dpar_comm_split(all, all->rank % 2, -all->rank, &half), DPAR_OK);
    CHECK_INT(half->size, (all->size + 1 - all->rank % 2) / 2);
    CHECK_INT(half->rank, half->size - 1 - all->rank / 2); /* the key reverses the order */
    for (k = 0; k < 12; k++) {
        for (int32_t i = 0; i < N; i++) {
            x[k][i] = (float)(value(all->rank, i) + k);
            h[k][i] = bf16_of((float)(all->rank % 2 + k));
        }
        CHECK_INT(dpar_all_reduce(all, x[k], y[k], N, DPAR_F32, DPAR_SUM, &work[2 * k]), DPAR_OK);
        CHECK_INT(dpar_all_reduce(k % 2 ? half : all, h[k], g[k], N, DPAR_BF16, DPAR_MAX,
                                  &work[2 * k + 1]),
                  DPAR_OK);
    }
    for (k = 23; k >= 0; k--) {
        CHECK_INT(dpar_wait(&work[k]), DPAR_OK);
    }
    for (k = 0; k < 12; k++) {
        int64_t bad = 0;
        float top = (float)((k % 2 ? all->rank % 2 : all->size > 1) + k);
        for (int32_t i = 0; i < N; i++) {
            bad += (double)y[k][i] != reduced(DPAR_F32, DPAR_SUM, i) + (double)k * all->size;
            bad += g[k][i] != bf16_of(top);
        }
        CHECK_INT(bad, 0);
    }
    CHECK_INT(dpar_comm_free(half), DPAR_OK);
    half = c;
    CHECK_INT(dpar_comm_split(all, all->rank == 0 ? -1 : 3, 0, &half), DPAR_OK);
    CHECK(all->rank != 0 || half == NULL);
    CHECK(all->rank == 0 || (half->size == all->size - 1 && half->rank == all->rank - 1));
    CHECK_INT(dpar_comm_free(half), DPAR_OK);
}

/* Returns a communicator with ranks in another order, so that those of a node are not consecutive,
 * or without rank 1, so that nodes have different sizes if they have two ranks
 * (DPAR_MPI_NODE=2). */
static dpar_comm *part_of(dpar_comm *all, int turned, int ragged)
{
    dpar_comm *part = NULL;
    const int32_t key = turned ? all->rank % 2 * all->size - all->rank : 0;
    CHECK_INT(dpar_comm_split(all, ragged && all->rank == 1 ? -1 : 0, key, &part), DPAR_OK);
    return part;
}

static int in_place(int k)
{
    return k % 3 == 2 ? c->rank % 2 : k % 2;
}

int main(int argc, char **argv)
{
    static const int64_t sizes[] = {0, 1, 7, 8, 13, 1000};
    static const int32_t types[] = {DPAR_F64, DPAR_F32, DPAR_BF16, DPAR_F16, DPAR_I8,
                                    DPAR_U8,  DPAR_I32, DPAR_U32,  DPAR_I64, DPAR_U64};
    static const int32_t ops[] = {DPAR_SUM, DPAR_AVG, DPAR_PRODUCT, DPAR_MAX, DPAR_MIN};
    dpar_mpi_desc options;
    dpar_why why;
    dpar_comm *all;
    int failed, k, private_arrays = 0, turned = 0, ragged = 0, in_two = 0;
    memset(&options, 0, sizeof options);
    for (k = 1; k < argc; k++) {
        options.rank_order |= strcmp(argv[k], "order") == 0;
        options.check |= strcmp(argv[k], "check") == 0;
        options.blocking |= strcmp(argv[k], "block") == 0;
        private_arrays |= strcmp(argv[k], "private") == 0;
        turned |= strcmp(argv[k], "turned") == 0;
        ragged |= strcmp(argv[k], "ragged") == 0;
        in_two |= strcmp(argv[k], "two") == 0;
    }
    options.timeout_s = options.blocking ? -1 : 60;
    MPI_Init(&argc, &argv);
    if (dpar_mpi_make(MPI_COMM_WORLD, &options, &c, &why) < 0) {
        puts(why.text);
        return 1;
    }
    all = c;
    if (in_two && strcmp(c->engine.name, "mpi") == 0) {
        ((dpari_mpi_ctx *)c->context)->world->at_once = 300;
    }
    if (turned || ragged) {
        c = part_of(all, turned, ragged);
        if (c == NULL) {
            CHECK_INT(dpar_comm_free(all), DPAR_OK);
            MPI_Finalize();
            return CHECK_DONE();
        }
    }
    if (private_arrays) {
        a = (char *)malloc(MOST * 8 * 8 * 2);
        b = (char *)malloc(MOST * 8 * 8 * 2);
    } else {
        CHECK_INT(dpar_comm_alloc(c, MOST * 8 * 8 * 2, (void **)&a), DPAR_OK);
        CHECK_INT(dpar_comm_alloc(c, MOST * 8 * 8 * 2, (void **)&b), DPAR_OK);
        CHECK_INT((uintptr_t)a % 4096, 0);
        CHECK(a[0] == 0 && memcmp(a, a + 1, MOST * 8 * 8 * 2 - 1) == 0);
    }
    for (mode = 0; mode < (options.blocking ? 2 : 3); mode++) {
        for (k = 0; k < 6 * 10; k++) {
            int32_t type = types[k % 10], root = k % c->size;
            int64_t n = sizes[k / 10];
            for (int op = 0; op < 5; op++) {
                if (op != 2 || c->size < 6 || !is_float(type)) { /* 5^8 is not exact in f16 */
                    if (type == DPAR_F16 && op == 2 && c->size > 4) {
                        continue;
                    }
                    reductions(n, type, ops[op], in_place(k + op), root);
                }
            }
            moves(n, type, in_place(k), root);
            varying(n > 13 ? 101 : n, type, ops[k % 2], (k + mode) % 2, root);
            messages(n, type);
        }
        at_once();
#if !defined(DPAR_MPI_LIMIT) /* 96000 bytes, where MPI libraries use other methods */
        reductions(2 * MOST, DPAR_F64, DPAR_SUM, c->rank % 2, 0);
        reductions(2 * MOST - 5, DPAR_F32, DPAR_AVG, 0, 0);
        reductions(2 * MOST - 5, DPAR_I32, DPAR_AVG, 1, c->size - 1);
        reductions(2 * MOST - 5, DPAR_U64, DPAR_MAX, c->rank % 2, 0);
        moves(2 * MOST, DPAR_F64, c->rank % 2, 0);
#endif
    }
    if (private_arrays) {
        free(a);
        free(b);
    } else {
        dpar_comm_release(c, b);
    }
    if (c != all) {
        CHECK_INT(dpar_comm_free(c), DPAR_OK);
    }
    CHECK_INT(dpar_comm_free(all), DPAR_OK); /* also releases a */
    failed = CHECK_DONE();
    MPI_Finalize();
    return failed;
}
