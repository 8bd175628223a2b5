// SPDX-License-Identifier: MIT-0
// A stand-in for the few functions of cuBLAS that apps/gpt_cuda.h calls. Matrices are column-major,
// and products run on the stream that was set. Writes the number of products to the file
// FAKE_CUBLAS_SAID.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

namespace
{

struct handle {
    cudaStream_t stream;
    long long products;
};

template <class T> struct product {
    int ta, tb, m, n, k, lda, ldb, ldc;
    T alpha, beta;
    const T *a, *b;
    T *c;
};

template <class T> void kernel(const product<T> p)
{
    const int i = (int)threadIdx.x, j = (int)blockIdx.x;
    for (int row = i; row < p.m; row += (int)blockDim.x) {
        T sum = 0;
        for (int d = 0; d < p.k; d++) {
            sum += (p.ta ? p.a[d + (size_t)row * p.lda] : p.a[row + (size_t)d * p.lda]) *
                   (p.tb ? p.b[j + (size_t)d * p.ldb] : p.b[d + (size_t)j * p.ldb]);
        }
        T &to = p.c[row + (size_t)j * p.ldc];
        to = p.beta != 0 ? p.alpha * sum + p.beta * to : p.alpha * sum;
    }
}

template <class T>
int multiply(void *h, int ta, int tb, int m, int n, int k, const T *alpha, const T *a, int lda,
             const T *b, int ldb, const T *beta, T *c, int ldc)
{
    product<T> p = {ta, tb, m, n, k, lda, ldb, ldc, *alpha, *beta, a, b, c};
    void *list[] = {&p};
    if (lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m) {
        return 7; // CUBLAS_STATUS_INVALID_VALUE
    }
    static_cast<handle *>(h)->products++;
    return cudaLaunchKernel(kernel<T>, dim3((unsigned)n), dim3(32), list, 0,
                            static_cast<handle *>(h)->stream) == cudaSuccess
               ? 0
               : 13; // CUBLAS_STATUS_EXECUTION_FAILED
}

} // namespace

extern "C" {

int cublasCreate_v2(void **h)
{
    *h = new handle();
    return 0;
}

int cublasSetStream_v2(void *h, cudaStream_t stream)
{
    static_cast<handle *>(h)->stream = stream;
    return 0;
}

int cublasDestroy_v2(void *h)
{
    const char *name = getenv("FAKE_CUBLAS_SAID");
    FILE *said = name != nullptr ? fopen(name, "a") : nullptr;
    if (said != nullptr) {
        fprintf(said, "%lld products\n", static_cast<handle *>(h)->products);
        fclose(said);
    }
    delete static_cast<handle *>(h);
    return 0;
}

int cublasSgemm_v2(void *h, int ta, int tb, int m, int n, int k, const float *alpha, const float *a,
                   int lda, const float *b, int ldb, const float *beta, float *c, int ldc)
{
    return multiply(h, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

int cublasDgemm_v2(void *h, int ta, int tb, int m, int n, int k, const double *alpha,
                   const double *a, int lda, const double *b, int ldb, const double *beta,
                   double *c, int ldc)
{
    return multiply(h, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
}
