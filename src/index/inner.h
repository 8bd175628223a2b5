/* SPDX-License-Identifier: MIT-0 */
/* inner - private: what the modules of index, and the folders above, use of one another beyond what
 * is public. */
#ifndef DPARI_INDEX_INNER_H
#define DPARI_INDEX_INNER_H

#include "../base/inner.h"
#include "cart.h"
#include "flat.h"
#include "layout.h"
#include "mesh.h"
#include "split.h"
#include "window.h"

/* The next ordered factorisation of `ranks` into parts[0 .. dims-1], in lexicographic order;
 * parts[0] = 0 on entry asks for the first. OK; DONE when there is none left (parts untouched);
 * E_ARG. All state is in parts. ranks >= 1, 1 <= dims <= DPAR_MAX_DIMS. O(dims * divisors of ranks)
 * a step, and finding the prime factors. */
DPARI_API dpar_status dpari_cart_next_parts(int32_t ranks, int32_t dims, int32_t *parts);
/* Along how many axes at once neighbours of that shape lie: 1, dims, 2; 0: there is no such shape.
 */
DPARI_API int32_t dpari_stencil_axes(int32_t shape, int32_t dims);

/* Mixes a number into a sum that tells sequences apart. */
DPARI_API uint32_t dpari_digest(uint32_t sum, int64_t v);
/* OK where both sums are the same; else E_MISMATCH, and the sentence says what differs. */
DPARI_API dpar_status dpari_differs(uint32_t sum, uint32_t right, const char *what, dpar_why *why);

/* True if the parts follow one another and each is contiguous. */
DPARI_API int dpari_split_in_order(const dpar_split *s);

/* True if both meshes have the same ranks at the same coordinates, whatever their axes are called.
 */
DPARI_API int dpari_mesh_same(const dpar_mesh *a, const dpar_mesh *b);
/* True if no two coordinates have the same rank, for a mesh that the caller filled in by hand.
 * Exact; costs only O(axes^2) for nested strides. */
DPARI_API int dpari_mesh_injective(const dpar_mesh *mesh);

/* The first index and one past the last of a dim that the ranks at coord[] own, with what others
 * own between them. 0, and nothing written, when they own none. Coordinates of axes that do not
 * shard the dim do not matter. O(axes). */
DPARI_API int dpari_layout_span(const dpar_layout *l, const int32_t *coord, int32_t dim,
                                int64_t *lo, int64_t *hi);
/* How many ranks hold each element: the product of the axes that do not shard. */
DPARI_API int32_t dpari_layout_copies(const dpar_layout *l);

/* A flat parameter of FSDP1. */
typedef struct dpari_flat {
    int32_t ranks;
    int64_t total; /* elements, parameters with the gaps between them */
    int64_t shard; /* elements of a rank: total rounded up to whole shards */
} dpari_flat;
/* Lays parameters of numel[i] elements in order, each start a multiple of `align` elements, and
 * cuts the whole into equal shards, the last padded. start[i] receives where each begins. E_ARG,
 * E_RANGE with a sentence. O(params). */
DPARI_API dpar_status dpari_flat_init(dpari_flat *f, int32_t params, const int64_t *numel,
                                      int64_t align, int32_t ranks, int64_t *start, dpar_why *why);
/* The piece of a parameter at start, numel that lies in a rank's shard. 0, and nothing written,
 * when there is none. O(1). */
DPARI_API int dpari_flat_piece(const dpari_flat *f, int64_t start, int64_t numel, int32_t rank,
                               dpar_piece *piece);
/* PyTorch's DDP: buckets of 25 MiB, the first of 1 MiB, nothing padded. */
DPARI_API dpar_buckets_desc dpari_bucketing_ddp(int64_t element_bytes);

/* Ulysses: from a share of the sequence with all heads to all of the sequence with a share of the
 * heads. What `rank` sends to and receives from each of seq->parts ranks, in elements of `width` a
 * token and head, and where it begins (dense, by rank): the counts of MPI_Alltoallv. Backwards:
 * exchange the two. Any of the arrays may be NULL. E_ARG with a sentence when the two splits differ
 * in parts, or the counts pass 2^63. O(ranks). */
DPARI_API dpar_status dpari_ulysses_counts(const dpar_split *seq, const dpar_split *heads,
                                           int32_t rank, int64_t width, int64_t *send,
                                           int64_t *send_at, int64_t *receive, int64_t *receive_at,
                                           dpar_why *why);

/* Below, v is one that dpari_window_check takes. The outputs that go with inputs [lo, hi) of n:
 * those whose stride y falls inside (the last inputs take what is beyond); transposed: y / stride,
 * interpolation: y n / outputs. Small halos; balanced outputs are a dpar_split of them instead. */
DPARI_API void dpari_window_owned(const dpar_window *v, int64_t inputs, int64_t outputs, int64_t lo,
                                  int64_t hi, int64_t *y0, int64_t *y1);
/* Inputs [*lo, *hi) from the first to the last that outputs [y0, y1) read, of any kind; of a
 * convolution with padding, which lies outside 0..inputs-1. 0, nothing written, when there are none
 * or y0 < 0 or y1 > outputs. O(1), neighbourhood O(dilation). */
DPARI_API int dpari_window_reads(const dpar_window *v, int64_t inputs, int64_t outputs, int64_t y0,
                                 int64_t y1, int64_t *lo, int64_t *hi);
/* dpari_window_reads of a convolution alone, padding too: [stride y0 - pad, stride (y1 - 1) +
 * dilation (kernel - 1) - pad + 1). 0, nothing written, when y1 <= y0, y0 < 0 or
 * y1 - 1 > 2^61 / stride. */
DPARI_API int dpari_window_needs(const dpar_window *v, int64_t y0, int64_t y1, int64_t *lo,
                                 int64_t *hi);
/* The same for the transposed convolution: [ceil((y0 + pad - dilation (kernel - 1)) / stride),
 * floor((y1 - 1 + pad) / stride) + 1), within 0..inputs. 0 when that is empty, y0 < 0 or
 * y1 - 1 > 2^61. */
DPARI_API int dpari_window_transposed(const dpar_window *v, int64_t inputs, int64_t y0, int64_t y1,
                                      int64_t *lo, int64_t *hi);

/* ---- of this header's own modules ---- */

/* The part of EVEN that has element i of n: dpar_split_owner without a split. O(1). */
DPARI_INTERNAL int32_t dpari_even_of(int64_t n, int32_t parts, int64_t i);
/* Changes the number of elements to `count`, 0..2^62, and keeps the rule. RAGGED keeps its cuts,
 * whose last one must be `count`. O(1). */
DPARI_INTERNAL void dpari_split_resize(dpar_split *s, int64_t count);
/* How many elements of `part` lie before element i of the whole (0 <= i <= N): the local index of
 * the first that does not. O(1), as INFOG1L of ScaLAPACK. */
DPARI_INTERNAL int64_t dpari_split_before(const dpar_split *s, int32_t part, int64_t i);

/* How many indices before i the rank owns in a dim: the local index of the first one at or after i.
 * O(axes). */
DPARI_INTERNAL int64_t dpari_layout_before(const dpar_layout *l, int32_t rank, int32_t dim,
                                           int64_t i);
/* True if two layouts put the same indices on the same ranks (same mesh, extents and cuts).
 * O(axes). */
DPARI_INTERNAL int dpari_layout_same(const dpar_layout *a, const dpar_layout *b);
/* Cuts by the axes in that order. */
DPARI_INTERNAL void dpari_layout_cut_in(dpar_layout *l, const int8_t *order);

/* Checks whether v can have so many outputs: the number of dpar_window_outputs; for a transposed
 * convolution up to max(stride, dilation) - 1 more; for an interpolation any number, with inputs
 * and outputs 1..2^30. O(1). */
DPARI_INTERNAL dpar_status dpari_window_check(const dpar_window *v, int64_t inputs, int64_t outputs,
                                              dpar_why *why);
/* Of outputs [*y0, *y1) those that read nothing outside of inputs [lo, hi): what can be computed of
 * them alone; of a neighbourhood with dilation, where these lie in between others, without those
 * that do. lo = INT64_MIN, hi = INT64_MAX: nothing is missing on that side. O(log(outputs)) times
 * dpari_window_reads. */
DPARI_INTERNAL void dpari_window_whole(const dpar_window *v, int64_t inputs, int64_t outputs,
                                       int64_t lo, int64_t hi, int64_t *y0, int64_t *y1);
/* Neighbourhood attention: the first of the `kernel` keys, `dilation` apart, that query i of n
 * sees: centred, moved inward at the ends of its dilation group. -1 when the group is shorter than
 * the kernel or i is outside. Only keys and values need a halo. */
DPARI_INTERNAL int64_t dpari_window_start(const dpar_window *v, int64_t inputs, int64_t i);

#endif
