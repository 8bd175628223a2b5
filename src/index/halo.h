/* SPDX-License-Identifier: MIT-0 */
/* halo - an n-d grid on a mesh whose ranks also hold the points around their block: who sends which
 * points to whom, and what can be computed before they arrive. dpar_halo.h moves them, and
 * dpar_grid there is the short way.
 *
 *     dpar_halo h = {0};
 *     h.grid = layout;                                cells on a mesh, dpar_layout_init
 *     h.low[0] = h.high[0] = h.low[1] = h.high[1] = 1;
 *     h.periodic = 1 << 1;                            dim 1 is a ring
 *     dpar_halo_check(&h, &why);
 *     dpar_halo_box(&h, rank, &box);                  the local array, halo included
 *     dpar_halo_first(&w, &h, rank, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, &why);
 *     while (dpar_halo_next(&w, &t))                  what arrives from whom */
#ifndef DPARI_INDEX_HALO_H
#define DPARI_INDEX_HALO_H

#include "cart.h"
#include "layout.h"
#include "window.h"

/* Which points a dim of a staggered field has, when the grid has N cells there. */
enum {
    DPAR_HALO_AT_CELLS,     /* N, in the middle of the cells */
    DPAR_HALO_AT_LOW_FACES, /* N + 1; each rank owns those below its cells, the last also the end */
    DPAR_HALO_AT_HIGH_FACES /* N + 1; each rank owns those above its cells, the first also face 0 */
};

/* How the faces of a cubed sphere meet (dpar_halo.cube). They are tiles 1 to 6 of the cubic mosaic
 * of GFDL's FMS (FV3), less 1: the twelve contacts of define_cubic_mosaic in its test_mpp_domains.
 * On a cube:
 *
 *     face  0   1   2   3   4   5
 *     is   +X  +Y  +Z  -X  -Y  -Z
 *     x to +Y  -X  -X  -Z  -Z  +Y
 *     y to +Z  +Z  -Y  -Y  +X  +X
 *
 * From even faces east leads to the next face as it is, and north to the one after it, turned. From
 * odd faces it is the other way round. All are right-handed, seen from outside. Halos are at most N
 * wide. At the cube's corners three faces meet: halo points there have no image and stay as they
 * are.
 *
 * Points on faces of cells (C- and D-grids): each face of the cube has N x N for each component,
 * numbered with the cells. With DPAR_HALO_AT_LOW_FACES a face owns those on its west or south edge.
 * Those on its east or north edge are the first points beyond, and the next face's: each edge is
 * west or south of one of its two faces. DPAR_HALO_AT_HIGH_FACES is the other way round.
 *
 * Beyond an edge all points of the face there have an image, its border too. Where a third face
 * owns the border it comes from there, with both turns. Points at corners of cells (both dims) are
 * E_ARG: two of the cube's 8 corners would be nobody's. */

/* A grid and its halo. Zero it, fill it in, and let dpar_halo_check judge it; reuse it for every
 * field on the same points.
 *
 * A rank's local array has its own points and low[d] + high[d] more around them in dim d, in C
 * order; dpar_halo_box says which. A rank without cells has no array. In a periodic dim, and on a
 * cubed sphere, there are as many faces as cells, numbered with them.
 *
 * Two ranks hold the faces between their blocks; the owner's value counts. A width of 1 and
 * DPAR_HALO_SYNC make the copies equal; a plan with dpar_halo_plan_desc.shared runs it. */
typedef struct dpar_halo {
    dpar_layout grid; /* the cells; dims cut by CHUNK, EVEN, FLOOR, RAGGED, nested too */
    int32_t shape; /* what arrives. 0, DPAR_STENCIL_STAR: no edges and corners; DPAR_STENCIL_EDGES:
                      no corners; DPAR_STENCIL_BOX: all, for codes that read diagonal neighbours */
    int64_t low[DPAR_MAX_DIMS];    /* width below the block, in points, 0..2^60; less than 16 times
                                      round a ring */
    int64_t high[DPAR_MAX_DIMS];   /* and above */
    int32_t points[DPAR_MAX_DIMS]; /* DPAR_HALO_AT_CELLS, ... */
    uint32_t periodic;             /* bit d: the end of dim d meets its beginning */
    /* A fold, as the north of a tripolar ocean grid: beyond the end of dim `fold` lies the same
     * edge again, reversed in the later, periodic dim `mirror`. With n rows of N columns, point (j,
     * i) beyond is (2 (n - 1) + 1 - on_row - j, (N - 1 + shift - i) mod N).
     *
     * Pivot on a corner of T cells: T points have on_row 0, shift 0; u (E) 0, -1; v (N) 1, 0;
     * corners 1, -1; all have the rows of T. Pivot on a T point: T has 1, 1; u 1, 0; v 0, 1;
     * corners 0, 0. There v and corners have one row less than T, since their row above T's last
     * one lies beyond the fold. With on_row the last row lies on the fold and is there twice: its
     * first half overwrites the second. What comes over the fold has `turn` 2: components of
     * vectors change sign. */
    int32_t folds; /* 1: there is one */
    int32_t fold, mirror, on_row, shift;
    /* Poles of a latitude-longitude grid at the ends of dim `fold`, round which the later, periodic
     * dim `mirror` goes; its N columns are even. Beyond the high pole (j, i) is (2 (n - 1) + 1 -
     * on_row - j, i + N/2 mod N). Beyond the low one it is (on_row - 1 - j, the same).
     *
     * on_row is the pole's bit in pole_rows: the end row lies on the pole itself, and its points
     * are left to their owners. A low pole may stand opposite a fold. Vectors change sign as over a
     * fold. */
    uint32_t poles;     /* DPAR_HALO_POLE_LOW, DPAR_HALO_POLE_HIGH or both */
    uint32_t pole_rows; /* poles whose end row lies on the pole; others are half a cell away */
    /* The six faces of a cubed sphere, which meet as said above. Dim 0 is the face, the last two
     * dims are y and x, both of N cells; dims between them are levels. */
    int32_t cube; /* 1: it is one */
    /* The partner of a field of faces on a cubed sphere; NULL: none. Such fields come in pairs (u,
     * v). On a C-grid u lies on faces along x and v on faces along y; on a D-grid the other way
     * round. Over an edge with one or three quarter turns u's halo gets v's points.
     *
     * This is the other field's halo, for dpar_halo_first alone; an exchange finds it by
     * dpar_halo_field.pair. It has the same grid and owners, no windows, the points of y and x
     * exchanged, and widths of its own. */
    const struct dpar_halo *partner;
    /* Who owns a block, where block n is not rank n's; NULL: it is. owner[number of the block in
     * the mesh] is a rank of the communicator, each at most once. -1 masks a block: its points do
     * not exist, and halos there stay as they are.
     *
     * With owners `rank` means that of the communicator, also in transfers. Functions take
     * O(blocks) to find a rank's block. The array is the caller's and must live as long as this. */
    const int32_t *owner;
    /* Operators that read windows, as convolutions. Where window[d].kernel is not 0, a rank's local
     * array in dim d begins and ends with the first and last of its own points and of those that
     * its outputs read. A convolution's padding counts; an exchange leaves it as it is. low and
     * high come beyond. The shape is then a box.
     *
     * Only a convolution goes round a periodic dim. A rank without points of its own may have
     * outputs, and so an array: it only receives. */
    dpar_window window[DPAR_MAX_DIMS];
    /* The layout of the outputs: the same mesh, whose axes cut the same dims in the same order, by
     * any rule that leaves blocks in one piece. Dims without window: as the inputs. The caller's;
     * it must live as long as this.
     *
     * NULL: outputs go with their inputs. A rank has the outputs y whose input lies in its block:
     * stride y, transposed y / stride, interpolation y inputs / outputs. */
    const dpar_layout *outputs;
} dpar_halo;

enum { DPAR_HALO_POLE_LOW = 1, DPAR_HALO_POLE_HIGH = 2 };

/* Judges a grid and its halo. E_ARG or E_RANGE with a sentence. Not collective. O(axes), with
 * owners O(blocks). */
DPAR_API dpar_status dpar_halo_check(const dpar_halo *h, dpar_why *why);

/* ---- boxes; dpar_halo_check took h. O(axes x dims) ---- */

/* Points of a dim over all ranks: its cells, and one more for faces unless periodic. */
DPAR_API int64_t dpar_halo_points(const dpar_halo *h, int32_t dim);
/* The points that a rank owns. 1; 0, nothing written, when it owns none. */
DPAR_API int dpar_halo_owned(const dpar_halo *h, int32_t rank, dpar_box *box);
/* The points of a rank's local array: those that it owns and the halo. lo may be negative and hi
 * may pass the end. Point i has the local index i - lo. 1; 0 when the rank has no array. With
 * windows a rank that owns nothing may have one. */
DPAR_API int dpar_halo_box(const dpar_halo *h, int32_t rank, dpar_box *box);
/* What a rank computes: the points that it owns, with windows its outputs. 1; 0 when none. */
DPAR_API int dpar_halo_outputs(const dpar_halo *h, int32_t rank, dpar_box *box);
/* The part of what a rank computes that reads nothing that an exchange brings: compute it while the
 * exchange runs. Physical boundaries do not shrink it. With windows single outputs outside of it
 * may wait for nothing, too: those all in padding or in gaps of a dilation. 1; 0 when there is
 * none. */
DPAR_API int dpar_halo_interior(const dpar_halo *h, int32_t rank, dpar_box *box);
/* The n-th of the disjoint boxes that make up the rest of what a rank computes: compute them when
 * the exchange has ended. There are at most 2 dims of them. 1 and *box; 0 past the last and for an
 * n below 0. */
DPAR_API int dpar_halo_boundary(const dpar_halo *h, int32_t rank, int32_t n, dpar_box *box);
/* The n-th of the disjoint boxes that make up the halo: the local box outside the owned points.
 * They are the compact form, a halo beside an untouched block. First those below and above dim 0,
 * whole; then those of dim 1 between them; and so on. A star's have no edges and corners, where
 * nothing arrives.
 *
 * There are at most 2 a dim, none empty. A transfer lies in one of them, or in the row on a fold. 1
 * and *box; 0 past the last and for an n below 0. */
DPAR_API int dpar_halo_slab(const dpar_halo *h, int32_t rank, int32_t n, dpar_box *box);
/* Points of all slabs of a rank: 0 when it has none, -1 past 2^63 - 1. */
DPAR_API int64_t dpar_halo_slab_points(const dpar_halo *h, int32_t rank);

/* ---- transfers ---- */

/* A walk over one rank's transfers: first, then next until 0. Modes: */
enum {
    DPAR_HALO_FORWARD, /* halos receive copies of what their owners have */
    DPAR_HALO_ADJOINT, /* owners receive what halos collected: the transpose. Zero the halos after
                          it, and the half row that a fold overwrote */
    DPAR_HALO_SYNC, /* only points that two ranks hold: faces at the end of a block whose owner is
                       the neighbour, and the half row on a fold. To check that copies agree,
                       compare what arrives with what is there. It needs `high` of at least 1 in
                       dims with DPAR_HALO_AT_LOW_FACES, `low` with DPAR_HALO_AT_HIGH_FACES */
    DPAR_HALO_SYNC_ADJOINT /* owners receive what copies collected */
};
typedef struct dpar_halo_cursor {
    const dpar_halo *h; /* private, all of it; `h` is read on the way */
    int32_t rank, sends, mode, outside, pass, state; /* outside: of so many dims at most */
    int32_t coord[DPAR_MAX_AXES], peer[DPAR_MAX_AXES];
    int64_t own[DPAR_MAX_DIMS][2];                   /* this rank's; */
    int64_t want[DPAR_MAX_DIMS][2];                  /* sends: points that have images here, */
    int64_t from[DPAR_MAX_DIMS][2];                  /* receivers to visit in a dim */
    int64_t at[DPAR_MAX_DIMS][2];                    /* the receiver's own points, */
    int64_t fill[DPAR_MAX_DIMS][2];                  /* all that it may receive, */
    int64_t origin[DPAR_MAX_DIMS];                   /* and where its array begins */
    int64_t x[DPAR_MAX_DIMS], n[DPAR_MAX_DIMS];      /* by the receiver's dims */
    int64_t g[DPAR_MAX_DIMS], source[DPAR_MAX_DIMS]; /* by the sender's */
    uint32_t inside, reversed;
} dpar_halo_cursor;

/* Begins the list of what `rank` receives, or of what it sends. It receives each halo point that
 * has an image (inside, round a ring, over a fold) exactly once, and nothing else. Not collective:
 * no rank talks. The k-th send from a to b is the k-th receive of b from a. That holds too when b
 * is a's neighbour on both sides, or a itself.
 *
 * A halo may reach past the neighbour and round the domain more than once; empty blocks are passed
 * over. `mine` and `theirs` count in local arrays (dpar_halo_box), `global` in points, on this
 * rank's side. Fields of vectors heed the transfer's `turn`. The adjoint's receives are the
 * forward's sends in the same order, with op DPAR_SUM. Add in that order, and the result does not
 * depend on arrival.
 *
 * With a partner, a transfer of odd `turn` leads from the partner's array into this one's halo; the
 * sender's side counts there.
 *
 * E_ARG: as dpar_halo_check, a direction that is neither DPAR_TRANSFER_RECV nor DPAR_TRANSFER_SEND
 * (redistribute.h), a rank that has two blocks, or faces of a cube's cells without partner. A step
 * costs O(dims x axes), a list O(its transfers x dims). With windows, and for the sender, a list
 * also costs O(blocks of the dims). */
DPAR_API dpar_status dpar_halo_first(dpar_halo_cursor *w, const dpar_halo *h, int32_t rank,
                                     int32_t direction, int32_t mode, dpar_why *why);
/* 1 and the next transfer; 0 at the end. Cost as dpar_halo_first says. */
DPAR_API int dpar_halo_next(dpar_halo_cursor *w, dpar_transfer *t);

#endif
