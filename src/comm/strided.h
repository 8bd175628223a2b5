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

enum { DPARI_STRIDE_FEW = 8 }; /* runs of a box that may stand in a list */

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
    int32_t zeroes;      /* the loop makes what was read, or lies beside, 0 */
    int32_t op;          /* with the types that follow: of what is not just copied */
    int64_t part, turn;  /* rows, and elements or runs of each, at a time */
    int64_t first, each; /* bytes asked for ahead: at first, for each such element */
    int64_t beside;      /* bytes from each sum to what becomes 0 with it; 0: nothing does */
    int64_t to_start, from_start;            /* from index 0 to where the walk begins */
    dpari_stride_dim dim[DPARI_STRIDE_DIMS]; /* the innermost first */
    int32_t to_type, from_type, through, negate;
} dpari_stride;

/* One run in a list: bytes from the addresses that the list is run with. */
typedef struct dpari_stride_spot {
    int32_t to, from;
} dpari_stride_spot;

/* Domain: types are the same or two of {F64, F32} or two of {F32, F16, BF16}, F32 among them; where
 * op is not DPAR_COPY, negate or through is given they reduce (dpar_type_reduces). A type that has
 * bytes. No element of `to` is met twice; nothing overflows 63 bits in bytes. O(dims^2). */
DPARI_DOOR void dpari_stride_prepare(dpari_stride *s, const dpari_stride_piece *p);

/* to, from: the addresses of index 0 of the box on both sides (with negative strides, elements lie
 * before them), aligned to their types; the two sides do not overlap. Combines as dpari_kern_reduce
 * does, `to` first: 16-bit floats in f32, rounded to nearest even; the NaN that comes out of a
 * conversion to fewer bits, of SUM, MAX or MIN is the quiet one. Copies keep every bit. Local. */
DPARI_DOOR void dpari_stride_run(const dpari_stride *s, void *to, const void *from);

/* Boxes so small that each takes longer to begin than to move: the runs of one, in the order of its
 * walk, as an entry each, for addresses that lie to_at and from_at bytes before those of run.
 * Returns how many; 0: more than DPARI_STRIDE_FEW, or there are no lists of such. */
DPARI_DOOR int32_t dpari_stride_list(const dpari_stride *s, int64_t to_at, int64_t from_at,
                                     dpari_stride_spot *list);
/* Of two boxes that lists are made of: may they stand in one? */
DPARI_DOOR int dpari_stride_lists_alike(const dpari_stride *a, const dpari_stride *b);
/* n entries, of s and boxes alike, one after the other. */
DPARI_DOOR void dpari_stride_run_list(const dpari_stride *s, const dpari_stride_spot *list,
                                      int64_t n, void *to, const void *from);

/* The line at t is going to be written: asks for it. Touches nothing. */
DPARI_DOOR void dpari_stride_ask_line(const unsigned char *t);

/* Both, in one walk where they have one shape: for the two sides of a box, which often lie in the
 * same lines and pages. What one writes the other neither reads nor writes. */
DPARI_DOOR void dpari_stride_run_beside(const dpari_stride *a, void *to_a, const void *from_a,
                                        const dpari_stride *b, void *to_b, const void *from_b);

#endif
