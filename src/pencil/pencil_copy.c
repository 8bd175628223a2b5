/* SPDX-License-Identifier: MIT-0 */
/* Copies boxes of points. If the innermost dims of the two sides differ, this is a transpose: rows
 * of a tile are first gathered in a small buffer. Each cache line of `from` and of `to` is then
 * visited only once, so that lines of a tile cannot evict each other from the cache, as they would
 * if sizes are powers of 2. */
#include "pencil_copy.h"

#include "../base/type.h"
#include "../host/strided_loops.h"

enum {
    DPARI_PENCIL_TILE = 4096, /* bytes of the buffer */
    DPARI_PENCIL_TILED = 64   /* larger points fill whole cache lines, and need no tiles */
};

/* ---- preparing ------------------------------------------------------------------------------- */

/* Returns the dim with the smallest step among those with more than one point, or -1. */
static int32_t dpari_pencil_innermost(const int64_t *count, const int64_t *step)
{
    int32_t d, least = -1;
    for (d = 0; d < 3; d++) {
        if (count[d] > 1 && (least < 0 || step[d] < step[least])) {
            least = d;
        }
    }
    return least;
}

/* True if the box is contiguous on a side. */
static int32_t dpari_pencil_whole(const int64_t *count, const int64_t *step)
{
    int64_t points = 1;
    int32_t n, d;
    for (n = 0; n < 3; n++) { /* multiplies the dims from the innermost one on */
        for (d = 0; d < 3; d++) {
            if (count[d] > 1 && step[d] == points) {
                points *= count[d];
                break;
            }
        }
    }
    return points == count[0] * count[1] * count[2];
}

DPARI_INTERNAL void dpari_pencil_prepare(dpari_pencil_copy *copy, const int64_t *count,
                                         const int64_t *to, const int64_t *from, int64_t point,
                                         int32_t wide)
{
    const int32_t a = dpari_pencil_innermost(count, to), b = dpari_pencil_innermost(count, from);
    dpari_stride_piece piece;
    int32_t d, e;
    copy->point = point;
    copy->bytes = count[0] * count[1] * count[2] * point;
    copy->whole[0] = dpari_pencil_whole(count, to);
    copy->whole[1] = dpari_pencil_whole(count, from);
    copy->same = 1;
    for (d = 0; d < 3; d++) {
        for (e = 0; e < d; e++) {
            if (count[d] > 1 && count[e] > 1 && (to[d] < to[e]) != (from[d] < from[e])) {
                copy->same = 0;
            }
        }
    }
    copy->tiled = a != b && to[a] == 1 && from[b] == 1 && point <= DPARI_PENCIL_TILED;
    if (copy->tiled) {
        const int32_t dim[3] = {a, b, 3 - a - b};
        for (d = 0; d < 3; d++) {
            copy->count[d] = count[dim[d]];
            copy->to[d] = to[dim[d]] * point;
            copy->from[d] = from[dim[d]] * point;
        }
        return;
    }
    dpari_zero(&piece, sizeof piece);
    piece.dims = 4;
    piece.to_type = piece.from_type = DPAR_U8;
    piece.wide = wide;
    for (d = 0; d < 3; d++) {
        piece.extent[d] = count[d];
        piece.to[d] = to[d] * point;
        piece.from[d] = from[d] * point;
    }
    piece.extent[3] = point;
    piece.to[3] = piece.from[3] = 1;
    dpari_stride_prepare(&copy->stride, &piece);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Copies one tile of count[0] x count[1] points. wide: bytes of a point, a constant after inlining.
 */
DPARI_STRIDE_INLINE void dpari_pencil_tile(unsigned char *to, const unsigned char *from,
                                           const int64_t *count, int64_t to_step, int64_t from_step,
                                           int64_t wide)
{
    unsigned char room[DPARI_PENCIL_TILE];
    const int64_t row = count[1] * wide;
    unsigned char *t = room;
    int64_t i, j;
    for (i = 0; i < count[0]; i++) { /* rows along the innermost dim of `from` */
        for (j = 0; j < count[1]; j++) {
            dpari_stride_copy(t + j * wide, from + j * wide, wide);
        }
        t += row;
        from += from_step;
    }
    for (j = 0; j < count[1]; j++) { /* rows along the innermost dim of `to` */
        const unsigned char *f = room + j * wide;
        for (i = 0; i < count[0]; i++) {
            dpari_stride_copy(to + i * wide, f, wide);
            f += row;
        }
        to += to_step;
    }
}

/* Copies all tiles. side: number of points along each of a tile's two dims. */
DPARI_STRIDE_INLINE void dpari_pencil_tiles(const dpari_pencil_copy *copy, unsigned char *to,
                                            const unsigned char *from, int64_t side, int64_t wide)
{
    int64_t i, j, k, count[2];
    for (k = 0; k < copy->count[2]; k++) {
        for (j = 0; j < copy->count[1]; j += side) {
            count[1] = dpari_least(side, copy->count[1] - j);
            for (i = 0; i < copy->count[0]; i += side) {
                count[0] = dpari_least(side, copy->count[0] - i);
                dpari_pencil_tile(to + i * wide + j * copy->to[1],
                                  from + i * copy->from[0] + j * wide, count, copy->to[1],
                                  copy->from[0], wide);
            }
        }
        to += copy->to[2];
        from += copy->from[2];
    }
}

DPARI_INTERNAL void dpari_pencil_run(const dpari_pencil_copy *copy, unsigned char *to,
                                     const unsigned char *from)
{
    to += copy->to_at;
    from += copy->from_at;
    if (!copy->tiled) {
        dpari_stride_run(&copy->stride, to, from);
        return;
    }
    switch (copy->point) {
    case 1: dpari_pencil_tiles(copy, to, from, 64, 1); break;
    case 2: dpari_pencil_tiles(copy, to, from, 32, 2); break;
    case 4: dpari_pencil_tiles(copy, to, from, 32, 4); break;
    case 8: dpari_pencil_tiles(copy, to, from, 16, 8); break;
    case 16: dpari_pencil_tiles(copy, to, from, 16, 16); break;
    default: dpari_pencil_tiles(copy, to, from, 8, copy->point); break;
    }
}
