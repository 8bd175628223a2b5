/* SPDX-License-Identifier: MIT-0 */
/* mem - memory that the CPU does not reach, such as a device's: a table of functions that
 * communicators and halos call. Who has such memory fills the table in; dpar_cuda.h does so for
 * NVIDIA GPUs. dpar_mem_host gives the table of the host's memory, which shows what each function
 * is to compute. Layers of training ask for more: layers.h.
 *
 *     dpar_cuda_mem(&gpu, &mem);           dpar_cuda.h fills the table
 *     comm->mem = &mem;                    strategies on comm now work in the GPU's memory
 *
 * dpar calls the functions from the thread that calls dpar. Each takes one struct in the host's
 * memory. It is read before the function returns, and so are the arrays of boxes and spans. Its
 * pointers, those to scalars and indices too, name device memory, or host memory that the device
 * reaches (pinned, managed). That memory is read and written in stream order, after all work that
 * was given to ctx before. It may be done later: `wait` waits. No other function waits, and none
 * allocates.
 *
 * E_ARG, and nothing is done: a type or number outside the domain. Sizes of 0 are fine, and then
 * pointers may be NULL. Pointers are aligned to their type. Outputs overlap inputs only where they
 * are said to be the same.
 *
 * "In f64" means: inputs become doubles, and each product and each sum is rounded to f64 (not
 * fused). The result is rounded to its type, to nearest even, BF16 and F16 by way of F32. A NaN
 * that is not just copied becomes the quiet one without sign and payload where it becomes fewer
 * bits. */
#ifndef DPARI_COMM_MEM_H
#define DPARI_COMM_MEM_H

#include "../base/box.h"
#include "../base/type.h"

enum { DPAR_MEM_DIMS = DPAR_MAX_DIMS + 1 }; /* the last for components */

/* One box to be copied: packed, unpacked, filled. For each index i < extent, in all dims,
 *
 *     v = from[i . from_stride], of type from_type
 *     v is rounded to `through`, negated where `negate`, and becomes to_type
 *     to[i . to_stride] = v, or itself op v
 *     from[i . from_stride] = 0 where `clear`
 *
 * Both types are the same, or are two of {F64, F32}, {F32, F16}, {F32, BF16}. */
typedef struct dpar_mem_box {
    void *to, *from;            /* index 0 of either side; one or both in the device's memory */
    int32_t to_type, from_type; /* DPAR_F64, ... */
    int32_t through;            /* no wider than either; 0, or the same as both: no rounding */
    int32_t op;                 /* DPAR_COPY; DPAR_SUM, DPAR_MAX, DPAR_MIN in to_type, 16-bit
                                   floats in F32 */
    int32_t negate;             /* 1: change the sign bit of floats; integers wrap */
    int32_t clear;              /* 1: `from` is 0 afterwards */
    int32_t dims;               /* 0 .. DPAR_MEM_DIMS */
    int32_t room;               /* 0 */
    int64_t extent[DPAR_MEM_DIMS];
    int64_t to_stride[DPAR_MEM_DIMS];   /* elements, of either sign */
    int64_t from_stride[DPAR_MEM_DIMS]; /* 0 in a dim: the same all along it; in all: one element
                                           everywhere */
} dpar_mem_box;

/* Elements that lie one after the other: flatten, unflatten, cast, accumulate, fill. v = scale
 * from[i], in f64 (scale 1: from[i] itself). to[i] = v, or to[i] + v (in f64, rounded once). */
typedef struct dpar_mem_span {
    void *to;
    const void *from; /* may be `to` where both types have as many bytes. NULL: v = scale */
    int64_t count;
    /* F64, F32, BF16, F16, any two. With one type, scale 1 and no add: any type that has bytes,
     * every bit as it is. From NULL with scale 0: any type that has bytes. */
    int32_t to_type, from_type;
    int32_t add;  /* 1 */
    int32_t room; /* 0 */
    double scale;
} dpar_mem_span;

/* A reduction of parts. v = x[0] op x[1] op ..., x[p] = from[p stride + i], in that order, as the
 * collectives do; AVG divides by parts. Then v times scale; to[i] = v, or to[i] + v. All is in type
 * `sums`, rounded once to to_type. Of integers sums and products wrap, and AVG divides what wrapped
 * towards zero. */
typedef struct dpar_mem_reduce {
    void *to; /* may be a part */
    const void *from;
    int64_t count, parts, stride; /* parts >= 1; stride in elements: at least count, or 0 */
    int32_t to_type, from_type;   /* F64, F32, BF16, F16; or both one type of integers */
    int32_t sums;                 /* F64; F32 where neither is F64. Integers: their type */
    int32_t op;                   /* DPAR_SUM, AVG, PRODUCT, MAX, MIN: NaN where one is NaN */
    int32_t add;                  /* 1; integers: 0 */
    int32_t room;                 /* 0 */
    double scale;                 /* 1: no multiplication. It is rounded to `sums`. Integers: 1 */
} dpar_mem_reduce;

/* Looks for NaN and infinity: *found = first + the smallest i with such an in[i]; -1: there is
 * none. */
typedef struct dpar_mem_finite {
    const void *in;
    int64_t count, first;
    int32_t type; /* F64, F32, BF16, F16 */
    /* 1: *found stays where it is 0 or more: for several arrays, one after the other */
    int32_t keep;
    int64_t *found;
} dpar_mem_finite;

/* What a device's memory can do: a table of functions. They return DPAR_OK or an error, which
 * breaks the communicator for all ranks. Halo exchanges need `move` alone; strategies of training
 * say what they need. E_UNKNOWN: one that is needed is NULL. */
typedef struct dpar_mem {
    void *ctx; /* the first argument of each: a device, a stream */
    /* Copies n boxes, after all work that was given to ctx before (kernels that computed what is
     * packed). It may return before it is done. With DPAR_COPY no box writes what another one reads
     * or writes: one kernel can do all of them. With SUM, MAX and MIN boxes may meet in `to`: then
     * in the order of the array, so that results do not depend on timing. */
    dpar_status (*move)(void *ctx, const dpar_mem_box *boxes, int32_t n);
    /* Returns when all moves and operations are done. */
    dpar_status (*wait)(void *ctx);
    /* `memory` of the host (this rank's, or a peer's that is mapped here) will be one side of
     * moves, until unpin: page-lock it, map it. Ranks that are threads may name the same twice.
     * Whole pages are locked, and CUDA copies no array of which only a part is. So memory of plans
     * (of ddp, fsdp, halos, the others) best begins and ends with pages of its own. */
    dpar_status (*pin)(void *ctx, void *memory, int64_t bytes);
    dpar_status (*unpin)(void *ctx, void *memory);
    /* Does n spans, of which none writes what another one reads or writes. */
    dpar_status (*span)(void *ctx, const dpar_mem_span *spans, int32_t n);
    dpar_status (*reduce)(void *ctx, const dpar_mem_reduce *reduce);
    dpar_status (*finite)(void *ctx, const dpar_mem_finite *finite);
    /* What layers of training need beyond that: a dpar_mem_layers (dpar_train.h), whose functions
     * take this ctx. NULL: there is none, and what needs it is E_UNKNOWN. comm and halo never read
     * it. */
    const void *layers;
} dpar_mem;

/* Copies one box in the host's memory, as a `move` does. Compare a move with it, or call it for
 * memory that the CPU reaches after all (managed, mapped). E_ARG, without a sentence: types or an
 * op that do not fit. Local. O(elements). */
DPAR_API dpar_status dpar_mem_move_box(const dpar_mem_box *box);

/* The host's own table: plain loops that are done at once; ctx does not count. A device's functions
 * give equal bits. wait, pin and unpin do nothing; layers is NULL (dpar_mem_host_layers). Local.
 * O(1). */
DPAR_API dpar_mem dpar_mem_host(void);

#endif
