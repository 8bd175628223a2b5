/* SPDX-License-Identifier: MIT-0 */
/* strided - private: copies boxes between strided arrays. A halo exchange moves the same boxes at
 * every step. Each box is therefore prepared once, which merges dims and chooses their order and a
 * loop. Running it then needs no division and no decision per element.
 *
 *     dpari_stride_piece p = {0};
 *     p.dims = 3; p.extent[i] = ...; p.to[i] = ...; p.from[i] = ...;
 *     p.to_type = p.from_type = DPAR_F64;
 *     dpari_stride_prepare(&s, &p);
 *     dpari_stride_run(&s, to, from);                   (as often as you like) */
#ifndef DPARI_HOST_STRIDED_H
#define DPARI_HOST_STRIDED_H

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"

enum { DPARI_STRIDE_DIMS = DPAR_MAX_DIMS + 1 }; /* the last one is for components */

enum { DPARI_STRIDE_TO = 1, DPARI_STRIDE_FROM = 2 };

/* Describes a copy of one box. Zero it and set the fields that differ; the types must be set. */
typedef struct dpari_stride_piece {
    int32_t dims; /* 0 .. DPARI_STRIDE_DIMS, in any order */
    int32_t to_type, from_type;
    int32_t through; /* a narrower type to which values are rounded before they are stored; 0 if
                        none */
    int32_t op;      /* DPAR_COPY, or DPAR_SUM, DPAR_MAX, DPAR_MIN for to = to op value */
    int32_t negate;  /* 1 to negate the value (flips the sign bit of floats; integers wrap) */
    int32_t clear;   /* 1 to set the elements that were read to 0 */
    int32_t back;    /* 1 to walk from the last element to the first, because a walk in the other
                        direction has just used the same memory */
    int32_t ahead;   /* the side (DPARI_STRIDE_TO or _FROM) that is dense and was last used by
                        another core, so that its lines are prefetched; 0 if none */
    int32_t wide;    /* dpari_cpu_wide */
    int64_t beside;  /* distance, in elements of `to`, from each sum to an element that is set to 0
                        with it; 0 if none is */
    /* Number of elements along each dim, 0 if there is nothing to do; and the steps from one to the
     * next on both sides, in elements, of either sign. If all steps of `from` are 0, one element is
     * copied to all. */
    int64_t extent[DPARI_STRIDE_DIMS], to[DPARI_STRIDE_DIMS], from[DPARI_STRIDE_DIMS];
} dpari_stride_piece;

typedef struct dpari_stride_dim {
    int64_t count, to, from; /* steps in bytes */
} dpari_stride_dim;

/* A prepared copy. Callers may read elements and run. */
typedef struct dpari_stride {
    int64_t elements;   /* elements of the box */
    int64_t run;        /* bytes that are contiguous on both sides */
    int32_t loop, dims; /* DPARI_STRIDE_x of strided_loops.h, and the number of dims in dim */
    int32_t asks;       /* 1 to prefetch the lines that are written next */
    int32_t clear, ahead, back; /* as in dpari_stride_piece */
    int32_t simple;             /* 1 if one call of the loop is enough */
    int32_t wide;               /* 1 to use vectors of 32 bytes */
    int32_t packs;              /* 1 to copy through a local buffer to memory that another core used
                                   last */
    int32_t op;          /* DPAR_x; used with the types below if values are not just copied */
    int64_t part, turn;  /* number of rows at a time, and of elements or runs of each row */
    int64_t first, each; /* bytes to prefetch at the beginning, and for each element or run */
    int64_t beside;      /* bytes from each sum to the element that is set to 0 with it; 0 if none
                            is */
    int64_t to_start, from_start;            /* bytes from index 0 to where the walk begins */
    dpari_stride_dim dim[DPARI_STRIDE_DIMS]; /* the innermost first */
    int32_t to_type, from_type, through, negate;
    int32_t to_bytes, from_bytes; /* of an element */
} dpari_stride;

/* Prepares a copy. The types must have bytes and be equal, or two of {F64, F32}, or two of {F32,
 * F16, BF16} of which one is F32. If op is not DPAR_COPY, or negate or through is set, they must be
 * types that can be reduced. No element of `to` may occur twice, and no offset may overflow 63 bits
 * in bytes. O(dims^2). */
DPARI_API void dpari_stride_prepare(dpari_stride *stride, const dpari_stride_piece *piece);

/* Runs a prepared copy. to, from: the addresses of index 0 of the box on both sides, aligned to
 * their types; with negative steps, elements precede them. The two sides must not overlap. Combines
 * values as dpari_kern_reduce does, `to` first: 16-bit floats in f32, rounded to nearest even. A
 * NaN that results from a narrowing conversion, SUM, MAX or MIN is the quiet one. Copies keep every
 * bit. Local. */
DPARI_API void dpari_stride_run(const dpari_stride *stride, void *to, const void *from);

/* ---- for halo_box_groups, which runs two boxes in one loop, and lists of tiny boxes ---- */

/* Rows of n runs each. Steps are from run to run and from row to row, in bytes. */
typedef struct dpari_stride_rows {
    unsigned char *to;
    const unsigned char *from;
    unsigned char *zero; /* if zeroes is set: the memory that is set to 0 after the first run has
                            been moved */
    int64_t n, rows, to_step, from_step, zero_step, to_row, from_row, zero_row;
    int64_t run; /* bytes */
    int zeroes;
} dpari_stride_rows;

/* Moves the rows by a loop of strided_loops.h. rows->zeroes may be set only if the loop can do
 * it. */
DPARI_API void dpari_stride_move(const dpari_stride_rows *rows, int32_t loop);

/* Prefetches `bytes` bytes of the side stride->ahead, which another core used last, from `after`
 * bytes after the position of a walk on. */
DPARI_API void dpari_stride_ask_ahead(const dpari_stride *stride, const unsigned char *to,
                                      const unsigned char *from, int64_t after, int64_t bytes);

/* Runs one piece, or two pieces of the same shape alternately: `part` rows of each, `turn` runs of
 * each row at a time. */
DPARI_API void dpari_stride_walk(const dpari_stride *const *s, unsigned char **to,
                                 const unsigned char **from, int32_t pieces, int64_t part,
                                 int64_t turn);

#endif
