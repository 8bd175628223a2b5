/* SPDX-License-Identifier: MIT-0 */
/* run_oracle: what the rank programs (tests/FOLDER/ranks) share: data that each rank can compute
 * for each other rank, a serial reference of each collective, and functions to start ranks. With
 * -DUSE_MPI the same programs run under mpirun (dpar_mpi.h).
 *
 * Element i of rank r's input is entry (i + shift) mod 4099 of a table of pseudo-random elements of
 * that rank and type. The reduced element is the same entry of a table that is folded here over the
 * ranks one by one, in rank order. 4099 is prime and `shift` differs between calls, so that data of
 * another rank, position, chunk or call is detected as wrong. */
#ifndef DPAR_RUN_ORACLE_H
#define DPAR_RUN_ORACLE_H

#include "dpar_comm.h"
#include "bf16.h"
#if defined(USE_MPI)
#include "dpar_mpi.h"
#endif

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { ORACLE_PERIOD = 4099, ORACLE_RANKS = 40, ORACLE_GUARD = 256, ORACLE_POISON = 0xA5 };

/* --- pseudo-random numbers (splitmix64) --- */

static inline uint64_t oracle_mix(uint64_t x)
{
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static inline uint64_t oracle_next(uint64_t *state)
{
    *state += UINT64_C(0x9E3779B97F4A7C15);
    return oracle_mix(*state);
}

static inline int64_t oracle_below(uint64_t *state, int64_t n)
{
    return (int64_t)(oracle_next(state) % (uint64_t)n);
}

static inline double oracle_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- 16-bit floats, by arithmetic (the library does it with bits) --- */

static inline float oracle_from_f16(uint16_t h)
{
    int e = (h >> 10) & 31, m = h & 1023;
    double v;
    if (e == 31) {
        v = m != 0 ? (double)NAN : (double)INFINITY;
    } else {
        v = e == 0 ? m / 16777216.0 : (1024 + m) / 33554432.0;
        for (; e > 0; e--) {
            v *= 2.0;
        }
    }
    return (float)((h & 0x8000) != 0 ? -v : v);
}

/* Rounds to nearest, ties to even: a / quantum is exact in double, and so is its remainder. */
static inline uint16_t oracle_to_f16(float x)
{
    uint32_t bits, sign;
    double a, quantum = 1.0 / 16777216.0, q, rest;
    int64_t whole;
    int e = -14;
    memcpy(&bits, &x, 4);
    sign = (bits >> 16) & 0x8000u;
    a = x < 0 ? -(double)x : (double)x;
    if (x != x) {
        return 0x7E00;
    }
    if (a >= 65520.0) {
        return (uint16_t)(sign | 0x7C00u);
    }
    while (a >= 2048.0 * quantum) {
        quantum *= 2.0;
        e++;
    }
    q = a / quantum;
    whole = (int64_t)q;
    rest = q - (double)whole;
    whole += rest > 0.5 || (rest == 0.5 && (whole & 1) != 0);
    return (uint16_t)(sign | (uint32_t)((e + 14) * 1024 + whole));
}

/* --- the tables --- */

typedef struct oracle_tables {
    unsigned char *value[DPAR_TYPE_COUNT][ORACLE_RANKS];
    unsigned char *result[DPAR_TYPE_COUNT][DPAR_OP_COUNT];
} oracle_tables;

static inline int oracle_is_float(int type)
{
    return type == DPAR_F64 || type == DPAR_F32 || type == DPAR_F16 || type == DPAR_BF16;
}

static inline void *oracle_memory(size_t bytes)
{
    void *p = malloc(bytes + 64);
    if (p == NULL) {
        printf("no memory for the oracle\n");
        _exit(3);
    }
    return p;
}

/* Returns a float for entry i. If the order of additions is not guaranteed, it is a small whole
 * number, whose sums and products are exact in each type; otherwise it has one of 24 exponents, and
 * sometimes it is a NaN, an infinity, a signed zero or a subnormal. */
static inline double oracle_float(uint64_t h, int whole)
{
    double v = 1.0 + (double)(h >> 40) / 16777216.0;
    int e = (int)(h % 24) - 12;
    if (whole) {
        static const double small[8] = {1, -1, 2, -2, 1, -1, 2, 1};
        return small[h & 7];
    }
    if (((h >> 8) & 127) == 0) {
        static const double special[8] = {0.0, -0.0, 1e-40, -1e-41, 3e38, 0.0, 6e-8, -3e-6};
        uint64_t k = (h >> 16) & 7;
        return ((h >> 20) & 7) != 0 ? special[k] : ((k & 1) != 0 ? (double)INFINITY : (double)NAN);
    }
    for (; e > 0; e--) {
        v *= 2.0;
    }
    for (; e < 0; e++) {
        v *= 0.5;
    }
    return ((h >> 32) & 1) != 0 ? -v : v;
}

static inline void oracle_put(unsigned char *at, int type, uint64_t h, int whole)
{
    double d = oracle_is_float(type) ? oracle_float(h, whole) : 0.0;
    float f = (float)d;
    uint16_t u;
    switch (type) {
    case DPAR_F64: memcpy(at, &d, 8); break;
    case DPAR_F32: memcpy(at, &f, 4); break;
    case DPAR_F16: u = oracle_to_f16(f), memcpy(at, &u, 2); break;
    case DPAR_BF16: u = bf16_of(f), memcpy(at, &u, 2); break;
    /* random bits, so that the byte order does not matter */
    default: memcpy(at, &h, (size_t)dpar_type_bytes(type));
    }
}

static inline double oracle_fold_f64(double a, double b, int op)
{
    if (op == DPAR_SUM || op == DPAR_AVG) {
        return a + b;
    }
    if (op == DPAR_PRODUCT) {
        return a * b;
    }
    if (a != a || b != b) {
        return (double)NAN;
    }
    return op == DPAR_MAX ? (b > a ? b : a) : (b < a ? b : a);
}

static inline float oracle_fold_f32(float a, float b, int op)
{
    volatile float r; /* rounds to f32 after each operation, whatever the compiler does */
    if (op == DPAR_SUM || op == DPAR_AVG) {
        r = a + b;
    } else if (op == DPAR_PRODUCT) {
        r = a * b;
    } else if (a != a || b != b) {
        r = NAN;
    } else {
        r = op == DPAR_MAX ? (b > a ? b : a) : (b < a ? b : a);
    }
    return r;
}

static inline float oracle_read_f32(const unsigned char *at, int type)
{
    float f;
    uint16_t u;
    if (type == DPAR_F32) {
        memcpy(&f, at, 4);
        return f;
    }
    memcpy(&u, at, 2);
    return type == DPAR_F16 ? oracle_from_f16(u) : bf16_value(u);
}

/* Returns the integer at `at`, sign or zero extended. */
static inline uint64_t oracle_read_int(const unsigned char *at, int type)
{
    int8_t i8;
    uint8_t u8;
    int32_t i32;
    uint32_t u32;
    uint64_t u64;
    switch (type) {
    case DPAR_I8: memcpy(&i8, at, 1); return (uint64_t)(int64_t)i8;
    case DPAR_U8: memcpy(&u8, at, 1); return u8;
    case DPAR_I32: memcpy(&i32, at, 4); return (uint64_t)(int64_t)i32;
    case DPAR_U32: memcpy(&u32, at, 4); return u32;
    default: memcpy(&u64, at, 8); return u64;
    }
}

/* Reduces modulo 2^bits of the type and extends again. */
static inline uint64_t oracle_wrap(uint64_t v, int type)
{
    switch (type) {
    case DPAR_I8: return (uint64_t)(int64_t)(int8_t)(uint8_t)v;
    case DPAR_U8: return (uint8_t)v;
    case DPAR_I32: return (uint64_t)(int64_t)(int32_t)(uint32_t)v;
    case DPAR_U32: return (uint32_t)v;
    default: return v;
    }
}

static inline void oracle_write_int(unsigned char *at, int type, uint64_t v)
{
    uint8_t u8 = (uint8_t)v;
    uint32_t u32 = (uint32_t)v;
    switch (dpar_type_bytes(type)) {
    case 1: memcpy(at, &u8, 1); break;
    case 4: memcpy(at, &u32, 4); break;
    default: memcpy(at, &v, 8);
    }
}

static inline int oracle_signed(int type)
{
    return type == DPAR_I8 || type == DPAR_I32 || type == DPAR_I64;
}

static inline void oracle_fold_int(unsigned char *out, unsigned char *const *in, int n,
                                   size_t at, int type, int op)
{
    uint64_t a = oracle_read_int(in[0] + at, type);
    int r;
    for (r = 1; r < n; r++) {
        uint64_t b = oracle_read_int(in[r] + at, type);
        int less = oracle_signed(type) ? (int64_t)b < (int64_t)a : b < a;
        if (op == DPAR_SUM || op == DPAR_AVG) {
            a = oracle_wrap(a + b, type);
        } else if (op == DPAR_PRODUCT) {
            a = oracle_wrap(a * b, type);
        } else if (op == DPAR_MIN) {
            a = less ? b : a;
        } else {
            a = less ? a : b;
        }
    }
    if (op == DPAR_AVG) {
        a = oracle_signed(type) ? (uint64_t)((int64_t)a / (int64_t)n) : a / (uint64_t)n;
    }
    oracle_write_int(out + at, type, a);
}

static inline void oracle_fold(unsigned char *out, unsigned char *const *in, int n, size_t at,
                               int type, int op)
{
    volatile float f;
    float back;
    double d;
    uint16_t u;
    int r;
    if (!oracle_is_float(type)) {
        oracle_fold_int(out, in, n, at, type, op);
        return;
    }
    if (type == DPAR_F64) {
        memcpy(&d, in[0] + at, 8);
        for (r = 1; r < n; r++) {
            double b;
            memcpy(&b, in[r] + at, 8);
            d = oracle_fold_f64(d, b, op);
        }
        d = op == DPAR_AVG ? d / (double)n : d;
        memcpy(out + at, &d, 8);
        return;
    }
    f = oracle_read_f32(in[0] + at, type);
    for (r = 1; r < n; r++) {
        f = oracle_fold_f32(f, oracle_read_f32(in[r] + at, type), op);
    }
    if (op == DPAR_AVG) {
        f = f / (float)n;
    }
    back = f;
    if (type == DPAR_F32) {
        memcpy(out + at, &back, 4);
    } else {
        u = type == DPAR_F16 ? oracle_to_f16(back) : bf16_of(back);
        memcpy(out + at, &u, 2);
    }
}

/* The state of a test on a rank. */
typedef struct oracle {
    dpar_comm *world;
    uint64_t seed;                           /* equal on all ranks */
    /* state of this rank's own random numbers, for delays */
    uint64_t own;
    /* 1: small whole numbers, because the engine guarantees no order */
    int whole;
    int threads;                             /* ranks are threads */
    int effort;                              /* 0 short, 1 long */
    int delays;                              /* 1: sleeps at random */
    long cases;                              /* operations checked */
    int failed;                              /* operations with a wrong result */
    oracle_tables *tables[ORACLE_RANKS + 1]; /* by the number of ranks */
} oracle;

static inline oracle_tables *oracle_tables_of(oracle *o, int n)
{
    if (o->tables[n] == NULL) {
        o->tables[n] = (oracle_tables *)oracle_memory(sizeof(oracle_tables));
        memset(o->tables[n], 0, sizeof(oracle_tables));
    }
    return o->tables[n];
}

static inline const unsigned char *oracle_values(oracle *o, int n, int type, int rank)
{
    oracle_tables *t = oracle_tables_of(o, n);
    size_t i, bytes = (size_t)dpar_type_bytes(type);
    if (t->value[type][rank] == NULL) {
        unsigned char *v = (unsigned char *)oracle_memory(ORACLE_PERIOD * bytes);
        for (i = 0; i < ORACLE_PERIOD; i++) {
            uint64_t h = oracle_mix((i * 64 + (uint64_t)rank) * 64 + (uint64_t)type);
            oracle_put(v + i * bytes, type, h, o->whole);
        }
        t->value[type][rank] = v;
    }
    return t->value[type][rank];
}

static inline const unsigned char *oracle_results(oracle *o, int n, int type, int op)
{
    oracle_tables *t = oracle_tables_of(o, n);
    size_t i, bytes = (size_t)dpar_type_bytes(type);
    int r;
    if (t->result[type][op] == NULL) {
        unsigned char *v = (unsigned char *)oracle_memory(ORACLE_PERIOD * bytes);
        for (r = 0; r < n; r++) {
            (void)oracle_values(o, n, type, r);
        }
        for (i = 0; i < ORACLE_PERIOD; i++) {
            oracle_fold(v, t->value[type], n, i * bytes, type, op);
        }
        t->result[type][op] = v;
    }
    return t->result[type][op];
}

static inline void oracle_free(oracle *o)
{
    int n, t, k;
    for (n = 0; n <= ORACLE_RANKS; n++) {
        for (t = 0; o->tables[n] != NULL && t < DPAR_TYPE_COUNT; t++) {
            for (k = 0; k < ORACLE_RANKS; k++) {
                free(o->tables[n]->value[t][k]);
            }
            for (k = 0; k < DPAR_OP_COUNT; k++) {
                free(o->tables[n]->result[t][k]);
            }
        }
        free(o->tables[n]);
        o->tables[n] = NULL;
    }
}

/* Copies `count` elements of a table from entry `start` on. */
static inline void oracle_fill(unsigned char *at, const unsigned char *table, size_t bytes,
                               uint64_t start, int64_t count)
{
    uint64_t i = start % ORACLE_PERIOD;
    while (count > 0) {
        int64_t run = (int64_t)(ORACLE_PERIOD - i);
        run = run < count ? run : count;
        memcpy(at, table + i * bytes, (size_t)run * bytes);
        at += (size_t)run * bytes;
        count -= run;
        i = 0;
    }
}

/* Sleeps up to half a millisecond in one of 32 calls, so that ranks arrive in any order. */
static inline void oracle_delay(oracle *o)
{
    if (o->delays && (oracle_next(&o->own) & 31) == 0) {
        usleep((useconds_t)oracle_below(&o->own, 500));
    }
}

/* --- one collective: its inputs and its expected results --- */

enum { ORACLE_PRIVATE, ORACLE_REGISTERED, ORACLE_MIXED };
enum { ORACLE_BLOCKING, ORACLE_WAIT, ORACLE_TEST, ORACLE_POST, ORACLE_HOWS };

typedef struct oracle_case {
    int kind, varies, type, op, root;
    int64_t count; /* in the v forms that of the longest piece */
    int in_place, memory, how;
    /* determines everything else: pieces of the v forms, shift, alignment, pointers */
    uint64_t seed;
} oracle_case;

/* Elements begin .. begin + count - 1 come from a table, from entry `start` on. */
typedef struct oracle_piece {
    int64_t begin, count;
    int rank; /* the rank whose values they are; -1 for the reduced ones */
    uint64_t start;
} oracle_piece;

typedef struct oracle_side {
    oracle_piece piece[ORACLE_RANKS];
    int pieces;
    int64_t length; /* number of all elements */
} oracle_side;

/* Memory for one collective in progress: for `in` and `out`, private and registered. */
typedef struct oracle_slot {
    unsigned char *memory[2][2]; /* [registered][in, out] */
    unsigned char *image;
    size_t room;
} oracle_slot;

typedef struct oracle_flight {
    oracle_case k;
    dpar_comm *comm;
    oracle_slot *slot;
    oracle_side in, out;
    int64_t in_at, out_at, length[2]; /* in elements; length: of the windows of in and out */
    unsigned char *window[2];         /* the first byte before the guard; NULL if not used */
    size_t skew[2];                   /* bytes from the guard to the first element */
    int64_t in_count[ORACLE_RANKS], in_begin[ORACLE_RANKS];
    int64_t out_count[ORACLE_RANKS], out_begin[ORACLE_RANKS];
    int packed; /* 1 if begins are passed as NULL */
    dpar_work work;
} oracle_flight;

static inline int oracle_reduces(int kind)
{
    return kind == DPAR_CALL_ALL_REDUCE || kind == DPAR_CALL_REDUCE ||
           kind == DPAR_CALL_REDUCE_SCATTER;
}

static inline int oracle_rooted(int kind)
{
    return kind == DPAR_CALL_BROADCAST || kind == DPAR_CALL_REDUCE || kind == DPAR_CALL_GATHER ||
           kind == DPAR_CALL_SCATTER;
}

static inline void oracle_describe(char *text, size_t room, const oracle_case *k)
{
    static const char *const memory[3] = {"private", "registered", "mixed"};
    static const char *const how[ORACLE_HOWS] = {"blocking", "posted", "tested", "dpari_post"};
    (void)snprintf(text, room, "%s%s %s %s count %lld root %d %s %s%s (seed %llu)",
                   dpar_call_name(k->kind), k->varies ? "-v" : "", dpar_type_name(k->type),
                   !oracle_reduces(k->kind) ? "-"
                   : k->op == DPAR_SUM      ? "sum"
                   : k->op == DPAR_AVG      ? "avg"
                   : k->op == DPAR_PRODUCT  ? "product"
                   : k->op == DPAR_MAX      ? "max"
                                            : "min",
                   (long long)k->count, k->root, memory[k->memory], how[k->how],
                   k->in_place ? " in place" : "", (unsigned long long)k->seed);
}

/* Returns 1 if this rank's out is inside its in or the reverse, otherwise 0. */
static inline int oracle_here_in_place(const oracle_case *k, int me)
{
    return k->kind == DPAR_CALL_BROADCAST ||
           (k->in_place && (!oracle_rooted(k->kind) || me == k->root));
}

/* Returns the elements of the piece from rank `from` to rank `to` in a v form; a third are
 * empty. */
static inline int64_t oracle_v_count(const oracle_case *k, int from, int to)
{
    uint64_t h;
    int a = from, b = to;
    if (k->kind == DPAR_CALL_ALL_TO_ALL && k->in_place && from > to) {
        a = to, b = from; /* in place both directions need equal pieces */
    }
    h = oracle_mix(k->seed ^ (uint64_t)(a * 16 + b + 1) * UINT64_C(0xD6E8FEB86659FD93));
    if (h % 3 == 0) {
        return 0;
    }
    return (int64_t)((h >> 8) % (uint64_t)(k->count + 1));
}

/* Sets where n pieces begin: in a random order with gaps of up to 7 elements, or one after the
 * other. Returns the total. */
static inline int64_t oracle_v_begins(uint64_t seed, int packed, const int64_t *count, int n,
                                      int64_t *begin)
{
    int order[ORACLE_RANKS], i;
    int64_t at = 0;
    for (i = 0; i < n; i++) {
        int j = packed ? i : (int)oracle_below(&seed, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (i = 0; i < n; i++) {
        at += packed ? 0 : oracle_below(&seed, 8);
        begin[order[i]] = at;
        at += count[order[i]];
    }
    return at;
}

static inline void oracle_piece_add(oracle_side *s, int64_t begin, int64_t count, int rank,
                                    uint64_t start)
{
    oracle_piece p;
    p.begin = begin, p.count = count, p.rank = rank, p.start = start;
    s->piece[s->pieces++] = p;
    if (count > 0 && begin + count > s->length) {
        s->length = begin + count;
    }
}

/* Plans the forms with equal pieces. */
static inline void oracle_plan_even(oracle_flight *f, int me, int n)
{
    const oracle_case *k = &f->k;
    uint64_t shift = k->seed % ORACLE_PERIOD;
    int64_t c = k->count;
    int r, root = k->root;
    switch (k->kind) {
    case DPAR_CALL_BROADCAST:
        if (me == root) {
            oracle_piece_add(&f->in, 0, c, root, shift);
        }
        oracle_piece_add(&f->out, 0, c, root, shift);
        break;
    case DPAR_CALL_REDUCE:
    case DPAR_CALL_ALL_REDUCE:
        oracle_piece_add(&f->in, 0, c, me, shift);
        if (k->kind == DPAR_CALL_ALL_REDUCE || me == root) {
            oracle_piece_add(&f->out, 0, c, -1, shift);
        }
        break;
    case DPAR_CALL_REDUCE_SCATTER:
        oracle_piece_add(&f->in, 0, n * c, me, shift);
        oracle_piece_add(&f->out, 0, c, -1, shift + (uint64_t)(me * c));
        break;
    case DPAR_CALL_ALL_GATHER:
    case DPAR_CALL_GATHER:
        oracle_piece_add(&f->in, 0, c, me, shift);
        for (r = 0; r < n && (k->kind == DPAR_CALL_ALL_GATHER || me == root); r++) {
            oracle_piece_add(&f->out, r * c, c, r, shift);
        }
        break;
    case DPAR_CALL_ALL_TO_ALL:
        oracle_piece_add(&f->in, 0, n * c, me, shift);
        for (r = 0; r < n; r++) {
            oracle_piece_add(&f->out, r * c, c, r, shift + (uint64_t)(me * c));
        }
        break;
    case DPAR_CALL_SCATTER:
        if (me == root) {
            oracle_piece_add(&f->in, 0, n * c, me, shift);
        }
        oracle_piece_add(&f->out, 0, c, root, shift + (uint64_t)(me * c));
        break;
    default: break;
    }
}

/* Plans the v forms. The piece for rank s begins at entry shift + 1237 s of the sender's table. */
static inline void oracle_plan_v(oracle_flight *f, int me, int n)
{
    const oracle_case *k = &f->k;
    uint64_t shift = k->seed % ORACLE_PERIOD;
    uint64_t own =
        oracle_mix(k->seed * 31 + (uint64_t)me); /* begins may differ between ranks */
    int r, here = oracle_here_in_place(k, me);
    int64_t at = 0;
    f->packed = (k->seed >> 40) % 3 == 0 || k->kind == DPAR_CALL_REDUCE_SCATTER;
    for (r = 0; r < n; r++) {
        int all = k->kind == DPAR_CALL_ALL_TO_ALL;
        int from = k->kind == DPAR_CALL_SCATTER || k->kind == DPAR_CALL_REDUCE_SCATTER;
        f->in_count[r] = all ? oracle_v_count(k, me, r) : from ? oracle_v_count(k, 0, r) : 0;
        f->out_count[r] = all ? oracle_v_count(k, r, me) : from ? 0 : oracle_v_count(k, r, 0);
    }
    (void)oracle_v_begins(own, f->packed, f->in_count, n, f->in_begin);
    (void)oracle_v_begins(own + (uint64_t)!here, f->packed, f->out_count, n, f->out_begin);
    switch (k->kind) {
    case DPAR_CALL_ALL_GATHER:
    case DPAR_CALL_GATHER:
        oracle_piece_add(&f->in, 0, f->out_count[me], me, shift);
        for (r = 0; r < n && (k->kind == DPAR_CALL_ALL_GATHER || me == k->root); r++) {
            oracle_piece_add(&f->out, f->out_begin[r], f->out_count[r], r, shift);
        }
        break;
    case DPAR_CALL_REDUCE_SCATTER:
        for (r = 0; r < n; r++) {
            at += f->in_count[r];
        }
        oracle_piece_add(&f->in, 0, at, me, shift);
        oracle_piece_add(&f->out, 0, f->in_count[me], -1, shift + (uint64_t)f->in_begin[me]);
        break;
    case DPAR_CALL_ALL_TO_ALL:
        for (r = 0; r < n; r++) {
            oracle_piece_add(&f->in, f->in_begin[r], f->in_count[r], me,
                             shift + 1237u * (uint64_t)r);
        }
        for (r = 0; r < n; r++) {
            oracle_piece_add(&f->out, f->out_begin[r], f->out_count[r], r,
                             shift + 1237u * (uint64_t)me);
        }
        break;
    case DPAR_CALL_SCATTER:
        for (r = 0; r < n && me == k->root; r++) {
            oracle_piece_add(&f->in, f->in_begin[r], f->in_count[r], me,
                             shift + 1237u * (uint64_t)r);
        }
        oracle_piece_add(&f->out, 0, f->in_count[me], k->root, shift + 1237u * (uint64_t)me);
        break;
    default: break;
    }
}

/* Places in and out: in two windows, or both in window 0. */
static inline void oracle_place(oracle_flight *f, int me)
{
    const oracle_case *k = &f->k;
    int gathers = k->kind == DPAR_CALL_ALL_GATHER || k->kind == DPAR_CALL_GATHER;
    int scatters = k->kind == DPAR_CALL_REDUCE_SCATTER || k->kind == DPAR_CALL_SCATTER;
    int w;
    f->in_at = f->out_at = 0;
    f->length[0] = f->in.length;
    f->length[1] = f->out.length;
    if (oracle_here_in_place(k, me)) {
        if (gathers) {
            f->in_at = k->varies ? f->out_begin[me] : me * k->count;
        } else if (scatters) {
            f->out_at = k->varies ? f->in_begin[me] : me * k->count;
        }
        f->length[0] = f->in_at + f->in.length > f->out_at + f->out.length
                           ? f->in_at + f->in.length
                           : f->out_at + f->out.length;
        f->length[1] = 0;
    }
    for (w = 0; w < 2; w++) {
        uint64_t h = oracle_mix(k->seed * 4 + (uint64_t)w * 2 + 1) ^ (uint64_t)me * 7919u;
        int registered = k->memory == ORACLE_MIXED ? (int)(oracle_mix(h) >> 7 & 1)
                                                   : k->memory == ORACLE_REGISTERED;
        f->window[w] = f->slot->memory[registered][w];
        f->skew[w] = (h & 1) != 0 ? 0 : (size_t)((h >> 1) & 15) * (size_t)dpar_type_bytes(k->type);
    }
}

static inline void oracle_write_side(oracle *o, const oracle_flight *f, unsigned char *first,
                                     const oracle_side *s, int64_t at)
{
    size_t bytes = (size_t)dpar_type_bytes(f->k.type);
    int i;
    for (i = 0; i < s->pieces; i++) {
        const oracle_piece *p = &s->piece[i];
        const unsigned char *t = p->rank < 0 ? oracle_results(o, f->comm->size, f->k.type, f->k.op)
                                             : oracle_values(o, f->comm->size, f->k.type, p->rank);
        oracle_fill(first + (size_t)(at + p->begin) * bytes, t, bytes, p->start, p->count);
    }
}

static inline size_t oracle_window_bytes(const oracle_flight *f, int w)
{
    return 2 * ORACLE_GUARD + f->skew[w] +
           (size_t)f->length[w] * (size_t)dpar_type_bytes(f->k.type);
}

/* Builds the expected content of window w before (after = 0) or after the operation. */
static inline void oracle_image(oracle *o, const oracle_flight *f, int w, int after,
                                unsigned char *to)
{
    int both = oracle_here_in_place(&f->k, f->comm->rank);
    unsigned char *first = to + ORACLE_GUARD + f->skew[w];
    memset(to, ORACLE_POISON, oracle_window_bytes(f, w));
    if (w == 0) {
        oracle_write_side(o, f, first, &f->in, f->in_at);
    }
    if (after && w == (both ? 0 : 1)) {
        oracle_write_side(o, f, first, &f->out, f->out_at);
    }
}

static inline unsigned char *oracle_first(const oracle_flight *f, int w)
{
    return f->window[w] + ORACLE_GUARD + f->skew[w];
}

/* Sets the pointers that are passed to the library. Unused ones are NULL or not, depending on the
 * seed. */
static inline void oracle_pointers(const oracle_flight *f, const void **in, void **out)
{
    const oracle_case *k = &f->k;
    size_t bytes = (size_t)dpar_type_bytes(k->type);
    int me = f->comm->rank, both = oracle_here_in_place(k, me);
    int far = oracle_rooted(k->kind) && me != k->root;
    int null = (int)(oracle_mix(k->seed + (uint64_t)me) & 1);
    *in = oracle_first(f, 0) + (size_t)f->in_at * bytes;
    *out = oracle_first(f, both ? 0 : 1) + (size_t)f->out_at * bytes;
    if (far && null && (k->kind == DPAR_CALL_REDUCE || k->kind == DPAR_CALL_GATHER)) {
        *out = NULL;
    }
    if (far && null && k->kind == DPAR_CALL_SCATTER) {
        *in = NULL;
    }
}

static inline dpar_status oracle_call_v(oracle_flight *f, const void *in, void *out,
                                        dpar_work *w)
{
    const oracle_case *k = &f->k;
    dpar_comm *c = f->comm;
    int me = c->rank, far = oracle_rooted(k->kind) && me != k->root && (k->seed & 4) != 0;
    const int64_t *in_begin = f->packed || far ? NULL : f->in_begin;
    const int64_t *out_begin = f->packed || far ? NULL : f->out_begin;
    switch (k->kind) {
    case DPAR_CALL_ALL_GATHER:
        return dpar_all_gather_v(c, in, out, f->out_count, out_begin, k->type, w);
    case DPAR_CALL_REDUCE_SCATTER:
        return dpar_reduce_scatter_v(c, in, out, f->in_count, k->type, k->op, w);
    case DPAR_CALL_ALL_TO_ALL:
        return dpar_all_to_all_v(c, in, f->in_count, in_begin, out, f->out_count, out_begin,
                                 k->type, w);
    case DPAR_CALL_GATHER:
        return dpar_gather_v(c, in, f->out_count[me], out, far ? NULL : f->out_count, out_begin,
                             k->type, k->root, w);
    default:
        return dpar_scatter_v(c, in, far ? NULL : f->in_count, in_begin, out, f->in_count[me],
                              k->type, k->root, w);
    }
}

static inline dpar_status oracle_call_even(oracle_flight *f, const void *in, void *out,
                                           dpar_work *w)
{
    const oracle_case *k = &f->k;
    dpar_comm *c = f->comm;
    switch (k->kind) {
    case DPAR_CALL_BROADCAST: return dpar_broadcast(c, out, k->count, k->type, k->root, w);
    case DPAR_CALL_REDUCE: return dpar_reduce(c, in, out, k->count, k->type, k->op, k->root, w);
    case DPAR_CALL_ALL_REDUCE: return dpar_all_reduce(c, in, out, k->count, k->type, k->op, w);
    case DPAR_CALL_ALL_GATHER: return dpar_all_gather(c, in, out, k->count, k->type, w);
    case DPAR_CALL_REDUCE_SCATTER:
        return dpar_reduce_scatter(c, in, out, k->count, k->type, k->op, w);
    case DPAR_CALL_ALL_TO_ALL: return dpar_all_to_all(c, in, out, k->count, k->type, w);
    case DPAR_CALL_GATHER: return dpar_gather(c, in, out, k->count, k->type, k->root, w);
    case DPAR_CALL_SCATTER: return dpar_scatter(c, in, out, k->count, k->type, k->root, w);
    default: return dpar_barrier(c, w);
    }
}

static inline dpar_status oracle_call(oracle_flight *f, dpar_work *w)
{
    const oracle_case *k = &f->k;
    const void *in;
    void *out;
    dpar_call call;
    oracle_pointers(f, &in, &out);
    if (k->varies) {
        return oracle_call_v(f, in, out, w);
    }
    if (k->how != ORACLE_POST || k->kind == DPAR_CALL_BARRIER) {
        return oracle_call_even(f, in, out, w);
    }
    memset(&call, 0, sizeof call);
    call.kind = k->kind, call.type = k->type, call.count = k->count;
    call.op = oracle_reduces(k->kind) ? k->op : 0;
    call.root = oracle_rooted(k->kind) ? k->root : 0;
    call.in = k->kind == DPAR_CALL_BROADCAST ? out : in;
    call.out = out;
    return dpari_post(f->comm, &call, w);
}

/* Prepares and starts a collective; a blocking one is complete on return. */
static inline dpar_status oracle_begin(oracle *o, dpar_comm *c, const oracle_case *k,
                                       oracle_slot *slot, oracle_flight *f)
{
    int w;
    memset(f, 0, sizeof *f);
    f->k = *k;
    f->comm = c;
    f->slot = slot;
    if (k->varies) {
        oracle_plan_v(f, c->rank, c->size);
    } else {
        oracle_plan_even(f, c->rank, c->size);
    }
    oracle_place(f, c->rank);
    for (w = 0; w < 2; w++) {
        if (oracle_window_bytes(f, w) > slot->room) {
            printf("the oracle's own memory is too small: %lu of %lu bytes\n",
                   (unsigned long)oracle_window_bytes(f, w), (unsigned long)slot->room);
            _exit(3);
        }
        oracle_image(o, f, w, 0, f->window[w]);
    }
    oracle_delay(o);
    return oracle_call(f, k->how == ORACLE_BLOCKING ? NULL : &f->work);
}

static inline dpar_status oracle_wait(oracle *o, oracle_flight *f)
{
    dpar_status s;
    oracle_delay(o);
    if (f->k.how != ORACLE_TEST) {
        return f->k.how == ORACLE_BLOCKING ? DPAR_OK : dpar_wait(&f->work);
    }
    while ((s = dpar_test(&f->work)) == DPAR_MORE) {
        oracle_delay(o);
    }
    return s;
}

static inline void oracle_show(const unsigned char *at, int type, char *text, size_t room)
{
    double d;
    if (type == DPAR_F64) {
        memcpy(&d, at, 8);
        (void)snprintf(text, room, "%.17g", d);
    } else if (oracle_is_float(type)) {
        (void)snprintf(text, room, "%.9g", (double)oracle_read_f32(at, type));
    } else if (dpari_type_can_reduce(type) == 0) {
        (void)snprintf(text, room, "%02x...", at[0]);
    } else if (oracle_signed(type)) {
        (void)snprintf(text, room, "%lld", (long long)oracle_read_int(at, type));
    } else {
        (void)snprintf(text, room, "%llu", (unsigned long long)oracle_read_int(at, type));
    }
}

/* Compares bit by bit, except for NaN (any) and, with max and min, the sign of zero, which comm.h
 * does not define. */
static inline int oracle_same(const unsigned char *a, const unsigned char *b, int type,
                              int reduced, int op)
{
    double x, y;
    if (memcmp(a, b, (size_t)dpar_type_bytes(type)) == 0) {
        return 1;
    }
    if (!reduced || !oracle_is_float(type)) {
        return 0;
    }
    if (type == DPAR_F64) {
        memcpy(&x, a, 8);
        memcpy(&y, b, 8);
    } else {
        x = (double)oracle_read_f32(a, type);
        y = (double)oracle_read_f32(b, type);
    }
    return (x != x && y != y) || ((op == DPAR_MAX || op == DPAR_MIN) && x == 0.0 && y == 0.0);
}

static inline void oracle_complain(oracle *o, const oracle_flight *f, const char *what)
{
    char text[200];
    oracle_describe(text, sizeof text, &f->k);
    if (o->failed < 4) {
        printf("WRONG rank %d of %d: %s: %s\n", f->comm->rank, f->comm->size, text, what);
        fflush(stdout);
    }
    o->failed++;
}

/* Compares element by element; only after memcmp has found a difference. */
static inline int oracle_search(oracle *o, const oracle_flight *f, int w,
                                const unsigned char *want)
{
    size_t bytes = (size_t)dpar_type_bytes(f->k.type), before = ORACLE_GUARD + f->skew[w];
    size_t i, all = oracle_window_bytes(f, w), after = before + (size_t)f->length[w] * bytes;
    const unsigned char *got = f->window[w];
    char text[160], a[40], b[40];
    for (i = 0; i < all; i++) {
        int inside = i >= before && i < after;
        if (inside &&
            !oracle_same(got + i, want + i, f->k.type, oracle_reduces(f->k.kind), f->k.op)) {
            oracle_show(got + i, f->k.type, a, sizeof a);
            oracle_show(want + i, f->k.type, b, sizeof b);
            (void)snprintf(text, sizeof text, "element %lld of %lld of %s is %s, expected %s",
                           (long long)((i - before) / bytes), (long long)f->length[w],
                           w == 0 ? "in" : "out", a, b);
            oracle_complain(o, f, text);
            return 1;
        }
        if (!inside && got[i] != want[i]) {
            (void)snprintf(text, sizeof text, "byte %lld beside %s was overwritten",
                           (long long)i - (long long)before, w == 0 ? "in" : "out");
            oracle_complain(o, f, text);
            return 1;
        }
        i += inside ? bytes - 1 : 0;
    }
    return 0;
}

/* Checks both windows: results, inputs, gaps and guards. */
static inline void oracle_check(oracle *o, const oracle_flight *f)
{
    int w;
    for (w = 0; w < 2; w++) {
        oracle_image(o, f, w, 1, f->slot->image);
        if (memcmp(f->slot->image, f->window[w], oracle_window_bytes(f, w)) != 0) {
            (void)oracle_search(o, f, w, f->slot->image);
        }
    }
    o->cases++;
}

/* Counts a status other than OK as a failure. Returns 0 to continue, 1 if the communicator is
 * broken. */
static inline int oracle_bad(oracle *o, const oracle_flight *f, dpar_status s)
{
    char text[400];
    if (s == DPAR_OK) {
        return 0;
    }
    (void)snprintf(text, sizeof text, "status %d (%s): %s", (int)s, dpar_status_text(s),
                   f->comm->why.text);
    oracle_complain(o, f, text);
    return 1;
}

/* Runs one collective. Returns 0 unless the communicator is broken. */
static inline int oracle_run(oracle *o, dpar_comm *c, const oracle_case *k, oracle_slot *slot)
{
    oracle_flight f;
    if (oracle_bad(o, &f, oracle_begin(o, c, k, slot, &f)) ||
        oracle_bad(o, &f, oracle_wait(o, &f))) {
        return 1;
    }
    oracle_check(o, &f);
    return 0;
}

/* Allocates `bytes` of elements for in and for out, private and registered. */
static inline dpar_status oracle_slot_make(oracle *o, oracle_slot *slot, int64_t bytes)
{
    dpar_status s = DPAR_OK;
    int w;
    slot->room = (size_t)bytes + 2 * ORACLE_GUARD + 16 * 8 + 64;
    slot->image = (unsigned char *)oracle_memory(slot->room);
    for (w = 0; w < 2; w++) {
        void *p = NULL;
        slot->memory[0][w] = (unsigned char *)oracle_memory(slot->room);
        if (s == DPAR_OK) {
            s = dpar_comm_alloc(o->world, (int64_t)slot->room, &p);
        }
        slot->memory[1][w] = (unsigned char *)p;
    }
    if (s != DPAR_OK) {
        printf("WRONG dpar_comm_alloc of %lu bytes: %s: %s\n", (unsigned long)slot->room,
               dpar_status_text(s), o->world->why.text);
        o->failed++;
    }
    return s;
}

static inline void oracle_slot_free(oracle *o, oracle_slot *slot)
{
    int w;
    for (w = 0; w < 2; w++) {
        free(slot->memory[0][w]);
        dpar_comm_release(o->world, slot->memory[1][w]);
    }
    free(slot->image);
}

/* Returns a random collective with pieces of at most `bytes`, which is the same on all ranks for
 * one seed. */
static inline oracle_case oracle_random_case(uint64_t seed, int n, int64_t bytes)
{
    static const int kinds[9] = {
        DPAR_CALL_ALL_REDUCE, DPAR_CALL_ALL_GATHER, DPAR_CALL_REDUCE_SCATTER,
        DPAR_CALL_ALL_TO_ALL, DPAR_CALL_BROADCAST,  DPAR_CALL_REDUCE,
        DPAR_CALL_GATHER,     DPAR_CALL_SCATTER,    DPAR_CALL_BARRIER};
    static const int types[10] = {DPAR_F64, DPAR_F32, DPAR_F16, DPAR_BF16, DPAR_I8,
                                  DPAR_U8,  DPAR_I32, DPAR_U32, DPAR_I64,  DPAR_U64};
    static const int ops[5] = {DPAR_SUM, DPAR_AVG, DPAR_PRODUCT, DPAR_MAX, DPAR_MIN};
    oracle_case k;
    memset(&k, 0, sizeof k);
    k.kind = kinds[oracle_below(&seed, 9)];
    k.type = types[oracle_below(&seed, 10)];
    k.op = ops[oracle_below(&seed, 5)];
    k.root = (int)oracle_below(&seed, n);
    k.memory = (int)oracle_below(&seed, 3);
    k.how = (int)oracle_below(&seed, ORACLE_HOWS);
    k.in_place = (int)oracle_below(&seed, 2);
    k.varies = k.kind != DPAR_CALL_ALL_REDUCE && k.kind != DPAR_CALL_BROADCAST &&
               k.kind != DPAR_CALL_REDUCE && k.kind != DPAR_CALL_BARRIER &&
               oracle_below(&seed, 3) == 0;
    bytes = bytes >> oracle_below(&seed, 12); /* sizes of all magnitudes */
    k.count = oracle_below(&seed, bytes / dpar_type_bytes(k.type) + 1);
    k.seed = oracle_next(&seed) >> 4;
    return k;
}

/* --- starting ranks --- */

/* A test. Returns at its end or when its communicator is broken. Errors are counted in
 * o->failed. */
typedef void (*oracle_body)(oracle *o);

typedef struct oracle_start {
    oracle_body body;
    oracle base;
    volatile long *sum; /* shared by all ranks: cases and failures of each */
} oracle_start;

static inline int oracle_main(dpar_comm *world, void *arg)
{
    oracle_start *start = (oracle_start *)arg;
    oracle o = start->base;
    int failed;
    o.world = world;
    o.own = oracle_mix(o.seed * 64 + (uint64_t)world->rank);
    start->body(&o);
    failed = o.failed;
    start->sum[2 * world->rank] = o.cases;
    start->sum[2 * world->rank + 1] = failed;
    oracle_free(&o);
    return failed != 0;
}

/* Totals of a program. */
typedef struct oracle_total {
    long cases, failed, runs;
} oracle_total;

/* Runs `body` on n ranks and prints a line. Under MPI n is ignored: all ranks run. */
static inline void oracle_launch(oracle_total *t, const char *name, int n, oracle_body body,
                                 const oracle *base, const dpar_world_desc *options)
{
    oracle_start start;
    dpar_status s;
    dpar_why why;
    double begin = oracle_now();
    long cases = 0, failed = 0;
    int r;
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    why.text[0] = '\0';
    start.body = body;
    start.base = *base;
    start.sum = (volatile long *)p;
    fflush(stdout);
#if defined(USE_MPI)
    {
        dpar_comm *world = NULL;
        (void)options;
        s = dpar_mpi_make(MPI_COMM_WORLD, NULL, &world, &why);
        if (s == DPAR_OK) {
            world->timeout_s = 120;
            start.base.whole = 1;
            n = world->size;
            r = world->rank;
            s = oracle_main(world, &start) == 0 ? DPAR_OK : DPAR_E_PEER;
            cases = start.sum[2 * r];
            failed = start.sum[2 * r + 1];
            if (dpar_comm_free(world) != DPAR_OK) {
                printf("WRONG closing the communicator failed\n");
                failed++;
            }
            if (r == 0) {
                printf("%-28s %d ranks of MPI: %ld operations, %ld wrong, %.2f s\n", name, n, cases,
                       failed, oracle_now() - begin);
            }
        }
    }
#else
    s = dpar_launch(n, start.body == NULL ? NULL : oracle_main, &start, options, &why);
    for (r = 0; r < n; r++) {
        cases += start.sum[2 * r];
        failed += start.sum[2 * r + 1];
        if (start.sum[2 * r] == 0) {
            printf("WRONG rank %d of %d checked nothing\n", r, n);
            failed++;
        }
    }
    printf("%-28s %d %s: %ld operations, %ld wrong, %.2f s\n", name, n,
           base->threads ? "threads" : "processes", cases, failed, oracle_now() - begin);
#endif
    if (s != DPAR_OK) {
        printf("WRONG %s: %s: %s\n", name, dpar_status_text(s), why.text);
        failed++;
    }
    fflush(stdout);
    munmap(p, 4096);
    t->cases += cases;
    t->failed += failed;
    t->runs++;
}

/* The arguments of each program: words in any order. */
typedef struct oracle_args {
    int threads, effort, from, to;
    uint64_t seed;
} oracle_args;

/* Parses [processes|threads] [short|long] [N|A-B ranks] [seed=S]. Returns 0 if a word is
 * unknown. */
static inline int oracle_read_args(oracle_args *a, int argc, char **argv)
{
    int i, used, from, to;
    unsigned long long seed;
    memset(a, 0, sizeof *a);
    a->from = 1, a->to = 8, a->seed = 1;
    for (i = 1; i < argc; i++) {
        used = 0;
        if (strcmp(argv[i], "threads") == 0 || strcmp(argv[i], "processes") == 0) {
            a->threads = argv[i][0] == 't';
        } else if (strcmp(argv[i], "long") == 0 || strcmp(argv[i], "short") == 0) {
            a->effort = argv[i][0] == 'l';
        } else if (sscanf(argv[i], "seed=%llu%n", &seed, &used) == 1 && argv[i][used] == '\0') {
            a->seed = seed;
        } else if (sscanf(argv[i], "%d-%d%n", &from, &to, &used) == 2 && argv[i][used] == '\0') {
            a->from = from, a->to = to;
        } else if (sscanf(argv[i], "%d%n", &from, &used) == 1 && argv[i][used] == '\0') {
            a->from = a->to = from;
        } else {
            printf("usage: %s [processes|threads] [short|long] [RANKS|FROM-TO] [seed=S]\n",
                   argv[0]);
            return 0;
        }
    }
    return a->from >= 1 && a->from <= a->to && a->to <= ORACLE_RANKS;
}

static inline void oracle_base(oracle *o, const oracle_args *a, dpar_world_desc *options)
{
    memset(o, 0, sizeof *o);
    o->seed = a->seed;
    o->threads = a->threads;
    o->effort = a->effort;
    memset(options, 0, sizeof *options);
    options->timeout_s = 60;
    options->grace_s = 2;
    options->threads = a->threads;
}

static inline int oracle_end(const oracle_total *t)
{
    printf("%ld operations in %ld runs, %ld wrong\n", t->cases, t->runs, t->failed);
    return t->failed != 0 || t->cases == 0;
}

/* The main of a program: runs `body` on each number of ranks, with all configurations of the engine
 * (effort 0: one of them in turn); under MPI once. */
static inline int oracle_program(int argc, char **argv, const char *name, oracle_body body)
{
    static const int plain[3] = {0, DPAR_WORLD_NO_CMA | DPAR_WORLD_NO_DIRECT, DPAR_WORLD_NO_FUTEX};
    oracle_args a;
    oracle_total t = {0, 0, 0};
    oracle base;
    dpar_world_desc options;
    int n, i;
    if (!oracle_read_args(&a, argc, argv)) {
        return 2;
    }
    oracle_base(&base, &a, &options);
#if defined(USE_MPI)
    MPI_Init(&argc, &argv);
    oracle_launch(&t, name, 0, body, &base, &options);
    MPI_Finalize();
    (void)plain, (void)n, (void)i;
    return t.failed != 0 || t.cases == 0;
#else
    for (n = a.from; n <= a.to; n++) {
        for (i = 0; i < 3; i++) {
            if (a.effort == 0 && i != n % 3) {
                continue;
            }
            base.delays = i == 2;
            base.seed = a.seed * 8 + (uint64_t)i;
            options.disable = plain[i];
            options.slot_bytes = i == 1 ? 4096 : 0;
            oracle_launch(&t, name, n, body, &base, &options);
        }
    }
    return oracle_end(&t);
#endif
}

#endif
