/* SPDX-License-Identifier: MIT-0 */
/* dpar.h - distributed parallelism in one header: which rank owns what, what a run will cost.
 * Version 0.1.0. GENERATED from src/ by tools/amalgamate: change it there.
 *
 *     #include "dpar.h"                   in as many files as you like
 *     cc -DDPAR_IMPLEMENTATION ...        in exactly one of them (or #define it before the include)
 *
 * No dependency, no allocation, no global, no -lm. C99, C++11 and later, MSVC 2015 and later.
 *
 *     base      status, the sentence that says why, boxes, text sink, JSON reader
 *     index     who owns what, who sends what to whom; integers only:
 *               mesh, cart, split, layout, redistribute, exchange, route, flat, heads, context, halo,
 *               sampler
 *     cost      cluster, collective, workload, models, strategy, memory, step, calibrate, planner:
 *               how to spread a model or a grid over a machine, will it fit, how fast, why
 *     show      plans as text, JSON, CSV, SVG
 *
 * Define before the include, everywhere alike:
 *     DPAR_STATIC     everything static: private to the including file, unused functions silent
 *     DPAR_API        your own linkage (dllexport, ...)
 *     DPAR_NO_COST    leave the cost wing (and its pictures) out
 *     DPAR_NO_SHOW    leave the pictures out
 *
 * Conventions: functions return a dpar_status, 0 is fine, negative an error; those that judge what
 * a user wrote take a nullable `dpar_why *` last and put one sentence there. Outputs are written
 * only on success. Bandwidths are bytes/s in one direction, times seconds, 1 GB = 1e9 bytes.
 */
#ifndef DPAR_H
#define DPAR_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#if defined(DPAR_NO_COST) && !defined(DPAR_NO_SHOW)
#define DPAR_NO_SHOW /* the pictures are of plans */
#endif

/* ==== base/base.h ==== */

/* base - what every room shares: linkage, status, the sentence that says why. */

#define DPAR_VERSION_MAJOR 0
#define DPAR_VERSION_MINOR 1
#define DPAR_VERSION_PATCH 0

/* DPAR_STATIC: every function is private to the including file; nothing is exported. */
#if defined(__GNUC__) || defined(__clang__)
#define DPARI_UNUSED __attribute__((unused))
#else
#define DPARI_UNUSED
#endif
#ifndef DPAR_API
#if defined(DPAR_STATIC)
#define DPAR_API static DPARI_UNUSED
#elif defined(__cplusplus)
#define DPAR_API extern "C"
#else
#define DPAR_API extern
#endif
#endif

/* Every status: negative is an error, 0 is fine, positive is a condition and no failure. */
#define DPAR_STATUS_LIST(X)                                                                        \
    X(OK, 0, "ok")                                                                                 \
    X(DONE, 1, "nothing is left to do")                                                            \
    X(MORE, 2, "there is more to do")                                                              \
    X(E_ARG, -1, "an argument is out of its domain")                                               \
    X(E_RANGE, -2, "a number is too large")                                                        \
    X(E_ROOM, -3, "the memory handed over is too small")                                           \
    X(E_PARSE, -4, "the text is not of the expected form")                                         \
    X(E_UNKNOWN, -5, "the name is not known")                                                      \
    X(E_DIVIDE, -6, "sizes do not divide")                                                         \
    X(E_MEMORY, -7, "it does not fit in device memory")                                            \
    X(E_NONE, -8, "no configuration is legal")

typedef int32_t dpar_status;

enum {
#define DPARI_STATUS_ENUM(name, value, text) DPAR_##name = value,
    DPAR_STATUS_LIST(DPARI_STATUS_ENUM)
#undef DPARI_STATUS_ENUM
        DPARI_STATUS_END = -1000
};

/* The sentence for a person that goes with a status: "tp=12 does not divide 32 attention heads".
 * Functions that judge a user's description take a `dpar_why *` last; NULL is allowed. Written
 * only when the status is an error. Always ends in NUL; a longer sentence is cut. */
typedef struct dpar_why {
    char text[240];
} dpar_why;

/* The meaning of a status, in a few words; "unknown status" for any other number. Static text. */
DPAR_API const char *dpar_status_text(dpar_status status);

/* Which wings this build holds, as bits. */
enum { DPAR_FEATURE_COST = 1, DPAR_FEATURE_SHOW = 2, DPAR_FEATURE_RUN = 4 };
DPAR_API int32_t dpar_features(void);

/* ==== base/box.h ==== */

/* box - a rectangle of indices, and one rectangle that travels: what layouts, redistributions and
 * halos speak in. */

enum { DPAR_MAX_DIMS = 6 };

/* Indices lo[d] <= i < hi[d] of every dim; empty when hi[d] <= lo[d] for one of them. Dim 0 is the
 * slowest in memory, as in C and torch. */
typedef struct dpar_box {
    int32_t dims; /* 0..DPAR_MAX_DIMS; a box of no dims holds one element */
    int64_t lo[DPAR_MAX_DIMS], hi[DPAR_MAX_DIMS];
} dpar_box;

/* Elements of a box: 0 when it is empty, -1 when there are more than 2^63 - 1. O(dims). */
DPAR_API int64_t dpar_box_volume(const dpar_box *box);
/* What both hold, into *out (may be one of them). 0 when that is empty or the dims differ; then
 * *out is untouched. O(dims). */
DPAR_API int dpar_box_intersect(const dpar_box *a, const dpar_box *b, dpar_box *out);
/* Is every element of `inner` in `outer`? An empty box is in every box of as many dims. */
DPAR_API int dpar_box_contains(const dpar_box *outer, const dpar_box *inner);

/* One rectangle that goes from a rank to another (or stays: peer is the rank itself). Both sides
 * list the same transfers in the same order, so that the k-th send to a peer meets its k-th receive
 * from here. Of a send, element j of dim d goes from mine[d] + j to theirs[d] + j; of a receive it
 * comes from theirs[d] + j to mine[d] + j. Where bit d of `flip` is set (folds) the receiver's end
 * counts backwards: extent[d] - 1 - j in place of j. A packed message holds the box in the sender's
 * order, the last dim fastest. */
typedef struct dpar_transfer {
    int32_t peer;                  /* the other rank */
    int32_t dims;                  /* 0..DPAR_MAX_DIMS */
    int32_t op;                    /* DPAR_COPY, or how the receiver combines: DPAR_SUM, ... */
    uint32_t flip;                 /* bit d: dim d arrives in reverse order */
    int64_t extent[DPAR_MAX_DIMS]; /* elements along each dim, >= 1 */
    int64_t mine[DPAR_MAX_DIMS];   /* where it begins in this rank's local array */
    int64_t theirs[DPAR_MAX_DIMS]; /* and in the peer's */
    int64_t global[DPAR_MAX_DIMS]; /* and in the whole array, on this rank's side */
} dpar_transfer;

/* How what arrives meets what is there. */
enum { DPAR_COPY, DPAR_SUM, DPAR_AVG, DPAR_PRODUCT, DPAR_MAX, DPAR_MIN, DPAR_OPS };

/* Elements of a transfer: the product of its extents, -1 past 2^63 - 1. O(dims). */
DPAR_API int64_t dpar_transfer_volume(const dpar_transfer *t);

/* ==== base/text.h ==== */

/* text - a sink that writes into the caller's buffer, as snprintf does: it never passes the end,
 * always leaves a NUL, and counts what the whole text would have needed. No locale, no libc. */

typedef struct dpar_text {
    char *at;     /* the caller's buffer */
    size_t room;  /* its bytes; 0 is allowed: then only `used` is counted */
    size_t used;  /* characters of the whole text, without the NUL; > room - 1 means it was cut */
    size_t line;  /* where the current line began */
    size_t width; /* UTF-8 characters since then */
} dpar_text;

/* Begins an empty text in `buffer` (may be NULL with bytes 0). Appending: a character, a text, the
 * first n characters of one, a whole number. O(length). */
DPAR_API void dpar_text_init(dpar_text *t, char *buffer, size_t bytes);
DPAR_API void dpar_text_char(dpar_text *t, char c);
DPAR_API void dpar_text_put(dpar_text *t, const char *s);
DPAR_API void dpar_text_slice(dpar_text *t, const char *s, size_t n);
DPAR_API void dpar_text_int(dpar_text *t, int64_t v);
/* v with `decimals` (0..9) digits after the point, rounded half away from zero; "nan", "inf";
 * beyond 9e15 as dpar_text_real with 6 digits. */
DPAR_API void dpar_text_fixed(dpar_text *t, double v, int32_t decimals);
/* v with `digits` (1..17) significant digits, shortest of plain and e-notation, as %g but with
 * exact halves away from zero. */
DPAR_API void dpar_text_real(dpar_text *t, double v, int32_t digits);
/* Blanks until the current line has `column` UTF-8 characters; none when it is longer. */
DPAR_API void dpar_text_column(dpar_text *t, size_t column);

/* Reads a decimal number (sign, digits, point, exponent) from [s, s + n). Returns the characters
 * taken, 0 when there is no number. Never NaN; a number past the range becomes infinite, which the
 * caller refuses. */
DPAR_API size_t dpar_text_read(const char *s, size_t n, double *value);

/* ==== base/json.h ==== */

/* json - a strict pull reader (RFC 8259) over text in memory: no recursion, no allocation,
 * nesting at most 64 deep, O(1) state. Errors name line and column. */

enum {
    DPAR_JSON_END,
    DPAR_JSON_OBJECT,     /* '{' */
    DPAR_JSON_OBJECT_END, /* '}' */
    DPAR_JSON_ARRAY,      /* '[' */
    DPAR_JSON_ARRAY_END,  /* ']' */
    DPAR_JSON_STRING,
    DPAR_JSON_NUMBER,
    DPAR_JSON_TRUE,
    DPAR_JSON_FALSE,
    DPAR_JSON_NULL
};

typedef struct dpar_json {
    const char *text; /* not copied; must outlive the reader */
    size_t bytes;
    size_t at;
    uint64_t objects; /* bit d: is level d an object? */
    int32_t depth;
    int32_t expect; /* private */
} dpar_json;

typedef struct dpar_json_item {
    int32_t kind;
    int32_t depth;   /* of the value: 0 for the outermost */
    const char *key; /* inside an object, else NULL; raw bytes between the quotes */
    size_t key_length;
    const char *string; /* raw bytes between the quotes, escapes unresolved (but checked) */
    size_t length;
    double number;
} dpar_json_item;

/* Begins to read; nothing is checked yet. O(1). */
DPAR_API void dpar_json_init(dpar_json *j, const char *text, size_t bytes);
/* The next item; kind DPAR_JSON_END after the outermost value and blanks. E_PARSE with line and
 * column otherwise. O(length of the item). */
DPAR_API dpar_status dpar_json_next(dpar_json *j, dpar_json_item *item, dpar_why *why);

/* ==== index/mesh.h ==== */

/* mesh - ranks with named axes, as a list of (size, stride). Integers only, O(axes), no tables: a
 * rank of a million-rank job does its arithmetic alone. */

enum { DPAR_MAX_AXES = 8 };

typedef struct dpar_axis {
    char name[16];  /* "tp", "dp", "dp_replicate", ... */
    int32_t size;   /* >= 1 */
    int32_t stride; /* ranks between two neighbours along this axis */
} dpar_axis;

/* A value: rank = offset + sum of coord[i] * axis[i].stride, at most 2^31 - 1 (mind it when you set
 * offset yourself). What the functions below make is
 * injective: no rank has two coordinates. Sets of axes are given as bits: bit i is axis i, bits of
 * axes that the mesh has not are passed over. Listed
 * from first to last, the last axis counts as the fastest, whatever the strides are. */
typedef struct dpar_mesh {
    int32_t axes;   /* how many are in use, 0..DPAR_MAX_AXES */
    int32_t size;   /* ranks in all: the product of the sizes */
    int32_t offset; /* the first rank of the mesh */
    dpar_axis axis[DPAR_MAX_AXES];
} dpar_mesh;

/* Which rank order: there is no right one, so it is always said. */
enum {
    DPAR_LAST_FASTEST, /* torch DeviceMesh, JAX, MPI_Cart: the last axis has stride 1 */
    DPAR_FIRST_FASTEST /* Megatron's order strings, PETSc: the first axis has stride 1 */
};

/* A mesh of `axes` axes, names of 1 to 15 characters, each once. sizes[i] >= 1; one of them may be
 * -1 and is inferred from `ranks`. ranks > 0: the product must equal it; ranks = 0: whatever the
 * product is (no -1 then). E_ARG, E_DIVIDE or E_RANGE with a sentence. Not collective. O(axes^2).
 * */
DPAR_API dpar_status dpar_mesh_init(dpar_mesh *mesh, int32_t axes, const char *const *names,
                                    const int32_t *sizes, int32_t order, int32_t ranks,
                                    dpar_why *why);

/* Megatron's way: sizes by name, and an order string whose first name is fastest, as
 * "tp-cp-ep-dp-pp". The axes of the mesh are in the string's order. A name that is not in the
 * string must have size 1 and is appended; a name of the string that has no size is an error. One
 * size may be -1. The mesh begins at rank `offset`. Errors as above. */
DPAR_API dpar_status dpar_mesh_ordered(dpar_mesh *mesh, const char *order, int32_t axes,
                                       const char *const *names, const int32_t *sizes,
                                       int32_t ranks, int32_t offset, dpar_why *why);
/* Node x inside: axis i has slow[i] * fast[i] ranks; nodes are numbered over the slow parts, ranks
 * of a node over the fast ones, both last fastest. The mesh has twice as many axes: first
 * "name.node", then "name"; the whole axis is the set of both, its slow part major (JAX's hybrid
 * meshes). */
DPAR_API dpar_status dpar_mesh_hybrid(dpar_mesh *mesh, int32_t axes, const char *const *names,
                                      const int32_t *slow, const int32_t *fast, dpar_why *why);
/* Another factorisation of the same ranks: experts' etp-ep-edp-pp beside tp-cp-dp-pp. The sizes
 * must make mesh->size ranks (one may be -1), mesh's ranks must lie evenly spaced, and an axis that
 * both have by name must be the same groups: E_DIVIDE with a sentence otherwise. */
DPAR_API dpar_status dpar_mesh_view(dpar_mesh *view, const dpar_mesh *mesh, int32_t axes,
                                    const char *const *names, const int32_t *sizes, int32_t order,
                                    dpar_why *why);
/* Are the axes that two meshes share by name the same groups of ranks (size, stride, first rank)?
 */
DPAR_API dpar_status dpar_mesh_agree(const dpar_mesh *a, const dpar_mesh *b, dpar_why *why);

/* The axes in `which` through `rank`, as a mesh of their own (MPI_Cart_sub, DeviceMesh's slice). */
DPAR_API dpar_status dpar_mesh_slice(dpar_mesh *out, const dpar_mesh *mesh, uint32_t which,
                                     int32_t rank, dpar_why *why);
/* The axes in `which` become one, in the place of the first of them. They must chain: each stride
 * the next size times the next stride; E_DIVIDE otherwise: then use the set itself, all functions
 * on groups take sets. */
DPAR_API dpar_status dpar_mesh_flatten(dpar_mesh *out, const dpar_mesh *mesh, uint32_t which,
                                       const char *name, dpar_why *why);
/* One axis becomes `n`, whose sizes (one may be -1) multiply to its own. With FIRST_FASTEST these
 * are hierarchical groups: level k has the product of the sizes before it as its stride. */
DPAR_API dpar_status dpar_mesh_unflatten(dpar_mesh *out, const dpar_mesh *mesh, int32_t axis,
                                         int32_t n, const char *const *names, const int32_t *sizes,
                                         int32_t order, dpar_why *why);
/* Axis i of the result is axis perm[i]. Ranks stay where they are. */
DPAR_API dpar_status dpar_mesh_transpose(dpar_mesh *out, const dpar_mesh *mesh, const int32_t *perm,
                                         dpar_why *why);
/* As few axes as list the same ranks in the same order: chains are merged (the first name stays),
 * axes of size 1 dropped. */
DPAR_API dpar_status dpar_mesh_coalesce(dpar_mesh *out, const dpar_mesh *mesh);
/* inner's ranks, taken as positions in outer's list (last axis fastest): outer after inner.
 * E_DIVIDE when an inner axis passes from one row of outer into the next (outer coalesced), but for
 * one that runs along whole rows from their starts; E_RANGE when inner leaves outer. Its axes have
 * inner's names; an inner axis that runs along several outer ones becomes several, the later with a
 * digit added. */
DPAR_API dpar_status dpar_mesh_compose(dpar_mesh *out, const dpar_mesh *outer,
                                       const dpar_mesh *inner, dpar_why *why);
/* The first ranks of the groups that mesh's image and its shifts make of 0..world-1: with the mesh
 * they list the world once. mesh's offset is ignored. E_DIVIDE when there is none. Axes are named
 * "g0", "g1", ... */
DPAR_API dpar_status dpar_mesh_complement(dpar_mesh *out, const dpar_mesh *mesh, int32_t world,
                                          dpar_why *why);
/* Does every rank have one coordinate only? For a mesh that the caller filled in by hand. Exact; as
 * quick as O(axes^2) for nested strides. */
DPAR_API int dpar_mesh_injective(const dpar_mesh *mesh);

/* The same ranks at the same coordinates, whatever the names? */
DPAR_API int dpar_mesh_same(const dpar_mesh *a, const dpar_mesh *b);

/* The axis of that name, or -1. */
DPAR_API int32_t dpar_mesh_find(const dpar_mesh *mesh, const char *name);

/* Coordinates of `rank`, one an axis; 0 when the rank is not in the mesh (then coord is untouched).
 * O(axes^2). */
DPAR_API int dpar_mesh_coords(const dpar_mesh *mesh, int32_t rank, int32_t *coord);
/* The one along an axis; -1 when the rank is outside the mesh. */
DPAR_API int32_t dpar_mesh_coord(const dpar_mesh *mesh, int32_t rank, int32_t axis);

/* Rank at coord[0 .. axes-1]; -1 when one of them is out of range. */
DPAR_API int32_t dpar_mesh_rank(const dpar_mesh *mesh, const int32_t *coord);
/* The rank `steps` further along an axis; -1 beyond its end, or round it when `wrap`. Steps may be
 * negative or longer than the axis. -1 for ranks outside. */
DPAR_API int32_t dpar_mesh_shift(const dpar_mesh *mesh, int32_t rank, int32_t axis, int64_t steps,
                                 int wrap);

/* Groups: the ranks that differ from `rank` only along the axes in `which`. Members are counted
 * with the axis of the smallest stride fastest, so that they ascend (where strides nest, as in all
 * meshes that the functions above make); the order of an all-gather.
 * Groups are numbered in the same way over the other axes; so that every rank can list all of them
 * in the same order without talking. -1 for ranks outside. O(axes^2). */
DPAR_API int32_t dpar_mesh_group_size(const dpar_mesh *mesh, uint32_t which);
DPAR_API int32_t dpar_mesh_group_member(const dpar_mesh *mesh, uint32_t which, int32_t rank,
                                        int32_t index);
DPAR_API int32_t dpar_mesh_group_index(const dpar_mesh *mesh, uint32_t which, int32_t rank);
/* How many groups there are, which one a rank is in, and the first rank of the g-th. */
DPAR_API int32_t dpar_mesh_group_count(const dpar_mesh *mesh, uint32_t which);
DPAR_API int32_t dpar_mesh_group_number(const dpar_mesh *mesh, uint32_t which, int32_t rank);
DPAR_API int32_t dpar_mesh_group_first(const dpar_mesh *mesh, uint32_t which, int32_t group);

/* How the group of `rank` lies on nodes of `per_node` consecutive ranks: how many nodes it touches
 * and the most members that one of them holds; 0 and 0 for a rank outside or a per_node below 1.
 * O(group size); its square where the strides of a
 * mesh that the caller filled in interleave, so that members do not ascend. */
DPAR_API void dpar_mesh_group_nodes(const dpar_mesh *mesh, uint32_t which, int32_t rank,
                                    int32_t per_node, int32_t *nodes, int32_t *most);

/* ==== index/cart.h ==== */

/* cart - process grids: which shape, who neighbours whom, and where on the nodes each rank goes.
 * Integers only, no tables. A grid has parts[d] ranks along axis d. */

enum { DPAR_PROC_NULL = -1 }; /* no rank: beyond an open border */

/* ---- shapes ---- */

/* MPI_Dims_create: fills parts[0 .. dims-1] so that their product is `ranks`. On entry a positive
 * part is fixed and 0 is to be chosen; the chosen ones do not increase from axis to axis. Of all
 * such factorisations: the least (largest - smallest), then the largest smallest part, then the
 * lexicographically least. That is what MPICH 4.0.2 answers (Open MPI differs for few numbers: 72
 * is 9 x 8 here and 12 x 6 there); the rule was found by comparing all answers for ranks <= 3000.
 * It knows neither cells nor nodes: see dpar_grid_create. ranks >= 1, 0 <= dims <= DPAR_MAX_AXES.
 * E_ARG; E_DIVIDE: the fixed parts do not divide the ranks, or leave some although all are fixed.
 * Not collective. Microseconds for usual numbers, sqrt(ranks) steps to find the prime factors. */
DPAR_API dpar_status dpar_dims_create(int32_t ranks, int32_t dims, int32_t *parts, dpar_why *why);

/* The next ordered factorisation of `ranks` into parts[0 .. dims-1], each dividing room[d] (room =
 * NULL: any), in lexicographic order; parts[0] = 0 on entry asks for the first. OK; DONE when there
 * is none left (parts untouched); E_ARG. All state is in parts. ranks >= 1, 1 <= dims <=
 * DPAR_MAX_DIMS. O(dims * divisors of ranks) a step, and finding the prime factors. */
DPAR_API dpar_status dpar_grid_next(int32_t ranks, int32_t dims, const int32_t *room,
                                    int32_t *parts);

/* The cut of a grid of cells[d] cells over parts[d] ranks: how many cell faces lie between two
 * ranks, each counted weight[d] times (NULL: once): sum over d of weight[d] * planes[d] * product
 * of the other axes' cells, with planes = parts - 1, or parts where bit d of `periodic` is set and
 * parts > 1. One halo exchange of width h and b bytes a cell moves 2 h b times the unweighted cut.
 * 1 <= parts <= cells, weight >= 0, dims <= DPAR_MAX_DIMS. E_ARG, or E_RANGE where a product passes
 * 2^63 - 1, with a sentence. O(dims^2). */
DPAR_API dpar_status dpar_grid_cut(int32_t dims, const int64_t *cells, const int64_t *weight,
                                   uint32_t periodic, const int32_t *parts, int64_t *cut,
                                   dpar_why *why);

/* The process grid with the least cut (as dpar_grid_cut has it) of all with product(parts) = ranks
 * and parts[d] <= cells[d]. On entry a positive part is fixed and 0 is to be chosen. Of equal cuts
 * the lexicographically least parts. Exact: branch and bound over the ordered factorisations, the
 * bound being the inequality of the means, sum a_d p_d >= k (product a_d p_d)^(1/k). *cut may be
 * NULL. E_ARG; E_DIVIDE: the fixed parts do not divide the ranks; E_NONE: no factorisation has
 * parts <= cells; E_RANGE: the worst cut passes 2^63 - 1; each with a sentence. Not collective.
 * Cost: 10 microseconds for 10^6 ranks in 3 dims; at worst tenths of a second (6 dims, 2^31 ranks,
 * 1600 divisors). */
DPAR_API dpar_status dpar_grid_create(int32_t ranks, int32_t dims, const int64_t *cells,
                                      const int64_t *weight, uint32_t periodic, int32_t *parts,
                                      int64_t *cut, dpar_why *why);

/* ---- Cartesian topology with MPI's meaning: row-major, the last axis fastest ---- */

typedef struct dpar_cart {
    int32_t dims;                 /* 0..DPAR_MAX_DIMS */
    int32_t size;                 /* ranks: the product of the parts */
    uint32_t periodic;            /* bit d: axis d wraps around */
    int32_t parts[DPAR_MAX_DIMS]; /* ranks along each axis, >= 1 */
} dpar_cart;

enum {
    DPAR_STENCIL_STAR, /* the two neighbours along each axis */
    DPAR_STENCIL_BOX   /* edges and corners too: all 3^dims - 1 */
};

/* A grid of parts[d] ranks; bit d of `periodic` closes axis d. E_ARG, or E_RANGE above 2^31 - 1
 * ranks, with a sentence. O(dims). */
DPAR_API dpar_status dpar_cart_init(dpar_cart *cart, int32_t dims, const int32_t *parts,
                                    uint32_t periodic, dpar_why *why);

/* MPI_Cart_rank: the rank at coord[0 .. dims-1]. Periodic coordinates wrap (floor-mod, so that -1
 * is the last); DPAR_PROC_NULL where one is outside an open axis. O(dims). */
DPAR_API int32_t dpar_cart_rank(const dpar_cart *cart, const int32_t *coord);

/* MPI_Cart_coords: coord[0 .. dims-1] of a rank. E_ARG when the rank is outside. O(dims). */
DPAR_API dpar_status dpar_cart_coords(const dpar_cart *cart, int32_t rank, int32_t *coord);

/* MPI_Cart_shift: who sends to `rank` and to whom it sends when all shift by `by` along an axis.
 * `by` may be negative or larger than the axis; 0 gives the rank itself twice. DPAR_PROC_NULL
 * beyond an open border. E_ARG: no such rank or axis. O(dims). */
DPAR_API dpar_status dpar_cart_shift(const dpar_cart *cart, int32_t rank, int32_t axis, int32_t by,
                                     int32_t *source, int32_t *dest);

/* MPI_Cart_sub: the grid of the axes whose bits are set in `keep`, in their order; the rank's
 * number in it; and which of the sub-grids it is (0 <= which < size / sub->size, row-major over
 * the dropped axes): colour and key of an MPI_Comm_split. E_ARG: no such rank. O(dims). */
DPAR_API dpar_status dpar_cart_sub(const dpar_cart *cart, int32_t rank, uint32_t keep,
                                   dpar_cart *sub, int32_t *sub_rank, int32_t *which);

/* Neighbours of a rank, at most `room` of them into list; returns how many there are: 2 dims or
 * 3^dims - 1, or -1 when there is no such rank. Star: for each axis first the lower, then the
 * higher, the order of MPI's neighbourhood collectives. Box: by offset, row-major from (-1, ..,
 * -1), without the middle. DPAR_PROC_NULL stands beyond open borders; a rank met twice (two or one
 * along a periodic axis) is listed twice. O(dims) a neighbour. */
DPAR_API int32_t dpar_cart_neighbours(const dpar_cart *cart, int32_t rank, int32_t stencil,
                                      int32_t *list, int32_t room);

/* ---- placement: which rank stands at which coordinate; node = rank / per_node ---- */

enum {
    DPAR_PLACE_ROW_MAJOR, /* as MPI_Cart: the last axis fastest */
    DPAR_PLACE_BRICKS,    /* every node holds a brick of the grid */
    DPAR_PLACE_MORTON,    /* bits interleaved, axis 0 lowest */
    DPAR_PLACE_HILBERT,   /* Hilbert's curve, any number of dims */
    DPAR_PLACE_KINDS
};

typedef struct dpar_place {
    dpar_cart grid;
    int32_t kind;                 /* DPAR_PLACE_ROW_MAJOR, ... */
    int32_t per_node;             /* ranks a node; the last may hold fewer */
    int32_t brick[DPAR_MAX_DIMS]; /* sides of the bricks; 1 for the other kinds */
    int32_t order[DPAR_MAX_DIMS]; /* bricks: axes from fastest to slowest */
} dpar_place;

/* What one exchange with the neighbours costs: an offset o of a stencil carries bytes * product
 * over d of (o_d != 0 ? width[d] : block[d]). All ones count edges. */
typedef struct dpar_stencil {
    int32_t shape;                /* DPAR_STENCIL_STAR or DPAR_STENCIL_BOX */
    int64_t bytes;                /* a cell */
    int64_t block[DPAR_MAX_DIMS]; /* cells of a rank along each axis */
    int64_t width[DPAR_MAX_DIMS]; /* of the halo */
} dpar_stencil;

/* A stencil whose edges all count 1. */
DPAR_API dpar_stencil dpar_stencil_edges(int32_t shape);

/* A placement of a kind; bricks are the best ones (dpar_place_bricks with no weight, order or
 * sides given). Morton and Hilbert number the cells of the smallest power-of-two cube around the
 * grid and skip those outside. per_node >= 1. Errors: E_ARG, and those of dpar_place_bricks. O(1),
 * bricks as said there. */
DPAR_API dpar_status dpar_place_init(dpar_place *place, const dpar_cart *grid, int32_t kind,
                                     int32_t per_node, dpar_why *why);

/* Node-aware bricks: sides q with product(q) = per_node and q[d] dividing parts[d] that leave the
 * least surface between nodes: sum over d of weight[d] * planes[d] * product of the other parts,
 * planes as in dpar_grid_cut with parts[d] / q[d] nodes along axis d; of equal ones the fewest
 * nodes along axis 0, then 1, .... Nodes are numbered in a grid, ranks inside a brick, both with
 * axis order[0] fastest (NULL: the last axis, row-major). sides (NULL: all free) fixes q[d] where
 * positive. LAMMPS' two-level order "xyz" is order {0, 1, 2}. weight NULL: 1 each. E_ARG; E_DIVIDE:
 * per_node does not divide the ranks; E_NONE: no brick fits (use Hilbert); E_RANGE. Cost as
 * dpar_grid_create for size / per_node ranks. */
DPAR_API dpar_status dpar_place_bricks(dpar_place *place, const dpar_cart *grid, int32_t per_node,
                                       const int64_t *weight, const int32_t *order,
                                       const int32_t *sides, dpar_why *why);

/* The rank at coord; DPAR_PROC_NULL outside. Row-major and bricks O(dims); Morton and Hilbert
 * O(2^dims * dims * bits of the longest axis), not O(ranks): skipped cells are counted by cubes. */
DPAR_API int32_t dpar_place_rank(const dpar_place *place, const int32_t *coord);

/* The coordinate of a rank, inverse of dpar_place_rank, at the same cost. E_ARG: no such rank. */
DPAR_API dpar_status dpar_place_coords(const dpar_place *place, int32_t rank, int32_t *coord);

/* What crosses between nodes in one exchange, one way (as much comes back): *total over the
 * machine, *worst at the busiest node; every edge counts once in the total and at both its nodes.
 * Two edges join two ranks along a periodic axis of 2. E_ARG, or E_RANGE where a sum could pass
 * 2^63 - 1, with a sentence. Bricks (and one rank a node in row-major order) by closed form,
 * O(3^dims * dims); the others O(ranks * 3^dims * dims), times the cost of dpar_place_rank. */
DPAR_API dpar_status dpar_place_cost(const dpar_place *place, const dpar_stencil *stencil,
                                     int64_t *total, int64_t *worst, dpar_why *why);

/* The kind whose busiest node sends least, then the least total, then the first kind; bricks are
 * searched with the stencil's faces as weights and left out where none fits. Errors and cost as
 * dpar_place_cost for every kind. total and worst may be NULL. */
DPAR_API dpar_status dpar_place_best(dpar_place *place, const dpar_cart *grid, int32_t per_node,
                                     const dpar_stencil *stencil, int64_t *total, int64_t *worst,
                                     dpar_why *why);

/* ---- a torus network: logical mesh axes on physical axes, as JAX's mesh_utils has it ---- */

typedef struct dpar_torus {
    int32_t physical_axes, logical_axes;
    int32_t physical[DPAR_MAX_DIMS];
    int32_t logical[DPAR_MAX_AXES];
    int32_t part[DPAR_MAX_AXES][DPAR_MAX_DIMS]; /* of physical axis p that logical axis l has */
    uint32_t axes[DPAR_MAX_AXES]; /* bit p: logical axis l stands on physical axis p */
} dpar_torus;

/* Assigns logical axes, listed by increasing traffic, to the axes of a torus. From the last logical
 * axis to the first: the most still free physical axes whose product is the logical size, of those
 * the lexicographically first (JAX looks at up to 3 axes, all its tori having 3). Where that fails
 * and split is not 0, all starts over with every way to write the logical size as a product of
 * divisors of what is left of each axis, preferring (1) the larger product over axes taken wholly,
 * (2) more such axes longer than 1, (3) the larger product over axes already partly taken, (4) the
 * lexicographically largest. (3) is what JAX's code does; its comment says the opposite. JAX's
 * special ring orders of single trays are not here, and sizes such as 10, 14, 15 keep all their
 * prime factors (JAX 0.10 drops some when it splits, and fails or answers otherwise). E_ARG;
 * E_DIVIDE: the sizes' products differ; E_NONE: it takes splitting, which was not allowed.
 * O(factorisations). */
DPAR_API dpar_status dpar_torus_assign(dpar_torus *torus, int32_t physical_axes,
                                       const int32_t *physical, int32_t logical_axes,
                                       const int32_t *logical, int32_t split, dpar_why *why);

/* The chip at a logical coordinate and back. A logical index counts through its parts row-major in
 * the order of the physical axes; a split physical axis gives its fastest digits to the last
 * logical axis. E_ARG when a coordinate is outside. O(axes^2). */
DPAR_API dpar_status dpar_torus_physical(const dpar_torus *torus, const int32_t *logical,
                                         int32_t *physical);
DPAR_API dpar_status dpar_torus_logical(const dpar_torus *torus, const int32_t *physical,
                                        int32_t *logical);

/* ==== index/split.h ==== */

/* split - one dim of `count` elements over `parts` parts, by a rule that has a name: the systems
 * that people use disagree about what "block" means. Integers only; no tables but the caller's. */

/* Part p of P, N elements; 10 elements over 4 parts as the example. */
enum {
    /* b = ceil(N/P): [min(N, p b), min(N, (p+1) b)): 3 3 3 1. torch.chunk, DTensor, FSDP, FFTW-MPI,
     * MPI darray BLOCK, HPF BLOCK, PetscSplitOwnershipEqual. Empty parts are the last ones. */
    DPAR_CHUNK,
    /* N/P + (p < N%P) elements: 3 3 2 2. numpy.array_split, torch.tensor_split, PETSc DMDA,
     * DeepSpeed, cuDecomp, heFFTe, AMReX, hypre. Empty parts are the last ones. */
    DPAR_EVEN,
    /* [floor(N p/P), floor(N (p+1)/P)): 2 3 2 3. p4est. Empty parts lie between full ones. */
    DPAR_FLOOR,
    /* Blocks of `block`, dealt round from part `source`. ScaLAPACK, MPI darray CYCLIC(k). */
    DPAR_BLOCK_CYCLIC,
    /* Any ascending cuts: [cuts[p], cuts[p+1]). Ragged, weighted, atomic shards. */
    DPAR_RAGGED,
    /* CHUNK into `block` pieces, each of them CHUNK into P; part p has the p-th of every piece.
     * DTensor's strided shard (FSDP over TP), fused QKV and gate/up. */
    DPAR_STRIDED,
    /* CHUNK into 2P chunks; part p has chunks p and 2P-1-p. Causal context parallelism. */
    DPAR_ZIGZAG,
    /* p, p+P, p+2P, ...: BLOCK_CYCLIC(1). Striped attention. */
    DPAR_STRIPE,
    DPAR_SPLITS
};

/* A value; make it with an init function. Within a part, local indices 0, 1, ... run through its
 * elements in ascending global order. */
typedef struct dpar_split {
    int32_t rule;                /* DPAR_CHUNK, ... */
    int32_t parts;               /* P, at least 1 */
    int32_t source;              /* BLOCK_CYCLIC: the part that has the first block */
    uint8_t shift[2];            /* private: see inverse */
    int64_t count;               /* N, elements, 0..2^62 */
    int64_t block;               /* BLOCK_CYCLIC: elements of a block; STRIDED: pieces */
    const int64_t *cuts;         /* RAGGED: parts + 1 of them, the caller's */
    int64_t by[2];               /* private: what indices are divided by, */
    uint64_t inverse[2];         /* private: and its inverse, times 2^shift; */
    int64_t rounds, extra, tail; /* private: the count in whole rounds, and what is left */
} dpar_split;

/* `block`: BLOCK_CYCLIC's block and STRIDED's pieces, at least 1; other rules ignore it. RAGGED has
 * its own init. E_ARG or E_RANGE with a sentence; *s is written on success only. O(1). */
DPAR_API dpar_status dpar_split_init(dpar_split *s, int32_t rule, int64_t count, int32_t parts,
                                     int64_t block, int32_t source, dpar_why *why);
/* The same rule for another number of elements, 0..2^62: what cuts of cuts are made of. RAGGED
 * keeps its cuts, which must end there. Cannot fail. O(1). */
DPAR_API void dpar_split_resize(dpar_split *s, int64_t count);
/* Parts by cuts: cuts[0] = 0 <= cuts[1] <= ... <= cuts[parts], the number of elements. The array
 * must outlive the split. O(parts). */
DPAR_API dpar_status dpar_split_ragged(dpar_split *s, int32_t parts, const int64_t *cuts,
                                       dpar_why *why);
/* Fills cuts[0 .. parts] so that part p gets about count weights[p] / (their sum), in whole atoms
 * (the last one may be short): cut(p) = floor(A W(p) / W) atoms, A = ceil(count / atom), W(p) the
 * sum of the first p weights, so that no part is an atom or more away from its share. Weights are
 * at least 0 and not all 0; their sum is below 2^31. O(parts). */
DPAR_API dpar_status dpar_split_weights(int64_t *cuts, int64_t count, int32_t parts,
                                        const int64_t *weights, int64_t atom, dpar_why *why);
/* Fills cuts[0 .. parts]: the first `even` of count elements by EVEN, the rest to the last part
 * that has some (cuDecomp's gdims_dist, for grids with an odd plane at the end). 0 <= even <=
 * count. O(parts). */
DPAR_API dpar_status dpar_split_rest(int64_t *cuts, int64_t count, int64_t even, int32_t parts,
                                     dpar_why *why);
/* Cuts a row of items into `parts` runs so that the heaviest run is as light as can be (the layers
 * of a model over pipeline stages): cuts[0 .. parts] count items. Within
 * that least maximum each run, from the first on, comes as near as it can to an even share of what
 * is left, and while there are enough items none is empty. Items are at least 0, their sum below
 * 2^62. O(items x log(sum)). */
DPAR_API dpar_status dpar_split_balance(int64_t *cuts, int64_t items, const int64_t *cost,
                                        int32_t parts, dpar_why *why);

/* Elements of a part. O(1). Parts outside 0..P-1 have none. */
DPAR_API int64_t dpar_split_size(const dpar_split *s, int32_t part);
/* The most that any part has: what short shards are padded to (part 0's, for most rules). O(1),
 * RAGGED O(parts). */
DPAR_API int64_t dpar_split_most(const dpar_split *s);
/* The first element of a part; `count` for a part that has none (DTensor's convention, so that an
 * empty shard is never taken for another one). O(1). */
DPAR_API int64_t dpar_split_offset(const dpar_split *s, int32_t part);
/* The part that has element i, -1 when i is not in 0..N-1. O(1); RAGGED, and FLOOR when N P passes
 * 2^63 - 1, O(log parts). */
DPAR_API int32_t dpar_split_owner(const dpar_split *s, int64_t i);
/* Where element i lies: *local is its index in its part (may be NULL), *run how many elements from
 * i on follow one another in that part (may be NULL). Returns the part, -1 outside. Cost as
 * dpar_split_owner. */
DPAR_API int32_t dpar_split_find(const dpar_split *s, int64_t i, int64_t *local, int64_t *run);
/* The element that is `local` in `part`, -1 when there is none. *run as above: so that
 *     for (l = 0; (g = dpar_split_global(&s, p, l, &n)) >= 0; l += n)
 * visits the runs [g, g + n) of a part. O(1). */
DPAR_API int64_t dpar_split_global(const dpar_split *s, int32_t part, int64_t local, int64_t *run);
/* How many elements of `part` lie before element i of the whole (0 <= i <= N): the local index of
 * the first that does not. O(1), as INFOG1L of ScaLAPACK. */
DPAR_API int64_t dpar_split_before(const dpar_split *s, int32_t part, int64_t i);

/* ==== index/layout.h ==== */

/* layout - an n-d array on a mesh: each mesh axis shards a dim, replicates, or holds partial sums.
 * Local shapes and offsets are those of DTensor and FSDP2 where they have them. */

/* What a mesh axis does with the array. */
enum { DPAR_REPLICATE, DPAR_SHARD, DPAR_PARTIAL };

typedef struct dpar_placement {
    int32_t kind;        /* DPAR_REPLICATE, ... */
    int32_t dim;         /* SHARD: the dim that it cuts; negative counts from the end */
    int32_t rule;        /* SHARD: DPAR_CHUNK (0), ... */
    int32_t op;          /* PARTIAL: DPAR_SUM, ... */
    int64_t block;       /* SHARD: BLOCK_CYCLIC's block, STRIDED's pieces (split factor) */
    int32_t source;      /* SHARD: BLOCK_CYCLIC's first part */
    const int64_t *cuts; /* SHARD by RAGGED: parts + 1 of them, the caller's; only as the first cut
                            of its dim */
} dpar_placement;

/* Shorthands: Shard(dim) by CHUNK, DTensor's strided shard, Replicate, Partial(op). */
DPAR_API dpar_placement dpar_shard(int32_t dim);
DPAR_API dpar_placement dpar_shard_by(int32_t dim, int32_t rule, int64_t block);
DPAR_API dpar_placement dpar_replicate(void);
DPAR_API dpar_placement dpar_partial(int32_t op);

/* A value; make it with dpar_layout_init. What a rank owns is a product over the dims of ascending
 * index sets; its local array holds them densely, in order. */
typedef struct dpar_layout {
    dpar_mesh mesh;
    int32_t dims; /* 0..DPAR_MAX_DIMS */
    int64_t extent[DPAR_MAX_DIMS];
    dpar_placement axis[DPAR_MAX_AXES]; /* what each mesh axis does */
    int8_t order[DPAR_MAX_AXES]; /* the axes in the order in which they cut: the first is major */
} dpar_layout;

/* Array of extent[0 .. dims-1] on a mesh, placement[i] for mesh axis i. Axes that shard the same
 * dim cut what the axes before them in `order` left (NULL: in the order of the mesh, as DTensor
 * reads its placements); uneven shards nest: 18 over (4, 2) is 3 2 3 2 3 2 2 1. E_ARG, E_RANGE with
 * a sentence. Not collective. O(axes^2 + parts of RAGGED). */
DPAR_API dpar_status dpar_layout_init(dpar_layout *l, const dpar_mesh *mesh, int32_t dims,
                                      const int64_t *extent, const dpar_placement *placement,
                                      const int32_t *order, dpar_why *why);

/* Local shape of a rank and the first index that it owns of each dim: where a dim of it is empty,
 * that offset is the dim's whole extent (DTensor). A rank outside the mesh owns nothing: all
 * extents are 0. Each of the arrays may be NULL. O(axes). */
DPAR_API void dpar_layout_local(const dpar_layout *l, int32_t rank, int64_t *shape,
                                int64_t *offset);
/* The largest local shape of any rank: what short shards are padded to for collectives. O(axes),
 * but O(ranks) where STRIDED cuts what another axis left: its longest part need not come from the
 * longest whole. */
DPAR_API void dpar_layout_padded(const dpar_layout *l, int64_t *shape);
/* Elements in a rank's local array; -1 when they pass 2^63 - 1. */
DPAR_API int64_t dpar_layout_numel(const dpar_layout *l, int32_t rank);

/* One dim of one rank: the index that lies at `local`, and how many follow it in a row (run may be
 * NULL); -1 past the end. So that for (i = 0; (g = dpar_layout_global(l, r, d, i, &n)) >= 0; i +=
 * n) visits the runs. O(axes). */
DPAR_API int64_t dpar_layout_global(const dpar_layout *l, int32_t rank, int32_t dim, int64_t local,
                                    int64_t *run);
/* The other way: how many indices before i the rank owns in that dim: the local index of the first
 * one at or after i. O(axes). */
DPAR_API int64_t dpar_layout_before(const dpar_layout *l, int32_t rank, int32_t dim, int64_t i);
/* The first index and one past the last of a dim that the ranks at coord[] own, with what others
 * own between them. 0, and nothing written, when they own none. Coordinates of axes that do not
 * shard the dim do not matter. O(axes). */
DPAR_API int dpar_layout_span(const dpar_layout *l, const int32_t *coord, int32_t dim, int64_t *lo,
                              int64_t *hi);
/* Where index i of a dim lies: sets coord[] of the axes that shard the dim and touches no other;
 * *local its local index there, *run how many follow it in a row (each may be NULL). 0 when i is
 * outside. O(axes). */
DPAR_API int dpar_layout_find(const dpar_layout *l, int32_t dim, int64_t i, int32_t *coord,
                              int64_t *local, int64_t *run);

/* How many ranks hold each element: the product of the axes that do not shard. */
DPAR_API int32_t dpar_layout_copies(const dpar_layout *l);
/* The rank that holds the copy-th copy of the element at index[0 .. dims-1], local[] (may be NULL)
 * where it lies there; copy 0 is the primary. Copies are counted with the smallest stride fastest.
 * -1 when the index or the copy does not exist. O(axes^2). */
DPAR_API int32_t dpar_layout_owner(const dpar_layout *l, const int64_t *index, int32_t copy,
                                   int64_t *local);
/* Does the rank hold copy 0 of what it has? It is the one that writes a checkpoint. */
DPAR_API int dpar_layout_is_primary(const dpar_layout *l, int32_t rank);

/* The boxes that a rank owns, in order, the last dim fastest: begin with an all-zero cursor;
 * 1 and *box (global indices) and *at (its first element in the local array; may be NULL), or 0 at
 * the end. One box where every dim is one run. O(axes) each. */
typedef struct dpar_box_cursor {
    int32_t begun;
    int64_t local[DPAR_MAX_DIMS];
} dpar_box_cursor;
DPAR_API int dpar_layout_next_box(const dpar_layout *l, int32_t rank, dpar_box_cursor *cursor,
                                  dpar_box *box, int64_t *at);

/* Strides of a local array in C order of the local shape (an uneven shard's own, not the whole
 * array's divided). O(dims). */
DPAR_API void dpar_layout_strides(const dpar_layout *l, int32_t rank, int64_t *stride);
/* The same where the dims lie in memory in the order of `whole`, the strides of the whole array
 * (Fortran's, channels last): the dim of the smallest stride fastest, each dense; of equal strides
 * the later dim is the faster. DTensor keeps that order too. O(dims^2). */
DPAR_API void dpar_layout_strides_as(const dpar_layout *l, int32_t rank, const int64_t *whole,
                                     int64_t *stride);
/* Do two layouts put the same indices on the same ranks (same mesh, extents, cuts)? O(axes). */
DPAR_API int dpar_layout_same(const dpar_layout *a, const dpar_layout *b);
/* The plain order of cuts that strided shards stand for: [SS(0,4), S0] cuts by axis 1, then 0.
 * Fills order[] and plain[] (both one an axis). E_NONE with a sentence when a split factor is not
 * the product of the axes after it that shard the same dim: then there is no such order. */
DPAR_API dpar_status dpar_layout_unstride(const dpar_layout *l, int32_t *order,
                                          dpar_placement *plain, dpar_why *why);

/* ==== index/redistribute.h ==== */

/* redistribute - an array from one layout to another, on the same ranks or on others: who sends
 * which box to whom. Each rank lists its own transfers alone; all lists fit together. Rank n of
 * both meshes is one process: ranks of another job are others (give that mesh an offset), and files
 * of another job's rank n are not what rank n holds: read them with DPAR_PRIMARY. */

/* Can `from` become `to`? Same dims and extents; a Partial axis of `to` must be one of `from` too
 * (same place in the same mesh, same op: sums stay as they are), or a sum that begins: then
 * coordinate 0 of that axis receives the array and the others must fill theirs with zeros. E_ARG
 * with a sentence otherwise. O(axes). */
DPAR_API dpar_status dpar_redistribute_check(const dpar_layout *from, const dpar_layout *to,
                                             dpar_why *why);

/* The walk over one rank's transfers; begin, then next until 0. The layouts are copied. About 2 KB;
 * the caller's. */
enum { DPAR_RECEIVES, DPAR_SENDS };
enum { DPAR_PRIMARY = -1 }; /* as per_node: copy 0 sends, always (files that copy 0 wrote) */
typedef struct dpar_transfers {
    dpar_layout mine, other; /* private, all of it */
    int32_t rank, me, sends, per_node, nested, state;
    int32_t copies, copy, partials, partial, combine;
    int32_t phase, fresh, node, mate, mates, taker, takers, around;
    int32_t first, line, units, left;
    int32_t now, op; /* the transfer that was reached */
    uint32_t free_from, part_from, free_to;
    int32_t coord[DPAR_MAX_AXES], peer[DPAR_MAX_AXES], base[DPAR_MAX_AXES];
    int32_t guest[DPAR_MAX_AXES];
    int32_t grid[DPAR_MAX_DIMS], outer[DPAR_MAX_DIMS], share[DPAR_MAX_DIMS];
    int64_t into, low[DPAR_MAX_DIMS], high[DPAR_MAX_DIMS];
    int64_t at[DPAR_MAX_DIMS], begin[DPAR_MAX_DIMS], length[DPAR_MAX_DIMS], there[DPAR_MAX_DIMS];
    int64_t held[DPAR_MAX_DIMS], lead[DPAR_MAX_DIMS], cut[DPAR_MAX_DIMS], cut_length[DPAR_MAX_DIMS];
} dpar_transfers;

/* All that `rank` receives (its elements of `to`, each once; of Partial sources each contribution
 * once, the first with DPAR_COPY, the others with the op), or all that it sends. Not collective and
 * without talking: the k-th send from a to b is the k-th receive of b from a.
 *
 * Which replica sends: the receiver itself when it holds the element; else those on its node
 * (per_node > 0 consecutive ranks are a node; of meshes whose strides nest, as those of every init
 * do); else all. They share the sending: while a box has as many receivers as there are copies,
 * each copy serves as many of them; of those that are left each is served by the copies in its
 * part of the line, each with its even share. Where the receivers cut rows (CHUNK, EVEN, FLOOR) and
 * their number and that of the copies have a common divisor, shares end where rows do, so that
 * boxes stay whole; else a box may come in pieces. A copy sends at most the even share and the
 * largest box more. With Partial sources each partial rank contributes directly: for P to S that is
 * a reduce-scatter; for P to R reduce first (dpar_redistribute_reduced).
 *
 * E_ARG as dpar_redistribute_check, and for a per_node below -1 or another direction. Each step
 * O(axes x dims); a list O(its own transfers); that of a sender with copies also O(what the ranks
 * of its node receive of it), and it passes over receivers that have a copy nearer. */
DPAR_API dpar_status dpar_transfers_begin(dpar_transfers *w, const dpar_layout *from,
                                          const dpar_layout *to, int32_t rank, int32_t direction,
                                          int32_t per_node, dpar_why *why);
/* 1 and the next transfer, or 0 at the end. Order: receives by box, the last dim fastest, each box
 * by its senders; sends to the node first, rank by rank, then to all others. */
DPAR_API int dpar_transfers_next(dpar_transfers *w, dpar_transfer *t);

/* What a rank's walk adds up to. Elements; 2^63 - 1 stands for that and more. */
typedef struct dpar_transfer_totals {
    int64_t transfers; /* all, to itself too */
    int64_t kept;      /* elements that stay on the rank */
    int64_t near_by;   /* that cross to a rank of the same node */
    int64_t away;      /* that cross nodes (all that cross, without per_node) */
} dpar_transfer_totals;
/* Walks what is left of w. */
DPAR_API void dpar_transfers_total(dpar_transfers *w, dpar_transfer_totals *sum);

/* Elements that a rank holds at once when it moves its transfers directly: its array of `from` and
 * its array of `to` (nothing else: sends go from the one, receives into the other); -1 past
 * 2^63 - 1. O(axes). */
DPAR_API int64_t dpar_redistribute_peak(const dpar_layout *from, const dpar_layout *to,
                                        int32_t rank);

/* Where Partial axes are replicated by `to` (all-reduce), the cheap way goes over a layout that
 * shards the sums first: writes that one to *middle and returns MORE: from -> middle -> to. The
 * Partial axes are put on the longest dim, innermost. OK: go directly. O(axes). */
DPAR_API dpar_status dpar_redistribute_reduced(const dpar_layout *from, const dpar_layout *to,
                                               dpar_layout *middle);
/* Where `to` has replicas, they need not all read the same: *middle shards `to` over its replicated
 * axes, so that saved -> middle reads each element once, and middle -> to passes it on. MORE with
 * *middle written; OK: there are no replicas. O(axes). */
DPAR_API dpar_status dpar_redistribute_spread(const dpar_layout *to, dpar_layout *middle);

/* ==== index/exchange.h ==== */

/* exchange - many transfers at once: in which rounds, with which peer, under which names, and
 * whether boxes cover an array. For these the whole picture is needed; memory is the caller's. */

/* One message, between members of two sets (or of one: then they are counted as senders and as
 * receivers; a rank sends and receives at once). */
typedef struct dpar_edge {
    int32_t from, to; /* 0 .. senders-1, 0 .. receivers-1 */
} dpar_edge;

/* How many rounds n messages need when in each round a rank sends at most one and receives at most
 * one: the most that any rank sends or any receives (Koenig 1916). degree: scratch of senders +
 * receivers numbers. -1 when an edge is outside or a number of ranks negative. O(n). */
DPAR_API int32_t dpar_rounds_needed(const dpar_edge *edge, int64_t n, int32_t senders,
                                    int32_t receivers, int32_t *degree);
/* And which round each goes in: round[k] in 0 .. rounds-1, no rank twice on a side. table: scratch
 * of (senders + receivers) * rounds numbers. E_ARG, round[] untouched, when `rounds` are fewer than
 * needed, an edge is outside or a number is negative. O(n (senders + receivers)) at worst, O(n
 * rounds) mostly. The same on all ranks. */
DPAR_API dpar_status dpar_rounds_color(const dpar_edge *edge, int64_t n, int32_t senders,
                                       int32_t receivers, int32_t rounds, int64_t *table,
                                       int32_t *round, dpar_why *why);

/* Orders of a complete all-to-all over n ranks, where no list is needed: the peer of `rank` in
 * round 0 .. n-1; round 0 is the rank itself (PAIRS: some round is). */
enum {
    DPAR_ORDER_RING,   /* to rank + round, from rank - round; any n */
    DPAR_ORDER_XOR,    /* rank ^ round: both ways with one peer; n a power of two, else as PAIRS */
    DPAR_ORDER_PAIRS,  /* (round - rank) mod n: both ways with one peer; any n */
    DPAR_ORDER_GROUPED /* cuDecomp's: near and far peers in turn, `group` ranks a node */
};
/* -1 when an argument is out of range. GROUPED is a permutation in every round when group divides n
 * or n is a power of two. */
DPAR_API int32_t dpar_exchange_peer(int32_t order, int32_t n, int32_t group, int32_t rank,
                                    int32_t round);

/* Which rank should play which part so that least moves: kept[r * n + p] is what rank r has already
 * of what part p needs; rank_of[p] becomes the rank for part p, all different, the sum of what is
 * kept the greatest there is (the assignment problem, exact). n <= 2^15, kept 0 .. 2^46. scratch:
 * 4 (n + 1) numbers. O(n^3). */
DPAR_API dpar_status dpar_relabel(int32_t n, const int64_t *kept, int32_t *rank_of,
                                  int64_t *scratch, dpar_why *why);

/* Do n boxes cover an array of extent[0 .. dims-1], each element once? OK, or E_ARG and a sentence
 * that says which box is outside, which two overlap, or how many elements no box has and which is
 * the first. Empty boxes are passed over. order: scratch of n numbers. O(n log n + pairs that
 * overlap in the dim where the boxes are thinnest). */
DPAR_API dpar_status dpar_boxes_cover(int32_t dims, const int64_t *extent, const dpar_box *box,
                                      int32_t n, int32_t *order, dpar_why *why);

/* ==== index/route.h ==== */

/* route - a redistribution on one mesh as a sequence of collectives: the one that moves least. */

/* What one step does, along one mesh axis. */
enum {
    DPAR_STEP_SLICE,          /* R -> S(to): each rank keeps its part; nothing moves */
    DPAR_STEP_START_SUM,      /* R -> P: rank 0 of the axis keeps the array, others zeros */
    DPAR_STEP_ALL_GATHER,     /* S(from) -> R */
    DPAR_STEP_ALL_TO_ALL,     /* S(from) -> S(to) */
    DPAR_STEP_REDUCE_SCATTER, /* P -> S(to) */
    DPAR_STEP_ALL_REDUCE,     /* P -> R */
    DPAR_STEP_SWAP,           /* two axes change roles: whole tiles change ranks */
    DPAR_STEP_PERMUTE,        /* to the goal at once: whole tiles change ranks */
    DPAR_STEPS
};
/* "all-gather", ...; "?" for others. */
DPAR_API const char *dpar_step_name(int32_t kind);

typedef struct dpar_route_step {
    int32_t kind, axis; /* axis -1: PERMUTE */
    int32_t from, to;   /* dims, -1 where there is none; SWAP: `to` is the other axis */
    int64_t elements;   /* that a rank receives, at most */
} dpar_route_step;

/* A place of the search; the caller's scratch. */
typedef struct dpar_route_node {
    uint64_t state; /* private, all of it */
    int64_t cost;
    int32_t before, heap, slot, hash;
    dpar_route_step step;
} dpar_route_node;

/* The cheapest sequence from one layout to another on the same mesh, CHUNK shards only (strided
 * ones: dpar_layout_unstride first). A cut can be gathered or moved when it is the innermost of its
 * dim, and comes in as the innermost, as in DTensor. Where cuts are even, two axes may change roles
 * if they cut the same dim or are of one size, and PERMUTE ends a route where both layouts have the
 * same tiles (arXiv 2112.01075's collective permutes).
 *
 * Cost of a step: elements received times byte_cost[axis] (SWAP, PERMUTE: the dearest axis), plus
 * step_cost where something moves. byte_cost NULL: 1 for each. Received: all-gather (n-1) x what a
 * rank has, all-to-all and reduce-scatter (n-1)/n of it with dim `to` padded to n equal parts,
 * all-reduce 2 (n-1)/n, SWAP and PERMUTE all of it, slices nothing; padded sizes. Exact (Dijkstra),
 * so never worse than a greedy or another search over these moves.
 *
 * steps: room for `room` of them, *count how many there are. nodes: scratch; 1,000 do for 4 axes
 * and 3 dims, 20,000 for 5 axes and 4 dims. E_ROOM when one of them is too short, E_ARG when the
 * layouts are not as above, E_NONE when no sequence does it. */
DPAR_API dpar_status dpar_route(const dpar_layout *from, const dpar_layout *to,
                                const int64_t *byte_cost, int64_t step_cost, dpar_route_step *steps,
                                int32_t room, int32_t *count, dpar_route_node *nodes,
                                int32_t node_room, dpar_why *why);
/* The layout after a step. E_ARG when it cannot be made from here. */
DPAR_API dpar_status dpar_route_apply(const dpar_layout *l, const dpar_route_step *step,
                                      const dpar_layout *goal, dpar_layout *after, dpar_why *why);
/* Elements that a rank holds at once at most while it takes the steps: what it has and what it
 * gets, padded sizes; -1 past 2^63 - 1. scratch: two layouts, the caller's. (Moved directly:
 * dpar_redistribute_peak.) O(steps x axes). */
DPAR_API int64_t dpar_route_peak(const dpar_layout *from, const dpar_layout *goal,
                                 const dpar_route_step *steps, int32_t count, dpar_layout *scratch);

/* ==== index/flat.h ==== */

/* flat - arrays laid end to end in one buffer that ranks share: FSDP's flat parameter, the buckets
 * of DDP and of the distributed optimizer, and which boxes an interval of such a buffer is. */

/* ---- a flat parameter: FSDP1, ZeRO ---- */

typedef struct dpar_flat {
    int32_t ranks;
    int64_t total; /* elements, parameters with the gaps between them */
    int64_t shard; /* elements of a rank: total rounded up to whole shards */
} dpar_flat;

/* Lays parameters of numel[i] elements in order, each start a multiple of `align` elements (FSDP1:
 * 16 bytes, or 1), and cuts the whole into equal shards, the last padded. start[i] receives where
 * each begins. E_ARG, E_RANGE with a sentence. Not collective. O(params). */
DPAR_API dpar_status dpar_flat_init(dpar_flat *f, int32_t params, const int64_t *numel,
                                    int64_t align, int32_t ranks, int64_t *start, dpar_why *why);

/* What a rank has of one parameter. */
typedef struct dpar_piece {
    int64_t count;     /* elements */
    int64_t in_param;  /* where they begin in the parameter, */
    int64_t in_shard;  /* in the rank's shard, */
    int64_t in_bucket; /* in the bucket (of a flat parameter: the whole), */
    int64_t in_buffer; /* in the buffer */
} dpar_piece;
/* The piece of a parameter at start, numel that lies in a rank's shard. 0, and nothing written,
 * when there is none. O(1). */
DPAR_API int dpar_flat_piece(const dpar_flat *f, int64_t start, int64_t numel, int32_t rank,
                             dpar_piece *piece);

/* ---- buckets ---- */

/* Parameters from the last to the first, as gradients become ready. Zero it and fill it in. */
typedef struct dpar_bucketing {
    int64_t first; /* the first bucket is closed when it has as many elements; 0: as the others */
    int64_t size;  /* the others; 0: never, all in one */
    int64_t align; /* starts of parameters are multiples of it; 0: 1 */
    int64_t multiple; /* ends of buckets are multiples of lcm(ranks, multiple); 0: 1 */
    int32_t ranks;    /* that share each bucket equally; 0: 1 */
} dpar_bucketing;
/* PyTorch's DDP: buckets of 25 MiB, the first of 1 MiB, nothing padded. */
DPAR_API dpar_bucketing dpar_bucketing_ddp(int64_t element_bytes);
/* Megatron's distributed optimizer: starts at multiples of 64, ends of lcm(dp, 128); its
 * high-bandwidth mode has lcm(dp, 65536): set multiple. */
DPAR_API dpar_bucketing dpar_bucketing_megatron(int64_t size, int32_t ranks);

typedef struct dpar_bucket {
    int64_t lo, hi; /* in the buffer, padding included: each rank has (hi - lo) / ranks of it */
    int64_t used;   /* elements, without the padding at its end: lo + used <= hi */
    int32_t first, last; /* parameters first <= i < last */
} dpar_bucket;
/* Fills start[0 .. params-1] and up to `room` buckets, in the buffer's order (that of the last
 * parameters first); *buckets is how many there are. Call with room 0 to count. E_ARG, E_RANGE with
 * a sentence. Not collective; equal on all ranks. O(params). */
DPAR_API dpar_status dpar_buckets_make(const dpar_bucketing *how, int32_t params,
                                       const int64_t *numel, int64_t *start, dpar_bucket *bucket,
                                       int32_t room, int32_t *buckets, dpar_why *why);
/* What one of `ranks` equal shares of a bucket has of a parameter. 0 when nothing. O(1). */
DPAR_API int dpar_bucket_piece(const dpar_bucket *bucket, int32_t ranks, int64_t start,
                               int64_t numel, int32_t rank, dpar_piece *piece);

/* ---- intervals of a flattened array ---- */

/* The boxes that elements [*at, end) of an array in C order make up, in order; at most 2 dims - 1
 * of them. Begin with *at = the first; 1 and the next box, *at moved behind it, or 0 at the end.
 * `end` past the array is its end; 0 too where an extent is below 1, *at is negative or the
 * extents' product does not fit 63 bits. RaggedShard, BlockShard: split rows or blocks, times their
 * elements. O(dims). */
DPAR_API int dpar_flat_next_box(int32_t dims, const int64_t *extent, int64_t *at, int64_t end,
                                dpar_box *box);

/* ==== index/heads.h ==== */

/* heads - what tensor, sequence and pipeline parallel ranks have of a transformer: attention heads,
 * rows of fused weights, the vocabulary, layers. */

/* ---- attention heads: grouped queries (GQA), one group (MQA), as many groups as heads (MHA) ----
 */

typedef struct dpar_heads {
    int32_t queries; /* query heads */
    int32_t groups;  /* key-value heads; a multiple of queries share each */
    int32_t ranks;   /* tensor parallel */
    int32_t rule; /* DPAR_EVEN: balanced; DPAR_CHUNK: the last ranks have less (what padding is) */
} dpar_heads;

/* At least as many groups as ranks: groups are split by the rule, their queries with them. Fewer:
 * ranks are split among the groups, each rank has a copy of its group's key-value head and a share
 * of its queries. Where Megatron's divisibility holds, this is Megatron's. `strict`: where it does
 * not, E_DIVIDE with a sentence, as Megatron; otherwise only groups must divide queries. E_ARG.
 * O(1). */
DPAR_API dpar_status dpar_heads_init(dpar_heads *h, int32_t queries, int32_t groups, int32_t ranks,
                                     int32_t rule, int strict, dpar_why *why);

typedef struct dpar_heads_share {
    int32_t query, queries; /* the first query head of a rank, and how many */
    int32_t group, groups;  /* the first key-value head, and how many */
    int32_t copy, copies;   /* which of how many ranks that hold these groups. Copy 0 is primary: it
                               saves them; gradients of the others are added to its */
} dpar_heads_share;
/* All zero for a rank outside, and for one without heads (copies 0). O(1). */
DPAR_API dpar_heads_share dpar_heads_of(const dpar_heads *h, int32_t rank);
/* The most query heads, and key-value heads, of any rank: what the others are padded to. O(1). */
DPAR_API void dpar_heads_most(const dpar_heads *h, int32_t *queries, int32_t *groups);

/* Rows of the fused query-key-value weight that a rank has. */
enum {
    DPAR_QKV_BY_GROUP, /* each group's queries, key, value, then the next group's: Megatron */
    DPAR_QKV_BY_KIND   /* all queries, all keys, all values: Hugging Face, vLLM */
};
/* The n-th run of rows [*lo, *hi), in order and as long as they are; 0 past the last (at most
 * three). `width`: rows of a head. The fused gate and up weight is DPAR_STRIDED with 2 pieces.
 * O(1). */
DPAR_API int dpar_qkv_run(const dpar_heads *h, int32_t rank, int32_t order, int64_t width,
                          int32_t n, int64_t *lo, int64_t *hi);

/* DeepSpeed's sharding of `size` columns: with heads > 0 that divide size, whole heads by EVEN;
 * else units of `grain` by EVEN, what is left over to the last rank. Elements of a rank; -1 for
 * arguments that make no sense. O(1). */
DPAR_API int64_t dpar_grain_size(int64_t size, int64_t heads, int64_t grain, int32_t ranks,
                                 int32_t rank);

/* Ulysses: from a share of the sequence with all heads to all of the sequence with a share of the
 * heads. What `rank` sends to and receives from each of seq->parts ranks, in elements of `width` a
 * token and head, and where it begins (dense, by rank): the counts of MPI_Alltoallv. Backwards:
 * exchange the two. Any of the arrays may be NULL. E_ARG with a sentence when the two splits differ
 * in parts, or the counts pass 2^63. O(ranks). */
DPAR_API dpar_status dpar_ulysses_counts(const dpar_split *seq, const dpar_split *heads,
                                         int32_t rank, int64_t width, int64_t *send,
                                         int64_t *send_at, int64_t *receive, int64_t *receive_at,
                                         dpar_why *why);

/* ---- vocabulary ---- */

typedef struct dpar_vocab {
    int64_t count, added;         /* tokens of the model, and tokens added to it later */
    int64_t padded, padded_added; /* rows for each, in all ranks */
    int32_t ranks;
} dpar_vocab;
/* Rows are padded to whole multiples. Megatron: multiple = divisor (128) x ranks. vLLM: multiple
 * 64, the model's tokens and then all together. Each part is cut into equal shares: E_DIVIDE when
 * they are not; E_ARG, E_RANGE. O(1). */
DPAR_API dpar_status dpar_vocab_init(dpar_vocab *v, int64_t count, int64_t added, int64_t multiple,
                                     int32_t ranks, dpar_why *why);
/* Rows of a rank: padded / ranks for tokens of the model, then padded_added / ranks for added ones.
 */
DPAR_API int64_t dpar_vocab_rows(const dpar_vocab *v);
/* The row at which a rank holds token `id`; -1 when it does not (look up row 0 and zero the result,
 * then sum over ranks), also for ids that do not exist. Added ids begin at `count`. O(1). */
DPAR_API int64_t dpar_vocab_row(const dpar_vocab *v, int32_t rank, int64_t id);
/* The token in that row; -1 for padding. O(1). */
DPAR_API int64_t dpar_vocab_id(const dpar_vocab *v, int32_t rank, int64_t row);

/* ---- layers over pipeline stages ---- */

/* Zero it and fill it in. */
typedef struct dpar_stages {
    int32_t layers, stages;
    int32_t chunks;          /* of layers on a stage, interleaved; 0: 1 */
    int32_t first, last;     /* layers of the first and last stage, all chunks; 0: as the others */
    int32_t embedding, loss; /* 1: counts as a layer, before the first one and after the last */
    int32_t turns; /* 1: every second chunk runs back (V schedules): stage 0 has the ends */
} dpar_stages;
/* Layers [*lo, *hi) of one chunk of a stage: equal shares, the first ones longer by one where they
 * do not divide. By cost: dpar_split_balance. E_ARG, E_DIVIDE with a sentence. O(1). */
DPAR_API dpar_status dpar_stage_layers(const dpar_stages *s, int32_t stage, int32_t chunk,
                                       int32_t *lo, int32_t *hi, dpar_why *why);

/* ==== index/context.h ==== */

/* context - which tokens of a packed sequence a context-parallel rank has: each document cut by a
 * rule, tokens dealt by their cost, or contiguous slices with the documents that they meet. A
 * single sequence is one document, or just a dpar_split (DPAR_ZIGZAG, DPAR_STRIPE). */

/* ---- each document by itself ---- */

/* Documents laid end to end: document k is tokens [ends[k], ends[k + 1]), ends[0] = 0 (THD's
 * cumulative lengths). Some may be empty. Each is cut into `ranks` parts by `rule`; a rank has its
 * parts in the order of the documents. torch's head-tail, Megatron and TransformerEngine: ZIGZAG,
 * of documents whose lengths 2 ranks divide (dpar_packed_pad); others are cut unevenly, nothing is
 * lost. */
typedef struct dpar_packed {
    int32_t docs, ranks, rule;
    const int64_t *ends; /* docs + 1 of them, the caller's */
} dpar_packed;
/* rule: DPAR_CHUNK, DPAR_EVEN, DPAR_ZIGZAG or DPAR_STRIPE. E_ARG with a sentence. O(docs). */
DPAR_API dpar_status dpar_packed_init(dpar_packed *p, int32_t docs, const int64_t *ends,
                                      int32_t ranks, int32_t rule, dpar_why *why);
/* Lengths rounded up to multiples of `multiple` (2 ranks for ZIGZAG): padded[0 .. docs] receives
 * the new ends; empty documents stay empty. E_ARG, E_RANGE with a sentence. O(docs). */
DPAR_API dpar_status dpar_packed_pad(int32_t docs, const int64_t *ends, int64_t multiple,
                                     int64_t *padded, dpar_why *why);
/* Tokens of a rank; local_ends (may be NULL) receives where each document ends in them, docs + 1
 * entries: the rank's own cumulative lengths. 0 for a rank outside. O(docs). */
DPAR_API int64_t dpar_packed_size(const dpar_packed *p, int32_t rank, int64_t *local_ends);
/* Where token i lies: its rank, and its local index there (may be NULL); -1 outside. O(docs). */
DPAR_API int32_t dpar_packed_find(const dpar_packed *p, int64_t i, int64_t *local);
/* The runs of a rank in order: begin with a zeroed cursor; 1, and tokens [*first, *first + *count)
 * of document *doc, or 0 at the end. O(1) each, and O(docs) over all. */
typedef struct dpar_packed_cursor {
    int32_t doc;
    int64_t local;
} dpar_packed_cursor;
DPAR_API int dpar_packed_next(const dpar_packed *p, int32_t rank, dpar_packed_cursor *cursor,
                              int32_t *doc, int64_t *first, int64_t *count);
/* Query-key pairs of a rank under causal attention inside documents: its share of the work. At most
 * 2^63 - 1. O(runs), STRIPE O(docs). */
DPAR_API int64_t dpar_packed_pairs(const dpar_packed *p, int32_t rank);

/* ---- by cost ---- */

/* torch's PTRR: units (blocks of tokens) in descending order of cost, equal ones in their order,
 * dealt to the ranks in rows, every second row backwards. owner[i]: the rank of unit i; order
 * (both `units` long, both the caller's): rank 0's units ascending, then rank 1's. E_DIVIDE with a
 * sentence when ranks do not divide units. O(units log(units)). */
DPAR_API dpar_status dpar_context_deal(int64_t units, const int64_t *cost, int32_t ranks,
                                       int32_t *owner, int64_t *order, dpar_why *why);

/* ---- contiguous slices ---- */

/* What a rank of "llama3" attention needs: queries [q_lo, q_hi) are its slice; the documents
 * first <= k < first + docs meet it; it gathers keys [k_lo, k_hi). */
typedef struct dpar_varlen {
    int64_t q_lo, q_hi, k_lo, k_hi;
    int64_t longest_q, longest_k; /* of its documents: what kernels ask for */
    int32_t first, docs;
} dpar_varlen;
/* Rank's slice of ends[docs] tokens by CHUNK. causal: keys end with the slice; else with its last
 * document. q_ends and k_ends (each docs + 1 long, or NULL) receive the cumulative lengths of the
 * queries and keys of the documents that it meets, from 0 on: the arguments of a variable-length
 * attention. Empty documents in between are kept. E_ARG with a sentence. O(docs). */
DPAR_API dpar_status dpar_varlen_slice(int32_t docs, const int64_t *ends, int32_t ranks,
                                       int32_t rank, int causal, dpar_varlen *v, int64_t *q_ends,
                                       int64_t *k_ends, dpar_why *why);

/* ==== index/halo.h ==== */

/* halo - an n-d grid on a mesh whose ranks also hold what lies around their block: who sends which
 * cells to whom, what can be computed before they arrive, and what a convolution needs. */

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

/* ==== index/sampler.h ==== */

/* sampler - which sample of a data set a rank reads next: torch's DistributedSampler and randperm
 * bit for bit, Megatron's consecutive batches, exact coverage, resuming inside an epoch, and a
 * shuffle that needs no memory. */

/* What becomes of the samples that the ranks cannot share evenly. */
enum {
    DPAR_SAMPLES_PAD,  /* begin again until they can: some are read twice. torch's default */
    DPAR_SAMPLES_DROP, /* leave them out. torch's and Megatron's drop_last */
    DPAR_SAMPLES_EXACT /* each exactly once: ranks' numbers differ by up to `run`, so that metrics
                          are exact, and collectives must stop after dpar_sampler_common samples */
};

/* A value. Positions first, first + 1, ... of an epoch's order are dealt to the ranks in turn,
 * `run` at a time. The order is the caller's: 0, 1, 2, ..., or an array that dpar_randperm filled,
 * or a dpar_permutation. */
typedef struct dpar_sampler {
    int32_t rest;  /* DPAR_SAMPLES_PAD, ... */
    int32_t ranks; /* that read: the data-parallel ones, not all */
    int64_t count; /* samples of an epoch */
    int64_t first; /* already consumed, by all ranks together */
    int64_t
        run; /* 1: rank r takes r, r + ranks, ... (torch). A micro-batch: runs of it (Megatron) */
} dpar_sampler;

/* torch: rest, count, ranks, run 1, consumed 0. Megatron: run = micro-batch, DROP, or EXACT for
 * drop_last=False. To resume, also on another number of ranks: the positions consumed so far (what
 * dpar_sampler_consumed says); on the same number it goes on exactly as it would have. E_ARG with a
 * sentence; *s is written on success only. Not collective. O(1). */
DPAR_API dpar_status dpar_sampler_init(dpar_sampler *s, int32_t rest, int64_t count, int32_t ranks,
                                       int64_t run, int64_t consumed, dpar_why *why);
/* Samples that `rank` reads: never fewer than a later rank. 0 outside. O(1). */
DPAR_API int64_t dpar_sampler_size(const dpar_sampler *s, int32_t rank);
/* What every rank reads in whole runs: collectives that each sample or batch needs are safe so far.
 * After that some ranks have a shorter batch or none: the hang of a last, partial batch. O(1). */
DPAR_API int64_t dpar_sampler_common(const dpar_sampler *s);
/* The position, 0..count-1, of the k-th sample that `rank` reads; -1 past its last. O(1). */
DPAR_API int64_t dpar_sampler_at(const dpar_sampler *s, int32_t rank, int64_t k);
/* Positions consumed when each rank has read k samples, k a multiple of run (or all it has): what a
 * checkpoint must remember. At most count. -1 for another k. O(1). */
DPAR_API int64_t dpar_sampler_consumed(const dpar_sampler *s, int64_t k);

/* ---- torch's random numbers ---- */

/* MT19937, the generator of C++'s std::mt19937 and of torch on the CPU. 2.5 KB, the caller's. */
typedef struct dpar_mt19937 {
    uint32_t word[624];
    int32_t at; /* of the next word; 624: make new ones */
} dpar_mt19937;
/* As torch.Generator().manual_seed(seed): only the low 32 bits count. DistributedSampler's seed for
 * an epoch is seed + epoch. */
DPAR_API void dpar_mt19937_init(dpar_mt19937 *g, uint64_t seed);
/* The next 32 bits. */
DPAR_API uint32_t dpar_mt19937_next(dpar_mt19937 *g);
/* torch.randperm(count, generator=g) on the CPU, into order[0 .. count-1]: below 214748364 elements
 * Fisher-Yates with a 32-bit draw each, from there on inside out with 64-bit draws. E_ARG with a
 * sentence for a negative count. O(count). */
DPAR_API dpar_status dpar_randperm(dpar_mt19937 *g, int64_t count, int64_t *order, dpar_why *why);

/* ---- a shuffle without memory ---- */

/* A permutation of 0..count-1, the same on every machine: a Feistel network over the next power of
 * two, walked until it is inside. Not for secrets. */
typedef struct dpar_permutation {
    int64_t count;
    uint64_t key;
    int32_t low, high; /* bits of the two halves */
} dpar_permutation;
/* Different (seed, epoch) give different orders. count 0..2^62. E_ARG, E_RANGE with a sentence. */
DPAR_API dpar_status dpar_permutation_init(dpar_permutation *p, int64_t count, uint64_t seed,
                                           uint64_t epoch, dpar_why *why);
/* What lies at position i, and where value v lies; -1 outside 0..count-1. O(1): fewer than two
 * walks on average. */
DPAR_API int64_t dpar_permutation_at(const dpar_permutation *p, int64_t i);
DPAR_API int64_t dpar_permutation_find(const dpar_permutation *p, int64_t v);

/* ==== order/schedule.h ==== */

/* schedule - a pipeline's order of work: for each rank a list of actions, 8 bytes each, in the
 * caller's memory; and its text, the CSV that PyTorch's pipelining reads and writes. */

/* What an action does, and its name in the text. Micro-batch and stage count from 0. The papers on
 * zero bubbles write B for what is I here; here B is I and W in one, as in PyTorch. */
enum {
    DPAR_IDLE,        /* a pause that somebody wrote down; passes may drop it */
    DPAR_FORWARD,     /* F: needs the forward of the stage before; its activation lives from here */
    DPAR_BACKWARD,    /* B: input and weights; needs the backward of the stage behind; ends it */
    DPAR_INPUT,       /* I: gradient of the input alone */
    DPAR_WEIGHT,      /* W: gradient of the weights alone, after I; ends the activation */
    DPAR_SEND_F,      /* the stage's output, to the rank of the stage behind */
    DPAR_RECV_F,      /* the stage's input, from the rank of the stage before */
    DPAR_SEND_B,      /* the gradient of its input, to the rank of the stage before */
    DPAR_RECV_B,      /* the gradient of its output, from the rank of the stage behind */
    DPAR_UNSHARD,     /* gather the stage's parameters; no micro-batch */
    DPAR_RESHARD,     /* let go of them; no micro-batch */
    DPAR_REDUCE_GRAD, /* reduce the stage's gradients over data-parallel ranks; no micro-batch */
    DPAR_RECOMPUTE,   /* the forward again, before the backward */
    DPAR_OFFLOAD,     /* the activation to the host */
    DPAR_RELOAD,      /* and back */
    DPAR_ACTION_KINDS
};
#define DPAR_MOST_STAGES INT32_C(65535) /* and ranks */
#define DPAR_MOST_MICROS INT32_C(65535)

typedef struct dpar_action {
    uint8_t kind;   /* DPAR_FORWARD, ... */
    uint8_t joined; /* 1: a forward that runs together with the backward next in the list */
    uint16_t stage;
    uint16_t micro; /* micro-batch; 0 for kinds that have none */
    uint16_t peer;  /* SEND, RECV: the other rank; else 0 */
} dpar_action;

/* The actions of all ranks. Pointers are into the memory that was handed over; copy the struct
 * freely while that lives. Stage s feeds s + 1 unless it ends a chain: of one pipeline all stages
 * are one chain; a bidirectional one (Chimera, DualPipe) has two, 0 .. chain-1 down and chain ..
 * 2 chain - 1 up, and each micro-batch goes through one of them. Sliced micro-batches (Seq1F1B):
 * micro = micro-batch x slices + slice, and backward goes from a micro-batch's last slice to its
 * first. */
typedef struct dpar_schedule {
    int32_t ranks, stages, micros; /* micros: with slices, all of them */
    int32_t chain;                 /* stages of a chain; divides stages */
    int32_t slices;                /* of a micro-batch: 1, but for Seq1F1B */
    int64_t *begin; /* [ranks + 1]: rank r has action[begin[r]] .. begin[r + 1] - 1 */
    dpar_action *action;
    uint16_t *rank_of; /* [stages] */
} dpar_schedule;

/* Which rank a stage is on. LOOP: s mod p. V: down and up again, 0 1 2 3 3 2 1 0. BIDIRECTIONAL:
 * two chains of p stages, the second from the last rank to the first. */
enum { DPAR_MAP_LOOP, DPAR_MAP_V, DPAR_MAP_BIDIRECTIONAL, DPAR_STAGE_MAPS };
/* The rank of `stage` on `ranks`; -1 outside. O(1). */
DPAR_API int32_t dpar_stage_rank(int32_t map, int32_t ranks, int32_t stage);

/* Bytes of memory for a schedule; -1 when a number is out of its domain: 1 to 65535 ranks and
 * stages, 0 or more actions. O(1). */
DPAR_API int64_t dpar_schedule_bytes(int32_t ranks, int32_t stages, int64_t actions);
/* Lays an empty schedule into mem (aligned as for int64_t): ranks, stages, pointers; chain =
 * stages, slices = 1, micros = 0, all begins 0. E_ARG, E_ROOM with a sentence. O(ranks). */
DPAR_API dpar_status dpar_schedule_lay(dpar_schedule *s, int32_t ranks, int32_t stages,
                                       int64_t actions, void *mem, int64_t bytes, dpar_why *why);

/* The stage whose forward feeds this one's, and the one that it feeds; -1 at a chain's ends. */
DPAR_API int32_t dpar_schedule_before(const dpar_schedule *s, int32_t stage);
DPAR_API int32_t dpar_schedule_behind(const dpar_schedule *s, int32_t stage);
/* "F", "B", "I", "W", "SEND_F", ...; "" for DPAR_IDLE and any other number. Static text. */
DPAR_API const char *dpar_action_name(int32_t kind);
/* Is there a micro-batch in this kind's text? (F, B, I, W, messages, RECOMPUTE, OFFLOAD, RELOAD) */
DPAR_API int dpar_action_has_micro(int32_t kind);
/* Appends "3F12", "(0F7;7B3)OVERLAP_F_B" for a joined one and the next, "" for an idle one. */
DPAR_API void dpar_action_text(const dpar_action *a, dpar_text *t);

/* ---- the text: one line a rank, cells between commas, an empty cell is idle -------------------
 *
 * PyTorch's CSV, format compute_only or compute_comms, read strictly: <stage><name><micro-batch>,
 * (<F>;<B or I>)OVERLAP_F_B, blanks around a cell, LF or CRLF, lines that begin with '#' are
 * comments; a line of nothing is a rank without actions, "" (quoted) a single idle one. Anything
 * else is E_PARSE with line, column and what was expected. Stages are on the rank in whose line
 * they stand (E_ARG when on two, or when a stage below the largest is on none); peers follow from
 * that. */

/* Bytes that reading this text takes; -1 with a sentence as dpar_schedule_read. O(n). */
DPAR_API int64_t dpar_schedule_read_bytes(const char *text, size_t n, dpar_why *why);
/* Reads a text into mem. `chain`: stages of a chain, 0: all are one chain; a message between
 * stages that are not neighbours in a chain, or on one rank, is E_ARG. micros: the largest + 1.
 * slices = 1: set it. O(n). */
DPAR_API dpar_status dpar_schedule_read(dpar_schedule *s, const char *text, size_t n, int32_t chain,
                                        void *mem, int64_t bytes, dpar_why *why);
/* Appends the text; `end` ends the lines: "\r\n" as Python's csv writes it, or "\n". What is
 * written reads back as the same actions. O(actions). */
DPAR_API void dpar_schedule_write(const dpar_schedule *s, const char *end, dpar_text *t);

/* ==== order/generate.h ==== */

/* generate - the published pipeline orders, each from one small description: who computes what
 * after what. Messages come later, by lowering; times too, by simulation. */

/* The rules. p ranks, v stages a rank, m micro-batches; F, B, I, W as in schedule.h; r a rank. What
 * is live is counted in stages x micro-batches, from F to B or W. */
enum {
    /* All F, then all B, in the order of F, or from the last to the first with `lifo` (Huang 2019
     * draws that; PyTorch and DeepSpeed run the other). Live: m. */
    DPAR_GPIPE,
    /* p-1-r F ahead, then F and B in turn (PipeDream-flush; Narayanan 2021). Live: p-r. Fewer
     * micro-batches than ranks are fine. */
    DPAR_1F1B,
    /* v stages a rank, r, r+p, r+2p, ..: micro-batches go in groups, each group through all chunks
     * before the next, (v-1) N + 2 (p-1-r) F ahead (Narayanan 2021). N: `group`, see there. Live:
     * one more than are ahead. */
    DPAR_INTERLEAVED,
    /* All micro-batches through chunk 0, then all through chunk 1, ..; then back, the last
     * micro-batch first (Lamy-Poirier 2022, PyTorch's LoopedBFS). Live: m v. */
    DPAR_BREADTH_FIRST,
    /* Zero bubble (Qi 2023), by hand, I and W apart: 1F1B's start, and the W of an I comes r
     * micro-batches after it. Live: p on every rank. Also ZB-1P. */
    DPAR_ZB_H1,
    /* The same with 2 (p-1-r) F ahead and W 2 r behind. Live: 2p-1 on every rank, and with
     * F = I = W no rank pauses between its first F and its last W. Also ZB-2P. */
    DPAR_ZB_2P,
    /* Zero bubble on a V: stages r and 2p-1-r. Live: 2p. Below 2p-1 micro-batches it is the list of
     * 2p-1 with the others left out. */
    DPAR_ZBV,
    /* The same V with half and a third of the memory (Qi 2024): a block of 6 slots a micro-batch,
     * repeated, then moved to the front where memory allows. Live: 2 ((p+2)/2), 2 ((p+4)/3). */
    DPAR_V_HALF,
    DPAR_V_MIN,
    /* Two pipelines in opposite directions, stages 0 .. p-1 and p .. 2p-1, half the micro-batches
     * through each; F of one runs together with B of the other (DeepSeek 2024). p and m even,
     * m >= 2p. Live: p+1. */
    DPAR_DUALPIPE,
    /* The same folded onto a V: m >= 2p. Live: 2p+1. */
    DPAR_DUALPIPEV,
    /* 1F1B with 2 (p-1-r) F ahead: latency between ranks is paid once, not for each micro-batch
     * (Alpa's overlap-friendly 1F1B). Live: 2 (p-r) - 1. */
    DPAR_EAGER_1F1B,
    /* ZB-H1 with v stages a rank, grouped as INTERLEAVED, (v-1) N + p-1-r F ahead (PyTorch's
     * InterleavedZeroBubble). Live with N = p: v p. */
    DPAR_INTERLEAVED_ZB,
    /* V-Half's kin with whole backwards: 2/3 of 1F1B's memory (Qi 2024). Live: 2 (2p/3 + 1),
     * rounded down as in C. */
    DPAR_1F1B_V,
    /* INTERLEAVED (v = 1: EAGER) with one F more ahead, so that each F runs together with a B that
     * does not need it (Megatron's overlap of experts' all-to-all). */
    DPAR_MOE_OVERLAP,
    /* 1F1B over slices of the sequence: p-2-r + slices F ahead; of a micro-batch the last slice
     * goes back first (Sun 2024). Live: p-1-r + slices, of slices. */
    DPAR_SEQ1F1B,
    /* Two 1F1B pipelines in opposite directions, units of p/2 micro-batches down and p/2 up, one
     * unit behind the other (Li 2021). Micro-batches u p .. u p + p/2 - 1 of unit u go down, the
     * rest up; F and B take equal slots. p even. Live: p/2+1 on the outer ranks, p on the inner. */
    DPAR_CHIMERA,
    /* Inference: F alone, chunk by chunk. */
    DPAR_FORWARD_ONLY,
    DPAR_ORDERS
};

/* What to make. Zero-initialise it, then set rule, ranks and micros; 0 elsewhere is the rule's own.
 * Stages: ranks x chunks (bidirectional rules: 2 x ranks, in two chains). */
typedef struct dpar_order {
    int32_t rule;   /* DPAR_GPIPE, ... */
    int32_t ranks;  /* 1 to 65535 */
    int32_t micros; /* 1 to 65535; SEQ1F1B: x slices */
    /* Stages a rank. Any for INTERLEAVED, BREADTH_FIRST, INTERLEAVED_ZB (0: 2), MOE_OVERLAP and
     * FORWARD_ONLY (0: 1); 2 for the rules on a V or in two directions; 1 for the others. */
    int32_t chunks;
    /* INTERLEAVED, INTERLEAVED_ZB, MOE_OVERLAP: micro-batches of a group, at least `ranks`; 0:
     * ranks. A last group of `ranks` or more may be shorter (Megatron's rule). When fewer would be
     * left, the groups that are full share them as evenly as possible, the first ones getting one
     * more (PyTorch's rule where all come out equal, e.g. 10 on 4 ranks: 5 and 5). Micro-batches
     * too few for one group are one. */
    int32_t group;
    int32_t slices; /* SEQ1F1B: of a micro-batch; 0: 2 */
    int32_t lifo;   /* GPIPE: 1: backward from the last micro-batch to the first */
    /* [stages], NULL: stage s on rank s mod p (V and bidirectional: there and back). Else for
     * GPIPE, BREADTH_FIRST and FORWARD_ONLY any map; for the others that one with its ranks
     * relabelled: what the rule puts on one rank is on one rank. */
    const uint16_t *rank_of;
    int32_t stages; /* BREADTH_FIRST, FORWARD_ONLY with rank_of: of all ranks; 0: ranks x chunks */
} dpar_order;

/* Is there such a schedule? OK, or E_ARG, E_DIVIDE, E_RANGE with a sentence why not. O(stages). */
DPAR_API dpar_status dpar_order_check(const dpar_order *order, dpar_why *why);
/* Actions of a rank (an overlapped pair: 2); -1 for a rank or an order that does not exist.
 * O(stages). */
DPAR_API int64_t dpar_order_count(const dpar_order *order, int32_t rank);
/* Memory that dpar_order_make takes: dpar_schedule_bytes, and for V_HALF, V_MIN and 1F1B_V
 * 88 m + 72 p + 248 bytes a rank to work in. -1 with the sentence of dpar_order_check.
 * O(stages). */
DPAR_API int64_t dpar_order_bytes(const dpar_order *order, dpar_why *why);
/* Makes the schedule in mem (aligned as for int64_t), F, B, I and W alone, no idle cells. Errors of
 * dpar_order_check, and E_ROOM. Time: O(actions), V_HALF, V_MIN, 1F1B_V: O(actions + p^2) and more
 * where much moves. Behind the schedule's own bytes mem is free again. */
DPAR_API dpar_status dpar_order_make(dpar_schedule *schedule, const dpar_order *order, void *mem,
                                     int64_t bytes, dpar_why *why);

/* "gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1", "zb-2p", "zbv", "v-half", "v-min",
 * "dualpipe", "dualpipev", "eager-1f1b", "interleaved-zb", "1f1b-v", "moe-overlap", "seq1f1b",
 * "chimera", "forward-only"; "?" for any other number. Static text. */
DPAR_API const char *dpar_order_name(int32_t rule);
/* The rule of a name: sets order->rule and order->lifo, nothing else. Case, '-', '_' and a leading
 * "Schedule" do not matter, so PyTorch's class names do; further: gpipe-lifo, interleaved-1f1b,
 * bfs, looped-bfs, zb-1p, zb1p, zb-h2, zb2p, zb-v, zbv-zero-bubble, izb, interleaved-zero-bubble,
 * flexible-interleaved-1f1b, eager, v1f1b, overlap-1f1b, seq-1f1b, inference. E_UNKNOWN lists the
 * names. */
DPAR_API dpar_status dpar_order_find(dpar_order *order, const char *name, dpar_why *why);

/* ==== order/lower.h ==== */

/* lower - passes over schedules, from a list of computations to one that a runner executes: when a
 * stage's parameters are gathered and let go, when its gradients are reduced, which message goes
 * before which. Each pass reads `in`, writes `out` into the caller's memory and takes O(actions).
 */

/* All passes: `mem` (aligned as for int64_t) must not be in's and is out's from then on; so many
 * bytes as the pass's own function says, which answers -1 with a sentence for a list that no pass
 * takes: a kind, stage or micro-batch that there is not, a stage on another rank than rank_of says,
 * a joined forward without a B or I behind it, a message that is none between neighbours (E_ARG).
 * E_ROOM when there are fewer. The schedule lies first; what the pass worked with lies behind its
 * rank_of and is free again. `out` is written on success only. */

/* ---- messages, shards, gradients -------------------------------------------------------------
 *
 * The three lowering passes of PyTorch (torch/distributed/pipelining/schedules.py), in its order
 * and with its results:
 *
 * SHARDS: a stage's parameters are gathered (UNSHARD) when it is among the first `max_active`
 * different stages that this rank computes from here on (both stages of a joined pair count, so
 * that there may be one more), and let go (RESHARD; of several the smaller stage
 * first, where PyTorch has a set's order) when it no longer is.
 * REDUCE: REDUCE_GRAD behind a stage's last B or W (PyTorch: the m-th). Both drop idle actions.
 *
 * MESSAGES: SEND and RECV between neighbours of a chain that are on two ranks; stages on one rank
 * hand over in memory. Turn by turn, ranks ascending, each rank puts its next action in its list if
 * the receive (or the neighbour's result on its own rank) that it needs is there already; then the
 * SEND goes behind it and the RECV into the peer's list, at the same moment. So all lists follow
 * one order of all messages: no transport that keeps the order of a channel can deadlock, and both
 * ends of each pair of ranks see the same order. Any other action (UNSHARD, W) takes its turn too;
 * idle ones are dropped, with IDLE after their turn (as in a call of _add_send_recv alone; the
 * passes before drop them). E_ARG names a rank that can never go on and what it waits for. */
enum { DPAR_LOWER_SHARDS = 1, DPAR_LOWER_REDUCE = 2, DPAR_LOWER_MESSAGES = 4, DPAR_LOWER_IDLE = 8 };
enum { DPAR_MOST_ACTIVE = 24 };

typedef struct dpar_lowering {
    int32_t passes;     /* sum of DPAR_LOWER_...; without a pass: MESSAGES */
    int32_t max_active; /* SHARDS: 1 to DPAR_MOST_ACTIVE stages; 0 is 3, as in PyTorch */
} dpar_lowering;

/* `how` may be NULL: all zero. What a pass adds may not be in the list already (E_ARG). Working
 * memory: 41 bytes a rank, 8 a stage, one byte for each stage and micro-batch. The size is exact
 * but for REDUCE, where it has room for one action a stage. O(actions x max_active). */
DPAR_API int64_t dpar_schedule_lower_bytes(const dpar_schedule *in, const dpar_lowering *how,
                                           dpar_why *why);
DPAR_API dpar_status dpar_schedule_lower(dpar_schedule *out, const dpar_schedule *in,
                                         const dpar_lowering *how, void *mem, int64_t bytes,
                                         dpar_why *why);

/* ---- other passes --------------------------------------------------------------------------- */

/* Where W stands directly behind I of the same stage and micro-batch they become one B; idle
 * actions are dropped. A joined I stays as it is. */
DPAR_API int64_t dpar_schedule_merge_bytes(const dpar_schedule *in, dpar_why *why);
DPAR_API dpar_status dpar_schedule_merge(dpar_schedule *out, const dpar_schedule *in, void *mem,
                                         int64_t bytes, dpar_why *why);

/* Receive sinking: each RECV moves as late as it may, so that fewer buffers wait with nobody
 * reading them: past computations, never past the one that needs it (F; B or I) and never past a
 * message of its class. A list that lowering made stays free of deadlock over these channels:
 * ANY: whatever keeps order, even blocking rendezvous; PEER: a channel for each pair of ranks, or
 * finer; EDGE: one for each sender and receiver. */
enum { DPAR_SINK_ANY, DPAR_SINK_PEER, DPAR_SINK_EDGE, DPAR_SINK_CLASSES };
/* Working memory: 16 bytes a rank, 8 an action of the longest list, one byte for each stage and
 * micro-batch. */
DPAR_API int64_t dpar_schedule_sink_bytes(const dpar_schedule *in, dpar_why *why);
DPAR_API dpar_status dpar_schedule_sink(dpar_schedule *out, const dpar_schedule *in,
                                        int32_t channel_class, void *mem, int64_t bytes,
                                        dpar_why *why);

/* ==== order/check.h ==== */

/* check - is a schedule right, and does it come to its end on a given transport? */

/* What dpar_schedule_check takes for right, beyond its rules. */
enum {
    DPAR_CHECK_TRAINS = 1, /* a list without any backward is refused: else it is forward-only */
    DPAR_CHECK_TAGGED = 2  /* messages have tags (MPI): any order on a channel will do */
};

/* Bytes of working memory, for the check and for the run; -1 when ranks, stages, chain, micros,
 * slices or begin are not those of a schedule (the check says why). O(ranks). */
DPAR_API int64_t dpar_schedule_check_bytes(const dpar_schedule *s);
DPAR_API int64_t dpar_schedule_run_bytes(const dpar_schedule *s);

/* Proves a schedule, compute alone or with messages: DPAR_OK, or E_ARG and the first fault as one
 * sentence, "rank 2: 1B3 is there twice". Any actions may stand in it. The rules:
 *  - kinds, stages, micro-batches in range; stages on their rank; a joined forward is followed by a
 *    B or I of the same rank, not its own;
 *  - every micro-batch goes through one chain, all its stages, the slices of one through the same:
 *    there F once, and B once or I and W once, or no backward anywhere; nothing twice;
 *  - in a rank's list F, OFFLOAD, RELOAD, RECOMPUTE, B or I, W in this order; what a stage gives to
 *    another of the same rank is made before it is used; slices forward in ascending, backward in
 *    descending order; an OFFLOAD for every RELOAD, and a RELOAD for every OFFLOAD where there is a
 *    backward;
 *  - messages, if there is one: both ends of each between stages that are neighbours on different
 *    ranks, once, with the right peer, and no other; RECV before its consumer, SEND after its
 *    producer; from one rank to another received in the order in which they are sent, whatever
 *    they carry (NCCL has no tags: another order is no error there but wrong data);
 *  - UNSHARD, RESHARD, if there is one: in turn for each stage, the last a RESHARD, and F, B, I, W,
 *    RECOMPUTE in between;
 *  - REDUCE_GRAD, if there is one: of each stage that has backwards once, after them;
 *  - all ranks together come to the end when nothing but the data is waited for; else the sentence
 *    has the circle, as dpar_schedule_run_check.
 * E_ROOM when mem (aligned as for int64_t) is too small. flags: DPAR_CHECK_.... O(actions). */
DPAR_API dpar_status dpar_schedule_check(const dpar_schedule *s, int32_t flags, void *mem,
                                         int64_t bytes, dpar_why *why);

/* How messages travel. BLOCKING: a rank does its actions in order and stays at a message until the
 * other rank is at its other end (MPI_Ssend, MPI_Recv). RANK to EDGE: messages are posted and wait
 * in a queue; one goes over when both its ends are the first of their queues; a computation waits
 * for what it receives (NCCL). Queues are those of a rank, one for all messages (RANK: one
 * communicator), for those of the forward and of the backward (DIR), for each other rank (PAIR: 2-
 * rank communicators), for each other rank and way (EDGE: PyTorch's p2p_per_edge). EAGER: a rank
 * does its actions in order; from each rank to each other one there is a buffer of `room` messages,
 * first in first out: a send waits for a place in it, a receive for its message at the front.
 * What passes BLOCKING passes all. */
enum {
    DPAR_TRANSPORT_BLOCKING,
    DPAR_TRANSPORT_RANK,
    DPAR_TRANSPORT_DIR,
    DPAR_TRANSPORT_PAIR,
    DPAR_TRANSPORT_EDGE,
    DPAR_TRANSPORT_EAGER,
    DPAR_TRANSPORTS
};
/* "blocking", "rank", "dir", "pair", "edge", "eager"; "?" for others. And back; -1 for others. */
DPAR_API const char *dpar_transport_name(int32_t transport);
DPAR_API int32_t dpar_transport_find(const char *name);

/* Does a list with messages come to its end? DPAR_OK, or E_ARG: when it is no right schedule
 * (dpar_schedule_check, tagged; or it lacks its messages), or when it gets stuck, with the circle:
 * "pair: rank 0 at 0SEND_F1 waits for 1RECV_F1 that rank 1 has after 1SEND_F0; rank 1 ...". No run
 * depends on the ranks' speed, so that one run proves all. room: messages of an EAGER buffer, 1 and
 * more; else ignored. stuck: NULL, or [ranks], written when it gets stuck and only then: where each
 * rank stands, the index in s->action, -1 when it is through; of queued messages the first of the
 * queue that holds up the rank. E_ROOM as above. Source: what PyTorch issue #172668 and PR #195760
 * report. O(actions). */
DPAR_API dpar_status dpar_schedule_run_check(const dpar_schedule *s, int32_t transport,
                                             int32_t room, int64_t *stuck, void *mem, int64_t bytes,
                                             dpar_why *why);

/* ==== order/steps.h ==== */

/* steps - what a runner needs of a schedule: buffers for everything, as few as there can be, and
 * the next thing to do. */

/* The buffers that an action uses, numbered from 0 in each rank and kind; DPAR_NO_SLOT: none.
 *  receive: what comes in, from RECV to the end of the F, B or I that uses it. What the backward
 *    needs of a stage's input belongs to the activation.
 *  activation: from F to B, or to W where the backward is split; in a list without backwards to the
 *    end. An OFFLOAD frees it, its RELOAD takes another. In a joined pair F takes before B frees.
 *  send: what goes out, from the F, B or I that makes it to the SEND, and some sends more (below).
 *  weight: what I leaves to W, the gradients in between: pending W's.
 * So F has receive, activation, send; I all four; W activation and weight; RECV and SEND their own.
 * A list without messages has neither receives nor sends. Between stages of one rank data goes from
 * hand to hand: no slots. */
enum { DPAR_NO_SLOT = 65535 };
typedef struct dpar_slots {
    uint16_t receive, activation, send, weight;
} dpar_slots;
/* How many a rank needs. */
typedef struct dpar_slot_counts {
    int32_t receive, activation, send, weight;
} dpar_slot_counts;

/* Bytes of working memory; -1 as dpar_schedule_check_bytes. O(ranks). */
DPAR_API int64_t dpar_schedule_slots_bytes(const dpar_schedule *s);
/* Assigns slots: no two live things share one, and of each kind a rank has as many as are alive at
 * once at most. slots: NULL, or one for each of s->action; counts: NULL, or [ranks].
 * flying: a send's slot stays taken while the next `flying` sends of the rank are posted. 0: a SEND
 * has the data out of its slot when it returns. A runner that posts k sends at a time and then
 * waits for the oldest takes k; one that waits at the end of the step only, as PyTorch does,
 * INT32_MAX. (Or it takes 0 and waits, before it fills a slot, for the send that was the last to
 * use it; a list that passes DPAR_TRANSPORT_BLOCKING stands that.)
 * E_ARG when dpar_schedule_check (tagged) refuses s, or flying < 0; E_RANGE at more than 65535
 * slots; E_ROOM. O(actions). */
DPAR_API dpar_status dpar_schedule_slots(const dpar_schedule *s, int32_t flying, dpar_slots *slots,
                                         dpar_slot_counts *counts, void *mem, int64_t bytes,
                                         dpar_why *why);

/* A rank's way through its list. Both pointers are the caller's and must live. Begin again for the
 * next training step. */
typedef struct dpar_steps {
    const dpar_schedule *schedule;
    const dpar_slots *slots; /* NULL: every step says DPAR_NO_SLOT */
    int64_t at, end;
} dpar_steps;
/* What to do next: one action, or a forward and a backward that run together. */
typedef struct dpar_task {
    int64_t index; /* of the first, in schedule->action */
    dpar_action action[2];
    dpar_slots slots[2];
} dpar_task;

/* Begins a step of `rank`; a rank outside has nothing to do. O(1). */
DPAR_API void dpar_steps_begin(dpar_steps *steps, const dpar_schedule *s, const dpar_slots *slots,
                               int32_t rank);
/* The number of actions in *task: 1, or 2 that are joined; 0 at the end (*task is not written).
 * Idle ones are passed over. The list must be a right one (dpar_schedule_check). O(1). */
DPAR_API int dpar_schedule_next(dpar_steps *steps, dpar_task *task);

#ifndef DPAR_NO_COST

/* ==== cost/cluster.h ==== */

/* cluster - the machine as the cost wing sees it: a chip, the links inside a node, the NICs of a
 * node, the fabric; and the few constants that say what share of the data sheet is reached.
 * Bandwidths are bytes/s in ONE direction. 1 GB = 1e9 bytes, 1 GiB = 2^30. */

/* Number formats that a chip computes in. */
enum {
    DPAR_F64,
    DPAR_F32,
    DPAR_TF32,
    DPAR_BF16, /* and fp16 */
    DPAR_F8,
    DPAR_F4,
    DPAR_FORMATS
};

/* Chips that share one set of calibration constants. */
enum {
    DPAR_GEN_OTHER,
    DPAR_GEN_VOLTA,
    DPAR_GEN_AMPERE,
    DPAR_GEN_HOPPER,
    DPAR_GEN_BLACKWELL,
    DPAR_GEN_CDNA,
    DPAR_GEN_TPU,
    DPAR_GENERATIONS
};

typedef struct dpar_gpu {
    char name[20];
    int32_t generation;         /* DPAR_GEN_* */
    int32_t units;              /* streaming multiprocessors (CUs, cores); 0 unknown */
    double flops[DPAR_FORMATS]; /* dense peak, FLOP/s; 0: the chip has no such format */
    double memory_bytes;        /* what a program can allocate, bytes */
    double memory_Bps;          /* HBM bandwidth, bytes/s */
    double pcie_Bps;            /* to the host, one direction */
    char source[64];            /* where the numbers are from, with its date */
} dpar_gpu;

/* The constants of a machine, at most a dozen. Each has a default per chip generation, can be given
 * by name ("gemm=0.8") and can be fitted from measurements (calibrate.h). */
enum {
    DPAR_CAL_GEMM,       /* share of the matrix peak that a large GEMM reaches */
    DPAR_CAL_ATTENTION,  /* share of the matrix peak that fused attention reaches (real work) */
    DPAR_CAL_HBM,        /* share of memory_Bps that streaming kernels reach */
    DPAR_CAL_LAUNCH_S,   /* host seconds a kernel: the floor under small layers */
    DPAR_CAL_LINK_SHARE, /* share of the in-node link bandwidth that collectives reach */
    DPAR_CAL_LINK_S,     /* seconds a step of a collective inside a node */
    DPAR_CAL_NET_SHARE,  /* share of the NIC bandwidth that collectives reach */
    DPAR_CAL_NET_S,      /* seconds a step of a collective across nodes */
    DPAR_CAL_BASE_S,     /* seconds that any collective costs before its first step */
    DPAR_CAL_CONTENTION, /* share of hidden communication that the compute loses */
    DPAR_CAL_SKEW, /* waiting for the slowest: share of the compute a doubling of dp x cp x tiles */
    DPAR_CAL_STEP_S, /* seconds a step outside of layers (data, loss sync, host) */
    DPAR_CALS
};

typedef struct dpar_calibration {
    double value[DPAR_CALS];
    double error[DPAR_CALS]; /* one standard deviation, relative; 0 unknown */
    int32_t rows;            /* measurements behind it; 0: defaults */
    char source[64];         /* which, with the date */
} dpar_calibration;

typedef struct dpar_cluster {
    char name[24];
    dpar_gpu gpu;
    int32_t nodes;         /* >= 1 */
    int32_t gpus_per_node; /* ranks that share the in-node links; >= 1 */
    double link_Bps;       /* in-node, a GPU, one direction */
    int32_t link_switched; /* 1: any pair gets link_Bps (NVSwitch); 0: split over the peers */
    int32_t link_reduces;  /* in-switch reduction inside a node (NVLS) */
    int32_t nics;          /* NICs a node; 0: no network (one node) */
    double nic_Bps;        /* a NIC, one direction */
    int32_t net_reduces;   /* in-network reduction between nodes (SHARP) */
    double taper;          /* share of the injection bandwidth that the fabric carries, (0, 1] */
    double host_bytes;     /* host memory a node, for offload; 0 unknown (offload is refused) */
    double nvme_Bps;       /* a node; 0: none */
    dpar_calibration cal;
    char source[96]; /* where the machine's numbers are from, with the date */
} dpar_cluster;

/* Presets. GPU and machine names as listed by the two enumerators (index 0..n-1; NULL past the
 * end); not case-sensitive. E_UNKNOWN names the nearest. */
DPAR_API dpar_status dpar_gpu_preset(dpar_gpu *gpu, const char *name, dpar_why *why);
DPAR_API dpar_status dpar_cluster_preset(dpar_cluster *c, const char *name, dpar_why *why);
DPAR_API const char *dpar_gpu_name(int32_t index);
DPAR_API const char *dpar_cluster_name(int32_t index);

/* The default constants of a generation, with source, date and error bars. */
DPAR_API void dpar_calibration_default(dpar_calibration *cal, int32_t generation);
/* "gemm", "attention", "hbm", "launch_us", "link_share", ... and back; NULL / -1 unknown. */
DPAR_API const char *dpar_calibration_name(int32_t which);
DPAR_API int32_t dpar_calibration_find(const char *name, size_t length);

/* Reads a machine from text: a preset name ("derecho", "dgx-h100"), or NODESxGPUS:GPU, either
 * followed by ",key=value" settings; also one setting a line with '#' comments (a file).
 *   "8x8:h100-80,nvlink=450,nic=8x50"        8 nodes of 8, GB/s one direction, 8 NICs of 50 GB/s
 *   "derecho,nodes=16"   "16xdgx-h100"       "64:a100-80" is one node of 64
 * Keys: nodes, gpus (a node), gpu, nvlink (GB/s), switched, nvls, nic (COUNTxGB/s), sharp, taper,
 * memory (GB a GPU), hbm (GB/s), tflops (dense bf16), pcie (GB/s), host (GB a node), nvme (GB/s),
 * and every calibration name. Their order does not matter; of the same key the last counts. "hbm"
 * is both: up to 2 a share (hbm=0.8), above GB/s (hbm=3350). What is not said of NODESxGPUS:GPU is
 * the chip's usual: its links, a NIC a GPU; `source` says so. E_PARSE, E_UNKNOWN or E_ARG with a
 * sentence; *c is written only on success. */
DPAR_API dpar_status dpar_cluster_parse(dpar_cluster *c, const char *text, size_t bytes,
                                        dpar_why *why);

/* Is the description usable? Every number positive where it must be, none NaN. */
DPAR_API dpar_status dpar_cluster_check(const dpar_cluster *c, dpar_why *why);

/* Changes the number of GPUs: whole nodes, or part of one node (with its part of the NICs) when
 * gpus < gpus_per_node. E_DIVIDE when it is neither; E_ARG for gpus < 1, or for several nodes of a
 * machine without NICs. *c is written only on success. */
DPAR_API dpar_status dpar_cluster_resize(dpar_cluster *c, int32_t gpus, dpar_why *why);

/* nodes * gpus_per_node. */
DPAR_API int32_t dpar_cluster_gpus(const dpar_cluster *c);

/* ==== cost/collective.h ==== */

/* collective - what a collective costs: the textbook formulas, NCCL's own tuner, and the model of
 * the real machine that the planner uses. Seconds; bytes are those of the FULL vector (nccl-tests'
 * "size": all-gather's output, reduce-scatter's input, all-to-all's buffer of one rank). */

enum {
    DPAR_ALL_REDUCE,
    DPAR_ALL_GATHER,
    DPAR_REDUCE_SCATTER,
    DPAR_ALL_TO_ALL,
    DPAR_BROADCAST,
    DPAR_REDUCE,
    DPAR_GATHER,
    DPAR_SCATTER,
    DPAR_SEND_RECV,
    DPAR_BARRIER,
    DPAR_COLLECTIVES
};

enum {
    DPAR_ALG_RING,
    DPAR_ALG_RECURSIVE_DOUBLING,
    DPAR_ALG_RECURSIVE_HALVING,
    DPAR_ALG_RABENSEIFNER,
    DPAR_ALG_BINOMIAL,
    DPAR_ALG_BRUCK,
    DPAR_ALG_PAIRWISE,
    DPAR_ALG_SCATTER_DOUBLING, /* broadcast: scatter + recursive-doubling all-gather */
    DPAR_ALG_SCATTER_RING,     /* broadcast: scatter + ring all-gather */
    DPAR_ALG_CHAIN,            /* pipelined chain with the best number of pieces */
    DPAR_ALG_TREE,             /* pipelined double binary tree */
    DPAR_ALG_IN_SWITCH,        /* NVLS, SHARP */
    DPAR_ALG_DISSEMINATION,
    DPAR_ALG_HIERARCHICAL, /* inside the node, across, inside */
    DPAR_ALGS
};

/* "all-reduce", ...; "ring", ...; "?" for a number that is none. Static text. */
DPAR_API const char *dpar_collective_name(int32_t kind);
DPAR_API const char *dpar_algorithm_name(int32_t algorithm);

/* The ring all-reduce of the textbooks: 2 (n-1)/n * bytes / Bps, 0 for n = 1. It is exactly that:
 * no latency, no saturation. (28 GB, 8 ranks, 600 GB/s: 0.0817 s, although 600 is NVLink's two-way
 * figure.) */
DPAR_API double dpar_ring_all_reduce(double bytes, int32_t n, double Bps);

/* alpha-beta-gamma cost of one algorithm on n ranks (MPICH's comments; Thakur, Rabenseifner, Gropp
 * 2005; HIERARCHICAL is the predictor's alone, which knows the nodes): alpha seconds a message,
 * beta seconds a byte, gamma seconds a byte reduced. E_UNKNOWN when the pair does not exist or the
 * algorithm is not defined for this n; *seconds untouched then. */
DPAR_API dpar_status dpar_collective_textbook(int32_t kind, int32_t algorithm, int32_t n,
                                              double bytes, double alpha, double beta, double gamma,
                                              double *seconds);

/* nccl-tests' bus bandwidth factor: bytes/time * factor = bus bandwidth. */
DPAR_API double dpar_bus_factor(int32_t kind, int32_t n);

/* A group of ranks as it lies on the machine. */
typedef struct dpar_group {
    int32_t size;     /* ranks */
    int32_t per_node; /* of them on one node, >= 1 */
    int32_t nodes;    /* = ceil(size / per_node) */
    int32_t sharing;  /* such groups at once on one node: they share its NICs; >= 1 */
} dpar_group;

typedef struct dpar_collective_cost {
    double seconds;
    int32_t algorithm;
    double link_bytes; /* sent by a GPU over the in-node links */
    double nic_bytes;  /* sent by a GPU over the NICs */
    double nic_Bps;    /* what the group gets of the NICs, a GPU */
    double latency_s;  /* the part of `seconds` that does not shrink with the bytes */
} dpar_collective_cost;

/* The group of n ranks that are `stride` ranks apart, and how many such groups share a node. All
 * groups together fill the machine; where they do not lie alike (4 ranks on nodes of 6) it is one
 * that straddles two nodes, as the slowest paces the others. O(1). */
DPAR_API dpar_group dpar_group_place(const dpar_cluster *c, int32_t n, int32_t stride);

/* The predictor: the cheapest of the algorithms that the machine has (flat ring, tree,
 * hierarchical, in-switch, low-latency protocol), with the calibration of `c`: latency by step,
 * saturation by size and ranks, NICs shared by the groups of a node, in-switch reduction
 * (all-reduce only) from the size where it wins. Gathers and scatters across nodes are rings, as
 * NCCL's are. Rules and sources: collective.c. bytes <= 0 or size 1 cost nothing. Errors against
 * published tables: tests/unit/collective.c prints them. A kind that is none costs nothing. O(1),
 * about 50 ns. */
DPAR_API void dpar_collective_cost_of(const dpar_cluster *c, const dpar_group *g, int32_t kind,
                                      double bytes, dpar_collective_cost *cost);

/* NCCL 2.30's tuner (src/graph/tuning.cc): its own prediction of the time of each algorithm and
 * protocol, and the best. A bar and a tie-breaker, not the predictor: it exists to rank, and is
 * 7-32 % off as a clock. All-reduce, all-gather, reduce-scatter, broadcast, reduce. *seconds and
 * the names of the winner; E_UNKNOWN for a chip or kind that it has no table for, size 1 or bytes <
 * 0. */
DPAR_API dpar_status dpar_nccl_tuner(const dpar_cluster *c, const dpar_group *g, int32_t kind,
                                     double bytes, double *seconds, const char **algorithm,
                                     const char **protocol);

/* ==== cost/workload.h ==== */

/* workload - a job's work as a short list of layer classes, each a short list of operations with
 * their shapes. Prices, memory and plans are sums over it: a new architecture is a new list, and
 * the cost of a configuration does not grow with the number of layers. */

enum { DPAR_MAX_LAYERS = 24, DPAR_MAX_OPS = 320 };

/* What an operation does. */
enum {
    DPAR_OP_GEMM,      /* [tokens, k] x [k, n], `copies` times */
    DPAR_OP_EXPERTS,   /* grouped GEMM: `copies` rows a token in all, [rows, k] x [k, n] */
    DPAR_OP_ATTENTION, /* fused: 2 * n * k FLOP a token, n = heads (d_qk + d_v), k = keys seen */
    DPAR_OP_SCORES,    /* the same product unfused (batched GEMMs) */
    DPAR_OP_CONV,      /* as GEMM with k = C_in/groups * taps */
    DPAR_OP_STREAM     /* element-wise: only bytes (and few FLOP) */
};

/* How tensor parallelism cuts it. */
enum {
    DPAR_CUT_NONE,     /* every TP rank does or holds all of it */
    DPAR_CUT_SEQUENCE, /* as NONE, or 1/tp of the tokens under sequence parallelism */
    DPAR_CUT_COLUMN,   /* output width / tp */
    DPAR_CUT_ROW,      /* inner width / tp */
    DPAR_CUT_TENSOR,   /* bytes or heads / tp */
    /* of a mixture: experts over ep, each over etp; sequence parallelism shares the tokens out */
    DPAR_CUT_EXPERT,        /* every rank of etp does or holds all of it */
    DPAR_CUT_EXPERT_COLUMN, /* output width / etp */
    DPAR_CUT_EXPERT_ROW,    /* inner width / etp */
    DPAR_CUT_EXPERT_TENSOR  /* bytes / etp */
};

/* When its saved activation is dropped and computed again. */
enum {
    DPAR_KEEP_ALWAYS,    /* kept under none and selective recomputation */
    DPAR_KEEP_SELECTIVE, /* dropped by selective recomputation (attention scores) */
    DPAR_KEEP_INPUT      /* the layer's input: kept even under full recomputation */
};

typedef struct dpar_op {
    int8_t kind;       /* DPAR_OP_* */
    int8_t cut;        /* DPAR_CUT_*, of the work and the weights */
    int8_t save_cut;   /* DPAR_CUT_*, of the saved bytes */
    int8_t keep;       /* DPAR_KEEP_* */
    int16_t kernels;   /* launched in the forward pass; the backward launches twice as many */
    int16_t heads;     /* attention: heads (to cut); 0 otherwise */
    double n, k;       /* see DPAR_OP_* */
    double copies;     /* see DPAR_OP_*; 1 for most */
    double params;     /* weights, all ranks together */
    double touch;      /* HBM bytes a token that the forward moves beside GEMM operands */
    double touch_back; /* and the backward */
    double save;       /* bytes a token kept for the backward */
    double transient;  /* bytes a token alive only while its backward runs */
} dpar_op;

/* Where a layer may stand in a pipeline. */
enum { DPAR_LAYER_EMBED, DPAR_LAYER_BLOCK, DPAR_LAYER_HEAD };

typedef struct dpar_layer {
    char name[12];      /* "embed", "block", "moe", "head", ... */
    int32_t kind;       /* DPAR_LAYER_* */
    int32_t count;      /* how many in a row */
    int32_t first, ops; /* its operations in workload.op */
    double tokens;      /* tokens (pixels, cells) a sample */
    double width_bytes; /* bytes a token of its output: what a pipeline stage sends */
    int32_t tp_regions; /* column-row pairs: each one all-reduce forward and one backward */
    double cp_kv_bytes; /* keys and values, bytes a token, all heads */
    double cp_qo_bytes; /* queries and attention outputs, bytes a token, all heads */
    double ep_bytes;    /* sent to experts, bytes a token (top-k copies); 0: no experts */
    double reach_bytes; /* halo: sum over its convolutions of (cells deep) x bytes a cell */
    int32_t reach;      /* cells: the deepest of its halos */
    int32_t exchanges;  /* halo exchanges in its forward */
    int32_t shrink;     /* cells along an axis = extent / shrink */
} dpar_layer;

/* How attention is computed. */
enum {
    DPAR_ATTENTION_UNFUSED, /* batched GEMMs and a fused scale-mask-softmax (2019-2022) */
    DPAR_ATTENTION_FLASH1,  /* the first fused kernels (2022-23, Triton included) */
    DPAR_ATTENTION_FLASH,   /* FlashAttention-2 and later, cuDNN */
    DPAR_ATTENTIONS
};

/* Which software runs the layers: it decides what is fused, what is kept, how much the host does.
 * Every prediction says which one it assumed. */
enum {
    DPAR_STACK_MEGATRON, /* Megatron-LM 2021-22, Megatron-DeepSpeed: apex kernels, no overlap */
    DPAR_STACK_CORE,     /* Megatron-Core with TransformerEngine */
    DPAR_STACK_TORCH,    /* PyTorch FSDP, eager */
    DPAR_STACK_COMPILED, /* PyTorch FSDP, torch.compile */
    DPAR_STACKS
};

typedef struct dpar_workload {
    char name[32];
    int32_t layers, ops;
    dpar_layer layer[DPAR_MAX_LAYERS]; /* in order of execution */
    dpar_op op[DPAR_MAX_OPS];
    int32_t element;   /* bytes of an activation element: 2, 4 or 8 */
    int32_t attention; /* DPAR_ATTENTION_* */
    int32_t stack;     /* DPAR_STACK_* */
    int32_t causal;    /* attention sees half of the keys */
    double tokens;     /* a sample: what tokens/s counts */
    int32_t heads, kv_heads, hidden, vocab, experts, blocks, topk; /* for the rules; 0: none */
    int32_t dims;            /* of the spatial grid, 0: none */
    int64_t extent[3];       /* cells of the grid */
    int32_t time_steps;      /* a simulation: time steps that one "step" stands for; else 0 */
    int32_t trains;          /* 1: forward and backward and an optimizer; 0: forward only (grids) */
    int32_t shard_units;     /* parameter groups that ZeRO-3 gathers at a time: layers, usually */
    double params;           /* all weights */
    double model_flops_full; /* forward + backward a sample, attention as if not causal */
    double model_flops_causal; /* the same, causal attention at half */
    double capacity; /* mixture of experts: load of the fullest expert over the mean, >= 1 */
} dpar_workload;

/* Parameters of one layer of class `layer` of 0..layers-1, 0 for others; of its experts alone. */
DPAR_API double dpar_layer_params(const dpar_workload *w, int32_t layer);
DPAR_API double dpar_layer_expert_params(const dpar_workload *w, int32_t layer);
/* Saved activation bytes of one layer for one token, nothing cut, under a recomputation
 * (DPAR_RECOMPUTE_*, strategy.h). 0 for a layer that is none. */
DPAR_API double dpar_layer_saved(const dpar_workload *w, int32_t layer, int32_t recompute);
/* Forward FLOP of one layer for one sample, attention as it runs (causal at half). 0 for a layer
 * that is none. */
DPAR_API double dpar_layer_flops(const dpar_workload *w, int32_t layer);
/* Index of the class whose single layer has the most parameters. */
DPAR_API int32_t dpar_workload_largest(const dpar_workload *w);
/* Counts in order, shapes positive and finite, parameters below 2^62. */
DPAR_API dpar_status dpar_workload_check(const dpar_workload *w, dpar_why *why);

/* ==== cost/models.h ==== */

/* models - builds a workload from a description: presets, text, Hugging Face config.json. */

enum {
    DPAR_FAMILY_GPT,    /* learned positions, LayerNorm, GELU, biases, dropout; Megatron's GPT */
    DPAR_FAMILY_LLAMA,  /* RMSNorm, rotary, gated MLP, no bias; GQA, MLA and experts by fields */
    DPAR_FAMILY_VIT,    /* patches, not causal */
    DPAR_FAMILY_DIT,    /* diffusion transformer: ViT with adaptive norms */
    DPAR_FAMILY_T5,     /* encoder-decoder */
    DPAR_FAMILY_RESNET, /* bottleneck conv net */
    DPAR_FAMILY_UNET,   /* conv encoder-decoder with skips on a grid */
    DPAR_FAMILY_GRID,   /* explicit grid solver: a stencil code */
    DPAR_FAMILIES
};

/* A model in the words of its paper. 0 means "not said": the builder fills in what follows from the
 * rest (head_width = hidden/heads, kv_heads = heads, ffn = 4 hidden) and refuses what cannot be. */
typedef struct dpar_model {
    char name[32];
    int32_t family;
    int32_t layers, hidden, heads, kv_heads, head_width, ffn, vocab;
    int32_t seq;    /* tokens a sample (positions of learned embeddings too) */
    int32_t tied;   /* input and output embedding share their weights */
    int32_t biases; /* 1 yes, -1 no, 0 as the family has it (GPT, ViT, DiT: yes) */
    int32_t rotary; /* GPT: 1 without learned positions (GPT-NeoX, Falcon, ALiBi) */
    int32_t experts, topk, expert_ffn, shared_ffn, dense_layers; /* mixture of experts */
    double capacity; /* load of the fullest expert over the mean; 0: 1 (balanced) */
    int32_t q_lora, kv_lora, rope_width, qk_width, v_width; /* MLA when kv_lora > 0 */
    int32_t decoder_layers; /* T5: layers of the decoder (0: as many as the encoder) */
    int32_t image[2], patch, channels, out_channels; /* ViT, DiT, conv nets */
    int32_t levels, blocks_per_level, kernel;        /* U-Net: level l has hidden * 2^l channels */
    int64_t extent[3];                               /* GRID: cells; U-Net on a grid uses image */
    int32_t dims, fields, halo;
    double flops_per_cell, bytes_per_cell; /* GRID, a time step; 0: from fields and stencil */
    int32_t attention;                     /* DPAR_ATTENTION_* + 1; 0: the family's default */
    int32_t stack;                         /* DPAR_STACK_* + 1; 0: the family's default */
    int32_t element;                       /* bytes of an activation element; 0: 2 (GRID: 4) */
    int32_t inference;                     /* 1: forward only */
} dpar_model;

/* A preset by name ("llama-3-70b", "gpt3-175b", "unet-0.25deg", ...): E_UNKNOWN names the nearest,
 * *m is written on success only. O(presets x letters).
 * dpar_model_name(i) lists them, NULL past the end. */
DPAR_API dpar_status dpar_model_preset(dpar_model *m, const char *name, dpar_why *why);
DPAR_API const char *dpar_model_name(int32_t index);

/* A model from text: "PRESET[,key=value...]" or "FAMILY:key=value,...":
 *   "llama-3-8b,seq=32768"   "gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048"
 *   "grid:1440x720x100,fields=5,halo=2"   "unet:image=1440x720,channels=104,hidden=64,levels=4"
 * Preset names in any case; keys are the field names above; seq=32k is 32768; image=224 is square;
 * also attention=unfused|flash1|flash,
 * stack=megatron|core|torch|compiled. E_PARSE for a setting, E_UNKNOWN for a preset or family, with
 * a sentence; *m is written on success only. O(bytes). */
DPAR_API dpar_status dpar_model_parse(dpar_model *m, const char *text, size_t bytes, dpar_why *why);

/* A model from the text of a Hugging Face config.json (transformers; MoE and MLA families too).
 * Unknown members are skipped. E_PARSE where it is no JSON or a needed member is missing or of
 * another kind, E_RANGE for a number outside 0 .. 2^31 - 1, E_UNKNOWN for a model_type that is not
 * modelled, each named; *m is written on success only. O(bytes). */
DPAR_API dpar_status dpar_model_read_config(dpar_model *m, const char *json, size_t bytes,
                                            dpar_why *why);

/* The workload of a model. seq > 0 overrides m->seq. E_ARG with the numbers (zero heads, hidden not
 * divisible by heads, ...); *w is undefined then. O(layer classes). */
DPAR_API dpar_status dpar_workload_build(dpar_workload *w, const dpar_model *m, int32_t seq,
                                         dpar_why *why);

/* ==== cost/strategy.h ==== */

/* strategy - one way to spread a workload: the degrees, the options, the bytes a parameter. */

enum { DPAR_RECOMPUTE_NONE, DPAR_RECOMPUTE_SELECTIVE, DPAR_RECOMPUTE_FULL, DPAR_RECOMPUTES };
enum { DPAR_CP_RING, DPAR_CP_ULYSSES, DPAR_CP_GATHER, DPAR_CP_KINDS };
enum { DPAR_PRICED_SCHEDULES = DPAR_DUALPIPEV + 1 }; /* the first rules of dpar_order */
enum {
    DPAR_OFFLOAD_OPTIMIZER = 1,
    DPAR_OFFLOAD_WEIGHTS = 2,
    DPAR_OFFLOAD_ACTIVATIONS = 4,
    DPAR_OFFLOAD_NVME = 8 /* the optimizer's state on the node's NVMe, not in its memory */
};
enum { DPAR_OVERLAP_DP = 1, DPAR_OVERLAP_TP = 2, DPAR_OVERLAP_PP = 4, DPAR_OVERLAP_DEFAULT = 8 };

/* Bytes a parameter, by what they are for. Activations are the model's (dpar_model.element): set 4
 * there for fp32 training. */
typedef struct dpar_recipe {
    char name[16];
    double weight, gradient, master, moments; /* their sum is the 8 to 20 of the texts */
    double gathered; /* of a weight that ZeRO-3 gathered, and of a gathered gradient */
    double reduced;  /* of a gradient on the wire */
    int32_t compute; /* DPAR_BF16, ...: the format of the matrix products */
} dpar_recipe;

/* Recipes by name: "zero" 16 = 2+2+4+8, "megatron" 18 = 2+4+4+8 (alias "bf16", the default),
 * "deepspeed" 20, "fp32" 16 = 4+4+8, "pure-bf16" 8, "adam8" 12, "no-master" 12 = 2+2+8, "fsdp"
 * 16 sharded + 2 gathered, "fp8" 19, "bf16-moments" 14, "zero++" 16 with weights gathered in int8
 * and gradients reduced in int4 (ZeRO++ 2023, without its second copy inside nodes: shard= has
 * one). E_UNKNOWN lists them. */
DPAR_API dpar_status dpar_recipe_find(dpar_recipe *r, const char *name, dpar_why *why);
DPAR_API const char *dpar_recipe_name(int32_t index);

/* Ranks are laid out tp fastest, then cp, then dp, then pp (Megatron's tp-cp-dp-pp); tiles of a
 * domain take the place of cp. World = tp * cp * dp * pp * tiles. */
typedef struct dpar_strategy {
    int32_t tp, sp, cp, cp_kind; /* sp: 0 or 1 */
    int32_t dp;                  /* data-parallel ranks in all: replicas x shards */
    int32_t shard;               /* ranks of a ZeRO group, 1..dp; 0: dp (HSDP: less) */
    int32_t zero;                /* 0..3 */
    int32_t pp, vp, schedule;
    int32_t ep, etp;          /* experts over ep groups, each cut by etp */
    int32_t micro_batch;      /* samples */
    int32_t micro_batches;    /* a step and data-parallel rank */
    int32_t recompute;        /* DPAR_RECOMPUTE_* */
    int32_t recompute_layers; /* FULL: how many layers of each stage; 0: all */
    int32_t offload;          /* bits DPAR_OFFLOAD_* */
    int32_t overlap;          /* bits DPAR_OVERLAP_*; DEFAULT: what the stack does */
    int32_t tiles[3];         /* domain parallelism: parts along each grid axis */
} dpar_strategy;

/* One of each, micro_batch = micro_batches = 1, no recomputation, 1F1B, default overlap. */
DPAR_API dpar_strategy dpar_strategy_default(void);
/* "tp=8,sp=1,pp=12,vp=2,dp=4,zero=1,shard=8,cp=2,cp_kind=ring,ep=8,etp=1,mbs=1,m=64,
 * recompute=full,recompute_layers=4,schedule=1f1b,offload=optimizer+activations,overlap=dp+tp,
 * tiles=2x2" in any order; changes only what is named. `named` (may be NULL) gets a bit for each
 * field named, in the order of DPAR_FIELD_*. */
enum {
    DPAR_FIELD_TP,
    DPAR_FIELD_SP,
    DPAR_FIELD_CP,
    DPAR_FIELD_CP_KIND,
    DPAR_FIELD_DP,
    DPAR_FIELD_SHARD,
    DPAR_FIELD_ZERO,
    DPAR_FIELD_PP,
    DPAR_FIELD_VP,
    DPAR_FIELD_SCHEDULE,
    DPAR_FIELD_EP,
    DPAR_FIELD_ETP,
    DPAR_FIELD_MICRO_BATCH,
    DPAR_FIELD_MICRO_BATCHES,
    DPAR_FIELD_RECOMPUTE,
    DPAR_FIELD_RECOMPUTE_LAYERS,
    DPAR_FIELD_OFFLOAD,
    DPAR_FIELD_OVERLAP,
    DPAR_FIELD_TILES,
    DPAR_FIELDS
};
DPAR_API dpar_status dpar_strategy_parse(dpar_strategy *s, const char *text, size_t bytes,
                                         uint32_t *named, dpar_why *why);
DPAR_API const char *dpar_recompute_name(int32_t recompute);
DPAR_API const char *dpar_schedule_name(int32_t schedule);
DPAR_API const char *dpar_cp_name(int32_t cp_kind);
DPAR_API const char *dpar_stack_name(int32_t stack);
DPAR_API const char *dpar_attention_name(int32_t attention);

/* Ranks that the strategy uses; 0 when a degree is below 1 or the product passes 2^31 - 1. */
DPAR_API int32_t dpar_strategy_ranks(const dpar_strategy *s);

/* Everything that is asked at once. */
typedef struct dpar_job {
    const dpar_workload *work;
    const dpar_cluster *cluster;
    dpar_recipe recipe;
} dpar_job;

/* Which rule a configuration breaks; the planner counts rejections by it. */
enum {
    DPAR_RULE_NONE,
    DPAR_RULE_DEGREE,    /* a degree below 1, or an option that does not exist */
    DPAR_RULE_RANKS,     /* the product is not the number of GPUs */
    DPAR_RULE_TP_HEADS,  /* tp does not divide the heads, or the hidden size */
    DPAR_RULE_TP_WIDE,   /* tp spans nodes (a planner's rule, not an error) */
    DPAR_RULE_PP_LAYERS, /* fewer layers than pp * vp */
    DPAR_RULE_SCHEDULE,  /* the schedule cannot have this vp or these micro-batches */
    DPAR_RULE_CP,        /* 2 cp does not divide the sequence; heads for Ulysses */
    DPAR_RULE_EP,        /* ep does not divide experts or the ranks of a stage */
    DPAR_RULE_ZERO,      /* shard does not divide dp */
    DPAR_RULE_BATCH,     /* the global batch is not dp * micro_batch * micro_batches */
    DPAR_RULE_TILES,     /* a tile thinner than its halo, or tiles of a model without a grid */
    DPAR_RULE_OPTION,    /* an option without effect here (SP without TP, ...) */
    DPAR_RULE_OFFLOAD,   /* no host memory, or no NVMe, to offload to */
    DPAR_RULE_MEMORY,    /* does not fit */
    DPAR_RULES
};
DPAR_API const char *dpar_rule_name(int32_t rule);

/* Is the strategy legal for this job (memory apart)? OK, or an error with the sentence; *rule (may
 * be NULL) says which. global_batch 0: any. O(1). */
DPAR_API dpar_status dpar_strategy_check(const dpar_job *job, const dpar_strategy *s,
                                         int64_t global_batch, int32_t *rule, dpar_why *why);

/* ==== cost/memory.h ==== */

/* memory - bytes a rank, by term and by stage. */

enum {
    DPAR_MEM_WEIGHTS,
    DPAR_MEM_GRADIENTS,
    DPAR_MEM_MASTER,
    DPAR_MEM_OPTIMIZER,
    DPAR_MEM_ACTIVATIONS,   /* kept from forward to backward, all micro-batches in flight */
    DPAR_MEM_LOGITS,        /* last stage: logits and loss, beyond TRANSIENT */
    DPAR_MEM_GATHERED,      /* ZeRO-3: units gathered at once */
    DPAR_MEM_BUCKETS,       /* gradient buckets in flight */
    DPAR_MEM_HALO,          /* halo cells and their buffers */
    DPAR_MEM_TRANSIENT,     /* alive only while one layer's backward runs */
    DPAR_MEM_COMM,          /* the communication library's buffers */
    DPAR_MEM_CONTEXT,       /* runtime context and library workspaces */
    DPAR_MEM_FRAGMENTATION, /* the allocator's reserve over what is allocated */
    DPAR_MEMS
};

typedef struct dpar_memory {
    double term[DPAR_MEMS]; /* of the worst stage, bytes */
    double allocated;       /* sum without COMM, CONTEXT and FRAGMENTATION: the allocator's peak */
    double total;           /* sum of all terms: the expected use */
    double lower, upper;    /* with 3 % and 10 % of fragmentation */
    double first, last;     /* totals of the first and of the last stage */
    int32_t worst;          /* pipeline rank of the worst stage */
    double host;            /* bytes of host memory a rank, by offloading (not to NVMe) */
    double params;          /* weights of the worst stage's rank, before ZeRO */
} dpar_memory;

/* "weights", ...: the names in JSON; "?" for a number that is none. */
DPAR_API const char *dpar_memory_name(int32_t term);

/* Bytes of one pipeline rank, by term, into m->term, total, ...; m->worst is that rank. rank of
 * 0..pp-1; a rank outside is taken as the nearest one. O(layer classes). */
DPAR_API void dpar_memory_of_stage(const dpar_job *job, const dpar_strategy *s, int32_t rank,
                                   dpar_memory *m);

/* Does it fit? The upper figure into `limit` bytes of a GPU (0: what the GPU has), and what is
 * offloaded by all GPUs of a node into the node's memory. */
DPAR_API int32_t dpar_memory_fits(const dpar_job *job, const dpar_memory *m, double limit);

/* Memory of the rank that needs the most. The strategy must have passed dpar_strategy_check.
 * O(layer classes). Formulas and their sources: memory.c. */
DPAR_API void dpar_memory_of(const dpar_job *job, const dpar_strategy *s, dpar_memory *m);

/* ZeRO's table: bytes a rank of `params` parameters over d ranks at stage 0..3 (Rajbhandari 2020).
 */
DPAR_API double dpar_zero_bytes(const dpar_recipe *r, double params, int32_t stage, int32_t d);

/* Micro-batches whose activations pipeline rank `rank` of 0..pp-1 holds, in full-stage units, by
 * schedule; 0 for a rank, degree or schedule that is none. */
DPAR_API double dpar_in_flight(int32_t schedule, int32_t pp, int32_t vp, int32_t rank,
                               int32_t micro_batches);

/* ==== cost/step.h ==== */

/* step - the time of a training step (or of a solver's time steps), by term. */

enum {
    DPAR_TIME_FORWARD,
    DPAR_TIME_BACKWARD,
    DPAR_TIME_RECOMPUTE,
    DPAR_TIME_TP,
    DPAR_TIME_CP,
    DPAR_TIME_EP,
    DPAR_TIME_HALO,
    DPAR_TIME_PP,        /* activations and gradients between stages, as exposed */
    DPAR_TIME_BUBBLE,    /* waiting to fill and drain the pipeline */
    DPAR_TIME_IMBALANCE, /* waiting for the slowest stage (logits, uneven layers) */
    DPAR_TIME_DP,        /* gradient reduction and parameter gathering left after overlap */
    DPAR_TIME_OPTIMIZER,
    DPAR_TIME_OFFLOAD,
    DPAR_TIME_HOST, /* launch floor and the host's part of a step */
    DPAR_TIMES
};

typedef struct dpar_step {
    double term[DPAR_TIMES]; /* seconds; they add up to total */
    double total;
    double samples; /* a step, all ranks */
    double tokens_per_s_gpu;
    double model_flops;           /* a step, all ranks: attention not causal, recompute not counted,
                                     vocabulary counted (Megatron's and PaLM's MFU) */
    double model_flops_causal;    /* the same with causal attention at half */
    double hardware_flops;        /* model_flops plus what is recomputed */
    double mfu, mfu_causal, hfu;  /* shares of the dense peak of recipe.compute (TF32 for fp32,
                                     fp8 for fp8); long causal attention: mfu can pass what
                                     the GPU computes, up to twice mfu_causal */
    double tflops_gpu;            /* model_flops / GPU / second, 1e12 */
    double link_bytes, nic_bytes; /* sent a GPU and step, in-node links and NICs */
    double dp_bytes;              /* of them by data parallelism */
    double dp_hidden_s;           /* data-parallel communication that overlap hides */
    double bubble;                /* filling and draining / makespan of the micro-batches */
    double largest_stage_s, mean_stage_s; /* a micro-batch, forward and backward */
} dpar_step;

/* "forward", ...: the names in JSON; "?" for a number that is none. */
DPAR_API const char *dpar_time_name(int32_t term);

/* The time of one step. The strategy must have passed dpar_strategy_check. O(layer classes), about
 * 150 ns. Products: waves of 128 x 256 tiles over the units at a share of the peak; element-wise
 * work: bytes over HBM; kernels: the host's floor; TP, SP, CP, EP, DP: bytes as Megatron (2019,
 * 2022), ring and Ulysses attention (2023) and ZeRO (2020) send them, priced by
 * dpar_collective_cost_of; bubbles: SC21 for 1F1B and interleaving, zero-bubble (2024) and DualPipe
 * (2024) for theirs; optimizer: bytes of Adam. Each rule with its source: price.c, step.c. */
DPAR_API void dpar_step_of(const dpar_job *job, const dpar_strategy *s, dpar_step *t);

/* The three numbers that go by "bubble" for p stages and m micro-batches of equal cost: overhead
 * over the ideal (p-1)/m, share of the makespan (p-1)/(m+p-1), utilisation m/(m+p-1). 0 for a p or
 * m below 1. */
DPAR_API double dpar_bubble_overhead(int32_t p, int32_t m);
DPAR_API double dpar_bubble_fraction(int32_t p, int32_t m);
DPAR_API double dpar_bubble_utilisation(int32_t p, int32_t m);
/* GPipe's makespan for forward f and backward b: (p-1) f + m (f+b) + (p-1) b. */
DPAR_API double dpar_gpipe_makespan(int32_t p, int32_t m, double f, double b);
/* throughput(n) / (n * throughput(1)) */
DPAR_API double dpar_scaling_efficiency(double throughput_n, double throughput_1, int32_t n);

/* ==== cost/calibrate.h ==== */

/* calibrate - fits the constants of a machine to a user's own measurements, with error bars. */

/* One measured step: what ran, how, and how long it took. */
typedef struct dpar_measurement {
    const dpar_workload *work;
    const dpar_cluster *cluster; /* its own cal is ignored: the fitted one is used */
    dpar_recipe recipe;
    dpar_strategy strategy;
    double seconds; /* of one step, > 0 */
    double weight;  /* 1 for most; how much the row counts */
} dpar_measurement;

/* Fits the constants whose bits are set in `which` (bit i = DPAR_CAL_i) so that the mean absolute
 * log ratio of predicted to measured time is least; the others stay as *cal has them. Constants
 * stay within physical bounds (shares in (0.05, 1], times in [1e-8, 1] s). A weak pull towards the
 * start keeps constants that the rows do not determine where they were. Error bars: the relative
 * change of a constant that worsens the mean by one standard error of the residuals; 1 where the
 * rows say nothing. *mean_error (may be NULL) gets the mean |predicted/measured - 1|.
 * Deterministic; about 2000 step evaluations a row. E_ARG for no rows, a time that is not positive
 * and finite, or no constants; *cal is written only on success. Never judge with rows that were
 * used here. */
DPAR_API dpar_status dpar_calibrate(dpar_calibration *cal, const dpar_measurement *rows, int32_t n,
                                    uint32_t which, double *mean_error, dpar_why *why);

/* ==== cost/planner.h ==== */

/* planner - walks every legal way to spread a job and keeps the best, with reasons. */

typedef struct dpar_plan {
    dpar_strategy strategy;
    dpar_memory memory;
    dpar_step step;
    int32_t fits; /* dpar_memory_fits */
} dpar_plan;

/* Prices one configuration: check, memory and step in one call. E_DIVIDE, E_ARG, ... when it is
 * not legal; E_MEMORY (with *plan written) when it does not fit. */
DPAR_API dpar_status dpar_plan_of(const dpar_job *job, const dpar_strategy *s, int64_t global_batch,
                                  dpar_plan *plan, int32_t *rule, dpar_why *why);

/* How much is walked. */
enum {
    /* tp: divisors of a node; cp, micro-batch: powers of two; sequence parallelism with tp; 1F1B or
     * interleaved; ZeRO 0 and 1, without pipelines 2 and 3 too; overlap as the stack has it; no
     * offload (of activations it can be a few percent faster on paper); etp 1; grids cut where the
     * surface is least. When only the top is wanted (no
     * front), what cannot reach it is cut unpriced and counted in `cut`. */
    DPAR_SPACE_USUAL,
    /* Every divisor for tp (across nodes too), cp, pp, vp, ep, micro-batch; sp 0/1, all kinds of
     * cp, all schedules, ZeRO 0 to 3, HSDP, the offloads, three overlaps, every cut of a grid.
     * Everything is priced. It holds Calculon's space but for its choice of network for each
     * degree (here that follows from the placement) and for how it splits an all-reduce of TP. */
    DPAR_SPACE_WHOLE
};

typedef struct dpar_search {
    int32_t gpus;          /* 0: all of the cluster */
    int64_t global_batch;  /* samples a step; 0: free, four micro-batches a pipeline stage */
    int32_t space;         /* DPAR_SPACE_* */
    dpar_strategy fixed;   /* values of the fields whose bits are set in fixed_fields */
    uint32_t fixed_fields; /* bits DPAR_FIELD_* */
    double memory_bytes;   /* limit a GPU; 0: what the GPU has */
} dpar_search;

/* Why a good-looking neighbour of the winner was not taken. */
typedef struct dpar_rejected {
    dpar_strategy strategy;
    int32_t rule;      /* DPAR_RULE_*; NONE: legal, but slower */
    double seconds;    /* predicted step, 0 if it was not priced */
    double bytes_over; /* for DPAR_RULE_MEMORY */
    char text[160];
} dpar_rejected;

/* State of a search. The caller owns it and the slots; nothing else is allocated: O(1) memory
 * whatever the space. */
typedef struct dpar_planner {
    dpar_job job; /* the pointers must outlive the search */
    dpar_search search;
    dpar_plan *top; /* best first, by samples/s (fixed batch: by step time) */
    int32_t top_room, tops;
    dpar_plan *front; /* Pareto front of step time x memory, fastest first */
    int32_t front_room, fronts;
    int64_t evaluated;            /* configurations priced (time and memory) */
    int64_t rejected[DPAR_RULES]; /* configurations by the rule they break; MEMORY: priced ones */
    int64_t cut;                  /* legal, unpriced: their compute alone is slower than all kept */
    int64_t walked;               /* evaluated + cut + rejected by other rules than MEMORY */
    int64_t state[64];            /* private: where the walk is */
    double layers[DPAR_MAX_LAYERS * 32]; /* private: their prices, shared by many configurations */
} dpar_planner;

/* Begins a search; top and front are filled as it goes (front may be NULL). E_ARG, E_RANGE with a
 * sentence for a job or a search that cannot be. The cluster must have search->gpus GPUs already.
 */
DPAR_API dpar_status dpar_planner_init(dpar_planner *p, const dpar_job *job,
                                       const dpar_search *search, dpar_plan *top, int32_t top_room,
                                       dpar_plan *front, int32_t front_room, dpar_why *why);
/* Walks on for about `budget` configurations. MORE: call again (show progress, look at the clock,
 * or stop: what was found so far is valid). DONE: the space is exhausted. E_NONE: exhausted and
 * nothing fits; then *why says what came nearest. Deterministic: ties go to the canonical order. */
DPAR_API dpar_status dpar_planner_run(dpar_planner *p, int64_t budget, dpar_why *why);
/* Share of the space behind the walk, 0..1. */
DPAR_API double dpar_planner_progress(const dpar_planner *p);

/* One-step neighbours of a plan (twice or half of tp, pp, micro-batch, vp, ep, cp; another ZeRO
 * stage, recomputation, shard group) at the same batch, each with the reason why it was not chosen:
 * slower by how much, over memory by how much, or the rule that it breaks. At most 18; returns how
 * many were written. */
DPAR_API int32_t dpar_plan_neighbours(const dpar_job *job, const dpar_plan *plan,
                                      int64_t global_batch, dpar_rejected *out, int32_t room);

/* The legal configuration nearest to `s` (memory apart): fewest and smallest changes, a change of a
 * degree counting as its ratio. `s` itself when it is legal. E_NONE if none is near: then *why says
 * what is wrong with `s`. About 200 checks. */
DPAR_API dpar_status dpar_nearest_legal(const dpar_job *job, const dpar_strategy *s,
                                        int64_t global_batch, dpar_strategy *near_one,
                                        dpar_why *why);

/* The fewest GPUs of this cluster's kind on which the job fits, and the best plan there: parts of a
 * node, then whole nodes. First a size that is enough is looked for (each number of nodes up to 32,
 * then steps of a sixteenth), then every smaller one, so the answer is the least of all. Leave
 * global_batch 0 (free) unless it must be kept: a fixed one forbids the sizes that do not divide
 * it. A cluster without a network gets one NIC of 25 GB/s a GPU beyond its node. E_NONE when
 * most_gpus are not enough. Some tenths of a ms a size in the usual space. */
DPAR_API dpar_status dpar_smallest_machine(const dpar_job *job, const dpar_search *search,
                                           int32_t most_gpus, dpar_plan *plan, dpar_why *why);

/* One strategy in words, as an engineer would put it: names (DDP, FSDP, HSDP, TP, PP, SP, domain
 * parallel...), why (what did not fit, by how many GB), what the runner-up would cost, and the
 * warnings of common mistakes. */
enum {
    DPAR_WARN_FSDP_NEEDLESS = 1, /* the model fits: FSDP only adds traffic */
    DPAR_WARN_TP_ACROSS = 2,     /* TP across nodes */
    DPAR_WARN_FEW_MICRO = 4,     /* fewer micro-batches than 4 pp */
    DPAR_WARN_ACTIVATIONS = 8,   /* activations dominate: FSDP does not shard them */
    DPAR_WARN_DDP_STATE = 16,    /* replicated state does not fit */
    DPAR_WARN_LEARNING_RATE = 32 /* the global batch was scaled: scale the learning rate */
};
typedef struct dpar_advice {
    dpar_plan plan;
    char name[48]; /* "TP=4 + FSDP=4" */
    char why[400];
    char runner_up[200];
    int32_t warnings; /* bits DPAR_WARN_* of the plan or of what the user asked */
    char warning_text[400];
} dpar_advice;
/* Every kind of parallelism that the flowchart "does it fit? parameters or activations?" offers is
 * priced at its best; the first of them, simplest first, that is at most 30 % slower than the
 * fastest is taken (the model errs by about as much between kinds, and fewer kinds are fewer things
 * to go wrong); DDP whenever it fits. What search->fixed asks for is judged by the warnings and
 * does not bind the answer. E_MEMORY when nothing fits: *advice then holds what comes nearest, by
 * how much it misses, and how many GPUs would hold it. E_NONE when no way divides the batch. About
 * 30 searches: milliseconds. */
DPAR_API dpar_status dpar_recommend(const dpar_job *job, const dpar_search *search,
                                    dpar_advice *advice, dpar_why *why);

#endif /* DPAR_NO_COST */

#ifndef DPAR_NO_SHOW

/* ==== show/plan_show.h ==== */

/* plan_show - plans as people and scripts read them: a table with bars, one plan in full, JSON,
 * CSV, SVG. Pure text into a dpar_text: no I/O. */

/* What is shown: the job, the plans (best first) and what the search said. */
typedef struct dpar_report {
    const dpar_job *job;
    const dpar_plan *plan;
    int32_t plans;
    const dpar_plan *front; /* Pareto front of time x memory; may be NULL */
    int32_t fronts;
    const dpar_rejected *rejected; /* neighbours of the best with reasons; may be NULL */
    int32_t rejects;
    const int64_t *rejected_by_rule; /* DPAR_RULES counts; may be NULL */
    int64_t global_batch, evaluated;
    double seconds;            /* the search took; 0: there was none */
    const char *note;          /* one more assumption to state; may be NULL */
    const dpar_advice *advice; /* for the JSON; may be NULL */
    int32_t colour;            /* 1: ANSI colours */
} dpar_report;

/* "tp=8,sp=1,pp=4,dp=2,...": what dpar_strategy_parse reads back; defaults are left out. */
DPAR_API void dpar_show_strategy(dpar_text *t, const dpar_strategy *s);
/* The table: strategy, GB a GPU with a bar against capacity, step time with a bar by term, tokens/s
 * and MFU. About 150 columns wide. */
DPAR_API void dpar_show_plans_text(dpar_text *t, const dpar_report *r);
/* The first plan in full: every term of memory and time, bytes on the wires, why not its
 * neighbours. */
DPAR_API void dpar_show_plan_explain(dpar_text *t, const dpar_report *r);
/* One JSON object: plans, recommendation (with advice), rejected, evaluated, seconds, assumptions.
 * Always valid JSON. */
DPAR_API void dpar_show_plans_json(dpar_text *t, const dpar_report *r);
/* One line a plan, with a header line. */
DPAR_API void dpar_show_plans_csv(dpar_text *t, const dpar_report *r);
/* A self-contained picture: time by term, memory against capacity, the Pareto front. */
DPAR_API void dpar_show_plans_svg(dpar_text *t, const dpar_report *r);

#endif /* DPAR_NO_SHOW */

#endif /* DPAR_H */

/* Stop here if you only want the API. The implementation follows. */

#if defined(DPAR_IMPLEMENTATION) && !defined(DPAR_IMPLEMENTATION_DONE)
#define DPAR_IMPLEMENTATION_DONE

/* ==== base/arith.h ==== */

/* arith - private: checked integer arithmetic and the sentence builder. Header-only. */

#define DPARI_FN static DPARI_UNUSED

/* Not inlined: keeps a large frame off the call paths that do not need it. */
#if defined(__GNUC__)
#define DPARI_APART static __attribute__((noinline))
#else
#define DPARI_APART static
#endif

/* a * b for non-negative numbers; 0 when the product passes INT64_MAX. */
DPARI_FN int dpari_mul(int64_t a, int64_t b, int64_t *product)
{
    if (a < 0 || b < 0 || (b > 0 && a > INT64_MAX / b)) {
        return 0;
    }
    *product = a * b;
    return 1;
}

/* Quotient rounded up, a >= 0, b > 0, without overflow. */
DPARI_FN int64_t dpari_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Quotient rounded towards minus infinity, b > 0: what wraps must use. */
DPARI_FN int64_t dpari_floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

DPARI_FN int64_t dpari_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

DPARI_FN int64_t dpari_most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

DPARI_FN double dpari_leastf(double a, double b)
{
    return a < b ? a : b;
}

DPARI_FN double dpari_mostf(double a, double b)
{
    return a > b ? a : b;
}

/* Not NaN and not infinite. */
DPARI_FN int dpari_finite(double x)
{
    return x - x < 1.0 && x - x > -1.0;
}

DPARI_FN void dpari_zero(void *at, size_t bytes)
{
    unsigned char *p = (unsigned char *)at;
    size_t i;
    for (i = 0; i < bytes; i++) {
        p[i] = 0;
    }
}

/* The bound keeps compilers from recognising strlen and calling it. */
DPARI_FN size_t dpari_length(const char *s)
{
    size_t n = 0;
    while (n < 32767 && s[n] != 0) {
        n++;
    }
    return n;
}

DPARI_FN int dpari_same(const char *a, const char *b)
{
    size_t i = 0;
    while (a[i] != 0 && a[i] == b[i]) {
        i++;
    }
    return a[i] == b[i];
}

/* Does the slice [s, s + n) spell `word`? */
DPARI_FN int dpari_spells(const char *s, size_t n, const char *word)
{
    size_t i;
    for (i = 0; i < n; i++) {
        if (word[i] == 0 || word[i] != s[i]) {
            return 0;
        }
    }
    return word[n] == 0;
}

/* Bytes of a UTF-8 mark at the start of a file: 3 or 0; *left: the bytes behind it. */
DPARI_FN size_t dpari_text_mark(const char *s, size_t n, size_t *left)
{
    size_t mark = n >= 3 && s[0] == '\xEF' && s[1] == '\xBB' && s[2] == '\xBF' ? 3 : 0;
    *left = n - mark;
    return mark;
}

/* Copies at most room - 1 characters and ends them with NUL. */
DPARI_FN void dpari_copy_text(char *to, size_t room, const char *from, size_t n)
{
    size_t i;
    for (i = 0; i + 1 < room && i < n && from[i] != 0; i++) {
        to[i] = from[i];
    }
    to[i] = 0;
}

DPARI_FN size_t dpari_say_int(char *at, size_t room, int64_t v)
{
    char digit[20];
    size_t n = 0, used = 0;
    uint64_t u = v < 0 ? (uint64_t)0 - (uint64_t)v : (uint64_t)v;
    do {
        digit[n++] = (char)('0' + (int)(u % 10));
        u /= 10;
    } while (u != 0);
    if (v < 0 && used < room) {
        at[used++] = '-';
    }
    while (n > 0 && used < room) {
        at[used++] = digit[--n];
    }
    return used;
}

/* Writes `form` into why->text: each '#' becomes the next of a, b, c, d and each '@' the slice
 * [word, word + length). Returns `status`, so that a check can end with `return dpari_say(...)`. */
DPARI_FN dpar_status dpari_say_word(dpar_status status, dpar_why *why, const char *form,
                                    const char *word, size_t length, int64_t a, int64_t b,
                                    int64_t c, int64_t d)
{
    int64_t value[4];
    size_t used = 0, i, k, next = 0;
    const size_t room = sizeof(why->text) - 1;
    if (why == NULL) {
        return status;
    }
    value[0] = a;
    value[1] = b;
    value[2] = c;
    value[3] = d;
    for (i = 0; form[i] != 0 && used < room; i++) {
        if (form[i] == '#') {
            used += dpari_say_int(why->text + used, room - used, value[next & 3]);
            next++;
        } else if (form[i] == '@') {
            for (k = 0; k < length && word[k] != 0 && used < room; k++) {
                why->text[used++] = word[k];
            }
        } else {
            why->text[used++] = form[i];
        }
    }
    why->text[used] = 0;
    return status;
}

DPARI_FN dpar_status dpari_say(dpar_status status, dpar_why *why, const char *form, int64_t a,
                               int64_t b, int64_t c, int64_t d)
{
    return dpari_say_word(status, why, form, "", 0, a, b, c, d);
}

/* ==== base/real.h ==== */

/* real - private: the few functions of <math.h> that the cost wing needs, without -lm.
 * Header-only. Relative error below 1e-12 on double targets. */

/* x = m * 2^e with 1 <= m < 2, for finite x > 0. By multiplication: the bits of a double are not
 * assumed (AVR's double has 32). The bounds on k are for -ffast-math, which lets infinity pass as
 * finite: the answer is then of no use, but there is one. */
DPARI_FN double dpari_split(double x, int32_t *e)
{
    int32_t k = 0;
    while (x >= 4294967296.0 && k < 1024) {
        x *= 1.0 / 4294967296.0;
        k += 32;
    }
    while (x < 1.0 / 4294967296.0 && k > -1100) {
        x *= 4294967296.0;
        k -= 32;
    }
    while (x >= 2.0 && k < 1060) {
        x *= 0.5;
        k++;
    }
    while (x < 1.0 && k > -1140) {
        x *= 2.0;
        k--;
    }
    *e = k;
    return x;
}

/* sqrt(x), 0 for x <= 0. Newton from a power of two. */
DPARI_FN double dpari_sqrt(double x)
{
    int32_t e, i;
    double m, r;
    if (!(x > 0.0) || !dpari_finite(x)) {
        return 0.0;
    }
    m = dpari_split(x, &e);
    r = 1.0;
    if (e % 2 != 0) {
        m *= 2.0;
        e--;
    }
    for (i = 0; i < 6; i++) {
        r = 0.5 * (r + m / r);
    }
    for (; e > 0; e -= 2) {
        r *= 2.0;
    }
    for (; e < 0; e += 2) {
        r *= 0.5;
    }
    return r;
}

/* log2(x) for finite x > 0, else 0. atanh series of the mantissa. */
DPARI_FN double dpari_log2(double x)
{
    int32_t e, k;
    double m, y, y2, term, sum = 0.0;
    if (!(x > 0.0) || !dpari_finite(x)) {
        return 0.0;
    }
    m = dpari_split(x, &e);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    y = (m - 1.0) / (m + 1.0);
    y2 = y * y;
    term = y;
    for (k = 1; k < 30; k += 2) {
        sum += term / k;
        term *= y2;
    }
    return (double)e + 2.0 * sum * 1.4426950408889634;
}

/* 2^x for |x| < 1000. */
DPARI_FN double dpari_exp2(double x)
{
    int32_t whole = (int32_t)x, k;
    double f = (x - (double)whole) * 0.6931471805599453, term = 1.0, sum = 1.0;
    for (k = 1; k < 20; k++) {
        term *= f / k;
        sum += term;
    }
    for (; whole > 0; whole--) {
        sum *= 2.0;
    }
    for (; whole < 0; whole++) {
        sum *= 0.5;
    }
    return sum;
}

/* x^y for x > 0. */
DPARI_FN double dpari_pow(double x, double y)
{
    return dpari_exp2(y * dpari_log2(x));
}

/* The least k with 2^k >= n, n >= 1. */
DPARI_FN int32_t dpari_ceil_log2(int64_t n)
{
    int32_t k = 0;
    while (k < 62 && ((int64_t)1 << k) < n) {
        k++;
    }
    return k;
}

/* ==== order/vshape.h ==== */

/* vshape - private: the orders that are a block of 6 slots repeated on a V of 2 p stages (Qi 2024,
 * Pipeline Parallelism with Controllable Memory): V-Half, V-Min and 1F1B-V. */

/* Shared by several .c files of src/; private to the implementation in dpar.h. */
#ifndef DPARI_API
#ifdef DPAR_IMPLEMENTATION
#define DPARI_API static DPARI_UNUSED
#else
#define DPARI_API extern
#endif
#endif

/* Bytes that making one takes beside the schedule; p and m as dpar_order_check allows. */
DPARI_API int64_t dpari_v_work(int32_t p, int32_t m);
/* Fills the lists of s, whose ranks, micros, begin and rank_of stand; work: aligned as int64_t. */
DPARI_API void dpari_v_make(int32_t rule, const dpar_schedule *s, void *work);

#ifndef DPAR_NO_COST

/* ==== cost/price.h ==== */

/* price - private: what memory, step and planner share. Layers are priced first, then stages, then
 * the step; each level depends on fewer options than the one before, so the planner keeps a level
 * while it walks the options of the next. */

/* Shared by several .c files of src/; private to the implementation in dpar.h. */
#ifndef DPARI_API
#ifdef DPAR_IMPLEMENTATION
#define DPARI_API static DPARI_UNUSED
#else
#define DPARI_API extern
#endif
#endif

/* FLOP/s of matrix products in a format, or in the next wider one that the GPU has. */
DPARI_API double dpari_matrix_peak(const dpar_gpu *g, int32_t format, int32_t element);

/* Ranks that share the state of ZeRO: its group, their context-parallel ranks, their tiles. */
DPARI_API double dpari_zero_ranks(const dpar_strategy *s);

/* Does tp x cp divide the sequence? Sequence parallelism cuts it so. */
DPARI_API int dpari_sequence_cuts(const dpar_workload *w, const dpar_strategy *s);

/* What the run does at once (DPAR_OVERLAP_*), when the strategy leaves it to the software. */
DPARI_API int32_t dpari_overlap_of(const dpar_job *job, const dpar_strategy *s);

/* One layer of a class, one micro-batch, one rank. Seconds and bytes. */
typedef struct dpari_layer_price {
    double forward, backward;      /* compute, launch floor not yet applied */
    double again[DPAR_RECOMPUTES]; /* forward work repeated in the backward */
    double attention;              /* of forward: the scores and their product with the values */
    double host_forward, host_backward; /* the host's time to launch it: a floor */
    double tp_forward, tp_backward, tp_again;
    double cp_forward, cp_backward;
    double ep_forward, ep_backward;
    double halo_forward, halo_backward;
    double params, expert_params;     /* weights on this rank */
    double kept[DPAR_RECOMPUTES];     /* activation bytes from forward to backward */
    double transient;                 /* bytes, alive during its backward only */
    double send;                      /* bytes of its output, on this rank */
    double link_forward, nic_forward; /* bytes of TP, CP, EP, halo: sent again by recomputation */
    double link_backward, nic_backward;
} dpari_layer_price;

/* Depends on tp, sp, cp, cp_kind, ep, etp, micro_batch, tiles (and overlap's TP bit). */
typedef struct dpari_layers {
    dpari_layer_price of[DPAR_MAX_LAYERS];
} dpari_layers;
DPARI_API void dpari_price_layers(const dpar_job *job, const dpar_strategy *s, dpari_layers *out);

/* One pipeline rank: its layers summed, one micro-batch. */
typedef struct dpari_stage {
    int32_t rank;
    double layers; /* blocks */
    double forward, backward, again, host;
    double tp, cp, ep, halo;
    double params, expert_params;
    double kept;   /* bytes a micro-batch */
    double logits; /* bytes, on the last stage */
    double transient;
    double boundary; /* bytes of the activation that it receives */
    double largest;  /* weights of its largest layer */
    double link_bytes, nic_bytes;
    double total; /* seconds of one micro-batch, forward and backward, all in */
} dpari_stage;

DPARI_API void dpari_price_stage(const dpar_job *job, const dpar_strategy *s,
                                 const dpari_layers *layers, int32_t rank, dpari_stage *st);

/* The ranks that can be the worst: first, second, last, and with blocks of several classes those
 * around each change of class; the slowest of them where they are too many. Depends also on pp, vp,
 * schedule, recompute, recompute_layers. */
enum { DPARI_MAX_STAGES = 8 };
typedef struct dpari_stages {
    int32_t n;
    dpari_stage of[DPARI_MAX_STAGES];
    dpari_stage whole; /* all pp ranks together */
    double sum_total;  /* seconds of one micro-batch through all of them */
    double send;       /* bytes of one boundary, on one rank */
} dpari_stages;
DPARI_API void dpari_price_stages(const dpar_job *job, const dpar_strategy *s,
                                  const dpari_layers *layers, dpari_stages *out);

/* The rest: dp, shard, zero, micro_batches, offload, overlap. */
DPARI_API void dpari_price_memory(const dpar_job *job, const dpar_strategy *s,
                                  const dpari_stages *stages, dpar_memory *m);
DPARI_API void dpari_price_step(const dpar_job *job, const dpar_strategy *s,
                                const dpari_stages *stages, dpar_step *t);

#endif /* DPAR_NO_COST */

/* ==== base/base.c ==== */

DPAR_API const char *dpar_status_text(dpar_status status)
{
    switch (status) {
#define DPARI_STATUS_CASE(name, value, text)                                                       \
    case DPAR_##name: return text;
        DPAR_STATUS_LIST(DPARI_STATUS_CASE)
#undef DPARI_STATUS_CASE
    default: return "unknown status";
    }
}

DPAR_API int32_t dpar_features(void)
{
    int32_t bits = 0;
#ifndef DPAR_NO_COST
    bits |= DPAR_FEATURE_COST;
#endif
#ifndef DPAR_NO_SHOW
    bits |= DPAR_FEATURE_SHOW;
#endif
    return bits;
}

/* ==== base/box.c ==== */

DPAR_API int64_t dpar_box_volume(const dpar_box *box)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < box->dims; d++) {
        if (box->hi[d] <= box->lo[d]) {
            return 0;
        }
    }
    for (d = 0; d < box->dims; d++) {
        int64_t extent;
        if (box->lo[d] < 0 && box->hi[d] > INT64_MAX + box->lo[d]) {
            return -1;
        }
        extent = box->hi[d] - box->lo[d];
        if (!dpari_mul(n, extent, &n)) {
            return -1;
        }
    }
    return n;
}

DPAR_API int dpar_box_intersect(const dpar_box *a, const dpar_box *b, dpar_box *out)
{
    dpar_box both;
    int32_t d;
    if (a->dims != b->dims) {
        return 0;
    }
    dpari_zero(&both, sizeof(both));
    both.dims = a->dims;
    for (d = 0; d < a->dims; d++) {
        both.lo[d] = dpari_most(a->lo[d], b->lo[d]);
        both.hi[d] = dpari_least(a->hi[d], b->hi[d]);
        if (both.hi[d] <= both.lo[d]) {
            return 0;
        }
    }
    *out = both;
    return 1;
}

DPAR_API int dpar_box_contains(const dpar_box *outer, const dpar_box *inner)
{
    int32_t d;
    if (outer->dims != inner->dims) {
        return 0;
    }
    for (d = 0; d < inner->dims; d++) {
        if (inner->hi[d] <= inner->lo[d]) {
            return 1;
        }
    }
    for (d = 0; d < inner->dims; d++) {
        if (inner->lo[d] < outer->lo[d] || inner->hi[d] > outer->hi[d]) {
            return 0;
        }
    }
    return 1;
}

DPAR_API int64_t dpar_transfer_volume(const dpar_transfer *t)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < t->dims; d++) {
        if (!dpari_mul(n, t->extent[d], &n)) {
            return -1;
        }
    }
    return n;
}

/* ==== base/text.c ==== */

DPAR_API void dpar_text_init(dpar_text *t, char *buffer, size_t bytes)
{
    t->at = buffer;
    t->room = bytes;
    t->used = 0;
    t->line = 0;
    t->width = 0;
    if (bytes > 0) {
        buffer[0] = 0;
    }
}

DPAR_API void dpar_text_char(dpar_text *t, char c)
{
    if (t->used + 1 < t->room) {
        t->at[t->used] = c;
        t->at[t->used + 1] = 0;
    }
    t->used++;
    t->width += ((unsigned char)c & 0xC0u) != 0x80u; /* count UTF-8 starts only */
    if (c == '\n') {
        t->line = t->used;
        t->width = 0;
    }
}

DPAR_API void dpar_text_slice(dpar_text *t, const char *s, size_t n)
{
    size_t i;
    for (i = 0; i < n && s[i] != 0; i++) {
        dpar_text_char(t, s[i]);
    }
}

DPAR_API void dpar_text_put(dpar_text *t, const char *s)
{
    for (; *s != 0; s++) {
        dpar_text_char(t, *s);
    }
}

DPAR_API void dpar_text_int(dpar_text *t, int64_t v)
{
    char digits[24];
    dpar_text_slice(t, digits, dpari_say_int(digits, sizeof(digits), v));
}

/* A number >= 0 in limbs of nine decimal digits, most significant first, `whole` of them before the
 * point: sum of limb[i] * 10^(9 (whole - 1 - i)). `whole` may be negative or pass n (zeros).
 * Shifts by powers of two are exact, so that what is printed and read is the same on every target:
 * a double has at most 767 significant digits (86 limbs); what a longer input loses only sets
 * `lost`. */
enum { DPARI_TEXT_LIMBS = 96, DPARI_TEXT_SHIFT = 29 };
typedef struct dpari_text_decimal {
    uint32_t limb[DPARI_TEXT_LIMBS];
    int32_t n, whole, lost;
} dpari_text_decimal;

static uint32_t dpari_text_ten(int32_t power)
{
    static const uint32_t ten[9] = {1,      10,      100,      1000,     10000,
                                    100000, 1000000, 10000000, 100000000};
    return ten[power];
}

/* Floor of p / 9: the limb of the power 10^p is whole - 1 - that. */
static int32_t dpari_text_floor9(int32_t p)
{
    return p >= 0 ? p / 9 : -((8 - p) / 9);
}

static void dpari_text_append(dpari_text_decimal *d, uint32_t limb)
{
    if (d->n < DPARI_TEXT_LIMBS) {
        d->limb[d->n++] = limb;
    } else if (limb != 0) {
        d->lost = 1;
    }
}

/* No zero limb at either end. */
static void dpari_text_trim(dpari_text_decimal *d)
{
    int32_t i, zeros = 0;
    while (d->n > 0 && d->limb[d->n - 1] == 0) {
        d->n--;
    }
    while (zeros < d->n && d->limb[zeros] == 0) {
        zeros++;
    }
    for (i = zeros; zeros > 0 && i < d->n; i++) {
        d->limb[i - zeros] = d->limb[i];
    }
    d->n -= zeros;
    d->whole -= zeros;
}

/* d * 2^k, 0 <= k <= DPARI_TEXT_SHIFT. */
static void dpari_text_double(dpari_text_decimal *d, int32_t k)
{
    uint64_t carry = 0;
    int32_t i;
    for (i = d->n - 1; i >= 0; i--) {
        carry += (uint64_t)d->limb[i] << k;
        d->limb[i] = (uint32_t)(carry % 1000000000u);
        carry /= 1000000000u;
    }
    if (carry > 0) {
        uint32_t last = d->n == DPARI_TEXT_LIMBS ? d->limb[--d->n] : 0;
        for (i = d->n; i > 0; i--) {
            d->limb[i] = d->limb[i - 1];
        }
        d->limb[0] = (uint32_t)carry;
        d->n++;
        d->whole++;
        dpari_text_append(d, last);
    }
    dpari_text_trim(d);
}

/* d / 2^k, 0 <= k <= DPARI_TEXT_SHIFT. */
static void dpari_text_halve(dpari_text_decimal *d, int32_t k)
{
    uint64_t rest = 0;
    int32_t i;
    for (i = 0; i < d->n; i++) {
        rest = rest * 1000000000u + d->limb[i];
        d->limb[i] = (uint32_t)(rest >> k);
        rest -= (uint64_t)d->limb[i] << k;
    }
    while (rest > 0) {
        rest *= 1000000000u;
        dpari_text_append(d, (uint32_t)(rest >> k));
        rest -= rest >> k << k;
    }
    dpari_text_trim(d);
}

/* The digits of v > 0, all of them. A double has at most 64 significant bits. */
static void dpari_text_expand(dpari_text_decimal *d, double v)
{
    int32_t e;
    uint64_t m = (uint64_t)(dpari_split(v, &e) * 9223372036854775808.0);
    for (e -= 63; m > 0 && m % 2 == 0; e++) {
        m /= 2;
    }
    d->limb[0] = (uint32_t)(m / UINT64_C(1000000000000000000));
    d->limb[1] = (uint32_t)(m / 1000000000u % 1000000000u);
    d->limb[2] = (uint32_t)(m % 1000000000u);
    d->n = d->whole = 3;
    d->lost = 0;
    dpari_text_trim(d);
    while (e != 0) {
        int32_t k = (int32_t)dpari_least(e < 0 ? -e : e, DPARI_TEXT_SHIFT);
        if (e > 0) {
            dpari_text_double(d, k);
        } else {
            dpari_text_halve(d, k);
        }
        e += e > 0 ? -k : k;
    }
}

/* The digit at 10^p. */
static int32_t dpari_text_digit(const dpari_text_decimal *d, int32_t p)
{
    int32_t over = dpari_text_floor9(p), i = d->whole - 1 - over;
    return i < 0 || i >= d->n ? 0 : (int32_t)(d->limb[i] / dpari_text_ten(p - 9 * over) % 10);
}

/* The power of the first digit of d > 0, trimmed. */
static int32_t dpari_text_first(const dpari_text_decimal *d)
{
    int32_t p = 8;
    while (p > 0 && d->limb[0] < dpari_text_ten(p)) {
        p--;
    }
    return 9 * (d->whole - 1) + p;
}

/* The digits at 10^high .. 10^low as characters, rounded, halves up. The caller begins one above
 * the first digit of d, so that there is room for a carry. */
static void dpari_text_round(const dpari_text_decimal *d, int32_t high, int32_t low, char *digit)
{
    int32_t p, carry = dpari_text_digit(d, low - 1) >= 5;
    for (p = low; p <= high; p++) {
        carry += dpari_text_digit(d, p);
        digit[high - p] = (char)('0' + carry % 10);
        carry /= 10;
    }
}

static int dpari_text_special(dpar_text *t, double v)
{
    if (!(v <= 0.0 || v >= 0.0)) {
        dpar_text_put(t, "nan");
        return 1;
    }
    if (!dpari_finite(v)) {
        dpar_text_put(t, v < 0.0 ? "-inf" : "inf");
        return 1;
    }
    return 0;
}

DPAR_API void dpar_text_fixed(dpar_text *t, double v, int32_t decimals)
{
    dpari_text_decimal d;
    char digit[32]; /* 9e15 has 16 digits; 9 decimals and one for the carry */
    double size = v < 0.0 ? -v : v;
    int32_t high = 0, i, zero = 1;
    decimals = decimals < 0 ? 0 : decimals > 9 ? 9 : decimals;
    if (size >= 9e15 || !(size >= 0.0)) {
        dpar_text_real(t, v, 6);
        return;
    }
    d.n = d.whole = d.lost = 0;
    if (size > 0.0) {
        dpari_text_expand(&d, size);
        high = dpari_text_first(&d);
        /* below 9e15 there are 16 digits; with -ffast-math NaN comes here and must fit too */
        high = high < 0 ? 1 : (int32_t)dpari_least(high, 15) + 1;
    }
    dpari_text_round(&d, high, -decimals, digit);
    for (i = 0; i <= high + decimals; i++) {
        zero = zero && digit[i] == '0';
    }
    if (v < 0.0 && !zero) {
        dpar_text_char(t, '-');
    }
    for (i = high > 0 && digit[0] == '0'; i <= high + decimals; i++) {
        if (i == high + 1) {
            dpar_text_char(t, '.');
        }
        dpar_text_char(t, digit[i]);
    }
}

static void dpari_text_point(dpar_text *t, const char *digit, int32_t n, int32_t point)
{
    int32_t i;
    if (point <= 0) {
        dpar_text_put(t, "0.");
        for (i = point; i < 0; i++) {
            dpar_text_char(t, '0');
        }
        point = -1;
    }
    for (i = 0; i < n; i++) {
        if (i == point) {
            dpar_text_char(t, '.');
        }
        dpar_text_char(t, digit[i]);
    }
    for (; i < point; i++) {
        dpar_text_char(t, '0');
    }
}

DPAR_API void dpar_text_real(dpar_text *t, double v, int32_t digits)
{
    dpari_text_decimal d;
    char digit[20];
    int32_t n, from, first;
    digits = digits < 1 ? 1 : digits > 17 ? 17 : digits;
    if (dpari_text_special(t, v)) {
        return;
    }
    if (v < 0.0) {
        dpar_text_char(t, '-');
        v = -v;
    }
    if (v <= 0.0) {
        dpar_text_char(t, '0');
        return;
    }
    dpari_text_expand(&d, v);
    first = dpari_text_first(&d);
    dpari_text_round(&d, first + 1, first - digits + 1, digit);
    from = digit[0] == '0';
    first += 1 - from; /* 9.99 became 10.0 */
    for (n = digits; n > 1 && digit[from + n - 1] == '0'; n--) {
    }
    if (first >= -4 && first < digits) {
        dpari_text_point(t, digit + from, n, first + 1);
        return;
    }
    dpari_text_point(t, digit + from, n, 1);
    dpar_text_put(t, first < 0 ? "e-" : "e+");
    first = first < 0 ? -first : first;
    if (first < 10) {
        dpar_text_char(t, '0');
    }
    dpar_text_int(t, first);
}

DPAR_API void dpar_text_column(dpar_text *t, size_t column)
{
    while (t->width < column) {
        dpar_text_char(t, ' ');
    }
}

/* m * 2^e, each step exact until it passes the range of double. */
static double dpari_text_scale(uint64_t m, int32_t e)
{
    double v = (double)m;
    for (; e >= 32; e -= 32) {
        v *= 4294967296.0;
    }
    for (; e <= -32; e += 32) {
        v *= 1.0 / 4294967296.0;
    }
    for (; e > 0; e--) {
        v *= 2.0;
    }
    for (; e < 0; e++) {
        v *= 0.5;
    }
    return v;
}

/* The whole part of d < 10^18. */
static uint64_t dpari_text_whole(const dpari_text_decimal *d)
{
    uint64_t u = 0;
    int32_t i;
    for (i = 0; i < d->whole; i++) {
        u = u * 1000000000u + (i < d->n ? d->limb[i] : 0);
    }
    return u;
}

/* The double nearest to d, halves to even: 53 bits, fewer below 2^-1022. */
static double dpari_text_nearest(dpari_text_decimal *d)
{
    uint64_t u, rest, half;
    int32_t e = 0, drop;
    while (d->whole > 2) {
        dpari_text_halve(d, DPARI_TEXT_SHIFT);
        e += DPARI_TEXT_SHIFT;
    }
    for (; d->whole < 1; e -= DPARI_TEXT_SHIFT) {
        dpari_text_double(d, DPARI_TEXT_SHIFT);
    }
    for (u = dpari_text_whole(d); u >> 53 == 0; u = dpari_text_whole(d)) {
        dpari_text_double(d, 6); /* stays below 2^59 < 10^18 */
        e -= 6;
    }
    for (drop = 1; u >> drop >> 53 != 0; drop++) {
    }
    drop = e + drop < -1074 ? -1074 - e : drop;
    if (drop > 62) {
        return 0.0;
    }
    half = (uint64_t)1 << (drop - 1);
    rest = u & (2 * half - 1);
    u >>= drop;
    if (rest > half || (rest == half && (u % 2 != 0 || d->n > d->whole || d->lost))) {
        u++;
    }
    return dpari_text_scale(u, e + drop);
}

/* The value of the digits (and at most one point) [s, s + n), the first of which stands at
 * 10^power. */
static double dpari_text_value(const char *s, size_t n, int64_t power)
{
    dpari_text_decimal d;
    int32_t p, over;
    for (; n > 0 && (*s == '0' || *s == '.'); s++, n--) {
        power -= *s == '0';
    }
    if (n == 0 || power < -330) {
        return 0.0;
    }
    p = power > 400 ? 400 : (int32_t)power; /* 10^400 becomes infinite */
    over = dpari_text_floor9(p);
    d.whole = over + 1;
    d.n = d.lost = 0;
    dpari_text_append(&d, 0);
    for (; n > 0; s++, n--) {
        if (*s == '.') {
            continue;
        }
        if (dpari_text_floor9(p) != over) {
            over--;
            dpari_text_append(&d, 0);
        }
        if (over == d.whole - d.n) {
            d.limb[d.n - 1] += (uint32_t)(*s - '0') * dpari_text_ten(p - 9 * over);
        } else {
            d.lost |= *s != '0';
        }
        p -= over >= d.whole - d.n; /* behind the last limb it stays there */
    }
    dpari_text_trim(&d);
    return dpari_text_nearest(&d);
}

static size_t dpari_text_run(const char *s, size_t at, size_t n)
{
    size_t from = at;
    while (at < n && s[at] >= '0' && s[at] <= '9') {
        at++;
    }
    return at - from;
}

/* The characters of an exponent at s, 0 when there is none. */
static size_t dpari_text_exponent(const char *s, size_t n, int64_t *exponent)
{
    int64_t e = 0;
    size_t at = 1, digits;
    if (n == 0 || (s[0] != 'e' && s[0] != 'E')) {
        return 0;
    }
    at += n > 1 && (s[1] == '-' || s[1] == '+');
    digits = dpari_text_run(s, at, n);
    if (digits == 0) {
        return 0;
    }
    for (; digits > 0; digits--, at++) {
        e = e < INT64_MAX / 20 ? e * 10 + (s[at] - '0') : e;
    }
    *exponent = s[1] == '-' ? -e : e;
    return at;
}

DPAR_API size_t dpar_text_read(const char *s, size_t n, double *value)
{
    int64_t exponent = 0;
    size_t start = n > 0 && (s[0] == '-' || s[0] == '+'), whole, part = 0, end;
    double v;
    whole = dpari_text_run(s, start, n);
    end = start + whole;
    if (end < n && s[end] == '.') {
        part = dpari_text_run(s, end + 1, n);
        end += whole + part > 0 ? 1 + part : 0;
    }
    if (whole + part == 0) {
        return 0;
    }
    n = end + dpari_text_exponent(s + end, n - end, &exponent);
    v = dpari_text_value(s + start, end - start, exponent + (int64_t)whole - 1);
    *value = s[0] == '-' ? -v : v;
    return n;
}

/* ==== base/json.c ==== */

/* What may come next. */
enum {
    DPARI_JSON_VALUE,       /* a value */
    DPARI_JSON_FIRST_KEY,   /* after '{': a key or '}' */
    DPARI_JSON_KEY,         /* after ',' in an object: a key */
    DPARI_JSON_FIRST_VALUE, /* after '[': a value or ']' */
    DPARI_JSON_COMMA,       /* after a value inside something: ',' or the end of it */
    DPARI_JSON_NOTHING      /* after the outermost value */
};

DPAR_API void dpar_json_init(dpar_json *j, const char *text, size_t bytes)
{
    dpari_zero(j, sizeof(*j));
    j->text = text;
    j->bytes = bytes;
    j->expect = DPARI_JSON_VALUE;
}

static dpar_status dpari_json_fail(const dpar_json *j, dpar_why *why, const char *what)
{
    int64_t line = 1, column = 1;
    size_t i;
    for (i = 0; i < j->at && i < j->bytes; i++) {
        column = j->text[i] == '\n' ? 1 : column + 1;
        line += j->text[i] == '\n';
    }
    return dpari_say_word(DPAR_E_PARSE, why, "JSON, line #, column #: @", what, dpari_length(what),
                          line, column, 0, 0);
}

static void dpari_json_blanks(dpar_json *j)
{
    while (j->at < j->bytes && (j->text[j->at] == ' ' || j->text[j->at] == '\n' ||
                                j->text[j->at] == '\t' || j->text[j->at] == '\r')) {
        j->at++;
    }
}

static int dpari_json_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* At a backslash: the length of the escape, 0 when it is none. */
static size_t dpari_json_escape(const dpar_json *j)
{
    size_t i;
    char c;
    if (j->at + 1 >= j->bytes) {
        return 0;
    }
    c = j->text[j->at + 1];
    if (c == '"' || c == '\\' || c == '/' || c == 'b' || c == 'f' || c == 'n' || c == 'r' ||
        c == 't') {
        return 2;
    }
    for (i = 2; c == 'u' && i < 6; i++) {
        if (j->at + i >= j->bytes || !dpari_json_hex(j->text[j->at + i])) {
            return 0;
        }
    }
    return c == 'u' ? 6 : 0;
}

/* At the opening quote; leaves `at` behind the closing one. */
static dpar_status dpari_json_string(dpar_json *j, const char **s, size_t *n, dpar_why *why)
{
    size_t start = ++j->at;
    while (j->at < j->bytes && j->text[j->at] != '"') {
        size_t step = 1;
        if ((unsigned char)j->text[j->at] < 0x20u) {
            return dpari_json_fail(j, why, "a control character inside a string");
        }
        if (j->text[j->at] == '\\') {
            step = dpari_json_escape(j);
            if (step == 0) {
                return dpari_json_fail(j, why, "an escape that does not exist");
            }
        }
        j->at += step;
    }
    if (j->at >= j->bytes) {
        j->at = j->bytes;
        return dpari_json_fail(j, why, "the text ends inside a string");
    }
    *s = j->text + start;
    *n = j->at - start;
    j->at++;
    return DPAR_OK;
}

static size_t dpari_json_digits(const dpar_json *j, size_t at)
{
    size_t n = 0;
    while (at + n < j->bytes && j->text[at + n] >= '0' && j->text[at + n] <= '9') {
        n++;
    }
    return n;
}

static dpar_status dpari_json_number(dpar_json *j, dpar_json_item *item, dpar_why *why)
{
    size_t start = j->at, at = j->at + (j->text[j->at] == '-'), n = dpari_json_digits(j, at);
    if (n == 0 || (n > 1 && j->text[at] == '0')) {
        return dpari_json_fail(j, why, "not a number");
    }
    at += n;
    if (at < j->bytes && j->text[at] == '.') {
        n = dpari_json_digits(j, at + 1);
        if (n == 0) {
            return dpari_json_fail(j, why, "a number needs digits after its point");
        }
        at += 1 + n;
    }
    if (at < j->bytes && (j->text[at] == 'e' || j->text[at] == 'E')) {
        at++;
        at += at < j->bytes && (j->text[at] == '+' || j->text[at] == '-');
        n = dpari_json_digits(j, at);
        if (n == 0) {
            return dpari_json_fail(j, why, "a number needs digits in its exponent");
        }
        at += n;
    }
    item->kind = DPAR_JSON_NUMBER;
    (void)dpar_text_read(j->text + start, at - start, &item->number);
    j->at = at;
    return DPAR_OK;
}

static dpar_status dpari_json_word(dpar_json *j, dpar_json_item *item, dpar_why *why)
{
    static const char word[3][8] = {"true", "false", "null"};
    int32_t i;
    for (i = 0; i < 3; i++) {
        size_t n = dpari_length(word[i]);
        if (j->bytes - j->at >= n && dpari_spells(j->text + j->at, n, word[i])) {
            item->kind = DPAR_JSON_TRUE + i;
            j->at += n;
            return DPAR_OK;
        }
    }
    return dpari_json_fail(j, why, "a value was expected");
}

static void dpari_json_after_value(dpar_json *j)
{
    j->expect = j->depth > 0 ? DPARI_JSON_COMMA : DPARI_JSON_NOTHING;
}

static dpar_status dpari_json_open(dpar_json *j, dpar_json_item *item, dpar_why *why)
{
    int object = j->text[j->at] == '{';
    if (j->depth >= 64) {
        return dpari_json_fail(j, why, "nested more than 64 deep");
    }
    item->kind = object ? DPAR_JSON_OBJECT : DPAR_JSON_ARRAY;
    j->objects &= ~((uint64_t)1 << j->depth);
    j->objects |= (uint64_t)(object ? 1 : 0) << j->depth;
    j->depth++;
    j->at++;
    j->expect = object ? DPARI_JSON_FIRST_KEY : DPARI_JSON_FIRST_VALUE;
    return DPAR_OK;
}

static int dpari_json_in_object(const dpar_json *j)
{
    return j->depth > 0 && (j->objects >> (j->depth - 1) & 1u);
}

static dpar_status dpari_json_close(dpar_json *j, dpar_json_item *item)
{
    item->kind = dpari_json_in_object(j) ? DPAR_JSON_OBJECT_END : DPAR_JSON_ARRAY_END;
    j->depth--;
    item->depth = j->depth;
    j->at++;
    dpari_json_after_value(j);
    return DPAR_OK;
}

static dpar_status dpari_json_value(dpar_json *j, dpar_json_item *item, dpar_why *why)
{
    dpar_status st;
    char c;
    dpari_json_blanks(j);
    if (j->at >= j->bytes) {
        return dpari_json_fail(j, why, "the text ends where a value was expected");
    }
    item->depth = j->depth;
    c = j->text[j->at];
    if (c == '{' || c == '[') {
        return dpari_json_open(j, item, why);
    }
    if (c == '"') {
        item->kind = DPAR_JSON_STRING;
        st = dpari_json_string(j, &item->string, &item->length, why);
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        st = dpari_json_number(j, item, why);
    } else {
        st = dpari_json_word(j, item, why);
    }
    dpari_json_after_value(j);
    return st;
}

static dpar_status dpari_json_key(dpar_json *j, dpar_json_item *item, dpar_why *why)
{
    dpar_status st;
    if (j->text[j->at] != '"') {
        return dpari_json_fail(j, why, "a member's name in quotes was expected");
    }
    st = dpari_json_string(j, &item->key, &item->key_length, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_json_blanks(j);
    if (j->at >= j->bytes) {
        return dpari_json_fail(j, why, "the text ends where ':' was expected");
    }
    if (j->text[j->at] != ':') {
        return dpari_json_fail(j, why, "':' was expected");
    }
    j->at++;
    return DPAR_OK;
}

/* Between two values of an array or object, or before its end. */
static dpar_status dpari_json_comma(dpar_json *j, dpar_why *why)
{
    int object = dpari_json_in_object(j);
    if (j->text[j->at] != ',') {
        return dpari_json_fail(j, why, object ? "',' or '}' was expected"
                                              : "',' or ']' was expected");
    }
    j->at++;
    j->expect = object ? DPARI_JSON_KEY : DPARI_JSON_VALUE;
    dpari_json_blanks(j);
    return j->at < j->bytes ? DPAR_OK : dpari_json_fail(j, why, "the text ends after a ','");
}

static dpar_status dpari_json_step(dpar_json *j, dpar_json_item *item, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    char close = dpari_json_in_object(j) ? '}' : ']';
    dpari_json_blanks(j);
    if (j->expect == DPARI_JSON_NOTHING) {
        item->kind = DPAR_JSON_END;
        return j->at == j->bytes ? DPAR_OK
                                 : dpari_json_fail(j, why, "more text after the end of the value");
    }
    if (j->at >= j->bytes) {
        return dpari_json_fail(j, why, "the text ends too early");
    }
    if (j->expect != DPARI_JSON_VALUE && j->expect != DPARI_JSON_KEY && j->text[j->at] == close) {
        return dpari_json_close(j, item);
    }
    if (j->expect == DPARI_JSON_COMMA) {
        st = dpari_json_comma(j, why);
    }
    if (st == DPAR_OK && dpari_json_in_object(j)) {
        st = dpari_json_key(j, item, why);
    }
    return st == DPAR_OK ? dpari_json_value(j, item, why) : st;
}

DPAR_API dpar_status dpar_json_next(dpar_json *j, dpar_json_item *item, dpar_why *why)
{
    dpar_json after = *j;
    dpar_json_item found;
    dpar_status st;
    dpari_zero(&found, sizeof(found));
    st = dpari_json_step(&after, &found, why);
    if (st == DPAR_OK) {
        *j = after; /* on an error the reader stays before it: asked again it says the same */
        *item = found;
    }
    return st;
}

/* ==== index/mesh.c ==== */

/* The one size that is -1 becomes what `ranks` leaves. */
static dpar_status dpari_mesh_infer(dpar_mesh *m, int32_t unknown, int32_t ranks, dpar_why *why)
{
    int64_t rest = 1;
    int32_t i;
    for (i = 0; i < m->axes; i++) {
        if (i != unknown && (!dpari_mul(rest, m->axis[i].size, &rest) || rest > INT32_MAX)) {
            return dpari_say(DPAR_E_RANGE, why, "the mesh has more than 2^31 - 1 ranks", 0, 0, 0,
                             0);
        }
    }
    if (unknown < 0) {
        m->size = (int32_t)rest;
    } else if (ranks % rest != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "the other axes' # ranks do not divide #", rest, ranks,
                         0, 0);
    } else {
        m->axis[unknown].size = (int32_t)(ranks / rest);
        m->size = ranks;
    }
    if (ranks > 0 && m->size != ranks) {
        return dpari_say(DPAR_E_DIVIDE, why, "the axes make # ranks, there are #", m->size, ranks,
                         0, 0);
    }
    return DPAR_OK;
}

static void dpari_mesh_strides(dpar_mesh *m, int32_t order)
{
    int32_t i, stride = 1;
    for (i = 0; i < m->axes; i++) {
        dpar_axis *a = &m->axis[order == DPAR_FIRST_FASTEST ? i : m->axes - 1 - i];
        a->stride = stride;
        stride *= a->size;
    }
}

/* A name is 1 to 15 characters and no other axis has it: a cut or second one could not be found. */
static dpar_status dpari_mesh_name(dpar_mesh *m, int32_t i, const char *name, dpar_why *why)
{
    size_t n = dpari_length(name);
    int32_t k;
    if (n == 0 || n >= sizeof(m->axis[i].name)) {
        return dpari_say_word(DPAR_E_ARG, why,
                              "axis name '@' has # characters: 1 to 15 are allowed", name, n,
                              (int64_t)n, 0, 0, 0);
    }
    for (k = 0; k < i; k++) {
        if (dpari_same(m->axis[k].name, name)) {
            return dpari_say_word(DPAR_E_ARG, why, "axes # and # are both called '@'", name, n, k,
                                  i, 0, 0);
        }
    }
    dpari_copy_text(m->axis[i].name, sizeof(m->axis[i].name), name, n);
    return DPAR_OK;
}

DPAR_API dpar_status dpar_mesh_init(dpar_mesh *mesh, int32_t axes, const char *const *names,
                                    const int32_t *sizes, int32_t order, int32_t ranks,
                                    dpar_why *why)
{
    dpar_mesh m;
    dpar_status st;
    int32_t i, unknown = -1;
    if (axes < 0 || axes > DPAR_MAX_AXES || ranks < 0) {
        return dpari_say(DPAR_E_ARG, why, "a mesh has 0 to 8 axes, not #; ranks=#", axes, ranks, 0,
                         0);
    }
    dpari_zero(&m, sizeof(m));
    m.axes = axes;
    for (i = 0; i < axes; i++) {
        if (sizes[i] < 1 && (sizes[i] != -1 || unknown >= 0 || ranks == 0)) {
            return dpari_say_word(DPAR_E_ARG, why,
                                  "axis '@' has size #: sizes are at least 1, and one may be -1 "
                                  "where the number of ranks is given",
                                  names[i], dpari_length(names[i]), sizes[i], 0, 0, 0);
        }
        unknown = sizes[i] == -1 ? i : unknown;
        m.axis[i].size = sizes[i];
        st = dpari_mesh_name(&m, i, names[i], why);
        if (st != DPAR_OK) {
            return st;
        }
    }
    st = dpari_mesh_infer(&m, unknown, ranks, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_mesh_strides(&m, order);
    *mesh = m;
    return DPAR_OK;
}

DPAR_API int dpar_mesh_same(const dpar_mesh *a, const dpar_mesh *b)
{
    int32_t i;
    if (a->axes != b->axes || a->offset != b->offset) {
        return 0;
    }
    for (i = 0; i < a->axes; i++) {
        const dpar_axis *x = &a->axis[i], *y = &b->axis[i];
        if (x->size != y->size || (x->size > 1 && x->stride != y->stride)) {
            return 0;
        }
    }
    return 1;
}

DPAR_API int32_t dpar_mesh_find(const dpar_mesh *mesh, const char *name)
{
    int32_t i;
    for (i = 0; i < mesh->axes; i++) {
        if (dpari_same(mesh->axis[i].name, name)) {
            return i;
        }
    }
    return -1;
}

/* ---- coordinates ---------------------------------------------------------------------------- */

/* The axes in `which` that have more than one rank, the largest stride first; how many. */
static int32_t dpari_mesh_sorted(const dpar_mesh *m, uint32_t which, int32_t *axis)
{
    int32_t i, k, n = 0;
    for (i = 0; i < m->axes; i++) {
        if ((which >> i & 1u) == 0 || m->axis[i].size < 2) {
            continue;
        }
        for (k = n++; k > 0 && m->axis[axis[k - 1]].stride < m->axis[i].stride; k--) {
            axis[k] = axis[k - 1];
        }
        axis[k] = i;
    }
    return n;
}

/* A search for digits: sum = digit[0] stride[0] + digit[1] stride[1] + ..., strides descending. */
typedef struct dpari_digits {
    const dpar_mesh *mesh;
    int32_t axis[DPAR_MAX_AXES], n;
    int32_t signs; /* digits from -(size - 1) instead of from 0, and not all of them 0 */
    int32_t digit[DPAR_MAX_AXES], low[DPAR_MAX_AXES];
    int64_t rest[DPAR_MAX_AXES + 1];
} dpari_digits;

/* The digits that the k-th may be, given what the smaller strides can still reach: one where
 * strides are nested, else a few. Begins at the largest. */
static void dpari_digits_bound(dpari_digits *s, int32_t k)
{
    const dpar_axis *a = &s->mesh->axis[s->axis[k]];
    int64_t most = a->size - 1, reach = 0, rest = s->rest[k], low, high;
    int32_t i;
    for (i = k + 1; i < s->n; i++) {
        const dpar_axis *b = &s->mesh->axis[s->axis[i]];
        reach += dpari_least((int64_t)(b->size - 1) * b->stride, INT64_C(1) << 40);
    }
    low = -dpari_floor_div(reach - rest, a->stride);
    high = dpari_floor_div(rest + (s->signs ? reach : 0), a->stride);
    s->low[k] = (int32_t)dpari_most(s->signs ? -most : 0, dpari_least(low, most + 1));
    s->digit[k] = (int32_t)dpari_least(most, dpari_most(high, -most - 1));
}

static int dpari_digits_done(const dpari_digits *s)
{
    int32_t i;
    for (i = 0; s->signs && i < s->n; i++) {
        if (s->digit[i] != 0) {
            return 1;
        }
    }
    return !s->signs;
}

/* Depth first; the bounds make every leaf reach sum exactly. */
static int dpari_digits_find(dpari_digits *s, const dpar_mesh *m, int64_t sum, int signs)
{
    int32_t k = 0;
    s->mesh = m;
    s->n = dpari_mesh_sorted(m, UINT32_MAX, s->axis);
    s->signs = signs;
    s->rest[0] = sum;
    if (s->n == 0) {
        return sum == 0 && !signs;
    }
    dpari_digits_bound(s, 0);
    while (k >= 0) {
        if (s->digit[k] < s->low[k]) { /* none left: one less of the axis before */
            k--;
            if (k >= 0) {
                s->digit[k]--;
            }
            continue;
        }
        s->rest[k + 1] = s->rest[k] - (int64_t)s->digit[k] * m->axis[s->axis[k]].stride;
        if (k + 1 < s->n) {
            dpari_digits_bound(s, ++k);
        } else if (dpari_digits_done(s)) {
            return 1;
        } else {
            s->digit[k]--;
        }
    }
    return 0;
}

DPAR_API int dpar_mesh_injective(const dpar_mesh *mesh)
{
    dpari_digits s;
    int32_t i;
    for (i = 0; i < mesh->axes; i++) {
        if (mesh->axis[i].size > 1 && mesh->axis[i].stride < 1) {
            return 0;
        }
    }
    return !dpari_digits_find(&s, mesh, 0, 1);
}

DPAR_API int dpar_mesh_coords(const dpar_mesh *mesh, int32_t rank, int32_t *coord)
{
    dpari_digits s;
    int32_t i;
    if (rank < mesh->offset || !dpari_digits_find(&s, mesh, (int64_t)rank - mesh->offset, 0)) {
        return 0;
    }
    for (i = 0; i < mesh->axes; i++) {
        coord[i] = 0;
    }
    for (i = 0; i < s.n; i++) {
        coord[s.axis[i]] = s.digit[i];
    }
    return 1;
}

DPAR_API int32_t dpar_mesh_coord(const dpar_mesh *mesh, int32_t rank, int32_t axis)
{
    int32_t coord[DPAR_MAX_AXES];
    return axis >= 0 && axis < mesh->axes && dpar_mesh_coords(mesh, rank, coord) ? coord[axis] : -1;
}

DPAR_API int32_t dpar_mesh_rank(const dpar_mesh *mesh, const int32_t *coord)
{
    int32_t i, rank = mesh->offset;
    for (i = 0; i < mesh->axes; i++) {
        if (coord[i] < 0 || coord[i] >= mesh->axis[i].size) {
            return -1;
        }
        rank += coord[i] * mesh->axis[i].stride;
    }
    return rank;
}

DPAR_API int32_t dpar_mesh_shift(const dpar_mesh *mesh, int32_t rank, int32_t axis, int64_t steps,
                                 int wrap)
{
    int32_t at = dpar_mesh_coord(mesh, rank, axis), size;
    int64_t to;
    if (at < 0) {
        return -1;
    }
    size = mesh->axis[axis].size;
    if (wrap) {
        to = (at + steps % size + size) % size;
    } else if (steps < -at || steps >= size - at) {
        return -1;
    } else {
        to = at + steps;
    }
    return rank + ((int32_t)to - at) * mesh->axis[axis].stride;
}

/* ---- groups --------------------------------------------------------------------------------- */

DPAR_API int32_t dpar_mesh_group_size(const dpar_mesh *mesh, uint32_t which)
{
    int32_t i, n = 1;
    for (i = 0; i < mesh->axes; i++) {
        n *= which >> i & 1u ? mesh->axis[i].size : 1;
    }
    return n;
}

DPAR_API int32_t dpar_mesh_group_count(const dpar_mesh *mesh, uint32_t which)
{
    return dpar_mesh_group_size(mesh, ~which);
}

DPAR_API int32_t dpar_mesh_group_member(const dpar_mesh *mesh, uint32_t which, int32_t rank,
                                        int32_t index)
{
    int32_t axis[DPAR_MAX_AXES], coord[DPAR_MAX_AXES], n;
    if (index < 0 || index >= dpar_mesh_group_size(mesh, which) ||
        !dpar_mesh_coords(mesh, rank, coord)) {
        return -1;
    }
    n = dpari_mesh_sorted(mesh, which, axis);
    while (n-- > 0) {
        const dpar_axis *a = &mesh->axis[axis[n]];
        rank += (index % a->size - coord[axis[n]]) * a->stride;
        index /= a->size;
    }
    return rank;
}

DPAR_API int32_t dpar_mesh_group_index(const dpar_mesh *mesh, uint32_t which, int32_t rank)
{
    int32_t axis[DPAR_MAX_AXES], coord[DPAR_MAX_AXES], i, n, index = 0;
    if (!dpar_mesh_coords(mesh, rank, coord)) {
        return -1;
    }
    n = dpari_mesh_sorted(mesh, which, axis);
    for (i = 0; i < n; i++) {
        index = index * mesh->axis[axis[i]].size + coord[axis[i]];
    }
    return index;
}

DPAR_API int32_t dpar_mesh_group_number(const dpar_mesh *mesh, uint32_t which, int32_t rank)
{
    return dpar_mesh_group_index(mesh, ~which, rank);
}

DPAR_API int32_t dpar_mesh_group_first(const dpar_mesh *mesh, uint32_t which, int32_t group)
{
    return dpar_mesh_group_member(mesh, ~which, mesh->offset, group);
}

/* Members before the i-th that lie on its node. */
static int32_t dpari_mesh_mates(const dpar_mesh *mesh, uint32_t which, int32_t rank,
                                int32_t per_node, int32_t i)
{
    int32_t k, mates = 0, node = dpar_mesh_group_member(mesh, which, rank, i) / per_node;
    for (k = 0; k < i; k++) {
        mates += dpar_mesh_group_member(mesh, which, rank, k) / per_node == node;
    }
    return mates;
}

DPAR_API void dpar_mesh_group_nodes(const dpar_mesh *mesh, uint32_t which, int32_t rank,
                                    int32_t per_node, int32_t *nodes, int32_t *most)
{
    int32_t i, n = dpar_mesh_group_size(mesh, which), last = -1, here = 0, member, before = -1;
    int ascend = 1;
    *nodes = 0;
    *most = 0;
    if (per_node < 1 || dpar_mesh_group_index(mesh, which, rank) < 0) {
        return;
    }
    for (i = 0; i < n; i++, before = member) {
        int32_t node;
        member = dpar_mesh_group_member(mesh, which, rank, i);
        node = member / per_node;
        ascend = ascend && member >= before;
        /* while members ascend those of a node are neighbours here */
        here = ascend ? (node == last ? here + 1 : 1)
                      : dpari_mesh_mates(mesh, which, rank, per_node, i) + 1;
        *nodes += here == 1;
        *most = here > *most ? here : *most;
        last = node;
    }
}

/* ---- algebra -------------------------------------------------------------------------------- */

static dpar_status dpari_mesh_full(dpar_why *why)
{
    return dpari_say(DPAR_E_ARG, why, "a mesh has at most # axes", DPAR_MAX_AXES, 0, 0, 0);
}

/* Appends an axis; the name may come with a digit behind it. */
static int dpari_mesh_add(dpar_mesh *m, const char *name, int32_t digit, int32_t size,
                          int32_t stride)
{
    dpar_axis *a = &m->axis[m->axes];
    size_t n;
    if (m->axes >= DPAR_MAX_AXES) {
        return 0;
    }
    dpari_zero(a, sizeof(*a));
    dpari_copy_text(a->name, sizeof(a->name) - (digit >= 0), name, sizeof(a->name));
    n = dpari_length(a->name);
    if (digit >= 0) {
        a->name[n] = (char)('0' + digit);
    }
    a->size = size;
    a->stride = stride;
    m->axes++;
    m->size *= size;
    return 1;
}

static void dpari_mesh_empty(dpar_mesh *m, int32_t offset)
{
    dpari_zero(m, sizeof(*m));
    m->size = 1;
    m->offset = offset;
}

DPAR_API dpar_status dpar_mesh_slice(dpar_mesh *out, const dpar_mesh *mesh, uint32_t which,
                                     int32_t rank, dpar_why *why)
{
    int32_t coord[DPAR_MAX_AXES], i;
    dpar_mesh m;
    if (!dpar_mesh_coords(mesh, rank, coord)) {
        return dpari_say(DPAR_E_ARG, why, "rank # is not in the mesh of # ranks from # on", rank,
                         mesh->size, mesh->offset, 0);
    }
    dpari_mesh_empty(&m, rank);
    for (i = 0; i < mesh->axes; i++) {
        const dpar_axis *a = &mesh->axis[i];
        if (which >> i & 1u) {
            (void)dpari_mesh_add(&m, a->name, -1, a->size, a->stride);
            m.offset -= coord[i] * a->stride;
        }
    }
    *out = m;
    return DPAR_OK;
}

/* The one axis that those in `which` make, in order from first to last. */
static dpar_status dpari_mesh_chain(const dpar_mesh *mesh, uint32_t which, dpar_axis *one,
                                    dpar_why *why)
{
    int32_t axis[DPAR_MAX_AXES], n = dpari_mesh_sorted(mesh, which, axis), i;
    one->size = 1;
    one->stride = n > 0 ? mesh->axis[axis[n - 1]].stride : 1;
    for (i = n - 1; i >= 0; i--) {
        const dpar_axis *a = &mesh->axis[axis[i]];
        if (a->stride != one->stride * one->size) {
            return dpari_say_word(
                DPAR_E_DIVIDE, why,
                "axis '@' has stride #, the faster ones reach #: they are not one "
                "axis, but their set is a group all the same",
                a->name, sizeof(a->name), a->stride, one->stride * one->size, 0, 0);
        }
        one->size *= a->size;
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_mesh_flatten(dpar_mesh *out, const dpar_mesh *mesh, uint32_t which,
                                       const char *name, dpar_why *why)
{
    dpar_mesh m;
    dpar_axis one;
    int32_t i, done = 0, at = -1;
    dpar_status st = dpari_mesh_chain(mesh, which, &one, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_mesh_empty(&m, mesh->offset);
    for (i = 0; i < mesh->axes; i++) {
        const dpar_axis *a = &mesh->axis[i];
        if ((which >> i & 1u) == 0) {
            (void)dpari_mesh_add(&m, a->name, -1, a->size, a->stride);
        } else if (!done++) {
            (void)dpari_mesh_add(&m, "", -1, one.size, one.stride);
            at = m.axes - 1;
        }
    }
    for (i = 0; i < m.axes && st == DPAR_OK; i++) { /* later axes may have the name too */
        st = dpari_mesh_name(&m, i, i == at ? name : m.axis[i].name, why);
    }
    if (st == DPAR_OK) {
        *out = m;
    }
    return st;
}

DPAR_API dpar_status dpar_mesh_unflatten(dpar_mesh *out, const dpar_mesh *mesh, int32_t axis,
                                         int32_t n, const char *const *names, const int32_t *sizes,
                                         int32_t order, dpar_why *why)
{
    dpar_mesh m;
    int32_t i;
    dpar_status st;
    if (axis < 0 || axis >= mesh->axes) {
        return dpari_say(DPAR_E_ARG, why, "axis #: the mesh has #", axis, mesh->axes, 0, 0);
    }
    st = dpar_mesh_init(&m, n, names, sizes, order, mesh->axis[axis].size, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (mesh->axes - 1 + n > DPAR_MAX_AXES) {
        return dpari_mesh_full(why);
    }
    for (i = n - 1; i >= 0; i--) { /* the parts go where the axis was, the others around them */
        m.axis[axis + i] = m.axis[i];
        m.axis[axis + i].stride *= mesh->axis[axis].stride;
    }
    for (i = 0; i < mesh->axes; i++) {
        if (i != axis) {
            m.axis[i < axis ? i : i + n - 1] = mesh->axis[i];
        }
    }
    m.axes = mesh->axes - 1 + n;
    m.size = mesh->size;
    m.offset = mesh->offset;
    for (i = 0; i < m.axes && st == DPAR_OK; i++) {
        st = dpari_mesh_name(&m, i, m.axis[i].name, why);
    }
    if (st == DPAR_OK) {
        *out = m;
    }
    return st;
}

DPAR_API dpar_status dpar_mesh_transpose(dpar_mesh *out, const dpar_mesh *mesh, const int32_t *perm,
                                         dpar_why *why)
{
    dpar_mesh m = *mesh;
    uint32_t seen = 0;
    int32_t i;
    for (i = 0; i < mesh->axes; i++) {
        if (perm[i] < 0 || perm[i] >= mesh->axes || (seen >> perm[i] & 1u)) {
            return dpari_say(DPAR_E_ARG, why, "perm[#] = #: it must name each of # axes once", i,
                             perm[i], mesh->axes, 0);
        }
        seen |= (uint32_t)1 << perm[i];
        m.axis[i] = mesh->axis[perm[i]];
    }
    *out = m;
    return DPAR_OK;
}

DPAR_API dpar_status dpar_mesh_coalesce(dpar_mesh *out, const dpar_mesh *mesh)
{
    dpar_mesh m;
    int32_t i;
    dpari_mesh_empty(&m, mesh->offset);
    for (i = 0; i < mesh->axes; i++) {
        const dpar_axis *a = &mesh->axis[i];
        dpar_axis *last = &m.axis[m.axes > 0 ? m.axes - 1 : 0];
        if (a->size == 1) {
            continue;
        }
        if (m.axes > 0 && last->stride == a->size * a->stride) {
            last->size *= a->size;
            last->stride = a->stride;
            m.size *= a->size;
        } else {
            (void)dpari_mesh_add(&m, a->name, -1, a->size, a->stride);
        }
    }
    *out = m;
    return DPAR_OK;
}

/* A mesh's coalesced axes without their names. */
typedef struct dpari_rows {
    int32_t n, size[DPAR_MAX_AXES], stride[DPAR_MAX_AXES];
} dpari_rows;

static void dpari_mesh_rows(const dpar_mesh *mesh, dpari_rows *rows)
{
    int32_t i, n = 0;
    for (i = 0; i < mesh->axes; i++) {
        int32_t size = mesh->axis[i].size, stride = mesh->axis[i].stride;
        if (n > 0 && size > 1 && rows->stride[n - 1] == size * stride) {
            rows->size[n - 1] *= size;
            rows->stride[n - 1] = stride;
        } else if (size > 1) {
            rows->size[n] = size;
            rows->stride[n++] = stride;
        }
    }
    rows->n = n;
}

/* A step of `step` positions in outer's list: by how much each coordinate grows. Which one it is
 * when it is one alone, else -1. */
static int32_t dpari_mesh_digits(const dpari_rows *outer, int32_t step, int32_t *digit)
{
    int32_t i, only = -1, used = 0;
    for (i = outer->n - 1; i >= 0; i--) {
        digit[i] = i > 0 ? step % outer->size[i] : step;
        step = i > 0 ? step / outer->size[i] : 0;
        if (digit[i] > 0) {
            only = i;
            used++;
        }
    }
    return used == 1 ? only : -1;
}

/* The first digit that makes a name which neither mesh has; 10: all of them are taken. */
static int32_t dpari_mesh_free_digit(const dpar_mesh *m, const dpar_mesh *inner, const char *name)
{
    char with[16];
    size_t n;
    int32_t digit;
    dpari_copy_text(with, sizeof(with) - 1, name, sizeof(with));
    n = dpari_length(with);
    with[n + 1] = 0;
    for (digit = 1; digit < 10; digit++) {
        with[n] = (char)('0' + digit);
        if (dpar_mesh_find(m, with) < 0 && dpar_mesh_find(inner, with) < 0) {
            break;
        }
    }
    return digit;
}

/* Positions 0, stride, 2 stride, ... in outer's list, as axes of ranks: they run along one axis of
 * outer to its end and go on with the next, or move in several at once. reach[k] grows by how far
 * they take coordinate k. */
DPARI_APART dpar_status dpari_mesh_compose_axis(dpar_mesh *m, const dpari_rows *outer,
                                                const dpar_mesh *inner, int32_t axis,
                                                int64_t *reach, dpar_why *why)
{
    const dpar_axis *a = &inner->axis[axis];
    int32_t size[DPAR_MAX_AXES + 1], stride[DPAR_MAX_AXES + 1], digit[DPAR_MAX_AXES];
    int32_t rest = a->size, step = a->stride, i, k, n = 0;
    while (rest > 1) {
        int32_t take = rest;
        k = dpari_mesh_digits(outer, step, digit);
        if (k > 0 && outer->size[k] % digit[k] == 0) {
            take = (int32_t)dpari_least(rest, outer->size[k] / digit[k]);
        }
        if (rest % take != 0) {
            return dpari_say(DPAR_E_DIVIDE, why, "# positions do not fill outer's # evenly", rest,
                             take, 0, 0);
        }
        size[n] = take;
        stride[n] = 0;
        for (i = 0; i < outer->n; i++) {
            stride[n] += digit[i] * outer->stride[i];
            reach[i] += (int64_t)(take - 1) * digit[i];
        }
        n++;
        rest /= take;
        step = rest > 1 ? step * take : step; /* the next axis of outer, from its start */
    }
    if (n == 0) { /* one rank: its stride never matters */
        return dpari_mesh_add(m, a->name, -1, 1, 1) ? DPAR_OK : dpari_mesh_full(why);
    }
    for (i = n - 1; i >= 0; i--) {
        k = i < n - 1 ? dpari_mesh_free_digit(m, inner, a->name) : -1;
        if (k > 9 || !dpari_mesh_add(m, a->name, k, size[i], stride[i])) {
            return dpari_mesh_full(why);
        }
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_mesh_compose(dpar_mesh *out, const dpar_mesh *outer,
                                       const dpar_mesh *inner, dpar_why *why)
{
    dpar_mesh m;
    dpari_rows rows;
    int32_t i, at[DPAR_MAX_AXES];
    int64_t last = inner->offset, reach[DPAR_MAX_AXES];
    dpar_status st = DPAR_OK;
    for (i = 0; i < inner->axes && last < outer->size; i++) {
        last += (int64_t)(inner->axis[i].size - 1) * inner->axis[i].stride;
    }
    if (inner->offset < 0 || last >= outer->size) {
        return dpari_say(DPAR_E_RANGE, why, "inner takes positions # to #, outer has # ranks",
                         inner->offset, last, outer->size, 0);
    }
    dpari_mesh_rows(outer, &rows);
    dpari_mesh_empty(&m, outer->offset);
    (void)dpari_mesh_digits(&rows, inner->offset, at);
    for (i = 0; i < rows.n; i++) {
        m.offset += at[i] * rows.stride[i];
        reach[i] = at[i];
    }
    for (i = 0; i < inner->axes && st == DPAR_OK; i++) {
        st = dpari_mesh_compose_axis(&m, &rows, inner, i, reach, why);
    }
    /* a coordinate that would pass its end carries into the next: no stride says that */
    for (i = 0; i < rows.n && st == DPAR_OK; i++) {
        if (reach[i] >= rows.size[i]) {
            st = dpari_say(DPAR_E_DIVIDE, why,
                           "inner's positions pass from one row of # of outer into the next",
                           rows.size[i], 0, 0, 0);
        }
    }
    if (st == DPAR_OK) {
        *out = m;
    }
    return st;
}

DPAR_API dpar_status dpar_mesh_complement(dpar_mesh *out, const dpar_mesh *mesh, int32_t world,
                                          dpar_why *why)
{
    int32_t axis[DPAR_MAX_AXES], n = dpari_mesh_sorted(mesh, UINT32_MAX, axis), i, g, gaps = 0;
    int32_t size[DPAR_MAX_AXES + 1], stride[DPAR_MAX_AXES + 1];
    int64_t reach = 1;
    dpar_mesh m;
    for (i = n; i >= 0; i--) { /* from the smallest stride: the gap below it */
        int64_t next = i > 0 ? mesh->axis[axis[i - 1]].stride : world;
        if (next < reach || next % reach != 0) {
            return dpari_say(DPAR_E_DIVIDE, why, "# ranks of the mesh do not tile #", reach, next,
                             0, 0);
        }
        if (next > reach) {
            size[gaps] = (int32_t)(next / reach);
            stride[gaps++] = (int32_t)reach;
        }
        reach = i > 0 ? next * mesh->axis[axis[i - 1]].size : next;
    }
    dpari_mesh_empty(&m, 0);
    for (g = gaps - 1; g >= 0; g--) {
        if (!dpari_mesh_add(&m, "g", gaps - 1 - g, size[g], stride[g])) {
            return dpari_mesh_full(why);
        }
    }
    *out = m;
    return DPAR_OK;
}

/* ---- other ways to make one ----------------------------------------------------------------- */

/* One word of an order string: its end; a '-' or the NUL. */
static size_t dpari_mesh_word(const char *order)
{
    size_t n = 0;
    while (order[n] != 0 && order[n] != '-' && n < 32) {
        n++;
    }
    return n;
}

static int32_t dpari_mesh_named(int32_t axes, const char *const *names, const char *word, size_t n)
{
    int32_t i;
    for (i = 0; i < axes; i++) {
        if (dpari_spells(word, n, names[i])) {
            return i;
        }
    }
    return -1;
}

DPAR_API dpar_status dpar_mesh_ordered(dpar_mesh *mesh, const char *order, int32_t axes,
                                       const char *const *names, const int32_t *sizes,
                                       int32_t ranks, int32_t offset, dpar_why *why)
{
    const char *name[DPAR_MAX_AXES];
    int32_t size[DPAR_MAX_AXES], n = 0, i;
    uint32_t used = 0;
    dpar_mesh m;
    dpar_status st;
    size_t length;
    if (axes > DPAR_MAX_AXES) {
        return dpari_mesh_full(why);
    }
    for (; *order != 0; order += length + (order[length] == '-')) {
        length = dpari_mesh_word(order);
        i = dpari_mesh_named(axes, names, order, length);
        if (i < 0 || (used >> i & 1u)) {
            return dpari_say_word(i < 0 ? DPAR_E_UNKNOWN : DPAR_E_ARG, why,
                                  i < 0 ? "'@' of the order has no size"
                                        : "'@' is in the order twice",
                                  order, length, 0, 0, 0, 0);
        }
        used |= (uint32_t)1 << i;
        name[n] = names[i];
        size[n++] = sizes[i];
    }
    for (i = 0; i < axes; i++) {
        if ((used >> i & 1u) == 0 && sizes[i] != 1) {
            return dpari_say_word(DPAR_E_ARG, why, "'@' has size # and is not in the order",
                                  names[i], dpari_length(names[i]), sizes[i], 0, 0, 0);
        }
        if ((used >> i & 1u) == 0) {
            name[n] = names[i];
            size[n++] = 1;
        }
    }
    st = dpar_mesh_init(&m, n, name, size, DPAR_FIRST_FASTEST, ranks, why);
    if (st == DPAR_OK && (offset < 0 || offset > INT32_MAX - m.size)) {
        return dpari_say(DPAR_E_RANGE, why,
                         "# ranks from # on: the first is at least 0, the last below 2^31 - 1",
                         m.size, offset, 0, 0);
    }
    if (st == DPAR_OK) {
        m.offset = offset;
        *mesh = m;
    }
    return st;
}

/* "name.node" into a buffer of an axis name. */
static dpar_status dpari_mesh_node_name(char *to, const char *name, dpar_why *why)
{
    static const char node[] = ".node";
    size_t n = dpari_length(name), i;
    if (n + sizeof(node) > sizeof(((dpar_axis *)NULL)->name)) {
        return dpari_say_word(DPAR_E_ARG, why, "axis name '@' is too long for '.node' behind it",
                              name, n, 0, 0, 0, 0);
    }
    for (i = 0; i < n; i++) {
        to[i] = name[i];
    }
    for (i = 0; i < sizeof(node); i++) {
        to[n + i] = node[i];
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_mesh_hybrid(dpar_mesh *mesh, int32_t axes, const char *const *names,
                                      const int32_t *slow, const int32_t *fast, dpar_why *why)
{
    char text[DPAR_MAX_AXES / 2][sizeof(((dpar_axis *)NULL)->name)];
    const char *name[DPAR_MAX_AXES];
    int32_t size[DPAR_MAX_AXES], i;
    if (axes < 0 || 2 * axes > DPAR_MAX_AXES) {
        return dpari_say(DPAR_E_ARG, why, "# axes: a hybrid mesh has at most #", axes,
                         DPAR_MAX_AXES / 2, 0, 0);
    }
    for (i = 0; i < axes; i++) {
        dpar_status st = dpari_mesh_node_name(text[i], names[i], why);
        if (st != DPAR_OK) {
            return st;
        }
        name[i] = text[i];
        size[i] = slow[i];
        name[axes + i] = names[i];
        size[axes + i] = fast[i];
    }
    return dpar_mesh_init(mesh, 2 * axes, name, size, DPAR_LAST_FASTEST, 0, why);
}

DPAR_API dpar_status dpar_mesh_agree(const dpar_mesh *a, const dpar_mesh *b, dpar_why *why)
{
    int32_t i, k;
    for (i = 0; i < a->axes; i++) {
        const dpar_axis *x = &a->axis[i], *y;
        k = dpar_mesh_find(b, x->name);
        if (k < 0) {
            continue;
        }
        y = &b->axis[k];
        if (x->size != y->size || (x->size > 1 && x->stride != y->stride) ||
            a->offset != b->offset) {
            return dpari_say_word(DPAR_E_DIVIDE, why,
                                  "axis '@' is # ranks # apart in one view and # ranks # apart in "
                                  "the other: their groups differ",
                                  x->name, sizeof(x->name), x->size, x->stride, y->size, y->stride);
        }
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_mesh_view(dpar_mesh *view, const dpar_mesh *mesh, int32_t axes,
                                    const char *const *names, const int32_t *sizes, int32_t order,
                                    dpar_why *why)
{
    dpar_mesh m;
    dpar_axis one;
    int32_t i;
    dpar_status st = dpari_mesh_chain(mesh, UINT32_MAX, &one, why);
    if (st == DPAR_OK) {
        st = dpar_mesh_init(&m, axes, names, sizes, order, mesh->size, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    m.offset = mesh->offset;
    for (i = 0; i < m.axes; i++) {
        m.axis[i].stride *= one.stride;
    }
    st = dpar_mesh_agree(mesh, &m, why);
    if (st == DPAR_OK) {
        *view = m;
    }
    return st;
}

/* ==== index/cart.c ==== */

/* ---- prime factors and divisors ---- */

enum { DPARI_CART_PRIMES = 9 }; /* 2 * 3 * 5 * .. * 23 < 2^31 < 2 * 3 * .. * 29 */

typedef struct dpari_cart_primes {
    int32_t count;
    int32_t prime[DPARI_CART_PRIMES];
} dpari_cart_primes;

static dpari_cart_primes dpari_cart_factor(int32_t n)
{
    dpari_cart_primes f;
    int32_t p;
    dpari_zero(&f, sizeof(f));
    for (p = 2; p <= n / p; p += p > 2 ? 2 : 1) {
        if (n % p == 0) {
            f.prime[f.count++] = p;
        }
        while (n % p == 0) {
            n /= p;
        }
    }
    if (n > 1) {
        f.prime[f.count++] = n;
    }
    return f;
}

/* The smallest divisor of n that is at least `least`; 0 when there is none. f: primes of a multiple
 * of n. An odometer: wheel i shows a power of prime i, at most full[i]. */
static int32_t dpari_cart_divisor_from(const dpari_cart_primes *f, int32_t n, int32_t least)
{
    int32_t full[DPARI_CART_PRIMES], i, d = 1, best = n;
    if (least <= 1 || least > n) {
        return least <= 1;
    }
    for (i = 0; i < f->count; i++) {
        for (full[i] = 1; n / full[i] % f->prime[i] == 0;) {
            full[i] *= f->prime[i];
        }
    }
    do {
        best = d >= least && d < best ? d : best;
        for (i = 0; i < f->count && d % full[i] == 0; i++) {
            d /= full[i];
        }
        d *= i < f->count ? f->prime[i] : 1;
    } while (i < f->count);
    return best;
}

/* The largest divisor of n that is at most `most` >= 1. */
static int32_t dpari_cart_divisor_upto(const dpari_cart_primes *f, int32_t n, int32_t most)
{
    return n / dpari_cart_divisor_from(f, n, (int32_t)dpari_ceil_div(n, most));
}

/* base^exponent, or some number above `limit` once it passes that; base, limit < 2^31. */
static int64_t dpari_cart_power(int32_t base, int32_t exponent, int32_t limit)
{
    int64_t v = 1;
    int32_t i;
    for (i = 0; i < exponent && v <= limit; i++) {
        v *= base;
    }
    return v;
}

/* The smallest r with r^k >= n; k >= 1, n >= 1. */
static int32_t dpari_cart_root(int32_t n, int32_t k)
{
    int32_t low = 1, high = n;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (dpari_cart_power(middle, k, n) >= n) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* A sentence whose '@' is a grid, "64 x 64 x 8", and whose '#' is `value`; without a buffer, which
 * would deepen the stack. */
static dpar_status dpari_cart_say(dpar_status status, dpar_why *why, const char *form, int32_t dims,
                                  const int64_t *n, int64_t value)
{
    const size_t room = sizeof(why->text) - 1;
    size_t used = 0, i;
    int32_t d;
    for (i = 0; why != NULL && form[i] != 0 && used < room; i++) {
        if (form[i] == '#') {
            used += dpari_say_int(why->text + used, room - used, value);
        } else if (form[i] != '@') {
            why->text[used++] = form[i];
        }
        for (d = 0; form[i] == '@' && d < dims; d++) {
            const char *by = d > 0 ? " x " : "";
            while (*by != 0 && used < room) {
                why->text[used++] = *by++;
            }
            used += dpari_say_int(why->text + used, room - used, n[d]);
        }
    }
    if (why != NULL) {
        why->text[used] = 0;
    }
    return status;
}

/* How many axes are 0, and ranks / product of the positive parts into *rest. */
static dpar_status dpari_cart_rest(int32_t ranks, int32_t dims, const int32_t *parts, int32_t *open,
                                   int32_t *rest, dpar_why *why)
{
    int64_t fixed = 1;
    int32_t d, zeros = 0;
    for (d = 0; d < dims; d++) {
        if (parts[d] < 0) {
            return dpari_say(DPAR_E_ARG, why, "axis # has # parts: 0 means free, else at least 1",
                             d, parts[d], 0, 0);
        }
        zeros += parts[d] == 0;
        if (!dpari_mul(fixed, parts[d] > 0 ? parts[d] : 1, &fixed)) {
            fixed = INT64_MAX;
        }
    }
    if (ranks % fixed != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "the fixed axes' # parts do not divide # ranks", fixed,
                         ranks, 0, 0);
    }
    if (zeros == 0 && fixed != ranks) {
        return dpari_say(DPAR_E_DIVIDE, why,
                         "all axes are fixed and make # parts, there are # ranks", fixed, ranks, 0,
                         0);
    }
    *open = zeros;
    *rest = (int32_t)(ranks / fixed);
    return DPAR_OK;
}

/* ---- MPI_Dims_create ---- */

typedef struct dpari_dims {
    dpari_cart_primes f;
    int32_t k;   /* parts to choose */
    int32_t gap; /* largest - smallest of the best so far */
    int32_t x[DPAR_MAX_AXES], best[DPAR_MAX_AXES], rest[DPAR_MAX_AXES];
} dpari_dims;

/* The lexicographically least x[0] >= x[1] >= .. >= x[k - 2] >= least with product n and
 * x[0] - least < gap. Depth first: the first one found is it. */
static int dpari_dims_above(dpari_dims *s, int32_t n, int32_t least)
{
    const int32_t last = s->k - 2;
    int32_t j = 0;
    s->rest[0] = n;
    s->x[0] = 0;
    while (j >= 0) {
        int64_t most = j > 0 ? s->x[j - 1] : (int64_t)least + s->gap - 1;
        int32_t next;
        if (j == last) {
            next = s->x[j] == 0 ? s->rest[j] : 0;
        } else {
            int32_t from = s->x[j] == 0 ? dpari_cart_root(s->rest[j], last - j + 1) : s->x[j] + 1;
            next = dpari_cart_divisor_from(&s->f, s->rest[j], from);
        }
        if (next == 0 || next > most ||
            dpari_cart_power(least, last - j, s->rest[j] / next) > s->rest[j] / next) {
            j--; /* larger ones leave the others even less */
            continue;
        }
        s->x[j] = next;
        if (j == last) {
            return 1;
        }
        s->rest[j + 1] = s->rest[j] / next;
        s->x[++j] = 0;
    }
    return 0;
}

/* The smallest part m downwards from the k-th root: the largest part is at least the (k-1)-th root
 * of n / m, which grows, so that the search ends once it is too far from m. */
static void dpari_dims_search(dpari_dims *s, int32_t n)
{
    int32_t i, m = dpari_cart_root(n, s->k);
    m = dpari_cart_divisor_upto(&s->f, n, dpari_cart_power(m, s->k, n) > n ? m - 1 : m);
    while (m > 0 && dpari_cart_root(n / m, s->k - 1) - m < s->gap) {
        if (dpari_dims_above(s, n / m, m)) {
            for (i = 0; i < s->k - 1; i++) {
                s->best[i] = s->x[i];
            }
            s->best[s->k - 1] = m;
            s->gap = s->x[0] - m;
        }
        m = m > 1 ? dpari_cart_divisor_upto(&s->f, n, m - 1) : 0;
    }
}

DPAR_API dpar_status dpar_dims_create(int32_t ranks, int32_t dims, int32_t *parts, dpar_why *why)
{
    dpari_dims s;
    dpar_status st;
    int32_t rest, d, next = 0;
    if (ranks < 1 || dims < 0 || dims > DPAR_MAX_AXES) {
        return dpari_say(DPAR_E_ARG, why, "# ranks over # dims: 1 rank at least and 0 to # dims",
                         ranks, dims, DPAR_MAX_AXES, 0);
    }
    dpari_zero(&s, sizeof(s));
    st = dpari_cart_rest(ranks, dims, parts, &s.k, &rest, why);
    if (st != DPAR_OK) {
        return st;
    }
    s.gap = INT32_MAX;
    s.best[0] = rest;
    if (s.k > 1) {
        s.f = dpari_cart_factor(rest);
        dpari_dims_search(&s, rest);
    }
    for (d = 0; d < dims; d++) {
        if (parts[d] == 0) {
            parts[d] = s.best[next++];
        }
    }
    return DPAR_OK;
}

/* ---- ordered factorisations ---- */

DPAR_API dpar_status dpar_grid_next(int32_t ranks, int32_t dims, const int32_t *room,
                                    int32_t *parts)
{
    dpari_cart_primes f;
    int32_t x[DPAR_MAX_DIMS], rest[DPAR_MAX_DIMS], j, d;
    if (ranks < 1 || dims < 1 || dims > DPAR_MAX_DIMS) {
        return DPAR_E_ARG;
    }
    f = dpari_cart_factor(ranks);
    rest[0] = ranks;
    j = parts[0] == 0 ? 0 : dims - 1; /* the last axis has no second choice: it steps back */
    for (d = 0; d <= j; d++) {
        x[d] = parts[d];
        if (x[d] < 0 || (j > 0 && (x[d] == 0 || rest[d] % x[d] != 0))) {
            return DPAR_E_ARG;
        }
        if (d < j) {
            rest[d + 1] = rest[d] / x[d];
        }
    }
    while (j >= 0) {
        if (j == dims - 1) {
            x[j] = x[j] == 0 ? rest[j] : 0;
        } else {
            x[j] = x[j] < rest[j] ? dpari_cart_divisor_from(&f, rest[j], x[j] + 1) : 0;
        }
        if (x[j] == 0) {
            j--;
        } else if (room == NULL || room[j] % x[j] == 0) {
            if (j == dims - 1) {
                break;
            }
            rest[j + 1] = rest[j] / x[j];
            x[++j] = 0;
        }
    }
    for (d = 0; d < dims && j >= 0; d++) {
        parts[d] = x[d];
    }
    return j >= 0 ? DPAR_OK : DPAR_DONE;
}

/* ---- the least cut ---- */

typedef struct dpari_cart_grid {
    dpari_cart_primes f;
    int32_t axes;                 /* to be chosen; j counts these */
    int32_t divides;              /* parts must divide cells */
    int32_t found;                /* best is one that costs limit */
    uint32_t wraps;               /* bit j: periodic */
    int32_t cells[DPAR_MAX_DIMS]; /* the most parts, cut to 2^31 - 1 */
    int64_t face[DPAR_MAX_DIMS];  /* what one plane of cut costs */
    int32_t log[DPAR_MAX_DIMS];   /* of that, where it is not 0 */
    int32_t part[DPAR_MAX_DIMS], best[DPAR_MAX_DIMS];
    int32_t rest[DPAR_MAX_DIMS + 1]; /* ranks that axes j.. must make */
    int64_t cost[DPAR_MAX_DIMS + 1]; /* of axes ..j-1 and the fixed ones */
    int64_t limit;                   /* what is searched costs less */
} dpari_cart_grid;

static int64_t dpari_cart_planes(int32_t parts, uint32_t wraps)
{
    return wraps != 0 && parts > 1 ? parts : parts - 1;
}

/* a * b, INT64_MAX where it passes that. */
static int64_t dpari_cart_times(int64_t a, int64_t b)
{
    int64_t p;
    return dpari_mul(a, b, &p) ? p : INT64_MAX;
}

/* log2(v) * 2^16 rounded down, at most 2 too small; v >= 1. A bit of the logarithm a squaring. */
static int32_t dpari_cart_log2(int64_t v)
{
    uint64_t m = (uint64_t)v;
    int32_t whole = 0, bit, log;
    while (m >> whole > 1) {
        whole++;
    }
    m = whole > 31 ? m >> (whole - 31) : m << (31 - whole);
    log = whole * (int32_t)65536;
    for (bit = 15; bit >= 0; bit--) {
        m = m * m >> 31;
        if (m >> 32 != 0) {
            m >>= 1;
            log += (int32_t)1 << bit;
        }
    }
    return log;
}

/* Could axes j.. still end below the limit? With z axes of faces a_d > 0 that must make r ranks,
 * sum a_d (p_d - 1) >= z (r product a_d)^(1/z) - sum a_d; compared as logarithms, rounded so that
 * a `no` is certain. Axes that cost nothing take as many ranks as they have cells. */
static int dpari_grid_hopes(const dpari_cart_grid *g, int32_t j)
{
    const int64_t slack = g->limit - g->cost[j];
    int64_t room = 1, idle = 1, faces = 0;
    int32_t z = 0, logs = 0, i;
    for (i = j; i < g->axes; i++) {
        room = dpari_cart_times(room, g->cells[i]);
        if (g->face[i] > 0) {
            faces += g->face[i];
            logs += g->log[i];
            z++;
        } else {
            idle = dpari_cart_times(idle, g->cells[i]);
        }
    }
    if (slack <= 0 || g->rest[j] > room) {
        return 0;
    }
    if (z == 0 || faces > INT64_MAX - slack) {
        return 1;
    }
    return dpari_cart_log2(dpari_ceil_div(g->rest[j], idle)) + logs + z * dpari_cart_log2(z) <
           z * (dpari_cart_log2(faces + slack) + 2);
}

static int dpari_grid_fits(const dpari_cart_grid *g, int32_t j, int32_t parts)
{
    return parts <= g->cells[j] && (!g->divides || g->cells[j] % parts == 0);
}

/* The next larger choice for axis j; 0 when there is none. The last axis takes what is left. */
static int32_t dpari_grid_advance(const dpari_cart_grid *g, int32_t j)
{
    int32_t x = g->part[j];
    if (j == g->axes - 1) {
        return x == 0 && dpari_grid_fits(g, j, g->rest[j]) ? g->rest[j] : 0;
    }
    do {
        x = x < g->rest[j] ? dpari_cart_divisor_from(&g->f, g->rest[j], x + 1) : 0;
    } while (x > 0 && x <= g->cells[j] && !dpari_grid_fits(g, j, x));
    return x <= g->cells[j] ? x : 0;
}

static void dpari_grid_search(dpari_cart_grid *g)
{
    int32_t j = 0, d;
    g->part[0] = 0;
    while (j >= 0) {
        int32_t x = dpari_grid_advance(g, j);
        int64_t cost =
            g->cost[j] + g->face[j] * (x > 0 ? dpari_cart_planes(x, g->wraps >> j & 1u) : 0);
        if (x == 0 || cost >= g->limit) {
            j--; /* parts ascend: what follows is dearer */
            continue;
        }
        g->part[j] = x;
        g->cost[j + 1] = cost;
        g->rest[j + 1] = g->rest[j] / x;
        if (j + 1 == g->axes) {
            for (d = 0; d < g->axes; d++) {
                g->best[d] = g->part[d];
            }
            g->limit = cost;
            g->found = 1;
        } else if (dpari_grid_hopes(g, j + 1)) {
            g->part[++j] = 0;
        }
    }
}

/* A first limit: the primes, largest first, each to the axis where it costs least. */
static void dpari_grid_guess(dpari_cart_grid *g)
{
    int32_t i, j, to, n = g->rest[0];
    int64_t cost = g->cost[0];
    for (j = 0; j < g->axes; j++) {
        g->part[j] = 1;
    }
    for (i = g->f.count - 1; i >= 0; i--) {
        const int32_t p = g->f.prime[i];
        for (; n % p == 0; n /= p) {
            for (j = 0, to = -1; j < g->axes; j++) {
                if (dpari_grid_fits(g, j, g->part[j] * p) &&
                    (to < 0 || g->face[j] * g->part[j] < g->face[to] * g->part[to])) {
                    to = j;
                }
            }
            if (to < 0) {
                return;
            }
            g->part[to] *= p;
        }
    }
    for (j = 0; j < g->axes; j++) {
        cost += g->face[j] * dpari_cart_planes(g->part[j], g->wraps >> j & 1u);
    }
    g->limit = cost + 1;
}

/* What one plane of cut costs across an axis: its weight times the other axes' cells. */
static dpar_status dpari_grid_face(int32_t dims, const int64_t *cells, const int64_t *weight,
                                   int32_t axis, int64_t *face, dpar_why *why)
{
    int64_t f = weight != NULL ? weight[axis] : 1;
    int32_t d;
    for (d = 0; d < dims; d++) {
        if (d != axis && !dpari_mul(f, cells[d], &f)) {
            return dpari_cart_say(DPAR_E_RANGE, why,
                                  "the faces of @ cells across axis # pass 2^63 - 1", dims, cells,
                                  axis);
        }
    }
    *face = f;
    return DPAR_OK;
}

static dpar_status dpari_grid_judge(int32_t dims, const int64_t *cells, const int64_t *weight,
                                    const int32_t *parts, dpar_why *why)
{
    int32_t d;
    if (dims < 0 || dims > DPAR_MAX_DIMS) {
        return dpari_say(DPAR_E_ARG, why, "a grid has 0 to # dims, not #", DPAR_MAX_DIMS, dims, 0,
                         0);
    }
    for (d = 0; d < dims; d++) {
        if (cells[d] < 1 || (weight != NULL && weight[d] < 0)) {
            return dpari_say(DPAR_E_ARG, why,
                             "axis # has # cells of weight #: at least 1 cell, weight at least 0",
                             d, cells[d], weight != NULL ? weight[d] : 1, 0);
        }
        if (parts[d] > cells[d]) {
            return dpari_say(DPAR_E_ARG, why, "axis # is fixed at # parts but has only # cells", d,
                             parts[d], cells[d], 0);
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_grid_passes(int32_t dims, const int64_t *cells, int64_t ranks,
                                     dpar_why *why)
{
    return dpari_cart_say(DPAR_E_RANGE, why, "the cut of @ cells into # parts may pass 2^63 - 1",
                          dims, cells, ranks);
}

DPAR_API dpar_status dpar_grid_cut(int32_t dims, const int64_t *cells, const int64_t *weight,
                                   uint32_t periodic, const int32_t *parts, int64_t *cut,
                                   dpar_why *why)
{
    dpar_status st = dpari_grid_judge(dims, cells, weight, parts, why);
    int64_t sum = 0, face = 0;
    int32_t d;
    for (d = 0; st == DPAR_OK && d < dims; d++) {
        if (parts[d] < 1) {
            return dpari_say(DPAR_E_ARG, why, "axis # has # parts: at least 1", d, parts[d], 0, 0);
        }
        st = dpari_grid_face(dims, cells, weight, d, &face, why);
        if (st == DPAR_OK) {
            face = dpari_cart_times(face, dpari_cart_planes(parts[d], periodic >> d & 1u));
            if (face > INT64_MAX - 1 - sum) {
                return dpari_grid_passes(dims, cells, parts[d], why);
            }
            sum += face;
        }
    }
    if (st == DPAR_OK) {
        *cut = sum;
    }
    return st;
}

/* A plane across an axis: the other extents, where they were found to fit. */
static int64_t dpari_grid_plane(int32_t dims, const int64_t *cells, const int64_t *weight,
                                int32_t axis)
{
    int64_t face = weight != NULL ? weight[axis] : 1;
    int32_t d;
    for (d = 0; d < dims; d++) {
        face *= d != axis ? cells[d] : 1;
    }
    return face;
}

/* Refuses where the dearest cut overflows. */
static dpar_status dpari_grid_bound(int32_t ranks, int32_t dims, const int64_t *cells,
                                    const int64_t *weight, dpar_why *why)
{
    int64_t worst = 0, face = 0, dearest;
    int32_t d;
    for (d = 0; d < dims; d++) {
        dpar_status st = dpari_grid_face(dims, cells, weight, d, &face, why);
        if (st != DPAR_OK) {
            return st;
        }
        dearest = dpari_cart_times(face, dpari_least(cells[d], ranks));
        if (dearest > INT64_MAX - 2 - worst) {
            return dpari_grid_passes(dims, cells, ranks, why);
        }
        worst += dearest;
    }
    return DPAR_OK;
}

/* Free axes into g, fixed ones into its first cost; then the search. Checked before: 0 when there
 * is no such grid. */
DPARI_APART int dpari_grid_best(int32_t divides, int32_t rest, int32_t dims, const int64_t *cells,
                                const int64_t *weight, uint32_t periodic, int32_t *parts,
                                int64_t *cut)
{
    dpari_cart_grid g;
    int32_t d, j = 0;
    dpari_zero(&g, sizeof(g));
    for (d = 0; d < dims; d++) {
        const uint32_t wraps = periodic >> d & 1u;
        const int64_t face = dpari_grid_plane(dims, cells, weight, d);
        if (parts[d] > 0) {
            g.cost[0] += face * dpari_cart_planes(parts[d], wraps);
        } else {
            g.wraps |= wraps << g.axes;
            g.log[g.axes] = face > 0 ? dpari_cart_log2(face) : 0;
            g.cells[g.axes] = (int32_t)dpari_least(cells[d], INT32_MAX);
            g.face[g.axes++] = face;
        }
    }
    g.rest[0] = rest;
    g.divides = divides;
    g.limit = g.axes > 0 ? INT64_MAX : g.cost[0];
    if (g.axes > 0) {
        g.f = dpari_cart_factor(g.rest[0]);
        dpari_grid_guess(&g);
        dpari_grid_search(&g);
    }
    if (g.axes > 0 && !g.found) {
        return 0;
    }
    for (d = 0; d < dims; d++) {
        parts[d] = parts[d] == 0 ? g.best[j++] : parts[d];
    }
    if (cut != NULL) {
        *cut = g.limit;
    }
    return 1;
}

/* All that can be wrong; *rest: the ranks that the free axes must make. */
DPARI_APART dpar_status dpari_grid_check(int32_t ranks, int32_t dims, const int64_t *cells,
                                         const int64_t *weight, const int32_t *parts, int32_t *rest,
                                         dpar_why *why)
{
    dpar_status st = dpari_grid_judge(dims, cells, weight, parts, why);
    int32_t open = 0;
    if (st == DPAR_OK) {
        st = dpari_cart_rest(ranks, dims, parts, &open, rest, why);
    }
    return st == DPAR_OK ? dpari_grid_bound(ranks, dims, cells, weight, why) : st;
}

/* dpar_grid_create, or with `divides` the grid of nodes whose bricks tile a grid of ranks. */
static dpar_status dpari_grid_solve(int32_t divides, int32_t ranks, int32_t dims,
                                    const int64_t *cells, const int64_t *weight, uint32_t periodic,
                                    int32_t *parts, int64_t *cut, dpar_why *why)
{
    int32_t rest = 0;
    dpar_status st = dpari_grid_check(ranks, dims, cells, weight, parts, &rest, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (!dpari_grid_best(divides, rest, dims, cells, weight, periodic, parts, cut)) {
        return dpari_cart_say(DPAR_E_NONE, why, "no grid of # ranks has at most @ parts", dims,
                              cells, ranks);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_grid_create(int32_t ranks, int32_t dims, const int64_t *cells,
                                      const int64_t *weight, uint32_t periodic, int32_t *parts,
                                      int64_t *cut, dpar_why *why)
{
    if (ranks < 1) {
        return dpari_say(DPAR_E_ARG, why, "a grid of # ranks: at least 1", ranks, 0, 0, 0);
    }
    return dpari_grid_solve(0, ranks, dims, cells, weight, periodic, parts, cut, why);
}

/* ---- Cartesian topology ---- */

DPAR_API dpar_status dpar_cart_init(dpar_cart *cart, int32_t dims, const int32_t *parts,
                                    uint32_t periodic, dpar_why *why)
{
    dpar_cart c;
    int64_t size = 1;
    int32_t d;
    if (dims < 0 || dims > DPAR_MAX_DIMS) {
        return dpari_say(DPAR_E_ARG, why, "a grid has 0 to # dims, not #", DPAR_MAX_DIMS, dims, 0,
                         0);
    }
    dpari_zero(&c, sizeof(c));
    for (d = 0; d < dims; d++) {
        if (parts[d] < 1) {
            return dpari_say(DPAR_E_ARG, why, "axis # has # parts: at least 1", d, parts[d], 0, 0);
        }
        size *= parts[d];
        if (size > INT32_MAX) {
            return dpari_say(DPAR_E_RANGE, why, "axes 0 to # have # ranks: 2^31 - 1 at most", d,
                             size, 0, 0);
        }
        c.parts[d] = parts[d];
    }
    c.dims = dims;
    c.size = (int32_t)size;
    c.periodic = periodic & (((uint32_t)1 << dims) - 1);
    *cart = c;
    return DPAR_OK;
}

/* Coordinate c along an axis, wrapped where that is allowed; -1 outside. |c| < 2^33. */
static int32_t dpari_cart_wrap(const dpar_cart *cart, int32_t axis, int64_t c)
{
    const int64_t n = cart->parts[axis];
    if (cart->periodic >> axis & 1u) {
        return (int32_t)((c % n + n) % n);
    }
    return c >= 0 && c < n ? (int32_t)c : -1;
}

DPAR_API int32_t dpar_cart_rank(const dpar_cart *cart, const int32_t *coord)
{
    int32_t d, rank = 0;
    for (d = 0; d < cart->dims; d++) {
        int32_t c = dpari_cart_wrap(cart, d, coord[d]);
        if (c < 0) {
            return DPAR_PROC_NULL;
        }
        rank = rank * cart->parts[d] + c;
    }
    return rank;
}

DPAR_API dpar_status dpar_cart_coords(const dpar_cart *cart, int32_t rank, int32_t *coord)
{
    int32_t d;
    if (rank < 0 || rank >= cart->size) {
        return DPAR_E_ARG;
    }
    for (d = cart->dims - 1; d >= 0; d--) {
        coord[d] = rank % cart->parts[d];
        rank /= cart->parts[d];
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_cart_shift(const dpar_cart *cart, int32_t rank, int32_t axis, int32_t by,
                                     int32_t *source, int32_t *dest)
{
    int32_t coord[DPAR_MAX_DIMS], here, from, to, d, stride = 1;
    if (axis < 0 || axis >= cart->dims || dpar_cart_coords(cart, rank, coord) != DPAR_OK) {
        return DPAR_E_ARG;
    }
    for (d = axis + 1; d < cart->dims; d++) {
        stride *= cart->parts[d];
    }
    here = coord[axis];
    from = dpari_cart_wrap(cart, axis, (int64_t)here - by);
    to = dpari_cart_wrap(cart, axis, (int64_t)here + by);
    *source = from < 0 ? DPAR_PROC_NULL : rank + (from - here) * stride;
    *dest = to < 0 ? DPAR_PROC_NULL : rank + (to - here) * stride;
    return DPAR_OK;
}

DPAR_API dpar_status dpar_cart_sub(const dpar_cart *cart, int32_t rank, uint32_t keep,
                                   dpar_cart *sub, int32_t *sub_rank, int32_t *which)
{
    dpar_cart s;
    int32_t coord[DPAR_MAX_DIMS], d, in = 0, of = 0;
    if (dpar_cart_coords(cart, rank, coord) != DPAR_OK) {
        return DPAR_E_ARG;
    }
    dpari_zero(&s, sizeof(s));
    s.size = 1;
    for (d = 0; d < cart->dims; d++) {
        const int32_t n = cart->parts[d];
        if (keep >> d & 1u) {
            s.periodic |= (cart->periodic >> d & 1u) << s.dims;
            s.parts[s.dims++] = n;
            s.size *= n;
            in = in * n + coord[d];
        } else {
            of = of * n + coord[d];
        }
    }
    *sub = s;
    *sub_rank = in;
    *which = of;
    return DPAR_OK;
}

static int32_t dpari_cart_three_to(int32_t dims)
{
    int32_t n = 1;
    while (dims-- > 0) {
        n *= 3;
    }
    return n;
}

/* Offset `index` of the box stencil, row-major from (-1, .., -1); how many axes it moves along. */
static int32_t dpari_cart_offset(int32_t dims, int32_t index, int32_t *offset)
{
    int32_t d, moves = 0;
    for (d = dims - 1; d >= 0; d--) {
        offset[d] = index % 3 - 1;
        moves += offset[d] != 0;
        index /= 3;
    }
    return moves;
}

/* The coordinate next to another one; 0 when that is beyond an open border. */
static int dpari_cart_next(const dpar_cart *cart, const int32_t *coord, const int32_t *offset,
                           int32_t *next)
{
    int32_t d;
    for (d = 0; d < cart->dims; d++) {
        next[d] = dpari_cart_wrap(cart, d, (int64_t)coord[d] + offset[d]);
        if (next[d] < 0) {
            return 0;
        }
    }
    return 1;
}

DPAR_API int32_t dpar_cart_neighbours(const dpar_cart *cart, int32_t rank, int32_t stencil,
                                      int32_t *list, int32_t room)
{
    int32_t coord[DPAR_MAX_DIMS], offset[DPAR_MAX_DIMS], next[DPAR_MAX_DIMS], i, n = 0;
    const int32_t star = 2 * cart->dims, box = dpari_cart_three_to(cart->dims);
    if (dpar_cart_coords(cart, rank, coord) != DPAR_OK) {
        return -1;
    }
    for (i = 0; stencil == DPAR_STENCIL_STAR && i < star && i < room; i += 2) {
        int32_t lower = DPAR_PROC_NULL, higher = DPAR_PROC_NULL;
        dpar_cart_shift(cart, rank, i / 2, 1, &lower, &higher);
        list[i] = lower;
        if (i + 1 < room) {
            list[i + 1] = higher;
        }
    }
    for (i = 0; stencil != DPAR_STENCIL_STAR && i < box && n < room; i++) {
        if (dpari_cart_offset(cart->dims, i, offset) > 0) {
            list[n++] = dpari_cart_next(cart, coord, offset, next) ? dpar_cart_rank(cart, next)
                                                                   : DPAR_PROC_NULL;
        }
    }
    return stencil == DPAR_STENCIL_STAR ? star : box - 1;
}

/* ---- placement ---- */

DPAR_API dpar_stencil dpar_stencil_edges(int32_t shape)
{
    dpar_stencil s;
    int32_t d;
    s.shape = shape;
    s.bytes = 1;
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        s.block[d] = s.width[d] = 1;
    }
    return s;
}

static dpar_status dpari_place_judge(int32_t kind, int32_t per_node, dpar_why *why)
{
    if (per_node < 1 || kind < 0 || kind >= DPAR_PLACE_KINDS) {
        return dpari_say(DPAR_E_ARG, why, "placement # of # ranks a node: 0 to # and at least 1",
                         kind, per_node, DPAR_PLACE_KINDS - 1, 0);
    }
    return DPAR_OK;
}

/* Bricks of one rank, the last axis fastest. `grid` may lie inside *p. */
static void dpari_place_start(dpar_place *p, const dpar_cart *grid, int32_t kind, int32_t per_node)
{
    int32_t d;
    p->grid = *grid;
    p->kind = kind;
    p->per_node = per_node;
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        p->brick[d] = 1;
        p->order[d] = d < p->grid.dims ? p->grid.dims - 1 - d : d;
    }
}

DPAR_API dpar_status dpar_place_init(dpar_place *place, const dpar_cart *grid, int32_t kind,
                                     int32_t per_node, dpar_why *why)
{
    dpar_status st;
    if (kind == DPAR_PLACE_BRICKS) {
        return dpar_place_bricks(place, grid, per_node, NULL, NULL, NULL, why);
    }
    st = dpari_place_judge(kind, per_node, why);
    if (st == DPAR_OK) {
        dpari_place_start(place, grid, kind, per_node);
    }
    return st;
}

/* An order names every axis once. */
static dpar_status dpari_place_order(int32_t dims, const int32_t *order, dpar_why *why)
{
    uint32_t seen = 0;
    int32_t d;
    for (d = 0; order != NULL && d < dims; d++) {
        if (order[d] < 0 || order[d] >= dims || (seen >> order[d] & 1u)) {
            return dpari_say(DPAR_E_ARG, why,
                             "order[#] is axis #: each of the # axes must be named once", d,
                             order[d], dims, 0);
        }
        seen |= (uint32_t)1 << order[d];
    }
    return DPAR_OK;
}

/* Sides that are fixed give a fixed number of nodes along their axes. */
static dpar_status dpari_place_sides(const dpar_cart *grid, const int32_t *sides, int64_t *parts,
                                     int32_t *nodes, dpar_why *why)
{
    int32_t d;
    for (d = 0; d < grid->dims; d++) {
        const int32_t q = sides != NULL ? sides[d] : 0;
        if (q < 0) {
            return dpari_say(DPAR_E_ARG, why, "a brick's side # is #: 0 means free", d, q, 0, 0);
        }
        if (q > 0 && grid->parts[d] % q != 0) {
            return dpari_say(DPAR_E_DIVIDE, why,
                             "a brick's side # does not divide axis #'s # parts", q, d,
                             grid->parts[d], 0);
        }
        parts[d] = grid->parts[d];
        nodes[d] = q > 0 ? grid->parts[d] / q : 0;
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_place_bricks(dpar_place *place, const dpar_cart *grid, int32_t per_node,
                                       const int64_t *weight, const int32_t *order,
                                       const int32_t *sides, dpar_why *why)
{
    int64_t parts[DPAR_MAX_DIMS];
    int32_t nodes[DPAR_MAX_DIMS], d;
    dpar_status st = dpari_place_judge(DPAR_PLACE_BRICKS, per_node, why);
    if (st == DPAR_OK) {
        st = dpari_place_order(grid->dims, order, why);
    }
    if (st == DPAR_OK) {
        st = dpari_place_sides(grid, sides, parts, nodes, why);
    }
    if (st == DPAR_OK && grid->size % per_node != 0) {
        st = dpari_say(DPAR_E_DIVIDE, why, "# ranks a node do not divide # ranks", per_node,
                       grid->size, 0, 0);
    }
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_grid_solve(1, grid->size / per_node, grid->dims, parts, weight, grid->periodic,
                          nodes, NULL, why);
    if (st == DPAR_E_NONE || st == DPAR_E_DIVIDE) {
        return dpari_cart_say(DPAR_E_NONE, why, "no brick of # ranks tiles a grid of @", grid->dims,
                              parts, per_node);
    }
    if (st == DPAR_OK) {
        dpari_place_start(place, grid, DPAR_PLACE_BRICKS, per_node);
    }
    for (d = 0; st == DPAR_OK && d < grid->dims; d++) {
        place->brick[d] = place->grid.parts[d] / nodes[d];
        place->order[d] = order != NULL ? order[d] : place->order[d];
    }
    return st;
}

/* Nodes counted in a grid, ranks counted inside their brick. */
static int32_t dpari_brick_rank(const dpar_place *p, const int32_t *coord)
{
    int32_t i, node = 0, inside = 0, volume = 1;
    for (i = p->grid.dims - 1; i >= 0; i--) {
        const int32_t d = p->order[i], q = p->brick[d];
        node = node * (p->grid.parts[d] / q) + coord[d] / q;
        inside = inside * q + coord[d] % q;
        volume *= q;
    }
    return node * volume + inside;
}

static void dpari_brick_coords(const dpar_place *p, int32_t rank, int32_t *coord)
{
    int32_t i, node, inside, volume = 1;
    for (i = 0; i < p->grid.dims; i++) {
        volume *= p->brick[i];
    }
    node = rank / volume;
    inside = rank % volume;
    for (i = 0; i < p->grid.dims; i++) {
        const int32_t d = p->order[i], q = p->brick[d], n = p->grid.parts[d] / q;
        coord[d] = node % n * q + inside % q;
        node /= n;
        inside /= q;
    }
}

/* A cube of side 2 half on its way down a curve. Hilbert's curve after C. Hamilton, "Compact
 * Hilbert indices", 2006: the corner where it enters, the axis along which it leaves. */
typedef struct dpari_cart_curve {
    int32_t dims, hilbert, turn;
    uint32_t entry;
    int64_t half, low[DPAR_MAX_DIMS];
} dpari_cart_curve;

static dpari_cart_curve dpari_curve_start(const dpar_place *p)
{
    dpari_cart_curve c;
    int64_t side = 1;
    int32_t d;
    dpari_zero(&c, sizeof(c));
    for (d = 0; d < p->grid.dims; d++) {
        while (side < p->grid.parts[d]) {
            side *= 2;
        }
    }
    c.dims = p->grid.dims;
    c.hilbert = p->kind == DPAR_PLACE_HILBERT;
    c.half = side / 2;
    return c;
}

/* Rotates the low dims bits to the left; 0 <= by. */
static uint32_t dpari_curve_turn(const dpari_cart_curve *c, uint32_t bits, int32_t by)
{
    by %= c->dims;
    return (bits << by | bits >> (c->dims - by)) & (((uint32_t)1 << c->dims) - 1);
}

/* Which child the curve visits as number w: bit d says whether it lies high along axis d. */
static uint32_t dpari_curve_child(const dpari_cart_curve *c, uint32_t w)
{
    return c->hilbert ? dpari_curve_turn(c, w ^ w >> 1, c->turn + 1) ^ c->entry : w;
}

/* Goes down into child number w. */
static void dpari_curve_enter(dpari_cart_curve *c, uint32_t w)
{
    const uint32_t child = dpari_curve_child(c, w);
    uint32_t even = w > 0 ? (w - 1) & ~(uint32_t)1 : 0; /* 2 floor((w - 1) / 2) */
    uint32_t ones = w % 2 == 0 && w > 0 ? w - 1 : w;
    int32_t d, trailing = 0;
    for (d = 0; d < c->dims; d++) {
        c->low[d] += (child >> d & 1u) ? c->half : 0;
    }
    for (; ones & 1u; ones >>= 1) {
        trailing++;
    }
    c->entry ^= dpari_curve_turn(c, even ^ even >> 1, c->turn + 1);
    c->turn = (c->turn + trailing + 1) % c->dims;
    c->half /= 2;
}

/* Ranks of the grid that lie in child number w. */
static int32_t dpari_curve_count(const dpari_cart_curve *c, const dpar_place *p, uint32_t w)
{
    const uint32_t child = dpari_curve_child(c, w);
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < c->dims; d++) {
        int64_t left = p->grid.parts[d] - c->low[d] - ((child >> d & 1u) ? c->half : 0);
        n *= dpari_most(0, dpari_least(left, c->half));
    }
    return (int32_t)n;
}

static int32_t dpari_curve_rank(const dpar_place *p, const int32_t *coord)
{
    dpari_cart_curve c = dpari_curve_start(p);
    int32_t d, rank = 0;
    while (c.half > 0) {
        uint32_t want = 0, w;
        for (d = 0; d < c.dims; d++) {
            want |= (uint32_t)(coord[d] >= c.low[d] + c.half) << d;
        }
        for (w = 0; dpari_curve_child(&c, w) != want; w++) {
            rank += dpari_curve_count(&c, p, w);
        }
        dpari_curve_enter(&c, w);
    }
    return rank;
}

static void dpari_curve_coords(const dpar_place *p, int32_t rank, int32_t *coord)
{
    dpari_cart_curve c = dpari_curve_start(p);
    int32_t d;
    while (c.half > 0) {
        uint32_t w = 0;
        int32_t n = dpari_curve_count(&c, p, w);
        while (n <= rank) {
            rank -= n;
            n = dpari_curve_count(&c, p, ++w);
        }
        dpari_curve_enter(&c, w);
    }
    for (d = 0; d < c.dims; d++) {
        coord[d] = (int32_t)c.low[d];
    }
}

static int dpari_place_curved(const dpar_place *p)
{
    return p->kind == DPAR_PLACE_MORTON || p->kind == DPAR_PLACE_HILBERT;
}

DPAR_API int32_t dpar_place_rank(const dpar_place *place, const int32_t *coord)
{
    int32_t d;
    for (d = 0; d < place->grid.dims; d++) {
        if (coord[d] < 0 || coord[d] >= place->grid.parts[d]) {
            return DPAR_PROC_NULL;
        }
    }
    return dpari_place_curved(place) ? dpari_curve_rank(place, coord)
                                     : dpari_brick_rank(place, coord);
}

DPAR_API dpar_status dpar_place_coords(const dpar_place *place, int32_t rank, int32_t *coord)
{
    if (rank < 0 || rank >= place->grid.size) {
        return DPAR_E_ARG;
    }
    if (dpari_place_curved(place)) {
        dpari_curve_coords(place, rank, coord);
    } else {
        dpari_brick_coords(place, rank, coord);
    }
    return DPAR_OK;
}

/* What an offset carries, 0 when the stencil does not have it; INT64_MAX when it overflows. */
static int64_t dpari_stencil_weight(const dpar_stencil *s, int32_t dims, const int32_t *offset,
                                    int32_t moves)
{
    int64_t w = s->bytes;
    int32_t d;
    if (moves == 0 || (moves > 1 && s->shape == DPAR_STENCIL_STAR)) {
        return 0;
    }
    for (d = 0; d < dims; d++) {
        w = dpari_cart_times(w, offset[d] != 0 ? s->width[d] : s->block[d]);
    }
    return w;
}

static dpar_status dpari_stencil_judge(const dpar_stencil *s, const dpar_cart *grid, dpar_why *why)
{
    int32_t offset[DPAR_MAX_DIMS], i, d;
    int64_t sum = 0;
    dpari_zero(offset, sizeof(offset));
    for (d = 0; d < grid->dims; d++) {
        if (s->block[d] < 0 || s->width[d] < 0 || s->bytes < 0) {
            return dpari_say(
                DPAR_E_ARG, why,
                "axis # has a block of # and a halo of # cells of # bytes: none may be "
                "negative",
                d, s->block[d], s->width[d], s->bytes);
        }
    }
    for (i = 0; i < dpari_cart_three_to(grid->dims); i++) {
        int32_t moves = dpari_cart_offset(grid->dims, i, offset);
        int64_t w = dpari_stencil_weight(s, grid->dims, offset, moves);
        if (w > INT64_MAX / grid->size - sum) {
            return dpari_say(DPAR_E_RANGE, why,
                             "# ranks with halos of # bytes and more: the sum may pass 2^63 - 1",
                             grid->size, w, 0, 0);
        }
        sum += w;
    }
    return DPAR_OK;
}

/* Along one axis of p parts in tiles of q: pairs of an offset in the whole grid and inside tiles,
 * and those of the tile that has most neighbours, which is the second, or the only one. */
typedef struct dpari_cart_pairs {
    int64_t all, same, tile, inside;
} dpari_cart_pairs;

static void dpari_cart_pairs_along(dpari_cart_pairs *at, int32_t p, int32_t q, int32_t offset,
                                   int wraps)
{
    const int32_t tiles = p / q;
    const int closed = wraps && tiles == 1; /* the tile is its own neighbour */
    const int border = !wraps && (offset < 0 ? tiles == 1 : tiles <= 2);
    if (offset == 0) {
        at->all *= p;
        at->same *= p;
        at->tile *= q;
        at->inside *= q;
    } else {
        at->all *= wraps ? p : p - 1;
        at->same *= closed ? p : tiles * (q - 1);
        at->tile *= border ? q - 1 : q;
        at->inside *= closed ? q : q - 1;
    }
}

/* The cost of tiles by counting pairs instead of ranks. */
static void dpari_place_cost_tiles(const dpar_place *p, const dpar_stencil *s, int64_t *total,
                                   int64_t *worst)
{
    int32_t offset[DPAR_MAX_DIMS], i, d;
    int64_t sum = 0, node = 0;
    for (i = 0; i < dpari_cart_three_to(p->grid.dims); i++) {
        int32_t moves = dpari_cart_offset(p->grid.dims, i, offset);
        int64_t w = dpari_stencil_weight(s, p->grid.dims, offset, moves);
        dpari_cart_pairs at = {1, 1, 1, 1};
        for (d = 0; d < p->grid.dims; d++) {
            dpari_cart_pairs_along(&at, p->grid.parts[d], p->brick[d], offset[d],
                                   p->grid.periodic >> d & 1u);
        }
        sum += w * (at.all - at.same);
        node += w * (at.tile - at.inside);
    }
    *total = sum / 2;
    *worst = node;
}

/* What a rank sends to other nodes. */
static int64_t dpari_place_sends(const dpar_place *p, const dpar_stencil *s, int32_t rank)
{
    int32_t coord[DPAR_MAX_DIMS], offset[DPAR_MAX_DIMS], next[DPAR_MAX_DIMS], i;
    int64_t sum = 0;
    dpar_place_coords(p, rank, coord);
    for (i = 0; i < dpari_cart_three_to(p->grid.dims); i++) {
        int32_t moves = dpari_cart_offset(p->grid.dims, i, offset);
        int64_t w = dpari_stencil_weight(s, p->grid.dims, offset, moves);
        if (w > 0 && dpari_cart_next(&p->grid, coord, offset, next) &&
            dpar_place_rank(p, next) / p->per_node != rank / p->per_node) {
            sum += w;
        }
    }
    return sum;
}

DPAR_API dpar_status dpar_place_cost(const dpar_place *place, const dpar_stencil *stencil,
                                     int64_t *total, int64_t *worst, dpar_why *why)
{
    int64_t sum = 0, node = 0, most = 0;
    int32_t rank, d, volume = 1;
    dpar_status st = dpari_stencil_judge(stencil, &place->grid, why);
    if (st != DPAR_OK) {
        return st;
    }
    for (d = 0; d < place->grid.dims; d++) {
        volume *= place->brick[d];
    }
    if (volume == place->per_node && !dpari_place_curved(place)) {
        dpari_place_cost_tiles(place, stencil, total, worst);
        return DPAR_OK;
    }
    for (rank = 0; rank < place->grid.size; rank++) {
        int64_t sends = dpari_place_sends(place, stencil, rank);
        node = rank % place->per_node == 0 ? sends : node + sends;
        most = dpari_most(most, node);
        sum += sends;
    }
    *total = sum / 2;
    *worst = most;
    return DPAR_OK;
}

/* What each of the faces of a rank carries. */
static void dpari_stencil_faces(const dpar_stencil *s, int32_t dims, int64_t *weight)
{
    int32_t d, e;
    for (d = 0; d < dims; d++) {
        weight[d] = s->bytes;
        for (e = 0; e < dims; e++) {
            weight[d] = dpari_cart_times(weight[d], e == d ? s->width[e] : s->block[e]);
        }
    }
}

/* Checked before: fails only where no brick fits. */
static dpar_status dpari_place_try(dpar_place *p, const dpar_cart *grid, int32_t kind,
                                   int32_t per_node, const int64_t *weight)
{
    if (kind == DPAR_PLACE_BRICKS) {
        return dpar_place_bricks(p, grid, per_node, weight, NULL, NULL, NULL);
    }
    dpari_place_start(p, grid, kind, per_node);
    return DPAR_OK;
}

DPAR_API dpar_status dpar_place_best(dpar_place *place, const dpar_cart *grid, int32_t per_node,
                                     const dpar_stencil *stencil, int64_t *total, int64_t *worst,
                                     dpar_why *why)
{
    int64_t weight[DPAR_MAX_DIMS], sum = 0, most = 0, least_sum = 0, least_most = -1;
    int32_t kind, best = 0;
    dpar_status st = dpari_stencil_judge(stencil, grid, why);
    if (st == DPAR_OK) {
        st = dpari_place_judge(DPAR_PLACE_ROW_MAJOR, per_node, why);
    }
    if (st == DPAR_OK) {
        dpari_stencil_faces(stencil, grid->dims, weight);
    }
    for (kind = 0; st == DPAR_OK && kind < DPAR_PLACE_KINDS; kind++) {
        if (dpari_place_try(place, grid, kind, per_node, weight) != DPAR_OK) {
            continue;
        }
        st = dpar_place_cost(place, stencil, &sum, &most, why);
        if (least_most < 0 || most < least_most || (most == least_most && sum < least_sum)) {
            best = kind;
            least_sum = sum;
            least_most = most;
        }
    }
    if (st == DPAR_OK) {
        st = dpari_place_try(place, grid, best, per_node, weight);
    }
    if (st == DPAR_OK && total != NULL) {
        *total = least_sum;
    }
    if (st == DPAR_OK && worst != NULL) {
        *worst = least_most;
    }
    return st;
}

/* ---- torus ---- */

/* The largest set of free physical axes with that product, of those the first in lexicographic
 * order; 0 when there is none. Bit n - 1 - i stands for axis i, so that larger sets of equal count
 * come first. */
static uint32_t dpari_torus_whole(const dpar_torus *t, uint32_t used, int32_t size)
{
    const int32_t n = t->physical_axes;
    uint32_t best = 0, set;
    int32_t most = 0, i;
    for (set = ((uint32_t)1 << n) - 1; set > 0; set--) {
        uint32_t axes = 0;
        int64_t product = 1;
        int32_t count = 0;
        for (i = 0; i < n; i++) {
            if (set >> (n - 1 - i) & 1u) {
                axes |= (uint32_t)1 << i;
                product *= product <= size ? t->physical[i] : 1;
                count++;
            }
        }
        if (product == size && (axes & used) == 0 && count > most) {
            best = axes;
            most = count;
        }
    }
    return best;
}

static void dpari_torus_clear(dpar_torus *t)
{
    int32_t l, i;
    for (l = 0; l < DPAR_MAX_AXES; l++) {
        t->axes[l] = 0;
        for (i = 0; i < DPAR_MAX_DIMS; i++) {
            t->part[l][i] = 1;
        }
    }
}

/* Whole physical axes only: 0, and which logical axis, when one finds none. */
static int dpari_torus_by_axes(dpar_torus *t, int32_t *failed)
{
    uint32_t used = 0;
    int32_t l, i;
    for (l = t->logical_axes - 1; l >= 0; l--) {
        t->axes[l] = dpari_torus_whole(t, used, t->logical[l]);
        used |= t->axes[l];
        if (t->axes[l] == 0 && t->logical[l] > 1) {
            *failed = l;
            return 0;
        }
        for (i = 0; i < t->physical_axes; i++) {
            t->part[l][i] = (t->axes[l] >> i & 1u) ? t->physical[i] : 1;
        }
    }
    return 1;
}

/* Is z preferred to y by rules (1) to (3)? taken: what other logical axes have of each axis. */
static int dpari_torus_prefers(const dpar_torus *t, const int32_t *taken, const int32_t *z,
                               const int32_t *y)
{
    int64_t whole[2] = {1, 1}, shared[2] = {1, 1};
    int32_t count[2] = {0, 0}, i, k;
    for (k = 0; k < 2; k++) {
        const int32_t *x = k == 0 ? z : y;
        for (i = 0; i < t->physical_axes; i++) {
            whole[k] *= x[i] == t->physical[i] ? x[i] : 1;
            count[k] += x[i] == t->physical[i] && x[i] > 1;
            shared[k] *= taken[i] > 1 ? x[i] : 1;
        }
    }
    if (whole[0] != whole[1]) {
        return whole[0] > whole[1];
    }
    return count[0] != count[1] ? count[0] > count[1] : shared[0] >= shared[1];
}

/* Splitting: the preferred factorisation for each logical axis. They come in lexicographic order,
 * so that the last of equals is (4). There always is one: the primes that are left suffice. */
static void dpari_torus_by_parts(dpar_torus *t)
{
    int32_t taken[DPAR_MAX_DIMS], room[DPAR_MAX_DIMS], z[DPAR_MAX_DIMS], l, i;
    for (i = 0; i < t->physical_axes; i++) {
        taken[i] = 1;
    }
    for (l = t->logical_axes - 1; l >= 0; l--) {
        int first = 1;
        for (i = 0; i < t->physical_axes; i++) {
            room[i] = t->physical[i] / taken[i];
        }
        z[0] = 0;
        while (dpar_grid_next(t->logical[l], t->physical_axes, room, z) == DPAR_OK) {
            if (first || dpari_torus_prefers(t, taken, z, t->part[l])) {
                for (i = 0; i < t->physical_axes; i++) {
                    t->part[l][i] = z[i];
                }
                first = 0;
            }
        }
        for (i = 0; i < t->physical_axes; i++) {
            taken[i] *= t->part[l][i];
            t->axes[l] |= (uint32_t)(t->part[l][i] > 1) << i;
        }
    }
}

/* Copies sizes >= 1 and multiplies them; E_RANGE above 2^31 - 1. */
static dpar_status dpari_torus_sizes(int32_t n, const int32_t *from, int32_t *to, int64_t *product,
                                     dpar_why *why)
{
    int32_t i;
    *product = 1;
    for (i = 0; i < n; i++) {
        if (from[i] < 1) {
            return dpari_say(DPAR_E_ARG, why, "axis # has size #: at least 1", i, from[i], 0, 0);
        }
        to[i] = from[i];
        *product *= from[i];
        if (*product > INT32_MAX) {
            return dpari_say(DPAR_E_RANGE, why, "axes 0 to # have # chips: 2^31 - 1 at most", i,
                             *product, 0, 0);
        }
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_torus_assign(dpar_torus *torus, int32_t physical_axes,
                                       const int32_t *physical, int32_t logical_axes,
                                       const int32_t *logical, int32_t split, dpar_why *why)
{
    dpar_torus t;
    int64_t chips, ranks;
    int32_t failed = 0;
    dpar_status st;
    if (physical_axes < 1 || physical_axes > DPAR_MAX_DIMS || logical_axes < 1 ||
        logical_axes > DPAR_MAX_AXES) {
        return dpari_say(DPAR_E_ARG, why, "# logical axes (1 to #) on # physical ones (1 to #)",
                         logical_axes, DPAR_MAX_AXES, physical_axes, DPAR_MAX_DIMS);
    }
    dpari_zero(&t, sizeof(t));
    t.physical_axes = physical_axes;
    t.logical_axes = logical_axes;
    st = dpari_torus_sizes(physical_axes, physical, t.physical, &chips, why);
    if (st == DPAR_OK) {
        st = dpari_torus_sizes(logical_axes, logical, t.logical, &ranks, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    if (chips != ranks) {
        return dpari_say(DPAR_E_DIVIDE, why, "the logical mesh has # ranks, the torus # chips",
                         ranks, chips, 0, 0);
    }
    dpari_torus_clear(&t);
    if (!dpari_torus_by_axes(&t, &failed)) {
        if (!split) {
            return dpari_say(DPAR_E_NONE, why,
                             "logical axis # of size # is no product of physical axes that are "
                             "left: allow splitting",
                             failed, logical[failed], 0, 0);
        }
        dpari_torus_clear(&t);
        dpari_torus_by_parts(&t);
    }
    *torus = t;
    return DPAR_OK;
}

DPAR_API dpar_status dpar_torus_physical(const dpar_torus *torus, const int32_t *logical,
                                         int32_t *physical)
{
    int32_t at[DPAR_MAX_DIMS], stride[DPAR_MAX_DIMS], l, i;
    for (i = 0; i < torus->physical_axes; i++) {
        at[i] = 0;
        stride[i] = 1;
    }
    for (l = torus->logical_axes - 1; l >= 0; l--) {
        int32_t rest = logical[l];
        if (rest < 0 || rest >= torus->logical[l]) {
            return DPAR_E_ARG;
        }
        for (i = torus->physical_axes - 1; i >= 0; i--) {
            const int32_t n = torus->part[l][i];
            at[i] += rest % n * stride[i];
            stride[i] *= n;
            rest /= n;
        }
    }
    for (i = 0; i < torus->physical_axes; i++) {
        physical[i] = at[i];
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_torus_logical(const dpar_torus *torus, const int32_t *physical,
                                        int32_t *logical)
{
    int32_t rest[DPAR_MAX_DIMS], l, i;
    for (i = 0; i < torus->physical_axes; i++) {
        rest[i] = physical[i];
        if (rest[i] < 0 || rest[i] >= torus->physical[i]) {
            return DPAR_E_ARG;
        }
    }
    for (l = torus->logical_axes - 1; l >= 0; l--) {
        int32_t at = 0, stride = 1;
        for (i = torus->physical_axes - 1; i >= 0; i--) {
            const int32_t n = torus->part[l][i];
            at += rest[i] % n * stride;
            stride *= n;
            rest[i] /= n;
        }
        logical[l] = at;
    }
    return DPAR_OK;
}

/* ==== index/split.c ==== */

static const int64_t dpari_split_limit = INT64_C(1) << 62;

/* What is called for single elements goes into its callers, unless they are to be small. */
#if defined(__GNUC__) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define DPARI_HOT static __inline__ __attribute__((always_inline))
#else
#define DPARI_HOT static
#endif

/* ---- division by a constant ------------------------------------------------------------------ */

/* The high half of a product. */
DPARI_HOT uint64_t dpari_high(uint64_t a, uint64_t b)
{
#if defined(__SIZEOF_INT128__)
    __extension__ typedef unsigned __int128 dpari_u128;
    return (uint64_t)((dpari_u128)a * b >> 64);
#else
    uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
    uint64_t mid = a1 * b0 + (a0 * b0 >> 32), low = a0 * b1 + (mid & 0xffffffffu);
    return a1 * b1 + (mid >> 32) + (low >> 32);
#endif
}

/* n / by[k] for 0 <= n < 2^63. With 2^(l-1) < d <= 2^l and v = ceil(2^(63+l) / d), which 64 bits
 * hold, n v / 2^(63+l) is n / d or past it by less than 1 / d: its floor is the quotient. */
DPARI_HOT int64_t dpari_split_div(const dpar_split *s, int k, int64_t n, int64_t *rest)
{
    int64_t q = (int64_t)(dpari_high((uint64_t)n << 1, s->inverse[k]) >> s->shift[k]);
    *rest = n - q * s->by[k];
    return q;
}

/* floor(2^127 / d) for 2^63 < d < 2^64, two digits of 32 bits. */
static uint64_t dpari_inverse(uint64_t d)
{
    uint64_t d1 = d >> 32, d0 = d & 0xffffffffu, high = (uint64_t)1 << 63, q = 0;
    int digit;
    for (digit = 0; digit < 2; digit++) {
        uint64_t guess = high / d1, rest = high % d1; /* too large by 2 at most */
        while (rest <= 0xffffffffu && (guess > 0xffffffffu || guess * d0 > rest << 32)) {
            guess--;
            rest += d1;
        }
        high = (high << 32) - guess * d;
        q = q << 32 | guess;
    }
    return q;
}

/* How many bits d > 0 has. */
static int dpari_bits(uint64_t d)
{
#if defined(__SIZEOF_INT128__)
    return 64 - __builtin_clzll(d);
#else
    int bits = 1, step;
    for (step = 32; step > 0; step /= 2) {
        int more = d >> step != 0;
        bits += more ? step : 0;
        d >>= more ? step : 0;
    }
    return bits;
#endif
}

static void dpari_split_by(dpar_split *s, int k, int64_t divisor)
{
    uint64_t d = divisor > 0 ? (uint64_t)divisor : 1;
    int l = dpari_bits(d);
    s->by[k] = (int64_t)d;
    d <<= 64 - l;                 /* its highest bit to the top */
    if (d == (uint64_t)1 << 63) { /* a power of two */
        s->inverse[k] = d;
        l--;
    } else {
        s->inverse[k] = dpari_inverse(d) + 1;
    }
    s->shift[k] = (uint8_t)l;
}

/* ---- making --------------------------------------------------------------------------------- */

static dpar_status dpari_split_check(int64_t count, int32_t parts, dpar_why *why)
{
    if (parts < 1) {
        return dpari_say(DPAR_E_ARG, why, "# parts: there must be at least 1", parts, 0, 0, 0);
    }
    if (count < 0) {
        return dpari_say(DPAR_E_ARG, why, "# elements: there must be 0 or more", count, 0, 0, 0);
    }
    if (count > dpari_split_limit) {
        return dpari_say(DPAR_E_RANGE, why, "# elements: at most 2^62 can be split", count, 0, 0,
                         0);
    }
    return DPAR_OK;
}

/* What the rule divides by, and what is left of the count after whole rounds of it. */
DPAR_API void dpar_split_resize(dpar_split *s, int64_t count)
{
    int64_t blocks, parts = s->parts;
    s->count = count;
    s->rounds = count / parts;
    s->extra = count % parts;
    switch (s->rule) {
    case DPAR_EVEN:
        dpari_split_by(s, 0, s->rounds + 1);
        dpari_split_by(s, 1, s->rounds);
        break;
    case DPAR_FLOOR:
        s->tail = count <= INT64_MAX / parts; /* does P N fit? */
        dpari_split_by(s, 0, count);
        dpari_split_by(s, 1, parts);
        break;
    case DPAR_BLOCK_CYCLIC:
    case DPAR_STRIPE:
        dpari_split_by(s, 0, s->block);
        dpari_split_by(s, 1, parts);
        blocks = count / s->block;
        s->tail = count % s->block;
        s->rounds = blocks / parts;
        s->extra = blocks % parts;
        break;
    case DPAR_STRIDED: /* elements of a piece; of a part of a full piece */
        dpari_split_by(s, 0, dpari_ceil_div(count, s->block));
        dpari_split_by(s, 1, dpari_ceil_div(s->by[0], parts));
        s->rounds = count / s->by[0];
        s->tail = count % s->by[0];
        break;
    case DPAR_RAGGED: break;
    default:
        dpari_split_by(s, 0, dpari_ceil_div(count, s->rule == DPAR_ZIGZAG ? 2 * parts : parts));
    }
}

DPAR_API dpar_status dpar_split_init(dpar_split *s, int32_t rule, int64_t count, int32_t parts,
                                     int64_t block, int32_t source, dpar_why *why)
{
    dpar_status st = dpari_split_check(count, parts, why);
    int32_t blocked = rule == DPAR_BLOCK_CYCLIC || rule == DPAR_STRIDED;
    if (st != DPAR_OK) {
        return st;
    }
    if (rule < 0 || rule >= DPAR_SPLITS || rule == DPAR_RAGGED) {
        return dpari_say(DPAR_E_ARG, why, "rule #: there are 0 to 7, and RAGGED has its own init",
                         rule, 0, 0, 0);
    }
    if (blocked && block < 1) {
        return dpari_say(DPAR_E_ARG, why, "block #: blocks and pieces are at least 1", block, 0, 0,
                         0);
    }
    if (rule == DPAR_BLOCK_CYCLIC && (source < 0 || source >= parts)) {
        return dpari_say(DPAR_E_ARG, why, "source #: it is one of the # parts", source, parts, 0,
                         0);
    }
    dpari_zero(s, sizeof(*s));
    s->rule = rule;
    s->parts = parts;
    s->block = rule == DPAR_STRIPE ? 1 : blocked ? block : 0;
    s->source = rule == DPAR_BLOCK_CYCLIC ? source : 0;
    dpar_split_resize(s, count);
    return DPAR_OK;
}

DPAR_API dpar_status dpar_split_ragged(dpar_split *s, int32_t parts, const int64_t *cuts,
                                       dpar_why *why)
{
    dpar_status st = dpari_split_check(parts < 1 ? 0 : cuts[parts], parts, why);
    int32_t p;
    if (st != DPAR_OK) {
        return st;
    }
    if (cuts[0] != 0) {
        return dpari_say(DPAR_E_ARG, why, "cut 0 is #: the first part begins at 0", cuts[0], 0, 0,
                         0);
    }
    for (p = 0; p < parts; p++) {
        if (cuts[p + 1] < cuts[p]) {
            return dpari_say(DPAR_E_ARG, why, "cut # is # and cut # is #: cuts ascend", p, cuts[p],
                             (int64_t)p + 1, cuts[p + 1]);
        }
    }
    dpari_zero(s, sizeof(*s));
    s->rule = DPAR_RAGGED;
    s->parts = parts;
    s->count = cuts[parts];
    s->cuts = cuts;
    return DPAR_OK;
}

/* floor(a b / c) for a < 2^62, 0 <= b <= c < 2^31, without a product that overflows. */
static int64_t dpari_share(int64_t a, int64_t b, int64_t c)
{
    return a / c * b + a % c * b / c;
}

DPAR_API dpar_status dpar_split_weights(int64_t *cuts, int64_t count, int32_t parts,
                                        const int64_t *weights, int64_t atom, dpar_why *why)
{
    dpar_status st = dpari_split_check(count, parts, why);
    int64_t all = 0, before = 0, atoms;
    int32_t p;
    if (st != DPAR_OK) {
        return st;
    }
    if (atom < 1) {
        return dpari_say(DPAR_E_ARG, why, "atom #: it is at least 1", atom, 0, 0, 0);
    }
    for (p = 0; p < parts; p++) {
        if (weights[p] < 0) {
            return dpari_say(DPAR_E_ARG, why, "weight # is #: weights are 0 or more", p, weights[p],
                             0, 0);
        }
        all = weights[p] > INT32_MAX - all ? (int64_t)INT32_MAX + 1 : all + weights[p];
        if (all > INT32_MAX) {
            return dpari_say(DPAR_E_RANGE, why, "the sum of # weights passes 2^31 - 1", parts, 0, 0,
                             0);
        }
    }
    if (all == 0) {
        return dpari_say(DPAR_E_ARG, why, "all # weights are 0", parts, 0, 0, 0);
    }
    atoms = dpari_ceil_div(count, atom);
    for (p = 0; p <= parts; p++) {
        int64_t cut = dpari_share(atoms, before, all);
        cuts[p] = cut > count / atom ? count : cut * atom; /* the last atom may be short */
        before += p < parts ? weights[p] : 0;
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_split_rest(int64_t *cuts, int64_t count, int64_t even, int32_t parts,
                                     dpar_why *why)
{
    dpar_status st = dpari_split_check(count, parts, why);
    int64_t full;
    int32_t p;
    if (st != DPAR_OK) {
        return st;
    }
    if (even < 0 || even > count) {
        return dpari_say(DPAR_E_ARG, why, "# of # elements are spread", even, count, 0, 0);
    }
    full = even < parts ? dpari_most(even, 1) : parts; /* parts that have some */
    for (p = 0; p <= parts; p++) {
        cuts[p] = p >= full ? count : even / parts * p + dpari_least(p, even % parts);
    }
    return DPAR_OK;
}

/* Runs that are filled up to `most` each: how many are needed. */
static int64_t dpari_balance_runs(int64_t items, const int64_t *cost, int64_t most)
{
    int64_t i, runs = items > 0, load = 0;
    for (i = 0; i < items; i++) {
        if (cost[i] > most - load) {
            runs++;
            load = 0;
        }
        load += cost[i];
    }
    return runs;
}

/* cuts[p]: how early run p may begin, so that the runs from it on keep `most`. */
static void dpari_balance_latest(int64_t items, const int64_t *cost, int64_t most, int32_t parts,
                                 int64_t *cuts)
{
    int64_t i = items, load;
    int32_t p;
    cuts[parts] = items;
    for (p = parts - 1; p > 0; p--) {
        for (load = 0; i > 0 && cost[i - 1] <= most - load; i--) {
            load += cost[i - 1];
        }
        cuts[p] = i;
    }
}

/* Cuts from the front, each where its run comes nearest to an even share of what is left; no run
 * passes `most`, and while there are enough items none is empty. */
static void dpari_balance_cut(int64_t items, const int64_t *cost, int64_t most, int64_t left,
                              int32_t parts, int64_t *cuts)
{
    int64_t i = 0;
    int32_t p;
    cuts[0] = 0;
    for (p = 1; p < parts; p++) {
        int64_t share = left / (parts - p + 1), load = 0;
        int64_t least = dpari_most(cuts[p], dpari_least(items, cuts[p - 1] + 1));
        int64_t last = dpari_most(least, items - (parts - p));
        while (i < least ||
               (i < last && cost[i] <= most - load && load + cost[i] - share < share - load)) {
            load += cost[i++];
        }
        left -= load;
        cuts[p] = i;
    }
}

DPAR_API dpar_status dpar_split_balance(int64_t *cuts, int64_t items, const int64_t *cost,
                                        int32_t parts, dpar_why *why)
{
    dpar_status st = dpari_split_check(items, parts, why);
    int64_t i, all = 0, low = 0, high;
    if (st != DPAR_OK) {
        return st;
    }
    for (i = 0; i < items; i++) {
        if (cost[i] < 0 || cost[i] > dpari_split_limit - all) {
            return dpari_say(cost[i] < 0 ? DPAR_E_ARG : DPAR_E_RANGE, why,
                             "cost # is #: costs are 0 or more, their sum at most 2^62", i, cost[i],
                             0, 0);
        }
        all += cost[i];
        low = dpari_most(low, cost[i]);
    }
    for (high = all; low < high;) { /* the least maximum that `parts` runs can keep */
        int64_t middle = low + (high - low) / 2;
        if (dpari_balance_runs(items, cost, middle) <= parts) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    dpari_balance_latest(items, cost, low, parts, cuts);
    dpari_balance_cut(items, cost, low, all, parts, cuts);
    return DPAR_OK;
}

/* ---- contiguous rules ----------------------------------------------------------------------- */

/* Where part p begins, 0 <= p <= P. p b <= N + P: no product overflows. FLOOR: floor(N p/P) =
 * (N/P) p + (N%P) p / P, the second product below 2^62. */
DPARI_HOT int64_t dpari_split_cut(const dpar_split *s, int64_t p)
{
    int64_t rest;
    switch (s->rule) {
    case DPAR_CHUNK: return dpari_least(s->count, p * s->by[0]);
    case DPAR_EVEN: return s->rounds * p + dpari_least(p, s->extra);
    case DPAR_FLOOR: return s->rounds * p + dpari_split_div(s, 1, s->extra * p, &rest);
    default: return s->cuts[p];
    }
}

/* The last part that begins at or before i and is not empty, by halving. */
static int32_t dpari_split_search(const dpar_split *s, int64_t i)
{
    int32_t low = 0, high = s->parts; /* cut(low) <= i < cut(high) */
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (dpari_split_cut(s, middle) <= i) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

DPARI_HOT int64_t dpari_even_part(const dpar_split *s, int64_t i)
{
    int64_t rest, p = dpari_split_div(s, 0, i, &rest);
    return p < s->extra ? p : dpari_split_div(s, 1, i - s->extra, &rest);
}

/* floor(N p/P) <= i  <=>  p <= (P (i+1) - 1) / N: divided where that fits, else searched for. */
DPARI_HOT int64_t dpari_floor_part(const dpar_split *s, int64_t i)
{
    int64_t rest;
    return s->tail ? dpari_split_div(s, 0, s->parts * (i + 1) - 1, &rest)
                   : dpari_split_search(s, i);
}

/* ---- scattered rules ------------------------------------------------------------------------ */

/* BLOCK_CYCLIC, 0-based (ScaLAPACK): block j belongs to (source + j) mod P. */
DPARI_HOT int64_t dpari_cyclic_find(const dpar_split *s, int64_t i, int64_t *local)
{
    int64_t in, turn, block = dpari_split_div(s, 0, i, &in);
    *local = s->block * dpari_split_div(s, 1, block, &turn) + in;
    turn += s->source;
    return turn >= s->parts ? turn - s->parts : turn;
}

/* The turn of a part: 0 for the one that has the first block. */
DPARI_HOT int64_t dpari_cyclic_turn(const dpar_split *s, int64_t part)
{
    return part >= s->source ? part - s->source : part - s->source + s->parts;
}

/* What a part has of the blocks after the full rounds. */
DPARI_HOT int64_t dpari_cyclic_last(const dpar_split *s, int64_t turn)
{
    return turn < s->extra ? s->block : turn == s->extra ? s->tail : 0;
}

DPARI_HOT int64_t dpari_cyclic_global(const dpar_split *s, int64_t part, int64_t local)
{
    int64_t in, round = dpari_split_div(s, 0, local, &in), turn = dpari_cyclic_turn(s, part);
    if (round >= s->rounds && (round > s->rounds || in >= dpari_cyclic_last(s, turn))) {
        return -1;
    }
    return (round * s->parts + turn) * s->block + in;
}

/* STRIDED: what part p has of a full piece. */
DPARI_HOT int64_t dpari_strided_full(const dpar_split *s, int64_t p)
{
    return dpari_least(s->by[1], s->by[0] - dpari_least(s->by[0], p * s->by[1]));
}

/* Where part p lies inside the last, short piece, and how much it has of it. */
static int64_t dpari_strided_last(const dpar_split *s, int64_t p, int64_t *offset)
{
    int64_t b = dpari_ceil_div(s->tail, s->parts);
    *offset = dpari_least(s->tail, p * b);
    return dpari_least(b, s->tail - *offset);
}

DPARI_HOT int64_t dpari_strided_find(const dpar_split *s, int64_t i, int64_t *local)
{
    int64_t in, piece = dpari_split_div(s, 0, i, &in), part, rest;
    if (piece < s->rounds) {
        part = dpari_split_div(s, 1, in, &rest);
        *local = piece * dpari_least(s->by[1], s->by[0] - in + rest) + rest;
        return part;
    }
    part = in / dpari_ceil_div(s->tail, s->parts);
    (void)dpari_strided_last(s, part, &rest);
    *local = piece * dpari_strided_full(s, part) + in - rest;
    return part;
}

DPARI_HOT int64_t dpari_strided_global(const dpar_split *s, int64_t part, int64_t local)
{
    int64_t full = dpari_strided_full(s, part), piece = s->rounds, offset;
    if (full == s->by[1]) {
        piece = dpari_split_div(s, 1, local, &offset);
    } else if (full > 0) {
        piece = local / full;
    }
    if (piece < s->rounds) {
        return piece * (s->by[0] - full) + part * s->by[1] + local;
    }
    local -= s->rounds * full;
    if (local >= dpari_strided_last(s, part, &offset)) {
        return -1;
    }
    return s->rounds * s->by[0] + offset + local;
}

/* ZIGZAG: chunk c of 2P. */
DPARI_HOT int64_t dpari_zigzag_cut(const dpar_split *s, int64_t c)
{
    return dpari_least(s->count, c * s->by[0]);
}

/* Elements of a part's first chunk, and of its second. */
DPARI_HOT int64_t dpari_zigzag_first(const dpar_split *s, int64_t part)
{
    return dpari_zigzag_cut(s, part + 1) - dpari_zigzag_cut(s, part);
}

DPARI_HOT int64_t dpari_zigzag_second(const dpar_split *s, int64_t part)
{
    return dpari_zigzag_first(s, 2 * (int64_t)s->parts - 1 - part);
}

/* Where a second chunk has elements, the first one is full. */
DPARI_HOT int64_t dpari_zigzag_find(const dpar_split *s, int64_t i, int64_t *local)
{
    int64_t in, chunk = dpari_split_div(s, 0, i, &in);
    if (chunk < s->parts) {
        *local = in;
        return chunk;
    }
    *local = s->by[0] + in;
    return 2 * (int64_t)s->parts - 1 - chunk;
}

DPARI_HOT int64_t dpari_zigzag_global(const dpar_split *s, int64_t part, int64_t local)
{
    int64_t first = dpari_zigzag_first(s, part), chunk = 2 * (int64_t)s->parts - 1 - part;
    if (local < first) {
        return dpari_zigzag_cut(s, part) + local;
    }
    return local - first < dpari_zigzag_second(s, part)
               ? dpari_zigzag_cut(s, chunk) + (local - first)
               : -1;
}

/* ---- any rule -------------------------------------------------------------------------------- */

DPARI_HOT int dpari_split_has(const dpar_split *s, int32_t part)
{
    return part >= 0 && part < s->parts;
}

/* The part that has i, 0 <= i < N, and where. */
DPARI_HOT int32_t dpari_split_find(const dpar_split *s, int64_t i, int64_t *local)
{
    int64_t part;
    switch (s->rule) {
    case DPAR_CHUNK: return (int32_t)dpari_split_div(s, 0, i, local);
    case DPAR_BLOCK_CYCLIC: return (int32_t)dpari_cyclic_find(s, i, local);
    case DPAR_STRIPE: *local = dpari_split_div(s, 1, i, &part); return (int32_t)part;
    case DPAR_STRIDED: return (int32_t)dpari_strided_find(s, i, local);
    case DPAR_ZIGZAG: return (int32_t)dpari_zigzag_find(s, i, local);
    case DPAR_EVEN: part = dpari_even_part(s, i); break;
    case DPAR_FLOOR: part = dpari_floor_part(s, i); break;
    default: part = dpari_split_search(s, i);
    }
    *local = i - dpari_split_cut(s, part);
    return (int32_t)part;
}

/* The element at `local` of a part that exists, or -1. */
DPARI_HOT int64_t dpari_split_global(const dpar_split *s, int32_t part, int64_t local)
{
    int64_t cut;
    switch (s->rule) {
    case DPAR_BLOCK_CYCLIC:
    case DPAR_STRIPE: return dpari_cyclic_global(s, part, local);
    case DPAR_STRIDED: return dpari_strided_global(s, part, local);
    case DPAR_ZIGZAG: return dpari_zigzag_global(s, part, local);
    default:
        cut = dpari_split_cut(s, part);
        return local < dpari_split_cut(s, (int64_t)part + 1) - cut ? cut + local : -1;
    }
}

/* How many elements from i on, which lies at `local` of its part, follow one another there. */
static int64_t dpari_split_run(const dpar_split *s, int32_t part, int64_t i, int64_t local)
{
    int64_t in, left = s->count - i;
    switch (s->rule) {
    case DPAR_BLOCK_CYCLIC:
    case DPAR_STRIPE:
        (void)dpari_split_div(s, 0, local, &in);
        return s->parts == 1 ? left : dpari_least(left, s->block - in);
    case DPAR_STRIDED:
        if (s->by[0] == s->by[1]) { /* pieces of one element, or one part: part 0 has everything */
            return left;
        }
        if (dpari_split_div(s, 0, i, &in) < s->rounds) {
            return part * s->by[1] + dpari_strided_full(s, part) - in;
        }
        left = dpari_strided_last(s, part, &local);
        return local + left - in;
    case DPAR_ZIGZAG: /* the two middle chunks touch: part P-1 has one run */
        in = dpari_zigzag_first(s, part);
        return local < in && part < s->parts - 1 ? in - local
                                                 : in + dpari_zigzag_second(s, part) - local;
    default: return dpari_split_cut(s, (int64_t)part + 1) - i;
    }
}

/* ---- the promise ---------------------------------------------------------------------------- */

DPAR_API int64_t dpar_split_size(const dpar_split *s, int32_t part)
{
    int64_t offset;
    if (!dpari_split_has(s, part)) {
        return 0;
    }
    switch (s->rule) {
    case DPAR_BLOCK_CYCLIC:
    case DPAR_STRIPE:
        return s->rounds * s->block + dpari_cyclic_last(s, dpari_cyclic_turn(s, part));
    case DPAR_STRIDED:
        return s->rounds * dpari_strided_full(s, part) + dpari_strided_last(s, part, &offset);
    case DPAR_ZIGZAG: return dpari_zigzag_first(s, part) + dpari_zigzag_second(s, part);
    default: return dpari_split_cut(s, (int64_t)part + 1) - dpari_split_cut(s, part);
    }
}

DPAR_API int64_t dpar_split_most(const dpar_split *s)
{
    int64_t most = 0;
    int32_t p;
    switch (s->rule) {
    case DPAR_FLOOR: return dpari_ceil_div(s->count, s->parts);
    case DPAR_BLOCK_CYCLIC: return dpar_split_size(s, s->source);
    case DPAR_ZIGZAG: return dpari_most(dpar_split_size(s, 0), dpar_split_size(s, s->parts - 1));
    case DPAR_RAGGED:
        for (p = 0; p < s->parts; p++) {
            most = dpari_most(most, dpar_split_size(s, p));
        }
        return most;
    default: return dpar_split_size(s, 0); /* earlier parts are never shorter */
    }
}

DPAR_API int64_t dpar_split_offset(const dpar_split *s, int32_t part)
{
    int64_t i = dpar_split_global(s, part, 0, NULL);
    return i < 0 ? s->count : i;
}

DPAR_API int32_t dpar_split_owner(const dpar_split *s, int64_t i)
{
    int64_t local;
    return i < 0 || i >= s->count ? -1 : dpari_split_find(s, i, &local);
}

/* Apart, so that those who want no run pay nothing for it. */
DPARI_APART int32_t dpari_split_find_run(const dpar_split *s, int64_t i, int64_t *local,
                                         int64_t *run)
{
    int64_t at;
    int32_t part;
    if (i < 0 || i >= s->count) {
        return -1;
    }
    part = dpari_split_find(s, i, &at);
    *run = dpari_split_run(s, part, i, at);
    if (local != NULL) {
        *local = at;
    }
    return part;
}

DPAR_API int32_t dpar_split_find(const dpar_split *s, int64_t i, int64_t *local, int64_t *run)
{
    int64_t at;
    int32_t part;
    if (run != NULL) {
        return dpari_split_find_run(s, i, local, run);
    }
    if (i < 0 || i >= s->count) {
        return -1;
    }
    part = dpari_split_find(s, i, &at);
    if (local != NULL) {
        *local = at;
    }
    return part;
}

DPAR_API int64_t dpar_split_global(const dpar_split *s, int32_t part, int64_t local, int64_t *run)
{
    int64_t i = dpari_split_has(s, part) && local >= 0 ? dpari_split_global(s, part, local) : -1;
    if (run != NULL && i >= 0) {
        *run = dpari_split_run(s, part, i, local);
    }
    return i;
}

/* Of `length` elements that begin at `start`: how many lie before i. */
static int64_t dpari_split_past(int64_t i, int64_t start, int64_t length)
{
    return i <= start ? 0 : dpari_least(i - start, length);
}

/* Of the first i elements those of `part`: what the rule would give it if there were only i, but
 * for the cuts, which stay where they are. */
DPAR_API int64_t dpar_split_before(const dpar_split *s, int32_t part, int64_t i)
{
    int64_t in, offset, piece, size, turn;
    if (!dpari_split_has(s, part) || i <= 0) {
        return 0;
    }
    i = dpari_least(i, s->count);
    switch (s->rule) {
    case DPAR_BLOCK_CYCLIC:
    case DPAR_STRIPE:
        piece = dpari_split_div(s, 1, dpari_split_div(s, 0, i, &in), &turn) * s->block;
        offset = turn - dpari_cyclic_turn(s, part);
        return piece + (offset > 0 ? s->block : offset == 0 ? in : 0);
    case DPAR_STRIDED:
        piece = dpari_split_div(s, 0, i, &in);
        size = dpari_strided_full(s, part);
        offset = part * s->by[1];
        turn = piece < s->rounds ? size : dpari_strided_last(s, part, &offset);
        return piece * size + dpari_split_past(in, offset, turn);
    case DPAR_ZIGZAG:
        size = 2 * (int64_t)s->parts - 1 - part;
        return dpari_split_past(i, dpari_zigzag_cut(s, part), dpari_zigzag_first(s, part)) +
               dpari_split_past(i, dpari_zigzag_cut(s, size), dpari_zigzag_second(s, part));
    default: return dpari_split_past(i, dpari_split_cut(s, part), dpar_split_size(s, part));
    }
}

/* ==== index/layout.c ==== */

DPAR_API dpar_placement dpar_shard_by(int32_t dim, int32_t rule, int64_t block)
{
    dpar_placement p;
    dpari_zero(&p, sizeof(p));
    p.kind = DPAR_SHARD;
    p.dim = dim;
    p.rule = rule;
    p.block = block;
    return p;
}

DPAR_API dpar_placement dpar_shard(int32_t dim)
{
    return dpar_shard_by(dim, DPAR_CHUNK, 0);
}

DPAR_API dpar_placement dpar_replicate(void)
{
    dpar_placement p;
    dpari_zero(&p, sizeof(p));
    return p;
}

DPAR_API dpar_placement dpar_partial(int32_t op)
{
    dpar_placement p;
    dpari_zero(&p, sizeof(p));
    p.kind = DPAR_PARTIAL;
    p.op = op;
    return p;
}

/* ---- making --------------------------------------------------------------------------------- */

/* The split that an axis makes of `count` elements. Checked at init: it cannot fail later. */
static void dpari_axis_split(const dpar_layout *l, int32_t axis, int64_t count, dpar_split *s)
{
    const dpar_placement *p = &l->axis[axis];
    dpari_zero(s, sizeof(*s));
    s->rule = p->rule;
    s->parts = l->mesh.axis[axis].size;
    s->block = p->rule == DPAR_STRIPE ? 1 : p->block;
    s->source = p->rule == DPAR_BLOCK_CYCLIC ? p->source : 0;
    s->cuts = p->cuts;
    dpar_split_resize(s, count);
}

/* The next axis that cuts a dim, from position k of the order on; -1: there is none. */
static int32_t dpari_next_cut(const dpar_layout *l, int32_t dim, int32_t k)
{
    for (; k < l->mesh.axes; k++) {
        const dpar_placement *p = &l->axis[l->order[k]];
        if (p->kind == DPAR_SHARD && p->dim == dim) {
            return k;
        }
    }
    return -1;
}

static dpar_status dpari_check_shard(const dpar_placement *p, int32_t axis, int32_t size,
                                     const int64_t *extent, int32_t dims, dpar_why *why)
{
    dpar_split s;
    dpar_status st;
    int32_t dim = p->dim + (p->dim < 0 ? dims : 0);
    if (p->rule != DPAR_RAGGED) {
        return dpar_split_init(&s, p->rule, extent[dim], size, p->block, p->source, why);
    }
    if (p->cuts == NULL) {
        return dpari_say(DPAR_E_ARG, why, "axis #: RAGGED needs cuts", axis, 0, 0, 0);
    }
    st = dpar_split_ragged(&s, size, p->cuts, why);
    if (st == DPAR_OK && s.count != extent[dim]) {
        return dpari_say(DPAR_E_DIVIDE, why, "the cuts end at #, dim # has # elements", s.count,
                         dim, extent[dim], 0);
    }
    return st;
}

static dpar_status dpari_check_axis(const dpar_placement *p, int32_t axis, int32_t dims,
                                    dpar_why *why)
{
    if (p->kind == DPAR_SHARD && (p->dim < -dims || p->dim >= dims)) {
        return dpari_say(DPAR_E_ARG, why, "axis # shards dim #, the array has # dims", axis, p->dim,
                         dims, 0);
    }
    if (p->kind == DPAR_PARTIAL && (p->op < DPAR_SUM || p->op >= DPAR_OPS)) {
        return dpari_say(DPAR_E_ARG, why, "axis #: op # is no reduction", axis, p->op, 0, 0);
    }
    if (p->kind < DPAR_REPLICATE || p->kind > DPAR_PARTIAL) {
        return dpari_say(DPAR_E_ARG, why, "axis #: placement # does not exist", axis, p->kind, 0,
                         0);
    }
    return DPAR_OK;
}

/* Names `order` each axis once; and is RAGGED the first cut of its dim? */
static dpar_status dpari_check_order(const dpar_placement *p, int32_t axes, int32_t dims,
                                     const int32_t *order, dpar_why *why)
{
    uint32_t seen = 0, cut = 0;
    int32_t k;
    for (k = 0; k < axes; k++) {
        int32_t axis = order != NULL ? order[k] : k, dim;
        if (axis < 0 || axis >= axes || (seen >> axis & 1u)) {
            return dpari_say(DPAR_E_ARG, why, "order[#] = #: it must name each of # axes once", k,
                             axis, axes, 0);
        }
        seen |= (uint32_t)1 << axis;
        if (p[axis].kind == DPAR_SHARD) {
            dim = p[axis].dim + (p[axis].dim < 0 ? dims : 0);
            if (p[axis].rule == DPAR_RAGGED && (cut >> dim & 1u)) {
                return dpari_say(DPAR_E_ARG, why,
                                 "axis #: RAGGED must be the first cut of its dim #", axis, dim, 0,
                                 0);
            }
            cut |= (uint32_t)1 << dim;
        }
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_layout_init(dpar_layout *l, const dpar_mesh *mesh, int32_t dims,
                                      const int64_t *extent, const dpar_placement *placement,
                                      const int32_t *order, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    if (dims < 0 || dims > DPAR_MAX_DIMS) {
        return dpari_say(DPAR_E_ARG, why, "an array has 0 to # dims, not #", DPAR_MAX_DIMS, dims, 0,
                         0);
    }
    for (i = 0; i < dims; i++) {
        if (extent[i] < 0 || extent[i] > INT64_C(1) << 62) {
            return dpari_say(extent[i] < 0 ? DPAR_E_ARG : DPAR_E_RANGE, why,
                             "dim # has # elements: 0 to 2^62 are possible", i, extent[i], 0, 0);
        }
    }
    for (i = 0; i < mesh->axes && st == DPAR_OK; i++) {
        st = dpari_check_axis(&placement[i], i, dims, why);
    }
    st = st == DPAR_OK ? dpari_check_order(placement, mesh->axes, dims, order, why) : st;
    for (i = 0; i < mesh->axes && st == DPAR_OK; i++) {
        if (placement[i].kind == DPAR_SHARD) {
            st = dpari_check_shard(&placement[i], i, mesh->axis[i].size, extent, dims, why);
        }
    }
    if (st != DPAR_OK) {
        return st;
    }
    l->mesh = *mesh;
    l->dims = dims;
    for (i = 0; i < DPAR_MAX_DIMS; i++) {
        l->extent[i] = i < dims ? extent[i] : 0;
    }
    for (i = 0; i < mesh->axes; i++) {
        l->axis[i] = placement[i];
        l->axis[i].dim += placement[i].kind == DPAR_SHARD && placement[i].dim < 0 ? dims : 0;
        l->order[i] = (int8_t)(order != NULL ? order[i] : i);
    }
    for (; i < DPAR_MAX_AXES; i++) {
        dpari_zero(&l->axis[i], sizeof(l->axis[i]));
        l->order[i] = 0;
    }
    return DPAR_OK;
}

/* ---- one dim -------------------------------------------------------------------------------- */

/* The cuts of one dim as one rank sees them: cut k splits the part that cut k - 1 gave it. */
typedef struct dpari_nest {
    int32_t n;
    int64_t size[DPAR_MAX_AXES + 1]; /* of what is left before cut k; [n]: of the rank */
    int8_t axis[DPAR_MAX_AXES];
    dpar_split split; /* the cut that is looked at */
} dpari_nest;

/* coord: the rank's coordinates; NULL when it is outside: it owns nothing. */
static void dpari_nest_of(const dpar_layout *l, const int32_t *coord, int32_t dim, dpari_nest *e)
{
    int32_t k = dpari_next_cut(l, dim, 0);
    e->n = 0;
    e->size[0] = coord != NULL ? l->extent[dim] : 0;
    for (; k >= 0 && coord != NULL; k = dpari_next_cut(l, dim, k + 1)) {
        int32_t axis = l->order[k];
        dpari_axis_split(l, axis, e->size[e->n], &e->split);
        e->axis[e->n] = (int8_t)axis;
        e->size[e->n + 1] = dpar_split_size(&e->split, coord[axis]);
        e->n++;
    }
}

/* From the innermost cut outwards. */
static int64_t dpari_nest_global(const dpar_layout *l, const int32_t *coord, dpari_nest *e,
                                 int64_t local, int64_t *run)
{
    int64_t least, here;
    int32_t k;
    if (local < 0 || local >= e->size[e->n]) {
        return -1;
    }
    least = e->size[e->n] - local;
    for (k = e->n - 1; k >= 0; k--) {
        dpari_axis_split(l, e->axis[k], e->size[k], &e->split);
        local = dpar_split_global(&e->split, coord[e->axis[k]], local, &here);
        least = dpari_least(least, here);
    }
    *run = least;
    return local;
}

static const int32_t *dpari_coords(const dpar_layout *l, int32_t rank, int32_t *coord)
{
    return dpar_mesh_coords(&l->mesh, rank, coord) ? coord : NULL;
}

/* Apart, so that its frame does not stand below the search for the coordinates. */
DPARI_APART int64_t dpari_global_at(const dpar_layout *l, const int32_t *coord, int32_t dim,
                                    int64_t local, int64_t *run)
{
    int64_t here, i;
    dpari_nest e;
    dpari_nest_of(l, coord, dim, &e);
    i = dpari_nest_global(l, coord, &e, local, &here);
    if (i >= 0 && run != NULL) {
        *run = here;
    }
    return i;
}

DPAR_API int64_t dpar_layout_global(const dpar_layout *l, int32_t rank, int32_t dim, int64_t local,
                                    int64_t *run)
{
    int32_t coord[DPAR_MAX_AXES];
    if (dim < 0 || dim >= l->dims) {
        return -1;
    }
    return dpari_global_at(l, dpari_coords(l, rank, coord), dim, local, run);
}

DPAR_API int dpar_layout_span(const dpar_layout *l, const int32_t *coord, int32_t dim, int64_t *lo,
                              int64_t *hi)
{
    int64_t run;
    dpari_nest e;
    if (dim < 0 || dim >= l->dims) {
        return 0;
    }
    dpari_nest_of(l, coord, dim, &e);
    if (e.size[e.n] == 0) {
        return 0;
    }
    *lo = dpari_nest_global(l, coord, &e, 0, &run);
    *hi = dpari_nest_global(l, coord, &e, e.size[e.n] - 1, &run) + 1;
    return 1;
}

/* From the outermost cut inwards. */
DPARI_APART int64_t dpari_before_at(const dpar_layout *l, const int32_t *coord, int32_t dim,
                                    int64_t i)
{
    int64_t size = l->extent[dim];
    int32_t k;
    dpar_split s;
    i = dpari_most(0, dpari_least(i, size));
    for (k = dpari_next_cut(l, dim, 0); k >= 0; k = dpari_next_cut(l, dim, k + 1)) {
        dpari_axis_split(l, l->order[k], size, &s);
        i = dpar_split_before(&s, coord[l->order[k]], i);
        size = dpar_split_size(&s, coord[l->order[k]]);
    }
    return i;
}

DPAR_API int64_t dpar_layout_before(const dpar_layout *l, int32_t rank, int32_t dim, int64_t i)
{
    int32_t coord[DPAR_MAX_AXES];
    if (dim < 0 || dim >= l->dims || dpari_coords(l, rank, coord) == NULL) {
        return 0;
    }
    return dpari_before_at(l, coord, dim, i);
}

DPAR_API int dpar_layout_find(const dpar_layout *l, int32_t dim, int64_t i, int32_t *coord,
                              int64_t *local, int64_t *run)
{
    int64_t least, here, count;
    int32_t k;
    dpar_split s;
    if (dim < 0 || dim >= l->dims || i < 0 || i >= l->extent[dim]) {
        return 0;
    }
    count = l->extent[dim];
    least = count - i;
    for (k = dpari_next_cut(l, dim, 0); k >= 0; k = dpari_next_cut(l, dim, k + 1)) {
        int32_t axis = l->order[k];
        dpari_axis_split(l, axis, count, &s);
        coord[axis] = dpar_split_find(&s, i, &i, &here);
        least = dpari_least(least, here);
        count = dpar_split_size(&s, coord[axis]);
    }
    if (local != NULL) {
        *local = i;
    }
    if (run != NULL) {
        *run = least;
    }
    return 1;
}

/* ---- all dims ------------------------------------------------------------------------------- */

DPARI_APART void dpari_local_at(const dpar_layout *l, const int32_t *coord, int32_t d,
                                int64_t *shape, int64_t *offset)
{
    int64_t run, first;
    dpari_nest e;
    dpari_nest_of(l, coord, d, &e);
    first = dpari_nest_global(l, coord, &e, 0, &run);
    if (shape != NULL) {
        shape[d] = e.size[e.n];
    }
    if (offset != NULL) {
        offset[d] = first < 0 ? l->extent[d] : first;
    }
}

DPAR_API void dpar_layout_local(const dpar_layout *l, int32_t rank, int64_t *shape, int64_t *offset)
{
    int32_t coord[DPAR_MAX_AXES], d;
    const int32_t *at = dpari_coords(l, rank, coord);
    for (d = 0; d < l->dims; d++) {
        dpari_local_at(l, at, d, shape, offset);
    }
}

/* Does a rule give the longest part when the whole is longest? STRIDED does not: 9 in 3 pieces over
 * 2 parts is 6 + 3, 10 is 5 + 5. (ZIGZAG does: part P - 1 of 2 P b + 1 has 2 b of them or more.) */
static int dpari_grows(const dpar_placement *p)
{
    return p->rule != DPAR_STRIDED;
}

/* The longest part over all ranks, by visiting all coordinates of the axes that cut the dim. */
static int64_t dpari_most_visited(const dpar_layout *l, int32_t dim)
{
    int32_t coord[DPAR_MAX_AXES], k = 0;
    int64_t most = 0;
    dpari_nest e;
    dpari_zero(coord, sizeof(coord));
    while (k >= 0) {
        dpari_nest_of(l, coord, dim, &e);
        most = dpari_most(most, e.size[e.n]);
        for (k = e.n - 1; k >= 0; k--) {
            int32_t axis = e.axis[k];
            if (++coord[axis] < l->mesh.axis[axis].size) {
                break;
            }
            coord[axis] = 0;
        }
    }
    return most;
}

DPAR_API void dpar_layout_padded(const dpar_layout *l, int64_t *shape)
{
    int32_t d, k, first, grows;
    for (d = 0; d < l->dims; d++) {
        shape[d] = l->extent[d];
        first = dpari_next_cut(l, d, 0);
        for (k = first, grows = 1; k >= 0; k = dpari_next_cut(l, d, k + 1)) {
            dpar_split s;
            dpari_axis_split(l, l->order[k], shape[d], &s);
            shape[d] = dpar_split_most(&s);
            grows = grows && (k == first || dpari_grows(&l->axis[l->order[k]]));
        }
        if (!grows) {
            shape[d] = dpari_most_visited(l, d);
        }
    }
}

static int64_t dpari_volume(int32_t dims, const int64_t *shape)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < dims; d++) {
        if (shape[d] == 0) {
            return 0;
        }
    }
    for (d = 0; d < dims; d++) {
        if (!dpari_mul(n, shape[d], &n)) {
            return -1;
        }
    }
    return n;
}

DPAR_API int64_t dpar_layout_numel(const dpar_layout *l, int32_t rank)
{
    int64_t shape[DPAR_MAX_DIMS];
    int32_t coord[DPAR_MAX_AXES];
    if (dpari_coords(l, rank, coord) == NULL) {
        return 0; /* also of an array without dims */
    }
    dpar_layout_local(l, rank, shape, NULL);
    return dpari_volume(l->dims, shape);
}

DPAR_API void dpar_layout_strides(const dpar_layout *l, int32_t rank, int64_t *stride)
{
    int64_t shape[DPAR_MAX_DIMS], step = 1;
    int32_t d;
    dpar_layout_local(l, rank, shape, NULL);
    for (d = l->dims - 1; d >= 0; d--) {
        stride[d] = step;
        if (!dpari_mul(step, dpari_most(1, shape[d]), &step)) {
            step = INT64_MAX;
        }
    }
}

DPAR_API void dpar_layout_strides_as(const dpar_layout *l, int32_t rank, const int64_t *whole,
                                     int64_t *stride)
{
    int64_t shape[DPAR_MAX_DIMS];
    int32_t d, k;
    dpar_layout_local(l, rank, shape, NULL);
    for (d = 0; d < l->dims; d++) {
        stride[d] = 1;
        for (k = 0; k < l->dims; k++) {
            int faster = whole[k] < whole[d] || (whole[k] == whole[d] && k > d);
            if (faster && !dpari_mul(stride[d], dpari_most(1, shape[k]), &stride[d])) {
                stride[d] = INT64_MAX;
            }
        }
    }
}

/* ---- copies --------------------------------------------------------------------------------- */

static uint32_t dpari_copy_axes(const dpar_layout *l)
{
    uint32_t set = 0;
    int32_t i;
    for (i = 0; i < l->mesh.axes; i++) {
        set |= l->axis[i].kind != DPAR_SHARD ? (uint32_t)1 << i : 0;
    }
    return set;
}

DPAR_API int32_t dpar_layout_copies(const dpar_layout *l)
{
    return dpar_mesh_group_size(&l->mesh, dpari_copy_axes(l));
}

DPAR_API int32_t dpar_layout_owner(const dpar_layout *l, const int64_t *index, int32_t copy,
                                   int64_t *local)
{
    int32_t coord[DPAR_MAX_AXES], d;
    int64_t at[DPAR_MAX_DIMS], run;
    if (copy < 0 || copy >= dpar_layout_copies(l)) {
        return -1;
    }
    dpari_zero(coord, sizeof(coord));
    for (d = 0; d < l->dims; d++) {
        if (!dpar_layout_find(l, d, index[d], coord, &at[d], &run)) {
            return -1;
        }
    }
    for (d = 0; d < l->dims && local != NULL; d++) {
        local[d] = at[d];
    }
    return dpar_mesh_group_member(&l->mesh, dpari_copy_axes(l), dpar_mesh_rank(&l->mesh, coord),
                                  copy);
}

DPAR_API int dpar_layout_is_primary(const dpar_layout *l, int32_t rank)
{
    return dpar_mesh_group_index(&l->mesh, dpari_copy_axes(l), rank) == 0;
}

/* ---- boxes ---------------------------------------------------------------------------------- */

DPAR_API int dpar_layout_next_box(const dpar_layout *l, int32_t rank, dpar_box_cursor *cursor,
                                  dpar_box *box, int64_t *at)
{
    int32_t coord[DPAR_MAX_AXES], d;
    const int32_t *where = dpari_coords(l, rank, coord);
    dpari_nest e;
    int64_t run;
    if (where == NULL || (cursor->begun && l->dims == 0)) {
        return 0;
    }
    for (d = l->dims - 1; d >= 0 && cursor->begun; d--) { /* the next run of the fastest dim */
        dpari_nest_of(l, where, d, &e);
        (void)dpari_nest_global(l, coord, &e, cursor->local[d], &run);
        cursor->local[d] += run;
        if (cursor->local[d] < e.size[e.n]) {
            break;
        }
        cursor->local[d] = 0;
        if (d == 0) {
            return 0;
        }
    }
    for (d = 0; d < l->dims; d++) {
        dpari_nest_of(l, where, d, &e);
        box->lo[d] = dpari_nest_global(l, coord, &e, cursor->local[d], &run);
        if (box->lo[d] < 0) {
            return 0; /* an empty dim */
        }
        box->hi[d] = box->lo[d] + run;
        if (at != NULL) {
            at[d] = cursor->local[d];
        }
    }
    box->dims = l->dims;
    cursor->begun = 1;
    return 1;
}

/* ---- comparing ------------------------------------------------------------------------------ */

DPAR_API int dpar_layout_same(const dpar_layout *a, const dpar_layout *b)
{
    int32_t i, d;
    if (a->dims != b->dims || !dpar_mesh_same(&a->mesh, &b->mesh)) {
        return 0;
    }
    for (i = 0; i < a->mesh.axes; i++) {
        const dpar_placement *x = &a->axis[i], *y = &b->axis[i];
        int shard = x->kind == DPAR_SHARD;
        if (x->kind != y->kind || (x->kind == DPAR_PARTIAL && x->op != y->op) ||
            (shard && (x->dim != y->dim || x->rule != y->rule || x->block != y->block ||
                       x->source != y->source || x->cuts != y->cuts))) {
            return 0;
        }
    }
    for (d = 0; d < a->dims; d++) {
        int32_t j = -1, k = -1;
        if (a->extent[d] != b->extent[d]) {
            return 0;
        }
        do { /* the same axes cut the dim, in the same order */
            j = dpari_next_cut(a, d, j + 1);
            k = dpari_next_cut(b, d, k + 1);
            if ((j < 0) != (k < 0) || (j >= 0 && a->order[j] != b->order[k])) {
                return 0;
            }
        } while (j >= 0);
    }
    return 1;
}

/* Puts `value` at list[at] of n. */
static void dpari_insert(int32_t *list, int32_t n, int32_t at, int32_t value)
{
    for (; n > at; n--) {
        list[n] = list[n - 1];
    }
    list[at] = value;
}

/* The split factor of a cut is the product of the later mesh axes that cut its dim before it does.
 * So, from the last axis to the first, each goes to the place in the order where the ones before it
 * make that product. */
DPAR_API dpar_status dpar_layout_unstride(const dpar_layout *l, int32_t *order,
                                          dpar_placement *plain, dpar_why *why)
{
    int32_t made[DPAR_MAX_AXES], i, k, n = 0;
    for (i = l->mesh.axes - 1; i >= 0; i--) {
        const dpar_placement *p = &l->axis[i];
        int64_t factor = p->kind == DPAR_SHARD && p->rule == DPAR_STRIDED ? p->block : 1,
                before = 1;
        for (k = 0; k < n && before < factor; k++) {
            const dpar_placement *q = &l->axis[made[k]];
            before *= q->kind == DPAR_SHARD && q->dim == p->dim ? l->mesh.axis[made[k]].size : 1;
        }
        if (before != factor) {
            return dpari_say(DPAR_E_NONE, why,
                             "axis # has split factor #, the later axes that shard dim # make #", i,
                             factor, p->dim, before);
        }
        dpari_insert(made, n++, k, i);
    }
    for (i = 0; i < l->mesh.axes; i++) {
        order[i] = made[i];
        plain[i] = l->axis[i];
        if (plain[i].kind == DPAR_SHARD && plain[i].rule == DPAR_STRIDED) {
            plain[i].rule = DPAR_CHUNK;
            plain[i].block = 0;
        }
    }
    return DPAR_OK;
}

/* ==== index/redistribute.c ==== */

/* Where the walk of a sender is. */
enum { DPARI_TO_NODE, DPARI_TO_ALL, DPARI_TO_ONE, DPARI_TO_OTHER, DPARI_DONE };

/* ---- checking ------------------------------------------------------------------------------- */

/* Is this Partial axis of `to` the same one in `from`? */
static int dpari_partial_stays(const dpar_layout *from, const dpar_layout *to, int32_t axis)
{
    return axis < from->mesh.axes && from->axis[axis].kind == DPAR_PARTIAL &&
           from->axis[axis].op == to->axis[axis].op &&
           from->mesh.axis[axis].size == to->mesh.axis[axis].size &&
           from->mesh.axis[axis].stride == to->mesh.axis[axis].stride &&
           from->mesh.offset == to->mesh.offset && from->mesh.axes == to->mesh.axes;
}

DPAR_API dpar_status dpar_redistribute_check(const dpar_layout *from, const dpar_layout *to,
                                             dpar_why *why)
{
    int32_t i, op = 0;
    if (from->dims != to->dims) {
        return dpari_say(DPAR_E_ARG, why, "an array of # dims cannot become one of #", from->dims,
                         to->dims, 0, 0);
    }
    for (i = 0; i < from->dims; i++) {
        if (from->extent[i] != to->extent[i]) {
            return dpari_say(DPAR_E_ARG, why, "dim # has # elements here and # there", i,
                             from->extent[i], to->extent[i], 0);
        }
    }
    for (i = 0; i < to->mesh.axes; i++) {
        if (to->axis[i].kind == DPAR_PARTIAL && !dpari_partial_stays(from, to, i) &&
            (to->axis[i].op != DPAR_SUM ||
             (i < from->mesh.axes && from->axis[i].kind == DPAR_PARTIAL))) {
            return dpari_say(DPAR_E_ARG, why,
                             "axis #: only a sum can begin, and a partial one must stay the same",
                             i, 0, 0, 0);
        }
    }
    for (i = 0; i < from->mesh.axes; i++) { /* sums and maxima do not commute */
        if (from->axis[i].kind != DPAR_PARTIAL || from->mesh.axis[i].size == 1 ||
            (i < to->mesh.axes && to->axis[i].kind == DPAR_PARTIAL &&
             dpari_partial_stays(from, to, i))) {
            continue;
        }
        if (op != 0 && from->axis[i].op != op) {
            return dpari_say(DPAR_E_ARG, why,
                             "axis # is partial by op #, another by op #: reduce one at a time", i,
                             from->axis[i].op, op, 0);
        }
        op = from->axis[i].op;
    }
    return DPAR_OK;
}

/* ---- the sets of ranks ----------------------------------------------------------------------- */

static uint32_t dpari_axes_of(const dpar_layout *l, int32_t kind)
{
    uint32_t set = 0;
    int32_t i;
    for (i = 0; i < l->mesh.axes; i++) {
        set |= l->axis[i].kind == kind ? (uint32_t)1 << i : 0;
    }
    return set;
}

/* Members ascend when each stride passes what the smaller ones reach. */
static int dpari_mesh_nested(const dpar_mesh *m)
{
    int32_t i, k;
    for (i = 0; i < m->axes; i++) {
        int64_t reach = 0;
        for (k = 0; k < m->axes; k++) {
            reach += k != i && m->axis[k].stride <= m->axis[i].stride
                         ? (int64_t)(m->axis[k].size - 1) * m->axis[k].stride
                         : 0;
        }
        if (m->axis[i].size > 1 && reach >= m->axis[i].stride) {
            return 0;
        }
    }
    return 1;
}

/* The axis in `which` of the largest stride below `below`; -1: none. */
static int32_t dpari_largest_axis(const dpar_mesh *m, uint32_t which, int64_t below)
{
    int32_t i, best = -1;
    for (i = 0; i < m->axes; i++) {
        const dpar_axis *a = &m->axis[i];
        if ((which >> i & 1u) && a->size > 1 && a->stride < below &&
            (best < 0 || a->stride > m->axis[best].stride)) {
            best = i;
        }
    }
    return best;
}

/* How many members of base's group (base has coordinate 0 there) are ranks below x; nested. */
static int32_t dpari_members_below(const dpar_mesh *m, uint32_t which, int32_t base, int64_t x)
{
    int64_t rest = x - base, below = INT64_MAX;
    int32_t count = 0, inner = dpar_mesh_group_size(m, which), i;
    while (rest > 0 && (i = dpari_largest_axis(m, which, below)) >= 0) {
        const dpar_axis *a = &m->axis[i];
        int64_t digit = rest / a->stride;
        inner /= a->size;
        if (digit >= a->size) {
            return count + a->size * inner;
        }
        count += (int32_t)digit * inner;
        rest -= digit * a->stride;
        below = a->stride;
    }
    return count + (rest > 0);
}

/* ---- which replica sends --------------------------------------------------------------------- */

static const dpar_layout *dpari_from(const dpar_transfers *w)
{
    return w->sends ? &w->mine : &w->other;
}

static const dpar_layout *dpari_to(const dpar_transfers *w)
{
    return w->sends ? &w->other : &w->mine;
}

/* Does rank q hold what the ranks at `coord` (0 on replicated axes) hold? */
static int dpari_holds(const dpar_layout *from, uint32_t replicated, const int32_t *coord,
                       int32_t q)
{
    int32_t at[DPAR_MAX_AXES], i;
    if (!dpar_mesh_coords(&from->mesh, q, at)) {
        return 0;
    }
    for (i = 0; i < from->mesh.axes; i++) {
        if ((replicated >> i & 1u) == 0 && at[i] != coord[i]) {
            return 0;
        }
    }
    return 1;
}

/* Which of the copies at `coord` may send to q: n of them from number *low on. The nearest. */
DPARI_APART int32_t dpari_pool(const dpar_transfers *w, const int32_t *coord, int32_t q,
                               int32_t *low)
{
    const dpar_mesh *m = &dpari_from(w)->mesh;
    uint32_t copies = w->free_from;
    int32_t base = dpar_mesh_rank(m, coord), n = dpar_mesh_group_size(m, copies), near_by;
    *low = 0;
    if (n == 1 || w->per_node < 0) {
        return 1;
    }
    if (dpari_holds(dpari_from(w), copies, coord, q)) {
        *low = dpar_mesh_group_index(m, copies, q);
        return 1;
    }
    if (w->per_node > 0 && w->nested) {
        int64_t node = (int64_t)(q / w->per_node) * w->per_node;
        *low = dpari_members_below(m, copies, base, node);
        near_by = dpari_members_below(m, copies, base, node + w->per_node) - *low;
        if (near_by > 0) {
            return near_by;
        }
        *low = 0;
    }
    return n;
}

/* The number of q among the receivers of its box that share a pool of n copies, and how many they
 * are: those of its node when the pool is its node's, else all. */
DPARI_APART int32_t dpari_takers(const dpar_transfers *w, int32_t q, int32_t n, int32_t *number)
{
    const dpar_mesh *m = &dpari_to(w)->mesh;
    int32_t takers = dpar_mesh_group_size(m, w->free_to), first, below;
    int64_t node;
    *number = dpar_mesh_group_index(m, w->free_to, q);
    if (n == w->copies || w->per_node < 1 || w->nested < 2) {
        return takers;
    }
    node = (int64_t)(q / w->per_node) * w->per_node;
    first = dpar_mesh_group_member(m, w->free_to, q, 0);
    below = dpari_members_below(m, w->free_to, first, node);
    *number -= below;
    return dpari_members_below(m, w->free_to, first, node + w->per_node) - below;
}

/* ---- how copies share the sending ------------------------------------------------------------ */

static int32_t dpari_gcd(int32_t a, int32_t b)
{
    while (b != 0) {
        int32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

enum { DPARI_SCATTERED, DPARI_ROWS, DPARI_EVEN_ROWS };

/* Into how many parts the axes of a layout cut dim d. *rows: does each get indices in a row, and
 * nearly as many? SCATTERED too when nothing cuts it. */
static int32_t dpari_parts_of(const dpar_layout *l, int32_t d, int32_t *rows)
{
    int32_t parts = 1, i, worst = DPARI_EVEN_ROWS;
    for (i = 0; i < l->mesh.axes; i++) {
        const dpar_placement *p = &l->axis[i];
        if (p->kind == DPAR_SHARD && p->dim == d && l->mesh.axis[i].size > 1) {
            int even = p->rule == DPAR_CHUNK || p->rule == DPAR_EVEN || p->rule == DPAR_FLOOR;
            int kind = even                     ? DPARI_EVEN_ROWS
                       : p->rule == DPAR_RAGGED ? DPARI_ROWS
                                                : DPARI_SCATTERED;
            worst = kind < worst ? kind : worst;
            parts *= l->mesh.axis[i].size;
        }
    }
    *rows = parts == 1 ? DPARI_SCATTERED : worst;
    return parts;
}

/* The dim to cut further: one that the receivers cut into rows before others, then that of the
 * longest parts; -1: none is left that can be cut. */
static int32_t dpari_share_dim(const dpar_transfers *w)
{
    int32_t d, best = -1, best_rows = 0, rows;
    for (d = 0; d < w->mine.dims; d++) {
        int64_t length = w->held[d] / w->grid[d];
        (void)dpari_parts_of(dpari_to(w), d, &rows);
        rows = rows != DPARI_SCATTERED;
        if (w->grid[d] == w->outer[d] && length > 1 &&
            (best < 0 || rows > best_rows ||
             (rows == best_rows && length > w->held[best] / w->grid[best]))) {
            best = d;
            best_rows = rows;
        }
    }
    return best;
}

/* A grid of at most `shares` parts over what the copies hold: outer parts end where the receivers'
 * boxes do, where both are rows; more parts cut these. */
static void dpari_share_grid(dpar_transfers *w, int32_t shares)
{
    int32_t d, rows, held, own, parts;
    for (d = 0; d < w->mine.dims; d++) {
        w->outer[d] = w->grid[d] = 1;
    }
    for (d = 0; d < w->mine.dims && shares > 1; d++) {
        own = dpari_parts_of(dpari_from(w), d, &held);
        parts = dpari_parts_of(dpari_to(w), d, &rows);
        if (rows == DPARI_EVEN_ROWS && (own == 1 || held != DPARI_SCATTERED)) {
            w->outer[d] = dpari_gcd(shares, parts / dpari_gcd(parts, own));
        }
        w->grid[d] = w->outer[d];
        shares /= w->outer[d];
    }
    while (shares > 1 && (d = dpari_share_dim(w)) >= 0) {
        int32_t more = (int32_t)dpari_least(shares, w->held[d] / w->outer[d]);
        w->grid[d] *= more;
        shares /= more;
    }
}

/* How many copies further whole round `round` begins, of takers / n: such that the receivers that
 * have a copy themselves, one round of them or one of each n in a row, are of all copies. */
static int32_t dpari_share_skew(int32_t n, int32_t takers, int32_t round)
{
    int32_t rounds = takers / n;
    return (int32_t)(round / (rounds / dpari_gcd(rounds, n)) % n);
}

/* Who of n copies, the first at w->copy, serves receiver `number` of `takers`. While there are as
 * many receivers as copies each copy serves one of them. Then the copies lie side by side along
 * the boxes of those that are left: evenly in each box, or in a line where that does not go. */
static void dpari_share_out(dpar_transfers *w, int32_t n, int32_t takers, int32_t number)
{
    int32_t left = takers % n;
    int64_t which = number - (takers - left), begin = which * n, end = begin + n;
    int even = number < takers - left || n % left == 0;
    w->line = -1;
    w->units = n;
    w->left = left;
    if (number < takers - left) {
        w->first = (int32_t)(((int64_t)number + dpari_share_skew(n, takers, number / n)) % n);
    } else {
        w->first = (int32_t)(begin / left);
        w->into = begin - (int64_t)w->first * left;
    }
    dpari_share_grid(w, even && number >= takers - left ? n / left : 1);
    if (!even) {
        w->line = dpari_share_dim(w);
        if (w->line >= 0) {
            w->grid[w->line] = (int32_t)((end - 1) / left) - w->first + 1;
        }
    }
}

/* Where part i of n even ones begins, and which one has index x of them. */
static int64_t dpari_even_start(int64_t size, int32_t n, int32_t i)
{
    return size / n * i + dpari_least(i, size % n);
}

static int32_t dpari_even_of(int64_t size, int32_t n, int64_t x)
{
    int64_t each = size / n, longer = size % n, beyond = longer * (each + 1);
    return (int32_t)(x < beyond ? x / (each + 1) : longer + (x - beyond) / each);
}

/* Where outer part j of dim d begins: evenly, moved to the nearest end of a receiver's box. Both
 * sides have rows: local index x is global index lead + x. */
DPARI_APART int64_t dpari_outer_start(const dpar_transfers *w, int32_t d, int32_t j)
{
    int32_t coord[DPAR_MAX_AXES];
    int64_t x = dpari_even_start(w->held[d], w->outer[d], j), there, run;
    if (x <= 0 || x >= w->held[d]) {
        return x;
    }
    (void)dpar_layout_find(dpari_to(w), d, w->lead[d] + x, coord, &there, &run);
    there = dpari_most(0, x - there);
    run = dpari_least(w->held[d], x + run);
    return x - there < run - x ? there : run;
}

/* Where share i of dim d begins, in local indices of the copies. */
static int64_t dpari_share_start(const dpar_transfers *w, int32_t d, int32_t i)
{
    int32_t more = w->grid[d] / w->outer[d];
    int64_t low, high;
    if (w->grid[d] == 1) {
        return i == 0 ? 0 : w->held[d];
    }
    if (d == w->line) { /* the line of all copies, in units of which a box has one a copy */
        int64_t unit = (int64_t)i * w->left - w->into;
        unit = dpari_most(0, dpari_least(unit, w->units));
        return w->held[d] / w->units * unit + w->held[d] % w->units * unit / w->units;
    }
    low = dpari_outer_start(w, d, i / more);
    if (i % more == 0) {
        return low;
    }
    high = dpari_outer_start(w, d, i / more + 1);
    return low + dpari_even_start(high - low, more, i % more);
}

/* Which share of dim d has local index x. */
static int32_t dpari_share_of(const dpar_transfers *w, int32_t d, int64_t x)
{
    int32_t more = w->grid[d] / w->outer[d], low = 0, high = w->grid[d], at;
    int64_t from, to;
    if (w->grid[d] == 1) {
        return 0;
    }
    if (d == w->line) {
        while (high - low > 1) {
            at = low + (high - low) / 2;
            low = dpari_share_start(w, d, at) <= x ? at : low;
            high = low == at ? high : at;
        }
        return low;
    }
    at = dpari_even_of(w->held[d], w->outer[d], x);
    while (dpari_outer_start(w, d, at) > x) {
        at--;
    }
    while (dpari_outer_start(w, d, at + 1) <= x) {
        at++;
    }
    from = dpari_outer_start(w, d, at);
    to = dpari_outer_start(w, d, at + 1);
    return at * more + dpari_even_of(to - from, more, x - from);
}

/* ---- the walk ------------------------------------------------------------------------------- */

/* The piece of dim d that begins at at[d]: as long as both sides have it in a row. */
static void dpari_walk_piece(dpar_transfers *w, int32_t d)
{
    int64_t here, there;
    w->begin[d] = dpar_layout_global(&w->mine, w->rank, d, w->at[d], &here);
    (void)dpar_layout_find(&w->other, d, w->begin[d], w->peer, &w->there[d], &there);
    w->length[d] = dpari_least(w->high[d] - w->at[d], dpari_least(here, there));
}

/* To the first box of the range; 0 when that is empty. */
static int dpari_walk_first(dpar_transfers *w)
{
    int32_t d;
    for (d = 0; d < w->mine.dims; d++) {
        if (w->low[d] >= w->high[d]) {
            return 0;
        }
    }
    for (d = 0; d < w->mine.dims; d++) {
        w->at[d] = w->low[d];
        dpari_walk_piece(w, d);
    }
    return 1;
}

/* The next box; 0 at the end. */
static int dpari_walk_box(dpar_transfers *w)
{
    int32_t d;
    for (d = w->mine.dims - 1; d >= 0; d--) {
        w->at[d] += w->length[d];
        if (w->at[d] < w->high[d]) {
            dpari_walk_piece(w, d);
            return 1;
        }
        w->at[d] = w->low[d];
        dpari_walk_piece(w, d);
    }
    return 0;
}

/* A Partial axis of `to` that is not one of `from`: coordinate 0 alone receives. */
static int dpari_takes(const dpar_transfers *w, int32_t rank)
{
    const dpar_layout *from = dpari_from(w), *to = dpari_to(w);
    int32_t at[DPAR_MAX_AXES], i;
    (void)dpar_mesh_coords(&to->mesh, rank, at);
    for (i = 0; i < to->mesh.axes; i++) {
        if (to->axis[i].kind == DPAR_PARTIAL && at[i] != 0 && !dpari_partial_stays(from, to, i)) {
            return 0;
        }
    }
    return 1;
}

/* Which ranks a sender serves one by one: this one, and those of its node that are of `to` when not
 * all of its copies lie there. */
static void dpari_walk_node(dpar_transfers *w)
{
    const dpar_mesh *m = &w->mine.mesh, *to = &w->other.mesh;
    int64_t last = to->offset, node, end;
    int32_t i, base = dpar_mesh_rank(m, w->base);
    w->node = w->rank;
    w->mates = 1;
    if (w->per_node < 2 || !w->nested || !w->state) {
        return;
    }
    node = (int64_t)(w->rank / w->per_node) * w->per_node;
    end = node + w->per_node;
    if (dpari_members_below(m, w->free_from, base, end) -
            dpari_members_below(m, w->free_from, base, node) ==
        w->copies) {
        return;
    }
    for (i = 0; i < to->axes; i++) {
        last += (int64_t)(to->axis[i].size - 1) * to->axis[i].stride;
    }
    node = dpari_most(node, to->offset);
    w->node = (int32_t)node;
    w->mates = (int32_t)dpari_most(0, dpari_least(end, last + 1) - node);
}

/* Makes `rank` the one whose array of `mine` is walked. */
static void dpari_stand(dpar_transfers *w, int32_t rank)
{
    const dpar_layout *from = dpari_from(w), *to = dpari_to(w);
    int32_t i;
    w->rank = rank;
    w->state =
        dpar_mesh_coords(&w->mine.mesh, rank, w->coord) && (w->sends || dpari_takes(w, rank));
    for (i = 0; i < w->mine.mesh.axes && w->state; i++) { /* sums that stay: the same coordinate */
        int stays = i < to->mesh.axes && to->axis[i].kind == DPAR_PARTIAL &&
                    dpari_partial_stays(from, to, i);
        w->peer[i] = stays ? w->coord[i] : 0;
        w->base[i] = w->free_from >> i & 1u ? 0 : w->coord[i];
    }
    dpar_layout_local(&w->mine, rank, w->high, w->lead);
    for (i = 0; i < w->mine.dims; i++) {
        w->low[i] = 0;
        w->held[i] = w->high[i];
    }
    w->fresh = 1;
}

DPAR_API dpar_status dpar_transfers_begin(dpar_transfers *w, const dpar_layout *from,
                                          const dpar_layout *to, int32_t rank, int32_t direction,
                                          int32_t per_node, dpar_why *why)
{
    dpar_status st = dpar_redistribute_check(from, to, why);
    int32_t i;
    if (st != DPAR_OK) {
        return st;
    }
    if (per_node < DPAR_PRIMARY || (direction != DPAR_RECEIVES && direction != DPAR_SENDS)) {
        return dpari_say(DPAR_E_ARG, why, "# ranks a node, direction #", per_node, direction, 0, 0);
    }
    dpari_zero(w, sizeof(*w));
    w->sends = direction == DPAR_SENDS;
    w->mine = w->sends ? *from : *to;
    w->other = w->sends ? *to : *from;
    w->per_node = per_node;
    if (dpari_mesh_nested(&from->mesh)) { /* 1: nodes count; 2: and their takers are in a row */
        w->nested = 1 + dpari_mesh_nested(&to->mesh);
    }
    w->free_from = dpari_axes_of(from, DPAR_REPLICATE);
    w->free_to = dpari_axes_of(to, DPAR_REPLICATE);
    for (i = 0; i < from->mesh.axes; i++) { /* sums and maxima do not meet: checked */
        int stays = i < to->mesh.axes && to->axis[i].kind == DPAR_PARTIAL &&
                    dpari_partial_stays(from, to, i);
        if (from->axis[i].kind == DPAR_PARTIAL && !stays) {
            w->part_from |= (uint32_t)1 << i;
            w->combine = from->mesh.axis[i].size > 1 ? from->axis[i].op : w->combine;
        }
    }
    w->copies = dpar_mesh_group_size(&from->mesh, w->free_from);
    w->partials = dpar_mesh_group_size(&from->mesh, w->part_from);
    dpari_stand(w, rank);
    w->phase = w->copies == 1 || per_node < 0 ? DPARI_TO_ALL : DPARI_TO_NODE;
    w->me = w->sends ? rank : -1;
    dpari_walk_node(w);
    return DPAR_OK;
}

/* ---- receiving: the boxes, from each partial rank, from each copy that has a share ---------- */

/* The share of the box that lies in part share[] of the copies' grid. */
static void dpari_cut_box(dpar_transfers *w)
{
    int32_t d;
    for (d = 0; d < w->mine.dims; d++) {
        int64_t from = dpari_share_start(w, d, w->share[d]);
        int64_t to = dpari_share_start(w, d, w->share[d] + 1);
        w->cut[d] = dpari_most(w->there[d], from);
        w->cut_length[d] = dpari_least(w->there[d] + w->length[d], to) - w->cut[d];
    }
}

/* Who sends the box: the copies of one partial rank, and in how many shares. */
static void dpari_begin_shares(dpar_transfers *w)
{
    const dpar_mesh *m = &w->other.mesh;
    int32_t i, n, holder, number = 0, takers = 1;
    for (i = 0; i < m->axes; i++) {
        w->base[i] = w->peer[i]; /* 0 on axes that do not shard */
    }
    holder = dpar_mesh_group_member(m, w->part_from, dpar_mesh_rank(m, w->base), w->partial);
    (void)dpar_mesh_coords(m, holder, w->base);
    n = dpari_pool(w, w->base, w->rank, &w->copy);
    if (n > 1) {
        takers = dpari_takers(w, w->rank, n, &number);
    }
    dpar_layout_local(&w->other, holder, w->held, n > 1 ? w->lead : NULL);
    dpari_share_out(w, n, takers, number);
    w->copy += w->first;
    for (i = 0; i < w->mine.dims; i++) {
        w->share[i] = dpari_share_of(w, i, w->there[i]);
    }
}

/* The next share that meets the box, the last dim fastest; 0 at the end. */
static int dpari_next_share(dpar_transfers *w)
{
    int32_t d;
    for (d = w->mine.dims - 1; d >= 0; d--) {
        int64_t end = w->there[d] + w->length[d];
        int64_t next = dpari_share_start(w, d, w->share[d] + 1);
        if (next < end) {
            w->share[d] = dpari_share_of(w, d, next); /* past those that are empty */
            return 1;
        }
        w->share[d] = dpari_share_of(w, d, w->there[d]);
    }
    return 0;
}

static int dpari_next_receive(dpar_transfers *w)
{
    int32_t d, number = 0;
    if (w->fresh) {
        w->fresh = 0;
        if (!dpari_walk_first(w)) {
            return 0;
        }
        dpari_begin_shares(w);
    } else if (!dpari_next_share(w)) {
        if (++w->partial == w->partials) {
            w->partial = 0;
            if (!dpari_walk_box(w)) {
                return 0;
            }
        }
        dpari_begin_shares(w);
    }
    for (d = 0; d < w->mine.dims; d++) {
        number = number * w->grid[d] + w->share[d];
    }
    w->now = dpar_mesh_group_member(&w->other.mesh, w->free_from,
                                    dpar_mesh_rank(&w->other.mesh, w->base), w->copy + number);
    w->op = w->partial == 0 ? DPAR_COPY : w->combine;
    dpari_cut_box(w);
    return 1;
}

/* ---- sending: to the ranks of the node one by one, then to all others ----------------------- */

/* The range of the walk: what the rank sends of the box of receiver `number` of `takers`, when it
 * is copy `me` of n. 0: nothing. */
static int dpari_range(dpar_transfers *w, int32_t n, int32_t takers, int32_t number, int32_t me)
{
    int32_t d, at;
    dpari_share_out(w, n, takers, number);
    at = me - w->first;
    if (at < 0) {
        return 0;
    }
    for (d = w->mine.dims - 1; d >= 0; d--) {
        int32_t i = at % w->grid[d];
        at /= w->grid[d];
        w->low[d] = dpari_share_start(w, d, i);
        w->high[d] = dpari_share_start(w, d, i + 1);
    }
    return at == 0;
}

/* Narrows local ranges of `rank` of a layout to what lies between the first and the last index of
 * the ranks at coord[] of another. Their elements. */
static int64_t dpari_meet(const dpar_layout *l, int32_t rank, const dpar_layout *other,
                          const int32_t *coord, int64_t *low, int64_t *high)
{
    int64_t size = 1, from, to;
    int32_t d;
    for (d = 0; d < l->dims; d++) {
        if (!dpar_layout_span(other, coord, d, &from, &to)) {
            return 0;
        }
        low[d] = dpari_most(low[d], dpar_layout_before(l, rank, d, from));
        high[d] = dpari_least(high[d], dpar_layout_before(l, rank, d, to));
        if (low[d] >= high[d]) {
            return 0;
        }
        size = dpari_mul(size, high[d] - low[d], &size) ? size : INT64_MAX;
    }
    return size;
}

/* Sender becomes receiver, `rank` of the other layout, and back. */
DPARI_APART void dpari_turn_round(dpar_transfers *w, int32_t rank)
{
    int32_t d;
    for (d = 0; d < (int32_t)sizeof(dpar_layout); d++) {
        char *mine = (char *)&w->mine + d, *other = (char *)&w->other + d, c = *mine;
        *mine = *other;
        *other = c;
    }
    w->sends = !w->sends;
    w->partial = 0;
    dpari_stand(w, rank);
    for (d = 0; d < w->mine.dims && !w->sends; d++) { /* as dpari_range_to found them */
        w->low[d] = w->at[d];
        w->high[d] = w->begin[d];
    }
}

/* The range for one rank of the node: this rank's share, as far as it reaches what q takes. Where
 * that is scattered in it the walk is to turn, to q's own elements: taker is -1. */
static int dpari_range_to(dpar_transfers *w, int32_t q)
{
    int32_t low, n, takers, number, me, d;
    int64_t here;
    if (!dpar_mesh_coords(&w->other.mesh, q, w->guest) || !dpari_takes(w, q)) {
        return 0;
    }
    n = dpari_pool(w, w->base, q, &low);
    takers = dpari_takers(w, q, n, &number);
    me = dpar_mesh_group_index(&w->mine.mesh, w->free_from, w->me) - low;
    if (n == w->copies || me < 0 || me >= n) {
        return 0; /* no copy is near: q is among all others */
    }
    if (n == 1) { /* who has it himself takes it all */
        takers = 1;
        number = 0;
    }
    if (!dpari_range(w, n, takers, number, me)) {
        return 0;
    }
    here = dpari_meet(&w->mine, w->rank, &w->other, w->guest, w->low, w->high);
    dpar_layout_local(&w->other, q, w->begin, NULL);
    for (d = 0; d < w->mine.dims; d++) {
        w->at[d] = 0;
    }
    w->taker = dpari_meet(&w->other, q, &w->mine, w->coord, w->at, w->begin) < here ? -1 : 0;
    w->takers = 1;
    return here > 0;
}

/* To the next rank of the node (or this one alone) that takes something; 0: all were asked. */
DPARI_APART int dpari_next_mate(dpar_transfers *w)
{
    while (w->phase == DPARI_TO_NODE) {
        if (w->mate == w->mates) {
            w->phase = DPARI_TO_ALL;
        } else if (dpari_range_to(w, w->node + w->mate++)) {
            return 1;
        }
    }
    return 0;
}

/* To the next range, perhaps an empty one, for receivers of anywhere: all that take whole boxes,
 * then the one or two that take a share. 0 at the end. */
DPARI_APART int dpari_next_phase(dpar_transfers *w)
{
    int32_t me = dpar_mesh_group_index(&w->mine.mesh, w->free_from, w->rank);
    int32_t takers = dpar_mesh_group_size(&w->other.mesh, w->free_to), d;
    int32_t n = w->per_node < 0 ? 1 : w->copies, left = takers % n;
    if (w->phase == DPARI_TO_ALL) {
        w->phase = me < n ? DPARI_TO_ONE : DPARI_DONE;
        w->around = 1;
        w->taker = 0;
        w->takers = me < n ? takers / n : 0; /* one in each n */
        for (d = 0; d < w->mine.dims; d++) {
            w->low[d] = 0;
            w->high[d] = w->held[d];
        }
        if (w->takers > 0) {
            return 1;
        }
    }
    while (left > 0 && (w->phase == DPARI_TO_ONE || w->phase == DPARI_TO_OTHER)) {
        int64_t first = (int64_t)me * left / n, last = ((int64_t)(me + 1) * left - 1) / n;
        w->around = 0;
        w->taker = takers - left + (int32_t)(w->phase == DPARI_TO_ONE ? first : last);
        w->takers = w->taker + 1;
        w->phase = w->phase == DPARI_TO_ONE && last > first ? DPARI_TO_OTHER : DPARI_DONE;
        if (dpari_range(w, n, takers, w->taker, me)) {
            return 1;
        }
    }
    return 0;
}

/* The next receiver of the box; -1: not this one. */
static int32_t dpari_next_taker(dpar_transfers *w)
{
    const dpar_mesh *m = &w->other.mesh;
    int32_t first = dpar_mesh_rank(m, w->peer), q, low, n; /* peer: 0 on axes that do not shard */
    int64_t number = w->copy++;
    if (w->phase == DPARI_TO_NODE) {
        q = w->node + w->mate - 1;
        return dpar_mesh_group_member(m, w->free_to, q, 0) == first ? q : -1;
    }
    if (w->around) { /* as dpari_share_out deals them */
        int32_t me = dpar_mesh_group_index(&w->mine.mesh, w->free_from, w->rank);
        int32_t skew;
        n = w->per_node < 0 ? 1 : w->copies;
        skew = dpari_share_skew(n, dpar_mesh_group_size(m, w->free_to), (int32_t)number);
        number = number * n + (me + n - skew) % n;
    }
    q = dpar_mesh_group_member(m, w->free_to, first, (int32_t)number);
    /* who has a copy nearer takes it from there */
    return w->copies == 1 || w->per_node < 0 || dpari_pool(w, w->base, q, &low) == w->copies ? q
                                                                                             : -1;
}

/* The box to each of the receivers that take it from this rank. 0 too when the walk is to turn. */
static int dpari_next_send(dpar_transfers *w)
{
    for (;;) {
        if (w->fresh) {
            if ((!dpari_next_mate(w) && !dpari_next_phase(w)) || w->taker < 0) {
                return 0;
            }
            w->copy = w->taker;
            w->fresh = !dpari_walk_first(w);
            continue;
        }
        while (w->copy < w->takers) {
            w->now = dpari_next_taker(w);
            if (w->now >= 0) {
                int first = dpar_mesh_group_index(&w->mine.mesh, w->part_from, w->rank) == 0;
                w->op = first ? DPAR_COPY : w->combine;
                return 1;
            }
        }
        w->copy = w->taker;
        w->fresh = !dpari_walk_box(w);
    }
}

/* To the next transfer. A sender that walks what another receives takes what comes from itself. */
static int dpari_walk_on(dpar_transfers *w)
{
    while (w->state) {
        if (w->sends) {
            if (dpari_next_send(w)) {
                return 1;
            }
            w->state = w->taker < 0;
            if (w->state) {
                dpari_turn_round(w, w->node + w->mate - 1);
            }
        } else if (!dpari_next_receive(w)) {
            if (w->me < 0) {
                w->state = 0;
            } else {
                dpari_turn_round(w, w->me);
            }
        } else if (w->me < 0 || w->now == w->me) {
            return 1;
        }
    }
    return 0;
}

DPAR_API int dpar_transfers_next(dpar_transfers *w, dpar_transfer *t)
{
    int32_t d, turned;
    if (!dpari_walk_on(w)) {
        return 0;
    }
    turned = w->me >= 0 && !w->sends;
    dpari_zero(t, sizeof(*t));
    t->peer = turned ? w->rank : w->now;
    t->dims = w->mine.dims;
    t->op = w->op;
    for (d = 0; d < w->mine.dims; d++) {
        int64_t skip = w->sends ? 0 : w->cut[d] - w->there[d];
        t->extent[d] = w->sends ? w->length[d] : w->cut_length[d];
        t->mine[d] = (turned ? w->there[d] : w->at[d]) + skip;
        t->theirs[d] = (turned ? w->at[d] : w->there[d]) + skip;
        t->global[d] = w->begin[d] + skip;
    }
    return 1;
}

static void dpari_add_most(int64_t *sum, int64_t n)
{
    *sum = n > INT64_MAX - *sum ? INT64_MAX : *sum + n;
}

/* Adds the transfer that was reached. */
DPARI_APART void dpari_walk_add(const dpar_transfers *w, dpar_transfer_totals *sum)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < w->mine.dims; d++) {
        n = dpari_mul(n, w->sends ? w->length[d] : w->cut_length[d], &n) ? n : INT64_MAX;
    }
    sum->transfers++;
    if (w->now == w->rank) {
        dpari_add_most(&sum->kept, n);
    } else if (w->per_node > 0 && w->now / w->per_node == w->rank / w->per_node) {
        dpari_add_most(&sum->near_by, n);
    } else {
        dpari_add_most(&sum->away, n);
    }
}

DPAR_API void dpar_transfers_total(dpar_transfers *w, dpar_transfer_totals *sum)
{
    dpari_zero(sum, sizeof(*sum));
    while (dpari_walk_on(w)) {
        dpari_walk_add(w, sum);
    }
}

DPAR_API int64_t dpar_redistribute_peak(const dpar_layout *from, const dpar_layout *to,
                                        int32_t rank)
{
    int64_t a = dpar_layout_numel(from, rank), b = dpar_layout_numel(to, rank);
    return a < 0 || b < 0 || a > INT64_MAX - b ? -1 : a + b;
}

/* ---- reduce first --------------------------------------------------------------------------- */

/* The axes of a set cut the dim of the longest parts, after all that cuts it already. */
static void dpari_put_on_longest(const dpar_layout *l, uint32_t set, dpar_layout *out)
{
    int32_t i, longest = 0, n = 0, pass, rows;
    int64_t most = 0;
    int8_t order[DPAR_MAX_AXES];
    if (out != l) {
        *out = *l;
    }
    for (i = 0; i < l->dims; i++) {
        int64_t length = l->extent[i] / dpari_parts_of(l, i, &rows);
        longest = length > most ? i : longest;
        most = dpari_most(most, length);
    }
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < l->mesh.axes; i++) {
            int32_t axis = out->order[i];
            if ((int32_t)(set >> axis & 1u) == pass) {
                order[n++] = (int8_t)axis;
                out->axis[axis] = pass ? dpar_shard(longest) : out->axis[axis];
            }
        }
    }
    for (i = 0; i < n; i++) {
        out->order[i] = order[i];
    }
}

DPAR_API dpar_status dpar_redistribute_reduced(const dpar_layout *from, const dpar_layout *to,
                                               dpar_layout *middle)
{
    uint32_t reduces = 0;
    int32_t i;
    for (i = 0; i < from->mesh.axes; i++) {
        if (from->axis[i].kind == DPAR_PARTIAL && from->mesh.axis[i].size > 1 &&
            !(i < to->mesh.axes && to->axis[i].kind == DPAR_PARTIAL)) {
            reduces |= (uint32_t)1 << i;
        }
    }
    if (reduces == 0 || from->dims == 0 ||
        dpar_layout_copies(to) <=
            dpar_mesh_group_size(&from->mesh, dpari_axes_of(from, DPAR_REPLICATE))) {
        return DPAR_OK; /* no more of them need a sum than compute it anyway */
    }
    dpari_put_on_longest(from, reduces, middle);
    return DPAR_MORE;
}

DPAR_API dpar_status dpar_redistribute_spread(const dpar_layout *to, dpar_layout *middle)
{
    if (dpar_layout_copies(to) < 2 || to->dims == 0) {
        return DPAR_OK;
    }
    dpari_put_on_longest(to, dpari_axes_of(to, DPAR_REPLICATE), middle);
    return DPAR_MORE;
}

/* ==== index/exchange.c ==== */

/* ---- rounds --------------------------------------------------------------------------------- */

static int dpari_edge_ok(const dpar_edge *e, int32_t senders, int32_t receivers)
{
    return e->from >= 0 && e->from < senders && e->to >= 0 && e->to < receivers;
}

DPAR_API int32_t dpar_rounds_needed(const dpar_edge *edge, int64_t n, int32_t senders,
                                    int32_t receivers, int32_t *degree)
{
    int32_t *received, i, most = 0;
    int64_t k;
    if (senders < 0 || receivers < 0) {
        return -1;
    }
    received = degree + senders;
    for (i = 0; i < senders; i++) {
        degree[i] = 0;
    }
    for (i = 0; i < receivers; i++) {
        received[i] = 0;
    }
    for (k = 0; k < n; k++) {
        if (!dpari_edge_ok(&edge[k], senders, receivers)) {
            return -1;
        }
        degree[edge[k].from]++;
        received[edge[k].to]++;
        most = degree[edge[k].from] > most ? degree[edge[k].from] : most;
        most = received[edge[k].to] > most ? received[edge[k].to] : most;
    }
    return most;
}

/* The first round in which a rank is idle; `rounds` when there is none. A row holds, for each
 * round, one more than the edge that the rank has then. */
static int32_t dpari_idle(const int64_t *row, int32_t rounds)
{
    int32_t c = 0;
    while (c < rounds && row[c] != 0) {
        c++;
    }
    return c;
}

/* Puts edge k into round a. Its sender is idle in a, its receiver in b; who has a at the receiver
 * moves to b, who has b at the other end of that one moves to a, and so on: the graph has two
 * sides, so the path never comes back to the sender. */
static void dpari_color_edge(const dpar_edge *edge, int64_t k, int32_t senders, int32_t rounds,
                             int64_t *table, int32_t *round, int32_t a, int32_t b)
{
    int64_t *row = table + ((int64_t)senders + edge[k].to) * rounds;
    int receiving = 1;
    table[(int64_t)edge[k].from * rounds + a] = k + 1;
    for (;;) {
        int64_t displaced = row[a];
        int32_t swap = a;
        row[a] = k + 1;
        round[k] = a;
        if (displaced == 0) {
            return;
        }
        row[b] = displaced;
        k = displaced - 1;
        receiving = !receiving;
        row = table + (receiving ? (int64_t)senders + edge[k].to : (int64_t)edge[k].from) * rounds;
        row[a] = 0;
        a = b;
        b = swap;
    }
}

/* Are all messages inside, and no rank's more than the rounds? Counted in the first cell of each
 * rank's row, so that nothing is written before it is known. */
static dpar_status dpari_rounds_enough(const dpar_edge *edge, int64_t n, int32_t senders,
                                       int32_t receivers, int32_t rounds, int64_t *table,
                                       dpar_why *why)
{
    int64_t k;
    for (k = 0; k < n; k++) {
        int64_t *from, *to;
        if (!dpari_edge_ok(&edge[k], senders, receivers)) {
            return dpari_say(DPAR_E_ARG, why, "message # goes from # to #: that is outside", k,
                             edge[k].from, edge[k].to, 0);
        }
        from = table + (int64_t)edge[k].from * rounds;
        to = table + ((int64_t)senders + edge[k].to) * rounds;
        if (rounds == 0 || ++*from > rounds || ++*to > rounds) {
            return dpari_say(DPAR_E_ARG, why, "# rounds are too few: rank # has more messages",
                             rounds, rounds == 0 || *from > rounds ? edge[k].from : edge[k].to, 0,
                             0);
        }
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_rounds_color(const dpar_edge *edge, int64_t n, int32_t senders,
                                       int32_t receivers, int32_t rounds, int64_t *table,
                                       int32_t *round, dpar_why *why)
{
    int64_t k, cells;
    dpar_status st;
    if (n < 0 || senders < 0 || receivers < 0 || rounds < 0) {
        return dpari_say(DPAR_E_ARG, why, "# messages from # to # ranks in # rounds", n, senders,
                         receivers, rounds);
    }
    cells = ((int64_t)senders + receivers) * rounds;
    for (k = 0; k < cells; k++) {
        table[k] = 0;
    }
    st = dpari_rounds_enough(edge, n, senders, receivers, rounds, table, why);
    for (k = 0; k < cells; k += rounds) { /* no rounds: no cells */
        table[k] = 0;
    }
    for (k = 0; st == DPAR_OK && k < n; k++) {
        int32_t a = dpari_idle(table + (int64_t)edge[k].from * rounds, rounds);
        int32_t b = dpari_idle(table + ((int64_t)senders + edge[k].to) * rounds, rounds);
        dpari_color_edge(edge, k, senders, rounds, table, round, a, b);
    }
    return st;
}

/* ---- all-to-all ----------------------------------------------------------------------------- */

static int32_t dpari_wrap(int64_t value, int32_t n)
{
    return (int32_t)((value % n + n) % n);
}

static int dpari_power_of_two(int32_t n)
{
    return (n & (n - 1)) == 0;
}

static int32_t dpari_grouped_peer(int32_t n, int32_t group, int32_t rank, int32_t round)
{
    int32_t step = round % 2 ? round / 2 + 1 : n / 2 + round / 2, first = rank / group * group, to;
    int32_t members = (int32_t)dpari_least(group, n - first);
    if (round == 0) {
        return rank;
    }
    if (dpari_power_of_two(n)) {
        return rank ^ step;
    }
    if (step < group) {
        return first + dpari_wrap((int64_t)rank - first + step, members);
    }
    to = dpari_wrap((int64_t)rank + step, n);
    return to / group == rank / group ? dpari_wrap((int64_t)to + group, n) : to;
}

DPAR_API int32_t dpar_exchange_peer(int32_t order, int32_t n, int32_t group, int32_t rank,
                                    int32_t round)
{
    if (n < 1 || rank < 0 || rank >= n || round < 0 || round >= n || group < 1) {
        return -1;
    }
    switch (order) {
    case DPAR_ORDER_RING: return dpari_wrap((int64_t)rank + round, n);
    case DPAR_ORDER_XOR:
        return dpari_power_of_two(n) ? rank ^ round : dpari_wrap((int64_t)round - rank, n);
    case DPAR_ORDER_PAIRS: return dpari_wrap((int64_t)round - rank, n);
    case DPAR_ORDER_GROUPED: return dpari_grouped_peer(n, group, rank, round);
    default: return -1;
    }
}

/* ---- relabelling ---------------------------------------------------------------------------- */

/* Shortest augmenting paths (Jonker and Volgenant 1987), one part at a time. Parts and ranks count
 * from 1; 0 is the part being placed. Potentials u (parts), v (ranks) keep every reduced cost
 * cost - u - v >= 0, 0 where matched. */
typedef struct dpari_match {
    int32_t n;
    const int64_t *kept;
    int64_t *u, *v, *near_by, *state; /* state[r]: part of rank r, times 2, plus 1 when visited */
    int32_t *way;                     /* the rank before r on the path: rank_of while it works */
} dpari_match;

static int64_t dpari_match_part(const dpari_match *m, int32_t rank)
{
    return m->state[rank] / 2;
}

/* Extends the tree by the nearest rank outside; returns it. */
static int32_t dpari_match_step(dpari_match *m, int32_t rank)
{
    int64_t part = dpari_match_part(m, rank), best = INT64_MAX;
    int32_t r, next = 0;
    m->state[rank] |= 1;
    for (r = 1; r <= m->n; r++) {
        int64_t cost;
        if (m->state[r] & 1) {
            continue;
        }
        cost = -m->kept[(int64_t)(r - 1) * m->n + part - 1] - m->u[part] - m->v[r];
        if (cost < m->near_by[r]) {
            m->near_by[r] = cost;
            m->way[r - 1] = rank;
        }
        if (m->near_by[r] < best) {
            best = m->near_by[r];
            next = r;
        }
    }
    for (r = 0; r <= m->n; r++) {
        if (m->state[r] & 1) {
            m->u[dpari_match_part(m, r)] += best;
            m->v[r] -= best;
        } else {
            m->near_by[r] -= best;
        }
    }
    return next;
}

static void dpari_match_place(dpari_match *m, int32_t part)
{
    int32_t r, rank = 0, before;
    m->state[0] = 2 * (int64_t)part;
    for (r = 0; r <= m->n; r++) {
        m->near_by[r] = INT64_MAX / 2;
        m->state[r] &= ~(int64_t)1;
    }
    do {
        rank = dpari_match_step(m, rank);
    } while (dpari_match_part(m, rank) != 0);
    for (; rank != 0; rank = before) { /* along the path each rank takes the part before */
        before = m->way[rank - 1];
        m->state[rank] = 2 * dpari_match_part(m, before);
    }
}

DPAR_API dpar_status dpar_relabel(int32_t n, const int64_t *kept, int32_t *rank_of,
                                  int64_t *scratch, dpar_why *why)
{
    dpari_match m;
    int64_t k;
    int32_t i;
    if (n < 0 || n > 32768) {
        return dpari_say(DPAR_E_ARG, why, "# parts: 0 to 32768 can be matched", n, 0, 0, 0);
    }
    for (k = 0; k < (int64_t)n * n; k++) {
        if (kept[k] < 0 || kept[k] > INT64_C(1) << 46) {
            return dpari_say(DPAR_E_RANGE, why, "rank # keeps # of part #: 0 to 2^46 are possible",
                             k / n, kept[k], k % n, 0);
        }
    }
    m.n = n;
    m.kept = kept;
    m.u = scratch;
    m.v = scratch + n + 1;
    m.near_by = scratch + 2 * ((int64_t)n + 1);
    m.state = scratch + 3 * ((int64_t)n + 1);
    m.way = rank_of;
    for (k = 0; k < 4 * ((int64_t)n + 1); k++) {
        scratch[k] = 0;
    }
    for (i = 1; i <= n; i++) {
        dpari_match_place(&m, i);
    }
    for (i = 1; i <= n; i++) {
        rank_of[dpari_match_part(&m, i) - 1] = i - 1;
    }
    return DPAR_OK;
}

/* ---- coverage ------------------------------------------------------------------------------- */

static int dpari_box_empty(const dpar_box *b)
{
    int32_t d;
    for (d = 0; d < b->dims; d++) {
        if (b->hi[d] <= b->lo[d]) {
            return 1;
        }
    }
    return 0;
}

/* Heap sort of order[] by lo[dim]. */
static void dpari_sort_boxes(const dpar_box *box, int32_t n, int32_t dim, int32_t *order)
{
    int32_t start = n / 2, end = n;
    while (end > 1) {
        int32_t at, child, value;
        if (start > 0) {
            value = order[--start];
        } else {
            value = order[--end];
            order[end] = order[0];
        }
        for (at = start; (child = 2 * at + 1) < end; at = child) {
            if (child + 1 < end && box[order[child]].lo[dim] < box[order[child + 1]].lo[dim]) {
                child++;
            }
            if (box[order[child]].lo[dim] <= box[value].lo[dim]) {
                break;
            }
            order[at] = order[child];
        }
        order[at] = value;
    }
}

/* The dim along which the boxes are thinnest, in thousandths of the extent, on average. */
static int32_t dpari_thin_dim(int32_t dims, const int64_t *extent, const dpar_box *box,
                              const int32_t *order, int32_t n)
{
    int64_t least = INT64_MAX;
    int32_t d, k, best = 0;
    for (d = 0; d < dims; d++) {
        int64_t unit = dpari_most(1, extent[d] / 1000), sum = 0;
        for (k = 0; k < n; k++) {
            sum += (box[order[k]].hi[d] - box[order[k]].lo[d]) / unit;
        }
        if (sum < least) {
            least = sum;
            best = d;
        }
    }
    return best;
}

/* The first element, the last dim fastest, that no box has. A row of the last dim looks the same
 * until the first of the boxes that cross it ends: rows in between are passed over, and so on
 * outwards. */
static void dpari_first_missing(int32_t dims, const int64_t *extent, const dpar_box *box,
                                const int32_t *order, int32_t n, int64_t *at)
{
    int64_t next[DPAR_MAX_DIMS];
    int32_t d, k, in;
    for (d = 0; d < dims; d++) {
        at[d] = 0;
        next[d] = INT64_MAX;
    }
    for (;;) {
        for (k = 0, in = 0; k < n && !in; k++) {
            const dpar_box *b = &box[order[k]];
            for (d = 0, in = 1; d < dims; d++) {
                in = in && at[d] >= b->lo[d] && at[d] < b->hi[d];
            }
            for (d = 0; d < dims && in; d++) {
                next[d] = dpari_least(next[d], b->hi[d]);
            }
        }
        if (!in) {
            return;
        }
        for (d = dims - 1; d >= 0; d--) {
            at[d] = next[d];
            next[d] = INT64_MAX;
            if (at[d] < extent[d]) {
                break;
            }
            at[d] = 0;
        }
        if (d < 0) {
            return;
        }
    }
}

static dpar_status dpari_cover_gap(int32_t dims, const int64_t *extent, const dpar_box *box,
                                   const int32_t *order, int32_t n, int64_t missing, dpar_why *why)
{
    int64_t at[DPAR_MAX_DIMS];
    dpari_first_missing(dims, extent, box, order, n, at);
    if (dims == 1) {
        return dpari_say(DPAR_E_ARG, why, "# elements are in no box: the first is #", missing,
                         at[0], 0, 0);
    }
    if (dims == 2) {
        return dpari_say(DPAR_E_ARG, why, "# elements are in no box: the first is (#, #)", missing,
                         at[0], at[1], 0);
    }
    return dpari_say(DPAR_E_ARG, why, "# elements are in no box: the first begins (#, #, #)",
                     missing, dims > 0 ? at[0] : 0, dims > 1 ? at[1] : 0, dims > 2 ? at[2] : 0);
}

DPAR_API dpar_status dpar_boxes_cover(int32_t dims, const int64_t *extent, const dpar_box *box,
                                      int32_t n, int32_t *order, dpar_why *why)
{
    dpar_box whole, both;
    int64_t left;
    int32_t d, i, j, dim, used = 0;
    if (dims < 0 || dims > DPAR_MAX_DIMS || n < 0) {
        return dpari_say(DPAR_E_ARG, why, "# boxes of # dims: at least 0, and 0 to # dims", n, dims,
                         DPAR_MAX_DIMS, 0);
    }
    dpari_zero(&whole, sizeof(whole));
    whole.dims = dims;
    for (d = 0; d < dims; d++) {
        whole.hi[d] = extent[d];
        if (extent[d] < 0) {
            return dpari_say(DPAR_E_ARG, why, "extent[#] = # is negative", d, extent[d], 0, 0);
        }
    }
    left = dpar_box_volume(&whole);
    if (left < 0) {
        return dpari_say(DPAR_E_RANGE, why, "the array has more than 2^63 - 1 elements", 0, 0, 0,
                         0);
    }
    for (i = 0; i < n; i++) {
        if (box[i].dims != dims) {
            return dpari_say(DPAR_E_ARG, why, "box # has # dims, the array #", i, box[i].dims, dims,
                             0);
        }
        if (dpari_box_empty(&box[i])) {
            continue;
        }
        for (d = 0; d < dims; d++) {
            if (box[i].lo[d] < 0 || box[i].hi[d] > extent[d]) {
                return dpari_say(DPAR_E_ARG, why,
                                 "box # is not inside: indices # to # of a dim of #", i,
                                 box[i].lo[d], box[i].hi[d] - 1, extent[d]);
            }
        }
        order[used++] = i;
    }
    dim = dpari_thin_dim(dims, extent, box, order, used);
    dpari_sort_boxes(box, dims > 0 ? used : 0, dim, order);
    for (i = 0; i < used; i++) {
        const dpar_box *a = &box[order[i]];
        left -= dpar_box_volume(a);
        for (j = i + 1; j < used && (dims == 0 || box[order[j]].lo[dim] < a->hi[dim]); j++) {
            if (dpar_box_intersect(a, &box[order[j]], &both)) {
                return dpari_say(DPAR_E_ARG, why, "boxes # and # both have # elements",
                                 dpari_least(order[i], order[j]), dpari_most(order[i], order[j]),
                                 dpar_box_volume(&both), 0);
            }
        }
    }
    return left == 0 ? DPAR_OK : dpari_cover_gap(dims, extent, box, order, used, left, why);
}

/* ==== index/route.c ==== */

DPAR_API const char *dpar_step_name(int32_t kind)
{
    switch (kind) {
    case DPAR_STEP_SLICE: return "slice";
    case DPAR_STEP_START_SUM: return "start-sum";
    case DPAR_STEP_ALL_GATHER: return "all-gather";
    case DPAR_STEP_ALL_TO_ALL: return "all-to-all";
    case DPAR_STEP_REDUCE_SCATTER: return "reduce-scatter";
    case DPAR_STEP_ALL_REDUCE: return "all-reduce";
    case DPAR_STEP_SWAP: return "swap";
    case DPAR_STEP_PERMUTE: return "permute";
    default: return "?";
    }
}

/* ---- states --------------------------------------------------------------------------------- */

/* A layout as a number: a byte an axis; high half the dim that it cuts, or R or P, low half its
 * place among the cuts of that dim, 0 the major one. */
enum { DPARI_STATE_R = 15, DPARI_STATE_P = 14 };

static int32_t dpari_state_dim(uint64_t state, int32_t axis)
{
    return (int32_t)(state >> (8 * axis + 4) & 15u);
}

static int32_t dpari_state_place(uint64_t state, int32_t axis)
{
    return (int32_t)(state >> (8 * axis) & 15u);
}

static uint64_t dpari_state_put(uint64_t state, int32_t axis, int32_t dim, int32_t place)
{
    state &= ~((uint64_t)255 << (8 * axis));
    return state | (uint64_t)(uint32_t)(16 * dim + place) << (8 * axis);
}

static int32_t dpari_state_cuts(uint64_t state, int32_t axes, int32_t dim)
{
    int32_t i, n = 0;
    for (i = 0; i < axes; i++) {
        n += dpari_state_dim(state, i) == dim;
    }
    return n;
}

/* Axes of size 1 do nothing: they count as replicated. */
static dpar_status dpari_state_of(const dpar_layout *l, uint64_t *state, dpar_why *why)
{
    uint64_t s = 0;
    int32_t k;
    for (k = 0; k < l->mesh.axes; k++) {
        s = dpari_state_put(s, k, DPARI_STATE_R, 0);
    }
    for (k = 0; k < l->mesh.axes; k++) {
        int32_t axis = l->order[k];
        const dpar_placement *p = &l->axis[axis];
        if (l->mesh.axis[axis].size == 1 || p->kind == DPAR_REPLICATE) {
            continue;
        }
        if (p->kind == DPAR_SHARD && p->rule != DPAR_CHUNK) {
            return dpari_say(DPAR_E_ARG, why, "axis # shards by rule #: routes are for CHUNK", axis,
                             p->rule, 0, 0);
        }
        s = p->kind == DPAR_PARTIAL
                ? dpari_state_put(s, axis, DPARI_STATE_P, 0)
                : dpari_state_put(s, axis, p->dim, dpari_state_cuts(s, l->mesh.axes, p->dim));
    }
    *state = s;
    return DPAR_OK;
}

/* Padded elements of a dim under the cuts of a state. */
static int64_t dpari_state_extent(const dpar_layout *l, uint64_t state, int32_t dim)
{
    int64_t n = l->extent[dim];
    int32_t place, i;
    for (place = 0; place < l->mesh.axes; place++) {
        for (i = 0; i < l->mesh.axes; i++) {
            if (dpari_state_dim(state, i) == dim && dpari_state_place(state, i) == place) {
                n = dpari_ceil_div(n, l->mesh.axis[i].size);
            }
        }
    }
    return n;
}

static int64_t dpari_state_elements(const dpar_layout *l, uint64_t state)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < l->dims; d++) { /* 0 as soon as one is empty, past the most too */
        if (!dpari_mul(n, dpari_state_extent(l, state, d), &n)) {
            n = INT64_MAX;
        }
    }
    return n;
}

/* Are both cut into equal tiles of the same shape? Then tiles only change ranks. */
static int dpari_state_tiles(const dpar_layout *l, uint64_t a, uint64_t b)
{
    int32_t d, i;
    for (d = 0; d < l->dims; d++) {
        int64_t parts_a = 1, parts_b = 1;
        for (i = 0; i < l->mesh.axes; i++) {
            parts_a *= dpari_state_dim(a, i) == d ? l->mesh.axis[i].size : 1;
            parts_b *= dpari_state_dim(b, i) == d ? l->mesh.axis[i].size : 1;
        }
        if (parts_a != parts_b || l->extent[d] % parts_a != 0) {
            return 0;
        }
    }
    for (i = 0; i < l->mesh.axes; i++) {
        if ((dpari_state_dim(a, i) == DPARI_STATE_P) != (dpari_state_dim(b, i) == DPARI_STATE_P)) {
            return 0;
        }
    }
    return 1;
}

/* The state after a step, which is known to be possible. */
static uint64_t dpari_state_step(uint64_t state, int32_t axes, const dpar_route_step *p,
                                 uint64_t goal)
{
    if (p->kind == DPAR_STEP_PERMUTE) {
        return goal;
    }
    if (p->kind == DPAR_STEP_SWAP) {
        uint64_t a = state >> (8 * p->axis) & 255u, b = state >> (8 * p->to) & 255u;
        return state ^ (a ^ b) << (8 * p->axis) ^ (a ^ b) << (8 * p->to);
    }
    state = dpari_state_put(state, p->axis,
                            p->kind == DPAR_STEP_START_SUM ? DPARI_STATE_P : DPARI_STATE_R, 0);
    return p->to < 0 ? state
                     : dpari_state_put(state, p->axis, p->to, dpari_state_cuts(state, axes, p->to));
}

/* ---- search --------------------------------------------------------------------------------- */

typedef struct dpari_route {
    const dpar_layout *l;
    const int64_t *byte_cost;
    int64_t step_cost;
    uint64_t goal;
    dpar_route_node *node; /* n are known; the first `heaped` `heap`s are a heap of node numbers */
    int32_t n, room, heaped;
} dpari_route;

/* Slot s of the heap holds node k. */
static void dpari_heap_put(dpari_route *r, int32_t s, int32_t k)
{
    r->node[s].heap = k;
    r->node[k].slot = s;
}

static int64_t dpari_heap_cost(const dpari_route *r, int32_t s)
{
    return r->node[r->node[s].heap].cost;
}

static void dpari_heap_rise(dpari_route *r, int32_t s, int32_t k)
{
    while (s > 0 && dpari_heap_cost(r, (s - 1) / 2) > r->node[k].cost) {
        dpari_heap_put(r, s, r->node[(s - 1) / 2].heap);
        s = (s - 1) / 2;
    }
    dpari_heap_put(r, s, k);
}

static int32_t dpari_heap_pop(dpari_route *r)
{
    int32_t top = r->node[0].heap, last = r->node[--r->heaped].heap, s = 0, child;
    for (; (child = 2 * s + 1) < r->heaped; s = child) {
        if (child + 1 < r->heaped && dpari_heap_cost(r, child + 1) < dpari_heap_cost(r, child)) {
            child++;
        }
        if (dpari_heap_cost(r, child) >= r->node[last].cost) {
            break;
        }
        dpari_heap_put(r, s, r->node[child].heap);
    }
    dpari_heap_put(r, s, last);
    r->node[top].slot = -1; /* settled */
    return top;
}

/* The node of a state: found, or made; -1 when there is no room. Open addressing in the `hash`es.
 */
static int32_t dpari_route_find(dpari_route *r, uint64_t state)
{
    uint64_t mixed = (state ^ state >> 29) * UINT64_C(0x9e3779b97f4a7c15);
    int32_t at = (int32_t)((mixed >> 33) % (uint64_t)(uint32_t)r->room);
    while (r->node[at].hash != 0) {
        int32_t k = r->node[at].hash - 1;
        if (r->node[k].state == state) {
            return k;
        }
        at = at + 1 < r->room ? at + 1 : 0;
    }
    if (r->n + 1 >= r->room) { /* one stays empty, so that searching ends */
        return -1;
    }
    r->node[at].hash = r->n + 1;
    r->node[r->n].state = state;
    r->node[r->n].cost = -1;
    return r->n++;
}

/* n elements at a price each; saturates far below what sums of it could overflow. */
static int64_t dpari_route_price(int64_t n, int64_t each)
{
    int64_t price;
    return dpari_mul(n, each, &price) && price < INT64_MAX / 1024 ? price : INT64_MAX / 1024;
}

/* What goes to each of `size` ranks when a dim of the state is cut further, padded. */
static int64_t dpari_state_chunk(const dpar_layout *l, uint64_t state, int32_t dim, int64_t size)
{
    int64_t n = dpari_state_elements(l, state), extent = dpari_state_extent(l, state, dim);
    return extent > 0 ? n / extent * dpari_ceil_div(extent, size) : 0;
}

static int64_t dpari_route_moved(const dpari_route *r, uint64_t state, const dpar_route_step *p)
{
    int64_t n = dpari_state_elements(r->l, state), size;
    if (p->kind == DPAR_STEP_SLICE || p->kind == DPAR_STEP_START_SUM) {
        return 0;
    }
    if (p->kind == DPAR_STEP_PERMUTE || p->kind == DPAR_STEP_SWAP) {
        return n;
    }
    size = r->l->mesh.axis[p->axis].size;
    switch (p->kind) {
    case DPAR_STEP_ALL_GATHER: return dpari_route_price(n, size - 1);
    case DPAR_STEP_ALL_REDUCE: return 2 * (n - n / size);
    default: return dpari_route_price(dpari_state_chunk(r->l, state, p->to, size), size - 1);
    }
}

static int64_t dpari_route_each(const dpari_route *r, int32_t axis)
{
    int64_t most = 0;
    int32_t i;
    if (r->byte_cost == NULL) {
        return 1;
    }
    for (i = 0; i < r->l->mesh.axes; i++) {
        most = r->l->mesh.axis[i].size > 1 ? dpari_most(most, r->byte_cost[i]) : most;
    }
    return axis >= 0 ? r->byte_cost[axis] : most;
}

/* A step from node k; 0 when there is no room for where it leads. */
static int dpari_route_try(dpari_route *r, int32_t k, int32_t kind, int32_t axis, int32_t from,
                           int32_t to)
{
    dpar_route_step p;
    int64_t cost;
    int32_t next;
    p.kind = kind;
    p.axis = axis;
    p.from = from;
    p.to = to;
    p.elements = dpari_route_moved(r, r->node[k].state, &p);
    /* sixteenths: one for the step, so that of equal costs the shorter route is taken */
    cost = r->node[k].cost + 1 +
           16 * (dpari_route_price(p.elements,
                                   dpari_route_each(r, kind == DPAR_STEP_SWAP ? -1 : axis)) +
                 (p.elements > 0 ? r->step_cost : 0));
    next = dpari_route_find(r, dpari_state_step(r->node[k].state, r->l->mesh.axes, &p, r->goal));
    if (next < 0) {
        return 0;
    }
    if (r->node[next].cost >= 0 && r->node[next].cost <= cost) {
        return 1;
    }
    if (r->node[next].cost < 0) {
        r->node[next].slot = r->heaped++;
    }
    r->node[next].cost = cost;
    r->node[next].before = k;
    r->node[next].step = p;
    dpari_heap_rise(r, r->node[next].slot, next);
    return 1;
}

/* All steps of one axis. */
static int dpari_route_axis(dpari_route *r, int32_t k, int32_t axis)
{
    uint64_t state = r->node[k].state;
    int32_t at = dpari_state_dim(state, axis), d, ok = 1, axes = r->l->mesh.axes;
    if (r->l->mesh.axis[axis].size == 1) {
        return 1;
    }
    if (at < DPAR_MAX_DIMS &&
        dpari_state_place(state, axis) + 1 < dpari_state_cuts(state, axes, at)) {
        return 1; /* not the innermost */
    }
    for (d = 0; d < r->l->dims && ok; d++) {
        int32_t kind = at == DPARI_STATE_R   ? DPAR_STEP_SLICE
                       : at == DPARI_STATE_P ? DPAR_STEP_REDUCE_SCATTER
                                             : DPAR_STEP_ALL_TO_ALL;
        ok = d == at || dpari_route_try(r, k, kind, axis, at < DPAR_MAX_DIMS ? at : -1, d);
    }
    if (at == DPARI_STATE_P) {
        ok = ok && dpari_route_try(r, k, DPAR_STEP_ALL_REDUCE, axis, -1, -1);
    } else if (at != DPARI_STATE_R) {
        ok = ok && dpari_route_try(r, k, DPAR_STEP_ALL_GATHER, axis, at, -1);
    } else if (dpari_state_dim(r->goal, axis) == DPARI_STATE_P) {
        ok = ok && dpari_route_try(r, k, DPAR_STEP_START_SUM, axis, -1, -1);
    }
    return ok;
}

/* Does a dim have equal tiles under a state? What is no dim (replicated) has. */
static int dpari_state_even(const dpar_layout *l, uint64_t state, int32_t dim)
{
    int64_t parts = 1;
    int32_t i;
    for (i = 0; i < l->mesh.axes; i++) {
        parts *= dpari_state_dim(state, i) == dim ? l->mesh.axis[i].size : 1;
    }
    return dim >= DPAR_MAX_DIMS || l->extent[dim] % parts == 0;
}

/* Exchanges of an axis with a later one. */
static int dpari_route_swaps(dpari_route *r, int32_t k, int32_t axis)
{
    uint64_t state = r->node[k].state;
    int32_t a = dpari_state_dim(state, axis), b, i, ok = 1;
    for (i = axis + 1; i < r->l->mesh.axes && ok; i++) {
        b = dpari_state_dim(state, i);
        if ((a == b && a < DPAR_MAX_DIMS) ||
            (a != b && r->l->mesh.axis[axis].size == r->l->mesh.axis[i].size &&
             a != DPARI_STATE_P && b != DPARI_STATE_P)) {
            ok = !dpari_state_even(r->l, state, a) || !dpari_state_even(r->l, state, b) ||
                 dpari_route_try(r, k, DPAR_STEP_SWAP, axis, a < DPAR_MAX_DIMS ? a : -1, i);
        }
    }
    return ok;
}

static dpar_status dpari_route_search(dpari_route *r, uint64_t start, int32_t *end)
{
    int32_t k = dpari_route_find(r, start), axis;
    r->node[k].cost = 0;
    r->node[k].before = -1;
    r->node[k].slot = r->heaped++;
    dpari_heap_put(r, 0, k);
    while (r->heaped > 0) {
        k = dpari_heap_pop(r);
        if (r->node[k].state == r->goal) {
            *end = k;
            return DPAR_OK;
        }
        if (dpari_state_tiles(r->l, r->node[k].state, r->goal) &&
            !dpari_route_try(r, k, DPAR_STEP_PERMUTE, -1, -1, -1)) {
            return DPAR_E_ROOM;
        }
        for (axis = 0; axis < r->l->mesh.axes; axis++) {
            if (!dpari_route_axis(r, k, axis) || !dpari_route_swaps(r, k, axis)) {
                return DPAR_E_ROOM;
            }
        }
    }
    return DPAR_E_NONE;
}

static dpar_status dpari_route_ends(const dpar_layout *from, const dpar_layout *to, uint64_t *start,
                                    uint64_t *goal, dpar_why *why)
{
    int32_t i;
    dpar_status st;
    if (!dpar_mesh_same(&from->mesh, &to->mesh) || from->dims != to->dims) {
        return dpari_say(DPAR_E_ARG, why, "a route stays on one mesh, with one number of dims", 0,
                         0, 0, 0);
    }
    for (i = 0; i < from->dims; i++) {
        if (from->extent[i] != to->extent[i]) {
            return dpari_say(DPAR_E_ARG, why, "dim # has # elements here and # there", i,
                             from->extent[i], to->extent[i], 0);
        }
    }
    st = dpari_state_of(from, start, why);
    return st == DPAR_OK ? dpari_state_of(to, goal, why) : st;
}

DPAR_API dpar_status dpar_route(const dpar_layout *from, const dpar_layout *to,
                                const int64_t *byte_cost, int64_t step_cost, dpar_route_step *steps,
                                int32_t room, int32_t *count, dpar_route_node *nodes,
                                int32_t node_room, dpar_why *why)
{
    dpari_route r;
    uint64_t start;
    int32_t k, end = 0, n = 0;
    dpar_status st;
    dpari_zero(&r, sizeof(r));
    st = dpari_route_ends(from, to, &start, &r.goal, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (node_room < 2 || step_cost < 0 || step_cost > INT32_MAX) {
        return dpari_say(DPAR_E_ARG, why, "# nodes, a step costs #", node_room, step_cost, 0, 0);
    }
    r.l = from;
    r.byte_cost = byte_cost;
    r.step_cost = step_cost;
    r.node = nodes;
    r.room = node_room;
    dpari_zero(nodes, (size_t)node_room * sizeof(*nodes));
    st = dpari_route_search(&r, start, &end);
    if (st != DPAR_OK) {
        return dpari_say(st, why,
                         st == DPAR_E_ROOM ? "# nodes are too few for this search"
                                           : "no sequence of collectives leads there",
                         node_room, 0, 0, 0);
    }
    for (k = end; nodes[k].before >= 0; k = nodes[k].before) {
        n++;
    }
    if (n > room) {
        return dpari_say(DPAR_E_ROOM, why, "# steps, there is room for #", n, room, 0, 0);
    }
    *count = n;
    for (k = end; nodes[k].before >= 0; k = nodes[k].before) {
        steps[--n] = nodes[k].step;
    }
    return DPAR_OK;
}

/* ---- applying ------------------------------------------------------------------------------- */

DPAR_API dpar_status dpar_route_apply(const dpar_layout *l, const dpar_route_step *step,
                                      const dpar_layout *goal, dpar_layout *after, dpar_why *why)
{
    dpar_placement *p;
    int32_t axis = step->axis, k, n;
    if (step->kind == DPAR_STEP_PERMUTE) {
        *after = *goal;
        return DPAR_OK;
    }
    if (step->kind == DPAR_STEP_SWAP && axis >= 0 && axis < l->mesh.axes && step->to >= 0 &&
        step->to < l->mesh.axes) {
        *after = *l;
        after->axis[axis] = l->axis[step->to];
        after->axis[step->to] = l->axis[axis];
        for (k = 0; k < l->mesh.axes; k++) {
            after->order[k] = l->order[k] == axis       ? (int8_t)step->to
                              : l->order[k] == step->to ? (int8_t)axis
                                                        : l->order[k];
        }
        return DPAR_OK;
    }
    if (axis < 0 || axis >= l->mesh.axes || step->to >= l->dims) {
        return dpari_say(DPAR_E_ARG, why, "a step of axis # to dim #", axis, step->to, 0, 0);
    }
    *after = *l;
    p = &after->axis[axis];
    if (step->kind == DPAR_STEP_START_SUM) {
        *p = goal->axis[axis];
    } else {
        *p = step->to < 0 ? dpar_replicate() : dpar_shard(step->to);
    }
    for (k = 0, n = 0; k < l->mesh.axes; k++) { /* it cuts last */
        if (l->order[k] != axis) {
            after->order[n++] = l->order[k];
        }
    }
    after->order[n] = (int8_t)axis;
    return DPAR_OK;
}

/* a + the padded local elements of l; -1 when that does not fit. */
static int64_t dpari_route_holds(const dpar_layout *l, int64_t a)
{
    int64_t shape[DPAR_MAX_DIMS], n = 1;
    int32_t d;
    dpar_layout_padded(l, shape);
    for (d = 0; d < l->dims; d++) {
        if (shape[d] == 0) {
            return a;
        }
    }
    for (d = 0; d < l->dims; d++) {
        if (!dpari_mul(n, shape[d], &n)) {
            return -1;
        }
    }
    return a < 0 || n > INT64_MAX - a ? -1 : a + n;
}

DPAR_API int64_t dpar_route_peak(const dpar_layout *from, const dpar_layout *goal,
                                 const dpar_route_step *steps, int32_t count, dpar_layout *scratch)
{
    const dpar_layout *at = from;
    int64_t most = dpari_route_holds(from, 0);
    int32_t i;
    for (i = 0; i < count && most >= 0; i++) {
        int64_t both = dpari_route_holds(at, 0);
        if (dpar_route_apply(at, &steps[i], goal, &scratch[i & 1], NULL) != DPAR_OK) {
            return -1;
        }
        at = &scratch[i & 1];
        both = dpari_route_holds(at, both);
        most = both < 0 ? -1 : dpari_most(most, both);
    }
    return most;
}

/* ==== index/flat.c ==== */

static const int64_t dpari_flat_limit = INT64_C(1) << 62;

/* ---- laying -----------------------------------------------------------------------------------
 */

/* a rounded up to a multiple of m; 0 when that passes 2^62. */
static int dpari_round_up(int64_t a, int64_t m, int64_t *up)
{
    int64_t rest = a % m, add = rest == 0 ? 0 : m - rest;
    if (a > dpari_flat_limit || add > dpari_flat_limit - a) {
        return 0;
    }
    *up = a + add;
    return 1;
}

/* A parameter of n elements at the next multiple of align; *end moves behind it. */
static dpar_status dpari_flat_lay(int32_t i, int64_t n, int64_t align, int64_t *end, int64_t *start,
                                  dpar_why *why)
{
    int64_t at;
    if (n < 0) {
        return dpari_say(DPAR_E_ARG, why, "parameter # has # elements", i, n, 0, 0);
    }
    if (!dpari_round_up(*end, align, &at) || n > dpari_flat_limit - at) {
        return dpari_say(DPAR_E_RANGE, why, "parameter # of # elements ends past 2^62", i, n, 0, 0);
    }
    *start = at;
    *end = at + n;
    return DPAR_OK;
}

DPAR_API dpar_status dpar_flat_init(dpar_flat *f, int32_t params, const int64_t *numel,
                                    int64_t align, int32_t ranks, int64_t *start, dpar_why *why)
{
    int64_t end = 0, padded;
    int32_t i;
    if (params < 0 || align < 1 || ranks < 1) {
        return dpari_say(DPAR_E_ARG, why,
                         "# parameters of at least 0, aligned to # for # ranks, each at least 1",
                         params, align, ranks, 0);
    }
    for (i = 0; i < params; i++) {
        int64_t at;
        dpar_status st = dpari_flat_lay(i, numel[i], align, &end, &at, why);
        if (st != DPAR_OK) {
            return st;
        }
    }
    if (!dpari_round_up(end, ranks, &padded)) {
        return dpari_say(DPAR_E_RANGE, why, "# elements for # ranks pass 2^62", end, ranks, 0, 0);
    }
    f->ranks = ranks;
    f->total = end;
    f->shard = padded / ranks;
    for (i = 0, end = 0; i < params; i++) {
        (void)dpari_flat_lay(i, numel[i], align, &end, &start[i], NULL);
    }
    return DPAR_OK;
}

/* What [lo, hi) of a buffer has of a parameter. */
static int dpari_flat_cut(int64_t lo, int64_t hi, int64_t start, int64_t numel, dpar_piece *piece)
{
    int64_t from = dpari_most(lo, start), to;
    if (start < 0 || numel > INT64_MAX - start) {
        return 0;
    }
    to = dpari_least(hi, start + numel);
    if (to <= from) { /* also of fewer than 0 elements */
        return 0;
    }
    piece->count = to - from;
    piece->in_param = from - start;
    piece->in_shard = from - lo;
    piece->in_bucket = from;
    piece->in_buffer = from;
    return 1;
}

DPAR_API int dpar_flat_piece(const dpar_flat *f, int64_t start, int64_t numel, int32_t rank,
                             dpar_piece *piece)
{
    return rank >= 0 && rank < f->ranks &&
           dpari_flat_cut(rank * f->shard, rank * f->shard + f->shard, start, numel, piece);
}

/* ---- buckets -----------------------------------------------------------------------------------
 */

DPAR_API dpar_bucketing dpar_bucketing_ddp(int64_t element_bytes)
{
    dpar_bucketing how;
    dpari_zero(&how, sizeof(how));
    how.first = dpari_ceil_div(INT64_C(1) << 20, dpari_most(1, element_bytes));
    how.size = dpari_ceil_div(INT64_C(25) << 20, dpari_most(1, element_bytes));
    return how;
}

DPAR_API dpar_bucketing dpar_bucketing_megatron(int64_t size, int32_t ranks)
{
    dpar_bucketing how;
    dpari_zero(&how, sizeof(how));
    how.size = size;
    how.align = 64;
    how.multiple = 128;
    how.ranks = ranks;
    return how;
}

static int64_t dpari_common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Parameters from the last on; `start` and `bucket` are filled where they are not NULL. */
static dpar_status dpari_buckets_walk(const dpar_bucketing *how, int64_t unit, int32_t params,
                                      const int64_t *numel, int64_t *start, dpar_bucket *bucket,
                                      int32_t room, int32_t *buckets, dpar_why *why)
{
    int64_t align = dpari_most(1, how->align), lo = 0, end = 0, at;
    int32_t i, last = params, n = 0;
    for (i = params - 1; i >= 0; i--) {
        int64_t limit = n == 0 && how->first > 0 ? how->first : how->size;
        dpar_status st = dpari_flat_lay(i, numel[i], align, &end, &at, why);
        if (st != DPAR_OK) {
            return st;
        }
        if (start != NULL) {
            start[i] = at;
        }
        if (i > 0 && (limit == 0 || end - lo < limit)) {
            continue;
        }
        at = end;
        if (!dpari_round_up(end, unit, &end)) {
            return dpari_say(DPAR_E_RANGE, why, "bucket # ends past 2^62", n, 0, 0, 0);
        }
        if (bucket != NULL && n < room) {
            bucket[n].lo = lo;
            bucket[n].hi = end;
            bucket[n].used = at - lo;
            bucket[n].first = i;
            bucket[n].last = last;
        }
        n++;
        lo = end;
        last = i;
    }
    *buckets = n;
    return DPAR_OK;
}

DPAR_API dpar_status dpar_buckets_make(const dpar_bucketing *how, int32_t params,
                                       const int64_t *numel, int64_t *start, dpar_bucket *bucket,
                                       int32_t room, int32_t *buckets, dpar_why *why)
{
    int64_t ranks = how->ranks > 0 ? how->ranks : 1, unit = dpari_most(1, how->multiple);
    int32_t n = 0;
    dpar_status st;
    if (params < 0 || how->first < 0 || how->size < 0 || how->ranks < 0 || how->align < 0 ||
        how->multiple < 0) {
        return dpari_say(
            DPAR_E_ARG, why,
            "# parameters in buckets of # for # ranks, aligned to #: none may be negative", params,
            how->size, how->ranks, how->align);
    }
    if (!dpari_mul(unit / dpari_common_divisor(unit, ranks), ranks, &unit)) {
        return dpari_say(DPAR_E_RANGE, why, "multiples of # and # ranks pass 2^63", how->multiple,
                         ranks, 0, 0);
    }
    st = dpari_buckets_walk(how, unit, params, numel, NULL, NULL, 0, &n, why);
    return st != DPAR_OK
               ? st
               : dpari_buckets_walk(how, unit, params, numel, start, bucket, room, buckets, why);
}

DPAR_API int dpar_bucket_piece(const dpar_bucket *bucket, int32_t ranks, int64_t start,
                               int64_t numel, int32_t rank, dpar_piece *piece)
{
    int64_t shard, lo;
    if (rank < 0 || rank >= ranks) {
        return 0;
    }
    shard = (bucket->hi - bucket->lo) / ranks;
    lo = bucket->lo + rank * shard;
    if (!dpari_flat_cut(lo, lo + shard, start, numel, piece)) {
        return 0;
    }
    piece->in_bucket -= bucket->lo;
    return 1;
}

/* ---- intervals ---------------------------------------------------------------------------------
 */

DPAR_API int dpar_flat_next_box(int32_t dims, const int64_t *extent, int64_t *at, int64_t end,
                                dpar_box *box)
{
    int64_t rows = 1, all = 1, left, index = *at, inner;
    int32_t d, k;
    if (dims < 1 || dims > DPAR_MAX_DIMS || *at < 0) {
        return 0;
    }
    for (d = 0; d < dims; d++) {
        if (extent[d] < 1 || !dpari_mul(all, extent[d], &all)) {
            return 0;
        }
    }
    end = dpari_least(end, all);
    if (end <= *at) {
        return 0;
    }
    left = end - *at;
    for (d = dims - 1; d > 0; d--) { /* the most dims that can go whole */
        if (index % extent[d] != 0 || rows * extent[d] > left) {
            break;
        }
        rows *= extent[d];
        index /= extent[d];
    }
    box->dims = dims;
    for (k = dims - 1; k > d; k--) {
        box->lo[k] = 0;
        box->hi[k] = extent[k];
    }
    inner = dpari_least(left / rows, d > 0 ? extent[d] - index % extent[d] : left / rows);
    for (k = d; k >= 0; k--) {
        box->lo[k] = k > 0 ? index % extent[k] : index;
        box->hi[k] = box->lo[k] + (k == d ? inner : 1);
        index = k > 0 ? index / extent[k] : 0;
    }
    *at += inner * rows;
    return 1;
}

/* ==== index/heads.c ==== */

/* ---- heads -------------------------------------------------------------------------------------
 */

/* Part p of n things over parts, by the two rules: where it begins. 0 <= p <= parts. */
static int32_t dpari_heads_cut(int32_t rule, int32_t n, int32_t parts, int32_t p)
{
    int64_t each = n / parts;
    if (rule == DPAR_CHUNK) {
        return (int32_t)dpari_least(n, dpari_ceil_div(n, parts) * p);
    }
    return (int32_t)(each * p + dpari_least(p, n - each * parts));
}

/* The part of EVEN that has thing i. */
static int32_t dpari_heads_part(int32_t n, int32_t parts, int32_t i)
{
    int64_t each = n / parts, longer = n % parts, beyond = longer * (each + 1);
    return (int32_t)(i < beyond ? i / (each + 1) : longer + (i - beyond) / each);
}

DPAR_API dpar_status dpar_heads_init(dpar_heads *h, int32_t queries, int32_t groups, int32_t ranks,
                                     int32_t rule, int strict, dpar_why *why)
{
    if (queries < 1 || groups < 1 || ranks < 1 || (rule != DPAR_EVEN && rule != DPAR_CHUNK)) {
        return dpari_say(DPAR_E_ARG, why,
                         "# query heads in # groups on # ranks by rule #: 1 or more, CHUNK or EVEN",
                         queries, groups, ranks, rule);
    }
    if (queries % groups != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "# key-value heads do not divide # query heads",
                         groups, queries, 0, 0);
    }
    if (strict && (groups >= ranks ? groups % ranks != 0 : ranks % groups != 0)) {
        return dpari_say(DPAR_E_DIVIDE, why,
                         "# key-value heads and tp=#: one must be a multiple of the other", groups,
                         ranks, 0, 0);
    }
    if (strict && queries % ranks != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "tp=# does not divide # attention heads", ranks,
                         queries, 0, 0);
    }
    h->queries = queries;
    h->groups = groups;
    h->ranks = ranks;
    h->rule = rule;
    return DPAR_OK;
}

DPAR_API dpar_heads_share dpar_heads_of(const dpar_heads *h, int32_t rank)
{
    dpar_heads_share s;
    int32_t each = h->queries / h->groups, first, among;
    dpari_zero(&s, sizeof(s));
    if (rank < 0 || rank >= h->ranks) {
        return s;
    }
    if (h->groups >= h->ranks) {
        s.group = dpari_heads_cut(h->rule, h->groups, h->ranks, rank);
        s.groups = dpari_heads_cut(h->rule, h->groups, h->ranks, rank + 1) - s.group;
        s.query = s.group * each;
        s.queries = s.groups * each;
        s.copies = s.groups > 0;
    } else { /* the ranks of a group: EVEN, so that each group has some */
        s.group = dpari_heads_part(h->ranks, h->groups, rank);
        s.groups = 1;
        first = dpari_heads_cut(DPAR_EVEN, h->ranks, h->groups, s.group);
        among = dpari_heads_cut(DPAR_EVEN, h->ranks, h->groups, s.group + 1) - first;
        s.copy = rank - first;
        s.copies = among;
        s.query = dpari_heads_cut(h->rule, each, among, s.copy);
        s.queries = dpari_heads_cut(h->rule, each, among, s.copy + 1) - s.query;
        s.query += s.group * each;
    }
    return s;
}

DPAR_API void dpar_heads_most(const dpar_heads *h, int32_t *queries, int32_t *groups)
{
    int32_t rank = 0;
    if (h->groups < h->ranks) { /* the last group has the fewest ranks, its first the most */
        rank = dpari_heads_cut(DPAR_EVEN, h->ranks, h->groups, h->groups - 1);
    }
    *queries = dpar_heads_of(h, rank).queries;
    *groups = dpar_heads_of(h, 0).groups;
}

/* ---- fused weights -----------------------------------------------------------------------------
 */

DPAR_API int dpar_qkv_run(const dpar_heads *h, int32_t rank, int32_t order, int64_t width,
                          int32_t n, int64_t *lo, int64_t *hi)
{
    dpar_heads_share s = dpar_heads_of(h, rank);
    int64_t each = h->queries / h->groups, all = (int64_t)h->queries + 2 * (int64_t)h->groups;
    int64_t run[3][2];
    int32_t i, runs = 0;
    if (s.groups == 0 || width < 1 || width > INT64_MAX / all || n < 0) {
        return 0;
    }
    if (order == DPAR_QKV_BY_KIND) {
        for (i = 0; i < 3; i++) {
            run[i][0] = i == 0 ? s.query : h->queries + (i - 1) * (int64_t)h->groups + s.group;
            run[i][1] = run[i][0] + (i == 0 ? s.queries : s.groups);
        }
    } else { /* queries are cut only where a rank has one group */
        run[0][0] = s.group * (each + 2) + (s.query - s.group * each);
        run[0][1] = run[0][0] + s.queries;
        run[1][0] = s.group * (each + 2) + each;
        run[1][1] = (s.group + s.groups) * (each + 2);
        if (s.groups > 1) {
            run[0][1] = run[1][0];
        }
        run[2][0] = run[2][1] = run[1][1];
    }
    for (i = 0; i < 3; i++) { /* what touches is one */
        if (runs > 0 && run[runs - 1][1] == run[i][0]) {
            run[runs - 1][1] = run[i][1];
        } else if (run[i][1] > run[i][0]) {
            run[runs][0] = run[i][0];
            run[runs++][1] = run[i][1];
        }
    }
    if (n >= runs) {
        return 0;
    }
    *lo = run[n][0] * width;
    *hi = run[n][1] * width;
    return 1;
}

DPAR_API int64_t dpar_grain_size(int64_t size, int64_t heads, int64_t grain, int32_t ranks,
                                 int32_t rank)
{
    int64_t units, unit;
    if (size < 0 || grain < 1 || ranks < 1 || rank < 0 || rank >= ranks) {
        return -1;
    }
    if (heads > 0 && size % heads == 0) {
        return size / heads * (heads / ranks + (rank < heads % ranks));
    }
    units = size / grain;
    unit = (units / ranks + (rank < units % ranks)) * grain;
    return unit + (rank == ranks - 1 ? size % grain : 0);
}

DPAR_API dpar_status dpar_ulysses_counts(const dpar_split *seq, const dpar_split *heads,
                                         int32_t rank, int64_t width, int64_t *send,
                                         int64_t *send_at, int64_t *receive, int64_t *receive_at,
                                         dpar_why *why)
{
    int64_t all, tokens, mine, sent = 0, received = 0;
    int32_t q;
    if (seq->parts != heads->parts || rank < 0 || rank >= seq->parts || width < 1) {
        return dpari_say(DPAR_E_ARG, why,
                         "rank # of # sequence parts and # head parts, # elements a token and head",
                         rank, seq->parts, heads->parts, width);
    }
    if (!dpari_mul(seq->count, heads->count, &all) || !dpari_mul(all, width, &all)) {
        return dpari_say(DPAR_E_RANGE, why, "# tokens x # heads x # pass 2^63", seq->count,
                         heads->count, width, 0);
    }
    tokens = dpar_split_size(seq, rank);
    mine = dpar_split_size(heads, rank);
    for (q = 0; q < seq->parts; q++) {
        int64_t out = tokens * dpar_split_size(heads, q) * width;
        int64_t in = dpar_split_size(seq, q) * mine * width;
        if (send != NULL) {
            send[q] = out;
        }
        if (send_at != NULL) {
            send_at[q] = sent;
        }
        if (receive != NULL) {
            receive[q] = in;
        }
        if (receive_at != NULL) {
            receive_at[q] = received;
        }
        sent += out;
        received += in;
    }
    return DPAR_OK;
}

/* ---- vocabulary --------------------------------------------------------------------------------
 */

DPAR_API dpar_status dpar_vocab_init(dpar_vocab *v, int64_t count, int64_t added, int64_t multiple,
                                     int32_t ranks, dpar_why *why)
{
    const int64_t limit = INT64_C(1) << 61;
    int64_t padded, all;
    if (count < 0 || added < 0 || multiple < 1 || ranks < 1) {
        return dpari_say(DPAR_E_ARG, why,
                         "# and # tokens of at least 0, padded to # on # ranks, each at least 1",
                         count, added, multiple, ranks);
    }
    if (count > limit || added > limit || multiple > limit / 4) {
        return dpari_say(DPAR_E_RANGE, why, "# and # tokens padded to #: at most 2^61", count,
                         added, multiple, 0);
    }
    padded = dpari_ceil_div(count, multiple) * multiple;
    all = dpari_ceil_div(padded + added, multiple) * multiple;
    if (padded % ranks != 0 || (all - padded) % ranks != 0) {
        return dpari_say(DPAR_E_DIVIDE, why,
                         "# and # rows do not split evenly over # ranks: pad to a multiple of them",
                         padded, all - padded, ranks, 0);
    }
    v->count = count;
    v->added = added;
    v->padded = padded;
    v->padded_added = all - padded;
    v->ranks = ranks;
    return DPAR_OK;
}

DPAR_API int64_t dpar_vocab_rows(const dpar_vocab *v)
{
    return v->padded / v->ranks + v->padded_added / v->ranks;
}

DPAR_API int64_t dpar_vocab_row(const dpar_vocab *v, int32_t rank, int64_t id)
{
    int64_t each = v->padded / v->ranks, more = v->padded_added / v->ranks, row;
    if (id < 0 || id >= v->count + v->added || rank < 0 || rank >= v->ranks) {
        return -1;
    }
    if (id < v->count) {
        row = id - rank * each;
        return row >= 0 && row < each ? row : -1;
    }
    row = id - v->count - rank * more;
    return row >= 0 && row < more ? each + row : -1;
}

DPAR_API int64_t dpar_vocab_id(const dpar_vocab *v, int32_t rank, int64_t row)
{
    int64_t each = v->padded / v->ranks, more = v->padded_added / v->ranks, id;
    if (row < 0 || row >= each + more || rank < 0 || rank >= v->ranks) {
        return -1;
    }
    if (row < each) {
        id = rank * each + row;
        return id < v->count ? id : -1;
    }
    id = rank * more + row - each;
    return id < v->added ? v->count + id : -1;
}

/* ---- layers ------------------------------------------------------------------------------------
 */

/* Layers before position v of the pipeline (chunks of stages in order), embedding and loss too. */
static int64_t dpari_stage_before(const dpar_stages *s, int32_t chunks, int64_t rest, int64_t v)
{
    int64_t round = v / s->stages, in = v % s->stages, others = s->stages, plain, before;
    others -= (s->first > 0) + (s->last > 0);
    plain = round * others + dpari_most(0, in - (s->first > 0)); /* other chunks before v */
    before = others > 0
                 ? rest / (others * chunks) * plain + dpari_least(plain, rest % (others * chunks))
                 : 0;
    if (s->first > 0) {
        before += s->first / chunks * (round + (in > 0));
    }
    return before + s->last / chunks * round;
}

static dpar_status dpari_stages_check(const dpar_stages *s, int32_t chunks, int64_t rest,
                                      dpar_why *why)
{
    int32_t given = (s->first > 0) + (s->last > 0);
    if (s->layers < 0 || s->stages < 1 || chunks < 1 || s->first < 0 || s->last < 0) {
        return dpari_say(DPAR_E_ARG, why, "# layers on # stages of # chunks", s->layers, s->stages,
                         chunks, 0);
    }
    if (s->embedding < 0 || s->embedding > 1 || s->loss < 0 || s->loss > 1 || s->turns < 0 ||
        s->turns > 1) {
        return dpari_say(DPAR_E_ARG, why, "embedding=#, loss=#, turns=#: each is 0 or 1",
                         s->embedding, s->loss, s->turns, 0);
    }
    if (given > 0 && (s->turns || s->embedding || s->loss)) {
        return dpari_say(DPAR_E_ARG, why,
                         "first=#, last=#: not together with embedding, loss or turns", s->first,
                         s->last, 0, 0);
    }
    if (given > s->stages || rest < 0 || (given == s->stages && rest > 0)) {
        return dpari_say(DPAR_E_DIVIDE, why, "first=# and last=# of # layers on # stages", s->first,
                         s->last, s->layers, s->stages);
    }
    if (s->first % chunks != 0 || s->last % chunks != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "# chunks do not divide first=# and last=#", chunks,
                         s->first, s->last, 0);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_stage_layers(const dpar_stages *s, int32_t stage, int32_t chunk,
                                       int32_t *lo, int32_t *hi, dpar_why *why)
{
    int32_t chunks = s->chunks == 0 ? 1 : s->chunks;
    int64_t rest = (int64_t)s->layers + s->embedding + s->loss - s->first - s->last, v, from, to;
    dpar_status st = dpari_stages_check(s, chunks, rest, why);
    if (st == DPAR_OK && (stage < 0 || stage >= s->stages || chunk < 0 || chunk >= chunks)) {
        st = dpari_say(DPAR_E_ARG, why, "chunk # of stage #: there are # and #", chunk, stage,
                       chunks, s->stages);
    }
    if (st != DPAR_OK) {
        return st;
    }
    v = (int64_t)chunk * s->stages + (s->turns && chunk % 2 ? s->stages - 1 - stage : stage);
    from = dpari_stage_before(s, chunks, rest, v) - s->embedding;
    to = dpari_stage_before(s, chunks, rest, v + 1) - s->embedding;
    *lo = (int32_t)dpari_most(0, dpari_least(from, s->layers));
    *hi = (int32_t)dpari_most(0, dpari_least(to, s->layers));
    return DPAR_OK;
}

/* ==== index/context.c ==== */

/* ---- each document by itself --------------------------------------------------------------------
 */

static dpar_status dpari_context_ends(int32_t docs, const int64_t *ends, int32_t ranks,
                                      dpar_why *why)
{
    int32_t k;
    if (docs < 0 || ranks < 1 || ends[0] != 0) {
        return dpari_say(DPAR_E_ARG, why, "# documents that begin at # on # ranks", docs,
                         docs < 0 ? 0 : ends[0], ranks, 0);
    }
    for (k = 0; k < docs; k++) {
        if (ends[k + 1] < ends[k]) {
            return dpari_say(DPAR_E_ARG, why, "document # ends at #, the one before at #", k,
                             ends[k + 1], ends[k], 0);
        }
    }
    if (ends[docs] > INT64_C(1) << 61) {
        return dpari_say(DPAR_E_RANGE, why, "# tokens: at most 2^61", ends[docs], 0, 0, 0);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_packed_init(dpar_packed *p, int32_t docs, const int64_t *ends,
                                      int32_t ranks, int32_t rule, dpar_why *why)
{
    dpar_status st = dpari_context_ends(docs, ends, ranks, why);
    if (st == DPAR_OK && rule != DPAR_CHUNK && rule != DPAR_EVEN && rule != DPAR_ZIGZAG &&
        rule != DPAR_STRIPE) {
        st = dpari_say(DPAR_E_ARG, why, "rule #: CHUNK, EVEN, ZIGZAG or STRIPE cut documents", rule,
                       0, 0, 0);
    }
    if (st == DPAR_OK) {
        p->docs = docs;
        p->ranks = ranks;
        p->rule = rule;
        p->ends = ends;
    }
    return st;
}

DPAR_API dpar_status dpar_packed_pad(int32_t docs, const int64_t *ends, int64_t multiple,
                                     int64_t *padded, dpar_why *why)
{
    dpar_status st = dpari_context_ends(docs, ends, 1, why);
    int64_t at = 0, grown, pass;
    int32_t k;
    if (st == DPAR_OK && multiple < 1) {
        st = dpari_say(DPAR_E_ARG, why, "multiples of #: at least 1", multiple, 0, 0, 0);
    }
    for (pass = 0; st == DPAR_OK && pass < 2; pass++) { /* look, then write */
        for (k = 0, at = 0; k < docs; k++) {
            int64_t length = ends[k + 1] - ends[k];
            if (!dpari_mul(dpari_ceil_div(length, multiple), multiple, &grown) ||
                grown > (INT64_C(1) << 61) - at) {
                return dpari_say(DPAR_E_RANGE, why, "# documents padded to # pass 2^61 tokens",
                                 docs, multiple, 0, 0);
            }
            if (pass == 1) {
                padded[k] = at;
            }
            at += grown;
        }
    }
    if (st == DPAR_OK) {
        padded[docs] = at;
    }
    return st;
}

/* Document k's parts. Checked at init: it cannot fail. */
static void dpari_packed_split(const dpar_packed *p, int32_t k, dpar_split *s)
{
    (void)dpar_split_init(s, p->rule, p->ends[k + 1] - p->ends[k], p->ranks, 1, 0, NULL);
}

DPAR_API int64_t dpar_packed_size(const dpar_packed *p, int32_t rank, int64_t *local_ends)
{
    int64_t size = 0;
    int32_t k;
    dpar_split s;
    for (k = 0; k < p->docs; k++) {
        if (local_ends != NULL) {
            local_ends[k] = size;
        }
        dpari_packed_split(p, k, &s);
        size += dpar_split_size(&s, rank);
    }
    if (local_ends != NULL) {
        local_ends[k] = size;
    }
    return size;
}

/* The document that has token i: the last one that begins at or before it and is not empty. */
static int32_t dpari_packed_doc(int32_t docs, const int64_t *ends, int64_t i)
{
    int32_t low = 0, high = docs; /* ends[low] <= i < ends[high] */
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (ends[middle] <= i) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

DPAR_API int32_t dpar_packed_find(const dpar_packed *p, int64_t i, int64_t *local)
{
    int32_t doc, rank, k;
    int64_t at;
    dpar_split s;
    if (i < 0 || i >= p->ends[p->docs]) {
        return -1;
    }
    doc = dpari_packed_doc(p->docs, p->ends, i);
    dpari_packed_split(p, doc, &s);
    rank = dpar_split_find(&s, i - p->ends[doc], &at, NULL);
    for (k = 0; k < doc && local != NULL; k++) {
        dpari_packed_split(p, k, &s);
        at += dpar_split_size(&s, rank);
    }
    if (local != NULL) {
        *local = at;
    }
    return rank;
}

DPAR_API int dpar_packed_next(const dpar_packed *p, int32_t rank, dpar_packed_cursor *cursor,
                              int32_t *doc, int64_t *first, int64_t *count)
{
    dpar_split s;
    for (; cursor->doc < p->docs; cursor->doc++, cursor->local = 0) {
        int64_t at, run;
        dpari_packed_split(p, cursor->doc, &s);
        at = dpar_split_global(&s, rank, cursor->local, &run);
        if (at >= 0) {
            *doc = cursor->doc;
            *first = p->ends[cursor->doc] + at;
            *count = run;
            cursor->local += run;
            return 1;
        }
    }
    return 0;
}

/* Tokens first .. first + n - 1 of a document see first + 1, ..., first + n keys. */
static int64_t dpari_causal_pairs(int64_t first, int64_t n)
{
    int64_t most, last = n % 2 == 0 ? n / 2 : n, half = n % 2 == 0 ? n + 1 : (n + 1) / 2;
    if (!dpari_mul(first, n, &most) || !dpari_mul(last, half, &last) || last > INT64_MAX - most) {
        return INT64_MAX;
    }
    return most + last;
}

/* A stripe's tokens rank, rank + ranks, ... see rank + 1, rank + 1 + ranks, ... keys. */
static int64_t dpari_stripe_pairs(const dpar_packed *p, int32_t doc, int32_t rank)
{
    dpar_split s;
    int64_t n, steps, half, sum;
    dpari_packed_split(p, doc, &s);
    n = dpar_split_size(&s, rank);
    steps = n % 2 == 0 ? n - 1 : n; /* n (n - 1) / 2 without its product first */
    half = n % 2 == 0 ? n / 2 : (n - 1) / 2;
    if (n < 1) {
        return 0;
    }
    if (!dpari_mul(steps, half, &steps) || !dpari_mul(steps, p->ranks, &steps) ||
        !dpari_mul(n, (int64_t)rank + 1, &sum) || sum > INT64_MAX - steps) {
        return INT64_MAX;
    }
    return sum + steps;
}

DPAR_API int64_t dpar_packed_pairs(const dpar_packed *p, int32_t rank)
{
    dpar_packed_cursor cursor;
    int64_t pairs = 0, first, n, more;
    int32_t doc;
    for (doc = 0; p->rule == DPAR_STRIPE && doc < p->docs; doc++) {
        more = dpari_stripe_pairs(p, doc, rank);
        pairs = more > INT64_MAX - pairs ? INT64_MAX : pairs + more;
    }
    if (p->rule == DPAR_STRIPE) {
        return pairs;
    }
    dpari_zero(&cursor, sizeof(cursor));
    while (dpar_packed_next(p, rank, &cursor, &doc, &first, &n)) {
        more = dpari_causal_pairs(first - p->ends[doc], n);
        pairs = more > INT64_MAX - pairs ? INT64_MAX : pairs + more;
    }
    return pairs;
}

/* ---- by cost ------------------------------------------------------------------------------------
 */

/* What is sorted: units by descending cost, or by owner, equal ones by number. */
typedef struct dpari_deal {
    const int64_t *cost; /* or NULL: */
    const int32_t *owner;
} dpari_deal;

static int dpari_deal_before(const dpari_deal *by, int64_t a, int64_t b)
{
    if (by->cost != NULL && by->cost[a] != by->cost[b]) {
        return by->cost[a] > by->cost[b];
    }
    if (by->cost == NULL && by->owner[a] != by->owner[b]) {
        return by->owner[a] < by->owner[b];
    }
    return a < b;
}

static void dpari_deal_swap(int64_t *order, int64_t a, int64_t b)
{
    int64_t swap = order[a];
    order[a] = order[b];
    order[b] = swap;
}

/* Heapsort: no memory, no recursion, always n log n; the order is total, so the result is unique.
 */
static void dpari_deal_sort(const dpari_deal *by, int64_t n, int64_t *order)
{
    int64_t begin, end = n, at, child;
    for (begin = n / 2; end > 1;) {
        if (begin > 0) {
            begin--;
        } else {
            dpari_deal_swap(order, 0, --end);
        }
        for (at = begin; (child = 2 * at + 1) < end; at = child) { /* sink */
            if (child + 1 < end && dpari_deal_before(by, order[child], order[child + 1])) {
                child++;
            }
            if (!dpari_deal_before(by, order[at], order[child])) {
                break;
            }
            dpari_deal_swap(order, at, child);
        }
    }
}

DPAR_API dpar_status dpar_context_deal(int64_t units, const int64_t *cost, int32_t ranks,
                                       int32_t *owner, int64_t *order, dpar_why *why)
{
    dpari_deal by;
    int64_t i;
    if (units < 0 || ranks < 1) {
        return dpari_say(DPAR_E_ARG, why, "# units for # ranks", units, ranks, 0, 0);
    }
    if (units % ranks != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "# ranks do not divide # units", ranks, units, 0, 0);
    }
    for (i = 0; i < units; i++) {
        order[i] = i;
    }
    by.cost = cost;
    by.owner = owner;
    dpari_deal_sort(&by, units, order);
    for (i = 0; i < units; i++) {
        int32_t column = (int32_t)(i % ranks);
        owner[order[i]] = i / ranks % 2 == 0 ? column : ranks - 1 - column;
    }
    by.cost = NULL;
    dpari_deal_sort(&by, units, order);
    return DPAR_OK;
}

/* ---- contiguous slices --------------------------------------------------------------------------
 */

DPAR_API dpar_status dpar_varlen_slice(int32_t docs, const int64_t *ends, int32_t ranks,
                                       int32_t rank, int causal, dpar_varlen *v, int64_t *q_ends,
                                       int64_t *k_ends, dpar_why *why)
{
    dpar_status st = dpari_context_ends(docs, ends, ranks, why);
    dpar_varlen made;
    dpar_split s;
    int64_t q = 0, k = 0;
    int32_t j;
    if (st == DPAR_OK && (rank < 0 || rank >= ranks)) {
        st = dpari_say(DPAR_E_ARG, why, "rank # of #", rank, ranks, 0, 0);
    }
    if (st != DPAR_OK) {
        return st;
    }
    (void)dpar_split_init(&s, DPAR_CHUNK, ends[docs], ranks, 0, 0, NULL);
    dpari_zero(&made, sizeof(made));
    made.q_lo = made.q_hi = made.k_lo = made.k_hi = dpar_split_offset(&s, rank);
    made.q_hi += dpar_split_size(&s, rank);
    if (made.q_hi > made.q_lo) {
        made.first = dpari_packed_doc(docs, ends, made.q_lo);
        made.docs = dpari_packed_doc(docs, ends, made.q_hi - 1) + 1 - made.first;
        made.k_lo = ends[made.first];
        made.k_hi = causal ? made.q_hi : ends[made.first + made.docs];
    }
    for (j = 0; j <= made.docs; j++) {
        int64_t end = ends[made.first + j], q_end, k_end;
        q_end = dpari_most(0, dpari_least(end, made.q_hi) - made.q_lo);
        k_end = dpari_most(0, dpari_least(end, made.k_hi) - made.k_lo);
        made.longest_q = dpari_most(made.longest_q, j > 0 ? q_end - q : 0);
        made.longest_k = dpari_most(made.longest_k, j > 0 ? k_end - k : 0);
        q = q_end;
        k = k_end;
        if (q_ends != NULL) {
            q_ends[j] = q;
        }
        if (k_ends != NULL) {
            k_ends[j] = k;
        }
    }
    *v = made;
    return DPAR_OK;
}

/* ==== index/halo.c ==== */

/* ---- judging --------------------------------------------------------------------------------- */

static const int64_t dpari_halo_limit = INT64_C(1) << 60;

static dpar_status dpari_halo_check_dim(const dpar_halo *h, int32_t d, dpar_why *why)
{
    int32_t i;
    if (h->low[d] < 0 || h->high[d] < 0 || h->low[d] > dpari_halo_limit ||
        h->high[d] > dpari_halo_limit) {
        return dpari_say(DPAR_E_RANGE, why, "dim # has halos of # and #: 0 to 2^60 are possible", d,
                         h->low[d], h->high[d], 0);
    }
    if (h->grid.extent[d] > dpari_halo_limit) {
        return dpari_say(DPAR_E_RANGE, why, "dim # has # cells: at most 2^60", d, h->grid.extent[d],
                         0, 0);
    }
    if ((h->periodic >> d & 1u) != 0 && h->grid.extent[d] > 0 &&
        dpari_most(h->low[d], h->high[d]) / 16 >= h->grid.extent[d]) {
        return dpari_say(DPAR_E_RANGE, why,
                         "dim # has halos of # and # around # points: 16 times round at most", d,
                         h->low[d], h->high[d], h->grid.extent[d]);
    }
    if (h->points[d] < DPAR_AT_CELLS || h->points[d] > DPAR_AT_HIGH_FACES) {
        return dpari_say(DPAR_E_ARG, why, "dim #: points # do not exist", d, h->points[d], 0, 0);
    }
    for (i = 0; i < h->grid.mesh.axes; i++) {
        const dpar_placement *p = &h->grid.axis[i];
        if (p->kind == DPAR_SHARD && p->dim == d && p->rule != DPAR_CHUNK && p->rule != DPAR_EVEN &&
            p->rule != DPAR_FLOOR && p->rule != DPAR_RAGGED) {
            return dpari_say(
                DPAR_E_ARG, why,
                "axis # cuts dim # by rule #: a halo needs blocks in one piece (CHUNK, "
                "EVEN, FLOOR, RAGGED)",
                i, d, p->rule, 0);
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_halo_check_fold(const dpar_halo *h, dpar_why *why)
{
    if (h->fold < 0 || h->mirror >= h->grid.dims || h->mirror <= h->fold) {
        return dpari_say(DPAR_E_ARG, why, "dim # folds, dim # is mirrored: a later one of # dims",
                         h->fold, h->mirror, h->grid.dims, 0);
    }
    if ((h->periodic >> h->mirror & 1u) == 0 || (h->periodic >> h->fold & 1u) != 0) {
        return dpari_say(DPAR_E_ARG, why,
                         "dim # is mirrored and must be periodic, dim # folds and must not be",
                         h->mirror, h->fold, 0, 0);
    }
    if (h->on_row < 0 || h->on_row > 1 || h->shift < -1 || h->shift > 1) {
        return dpari_say(DPAR_E_ARG, why, "on_row is 0 or 1, not #; shift -1 to 1, not #",
                         h->on_row, h->shift, 0, 0);
    }
    if (h->high[h->fold] > dpar_halo_points(h, h->fold) - h->on_row) {
        return dpari_say(DPAR_E_RANGE, why, "a halo of # over the fold, behind it there are # rows",
                         h->high[h->fold], dpar_halo_points(h, h->fold) - h->on_row, 0, 0);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_halo_check(const dpar_halo *h, dpar_why *why)
{
    int32_t d;
    dpar_status st = DPAR_OK;
    if (h->shape != DPAR_STENCIL_STAR && h->shape != DPAR_STENCIL_BOX) {
        return dpari_say(DPAR_E_ARG, why, "shape #: there are stars and boxes", h->shape, 0, 0, 0);
    }
    if (h->periodic >> h->grid.dims != 0) {
        return dpari_say(DPAR_E_ARG, why, "periodic is #, the grid has # dims", h->periodic,
                         h->grid.dims, 0, 0);
    }
    for (d = 0; d < h->grid.dims && st == DPAR_OK; d++) {
        st = dpari_halo_check_dim(h, d, why);
    }
    return st == DPAR_OK && h->folds ? dpari_halo_check_fold(h, why) : st;
}

/* ---- points and their owners ------------------------------------------------------------------
 */

/* One more point than cells? */
static int dpari_halo_more(const dpar_halo *h, int32_t d)
{
    return h->points[d] != DPAR_AT_CELLS && (h->periodic >> d & 1u) == 0;
}

DPAR_API int64_t dpar_halo_points(const dpar_halo *h, int32_t dim)
{
    int64_t cells = h->grid.extent[dim];
    return cells > 0 ? cells + dpari_halo_more(h, dim) : 0;
}

/* Cells [at[0], at[1]) own which points? */
static void dpari_halo_of_cells(const dpar_halo *h, int32_t d, int64_t *at)
{
    if (!dpari_halo_more(h, d)) {
        return;
    }
    if (h->points[d] == DPAR_AT_LOW_FACES) {
        at[1] += at[1] == h->grid.extent[d];
    } else {
        at[0] += at[0] > 0;
        at[1] += 1;
    }
}

/* The owner of point i: the coordinates of the axes that cut the dim, and what it owns. */
static void dpari_halo_owner(const dpar_halo *h, int32_t d, int64_t i, int32_t *coord, int64_t *at)
{
    int64_t local, run, cell = i;
    if (dpari_halo_more(h, d)) {
        cell = h->points[d] == DPAR_AT_LOW_FACES ? dpari_least(i, h->grid.extent[d] - 1)
                                                 : dpari_most(i - 1, 0);
    }
    (void)dpar_layout_find(&h->grid, d, cell, coord, &local, &run);
    at[0] = cell - local;
    at[1] = cell + run;
    dpari_halo_of_cells(h, d, at);
}

static int dpari_halo_own(const dpar_halo *h, int32_t rank, int32_t *coord, int64_t (*own)[2])
{
    int32_t d;
    if (!dpar_mesh_coords(&h->grid.mesh, rank, coord)) {
        return 0;
    }
    for (d = 0; d < h->grid.dims; d++) {
        if (!dpar_layout_span(&h->grid, coord, d, &own[d][0], &own[d][1])) {
            return 0;
        }
        dpari_halo_of_cells(h, d, own[d]);
    }
    return 1;
}

/* ---- boxes ------------------------------------------------------------------------------------
 */

DPAR_API int dpar_halo_owned(const dpar_halo *h, int32_t rank, dpar_box *box)
{
    int32_t coord[DPAR_MAX_AXES], d;
    int64_t own[DPAR_MAX_DIMS][2];
    if (!dpari_halo_own(h, rank, coord, own)) {
        return 0;
    }
    box->dims = h->grid.dims;
    for (d = 0; d < box->dims; d++) {
        box->lo[d] = own[d][0];
        box->hi[d] = own[d][1];
    }
    return 1;
}

DPAR_API int dpar_halo_box(const dpar_halo *h, int32_t rank, dpar_box *box)
{
    int32_t d;
    if (!dpar_halo_owned(h, rank, box)) {
        return 0;
    }
    for (d = 0; d < box->dims; d++) {
        box->lo[d] -= h->low[d];
        box->hi[d] += h->high[d];
    }
    return 1;
}

/* The owned points [own[0], own[1]) of a dim without the sides where an exchange brings something.
 */
static void dpari_halo_shrink(const dpar_halo *h, int32_t d, const int64_t *own, int64_t *core)
{
    int64_t end = dpar_halo_points(h, d);
    int wraps = (int)(h->periodic >> d & 1u), folds = h->folds && h->fold == d;
    core[0] = own[0] + (wraps || own[0] > 0 ? h->low[d] : 0);
    core[1] = own[1] - (wraps || folds || own[1] < end ? h->high[d] : 0);
    if (folds && h->on_row && own[1] == end) { /* the row that is there twice arrives too */
        core[1] = dpari_least(core[1], end - 1 - h->high[d]);
    }
    core[0] = dpari_least(core[0], own[1]);
    core[1] = dpari_most(core[1], core[0]);
}

DPAR_API int dpar_halo_core(const dpar_halo *h, int32_t rank, dpar_box *box)
{
    int32_t coord[DPAR_MAX_AXES], d;
    int64_t own[DPAR_MAX_DIMS][2], core[DPAR_MAX_DIMS][2];
    if (!dpari_halo_own(h, rank, coord, own)) {
        return 0;
    }
    for (d = 0; d < h->grid.dims; d++) {
        dpari_halo_shrink(h, d, own[d], core[d]);
        if (core[d][0] == core[d][1]) {
            return 0;
        }
    }
    box->dims = h->grid.dims;
    for (d = 0; d < box->dims; d++) {
        box->lo[d] = core[d][0];
        box->hi[d] = core[d][1];
    }
    return 1;
}

/* Slabs below and above the core, dim by dim: earlier dims cut to the core, later ones whole. */
DPAR_API int dpar_halo_rim(const dpar_halo *h, int32_t rank, int32_t n, dpar_box *box)
{
    int32_t coord[DPAR_MAX_AXES], d, k, side;
    int64_t rest[DPAR_MAX_DIMS][2], core[2];
    if (!dpari_halo_own(h, rank, coord, rest)) {
        return 0;
    }
    for (d = 0; d < h->grid.dims; d++) {
        dpari_halo_shrink(h, d, rest[d], core);
        for (side = 0; side < 2; side++) {
            int64_t lo = side ? core[1] : rest[d][0], hi = side ? rest[d][1] : core[0];
            if (hi <= lo || n < 0 || n-- > 0) {
                continue;
            }
            box->dims = h->grid.dims;
            for (k = 0; k < box->dims; k++) {
                box->lo[k] = k == d ? lo : rest[k][0];
                box->hi[k] = k == d ? hi : rest[k][1];
            }
            return 1;
        }
        rest[d][0] = core[0];
        rest[d][1] = core[1];
        if (core[0] == core[1]) {
            return 0;
        }
    }
    return 0;
}

/* ---- one dim of the walk ----------------------------------------------------------------------
 */

/* A receiver's points are passed twice: first what arrives as it is, then what comes over the fold.
 * In a dim they fall into segments, each with one owner, the same on both sides of the receiver's
 * own bounds, and without a wrap inside. */

enum { DPARI_PLAIN, DPARI_FOLDED };

/* The row that the walk is at: beyond the fold, on it, or neither. */
static int dpari_halo_beyond(const dpar_halo_walk *w)
{
    const dpar_halo *h = w->h;
    return w->x[h->fold] >= dpar_halo_points(h, h->fold);
}

static int dpari_halo_on_seam(const dpar_halo_walk *w)
{
    const dpar_halo *h = w->h;
    return h->folds && h->on_row && w->x[h->fold] == dpar_halo_points(h, h->fold) - 1;
}

/* The columns [at[0], at[1]) of the row on the fold that are images: of each pair the later one. */
static void dpari_halo_second_half(const dpar_halo *h, int64_t *at)
{
    int64_t columns = dpar_halo_points(h, h->mirror);
    at[0] = h->shift > 0 ? columns / 2 + 1 : (columns - 1 + h->shift) / 2 + 1;
    at[1] = h->shift > 0 ? columns : columns + h->shift;
}

/* Point i of a ring, and how many follow it before the end. */
static int64_t dpari_halo_ring(int64_t i, int64_t points)
{
    return i - dpari_floor_div(i, points) * points;
}

/* n points go against the order from `first` down, all in what `first`'s owner has. */
static int64_t dpari_halo_backwards(dpar_halo_walk *w, int32_t d, int64_t first, int64_t n,
                                    int32_t *coord)
{
    int64_t at[2];
    dpari_halo_owner(w->h, d, first, coord, at);
    n = dpari_least(n, first - at[0] + 1);
    w->g[d] = first - n + 1;
    w->source[d] = at[0];
    w->reversed |= (uint32_t)1 << d;
    return n;
}

static int64_t dpari_halo_forwards(dpar_halo_walk *w, int32_t d, int64_t first, int64_t n,
                                   int32_t *coord)
{
    int64_t at[2];
    dpari_halo_owner(w->h, d, first, coord, at);
    w->g[d] = first;
    w->source[d] = at[0];
    return dpari_least(n, at[1] - first);
}

/* A column of a row beyond the fold or on it. 0: not in this pass. */
static int dpari_halo_column(dpar_halo_walk *w, int64_t n, int32_t *coord)
{
    const dpar_halo *h = w->h;
    int32_t d = h->mirror;
    int64_t columns = dpar_halo_points(h, d), i = dpari_halo_ring(w->x[d], columns), half[2], to;
    int image = 1;
    n = dpari_least(n, columns - i);
    if (!dpari_halo_beyond(w)) {
        dpari_halo_second_half(h, half);
        image = i >= half[0] && i < half[1];
        n = image ? dpari_least(n, half[1] - i) : i < half[0] ? dpari_least(n, half[0] - i) : n;
    }
    w->n[d] = n;
    if (image != (w->pass == DPARI_FOLDED)) {
        return 0;
    }
    if (!image) {
        w->n[d] = dpari_halo_forwards(w, d, i, n, coord);
        return 1;
    }
    to = dpari_halo_ring(columns - 1 + h->shift - i, columns);
    w->n[d] = dpari_halo_backwards(w, d, to, n, coord);
    return 1;
}

/* The segment at x[d]: sets n, g, source, bits and the source's coordinates. 0: nothing arrives. */
static int dpari_halo_segment(dpar_halo_walk *w, int32_t d, int32_t *coord)
{
    const dpar_halo *h = w->h;
    int64_t x = w->x[d], points = dpar_halo_points(h, d), lo = w->at[d][0], hi = w->at[d][1], n;
    int inside = x >= lo && x < hi;
    n = (x < lo ? lo : inside ? hi : hi + h->high[d]) - x;
    w->inside &= ~((uint32_t)1 << d);
    w->inside |= (uint32_t)inside << d;
    w->reversed &= ~((uint32_t)1 << d);
    if (h->folds && d == h->fold && x >= points) {
        w->n[d] = n;
        if (w->pass == DPARI_FOLDED) {
            w->n[d] = dpari_halo_backwards(w, d, 2 * (points - 1) + 1 - h->on_row - x, n, coord);
        }
        return w->pass == DPARI_FOLDED;
    }
    if (h->folds && d == h->fold && x + n >= points) {
        n = x == points - 1 ? 1 : points - 1 - x; /* the last row stands alone */
    }
    if (h->folds && d == h->mirror && (dpari_halo_beyond(w) || dpari_halo_on_seam(w))) {
        return dpari_halo_column(w, n, coord);
    }
    w->n[d] = n;
    if (h->folds && d == h->fold && w->pass == DPARI_FOLDED && !dpari_halo_on_seam(w)) {
        return 0; /* rows that have no image over the fold */
    }
    if (h->periodic >> d & 1u) {
        x = dpari_halo_ring(x, points);
    } else if (x < 0 || x >= points) {
        w->n[d] = x < 0 ? dpari_least(n, -x) : n;
        return 0;
    }
    w->n[d] = dpari_halo_forwards(w, d, x, n, coord);
    return 1;
}

/* ---- the walk over one receiver ---------------------------------------------------------------
 */

/* A star has nothing outside in two dims: 1 when an earlier dim is outside. */
static int dpari_halo_only_inside(const dpar_halo_walk *w, int32_t d)
{
    uint32_t earlier = ((uint32_t)1 << d) - 1;
    return w->h->shape == DPAR_STENCIL_STAR && (~w->inside & earlier) != 0;
}

/* Where a dim's segments begin. */
static void dpari_halo_enter(dpar_halo_walk *w, int32_t d)
{
    w->x[d] = w->at[d][0] - (dpari_halo_only_inside(w, d) ? 0 : w->h->low[d]);
}

/* From a segment that another rank has to where the sender's own points come next; wide halos pass
 * many. Folded grids go segment by segment. */
static int64_t dpari_halo_skip(const dpar_halo_walk *w, int32_t d)
{
    int64_t ahead = w->own[d][0] - w->g[d];
    if (w->h->folds) {
        return w->n[d];
    }
    if (ahead < 0) {
        ahead += w->h->periodic >> d & 1u ? dpar_halo_points(w->h, d) : 2 * dpari_halo_limit;
    }
    return ahead;
}

/* From x[d] on, the next segment that counts: any, or for a sender one whose source it is. */
static int dpari_halo_seek(dpar_halo_walk *w, int32_t d)
{
    int64_t end = w->at[d][1] + (dpari_halo_only_inside(w, d) ? 0 : w->h->high[d]);
    int32_t other[DPAR_MAX_AXES];
    while (w->x[d] < end) {
        if (!dpari_halo_segment(w, d, w->sends ? other : w->peer)) {
            w->x[d] += w->n[d];
        } else if (!w->sends || w->source[d] == w->own[d][0]) {
            return 1;
        } else {
            w->x[d] += dpari_halo_skip(w, d);
        }
    }
    return 0;
}

/* Does the box of segments travel? Its own cells stay, a star has no edges. */
static int dpari_halo_travels(const dpar_halo_walk *w)
{
    int32_t d, outside = 0;
    for (d = 0; d < w->h->grid.dims; d++) {
        outside += (int32_t)(~w->inside >> d & 1u);
    }
    if (outside == 0) {
        return w->pass == DPARI_FOLDED;
    }
    return outside == 1 || w->h->shape == DPAR_STENCIL_BOX;
}

/* The next box of segments of this receiver; `fresh` begins with its first. */
static int dpari_halo_box_next(dpar_halo_walk *w, int fresh)
{
    int32_t dims = w->h->grid.dims, d = fresh ? 0 : dims - 1;
    if (dims == 0) {
        return 0;
    }
    if (fresh) {
        dpari_halo_enter(w, 0);
    } else {
        w->x[d] += w->n[d];
    }
    while (d >= 0) {
        if (!dpari_halo_seek(w, d)) {
            if (--d >= 0) {
                w->x[d] += w->n[d];
            }
        } else if (d < dims - 1) {
            dpari_halo_enter(w, ++d);
        } else if (dpari_halo_travels(w)) {
            return 1;
        } else {
            w->x[d] += w->n[d];
        }
    }
    return 0;
}

/* ---- the receivers of a sender ----------------------------------------------------------------
 */

/* Where the receivers begin that may take something in dim d: the first point of a block, on a line
 * that goes on beyond the ends where it wraps; from[d][1] is where they end. */
static void dpari_halo_reach(dpar_halo_walk *w, int32_t d)
{
    const dpar_halo *h = w->h;
    int64_t points = dpar_halo_points(h, d), lo = w->own[d][0], hi = w->own[d][1], at[2];
    int32_t coord[DPAR_MAX_AXES];
    if (w->pass == DPARI_FOLDED && d == h->fold) { /* rows whose halo comes back down to mine */
        lo = 2 * (points - 1) + 1 - h->on_row - (hi - 1) - h->high[d];
        lo = dpari_most(0, dpari_least(lo, points - 1));
        hi = points;
    } else {
        if (w->pass == DPARI_FOLDED && d == h->mirror) {
            int64_t first = points - 1 + h->shift - (hi - 1);
            hi = first + (hi - lo);
            lo = first;
        }
        lo -= h->high[d];
        hi += h->low[d];
        if ((h->periodic >> d & 1u) == 0) {
            lo = dpari_most(lo, 0);
            hi = dpari_least(hi, points);
        }
    }
    dpari_halo_owner(h, d, dpari_halo_ring(lo, points), coord, at);
    lo -= dpari_halo_ring(lo, points) - at[0];
    w->from[d][0] = lo;
    w->from[d][1] = dpari_least(hi, lo + points); /* once round at most */
}

/* The receiver at from[d][0]. */
static void dpari_halo_receiver(dpar_halo_walk *w, int32_t d)
{
    int64_t points = dpar_halo_points(w->h, d);
    dpari_halo_owner(w->h, d, dpari_halo_ring(w->from[d][0], points), w->peer, w->at[d]);
}

/* The first of all receivers, or the next one. */
static int dpari_halo_receivers(dpar_halo_walk *w, int fresh)
{
    int32_t d;
    for (d = w->h->grid.dims - 1; d >= 0; d--) {
        if (!fresh) {
            w->from[d][0] += w->at[d][1] - w->at[d][0];
            if (w->from[d][0] < w->from[d][1]) {
                dpari_halo_receiver(w, d);
                return 1;
            }
        }
        dpari_halo_reach(w, d);
        dpari_halo_receiver(w, d);
    }
    return fresh;
}

/* ---- all of it --------------------------------------------------------------------------------
 */

DPAR_API dpar_status dpar_halo_begin(dpar_halo_walk *w, const dpar_halo *h, int32_t rank,
                                     int32_t direction, int32_t mode, dpar_why *why)
{
    dpar_status st = dpar_halo_check(h, why);
    int32_t i;
    if (st != DPAR_OK) {
        return st;
    }
    if ((direction != DPAR_RECEIVES && direction != DPAR_SENDS) ||
        (mode != DPAR_HALO_FORWARD && mode != DPAR_HALO_ADJOINT)) {
        return dpari_say(DPAR_E_ARG, why, "direction #, mode #: each is 0 or 1", direction, mode, 0,
                         0);
    }
    dpari_zero(w, sizeof(*w));
    w->h = h;
    w->rank = rank;
    w->adjoint = mode;
    w->sends = (direction == DPAR_SENDS) != (mode == DPAR_HALO_ADJOINT);
    if (!dpari_halo_own(h, rank, w->coord, w->own)) {
        w->pass = DPARI_FOLDED + 1; /* has nothing */
        return DPAR_OK;
    }
    for (i = 0; i < h->grid.dims; i++) {
        w->at[i][0] = w->own[i][0];
        w->at[i][1] = w->own[i][1];
    }
    for (i = 0; i < h->grid.mesh.axes; i++) { /* replicas exchange among themselves */
        w->peer[i] = w->coord[i];
    }
    return DPAR_OK;
}

static void dpari_halo_fill(const dpar_halo_walk *w, dpar_transfer *t)
{
    const dpar_halo *h = w->h;
    int32_t d;
    dpari_zero(t, sizeof(*t));
    t->peer = dpar_mesh_rank(&h->grid.mesh, w->peer);
    t->dims = h->grid.dims;
    t->op = w->adjoint ? DPAR_SUM : DPAR_COPY;
    t->flip = w->reversed;
    for (d = 0; d < t->dims; d++) {
        int64_t there = w->x[d] - (w->at[d][0] - h->low[d]);
        int64_t here = w->g[d] - (w->source[d] - h->low[d]);
        t->extent[d] = w->n[d];
        t->mine[d] = w->sends ? here : there;
        t->theirs[d] = w->sends ? there : here;
        t->global[d] = w->sends ? w->g[d] : w->x[d];
    }
}

DPAR_API int dpar_halo_next(dpar_halo_walk *w, dpar_transfer *t)
{
    while (w->pass <= (w->h->folds ? DPARI_FOLDED : DPARI_PLAIN)) {
        int fresh = w->state < 2;
        if (w->sends && w->state == 0) {
            (void)dpari_halo_receivers(w, 1);
        }
        w->state = 2;
        if (dpari_halo_box_next(w, fresh)) {
            dpari_halo_fill(w, t);
            return 1;
        }
        w->state = 1; /* another receiver, or the next pass */
        if (!w->sends || !dpari_halo_receivers(w, 0)) {
            w->pass++;
            w->state = 0;
        }
    }
    return 0;
}

/* ---- windows ----------------------------------------------------------------------------------
 */

static int64_t dpari_window_stride(const dpar_window *v)
{
    return v->stride > 0 ? v->stride : 1;
}

/* From the first tap to the last. */
static int64_t dpari_window_reach(const dpar_window *v)
{
    return (v->dilation > 0 ? v->dilation : 1) * (v->kernel - 1);
}

DPAR_API dpar_status dpar_window_outputs(const dpar_window *v, int64_t inputs, int64_t *outputs,
                                         dpar_why *why)
{
    const int64_t limit = INT64_C(1) << 30;
    int64_t room, s = dpari_window_stride(v), m;
    if (v->kernel < 1 || v->stride < 0 || v->dilation < 0 || v->pad_low < 0 || v->pad_high < 0) {
        return dpari_say(DPAR_E_ARG, why, "kernel # of at least 1, stride #, dilation #, pad #",
                         v->kernel, v->stride, v->dilation, dpari_least(v->pad_low, v->pad_high));
    }
    if (v->kernel > limit || v->stride > limit || v->dilation > limit || v->pad_low > limit ||
        v->pad_high > limit || inputs < 0 || inputs > dpari_halo_limit) {
        return dpari_say(DPAR_E_RANGE, why,
                         "# inputs (0 to 2^60), kernel #, stride #, dilation # (to 2^30)", inputs,
                         v->kernel, v->stride, v->dilation);
    }
    room = inputs + v->pad_low + v->pad_high - dpari_window_reach(v) - 1;
    if (room < 0) {
        return dpari_say(DPAR_E_ARG, why,
                         "a kernel that reaches over # of # inputs and # of padding",
                         dpari_window_reach(v) + 1, inputs, v->pad_low + v->pad_high, 0);
    }
    m = room / s + 1;
    if (v->ceil_mode && room % s != 0 && m * s < inputs + v->pad_low) {
        m++; /* torch: a window that would begin in the right padding is left out */
    }
    *outputs = m;
    return DPAR_OK;
}

DPAR_API void dpar_window_owned(const dpar_window *v, int64_t inputs, int64_t outputs, int64_t lo,
                                int64_t hi, int64_t *y0, int64_t *y1)
{
    int64_t s = dpari_window_stride(v), first, last;
    lo = dpari_most(0, dpari_least(lo, inputs));
    first = dpari_least(outputs, dpari_ceil_div(lo, s));
    last = hi >= inputs ? outputs : dpari_least(outputs, dpari_ceil_div(hi, s));
    *y0 = first;
    *y1 = hi > lo ? dpari_most(first, last) : first;
}

DPAR_API int dpar_window_needs(const dpar_window *v, int64_t y0, int64_t y1, int64_t *lo,
                               int64_t *hi)
{
    int64_t s = dpari_window_stride(v);
    if (y1 <= y0 || y0 < 0 || y1 - 1 > 2 * dpari_halo_limit / s) {
        return 0;
    }
    *lo = s * y0 - v->pad_low;
    *hi = s * (y1 - 1) + dpari_window_reach(v) - v->pad_low + 1;
    return 1;
}

DPAR_API int dpar_window_transposed(const dpar_window *v, int64_t inputs, int64_t y0, int64_t y1,
                                    int64_t *lo, int64_t *hi)
{
    int64_t s = dpari_window_stride(v), first, last;
    if (y1 <= y0 || y0 < 0 || y1 - 1 > 2 * dpari_halo_limit) {
        return 0;
    }
    first = -dpari_floor_div(-(y0 + v->pad_low - dpari_window_reach(v)), s);
    last = dpari_floor_div(y1 - 1 + v->pad_low, s) + 1;
    first = dpari_most(0, first);
    last = dpari_least(inputs, last);
    if (last <= first) {
        return 0;
    }
    *lo = first;
    *hi = last;
    return 1;
}

DPAR_API void dpar_window_halo(const dpar_window *v, int64_t inputs, int periodic, int64_t own_lo,
                               int64_t own_hi, int64_t y0, int64_t y1, int64_t *low, int64_t *high)
{
    int64_t lo, hi;
    *low = 0;
    *high = 0;
    if (!dpar_window_needs(v, y0, y1, &lo, &hi)) {
        return;
    }
    if (!periodic) {
        lo = dpari_most(0, dpari_least(lo, inputs));
        hi = dpari_most(lo, dpari_least(hi, inputs));
    }
    *low = own_lo - lo;
    *high = hi - own_hi;
}

DPAR_API int64_t dpar_window_start(const dpar_window *v, int64_t inputs, int64_t i)
{
    int64_t d = v->dilation > 0 ? v->dilation : 1, group, members, first;
    if (i < 0 || i >= inputs || v->kernel < 1) {
        return -1;
    }
    group = i % d;
    members = (inputs - group - 1) / d + 1;
    if (members < v->kernel) {
        return -1;
    }
    first = dpari_most(0, dpari_least(i / d - v->kernel / 2, members - v->kernel));
    return first * d + group;
}

/* ==== index/sampler.c ==== */

/* ---- who reads what -------------------------------------------------------------------------- */

DPAR_API dpar_status dpar_sampler_init(dpar_sampler *s, int32_t rest, int64_t count, int32_t ranks,
                                       int64_t run, int64_t consumed, dpar_why *why)
{
    if (rest < DPAR_SAMPLES_PAD || rest > DPAR_SAMPLES_EXACT) {
        return dpari_say(DPAR_E_ARG, why, "rest #: pad, drop and exact are 0 to 2", rest, 0, 0, 0);
    }
    if (ranks < 1 || run < 1) {
        return dpari_say(DPAR_E_ARG, why, "# ranks that read runs of #: both at least 1", ranks,
                         run, 0, 0);
    }
    if (count < 0 || count > INT64_C(1) << 62 || run > (INT64_C(1) << 62) / ranks) {
        return dpari_say(count < 0 ? DPAR_E_ARG : DPAR_E_RANGE, why,
                         "# samples, # ranks, runs of #: 0 to 2^62 samples, also in a round", count,
                         ranks, run, 0);
    }
    if (consumed < 0 || consumed > count) {
        return dpari_say(DPAR_E_ARG, why, "# samples are consumed, an epoch has #", consumed, count,
                         0, 0);
    }
    s->rest = rest;
    s->ranks = ranks;
    s->count = count;
    s->first = consumed;
    s->run = run;
    return DPAR_OK;
}

/* Of what is left: whole rounds, in which each rank reads a run, and the samples after them. */
static int64_t dpari_sampler_rounds(const dpar_sampler *s, int64_t *after)
{
    int64_t left = s->count - s->first, round = s->run * s->ranks;
    *after = left % round;
    return left / round;
}

DPAR_API int64_t dpar_sampler_size(const dpar_sampler *s, int32_t rank)
{
    int64_t after, rounds = dpari_sampler_rounds(s, &after);
    if (rank < 0 || rank >= s->ranks) {
        return 0;
    }
    if (s->rest == DPAR_SAMPLES_PAD) {
        return (rounds + (after > 0)) * s->run;
    }
    if (s->rest == DPAR_SAMPLES_DROP) {
        return rounds * s->run;
    }
    return rounds * s->run + dpari_most(0, dpari_least(s->run, after - rank * s->run));
}

DPAR_API int64_t dpar_sampler_common(const dpar_sampler *s)
{
    return dpar_sampler_size(s, s->ranks - 1) / s->run * s->run;
}

DPAR_API int64_t dpar_sampler_at(const dpar_sampler *s, int32_t rank, int64_t k)
{
    int64_t at;
    if (k < 0 || k >= dpar_sampler_size(s, rank)) {
        return -1;
    }
    at = s->first + k / s->run * (s->run * s->ranks) + rank * s->run + k % s->run;
    return at < s->count ? at : at % s->count; /* torch repeats the list, as often as it must */
}

DPAR_API int64_t dpar_sampler_consumed(const dpar_sampler *s, int64_t k)
{
    int64_t most = dpar_sampler_size(s, 0);
    if (k < 0 || k > most || (k % s->run != 0 && k != most)) {
        return -1;
    }
    return k == most && s->rest != DPAR_SAMPLES_DROP ? s->count : s->first + k * s->ranks;
}

/* ---- MT19937 --------------------------------------------------------------------------------- */

/* Matsumoto and Nishimura 1998, with the initialisation of 2002. */
DPAR_API void dpar_mt19937_init(dpar_mt19937 *g, uint64_t seed)
{
    uint32_t i;
    g->word[0] = (uint32_t)(seed & 0xffffffffu);
    for (i = 1; i < 624; i++) {
        uint32_t before = g->word[i - 1];
        g->word[i] = UINT32_C(1812433253) * (before ^ before >> 30) + i;
    }
    g->at = 624;
}

static void dpari_mt19937_turn(dpar_mt19937 *g)
{
    int32_t i;
    for (i = 0; i < 624; i++) {
        uint32_t next = g->word[i < 623 ? i + 1 : 0];
        uint32_t both = (g->word[i] & 0x80000000u) | (next & 0x7fffffffu);
        g->word[i] =
            g->word[i < 227 ? i + 397 : i - 227] ^ both >> 1 ^ ((both & 1u) != 0 ? 0x9908b0dfu : 0);
    }
    g->at = 0;
}

DPAR_API uint32_t dpar_mt19937_next(dpar_mt19937 *g)
{
    uint32_t y;
    if (g->at >= 624) {
        dpari_mt19937_turn(g);
    }
    y = g->word[g->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

/* ---- randperm -------------------------------------------------------------------------------- */

static void dpari_randperm_forward(dpar_mt19937 *g, int64_t n, int64_t *order)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        order[i] = i;
    }
    for (i = 0; i < n - 1; i++) {
        int64_t j = i + (int64_t)(dpar_mt19937_next(g) % (uint64_t)(n - i)), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

static void dpari_randperm_inside_out(dpar_mt19937 *g, int64_t n, int64_t *order)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        uint64_t high = dpar_mt19937_next(g), draw = high << 32 | dpar_mt19937_next(g);
        int64_t j = (int64_t)(draw % (uint64_t)(i + 1));
        order[i] = i;
        order[i] = order[j];
        order[j] = i;
    }
}

DPAR_API dpar_status dpar_randperm(dpar_mt19937 *g, int64_t count, int64_t *order, dpar_why *why)
{
    if (count < 0) {
        return dpari_say(DPAR_E_ARG, why, "a permutation of # elements: 0 or more", count, 0, 0, 0);
    }
    if (count < (int64_t)(UINT32_MAX / 20)) {
        dpari_randperm_forward(g, count, order);
    } else {
        dpari_randperm_inside_out(g, count, order);
    }
    return DPAR_OK;
}

/* ---- Feistel --------------------------------------------------------------------------------- */

/* Each bit of x reaches every bit: the finaliser of splitmix64 (Steele, Lea, Flood 2014; variant 13
 * of Stafford's mixers). */
static uint64_t dpari_mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* A round function: 2^64 / golden ratio keeps the keys of rounds apart. */
static uint64_t dpari_round(const dpar_permutation *p, uint64_t half, uint32_t round)
{
    return dpari_mix(half + dpari_mix(p->key + (round + 1) * UINT64_C(0x9e3779b97f4a7c15)));
}

enum { DPARI_ROUNDS = 6 }; /* of both halves */

static uint64_t dpari_feistel(const dpar_permutation *p, uint64_t x, int back)
{
    const uint64_t low_mask = ((uint64_t)1 << p->low) - 1, high_mask = ((uint64_t)1 << p->high) - 1;
    uint64_t low = x & low_mask, high = x >> p->low;
    uint32_t i;
    for (i = 0; i < DPARI_ROUNDS; i++) {
        if (back) {
            low ^= dpari_round(p, high, 2 * (DPARI_ROUNDS - 1 - i) + 1) & low_mask;
            high ^= dpari_round(p, low, 2 * (DPARI_ROUNDS - 1 - i)) & high_mask;
        } else {
            high ^= dpari_round(p, low, 2 * i) & high_mask;
            low ^= dpari_round(p, high, 2 * i + 1) & low_mask;
        }
    }
    return high << p->low | low;
}

DPAR_API dpar_status dpar_permutation_init(dpar_permutation *p, int64_t count, uint64_t seed,
                                           uint64_t epoch, dpar_why *why)
{
    int32_t bits = 2;
    if (count < 0 || count > INT64_C(1) << 62) {
        return dpari_say(count < 0 ? DPAR_E_ARG : DPAR_E_RANGE, why,
                         "a permutation of # elements: 0 to 2^62", count, 0, 0, 0);
    }
    while (bits < 62 && (INT64_C(1) << bits) < count) {
        bits++;
    }
    p->count = count;
    p->key = dpari_mix(dpari_mix(seed) + epoch);
    p->low = bits / 2;
    p->high = bits - bits / 2;
    return DPAR_OK;
}

static int64_t dpari_permutation_walk(const dpar_permutation *p, int64_t x, int back)
{
    if (x < 0 || x >= p->count) {
        return -1;
    }
    do { /* a walk along a cycle that began inside ends inside */
        x = (int64_t)dpari_feistel(p, (uint64_t)x, back);
    } while (x >= p->count);
    return x;
}

DPAR_API int64_t dpar_permutation_at(const dpar_permutation *p, int64_t i)
{
    return dpari_permutation_walk(p, i, 0);
}

DPAR_API int64_t dpar_permutation_find(const dpar_permutation *p, int64_t v)
{
    return dpari_permutation_walk(p, v, 1);
}

/* ==== order/schedule.c ==== */

/* ---- maps and memory ------------------------------------------------------------------------ */

DPAR_API int32_t dpar_stage_rank(int32_t map, int32_t ranks, int32_t stage)
{
    int32_t at;
    if (ranks < 1 || stage < 0 || (map == DPAR_MAP_BIDIRECTIONAL && stage >= 2 * (int64_t)ranks) ||
        map < 0 || map >= DPAR_STAGE_MAPS) {
        return -1;
    }
    at = stage % ranks;
    return map != DPAR_MAP_LOOP && stage / ranks % 2 == 1 ? ranks - 1 - at : at;
}

static int dpari_schedule_fits(int32_t ranks, int32_t stages, int64_t actions)
{
    return ranks >= 1 && ranks <= DPAR_MOST_STAGES && stages >= 1 && stages <= DPAR_MOST_STAGES &&
           actions >= 0 && actions <= INT64_MAX / 16;
}

DPAR_API int64_t dpar_schedule_bytes(int32_t ranks, int32_t stages, int64_t actions)
{
    if (!dpari_schedule_fits(ranks, stages, actions)) {
        return -1;
    }
    return 8 * ((int64_t)ranks + 1) + 8 * actions + 2 * (int64_t)stages;
}

DPAR_API dpar_status dpar_schedule_lay(dpar_schedule *s, int32_t ranks, int32_t stages,
                                       int64_t actions, void *mem, int64_t bytes, dpar_why *why)
{
    int64_t needed = dpar_schedule_bytes(ranks, stages, actions);
    int32_t r;
    if (needed < 0) {
        return dpari_say(DPAR_E_ARG, why,
                         "# ranks, # stages, # actions: 1 to 65535 of the first two", ranks, stages,
                         actions, 0);
    }
    if (bytes < needed) {
        return dpari_say(DPAR_E_ROOM, why, "# actions on # ranks take # bytes, there are #",
                         actions, ranks, needed, bytes);
    }
    s->ranks = ranks;
    s->stages = stages;
    s->micros = 0;
    s->chain = stages;
    s->slices = 1;
    s->begin = (int64_t *)mem;
    s->action = (dpar_action *)(void *)(s->begin + ranks + 1);
    s->rank_of = (uint16_t *)(void *)(s->action + actions);
    for (r = 0; r <= ranks; r++) {
        s->begin[r] = 0;
    }
    return DPAR_OK;
}

DPAR_API int32_t dpar_schedule_before(const dpar_schedule *s, int32_t stage)
{
    return stage % s->chain == 0 ? -1 : stage - 1;
}

DPAR_API int32_t dpar_schedule_behind(const dpar_schedule *s, int32_t stage)
{
    return (stage + 1) % s->chain == 0 ? -1 : stage + 1;
}

/* ---- names ---------------------------------------------------------------------------------- */

DPAR_API const char *dpar_action_name(int32_t kind)
{
    switch (kind) { /* no table: its pointers would be data to relocate */
    case DPAR_FORWARD: return "F";
    case DPAR_BACKWARD: return "B";
    case DPAR_INPUT: return "I";
    case DPAR_WEIGHT: return "W";
    case DPAR_SEND_F: return "SEND_F";
    case DPAR_RECV_F: return "RECV_F";
    case DPAR_SEND_B: return "SEND_B";
    case DPAR_RECV_B: return "RECV_B";
    case DPAR_UNSHARD: return "UNSHARD";
    case DPAR_RESHARD: return "RESHARD";
    case DPAR_REDUCE_GRAD: return "REDUCE_GRAD";
    case DPAR_RECOMPUTE: return "RECOMPUTE";
    case DPAR_OFFLOAD: return "OFFLOAD";
    case DPAR_RELOAD: return "RELOAD";
    default: return "";
    }
}

DPAR_API int dpar_action_has_micro(int32_t kind)
{
    return kind > DPAR_IDLE && kind < DPAR_ACTION_KINDS &&
           (kind < DPAR_UNSHARD || kind > DPAR_REDUCE_GRAD);
}

static void dpari_action_put(const dpar_action *a, dpar_text *t)
{
    if (a->kind == DPAR_IDLE || a->kind >= DPAR_ACTION_KINDS) {
        return;
    }
    dpar_text_int(t, a->stage);
    dpar_text_put(t, dpar_action_name(a->kind));
    if (dpar_action_has_micro(a->kind)) {
        dpar_text_int(t, a->micro);
    }
}

DPAR_API void dpar_action_text(const dpar_action *a, dpar_text *t)
{
    if (a->joined) {
        dpar_text_char(t, '(');
    }
    dpari_action_put(a, t);
    if (a->joined) {
        dpar_text_char(t, ';');
        dpari_action_put(a + 1, t);
        dpar_text_put(t, ")OVERLAP_F_B");
    }
}

/* ---- reading -------------------------------------------------------------------------------- */

/* A place in a text, and what was found so far. */
typedef struct dpari_csv {
    const char *s;
    size_t n, at, line_start;
    int64_t line, actions;
    int32_t rows, stages, micros;
} dpari_csv;

static int dpari_csv_peek(const dpari_csv *c)
{
    return c->at < c->n ? (unsigned char)c->s[c->at] : -1;
}

/* "line 2, column 14: expected a stage's number, not 'F0xyz'". */
static dpar_status dpari_csv_say(const dpari_csv *c, const char *expected, dpar_why *why)
{
    dpar_text t;
    size_t end = c->at;
    while (end < c->n && end < c->at + 24 && c->s[end] >= ' ' && c->s[end] != ',') {
        end++;
    }
    if (why != NULL) {
        dpar_text_init(&t, why->text, sizeof(why->text));
        dpar_text_put(&t, "line ");
        dpar_text_int(&t, c->line);
        dpar_text_put(&t, ", column ");
        dpar_text_int(&t, (int64_t)(c->at - c->line_start) + 1);
        dpar_text_put(&t, ": expected ");
        dpar_text_put(&t, expected);
        if (end > c->at) {
            dpar_text_put(&t, ", not '");
            dpar_text_slice(&t, c->s + c->at, end - c->at);
            dpar_text_put(&t, "'");
        }
    }
    return DPAR_E_PARSE;
}

/* A number of 0 to 65534. */
static dpar_status dpari_csv_number(dpari_csv *c, const char *what, uint16_t *value, dpar_why *why)
{
    dpari_csv start = *c;
    int32_t v = 0;
    while (dpari_csv_peek(c) >= '0' && dpari_csv_peek(c) <= '9' && v < DPAR_MOST_STAGES) {
        v = 10 * v + (dpari_csv_peek(c) - '0');
        c->at++;
    }
    if (c->at == start.at) {
        return dpari_csv_say(c, what, why);
    }
    if (v >= DPAR_MOST_STAGES) {
        return dpari_csv_say(&start, "a number of 0 to 65534", why);
    }
    *value = (uint16_t)v;
    return DPAR_OK;
}

/* The longest name that stands here; DPAR_IDLE when none does. */
static uint8_t dpari_csv_kind(dpari_csv *c)
{
    size_t most = 0;
    int kind, best = DPAR_IDLE;
    for (kind = DPAR_FORWARD; kind < DPAR_ACTION_KINDS; kind++) {
        size_t n = dpari_length(dpar_action_name(kind));
        if (n > most && n <= c->n - c->at &&
            dpari_spells(c->s + c->at, n, dpar_action_name(kind))) {
            most = n;
            best = kind;
        }
    }
    c->at += most;
    return (uint8_t)best;
}

static dpar_status dpari_csv_action(dpari_csv *c, dpar_action *a, dpar_why *why)
{
    dpar_status st;
    dpari_zero(a, sizeof(*a));
    st = dpari_csv_number(c, "a stage's number", &a->stage, why);
    if (st != DPAR_OK) {
        return st;
    }
    a->kind = dpari_csv_kind(c);
    if (a->kind == DPAR_IDLE) {
        return dpari_csv_say(c,
                             "F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD or "
                             "REDUCE_GRAD",
                             why);
    }
    if (dpar_action_has_micro(a->kind)) {
        st = dpari_csv_number(c, "a micro-batch's number", &a->micro, why);
        c->micros = (int32_t)dpari_most(c->micros, (int32_t)a->micro + 1);
    }
    c->stages = (int32_t)dpari_most(c->stages, (int32_t)a->stage + 1);
    return st;
}

static dpar_status dpari_csv_word(dpari_csv *c, const char *word, dpar_why *why)
{
    size_t n = dpari_length(word);
    if (n > c->n - c->at || !dpari_spells(c->s + c->at, n, word)) {
        return dpari_csv_say(c, word, why);
    }
    c->at += n;
    return DPAR_OK;
}

static void dpari_csv_blanks(dpari_csv *c)
{
    while (dpari_csv_peek(c) == ' ' || dpari_csv_peek(c) == '\t') {
        c->at++;
    }
}

/* Behind "(": the rest of (<F>;<B or I>)OVERLAP_F_B. */
static dpar_status dpari_csv_joined(dpari_csv *c, dpar_action *a, dpar_why *why)
{
    dpari_csv start = *c;
    dpar_status st = dpari_csv_action(c, a, why);
    a->joined = 1;
    if (st == DPAR_OK && a->kind != DPAR_FORWARD) {
        return dpari_csv_say(&start, "a forward, that a backward overlaps", why);
    }
    if (st == DPAR_OK) {
        st = dpari_csv_word(c, ";", why);
    }
    if (st == DPAR_OK) {
        start = *c;
        st = dpari_csv_action(c, a + 1, why);
        if (st == DPAR_OK && a[1].kind != DPAR_BACKWARD && a[1].kind != DPAR_INPUT) {
            return dpari_csv_say(&start, "a B or I, to overlap the forward", why);
        }
    }
    return st == DPAR_OK ? dpari_csv_word(c, ")OVERLAP_F_B", why) : st;
}

/* Is this the end of a line? Goes behind the CR of a CRLF. */
static int dpari_csv_line_ends(dpari_csv *c)
{
    if (c->n - c->at > 1 && c->s[c->at] == '\r' && c->s[c->at + 1] == '\n') {
        c->at++;
    }
    return dpari_csv_peek(c) == '\n' || dpari_csv_peek(c) == -1;
}

/* One cell: writes one action or two, and stands at the comma, the end of the line or of the text.
 */
static dpar_status dpari_csv_cell(dpari_csv *c, dpar_action a[2], int *count, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int next;
    *count = 1;
    dpari_csv_blanks(c);
    next = dpari_csv_peek(c);
    dpari_zero(a, 2 * sizeof(*a));
    if (next == '(') {
        c->at++;
        *count = 2;
        st = dpari_csv_joined(c, a, why);
    } else if (next == '"') {
        st = dpari_csv_word(c, "\"\"", why);
    } else if (next != ',' && next != '\r' && next != '\n' && next != -1) {
        st = dpari_csv_action(c, a, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    dpari_csv_blanks(c);
    return dpari_csv_line_ends(c) || dpari_csv_peek(c) == ','
               ? DPAR_OK
               : dpari_csv_say(c, "a comma or the end of the line", why);
}

/* A comment is passed, up to the end of its line. */
static int dpari_csv_comment(dpari_csv *c)
{
    int comment = dpari_csv_peek(c) == '#';
    while (comment && c->at < c->n && c->s[c->at] != '\n') {
        c->at++;
    }
    return comment;
}

/* One line. With s, its actions are written, each on the line's rank. */
static dpar_status dpari_csv_line(dpari_csv *c, dpar_schedule *s, dpar_why *why)
{
    dpar_action a[2];
    dpari_csv start = *c;
    int count, k, more = !dpari_csv_line_ends(c);
    while (more) {
        dpar_status st = dpari_csv_cell(c, a, &count, why);
        if (st != DPAR_OK) {
            return st;
        }
        for (k = 0; k < count && s != NULL; k++) {
            s->action[c->actions + k] = a[k];
        }
        c->actions += count;
        more = dpari_csv_peek(c) == ',';
        c->at += (size_t)more;
    }
    if (++c->rows > DPAR_MOST_STAGES) {
        return dpari_csv_say(&start, "at most 65535 ranks", why);
    }
    return DPAR_OK;
}

static dpar_status dpari_csv_walk(dpari_csv *c, const char *text, size_t n, dpar_schedule *s,
                                  dpar_why *why)
{
    dpari_zero(c, sizeof(*c));
    c->s = text;
    c->n = n;
    for (c->line = 1; c->at < n; c->line++) {
        c->line_start = c->at;
        if (!dpari_csv_comment(c)) {
            dpar_status st = dpari_csv_line(c, s, why);
            if (st != DPAR_OK) {
                return st;
            }
            if (s != NULL) {
                s->begin[c->rows] = c->actions;
            }
        }
        c->at += (size_t)(c->at < n); /* past the line's end */
    }
    return DPAR_OK;
}

DPAR_API int64_t dpar_schedule_read_bytes(const char *text, size_t n, dpar_why *why)
{
    dpari_csv c;
    if (dpari_csv_walk(&c, text, n, NULL, why) != DPAR_OK) {
        return -1;
    }
    if (c.rows < 1 || c.stages < 1) {
        (void)dpari_say(DPAR_E_PARSE, why, "the text has # ranks and # stages: no schedule", c.rows,
                        c.stages, 0, 0);
        return -1;
    }
    return dpar_schedule_bytes(c.rows, c.stages, c.actions);
}

/* Which rank each stage is on: the one whose line names it, other than in a message to come. */
static dpar_status dpari_csv_ranks(dpar_schedule *s, dpar_why *why)
{
    const uint16_t nobody = 65535;
    int32_t r, i;
    int64_t k;
    for (i = 0; i < s->stages; i++) {
        s->rank_of[i] = nobody;
    }
    for (r = 0; r < s->ranks; r++) {
        for (k = s->begin[r]; k < s->begin[r + 1]; k++) {
            const dpar_action *a = &s->action[k];
            if (a->kind == DPAR_IDLE) {
                continue;
            }
            if (s->rank_of[a->stage] != nobody && s->rank_of[a->stage] != r) {
                return dpari_say(DPAR_E_ARG, why, "stage # is on rank # and on rank #", a->stage,
                                 s->rank_of[a->stage], r, 0);
            }
            s->rank_of[a->stage] = (uint16_t)r;
        }
    }
    for (i = 0; i < s->stages; i++) {
        if (s->rank_of[i] == nobody) {
            return dpari_say(DPAR_E_ARG, why, "stage # is on no rank, stage # on rank #", i,
                             s->stages - 1, s->rank_of[s->stages - 1], 0);
        }
    }
    return DPAR_OK;
}

/* The stage at the other end of a message; -1 when the chain ends here. */
static int32_t dpari_message_stage(const dpar_schedule *s, const dpar_action *a)
{
    return a->kind == DPAR_SEND_F || a->kind == DPAR_RECV_B ? dpar_schedule_behind(s, a->stage)
                                                            : dpar_schedule_before(s, a->stage);
}

static dpar_status dpari_csv_peers(dpar_schedule *s, dpar_why *why)
{
    int64_t k;
    for (k = 0; k < s->begin[s->ranks]; k++) {
        dpar_action *a = &s->action[k];
        int32_t other;
        if (a->kind < DPAR_SEND_F || a->kind > DPAR_RECV_B) {
            continue;
        }
        other = dpari_message_stage(s, a);
        if (other < 0 || s->rank_of[other] == s->rank_of[a->stage]) {
            return dpari_say_word(
                DPAR_E_ARG, why,
                other < 0 ? "#@#: stage # ends its chain" : "#@#: stage # is on the same rank",
                dpar_action_name(a->kind), 8, a->stage, a->micro, other < 0 ? a->stage : other, 0);
        }
        a->peer = s->rank_of[other];
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_schedule_read(dpar_schedule *s, const char *text, size_t n, int32_t chain,
                                        void *mem, int64_t bytes, dpar_why *why)
{
    dpari_csv c;
    dpar_schedule got;
    dpar_status st = dpari_csv_walk(&c, text, n, NULL, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (chain < 0 || (chain > 0 && c.stages % chain != 0)) {
        return dpari_say(DPAR_E_ARG, why, "chains of # stages do not divide # stages", chain,
                         c.stages, 0, 0);
    }
    if (c.rows < 1 || c.stages < 1) {
        return dpari_say(DPAR_E_PARSE, why, "the text has # ranks and # stages: no schedule",
                         c.rows, c.stages, 0, 0);
    }
    st = dpar_schedule_lay(&got, c.rows, c.stages, c.actions, mem, bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    got.chain = chain > 0 ? chain : c.stages;
    got.micros = c.micros;
    (void)dpari_csv_walk(&c, text, n, &got, NULL);
    st = dpari_csv_ranks(&got, why);
    if (st == DPAR_OK) {
        st = dpari_csv_peers(&got, why);
    }
    if (st == DPAR_OK) {
        *s = got;
    }
    return st;
}

/* ---- writing -------------------------------------------------------------------------------- */

DPAR_API void dpar_schedule_write(const dpar_schedule *s, const char *end, dpar_text *t)
{
    int32_t r;
    int64_t k;
    for (r = 0; r < s->ranks; r++) {
        if (s->begin[r + 1] == s->begin[r] + 1 && s->action[s->begin[r]].kind == DPAR_IDLE) {
            dpar_text_put(t, "\"\"");
        }
        for (k = s->begin[r]; k < s->begin[r + 1]; k += 1 + s->action[k].joined) {
            if (k > s->begin[r]) {
                dpar_text_char(t, ',');
            }
            dpar_action_text(&s->action[k], t);
        }
        dpar_text_put(t, end);
    }
}

/* ==== order/generate.c ==== */

/* ---- names ---------------------------------------------------------------------------------- */

DPAR_API const char *dpar_order_name(int32_t rule)
{
    static const char name[DPAR_ORDERS][16] = {
        "gpipe",     "1f1b",       "interleaved",    "breadth-first", "zb-h1",
        "zb-2p",     "zbv",        "v-half",         "v-min",         "dualpipe",
        "dualpipev", "eager-1f1b", "interleaved-zb", "1f1b-v",        "moe-overlap",
        "seq1f1b",   "chimera",    "forward-only"};
    return rule >= 0 && rule < DPAR_ORDERS ? name[rule] : "?";
}

/* The next letter or digit of a name, small, and *at behind it; 0 at the end. */
static char dpari_name_next(const char *name, size_t *at)
{
    char c = name[*at];
    while (c == '-' || c == '_') {
        c = name[++*at];
    }
    *at += c != 0;
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Do both spell the same, but for case, '-' and '_'? */
static int dpari_name_same(const char *a, const char *b)
{
    size_t i = 0, j = 0;
    char c;
    do {
        c = dpari_name_next(a, &i);
        if (c != dpari_name_next(b, &j)) {
            return 0;
        }
    } while (c != 0);
    return 1;
}

static const char *dpari_name_past(const char *name, const char *head)
{
    size_t i = 0, j = 0;
    char c;
    while ((c = dpari_name_next(head, &j)) != 0) {
        if (dpari_name_next(name, &i) != c) {
            return name;
        }
    }
    return name + i;
}

DPAR_API dpar_status dpar_order_find(dpar_order *order, const char *name, dpar_why *why)
{
    static const struct {
        char name[28];
        int32_t rule;
    } other[] = {{"gpipe-lifo", DPAR_GPIPE},
                 {"interleaved-1f1b", DPAR_INTERLEAVED},
                 {"flexible-interleaved-1f1b", DPAR_INTERLEAVED},
                 {"bfs", DPAR_BREADTH_FIRST},
                 {"looped-bfs", DPAR_BREADTH_FIRST},
                 {"zb-1p", DPAR_ZB_H1},
                 {"zb-h2", DPAR_ZB_2P},
                 {"zbv-zero-bubble", DPAR_ZBV},
                 {"eager", DPAR_EAGER_1F1B},
                 {"izb", DPAR_INTERLEAVED_ZB},
                 {"interleaved-zero-bubble", DPAR_INTERLEAVED_ZB},
                 {"v1f1b", DPAR_1F1B_V},
                 {"overlap-1f1b", DPAR_MOE_OVERLAP},
                 {"inference", DPAR_FORWARD_ONLY}};
    const int32_t others = (int32_t)(sizeof(other) / sizeof(other[0]));
    const char *bare = dpari_name_past(name, "schedule");
    int32_t i;
    for (i = 0; i < DPAR_ORDERS + others; i++) {
        int32_t rule = i < DPAR_ORDERS ? i : other[i - DPAR_ORDERS].rule;
        const char *known = i < DPAR_ORDERS ? dpar_order_name(i) : other[i - DPAR_ORDERS].name;
        if (dpari_name_same(bare, known)) {
            order->rule = rule;
            order->lifo = i == DPAR_ORDERS;
            return DPAR_OK;
        }
    }
    return dpari_say_word(
        DPAR_E_UNKNOWN, why,
        "no schedule '@': gpipe, gpipe-lifo, 1f1b, eager-1f1b, interleaved, "
        "breadth-first, zb-h1, zb-2p, interleaved-zb, zbv, v-half, v-min, 1f1b-v, "
        "dualpipe, dualpipev, moe-overlap, seq1f1b, chimera, forward-only",
        name, 24, 0, 0, 0, 0);
}

/* ---- what an order means -------------------------------------------------------------------- */

static int dpari_order_loops(int32_t rule)
{
    return rule == DPAR_INTERLEAVED || rule == DPAR_BREADTH_FIRST || rule == DPAR_INTERLEAVED_ZB ||
           rule == DPAR_MOE_OVERLAP || rule == DPAR_FORWARD_ONLY;
}

static int dpari_order_groups(int32_t rule)
{
    return rule == DPAR_INTERLEAVED || rule == DPAR_INTERLEAVED_ZB || rule == DPAR_MOE_OVERLAP;
}

/* The rules that go through all micro-batches at once, so that any map will do. */
static int dpari_order_sweeps(int32_t rule)
{
    return rule == DPAR_GPIPE || rule == DPAR_BREADTH_FIRST || rule == DPAR_FORWARD_ONLY;
}

static int dpari_order_both_ways(int32_t rule)
{
    return rule == DPAR_DUALPIPE || rule == DPAR_CHIMERA;
}

static int dpari_order_folded(int32_t rule)
{
    return rule == DPAR_ZBV || rule == DPAR_V_HALF || rule == DPAR_V_MIN ||
           rule == DPAR_DUALPIPEV || rule == DPAR_1F1B_V;
}

static int32_t dpari_order_map(int32_t rule)
{
    return dpari_order_both_ways(rule) ? DPAR_MAP_BIDIRECTIONAL
           : dpari_order_folded(rule)  ? DPAR_MAP_V
                                       : DPAR_MAP_LOOP;
}

static int32_t dpari_order_chunks(const dpar_order *o)
{
    int two = dpari_order_map(o->rule) != DPAR_MAP_LOOP || o->rule == DPAR_INTERLEAVED ||
              o->rule == DPAR_BREADTH_FIRST || o->rule == DPAR_INTERLEAVED_ZB;
    return o->chunks > 0 ? o->chunks : 1 + two;
}

static int32_t dpari_order_slices(const dpar_order *o)
{
    return o->rule != DPAR_SEQ1F1B ? 1 : o->slices > 0 ? o->slices : 2;
}

static int32_t dpari_order_rank(const dpar_order *o, int32_t stage)
{
    return o->rank_of != NULL ? o->rank_of[stage]
                              : dpar_stage_rank(dpari_order_map(o->rule), o->ranks, stage);
}

/* An order with the rule's own numbers where it left them open. */
typedef struct dpari_plan {
    int32_t rule, p, v, m; /* m: with slices, all of them */
    int32_t stages, slices, lifo;
    int32_t size, wide; /* the first `wide` groups are of size + 1 micro-batches, then size */
} dpari_plan;

static void dpari_plan_groups(dpari_plan *k, int32_t group)
{
    int32_t n = group > 0 ? group : k->p;
    k->size = n < k->m ? n : k->m;
    k->wide = 0;
    if (n < k->m && k->m % n < k->p) {
        k->size = k->m / (k->m / n);
        k->wide = k->m % (k->m / n);
    }
}

static dpari_plan dpari_plan_of(const dpar_order *o)
{
    dpari_plan k;
    k.rule = o->rule;
    k.p = o->ranks;
    k.v = dpari_order_chunks(o);
    k.stages = o->stages > 0 ? o->stages : k.p * k.v;
    k.slices = dpari_order_slices(o);
    k.m = o->micros * k.slices;
    k.lifo = o->lifo || o->rule == DPAR_BREADTH_FIRST;
    dpari_plan_groups(&k, dpari_order_groups(o->rule) ? o->group : k.m);
    return k;
}

/* ---- is there such an order? ---------------------------------------------------------------- */

static dpar_status dpari_order_numbers(const dpar_order *o, dpar_why *why)
{
    const char *name = dpar_order_name(o->rule);
    if (o->rule < 0 || o->rule >= DPAR_ORDERS) {
        return dpari_say(DPAR_E_ARG, why, "rule # is none of 0 to #", o->rule, DPAR_ORDERS - 1, 0,
                         0);
    }
    if (o->ranks < 1 || o->ranks > DPAR_MOST_STAGES) {
        return dpari_say(DPAR_E_ARG, why, "ranks=#: 1 to #", o->ranks, DPAR_MOST_STAGES, 0, 0);
    }
    if (o->micros < 1 || o->micros > DPAR_MOST_MICROS) {
        return dpari_say(DPAR_E_ARG, why, "micros=#: 1 to #", o->micros, DPAR_MOST_MICROS, 0, 0);
    }
    if (o->slices < 0 || (o->slices > 1 && o->rule != DPAR_SEQ1F1B)) {
        return dpari_say(DPAR_E_ARG, why,
                         "slices=#: seq1f1b cuts sequences into 1 or more, other rules do not",
                         o->slices, 0, 0, 0);
    }
    if (o->lifo < 0 || o->lifo > (o->rule == DPAR_GPIPE)) {
        return dpari_say(DPAR_E_ARG, why, "lifo=#: 0 or 1 for gpipe, 0 for other rules", o->lifo, 0,
                         0, 0);
    }
    if (o->group != 0 && !dpari_order_groups(o->rule)) {
        return dpari_say_word(DPAR_E_ARG, why, "group=#: @ has no groups of micro-batches", name,
                              16, o->group, 0, 0, 0);
    }
    if (o->group != 0 && o->group < o->ranks) {
        return dpari_say(DPAR_E_ARG, why,
                         "group=#: at least as many micro-batches as there are ranks, #", o->group,
                         o->ranks, 0, 0);
    }
    return DPAR_OK;
}

static dpar_status dpari_order_shape(const dpar_order *o, dpar_why *why)
{
    const char *name = dpar_order_name(o->rule);
    int own = dpari_order_map(o->rule) == DPAR_MAP_LOOP ? 1 : 2;
    int64_t chunks = dpari_order_chunks(o), slices = dpari_order_slices(o);
    if (o->chunks < 0 || (o->chunks > 0 && o->chunks != own && !dpari_order_loops(o->rule))) {
        return dpari_say_word(DPAR_E_ARG, why,
                              dpari_order_loops(o->rule) ? "chunks=#: @ has 1 or more on each rank"
                                                         : "chunks=#: @ has # on each rank",
                              name, 16, o->chunks, own, 0, 0);
    }
    if (chunks * o->ranks > DPAR_MOST_STAGES) {
        return dpari_say(DPAR_E_RANGE, why, "ranks=# x chunks=#: # stages are more than #",
                         o->ranks, chunks, chunks * o->ranks, DPAR_MOST_STAGES);
    }
    if (o->stages != 0 &&
        (o->stages < 0 || o->stages > DPAR_MOST_STAGES || o->chunks > 0 || o->rank_of == NULL ||
         !dpari_order_sweeps(o->rule) || o->rule == DPAR_GPIPE)) {
        return dpari_say(DPAR_E_ARG, why,
                         "stages=#: breadth-first and forward-only take up to #, with rank_of and "
                         "without chunks",
                         o->stages, DPAR_MOST_STAGES, 0, 0);
    }
    if (slices * o->micros > DPAR_MOST_MICROS) {
        return dpari_say(DPAR_E_RANGE, why, "micros=# x slices=#: # are more than #", o->micros,
                         slices, slices * o->micros, DPAR_MOST_MICROS);
    }
    if (dpari_order_both_ways(o->rule) && o->ranks % 2 != 0) {
        return dpari_say_word(DPAR_E_DIVIDE, why,
                              "@ runs both ways through an even number of ranks, not #", name, 16,
                              o->ranks, 0, 0, 0);
    }
    if (o->rule == DPAR_DUALPIPE && o->micros % 2 != 0) {
        return dpari_say(DPAR_E_DIVIDE, why,
                         "dualpipe sends half of the micro-batches each way: # is odd", o->micros,
                         0, 0, 0);
    }
    if ((o->rule == DPAR_DUALPIPE || o->rule == DPAR_DUALPIPEV) && o->micros / 2 < o->ranks) {
        return dpari_say_word(DPAR_E_ARG, why, "@ on # ranks takes at least # micro-batches, not #",
                              name, 16, o->ranks, 2 * (int64_t)o->ranks, o->micros, 0);
    }
    return DPAR_OK;
}

/* Does rank_of give every rank of the rule one of its own? A window of ranks at a time, since there
 * is no memory here for all. */
static dpar_status dpari_order_ranks(const dpar_order *o, dpar_why *why)
{
    enum { WINDOW = 1024 };
    dpari_plan k = dpari_plan_of(o);
    uint8_t taken[WINDOW / 8];
    int32_t base, i, rule_rank;
    for (i = 0; i < k.stages; i++) {
        rule_rank = dpar_stage_rank(dpari_order_map(k.rule), k.p, i);
        if (o->rank_of[i] >= k.p) {
            return dpari_say(DPAR_E_ARG, why, "stage # on rank #: there are # ranks", i,
                             o->rank_of[i], k.p, 0);
        }
        if (!dpari_order_sweeps(k.rule) && o->rank_of[i] != o->rank_of[rule_rank]) {
            return dpari_say(DPAR_E_ARG, why,
                             "stage # on rank #: the rule has it with stage #, on rank #", i,
                             o->rank_of[i], rule_rank, o->rank_of[rule_rank]);
        }
    }
    for (base = 0; base < k.p && !dpari_order_sweeps(k.rule); base += WINDOW) {
        dpari_zero(taken, sizeof(taken));
        for (i = 0; i < k.p; i++) {
            int32_t at = (int32_t)o->rank_of[i] - base;
            if (at < 0 || at >= WINDOW) {
                continue;
            }
            if (taken[at / 8] >> (at % 8) & 1) {
                return dpari_say(DPAR_E_ARG, why, "rank # has the stages of two ranks of the rule",
                                 o->rank_of[i], 0, 0, 0);
            }
            taken[at / 8] = (uint8_t)(taken[at / 8] | 1 << (at % 8));
        }
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_order_check(const dpar_order *order, dpar_why *why)
{
    dpar_status st = dpari_order_numbers(order, why);
    if (st == DPAR_OK) {
        st = dpari_order_shape(order, why);
    }
    return st == DPAR_OK && order->rank_of != NULL ? dpari_order_ranks(order, why) : st;
}

/* ---- how much ------------------------------------------------------------------------------- */

/* Actions of a stage; what a rank has beside whole micro-batches goes with its first. */
static int64_t dpari_plan_count(const dpari_plan *k, int32_t stage)
{
    int32_t behind = k->p - 1 - stage;
    int64_t m = k->m;
    switch (k->rule) {
    case DPAR_FORWARD_ONLY:
    case DPAR_CHIMERA: return m; /* half of the F's and half of the B's */
    case DPAR_ZB_H1:
    case DPAR_ZB_2P:
    case DPAR_INTERLEAVED_ZB:
    case DPAR_ZBV:
    case DPAR_V_HALF:
    case DPAR_V_MIN: return 3 * m;
    case DPAR_DUALPIPEV: return 2 * m + (behind >= 0 ? k->p + behind : 0); /* so many W */
    case DPAR_DUALPIPE: return m + (behind >= 0 ? dpari_most(stage, behind) : 0);
    default: return 2 * m;
    }
}

DPAR_API int64_t dpar_order_count(const dpar_order *order, int32_t rank)
{
    dpari_plan k;
    int64_t count = 0;
    int32_t i;
    if (dpar_order_check(order, NULL) != DPAR_OK || rank < 0 || rank >= order->ranks) {
        return -1;
    }
    k = dpari_plan_of(order);
    for (i = 0; i < k.stages; i++) {
        count += dpari_order_rank(order, i) == rank ? dpari_plan_count(&k, i) : 0;
    }
    return count;
}

/* The schedule's own bytes. */
static int64_t dpari_plan_bytes(const dpari_plan *k, int64_t *actions)
{
    int32_t i;
    *actions = 0;
    for (i = 0; i < k->stages; i++) {
        *actions += dpari_plan_count(k, i);
    }
    return dpar_schedule_bytes(k->p, k->stages, *actions);
}

static int dpari_plan_works(const dpari_plan *k)
{
    return k->rule == DPAR_V_HALF || k->rule == DPAR_V_MIN || k->rule == DPAR_1F1B_V;
}

DPAR_API int64_t dpar_order_bytes(const dpar_order *order, dpar_why *why)
{
    dpari_plan k;
    int64_t actions, bytes;
    if (dpar_order_check(order, why) != DPAR_OK) {
        return -1;
    }
    k = dpari_plan_of(order);
    bytes = dpari_plan_bytes(&k, &actions);
    return dpari_plan_works(&k) ? (bytes + 7) / 8 * 8 + dpari_v_work(k.p, k.m) : bytes;
}

/* ---- writing a rank's list ------------------------------------------------------------------ */

typedef struct dpari_pen {
    dpar_action *at;
    const dpar_action *input; /* the first I that has no W yet, or before it */
} dpari_pen;

static void dpari_pen_put(dpari_pen *pen, int kind, int32_t stage, int32_t micro)
{
    dpar_action *a = pen->at++;
    a->kind = (uint8_t)kind;
    a->joined = 0;
    a->stage = (uint16_t)stage;
    a->micro = (uint16_t)micro;
    a->peer = 0;
}

/* The W of the oldest I that has none. */
static void dpari_pen_weight(dpari_pen *pen)
{
    while (pen->input->kind != DPAR_INPUT) {
        pen->input++;
    }
    dpari_pen_put(pen, DPAR_WEIGHT, pen->input->stage, pen->input->micro);
    pen->input++;
}

/* ---- the rules that take turns, F and backward ---------------------------------------------- */

/* Where one goes through the micro-batches: a group through chunk 0, then through chunk 1, ... */
typedef struct dpari_turn {
    int32_t first, size, chunk, at; /* the group's first micro-batch and size */
    int32_t wide;                   /* groups to come that have one more */
} dpari_turn;

static void dpari_turn_group(dpari_turn *t, const dpari_plan *k, int32_t first)
{
    int32_t left = k->m - first;
    t->first = first;
    t->size = k->size + (t->wide > 0);
    t->size = t->size < left ? t->size : left;
    t->wide -= t->wide > 0;
}

static void dpari_turn_start(dpari_turn *t, const dpari_plan *k)
{
    t->chunk = 0;
    t->at = 0;
    t->wide = k->wide;
    dpari_turn_group(t, k, 0);
}

static void dpari_turn_next(dpari_turn *t, const dpari_plan *k)
{
    if (++t->at == t->size) {
        t->at = 0;
        if (++t->chunk == k->v) {
            t->chunk = 0;
            dpari_turn_group(t, k, t->first + t->size);
        }
    }
}

/* How many F's a rank is ahead of its backwards. */
static int64_t dpari_plan_ahead(const dpari_plan *k, int32_t rank)
{
    int64_t near = k->p - 1 - rank; /* ranks behind */
    int64_t laps = (int64_t)(k->v - 1) * (k->size + (k->wide > 0));
    switch (k->rule) {
    case DPAR_1F1B:
    case DPAR_ZB_H1: return near;
    case DPAR_INTERLEAVED_ZB: return laps + near;
    case DPAR_SEQ1F1B: return near + k->slices - 1;
    case DPAR_MOE_OVERLAP: return laps + 2 * near + 1;
    default: return laps + 2 * near;
    }
}

static void dpari_order_turns(const dpari_plan *k, int32_t rank, dpari_pen *pen)
{
    int64_t n = (int64_t)k->m * k->v, i;
    int64_t ahead = dpari_least(dpari_plan_ahead(k, rank), n);
    int64_t late = k->rule == DPAR_ZB_2P ? 2 * (int64_t)rank : rank; /* I's before the first W */
    int split = k->rule == DPAR_ZB_H1 || k->rule == DPAR_ZB_2P || k->rule == DPAR_INTERLEAVED_ZB;
    dpari_turn f, b;
    dpari_turn_start(&f, k);
    dpari_turn_start(&b, k);
    for (i = 0; i < n + ahead; i++) {
        if (i < n) {
            dpari_pen_put(pen, DPAR_FORWARD, f.chunk * k->p + rank, f.first + f.at);
            pen->at[-1].joined = k->rule == DPAR_MOE_OVERLAP && i >= ahead;
            dpari_turn_next(&f, k);
        }
        if (i >= ahead) {
            int32_t u = b.first + b.at;
            if (k->slices > 1) {
                u += k->slices - 1 - 2 * (u % k->slices);
            }
            dpari_pen_put(pen, split ? DPAR_INPUT : DPAR_BACKWARD,
                          (k->v - 1 - b.chunk) * k->p + rank, u);
            dpari_turn_next(&b, k);
            if (split && i - ahead >= late) {
                dpari_pen_weight(pen);
            }
        }
    }
    for (i = split ? dpari_least(late, n) : 0; i > 0; i--) {
        dpari_pen_weight(pen);
    }
}

/* ---- the rules that go through all micro-batches at once ------------------------------------ */

/* All of a stage's F's, or B's, at the end of its rank's list so far, which is at s->begin. */
static void dpari_sweep_stage(const dpari_plan *k, dpar_schedule *s, int32_t stage, int kind)
{
    int64_t *end = &s->begin[s->rank_of[stage]];
    dpari_pen pen;
    int32_t i;
    pen.at = s->action + *end;
    for (i = 0; i < k->m; i++) {
        int turned = kind == DPAR_BACKWARD && k->lifo;
        dpari_pen_put(&pen, kind, stage, turned ? k->m - 1 - i : i);
    }
    *end += k->m;
}

static void dpari_sweep_all(const dpari_plan *k, dpar_schedule *s)
{
    int32_t i;
    for (i = 0; i < k->stages; i++) {
        dpari_sweep_stage(k, s, i, DPAR_FORWARD);
    }
    for (i = k->stages - 1; i >= 0 && k->rule != DPAR_FORWARD_ONLY; i--) {
        dpari_sweep_stage(k, s, i, DPAR_BACKWARD);
    }
    for (i = k->p; i > 0; i--) { /* each begin has become the next one's */
        s->begin[i] = s->begin[i - 1];
    }
    s->begin[0] = 0;
}

/* ---- ZBV ------------------------------------------------------------------------------------ */

/* A rank with two stages; how far each kind of each has come. */
typedef struct dpari_two {
    dpari_pen *pen;
    int32_t m;        /* micro-batches from here on are left out */
    int32_t stage[2]; /* down, up */
    int32_t next[2][DPAR_WEIGHT + 1];
} dpari_two;

static void dpari_two_put(dpari_two *t, int kind, int way)
{
    int32_t micro = t->next[way][kind]++;
    if (micro < t->m) {
        dpari_pen_put(t->pen, kind, t->stage[way], micro);
    }
}

static void dpari_two_back(dpari_two *t, int way)
{
    dpari_two_put(t, DPAR_INPUT, way);
    dpari_two_put(t, DPAR_WEIGHT, way);
}

static void dpari_order_zbv(const dpari_plan *k, int32_t rank, dpari_pen *pen)
{
    int32_t n = k->m > 2 * k->p - 1 ? k->m : 2 * k->p - 1, i;
    dpari_two t;
    dpari_zero(&t, sizeof(t));
    t.pen = pen;
    t.m = k->m;
    t.stage[0] = rank;
    t.stage[1] = 2 * k->p - 1 - rank;
    for (i = 0; i < 2 * (k->p - rank) - 1; i++) {
        dpari_two_put(&t, DPAR_FORWARD, 0);
    }
    for (i = 0; i < rank; i++) {
        dpari_two_put(&t, DPAR_FORWARD, 1);
        dpari_two_put(&t, DPAR_FORWARD, 0);
    }
    for (i = rank; i < k->p; i++) {
        dpari_two_put(&t, DPAR_FORWARD, 1);
        dpari_two_back(&t, 1);
    }
    while (t.next[1][DPAR_FORWARD] < n) {
        dpari_two_put(&t, DPAR_FORWARD, 0);
        dpari_two_back(&t, 0);
        dpari_two_put(&t, DPAR_FORWARD, 1);
        dpari_two_back(&t, 1);
    }
    for (i = 0; i < rank; i++) {
        dpari_two_put(&t, DPAR_INPUT, 0);
        dpari_two_put(&t, DPAR_INPUT, 1);
    }
    for (i = rank; i < k->p; i++) {
        dpari_two_back(&t, 0);
    }
    while (t.next[1][DPAR_WEIGHT] < n) {
        dpari_two_put(&t, DPAR_WEIGHT, 1);
    }
    while (t.next[0][DPAR_WEIGHT] < n) {
        dpari_two_put(&t, DPAR_WEIGHT, 0);
    }
}

/* ---- DualPipe and DualPipeV ----------------------------------------------------------------- */

/* Way 0 begins at this rank's end of the pipeline, way 1 comes from the other. */
typedef struct dpari_dual {
    dpari_pen *pen;
    int32_t stage[2], forward[2], backward[2]; /* forward, backward: the next micro-batch */
} dpari_dual;

static void dpari_dual_f(dpari_dual *d, int way)
{
    dpari_pen_put(d->pen, DPAR_FORWARD, d->stage[way], d->forward[way]++);
}

static void dpari_dual_b(dpari_dual *d, int way, int kind)
{
    dpari_pen_put(d->pen, kind, d->stage[way], d->backward[way]++);
}

/* F of one way together with B of the other. */
static void dpari_dual_fb(dpari_dual *d, int way)
{
    dpari_dual_f(d, way);
    d->pen->at[-1].joined = 1;
    dpari_dual_b(d, 1 - way, DPAR_BACKWARD);
}

/* Rank `at` of `p` that fold or face each other, n micro-batches each way. */
static void dpari_dual_steps(dpari_dual *d, int32_t p, int32_t at, int32_t n)
{
    int32_t i;
    for (i = 0; i < 2 * (p - at - 1); i++) {
        dpari_dual_f(d, 0);
    }
    for (i = 0; i <= at; i++) {
        dpari_dual_f(d, 0);
        dpari_dual_f(d, 1);
    }
    for (i = at + 1; i < p; i++) {
        dpari_dual_b(d, 1, DPAR_INPUT);
        dpari_pen_weight(d->pen);
        dpari_dual_f(d, 1);
    }
    for (i = 0; i < n - 2 * p + at + 1; i++) {
        dpari_dual_fb(d, 0);
        if (i == 0 && at == p - 1) { /* in the middle the first two are apart: less to wait for */
            d->pen->at[-2].joined = 0;
        }
        dpari_dual_fb(d, 1);
    }
    for (i = at + 1; i < p; i++) {
        dpari_dual_b(d, 1, DPAR_BACKWARD);
        dpari_dual_fb(d, 1);
    }
    for (i = 0; i < 2 * (at + 1); i++) {
        dpari_dual_b(d, i % 2 == 0, i <= at ? DPAR_BACKWARD : DPAR_INPUT);
    }
    for (i = at + 1; i < p; i++) {
        dpari_pen_weight(d->pen);
        dpari_dual_b(d, 0, DPAR_INPUT);
    }
    for (i = 0; i <= at; i++) {
        dpari_pen_weight(d->pen);
    }
}

static void dpari_order_dual(const dpari_plan *k, int32_t rank, dpari_pen *pen)
{
    int faces = k->rule == DPAR_DUALPIPE, turned = faces && rank >= k->p / 2;
    int32_t half = faces ? k->m / 2 : 0;
    dpari_dual d;
    d.pen = pen;
    d.stage[turned] = rank;
    d.stage[1 - turned] = 2 * k->p - 1 - rank;
    d.forward[turned] = d.backward[turned] = 0;
    d.forward[1 - turned] = d.backward[1 - turned] = half;
    dpari_dual_steps(&d, faces ? k->p / 2 : k->p, turned ? k->p - 1 - rank : rank,
                     faces ? half : k->m);
}

/* ---- Chimera -------------------------------------------------------------------------------- */

/* With equal slots for F and B, slot t of a rank belongs by its parity to one of two streams: F's
 * on the way down then B's of the way up, or F's on the way up then B's of the way down, each p/2
 * of a unit, unit behind unit without a gap. */
static void dpari_chimera_put(const dpari_plan *k, int32_t rank, int up, int32_t i, dpari_pen *pen)
{
    int32_t half = k->p / 2, unit = i / k->p, of = i % k->p;
    int back = of >= half;
    int is_up = up != back;
    int32_t micro = unit * k->p + of % half + (is_up ? half : 0);
    if (micro < k->m) {
        dpari_pen_put(pen, back ? DPAR_BACKWARD : DPAR_FORWARD, is_up ? 2 * k->p - 1 - rank : rank,
                      micro);
    }
}

static void dpari_order_chimera(const dpari_plan *k, int32_t rank, dpari_pen *pen)
{
    int up = rank >= k->p / 2; /* the stream that begins first here */
    int32_t lead = up ? rank - k->p / 2 + 1 : k->p / 2 - rank; /* and by how many */
    int32_t n = (k->m + k->p - 1) / k->p * k->p, i;
    for (i = 0; i < n + lead; i++) {
        if (i >= lead) {
            dpari_chimera_put(k, rank, !up, i - lead, pen);
        }
        if (i < n) {
            dpari_chimera_put(k, rank, up, i, pen);
        }
    }
}

/* ---- all of them ---------------------------------------------------------------------------- */

static void dpari_order_write(const dpari_plan *k, int32_t rank, dpar_action *at)
{
    dpari_pen pen;
    pen.at = at;
    pen.input = at;
    switch (k->rule) {
    case DPAR_ZBV: dpari_order_zbv(k, rank, &pen); break;
    case DPAR_DUALPIPE:
    case DPAR_DUALPIPEV: dpari_order_dual(k, rank, &pen); break;
    case DPAR_CHIMERA: dpari_order_chimera(k, rank, &pen); break;
    default: dpari_order_turns(k, rank, &pen); break;
    }
}

/* Which rank each stage is on, and where each rank's list begins. */
static void dpari_order_lists(dpar_schedule *s, const dpari_plan *k, const dpar_order *order)
{
    int32_t i;
    for (i = 0; i < s->stages; i++) {
        s->rank_of[i] = (uint16_t)dpari_order_rank(order, i);
        s->begin[s->rank_of[i] + 1] += dpari_plan_count(k, i);
    }
    for (i = 0; i < k->p; i++) {
        s->begin[i + 1] += s->begin[i];
    }
}

DPAR_API dpar_status dpar_order_make(dpar_schedule *schedule, const dpar_order *order, void *mem,
                                     int64_t bytes, dpar_why *why)
{
    dpar_schedule s;
    dpari_plan k;
    int64_t actions, own, needed = dpar_order_bytes(order, why);
    int32_t r;
    if (needed < 0) {
        return dpar_order_check(order, NULL);
    }
    if (bytes < needed) {
        return dpari_say_word(DPAR_E_ROOM, why,
                              "@ of # ranks and # micro-batches takes # bytes, "
                              "there are #",
                              dpar_order_name(order->rule), 16, order->ranks, order->micros, needed,
                              bytes);
    }
    k = dpari_plan_of(order);
    own = dpari_plan_bytes(&k, &actions);
    (void)dpar_schedule_lay(&s, k.p, k.stages, actions, mem, bytes, NULL);
    s.micros = k.m;
    s.slices = k.slices;
    s.chain = dpari_order_both_ways(k.rule) ? k.p : s.stages;
    dpari_order_lists(&s, &k, order);
    if (dpari_order_sweeps(k.rule)) {
        dpari_sweep_all(&k, &s);
    } else if (dpari_plan_works(&k)) {
        dpari_v_make(k.rule, &s, (unsigned char *)mem + (own + 7) / 8 * 8);
    } else {
        for (r = 0; r < k.p; r++) {
            dpari_order_write(&k, r, s.action + s.begin[s.rank_of[r]]);
        }
    }
    *schedule = s;
    return DPAR_OK;
}

/* ==== order/lower.c ==== */

/* ---- what every pass asks of its list ------------------------------------------------------- */

static dpar_status dpari_lower_say(dpar_why *why, int32_t rank, int64_t index, const dpar_action *a,
                                   const char *wrong)
{
    dpar_action alone = *a; /* a joined one's other half may not be there */
    dpar_text t;
    if (why != NULL) {
        alone.joined = 0;
        dpar_text_init(&t, why->text, sizeof(why->text));
        dpar_text_put(&t, "rank ");
        dpar_text_int(&t, rank);
        dpar_text_put(&t, ", action ");
        dpar_text_int(&t, index);
        dpar_text_put(&t, ": ");
        dpar_action_text(&alone, &t);
        dpar_text_put(&t, wrong);
    }
    return DPAR_E_ARG;
}

static int dpari_kind_in(int32_t kind, uint32_t kinds)
{
    return kind < DPAR_ACTION_KINDS && (kinds >> kind & 1) != 0;
}

enum {
    DPARI_COMPUTES_INPUT = 1 << DPAR_BACKWARD | 1 << DPAR_INPUT, /* needs and gives a gradient */
    DPARI_RECEIVES = 1 << DPAR_RECV_F | 1 << DPAR_RECV_B,
    DPARI_MESSAGES = DPARI_RECEIVES | 1 << DPAR_SEND_F | 1 << DPAR_SEND_B
};

/* The stage at the other end of a message; -1 when the chain ends here. */
static int32_t dpari_lower_other(const dpar_schedule *s, const dpar_action *a)
{
    return a->kind == DPAR_SEND_F || a->kind == DPAR_RECV_B ? dpar_schedule_behind(s, a->stage)
                                                            : dpar_schedule_before(s, a->stage);
}

/* What is wrong with rank r's action k; NULL: nothing. */
static const char *dpari_lower_wrong(const dpar_schedule *s, int32_t r, int64_t k)
{
    const dpar_action *a = &s->action[k];
    int32_t other;
    if (a->kind >= DPAR_ACTION_KINDS) {
        return "there is no such kind";
    }
    if (a->joined > 1) {
        return " is joined to more than one";
    }
    if (a->joined != 0 && (a->kind != DPAR_FORWARD || k + 1 == s->begin[r + 1] ||
                           !dpari_kind_in(a[1].kind, DPARI_COMPUTES_INPUT) || a[1].joined != 0)) {
        return " is joined, but is no forward with a B or I behind it";
    }
    if (a->kind == DPAR_IDLE) {
        return NULL;
    }
    if (a->stage >= s->stages || s->rank_of[a->stage] != r) {
        return " is of a stage that is not on this rank";
    }
    if (dpar_action_has_micro(a->kind) && a->micro >= s->micros) {
        return " is of a micro-batch that there is not";
    }
    if (dpari_kind_in(a->kind, DPARI_MESSAGES)) {
        other = dpari_lower_other(s, a);
        if (other < 0 || s->rank_of[other] != a->peer || a->peer == r) {
            return " is no message between neighbours on two ranks";
        }
    }
    return NULL;
}

/* Refuses what would lead a pass astray, and the kinds in the bit mask `already`. */
static dpar_status dpari_lower_check(const dpar_schedule *s, uint32_t already, dpar_why *why)
{
    int32_t r, i;
    int64_t k;
    if (s->ranks < 1 || s->ranks > DPAR_MOST_STAGES || s->stages < 1 ||
        s->stages > DPAR_MOST_STAGES || s->micros < 0 || s->micros > DPAR_MOST_MICROS) {
        return dpari_say(DPAR_E_ARG, why,
                         "# ranks, # stages, # micro-batches: 1 to 65535 of the first two, 0 to "
                         "65535 of the last",
                         s->ranks, s->stages, s->micros, 0);
    }
    if (s->chain < 1 || s->stages % s->chain != 0) {
        return dpari_say(DPAR_E_ARG, why, "chains of # stages do not divide # stages", s->chain,
                         s->stages, 0, 0);
    }
    for (i = 0; i < s->stages; i++) {
        if (s->rank_of[i] >= s->ranks) {
            return dpari_say(DPAR_E_ARG, why, "stage # is on rank # of #", i, s->rank_of[i],
                             s->ranks, 0);
        }
    }
    for (r = 0; r < s->ranks; r++) {
        if (s->begin[0] != 0 || s->begin[r + 1] < s->begin[r]) {
            return dpari_say(DPAR_E_ARG, why, "rank #'s list is of the actions # to #", r,
                             s->begin[r], s->begin[r + 1], 0);
        }
        for (k = s->begin[r]; k < s->begin[r + 1]; k++) {
            const char *wrong = dpari_lower_wrong(s, r, k);
            if (wrong == NULL && dpari_kind_in(s->action[k].kind, already)) {
                wrong = " is there already";
            }
            if (wrong != NULL) {
                return dpari_lower_say(why, r, k - s->begin[r], &s->action[k], wrong);
            }
        }
    }
    return DPAR_OK;
}

static int64_t dpari_lower_align(int64_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* out is laid for `actions` with in's description; *work is what lies behind it. */
static dpar_status dpari_lower_lay(dpar_schedule *out, const dpar_schedule *in, int64_t actions,
                                   int64_t needed, void *mem, int64_t bytes, char **work,
                                   dpar_why *why)
{
    dpar_status st;
    int32_t i;
    if (bytes < needed) {
        return dpari_say(DPAR_E_ROOM, why, "the pass takes # bytes, there are #", needed, bytes, 0,
                         0);
    }
    st = dpar_schedule_lay(out, in->ranks, in->stages, actions, mem, bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    out->micros = in->micros;
    out->chain = in->chain;
    out->slices = in->slices;
    for (i = 0; i < in->stages; i++) {
        out->rank_of[i] = in->rank_of[i];
    }
    *work = (char *)mem + dpari_lower_align(dpar_schedule_bytes(in->ranks, in->stages, actions));
    return DPAR_OK;
}

/* Where a pass writes; with at == NULL it only counts. */
typedef struct dpari_sink {
    dpar_action *at;
    int64_t n;
} dpari_sink;

static void dpari_sink_put(dpari_sink *to, const dpar_action *a)
{
    if (to->at != NULL) {
        to->at[to->n] = *a;
    }
    to->n++;
}

static void dpari_sink_stage(dpari_sink *to, int32_t kind, int32_t stage)
{
    dpar_action a;
    dpari_zero(&a, sizeof(a));
    a.kind = (uint8_t)kind;
    a.stage = (uint16_t)stage;
    dpari_sink_put(to, &a);
}

/* ---- shards and gradients ------------------------------------------------------------------- */

/* The stages of the actions [from here, end): in the order in which they are first needed. A stage
 * whose last use is gone stays until it is let go; at most two are, those of a joined pair, and one
 * more than max_active when a pair came last. */
typedef struct dpari_window {
    int64_t end;
    int32_t stages, used, max_active; /* used: of the stages, those with uses > 0 */
    int64_t uses[DPAR_MOST_ACTIVE + 3];
    uint16_t stage[DPAR_MOST_ACTIVE + 3];
    uint8_t gathered[DPAR_MOST_ACTIVE + 3];
} dpari_window;

static int32_t dpari_window_find(const dpari_window *w, int32_t stage)
{
    int32_t i;
    for (i = 0; i < w->stages && w->stage[i] != stage; i++) {
    }
    return i;
}

static void dpari_window_use(dpari_window *w, const dpar_action *a)
{
    int32_t i = dpari_window_find(w, a->stage);
    if (i == w->stages) {
        w->stages++;
        w->uses[i] = 0;
        w->stage[i] = a->stage;
        w->gathered[i] = 0;
    }
    w->used += w->uses[i]++ == 0;
}

static void dpari_window_done(dpari_window *w, const dpar_action *a)
{
    w->used -= --w->uses[dpari_window_find(w, a->stage)] == 0;
}

/* Goes on until there are max_active stages in the window or the list ends. */
static void dpari_window_extend(dpari_window *w, const dpar_schedule *s, int64_t end)
{
    while (w->used < w->max_active && w->end < end) {
        const dpar_action *a = &s->action[w->end];
        w->end += 1 + a->joined;
        if (a->kind != DPAR_IDLE) {
            dpari_window_use(w, a);
        }
        if (a->joined) {
            dpari_window_use(w, a + 1);
        }
    }
}

/* RESHARD of the stages that are used no more, the smallest first. */
static void dpari_window_let_go(dpari_window *w, dpari_sink *to)
{
    while (w->stages > w->used) {
        int32_t i, least = -1;
        for (i = 0; i < w->stages; i++) {
            if (w->uses[i] == 0 && (least < 0 || w->stage[i] < w->stage[least])) {
                least = i;
            }
        }
        dpari_sink_stage(to, DPAR_RESHARD, w->stage[least]);
        for (w->stages--, i = least; i < w->stages; i++) {
            w->uses[i] = w->uses[i + 1];
            w->stage[i] = w->stage[i + 1];
            w->gathered[i] = w->gathered[i + 1];
        }
    }
}

static void dpari_window_gather(dpari_window *w, dpari_sink *to)
{
    int32_t i;
    for (i = 0; i < w->stages; i++) {
        if (!w->gathered[i]) {
            w->gathered[i] = 1;
            dpari_sink_stage(to, DPAR_UNSHARD, w->stage[i]);
        }
    }
}

/* Rank r's list without idle actions, with UNSHARD and RESHARD (max_active > 0) and REDUCE_GRAD
 * (left != NULL: each stage's B and W to come). */
static void dpari_lower_rank(const dpar_schedule *s, int32_t r, int32_t max_active, int64_t *left,
                             dpari_sink *to)
{
    dpari_window w;
    int64_t k, h;
    w.end = s->begin[r];
    w.stages = w.used = 0;
    w.max_active = max_active;
    for (k = s->begin[r]; k < s->begin[r + 1]; k += 1 + s->action[k].joined) {
        const dpar_action *a = &s->action[k];
        if (a->kind == DPAR_IDLE) {
            continue;
        }
        dpari_window_extend(&w, s, s->begin[r + 1]);
        dpari_window_let_go(&w, to);
        dpari_window_gather(&w, to);
        for (h = 0; h <= a->joined; h++) {
            dpari_sink_put(to, a + h);
        }
        for (h = 0; h <= a->joined; h++) {
            if (left != NULL && (a[h].kind == DPAR_BACKWARD || a[h].kind == DPAR_WEIGHT) &&
                --left[a[h].stage] == 0) {
                dpari_sink_stage(to, DPAR_REDUCE_GRAD, a[h].stage);
            }
            if (max_active > 0) {
                dpari_window_done(&w, a + h);
            }
        }
    }
    dpari_window_let_go(&w, to);
}

/* ---- a set of ranks, smallest first --------------------------------------------------------- */

/* 64 ranks a word; above them a bit for each word that is not 0, and again: 65535 ranks have one
 * word at the top. */
typedef struct dpari_ready {
    uint64_t *top, *middle, *word;
} dpari_ready;

static int64_t dpari_ready_words(int32_t ranks)
{
    return 1 + (ranks + 4095) / 4096 + (ranks + 63) / 64;
}

static void dpari_ready_lay(dpari_ready *s, int32_t ranks, uint64_t *mem)
{
    s->top = mem;
    s->middle = mem + 1;
    s->word = s->middle + (ranks + 4095) / 4096;
    dpari_zero(mem, 8 * (size_t)dpari_ready_words(ranks));
}

static void dpari_ready_add(dpari_ready *s, int32_t rank)
{
    s->word[rank >> 6] |= (uint64_t)1 << (rank & 63);
    s->middle[rank >> 12] |= (uint64_t)1 << (rank >> 6 & 63);
    *s->top |= (uint64_t)1 << (rank >> 12);
}

/* The number of the lowest bit that is set; w is not 0. */
static int32_t dpari_lowest_bit(uint64_t w)
{
    int32_t n = 0, half;
    for (half = 32; half > 0; half >>= 1) {
        if ((w & (((uint64_t)1 << half) - 1)) == 0) {
            w >>= half;
            n += half;
        }
    }
    return n;
}

/* Takes the smallest out; -1 when there is none. */
static int32_t dpari_ready_take(dpari_ready *s)
{
    int32_t a, b, rank;
    if (*s->top == 0) {
        return -1;
    }
    a = dpari_lowest_bit(*s->top);
    b = a * 64 + dpari_lowest_bit(s->middle[a]);
    rank = b * 64 + dpari_lowest_bit(s->word[b]);
    s->word[b] &= s->word[b] - 1;
    if (s->word[b] == 0) {
        s->middle[a] &= s->middle[a] - 1;
    }
    if (s->middle[a] == 0) {
        *s->top &= *s->top - 1;
    }
    return rank;
}

/* ---- messages ------------------------------------------------------------------------------- */

enum { DPARI_GIVEN_F = 1, DPARI_GIVEN_B = 2 };

/* A rank's next action: its place in `from`, a copy (two when joined), which saves most of the
 * misses where lists' lengths are powers of two; and where the list that it goes to has come. */
typedef struct dpari_head {
    int64_t at, end, to;
    dpar_action a[2];
} dpari_head;

typedef struct dpari_turns {
    const dpar_schedule *in;
    dpar_schedule *out;
    const dpar_action *from; /* in's actions, or those that the first passes left in out */
    dpari_head *head;        /* [ranks] */
    dpari_ready now, next;   /* who acts in this turn and in the next */
    uint8_t *given;          /* [stage][micro]: its input and its output's gradient are there */
    int idle;                /* idle actions take a turn */
} dpari_turns;

/* Is there a neighbour to whom this action's result goes? Its stage, else -1. */
static int32_t dpari_lower_receiver(const dpar_schedule *s, const dpar_action *a)
{
    return a->kind == DPAR_FORWARD                        ? dpar_schedule_behind(s, a->stage)
           : dpari_kind_in(a->kind, DPARI_COMPUTES_INPUT) ? dpar_schedule_before(s, a->stage)
                                                          : -1;
}

static uint8_t *dpari_lower_given(const dpari_turns *l, int32_t stage, int32_t micro)
{
    return &l->given[(int64_t)stage * l->in->micros + micro];
}

static int dpari_lower_has(const dpari_turns *l, const dpar_action *a)
{
    return a->kind == DPAR_FORWARD
               ? (*dpari_lower_given(l, a->stage, a->micro) & DPARI_GIVEN_F) != 0
           : dpari_kind_in(a->kind, DPARI_COMPUTES_INPUT)
               ? (*dpari_lower_given(l, a->stage, a->micro) & DPARI_GIVEN_B) != 0
               : 1;
}

/* May the rank put its next action down? */
static int dpari_lower_ready(const dpari_turns *l, int32_t rank)
{
    const dpari_head *h = &l->head[rank];
    return h->at < h->end && dpari_lower_has(l, &h->a[0]) &&
           (!h->a[0].joined || dpari_lower_has(l, &h->a[1]));
}

/* The head goes to the next action; if it may be put down, that is in the next turn. */
static void dpari_lower_next(dpari_turns *l, int32_t rank)
{
    dpari_head *h = &l->head[rank];
    while (!l->idle && h->at < h->end && l->from[h->at].kind == DPAR_IDLE) {
        h->at++;
    }
    if (h->at < h->end) {
        h->a[0] = l->from[h->at];
        h->a[1] = l->from[h->at + h->a[0].joined];
    }
    if (dpari_lower_ready(l, rank)) {
        dpari_ready_add(&l->next, rank);
    }
}

static void dpari_lower_message(dpari_turns *l, int32_t rank, const dpar_action *a, int32_t kind,
                                int32_t stage, int32_t peer)
{
    dpar_action *m = &l->out->action[l->head[rank].to++];
    *m = *a;
    m->kind = (uint8_t)kind;
    m->joined = 0;
    m->stage = (uint16_t)stage;
    m->peer = (uint16_t)peer;
}

/* Gives an action's result to the neighbour, who may be on this rank. Another rank that can go on
 * now does so in this turn when it is behind this one. */
static void dpari_lower_give(dpari_turns *l, int32_t rank, const dpar_action *a)
{
    int32_t stage = dpari_lower_receiver(l->in, a), peer;
    int forward = a->kind == DPAR_FORWARD;
    if (stage < 0) {
        return;
    }
    *dpari_lower_given(l, stage, a->micro) |= (uint8_t)(forward ? DPARI_GIVEN_F : DPARI_GIVEN_B);
    peer = l->in->rank_of[stage];
    if (peer == rank) {
        return;
    }
    dpari_lower_message(l, rank, a, forward ? DPAR_SEND_F : DPAR_SEND_B, a->stage, peer);
    dpari_lower_message(l, peer, a, forward ? DPAR_RECV_F : DPAR_RECV_B, stage, rank);
    if (dpari_lower_ready(l, peer)) {
        dpari_ready_add(peer > rank ? &l->now : &l->next, peer);
    }
}

/* The rank's next action goes into its list. */
static void dpari_lower_step(dpari_turns *l, int32_t rank)
{
    dpari_head *h = &l->head[rank];
    int32_t i, n = 1 + h->a[0].joined;
    h->at += n;
    for (i = 0; i < n && h->a[0].kind != DPAR_IDLE; i++) {
        l->out->action[h->to++] = h->a[i];
    }
    for (i = 0; i < n; i++) {
        dpari_lower_give(l, rank, &h->a[i]);
    }
    dpari_lower_next(l, rank);
}

/* "rank 2 waits for 2RECV_F3: stage 1's F3 never comes". */
static dpar_status dpari_lower_stuck(const dpari_turns *l, int32_t rank, dpar_why *why)
{
    const dpar_action *a = l->head[rank].a;
    dpar_action wait;
    dpar_text t;
    int32_t stage;
    if (why == NULL) {
        return DPAR_E_ARG;
    }
    wait = dpari_lower_has(l, a) ? a[1] : a[0];
    wait.joined = 0;
    wait.kind = wait.kind == DPAR_FORWARD ? DPAR_RECV_F : DPAR_RECV_B;
    stage = dpari_lower_other(l->in, &wait);
    dpar_text_init(&t, why->text, sizeof(why->text));
    dpar_text_put(&t, "rank ");
    dpar_text_int(&t, rank);
    dpar_text_put(&t, " waits for ");
    if (l->in->rank_of[stage] != rank) {
        dpar_action_text(&wait, &t);
        dpar_text_put(&t, ": ");
    }
    dpar_text_put(&t, "stage ");
    dpar_text_int(&t, stage);
    dpar_text_put(&t, wait.kind == DPAR_RECV_F ? "'s F" : "'s B");
    dpar_text_int(&t, wait.micro);
    dpar_text_put(&t, l->in->rank_of[stage] != rank ? " never comes"
                                                    : ", which comes later here or never");
    return DPAR_E_ARG;
}

/* Turn by turn; a turn visits, ranks ascending, only those that can go on. */
static dpar_status dpari_lower_messages(dpari_turns *l, dpar_why *why)
{
    int32_t r;
    for (r = 0; r < l->in->ranks; r++) {
        dpari_lower_next(l, r);
    }
    while (*l->next.top != 0) {
        dpari_ready turn = l->next;
        l->next = l->now;
        l->now = turn;
        for (r = dpari_ready_take(&l->now); r >= 0; r = dpari_ready_take(&l->now)) {
            dpari_lower_step(l, r);
        }
    }
    for (r = 0; r < l->in->ranks; r++) {
        if (l->head[r].at < l->head[r].end) {
            return dpari_lower_stuck(l, r, why);
        }
    }
    return DPAR_OK;
}

/* ---- lowering ------------------------------------------------------------------------------- */

/* `how` with its defaults, and everything judged. */
static dpar_status dpari_lower_how(dpar_lowering *how, const dpar_schedule *in,
                                   const dpar_lowering *asked, dpar_why *why)
{
    uint32_t already = 0;
    how->passes = asked != NULL ? asked->passes : 0;
    how->max_active = asked != NULL && asked->max_active != 0 ? asked->max_active : 3;
    if (how->passes < 0 || how->passes > 15) {
        return dpari_say(DPAR_E_ARG, why, "passes # are no sum of DPAR_LOWER_...", how->passes, 0,
                         0, 0);
    }
    if (how->max_active < 1 || how->max_active > DPAR_MOST_ACTIVE) {
        return dpari_say(DPAR_E_ARG, why, "max_active # is not 1 to #", how->max_active,
                         DPAR_MOST_ACTIVE, 0, 0);
    }
    if ((how->passes & ~DPAR_LOWER_IDLE) == 0) {
        how->passes |= DPAR_LOWER_MESSAGES;
    }
    if ((how->passes & DPAR_LOWER_SHARDS) == 0) {
        how->max_active = 0;
    } else {
        already |= 1u << DPAR_UNSHARD | 1u << DPAR_RESHARD;
    }
    if ((how->passes & DPAR_LOWER_REDUCE) != 0) {
        already |= 1u << DPAR_REDUCE_GRAD;
    }
    if ((how->passes & DPAR_LOWER_MESSAGES) != 0) {
        already |= DPARI_MESSAGES;
    }
    return dpari_lower_check(in, already, why);
}

/* All messages, each on two ranks; adds those of each rank to count[rank]. */
static int64_t dpari_lower_count(const dpar_schedule *s, int64_t *count)
{
    int64_t k, total = 0;
    int32_t r, stage;
    for (r = 0; r < s->ranks; r++) {
        for (k = s->begin[r]; k < s->begin[r + 1]; k++) {
            stage = dpari_lower_receiver(s, &s->action[k]);
            if (stage >= 0 && s->rank_of[stage] != r) {
                total += 2;
                if (count != NULL) {
                    count[r]++;
                    count[s->rank_of[stage]]++;
                }
            }
        }
    }
    return total;
}

/* Room for the actions of out; REDUCE takes no more than one a stage. */
static int64_t dpari_lower_actions(const dpar_schedule *in, const dpar_lowering *how)
{
    dpari_sink counted;
    int32_t r;
    counted.at = NULL;
    counted.n = 0;
    for (r = 0; r < in->ranks; r++) {
        dpari_lower_rank(in, r, how->max_active, NULL, &counted);
    }
    if ((how->passes & DPAR_LOWER_REDUCE) != 0) {
        counted.n += in->stages;
    }
    if ((how->passes & DPAR_LOWER_MESSAGES) != 0) {
        counted.n += dpari_lower_count(in, NULL);
    }
    return counted.n;
}

/* The schedule, then heads and two sets of ready ranks, each stage's backwards to come, and what
 * was given; -1 when that passes int64_t. */
static int64_t dpari_lower_size(const dpar_schedule *in, int64_t actions)
{
    int64_t bytes = dpar_schedule_bytes(in->ranks, in->stages, actions);
    return bytes < 0 ? -1
                     : dpari_lower_align(bytes) + (int64_t)sizeof(dpari_head) * in->ranks +
                           16 * dpari_ready_words(in->ranks) + 8 * (int64_t)in->stages +
                           dpari_lower_align((int64_t)in->stages * in->micros);
}

DPAR_API int64_t dpar_schedule_lower_bytes(const dpar_schedule *in, const dpar_lowering *how,
                                           dpar_why *why)
{
    dpar_lowering h;
    return dpari_lower_how(&h, in, how, why) == DPAR_OK
               ? dpari_lower_size(in, dpari_lower_actions(in, &h))
               : -1;
}

/* Each stage's B and W. */
static void dpari_lower_backwards(const dpar_schedule *s, int64_t *left)
{
    int64_t k;
    dpari_zero(left, sizeof(*left) * (size_t)s->stages);
    for (k = 0; k < s->begin[s->ranks]; k++) {
        const dpar_action *a = &s->action[k];
        left[a->stage < s->stages ? a->stage : 0] +=
            a->kind == DPAR_BACKWARD || a->kind == DPAR_WEIGHT;
    }
}

/* Lays the heads and what is given behind out, and fills out's begins. After the first passes each
 * rank's list stands at the end of its place in out, and messages are put in from the front: there
 * is room for just those in between, so that no action is lost before it is read. */
static void dpari_lower_begin(dpari_turns *l, const dpar_lowering *how, char *work)
{
    const dpar_schedule *s = l->in;
    int first = (how->passes & (DPAR_LOWER_SHARDS | DPAR_LOWER_REDUCE)) != 0;
    int64_t *begin = l->out->begin, *left;
    dpari_sink to;
    int32_t r;
    l->from = first ? l->out->action : s->action;
    l->head = (dpari_head *)(void *)work;
    dpari_ready_lay(&l->now, s->ranks, (uint64_t *)(void *)(l->head + s->ranks));
    dpari_ready_lay(&l->next, s->ranks, l->now.top + dpari_ready_words(s->ranks));
    left = (int64_t *)(void *)(l->next.top + dpari_ready_words(s->ranks));
    l->given = (uint8_t *)(left + s->stages);
    dpari_lower_backwards(s, left);
    if ((how->passes & DPAR_LOWER_MESSAGES) != 0) {
        (void)dpari_lower_count(s, begin + 1);
    }
    for (r = 0; r < s->ranks; r++) {
        dpari_head *h = &l->head[r];
        h->to = begin[r];
        h->at = begin[r] + begin[r + 1];
        to.at = first ? l->out->action + h->at : NULL;
        to.n = 0;
        dpari_lower_rank(s, r, how->max_active, (how->passes & DPAR_LOWER_REDUCE) ? left : NULL,
                         &to);
        begin[r + 1] = h->at + to.n;
        h->at = first ? h->at : s->begin[r];
        h->end = first ? begin[r + 1] : s->begin[r + 1];
    }
}

/* Chains' ends need nobody. */
static void dpari_lower_ends(dpari_turns *l)
{
    int32_t i, m;
    dpari_zero(l->given, (size_t)l->in->stages * (size_t)l->in->micros);
    for (i = 0; i < l->in->stages; i++) {
        int given = (dpar_schedule_before(l->in, i) < 0 ? DPARI_GIVEN_F : 0) |
                    (dpar_schedule_behind(l->in, i) < 0 ? DPARI_GIVEN_B : 0);
        for (m = 0; m < l->in->micros && given != 0; m++) {
            *dpari_lower_given(l, i, m) = (uint8_t)given;
        }
    }
}

DPAR_API dpar_status dpar_schedule_lower(dpar_schedule *out, const dpar_schedule *in,
                                         const dpar_lowering *how, void *mem, int64_t bytes,
                                         dpar_why *why)
{
    dpar_lowering h;
    dpar_schedule got;
    dpari_turns l;
    int64_t actions;
    char *work;
    dpar_status st = dpari_lower_how(&h, in, how, why);
    if (st != DPAR_OK) {
        return st;
    }
    actions = dpari_lower_actions(in, &h);
    st = dpari_lower_lay(&got, in, actions, dpari_lower_size(in, actions), mem, bytes, &work, why);
    if (st != DPAR_OK) {
        return st;
    }
    l.in = in;
    l.out = &got;
    l.idle = (h.passes & DPAR_LOWER_IDLE) != 0;
    dpari_lower_begin(&l, &h, work);
    if ((h.passes & DPAR_LOWER_MESSAGES) != 0) {
        dpari_lower_ends(&l);
        st = dpari_lower_messages(&l, why);
    }
    if (st == DPAR_OK) {
        *out = got;
    }
    return st;
}

/* ---- merging -------------------------------------------------------------------------------- */

/* Without idle actions, W behind its I merged into it. */
static void dpari_merge_rank(const dpar_schedule *s, int32_t r, dpari_sink *to)
{
    dpar_action last; /* read, not put yet */
    int64_t k;
    int whole = 1; /* last is no I on its own */
    dpari_zero(&last, sizeof(last));
    for (k = s->begin[r]; k < s->begin[r + 1]; k++) {
        dpar_action a = s->action[k];
        if (a.kind == DPAR_IDLE) {
            continue;
        }
        if (!whole && a.kind == DPAR_WEIGHT && a.stage == last.stage && a.micro == last.micro) {
            last.kind = DPAR_BACKWARD;
            whole = 1;
            continue;
        }
        if (last.kind != DPAR_IDLE) {
            dpari_sink_put(to, &last);
        }
        whole = a.kind != DPAR_INPUT || last.joined;
        last = a;
    }
    if (last.kind != DPAR_IDLE) {
        dpari_sink_put(to, &last);
    }
}

static int64_t dpari_merge_count(const dpar_schedule *s)
{
    dpari_sink counted;
    int32_t r;
    counted.at = NULL;
    counted.n = 0;
    for (r = 0; r < s->ranks; r++) {
        dpari_merge_rank(s, r, &counted);
    }
    return counted.n;
}

DPAR_API int64_t dpar_schedule_merge_bytes(const dpar_schedule *in, dpar_why *why)
{
    return dpari_lower_check(in, 0, why) == DPAR_OK
               ? dpar_schedule_bytes(in->ranks, in->stages, dpari_merge_count(in))
               : -1;
}

DPAR_API dpar_status dpar_schedule_merge(dpar_schedule *out, const dpar_schedule *in, void *mem,
                                         int64_t bytes, dpar_why *why)
{
    dpar_schedule got;
    dpari_sink to;
    char *work;
    int64_t actions;
    int32_t r;
    dpar_status st = dpari_lower_check(in, 0, why);
    if (st != DPAR_OK) {
        return st;
    }
    actions = dpari_merge_count(in);
    st = dpari_lower_lay(&got, in, actions, dpar_schedule_bytes(in->ranks, in->stages, actions),
                         mem, bytes, &work, why);
    if (st != DPAR_OK) {
        return st;
    }
    to.at = got.action;
    to.n = 0;
    for (r = 0; r < in->ranks; r++) {
        dpari_merge_rank(in, r, &to);
        got.begin[r + 1] = to.n;
    }
    *out = got;
    return DPAR_OK;
}

/* ---- sinking -------------------------------------------------------------------------------- */

/* Receives that are held back: a queue for each class, those of all classes in a rank's list linked
 * through `next`. */
typedef struct dpari_held {
    const dpar_schedule *in;
    dpari_sink to;
    int64_t *first, *last; /* [ranks]: by peer; ANY has one queue, the first */
    int64_t *next;         /* [actions of the list]: the one behind it, from the list's begin */
    uint8_t *given;        /* [stage][micro]: which receives are held */
    int one_queue;
} dpari_held;

static uint8_t *dpari_held_given(const dpari_held *h, const dpar_action *a)
{
    return &h->given[(int64_t)a->stage * h->in->micros + a->micro];
}

static void dpari_held_add(dpari_held *h, int64_t k, int64_t begin)
{
    const dpar_action *a = &h->in->action[k];
    int32_t q = h->one_queue ? 0 : a->peer;
    *dpari_held_given(h, a) |= (uint8_t)(a->kind == DPAR_RECV_F ? DPARI_GIVEN_F : DPARI_GIVEN_B);
    h->next[k - begin] = -1;
    if (h->first[q] < 0) {
        h->first[q] = k;
    } else {
        h->next[h->last[q] - begin] = k;
    }
    h->last[q] = k;
}

/* The next of queue q goes into the list. */
static void dpari_held_pop(dpari_held *h, int32_t q, int64_t begin)
{
    const dpar_action *a = &h->in->action[h->first[q]];
    *dpari_held_given(h, a) &=
        (uint8_t) ~(unsigned)(a->kind == DPAR_RECV_F ? DPARI_GIVEN_F : DPARI_GIVEN_B);
    h->first[q] = h->next[h->first[q] - begin];
    dpari_sink_put(&h->to, a);
}

/* If the receive of a's stage and micro-batch is held, it and those before it in its queue go. */
static void dpari_held_need(dpari_held *h, const dpar_action *a, int forward, int64_t begin)
{
    int32_t other =
        forward ? dpar_schedule_before(h->in, a->stage) : dpar_schedule_behind(h->in, a->stage);
    int32_t q = other < 0 || h->one_queue ? 0 : h->in->rank_of[other];
    while ((*dpari_held_given(h, a) & (forward ? DPARI_GIVEN_F : DPARI_GIVEN_B)) != 0) {
        dpari_held_pop(h, q, begin);
    }
}

/* What must stay before this action goes into the list. */
static void dpari_held_before(dpari_held *h, const dpar_action *a, int32_t channel_class,
                              int64_t begin)
{
    int32_t i, q = h->one_queue ? 0 : a->peer;
    for (i = 0; i <= a->joined; i++) {
        int forward = a[i].kind == DPAR_FORWARD || a[i].kind == DPAR_RECV_F;
        if (forward || a[i].kind == DPAR_RECV_B || dpari_kind_in(a[i].kind, DPARI_COMPUTES_INPUT)) {
            dpari_held_need(h, &a[i], forward, begin);
        }
    }
    if ((a->kind == DPAR_SEND_F || a->kind == DPAR_SEND_B) && channel_class != DPAR_SINK_EDGE) {
        while (h->first[q] >= 0) {
            dpari_held_pop(h, q, begin);
        }
    }
}

static void dpari_sink_rank(dpari_held *h, int32_t r, int32_t channel_class)
{
    const dpar_schedule *s = h->in;
    int64_t k, begin = s->begin[r];
    int32_t i;
    for (k = begin; k < s->begin[r + 1]; k += 1 + s->action[k].joined) {
        const dpar_action *a = &s->action[k];
        dpari_held_before(h, a, channel_class, begin);
        if (dpari_kind_in(a->kind, DPARI_RECEIVES)) {
            dpari_held_add(h, k, begin);
            continue;
        }
        for (i = 0; i <= a->joined; i++) {
            dpari_sink_put(&h->to, a + i);
        }
    }
    for (k = begin; k < s->begin[r + 1]; k++) { /* those that nobody needs, in their order */
        int32_t q = h->one_queue ? 0 : s->action[k].peer;
        if (dpari_kind_in(s->action[k].kind, DPARI_RECEIVES) && h->first[q] == k) {
            dpari_held_pop(h, q, begin);
        }
    }
}

static int64_t dpari_sink_longest(const dpar_schedule *s)
{
    int64_t most = 0;
    int32_t r;
    for (r = 0; r < s->ranks; r++) {
        most = dpari_most(most, s->begin[r + 1] - s->begin[r]);
    }
    return most;
}

static int64_t dpari_sink_size(const dpar_schedule *in)
{
    int64_t bytes = dpar_schedule_bytes(in->ranks, in->stages, in->begin[in->ranks]);
    return bytes < 0
               ? -1
               : dpari_lower_align(bytes) + 16 * (int64_t)in->ranks + 8 * dpari_sink_longest(in) +
                     dpari_lower_align((int64_t)in->stages * in->micros);
}

DPAR_API int64_t dpar_schedule_sink_bytes(const dpar_schedule *in, dpar_why *why)
{
    return dpari_lower_check(in, 0, why) == DPAR_OK ? dpari_sink_size(in) : -1;
}

DPAR_API dpar_status dpar_schedule_sink(dpar_schedule *out, const dpar_schedule *in,
                                        int32_t channel_class, void *mem, int64_t bytes,
                                        dpar_why *why)
{
    dpar_schedule got;
    dpari_held h;
    char *work;
    int32_t r;
    dpar_status st = dpari_lower_check(in, 0, why);
    if (st == DPAR_OK && (channel_class < 0 || channel_class >= DPAR_SINK_CLASSES)) {
        st = dpari_say(DPAR_E_ARG, why, "class # is not 0 to 2", channel_class, 0, 0, 0);
    }
    if (st == DPAR_OK) {
        st = dpari_lower_lay(&got, in, in->begin[in->ranks], dpari_sink_size(in), mem, bytes, &work,
                             why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    h.in = in;
    h.to.at = got.action;
    h.to.n = 0;
    h.first = (int64_t *)(void *)work;
    h.last = h.first + in->ranks;
    h.next = h.last + in->ranks;
    h.given = (uint8_t *)(h.next + dpari_sink_longest(in));
    h.one_queue = channel_class == DPAR_SINK_ANY;
    dpari_zero(h.given, (size_t)in->stages * (size_t)in->micros);
    for (r = 0; r < in->ranks; r++) {
        h.first[r] = -1;
    }
    for (r = 0; r < in->ranks; r++) {
        dpari_sink_rank(&h, r, channel_class);
        got.begin[r + 1] = h.to.n;
    }
    *out = got;
    return DPAR_OK;
}

/* ==== order/check.c ==== */

/* Sets of kinds, a bit each. */
enum {
    DPARI_SET_F = 1 << DPAR_FORWARD,
    DPARI_SET_B = 1 << DPAR_BACKWARD,
    DPARI_SET_I = 1 << DPAR_INPUT,
    DPARI_SET_W = 1 << DPAR_WEIGHT,
    DPARI_SET_SENDS = (1 << DPAR_SEND_F) | (1 << DPAR_SEND_B),
    DPARI_SET_RECVS = (1 << DPAR_RECV_F) | (1 << DPAR_RECV_B),
    DPARI_SET_MESSAGES = DPARI_SET_SENDS | DPARI_SET_RECVS,
    DPARI_SET_SHARDING = (1 << DPAR_UNSHARD) | (1 << DPAR_RESHARD),
    DPARI_SET_OFFLOADS = (1 << DPAR_OFFLOAD) | (1 << DPAR_RELOAD),
    DPARI_SET_GRADIENT = DPARI_SET_B | DPARI_SET_I, /* what makes the gradient of a stage's input */
    DPARI_SET_TRAINING = DPARI_SET_GRADIENT | DPARI_SET_W,
    DPARI_SET_COMPUTE = DPARI_SET_F | DPARI_SET_TRAINING | (1 << DPAR_RECOMPUTE)
};
enum {
    DPARI_STAGE_UNSHARDED = 1,
    DPARI_STAGE_REDUCED = 2,
    DPARI_STAGE_TRAINED = 4
}; /* of a stage */
enum { DPARI_NO_CHAIN = 65535 };

/* A stage and a micro-batch: the kinds that its rank's list has, and those that a run has done. */
typedef struct dpari_proof_cell {
    int32_t send[2]; /* SEND_F, SEND_B: number on its channel, later index in the list */
    uint16_t seen, done;
} dpari_proof_cell;

/* A message of a list in its queue. */
typedef struct dpari_proof_link {
    int32_t mate;  /* the other end; in a queue, once it went over: the next in `pending` */
    int32_t next;  /* in the queue; -1: none */
    int32_t first; /* of the queue: its record stands for the queue */
    int32_t head;  /* of the first: the first that has not gone over; -1: none. EAGER, on the
                      receiver's side: messages in the buffer */
} dpari_proof_link;

typedef struct dpari_proof_lane {
    int32_t at, end; /* of a rank: the next action, and behind the last */
    int32_t queued;  /* is it in `ready`? */
} dpari_proof_lane;

typedef struct dpari_proof {
    const dpar_schedule *s;
    dpar_why *why;
    dpari_proof_link *link; /* [actions]; NULL: messages wait for nothing */
    dpari_proof_cell *cell; /* [chain][micros] */
    dpari_proof_lane *lane; /* [ranks] */
    int32_t *ready;         /* [ranks] that may go on */
    int32_t *key;           /* [2 ranks] a counter or queue for each other rank */
    uint16_t *chain;        /* [micros] */
    uint8_t *stage;         /* [stages] */
    uint32_t kinds;         /* that there are */
    int32_t transport, room, ready_count;
    int32_t pending; /* a message gone over whose successor may go now; -1: none */
    int64_t left;    /* sends that did not go over */
} dpari_proof;

/* ---- sentences ------------------------------------------------------------------------------ */

static void dpari_proof_put(const dpar_action *a, dpar_text *t)
{
    dpar_action one = *a;
    one.joined = 0; /* what follows it may not exist */
    dpar_action_text(&one, t);
}

/* Appends `form`, where '#' is the next of m, n and '@' the next of a, b. */
static void dpari_proof_words(dpar_text *t, const char *form, int64_t m, int64_t n,
                              const dpar_action *a, const dpar_action *b)
{
    for (; *form != 0; form++) {
        if (*form == '#') {
            dpar_text_int(t, m);
            m = n;
        } else if (*form == '@') {
            dpari_proof_put(a, t);
            a = b;
        } else {
            dpar_text_char(t, *form);
        }
    }
}

static dpar_status dpari_proof_say(const dpari_proof *w, const char *form, int64_t m, int64_t n,
                                   const dpar_action *a, const dpar_action *b)
{
    dpar_text t;
    if (w->why != NULL) {
        dpar_text_init(&t, w->why->text, sizeof(w->why->text));
        dpari_proof_words(&t, form, m, n, a, b);
    }
    return DPAR_E_ARG;
}

static dpar_action dpari_proof_action(int32_t kind, int32_t stage, int32_t micro)
{
    dpar_action a;
    dpari_zero(&a, sizeof(a));
    a.kind = (uint8_t)kind;
    a.stage = (uint16_t)stage;
    a.micro = (uint16_t)micro;
    return a;
}

/* The first kind of a set. */
static int32_t dpari_proof_kind(uint32_t set)
{
    int32_t kind = 0;
    while (kind + 1 < DPAR_ACTION_KINDS && (set >> kind & 1) == 0) {
        kind++;
    }
    return kind;
}

/* ---- shape and memory ----------------------------------------------------------------------- */

static dpar_status dpari_proof_begins(const dpar_schedule *s, dpar_why *why)
{
    int32_t r;
    if (s->begin[0] != 0) {
        return dpari_say(DPAR_E_ARG, why, "rank 0 begins at action #, not 0", s->begin[0], 0, 0, 0);
    }
    for (r = 0; r < s->ranks; r++) {
        if (s->begin[r + 1] < s->begin[r]) {
            return dpari_say(DPAR_E_ARG, why, "rank # begins at action # and ends at #", r,
                             s->begin[r], s->begin[r + 1], 0);
        }
    }
    return s->begin[s->ranks] < INT32_MAX
               ? DPAR_OK
               : dpari_say(DPAR_E_ARG, why, "# actions: at most 2147483646 can be checked",
                           s->begin[s->ranks], 0, 0, 0);
}

static dpar_status dpari_proof_shape(const dpar_schedule *s, dpar_why *why)
{
    if (s->ranks < 1 || s->ranks > DPAR_MOST_STAGES || s->stages < 1 ||
        s->stages > DPAR_MOST_STAGES) {
        return dpari_say(DPAR_E_ARG, why, "# ranks, # stages: 1 to 65535 of each", s->ranks,
                         s->stages, 0, 0);
    }
    if (s->chain < 1 || s->stages % s->chain != 0) {
        return dpari_say(DPAR_E_ARG, why, "chains of # stages do not divide # stages", s->chain,
                         s->stages, 0, 0);
    }
    if (s->micros < 1 || s->micros > DPAR_MOST_MICROS) {
        return dpari_say(DPAR_E_ARG, why, "# micro-batches: 1 to 65535", s->micros, 0, 0, 0);
    }
    if (s->slices < 1 || s->micros % s->slices != 0) {
        return dpari_say(DPAR_E_ARG, why, "slices of # do not divide # micro-batches", s->slices,
                         s->micros, 0, 0);
    }
    return dpari_proof_begins(s, why);
}

/* Stages of a chain times micro-batches: no more than there are forwards in a right schedule. */
static int64_t dpari_proof_cells(const dpar_schedule *s)
{
    int64_t cells = (int64_t)s->chain * s->micros;
    return cells <= s->begin[s->ranks] ? cells : 0;
}

static int64_t dpari_proof_size(const dpar_schedule *s, int64_t link)
{
    if (dpari_proof_shape(s, NULL) != DPAR_OK) {
        return -1;
    }
    return link * s->begin[s->ranks] + (int64_t)sizeof(dpari_proof_cell) * dpari_proof_cells(s) +
           ((int64_t)sizeof(dpari_proof_lane) + 12) * s->ranks + 2 * (int64_t)s->micros + s->stages;
}

DPAR_API int64_t dpar_schedule_check_bytes(const dpar_schedule *s)
{
    return dpari_proof_size(s, 0);
}

DPAR_API int64_t dpar_schedule_run_bytes(const dpar_schedule *s)
{
    return dpari_proof_size(s, (int64_t)sizeof(dpari_proof_link));
}

/* The schedule has a shape and mem the room. All zero. */
static void dpari_proof_lay(dpari_proof *w, const dpar_schedule *s, int run, void *mem,
                            dpar_why *why)
{
    int64_t cells = dpari_proof_cells(s), links = run ? s->begin[s->ranks] : 0;
    int32_t r;
    dpari_zero(w, sizeof(*w));
    dpari_zero(mem, (size_t)dpari_proof_size(s, run ? (int64_t)sizeof(dpari_proof_link) : 0));
    w->s = s;
    w->why = why;
    w->cell = (dpari_proof_cell *)(void *)((dpari_proof_link *)mem + links);
    w->lane = (dpari_proof_lane *)(void *)(w->cell + cells);
    w->ready = (int32_t *)(void *)(w->lane + s->ranks);
    w->key = w->ready + s->ranks;
    w->chain = (uint16_t *)(void *)(w->key + 2 * (int64_t)s->ranks);
    w->stage = (uint8_t *)(void *)(w->chain + s->micros);
    w->link = run ? (dpari_proof_link *)mem : NULL;
    w->pending = -1;
    for (r = 0; r < s->micros; r++) {
        w->chain[r] = DPARI_NO_CHAIN;
    }
    for (r = 0; r < s->ranks; r++) {
        w->lane[r].at = (int32_t)s->begin[r];
        w->lane[r].end = (int32_t)s->begin[r + 1];
    }
}

/* ---- what the rules speak of ---------------------------------------------------------------- */

static dpari_proof_cell *dpari_proof_at(const dpari_proof *w, int32_t stage, int32_t micro)
{
    return &w->cell[(int64_t)(stage % w->s->chain) * w->s->micros + micro];
}

static int dpari_proof_is(int32_t kind, uint32_t set)
{
    return (set >> kind & 1) != 0;
}

/* The stage that gets what this kind makes, or gives what it needs; -1: none. */
static int32_t dpari_proof_far(const dpar_schedule *s, int32_t kind, int32_t stage)
{
    switch (kind) {
    case DPAR_FORWARD:
    case DPAR_SEND_F:
    case DPAR_RECV_B: return dpar_schedule_behind(s, stage);
    case DPAR_BACKWARD:
    case DPAR_INPUT:
    case DPAR_SEND_B:
    case DPAR_RECV_F: return dpar_schedule_before(s, stage);
    default: return -1;
    }
}

/* 0 with the forward, 1 with the backward. */
static int dpari_proof_way(int32_t kind)
{
    return kind == DPAR_SEND_B || kind == DPAR_RECV_B;
}

static dpari_proof_cell *dpari_proof_mate_cell(const dpari_proof *w, const dpar_action *a)
{
    return dpari_proof_at(w, dpari_proof_far(w->s, a->kind, a->stage), a->micro);
}

/* ---- each action alone ---------------------------------------------------------------------- */

/* Which kinds there are. */
static dpar_status dpari_proof_kinds(dpari_proof *w)
{
    const dpar_schedule *s = w->s;
    int32_t r;
    int64_t i;
    for (r = 0; r < s->ranks; r++) {
        for (i = s->begin[r]; i < s->begin[r + 1]; i++) {
            if (s->action[i].kind >= DPAR_ACTION_KINDS) {
                return dpari_say(DPAR_E_ARG, w->why,
                                 "rank #: action # of its list has kind #: 0 to #", r,
                                 i - s->begin[r], s->action[i].kind, DPAR_ACTION_KINDS - 1);
            }
            w->kinds |= 1u << s->action[i].kind;
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_proof_joined(const dpari_proof *w, int32_t r, const dpar_action *a,
                                      int last)
{
    if (a->joined != 1 || a->kind != DPAR_FORWARD || last || a[1].joined ||
        !dpari_proof_is(a[1].kind, DPARI_SET_GRADIENT)) {
        return dpari_proof_say(w, "rank #: @ is joined, but is not a forward with a B or I next", r,
                               0, a, NULL);
    }
    if (a[1].stage == a->stage && a[1].micro == a->micro) {
        return dpari_proof_say(w, "rank #: @ is joined with its own @", r, 0, a, a + 1);
    }
    return DPAR_OK;
}

static dpar_status dpari_proof_message(const dpari_proof *w, int32_t r, const dpar_action *a)
{
    int32_t far = dpari_proof_far(w->s, a->kind, a->stage);
    if (far < 0) {
        return dpari_proof_say(w, "rank #: @, but stage # ends its chain", r, a->stage, a, NULL);
    }
    if (w->s->rank_of[far] == r) {
        return dpari_proof_say(w, "rank #: @, but stage # is on the same rank", r, far, a, NULL);
    }
    if (a->peer != w->s->rank_of[far]) {
        return dpari_proof_say(w, "rank #: @ has rank # for its other end, which is elsewhere", r,
                               a->peer, a, NULL);
    }
    return DPAR_OK;
}

/* Every number in range and at home; after this an action can be looked up. */
static dpar_status dpari_proof_ids(dpari_proof *w, int32_t r, const dpar_action *a)
{
    const dpar_schedule *s = w->s;
    int32_t chain = a->stage / s->chain;
    if (a->stage >= s->stages) {
        return dpari_proof_say(w, "rank #: @, but there are # stages", r, s->stages, a, NULL);
    }
    if (s->rank_of[a->stage] != r) {
        return dpari_proof_say(w, "rank #: @, but that stage is on rank #", r, s->rank_of[a->stage],
                               a, NULL);
    }
    if (!dpar_action_has_micro(a->kind)) {
        return DPAR_OK;
    }
    if (a->micro >= s->micros) {
        return dpari_proof_say(w, "rank #: @, but there are # micro-batches", r, s->micros, a,
                               NULL);
    }
    if (w->chain[a->micro] != DPARI_NO_CHAIN && w->chain[a->micro] != chain) {
        return dpari_proof_say(w, "rank #: @, but that micro-batch is also in stages from # on", r,
                               w->chain[a->micro] * (int64_t)s->chain, a, NULL);
    }
    w->chain[a->micro] = (uint16_t)chain;
    return dpari_proof_is(a->kind, DPARI_SET_MESSAGES) ? dpari_proof_message(w, r, a) : DPAR_OK;
}

/* ---- order in a rank ------------------------------------------------------------------------ */

/* What of the same stage and micro-batch cannot come before a kind. */
static uint32_t dpari_proof_later(int32_t kind)
{
    const uint32_t backward = DPARI_SET_GRADIENT, recompute = 1u << DPAR_RECOMPUTE;
    switch (kind) {
    case DPAR_RECV_F: return DPARI_SET_F;
    case DPAR_FORWARD:
        return (1u << DPAR_SEND_F) | DPARI_SET_OFFLOADS | recompute | DPARI_SET_TRAINING;
    case DPAR_OFFLOAD: return (1u << DPAR_RELOAD) | recompute | backward;
    case DPAR_RELOAD: return recompute | backward;
    case DPAR_RECOMPUTE:
    case DPAR_RECV_B: return backward;
    case DPAR_BACKWARD: return 1u << DPAR_SEND_B;
    case DPAR_INPUT: return (1u << DPAR_SEND_B) | DPARI_SET_W;
    default: return 0;
    }
}

/* Is one of `set` of this stage and micro-batch in front of a, which it needs? */
static dpar_status dpari_proof_after(const dpari_proof *w, int32_t r, const dpar_action *a,
                                     uint32_t set, int32_t stage, int32_t micro)
{
    uint32_t seen = set & dpari_proof_at(w, stage, micro)->seen;
    dpar_action needs = dpari_proof_action(dpari_proof_kind(seen), stage, micro);
    return seen == 0
               ? DPAR_OK
               : dpari_proof_say(w, "rank #: @ comes after @, which needs it", r, 0, a, &needs);
}

/* The neighbour on the same rank and the next slice, of F, B and I. */
static dpar_status dpari_proof_local(const dpari_proof *w, int32_t r, const dpar_action *a)
{
    uint32_t set = a->kind == DPAR_FORWARD ? (uint32_t)DPARI_SET_F : (uint32_t)DPARI_SET_GRADIENT;
    int32_t far = dpari_proof_far(w->s, a->kind, a->stage), slice = a->micro % w->s->slices;
    int32_t next = a->kind == DPAR_FORWARD ? 1 : -1;
    dpar_status st = DPAR_OK;
    if (far >= 0 && w->s->rank_of[far] == r) {
        st = dpari_proof_after(w, r, a, set, far, a->micro);
    }
    if (st == DPAR_OK && slice + next >= 0 && slice + next < w->s->slices) {
        st = dpari_proof_after(w, r, a, set, a->stage, a->micro + next);
    }
    return st;
}

static dpar_status dpari_proof_order(const dpari_proof *w, int32_t r, const dpar_action *a)
{
    dpari_proof_cell *cell = dpari_proof_at(w, a->stage, a->micro);
    uint32_t split = DPARI_SET_I | DPARI_SET_W, twin;
    dpar_status st;
    if (dpari_proof_is(a->kind, cell->seen)) {
        return dpari_proof_say(w, "rank #: @ is there twice", r, 0, a, NULL);
    }
    twin = a->kind == DPAR_BACKWARD         ? split & cell->seen
           : dpari_proof_is(a->kind, split) ? (uint32_t)DPARI_SET_B & cell->seen
                                            : 0;
    if (twin != 0) {
        dpar_action other = dpari_proof_action(dpari_proof_kind(twin), a->stage, a->micro);
        return dpari_proof_say(w, "rank #: @ and @, but a B is I and W in one", r, 0, &other, a);
    }
    st = dpari_proof_after(w, r, a, dpari_proof_later(a->kind), a->stage, a->micro);
    if (st == DPAR_OK && dpari_proof_is(a->kind, DPARI_SET_F | DPARI_SET_GRADIENT)) {
        st = dpari_proof_local(w, r, a);
    }
    cell->seen = (uint16_t)(cell->seen | 1u << a->kind);
    return st;
}

/* Sharding and reduction. */
static dpar_status dpari_proof_state(const dpari_proof *w, int32_t r, const dpar_action *a)
{
    uint8_t *state = &w->stage[a->stage];
    int unsharded = (*state & DPARI_STAGE_UNSHARDED) != 0;
    if (a->kind == DPAR_UNSHARD && unsharded) {
        return dpari_proof_say(w, "rank #: @ while stage # is unsharded", r, a->stage, a, NULL);
    }
    if (!unsharded && (a->kind == DPAR_RESHARD || (dpari_proof_is(a->kind, DPARI_SET_COMPUTE) &&
                                                   (w->kinds & DPARI_SET_SHARDING) != 0))) {
        return dpari_proof_say(w, "rank #: @ while stage # is not unsharded", r, a->stage, a, NULL);
    }
    if ((*state & DPARI_STAGE_REDUCED) != 0 &&
        dpari_proof_is(a->kind, DPARI_SET_TRAINING | 1u << DPAR_REDUCE_GRAD)) {
        return dpari_proof_say(w, "rank #: @ comes after #REDUCE_GRAD", r, a->stage, a, NULL);
    }
    if (dpari_proof_is(a->kind, DPARI_SET_SHARDING)) {
        *state ^= DPARI_STAGE_UNSHARDED;
    } else if (dpari_proof_is(a->kind, DPARI_SET_TRAINING)) {
        *state |= DPARI_STAGE_TRAINED;
    } else if (a->kind == DPAR_REDUCE_GRAD) {
        *state |= DPARI_STAGE_REDUCED;
    }
    return DPAR_OK;
}

static dpar_status dpari_proof_list(dpari_proof *w, int32_t r)
{
    const dpar_schedule *s = w->s;
    dpar_status st = DPAR_OK;
    int64_t i;
    for (i = s->begin[r]; i < s->begin[r + 1] && st == DPAR_OK; i++) {
        const dpar_action *a = &s->action[i];
        if (a->joined) {
            st = dpari_proof_joined(w, r, a, i + 1 == s->begin[r + 1]);
        }
        if (st == DPAR_OK && a->kind != DPAR_IDLE) {
            st = dpari_proof_ids(w, r, a);
            if (st == DPAR_OK) {
                st = dpari_proof_state(w, r, a);
            }
            if (st == DPAR_OK && dpar_action_has_micro(a->kind)) {
                st = dpari_proof_order(w, r, a);
            }
        }
    }
    return st;
}

/* ---- nothing missing, nothing too much ------------------------------------------------------- */

/* The kinds that a stage must have for a micro-batch; of B, I and W those that fit what it has. */
static uint32_t dpari_proof_expected(const dpari_proof *w, int32_t stage, uint32_t seen)
{
    uint32_t set = DPARI_SET_F;
    int32_t kind;
    if ((seen >> DPAR_RELOAD & 1) != 0) {
        set |= 1u << DPAR_OFFLOAD;
    }
    if ((w->kinds & DPARI_SET_TRAINING) != 0) {
        set |= (seen & (DPARI_SET_I | DPARI_SET_W)) != 0 ? DPARI_SET_I | DPARI_SET_W : DPARI_SET_B;
        set |= (seen & DPARI_SET_OFFLOADS) != 0 ? (uint32_t)DPARI_SET_OFFLOADS : 0;
    }
    for (kind = DPAR_SEND_F; kind <= DPAR_RECV_B && (w->kinds & DPARI_SET_MESSAGES) != 0; kind++) {
        int32_t far = dpari_proof_far(w->s, kind, stage);
        if (far >= 0 && w->s->rank_of[far] != w->s->rank_of[stage] &&
            (!dpari_proof_way(kind) || (w->kinds & DPARI_SET_TRAINING) != 0)) {
            set |= 1u << kind;
        }
    }
    return set;
}

static dpar_status dpari_proof_complete(const dpari_proof *w, int32_t stage, int32_t micro)
{
    uint32_t seen = dpari_proof_at(w, stage, micro)->seen;
    uint32_t set = dpari_proof_expected(w, stage, seen), extra = seen & ~set & DPARI_SET_MESSAGES;
    dpar_action a = dpari_proof_action(dpari_proof_kind((set & ~seen) | extra), stage, micro);
    if ((set & ~seen) != 0) {
        a = dpari_proof_action(dpari_proof_kind(set & ~seen), stage, micro);
        return dpari_proof_say(w, "rank #: @ is missing", w->s->rank_of[stage], 0, &a, NULL);
    }
    return extra == 0 ? DPAR_OK
                      : dpari_proof_say(w, "rank #: @, but there is no backward",
                                        w->s->rank_of[stage], 0, &a, NULL);
}

static dpar_status dpari_proof_micros(const dpari_proof *w)
{
    const dpar_schedule *s = w->s;
    dpar_status st = DPAR_OK;
    int32_t m, k;
    for (m = 0; m < s->micros; m++) {
        if (w->chain[m] == DPARI_NO_CHAIN) {
            return dpari_say(DPAR_E_ARG, w->why, "micro-batch # of # is nowhere", m, s->micros, 0,
                             0);
        }
        if (w->chain[m] != w->chain[m - m % s->slices]) {
            return dpari_say(DPAR_E_ARG, w->why,
                             "# and # are slices of one micro-batch, but in two chains",
                             m - m % s->slices, m, 0, 0);
        }
    }
    for (k = 0; k < s->chain && st == DPAR_OK; k++) {
        for (m = 0; m < s->micros && st == DPAR_OK; m++) {
            st = dpari_proof_complete(w, w->chain[m] * s->chain + k, m);
        }
    }
    return st;
}

static dpar_status dpari_proof_stages(const dpari_proof *w)
{
    const int reduces = dpari_proof_is(DPAR_REDUCE_GRAD, w->kinds);
    int32_t k;
    if (reduces && (w->kinds & DPARI_SET_TRAINING) == 0) {
        return dpari_say(DPAR_E_ARG, w->why, "there is a REDUCE_GRAD, but no backward", 0, 0, 0, 0);
    }
    for (k = 0; k < w->s->stages; k++) {
        if ((w->stage[k] & DPARI_STAGE_UNSHARDED) != 0) {
            return dpari_say(DPAR_E_ARG, w->why, "rank #: after the last #UNSHARD no #RESHARD",
                             w->s->rank_of[k], k, k, 0);
        }
        if (reduces && (w->stage[k] & DPARI_STAGE_TRAINED) != 0 &&
            (w->stage[k] & DPARI_STAGE_REDUCED) == 0) {
            return dpari_say(DPAR_E_ARG, w->why, "rank #: #REDUCE_GRAD is missing",
                             w->s->rank_of[k], k, 0, 0);
        }
    }
    return DPAR_OK;
}

/* ---- order of a channel --------------------------------------------------------------------- */

/* Counters of the channels of one rank, back to none; O(its actions), whatever the ranks. */
static void dpari_proof_forget(const dpari_proof *w, int32_t r, int32_t value)
{
    int64_t i;
    for (i = w->s->begin[r]; i < w->s->begin[r + 1]; i++) {
        if (dpari_proof_is(w->s->action[i].kind, DPARI_SET_MESSAGES)) {
            w->key[2 * w->s->action[i].peer] = value;
            w->key[2 * w->s->action[i].peer + 1] = value;
        }
    }
}

static void dpari_proof_number(const dpari_proof *w, int32_t r)
{
    int64_t i;
    for (i = w->s->begin[r]; i < w->s->begin[r + 1]; i++) {
        const dpar_action *a = &w->s->action[i];
        if (dpari_proof_is(a->kind, DPARI_SET_SENDS)) {
            dpari_proof_at(w, a->stage, a->micro)->send[dpari_proof_way(a->kind)] =
                w->key[2 * a->peer]++;
        }
    }
    dpari_proof_forget(w, r, 0);
}

/* The n-th send of rank q to rank r. */
static const dpar_action *dpari_proof_nth(const dpari_proof *w, int32_t q, int32_t r, int32_t n)
{
    int64_t i = w->s->begin[q];
    for (;; i++) {
        const dpar_action *a = &w->s->action[i];
        if (dpari_proof_is(a->kind, DPARI_SET_SENDS) && a->peer == r && n-- == 0) {
            return a;
        }
    }
}

static dpar_status dpari_proof_channel(const dpari_proof *w, int32_t r)
{
    int64_t i;
    for (i = w->s->begin[r]; i < w->s->begin[r + 1]; i++) {
        const dpar_action *a = &w->s->action[i];
        if (dpari_proof_is(a->kind, DPARI_SET_RECVS)) {
            int32_t n = w->key[2 * a->peer]++;
            if (dpari_proof_mate_cell(w, a)->send[dpari_proof_way(a->kind)] != n) {
                return dpari_proof_say(w,
                                       "rank #: @ comes where rank # sends @: without tags (NCCL) "
                                       "it takes the other's data",
                                       r, a->peer, a, dpari_proof_nth(w, a->peer, r, n));
            }
        }
    }
    dpari_proof_forget(w, r, 0);
    return DPAR_OK;
}

static dpar_status dpari_proof_channels(const dpari_proof *w)
{
    dpar_status st = DPAR_OK;
    int32_t r;
    for (r = 0; r < w->s->ranks; r++) {
        dpari_proof_number(w, r);
    }
    for (r = 0; r < w->s->ranks && st == DPAR_OK; r++) {
        st = dpari_proof_channel(w, r);
    }
    return st;
}

/* ---- the run: ranks go on until each waits for another -------------------------------------- */

static int dpari_proof_queues(const dpari_proof *w)
{
    return w->link != NULL && w->transport >= DPAR_TRANSPORT_RANK &&
           w->transport <= DPAR_TRANSPORT_EDGE;
}

static void dpari_proof_wake(dpari_proof *w, int32_t r)
{
    if (!w->lane[r].queued) {
        w->lane[r].queued = 1;
        w->ready[w->ready_count++] = r;
    }
}

static int dpari_proof_done(const dpari_proof *w, int64_t i)
{
    const dpar_action *a = &w->s->action[i];
    return dpari_proof_is(a->kind, dpari_proof_at(w, a->stage, a->micro)->done);
}

static void dpari_proof_do(dpari_proof *w, int64_t i)
{
    const dpar_action *a = &w->s->action[i];
    if (dpar_action_has_micro(a->kind)) {
        dpari_proof_cell *cell = dpari_proof_at(w, a->stage, a->micro);
        cell->done = (uint16_t)(cell->done | 1u << a->kind);
        w->left -= dpari_proof_is(a->kind, DPARI_SET_SENDS);
    }
}

/* The stage on another rank that a computation has its data from; -1: none. */
static int32_t dpari_proof_source(const dpar_schedule *s, const dpar_action *a)
{
    int32_t from = a->kind == DPAR_FORWARD                       ? dpar_schedule_before(s, a->stage)
                   : dpari_proof_is(a->kind, DPARI_SET_GRADIENT) ? dpar_schedule_behind(s, a->stage)
                                                                 : -1;
    return from >= 0 && s->rank_of[from] != s->rank_of[a->stage] ? from : -1;
}

static int dpari_proof_waits(const dpari_proof *w, const dpar_action *a)
{
    int32_t from = dpari_proof_source(w->s, a);
    int forward = a->kind == DPAR_FORWARD;
    if (from < 0) {
        return 0;
    }
    if ((w->kinds & DPARI_SET_MESSAGES) != 0) {
        return !dpari_proof_is(forward ? DPAR_RECV_F : DPAR_RECV_B,
                               dpari_proof_at(w, a->stage, a->micro)->done);
    }
    return (dpari_proof_at(w, from, a->micro)->done &
            (forward ? (uint32_t)DPARI_SET_F : (uint32_t)DPARI_SET_GRADIENT)) == 0;
}

static int dpari_proof_compute(dpari_proof *w, int32_t r)
{
    const dpar_action *a = &w->s->action[w->lane[r].at];
    int k, count = 1 + a->joined;
    for (k = 0; k < count; k++) {
        if (dpari_proof_waits(w, a + k)) {
            return 0;
        }
    }
    for (k = 0; k < count; k++) {
        int32_t far = dpari_proof_far(w->s, a[k].kind, a[k].stage);
        dpari_proof_do(w, w->lane[r].at + k);
        if (far >= 0 && (w->kinds & DPARI_SET_MESSAGES) == 0) {
            dpari_proof_wake(w, w->s->rank_of[far]);
        }
    }
    w->lane[r].at += count;
    return 1;
}

/* Sends wait for nothing, receives for their send. */
static int dpari_proof_free(dpari_proof *w, int32_t i)
{
    const dpar_action *a = &w->s->action[i];
    if (dpari_proof_is(a->kind, DPARI_SET_RECVS) &&
        !dpari_proof_is(a->kind - 1 /* its send */, dpari_proof_mate_cell(w, a)->done)) {
        return 0;
    }
    dpari_proof_do(w, i);
    dpari_proof_wake(w, a->peer);
    return 1;
}

static int dpari_proof_meet(dpari_proof *w, int32_t i)
{
    int32_t q = w->s->action[i].peer, mate = w->link[i].mate;
    if (w->lane[q].at != mate) {
        return 0;
    }
    dpari_proof_do(w, i);
    dpari_proof_do(w, mate);
    w->lane[q].at++;
    dpari_proof_wake(w, q);
    return 1;
}

static int dpari_proof_buffer(dpari_proof *w, int32_t i)
{
    const int sends = dpari_proof_is(w->s->action[i].kind, DPARI_SET_SENDS);
    const int32_t send = sends ? i : w->link[i].mate;
    dpari_proof_link *queue = &w->link[w->link[send].first];
    int32_t *held = &w->link[queue->mate].head;
    if (sends ? *held >= w->room : queue->head != send || !dpari_proof_done(w, send)) {
        return 0;
    }
    *held += sends ? 1 : -1;
    if (!sends) {
        queue->head = w->link[send].next;
    }
    dpari_proof_do(w, i);
    dpari_proof_wake(w, w->s->action[i].peer);
    return 1;
}

static int32_t dpari_proof_head(const dpari_proof *w, int32_t i)
{
    return w->link[w->link[i].first].head;
}

/* A posted message goes over if it and its other end are both posted and first. */
static void dpari_proof_go(dpari_proof *w, int32_t i)
{
    const dpar_action *list = w->s->action;
    int32_t j = w->link[i].mate, end[2], k;
    if (dpari_proof_head(w, i) != i || dpari_proof_head(w, j) != j ||
        i >= w->lane[list[j].peer].at || j >= w->lane[list[i].peer].at) {
        return;
    }
    end[0] = i;
    end[1] = j;
    for (k = 0; k < 2; k++) {
        dpari_proof_link *l = &w->link[end[k]];
        dpari_proof_do(w, end[k]);
        if (dpari_proof_is(list[end[k]].kind, DPARI_SET_RECVS)) {
            dpari_proof_wake(w, list[end[1 - k]].peer);
        }
        w->link[l->first].head = l->next;
        l->mate = w->pending;
        w->pending = end[k];
    }
}

static int dpari_proof_post(dpari_proof *w, int32_t r, int32_t i)
{
    w->lane[r].at++;
    dpari_proof_go(w, i);
    while (w->pending >= 0) {
        const dpari_proof_link *l = &w->link[w->pending];
        w->pending = l->mate;
        if (l->next >= 0 && dpari_proof_head(w, l->next) == l->next) {
            dpari_proof_go(w, l->next);
        }
    }
    return 1;
}

/* Does the rank's next action, if nothing holds it up. */
static int dpari_proof_step(dpari_proof *w, int32_t r)
{
    int32_t i = w->lane[r].at;
    int went;
    if (!dpari_proof_is(w->s->action[i].kind, DPARI_SET_MESSAGES)) {
        return dpari_proof_compute(w, r);
    }
    if (dpari_proof_queues(w)) {
        return dpari_proof_post(w, r, i);
    }
    went = w->link == NULL                           ? dpari_proof_free(w, i)
           : w->transport == DPAR_TRANSPORT_BLOCKING ? dpari_proof_meet(w, i)
                                                     : dpari_proof_buffer(w, i);
    w->lane[r].at += went;
    return went;
}

/* ---- stuck: who waits for whom -------------------------------------------------------------- */

/* Where a rank stands: the index of an action; -1 when it is through. */
static int32_t dpari_proof_stuck(const dpari_proof *w, int32_t r)
{
    int32_t i = w->lane[r].at;
    const dpar_action *a = &w->s->action[i];
    if (i < w->lane[r].end) {
        int32_t from;
        int way;
        a += a->joined && !dpari_proof_waits(w, a);
        if (!dpari_proof_queues(w)) {
            return (int32_t)(a - w->s->action);
        }
        from = dpari_proof_source(w->s, a);
        way = a->kind != DPAR_FORWARD;
        return dpari_proof_head(w, w->link[dpari_proof_at(w, from, a->micro)->send[way]].mate);
    }
    for (i = (int32_t)w->s->begin[r]; i < w->lane[r].end; i++) {
        if (dpari_proof_is(w->s->action[i].kind, DPARI_SET_MESSAGES) && !dpari_proof_done(w, i)) {
            return i;
        }
    }
    return -1;
}

/* One rank waits for `needs`, which the other has after `other`. */
typedef struct dpari_proof_wait {
    int32_t rank, at, other_rank, other;
    dpar_action needs;
} dpari_proof_wait;

static void dpari_proof_wait_data(const dpari_proof *w, dpari_proof_wait *k)
{
    const dpar_action *a = &w->s->action[k->at];
    int32_t message = dpari_proof_is(a->kind, DPARI_SET_MESSAGES);
    int32_t from = message ? dpari_proof_far(w->s, a->kind, a->stage) : dpari_proof_source(w->s, a);
    uint32_t seen = dpari_proof_at(w, from, a->micro)->seen;
    int32_t kind = message                   ? a->kind - 1
                   : a->kind == DPAR_FORWARD ? (int32_t)DPAR_FORWARD
                                             : dpari_proof_kind(seen & DPARI_SET_GRADIENT);
    k->needs = dpari_proof_action(kind, from, a->micro);
    k->other_rank = w->s->rank_of[from];
    k->other = dpari_proof_stuck(w, k->other_rank);
}

static void dpari_proof_wait_message(const dpari_proof *w, dpari_proof_wait *k)
{
    const dpar_action *a = &w->s->action[k->at];
    int32_t mate = w->link[k->at].mate;
    k->other_rank = a->peer;
    if (w->transport == DPAR_TRANSPORT_EAGER && dpari_proof_is(a->kind, DPARI_SET_SENDS)) {
        mate = w->link[dpari_proof_head(w, k->at)].mate; /* the buffer is full */
    } else if (w->transport == DPAR_TRANSPORT_EAGER && dpari_proof_done(w, mate)) {
        mate = w->link[dpari_proof_head(w, mate)].mate; /* another is in front of it */
        k->other_rank = k->rank;
    }
    k->needs = w->s->action[mate];
    k->other = dpari_proof_queues(w) && mate < w->lane[k->other_rank].at
                   ? dpari_proof_head(w, mate)
                   : dpari_proof_stuck(w, k->other_rank);
}

static void dpari_proof_blocker(const dpari_proof *w, dpari_proof_wait *k)
{
    if (w->link == NULL) {
        dpari_proof_wait_data(w, k);
    } else {
        dpari_proof_wait_message(w, k);
    }
}

static void dpari_proof_follow(const dpari_proof *w, dpari_proof_wait *k)
{
    k->rank = k->other_rank;
    k->at = k->other;
    dpari_proof_blocker(w, k);
}

/* From a stuck rank to the circle that it waits for: to the one in it with the least index. */
static void dpari_proof_circle(const dpari_proof *w, dpari_proof_wait *k)
{
    dpari_proof_wait fast = *k, least;
    do {
        dpari_proof_follow(w, k);
        dpari_proof_follow(w, &fast);
        dpari_proof_follow(w, &fast);
    } while (fast.at != k->at);
    least = *k;
    do {
        dpari_proof_follow(w, k);
        least = k->at < least.at ? *k : least;
    } while (k->at != fast.at);
    *k = least;
}

static int dpari_proof_same(const dpar_action *a, const dpar_action *b)
{
    return a->kind == b->kind && a->stage == b->stage && a->micro == b->micro;
}

/* Two of the circle: more would not fit where numbers are long. */
static void dpari_proof_say_circle(const dpari_proof *w, dpari_proof_wait *k)
{
    const dpar_action *list = w->s->action;
    int32_t start = k->at, count = 0;
    dpar_text t;
    dpar_text_init(&t, w->why->text, sizeof(w->why->text));
    dpar_text_put(&t, w->link == NULL ? "endless: " : dpar_transport_name(w->transport));
    dpar_text_put(&t, w->link == NULL ? "" : ": ");
    do {
        if (count++ < 2) {
            dpar_text_put(&t, count > 1 ? "; " : "");
            dpari_proof_words(&t, "rank # at @ waits for ", k->rank, 0, &list[k->at], NULL);
            if (dpari_proof_same(&list[k->other], &k->needs)) {
                dpari_proof_words(&t, "@ of rank #", k->other_rank, 0, &k->needs, NULL);
            } else {
                dpari_proof_words(&t, "@ that rank # has after @", k->other_rank, 0, &k->needs,
                                  &list[k->other]);
            }
        }
        dpari_proof_follow(w, k);
    } while (k->at != start);
    if (count > 2) {
        dpari_proof_words(&t, "; and # more", count - 2, 0, NULL, NULL);
    }
}

/* Runs all ranks as far as they come. */
static dpar_status dpari_proof_run(dpari_proof *w, int64_t *stuck)
{
    int32_t r, through = 0;
    dpari_proof_wait k;
    for (r = w->s->ranks - 1; r >= 0; r--) {
        dpari_proof_wake(w, r);
    }
    while (w->ready_count > 0) {
        r = w->ready[--w->ready_count];
        w->lane[r].queued = 0;
        while (w->lane[r].at < w->lane[r].end && dpari_proof_step(w, r)) {
        }
    }
    for (r = 0; r < w->s->ranks; r++) {
        through += w->lane[r].at == w->lane[r].end;
    }
    if (through == w->s->ranks && (w->left == 0 || !dpari_proof_queues(w))) {
        return DPAR_OK;
    }
    for (r = 0; r < w->s->ranks && stuck != NULL; r++) {
        stuck[r] = dpari_proof_stuck(w, r);
    }
    k.rank = 0;
    while ((k.at = dpari_proof_stuck(w, k.rank)) < 0) {
        k.rank++;
    }
    if (w->why != NULL) {
        dpari_proof_blocker(w, &k);
        dpari_proof_circle(w, &k);
        dpari_proof_say_circle(w, &k);
    }
    return DPAR_E_ARG;
}

/* ---- the check as a whole ------------------------------------------------------------------- */

static dpar_status dpari_proof_lists(dpari_proof *w)
{
    const dpar_schedule *s = w->s;
    dpar_status st = dpari_proof_kinds(w);
    int32_t r;
    for (r = 0; r < s->stages && st == DPAR_OK; r++) {
        if (s->rank_of[r] >= s->ranks) {
            st = dpari_say(DPAR_E_ARG, w->why, "stage # is on rank # of #", r, s->rank_of[r],
                           s->ranks, 0);
        }
    }
    for (r = 0; r < s->ranks && st == DPAR_OK; r++) {
        st = dpari_proof_list(w, r);
    }
    if (st == DPAR_OK) {
        st = dpari_proof_micros(w);
    }
    return st == DPAR_OK ? dpari_proof_stages(w) : st;
}

DPAR_API dpar_status dpar_schedule_check(const dpar_schedule *s, int32_t flags, void *mem,
                                         int64_t bytes, dpar_why *why)
{
    dpari_proof w;
    dpar_status st = dpari_proof_shape(s, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (dpari_proof_cells(s) == 0) {
        return dpari_say(DPAR_E_ARG, why,
                         "# stages of a chain and # micro-batches, but only # actions", s->chain,
                         s->micros, s->begin[s->ranks], 0);
    }
    if (bytes < dpar_schedule_check_bytes(s)) {
        return dpari_say(DPAR_E_ROOM, why, "the check of # actions takes # bytes, there are #",
                         s->begin[s->ranks], dpar_schedule_check_bytes(s), bytes, 0);
    }
    dpari_proof_lay(&w, s, 0, mem, why);
    st = dpari_proof_lists(&w);
    if (st == DPAR_OK && (flags & DPAR_CHECK_TRAINS) != 0 && (w.kinds & DPARI_SET_TRAINING) == 0) {
        st = dpari_say(DPAR_E_ARG, why, "there is no backward", 0, 0, 0, 0);
    }
    if (st == DPAR_OK && (flags & DPAR_CHECK_TAGGED) == 0) {
        st = dpari_proof_channels(&w);
    }
    return st == DPAR_OK ? dpari_proof_run(&w, NULL) : st;
}

/* ---- transports ----------------------------------------------------------------------------- */

DPAR_API const char *dpar_transport_name(int32_t transport)
{
    static const char *const name[] = {"blocking", "rank", "dir", "pair", "edge", "eager"};
    return transport >= 0 && transport < DPAR_TRANSPORTS ? name[transport] : "?";
}

DPAR_API int32_t dpar_transport_find(const char *name)
{
    int32_t k = DPAR_TRANSPORTS - 1;
    while (k >= 0 && !dpari_same(name, dpar_transport_name(k))) {
        k--;
    }
    return k;
}

/* Which queue of its rank a message is in. */
static int32_t dpari_proof_key(const dpari_proof *w, const dpar_action *a)
{
    switch (w->transport) {
    case DPAR_TRANSPORT_DIR: return dpari_proof_way(a->kind);
    case DPAR_TRANSPORT_PAIR: return 2 * a->peer;
    case DPAR_TRANSPORT_EDGE:
    case DPAR_TRANSPORT_EAGER: return 2 * a->peer + dpari_proof_is(a->kind, DPARI_SET_SENDS);
    default: return 0;
    }
}

/* The queues of a rank, and where its sends are. Keys are -1 before and after. */
static void dpari_proof_queue(dpari_proof *w, int32_t r)
{
    int32_t i, end = (int32_t)w->s->begin[r + 1];
    for (i = (int32_t)w->s->begin[r]; i < end; i++) {
        const dpar_action *a = &w->s->action[i];
        int32_t sends = dpari_proof_is(a->kind, DPARI_SET_SENDS), *last;
        if (!dpari_proof_is(a->kind, DPARI_SET_MESSAGES)) {
            continue;
        }
        last = &w->key[dpari_proof_key(w, a)];
        w->link[i].next = -1;
        w->link[i].first = *last < 0 ? i : w->link[*last].first;
        w->link[i].head = w->transport == DPAR_TRANSPORT_EAGER && !sends ? 0 : i;
        if (*last >= 0) {
            w->link[*last].next = i;
        }
        *last = i;
        if (sends) {
            dpari_proof_at(w, a->stage, a->micro)->send[dpari_proof_way(a->kind)] = i;
            w->left++;
        }
    }
    w->key[0] = w->key[1] = -1;
    dpari_proof_forget(w, r, -1);
}

static void dpari_proof_connect(dpari_proof *w)
{
    int32_t r, i, count = (int32_t)w->s->begin[w->s->ranks];
    for (r = 0; r < 2 * w->s->ranks; r++) {
        w->key[r] = -1;
    }
    for (r = 0; r < w->s->ranks; r++) {
        dpari_proof_queue(w, r);
    }
    for (i = 0; i < count; i++) {
        const dpar_action *a = &w->s->action[i];
        if (dpari_proof_is(a->kind, DPARI_SET_RECVS)) {
            int32_t send = dpari_proof_mate_cell(w, a)->send[dpari_proof_way(a->kind)];
            w->link[i].mate = send;
            w->link[send].mate = i;
        }
    }
}

/* Without messages nothing may go from rank to rank. */
static dpar_status dpari_proof_lowered(const dpari_proof *w)
{
    int32_t k;
    for (k = 0; k < w->s->stages && (w->kinds & DPARI_SET_MESSAGES) == 0; k++) {
        int32_t next = dpar_schedule_behind(w->s, k);
        if (next >= 0 && w->s->rank_of[k] != w->s->rank_of[next]) {
            return dpari_say(DPAR_E_ARG, w->why,
                             "stage # on rank # feeds stage # on rank #, but there are no messages",
                             k, w->s->rank_of[k], next, w->s->rank_of[next]);
        }
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_schedule_run_check(const dpar_schedule *s, int32_t transport,
                                             int32_t room, int64_t *stuck, void *mem, int64_t bytes,
                                             dpar_why *why)
{
    dpari_proof w;
    dpar_status st;
    int64_t needed = dpar_schedule_run_bytes(s);
    if (transport < 0 || transport >= DPAR_TRANSPORTS) {
        return dpari_say(DPAR_E_ARG, why, "transport #: 0 to #", transport, DPAR_TRANSPORTS - 1, 0,
                         0);
    }
    if (transport == DPAR_TRANSPORT_EAGER && room < 1) {
        return dpari_say(DPAR_E_ARG, why, "an eager buffer of # messages: 1 or more", room, 0, 0,
                         0);
    }
    if (needed >= 0 && bytes < needed) {
        return dpari_say(DPAR_E_ROOM, why, "the run of # actions takes # bytes, there are #",
                         s->begin[s->ranks], needed, bytes, 0);
    }
    st = dpar_schedule_check(s, DPAR_CHECK_TAGGED, mem, bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_proof_lay(&w, s, 1, mem, why);
    (void)dpari_proof_kinds(&w);
    st = dpari_proof_lowered(&w);
    if (st != DPAR_OK) {
        return st;
    }
    w.transport = transport;
    w.room = room;
    dpari_proof_connect(&w);
    return dpari_proof_run(&w, stuck);
}

/* ==== order/steps.c ==== */

/* The slots of a stage and a micro-batch: 0 with the forward, 1 with the backward. */
typedef struct dpari_slots_cell {
    uint16_t receive[2], send[2], activation, weight;
} dpari_slots_cell;

/* The slots of a rank and kind. The last that became free is the first to be taken. */
typedef struct dpari_slots_pool {
    uint16_t *free;
    int32_t free_count, count;
    int full;
} dpari_slots_pool;

typedef struct dpari_slots {
    const dpar_schedule *s;
    dpari_slots_cell *cell;
    dpari_slots_pool receive, activation, send, weight;
    int messages;      /* are there any? */
    int32_t flying;    /* sends that stay */
    int64_t sends, at; /* sends of the rank so far; behind the last that let its slot go */
} dpari_slots;

static uint16_t dpari_slots_take(dpari_slots_pool *p)
{
    if (p->free_count > 0) {
        return p->free[--p->free_count];
    }
    if (p->count == DPAR_NO_SLOT) {
        p->full = 1;
        return DPAR_NO_SLOT;
    }
    return (uint16_t)p->count++;
}

static void dpari_slots_free(dpari_slots_pool *p, uint16_t slot)
{
    if (slot != DPAR_NO_SLOT) {
        p->free[p->free_count++] = slot;
    }
}

static dpari_slots_cell *dpari_slots_at(const dpari_slots *w, const dpar_action *a)
{
    return &w->cell[(int64_t)(a->stage % w->s->chain) * w->s->micros + a->micro];
}

/* A pool's free list: a rank has no more slots than actions. */
static int64_t dpari_slots_room(const dpar_schedule *s)
{
    int64_t most = 0;
    int32_t r;
    for (r = 0; r < s->ranks; r++) {
        most = dpari_most(most, s->begin[r + 1] - s->begin[r]);
    }
    return dpari_least(most, DPAR_NO_SLOT);
}

DPAR_API int64_t dpar_schedule_slots_bytes(const dpar_schedule *s)
{
    int64_t check = dpar_schedule_check_bytes(s), cells;
    if (check < 0) {
        return -1;
    }
    cells = dpari_least((int64_t)s->chain * s->micros, s->begin[s->ranks]);
    return dpari_most(check, cells * (int64_t)sizeof(dpari_slots_cell) + 8 * dpari_slots_room(s));
}

static void dpari_slots_lay(dpari_slots *w, const dpar_schedule *s, int32_t flying, void *mem)
{
    int64_t i;
    dpari_zero(w, sizeof(*w));
    w->s = s;
    w->cell = (dpari_slots_cell *)mem;
    w->receive.free = (uint16_t *)(void *)(w->cell + (int64_t)s->chain * s->micros);
    w->activation.free = w->receive.free + dpari_slots_room(s);
    w->send.free = w->activation.free + dpari_slots_room(s);
    w->weight.free = w->send.free + dpari_slots_room(s);
    w->flying = flying;
    for (i = 0; i < s->begin[s->ranks]; i++) {
        int kind = s->action[i].kind;
        w->messages |= kind >= DPAR_SEND_F && kind <= DPAR_RECV_B;
    }
}

/* A send was posted: the one `flying` in front of it is over. */
static void dpari_slots_sent(dpari_slots *w)
{
    const dpar_action *a;
    if (++w->sends <= w->flying) {
        return;
    }
    do {
        a = &w->s->action[w->at++];
    } while (a->kind != DPAR_SEND_F && a->kind != DPAR_SEND_B);
    dpari_slots_free(&w->send, dpari_slots_at(w, a)->send[a->kind == DPAR_SEND_B]);
}

/* F, B, I: what comes in, what goes out. */
static void dpari_slots_pass(dpari_slots *w, const dpar_action *a, dpar_slots *out)
{
    dpari_slots_cell *cell = dpari_slots_at(w, a);
    int way = a->kind != DPAR_FORWARD;
    int32_t far = way ? dpar_schedule_before(w->s, a->stage) : dpar_schedule_behind(w->s, a->stage);
    out->receive = cell->receive[way];
    dpari_slots_free(&w->receive, out->receive);
    if (w->messages && far >= 0 && w->s->rank_of[far] != w->s->rank_of[a->stage]) {
        out->send = cell->send[way] = dpari_slots_take(&w->send);
    }
}

static void dpari_slots_message(dpari_slots *w, const dpar_action *a, dpar_slots *out)
{
    dpari_slots_cell *cell = dpari_slots_at(w, a);
    if (a->kind == DPAR_RECV_F || a->kind == DPAR_RECV_B) {
        out->receive = cell->receive[a->kind == DPAR_RECV_B] = dpari_slots_take(&w->receive);
    } else {
        out->send = cell->send[a->kind == DPAR_SEND_B];
        dpari_slots_sent(w);
    }
}

static void dpari_slots_action(dpari_slots *w, const dpar_action *a, dpar_slots *out)
{
    dpari_slots_cell *cell = dpari_slots_at(w, a);
    const int takes = a->kind == DPAR_FORWARD || a->kind == DPAR_RELOAD;
    const int frees = a->kind == DPAR_BACKWARD || a->kind == DPAR_WEIGHT || a->kind == DPAR_OFFLOAD;
    if (a->kind >= DPAR_SEND_F && a->kind <= DPAR_RECV_B) {
        dpari_slots_message(w, a, out);
        return;
    }
    if (takes) {
        cell->activation = dpari_slots_take(&w->activation);
    }
    out->activation = cell->activation;
    if (frees) {
        dpari_slots_free(&w->activation, cell->activation);
    }
    if (a->kind == DPAR_INPUT) {
        cell->weight = dpari_slots_take(&w->weight);
    }
    if (a->kind == DPAR_INPUT || a->kind == DPAR_WEIGHT) {
        out->weight = cell->weight;
    }
    if (a->kind == DPAR_WEIGHT) {
        dpari_slots_free(&w->weight, cell->weight);
    }
    if (a->kind == DPAR_FORWARD || a->kind == DPAR_BACKWARD || a->kind == DPAR_INPUT) {
        dpari_slots_pass(w, a, out);
    }
}

static void dpari_slots_restart(dpari_slots_pool *p)
{
    p->free_count = p->count = 0;
}

/* The list of rank r. slots: NULL, or all of the schedule. */
static void dpari_slots_rank(dpari_slots *w, int32_t r, dpar_slots *slots, dpar_slot_counts *count)
{
    int64_t i;
    dpari_slots_restart(&w->receive);
    dpari_slots_restart(&w->activation);
    dpari_slots_restart(&w->send);
    dpari_slots_restart(&w->weight);
    w->sends = 0;
    w->at = w->s->begin[r];
    for (i = w->s->begin[r]; i < w->s->begin[r + 1]; i++) {
        dpar_slots out;
        out.receive = out.activation = out.send = out.weight = DPAR_NO_SLOT;
        if (dpar_action_has_micro(w->s->action[i].kind)) {
            dpari_slots_action(w, &w->s->action[i], &out);
        }
        if (slots != NULL) {
            slots[i] = out;
        }
    }
    count->receive = w->receive.count;
    count->activation = w->activation.count;
    count->send = w->send.count;
    count->weight = w->weight.count;
}

/* All ranks, from the start. */
static int32_t dpari_slots_walk(dpari_slots *w, dpar_slots *slots, dpar_slot_counts *counts)
{
    int64_t i, cells = (int64_t)w->s->chain * w->s->micros;
    int32_t r;
    for (i = 0; i < cells; i++) {
        w->cell[i].receive[0] = w->cell[i].receive[1] = DPAR_NO_SLOT; /* messages may lack */
    }
    for (r = 0; r < w->s->ranks; r++) {
        dpar_slot_counts count;
        dpari_slots_rank(w, r, slots, &count);
        if (w->receive.full || w->activation.full || w->send.full) { /* not so many W's */
            return r;
        }
        if (counts != NULL) {
            counts[r] = count;
        }
    }
    return -1;
}

DPAR_API dpar_status dpar_schedule_slots(const dpar_schedule *s, int32_t flying, dpar_slots *slots,
                                         dpar_slot_counts *counts, void *mem, int64_t bytes,
                                         dpar_why *why)
{
    dpari_slots w;
    dpar_status st;
    int32_t full;
    if (flying < 0) {
        return dpari_say(DPAR_E_ARG, why, "# sends that fly: 0 or more", flying, 0, 0, 0);
    }
    if (bytes < dpar_schedule_slots_bytes(s)) {
        return dpari_say(DPAR_E_ROOM, why, "slots of # actions take # bytes, there are #",
                         s->begin[s->ranks], dpar_schedule_slots_bytes(s), bytes, 0);
    }
    st = dpar_schedule_check(s, DPAR_CHECK_TAGGED, mem, bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_slots_lay(&w, s, flying, mem);
    full = dpari_slots_walk(&w, NULL, NULL); /* nothing is written when it does not fit */
    if (full >= 0) {
        return dpari_say(DPAR_E_RANGE, why, "rank # needs more than 65535 slots of a kind", full, 0,
                         0, 0);
    }
    (void)dpari_slots_walk(&w, slots, counts);
    return DPAR_OK;
}

/* ---- the step machine ------------------------------------------------------------------------ */

DPAR_API void dpar_steps_begin(dpar_steps *steps, const dpar_schedule *s, const dpar_slots *slots,
                               int32_t rank)
{
    const int inside = rank >= 0 && rank < s->ranks;
    steps->schedule = s;
    steps->slots = slots;
    steps->at = inside ? s->begin[rank] : 0;
    steps->end = inside ? s->begin[rank + 1] : 0;
}

DPAR_API int dpar_schedule_next(dpar_steps *steps, dpar_task *task)
{
    const dpar_action *list = steps->schedule->action;
    dpar_slots none;
    int k, count;
    while (steps->at < steps->end && list[steps->at].kind == DPAR_IDLE) {
        steps->at++;
    }
    if (steps->at >= steps->end) {
        return 0;
    }
    none.receive = none.activation = none.send = none.weight = DPAR_NO_SLOT;
    count = list[steps->at].joined && steps->at + 1 < steps->end ? 2 : 1;
    task->index = steps->at;
    for (k = 0; k < count; k++) {
        task->action[k] = list[steps->at + k];
        task->slots[k] = steps->slots != NULL ? steps->slots[steps->at + k] : none;
    }
    steps->at += count;
    return count;
}

/* ==== order/vshape.c ==== */

/* What a slot of a rank holds. F0, F1: forward of the stage on the way down and on the way up; B1,
 * B0: their backwards (I alone, or all of B in two slots). Each needs the one before it in this
 * list, and the same on the rank before: F0 and B1 go from rank 0 to p-1, F1 and B0 back. */
enum { DPARI_V_FREE, DPARI_V_F0, DPARI_V_F1, DPARI_V_B1, DPARI_V_B0, DPARI_V_W, DPARI_V_TAIL };
/* Of the numbers kept for each rank: [kind] is the next micro-batch of that kind; and these. */
enum { DPARI_V_END = 0, DPARI_V_OWED = 6, DPARI_V_LAST_W = 7, DPARI_V_NUMBERS = 8 };

typedef struct dpari_v {
    int32_t p, m;
    int32_t slots;   /* of a rank */
    int32_t tail;    /* slots of a backward behind its first: 1 where it is a whole B */
    int32_t *when;   /* [p][4][m]: the slot of F0, F1, B1, B0 of a micro-batch */
    int32_t *live;   /* [p][slots]: activations behind a slot */
    int32_t *owed;   /* [p][slots]: inputs done whose weights are not */
    int32_t *number; /* [p][DPARI_V_NUMBERS] */
    uint8_t *cell;   /* [p][slots] */
} dpari_v;

static int32_t dpari_v_slots(int32_t p, int32_t m)
{
    return 8 * m + 8 * p + 24; /* the last block begins at 6 m, ends 8 p later; then W's */
}

DPARI_API int64_t dpari_v_work(int32_t p, int32_t m)
{
    int64_t cells = (int64_t)p * dpari_v_slots(p, m);
    return 4 * (4 * (int64_t)p * m + 2 * cells + (int64_t)p * DPARI_V_NUMBERS) + cells;
}

static void dpari_v_lay(dpari_v *v, int32_t p, int32_t m, void *work)
{
    int64_t cells = (int64_t)p * dpari_v_slots(p, m);
    v->p = p;
    v->m = m;
    v->slots = dpari_v_slots(p, m);
    v->when = (int32_t *)work;
    v->live = v->when + 4 * (int64_t)p * m;
    v->owed = v->live + cells;
    v->number = v->owed + cells;
    v->cell = (uint8_t *)(v->number + (int64_t)p * DPARI_V_NUMBERS);
    dpari_zero(v->cell, (size_t)cells);
}

static uint8_t *dpari_v_row(const dpari_v *v, int32_t rank)
{
    return v->cell + (int64_t)rank * v->slots;
}

static int32_t *dpari_v_number(const dpari_v *v, int32_t rank)
{
    return v->number + (int64_t)rank * DPARI_V_NUMBERS;
}

static int32_t *dpari_v_when(const dpari_v *v, int32_t rank, int kind, int32_t micro)
{
    return v->when + ((int64_t)rank * 4 + kind - DPARI_V_F0) * v->m + micro;
}

/* The block of `rank` begins `kind` at slot `at`; and again every 6 slots. */
static void dpari_v_repeat(dpari_v *v, int32_t rank, int kind, int32_t at)
{
    int32_t k;
    for (k = 0; k < v->m; k++) {
        *dpari_v_when(v, rank, kind, k) = at + 6 * k;
        dpari_v_row(v, rank)[at + 6 * k] = (uint8_t)kind;
        if (v->tail && kind >= DPARI_V_B1) {
            dpari_v_row(v, rank)[at + 6 * k + 1] = DPARI_V_TAIL;
        }
    }
}

/* The last slot that the k-th of a kind has to wait for; -1: none. A tail on its own rank is in the
 * way as it is. */
static int32_t dpari_v_needs(const dpari_v *v, int32_t rank, int kind, int32_t k)
{
    int32_t from = kind == DPARI_V_F0 || kind == DPARI_V_B1 ? rank - 1 : rank + 1;
    int32_t tail = kind >= DPARI_V_B1 ? v->tail : 0;
    int32_t last = -1, own;
    if (from >= 0 && from < v->p) {
        last = *dpari_v_when(v, from, kind, k) + tail;
    }
    if (kind > DPARI_V_F0) {
        own = *dpari_v_when(v, rank, kind - 1, k);
        last = own > last ? own : last;
    }
    if (k > 0) {
        own = *dpari_v_when(v, rank, kind, k - 1);
        last = own > last ? own : last;
    }
    return last;
}

static void dpari_v_restart(dpari_v *v)
{
    dpari_zero(v->number, sizeof(int32_t) * DPARI_V_NUMBERS * (size_t)v->p);
}

/* ---- V-Half and V-Min: I and W apart -------------------------------------------------------- */

/* Activations and owed weights behind a slot. Where the W's have no slots of their own yet
 * (`filled` 0), a free slot does one that is owed. */
static void dpari_v_step(int cell, int filled, int32_t *live, int32_t *owed)
{
    if (cell == DPARI_V_F0 || cell == DPARI_V_F1) {
        ++*live;
    } else if (cell == DPARI_V_B1 || cell == DPARI_V_B0) {
        ++*owed;
    } else if (cell == DPARI_V_W || (!filled && *owed > 0)) {
        --*live;
        --*owed;
    }
}

/* The most activations that any rank ever holds. */
static int32_t dpari_v_peak(dpari_v *v, int filled)
{
    int32_t rank, t, most = 0;
    for (rank = 0; rank < v->p; rank++) {
        int64_t base = (int64_t)rank * v->slots;
        int32_t live = 0, owed = 0;
        for (t = 0; t < v->slots; t++) {
            dpari_v_step(v->cell[base + t], filled, &live, &owed);
            v->live[base + t] = live;
            v->owed[base + t] = owed;
            most = live > most ? live : most;
        }
    }
    return most;
}

/* A cell has moved from slot `from` to `to` before it: does the rank stay within `limit`? Followed
 * until all is as it was. With `keep` the new numbers are written. */
static int dpari_v_replay(dpari_v *v, int32_t rank, int32_t to, int32_t from, int filled,
                          int32_t limit, int keep)
{
    int64_t base = (int64_t)rank * v->slots;
    int32_t live = v->live[base + to - 1]; /* to > 0: all that moves comes behind an F0 */
    int32_t owed = v->owed[base + to - 1];
    int32_t t;
    for (t = to; t < v->slots; t++) {
        dpari_v_step(v->cell[base + t], filled, &live, &owed);
        if (live > limit) {
            return 0;
        }
        if (t >= from && v->live[base + t] == live && v->owed[base + t] == owed) {
            return 1;
        }
        if (keep) {
            v->live[base + t] = live;
            v->owed[base + t] = owed;
        }
    }
    return 1;
}

/* The first free slot of [to, from) to which what is in slot `from` can go; from when none. */
static int32_t dpari_v_advance(dpari_v *v, int32_t rank, int32_t to, int32_t from, int filled,
                               int32_t limit)
{
    uint8_t *row = dpari_v_row(v, rank);
    uint8_t kind = row[from];
    for (; to < from; to++) {
        if (row[to] != DPARI_V_FREE) {
            continue;
        }
        row[to] = kind;
        row[from] = DPARI_V_FREE;
        if (dpari_v_replay(v, rank, to, from, filled, limit, 0)) {
            (void)dpari_v_replay(v, rank, to, from, filled, limit, 1);
            return to;
        }
        row[to] = DPARI_V_FREE;
        row[from] = kind;
    }
    return from;
}

/* Gives every W the first free slot behind the inputs that are owed one. */
static void dpari_v_fill(dpari_v *v)
{
    int32_t rank, t;
    for (rank = 0; rank < v->p; rank++) {
        uint8_t *row = dpari_v_row(v, rank);
        int32_t owed = 0;
        for (t = 0; t < v->slots; t++) {
            if (row[t] == DPARI_V_B1 || row[t] == DPARI_V_B0) {
                owed++;
            } else if (row[t] == DPARI_V_FREE && owed > 0) {
                row[t] = DPARI_V_W;
                owed--;
            }
        }
    }
}

/* The slot of the k-th input of a rank, whichever stage it is of; `done` of them are before t. */
static int32_t dpari_v_input(const dpari_v *v, int32_t rank, int32_t t, int32_t done, int32_t k)
{
    const uint8_t *row = dpari_v_row(v, rank);
    while (done > k) {
        t--;
        done -= row[t] == DPARI_V_B1 || row[t] == DPARI_V_B0;
    }
    return t;
}

/* Brings forward what is in slot t of a rank, the k-th of its kind. */
static void dpari_v_move(dpari_v *v, int32_t rank, int32_t t, int32_t k, int filled, int32_t limit)
{
    int kind = dpari_v_row(v, rank)[t];
    int32_t *number = dpari_v_number(v, rank);
    if (kind != DPARI_V_W) {
        *dpari_v_when(v, rank, kind, k) =
            dpari_v_advance(v, rank, dpari_v_needs(v, rank, kind, k) + 1, t, filled, limit);
    } else {
        int32_t input = dpari_v_input(v, rank, t, number[DPARI_V_B1] + number[DPARI_V_B0], k);
        int32_t to = (int32_t)dpari_most(input, number[DPARI_V_LAST_W]);
        number[DPARI_V_LAST_W] = dpari_v_advance(v, rank, to + 1, t, filled, limit);
    }
}

/* Brings forward, slot by slot, what stands before the steady state (`filled` only) and behind it,
 * as far as its needs and the present peak of memory let it. The steady state is from rank 0's
 * first B0 to the last micro-batch's F0. */
static void dpari_v_reorder(dpari_v *v, int filled)
{
    int32_t limit = dpari_v_peak(v, filled);
    int32_t t, rank;
    int phase = 0;
    dpari_v_restart(v);
    for (t = 0; t < v->slots; t++) {
        for (rank = 0; rank < v->p; rank++) {
            int kind = dpari_v_row(v, rank)[t];
            int32_t *number = dpari_v_number(v, rank);
            int32_t k = number[kind]++;
            if (kind == DPARI_V_FREE) {
                continue;
            }
            phase += kind == DPARI_V_B0 && rank == 0 && phase == 0;
            if (phase == 2 || (phase == 0 && filled)) {
                dpari_v_move(v, rank, t, k, filled, limit);
            } else if (kind == DPARI_V_W) {
                number[DPARI_V_LAST_W] = t;
            }
            phase += kind == DPARI_V_F0 && k == v->m - 1 && phase == 1;
        }
    }
}

/* Each rank does at once what it can of its order, all of one slot's length. The W's take their
 * time and leave their slots. */
static void dpari_v_squeeze(dpari_v *v, int filled)
{
    int32_t t, rank;
    dpari_v_restart(v);
    for (t = 0; t < v->slots; t++) {
        for (rank = 0; rank < v->p; rank++) {
            uint8_t *cell = dpari_v_row(v, rank) + t;
            int32_t *number = dpari_v_number(v, rank);
            int kind = *cell;
            if (kind == DPARI_V_FREE && (filled || number[DPARI_V_OWED] == 0)) {
                continue;
            }
            *cell = DPARI_V_FREE;
            if (kind == DPARI_V_FREE || kind == DPARI_V_W) {
                number[DPARI_V_OWED]--;
            } else {
                int32_t k = number[kind]++;
                int32_t at = dpari_v_needs(v, rank, kind, k) + 1;
                at = number[DPARI_V_END] > at ? number[DPARI_V_END] : at;
                number[DPARI_V_OWED] += kind >= DPARI_V_B1;
                number[DPARI_V_END] = at;
                *dpari_v_when(v, rank, kind, k) = at;
                dpari_v_row(v, rank)[at] = (uint8_t)kind;
            }
            number[DPARI_V_END]++;
        }
    }
}

static void dpari_v_half_blocks(dpari_v *v)
{
    int32_t p = v->p, i, pause = p % 2 == 0 ? 3 : 0;
    for (i = 0; i < p; i++) {
        dpari_v_repeat(v, i, DPARI_V_F0, 2 * i);
        dpari_v_repeat(v, i, DPARI_V_F1, 3 * p - i - 2);
        dpari_v_repeat(v, i, DPARI_V_B1, 3 * p + pause + 2 * i - 1);
        dpari_v_repeat(v, i, DPARI_V_B0, 6 * p + pause - i - 2);
    }
}

static void dpari_v_min_blocks(dpari_v *v)
{
    int32_t p = v->p, i, pause = p % 3 == 0 ? 2 : 0;
    for (i = 0; i < p; i++) {
        dpari_v_repeat(v, i, DPARI_V_F0, i);
        dpari_v_repeat(v, i, DPARI_V_F1, 2 * p - i - 1);
        dpari_v_repeat(v, i, DPARI_V_B1, 2 * p + pause + i);
        dpari_v_repeat(v, i, DPARI_V_B0, 4 * p + pause - i - 1);
    }
}

/* ---- 1F1B-V: whole backwards ---------------------------------------------------------------- */

/* Down and up, forward; then down and up, backward, two slots each, with a pause of 3 behind each
 * third, so that no two kinds fall on one slot of the 6. */
static void dpari_v_whole_blocks(dpari_v *v)
{
    int32_t p = v->p, i, at = 7; /* the first slots are free, for moves */
    int32_t third = (3 - (p + 2) % 3) % 3;
    for (i = 0; i < 2 * p; i++, at++) {
        dpari_v_repeat(v, i < p ? i : 2 * p - 1 - i, i < p ? DPARI_V_F0 : DPARI_V_F1, at);
    }
    at += p % 3 == 0 ? 3 : 0;
    for (i = 0; i < 2 * p; i++) {
        dpari_v_repeat(v, i < p ? i : 2 * p - 1 - i, i < p ? DPARI_V_B1 : DPARI_V_B0, at);
        third = (third + 1) % 3;
        at += third == 0 ? 5 : 2;
    }
}

/* An F goes forward while the slot before has room under the peak, a B to the first two free
 * slots. The numbers of v->live follow. */
static void dpari_v_bring(dpari_v *v, int32_t rank, int32_t t, int32_t k, int32_t limit)
{
    uint8_t *row = dpari_v_row(v, rank);
    int32_t *live = v->live + (int64_t)rank * v->slots;
    int kind = row[t], whole = kind >= DPARI_V_B1;
    int32_t first = dpari_v_needs(v, rank, kind, k) + 1, to = whole ? first : t, i;
    while (to > first && live[to - 1] < limit) {
        to--;
    }
    while (to < t && (row[to] != DPARI_V_FREE || (whole && row[to + 1] != DPARI_V_FREE))) {
        to++;
    }
    if (to == t) {
        return;
    }
    for (i = to; i < t; i++) {
        live[i + whole] += whole ? -1 : 1;
    }
    row[t] = row[t + whole] = DPARI_V_FREE;
    row[to + whole] = DPARI_V_TAIL;
    row[to] = (uint8_t)kind;
    *dpari_v_when(v, rank, kind, k) = to;
}

static void dpari_v_whole_moves(dpari_v *v)
{
    int32_t t, rank, most = 0;
    for (rank = 0; rank < v->p; rank++) {
        int32_t live = 0;
        for (t = 0; t < v->slots; t++) {
            int kind = dpari_v_row(v, rank)[t];
            live += kind == DPARI_V_F0 || kind == DPARI_V_F1;
            live -= kind == DPARI_V_TAIL;
            v->live[(int64_t)rank * v->slots + t] = live;
            most = live > most ? live : most;
        }
    }
    dpari_v_restart(v);
    for (t = 0; t < v->slots; t++) {
        for (rank = 0; rank < v->p; rank++) {
            int kind = dpari_v_row(v, rank)[t];
            if (kind != DPARI_V_FREE && kind != DPARI_V_TAIL) {
                dpari_v_bring(v, rank, t, dpari_v_number(v, rank)[kind]++, most);
            }
        }
    }
}

/* ---- both ----------------------------------------------------------------------------------- */

static void dpari_v_put(dpar_action **at, int kind, int32_t stage, int32_t micro)
{
    (*at)->kind = (uint8_t)kind;
    (*at)->joined = 0;
    (*at)->stage = (uint16_t)stage;
    (*at)->micro = (uint16_t)micro;
    (*at)->peer = 0;
    ++*at;
}

/* A rank's slots as actions; free slots do the W's that are owed, the upper stage's first. */
static void dpari_v_write(const dpari_v *v, int32_t rank, dpar_action *at)
{
    const uint8_t *row = dpari_v_row(v, rank);
    int32_t stage[2], next[DPARI_V_W] = {0, 0, 0, 0, 0}, weight[2] = {0, 0}, t, s;
    stage[0] = rank;
    stage[1] = 2 * v->p - 1 - rank;
    for (t = 0; t < v->slots; t++) {
        int kind = row[t];
        if (kind == DPARI_V_F0 || kind == DPARI_V_F1) {
            dpari_v_put(&at, DPAR_FORWARD, stage[kind == DPARI_V_F1], next[kind]++);
        } else if (kind == DPARI_V_B1 || kind == DPARI_V_B0) {
            dpari_v_put(&at, v->tail ? DPAR_BACKWARD : DPAR_INPUT, stage[kind == DPARI_V_B1],
                        next[kind]++);
        } else if (kind == DPARI_V_FREE && !v->tail) {
            s = weight[1] < next[DPARI_V_B1];
            if (s || weight[0] < next[DPARI_V_B0]) {
                dpari_v_put(&at, DPAR_WEIGHT, stage[s], weight[s]++);
            }
        }
    }
}

DPARI_API void dpari_v_make(int32_t rule, const dpar_schedule *s, void *work)
{
    dpari_v v;
    int32_t rank;
    dpari_v_lay(&v, s->ranks, s->micros, work);
    v.tail = rule == DPAR_1F1B_V;
    if (v.tail) {
        dpari_v_whole_blocks(&v);
        dpari_v_whole_moves(&v);
    } else {
        if (rule == DPAR_V_HALF) {
            dpari_v_half_blocks(&v);
        } else {
            dpari_v_min_blocks(&v);
        }
        dpari_v_fill(&v);
        dpari_v_reorder(&v, 1);
        dpari_v_squeeze(&v, 1);
        dpari_v_reorder(&v, 0);
        dpari_v_squeeze(&v, 0);
    }
    for (rank = 0; rank < v.p; rank++) {
        dpari_v_write(&v, rank, s->action + s->begin[s->rank_of[rank]]);
    }
}

#ifndef DPAR_NO_COST

/* ==== cost/cluster.c ==== */

/* ---- chips ---------------------------------------------------------------------------------- */

/* name, generation, units, GB (1e9) that a program gets, TB/s, TFLOP/s fp64 / fp32 / tf32 / bf16 /
 * fp8 / fp4, GB/s to the host, GB/s to the other chips of a node (all links of a chip together;
 * PCIe where there is no more), switched, in-switch reduction, GB/s of the NIC that usually comes
 * with it, source. Dense, one direction. Traps: "80 GB" parts hold about 80 GiB, H200 nearly 141
 * GiB. MI250X is ONE GCD, half a package and half of its 383 TFLOP/s; GB200 one GPU of two. Links
 * of GH200 and MI300 are wires to each peer: a pair has a share. TPU: 6 or 4 torus links of 90 or
 * 45. table */
static const struct {
    char name[16];
    int8_t generation;
    int16_t units;
    float gb, tbps, f64, f32, tf32, bf16, fp8, fp4, pcie;
    int16_t link;
    int8_t switched, reduces;
    float nic;
    char source[44];
} dpari_gpu[] = {{"v100-16", DPAR_GEN_VOLTA, 80, 17.1f, 0.9f, 7.8f, 15.7f, 0, 125, 0, 0, 12, 150, 0,
                  0, 12.5f, "NVIDIA data sheet 2017"},
                 {"v100-32", DPAR_GEN_VOLTA, 80, 34.3f, 0.9f, 7.8f, 15.7f, 0, 125, 0, 0, 12, 150, 0,
                  0, 12.5f, "NVIDIA data sheet 2018"},
                 {"a100-40", DPAR_GEN_AMPERE, 108, 42.4f, 1.555f, 9.7f, 19.5f, 156, 312, 0, 0, 25,
                  300, 1, 0, 25, "NVIDIA data sheet 2020"},
                 {"a100-80", DPAR_GEN_AMPERE, 108, 85.9f, 2.039f, 9.7f, 19.5f, 156, 312, 0, 0, 25,
                  300, 1, 0, 25, "NVIDIA data sheet 2021"},
                 {"a100-80-pcie", DPAR_GEN_AMPERE, 108, 85.9f, 1.935f, 9.7f, 19.5f, 156, 312, 0, 0,
                  25, 31, 1, 0, 25, "NVIDIA data sheet 2021"},
                 {"a100-40-pcie", DPAR_GEN_AMPERE, 108, 42.4f, 1.555f, 9.7f, 19.5f, 156, 312, 0, 0,
                  25, 31, 1, 0, 25, "NVIDIA data sheet 2020"},
                 {"a100-64", DPAR_GEN_AMPERE, 124, 68.7f, 1.64f, 11.2f, 22.4f, 156, 312, 0, 0, 25,
                  200, 0, 0, 25, "CINECA Leonardo 2023, unverified"},
                 {"h100-80", DPAR_GEN_HOPPER, 132, 85.5f, 3.35f, 34, 67, 494.5f, 989, 1979, 0, 50,
                  450, 1, 1, 50, "NVIDIA data sheet 2023"},
                 {"h100-96", DPAR_GEN_HOPPER, 132, 102.0f, 2.4f, 34, 67, 494.5f, 989, 1979, 0, 50,
                  450, 1, 1, 50, "torchtitan 2024-12: HBM2e, 500 W"},
                 {"h100-pcie", DPAR_GEN_HOPPER, 114, 85.5f, 2.0f, 26, 51, 378, 756, 1513, 0, 50, 63,
                  1, 0, 50, "NVIDIA data sheet 2023"},
                 {"h800", DPAR_GEN_HOPPER, 132, 85.5f, 3.35f, 1, 67, 494.5f, 989, 1979, 0, 50, 200,
                  1, 1, 50, "ml-engineering 2025"},
                 {"h200", DPAR_GEN_HOPPER, 132, 150.8f, 4.8f, 34, 67, 494.5f, 989, 1979, 0, 50, 450,
                  1, 1, 50, "NVIDIA data sheet 2024"},
                 {"gh200", DPAR_GEN_HOPPER, 132, 102.0f, 4.0f, 34, 67, 494.5f, 989, 1979, 0, 450,
                  450, 0, 0, 25, "NVIDIA data sheet 2023"},
                 {"gh200-141", DPAR_GEN_HOPPER, 132, 150.8f, 4.8f, 34, 67, 494.5f, 989, 1979, 0,
                  450, 450, 0, 0, 25, "NVIDIA data sheet 2024"},
                 {"b200", DPAR_GEN_BLACKWELL, 148, 191.5f, 8.0f, 37, 80, 1125, 2250, 4500, 9000, 50,
                  900, 1, 1, 50, "NVIDIA data sheet 2024"},
                 {"gb200", DPAR_GEN_BLACKWELL, 148, 197.0f, 8.0f, 40, 80, 1250, 2500, 5000, 10000,
                  200, 900, 1, 1, 50, "NVIDIA data sheet 2024"},
                 {"b300", DPAR_GEN_BLACKWELL, 148, 288.0f, 8.0f, 1.2f, 80, 1125, 2250, 4500, 13000,
                  50, 900, 1, 1, 50, "NVIDIA data sheet 2025"},
                 {"gb300", DPAR_GEN_BLACKWELL, 148, 288.0f, 8.0f, 1.3f, 80, 1250, 2500, 5000, 14000,
                  200, 900, 1, 1, 50, "NVIDIA data sheet 2025"},
                 {"l40s", DPAR_GEN_AMPERE, 142, 48.3f, 0.86f, 1.4f, 91.6f, 183, 362, 733, 0, 25, 31,
                  1, 0, 25, "NVIDIA data sheet 2023"},
                 {"mi250x", DPAR_GEN_CDNA, 110, 68.7f, 1.6f, 47.9f, 23.9f, 0, 191.5f, 0, 0, 36, 150,
                  0, 0, 25, "AMD data sheet 2021, one GCD"},
                 {"mi300x", DPAR_GEN_CDNA, 304, 206.0f, 5.3f, 81.7f, 163, 654, 1300, 2610, 0, 50,
                  448, 0, 0, 50, "AMD data sheet 2023"},
                 {"mi325x", DPAR_GEN_CDNA, 304, 275.0f, 6.0f, 81.7f, 163, 654, 1300, 2610, 0, 50,
                  448, 0, 0, 50, "AMD data sheet 2024"},
                 {"mi355x", DPAR_GEN_CDNA, 256, 309.0f, 8.0f, 78, 157, 0, 2500, 5000, 10000, 50,
                  535, 0, 0, 50, "AMD data sheet 2025"},
                 {"tpu-v4", DPAR_GEN_TPU, 2, 34.3f, 1.2f, 0, 8, 0, 275, 0, 0, 12, 270, 0, 0, 12.5f,
                  "Google 2022, memory unverified"},
                 {"tpu-v5e", DPAR_GEN_TPU, 1, 17.1f, 0.82f, 0, 6, 0, 197, 0, 0, 12, 180, 0, 0,
                  12.5f, "Google 2023, memory unverified"},
                 {"tpu-v5p", DPAR_GEN_TPU, 2, 102.0f, 2.76f, 0, 14, 0, 459, 0, 0, 12, 540, 0, 0,
                  12.5f, "Google 2023, memory unverified"},
                 {"tpu-v6e", DPAR_GEN_TPU, 1, 34.3f, 1.64f, 0, 28, 0, 918, 0, 0, 12, 360, 0, 0,
                  12.5f, "Google 2024, memory unverified"}};

enum { DPARI_GPUS = (int)(sizeof(dpari_gpu) / sizeof(dpari_gpu[0])) };

/* ---- machines ------------------------------------------------------------------------------- */

/* A network whose transport is not InfiniBand's or RoCE's reaches other shares of its NICs at other
 * latencies (T8): constants of the network, whatever the chip. */
enum { DPARI_IB, DPARI_SLINGSHOT, DPARI_EFA };

/* Nodes and chips a node; in-node GB/s one direction a chip; switched; in-switch reduction; NICs a
 * node and GB/s of each by data sheet; host GB a node; transport. table */
static const struct {
    char name[16];
    char gpu[16];
    int16_t nodes, per_node, link, switched, nvls, nics;
    float nic;
    int16_t host;
    int8_t transport;
    char source[92];
} dpari_machine[] = {
    {"dgx-v100", "v100-32", 1, 8, 150, 0, 0, 4, 12.5f, 1500, DPARI_IB, "DGX-1 V100, 4 x EDR, 2018"},
    {"dgx-a100", "a100-80", 1, 8, 300, 1, 0, 8, 25, 2000, DPARI_IB, "DGX A100, 8 x HDR200, 2021"},
    {"selene", "a100-80", 560, 8, 300, 1, 0, 8, 25, 2000, DPARI_IB,
     "NVIDIA Selene, 8 x HDR200 a node, 2021"},
    {"dgx-h100", "h100-80", 1, 8, 450, 1, 1, 8, 50, 2000, DPARI_IB, "DGX H100, 8 x NDR400, 2023"},
    {"dgx-h200", "h200", 1, 8, 450, 1, 1, 8, 50, 2000, DPARI_IB, "DGX H200, 8 x NDR400, 2024"},
    {"dgx-b200", "b200", 1, 8, 900, 1, 1, 8, 50, 2000, DPARI_IB, "DGX B200, 8 x NDR400, 2024"},
    {"dgx-b300", "b300", 1, 8, 900, 1, 1, 8, 100, 2000, DPARI_IB, "DGX B300, 8 x 800 Gb/s, 2025"},
    {"p4d", "a100-40", 1, 8, 300, 1, 0, 4, 12.5f, 1152, DPARI_EFA,
     "AWS p4d.24xlarge, 4 x 100 Gb/s EFA v1, 42.5 of 50 GB/s effective, 2020"},
    {"p4de", "a100-80", 1, 8, 300, 1, 0, 4, 12.5f, 1152, DPARI_EFA,
     "AWS p4de.24xlarge, 4 x 100 Gb/s EFA v1, 2022"},
    {"p5", "h100-80", 1, 8, 450, 1, 1, 32, 12.5f, 2048, DPARI_IB,
     "AWS p5.48xlarge, 32 x 100 Gb/s EFA, 2023"},
    {"p5en", "h200", 1, 8, 450, 1, 1, 16, 25, 2048, DPARI_IB,
     "AWS p5en.48xlarge, 3200 Gb/s EFA, 2024"},
    {"p6-b200", "b200", 1, 8, 900, 1, 1, 8, 50, 2048, DPARI_IB, "AWS p6-b200, 3200 Gb/s EFA, 2025"},
    {"p6-b300", "b300", 1, 8, 900, 1, 1, 8, 100, 4096, DPARI_IB,
     "AWS p6-b300, 6400 Gb/s EFA, 2025"},
    {"a3-high", "h100-80", 1, 8, 450, 1, 1, 4, 25, 1872, DPARI_IB,
     "GCP A3 High, 100 GB/s a node, 2023"},
    {"a3-mega", "h100-80", 1, 8, 450, 1, 1, 8, 25, 1872, DPARI_IB,
     "GCP A3 Mega, 200 GB/s a node, 2024"},
    {"derecho", "a100-40", 82, 4, 300, 0, 0, 4, 25, 512, DPARI_SLINGSHOT,
     "NCAR 2023: 4 x 200 Gb/s a GPU node; a guide says 200 Gb/s a node: probe it (nic=1x25)"},
    {"frontier", "mi250x", 9856, 8, 150, 0, 0, 4, 25, 512, DPARI_SLINGSHOT,
     "OLCF 2022: 8 GCDs a node, 4 x 200 Gb/s, 200 GB/s in package, 50-100 between"},
    {"summit", "v100-16", 4600, 6, 50, 1, 0, 2, 11.5f, 512, DPARI_IB,
     "OLCF 2018: 6 V100 a node, 50 GB/s a pair (64 between sockets), dual EDR 23 GB/s"},
    {"perlmutter", "a100-40", 1536, 4, 300, 0, 0, 4, 25, 256, DPARI_SLINGSHOT,
     "NERSC 2022: 100 GB/s a pair, 4 x Slingshot 11, unverified"},
    {"perlmutter-80", "a100-80", 256, 4, 300, 0, 0, 4, 25, 256, DPARI_SLINGSHOT,
     "NERSC 2022: the 80 GB nodes, unverified"},
    {"leonardo", "a100-64", 3456, 4, 200, 0, 0, 2, 25, 512, DPARI_IB,
     "CINECA 2023: 2 x dual HDR100 = 50 GB/s a node, unverified"},
    {"alps", "gh200", 2688, 4, 450, 0, 0, 4, 25, 480, DPARI_SLINGSHOT,
     "CSCS 2024: 150 GB/s a pair, 4 x 200 Gb/s Slingshot 11"},
    {"jupiter", "gh200", 6000, 4, 450, 0, 0, 4, 25, 480, DPARI_IB,
     "JSC 2025: 150 GB/s a pair, 4 x NDR200"},
    {"grand-teton", "h100-80", 1, 8, 450, 1, 1, 8, 50, 2000, DPARI_IB,
     "Meta, 8 x 400 Gb/s RoCE, 2024"},
    {"gb200-nvl72", "gb200", 1, 72, 900, 1, 1, 72, 50, 17000, DPARI_IB, "NVIDIA GB200 NVL72, 2024"},
    {"tpu-v5p", "tpu-v5p", 1, 64, 540, 0, 0, 16, 12.5f, 512, DPARI_IB,
     "Google v5p 2023: a 4 x 4 x 4 cube, ICI 6 x 90 GB/s, unverified"},
    {"tpu-v5e", "tpu-v5e", 1, 256, 180, 0, 0, 64, 12.5f, 512, DPARI_IB,
     "Google v5e 2023: a pod of 16 x 16, ICI 4 x 45 GB/s, unverified"}};

enum { DPARI_MACHINES = (int)(sizeof(dpari_machine) / sizeof(dpari_machine[0])) };

/* ---- calibration ---------------------------------------------------------------------------- */

/* gemm, attention, hbm, launch s, link share, link s, net share, net s, base s, contention, skew,
 * step s. Links: Volta's and Ampere's from vTrain's all-reduce tables, Hopper's from three marked
 * sizes of the H100-class nccl-tests rows. net_s: SimAI's NIC table, 16 to 1024 ranks, one for all.
 * The rest: marked rows of docs/accuracy.md. table */
static const struct {
    float value[DPAR_CALS];
    char source[64];
} dpari_default[DPAR_GENERATIONS] = {
    {{.60f, .40f, .80f, 12e-6f, .75f, 4e-6f, .90f, 4e-6f, 30e-6f, .15f, .005f, .005f},
     "estimate, no measurement"},
    {{.60f, .30f, .80f, 12e-6f, .90f, 4e-6f, .92f, 3.7e-6f, 36e-6f, .15f, .005f, .005f},
     "links: vTrain V100 all-reduce 2024; rest estimated"},
    {{.78f, .56f, .80f, 45.8e-6f, .78f, 4.2e-6f, .92f, 3.7e-6f, 36e-6f, .15f, .0140f, .0048f},
     "marked rows of docs/accuracy.md, 2026-11"},
    {{.68f, .36f, .80f, 12e-6f, .795f, 2e-6f, .92f, 3.7e-6f, 30e-6f, .15f, .005f, .005f},
     "links: H100-class nccl-tests 2024; products: best of 794/989"},
    {{.543f, .389f, .44f, 10e-6f, .80f, 2e-6f, .92f, 3.7e-6f, 30e-6f, .15f, .005f, .005f},
     "marked B200 rows of docs/accuracy.md, 2026-11"},
    {{.50f, .30f, .75f, 15e-6f, .75f, 4e-6f, .90f, 4e-6f, 40e-6f, .15f, .005f, .005f},
     "products: best shape 668 of 1300, 2024; rest estimated"},
    {{.80f, .45f, .85f, 1e-6f, .85f, 2e-6f, .85f, 10e-6f, 10e-6f, .15f, .001f, .005f},
     "products after MaxText's public MFU 2024; the rest is a guess"}};

static const char dpari_cal_name[DPAR_CALS][12] = {
    "gemm",      "attention", "hbm",     "launch_us",  "link_share", "link_us",
    "net_share", "net_us",    "base_us", "contention", "skew",       "step_ms"};

DPAR_API const char *dpar_calibration_name(int32_t which)
{
    return which >= 0 && which < DPAR_CALS ? dpari_cal_name[which] : NULL;
}

DPAR_API int32_t dpar_calibration_find(const char *name, size_t length)
{
    int32_t i;
    for (i = 0; i < DPAR_CALS; i++) {
        if (dpari_spells(name, length, dpari_cal_name[i])) {
            return i;
        }
    }
    return -1;
}

/* In which unit a person gives a constant. */
static double dpari_cal_unit(int32_t which)
{
    return which == DPAR_CAL_STEP_S ? 1e-3
           : which == DPAR_CAL_LAUNCH_S || which == DPAR_CAL_LINK_S || which == DPAR_CAL_NET_S ||
                   which == DPAR_CAL_BASE_S
               ? 1e-6
               : 1.0;
}

/* Which of them measurements set (bits by DPAR_CAL_*): taken for good to 10 %, about as far as the
 * tables of docs/accuracy.md scatter; estimates to 20 %. Judgements both: dpar_calibrate fits them.
 */
static const int16_t dpari_measured[DPAR_GENERATIONS] = {
    0,
    1 << DPAR_CAL_LINK_SHARE | 1 << DPAR_CAL_LINK_S,
    0xFFF & ~(1 << DPAR_CAL_CONTENTION),
    1 << DPAR_CAL_LINK_SHARE | 1 << DPAR_CAL_LINK_S | 1 << DPAR_CAL_BASE_S,
    1 << DPAR_CAL_GEMM | 1 << DPAR_CAL_ATTENTION | 1 << DPAR_CAL_HBM,
    0,
    0};

DPAR_API void dpar_calibration_default(dpar_calibration *cal, int32_t generation)
{
    int32_t i, g = generation >= 0 && generation < DPAR_GENERATIONS ? generation : DPAR_GEN_OTHER;
    dpari_zero(cal, sizeof(*cal));
    for (i = 0; i < DPAR_CALS; i++) {
        cal->value[i] = (double)dpari_default[g].value[i];
        cal->error[i] = dpari_measured[g] >> i & 1 ? 0.1 : 0.2;
    }
    dpari_copy_text(cal->source, sizeof(cal->source), dpari_default[g].source,
                    sizeof(dpari_default[g].source));
}

/* Slingshot 11 under NCCL and OFI: 240 us before the first byte of a large all-reduce on two nodes,
 * then 80 GB/s of 100 (nccl-tests on GH200 nodes: the rows of 1, 16 and 128 MiB). EFA v1: 340 of
 * 400 Gb/s in all-reduce (AWS p4d). */
static void dpari_cluster_transport(dpar_cluster *c, int32_t transport)
{
    if (transport == DPARI_SLINGSHOT) {
        c->cal.value[DPAR_CAL_NET_S] = 20e-6;
        c->cal.value[DPAR_CAL_NET_SHARE] = 0.89;
    } else if (transport == DPARI_EFA) {
        c->cal.value[DPAR_CAL_NET_SHARE] = 0.85;
    }
}

/* 500 W parts throttle: products at about 0.55 of the peak (torchtitan's own MFU says no more). */
static void dpari_cluster_power(dpar_cluster *c)
{
    if (dpari_same(c->gpu.name, "h100-96")) {
        c->cal.value[DPAR_CAL_GEMM] = 0.55;
        c->cal.value[DPAR_CAL_ATTENTION] = 0.27;
    }
}

/* ---- finding a preset ----------------------------------------------------------------------- */

static char dpari_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static int dpari_spells_any_case(const char *s, size_t n, const char *word)
{
    size_t i;
    for (i = 0; i < n; i++) {
        if (word[i] == 0 || word[i] != dpari_lower(s[i])) {
            return 0;
        }
    }
    return word[n] == 0;
}

/* Edit distance (Levenshtein), case apart, of words of up to 31 characters: one row of its table
 * at a time. */
static int32_t dpari_unlike(const char *s, size_t n, const char *word)
{
    int32_t row[32], i, k, m = (int32_t)dpari_length(word), length = n < 31 ? (int32_t)n : 31;
    for (k = 0; k <= m; k++) {
        row[k] = k;
    }
    for (i = 1; i <= length; i++) {
        int32_t corner = row[0];
        row[0] = i;
        for (k = 1; k <= m; k++) {
            int32_t change = corner + (dpari_lower(s[i - 1]) != word[k - 1]);
            corner = row[k];
            row[k] = (int32_t)dpari_least(change, dpari_least(row[k], row[k - 1]) + 1);
        }
    }
    return row[m];
}

static int32_t dpari_gpu_find(const char *s, size_t n, int32_t *nearest)
{
    int32_t i, best = 0;
    for (i = 0; i < DPARI_GPUS; i++) {
        if (dpari_spells_any_case(s, n, dpari_gpu[i].name)) {
            return i;
        }
        if (dpari_unlike(s, n, dpari_gpu[i].name) < dpari_unlike(s, n, dpari_gpu[best].name)) {
            best = i;
        }
    }
    *nearest = best;
    return -1;
}

static int32_t dpari_machine_find(const char *s, size_t n, int32_t *nearest)
{
    int32_t i, best = 0;
    for (i = 0; i < DPARI_MACHINES; i++) {
        if (dpari_spells_any_case(s, n, dpari_machine[i].name)) {
            return i;
        }
        if (dpari_unlike(s, n, dpari_machine[i].name) <
            dpari_unlike(s, n, dpari_machine[best].name)) {
            best = i;
        }
    }
    *nearest = best;
    return -1;
}

DPAR_API const char *dpar_gpu_name(int32_t index)
{
    return index >= 0 && index < DPARI_GPUS ? dpari_gpu[index].name : NULL;
}

DPAR_API const char *dpar_cluster_name(int32_t index)
{
    return index >= 0 && index < DPARI_MACHINES ? dpari_machine[index].name : NULL;
}

static void dpari_gpu_fill(dpar_gpu *g, int32_t i)
{
    dpari_zero(g, sizeof(*g));
    dpari_copy_text(g->name, sizeof(g->name), dpari_gpu[i].name, sizeof(dpari_gpu[i].name));
    g->generation = dpari_gpu[i].generation;
    g->units = dpari_gpu[i].units;
    g->memory_bytes = (double)dpari_gpu[i].gb * 1e9;
    g->memory_Bps = (double)dpari_gpu[i].tbps * 1e12;
    g->flops[DPAR_F64] = (double)dpari_gpu[i].f64 * 1e12;
    g->flops[DPAR_F32] = (double)dpari_gpu[i].f32 * 1e12;
    g->flops[DPAR_TF32] = (double)dpari_gpu[i].tf32 * 1e12;
    g->flops[DPAR_BF16] = (double)dpari_gpu[i].bf16 * 1e12;
    g->flops[DPAR_F8] = (double)dpari_gpu[i].fp8 * 1e12;
    g->flops[DPAR_F4] = (double)dpari_gpu[i].fp4 * 1e12;
    g->pcie_Bps = (double)dpari_gpu[i].pcie * 1e9;
    dpari_copy_text(g->source, sizeof(g->source), dpari_gpu[i].source, sizeof(dpari_gpu[i].source));
}

static dpar_status dpari_gpu_slice(dpar_gpu *gpu, const char *s, size_t n, dpar_why *why)
{
    int32_t nearest = 0, i = dpari_gpu_find(s, n, &nearest);
    char text[80];
    dpar_text t;
    if (i >= 0) {
        dpari_gpu_fill(gpu, i);
        return DPAR_OK;
    }
    dpar_text_init(&t, text, sizeof(text));
    dpar_text_slice(&t, s, n < 40 ? n : 40);
    dpar_text_put(&t, "'; the nearest is '");
    dpar_text_put(&t, dpari_gpu[nearest].name);
    return dpari_say_word(DPAR_E_UNKNOWN, why, "unknown GPU '@'", text, sizeof(text), 0, 0, 0, 0);
}

DPAR_API dpar_status dpar_gpu_preset(dpar_gpu *gpu, const char *name, dpar_why *why)
{
    return dpari_gpu_slice(gpu, name, dpari_length(name), why);
}

/* The chip's row; -1 when it is none. */
static int32_t dpari_gpu_row(const dpar_gpu *gpu)
{
    int32_t unused = 0;
    return dpari_gpu_find(gpu->name, dpari_length(gpu->name), &unused);
}

/* What a machine of several nodes has when nobody says: a NIC a chip. */
static void dpari_cluster_usual_nics(dpar_cluster *c)
{
    int32_t i = dpari_gpu_row(&c->gpu);
    c->nics = c->gpus_per_node;
    c->nic_Bps = i < 0 ? 25e9 : (double)dpari_gpu[i].nic * 1e9;
}

/* `nodes` nodes of `per_node` such GPUs with the links that they usually have. */
static void dpari_cluster_of_gpus(dpar_cluster *c, int32_t nodes, int32_t per_node)
{
    int32_t i = dpari_gpu_row(&c->gpu);
    dpar_calibration_default(&c->cal, c->gpu.generation);
    dpari_cluster_power(c);
    c->nodes = nodes;
    c->gpus_per_node = per_node;
    c->link_Bps = (double)dpari_gpu[i].link * 1e9;
    c->link_switched = /* nobody wires more than eight chips to each other */
        dpari_gpu[i].switched || (per_node > 8 && c->gpu.generation != DPAR_GEN_TPU);
    c->link_reduces = dpari_gpu[i].reduces;
    c->nics = 0;
    c->nic_Bps = 0.0;
    if (nodes > 1) {
        dpari_cluster_usual_nics(c);
    }
    c->taper = 1.0;
    c->host_bytes = 1e12;
    dpari_copy_text(c->source, sizeof(c->source),
                    "as given; what was not: links and one NIC a GPU as usual with the chip", 96);
}

static void dpari_cluster_fill(dpar_cluster *c, int32_t i)
{
    int32_t unused = 0;
    dpari_zero(c, sizeof(*c));
    dpari_gpu_fill(
        &c->gpu, dpari_gpu_find(dpari_machine[i].gpu, dpari_length(dpari_machine[i].gpu), &unused));
    dpari_cluster_of_gpus(c, dpari_machine[i].nodes, dpari_machine[i].per_node);
    dpari_copy_text(c->name, sizeof(c->name), dpari_machine[i].name, sizeof(dpari_machine[i].name));
    c->link_Bps = dpari_machine[i].link * 1e9;
    c->link_switched = dpari_machine[i].switched;
    c->link_reduces = dpari_machine[i].nvls;
    c->nics = dpari_machine[i].nics;
    c->nic_Bps = (double)dpari_machine[i].nic * 1e9;
    c->host_bytes = dpari_machine[i].host * 1e9;
    dpari_cluster_transport(c, dpari_machine[i].transport);
    dpari_copy_text(c->source, sizeof(c->source), dpari_machine[i].source,
                    sizeof(dpari_machine[i].source));
}

static dpar_status dpari_cluster_slice(dpar_cluster *c, const char *s, size_t n, dpar_why *why)
{
    int32_t nearest = 0, i = dpari_machine_find(s, n, &nearest);
    char text[120];
    dpar_text t;
    if (i >= 0) {
        dpari_cluster_fill(c, i);
        return DPAR_OK;
    }
    dpar_text_init(&t, text, sizeof(text));
    dpar_text_slice(&t, s, n < 40 ? n : 40);
    dpar_text_put(&t, "'; the nearest is '");
    dpar_text_put(&t, dpari_machine[nearest].name);
    dpar_text_put(&t, "', or say NODESxGPUS:GPU as '8x8:h100-80");
    return dpari_say_word(DPAR_E_UNKNOWN, why, "unknown machine '@'", text, sizeof(text), 0, 0, 0,
                          0);
}

DPAR_API dpar_status dpar_cluster_preset(dpar_cluster *c, const char *name, dpar_why *why)
{
    return dpari_cluster_slice(c, name, dpari_length(name), why);
}

/* ---- the text form -------------------------------------------------------------------------- */

/* A whole number 1 .. limit that is all of the slice; 0 otherwise. */
static int32_t dpari_cluster_count(const char *s, size_t n, int32_t limit)
{
    int64_t v = 0;
    size_t i;
    for (i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9' || v > 100000000) {
            return 0;
        }
        v = v * 10 + (s[i] - '0');
    }
    return n > 0 && v >= 1 && v <= limit ? (int32_t)v : 0;
}

static int dpari_cluster_real(const char *s, size_t n, double *v)
{
    return dpar_text_read(s, n, v) == n && n > 0 && dpari_finite(*v) && *v >= 0.0;
}

static dpar_status dpari_cluster_bad(const char *s, size_t n, dpar_why *why, const char *form)
{
    return dpari_say_word(DPAR_E_PARSE, why, form, s, n < 60 ? n : 60, 0, 0, 0, 0);
}

enum {
    DPARI_KEY_NODES,
    DPARI_KEY_GPUS,
    DPARI_KEY_GPU,
    DPARI_KEY_NVLINK,
    DPARI_KEY_SWITCHED,
    DPARI_KEY_NVLS,
    DPARI_KEY_NIC,
    DPARI_KEY_SHARP,
    DPARI_KEY_TAPER,
    DPARI_KEY_MEMORY,
    DPARI_KEY_HBM,
    DPARI_KEY_TFLOPS,
    DPARI_KEY_PCIE,
    DPARI_KEY_HOST,
    DPARI_KEY_NVME,
    DPARI_KEY_BASE,
    DPARI_KEYS
};

static const char dpari_key_name[DPARI_KEYS][12] = {
    "nodes", "gpus",   "gpu", "nvlink", "switched", "nvls", "nic",  "sharp",
    "taper", "memory", "hbm", "tflops", "pcie",     "host", "nvme", "machine"};

/* "8x50": eight NICs of 50 GB/s. */
static int dpari_cluster_nics(dpar_cluster *c, const char *s, size_t n)
{
    size_t k = 0;
    double gb;
    while (k < n && s[k] != 'x') {
        k++;
    }
    if (k == n || dpari_cluster_count(s, k, 1024) == 0 ||
        !dpari_cluster_real(s + k + 1, n - k - 1, &gb) || gb <= 0.0) {
        return 0;
    }
    c->nics = dpari_cluster_count(s, k, 1024);
    c->nic_Bps = gb * 1e9;
    return 1;
}

static int dpari_cluster_number(dpar_cluster *c, int32_t key, double v)
{
    switch (key) {
    case DPARI_KEY_NVLINK: c->link_Bps = v * 1e9; break;
    case DPARI_KEY_SWITCHED: c->link_switched = v > 0.0; break;
    case DPARI_KEY_NVLS: c->link_reduces = v > 0.0; break;
    case DPARI_KEY_SHARP: c->net_reduces = v > 0.0; break;
    case DPARI_KEY_TAPER: c->taper = v; break;
    case DPARI_KEY_MEMORY: c->gpu.memory_bytes = v * 1e9; break;
    case DPARI_KEY_HBM: c->gpu.memory_Bps = v * 1e9; break;
    case DPARI_KEY_TFLOPS: c->gpu.flops[DPAR_BF16] = v * 1e12; break;
    case DPARI_KEY_PCIE: c->gpu.pcie_Bps = v * 1e9; break;
    case DPARI_KEY_HOST: c->host_bytes = v * 1e9; break;
    case DPARI_KEY_NVME: c->nvme_Bps = v * 1e9; break;
    default: return 0;
    }
    return 1;
}

/* Another chip: in a form like 8x8:GPU with its own links, in a named machine with those of the
 * machine. */
static dpar_status dpari_cluster_swap_gpu(dpar_cluster *c, const char *s, size_t n, dpar_why *why)
{
    int32_t unused = 0, machine = dpari_machine_find(c->name, dpari_length(c->name), &unused);
    dpar_status st = dpari_gpu_slice(&c->gpu, s, n, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (machine < 0) {
        dpari_cluster_of_gpus(c, c->nodes, c->gpus_per_node);
        return DPAR_OK;
    }
    dpar_calibration_default(&c->cal, c->gpu.generation);
    dpari_cluster_power(c);
    dpari_cluster_transport(c, dpari_machine[machine].transport);
    return DPAR_OK;
}

/* nodes=, gpus=: NICs follow the number of GPUs a node; the first further node brings NICs. */
static dpar_status dpari_cluster_shape(dpar_cluster *c, int32_t key, const char *s, size_t n,
                                       size_t value, dpar_why *why)
{
    int32_t count = dpari_cluster_count(s + value, n - value, 10000000);
    if (count == 0) {
        return dpari_cluster_bad(s, n, why, "'@': a whole number of 1 to 10000000 was expected");
    }
    if (key == DPARI_KEY_NODES) {
        c->nodes = count;
        if (count > 1 && c->nics == 0) {
            dpari_cluster_usual_nics(c);
        }
        return DPAR_OK;
    }
    if (c->nics > 0) {
        c->nics = (int32_t)dpari_most(1, (int64_t)c->nics * count / c->gpus_per_node);
    }
    c->gpus_per_node = count;
    return DPAR_OK;
}

/* "'nvlnk' is no setting ...; the nearest is 'nvlink'". */
static dpar_status dpari_cluster_no_key(const char *s, size_t n, dpar_why *why)
{
    const char *best = dpari_key_name[0];
    char text[100];
    dpar_text t;
    int32_t i;
    for (i = 0; i < (int32_t)DPARI_KEYS + (int32_t)DPAR_CALS; i++) {
        const char *name = i < DPARI_KEYS ? dpari_key_name[i] : dpari_cal_name[i - DPARI_KEYS];
        if (dpari_unlike(s, n, name) < dpari_unlike(s, n, best)) {
            best = name;
        }
    }
    dpar_text_init(&t, text, sizeof(text));
    dpar_text_slice(&t, s, n < 40 ? n : 40);
    dpar_text_put(&t, "' is no setting of a machine; the nearest is '");
    dpar_text_put(&t, best);
    return dpari_say_word(DPAR_E_PARSE, why,
                          "'@'. Known: nodes gpus gpu nvlink switched nvls nic sharp taper memory "
                          "hbm tflops pcie host nvme and the calibration names",
                          text, sizeof(text), 0, 0, 0, 0);
}

/* One "key=value". Twice over all: first the shape and the chip, then the numbers, so that their
 * order does not matter. */
static dpar_status dpari_cluster_setting(dpar_cluster *c, const char *s, size_t n, int32_t pass,
                                         dpar_why *why)
{
    size_t k = 0;
    int32_t key = 0, cal, shape;
    double v = 0.0;
    while (k < n && s[k] != '=') {
        k++;
    }
    while (key < DPARI_KEYS && !dpari_spells_any_case(s, k, dpari_key_name[key])) {
        key++;
    }
    cal = dpar_calibration_find(s, k);
    if (key == DPARI_KEYS && cal < 0) {
        return dpari_cluster_no_key(s, k, why);
    }
    if (k + 1 >= n) {
        return dpari_cluster_bad(s, n, why, "'@' has no value: key=value was expected");
    }
    shape = key == DPARI_KEY_GPU || key == DPARI_KEY_NODES || key == DPARI_KEY_GPUS;
    if (shape != (pass == 0)) {
        return DPAR_OK;
    }
    if (key == DPARI_KEY_GPU) {
        return dpari_cluster_swap_gpu(c, s + k + 1, n - k - 1, why);
    }
    if (shape) {
        return dpari_cluster_shape(c, key, s, n, k + 1, why);
    }
    if (key == DPARI_KEY_NIC) {
        return dpari_cluster_nics(c, s + k + 1, n - k - 1)
                   ? DPAR_OK
                   : dpari_cluster_bad(s, n, why, "'@': NICs are COUNTxGB/s, as nic=8x50");
    }
    if (!dpari_cluster_real(s + k + 1, n - k - 1, &v)) {
        return dpari_cluster_bad(s, n, why, "'@': a number of at least 0 was expected");
    }
    if (cal >= 0 && !(key == DPARI_KEY_HBM && v > 2.0)) { /* hbm=0.8 a share, hbm=3350 GB/s */
        c->cal.value[cal] = v * dpari_cal_unit(cal);
        return DPAR_OK;
    }
    return dpari_cluster_number(c, key, v)
               ? DPAR_OK
               : dpari_cluster_bad(s, n, why, "'@' may only come first, before the settings");
}

/* The first word: "8x8:h100-80", "16xdgx-h100", "64:a100-80", "derecho". */
static dpar_status dpari_cluster_first(dpar_cluster *c, const char *s, size_t n, dpar_why *why)
{
    size_t colon = 0, x = 0;
    int32_t a, b;
    dpar_status st;
    while (colon < n && s[colon] != ':') {
        colon++;
    }
    while (x < n && s[x] >= '0' && s[x] <= '9') {
        x++;
    }
    if (colon < n) {
        a = x < colon ? dpari_cluster_count(s, x, 10000000) : 1;
        b = x < colon ? dpari_cluster_count(s + x + 1, colon - x - 1, 65536)
                      : dpari_cluster_count(s, colon, 65536);
        if ((x < colon && s[x] != 'x' && s[x] != 'X') || a == 0 || b == 0) {
            return dpari_cluster_bad(s, n, why,
                                     "'@': NODESxGPUS:GPU was expected, each at least 1, as "
                                     "8x8:h100-80");
        }
        st = dpari_gpu_slice(&c->gpu, s + colon + 1, n - colon - 1, why);
        if (st == DPAR_OK) {
            dpari_cluster_of_gpus(c, a, b);
            dpari_copy_text(c->name, sizeof(c->name), s, n);
        }
        return st;
    }
    if (x > 0 && x < n && (s[x] == 'x' || s[x] == 'X')) {
        a = dpari_cluster_count(s, x, 10000000);
        if (a == 0) {
            return dpari_cluster_bad(s, n, why, "'@': at least one machine was expected");
        }
        st = dpari_cluster_slice(c, s + x + 1, n - x - 1, why);
        if (st == DPAR_OK) {
            c->nodes = a;
        }
        return st;
    }
    return dpari_cluster_slice(c, s, n, why);
}

/* The next item: up to a comma or the end of the line, without blanks and comments around it. */
static size_t dpari_cluster_item(const char *text, size_t bytes, size_t *at, size_t *start)
{
    size_t end, i = *at;
    while (i < bytes && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n' ||
                         text[i] == ',' || text[i] == '#')) {
        if (text[i] == '#') {
            while (i < bytes && text[i] != '\n') {
                i++;
            }
        } else {
            i++;
        }
    }
    *start = i;
    while (i < bytes && text[i] != ',' && text[i] != '\n' && text[i] != '#' && text[i] != '\r') {
        i++;
    }
    end = i;
    while (end > *start && (text[end - 1] == ' ' || text[end - 1] == '\t')) {
        end--;
    }
    *at = i;
    return end - *start;
}

/* "key = value" as people write it in files: without the blanks. */
static size_t dpari_cluster_squeeze(char *to, size_t room, const char *s, size_t n)
{
    size_t i, k = 0;
    for (i = 0; i < n && k + 1 < room; i++) {
        if (s[i] != ' ' && s[i] != '\t') {
            to[k++] = s[i];
        }
    }
    to[k] = 0;
    return k;
}

/* A list of settings alone: one node of one of the chip that gpu=NAME says, wherever it stands. */
static dpar_status dpari_cluster_of_settings(dpar_cluster *c, const char *text, size_t bytes,
                                             dpar_why *why)
{
    char item[96];
    size_t at = 0, start, n;
    while ((n = dpari_cluster_item(text, bytes, &at, &start)) > 0) {
        n = dpari_cluster_squeeze(item, sizeof(item), text + start, n);
        if (n > 4 && dpari_spells_any_case(item, 4, "gpu=")) {
            dpar_status st = dpari_gpu_slice(&c->gpu, item + 4, n - 4, why);
            if (st == DPAR_OK) {
                dpari_cluster_of_gpus(c, 1, 1);
                dpari_copy_text(c->name, sizeof(c->name), c->gpu.name, sizeof(c->gpu.name) - 1);
            }
            return st;
        }
    }
    return dpari_say(DPAR_E_PARSE, why,
                     "settings without a machine: begin with one (derecho, 8x8:h100-80) or say "
                     "gpu=NAME, nodes=N, gpus=N",
                     0, 0, 0, 0);
}

static int dpari_cluster_is_setting(const char *item, size_t n)
{
    size_t i = 0;
    while (i < n && item[i] != '=') {
        i++;
    }
    return i < n;
}

/* One pass over the text: the machine, then the settings that belong to the pass. */
static dpar_status dpari_cluster_read(dpar_cluster *c, const char *text, size_t bytes, int32_t pass,
                                      dpar_why *why)
{
    char item[96];
    size_t at = 0, start, n, items;
    int setting = 0;
    for (items = 0;; items++) {
        dpar_status st = DPAR_OK;
        n = dpari_cluster_item(text, bytes, &at, &start);
        if (n == 0) {
            break;
        }
        if (n >= sizeof(item)) {
            return dpari_cluster_bad(text + start, n, why, "'@...' is too long for a setting");
        }
        n = dpari_cluster_squeeze(item, sizeof(item), text + start, n);
        if (items == 0) {
            size_t named = n > 8 && dpari_spells_any_case(item, 8, "machine=") ? 8 : 0;
            setting = named == 0 && dpari_cluster_is_setting(item, n);
            if (pass == 0) {
                st = setting ? dpari_cluster_of_settings(c, text, bytes, why)
                             : dpari_cluster_first(c, item + named, n - named, why);
            }
        }
        if (st == DPAR_OK && (items > 0 || setting)) {
            st = dpari_cluster_setting(c, item, n, pass, why);
        }
        if (st != DPAR_OK) {
            return st;
        }
    }
    return items > 0 ? DPAR_OK
                     : dpari_say(DPAR_E_PARSE, why,
                                 "no machine: give a preset (derecho, dgx-h100 ...) or "
                                 "NODESxGPUS:GPU (8x8:h100-80)",
                                 0, 0, 0, 0);
}

DPAR_API dpar_status dpar_cluster_parse(dpar_cluster *cluster, const char *text, size_t bytes,
                                        dpar_why *why)
{
    dpar_cluster c;
    dpar_status st;
    dpari_zero(&c, sizeof(c));
    text += dpari_text_mark(text, bytes, &bytes);
    st = dpari_cluster_read(&c, text, bytes, 0, why);
    if (st == DPAR_OK) {
        st = dpari_cluster_read(&c, text, bytes, 1, why);
    }
    if (st == DPAR_OK) {
        st = dpar_cluster_check(&c, why);
    }
    if (st == DPAR_OK) {
        *cluster = c;
    }
    return st;
}

/* ---- checks --------------------------------------------------------------------------------- */

/* Positive and no more than a billion of the usual unit, so that no product of them overflows. */
static int dpari_positive(double v, double limit)
{
    return v > 0.0 && v <= limit;
}

static int dpari_not_negative(double v)
{
    return v >= 0.0 && v <= 1e18;
}

DPAR_API int32_t dpar_cluster_gpus(const dpar_cluster *c)
{
    return c->nodes * c->gpus_per_node;
}

static dpar_status dpari_cluster_check_numbers(const dpar_cluster *c, dpar_why *why)
{
    if (!dpari_positive(c->gpu.memory_bytes, 1e18) || !dpari_positive(c->gpu.memory_Bps, 1e18) ||
        !dpari_positive(c->gpu.flops[DPAR_BF16], 1e21)) {
        return dpari_say_word(DPAR_E_ARG, why,
                              "GPU '@': memory, bandwidth and FLOP/s must be positive numbers "
                              "of at most 1e9 GB, 1e9 GB/s and 1e9 TFLOP/s",
                              c->gpu.name, sizeof(c->gpu.name), 0, 0, 0, 0);
    }
    if ((c->gpus_per_node > 1 && !dpari_positive(c->link_Bps, 1e18)) ||
        (c->nodes > 1 && (c->nics < 1 || !dpari_positive(c->nic_Bps, 1e18)))) {
        return dpari_say(DPAR_E_ARG, why,
                         "links must be positive: # nodes of # GPUs need nvlink=GB/s and "
                         "nic=COUNTxGB/s (there are # NICs)",
                         c->nodes, c->gpus_per_node, c->nics, 0);
    }
    if (c->nics < 0 || !dpari_not_negative(c->link_Bps) || !dpari_not_negative(c->nic_Bps) ||
        !dpari_not_negative(c->gpu.pcie_Bps) || !dpari_not_negative(c->host_bytes) ||
        !dpari_not_negative(c->nvme_Bps)) {
        return dpari_say(DPAR_E_ARG, why,
                         "nvlink, nic, pcie, host and nvme must be numbers of 0 to 1e9 GB or GB/s",
                         0, 0, 0, 0);
    }
    if (!(c->taper > 0.0 && c->taper <= 1.0)) {
        return dpari_say(DPAR_E_ARG, why, "taper is a share above 0, at most 1", 0, 0, 0, 0);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_cluster_check(const dpar_cluster *c, dpar_why *why)
{
    int64_t gpus = 0;
    int32_t i;
    dpar_status st;
    if (c->nodes < 1 || c->gpus_per_node < 1 || !dpari_mul(c->nodes, c->gpus_per_node, &gpus) ||
        gpus > 100000000) {
        return dpari_say(DPAR_E_ARG, why, "a cluster has 1 to 100000000 GPUs: # nodes of # GPUs",
                         c->nodes, c->gpus_per_node, 0, 0);
    }
    st = dpari_cluster_check_numbers(c, why);
    for (i = 0; st == DPAR_OK && i < DPAR_CALS; i++) {
        double v = c->cal.value[i];
        int share = i != DPAR_CAL_CONTENTION && i != DPAR_CAL_SKEW && dpari_cal_unit(i) >= 1.0;
        if (!(v >= 0.0 && v <= (share ? 2.0 : 10.0)) || (share && !(v > 0.0))) {
            st = dpari_say_word(DPAR_E_ARG, why,
                                share ? "calibration '@' is a share: above 0, at most 2 (1 = all)"
                                      : "calibration '@' is out of its range: 0 to 10 (seconds)",
                                dpari_cal_name[i], sizeof(dpari_cal_name[i]), 0, 0, 0, 0);
        }
    }
    return st;
}

DPAR_API dpar_status dpar_cluster_resize(dpar_cluster *c, int32_t gpus, dpar_why *why)
{
    dpar_cluster sized = *c;
    dpar_status st;
    if (gpus < 1) {
        return dpari_say(DPAR_E_ARG, why, "gpus=# must be at least 1", gpus, 0, 0, 0);
    }
    if (c->gpus_per_node < 1) {
        return dpar_cluster_check(c, why);
    }
    if (gpus < c->gpus_per_node) {
        int64_t nics = (int64_t)c->nics * gpus / c->gpus_per_node;
        sized.nodes = 1;
        sized.nics = c->nics > 0 ? (int32_t)dpari_most(1, nics) : 0;
        sized.gpus_per_node = gpus;
    } else if (gpus % c->gpus_per_node != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "gpus=# is no whole number of nodes of #", gpus,
                         c->gpus_per_node, 0, 0);
    } else {
        sized.nodes = gpus / c->gpus_per_node;
    }
    st = dpar_cluster_check(&sized, why);
    if (st == DPAR_OK) {
        *c = sized;
    }
    return st;
}

/* ==== cost/collective.c ==== */

DPAR_API const char *dpar_collective_name(int32_t kind)
{
    static const char name[DPAR_COLLECTIVES][16] = {
        "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast",
        "reduce",     "gather",     "scatter",        "send-recv",  "barrier"};
    return kind >= 0 && kind < DPAR_COLLECTIVES ? name[kind] : "?";
}

DPAR_API const char *dpar_algorithm_name(int32_t algorithm)
{
    static const char name[DPAR_ALGS][20] = {
        "ring",  "recursive-doubling", "recursive-halving", "rabenseifner", "binomial",
        "bruck", "pairwise",           "scatter+doubling",  "scatter+ring", "chain",
        "tree",  "in-switch",          "dissemination",     "hierarchical"};
    return algorithm >= 0 && algorithm < DPAR_ALGS ? name[algorithm] : "?";
}

DPAR_API double dpar_ring_all_reduce(double bytes, int32_t n, double Bps)
{
    return n > 1 && Bps > 0.0 ? 2.0 * (n - 1.0) / n * bytes / Bps : 0.0;
}

DPAR_API double dpar_bus_factor(int32_t kind, int32_t n)
{
    double p = n;
    if (n < 2) {
        return 1.0;
    }
    switch (kind) {
    case DPAR_ALL_REDUCE: return 2.0 * (p - 1.0) / p;
    case DPAR_ALL_GATHER:
    case DPAR_REDUCE_SCATTER:
    case DPAR_ALL_TO_ALL:
    case DPAR_GATHER:
    case DPAR_SCATTER: return (p - 1.0) / p;
    default: return 1.0;
    }
}

/* ---- textbook ------------------------------------------------------------------------------- */

/* The terms every formula is made of. n = bytes, p = ranks, lg = log2 p. */
typedef struct dpari_terms {
    double p, lg, up, down; /* log2, rounded up and down */
    double n, alpha, beta, gamma;
    int32_t power; /* p is a power of two */
} dpari_terms;

static double dpari_all_reduce_textbook(int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p;
    switch (algorithm) {
    case DPAR_ALG_RECURSIVE_DOUBLING: return t->up * (t->alpha + t->n * (t->beta + t->gamma));
    case DPAR_ALG_RABENSEIFNER:
        return t->power
                   ? 2.0 * t->lg * t->alpha + 2.0 * t->n * part * t->beta + t->n * part * t->gamma
                   : (2.0 * t->down + 2.0) * t->alpha + (2.0 * part + 2.0) * t->n * t->beta +
                         t->n * (1.0 + part) * t->gamma;
    case DPAR_ALG_RING:
        return 2.0 * (t->p - 1.0) * t->alpha + 2.0 * t->n * part * t->beta + t->n * part * t->gamma;
    case DPAR_ALG_TREE: return 2.0 * t->up * t->alpha + 2.0 * t->n * t->beta;
    case DPAR_ALG_IN_SWITCH: return 2.0 * t->alpha + t->n * (t->p + 1.0) / t->p * t->beta;
    default: return -1.0;
    }
}

static double dpari_gather_textbook(int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p;
    switch (algorithm) {
    case DPAR_ALG_RING: return (t->p - 1.0) * t->alpha + t->n * part * t->beta;
    case DPAR_ALG_RECURSIVE_DOUBLING:
        return t->power ? t->lg * t->alpha + t->n * part * t->beta : -1.0;
    case DPAR_ALG_BRUCK: return t->up * t->alpha + t->n * part * t->beta;
    default: return -1.0;
    }
}

static double dpari_scatter_textbook(int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p, both = t->beta + t->gamma;
    switch (algorithm) {
    case DPAR_ALG_RECURSIVE_HALVING:
        return t->power ? t->lg * t->alpha + t->n * part * both
                        : (t->down + 2.0) * t->alpha + t->n * (1.0 + part) * both;
    case DPAR_ALG_PAIRWISE:
    case DPAR_ALG_RING: return (t->p - 1.0) * t->alpha + t->n * part * both;
    case DPAR_ALG_RECURSIVE_DOUBLING: return t->lg * t->alpha + t->n * (t->lg - part) * both;
    default: return -1.0;
    }
}

static double dpari_broadcast_textbook(int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p, k;
    switch (algorithm) {
    case DPAR_ALG_BINOMIAL: return t->up * (t->alpha + t->n * t->beta);
    case DPAR_ALG_SCATTER_DOUBLING: return 2.0 * t->lg * t->alpha + 2.0 * t->n * part * t->beta;
    case DPAR_ALG_SCATTER_RING:
        return (t->lg + t->p - 1.0) * t->alpha + 2.0 * t->n * part * t->beta;
    case DPAR_ALG_CHAIN: /* the best number of pieces */
        k = t->alpha > 0.0 ? dpari_sqrt((t->p - 2.0) * t->n * t->beta / t->alpha) : 1e9;
        k = k < 1.0 ? 1.0 : k;
        return (t->p - 2.0 + k) * (t->alpha + t->n / k * t->beta);
    default: return -1.0;
    }
}

static double dpari_reduce_textbook(int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p;
    switch (algorithm) {
    case DPAR_ALG_BINOMIAL: return t->up * (t->alpha + t->n * t->beta + t->n * t->gamma);
    case DPAR_ALG_RABENSEIFNER:
        return t->power
                   ? 2.0 * t->lg * t->alpha + 2.0 * t->n * part * t->beta + t->n * part * t->gamma
                   : (2.0 * t->down + 1.0) * t->alpha + (2.0 * part + 1.0) * t->n * t->beta +
                         t->n * (1.0 + part) * t->gamma;
    default: return -1.0;
    }
}

static double dpari_textbook(int32_t kind, int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p;
    switch (kind) {
    case DPAR_ALL_REDUCE: return dpari_all_reduce_textbook(algorithm, t);
    case DPAR_ALL_GATHER: return dpari_gather_textbook(algorithm, t);
    case DPAR_REDUCE_SCATTER: return dpari_scatter_textbook(algorithm, t);
    case DPAR_BROADCAST: return dpari_broadcast_textbook(algorithm, t);
    case DPAR_REDUCE: return dpari_reduce_textbook(algorithm, t);
    case DPAR_ALL_TO_ALL:
        return algorithm == DPAR_ALG_PAIRWISE ? (t->p - 1.0) * t->alpha + t->n * part * t->beta
               : algorithm == DPAR_ALG_BRUCK  ? t->lg * t->alpha + 0.5 * t->n * t->lg * t->beta
                                              : -1.0;
    case DPAR_GATHER:
    case DPAR_SCATTER:
        return algorithm == DPAR_ALG_BINOMIAL ? t->up * t->alpha + t->n * part * t->beta : -1.0;
    case DPAR_SEND_RECV: return algorithm == DPAR_ALG_PAIRWISE ? t->alpha + t->n * t->beta : -1.0;
    default: return algorithm == DPAR_ALG_DISSEMINATION ? t->up * t->alpha : -1.0;
    }
}

DPAR_API dpar_status dpar_collective_textbook(int32_t kind, int32_t algorithm, int32_t n,
                                              double bytes, double alpha, double beta, double gamma,
                                              double *seconds)
{
    dpari_terms t;
    double s;
    if (n < 1 || kind < 0 || kind >= DPAR_COLLECTIVES || !(bytes >= 0.0) || !(alpha >= 0.0) ||
        !(beta >= 0.0) || !(gamma >= 0.0)) {
        return DPAR_E_ARG;
    }
    t.p = n;
    t.lg = dpari_log2(n);
    t.up = dpari_ceil_log2(n);
    t.power = ((int32_t)1 << (n > 1 ? dpari_ceil_log2(n) : 0)) == n;
    t.down = t.power ? t.up : t.up - 1.0;
    t.n = bytes;
    t.alpha = alpha;
    t.beta = beta;
    t.gamma = gamma;
    s = dpari_textbook(kind, algorithm, &t);
    if (s < 0.0) {
        return DPAR_E_UNKNOWN;
    }
    *seconds = n == 1 ? 0.0 : s;
    return DPAR_OK;
}

/* ---- groups on the machine ------------------------------------------------------------------ */

DPAR_API dpar_group dpar_group_place(const dpar_cluster *c, int32_t n, int32_t stride)
{
    dpar_group g;
    int32_t node = c->gpus_per_node, apart = stride > 0 ? stride : 1;
    int64_t span;
    g.size = n > 0 ? n : 1;
    span = (int64_t)g.size * apart;
    g.per_node = apart >= node ? 1 : (int32_t)dpari_least(g.size, dpari_most(1, node / apart));
    if (dpar_cluster_gpus(c) <= node) {
        g.per_node = g.size; /* one node holds everything */
    } else if (g.per_node == g.size && g.size > 1 && node % span != 0) {
        g.per_node = (g.size + 1) / 2; /* 4 of 6: the second group lies on two nodes */
    }
    g.nodes = (int32_t)dpari_ceil_div(g.size, g.per_node);
    g.sharing = (int32_t)dpari_most(1, node / g.per_node);
    return g;
}

/* ---- the predictor -------------------------------------------------------------------------- */

/* Two protocols, as NCCL has them. The simple one pays 1.6 latencies a step for its fences and
 * reaches the whole bandwidth; the quick one sends flags with the data. Inside a node quick is
 * LL128: 0.70 of the bandwidth up to Ampere (vTrain's A100 all-reduce, 8 ranks: slopes 93 and 134
 * GB/s), 0.92 from Hopper on (NCCL's tuner, whose cap a channel rises from 20 to 36.7 GB/s there).
 * Between nodes a tree's quick is LL, a quarter of the NICs (the tuner: 22.5 of 96 GB/s on two
 * nodes). */
static const double dpari_simple_steps = 1.6;
static const double dpari_quick_ampere = 0.70;
static const double dpari_quick_hopper = 0.92;
static const double dpari_quick_net = 0.25;
/* A ring over nodes (SimAI's NIC table, 16 to 1024 ranks): a latency a step up to 64 KiB a rank;
 * beyond that 1.65, or 1.1 and the wire, whichever is more. */
static const double dpari_ring_quick_bytes = 65536.0;
static const double dpari_ring_fence = 1.65;
static const double dpari_ring_step = 1.1;
/* All-to-all posts a send and a receive a peer: about three steps' latency each inside a node
 * (H100-class nccl-tests: 76 us flat against 46), a quarter across, as many are under way at once
 * (SimAI's all-to-all table: 0.52 to 0.67 at 16 MiB). Its flows collide inside a node: 0.965 of a
 * ring's bandwidth (the 8 GiB row). */
static const double dpari_peer_steps = 3.3;
static const double dpari_peer_net_steps = 0.25;
static const double dpari_peer_share = 0.965;
/* In-switch reduction: (p+1)/p bytes at the switch instead of 2(p-1)/p, at 0.86 of the links' own
 * share; its pipeline is filled by about three base latencies (H100-class nccl-tests: 85 us + n /
 * 273 GB/s). */
static const double dpari_switch_base = 2.8;
static const double dpari_switch_share = 0.86;
/* Part of the shorter phase of a hierarchical collective that the longer one does not hide. */
static const double dpari_phase_blend = 0.3;
/* A tree's hop between nodes takes about three ring steps (NCCL's tuner: 14 us); a tree
 * between more than two nodes sends some bytes twice on a link. */
static const double dpari_tree_hop = 3.0;
static const double dpari_tree_share = 1.08;

static double dpari_wire(int32_t kind, double n)
{
    switch (kind) {
    case DPAR_ALL_REDUCE: return 2.0 * (n - 1.0) / n;
    case DPAR_ALL_GATHER:
    case DPAR_REDUCE_SCATTER:
    case DPAR_ALL_TO_ALL:
    case DPAR_GATHER:
    case DPAR_SCATTER: return (n - 1.0) / n;
    case DPAR_BARRIER: return 0.0;
    default: return 1.0;
    }
}

static double dpari_steps(int32_t kind, double n)
{
    switch (kind) {
    case DPAR_ALL_REDUCE: return 2.0 * (n - 1.0);
    case DPAR_SEND_RECV: return 1.0;
    case DPAR_BARRIER: return dpari_ceil_log2((int64_t)n);
    default: return n - 1.0;
    }
}

/* Share of a chip's wired (not switched) links that n of the node's chips can use. */
static double dpari_wired_share(const dpar_cluster *c, int32_t n)
{
    /* 2..7 of the eight V100 of a hybrid cube mesh (vTrain's V100 table, of 134 GB/s) */
    static const float cube[6] = {0.17f, 0.335f, 0.635f, 0.276f, 0.344f, 0.65f};
    int32_t all = c->gpus_per_node;
    if (n >= all) {
        return 1.0;
    }
    if (c->gpu.generation == DPAR_GEN_VOLTA && all == 8) {
        return (double)cube[n - 2];
    }
    if (c->gpu.generation == DPAR_GEN_TPU) {
        double dims = c->gpu.units > 1 ? 3.0 : 2.0; /* chips of two cores lie on a 3-d torus */
        return n == 2 ? 0.5 / dims : 1.0 / dims;    /* one link, or the two of an axis */
    }
    if (c->gpu.generation == DPAR_GEN_CDNA && c->gpu.units <= 110 && n == 2) {
        return 1.0; /* MI250X: the two halves of a package share four links, 200 GB/s */
    }
    return (n - 1.0) / (all - 1.0); /* a wire to each peer */
}

/* What a group of n in a node gets of the links. Switched: a few per cent less for few ranks
 * (vTrain's A100 table: 200, 212, 226 GB/s for 2, 3, 4 ranks, 234 for 8). */
static double dpari_link_of(const dpar_cluster *c, int32_t n)
{
    double B = c->link_Bps * c->cal.value[DPAR_CAL_LINK_SHARE];
    if (c->link_switched) {
        return B * (n <= 2 ? 0.86 : n == 3 ? 0.91 : n == 4 ? 0.965 : 1.0);
    }
    return B * dpari_wired_share(c, n);
}

/* Seconds and latency of the faster protocol. floor: the least a call takes; steps: seconds of
 * its steps under the quick one; wire: seconds on the wire at full bandwidth. */
typedef struct dpari_timing {
    double seconds, latency;
} dpari_timing;

static dpari_timing dpari_protocols(double base, double steps, double wire, double quick_share)
{
    dpari_timing t, simple;
    t.latency = base + steps;
    t.seconds = dpari_mostf(t.latency, base + wire / quick_share);
    simple.latency = base + dpari_simple_steps * steps;
    simple.seconds = simple.latency + wire;
    return simple.seconds < t.seconds ? simple : t;
}

static double dpari_quick_share(const dpar_cluster *c)
{
    return c->gpu.generation == DPAR_GEN_HOPPER || c->gpu.generation == DPAR_GEN_BLACKWELL
               ? dpari_quick_hopper
               : dpari_quick_ampere;
}

static void dpari_keep_least(dpar_collective_cost *cost, dpari_timing t, int32_t algorithm)
{
    if (cost->algorithm < 0 || t.seconds < cost->seconds) {
        cost->seconds = t.seconds;
        cost->latency_s = t.latency;
        cost->algorithm = algorithm;
    }
}

/* Inside a node: a ring or pairs under the faster protocol, or the switch. */
static void dpari_inside(const dpar_cluster *c, int32_t n, int32_t kind, double bytes,
                         dpar_collective_cost *cost)
{
    const double *k = c->cal.value;
    double B = dpari_link_of(c, n), wire = dpari_wire(kind, n) * bytes, base = k[DPAR_CAL_BASE_S];
    double steps = dpari_steps(kind, n) * k[DPAR_CAL_LINK_S], p = n;
    dpari_timing t;
    cost->link_bytes = wire;
    if (kind == DPAR_SEND_RECV) {
        t.latency = 0.5 * base + steps;
        t.seconds = t.latency + wire / B;
        dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
        return;
    }
    if (kind == DPAR_ALL_TO_ALL) {
        t = dpari_protocols(base, steps, wire / (B * dpari_peer_share), dpari_quick_share(c));
        t.seconds = dpari_mostf(t.seconds, base + dpari_peer_steps * steps);
        dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
        return;
    }
    if (kind == DPAR_ALL_REDUCE && c->link_reduces && n > 2) {
        t.latency = dpari_switch_base * base;
        t.seconds = t.latency + bytes * (p + 1.0) / p / (B * dpari_switch_share);
        dpari_keep_least(cost, t, DPAR_ALG_IN_SWITCH);
        steps *= 0.5; /* below that size the switch still replaces one of the two passes */
    }
    t = dpari_protocols(base, steps, wire / B, dpari_quick_share(c));
    dpari_keep_least(cost, t, DPAR_ALG_RING);
}

/* GB/s of the NICs for one rank of a group, when all groups of the node talk at once. */
static double dpari_nic_rate(const dpar_cluster *c, const dpar_group *g)
{
    double node = c->nics * c->nic_Bps * c->taper * c->cal.value[DPAR_CAL_NET_SHARE];
    double rate = node / g->sharing / g->per_node;
    double own = c->nic_Bps * c->cal.value[DPAR_CAL_NET_SHARE] *
                 dpari_mostf(1.0, (double)c->nics / c->gpus_per_node);
    return dpari_leastf(rate, own);
}

/* All-reduce in phases: reduce-scatter inside the nodes, a tree between them (or in the network's
 * switches), all-gather inside. */
static void dpari_phases(const dpar_cluster *c, const dpar_group *g, double bytes, double nic,
                         double link, dpar_collective_cost *cost)
{
    const double *k = c->cal.value;
    double nodes = g->nodes, per = g->per_node, base = k[DPAR_CAL_BASE_S];
    double up = dpari_ceil_log2(g->nodes), inner = 0.0, outer, inside, hop;
    if (per > 1.0) {
        inner = 2.0 * (per - 1.0) / per * bytes / link;
        if (c->link_reduces && per > 2.0) {
            inner = dpari_leastf(inner, bytes * (per + 1.0) / per / (link * dpari_switch_share));
        }
    }
    inside = 2.0 * (per - 1.0) * k[DPAR_CAL_LINK_S];
    hop = 2.0 * dpari_tree_hop * k[DPAR_CAL_NET_S];
    outer = 2.0 * (nodes - 1.0) / nodes * bytes / (per * nic);
    outer = dpari_mostf(inner, outer) * (g->nodes > 2 ? dpari_tree_share : 1.0) +
            dpari_phase_blend * dpari_leastf(inner, outer);
    dpari_keep_least(cost, dpari_protocols(base, inside + hop * up, outer, dpari_quick_net),
                     DPAR_ALG_HIERARCHICAL);
    if (c->net_reduces) {
        outer = (nodes + 1.0) / nodes * bytes / (per * nic);
        outer = dpari_mostf(inner, outer) + dpari_phase_blend * dpari_leastf(inner, outer);
        dpari_keep_least(cost, dpari_protocols(base, inside + hop, outer, dpari_quick_net),
                         DPAR_ALG_IN_SWITCH);
    }
}

/* A ring over nodes of `steps` steps of `piece` bytes that is `wire` seconds on the wire. */
static dpari_timing dpari_ring_timing(const dpar_cluster *c, double steps, double piece,
                                      double wire)
{
    double base = c->cal.value[DPAR_CAL_BASE_S], pass = steps * c->cal.value[DPAR_CAL_NET_S];
    dpari_timing t;
    t.latency = base + dpari_ring_step * pass;
    t.seconds = dpari_mostf(base + dpari_ring_fence * pass, t.latency + wire);
    if (piece <= dpari_ring_quick_bytes) {
        double quick = dpari_mostf(base + pass, base + wire / dpari_quick_net);
        if (quick < t.seconds) {
            t.latency = base + pass;
            t.seconds = quick;
        }
    }
    return t;
}

/* Across nodes. A ring over all ranks, which is all that NCCL has for gathers and scatters: its
 * steps are what makes them slow on many ranks (T6). From Hopper's software on, groups of one rank
 * a node have PAT's parallel trees: a fifth of the steps at 0.75 of the bandwidth (NCCL's tuner:
 * 2.8 us a rank against 14). */
static void dpari_across(const dpar_cluster *c, const dpar_group *g, int32_t kind, double bytes,
                         dpar_collective_cost *cost)
{
    const double *k = c->cal.value;
    double nic = dpari_nic_rate(c, g), n = g->size, per = g->per_node, base = k[DPAR_CAL_BASE_S];
    double ways = kind == DPAR_ALL_REDUCE ? 2.0 : 1.0, wire, steps;
    double link = per > 1.0 ? dpari_link_of(c, g->per_node) : 0.0;
    wire = dpari_wire(kind, n) * bytes / (nic * per);
    if (per > 1.0) {
        wire = dpari_mostf(wire, dpari_wire(kind, n) * bytes / link);
    }
    dpari_keep_least(cost, dpari_ring_timing(c, dpari_steps(kind, n), bytes / n, wire),
                     DPAR_ALG_RING);
    if (kind == DPAR_ALL_REDUCE) {
        dpari_phases(c, g, bytes, nic, link, cost);
    } else if (g->per_node == 1 && dpari_quick_share(c) > dpari_quick_ampere &&
               (kind == DPAR_ALL_GATHER || kind == DPAR_REDUCE_SCATTER)) {
        steps = (0.3 * dpari_ceil_log2(g->nodes) + 0.2 * n) * k[DPAR_CAL_NET_S];
        dpari_keep_least(cost, dpari_protocols(base, steps, wire / 0.75, dpari_quick_net),
                         DPAR_ALG_TREE);
    }
    cost->nic_bytes = ways * (g->nodes - 1.0) / g->nodes * bytes / per;
    cost->link_bytes = per > 1.0 ? ways * (per - 1.0) / per * bytes : 0.0;
}

/* All-to-all: what stays in the node goes over its links, (nodes-1)/nodes over the rank's own share
 * of the NICs, both at once. */
static void dpari_across_all(const dpar_cluster *c, const dpar_group *g, double bytes,
                             dpar_collective_cost *cost)
{
    const double *k = c->cal.value;
    double n = g->size, per = g->per_node, wire;
    dpari_timing t;
    cost->nic_bytes = bytes * (n - per) / n;
    cost->link_bytes = bytes * (per - 1.0) / n;
    wire = dpari_mostf(cost->nic_bytes / dpari_nic_rate(c, g),
                       per > 1.0 ? cost->link_bytes / dpari_link_of(c, g->per_node) : 0.0);
    t.latency = k[DPAR_CAL_BASE_S] + dpari_peer_steps * (per - 1.0) * k[DPAR_CAL_LINK_S] +
                dpari_peer_net_steps * (n - per) * k[DPAR_CAL_NET_S];
    t.seconds = t.latency + wire;
    dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
}

DPAR_API void dpar_collective_cost_of(const dpar_cluster *c, const dpar_group *g, int32_t kind,
                                      double bytes, dpar_collective_cost *cost)
{
    dpari_timing t;
    dpari_zero(cost, sizeof(*cost));
    if (g->size < 2 || kind < 0 || kind >= DPAR_COLLECTIVES ||
        !(bytes > 0.0 || kind == DPAR_BARRIER)) {
        return;
    }
    cost->algorithm = -1;
    if (g->nodes < 2) {
        dpari_inside(c, g->size, kind, bytes, cost);
        return;
    }
    cost->nic_Bps = dpari_nic_rate(c, g);
    if (kind == DPAR_ALL_TO_ALL) {
        dpari_across_all(c, g, bytes, cost);
    } else if (kind == DPAR_SEND_RECV) {
        cost->nic_bytes = bytes;
        t.latency =
            0.5 * c->cal.value[DPAR_CAL_BASE_S] + dpari_simple_steps * c->cal.value[DPAR_CAL_NET_S];
        t.seconds = t.latency + bytes / cost->nic_Bps;
        dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
    } else {
        dpari_across(c, g, kind, bytes, cost);
    }
}

/* ---- NCCL's tuner --------------------------------------------------------------------------- */

enum {
    DPARI_TREE,
    DPARI_RING,
    DPARI_DIRECT, /* CollNet: SHARP between nodes, every rank of a node at once */
    DPARI_COLLNET_CHAIN,
    DPARI_NVLS,
    DPARI_NVLS_TREE,
    DPARI_PAT,
    DPARI_TUNED
};
enum { DPARI_LL, DPARI_LL128, DPARI_SIMPLE, DPARI_PROTOCOLS };

/* NCCL 2.30, src/graph/tuning.cc (5067397, 2026-06), by algorithm and protocol, us: base; a hop
 * over NVLink, PCI, the network. */
static const float dpari_nccl_base[DPARI_TUNED][DPARI_PROTOCOLS] = {
    {6.8f, 14, 8.4f}, {6.6f, 14, 8.4f}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {8, 8, 8}};
static const float dpari_nccl_nvlink[DPARI_TUNED][DPARI_PROTOCOLS] = {
    {0.6f, 1.25f, 4}, {0.6f, 1.9f, 3.4f}, {0, 0, 3.7f}, {0, 0, 2.8f},
    {0, 0, 25},       {0, 0, 25},         {0, 0, 4}};
static const float dpari_nccl_pci[DPARI_TUNED][DPARI_PROTOCOLS] = {
    {1, 1.9f, 4}, {1, 2.5f, 5.7f}, {0, 0, 3.7f}, {0, 0, 2.8f}, {0, 0, 0}, {0, 0, 0}, {0, 0, 4}};
static const float dpari_nccl_net[DPARI_TUNED][DPARI_PROTOCOLS] = {
    {5, 8.5f, 14}, {2.7f, 4, 14}, {0, 0, 31}, {0, 0, 30}, {0, 0, 18}, {0, 0, 20.9f}, {0, 0, 14}};
/* GB/s caps on 1, 2 and more nodes for Volta, Ampere, Hopper, Blackwell: LL in all, the others a
 * channel. Across nodes LL's row is the processor's: Ampere's stands for AMD, Volta's for Intel. */
static const float dpari_nccl_ll[4][3] = {
    {39, 39, 20.4f}, {87.7f, 22.5f, 19}, {141, 45, 35}, {282, 90, 70}};
static const float dpari_nccl_ring128[4][3] = {
    {20, 20, 20}, {20, 20, 20}, {36.7f, 36.7f, 36.7f}, {40, 40, 40}};
static const float dpari_nccl_tree128[4][3] = {
    {20, 20, 20}, {20, 20, 20}, {36.7f, 36.7f, 29}, {55.6f, 31.67f, 20}};
static const float dpari_nccl_tree[4][3] = {
    {26.5f, 18.5f, 10}, {24, 23.6f, 17.8f}, {38.7f, 41.4f, 36}, {70, 42.8f, 24}};
static const float dpari_nccl_nvls_tree[4][3] = {
    {26.5f, 18.5f, 10}, {24, 23.6f, 17.8f}, {0, 57.7f, 45.5f}, {0, 96, 80}};
/* Tree's correction for 64 B * 2^i. */
static const float dpari_nccl_correct[3][24] = {
    {1,   1,   1,   1,   .9f, .8f, .7f, .7f, .7f, .7f, .6f, .5f,
     .4f, .4f, .5f, .6f, .7f, .8f, .9f, 1,   1,   1,   1,   1},
    {1,   1,   1,   1,   1,   .9f, .8f, .8f, .8f, .7f, .6f, .6f,
     .6f, .6f, .6f, .6f, .8f, .9f, .9f, .9f, .9f, 1,   1,   1},
    {.9f, .9f, .9f, .9f, .9f, .9f, .9f, .8f, .7f, .6f, .6f, .5f,
     .5f, .5f, .5f, .6f, .7f, .8f, .7f, .7f, .8f, .9f, .9f, .9f}};

/* The machine as the tuner sees it. */
typedef struct dpari_tuner {
    const dpar_group *g;
    int32_t generation, column; /* rows and columns of the caps */
    int32_t pci, kind;
    double channels, bus; /* GB/s */
    double steps;         /* of a ring */
    double bytes;
} dpari_tuner;

/* What the tuner assumes of a link: 12 GB/s for PCI and for 100 Gb/s of network, and about 0.8 of
 * NVLink's 25 (Blackwell 50) GB/s: 12 x 20 on A100, 18 x 20.6 on H100. */
static void dpari_tuner_init(dpari_tuner *t, const dpar_cluster *c, const dpar_group *g,
                             int32_t kind, double bytes)
{
    static const float one[4] = {20, 20, 20.6f, 40.1f};
    double link = t->generation == 3 ? 50e9 : 25e9, n = g->size;
    t->g = g;
    t->kind = kind;
    t->bytes = bytes;
    t->column = g->nodes <= 2 ? g->nodes - 1 : 2;
    t->pci = c->link_Bps <= 1.1 * c->gpu.pcie_Bps;
    t->channels = t->pci ? 1.0 : (double)(int32_t)(c->link_Bps / link + 0.5);
    t->bus = t->pci ? 12.0 : t->channels * (double)one[t->generation];
    if (g->nodes > 1) {
        t->bus = dpari_leastf(t->bus, c->nics * c->nic_Bps * 0.96e-9);
    }
    t->steps = kind == DPAR_ALL_REDUCE                                  ? 2.0 * (n - 1.0)
               : kind == DPAR_ALL_GATHER || kind == DPAR_REDUCE_SCATTER ? n - 1.0
                                                                        : n;
}

/* Does NCCL have this combination here? */
static int dpari_tuner_has(const dpari_tuner *t, const dpar_cluster *c, int32_t a, int32_t p)
{
    int reduce = t->kind == DPAR_ALL_REDUCE, across = t->g->nodes > 1;
    int gather = t->kind == DPAR_ALL_GATHER || t->kind == DPAR_REDUCE_SCATTER;
    int nvls = c->link_reduces && t->generation >= 2 && t->g->per_node > 2;
    switch (a) {
    case DPARI_RING: return 1;
    case DPARI_TREE: return reduce;
    case DPARI_NVLS:
        return p == DPARI_SIMPLE && nvls && (reduce || gather) && (!across || c->net_reduces);
    case DPARI_NVLS_TREE: return p == DPARI_SIMPLE && nvls && reduce && across;
    case DPARI_PAT: return p == DPARI_SIMPLE && gather && across && t->g->per_node == 1;
    default: return p == DPARI_SIMPLE && reduce && across && c->net_reduces;
    }
}

/* GB/s of the bus: caps, then what each protocol and algorithm leaves of it. */
static double dpari_tuner_bus(const dpari_tuner *t, int32_t a, int32_t p)
{
    int32_t row = t->generation, col = t->column, across = t->g->nodes > 1;
    double bus = t->bus, ch = t->channels, per = t->g->per_node;
    double ll = (double)dpari_nccl_ll[across ? (row > 1 ? 1 : row) : row][col];
    switch (a) {
    case DPARI_RING:
        return p == DPARI_LL ? dpari_leastf(ll, 0.5 * bus)
               : p == DPARI_LL128
                   ? dpari_leastf(0.92 * bus, ch * (double)dpari_nccl_ring128[row][col])
                   : bus;
    case DPARI_TREE:
        return 0.85 * (p == DPARI_LL ? dpari_leastf(bus / 3.8, ll)
                       : p == DPARI_LL128
                           ? dpari_leastf(bus * (across ? 120.0 / 128.0 : 7.0 / 9.0),
                                          ch * (double)dpari_nccl_tree128[row][col])
                           : dpari_leastf(0.92 * bus, ch * (double)dpari_nccl_tree[row][col]));
    case DPARI_NVLS:
    case DPARI_NVLS_TREE:
        if (across) {
            bus *= a == DPARI_NVLS_TREE && t->g->nodes <= 2 ? 2.0 : 1.0;
            return dpari_leastf(bus, ch * (double)dpari_nccl_nvls_tree[row][col]);
        }
        bus *= (row == 2 ? 0.85 : 0.74) * (ch - 1.0) / ch;
        return bus * (t->kind == DPAR_ALL_REDUCE ? 2.0 : (per - 1.0) / per);
    case DPARI_PAT: return 0.75 * bus;
    default: return bus;
    }
}

static double dpari_tuner_latency(const dpari_tuner *t, int32_t a, int32_t p)
{
    double n = t->g->size, nodes = t->g->nodes, per = t->g->per_node;
    double link = (double)(t->pci ? dpari_nccl_pci : dpari_nccl_nvlink)[a][p];
    double net = (double)dpari_nccl_net[t->g->per_node == 1 ? DPARI_TREE : a][p];
    double crossing = (t->kind == DPAR_ALL_REDUCE ? 2.0 : 1.0) * (nodes - 1.0);
    double us = (double)dpari_nccl_base[a][p];
    switch (a) {
    case DPARI_TREE: return us + 2.0 * ((n / nodes - 1.0) * link + dpari_log2(nodes) * net);
    case DPARI_DIRECT:
        return us + 2.0 * (dpari_leastf(1.0, per - 1.0) * link + (per - 1.0) * 0.4) + net;
    case DPARI_COLLNET_CHAIN: return us + 2.0 * (per - 1.0) * link + net;
    case DPARI_NVLS: return us + link + (t->g->nodes > 1 ? net : 0.0);
    case DPARI_NVLS_TREE: return us + link + 2.0 * dpari_log2(nodes) * net;
    case DPARI_PAT: return us + dpari_log2(nodes) * net / 3.5 + 2.8 * n;
    default: break;
    }
    if (t->g->nodes > 1) { /* the network's own overhead: 1 us, three times under simple */
        link = dpari_mostf(link, p == DPARI_SIMPLE ? 3.0 : 1.0);
    }
    us += (t->steps - crossing) * link + crossing * net;
    return p == DPARI_SIMPLE && t->g->nodes > 1 && t->kind == DPAR_ALL_REDUCE &&
                   t->bytes / (t->channels * n) >= 64.0
               ? us * (t->generation == 0 ? 1.9 : 1.4)
               : us;
}

static double dpari_tuner_time(const dpari_tuner *t, int32_t a, int32_t p)
{
    double rate = dpari_tuner_bus(t, a, p), size = t->bytes / 64.0;
    int32_t i = 0;
    rate *= a == DPARI_RING || a == DPARI_NVLS ? t->g->size / t->steps : 0.5;
    while (i < 24 && size >= 2.0) {
        size *= 0.5;
        i++;
    }
    if (a == DPARI_TREE && i < 24) {
        rate *= (double)dpari_nccl_correct[p][i];
    }
    return dpari_tuner_latency(t, a, p) * 1e-6 + t->bytes / (rate * 1e9);
}

DPAR_API dpar_status dpar_nccl_tuner(const dpar_cluster *c, const dpar_group *g, int32_t kind,
                                     double bytes, double *seconds, const char **algorithm,
                                     const char **protocol)
{
    static const char name[DPARI_TUNED][16] = {
        "tree", "ring", "collnet-direct", "collnet-chain", "nvls", "nvls-tree", "pat"};
    static const char proto[DPARI_PROTOCOLS][8] = {"LL", "LL128", "simple"};
    dpari_tuner t;
    int32_t a, p;
    double best = -1.0;
    t.generation = c->gpu.generation - DPAR_GEN_VOLTA;
    if (t.generation < 0 || t.generation > 3 || g->size < 2 || !(bytes >= 0.0) || kind < 0 ||
        (kind > DPAR_REDUCE_SCATTER && kind != DPAR_BROADCAST && kind != DPAR_REDUCE)) {
        return DPAR_E_UNKNOWN;
    }
    dpari_tuner_init(&t, c, g, kind, bytes);
    for (a = 0; a < DPARI_TUNED; a++) {
        for (p = 0; p < DPARI_PROTOCOLS; p++) {
            double s = dpari_tuner_has(&t, c, a, p) ? dpari_tuner_time(&t, a, p) : -1.0;
            if (s >= 0.0 && (best < 0.0 || s < best)) {
                best = s;
                *algorithm = name[a];
                *protocol = proto[p];
            }
        }
    }
    *seconds = best;
    return DPAR_OK;
}

/* ==== cost/workload.c ==== */

/* ---- sums over the list ---------------------------------------------------------------- */

DPAR_API double dpar_layer_params(const dpar_workload *w, int32_t layer)
{
    double sum = 0.0;
    int32_t i;
    for (i = 0; layer >= 0 && layer < w->layers && i < w->layer[layer].ops; i++) {
        sum += w->op[w->layer[layer].first + i].params;
    }
    return sum;
}

DPAR_API double dpar_layer_expert_params(const dpar_workload *w, int32_t layer)
{
    double sum = 0.0;
    int32_t i;
    for (i = 0; layer >= 0 && layer < w->layers && i < w->layer[layer].ops; i++) {
        const dpar_op *op = &w->op[w->layer[layer].first + i];
        sum += op->cut >= DPAR_CUT_EXPERT ? op->params : 0.0;
    }
    return sum;
}

DPAR_API double dpar_layer_saved(const dpar_workload *w, int32_t layer, int32_t recompute)
{
    double sum = 0.0;
    int32_t i;
    for (i = 0; layer >= 0 && layer < w->layers && i < w->layer[layer].ops; i++) {
        const dpar_op *op = &w->op[w->layer[layer].first + i];
        int32_t kept = recompute == DPAR_RECOMPUTE_NONE || op->keep == DPAR_KEEP_INPUT ||
                       (recompute == DPAR_RECOMPUTE_SELECTIVE && op->keep == DPAR_KEEP_ALWAYS);
        sum += kept ? op->save : 0.0;
    }
    return sum;
}

DPAR_API double dpar_layer_flops(const dpar_workload *w, int32_t layer)
{
    double sum = 0.0;
    int32_t i;
    for (i = 0; layer >= 0 && layer < w->layers && i < w->layer[layer].ops; i++) {
        const dpar_op *op = &w->op[w->layer[layer].first + i];
        sum += 2.0 * op->n * op->k * op->copies * w->layer[layer].tokens;
    }
    return sum;
}

DPAR_API int32_t dpar_workload_largest(const dpar_workload *w)
{
    int32_t i, best = 0;
    for (i = 1; i < w->layers; i++) {
        if (dpar_layer_params(w, i) > dpar_layer_params(w, best)) {
            best = i;
        }
    }
    return best;
}

DPAR_API dpar_status dpar_workload_check(const dpar_workload *w, dpar_why *why)
{
    int32_t i;
    double params = 0.0;
    if (w->layers < 1 || w->layers > DPAR_MAX_LAYERS || w->ops < 1 || w->ops > DPAR_MAX_OPS) {
        return dpari_say(DPAR_E_ARG, why, "a workload needs 1 to 24 layer classes, this has #",
                         w->layers, 0, 0, 0);
    }
    for (i = 0; i < w->layers; i++) {
        const dpar_layer *l = &w->layer[i];
        if (l->count < 1 || l->ops < 1 || l->first < 0 || l->first + l->ops > w->ops ||
            !(l->tokens > 0.0) || !dpari_finite(l->tokens)) {
            return dpari_say(DPAR_E_ARG, why, "layer class # is empty: count=#, operations=#", i,
                             l->count, l->ops, 0);
        }
        params += dpar_layer_params(w, i) * l->count;
    }
    if (!(params >= 0.0) || params > 4e18) {
        return dpari_say(DPAR_E_RANGE, why, "the model has more than 4e18 parameters", 0, 0, 0, 0);
    }
    return DPAR_OK;
}

/* ---- building ---------------------------------------------------------------------------- */

static dpar_layer *dpari_add_layer(dpar_workload *w, const char *name, int32_t kind, int32_t count,
                                   double tokens, double width_bytes)
{
    dpar_layer *l;
    if (w->layers >= DPAR_MAX_LAYERS || count < 1) {
        return NULL;
    }
    l = &w->layer[w->layers++];
    dpari_zero(l, sizeof(*l));
    dpari_copy_text(l->name, sizeof(l->name), name, sizeof(l->name));
    l->kind = kind;
    l->count = count;
    l->first = w->ops;
    l->tokens = tokens;
    l->width_bytes = width_bytes;
    l->shrink = 1;
    return l;
}

/* Appends an operation to the newest layer; a full table is caught by dpar_workload_check. */
static dpar_op *dpari_add_op(dpar_workload *w, int kind, int cut, int kernels)
{
    dpar_op *op = &w->op[w->ops < DPAR_MAX_OPS ? w->ops++ : DPAR_MAX_OPS - 1];
    dpari_zero(op, sizeof(*op));
    op->kind = (int8_t)kind;
    op->cut = (int8_t)cut;
    op->save_cut = (int8_t)(cut == DPAR_CUT_COLUMN          ? DPAR_CUT_SEQUENCE
                            : cut == DPAR_CUT_ROW           ? DPAR_CUT_TENSOR
                            : cut == DPAR_CUT_EXPERT_COLUMN ? DPAR_CUT_EXPERT
                            : cut == DPAR_CUT_EXPERT_ROW    ? DPAR_CUT_EXPERT_TENSOR
                                                            : cut);
    op->kernels = (int16_t)kernels;
    op->copies = 1.0;
    if (w->layers > 0) {
        w->layer[w->layers - 1].ops = w->ops - w->layer[w->layers - 1].first;
    }
    return op;
}

/* [tokens, k] x [k, n]; its input is kept for the weight gradient. */
static dpar_op *dpari_add_gemm(dpar_workload *w, int cut, double n, double k, int biases)
{
    dpar_op *op = dpari_add_op(w, DPAR_OP_GEMM, cut, biases ? 2 : 1);
    op->n = n;
    op->k = k;
    op->params = n * k + (biases ? n : 0.0);
    op->save = k * w->element;
    return op;
}

static dpar_op *dpari_add_stream(dpar_workload *w, int cut, int kernels, double touch,
                                 double touch_back, double save)
{
    dpar_op *op = dpari_add_op(w, DPAR_OP_STREAM, cut, kernels);
    op->touch = touch;
    op->touch_back = touch_back;
    op->save = save;
    return op;
}

/* What the software does to the element-wise work of a layer. */
typedef struct dpari_style {
    double e;      /* bytes of an element */
    double norm;   /* extra bytes a channel that a norm keeps (eager: an fp32 copy and more) */
    double passes; /* element-wise traffic over that of fused kernels */
    int32_t fused; /* activation and its product in one kernel, rotary without copies */
    int32_t drop;  /* dropout after attention and after each residual branch */
    int32_t biases;
    int32_t gated;
    int32_t rms;
} dpari_style;

static dpari_style dpari_style_of(const dpar_workload *w, const dpar_model *m)
{
    dpari_style s;
    int eager = w->stack == DPAR_STACK_TORCH;
    s.e = w->element;
    s.norm = eager ? 6.0 : 0.0;
    s.passes = eager ? 1.6 : 1.0;
    s.fused = !eager;
    s.drop = m->family == DPAR_FAMILY_GPT && w->stack == DPAR_STACK_MEGATRON;
    s.biases = m->biases > 0 ||
               (m->family != DPAR_FAMILY_LLAMA && m->family != DPAR_FAMILY_T5 && m->biases == 0);
    s.gated = m->family == DPAR_FAMILY_LLAMA;
    s.rms = m->family == DPAR_FAMILY_LLAMA || m->family == DPAR_FAMILY_T5;
    return s;
}

static void dpari_add_norm(dpar_workload *w, const dpari_style *s, double h, int keep)
{
    dpar_op *op =
        dpari_add_stream(w, DPAR_CUT_SEQUENCE, s->fused ? 1 : 4, 2.0 * s->e * h * s->passes,
                         3.0 * s->e * h * s->passes, (s->e + s->norm) * h);
    op->params = s->rms ? h : s->biases ? 2.0 * h : h;
    op->keep = (int8_t)keep;
}

/* Residual addition, with dropout and bias where the model has them. */
static void dpari_add_residual(dpar_workload *w, const dpari_style *s, double h)
{
    double mask = s->drop ? 1.0 : 0.0;
    dpari_add_stream(w, DPAR_CUT_SEQUENCE, s->drop && !s->fused ? 3 : 1, (3.0 * s->e + mask) * h,
                     (2.0 * s->e * (s->drop ? 1.0 : 0.5) + mask) * h, mask * h);
}

/* Unfused scores: two batched products and the traffic of a [heads, s, s] tensor between them.
 * Bytes an element of it: softmax 2+2, dropout 2+2+1 forward; 5 and 6 backward; kept 2 (softmax
 * out), with dropout also 1 (mask) and 2 (its output): Korthikanti's 5 a s. What the products
 * themselves read and write is priced with them. */
static void dpari_add_scores(dpar_workload *w, const dpari_style *s, double heads, double width,
                             double keys, double kept)
{
    double cells = heads * keys, e = s->e;
    dpar_op *op = dpari_add_op(w, DPAR_OP_SCORES, DPAR_CUT_TENSOR, 6);
    op->n = heads * width;
    op->k = keys;
    op->heads = (int16_t)(heads < 30000.0 ? heads : 30000.0);
    op->save = kept;
    op = dpari_add_stream(
        w, DPAR_CUT_TENSOR, s->drop ? 2 : 1, cells * (s->drop ? 4.0 * e + 1.0 : 2.0 * e),
        cells * (s->drop ? 5.0 * e + 1.0 : 3.0 * e), cells * (s->drop ? 2.0 * e + 1.0 : e));
    op->keep = DPAR_KEEP_SELECTIVE;
}

/* Attention proper: q, k, v -> context. width = d_qk + d_v of a head. */
static void dpari_add_attention(dpar_workload *w, const dpari_style *s, double heads, double width,
                                double keys, int causal, double kept)
{
    dpar_op *op;
    if (w->attention == DPAR_ATTENTION_UNFUSED) {
        dpari_add_scores(w, s, heads, width, keys, kept);
        return;
    }
    op = dpari_add_op(w, DPAR_OP_ATTENTION, DPAR_CUT_TENSOR, s->fused ? 2 : 4);
    op->n = heads * width;
    op->k = causal ? 0.5 * keys : keys;
    op->heads = (int16_t)(heads < 30000.0 ? heads : 30000.0);
    op->save = kept + 4.0 * heads; /* the softmax statistics, fp32 a head */
}

/* Multi-head or grouped-query attention: norm, QKV, attention, projection, residual. */
static void dpari_add_mha(dpar_workload *w, const dpar_model *m, const dpari_style *s, double keys,
                          int causal, int cross)
{
    double h = m->hidden, d = m->head_width, q = m->heads * d, kv = 2.0 * m->kv_heads * d;
    double rotary = s->gated ? (s->fused ? 1.0 : 2.0) : 0.0;
    dpar_layer *l = &w->layer[w->layers - 1];
    dpari_add_norm(w, s, h, cross ? DPAR_KEEP_ALWAYS : DPAR_KEEP_INPUT);
    dpari_add_gemm(w, DPAR_CUT_COLUMN, q + kv, h, s->biases);
    /* bias, split into heads, transposes, rotary: read and write QKV once, eager twice */
    dpari_add_stream(w, DPAR_CUT_TENSOR, s->fused ? 2 : 6,
                     2.0 * s->e * (q + kv) * (1.0 + 0.5 * rotary),
                     2.0 * s->e * (q + kv) * (1.0 + 0.5 * rotary),
                     s->gated && !s->fused ? s->e * (q + 0.5 * kv) : 0.0);
    dpari_add_attention(w, s, m->heads, 2.0 * d, keys, causal, s->e * (q + kv));
    dpari_add_stream(w, DPAR_CUT_TENSOR, 1, 2.0 * s->e * q, 2.0 * s->e * q, 0.0);
    dpari_add_gemm(w, DPAR_CUT_ROW, h, q, s->biases);
    dpari_add_residual(w, s, h);
    l->tp_regions++;
    l->cp_kv_bytes += s->e * kv;
    l->cp_qo_bytes += 2.0 * s->e * q;
}

/* Multi-head latent attention (DeepSeek-V2): low-rank queries, keys and values. */
static void dpari_add_mla(dpar_workload *w, const dpar_model *m, const dpari_style *s, double keys)
{
    double h = m->hidden, a = m->heads, rope = m->rope_width, e = s->e;
    double qk = m->qk_width, v = m->v_width, q = a * (qk + rope), kv = a * (qk + v);
    dpar_layer *l = &w->layer[w->layers - 1];
    dpar_op *op;
    dpari_add_norm(w, s, h, DPAR_KEEP_INPUT);
    if (m->q_lora > 0) {
        dpari_add_gemm(w, DPAR_CUT_NONE, m->q_lora, h, 0);
        dpari_add_norm(w, s, m->q_lora, DPAR_KEEP_ALWAYS);
        dpari_add_gemm(w, DPAR_CUT_COLUMN, q, m->q_lora, 0);
    } else {
        dpari_add_gemm(w, DPAR_CUT_COLUMN, q, h, 0);
    }
    op = dpari_add_gemm(w, DPAR_CUT_NONE, m->kv_lora + rope, h, 0);
    op->save = 0.0; /* the same input as the query's */
    dpari_add_norm(w, s, m->kv_lora, DPAR_KEEP_ALWAYS);
    dpari_add_gemm(w, DPAR_CUT_COLUMN, kv, m->kv_lora, 0);
    /* keys are assembled from their latent part and one rotary part: concatenated for each head */
    dpari_add_stream(w, DPAR_CUT_TENSOR, 4, 2.0 * e * (2.0 * q + a * v),
                     2.0 * e * (2.0 * q + a * v), 0.0);
    dpari_add_attention(w, s, a, qk + rope + v, keys, 1, e * (2.0 * q + a * v));
    dpari_add_gemm(w, DPAR_CUT_ROW, h, a * v, 0);
    dpari_add_residual(w, s, h);
    l->tp_regions++;
    l->cp_kv_bytes += e * (q + a * v);
    l->cp_qo_bytes += e * (q + a * v);
}

/* Norm, up (and gate), activation, down, residual. */
static void dpari_add_mlp(dpar_workload *w, const dpar_model *m, const dpari_style *s, double f)
{
    double h = m->hidden, up = s->gated ? 2.0 * f : f, e = s->e;
    dpar_op *op;
    dpari_add_norm(w, s, h, DPAR_KEEP_ALWAYS);
    dpari_add_gemm(w, DPAR_CUT_COLUMN, up, h, s->biases);
    op = dpari_add_stream(w, DPAR_CUT_TENSOR,
                          s->fused   ? 1
                          : s->gated ? 2
                                     : 2,
                          e * (up + f) * s->passes, e * (2.0 * up + f) * s->passes,
                          e * (up + (s->gated && !s->fused ? f : 0.0)));
    op->transient = e * up;
    dpari_add_gemm(w, DPAR_CUT_ROW, h, f, s->biases);
    dpari_add_residual(w, s, h);
    w->layer[w->layers - 1].tp_regions++;
}

/* Router, permutation, grouped products over the experts of a token, combination; shared experts
 * beside them. */
static void dpari_add_moe(dpar_workload *w, const dpar_model *m, const dpari_style *s)
{
    double h = m->hidden, f = m->expert_ffn, t = m->topk, e = s->e, up = 2.0 * f;
    dpar_layer *l = &w->layer[w->layers - 1];
    dpar_op *op;
    dpari_add_norm(w, s, h, DPAR_KEEP_ALWAYS);
    op = dpari_add_gemm(w, DPAR_CUT_SEQUENCE, m->experts, h, 0);
    op->touch = op->touch_back = 40.0 * m->experts; /* fp32 scores, softmax, top-k, masks */
    /* gathers and scatters of rows run at about half of the streaming rate (measured): twice */
    dpari_add_stream(w, DPAR_CUT_SEQUENCE, 6, 4.0 * e * t * h, 4.0 * e * t * h, 8.0 * t);
    op = dpari_add_gemm(w, DPAR_CUT_EXPERT_COLUMN, up, h, 0);
    op->kind = DPAR_OP_EXPERTS;
    op->copies = t;
    op->params = m->experts * up * h;
    op->save = e * t * h;
    op = dpari_add_stream(w, DPAR_CUT_EXPERT_TENSOR, 2, e * t * (up + f), e * t * (2.0 * up + f),
                          e * t * up);
    op->transient = e * t * up;
    op = dpari_add_gemm(w, DPAR_CUT_EXPERT_ROW, h, f, 0);
    op->kind = DPAR_OP_EXPERTS;
    op->copies = t;
    op->params = m->experts * f * h;
    op->save = e * t * f;
    dpari_add_stream(w, DPAR_CUT_SEQUENCE, 3, 4.0 * e * t * h, 4.0 * e * t * h, 0.0);
    if (m->shared_ffn > 0) {
        op = dpari_add_gemm(w, DPAR_CUT_COLUMN, 2.0 * m->shared_ffn, h, 0);
        op->save = 0.0;
        dpari_add_stream(w, DPAR_CUT_TENSOR, 1, 3.0 * e * m->shared_ffn, 5.0 * e * m->shared_ffn,
                         2.0 * e * m->shared_ffn);
        dpari_add_gemm(w, DPAR_CUT_ROW, h, m->shared_ffn, 0);
    }
    dpari_add_residual(w, s, h);
    l->tp_regions += m->shared_ffn > 0; /* routed tokens travel by ep_bytes, over ep and etp */
    l->ep_bytes += e * t * h;
}

/* Token embedding, and learned positions where the model has them. */
static void dpari_add_embedding(dpar_workload *w, const dpar_model *m, const dpari_style *s,
                                double tokens, double positions)
{
    double h = m->hidden;
    dpar_op *op;
    dpar_layer *l = dpari_add_layer(w, "embed", DPAR_LAYER_EMBED, 1, tokens, s->e * h);
    if (l == NULL) {
        return;
    }
    op = dpari_add_stream(w, DPAR_CUT_TENSOR, 3, 2.0 * s->e * h, 3.0 * s->e * h, 0.0);
    op->params = (double)m->vocab * h;
    op = dpari_add_stream(w, DPAR_CUT_SEQUENCE, s->drop ? 2 : 1, (s->drop ? 3.0 : 0.0) * s->e * h,
                          (s->drop ? 2.0 : 0.0) * s->e * h, s->drop ? h : 0.0);
    op->params = positions * h;
    l->tp_regions = 1;
}

/* Final norm, logits, loss. Traffic of the loss, bytes a logit: fp32 copy, maximum, subtraction,
 * exponential, sum and back: 30 + 14 unfused; 4 + 4 in one fused kernel. */
static void dpari_add_head(dpar_workload *w, const dpar_model *m, const dpari_style *s,
                           double tokens)
{
    double h = m->hidden, v = m->vocab;
    int fused = w->stack == DPAR_STACK_CORE || w->stack == DPAR_STACK_COMPILED;
    dpar_op *op;
    dpar_layer *l = dpari_add_layer(w, "head", DPAR_LAYER_HEAD, 1, tokens, s->e * h);
    if (l == NULL) {
        return;
    }
    dpari_add_norm(w, s, h, DPAR_KEEP_ALWAYS);
    op = dpari_add_gemm(w, DPAR_CUT_COLUMN, v, h, 0);
    op->params = m->tied ? 0.0 : v * h;
    op = dpari_add_stream(w, DPAR_CUT_TENSOR, fused ? 2 : 8, v * (fused ? 6.0 : 26.0),
                          v * (fused ? 4.0 : 14.0), 0.0);
    /* logits alive at once, bytes each: bf16 in place; bf16 and an fp32 copy; and its gradient */
    op->transient = v * (w->stack == DPAR_STACK_CORE       ? 2.0
                         : w->stack == DPAR_STACK_MEGATRON ? 4.0
                         : w->stack == DPAR_STACK_COMPILED ? 6.0
                                                           : 10.0);
    l->tp_regions = 1;
}

static void dpari_build_decoder(dpar_workload *w, const dpar_model *m, double seq)
{
    dpari_style s = dpari_style_of(w, m);
    int32_t dense = m->experts > 0 ? m->dense_layers : m->layers, moe = m->layers - dense;
    int32_t pass;
    double keys = seq;
    dpari_add_embedding(w, m, &s, seq,
                        m->family == DPAR_FAMILY_GPT && !m->rotary ? (double)m->seq : 0.0);
    for (pass = 0; pass < 2; pass++) {
        if (dpari_add_layer(w, pass ? "moe" : "block", DPAR_LAYER_BLOCK, pass ? moe : dense, seq,
                            s.e * m->hidden) == NULL) {
            continue;
        }
        if (m->kv_lora > 0) {
            dpari_add_mla(w, m, &s, keys);
        } else {
            dpari_add_mha(w, m, &s, keys, 1, 0);
        }
        if (pass) {
            dpari_add_moe(w, m, &s);
        } else {
            dpari_add_mlp(w, m, &s, m->ffn);
        }
    }
    dpari_add_head(w, m, &s, seq);
}

/* ViT and DiT: patches in, blocks that see every token, a light head. */
static void dpari_build_vision(dpar_workload *w, const dpar_model *m)
{
    dpari_style s = dpari_style_of(w, m);
    double h = m->hidden, tokens = w->tokens, patch = (double)m->patch * m->patch * m->channels;
    dpar_layer *l = dpari_add_layer(w, "patch", DPAR_LAYER_EMBED, 1, tokens, s.e * h);
    dpar_op *op;
    dpari_add_gemm(w, DPAR_CUT_NONE, h, patch, 1)->params += (tokens + 1.0) * h;
    l->tp_regions = 0;
    l = dpari_add_layer(w, "block", DPAR_LAYER_BLOCK, m->layers, tokens, s.e * h);
    dpari_add_mha(w, m, &s, tokens, 0, 0);
    dpari_add_mlp(w, m, &s, m->ffn);
    if (m->family == DPAR_FAMILY_DIT) {
        /* shift, scale and gate of both branches from the condition: 6 h wide, once a sample */
        op = dpari_add_stream(w, DPAR_CUT_TENSOR, 8, 8.0 * s.e * h, 12.0 * s.e * h, 4.0 * s.e * h);
        op->params = 6.0 * h * h + 6.0 * h;
    }
    dpari_add_layer(w, "head", DPAR_LAYER_HEAD, 1, m->family == DPAR_FAMILY_DIT ? tokens : 1.0,
                    s.e * h);
    dpari_add_norm(w, &s, h, DPAR_KEEP_ALWAYS);
    dpari_add_gemm(w, DPAR_CUT_NONE, m->out_channels > 0 ? m->out_channels : 1000, h, 1);
}

static void dpari_build_t5(dpar_workload *w, const dpar_model *m, double seq)
{
    dpari_style s = dpari_style_of(w, m);
    int32_t decoders = m->decoder_layers > 0 ? m->decoder_layers : m->layers;
    dpari_add_embedding(w, m, &s, seq, 0.0);
    dpari_add_layer(w, "encoder", DPAR_LAYER_BLOCK, m->layers, seq, s.e * m->hidden);
    dpari_add_mha(w, m, &s, seq, 0, 0);
    dpari_add_mlp(w, m, &s, m->ffn);
    dpari_add_layer(w, "decoder", DPAR_LAYER_BLOCK, decoders, seq, s.e * m->hidden);
    dpari_add_mha(w, m, &s, seq, 1, 0);
    dpari_add_mha(w, m, &s, seq, 0, 1);
    dpari_add_mlp(w, m, &s, m->ffn);
    dpari_add_head(w, m, &s, seq);
}

/* A convolution with its norm and activation. taps = kernel area; grow = input pixels an output
 * pixel (stride 2: 4). Kept: the input, and the norm's input (the activation is the next input). */
static void dpari_add_conv(dpar_workload *w, double out, double in, double taps, double grow,
                           int reach)
{
    double e = w->element;
    dpar_layer *l = &w->layer[w->layers - 1];
    dpar_op *op = dpari_add_op(w, DPAR_OP_CONV, DPAR_CUT_COLUMN, 1);
    op->save_cut = DPAR_CUT_NONE;
    op->n = out;
    op->k = in * taps;
    op->params = out * in * taps;
    op->touch = e * in * grow;
    op->touch_back = 2.0 * e * in * grow;
    op->save = e * in * grow;
    /* an eager framework keeps the norm's output too, which is the activation's input */
    op = dpari_add_stream(w, DPAR_CUT_NONE, 2, 4.0 * e * out, 6.0 * e * out,
                          (w->stack == DPAR_STACK_TORCH ? 2.0 : 1.0) * e * out);
    op->params = 2.0 * out;
    op->transient = e * out;
    if (reach > 0) {
        l->reach_bytes += reach * in * e;
        l->reach = (int32_t)dpari_most(l->reach, reach);
        l->exchanges++;
    }
}

/* Bottleneck ResNet: 3, 4, 6, 3 blocks (ResNet-50) scaled to m->layers blocks of 4 stages. */
static void dpari_build_resnet(dpar_workload *w, const dpar_model *m)
{
    static const int8_t depth[4] = {3, 4, 6, 3};
    double side = (double)m->image[0] / 4.0, cells = side * ((double)m->image[1] / 4.0);
    double width = m->hidden, in = m->hidden;
    int32_t stage, part;
    dpar_layer *l =
        dpari_add_layer(w, "stem", DPAR_LAYER_BLOCK, 1, 4.0 * cells, w->element * width);
    l->shrink = 2;
    dpari_add_conv(w, width, m->channels, 49.0, 4.0, 3);
    for (stage = 0; stage < 4; stage++) {
        for (part = 0; part < 2; part++) {
            double out = 4.0 * width, grow = part == 0 && stage > 0 ? 4.0 : 1.0;
            l = dpari_add_layer(w, part ? "bottleneck" : "downsample", DPAR_LAYER_BLOCK,
                                part ? depth[stage] - 1 : 1, cells, w->element * out);
            l->shrink = 4 << stage;
            dpari_add_conv(w, width, in, 1.0, grow, 0);
            dpari_add_conv(w, width, width, 9.0, 1.0, 1);
            dpari_add_conv(w, out, width, 1.0, 1.0, 0);
            if (part == 0) {
                dpari_add_conv(w, out, in, 1.0, grow, 0);
            }
            in = out;
        }
        width *= 2.0;
        cells /= 4.0;
    }
    dpari_add_layer(w, "head", DPAR_LAYER_HEAD, 1, 1.0, 1000.0 * w->element);
    dpari_add_gemm(w, DPAR_CUT_NONE, m->out_channels > 0 ? m->out_channels : 1000, in, 1);
}

static double dpari_level_width(const dpar_model *m, int32_t level)
{
    double c = m->hidden;
    while (level-- > 0) {
        c *= 2.0;
    }
    return c;
}

/* One half of a U-Net level: `blocks` pairs of convolutions; the first one changes the width. */
static void dpari_add_level(dpar_workload *w, const dpar_model *m, const char *name, int32_t level,
                            double in)
{
    double c = dpari_level_width(m, level), shrink = dpari_level_width(m, level) / m->hidden;
    double cells = (double)m->image[0] * m->image[1] / (shrink * shrink);
    double taps = (double)m->kernel * m->kernel;
    int32_t i, blocks = m->blocks_per_level;
    dpar_layer *l = dpari_add_layer(w, name, DPAR_LAYER_BLOCK, 1, cells, w->element * c);
    if (l == NULL) {
        return;
    }
    l->shrink = (int32_t)shrink;
    for (i = 0; i < blocks; i++) {
        dpari_add_conv(w, c, i == 0 ? in : c, taps, 1.0, m->kernel / 2);
        dpari_add_conv(w, c, c, taps, 1.0, m->kernel / 2);
    }
}

static void dpari_build_unet(dpar_workload *w, const dpar_model *m)
{
    int32_t level;
    double out = m->out_channels > 0 ? m->out_channels : m->channels;
    for (level = 0; level < m->levels; level++) {
        dpari_add_level(w, m, "encode", level,
                        level == 0 ? m->channels : dpari_level_width(m, level - 1));
    }
    for (level = m->levels - 2; level >= 0; level--) {
        /* the skip and the upsampled coarse level are concatenated */
        dpari_add_level(w, m, "decode", level, 2.0 * dpari_level_width(m, level));
        /* the up-convolution that brings the coarse level here: 2 x 2, no halo */
        dpari_add_conv(w, dpari_level_width(m, level), dpari_level_width(m, level + 1), 1.0, 0.25,
                       0);
    }
    dpari_add_layer(w, "head", DPAR_LAYER_HEAD, 1, (double)m->image[0] * m->image[1],
                    out * w->element);
    dpari_add_conv(w, out, m->hidden, 1.0, 1.0, 0);
}

/* An explicit stencil code: one layer, one pass over the cells a time step. */
static void dpari_build_grid(dpar_workload *w, const dpar_model *m)
{
    double e = w->element,
           cells = (double)m->extent[0] * (double)m->extent[1] * (double)m->extent[2];
    dpar_layer *l = dpari_add_layer(w, "cells", DPAR_LAYER_BLOCK, 1, cells, e * m->fields);
    dpar_op *op =
        dpari_add_stream(w, DPAR_CUT_NONE, m->fields, m->bytes_per_cell, 0.0, 2.0 * e * m->fields);
    op->keep = DPAR_KEEP_INPUT;
    op->n = 0.5 * m->flops_per_cell;
    op->k = 1.0;
    l->reach = m->halo;
    l->reach_bytes = (double)m->halo * m->fields * e;
    l->exchanges = 1;
}

/* ---- from model to workload --------------------------------------------------------------- */

static int dpari_is_transformer(int32_t family)
{
    return family <= DPAR_FAMILY_T5;
}

static dpar_status dpari_model_widths(dpar_model *m, dpar_why *why)
{
    if (m->layers < 1 || m->hidden < 1 || m->heads < 1) {
        return dpari_say(DPAR_E_ARG, why,
                         "a transformer needs layers, hidden and heads of at least 1: layers=#, "
                         "hidden=#, heads=#",
                         m->layers, m->hidden, m->heads, 0);
    }
    if (m->head_width < 1 && m->hidden % m->heads != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "heads=# does not divide hidden=# (give head_width)",
                         m->heads, m->hidden, 0, 0);
    }
    m->head_width = m->head_width > 0 ? m->head_width : m->hidden / m->heads;
    m->kv_heads = m->kv_heads > 0 ? m->kv_heads : m->heads;
    if (m->kv_heads > m->heads || m->heads % m->kv_heads != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "kv_heads=# does not divide heads=#", m->kv_heads,
                         m->heads, 0, 0);
    }
    if (m->ffn < 1) {
        if (m->hidden > INT32_MAX / 4) {
            return dpari_say(DPAR_E_RANGE, why, "hidden=# is too large", m->hidden, 0, 0, 0);
        }
        m->ffn = 4 * m->hidden;
    }
    return DPAR_OK;
}

static dpar_status dpari_model_tokens(dpar_model *m, int32_t seq, dpar_why *why)
{
    if (m->family == DPAR_FAMILY_VIT || m->family == DPAR_FAMILY_DIT) {
        if (m->patch < 1 || m->image[0] < m->patch || m->image[1] < m->patch || m->channels < 1) {
            return dpari_say(DPAR_E_ARG, why,
                             "image=#x# needs a patch of at least 1 that fits in it, and channels: "
                             "patch=#, channels=#",
                             m->image[0], m->image[1], m->patch, m->channels);
        }
        return DPAR_OK;
    }
    m->seq = seq > 0 ? seq : m->seq;
    if (m->seq < 1 || m->vocab < 1) {
        return dpari_say(DPAR_E_ARG, why, "seq and vocab must be at least 1: seq=#, vocab=#",
                         m->seq, m->vocab, 0, 0);
    }
    return DPAR_OK;
}

static dpar_status dpari_model_experts(dpar_model *m, dpar_why *why)
{
    if (m->experts < 0 || (m->experts > 0 && (m->topk < 1 || m->topk > m->experts))) {
        return dpari_say(DPAR_E_ARG, why, "topk=# must be 1 to experts=#", m->topk, m->experts, 0,
                         0);
    }
    if (m->experts > 0 && m->expert_ffn < 1) {
        m->expert_ffn = m->ffn;
    }
    if (m->dense_layers > m->layers) {
        return dpari_say(DPAR_E_ARG, why, "dense_layers=# of layers=#", m->dense_layers, m->layers,
                         0, 0);
    }
    if (m->kv_lora > 0 && (m->qk_width < 1 || m->v_width < 1)) {
        return dpari_say(DPAR_E_ARG, why,
                         "latent attention (kv_lora=#) needs qk_width and v_width: #, #",
                         m->kv_lora, m->qk_width, m->v_width, 0);
    }
    if (m->capacity < 0.0 || !dpari_finite(m->capacity)) {
        return dpari_say(DPAR_E_ARG, why, "capacity must be a number of at least 1", 0, 0, 0, 0);
    }
    return DPAR_OK;
}

static dpar_status dpari_model_convs(dpar_model *m, dpar_why *why)
{
    int32_t shrink = m->family == DPAR_FAMILY_RESNET ? 32 : 1;
    m->kernel = m->kernel > 0 ? m->kernel : 3;
    m->blocks_per_level = m->blocks_per_level > 0 ? m->blocks_per_level : 1;
    if (m->family == DPAR_FAMILY_UNET) {
        if (m->levels < 1 || m->levels > 8) {
            return dpari_say(DPAR_E_ARG, why, "levels=# must be 1 to 8", m->levels, 0, 0, 0);
        }
        shrink = (int32_t)1 << (m->levels - 1);
    }
    if (m->image[0] < shrink || m->image[1] < shrink || m->channels < 1 || m->hidden < 1) {
        return dpari_say(DPAR_E_ARG, why,
                         "a conv net needs hidden=#, channels=# of at least 1 and an image of at "
                         "least # cells a side",
                         m->hidden, m->channels, shrink, 0);
    }
    return DPAR_OK;
}

static dpar_status dpari_model_grid(dpar_model *m, dpar_why *why)
{
    int64_t cells = 1;
    int32_t i;
    for (i = 0; i < 3; i++) {
        m->extent[i] = i < m->dims ? m->extent[i] : 1;
        if (m->extent[i] < 1 || !dpari_mul(cells, m->extent[i], &cells)) {
            return dpari_say(DPAR_E_ARG, why, "grid axis # has # cells", i, m->extent[i], 0, 0);
        }
    }
    m->fields = m->fields > 0 ? m->fields : 1;
    m->halo = m->halo > 0 ? m->halo : 1;
    m->element = m->element > 0 ? m->element : 4;
    for (i = 0; i < m->dims && m->halo > m->extent[i]; i++) {
    }
    if (m->dims > 0 && i == m->dims) {
        return dpari_say(DPAR_E_ARG, why, "halo=# is wider than the grid: # x # x # cells", m->halo,
                         m->extent[0], m->extent[1], m->extent[2]);
    }
    if (m->dims < 1 || m->dims > 3) {
        return dpari_say(DPAR_E_ARG, why, "a grid has 1 to 3 axes, not #", m->dims, 0, 0, 0);
    }
    if (!(m->flops_per_cell >= 0.0 && m->bytes_per_cell >= 0.0) ||
        !dpari_finite(m->flops_per_cell) || !dpari_finite(m->bytes_per_cell)) {
        return dpari_say(DPAR_E_ARG, why, "flops and bytes a cell must be numbers of at least 0", 0,
                         0, 0, 0);
    }
    if (m->bytes_per_cell <= 0.0) { /* read every field once, write it once */
        m->bytes_per_cell = 2.0 * m->fields * m->element;
    }
    if (m->flops_per_cell <= 0.0) { /* a multiply and an add a neighbour and field */
        m->flops_per_cell = 2.0 * (2.0 * m->dims * m->halo + 1.0) * m->fields;
    }
    return DPAR_OK;
}

/* Fills in what follows from what was said; refuses what cannot be. */
static dpar_status dpari_model_complete(dpar_model *m, int32_t seq, dpar_why *why)
{
    dpar_status st;
    if (m->family < 0 || m->family >= DPAR_FAMILIES) {
        return dpari_say(DPAR_E_ARG, why, "family # does not exist", m->family, 0, 0, 0);
    }
    if (m->element != 0 && m->element != 2 && m->element != 4 && m->element != 8) {
        return dpari_say(DPAR_E_ARG, why, "element=# must be 2, 4 or 8 bytes", m->element, 0, 0, 0);
    }
    if (m->layers > 1000000 || m->decoder_layers > 1000000) {
        return dpari_say(DPAR_E_RANGE, why, "layers=#, decoder_layers=#: at most 1000000",
                         m->layers, m->decoder_layers, 0, 0);
    }
    if (m->family == DPAR_FAMILY_GRID) {
        return dpari_model_grid(m, why);
    }
    m->element = m->element > 0 ? m->element : 2;
    if (!dpari_is_transformer(m->family)) {
        return dpari_model_convs(m, why);
    }
    st = dpari_model_widths(m, why);
    if (st == DPAR_OK) {
        st = dpari_model_tokens(m, seq, why);
    }
    return st == DPAR_OK ? dpari_model_experts(m, why) : st;
}

static double dpari_model_samples_tokens(const dpar_model *m)
{
    if (m->family == DPAR_FAMILY_VIT || m->family == DPAR_FAMILY_DIT) {
        return (double)(m->image[0] / m->patch) * (m->image[1] / m->patch) +
               (m->family == DPAR_FAMILY_VIT ? 1.0 : 0.0);
    }
    if (m->family == DPAR_FAMILY_GRID) {
        return (double)m->extent[0] * (double)m->extent[1] * (double)m->extent[2];
    }
    if (m->family == DPAR_FAMILY_RESNET) {
        return 1.0;
    }
    return m->family == DPAR_FAMILY_UNET ? (double)m->image[0] * m->image[1] : (double)m->seq;
}

static void dpari_workload_head(dpar_workload *w, const dpar_model *m)
{
    int gpt = m->family == DPAR_FAMILY_GPT;
    int transformer = dpari_is_transformer(m->family);
    dpari_copy_text(w->name, sizeof(w->name), m->name, sizeof(m->name));
    w->element = m->element;
    w->stack = m->stack > 0 ? m->stack - 1 : gpt ? DPAR_STACK_MEGATRON : DPAR_STACK_CORE;
    w->attention = m->attention > 0                         ? m->attention - 1
                   : gpt && w->stack == DPAR_STACK_MEGATRON ? DPAR_ATTENTION_UNFUSED
                                                            : DPAR_ATTENTION_FLASH;
    w->causal = m->family == DPAR_FAMILY_GPT || m->family == DPAR_FAMILY_LLAMA;
    w->tokens = dpari_model_samples_tokens(m);
    w->hidden = m->hidden;
    w->heads = transformer ? m->heads : 0;
    w->kv_heads = transformer ? (m->kv_lora > 0 ? m->heads : m->kv_heads) : 0;
    w->vocab = transformer ? m->vocab : 0;
    w->experts = m->experts;
    w->topk = m->topk;
    w->capacity = m->capacity >= 1.0 ? m->capacity : 1.0;
    w->trains = m->family != DPAR_FAMILY_GRID && !m->inference;
    w->time_steps = m->family == DPAR_FAMILY_GRID ? 1 : 0;
    if (m->family == DPAR_FAMILY_GRID) {
        w->dims = m->dims;
        w->extent[0] = m->extent[0];
        w->extent[1] = m->extent[1];
        w->extent[2] = m->extent[2];
    } else if (!transformer) {
        w->dims = 2;
        w->extent[0] = m->image[0];
        w->extent[1] = m->image[1];
        w->extent[2] = 1;
    }
}

static void dpari_workload_totals(dpar_workload *w)
{
    int32_t i, k;
    w->blocks = w->shard_units = 0;
    w->params = w->model_flops_full = w->model_flops_causal = 0.0;
    for (i = 0; i < w->layers; i++) {
        const dpar_layer *l = &w->layer[i];
        double plain = 0.0, attention = 0.0;
        for (k = 0; k < l->ops; k++) {
            const dpar_op *op = &w->op[l->first + k];
            double f = 2.0 * op->n * op->k * op->copies * l->tokens * l->count;
            if (op->kind == DPAR_OP_ATTENTION) {
                attention += w->causal ? 2.0 * f : f;
            } else if (op->kind == DPAR_OP_SCORES) {
                attention += f;
            } else {
                plain += f;
            }
        }
        w->params += dpar_layer_params(w, i) * l->count;
        w->model_flops_full += plain + attention;
        w->model_flops_causal += plain + (w->causal ? 0.5 : 1.0) * attention;
        w->blocks += l->kind == DPAR_LAYER_BLOCK ? l->count : 0;
        w->shard_units += l->count;
    }
    if (w->trains) { /* backward: twice the forward */
        w->model_flops_full *= 3.0;
        w->model_flops_causal *= 3.0;
    }
}

DPAR_API dpar_status dpar_workload_build(dpar_workload *w, const dpar_model *model, int32_t seq,
                                         dpar_why *why)
{
    dpar_model m = *model;
    dpar_status st = dpari_model_complete(&m, seq, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(w, sizeof(*w));
    dpari_workload_head(w, &m);
    switch (m.family) {
    case DPAR_FAMILY_GPT:
    case DPAR_FAMILY_LLAMA: dpari_build_decoder(w, &m, m.seq); break;
    case DPAR_FAMILY_VIT:
    case DPAR_FAMILY_DIT: dpari_build_vision(w, &m); break;
    case DPAR_FAMILY_T5: dpari_build_t5(w, &m, m.seq); break;
    case DPAR_FAMILY_RESNET: dpari_build_resnet(w, &m); break;
    case DPAR_FAMILY_UNET: dpari_build_unet(w, &m); break;
    default: dpari_build_grid(w, &m); break;
    }
    dpari_workload_totals(w);
    return dpar_workload_check(w, why);
}

/* ==== cost/models.c ==== */

/* ---- presets: the same text form that users write ------------------------------------------- */

/* Sources: SC21 Table 1 (Narayanan 2021), Korthikanti 2022 Table 3, Megatron TP scaling table,
 * llm-foundry's yamls, the models' public config.json, the teaching texts' cases. A row may build
 * on another one. MPT has biases and learned positions: the parameters of llm-foundry's benchmark
 * table say so, to the last one. Images are height x width. The U-Nets are stand-ins for what the
 * texts name without widths: 1440 x 720 cells of 8 surface fields and 8 fields on 12 levels (104
 * channels); 3 levels from 160 channels make case 3's 50M, 5 levels from 128 a weather model of
 * 116M. transformer-1b stands for case 4's "1B, 128K tokens" with Llama-3.2-1B's widths. table */
static const struct {
    char name[20];
    char text[200];
} dpari_preset[] = {
    {"gpt-1.7b", "gpt:layers=24,hidden=2304,heads=24,vocab=51200,seq=2048,tied=1"},
    {"gpt-3.6b", "gpt:layers=30,hidden=3072,heads=32,vocab=51200,seq=2048,tied=1"},
    {"gpt-7.5b", "gpt:layers=36,hidden=4096,heads=32,vocab=51200,seq=2048,tied=1"},
    {"gpt-18.4b", "gpt:layers=40,hidden=6144,heads=48,vocab=51200,seq=2048,tied=1"},
    {"gpt-39.1b", "gpt:layers=48,hidden=8192,heads=64,vocab=51200,seq=2048,tied=1"},
    {"gpt-76.1b", "gpt:layers=60,hidden=10240,heads=80,vocab=51200,seq=2048,tied=1"},
    {"gpt-145.6b", "gpt:layers=80,hidden=12288,heads=96,vocab=51200,seq=2048,tied=1"},
    {"gpt-310.1b", "gpt:layers=96,hidden=16384,heads=128,vocab=51200,seq=2048,tied=1"},
    {"gpt-529.6b", "gpt:layers=105,hidden=20480,heads=128,vocab=51200,seq=2048,tied=1"},
    {"gpt-1008b", "gpt:layers=128,hidden=25600,heads=160,vocab=51200,seq=2048,tied=1"},
    {"gpt-162.2b", "gpt:layers=32,hidden=20480,heads=128,vocab=51200,seq=2048,tied=1"},
    {"gpt-5.9b", "gpt:layers=32,hidden=3840,heads=32,vocab=51200,seq=2048,tied=1"},
    {"gpt3-175b", "gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048,tied=1"},
    {"gpt-174.6b", "gpt3-175b"},
    {"megatron-22b", "gpt:layers=48,hidden=6144,heads=64,vocab=51200,seq=2048,tied=1"},
    {"megatron-530b", "gpt:layers=105,hidden=20480,heads=128,vocab=51200,seq=2048,tied=1"},
    {"mt-nlg-530b", "gpt-529.6b"},
    {"megatron-1t", "gpt:layers=128,hidden=25600,heads=160,vocab=51200,seq=2048,tied=1"},
    {"megatron-1b", "gpt:layers=24,hidden=1920,heads=15,vocab=51200,seq=1024,tied=1"},
    {"megatron-2b", "gpt:layers=30,hidden=2304,heads=18,vocab=51200,seq=1024,tied=1"},
    {"megatron-4b", "gpt:layers=36,hidden=3072,heads=24,vocab=51200,seq=1024,tied=1"},
    {"megatron-8b", "gpt:layers=42,hidden=4096,heads=32,vocab=51200,seq=1024,tied=1"},
    {"gpt2-125m", "gpt:layers=12,hidden=768,heads=12,vocab=50257,seq=1024,tied=1,stack=torch"},
    {"gpt2-1.5b", "gpt:layers=48,hidden=1600,heads=25,vocab=50257,seq=1024,tied=1,stack=torch"},
    {"gpt2", "gpt2-125m"},
    {"gpt2-xl", "gpt2-1.5b"},
    {"gpt-1.3b", "gpt:layers=24,hidden=2048,heads=16,vocab=50304,seq=2048,tied=1,stack=torch"},
    {"mpt-125m",
     "gpt:layers=12,hidden=768,heads=12,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"mpt-350m",
     "gpt:layers=24,hidden=1024,heads=16,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"mpt-760m",
     "gpt:layers=24,hidden=1536,heads=12,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"mpt-1b",
     "gpt:layers=24,hidden=2048,heads=16,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"mpt-3b",
     "gpt:layers=32,hidden=2560,heads=20,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"mpt-7b",
     "gpt:layers=32,hidden=4096,heads=32,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"mpt-13b",
     "gpt:layers=40,hidden=5120,heads=40,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"mpt-30b",
     "gpt:layers=48,hidden=7168,heads=56,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"mpt-70b",
     "gpt:layers=80,hidden=8192,heads=64,vocab=50368,seq=2048,tied=1,stack=torch,attention=flash1"},
    {"llama-7b", "llama:layers=32,hidden=4096,heads=32,ffn=11008,vocab=32000,seq=2048"},
    {"llama-13b", "llama:layers=40,hidden=5120,heads=40,ffn=13824,vocab=32000,seq=2048"},
    {"llama-30b", "llama:layers=60,hidden=6656,heads=52,ffn=17920,vocab=32000,seq=2048"},
    {"llama-65b", "llama:layers=80,hidden=8192,heads=64,ffn=22016,vocab=32000,seq=2048"},
    {"llama-2-7b", "llama:layers=32,hidden=4096,heads=32,ffn=11008,vocab=32000,seq=4096"},
    {"llama-2-13b", "llama:layers=40,hidden=5120,heads=40,ffn=13824,vocab=32000,seq=4096"},
    {"llama-2-70b",
     "llama:layers=80,hidden=8192,heads=64,kv_heads=8,ffn=28672,vocab=32000,seq=4096"},
    {"llama-3-8b",
     "llama:layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256,seq=8192"},
    {"llama-3.1-8b", "llama-3-8b"},
    {"llama-3.2-1b",
     "llama:layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=128256,seq=8192,tied=1"},
    {"smollm2-360m",
     "llama:layers=32,hidden=960,heads=15,kv_heads=5,ffn=2560,vocab=49152,seq=2048,tied=1"},
    {"llama-3-70b",
     "llama:layers=80,hidden=8192,heads=64,kv_heads=8,ffn=28672,vocab=128256,seq=8192"},
    {"llama-3.1-405b",
     "llama:layers=126,hidden=16384,heads=128,kv_heads=8,ffn=53248,vocab=128256,seq=8192"},
    {"mistral-7b",
     "llama:layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=32000,seq=8192"},
    {"mixtral-8x7b", "llama:layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=32000,seq="
                     "4096,experts=8,topk=2"},
    {"mixtral-8x22b", "llama:layers=56,hidden=6144,heads=48,kv_heads=8,ffn=16384,vocab=32768,seq="
                      "4096,experts=8,topk=2"},
    {"qwen2.5-72b",
     "llama:layers=80,hidden=8192,heads=64,kv_heads=8,ffn=29568,vocab=152064,seq=4096"},
    {"qwen3-4b", "llama:layers=36,hidden=2560,heads=32,kv_heads=8,head_width=128,ffn=9728,vocab="
                 "151936,seq=4096,tied=1"},
    {"qwen3-32b", "llama:layers=64,hidden=5120,heads=64,kv_heads=8,head_width=128,ffn=25600,vocab="
                  "151936,seq=4096"},
    {"qwen3-235b-a22b", "llama:layers=94,hidden=4096,heads=64,kv_heads=4,head_width=128,vocab="
                        "151936,seq=4096,experts=128,topk=8,expert_ffn=1536"},
    {"gemma-1.1-2b", "llama:layers=18,hidden=2048,heads=8,kv_heads=1,head_width=256,ffn=16384,"
                     "vocab=256000,seq=8192,tied=1"},
    {"gemma-2-9b", "llama:layers=42,hidden=3584,heads=16,kv_heads=8,head_width=256,ffn=14336,vocab="
                   "256000,seq=8192,tied=1"},
    {"gemma-2-27b", "llama:layers=46,hidden=4608,heads=32,kv_heads=16,head_width=128,ffn=36864,"
                    "vocab=256000,seq=8192,tied=1"},
    {"phi-3-mini", "llama:layers=32,hidden=3072,heads=32,ffn=8192,vocab=32064,seq=4096"},
    {"deepseek-v2", "llama:layers=60,hidden=5120,heads=128,ffn=12288,vocab=102400,seq=4096,q_lora="
                    "1536,kv_lora=512,rope_width=64,qk_width=128,v_width=128,experts=160,topk=6,"
                    "expert_ffn=1536,shared_ffn=3072,dense_layers=1"},
    {"deepseek-v3", "llama:layers=61,hidden=7168,heads=128,ffn=18432,vocab=129280,seq=4096,q_lora="
                    "1536,kv_lora=512,rope_width=64,qk_width=128,v_width=128,experts=256,topk=8,"
                    "expert_ffn=2048,shared_ffn=2048,dense_layers=3"},
    {"vit-l", "vit:layers=24,hidden=1024,heads=16,image=224x224,patch=16,channels=3"},
    {"vit-h", "vit:layers=32,hidden=1280,heads=16,image=224x224,patch=14,channels=3"},
    {"vit-3.2b",
     "vit:layers=40,hidden=2560,heads=32,image=224x224,patch=14,channels=3,stack=torch"},
    {"dit-xl", "dit:layers=28,hidden=1152,heads=16,image=32x32,patch=2,channels=4,out_channels=8"},
    {"diffusion-5b",
     "dit:layers=200,hidden=1152,heads=16,image=256x256,patch=4,channels=16,out_channels=16"},
    {"t5-large", "t5:layers=24,hidden=1024,heads=16,ffn=4096,vocab=32128,seq=512,tied=1"},
    {"t5-11b",
     "t5:layers=24,hidden=1024,heads=128,head_width=128,ffn=65536,vocab=32128,seq=512,tied=1"},
    {"transformer-1b",
     "llama:layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=32000,seq=131072"},
    {"transformer-1b-128k", "transformer-1b"},
    {"resnet-50", "resnet:hidden=64,image=224x224,channels=3,stack=torch"},
    {"unet-50m", "unet:hidden=160,levels=3,blocks_per_level=4,image=720x1440,channels=104,stack="
                 "torch,element=4"},
    {"unet-0.25deg",
     "unet:hidden=128,levels=5,image=720x1440,channels=104,out_channels=104,stack=torch"},
    {"heat-3d", "grid:512x512x512,fields=1,halo=1,element=8"},
    {"shallow-water", "grid:3600x1800,fields=3,halo=2,element=8"},
    {"weather-0.25deg", "grid:1440x720x100,fields=5,halo=2"}};

enum { DPARI_PRESETS = (int)(sizeof(dpari_preset) / sizeof(dpari_preset[0])) };

DPAR_API const char *dpar_model_name(int32_t index)
{
    return index >= 0 && index < DPARI_PRESETS ? dpari_preset[index].name : NULL;
}

/* ---- fields --------------------------------------------------------------------------------- */

/* The integer fields that a text form or a config may set: name and where. */
enum {
    DPARI_M_LAYERS,
    DPARI_M_HIDDEN,
    DPARI_M_HEADS,
    DPARI_M_KV_HEADS,
    DPARI_M_HEAD_WIDTH,
    DPARI_M_FFN,
    DPARI_M_VOCAB,
    DPARI_M_SEQ,
    DPARI_M_TIED,
    DPARI_M_BIASES,
    DPARI_M_ROTARY,
    DPARI_M_EXPERTS,
    DPARI_M_TOPK,
    DPARI_M_EXPERT_FFN,
    DPARI_M_SHARED_FFN,
    DPARI_M_DENSE_LAYERS,
    DPARI_M_Q_LORA,
    DPARI_M_KV_LORA,
    DPARI_M_ROPE_WIDTH,
    DPARI_M_QK_WIDTH,
    DPARI_M_V_WIDTH,
    DPARI_M_DECODER_LAYERS,
    DPARI_M_PATCH,
    DPARI_M_CHANNELS,
    DPARI_M_OUT_CHANNELS,
    DPARI_M_LEVELS,
    DPARI_M_BLOCKS,
    DPARI_M_KERNEL,
    DPARI_M_FIELDS,
    DPARI_M_HALO,
    DPARI_M_ELEMENT,
    DPARI_M_INFERENCE,
    DPARI_M_INTEGERS,
    DPARI_M_CAPACITY = DPARI_M_INTEGERS,
    DPARI_M_FLOPS,
    DPARI_M_BYTES,
    DPARI_M_IMAGE,
    DPARI_M_ATTENTION,
    DPARI_M_STACK,
    DPARI_M_KEYS
};

static const char dpari_model_key[DPARI_M_KEYS][20] = {"layers",
                                                       "hidden",
                                                       "heads",
                                                       "kv_heads",
                                                       "head_width",
                                                       "ffn",
                                                       "vocab",
                                                       "seq",
                                                       "tied",
                                                       "biases",
                                                       "rotary",
                                                       "experts",
                                                       "topk",
                                                       "expert_ffn",
                                                       "shared_ffn",
                                                       "dense_layers",
                                                       "q_lora",
                                                       "kv_lora",
                                                       "rope_width",
                                                       "qk_width",
                                                       "v_width",
                                                       "decoder_layers",
                                                       "patch",
                                                       "channels",
                                                       "out_channels",
                                                       "levels",
                                                       "blocks_per_level",
                                                       "kernel",
                                                       "fields",
                                                       "halo",
                                                       "element",
                                                       "inference",
                                                       "capacity",
                                                       "flops_per_cell",
                                                       "bytes_per_cell",
                                                       "image",
                                                       "attention",
                                                       "stack"};

static int32_t *dpari_model_field(dpar_model *m, int32_t key)
{
    switch (key) {
    case DPARI_M_LAYERS: return &m->layers;
    case DPARI_M_HIDDEN: return &m->hidden;
    case DPARI_M_HEADS: return &m->heads;
    case DPARI_M_KV_HEADS: return &m->kv_heads;
    case DPARI_M_HEAD_WIDTH: return &m->head_width;
    case DPARI_M_FFN: return &m->ffn;
    case DPARI_M_VOCAB: return &m->vocab;
    case DPARI_M_SEQ: return &m->seq;
    case DPARI_M_TIED: return &m->tied;
    case DPARI_M_BIASES: return &m->biases;
    case DPARI_M_ROTARY: return &m->rotary;
    case DPARI_M_EXPERTS: return &m->experts;
    case DPARI_M_TOPK: return &m->topk;
    case DPARI_M_EXPERT_FFN: return &m->expert_ffn;
    case DPARI_M_SHARED_FFN: return &m->shared_ffn;
    case DPARI_M_DENSE_LAYERS: return &m->dense_layers;
    case DPARI_M_Q_LORA: return &m->q_lora;
    case DPARI_M_KV_LORA: return &m->kv_lora;
    case DPARI_M_ROPE_WIDTH: return &m->rope_width;
    case DPARI_M_QK_WIDTH: return &m->qk_width;
    case DPARI_M_V_WIDTH: return &m->v_width;
    case DPARI_M_DECODER_LAYERS: return &m->decoder_layers;
    case DPARI_M_PATCH: return &m->patch;
    case DPARI_M_CHANNELS: return &m->channels;
    case DPARI_M_OUT_CHANNELS: return &m->out_channels;
    case DPARI_M_LEVELS: return &m->levels;
    case DPARI_M_BLOCKS: return &m->blocks_per_level;
    case DPARI_M_KERNEL: return &m->kernel;
    case DPARI_M_FIELDS: return &m->fields;
    case DPARI_M_HALO: return &m->halo;
    case DPARI_M_ELEMENT: return &m->element;
    default: return &m->inference;
    }
}

/* ---- words, and the nearest one ------------------------------------------------------------- */

static const char *dpari_family_name(int32_t family)
{
    static const char name[DPAR_FAMILIES][8] = {"gpt", "llama",  "vit",  "dit",
                                                "t5",  "resnet", "unet", "grid"};
    return name[family];
}

static char dpari_model_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Does the slice spell `name`, case apart? Hugging Face writes "Llama-3-8B". */
static int dpari_model_spells(const char *s, size_t n, const char *name)
{
    size_t i;
    for (i = 0; i < n && name[i] != 0 && dpari_model_lower(s[i]) == name[i]; i++) {
    }
    return i == n && name[n] == 0;
}

/* 6 for each edit (Levenshtein) that leads to a beginning of `name`, 1 for each letter of the rest:
 * "gpt3" is near "gpt3-175b". Names have at most 31 letters; so much of the word counts. */
static int32_t dpari_model_unlike(const char *s, size_t n, const char *name)
{
    int32_t m = (int32_t)dpari_length(name), letters = n < 31 ? (int32_t)n : 31;
    int32_t row[32], i, k, best;
    for (k = 0; k <= m; k++) {
        row[k] = k;
    }
    for (i = 1; i <= letters; i++) {
        int32_t corner = row[0];
        row[0] = i;
        for (k = 1; k <= m; k++) {
            int32_t change = corner + (dpari_model_lower(s[i - 1]) != name[k - 1]);
            corner = row[k];
            row[k] = (int32_t)dpari_least(change, dpari_least(row[k], row[k - 1]) + 1);
        }
    }
    best = 6 * row[m];
    for (k = 0; k < m; k++) {
        best = (int32_t)dpari_least(best, 6 * row[k] + m - k);
    }
    return best;
}

static dpar_status dpari_model_suggest(dpar_status status, dpar_why *why, const char *what,
                                       const char *s, size_t n, const char *nearest)
{
    char text[160];
    dpar_text t;
    dpar_text_init(&t, text, sizeof(text));
    dpar_text_put(&t, what);
    dpar_text_put(&t, " '");
    dpar_text_slice(&t, s, n < 60 ? n : 60);
    dpar_text_put(&t, "'; the nearest is '");
    dpar_text_put(&t, nearest);
    dpar_text_char(&t, '\'');
    return dpari_say_word(status, why, "@", text, sizeof(text), 0, 0, 0, 0);
}

static dpar_status dpari_model_bad(const char *s, size_t n, dpar_why *why, const char *form)
{
    return dpari_say_word(DPAR_E_PARSE, why, form, s, n < 60 ? n : 60, 0, 0, 0, 0);
}

/* "'attention=slow': one of unfused, flash1, flash was expected" */
static dpar_status dpari_model_one_of(const char *s, size_t n, dpar_why *why,
                                      const char *(*name)(int32_t), int32_t names)
{
    char text[160];
    dpar_text t;
    int32_t i;
    dpar_text_init(&t, text, sizeof(text));
    dpar_text_char(&t, '\'');
    dpar_text_slice(&t, s, n < 60 ? n : 60);
    dpar_text_put(&t, "': one of ");
    for (i = 0; i < names; i++) {
        dpar_text_put(&t, i > 0 ? ", " : "");
        dpar_text_put(&t, name(i));
    }
    return dpari_say_word(DPAR_E_PARSE, why, "@ was expected", text, sizeof(text), 0, 0, 0, 0);
}

/* ---- the text form -------------------------------------------------------------------------- */

/* A whole number of at most `limit`, negative allowed, that is all of the slice. */
static int dpari_model_whole(const char *s, size_t n, int64_t limit, int64_t *value)
{
    int64_t v = 0;
    size_t i = n > 0 && s[0] == '-';
    if (i == n) {
        return 0;
    }
    for (; i < n; i++) {
        if (s[i] < '0' || s[i] > '9' || v > INT64_MAX / 10 - 1) {
            return 0;
        }
        v = v * 10 + (s[i] - '0');
    }
    *value = s[0] == '-' ? -v : v;
    return v <= limit;
}

/* "1440x720x100": how many extents, 0 when it is none. */
static int32_t dpari_model_extents(const char *s, size_t n, int64_t *extent, int32_t most)
{
    int32_t k = 0;
    while (n > 0 && k < most) {
        size_t i = 0;
        while (i < n && s[i] != 'x') {
            i++;
        }
        if (!dpari_model_whole(s, i, INT32_MAX, &extent[k]) || extent[k] < 1 || i + 1 == n) {
            return 0;
        }
        k++;
        s += i < n ? i + 1 : i;
        n -= i < n ? i + 1 : i;
    }
    return n == 0 ? k : 0;
}

/* The values below begin at s[k] of the setting [s, s + n), which the sentence quotes whole. */

/* Widths and counts that no model has none of. */
static int64_t dpari_model_least(int32_t key)
{
    return (key >= DPARI_M_LAYERS && key <= DPARI_M_SEQ) || key == DPARI_M_FIELDS ||
           key == DPARI_M_HALO || key == DPARI_M_KERNEL || key == DPARI_M_LEVELS ||
           key == DPARI_M_PATCH || key == DPARI_M_CHANNELS || key == DPARI_M_ELEMENT;
}

static dpar_status dpari_model_integer(dpar_model *m, int32_t key, const char *s, size_t k,
                                       size_t n, dpar_why *why)
{
    int yes_no = key == DPARI_M_TIED || key == DPARI_M_ROTARY || key == DPARI_M_INFERENCE;
    int64_t v = 0, low = key == DPARI_M_BIASES ? -1 : dpari_model_least(key);
    int64_t high = yes_no || key == DPARI_M_BIASES ? 1 : INT32_MAX;
    size_t kilo = key == DPARI_M_SEQ && n - k > 1 && s[n - 1] == 'k'; /* tokens count in 1024 */
    if (dpari_model_whole(s + k, n - k - kilo, INT32_MAX, &v)) {
        v *= kilo ? 1024 : 1;
        if (v >= low && v <= high) {
            *dpari_model_field(m, key) = (int32_t)v;
            return DPAR_OK;
        }
    }
    return dpari_say_word(DPAR_E_PARSE, why, "'@': a whole number of # to # was expected", s,
                          n < 60 ? n : 60, low, high, 0, 0);
}

/* The bound keeps sums over a grid finite. */
static dpar_status dpari_model_real(dpar_model *m, int32_t key, const char *s, size_t k, size_t n,
                                    dpar_why *why)
{
    double v = 0.0;
    double *field = key == DPARI_M_CAPACITY ? &m->capacity
                    : key == DPARI_M_FLOPS  ? &m->flops_per_cell
                                            : &m->bytes_per_cell;
    if (k == n || dpar_text_read(s + k, n - k, &v) != n - k || !(v >= 0.0 && v <= 1e15)) {
        return dpari_model_bad(s, n, why, "'@': a number of 0 to 1e15 was expected");
    }
    if (key == DPARI_M_CAPACITY && v < 1.0) {
        return dpari_model_bad(s, n, why,
                               "'@': the fullest expert holds at least the mean: 1 or more");
    }
    *field = v;
    return DPAR_OK;
}

/* A name of a list, as its place + 1. */
static dpar_status dpari_model_choice(int32_t *field, const char *s, size_t k, size_t n,
                                      const char *(*name)(int32_t), int32_t names, dpar_why *why)
{
    int32_t i;
    for (i = 0; i < names; i++) {
        if (dpari_spells(s + k, n - k, name(i))) {
            *field = i + 1;
            return DPAR_OK;
        }
    }
    return dpari_model_one_of(s, n, why, name, names);
}

static dpar_status dpari_model_image(dpar_model *m, const char *s, size_t k, size_t n,
                                     dpar_why *why)
{
    int64_t side[2];
    int32_t sides = dpari_model_extents(s + k, n - k, side, 2);
    if (sides == 0) {
        return dpari_model_bad(s, n, why,
                               "'@': a side or height x width was expected, as 224 or 720x1440");
    }
    m->image[0] = (int32_t)side[0];
    m->image[1] = (int32_t)side[sides - 1];
    return DPAR_OK;
}

/* "key=value" */
static dpar_status dpari_model_setting(dpar_model *m, const char *s, size_t n, uint64_t *seen,
                                       dpar_why *why)
{
    size_t k = 0;
    int32_t key, best = 0;
    while (k < n && s[k] != '=') {
        k++;
    }
    for (key = 0; key < DPARI_M_KEYS && !dpari_spells(s, k, dpari_model_key[key]); key++) {
        if (dpari_model_unlike(s, k, dpari_model_key[key]) <
            dpari_model_unlike(s, k, dpari_model_key[best])) {
            best = key;
        }
    }
    if (key == DPARI_M_KEYS) {
        return dpari_model_suggest(DPAR_E_PARSE, why, "no setting of a model is called", s, k,
                                   dpari_model_key[best]);
    }
    if (k == n) {
        return dpari_model_bad(s, n, why, "'@' needs a value: key=value");
    }
    if (*seen >> key & 1u) {
        return dpari_model_bad(s, n, why, "'@': given twice");
    }
    *seen |= (uint64_t)1 << key;
    k++;
    switch (key) {
    case DPARI_M_CAPACITY:
    case DPARI_M_FLOPS:
    case DPARI_M_BYTES: return dpari_model_real(m, key, s, k, n, why);
    case DPARI_M_IMAGE: return dpari_model_image(m, s, k, n, why);
    case DPARI_M_ATTENTION:
        return dpari_model_choice(&m->attention, s, k, n, dpar_attention_name, DPAR_ATTENTIONS,
                                  why);
    case DPARI_M_STACK:
        return dpari_model_choice(&m->stack, s, k, n, dpar_stack_name, DPAR_STACKS, why);
    default: return dpari_model_integer(m, key, s, k, n, why);
    }
}

/* Settings with commas between them; at least one. */
static dpar_status dpari_model_settings(dpar_model *m, const char *s, size_t n, dpar_why *why)
{
    size_t at = 0;
    uint64_t seen = 0;
    dpar_status st = DPAR_OK;
    while (st == DPAR_OK && at <= n) {
        size_t k = at;
        while (k < n && s[k] != ',') {
            k++;
        }
        st = k > at ? dpari_model_setting(m, s + at, k - at, &seen, why)
                    : dpari_model_bad(s, n, why, "a setting (key=value) is missing at a comma");
        at = k + 1;
    }
    return st;
}

/* "FAMILY:settings"; a grid begins with its extents. */
static dpar_status dpari_model_family(dpar_model *m, const char *s, size_t colon, size_t n,
                                      dpar_why *why)
{
    size_t at = colon + 1, k = at;
    for (m->family = 0; m->family < DPAR_FAMILIES; m->family++) {
        if (dpari_model_spells(s, colon, dpari_family_name(m->family))) {
            break;
        }
    }
    if (m->family == DPAR_FAMILIES) {
        return dpari_model_one_of(s, colon, why, dpari_family_name, DPAR_FAMILIES);
    }
    if (m->family != DPAR_FAMILY_GRID) {
        return at < n ? dpari_model_settings(m, s + at, n - at, why) : DPAR_OK;
    }
    while (k < n && s[k] != ',') {
        k++;
    }
    m->extent[0] = m->extent[1] = m->extent[2] = 1;
    m->dims = dpari_model_extents(s + at, k - at, m->extent, 3);
    if (m->dims == 0) {
        return dpari_model_bad(s + at, k - at, why,
                               "'@': a grid is 1 to 3 extents of at least 1, as 1440x720x100");
    }
    return k < n ? dpari_model_settings(m, s + k + 1, n - k - 1, why) : DPAR_OK;
}

static dpar_status dpari_model_named(dpar_model *m, const char *s, size_t n, dpar_why *why)
{
    int32_t i, best = 0;
    for (i = 0; i < DPARI_PRESETS; i++) {
        if (dpari_model_spells(s, n, dpari_preset[i].name)) {
            const char *text = dpari_preset[i].text;
            dpar_status st = dpar_model_parse(m, text, dpari_length(text), why);
            dpari_copy_text(m->name, sizeof(m->name), dpari_preset[i].name, 20);
            return st;
        }
        if (dpari_model_unlike(s, n, dpari_preset[i].name) <
            dpari_model_unlike(s, n, dpari_preset[best].name)) {
            best = i;
        }
    }
    return dpari_model_suggest(DPAR_E_UNKNOWN, why, "unknown model", s, n, dpari_preset[best].name);
}

DPAR_API dpar_status dpar_model_preset(dpar_model *m, const char *name, dpar_why *why)
{
    dpar_model fresh;
    dpar_status st;
    dpari_zero(&fresh, sizeof(fresh));
    st = dpari_model_named(&fresh, name, dpari_length(name), why);
    if (st == DPAR_OK) {
        *m = fresh;
    }
    return st;
}

DPAR_API dpar_status dpar_model_parse(dpar_model *model, const char *text, size_t bytes,
                                      dpar_why *why)
{
    dpar_model m;
    dpar_status st;
    size_t first = 0, colon = 0;
    dpari_zero(&m, sizeof(m));
    while (first < bytes && text[first] != ',') {
        first++;
    }
    while (colon < first && text[colon] != ':') {
        colon++;
    }
    if (bytes == 0) {
        return dpari_say(DPAR_E_PARSE, why, "no model: give a preset, FAMILY:settings or a file", 0,
                         0, 0, 0);
    }
    if (colon < first) {
        st = dpari_model_family(&m, text, colon, bytes, why);
        dpari_copy_text(m.name, sizeof(m.name), text, colon);
    } else {
        st = dpari_model_named(&m, text, first, why);
        if (st == DPAR_OK && first < bytes) {
            st = dpari_model_settings(&m, text + first + 1, bytes - first - 1, why);
        }
    }
    if (st == DPAR_OK) {
        *model = m;
    }
    return st;
}

/* ---- config.json ---------------------------------------------------------------------------- */

/* Members that are no field of their own, behind the fields; the last ones are true or false. */
enum {
    DPARI_C_SHARED = DPARI_M_KEYS, /* DeepSeek counts them; each is moe_intermediate_size wide */
    DPARI_C_SIDE,                  /* of a square image */
    DPARI_C_STEP,                  /* experts in every so manieth layer */
    DPARI_C_NEW_KV,                /* Falcon: kv heads, if new_decoder_architecture */
    DPARI_C_EXPANSION,             /* MPT: ffn / hidden */
    DPARI_C_FLAGS,
    DPARI_C_TIED = DPARI_C_FLAGS,
    DPARI_C_NO_BIAS,
    DPARI_C_BIAS,
    DPARI_C_ONE_KV, /* multi-query attention */
    DPARI_C_NEW_DECODER,
    DPARI_C_GATED, /* T5 v1.1 */
    DPARI_C_KEYS
};

/* Members of transformers' config.json and what each one says; the first of a key is the name
 * that a sentence about it begins with. table */
static const struct {
    char member[32];
    int8_t key;
} dpari_config[] = {{"num_hidden_layers", DPARI_M_LAYERS},
                    {"n_layer", DPARI_M_LAYERS},
                    {"num_layers", DPARI_M_LAYERS},
                    {"n_layers", DPARI_M_LAYERS},
                    {"hidden_size", DPARI_M_HIDDEN},
                    {"n_embd", DPARI_M_HIDDEN},
                    {"n_embed", DPARI_M_HIDDEN},
                    {"d_model", DPARI_M_HIDDEN},
                    {"num_attention_heads", DPARI_M_HEADS},
                    {"n_head", DPARI_M_HEADS},
                    {"num_heads", DPARI_M_HEADS},
                    {"n_heads", DPARI_M_HEADS},
                    {"num_key_value_heads", DPARI_M_KV_HEADS},
                    {"head_dim", DPARI_M_HEAD_WIDTH},
                    {"d_kv", DPARI_M_HEAD_WIDTH},
                    {"attention_head_dim", DPARI_M_HEAD_WIDTH},
                    {"intermediate_size", DPARI_M_FFN},
                    {"n_inner", DPARI_M_FFN},
                    {"d_ff", DPARI_M_FFN},
                    {"ffn_dim", DPARI_M_FFN},
                    {"ffn_hidden_size", DPARI_M_FFN},
                    {"vocab_size", DPARI_M_VOCAB},
                    {"max_position_embeddings", DPARI_M_SEQ},
                    {"n_positions", DPARI_M_SEQ},
                    {"max_seq_len", DPARI_M_SEQ},
                    {"seq_length", DPARI_M_SEQ},
                    {"num_local_experts", DPARI_M_EXPERTS},
                    {"num_experts", DPARI_M_EXPERTS},
                    {"n_routed_experts", DPARI_M_EXPERTS},
                    {"num_experts_per_tok", DPARI_M_TOPK},
                    {"moe_intermediate_size", DPARI_M_EXPERT_FFN},
                    {"shared_expert_intermediate_size", DPARI_M_SHARED_FFN},
                    {"first_k_dense_replace", DPARI_M_DENSE_LAYERS},
                    {"q_lora_rank", DPARI_M_Q_LORA},
                    {"kv_lora_rank", DPARI_M_KV_LORA},
                    {"qk_rope_head_dim", DPARI_M_ROPE_WIDTH},
                    {"qk_nope_head_dim", DPARI_M_QK_WIDTH},
                    {"v_head_dim", DPARI_M_V_WIDTH},
                    {"num_decoder_layers", DPARI_M_DECODER_LAYERS},
                    {"patch_size", DPARI_M_PATCH},
                    {"num_channels", DPARI_M_CHANNELS},
                    {"in_channels", DPARI_M_CHANNELS},
                    {"out_channels", DPARI_M_OUT_CHANNELS},
                    {"n_shared_experts", DPARI_C_SHARED},
                    {"image_size", DPARI_C_SIDE},
                    {"sample_size", DPARI_C_SIDE},
                    {"moe_layer_freq", DPARI_C_STEP},
                    {"decoder_sparse_step", DPARI_C_STEP},
                    {"interleave_moe_layer_step", DPARI_C_STEP},
                    {"num_kv_heads", DPARI_C_NEW_KV},
                    {"expansion_ratio", DPARI_C_EXPANSION},
                    {"tie_word_embeddings", DPARI_C_TIED},
                    {"no_bias", DPARI_C_NO_BIAS},
                    {"bias", DPARI_C_BIAS},
                    {"multi_query", DPARI_C_ONE_KV},
                    {"new_decoder_architecture", DPARI_C_NEW_DECODER},
                    {"is_gated_act", DPARI_C_GATED}};

enum { DPARI_CONFIGS = (int)(sizeof(dpari_config) / sizeof(dpari_config[0])) };

/* What a model_type says without a member. */
enum {
    DPARI_CONFIG_TIED = 1,    /* unless it says otherwise */
    DPARI_CONFIG_ROTARY = 2,  /* GPT's block, but no learned positions */
    DPARI_CONFIG_NO_BIAS = 4, /* unless it says otherwise */
    DPARI_CONFIG_ONE_KV = 8,  /* multi-query attention, unless it says otherwise */
    DPARI_CONFIG_SHARES = 16  /* one shared expert, as wide as a routed one */
};

/* model_type and the family that has its shapes. table */
static const struct {
    char name[24];
    int8_t family, says;
} dpari_config_type[] = {
    {"llama", DPAR_FAMILY_LLAMA, 0},
    {"mistral", DPAR_FAMILY_LLAMA, 0},
    {"mixtral", DPAR_FAMILY_LLAMA, 0},
    {"qwen2", DPAR_FAMILY_LLAMA, 0},
    {"qwen2_moe", DPAR_FAMILY_LLAMA, 0},
    {"qwen3", DPAR_FAMILY_LLAMA, 0},
    {"qwen3_moe", DPAR_FAMILY_LLAMA, 0},
    {"deepseek_v2", DPAR_FAMILY_LLAMA, 0},
    {"deepseek_v3", DPAR_FAMILY_LLAMA, 0},
    {"phi3", DPAR_FAMILY_LLAMA, 0},
    {"llama4_text", DPAR_FAMILY_LLAMA, DPARI_CONFIG_SHARES},
    {"gemma", DPAR_FAMILY_LLAMA, DPARI_CONFIG_TIED},
    {"gemma2", DPAR_FAMILY_LLAMA, DPARI_CONFIG_TIED},
    {"gemma3_text", DPAR_FAMILY_LLAMA, DPARI_CONFIG_TIED},
    {"cohere", DPAR_FAMILY_LLAMA, DPARI_CONFIG_TIED},
    {"cohere2", DPAR_FAMILY_LLAMA, DPARI_CONFIG_TIED},
    {"gpt2", DPAR_FAMILY_GPT, DPARI_CONFIG_TIED},
    {"gpt_neo", DPAR_FAMILY_GPT, DPARI_CONFIG_TIED},
    {"opt", DPAR_FAMILY_GPT, DPARI_CONFIG_TIED},
    {"gpt_bigcode", DPAR_FAMILY_GPT, DPARI_CONFIG_TIED | DPARI_CONFIG_ONE_KV},
    {"bloom", DPAR_FAMILY_GPT, DPARI_CONFIG_TIED | DPARI_CONFIG_ROTARY},
    {"mpt", DPAR_FAMILY_GPT, DPARI_CONFIG_TIED | DPARI_CONFIG_ROTARY},
    {"starcoder2", DPAR_FAMILY_GPT, DPARI_CONFIG_TIED | DPARI_CONFIG_ROTARY},
    {"falcon", DPAR_FAMILY_GPT,
     DPARI_CONFIG_TIED | DPARI_CONFIG_ROTARY | DPARI_CONFIG_NO_BIAS | DPARI_CONFIG_ONE_KV},
    {"gpt_neox", DPAR_FAMILY_GPT, DPARI_CONFIG_ROTARY},
    {"nemotron", DPAR_FAMILY_GPT, DPARI_CONFIG_ROTARY | DPARI_CONFIG_NO_BIAS}, /* relu2 */
    {"gptj", DPAR_FAMILY_GPT, DPARI_CONFIG_ROTARY},
    {"codegen", DPAR_FAMILY_GPT, DPARI_CONFIG_ROTARY},
    {"phi", DPAR_FAMILY_GPT, DPARI_CONFIG_ROTARY},
    {"t5", DPAR_FAMILY_T5, DPARI_CONFIG_TIED},
    {"mt5", DPAR_FAMILY_T5, 0},
    {"umt5", DPAR_FAMILY_T5, 0},
    {"vit", DPAR_FAMILY_VIT, 0},
    {"DiTTransformer2DModel", DPAR_FAMILY_DIT, 0}};

enum { DPARI_CONFIG_TYPES = (int)(sizeof(dpari_config_type) / sizeof(dpari_config_type[0])) };

/* What was read so far. */
typedef struct dpari_config_state {
    int32_t value[DPARI_C_KEYS]; /* -1: not said */
    uint64_t inner;              /* bits: said by text_config, which goes before the outer object */
    int32_t inside;              /* 1 inside text_config */
    int32_t inner_type;
    int32_t gated;    /* hidden_act is silu's: gated in every model that has kv heads */
    const char *type; /* model_type, or diffusers' _class_name */
    size_t type_length;
} dpari_config_state;

static dpar_status dpari_config_bad(const dpar_json_item *item, dpar_why *why, const char *form)
{
    return dpari_say_word(DPAR_E_PARSE, why, form, item->key,
                          item->key_length < 60 ? item->key_length : 60, 0, 0, 0, 0);
}

static dpar_status dpari_config_string(dpari_config_state *c, const dpar_json_item *item)
{
    const char *key = item->key;
    size_t n = item->key_length;
    if ((dpari_spells(key, n, "model_type") || dpari_spells(key, n, "_class_name")) &&
        (c->inside || !c->inner_type)) {
        c->type = item->string;
        c->type_length = item->length;
        c->inner_type = c->inside;
    } else if (dpari_spells(key, n, "hidden_act")) {
        c->gated = dpari_spells(item->string, item->length, "silu") ||
                   dpari_spells(item->string, item->length, "swish") ||
                   dpari_spells(item->string, item->length, "swiglu");
    } else if (dpari_spells(key, n, "feed_forward_proj")) {
        c->value[DPARI_C_GATED] = item->length > 6 && dpari_spells(item->string, 6, "gated-");
    }
    return DPAR_OK;
}

/* Reads one known member. */
static dpar_status dpari_config_value(dpari_config_state *c, int32_t key,
                                      const dpar_json_item *item, dpar_why *why)
{
    int flag = item->kind == DPAR_JSON_TRUE || item->kind == DPAR_JSON_FALSE;
    if (item->kind == DPAR_JSON_NULL || (!c->inside && (c->inner >> key & 1u))) {
        return DPAR_OK;
    }
    if (key >= DPARI_C_FLAGS && !flag) {
        return dpari_config_bad(item, why, "config.json: '@' must be true or false");
    }
    if (key < DPARI_C_FLAGS && item->kind != DPAR_JSON_NUMBER) {
        /* of an image they may be lists, and do not matter to a language model */
        return key == DPARI_M_PATCH || key == DPARI_C_SIDE || key == DPARI_M_CHANNELS
                   ? DPAR_OK
                   : dpari_config_bad(item, why, "config.json: '@' must be a number");
    }
    if (!flag && (!(item->number >= 0.0 && item->number < 2147483648.0) ||
                  item->number - (double)(int32_t)item->number > 0.0)) {
        (void)dpari_config_bad(item, why,
                               "config.json: '@' must be a whole number of 0 to 2147483647");
        return DPAR_E_RANGE;
    }
    c->value[key] = flag ? item->kind == DPAR_JSON_TRUE : (int32_t)item->number;
    c->inner |= (uint64_t)(c->inside ? 1 : 0) << key;
    return DPAR_OK;
}

/* The language model of a multi-modal one: a member of the outermost object. */
static int dpari_config_is_inner(const dpar_json_item *item)
{
    return item->kind == DPAR_JSON_OBJECT && item->key != NULL &&
           (dpari_spells(item->key, item->key_length, "text_config") ||
            dpari_spells(item->key, item->key_length, "language_config") ||
            dpari_spells(item->key, item->key_length, "llm_config"));
}

static int dpari_config_begins(const dpar_json_item *item, const char *with)
{
    size_t n = dpari_length(with);
    return item->key_length >= n && dpari_spells(item->key, n, with);
}

static dpar_status dpari_config_member(dpari_config_state *c, const dpar_json_item *item,
                                       dpar_why *why)
{
    int32_t i;
    if (item->depth == 1) {
        c->inside = dpari_config_is_inner(item);
        if (c->inside) {
            return DPAR_OK;
        }
    }
    if (item->key == NULL || item->depth != 1 + c->inside) {
        return DPAR_OK;
    }
    if (dpari_config_begins(item, "mamba_") || dpari_config_begins(item, "ssm_") ||
        dpari_config_begins(item, "linear_num_")) {
        return dpari_config_bad(item, why,
                                "config.json: '@': state-space and linear-attention layers are "
                                "not modelled");
    }
    for (i = 0; i < DPARI_CONFIGS; i++) {
        if (dpari_spells(item->key, item->key_length, dpari_config[i].member)) {
            return dpari_config_value(c, dpari_config[i].key, item, why);
        }
    }
    return item->kind == DPAR_JSON_STRING ? dpari_config_string(c, item) : DPAR_OK;
}

/* "config.json: no num_hidden_layers (or n_layer, num_layers, n_layers): ..." */
static dpar_status dpari_config_missing(int32_t key, dpar_why *why)
{
    char text[160];
    dpar_text t;
    int32_t i, found = 0;
    dpar_text_init(&t, text, sizeof(text));
    for (i = 0; i < DPARI_CONFIGS; i++) {
        if (dpari_config[i].key == key) {
            dpar_text_put(&t, found == 0 ? "" : found == 1 ? " (or " : ", ");
            dpar_text_put(&t, dpari_config[i].member);
            found++;
        }
    }
    dpar_text_put(&t, found > 1 ? ")" : "");
    return dpari_say_word(DPAR_E_PARSE, why,
                          "config.json: @ is missing or 0 (not a transformer's config?)", text,
                          sizeof(text), 0, 0, 0, 0);
}

static dpar_status dpari_config_needed(const dpari_config_state *c, int32_t family, dpar_why *why)
{
    static const int8_t key[2][5] = {
        {DPARI_M_LAYERS, DPARI_M_HIDDEN, DPARI_M_HEADS, DPARI_M_VOCAB, DPARI_M_VOCAB},
        {DPARI_M_LAYERS, DPARI_M_HIDDEN, DPARI_M_HEADS, DPARI_M_PATCH, DPARI_C_SIDE}};
    int32_t sees = family == DPAR_FAMILY_VIT || family == DPAR_FAMILY_DIT, i;
    for (i = 0; i < 5; i++) {
        if (c->value[key[sees][i]] < 1) {
            return dpari_config_missing(key[sees][i], why);
        }
    }
    if (c->value[DPARI_C_STEP] > 1 && c->value[DPARI_M_EXPERTS] > 0) {
        return dpari_say(DPAR_E_UNKNOWN, why,
                         "config.json: experts in one layer of # only are not modelled",
                         c->value[DPARI_C_STEP], 0, 0, 0);
    }
    return DPAR_OK;
}

/* Row of dpari_config_type. Others have Llama's shapes, as most do, if they say kv heads (an
 * encoder or a state-space model does not) and silu (others may not be gated). */
static dpar_status dpari_config_kind(const dpari_config_state *c, int32_t *row, dpar_why *why)
{
    for (*row = 0; *row < DPARI_CONFIG_TYPES; (*row)++) {
        if (dpari_spells(c->type, c->type_length, dpari_config_type[*row].name)) {
            return DPAR_OK;
        }
    }
    *row = 0;
    if (c->type_length == 0 || (c->value[DPARI_M_KV_HEADS] > 0 && c->gated)) {
        return DPAR_OK;
    }
    return dpari_say_word(DPAR_E_UNKNOWN, why,
                          "config.json: model_type '@' is not known (llama, qwen3, mixtral, "
                          "deepseek_v3, gemma2, phi3, gpt2, gpt_neox, opt, falcon, t5, vit ...): "
                          "describe the model as text",
                          c->type, c->type_length < 40 ? c->type_length : 40, 0, 0, 0, 0);
}

/* a * b, 0 (not said) when it is too large. */
static int32_t dpari_config_product(int32_t a, int32_t b)
{
    int64_t v = 0;
    return dpari_mul(a, b, &v) && v <= INT32_MAX ? (int32_t)v : 0;
}

/* Widths that are products or choices of what was said. */
static void dpari_config_widths(dpar_model *m, const dpari_config_state *c, int32_t says)
{
    if (m->ffn == 0 && c->value[DPARI_C_EXPANSION] > 0) {
        m->ffn = dpari_config_product(m->hidden, c->value[DPARI_C_EXPANSION]);
    }
    if (m->family == DPAR_FAMILY_T5 && c->value[DPARI_C_GATED] > 0 && m->ffn < INT32_MAX / 3) {
        m->ffn += m->ffn / 2; /* three matrices in place of two: weights and FLOP are right */
    }
    if (c->value[DPARI_C_SHARED] > 0 && m->shared_ffn == 0) {
        m->shared_ffn = dpari_config_product(c->value[DPARI_C_SHARED], m->expert_ffn);
    }
    if ((says & DPARI_CONFIG_SHARES) && m->experts > 0) {
        m->shared_ffn = m->ffn;
    }
    if (m->kv_lora > 0) { /* latent attention has widths of its own */
        m->head_width = 0;
        m->kv_heads = 0;
    }
    if ((says & DPARI_CONFIG_ONE_KV) && m->kv_heads == 0) {
        m->kv_heads = c->value[DPARI_C_NEW_DECODER] > 0
                          ? (int32_t)dpari_most(c->value[DPARI_C_NEW_KV], 0)
                      : c->value[DPARI_C_ONE_KV] != 0 ? 1
                                                      : 0;
    }
}

/* What was said, and what the architectures leave unsaid. */
static void dpari_config_fill(dpar_model *m, const dpari_config_state *c, int32_t says)
{
    int32_t key;
    for (key = 0; key < DPARI_M_INTEGERS; key++) {
        if (c->value[key] >= 0) {
            *dpari_model_field(m, key) = c->value[key];
        }
    }
    m->tied = c->value[DPARI_C_TIED] >= 0 ? c->value[DPARI_C_TIED] : says & DPARI_CONFIG_TIED;
    m->rotary = (says & DPARI_CONFIG_ROTARY) != 0;
    if (c->value[DPARI_C_NO_BIAS] > 0 ||
        ((says & DPARI_CONFIG_NO_BIAS) && c->value[DPARI_C_BIAS] <= 0)) {
        m->biases = -1;
    }
    dpari_config_widths(m, c, says);
    if (m->family == DPAR_FAMILY_VIT || m->family == DPAR_FAMILY_DIT) {
        m->image[0] = m->image[1] = c->value[DPARI_C_SIDE];
        m->channels = m->channels > 0 ? m->channels : 3;
    }
    if (m->seq == 0) {
        m->seq = m->family == DPAR_FAMILY_T5 ? 512 : m->family == DPAR_FAMILY_GPT ? 2048 : 8192;
    }
    if (m->seq > 8192) {
        m->seq = 8192; /* trained lengths, not the longest that positions allow; --seq says more */
    }
    if (m->family == DPAR_FAMILY_GPT) {
        m->stack = DPAR_STACK_TORCH + 1;
    }
}

static dpar_status dpari_config_finish(dpar_model *model, dpari_config_state *c, dpar_why *why)
{
    dpar_model m;
    int32_t row = 0;
    dpar_status st = dpari_config_kind(c, &row, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(&m, sizeof(m));
    m.family = dpari_config_type[row].family;
    if (m.family == DPAR_FAMILY_DIT && c->value[DPARI_M_HIDDEN] < 0) {
        c->value[DPARI_M_HIDDEN] =
            dpari_config_product(c->value[DPARI_M_HEADS], c->value[DPARI_M_HEAD_WIDTH]);
    }
    st = dpari_config_needed(c, m.family, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (c->type_length > 0) {
        dpari_copy_text(m.name, sizeof(m.name), c->type, c->type_length);
    } else {
        dpari_copy_text(m.name, sizeof(m.name), "config.json", 11);
    }
    dpari_config_fill(&m, c, dpari_config_type[row].says);
    *model = m;
    return DPAR_OK;
}

DPAR_API dpar_status dpar_model_read_config(dpar_model *model, const char *json, size_t bytes,
                                            dpar_why *why)
{
    dpar_json j;
    dpar_json_item item;
    dpari_config_state c;
    dpar_status st;
    int32_t i;
    dpari_zero(&c, sizeof(c));
    for (i = 0; i < DPARI_C_KEYS; i++) {
        c.value[i] = -1;
    }
    c.type = "";
    json += dpari_text_mark(json, bytes, &bytes);
    dpar_json_init(&j, json, bytes);
    do {
        st = dpar_json_next(&j, &item, why);
        if (st == DPAR_OK) {
            st = dpari_config_member(&c, &item, why);
        }
    } while (st == DPAR_OK && item.kind != DPAR_JSON_END);
    return st == DPAR_OK ? dpari_config_finish(model, &c, why) : st;
}

/* ==== cost/strategy.c ==== */

/* ---- names ---------------------------------------------------------------------------------- */

DPAR_API const char *dpar_recompute_name(int32_t recompute)
{
    static const char name[DPAR_RECOMPUTES][12] = {"none", "selective", "full"};
    return recompute >= 0 && recompute < DPAR_RECOMPUTES ? name[recompute] : "?";
}

DPAR_API const char *dpar_schedule_name(int32_t schedule)
{
    static const char name[DPAR_PRICED_SCHEDULES][16] = {
        "gpipe", "1f1b",   "interleaved", "breadth-first", "zb-h1",    "zb-2p",
        "zbv",   "v-half", "v-min",       "dualpipe",      "dualpipev"};
    return schedule >= 0 && schedule < DPAR_PRICED_SCHEDULES ? name[schedule] : "?";
}

DPAR_API const char *dpar_cp_name(int32_t cp_kind)
{
    static const char name[DPAR_CP_KINDS][12] = {"ring", "ulysses", "gather"};
    return cp_kind >= 0 && cp_kind < DPAR_CP_KINDS ? name[cp_kind] : "?";
}

DPAR_API const char *dpar_stack_name(int32_t stack)
{
    static const char name[DPAR_STACKS][12] = {"megatron", "core", "torch", "compiled"};
    return stack >= 0 && stack < DPAR_STACKS ? name[stack] : "?";
}

DPAR_API const char *dpar_attention_name(int32_t attention)
{
    static const char name[DPAR_ATTENTIONS][12] = {"unfused", "flash1", "flash"};
    return attention >= 0 && attention < DPAR_ATTENTIONS ? name[attention] : "?";
}

DPAR_API const char *dpar_rule_name(int32_t rule)
{
    static const char name[DPAR_RULES][16] = {
        "none", "degree", "ranks", "tp-heads", "tp-across-nodes", "pp-layers", "schedule", "cp",
        "ep",   "zero",   "batch", "tiles",    "option",          "offload",   "memory"};
    return rule >= 0 && rule < DPAR_RULES ? name[rule] : "?";
}

/* ---- recipes -------------------------------------------------------------------------------- */

/* weight, gradient, master, moments, gathered, reduced; sources: cost facts 5.3 - ZeRO paper,
 * Megatron's distributed optimizer, DeepSpeed's estimator, FSDP2 mixed precision. */
static const struct {
    char name[16];
    float weight, gradient, master, moments, gathered, reduced;
    int8_t compute;
} dpari_recipe[] = {
    {"megatron", 2, 4, 4, 8, 2, 4, DPAR_BF16},  {"bf16", 2, 4, 4, 8, 2, 4, DPAR_BF16},
    {"zero", 2, 2, 4, 8, 2, 2, DPAR_BF16},      {"fp16", 2, 2, 4, 8, 2, 2, DPAR_BF16},
    {"deepspeed", 2, 6, 4, 8, 2, 2, DPAR_BF16}, {"fp32", 4, 4, 0, 8, 4, 4, DPAR_TF32},
    {"pure-bf16", 2, 2, 0, 4, 2, 2, DPAR_BF16}, {"adam8", 2, 4, 4, 2, 2, 4, DPAR_BF16},
    {"no-master", 2, 2, 0, 8, 2, 2, DPAR_BF16}, {"fsdp", 4, 4, 0, 8, 2, 2, DPAR_BF16},
    {"fp8", 3, 4, 4, 8, 2, 4, DPAR_F8},         {"bf16-moments", 2, 4, 4, 4, 2, 4, DPAR_BF16},
    {"fsdp-fp8", 4, 4, 0, 8, 2, 2, DPAR_F8},    {"zero++", 2, 2, 4, 8, 1, 0.5f, DPAR_BF16}};

enum { DPARI_RECIPES = (int)(sizeof(dpari_recipe) / sizeof(dpari_recipe[0])) };

DPAR_API const char *dpar_recipe_name(int32_t index)
{
    return index >= 0 && index < DPARI_RECIPES ? dpari_recipe[index].name : NULL;
}

DPAR_API dpar_status dpar_recipe_find(dpar_recipe *r, const char *name, dpar_why *why)
{
    int32_t i;
    for (i = 0; i < DPARI_RECIPES; i++) {
        if (dpari_same(name, dpari_recipe[i].name)) {
            dpari_copy_text(r->name, sizeof(r->name), name, sizeof(r->name));
            r->weight = (double)dpari_recipe[i].weight;
            r->gradient = (double)dpari_recipe[i].gradient;
            r->master = (double)dpari_recipe[i].master;
            r->moments = (double)dpari_recipe[i].moments;
            r->gathered = (double)dpari_recipe[i].gathered;
            r->reduced = (double)dpari_recipe[i].reduced;
            r->compute = dpari_recipe[i].compute;
            return DPAR_OK;
        }
    }
    return dpari_say_word(DPAR_E_UNKNOWN, why,
                          "unknown precision '@'; one of megatron (= bf16), zero (= fp16), "
                          "deepspeed, fp32, pure-bf16, adam8, no-master, fsdp, fp8, fsdp-fp8, "
                          "bf16-moments, zero++",
                          name, dpari_length(name), 0, 0, 0, 0);
}

/* ---- the text form -------------------------------------------------------------------------- */

DPAR_API dpar_strategy dpar_strategy_default(void)
{
    dpar_strategy s;
    dpari_zero(&s, sizeof(s));
    s.tp = s.cp = s.dp = s.pp = s.vp = s.ep = s.etp = 1;
    s.micro_batch = s.micro_batches = 1;
    s.schedule = DPAR_1F1B;
    s.overlap = DPAR_OVERLAP_DEFAULT;
    s.tiles[0] = s.tiles[1] = s.tiles[2] = 1;
    return s;
}

static const char dpari_field_name[DPAR_FIELDS][20] = {"tp",          "sp",
                                                       "cp",          "cp_kind",
                                                       "dp",          "shard",
                                                       "zero",        "pp",
                                                       "vp",          "schedule",
                                                       "ep",          "etp",
                                                       "micro_batch", "micro_batches",
                                                       "recompute",   "recompute_layers",
                                                       "offload",     "overlap",
                                                       "tiles"};

static int32_t dpari_field_find(const char *name, size_t n)
{
    int32_t i;
    for (i = 0; i < DPAR_FIELDS; i++) {
        if (dpari_spells(name, n, dpari_field_name[i])) {
            return i;
        }
    }
    if (dpari_spells(name, n, "mbs")) {
        return DPAR_FIELD_MICRO_BATCH;
    }
    return dpari_spells(name, n, "m") ? DPAR_FIELD_MICRO_BATCHES : -1;
}

static int32_t *dpari_field_at(dpar_strategy *s, int32_t field)
{
    switch (field) {
    case DPAR_FIELD_TP: return &s->tp;
    case DPAR_FIELD_SP: return &s->sp;
    case DPAR_FIELD_CP: return &s->cp;
    case DPAR_FIELD_DP: return &s->dp;
    case DPAR_FIELD_SHARD: return &s->shard;
    case DPAR_FIELD_ZERO: return &s->zero;
    case DPAR_FIELD_PP: return &s->pp;
    case DPAR_FIELD_VP: return &s->vp;
    case DPAR_FIELD_EP: return &s->ep;
    case DPAR_FIELD_ETP: return &s->etp;
    case DPAR_FIELD_MICRO_BATCH: return &s->micro_batch;
    case DPAR_FIELD_MICRO_BATCHES: return &s->micro_batches;
    default: return &s->recompute_layers;
    }
}

/* A whole number 0 .. 2^31-1 that is all of the slice; -1 otherwise. */
static int32_t dpari_read_count(const char *s, size_t n)
{
    int64_t v = 0;
    size_t i;
    for (i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9' || v > INT32_MAX / 10) {
            return -1;
        }
        v = v * 10 + (s[i] - '0');
    }
    return n > 0 && v <= INT32_MAX ? (int32_t)v : -1;
}

/* Names joined by '+', each a bit: "optimizer+activations". -1 for an unknown one. */
static int32_t dpari_read_bits(const char *s, size_t n, int32_t offload)
{
    static const char name[2][5][12] = {{"dp", "tp", "pp", "default", "none"},
                                        {"optimizer", "weights", "activations", "nvme", "none"}};
    static const int8_t bit[5] = {1, 2, 4, 8, 0};
    int32_t bits = 0, i;
    if (n == 0) {
        return -1;
    }
    while (n > 0) {
        size_t k = 0;
        while (k < n && s[k] != '+') {
            k++;
        }
        for (i = 0; i < 5 && !(k > 0 && dpari_spells(s, k, name[offload][i])); i++) {
        }
        if (i == 5) {
            return -1;
        }
        bits |= offload && i == 3 ? DPAR_OFFLOAD_NVME | DPAR_OFFLOAD_OPTIMIZER : bit[i];
        s += k < n ? k + 1 : k;
        n -= k < n ? k + 1 : k;
    }
    return bits;
}

/* "2x4" into tiles. */
static int32_t dpari_read_tiles(const char *s, size_t n, int32_t *tiles)
{
    int32_t axis = 0;
    tiles[0] = tiles[1] = tiles[2] = 1;
    while (n > 0) {
        size_t k = 0;
        while (k < n && s[k] != 'x') {
            k++;
        }
        if (axis == 3 || (tiles[axis] = dpari_read_count(s, k)) < 1) {
            return -1;
        }
        axis++;
        s += k < n ? k + 1 : k;
        n -= k < n ? k + 1 : k;
    }
    return axis > 0 ? 0 : -1;
}

static int32_t dpari_read_name(const char *s, size_t n, const char *(*name)(int32_t), int32_t names)
{
    int32_t i;
    for (i = 0; i < names; i++) {
        if (dpari_spells(s, n, name(i))) {
            return i;
        }
    }
    return -1;
}

/* Reads the value of one field; 0 when it is not of the field's kind. */
static int dpari_read_field(dpar_strategy *s, int32_t field, const char *v, size_t n)
{
    int32_t *at;
    switch (field) {
    case DPAR_FIELD_CP_KIND:
        return (s->cp_kind = dpari_read_name(v, n, dpar_cp_name, DPAR_CP_KINDS)) >= 0;
    case DPAR_FIELD_SCHEDULE:
        return (s->schedule = dpari_read_name(v, n, dpar_schedule_name, DPAR_PRICED_SCHEDULES)) >=
               0;
    case DPAR_FIELD_RECOMPUTE:
        return (s->recompute = dpari_read_name(v, n, dpar_recompute_name, DPAR_RECOMPUTES)) >= 0;
    case DPAR_FIELD_OFFLOAD: return (s->offload = dpari_read_bits(v, n, 1)) >= 0;
    case DPAR_FIELD_OVERLAP: return (s->overlap = dpari_read_bits(v, n, 0)) >= 0;
    case DPAR_FIELD_TILES: return dpari_read_tiles(v, n, s->tiles) == 0;
    default: at = dpari_field_at(s, field); return (*at = dpari_read_count(v, n)) >= 0;
    }
}

DPAR_API dpar_status dpar_strategy_parse(dpar_strategy *strategy, const char *text, size_t bytes,
                                         uint32_t *named, dpar_why *why)
{
    dpar_strategy s = *strategy;
    uint32_t seen = 0;
    size_t at = 0;
    while (at < bytes) {
        size_t name = at, eq, end;
        int32_t field;
        while (at < bytes && text[at] != '=' && text[at] != ',') {
            at++;
        }
        eq = at;
        while (at < bytes && text[at] != ',') {
            at++;
        }
        end = at;
        at += at < bytes;
        field = dpari_field_find(text + name, eq - name);
        if (field < 0 || eq == end) {
            return dpari_say_word(DPAR_E_PARSE, why,
                                  "'@' is no strategy setting; known: tp sp cp cp_kind dp shard "
                                  "zero pp vp schedule ep etp mbs m recompute recompute_layers "
                                  "offload overlap tiles, each as name=value",
                                  text + name, end - name, 0, 0, 0, 0);
        }
        if (seen >> field & 1u) {
            return dpari_say_word(DPAR_E_PARSE, why, "'@': given twice", text + name, end - name, 0,
                                  0, 0, 0);
        }
        if (!dpari_read_field(&s, field, text + eq + 1, end - eq - 1)) {
            return dpari_say_word(DPAR_E_PARSE, why, "'@': the value is not one that exists",
                                  text + name, end - name, 0, 0, 0, 0);
        }
        seen |= (uint32_t)1 << field;
    }
    if ((seen & ((uint32_t)1 << DPAR_FIELD_VP)) && s.vp > 1 &&
        !(seen & ((uint32_t)1 << DPAR_FIELD_SCHEDULE)) && s.schedule == DPAR_1F1B) {
        s.schedule = DPAR_INTERLEAVED;
    }
    *strategy = s;
    if (named != NULL) {
        *named = seen;
    }
    return DPAR_OK;
}

/* ---- legality --------------------------------------------------------------------------------*/

DPAR_API int32_t dpar_strategy_ranks(const dpar_strategy *s)
{
    int64_t n = 1;
    int32_t i, ok = s->tp > 0 && s->cp > 0 && s->dp > 0 && s->pp > 0;
    ok = ok && dpari_mul(n, s->tp, &n) && dpari_mul(n, s->cp, &n) && n <= INT32_MAX;
    ok = ok && dpari_mul(n, s->dp, &n) && n <= INT32_MAX && dpari_mul(n, s->pp, &n);
    for (i = 0; i < 3; i++) {
        ok = ok && n <= INT32_MAX && s->tiles[i] > 0 && dpari_mul(n, s->tiles[i], &n);
    }
    return ok && n <= INT32_MAX ? (int32_t)n : 0;
}

static dpar_status dpari_refuse(int32_t *rule, int32_t which, dpar_why *why, const char *form,
                                int64_t a, int64_t b, int64_t c)
{
    if (rule != NULL) {
        *rule = which;
    }
    return dpari_say(which == DPAR_RULE_DEGREE ? DPAR_E_ARG : DPAR_E_DIVIDE, why, form, a, b, c, 0);
}

static dpar_status dpari_check_degrees(const dpar_strategy *s, int32_t *rule, dpar_why *why)
{
    if (s->tp < 1 || s->cp < 1 || s->dp < 1 || s->pp < 1 || s->vp < 1 || s->ep < 1 || s->etp < 1) {
        return dpari_refuse(rule, DPAR_RULE_DEGREE, why,
                            "every degree must be at least 1: tp=#, pp=#, dp=#", s->tp, s->pp,
                            s->dp);
    }
    if (s->micro_batch < 1 || s->micro_batches < 1 || s->recompute_layers < 0 || s->shard < 0) {
        return dpari_refuse(rule, DPAR_RULE_DEGREE, why,
                            "mbs=#, m=# must be at least 1 and shard=# at least 0", s->micro_batch,
                            s->micro_batches, s->shard);
    }
    if (s->zero < 0 || s->zero > 3 || s->sp < 0 || s->sp > 1 || s->recompute < 0 ||
        s->recompute >= DPAR_RECOMPUTES || s->schedule < 0 ||
        s->schedule >= DPAR_PRICED_SCHEDULES || s->cp_kind < 0 || s->cp_kind >= DPAR_CP_KINDS) {
        return dpari_refuse(rule, DPAR_RULE_DEGREE, why,
                            "zero=# is 0 to 3, sp=# 0 or 1; recompute, schedule and cp_kind by "
                            "name",
                            s->zero, s->sp, 0);
    }
    return DPAR_OK;
}

DPARI_API int dpari_sequence_cuts(const dpar_workload *w, const dpar_strategy *s)
{
    int64_t parts = (int64_t)s->tp * s->cp;
    return w->heads > 0 && parts > 0 && (int64_t)w->tokens % parts == 0;
}

static dpar_status dpari_check_tensor(const dpar_workload *w, const dpar_strategy *s, int32_t *rule,
                                      dpar_why *why)
{
    if (s->tp > 1 && w->heads > 0 && w->heads % s->tp != 0) {
        return dpari_refuse(rule, DPAR_RULE_TP_HEADS, why, "tp=# does not divide # attention heads",
                            s->tp, w->heads, 0);
    }
    if (s->tp > 1 && w->kv_heads > 0 && w->kv_heads % s->tp != 0 && s->tp % w->kv_heads != 0) {
        return dpari_refuse(rule, DPAR_RULE_TP_HEADS, why,
                            "tp=# and # key-value heads: neither divides the other", s->tp,
                            w->kv_heads, 0);
    }
    if (s->tp > 1 && (w->hidden < 1 || w->hidden % s->tp != 0)) {
        return dpari_refuse(rule, DPAR_RULE_TP_HEADS, why, "tp=# does not divide hidden=#", s->tp,
                            w->hidden, 0);
    }
    if (s->sp && (s->tp == 1 || w->heads == 0)) {
        return dpari_refuse(rule, DPAR_RULE_OPTION, why,
                            "sequence parallelism cuts what tensor parallelism leaves whole: it "
                            "needs tp > 1 and a sequence (tp=#)",
                            s->tp, 0, 0);
    }
    if (s->sp && !dpari_sequence_cuts(w, s)) {
        return dpari_refuse(rule, DPAR_RULE_OPTION, why,
                            "sp=1: tp=# x cp=# does not divide # tokens", s->tp, s->cp,
                            (int64_t)w->tokens);
    }
    return DPAR_OK;
}

static int dpari_v_shaped(int32_t schedule)
{
    return schedule == DPAR_ZBV || schedule == DPAR_V_HALF || schedule == DPAR_V_MIN ||
           schedule == DPAR_DUALPIPEV;
}

static dpar_status dpari_check_pipeline(const dpar_workload *w, const dpar_strategy *s,
                                        int32_t *rule, dpar_why *why)
{
    int64_t chunks = (int64_t)s->pp * s->vp;
    int looped = s->schedule == DPAR_INTERLEAVED || s->schedule == DPAR_BREADTH_FIRST;
    if (s->recompute != DPAR_RECOMPUTE_NONE && !w->trains) {
        return dpari_refuse(rule, DPAR_RULE_OPTION, why,
                            "nothing is recomputed where nothing is trained", 0, 0, 0);
    }
    if (s->recompute_layers > 0 &&
        (s->recompute != DPAR_RECOMPUTE_FULL || s->recompute_layers > w->blocks)) {
        return dpari_refuse(rule, DPAR_RULE_OPTION, why,
                            "recompute_layers=# needs recompute=full and as many of the # layers",
                            s->recompute_layers, w->blocks, 0);
    }
    if (s->pp > 1 && chunks > w->blocks) {
        return dpari_refuse(rule, DPAR_RULE_PP_LAYERS, why,
                            "pp=# x vp=# needs as many layers, the model has #", s->pp, s->vp,
                            w->blocks);
    }
    if (s->vp > 1 && (s->pp == 1 || !(looped || (dpari_v_shaped(s->schedule) && s->vp == 2)))) {
        return dpari_refuse(rule, DPAR_RULE_SCHEDULE, why,
                            "vp=# needs pp > 1 (pp=#) and an interleaved, breadth-first or, with "
                            "vp=2, V schedule",
                            s->vp, s->pp, 0);
    }
    if (s->pp > 1 && dpari_v_shaped(s->schedule) && s->vp != 2) {
        return dpari_refuse(rule, DPAR_RULE_SCHEDULE, why,
                            "a V schedule has two chunks a rank: vp=2, not #", s->vp, 0, 0);
    }
    if (s->schedule == DPAR_INTERLEAVED && s->pp > 1 &&
        (s->vp < 2 || s->micro_batches % dpari_most(1, s->micro_batches / s->pp) != 0)) {
        return dpari_refuse(rule, DPAR_RULE_SCHEDULE, why,
                            "interleaving needs vp >= 2 (vp=#) and micro-batches m=# in equal "
                            "rounds of at least pp=#",
                            s->vp, s->micro_batches, s->pp);
    }
    if (s->pp > 1 && (s->schedule == DPAR_DUALPIPE || s->schedule == DPAR_DUALPIPEV) &&
        (s->micro_batches < 2 * s->pp ||
         (s->schedule == DPAR_DUALPIPE && (s->pp % 2 != 0 || s->micro_batches % 2 != 0)))) {
        return dpari_refuse(rule, DPAR_RULE_SCHEDULE, why,
                            "DualPipe needs m >= 2 pp, and even numbers of both: m=#, pp=#",
                            s->micro_batches, s->pp, 0);
    }
    return DPAR_OK;
}

static dpar_status dpari_check_context(const dpar_workload *w, const dpar_strategy *s,
                                       int32_t *rule, dpar_why *why)
{
    int64_t tokens = (int64_t)w->tokens;
    if (s->cp > 1 && w->heads == 0) {
        return dpari_refuse(rule, DPAR_RULE_CP, why, "cp=#: the model has no sequence", s->cp, 0,
                            0);
    }
    if (s->cp > 1 && s->cp_kind == DPAR_CP_RING && tokens % (2 * (int64_t)s->cp) != 0) {
        return dpari_refuse(rule, DPAR_RULE_CP, why, "2 cp = # does not divide # tokens",
                            2 * (int64_t)s->cp, tokens, 0);
    }
    if (s->cp > 1 && tokens % s->cp != 0) {
        return dpari_refuse(rule, DPAR_RULE_CP, why, "cp=# does not divide # tokens", s->cp, tokens,
                            0);
    }
    if (s->cp > 1 && s->cp_kind == DPAR_CP_ULYSSES && (w->heads / s->tp) % s->cp != 0) {
        return dpari_refuse(rule, DPAR_RULE_CP, why,
                            "Ulysses: cp=# does not divide the # heads that tp=# leaves", s->cp,
                            w->heads / s->tp, s->tp);
    }
    return DPAR_OK;
}

static dpar_status dpari_check_experts(const dpar_workload *w, const dpar_strategy *s,
                                       int32_t *rule, dpar_why *why)
{
    int64_t ranks = (int64_t)s->tp * s->cp * s->dp;
    if ((s->ep > 1 || s->etp > 1) && w->experts == 0) {
        return dpari_refuse(rule, DPAR_RULE_EP, why, "ep=#, etp=#: the model has no experts", s->ep,
                            s->etp, 0);
    }
    if (s->ep > 1 && w->experts % s->ep != 0) {
        return dpari_refuse(rule, DPAR_RULE_EP, why, "ep=# does not divide # experts", s->ep,
                            w->experts, 0);
    }
    if ((s->ep > 1 || s->etp > 1) && ranks % ((int64_t)s->ep * s->etp) != 0) {
        return dpari_refuse(rule, DPAR_RULE_EP, why,
                            "ep x etp = # does not divide the # ranks of a stage (tp cp dp)",
                            (int64_t)s->ep * s->etp, ranks, 0);
    }
    if (w->experts > 0 && s->tp > 1 && s->sp == 0) { /* else every TP rank routes every token */
        return dpari_refuse(rule, DPAR_RULE_EP, why,
                            "tp=# with # experts needs sequence parallelism: sp=1", s->tp,
                            w->experts, 0);
    }
    return DPAR_OK;
}

static dpar_status dpari_check_tiles(const dpar_workload *w, const dpar_strategy *s, int32_t *rule,
                                     dpar_why *why)
{
    int32_t i, k;
    if (s->tiles[0] < 1 || s->tiles[1] < 1 || s->tiles[2] < 1) {
        return dpari_refuse(rule, DPAR_RULE_DEGREE, why, "tiles must be at least 1: #x#x#",
                            s->tiles[0], s->tiles[1], s->tiles[2]);
    }
    for (i = 0; i < 3; i++) {
        if (s->tiles[i] > 1 && i >= w->dims) {
            return dpari_refuse(rule, DPAR_RULE_TILES, why,
                                "# tiles along axis #, but the model's grid has # axes",
                                s->tiles[i], i, w->dims);
        }
        for (k = 0; s->tiles[i] > 1 && k < w->layers; k++) {
            int64_t cells = w->extent[i] / w->layer[k].shrink / s->tiles[i];
            if (w->layer[k].exchanges > 0 && cells < dpari_most(2, w->layer[k].reach)) {
                return dpari_refuse(rule, DPAR_RULE_TILES, why,
                                    "# tiles of # cells along an axis leave # where the grid is "
                                    "coarsest: a tile must hold its neighbour's halo",
                                    s->tiles[i], w->extent[i], cells);
            }
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_check_data(const dpar_job *job, const dpar_strategy *s,
                                    int64_t global_batch, int32_t *rule, dpar_why *why)
{
    int64_t batch = 0;
    if (s->shard > 0 && s->dp % s->shard != 0) {
        return dpari_refuse(rule, DPAR_RULE_ZERO, why, "shard=# does not divide dp=#", s->shard,
                            s->dp, 0);
    }
    if (!dpari_mul((int64_t)s->dp * s->micro_batch, s->micro_batches, &batch)) {
        return dpari_refuse(rule, DPAR_RULE_BATCH, why, "dp=# x mbs=# x m=# is too large", s->dp,
                            s->micro_batch, s->micro_batches);
    }
    if (global_batch > 0 && batch != global_batch) {
        return dpari_refuse(rule, DPAR_RULE_BATCH, why,
                            "dp x mbs x m = # samples a step, the global batch is #", batch,
                            global_batch, 0);
    }
    if (s->offload != 0 && !(job->cluster->host_bytes > 0.0)) {
        return dpari_refuse(rule, DPAR_RULE_OFFLOAD, why,
                            "offload needs the host's memory: give host=GB of the cluster", 0, 0,
                            0);
    }
    if (s->offload < 0 || s->offload > 15 ||
        ((s->offload & DPAR_OFFLOAD_NVME) &&
         (!(job->cluster->nvme_Bps > 0.0) || !(s->offload & DPAR_OFFLOAD_OPTIMIZER)))) {
        return dpari_refuse(rule, DPAR_RULE_OFFLOAD, why,
                            "offload to NVMe is of the optimizer and needs nvme=GB/s of a node", 0,
                            0, 0);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_strategy_check(const dpar_job *job, const dpar_strategy *s,
                                         int64_t global_batch, int32_t *rule, dpar_why *why)
{
    const dpar_workload *w = job->work;
    int32_t ranks = dpar_strategy_ranks(s), gpus = dpar_cluster_gpus(job->cluster);
    dpar_status st = dpari_check_degrees(s, rule, why);
    if (st == DPAR_OK) {
        st = dpari_check_tiles(w, s, rule, why);
    }
    if (st == DPAR_OK && ranks != gpus) {
        st = ranks > 0 ? dpari_refuse(rule, DPAR_RULE_RANKS, why,
                                      "tp x cp x dp x pp x tiles = # ranks, the cluster has # GPUs",
                                      ranks, gpus, 0)
                       : dpari_refuse(rule, DPAR_RULE_RANKS, why,
                                      "tp x cp x dp x pp x tiles are more than 2^31 - 1 ranks, the "
                                      "cluster has # GPUs",
                                      gpus, 0, 0);
    }
    if (st == DPAR_OK) {
        st = dpari_check_tensor(w, s, rule, why);
    }
    if (st == DPAR_OK) {
        st = dpari_check_pipeline(w, s, rule, why);
    }
    if (st == DPAR_OK) {
        st = dpari_check_context(w, s, rule, why);
    }
    if (st == DPAR_OK) {
        st = dpari_check_experts(w, s, rule, why);
    }
    if (st == DPAR_OK) {
        st = dpari_check_data(job, s, global_batch, rule, why);
    }
    if (st == DPAR_OK && rule != NULL) {
        *rule = DPAR_RULE_NONE;
    }
    return st;
}

/* ==== cost/memory.c ==== */

DPAR_API const char *dpar_memory_name(int32_t term)
{
    static const char name[DPAR_MEMS][16] = {
        "weights", "gradients", "master",    "optimizer", "activations", "logits",       "gathered",
        "buckets", "halo",      "transient", "comm",      "context",     "fragmentation"};
    return term >= 0 && term < DPAR_MEMS ? name[term] : "?";
}

DPAR_API double dpar_zero_bytes(const dpar_recipe *r, double params, int32_t stage, int32_t d)
{
    double n = d > 0 ? d : 1;
    return params * (r->weight / (stage >= 3 ? n : 1.0) + r->gradient / (stage >= 2 ? n : 1.0) +
                     (r->master + r->moments) / (stage >= 1 ? n : 1.0));
}

/* Rules of each schedule as published and as an event simulation of it counts them; full-stage
 * units: a chunk of v is 1/v. GPipe and breadth-first keep all; 1F1B p - r; interleaved
 * ((v-1) p + 2 (p-1-r) + 1) / v; zero-bubble H1 and ZBV p on every rank, 2P twice that; V-Half
 * floor((p+2)/2), V-Min floor((p+4)/3); DualPipe p + 1, DualPipeV p + 1/2. */
DPAR_API double dpar_in_flight(int32_t schedule, int32_t pp, int32_t vp, int32_t rank,
                               int32_t micro_batches)
{
    double p = pp, v = vp, r = rank, m = micro_batches, n;
    if (pp < 1 || vp < 1 || rank < 0 || rank >= pp || micro_batches < 1) {
        return 0.0;
    }
    switch (pp > 1 ? schedule : DPAR_1F1B) {
    case DPAR_GPIPE:
    case DPAR_BREADTH_FIRST: return m;
    case DPAR_INTERLEAVED: n = ((v - 1.0) * p + 2.0 * (p - 1.0 - r) + 1.0) / v; break;
    case DPAR_ZB_H1:
    case DPAR_ZBV: n = p; break;
    case DPAR_ZB_2P: n = 2.0 * p; break;
    case DPAR_V_HALF: n = (double)((pp + 2) / 2); break;
    case DPAR_V_MIN: n = (double)((pp + 4) / 3); break;
    case DPAR_DUALPIPE: n = p + 1.0; break;
    case DPAR_DUALPIPEV: n = p + 0.5; break;
    default: n = p - r; break;
    }
    return dpari_leastf(n, m);
}

/* ---- terms ---------------------------------------------------------------------------------- */

DPARI_API double dpari_zero_ranks(const dpar_strategy *s)
{
    return (double)(s->shard > 0 ? s->shard : s->dp) * s->cp * s->tiles[0] * s->tiles[1] *
           s->tiles[2];
}

/* Divisors of weights, gradients and optimizer state under a ZeRO stage. Context-parallel ranks and
 * the tiles of a sample hold the same weights, so they share the state too (Megatron's distributed
 * optimizer). */
static void dpari_memory_states(const dpar_job *job, const dpar_strategy *s, const dpari_stage *st,
                                dpar_memory *m)
{
    const dpar_recipe *r = &job->recipe;
    double d = dpari_zero_ranks(s);
    double experts = dpari_mostf(1.0, d * s->tp / ((double)s->ep * s->etp));
    double dense = st->params, moe = st->expert_params;
    double state = s->zero >= 1 ? dense / d + moe / experts : dense + moe;
    double grads = s->zero >= 2 ? dense / d + moe / experts : dense + moe;
    double held = s->zero >= 3 ? dense / d + moe / experts : dense + moe;
    int on_host = (s->offload & DPAR_OFFLOAD_OPTIMIZER) != 0;
    if (s->schedule == DPAR_DUALPIPE && s->pp > 1) { /* a rank runs two stages, from both ends */
        held *= 2.0;
        grads *= 2.0;
        state *= s->zero >= 1 ? 1.0 : 2.0;
    }
    m->params = dense + moe;
    m->term[DPAR_MEM_WEIGHTS] = held * r->weight;
    if (!job->work->trains) {
        return;
    }
    m->term[DPAR_MEM_GRADIENTS] = grads * r->gradient;
    m->term[DPAR_MEM_MASTER] = on_host ? 0.0 : state * r->master;
    m->term[DPAR_MEM_OPTIMIZER] = on_host ? 0.0 : state * r->moments;
    m->host = on_host && !(s->offload & DPAR_OFFLOAD_NVME) ? state * (r->master + r->moments) : 0.0;
    if (s->offload & DPAR_OFFLOAD_WEIGHTS) { /* two layers at a time stay on the device */
        m->host += m->term[DPAR_MEM_WEIGHTS];
        m->term[DPAR_MEM_WEIGHTS] =
            dpari_leastf(m->term[DPAR_MEM_WEIGHTS], 2.0 * st->largest * r->weight);
    }
}

static void dpari_memory_activations(const dpar_job *job, const dpar_strategy *s,
                                     const dpari_stage *st, dpar_memory *m)
{
    double flying = dpar_in_flight(s->schedule, s->pp, s->vp, st->rank, s->micro_batches);
    m->term[DPAR_MEM_ACTIVATIONS] = st->kept * (job->work->trains ? flying : 1.0);
    if (s->offload & DPAR_OFFLOAD_ACTIVATIONS) { /* one micro-batch and two layers stay */
        double stay = dpari_leastf(m->term[DPAR_MEM_ACTIVATIONS],
                                   2.0 * st->kept / dpari_mostf(1.0, st->layers));
        m->host += m->term[DPAR_MEM_ACTIVATIONS] - stay;
        m->term[DPAR_MEM_ACTIVATIONS] = stay;
    }
}

/* Units gathered by ZeRO-3 (this one and the prefetched next), their gradients before they are
 * scattered, and the buckets of an overlapped reduction. */
static void dpari_memory_buffers(const dpar_job *job, const dpar_strategy *s, const dpari_stage *st,
                                 dpar_memory *m)
{
    const dpar_recipe *r = &job->recipe;
    double unit = st->largest;
    if (s->zero >= 3 && dpari_zero_ranks(s) > 1.0) {
        /* computed with in 16 bits at least, in however many they travel */
        m->term[DPAR_MEM_GATHERED] = 2.0 * unit * dpari_mostf(2.0, r->gathered);
        m->term[DPAR_MEM_BUCKETS] = unit * dpari_mostf(2.0, r->gathered);
    } else if (s->dp > 1 && job->work->stack >= DPAR_STACK_TORCH) {
        /* PyTorch DDP's buckets of 25 MB: a copy of the gradients as they travel */
        m->term[DPAR_MEM_BUCKETS] = s->zero == 0 ? m->params * r->reduced : 4.0 * 25e6;
    }
}

static void dpari_memory_halo(const dpar_job *job, const dpar_strategy *s, dpar_memory *m)
{
    const dpar_workload *w = job->work;
    double bytes = 0.0;
    int32_t i, k, j;
    for (i = 0; i < w->layers; i++) {
        double cells = 0.0;
        for (k = 0; k < w->dims; k++) {
            double face = 1.0;
            for (j = 0; j < w->dims; j++) {
                face *= j == k ? 1.0 : (double)w->extent[j] / w->layer[i].shrink / s->tiles[j];
            }
            cells += s->tiles[k] > 1 ? 2.0 * face : 0.0;
        }
        bytes += cells * w->layer[i].reach_bytes * w->layer[i].count;
    }
    m->term[DPAR_MEM_HALO] = 2.0 * bytes * s->micro_batch; /* received cells and a send buffer */
}

/* TransformerEngine hands autograd a dummy weight gradient when it accumulates in place and keeps
 * one of each shape: of every block's products (experts share one shape), and of the head's. */
static double dpari_memory_dummies(const dpar_job *job, const dpar_strategy *s, int32_t kind)
{
    const dpar_workload *w = job->work;
    double sum = 0.0;
    int32_t i, k;
    if (w->stack != DPAR_STACK_CORE || !w->trains || s->zero >= 3) {
        return 0.0;
    }
    for (i = 0; i < w->layers; i++) {
        const dpar_layer *l = &w->layer[i];
        for (k = 0; l->kind == kind && k < l->ops; k++) {
            const dpar_op *op = &w->op[l->first + k];
            double cut = op->cut >= DPAR_CUT_EXPERT ? (double)w->experts * s->etp
                         : op->cut == DPAR_CUT_NONE ? 1.0
                                                    : s->tp;
            sum += op->kind == DPAR_OP_STREAM ? 0.0 : 2.0 * op->params / cut;
        }
    }
    return sum;
}

/* Alive at the peak, in a block's backward: its gradients, every dummy so far, and without a
 * pipeline the logits too (pipelines free a stage's output once it is sent: there the loss is a
 * peak of its own). */
static void dpari_memory_peak(const dpar_job *job, const dpar_strategy *s, const dpari_stage *st,
                              dpar_memory *m)
{
    double head = st->logits > 0.0 ? dpari_memory_dummies(job, s, DPAR_LAYER_HEAD) : 0.0;
    double block = st->transient + dpari_memory_dummies(job, s, DPAR_LAYER_BLOCK) + head;
    if (s->pp > 1) { /* an activation received and a gradient to send */
        block += 2.0 * st->boundary;
    }
    m->term[DPAR_MEM_LOGITS] = s->pp > 1 ? dpari_mostf(0.0, st->logits + head - block) : st->logits;
    m->term[DPAR_MEM_TRANSIENT] = block;
}

static void dpari_memory_stage(const dpar_job *job, const dpar_strategy *s, const dpari_stage *st,
                               dpar_memory *m)
{
    int32_t i, ranks = dpar_strategy_ranks(s);
    double sum = 0.0;
    dpari_zero(m, sizeof(*m));
    m->worst = st->rank;
    dpari_memory_states(job, s, st, m);
    dpari_memory_activations(job, s, st, m);
    dpari_memory_buffers(job, s, st, m);
    dpari_memory_halo(job, s, m);
    dpari_memory_peak(job, s, st, m);
    for (i = 0; i < DPAR_MEM_COMM; i++) {
        sum += m->term[i];
    }
    m->allocated = sum;
    m->term[DPAR_MEM_COMM] = ranks > 1 ? 0.6e9 : 0.0;
    m->term[DPAR_MEM_CONTEXT] = 0.6e9;
    m->term[DPAR_MEM_FRAGMENTATION] = job->work->trains ? 0.05 * sum : 0.0;
    for (i = DPAR_MEM_COMM; i < DPAR_MEMS; i++) {
        sum += m->term[i];
    }
    m->total = sum;
    m->lower = sum - m->term[DPAR_MEM_FRAGMENTATION] * 0.4; /* 3 % */
    m->upper = sum + m->term[DPAR_MEM_FRAGMENTATION];       /* 10 % */
}

DPARI_API void dpari_price_memory(const dpar_job *job, const dpar_strategy *s,
                                  const dpari_stages *stages, dpar_memory *m)
{
    int32_t i;
    double first = 0.0, last = 0.0;
    dpari_zero(m, sizeof(*m));
    for (i = 0; i < stages->n; i++) {
        dpar_memory one;
        dpari_memory_stage(job, s, &stages->of[i], &one);
        first = i == 0 ? one.total : first;
        last = i == stages->n - 1 ? one.total : last;
        if (i == 0 || one.total > m->total) {
            *m = one;
        }
    }
    m->first = first;
    m->last = last;
}

DPAR_API void dpar_memory_of_stage(const dpar_job *job, const dpar_strategy *s, int32_t rank,
                                   dpar_memory *m)
{
    dpari_layers layers;
    dpari_stage st;
    rank = (int32_t)dpari_most(0, dpari_least(rank, (int64_t)s->pp - 1));
    dpari_price_layers(job, s, &layers);
    dpari_price_stage(job, s, &layers, rank, &st);
    dpari_memory_stage(job, s, &st, m);
    m->first = m->last = m->total;
}

DPAR_API int32_t dpar_memory_fits(const dpar_job *job, const dpar_memory *m, double limit)
{
    const dpar_cluster *c = job->cluster;
    return m->upper <= (limit > 0.0 ? limit : c->gpu.memory_bytes) &&
           m->host * c->gpus_per_node <= c->host_bytes;
}

DPAR_API void dpar_memory_of(const dpar_job *job, const dpar_strategy *s, dpar_memory *m)
{
    dpari_layers layers;
    dpari_stages stages;
    dpari_price_layers(job, s, &layers);
    dpari_price_stages(job, s, &layers, &stages);
    dpari_price_memory(job, s, &stages, m);
}

/* ==== cost/step.c ==== */

DPAR_API const char *dpar_time_name(int32_t term)
{
    static const char name[DPAR_TIMES][12] = {
        "forward", "backward", "recompute", "tp", "cp",        "ep",      "halo",
        "pp",      "bubble",   "imbalance", "dp", "optimizer", "offload", "host"};
    return term >= 0 && term < DPAR_TIMES ? name[term] : "?";
}

DPAR_API double dpar_bubble_overhead(int32_t p, int32_t m)
{
    return p > 0 && m > 0 ? ((double)p - 1.0) / (double)m : 0.0;
}

DPAR_API double dpar_bubble_fraction(int32_t p, int32_t m)
{
    return p > 0 && m > 0 ? ((double)p - 1.0) / ((double)m + (double)p - 1.0) : 0.0;
}

DPAR_API double dpar_bubble_utilisation(int32_t p, int32_t m)
{
    return p > 0 && m > 0 ? (double)m / ((double)m + (double)p - 1.0) : 0.0;
}

DPAR_API double dpar_gpipe_makespan(int32_t p, int32_t m, double f, double b)
{
    return ((double)p - 1.0) * f + (double)m * (f + b) + ((double)p - 1.0) * b;
}

DPAR_API double dpar_scaling_efficiency(double throughput_n, double throughput_1, int32_t n)
{
    return n > 0 && throughput_1 > 0.0 ? throughput_n / ((double)n * throughput_1) : 0.0;
}

/* ---- data parallelism ----------------------------------------------------------------------- */

typedef struct dpari_data {
    double before, after;     /* seconds around one step: weights gathered, gradients reduced */
    double forward, backward; /* seconds inside every micro-batch (ZeRO-2 and 3) */
    double unit;              /* of them the first unit, which nothing hides */
    double link_bytes, nic_bytes;
} dpari_data;

static double dpari_data_spend(const dpar_job *job, const dpar_group *g, int32_t kind, double bytes,
                               double calls, double times, dpari_data *d)
{
    dpar_collective_cost c;
    dpar_collective_cost_of(job->cluster, g, kind, bytes / calls, &c);
    d->link_bytes += c.link_bytes * calls * times;
    d->nic_bytes += c.nic_bytes * calls * times;
    return c.seconds * calls;
}

/* Gradient and weight traffic of one kind of weights (dense, or experts) over a group of n ranks,
 * `stride` apart, in ZeRO groups of `shard`. */
static void dpari_data_of(const dpar_job *job, const dpar_strategy *s, double params, double units,
                          int32_t n, int32_t shard, int32_t stride, dpari_data *d)
{
    const dpar_recipe *r = &job->recipe;
    dpar_group in, across;
    double grads = params * r->reduced, weights = params * r->gathered, m = s->micro_batches, t;
    if (n <= 1 || params <= 0.0) {
        return;
    }
    in = dpar_group_place(job->cluster, s->zero == 0 ? n : shard, stride);
    if (s->zero == 0) {
        d->after += dpari_data_spend(job, &in, DPAR_ALL_REDUCE, grads, 1.0, 1.0, d);
        return;
    }
    if (shard < n) { /* HSDP: replicas reduce what the shards hold */
        across = dpar_group_place(job->cluster, n / shard, stride * shard);
        d->after += dpari_data_spend(job, &across, DPAR_ALL_REDUCE, grads / shard, 1.0, 1.0, d);
    }
    if (shard <= 1) {
        return;
    }
    if (s->zero == 3) {
        t = dpari_data_spend(job, &in, DPAR_ALL_GATHER, weights, units, 2.0 * m, d);
        d->forward += t;
        d->backward += t + dpari_data_spend(job, &in, DPAR_REDUCE_SCATTER, grads, units, m, d);
        d->unit += t / units;
        return;
    }
    t = dpari_data_spend(job, &in, DPAR_REDUCE_SCATTER, grads, 1.0, s->zero == 2 ? m : 1.0, d);
    if (s->zero == 2) {
        d->backward += t;
    } else {
        d->after += t;
    }
    d->before += dpari_data_spend(job, &in, DPAR_ALL_GATHER, weights, 1.0, 1.0, d);
}

static dpari_data dpari_data_time(const dpar_job *job, const dpar_strategy *s,
                                  const dpari_stage *st)
{
    dpari_data d;
    int32_t n = s->dp * s->cp, shard = (s->shard > 0 ? s->shard : s->dp) * s->cp, en;
    int32_t tiles = s->tiles[0] * s->tiles[1] * s->tiles[2];
    dpari_zero(&d, sizeof(d));
    if (!job->work->trains) {
        return d;
    }
    /* tiles of one sample hold the same weights: their gradients are summed with the others */
    dpari_data_of(job, s, st->params, dpari_mostf(1.0, st->layers), n * tiles,
                  s->zero == 0 ? n * tiles : shard * tiles, s->tp, &d);
    en = (int32_t)((int64_t)s->tp * n / ((int64_t)s->ep * s->etp));
    dpari_data_of(job, s, st->expert_params, dpari_mostf(1.0, st->layers), en, en, s->ep * s->etp,
                  &d);
    return d;
}

/* What is left of communication t beside compute w; what is hidden still costs the compute. */
static double dpari_exposed(double t, double w, double contention, double *hidden)
{
    double h = dpari_leastf(t, w);
    *hidden += h;
    return t - h + contention * h;
}

static void dpari_step_data(const dpar_job *job, const dpar_strategy *s, const dpari_stage *st,
                            dpar_step *t)
{
    dpari_data d = dpari_data_time(job, s, st);
    double c = job->cluster->cal.value[DPAR_CAL_CONTENTION], m = s->micro_batches, e = 0.0;
    double device = st->forward + st->backward + st->again;
    /* what hides communication is the time that the compute takes, the host's waits too */
    double stretch =
        device > 0.0 ? dpari_mostf(1.0, (st->total - st->tp - st->cp - st->ep - st->halo) / device)
                     : 1.0;
    double forward = st->forward * stretch, backward = (st->backward + st->again) * stretch;
    if (dpari_overlap_of(job, s) & DPAR_OVERLAP_DP) {
        double gathers = dpari_mostf(0.0, d.forward - d.unit), hidden = 0.0;
        e += m * dpari_exposed(gathers, forward, c, &hidden);
        e += m * dpari_exposed(d.backward, backward, c, &hidden);
        e += m * d.unit;
        t->dp_hidden_s += m * hidden;
        /* what a step does once hides in what the first and the last micro-batch have left */
        forward = dpari_mostf(0.0, 0.9 * forward - gathers);
        backward = dpari_mostf(0.0, 0.9 * backward - d.backward);
        e += dpari_exposed(d.before, forward, c, &t->dp_hidden_s);
        e += dpari_exposed(d.after, backward, c, &t->dp_hidden_s);
    } else {
        e = d.before + d.after + m * (d.forward + d.backward);
    }
    t->term[DPAR_TIME_DP] = e;
    t->link_bytes += d.link_bytes;
    t->nic_bytes += d.nic_bytes;
    t->dp_bytes = d.link_bytes + d.nic_bytes;
}

/* ---- optimizer and offload ------------------------------------------------------------------ */

/* HBM bytes a parameter of Adam: gradient twice (its norm, then the update), master and moments
 * read and written, the weight written. */
static double dpari_adam_bytes(const dpar_recipe *r)
{
    return 2.0 * r->gradient + 2.0 * (r->master + r->moments) +
           (r->master > 0.0 ? r->weight : 2.0 * r->weight);
}

static void dpari_step_optimizer(const dpar_job *job, const dpar_strategy *s, const dpari_stage *st,
                                 dpar_step *t)
{
    const dpar_cluster *c = job->cluster;
    const dpar_recipe *r = &job->recipe;
    double d = s->zero >= 1 ? dpari_zero_ranks(s) : 1.0;
    double experts =
        s->zero >= 1 ? dpari_mostf(1.0, (double)s->tp * s->cp * s->dp / ((double)s->ep * s->etp))
                     : 1.0;
    double local = st->params / d + st->expert_params / experts, pcie = c->gpu.pcie_Bps, moved;
    if (!job->work->trains) {
        return;
    }
    t->term[DPAR_TIME_OPTIMIZER] =
        local * dpari_adam_bytes(r) / (c->gpu.memory_Bps * c->cal.value[DPAR_CAL_HBM]);
    if (s->offload & DPAR_OFFLOAD_OPTIMIZER) {
        /* on the host: about 25 GB/s of its memory a GPU; gradients down, weights up */
        t->term[DPAR_TIME_OPTIMIZER] = local * dpari_adam_bytes(r) / 25e9;
        t->term[DPAR_TIME_OFFLOAD] += local * (r->gradient + r->weight) / (0.8 * pcie);
    }
    if (s->offload & DPAR_OFFLOAD_NVME) { /* state read and written while the host computes */
        moved = 2.0 * local * (r->master + r->moments) * c->gpus_per_node;
        t->term[DPAR_TIME_OFFLOAD] +=
            dpari_mostf(0.0, moved / c->nvme_Bps - t->term[DPAR_TIME_OPTIMIZER]);
    }
    /* weights and activations travel while the device computes, over the same link */
    moved =
        (s->offload & DPAR_OFFLOAD_WEIGHTS ? (st->params + st->expert_params) * r->weight : 0.0) +
        (s->offload & DPAR_OFFLOAD_ACTIVATIONS ? st->kept : 0.0);
    moved *= 2.0 * s->micro_batches;
    if (moved > 0.0) {
        t->term[DPAR_TIME_OFFLOAD] +=
            dpari_mostf(0.05 * moved / (0.8 * pcie),
                        moved / (0.8 * pcie) - s->micro_batches * (st->forward + st->backward));
    }
}

/* ---- pipeline ------------------------------------------------------------------------------- */

/* Idle time of filling and draining, as a share of (time of one micro-batch through all stages
 * less the slowest). Schedules' closed forms at backward-input = backward-weight; w = F/(F+B). */
static double dpari_fill_share(int32_t schedule, int32_t vp, double w)
{
    switch (schedule) {
    case DPAR_INTERLEAVED:
    case DPAR_BREADTH_FIRST: return 1.0 / vp;
    case DPAR_ZB_H1:
    case DPAR_ZB_2P: /* the same makespan; 2P's zero bubble is each rank's own span, which counts
                        only where ranks step their optimizers one by one */
        return w;
    case DPAR_ZBV: return 1.0 / 6.0;
    case DPAR_V_HALF: return 0.5;
    case DPAR_V_MIN: return 0.67;
    case DPAR_DUALPIPE: return 1.0 / 3.0;
    case DPAR_DUALPIPEV: return 1.0 / 3.0;
    default: return 1.0;
    }
}

/* The closed forms hold from p micro-batches on. A single one waits for p-1 forwards and
 * backwards whatever the schedule, weight gradients apart; between them a straight line is assumed,
 * not derived. */
static double dpari_fill_short(const dpar_strategy *s, double share, double w)
{
    double full = s->pp, one = 0.5 * (1.0 + w);
    if (s->schedule < DPAR_ZB_H1 || s->micro_batches >= full || share >= one) {
        return share;
    }
    return share + (one - share) * (full - s->micro_batches) / (full - 1.0);
}

static double dpari_send_seconds(const dpar_job *job, const dpar_strategy *s, double bytes,
                                 dpar_step *t, double times)
{
    dpar_group g = dpar_group_place(job->cluster, s->pp, s->tp * s->cp * s->dp);
    dpar_collective_cost c;
    g.nodes = g.per_node < g.size ? 2 : 1;
    g.size = 2;
    g.per_node = g.nodes == 2 ? 1 : 2;
    dpar_collective_cost_of(job->cluster, &g, DPAR_SEND_RECV, bytes, &c);
    t->link_bytes += c.link_bytes * times;
    t->nic_bytes += c.nic_bytes * times;
    return c.seconds;
}

/* Bubble, imbalance and messages. The slowest stage paces every micro-batch; the others wait. */
static void dpari_step_pipeline(const dpar_job *job, const dpar_strategy *s,
                                const dpari_stages *stages, const dpari_stage *slow, dpar_step *t)
{
    double m = s->micro_batches, p = s->pp, v = s->vp, mean = stages->sum_total / p, send, fill;
    double w = slow->forward / (slow->forward + slow->backward + slow->again), ways;
    int looped = s->schedule == DPAR_INTERLEAVED || s->schedule == DPAR_BREADTH_FIRST;
    int32_t flying = dpari_overlap_of(job, s);
    t->largest_stage_s = slow->total;
    t->mean_stage_s = mean;
    t->term[DPAR_TIME_IMBALANCE] += m * (slow->total - mean);
    if (s->pp == 1) {
        return;
    }
    fill = (stages->sum_total - mean) *
           dpari_fill_short(s, dpari_fill_share(s->schedule, s->vp, w), w);
    if (looped && m < p) { /* every chunk waits for a whole round of ranks */
        fill = fill * (m - 1.0) / (p - 1.0) + (p - m) * slow->total;
    }
    ways = job->work->trains ? 2.0 : 1.0;
    send = dpari_send_seconds(job, s, stages->send, t, ways * m * v);
    t->term[DPAR_TIME_BUBBLE] = fill;
    t->term[DPAR_TIME_PP] = ways * send * ((p - 2.0) + m * v * (p - 1.0) / p);
    if ((s->schedule == DPAR_GPIPE && (s->overlap & DPAR_OVERLAP_DEFAULT)) ||
        ((s->schedule == DPAR_GPIPE || looped) && (flying & DPAR_OVERLAP_PP))) {
        t->term[DPAR_TIME_PP] = dpari_leastf(t->term[DPAR_TIME_PP], ways * (p * v - 1.0) * send);
    }
    t->bubble = fill / (m * slow->total + fill + t->term[DPAR_TIME_PP]);
}

/* ---- the step ------------------------------------------------------------------------------- */

static void dpari_step_terms(const dpar_strategy *s, const dpari_stages *stages, dpar_step *t)
{
    const dpari_stage *all = &stages->whole;
    double k = (double)s->micro_batches / s->pp;
    double device = all->forward + all->backward + all->again + all->tp + all->cp + all->ep +
                    all->halo; /* what total has beyond it is the host's floor */
    t->term[DPAR_TIME_FORWARD] = k * all->forward;
    t->term[DPAR_TIME_BACKWARD] = k * all->backward;
    t->term[DPAR_TIME_RECOMPUTE] = k * all->again;
    t->term[DPAR_TIME_TP] = k * all->tp;
    t->term[DPAR_TIME_CP] = k * all->cp;
    t->term[DPAR_TIME_EP] = k * all->ep;
    t->term[DPAR_TIME_HALO] = k * all->halo;
    t->term[DPAR_TIME_HOST] = k * (all->total - device);
    t->link_bytes = k * all->link_bytes;
    t->nic_bytes = k * all->nic_bytes;
}

/* Forward FLOP of a layer and sample that run once more, attention counted in full: all of them, or
 * with SELECTIVE those of the scores. */
static double dpari_flops_again(const dpar_workload *w, int32_t layer, int32_t recompute)
{
    const dpar_layer *l = &w->layer[layer];
    double sum = 0.0;
    int32_t i;
    for (i = 0; i < l->ops; i++) {
        const dpar_op *op = &w->op[l->first + i];
        double f = 2.0 * op->n * op->k * op->copies * l->tokens;
        if (recompute == DPAR_RECOMPUTE_FULL || op->kind == DPAR_OP_SCORES) {
            sum += op->kind == DPAR_OP_ATTENTION && w->causal ? 2.0 * f : f;
        }
    }
    return sum;
}

static void dpari_step_rates(const dpar_job *job, const dpar_strategy *s,
                             const dpari_stages *stages, dpar_step *t)
{
    const dpar_workload *w = job->work;
    double gpus = dpar_strategy_ranks(s), again = 0.0;
    double peak = dpari_matrix_peak(&job->cluster->gpu, job->recipe.compute, w->element);
    t->samples = (double)s->dp * s->micro_batch * s->micro_batches;
    t->tokens_per_s_gpu = t->samples * w->tokens / (t->total * gpus);
    t->model_flops = t->samples * w->model_flops_full;
    t->model_flops_causal = t->samples * w->model_flops_causal;
    if (s->recompute != DPAR_RECOMPUTE_NONE && stages->of[0].layers > 0.0) {
        double share = s->recompute_layers > 0
                           ? dpari_leastf(1.0, s->recompute_layers / stages->of[0].layers)
                           : 1.0;
        int32_t i;
        for (i = 0; i < w->layers; i++) {
            again += w->layer[i].kind == DPAR_LAYER_BLOCK
                         ? dpari_flops_again(w, i, s->recompute) * w->layer[i].count * share
                         : 0.0;
        }
    }
    t->hardware_flops = t->model_flops + t->samples * again;
    t->mfu = t->model_flops / (t->total * gpus * peak);
    t->mfu_causal = t->model_flops_causal / (t->total * gpus * peak);
    t->hfu = t->hardware_flops / (t->total * gpus * peak);
    t->tflops_gpu = t->model_flops / (t->total * gpus) * 1e-12;
}

DPARI_API void dpari_price_step(const dpar_job *job, const dpar_strategy *s,
                                const dpari_stages *stages, dpar_step *t)
{
    const dpari_stage *slow = &stages->of[0];
    const double *cal = job->cluster->cal.value;
    double compute;
    int32_t i;
    dpari_zero(t, sizeof(*t));
    for (i = 1; i < stages->n; i++) {
        slow = stages->of[i].total > slow->total ? &stages->of[i] : slow;
    }
    dpari_step_terms(s, stages, t);
    dpari_step_pipeline(job, s, stages, slow, t);
    dpari_step_data(job, s, slow, t);
    dpari_step_optimizer(job, s, slow, t);
    compute =
        t->term[DPAR_TIME_FORWARD] + t->term[DPAR_TIME_BACKWARD] + t->term[DPAR_TIME_RECOMPUTE];
    /* all who sum their gradients wait for the last of them */
    t->term[DPAR_TIME_IMBALANCE] +=
        cal[DPAR_CAL_SKEW] * compute *
        dpari_log2((double)s->dp * s->cp * s->tiles[0] * s->tiles[1] * s->tiles[2]);
    t->term[DPAR_TIME_HOST] += job->work->trains ? cal[DPAR_CAL_STEP_S] : 0.0;
    for (i = 0; i < DPAR_TIMES; i++) {
        t->total += t->term[i];
    }
    dpari_step_rates(job, s, stages, t);
}

DPAR_API void dpar_step_of(const dpar_job *job, const dpar_strategy *s, dpar_step *t)
{
    dpari_layers layers;
    dpari_stages stages;
    dpari_price_layers(job, s, &layers);
    dpari_price_stages(job, s, &layers, &stages);
    dpari_price_step(job, s, &stages, t);
}

/* ==== cost/calibrate.c ==== */

/* A share or a time: the range in which a constant still means something. */
static double dpari_cal_clip(int32_t which, double v)
{
    int seconds = which == DPAR_CAL_LAUNCH_S || which == DPAR_CAL_LINK_S ||
                  which == DPAR_CAL_NET_S || which == DPAR_CAL_BASE_S || which == DPAR_CAL_STEP_S;
    int loose = which == DPAR_CAL_CONTENTION || which == DPAR_CAL_SKEW;
    double low = seconds ? 1e-8 : loose ? 1e-4 : 0.05;
    return dpari_leastf(1.0, dpari_mostf(low, v));
}

static double dpari_absolute(double x)
{
    return x < 0.0 ? -x : x;
}

/* |e|, rounded at the bottom over 2 %: a search along one constant at a time gets stuck in the
 * kinks of the plain absolute value. */
static double dpari_cal_rounded(double e)
{
    return dpari_sqrt(e * e + 4e-4) - 0.02;
}

/* Mean of |ln(predicted / measured)|, or of |predicted / measured - 1|. */
static double dpari_cal_error(const dpar_calibration *cal, const dpar_measurement *rows, int32_t n,
                              int relative)
{
    double sum = 0.0, weights = 0.0;
    int32_t i;
    for (i = 0; i < n; i++) {
        dpar_cluster machine = *rows[i].cluster;
        dpar_job job;
        dpar_step t;
        double ratio;
        machine.cal = *cal;
        job.work = rows[i].work;
        job.cluster = &machine;
        job.recipe = rows[i].recipe;
        dpar_step_of(&job, &rows[i].strategy, &t);
        ratio = t.total / rows[i].seconds;
        weights += rows[i].weight;
        sum +=
            rows[i].weight * (relative ? dpari_absolute(ratio - 1.0)
                                       : dpari_cal_rounded(dpari_log2(ratio) * 0.6931471805599453));
    }
    return sum / weights;
}

/* A factor e from where it began costs as much as 0.3 % of error: only rows that speak move it. */
static double dpari_cal_pull(const dpar_calibration *cal, const dpar_calibration *start,
                             uint32_t which)
{
    double sum = 0.0;
    int32_t i;
    for (i = 0; i < DPAR_CALS; i++) {
        if (which >> i & 1u) {
            double x = dpari_log2(cal->value[i] / start->value[i]);
            sum += x * x;
        }
    }
    return 0.0015 * sum;
}

static double dpari_cal_score(const dpar_calibration *cal, const dpar_calibration *start,
                              const dpar_measurement *rows, int32_t n, uint32_t which)
{
    return dpari_cal_error(cal, rows, n, 0) + dpari_cal_pull(cal, start, which);
}

/* Tries one constant up and down by `factor`; keeps what is better. */
static int dpari_cal_try(dpar_calibration *cal, const dpar_calibration *start,
                         const dpar_measurement *rows, int32_t n, uint32_t which, int32_t i,
                         double factor, double *best)
{
    int32_t way;
    for (way = 0; way < 2; way++) {
        dpar_calibration next = *cal;
        double score;
        next.value[i] = dpari_cal_clip(i, way ? cal->value[i] / factor : cal->value[i] * factor);
        score = dpari_cal_score(&next, start, rows, n, which);
        if (score < *best - 1e-9) {
            *best = score;
            *cal = next;
            return 1;
        }
    }
    return 0;
}

/* Relative change that worsens the mean error by one standard error of it. */
static void dpari_cal_bars(dpar_calibration *cal, const dpar_measurement *rows, int32_t n,
                           uint32_t which)
{
    double base = dpari_cal_error(cal, rows, n, 0), worse = base * (1.0 + 1.0 / dpari_sqrt(n));
    int32_t i;
    for (i = 0; i < DPAR_CALS; i++) {
        double bar = 0.005;
        if (!(which >> i & 1u)) {
            continue;
        }
        for (; bar < 1.0; bar *= 1.5) {
            dpar_calibration up = *cal, down = *cal;
            up.value[i] *= 1.0 + bar;
            down.value[i] /= 1.0 + bar;
            if (dpari_cal_error(&up, rows, n, 0) > worse &&
                dpari_cal_error(&down, rows, n, 0) > worse) {
                break;
            }
        }
        cal->error[i] = dpari_leastf(1.0, bar);
    }
}

DPAR_API dpar_status dpar_calibrate(dpar_calibration *cal, const dpar_measurement *rows, int32_t n,
                                    uint32_t which, double *mean_error, dpar_why *why)
{
    dpar_calibration fit = *cal;
    double factor = 1.5, best;
    int32_t i, moved;
    which &= ((uint32_t)1 << DPAR_CALS) - 1u;
    if (n < 1 || which == 0) {
        return dpari_say(DPAR_E_ARG, why, "# measurements for a fit of constants #: give both", n,
                         (int64_t)which, 0, 0);
    }
    for (i = 0; i < n; i++) {
        if (!(rows[i].seconds > 0.0) || !dpari_finite(rows[i].seconds) || !(rows[i].weight > 0.0)) {
            return dpari_say(DPAR_E_ARG, why, "measurement #: time and weight must be positive", i,
                             0, 0, 0);
        }
    }
    for (i = 0; i < DPAR_CALS; i++) {
        fit.value[i] = dpari_cal_clip(i, fit.value[i]);
    }
    best = dpari_cal_score(&fit, cal, rows, n, which);
    while (factor > 1.004) {
        moved = 0;
        for (i = 0; i < DPAR_CALS; i++) {
            moved |=
                (which >> i & 1u) && dpari_cal_try(&fit, cal, rows, n, which, i, factor, &best);
        }
        factor = moved ? factor : 1.0 + 0.6 * (factor - 1.0);
    }
    dpari_cal_bars(&fit, rows, n, which);
    fit.rows = n;
    if (mean_error != NULL) {
        *mean_error = dpari_cal_error(&fit, rows, n, 1);
    }
    *cal = fit;
    return DPAR_OK;
}

/* ==== cost/planner.c ==== */

/* ---- one configuration ---------------------------------------------------------------------- */

/* Tenths of a GB, rounded up. */
static int64_t dpari_tenths(double bytes)
{
    return bytes < 1e26 ? (int64_t)(bytes * 1e-8 + 0.999999) : INT64_C(1000000000000000000);
}

DPAR_API dpar_status dpar_plan_of(const dpar_job *job, const dpar_strategy *s, int64_t global_batch,
                                  dpar_plan *plan, int32_t *rule, dpar_why *why)
{
    dpari_layers layers;
    dpari_stages stages;
    dpar_status st = dpar_strategy_check(job, s, global_batch, rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_price_layers(job, s, &layers);
    dpari_price_stages(job, s, &layers, &stages);
    plan->strategy = *s;
    dpari_price_memory(job, s, &stages, &plan->memory);
    dpari_price_step(job, s, &stages, &plan->step);
    plan->fits = dpar_memory_fits(job, &plan->memory, 0.0);
    if (plan->fits) {
        return DPAR_OK;
    }
    if (rule != NULL) {
        *rule = DPAR_RULE_MEMORY;
    }
    if (plan->memory.upper <= job->cluster->gpu.memory_bytes) {
        return dpari_say(DPAR_E_MEMORY, why,
                         "offloads #.# GB a GPU, # GPUs share # GB of a node's memory",
                         dpari_tenths(plan->memory.host) / 10, dpari_tenths(plan->memory.host) % 10,
                         job->cluster->gpus_per_node, (int64_t)(job->cluster->host_bytes * 1e-9));
    }
    return dpari_say(DPAR_E_MEMORY, why, "needs up to #.# GB a GPU, the GPU has #.# GB",
                     dpari_tenths(plan->memory.upper) / 10, dpari_tenths(plan->memory.upper) % 10,
                     dpari_tenths(job->cluster->gpu.memory_bytes) / 10,
                     dpari_tenths(job->cluster->gpu.memory_bytes) % 10);
}

/* ---- the axes of the walk ------------------------------------------------------------------- */

/* Outer options, one price of the layers each: an odometer over lists of values. */
enum {
    DPARI_AXIS_TILES_0,
    DPARI_AXIS_TILES_1,
    DPARI_AXIS_TILES_2,
    DPARI_AXIS_TP,
    DPARI_AXIS_SP,
    DPARI_AXIS_CP,
    DPARI_AXIS_CP_KIND,
    DPARI_AXIS_EP,
    DPARI_AXIS_ETP,
    DPARI_AXIS_OVERLAP_TP,
    DPARI_AXIS_MICRO_BATCH,
    DPARI_AXES
};

/* state[]: the odometer, its lengths, the position and the whole; what came nearest; and the rule
 * under which configurations are being counted out (0: they are priced). */
enum {
    DPARI_LENGTH = DPARI_AXES, /* before them the odometer */
    DPARI_POSITION = 2 * DPARI_AXES,
    DPARI_TOTAL,
    DPARI_NEAREST_BYTES,
    DPARI_OUT_RULE,
    DPARI_PRICED /* are the layers of this position? */
};

static int dpari_fixed(const dpar_search *q, int32_t field)
{
    return (q->fixed_fields >> field & 1u) != 0;
}

/* The i-th divisor of n in ascending order, 0 past the last. O(sqrt n). */
static int32_t dpari_divisor(int32_t n, int32_t index)
{
    int32_t d, lower = 0;
    for (d = 1; d <= n / d; d++) {
        if (n % d == 0 && lower++ == index) {
            return d;
        }
    }
    index -= lower;
    for (d--; d >= 1; d--) { /* the others are n / d, d from the root down */
        if (n % d == 0 && d != n / d && index-- == 0) {
            return n / d;
        }
    }
    return 0;
}

static int32_t dpari_power(int32_t index, int64_t limit)
{
    return index < 30 && ((int64_t)1 << index) <= limit ? (int32_t)1 << index : 0;
}

static int32_t dpari_up_to(int32_t value, int64_t limit)
{
    return value <= limit ? value : 0;
}

/* The i-th micro-batch: powers of two to 64; in the whole space divisors of the batch to 512. */
static int32_t dpari_micro_batch(const dpar_search *q, int32_t index)
{
    if (q->space != DPAR_SPACE_WHOLE) {
        return dpari_power(index, 64);
    }
    return q->global_batch < 1 || q->global_batch > INT32_MAX
               ? dpari_power(index, 512)
               : dpari_up_to(dpari_divisor((int32_t)q->global_batch, index), 512);
}

/* The i-th value of an axis, 0 past the last. Values that a rule forbids are among them, so that
 * the rule can be counted; values that mean nothing for this job are not. */
static int32_t dpari_axis_value(const dpar_planner *p, int32_t axis, int32_t index)
{
    const dpar_workload *w = p->job.work;
    const dpar_search *q = &p->search;
    int32_t whole = q->space == DPAR_SPACE_WHOLE, node = p->job.cluster->gpus_per_node;
    int32_t once = index == 0, sequence = w->heads > 0 && w->vocab > 0;
    switch (axis) {
    case DPARI_AXIS_TILES_0: /* usual: tiles in all, cut where the surface is least */
        return w->dims > 0 ? dpari_divisor(q->gpus, index) : once;
    case DPARI_AXIS_TILES_1:
    case DPARI_AXIS_TILES_2: return whole && w->dims > axis ? dpari_divisor(q->gpus, index) : once;
    case DPARI_AXIS_TP:
        return w->heads > 0 ? dpari_up_to(dpari_divisor(q->gpus, index), dpari_most(w->heads, node))
                            : once;
    case DPARI_AXIS_SP: return whole && w->heads > 0 ? index < 2 : once;
    case DPARI_AXIS_OVERLAP_TP: return whole && w->heads > 0 && w->trains ? index < 2 : once;
    case DPARI_AXIS_CP:
        if (!sequence) {
            return once;
        }
        if (whole) {
            return dpari_up_to(dpari_divisor(q->gpus, index),
                               dpari_most(1, dpari_least(256, (int64_t)w->tokens / 1024)));
        }
        return dpari_power(index, dpari_most(1, dpari_least(64, (int64_t)w->tokens / 1024)));
    case DPARI_AXIS_CP_KIND: return sequence ? index < (whole ? DPAR_CP_KINDS : 2) : once;
    case DPARI_AXIS_EP: return w->experts > 0 ? dpari_divisor(w->experts, index) : once;
    case DPARI_AXIS_ETP: return whole && w->experts > 0 ? index < 2 : once;
    default: return dpari_micro_batch(q, index);
    }
}

static int32_t dpari_axis_length(const dpar_planner *p, int32_t axis)
{
    int32_t n = 0;
    while (dpari_axis_value(p, axis, n) > 0) {
        n++;
    }
    return n > 0 ? n : 1;
}

/* Cuts the grid into `parts` so that the surface is small: prime factors, the greatest first, go to
 * the axis whose tiles are longest. */
static void dpari_cut_grid(const dpar_workload *w, int32_t parts, int32_t *tiles)
{
    tiles[0] = tiles[1] = tiles[2] = 1;
    while (parts > 1) {
        int32_t i, best = 0, rest = parts, prime = 2, d;
        for (d = 2; d <= rest / d; d++) {
            while (rest % d == 0 && rest > d) {
                rest /= d;
            }
        }
        prime = rest;
        for (i = 1; i < w->dims; i++) {
            if (w->extent[i] / tiles[i] > w->extent[best] / tiles[best]) {
                best = i;
            }
        }
        tiles[best] *= prime;
        parts /= prime;
    }
}

static void dpari_walk_tiles(const dpar_planner *p, dpar_strategy *s)
{
    int32_t i;
    if (p->search.space != DPAR_SPACE_WHOLE) {
        dpari_cut_grid(
            p->job.work,
            dpari_axis_value(p, DPARI_AXIS_TILES_0, (int32_t)p->state[DPARI_AXIS_TILES_0]),
            s->tiles);
        return;
    }
    for (i = 0; i < 3; i++) {
        s->tiles[i] =
            dpari_axis_value(p, DPARI_AXIS_TILES_0 + i, (int32_t)p->state[DPARI_AXIS_TILES_0 + i]);
    }
}

/* Fixed fields replace what the odometer says; one of its positions stands for all of an axis. */
static int dpari_walk_fixed(const dpar_planner *p, dpar_strategy *s)
{
    static const int8_t field[8] = {DPAR_FIELD_TILES, DPAR_FIELD_TP,         DPAR_FIELD_SP,
                                    DPAR_FIELD_CP,    DPAR_FIELD_CP_KIND,    DPAR_FIELD_EP,
                                    DPAR_FIELD_ETP,   DPAR_FIELD_MICRO_BATCH};
    static const int8_t axis[8] = {DPARI_AXIS_TILES_0, DPARI_AXIS_TP,         DPARI_AXIS_SP,
                                   DPARI_AXIS_CP,      DPARI_AXIS_CP_KIND,    DPARI_AXIS_EP,
                                   DPARI_AXIS_ETP,     DPARI_AXIS_MICRO_BATCH};
    const dpar_search *q = &p->search;
    const dpar_strategy *f = &q->fixed;
    const int64_t *at = p->state;
    int32_t i;
    for (i = 0; i < 8; i++) {
        if (dpari_fixed(q, field[i]) &&
            (at[axis[i]] > 0 ||
             (i == 0 && (at[DPARI_AXIS_TILES_1] > 0 || at[DPARI_AXIS_TILES_2] > 0)))) {
            return 0;
        }
    }
    for (i = 0; i < 3 && dpari_fixed(q, DPAR_FIELD_TILES); i++) {
        s->tiles[i] = f->tiles[i];
    }
    s->tp = dpari_fixed(q, DPAR_FIELD_TP) ? f->tp : s->tp;
    s->cp = dpari_fixed(q, DPAR_FIELD_CP) ? f->cp : s->cp;
    s->cp_kind = dpari_fixed(q, DPAR_FIELD_CP_KIND) ? f->cp_kind : s->cp_kind;
    s->ep = dpari_fixed(q, DPAR_FIELD_EP) ? f->ep : s->ep;
    s->micro_batch = dpari_fixed(q, DPAR_FIELD_MICRO_BATCH) ? f->micro_batch : s->micro_batch;
    return 1;
}

/* Fills the outer options of the odometer's position; 0 when it repeats another one. */
static int dpari_walk_outer(const dpar_planner *p, dpar_strategy *s)
{
    const dpar_search *q = &p->search;
    const int64_t *at = p->state;
    int32_t whole = q->space == DPAR_SPACE_WHOLE;
    *s = dpar_strategy_default();
    s->tp = dpari_axis_value(p, DPARI_AXIS_TP, (int32_t)at[DPARI_AXIS_TP]);
    s->cp = dpari_axis_value(p, DPARI_AXIS_CP, (int32_t)at[DPARI_AXIS_CP]);
    s->cp_kind = (int32_t)at[DPARI_AXIS_CP_KIND];
    s->ep = dpari_axis_value(p, DPARI_AXIS_EP, (int32_t)at[DPARI_AXIS_EP]);
    s->micro_batch = dpari_micro_batch(q, (int32_t)at[DPARI_AXIS_MICRO_BATCH]);
    if (p->job.work->dims > 0) {
        dpari_walk_tiles(p, s);
    }
    if (!dpari_walk_fixed(p, s)) {
        return 0;
    }
    s->sp = whole ? (int32_t)at[DPARI_AXIS_SP] : s->tp > 1 && dpari_sequence_cuts(p->job.work, s);
    s->etp = at[DPARI_AXIS_ETP] > 0 ? s->tp : 1;
    s->sp = dpari_fixed(q, DPAR_FIELD_SP) ? q->fixed.sp : s->sp;
    s->etp = dpari_fixed(q, DPAR_FIELD_ETP) ? q->fixed.etp : s->etp;
    if (dpari_fixed(q, DPAR_FIELD_OVERLAP)) {
        s->overlap = q->fixed.overlap;
    } else if (whole && p->job.work->trains) { /* said, never left to the software */
        s->overlap = at[DPARI_AXIS_OVERLAP_TP] > 0 ? DPAR_OVERLAP_TP : 0;
    }
    return !((s->cp == 1 && at[DPARI_AXIS_CP_KIND] > 0) || (s->tp == 1 && at[DPARI_AXIS_SP] > 0) ||
             (s->tp == 1 && at[DPARI_AXIS_OVERLAP_TP] > 0) ||
             (s->tp == 1 && at[DPARI_AXIS_ETP] > 0) ||
             (dpari_fixed(q, DPAR_FIELD_OVERLAP) && at[DPARI_AXIS_OVERLAP_TP] > 0));
}

/* ---- keeping the best ----------------------------------------------------------------------- */

/* Is a better than b? Samples a second; then less memory; then what was found first. */
static int dpari_better(const dpar_plan *a, const dpar_plan *b)
{
    double x = a->step.samples / a->step.total, y = b->step.samples / b->step.total;
    if (x > y * (1.0 + 1e-12) || y > x * (1.0 + 1e-12)) {
        return x > y;
    }
    return a->memory.total < b->memory.total * (1.0 - 1e-12);
}

static void dpari_keep_top(dpar_planner *p, const dpar_plan *plan)
{
    int32_t i;
    if (p->top_room == 0 || (p->tops == p->top_room && !dpari_better(plan, &p->top[p->tops - 1]))) {
        return;
    }
    if (p->tops < p->top_room) {
        p->tops++;
    }
    for (i = p->tops - 1; i > 0 && dpari_better(plan, &p->top[i - 1]); i--) {
        p->top[i] = p->top[i - 1];
    }
    p->top[i] = *plan;
}

/* Time x memory: drops what the new one dominates; fastest first. A full front keeps its ends. */
static void dpari_keep_front(dpar_planner *p, const dpar_plan *plan)
{
    double rate = plan->step.samples / plan->step.total;
    int32_t i, k = 0;
    if (p->front_room < 2) {
        return;
    }
    for (i = 0; i < p->fronts; i++) {
        const dpar_plan *f = &p->front[i];
        if (f->step.samples / f->step.total >= rate && f->memory.total <= plan->memory.total) {
            return;
        }
    }
    for (i = 0; i < p->fronts; i++) {
        const dpar_plan *f = &p->front[i];
        if (!(rate >= f->step.samples / f->step.total && plan->memory.total <= f->memory.total)) {
            p->front[k++] = *f;
        }
    }
    p->fronts = k;
    if (p->fronts == p->front_room) { /* the inner one nearest in memory to its neighbour goes */
        int32_t drop = 1;
        double best = -1.0;
        for (i = 1; i + 1 < p->fronts; i++) {
            double gap = p->front[i - 1].memory.total - p->front[i + 1].memory.total;
            if (best < 0.0 || gap < best) {
                best = gap;
                drop = i;
            }
        }
        for (i = drop; i + 1 < p->fronts; i++) {
            p->front[i] = p->front[i + 1];
        }
        p->fronts--;
    }
    for (i = p->fronts++; i > 0 && dpari_better(plan, &p->front[i - 1]); i--) {
        p->front[i] = p->front[i - 1];
    }
    p->front[i] = *plan;
}

/* ---- the inner walk ------------------------------------------------------------------------- */

static int dpari_wanted(const dpar_search *q, int32_t field, int32_t value, int32_t fixed)
{
    return !dpari_fixed(q, field) || value == fixed;
}

static double dpari_limit(const dpar_planner *p)
{
    return p->search.memory_bytes > 0.0 ? p->search.memory_bytes : p->job.cluster->gpu.memory_bytes;
}

/* Is this ZeRO stage among the options? Usual: 1 at most with pipelines, which would gather for
 * every micro-batch. */
static int dpari_walk_zero(const dpar_planner *p, const dpar_strategy *s, int32_t zero)
{
    const dpar_search *q = &p->search;
    if (dpari_fixed(q, DPAR_FIELD_ZERO)) {
        return zero == q->fixed.zero;
    }
    if (zero > 0 && ((int64_t)s->dp * s->cp * s->tiles[0] * s->tiles[1] * s->tiles[2] == 1 ||
                     !p->job.work->trains)) {
        return 0;
    }
    return q->space == DPAR_SPACE_WHOLE || zero < 2 || s->pp == 1;
}

/* The k-th shard group: all of dp, or the ranks of one node (HSDP); 0: there is none. */
static int32_t dpari_walk_shard(const dpar_planner *p, const dpar_strategy *s, int32_t k)
{
    const dpar_search *q = &p->search;
    int64_t together = (int64_t)s->tp * s->cp * s->tiles[0] * s->tiles[1] * s->tiles[2];
    int64_t in_node = p->job.cluster->gpus_per_node / together;
    if (dpari_fixed(q, DPAR_FIELD_SHARD)) {
        return k > 0 ? 0 : q->fixed.shard > 0 ? q->fixed.shard : s->dp;
    }
    if (k == 0) {
        return s->dp;
    }
    return s->zero > 0 && in_node > 1 && in_node < s->dp && s->dp % in_node == 0 ? (int32_t)in_node
                                                                                 : 0;
}

static int32_t dpari_walk_offloads(const dpar_planner *p)
{
    return p->search.space == DPAR_SPACE_WHOLE && p->job.work->trains &&
                   p->job.cluster->host_bytes > 0.0 && !dpari_fixed(&p->search, DPAR_FIELD_OFFLOAD)
               ? (p->job.cluster->nvme_Bps > 0.0 ? 12 : 8)
               : 1;
}

/* The k-th offload: every set of three, then those that put the optimizer on NVMe. */
static int32_t dpari_walk_offload(const dpar_planner *p, int32_t k)
{
    return dpari_fixed(&p->search, DPAR_FIELD_OFFLOAD) ? p->search.fixed.offload
           : k < 8                                     ? k
                                                       : DPAR_OFFLOAD_NVME + 2 * (k - 8) + 1;
}

/* How many overlaps: bit 0 data parallelism, bit 1 pipeline. */
static int32_t dpari_walk_overlaps(const dpar_planner *p, const dpar_strategy *s)
{
    if (p->search.space != DPAR_SPACE_WHOLE || !p->job.work->trains ||
        dpari_fixed(&p->search, DPAR_FIELD_OVERLAP)) {
        return 1;
    }
    return s->pp > 1 ? 4 : 2;
}

/* How many configurations the data level holds. */
static int64_t dpari_walk_count(const dpar_planner *p, const dpar_strategy *outer)
{
    dpar_strategy s = *outer;
    int64_t n = 0;
    for (s.zero = 0; s.zero < 4; s.zero++) {
        if (dpari_walk_zero(p, &s, s.zero)) {
            n += dpari_walk_shard(p, &s, 1) > 0 ? 2 : 1;
        }
    }
    return n * dpari_walk_offloads(p) * dpari_walk_overlaps(p, outer);
}

/* Counts configurations out, by the rule that cut them. */
static void dpari_walk_out(dpar_planner *p, int32_t rule, int64_t n)
{
    p->rejected[rule] += n;
    p->walked += n;
}

/* What does not fit, and what came nearest. */
static void dpari_walk_too_big(dpar_planner *p, const dpar_memory *m)
{
    double limit = dpari_limit(p), bytes = m->upper;
    int64_t mb;
    if (bytes <= limit) { /* the host is what is too small */
        bytes = limit + m->host - p->job.cluster->host_bytes / p->job.cluster->gpus_per_node;
    }
    mb = bytes < 9e18 ? (int64_t)(bytes * 1e-6) : INT64_MAX;
    p->rejected[DPAR_RULE_MEMORY]++;
    if (p->state[DPARI_NEAREST_BYTES] == 0 || mb < p->state[DPARI_NEAREST_BYTES]) {
        p->state[DPARI_NEAREST_BYTES] = mb;
    }
}

/* Prices what differs in overlap only: the memory once, the time of each. */
static void dpari_walk_price(dpar_planner *p, const dpar_strategy *outer,
                             const dpari_stages *stages)
{
    int32_t overlaps = dpari_walk_overlaps(p, outer), overlap;
    dpar_plan plan;
    dpari_zero(&plan, sizeof(plan)); /* padding too: the same bytes for the same search */
    plan.strategy = *outer;
    dpari_price_memory(&p->job, outer, stages, &plan.memory);
    plan.fits = dpar_memory_fits(&p->job, &plan.memory, p->search.memory_bytes);
    for (overlap = 0; overlap < overlaps; overlap++) {
        if (overlaps > 1) {
            plan.strategy.overlap = (outer->overlap & DPAR_OVERLAP_TP) |
                                    (overlap & 1 ? DPAR_OVERLAP_DP : 0) |
                                    (overlap & 2 ? DPAR_OVERLAP_PP : 0);
        }
        dpari_price_step(&p->job, &plan.strategy, stages, &plan.step);
        p->evaluated++;
        p->walked++;
        if (plan.fits) {
            dpari_keep_top(p, &plan);
            dpari_keep_front(p, &plan);
        } else {
            dpari_walk_too_big(p, &plan.memory);
        }
    }
}

/* ZeRO stage, offload, shard group. */
static void dpari_walk_data(dpar_planner *p, const dpar_strategy *outer, const dpari_stages *stages)
{
    dpar_strategy s = *outer;
    int32_t offloads = dpari_walk_offloads(p), offload, k;
    for (s.zero = 0; s.zero < 4; s.zero++) {
        if (!dpari_walk_zero(p, &s, s.zero)) {
            continue;
        }
        for (offload = 0; offload < offloads; offload++) {
            s.offload = dpari_walk_offload(p, offload);
            for (k = 0; k < 2; k++) {
                s.shard = dpari_walk_shard(p, &s, k);
                if (s.shard > 0 && s.dp % s.shard != 0) {
                    dpari_walk_out(p, DPAR_RULE_ZERO, dpari_walk_overlaps(p, &s));
                } else if (s.shard > 0) {
                    dpari_walk_price(p, &s, stages);
                }
            }
        }
    }
}

/* Micro-batches from the global batch; a free batch takes four a stage. 0: it does not divide. */
static int32_t dpari_walk_batches(const dpar_planner *p, const dpar_strategy *s)
{
    int64_t per = (int64_t)s->dp * s->micro_batch, batch = p->search.global_batch;
    if (dpari_fixed(&p->search, DPAR_FIELD_MICRO_BATCHES)) {
        int64_t m = p->search.fixed.micro_batches;
        return batch == 0 || (per > 0 && m > 0 && batch / per == m && batch % per == 0) ? (int32_t)m
                                                                                        : 0;
    }
    if (batch == 0) {
        return 4 * s->pp;
    }
    return per > 0 && batch % per == 0 && batch / per <= INT32_MAX ? (int32_t)(batch / per) : 0;
}

/* The time of a step is at least that of its micro-batches on the slowest stage: when that alone is
 * slower than all that are kept, nothing of the data level can be among them. Not in the whole
 * space, and not when a front is wanted: there everything is priced. */
static int dpari_walk_hopeless(const dpar_planner *p, const dpar_strategy *s,
                               const dpari_stages *stages)
{
    double slow = 0.0, samples = (double)s->dp * s->micro_batch;
    const dpar_plan *worst = &p->top[p->tops - 1];
    int32_t i;
    if (p->search.space == DPAR_SPACE_WHOLE || p->front_room >= 2 || p->tops == 0 ||
        p->tops < p->top_room) {
        return 0;
    }
    for (i = 0; i < stages->n; i++) {
        slow = dpari_mostf(slow, stages->of[i].total);
    }
    return samples * worst->step.total < slow * worst->step.samples * (1.0 - 1e-9);
}

/* The layers of one outer position lie in the planner, not on the stack; both are plain doubles. */
typedef char dpari_layers_fit[sizeof(dpari_layers) <= sizeof(((dpar_planner *)0)->layers) ? 1 : -1];

static dpari_layers *dpari_walk_layers(dpar_planner *p, const dpar_strategy *s)
{
    dpari_layers *layers = (dpari_layers *)(void *)p->layers;
    if (p->state[DPARI_PRICED] == 0) { /* when the first legal configuration asks for them */
        dpari_price_layers(&p->job, s, layers);
        p->state[DPARI_PRICED] = 1;
    }
    return layers;
}

/* The stages of one recomputation, priced; then the data level. */
static void dpari_walk_stages(dpar_planner *p, const dpar_strategy *s)
{
    int32_t out = (int32_t)p->state[DPARI_OUT_RULE];
    dpari_stages stages;
    if (out != DPAR_RULE_NONE) {
        dpari_walk_out(p, out, dpari_walk_count(p, s));
        return;
    }
    dpari_price_stages(&p->job, s, dpari_walk_layers(p, s), &stages);
    if (dpari_walk_hopeless(p, s, &stages)) {
        int64_t n = dpari_walk_count(p, s);
        p->cut += n;
        p->walked += n;
    } else {
        dpari_walk_data(p, s, &stages);
    }
}

/* None, selective where scores are kept, full: of all layers, and of half of a stage's. */
static void dpari_walk_recompute(dpar_planner *p, dpar_strategy *s)
{
    const dpar_search *q = &p->search;
    const dpar_workload *w = p->job.work;
    int32_t half = w->blocks / s->pp / 2, r;
    for (r = 0; r < DPAR_RECOMPUTES; r++) {
        int32_t layers =
            dpari_fixed(q, DPAR_FIELD_RECOMPUTE_LAYERS) ? q->fixed.recompute_layers : 0;
        if (!dpari_wanted(q, DPAR_FIELD_RECOMPUTE, r, q->fixed.recompute) ||
            (layers > 0 && (r != DPAR_RECOMPUTE_FULL || layers > w->blocks)) ||
            (!dpari_fixed(q, DPAR_FIELD_RECOMPUTE) &&
             ((!w->trains && r > 0) ||
              (r == DPAR_RECOMPUTE_SELECTIVE && w->attention != DPAR_ATTENTION_UNFUSED)))) {
            continue;
        }
        s->recompute = r;
        s->recompute_layers = layers;
        dpari_walk_stages(p, s);
        if (r == DPAR_RECOMPUTE_FULL && half > 0 && !dpari_fixed(q, DPAR_FIELD_RECOMPUTE_LAYERS)) {
            s->recompute_layers = half;
            dpari_walk_stages(p, s);
        }
    }
}

/* Which schedules are tried with this vp: usual ones, or all. */
static int dpari_walk_schedule(const dpar_search *q, const dpar_strategy *s, int32_t schedule)
{
    int whole = q->space == DPAR_SPACE_WHOLE;
    if (dpari_fixed(q, DPAR_FIELD_SCHEDULE)) {
        return schedule == q->fixed.schedule;
    }
    if (s->pp == 1) {
        return schedule == DPAR_1F1B;
    }
    if (s->vp == 1) {
        return schedule == DPAR_1F1B ||
               (whole && (schedule == DPAR_GPIPE || schedule == DPAR_ZB_H1 ||
                          schedule == DPAR_ZB_2P || schedule == DPAR_DUALPIPE));
    }
    return schedule == DPAR_INTERLEAVED ||
           (whole && (schedule == DPAR_BREADTH_FIRST ||
                      (s->vp == 2 && (schedule == DPAR_ZBV || schedule == DPAR_V_HALF ||
                                      schedule == DPAR_V_MIN || schedule == DPAR_DUALPIPEV))));
}

static void dpari_walk_pipeline(dpar_planner *p, dpar_strategy *s)
{
    const dpar_search *q = &p->search;
    int32_t schedule, rule = 0, vp, blocks = p->job.work->blocks;
    int32_t most = s->pp == 1 ? 1 : blocks / s->pp;
    int64_t out = p->state[DPARI_OUT_RULE];
    for (vp = 1; vp <= most || vp == 1; vp++) {
        if (!dpari_wanted(q, DPAR_FIELD_VP, vp, q->fixed.vp) ||
            (vp > 1 && blocks % ((int64_t)s->pp * vp) != 0)) {
            continue;
        }
        s->vp = vp;
        for (schedule = 0; schedule < DPAR_PRICED_SCHEDULES; schedule++) {
            if (!dpari_walk_schedule(q, s, schedule)) {
                continue;
            }
            s->schedule = schedule;
            if (out == DPAR_RULE_NONE &&
                dpar_strategy_check(&p->job, s, 0, &rule, NULL) != DPAR_OK) {
                p->state[DPARI_OUT_RULE] = rule;
            }
            dpari_walk_recompute(p, s);
            p->state[DPARI_OUT_RULE] = out;
        }
    }
}

/* Pipelines that divide the `rest` of the ranks; what remains is data parallelism. */
static void dpari_walk_ranks(dpar_planner *p, dpar_strategy *s, int32_t rest)
{
    const dpar_search *q = &p->search;
    const dpar_workload *w = p->job.work;
    int64_t out = p->state[DPARI_OUT_RULE];
    p->state[DPARI_PRICED] = 0;
    for (s->pp = 1; s->pp <= rest && s->pp <= dpari_most(1, w->blocks); s->pp++) {
        s->dp = rest / s->pp;
        if (rest % s->pp != 0 || !dpari_wanted(q, DPAR_FIELD_PP, s->pp, q->fixed.pp) ||
            !dpari_wanted(q, DPAR_FIELD_DP, s->dp, q->fixed.dp) ||
            (!w->trains && (s->pp > 1 || s->dp > 1) && w->dims > 0 && q->global_batch <= 1)) {
            continue;
        }
        s->micro_batches = dpari_walk_batches(p, s);
        if (s->micro_batches == 0) {
            s->micro_batches = 1;
            p->state[DPARI_OUT_RULE] = out == DPAR_RULE_NONE ? (int64_t)DPAR_RULE_BATCH : out;
        }
        dpari_walk_pipeline(p, s);
        p->state[DPARI_OUT_RULE] = out;
    }
}

/* The rule that a position breaks whatever comes further in; the cheapest to see first. */
static int32_t dpari_walk_early(const dpar_planner *p, const dpar_strategy *s, int64_t ranks)
{
    const dpar_workload *w = p->job.work;
    int32_t node = p->job.cluster->gpus_per_node;
    if (ranks < 1 || p->search.gpus % ranks != 0) {
        return DPAR_RULE_RANKS;
    }
    if (s->tp > 1 && (w->heads % s->tp != 0 || w->hidden % s->tp != 0)) {
        return DPAR_RULE_TP_HEADS;
    }
    if (p->search.space != DPAR_SPACE_WHOLE && !dpari_fixed(&p->search, DPAR_FIELD_TP) &&
        node % s->tp != 0) {
        return DPAR_RULE_TP_WIDE;
    }
    return DPAR_RULE_NONE;
}

/* All of one outer position. */
static void dpari_walk_position(dpar_planner *p)
{
    dpar_strategy s;
    int64_t ranks = 1;
    int32_t i, rule;
    if (!dpari_walk_outer(p, &s)) {
        return;
    }
    for (i = 0; i < 3; i++) {
        if (s.tiles[i] < 1 || !dpari_mul(ranks, s.tiles[i], &ranks)) {
            ranks = 0;
        }
    }
    if (s.tp < 1 || s.cp < 1 || !dpari_mul(ranks, s.tp, &ranks) ||
        !dpari_mul(ranks, s.cp, &ranks)) {
        ranks = 0;
    }
    rule = dpari_walk_early(p, &s, ranks);
    if (rule == DPAR_RULE_RANKS) { /* no pp and dp go with it: counted with one of each */
        s.tp = s.cp = s.tiles[0] = s.tiles[1] = s.tiles[2] = 1;
        ranks = p->search.gpus;
    }
    p->state[DPARI_OUT_RULE] = rule;
    dpari_walk_ranks(p, &s, (int32_t)(p->search.gpus / ranks));
    p->state[DPARI_OUT_RULE] = DPAR_RULE_NONE;
}

/* ---- the search ----------------------------------------------------------------------------- */

DPAR_API dpar_status dpar_planner_init(dpar_planner *p, const dpar_job *job,
                                       const dpar_search *search, dpar_plan *top, int32_t top_room,
                                       dpar_plan *front, int32_t front_room, dpar_why *why)
{
    dpar_status st = dpar_workload_check(job->work, why);
    int32_t i;
    if (st == DPAR_OK) {
        st = dpar_cluster_check(job->cluster, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    if (search->global_batch < 0 || search->gpus < 0 ||
        (search->gpus > 0 && search->gpus != dpar_cluster_gpus(job->cluster))) {
        return dpari_say(DPAR_E_ARG, why,
                         "the search is for # GPUs and a global batch of #, the cluster has # "
                         "(resize it)",
                         search->gpus, search->global_batch, dpar_cluster_gpus(job->cluster), 0);
    }
    dpari_zero(p, sizeof(*p));
    p->job = *job;
    p->search = *search;
    p->search.gpus = dpar_cluster_gpus(job->cluster);
    p->top = top;
    p->top_room = top != NULL ? top_room : 0;
    p->front = front;
    p->front_room = front != NULL ? front_room : 0;
    p->state[DPARI_TOTAL] = 1;
    for (i = 0; i < DPARI_AXES; i++) {
        p->state[DPARI_LENGTH + i] = dpari_most(1, dpari_axis_length(p, i));
        p->state[DPARI_TOTAL] *= p->state[DPARI_LENGTH + i];
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_planner_run(dpar_planner *p, int64_t budget, dpar_why *why)
{
    int64_t until = budget < 1 ? 1 : budget, near_tenths, i;
    until = until > INT64_MAX - p->walked ? INT64_MAX : p->walked + until;
    while (p->state[DPARI_POSITION] < p->state[DPARI_TOTAL]) {
        if (p->walked >= until) {
            return DPAR_MORE;
        }
        dpari_walk_position(p);
        p->state[DPARI_POSITION]++;
        for (i = 0; i < DPARI_AXES; i++) {
            if (++p->state[i] < p->state[DPARI_LENGTH + i]) {
                break;
            }
            p->state[i] = 0;
        }
    }
    if (p->tops > 0 || p->top_room == 0) {
        return DPAR_DONE;
    }
    if (p->evaluated == 0) {
        return dpari_say(DPAR_E_NONE, why,
                         "none of # configurations is legal on # GPUs with a global batch of #",
                         p->walked, p->search.gpus, p->search.global_batch, 0);
    }
    near_tenths = dpari_tenths((double)p->state[DPARI_NEAREST_BYTES] * 1e6);
    return dpari_say(DPAR_E_NONE, why,
                     "nothing fits: the nearest of # configurations needs #.# GB, the GPU has # GB",
                     p->evaluated, near_tenths / 10, near_tenths % 10,
                     (int64_t)(dpari_limit(p) * 1e-9 + 0.5));
}

DPAR_API double dpar_planner_progress(const dpar_planner *p)
{
    return p->state[DPARI_TOTAL] > 0
               ? (double)p->state[DPARI_POSITION] / (double)p->state[DPARI_TOTAL]
               : 1.0;
}

/* ---- neighbours ----------------------------------------------------------------------------- */

static void dpari_arrow(dpar_text *t, const char *name, int32_t from, int32_t to)
{
    dpar_text_put(t, name);
    dpar_text_char(t, ' ');
    dpar_text_int(t, from);
    dpar_text_put(t, " -> ");
    dpar_text_int(t, to);
}

/* The options: ZeRO stage, recomputation, HSDP or all. 0 when the change cannot be made. */
static int dpari_neighbour_option(const dpar_job *job, const dpar_strategy *s, int32_t pair,
                                  int32_t up, dpar_strategy *n, dpar_text *t)
{
    int32_t in_node = job->cluster->gpus_per_node / s->tp / s->cp;
    int32_t all = s->shard < 1 ? s->dp : s->shard;
    if (pair == 3) {
        n->zero += up ? 1 : -1;
        dpari_arrow(t, "zero", s->zero, n->zero);
        return n->zero >= 0 && n->zero <= 3 && s->dp > 1 && job->work->trains;
    }
    if (pair == 4) {
        n->recompute = up ? DPAR_RECOMPUTE_FULL : DPAR_RECOMPUTE_NONE;
        n->recompute_layers = 0;
        dpar_text_put(t, "recompute ");
        dpar_text_put(t, dpar_recompute_name(s->recompute));
        dpar_text_put(t, s->recompute_layers > 0 ? " (part) -> " : " -> ");
        dpar_text_put(t, dpar_recompute_name(n->recompute));
        return (n->recompute != s->recompute || n->recompute_layers != s->recompute_layers) &&
               job->work->trains;
    }
    n->shard = up ? s->dp : in_node;
    dpari_arrow(t, "shard", all, n->shard);
    return s->zero > 0 && n->shard > 1 && n->shard != all && s->dp % n->shard == 0;
}

/* The k-th change of a plan, in words and as a strategy; 0 when it cannot be made. */
static int dpari_neighbour(const dpar_job *job, const dpar_strategy *s, int32_t k, dpar_strategy *n,
                           dpar_text *t)
{
    static const char name[9][8] = {"tp", "pp", "mbs", "", "", "vp", "", "ep", "cp"};
    int32_t ranks = dpar_strategy_ranks(s), pair = k / 2, up = k % 2, from, *at;
    int64_t model;
    *n = *s;
    if (pair == 3 || pair == 4 || pair == 6) {
        return dpari_neighbour_option(job, s, pair, up, n, t);
    }
    at = pair == 0   ? &n->tp
         : pair == 1 ? &n->pp
         : pair == 2 ? &n->micro_batch
         : pair == 5 ? &n->vp
         : pair == 7 ? &n->ep
                     : &n->cp;
    from = *at;
    if ((!up && from % 2 != 0) || from > INT32_C(0x20000000) ||
        (pair == 7 && job->work->experts == 0) || (pair == 5 && s->pp == 1) ||
        (pair == 8 && job->work->vocab == 0)) {
        return 0;
    }
    *at = up ? 2 * from : from / 2;
    dpari_arrow(t, name[pair], from, *at);
    n->sp = n->tp > 1 ? (s->tp > 1 ? s->sp : 1) : 0;
    if (pair == 1) {
        n->vp = 1;
        n->schedule = DPAR_1F1B;
    } else if (pair == 5) {
        n->schedule = n->vp > 1 ? DPAR_INTERLEAVED : DPAR_1F1B;
    }
    model = (int64_t)n->tp * n->cp * n->pp;
    model *= (int64_t)n->tiles[0] * n->tiles[1] * n->tiles[2];
    if (model < 1 || ranks % model != 0 ||
        (n->vp > 1 && job->work->blocks % ((int64_t)n->pp * n->vp) != 0)) {
        return 0;
    }
    n->dp = (int32_t)(ranks / model);
    n->shard = n->dp == s->dp ? s->shard : 0;
    return n->tp <= job->cluster->gpus_per_node || n->tp <= s->tp;
}

static void dpari_neighbour_text(const dpar_job *job, const dpar_plan *plan, const dpar_plan *other,
                                 dpar_rejected *r, dpar_text *t)
{
    double ratio =
        other->step.total * plan->step.samples / (plan->step.total * other->step.samples);
    dpar_text_put(t, ": ");
    if (!other->fits && other->memory.upper <= job->cluster->gpu.memory_bytes) {
        r->rule = DPAR_RULE_MEMORY;
        dpar_text_put(t, "offloads more than a node's memory holds");
        return;
    }
    if (!other->fits) {
        r->rule = DPAR_RULE_MEMORY;
        r->bytes_over = other->memory.upper - job->cluster->gpu.memory_bytes;
        dpar_text_put(t, "up to ");
        dpar_text_fixed(t, other->memory.upper * 1e-9, 1);
        dpar_text_put(t, " GB, a GPU has ");
        dpar_text_fixed(t, job->cluster->gpu.memory_bytes * 1e-9, 0);
        return;
    }
    r->rule = DPAR_RULE_NONE;
    if (ratio > 0.9995 && ratio < 1.0005) {
        dpar_text_put(t, "as fast");
    } else {
        dpar_text_fixed(t, 100.0 * (ratio >= 1.0 ? ratio - 1.0 : 1.0 - ratio), 1);
        dpar_text_put(t, ratio >= 1.0 ? " % slower" : " % faster");
    }
    dpar_text_put(t, ", ");
    dpar_text_fixed(t, other->memory.total * 1e-9, 1);
    dpar_text_put(t, " GB");
    if ((int32_t)(100.0 * other->step.bubble + 0.5) != (int32_t)(100.0 * plan->step.bubble + 0.5)) {
        dpar_text_put(t, ", bubble ");
        dpar_text_fixed(t, 100.0 * other->step.bubble, 0);
        dpar_text_put(t, " % instead of ");
        dpar_text_fixed(t, 100.0 * plan->step.bubble, 0);
        dpar_text_put(t, " %");
    }
}

DPAR_API int32_t dpar_plan_neighbours(const dpar_job *job, const dpar_plan *plan,
                                      int64_t global_batch, dpar_rejected *out, int32_t room)
{
    const dpar_strategy *s = &plan->strategy;
    int64_t batch = (int64_t)s->dp * s->micro_batch * s->micro_batches;
    int32_t k, n = 0;
    for (k = 0; k < 18 && n < room; k++) {
        dpar_rejected *r = &out[n];
        dpar_plan other;
        dpar_text t;
        dpar_why why;
        int64_t per;
        dpar_status st;
        dpari_zero(r, sizeof(*r));
        dpar_text_init(&t, r->text, sizeof(r->text));
        if (!dpari_neighbour(job, s, k, &r->strategy, &t)) {
            continue;
        }
        per = (int64_t)r->strategy.dp * r->strategy.micro_batch;
        if (batch % per == 0 && batch / per <= INT32_MAX) { /* the same batch, also where free */
            r->strategy.micro_batches = (int32_t)(batch / per);
        }
        st = dpar_plan_of(job, &r->strategy, global_batch, &other, &r->rule, &why);
        if (st == DPAR_OK || st == DPAR_E_MEMORY) {
            r->seconds = other.step.total;
            dpari_neighbour_text(job, plan, &other, r, &t);
        } else {
            dpar_text_put(&t, ": ");
            dpar_text_put(&t, why.text);
        }
        n++;
    }
    return n;
}

/* ---- nearest legal -------------------------------------------------------------------------- */

enum { DPARI_NEAR = 6 };

static double dpari_apart(int32_t a, int32_t b)
{
    double x = a > 0 ? a : 1, y = b > 0 ? b : 1;
    return x > y ? x / y : y / x;
}

/* The divisors of n, at most `limit`, nearest to `want` in ratio, the nearest first. */
static int32_t dpari_near_divisors(int32_t n, int32_t want, int64_t limit, int32_t *list)
{
    int32_t i, k, d, count = 0;
    for (i = 0; (d = dpari_divisor(n, i)) > 0 && d <= limit; i++) {
        for (k = count < DPARI_NEAR ? count++ : DPARI_NEAR; k > 0; k--) {
            if (dpari_apart(list[k - 1], want) <= dpari_apart(d, want)) {
                break;
            }
            if (k < DPARI_NEAR) {
                list[k] = list[k - 1];
            }
        }
        if (k < DPARI_NEAR) {
            list[k] = d;
        }
    }
    return count;
}

static int32_t dpari_nearest_divisor(int32_t n, int32_t want)
{
    int32_t list[DPARI_NEAR];
    return dpari_near_divisors(n > 0 ? n : 1, want, INT32_MAX, list) > 0 ? list[0] : 1;
}

static int32_t dpari_common(int32_t a, int32_t b)
{
    while (b != 0) {
        int32_t r = a % b;
        a = b;
        b = r;
    }
    return a > 0 ? a : 1;
}

/* How far two strategies are apart: twice the ratio for a degree that differs, twice for an option;
 * the product of all. 1: the same. */
static double dpari_distance(const dpar_strategy *a, const dpar_strategy *b)
{
    int32_t x[10], y[10], i;
    double far_apart = 1.0;
    const dpar_strategy *s = a;
    int32_t *to = x;
    for (i = 0; i < 2; i++, s = b, to = y) {
        to[0] = s->tp;
        to[1] = s->cp;
        to[2] = s->dp;
        to[3] = s->pp;
        to[4] = s->vp;
        to[5] = s->ep;
        to[6] = s->etp;
        to[7] = s->micro_batch;
        to[8] = s->micro_batches;
        to[9] = s->shard;
    }
    for (i = 0; i < 10; i++) {
        far_apart *= x[i] != y[i] ? 2.0 * dpari_apart(x[i], y[i]) : 1.0;
    }
    far_apart *= a->sp != b->sp ? 2.0 : 1.0;
    far_apart *= a->cp_kind != b->cp_kind ? 2.0 : 1.0;
    far_apart *= a->zero != b->zero ? 2.0 : 1.0;
    far_apart *= a->schedule != b->schedule ? 2.0 : 1.0;
    far_apart *= a->recompute != b->recompute ? 2.0 : 1.0;
    far_apart *= a->offload != b->offload ? 2.0 : 1.0;
    for (i = 0; i < 3; i++) {
        far_apart *= a->tiles[i] != b->tiles[i] ? 2.0 * dpari_apart(a->tiles[i], b->tiles[i]) : 1.0;
    }
    return far_apart;
}

static int32_t dpari_within(int32_t v, int32_t least, int32_t most)
{
    return v < least ? least : v > most ? most : v;
}

/* Options into their ranges; what has no effect here is switched off. */
static void dpari_sane(const dpar_job *job, dpar_strategy *s)
{
    const dpar_workload *w = job->work;
    int32_t i;
    s->zero = dpari_within(s->zero, 0, 3);
    s->recompute = w->trains ? dpari_within(s->recompute, 0, DPAR_RECOMPUTES - 1) : 0;
    s->schedule = dpari_within(s->schedule, 0, DPAR_PRICED_SCHEDULES - 1);
    s->cp_kind = dpari_within(s->cp_kind, 0, DPAR_CP_KINDS - 1);
    s->recompute_layers =
        s->recompute == DPAR_RECOMPUTE_FULL ? dpari_within(s->recompute_layers, 0, w->blocks) : 0;
    s->vp = dpari_within(s->vp, 1, INT32_MAX);
    s->micro_batch = dpari_within(s->micro_batch, 1, INT32_MAX);
    s->micro_batches = dpari_within(s->micro_batches, 1, INT32_MAX);
    s->offload = job->cluster->host_bytes > 0.0 ? s->offload & 15 : 0;
    if (!(job->cluster->nvme_Bps > 0.0) || !(s->offload & DPAR_OFFLOAD_OPTIMIZER)) {
        s->offload &= 7;
    }
    for (i = 0; i < 3; i++) {
        s->tiles[i] = i < w->dims ? dpari_within(s->tiles[i], 1, INT32_MAX) : 1;
    }
    s->etp = w->experts > 0 ? dpari_within(s->etp, 1, INT32_MAX) : 1;
}

/* What follows from the degrees: data parallelism, experts, shards, micro-batches. */
static void dpari_follow(const dpar_job *job, dpar_strategy *n, int32_t rest, int64_t batch)
{
    const dpar_workload *w = job->work;
    int32_t ranks, each;
    n->dp = rest;
    n->sp = (n->sp > 0 || w->experts > 0) && n->tp > 1 && dpari_sequence_cuts(w, n);
    n->vp = n->pp > 1 ? n->vp : 1;
    n->shard = n->shard < 1 || n->dp % n->shard != 0 ? 0 : n->shard;
    ranks = n->tp * n->cp * n->dp;
    n->etp = ranks % n->etp == 0 ? n->etp : 1;
    n->ep =
        w->experts > 0 ? dpari_nearest_divisor(dpari_common(w->experts, ranks / n->etp), n->ep) : 1;
    if (batch > 0 && batch % n->dp == 0) {
        each = (int32_t)dpari_least(INT32_MAX, batch / n->dp);
        n->micro_batch = dpari_nearest_divisor(each, n->micro_batch);
        n->micro_batches = each / n->micro_batch;
    }
}

/* The strategy as it is, or with a plain pipeline: what is legal and nearer than `best`. */
static double dpari_try_near(const dpar_job *job, const dpar_strategy *asked, dpar_strategy *n,
                             int64_t batch, double best, dpar_strategy *near_one)
{
    int32_t plain;
    for (plain = 0; plain < 2; plain++) {
        double apart;
        if (plain) {
            n->vp = 1;
            n->schedule = DPAR_1F1B;
        }
        apart = dpari_distance(asked, n);
        if ((best <= 0.0 || apart < best) &&
            dpar_strategy_check(job, n, batch, NULL, NULL) == DPAR_OK) {
            *near_one = *n;
            return apart;
        }
    }
    return best;
}

/* All degrees near those asked for, given the tiles. */
static double dpari_search_near(const dpar_job *job, const dpar_strategy *asked,
                                const dpar_strategy *sane, int32_t rest, int64_t batch, double best,
                                dpar_strategy *near_one)
{
    const dpar_workload *w = job->work;
    int32_t tp[DPARI_NEAR], cp[DPARI_NEAR], pp[DPARI_NEAR], tps, cps, pps, i, j, k;
    tps = dpari_near_divisors(w->heads > 0 ? dpari_common(dpari_common(w->heads, w->hidden), rest)
                                           : 1,
                              sane->tp, INT32_MAX, tp);
    for (i = 0; i < tps; i++) {
        cps = dpari_near_divisors(w->heads > 0 ? rest / tp[i] : 1, sane->cp, INT32_C(65536), cp);
        for (j = 0; j < cps; j++) {
            int32_t left = rest / tp[i] / cp[j];
            pps = dpari_near_divisors(left, sane->pp, w->blocks, pp);
            for (k = 0; k < pps; k++) {
                dpar_strategy n = *sane;
                n.tp = tp[i];
                n.cp = cp[j];
                n.pp = pp[k];
                dpari_follow(job, &n, left / pp[k], batch);
                best = dpari_try_near(job, asked, &n, batch, best, near_one);
            }
        }
    }
    return best;
}

DPAR_API dpar_status dpar_nearest_legal(const dpar_job *job, const dpar_strategy *s,
                                        int64_t global_batch, dpar_strategy *near_one,
                                        dpar_why *why)
{
    dpar_strategy sane = *s, found = *s;
    int32_t gpus = dpar_cluster_gpus(job->cluster), i;
    int64_t tiles = 1;
    double best = 0.0;
    dpar_status st = dpar_strategy_check(job, s, global_batch, NULL, why);
    if (st == DPAR_OK) {
        *near_one = *s;
        return DPAR_OK;
    }
    dpari_sane(job, &sane);
    for (i = 0; i < 3; i++) {
        tiles = dpari_mul(tiles, sane.tiles[i], &tiles) ? tiles : 0;
    }
    if (tiles > 0 && gpus % tiles == 0) {
        best = dpari_search_near(job, s, &sane, gpus / (int32_t)tiles, global_batch, best, &found);
    }
    for (i = 0; best <= 0.0 && job->work->dims > 0 && dpari_divisor(gpus, i) > 0; i++) {
        int32_t parts = dpari_divisor(gpus, i);
        dpari_cut_grid(job->work, parts, sane.tiles);
        best = dpari_search_near(job, s, &sane, gpus / parts, global_batch, best, &found);
    }
    if (best <= 0.0) {
        return DPAR_E_NONE; /* *why says what is wrong with what was asked */
    }
    *near_one = found;
    return DPAR_OK;
}

/* ---- smallest machine ----------------------------------------------------------------------- */

/* The sizes that a machine can have: parts of a node, then whole nodes. 0 past 2^31. */
static int32_t dpari_size_after(int32_t gpus, int32_t node, int32_t coarse)
{
    int64_t nodes = gpus / node, next;
    if (gpus < node) {
        return gpus + 1;
    }
    next = (nodes + (coarse && nodes >= 32 ? nodes / 16 : 1)) * node;
    return next <= INT32_MAX ? (int32_t)next : 0;
}

/* The best plan on so many GPUs of the cluster's kind. */
static dpar_status dpari_size_search(const dpar_job *job, const dpar_search *search, int32_t gpus,
                                     dpar_plan *plan, int64_t *nearest, dpar_why *why)
{
    dpar_cluster c = *job->cluster;
    dpar_job resized = *job;
    dpar_planner p;
    dpar_search q = *search;
    dpar_status st;
    resized.cluster = &c;
    if (c.nics < 1) { /* one node as described: more of them need some network */
        c.nics = c.gpus_per_node;
        c.nic_Bps = 25e9;
    }
    c.gpus_per_node = (int32_t)dpari_least(gpus, c.gpus_per_node);
    c.nodes = gpus / c.gpus_per_node;
    q.gpus = gpus;
    st = dpar_planner_init(&p, &resized, &q, plan, 1, NULL, 0, why);
    if (st != DPAR_OK) {
        return st;
    }
    do {
        st = dpar_planner_run(&p, INT64_MAX, why);
    } while (st == DPAR_MORE);
    *nearest = p.state[DPARI_NEAREST_BYTES];
    return st;
}

static void dpari_size_fix(dpar_search *q, int32_t field, int32_t *at, int32_t value)
{
    if (!dpari_fixed(q, field)) {
        *at = value;
        q->fixed_fields |= (uint32_t)1 << field;
    }
}

/* DONE when some plan fits on so many GPUs. Asked first where memory is least: short micro-batches
 * and everything recomputed and, if the search may, offloaded; the whole question only when that
 * misses by less than a quarter (one layer in flight is less without recomputation). */
static dpar_status dpari_size_fits(const dpar_job *job, const dpar_search *search, int32_t gpus,
                                   int64_t *priced, dpar_why *why)
{
    dpar_search q = *search;
    dpar_plan plan;
    int64_t nearest = 0;
    double limit =
        search->memory_bytes > 0.0 ? search->memory_bytes : job->cluster->gpu.memory_bytes;
    dpar_status st;
    dpari_size_fix(&q, DPAR_FIELD_VP, &q.fixed.vp, 1);
    dpari_size_fix(&q, DPAR_FIELD_MICRO_BATCH, &q.fixed.micro_batch, 1);
    if (job->work->trains) {
        dpari_size_fix(&q, DPAR_FIELD_RECOMPUTE, &q.fixed.recompute, DPAR_RECOMPUTE_FULL);
        dpari_size_fix(&q, DPAR_FIELD_RECOMPUTE_LAYERS, &q.fixed.recompute_layers, 0);
        dpari_size_fix(&q, DPAR_FIELD_OVERLAP, &q.fixed.overlap, 0);
    }
    if (q.space == DPAR_SPACE_WHOLE && job->work->trains && job->cluster->host_bytes > 0.0) {
        dpari_size_fix(&q, DPAR_FIELD_OFFLOAD, &q.fixed.offload,
                       DPAR_OFFLOAD_OPTIMIZER | DPAR_OFFLOAD_WEIGHTS | DPAR_OFFLOAD_ACTIVATIONS);
    }
    st = dpari_size_search(job, &q, gpus, &plan, &nearest, why);
    *priced += nearest; /* 0: nothing was legal */
    if (st != DPAR_E_NONE || (double)nearest > limit * 1.25e-6) {
        return st;
    }
    return dpari_size_search(job, search, gpus, &plan, &nearest, why);
}

/* Fewer GPUs than this cannot even hold the state between them. */
static int32_t dpari_size_least(const dpar_job *job, const dpar_search *search)
{
    const dpar_recipe *r = &job->recipe;
    double limit =
        search->memory_bytes > 0.0 ? search->memory_bytes : job->cluster->gpu.memory_bytes;
    double bytes = job->work->trains ? dpar_zero_bytes(r, job->work->params, 0, 1)
                                     : job->work->params * r->weight;
    double least = bytes / limit;
    int offload = search->space == DPAR_SPACE_WHOLE || dpari_fixed(search, DPAR_FIELD_OFFLOAD);
    int32_t node = job->cluster->gpus_per_node;
    if (offload || !(least > 1.0)) {
        return 1;
    }
    if (least >= 2e9) {
        return INT32_MAX;
    }
    return least < node ? (int32_t)least : (int32_t)(least / node) * node;
}

DPAR_API dpar_status dpar_smallest_machine(const dpar_job *job, const dpar_search *search,
                                           int32_t most_gpus, dpar_plan *plan, dpar_why *why)
{
    int32_t node = job->cluster->gpus_per_node, least, gpus, enough;
    int64_t nearest = 0, priced = 0;
    dpar_status st = dpar_cluster_check(job->cluster, why);
    if (st == DPAR_OK) {
        st = dpar_workload_check(job->work, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    least = dpari_size_least(job, search);
    st = DPAR_E_NONE;
    for (enough = least; enough > 0 && enough <= most_gpus;
         enough = dpari_size_after(enough, node, 1)) {
        st = dpari_size_fits(job, search, enough, &priced, why);
        if (st != DPAR_E_NONE) {
            break;
        }
    }
    if (st == DPAR_E_NONE) {
        return priced > 0
                   ? dpari_say(DPAR_E_NONE, why, "it does not fit on # GPUs or fewer", most_gpus, 0,
                               0, 0)
                   : dpari_say(DPAR_E_NONE, why,
                               "no number of GPUs up to # allows what is fixed, at a global batch "
                               "of #",
                               most_gpus, search->global_batch, 0, 0);
    }
    for (gpus = least; st == DPAR_DONE && gpus < enough; gpus = dpari_size_after(gpus, node, 0)) {
        if (dpari_size_fits(job, search, gpus, &priced, why) == DPAR_DONE) {
            enough = gpus;
        }
    }
    return st == DPAR_DONE
               ? dpari_size_search(job, search, enough, plan, &nearest, why) == DPAR_DONE
                     ? DPAR_OK
                     : DPAR_E_NONE
               : st;
}

/* ==== cost/price.c ==== */

/* ---- one operation -------------------------------------------------------------------------- */

/* What the pricing of a layer needs at every operation, computed once. */
typedef struct dpari_rates {
    double flop_s;      /* seconds a FLOP of a large matrix product */
    double attention_s; /* seconds a FLOP of fused attention, forward */
    double vector_s;    /* seconds a FLOP of element-wise arithmetic */
    double byte_s;      /* seconds an HBM byte */
    double wave;        /* outputs of one wave of tiles: 128 x 256 on every unit */
    double rows;        /* query rows that one wave of attention tiles takes, all heads */
    double launch_s;
    double accumulate; /* bytes to add one weight gradient to its sum: read and write */
    double tokens;     /* of the micro-batch, on this rank's slice of sequence or grid */
    double sequence;   /* divisor of SEQUENCE operations: tp under SP, else 1 */
    double routed;     /* rows of an expert rank over tokens x copies: etp of the tp slices */
    const dpar_strategy *s;
    const dpar_workload *w;
} dpari_rates;

/* A matrix product runs in waves of tiles over the units; the last wave is part empty and the first
 * and last tile overlap nothing: a share of a wave is lost. Measured shapes (op_efficiency tables)
 * lie on (waves + c) with c about a third. */
static const double dpari_wave_lost = 0.30;
/* Convolutions reach about this share of a plain product of the same size (cuDNN, channels last).
 */
static const double dpari_conv_share = 0.60;
/* Grouped products: many short ones, uneven (medians .65/.75 on A100, .30/.48 on B200). */
static const double dpari_grouped_share = 0.70;
/* Fused attention: the backward takes 2.4 times the forward (2.5 times the products, measured on
 * A100 and B200); one and a half waves of tiles are lost. The first generation of kernels ran at
 * about 0.6 of the later ones. */
static const double dpari_attention_back = 2.4;
static const double dpari_attention_lost = 1.5;
static const double dpari_flash1_share = 0.62;
/* Unfused attention products are batched, [s x d] x [d x s]: small inner width. */
static const double dpari_scores_share = 0.62;

DPARI_API double dpari_matrix_peak(const dpar_gpu *g, int32_t format, int32_t element)
{
    static const int8_t next[DPAR_FORMATS] = {DPAR_F64,  DPAR_F32,  DPAR_F32,
                                              DPAR_TF32, DPAR_BF16, DPAR_F8};
    int32_t f = element == 8 ? DPAR_F64 : format;
    while (f > DPAR_F32 && !(g->flops[f] > 0.0)) {
        f = next[f];
    }
    return g->flops[f] > 0.0 ? g->flops[f] : g->memory_Bps;
}

static dpari_rates dpari_rates_of(const dpar_job *job, const dpar_strategy *s)
{
    const dpar_gpu *g = &job->cluster->gpu;
    const double *cal = job->cluster->cal.value;
    double units = g->units > 0 ? g->units : 100.0, peak, bf16;
    dpari_rates r;
    dpari_zero(&r, sizeof(r));
    peak = dpari_matrix_peak(g, job->recipe.compute, job->work->element);
    bf16 = dpari_matrix_peak(g, DPAR_BF16, job->work->element);
    r.flop_s = 1.0 / (peak * cal[DPAR_CAL_GEMM]);
    /* fused attention stays in bf16 under 8-bit products, and in fp32 under those of fp32 */
    r.attention_s = 1.0 / (dpari_leastf(peak, bf16) * cal[DPAR_CAL_ATTENTION]);
    if (job->work->attention == DPAR_ATTENTION_FLASH1) {
        r.attention_s /= dpari_flash1_share;
    }
    r.vector_s = 1.0 / (0.7 * dpari_matrix_peak(g, DPAR_F32, job->work->element));
    r.byte_s = 1.0 / (g->memory_Bps * cal[DPAR_CAL_HBM]);
    r.wave = units * 128.0 * 256.0;
    r.rows = units * (g->generation == DPAR_GEN_BLACKWELL ? 256.0 : 128.0);
    r.launch_s = cal[DPAR_CAL_LAUNCH_S];
    r.accumulate = 2.0 * job->recipe.gradient;
    r.sequence = s->sp ? s->tp : 1.0;
    r.routed = s->etp / r.sequence;
    r.s = s;
    r.w = job->work;
    return r;
}

/* Tensor cores load 16 bytes at a time: a width that is no multiple of 8 elements (GPT-2's 50257
 * tokens, unpadded) runs at about a third. */
static const double dpari_unaligned_share = 0.33;

static int dpari_unaligned(double width)
{
    double eighths = width * 0.125;
    return eighths < 1e9 && eighths - (double)(int32_t)eighths > 0.0;
}

/* Weight gradients of convolutions have few outputs and a long sum over the pixels: the sum is cut
 * so that its parts fill a wave. In units of rows of the sum: what of the lost wave remains. */
static double dpari_split_sum(const dpari_rates *r, double outputs)
{
    return outputs < r->wave ? outputs / r->wave : 1.0;
}

/* [rows, k] x [k, n]. Rows of any number do: only the widths lie side by side in memory. */
static double dpari_product(const dpari_rates *r, double rows, double n, double k, double lost,
                            double share)
{
    double waves = rows * n / r->wave;
    return (waves + lost) * r->wave * 2.0 * k * r->flop_s / share;
}

/* How tensor or expert parallelism divides something. */
static double dpari_cut(const dpari_rates *r, int32_t cut)
{
    switch (cut) {
    case DPAR_CUT_SEQUENCE: return r->sequence;
    case DPAR_CUT_COLUMN:
    case DPAR_CUT_ROW:
    case DPAR_CUT_TENSOR: return r->s->tp;
    case DPAR_CUT_EXPERT: return 1.0 / r->routed;
    case DPAR_CUT_EXPERT_COLUMN:
    case DPAR_CUT_EXPERT_ROW:
    case DPAR_CUT_EXPERT_TENSOR: return r->sequence;
    default: return 1.0;
    }
}

/* Matrix product, plain, convolution or grouped: forward, and data and weight gradient. */
static void dpari_price_product(const dpari_rates *r, const dpar_op *op, double tokens,
                                dpari_layer_price *p)
{
    double rows = tokens, n = op->n, k = op->k, share = 1.0, wide, w, e = r->w->element;
    double lost = dpari_wave_lost; /* of the weight gradient */
    if (op->cut == DPAR_CUT_COLUMN) {
        n /= r->s->tp;
    } else if (op->cut == DPAR_CUT_ROW) {
        k /= r->s->tp;
    } else if (op->cut == DPAR_CUT_EXPERT_COLUMN) {
        n /= r->s->etp;
    } else if (op->cut == DPAR_CUT_EXPERT_ROW) {
        k /= r->s->etp;
    } else if (op->cut == DPAR_CUT_SEQUENCE) {
        rows /= r->sequence;
    }
    if (op->kind == DPAR_OP_EXPERTS) {
        /* every rank of an expert group computes the tokens of its own experts; balanced, that is
         * as many rows as its etp group sent, the fullest expert `capacity` times more */
        rows *= op->copies * r->w->capacity * r->routed;
        share = dpari_grouped_share;
    } else if (op->kind == DPAR_OP_CONV) {
        share = dpari_conv_share;
        lost *= dpari_split_sum(r, n * k);
    }
    wide = dpari_unaligned(n) || dpari_unaligned(k) ? dpari_unaligned_share * share : share;
    share = dpari_unaligned(k) ? wide : share;
    p->forward += dpari_product(r, rows, n, k, dpari_wave_lost, wide) + rows * n * e * r->byte_s;
    p->backward += dpari_product(r, rows, k, n, dpari_wave_lost, wide) + rows * k * e * r->byte_s;
    /* the weight gradient is added into a wide accumulator: read and written once */
    w = op->kind == DPAR_OP_EXPERTS ? op->params / (r->s->ep * r->s->etp) : n * k;
    p->backward += dpari_product(r, n, k, rows, lost, share) + w * r->accumulate * r->byte_s;
}

static void dpari_price_attention(const dpari_rates *r, const dpar_op *op, double tokens,
                                  dpari_layer_price *p)
{
    /* under Ulysses and the ring alike a rank computes tokens x all keys, heads / tp */
    double flops = 2.0 * tokens * op->n * op->k / r->s->tp;
    double waves = tokens * (op->heads > 0 ? op->heads : 1) / r->s->tp / r->rows;
    double t;
    if (op->kind == DPAR_OP_ATTENTION) {
        t = flops * r->attention_s * (1.0 + dpari_attention_lost / waves);
        p->forward += t;
        p->attention += t;
        p->backward += dpari_attention_back * t;
        return;
    }
    t = flops * r->flop_s / dpari_scores_share;
    p->forward += t;
    p->attention += t;
    p->backward += 2.0 * t;
    p->again[DPAR_RECOMPUTE_SELECTIVE] += t;
}

static void dpari_price_op(const dpari_rates *r, const dpar_op *op, double tokens,
                           dpari_layer_price *p)
{
    double cut = dpari_cut(r, op->cut), before = p->forward, save;
    if (op->kind == DPAR_OP_ATTENTION || op->kind == DPAR_OP_SCORES) {
        dpari_price_attention(r, op, tokens, p);
    } else if (op->kind != DPAR_OP_STREAM) {
        dpari_price_product(r, op, tokens, p);
    } else if (op->n > 0.0) {
        p->forward += dpari_mostf(2.0 * op->n * op->k * tokens * r->vector_s,
                                  op->touch * tokens * r->byte_s) -
                      op->touch * tokens * r->byte_s;
    }
    p->forward += op->touch * tokens / cut * r->byte_s;
    p->backward += op->touch_back * tokens / cut * r->byte_s;
    if (op->keep == DPAR_KEEP_SELECTIVE) {
        p->again[DPAR_RECOMPUTE_SELECTIVE] += p->forward - before;
    }
    p->host_forward += op->kernels * r->launch_s;
    save = op->save * tokens / dpari_cut(r, op->save_cut);
    p->kept[DPAR_RECOMPUTE_NONE] += save;
    p->kept[DPAR_RECOMPUTE_SELECTIVE] += op->keep == DPAR_KEEP_SELECTIVE ? 0.0 : save;
    p->kept[DPAR_RECOMPUTE_FULL] += op->keep == DPAR_KEEP_INPUT ? save : 0.0;
    p->transient = dpari_mostf(p->transient, op->transient * tokens / cut);
    if (op->cut >= DPAR_CUT_EXPERT) {
        p->expert_params += op->params / (r->s->ep * r->s->etp);
    } else if (op->cut == DPAR_CUT_COLUMN || op->cut == DPAR_CUT_ROW ||
               op->cut == DPAR_CUT_TENSOR) {
        p->params += op->params / r->s->tp;
    } else {
        p->params += op->params;
    }
}

DPARI_API int32_t dpari_overlap_of(const dpar_job *job, const dpar_strategy *s)
{
    if (!(s->overlap & DPAR_OVERLAP_DEFAULT)) {
        return s->overlap;
    }
    return job->work->stack == DPAR_STACK_MEGATRON ? DPAR_OVERLAP_TP
           : job->work->stack == DPAR_STACK_CORE
               ? DPAR_OVERLAP_DP | DPAR_OVERLAP_PP | DPAR_OVERLAP_TP
               : DPAR_OVERLAP_DP;
}

/* ---- communication of a layer --------------------------------------------------------------- */

/* Seconds of one call; its bytes as often as it is made, forward and backward. */
static double dpari_spend(const dpar_job *job, const dpar_group *g, int32_t kind, double bytes,
                          dpari_layer_price *p, double forward, double backward)
{
    dpar_collective_cost c;
    dpar_collective_cost_of(job->cluster, g, kind, bytes, &c);
    p->link_forward += c.link_bytes * forward;
    p->nic_forward += c.nic_bytes * forward;
    p->link_backward += c.link_bytes * backward;
    p->nic_backward += c.nic_bytes * backward;
    return c.seconds;
}

/* Megatron's regions: an all-reduce forward and one backward each; under SP an all-gather and a
 * reduce-scatter each way, and the input gathered once more for the weight gradient. Embedding:
 * forward only. Head: backward only. */
static void dpari_price_tp(const dpar_job *job, const dpar_strategy *s, const dpar_layer *l,
                           double tokens, dpari_layer_price *p)
{
    double launch_s = job->cluster->cal.value[DPAR_CAL_LAUNCH_S];
    dpar_group g;
    double n = l->tp_regions, bytes = tokens * l->width_bytes, ag, rs, f, b;
    if (s->tp == 1 || l->tp_regions == 0) {
        return;
    }
    g = dpar_group_place(job->cluster, s->tp, 1);
    f = l->kind == DPAR_LAYER_HEAD ? 0.0 : n;
    b = l->kind == DPAR_LAYER_EMBED ? 0.0 : n;
    p->host_forward += f * launch_s;
    p->host_backward += b * launch_s;
    if (!s->sp) {
        ag = dpari_spend(job, &g, DPAR_ALL_REDUCE, bytes, p, f, b);
        p->tp_forward = ag * f;
        p->tp_backward = ag * b;
    } else {
        ag = dpari_spend(job, &g, DPAR_ALL_GATHER, bytes, p, f, 2.0 * b);
        rs = dpari_spend(job, &g, DPAR_REDUCE_SCATTER, bytes, p, f, b);
        p->tp_forward = f * (ag + rs) + (l->kind == DPAR_LAYER_HEAD ? ag : 0.0);
        p->tp_backward = b * (2.0 * ag + rs);
    }
    p->tp_again = p->tp_forward;
    if (dpari_overlap_of(job, s) & DPAR_OVERLAP_TP) {
        /* the data gradient's reduction travels while the weight gradient is computed */
        double hidden = dpari_leastf(0.9 * p->tp_backward, 0.45 * p->backward);
        p->tp_backward -= hidden * (1.0 - job->cluster->cal.value[DPAR_CAL_CONTENTION]);
    }
}

static void dpari_price_cp(const dpar_job *job, const dpar_strategy *s, const dpar_layer *l,
                           double tokens, dpari_layer_price *p)
{
    dpar_group g;
    double kv = tokens * l->cp_kv_bytes / s->tp, qo = tokens * l->cp_qo_bytes / s->tp, t;
    if (s->cp == 1 || l->cp_kv_bytes <= 0.0) {
        return;
    }
    g = dpar_group_place(job->cluster, s->cp, s->tp);
    if (s->cp_kind == DPAR_CP_ULYSSES) {
        /* the attention output is kept before and after its exchange */
        p->kept[DPAR_RECOMPUTE_NONE] += 0.5 * qo;
        p->kept[DPAR_RECOMPUTE_SELECTIVE] += 0.5 * qo;
        t = 4.0 * dpari_spend(job, &g, DPAR_ALL_TO_ALL, (kv + qo) / 4.0, p, 4.0, 4.0);
        p->cp_forward = t;
        p->cp_backward = t;
        return;
    }
    t = dpari_spend(job, &g, DPAR_ALL_GATHER, kv * s->cp, p, 1.0, 2.0);
    if (s->cp_kind == DPAR_CP_GATHER) {
        p->cp_forward = t;
        p->cp_backward = 2.0 * t;
    } else {
        /* the ring passes blocks while it computes with the one before, and each of its steps reads
         * and rewrites the partial output (half of qo, three passes) */
        double merge = 1.5 * qo * (s->cp - 1.0) /
                       (job->cluster->gpu.memory_Bps * job->cluster->cal.value[DPAR_CAL_HBM]);
        p->cp_forward = dpari_mostf(0.15 * t, t - 0.8 * p->attention) + merge;
        p->cp_backward =
            dpari_mostf(0.3 * t, 2.0 * t - 0.8 * dpari_attention_back * p->attention) + merge;
    }
}

/* Tokens go to their experts and back, forward and backward: all-to-all over ep, then gathered over
 * the ranks of an expert and their outputs summed and scattered. */
static void dpari_price_ep(const dpar_job *job, const dpar_strategy *s, const dpar_layer *l,
                           double tokens, dpari_layer_price *p)
{
    dpar_group g;
    double t = 0.0, bytes = tokens * l->ep_bytes * job->work->capacity / (s->sp ? s->tp : 1);
    if (l->ep_bytes <= 0.0) {
        return;
    }
    if (s->ep > 1) {
        g = dpar_group_place(job->cluster, s->ep, s->etp);
        t += 2.0 * dpari_spend(job, &g, DPAR_ALL_TO_ALL, bytes, p, 2.0, 2.0);
    }
    if (s->etp > 1) {
        g = dpar_group_place(job->cluster, s->etp, 1);
        t += dpari_spend(job, &g, DPAR_ALL_GATHER, bytes * s->etp, p, 1.0, 1.0);
        t += dpari_spend(job, &g, DPAR_REDUCE_SCATTER, bytes * s->etp, p, 1.0, 1.0);
    }
    p->ep_forward = t;
    p->ep_backward = t;
}

/* Faces of a tile: both sides of every cut axis, both at once on a full-duplex link. */
static double dpari_halo_cells(const dpar_workload *w, const dpar_layer *l, const dpar_strategy *s)
{
    double cells = 0.0;
    int32_t i, k;
    for (i = 0; i < w->dims; i++) {
        double face = 1.0;
        for (k = 0; k < w->dims; k++) {
            if (k != i) {
                face *= (double)w->extent[k] / l->shrink / s->tiles[k];
            }
        }
        cells += s->tiles[i] > 1 ? 2.0 * face : 0.0;
    }
    return cells;
}

static void dpari_price_halo(const dpar_job *job, const dpar_strategy *s, const dpar_layer *l,
                             dpari_layer_price *p)
{
    int32_t tiles = s->tiles[0] * s->tiles[1] * s->tiles[2];
    double bytes, t;
    dpar_group g;
    dpar_collective_cost c;
    if (tiles == 1 || l->exchanges == 0) {
        return;
    }
    g = dpar_group_place(job->cluster, tiles, s->tp);
    bytes = dpari_halo_cells(job->work, l, s) * l->reach_bytes * s->micro_batch / l->exchanges;
    g.size = 2; /* neighbours, not the whole group */
    if (g.nodes > 1) {
        g.nodes = 2;
        g.per_node = 1;
    } else {
        g.per_node = 2;
    }
    dpar_collective_cost_of(job->cluster, &g, DPAR_SEND_RECV, bytes, &c);
    t = c.seconds * l->exchanges;
    p->halo_forward = t;
    p->halo_backward = job->work->trains ? t : 0.0;
    p->link_forward += c.link_bytes * l->exchanges;
    p->nic_forward += c.nic_bytes * l->exchanges;
    p->link_backward += c.link_bytes * l->exchanges;
    p->nic_backward += c.nic_bytes * l->exchanges;
}

/* ---- layers --------------------------------------------------------------------------------- */

static void dpari_price_layer(const dpar_job *job, const dpari_rates *r, int32_t i,
                              dpari_layer_price *p)
{
    const dpar_workload *w = job->work;
    const dpar_strategy *s = r->s;
    const dpar_layer *l = &w->layer[i];
    double parts = (double)s->cp * s->tiles[0] * s->tiles[1] * s->tiles[2];
    double tokens = l->tokens * s->micro_batch / parts;
    int32_t k;
    dpari_zero(p, sizeof(*p));
    for (k = 0; k < l->ops; k++) {
        dpari_price_op(r, &w->op[l->first + k], tokens, p);
    }
    p->again[DPAR_RECOMPUTE_FULL] = p->forward;
    p->host_backward = 2.0 * p->host_forward;
    p->send = tokens * l->width_bytes;
    dpari_price_tp(job, s, l, tokens, p);
    dpari_price_cp(job, s, l, tokens, p);
    dpari_price_ep(job, s, l, tokens, p);
    dpari_price_halo(job, s, l, p);
    if (!w->trains) {
        p->backward = p->host_backward = p->tp_backward = p->cp_backward = p->ep_backward = 0.0;
        p->link_backward = p->nic_backward = 0.0;
    }
}

DPARI_API void dpari_price_layers(const dpar_job *job, const dpar_strategy *s, dpari_layers *out)
{
    dpari_rates r = dpari_rates_of(job, s);
    int32_t i;
    for (i = 0; i < job->work->layers; i++) {
        dpari_price_layer(job, &r, i, &out->of[i]);
    }
}

/* ---- stages --------------------------------------------------------------------------------- */

/* Blocks of class i inside [from, to) of the sequence of blocks. */
static double dpari_blocks_within(const dpar_workload *w, int32_t i, int64_t from, int64_t to)
{
    int64_t start = 0, end;
    int32_t k;
    for (k = 0; k < i; k++) {
        start += w->layer[k].kind == DPAR_LAYER_BLOCK ? w->layer[k].count : 0;
    }
    end = start + w->layer[i].count;
    from = dpari_most(from, start);
    to = dpari_least(to, end);
    return to > from ? (double)(to - from) : 0.0;
}

/* Chunk c of `chunks`: blocks in even shares, the first ones one longer: the last stage, which has
 * the logits, is never the longer one. */
static int64_t dpari_chunk_start(int64_t blocks, int64_t chunks, int64_t c)
{
    return blocks / chunks * c + dpari_least(c, blocks % chunks);
}

/* Which chunk a rank computes as its v-th: round the ranks, or there and back (V schedules). */
static int64_t dpari_chunk_of(const dpar_strategy *s, int32_t rank, int32_t v)
{
    int there_and_back = s->schedule == DPAR_ZBV || s->schedule == DPAR_V_HALF ||
                         s->schedule == DPAR_V_MIN || s->schedule == DPAR_DUALPIPEV;
    int64_t turn = (int64_t)v * s->pp;
    return there_and_back && v % 2 == 1 ? turn + s->pp - 1 - rank : turn + rank;
}

/* Adds `count` layers of a class to a stage. */
static void dpari_stage_add(const dpar_strategy *s, dpari_stage *st, const dpari_layer_price *p,
                            double count, double again, double kept)
{
    st->forward += count * p->forward;
    st->backward += count * p->backward;
    st->again += count * again;
    st->host += count * (p->host_forward + p->host_backward);
    st->tp += count * (p->tp_forward + p->tp_backward + (again > 0.0 ? p->tp_again : 0.0));
    st->cp += count * (p->cp_forward + p->cp_backward);
    st->ep += count * (p->ep_forward + p->ep_backward);
    st->halo += count * (p->halo_forward + p->halo_backward);
    st->params += count * p->params;
    st->expert_params += count * p->expert_params;
    st->kept += count * kept;
    st->link_bytes += count * (p->link_forward + p->link_backward);
    st->nic_bytes += count * (p->nic_forward + p->nic_backward);
    st->transient = dpari_mostf(st->transient, p->transient);
    st->largest = dpari_mostf(st->largest, p->params + p->expert_params);
    st->boundary = dpari_mostf(st->boundary, p->send / s->tp);
}

/* One class in a stage: `count` of its layers, `full` of them fully recomputed. */
static void dpari_stage_class(const dpar_strategy *s, dpari_stage *st, const dpari_layer_price *p,
                              double count, double full)
{
    int32_t mode = s->recompute;
    if (mode != DPAR_RECOMPUTE_FULL) {
        double again = p->again[mode];
        dpari_stage_add(s, st, p, count, again, p->kept[mode]);
        st->tp -= again > 0.0 ? count * p->tp_again : 0.0; /* scores need no communication */
        return;
    }
    dpari_stage_add(s, st, p, full, p->again[DPAR_RECOMPUTE_FULL], p->kept[DPAR_RECOMPUTE_FULL]);
    st->host += full * p->host_forward;
    st->link_bytes += full * p->link_forward;
    st->nic_bytes += full * p->nic_forward;
    st->ep += full * p->ep_forward;
    st->cp += full * p->cp_forward;
    st->halo += full * p->halo_forward;
    dpari_stage_add(s, st, p, count - full, 0.0, p->kept[DPAR_RECOMPUTE_NONE]);
    /* while one layer is recomputed all of its activations live again */
    st->transient = dpari_mostf(st->transient, p->transient + p->kept[DPAR_RECOMPUTE_NONE]);
}

static void dpari_stage_edges(const dpar_job *job, const dpar_strategy *s,
                              const dpari_layers *layers, int32_t kind, dpari_stage *st)
{
    const dpar_workload *w = job->work;
    int32_t i;
    for (i = 0; i < w->layers; i++) {
        const dpari_layer_price *p = &layers->of[i];
        if (w->layer[i].kind != kind) {
            continue;
        }
        if (kind == DPAR_LAYER_HEAD) {
            dpari_layer_price head = *p;
            st->logits += p->transient;
            head.transient = 0.0;
            dpari_stage_add(s, st, &head, w->layer[i].count, 0.0, p->kept[DPAR_RECOMPUTE_NONE]);
        } else {
            dpari_stage_add(s, st, p, w->layer[i].count, 0.0, p->kept[DPAR_RECOMPUTE_NONE]);
        }
        /* tied embeddings: the last stage of a pipeline keeps a copy of the first one's */
        if (kind == DPAR_LAYER_HEAD && s->pp > 1 && w->vocab > 0 &&
            dpar_layer_params(w, i) < (double)w->vocab * w->hidden) {
            st->params += (double)w->vocab * w->hidden / s->tp;
        }
    }
}

/* Host and device work at once. A quick host is hidden; a slow one is all there is; in between the
 * device waits now and then. Under TP every rank waits for the one whose host is last, at each
 * collective: more is exposed (vTrain's single-node rows, tp 1 against 2 to 8). */
static void dpari_stage_total(const dpar_strategy *s, dpari_stage *st)
{
    double device = st->forward + st->backward + st->again + st->tp + st->cp + st->ep + st->halo;
    double share = s->tp > 1 ? 0.75 : 0.25;
    double waits = st->host > 0.0 ? share * st->host * st->host / (st->host + device / 2.0) : 0.0;
    st->total = dpari_mostf(device + waits, st->host);
}

DPARI_API void dpari_price_stage(const dpar_job *job, const dpar_strategy *s,
                                 const dpari_layers *layers, int32_t rank, dpari_stage *st)
{
    const dpar_workload *w = job->work;
    int64_t chunks = (int64_t)s->pp * s->vp;
    double share = 1.0;
    int32_t i, v;
    dpari_zero(st, sizeof(*st));
    st->rank = rank;
    for (v = 0; v < s->vp; v++) {
        int64_t c = dpari_chunk_of(s, rank, v);
        st->layers += (double)(dpari_chunk_start(w->blocks, chunks, c + 1) -
                               dpari_chunk_start(w->blocks, chunks, c));
    }
    if (s->recompute_layers > 0 && st->layers > s->recompute_layers) {
        share = s->recompute_layers / st->layers;
    }
    for (v = 0; v < s->vp; v++) {
        int64_t c = dpari_chunk_of(s, rank, v);
        int64_t from = dpari_chunk_start(w->blocks, chunks, c);
        int64_t to = dpari_chunk_start(w->blocks, chunks, c + 1);
        for (i = 0; i < w->layers; i++) {
            double n =
                w->layer[i].kind == DPAR_LAYER_BLOCK ? dpari_blocks_within(w, i, from, to) : 0.0;
            if (n > 0.0) {
                dpari_stage_class(s, st, &layers->of[i], n, n * share);
            }
        }
        if (c == 0) {
            dpari_stage_edges(job, s, layers, DPAR_LAYER_EMBED, st);
        }
        if (c == chunks - 1) {
            dpari_stage_edges(job, s, layers, DPAR_LAYER_HEAD, st);
        }
    }
    dpari_stage_total(s, st);
}

/* Does a class of blocks begin inside this rank's chunks? Then its mix is its own. */
static int dpari_stage_mixed(const dpar_workload *w, const dpar_strategy *s, int32_t rank)
{
    int64_t chunks = (int64_t)s->pp * s->vp, start = 0;
    int32_t i, v;
    for (i = 0; i < w->layers; i++) {
        for (v = 0; v < s->vp; v++) {
            int64_t c = dpari_chunk_of(s, rank, v);
            if (w->layer[i].kind == DPAR_LAYER_BLOCK && start > 0 &&
                start >= dpari_chunk_start(w->blocks, chunks, c) &&
                start <= dpari_chunk_start(w->blocks, chunks, c + 1)) {
                return 1;
            }
        }
        start += w->layer[i].kind == DPAR_LAYER_BLOCK ? w->layer[i].count : 0;
    }
    return 0;
}

static int32_t dpari_block_classes(const dpar_workload *w)
{
    int32_t i, n = 0;
    for (i = 0; i < w->layers; i++) {
        n += w->layer[i].kind == DPAR_LAYER_BLOCK;
    }
    return n;
}

/* All ranks together: every layer once. */
static void dpari_price_whole(const dpar_job *job, const dpar_strategy *s,
                              const dpari_layers *layers, dpari_stage *whole)
{
    const dpar_workload *w = job->work;
    double per_rank = (double)w->blocks / s->pp, share = 1.0;
    int32_t i;
    dpari_zero(whole, sizeof(*whole));
    if (s->recompute_layers > 0 && per_rank > s->recompute_layers) {
        share = s->recompute_layers / per_rank;
    }
    for (i = 0; i < w->layers; i++) {
        if (w->layer[i].kind == DPAR_LAYER_BLOCK) {
            dpari_stage_class(s, whole, &layers->of[i], w->layer[i].count,
                              w->layer[i].count * share);
        }
    }
    dpari_stage_edges(job, s, layers, DPAR_LAYER_EMBED, whole);
    dpari_stage_edges(job, s, layers, DPAR_LAYER_HEAD, whole);
    dpari_stage_total(s, whole);
}

/* The ranks beside a mixed one too: they are the longest of the pure ones on their side. */
static int dpari_stage_near_mixed(const dpar_workload *w, const dpar_strategy *s, int32_t rank)
{
    return dpari_stage_mixed(w, s, rank - 1) || dpari_stage_mixed(w, s, rank) ||
           (rank + 1 < s->pp && dpari_stage_mixed(w, s, rank + 1));
}

/* Room for one more stage: where the list is full the quickest of the inner ones goes. */
static dpari_stage *dpari_stage_place(dpari_stages *out)
{
    int32_t i, quick = 1;
    if (out->n < DPARI_MAX_STAGES) {
        return &out->of[out->n++];
    }
    for (i = 2; i < out->n; i++) {
        quick = out->of[i].total < out->of[quick].total ? i : quick;
    }
    for (i = quick; i + 1 < out->n; i++) { /* by rank: the last of them is the last stage */
        out->of[i] = out->of[i + 1];
    }
    return &out->of[out->n - 1];
}

DPARI_API void dpari_price_stages(const dpar_job *job, const dpar_strategy *s,
                                  const dpari_layers *layers, dpari_stages *out)
{
    int32_t rank, last = s->pp - 1, classes = dpari_block_classes(job->work), i;
    out->n = 0;
    for (rank = 0; rank <= last; rank++) {
        if (rank <= 1 || rank == last || dpari_stage_near_mixed(job->work, s, rank)) {
            dpari_price_stage(job, s, layers, rank, dpari_stage_place(out));
        } else if (classes <= 1) {
            rank = last - 1; /* all between are as rank 1, or shorter */
        }
    }
    dpari_price_whole(job, s, layers, &out->whole);
    out->sum_total = out->whole.total;
    out->send = 0.0;
    for (i = 0; i < job->work->layers; i++) {
        if (job->work->layer[i].kind == DPAR_LAYER_BLOCK) {
            out->send = dpari_mostf(out->send, layers->of[i].send);
        }
    }
    /* each TP rank sends its part and the receivers gather it over the fast links */
    out->send /= s->tp;
}

/* ==== cost/recommend.c ==== */

/* ---- what does not fit ---------------------------------------------------------------------- */

/* The kinds of answers. Each is a search with some fields fixed; the planner prices the rest. */
enum {
    DPARI_KIND_DDP,
    DPARI_KIND_DDP_RECOMPUTE,
    DPARI_KIND_DOMAIN_NODE,
    DPARI_KIND_DOMAIN,
    DPARI_KIND_SP_TP,
    DPARI_KIND_PP_FSDP,
    DPARI_KIND_HSDP,
    DPARI_KIND_FSDP,
    DPARI_KIND_TP_FSDP,
    DPARI_KIND_TP_PP_DP,
    DPARI_KIND_PP_DP,
    DPARI_KIND_CP_PP_DP,
    DPARI_KIND_ANY,
    DPARI_KINDS
};

/* What decides: bytes of one replica on one GPU. */
typedef struct dpari_need {
    double state;       /* weights, gradients, optimizer of one replica */
    double activations; /* of one sample, nothing cut, nothing recomputed */
    double gpu;         /* bytes of a GPU that a program may plan with: 90 % */
    int32_t gpus, node; /* in all, and of one node */
    int32_t tp;         /* the widest tensor parallelism inside a node */
    int32_t spatial;    /* a grid of two or three axes: it can be cut into tiles */
    int32_t sequence;   /* the sequence is what does not fit, or very long */
    int32_t wide;       /* the state of a single layer is more than a GPU holds */
    int32_t deep;       /* many layers, each of them small: stages cost little to cut */
} dpari_need;

/* Sequences longer than this are cut rather than recomputed; from the second on they are when their
 * activations are what does not fit. */
static const double dpari_long_sequence = 65536.0;
static const double dpari_medium_sequence = 16384.0;
/* Stages of about so many layers keep their messages rare where layers are small. */
static const int32_t dpari_deep_stage = 50;
/* From here on FSDP's gathers over so many ranks no longer hide (Megatron SC21 Table 2: ZeRO-3
 * falls from 144 to 44 TFLOP/s from 384 to 1536 GPUs); pipelines send far less. */
static const int32_t dpari_many_gpus = 128;
/* The simplest kind that fits is taken when it is at most this much slower than the fastest: the
 * model's own error between kinds is of that size, and fewer kinds are fewer things to go wrong. */
static const double dpari_simpler = 1.3;
/* Staying with DDP by recomputing everything must cost less than this; cutting a deep model into
 * stages may cost more (few micro-batches a rank make it look slow): the field asks for it. */
static const double dpari_simpler_recompute = 1.1;
static const double dpari_simpler_deep = 1.4;

static dpari_need dpari_need_of(const dpar_job *job)
{
    const dpar_workload *w = job->work;
    dpari_need n;
    int32_t i;
    dpari_zero(&n, sizeof(n));
    n.state =
        w->trains ? dpar_zero_bytes(&job->recipe, w->params, 0, 1) : w->params * job->recipe.weight;
    for (i = 0; i < w->layers; i++) {
        n.activations +=
            dpar_layer_saved(w, i, DPAR_RECOMPUTE_NONE) * w->layer[i].tokens * w->layer[i].count;
    }
    n.gpu = 0.9 * job->cluster->gpu.memory_bytes;
    n.node = job->cluster->gpus_per_node;
    n.gpus = dpar_cluster_gpus(job->cluster);
    n.tp = w->heads > 0 ? n.node : 1;
    while (n.tp > 1 && (n.node % n.tp != 0 || w->heads % n.tp != 0 || w->hidden % n.tp != 0)) {
        n.tp--;
    }
    n.spatial = w->dims > 1;
    n.wide =
        dpar_zero_bytes(&job->recipe, dpar_layer_params(w, dpar_workload_largest(w)), 0, 1) > n.gpu;
    n.sequence =
        w->heads > 0 && w->vocab > 0 &&
        (w->tokens >= dpari_long_sequence || (n.state < n.gpu && n.state + n.activations > n.gpu &&
                                              w->tokens >= dpari_medium_sequence));
    n.deep = w->blocks >= 2 * dpari_deep_stage && n.state / w->blocks < 0.05 * n.gpu;
    return n;
}

/* ---- the kinds as searches ------------------------------------------------------------------ */

static void dpari_fix(dpar_search *q, int32_t field)
{
    q->fixed_fields |= (uint32_t)1 << field;
}

static void dpari_free(dpar_search *q, int32_t field)
{
    q->fixed_fields &= ~((uint32_t)1 << field);
}

/* One of each, no ZeRO, no recomputation chosen yet: what a kind does not free stays so. What the
 * caller fixed beyond that (micro-batch, recipe of overlap, ...) stays fixed. */
static void dpari_kind_fix(dpar_search *q)
{
    q->fixed.tp = q->fixed.pp = q->fixed.cp = q->fixed.vp = 1;
    q->fixed.zero = 0;
    q->fixed.tiles[0] = q->fixed.tiles[1] = q->fixed.tiles[2] = 1;
    dpari_fix(q, DPAR_FIELD_TP);
    dpari_fix(q, DPAR_FIELD_PP);
    dpari_fix(q, DPAR_FIELD_CP);
    dpari_fix(q, DPAR_FIELD_VP);
    dpari_fix(q, DPAR_FIELD_ZERO);
    dpari_fix(q, DPAR_FIELD_TILES);
    dpari_free(q, DPAR_FIELD_DP);
    dpari_free(q, DPAR_FIELD_SP);
    dpari_free(q, DPAR_FIELD_SHARD);
    dpari_free(q, DPAR_FIELD_SCHEDULE);
}

static void dpari_kind_shard(dpar_search *q, int32_t shard)
{
    q->fixed.zero = 3;
    q->fixed.shard = shard;
    dpari_fix(q, DPAR_FIELD_SHARD);
}

/* Pipelines with ZeRO-1 over the replicas; stages as many as are best. */
static void dpari_kind_pipeline(dpar_search *q, const dpar_workload *w, const dpari_need *n)
{
    q->fixed.zero = w->trains ? 1 : 0;
    dpari_free(q, DPAR_FIELD_PP);
    dpari_free(q, DPAR_FIELD_VP);
    if (n->sequence) {
        dpari_free(q, DPAR_FIELD_CP);
    }
}

/* Stages of about fifty layers, a power of two of them that leaves ranks to shard over; 0: none. */
static int32_t dpari_deep_stages(const dpar_workload *w, const dpari_need *n)
{
    int32_t pp = 1;
    while (3 * pp * dpari_deep_stage <= 2 * w->blocks && n->gpus % (4 * pp) == 0) {
        pp *= 2;
    }
    return pp > 1 ? pp : 0;
}

/* Fixes what makes a kind a kind; the planner fills in the rest. 0 when it cannot be here. */
static int dpari_kind_search(const dpar_workload *w, const dpari_need *n, int32_t kind,
                             dpar_search *q)
{
    dpari_kind_fix(q);
    switch (kind) {
    case DPARI_KIND_DDP:
    case DPARI_KIND_DDP_RECOMPUTE:
        q->fixed.recompute = kind == DPARI_KIND_DDP ? DPAR_RECOMPUTE_NONE : DPAR_RECOMPUTE_FULL;
        dpari_fix(q, DPAR_FIELD_RECOMPUTE);
        return kind == DPARI_KIND_DDP || w->trains;
    case DPARI_KIND_DOMAIN_NODE: /* halos inside nodes, replicas across */
        q->fixed.dp = n->gpus / n->node;
        dpari_fix(q, DPAR_FIELD_DP);
        dpari_free(q, DPAR_FIELD_TILES);
        return w->dims > 0 && n->node > 1 && n->gpus % n->node == 0;
    case DPARI_KIND_DOMAIN:
        dpari_free(q, DPAR_FIELD_TILES);
        if (n->state >= n->gpu) {
            dpari_free(q, DPAR_FIELD_ZERO);
        }
        return w->dims > 0;
    case DPARI_KIND_SP_TP:
        q->fixed.tp = n->tp;
        dpari_free(q, DPAR_FIELD_ZERO);
        dpari_free(q, DPAR_FIELD_CP);
        return n->tp > 1;
    case DPARI_KIND_PP_FSDP:
        q->fixed.zero = 3;
        q->fixed.pp = dpari_deep_stages(w, n);
        return w->trains && q->fixed.pp > 1;
    case DPARI_KIND_HSDP:
        dpari_kind_shard(q, n->node);
        return w->trains && n->gpus > n->node && n->node > 1;
    case DPARI_KIND_FSDP: dpari_kind_shard(q, 0); return w->trains;
    case DPARI_KIND_TP_FSDP:
        dpari_kind_shard(q, 0);
        q->fixed.tp = n->tp;
        return n->tp > 1 && w->trains;
    case DPARI_KIND_TP_PP_DP:
        q->fixed.tp = n->tp;
        dpari_kind_pipeline(q, w, n);
        return n->tp > 1;
    case DPARI_KIND_PP_DP:
    case DPARI_KIND_CP_PP_DP:
        dpari_kind_pipeline(q, w, n);
        dpari_free(q, DPAR_FIELD_TP);
        if (kind == DPARI_KIND_CP_PP_DP) {
            dpari_free(q, DPAR_FIELD_CP);
        }
        return w->heads > 0;
    default: q->fixed_fields = 0; return 1;
    }
}

static dpar_status dpari_kind_run(const dpar_job *job, const dpar_search *q, dpar_plan *plan)
{
    dpar_planner p;
    dpar_status st = dpar_planner_init(&p, job, q, plan, 1, NULL, 0, NULL);
    if (st != DPAR_OK) {
        return st;
    }
    do {
        st = dpar_planner_run(&p, INT64_MAX, NULL);
    } while (st == DPAR_MORE);
    return st == DPAR_DONE ? DPAR_OK : st;
}

/* The best with stages of two layers at least, when the best of all has shorter ones: those are
 * never recommended (their messages and the uneven ends are what the model knows least). */
static dpar_status dpari_kind_longer(const dpar_job *job, const dpar_search *free_stages,
                                     dpar_plan *plan)
{
    dpar_search q = *free_stages;
    dpar_status st = DPAR_E_NONE, one;
    dpar_plan other;
    int32_t gpus = dpar_cluster_gpus(job->cluster);
    dpari_fix(&q, DPAR_FIELD_PP);
    for (q.fixed.pp = 1; 2 * q.fixed.pp <= job->work->blocks; q.fixed.pp++) {
        if (gpus % q.fixed.pp != 0) {
            continue;
        }
        one = dpari_kind_run(job, &q, &other);
        if (one == DPAR_OK && (st != DPAR_OK || other.step.total * plan->step.samples <
                                                    plan->step.total * other.step.samples)) {
            *plan = other;
            st = DPAR_OK;
        }
    }
    return st;
}

/* Smaller micro-batches until there are 4 pp of them, unless that costs more than a tenth. */
static void dpari_kind_more_micro(const dpar_job *job, dpar_search *q, dpar_plan *plan)
{
    double limit = 1.1 * plan->step.total / plan->step.samples;
    dpar_plan other;
    q->fixed.pp = plan->strategy.pp;
    dpari_fix(q, DPAR_FIELD_PP);
    dpari_fix(q, DPAR_FIELD_MICRO_BATCH);
    while (plan->strategy.micro_batch > 1 && plan->strategy.micro_batches < 4 * plan->strategy.pp) {
        q->fixed.micro_batch = plan->strategy.micro_batch / 2;
        if (dpari_kind_run(job, q, &other) != DPAR_OK ||
            other.step.total > limit * other.step.samples) {
            return;
        }
        *plan = other;
    }
}

/* Best plan of a kind; E_NONE when it does not fit, the rest as the planner. */
static dpar_status dpari_kind_plan(const dpar_job *job, const dpar_search *asked,
                                   const dpari_need *n, int32_t kind, dpar_plan *plan)
{
    dpar_search q = *asked;
    dpar_status st;
    q.gpus = n->gpus;
    q.space = DPAR_SPACE_USUAL;
    if (!dpari_kind_search(job->work, n, kind, &q)) {
        return DPAR_E_NONE;
    }
    st = dpari_kind_run(job, &q, plan);
    if (st != DPAR_OK || kind == DPARI_KIND_ANY || plan->strategy.pp == 1) {
        return st;
    }
    if (2 * plan->strategy.pp > job->work->blocks) {
        st = dpari_kind_longer(job, &q, plan);
    }
    if (st == DPAR_OK && plan->strategy.pp > 1 &&
        !(asked->fixed_fields >> DPAR_FIELD_MICRO_BATCH & 1u)) {
        dpari_kind_more_micro(job, &q, plan);
    }
    return st;
}

/* ---- the choice ----------------------------------------------------------------------------- */

/* The kinds worth comparing, simplest first by the flowchart: does it fit on one GPU? is it the
 * parameters (many small layers; else sharding, heavy traffic inside nodes and light across)? is it
 * the activations (a grid; a sequence)? */
static int32_t dpari_kind_order(const dpar_job *job, const dpari_need *n, int32_t *order)
{
    const dpar_workload *w = job->work;
    int32_t k = 0;
    int large = w->params >= 1e10 && n->gpus >= dpari_many_gpus && n->node >= 8;
    if (n->spatial && (!w->trains || n->state < n->gpu)) {
        order[k++] = DPARI_KIND_DOMAIN_NODE;
        order[k++] = DPARI_KIND_DOMAIN;
    }
    if (n->sequence && !large) {
        order[k++] = DPARI_KIND_SP_TP;
    }
    if (n->state < n->gpu && !n->sequence) {
        order[k++] = DPARI_KIND_DDP_RECOMPUTE;
    }
    if (n->deep) {
        order[k++] = DPARI_KIND_PP_FSDP;
    }
    if (large) {
        order[k++] = DPARI_KIND_TP_PP_DP;
        order[k++] = DPARI_KIND_PP_DP;
        order[k++] = DPARI_KIND_CP_PP_DP;
    }
    if (n->state / n->node < 0.4 * n->gpu) {
        order[k++] = DPARI_KIND_HSDP; /* half empty with one node's share: replicas across nodes */
    }
    if (n->gpus > n->node || n->wide) {
        order[k++] = DPARI_KIND_TP_FSDP;
        order[k++] = DPARI_KIND_TP_PP_DP;
    }
    order[k++] = DPARI_KIND_FSDP;
    if (n->gpus <= n->node) {
        order[k++] = DPARI_KIND_TP_FSDP;
        order[k++] = DPARI_KIND_TP_PP_DP;
    }
    if (n->spatial) {
        order[k++] = DPARI_KIND_DOMAIN;
    }
    return k;
}

/* Seconds a sample of the best plan of each kind in `order`; 0 where there is none. */
static double dpari_kind_seconds(const dpar_job *job, const dpar_search *asked, const dpari_need *n,
                                 const int32_t *order, int32_t kinds, double *seconds)
{
    double best = 0.0;
    dpar_plan plan;
    int32_t i;
    for (i = 0; i < kinds; i++) {
        seconds[i] = 0.0;
        if (dpari_kind_plan(job, asked, n, order[i], &plan) == DPAR_OK) {
            seconds[i] = plan.step.total / plan.step.samples;
            best = best > 0.0 && best < seconds[i] ? best : seconds[i];
        }
    }
    return best;
}

/* What is taken: the first kind of the order that is not much slower than the fastest. */
static int32_t dpari_kind_choose(const int32_t *order, int32_t kinds, const double *seconds,
                                 double best)
{
    int32_t i;
    for (i = 0; i < kinds; i++) {
        double limit = order[i] == DPARI_KIND_DDP_RECOMPUTE ? dpari_simpler_recompute
                       : order[i] == DPARI_KIND_PP_FSDP     ? dpari_simpler_deep
                                                            : dpari_simpler;
        if (seconds[i] > 0.0 && seconds[i] <= limit * best) {
            return i;
        }
    }
    return -1;
}

/* ---- words ---------------------------------------------------------------------------------- */

static void dpari_name_part(dpar_text *t, const char *name, int32_t degree)
{
    if (t->used > 0) {
        dpar_text_put(t, " + ");
    }
    dpar_text_put(t, name);
    if (degree > 1) {
        dpar_text_char(t, '=');
        dpar_text_int(t, degree);
    }
}

/* "TP=4 + FSDP=4", "DDP", "domain=4 + DDP=2", "PP=4 + FSDP=4". */
static void dpari_plan_name(const dpar_job *job, const dpar_plan *plan, char *name, size_t room)
{
    const dpar_strategy *s = &plan->strategy;
    int32_t tiles = s->tiles[0] * s->tiles[1] * s->tiles[2];
    dpar_text t;
    dpar_text_init(&t, name, room);
    if (tiles > 1) {
        dpari_name_part(&t, "domain", tiles);
    }
    if (s->tp > 1) {
        dpari_name_part(&t, s->sp && job->work->tokens >= dpari_medium_sequence ? "SP+TP" : "TP",
                        s->tp);
    }
    if (s->cp > 1) {
        dpari_name_part(&t, s->cp_kind == DPAR_CP_ULYSSES ? "Ulysses SP" : "CP", s->cp);
    }
    if (s->pp > 1) {
        dpari_name_part(&t, "PP", s->pp);
    }
    if (s->ep > 1) {
        dpari_name_part(&t, "EP", s->ep);
    }
    if (s->dp > 1 && s->zero == 3) {
        dpari_name_part(&t, s->shard > 0 && s->shard < s->dp ? "HSDP" : "FSDP", s->dp);
    } else if (s->dp > 1) {
        dpari_name_part(&t,
                        s->zero == 0   ? (s->tp * s->pp == 1 ? "DDP" : "DP")
                        : s->zero == 1 ? "DP(ZeRO-1)"
                                       : "DP(ZeRO-2)",
                        s->dp);
    }
    if (t.used == 0) {
        dpari_name_part(&t, "one GPU", 1);
    }
    if (s->recompute == DPAR_RECOMPUTE_FULL) {
        dpari_name_part(&t, "recompute", 1);
    }
}

static void dpari_gb(dpar_text *t, double bytes)
{
    dpar_text_fixed(t, bytes * 1e-9, bytes < 1e10 ? 1 : 0);
    dpar_text_put(t, " GB");
}

static void dpari_advice_why(const dpar_job *job, const dpari_need *n, const dpar_plan *plan,
                             char *why, size_t room)
{
    double gpu = job->cluster->gpu.memory_bytes;
    dpar_text t;
    dpar_text_init(&t, why, room);
    if (job->work->trains) {
        dpar_text_put(&t, "weights, gradients and optimizer take ");
        dpari_gb(&t, n->state);
        dpar_text_put(&t, n->state < n->gpu ? ", which one GPU of " : ", more than one GPU's ");
        dpari_gb(&t, gpu);
        if (n->state < n->gpu) {
            dpar_text_put(&t, " holds");
        } else {
            dpar_text_put(&t, " by ");
            dpari_gb(&t, n->state - gpu > 0.0 ? n->state - gpu : 0.1e9);
        }
        dpar_text_put(&t, "; ");
    }
    if (n->activations > n->gpu) {
        dpar_text_put(&t, "the activations of one sample are ");
        dpari_gb(&t, n->activations);
        dpar_text_put(&t, "; ");
    }
    if (plan->fits) {
        dpar_text_put(&t, "this way a GPU holds ");
        dpari_gb(&t, plan->memory.total);
        if (plan->strategy.zero >= 1 && plan->strategy.dp > 1) {
            dpar_text_put(&t, ", ");
            dpari_gb(&t, dpar_zero_bytes(&job->recipe, plan->memory.params, plan->strategy.zero,
                                         plan->strategy.shard > 0 ? plan->strategy.shard
                                                                  : plan->strategy.dp));
            dpar_text_put(&t, " of them state");
        }
    } else {
        dpar_text_put(&t, "even this way it does not fit: ");
        dpari_gb(&t, plan->memory.upper);
        dpar_text_put(&t, " a GPU, ");
        dpari_gb(&t, plan->memory.upper - gpu);
        dpar_text_put(&t, " too much");
    }
}

static void dpari_warn(dpar_advice *a, dpar_text *t, int32_t bit, const char *text)
{
    a->warnings |= bit;
    dpar_text_put(t, t->used > 0 ? " " : "");
    dpar_text_put(t, text);
}

/* Mistakes that the asked-for or chosen plan makes. */
static void dpari_advice_warnings(const dpar_job *job, const dpar_search *asked,
                                  const dpari_need *n, dpar_advice *a)
{
    const dpar_strategy *s = &a->plan.strategy, *f = &asked->fixed;
    uint32_t named = asked->fixed_fields;
    int32_t zero = named >> DPAR_FIELD_ZERO & 1u ? f->zero : s->zero;
    int32_t tp = named >> DPAR_FIELD_TP & 1u ? f->tp : s->tp;
    int32_t pp = named >> DPAR_FIELD_PP & 1u ? f->pp : s->pp;
    int32_t m = named >> DPAR_FIELD_MICRO_BATCHES & 1u ? f->micro_batches : s->micro_batches;
    double over;
    dpar_text t;
    dpar_text_init(&t, a->warning_text, sizeof(a->warning_text));
    if (zero == 3 && tp == 1 && n->state + n->activations < n->gpu) {
        dpari_warn(a, &t, DPAR_WARN_FSDP_NEEDLESS,
                   "FSDP though the model fits on one GPU: the gathers are needless traffic.");
    }
    if (tp > job->cluster->gpus_per_node && n->gpus > n->node) {
        dpari_warn(a, &t, DPAR_WARN_TP_ACROSS,
                   "tensor parallelism across nodes: every layer waits for the network.");
    }
    if (pp > 1 && m < 4 * pp) {
        dpari_warn(a, &t, DPAR_WARN_FEW_MICRO,
                   "fewer than 4 micro-batches a stage: the bubble passes 20 %.");
    }
    over = a->plan.memory.term[DPAR_MEM_ACTIVATIONS];
    if (s->zero >= 1 && over > 0.5 * a->plan.memory.total) {
        dpari_warn(a, &t, DPAR_WARN_ACTIVATIONS,
                   "activations are most of the memory: sharding state does not shrink them.");
    }
    if ((named >> DPAR_FIELD_ZERO & 1u) && zero == 0 && tp == 1 && pp == 1 && n->state > n->gpu) {
        dpari_warn(a, &t, DPAR_WARN_DDP_STATE,
                   "DDP replicates the state, which does not fit on one GPU.");
    }
    if (job->work->trains && s->dp > 1 && asked->global_batch == 0) {
        dpari_warn(a, &t, DPAR_WARN_LEARNING_RATE,
                   "the global batch grows with the GPUs: scale the learning rate with it.");
    }
}

/* The fastest of the kinds that were not taken, and what it would cost. */
static void dpari_advice_runner_up(const dpar_job *job, const dpar_search *asked,
                                   const dpari_need *n, const int32_t *order, int32_t kinds,
                                   const double *seconds, dpar_advice *a)
{
    dpar_plan plan, other;
    char name[48];
    double ratio, best = 0.0;
    dpar_text t;
    int32_t i;
    for (i = 0; i < kinds; i++) {
        if (seconds[i] <= 0.0 || (best > 0.0 && seconds[i] >= best) ||
            dpari_kind_plan(job, asked, n, order[i], &plan) != DPAR_OK) {
            continue;
        }
        dpari_plan_name(job, &plan, name, sizeof(name));
        if (!dpari_same(name, a->name)) {
            best = seconds[i];
            other = plan;
        }
    }
    if (best <= 0.0) {
        return;
    }
    dpari_plan_name(job, &other, name, sizeof(name));
    ratio = best * a->plan.step.samples / a->plan.step.total;
    dpar_text_init(&t, a->runner_up, sizeof(a->runner_up));
    dpar_text_put(&t, name);
    dpar_text_put(&t, ": ");
    dpar_text_fixed(&t, 100.0 * (ratio > 1.0 ? ratio - 1.0 : 1.0 - ratio), 0);
    dpar_text_put(&t, ratio > 1.0 ? " % slower, " : " % faster by the model, less simple, ");
    dpari_gb(&t, other.memory.total);
    dpar_text_put(&t, " a GPU");
}

/* Nothing fits: what comes nearest, by how much it misses, and on how many GPUs it would fit. */
static dpar_status dpari_advice_none(const dpar_job *job, const dpar_search *asked,
                                     const dpari_need *n, dpar_advice *a, dpar_why *why)
{
    const dpar_workload *w = job->work;
    dpar_plan plan;
    dpar_search q = *asked;
    dpar_text t;
    dpar_status st = DPAR_E_NONE, one;
    int32_t k;
    for (k = 0; k < 2; k++) { /* sharded over all alone, then with TP in the node */
        dpar_strategy s = dpar_strategy_default();
        s.tp = k == 1 ? n->tp : 1;
        s.sp = s.tp > 1;
        s.dp = n->gpus / s.tp;
        s.zero = w->trains ? 3 : 0;
        s.recompute = w->trains ? DPAR_RECOMPUTE_FULL : DPAR_RECOMPUTE_NONE;
        one = dpar_plan_of(job, &s, 0, &plan, NULL, NULL);
        if ((one == DPAR_OK || one == DPAR_E_MEMORY) && (k == 0 || n->tp > 1)) {
            a->plan = plan;
            st = DPAR_E_MEMORY;
        }
    }
    if (st != DPAR_E_MEMORY) {
        return dpari_say(DPAR_E_NONE, why, "no way to use # GPUs with a global batch of #", n->gpus,
                         asked->global_batch, 0, 0);
    }
    dpari_plan_name(job, &a->plan, a->name, sizeof(a->name));
    if (a->plan.fits) { /* it would, with another batch */
        return dpari_say(DPAR_E_NONE, why,
                         "no way of # GPUs divides a global batch of # and fits; with another "
                         "batch it would",
                         n->gpus, asked->global_batch, 0, 0);
    }
    dpari_advice_why(job, n, &a->plan, a->why, sizeof(a->why));
    dpar_text_init(&t, a->runner_up, sizeof(a->runner_up));
    dpar_text_put(&t, "state alone, sharded over all GPUs: ");
    dpari_gb(&t, n->state / n->gpus);
    dpar_text_put(&t, " a GPU");
    q.global_batch = 0;
    q.fixed_fields = 0;
    if (dpar_smallest_machine(job, &q, (int32_t)dpari_least(64 * (int64_t)n->gpus, INT32_MAX),
                              &plan, NULL) == DPAR_OK) {
        dpar_text_put(&t, "; it fits on ");
        dpar_text_int(&t, dpar_strategy_ranks(&plan.strategy));
        dpar_text_put(&t, " such GPUs");
    }
    return dpari_say(DPAR_E_MEMORY, why,
                     "it does not fit on # GPUs: # GB a GPU when sharded as far as it goes, the "
                     "GPU has # GB",
                     n->gpus, (int64_t)(a->plan.memory.upper * 1e-9 + 0.999),
                     (int64_t)(job->cluster->gpu.memory_bytes * 1e-9), 0);
}

DPAR_API dpar_status dpar_recommend(const dpar_job *job, const dpar_search *search,
                                    dpar_advice *advice, dpar_why *why)
{
    int32_t order[16], kinds, chosen = -1;
    double seconds[16], best;
    dpari_need n;
    dpar_search asked = *search;
    dpar_status st = dpar_workload_check(job->work, why);
    if (st == DPAR_OK) {
        st = dpar_cluster_check(job->cluster, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    n = dpari_need_of(job);
    if (search->global_batch < 0 || (search->gpus != 0 && search->gpus != n.gpus)) {
        return dpari_say(DPAR_E_ARG, why,
                         "advice for # GPUs and a global batch of #, but the cluster has # GPUs",
                         search->gpus, search->global_batch, n.gpus, 0);
    }
    dpari_zero(advice, sizeof(*advice));
    kinds = dpari_kind_order(job, &n, order + 1);
    order[0] = DPARI_KIND_DDP;
    if (job->work->trains &&
        dpari_kind_plan(job, &asked, &n, DPARI_KIND_DDP, &advice->plan) == DPAR_OK) {
        chosen = 0;
    }
    best = dpari_kind_seconds(job, &asked, &n, order, kinds + 1, seconds);
    if (chosen < 0) {
        chosen = dpari_kind_choose(order, kinds + 1, seconds, best);
    }
    if (chosen < 0) { /* none of the usual kinds: anything that the planner finds */
        order[0] = DPARI_KIND_ANY;
        chosen = 0;
    }
    if (dpari_kind_plan(job, &asked, &n, order[chosen], &advice->plan) != DPAR_OK) {
        return dpari_advice_none(job, search, &n, advice, why);
    }
    dpari_plan_name(job, &advice->plan, advice->name, sizeof(advice->name));
    dpari_advice_why(job, &n, &advice->plan, advice->why, sizeof(advice->why));
    dpari_advice_warnings(job, search, &n, advice);
    dpari_advice_runner_up(job, search, &n, order, kinds + 1, seconds, advice);
    return DPAR_OK;
}

#endif /* DPAR_NO_COST */

#ifndef DPAR_NO_SHOW

/* ==== show/plan_show.c ==== */

/* ---- pieces --------------------------------------------------------------------------------- */

static void dpari_show_pair(dpar_text *t, const char *name, int64_t v)
{
    dpar_text_char(t, ',');
    dpar_text_put(t, name);
    dpar_text_char(t, '=');
    dpar_text_int(t, v);
}

static void dpari_show_bits(dpar_text *t, const char *name, int32_t bits, int32_t offload)
{
    static const char word[2][4][12] = {{"dp", "tp", "pp", ""},
                                        {"optimizer", "weights", "activations", "nvme"}};
    int32_t i, n = 0;
    dpar_text_put(t, name);
    for (i = 0; i < 3 + offload; i++) {
        if (bits >> i & 1) {
            dpar_text_put(t, n++ > 0 ? "+" : "");
            dpar_text_put(t, word[offload][i]);
        }
    }
    dpar_text_put(t, n == 0 ? "none" : "");
}

static void dpari_show_tiles(dpar_text *t, const int32_t *tiles)
{
    dpar_text_int(t, tiles[0]);
    dpar_text_char(t, 'x');
    dpar_text_int(t, tiles[1]);
    if (tiles[2] > 1) {
        dpar_text_char(t, 'x');
        dpar_text_int(t, tiles[2]);
    }
}

static int32_t dpari_show_cuts(const dpar_strategy *s)
{
    return s->tiles[0] * s->tiles[1] * s->tiles[2];
}

DPAR_API void dpar_show_strategy(dpar_text *t, const dpar_strategy *s)
{
    dpar_text_put(t, "dp=");
    dpar_text_int(t, s->dp);
    if (s->shard > 0 && s->shard < s->dp) {
        dpari_show_pair(t, "shard", s->shard);
    }
    dpari_show_pair(t, "zero", s->zero);
    dpari_show_pair(t, "tp", s->tp);
    if (s->tp > 1) {
        dpari_show_pair(t, "sp", s->sp);
    }
    if (s->cp > 1) {
        dpari_show_pair(t, "cp", s->cp);
        dpar_text_put(t, ",cp_kind=");
        dpar_text_put(t, dpar_cp_name(s->cp_kind));
    }
    dpari_show_pair(t, "pp", s->pp);
    if (s->pp > 1) {
        dpari_show_pair(t, "vp", s->vp);
        dpar_text_put(t, ",schedule=");
        dpar_text_put(t, dpar_schedule_name(s->schedule));
    }
    if (s->ep * s->etp > 1) {
        dpari_show_pair(t, "ep", s->ep);
        dpari_show_pair(t, "etp", s->etp);
    }
    if (dpari_show_cuts(s) > 1) {
        dpar_text_put(t, ",tiles=");
        dpari_show_tiles(t, s->tiles);
    }
    dpari_show_pair(t, "mbs", s->micro_batch);
    dpari_show_pair(t, "m", s->micro_batches);
    if (s->recompute != DPAR_RECOMPUTE_NONE) {
        dpar_text_put(t, ",recompute=");
        dpar_text_put(t, dpar_recompute_name(s->recompute));
    }
    if (s->recompute_layers > 0) {
        dpari_show_pair(t, "recompute_layers", s->recompute_layers);
    }
    if (s->offload != 0) {
        dpari_show_bits(t, ",offload=", s->offload, 1);
    }
    if (!(s->overlap & DPAR_OVERLAP_DEFAULT)) {
        dpari_show_bits(t, ",overlap=", s->overlap, 0);
    }
}

static void dpari_show_seconds(dpar_text *t, double s)
{
    if (s >= 100.0) {
        dpar_text_fixed(t, s, 0);
        dpar_text_put(t, " s");
    } else if (s >= 1.0) {
        dpar_text_fixed(t, s, 2);
        dpar_text_put(t, " s");
    } else if (s >= 1e-3) {
        dpar_text_fixed(t, s * 1e3, 1);
        dpar_text_put(t, " ms");
    } else {
        dpar_text_fixed(t, s * 1e6, 1);
        dpar_text_put(t, " us");
    }
}

/* Numbers of people's size: 1.2k, 3.4M, 5.6G. */
static void dpari_show_count(dpar_text *t, double v)
{
    static const char unit[6][2] = {"", "k", "M", "G", "T", "P"};
    int32_t i = 0;
    while (v >= 1000.0 && i < 5) {
        v /= 1000.0;
        i++;
    }
    dpar_text_real(t, v, 3);
    dpar_text_put(t, unit[i]);
}

static const char *dpari_show_unit(const dpar_job *job)
{
    return job->work->dims > 0 ? "cells" : "tokens";
}

/* ---- the table ------------------------------------------------------------------------------ */

/* A letter and an ANSI colour for each time term. */
static const char dpari_term_letter[DPAR_TIMES + 1] = "FBRTCEHPbidOoh";
static const int8_t dpari_term_colour[DPAR_TIMES] = {34, 36, 96, 31, 91, 35, 95,
                                                     33, 90, 37, 32, 92, 93, 97};

static void dpari_show_colour(dpar_text *t, const dpar_report *r, int32_t colour)
{
    if (r->colour) {
        dpar_text_put(t, "\x1b[");
        dpar_text_int(t, colour);
        dpar_text_char(t, 'm');
    }
}

static int32_t dpari_show_memory_bar(dpar_text *t, const dpar_report *r, double bytes,
                                     int32_t width)
{
    double share = bytes / r->job->cluster->gpu.memory_bytes;
    int32_t i, full = (int32_t)(share * width + 0.5);
    full = full > width ? width : full;
    dpari_show_colour(t, r, share > 1.0 ? 31 : share > 0.9 ? 33 : 32);
    for (i = 0; i < width; i++) {
        dpar_text_char(t, i < full ? '#' : '.');
    }
    dpari_show_colour(t, r, 0);
    return width;
}

/* Each term as many letters as its share of the longest step; rounded so that they add up. */
static int32_t dpari_show_time_bar(dpar_text *t, const dpar_report *r, const dpar_step *s,
                                   double longest, int32_t width)
{
    double sum = 0.0;
    int32_t i, at = 0;
    for (i = 0; i < DPAR_TIMES; i++) {
        int32_t end;
        sum += s->term[i];
        end = (int32_t)(sum / longest * width + 0.5);
        if (end > at) {
            dpari_show_colour(t, r, dpari_term_colour[i]);
            for (; at < end && at < width; at++) {
                dpar_text_char(t, dpari_term_letter[i]);
            }
        }
    }
    dpari_show_colour(t, r, 0);
    return at;
}

static void dpari_show_blank(dpar_text *t, int32_t n)
{
    for (; n > 0; n--) {
        dpar_text_char(t, ' ');
    }
}

/* The text right-aligned in `width`. */
static void dpari_show_right(dpar_text *t, const char *s, int32_t width)
{
    dpari_show_blank(t, width - (int32_t)dpari_length(s));
    dpar_text_put(t, s);
}

static void dpari_show_head(dpar_text *t, const dpar_report *r)
{
    const dpar_workload *w = r->job->work;
    const dpar_cluster *c = r->job->cluster;
    dpar_text_put(t, w->name);
    dpar_text_put(t, "  ");
    if (w->params > 0.0) {
        dpari_show_count(t, w->params);
        dpar_text_put(t, " parameters, ");
    }
    dpari_show_count(t, w->tokens);
    dpar_text_char(t, ' ');
    dpar_text_put(t, dpari_show_unit(r->job));
    dpar_text_put(t, " a sample\non  ");
    dpar_text_int(t, dpar_cluster_gpus(c));
    dpar_text_put(t, " x ");
    dpar_text_put(t, c->gpu.name);
    dpar_text_put(t, " (");
    dpar_text_int(t, c->nodes);
    dpar_text_put(t, c->nodes == 1 ? " node of " : " nodes of ");
    dpar_text_int(t, c->gpus_per_node);
    dpar_text_put(t, ", ");
    dpar_text_fixed(t, c->link_Bps * 1e-9, 0);
    dpar_text_put(t, " GB/s inside, ");
    dpar_text_fixed(t, c->nics * c->nic_Bps * 1e-9, 0);
    dpar_text_put(t, " GB/s a node outside)\n");
    dpar_text_put(t, r->global_batch > 0 ? "global batch " : "global batch free");
    if (r->global_batch > 0) {
        dpar_text_int(t, r->global_batch);
    }
    dpar_text_put(t, ", ");
    dpar_text_put(t, r->job->recipe.name);
    dpar_text_put(t, " precision, ");
    dpar_text_put(t, dpar_stack_name(w->stack));
    dpar_text_put(t, " software");
    if (w->heads > 0) {
        dpar_text_put(t, ", ");
        dpar_text_put(t, dpar_attention_name(w->attention));
        dpar_text_put(t, " attention");
    }
    dpar_text_put(t, "\n\n");
}

static void dpari_show_row(dpar_text *t, const dpar_report *r, int32_t i, double longest)
{
    const dpar_plan *p = &r->plan[i];
    char cell[96];
    dpar_text c;
    int32_t n;
    dpar_text_init(&c, cell, sizeof(cell));
    dpar_text_int(&c, i + 1);
    dpari_show_right(t, cell, 3);
    dpar_text_put(t, "  ");
    dpar_text_init(&c, cell, sizeof(cell));
    dpar_text_fixed(&c, p->memory.total * 1e-9, 1);
    dpari_show_right(t, cell, 6);
    dpar_text_put(t, " GB ");
    (void)dpari_show_memory_bar(t, r, p->memory.total, 12);
    dpar_text_init(&c, cell, sizeof(cell));
    dpari_show_seconds(&c, p->step.total);
    dpari_show_right(t, cell, 10);
    dpar_text_char(t, ' ');
    n = dpari_show_time_bar(t, r, &p->step, longest, 36);
    dpari_show_blank(t, 37 - n);
    dpar_text_init(&c, cell, sizeof(cell));
    dpari_show_count(&c, p->step.tokens_per_s_gpu);
    dpari_show_right(t, cell, 6);
    dpar_text_put(t, "/s ");
    dpar_text_init(&c, cell, sizeof(cell));
    dpar_text_fixed(&c, 100.0 * p->step.mfu, 1);
    dpari_show_right(t, cell, 5);
    dpar_text_put(t, "%  ");
    dpar_text_init(&c, cell, sizeof(cell));
    dpar_show_strategy(t, &p->strategy);
    if (!p->fits) {
        dpar_text_put(t, "  DOES NOT FIT");
    }
    dpar_text_char(t, '\n');
}

static void dpari_show_legend(dpar_text *t, const dpar_report *r)
{
    int32_t i, k, n = 0;
    dpar_text_put(t, "\ntime bar:");
    for (i = 0; i < DPAR_TIMES; i++) {
        int32_t seen = 0;
        for (k = 0; k < r->plans; k++) {
            seen = seen || r->plan[k].step.term[i] > 0.01 * r->plan[k].step.total;
        }
        if (seen) {
            dpar_text_char(t, ' ');
            dpari_show_colour(t, r, dpari_term_colour[i]);
            dpar_text_char(t, dpari_term_letter[i]);
            dpari_show_colour(t, r, 0);
            dpar_text_char(t, ' ');
            dpar_text_put(t, dpar_time_name(i));
            n++;
        }
    }
    dpar_text_put(t, "\nmemory bar: share of ");
    dpar_text_fixed(t, r->job->cluster->gpu.memory_bytes * 1e-9, 0);
    dpar_text_put(t, " GB; MFU: ");
    dpar_text_put(t,
                  r->job->work->heads > 0
                      ? "attention counted in full, vocabulary counted, recomputation not, of the "
                        "dense peak\n"
                      : "of the dense matrix peak\n");
}

DPAR_API void dpar_show_plans_text(dpar_text *t, const dpar_report *r)
{
    double longest = 1e-30;
    int32_t i;
    dpari_show_head(t, r);
    for (i = 0; i < r->plans; i++) {
        longest = dpari_mostf(longest, r->plan[i].step.total);
    }
    dpar_text_put(t,
                  "  #     memory a GPU           step time                                     ");
    dpar_text_put(t, dpari_show_unit(r->job));
    dpar_text_put(t, r->job->work->dims > 0 ? "/GPU    MFU  strategy\n" : "/GPU   MFU  strategy\n");
    for (i = 0; i < r->plans; i++) {
        dpari_show_row(t, r, i, longest);
    }
    dpari_show_legend(t, r);
    if (r->note != NULL) {
        dpar_text_put(t, r->note);
        dpar_text_char(t, '\n');
    }
    if (r->seconds > 0.0) {
        dpari_show_count(t, (double)r->evaluated);
        dpar_text_put(t, " configurations priced in ");
        dpari_show_seconds(t, r->seconds);
        dpar_text_char(t, '\n');
    }
    for (i = 0; i < r->rejects; i++) {
        dpar_text_put(t, i == 0 ? "\nwhy not its neighbours?\n  " : "  ");
        dpar_text_put(t, r->rejected[i].text);
        dpar_text_char(t, '\n');
    }
}

/* ---- one plan in full ----------------------------------------------------------------------- */

static void dpari_show_term(dpar_text *t, const char *name, double v, double whole, double unit,
                            const char *unit_name)
{
    char cell[48];
    dpar_text c;
    int32_t i;
    if (!(v > 0.0005 * whole || v < -0.0005 * whole)) {
        return;
    }
    dpar_text_put(t, "  ");
    dpar_text_put(t, name);
    dpar_text_column(t, 18);
    dpar_text_init(&c, cell, sizeof(cell));
    dpar_text_fixed(&c, v / unit, v / unit < 10.0 ? 3 : 1);
    dpari_show_right(t, cell, 10);
    dpar_text_char(t, ' ');
    dpar_text_put(t, unit_name);
    dpar_text_init(&c, cell, sizeof(cell));
    dpar_text_fixed(&c, 100.0 * v / whole, 1);
    dpari_show_right(t, cell, 7);
    dpar_text_put(t, " % ");
    for (i = 0; i < (int32_t)(40.0 * v / whole + 0.5) && i < 40; i++) {
        dpar_text_char(t, '#');
    }
    dpar_text_char(t, '\n');
}

/* Time against memory: what is given up for each GB. */
static void dpari_show_front(dpar_text *t, const dpar_report *r)
{
    int32_t i;
    for (i = 0; i < r->fronts && i < 8; i++) {
        dpar_text_put(
            t, i == 0 ? "\nless memory, more time (nothing is both faster and smaller)\n  " : "  ");
        dpar_text_fixed(t, r->front[i].memory.total * 1e-9, 1);
        dpar_text_put(t, " GB  ");
        dpari_show_seconds(t, r->front[i].step.total);
        dpar_text_put(t, "  ");
        dpar_show_strategy(t, &r->front[i].strategy);
        dpar_text_char(t, '\n');
    }
}

DPAR_API void dpar_show_plan_explain(dpar_text *t, const dpar_report *r)
{
    const dpar_plan *p = &r->plan[0];
    int32_t i;
    if (r->plans < 1) {
        return;
    }
    dpari_show_front(t, r);
    dpar_text_put(t, "\nthe first plan in full: ");
    dpar_show_strategy(t, &p->strategy);
    dpar_text_put(t, "\n\nmemory of pipeline rank ");
    dpar_text_int(t, p->memory.worst);
    dpar_text_put(t, ", the worst\n");
    for (i = 0; i < DPAR_MEMS; i++) {
        dpari_show_term(t, dpar_memory_name(i), p->memory.term[i], p->memory.total, 1e9, "GB");
    }
    dpari_show_term(t, "total", p->memory.total, p->memory.total, 1e9, "GB");
    dpar_text_put(t, "  between ");
    dpar_text_fixed(t, p->memory.lower * 1e-9, 1);
    dpar_text_put(t, " and ");
    dpar_text_fixed(t, p->memory.upper * 1e-9, 1);
    dpar_text_put(t, " GB (allocator 3 to 10 %); first stage ");
    dpar_text_fixed(t, p->memory.first * 1e-9, 1);
    dpar_text_put(t, ", last ");
    dpar_text_fixed(t, p->memory.last * 1e-9, 1);
    dpar_text_put(t, " GB\n\ntime of a step\n");
    for (i = 0; i < DPAR_TIMES; i++) {
        dpari_show_term(t, dpar_time_name(i), p->step.term[i], p->step.total, 1e-3, "ms");
    }
    dpari_show_term(t, "total", p->step.total, p->step.total, 1e-3, "ms");
    dpar_text_put(t, "\nsent by a GPU in a step: ");
    dpar_text_fixed(t, p->step.link_bytes * 1e-9, 2);
    dpar_text_put(t, " GB over in-node links, ");
    dpar_text_fixed(t, p->step.nic_bytes * 1e-9, 2);
    dpar_text_put(t, " GB over the network (");
    dpar_text_fixed(t, p->step.dp_bytes * 1e-9, 2);
    dpar_text_put(t, " GB of it all by data parallelism); ");
    dpari_show_seconds(t, p->step.dp_hidden_s);
    dpar_text_put(t, " of communication hidden behind compute\n");
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void dpari_json_text(dpar_text *t, const char *s)
{
    static const char hex[17] = "0123456789abcdef";
    dpar_text_char(t, '"');
    for (; *s != 0; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') {
            dpar_text_char(t, '\\');
            dpar_text_char(t, *s);
        } else if (c < 0x20u) {
            dpar_text_put(t, "\\u00");
            dpar_text_char(t, hex[c >> 4]);
            dpar_text_char(t, hex[c & 15u]);
        } else {
            dpar_text_char(t, *s);
        }
    }
    dpar_text_char(t, '"');
}

static void dpari_json_real(dpar_text *t, const char *name, double v, const char *then)
{
    dpar_text_char(t, '"');
    dpar_text_put(t, name);
    dpar_text_put(t, "\": ");
    dpar_text_real(t, dpari_finite(v) ? v : 0.0, 9);
    dpar_text_put(t, then);
}

static void dpari_json_int(dpar_text *t, const char *name, int64_t v, const char *then)
{
    dpar_text_char(t, '"');
    dpar_text_put(t, name);
    dpar_text_put(t, "\": ");
    dpar_text_int(t, v);
    dpar_text_put(t, then);
}

static void dpari_json_word_of(dpar_text *t, const char *name, const char *v, const char *then)
{
    dpar_text_char(t, '"');
    dpar_text_put(t, name);
    dpar_text_put(t, "\": ");
    dpari_json_text(t, v);
    dpar_text_put(t, then);
}

static void dpari_json_strategy(dpar_text *t, const dpar_strategy *s)
{
    char word[48];
    dpar_text w;
    dpar_text_put(t, "{");
    dpari_json_int(t, "dp", s->dp, ", ");
    dpari_json_int(t, "shard", s->shard > 0 ? s->shard : s->dp, ", ");
    dpari_json_int(t, "zero", s->zero, ", ");
    dpari_json_int(t, "tp", s->tp, ", ");
    dpari_json_int(t, "sp", s->sp, ", ");
    dpari_json_int(t, "cp", s->cp, ", ");
    dpari_json_word_of(t, "cp_kind", dpar_cp_name(s->cp_kind), ", ");
    dpari_json_int(t, "pp", s->pp, ", ");
    dpari_json_int(t, "vp", s->vp, ", ");
    dpari_json_int(t, "ep", s->ep, ", ");
    dpari_json_int(t, "etp", s->etp, ", ");
    dpari_json_int(t, "micro_batch", s->micro_batch, ", ");
    dpari_json_int(t, "micro_batches", s->micro_batches, ", ");
    dpari_json_word_of(t, "recompute", dpar_recompute_name(s->recompute), ", ");
    dpari_json_int(t, "recompute_layers", s->recompute_layers, ", ");
    dpari_json_word_of(t, "schedule", dpar_schedule_name(s->schedule), ", ");
    dpar_text_init(&w, word, sizeof(word));
    dpari_show_bits(&w, "", s->offload, 1);
    dpari_json_word_of(t, "offload", word, ", ");
    dpar_text_init(&w, word, sizeof(word));
    if (s->overlap & DPAR_OVERLAP_DEFAULT) {
        dpar_text_put(&w, "default");
    } else {
        dpari_show_bits(&w, "", s->overlap, 0);
    }
    dpari_json_word_of(t, "overlap", word, ", ");
    dpar_text_init(&w, word, sizeof(word));
    dpari_show_tiles(&w, s->tiles);
    dpari_json_word_of(t, "tiles", word, "}");
}

static void dpari_json_reasons(dpar_text *t, const dpar_report *r, const dpar_plan *p)
{
    char line[160];
    dpar_text w;
    int32_t i, most_time = 0, most_memory = 0;
    for (i = 1; i < DPAR_TIMES; i++) {
        most_time = p->step.term[i] > p->step.term[most_time] ? i : most_time;
    }
    for (i = 1; i < DPAR_MEMS; i++) {
        most_memory = p->memory.term[i] > p->memory.term[most_memory] ? i : most_memory;
    }
    dpar_text_init(&w, line, sizeof(line));
    dpar_text_fixed(&w, 100.0 * p->memory.upper / r->job->cluster->gpu.memory_bytes, 0);
    dpar_text_put(&w, " % of the GPU's memory at worst, mostly ");
    dpar_text_put(&w, dpar_memory_name(most_memory));
    dpari_json_text(t, line);
    dpar_text_put(t, ", ");
    dpar_text_init(&w, line, sizeof(line));
    dpar_text_fixed(&w, 100.0 * p->step.term[most_time] / p->step.total, 0);
    dpar_text_put(&w, " % of the step is ");
    dpar_text_put(&w, dpar_time_name(most_time));
    dpar_text_put(&w, ", the bubble ");
    dpar_text_fixed(&w, 100.0 * p->step.term[DPAR_TIME_BUBBLE] / p->step.total, 1);
    dpar_text_put(&w, " %");
    dpari_json_text(t, line);
}

static void dpari_json_stage(dpar_text *t, const dpar_job *job, const dpar_plan *p,
                             const char *name, int32_t rank)
{
    dpar_memory m;
    int32_t i;
    dpar_memory_of_stage(job, &p->strategy, rank, &m);
    dpar_text_put(t, "     \"");
    dpar_text_put(t, name);
    dpar_text_put(t, "\": {");
    for (i = 0; i < DPAR_MEMS; i++) {
        dpari_json_real(t, dpar_memory_name(i), m.term[i] * 1e-9, ", ");
    }
    dpari_json_real(t, "total", m.total * 1e-9, "},\n");
}

static void dpari_json_plan(dpar_text *t, const dpar_report *r, const dpar_plan *p)
{
    int32_t i;
    dpar_text_put(t, "    {\"strategy\": ");
    dpari_json_strategy(t, &p->strategy);
    dpar_text_put(t, ",\n     \"memory_gb\": {");
    for (i = 0; i < DPAR_MEMS; i++) {
        dpari_json_real(t, dpar_memory_name(i), p->memory.term[i] * 1e-9, ", ");
    }
    dpari_json_real(t, "total", p->memory.total * 1e-9, "},\n");
    if (p->strategy.pp > 1) {
        dpari_json_stage(t, r->job, p, "memory_first_stage_gb", 0);
        dpari_json_stage(t, r->job, p, "memory_last_stage_gb", p->strategy.pp - 1);
    }
    dpar_text_put(t, "     \"memory_range_gb\": {");
    dpari_json_real(t, "allocated", p->memory.allocated * 1e-9, ", ");
    dpari_json_real(t, "lower", p->memory.lower * 1e-9, ", ");
    dpari_json_real(t, "upper", p->memory.upper * 1e-9, ", ");
    dpari_json_real(t, "first_stage", p->memory.first * 1e-9, ", ");
    dpari_json_real(t, "last_stage", p->memory.last * 1e-9, ", ");
    dpari_json_real(t, "host", p->memory.host * 1e-9, "},\n     \"time_s\": {");
    for (i = 0; i < DPAR_TIMES; i++) {
        dpari_json_real(t, dpar_time_name(i), p->step.term[i], ", ");
    }
    dpari_json_real(t, "total", p->step.total, "},\n     ");
    dpari_json_real(t, "tokens_per_s_per_gpu", p->step.tokens_per_s_gpu, ", ");
    dpari_json_real(t, "samples_per_step", p->step.samples, ", ");
    dpari_json_real(t, "tflops_per_gpu", p->step.tflops_gpu, ", ");
    dpari_json_real(t, "mfu", p->step.mfu, ", ");
    dpari_json_real(t, "mfu_causal", p->step.mfu_causal, ", ");
    dpari_json_real(t, "hfu", p->step.hfu, ", ");
    dpari_json_real(t, "bubble", p->step.bubble, ", ");
    dpari_json_real(t, "link_gb", p->step.link_bytes * 1e-9, ", ");
    dpari_json_real(t, "nic_gb", p->step.nic_bytes * 1e-9, ", ");
    dpar_text_put(t,
                  p->fits ? "\"fits\": true, \"reasons\": [" : "\"fits\": false, \"reasons\": [");
    dpari_json_reasons(t, r, p);
    dpar_text_put(t, "]}");
}

static void dpari_json_rejected(dpar_text *t, const dpar_report *r)
{
    int32_t i;
    dpar_text_put(t, "  \"rejected\": [");
    for (i = 0; i < r->rejects; i++) {
        dpar_text_put(t, i > 0 ? ",\n    {" : "\n    {");
        dpari_json_word_of(t, "rule", dpar_rule_name(r->rejected[i].rule), ", ");
        dpari_json_word_of(t, "text", r->rejected[i].text, ", ");
        dpari_json_real(t, "time_s", r->rejected[i].seconds, ", ");
        dpari_json_real(t, "gb_over", r->rejected[i].bytes_over * 1e-9, ", \"strategy\": ");
        dpari_json_strategy(t, &r->rejected[i].strategy);
        dpar_text_put(t, "}");
    }
    dpar_text_put(t, "],\n  \"rejected_by_rule\": {");
    for (i = 1; i < DPAR_RULES && r->rejected_by_rule != NULL; i++) {
        dpari_json_int(t, dpar_rule_name(i), r->rejected_by_rule[i],
                       i + 1 < DPAR_RULES ? ", " : "");
    }
    dpar_text_put(t, "},\n");
}

static void dpari_json_assumptions(dpar_text *t, const dpar_report *r)
{
    const dpar_workload *w = r->job->work;
    const dpar_cluster *c = r->job->cluster;
    char line[400];
    dpar_text l;
    dpar_text_put(t, "  \"assumptions\": [\n    ");
    dpar_text_init(&l, line, sizeof(line));
    dpar_text_put(&l, "software: ");
    dpar_text_put(&l, dpar_stack_name(w->stack));
    dpar_text_put(&l, ", attention: ");
    dpar_text_put(&l, dpar_attention_name(w->attention));
    dpari_json_text(t, line);
    dpar_text_put(t, ",\n    ");
    dpar_text_init(&l, line, sizeof(line));
    dpar_text_put(&l, "precision ");
    dpar_text_put(&l, r->job->recipe.name);
    dpar_text_put(&l, ": bytes a parameter = weight ");
    dpar_text_real(&l, r->job->recipe.weight, 3);
    dpar_text_put(&l, " + gradient ");
    dpar_text_real(&l, r->job->recipe.gradient, 3);
    dpar_text_put(&l, " + master ");
    dpar_text_real(&l, r->job->recipe.master, 3);
    dpar_text_put(&l, " + moments ");
    dpar_text_real(&l, r->job->recipe.moments, 3);
    dpari_json_text(t, line);
    dpar_text_put(t, ",\n    ");
    dpar_text_init(&l, line, sizeof(line));
    dpar_text_put(&l, "machine: ");
    dpar_text_put(&l, c->name);
    dpar_text_put(&l, ", ");
    dpar_text_put(&l, c->source);
    dpar_text_put(&l, "; GPU ");
    dpar_text_put(&l, c->gpu.name);
    dpar_text_put(&l, ", ");
    dpar_text_put(&l, c->gpu.source);
    dpari_json_text(t, line);
    dpar_text_put(t, ",\n    ");
    dpar_text_init(&l, line, sizeof(line));
    dpar_text_put(&l, "calibration: ");
    dpar_text_put(&l, c->cal.source);
    dpar_text_put(&l, "; one standard deviation of products ");
    dpar_text_fixed(&l, 100.0 * c->cal.error[DPAR_CAL_GEMM], 0);
    dpar_text_put(&l, " %, of links ");
    dpar_text_fixed(&l, 100.0 * c->cal.error[DPAR_CAL_LINK_SHARE], 0);
    dpar_text_put(&l, " %, of the network ");
    dpar_text_fixed(&l, 100.0 * c->cal.error[DPAR_CAL_NET_SHARE], 0);
    dpar_text_put(&l, " %; activations of ");
    dpar_text_int(&l, w->element);
    dpar_text_put(&l, " bytes");
    dpari_json_text(t, line);
    dpar_text_put(t, ",\n    \"mfu: full attention, vocabulary counted, recomputation not, of the "
                     "dense peak of the matrix format; mfu_causal: causal attention at half; hfu: "
                     "with recomputation; GB = 1e9 bytes\"");
    dpar_text_put(t, "\n  ]\n");
}

/* Time against memory: nothing else is both faster and smaller; fastest first. */
static void dpari_json_front(dpar_text *t, const dpar_report *r)
{
    int32_t i;
    dpar_text_put(t, "  \"pareto\": [");
    for (i = 0; i < r->fronts; i++) {
        dpar_text_put(t, i > 0 ? ",\n    {" : "\n    {");
        dpari_json_real(t, "time_s", r->front[i].step.total, ", ");
        dpari_json_real(t, "memory_gb", r->front[i].memory.total * 1e-9, ", ");
        dpari_json_int(t, "gpus", dpar_cluster_gpus(r->job->cluster), ", \"strategy\": ");
        dpari_json_strategy(t, &r->front[i].strategy);
        dpar_text_char(t, '}');
    }
    dpar_text_put(t, "],\n");
}

static void dpari_json_advice(dpar_text *t, const dpar_advice *a)
{
    dpar_text_put(t, "  \"recommendation\": {");
    dpari_json_word_of(t, "name", a->name, ",\n    ");
    dpari_json_word_of(t, "why", a->why, ",\n    ");
    dpari_json_word_of(t, "runner_up", a->runner_up, ",\n    ");
    dpari_json_word_of(t, "warnings", a->warning_text, "},\n");
}

DPAR_API void dpar_show_plans_json(dpar_text *t, const dpar_report *r)
{
    int32_t i;
    dpar_text_put(t, "{\n  ");
    dpari_json_word_of(t, "model", r->job->work->name, ", ");
    dpari_json_int(t, "parameters", (int64_t)dpari_leastf(r->job->work->params, 9e18), ", ");
    dpari_json_int(t, "gpus", dpar_cluster_gpus(r->job->cluster), ", ");
    dpari_json_int(t, "global_batch", r->global_batch, ",\n  \"plans\": [\n");
    for (i = 0; i < r->plans; i++) {
        dpari_json_plan(t, r, &r->plan[i]);
        dpar_text_put(t, i + 1 < r->plans ? ",\n" : "\n");
    }
    dpar_text_put(t, "  ],\n");
    dpari_json_front(t, r);
    if (r->advice != NULL) {
        dpari_json_advice(t, r->advice);
    }
    if (r->note != NULL) {
        dpar_text_put(t, "  ");
        dpari_json_word_of(t, "message", r->note, ",\n");
    }
    dpari_json_rejected(t, r);
    dpar_text_put(t, "  ");
    dpari_json_int(t, "evaluated", r->evaluated, ", ");
    dpari_json_real(t, "seconds", r->seconds, ",\n");
    dpari_json_assumptions(t, r);
    dpar_text_put(t, "}\n");
}

/* ---- CSV ------------------------------------------------------------------------------------ */

DPAR_API void dpar_show_plans_csv(dpar_text *t, const dpar_report *r)
{
    int32_t i, k;
    dpar_text_put(t, "rank,strategy,fits");
    for (k = 0; k < DPAR_MEMS; k++) {
        dpar_text_char(t, ',');
        dpar_text_put(t, dpar_memory_name(k));
        dpar_text_put(t, "_gb");
    }
    dpar_text_put(t, ",total_gb,upper_gb");
    for (k = 0; k < DPAR_TIMES; k++) {
        dpar_text_char(t, ',');
        dpar_text_put(t, dpar_time_name(k));
        dpar_text_put(t, "_s");
    }
    dpar_text_put(t, ",total_s,tokens_per_s_per_gpu,tflops_per_gpu,mfu\n");
    for (i = 0; i < r->plans; i++) {
        const dpar_plan *p = &r->plan[i];
        dpar_text_int(t, i + 1);
        dpar_text_put(t, ",\"");
        dpar_show_strategy(t, &p->strategy);
        dpar_text_put(t, p->fits ? "\",1" : "\",0");
        for (k = 0; k < DPAR_MEMS + 2; k++) {
            dpar_text_char(t, ',');
            dpar_text_real(t,
                           (k < DPAR_MEMS    ? p->memory.term[k]
                            : k == DPAR_MEMS ? p->memory.total
                                             : p->memory.upper) *
                               1e-9,
                           7);
        }
        for (k = 0; k < DPAR_TIMES + 1; k++) {
            dpar_text_char(t, ',');
            dpar_text_real(t, k < DPAR_TIMES ? p->step.term[k] : p->step.total, 7);
        }
        dpar_text_char(t, ',');
        dpar_text_real(t, p->step.tokens_per_s_gpu, 7);
        dpar_text_char(t, ',');
        dpar_text_real(t, p->step.tflops_gpu, 5);
        dpar_text_char(t, ',');
        dpar_text_real(t, p->step.mfu, 5);
        dpar_text_char(t, '\n');
    }
}

/* ---- SVG ------------------------------------------------------------------------------------ */

/* Okabe and Ito's colours, told apart with any colour vision, and tints of them. */
static const char dpari_svg_colour[DPAR_TIMES][8] = {
    "#0072B2", "#56B4E9", "#9AD1F0", "#D55E00", "#E8935A", "#CC79A7", "#E3AFCC",
    "#F0E442", "#BBBBBB", "#777777", "#009E73", "#E69F00", "#F4CE7F", "#333333"};

static void dpari_svg_number(dpar_text *t, const char *name, double v)
{
    dpar_text_char(t, ' ');
    dpar_text_put(t, name);
    dpar_text_put(t, "=\"");
    dpar_text_fixed(t, v, 1);
    dpar_text_char(t, '"');
}

static void dpari_svg_rect(dpar_text *t, double x, double y, double w, double h, const char *fill)
{
    dpar_text_put(t, "<rect");
    dpari_svg_number(t, "x", x);
    dpari_svg_number(t, "y", y);
    dpari_svg_number(t, "width", w);
    dpari_svg_number(t, "height", h);
    dpar_text_put(t, " fill=\"");
    dpar_text_put(t, fill);
    dpar_text_put(t, "\"/>\n");
}

static void dpari_svg_open(dpar_text *t, double x, double y, const char *style)
{
    dpar_text_put(t, "<text");
    dpari_svg_number(t, "x", x);
    dpari_svg_number(t, "y", y);
    dpar_text_put(t, " class=\"");
    dpar_text_put(t, style);
    dpar_text_put(t, "\">");
}

/* The same with &, < and > spelled out. */
static void dpari_svg_escaped(dpar_text *t, const char *s)
{
    for (; *s != 0; s++) {
        if (*s == '&') {
            dpar_text_put(t, "&amp;");
        } else if (*s == '<') {
            dpar_text_put(t, "&lt;");
        } else if (*s == '>') {
            dpar_text_put(t, "&gt;");
        } else {
            dpar_text_char(t, *s);
        }
    }
}

static void dpari_svg_text(dpar_text *t, double x, double y, const char *style, const char *s)
{
    dpari_svg_open(t, x, y, style);
    dpari_svg_escaped(t, s);
    dpar_text_put(t, "</text>\n");
}

static void dpari_svg_head(dpar_text *t, const dpar_report *r, double height)
{
    const dpar_cluster *c = r->job->cluster;
    dpar_text_put(t, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1120 ");
    dpar_text_fixed(t, height, 0);
    dpar_text_put(t, "\" width=\"1120\" height=\"");
    dpar_text_fixed(t, height, 0);
    dpar_text_put(t, "\">\n<style>text{font-family:system-ui,Helvetica,Arial,sans-serif;fill:#222}"
                     ".h{font-size:20px;font-weight:600}.s{font-size:13px;fill:#555}"
                     ".l{font-size:12px}.m{font-size:12px;font-family:ui-monospace,Menlo,monospace}"
                     ".e{font-size:12px;text-anchor:end}.c{font-size:12px;text-anchor:middle}"
                     "</style>\n");
    dpari_svg_rect(t, 0, 0, 1120, height, "#ffffff");
    dpari_svg_open(t, 24, 36, "h");
    dpari_svg_escaped(t, r->job->work->name);
    dpar_text_put(t, " on ");
    dpar_text_int(t, dpar_cluster_gpus(c));
    dpar_text_put(t, " x ");
    dpari_svg_escaped(t, c->gpu.name);
    dpar_text_put(t, "</text>\n");
    dpari_svg_open(t, 24, 58, "s");
    dpari_show_count(t, r->job->work->params);
    dpar_text_put(t, " parameters, ");
    dpar_text_int(t, c->nodes);
    dpar_text_put(t, " nodes of ");
    dpar_text_int(t, c->gpus_per_node);
    dpar_text_put(t, ", global batch ");
    dpar_text_int(t, r->global_batch);
    dpar_text_put(t, ", ");
    dpari_svg_escaped(t, r->job->recipe.name);
    dpar_text_put(t, " precision. Predicted by dpar.</text>\n");
}

static void dpari_svg_legend(dpar_text *t, const dpar_report *r, double y)
{
    double x = 24;
    int32_t i, k;
    for (i = 0; i < DPAR_TIMES; i++) {
        int32_t seen = 0;
        for (k = 0; k < r->plans; k++) {
            seen = seen || r->plan[k].step.term[i] > 0.004 * r->plan[k].step.total;
        }
        if (seen) {
            dpari_svg_rect(t, x, y - 10, 12, 12, dpari_svg_colour[i]);
            dpari_svg_text(t, x + 17, y, "l", dpar_time_name(i));
            x += 34.0 + 7.2 * (double)dpari_length(dpar_time_name(i));
        }
    }
}

/* One plan: its name, the time by term, the memory against the capacity. */
static void dpari_svg_plan(dpar_text *t, const dpar_report *r, int32_t i, double y, double longest)
{
    const dpar_plan *p = &r->plan[i];
    double x = 24, capacity = r->job->cluster->gpu.memory_bytes, share;
    int32_t k;
    dpari_svg_open(t, x, y, "m");
    dpar_text_int(t, i + 1);
    dpar_text_put(t, "  ");
    dpar_show_strategy(t, &p->strategy);
    dpar_text_put(t, "</text>\n");
    for (k = 0; k < DPAR_TIMES; k++) {
        double w = 600.0 * p->step.term[k] / longest;
        if (w > 0.3) {
            dpari_svg_rect(t, x, y + 7, w, 18, dpari_svg_colour[k]);
            x += w;
        }
    }
    dpari_svg_open(t, x + 8, y + 21, "l");
    dpari_show_seconds(t, p->step.total);
    dpar_text_put(t, "</text>\n");
    share = p->memory.total / capacity;
    dpari_svg_rect(t, 760, y + 7, 200, 18, "#eeeeee");
    dpari_svg_rect(t, 760, y + 7, 200.0 * (share < 1.0 ? share : 1.0), 18,
                   p->fits ? "#009E73" : "#D55E00");
    dpari_svg_open(t, 970, y + 21, "l");
    dpar_text_fixed(t, p->memory.total * 1e-9, 1);
    dpar_text_put(t, " GB   MFU ");
    dpar_text_fixed(t, 100.0 * p->step.mfu, 1);
    dpar_text_put(t, " %</text>\n");
}

static void dpari_svg_axis(dpar_text *t, double x, double y, double v, const char *style)
{
    dpari_svg_open(t, x, y, style);
    dpar_text_real(t, v, 3);
    dpar_text_put(t, "</text>\n");
}

/* Step time over memory, each point a configuration that no other beats in both. */
static void dpari_svg_front(dpar_text *t, const dpar_report *r, double top)
{
    double x0 = 90, y0 = top + 40, w = 900, h = 200, most = 0.0, capacity, px = 0.0, py = 0.0;
    int32_t i;
    capacity = r->job->cluster->gpu.memory_bytes;
    for (i = 0; i < r->fronts; i++) {
        most = dpari_mostf(most, r->front[i].step.total / r->front[i].step.samples);
    }
    dpari_svg_text(t, 24, top + 18, "s",
                   "Pareto front: no configuration is both faster and smaller than a point here");
    dpari_svg_rect(t, x0, y0, w, h, "#f7f7f7");
    for (i = 0; i <= 4; i++) {
        dpari_svg_rect(t, x0, y0 + h * i / 4.0, w, 0.7, "#cccccc");
        dpari_svg_axis(t, x0 - 8, y0 + h * (1.0 - i / 4.0) + 4, 1e3 * most * i / 4.0, "e");
        dpari_svg_axis(t, x0 + w * i / 4.0, y0 + h + 18, capacity * 1e-9 * i / 4.0, "c");
    }
    for (i = 0; i < r->fronts; i++) {
        double x = x0 + w * r->front[i].memory.total / capacity;
        double y = y0 + h - h * r->front[i].step.total / r->front[i].step.samples / most;
        if (i > 0) {
            dpar_text_put(t, "<line stroke=\"#0072B2\" stroke-width=\"1.5\"");
            dpari_svg_number(t, "x1", px);
            dpari_svg_number(t, "y1", py);
            dpari_svg_number(t, "x2", x);
            dpari_svg_number(t, "y2", y);
            dpar_text_put(t, "/>\n");
        }
        px = x;
        py = y;
        dpar_text_put(t, "<circle r=\"4.5\" fill=\"#0072B2\"");
        dpari_svg_number(t, "cx", x);
        dpari_svg_number(t, "cy", y);
        dpar_text_put(t, "><title>");
        dpar_show_strategy(t, &r->front[i].strategy);
        dpar_text_put(t, "</title></circle>\n");
    }
    dpari_svg_text(t, x0 + w / 2.0, y0 + h + 36, "c", "memory a GPU, GB (right edge: what it has)");
    dpari_svg_text(t, 24, y0 - 8, "l", "ms a sample");
}

DPAR_API void dpar_show_plans_svg(dpar_text *t, const dpar_report *r)
{
    double longest = 1e-30, y = 132, height;
    int32_t i;
    for (i = 0; i < r->plans; i++) {
        longest = dpari_mostf(longest, r->plan[i].step.total);
    }
    height = y + 46.0 * r->plans + (r->fronts > 1 ? 310.0 : 10.0);
    dpari_svg_head(t, r, height);
    dpari_svg_legend(t, r, 86);
    dpari_svg_text(t, 24, 110, "s", "step time by term");
    dpari_svg_open(t, 760, 110, "s");
    dpar_text_put(t, "memory of ");
    dpar_text_fixed(t, r->job->cluster->gpu.memory_bytes * 1e-9, 0);
    dpar_text_put(t, " GB</text>\n");
    for (i = 0; i < r->plans; i++) {
        dpari_svg_plan(t, r, i, y, longest);
        y += 46.0;
    }
    if (r->fronts > 1) {
        dpari_svg_front(t, r, y);
    }
    dpar_text_put(t, "</svg>\n");
}

#endif /* DPAR_NO_SHOW */

#endif /* DPAR_IMPLEMENTATION */
