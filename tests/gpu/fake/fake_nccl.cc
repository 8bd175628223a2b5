// SPDX-License-Identifier: MIT-0
// The stand-in for NCCL, see nccl.h. Ranks meet in a file of shared memory that the unique id
// names. It has a ring of bytes from each rank to each, one for collectives and one for messages.
// An operation is a task of its stream (cuda_runtime.h): transfers over rings, then sums of what
// has arrived.
#include "nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

using fake_cuda::stage;
using fake_cuda::task;
using clock_type = std::chrono::steady_clock;

extern int fake_nccl_built;

namespace {

enum { RING = 32 << 10, MAX_RANKS = 64 };

const char *setting(const char *name, const char *otherwise)
{
    const char *text = std::getenv(name);
    return text != nullptr && text[0] != 0 ? text : otherwise;
}

bool flag(const char *name)
{
    return std::atoi(setting(name, "0")) != 0;
}

int version()
{
    const int asked = std::atoi(setting("FAKE_NCCL_VERSION", "0"));
    return asked > 0 ? asked : fake_nccl_built;
}

// ---- the file where ranks meet ----

struct ring { // head: bytes taken out, tail: bytes put in
    std::atomic<uint64_t> head, tail;
    char room[48];
    char data[RING];
};

struct vote { // of one rank, in a split
    std::atomic<uint64_t> generation;
    int32_t color, key;
};

struct member {
    std::atomic<uint32_t> here;
    int32_t device;
    char host[56];
    vote votes[2];
    std::atomic<uint64_t> windows[64]; // the n-th at n % 64: process << 32 | file << 16 | n + 1
};

struct meeting {
    std::atomic<uint32_t> ranks, joined, left;
    std::atomic<int> came; // number of ranks that have connected
    char room[48];
    member members[MAX_RANKS];
    ring *rings() { return reinterpret_cast<ring *>(this + 1); }
};

size_t meeting_bytes(int ranks)
{
    return sizeof(meeting) + 2 * (size_t)ranks * (size_t)ranks * sizeof(ring);
}

struct header {
    int32_t kind, type, op, root;
    uint64_t bytes;
};

// ---- operations ----

enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER,
            SEND, RECV };
const char *const function_names[] = {"ncclAllReduce",     "ncclReduce",   "ncclBroadcast",
                                      "ncclAllGather",     "ncclReduceScatter", "ncclAlltoAll",
                                      "ncclGather",        "ncclScatter",  "ncclSend",
                                      "ncclRecv"};

struct call {
    kind what;
    const char *in;
    char *out;
    size_t count;
    int type, op, root; // root: the peer of a message
};

struct premul {
    bool live = false;
    int type = 0;
    const void *device = nullptr; // where it is read each time
    double value = 1;
};

enum trouble { NOTHING, NEVER, DELAY, COUNT, ASYNC };
struct failure {
    std::string name;
    trouble how;
    long long from;
    bool onwards;
    int number, rank;
};

struct window { // a window of symmetric memory
    ncclComm_t comm;
    void *memory;
    size_t bytes;
    int file;
    std::vector<void *> peers; // mapped addresses of each rank on this host
};

struct process_state {
    std::mutex lock;
    std::map<std::string, long long> count, failing;
    std::vector<failure> failures;
    bool by_call = false; // fake_nccl_fail set what fails, not the environment
    std::string environment;
    std::set<ncclComm_t> comms;
    std::map<void *, void *> allocated; // aligned address: allocated address
    std::atomic<uint64_t> given[64], served[64]; // tickets of each device
    uint64_t ids = 0;
};

process_state &p()
{
    static process_state *one = new process_state;
    return *one;
}

thread_local std::string last_text;

} // namespace

struct ncclComm {
    std::string name;
    meeting *meet = nullptr;
    int rank = 0, ranks = 0, world_rank = 0, device = 0;
    bool blocking = true, came = false;
    std::atomic<bool> aborted{false}, revoked{false};
    std::atomic<int> async{0}, running{0}, waiting{0}; // tasks that run; tasks that are enqueued
    std::atomic<bool> in_use{false};
    std::vector<premul> ops;
    cudaStream_t last_stream = nullptr;
    uint64_t splits = 0;
    std::map<std::string, int> shrinks;
    std::set<window *> windows;
    uint32_t windows_so_far = 0;
    // non-blocking: what the last call still has to do, by polling
    std::mutex polling;
    std::function<ncclResult_t()> rest;
    int polls = 0;
    ~ncclComm()
    {
        if (meet != nullptr) {
            munmap((void *)meet, meeting_bytes(ranks));
        } else if (!name.empty()) { // some ranks never came
            (void)unlink((std::string(setting("FAKE_NCCL_DIR", "/dev/shm")) + "/" + name).c_str());
        }
    }
};

namespace {

using comm_ptr = std::shared_ptr<ncclComm>;
std::map<ncclComm_t, comm_ptr> &comms()
{
    static auto *one = new std::map<ncclComm_t, comm_ptr>;
    return *one;
}

__attribute__((format(printf, 2, 3))) ncclResult_t refuse(ncclResult_t result, const char *format,
                                                          ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    last_text = text;
    if (flag("FAKE_NCCL_DEBUG")) {
        std::fprintf(stderr, "fake nccl: %s\n", text);
    }
    return result;
}

comm_ptr comm_of(ncclComm_t comm)
{
    std::lock_guard<std::mutex> hold(p().lock);
    const auto it = comms().find(comm);
    return it == comms().end() ? nullptr : it->second;
}

// ---- requested failures ----

void parse_failures(const char *list)
{
    static const std::pair<const char *, trouble> words[] = {
        {"never:", NEVER}, {"delay:", DELAY}, {"count:", COUNT}, {"async:", ASYNC}};
    std::string rest = list == nullptr ? "" : list;
    p().failures.clear();
    p().failing.clear();
    while (!rest.empty()) {
        const size_t end = std::min(rest.find(','), rest.size());
        std::string one = rest.substr(0, end);
        rest = end < rest.size() ? rest.substr(end + 1) : "";
        failure f = {"", NOTHING, 1, false, ncclInternalError, -1};
        const size_t at = one.find('@');
        if (at != std::string::npos) {
            f.rank = std::atoi(one.c_str() + at + 1);
            one.resize(at);
        }
        for (const auto &w : words) {
            if (one.rfind(w.first, 0) == 0) {
                f.how = w.second;
                one.erase(0, std::strlen(w.first));
            }
        }
        const size_t colon = one.find(':');
        f.name = one.substr(0, colon);
        if (colon != std::string::npos) {
            char *stop = nullptr;
            f.from = std::strtoll(one.c_str() + colon + 1, &stop, 10);
            f.onwards = *stop == '+';
            stop += f.onwards;
            f.number = *stop == ':' ? std::atoi(stop + 1) : f.number;
        }
        p().failures.push_back(f);
    }
}

// Counts a call. Returns the failure that was requested for it.
failure counted(const char *name, int rank)
{
    std::lock_guard<std::mutex> hold(p().lock);
    const char *environment = setting("FAKE_NCCL_FAIL", "");
    if (!p().by_call && p().environment != environment) {
        p().environment = environment;
        parse_failures(environment);
    }
    p().count[name]++;
    const long long n = ++p().failing[name];
    for (const failure &f : p().failures) {
        if (f.name == name && (n == f.from || (f.onwards && n > f.from)) &&
            (f.rank < 0 || rank < 0 || f.rank == rank)) {
            return f;
        }
    }
    return {"", NOTHING, 0, false, ncclSuccess, -1};
}

// ---- numbers ----

size_t size_of(int type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    case 10: // fp8, since 2.24
    case 11: return version() >= 22403 ? 1 : 0;
    default: return 0;
    }
}

float from_half(uint16_t h)
{
    const int e = h >> 10 & 31, f = h & 1023;
    const float sign = h & 0x8000 ? -1.0f : 1.0f;
    if (e == 31) {
        return f != 0 ? NAN : sign * INFINITY;
    }
    return sign * (e == 0 ? std::ldexp((float)f, -24) : std::ldexp((float)(f + 1024), e - 25));
}

uint16_t to_half(float v)
{
    const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
    const float a = std::fabs(v);
    if (std::isnan(v)) {
        return 0x7fff;
    }
    if (a >= 65520.0f) {
        return (uint16_t)(sign | 0x7c00);
    }
    int e = 0;
    (void)std::frexp(a, &e); // a = m 2^e with m in [0.5, 1)
    if (a == 0 || e < -13) {
        return (uint16_t)(sign | (uint16_t)std::nearbyint(std::ldexp(a, 24)));
    }
    const int steps = (int)std::nearbyint(std::ldexp(a, 11 - e)); // in 1024 .. 2048
    return (uint16_t)(sign | (((e + 13) << 10) + steps));
}

struct half_type {
    static float get(uint16_t h) { return from_half(h); }
    static uint16_t put(float v) { return to_half(v); }
};
struct bfloat_type {
    static float get(uint16_t h)
    {
        const uint32_t x = (uint32_t)h << 16;
        float v;
        std::memcpy(&v, &x, 4);
        return v;
    }
    static uint16_t put(float v)
    {
        uint32_t x;
        std::memcpy(&x, &v, 4);
        if (std::isnan(v)) {
            return (uint16_t)(x >> 16 | 0x40u);
        }
        return (uint16_t)((x + 0x7fffu + (x >> 16 & 1u)) >> 16);
    }
};

// T: the type in which sums are computed; integers wrap
template <class T> T combine(T a, T b, int op)
{
    if constexpr (std::is_floating_point_v<T>) {
        if ((op == ncclMax || op == ncclMin) && (std::isnan(a) || std::isnan(b))) {
            return NAN;
        }
        switch (op) {
        case ncclProd: return a * b;
        case ncclMax: return a > b ? a : b;
        case ncclMin: return a < b ? a : b;
        default: return a + b;
        }
    } else {
        using U = std::make_unsigned_t<T>;
        switch (op) {
        case ncclProd: return (T)((U)((uint64_t)(U)a * (uint64_t)(U)b));
        case ncclMax: return a > b ? a : b;
        case ncclMin: return a < b ? a : b;
        default: return (T)(U)((uint64_t)(U)a + (uint64_t)(U)b);
        }
    }
}

// What a reduction does for each element.
struct rule {
    int op, n, first; // first: the rank that begins
    bool hops;        // rounds after each rank
    double scale;     // factor for each input, where `scaled` is set
    bool scaled;
};

template <class S, class T, class Get, class Put>
void reduce_as(const std::vector<const char *> &in, char *out, size_t count, const rule &r, Get get,
               Put put)
{
    for (size_t i = 0; i < count; i++) {
        T sum{};
        for (int k = 0; k < r.n; k++) {
            S s;
            std::memcpy(&s, in[(size_t)((r.first + k) % r.n)] + i * sizeof(S), sizeof s);
            T v = get(s);
            if (r.scaled) {
                v = get(put((T)((double)v * r.scale)));
            }
            sum = k == 0 ? v : combine<T>(sum, v, r.op);
            if (r.hops) {
                sum = get(put(sum));
            }
        }
        if (r.op == ncclAvg && !r.scaled) {
            sum = (T)(sum / (T)r.n);
        }
        const S s = put(sum);
        std::memcpy(out + i * sizeof(S), &s, sizeof s);
    }
}

template <class T>
void reduce_plain(const std::vector<const char *> &in, char *out, size_t count, const rule &r)
{
    const auto same = [](T v) { return v; };
    reduce_as<T, T>(in, out, count, r, same, same);
}

void reduce_piece(const std::vector<const char *> &in, char *out, size_t count, int type,
                  const rule &r)
{
    switch (type) {
    case ncclInt8: reduce_plain<int8_t>(in, out, count, r); break;
    case ncclUint8: reduce_plain<uint8_t>(in, out, count, r); break;
    case ncclInt32: reduce_plain<int32_t>(in, out, count, r); break;
    case ncclUint32: reduce_plain<uint32_t>(in, out, count, r); break;
    case ncclInt64: reduce_plain<int64_t>(in, out, count, r); break;
    case ncclUint64: reduce_plain<uint64_t>(in, out, count, r); break;
    case ncclFloat32: reduce_plain<float>(in, out, count, r); break;
    case ncclFloat64: reduce_plain<double>(in, out, count, r); break;
    case ncclFloat16:
        reduce_as<uint16_t, float>(in, out, count, r, half_type::get, half_type::put);
        break;
    default:
        reduce_as<uint16_t, float>(in, out, count, r, bfloat_type::get, bfloat_type::put);
        break;
    }
}

double scalar_at(const void *at, int type)
{
    switch (type) {
    case ncclFloat32: return (double)*(const float *)at;
    case ncclFloat64: return *(const double *)at;
    case ncclFloat16: return (double)from_half(*(const uint16_t *)at);
    case ncclBfloat16: return (double)bfloat_type::get(*(const uint16_t *)at);
    case ncclInt32: return (double)*(const int32_t *)at;
    case ncclInt64: return (double)*(const int64_t *)at;
    default: return 1;
    }
}

// ---- transfers ----

// 0: all messages of a group progress together. 1: in batches, as on one channel of the library,
// where the next batch begins when all messages of the last one are complete. 2: the same, but a
// message that fits into the ring is complete for its sender.
int strict()
{
    return std::atoi(setting("FAKE_NCCL_STRICT", "0"));
}

bool eager()
{
    return strict() == 2;
}

struct transfer {
    ring *over;
    char *data; // the source or the target
    header head;
    int peer;
    bool out;
    int batch;                   // its batch, FAKE_NCCL_STRICT
    uint64_t moved = 0, end = 0; // bytes of head and data moved; its end in the ring
    bool misfit = false;
    header other = {};
};

void ring_copy(ring *r, uint64_t at, char *data, size_t bytes, bool into)
{
    while (bytes > 0) {
        const size_t begin = (size_t)(at % RING), n = std::min(bytes, (size_t)RING - begin);
        std::memcpy(into ? r->data + begin : data, into ? data : r->data + begin, n);
        at += n;
        data += n;
        bytes -= n;
    }
}

stage send_some(transfer *t)
{
    const uint64_t head = t->over->head.load(std::memory_order_acquire);
    const uint64_t tail = t->over->tail.load(std::memory_order_relaxed);
    const uint64_t whole = sizeof(header) + t->head.bytes;
    if (t->moved == whole) { // a rendezvous: done when all was taken
        return head >= t->end || eager() ? stage::done : stage::stuck;
    }
    uint64_t room = RING - (tail - head), put = 0;
    if (t->moved == 0) {
        if (room < sizeof(header)) {
            return stage::stuck;
        }
        ring_copy(t->over, tail, (char *)&t->head, sizeof(header), true);
        put = sizeof(header);
        room -= put;
        t->end = tail + whole;
    }
    const uint64_t done = t->moved + put - sizeof(header), n = std::min(room, t->head.bytes - done);
    if (n > 0) {
        fake_cuda::open();
        ring_copy(t->over, tail + put, t->data + done, (size_t)n, true);
    }
    if (put + n == 0) {
        return stage::stuck;
    }
    t->moved += put + n;
    t->over->tail.store(tail + put + n, std::memory_order_release);
    return stage::moved;
}

stage receive_some(transfer *t)
{
    const uint64_t tail = t->over->tail.load(std::memory_order_acquire);
    const uint64_t head = t->over->head.load(std::memory_order_relaxed);
    uint64_t there = tail - head, got = 0;
    if (t->moved == 0) {
        if (there < sizeof(header)) {
            return stage::stuck;
        }
        ring_copy(t->over, head, (char *)&t->other, sizeof(header), false);
        t->misfit = std::memcmp(&t->other, &t->head, sizeof(header)) != 0;
        if (t->misfit) { // waits for ever
            return stage::stuck;
        }
        got = sizeof(header);
        there -= got;
    }
    const uint64_t done = t->moved + got - sizeof(header), n = std::min(there, t->head.bytes - done);
    if (n > 0) {
        fake_cuda::open();
        ring_copy(t->over, head + got, t->data + done, (size_t)n, false);
    }
    t->moved += got + n;
    t->over->head.store(head + got + n, std::memory_order_release);
    if (t->moved == sizeof(header) + t->head.bytes) {
        return stage::done;
    }
    return got + n > 0 ? stage::moved : stage::stuck;
}

const char *word_of(int kind)
{
    return kind >= 0 && kind <= RECV ? function_names[kind] : "nothing known";
}

// ---- one launch: the calls of a group on one communicator ----

struct launch_plan {
    comm_ptr comm;
    std::vector<call> calls;
    failure wrong;
    bool has_ticket = false;
    uint64_t ticket = 0;
};

struct nccl_task : task {
    std::shared_ptr<launch_plan> plan;
    comm_ptr comm;
    bool begun = false;
    uint64_t own_ticket = 0;
    bool ticketed = false;
    std::map<ring *, std::deque<transfer>> out, in;
    // inputs of each call that reduces, from each rank
    std::vector<std::vector<std::vector<char>>> came;
    clock_type::time_point created = clock_type::now(), moved_at = clock_type::now();

    explicit nccl_task(std::shared_ptr<launch_plan> q) : plan(std::move(q)), comm(plan->comm)
    {
        comm->running++;
        ticketed = plan->has_ticket;
        own_ticket = plan->ticket;
    }
    ~nccl_task() override
    {
        comm->running--;
        comm->waiting--;
        if (ticketed) {
            p().served[comm->device % 64]++;
        }
    }
    ring *ring_between(int from, int to, bool message) const
    {
        const size_t n = (size_t)comm->ranks;
        return comm->meet->rings() +
               ((message ? n * n : 0) + (size_t)from * n + (size_t)to);
    }
    void add(const call &c, int peer, const char *data, size_t bytes, bool is_out)
    {
        const bool message = c.what >= SEND;
        const header h = {message ? SEND : c.what, c.type, message ? 0 : c.op,
                          message ? 0 : c.root, bytes};
        ring *r = is_out ? ring_between(comm->rank, peer, message)
                         : ring_between(peer, comm->rank, message);
        std::deque<transfer> &queue = (is_out ? out : in)[r];
        queue.push_back({r, const_cast<char *>(data), h, peer, is_out,
                         message ? batch_of(peer, (int)queue.size(), is_out) : 0});
    }
    // Returns the batch of a message. The library takes the first message to and from each rank,
    // eight neighbours at a time, then the second ones, and so on.
    int batch_of(int peer, int nth, bool is_out) const
    {
        const int n = comm->ranks;
        return nth * MAX_RANKS + (is_out ? peer - comm->rank + n : comm->rank - peer + n) % n / 8;
    }
    // Returns the batch that is next.
    int turn() const
    {
        int least = INT_MAX;
        for (const auto *side : {&out, &in}) {
            for (const auto &it : *side) {
                least = it.second.empty() ? least : std::min(least, it.second.front().batch);
            }
        }
        return least;
    }
    void begin();
    void begin_call(const call &c, std::vector<std::vector<char>> *from);
    void copy_own();
    void reduce(const call &c, const std::vector<std::vector<char>> &from);
    void finish();
    bool whole() const;
    bool late();
    stage step() override;
    void check_deadline();
};

struct extents { // bytes that a call reads and writes
    size_t in, out;
};

extents extents_of(const call &c, const ncclComm &comm)
{
    const size_t bytes = c.count * size_of(c.type), all = bytes * (size_t)comm.ranks;
    const bool root = c.root == comm.rank;
    switch (c.what) {
    case ALL_GATHER: return {bytes, all};
    case REDUCE_SCATTER: return {all, bytes};
    case ALL_TO_ALL: return {all, all};
    case SCATTER: return {root ? all : 0, bytes};
    case GATHER: return {bytes, root ? all : 0};
    case BROADCAST: return {root ? bytes : 0, bytes};
    case REDUCE: return {bytes, root ? bytes : 0};
    case SEND: return {bytes, 0};
    case RECV: return {0, bytes};
    default: return {bytes, bytes};
    }
}

// Returns whether all memory still exists. If it was freed meanwhile, the device faults.
bool nccl_task::whole() const
{
    for (const call &c : plan->calls) {
        const extents e = extents_of(c, *comm);
        if ((e.in > 0 && !fake_cuda::still_there(c.in, e.in)) ||
            (e.out > 0 && !fake_cuda::still_there(c.out, e.out))) {
            return false;
        }
    }
    return true;
}

void nccl_task::begin_call(const call &c, std::vector<std::vector<char>> *from)
{
    const size_t bytes = c.count * size_of(c.type);
    const int me = comm->rank, n = comm->ranks;
    for (int k = 1; k < n; k++) { // each piece begins with the next rank
        const int to = (me + k) % n, s = (me + n - k) % n;
        const size_t d = (size_t)to * bytes, e = (size_t)s * bytes;
        switch (c.what) {
        case ALL_REDUCE:
        case REDUCE_SCATTER:
            (*from)[(size_t)s].resize(bytes);
            add(c, to, c.what == ALL_REDUCE ? c.in : c.in + d, bytes, true);
            add(c, s, (*from)[(size_t)s].data(), bytes, false);
            break;
        case REDUCE:
            if (me == c.root) {
                (*from)[(size_t)s].resize(bytes);
                add(c, s, (*from)[(size_t)s].data(), bytes, false);
            } else if (to == c.root) {
                add(c, to, c.in, bytes, true);
            }
            break;
        case BROADCAST:
        case SCATTER:
            if (me == c.root) {
                add(c, to, c.what == SCATTER ? c.in + d : c.in, bytes, true);
            } else if (s == c.root) {
                add(c, s, c.out, bytes, false);
            }
            break;
        case GATHER:
            if (me == c.root) {
                add(c, s, c.out + e, bytes, false);
            } else if (to == c.root) {
                add(c, to, c.in, bytes, true);
            }
            break;
        case ALL_GATHER:
        case ALL_TO_ALL:
            add(c, to, c.what == ALL_TO_ALL ? c.in + d : c.in, bytes, true);
            add(c, s, c.out + e, bytes, false);
            break;
        default: break;
        }
    }
    if (c.what >= SEND && c.root != me) {
        add(c, c.root, c.what == SEND ? c.in : c.out, bytes, c.what == SEND);
    }
}

// Writes poison, so that reading the result or writing into it too early is detected.
void poison(char *at, size_t bytes, const char *spare, size_t spare_bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (at + i < spare || at + i >= spare + spare_bytes) {
            at[i] = (char)0xfb;
        }
    }
}

// Copies the rank's own part of each call, and messages to itself: the k-th sent is the k-th
// received.
void nccl_task::copy_own()
{
    std::deque<const call *> sent;
    const size_t me = (size_t)comm->rank;
    for (const call &c : plan->calls) {
        const size_t bytes = c.count * size_of(c.type), n = (size_t)comm->ranks;
        const bool root = comm->rank == c.root;
        switch (c.what) {
        case BROADCAST:
            root ? (void)std::memmove(c.out, c.in, bytes) : poison(c.out, bytes, nullptr, 0);
            break;
        case ALL_GATHER:
            poison(c.out, n * bytes, c.in, bytes);
            std::memmove(c.out + me * bytes, c.in, bytes);
            break;
        case GATHER:
            if (root) {
                poison(c.out, n * bytes, c.in, bytes);
                std::memmove(c.out + me * bytes, c.in, bytes);
            }
            break;
        case ALL_TO_ALL:
            poison(c.out, n * bytes, nullptr, 0);
            std::memmove(c.out + me * bytes, c.in + me * bytes, bytes);
            break;
        case SCATTER:
            root ? (void)std::memmove(c.out, c.in + me * bytes, bytes)
                 : poison(c.out, bytes, nullptr, 0);
            break;
        case RECV: poison(c.out, bytes, nullptr, 0); break;
        case ALL_REDUCE:
        case REDUCE_SCATTER:
            poison(c.out, bytes, c.in, bytes * (c.what == REDUCE_SCATTER ? n : 1));
            break;
        default: break;
        }
        if (c.what == SEND && root) {
            sent.push_back(&c);
        }
    }
    for (const call &c : plan->calls) {
        if (c.what == RECV && comm->rank == c.root) {
            std::memmove(c.out, sent.front()->in, c.count * size_of(c.type));
            sent.pop_front();
        }
    }
}

void nccl_task::begin()
{
    begun = true;
    fake_cuda::open();
    came.resize(plan->calls.size());
    for (size_t i = 0; i < plan->calls.size(); i++) {
        came[i].resize((size_t)comm->ranks);
        begin_call(plan->calls[i], &came[i]);
    }
    copy_own();
}

void nccl_task::reduce(const call &c, const std::vector<std::vector<char>> &from)
{
    const bool around = flag("FAKE_NCCL_RING");
    const size_t size = size_of(c.type), n = (size_t)comm->ranks;
    const char *mine = c.what == REDUCE_SCATTER ? c.in + (size_t)comm->rank * c.count * size : c.in;
    rule r = {c.op, comm->ranks, 0, around, 1.0, false};
    if (c.op >= ncclNumOps) {
        const premul &q = comm->ops[(size_t)c.op - ncclNumOps];
        r.scaled = true;
        r.scale = q.device != nullptr ? scalar_at(q.device, q.type) : q.value;
        r.op = ncclSum;
    } else if (around && c.op == ncclAvg && (c.type >= ncclFloat16)) {
        r.scaled = true;
        r.scale = 1.0 / comm->ranks;
    }
    // in place, `out` may overlap `mine`
    const std::vector<char> own(mine, mine + c.count * size);
    const size_t each = around && c.what == ALL_REDUCE ? (c.count + n - 1) / n : c.count;
    for (size_t begin = 0, k = 0; begin < c.count; begin += each, k++) {
        std::vector<const char *> parts(n);
        for (size_t s = 0; s < n; s++) {
            parts[s] = ((int)s == comm->rank ? own.data() : from[s].data()) + begin * size;
        }
        if (around) {
            const int chunk = c.what == ALL_REDUCE       ? (int)k
                              : c.what == REDUCE_SCATTER ? comm->rank
                                                         : c.root;
            r.first = (chunk + 1) % comm->ranks;
        }
        reduce_piece(parts, c.out + begin * size, std::min(each, c.count - begin), c.type, r);
    }
}

void nccl_task::finish()
{
    fake_cuda::open();
    for (size_t i = 0; i < plan->calls.size(); i++) {
        const call &c = plan->calls[i];
        if (c.what == ALL_REDUCE || c.what == REDUCE_SCATTER ||
            (c.what == REDUCE && c.root == comm->rank)) {
            reduce(c, came[i]);
        }
    }
    if (plan->wrong.how == ASYNC) {
        comm->async = plan->wrong.number;
    }
}

// Returns whether something still delays it.
bool nccl_task::late()
{
    if (plan->wrong.how == NEVER) {
        return true;
    }
    if (ticketed && p().served[comm->device % 64] != own_ticket) {
        return true;
    }
    return plan->wrong.how == DELAY &&
           clock_type::now() < created + std::chrono::milliseconds(plan->wrong.number);
}

stage nccl_task::step()
{
    if (comm->aborted || comm->revoked) {
        return stage::done;
    }
    bool moved = false, left = false;
    if (!begun) {
        if (late()) {
            check_deadline();
            return stage::stuck;
        }
        if (!whole()) {
            return stage::done;
        }
        begin();
        moved = true;
    }
    const int now = strict() ? turn() : INT_MAX;
    for (auto *side : {&out, &in}) {
        for (auto &it : *side) {
            while (!it.second.empty() && it.second.front().batch <= now) {
                transfer *t = &it.second.front();
                const stage how = t->out ? send_some(t) : receive_some(t);
                moved = moved || how != stage::stuck;
                if (how != stage::done) {
                    break;
                }
                it.second.pop_front();
            }
            left = left || !it.second.empty();
        }
    }
    if (!left) {
        if (whole()) {
            finish();
        }
        return stage::done;
    }
    if (moved) {
        moved_at = clock_type::now();
        return stage::moved;
    }
    check_deadline();
    return stage::stuck;
}

double deadline()
{
    return std::atof(setting("FAKE_NCCL_DEADLINE", "30"));
}

void nccl_task::check_deadline()
{
    if (std::chrono::duration<double>(clock_type::now() - moved_at).count() < deadline()) {
        return;
    }
    for (auto *side : {&out, &in}) {
        for (auto &it : *side) {
            if (it.second.empty()) {
                continue;
            }
            const transfer &t = it.second.front();
            std::fprintf(stderr,
                         "fake nccl: rank %d of %d (%s): %s %s %d of %llu bytes has waited %g s",
                         comm->rank, comm->ranks, comm->name.c_str(),
                         t.head.kind == SEND ? (t.out ? "ncclSend" : "ncclRecv")
                                             : word_of(t.head.kind),
                         t.out ? "to" : "from", t.peer, (unsigned long long)t.head.bytes,
                         deadline());
            if (t.misfit) {
                std::fprintf(stderr, "; rank %d gave %s of %llu bytes, type %d, op %d, root %d",
                             t.peer, word_of(t.other.kind), (unsigned long long)t.other.bytes,
                             t.other.type, t.other.op, t.other.root);
            }
            std::fputs("\n", stderr);
        }
    }
    std::fprintf(stderr, "fake nccl: rank %d of %d (%s): %zu calls beginning with %s: the real "
                         "library would wait for ever\n",
                 comm->rank, comm->ranks, comm->name.c_str(), plan->calls.size(),
                 function_names[plan->calls[0].what]);
    std::fflush(stderr);
    _exit(86);
}

// ---- calls ----

struct waiting_call {
    comm_ptr comm;
    cudaStream_t stream;
    call c;
    failure wrong;
};
thread_local int depth = 0;
thread_local std::vector<waiting_call> group;
thread_local ncclResult_t group_error = ncclSuccess;

ncclResult_t enqueue_launch(const comm_ptr &comm, const std::vector<cudaStream_t> &streams,
                            const std::shared_ptr<launch_plan> &plan)
{
    const bool captured = fake_cuda::capturing(streams[0]);
    if (!captured && comm->last_stream != nullptr && comm->last_stream != streams[0]) {
        (void)fake_cuda::order(comm->last_stream, streams[0]); // one after the other
    }
    if (!captured) {
        comm->last_stream = streams[0];
        if (flag("FAKE_NCCL_SERIAL")) {
            plan->has_ticket = true;
            plan->ticket = p().given[comm->device % 64]++;
        }
        comm->waiting++;
    }
    const cudaError_t error =
        fake_cuda::enqueue_on_all(streams.data(), (int)streams.size(), [plan, captured] {
            if (captured) { // for each replay
                plan->comm->waiting++;
            }
            return std::make_unique<nccl_task>(plan);
        });
    return error == cudaSuccess ? ncclSuccess
                                : refuse(ncclUnhandledCudaError, "CUDA error %d", (int)error);
}

// Returns whether the ranks are connected. With FAKE_NCCL_CONNECT, as from 2.22 on, they connect in
// their first collective, before it is enqueued.
bool connected(ncclComm *comm, const launch_plan &plan)
{
    if (comm->blocking || !flag("FAKE_NCCL_CONNECT") || plan.calls[0].what == SEND ||
        plan.calls[0].what == RECV) {
        return true;
    }
    if (!comm->came) {
        comm->came = true;
        comm->meet->came++;
    }
    return comm->meet->came.load() >= comm->ranks;
}

ncclResult_t start_group(std::vector<waiting_call> calls)
{
    std::vector<comm_ptr> order;
    for (const auto &w : calls) {
        if (std::find(order.begin(), order.end(), w.comm) == order.end()) {
            order.push_back(w.comm);
        }
    }
    ncclResult_t result = ncclSuccess;
    for (const comm_ptr &comm : order) {
        auto plan = std::make_shared<launch_plan>();
        std::vector<cudaStream_t> streams;
        long long self = 0;
        plan->comm = comm;
        plan->wrong = {"", NOTHING, 0, false, 0, -1};
        for (const auto &w : calls) {
            if (w.comm != comm) {
                continue;
            }
            plan->calls.push_back(w.c);
            plan->wrong = w.wrong.how != NOTHING ? w.wrong : plan->wrong;
            if (std::find(streams.begin(), streams.end(), w.stream) == streams.end()) {
                streams.push_back(w.stream);
            }
            self += w.c.root != comm->rank ? 0 : w.c.what == SEND ? 1 : w.c.what == RECV ? -1 : 0;
        }
        if (self != 0) {
            return refuse(ncclInvalidUsage, "a message to itself without its other half");
        }
        const auto go = [raw = comm.get(), streams, plan] {
            return connected(raw, *plan) ? enqueue_launch(plan->comm, streams, plan)
                                         : ncclInProgress;
        };
        if (comm->blocking) {
            const ncclResult_t r = go();
            result = result == ncclSuccess ? r : result;
        } else { // enqueued when the caller has polled for it
            comm->rest = go;
            comm->polls = 1 + (int)(fake_cuda::random() % 2);
            result = result == ncclSuccess ? ncclInProgress : result;
        }
    }
    return result;
}

ncclResult_t check_memory(const waiting_call &w)
{
    const extents e = extents_of(w.c, *w.comm);
    if ((e.in > 0 && !fake_cuda::reachable(w.c.in, e.in)) ||
        (e.out > 0 && !fake_cuda::reachable(w.c.out, e.out))) {
        return refuse(ncclInvalidArgument, "%s: %zu bytes in at %p, %zu out at %p: not memory of a "
                                           "device (or less)",
                      function_names[w.c.what], e.in, (const void *)w.c.in, e.out,
                      (void *)w.c.out);
    }
    return ncclSuccess;
}

ncclResult_t check_call(ncclComm_t handle, const waiting_call &w)
{
    const char *name = function_names[w.c.what];
    const comm_ptr &comm = w.comm;
    int device = -1;
    if (comm == nullptr || comm->aborted) {
        return refuse(ncclInvalidArgument, "%s: communicator %p is none", name, (void *)handle);
    }
    if (comm->revoked || comm->meet == nullptr) {
        return refuse(ncclInvalidUsage, "%s: the communicator was revoked or is not ready", name);
    }
    if (comm->rest != nullptr) {
        return refuse(ncclInvalidArgument,
                      "%s: communicator used before the previous operation returned ncclSuccess",
                      name);
    }
    if (w.stream == nullptr || w.stream == cudaStreamLegacy) {
        return refuse(ncclInvalidUsage, "%s on the default stream", name);
    }
    if (cudaStreamGetDevice(w.stream, &device) != cudaSuccess || device != comm->device) {
        return refuse(ncclInvalidArgument, "%s: stream of device %d, communicator of %d", name,
                      device, comm->device);
    }
    if (size_of(w.c.type) == 0 || w.c.root < 0 || w.c.root >= comm->ranks) {
        return refuse(ncclInvalidArgument, "%s: type %d, root or peer %d", name, w.c.type, w.c.root);
    }
    if (w.c.op < 0 || w.c.op >= ncclNumOps + (int)comm->ops.size() ||
        (w.c.op >= ncclNumOps && !comm->ops[(size_t)w.c.op - ncclNumOps].live)) {
        return refuse(ncclInvalidArgument, "%s: operation %d", name, w.c.op);
    }
    if (((uintptr_t)w.c.in | (uintptr_t)w.c.out) % size_of(w.c.type) != 0) { // a kernel would fault
        return refuse(ncclInvalidArgument, "%s: in %p, out %p of type %d", name,
                      (const void *)w.c.in, (void *)w.c.out, w.c.type);
    }
    const bool adds = w.c.what == ALL_REDUCE || w.c.what == REDUCE || w.c.what == REDUCE_SCATTER;
    if (adds && w.c.type >= 10) {
        return refuse(ncclInvalidArgument, "%s: the stand-in does not add fp8", name);
    }
    return w.c.count > 0 ? check_memory(w) : ncclSuccess;
}

ncclResult_t give(kind what, const void *in, void *out, size_t count, int type, int op, int root,
                  ncclComm_t handle, cudaStream_t stream)
{
    const comm_ptr comm = comm_of(handle);
    waiting_call w = {comm, stream, {what, (const char *)in, (char *)out, count, type, op, root},
                      counted(function_names[what], comm == nullptr ? -1 : comm->world_rank)};
    ncclResult_t result = check_call(handle, w);
    if (result == ncclSuccess && comm->in_use.exchange(true)) {
        result = refuse(ncclInvalidUsage, "two threads in one communicator");
    } else if (result == ncclSuccess) {
        if (w.wrong.how == NOTHING && w.wrong.number != ncclSuccess) {
            result = refuse((ncclResult_t)w.wrong.number, "ordered to fail");
        }
        if (w.wrong.how == COUNT && w.c.count > 0) {
            w.c.count--;
        }
        const bool nothing = count == 0 && what < SEND;
        if (result == ncclSuccess && depth > 0 && !nothing) {
            group.push_back(w);
        } else if (result == ncclSuccess && !nothing) {
            result = start_group({w});
        }
        comm->in_use = false;
    }
    if (depth > 0 && result != ncclSuccess) {
        group_error = result;
    }
    return result;
}

// ---- communicators ----

// Returns whether all ranks have joined; InProgress if not.
ncclResult_t try_join(ncclComm *c, meeting *meet)
{
    if ((int)meet->joined.load() < c->ranks) {
        return ncclInProgress;
    }
    (void)unlink((std::string(setting("FAKE_NCCL_DIR", "/dev/shm")) + "/" + c->name).c_str());
    c->meet = meet;
    const bool several = version() >= 23003 && flag("NCCL_MULTI_RANK_GPU_ENABLE");
    for (int a = 0; a < c->ranks && !several; a++) {
        for (int b = 0; b < a; b++) {
            const member &x = meet->members[a], &y = meet->members[b];
            if (x.device == y.device && std::strcmp(x.host, y.host) == 0) {
                return refuse(ncclInvalidUsage, "Duplicate GPU detected: ranks %d and %d on device %d",
                              b, a, x.device);
            }
        }
    }
    return ncclSuccess;
}

ncclResult_t enter_meeting(ncclComm *c, meeting **out)
{
    const std::string path = std::string(setting("FAKE_NCCL_DIR", "/dev/shm")) + "/" + c->name;
    const size_t bytes = meeting_bytes(c->ranks);
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        return refuse(ncclSystemError, "no file %s", path.c_str());
    }
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) {
        return refuse(ncclSystemError, "no memory for %d ranks", c->ranks);
    }
    meeting *meet = (meeting *)at;
    uint32_t none = 0, nobody = 0;
    if (!meet->ranks.compare_exchange_strong(none, (uint32_t)c->ranks) &&
        none != (uint32_t)c->ranks) {
        return refuse(ncclInvalidArgument, "%d ranks, others said %u", c->ranks, none);
    }
    member *me = &meet->members[c->rank];
    if (!me->here.compare_exchange_strong(nobody, 1)) {
        return refuse(ncclInvalidUsage, "rank %d has come before", c->rank);
    }
    me->device = c->device;
    std::snprintf(me->host, sizeof me->host, "%s", setting("NCCL_HOSTID", "host"));
    meet->joined++;
    *out = meet;
    return ncclSuccess;
}

// Blocks until rest() is done, or leaves it to later polls.
ncclResult_t wait_or_leave(const comm_ptr &polled, std::function<ncclResult_t()> rest, bool blocking,
                           const char *what)
{
    if (!blocking) {
        polled->rest = std::move(rest);
        polled->polls = 1;
        return ncclInProgress;
    }
    ncclResult_t result = ncclInProgress;
    const auto began = clock_type::now();
    fake_cuda::wait_until([&] {
        result = rest();
        if (std::chrono::duration<double>(clock_type::now() - began).count() > deadline()) {
            std::fprintf(stderr,
                         "fake nccl: %s of rank %d of %d has waited %g s for the others: the real "
                         "library would wait for ever\n",
                         what, polled->rank, polled->ranks, deadline());
            _exit(86);
        }
        return result != ncclInProgress;
    });
    return result;
}

bool config_blocking(const ncclConfig_t *config, bool otherwise)
{
    return config == nullptr || config->blocking == NCCL_CONFIG_UNDEF_INT ? otherwise
                                                                          : config->blocking != 0;
}

ncclResult_t check_config(const ncclConfig_t *config)
{
    if (config != nullptr && (config->magic != 0xcafebeef || config->size < 48)) {
        return refuse(ncclInvalidArgument, "a config that NCCL_CONFIG_INITIALIZER did not make");
    }
    if (config != nullptr && config->blocking != NCCL_CONFIG_UNDEF_INT &&
        (unsigned)config->blocking > 1) {
        return refuse(ncclInvalidArgument, "config.blocking is %d", config->blocking);
    }
    return ncclSuccess;
}

void publish(const comm_ptr &c)
{
    std::lock_guard<std::mutex> hold(p().lock);
    comms()[c.get()] = c;
}

void forget(ncclComm_t c)
{
    std::lock_guard<std::mutex> hold(p().lock);
    comms().erase(c);
}

ncclResult_t finish_setup(const comm_ptr &c, ncclComm_t *out, std::function<ncclResult_t()> rest,
                          const char *what)
{
    publish(c);
    *out = c.get();
    const ncclResult_t result = wait_or_leave(c, std::move(rest), c->blocking, what);
    if (result != ncclSuccess && result != ncclInProgress) {
        forget(c.get());
        *out = nullptr;
    }
    return result;
}

// Ends the creation of a child. For a non-blocking parent the call is a success, and *out is
// written when polling the parent reports completion, as in the library.
ncclResult_t finish_child(const comm_ptr &parent, const comm_ptr &c, ncclComm_t *out,
                          std::function<ncclResult_t()> rest, const char *what)
{
    if (parent->blocking) {
        return finish_setup(c, out, std::move(rest), what);
    }
    parent->polls = 1;
    parent->rest = [c, out, rest = std::move(rest)] {
        const ncclResult_t result = rest();
        if (result == ncclSuccess) {
            publish(c);
            *out = c.get();
        }
        return result;
    };
    return ncclSuccess;
}

ncclResult_t init_rank(ncclComm_t *out, int ranks, const ncclUniqueId &id, int rank,
                       const ncclConfig_t *config, const char *name)
{
    const failure f = counted(name, rank);
    const ncclResult_t bad = check_config(config);
    *out = nullptr;
    if (bad != ncclSuccess || (f.how == NOTHING && f.number != ncclSuccess)) {
        return bad != ncclSuccess ? bad : refuse((ncclResult_t)f.number, "ordered to fail");
    }
    if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks ||
        std::strncmp(id.internal, "fake_nccl.", 10) != 0) {
        return refuse(ncclInvalidArgument, "rank %d of %d, id %.10s", rank, ranks, id.internal);
    }
    if (depth > 0) {
        return refuse(ncclInvalidUsage, "the stand-in makes no communicators inside a group");
    }
    auto c = std::make_shared<ncclComm>();
    meeting *meet = nullptr;
    c->name = id.internal;
    c->ranks = ranks;
    c->rank = c->world_rank = rank;
    c->blocking = config_blocking(config, true);
    if (cudaGetDevice(&c->device) != cudaSuccess) {
        return refuse(ncclUnhandledCudaError, "no device");
    }
    if (f.how == DELAY) {
        usleep((useconds_t)f.number * 1000);
    }
    ncclResult_t entered = f.how == NEVER ? ncclSuccess : enter_meeting(c.get(), &meet);
    if (entered != ncclSuccess) {
        return entered;
    }
    ncclComm *raw = c.get();
    return finish_setup(
        c, out, [raw, meet] { return meet == nullptr ? ncclInProgress : try_join(raw, meet); },
        name);
}

// Counts the votes of a split once all have voted, and computes this rank's place among those of
// its color.
ncclResult_t count_votes(ncclComm *parent, uint64_t generation, ncclComm *child)
{
    const vote *mine = &parent->meet->members[parent->rank].votes[generation % 2];
    int rank = 0, ranks = 0;
    for (int r = 0; r < parent->ranks; r++) {
        const vote *v = &parent->meet->members[r].votes[generation % 2];
        if (v->generation.load(std::memory_order_acquire) < generation) {
            return ncclInProgress;
        }
        if (v->color == mine->color) {
            ranks++;
            rank += v->key < mine->key || (v->key == mine->key && r < parent->rank);
        }
    }
    if (child != nullptr) {
        child->rank = rank;
        child->ranks = ranks;
    }
    return ncclSuccess;
}

comm_ptr child_of(const comm_ptr &parent, const ncclConfig_t *config)
{
    auto c = std::make_shared<ncclComm>();
    c->device = parent->device;
    c->world_rank = parent->world_rank;
    c->blocking = config_blocking(config, parent->blocking);
    return c;
}

// Checks that a communicator is intact and has nothing in progress.
ncclResult_t ready(const comm_ptr &c, const char *what)
{
    if (c == nullptr || c->aborted) {
        return refuse(ncclInvalidArgument, "%s: the communicator is none", what);
    }
    if (c->rest != nullptr || c->meet == nullptr) {
        return refuse(ncclInvalidArgument,
                      "%s: communicator used before the previous operation returned ncclSuccess",
                      what);
    }
    return depth > 0 ? refuse(ncclInvalidUsage, "%s: not inside a group here", what) : ncclSuccess;
}

ncclResult_t ordered(const char *name, int rank)
{
    const failure f = counted(name, rank);
    return f.how == NOTHING && f.number != ncclSuccess
               ? refuse((ncclResult_t)f.number, "ordered to fail")
               : ncclSuccess;
}

// Unmaps the memory of the peers.
void close_window(ncclComm *c, window *w)
{
    for (void *peer : w->peers) {
        if (peer != nullptr) {
            fake_cuda::unmap_peer(peer);
        }
    }
    if (w->file >= 0) {
        close(w->file);
    }
    c->windows.erase(w);
    delete w;
}

void close_windows(ncclComm *c)
{
    while (!c->windows.empty()) {
        close_window(c, *c->windows.begin());
    }
}

void stop(const comm_ptr &c)
{
    fake_cuda::wait_until([&] { return c->running == 0; });
}

} // namespace

extern "C" {

ncclResult_t ncclGetVersion(int *v)
{
    *v = version();
    return ordered("ncclGetVersion", -1);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    const ncclResult_t bad = ordered("ncclGetUniqueId", -1);
    const char *fixed = std::getenv("NCCL_COMM_ID");
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    std::memset(id, 0, sizeof *id);
    if (fixed != nullptr && fixed[0] != 0) { // the same on all ranks, without communication
        std::snprintf(id->internal, sizeof id->internal, "fake_nccl.id_%s", fixed);
        std::replace(id->internal, id->internal + sizeof id->internal, '/', '_');
    } else {
        std::lock_guard<std::mutex> hold(p().lock);
        std::snprintf(id->internal, sizeof id->internal, "fake_nccl.%d_%lld_%llu", (int)getpid(),
                      (long long)t.tv_sec * 1000000000 + t.tv_nsec, (unsigned long long)++p().ids);
    }
    return bad;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const text[] = {"no error",         "unhandled cuda error",
                                       "system error",     "internal error",
                                       "invalid argument", "invalid usage",
                                       "remote process exited or there was a network error",
                                       "operation in progress"};
    return (unsigned)result < 8 ? text[result] : "unknown result";
}

const char *ncclGetLastError(ncclComm_t)
{
    return last_text.c_str();
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    return init_rank(comm, ranks, id, rank, nullptr, "ncclCommInitRank");
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    return init_rank(comm, ranks, id, rank, config, "ncclCommInitRankConfig");
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int ranks, int rank, int ids,
                                      ncclUniqueId *id, ncclConfig_t *config)
{
    return ids < 1 ? refuse(ncclInvalidArgument, "%d ids", ids)
                   : init_rank(comm, ranks, id[0], rank, config, "ncclCommInitRankScalable");
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    const comm_ptr c = comm_of(comm);
    const ncclResult_t bad = ready(c, "ncclCommFinalize");
    if (bad != ncclSuccess || c->revoked) {
        return bad != ncclSuccess ? bad : refuse(ncclInvalidUsage, "finalize after revoke");
    }
    const ncclResult_t fails = ordered("ncclCommFinalize", c->world_rank);
    ncclComm *raw = c.get();
    return fails != ncclSuccess
               ? fails
               : wait_or_leave(
                     c, [raw] { return raw->waiting > 0 ? ncclInProgress : ncclSuccess; },
                     c->blocking, "ncclCommFinalize");
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    const comm_ptr c = comm_of(comm);
    if (c == nullptr || c->aborted) {
        return refuse(ncclInvalidArgument, "ncclCommDestroy: the communicator is none");
    }
    const ncclResult_t fails = ordered("ncclCommDestroy", c->world_rank);
    if (fails == ncclSuccess) {
        (void)wait_or_leave(
            c, [&] { return c->waiting > 0 ? ncclInProgress : ncclSuccess; }, true,
            "ncclCommDestroy");
        close_windows(c.get());
        forget(comm);
    }
    return fails;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    const comm_ptr c = comm_of(comm);
    if (c == nullptr || c->aborted) {
        return refuse(ncclInvalidArgument, "ncclCommAbort: the communicator is none");
    }
    const ncclResult_t fails = ordered("ncclCommAbort", c->world_rank);
    if (fails == ncclSuccess) {
        c->aborted = true;
        stop(c);
        close_windows(c.get()); // even if something reads them now
        fake_cuda::wait_for_device(); // freeing waits for kernels of other communicators too
        forget(comm);
    }
    return fails;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int)
{
    const comm_ptr c = comm_of(comm);
    if (c == nullptr || c->aborted) {
        return refuse(ncclInvalidArgument, "ncclCommRevoke: the communicator is none");
    }
    const ncclResult_t fails = ordered("ncclCommRevoke", c->world_rank);
    if (fails == ncclSuccess) {
        c->revoked = true;
        stop(c);
    }
    return fails;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    const comm_ptr c = comm_of(comm);
    if (c == nullptr) {
        return refuse(ncclInvalidArgument, "ncclCommGetAsyncError: the communicator is none");
    }
    const ncclResult_t fails = ordered("ncclCommGetAsyncError", c->world_rank);
    std::lock_guard<std::mutex> hold(c->polling);
    *error = fake_cuda::faulty() ? ncclUnhandledCudaError : (ncclResult_t)c->async.load();
    if (*error == ncclSuccess && c->rest != nullptr) {
        if (c->polls > 0) {
            c->polls--;
            *error = ncclInProgress;
        } else {
            *error = c->rest();
            if (*error != ncclInProgress) {
                c->rest = nullptr;
            }
            if (*error != ncclSuccess && *error != ncclInProgress) {
                c->async = *error;
            }
        }
    }
    return fails;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    const comm_ptr c = comm_of(comm);
    *count = c == nullptr ? 0 : c->ranks;
    return c == nullptr ? ncclInvalidArgument : ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    const comm_ptr c = comm_of(comm);
    *device = c == nullptr ? -1 : c->device;
    return c == nullptr ? ncclInvalidArgument : ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    const comm_ptr c = comm_of(comm);
    *rank = c == nullptr ? -1 : c->rank;
    return c == nullptr ? ncclInvalidArgument : ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config)
{
    const comm_ptr parent = comm_of(comm);
    ncclResult_t bad = ready(parent, "ncclCommSplit");
    bad = bad != ncclSuccess ? bad : check_config(config);
    bad = bad != ncclSuccess ? bad : ordered("ncclCommSplit", parent->world_rank);
    *out = nullptr;
    if (bad != ncclSuccess || color < NCCL_SPLIT_NOCOLOR) {
        return bad != ncclSuccess ? bad : refuse(ncclInvalidArgument, "color %d", color);
    }
    const uint64_t generation = ++parent->splits;
    vote *mine = &parent->meet->members[parent->rank].votes[generation % 2];
    mine->color = color;
    mine->key = key;
    mine->generation.store(generation, std::memory_order_release);
    if (color == NCCL_SPLIT_NOCOLOR) {
        ncclComm *raw = parent.get();
        const ncclResult_t left = wait_or_leave(
            parent, [raw, generation] { return count_votes(raw, generation, nullptr); },
            parent->blocking, "ncclCommSplit");
        return left == ncclInProgress ? ncclSuccess : left;
    }
    const comm_ptr c = child_of(parent, config);
    c->name = parent->name + ".s" + std::to_string(generation) + "." + std::to_string(color);
    auto meet = std::make_shared<meeting *>(nullptr);
    ncclComm *child = c.get(), *raw = parent.get();
    return finish_child(
        parent, c, out,
        [raw, child, generation, meet] {
            if (*meet == nullptr) {
                ncclResult_t r = count_votes(raw, generation, child);
                r = r == ncclSuccess ? enter_meeting(child, meet.get()) : r;
                if (r != ncclSuccess) {
                    return r;
                }
            }
            return try_join(child, *meet);
        },
        "ncclCommSplit");
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int excluded_count, ncclComm_t *out,
                            ncclConfig_t *config, int flags)
{
    const comm_ptr parent = comm_of(comm);
    ncclResult_t bad = ready(parent, "ncclCommShrink");
    bad = bad != ncclSuccess ? bad : ordered("ncclCommShrink", parent->world_rank);
    *out = nullptr;
    if (bad != ncclSuccess) {
        return bad;
    }
    if (excluded_count < 1) {
        return refuse(ncclInvalidArgument, "nobody to exclude");
    }
    const std::set<int> gone(excluded, excluded + excluded_count);
    const comm_ptr c = child_of(parent, config);
    std::string list;
    c->ranks = parent->ranks - (int)gone.size();
    c->rank = parent->rank;
    for (const int r : gone) {
        if (r < 0 || r >= parent->ranks || r == parent->rank) {
            return refuse(ncclInvalidArgument, "rank %d cannot be excluded here", r);
        }
        c->rank -= r < parent->rank;
        list += "." + std::to_string(r);
    }
    if (flags & NCCL_SHRINK_ABORT) {
        parent->revoked = true; // operations in progress end
        stop(parent);
    }
    c->name = parent->name + ".k" + std::to_string(++parent->shrinks[list]) + list;
    meeting *meet = nullptr;
    const ncclResult_t entered = enter_meeting(c.get(), &meet);
    ncclComm *raw = c.get();
    return entered != ncclSuccess
               ? entered
               : finish_child(
                     parent, c, out, [raw, meet] { return try_join(raw, meet); }, "ncclCommShrink");
}

// ---- memory ----

ncclResult_t ncclMemAlloc(void **memory, size_t bytes)
{
    void *whole = nullptr;
    const ncclResult_t fails = ordered("ncclMemAlloc", -1);
    if (fails != ncclSuccess) {
        return fails;
    }
    if (cudaMalloc(&whole, bytes + 4096) != cudaSuccess) {
        return refuse(ncclUnhandledCudaError, "no %zu bytes", bytes);
    }
    *memory = (void *)(((uintptr_t)whole + 4095) / 4096 * 4096);
    std::lock_guard<std::mutex> hold(p().lock);
    p().allocated[*memory] = whole;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *memory)
{
    void *whole = nullptr;
    const ncclResult_t fails = ordered("ncclMemFree", -1);
    {
        std::lock_guard<std::mutex> hold(p().lock);
        const auto it = p().allocated.find(memory);
        if (fails != ncclSuccess || it == p().allocated.end()) {
            return fails != ncclSuccess ? fails : refuse(ncclInvalidArgument, "not from MemAlloc");
        }
        whole = it->second;
        p().allocated.erase(it);
    }
    // Unlike cudaFree it does not wait.
    return fake_cuda::free_at_once(whole) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *memory, size_t bytes, void **handle)
{
    const comm_ptr c = comm_of(comm);
    const ncclResult_t bad = ready(c, "ncclCommRegister");
    const ncclResult_t fails =
        bad != ncclSuccess ? bad : ordered("ncclCommRegister", c->world_rank);
    if (fails != ncclSuccess || !fake_cuda::reachable(memory, bytes)) {
        return fails != ncclSuccess ? fails : refuse(ncclInvalidArgument, "not device memory");
    }
    *handle = new int(1);
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    const comm_ptr c = comm_of(comm);
    const ncclResult_t fails = ordered("ncclCommDeregister", c == nullptr ? -1 : c->world_rank);
    if (c == nullptr || handle == nullptr) {
        return refuse(ncclInvalidArgument, "no communicator or no handle");
    }
    delete static_cast<int *>(handle);
    return fails;
}

// Makes pages that all processes map. All ranks call it.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes,
                                    ncclWindow_t *out, int)
{
    *out = nullptr;
    if ((uintptr_t)memory % NCCL_WIN_REQUIRED_ALIGNMENT != 0) {
        return refuse(ncclInvalidArgument, "a window at %p: not a multiple of 4096", memory);
    }
    const comm_ptr c = comm_of(comm);
    const ncclResult_t bad = ready(c, "ncclCommWindowRegister");
    const ncclResult_t fails =
        bad != ncclSuccess ? bad : ordered("ncclCommWindowRegister", c->world_rank);
    if (fails != ncclSuccess || !fake_cuda::reachable(memory, bytes)) {
        return fails != ncclSuccess ? fails : refuse(ncclInvalidArgument, "not device memory");
    }
    window *w = new window{comm, memory, (bytes + 4095) / 4096 * 4096, -1, {}};
    const uint32_t n = c->windows_so_far++;
    w->file = c->ranks > 1 ? fake_cuda::share(memory, w->bytes) : -1;
    w->peers.resize((size_t)c->ranks, nullptr);
    c->meet->members[c->rank].windows[n % 64] =
        (uint64_t)getpid() << 32 | (uint64_t)(w->file & 0xffff) << 16 | ((n + 1) & 0xffff);
    ncclComm *raw = c.get();
    const auto come = [raw, n] {
        for (int r = 0; r < raw->ranks; r++) {
            if ((raw->meet->members[r].windows[n % 64] & 0xffff) != ((n + 1) & 0xffff)) {
                return ncclInProgress;
            }
        }
        return ncclSuccess;
    };
    const auto take = [raw, w, n, out] {
        const member *members = raw->meet->members;
        for (int r = 0; r < raw->ranks; r++) {
            const uint64_t said = members[r].windows[n % 64];
            if (r != raw->rank && !std::strcmp(members[r].host, members[raw->rank].host)) {
                const std::string name = "/proc/" + std::to_string(said >> 32) + "/fd/" +
                                         std::to_string(said >> 16 & 0xffff);
                const int fd = open(name.c_str(), O_RDWR | O_CLOEXEC);
                w->peers[(size_t)r] = fd < 0 ? nullptr : fake_cuda::map_peer(fd, w->bytes);
                close(fd);
            }
        }
        raw->windows.insert(w);
        *out = (ncclWindow_t)w;
    };
    if (c->blocking) { // waiting would hold the device's lock
        const ncclResult_t all = wait_or_leave(c, come, true, "ncclCommWindowRegister");
        take();
        return all;
    }
    const ncclResult_t result = wait_or_leave(
        c,
        [come, take] {
            const ncclResult_t all = come();
            if (all == ncclSuccess) {
                take();
            }
            return all;
        },
        false, "ncclCommWindowRegister");
    // returns success at once, the window is made later
    return result == ncclInProgress ? ncclSuccess : result;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t handle)
{
    const comm_ptr c = comm_of(comm);
    window *w = (window *)handle;
    const ncclResult_t fails =
        ordered("ncclCommWindowDeregister", c == nullptr ? -1 : c->world_rank);
    if (c == nullptr || w == nullptr || c->windows.count(w) == 0) {
        return refuse(ncclInvalidArgument, "no communicator or no window of it");
    }
    close_window(c.get(), w);
    return fails;
}

// Returns NULL for ranks of another host, as the library does.
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t handle, size_t offset, int peer, void **out)
{
    const window *w = (const window *)handle;
    const comm_ptr c = w == nullptr ? nullptr : comm_of(w->comm);
    *out = nullptr;
    if (c == nullptr || c->windows.count((window *)w) == 0 || peer < 0 || peer >= c->ranks) {
        return refuse(ncclInvalidArgument, "no window, or no rank %d of its communicator", peer);
    }
    const ncclResult_t fails = ordered("ncclGetPeerDevicePointer", c->world_rank);
    void *at = peer == c->rank ? w->memory : w->peers[(size_t)peer];
    *out = at == nullptr || fails != ncclSuccess ? nullptr : (char *)at + offset;
    return fails;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    const comm_ptr c = comm_of(comm);
    const ncclResult_t bad = ready(c, "ncclRedOpCreatePreMulSum");
    const ncclResult_t fails =
        bad != ncclSuccess ? bad : ordered("ncclRedOpCreatePreMulSum", c->world_rank);
    if (fails != ncclSuccess) {
        return fails;
    }
    premul q;
    q.live = true;
    q.type = type;
    if (residence == ncclScalarDevice) {
        q.device = scalar;
    } else {
        q.value = scalar_at(scalar, type);
    }
    c->ops.push_back(q);
    *op = (ncclRedOp_t)(ncclNumOps + (int)c->ops.size() - 1);
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    const comm_ptr c = comm_of(comm);
    const size_t k = (size_t)op - ncclNumOps;
    if (c == nullptr || (int)op < ncclNumOps || k >= c->ops.size() || !c->ops[k].live) {
        return refuse(ncclInvalidArgument, "operation %d", (int)op);
    }
    c->ops[k].live = false;
    return ordered("ncclRedOpDestroy", c->world_rank);
}

// ---- operations ----

ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    return give(REDUCE, in, out, count, type, op, root, comm, stream);
}

ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream)
{
    return give(BROADCAST, buffer, buffer, count, type, 0, root, comm, stream);
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return give(BROADCAST, in, out, count, type, 0, root, comm, stream);
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return give(ALL_REDUCE, in, out, count, type, op, 0, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t out_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return give(REDUCE_SCATTER, in, out, out_count, type, op, 0, comm, stream);
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t in_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return give(ALL_GATHER, in, out, in_count, type, 0, 0, comm, stream);
}

ncclResult_t ncclAlltoAll(const void *in, void *out, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream)
{
    return give(ALL_TO_ALL, in, out, count, type, 0, 0, comm, stream);
}

ncclResult_t ncclGather(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    return give(GATHER, in, out, count, type, 0, root, comm, stream);
}

ncclResult_t ncclScatter(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream)
{
    return give(SCATTER, in, out, count, type, 0, root, comm, stream);
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return give(SEND, in, nullptr, count, type, 0, peer, comm, stream);
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return give(RECV, nullptr, out, count, type, 0, peer, comm, stream);
}

ncclResult_t ncclGroupStart(void)
{
    const ncclResult_t fails = ordered("ncclGroupStart", -1);
    depth += fails == ncclSuccess;
    return fails;
}

ncclResult_t ncclGroupEnd(void)
{
    if (depth == 0) {
        return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    }
    if (--depth > 0) {
        return ncclSuccess;
    }
    std::vector<waiting_call> calls;
    calls.swap(group);
    ncclResult_t result = group_error;
    group_error = ncclSuccess;
    const ncclResult_t fails = ordered("ncclGroupEnd", -1);
    result = result != ncclSuccess ? result : fails;
    return result != ncclSuccess || calls.empty() ? result : start_group(std::move(calls));
}

// ---- for tests ----

long long fake_nccl_count(const char *name)
{
    std::lock_guard<std::mutex> hold(p().lock);
    const auto it = p().count.find(name);
    return it == p().count.end() ? 0 : it->second;
}

void fake_nccl_fail(const char *list)
{
    std::lock_guard<std::mutex> hold(p().lock);
    p().by_call = true;
    parse_failures(list);
}

} // extern "C"
