/* SPDX-License-Identifier: MIT-0 */
/* halo - an n-d grid on a mesh whose ranks also hold what lies around their block: who sends which
 * cells to whom, what can be computed before they arrive, and what a convolution needs. */
#ifndef DPARI_INDEX_HALO_H
#define DPARI_INDEX_HALO_H

#include "cart.h"
#include "layout.h"
#include "window.h"

/* Which points a dim of a staggered field has, when the grid has N cells there. */
enum {
    DPAR_AT_CELLS,     /* N, in the middle of the cells */
    DPAR_AT_LOW_FACES, /* N + 1 faces; each rank owns those below its cells, the last also the end
                        */
    DPAR_AT_HIGH_FACES /* N + 1 faces; each rank owns those above its cells, the first also face 0
                        */
};

/* How the faces of a cubed sphere meet (dpar_halo.cube). They are numbered and laid out as tiles 1
 * to 6 of the cubic mosaic of GFDL's FMS (FV3; the twelve contacts of define_cubic_mosaic in its
 * test_mpp_domains), less 1. As a cube's:
 *     face  0   1   2   3   4   5
 *     is   +X  +Y  +Z  -X  -Y  -Z
 *     x to +Y  -X  -X  -Z  -Z  +Y
 *     y to +Z  +Z  -Y  -Y  +X  +X
 * From even faces east leads to the next face as it is and north to the one after it, turned; from
 * odd faces north and east the other way round. All are right-handed, seen from outside. Halos are
 * at most N wide; at the cube's corners three faces meet, halo points there have no image and are
 * left as they are.
 * Points on faces of cells (C- and D-grids): N x N for each component on each face, numbered with
 * the cells. With DPAR_AT_LOW_FACES a face owns those on its west or south edge; those on its east
 * or north edge are the first beyond, and the next face's: each edge is west or south of one of the
 * two faces that it parts. (DPAR_AT_HIGH_FACES: the other way round.) Beyond an edge all points of
 * the face there have an image, its border too: where it is a third face's it comes from there,
 * with both turns. Points at corners of cells (both dims) are refused, E_ARG: of the cube's 8
 * corners two would be nobody's. */

/* Zero it, fill it in, and let dpar_halo_check judge it; reuse it for every field on those points.
 * A rank's local array has its own points and around them low[d] + high[d] more in dim d, in C
 * order: dpar_halo_box says which. Ranks without cells have no array (with windows some do). In a
 * periodic dim, and on the faces of a cubed sphere, there are as many faces as cells, numbered with
 * them. Points that two ranks hold (faces between blocks): the owner's value is the one; a width of
 * 1 and DPAR_HALO_SYNC make the copies equal (a plan of shared points, dpar_halo_options, runs it).
 */
typedef struct dpar_halo {
    dpar_layout grid; /* of the cells; dims cut by CHUNK, EVEN, FLOOR, RAGGED, nested too */
    int32_t shape;    /* 0, DPAR_STENCIL_STAR: faces alone; DPAR_STENCIL_EDGES: no corners;
                         DPAR_STENCIL_BOX: for codes that read diagonal neighbours in all dims */
    int64_t low[DPAR_MAX_DIMS];    /* width below the block, points, 0..2^60; < 16 times round */
    int64_t high[DPAR_MAX_DIMS];   /* and above */
    int32_t points[DPAR_MAX_DIMS]; /* DPAR_AT_CELLS, ... */
    uint32_t periodic;             /* bit d: the end of dim d meets its beginning */
    /* A fold: beyond the end of dim `fold` lies the same edge again, reversed in the later,
     * periodic dim `mirror` (the north of a tripolar ocean grid). With n rows of N columns, point
     * (j, i) is (2 (n - 1) + 1 - on_row - j, (N - 1 + shift - i) mod N). Pivot on a corner of T
     * cells: T points on_row 0, shift 0; u (E) 0, -1; v (N) 1, 0; corners 1, -1. On a T point: T
     * 1, 1. With on_row the last row lies on the fold and is there twice: its second half is
     * overwritten by the first. What came over the fold has `turn` 2: components of vectors change
     * sign. */
    int32_t folds; /* 1: there is one */
    int32_t fold, mirror, on_row, shift;
    /* Poles of a latitude-longitude grid at the ends of dim `fold`, round which the later, periodic
     * dim `mirror` goes: N columns, N even. Beyond the high pole lies (2 (n - 1) + 1 - on_row - j,
     * i + N/2 mod N), beyond the low one (on_row - 1 - j, the same); on_row is the pole's bit in
     * pole_rows: the end row lies on the pole itself, its points are left to their owners. (A low
     * pole may stand opposite a fold.) Vectors change sign as over a fold. */
    uint32_t poles;     /* DPAR_POLE_LOW, DPAR_POLE_HIGH or both */
    uint32_t pole_rows; /* of which the end row lies on the pole; of the others half a cell away */
    /* The six faces of a cubed sphere: dim 0 are the faces, the last two dims y and x, both of N
     * cells; dims between them are levels. Above is how they meet. */
    int32_t cube; /* 1: it is one */
    /* Cubed sphere, points on faces of cells along y or x: such fields come in pairs, (u, v) of a
     * C-grid (u on faces along x, v along y) or of a D-grid (the other way round). Over an edge
     * with one or three quarter turns u's halo gets v's points. This is the other field's halo, for
     * dpar_halo_first alone (an exchange finds it by dpar_halo_field.pair): same grid and owners,
     * no windows, points of y and x exchanged, widths of its own. NULL: the field is alone. */
    const struct dpar_halo *partner;
    /* Whose block is it: owner[number of the block in the mesh] is a rank of the communicator, each
     * at most once, or -1: masked, nobody's, its points do not exist and halos there stay as they
     * are. Then `rank` means that of the communicator, also in transfers, and functions take
     * O(blocks) to find its block. NULL: block n is rank n's. The caller's, as long as this. */
    const int32_t *owner;
    /* Operators that read windows: where window[d].kernel is not 0 a rank's local array has in dim
     * d all from the first to the last of its own points and those that its outputs read (a
     * convolution's padding too, which stays as it is; no other kind goes round a periodic dim),
     * and low and high beyond. The shape is then a box. A rank that has no points of its own may
     * have outputs, and so an array: it receives alone. */
    dpar_window window[DPAR_MAX_DIMS];
    /* The layout of the outputs: same mesh, its axes cut the same dims in the same order, by any
     * rule that leaves blocks in one piece. NULL: outputs go with their inputs
     * (those whose stride y falls inside the block; transposed: y / stride; interpolation:
     * y inputs / outputs). Dims without window: as the inputs. The caller's, as long as this. */
    const dpar_layout *outputs;
} dpar_halo;

enum { DPAR_POLE_LOW = 1, DPAR_POLE_HIGH = 2 };

/* E_ARG or E_RANGE with a sentence. Not collective. O(axes), with owners O(blocks). */
DPAR_API dpar_status dpar_halo_check(const dpar_halo *h, dpar_why *why);

/* ---- boxes; h was checked. O(axes x dims) ---- */

/* Points of a dim in all: its cells, and one more for faces unless periodic. */
DPAR_API int64_t dpar_halo_points(const dpar_halo *h, int32_t dim);
/* The points that a rank owns. 0, and nothing written, when it owns none. */
DPAR_API int dpar_halo_owned(const dpar_halo *h, int32_t rank, dpar_box *box);
/* The points of its local array: owned ones and the halo, so that lo may be negative and hi pass
 * the end. The local index of point i is i - lo. 0 when it has none. With windows a rank may have
 * it that owns nothing. */
DPAR_API int dpar_halo_box(const dpar_halo *h, int32_t rank, dpar_box *box);
/* What a rank computes: with windows its outputs, else the points that it owns. 0 when none. */
DPAR_API int dpar_halo_outputs(const dpar_halo *h, int32_t rank, dpar_box *box);
/* The part of it that reads nothing that an exchange brings: compute these while it runs. Physical
 * boundaries do not shrink it. With windows single outputs that happen to wait for nothing (all in
 * padding, in gaps of a dilation) may be outside of it. 0 when there is none. */
DPAR_API int dpar_halo_core(const dpar_halo *h, int32_t rank, dpar_box *box);
/* The n-th of the disjoint boxes that make up the rest of it: compute these when it has ended. At
 * most 2 dims of them; 1 and *box, or 0 past the last and for an n below 0. */
DPAR_API int dpar_halo_boundary(const dpar_halo *h, int32_t rank, int32_t n, dpar_box *box);
/* The n-th of the disjoint boxes that make up the local box outside the owned points: the compact
 * form, a halo beside an untouched block. Below and above dim 0 whole, then those of dim 1 between
 * them, and so on; of a star without edges and corners, where nothing arrives. At most 2 a dim,
 * none of them empty; a transfer lies in one of them (or in the row on a fold). 1 and *box, or 0
 * past the last and for an n below 0. */
DPAR_API int dpar_halo_slab(const dpar_halo *h, int32_t rank, int32_t n, dpar_box *box);
/* Points of all slabs of a rank: 0 when it has none, -1 past 2^63 - 1. */
DPAR_API int64_t dpar_halo_compact(const dpar_halo *h, int32_t rank);

/* ---- transfers ---- */

/* The walk over one rank's transfers: first, then next until 0. `h` is read on the way. */
enum {
    DPAR_HALO_FORWARD, /* halos receive copies of what their owners have */
    DPAR_HALO_ADJOINT, /* owners receive what halos collected: the transpose. After it zero the
                          halos, and the half row that a fold overwrote */
    DPAR_HALO_SYNC, /* points that are held twice alone: faces at the ends of a block whose owner is
                       its neighbour, and the half row on a fold. To check whether copies agree,
                       compare what arrives with what is there. Dims with DPAR_AT_LOW_FACES must
                       have `high` of at least 1 for them, DPAR_AT_HIGH_FACES `low` */
    DPAR_HALO_SYNC_ADJOINT /* owners receive what copies collected */
};
typedef struct dpar_halo_walk {
    const dpar_halo *h;                              /* private, all of it */
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
} dpar_halo_walk;

/* What `rank` receives (each halo point that has an image, inside, around or over the fold, exactly
 * once; nothing else), or what it sends. Not collective and without talking: the k-th send from a
 * to b is the k-th receive of b from a, also when b is both neighbours of a, or a itself. A halo
 * may reach past the neighbour and round the domain more than once; empty blocks are passed over.
 * The adjoint's receives are the forward's sends in the same order, with op DPAR_SUM: add in that
 * order and the result does not depend on arrival. `mine` and `theirs` count in local arrays
 * (dpar_halo_box), `global` in points, on this rank's side. E_ARG as dpar_halo_check, or a
 * direction that does not exist (DPAR_RECEIVES, DPAR_SENDS of redistribute.h), a rank that has two
 * blocks; faces of a cube's cells without partner. With one, a transfer with an odd `turn` leads
 * from the partner's array into this one's halo, and the sender's side counts there. A step costs
 * O(dims x axes); a list O(its transfers x dims), with windows and for the sender also O(blocks of
 * the dims). Fields of vectors: `turn` of the transfer. */
DPAR_API dpar_status dpar_halo_first(dpar_halo_walk *w, const dpar_halo *h, int32_t rank,
                                     int32_t direction, int32_t mode, dpar_why *why);
/* 1 and the next transfer, or 0 at the end. Cost as dpar_halo_first says. */
DPAR_API int dpar_halo_next(dpar_halo_walk *w, dpar_transfer *t);

#endif
