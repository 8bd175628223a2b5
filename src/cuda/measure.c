/* SPDX-License-Identifier: MIT-0 */
/* Measures a device by timing work between two events: copies within the device, to another one and
 * from the host, a product of matrices by cuBLAS or the caller's function, and empty launches by
 * the host's clock. The median of several runs counts, and for launches the least. cuBLAS is loaded
 * only if it is found, and called through declarations of this file, so that its header is not
 * needed. */
#include "measure.h"

#include "kernel_random.h"
#include "launch.h"
#include "numbers.h"
#include "operations.h"

enum { DPARI_CUDA_TIMES = 7 };

/* A measurement: buffers, and the work that is enqueued on gpu's stream and timed. */
struct dpari_cuda_timed {
    dpar_cuda *gpu;
    cudaEvent_t before, behind;
    unsigned char *a, *b, *c, *far_side;
    void *host;
    int64_t bytes;
    const dpar_cuda_measure_desc *probe;
    void *blas; /* cuBLAS: a handle, and the function cublasGemmEx */
    int (*product)(void *, int, int, int, int, int, const void *, const void *, int, int,
                   const void *, int, int, const void *, void *, int, int, int, int);
    int32_t n, what;
};

enum { DPARI_CUDA_COPY, DPARI_CUDA_LINK, DPARI_CUDA_PCIE, DPARI_CUDA_GEMM };

/* Enqueues c = a b^T by cuBLAS. The matrices are stored by rows, but cuBLAS expects columns, hence
 * op(T) and op(N). 14 is CUDA_R_16BF, 68 CUBLAS_COMPUTE_32F, and -1 CUBLAS_GEMM_DEFAULT. */
static dpar_status dpari_cuda_blas_gemm(dpari_cuda_timed *t)
{
    const float one = 1.0f, zero = 0.0f;
    const int n = (int)t->n;
    return t->product(t->blas, 1, 0, n, n, n, &one, t->b, 14, n, t->a, 14, n, &zero, t->c, 14, n,
                      68, -1) == 0
               ? DPAR_OK
               : DPAR_E_SYSTEM;
}

static dpar_status dpari_cuda_timed_once(dpari_cuda_timed *t)
{
    dpar_mem_box box;
    dpar_cuda *gpu = t->gpu;
    switch (t->what) {
    case DPARI_CUDA_COPY:
        memset(&box, 0, sizeof box);
        box.to = t->b;
        box.from = t->a;
        box.to_type = box.from_type = box.round_type = DPAR_U8;
        box.dims = 1;
        box.extent[0] = t->bytes;
        box.to_stride[0] = box.from_stride[0] = 1;
        return dpari_cuda_move(gpu, &box, 1);
    case DPARI_CUDA_LINK:
        return dpari_cuda_heard(
            gpu,
            cudaMemcpyAsync(t->far_side, t->a, (size_t)t->bytes, cudaMemcpyDefault, gpu->stream),
            "a copy to the other device");
    case DPARI_CUDA_PCIE:
        return dpari_cuda_heard(
            gpu,
            cudaMemcpyAsync(t->a, t->host, (size_t)t->bytes, cudaMemcpyHostToDevice, gpu->stream),
            "a copy from the host");
    default:
        return t->probe->gemm != NULL
                   ? t->probe->gemm(t->probe->user, gpu->stream, t->a, t->b, t->c, t->n)
                   : dpari_cuda_blas_gemm(t);
    }
}

/* Returns the median time of several runs in seconds, after one run that does not count. 0 if a run
 * fails. */
static double dpari_cuda_time(dpari_cuda_timed *t)
{
    double made[DPARI_CUDA_TIMES];
    int32_t i, k;
    for (i = -1; i < DPARI_CUDA_TIMES; i++) {
        float ms = 0.0f;
        if (cudaEventRecord(t->before, t->gpu->stream) != cudaSuccess ||
            dpari_cuda_timed_once(t) != DPAR_OK ||
            cudaEventRecord(t->behind, t->gpu->stream) != cudaSuccess ||
            cudaEventSynchronize(t->behind) != cudaSuccess ||
            cudaEventElapsedTime(&ms, t->before, t->behind) != cudaSuccess) {
            (void)cudaGetLastError();
            return 0.0;
        }
        for (k = i; k > 0 && made[k - 1] > (double)ms; k--) {
            made[k] = made[k - 1];
        }
        if (i >= 0) {
            made[k] = (double)ms;
        }
    }
    return made[DPARI_CUDA_TIMES / 2] * 1e-3;
}

/* Times one kind of work. Returns how much of `amount` it does in a second; 0 if it fails. */
static double dpari_cuda_rate(dpari_cuda_timed *t, int32_t what, double amount)
{
    double seconds;
    t->what = what;
    seconds = dpari_cuda_time(t);
    return seconds > 0.0 ? amount / seconds : 0.0;
}

struct dpari_cuda_noise {
    uint16_t *to;
    int64_t count;
};

/* Fills a matrix with random BF16 numbers between -1 and 1, because a product of zeros takes less
 * power and time. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_noise_kernel(DPARI_CUDA_ARGS dpari_cuda_noise s)
{
    for (int64_t i = dpari_cuda_thread(); i < s.count; i += dpari_cuda_threads()) {
        uint32_t words[4];
        dpari_cuda_random_four(1, 2, (uint64_t)i, words);
        s.to[i] = dpari_cuda_to_bf16((float)(int32_t)words[0] * (1.0f / 2147483648.0f));
    }
}

struct dpari_cuda_idle {
    int64_t nothing;
};

__global__ static void dpari_cuda_idle_kernel(DPARI_CUDA_ARGS dpari_cuda_idle s)
{
    (void)s;
}

static double dpari_cuda_clock(void)
{
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Returns the host's seconds per launch: the least of three turns, each of which begins with an
 * empty queue. */
static double dpari_cuda_launch_time(dpar_cuda *gpu)
{
    enum { MANY = 1000 };
    dpari_cuda_idle nothing = {0};
    double start;
    int32_t i, turn;
    double least = 0.0;
    for (turn = 0; turn < 3; turn++) {
        (void)cudaStreamSynchronize(gpu->stream); /* orders nothing: a full queue would cost time */
        start = dpari_cuda_clock();
        for (i = 0; i < MANY; i++) {
            if (dpari_cuda_launch(gpu, "idle", dpari_cuda_idle_kernel, nothing, 1) != DPAR_OK) {
                return 0.0;
            }
        }
        start = (dpari_cuda_clock() - start) / MANY;
        least = turn == 0 || start < least ? start : least;
    }
    (void)cudaStreamSynchronize(gpu->stream); /* orders nothing: the next measurement begins with an
                                                 empty queue */
    return least;
}

/* Loads a function of a library. Its address is copied as bytes, because C++ does not convert
 * pointers to data into pointers to functions. */
static void dpari_cuda_symbol(void *library, const char *name, void *function, size_t bytes)
{
    void *at = dlsym(library, name);
    memcpy(function, &at, bytes);
}

/* Loads cuBLAS if it is found. Returns a handle, or NULL, and sets t->product. */
static void *dpari_cuda_blas_open(dpari_cuda_timed *t, char *name, size_t room, void **library)
{
    static const char *const files[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    int (*create)(void **) = NULL;
    int (*stream)(void *, void *) = NULL;
    const char *file = t->probe->cublas;
    void *handle = NULL;
    size_t i;
    *library = NULL;
    for (i = 0; i < sizeof files / sizeof files[0] && *library == NULL; i++) {
        file = t->probe->cublas != NULL ? t->probe->cublas : files[i];
        *library = file[0] != 0 ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    }
    if (*library == NULL) {
        return NULL;
    }
    dpari_cuda_symbol(*library, "cublasCreate_v2", &create, sizeof create);
    dpari_cuda_symbol(*library, "cublasSetStream_v2", &stream, sizeof stream);
    dpari_cuda_symbol(*library, "cublasGemmEx", &t->product, sizeof t->product);
    if (create == NULL || stream == NULL || t->product == NULL || create(&handle) != 0) {
        return NULL;
    }
    (void)snprintf(name, room, "cuBLAS (%s)", file);
    return stream(handle, t->gpu->stream) == 0 ? handle : NULL;
}

static void dpari_cuda_probe_gemm(dpari_cuda_timed *t, dpar_cuda_measurement *made)
{
    const int64_t count = (int64_t)t->n * t->n;
    void *library = NULL;
    int (*destroy)(void *) = NULL;
    dpari_cuda_noise noise = {(uint16_t *)(void *)t->a, count};
    if (t->probe->gemm == NULL) {
        t->blas = dpari_cuda_blas_open(t, made->gemm_library, sizeof made->gemm_library, &library);
    } else {
        (void)snprintf(made->gemm_library, sizeof made->gemm_library, "the caller's function");
    }
    if (t->probe->gemm != NULL || t->blas != NULL) {
        (void)dpari_cuda_launch(t->gpu, "noise", dpari_cuda_noise_kernel, noise,
                                dpari_cuda_units_blocks(t->gpu, count));
        noise.to = (uint16_t *)(void *)t->b;
        (void)dpari_cuda_launch(t->gpu, "noise", dpari_cuda_noise_kernel, noise,
                                dpari_cuda_units_blocks(t->gpu, count));
        made->gemm_flops = dpari_cuda_rate(t, DPARI_CUDA_GEMM, 2.0 * (double)count * (double)t->n);
    }
    if (t->blas != NULL) {
        dpari_cuda_symbol(library, "cublasDestroy_v2", &destroy, sizeof destroy);
        (void)(destroy != NULL ? destroy(t->blas) : 0);
    }
    if (library != NULL) {
        (void)dlclose(library);
    }
}

/* Measures the link to another device, if this device can access one. */
static void dpari_cuda_probe_link(dpari_cuda_timed *t, dpar_cuda_measurement *made)
{
    const int own = t->gpu->device;
    int devices = 0, other, can = 0;
    void *memory = NULL;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2) {
        return;
    }
    other = t->probe->peer > 0 ? t->probe->peer - 1 : (own + 1) % devices;
    if (other >= devices || other == own ||
        cudaDeviceCanAccessPeer(&can, own, other) != cudaSuccess || !can ||
        cudaSetDevice(other) != cudaSuccess) {
        (void)cudaGetLastError();
        return;
    }
    if (cudaMalloc(&memory, (size_t)t->bytes) == cudaSuccess) {
        (void)cudaSetDevice(own);
        (void)cudaDeviceEnablePeerAccess(other, 0);
        (void)cudaGetLastError();
        t->far_side = (unsigned char *)memory;
        made->link_Bps = dpari_cuda_rate(t, DPARI_CUDA_LINK, (double)t->bytes);
        (void)cudaSetDevice(other);
        (void)cudaFree(memory);
    }
    (void)cudaSetDevice(own);
    (void)cudaGetLastError();
}

static void dpari_cuda_probe_host(dpari_cuda_timed *t, dpar_cuda_measurement *made)
{
    const int64_t all = t->bytes;
    t->bytes = all < ((int64_t)256 << 20) ? all : (int64_t)256 << 20;
    if (cudaMallocHost(&t->host, (size_t)t->bytes) == cudaSuccess) {
        memset(t->host, 1, (size_t)t->bytes);
        made->pcie_Bps = dpari_cuda_rate(t, DPARI_CUDA_PCIE, (double)t->bytes);
        (void)cudaFreeHost(t->host);
    }
    (void)cudaGetLastError();
    t->bytes = all;
}

/* Measures everything. The same memory serves as three matrices and as two buffers. */
static void dpari_cuda_probe_all(dpari_cuda_timed *t, dpar_cuda_measurement *made)
{
    made->copy_Bps = dpari_cuda_rate(t, DPARI_CUDA_COPY, 2.0 * (double)t->bytes);
    dpari_cuda_probe_gemm(t, made);
    made->launch_s = dpari_cuda_launch_time(t->gpu);
    dpari_cuda_probe_link(t, made);
    dpari_cuda_probe_host(t, made);
}

DPAR_API dpar_status dpar_cuda_measure(dpar_cuda *gpu, const dpar_cuda_measure_desc *probe,
                                       dpar_cuda_measurement *made, dpar_why *why)
{
    dpar_cuda_measure_desc none;
    dpari_cuda_timed t;
    struct cudaDeviceProp about;
    dpar_cuda_measurement m;
    size_t left = 0, total = 0;
    int64_t matrix, room;
    void *memory = NULL;
    int before = 0;
    dpar_status st = dpari_cuda_enter(gpu, &before);
    if (st != DPAR_OK) {
        return dpari_cuda_told(gpu, st, why);
    }
    memset(&none, 0, sizeof none);
    memset(&t, 0, sizeof t);
    memset(&m, 0, sizeof m);
    t.gpu = gpu;
    t.probe = probe != NULL ? probe : &none;
    t.n = t.probe->matrix_size > 0 ? t.probe->matrix_size : 8192;
    if (t.probe->bytes < 0 || t.probe->matrix_size < 0 || t.probe->matrix_size > 65536 ||
        cudaGetDeviceProperties(&about, gpu->device) != cudaSuccess ||
        cudaMemGetInfo(&left, &total) != cudaSuccess) {
        char text[160];
        (void)cudaGetLastError();
        (void)snprintf(text, sizeof text,
                       "bytes is %lld, but must not be negative; or matrix_size is %d, but must be "
                       "0 to 65536; or device %d does not respond",
                       (long long)t.probe->bytes, (int)t.probe->matrix_size, (int)gpu->device);
        return dpari_cuda_leave(gpu, before,
                                dpari_cuda_say(DPAR_E_ARG, why, "dpar_cuda_measure", text));
    }
    t.bytes = (int64_t)1 << 30 < (int64_t)(left / 8) ? (int64_t)1 << 30 : (int64_t)(left / 8);
    t.bytes = (t.probe->bytes > 0 ? t.probe->bytes : t.bytes) / 256 * 256;
    matrix = (int64_t)t.n * t.n * 2;
    room = t.bytes > matrix ? t.bytes : matrix;
    st = DPAR_E_MEMORY;
    if (t.bytes > 0 && cudaMalloc(&memory, (size_t)(2 * room + matrix)) == cudaSuccess &&
        cudaEventCreate(&t.before) == cudaSuccess && cudaEventCreate(&t.behind) == cudaSuccess) {
        t.a = (unsigned char *)memory;
        t.b = t.a + room;
        t.c = t.b + room;
        (void)snprintf(m.name, sizeof m.name, "%.63s", about.name);
        m.memory_bytes = (double)total;
        m.multiprocessors = gpu->multiprocessors;
        m.capability = gpu->capability;
        (void)cudaMemsetAsync(t.a, 85, (size_t)(2 * room + matrix), gpu->stream);
        dpari_cuda_probe_all(&t, &m);
        *made = m;
        st = DPAR_OK;
    } else {
        char text[120];
        (void)snprintf(text, sizeof text,
                       "device %d has no memory for buffers of %lld bytes, or no events",
                       (int)gpu->device, (long long)(2 * room + matrix));
        (void)dpari_cuda_say(st, why, "dpar_cuda_measure", text);
    }
    (void)cudaStreamSynchronize(gpu->stream); /* orders nothing: cudaFree waits as well */
    (void)(t.before != NULL ? cudaEventDestroy(t.before) : cudaSuccess);
    (void)(t.behind != NULL ? cudaEventDestroy(t.behind) : cudaSuccess);
    (void)(memory != NULL ? cudaFree(memory) : cudaSuccess);
    (void)cudaGetLastError();
    return dpari_cuda_leave(gpu, before, st);
}

/* Appends a line to a text of length `at`, as far as there is room. Returns the new length. */
static int64_t dpari_cuda_append(char *text, int64_t bytes, int64_t at, const char *line)
{
    for (; *line != 0; line++, at++) {
        if (at < bytes - 1) {
            text[at] = *line;
            text[at + 1] = 0;
        }
    }
    return at;
}

/* Appends a setting, or a comment that the number was not measured. */
static int64_t dpari_cuda_line(char *text, int64_t bytes, int64_t at, const char *key, double value,
                               const char *unit)
{
    char line[128];
    if (value > 0.0) {
        (void)snprintf(line, sizeof line, "%s=%.4g  # %s\n", key, value, unit);
    } else {
        (void)snprintf(line, sizeof line, "# %s: not measured\n", key);
    }
    return dpari_cuda_append(text, bytes, at, line);
}

DPAR_API int64_t dpar_cuda_measurement_write(const dpar_cuda_measurement *made,
                                             double peak_memory_Bps, double peak_flops,
                                             double peak_link_Bps, char *text, int64_t bytes)
{
    char head[128];
    int64_t at;
    (void)snprintf(head, sizeof head, "# measured on %s, %d units\n", made->name,
                   (int)made->multiprocessors);
    at = dpari_cuda_append(text, bytes, 0, head);
    at = dpari_cuda_line(text, bytes, at, "hbm",
                         peak_memory_Bps > 0.0 ? made->copy_Bps / peak_memory_Bps : 0.0,
                         "share of the memory's peak, copying");
    at =
        dpari_cuda_line(text, bytes, at, "gemm",
                        peak_flops > 0.0 ? made->gemm_flops / peak_flops : 0.0, made->gemm_library);
    at = dpari_cuda_line(text, bytes, at, "launch_us", made->launch_s * 1e6, "host, a kernel");
    at = dpari_cuda_line(text, bytes, at, "link_share",
                         peak_link_Bps > 0.0 ? made->link_Bps / peak_link_Bps : 0.0,
                         "share of the link's peak, copying");
    return dpari_cuda_line(text, bytes, at, "pcie", made->pcie_Bps * 1e-9, "GB/s from the host");
}
