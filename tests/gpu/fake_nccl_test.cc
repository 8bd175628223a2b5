// SPDX-License-Identifier: MIT-0
// Tests the stand-in for NCCL: each operation is compared with the shared-memory engine; groups;
// operations that would wait for ever; abort, split, shrink; polling; requested failures;
// versions.
#include "nccl.h"

#define CHECK_THREADS
#include "dpar_comm.h"

#include "apart.h"

#include <dlfcn.h>
#include <functional>
#include <thread>
#include <vector>

using body = std::function<void(dpar_comm *)>;

static int each(dpar_comm *c, void *arg)
{
    const int before = checks_failed;
    (*static_cast<body *>(arg))(c);
    return checks_failed > before;
}

static dpar_status launch(int n, body test, bool threads = false)
{
    dpar_world_desc o = {};
    dpar_why why = {};
    o.timeout_s = 60;
    o.grace_s = 5;
    o.threads = threads;
    const dpar_status st = dpar_launch(n, each, &test, &o, &why);
    if (st != DPAR_OK) {
        std::fprintf(stderr, "%s\n", why.text);
    }
    return st;
}

// Runs the test on n ranks that are new processes.
static int ranks(int n, int s, const body &test)
{
    return apart([&] {
        seed(s);
        std::exit(launch(n, test) == DPAR_OK ? 0 : 1);
    });
}
#define RANKS(n, s, ...)                                                                  \
    do {                                                                                  \
        const int ranks_how = ranks(n, s, [&](dpar_comm * c) { __VA_ARGS__; });           \
        CHECK_INT(ranks_how, 0);                                                          \
        if (ranks_how != 0) {                                                             \
            std::printf("%d ranks, seed %d: %s\n", n, s, said.c_str());                   \
        }                                                                                 \
    } while (0)

static ncclComm_t join(dpar_comm *c, bool blocking = true)
{
    ncclUniqueId id;
    ncclComm_t nccl = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    std::memset(&id, 0, sizeof id);
    if (c->rank == 0) {
        OK(ncclGetUniqueId(&id));
    }
    OK(dpar_broadcast(c, &id, sizeof id, DPAR_U8, 0, nullptr));
    OK(cudaSetDevice(c->rank));
    if (blocking) {
        OK(ncclCommInitRank(&nccl, c->size, id, c->rank));
    } else {
        CHECK_INT(ncclCommInitRankConfig(&nccl, c->size, id, c->rank, &config), ncclInProgress);
    }
    return nccl;
}

static const struct {
    ncclDataType_t nccl;
    int32_t dpar;
} types[] = {{ncclInt8, DPAR_I8},     {ncclUint8, DPAR_U8},     {ncclInt32, DPAR_I32},
             {ncclUint32, DPAR_U32},  {ncclInt64, DPAR_I64},    {ncclUint64, DPAR_U64},
             {ncclFloat16, DPAR_F16}, {ncclBfloat16, DPAR_BF16}, {ncclFloat32, DPAR_F32},
             {ncclFloat64, DPAR_F64}};
static const struct {
    ncclRedOp_t nccl;
    int32_t dpar;
} ops[] = {{ncclSum, DPAR_SUM},
           {ncclProd, DPAR_PRODUCT},
           {ncclMax, DPAR_MAX},
           {ncclMin, DPAR_MIN},
           {ncclAvg, DPAR_AVG}};

// Fills in random floats between 0.5 and 2 of either sign, so that the order of sums matters, and
// integers of any bits (small ones for averages, since engines may average a sum that wraps
// differently).
static void numbers(void *at, int64_t n, int32_t type, int rank, bool small)
{
    unsigned x = 12345u + 777u * (unsigned)rank;
    for (int64_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        const unsigned bits = x >> 8;
        const double v = (0.5 + (double)(bits & 0xffff) / 65536 * 1.5) * (bits & 0x10000 ? -1 : 1);
        const float f = (float)v;
        uint32_t word;
        std::memcpy(&word, &f, 4);
        const uint64_t whole = small ? bits & 15 : (uint64_t)x * 0x9e3779b97f4a7c15ull;
        switch (type) {
        case DPAR_F64: ((double *)at)[i] = v; break;
        case DPAR_F32: ((float *)at)[i] = f; break;
        case DPAR_BF16: ((uint16_t *)at)[i] = (uint16_t)(word >> 16); break;
        case DPAR_F16: // exponent 14 or 15: 0.5 to 2
            ((uint16_t *)at)[i] = (uint16_t)((bits & 0x83ff) | (bits & 0x400 ? 0x3c00 : 0x3800));
            break;
        default: std::memcpy((char *)at + i * dpar_type_bytes(type), &whole,
                             (size_t)dpar_type_bytes(type));
        }
    }
}

struct both { // one operation, on a device and on the host
    dpar_comm *c;
    ncclComm_t nccl;
    cudaStream_t s;
    std::vector<char> in, out, got;
    char *din, *dout;
    int64_t count;
    int32_t type, op;
    ncclDataType_t ntype;
    ncclRedOp_t nop;
    bool in_place;
};

// Runs kind k both ways. Returns how many bytes differ. In place has NCCL's meaning.
static long differ(both *b, int k, int root)
{
    const int64_t size = dpar_type_bytes(b->type), n = b->c->size, me = b->c->rank;
    const size_t bytes = (size_t)(b->count * size), all = bytes * (size_t)n;
    const bool wide_in =
        k == DPAR_CALL_REDUCE_SCATTER || k == DPAR_CALL_ALL_TO_ALL || k == DPAR_CALL_SCATTER;
    const bool wide_out =
        k == DPAR_CALL_ALL_GATHER || k == DPAR_CALL_ALL_TO_ALL || k == DPAR_CALL_GATHER;
    char *in = b->in.data(), *out = b->out.data(), *din = b->din, *dout = b->dout;
    numbers(in, b->count * n, b->type, (int)me, b->op == DPAR_AVG || b->op == DPAR_PRODUCT);
    std::memset(out, 0x11, all);
    OK(cudaMemcpyAsync(din, in, all, cudaMemcpyHostToDevice, b->s));
    OK(cudaMemcpyAsync(dout, out, all, cudaMemcpyHostToDevice, b->s));
    if (b->in_place && k != DPAR_CALL_ALL_TO_ALL) {
        out = wide_in ? in + (size_t)me * bytes : in;
        dout = wide_in ? din + (size_t)me * bytes : din;
        if (wide_out) {
            in += (size_t)me * bytes;
            din += (size_t)me * bytes;
        }
    }
    if (b->in_place && ((k == DPAR_CALL_GATHER || k == DPAR_CALL_SCATTER) && me != root)) {
        out = b->out.data(), dout = b->dout, in = b->in.data(), din = b->din;
    }
    dpar_call call = {};
    call.kind = k, call.type = b->type, call.op = b->op, call.root = root;
    call.in = in, call.out = out, call.count = b->count;
    ncclResult_t r = ncclSuccess;
    const size_t count = (size_t)b->count;
    switch (k) {
    case DPAR_CALL_ALL_REDUCE:
        r = ncclAllReduce(din, dout, count, b->ntype, b->nop, b->nccl, b->s);
        break;
    case DPAR_CALL_REDUCE:
        r = ncclReduce(din, dout, count, b->ntype, b->nop, root, b->nccl, b->s);
        break;
    case DPAR_CALL_REDUCE_SCATTER:
        r = ncclReduceScatter(din, dout, count, b->ntype, b->nop, b->nccl, b->s);
        break;
    case DPAR_CALL_ALL_GATHER: r = ncclAllGather(din, dout, count, b->ntype, b->nccl, b->s); break;
    case DPAR_CALL_ALL_TO_ALL: r = ncclAlltoAll(din, dout, count, b->ntype, b->nccl, b->s); break;
    case DPAR_CALL_GATHER: r = ncclGather(din, dout, count, b->ntype, root, b->nccl, b->s); break;
    case DPAR_CALL_SCATTER: r = ncclScatter(din, dout, count, b->ntype, root, b->nccl, b->s); break;
    default: // broadcast: dpar has one buffer
        r = b->in_place ? ncclBcast(din, count, b->ntype, root, b->nccl, b->s)
                        : ncclBroadcast(din, dout, count, b->ntype, root, b->nccl, b->s);
        call.out = in;
        call.in = in;
        break;
    }
    OK(r);
    if (r != ncclSuccess) {
        std::fprintf(stderr, "kind %d: %s\n", k, ncclGetLastError(b->nccl));
    }
    OK(dpari_post(b->c, &call, nullptr));
    // Compares all of in and out: nothing else is written. In a broadcast out of place, out is
    // in.
    long wrong = 0;
    OK(cudaMemcpyAsync(b->got.data(), b->din, all, cudaMemcpyDeviceToHost, b->s));
    if (k == DPAR_CALL_BROADCAST && !b->in_place) {
        OK(cudaMemcpyAsync(b->got.data(), b->dout, bytes, cudaMemcpyDeviceToHost, b->s));
        return std::memcmp(b->got.data(), b->in.data(), bytes) != 0;
    }
    wrong += std::memcmp(b->got.data(), b->in.data(), all) != 0;
    OK(cudaMemcpyAsync(b->got.data(), b->dout, all, cudaMemcpyDeviceToHost, b->s));
    wrong += std::memcmp(b->got.data(), b->out.data(), all) != 0;
    return wrong;
}

// Tests all kinds, and for one of the reductions all types and operations.
static void operations(dpar_comm *c, int64_t most)
{
    static const int kinds[] = {
        DPAR_CALL_ALL_REDUCE, DPAR_CALL_REDUCE, DPAR_CALL_REDUCE_SCATTER, DPAR_CALL_ALL_GATHER,
        DPAR_CALL_ALL_TO_ALL, DPAR_CALL_GATHER, DPAR_CALL_SCATTER,        DPAR_CALL_BROADCAST};
    both b = {};
    const size_t room = (size_t)(most * c->size) * 8;
    b.c = c;
    b.nccl = join(c);
    b.s = new_stream();
    b.din = device<char>(room);
    b.dout = device<char>(room);
    b.in.resize(room), b.out.resize(room), b.got.resize(room);
    for (int in_place = 0; in_place < 2; in_place++) {
        for (const int k : kinds) {
            for (const auto &t : types) {
                for (const auto &o : ops) {
                    const bool adds = k == DPAR_CALL_ALL_REDUCE ||
                                      ((k == DPAR_CALL_REDUCE || k == DPAR_CALL_REDUCE_SCATTER) &&
                                       o.dpar == DPAR_SUM);
                    const bool moves = k != DPAR_CALL_REDUCE && k != DPAR_CALL_REDUCE_SCATTER &&
                                       k != DPAR_CALL_ALL_REDUCE && o.dpar == DPAR_SUM;
                    for (const int64_t count : {(int64_t)1, (int64_t)37, most}) {
                        if (!adds && !moves) {
                            continue;
                        }
                        b.in_place = in_place != 0;
                        b.count = count, b.type = t.dpar, b.ntype = t.nccl;
                        b.op = o.dpar, b.nop = o.nccl;
                        const long wrong = differ(&b, k, (k + (int)count) % c->size);
                        CHECK_INT(wrong, 0);
                        if (wrong != 0) {
                            std::printf("kind %d type %d op %d count %d in place %d rank %d of %d\n",
                                        k, t.dpar, o.dpar, (int)count, in_place, c->rank, c->size);
                        }
                    }
                }
            }
        }
    }
    OK(ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, b.nccl, b.s)); // no elements
    OK(cudaStreamSynchronize(b.s));
    OK(ncclCommDestroy(b.nccl));
}

// ---- messages and groups ----

static void put(int *at, int v, cudaStream_t s)
{
    OK(cudaMemcpyAsync(at, &v, 4, cudaMemcpyHostToDevice, s));
}

static int got(const int *at, cudaStream_t s)
{
    int v = -1;
    OK(cudaMemcpyAsync(&v, at, 4, cudaMemcpyDeviceToHost, s));
    return v;
}

static void groups(dpar_comm *c)
{
    const int me = c->rank, n = c->size, next = (me + 1) % n, last = (me + n - 1) % n;
    ncclComm_t nccl = join(c);
    cudaStream_t s = new_stream(), other = new_stream();
    int *x = device<int>(8), *y = device<int>(8);
    for (int k = 0; k < 8; k++) {
        put(x + k, 100 * me + k, s);
    }
    OK(cudaStreamSynchronize(s));
    const long long held = fake_cuda_count("held");
    // All post sends first; two to one peer arrive in order; one is to the rank itself.
    OK(ncclGroupStart());
    OK(ncclSend(x, 1, ncclInt32, next, nccl, s));
    OK(ncclSend(x + 1, 2, ncclInt32, next, nccl, s));
    OK(ncclGroupStart());
    OK(ncclSend(x + 3, 1, ncclInt32, me, nccl, s));
    OK(ncclGroupEnd());
    OK(ncclRecv(y, 1, ncclInt32, last, nccl, s));
    OK(ncclRecv(y + 1, 2, ncclInt32, last, nccl, s));
    OK(ncclRecv(y + 3, 1, ncclInt32, me, nccl, s));
    CHECK_INT(fake_cuda_count("held"), held); // nothing is enqueued yet
    OK(cudaStreamSynchronize(s));
    OK(ncclGroupEnd());
    CHECK_INT(got(y, s), 100 * last);
    CHECK_INT(got(y + 2, s), 100 * last + 2);
    CHECK_INT(got(y + 3, s), 100 * me + 3);
    // Uses two streams: both continue when it is complete.
    OK(ncclGroupStart());
    OK(ncclSend(x + 4, 1, ncclInt32, next, nccl, s));
    OK(ncclRecv(y + 4, 1, ncclInt32, last, nccl, other));
    OK(ncclGroupEnd());
    CHECK_INT(got(y + 4, s), 100 * last + 4);
    // A message only to the rank itself, an error inside a group, an end without a beginning.
    OK(ncclGroupStart());
    OK(ncclSend(x, 1, ncclInt32, me, nccl, s));
    CHECK_INT(ncclGroupEnd(), ncclInvalidUsage);
    OK(ncclGroupStart());
    CHECK_INT(ncclSend(x, 1, ncclInt32, n, nccl, s), ncclInvalidArgument);
    CHECK_INT(ncclGroupEnd(), ncclInvalidArgument);
    CHECK_INT(ncclGroupEnd(), ncclInvalidUsage);
    // Not the default stream, host memory, an access beyond the end, or another device's stream.
    int host[2] = {0, 0};
    CHECK_INT(ncclBcast(x, 1, ncclInt32, 0, nccl, nullptr), ncclInvalidUsage);
    CHECK_INT(ncclBcast(host, 1, ncclInt32, 0, nccl, s), ncclInvalidArgument);
    CHECK_INT(ncclBcast(x + 7, 2, ncclInt32, 0, nccl, s), ncclInvalidArgument);
    OK(cudaSetDevice(7));
    cudaStream_t foreign = new_stream();
    CHECK_INT(ncclBcast(x, 1, ncclInt32, 0, nccl, foreign), ncclInvalidArgument);
    OK(ncclCommDestroy(nccl));
    CHECK_INT(ncclBcast(x, 1, ncclInt32, 0, nccl, s), ncclInvalidArgument);
}

// Checks that what waits for ever in the real library ends with status 86 and a message.
static void forever(const body &wrong, const char *sentence)
{
    setenv("FAKE_NCCL_DEADLINE", "0.3", 1);
    const int how = ranks(2, 1, [&](dpar_comm *c) {
        wrong(c);
        std::printf("rank %d went on\n", c->rank);
        _exit(0);
    });
    CHECK_INT(how, 1);
    CHECK(says(sentence) && says("86"));
    if (!says(sentence)) {
        std::printf("%s\n", said.c_str());
    }
    setenv("FAKE_NCCL_DEADLINE", "20", 1);
}

static void test_forever()
{
    const auto with = [](auto use) {
        return [use](dpar_comm *c) {
            ncclComm_t nccl = join(c);
            cudaStream_t s = new_stream();
            int *x = device<int>(16);
            use(nccl, s, x, c->rank);
            (void)cudaStreamSynchronize(s);
        };
    };
    forever(with([](auto nccl, auto s, int *x, int me) { // both send first
                OK(ncclSend(x, 1, ncclInt32, 1 - me, nccl, s));
                OK(ncclRecv(x + 1, 1, ncclInt32, 1 - me, nccl, s));
            }),
            "ncclSend to");
    forever(with([](auto nccl, auto s, int *x, int me) {
                OK(ncclAllReduce(x, x, me == 0 ? 4 : 5, ncclInt32, ncclSum, nccl, s));
            }),
            "gave ncclAllReduce of 20 bytes");
    forever(with([](auto nccl, auto s, int *x, int me) {
                OK(me == 0 ? ncclAllReduce(x, x, 4, ncclInt32, ncclSum, nccl, s)
                           : ncclBcast(x, 4, ncclInt32, 0, nccl, s));
            }),
            "gave ncclAllReduce of 16 bytes");
    forever(with([](auto nccl, auto s, int *x, int me) { // one does not call
                if (me == 0) {
                    OK(ncclAllReduce(x, x, 4, ncclInt32, ncclSum, nccl, s));
                } else {
                    usleep(600000);
                }
            }),
            "has waited 0.3 s");
    forever(with([](auto nccl, auto s, int *x, int me) { // a receive that is too large
                OK(me == 0 ? ncclSend(x, 3, ncclInt32, 1, nccl, s)
                           : ncclRecv(x, 4, ncclInt32, 0, nccl, s));
            }),
            "ncclRecv from 0 of 16 bytes");
}

// Launches two communicators on a device that is full in different orders.
static void two_comms(dpar_comm *c)
{
    ncclComm_t a = join(c), b = join(c);
    cudaStream_t s = new_stream(), t = new_stream();
    int *x = device<int>(2);
    for (int k = 0; k < 2; k++) {
        const bool first = (k + c->rank) % 2 == 0;
        OK(ncclAllReduce(x + !first, x + !first, 1, ncclInt32, ncclSum, first ? a : b,
                         first ? s : t));
    }
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamSynchronize(t));
}

// Rank 0 sends two messages and receives one in a group; rank 1 sends its one after it has both.
// The library's first batch contains rank 0's first message and rank 1's.
static void in_batches(dpar_comm *c)
{
    const int me = c->rank;
    ncclComm_t nccl = join(c);
    cudaStream_t s = new_stream();
    int *x = device<int>(4);
    for (int k = 0; k < 4; k++) {
        put(x + k, 10 * me + k, s);
    }
    OK(ncclGroupStart());
    for (int k = 0; k < 2; k++) {
        OK(me == 0 ? ncclSend(x + k, 1, ncclInt32, 1, nccl, s)
                   : ncclRecv(x + k, 1, ncclInt32, 0, nccl, s));
    }
    if (me == 1) {
        OK(ncclGroupEnd());
        OK(ncclSend(x + 2, 1, ncclInt32, 0, nccl, s));
    } else {
        OK(ncclRecv(x + 2, 1, ncclInt32, 1, nccl, s));
        OK(ncclGroupEnd());
    }
    CHECK_INT(got(x + 1, s), 1);
    CHECK_INT(got(x + 2, s), 12);
    OK(cudaStreamSynchronize(s));
    OK(ncclCommDestroy(nccl));
}

static void test_strict()
{
    RANKS(2, 1, in_batches(c));
    for (const char *how : {"1", "2"}) {
        setenv("FAKE_NCCL_STRICT", how, 1);
        forever(in_batches, "ncclRecv from");
        for (int n = 1; n <= 4; n++) {
            RANKS(n, n, groups(c)); // the same messages on both sides: nothing waits
        }
    }
    unsetenv("FAKE_NCCL_STRICT");
}

// ---- abort, split, shrink ----

// Rank 0 waits for a rank that never calls; another thread aborts.
static void abort_it(dpar_comm *c)
{
    ncclComm_t nccl = join(c);
    cudaStream_t s = new_stream();
    int *x = device<int>(4);
    if (c->rank == 0) {
        OK(ncclAllReduce(x, x, 4, ncclInt32, ncclSum, nccl, s));
        std::thread watchdog([&] {
            usleep(20000);
            CHECK_INT(cudaStreamQuery(s), cudaErrorNotReady);
            OK(ncclCommAbort(nccl));
        });
        OK(cudaStreamSynchronize(s));
        watchdog.join();
        CHECK_INT(ncclAllReduce(x, x, 4, ncclInt32, ncclSum, nccl, s), ncclInvalidArgument);
        put(x, 5, s); // the stream still works
        CHECK_INT(got(x, s), 5);
    } else {
        OK(ncclCommDestroy(nccl));
    }
}

static int sum_of_ranks(ncclComm_t nccl, cudaStream_t s, int mine)
{
    static int *x = device<int>(1);
    put(x, mine, s);
    OK(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, nccl, s));
    return got(x, s);
}

static void splits(dpar_comm *c)
{
    ncclComm_t nccl = join(c), half = nullptr, none = nullptr, twice = nullptr;
    cudaStream_t s = new_stream();
    int rank = -1, count = -1, device_of = -1;
    const int me = c->rank; // of 4 ranks
    OK(ncclCommSplit(nccl, me % 2, -me, &half, nullptr));
    OK(ncclCommUserRank(half, &rank));
    OK(ncclCommCount(half, &count));
    OK(ncclCommCuDevice(half, &device_of));
    CHECK_INT(rank, me < 2); // the rank with the greatest key is the first
    CHECK_INT(count, 2);
    CHECK_INT(device_of, me);
    CHECK_INT(sum_of_ranks(half, s, 1 << me), me % 2 == 0 ? 5 : 10);
    OK(ncclCommSplit(nccl, me == 3 ? NCCL_SPLIT_NOCOLOR : 7, 0, &none, nullptr));
    CHECK((none == nullptr) == (me == 3));
    OK(ncclCommSplit(half, 0, 0, &twice, nullptr));
    CHECK_INT(sum_of_ranks(twice, s, 1 << me), me % 2 == 0 ? 5 : 10);
    if (none != nullptr) {
        CHECK_INT(sum_of_ranks(none, s, 1 << me), 7);
        OK(ncclCommDestroy(none));
    }
    CHECK_INT(sum_of_ranks(nccl, s, 1 << me), 15);
    // Rank 2 has ended; the others were waiting for it.
    if (me != 2) {
        static int *x = device<int>(1);
        int gone[] = {2};
        ncclComm_t rest = nullptr;
        OK(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, nccl, s));
        OK(ncclCommShrink(nccl, gone, 1, &rest, nullptr, NCCL_SHRINK_ABORT));
        OK(cudaStreamSynchronize(s));
        CHECK_INT(sum_of_ranks(rest, s, 1 << me), 11);
        OK(ncclCommUserRank(rest, &rank));
        CHECK_INT(rank, me == 3 ? 2 : me);
        OK(ncclCommDestroy(rest));
    }
    OK(ncclCommRevoke(half, NCCL_REVOKE_DEFAULT));
    CHECK_INT(ncclAllReduce(s, s, 1, ncclInt32, ncclSum, half, s), ncclInvalidUsage);
    OK(ncclCommAbort(half));
    OK(ncclCommFinalize(twice));
    OK(ncclCommDestroy(twice));
}

static ncclResult_t polled(ncclComm_t nccl)
{
    ncclResult_t r = ncclInProgress;
    while (r == ncclInProgress) {
        OK(ncclCommGetAsyncError(nccl, &r));
    }
    return r;
}

static void polling(dpar_comm *c)
{
    ncclComm_t nccl = join(c, false), half = nullptr;
    cudaStream_t s = new_stream();
    int *x = device<int>(1);
    CHECK_INT(ncclBcast(x, 1, ncclInt32, 0, nccl, s), ncclInvalidUsage); // not ready
    OK(polled(nccl));
    put(x, 1, s);
    OK(cudaStreamSynchronize(s));
    CHECK_INT(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, nccl, s), ncclInProgress);
    CHECK_INT(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, nccl, s), ncclInvalidArgument);
    CHECK_INT(got(x, s), 1); // it is not in the stream yet
    OK(polled(nccl));
    CHECK_INT(got(x, s), c->size);
    OK(ncclCommSplit(nccl, c->rank / 2, 0, &half, nullptr)); // complete when its parent is
    CHECK(half == nullptr);
    OK(polled(nccl));
    CHECK(half != nullptr);
    OK(polled(half));
    put(x, 1, s);
    CHECK_INT(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, half, s), ncclInProgress);
    OK(polled(half));
    CHECK_INT(got(x, s), 2);
    OK(ncclCommDestroy(half));
    OK(ncclCommDestroy(nccl));
}

// ---- order on the device ----

struct add_args {
    int *at;
    int n, v;
};
__global__ static void add(add_args a)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < a.n) {
        a.at[i] += a.v;
    }
}
static void run_add(int *at, int n, int v, cudaStream_t s)
{
    add_args a = {at, n, v};
    void *args[] = {&a};
    OK(cudaLaunchKernel(add, dim3((unsigned)(n + 63) / 64), dim3(64), args, 0, s));
}

// Computes the input of a reduction on another stream and reads the result: with both events, or
// without the first or the second one. Returns 1 if the result is wrong.
static int step(dpar_comm *c, int without)
{
    enum { N = 300 };
    ncclComm_t nccl = join(c);
    cudaStream_t compute = new_stream(), comm = new_stream();
    cudaEvent_t ready = new_event(), reduced = new_event();
    int *x = device<int>(N), sum = 0, all = 0;
    std::vector<int> host(N, 1);
    OK(cudaMemcpyAsync(x, host.data(), N * 4, cudaMemcpyHostToDevice, compute));
    OK(cudaStreamSynchronize(compute));
    run_add(x, N, c->rank, compute);
    OK(cudaEventRecord(ready, compute));
    if (without != 1) {
        OK(cudaStreamWaitEvent(comm, ready, 0));
    }
    OK(ncclAllReduce(x, x, N, ncclInt32, ncclSum, nccl, comm));
    OK(cudaEventRecord(reduced, comm));
    if (without != 2) {
        OK(cudaStreamWaitEvent(compute, reduced, 0));
    }
    run_add(x, N, 1000, compute);
    OK(cudaMemcpyAsync(host.data(), x, N * 4, cudaMemcpyDeviceToHost, compute));
    OK(cudaStreamSynchronize(comm));
    for (const int v : host) {
        sum += v != c->size + c->size * (c->size - 1) / 2 + 1000;
    }
    OK(dpar_all_reduce(c, &sum, &all, 1, DPAR_I32, DPAR_SUM, nullptr));
    OK(cudaDeviceSynchronize());
    return all > 0;
}

static void test_order()
{
    int seen[3] = {0, 0, 0};
    for (int s = 0; s < 10; s++) {
        for (int without = 0; without < 3; without++) {
            const int how = ranks(2, s, [&](dpar_comm *c) {
                if (step(c, without) != 0) {
                    _exit(3);
                }
            });
            CHECK(how == 0 || (says("3") && without > 0));
            seen[without] += how != 0;
        }
    }
    CHECK_INT(seen[0], 0);
    CHECK(seen[1] > 1 && seen[2] > 1);
}

static void replay(dpar_comm *c)
{
    ncclComm_t nccl = join(c);
    cudaStream_t s = new_stream();
    int *x = device<int>(4);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    put(x, 1, s);
    put(x + 1, 0, s);
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    run_add(x, 1, c->rank, s);
    OK(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, nccl, s));
    run_add(x + 1, 1, 1, s);
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int k = 0; k < 2; k++) { // 1, 2 * 1 + 1, 2 * 3 + 1 on two ranks
        OK(cudaGraphLaunch(exec, s));
    }
    CHECK_INT(got(x, s), 7);
    CHECK_INT(got(x + 1, s), 2);
    CHECK_INT(sum_of_ranks(nccl, s, 1), 2);
    OK(ncclCommDestroy(nccl));
}

// ---- requested failures, versions ----

static void failures(dpar_comm *c)
{
    ncclComm_t nccl = join(c);
    cudaStream_t s = new_stream();
    int *x = device<int>(4);
    ncclResult_t error = ncclSuccess;
    fake_nccl_fail("ncclAllReduce:2:2@0,async:ncclAllReduce:3:6@1,delay:ncclBroadcast:1:40@0");
    OK(ncclAllReduce(x, x, 4, ncclInt32, ncclSum, nccl, s));
    CHECK_INT(ncclAllReduce(x, x, 4, ncclInt32, ncclSum, nccl, s),
              c->rank == 0 ? ncclSystemError : ncclSuccess);
    if (c->rank == 0) { // the other rank's is still mapped
        OK(ncclAllReduce(x, x, 4, ncclInt32, ncclSum, nccl, s));
    }
    OK(cudaStreamSynchronize(s));
    OK(ncclAllReduce(x, x, 4, ncclInt32, ncclSum, nccl, s));
    OK(cudaStreamSynchronize(s));
    OK(ncclCommGetAsyncError(nccl, &error));
    CHECK_INT(error, c->rank == 1 ? ncclRemoteError : ncclSuccess);
    const double began = dpari_os_now();
    OK(ncclBcast(x, 4, ncclInt32, 0, nccl, s));
    OK(cudaStreamSynchronize(s));
    CHECK(dpari_os_now() - began > 0.03);
    CHECK_INT(fake_nccl_count("ncclAllReduce"), c->rank == 0 ? 4 : 3);
    // Tests never, and one element less: abort ends both.
    fake_nccl_fail("never:ncclAllReduce:1@0,count:ncclBroadcast:1@1");
    for (int k = 0; k < 2; k++) {
        ncclComm_t victim = join(c);
        OK(k == 0 ? ncclAllReduce(x, x, 4, ncclInt32, ncclSum, victim, s)
                  : ncclBcast(x, 4, ncclInt32, 1, victim, s));
        usleep(5000);
        CHECK_INT(cudaStreamQuery(s), cudaErrorNotReady);
        OK(dpar_barrier(c, nullptr));
        OK(ncclCommAbort(victim));
        OK(cudaStreamSynchronize(s));
    }
    fake_nccl_fail(nullptr);
}

static void shared_device(dpar_comm *c)
{
    ncclUniqueId id;
    ncclComm_t nccl = nullptr;
    OK(ncclGetUniqueId(&id));
    OK(dpar_broadcast(c, &id, sizeof id, DPAR_U8, 0, nullptr));
    const ncclResult_t all_on_one = ncclCommInitRank(&nccl, c->size, id, c->rank);
    const char *way = getenv("WAY");
    CHECK_INT(all_on_one, way[0] == '0' ? ncclInvalidUsage : ncclSuccess);
}

static void test_versions()
{
    static const struct {
        const char *folder, *symbol;
        bool there;
    } table[] = {{"21805", "ncclCommSplit", true},     {"21805", "ncclMemAlloc", false},
                 {"22105", "ncclMemAlloc", true},      {"22105", "ncclCommShrink", false},
                 {"22105", "ncclAlltoAll", false},     {".", "ncclAlltoAll", true},
                 {".", "ncclCommRevoke", true},        {".", "ncclCommInitRankScalable", true},
                 {"21805", "ncclCommInitRankScalable", false}};
    const char *libraries = getenv("FAKE_LIBRARIES");
    CHECK(libraries != nullptr);
    for (const auto &row : table) {
        FINE({
            int (*get)(int *) = nullptr;
            int version = 0;
            const std::string path =
                std::string(libraries) + "/" + row.folder + "/libnccl.so.2";
            void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
            CHECK(library != nullptr);
            *(void **)&get = dlsym(library, "ncclGetVersion");
            CHECK(get != nullptr && get(&version) == 0);
            CHECK_INT(version, row.folder[0] == '.' ? 23007 : std::atoi(row.folder));
            Dl_info info = {};
            void *at = dlsym(library, row.symbol);
            CHECK((at != nullptr && dladdr(at, &info) != 0) == row.there);
        });
    }
    FINE({
        int version = 0;
        setenv("FAKE_NCCL_VERSION", "22304", 1);
        OK(ncclGetVersion(&version));
        CHECK_INT(version, 22304);
        setenv("NCCL_COMM_ID", "here:1234", 1);
        ncclUniqueId a, b;
        OK(ncclGetUniqueId(&a));
        OK(ncclGetUniqueId(&b));
        CHECK_INT(std::memcmp(&a, &b, sizeof a), 0);
    });
    // Several ranks on one device are refused; with different hosts, or since 2.30.3, they are
    // allowed.
    const auto way = [](const char *w) {
        return [w](dpar_comm *c) {
            setenv("WAY", w, 1);
            if (w[0] == '1') {
                setenv("NCCL_HOSTID", c->rank == 0 ? "r0" : "r1", 1);
            } else if (w[0] != '0' || w[1] == 'x') {
                setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
            }
            if (w[1] == 'x') {
                setenv("FAKE_NCCL_VERSION", "22907", 1);
            }
            shared_device(c);
        };
    };
    for (const char *w : {"0", "0x", "1", "2"}) {
        const int how = ranks(2, 1, way(w));
        CHECK_INT(how, 0);
    }
}

// Checks sums in ring order: other bits than in rank order, but the same on all ranks.
static void ring(dpar_comm *c)
{
    enum { N = 999 };
    ncclComm_t nccl = join(c);
    cudaStream_t s = new_stream();
    std::vector<uint16_t> mine(N), all(N), first(N), exact(N);
    uint16_t *x = device<uint16_t>(N);
    long other = 0;
    numbers(mine.data(), N, DPAR_BF16, c->rank, false);
    OK(cudaMemcpyAsync(x, mine.data(), N * 2, cudaMemcpyHostToDevice, s));
    OK(ncclAllReduce(x, x, N, ncclBfloat16, ncclSum, nccl, s));
    OK(cudaMemcpyAsync(all.data(), x, N * 2, cudaMemcpyDeviceToHost, s));
    first = all;
    OK(dpar_broadcast(c, first.data(), N, DPAR_U8, 0, nullptr));
    CHECK_INT(std::memcmp(first.data(), all.data(), N), 0);
    OK(dpar_all_reduce(c, mine.data(), exact.data(), N, DPAR_BF16, DPAR_SUM, nullptr));
    // sums of 4 numbers up to 2: each of 3 roundings is at most half of 2^-6
    for (size_t i = 0; i < N; i++) {
        const auto value = [](uint16_t h) {
            const uint32_t word = (uint32_t)h << 16;
            float f;
            std::memcpy(&f, &word, 4);
            return f;
        };
        other += all[i] != exact[i];
        CHECK(std::fabs(value(all[i]) - value(exact[i])) <= 4 * 0.015625f);
    }
    CHECK(other > 20);
    // Tests scaled sums, with the factor on the host and on the device.
    ncclRedOp_t op;
    float quarter = 0.25f, *at = device<float>(1), *y = device<float>(1), v = (float)(c->rank + 1);
    OK(cudaMemcpyAsync(at, &quarter, 4, cudaMemcpyHostToDevice, s));
    for (const auto where : {ncclScalarHostImmediate, ncclScalarDevice}) {
        float sum = 0;
        OK(ncclRedOpCreatePreMulSum(&op, where == ncclScalarDevice ? at : &quarter, ncclFloat32,
                                    where, nccl));
        OK(cudaMemcpyAsync(y, &v, 4, cudaMemcpyHostToDevice, s));
        OK(ncclAllReduce(y, y, 1, ncclFloat32, op, nccl, s));
        OK(cudaMemcpyAsync(&sum, y, 4, cudaMemcpyDeviceToHost, s));
        CHECK_NEAR((double)sum, 2.5, 0);
        OK(ncclRedOpDestroy(op, nccl));
        CHECK_INT(ncclAllReduce(y, y, 1, ncclFloat32, op, nccl, s), ncclInvalidArgument);
    }
    OK(ncclCommDestroy(nccl));
}

static void registered(dpar_comm *c)
{
    ncclComm_t nccl = join(c);
    cudaStream_t s = new_stream();
    void *memory = nullptr, *handle = nullptr;
    ncclWindow_t window = nullptr;
    OK(ncclMemAlloc(&memory, 10000));
    CHECK_INT((uintptr_t)memory % 4096, 0);
    OK(ncclCommRegister(nccl, memory, 10000, &handle));
    OK(ncclCommWindowRegister(nccl, memory, 4096, &window, NCCL_WIN_COLL_SYMMETRIC));
    CHECK_INT(ncclCommWindowRegister(nccl, (char *)memory + 64, 64, &window, 0),
              ncclInvalidArgument);
    OK(ncclBcast(memory, 10000, ncclInt8, 0, nccl, s));
    OK(ncclCommFinalize(nccl));
    OK(ncclCommDeregister(nccl, handle));
    OK(ncclCommDestroy(nccl));
    OK(ncclMemFree(memory));
    CHECK_INT(ncclMemFree(memory), ncclInvalidArgument);
    // Freed while an operation uses it: a fault.
    nccl = join(c);
    OK(ncclMemAlloc(&memory, 100));
    OK(ncclBcast(memory, 100, ncclInt8, 0, nccl, s));
    OK(ncclMemFree(memory));
    CHECK_INT(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
}

int main()
{
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    setenv("FAKE_NCCL_DEADLINE", "20", 1);
    for (int n = 1; n <= 4; n++) {
        RANKS(n, n - 1, operations(c, n == 2 ? 9001 : 101));
        RANKS(n, 7 * n, groups(c));
    }
    RANKS(2, 0, groups(c));
    FINE(seed(9); CHECK_INT(launch(3, [](dpar_comm *c) { operations(c, 50); }, true), 0));
    test_forever();
    RANKS(2, 1, two_comms(c));
    setenv("FAKE_NCCL_SERIAL", "1", 1);
    RANKS(2, 1, operations(c, 40));
    forever(two_comms, "ncclAllReduce from");
    unsetenv("FAKE_NCCL_SERIAL");
    test_strict();
    for (const int s : {0, 1, 2, 3, 21}) {
        RANKS(2, s, abort_it(c));
        RANKS(4, s, splits(c));
        RANKS(4, s, polling(c));
        RANKS(2, s, replay(c));
    }
    test_order();
    RANKS(2, 0, failures(c));
    RANKS(2, 0, registered(c));
    test_versions();
    setenv("FAKE_NCCL_RING", "1", 1);
    RANKS(4, 0, ring(c));
    return CHECK_DONE();
}
