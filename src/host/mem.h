/* SPDX-License-Identifier: MIT-0 */
/* mem - describes memory that the CPU does not reach, such as a device's, by a table of functions
 * that communicators and halos call. dpar_cuda.h fills in the table for NVIDIA GPUs; for another
 * device you write the functions. dpar_mem_host returns the table of the host's memory, whose
 * functions show what each one must compute. Layers of training need more functions: layers.h.
 *
 *     dpar_cuda_mem(&gpu, &mem);           dpar_cuda.h fills the table
 *     comm->mem = &mem;                    strategies on comm now work in the GPU's memory
 *
 * dpar calls the functions from the thread that calls dpar. Each takes one struct in the host's
 * memory, which it reads before it returns, together with its arrays of boxes and spans. All
 * pointers in it, also those to scalars and indices, point to device memory, or to host memory that
 * the device reaches (pinned, managed). That memory is read and written in stream order, after all
 * work that was submitted to ctx before. The work may be done after the function has returned; only
 * `wait` waits for it. No function allocates memory.
 *
 * With a type or number that is not allowed, a function returns DPAR_E_ARG and does nothing. Sizes
 * may be 0, and pointers may then be NULL. Pointers are aligned to their type. Outputs may overlap
 * inputs only where the comment allows it.
 *
 * "In f64" means that inputs become doubles and that each product and each sum is rounded to f64
 * (not fused). The result is rounded to its type, to nearest even; BF16 and F16 are rounded to F32
 * first. Where a NaN becomes a type of fewer bits, it becomes the quiet NaN without sign and
 * payload. */
#ifndef DPARI_HOST_MEM_H
#define DPARI_HOST_MEM_H

#include "../base/box.h"
#include "../base/type.h"

enum { DPAR_MEM_DIMS = DPAR_MAX_DIMS + 1 }; /* dims of a box; the last one is for components */

/* A box of elements to be copied, as when it is packed, unpacked or filled. For each index
 * i < extent, in all dims,
 *
 *     v = from[i . from_stride], of type from_type
 *     v is rounded to `round_type`, negated if `negate`, and converted to to_type
 *     to[i . to_stride] = v, or itself op v
 *     from[i . from_stride] = 0 if `clear`
 *
 * Both types are the same, or are two of {F64, F32}, {F32, F16}, {F32, BF16}. */
typedef struct dpar_mem_box {
    void *to, *from;            /* address of index 0 on each side; one or both in the device's
                                   memory */
    int32_t to_type, from_type; /* DPAR_F64, ... */
    int32_t round_type;         /* a type no wider than either; no rounding if it is 0 or both
                                   types */
    int32_t op;                 /* DPAR_COPY; or DPAR_SUM, DPAR_MAX, DPAR_MIN, computed in to_type,
                                   16-bit floats in F32 */
    int32_t negate;   /* 1 flips the sign bit of floats and negates integers, which wrap */
    int32_t clear;    /* 1 sets `from` to 0 afterwards */
    int32_t dims;     /* 0..DPAR_MEM_DIMS */
    int32_t reserved; /* reserved; 0 */
    int64_t extent[DPAR_MEM_DIMS];
    int64_t to_stride[DPAR_MEM_DIMS];   /* in elements, of either sign */
    int64_t from_stride[DPAR_MEM_DIMS]; /* in elements; 0 in a dim repeats the same element along
                                           that dim */
} dpar_mem_box;

/* Contiguous elements to be flattened, unflattened, converted, accumulated or filled. Computes
 * v = scale * from[i] in f64 (from[i] itself if scale is 1). Then to[i] = v, or to[i] + v in f64,
 * rounded once. */
typedef struct dpar_mem_span {
    void *to;
    const void *from; /* may equal `to` if both types have as many bytes. If NULL, v = scale */
    int64_t count;
    /* Any two of F64, F32, BF16 and F16. If both are the same, scale is 1 and add is 0, any type
     * that has bytes is allowed and every bit is copied. If from is NULL and scale 0, to_type may
     * be any type that has bytes. */
    int32_t to_type, from_type;
    int32_t accumulate; /* 1 adds to what `to` holds; 0 overwrites it */
    int32_t reserved;   /* reserved; 0 */
    double scale;
} dpar_mem_span;

/* A reduction of several parts, in the order of the collectives. Computes v = x[0] op x[1] op ...,
 * where x[p] = from[p * stride + i]; DPAR_AVG divides by the number of parts. Then v is multiplied
 * by scale, and to[i] = v, or to[i] + v. All is computed in the type `sum_type` and rounded once to
 * to_type. Sums and products of integers wrap, and DPAR_AVG divides the wrapped sum, rounding
 * towards zero. */
typedef struct dpar_mem_reduce {
    void *to; /* may be one of the parts */
    const void *from;
    int64_t count, parts, stride; /* at least 1 part; stride in elements is 0 or at least count */
    int32_t to_type, from_type;   /* F64, F32, BF16, F16; or both the same type of integers */
    int32_t sum_type;             /* F64, or F32 if neither type is F64; for integers their type */
    int32_t op;                   /* DPAR_SUM, AVG, PRODUCT, MAX or MIN; NaN if any part is NaN */
    int32_t accumulate;           /* 1 adds to what `to` holds; must be 0 for integers */
    int32_t reserved;             /* reserved; 0 */
    double scale; /* rounded to `sum_type`; 1 skips the multiplication. Must be 1 for
                     integers */
} dpar_mem_reduce;

/* A search for NaN and infinity. Sets *found to first + the smallest i for which in[i] is one, or
 * to -1 if there is none. */
typedef struct dpar_mem_finite {
    const void *in;
    int64_t count, first;
    int32_t type; /* F64, F32, BF16 or F16 */
    /* 1 leaves *found unchanged if it is 0 or more, so that several arrays can be searched one
     * after the other */
    int32_t keep_found;
    int64_t *found;
} dpar_mem_finite;

/* A device's memory, as a table of functions. They return DPAR_OK, or an error, which breaks the
 * communicator for all ranks. Halo exchanges need only `move`; training strategies document what
 * they need. If a function that is needed is NULL, the caller fails with DPAR_E_UNKNOWN. */
typedef struct dpar_mem {
    void *ctx; /* first argument of each function, such as a device or a stream */
    /* Copies n boxes, after all work that was submitted to ctx before, such as the kernels that
     * computed the packed values. It may return before the copies are done. With DPAR_COPY no box
     * writes elements that another box reads or writes, so that one kernel can copy all of them.
     * With DPAR_SUM, DPAR_MAX and DPAR_MIN several boxes may write the same elements of `to`. They
     * are then combined in the order of the array, so that results do not depend on timing. */
    dpar_status (*move)(void *ctx, const dpar_mem_box *boxes, int32_t n);
    /* Waits until all moves and operations are done. */
    dpar_status (*wait)(void *ctx);
    /* Prepares host memory for moves (page-locks and maps it) until unpin. It is this rank's memory
     * or a peer's that is mapped here. Ranks that are threads may pin the same memory twice. Whole
     * pages are locked, and CUDA cannot copy an array of which only a part is locked. Therefore the
     * memory of plans (ddp, fsdp, halos and others) should not share pages with other memory. */
    dpar_status (*pin)(void *ctx, void *memory, int64_t bytes);
    dpar_status (*unpin)(void *ctx, void *memory);
    /* Computes n spans, none of which writes elements that another one reads or writes. */
    dpar_status (*span)(void *ctx, const dpar_mem_span *spans, int32_t n);
    dpar_status (*reduce)(void *ctx, const dpar_mem_reduce *reduce);
    dpar_status (*finite)(void *ctx, const dpar_mem_finite *finite);
    /* The functions that layers of training need in addition: a dpar_mem_layers (dpar_train.h),
     * whose functions take this ctx. If NULL, layers that need it fail with DPAR_E_UNKNOWN.
     * Communicators and halos do not read it. */
    const void *layers;
} dpar_mem;

/* Returns the table of the host's memory. Its functions are plain loops that are done when they
 * return and ignore ctx. The functions of a device must give the same bits. `wait`, `pin` and
 * `unpin` do nothing, and `layers` is NULL (use dpar_mem_host_layers). Local. Costs O(1). */
DPAR_API dpar_mem dpar_mem_host(void);

#endif
