// SPDX-License-Identifier: MIT-0
// The stand-in for the CUDA runtime, see cuda_runtime.h. One lock protects everything. A thread
// that waits runs the device's work; a separate thread does when none waits.
#define FAKE_CUDA_ITSELF
#include "cuda_runtime.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define FAKE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FAKE_ASAN 1
#endif
#endif
#ifdef FAKE_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

using fake_cuda::stage;
using fake_cuda::task;
using starter = std::function<std::unique_ptr<task>()>;
using clock_type = std::chrono::steady_clock;

namespace {

[[noreturn]] __attribute__((format(printf, 1, 2))) void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    std::fputs("fake cuda: ", stderr);
    std::vfprintf(stderr, format, args);
    std::fputs("\n", stderr);
    va_end(args);
    std::abort();
}

const char *setting(const char *name, const char *otherwise)
{
    const char *text = std::getenv(name);
    return text != nullptr && text[0] != 0 ? text : otherwise;
}

// ---- objects ----

struct op { // an operation of a stream
    starter start;
    std::unique_ptr<task> running;
    std::vector<std::shared_ptr<op>> needs; // must be done before it begins
    bool held = false, forced = false, busy = false, done = false;
    clock_type::time_point late, ended; // when it is held no longer; when it was done
    std::thread::id thread = std::this_thread::get_id(); // the thread that enqueued it
};

struct node { // a node of a graph
    starter start;
    std::vector<int> needs;
};

struct recording { // a capture into a graph
    std::vector<node> nodes;
    CUstream_st *origin;
    std::thread::id thread;
    cudaStreamCaptureMode mode;
    bool invalid = false;
};

struct block { // a block of memory that the device can access
    size_t bytes;
    cudaMemoryType type;
    int device;
    // from cudaMallocHost; false: the caller's own, registered. For device memory: not a peer's
    bool ours;
};

enum { EDGE = 256 }; // guarded bytes before and after device memory
constexpr unsigned char POISON = 0xff, EDGE_BYTE = 0xa5;
constexpr size_t ARENA = size_t{1} << 37;
constexpr size_t HUGE_PAGE = size_t{1} << 21;

struct failure {
    std::string name;
    long long from;
    bool onwards;
    int error, rank;
};

} // namespace

struct CUstream_st {
    std::deque<std::shared_ptr<op>> queue;
    std::shared_ptr<op> last;
    int number = 0, device = 0;
    bool blocking = true; // follows the rules of the default stream
    bool gone = false;
    std::shared_ptr<recording> capture;
    std::vector<int> tail; // nodes that the next one depends on
};

struct CUevent_st {
    std::shared_ptr<op> mark; // empty if never recorded
    std::shared_ptr<recording> capture;
    std::vector<int> nodes;
    bool timing = true;
};

struct CUgraph_st {
    std::vector<node> nodes;
};

struct CUgraphExec_st {
    std::shared_ptr<std::vector<node>> nodes;
    std::shared_ptr<op> last;
};

namespace {

struct machine {
    std::mutex lock;
    std::condition_variable news;
    pid_t pid = 0;
    std::vector<std::shared_ptr<CUstream_st>> streams; // [0]: the default stream
    std::set<cudaEvent_t> events;
    std::vector<std::weak_ptr<recording>> captures;
    std::map<uintptr_t, block> memory;
    size_t taken = 0, room = 0;
    char *arena = nullptr;
    size_t used = 0;
    bool open = false, guard = true;
    unsigned long long seed = 0, lot = 0;
    double hold = 0.02;
    int streams_made = 0, waiters = 0, devices = 8, rank = -1;
    cudaError_t fault = cudaSuccess;
    std::map<std::string, long long> count, failing;
    std::vector<failure> failures;
    long long pending = 0;
};

machine &m()
{
    // lives as long as the process, because the thread uses it to the end
    static machine *one = new machine;
    return *one;
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local bool in_host_function = false;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

cudaError_t give(cudaError_t error)
{
    if (error != cudaSuccess) { // also cudaErrorNotReady, as in the real runtime
        last_error = error;
    }
    return error;
}

unsigned long long lot()
{
    unsigned long long z = m().lot += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

void set_seed(unsigned long long seed)
{
    m().seed = seed;
    m().lot = seed * 1000003u + (unsigned long long)(m().rank + 1);
}

// ---- requested failures ----

std::vector<failure> parse_failures(const char *list)
{
    std::vector<failure> all;
    std::string rest = list == nullptr ? "" : list;
    while (!rest.empty()) {
        const size_t end = std::min(rest.find(','), rest.size());
        std::string one = rest.substr(0, end);
        rest = end < rest.size() ? rest.substr(end + 1) : "";
        failure f = {"", 1, false, cudaErrorUnknown, -1};
        const size_t at = one.find('@'), colon = one.find(':');
        if (at != std::string::npos) {
            f.rank = std::atoi(one.c_str() + at + 1);
            one.resize(at);
        }
        f.name = one.substr(0, colon);
        if (colon != std::string::npos) {
            char *end_of = nullptr;
            f.from = std::strtoll(one.c_str() + colon + 1, &end_of, 10);
            f.onwards = *end_of == '+';
            end_of += f.onwards;
            f.error = *end_of == ':' ? std::atoi(end_of + 1) : f.error;
        }
        if (f.name == "cudaMalloc" && f.error == cudaErrorUnknown) {
            f.error = cudaErrorMemoryAllocation;
        }
        all.push_back(f);
    }
    return all;
}

// Counts a call and returns the error that it is to fail with.
cudaError_t counted(const char *name)
{
    m().count[name]++;
    const long long n = ++m().failing[name];
    for (const failure &f : m().failures) {
        if (f.name == name && (n == f.from || (f.onwards && n > f.from)) &&
            (f.rank < 0 || f.rank == m().rank)) {
            return (cudaError_t)f.error;
        }
    }
    return cudaSuccess;
}

// ---- the device's memory ----

// Works in whole huge pages: opening and closing costs time per page, and happens at each step.
size_t guarded()
{
    return (m().used + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

void protect_peers(int how)
{
    for (const auto &it : m().memory) {
        if (it.second.type == cudaMemoryTypeDevice && !it.second.ours) {
            (void)mprotect((void *)it.first, it.second.bytes, how);
        }
    }
}

void open_device()
{
    if (!m().open && m().guard && m().used > 0) {
        if (mprotect(m().arena, guarded(), PROT_READ | PROT_WRITE) != 0) {
            die("mprotect: error %d", errno);
        }
        protect_peers(PROT_READ | PROT_WRITE);
    }
    m().open = true;
}

void close_device()
{
    if (m().open && m().guard && m().used > 0) {
        (void)mprotect(m().arena, guarded(), PROT_NONE);
        protect_peers(PROT_NONE);
    }
    m().open = false;
}

struct sigaction fault_before;

void on_fault(int number, siginfo_t *info, void *)
{
    const char *at = (const char *)info->si_addr;
    if (at >= m().arena && at < m().arena + ARENA) {
        static const char text[] =
            "fake cuda: the host touched device memory (or a kernel memory beyond all)\n";
        (void)!write(2, text, sizeof text - 1);
    }
    sigaction(number, &fault_before, nullptr); // the access is repeated and ends the process
}

std::map<uintptr_t, block>::iterator find_block(const void *at)
{
    auto it = m().memory.upper_bound((uintptr_t)at);
    if (it == m().memory.begin()) {
        return m().memory.end();
    }
    --it;
    return (uintptr_t)at < it->first + std::max<size_t>(it->second.bytes, 1) ? it
                                                                            : m().memory.end();
}

void check_edges(uintptr_t begin, size_t bytes)
{
#ifndef FAKE_ASAN
    const unsigned char *at = (const unsigned char *)begin;
    for (size_t i = 0; i < EDGE; i++) {
        if (at[-(ptrdiff_t)i - 1] != EDGE_BYTE || at[bytes + i] != EDGE_BYTE) {
            die("something wrote outside of device memory of %zu bytes, %zu bytes %s", bytes, i,
                at[bytes + i] != EDGE_BYTE ? "after its end" : "before its beginning");
        }
    }
#else
    (void)begin, (void)bytes;
#endif
}

void check_all_edges()
{
    if (m().pid != getpid() || !m().lock.try_lock()) {
        return;
    }
    open_device();
    for (const auto &it : m().memory) {
        if (it.second.type == cudaMemoryTypeDevice && it.second.ours) {
            check_edges(it.first, it.second.bytes);
        }
    }
    close_device();
    m().lock.unlock();
}

cudaError_t take_device(void **memory, size_t bytes)
{
    const size_t whole = (EDGE + bytes + EDGE + 511) / 512 * 512;
    if (bytes > m().room - m().taken || m().used + whole > ARENA) {
        return cudaErrorMemoryAllocation;
    }
    close_device();
    char *base = m().arena + m().used;
    m().used = (m().used + whole + 4095) / 4096 * 4096;
    if (mprotect(m().arena, guarded(), PROT_READ | PROT_WRITE) != 0) {
        return cudaErrorMemoryAllocation;
    }
    m().open = true;
    std::memset(base, EDGE_BYTE, whole);
    std::memset(base + EDGE, POISON, bytes);
    ASAN_POISON_MEMORY_REGION(base, whole);
    ASAN_UNPOISON_MEMORY_REGION(base + EDGE, bytes);
    close_device();
    m().memory[(uintptr_t)(base + EDGE)] = {bytes, cudaMemoryTypeDevice, current_device, true};
    m().taken += bytes;
    *memory = base + EDGE;
    return cudaSuccess;
}

void give_back(std::map<uintptr_t, block>::iterator it)
{
    void *memory = (void *)it->first;
    open_device();
    check_edges(it->first, it->second.bytes);
    std::memset(memory, POISON, it->second.bytes); // visible to those that still read it
    ASAN_POISON_MEMORY_REGION(memory, it->second.bytes);
    close_device();
    const uintptr_t begin = (it->first + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    const uintptr_t end = (it->first + it->second.bytes) / HUGE_PAGE * HUGE_PAGE;
    if (begin < end) { // the addresses are not used again
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
    }
    m().taken -= it->second.bytes;
    m().memory.erase(it);
}

// ---- the work of the device ----

bool runnable(const op &o)
{
    if (o.busy || (o.held && !o.forced && clock_type::now() < o.late)) {
        return false;
    }
    return std::all_of(o.needs.begin(), o.needs.end(), [](const auto &n) { return n->done; });
}

// Makes the operation run as soon as possible, with all before it and all that these wait for.
void force(const std::shared_ptr<op> &o);

void force_stream(CUstream_st *s, const std::shared_ptr<op> &up_to)
{
    for (size_t i = 0; i < s->queue.size(); i++) {
        const std::shared_ptr<op> one = s->queue[i];
        if (!one->forced) {
            one->forced = true;
            for (const auto &n : one->needs) {
                force(n);
            }
        }
        if (one == up_to) {
            return;
        }
    }
}

void force(const std::shared_ptr<op> &o)
{
    if (o->done) {
        return;
    }
    for (size_t i = 0; i < m().streams.size(); i++) {
        const auto &queue = m().streams[i]->queue;
        if (std::find(queue.begin(), queue.end(), o) != queue.end()) {
            force_stream(m().streams[i].get(), o);
            return;
        }
    }
}

// Runs the operation at the head of a stream for a while.
stage step_stream(CUstream_st *s)
{
    if (s->queue.empty()) {
        return stage::stuck;
    }
    const std::shared_ptr<op> o = s->queue.front();
    if (!runnable(*o)) {
        return stage::stuck;
    }
    if (o->running == nullptr && o->start) {
        o->running = o->start();
    }
    o->busy = true;
    const stage how = o->running == nullptr || m().fault != cudaSuccess ? stage::done
                                                                        : o->running->step();
    o->busy = false;
    if (how == stage::done) {
        o->running.reset();
        o->start = nullptr;
        o->needs.clear();
        o->done = true;
        o->ended = clock_type::now();
        s->queue.pop_front();
        m().pending--;
    }
    return how;
}

// Advances all streams until none makes progress. Returns whether one did.
bool advance()
{
    bool moved = false, again = m().pending > 0;
    while (again) {
        again = false;
        std::vector<std::shared_ptr<CUstream_st>> all = m().streams;
        if (m().seed >= 4) {
            std::swap(all[0], all[lot() % all.size()]);
        }
        for (const auto &s : all) {
            // As late as possible: one step, then the others.
            for (int k = m().seed == 1 ? 1000 : 1; k > 0; k--) {
                const stage how = step_stream(s.get());
                again = again || how != stage::stuck;
                if (how == stage::stuck) {
                    break;
                }
            }
        }
        moved = moved || again;
    }
    close_device();
    auto &all = m().streams;
    all.erase(std::remove_if(all.begin(), all.end(),
                             [](const auto &s) { return s->gone && s->queue.empty(); }),
              all.end());
    return moved;
}

// The lock is held on entry and on return, but not during sleep.
void wait_for(const std::function<bool()> &ready)
{
    int idle = 0;
    m().waiters++;
    while (m().fault == cudaSuccess && !ready()) {
        idle = advance() ? 0 : idle + 1;
        if (idle > 0 && !ready()) {
            m().lock.unlock();
            if (idle < 20) {
                std::this_thread::yield();
            } else {
                usleep(idle < 100 ? 20 : 100);
            }
            m().lock.lock();
        }
    }
    m().waiters--;
}

void finish(const std::shared_ptr<op> &o)
{
    if (o != nullptr && !o->done) {
        force(o);
        wait_for([&] { return o->done; });
    }
}

void finish_all()
{
    for (const auto &s : std::vector<std::shared_ptr<CUstream_st>>(m().streams)) {
        finish(s->last);
    }
}

void device_thread()
{
    std::unique_lock<std::mutex> hold(m().lock);
    for (;;) {
        if (m().pending == 0) {
            m().news.wait(hold);
        }
        if (m().waiters == 0) {
            advance();
        }
        hold.unlock();
        usleep(200);
        hold.lock();
    }
}

void begin_machine()
{
    machine &one = m();
    one.pid = getpid();
    one.rank = std::atoi(setting("FAKE_RANK", setting("DPAR_RANK", "-1")));
    one.hold = std::atof(setting("FAKE_CUDA_HOLD", "20")) / 1000;
    one.devices = std::atoi(setting("FAKE_CUDA_DEVICES", "8"));
    one.guard = std::atoi(setting("FAKE_CUDA_GUARD", "1")) != 0;
    one.room = size_t{8} << 30;
    one.failures = parse_failures(std::getenv("FAKE_CUDA_FAIL"));
    set_seed(std::strtoull(setting("FAKE_CUDA_SEED", "0"), nullptr, 10));
    void *space = mmap(nullptr, ARENA + 2 * HUGE_PAGE, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) {
        die("no address space for the device's memory");
    }
    one.arena = (char *)(((uintptr_t)space + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    (void)madvise(one.arena, ARENA + HUGE_PAGE, MADV_HUGEPAGE);
    one.streams.push_back(std::make_shared<CUstream_st>());
    struct sigaction act = {};
    act.sa_sigaction = on_fault;
    act.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &act, &fault_before);
    std::atexit(check_all_edges);
    // A child must find the lock free, because a thread that holds it during the fork is not in the
    // child.
    pthread_atfork([] { m().lock.lock(); }, [] { m().lock.unlock(); }, [] { m().lock.unlock(); });
    std::thread(device_thread).detach();
}

// Each function of the runtime begins with a gate.
struct gate {
    std::unique_lock<std::mutex> hold;
    cudaError_t error = cudaSuccess;
    explicit gate(const char *name) : hold(m().lock)
    {
        if (m().pid == 0) {
            begin_machine();
        }
        error = m().pid != getpid() ? cudaErrorInitializationError
                : in_host_function  ? cudaErrorNotPermitted
                : m().devices == 0  ? cudaErrorNoDevice
                                    : m().fault;
        const cudaError_t ordered = counted(name);
        error = error != cudaSuccess ? error : ordered;
    }
};
#define ENTER(name)                                                                                \
    gate g(name);                                                                                  \
    if (g.error != cudaSuccess) {                                                                  \
        return give(g.error);                                                                      \
    }

CUstream_st *stream_of(cudaStream_t stream)
{
    if (stream == nullptr || stream == cudaStreamLegacy) {
        return m().streams[0].get();
    }
    for (const auto &s : m().streams) {
        if (s.get() == stream && !s->gone) {
            return stream;
        }
    }
    return nullptr;
}

bool any_capture(bool of_others)
{
    bool found = false;
    for (const auto &weak : m().captures) {
        const auto c = weak.lock();
        if (c != nullptr && capture_mode != cudaStreamCaptureModeRelaxed &&
            c->mode != cudaStreamCaptureModeRelaxed &&
            (c->thread == std::this_thread::get_id() ||
             (of_others && c->mode == cudaStreamCaptureModeGlobal &&
              capture_mode == cudaStreamCaptureModeGlobal))) {
            c->invalid = true;
            found = true;
        }
    }
    return found;
}
#define NO_CAPTURE()                                                                               \
    if (any_capture(true)) {                                                                       \
        return give(cudaErrorStreamCaptureUnsupported);                                            \
    }

bool draw_held(const CUstream_st *s)
{
    switch (m().seed) {
    case 0: return true;
    case 1: return false;
    case 2: return s->number % 2 == 0;
    case 3: return s->number % 2 != 0;
    default: return lot() % 2 == 0;
    }
}

// Adds what an operation must wait for by the rules of the default stream.
void add_default_needs(const CUstream_st *s, op *o)
{
    for (const auto &other : m().streams) {
        const bool is_default = other == m().streams[0];
        if (s != other.get() && s->blocking && other->blocking && other->last != nullptr &&
            !other->last->done && (is_default || s == m().streams[0].get())) {
            o->needs.push_back(other->last);
        }
    }
}

std::shared_ptr<op> push_op(CUstream_st *s, starter start, std::vector<std::shared_ptr<op>> needs)
{
    auto o = std::make_shared<op>();
    o->start = std::move(start);
    o->needs = std::move(needs);
    o->held = draw_held(s);
    const double seconds = m().seed >= 4 ? m().hold * (double)(lot() % 1000) / 1000 : m().hold;
    o->late = clock_type::now() + std::chrono::microseconds((long long)(1e6 * seconds));
    add_default_needs(s, o.get());
    s->queue.push_back(o);
    s->last = o;
    m().pending++;
    m().news.notify_one();
    return o;
}

cudaError_t push(CUstream_st *s, starter start)
{
    if (s == nullptr) {
        return give(cudaErrorInvalidResourceHandle);
    }
    if (s->capture != nullptr) {
        if (s->capture->invalid) {
            return give(cudaErrorStreamCaptureInvalidated);
        }
        s->capture->nodes.push_back({std::move(start), s->tail});
        s->tail = {(int)s->capture->nodes.size() - 1};
        return cudaSuccess;
    }
    if (s == m().streams[0].get() && any_capture(false)) {
        return give(cudaErrorStreamCaptureImplicit);
    }
    push_op(s, std::move(start), {});
    advance();
    return cudaSuccess;
}

struct once : task {
    std::function<void()> run;
    explicit once(std::function<void()> f) : run(std::move(f)) {}
    stage step() override
    {
        open_device();
        run();
        return stage::done;
    }
};

cudaError_t push_once(CUstream_st *s, std::function<void()> run)
{
    return push(s, [run = std::move(run)] { return std::make_unique<once>(run); });
}

} // namespace

// ---- kernels ----

namespace fake_cuda {
__thread lane *here = nullptr;
}

namespace {

enum class where { ready, at_sync, at_warp, done };

struct fiber;
struct thread_state : fake_cuda::lane {
    int number = 0;
    where at = where::ready;
    fiber *on = nullptr;
    unsigned mask = 0;
    unsigned long long mine = 0;
    const unsigned long long *seen = nullptr;
};

#ifdef FAKE_ASAN
constexpr size_t STACK = 256 << 10;
#else
constexpr size_t STACK = 64 << 10;
#endif

struct fiber {
    ucontext_t context; // where there is no faster method
    void *sp = nullptr;
    char *stack = nullptr;
    size_t bytes = STACK;
    void *fake = nullptr;
};

struct block_run {
    const std::function<void()> *kernel;
    std::vector<thread_state> threads;
    std::vector<int> order;
    size_t next = 0;
    int any = 0;
    std::vector<std::vector<unsigned long long>> seen; // of the exchanges of one round
    std::vector<fiber *> idle, all;
    fiber scheduler;
    fiber *now = nullptr;
};

block_run *run_now; // the lock is held while a kernel runs

#if defined(__x86_64__) && !defined(FAKE_ASAN)
#define FAKE_QUICK 1
} // namespace
// Saves the registers that a call preserves, and continues where the other stack was left.
extern "C" void fake_cuda_switch(void **from, void *to);
asm(".text\n.type fake_cuda_switch,@function\nfake_cuda_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size fake_cuda_switch,.-fake_cuda_switch\n");
namespace {
#endif

__attribute__((noinline)) void set_here(thread_state *t)
{
    fake_cuda::here = t;
}

void change(fiber *from, fiber *to)
{
    run_now->now = to;
#ifdef FAKE_QUICK
    fake_cuda_switch(&from->sp, to->sp);
#else
#ifdef FAKE_ASAN
    __sanitizer_start_switch_fiber(&from->fake, to->stack, to->bytes);
#endif
    swapcontext(&from->context, &to->context);
#ifdef FAKE_ASAN
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
#endif
}

// A fiber runs threads that have not begun, one after the other; a thread that waits keeps the
// fiber.
__attribute__((noinline)) void fiber_work(fiber *self)
{
    while (run_now->next < run_now->order.size()) {
        thread_state *t = &run_now->threads[(size_t)run_now->order[run_now->next++]];
        t->on = self;
        set_here(t);
        (*run_now->kernel)();
        t->at = where::done;
    }
}

void fiber_main()
{
    fiber *self = run_now->now;
#ifdef FAKE_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    for (;;) {
        fiber_work(self);
        run_now->idle.push_back(self);
        change(self, &run_now->scheduler);
    }
}

fiber *new_fiber()
{
    auto *f = new fiber;
    f->stack = (char *)mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->stack == MAP_FAILED) {
        die("no memory for the stacks of a kernel's threads");
    }
#ifdef FAKE_QUICK
    void **top = (void **)(f->stack + STACK) - 3; // a function begins 8 below a multiple of 16
    *--top = (void *)fiber_main;
    f->sp = top - 6;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
#endif
    return f;
}

void resume(fiber *f)
{
    change(&run_now->scheduler, f);
}

void start_threads()
{
    while (run_now->next < run_now->order.size()) {
        if (run_now->idle.empty()) {
            run_now->idle.push_back(new_fiber());
        }
        fiber *f = run_now->idle.back();
        run_now->idle.pop_back();
        resume(f);
    }
}

bool release_sync()
{
    int any = 0;
    for (const thread_state &t : run_now->threads) {
        if (t.at != where::at_sync && t.at != where::done) {
            return false;
        }
        any |= t.at == where::at_sync && t.mine != 0;
    }
    bool some = false;
    run_now->any = any;
    for (thread_state &t : run_now->threads) {
        some = some || t.at == where::at_sync;
        t.at = t.at == where::at_sync ? where::ready : t.at;
    }
    return some;
}

bool release_warps()
{
    auto &all = run_now->threads;
    bool some = false;
    run_now->seen.clear();
    for (thread_state &t : all) {
        if (t.at != where::at_warp) {
            continue;
        }
        const size_t first = (size_t)t.number / 32 * 32;
        std::vector<unsigned long long> values(32, 0);
        bool whole = true;
        for (size_t i = 0; i < 32; i++) {
            if ((t.mask >> i & 1u) == 0) {
                continue;
            }
            if (first + i >= all.size() || all[first + i].at == where::done) {
                die("a shuffle or warp barrier of mask %08x: lane %zu of the warp of thread %d %s",
                    t.mask, i, t.number, first + i >= all.size() ? "is none" : "has ended");
            }
            whole = whole && all[first + i].at == where::at_warp && all[first + i].mask == t.mask;
            values[i] = all[first + i].mine;
        }
        if (whole) {
            run_now->seen.push_back(std::move(values));
            for (size_t i = 0; i < 32; i++) {
                if (t.mask >> i & 1u) {
                    all[first + i].at = where::ready;
                    all[first + i].seen = run_now->seen.back().data();
                }
            }
            some = true;
        }
    }
    return some;
}

// Prints which threads waited where.
void say_stuck()
{
    int sync = 0, warp = 0, done = 0;
    for (const thread_state &t : run_now->threads) {
        sync += t.at == where::at_sync;
        warp += t.at == where::at_warp;
        done += t.at == where::done;
    }
    const dim3 b = run_now->threads[0].block;
    die("a kernel's block %u,%u,%u waits for ever: %d threads at __syncthreads, %d at shuffles or "
        "warp barriers, %d have ended",
        b.x, b.y, b.z, sync, warp, done);
}

std::vector<int> order_of(int n)
{
    std::vector<int> order((size_t)n);
    const unsigned long long how = m().seed < 4 ? m().seed % 2 : lot() % 3;
    const long long by = how == 2 ? 1 + 2 * (long long)(lot() % 512) : 1;
    for (int i = 0; i < n; i++) {
        order[(size_t)i] = how == 1 ? n - 1 - i : i;
    }
    if (how == 2) { // an odd step modulo a power of 2 reaches all values
        int k = 0;
        long long full = 1;
        while (full < n) {
            full *= 2;
        }
        for (long long i = 0; i < full; i++) {
            const int at = (int)(i * by & (full - 1));
            if (at < n) {
                order[(size_t)k++] = at;
            }
        }
    }
    return order;
}

void run_block(block_run *run)
{
    run->next = 0;
    run_now = run;
    start_threads();
    for (;;) {
        const bool left = std::any_of(run->threads.begin(), run->threads.end(),
                                      [](const auto &t) { return t.at != where::done; });
        if (!left) {
            return;
        }
        if (!release_warps() && !release_sync()) {
            say_stuck();
        }
        for (const int i : run->order) {
            thread_state *t = &run->threads[(size_t)i];
            if (t->at == where::ready) {
                set_here(t);
                resume(t->on);
            }
        }
    }
}

void park(where at, unsigned long long mine, unsigned mask)
{
    thread_state *t = static_cast<thread_state *>(fake_cuda::here);
    t->at = at;
    t->mine = mine;
    t->mask = mask;
    change(t->on, &run_now->scheduler);
}

// Tells AddressSanitizer the stack that it returns to.
void say_own_stack(fiber *f)
{
#ifdef FAKE_ASAN
    pthread_attr_t attr;
    void *stack = nullptr;
    pthread_getattr_np(pthread_self(), &attr);
    pthread_attr_getstack(&attr, &stack, &f->bytes);
    pthread_attr_destroy(&attr);
    f->stack = (char *)stack;
#else
    (void)f;
#endif
}

void run_grid(dim3 grid, dim3 block, const std::function<void()> &thread)
{
    static std::vector<fiber *> *idle = new std::vector<fiber *>;
    const int n = (int)(block.x * block.y * block.z);
    const long long blocks = (long long)grid.x * grid.y * grid.z;
    const bool backwards = m().seed < 4 ? m().seed % 2 != 0 : lot() % 2 != 0;
    block_run run;
    run.kernel = &thread;
    run.idle.swap(*idle);
    run.threads.resize((size_t)n);
    say_own_stack(&run.scheduler);
    for (long long k = 0; k < blocks; k++) {
        const long long b = backwards ? blocks - 1 - k : k;
        for (int i = 0; i < n; i++) {
            thread_state &t = run.threads[(size_t)i];
            const unsigned u = (unsigned)i;
            t.number = i;
            t.at = where::ready;
            t.thread = dim3(u % block.x, u / block.x % block.y, u / block.x / block.y);
            t.block = dim3((unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                           (unsigned)(b / grid.x / grid.y));
            t.block_dim = block;
            t.grid_dim = grid;
        }
        if (k == 0 || m().seed >= 4) {
            run.order = order_of(n);
        }
        run_block(&run);
    }
    idle->swap(run.idle);
    fake_cuda::here = nullptr;
}

cudaError_t check_shape(dim3 grid, dim3 block)
{
    const unsigned long long threads = 1ull * block.x * block.y * block.z;
    const bool wrong = threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 ||
                       grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 ||
                       grid.z > 65535;
    return wrong ? cudaErrorInvalidConfiguration : cudaSuccess;
}

} // namespace

namespace fake_cuda {

void sync_threads(void)
{
    park(where::at_sync, 0, 0);
}

int sync_any(int mine)
{
    park(where::at_sync, mine != 0, 0);
    return run_now->any;
}

int lane_number(void)
{
    return static_cast<thread_state *>(here)->number % 32;
}

const unsigned long long *exchange(unsigned mask, unsigned long long mine)
{
    if ((mask >> lane_number() & 1u) == 0) {
        die("a shuffle or warp barrier of mask %08x in lane %d, which is not in it", mask,
            lane_number());
    }
    park(where::at_warp, mine, mask);
    return static_cast<thread_state *>(here)->seen;
}

cudaError_t launch(dim3 grid, dim3 block, size_t argument_bytes, size_t shared, cudaStream_t stream,
                   std::function<void()> thread)
{
    ENTER("cudaLaunchKernel");
    CUstream_st *s = stream_of(stream);
    cudaError_t error = check_shape(grid, block);
    if (argument_bytes > 32764 || shared > 48 * 1024) {
        error = cudaErrorInvalidValue;
    }
    if (s != nullptr && s != m().streams[0].get() && s->device != current_device) {
        error = cudaErrorInvalidResourceHandle;
    }
    if (error != cudaSuccess) {
        return give(error);
    }
    return push_once(s, [grid, block, thread = std::move(thread)] {
        if (counted("kernel") != cudaSuccess) {
            m().fault = cudaErrorIllegalAddress;
            return;
        }
        run_grid(grid, block, thread);
    });
}

cudaError_t enqueue(cudaStream_t stream, starter start)
{
    std::lock_guard<std::mutex> hold(m().lock);
    return push(stream_of(stream), std::move(start));
}

cudaError_t enqueue_on_all(const cudaStream_t *streams, int n, starter start)
{
    std::lock_guard<std::mutex> hold(m().lock);
    if (n == 1 || stream_of(streams[0])->capture != nullptr) {
        CUstream_st *first = stream_of(streams[0]);
        for (int i = 1; i < n; i++) { // of one capture
            const auto &tail = stream_of(streams[i])->tail;
            first->tail.insert(first->tail.end(), tail.begin(), tail.end());
        }
        const cudaError_t error = push(first, std::move(start));
        for (int i = 1; i < n; i++) {
            stream_of(streams[i])->tail = first->tail;
        }
        return error;
    }
    std::vector<std::shared_ptr<op>> before;
    for (int i = 1; i < n; i++) {
        before.push_back(push_op(stream_of(streams[i]), nullptr, {}));
    }
    const auto middle = push_op(stream_of(streams[0]), std::move(start), before);
    for (int i = 1; i < n; i++) {
        push_op(stream_of(streams[i]), nullptr, {middle});
    }
    advance();
    return cudaSuccess;
}

cudaError_t order(cudaStream_t stream, cudaStream_t after)
{
    std::lock_guard<std::mutex> hold(m().lock);
    CUstream_st *a = stream_of(stream), *b = stream_of(after);
    if (a == nullptr || b == nullptr || a->capture != nullptr || b->capture != nullptr) {
        return cudaSuccess; // freed: all was waited for; captured: the graph's edges order it
    }
    if (a->last != nullptr && !a->last->done) {
        push_op(b, nullptr, {a->last});
    }
    return cudaSuccess;
}

void wait_until(const std::function<bool()> &ready)
{
    std::lock_guard<std::mutex> hold(m().lock);
    wait_for(ready);
}

void wait_for_device(void)
{
    std::lock_guard<std::mutex> hold(m().lock);
    finish_all();
}

bool reachable(const void *at, size_t bytes)
{
    std::lock_guard<std::mutex> hold(m().lock);
    const auto it = find_block(at);
    return it != m().memory.end() && (uintptr_t)at + bytes <= it->first + it->second.bytes;
}

bool still_there(const void *at, size_t bytes)
{
    const auto it = find_block(at);
    if (it == m().memory.end() || (uintptr_t)at + bytes > it->first + it->second.bytes) {
        m().fault = cudaErrorIllegalAddress;
        return false;
    }
    return true;
}

bool capturing(cudaStream_t stream)
{
    std::lock_guard<std::mutex> hold(m().lock);
    CUstream_st *s = stream_of(stream);
    return s != nullptr && s->capture != nullptr;
}

unsigned long long random(void)
{
    return lot();
}

int my_rank(void)
{
    return m().rank;
}

void open(void)
{
    open_device();
}

// Replaces whole pages of device memory by those of a file that other processes map, too.
int share(void *memory, size_t bytes)
{
    std::lock_guard<std::mutex> hold(m().lock);
    const int fd = memfd_create("fake", MFD_CLOEXEC);
    open_device();
    const bool well = fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 &&
                      pwrite(fd, memory, bytes, 0) == (ssize_t)bytes &&
                      mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
                          memory;
    close_device();
    return well ? fd : -1;
}

void *map_peer(int fd, size_t bytes)
{
    std::lock_guard<std::mutex> hold(m().lock);
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        return nullptr;
    }
    m().memory[(uintptr_t)at] = {bytes, cudaMemoryTypeDevice, current_device, false};
    m().open = true;
    close_device();
    return at;
}

// Later reads of it are faults.
void unmap_peer(void *memory)
{
    std::lock_guard<std::mutex> hold(m().lock);
    const auto it = m().memory.find((uintptr_t)memory);
    if (it != m().memory.end()) {
        (void)munmap(memory, it->second.bytes);
        m().memory.erase(it);
    }
}

bool faulty(void)
{
    return m().fault != cudaSuccess;
}

} // namespace fake_cuda

// ---- the functions ----

cudaError_t fake_cuda::free_at_once(void *memory)
{
    ENTER("cudaFree");
    const auto it = m().memory.find((uintptr_t)memory);
    if (it == m().memory.end()) {
        return give(cudaErrorInvalidValue);
    }
    give_back(it);
    return cudaSuccess;
}

namespace {

cudaError_t register_host(void *memory, size_t bytes, bool ours)
{
    const auto block = find_block(memory);
    auto next = m().memory.lower_bound((uintptr_t)memory);
    if (block != m().memory.end() && block->second.type != cudaMemoryTypeHost) {
        return cudaErrorInvalidValue;
    }
    if (block != m().memory.end() ||
        (next != m().memory.end() && next->first < (uintptr_t)memory + bytes)) {
        return cudaErrorHostMemoryAlreadyRegistered;
    }
    m().memory[(uintptr_t)memory] = {bytes, cudaMemoryTypeHost, current_device, ours};
    return cudaSuccess;
}

// Returns the type of the memory at `at`, or an error if not all bytes are in it.
cudaError_t look_at(const void *at, size_t bytes, cudaMemoryType *type)
{
    const auto it = find_block(at);
    *type = it == m().memory.end() ? cudaMemoryTypeUnregistered : it->second.type;
    const bool beyond = it != m().memory.end() &&
                        (uintptr_t)at + bytes > it->first + it->second.bytes;
    return beyond ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t check_copy(void *to, size_t to_bytes, const void *from, size_t from_bytes,
                       cudaMemcpyKind kind, bool *reads_pageable, bool *writes_pageable)
{
    cudaMemoryType t = cudaMemoryTypeUnregistered, f = cudaMemoryTypeUnregistered;
    if (look_at(to, to_bytes, &t) != cudaSuccess || look_at(from, from_bytes, &f) != cudaSuccess) {
        return cudaErrorInvalidValue;
    }
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if ((unsigned)kind > 4) {
        return cudaErrorInvalidMemcpyDirection;
    }
    if (kind != cudaMemcpyDefault && (to_device != (t == cudaMemoryTypeDevice) ||
                                      from_device != (f == cudaMemoryTypeDevice))) {
        return cudaErrorInvalidValue;
    }
    *reads_pageable = f == cudaMemoryTypeUnregistered;
    *writes_pageable = t == cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

cudaError_t copy(CUstream_st *s, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                 size_t width, size_t height, cudaMemcpyKind kind)
{
    bool reads = false, writes = false;
    if (s == nullptr) {
        return cudaErrorInvalidResourceHandle;
    }
    if (width == 0 || height == 0) {
        return cudaSuccess;
    }
    if (width > to_pitch || width > from_pitch) {
        return cudaErrorInvalidValue;
    }
    const size_t to_bytes = to_pitch * (height - 1) + width;
    const size_t from_bytes = from_pitch * (height - 1) + width;
    const cudaError_t error = check_copy(to, to_bytes, from, from_bytes, kind, &reads, &writes);
    if (error != cudaSuccess) {
        return error;
    }
    if ((reads || writes) && s->capture != nullptr) {
        s->capture->invalid = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    std::shared_ptr<std::vector<char>> staged;
    if (reads) { // memory that is not page-locked is read at once
        staged = std::make_shared<std::vector<char>>((const char *)from,
                                                     (const char *)from + from_bytes);
        from = staged->data();
    }
    const bool kept = !staged && find_block(from) != m().memory.end();
    const bool keeps = find_block(to) != m().memory.end();
    const cudaError_t pushed = push_once(s, [=] {
        if ((keeps && !fake_cuda::still_there(to, to_bytes)) ||
            (kept && !fake_cuda::still_there(from, from_bytes))) {
            return;
        }
        for (size_t i = 0; i < height; i++) {
            std::memmove((char *)to + i * to_pitch,
                         (staged ? staged->data() : (const char *)from) + i * from_pitch, width);
        }
    });
    if (pushed == cudaSuccess && writes) {
        finish(s->last);
    }
    return pushed == cudaSuccess ? m().fault : pushed;
}

struct host_task : task {
    cudaHostFn_t fn;
    void *user;
    host_task(cudaHostFn_t f, void *u) : fn(f), user(u) {}
    stage step() override
    {
        close_device();
        m().lock.unlock();
        std::thread([this] { // as in CUDA, never on the caller's thread
            in_host_function = true;
            fn(user);
        }).join();
        m().lock.lock();
        return stage::done;
    }
};

// Runs the nodes of a graph in any order that its edges allow.
struct graph_task : task {
    std::shared_ptr<std::vector<node>> nodes;
    std::vector<int> state; // 0: not begun, 1: running, 2: done
    std::vector<std::unique_ptr<task>> running;
    explicit graph_task(std::shared_ptr<std::vector<node>> n)
        : nodes(std::move(n)), state(nodes->size(), 0), running(nodes->size())
    {
    }
    bool ready(size_t i) const
    {
        const auto &needs = (*nodes)[i].needs;
        return std::all_of(needs.begin(), needs.end(),
                           [&](int n) { return state[(size_t)n] == 2; });
    }
    stage step() override
    {
        bool moved = false, left = false;
        for (const int k : order_of((int)nodes->size())) {
            const size_t i = (size_t)k;
            if (state[i] == 0 && ready(i)) {
                running[i] = (*nodes)[i].start ? (*nodes)[i].start() : nullptr;
                state[i] = 1;
            }
            if (state[i] == 1) {
                const stage how = running[i] ? running[i]->step() : stage::done;
                moved = moved || how != stage::stuck;
                state[i] = how == stage::done ? 2 : 1;
            }
            left = left || state[i] != 2;
        }
        return !left ? stage::done : moved ? stage::moved : stage::stuck;
    }
};

const char *name_of(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInitializationError: return "cudaErrorInitializationError";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorHostMemoryAlreadyRegistered: return "cudaErrorHostMemoryAlreadyRegistered";
    case cudaErrorHostMemoryNotRegistered: return "cudaErrorHostMemoryNotRegistered";
    case cudaErrorNotPermitted: return "cudaErrorNotPermitted";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureUnjoined: return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
    case cudaErrorStreamCaptureImplicit: return "cudaErrorStreamCaptureImplicit";
    case cudaErrorCapturedEvent: return "cudaErrorCapturedEvent";
    default: return "cudaErrorUnknown";
    }
}

} // namespace

extern "C" {

const char *cudaGetErrorName(cudaError_t error)
{
    return name_of(error);
}

const char *cudaGetErrorString(cudaError_t error)
{
    return name_of(error);
}

cudaError_t cudaPeekAtLastError(void)
{
    return m().fault != cudaSuccess ? m().fault : last_error;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    ENTER("cudaGetDeviceCount");
    *count = m().devices;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    ENTER("cudaGetDevice");
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    ENTER("cudaSetDevice");
    if (device < 0 || device >= m().devices) {
        return give(cudaErrorInvalidDevice);
    }
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    ENTER("cudaDeviceSynchronize");
    NO_CAPTURE();
    finish_all();
    return give(m().fault);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    ENTER("cudaGetDeviceProperties");
    if (device < 0 || device >= m().devices) {
        return give(cudaErrorInvalidDevice);
    }
    std::memset(prop, 0, sizeof *prop);
    std::snprintf(prop->name, sizeof prop->name, "stand-in on the CPU");
    std::snprintf(prop->uuid.bytes, sizeof prop->uuid.bytes, "fake%d", device);
    prop->totalGlobalMem = m().room;
    prop->sharedMemPerBlock = 48 * 1024;
    prop->regsPerBlock = 65536;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = 1024;
    prop->maxThreadsDim[2] = 64;
    prop->maxGridSize[0] = 0x7fffffff;
    prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
    prop->major = 9;
    prop->multiProcessorCount = 4;
    prop->maxThreadsPerMultiProcessor = 2048;
    prop->pciBusID = device + 1;
    prop->memoryBusWidth = 64;
    prop->l2CacheSize = 1 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    ENTER("cudaDeviceGetAttribute");
    if (device < 0 || device >= m().devices) {
        return give(cudaErrorInvalidDevice);
    }
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxGridDimX: *value = 0x7fffffff; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate: *value = 1000000; break;
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 64; break;
    case cudaDevAttrL2CacheSize: *value = 1 << 20; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    default: return give(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device)
{
    ENTER("cudaDeviceGetPCIBusId");
    if (device < 0 || device >= m().devices) {
        return give(cudaErrorInvalidDevice);
    }
    std::snprintf(id, (size_t)length, "0000:%02x:00.0", (unsigned)(device + 1));
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    ENTER("cudaDeviceCanAccessPeer");
    *can = device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int)
{
    ENTER("cudaDeviceEnablePeerAccess");
    return peer == current_device || peer >= m().devices ? give(cudaErrorInvalidDevice)
                                                         : cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    ENTER("cudaMemGetInfo");
    *free_bytes = m().room - m().taken;
    *total_bytes = m().room;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    ENTER("cudaMalloc");
    NO_CAPTURE();
    if (bytes == 0) {
        *memory = nullptr;
        return cudaSuccess;
    }
    return give(take_device(memory, bytes));
}

cudaError_t cudaFree(void *memory)
{
    ENTER("cudaFree");
    NO_CAPTURE();
    if (memory == nullptr) {
        return cudaSuccess;
    }
    const auto it = m().memory.find((uintptr_t)memory);
    if (it == m().memory.end() || it->second.type != cudaMemoryTypeDevice || !it->second.ours) {
        return give(cudaErrorInvalidValue);
    }
    finish_all(); // as the real runtime does
    give_back(it);
    return give(m().fault);
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned int)
{
    ENTER("cudaHostAlloc");
    NO_CAPTURE();
    if (bytes == 0) {
        *memory = nullptr;
        return cudaSuccess;
    }
    void *at = nullptr;
    if (posix_memalign(&at, 4096, bytes) != 0) {
        return give(cudaErrorMemoryAllocation);
    }
    std::memset(at, POISON, bytes);
    *memory = at;
    return give(register_host(at, bytes, true));
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *memory)
{
    ENTER("cudaFreeHost");
    NO_CAPTURE();
    if (memory == nullptr) {
        return cudaSuccess;
    }
    const auto it = m().memory.find((uintptr_t)memory);
    if (it == m().memory.end() || it->second.type != cudaMemoryTypeHost || !it->second.ours) {
        return give(cudaErrorInvalidValue);
    }
    finish_all();
    m().memory.erase(it);
    std::free(memory);
    return give(m().fault);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned int)
{
    ENTER("cudaHostRegister");
    NO_CAPTURE();
    if (memory == nullptr || bytes == 0) {
        return give(cudaErrorInvalidValue);
    }
    return give(register_host(memory, bytes, false));
}

cudaError_t cudaHostUnregister(void *memory)
{
    ENTER("cudaHostUnregister");
    NO_CAPTURE();
    const auto it = m().memory.find((uintptr_t)memory);
    if (it == m().memory.end() || it->second.ours) {
        return give(cudaErrorHostMemoryNotRegistered);
    }
    m().memory.erase(it);
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int)
{
    ENTER("cudaHostGetDevicePointer");
    const auto it = find_block(host);
    if (it == m().memory.end() || it->second.type != cudaMemoryTypeHost) {
        return give(cudaErrorInvalidValue);
    }
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *at)
{
    ENTER("cudaPointerGetAttributes");
    const auto it = find_block(at);
    std::memset(attributes, 0, sizeof *attributes);
    attributes->device = -2; // as the real runtime returns for unknown memory
    if (it == m().memory.end()) {
        attributes->hostPointer = const_cast<void *>(at);
        return cudaSuccess;
    }
    attributes->type = it->second.type;
    attributes->device = it->second.device;
    attributes->devicePointer = const_cast<void *>(at);
    attributes->hostPointer =
        it->second.type == cudaMemoryTypeHost ? const_cast<void *>(at) : nullptr;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    ENTER("cudaMemcpy");
    NO_CAPTURE();
    CUstream_st *s = m().streams[0].get();
    const cudaError_t error = copy(s, to, bytes, from, bytes, bytes, 1, kind);
    finish(s->last);
    return give(error == cudaSuccess ? m().fault : error);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    ENTER("cudaMemcpyAsync");
    return give(copy(stream_of(stream), to, bytes, from, bytes, bytes, 1, kind));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    ENTER("cudaMemcpy2DAsync");
    return give(copy(stream_of(stream), to, to_pitch, from, from_pitch, width, height, kind));
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes,
                                cudaStream_t stream)
{
    ENTER("cudaMemcpyPeerAsync");
    return give(copy(stream_of(stream), to, bytes, from, bytes, bytes, 1,
                     cudaMemcpyDeviceToDevice));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    ENTER("cudaMemsetAsync");
    cudaMemoryType type = cudaMemoryTypeUnregistered;
    if (bytes == 0) {
        return cudaSuccess;
    }
    if (look_at(to, bytes, &type) != cudaSuccess || type == cudaMemoryTypeUnregistered) {
        return give(cudaErrorInvalidValue);
    }
    return push_once(stream_of(stream), [=] { std::memset(to, value, bytes); });
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    {
        ENTER("cudaMemset");
        NO_CAPTURE();
    }
    const cudaError_t error = cudaMemsetAsync(to, value, bytes, nullptr);
    return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

// ---- streams and events ----

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    ENTER("cudaStreamCreate");
    if (flags > 1) {
        return give(cudaErrorInvalidValue);
    }
    auto s = std::make_shared<CUstream_st>();
    s->number = ++m().streams_made;
    s->device = current_device;
    s->blocking = (flags & cudaStreamNonBlocking) == 0;
    m().streams.push_back(s);
    *stream = s.get();
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int)
{
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER("cudaDeviceGetStreamPriorityRange");
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    ENTER("cudaStreamDestroy");
    CUstream_st *s = stream_of(stream);
    if (s == nullptr || s == m().streams[0].get()) {
        return give(cudaErrorInvalidResourceHandle);
    }
    s->gone = true; // what it was given still runs
    advance();
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    ENTER("cudaStreamSynchronize");
    CUstream_st *s = stream_of(stream);
    if (s == nullptr) {
        return give(cudaErrorInvalidResourceHandle);
    }
    if (s->capture != nullptr) {
        s->capture->invalid = true;
        return give(cudaErrorStreamCaptureUnsupported);
    }
    if (s == m().streams[0].get()) { // waits for what the next operation would wait for
        finish(push_op(s, nullptr, {}));
    }
    finish(s->last);
    return give(m().fault);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    ENTER("cudaStreamQuery");
    CUstream_st *s = stream_of(stream);
    if (s == nullptr) {
        return give(cudaErrorInvalidResourceHandle);
    }
    if (s->capture != nullptr) {
        s->capture->invalid = true;
        return give(cudaErrorStreamCaptureUnsupported);
    }
    if (s->last != nullptr && !s->last->done && s->last->thread == std::this_thread::get_id()) {
        force(s->last);
        advance();
    }
    return give(s->last == nullptr || s->last->done ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device)
{
    ENTER("cudaStreamGetDevice");
    CUstream_st *s = stream_of(stream);
    if (s == nullptr) {
        return give(cudaErrorInvalidResourceHandle);
    }
    *device = s->device;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int)
{
    ENTER("cudaStreamWaitEvent");
    CUstream_st *s = stream_of(stream);
    if (s == nullptr || m().events.count(event) == 0) {
        return give(cudaErrorInvalidResourceHandle);
    }
    if (event->capture != nullptr && event->capture->origin != nullptr) {
        if (s->capture != nullptr && s->capture != event->capture) {
            s->capture->invalid = event->capture->invalid = true;
            return give(cudaErrorStreamCaptureMerge);
        }
        if (s->capture == nullptr) {
            s->capture = event->capture;
            s->tail.clear();
        }
        for (const int n : event->nodes) {
            if (std::find(s->tail.begin(), s->tail.end(), n) == s->tail.end()) {
                s->tail.push_back(n);
            }
        }
        return cudaSuccess;
    }
    if (s->capture != nullptr) { // an event from outside of the capture
        if (event->mark == nullptr) {
            return cudaSuccess;
        }
        s->capture->invalid = true;
        return give(cudaErrorStreamCaptureIsolation);
    }
    if (event->mark != nullptr && !event->mark->done) {
        push_op(s, nullptr, {event->mark});
        advance();
    }
    return cudaSuccess;
}

// Runs waits and writes of 32-bit words in order, as CUstreamBatchMemOpParams.
struct stream_op {
    uint32_t operation, room;
    uint64_t address, value;
    uint32_t flags, room_1;
    uint64_t alias, room_2;
};

struct ops_task : fake_cuda::task {
    std::vector<stream_op> ops;
    size_t at = 0;
    explicit ops_task(std::vector<stream_op> all) : ops(std::move(all)) {}
    stage step() override
    {
        const size_t began = at;
        static const std::string dropped = setting("FAKE_CUDA_DROP", "");
        open_device();
        for (; at < ops.size(); at++) {
            uint32_t *word = (uint32_t *)ops[at].address;
            const uint32_t value = (uint32_t)ops[at].value;
            const bool waits = ops[at].operation == 1;
            if (!fake_cuda::still_there(word, sizeof *word)) {
                return stage::done;
            }
            if (dropped == (waits ? "ops:wait" : "ops:write")) {
                continue;
            }
            if (!waits) {
                __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
            } else if (__atomic_load_n(word, __ATOMIC_SEQ_CST) != value) {
                return at > began ? stage::moved : stage::stuck;
            }
        }
        return stage::done;
    }
};

static int batch_mem_op(cudaStream_t stream, unsigned count, const stream_op *ops, unsigned flags)
{
    ENTER("cuStreamBatchMemOp");
    for (unsigned i = 0; i < count; i++) {
        const bool known = ops[i].operation == 1 ? ops[i].flags == 1 : ops[i].operation == 2;
        cudaMemoryType type = cudaMemoryTypeUnregistered;
        if (!known || ops[i].address % 4 != 0 ||
            look_at((void *)ops[i].address, 4, &type) != cudaSuccess ||
            type != cudaMemoryTypeDevice) {
            return cudaErrorInvalidValue;
        }
    }
    if (count == 0 || count > 256 || flags != 0) {
        return cudaErrorInvalidValue;
    }
    std::vector<stream_op> all(ops, ops + count);
    return push(stream_of(stream), [all] { return std::make_unique<ops_task>(all); });
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    ENTER("cudaGetDriverEntryPointByVersion");
    const bool known = std::string(symbol) == "cuStreamBatchMemOp" && version >= 11070;
    *function = known ? (void *)batch_mem_op : nullptr;
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user)
{
    ENTER("cudaLaunchHostFunc");
    return push(stream_of(stream), [=] { return std::make_unique<host_task>(fn, user); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    ENTER("cudaEventCreate");
    *event = new CUevent_st;
    (*event)->timing = (flags & cudaEventDisableTiming) == 0;
    m().events.insert(*event);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    ENTER("cudaEventDestroy");
    if (m().events.erase(event) == 0) {
        return give(cudaErrorInvalidResourceHandle);
    }
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    ENTER("cudaEventRecord");
    CUstream_st *s = stream_of(stream);
    if (s == nullptr || m().events.count(event) == 0) {
        return give(cudaErrorInvalidResourceHandle);
    }
    event->capture = s->capture;
    event->nodes = s->tail;
    if (s->capture == nullptr) {
        event->mark = push_op(s, nullptr, {});
        advance();
    }
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    ENTER("cudaEventQuery");
    if (m().events.count(event) == 0) {
        return give(cudaErrorInvalidResourceHandle);
    }
    if (event->capture != nullptr && event->capture->origin != nullptr) {
        event->capture->invalid = true;
        return give(cudaErrorCapturedEvent);
    }
    NO_CAPTURE();
    const auto mark = event->mark;
    if (mark == nullptr || mark->done) {
        return cudaSuccess;
    }
    if (mark->thread == std::this_thread::get_id()) { // other threads only query it
        if (m().seed < 4 || lot() % 2 == 0) {
            force(mark);
        }
        advance();
    }
    return m().fault != cudaSuccess ? give(m().fault)
           : mark->done             ? cudaSuccess
                                    : give(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    ENTER("cudaEventSynchronize");
    if (m().events.count(event) == 0) {
        return give(cudaErrorInvalidResourceHandle);
    }
    if (event->capture != nullptr && event->capture->origin != nullptr) {
        event->capture->invalid = true;
        return give(cudaErrorCapturedEvent);
    }
    NO_CAPTURE();
    finish(std::shared_ptr<op>(event->mark));
    return give(m().fault);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    ENTER("cudaEventElapsedTime");
    if (m().events.count(begin) == 0 || m().events.count(end) == 0 || !begin->timing ||
        !end->timing || begin->mark == nullptr || end->mark == nullptr) {
        return give(cudaErrorInvalidResourceHandle);
    }
    if (!begin->mark->done || !end->mark->done) {
        return give(cudaErrorNotReady);
    }
    *ms = std::chrono::duration<float, std::milli>(end->mark->ended - begin->mark->ended).count();
    return cudaSuccess;
}

// ---- graphs ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    ENTER("cudaStreamBeginCapture");
    CUstream_st *s = stream_of(stream);
    if (s == nullptr) {
        return give(cudaErrorInvalidResourceHandle);
    }
    if (s == m().streams[0].get() || s->capture != nullptr) {
        return give(cudaErrorStreamCaptureUnsupported);
    }
    s->capture = std::make_shared<recording>();
    s->capture->origin = s;
    s->capture->thread = std::this_thread::get_id();
    s->capture->mode = mode;
    s->tail.clear();
    m().captures.push_back(s->capture);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    ENTER("cudaStreamEndCapture");
    CUstream_st *s = stream_of(stream);
    *graph = nullptr;
    if (s == nullptr || s->capture == nullptr || s->capture->origin != s) {
        return give(s == nullptr ? cudaErrorInvalidResourceHandle : cudaErrorStreamCaptureUnmatched);
    }
    const auto c = s->capture;
    const std::vector<int> ends = s->tail;
    for (const auto &other : m().streams) {
        if (other->capture == c) {
            other->capture = nullptr;
            other->tail.clear();
        }
    }
    c->origin = nullptr; // events that were recorded in it can be used again
    m().captures.erase(std::remove_if(m().captures.begin(), m().captures.end(),
                                      [&](const auto &w) { return w.expired() || w.lock() == c; }),
                       m().captures.end());
    if (c->invalid) {
        return give(cudaErrorStreamCaptureInvalidated);
    }
    std::vector<char> joined(c->nodes.size(), 0);
    for (const int n : ends) {
        joined[(size_t)n] = 1;
    }
    for (size_t i = c->nodes.size(); i-- > 0;) {
        for (const int n : c->nodes[i].needs) {
            joined[(size_t)n] |= joined[i];
        }
    }
    if (std::count(joined.begin(), joined.end(), 0) > 0) {
        return give(cudaErrorStreamCaptureUnjoined);
    }
    *graph = new CUgraph_st{c->nodes};
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    ENTER("cudaStreamIsCapturing");
    CUstream_st *s = stream_of(stream);
    if (s == nullptr) {
        return give(cudaErrorInvalidResourceHandle);
    }
    *status = s->capture == nullptr  ? cudaStreamCaptureStatusNone
              : s->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    std::swap(*mode, capture_mode);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    ENTER("cudaGraphInstantiate");
    *exec = new CUgraphExec_st{std::make_shared<std::vector<node>>(graph->nodes), nullptr};
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    ENTER("cudaGraphLaunch");
    CUstream_st *s = stream_of(stream);
    if (s == nullptr) {
        return give(cudaErrorInvalidResourceHandle);
    }
    const auto nodes = exec->nodes;
    const starter start = [nodes] { return std::make_unique<graph_task>(nodes); };
    if (s->capture != nullptr) {
        return push(s, start);
    }
    std::vector<std::shared_ptr<op>> needs; // one after the other
    if (exec->last != nullptr && !exec->last->done) {
        needs.push_back(exec->last);
    }
    exec->last = push_op(s, start, needs);
    advance();
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    if (nodes != nullptr) {
        return give(cudaErrorNotSupported);
    }
    *count = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    ENTER("cudaGraphExecDestroy");
    delete exec;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    ENTER("cudaGraphDestroy");
    delete graph;
    return cudaSuccess;
}

// ---- for tests ----

long long fake_cuda_count(const char *name)
{
    std::lock_guard<std::mutex> hold(m().lock);
    if (std::strcmp(name, "held") == 0) {
        return m().pending;
    }
    const auto it = m().count.find(name);
    return it == m().count.end() ? 0 : it->second;
}

void fake_cuda_fail(const char *list)
{
    gate g("fake_cuda_fail");
    m().failures = parse_failures(list);
    m().failing.clear();
}

void fake_cuda_seed(unsigned long long seed)
{
    gate g("fake_cuda_seed");
    set_seed(seed);
}

static int names(const char *list, const char *file, int line)
{
    const char *name = std::strrchr(file, '/');
    const std::string here = "," + std::string(name == nullptr ? file : name + 1) + ":" +
                             std::to_string(line) + ",";
    return ("," + std::string(list) + ",").find(here) != std::string::npos;
}

static void say_dropped()
{
    const char *told = setting("FAKE_CUDA_DROPPED", nullptr);
    const int fd = told == nullptr ? -1 : ::open(told, O_WRONLY | O_CREAT, 0600);
    if (fd >= 0) {
        ::close(fd);
    }
}

static thread_local int within_now = 0;

int fake_cuda_drops(const char *file, int line)
{
    static const char *places = setting("FAKE_CUDA_DROP", nullptr);
    static const char *within = setting("FAKE_CUDA_WITHIN", nullptr);
    if (places == nullptr || (within != nullptr && !within_now) || !names(places, file, line)) {
        return 0;
    }
    say_dropped();
    return 1;
}

int fake_cuda_within(const char *file, int line)
{
    static const char *within = setting("FAKE_CUDA_WITHIN", nullptr);
    const int is = within != nullptr && names(within, file, line);
    within_now = within_now || is;
    return is;
}

int fake_cuda_within_ends(int status)
{
    within_now = 0;
    return status;
}

} // extern "C"
