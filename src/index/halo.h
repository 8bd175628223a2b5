/* SPDX-License-Identifier: MIT-0 */
/* halo - computes which points each rank of a distributed n-d grid sends to which other rank to
 * fill the halo around its block, and what can be computed before the halo arrives. dpar_halo.h
 * sends these points; its dpar_grid is the shortest interface to this file.
 *
 *     dpar_halo h = {0};
 *     h.grid = layout;                                cells on a mesh, from dpar_layout_init
 *     h.low[0] = h.high[0] = h.low[1] = h.high[1] = 1;
 *     h.periodic = 1 << 1;                            dim 1 is periodic
 *     dpar_halo_check(&h, &why);
 *     dpar_halo_box(&h, rank, &box);                  the local array with its halo
 *     dpar_halo_first(&w, &h, rank, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, &why);
 *     while (dpar_halo_next(&w, &t))                  each t is received from t.peer
 */
#ifndef DPARI_INDEX_HALO_H
#define DPARI_INDEX_HALO_H

#include "cart.h"
#include "layout.h"
#include "window.h"

/* The points of a staggered field in one dim of a grid with N cells. */
enum {
    DPAR_HALO_AT_CELLS, /* N points, in the middle of the cells */
    /* N + 1 points. Each rank owns the faces below its cells, and the last rank also the face at
     * the end. */
    DPAR_HALO_AT_LOW_FACES,
    /* N + 1 points. Each rank owns the faces above its cells, and the first rank also face 0. */
    DPAR_HALO_AT_HIGH_FACES
};

/* How the six faces of a cubed sphere meet (dpar_halo.cube). Face n is tile n + 1 of the cubic
 * mosaic of GFDL's FMS (FV3), with the twelve contacts of define_cubic_mosaic in its
 * test_mpp_domains. On a cube:
 *
 *     face  0   1   2   3   4   5
 *     is   +X  +Y  +Z  -X  -Y  -Z
 *     x to +Y  -X  -X  -Z  -Z  +Y
 *     y to +Z  +Z  -Y  -Y  +X  +X
 *
 * From an even face, east leads to the next face without a turn and north to the face after that
 * with a turn. From an odd face it is the other way round. All faces are right-handed, seen from
 * outside. Halos are at most N wide. At the cube's corners three faces meet, and halo points there
 * have no image and stay as they are.
 *
 * Fields on the faces of cells (C- and D-grids) have N x N points per component on each face of the
 * cube, numbered with the cells. With DPAR_HALO_AT_LOW_FACES a face of the cube owns the points on
 * its west or south edge. The points on its east or north edge are the first points beyond it and
 * belong to the next face, because each edge is the west or south edge of one of its two faces.
 * With DPAR_HALO_AT_HIGH_FACES it is the other way round.
 *
 * All points beyond an edge have an image on the face there, also the points on the border of that
 * face. If a third face owns the border, these points are received from the third face, with both
 * turns. Points at the corners of cells (faces in both dims) fail with DPAR_E_ARG, because two of
 * the cube's 8 corners would have no owner.
 */

/* A distributed grid and its halo. Zero it, set the fields that you need, and check it with
 * dpar_halo_check. One description serves all fields on the same points.
 *
 * A rank's local array has its own points and, in dim d, low[d] + high[d] more around them, in C
 * order; dpar_halo_box says which. A rank without cells has no array. A periodic dim, and a dim of
 * a cubed sphere, has as many faces as cells, with the same numbers.
 *
 * Two ranks hold the faces between their blocks, and the owner's value counts. With a width of 1,
 * an exchange in the mode DPAR_HALO_SYNC makes the copies equal; a plan with
 * dpar_halo_plan_desc.shared runs it.
 */
typedef struct dpar_halo {
    dpar_layout grid; /* the cells; dims are cut by CHUNK, EVEN, FLOOR or RAGGED, also nested */
    /* The part of the halo that is exchanged: DPAR_STENCIL_STAR (0) leaves out edges and corners,
     * DPAR_STENCIL_EDGES leaves out corners, and DPAR_STENCIL_BOX is the whole halo, for codes that
     * read diagonal neighbours. */
    int32_t shape;
    /* Width of the halo below the block in points, 0..2^60; less than 16 times the length of a
     * periodic dim. */
    int64_t low[DPAR_MAX_DIMS];
    int64_t high[DPAR_MAX_DIMS];   /* width above the block, with the same limits */
    int32_t points[DPAR_MAX_DIMS]; /* DPAR_HALO_AT_CELLS, ... */
    uint32_t periodic;             /* bit d: dim d is periodic */
    /* A fold, such as the north of a tripolar ocean grid. Beyond the end of dim `fold` follows the
     * same edge again, reversed in the later, periodic dim `mirror`. With n rows of N columns, the
     * point (j, i) beyond the end is (2 (n - 1) + 1 - on_row - j, (N - 1 + shift - i) mod N).
     *
     * If the pivot is a corner of T cells, T points have on_row 0, shift 0; u (E) points 0, -1; v
     * (N) points 1, 0; corners 1, -1. All have the rows of T. If the pivot is a T point, T points
     * have on_row 1, shift 1; u points 1, 0; v points 0, 1; corners 0, 0. Then v and corners have
     * one row less than T, because their row above T's last one is beyond the fold. With on_row 1
     * the last row is on the fold and holds each point twice; its first half overwrites its second
     * half. Transfers over the fold have `turn` 2: components of vectors change sign.
     */
    int32_t folds; /* 1 if there is a fold */
    int32_t fold, mirror, on_row, shift;
    /* Poles of a latitude-longitude grid, at the ends of dim `fold`. The later, periodic dim
     * `mirror` goes around them and has an even number N of columns. Beyond the high pole, (j, i)
     * is (2 (n - 1) + 1 - on_row - j, i + N/2 mod N). Beyond the low pole it is (on_row - 1 - j, i
     * + N/2 mod N).
     *
     * on_row is the pole's bit in pole_rows. If it is set, the end row is on the pole itself, and
     * its points are not exchanged over the pole. A grid may have a low pole and a fold at its high
     * end. Vectors change sign as over a fold.
     */
    uint32_t poles; /* DPAR_HALO_POLE_LOW, DPAR_HALO_POLE_HIGH or both */
    /* Poles whose end row is on the pole. The end rows of other poles are half a cell away from it.
     */
    uint32_t pole_rows;
    /* 1 if the grid is a cubed sphere, whose faces meet as described above. Dim 0 is the face, the
     * last two dims are y and x with N cells each, and dims between them are levels. */
    int32_t cube;
    /* The halo of the partner field on a cubed sphere, for fields on faces of cells; otherwise
     * NULL. Such fields come in pairs (u, v). On a C-grid u is on faces along x and v on faces
     * along y; on a D-grid it is the other way round. Over an edge with one or three quarter turns,
     * u's halo receives v's points.
     *
     * Only dpar_halo_first reads this field; an exchange uses dpar_halo_field.pair instead. The
     * partner has the same grid and owners, no windows, the points of y and x exchanged, and its
     * own widths.
     */
    const struct dpar_halo *partner;
    /* [blocks], the rank of the communicator that owns each block, in the mesh's numbering, each
     * rank at most once. -1 masks a block: its points do not exist, and halos there stay as they
     * are. NULL gives block n to rank n.
     *
     * With owners, `rank` always means the rank in the communicator, also in transfers, and
     * functions take O(blocks) to find a rank's block. The array is the caller's and must live as
     * long as this struct.
     */
    const int32_t *owner;
    /* Operators that read windows, such as convolutions. If window[d].kernel is not 0, a rank's
     * local array in dim d reaches from the first to the last of its own points and of the points
     * that its outputs read. A convolution's padding is part of the array, and an exchange leaves
     * it as it is. `low` and `high` are added beyond that. The shape is then a box.
     *
     * Only a convolution reads across the ends of a periodic dim; neighbourhood attention is
     * refused there. A rank without points of its own may have outputs, and therefore an array; it
     * only receives.
     */
    dpar_window window[DPAR_MAX_DIMS];
    /* The layout of the outputs. It is on the same mesh, whose axes cut the same dims in the same
     * order, by any rule with contiguous blocks. Dims without a window are as those of the inputs.
     * It is the caller's and must live as long as this struct.
     *
     * NULL keeps outputs with their inputs: a rank has the outputs y whose input is in its block.
     * The input is stride y for a convolution, y / stride for a transposed one, y inputs / outputs
     * for an interpolation.
     */
    const dpar_layout *outputs;
} dpar_halo;

/* Bits of dpar_halo.poles. */
enum { DPAR_HALO_POLE_LOW = 1, DPAR_HALO_POLE_HIGH = 2 };

/* Checks a grid and its halo. Fails with DPAR_E_ARG or DPAR_E_RANGE. Costs O(axes), and O(blocks)
 * with owners. */
DPAR_API dpar_status dpar_halo_check(const dpar_halo *halo, dpar_why *why);

/* ---- boxes ----
 *
 * For these functions dpar_halo_check must have accepted `halo`. Each costs O(axes x dims). The
 * functions that set *box return 1, or 0 if there is no such box; *box is then unchanged.
 */

/* Counts the points of a dim over all ranks: its cells, and one more for faces unless the dim is
 * periodic. */
DPAR_API int64_t dpar_halo_points(const dpar_halo *halo, int32_t dim);

/* Computes the box of points that a rank owns. Returns 1, or 0 if it owns none. */
DPAR_API int dpar_halo_owned(const dpar_halo *halo, int32_t rank, dpar_box *box);

/* Computes the box of points in a rank's local array: those that it owns and the halo. Returns 1,
 * or 0 if the rank has no array.
 *
 * lo may be negative and hi may exceed the dim. Point i has the local index i - lo. With windows, a
 * rank that owns nothing may have an array.
 */
DPAR_API int dpar_halo_box(const dpar_halo *halo, int32_t rank, dpar_box *box);

/* Computes the box of points that a rank computes: those that it owns, or with windows its outputs.
 * Returns 1, or 0 if there are none. */
DPAR_API int dpar_halo_outputs(const dpar_halo *halo, int32_t rank, dpar_box *box);

/* Computes the box of points that a rank can compute while the exchange runs, because they read
 * nothing that it brings. Returns 1, or 0 if there are none.
 *
 * Physical boundaries do not shrink the box. With windows, some outputs outside the box may not
 * need the exchange either, because all of their inputs are padding or in the gaps of a
 * dilation.
 */
DPAR_API int dpar_halo_interior(const dpar_halo *halo, int32_t rank, dpar_box *box);

/* Computes the n-th of the disjoint boxes that a rank can compute only after the exchange. Together
 * they are the box of dpar_halo_outputs without that of dpar_halo_interior. Returns 1, or 0 past
 * the last box and for n < 0. There are at most 2 dims boxes. */
DPAR_API int dpar_halo_boundary(const dpar_halo *halo, int32_t rank, int32_t n, dpar_box *box);

/* Computes the n-th of the disjoint boxes that make up the halo, which is the local box without the
 * owned points. Returns 1, or 0 past the last box and for n < 0.
 *
 * First come the boxes below and above dim 0, in full; then those of dim 1 between them; and so on.
 * A star has no edges and corners, because nothing is received there. There are at most 2 dims
 * boxes, none empty. A transfer is inside one of them, or in the row on a fold. A compact halo
 * consists of these boxes, next to a block that has no halo.
 */
DPAR_API int dpar_halo_slab(const dpar_halo *halo, int32_t rank, int32_t n, dpar_box *box);

/* Counts the points of all slabs of a rank. Returns 0 if it has none, and -1 above 2^63 - 1. */
DPAR_API int64_t dpar_halo_slab_points(const dpar_halo *halo, int32_t rank);

/* ---- transfers ---- */

/* The modes of a walk. */
enum {
    DPAR_HALO_FORWARD, /* halos receive copies of their owners' values */
    /* Owners receive the values collected in halos (the transpose). Set the halos to zero
     * afterwards, and the half row that a fold overwrote. */
    DPAR_HALO_ADJOINT,
    /* Only points that two ranks hold: faces at the end of a block that belong to the neighbour,
     * and the half row on a fold. To check that copies agree, compare the values received with
     * those in the array. This mode needs `high` of at least 1 in dims with DPAR_HALO_AT_LOW_FACES,
     * and `low` with DPAR_HALO_AT_HIGH_FACES. */
    DPAR_HALO_SYNC,
    DPAR_HALO_SYNC_ADJOINT /* owners receive the values collected in these copies */
};

/* A walk over one rank's transfers: call dpar_halo_first, then dpar_halo_next until it returns 0.
 */
typedef struct dpar_halo_cursor {
    const dpar_halo *h; /* private, as are all fields; the halo, which must live during the walk */
    int32_t rank, sends, mode, outside, pass, state; /* outside: the number of dims in which points
                                                        may be outside the block */
    int32_t coord[DPAR_MAX_AXES], peer[DPAR_MAX_AXES];
    int64_t own[DPAR_MAX_DIMS][2];                   /* points that this rank owns */
    int64_t want[DPAR_MAX_DIMS][2];                  /* for sends, points whose images this rank
                                                        owns */
    int64_t from[DPAR_MAX_DIMS][2];                  /* range of receivers to visit in a dim */
    int64_t at[DPAR_MAX_DIMS][2];                    /* points that the receiver owns */
    int64_t fill[DPAR_MAX_DIMS][2];                  /* points that the receiver may receive */
    int64_t origin[DPAR_MAX_DIMS];                   /* first point of the receiver's array */
    int64_t x[DPAR_MAX_DIMS], n[DPAR_MAX_DIMS];      /* begin and length of a segment, by the
                                                        receiver's dims */
    int64_t g[DPAR_MAX_DIMS], source[DPAR_MAX_DIMS]; /* the same on the sender's side, and where its
                                                        block begins */
    uint32_t inside, reversed;
} dpar_halo_cursor;

/* Begins the list of the transfers that a rank receives, or of those that it sends.
 *
 * direction:  DPAR_TRANSFER_RECV or DPAR_TRANSFER_SEND of redistribute.h.
 * mode:       DPAR_HALO_FORWARD, ...
 *
 * A rank receives each halo point that has an image (inside the grid, around a periodic dim, over a
 * fold) exactly once, and nothing else. The k-th send from a to b is the k-th receive of b from a,
 * also if b is a's neighbour on both sides or a itself.
 *
 * A halo may reach past the neighbour, and around the domain more than once; empty blocks are
 * skipped. In transfers, `mine` and `theirs` are indices of local arrays (dpar_halo_box) and
 * `global` is in points, on this rank's side. Apply the transfer's `turn` to fields of vectors. The
 * adjoint's receives are the forward's sends in the same order, with op DPAR_SUM. If you add in
 * that order, the result does not depend on the order of arrival. With a partner, a transfer of odd
 * `turn` leads from the partner's array into the halo of this field, and the sender's indices are
 * those of the partner's array.
 *
 * Fails with DPAR_E_ARG as dpar_halo_check does, and if there is no such direction, a rank has two
 * blocks, or a field on faces of a cubed sphere has no partner. A step costs O(dims x axes), and a
 * list O(its transfers x dims). With windows, and for the sender, a list also costs O(blocks of the
 * dims).
 */
DPAR_API dpar_status dpar_halo_first(dpar_halo_cursor *cursor, const dpar_halo *halo, int32_t rank,
                                     int32_t direction, int32_t mode, dpar_why *why);

/* Advances to the next transfer. Returns 1, or 0 when there is none left. The cost is stated at
 * dpar_halo_first. */
DPAR_API int dpar_halo_next(dpar_halo_cursor *cursor, dpar_transfer *t);

#endif
