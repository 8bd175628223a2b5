/* SPDX-License-Identifier: MIT-0 */
/* mem - memory that the CPU does not reach, a device's say: the four things that dpar asks of it.
 * Whoever has such memory fills the table in; dpar calls it from the thread that calls dpar. */
#ifndef DPAR_MEM_H
#define DPAR_MEM_H

#include "../base/box.h"
#include "../base/type.h"

enum { DPAR_MEM_DIMS = DPAR_MAX_DIMS + 1 }; /* the last for components */

/* One box to be copied: packed, unpacked, filled. For each index i < extent, in all dims,
 *     v = from[i . from_stride], of type from_type
 *     v is rounded to `through`, negated where `negate`, and becomes to_type
 *     to[i . to_stride] = v, or itself op v
 *     from[i . from_stride] = 0 where `clear`
 * The types are one, or two of {F64, F32}, {F32, F16}, {F32, BF16}. */
typedef struct dpar_mem_box {
    void *to, *from;            /* index 0 of either side; one or both in the device's memory */
    int32_t to_type, from_type; /* DPAR_F64, ... */
    int32_t through;            /* no wider than either; the same as both: nothing to round */
    int32_t op;                 /* DPAR_COPY; DPAR_SUM, DPAR_MAX, DPAR_MIN in to_type, 16-bit
                                   floats in F32 */
    int32_t negate;             /* 1: the sign bit of floats; integers wrap */
    int32_t clear;              /* 1: `from` is 0 afterwards */
    int32_t dims;               /* 0 .. DPAR_MEM_DIMS */
    int32_t room;               /* 0 */
    int64_t extent[DPAR_MEM_DIMS];
    int64_t to_stride[DPAR_MEM_DIMS];   /* elements, of either sign */
    int64_t from_stride[DPAR_MEM_DIMS]; /* all 0: one element everywhere */
} dpar_mem_box;

/* The functions return DPAR_OK or an error, which breaks the communicator for all ranks. A NULL one
 * is not needed, but for `move`. */
typedef struct dpar_mem {
    void *ctx; /* the first argument of each: a device, a stream */
    /* Copies n boxes, after all work that was given to ctx before (kernels that computed what is
     * packed). May return before it is done. With DPAR_COPY no box writes what another one reads or
     * writes: one kernel can do all of them. With SUM, MAX and MIN boxes may meet in `to`: in the
     * order of the array, so that results do not depend on timing. */
    dpar_status (*move)(void *ctx, const dpar_mem_box *boxes, int32_t n);
    /* Returns when all moves are done. */
    dpar_status (*wait)(void *ctx);
    /* `memory` of the host (this rank's, or a peer's that is mapped here) will be one side of
     * moves, until unpin: page-lock it, map it. Ranks that are threads may name the same twice. */
    dpar_status (*pin)(void *ctx, void *memory, int64_t bytes);
    dpar_status (*unpin)(void *ctx, void *memory);
} dpar_mem;

/* Copies one box in the host's memory: what a `move` is to do, to compare it with, or to call for
 * memory that the CPU does reach after all (managed, mapped). Local. O(elements). */
DPAR_API void dpar_mem_move_box(const dpar_mem_box *box);

#endif
