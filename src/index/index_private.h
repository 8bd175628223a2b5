/* SPDX-License-Identifier: MIT-0 */
/* index_private - private: the functions of index that are not public but are used by its other
 * modules or by other folders. */
#ifndef DPARI_INDEX_INDEX_PRIVATE_H
#define DPARI_INDEX_INDEX_PRIVATE_H

#include "../base/base_private.h"
#include "cart.h"
#include "flat.h"
#include "layout.h"
#include "mesh.h"
#include "split.h"
#include "window.h"

/* Advances parts[0 .. dims-1] to the next ordered factorisation of `ranks`, in lexicographic order.
 * Set parts[0] = 0 to get the first one; there is no other state. Returns DPAR_OK, or DPAR_DONE and
 * leaves the parts unchanged if there is none left. Fails with DPAR_E_ARG. ranks >= 1, 1 <= dims <=
 * DPAR_MAX_DIMS. Costs O(dims * divisors of ranks) and the search for the prime factors. */
DPARI_API dpar_status dpari_cart_next_parts(int32_t ranks, int32_t dims, int32_t *parts);
/* Returns along how many axes at once a neighbour of this stencil shape may differ: 1, dims or 2.
 * Returns 0 if the shape does not exist. */
DPARI_API int32_t dpari_stencil_axes(int32_t shape, int32_t dims);

/* Adds a number to a checksum, which depends on the order of the numbers. */
DPARI_API uint32_t dpari_digest(uint32_t sum, int64_t v);
/* Fails with DPAR_E_MISMATCH if the sums differ; the message names `what`. */
DPARI_API dpar_status dpari_differs(uint32_t sum, uint32_t right, const char *what, dpar_why *why);

/* True if the parts follow one another and each is contiguous. */
DPARI_API int dpari_split_in_order(const dpar_split *split);

/* True if both meshes have the same ranks at the same coordinates, whatever their axes are called.
 */
DPARI_API int dpari_mesh_same(const dpar_mesh *a, const dpar_mesh *b);
/* True if no two coordinates have the same rank, for a mesh that the caller filled in by hand.
 * Exact; costs only O(axes^2) for nested strides. */
DPARI_API int dpari_mesh_injective(const dpar_mesh *mesh);

/* Computes the first index and one past the last index of a dim that the ranks at coord[] own.
 * Other ranks may own indices between them. Returns 1, or 0 without writing if they own none.
 * Coordinates of axes that do not shard the dim are ignored. O(axes). */
DPARI_API int dpari_layout_span(const dpar_layout *layout, const int32_t *coord, int32_t dim,
                                int64_t *lo, int64_t *hi);
/* Returns how many ranks hold each element, the product of the axes that do not shard. */
DPARI_API int32_t dpari_layout_copies(const dpar_layout *layout);

/* A flat parameter of FSDP1. */
typedef struct dpari_flat {
    int32_t ranks;
    int64_t total; /* elements of the buffer: parameters and the gaps between them */
    int64_t shard; /* elements per rank: total / ranks, rounded up */
} dpari_flat;
/* Places parameters of numel[i] elements one after another, each at a multiple of `align` elements,
 * and cuts the buffer into equal shards, the last of which is padded. start[i] receives the first
 * element of each parameter. Fails with DPAR_E_ARG or DPAR_E_RANGE. O(params). */
DPARI_API dpar_status dpari_flat_init(dpari_flat *flat, int32_t params, const int64_t *numel,
                                      int64_t align, int32_t ranks, int64_t *start, dpar_why *why);
/* Computes the piece of a parameter of `numel` elements at `start` that is in a rank's shard.
 * Returns 1, or 0 without writing if there is none. O(1). */
DPARI_API int dpari_flat_piece(const dpari_flat *flat, int64_t start, int64_t numel, int32_t rank,
                               dpar_piece *piece);
/* Returns the buckets of PyTorch's DDP: 1 MiB for the first one, 25 MiB for the others, without
 * padding. */
DPARI_API dpar_buckets_desc dpari_bucketing_ddp(int64_t element_bytes);

/* Computes the counts and offsets of MPI_Alltoallv for Ulysses, which turns a share of the sequence
 * with all heads into the whole sequence with a share of the heads. They are what `rank` sends to
 * and receives from each of seq->parts ranks, with `width` elements per token and head. To go
 * back, exchange the two. Any array may be NULL. Fails with DPAR_E_ARG if the splits have different
 * numbers of parts or a count exceeds 2^63 - 1. O(ranks). */
DPARI_API dpar_status dpari_ulysses_counts(const dpar_split *seq, const dpar_split *heads,
                                           int32_t rank, int64_t width, int64_t *send,
                                           int64_t *send_at, int64_t *receive, int64_t *receive_at,
                                           dpar_why *why);

/* In the following functions, `window` has passed dpari_window_check. This one computes the outputs
 * that belong to inputs [lo, hi). Output y belongs to input y x stride, or to the last input if
 * that does not exist; for a transposed convolution to input y / stride, for an interpolation to
 * input y x inputs / outputs. This keeps halos small; a dpar_split of the outputs would balance
 * them instead. */
DPARI_API void dpari_window_owned(const dpar_window *window, int64_t inputs, int64_t outputs,
                                  int64_t lo, int64_t hi, int64_t *y0, int64_t *y1);
/* Computes the inputs [*lo, *hi) from the first to the last one that outputs [y0, y1) read, for any
 * kind of window. For a convolution they include the padding, which is outside of 0..inputs-1.
 * Returns 1, or 0 without writing if there are none, y0 < 0 or y1 > outputs. O(1), or O(dilation)
 * for a neighbourhood. */
DPARI_API int dpari_window_reads(const dpar_window *window, int64_t inputs, int64_t outputs,
                                 int64_t y0, int64_t y1, int64_t *lo, int64_t *hi);

/* ---- of this header's own modules ---- */

/* Returns the part that has element i of n by the rule EVEN, as dpar_split_owner does, but without
 * a split. O(1). */
DPARI_INTERNAL int32_t dpari_even_of(int64_t n, int32_t parts, int64_t i);
/* Changes the number of elements to `count`, 0..2^62, and keeps the rule. RAGGED keeps its cuts,
 * whose last one must be `count`. O(1). */
DPARI_INTERNAL void dpari_split_resize(dpar_split *split, int64_t count);
/* Returns how many elements of `part` are before element i of the whole (0 <= i <= N), which is the
 * local index of its first element from i on. O(1), as INFOG1L of ScaLAPACK. */
DPARI_INTERNAL int64_t dpari_split_before(const dpar_split *split, int32_t part, int64_t i);

/* Returns how many indices before i the rank owns in a dim, which is the local index of its first
 * one from i on. O(axes). */
DPARI_INTERNAL int64_t dpari_layout_before(const dpar_layout *layout, int32_t rank, int32_t dim,
                                           int64_t i);
/* True if two layouts put the same indices on the same ranks (same mesh, extents and cuts).
 * O(axes). */
DPARI_INTERNAL int dpari_layout_same(const dpar_layout *a, const dpar_layout *b);
/* Makes the axes cut in this order, and sets their `order` accordingly. */
DPARI_INTERNAL void dpari_layout_cut_in(dpar_layout *layout, const int8_t *order);

/* Checks whether a window can have this many outputs. It can have the number of
 * dpar_window_outputs, for a transposed convolution up to max(stride, dilation) - 1 more, and for
 * an interpolation any number, if inputs and outputs are 1..2^30. O(1). */
DPARI_INTERNAL dpar_status dpari_window_check(const dpar_window *window, int64_t inputs,
                                              int64_t outputs, dpar_why *why);
/* Reduces outputs [*y0, *y1) to those that read no inputs outside of [lo, hi), so that they can be
 * computed without the others. lo = INT64_MIN or hi = INT64_MAX means that no input is missing on
 * that side. In a neighbourhood with dilation, it also leaves out outputs that could be computed
 * but are between others that cannot. Costs O(log(outputs)) calls of dpari_window_reads. */
DPARI_INTERNAL void dpari_window_whole(const dpar_window *window, int64_t inputs, int64_t outputs,
                                       int64_t lo, int64_t hi, int64_t *y0, int64_t *y1);
/* Neighbourhood attention: returns the first of the `kernel` keys, `dilation` apart, that query i
 * sees. The keys are centred at i, but moved inward at the ends of their dilation group. Returns -1
 * if the group is shorter than the kernel or i is out of range. Only keys and values need a halo.
 */
DPARI_INTERNAL int64_t dpari_window_start(const dpar_window *window, int64_t inputs, int64_t i);

#endif
