/* SPDX-License-Identifier: MIT-0 */
/* measure - measures the speed of a GPU, for the cost model of dpar_cost.h. */
#ifndef DPARI_CUDA_MEASURE_H
#define DPARI_CUDA_MEASURE_H

#include "cuda.h"

/* Describes a measurement. 0 selects the default of each field. */
typedef struct dpar_cuda_measure_desc {
    int64_t bytes; /* size of a buffer that is copied; 0 selects 1 GiB, or an eighth of the free
                      memory if that is less */
    int32_t matrix_size; /* size of the matrices of the product; 0 selects 8192 */
    int32_t peer; /* 1 + the device at the other end of the link; 0 selects the next one, if any */
    /* A callback that enqueues c = a b^T on the stream, with the library that you compute with. All
     * three matrices are bf16, [matrix_size][matrix_size]; sums are f32. NULL selects cuBLAS, if
     * the dynamic loader finds the file `cublas` or, if that is NULL, libcublas.so.13,
     * libcublas.so.12 or libcublas.so. */
    dpar_status (*gemm)(void *user, dpar_cuda_stream stream, const void *a, const void *b, void *c,
                        int32_t matrix_size);
    void *user;         /* passed to gemm */
    const char *cublas; /* file name of cuBLAS; NULL selects the names above, "" uses none */
} dpar_cuda_measure_desc;

/* The results of a measurement. A number that could not be measured is 0. */
typedef struct dpar_cuda_measurement {
    char name[64];         /* of the device */
    char gemm_library[64]; /* the library that computed the product */
    double copy_Bps;       /* bytes per second that `move` reads and writes together, within the
                              device */
    double gemm_flops;     /* FLOP/s of the product of two bf16 matrices of random numbers */
    double launch_s;       /* host seconds per launch, from a thousand kernels that do nothing */
    double link_Bps;       /* bytes per second to the other device, in one direction */
    double pcie_Bps;       /* bytes per second from pinned host memory, in one direction */
    double memory_bytes;   /* of the device */
    int32_t multiprocessors;
    int32_t capability; /* compute capability times 10 */
} dpar_cuda_measurement;

/* Measures the speed of a device. Most numbers are the median of several measurements. Waits for
 * the device, and allocates memory and frees it. A number that cannot be measured is 0, which is
 * not an error.
 *
 * probe: NULL selects the defaults.
 *
 * Local. Takes about a second. Fails with DPAR_E_ARG if bytes is negative, matrix_size is not 0 to
 * 65536, or the device does not respond, and with DPAR_E_MEMORY if there is no device memory for
 * the buffers. */
DPAR_API dpar_status dpar_cuda_measure(dpar_cuda *gpu, const dpar_cuda_measure_desc *probe,
                                       dpar_cuda_measurement *made, dpar_why *why);
/* Writes a measurement as settings for dpar_cluster_read, one on each line, to follow the line of
 * the machine ("1x8:h200"). Returns the length without the NUL, even if that exceeds `bytes` and
 * only a part was written.
 *
 * peak_memory_Bps, peak_flops, peak_link_Bps: the peak rates of the gpu and the link in a preset.
 *              hbm=, gemm= and link_share= are shares of these; launch_us= and pcie= are absolute.
 *              Numbers that were not measured are listed in comments.
 *
 * Local. */
DPAR_API int64_t dpar_cuda_measurement_write(const dpar_cuda_measurement *made,
                                             double peak_memory_Bps, double peak_flops,
                                             double peak_link_Bps, char *text, int64_t bytes);

#endif
