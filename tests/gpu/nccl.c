/* SPDX-License-Identifier: MIT-0 */
/* Tests dpar_nccl.h over the stand-ins: each operation x type x in place x size x form of waiting,
 * on 1 to 4 ranks, bit by bit against the shared-memory engine; messages, batches on periodic axes,
 * host memory, splits; ways to meet; failures and their messages.
 *
 *   nccl ops|exact|messages|host|groups|graph|lends|meet|busy|late|...|pure [ranks]
 *   mpiexec -n 3 nccl launched any|node|mpi
 *
 * Without words it runs all sections. `launched` meets through the launcher (mpi: built with
 * -DUSE_MPI). FAKE_CUDA_SEED sets how streams are delayed, DPAR_NCCL_LIBRARY which version the
 * stand-in has. */
#include "dpar_nccl.h"
#ifdef USE_MPI
#include "dpar_mpi.h"
#endif

#include "check.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

enum { MOST = 700, GUARD = 16, ROOM = 4 * MOST + 2 * GUARD };

/* Sets major x 10000 + minor x 100 + patch of the NCCL library; E_SYSTEM if there is none. */
static dpar_status nccl_version(int32_t *version, dpar_why *why)
{
    dpari_nccl_api api;
    dpar_status status = dpari_nccl_load(&api, why);
    if (status >= 0) {
        *version = api.version;
    }
    return status;
}

static int quiet_failures, verbose;
static int every = 4; /* one operation of this many is run; more in short runs */

/* ---- a rank ---- */

typedef struct rank_state {
    dpar_comm *host, *nccl;
    cudaStream_t stream;
    char *in, *out; /* device memory; 8 ROOM bytes each */
    char *pinned;   /* for tests of lent memory */
    char a[8 * ROOM], b[8 * ROOM], want[8 * ROOM];
} rank_state;

static rank_state state; /* each rank is a process */

enum { CPUS = 64 };

typedef struct shared_page {
    int told;             /* dies: number of ranks that were told that a rank has ended */
    int stalled_ms[CPUS]; /* the longest time in which a processor did not run us */
} shared_page;

static shared_page *page; /* shared by all processes */

/* Returns 1 on the stand-in: failures can be requested, and each rank has its own device. */
static int stand_in(void)
{
#if defined(FAKE_CUDA)
    return 1;
#else
    return 0;
#endif
}

static void cuda(cudaError_t code)
{
    if (code != cudaSuccess) {
        printf("CUDA: %s\n", cudaGetErrorString(code));
        exit(1);
    }
}

/* Selects a device. With DPAR_TEST_SHARE_GPU all ranks may have the same one. */
static void take_device(int rank)
{
    int devices = 0;
    cuda(cudaGetDeviceCount(&devices));
    cuda(cudaSetDevice(rank % (devices > 0 ? devices : 1)));
}

static void begin(dpar_comm *host, const dpar_nccl_desc *given)
{
    dpar_nccl_desc o;
    dpar_why why;
    dpar_status st;
    void *at;
    memset(&o, 0, sizeof o);
    if (given != NULL) {
        o = *given;
    }
    take_device(host->rank);
    cuda(cudaStreamCreateWithFlags(&state.stream, cudaStreamNonBlocking));
    o.stream = state.stream;
    o.timeout_s = o.timeout_s != 0 ? o.timeout_s : stand_in() ? 20 : 60;
    state.host = host;
    st = dpar_nccl_make(host, &o, &state.nccl, &why);
    if (st < 0) {
        printf("rank %d: %s\n", (int)host->rank, why.text);
        fflush(stdout);
        exit(1);
    }
    CHECK_TEXT(state.nccl->engine.name, "nccl");
    CHECK_INT(state.nccl->rank, host->rank);
    CHECK_INT(state.nccl->size, host->size);
    CHECK_INT(dpar_comm_alloc(state.nccl, 8 * ROOM, &at), DPAR_OK);
    state.in = (char *)at;
    CHECK((uintptr_t)at % 4096 == 0);
    CHECK_INT(dpar_comm_alloc(state.nccl, 8 * ROOM, &at), DPAR_OK);
    state.out = (char *)at;
}

static int end(void)
{
    CHECK_INT(dpar_comm_free(state.nccl), DPAR_OK);
    cuda(cudaStreamDestroy(state.stream));
    return checks_failed > 0;
}

static void upload(char *to, const char *from)
{
    cuda(cudaMemcpyAsync(to, from, 8 * ROOM, cudaMemcpyHostToDevice, state.stream));
}

static void download(char *to, const char *from)
{
    cuda(cudaMemcpyAsync(to, from, 8 * ROOM, cudaMemcpyDeviceToHost, state.stream));
    cuda(cudaStreamSynchronize(state.stream));
}

/* Waits in one of three ways: not at all, by dpar_wait, or by dpar_test. */
static dpar_status finish(int how, const dpar_call *call)
{
    dpar_work work;
    dpar_status st;
    memset(&work, 0, sizeof work);
    if (how == 0) {
        return dpari_post(state.nccl, call, NULL);
    }
    st = dpari_post(state.nccl, call, &work);
    if (st < 0) {
        return st;
    }
    while (how == 2 && (st = dpar_test(&work)) == DPAR_MORE) {
    }
    return st < 0 ? st : dpar_wait(&work);
}

/* ---- numbers ---- */

/* Stores a small whole number that n divides: sums and averages are exact in each order and
 * type. */
static void put(char *to, int64_t i, int32_t type, int v)
{
    static const int16_t halves[9] = {0,      0x3c00, 0x4000, 0x4200, 0x4400,
                                      0x4500, 0x4600, 0x4700, 0x4800};
    static const uint16_t brains[9] = {0,      0x3f80, 0x4000, 0x4040, 0x4080,
                                       0x40a0, 0x40c0, 0x40e0, 0x4100};
    union {
        double d;
        float f;
        int64_t l;
        int32_t i;
        uint16_t h;
        char c;
    } x;
    memset(&x, 0, sizeof x);
    switch (type) {
    case DPAR_F64: x.d = v; break;
    case DPAR_F32:
    case DPAR_TF32: x.f = (float)v; break;
    case DPAR_F16: x.h = (uint16_t)halves[v]; break;
    case DPAR_BF16: x.h = brains[v]; break;
    case DPAR_I64:
    case DPAR_U64: x.l = v; break;
    case DPAR_I32:
    case DPAR_U32: x.i = v; break;
    default: x.c = (char)v; break;
    }
    memcpy(to + i * dpar_type_bytes(type), &x, (size_t)dpar_type_bytes(type));
}

static uint32_t mixed(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* ---- every operation, on the device, against the shared-memory engine on the host ---- */

static const int32_t types[] = {DPAR_F32, DPAR_F64, DPAR_BF16, DPAR_F16, DPAR_I8, DPAR_U8,
                                DPAR_I32, DPAR_U32, DPAR_I64,  DPAR_U64, DPAR_F8};
enum { TYPES = 11, FLOATS = 4 };
static const int64_t sizes[] = {0, 1, 3, 64, 257, MOST};
static int rough; /* numbers whose sums depend on the order */

typedef struct op_case {
    dpar_call call, host;
    int64_t in_count[4], in_begin[4], out_count[4], out_begin[4];
    int64_t in_at, out_at; /* offsets in bytes into the memory of in and out */
} op_case;

/* Returns the size of a piece: rank s sends rank r (count + 2 s + 3 r) % 5 less, at least 0. There
 * are gaps. */
static int64_t piece(int64_t count, int s, int r)
{
    const int64_t n = count - (2 * s + 3 * r) % 5;
    return n < 0 ? 0 : n;
}

static void vary(op_case *k, int kind, int64_t count, int in_place)
{
    const int n = state.host->size, me = state.host->rank;
    int64_t in = 0, out = 0;
    int r;
    k->call.variable_counts = 1;
    for (r = 0; r < n; r++) {
        const int same = kind != DPAR_CALL_ALL_TO_ALL || in_place;
        k->in_count[r] = same ? piece(count, r, in_place ? 0 : r) : piece(count, me, r);
        k->out_count[r] = same ? k->in_count[r] : piece(count, r, me);
        if (kind == DPAR_CALL_ALL_TO_ALL && in_place) { /* symmetric */
            k->in_count[r] = k->out_count[r] = piece(count, me + r, me + r);
        }
        k->in_begin[r] = in;
        k->out_begin[r] = out;
        in += k->in_count[r] + (kind != DPAR_CALL_REDUCE_SCATTER);
        out += k->out_count[r] + 1;
    }
    k->call.count = kind == DPAR_CALL_ALL_TO_ALL ? 0 : k->out_count[me];
    k->call.in_count = k->in_count;
    k->call.out_count = k->out_count;
    k->call.in_first = k->in_begin;
    k->call.out_first = k->out_begin;
    if (kind == DPAR_CALL_REDUCE_SCATTER) {
        k->call.in_first = NULL;
    }
}

static void lay_out(op_case *k, int in_place)
{
    const int me = state.host->rank;
    const int64_t unit = dpar_type_bytes(k->call.type);
    const int64_t own_in = k->call.variable_counts ? k->in_begin[me] : k->call.count * me;
    const int64_t own_out = k->call.variable_counts ? k->out_begin[me] : k->call.count * me;
    const int32_t kind = k->call.kind;
    k->in_at = k->out_at = GUARD * unit;
    if (in_place &&
        (kind == DPAR_CALL_ALL_GATHER || (kind == DPAR_CALL_GATHER && me == k->call.root))) {
        k->in_at += own_out * unit;
    }
    if (in_place &&
        (kind == DPAR_CALL_REDUCE_SCATTER || (kind == DPAR_CALL_SCATTER && me == k->call.root))) {
        k->out_at += own_in * unit;
    }
}

static void one(int kind, int varies, int32_t type, int32_t op, int64_t count, uint32_t lot)
{
    rank_state *s = &state;
    op_case k;
    const int n = s->host->size, me = s->host->rank;
    const int in_place = kind == DPAR_CALL_BROADCAST || (lot >> 4 & 1), how = (int)(lot >> 8) % 3;
    dpar_status st, host;
    int64_t i;
    memset(&k, 0, sizeof k);
    k.call.kind = kind;
    k.call.type = type;
    k.call.op = op;
    k.call.count = count;
    k.call.root = (int32_t)(lot >> 12) % n;
    if (varies) {
        vary(&k, kind, count, in_place);
    }
    lay_out(&k, in_place);
    for (i = 0; i < 8 * ROOM / dpar_type_bytes(type); i++) {
        const uint32_t x = mixed(lot + (uint32_t)(me * 77777 + i));
        put(s->a, i, type,
            op == DPAR_PRODUCT ? 1 + (int)(x & 1)
            : n == 3           ? 3 * (int)(x % 3)
                               : 4 * (int)(x % 3));
        if (rough && type == DPAR_F32) {
            ((float *)(void *)s->a)[i] = (float)(x % 1000003u) * 1e-3f;
        }
    }
    memset(s->b, 0x5a, sizeof s->b);
    memcpy(s->want, in_place ? s->a : s->b, sizeof s->want);
    upload(s->in, s->a);
    upload(s->out, s->b);
    k.host = k.call;
    k.call.in = s->in + k.in_at;
    k.call.out = in_place ? s->in + k.out_at : s->out + k.out_at;
    k.host.in = (in_place ? s->want : s->a) + k.in_at;
    k.host.out = s->want + k.out_at;
    host = dpari_post(s->host, &k.host, NULL);
    st = finish(how, &k.call);
    if (!in_place) { /* a later write to `in` must wait for the operation */
        cuda(cudaMemsetAsync(s->in, 0x33, 8 * ROOM, s->stream));
    }
    download(s->b, in_place ? s->in : s->out);
    CHECK_INT(st, host);
    if (st != DPAR_OK || memcmp(s->b, s->want, sizeof s->want) != 0) {
        quiet_failures++;
        if (quiet_failures < 4) {
            for (i = 0; s->b[i] == s->want[i] && i < 8 * ROOM - 1; i++) {
            }
            printf("rank %d of %d: %s%s of %lld %s op %d root %d %s how %d: status %d, byte %lld, "
                   "%s\n",
                   me, n, dpar_call_name(kind), varies ? "_v" : "", (long long)count,
                   dpar_type_name(type), (int)op, (int)k.call.root, in_place ? "in place" : "", how,
                   (int)st, (long long)i, s->nccl->why.text);
        }
    }
}

static const int kinds[] = {DPAR_CALL_ALL_REDUCE, DPAR_CALL_ALL_GATHER, DPAR_CALL_REDUCE_SCATTER,
                            DPAR_CALL_ALL_TO_ALL, DPAR_CALL_BROADCAST,  DPAR_CALL_REDUCE,
                            DPAR_CALL_GATHER,     DPAR_CALL_SCATTER};

static void all_operations(uint32_t seed, int most_types)
{
    uint32_t lot = seed;
    int k, v, t, o, z;
    for (k = 0; k < 8; k++) {
        const int reduces = kinds[k] == DPAR_CALL_ALL_REDUCE ||
                            kinds[k] == DPAR_CALL_REDUCE_SCATTER || kinds[k] == DPAR_CALL_REDUCE;
        const int v_form = kinds[k] != DPAR_CALL_ALL_REDUCE && kinds[k] != DPAR_CALL_BROADCAST &&
                           kinds[k] != DPAR_CALL_REDUCE;
        for (v = 0; v < 1 + v_form; v++) {
            for (t = 0; t < (most_types < TYPES - reduces ? most_types : TYPES - reduces); t++) {
                for (o = DPAR_SUM; o < (reduces ? DPAR_OP_COUNT : DPAR_SUM + 1); o++) {
                    if (reduces && o == DPAR_AVG && t >= FLOATS) {
                        continue;
                    }
                    for (z = 0; z < 6; z++) {
                        lot = mixed(lot + 1);
                        if (lot % (uint32_t)every == 0) {
                            one(kinds[k], v, types[t], reduces ? o : 0, sizes[z], mixed(lot ^ 99));
                        }
                    }
                }
            }
        }
    }
    CHECK_INT(quiet_failures, 0);
}

static int operations(dpar_comm *c, void *arg)
{
    (void)arg;
    begin(c, NULL);
    all_operations(7, TYPES);
    /* Averages of integers are refused on each rank locally, and nothing breaks. */
    CHECK_INT(dpar_all_reduce(state.nccl, state.in, state.out, 4, DPAR_I32, DPAR_AVG, NULL),
              DPAR_E_ARG);
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    return end();
}

/* The host's table in stream order: each sum is a host function in the stream. */
typedef struct adding {
    dpar_mem_reduce sum;
} adding;

static dpar_mem host_table;

static void add_now(void *arg)
{
    adding *a = (adding *)arg;
    (void)host_table.reduce(NULL, &a->sum);
    free(a);
}

static dpar_status add_later(void *ctx, const dpar_mem_reduce *sum)
{
    adding *a = (adding *)malloc(sizeof *a);
    a->sum = *sum;
    return cudaLaunchHostFunc((cudaStream_t)ctx, add_now, a) == cudaSuccess
               ? (dpar_status)DPAR_OK
               : (dpar_status)DPAR_E_SYSTEM;
}

/* Checks rank order and blocks of 64 elements and more, with sums that depend on the order. Runs
 * with FAKE_CUDA_GUARD=0, because the host does the device's sums, and FAKE_NCCL_RING=1. */
static int exactly(dpar_comm *c, void *arg)
{
    dpar_nccl_desc o;
    dpar_mem adds;
    cudaStream_t stream;
    (void)arg;
    memset(&o, 0, sizeof o);
    memset(&adds, 0, sizeof adds);
    take_device(c->rank);
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    host_table = dpar_mem_host();
    adds.ctx = stream;
    adds.reduce = add_later;
    o.rank_order = 1;
    o.reduce_mem = &adds;
    o.comm_stream = stream;
    o.scratch_bytes = 4 * 1024;
    begin(c, &o);
    CHECK(dpar_nccl_stream(state.nccl) == stream);
    rough = 1;
    all_operations(11, FLOATS);
    return end();
}

/* ---- messages ---- */

static dpar_call message(int32_t kind, void *at, int64_t count, int32_t peer, int32_t tag)
{
    dpar_call call;
    memset(&call, 0, sizeof call);
    call.kind = kind;
    call.type = DPAR_F32;
    call.in = kind == DPAR_CALL_SEND ? at : NULL;
    call.out = kind == DPAR_CALL_RECV ? at : NULL;
    call.count = count;
    call.root = peer;
    call.tag = tag;
    return call;
}

/* Exchanges a halo on a periodic axis. With two ranks right and left are the same one, with one
 * rank they are itself. order: odd ranks list their neighbours in another order; host: in host
 * memory; alone: one call each. */
static void halo(int order, int host, int alone)
{
    rank_state *s = &state;
    const int n = s->nccl->size, me = s->nccl->rank;
    const int right = (me + 1) % n, left = (me + n - 1) % n;
    const int64_t each = 100;
    float *a = (float *)(void *)s->a, *b = (float *)(void *)s->b;
    float *in = host ? a : (float *)(void *)s->in, *out = host ? b : (float *)(void *)s->out;
    dpar_call call[4], turned;
    dpar_work work[4];
    int64_t i;
    int k;
    for (i = 0; i < 2 * each; i++) {
        a[i] = (float)(1000 * me + i);
        b[i] = -1;
    }
    if (!host) {
        upload(s->in, s->a);
        upload(s->out, s->b);
    }
    memset(work, 0, sizeof work);
    call[0] = message(DPAR_CALL_SEND, in, each, right, 5); /* my right edge, tag 5 */
    call[1] = message(DPAR_CALL_RECV, out, each, left, 5);
    call[2] = message(DPAR_CALL_SEND, in + each, each, left, 3); /* my left edge, tag 3 */
    call[3] = message(DPAR_CALL_RECV, out + each, each, right, 3);
    if (order && me % 2 == 1) {
        for (k = 0; k < 2; k++) {
            turned = call[k];
            call[k] = call[3 - k];
            call[3 - k] = turned;
        }
    }
    if (alone) { /* one at a time */
        for (k = 0; k < 4; k++) {
            CHECK_INT(dpari_post(s->nccl, &call[k], &work[k]), DPAR_OK);
        }
        CHECK_INT(dpar_wait_all(work, 4), DPAR_OK);
    } else if (order) {
        CHECK_INT(dpar_batch(s->nccl, call, 4, NULL), DPAR_OK);
    } else {
        CHECK_INT(dpar_batch(s->nccl, call, 4, work), DPAR_OK);
        CHECK_INT(dpar_wait_all(work, 4), DPAR_OK);
    }
    if (!host) {
        download(s->b, s->out);
    }
    for (i = 0; i < each; i++) {
        if (b[i] != (float)(1000 * left + i) || b[each + i] != (float)(1000 * right + each + i)) {
            CHECK(b[i] == (float)(1000 * left + i) &&
                  b[each + i] == (float)(1000 * right + each + i));
            break;
        }
    }
}

static int messages(dpar_comm *c, void *arg)
{
    int order, host, alone;
    dpar_work work;
    (void)arg;
    begin(c, NULL);
    for (order = 0; order < 2; order++) {
        for (host = 0; host < 2; host++) {
            for (alone = 0; alone < 2; alone++) {
                halo(order, host, alone);
            }
        }
    }
    /* A receive is posted before a collective and its send after one: in the order of posting. */
    if (c->size > 1 && c->rank < 2) {
        float *at = (float *)(void *)(c->rank == 0 ? state.in : state.out);
        dpar_call call =
            message(c->rank == 0 ? DPAR_CALL_SEND : DPAR_CALL_RECV, at, 50, 1 - c->rank, 0);
        memset(&work, 0, sizeof work);
        memset(state.a, 7, sizeof state.a);
        upload(state.in, state.a);
        CHECK_INT(dpari_post(state.nccl, &call, &work), DPAR_OK);
    }
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    if (c->size > 1 && c->rank < 2) {
        CHECK_INT(dpar_wait(&work), DPAR_OK);
        download(state.b, state.out);
        CHECK(c->rank == 0 || (state.b[0] == 7 && state.b[199] == 7));
    }
    /* A single message to the rank itself would wait for ever. */
    memset(&work, 0, sizeof work);
    CHECK_INT(dpar_send(state.nccl, state.in, 1, DPAR_F32, c->rank, 0, &work), DPAR_OK);
    CHECK_INT(dpar_test(&work), DPAR_MORE);
    CHECK_INT(dpar_wait(&work), DPAR_E_ARG);
    CHECK(strstr(state.nccl->why.text, "to this rank itself") != NULL);
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    return end();
}

/* ---- host memory ---- */

static int on_host(dpar_comm *c, void *arg)
{
    static int64_t big[50000], sum[50000];
    dpar_nccl_desc o;
    int64_t i;
    int32_t x[3], y[3];
    dpar_work work;
    int k;
    (void)arg;
    memset(&o, 0, sizeof o);
    o.staging_bytes = 16384; /* many rounds */
    begin(c, &o);
    for (i = 0; i < 50000; i++) {
        big[i] = i * 7 + c->rank;
    }
    CHECK_INT(dpar_all_reduce(state.nccl, big, sum, 50000, DPAR_I64, DPAR_SUM, NULL), DPAR_OK);
    for (i = 0; i < 50000 && sum[i] == c->size * i * 7 + c->size * (c->size - 1) / 2; i++) {
    }
    CHECK_INT(i, 50000);
    memset(&work, 0, sizeof work);
    x[0] = 5 + c->rank, x[1] = -7, x[2] = c->rank;
    CHECK_INT(dpar_all_reduce(state.nccl, x, y, 3, DPAR_I32, DPAR_AVG, &work), DPAR_OK);
    CHECK_INT(dpar_wait(&work), DPAR_OK);
    CHECK_INT(y[0], (5 * c->size + c->size * (c->size - 1) / 2) / c->size);
    CHECK_INT(y[1], -7); /* rounded towards zero */
    for (k = 0; k < c->size; k++) {
        x[0] = c->rank == k ? 4711 + k : 0;
        CHECK_INT(dpar_broadcast(state.nccl, x, 1, DPAR_I32, k, NULL), DPAR_OK);
        CHECK_INT(x[0], 4711 + k);
    }
    CHECK_INT(dpar_all_gather(state.nccl, big, sum, 12000, DPAR_I64, NULL), DPAR_OK);
    for (i = 0; i < 12000 * c->size && sum[i] == i % 12000 * 7 + i / 12000; i++) {
    }
    CHECK_INT(i, 12000 * c->size);
    CHECK_INT(dpar_reduce(state.nccl, big, sum, 9999, DPAR_I64, DPAR_MAX, c->size - 1, NULL),
              DPAR_OK);
    CHECK(c->rank != c->size - 1 || sum[9998] == 9998 * 7 + c->size - 1);
    CHECK_INT(dpar_all_reduce(state.nccl, state.in, y, 1, DPAR_I32, DPAR_SUM, NULL), DPAR_E_ARG);
    CHECK(strstr(state.nccl->why.text, "both device memory") != NULL);
    return end();
}

/* ---- groups ---- */

static void described(dpar_comm *c, const char *expected)
{
    char words[400], whole[400];
    dpar_text text;
    snprintf(whole, sizeof whole, "nccl: %d rank%s, a GPU each%s", (int)c->size,
             c->size == 1 ? "" : "s", expected);
    dpar_text_init(&text, words, sizeof words);
    dpar_comm_describe(c, &text);
    CHECK_TEXT(words, whole);
}

/* Checks the description of where the ranks are: as dpar_nccl_make found it; as if rank 0 were on
 * another node; and as if it were not known. */
static void describes(dpar_comm *c)
{
    dpari_nccl_world *w = dpari_nccl_ctx_of(c)->world;
    uint64_t *node = w->node;
    described(c, " on 1 node; NCCL chooses the paths: in a node NVLink, PCIe or host memory");
    node[0]++;
    described(c, c->size == 1 ? " on 1 node; NCCL chooses the paths: in a node NVLink, PCIe or "
                                "host memory"
                              : " on 2 nodes; NCCL chooses the paths: in a node NVLink, PCIe or "
                                "host memory, between nodes the network");
    node[0]--;
    w->node = NULL;
    described(c, "; NCCL chooses the paths: in a node NVLink, PCIe or host memory, between nodes "
                 "the network");
    w->node = node;
}

static int groups(dpar_comm *c, void *arg)
{
    dpar_comm *half = NULL, *twin = NULL, *reversed = NULL;
    float *a = (float *)(void *)state.a, *b = (float *)(void *)state.b;
    char words[4000];
    dpar_text text;
    dpar_work work[2];
    void *more = NULL;
    int color = c->rank % 2;
    (void)arg;
    begin(c, NULL);
    CHECK_INT(dpar_comm_split(state.nccl, c->rank == 3 ? -1 : color, 0, &half), DPAR_OK);
    CHECK((half == NULL) == (c->rank == 3));
    CHECK_INT(dpar_comm_split(state.nccl, 0, 0, &twin), DPAR_OK);
    CHECK_INT(dpar_comm_split(state.nccl, 0, -c->rank, &reversed), DPAR_OK);
    CHECK_INT(reversed->rank, c->size - 1 - c->rank);
    a[0] = (float)(1 + c->rank);
    a[1] = (float)(10 + c->rank);
    upload(state.in, state.a);
    memset(work, 0, sizeof work);
    CHECK_INT(dpar_all_reduce(twin, state.in, state.out, 1, DPAR_F32, DPAR_SUM, &work[0]), DPAR_OK);
    if (half != NULL) {
        CHECK_INT(
            dpar_all_reduce(half, state.in + 4, state.out + 4, 1, DPAR_F32, DPAR_MAX, &work[1]),
            DPAR_OK);
    }
    CHECK_INT(dpar_wait_all(work, 2), DPAR_OK);
    CHECK_INT(dpar_broadcast(reversed, state.in, 1, DPAR_F32, 0, NULL),
              DPAR_OK); /* wrong on the last rank */
    download(state.b, state.out);
    CHECK(b[0] == (float)(c->size * (c->size + 1) / 2));
    CHECK(half == NULL || b[1] == (float)(10 + (color == 0 ? (c->size > 2 ? 2 : 0) : 1)));
    download(state.b, state.in);
    CHECK(b[0] == (float)c->size);
    dpar_text_init(&text, words, sizeof words);
    dpar_comm_report(twin, &text);
    CHECK(strstr(words, "all-reduce #0 of 1 f32 sum: done") != NULL);
    describes(twin);
    dpar_text_init(&text, words, sizeof words);
    (void)dpar_nccl_doctor(state.nccl, &text);
    CHECK_INT(strstr(words, "other ranks reach rank 0 on the loopback interface, port ") != NULL &&
                  strstr(words, ", with a key made for this job\n") != NULL,
              c->rank == 0 && c->size > 1);
    CHECK_INT(dpar_nccl_register(state.nccl, state.in, 8 * ROOM / 4096 * 4096), DPAR_OK);
    CHECK_INT(dpar_nccl_register(c, state.in, 4096), DPAR_E_ARG);
    CHECK_INT(dpar_all_reduce(state.nccl, state.in, state.in, 9, DPAR_F32, DPAR_SUM, NULL),
              DPAR_OK);
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    CHECK_INT(dpar_comm_free(reversed), DPAR_OK);
    CHECK_INT(dpar_comm_free(twin), DPAR_OK);
    CHECK_INT(dpar_comm_free(half), DPAR_OK);
    memset(work, 0, sizeof work); /* an operation in progress ends before its memory is freed */
    CHECK_INT(dpar_all_reduce(state.nccl, state.out, state.out, 64, DPAR_F32, DPAR_SUM, &work[0]),
              DPAR_OK);
    dpar_comm_release(state.nccl, state.out);
    CHECK_INT(dpar_wait(&work[0]), DPAR_OK);
    CHECK_INT(dpar_comm_alloc(state.nccl, 8 * ROOM, &more), DPAR_OK);
    cuda(cudaMemcpyAsync(more, state.in, 8 * ROOM, cudaMemcpyDeviceToDevice, state.stream));
    dpar_comm_release(state.nccl, more);
    dpar_comm_release(state.nccl, state.in);
    cuda(cudaStreamSynchronize(state.stream));
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    return end();
}

/* Changes the compute stream twice, while operations of the old one are in progress, and destroys
 * the old one. Each all-reduce reads what the stream of its time has written before, and the last
 * one reads the result of the first. */
static int other_stream(dpar_comm *c, void *arg)
{
    const float sum = (float)(c->size * (c->size + 1) / 2);
    float *a = (float *)(void *)state.a, *b = (float *)(void *)state.b;
    dpar_comm *twin = NULL;
    cudaStream_t next = NULL;
    dpar_work work;
    int turn;
    (void)arg;
    begin(c, NULL);
    memset(&work, 0, sizeof work);
    CHECK_INT(dpar_nccl_set_stream(NULL, state.stream), DPAR_E_ARG);
    CHECK_INT(dpar_nccl_set_stream(c, state.stream), DPAR_E_ARG);
    CHECK_INT(dpar_comm_split(state.nccl, 0, 0, &twin), DPAR_OK);
    a[0] = (float)(1 + c->rank);
    upload(state.in, state.a);
    for (turn = 0; turn < 2; turn++) {
        CHECK_INT(dpar_all_reduce(twin, state.in, state.out, 1, DPAR_F32, DPAR_SUM, &work),
                  DPAR_OK);
        cuda(cudaStreamCreateWithFlags(&next, cudaStreamNonBlocking));
        if (turn == 1) { /* the old stream waits and copies, and the new one waits for that */
            CHECK_INT(dpar_wait(&work), DPAR_OK);
            cuda(cudaMemcpyAsync(state.in, state.out, 4, cudaMemcpyDeviceToDevice, state.stream));
        }
        CHECK_INT(dpar_nccl_set_stream(turn == 0 ? state.nccl : twin, next), DPAR_OK);
        cuda(cudaStreamDestroy(state.stream));
        state.stream = next;
        if (turn == 0) { /* the new stream waits */
            CHECK_INT(dpar_wait(&work), DPAR_OK);
            cuda(cudaMemcpyAsync(state.in, state.out, 4, cudaMemcpyDeviceToDevice, state.stream));
        }
        CHECK_INT(dpar_all_reduce(state.nccl, state.in, state.in, 1, DPAR_F32, DPAR_SUM, NULL),
                  DPAR_OK);
    }
    download(state.b, state.in);
    CHECK(b[0] == sum * (float)(c->size * c->size * c->size));
    CHECK_INT(dpar_comm_free(twin), DPAR_OK);
    return end();
}

/* Splits halves of the job again, without the other half: their parts are independent. Both wait at
 * the same time, in different calls with the same number; then one breaks. */
static int cousins(dpar_comm *c, void *arg)
{
    dpar_comm *half = NULL, *part = NULL;
    const int upper = c->rank / 2, later = c->rank % 2;
    dpar_nccl_desc o;
    dpar_status st;
    (void)arg;
    memset(&o, 0, sizeof o);
    o.timeout_s = stand_in() ? 4 : 60;
    begin(c, &o);
    CHECK_INT(dpar_comm_split(state.nccl, upper, 0, &half), DPAR_OK);
    CHECK_INT(dpar_comm_split(half, 0, 0, &part), DPAR_OK);
    CHECK_INT(dpar_barrier(part, NULL), DPAR_OK);
    if (later) { /* the other ranks ask for the reason after a second */
        dpari_os_sleep(1.6);
    }
    st = upper ? dpar_all_gather(part, state.in, state.out, 8, DPAR_F32, NULL)
               : dpar_all_reduce(part, state.in, state.out, 8, DPAR_F32, DPAR_SUM, NULL);
    CHECK_INT(st, DPAR_OK);
    CHECK_INT(dpar_barrier(part, NULL), DPAR_OK);
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    if (c->rank == 3) {
        dpar_comm_abort(part, DPAR_E_PARSE, "the upper half's input is bad");
    }
    dpari_os_sleep(0.3);
    st = dpar_barrier(part, NULL);
    CHECK_INT(st, upper ? DPAR_E_PARSE : DPAR_OK);
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    st = dpar_comm_free(part);
    CHECK(upper || st == DPAR_OK);
    CHECK_INT(dpar_comm_free(half), DPAR_OK);
    return end();
}

/* ---- graphs ---- */

/* Captures a batch in a ring and an all-reduce after it once, and replays them: each time the
 * results are the numbers of the rank before and the sum of what all ranks sent. */
static int captured(dpar_comm *c, void *arg)
{
    float *a = (float *)(void *)state.a, *b = (float *)(void *)state.b;
    const int n = c->size, next = (c->rank + 1) % n, last = (c->rank + n - 1) % n;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    dpar_call calls[2];
    dpar_work before, work;
    int32_t x = 1;
    int i;
    (void)arg;
    begin(c, NULL);
    memset(calls, 0, sizeof calls);
    calls[0].kind = DPAR_CALL_SEND, calls[0].in = state.in, calls[0].root = next;
    calls[1].kind = DPAR_CALL_RECV, calls[1].out = state.out, calls[1].root = last;
    calls[0].count = calls[1].count = 2;
    calls[0].type = calls[1].type = DPAR_F32;
    memset(&before, 0, sizeof before);
    memset(&work, 0, sizeof work);
    upload(state.in, state.a);
    CHECK_INT(dpar_batch(state.nccl, calls, 2, NULL), DPAR_OK); /* so that ranks connect */
    CHECK_INT(dpar_all_reduce(state.nccl, state.in, state.out, 2, DPAR_F32, DPAR_SUM, &before),
              DPAR_OK);
    cuda(cudaStreamSynchronize(state.stream));
    cuda(cudaStreamBeginCapture(state.stream, cudaStreamCaptureModeGlobal));
    /* started before the capture: testing it does not invalidate the capture */
    while (dpar_test(&before) == DPAR_MORE) {
    }
    CHECK_INT(dpar_all_reduce(state.nccl, &x, &x, 1, DPAR_I32, DPAR_SUM, NULL), DPAR_E_ARG);
    CHECK(strstr(state.nccl->why.text, "captured") != NULL);
    CHECK_INT(dpar_batch(state.nccl, calls, 2, NULL), DPAR_OK);
    CHECK_INT(dpar_all_reduce(state.nccl, state.out, state.out + 8, 2, DPAR_F32, DPAR_SUM, &work),
              DPAR_OK);
    CHECK_INT(dpar_test(&work), DPAR_E_ARG);
    CHECK_INT(dpar_wait(&work), DPAR_OK);
    cuda(cudaStreamEndCapture(state.stream, &graph));
    cuda(cudaGraphInstantiate(&exec, graph, 0));
    for (i = 0; i < 3; i++) {
        a[0] = (float)(10 * i + c->rank), a[1] = 1;
        upload(state.in, state.a);
        cuda(cudaGraphLaunch(exec, state.stream));
        download(state.b, state.out);
        CHECK(b[0] == (float)(10 * i + last) && b[1] == 1);
        CHECK(b[2] == (float)(10 * i * n + n * (n - 1) / 2) && b[3] == (float)n);
    }
    cuda(cudaGraphExecDestroy(exec));
    cuda(cudaGraphDestroy(graph));
    CHECK_INT(dpar_all_reduce(state.nccl, &x, &x, 1, DPAR_I32, DPAR_SUM, NULL), DPAR_OK);
    CHECK_INT(x, n);
    return end();
}

/* ---- failures ---- */

static void has(const char *text, const char *part)
{
    CHECK(strstr(text, part) != NULL);
    if (strstr(text, part) == NULL) {
        printf("   \"%s\" lacks \"%s\"\n", text, part);
    }
}

static void nap(double s)
{
    dpari_os_sleep(s);
}

/* Requests failures from now on, if possible (fake/nccl.h); the real library has no such
 * function. */
static void fail_as(const char *list)
{
    void (*fail)(const char *) = NULL;
    if (stand_in()) {
        CHECK(dpari_nccl_symbol(dpari_nccl_ctx_of(state.nccl)->world->api.library, "fake_nccl_fail",
                                &fail));
        fail(list);
    }
}

static void begin_soon(dpar_comm *c, double timeout_s)
{
    dpar_nccl_desc o;
    memset(&o, 0, sizeof o);
    o.timeout_s = stand_in() ? 20 : 60; /* making it takes time */
    begin(c, &o);
    state.nccl->timeout_s = timeout_s;
}

static void sleep_long(void *arg)
{
    nap(1.1);
    if (arg != NULL) {
        __atomic_store_n((int *)arg, 1, __ATOMIC_SEQ_CST);
    }
}

/* Checks that work of this rank's own stream does not count as waiting for other ranks. The
 * stand-in may let the stream's work run during any call, so the nap may be over early. */
static int busy(dpar_comm *c, void *arg)
{
    static int slept;
    dpar_status st;
    dpar_work work;
    (void)arg;
    slept = 0;
    memset(&work, 0, sizeof work);
    begin_soon(c, 0.5);
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    cuda(cudaLaunchHostFunc(state.stream, sleep_long, &slept));
    CHECK_INT(dpar_all_reduce(state.nccl, state.in, state.in, 3, DPAR_F32, DPAR_SUM, &work),
              DPAR_OK);
    st = dpar_test(&work);
    CHECK(st == DPAR_MORE || (st == DPAR_OK && __atomic_load_n(&slept, __ATOMIC_SEQ_CST)));
    CHECK_INT(cudaGetLastError(), cudaSuccess); /* the caller's next kernel has not failed */
    CHECK_INT(dpar_wait(&work), DPAR_OK);
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    return end();
}

/* Rank 1 is late for an all-reduce that the others wait for. */
static int late(dpar_comm *c, void *arg)
{
    double began;
    dpar_status st;
    (void)arg;
    begin_soon(c, 5);
    /* As long as the timeout below, because NCCL connects in it. */
    CHECK_INT(dpar_all_reduce(state.nccl, state.in, state.in, 1000, DPAR_F32, DPAR_SUM, NULL),
              DPAR_OK);
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    state.nccl->timeout_s = 0.6;
    began = dpari_os_now();
    if (c->rank == 1) {
        nap(1.5);
        CHECK(dpar_barrier(state.nccl, NULL) < 0); /* it has got the error */
        has(state.nccl->why.text, " says: ");
    } else {
        st = dpar_all_reduce(state.nccl, state.in, state.in, 1000, DPAR_F32, DPAR_SUM, NULL);
        CHECK_INT(st, DPAR_OK); /* it is only enqueued */
        st = dpar_barrier(state.nccl, NULL);
        CHECK_INT(st, DPAR_E_TIMEOUT);
        CHECK(dpari_os_now() - began < 3);
        CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_E_TIMEOUT);
        has(state.nccl->why.text, "all-reduce #2 of 1000 f32 on rank ");
        has(state.nccl->why.text,
            "not finished after 0.6 s; rank 1 has not reached it, its last call is barrier #1");
    }
    (void)dpar_comm_free(state.nccl);
    return checks_failed > 0;
}

/* Rank 1 is late for operations of two communicators, one after the other. Each must end after its
 * own timeout, although what NCCL frees of the first one waits for the kernel of the second. */
static int late_twice(dpar_comm *c, void *arg)
{
    dpar_comm *second = NULL;
    double began;
    (void)arg;
    begin_soon(c, 5);
    CHECK_INT(dpar_comm_split(state.nccl, 0, 0, &second), DPAR_OK);
    CHECK_INT(dpar_barrier(second, NULL), DPAR_OK);
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    state.nccl->timeout_s = second->timeout_s = 0.6;
    began = dpari_os_now(); /* making communicators takes seconds on a device */
    if (c->rank == 1) {
        nap(2);
    } else {
        CHECK_INT(dpar_all_reduce(state.nccl, state.in, state.in, 9, DPAR_F32, DPAR_SUM, NULL),
                  DPAR_OK);
        CHECK_INT(dpar_barrier(second, NULL), DPAR_E_TIMEOUT);
        CHECK(dpari_os_now() - began < 3);
        has(state.nccl->why.text, "rank 1 has not reached it");
        has(second->why.text, "not finished after 0.6 s");
    }
    dpar_comm_release(state.nccl, state.in); /* waits for both */
    (void)dpar_comm_free(state.nccl);
    (void)dpar_comm_free(second);
    return checks_failed > 0;
}

/* Rank 1 does not call the first operation, in which ranks connect. Nothing is enqueued, so the
 * call itself waits, and ends with the same message. */
static int unconnected(dpar_comm *c, void *arg)
{
    double began;
    dpar_status st;
    (void)setenv("FAKE_NCCL_CONNECT", "1", 1);
    (void)arg;
    begin_soon(c, 0.6);
    began = dpari_os_now();
    if (c->rank == 1) {
        nap(1.5);
        CHECK(dpar_barrier(state.nccl, NULL) < 0);
        has(state.nccl->why.text, " says: ");
    } else {
        st = dpar_all_reduce(state.nccl, state.in, state.in, 9, DPAR_F32, DPAR_SUM, NULL);
        if (st == DPAR_OK && !stand_in()) { /* a library that connects all ranks when it is made */
            st = dpar_barrier(state.nccl, NULL);
        }
        CHECK_INT(st, DPAR_E_TIMEOUT);
        CHECK(dpari_os_now() - began < 3);
        has(state.nccl->why.text, "all-reduce #0 of 9 f32 on rank ");
        has(state.nccl->why.text, "not finished after 0.6 s; rank 1 has not reached it");
        CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_E_TIMEOUT);
    }
    (void)dpar_comm_free(state.nccl);
    return checks_failed > 0;
}

/* The same without a watchdog: the call has the timeout. Then with an operation that all ranks
 * call: late. */
static int unwatched(dpar_comm *c, void *arg)
{
    dpar_nccl_desc o;
    (void)setenv("FAKE_NCCL_CONNECT", "1", 1);
    (void)arg;
    memset(&o, 0, sizeof o);
    o.timeout_s = 0.6;
    o.no_watchdog = 1;
    begin(c, &o);
    nap(c->rank == 0 ? 0.2 : 0);
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    CHECK_INT(dpar_comm_free(state.nccl), DPAR_OK);
    begin(c, &o);
    if (c->rank == 1) {
        nap(1);
    } else {
        CHECK_INT(dpar_all_reduce(state.nccl, state.in, state.in, 9, DPAR_F32, DPAR_SUM, NULL),
                  DPAR_E_TIMEOUT);
        has(state.nccl->why.text, "all-reduce #0 of 9 f32: not enqueued before the deadline");
    }
    dpar_comm_abort(state.nccl, DPAR_E_PEER, "enough");
    (void)dpar_comm_free(state.nccl);
    return checks_failed > 0;
}

/* Posts more works than there are without waiting: refused, and allowed after a wait for one of
 * them. */
static int works_out(dpar_comm *c, void *arg)
{
    dpar_nccl_desc o;
    dpar_work works[9];
    int i;
    (void)arg;
    memset(&o, 0, sizeof o);
    memset(works, 0, sizeof works);
    o.work_count = 8;
    o.scratch_bytes = 4097; /* the word of a barrier is after it, aligned */
    begin(c, &o);
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    for (i = 0; i < 8; i++) {
        CHECK_INT(
            dpar_all_reduce(state.nccl, state.in, state.out, 5, DPAR_F32, DPAR_SUM, &works[i]),
            DPAR_OK);
    }
    CHECK_INT(dpar_all_reduce(state.nccl, state.in, state.out, 5, DPAR_F32, DPAR_SUM, &works[8]),
              DPAR_E_MEMORY);
    has(state.nccl->why.text, "none of them waited for");
    CHECK_INT(dpar_wait(&works[3]), DPAR_OK);
    CHECK_INT(dpar_all_reduce(state.nccl, state.in, state.out, 5, DPAR_F32, DPAR_SUM, &works[8]),
              DPAR_OK);
    for (i = 0; i < 9; i++) {
        CHECK_INT(i == 3 ? DPAR_OK : dpar_wait(&works[i]), DPAR_OK);
    }
    return end();
}

/* Ranks make different calls. */
static int differ(dpar_comm *c, void *arg)
{
    double began;
    dpar_status st;
    (void)arg;
    begin_soon(c, 4);
    began = dpari_os_now();
    if (c->rank == 1) {
        st = dpar_all_gather(state.nccl, state.in, state.out, 8, DPAR_F32, NULL);
    } else {
        st = dpar_all_reduce(state.nccl, state.in, state.out, 8, DPAR_F32, DPAR_SUM, NULL);
    }
    st = st < 0 ? st : dpar_barrier(state.nccl, NULL);
    CHECK_INT(st, DPAR_E_MISMATCH);
    CHECK(dpari_os_now() - began < 3.5);
    has(state.nccl->why.text,
        "rank 0 is in all-reduce #0 of 8 f32 sum, rank 1 in all-gather #0 of 8 f32");
    (void)dpar_comm_free(state.nccl);
    return checks_failed > 0;
}

/* Rank 1's process ends. The communicator that breaks first is not the one whose kernel the device
 * runs. */
static int dies(dpar_comm *c, void *arg)
{
    dpar_comm *second = NULL;
    (void)arg;
    begin_soon(c, 20);
    CHECK_INT(dpar_comm_split(state.nccl, 0, 0, &second), DPAR_OK);
    if (c->rank != 1) { /* NCCL may notice it before it is known which rank has ended */
        fail_as("async:ncclAllReduce:1:6");
    }
    CHECK_INT(dpar_barrier(second, NULL), DPAR_OK);
    if (c->rank == 1) {
        _exit(0);
    }
    {
        const double began = dpari_os_now();
        CHECK_INT(dpar_barrier(second, NULL), DPAR_E_PEER);
        CHECK(dpari_os_now() - began < 4);
        has(state.nccl->why.text, "rank 1 is gone");
        has(second->why.text, "rank 1 is gone");
    }
    (void)dpar_comm_free(state.nccl);
    (void)dpar_comm_free(second);
    if (checks_failed == 0) {
        (void)__atomic_add_fetch(&page->told, 1,
                                 __ATOMIC_SEQ_CST); /* errors of the ranks are expected */
    }
    return checks_failed > 0;
}

/* ---- memory that devices share ---- */

enum { LENT = 5000 };

/* Writes a part, as a kernel would, and reads the same part of each peer: the results of exchange
 * k. */
static void lent_once(char *memory, const int32_t *ranks, int n, int k, char *to)
{
    dpar_comm *c = state.nccl;
    char *from = state.pinned;
    dpar_work work;
    int32_t part;
    int i;
    memset(&work, 0, sizeof work);
    part = c->engine.sync_peers(c, memory, ranks, n, NULL);
    CHECK(part >= 0 && part <= 2);
    if (part < 0) {
        return;
    }
    memset(from + k * LENT, 1 + k + 50 * c->rank, LENT);
    cuda(cudaMemcpyAsync(memory + part * LENT, from + k * LENT, LENT, cudaMemcpyDefault,
                         state.stream));
    CHECK_INT(c->engine.sync_peers(c, memory, ranks, n, &work), DPAR_OK);
    CHECK_INT(dpar_wait(&work), DPAR_OK);
    for (i = 0; i < n; i++) {
        const char *at = (const char *)c->engine.peer_address(c, memory, ranks[i]);
        cuda(cudaMemcpyAsync(to + (k * n + i) * LENT, at + part * LENT, LENT, cudaMemcpyDefault,
                             state.stream));
    }
}

static void lend_all(void **memory, int64_t more)
{
    void *at = NULL;
    cuda(cudaHostAlloc(&at, 24 * LENT, cudaHostAllocDefault));
    state.pinned = (char *)at;
    CHECK_INT(state.nccl->engine.alloc_shared(state.nccl, 3 * LENT + more, 1, memory), DPAR_OK);
}

/* Runs consecutive exchanges without a wait on the host: called directly, or captured in a graph,
 * one or two in each, which are replayed. Neighbours are in a ring; 4 ranks are on two nodes. */
static int lends(dpar_comm *c, void *arg)
{
    enum { MOST_TIMES = 12 };
    static const char order[] = "ccgggcG c Ggc"; /* c: called; g, G: replays of one, of two */
    static char got[2 * MOST_TIMES * LENT];
    int32_t ranks[2], n = 0;
    int k = 0, at, i, bad = 0, of[2 * MOST_TIMES], nodes = c->size == 4;
    cudaGraph_t graph[2];
    cudaGraphExec_t exec[2];
    void *memory = NULL, *to = NULL;
    char host[16];
    (void)arg;
    if (nodes) {
        (void)snprintf(host, sizeof host, "node%d", c->rank / 2);
        (void)setenv("NCCL_HOSTID", host, 1);
    }
    begin(c, NULL);
    lend_all(&memory, 100 * c->rank);
    CHECK_INT(dpar_comm_alloc(state.nccl, (int64_t)sizeof got, &to), DPAR_OK);
    for (i = 0; i < c->size; i++) {
        const int reached = state.nccl->engine.peer_address(state.nccl, memory, i) != NULL;
        const int should = i != c->rank && (!nodes || i / 2 == c->rank / 2) &&
                           dpari_nccl_ctx_of(state.nccl)->world->api.version >= 22902;
        CHECK(!stand_in() || reached == should);
        if (reached && n < 2 &&
            (i == (c->rank + 1) % c->size || i == (c->rank + c->size - 1) % c->size)) {
            ranks[n++] = i;
        }
    }
    if (n > 0) {
        for (i = 0; i < 2; i++) { /* 0 is called; 1 and 2 are what the replays do */
            cuda(cudaStreamBeginCapture(state.stream, cudaStreamCaptureModeThreadLocal));
            lent_once((char *)memory, ranks, n, i, (char *)to);
            if (i == 1) {
                lent_once((char *)memory, ranks, n, 2, (char *)to);
            }
            cuda(cudaStreamEndCapture(state.stream, &graph[i]));
            cuda(cudaGraphInstantiate(&exec[i], graph[i], 0));
        }
        memset(of, 0, sizeof of);
        for (at = 0, k = 3; order[at] != 0; at++) {
            if (order[at] == 'c' && k < MOST_TIMES) {
                lent_once((char *)memory, ranks, n, k, (char *)to);
                k++;
            } else if (order[at] != ' ') {
                cuda(cudaGraphLaunch(exec[order[at] == 'G'], state.stream));
            }
        }
        cuda(cudaMemcpyAsync(got, to, sizeof got, cudaMemcpyDefault, state.stream));
        cuda(cudaStreamSynchronize(state.stream));
        for (i = 0; i < k * n * LENT; i++) {
            bad += got[i] != (char)(1 + i / LENT / n + 50 * ranks[i / LENT % n]);
        }
        CHECK_INT(bad, 0);
        for (i = 0; i < 2; i++) {
            cuda(cudaGraphExecDestroy(exec[i]));
            cuda(cudaGraphDestroy(graph[i]));
        }
    }
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    dpar_comm_release(state.nccl, memory);
    dpar_comm_release(state.nccl, to);
    return end();
}

/* Rank 1 does not call an exchange, or dies: the streams of the others, with all that is enqueued
 * after it, wait no longer than the timeout; the memory that they read afterwards is still
 * mapped. */
static int lent_alone(dpar_comm *c, void *arg)
{
    const int dies_here = strcmp((const char *)arg, "dies") == 0;
    int32_t ranks[2];
    static char to[6 * LENT];
    void *memory = NULL, *into = NULL;
    double began;
    int k, n = 0, i;
    begin_soon(c, 20);
    lend_all(&memory, 0);
    CHECK_INT(dpar_comm_alloc(state.nccl, (int64_t)sizeof to, &into), DPAR_OK);
    for (i = 0; i < c->size; i++) {
        if (state.nccl->engine.peer_address(state.nccl, memory, i) != NULL) {
            ranks[n++] = i;
        }
    }
    if (n < 2) {
        return end();
    }
    lent_once((char *)memory, ranks, n, 0, (char *)into);
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    if (dies_here && c->rank == 1) {
        _exit(0);
    }
    state.nccl->timeout_s = dies_here ? 20 : 0.6;
    began = dpari_os_now();
    if (c->rank == 1) {
        nap(1.5);
        CHECK(dpar_barrier(state.nccl, NULL) < 0);
        has(state.nccl->why.text, " says: synchronising the devices of a halo exchange with rank ");
    } else {
        for (k = 1; k < 3 && state.nccl->status == DPAR_OK; k++) {
            lent_once((char *)memory, ranks, n, k, (char *)into);
        }
        if (dies_here) {
            cuda(cudaStreamSynchronize(state.stream));
        } else { /* closing has to wait for pending reads */
            cuda(cudaLaunchHostFunc(state.stream, sleep_long, NULL));
            cuda(cudaMemcpyAsync(into,
                                 state.nccl->engine.peer_address(state.nccl, memory, ranks[0]),
                                 LENT, cudaMemcpyDefault, state.stream));
        }
        CHECK_INT(dpar_barrier(state.nccl, NULL), dies_here ? DPAR_E_PEER : DPAR_E_TIMEOUT);
        has(state.nccl->why.text, dies_here
                                      ? "rank 1 is gone"
                                      : "synchronising the devices of a halo exchange with rank ");
        has(state.nccl->why.text, dies_here ? "gone" : " and 1 more, on rank ");
    }
    if (dies_here) {
        dpar_comm_release(state.nccl, memory);
    }
    (void)dpar_comm_free(state.nccl);
    CHECK_INT(cudaStreamSynchronize(state.stream), cudaSuccess);
    CHECK(dpari_os_now() - began < 4);
    if (dies_here && checks_failed == 0) {
        (void)__atomic_add_fetch(&page->told, 1, __ATOMIC_SEQ_CST);
    }
    return checks_failed > 0;
}

/* A rank aborts: the others get its message. */
static int aborts(dpar_comm *c, void *arg)
{
    (void)arg;
    begin_soon(c, 20);
    if (c->rank == 0) {
        dpar_comm_abort(state.nccl, DPAR_E_PARSE, "the input is bad");
        has(state.nccl->why.text, "the input is bad");
    } else {
        CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_E_PARSE);
        has(state.nccl->why.text, "rank 0 says: the input is bad");
    }
    nap(0.2);
    (void)dpar_comm_free(state.nccl);
    return checks_failed > 0;
}

/* The n-th call of a function of NCCL or CUDA fails, on one rank or on all: an error with the text
 * of the library, and nothing hangs. */
static int injected(dpar_comm *c, void *arg)
{
    const char *what = (const char *)arg;
    double began;
    dpar_status st;
    begin_soon(c, 3);
    if (strncmp(what, "cuda", 4) == 0) {
        if (c->rank == 1) {
/* the real library has no such function, and is only asked for its symbols */
#if defined(FAKE_CUDA)
            fake_cuda_fail(what);
#endif
        }
    } else {
        fail_as(what);
    }
    st = dpar_all_reduce(state.nccl, state.in, state.out, 8, DPAR_F32, DPAR_SUM, NULL);
    began = dpari_os_now();
    while (st >= 0 &&
           dpari_os_now() - began < 5) { /* an asynchronous error is noticed a little later */
        st = dpar_barrier(state.nccl, NULL);
    }
    CHECK(st < 0);
    CHECK(state.nccl->why.text[0] != 0);
    if (strncmp(what, "never", 5) !=
        0) { /* the others get the error, they do not wait for the timeout */
        CHECK(dpari_os_now() - began < 2);
    }
    if (verbose) {
        printf("%s: rank %d: %s\n", what, (int)c->rank, state.nccl->why.text);
    }
    if (st == DPAR_E_SYSTEM && strstr(state.nccl->why.text, "rank ") == NULL) {
        has(state.nccl->why.text, " says: ");
    }
    CHECK_INT(dpar_barrier(state.nccl, NULL), st);
    (void)dpar_comm_free(state.nccl);
    return checks_failed > 0;
}

/* Making a communicator fails on one rank: all ranks get its message. */
static int cannot_begin(dpar_comm *c, void *arg)
{
    dpar_nccl_desc o;
    dpar_comm *nccl = NULL;
    dpar_why why;
    void *at = NULL;
    int devices = 0;
    (void)arg;
    memset(&o, 0, sizeof o);
    o.timeout_s = 3;
    o.rank_order = c->rank == 1;
    take_device(c->rank);
    CHECK_INT(dpar_nccl_make(c, &o, &nccl, &why), DPAR_E_ARG);
    has(why.text, "rank_order needs desc.reduce_mem");
    o.rank_order = 0;
    o.elastic = c->rank == 0;
    CHECK_INT(dpar_nccl_make(c, &o, &nccl, &why), DPAR_E_MISMATCH);
    has(why.text, "different values of rank_order, elastic");
    o.elastic = 0;
    CHECK_INT(dpar_nccl_make(c, &o, &nccl, &why), DPAR_OK);
    cuda(cudaGetDeviceCount(&devices));
    if (devices > 1) {
        take_device(c->rank + 1);
        CHECK_INT(dpar_comm_alloc(nccl, 8, &at), DPAR_E_ARG);
        has(nccl->why.text, "is current in this thread");
        take_device(c->rank);
    }
    CHECK_INT(dpar_comm_alloc(nccl, 8, &at), DPAR_OK);
    CHECK_INT(dpar_comm_free(nccl), DPAR_OK);
    CHECK_INT(dpar_nccl_make(c, &o, NULL, &why), DPAR_E_ARG);
    has(why.text, "dpar_nccl_make: comm");
    return checks_failed > 0;
}

/* Leaves the last rank out; with arg, of a communicator that broke before. */
static int shrinks(dpar_comm *c, void *arg)
{
    dpar_nccl_desc o;
    dpar_comm *rest = NULL;
    dpar_why why;
    const int32_t gone = c->size - 1;
    float *b = (float *)(void *)state.b;
    memset(&o, 0, sizeof o);
    o.timeout_s = stand_in() ? 3 : 60;
    o.elastic = 1;
    begin(c, &o);
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    state.nccl->timeout_s = arg != NULL ? 1 : state.nccl->timeout_s;
    if (arg != NULL && c->rank != gone) { /* it does not call: all others time out */
        CHECK_INT(dpar_nccl_shrink(state.nccl, &gone, 0, &rest, &why), DPAR_E_ARG);
        CHECK(dpar_barrier(state.nccl, NULL) < 0);
        state.nccl->timeout_s = stand_in() ? 3 : 60;
    }
    if (c->rank == gone) {
        nap(arg != NULL ? 2 : 0.5);
    } else {
        CHECK_INT(dpar_nccl_shrink(state.nccl, &gone, 1, &rest, &why), DPAR_OK);
        CHECK(rest != NULL && rest->size == c->size - 1 && rest->rank == c->rank);
        if (rest != NULL) {
            ((float *)(void *)state.a)[0] = 2;
            upload(state.in, state.a);
            CHECK_INT(dpar_all_reduce(rest, state.in, state.out, 1, DPAR_F32, DPAR_SUM, NULL),
                      DPAR_OK);
            download(state.b, state.out);
            CHECK(b[0] == (float)(2 * rest->size));
            CHECK_INT(dpar_comm_free(rest), DPAR_OK);
        }
    }
    if (arg != NULL) { /* a broken communicator is freed without an error */
        (void)dpar_comm_free(state.nccl);
        return checks_failed > 0;
    }
    return end();
}

/* What broke on an elastic communicator stays on the stream if NCCL cannot revoke it (before
 * 2.28.7). An operation of another communicator after it must still end after the timeout. */
static int behind(dpar_comm *c, void *arg)
{
    dpar_nccl_desc o;
    dpar_comm *pair = NULL;
    double began;
    (void)arg;
    memset(&o, 0, sizeof o);
    o.timeout_s = 5;
    o.elastic = 1;
    begin(c, &o);
    dpari_nccl_ctx_of(state.nccl)->world->api.CommRevoke = NULL;
    CHECK_INT(dpar_comm_split(state.nccl, c->rank == 2 ? -1 : 0, 0, &pair), DPAR_OK);
    CHECK_INT(dpar_barrier(state.nccl, NULL), DPAR_OK);
    if (c->rank == 2) {
        nap(2.5);
    } else {
        CHECK_INT(dpar_barrier(pair, NULL), DPAR_OK);
        state.nccl->timeout_s = pair->timeout_s = 0.6;
        began = dpari_os_now(); /* making communicators takes seconds on a device */
        CHECK_INT(dpar_all_reduce(state.nccl, state.in, state.in, 9, DPAR_F32, DPAR_SUM, NULL),
                  DPAR_OK);
        CHECK_INT(dpar_barrier(pair, NULL), DPAR_E_TIMEOUT);
        CHECK(dpari_os_now() - began < 3);
        has(state.nccl->why.text, "rank 2 has not reached it");
    }
    (void)dpar_comm_free(state.nccl);
    (void)dpar_comm_free(pair);
    return checks_failed > 0;
}

/* ---- ways to meet ---- */

typedef struct meeting_case {
    dpar_nccl_rendezvous m;
    int size;
    int leave_out; /* rank that does not come; -1 for none */
    int broken;    /* 1: rank 0 gets no id from NCCL; 2: its descriptor is wrong */
} meeting_case;

/* Runs in one process per rank, without any communicator before. */
static int meets(const meeting_case *k, int rank)
{
    dpar_nccl_desc o;
    dpar_nccl_rendezvous m = k->m;
    dpar_comm *c = NULL;
    dpar_why why;
    int32_t one = 1 + rank, all = 0;
    dpar_status st;
    memset(&o, 0, sizeof o);
    o.timeout_s = stand_in() ? 15 : 60;
    if (k->leave_out >= 0) {
        o.timeout_s = stand_in() ? 0.8 : 5; /* on a device ranks need seconds to begin */
    }
    if (k->broken == 1 && rank == 0) {
        (void)setenv("FAKE_NCCL_FAIL", "ncclGetUniqueId:1", 1);
    }
    o.scratch_bytes = k->broken == 2 && rank == 0;
    m.rank = rank;
    m.size = k->size;
    take_device(rank);
    o.rendezvous = &m;
    st = dpar_nccl_make(NULL, &o, &c, &why);
    if (m.method == DPAR_NCCL_TCP) { /* it was set for NCCL */
        CHECK_TEXT(getenv("NCCL_COMM_ID"), "127.0.0.1:1");
    }
    if (k->leave_out >= 0) {
        CHECK_INT(st, DPAR_E_TIMEOUT);
        if (rank == 0 && m.method == DPAR_NCCL_ANY) { /* the store */
            has(why.text, ": 1 of 3 ranks did not come before the deadline; the first of them is "
                          "rank 2");
            return checks_failed > 0;
        }
        has(why.text, "making a communicator of 3 ranks: not finished after ");
        if (rank == 0 && m.method != DPAR_NCCL_ID) {
            has(why.text, "; not connected: ranks 2");
        }
        return checks_failed > 0;
    }
    if (k->broken && rank != 0) {
        CHECK_INT(st, DPAR_E_PEER);
        has(why.text, "rank 0 could not begin");
        return checks_failed > 0;
    }
    if (k->broken) {
        CHECK_INT(st, k->broken == 1 ? DPAR_E_SYSTEM : DPAR_E_ARG);
        has(why.text,
            k->broken == 1 ? "ncclGetUniqueId failed: NCCL says: " : "scratch_bytes is 64");
        return checks_failed > 0;
    }
    CHECK_INT(st, DPAR_OK);
    if (st < 0) {
        printf("rank %d: %s\n", rank, why.text);
        return 1;
    }
    CHECK_INT(dpar_all_reduce(c, &one, &all, 1, DPAR_I32, DPAR_SUM, NULL), DPAR_OK);
    CHECK_INT(all, k->size * (k->size + 1) / 2);
    CHECK(((dpari_nccl_ctx *)c->context)->world->side.links > 0);
    CHECK_INT(dpar_comm_free(c), DPAR_OK);
    return checks_failed > 0;
}

static int free_port(void)
{
    int32_t port = 0;
    const int fd = dpari_nccl_listen(1, &port);
    (void)close(fd);
    return (int)port;
}

/* ---- a server that speaks as PyTorch's TCPStore does ---- */

typedef struct store_entry {
    char key[100], value[600];
    int64_t sum;
    uint64_t bytes;
    int set;
} store_entry;
typedef struct store_caller {
    int fd;
    size_t got;
    char in[2000];
} store_caller;

static store_entry store[32];

static store_entry *store_find(const char *key, uint64_t bytes)
{
    int i = 0;
    while (store[i].key[0] != 0 &&
           (strlen(store[i].key) != bytes || memcmp(store[i].key, key, bytes) != 0)) {
        i++;
    }
    CHECK(i < 31 && bytes < sizeof store[i].key);
    memcpy(store[i].key, key, bytes);
    return &store[i];
}

/* Serves the first request of a caller. Returns its length, or 0 if it is not complete, or waits
 * for a key. */
static size_t store_serve(const store_caller *c)
{
    const char *at = c->in;
    const size_t keys = at[0] == DPARI_NCCL_WAIT ? 9 : 1, head = keys + 8;
    uint64_t length, more = 0;
    store_entry *entry;
    uint32_t magic;
    int64_t one;
    if (c->got > 4 && at[0] == DPARI_NCCL_VALIDATE) {
        memcpy(&magic, at + 1, sizeof magic);
        CHECK(magic == 0x3C85F7CE);
        return 5;
    }
    if (c->got < head) {
        return 0;
    }
    memcpy(&length, at + keys, sizeof length);
    if (c->got < head + length + 8 && (at[0] == DPARI_NCCL_SET || at[0] == DPARI_NCCL_ADD)) {
        return 0;
    }
    if (c->got < head + length) {
        return 0;
    }
    entry = store_find(at + head, length);
    at += head + length;
    switch (c->in[0]) {
    case DPARI_NCCL_ADD:
        memcpy(&one, at, sizeof one);
        entry->sum += one;
        CHECK(write(c->fd, &entry->sum, 8) == 8);
        more = 8;
        break;
    case DPARI_NCCL_SET:
        memcpy(&entry->bytes, at, sizeof entry->bytes);
        if (c->got < head + length + 8 + entry->bytes) {
            return 0;
        }
        CHECK(entry->bytes < sizeof entry->value);
        memcpy(entry->value, at + 8, entry->bytes);
        entry->value[entry->bytes] = 0;
        entry->sum = strtoll(entry->value, NULL, 10); /* if it is a number */
        entry->set = 1;
        more = 8 + entry->bytes;
        break;
    case DPARI_NCCL_WAIT:
        if (!entry->set) {
            return 0;
        }
        CHECK(write(c->fd, "", 1) == 1);
        break;
    case DPARI_NCCL_GET:
        CHECK(entry->set && write(c->fd, &entry->bytes, 8) == 8 &&
              write(c->fd, entry->value, entry->bytes) == (ssize_t)entry->bytes);
        break;
    default: CHECK(0); break;
    }
    return head + length + more;
}

/* Serves until `ends` is closed at its other end. */
static int store_run(int listener, int ends)
{
    static store_caller caller[16];
    struct pollfd p[18];
    int n = 0, i;
    checks_run = checks_failed = 0;
    for (;;) {
        p[0].fd = listener;
        p[1].fd = ends;
        for (i = 0; i < n; i++) {
            p[2 + i].fd = caller[i].fd;
        }
        for (i = 0; i < n + 2; i++) {
            p[i].events = POLLIN;
            p[i].revents = 0;
        }
        (void)poll(p, (nfds_t)n + 2, 1000);
        if (p[1].revents != 0) {
            return checks_failed > 0;
        }
        for (i = 0; i < n; i++) {
            store_caller *c = &caller[i];
            const ssize_t got =
                c->fd >= 0 ? recv(c->fd, c->in + c->got, sizeof c->in - c->got, MSG_DONTWAIT) : -1;
            size_t used;
            if (got == 0) {
                (void)close(c->fd);
                c->fd = -1;
            }
            c->got += got > 0 ? (size_t)got : 0;
            while (c->fd >= 0 && c->got > 0 && (used = store_serve(c)) > 0) {
                c->got -= used;
                memmove(c->in, c->in + used, c->got);
            }
        }
        if (p[0].revents != 0 && n < 16) {
            caller[n++].fd = accept(listener, NULL, NULL);
        }
    }
}

static int pipes[4][2];

/* A broadcast of the caller, over pipes that were made before the fork. */
static int by_pipes(void *user, void *buffer, size_t bytes, int root)
{
    const int *rank_size = (const int *)user;
    int r;
    if (rank_size[0] != root) {
        return read(pipes[rank_size[0]][0], buffer, bytes) == (ssize_t)bytes ? 0 : 1;
    }
    for (r = 0; r < rank_size[1]; r++) {
        if (r != root && write(pipes[r][1], buffer, bytes) != (ssize_t)bytes) {
            return 1;
        }
    }
    return 0;
}

static void meet_by(meeting_case *k, const char *what)
{
    pid_t child[4];
    int r, status, me[2];
    for (r = 0; r < k->size; r++) {
        CHECK_INT(pipe(pipes[r]), 0);
    }
    fflush(stdout);
    for (r = 0; r < k->size; r++) {
        child[r] = fork();
        if (child[r] == 0) {
            checks_run = checks_failed = 0;
            me[0] = r;
            me[1] = k->size;
            k->m.user = me;
            if (r == k->leave_out) {
                _exit(0);
            }
            nap(r == 0 && k->m.method == DPAR_NCCL_TCP ? 0.1 : 0);
            status = meets(k, r);
            fflush(stdout);
            _exit(status);
        }
    }
    for (r = 0; r < k->size; r++) {
        CHECK(waitpid(child[r], &status, 0) == child[r]);
        CHECK_INT(status, 0);
        if (status != 0) {
            printf("by %s: rank %d\n", what, r);
        }
        (void)close(pipes[r][0]), (void)close(pipes[r][1]);
    }
}

/* Tests the vectors of the authors of SipHash for 0, 8, 16 and 56 bytes. */
static void hashes(void)
{
    static const struct {
        int32_t words;
        unsigned char is[16];
    } of[] = {{0,
               {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55,
                0x02, 0x93}},
              {1,
               {0x3b, 0x62, 0xa9, 0xba, 0x62, 0x58, 0xf5, 0x61, 0x0f, 0x83, 0xe2, 0x64, 0xf3, 0x14,
                0x97, 0xb4}},
              {2,
               {0x6e, 0xe2, 0xa4, 0xca, 0x67, 0xb0, 0x54, 0xbb, 0xfd, 0x33, 0x15, 0xbf, 0x85, 0x23,
                0x05, 0x77}},
              {7,
               {0x19, 0x38, 0xf2, 0xcf, 0x72, 0xd5, 0x4e, 0xe9, 0x7e, 0x94, 0x16, 0x6f, 0xa9, 0x1d,
                0x2a, 0x36}}};
    unsigned char bytes[56];
    uint64_t word[7];
    dpari_nccl_bits key, out;
    size_t i;
    for (i = 0; i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)i;
    }
    memcpy(&key, bytes, sizeof key); /* on a processor whose numbers begin with the lowest byte */
    memcpy(word, bytes, sizeof word);
    for (i = 0; i < sizeof of / sizeof *of; i++) {
        out = dpari_nccl_sip(&key, word, of[i].words);
        CHECK(memcmp(&out, of[i].is, sizeof out) == 0);
    }
    out = key;
    CHECK(dpari_nccl_alike(&key, &out));
    out.word[1] ^= (uint64_t)1 << 63;
    CHECK(!dpari_nccl_alike(&key, &out));
}

/* Rank 0's listening side and a guest in one process, so that each step can be checked. */
typedef struct door {
    dpari_nccl_world host, guest;
    dpari_nccl_link link; /* of the guest */
    dpari_nccl_message hello, challenge, proof;
} door;

static void door_open(door *d)
{
    dpar_why why;
    dpari_nccl_card *card = &d->host.side.card;
    memset(d, 0, sizeof *d);
    d->host.size = d->guest.size = 3;
    d->guest.rank = 1;
    card->job = 99;
    memset(&card->key, 5, sizeof card->key);
    d->host.side.listener = dpari_nccl_listen(1, &card->port);
    CHECK(d->host.side.listener >= 0);
    dpari_nccl_loopback(&card->address[0]);
    card->addresses = 1;
    CHECK_INT(dpari_nccl_side_make(&d->host, &why), DPAR_OK);
    d->guest.side.card = *card;
}

static void door_close(door *d)
{
    dpari_nccl_side *s = &d->host.side;
    int r;
    for (r = 0; r < s->links; r++) {
        (void)(s->link[r].fd >= 0 ? close(s->link[r].fd) : 0);
    }
    while (s->knocks > 0) {
        dpari_nccl_knock_ends(s, 0, 1);
    }
    (void)close(s->listener);
    (void)close(d->host.wake[0]), (void)close(d->host.wake[1]);
    free(s->link), free(s->note), free(s->known), free(s->polls), free(s->knock);
}

/* Lets rank 0 handle its connections, none of which may make it wait. */
static void door_looks(door *d)
{
    const double began = dpari_os_now();
    nap(0.005);
    dpari_nccl_accept(&d->host);
    CHECK(dpari_os_now() - began < 0.3);
}

/* Connects, says hello, and receives rank 0's challenge. Returns 1 on success. */
static int door_knock(door *d)
{
    CHECK_INT(dpari_nccl_reach(&d->guest, &d->link, dpari_os_now() + 2), 0);
    door_looks(d);
    return dpari_nccl_read(d->link.fd, &d->challenge, sizeof d->challenge, dpari_os_now() + 1) ==
               0 &&
           d->challenge.kind == DPARI_NCCL_CHALLENGE;
}

/* Sends this as the proof and checks that rank 0 disconnects. */
static int door_refuses(door *d, const dpari_nccl_message *proof)
{
    const int before = d->host.side.link[1].fd;
    char byte;
    CHECK_INT(dpari_nccl_write(d->link.fd, proof, sizeof *proof, dpari_os_now() + 1), 0);
    door_looks(d);
    CHECK_INT(d->host.side.link[1].fd, before);
    CHECK_INT(d->host.side.link[2].fd, -1);
    CHECK_INT(dpari_nccl_read(d->link.fd, &byte, 1, dpari_os_now() + 1), -1);
    return close(d->link.fd) == 0;
}

static void door_proof(door *d, dpari_nccl_message *m)
{
    dpari_nccl_bits said, proof;
    memcpy(&said, d->challenge.text, sizeof said);
    proof = dpari_nccl_prove(&d->guest, 0, d->guest.rank, &d->link.drawn, &said);
    dpari_nccl_message_init(&d->guest, m, DPARI_NCCL_PROOF);
    memcpy(m->text, &proof, sizeof proof);
}

/* Connects without saying anything. */
static int door_call(const door *d)
{
    const dpari_nccl_card *card = &d->guest.side.card;
    dpari_nccl_sockaddr name;
    const socklen_t bytes = dpari_nccl_socket_name(&card->address[0], card->port, &name);
    return dpari_nccl_connect(&name.any, bytes, dpari_os_now() + 1);
}

static void doors(void)
{
    enum { CROWD = 100 };
    static door d;
    dpari_nccl_message first, m;
    dpari_nccl_bits drawn;
    int fd[CROWD], genuine, quiet, i, k;
    door_open(&d);
    CHECK(door_knock(&d)); /* a rank of the job */
    CHECK(dpari_nccl_genuine(&d.guest, &d.link, &d.challenge));
    door_proof(&d, &first);
    drawn = d.link.drawn;
    CHECK_INT(dpari_nccl_enter(&d.guest, &d.link, &d.challenge, dpari_os_now() + 1), 0);
    door_looks(&d);
    CHECK_INT(d.host.side.link[1].state, DPARI_NCCL_HERE);
    genuine = d.link.fd;

    quiet = door_call(&d); /* says nothing in all that follows */
    CHECK(quiet >= 0);
    /* Somebody repeats all that was sent, word by word. */
    CHECK(door_knock(&d));
    CHECK(memcmp(&d.link.drawn, &drawn, sizeof drawn) != 0);
    CHECK(door_refuses(&d, &first));
    fd[0] = door_call(&d);
    dpari_nccl_message_init(&d.guest, &m, DPARI_NCCL_HELLO);
    memcpy(m.text, &drawn, sizeof drawn);
    CHECK_INT(dpari_nccl_write(fd[0], &m, sizeof m, dpari_os_now() + 1), 0);
    door_looks(&d);
    CHECK_INT(dpari_nccl_read(fd[0], &m, sizeof m, dpari_os_now() + 1), 0);
    d.link.fd = fd[0];
    CHECK(memcmp(m.text, d.challenge.text, sizeof drawn) != 0);
    CHECK(door_refuses(&d, &first));

    CHECK(door_knock(&d)); /* rank 0's own proof, sent back */
    dpari_nccl_message_init(&d.guest, &m, DPARI_NCCL_PROOF);
    memcpy(m.text, d.challenge.text + sizeof drawn, sizeof drawn);
    CHECK(door_refuses(&d, &m));

    d.guest.side.card.key.word[1] ^= 1; /* another key: each side refuses the other */
    CHECK(door_knock(&d));
    CHECK(!dpari_nccl_genuine(&d.guest, &d.link, &d.challenge));
    door_proof(&d, &m);
    CHECK(door_refuses(&d, &m));
    d.guest.side.card.key.word[1] ^= 1;

    CHECK(door_knock(&d)); /* one rank's proof after another rank's hello */
    d.guest.rank = 2;
    door_proof(&d, &m);
    d.guest.rank = 1;
    CHECK(door_refuses(&d, &m));
    CHECK(door_knock(&d)); /* one bit is wrong */
    door_proof(&d, &m);
    m.text[15] ^= 1;
    CHECK(door_refuses(&d, &m));

    for (k = 0; k < 3; k++) { /* garbage: another protocol, half of a hello, no hello */
        static const unsigned char noise[600] = {'G', 'E', 'T', ' ', '/', ' ', 'H', 'T'};
        fd[0] = door_call(&d);
        dpari_nccl_message_init(&d.guest, &m, k == 1 ? 77 : DPARI_NCCL_PROOF);
        CHECK(k == 0 ? write(fd[0], noise, sizeof noise) == (ssize_t)sizeof noise
                     : write(fd[0], &m, sizeof m) == (ssize_t)sizeof m);
        door_looks(&d);
        CHECK_INT(d.host.side.knocks, 1); /* the silent one */
        (void)close(fd[0]);
    }

    for (i = 0; i < CROWD; i++) { /* silent connections, more than there is space for */
        fd[i] = door_call(&d);
        CHECK(fd[i] >= 0);
    }
    door_looks(&d);
    CHECK_INT(d.host.side.knocks, d.host.side.knocks_room);
    for (k = 0; k < 2; k++) {
        CHECK(door_knock(&d)); /* a rank of the job again, whose newest connection counts */
        CHECK_INT(dpari_nccl_enter(&d.guest, &d.link, &d.challenge, dpari_os_now() + 1), 0);
        door_looks(&d);
        CHECK_INT(d.host.side.link[1].state, DPARI_NCCL_HERE);
        CHECK_INT(dpari_nccl_read(genuine, &m, 1, dpari_os_now() + 1), -1);
        (void)close(genuine);
        genuine = d.link.fd;
    }
    for (i = 0; i < d.host.side.knocks; i++) { /* as if it were later */
        d.host.side.knock[i].since -= 2 * (int)DPARI_NCCL_PATIENCE;
    }
    /* a slow connection has no more time than the others */
    CHECK(write(fd[CROWD - 1], &first, 20) == 20);
    door_looks(&d);
    CHECK_INT(d.host.side.knocks, 0);
    CHECK_INT(d.host.side.link[1].state, DPARI_NCCL_HERE);
    for (i = 0; i < CROWD; i++) {
        (void)close(fd[i]);
    }
    (void)close(genuine), (void)close(quiet);
    door_close(&d);
}

/* Rank 0 sent a message and ended, with the answer unread: the message is received, although no
 * more can be sent. */
static void last_words(void)
{
    static door d;
    dpari_nccl_message m;
    door_open(&d);
    CHECK(door_knock(&d));
    CHECK_INT(dpari_nccl_enter(&d.guest, &d.link, &d.challenge, dpari_os_now() + 1), 0);
    door_looks(&d);
    d.guest.side.links = 1;
    d.guest.side.link = &d.link;
    d.link.state = DPARI_NCCL_HERE;
    d.link.got = 0;
    dpari_nccl_message_init(&d.guest, &m, DPARI_NCCL_NOTE);
    dpari_nccl_link_send(&d.link, &m);
    nap(0.01);
    dpari_nccl_message_init(&d.host, &m, DPARI_NCCL_END);
    dpari_nccl_link_send(&d.host.side.link[1], &m);
    (void)close(d.host.side.link[1].fd);
    d.host.side.link[1].fd = -1;
    nap(0.01);
    dpari_nccl_message_init(&d.guest, &m, DPARI_NCCL_NOTE);
    dpari_nccl_link_send(&d.link, &m);
    dpari_nccl_link_send(&d.link, &m);
    CHECK_INT(d.guest.side.answered, 0);
    dpari_nccl_listen_to(&d.guest, 0);
    CHECK_INT(d.guest.side.answered, 1);
    CHECK_INT(d.link.state, DPARI_NCCL_LOST);
    CHECK_INT(d.link.fd, -1);
    door_close(&d);
}

/* Tests what the doctor prints about where rank 0 listens. */
static void listens(int32_t local, const char *words)
{
    dpari_nccl_side s;
    dpari_nccl_sockaddr name;
    socklen_t bytes = sizeof name;
    char text[400];
    dpar_text t;
    memset(&s, 0, sizeof s);
    s.local = local;
    s.listener = dpari_nccl_listen(local, &s.card.port);
    CHECK(s.listener >= 0);
    CHECK_INT(getsockname(s.listener, &name.any, &bytes), 0);
    CHECK_INT(name.any.sa_family == AF_INET && ntohl(name.four.sin_addr.s_addr) >> 24 == 127,
              local);
    dpar_text_init(&t, text, sizeof text);
    dpari_nccl_put_door(&s, &t);
    has(text, words);
    (void)close(s.listener);
}

/* Rank 0's first address does not answer, as behind a firewall: the next one is used, and an
 * address that did not answer is not tried again at once. */
static void unreachable(void)
{
    dpari_nccl_world w;
    dpari_nccl_link link, to;
    struct sockaddr_in name;
    socklen_t bytes = sizeof name;
    int fd[8], i, n = 0, good;
    double began;
    memset(&w, 0, sizeof w);
    memset(&link, 0, sizeof link);
    memset(&name, 0, sizeof name);
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(0x7f000002);
    fd[n++] = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd[0], (struct sockaddr *)(void *)&name, bytes) != 0) {
        (void)close(fd[0]); /* this address does not exist here */
        return;
    }
    CHECK(listen(fd[0], 0) == 0);
    CHECK(getsockname(fd[0], (struct sockaddr *)(void *)&name, &bytes) == 0);
    w.side.card.port = ntohs(name.sin_port);
    w.side.card.addresses = 1;
    w.side.card.address[0].family = w.side.card.address[1].family = AF_INET;
    w.side.card.address[0].at[0] = w.side.card.address[1].at[0] = 127;
    w.side.card.address[0].at[3] = 2;
    w.side.card.address[1].at[3] = 1;
    while (n < 7 && dpari_nccl_reach(&w, &to, dpari_os_now() + 0.2) == 0) {
        fd[n++] = to.fd; /* until the backlog of that port is full */
    }
    CHECK(n < 7);
    w.rank = 1;
    w.side.links = 1;
    w.side.link = &link;
    link.fd = -1;
    dpari_nccl_mend(&w);
    began = dpari_os_now();
    dpari_nccl_mend(&w);
    CHECK(dpari_os_now() - began < 0.1 && link.fd == -1 && link.state == DPARI_NCCL_AWAY);
    good = socket(AF_INET, SOCK_STREAM, 0);
    name.sin_addr.s_addr = htonl(0x7f000001);
    CHECK(bind(good, (struct sockaddr *)(void *)&name, bytes) == 0 && listen(good, 4) == 0);
    w.side.card.addresses = 2;
    CHECK_INT(dpari_nccl_reach(&w, &to, dpari_os_now() + 0.6), 0);
    fd[n] = to.fd;
    for (i = 0; i <= n; i++) {
        (void)close(fd[i]);
    }
    (void)close(good);
}

/* What one process can see of stores that are not there, and of wrong descriptions. */
static int meets_nobody(void)
{
    static const int32_t refused[] = {DPAR_NCCL_PMI, DPAR_NCCL_FILE};
    char text[40];
    dpar_comm *c = NULL;
    dpar_nccl_rendezvous none;
    dpar_nccl_desc o;
    dpar_why why;
    int stranger, i;
    int32_t port = free_port();
    pid_t server;
    checks_run = checks_failed = 0;
    (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
    (void)setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    (void)snprintf(text, sizeof text, "%d", port);
    (void)setenv("MASTER_PORT", text, 1);
    memset(&none, 0, sizeof none);
    memset(&o, 0, sizeof o);
    o.rendezvous = &none;
    o.timeout_s = 0.5;
    none.size = 2;
    none.rank = 1;
    take_device(0);
    CHECK_INT(dpar_nccl_make(NULL, &o, &c, &why), DPAR_E_TIMEOUT);
    has(why.text, "torchrun's store at 127.0.0.1, port ");
    has(why.text, " was not reached before the deadline");
    stranger = dpari_nccl_listen(1, &port); /* accepts connections and never answers */
    CHECK(stranger >= 0);
    (void)snprintf(text, sizeof text, "%d", port);
    (void)setenv("MASTER_PORT", text, 1);
    CHECK_INT(dpar_nccl_make(NULL, &o, &c, &why), DPAR_E_TIMEOUT);
    has(why.text, "rank 0 stored no id in torchrun's store at 127.0.0.1, port ");
    none.rank = 0;
    CHECK_INT(dpar_nccl_make(NULL, &o, &c, &why), DPAR_E_TIMEOUT);
    has(why.text, " did not answer before the deadline");
    none.rank = 1;
    fflush(stdout);
    server = fork();
    if (server == 0) { /* accepts a connection and closes it */
        struct pollfd p;
        p.fd = stranger;
        p.events = POLLIN;
        while (poll(&p, 1, 5000) == 1 && (i = accept(stranger, NULL, NULL)) >= 0) {
            (void)close(i);
        }
        _exit(0);
    }
    (void)close(stranger);
    o.timeout_s = 5;
    CHECK_INT(dpar_nccl_make(NULL, &o, &c, &why), DPAR_E_SYSTEM);
    has(why.text, " is not torchrun's store: set DPAR_NCCL_PORT");
    (void)kill(server, SIGKILL);
    CHECK(waitpid(server, NULL, 0) == server);
    (void)unsetenv("MASTER_PORT"), (void)unsetenv("MASTER_ADDR");
    (void)unsetenv("TORCHELASTIC_USE_AGENT_STORE");

    unreachable();
    CHECK_INT(dpar_nccl_make(NULL, &o, &c, &why), DPAR_E_ARG);
    has(why.text, "set MASTER_ADDR and MASTER_PORT, or NCCL_COMM_ID=host:port");
    for (i = 0; i < 2; i++) {
        none.method = refused[i];
        CHECK_INT(dpar_nccl_make(NULL, &o, &c, &why), DPAR_E_ARG);
        has(why.text, "methods DPAR_NCCL_PMI and DPAR_NCCL_FILE are not supported");
    }
    none.method = DPAR_NCCL_ANY;
    none.rank = 2;
    CHECK_INT(dpar_nccl_make(NULL, &o, &c, &why), DPAR_E_ARG);
    fflush(stdout);
    return checks_failed > 0;
}

static void meetings(void)
{
    meeting_case k;
    char text[40];
    int ends[2], listener, status;
    int32_t port = 0;
    pid_t server;
    memset(&k, 0, sizeof k);
    k.size = 3;
    k.leave_out = -1;
    k.m.job = 4710;
    k.m.method = DPAR_NCCL_TCP;
    k.m.address = "localhost";
    k.m.port = free_port();
    (void)setenv("NCCL_COMM_ID", "127.0.0.1:1", 1);
    meet_by(&k, "TCP, where NCCL listens");
    (void)snprintf(text, sizeof text, "127.0.0.1:%d", free_port());
    (void)setenv("NCCL_COMM_ID", text, 1);
    k.m.method = DPAR_NCCL_ID;
    meet_by(&k, "NCCL_COMM_ID");
    if (stand_in()) {
        k.leave_out = 2;
        meet_by(&k, "NCCL_COMM_ID without rank 2");
        k.leave_out = -1;
    }
    (void)unsetenv("NCCL_COMM_ID");

    CHECK_INT(pipe(ends), 0); /* torchrun's store */
    listener = dpari_nccl_listen(1, &port);
    fflush(stdout);
    server = fork();
    if (server == 0) {
        (void)close(ends[1]);
        _exit(store_run(listener, ends[0]));
    }
    (void)close(listener);
    (void)snprintf(text, sizeof text, "%d", port);
    (void)setenv("MASTER_PORT", text, 1);
    (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
    (void)setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    k.m.method = DPAR_NCCL_ANY;
    k.m.address = NULL;
    k.m.port = 0;
    meet_by(&k, "the store");
    meet_by(&k, "the store, once more");
    k.leave_out = 2;
    meet_by(&k, "the store, without rank 2");
    k.leave_out = -1;
    k.broken = stand_in();
    meet_by(&k, "the store, if rank 0 cannot begin"); /* and what others stored is still there */
    k.broken = 0;
    meet_by(&k, "the store, after failures");
    (void)close(ends[0]), (void)close(ends[1]);
    CHECK(waitpid(server, &status, 0) == server);
    CHECK_INT(status, 0);
    (void)unsetenv("MASTER_PORT"), (void)unsetenv("MASTER_ADDR");
    (void)unsetenv("TORCHELASTIC_USE_AGENT_STORE");

    k.m.method = DPAR_NCCL_CALLBACK;
    k.m.broadcast = by_pipes;
    meet_by(&k, "callback");
    k.leave_out = 2;
    meet_by(&k, "callback without rank 2");
    k.leave_out = -1;
    k.broken = stand_in();
    meet_by(&k, "callback, if rank 0 cannot begin");
    k.broken = 2;
    meet_by(&k, "callback, if rank 0 has a wrong descriptor");
    fflush(stdout);
    server = fork(); /* because it calls CUDA, after which this process cannot fork ranks */
    if (server == 0) {
        _exit(meets_nobody());
    }
    CHECK(waitpid(server, &status, 0) == server);
    CHECK_INT(status, 0);
}

/* A rank that a launcher started meets through this node's memory (which `any` selects there), or
 * through MPI. Prints one line per rank. */
static int launched(const char *way)
{
    dpar_nccl_rendezvous m;
    dpar_nccl_desc o;
    dpar_comm *c = NULL, *host = NULL;
    dpar_launcher_info job;
    dpar_why why;
    int64_t mine = 0, all = 0;
    dpar_status st;
    memset(&m, 0, sizeof m);
    memset(&o, 0, sizeof o);
    m.method = strcmp(way, "node") == 0 ? DPAR_NCCL_NODE : DPAR_NCCL_ANY;
    o.timeout_s = 30;
    memset(&job, 0, sizeof job);
#ifdef USE_MPI
    MPI_Init(NULL, NULL);
    CHECK_INT(dpar_mpi_make(MPI_COMM_WORLD, NULL, &host, &why), DPAR_OK);
    take_device(host->rank);
    st = dpar_nccl_make(host, &o, &c, &why);
#else
    CHECK_INT(dpar_launcher_detect(&job, &why), DPAR_OK);
    take_device(job.rank);
    o.rendezvous = strcmp(way, "any") == 0 ? NULL : &m;
    st = dpar_nccl_make(NULL, &o, &c, &why);
#endif
    CHECK_INT(st, DPAR_OK);
    if (st == DPAR_OK) {
        mine = (int64_t)1 << 8 * c->rank; /* one byte per rank: each arrived once */
        CHECK_INT(dpar_all_reduce(c, &mine, &all, 1, DPAR_I64, DPAR_SUM, NULL), DPAR_OK);
        CHECK(all == (((int64_t)1 << 8 * c->size) - 1) / 255);
        printf("rank %d of %d by %s\n", (int)c->rank, (int)c->size, way);
        CHECK_INT(dpar_comm_free(c), DPAR_OK);
    } else {
        puts(why.text);
    }
    (void)dpar_comm_free(host);
#ifdef USE_MPI
    MPI_Finalize();
#endif
    return checks_failed > 0;
}

/* ---- without any rank ---- */

/* Returns how many lines are WRONG in what the doctor prints about a log; `words` gets all
 * lines. */
static int32_t judged(const char *file, const void *log, size_t bytes, int shared, char *words,
                      size_t room)
{
    dpar_text t;
    int32_t wrong = 0;
    FILE *f = log != NULL ? fopen(file, "wb") : NULL;
    if (f != NULL) {
        CHECK(fwrite(log, 1, bytes, f) == bytes);
        CHECK_INT(fclose(f), 0);
    }
    dpar_text_init(&t, words, room);
    dpari_nccl_put_log(file, shared, &t, &wrong);
    return wrong;
}

/* Tests complete and bad logs: cut after each byte, empty, missing, random bytes, huge. The memory
 * of each cut has exactly its length, so that a sanitizer detects reads past it. */
static void logs(const char *log, size_t bytes)
{
    /* As NCCL 2.27 and 2.30 write them, on a node with NVLink, and over InfiniBand. */
    static const char inside[] =
        "n0:7:9 [2] NCCL INFO Initialized NET plugin IB\n"
        "n0:7:9 [2] NCCL INFO Assigned NET plugin IB to comm\n"
        "n0:7:9 [2] NCCL INFO Using network IB\r\n"
        "n0:7:9 [2] NCCL INFO P2P Chunksize set to 524288\n"
        "n0:7:8 [2] NCCL INFO Channel 00/0 : 2[2] -> 3[3] via P2P/CUMEM\n"
        "n0:7:8 [2] NCCL INFO Channel 01 : 2[2] -> 3[3] via SHM/direct\n"
        "n0:7:8 [2] NCCL INFO Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0/GDRDMA(PCI)\n"
        "n0:7:8 [2] NCCL INFO Channel 00/0 : 7[3] -> 0[0] [receive] via NET/IBext_v8/0/GDRDMA\n"
        "n0:7:8 [2] NCCL INFO CollNet 00/0 : 2 [send] via COLLNET/SHARP/0/GDRDMA\n";
    static const char quiet[] = "n0:7:9 [2] NCCL INFO Using network Socket\n";
    dpari_nccl_transport t, before;
    char file[80], words[2000], *noise;
    uint32_t lot = 5;
    size_t i;
    FILE *f;
    memset(&before, 0, sizeof before);
    for (i = 0; i <= bytes; i++) {
        char *cut = (char *)malloc(i + 1);
        char *exact = (char *)realloc(cut, i > 0 ? i : 1);
        memcpy(exact, log, i);
        dpari_nccl_read_log(exact, i, &t);
        CHECK(t.p2p >= before.p2p && t.shm >= before.shm && t.socket >= before.socket &&
              t.ib >= before.ib && t.other >= before.other);
        before.p2p = t.p2p, before.shm = t.shm, before.socket = t.socket;
        before.ib = t.ib, before.other = t.other;
        free(exact);
    }
    (void)snprintf(file, sizeof file, "/tmp/dpar_nccl_log.%d", (int)getpid());
    CHECK_INT(judged(file, inside, sizeof inside - 1, 0, words, sizeof words), 0);
    has(words, "1 by P2P, 1 by shared memory, 2 by InfiniBand, 0 by sockets, 1 by others; network "
               "IB\n");
    CHECK_INT(judged(file, log, bytes, 0, words, sizeof words), 1); /* one line is about a socket */
    has(words, "1 by sockets, 1 by others; network AWS Libfabric\nWRONG: NCCL moves data through "
               "TCP sockets");
    has(words, "NCCL_NET=\"AWS Libfabric\"");
    CHECK_INT(judged(file, log, bytes, 1, words, sizeof words), 0); /* ranks share a device */
    CHECK_INT(judged(file, quiet, sizeof quiet - 1, 0, words, sizeof words), 0);
    has(words, "none yet");
    has(words, "network Socket");
    CHECK_INT(judged(file, "", 0, 0, words, sizeof words), 0);
    has(words, "network not known");
    noise = (char *)malloc(100000);
    for (i = 0; i < 100000; i++) {
        lot = mixed(lot + 1);
        noise[i] = (char)lot;
    }
    memcpy(noise + 500, "Using network \x01\xff", 16);
    memcpy(noise + 99990, "via NET/So", 10); /* the file ends within it */
    CHECK_INT(judged(file, noise, 100000, 0, words, sizeof words), 0);
    has(words, "none yet");
    has(words, "network not known");
    free(noise);
    f = fopen(file, "wb"); /* 80 MiB with only the first line: read up to 64 */
    CHECK(f != NULL && fputs("Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n", f) >= 0 &&
          fclose(f) == 0 && truncate(file, (off_t)80 << 20) == 0);
    CHECK_INT(judged(file, NULL, 0, 0, words, sizeof words), 1);
    (void)unlink(file);
    CHECK_INT(judged(file, NULL, 0, 0, words, sizeof words), 0); /* no file */
    has(words, "not known -> set log_file");
    CHECK_INT(judged("/", NULL, 0, 0, words, sizeof words), 0);
    has(words, "not known");
}

static void pure(void)
{
    /* Lines as NCCL 2.21 writes them. */
    static const char log[] =
        "n0:1:2 [0] NCCL INFO NET/Socket : Using [0]hsn0:10.0.0.1<0>\n"
        "n0:1:2 [0] NCCL INFO Using network AWS Libfabric\n"
        "n0:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        "n0:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/IPC/read\n"
        "n0:1:2 [0] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct\n"
        "n0:1:2 [0] NCCL INFO Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0/GDRDMA\n"
        "n0:1:2 [0] NCCL INFO Channel 00/0 : 3[3] -> 4[0] [send] via NET/Socket/0\n"
        "n0:1:2 [0] NCCL INFO Channel 00/0 : 3[3] -> 4[0] [send] via NET/AWS Libfabric/0\n"
        "v";
    dpari_nccl_transport t;
    dpari_nccl_api api;
    dpari_nccl_world *w = NULL;
    char words[2000];
    dpar_text text;
    dpar_why why;
    int32_t version = 0;
    dpari_nccl_read_log(log, sizeof log - 1, &t);
    CHECK_INT(t.p2p, 2);
    CHECK_INT(t.shm, 1);
    CHECK_INT(t.ib, 1);
    CHECK_INT(t.socket, 1);
    CHECK_INT(t.other, 1);
    CHECK_TEXT(t.network, "AWS Libfabric");
    logs(log, sizeof log - 1);
    /* Versions lack functions. */
    CHECK_INT(dpari_nccl_load(&api, &why), DPAR_OK);
    CHECK_INT(nccl_version(&version, &why), DPAR_OK);
    CHECK_INT(version, api.version);
    CHECK((api.AlltoAll != NULL) == (version >= 22803));
    CHECK((api.CommShrink != NULL) == (version >= 22703));
    CHECK((api.MemAlloc != NULL) == (version >= 21901));
    dpari_nccl_by_version(&api, 21801);
    CHECK(api.CommSplit != NULL && api.MemAlloc == NULL && api.AlltoAll == NULL &&
          api.Send != NULL);
    dpar_text_init(&text, words, sizeof words);
    CHECK_INT(dpar_nccl_doctor(NULL, &text), 0);
    has(words, "NCCL 2.");
    (void)setenv("NCCL_COMM_BLOCKING", "1", 1); /* disables the timeout */
    dpar_text_init(&text, words, sizeof words);
    CHECK_INT(dpar_nccl_doctor(NULL, &text), 1);
    has(words, "WRONG: NCCL_COMM_BLOCKING=1");
    (void)unsetenv("NCCL_COMM_BLOCKING");
    CHECK(dpar_nccl_stream(NULL) == NULL);
    /* Several ranks on one device: depends on the version. */
    (void)setenv("DPAR_TEST_SHARE_GPU", "1", 1);
    dpari_nccl_share_device(23002, 3);
    (void)snprintf(words, sizeof words, "dpar-3-%d", (int)getpid());
    CHECK_TEXT(getenv("NCCL_HOSTID"), words);
    CHECK_TEXT(getenv("NCCL_NET"), "Socket");
    CHECK_TEXT(getenv("NCCL_SOCKET_IFNAME"), "lo");
    CHECK(getenv("NCCL_MULTI_RANK_GPU_ENABLE") == NULL);
    (void)setenv("DPAR_TEST_SHARE_GPU", "hosts", 1);
    dpari_nccl_share_device(23207, 3);
    CHECK(getenv("NCCL_MULTI_RANK_GPU_ENABLE") == NULL);
    (void)setenv("DPAR_TEST_SHARE_GPU", "1", 1);
    (void)unsetenv("NCCL_HOSTID"), (void)unsetenv("NCCL_NET");
    dpari_nccl_share_device(23003, 3);
    CHECK_TEXT(getenv("NCCL_MULTI_RANK_GPU_ENABLE"), "1");
    CHECK_TEXT(getenv("NCCL_MAX_CTAS"), "1");
    CHECK(getenv("NCCL_HOSTID") == NULL && getenv("NCCL_NET") == NULL);
    (void)unsetenv("DPAR_TEST_SHARE_GPU"), (void)unsetenv("NCCL_HOSTID");
    (void)unsetenv("NCCL_SOCKET_IFNAME"), (void)unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    (void)unsetenv("NCCL_MAX_CTAS"), (void)unsetenv("NCCL_BUFFSIZE");
    (void)unsetenv("NCCL_NVLS_ENABLE");
    {
        const char *kept = getenv("DPAR_NCCL_LIBRARY");
        char name[4096];
        (void)snprintf(name, sizeof name, "%s", kept != NULL ? kept : "");
        (void)setenv("DPAR_NCCL_LIBRARY", "no such file", 1);
        CHECK_INT(nccl_version(&version, &why), DPAR_E_SYSTEM);
        has(why.text, "cannot load NCCL: no such file");
        (void)(name[0] != 0 ? setenv("DPAR_NCCL_LIBRARY", name, 1) : unsetenv("DPAR_NCCL_LIBRARY"));
    }
    (void)w;
}

/* Loads the real library if there is one: all its functions are found, and an id can be made. */
static void real_library(const char *path)
{
    dpari_nccl_api api;
    ncclUniqueId id;
    dpar_why why;
    (void)setenv("DPAR_NCCL_LIBRARY", path, 1);
    if (dpari_nccl_load(&api, &why) != DPAR_OK) {
        puts(why.text);
        CHECK(0);
        return;
    }
    CHECK(api.version >= DPARI_NCCL_OLDEST);
    CHECK(api.CommSplit != NULL); /* functions by version, as the tags of its header say */
    CHECK((api.MemAlloc != NULL && api.CommRegister != NULL) == (api.version >= 21901));
    CHECK((api.CommShrink != NULL && api.CommWindowRegister != NULL) == (api.version >= 22703));
    CHECK((api.AlltoAll != NULL && api.Gather != NULL && api.Scatter != NULL) ==
          (api.version >= 22803));
    CHECK((api.CommRevoke != NULL) == (api.version >= 22807));
    CHECK((api.GetPeerDevicePointer != NULL) == (api.version >= 22902));
    printf("NCCL %d\n", (int)api.version);
    memset(&id, 0, sizeof id);
    (void)setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    CHECK_INT(api.GetUniqueId(&id), ncclSuccess);
}

/* ---- the program ---- */

static const char *wanted;
static int ranks_wanted;

/* Runs one rank in a new process: after the first CUDA call a process cannot fork ranks. */
static dpar_status alone(dpar_main each, void *arg)
{
    int status = 1;
    const pid_t child = fork();
    if (child == 0) {
        const dpar_status st = dpar_launch(1, each, arg, NULL, NULL);
        fflush(stdout);
        _exit(st != DPAR_OK);
    }
    return waitpid(child, &status, 0) == child && status == 0 ? (dpar_status)DPAR_OK
                                                              : (dpar_status)DPAR_E_PEER;
}

/* The timeouts of these tests are parts of a second, and this machine may be a virtual one that
 * pauses that long. On each processor a process sleeps for 10 ms at a time and records by how much
 * it overslept. */
static pid_t watcher[CPUS];

static void watch(void)
{
    cpu_set_t here;
    int cpu;
    fflush(stdout);
    for (cpu = 0; cpu < CPUS; cpu++) {
        CPU_ZERO(&here);
        CPU_SET(cpu, &here);
        watcher[cpu] = fork();
        if (watcher[cpu] != 0) {
            continue;
        }
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (sched_setaffinity(0, sizeof here, &here) != 0) {
            _exit(0); /* not a rank */
        }
        for (;;) {
            const double began = dpari_os_now();
            int ms;
            dpari_os_sleep(0.01);
            ms = (int)(1000 * (dpari_os_now() - began));
            if (ms > page->stalled_ms[cpu]) {
                page->stalled_ms[cpu] = ms;
            }
        }
    }
}

static void unwatch(void)
{
    int cpu;
    for (cpu = 0; cpu < CPUS; cpu++) {
        if (watcher[cpu] > 0) {
            (void)kill(watcher[cpu], SIGKILL);
            (void)waitpid(watcher[cpu], NULL, 0);
        }
    }
}

/* Counts the attempts of a test of timeouts. It is repeated, at most three times, if checks failed
 * while the machine paused for a quarter of the shortest timeout. */
typedef struct attempt {
    int failed, times;
} attempt;

static int again(attempt *a)
{
    int cpu, longest = 0;
    for (cpu = 0; cpu < CPUS; cpu++) {
        longest = page->stalled_ms[cpu] > longest ? page->stalled_ms[cpu] : longest;
        page->stalled_ms[cpu] = 0;
    }
    if (a->times++ == 0) {
        a->failed = checks_failed;
    } else if (checks_failed == a->failed || longest < 150 || a->times > 3) {
        return 0;
    } else {
        printf("the machine stood still for %d ms: once more\n", longest);
        checks_failed = a->failed;
    }
    fflush(stdout);
    page->told = 0;
    return 1;
}

/* A section. Its ranks count their own checks, without the failures before. */
typedef struct section_case {
    dpar_main each;
    void *arg;
} section_case;

static int rank_of_section(dpar_comm *c, void *arg)
{
    const section_case *s = (const section_case *)arg;
    checks_failed = 0;
    return s->each(c, s->arg);
}

static void section(const char *name, dpar_main each, void *arg, int first, int last, int fails)
{
    section_case of;
    dpar_world_desc o;
    dpar_why why;
    int n;
    if (wanted != NULL && strcmp(wanted, name) != 0) {
        return;
    }
    of.each = each;
    of.arg = arg;
    memset(&o, 0, sizeof o);
    o.timeout_s = 60;
    o.grace_s = 20;
    for (n = first; n <= last; n++) {
        const double began = dpari_os_now();
        dpar_status st;
        if (ranks_wanted > 0 && n != ranks_wanted) {
            continue;
        }
        fflush(stdout);
        st = n == 1 ? alone(rank_of_section, &of) : dpar_launch(n, rank_of_section, &of, &o, &why);
        CHECK_INT(st, fails ? DPAR_E_PEER : DPAR_OK);
        if (st != (fails ? DPAR_E_PEER : DPAR_OK)) {
            printf("%s, %d ranks: %s\n", name, n, why.text);
        }
        if (verbose || st != (fails ? DPAR_E_PEER : DPAR_OK)) {
            printf("%s %s, %d ranks: %.2f s\n", name, arg != NULL ? (const char *)arg : "", n,
                   dpari_os_now() - began);
        }
    }
}

/* Runs a section with timeouts. */
static void timed(const char *name, dpar_main each, void *arg, int ranks)
{
    attempt a = {0, 0};
    while (again(&a)) {
        const int ends = each == dies || (arg != NULL && strcmp((const char *)arg, "dies") == 0);
        section(name, each, arg, ranks, ranks, ends);
        if (ends && (wanted == NULL || strcmp(wanted, name) == 0) &&
            (ranks_wanted == 0 || ranks_wanted == ranks)) {
            CHECK_INT(page->told, 2);
        }
    }
}

/* Runs the tests that do not depend on how streams are delayed. */
static void deadlines(int32_t version)
{
    attempt a = {0, 0};
    if (wanted == NULL || strcmp(wanted, "pure") == 0) {
        pure();
    }
    if (wanted == NULL || strcmp(wanted, "meet") == 0) {
        hashes();
        listens(1, "reach rank 0 on the loopback interface, port ");
        listens(0, "reach rank 0 at any of its addresses, port ");
        while (again(&a)) {
            doors();
            last_words();
            meetings();
        }
    }
    timed("busy", busy, NULL, 2);
    timed("late", late, NULL, 3);
    timed("twice", late_twice, NULL, 3);
    timed("works", works_out, NULL, 2);
    timed("unconnected", unconnected, NULL, 3);
    if (stand_in()) { /* the real library need not notice, nor connect that late */
        timed("differ", differ, NULL, 3);
        timed("unwatched", unwatched, NULL, 2);
    }
    timed("dies", dies, NULL, 3);
    if (version >= 22902 && stand_in()) { /* ranks that share a device may not reach each other */
        timed("lent", lent_alone, (void *)"dies", 3);
        timed("lent", lent_alone, (void *)"late", 3);
    }
    timed("aborts", aborts, NULL, 3);
    timed("begin", cannot_begin, NULL, 2);
    if (version >= 22703) {
        timed("shrink", shrinks, NULL, 3);
        timed("shrink", shrinks, (void *)"of a broken one", 3);
        timed("behind", behind, NULL, 3);
    }
    if (stand_in()) {
        timed("fails", injected, (void *)"ncclAllReduce:1", 2);
        timed("fails", injected, (void *)"ncclAllReduce:1@1", 2);
        timed("fails", injected, (void *)"never:ncclAllReduce:1@1", 2);
        timed("fails", injected, (void *)"async:ncclAllReduce:1", 2);
        timed("fails", injected, (void *)"cudaEventRecord:1", 2);
        timed("fails", injected, (void *)"cudaStreamWaitEvent:1", 2);
        timed("fails", injected, (void *)"cudaEventQuery:1+", 2); /* both threads get the error */
    }
}

int main(int argc, char **argv)
{
    const char *seed = getenv("FAKE_CUDA_SEED");
    int32_t version = 0;
    int whole;
    dpar_why why;
    wanted = argc > 1 && strcmp(argv[1], "all") != 0 ? argv[1] : NULL;
    ranks_wanted = argc > 2 ? atoi(argv[2]) : 0;
    verbose = argc > 3 || (argc > 2 && ranks_wanted == 0);
    if (wanted != NULL && strcmp(wanted, "real") == 0) {
        real_library(argv[2]);
        return CHECK_DONE();
    }
    if (wanted != NULL && strcmp(wanted, "launched") == 0) {
        return launched(argc > 2 ? argv[2] : "any");
    }
    page = (shared_page *)mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    CHECK_INT(nccl_version(&version, &why), DPAR_OK);
    whole = seed == NULL || atoi(seed) == 0;
    watch();
    every = !stand_in() ? 8 : whole ? 4 : 16;
    section("ops", operations, NULL, 1, 4, 0);
    section("messages", messages, NULL, 1, 4, 0);
    section("host", on_host, NULL, whole ? 1 : 3, whole ? 4 : 3, 0);
    section("groups", groups, NULL, 1, 4, 0);
    timed("cousins", cousins, NULL, 4);
    section("stream", other_stream, NULL, 1, 4, 0);
    section("graph", captured, NULL, 1, 4, 0);
    section("lends", lends, NULL, 1, 4, 0);
    if (getenv("FAKE_CUDA_GUARD") != NULL) { /* 0: the host does the device's sums */
        section("exact", exactly, NULL, 1, 4, 0);
    }
    if (whole) {
        deadlines(version);
    }
    unwatch();
    return CHECK_DONE();
}
