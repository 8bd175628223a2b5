/* SPDX-License-Identifier: MIT-0 */
/* halo - an n-d grid on a mesh whose ranks also hold what lies around their block: who sends which
 * cells to whom, what can be computed before they arrive, and what a convolution needs. */
#ifndef DPAR_HALO_H
#define DPAR_HALO_H

#include "cart.h"
#include "layout.h"

/* Which points a dim of a staggered field has, when the grid has N cells there. */
enum {
    DPAR_AT_CELLS,     /* N, in the middle of the cells */
    DPAR_AT_LOW_FACES, /* N + 1 faces; each rank owns those below its cells, the last also the end
                        */
    DPAR_AT_HIGH_FACES /* N + 1 faces; each rank owns those above its cells, the first also face 0
                        */
};

/* Zero it, fill it in, and let dpar_halo_check judge it; reuse it for every field on those points.
 * A rank's local array has its own points and around them low[d] + high[d] more in dim d, in C
 * order: dpar_halo_box says which. Ranks without cells have no array. In a periodic dim there are
 * as many faces as cells, numbered with them. Points that two ranks hold (faces between blocks):
 * the owner's value is the one; a width of 1 and an exchange make the copies equal. */
typedef struct dpar_halo {
    dpar_layout grid; /* of the cells; dims cut by CHUNK, EVEN, FLOOR, RAGGED, nested too */
    int32_t shape;    /* DPAR_STENCIL_STAR: no edges and corners; DPAR_STENCIL_BOX */
    int64_t low[DPAR_MAX_DIMS];    /* width below the block, points, 0..2^60; < 16 times round */
    int64_t high[DPAR_MAX_DIMS];   /* and above */
    int32_t points[DPAR_MAX_DIMS]; /* DPAR_AT_CELLS, ... */
    uint32_t periodic;             /* bit d: the end of dim d meets its beginning */
    /* A fold: beyond the end of dim `fold` lies the same edge again, reversed in the later,
     * periodic dim `mirror` (the north of a tripolar ocean grid). With n rows of N columns, point
     * (j, i) is (2 (n - 1) + 1 - on_row - j, (N - 1 + shift - i) mod N). Pivot on a corner of T
     * cells: T points on_row 0, shift 0; u (E) 0, -1; v (N) 1, 0; corners 1, -1. On a T point: T
     * 1, 1. With on_row the last row lies on the fold and is there twice: its second half is
     * overwritten by the first. What came over the fold has `flip` bits: components of vectors
     * change sign. */
    int32_t folds; /* 1: there is one */
    int32_t fold, mirror, on_row, shift;
} dpar_halo;

/* E_ARG or E_RANGE with a sentence. Not collective. O(axes). */
DPAR_API dpar_status dpar_halo_check(const dpar_halo *h, dpar_why *why);

/* ---- boxes; h was checked. O(axes x dims) ---- */

/* Points of a dim in all: its cells, and one more for faces unless periodic. */
DPAR_API int64_t dpar_halo_points(const dpar_halo *h, int32_t dim);
/* The points that a rank owns. 0, and nothing written, when it owns none. */
DPAR_API int dpar_halo_owned(const dpar_halo *h, int32_t rank, dpar_box *box);
/* The points of its local array: owned ones and the halo, so that lo may be negative and hi pass
 * the end. The local index of point i is i - lo. 0 when it has none. */
DPAR_API int dpar_halo_box(const dpar_halo *h, int32_t rank, dpar_box *box);
/* The owned points whose stencil reads nothing that an exchange brings: compute these while it
 * runs. Physical boundaries do not shrink it. 0 when there are none. */
DPAR_API int dpar_halo_core(const dpar_halo *h, int32_t rank, dpar_box *box);
/* The n-th of the disjoint boxes that make up the owned points outside the core: compute these when
 * it has ended. At most 2 dims of them; 1 and *box, or 0 past the last and for an n below 0. */
DPAR_API int dpar_halo_rim(const dpar_halo *h, int32_t rank, int32_t n, dpar_box *box);
/* The n-th of the disjoint boxes that make up the local box outside the owned points: the compact
 * form, a halo beside an untouched block. Below and above dim 0 whole, then those of dim 1 between
 * them, and so on; of a star without edges and corners, where nothing arrives. At most 2 a dim,
 * none of them empty; a transfer lies in one of them (or in the row on a fold). 1 and *box, or 0
 * past the last and for an n below 0. */
DPAR_API int dpar_halo_slab(const dpar_halo *h, int32_t rank, int32_t n, dpar_box *box);
/* Points of all slabs of a rank: 0 when it has none, -1 past 2^63 - 1. */
DPAR_API int64_t dpar_halo_compact(const dpar_halo *h, int32_t rank);

/* ---- transfers ---- */

/* The walk over one rank's transfers: begin, then next until 0. `h` is read on the way. */
enum {
    DPAR_HALO_FORWARD, /* halos receive copies of what their owners have */
    DPAR_HALO_ADJOINT  /* owners receive what halos collected: the transpose. After it zero the
                          halos,  and the half row that a fold overwrote */
};
typedef struct dpar_halo_walk {
    const dpar_halo *h; /* private, all of it */
    int32_t rank, sends, adjoint, pass, state;
    int32_t coord[DPAR_MAX_AXES], peer[DPAR_MAX_AXES];
    int64_t own[DPAR_MAX_DIMS][2];  /* this rank's */
    int64_t from[DPAR_MAX_DIMS][2]; /* sends: receivers to visit in a dim */
    int64_t at[DPAR_MAX_DIMS][2];   /* the receiver's own */
    int64_t x[DPAR_MAX_DIMS], n[DPAR_MAX_DIMS], g[DPAR_MAX_DIMS], source[DPAR_MAX_DIMS];
    uint32_t inside, reversed;
} dpar_halo_walk;

/* What `rank` receives (each halo point that has an image, inside, around or over the fold, exactly
 * once; nothing else), or what it sends. Not collective and without talking: the k-th send from a
 * to b is the k-th receive of b from a, also when b is both neighbours of a, or a itself. A halo
 * may reach past the neighbour and round the domain more than once; empty blocks are passed over.
 * The adjoint's receives are the forward's sends in the same order, with op DPAR_SUM: add in that
 * order and the result does not depend on arrival. `mine` and `theirs` count in local arrays
 * (dpar_halo_box), `global` in points, on this rank's side. E_ARG as dpar_halo_check, or a
 * direction that does not exist (DPAR_RECEIVES, DPAR_SENDS of redistribute.h). A step costs O(dims
 * x axes); a list O(its transfers x dims). */
DPAR_API dpar_status dpar_halo_begin(dpar_halo_walk *w, const dpar_halo *h, int32_t rank,
                                     int32_t direction, int32_t mode, dpar_why *why);
/* 1 and the next transfer, or 0 at the end. */
DPAR_API int dpar_halo_next(dpar_halo_walk *w, dpar_transfer *t);

/* ---- what operators need: convolution, pooling, stencils with stride, along one dim ---- */

typedef struct dpar_window {
    int64_t kernel;           /* taps, at least 1 */
    int64_t stride, dilation; /* 0 means 1 */
    int64_t pad_low, pad_high;
    int32_t ceil_mode; /* pooling: a last window that begins inside counts */
} dpar_window;

/* *outputs = floor((n + pads - dilation (kernel - 1) - 1) / stride) + 1 of n inputs, as torch and
 * cuDNN. E_ARG or E_RANGE with a sentence, also when the kernel does not fit. */
DPAR_API dpar_status dpar_window_outputs(const dpar_window *v, int64_t inputs, int64_t *outputs,
                                         dpar_why *why);
/* Below, v is one that dpar_window_outputs takes. The outputs that go with inputs [lo, hi) of n:
 * those whose stride y falls inside (the last inputs take what is beyond). Small halos; balanced
 * outputs are a dpar_split of them instead. */
DPAR_API void dpar_window_owned(const dpar_window *v, int64_t inputs, int64_t outputs, int64_t lo,
                                int64_t hi, int64_t *y0, int64_t *y1);
/* Inputs [*lo, *hi) that outputs [y0, y1) read, padding too: [stride y0 - pad, stride (y1 - 1) +
 * dilation (kernel - 1) - pad + 1). 0, nothing written, when y1 <= y0, y0 < 0 or y1 > 2^60 /
 * stride. */
DPAR_API int dpar_window_needs(const dpar_window *v, int64_t y0, int64_t y1, int64_t *lo,
                               int64_t *hi);
/* The same for the transposed convolution: [ceil((y0 + pad - dilation (kernel - 1)) / stride),
 * floor((y1 - 1 + pad) / stride) + 1), within 0..inputs. 0 when that is empty, y0 < 0 or y1 > 2^61.
 */
DPAR_API int dpar_window_transposed(const dpar_window *v, int64_t inputs, int64_t y0, int64_t y1,
                                    int64_t *lo, int64_t *hi);
/* How far those needs reach beyond a block [own_lo, own_hi) of n inputs: negative when not even the
 * block is needed. Padding is nobody's: outside 0..n-1 is cut off unless periodic. Without outputs
 * both are 0. 0 <= own_lo <= own_hi <= inputs. */
DPAR_API void dpar_window_halo(const dpar_window *v, int64_t inputs, int periodic, int64_t own_lo,
                               int64_t own_hi, int64_t y0, int64_t y1, int64_t *low, int64_t *high);
/* Neighbourhood attention: the first of the `kernel` keys, `dilation` apart, that query i of n
 * sees: centred, moved inward at the ends of its dilation group. -1 when the group is shorter than
 * the kernel or i is outside. Only keys and values need a halo. */
DPAR_API int64_t dpar_window_start(const dpar_window *v, int64_t inputs, int64_t i);

#endif
