/* SPDX-License-Identifier: MIT-0 */
/* dpar_pencil.h - divides a 3-D array into pencils and transposes them, for FFT codes.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 * A pencil has all points along one dim of the array, so that an FFT along that dim needs no points of other ranks.
 * This program numbers the points in pencils along the last dim, transposes them to pencils along the first dim, and
 * prints a line of each rank:
 *
 *     #include "dpar_pencil.h"
 *     #include <stdio.h>
 *     static int turn(dpar_comm *world, void *unused)
 *     {
 *         dpar_pencil_desc desc = {0};
 *         dpar_pencil *pencil = NULL;
 *         int64_t first[3], count[3], i, j, k;
 *         double *a, *b, *at;
 *         dpar_why why;
 *         (void)unused;
 *         desc.size[0] = 4;                                      a[4][6][10] without ranks
 *         desc.size[1] = 6;
 *         desc.size[2] = 10;
 *         desc.type = DPAR_F64;                                  components 2: complex numbers
 *         if (dpar_pencil_make(world, &desc, &pencil, &why) < 0) {
 *             return dpar_fail(world, &why);
 *         }
 *         a = (double *)dpar_pencil_array(pencil);
 *         b = (double *)dpar_pencil_array(pencil);
 *         if (a == NULL || b == NULL) {
 *             return dpar_fail(world, NULL);
 *         }
 *         dpar_pencil_box(pencil, 2, first, count, NULL);        count[2] is 10
 *         at = a;
 *         for (i = first[0]; i < first[0] + count[0]; i++) {
 *             for (j = first[1]; j < first[1] + count[1]; j++) {
 *                 for (k = 0; k < 10; k++) {
 *                     *at++ = (double)(100 * i + 10 * j + k);
 *                 }
 *             }
 *         }
 *         if (dpar_pencil_transpose(pencil, 2, 1, a, b) < 0 ||
 *             dpar_pencil_transpose(pencil, 1, 0, b, a) < 0) {   along dim 1, then along dim 0
 *             return dpar_fail(world, NULL);
 *         }
 *         dpar_pencil_box(pencil, 0, first, count, NULL);        count[0] is 4
 *         if (count[0] > 0) {
 *             printf("along dim 0: %g %g %g %g\n", a[0], a[count[1] * count[2]], a[2 * count[1] * count[2]],
 *                    a[3 * count[1] * count[2]]);
 *         }
 *         if (dpar_pencil_free(pencil) < 0) {
 *             return dpar_fail(world, NULL);
 *         }
 *         return 0;
 *     }
 *     int main(int argc, char **argv)
 *     {
 *         return dpar_launch_main(argc, argv, turn, NULL);       --ranks 4, or under mpiexec, srun, torchrun
 *     }
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. yours.c -o yours && ./yours --ranks 4
 *
 * dpar_pencil_desc selects the grid of ranks, and the order of the dims in memory. dpar_pencil_begin and
 * dpar_pencil_end transpose while the program computes. */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar_comm.h")
#error dpar_pencil.h needs dpar_comm.h beside it, of the same release
#endif
#endif
#include "dpar_comm.h"
#endif
#if DPAR_VERSION != 200
#error dpar_pencil.h and dpar.h are of different versions: take all headers from one release
#endif

#ifndef DPAR_PENCIL_H
#define DPAR_PENCIL_H

/* ==== pencil/pencil.h ==== */

/* pencil - divides a 3-D array into pencils along one dim, and transposes them to pencils along
 * another, as FFT codes do with 2DECOMP, P3DFFT or cuDecomp.
 *
 * The dims of the array are 0, 1 and 2 as in C, the last one contiguous: in a[nz][ny][nx], x is
 * dim 2. A pencil along an axis has all points along that dim, and the other two dims are cut over
 * a grid of grid[0] x grid[1] ranks:
 *
 *     pencil along      dim 0            dim 1            dim 2
 *     2 (x)             over grid[0]     over grid[1]     whole
 *     1 (y)             over grid[0]     whole            over grid[1]
 *     0 (z)             whole            over grid[0]     over grid[1]
 *
 * A transpose between 2 and 1 thus involves the grid[1] ranks in a row of the grid. One between 1
 * and 0 involves the grid[0] ranks in a column. Rank r is in row r / grid[1] and column
 * r % grid[1]. With DPAR_ORDER_FIRST_FASTEST as desc.rank_order it is in row r % grid[0] and column
 * r / grid[0]. A grid of P x 1 gives slabs: pencils along 2 and along 1 then have the same points.
 * Dims are cut as by DPAR_SPLIT_EVEN: if a dim has n points and p parts, the first n % p parts have
 * one point more than the others. With desc.last_larger these are the last n % p parts.
 *
 *     dpar_pencil_desc desc = {0};
 *     desc.size[0] = nz; desc.size[1] = ny; desc.size[2] = nx;
 *     desc.type = DPAR_F64;
 *     desc.components = 2;                              complex
 *     dpar_pencil_make(comm, &desc, &pencil, &why);
 *     a = dpar_pencil_array(pencil);
 *     b = dpar_pencil_array(pencil);
 *     ... FFTs of a along x ...
 *     dpar_pencil_transpose(pencil, 2, 1, a, b);
 *     ... FFTs of b along y ...
 *     dpar_pencil_transpose(pencil, 1, 0, b, a);
 *     ... FFTs of a along z ...
 *
 * Everything is planned in dpar_pencil_make. Ranks of a node read each other's arrays in place if
 * these are registered memory (dpar_pencil_array, dpar_comm_alloc), so that each point is copied
 * once. Other arrays are first copied to registered memory. Between nodes, each rank sends one
 * message to each rank that needs points from it. */

/* The order of the dims of a pencil in memory. */
enum {
    DPAR_PENCIL_GLOBAL_ORDER, /* 0, 1, 2 in all pencils */
    DPAR_PENCIL_AXIS_LAST     /* the pencil's axis is contiguous, after the other two dims in
                                 ascending order: 1, 2, 0 along axis 0, and 0, 2, 1 along axis 1 */
};

/* An array and its pencils. Zero it, then set size, type and what you need. All fields must be
 * equal on all ranks, otherwise all get DPAR_E_MISMATCH. */
typedef struct dpar_pencil_desc {
    int64_t size[3];    /* points along each dim of the whole array, at least 1 */
    int32_t grid[2];    /* the numbers of ranks over which dims are cut. Their product must be the
                           number of all ranks. 0 lets dpar choose the number */
    int32_t type;       /* DPAR_F64, ...; any type that has bytes; no default */
    int32_t components; /* elements of each point, 1 to 2^20, adjacent; 0 selects 1. 2 is complex */
    int32_t order;      /* DPAR_PENCIL_GLOBAL_ORDER or DPAR_PENCIL_AXIS_LAST */
    int32_t measure;    /* how dpar chooses the grid. 0: so that the busiest rank holds and sends
                           the least data in transposes from 2 to 1 and from 1 to 0, where each
                           message counts as 4 KiB. 1: measures the 8 grids that are best by this
                           rule, with 20 transposes each, and takes the fastest */
    int32_t tag;        /* of the messages; your own messages between begin and end must have
                           another one */
    /* How ranks are numbered in the grid. DPAR_ORDER_LAST_FASTEST (0) gives neighbours in a row
     * consecutive ranks, and DPAR_ORDER_FIRST_FASTEST neighbours in a column. The second is what
     * 2DECOMP does: its grid p_row x p_col is the transpose of this one, so grid is {p_col, p_row}.
     */
    int32_t rank_order;
    int32_t last_larger; /* 1 gives the last parts of a dim one point more, as 2DECOMP and P3DFFT
                            do; 0 the first parts */
} dpar_pencil_desc;

/* Pencils of an array. All fields are read-only. */
typedef struct dpar_pencil {
    dpar_comm *comm;
    int64_t size[3];  /* as in the descriptor */
    int32_t grid[2];  /* as in the descriptor, or as selected */
    int64_t bytes[3]; /* bytes of this rank's pencil along each axis; 0 if it has no points */
} dpar_pencil;

/* Plans all transposes of an array.
 *
 * Collective over comm. All errors are returned on all ranks. Fails with DPAR_E_ARG if a field has
 * a wrong value, or if comm has a device's memory. Fails with DPAR_E_RANGE if the array exceeds
 * 2^56 bytes, and with DPAR_E_MISMATCH if ranks pass different descriptors. Also fails with
 * DPAR_E_MEMORY, or with an error of the communicator.
 *
 * More ranks than points along a dim are allowed; some ranks then have no points. Costs O(ranks)
 * and a message to each rank with which this one exchanges points. A plan takes 3 to 6 KiB for each
 * of these ranks, and the bytes of the messages to and from other nodes. Its memory is from
 * dpar_comm_alloc. */
DPAR_API dpar_status dpar_pencil_make(dpar_comm *comm, const dpar_pencil_desc *desc,
                                      dpar_pencil **pencil, dpar_why *why);
/* Destroys a plan, but not the arrays. NULL does nothing. Collective. Fails with DPAR_E_ARG if a
 * transpose is in progress; the plan then still exists. If a transpose has failed, returns the
 * status of that transpose. Costs a barrier. */
DPAR_API dpar_status dpar_pencil_free(dpar_pencil *pencil);

/* Finds out which points this rank's pencil along an axis has, and where they are in memory.
 *
 * axis:   0, 1 or 2, the dim along which the pencil is whole.
 * first:  [3] receives the global index of its first point along each dim.
 * count:  [3] receives its number of points along each dim; all are 0 if it has none.
 * stride: [3] receives the distance, in points, of neighbours along each dim, so that the point at
 *         first[d] + i[d] is point i[0] * stride[0] + i[1] * stride[1] + i[2] * stride[2].
 *
 * first, count and stride may be NULL. Local. Fails with DPAR_E_ARG for another axis; the message
 * is in pencil->comm->why. */
DPAR_API dpar_status dpar_pencil_box(const dpar_pencil *pencil, int32_t axis, int64_t *first,
                                     int64_t *count, int64_t *stride);

/* Allocates a zeroed array that can hold this rank's pencil along any axis, in registered memory
 * that other ranks read in place. Returns NULL on failure, with the message in pencil->comm->why.
 * The array can be used until dpar_comm_release or until the communicator's world is closed. Local.
 * Costs O(points). */
DPAR_API void *dpar_pencil_array(dpar_pencil *pencil);

/* Transposes pencils along one axis to pencils along any other axis, in one step.
 *
 * in:  this rank's pencil along axis `from`; not changed. May be NULL if it has no points.
 * out: receives its pencil along axis `to`. Must not overlap `in`.
 *
 * Collective: all ranks of the communicator must call it in the same order, but each waits only for
 * the ranks with which it exchanges points. Fails with DPAR_E_ARG if an axis is not 0, 1 or 2, if
 * both are the same, if an array is NULL or overlaps the other one, or if a transpose has not
 * ended. Only the rank that makes such a call gets this error. It has begun nothing, and its peers
 * wait for it until the deadline. Fails with DPAR_E_MISMATCH if ranks that share memory pass
 * different axes. Fails with DPAR_E_MEMORY if there is no memory for the copy of an array that is
 * not registered. Fails with DPAR_E_PEER or DPAR_E_TIMEOUT as comm.h describes. All errors but
 * DPAR_E_ARG break the communicator. The message is in pencil->comm->why.
 *
 * Copies each point once if arrays are registered and ranks share a node, otherwise two or three
 * times. */
DPAR_API dpar_status dpar_pencil_transpose(dpar_pencil *pencil, int32_t from, int32_t to,
                                           const void *in, void *out);
/* Starts a transpose, whose parameters and errors are those of dpar_pencil_transpose. `in` must not
 * be written, nor `out` read or written, until dpar_pencil_end. Only one transpose of a plan can be
 * in progress; to overlap several fields, make a plan for each. */
DPAR_API dpar_status dpar_pencil_begin(dpar_pencil *pencil, int32_t from, int32_t to,
                                       const void *in, void *out);
/* Advances a transpose as far as possible without waiting. Returns DPAR_OK if everything has
 * arrived (dpar_pencil_end must still be called), otherwise DPAR_MORE. Local. Errors are those of
 * dpar_pencil_transpose except for DPAR_E_TIMEOUT. */
DPAR_API dpar_status dpar_pencil_test(dpar_pencil *pencil);
/* Waits until `out` is complete and `in` may be written again. Returns DPAR_OK if no transpose is
 * in progress. Collective. Errors are those of dpar_pencil_transpose. */
DPAR_API dpar_status dpar_pencil_end(dpar_pencil *pencil);

#endif /* DPAR_PENCIL_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_PENCIL_IMPLEMENTATION)) && \
    !defined(DPAR_PENCIL_IMPLEMENTATION_DONE)
#define DPAR_PENCIL_IMPLEMENTATION_DONE

/* ==== pencil/pencil_cut.h ==== */

/* pencil_cut - computes which points each rank's pencil along an axis has, and which grids of ranks
 * are best. Private. */

enum {
    DPARI_PENCIL_DIRECTIONS = 9, /* direction 3 * from + to (pencil_plan.h); from is never to */
    DPARI_PENCIL_MOST_GRIDS = 8, /* grids that are tried with desc.measure */
    DPARI_PENCIL_MESSAGE_BYTES = 4096 /* cost of a message in addition to its bytes: one or two
                                         microseconds, at a few GB/s */
};

/* The array and its cut, equal on all ranks. */
typedef struct dpari_pencil_cut {
    int64_t size[3];
    int64_t point; /* bytes */
    int32_t grid[2];
    int32_t order;       /* DPAR_PENCIL_x */
    int32_t rank_order;  /* DPAR_ORDER_x */
    int32_t last_larger; /* 1 if the last parts of a dim have one point more */
} dpari_pencil_cut;

/* The points of a rank's pencil; all counts are 0 if there are none. Strides are in points. */
typedef struct dpari_pencil_box {
    int64_t first[3], count[3], stride[3];
} dpari_pencil_box;

/* Computes the box of a rank's pencil along `axis`. O(1). */
DPARI_INTERNAL dpari_pencil_box dpari_pencil_box_of(const dpari_pencil_cut *cut, int32_t rank,
                                                    int32_t axis);
/* Sets the strides of a box to those of a contiguous array that has only this box, with the dims in
 * the order of pencils along `axis`. */
DPARI_INTERNAL void dpari_pencil_pack_strides(const dpari_pencil_cut *cut, int32_t axis,
                                              dpari_pencil_box *box);
/* Computes the points that two boxes have in common, with strides of 0. Returns their number. */
DPARI_INTERNAL int64_t dpari_pencil_common(const dpari_pencil_box *a, const dpari_pencil_box *b,
                                           dpari_pencil_box *common);
/* Lists the best grids of `ranks` ranks, the best one first, at most DPARI_PENCIL_MOST_GRIDS. They
 * have the numbers of cut->grid that are not 0. Returns how many are listed, 0 if no grid fits. */
DPARI_INTERNAL int32_t dpari_pencil_grids(const dpari_pencil_cut *cut, int32_t ranks,
                                          int32_t (*grid)[2]);

/* ==== pencil/pencil_copy.h ==== */

/* pencil_copy - copies a box of points between two arrays whose dims may be in different orders.
 * Private. */

/* A prepared copy. If the same dim is the innermost on both sides, dpari_stride copies runs along
 * it. Otherwise the box is copied in tiles of the two innermost dims. */
typedef struct dpari_pencil_copy {
    int64_t to_at, from_at; /* bytes from the start of an array to the box */
    int32_t tiled;          /* 1 if the box is copied in tiles */
    int32_t whole[2];       /* 1 if the box is contiguous in `to`, and in `from` */
    int32_t same;           /* 1 if the points have the same order on both sides */
    int64_t bytes;          /* of the box */
    dpari_stride stride;
    /* For tiles: bytes of a point, and the dims: innermost of `to`, innermost of `from`, other. */
    int64_t point, count[3], to[3], from[3];
} dpari_pencil_copy;

/* Prepares a copy of `count` points along each dim. to, from: the points from one index to the next
 * on each side. point: bytes of a point. wide: dpari_cpu_wide. */
DPARI_INTERNAL void dpari_pencil_prepare(dpari_pencil_copy *copy, const int64_t *count,
                                         const int64_t *to, const int64_t *from, int64_t point,
                                         int32_t wide);
/* Copies from `from` + from_at to `to` + to_at. The two must not overlap. */
DPARI_INTERNAL void dpari_pencil_run(const dpari_pencil_copy *copy, unsigned char *to,
                                     const unsigned char *from);

/* ==== pencil/pencil_plan.h ==== */

/* pencil_plan - the structs of a plan of transposes, and how a transpose runs. Private.
 *
 * A pair of axes, from one to another, is called a direction. In each direction a rank exchanges
 * with a peer the points that its pencil along one axis has in common with the peer's pencil along
 * the other.
 * ../exchange runs the transpose: waits for peers, publishes that arrays may be read, and posts
 * messages. All directions use one dpari_exchange, but each has its own table of flows.
 *
 * Peers that share memory read this rank's array in place, or a copy of it if it is not registered.
 * They find the array or the copy by the reference in the line of the exchange. They publish that
 * they have read it, and only then does the transpose end, so that nobody reads it any more. The
 * copy has the same shape as the array, so that readers need not know which of the two it is.
 *
 * A message holds the points of a box in the order of the sender's pencil. Boxes that are
 * contiguous are sent in place, and received in place if the receiver has the same order. */

/* What this rank gives to a peer, or takes from it, in a direction. */
typedef struct dpari_pencil_side {
    dpari_pencil_copy *copy; /* NULL if there are no points. When giving, copies to the message, or
                                to the copy of the array for a peer that shares memory. When taking,
                                copies from the message, or from the peer's array */
    int64_t at; /* where the message begins in out_messages or in_messages; -1 if it is in place */
} dpari_pencil_side;

typedef struct dpari_pencil {
    dpar_pencil head; /* the public struct; it must be first */
    dpari_exchange x;
    dpari_pencil_cut cut;
    dpari_pencil_side *give, *take;            /* [directions][peers] */
    dpari_exchange_flow *flow;                 /* [directions][peers] */
    int32_t meets[DPARI_PENCIL_DIRECTIONS];    /* 1 if other peers that share memory take part */
    int32_t lends[DPARI_PENCIL_DIRECTIONS];    /* 1 if such a peer reads this rank's array */
    dpari_pencil_copy *copies;                 /* those of `give` and `take` */
    unsigned char *out_messages, *in_messages; /* in memory of dpar_comm_alloc */
    unsigned char *lent;                       /* the copy of an array that is not registered */
    void *owned;                               /* the memory of this struct and its tables */
    int32_t direction;                         /* of the transpose in progress */
    const unsigned char *in;
    unsigned char *out;
} dpari_pencil;

/* Returns the plan of a handle. */
DPARI_FN dpari_pencil *dpari_pencil_of(const dpar_pencil *pencil)
{
    return (dpari_pencil *)(uintptr_t)pencil;
}

/* Returns the communicator whose memory the ranks of a node share. */
DPARI_FN dpar_comm *dpari_pencil_memory_of(const dpari_pencil *plan)
{
    return plan->x.world ? plan->x.node : plan->x.comm;
}

/* ==== pencil/pencil_run.h ==== */

/* pencil_run - runs transposes. Private. */

/* Sets the functions that ../exchange calls. */
DPARI_INTERNAL void dpari_pencil_set_functions(dpari_pencil *plan);

#ifndef DPARI_STRIDED_LOOPS_H
#define DPARI_STRIDED_LOOPS_H

/* ==== host/strided_loops.h ==== */

/* strided_loops - private: copies or adds one run of a box. These functions are inlined with
 * constant arguments into the loops of strided.c and of halo_box_groups. */

/* The loops, named for the bytes that are moved at a time. A run between two powers of 2 is moved
 * as two overlapping pieces at its ends (TWO), and one of 33 to 64 bytes as two from each end
 * (FOUR). */
enum {
    DPARI_STRIDE_NONE,
    DPARI_STRIDE_1,
    DPARI_STRIDE_2,
    DPARI_STRIDE_TWO_2,
    DPARI_STRIDE_4,
    DPARI_STRIDE_TWO_4,
    DPARI_STRIDE_8,
    DPARI_STRIDE_TWO_8,
    DPARI_STRIDE_16,
    DPARI_STRIDE_TWO_16,
    DPARI_STRIDE_FOUR_16,
    DPARI_STRIDE_LONG,
    DPARI_STRIDE_MIDDLE,  /* long, but too short for memcpy; vectors of 32 bytes */
    DPARI_STRIDE_SUM_F32, /* single elements; the next ones are for runs of 2, 3, 4, and 5 to 7 */
    DPARI_STRIDE_SUM_F32_2,
    DPARI_STRIDE_SUM_F32_3,
    DPARI_STRIDE_SUM_F32_4,
    DPARI_STRIDE_SUM_F32_7,
    DPARI_STRIDE_SUM_F64, /* single elements; the next ones are for runs of 2, 3 to 4, and 5 to 7 */
    DPARI_STRIDE_SUM_F64_2,
    DPARI_STRIDE_SUM_F64_4,
    DPARI_STRIDE_SUM_F64_7,
    DPARI_STRIDE_DENSE, /* combined in place, row by row */
    DPARI_STRIDE_BUFFER /* all other cases, through a small dense buffer */
};

#define DPARI_STRIDE_TURN 32    /* runs of one piece before those of the other one (measured) */
#define DPARI_STRIDE_AHEAD 1024 /* bytes by which short runs are prefetched ahead (measured) */
#define DPARI_STRIDE_LINE 64
#define DPARI_STRIDE_PACK 2048 /* bytes packed at a time (measured, EPYC) */

/* Sums are not computed with x87, which rounds when it stores and not when it adds. */
#if defined(__i386__) && !defined(__SSE2_MATH__)
#define DPARI_STRIDE_ADDS 0
#else
#define DPARI_STRIDE_ADDS 1
#endif

#if defined(__GNUC__)
#define dpari_stride_copy(to, from, bytes) __builtin_memcpy(to, from, (size_t)(bytes))
#define DPARI_STRIDE_INLINE static DPARI_INLINED __attribute__((always_inline))
#define DPARI_STRIDE_ALIGNED __attribute__((aligned(64)))
#else
#define dpari_stride_copy(to, from, bytes) dpari_kern_copy(to, from, (int64_t)(bytes), 0)
#define DPARI_STRIDE_INLINE static DPARI_INLINED
#define DPARI_STRIDE_ALIGNED
#endif

#if defined(__GNUC__) && DPARI_STRIDE_ADDS && !defined(DPARI_NO_VECTOR)
#define DPARI_STRIDE_VECTOR 1
#else
#define DPARI_STRIDE_VECTOR 0
#endif

/* Vectors of 32 bytes are used if the CPU has them, because a store of 32 bytes takes as long as
 * one of 16. */
#if DPARI_STRIDE_VECTOR && defined(__x86_64__)
#define DPARI_STRIDE_WIDE 1
#define DPARI_STRIDE_IN_WIDE __attribute__((target("avx2")))
#else
#define DPARI_STRIDE_WIDE 0
#endif

DPARI_STRIDE_INLINE unsigned char *dpari_stride_writable(const unsigned char *at)
{
    return (unsigned char *)(uintptr_t)at;
}

/* ---- prefetching ---- */

/* Prefetches the line at t, which will be written. */
DPARI_STRIDE_INLINE void dpari_stride_ask_line(const unsigned char *t)
{
#if defined(__GNUC__) && defined(__x86_64__)
    __asm__ volatile("prefetchw %0"
                     :
                     : "m"(*t)); /* the builtin would prefetch the line for reading */
#elif defined(__GNUC__)
    __builtin_prefetch(t, 1);
#else
    (void)t;
#endif
}

DPARI_STRIDE_INLINE void dpari_stride_ask_lines(const unsigned char *at, int64_t bytes)
{
    for (; bytes > 0; bytes -= DPARI_STRIDE_LINE, at += DPARI_STRIDE_LINE) {
        dpari_stride_ask_line(at);
    }
}

/* Prefetches the lines that are written next. Stores wait for their lines one after the other,
 * whereas prefetches run in parallel. */
DPARI_STRIDE_INLINE void dpari_stride_ask(const dpari_stride *stride, unsigned char *to,
                                          int64_t rows, int64_t n)
{
    const int64_t step = stride->dim[0].to;
    int64_t row, i;
    for (row = 0; row < rows; row++, to += stride->dim[1].to) {
        const unsigned char *t = to;
        for (i = n; i > 0; i--, t += step) {
            dpari_stride_ask_line(t);
        }
    }
}

/* ---- one run: inlined with a constant loop ---- */

/* True if the loop computes sums. */
DPARI_STRIDE_INLINE int dpari_stride_sums(int32_t loop)
{
    return loop >= DPARI_STRIDE_SUM_F32 && loop <= DPARI_STRIDE_SUM_F64_7;
}

/* True if the loop can set to 0 what it has moved. */
DPARI_STRIDE_INLINE int dpari_stride_zeroes(int32_t loop)
{
    return loop < DPARI_STRIDE_LONG || dpari_stride_sums(loop);
}

/* Returns the bytes of a piece; the next function returns the number of pieces of a run. */
DPARI_STRIDE_INLINE int32_t dpari_stride_width(int32_t loop)
{
    switch (loop) {
    case DPARI_STRIDE_1: return 1;
    case DPARI_STRIDE_2:
    case DPARI_STRIDE_TWO_2: return 2;
    case DPARI_STRIDE_4:
    case DPARI_STRIDE_TWO_4:
    case DPARI_STRIDE_SUM_F32: return 4;
    case DPARI_STRIDE_8:
    case DPARI_STRIDE_TWO_8:
    case DPARI_STRIDE_SUM_F32_2:
    case DPARI_STRIDE_SUM_F32_3:
    case DPARI_STRIDE_SUM_F64: return 8;
    default: return 16;
    }
}

DPARI_STRIDE_INLINE int32_t dpari_stride_pieces(int32_t loop)
{
    switch (loop) {
    case DPARI_STRIDE_TWO_2:
    case DPARI_STRIDE_TWO_4:
    case DPARI_STRIDE_TWO_8:
    case DPARI_STRIDE_TWO_16:
    case DPARI_STRIDE_SUM_F32_3:
    case DPARI_STRIDE_SUM_F32_7:
    case DPARI_STRIDE_SUM_F64_4: return 2;
    case DPARI_STRIDE_FOUR_16:
    case DPARI_STRIDE_SUM_F64_7: return 4;
    default: return 1;
    }
}

/* Reads the whole run before it writes. last: offset of the last piece of the run, in bytes. */
DPARI_STRIDE_INLINE void dpari_stride_copy_run(unsigned char *t, const unsigned char *f,
                                               int64_t last, int32_t width, int32_t pieces)
{
    unsigned char a[16], b[16], c[16], d[16];
    dpari_stride_copy(a, f, width);
    if (pieces > 1) {
        dpari_stride_copy(b, f + last, width);
    }
    if (pieces > 2) {
        dpari_stride_copy(c, f + width, width);
        dpari_stride_copy(d, f + last - width, width);
    }
    dpari_stride_copy(t, a, width);
    if (pieces > 1) {
        dpari_stride_copy(t + last, b, width);
    }
    if (pieces > 2) {
        dpari_stride_copy(t + width, c, width);
        dpari_stride_copy(t + last - width, d, width);
    }
}

DPARI_STRIDE_INLINE void dpari_stride_zero_run(unsigned char *z, int64_t last, int32_t width,
                                               int32_t pieces)
{
    const unsigned char zero[16] = {0};
    dpari_stride_copy(z, zero, width);
    if (pieces > 1) {
        dpari_stride_copy(z + last, zero, width);
    }
    if (pieces > 2) {
        dpari_stride_copy(z + width, zero, width);
        dpari_stride_copy(z + last - width, zero, width);
    }
}

/* Adds f to t. Each NaN becomes the same one, as in dpari_kern_reduce. */
DPARI_STRIDE_INLINE void dpari_stride_sum_f32(unsigned char *t, const unsigned char *f)
{
    const uint32_t quiet = 0x7fc00000u;
    float x, y;
    dpari_stride_copy(&x, t, sizeof x);
    dpari_stride_copy(&y, f, sizeof y);
    x += y;
    if (x != x) {
        dpari_stride_copy(&x, &quiet, sizeof x);
    }
    dpari_stride_copy(t, &x, sizeof x);
}

DPARI_STRIDE_INLINE void dpari_stride_sum_f64(unsigned char *t, const unsigned char *f)
{
    const uint64_t quiet = UINT64_C(0x7ff8) << 48;
    double x, y;
    dpari_stride_copy(&x, t, sizeof x);
    dpari_stride_copy(&y, f, sizeof y);
    x += y;
    if (x != x) {
        dpari_stride_copy(&x, &quiet, sizeof x);
    }
    dpari_stride_copy(t, &x, sizeof x);
}

#if DPARI_STRIDE_VECTOR
typedef double dpari_stride_d2 __attribute__((vector_size(16)));
typedef float dpari_stride_f4 __attribute__((vector_size(16)));
typedef uint64_t dpari_stride_u2 __attribute__((vector_size(16)));

/* Load and store the first `bytes` bytes, 8 or 16, of a vector. */
DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_get(const unsigned char *from, int32_t bytes)
{
    dpari_stride_u2 v = {0, 0};
    if (bytes == 8) {
        uint64_t x;
        dpari_stride_copy(&x, from, 8);
        v[0] = x;
    } else {
        dpari_stride_copy(&v, from, 16);
    }
    return v;
}

DPARI_STRIDE_INLINE void dpari_stride_put(unsigned char *to, dpari_stride_u2 v, int32_t bytes)
{
    dpari_stride_copy(to, &v, bytes);
}

DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_plus(dpari_stride_u2 x, dpari_stride_u2 y,
                                                      int32_t f64)
{
    return f64 ? (dpari_stride_u2)((dpari_stride_d2)x + (dpari_stride_d2)y)
               : (dpari_stride_u2)((dpari_stride_f4)x + (dpari_stride_f4)y);
}

DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_nan(dpari_stride_u2 x, int32_t f64)
{
    return f64 ? (dpari_stride_u2)((dpari_stride_d2)x != (dpari_stride_d2)x)
               : (dpari_stride_u2)((dpari_stride_f4)x != (dpari_stride_f4)x);
}

/* True if a mask has any bit set. Marked as unlikely, so the code after it may be slow. */
DPARI_STRIDE_INLINE int dpari_stride_any(dpari_stride_u2 mask)
{
#if defined(__SSE2__)
    return __builtin_expect(__builtin_ia32_movmskps((dpari_stride_f4)mask) != 0, 0) != 0;
#else
    return __builtin_expect((mask[0] | mask[1]) != 0, 0) != 0;
#endif
}

/* Returns the sum of the elements at t and f. */
DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_met(const unsigned char *t, const unsigned char *f,
                                                     int32_t bytes, int32_t f64)
{
    return dpari_stride_plus(dpari_stride_get(t, bytes), dpari_stride_get(f, bytes), f64);
}

/* Replaces each NaN by the same one. */
DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_quiet(dpari_stride_u2 x, int32_t f64)
{
    const uint64_t quiet = f64 ? UINT64_C(0x7ff8) << 48 : UINT64_C(0x7fc000007fc00000);
    const dpari_stride_u2 both = {quiet, quiet}, bad = dpari_stride_nan(x, f64);
    return (x & ~bad) | (both & bad);
}

/* Adds a run, as dpari_stride_copy_run copies one. The sum of all elements is NaN if one of them
 * is.
 */
DPARI_STRIDE_INLINE void dpari_stride_sum_run(unsigned char *t, const unsigned char *f,
                                              int64_t last, int32_t width, int32_t pieces,
                                              int32_t f64)
{
    dpari_stride_u2 a = dpari_stride_met(t, f, width, f64), b = a, c = a, d = a, all = a;
    if (pieces > 1) {
        b = dpari_stride_met(t + last, f + last, width, f64);
        all = dpari_stride_plus(a, b, f64);
    }
    if (pieces > 2) {
        c = dpari_stride_met(t + width, f + width, width, f64);
        d = dpari_stride_met(t + last - width, f + last - width, width, f64);
        all = dpari_stride_plus(all, dpari_stride_plus(c, d, f64), f64);
    }
    if (dpari_stride_any(dpari_stride_nan(all, f64))) {
        a = dpari_stride_quiet(a, f64);
        b = dpari_stride_quiet(b, f64);
        c = dpari_stride_quiet(c, f64);
        d = dpari_stride_quiet(d, f64);
    }
    dpari_stride_put(t, a, width);
    if (pieces > 1) {
        dpari_stride_put(t + last, b, width);
    }
    if (pieces > 2) {
        dpari_stride_put(t + width, c, width);
        dpari_stride_put(t + last - width, d, width);
    }
}
#endif

/* Copies the run at f to t, or adds it there. If `zero` is set, the run at z becomes 0. */
DPARI_STRIDE_INLINE void dpari_stride_one(unsigned char *t, const unsigned char *f,
                                          unsigned char *z, int64_t last, int32_t loop, int zero)
{
    const int32_t width = dpari_stride_width(loop), pieces = dpari_stride_pieces(loop);
    if (loop == DPARI_STRIDE_SUM_F32) {
        dpari_stride_sum_f32(t, f);
    } else if (loop == DPARI_STRIDE_SUM_F64) {
        dpari_stride_sum_f64(t, f);
    } else if (!dpari_stride_sums(loop)) {
        dpari_stride_copy_run(t, f, last, width, pieces);
    } else {
#if DPARI_STRIDE_VECTOR
        dpari_stride_sum_run(t, f, last, width, pieces, loop > DPARI_STRIDE_SUM_F64);
#endif
    }
    if (zero) {
        dpari_stride_zero_run(z, last, width, pieces);
    }
}

#if DPARI_STRIDE_WIDE
typedef uint64_t dpari_stride_u4 __attribute__((vector_size(32)));

typedef double dpari_stride_d4 __attribute__((vector_size(32)));
typedef float dpari_stride_f8 __attribute__((vector_size(32)));

DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE dpari_stride_u4
dpari_stride_plus_wide(const dpari_stride_u4 *x, const dpari_stride_u4 *y, int32_t f64)
{
    return f64 ? (dpari_stride_u4)((dpari_stride_d4)*x + (dpari_stride_d4)*y)
               : (dpari_stride_u4)((dpari_stride_f8)*x + (dpari_stride_f8)*y);
}

/* Returns the sum of the vectors at t and f. */
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE dpari_stride_u4
dpari_stride_met_wide(const unsigned char *t, const unsigned char *f, int32_t f64)
{
    dpari_stride_u4 x, y;
    dpari_stride_copy(&x, t, 32);
    dpari_stride_copy(&y, f, 32);
    return dpari_stride_plus_wide(&x, &y, f64);
}

/* Replaces each NaN by the same one. */
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE dpari_stride_u4
dpari_stride_quiet_wide(const unsigned char *t, const unsigned char *f)
{
    const uint64_t quiet = UINT64_C(0x7ff8) << 48;
    const dpari_stride_u4 all = {quiet, quiet, quiet, quiet};
    const dpari_stride_u4 sum = dpari_stride_met_wide(t, f, 1);
    const dpari_stride_u4 bad = (dpari_stride_u4)((dpari_stride_d4)sum != (dpari_stride_d4)sum);
    return (sum & ~bad) | (all & bad);
}

#endif

/* Sets in `rows` the steps of the two innermost dims, and the memory that is set to 0. */
DPARI_STRIDE_INLINE void dpari_stride_steps(const dpari_stride *stride, dpari_stride_rows *rows)
{
    rows->to_step = stride->dim[0].to;
    rows->from_step = stride->dim[0].from;
    rows->to_row = stride->dim[1].to;
    rows->from_row = stride->dim[1].from;
    rows->run = stride->run;
    rows->zeroes = stride->beside != 0 || (stride->clear && dpari_stride_zeroes(stride->loop));
    if (stride->beside != 0) {
        rows->zero = rows->to + stride->beside;
        rows->zero_step = rows->to_step;
        rows->zero_row = rows->to_row;
    } else {
        rows->zero = dpari_stride_writable(rows->from);
        rows->zero_step = rows->from_step;
        rows->zero_row = rows->from_row;
    }
}

DPARI_STRIDE_INLINE int64_t dpari_stride_size(int64_t step)
{
    return step < 0 ? -step : step;
}

/* Lists of all loops of short copies and of sums. */
#define DPARI_STRIDE_COPIES(X)                                                                     \
    X(DPARI_STRIDE_1)                                                                              \
    X(DPARI_STRIDE_2)                                                                              \
    X(DPARI_STRIDE_TWO_2)                                                                          \
    X(DPARI_STRIDE_4)                                                                              \
    X(DPARI_STRIDE_TWO_4)                                                                          \
    X(DPARI_STRIDE_8)                                                                              \
    X(DPARI_STRIDE_TWO_8)                                                                          \
    X(DPARI_STRIDE_16)                                                                             \
    X(DPARI_STRIDE_TWO_16)                                                                         \
    X(DPARI_STRIDE_FOUR_16)
#if DPARI_STRIDE_VECTOR
#define DPARI_STRIDE_SUMS(X)                                                                       \
    X(DPARI_STRIDE_SUM_F32)                                                                        \
    X(DPARI_STRIDE_SUM_F32_2)                                                                      \
    X(DPARI_STRIDE_SUM_F32_3)                                                                      \
    X(DPARI_STRIDE_SUM_F32_4)                                                                      \
    X(DPARI_STRIDE_SUM_F64)                                                                        \
    X(DPARI_STRIDE_SUM_F64_2)                                                                      \
    X(DPARI_STRIDE_SUM_F64_4)
#define DPARI_STRIDE_OTHER_SUMS(X)                                                                 \
    X(DPARI_STRIDE_SUM_F32_7)                                                                      \
    X(DPARI_STRIDE_SUM_F64_7)
#elif DPARI_STRIDE_ADDS
#define DPARI_STRIDE_SUMS(X)                                                                       \
    X(DPARI_STRIDE_SUM_F32)                                                                        \
    X(DPARI_STRIDE_SUM_F64)
#define DPARI_STRIDE_OTHER_SUMS(X)
#else
#define DPARI_STRIDE_SUMS(X)
#define DPARI_STRIDE_OTHER_SUMS(X)
#endif

#endif /* DPARI_STRIDED_LOOPS_H */

/* ==== pencil/pencil_cut.c ==== */

/* Computes the boxes of ranks, and finds the best grids of ranks. The table in pencil.h shows which
 * dim is cut over which number of the grid. */

/* Returns over which number of the grid, 0 or 1, dim d of a pencil is cut, or -1 if it is whole. */
static int32_t dpari_pencil_cut_by(int32_t axis, int32_t d)
{
    if (d == axis) {
        return -1;
    }
    if (axis == 1) {
        return d == 0 ? 0 : 1;
    }
    return axis == 2 ? d : d - 1;
}

/* Sets order[0..2] to the dims of a pencil in memory, the slowest first. */
static void dpari_pencil_dims(const dpari_pencil_cut *cut, int32_t axis, int32_t *order)
{
    int32_t d, n = 0;
    for (d = 0; d < 3; d++) {
        if (d != axis || cut->order == DPAR_PENCIL_GLOBAL_ORDER) {
            order[n++] = d;
        }
    }
    if (n < 3) {
        order[n] = axis;
    }
}

DPARI_INTERNAL void dpari_pencil_pack_strides(const dpari_pencil_cut *cut, int32_t axis,
                                              dpari_pencil_box *box)
{
    int64_t points = 1;
    int32_t order[3], d;
    dpari_pencil_dims(cut, axis, order);
    for (d = 2; d >= 0; d--) {
        box->stride[order[d]] = points;
        points *= box->count[order[d]];
    }
}

DPARI_INTERNAL dpari_pencil_box dpari_pencil_box_of(const dpari_pencil_cut *cut, int32_t rank,
                                                    int32_t axis)
{
    /* the number of the grid, 0 or 1, in whose direction consecutive ranks are neighbours */
    const int32_t fast = cut->rank_order == DPAR_ORDER_LAST_FASTEST ? 1 : 0;
    dpari_pencil_box box;
    int64_t points = 1;
    int32_t at[2], d;
    at[fast] = rank % cut->grid[fast];
    at[1 - fast] = rank / cut->grid[fast];
    for (d = 0; d < 3; d++) {
        const int32_t by = dpari_pencil_cut_by(axis, d);
        box.first[d] = 0;
        box.count[d] = cut->size[d];
        if (by >= 0) { /* with last_larger, parts and points are counted from the end of the dim */
            const int32_t part = cut->last_larger ? cut->grid[by] - 1 - at[by] : at[by];
            (void)dpar_split_range(DPAR_SPLIT_EVEN, cut->size[d], cut->grid[by], part,
                                   &box.first[d], &box.count[d]);
            if (cut->last_larger) {
                box.first[d] = cut->size[d] - box.first[d] - box.count[d];
            }
        }
        points *= box.count[d];
    }
    for (d = 0; d < 3 && points == 0; d++) {
        box.count[d] = 0;
    }
    dpari_pencil_pack_strides(cut, axis, &box);
    return box;
}

DPARI_INTERNAL int64_t dpari_pencil_common(const dpari_pencil_box *a, const dpari_pencil_box *b,
                                           dpari_pencil_box *common)
{
    int64_t points = 1;
    int32_t d;
    for (d = 0; d < 3; d++) {
        const int64_t end = dpari_least(a->first[d] + a->count[d], b->first[d] + b->count[d]);
        common->first[d] = dpari_most(a->first[d], b->first[d]);
        common->count[d] = dpari_most(end - common->first[d], 0);
        common->stride[d] = 0;
        points *= common->count[d];
    }
    return points;
}

/* Returns the cost of a grid, in points: those in the three pencils of the busiest rank, and those
 * that it sends in transposes from 2 to 1 and from 1 to 0, with its messages. This is the rank with
 * the largest part of each dim: rank 0, or the last one. */
static int64_t dpari_pencil_grid_cost(const dpari_pencil_cut *cut, int32_t g0, int32_t g1)
{
    const int64_t *size = cut->size;
    const int64_t n0 = dpari_ceil_div(size[0], g0), n1 = dpari_ceil_div(size[1], g1);
    const int64_t m1 = dpari_ceil_div(size[1], g0), n2 = dpari_ceil_div(size[2], g1);
    const int64_t held = n0 * n1 * size[2] + n0 * size[1] * n2 + size[0] * m1 * n2;
    const int64_t sent = n0 * n1 * (size[2] - n2) + n0 * n2 * (size[1] - m1);
    const int64_t messages = dpari_least(g1, size[2]) + dpari_least(g0, size[1]) - 2;
    return held + sent + dpari_ceil_div(messages * DPARI_PENCIL_MESSAGE_BYTES, cut->point);
}

DPARI_INTERNAL int32_t dpari_pencil_grids(const dpari_pencil_cut *cut, int32_t ranks,
                                          int32_t (*grid)[2])
{
    int64_t cost[DPARI_PENCIL_MOST_GRIDS + 1];
    int32_t n = 0, g0, i;
    for (g0 = ranks; g0 > 0; g0--) {
        const int32_t g1 = ranks / g0;
        int64_t mine;
        if (g0 * g1 != ranks || (cut->grid[0] != 0 && cut->grid[0] != g0) ||
            (cut->grid[1] != 0 && cut->grid[1] != g1)) {
            continue;
        }
        mine = dpari_pencil_grid_cost(cut, g0, g1);
        for (i = n; i > 0 && cost[i - 1] > mine; i--) {
            cost[i] = cost[i - 1];
            if (i < DPARI_PENCIL_MOST_GRIDS) {
                grid[i][0] = grid[i - 1][0];
                grid[i][1] = grid[i - 1][1];
            }
        }
        if (i < DPARI_PENCIL_MOST_GRIDS) {
            cost[i] = mine;
            grid[i][0] = g0;
            grid[i][1] = g1;
            n = (int32_t)dpari_least(n + 1, DPARI_PENCIL_MOST_GRIDS);
        }
    }
    return n;
}

/* ==== pencil/pencil_copy.c ==== */

/* Copies boxes of points. If the innermost dims of the two sides differ, this is a transpose: rows
 * of a tile are first gathered in a small buffer. Each cache line of `from` and of `to` is then
 * visited only once, so that lines of a tile cannot evict each other from the cache, as they would
 * if sizes are powers of 2. */

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

/* ==== pencil/pencil_run.c ==== */

/* Begins, tests and ends transposes for the caller, and packs and takes points for ../exchange.
 * pencil_plan.h describes how a transpose runs. */

/* ---- what ../exchange calls ------------------------------------------------------------------ */

/* Returns the entry of peer i in a table of the direction in progress. */
static int64_t dpari_pencil_entry(const dpari_pencil *plan, int32_t i)
{
    return (int64_t)plan->direction * plan->x.peers + i;
}

/* Copies the points that peers of this node read to registered memory. Returns the reference to
 * this copy. If there is no memory, returns 0 and breaks the communicator, because the other ranks
 * have begun. */
static uint64_t dpari_pencil_lend_copy(dpari_pencil *plan)
{
    const int64_t *bytes = plan->head.bytes;
    void *memory = plan->lent;
    int32_t i;
    if (!memory) {
        dpar_comm *of = dpari_pencil_memory_of(plan);
        const dpar_status status =
            dpar_comm_alloc(of, dpari_most(bytes[0], dpari_most(bytes[1], bytes[2])), &memory);
        if (status != DPAR_OK) {
            const dpar_why why = of->why;
            (void)dpari_comm_wrong_all(plan->head.comm, status, "%s", why.text);
            return 0;
        }
        plan->lent = (unsigned char *)memory;
    }
    for (i = 0; i < plan->x.peers; i++) {
        const dpari_pencil_side *give = &plan->give[dpari_pencil_entry(plan, i)];
        if (give->copy && i != plan->x.self && plan->x.peer[i].world >= 0) {
            dpari_pencil_run(give->copy, plan->lent, plan->in);
        }
    }
    return dpari_ref(plan->x.world, plan->lent, 1);
}

/* Publishes the reference to the array that peers of this node read, or to its copy. */
static dpar_status dpari_pencil_pack(void *of, int32_t s)
{
    dpari_pencil *plan = (dpari_pencil *)of;
    const int32_t from = plan->direction / 3;
    uint64_t ref;
    (void)s;
    plan->x.lends = plan->lends[plan->direction];
    if (!plan->x.lends) {
        return DPAR_OK;
    }
    ref = dpari_ref(plan->x.world, plan->in, plan->head.bytes[from]);
    if (ref == 0) {
        ref = dpari_pencil_lend_copy(plan);
    }
    plan->x.line->place[0] = ref;
    return ref != 0 ? DPAR_OK : plan->head.comm->status;
}

/* Returns where the message from peer i arrives, or if `sends`, the address of the message
 * to it, which is packed first unless it is sent in place. */
static unsigned char *dpari_pencil_message(void *of, int32_t s, int32_t i, int sends)
{
    dpari_pencil *plan = (dpari_pencil *)of;
    const dpari_pencil_side *give = &plan->give[dpari_pencil_entry(plan, i)];
    const dpari_pencil_side *take = &plan->take[dpari_pencil_entry(plan, i)];
    (void)s;
    if (!sends) {
        return take->at < 0 ? plan->out + take->copy->to_at : plan->in_messages + take->at;
    }
    if (give->at < 0) { /* messages are only read */
        return (unsigned char *)(uintptr_t)plan->in + give->copy->from_at;
    }
    dpari_pencil_run(give->copy, plan->out_messages + give->at, plan->in);
    return plan->out_messages + give->at;
}

/* Copies the points that this rank keeps. */
static void dpari_pencil_take_own(void *of, int32_t s)
{
    dpari_pencil *plan = (dpari_pencil *)of;
    const dpari_pencil_side *take;
    (void)s;
    if (plan->x.self >= 0) {
        take = &plan->take[dpari_pencil_entry(plan, plan->x.self)];
        if (take->copy) {
            dpari_pencil_run(take->copy, plan->out, plan->in);
        }
    }
}

/* Takes the points of peer i, which have arrived. */
static dpar_status dpari_pencil_take(void *of, int32_t s, int32_t i)
{
    dpari_pencil *plan = (dpari_pencil *)of;
    const dpari_pencil_side *take = &plan->take[dpari_pencil_entry(plan, i)];
    const unsigned char *from;
    uint64_t ref;
    (void)s;
    if (plan->x.peer[i].world < 0) {
        if (take->at >= 0) {
            dpari_pencil_run(take->copy, plan->out, plan->in_messages + take->at);
        }
        return DPAR_OK;
    }
    ref = plan->x.peer[i].line->place[0];
    from = (const unsigned char *)dpari_at(plan->x.world, ref);
    if (!from) {
        return dpari_exchange_unmapped(&plan->x, ref);
    }
    dpari_pencil_run(take->copy, plan->out, from);
    return DPAR_OK;
}

DPARI_INTERNAL void dpari_pencil_set_functions(dpari_pencil *plan)
{
    plan->x.plan = plan;
    plan->x.pack = plan->x.shared > 0 ? dpari_pencil_pack : NULL;
    plan->x.message = dpari_pencil_message;
    plan->x.take_own = dpari_pencil_take_own;
    plan->x.take = dpari_pencil_take;
}

/* ---- transposes ------------------------------------------------------------------------------ */

/* Checks the arguments of a transpose. */
static dpar_status dpari_pencil_check(const dpari_pencil *plan, int32_t from, int32_t to,
                                      const void *in, const void *out)
{
    dpar_comm *comm = plan->head.comm;
    const uintptr_t a = (uintptr_t)in, b = (uintptr_t)out;
    int64_t in_bytes, out_bytes;
    if (from < 0 || from > 2 || to < 0 || to > 2 || from == to) {
        return dpari_comm_wrong(comm,
                                "pencil transpose from axis %d to axis %d: two different axes of "
                                "0, 1 and 2 are allowed",
                                from, to);
    }
    in_bytes = plan->head.bytes[from];
    out_bytes = plan->head.bytes[to];
    if ((!in && in_bytes > 0) || (!out && out_bytes > 0)) {
        return dpari_comm_wrong(
            comm, "pencil transpose from axis %d to axis %d: %s is NULL but must hold %ld bytes",
            from, to, !in && in_bytes > 0 ? "in" : "out",
            !in && in_bytes > 0 ? in_bytes : out_bytes);
    }
    if (in_bytes > 0 && out_bytes > 0 && a < b + (uintptr_t)out_bytes &&
        b < a + (uintptr_t)in_bytes) {
        return dpari_comm_wrong(comm,
                                "pencil transpose from axis %d to axis %d: in (%ld bytes) and out "
                                "(%ld bytes) overlap; use two arrays",
                                from, to, in_bytes, out_bytes);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_pencil_begin(dpar_pencil *pencil, int32_t from, int32_t to,
                                       const void *in, void *out)
{
    dpari_pencil *plan = dpari_pencil_of(pencil);
    dpar_status status;
    if (!pencil) {
        return DPAR_E_ARG;
    }
    status = dpari_exchange_may_begin(&plan->x);
    if (status == DPAR_OK) {
        status = dpari_pencil_check(plan, from, to, in, out);
    }
    if (status != DPAR_OK) {
        return status;
    }
    plan->direction = 3 * from + to;
    plan->in = (const unsigned char *)in;
    plan->out = (unsigned char *)out;
    plan->x.flow = plan->flow + (int64_t)plan->direction * plan->x.peers;
    plan->x.step[0].meets = plan->meets[plan->direction];
    /* peers compare the direction, which is above the bits of the operation */
    return dpari_exchange_begin(&plan->x, DPAR_COPY,
                                (uint64_t)plan->direction * (DPARI_EXCHANGE_OP + 1));
}

DPAR_API dpar_status dpar_pencil_test(dpar_pencil *pencil)
{
    return pencil ? dpari_exchange_advance(&dpari_pencil_of(pencil)->x, 0) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_pencil_end(dpar_pencil *pencil)
{
    return pencil ? dpari_exchange_advance(&dpari_pencil_of(pencil)->x, 1) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_pencil_transpose(dpar_pencil *pencil, int32_t from, int32_t to,
                                           const void *in, void *out)
{
    const dpar_status status = dpar_pencil_begin(pencil, from, to, in, out);
    return status == DPAR_OK ? dpar_pencil_end(pencil) : status;
}

/* ==== pencil/pencil.c ==== */

/* Makes plans of transposes: checks descriptions, chooses the grid, finds the peers and the points
 * exchanged with them in each direction, and allocates the memory. pencil_run.c runs transposes. */

#define DPARI_PENCIL_MOST_BYTES (INT64_C(1) << 56) /* of an array */
enum {
    DPARI_PENCIL_COMPONENTS = 1 << 20, /* the most components of a point */
    DPARI_PENCIL_ROUNDS = 5            /* rounds of four transposes that measure a grid */
};

/* ---- descriptions ---------------------------------------------------------------------------- */

/* Checks all fields of a description but size and grid, and that comm can be used. */
static dpar_status dpari_pencil_check_kind(const dpar_comm *comm, const dpar_pencil_desc *desc,
                                           dpar_why *why)
{
    if (dpar_type_bytes(desc->type) == 0 || desc->components < 0 ||
        desc->components > DPARI_PENCIL_COMPONENTS) {
        return dpari_wrong(
            why, "pencil: %d components of type %s (allowed: 0 to 2^20, of a type with bytes)",
            desc->components, dpar_type_name(desc->type));
    }
    if ((desc->order != DPAR_PENCIL_GLOBAL_ORDER && desc->order != DPAR_PENCIL_AXIS_LAST) ||
        !dpari_is_flag(desc->measure) || desc->tag < 0) {
        return dpari_wrong(why,
                           "pencil: order %d, measure %d, tag %d: order must be DPAR_PENCIL_x, "
                           "measure 0 or 1, and tag 0 or more",
                           desc->order, desc->measure, desc->tag);
    }
    if ((desc->rank_order != DPAR_ORDER_LAST_FASTEST &&
         desc->rank_order != DPAR_ORDER_FIRST_FASTEST) ||
        !dpari_is_flag(desc->last_larger)) {
        return dpari_wrong(
            why,
            "pencil: rank_order %d, last_larger %d: rank_order must be DPAR_ORDER_x, "
            "and last_larger 0 or 1",
            desc->rank_order, desc->last_larger);
    }
    if (comm->mem && !comm->node && !dpari_world_of(comm)) {
        return dpari_wrong(
            why, "pencil: arrays are in the host's memory, but comm sends a device's memory");
    }
    return DPAR_OK;
}

/* Checks a description, and stores the array in *cut. The grid is not chosen yet. Local. */
static dpar_status dpari_pencil_check_desc(const dpar_comm *comm, const dpar_pencil_desc *desc,
                                           dpari_pencil_cut *cut, dpar_why *why)
{
    const int64_t *size = desc->size;
    const int32_t *grid = desc->grid;
    dpar_status status = dpari_pencil_check_kind(comm, desc, why);
    int32_t d;
    if (status != DPAR_OK) {
        return status;
    }
    cut->point = dpar_type_bytes(desc->type) * (int64_t)dpari_most(desc->components, 1);
    cut->order = desc->order;
    cut->rank_order = desc->rank_order;
    cut->last_larger = desc->last_larger;
    if (size[0] < 1 || size[1] < 1 || size[2] < 1) {
        return dpari_wrong(why, "pencil: size is %ld x %ld x %ld, but each must be at least 1",
                           size[0], size[1], size[2]);
    }
    int64_t bytes = cut->point;
    for (d = 0; d < 3; d++) {
        cut->size[d] = size[d];
        if (size[d] > DPARI_PENCIL_MOST_BYTES / bytes) {
            return dpari_say(DPAR_E_RANGE, why,
                             "pencil: %ld x %ld x %ld points of %ld bytes are more than 2^56 bytes",
                             size[0], size[1], size[2], cut->point);
        }
        bytes *= size[d];
    }
    if (grid[0] < 0 || grid[1] < 0) {
        return dpari_wrong(why, "pencil: grid is %d x %d, but no number may be negative", grid[0],
                           grid[1]);
    }
    cut->grid[0] = grid[0];
    cut->grid[1] = grid[1];
    return DPAR_OK;
}

/* Lists the fields of a description that must be equal on all ranks. */
static DPARI_COLD void dpari_pencil_state(dpari_facts *facts, const void *given)
{
    const dpar_pencil_desc *desc = (const dpar_pencil_desc *)given;
    int32_t d;
    facts->of = NULL;
    for (d = 0; d < 3; d++) {
        dpari_fact(facts, "size[#]", d, desc->size[d]);
    }
    dpari_fact(facts, "grid[0]", 0, desc->grid[0]);
    dpari_fact(facts, "grid[1]", 0, desc->grid[1]);
    dpari_fact_type(facts, "type", 0, desc->type);
    dpari_fact(facts, "components", 0, dpari_most(desc->components, 1));
    dpari_fact(facts, "order", 0, desc->order);
    dpari_fact(facts, "measure", 0, desc->measure);
    dpari_fact(facts, "tag", 0, desc->tag);
    dpari_fact(facts, "rank_order", 0, desc->rank_order);
    dpari_fact(facts, "last_larger", 0, desc->last_larger);
}

/* ---- planning -------------------------------------------------------------------------------- */

/* True if `direction` is between two different axes. */
static int dpari_pencil_is_direction(int32_t direction)
{
    return direction / 3 != direction % 3;
}

/* Counts the boxes that rank `me` gives to `rank`, and those that it takes from it, in all
 * directions. */
static int64_t dpari_pencil_count_boxes(const dpari_pencil_cut *cut, int32_t me, int32_t rank)
{
    dpari_pencil_box common;
    int64_t n = 0;
    int32_t direction;
    for (direction = 0; direction < DPARI_PENCIL_DIRECTIONS; direction++) {
        if (dpari_pencil_is_direction(direction)) {
            const dpari_pencil_box mine = dpari_pencil_box_of(cut, me, direction / 3);
            const dpari_pencil_box theirs = dpari_pencil_box_of(cut, rank, direction % 3);
            n += dpari_pencil_common(&mine, &theirs, &common) > 0;
        }
    }
    /* it takes in a direction what it gives in the opposite one */
    return 2 * n;
}

/* Allocates the plan with its tables. The first pass counts bytes, the second sets pointers. */
static dpar_status dpari_pencil_alloc(dpar_comm *comm, const dpari_pencil_cut *cut,
                                      dpari_pencil **made, dpar_why *why)
{
    dpar_comm *node = comm->node ? comm->node : comm;
    dpari_world *world = dpari_world_of(node);
    dpar_comm *of = world ? node : comm;
    dpari_pencil counted, *plan = &counted;
    dpari_room room = dpari_room_of(NULL);
    int64_t peers = 0, copies = 0;
    int32_t rank, pass;
    for (rank = 0; rank < comm->size; rank++) {
        const int64_t n = dpari_pencil_count_boxes(cut, comm->rank, rank);
        peers += n > 0;
        copies += n;
    }
    for (pass = 0; pass < 2; pass++) {
        dpari_pencil *at;
        room.used = 0;
        at = (dpari_pencil *)dpari_room_take(&room, 1, sizeof *at);
        plan = pass == 0 ? &counted : at;
        plan->x.line = (dpari_exchange_line *)dpari_room_take(&room, 1, sizeof *plan->x.line);
        dpari_exchange_room(&plan->x, &room, peers, 1, world ? node->size : 0);
        plan->give = (dpari_pencil_side *)dpari_room_take(&room, DPARI_PENCIL_DIRECTIONS * peers,
                                                          sizeof *plan->give);
        plan->take = (dpari_pencil_side *)dpari_room_take(&room, DPARI_PENCIL_DIRECTIONS * peers,
                                                          sizeof *plan->take);
        plan->flow = (dpari_exchange_flow *)dpari_room_take(&room, DPARI_PENCIL_DIRECTIONS * peers,
                                                            sizeof *plan->flow);
        plan->copies = (dpari_pencil_copy *)dpari_room_take(&room, copies, sizeof *plan->copies);
        if (pass == 0) {
            void *memory = NULL;
            const dpar_status status = dpar_comm_alloc(of, room.used, &memory);
            if (status != DPAR_OK) {
                return dpari_repeat(status, why, of->why.text);
            }
            room.at = (unsigned char *)memory;
        }
    }
    plan->owned = room.at;
    plan->x.comm = comm;
    plan->x.node = node;
    plan->x.world = world;
    plan->x.peers = (int32_t)peers;
    *made = plan;
    return DPAR_OK;
}

/* Sets the fields of a plan that do not depend on its peers. */
static void dpari_pencil_set(dpari_pencil *plan, const dpari_pencil_cut *cut, int32_t tag)
{
    int32_t d;
    plan->cut = *cut;
    plan->head.comm = plan->x.comm;
    plan->head.grid[0] = cut->grid[0];
    plan->head.grid[1] = cut->grid[1];
    for (d = 0; d < 3; d++) {
        const dpari_pencil_box box = dpari_pencil_box_of(cut, plan->x.comm->rank, d);
        plan->head.size[d] = cut->size[d];
        plan->head.bytes[d] = box.count[0] * box.count[1] * box.count[2] * cut->point;
    }
    plan->x.name = "pencil";
    plan->x.end = "dpar_pencil_end";
    plan->x.item = "array";
    plan->x.items = 1;
    plan->x.steps = 1;
    plan->x.step[0].modes = 1 << DPARI_EXCHANGE_FORWARD;
    plan->x.tag = tag;
    plan->x.self = -1;
}

/* Lists the ranks with which this one exchanges points in any of the directions, itself included.
 */
static void dpari_pencil_set_peers(dpari_pencil *plan)
{
    const int32_t me = plan->x.comm->rank;
    int32_t rank, n = 0;
    for (rank = 0; rank < plan->x.comm->size; rank++) {
        if (dpari_pencil_count_boxes(&plan->cut, me, rank) == 0) {
            continue;
        }
        plan->x.peer[n].rank = rank;
        plan->x.peer[n].world = rank == me ? 0 : -1; /* a rank sends no messages to itself */
        if (rank == me) {
            plan->x.self = n;
        }
        n++;
    }
}

/* Finds the peers that share memory, by sending each one the reference to this rank's words. */
static dpar_status dpari_pencil_meet(dpari_pencil *plan)
{
    const int32_t peers = plan->x.peers;
    dpar_comm *of = dpari_pencil_memory_of(plan);
    int64_t *record;
    void *memory = NULL;
    dpar_status status = dpari_exchange_find_node(&plan->x);
    int32_t i;
    if (status == DPAR_OK) {
        status = dpar_comm_alloc(of, 2 * peers * (int64_t)sizeof *record, &memory);
    }
    if (status != DPAR_OK) {
        return status;
    }
    record = (int64_t *)memory;
    for (i = 0; i < peers; i++) {
        record[i] = plan->x.world && plan->x.peer[i].world >= 0
                        ? (int64_t)dpari_ref(plan->x.world, plan->x.line, 1)
                        : 0;
    }
    status = dpari_exchange_records(&plan->x, record, record + peers, 1);
    for (i = 0; i < peers && status == DPAR_OK; i++) {
        dpari_exchange_peer *peer = &plan->x.peer[i];
        if (i == plan->x.self) {
            continue;
        }
        if (record[peers + i] == 0 || peer->world < 0) { /* one cannot reach the other's memory */
            peer->world = -1;
            continue;
        }
        plan->x.shared++;
        peer->line = (dpari_exchange_line *)dpari_at(plan->x.world, (uint64_t)record[peers + i]);
        if (!peer->line) {
            status = dpari_exchange_unmapped(&plan->x, (uint64_t)record[peers + i]);
        }
    }
    dpar_comm_release(of, memory);
    return status;
}

/* Prepares a copy of the box `common` between two arrays, each of which begins at the first point
 * of its box. */
static void dpari_pencil_set_copy(const dpari_pencil *plan, dpari_pencil_copy *copy,
                                  const dpari_pencil_box *common, const dpari_pencil_box *to,
                                  const dpari_pencil_box *from)
{
    int32_t d;
    dpari_pencil_prepare(copy, common->count, to->stride, from->stride, plan->cut.point,
                         dpari_cpu_wide());
    for (d = 0; d < 3; d++) {
        copy->to_at += (common->first[d] - to->first[d]) * to->stride[d] * plan->cut.point;
        copy->from_at += (common->first[d] - from->first[d]) * from->stride[d] * plan->cut.point;
    }
}

/* Plans what this rank gives to peer i in a direction. *used: bytes of the messages so far. *next:
 * the first copy that is not used yet. */
static void dpari_pencil_set_give(dpari_pencil *plan, int32_t direction, int32_t i, int64_t *used,
                                  dpari_pencil_copy **next)
{
    const int64_t entry = (int64_t)direction * plan->x.peers + i;
    const dpari_pencil_box mine =
        dpari_pencil_box_of(&plan->cut, plan->x.comm->rank, direction / 3);
    const dpari_pencil_box theirs =
        dpari_pencil_box_of(&plan->cut, plan->x.peer[i].rank, direction % 3);
    dpari_pencil_side *give = &plan->give[entry];
    dpari_pencil_box common, packed;
    if (i == plan->x.self || dpari_pencil_common(&mine, &theirs, &common) == 0) {
        return;
    }
    give->copy = (*next)++;
    if (plan->x.peer[i].world >= 0) { /* into a copy of the array, of the same shape */
        dpari_pencil_set_copy(plan, give->copy, &common, &mine, &mine);
        plan->flow[entry].lends[DPARI_EXCHANGE_FORWARD] = 1;
        plan->lends[direction] = 1;
        plan->meets[direction] = 1;
        return;
    }
    packed = common;
    dpari_pencil_pack_strides(&plan->cut, direction / 3, &packed);
    dpari_pencil_set_copy(plan, give->copy, &common, &packed, &mine);
    plan->flow[entry].out_bytes[DPARI_EXCHANGE_FORWARD] = give->copy->bytes;
    give->at = -1;
    if (!give->copy->whole[1]) {
        give->at = *used;
        *used += dpari_exchange_lines(give->copy->bytes);
    }
}

/* Plans what this rank takes from peer i in a direction, as dpari_pencil_set_give does. */
static void dpari_pencil_set_take(dpari_pencil *plan, int32_t direction, int32_t i, int64_t *used,
                                  dpari_pencil_copy **next)
{
    const int64_t entry = (int64_t)direction * plan->x.peers + i;
    const dpari_pencil_box mine =
        dpari_pencil_box_of(&plan->cut, plan->x.comm->rank, direction % 3);
    const dpari_pencil_box theirs =
        dpari_pencil_box_of(&plan->cut, plan->x.peer[i].rank, direction / 3);
    dpari_pencil_side *take = &plan->take[entry];
    dpari_pencil_box common, packed;
    if (dpari_pencil_common(&theirs, &mine, &common) == 0) {
        return;
    }
    take->copy = (*next)++;
    plan->flow[entry].takes[DPARI_EXCHANGE_FORWARD] = i != plan->x.self;
    if (plan->x.peer[i].world >= 0) {
        dpari_pencil_set_copy(plan, take->copy, &common, &mine, &theirs);
        plan->meets[direction] |= i != plan->x.self;
        return;
    }
    packed = common;
    dpari_pencil_pack_strides(&plan->cut, direction / 3, &packed);
    dpari_pencil_set_copy(plan, take->copy, &common, &mine, &packed);
    plan->flow[entry].in_bytes[DPARI_EXCHANGE_FORWARD] = take->copy->bytes;
    take->at = -1;
    if (!take->copy->whole[0] || !take->copy->same) {
        take->at = *used;
        *used += dpari_exchange_lines(take->copy->bytes);
    }
}

/* Plans all directions, and allocates the memory of messages, which all directions share. */
static dpar_status dpari_pencil_set_ways(dpari_pencil *plan)
{
    dpari_pencil_copy *next = plan->copies;
    int64_t out = 0, in = 0;
    void *memory = NULL;
    dpar_status status;
    int32_t direction, i;
    for (direction = 0; direction < DPARI_PENCIL_DIRECTIONS; direction++) {
        int64_t sends = 0, receives = 0;
        for (i = 0; i < plan->x.peers && dpari_pencil_is_direction(direction); i++) {
            dpari_pencil_set_give(plan, direction, i, &sends, &next);
            dpari_pencil_set_take(plan, direction, i, &receives, &next);
        }
        out = dpari_most(out, sends);
        in = dpari_most(in, receives);
    }
    if (out + in == 0) {
        return DPAR_OK;
    }
    status = dpar_comm_alloc(dpari_pencil_memory_of(plan), out + in, &memory);
    plan->out_messages = (unsigned char *)memory;
    plan->in_messages = plan->out_messages + (status == DPAR_OK ? out : 0);
    return status;
}

/* Releases the memory of a plan. */
static void dpari_pencil_release(dpari_pencil *plan)
{
    dpar_comm *of = dpari_pencil_memory_of(plan);
    dpar_comm_release(of, plan->out_messages);
    dpar_comm_release(of, plan->lent);
    dpar_comm_release(of, plan->owned);
}

/* Makes a plan for a grid. Collective. */
static dpar_status dpari_pencil_plan_grid(dpar_comm *comm, const dpari_pencil_cut *cut, int32_t tag,
                                          dpari_pencil **made, dpar_why *why)
{
    dpari_pencil *plan = NULL;
    dpar_status status = dpari_pencil_alloc(comm, cut, &plan, why);
    status = dpari_agree_on(comm, status, "pencil", NULL, NULL, why);
    if (status == DPAR_OK) {
        dpari_pencil_set(plan, cut, tag);
        dpari_pencil_set_peers(plan);
        status = dpari_pencil_meet(plan);
        if (status == DPAR_OK) {
            status = dpari_pencil_set_ways(plan);
        }
        if (status != DPAR_OK) {
            const dpar_comm *of = comm->status != DPAR_OK ? comm : dpari_pencil_memory_of(plan);
            status = dpari_repeat(status, why, of->why.text);
        }
        status = dpari_agree_on(comm, status, "pencil", NULL, NULL, why);
        dpari_pencil_set_functions(plan);
    }
    if (status != DPAR_OK && plan) {
        dpari_pencil_release(plan);
        return status;
    }
    *made = plan;
    return status;
}

/* ---- choosing the grid by measuring ---------------------------------------------------------- */

/* Transposes from 2 over 1 to 0 and back a few times. Each rank times its fastest round, and
 * *seconds is the longest of these times. */
static dpar_status dpari_pencil_time(dpari_pencil *plan, void *a, void *b, double *seconds)
{
    static const int32_t axis[5] = {2, 1, 0, 1, 2};
    dpar_comm *comm = plan->head.comm;
    double least = 0.0;
    int32_t round, k;
    for (round = 0; round < DPARI_PENCIL_ROUNDS; round++) {
        dpar_status status = dpar_barrier(comm, NULL);
        const double began = dpari_os_now();
        for (k = 0; k < 4 && status == DPAR_OK; k++) {
            const int odd = k % 2;
            status =
                dpar_pencil_transpose(&plan->head, axis[k], axis[k + 1], odd ? b : a, odd ? a : b);
        }
        if (status != DPAR_OK) {
            return status;
        }
        if (round == 0 || dpari_os_now() - began < least) {
            least = dpari_os_now() - began;
        }
    }
    return dpar_all_reduce(comm, &least, seconds, 1, DPAR_F64, DPAR_MAX, NULL);
}

/* Makes a plan for a grid, measures it and frees the plan. Collective. */
static dpar_status dpari_pencil_try(dpar_comm *comm, const dpari_pencil_cut *cut, int32_t tag,
                                    double *seconds, dpar_why *why)
{
    dpari_pencil *plan = NULL;
    void *a, *b = NULL;
    dpar_status status = dpari_pencil_plan_grid(comm, cut, tag, &plan, why);
    if (status != DPAR_OK) {
        return status;
    }
    a = dpar_pencil_array(&plan->head);
    if (a) {
        b = dpar_pencil_array(&plan->head);
    }
    if (!b) {
        status = dpari_repeat(DPAR_E_MEMORY, why, comm->why.text);
    }
    status = dpari_agree_on(comm, status, "pencil", NULL, NULL, why);
    if (status == DPAR_OK) {
        status = dpari_pencil_time(plan, a, b, seconds);
        if (status != DPAR_OK) {
            status = dpari_repeat(status, why, comm->why.text);
        }
    }
    dpar_comm_release(comm, a);
    dpar_comm_release(comm, b);
    (void)dpar_pencil_free(&plan->head);
    return status;
}

/* Chooses the grid. Collective if it is measured. */
static dpar_status dpari_pencil_choose(dpar_comm *comm, const dpar_pencil_desc *desc,
                                       dpari_pencil_cut *cut, dpar_why *why)
{
    int32_t grid[DPARI_PENCIL_MOST_GRIDS][2], best = 0, i;
    const int32_t n = dpari_pencil_grids(cut, comm->size, grid);
    double least = 0.0, seconds;
    if (n == 0) {
        return dpari_wrong(
            why,
            "pencil: grid is %d x %d, but the product of its numbers must be %d, the "
            "number of ranks",
            cut->grid[0], cut->grid[1], comm->size);
    }
    for (i = 0; i < n && n > 1 && desc->measure; i++) {
        dpar_status status;
        cut->grid[0] = grid[i][0];
        cut->grid[1] = grid[i][1];
        status = dpari_pencil_try(comm, cut, desc->tag, &seconds, why);
        if (status != DPAR_OK) {
            return status;
        }
        if (i == 0 || seconds < least) {
            least = seconds;
            best = i;
        }
    }
    cut->grid[0] = grid[best][0];
    cut->grid[1] = grid[best][1];
    return DPAR_OK;
}

/* ---- the public functions -------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_pencil_make(dpar_comm *comm, const dpar_pencil_desc *desc,
                                                 dpar_pencil **pencil, dpar_why *why)
{
    dpari_pencil_cut cut;
    dpari_pencil *plan = NULL;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_pencil_make: comm is NULL");
    }
    why = dpari_why_of(comm, why);
    dpari_zero(&cut, sizeof cut);
    if (!desc || !pencil) {
        status = dpari_wrong(why, "dpar_pencil_make: desc or pencil is NULL");
    } else {
        status = dpari_pencil_check_desc(comm, desc, &cut, why);
    }
    status = dpari_agree_on(comm, status, "pencil", dpari_pencil_state, desc, why);
    if (status == DPAR_OK) {
        status = dpari_pencil_choose(comm, desc, &cut, why);
    }
    if (status == DPAR_OK) {
        status = dpari_pencil_plan_grid(comm, &cut, desc->tag, &plan, why);
    }
    if (status == DPAR_OK) {
        *pencil = &plan->head;
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_pencil_free(dpar_pencil *pencil)
{
    dpari_pencil *plan = dpari_pencil_of(pencil);
    dpar_status status;
    int32_t refused;
    if (!pencil) {
        return DPAR_OK;
    }
    status = dpari_exchange_close(&plan->x, "dpar_pencil_free: ", &refused);
    if (!refused) {
        dpari_pencil_release(plan);
    }
    return status;
}

DPAR_API dpar_status dpar_pencil_box(const dpar_pencil *pencil, int32_t axis, int64_t *first,
                                     int64_t *count, int64_t *stride)
{
    const dpari_pencil *plan = dpari_pencil_of(pencil);
    dpari_pencil_box box;
    int32_t d;
    if (!pencil) {
        return DPAR_E_ARG;
    }
    if (axis < 0 || axis > 2) {
        return dpari_comm_wrong(pencil->comm, "dpar_pencil_box: axis %d is not 0, 1 or 2", axis);
    }
    box = dpari_pencil_box_of(&plan->cut, pencil->comm->rank, axis);
    for (d = 0; d < 3; d++) {
        if (first) {
            first[d] = box.first[d];
        }
        if (count) {
            count[d] = box.count[d];
        }
        if (stride) {
            stride[d] = box.stride[d];
        }
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD void *dpar_pencil_array(dpar_pencil *pencil)
{
    const int64_t *bytes;
    void *memory = NULL;
    if (!pencil) {
        return NULL;
    }
    bytes = pencil->bytes;
    (void)dpar_comm_alloc(pencil->comm, dpari_most(bytes[0], dpari_most(bytes[1], bytes[2])),
                          &memory); /* NULL if it fails */
    return memory;
}

#endif /* DPAR_PENCIL_IMPLEMENTATION */
