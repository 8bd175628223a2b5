/* SPDX-License-Identifier: MIT-0 */
/* Tests each collective x type x op x size x in place or not x private, registered and mixed
 * memory, blocking and posted, on 1 to 8 ranks, against the serial reference of run_oracle.h. The
 * short run has each small size for each (kind, type, op), with the other choices in turn; sizes
 * from 64 KiB on have only some of the types. The long run has all sizes up to 64 MiB.
 *   cc -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/comm/ranks/collectives.c -o collectives
 *   ./collectives
 *   mpicc -DUSE_MPI ... && mpirun -n 4 ./collectives */
#include "run_oracle.h"

static const int types[12] = {DPAR_F32, DPAR_F64, DPAR_BF16, DPAR_F16, DPAR_I8,   DPAR_U8,
                              DPAR_I32, DPAR_U32, DPAR_I64,  DPAR_U64, DPAR_TF32, DPAR_F8};
static const int ops[5] = {DPAR_SUM, DPAR_AVG, DPAR_PRODUCT, DPAR_MAX, DPAR_MIN};
static const int kinds[8] = {DPAR_CALL_ALL_REDUCE, DPAR_CALL_ALL_GATHER, DPAR_CALL_REDUCE_SCATTER,
                             DPAR_CALL_ALL_TO_ALL, DPAR_CALL_BROADCAST,  DPAR_CALL_REDUCE,
                             DPAR_CALL_GATHER,     DPAR_CALL_SCATTER};

/* Bytes of one piece, and elements to add: sizes near the flag line, a page, the slot, its halves,
 * and the smallest one for CMA. */
typedef struct size_case {
    int64_t bytes;
    int extra;
} size_case;
static const size_case sizes[] = {
    {0, 0},           {0, 1},          {0, 3},       {0, 7},      {56, 0},      {64, 1},
    {200, 0},         {1024, 1},       {4096, 0},    {4096, 1},   {8192, -1},   {20000, 0},
    {65536, -1},      {65536, 0},      {131072, 1},  {262144, 0}, {262144, 1},  {1000000, 0},
    {1048576, 3},     {4194304, 1},    {5000000, 0}, {1 << 24, 0}, {(1 << 24) + 4096, 1},
    {64 << 20, 0},
};
enum { SIZES = (int)(sizeof sizes / sizeof sizes[0]) };

/* Returns 1 if this run includes the case, depending on the bytes of the largest buffer of a
 * rank. */
static int worth_it(const oracle *o, uint64_t h, int64_t bytes)
{
    uint64_t one_in = bytes < 60000 ? 1 : bytes < 600000 ? 16 : bytes < 3000000 ? 64 : 400;
    if (o->effort == 1) {
        one_in = bytes < 3000000 ? 1 : bytes < (20 << 20) ? 8 : 48;
    }
#if !defined(USE_MPI)
    one_in *= o->effort == 0 && one_in == 1 && o->world->size > 4 ? 2 : 1;
#endif
    return h % one_in == 0;
}

static int pieces_held(int kind, int n)
{
    return kind == DPAR_CALL_ALL_REDUCE || kind == DPAR_CALL_REDUCE || kind == DPAR_CALL_BROADCAST
               ? 1
               : n;
}

/* Tests all sizes for one kind, type and op. Returns 1 if the communicator is broken. */
static int one_kind(oracle *o, oracle_slot *slot, int64_t most, int kind, int varies, int type,
                    int op)
{
    oracle_case k;
    int i, unit = dpar_type_bytes(type), n = o->world->size;
    for (i = 0; i < SIZES; i++) {
        uint64_t h = oracle_mix(o->seed * 1000003u +
                                (uint64_t)((((kind * 2 + varies) * 16 + type) * 8 + op) * 64 + i));
        int64_t bytes;
        memset(&k, 0, sizeof k);
        k.kind = kind, k.varies = varies, k.type = type, k.op = op;
        k.count = sizes[i].bytes / unit + sizes[i].extra;
        bytes = k.count * unit * pieces_held(kind, n);
        if (bytes + 64 * unit > most || !worth_it(o, h >> 20, bytes)) {
            continue;
        }
        k.root = (int)(h % (uint64_t)n);
        k.memory = (int)((h >> 8) % 3);
        k.how = (int)((h >> 12) % ORACLE_HOWS);
        k.in_place = (int)((h >> 16) & 1);
        k.seed = oracle_mix(h) >> 8;
        if (oracle_run(o, o->world, &k, slot)) {
            return 1;
        }
    }
    return 0;
}

static int one_form(oracle *o, oracle_slot *slot, int64_t most, int kind, int varies)
{
    int t, p, stop = 0, reduces = oracle_reduces(kind), wrong = o->failed;
    double begin = oracle_now();
    long cases = o->cases;
    for (t = 0; t < (reduces ? 10 : 12) && !stop; t++) {
        for (p = 0; p < (reduces ? 5 : 1) && !stop; p++) {
            stop = one_kind(o, slot, most, kind, varies, types[t], ops[p]);
        }
    }
    if (o->world->rank == 0 && o->effort == 1) {
        printf("  %s%s: %ld operations, %d wrong on rank 0, %.2f s\n", dpar_call_name(kind),
               varies ? "-v" : "", o->cases - cases, o->failed - wrong, oracle_now() - begin);
        fflush(stdout);
    }
    return stop;
}

static void sweep(oracle *o)
{
    int64_t most = o->effort == 1 ? (o->world->size > 4 ? 40 << 20 : 65 << 20)
                                  : (o->world->size == 2 ? 17 << 20 : 3 << 20);
    oracle_slot slot;
    oracle_case barrier;
    int i, stop;
    stop = oracle_slot_make(o, &slot, most) != DPAR_OK;
    memset(&barrier, 0, sizeof barrier);
    for (i = 0; i < 8 && !stop; i++) {
        stop = one_form(o, &slot, most, kinds[i], 0);
        if (!stop && kinds[i] != DPAR_CALL_ALL_REDUCE && kinds[i] != DPAR_CALL_BROADCAST &&
            kinds[i] != DPAR_CALL_REDUCE) {
            stop = one_form(o, &slot, most, kinds[i], 1);
        }
        barrier.kind = DPAR_CALL_BARRIER, barrier.type = DPAR_U8, barrier.how = i & 3;
        stop = stop || oracle_run(o, o->world, &barrier, &slot);
    }
    oracle_slot_free(o, &slot);
}

/* Tests 2^31 + 5 elements, in the long run on two ranks: counts exceed 32 bits. */
static void huge(oracle *o)
{
    oracle_slot slot;
    oracle_case k;
    memset(&k, 0, sizeof k);
    k.type = DPAR_U8, k.op = DPAR_SUM, k.count = (INT64_C(1) << 31) + 5, k.in_place = 1;
    k.memory = ORACLE_REGISTERED;
    if (oracle_slot_make(o, &slot, k.count) == DPAR_OK) {
        k.kind = DPAR_CALL_ALL_REDUCE, k.seed = 11;
        if (oracle_run(o, o->world, &k, &slot) == 0) {
            k.kind = DPAR_CALL_BROADCAST, k.memory = ORACLE_PRIVATE, k.seed = 12;
            (void)oracle_run(o, o->world, &k, &slot);
        }
    }
    oracle_slot_free(o, &slot);
}

/* Runs n ranks in several configurations: the defaults; small slots without direct access, so that
 * chunking begins at 4 KiB; without each optional feature; and by levels, as many ranks on many
 * cores do. */
static void configurations(oracle_total *t, const oracle_args *a, int n)
{
    static const int plain[] = {0,
                                DPAR_WORLD_NO_DIRECT | DPAR_WORLD_NO_CMA,
                                DPAR_WORLD_NO_STREAMING_STORES | DPAR_WORLD_NO_MEMFD |
                                    DPAR_WORLD_NO_CMA,
                                DPAR_WORLD_NO_FUTEX,
                                DPAR_WORLD_NO_FLAT,
                                DPAR_WORLD_NO_FLAT | DPAR_WORLD_NO_DIRECT};
    static const char *const names[] = {"defaults", "4 KiB slots, no direct", "no CMA, no memfd",
                                        "no futex, delays", "by levels", "by levels, delays"};
    oracle base;
    dpar_world_desc options;
    int i;
    for (i = 0; i < 6; i++) {
        if (a->effort == 0 && i > 0 && i != 1 + n % 3 && i != 4 + n % 2) {
            continue; /* the short run has the defaults and one other */
        }
        oracle_base(&base, a, &options);
        base.seed = a->seed * 16 + (uint64_t)i;
        base.delays = i == 3 || i == 5;
        options.disable = plain[i];
        options.slot_bytes = i == 1 ? 4096 : 0;
        oracle_launch(t, names[i], n, sweep, &base, &options);
    }
}

int main(int argc, char **argv)
{
    oracle_args a;
    oracle_total t = {0, 0, 0};
    int n;
    if (!oracle_read_args(&a, argc, argv)) {
        return 2;
    }
#if defined(USE_MPI)
    {
        oracle base;
        dpar_world_desc options;
        MPI_Init(&argc, &argv);
        oracle_base(&base, &a, &options);
        oracle_launch(&t, "collectives", 0, sweep, &base, &options);
        MPI_Finalize();
        (void)configurations, (void)huge, (void)n;
        return t.failed != 0 || t.cases == 0;
    }
#else
    for (n = a.from; n <= a.to; n++) {
        configurations(&t, &a, n);
    }
    if (a.effort == 1 && a.from <= 2 && a.to >= 2) {
        oracle base;
        dpar_world_desc options;
        oracle_base(&base, &a, &options);
        oracle_launch(&t, "2^31 elements", 2, huge, &base, &options);
    }
    return oracle_end(&t);
#endif
}
