// SPDX-License-Identifier: MIT-0
// Tests the stand-in for the CUDA runtime: streams that really delay, events, the default stream,
// graphs, kernels compared with plain loops, requested failures, poison and guards. Each test runs
// in its own process, because a device cannot be used after fork.
#include "apart.h"

#include <csignal>
#include <thread>
#include <vector>

struct fill_args {
    int *to;
    const int *from;
    long n;
    int add;
};
__global__ static void fill(fill_args a) // to = from + add; if from is null: index + add
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.n) {
        a.to[i] = (a.from == nullptr ? (int)i : a.from[i]) + a.add;
    }
}

static cudaError_t run_fill(int *to, const int *from, long n, int add, cudaStream_t s)
{
    fill_args a = {to, from, n, add};
    void *args[] = {&a};
    return cudaLaunchKernel(fill, dim3((unsigned)((n + 63) / 64)), dim3(64), args, 0, s);
}

static long wrong_in(const int *at, long n, int add, cudaStream_t s)
{
    std::vector<int> host((size_t)n);
    long wrong = 0;
    OK(cudaMemcpyAsync(host.data(), at, (size_t)n * sizeof(int), cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    for (long i = 0; i < n; i++) {
        wrong += host[(size_t)i] != (int)i + add;
    }
    return wrong;
}

enum { N = 1000 };

// One stream writes what another reads (over: reads what another overwrites), with an event to
// order them or without.
static long race(bool event, bool over)
{
    cudaStream_t a = new_stream(), b = new_stream();
    int *x = device<int>(N), *y = device<int>(N);
    cudaEvent_t e = new_event();
    OK(run_fill(x, nullptr, N, 5, a));
    OK(cudaStreamSynchronize(a));
    if (over) {
        OK(run_fill(y, x, N, 0, a));
    } else {
        OK(run_fill(x, nullptr, N, 7, a));
    }
    if (event) {
        OK(cudaEventRecord(e, a));
        OK(cudaStreamWaitEvent(b, e, 0));
    }
    if (over) {
        OK(run_fill(x, nullptr, N, 9, b));
    } else {
        OK(run_fill(y, x, N, 0, b));
    }
    OK(cudaStreamSynchronize(b));
    OK(cudaStreamSynchronize(a));
    return wrong_in(y, N, over ? 5 : 7, a);
}

static void test_races()
{
    for (int over = 0; over < 2; over++) {
        int seen = 0, seen_random = 0;
        for (int s = 0; s < 24; s++) {
            const int how = apart([&] {
                seed(s);
                std::exit(race(false, over != 0) > 0 ? 3 : 0);
            });
            CHECK(how == 0 || how == 3);
            seen += how == 3;
            seen_random += how == 3 && s >= 4;
            FINE(seed(s); CHECK_INT(race(true, over != 0), 0));
        }
        CHECK(seen > seen_random && seen_random > 2);
    }
}

// Checks that nothing runs before it must, and that held operations run by themselves in the
// end.
static void test_delay()
{
    FINE({
        seed(0);
        cudaStream_t a = new_stream();
        int *x = device<int>(N);
        OK(run_fill(x, nullptr, N, 0, a));
        CHECK_INT(fake_cuda_count("kernel"), 0);
        CHECK_INT(fake_cuda_count("held"), 1);
        OK(cudaStreamSynchronize(a));
        CHECK_INT(fake_cuda_count("kernel"), 1);
        CHECK_INT(fake_cuda_count("held"), 0);
    });
    FINE({
        seed(1);
        int *x = device<int>(N);
        OK(run_fill(x, nullptr, N, 0, new_stream()));
        CHECK_INT(fake_cuda_count("kernel"), 1);
    });
    FINE({
        seed(0);
        setenv("FAKE_CUDA_HOLD", "5", 1);
        int *x = device<int>(N);
        OK(run_fill(x, nullptr, N, 0, new_stream()));
        for (int k = 0; k < 4000 && fake_cuda_count("kernel") == 0; k++) {
            usleep(500);
        }
        CHECK_INT(fake_cuda_count("kernel"), 1);
    });
}

static void default_stream()
{
    cudaStream_t a = new_stream(cudaStreamDefault), free_one = new_stream();
    int *x = device<int>(N), *y = device<int>(N), *z = device<int>(N);
    OK(run_fill(x, nullptr, N, 3, a));
    OK(run_fill(y, x, N, 0, nullptr)); // after the work on a
    OK(run_fill(x, nullptr, N, 8, a)); // after it
    OK(cudaStreamSynchronize(a));
    CHECK_INT(wrong_in(y, N, 3, free_one), 0);
    OK(run_fill(x, nullptr, N, 4, a));
    std::vector<int> host(N);
    // follows the same rules
    OK(cudaMemcpy(host.data(), x, N * sizeof(int), cudaMemcpyDeviceToHost));
    CHECK_INT(host[1], 5);
    OK(run_fill(z, nullptr, N, 0, free_one));
    OK(cudaMemcpy(host.data(), x, 4, cudaMemcpyDeviceToHost));
    CHECK_INT(fake_cuda_count("held"), getenv("FAKE_CUDA_SEED")[0] == '0'); // that of free_one
    OK(cudaDeviceSynchronize());
    CHECK_INT(fake_cuda_count("held"), 0);
    OK(cudaMemset(z, 0, 8));
    OK(cudaMemcpy(host.data(), z, 12, cudaMemcpyDeviceToHost));
    CHECK_INT(host[0] + host[1], 0);
    CHECK_INT(host[2], 2);
}

static void events()
{
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t e = new_event(), begin, end;
    int *x = device<int>(N);
    float ms = -1;
    OK(cudaEventQuery(e)); // never recorded
    OK(cudaStreamWaitEvent(b, e, 0));
    OK(cudaEventSynchronize(e));
    OK(run_fill(x, nullptr, N, 0, a));
    OK(cudaEventRecord(e, a));
    cudaError_t of_other = cudaSuccess;
    std::thread([&] { of_other = cudaEventQuery(e); }).join();
    CHECK_INT(of_other, getenv("FAKE_CUDA_SEED")[0] == '0' ? cudaErrorNotReady : cudaSuccess);
    while (cudaEventQuery(e) == cudaErrorNotReady) {
    }
    CHECK_INT(fake_cuda_count("kernel"), 1);
    // A wait is for the record before it, not for later ones.
    OK(run_fill(x, nullptr, N, 1, a));
    OK(cudaEventRecord(e, a));
    OK(cudaStreamWaitEvent(b, e, 0));
    OK(run_fill(x, nullptr, N, 2, a));
    OK(cudaEventRecord(e, a));
    OK(cudaStreamSynchronize(b));
    CHECK(fake_cuda_count("kernel") >= 2);
    CHECK(getenv("FAKE_CUDA_SEED")[0] != '0' || fake_cuda_count("kernel") == 2);
    OK(cudaEventSynchronize(e));
    CHECK_INT(fake_cuda_count("kernel"), 3);
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    OK(cudaEventRecord(begin, a));
    OK(run_fill(x, nullptr, N, 2, a));
    OK(cudaEventRecord(end, a));
    OK(cudaEventSynchronize(end));
    OK(cudaEventElapsedTime(&ms, begin, end));
    CHECK(ms >= 0 && ms < 5000);
    CHECK_INT(cudaEventElapsedTime(&ms, e, end), cudaErrorInvalidResourceHandle);
    OK(cudaEventDestroy(e));
    CHECK_INT(cudaEventRecord(e, a), cudaErrorInvalidResourceHandle);
    OK(cudaStreamDestroy(b));
    CHECK_INT(cudaStreamSynchronize(b), cudaErrorInvalidResourceHandle);
}

static void capture()
{
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t fork_it = new_event(), join_it = new_event();
    int *x = device<int>(N), *y = device<int>(N), *z = device<int>(N);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    size_t nodes = 0;
    OK(run_fill(x, nullptr, N, 1, a));
    OK(cudaStreamSynchronize(a));
    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
    OK(run_fill(y, x, N, 10, a));
    OK(cudaEventRecord(fork_it, a));
    OK(cudaStreamWaitEvent(b, fork_it, 0));
    OK(run_fill(z, y, N, 100, b));
    OK(run_fill(x, x, N, 1, a));
    OK(cudaEventRecord(join_it, b));
    OK(cudaStreamWaitEvent(a, join_it, 0));
    OK(cudaStreamEndCapture(a, &graph));
    CHECK_INT(fake_cuda_count("kernel"), 1); // nothing ran
    OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK_INT(nodes, 3);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    for (int k = 0; k < 3; k++) { // x is 1, 2, 3 more than the index before
        OK(cudaGraphLaunch(exec, k == 1 ? b : a));
    }
    OK(cudaDeviceSynchronize());
    CHECK_INT(wrong_in(z, N, 113, a), 0);
    CHECK_INT(wrong_in(x, N, 4, a), 0);
    OK(cudaGraphExecDestroy(exec));
    CHECK_INT(fake_cuda_count("kernel"), 10);
}

static void capture_errors()
{
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t e = new_event(), before = new_event(), old = new_event();
    int *x = device<int>(N);
    void *more = nullptr;
    cudaGraph_t graph = nullptr;
    cudaStreamCaptureStatus status;
    OK(run_fill(x, nullptr, N, 0, a));
    OK(cudaEventRecord(old, a));
    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal)); // a branch that is never joined
    OK(cudaEventRecord(e, a));
    OK(cudaStreamWaitEvent(b, e, 0));
    OK(run_fill(x, nullptr, N, 0, b));
    CHECK_INT(cudaStreamEndCapture(b, &graph), cudaErrorStreamCaptureUnmatched);
    CHECK_INT(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureUnjoined);
    const auto spoils = [&](cudaStreamCaptureMode mode, cudaError_t expected, auto call) {
        OK(cudaStreamBeginCapture(a, mode));
        CHECK_INT(call(), expected);
        OK(cudaStreamIsCapturing(a, &status));
        CHECK_INT(status, expected == cudaSuccess ? cudaStreamCaptureStatusActive
                                                  : cudaStreamCaptureStatusInvalidated);
        CHECK_INT(cudaStreamEndCapture(a, &graph),
                  expected == cudaSuccess ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
    };
    const auto global = cudaStreamCaptureModeGlobal, local = cudaStreamCaptureModeThreadLocal;
    spoils(global, cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(a); });
    spoils(global, cudaErrorStreamCaptureUnsupported, [&] { return cudaMalloc(&more, 8); });
    spoils(local, cudaErrorStreamCaptureUnsupported, [&] { return cudaDeviceSynchronize(); });
    spoils(global, cudaErrorStreamCaptureImplicit,
           [&] { return run_fill(x, nullptr, N, 0, nullptr); });
    spoils(global, cudaErrorStreamCaptureIsolation, [&] { return cudaStreamWaitEvent(a, old, 0); });
    spoils(global, cudaErrorCapturedEvent, [&] {
        OK(cudaEventRecord(before, a));
        return cudaEventQuery(before);
    });
    int host = 0;
    spoils(global, cudaErrorStreamCaptureUnsupported,
           [&] { return cudaMemcpyAsync(x, &host, 4, cudaMemcpyHostToDevice, a); });
    // Another thread: refused only in a global capture, unless that thread is in relaxed mode.
    const auto by_other = [&](bool relaxed) {
        return [&, relaxed] {
            cudaError_t how = cudaSuccess;
            std::thread([&] {
                cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
                if (relaxed) {
                    OK(cudaThreadExchangeStreamCaptureMode(&mode));
                    CHECK_INT(mode, cudaStreamCaptureModeGlobal);
                }
                how = cudaEventQuery(old);
                how = how == cudaErrorNotReady ? cudaSuccess : how;
            }).join();
            return how;
        };
    };
    spoils(global, cudaErrorStreamCaptureUnsupported, by_other(false));
    spoils(global, cudaSuccess, by_other(true));
    spoils(local, cudaSuccess, by_other(false));
}

// ---- kernels ----

struct sum_args {
    const float *from;
    float *to;
    int *words;
    long n;
    int without; // number of the barrier to leave out, as a fault that must be detected
};
__global__ static void __launch_bounds__(128) block_sum(sum_args a)
{
    __shared__ __align__(16) float part[128];
    const unsigned t = threadIdx.x;
    float v = 0;
    for (long i = (long)blockIdx.x * blockDim.x + t; i < a.n; i += (long)gridDim.x * blockDim.x) {
        v += a.from[i];
    }
    part[t] = v;
    if (a.without != 1) {
        __syncthreads();
    }
    for (unsigned w = 64; w >= 32; w /= 2) {
        if (t < w) {
            part[t] += part[t + w];
        }
        if (a.without != 2) {
            __syncthreads();
        }
    }
    if (t < 32) {
        float s = part[t];
        for (int b = 16; b > 0; b /= 2) {
            s += __shfl_xor_sync(0xffffffffu, s, b);
        }
        if (t == 0) {
            a.to[blockIdx.x] = s;
        }
    }
    if (blockIdx.x == 0) { // shuffles, each compared with its definition below
        int *w = a.words + 8 * t;
        w[0] = __shfl_sync(0xffffffffu, (int)t, 5);
        w[1] = (int)__shfl_down_sync(0xffffffffu, (long long)t, 3);
        w[2] = __shfl_up_sync(0xffffffffu, (int)t, 2);
        w[3] = __shfl_xor_sync(0xffffffffu, (int)t, 9, 8);
        w[4] = (int)__ballot_sync(0xffffffffu, t % 3 == 0);
        w[5] = __any_sync(0xffffffffu, t == 40) + 2 * __all_sync(0xffffffffu, t < 96);
        w[6] = __syncthreads_or(t == 77) + 2 * __syncthreads_and(t != 5);
        w[7] = t % 32 < 16 ? __shfl_sync(0x0000ffffu, (int)t, 3) : __shfl_sync(0xffff0000u, (int)t, 20);
    }
}

// Returns the number of wrong results of sums and shuffles.
static long kernels(long n, int without)
{
    enum { GRID = 7 };
    float *from = device<float>((size_t)n + 1), *to = device<float>(GRID);
    int *words = device<int>(128 * 8);
    std::vector<float> host((size_t)n), sums(GRID);
    std::vector<int> got(128 * 8);
    cudaStream_t s = new_stream();
    for (long i = 0; i < n; i++) {
        host[(size_t)i] = (float)(i % 13 - 6); // sums are exact
    }
    OK(cudaMemcpyAsync(from, host.data(), (size_t)n * 4, cudaMemcpyHostToDevice, s));
    sum_args a = {from, to, words, n, without};
    void *args[] = {&a};
    OK(cudaLaunchKernel(block_sum, dim3(GRID), dim3(128), args, 0, s));
    OK(cudaMemcpyAsync(sums.data(), to, GRID * 4, cudaMemcpyDeviceToHost, s));
    OK(cudaMemcpyAsync(got.data(), words, 128 * 8 * 4, cudaMemcpyDeviceToHost, s));
    long wrong = 0;
    for (int b = 0; b < GRID; b++) {
        float sum = 0;
        for (long i = 0; i < n; i++) {
            sum += i / 128 % GRID == b ? host[(size_t)i] : 0;
        }
        wrong += sums[(size_t)b] != sum;
    }
    for (int t = 0; t < 128; t++) {
        const int lane = t % 32, warp = t - lane;
        int ballot = 0;
        for (int i = 0; i < 32; i++) {
            ballot |= (int)((warp + i) % 3 == 0 ? 1u << i : 0u);
        }
        const int expected[8] = {warp + 5,
                                 lane + 3 < 32 ? t + 3 : t,
                                 lane >= 2 ? t - 2 : t,
                                 (lane ^ 9) / 8 == lane / 8 ? t ^ 9 : t,
                                 ballot,
                                 (warp == 32) + 2 * (warp < 96),
                                 1,
                                 lane < 16 ? warp + 3 : warp + 20};
        for (int k = 0; k < 8; k++) {
            wrong += got[(size_t)(8 * t + k)] != expected[k];
        }
    }
    return wrong;
}

static void test_kernels()
{
    int seen[3] = {0, 0, 0};
    for (int s = 0; s < 10; s++) {
        for (const long n : {1L, 127L, 1000L, 5003L}) {
            FINE(seed(s); CHECK_INT(kernels(n, 0), 0));
        }
        for (int without = 1; without <= 2; without++) {
            seen[without] += apart([&] {
                                 seed(s);
                                 std::exit(kernels(5003, without) > 0 ? 3 : 0);
                             }) == 3;
        }
    }
    CHECK(seen[1] > 0 && seen[2] > 0); // a missing barrier is seen
}

struct shape_args {
    int *count;
};
__global__ static void count_all(shape_args a) // of 2 x 3 x 2 blocks of 5 x 3 x 2 threads
{
    const unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    atomicAdd(&a.count[b * 30 + t], 1);
}
__global__ static void stuck(shape_args a) // half of a block waits for the other half
{
    if (threadIdx.x < 40) {
        __syncthreads();
    } else {
        a.count[0] = __shfl_xor_sync(0xffffffffu, 1, 1);
    }
}
__global__ static void ended(shape_args a) // lanes that have ended take part in a shuffle
{
    if (threadIdx.x < 7) {
        a.count[0] = __shfl_xor_sync(0xffffffffu, 1, 1);
    }
}
__global__ static void beyond(shape_args a)
{
    a.count[10] = 1;
}

static void shapes()
{
    int *count = device<int>(12 * 30), host[12 * 30];
    cudaStream_t s = new_stream();
    shape_args a = {count};
    void *args[] = {&a};
    OK(cudaMemsetAsync(count, 0, sizeof host, s));
    OK(cudaLaunchKernel(count_all, dim3(2, 3, 2), dim3(5, 3, 2), args, 0, s));
    OK(cudaMemcpyAsync(host, count, sizeof host, cudaMemcpyDeviceToHost, s));
    for (const int n : host) {
        CHECK_INT(n, 1);
    }
    for (const unsigned threads : {0u, 1025u}) {
        CHECK_INT(cudaLaunchKernel(count_all, dim3(1), dim3(threads), args, 0, s),
                  cudaErrorInvalidConfiguration);
        CHECK_INT(cudaGetLastError(), cudaErrorInvalidConfiguration);
        OK(cudaGetLastError());
    }
    CHECK_INT(cudaLaunchKernel(count_all, dim3(1, 65536), dim3(1), args, 0, s),
              cudaErrorInvalidConfiguration);
    OK(cudaSetDevice(1));
    CHECK_INT(cudaLaunchKernel(count_all, dim3(1), dim3(1), args, 0, s),
              cudaErrorInvalidResourceHandle);
}

template <class K> static void one(K kernel, unsigned threads)
{
    shape_args a = {device<int>(10)};
    void *args[] = {&a};
    OK(cudaLaunchKernel(kernel, dim3(1), dim3(threads), args, 0, new_stream()));
    OK(cudaDeviceSynchronize());
    OK(cudaFree(a.count));
}

static void test_misuse()
{
    CHECK_INT(apart([] { one(stuck, 64); }), -SIGABRT);
    CHECK(says("lane 8 of the warp") || says("waits for ever: 40 threads at __syncthreads"));
    CHECK_INT(apart([] { one(ended, 32); }), -SIGABRT);
    CHECK(says("lane 7 of the warp of thread 0 has ended"));
    CHECK_INT(apart([] { one(ended, 7); }), -SIGABRT);
    CHECK(says("lane 7 of the warp of thread 0 is none"));
#ifdef __SANITIZE_ADDRESS__
    CHECK(apart([] { one(beyond, 1); }) != 0);
    CHECK(says("use-after-poison"));
#else
    CHECK_INT(apart([] { one(beyond, 1); }), -SIGABRT);
    CHECK(says("outside of device memory of 40 bytes, 0 bytes after its end"));
    CHECK_INT(apart([] {
                  volatile int *x = device<int>(10);
                  *x = 1;
              }),
              -SIGSEGV);
    CHECK(says("the host touched device memory"));
#endif
}

static void memory()
{
    cudaPointerAttributes at;
    cudaStream_t s = new_stream();
    unsigned char *x = device<unsigned char>(100), *pinned = nullptr, host[200] = {0};
    OK(cudaMemcpyAsync(host, x, 100, cudaMemcpyDeviceToHost, s));
    CHECK_INT(host[0] + host[99], 510); // poison
    CHECK_INT(host[100], 0);
    CHECK_INT((uintptr_t)x % 256, 0);
    OK(cudaHostAlloc((void **)&pinned, 100, cudaHostAllocDefault));
    OK(cudaPointerGetAttributes(&at, x + 99));
    CHECK_INT(at.type, cudaMemoryTypeDevice);
    OK(cudaPointerGetAttributes(&at, pinned + 5));
    CHECK_INT(at.type, cudaMemoryTypeHost);
    CHECK(at.devicePointer == pinned + 5);
    OK(cudaPointerGetAttributes(&at, host));
    CHECK_INT(at.type, cudaMemoryTypeUnregistered);
    OK(cudaHostRegister(host, 100, 0));
    CHECK_INT(cudaHostRegister(host + 50, 100, 0), cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaPointerGetAttributes(&at, host + 99));
    CHECK_INT(at.type, cudaMemoryTypeHost);
    OK(cudaHostUnregister(host));
    CHECK_INT(cudaHostUnregister(host), cudaErrorHostMemoryNotRegistered);
    CHECK_INT(cudaMemcpyAsync(host, x + 1, 100, cudaMemcpyDeviceToHost, s), cudaErrorInvalidValue);
    CHECK_INT(cudaMemcpyAsync(host, x, 10, cudaMemcpyHostToDevice, s), cudaErrorInvalidValue);
    CHECK_INT(cudaMemsetAsync(host, 0, 10, s), cudaErrorInvalidValue);
    CHECK_INT(cudaGetLastError(), cudaErrorInvalidValue);
    // Page-locked memory is read when the copy runs, other memory at once.
    pinned[0] = host[0] = 1;
    OK(cudaMemcpyAsync(x, pinned, 1, cudaMemcpyHostToDevice, s));
    OK(cudaMemcpyAsync(x + 1, host, 1, cudaMemcpyDefault, s));
    pinned[0] = host[0] = 2;
    OK(cudaMemcpyAsync(host, x, 2, cudaMemcpyDeviceToHost, s));
    CHECK_INT(host[0], getenv("FAKE_CUDA_SEED")[0] == '0' ? 2 : 1);
    CHECK_INT(host[1], 1);
    OK(cudaMemcpyAsync(pinned, x, 1, cudaMemcpyDeviceToHost, s));
    OK(cudaLaunchHostFunc(
        s, [](void *p) { *(unsigned char *)p = (unsigned char)(*(unsigned char *)p + 40); }, pinned));
    OK(cudaStreamSynchronize(s));
    CHECK_INT(pinned[0], host[0] + 40);
    OK(cudaMemcpy2DAsync(x, 10, pinned, 1, 1, 5, cudaMemcpyHostToDevice, s));
    OK(cudaMemcpyAsync(host, x, 41, cudaMemcpyDeviceToHost, s));
    CHECK_INT(host[40], 255);
    CHECK_INT(host[0], pinned[0]);
    OK(cudaFreeHost(pinned));
    OK(cudaFree(x));
    CHECK_INT(cudaFree(x), cudaErrorInvalidValue);
    CHECK_INT(cudaMalloc((void **)&x, (size_t)1 << 40), cudaErrorMemoryAllocation);
}

static void failures()
{
    void *at = nullptr;
    cudaStream_t s = new_stream();
    int *x = nullptr;
    // From the environment: "cudaMalloc:2,cudaStreamCreate:3+:801".
    OK(cudaMalloc(&at, 8));
    CHECK_INT(cudaMalloc(&at, 8), cudaErrorMemoryAllocation);
    CHECK_INT(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    CHECK_INT(cudaGetLastError(), cudaErrorMemoryAllocation);
    x = device<int>(N);
    OK(cudaStreamCreate(&s));
    CHECK_INT(cudaStreamCreate(&s), cudaErrorNotSupported);
    CHECK_INT(cudaStreamCreate(&s), cudaErrorNotSupported);
    (void)cudaGetLastError();
    fake_cuda_fail("cudaLaunchKernel:2:701");
    OK(run_fill(x, nullptr, N, 0, s));
    CHECK_INT(run_fill(x, nullptr, N, 0, s), cudaErrorLaunchOutOfResources);
    (void)cudaGetLastError();
    fake_cuda_fail(nullptr);
    OK(run_fill(x, nullptr, N, 0, s));
    CHECK_INT(fake_cuda_count("cudaLaunchKernel"), 3);
    OK(cudaStreamSynchronize(s));
    fake_cuda_fail("kernel:1"); // reported when it runs, then by each call
    OK(run_fill(x, nullptr, N, 0, s));
    CHECK_INT(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    CHECK_INT(cudaMalloc(&at, 8), cudaErrorIllegalAddress);
    CHECK_INT(cudaGetLastError(), cudaErrorIllegalAddress);
    CHECK_INT(cudaGetLastError(), cudaErrorIllegalAddress);
}

int main()
{
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    test_races();
    test_delay();
    for (const int s : {0, 1, 2, 3, 11, 12}) {
        if (s < 2) {
            FINE(seed(s); default_stream());
            FINE(seed(s); events());
            FINE(seed(s); memory());
        }
        FINE(seed(s); capture());
        FINE(seed(s); capture_errors());
        FINE(seed(s); shapes());
    }
    test_kernels();
    test_misuse();
    FINE({
        seed(0);
        setenv("FAKE_CUDA_FAIL", "cudaMalloc:2,cudaStreamCreate:3+:801", 1);
        failures();
    });
    FINE({
        void *at = nullptr;
        OK(cudaMalloc(&at, 8));
        const int forked = apart([&] { std::exit(cudaFree(at) != cudaErrorInitializationError); });
        CHECK_INT(forked, 0);
    });
    FINE({
        int n = -1;
        void *at = nullptr;
        setenv("FAKE_CUDA_DEVICES", "0", 1);
        CHECK_INT(cudaGetDeviceCount(&n), cudaErrorNoDevice);
        CHECK_INT(n, 0);
        CHECK_INT(cudaMalloc(&at, 8), cudaErrorNoDevice);
    });
    return CHECK_DONE();
}
