/* SPDX-License-Identifier: MIT-0 */
/* platform - private: the headers of the system, and words that mark functions for nvcc. How the
 * implementation works:
 *
 * A function of the table dpar_mem checks its arguments on the host, describes the work in a struct
 * that is passed to a kernel by value, and launches the kernel on gpu->stream. Work that consists
 * of many pieces (boxes, spans, blocks) is put into as few launches as the size of the arguments
 * allows (dpari_cuda_batch). Most kernels handle four elements at a time (dpari_cuda_four), as a
 * vector of 16 bytes where addresses allow it. The combinations of types that training uses have
 * separate kernels, in which the types are constants (dpari_cuda_is). */
#ifndef DPARI_CUDA_PLATFORM_H
#define DPARI_CUDA_PLATFORM_H

#include "cuda.h"

#ifndef __cplusplus
#error "dpar_cuda.h: the implementation is C++ for nvcc (-x cu)"
#endif

#include <cuda_runtime.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DPARI_CUDA_FN __host__ __device__ static inline

#if defined(__CUDACC__)
#define DPARI_CUDA_UNROLL _Pragma("unroll")
#define DPARI_CUDA_ARGS const __grid_constant__
/* Marks long functions that are rarely called, so that they are not inlined. */
#define DPARI_CUDA_ONCE __noinline__
#else
#define DPARI_CUDA_ONCE
#define DPARI_CUDA_UNROLL
#define DPARI_CUDA_ARGS const
#endif

#endif
