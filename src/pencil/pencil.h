/* SPDX-License-Identifier: MIT-0 */
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
#ifndef DPARI_PENCIL_PENCIL_H
#define DPARI_PENCIL_PENCIL_H

#include "../comm/comm.h"

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

#endif
