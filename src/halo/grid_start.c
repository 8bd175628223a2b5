/* SPDX-License-Identifier: MIT-0 */
/* Recognises the address of a whole array in place of that of its first own point.
 *
 * This is the likeliest mistake of a first program: the exchange would write in front of the array
 * and into own cells. An address alone does not show it. But glibc's malloc keeps the size of a
 * block in the 8 bytes in front of it, where a correct address has an element of the array. If
 * these bytes are the size that malloc would have for the whole array, the address is the beginning
 * of the array. Read as a floating-point number such a size is below 1e-300 (f64), or a number
 * below 1e-37 before a zero (f32), which no halo cell contains. Integers may have any value, so
 * that arrays of other types are not checked. Neither are addresses at the beginning of a page,
 * because the page in front may not be mapped. Other allocators are not recognised. */
#include "grid_start.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "grid_cut.h"

/* 1 if the 8 bytes in front of a block are those of glibc. A sanitizer has a malloc of its own,
 * finds this mistake itself, and does not allow that these bytes are read. */
#define DPARI_GX_KNOWS_MALLOC 0
#if defined(__GLIBC__) && UINTPTR_MAX > UINT32_MAX && !defined(__SANITIZE_ADDRESS__)
#undef DPARI_GX_KNOWS_MALLOC
#define DPARI_GX_KNOWS_MALLOC 1
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#undef DPARI_GX_KNOWS_MALLOC
#define DPARI_GX_KNOWS_MALLOC 0
#endif
#endif
#endif

#if DPARI_GX_KNOWS_MALLOC
/* True if some point in front of the first own point has memory, so that the 8 bytes in front of
 * it can be read. Points beyond walls may have none. */
static DPARI_COLD int dpari_gx_has_points_before(const dpari_gx *grid, const dpari_gx_shape *shape)
{
    int32_t d;
    for (d = 0; d < grid->head.dims; d++) {
        const int filled = grid->head.first[d] > 0 || grid->desc.periodic[d] ||
                           shape->field.mirror_low[d] || grid->desc.exchange_walls;
        if (grid->low[d] > 0 && filled && shape->field.stride[d] > 0) {
            return 1;
        }
    }
    return 0;
}

/* True if `size`, the word in front of a block, is that of a block of malloc with at least these
 * bytes. Above 32 MiB malloc gives a block pages of its own, with this bit set and all bits below
 * a page clear. Without this limit, f32 elements 2.0 and 0.0 would look like a block of 1 GiB. */
static DPARI_COLD int dpari_gx_is_block_size(uint64_t size, uint64_t bytes)
{
    const uint64_t largest = UINT64_C(1) << 25;
    const uint64_t whole = (bytes + 8 + 15) / 16 * 16;
    const uint64_t pages = (whole + 8 + 4095) / 4096 * 4096;
    if (size % 4096 == 2) {
        return size >= pages && size <= 2 * pages + 2;
    }
    size &= ~(uint64_t)7;
    return size >= whole && size <= 2 * whole && size <= largest;
}
#endif

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_check_start(const dpari_gx *grid,
                                                           const dpari_gx_shape *shape,
                                                           const void *at, const char *caller,
                                                           dpar_why *why)
{
#if DPARI_GX_KNOWS_MALLOC
    const int64_t bytes = shape->high - shape->low;
    uint64_t size;
    int32_t k;
    if ((shape->type != DPAR_F64 && shape->type != DPAR_F32) || grid->mem ||
        grid->desc.array_start || (uintptr_t)at % 16 != 0 || (uintptr_t)at % 4096 == 0 ||
        dpari_gx_is_empty(grid) || !dpari_gx_has_points_before(grid, shape)) {
        return DPAR_OK;
    }
    for (k = 0; k < 8; k++) {
        ((unsigned char *)&size)[k] = ((const unsigned char *)at)[k - 8];
    }
    if (dpari_gx_is_block_size(size, (uint64_t)bytes)) {
        return dpari_wrong(why,
                           "%s: rank %d passes the beginning of a block of malloc for the whole "
                           "array, %ld bytes; pass the address of the first own point, %ld bytes "
                           "further, or set desc.array_start",
                           caller, grid->head.comm->rank, bytes, -shape->low);
    }
#else
    (void)grid, (void)shape, (void)at, (void)caller, (void)why;
#endif
    return DPAR_OK;
}
