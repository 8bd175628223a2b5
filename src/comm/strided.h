/* SPDX-License-Identifier: MIT-0 */
/* strided - private: boxes of an array copied to other places. A halo exchange moves the same boxes
 * at every step: each is prepared once (dims merged, order and loop chosen) and then run, without
 * a division or a decision for each element.
 *
 *     dpari_stride_piece p = {0};
 *     p.dims = 3; p.extent[i] = ...; p.to[i] = ...; p.from[i] = ...;
 *     p.to_type = p.from_type = DPAR_F64;
 *     dpari_stride_prepare(&s, &p);
 *     dpari_stride_run(&s, to, from);                   (as often as you like) */
#ifndef DPARI_COMM_STRIDED_H
#define DPARI_COMM_STRIDED_H

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"

enum { DPARI_STRIDE_DIMS = DPAR_MAX_DIMS + 1 }; /* the last for components */

enum { DPARI_STRIDE_TO = 1, DPARI_STRIDE_FROM = 2 };

/* What is to be done. Zero it and fill in what differs; types must be said. */
typedef struct dpari_stride_piece {
    int32_t dims; /* 0 .. DPARI_STRIDE_DIMS, in any order */
    int32_t to_type, from_type;
    int32_t through; /* narrower than both types: values are rounded to it on the way; 0: not */
    int32_t op;      /* DPAR_COPY; DPAR_SUM, DPAR_MAX, DPAR_MIN: to = to op value */
    int32_t negate;  /* 1: the value times -1 (of floats the sign bit; integers wrap) */
    int32_t clear;   /* 1: what was read becomes 0 */
    int32_t back;    /* 1: from the last to the first: for what a walk the other way has just met */
    int32_t ahead;  /* that side lies densely, and another core has used it last: it is asked for */
    int32_t wide;   /* dpari_os_wide */
    int64_t beside; /* elements of `to` from each sum to one that becomes 0 with it; 0: none */
    /* elements along each dim (one may be 0: nothing is done), and from one to the next on either
     * side, of either sign; `from` all 0: one element everywhere */
    int64_t extent[DPARI_STRIDE_DIMS], to[DPARI_STRIDE_DIMS], from[DPARI_STRIDE_DIMS];
} dpari_stride_piece;

typedef struct dpari_stride_dim {
    int64_t count, to, from; /* steps in bytes */
} dpari_stride_dim;

/* A prepared one; what a walk needs lies together. The first two may be read. */
typedef struct dpari_stride {
    int64_t elements; /* of the box */
    int64_t run;      /* bytes that lie in one piece on both sides */
    int32_t loop, dims, asks, clear, ahead, back;
    int32_t simple;      /* one call of the loop does it */
    int32_t wide;        /* by vectors of 32 bytes */
    int32_t packs;       /* by way of near memory to what another core has */
    int32_t op;          /* with the types that follow: of what is not just copied */
    int64_t part, turn;  /* rows, and elements or runs of each, at a time */
    int64_t first, each; /* bytes asked for ahead: at first, for each such element */
    int64_t beside;      /* bytes from each sum to what becomes 0 with it; 0: nothing does */
    int64_t to_start, from_start;            /* from index 0 to where the walk begins */
    dpari_stride_dim dim[DPARI_STRIDE_DIMS]; /* the innermost first */
    int32_t to_type, from_type, through, negate;
} dpari_stride;

/* Domain: types are the same or two of {F64, F32} or two of {F32, F16, BF16}, F32 among them; where
 * op is not DPAR_COPY, negate or through is given they reduce. A type that has bytes. No element of
 * `to` is met twice; nothing overflows 63 bits in bytes. O(dims^2). */
DPARI_API void dpari_stride_prepare(dpari_stride *s, const dpari_stride_piece *p);

/* to, from: the addresses of index 0 of the box on both sides (with negative strides, elements lie
 * before them), aligned to their types; the two sides do not overlap. Combines as dpari_kern_reduce
 * does, `to` first: 16-bit floats in f32, rounded to nearest even; the NaN that comes out of a
 * conversion to fewer bits, of SUM, MAX or MIN is the quiet one. Copies keep every bit. Local. */
DPARI_API void dpari_stride_run(const dpari_stride *s, void *to, const void *from);

/* What halo_beside adds to: two boxes in one loop, and lists of tiny ones. */

/* Rows of n runs each. */
typedef struct dpari_stride_rows {
    unsigned char *to;
    const unsigned char *from;
    unsigned char *zero; /* of the first run: what becomes 0 when it has been moved, if any does */
    int64_t n, rows, to_step, from_step, zero_step, to_row, from_row, zero_row;
    int64_t run; /* bytes */
    int zeroes;
} dpari_stride_rows;

/* The rows of k by a loop of strided_loops.h. k->zeroes only where the loop can do it. */
DPARI_API void dpari_stride_move(const dpari_stride_rows *k, int32_t loop);

/* Asks for the lines of `bytes` bytes of the side that another core has, `after` bytes on from
 * where a walk is. */
DPARI_API void dpari_stride_ask_ahead(const dpari_stride *s, const unsigned char *to,
                                      const unsigned char *from, int64_t after, int64_t bytes);

/* All of one piece, or of two of one shape, `part` rows of each in turn, `turn` runs of a row. */
DPARI_API void dpari_stride_walk(const dpari_stride *const *s, unsigned char **to,
                                 const unsigned char **from, int32_t pieces, int64_t part,
                                 int64_t turn);

#endif
