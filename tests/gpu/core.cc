/* SPDX-License-Identifier: MIT-0 */
/* core: tests dpar_cuda.h in a program that does not train. dpar_train.h is not included and the
 * table has no layers, but its moves and sums must be right. */
#define DPAR_IMPLEMENTATION
#define DPAR_CUDA_IMPLEMENTATION
#include "dpar_cuda.h"

#ifdef DPAR_TRAIN_H
#error dpar_cuda.h brought dpar_train.h
#endif

#include "check.h"

enum { N = 37, M = 23 };

static void from_device(float *to, const void *from, int64_t n)
{
    CHECK(cudaMemcpy(to, from, (size_t)n * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
}

int main(void)
{
    dpar_cuda gpu;
    dpar_mem mem;
    dpar_why why;
    float here[2 * N * M], there[2 * N * M];
    float *x = NULL, *y = NULL;
    dpar_mem_box box;
    dpar_mem_reduce sum;
    CHECK_INT(dpar_cuda_make(&gpu, NULL, &why), DPAR_OK);
    dpar_cuda_mem(&gpu, &mem);
    CHECK(mem.layers == NULL);
    CHECK(cudaMalloc((void **)&x, sizeof here) == cudaSuccess);
    CHECK(cudaMalloc((void **)&y, sizeof here) == cudaSuccess);
    for (int i = 0; i < 2 * N * M; i++) {
        here[i] = (float)(i * i % 101);
    }
    CHECK(cudaMemcpy(x, here, sizeof here, cudaMemcpyHostToDevice) == cudaSuccess);
    memset(&box, 0, sizeof box); /* y = transpose of x[N][M] */
    box.to = y;
    box.from = x;
    box.to_type = box.from_type = box.round_type = DPAR_F32;
    box.dims = 2;
    box.extent[0] = N;
    box.extent[1] = M;
    box.from_stride[0] = M;
    box.from_stride[1] = 1;
    box.to_stride[0] = 1;
    box.to_stride[1] = N;
    CHECK_INT(mem.move(mem.ctx, &box, 1), DPAR_OK);
    CHECK_INT(mem.wait(mem.ctx), DPAR_OK);
    from_device(there, y, N * M);
    for (int i = 0; i < N * M; i++) {
        CHECK(there[i % M * N + i / M] == here[i]);
    }
    memset(&sum, 0, sizeof sum); /* y = x's first half + its second */
    sum.to = y;
    sum.from = x;
    sum.count = N * M;
    sum.parts = 2;
    sum.stride = N * M;
    sum.from_type = sum.to_type = DPAR_F32;
    sum.sum_type = DPAR_F32;
    sum.op = DPAR_SUM;
    sum.scale = 1.0;
    CHECK_INT(mem.reduce(mem.ctx, &sum), DPAR_OK);
    CHECK_INT(mem.wait(mem.ctx), DPAR_OK);
    from_device(there, y, N * M);
    for (int i = 0; i < N * M; i++) {
        CHECK(there[i] == here[i] + here[N * M + i]);
    }
    CHECK(cudaFree(x) == cudaSuccess && cudaFree(y) == cudaSuccess);
    CHECK_INT(dpar_cuda_free(&gpu), DPAR_OK);
    return CHECK_DONE();
}
