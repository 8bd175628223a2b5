/* SPDX-License-Identifier: MIT-0 */
/* A stand-in for the CUDA runtime, for tests without a GPU: fake_cuda.cc runs it on the CPU. Names,
 * numbers and meanings are CUDA's; only the parts that the tests need exist. C gets the types and
 * functions; C++ gets in addition what kernels use, which g++ compiles as plain functions.
 *
 * Device memory is host memory that the host may access only while the "device" works; otherwise
 * the process ends with a message. It is filled with poison when allocated and has guards at both
 * ends. Streams are queues that run late, early or in an unpredictable order, depending on the
 * environment:
 *   FAKE_CUDA_SEED   0: as late as possible. 1: at once. 2, 3: streams made 1st, 3rd, ... early and
 *                    the others late, or the reverse. Larger: each operation at random by the seed
 *   FAKE_CUDA_HOLD   milliseconds after which held operations run anyway (20)
 *   FAKE_CUDA_FAIL   "name:n[+][:error][@rank],...": the n-th call (n+: and all later ones) of
 *                    that function fails. kernel:n: the n-th kernel that runs faults, which all
 *                    calls report from then on. Rank: DPAR_RANK or FAKE_RANK of the environment
 *   FAKE_CUDA_DROP   "dpar_nccl.h:822": the call on that line, which orders something, is left out
 *                    (mutate_events.sh). FAKE_CUDA_DROPPED: a file that is made when this happens.
 *                    "ops:wait", "ops:write": leaves these out of cuStreamBatchMemOp
 *   FAKE_CUDA_WITHIN "dpar.h:9": only while the FAKE_WAIT of that line runs; DROP may name several
 *   FAKE_CUDA_DEVICES (8), FAKE_CUDA_GUARD (1: the host may not access device memory)
 * Threads of a block are fibers, which switch at __syncthreads and at shuffles. The seed determines
 * the order of the blocks, and that of the threads between switches. */
#ifndef FAKE_CUDA_RUNTIME_H
#define FAKE_CUDA_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#define CUDART_VERSION 13000
#define FAKE_CUDA 1

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidDevicePointer = 17,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInsufficientDriver = 35,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorPeerAccessUnsupported = 217,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchOutOfResources = 701,
    cudaErrorPeerAccessAlreadyEnabled = 704,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotPermitted = 800,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureMerge = 902,
    cudaErrorStreamCaptureUnmatched = 903,
    cudaErrorStreamCaptureUnjoined = 904,
    cudaErrorStreamCaptureIsolation = 905,
    cudaErrorStreamCaptureImplicit = 906,
    cudaErrorCapturedEvent = 907,
    cudaErrorUnknown = 999
} cudaError_t;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef struct CUgraphNode_st *cudaGraphNode_t;
typedef void (*cudaHostFn_t)(void *userData);

#define cudaStreamLegacy ((cudaStream_t)0x1)
#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02
#define cudaEventRecordDefault 0x00
#define cudaEventWaitDefault 0x00
#define cudaHostAllocDefault 0x00
#define cudaHostAllocPortable 0x01
#define cudaHostAllocMapped 0x02
#define cudaHostAllocWriteCombined 0x04
#define cudaHostRegisterDefault 0x00
#define cudaHostRegisterPortable 0x01
#define cudaHostRegisterMapped 0x02

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};
enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2
};
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone = 0,
    cudaStreamCaptureStatusActive = 1,
    cudaStreamCaptureStatusInvalidated = 2
};
enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxGridDimX = 5,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrClockRate = 13,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrMemoryClockRate = 36,
    cudaDevAttrGlobalMemoryBusWidth = 37,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76
};

struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer;
    void *hostPointer;
};

typedef struct CUuuid_st {
    char bytes[16];
} cudaUUID_t;

/* Some of the real structure's fields. */
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem, sharedMemPerBlock;
    int regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
    int major, minor, multiProcessorCount, maxThreadsPerMultiProcessor;
    int pciBusID, pciDeviceID, pciDomainID, memoryBusWidth, l2CacheSize;
};

struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs;
};

#ifdef __cplusplus
struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1)
        : x(vx), y(vy), z(vz)
    {
    }
};
struct uint3 {
    unsigned int x, y, z;
};
#else
typedef struct dim3 {
    unsigned int x, y, z;
} dim3;
typedef struct uint3 {
    unsigned int x, y, z;
} uint3;
#endif

#ifdef __cplusplus
extern "C" {
#endif

const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);

cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device);
cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);

cudaError_t cudaMalloc(void **memory, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocHost(void **memory, size_t bytes);
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned int flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned int flags);
cudaError_t cudaHostUnregister(void *memory);
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *at);

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t bytes, cudaStream_t stream);
cudaError_t cudaMemset(void *to, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags);
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device);
enum cudaDriverEntryPointQueryResult {
    cudaDriverEntryPointSuccess = 0,
    cudaDriverEntryPointSymbolNotFound = 1,
    cudaDriverEntryPointVersionNotSufficent = 2
};
#define cudaEnableDefault 0
/* Finds only cuStreamBatchMemOp. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user);

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status);
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

/* ---- only for tests ---- */

/* Returns how often a function was called, or failed on request, since the process began. "kernel":
 * kernels that ran to their end; "held": operations that are enqueued and have not run. */
long long fake_cuda_count(const char *name);
/* Replaces FAKE_CUDA_FAIL and counts from now on; NULL: no more failures. */
void fake_cuda_fail(const char *list);
/* Replaces FAKE_CUDA_SEED for operations enqueued from now on. */
void fake_cuda_seed(unsigned long long seed);
/* Returns 1 if FAKE_CUDA_DROP leaves out the call on this line. */
int fake_cuda_drops(const char *file, int line);
/* Returns 1 if FAKE_CUDA_WITHIN names this line. Then the calls that DROP names are left out until
 * fake_cuda_within_ends, which returns its argument. */
int fake_cuda_within(const char *file, int line);
int fake_cuda_within_ends(int status);

#ifdef __cplusplus
}

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>

#define __host__
#define __device__
#define __global__
#define __constant__
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

namespace fake_cuda {

/* One thread of a kernel, as it sees itself. */
struct lane {
    dim3 thread, block, block_dim, grid_dim;
};
extern __thread lane *here;
void sync_threads(void);
int sync_any(int mine);
/* Stores 8 bytes and waits for the lanes of the mask. Returns the values of all lanes. */
const unsigned long long *exchange(unsigned mask, unsigned long long mine);
int lane_number(void);
cudaError_t launch(dim3 grid, dim3 block, size_t argument_bytes, size_t shared,
                   cudaStream_t stream, std::function<void()> thread);

/* An operation of a stream that runs in steps, such as a collective. */
enum class stage { stuck, moved, done };
struct task {
    virtual ~task() = default;
    virtual stage step() = 0;
};
/* start: makes the task each time the stream, or a replay of a graph, reaches it. */
cudaError_t enqueue(cudaStream_t stream, std::function<std::unique_ptr<task>()> start);
/* Enqueues a task that the streams do together: it begins when all have reached it. */
cudaError_t enqueue_on_all(const cudaStream_t *streams, int n,
                           std::function<std::unique_ptr<task>()> start);
/* Makes `after` wait for all that `stream` has been given so far. */
cudaError_t order(cudaStream_t stream, cudaStream_t after);
/* Runs until ready() is true; the device works meanwhile. */
void wait_until(const std::function<bool()> &ready);
/* Waits until all streams have completed what they were given, as when memory is freed. */
void wait_for_device(void);
/* Returns true if [at, at + bytes) is in one allocation that a device can access. */
bool reachable(const void *at, size_t bytes);
bool capturing(cudaStream_t stream);
/* Makes memory accessible to devices of other processes, as NCCL's windows: returns a file of its
 * bytes (< 0 if there is none). map_peer maps that of another process. */
int share(void *memory, size_t bytes);
void *map_peer(int fd, size_t bytes);
void unmap_peer(void *memory);
/* For a step: returns whether the memory still exists. Otherwise the device faults. */
bool still_there(const void *at, size_t bytes);
/* Frees memory without waiting for its users. */
cudaError_t free_at_once(void *memory);
unsigned long long random(void);
int my_rank(void);
/* For a step: must be called before it accesses device memory. */
void open(void);
/* Returns true if a kernel faulted. */
bool faulty(void);

template <class T> T shuffle(unsigned mask, T v, int from)
{
    static_assert(sizeof(T) <= 8, "shuffles carry up to 8 bytes");
    unsigned long long bits = 0;
    std::memcpy(&bits, &v, sizeof v);
    const unsigned long long *all = exchange(mask, bits);
    std::memcpy(&v, &all[from & 31], sizeof v);
    return v;
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), const std::tuple<std::decay_t<A>...> &args,
          std::index_sequence<I...>)
{
    kernel(std::get<I>(args)...);
}
template <class... A, size_t... I>
std::tuple<std::decay_t<A>...> copied(void **args, std::index_sequence<I...>)
{
    return std::tuple<std::decay_t<A>...>(*static_cast<std::decay_t<A> *>(args[I])...);
}

} // namespace fake_cuda

template <class... A>
cudaError_t cudaLaunchKernel(void (*kernel)(A...), dim3 grid, dim3 block, void **args,
                             size_t shared = 0, cudaStream_t stream = nullptr)
{
    const auto values = std::make_shared<std::tuple<std::decay_t<A>...>>(
        fake_cuda::copied<A...>(args, std::index_sequence_for<A...>{}));
    const size_t bytes = (sizeof(A) + ... + 0);
    return fake_cuda::launch(grid, block, bytes, shared, stream, [kernel, values] {
        fake_cuda::call(kernel, *values, std::index_sequence_for<A...>{});
    });
}
template <class... A>
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, void (*)(A...))
{
    *attributes = {0, 0, 0, 1024, 32};
    return cudaSuccess;
}
template <class... A>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void (*)(A...), int threads,
                                                          size_t)
{
    *blocks = 2048 / (threads < 64 ? 64 : threads);
    return cudaSuccess;
}

/* ---- what kernels use ---- */

#define threadIdx (fake_cuda::here->thread)
#define blockIdx (fake_cuda::here->block)
#define blockDim (fake_cuda::here->block_dim)
#define gridDim (fake_cuda::here->grid_dim)
constexpr int warpSize = 32;

inline void __syncthreads(void) { fake_cuda::sync_threads(); }
inline int __syncthreads_or(int mine) { return fake_cuda::sync_any(mine); }
inline int __syncthreads_and(int mine) { return !fake_cuda::sync_any(!mine); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { (void)fake_cuda::exchange(mask, 0); }
inline void __threadfence(void) {}
inline void __threadfence_block(void) {}
inline void __threadfence_system(void) {}

template <class T> T __shfl_sync(unsigned mask, T v, int from, int width = 32)
{
    const int lane = fake_cuda::lane_number();
    return fake_cuda::shuffle(mask, v, (lane & ~(width - 1)) | (from & (width - 1)));
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32)
{
    const int lane = fake_cuda::lane_number(), from = lane ^ bits;
    return fake_cuda::shuffle(mask, v, (from & ~(width - 1)) == (lane & ~(width - 1)) ? from : lane);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32)
{
    const int lane = fake_cuda::lane_number(), from = lane + (int)by;
    return fake_cuda::shuffle(mask, v, (from & ~(width - 1)) == (lane & ~(width - 1)) ? from : lane);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32)
{
    const int lane = fake_cuda::lane_number(), from = lane - (int)by;
    return fake_cuda::shuffle(mask, v, (lane & (width - 1)) >= (int)by ? from : lane);
}
inline unsigned __ballot_sync(unsigned mask, int mine)
{
    const unsigned long long *all = fake_cuda::exchange(mask, mine != 0);
    unsigned bits = 0;
    for (int i = 0; i < 32; i++) {
        bits |= (mask >> i & 1u) && all[i] ? 1u << i : 0u;
    }
    return bits;
}
inline int __any_sync(unsigned mask, int mine) { return __ballot_sync(mask, mine) != 0; }
inline int __all_sync(unsigned mask, int mine) { return __ballot_sync(mask, mine) == mask; }
inline unsigned __activemask(void) { return 0xffffffffu; }

template <class T> T __ldg(const T *at) { return *at; }
template <class T> T __ldcs(const T *at) { return *at; }
template <class T> T __ldcg(const T *at) { return *at; }
template <class T> T __ldca(const T *at) { return *at; }
template <class T> void __stcs(T *at, T v) { *at = v; }
template <class T> void __stcg(T *at, T v) { *at = v; }
template <class T> void __stwb(T *at, T v) { *at = v; }

namespace fake_cuda {
template <class To, class From> To bits(From v)
{
    To to;
    static_assert(sizeof to == sizeof v, "the same bits");
    std::memcpy(&to, &v, sizeof to);
    return to;
}
} // namespace fake_cuda
inline unsigned __float_as_uint(float v) { return fake_cuda::bits<unsigned>(v); }
inline int __float_as_int(float v) { return fake_cuda::bits<int>(v); }
inline float __uint_as_float(unsigned v) { return fake_cuda::bits<float>(v); }
inline float __int_as_float(int v) { return fake_cuda::bits<float>(v); }
inline long long __double_as_longlong(double v) { return fake_cuda::bits<long long>(v); }
inline double __longlong_as_double(long long v) { return fake_cuda::bits<double>(v); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __double2float_rn(double a) { return (float)a; }
inline int __float2int_rn(float a) { return (int)std::nearbyint(a); }
inline float __expf(float a) { return std::exp(a); }
inline float rsqrtf(float a) { return 1.0f / std::sqrt(a); }
inline double rsqrt(double a) { return 1.0 / std::sqrt(a); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz((unsigned)v); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll((unsigned long long)v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }

/* Blocks and threads run one at a time, so plain reads and writes are atomic. Only integers. */
template <class T> T atomicAdd(T *at, T v)
{
    static_assert(static_cast<T>(0.5) == 0, "sums of floats by atomics depend on timing");
    const T old = *at;
    *at = old + v;
    return old;
}
template <class T> T atomicMax(T *at, T v)
{
    const T old = *at;
    *at = old < v ? v : old;
    return old;
}
template <class T> T atomicMin(T *at, T v)
{
    const T old = *at;
    *at = v < old ? v : old;
    return old;
}
template <class T> T atomicOr(T *at, T v)
{
    const T old = *at;
    *at = old | v;
    return old;
}
template <class T> T atomicExch(T *at, T v)
{
    const T old = *at;
    *at = v;
    return old;
}
template <class T> T atomicCAS(T *at, T compare, T v)
{
    const T old = *at;
    *at = old == compare ? v : old;
    return old;
}

#define FAKE_CUDA_VECTOR(T, name, align2, align4)                                                  \
    struct name##1 {                                                                               \
        T x;                                                                                       \
    };                                                                                             \
    struct alignas(align2) name##2 {                                                               \
        T x, y;                                                                                    \
    };                                                                                             \
    struct alignas(align4) name##4 {                                                               \
        T x, y, z, w;                                                                              \
    };                                                                                             \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                     \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
FAKE_CUDA_VECTOR(signed char, char, 2, 4)
FAKE_CUDA_VECTOR(unsigned char, uchar, 2, 4)
FAKE_CUDA_VECTOR(short, short, 4, 8)
FAKE_CUDA_VECTOR(unsigned short, ushort, 4, 8)
FAKE_CUDA_VECTOR(int, int, 8, 16)
FAKE_CUDA_VECTOR(unsigned int, uint, 8, 16)
FAKE_CUDA_VECTOR(float, float, 8, 16)
FAKE_CUDA_VECTOR(long long, longlong, 16, 16)
FAKE_CUDA_VECTOR(unsigned long long, ulonglong, 16, 16)
FAKE_CUDA_VECTOR(double, double, 16, 16)
#undef FAKE_CUDA_VECTOR

#endif

#ifndef FAKE_CUDA_ITSELF
#define FAKE_CUDA_UNLESS(call) (fake_cuda_drops(__FILE__, __LINE__) ? cudaSuccess : call)
#define cudaEventRecord(event, stream) FAKE_CUDA_UNLESS(cudaEventRecord(event, stream))
#define cudaEventQuery(event) FAKE_CUDA_UNLESS(cudaEventQuery(event))
#define cudaEventSynchronize(event) FAKE_CUDA_UNLESS(cudaEventSynchronize(event))
#define cudaStreamWaitEvent(stream, event, flags)                                                  \
    FAKE_CUDA_UNLESS(cudaStreamWaitEvent(stream, event, flags))
#define cudaStreamSynchronize(stream) FAKE_CUDA_UNLESS(cudaStreamSynchronize(stream))
#endif

#endif
