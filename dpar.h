/* SPDX-License-Identifier: MIT-0 */
/* dpar.h - computes which rank owns which part of an array, and which parts ranks must send to each other.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 * Ranks form a mesh with named axes. An array is cut over the axes of a mesh, and each rank computes from that
 * description alone what it owns, what it sends and what it receives. All functions are local. None of them
 * communicates, allocates memory or calls a library. One query costs O(axes) even on a million ranks, because there
 * are no tables.
 *
 *     #include "dpar.h"
 *     #include <stdio.h>
 *     int main(void)
 *     {
 *         const int32_t sizes[2] = {4, 2};
 *         const int64_t extent[2] = {1000, 64};
 *         const dpar_placement cuts[2] = {dpar_shard(0), dpar_shard(1)};
 *         int64_t shape[2], offset[2];
 *         dpar_mesh mesh;
 *         dpar_layout layout;
 *         dpar_why why;
 *         if (dpar_mesh_init(&mesh, "dp tp", sizes, DPAR_ORDER_LAST_FASTEST, 0, &why) < 0 ||
 *             dpar_layout_init(&layout, &mesh, 2, extent, cuts, &why) < 0) {
 *             puts(why.text);
 *             return 1;
 *         }
 *         dpar_layout_local(&layout, 5, shape, offset);
 *         printf("rank 5 owns %d x %d elements from (%d, %d) on\n", (int)shape[0], (int)shape[1],
 *                (int)offset[0], (int)offset[1]);
 *         return 0;
 *     }
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. yours.c -o yours && ./yours
 *     rank 5 owns 250 x 32 elements from (500, 32) on
 *
 * In a program of several files, include the headers wherever you need them and define DPAR_IMPLEMENTATION in one
 * file only.
 *
 * The other headers build on this one. Include the header that you need; it includes those below it.
 *
 *     dpar_schedule.h   orders the work of pipeline stages: 18 published orders, checked, simulated and drawn
 *                           dpar_schedule_find(&order, "zbv", &why);
 *                           dpar_schedule_generate(&schedule, &order, memory, bytes, &why);
 *                           dpar_schedule_simulate(&schedule, &how, &timing, work, work_bytes, &why);
 *     dpar_cost.h       predicts memory and time of training a model on a machine, and finds the best plan
 *                           dpar_model_find(&model, "llama-3-8b", &why);
 *                           dpar_workload_init(&work, &model, 0, &why);
 *                           dpar_plan_price(&job, &strategy, 0, &plan, NULL, &why);
 *     dpar_proof.h      proves an exchange between N ranks on one core: partners, owners, no deadlock, bytes
 *                           dpar_proof_halo(&halo, &desc, &report, &why);
 *     dpar_comm.h       starts ranks or joins those that a launcher started; collectives and messages (POSIX)
 *                           dpar_init(&world, NULL, &why);
 *                           dpar_all_reduce(world, in, out, count, DPAR_F32, DPAR_SUM, NULL);
 *                           dpar_comm_free(world);
 *     dpar_halo.h       distributes grids, exchanges their halos, and adds halos back to their owners (the adjoint)
 *                           dpar_grid_make(world, &desc, &g, &why);
 *                           u = dpar_grid_array(g, DPAR_F64, NULL);
 *                           dpar_grid_exchange(g, u);
 *     dpar_points.h     exchanges values of unstructured meshes, by global ids or by index lists
 *                           dpar_points_make(world, &desc, &points, &why);
 *                           dpar_points_exchange(points, x);
 *                           dpar_points_reduce(points, b);
 *     dpar_particles.h  distributes particles by their positions: new owners, ghosts, sums of forces
 *                           dpar_particles_make(world, &desc, &particles, &why);
 *                           dpar_particles_migrate(particles, &arrays);
 *                           dpar_particles_ghosts(particles, &arrays);
 *     dpar_pencil.h     transposes arrays between pencils, for FFT codes
 *                           dpar_pencil_make(world, &desc, &pencil, &why);
 *                           dpar_pencil_transpose(pencil, 2, 1, x, y);
 *     dpar_exact.h      sums, dot products and norms with the same bits on any number of ranks
 *                           dpar_exact_sum(world, x, count, DPAR_F64, &sum);
 *     dpar_blocks.h     many blocks of a grid on each rank, with land left out
 *                           dpar_blocks_make(world, &desc, &blocks, &why);
 *                           dpar_blocks_exchange(blocks, u);
 *     dpar_train.h      trains: ddp, fsdp (ZeRO), tensor, sequence, expert and pipeline parallelism, optimizers
 *                           dpar_ddp_make(world, &desc, &ddp, &why);
 *                           dpar_ddp_ready(ddp, i);
 *                           dpar_ddp_end(ddp);
 *     dpar_spatial.h    runs convolution, pooling, norms and window attention on grids that ranks share
 *                           dpar_spatial_make(world, &layer, &plan, &why);
 *                           dpar_spatial_forward(plan, &call);
 *                           dpar_spatial_backward(plan, &call);
 *     dpar_debug.h      finds faults: reports what this machine allows, and checks whether an exchange was right
 *                           faults = dpar_doctor(world, &text);
 *                           dpar_halo_plan_check(x, DPAR_HALO_WRONG, &why);
 *                           dpar_halo_plan_report(x, &text);
 *     dpar_mpi.h        dpar_mpi_make(MPI_COMM_WORLD, NULL, &world, &why): the same calls over MPI
 *     dpar_nccl.h       dpar_nccl_make(host, NULL, &world, &why): the same calls over NCCL
 *     dpar_cuda.h       dpar_cuda_make(&gpu, NULL, &why): memory and kernels of an NVIDIA GPU
 *
 * Macros that you may define before the include:
 *     DPAR_IMPLEMENTATION         compiles the code of all dpar headers that this file includes
 *     DPAR_INDEX_IMPLEMENTATION   compiles the code of dpar.h only. Each other header has such a macro, named after
 *                                 itself: DPAR_HALO_IMPLEMENTATION for dpar_halo.h
 *     DPAR_STATIC                 makes all functions static, so that the compiler drops those that the file does not
 *                                 call. Define it in every file or in none. This is the quickest build for a program
 *                                 of one file
 *     DPAR_API                    replaces the linkage of public functions (dllexport, ...)
 *
 * Conventions. Most functions return a dpar_status: 0 is success, a positive number a condition that is no error, a
 * negative number an error. The comment of a function names the errors, DPAR_E_x, that a caller should expect. If the
 * last parameter of a function is a `dpar_why *`, a failing call writes a message for a person there; pass NULL if you
 * do not want it. Outputs are written on success only, unless the comment says otherwise. A size in brackets, as in
 * [ranks], is the length of an array. C99, C++11 and later, MSVC 2015 and later. */

#ifndef DPAR_H
#define DPAR_H

/* The implementations that call the operating system need its extensions, and this line comes before
 * the first system header. */
#if defined(__linux__) && !defined(_GNU_SOURCE) &&                                                 \
    (defined(DPAR_IMPLEMENTATION) || defined(DPAR_COMM_IMPLEMENTATION) ||                          \
     defined(DPAR_HALO_IMPLEMENTATION) || defined(DPAR_POINTS_IMPLEMENTATION) ||                   \
     defined(DPAR_PARTICLES_IMPLEMENTATION) || defined(DPAR_PENCIL_IMPLEMENTATION) ||              \
     defined(DPAR_BLOCKS_IMPLEMENTATION) || defined(DPAR_EXACT_IMPLEMENTATION) ||                  \
     defined(DPAR_TRAIN_IMPLEMENTATION) || defined(DPAR_SPATIAL_IMPLEMENTATION) ||                 \
     defined(DPAR_DEBUG_IMPLEMENTATION) || defined(DPAR_MPI_IMPLEMENTATION) ||                     \
     defined(DPAR_NCCL_IMPLEMENTATION))
#define _GNU_SOURCE
#endif

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/* ==== base/base.h ==== */

/* base - declares what every header shares: version, linkage, statuses and messages. */

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define DPAR_VERSION_MAJOR 0
#define DPAR_VERSION_MINOR 2
#define DPAR_VERSION_PATCH 0
/* The version as one number: major x 10000 + minor x 100 + patch. */
#define DPAR_VERSION (DPAR_VERSION_MAJOR * 10000 + DPAR_VERSION_MINOR * 100 + DPAR_VERSION_PATCH)

/* With DPAR_STATIC every function is private to the file that includes the header. */
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

/* dpar_comm.h and the headers above it need POSIX and a C library. */
#if defined(__STDC_HOSTED__) && __STDC_HOSTED__ && (defined(__unix__) || defined(__APPLE__))
#define DPARI_POSIX 1
#else
#define DPARI_POSIX 0
#endif

/* Lists every status with its name, its number and its text. Negative numbers are errors, 0 is
 * success, and positive numbers are conditions that are not errors. */
#define DPAR_STATUS_LIST(X)                                                                        \
    X(OK, 0, "ok")                                                                                 \
    X(DONE, 1, "nothing is left to do")                                                            \
    X(MORE, 2, "there is more to do")                                                              \
    X(SKIPPED, 3, "the step was skipped because a gradient is not finite")                         \
    X(E_ARG, -1, "an argument is out of its domain")                                               \
    X(E_RANGE, -2, "a number is too large")                                                        \
    X(E_ROOM, -3, "the memory passed is too small")                                                \
    X(E_PARSE, -4, "the text is not of the expected form")                                         \
    X(E_UNKNOWN, -5, "the name is not known")                                                      \
    X(E_DIVIDE, -6, "sizes do not divide")                                                         \
    X(E_MEMORY, -7, "it does not fit in device memory")                                            \
    X(E_NONE, -8, "no configuration is legal")                                                     \
    X(E_STUCK, -9, "ranks wait for each other")                                                    \
    X(E_PEER, -10, "another rank is gone")                                                         \
    X(E_TIMEOUT, -11, "another rank did not arrive in time")                                       \
    X(E_MISMATCH, -12, "ranks called different operations")                                        \
    X(E_SYSTEM, -13, "the operating system refused")

/* The result of a call: one of the DPAR_x above. */
typedef int32_t dpar_status;

enum {
#define DPARI_STATUS_ENUM(name, value, text) DPAR_##name = value,
    DPAR_STATUS_LIST(DPARI_STATUS_ENUM)
#undef DPARI_STATUS_ENUM
        DPARI_STATUS_END = -1000
};

/* The message that explains an error, such as "tp=12 does not divide 32 attention heads". Functions
 * that check a user's input take a `dpar_why *` as their last parameter, which may be NULL. They
 * write it only if they return an error. */
typedef struct dpar_why {
    char text[240]; /* ends in NUL; a longer message is cut */
    int64_t bytes;  /* with DPAR_E_ROOM: the bytes that the call needs; 0 if another capacity is too
                       small */
} dpar_why;

/* Returns the meaning of a status in a few words, or "unknown status". The text is static. */
DPAR_API const char *dpar_status_text(dpar_status status);

/* ==== base/type.h ==== */

/* type - names the number formats and the collectives that all headers share. */

/* The number format of an array, a message or an arithmetic unit.
 *
 * DPAR_TYPE_NONE is the value of a field that was left out. A field that describes data must not be
 * left out (DPAR_E_ARG); an optional field documents what 0 selects.
 *
 * dpar_cost.h knows a chip's peak FLOP/s in the formats from DPAR_F64 up to DPAR_FORMAT_COUNT,
 * where DPAR_BF16 stands for DPAR_F16 too. The types from DPAR_F16 on only describe how numbers are
 * stored. */
enum {
    DPAR_TYPE_NONE,
    DPAR_F64,
    DPAR_F32,
    DPAR_TF32, /* stored as F32 */
    DPAR_BF16,
    DPAR_F8,
    DPAR_F4,
    DPAR_FORMAT_COUNT,
    DPAR_F16 = DPAR_FORMAT_COUNT,
    DPAR_I8,
    DPAR_U8,
    DPAR_I32,
    DPAR_U32,
    DPAR_I64,
    DPAR_U64,
    DPAR_TYPE_COUNT
};

/* Returns the bytes of one element. Returns 0 for DPAR_F4, whose elements share bytes, and for a
 * number that is not a type. */
DPAR_API int32_t dpar_type_bytes(int32_t type);
/* Returns the name of a type: "f32", "bf16", ..., "none" for DPAR_TYPE_NONE, or "?" for a number
 * that is not a type. The text is static. */
DPAR_API const char *dpar_type_name(int32_t type);

/* The collectives, named as in MPI and NCCL, and the two halves of a message. DPAR_CALL_NONE is the
 * value of a field that was left out. */
enum {
    DPAR_CALL_NONE,
    DPAR_CALL_ALL_REDUCE,
    DPAR_CALL_ALL_GATHER,
    DPAR_CALL_REDUCE_SCATTER,
    DPAR_CALL_ALL_TO_ALL,
    DPAR_CALL_BROADCAST,
    DPAR_CALL_REDUCE,
    DPAR_CALL_GATHER,
    DPAR_CALL_SCATTER,
    DPAR_CALL_SEND_RECV, /* a message, where its cost is computed */
    DPAR_CALL_BARRIER,
    DPAR_CALL_COLLECTIVE_COUNT,
    DPAR_CALL_SEND = DPAR_CALL_COLLECTIVE_COUNT,
    DPAR_CALL_RECV,
    DPAR_CALL_COUNT
};

/* Returns the name of a collective: "all-reduce", ..., "send", "recv", "none" for DPAR_CALL_NONE,
 * or "?" for any other number. The text is static. */
DPAR_API const char *dpar_call_name(int32_t kind);

/* ==== base/box.h ==== */

/* box - describes a box of indices, and a box of values that one rank sends to another. */

enum { DPAR_MAX_DIMS = 6 }; /* the most dimensions that an array may have */

/* A box of indices: lo[d] <= i < hi[d] in every dim d. It is empty if hi[d] <= lo[d] in any dim.
 * Dim 0 is the slowest in memory, as in C and torch. */
typedef struct dpar_box {
    int32_t dims; /* 0..DPAR_MAX_DIMS; a box with 0 dims holds one element */
    int64_t lo[DPAR_MAX_DIMS], hi[DPAR_MAX_DIMS];
} dpar_box;

/* Counts the elements of a box. Returns 0 if the box is empty and -1 if there are more than
 * 2^63 - 1. Costs O(dims). */
DPAR_API int64_t dpar_box_volume(const dpar_box *box);

/* A box of values that one rank sends to another, or copies locally if `peer` is the rank itself.
 * Redistributions and halos are lists of transfers.
 *
 *     send:     element j of dim d is sent from mine[d] + j here to theirs[d] + j at the peer
 *     receive:  it is received from theirs[d] + j at the peer into mine[d] + j here
 *
 * Both sides list the same transfers in the same order: the k-th send from a to b is the k-th
 * receive of b from a. A packed message holds the box in the sender's order, the last dim fastest.
 *
 * Only folded grids, poles and cubed spheres set flip, swap and turn. If bit d of `flip` is set,
 * the receiver counts its dim d backwards, so that element j arrives at extent[d] - 1 - j. If
 * swap[0] and swap[1] differ, the receiver has these two dims exchanged: `extent` is the sender's,
 * and what the sender has at index j arrives at j with the two indices exchanged.
 *
 * Where the grid is rotated, vectors must be rotated too. After `turn` quarter turns a pair (u
 * along the last dim, v along the one before it) becomes (-v, u) for 1, (-u, -v) for 2 and (v, -u)
 * for 3. Across folds and poles `turn` is 2, which means that each component changes its sign. */
typedef struct dpar_transfer {
    int32_t peer;  /* the other rank */
    int32_t dims;  /* 0..DPAR_MAX_DIMS */
    int32_t op;    /* DPAR_COPY, DPAR_SUM, ...: what the receiver does with the values */
    uint32_t flip; /* bit d: dim d of the receiver is reversed */
    int64_t extent[DPAR_MAX_DIMS]; /* elements along each dim, at least 1 */
    int64_t mine[DPAR_MAX_DIMS];   /* first element in this rank's local array */
    int64_t theirs[DPAR_MAX_DIMS]; /* first element in the peer's local array */
    int64_t global[DPAR_MAX_DIMS]; /* first element in the global array, on this rank's side */
    int32_t swap[2];               /* the two dims that are exchanged; equal if none are */
    int32_t turn;                  /* quarter turns of vectors, 0..3 */
} dpar_transfer;

/* How a received value is combined with the value that is already there. */
enum {
    DPAR_COPY, /* replaces it */
    DPAR_SUM,
    DPAR_AVG,
    DPAR_PRODUCT,
    DPAR_MAX,
    DPAR_MIN,
    DPAR_OP_COUNT
};

/* Counts the elements of a transfer, the product of its extents. Returns -1 if there are more than
 * 2^63 - 1. Costs O(dims). */
DPAR_API int64_t dpar_transfer_volume(const dpar_transfer *transfer);

/* ==== base/text.h ==== */

/* text - writes text into the caller's buffer. As with snprintf, the text always ends in NUL, is
 * cut if the buffer is too small, and its full length is counted. It uses neither a locale nor the
 * C library.
 *
 *     static char buffer[2000];
 *     dpar_text t;
 *     dpar_text_init(&t, buffer, sizeof buffer);
 *     dpar_schedule_draw(&t, &gantt, DPAR_SCHEDULE_DRAW_TEXT, &why);
 *     puts(buffer); */

/* A text that functions append to. */
typedef struct dpar_text {
    char *buffer;    /* the caller's buffer */
    size_t capacity; /* bytes of the buffer; if 0, nothing is written and only `used` counts */
    size_t used;     /* bytes of the whole text, without the NUL; it was cut if used >= capacity */
    size_t line;     /* private: where the current line begins */
    size_t width;    /* private: UTF-8 characters of the current line */
} dpar_text;

/* Begins an empty text in a buffer of `bytes` bytes. The buffer may be NULL if `bytes` is 0. */
DPAR_API void dpar_text_init(dpar_text *text, char *buffer, size_t bytes);
/* Appends the string `s`. */
DPAR_API void dpar_text_put(dpar_text *text, const char *s);

/* ==== index/mesh.h ==== */

/* mesh - gives ranks named axes, so that a rank has coordinates and shares groups with other ranks.
 * A mesh is a list of sizes and strides without tables, so that a rank among a million finds its
 * coordinates in O(axes).
 *
 *     const int32_t sizes[2] = {4, 2};
 *     int32_t at[2];
 *     dpar_mesh_init(&mesh, "dp tp", sizes, DPAR_ORDER_LAST_FASTEST, 0, &why);    ranks 0..7
 *     dpar_mesh_coords(&mesh, 5, at);                                       dp 2, tp 1
 *     dpar_mesh_group_member(&mesh, 1, 5, 0);                               along dp: 1, 3, 5, 7
 */

/* The most axes that a mesh may have. */
enum { DPAR_MAX_AXES = 8 };

/* One axis of a mesh. */
typedef struct dpar_mesh_axis {
    char name[16];  /* "tp", "dp", "dp_replicate", ... */
    int32_t size;   /* at least 1 */
    int32_t stride; /* distance in ranks between neighbours along this axis */
} dpar_mesh_axis;

/* Ranks with named axes, made by the functions below. The rank at coord[] is first_rank + the sum
 * of coord[i] * axis[i].stride. It is at most 2^31 - 1, and no two coordinates have the same rank.
 * Keep both true if you set first_rank yourself.
 *
 * Functions take a set of axes as a number in which bit i stands for axis i. They ignore bits of
 * axes that the mesh does not have.
 */
typedef struct dpar_mesh {
    int32_t axes;       /* number of axes, 0..DPAR_MAX_AXES */
    int32_t size;       /* number of ranks, the product of the sizes */
    int32_t first_rank; /* rank at coordinate 0, 0, ... */
    dpar_mesh_axis axis[DPAR_MAX_AXES];
} dpar_mesh;

/* The order in which ranks are numbered. Systems differ, so every caller states it. */
enum {
    DPAR_ORDER_LAST_FASTEST, /* the last axis has stride 1, as in torch's DeviceMesh, JAX and
                                MPI_Cart */
    DPAR_ORDER_FIRST_FASTEST /* the first axis has stride 1, as in PETSc and Megatron's order
                                strings */
};

/* Makes a mesh of named axes with first rank 0. Set mesh->first_rank afterwards for another first
 * rank.
 *
 * names:  one name of 1 to 15 characters for each axis, all different, such as "dp tp" or "dp-tp".
 * sizes:  one size for each name, at least 1. One size may be -1 if `ranks` is given, and is then
 *         computed.
 * order:  DPAR_ORDER_LAST_FASTEST or DPAR_ORDER_FIRST_FASTEST.
 * ranks:  the number of ranks, which the product of the sizes must equal; 0 allows any product.
 *
 * For nodes and the ranks inside them, as in JAX's hybrid meshes, give each dimension two axes:
 * "dp.node tp.node dp tp". The set of both dp axes is then the whole of dp. Fails with DPAR_E_ARG,
 * DPAR_E_DIVIDE if the product is not `ranks`, or DPAR_E_RANGE. Costs O(axes^2).
 */
DPAR_API dpar_status dpar_mesh_init(dpar_mesh *mesh, const char *names, const int32_t *sizes,
                                    int32_t order, int32_t ranks, dpar_why *why);

/* Makes a mesh from Megatron's order string, such as "tp-cp-ep-dp-pp", whose first name is the
 * fastest axis. The mesh has its axes in the order of the string.
 *
 * sizes:  sizes[i] belongs to the i-th name of `names`, which may list the axes in any order. One
 *         size may be -1.
 *
 * A name of `names` that the string does not have must have size 1, and its axis is appended. Fails
 * with DPAR_E_UNKNOWN if a name of the string has no size, otherwise as dpar_mesh_init. Costs
 * O(axes^2).
 */
DPAR_API dpar_status dpar_mesh_init_from_order(dpar_mesh *mesh, const char *order,
                                               const char *names, const int32_t *sizes,
                                               int32_t ranks, dpar_why *why);

/* Makes another mesh over the ranks of a mesh, such as the experts' etp-ep-edp-pp next to
 * tp-cp-dp-pp. The sizes must multiply to mesh->size; one may be -1.
 *
 * Fails with DPAR_E_DIVIDE if they do not, if the ranks of `mesh` are not evenly spaced, or if both
 * meshes have an axis of the same name whose groups differ. Otherwise fails as dpar_mesh_init.
 * Costs O(axes^2).
 */
DPAR_API dpar_status dpar_mesh_view(dpar_mesh *view, const dpar_mesh *mesh, const char *names,
                                    const int32_t *sizes, int32_t order, dpar_why *why);

/* Makes a mesh of the ranks that differ from `rank` only along the axes in the set `which`, as
 * MPI_Cart_sub or a slice of a DeviceMesh does. Fails with DPAR_E_ARG if the rank is not in the
 * mesh. Costs O(axes^2). */
DPAR_API dpar_status dpar_mesh_slice(dpar_mesh *out, const dpar_mesh *mesh, uint32_t which,
                                     int32_t rank, dpar_why *why);

/* Finds an axis by name. Returns its index, or -1 if there is none. Costs O(axes). */
DPAR_API int32_t dpar_mesh_find(const dpar_mesh *mesh, const char *name);

/* Computes the coordinates of a rank, one for each axis. Returns 1, or 0 if the rank is not in the
 * mesh; `coord` is then unchanged. Costs O(axes^2). */
DPAR_API int dpar_mesh_coords(const dpar_mesh *mesh, int32_t rank, int32_t *coord);

/* Computes the rank at coord[0 .. axes-1]. Returns -1 if a coordinate is out of range. Costs
 * O(axes). */
DPAR_API int32_t dpar_mesh_rank(const dpar_mesh *mesh, const int32_t *coord);

/* Computes the rank that is `steps` further along an axis. With `wrap` the axis is a ring. Returns
 * -1 beyond an end of an open axis and for a rank outside the mesh.
 *
 * `steps` may be negative, or longer than the axis. MPI_Cart_shift's destination is at +steps and
 * its source at -steps. Costs O(axes^2).
 */
DPAR_API int32_t dpar_mesh_shift(const dpar_mesh *mesh, int32_t rank, int32_t axis, int64_t steps,
                                 int wrap);

/* Counts the ranks in a rank's group: the ranks that differ from each other only along the axes in
 * the set `which`. There are mesh->size / group_size such groups. Costs O(axes). */
DPAR_API int32_t dpar_mesh_group_size(const dpar_mesh *mesh, uint32_t which);

/* Finds member number `index` of a rank's group. Returns -1 if there is no such member or the rank
 * is outside the mesh. Costs O(axes^2).
 *
 * Members are counted with the axis of the smallest stride fastest. In every mesh that the
 * functions above make, member ranks therefore ascend, which is also the order of an all-gather.
 * The first rank of group g is dpar_mesh_group_member(mesh, ~which, mesh->first_rank, g).
 */
DPAR_API int32_t dpar_mesh_group_member(const dpar_mesh *mesh, uint32_t which, int32_t rank,
                                        int32_t index);

/* Finds the index of a rank in its group. Returns -1 for a rank outside the mesh. The group itself
 * has the number dpar_mesh_group_index(mesh, ~which, rank) among all groups. Costs O(axes^2). */
DPAR_API int32_t dpar_mesh_group_index(const dpar_mesh *mesh, uint32_t which, int32_t rank);

/* ==== index/cart.h ==== */

/* cart - computes process grids: how many ranks each axis gets, which rank owns which cells, and
 * which rank runs on which node. It uses integers only and no tables. A grid has parts[d] ranks
 * along axis d.
 *
 *     const int64_t cells[2] = {120, 100};
 *     int32_t parts[2] = {0, 0};
 *     dpar_cart_dims(8, 2, parts, &why);                          4 x 2 ranks
 *     dpar_cart_range(2, cells, parts, rank, first, count);       the block of one rank
 *     dpar_cart_owner(2, cells, parts, cell);                     the rank that owns a cell
 */

enum { DPAR_PROC_NULL = -1 }; /* "no rank", such as the neighbour beyond an open border */

/* ---- shapes ---- */

/* Chooses the number of ranks along each axis, as MPI_Dims_create does. It does not consider cells
 * or nodes; use dpar_cart_choose_parts if you have cells.
 *
 * ranks:  at least 1.
 * dims:   number of axes, 0..DPAR_MAX_AXES.
 * parts:  [dims]. On entry 0 asks for a number and a positive number is kept. On return their
 *         product is `ranks`.
 *
 * The chosen numbers do not increase from axis to axis. Among all such factorisations the function
 * takes the one with the least difference between its largest and its smallest number, then the one
 * whose smallest number is largest, then the lexicographically least. MPICH 4.0.2 gives the same
 * result for all ranks <= 3000. Open MPI differs for a few numbers: 72 is 9 x 8 here and 12 x 6
 * there.
 *
 * Fails with DPAR_E_ARG, or DPAR_E_DIVIDE if the fixed numbers do not divide the ranks, or all are
 * fixed and their product is smaller. Costs microseconds for usual numbers, and at most sqrt(ranks)
 * steps to find the prime factors.
 */
DPAR_API dpar_status dpar_cart_dims(int32_t ranks, int32_t dims, int32_t *parts, dpar_why *why);

/* A grid of cells to distribute over ranks. Zero it, then set the fields that you need. */
typedef struct dpar_cart_choose_desc {
    int32_t ranks, dims;          /* ranks, at least 1; dims, 0..DPAR_MAX_DIMS */
    int64_t cells[DPAR_MAX_DIMS]; /* cells along each dim, at least 1 */
    /* The cost of one cell face between two ranks, by the dim that the face is normal to. If all
     * are 0, each face costs 1. */
    int64_t weight[DPAR_MAX_DIMS];
    uint32_t periodic; /* bit d: dim d is periodic */
} dpar_cart_choose_desc;

/* Finds the process grid that cuts the fewest cell faces, with at most cells[d] parts in each dim.
 *
 * parts:  [dims]. On entry 0 asks for a number and a positive number is kept. On return their
 *         product is grid->ranks. Among equal cuts the function takes the lexicographically least
 *         parts.
 * cut:    receives the weighted number of faces that are cut; may be NULL. If all parts are fixed,
 *         it is their cut.
 *
 * The cut counts the cell faces between two ranks, weight[d] for each. It is the sum over d of
 * weight[d] * planes[d] * the product of the other dims' cells, where planes[d] is parts[d] - 1, or
 * parts[d] in a periodic dim of more than one part. A halo exchange of width h with b bytes per
 * cell moves 2 h b bytes for each cut face (weights 1).
 *
 * Fails with DPAR_E_ARG, DPAR_E_DIVIDE if the fixed parts do not divide the ranks, DPAR_E_NONE if
 * no factorisation has parts[d] <= cells[d], or DPAR_E_RANGE if the largest cut exceeds 2^63 - 1.
 * Costs 10 microseconds for 10^6 ranks in 3 dims, and tenths of a second at worst (6 dims, 2^31
 * ranks, 1600 divisors).
 *
 * The result is exact: branch and bound over the ordered factorisations, bounded by the inequality
 * of arithmetic and geometric means, sum a_d p_d >= k (product a_d p_d)^(1/k).
 */
DPAR_API dpar_status dpar_cart_choose_parts(const dpar_cart_choose_desc *grid, int32_t *parts,
                                            int64_t *cut, dpar_why *why);

/* ---- which rank owns which cells ----
 *
 * Each dim is cut by the rule DPAR_SPLIT_EVEN of split.h. Ranks are row-major with the last dim
 * fastest, as in MPI_Cart and PETSc's DMDA. The functions above choose `parts`.
 */

/* Finds the rank that owns a cell. Returns -1 if the cell is outside the grid or there is no such
 * grid: dims is not 1..DPAR_MAX_DIMS, a part is below 1, or there are more than 2^31 - 1 ranks.
 * Costs O(dims). */
DPAR_API int32_t dpar_cart_owner(int32_t dims, const int64_t *cells, const int32_t *parts,
                                 const int64_t *cell);

/* Computes the block of a rank: count[d] cells from first[d] on, in each dim d < dims. If cells[d]
 * < parts[d], the last parts have no cells.
 *
 * Fails with DPAR_E_ARG if there is no such rank or no such grid, or if a number of cells is
 * negative. Costs O(dims).
 */
DPAR_API dpar_status dpar_cart_range(int32_t dims, const int64_t *cells, const int32_t *parts,
                                     int32_t rank, int64_t *first, int64_t *count);

/* ---- a grid of ranks, to be mapped to nodes ---- */

/* A grid of ranks, made by dpar_cart_init. */
typedef struct dpar_cart {
    int32_t dims;                 /* 0..DPAR_MAX_DIMS */
    int32_t size;                 /* number of ranks, the product of the parts */
    uint32_t periodic;            /* bit d: axis d is periodic */
    int32_t parts[DPAR_MAX_DIMS]; /* ranks along each axis, at least 1 */
} dpar_cart;

/* Which neighbours a stencil reads. */
enum {
    DPAR_STENCIL_STAR, /* the two neighbours along each axis */
    DPAR_STENCIL_BOX,  /* all 3^dims - 1 neighbours, with edges and corners */
    DPAR_STENCIL_EDGES /* the 2 dims^2 neighbours that differ along one or two axes, as the 18 of
                          D3Q19 */
};

/* Makes a grid of parts[d] ranks along axis d. Bit d of `periodic` makes axis d a ring. Make a
 * dpar_mesh with the same sizes to get coordinates, neighbours and sub-grids. Fails with
 * DPAR_E_ARG, or DPAR_E_RANGE above 2^31 - 1 ranks. Costs O(dims). */
DPAR_API dpar_status dpar_cart_init(dpar_cart *cart, int32_t dims, const int32_t *parts,
                                    uint32_t periodic, dpar_why *why);

/* ---- mapping of the grid's ranks to nodes; the node of a rank is rank / per_node ---- */

/* How the ranks, and so the nodes, are mapped to the coordinates of a grid. */
enum {
    DPAR_MAPPING_ROW_MAJOR, /* the last axis fastest, as in MPI_Cart */
    DPAR_MAPPING_BRICKS,    /* each node has a brick of the grid */
    DPAR_MAPPING_MORTON,    /* Morton's curve: bits interleaved, axis 0 lowest */
    DPAR_MAPPING_HILBERT,   /* Hilbert's curve, for any number of dims */
    DPAR_MAPPING_COUNT
};

/* A mapping, which says which rank is at which coordinate, made by dpar_mapping_init or
 * dpar_mapping_choose. For bricks of your own, set kind, order and brick; the sides must divide the
 * parts and multiply to per_node. LAMMPS' two-level order "xyz" is order {0, 1, 2}. */
typedef struct dpar_mapping {
    dpar_cart grid;
    int32_t kind;                 /* DPAR_MAPPING_x */
    int32_t per_node;             /* ranks per node; the last node may have fewer */
    int32_t brick[DPAR_MAX_DIMS]; /* sides of a brick; 1 for the other kinds */
    int32_t order[DPAR_MAX_DIMS]; /* for bricks, the axes from fastest to slowest */
} dpar_mapping;

/* The messages of one exchange with the neighbours. The message to the neighbour at offset o has
 * bytes * the product over d of (o_d != 0 ? width[d] : block[d]) bytes. */
typedef struct dpar_stencil {
    int32_t shape;                /* DPAR_STENCIL_x */
    int64_t bytes;                /* bytes of a cell; 0 counts messages instead of bytes */
    int64_t block[DPAR_MAX_DIMS]; /* cells of a rank along each axis */
    int64_t width[DPAR_MAX_DIMS]; /* width of the halo in cells */
} dpar_stencil;

/* Makes a mapping of a kind for nodes of ranks_per_node >= 1 ranks.
 *
 * Bricks have sides q[d] that divide parts[d] and multiply to ranks_per_node, with the least
 * surface between nodes. The surface is the cut of dpar_cart_choose_parts with parts[d] / q[d]
 * nodes along axis d. Among bricks with the same surface the function takes those with the fewest
 * nodes along axis 0, then along axis 1, and so on. Nodes in the grid and ranks in a brick are both
 * row-major. Morton and Hilbert number the cells of the smallest power-of-two cube around the grid
 * and skip cells outside the grid.
 *
 * Fails with DPAR_E_ARG, and for bricks with DPAR_E_DIVIDE if ranks_per_node does not divide
 * the ranks (use DPAR_MAPPING_HILBERT). Costs O(1), but for bricks as much as
 * dpar_cart_choose_parts for size / ranks_per_node ranks. */
DPAR_API dpar_status dpar_mapping_init(dpar_mapping *mapping, const dpar_cart *grid, int32_t kind,
                                       int32_t ranks_per_node, dpar_why *why);

/* Computes the rank at a coordinate. Returns DPAR_PROC_NULL outside the grid. Costs O(dims) for
 * row-major and bricks. Morton and Hilbert cost O(2^dims * dims * bits of the longest axis),
 * because cells that the curve skips are counted one cube at a time. */
DPAR_API int32_t dpar_mapping_rank(const dpar_mapping *mapping, const int32_t *coord);

/* Computes the coordinate of a rank, the inverse of dpar_mapping_rank at the same cost. Fails with
 * DPAR_E_ARG if there is no such rank. */
DPAR_API dpar_status dpar_mapping_coords(const dpar_mapping *mapping, int32_t rank, int32_t *coord);

/* Computes the traffic between nodes in one exchange, in the units of stencil->bytes.
 *
 * total:  receives what all pairs of nodes send in one direction; the same is sent back.
 * worst:  receives what the busiest node sends; it receives as much.
 *
 * Along a periodic axis of 2 parts, two messages connect the same two ranks. Fails with DPAR_E_ARG,
 * or DPAR_E_RANGE if a sum could exceed 2^63 - 1. Costs O(3^dims * dims) for bricks, and for
 * row-major with one rank per node. Other mappings cost O(ranks * 3^dims * dims) times
 * dpar_mapping_rank.
 */
DPAR_API dpar_status dpar_mapping_cost(const dpar_mapping *mapping, const dpar_stencil *stencil,
                                       int64_t *total, int64_t *worst, dpar_why *why);

/* Chooses the kind of mapping whose busiest node sends the least. Among equal kinds it takes the
 * one with the least total, then the first one. Bricks are computed with the stencil's faces as
 * weights, and are skipped if none fits. Fails and costs as dpar_mapping_cost for every kind. */
DPAR_API dpar_status dpar_mapping_choose(dpar_mapping *mapping, const dpar_cart *grid,
                                         int32_t ranks_per_node, const dpar_stencil *stencil,
                                         dpar_why *why);

/* ==== index/split.h ==== */

/* split - computes which part owns which elements of one dim: `count` elements over `parts` parts,
 * by a named rule, because the common systems disagree about what "block" means. It uses integers
 * only and no tables.
 *
 *     dpar_split_owner(DPAR_SPLIT_CHUNK, 1000, 7, 500);                     3: the owning part
 *     dpar_split_range(DPAR_SPLIT_CHUNK, 1000, 7, 3, &first, &count);       143 from 429 on
 *
 * These two functions work for some rules. A dpar_split works for all rules, and is faster in a
 * loop.
 */

/* The rules by which N elements are divided over P parts. The numbers are the sizes of 10 elements
 * over 4 parts. */
enum {
    /* Blocks of b = ceil(N/P): part p owns [min(N, p b), min(N, (p+1) b)): 3 3 3 1. Used by
     * torch.chunk, DTensor, FSDP, FFTW-MPI, MPI darray BLOCK, HPF BLOCK, PetscSplitOwnershipEqual.
     * Empty parts are last. */
    DPAR_SPLIT_CHUNK,
    /* Balanced: part p owns N/P + (p < N%P) elements: 3 3 2 2. Used by numpy.array_split,
     * torch.tensor_split, PETSc DMDA, DeepSpeed, cuDecomp, heFFTe, AMReX, hypre. Empty parts are
     * last. */
    DPAR_SPLIT_EVEN,
    /* Rounded down: part p owns [floor(N p/P), floor(N (p+1)/P)): 2 3 2 3. Used by p4est. Empty
     * parts are between full ones. */
    DPAR_SPLIT_FLOOR,
    /* Blocks of `block` elements, dealt in turn from part `source` on. Used by ScaLAPACK and as MPI
     * darray CYCLIC(k). */
    DPAR_SPLIT_BLOCK_CYCLIC,
    /* Any ascending cuts: part p owns [cuts[p], cuts[p+1]). For ragged and weighted shards and
     * whole atoms. */
    DPAR_SPLIT_RAGGED,
    /* `block` pieces by CHUNK, each of them divided over P by CHUNK; part p owns the p-th share of
     * every piece. Used by DTensor's strided shard (FSDP over TP), fused QKV and gate/up
     * weights. */
    DPAR_SPLIT_STRIDED,
    /* 2P chunks by CHUNK; part p owns chunks p and 2P-1-p. For causal context parallelism. */
    DPAR_SPLIT_ZIGZAG,
    /* Every P-th element: part p owns p, p+P, p+2P, ..., as BLOCK_CYCLIC with blocks of 1. For
     * striped attention. */
    DPAR_SPLIT_CYCLIC,
    DPAR_SPLIT_RULE_COUNT
};

/* Finds the part that owns element i of `count`, by any rule except BLOCK_CYCLIC, RAGGED and
 * STRIDED. Returns -1 if i is outside or dpar_split_init would refuse the numbers. Costs O(1). */
DPAR_API int32_t dpar_split_owner(int32_t rule, int64_t count, int32_t parts, int64_t i);

/* Computes the elements of a part by CHUNK, EVEN or FLOOR, whose parts are contiguous: *elements of
 * them, from *first on. A part without elements has *first = `count`.
 *
 * Fails with DPAR_E_ARG or DPAR_E_RANGE for another rule, a part that does not exist, or numbers
 * that dpar_split_init would refuse. Costs O(1).
 */
DPAR_API dpar_status dpar_split_range(int32_t rule, int64_t count, int32_t parts, int32_t part,
                                      int64_t *first, int64_t *elements);

/* A division of elements over parts, made by dpar_split_init or dpar_split_init_ragged. Within a
 * part, local indices 0, 1, ... number its elements in ascending global order. */
typedef struct dpar_split {
    int32_t rule;  /* DPAR_SPLIT_CHUNK, ... */
    int32_t parts; /* number of parts, at least 1 */
    /* For BLOCK_CYCLIC, the part of the first block, 0..parts-1. dpar_split_init sets 0; set yours
     * after it. */
    int32_t source;
    uint8_t shift[2];            /* private: see inverse */
    int64_t count;               /* number of elements, 0..2^62 */
    int64_t block;               /* BLOCK_CYCLIC: elements of a block; STRIDED: number of pieces */
    const int64_t *cuts;         /* RAGGED: [parts + 1], the caller's */
    int64_t by[2];               /* private: the divisors of indices */
    uint64_t inverse[2];         /* private: their inverses, times 2^shift */
    int64_t rounds, extra, tail; /* private: whole rounds in `count`, and the rest */
} dpar_split;

/* Makes a split by any rule except RAGGED, which has dpar_split_init_ragged.
 *
 * block:  the block of BLOCK_CYCLIC or the pieces of STRIDED, at least 1; other rules ignore it.
 *
 * Fails with DPAR_E_ARG or DPAR_E_RANGE and leaves *split unchanged. Costs O(1).
 */
DPAR_API dpar_status dpar_split_init(dpar_split *split, int32_t rule, int64_t count, int32_t parts,
                                     int64_t block, dpar_why *why);

/* Makes a RAGGED split from cuts, 0 = cuts[0] <= cuts[1] <= ... <= cuts[parts] = the number of
 * elements. The array must live as long as the split.
 *
 * cuDecomp's gdims_dist splits the first `even` elements by EVEN and gives the rest to the last
 * part that has some. Its cuts are the offsets of that EVEN split, and `count` from the first empty
 * part on.
 *
 * Fails with DPAR_E_ARG if there are no parts or the cuts do not begin at 0 or do not ascend, or
 * DPAR_E_RANGE above 2^62 elements. Costs O(parts).
 */
DPAR_API dpar_status dpar_split_init_ragged(dpar_split *split, int32_t parts, const int64_t *cuts,
                                            dpar_why *why);

/* Computes cuts so that part p gets about count weights[p] / (sum of the weights) elements, in
 * whole atoms.
 *
 * cuts:     [parts + 1], receives the cuts, which dpar_split_init_ragged takes.
 * weights:  [parts], at least 0, not all 0, with a sum below 2^31.
 * atom:     elements of an atom; the last atom may be shorter.
 *
 * No part is an atom or more away from its share: cut(p) = floor(A W(p) / W) atoms, with A =
 * ceil(count / atom), W(p) the sum of the first p weights and W the sum of all. Fails with
 * DPAR_E_ARG for a number out of its domain or DPAR_E_RANGE for one that is too large. Costs
 * O(parts).
 */
DPAR_API dpar_status dpar_split_weighted_cuts(int64_t *cuts, int64_t count, int32_t parts,
                                              const int64_t *weights, int64_t atom, dpar_why *why);

/* Cuts a row of items, such as the layers of a model, into runs so that the most expensive run is
 * as inexpensive as possible. Part p gets items cuts[p] to cuts[p+1] - 1.
 *
 * cost:  [items], at least 0, with a sum below 2^62.
 *
 * Among the cuts with that least maximum, each run, from the first one on, costs as close as
 * possible to an even share of the remaining cost. No run is empty as long as there are enough
 * items. Fails with DPAR_E_ARG for a number out of its domain or DPAR_E_RANGE for one that is too
 * large. Costs O(items log(sum)).
 */
DPAR_API dpar_status dpar_split_balance(int64_t *cuts, int64_t items, const int64_t *cost,
                                        int32_t parts, dpar_why *why);

/* Counts the elements of a part. Returns 0 for a part outside 0..parts-1. The largest part is part
 * 0; for BLOCK_CYCLIC it is `source`, for ZIGZAG part 0 or parts-1, for FLOOR and RAGGED any. Costs
 * O(1). */
DPAR_API int64_t dpar_split_part_count(const dpar_split *split, int32_t part);

/* Finds the first element of a part. Returns `count` for a part without elements, as DTensor does,
 * so that an empty shard cannot be mistaken for another one. Costs O(1). */
DPAR_API int64_t dpar_split_part_first(const dpar_split *split, int32_t part);

/* Finds the part that owns element i. Returns -1 if i is not in 0..count-1.
 *
 * local:  receives the index of the element in the part; may be NULL.
 * run:    receives how many elements from i on are consecutive in the part; may be NULL.
 *
 * Costs O(1). RAGGED, and FLOOR if count * parts exceeds 2^63 - 1, cost O(log parts).
 */
DPAR_API int32_t dpar_split_locate(const dpar_split *split, int64_t i, int64_t *local,
                                   int64_t *run);

/* Finds the element with local index `local` in a part. Returns -1 if there is none. `run` is as in
 * dpar_split_locate. This loop visits the runs [g, g + n) of a part:
 *
 *     for (l = 0; (g = dpar_split_global(&split, p, l, &n)) >= 0; l += n)
 *
 * Costs O(1).
 */
DPAR_API int64_t dpar_split_global(const dpar_split *split, int32_t part, int64_t local,
                                   int64_t *run);

/* ==== index/layout.h ==== */

/* layout - computes which part of an n-d array each rank of a mesh owns. Each mesh axis shards a
 * dim of the array, replicates the array, or holds partial sums. Local shapes and offsets equal
 * those of DTensor and FSDP2 for every layout that DTensor and FSDP2 can describe.
 *
 *     const int64_t extent[2] = {1000, 64};
 *     const dpar_placement cut[2] = {dpar_shard(0), dpar_shard(1)};    by dp, by tp
 *     dpar_layout_init(&layout, &mesh, 2, extent, cut, &why);
 *     dpar_layout_local(&layout, rank, shape, offset);                 the part of `rank`
 */

/* The kinds of a placement. */
enum {
    DPAR_PLACEMENT_REPLICATE, /* each rank along the axis holds a copy */
    DPAR_PLACEMENT_SHARD,     /* each rank along the axis holds a part of one dim */
    DPAR_PLACEMENT_PARTIAL /* each rank along the axis holds values that must be combined with those
                              of the others */
};

/* What one mesh axis does with the array. */
typedef struct dpar_placement {
    int32_t kind;   /* DPAR_PLACEMENT_REPLICATE, DPAR_PLACEMENT_SHARD or DPAR_PLACEMENT_PARTIAL */
    int32_t dim;    /* SHARD: the dim that the axis cuts; a negative number counts from the end */
    int32_t rule;   /* SHARD: DPAR_SPLIT_CHUNK (0), ... */
    int32_t op;     /* PARTIAL: DPAR_SUM, ... */
    int64_t block;  /* SHARD: BLOCK_CYCLIC's block, or STRIDED's pieces (split factor) */
    int32_t source; /* SHARD: BLOCK_CYCLIC's first part */
    /* SHARD: if several axes cut the same dim, the one with the smallest `order` cuts first. Axes
     * with equal numbers, such as all 0, cut in the order of the mesh. */
    int32_t order;
    /* SHARD by RAGGED: [parts + 1], the caller's. Only the first cut of a dim may be RAGGED. */
    const int64_t *cuts;
} dpar_placement;

/* Makes a placement that shards `dim` by DPAR_SPLIT_CHUNK. dpar_layout_init checks it, as it does
 * the placements of the next functions. */
DPAR_API dpar_placement dpar_shard(int32_t dim);

/* Makes a placement that shards `dim` by a rule. `block` is the block of BLOCK_CYCLIC or the pieces
 * of STRIDED. */
DPAR_API dpar_placement dpar_shard_by(int32_t dim, int32_t rule, int64_t block);

/* Makes a placement that replicates the array. */
DPAR_API dpar_placement dpar_replicate(void);

/* Makes a placement whose ranks hold partial values to be combined by `op`, such as DPAR_SUM. */
DPAR_API dpar_placement dpar_partial(int32_t op);

/* The distribution of an array over a mesh, made by dpar_layout_init. In each dim a rank owns an
 * ascending set of indices. Its local array holds the product of these sets densely and in order.
 */
typedef struct dpar_layout {
    dpar_mesh mesh;
    int32_t dims; /* 0..DPAR_MAX_DIMS */
    int64_t extent[DPAR_MAX_DIMS];
    dpar_placement axis[DPAR_MAX_AXES]; /* the placement of each mesh axis */
    int8_t order[DPAR_MAX_AXES];        /* the axes in the order in which they cut */
} dpar_layout;

/* Makes the layout of an array on a mesh.
 *
 * extent:     [dims], the elements of the array in each dim.
 * placement:  [mesh->axes], one for each axis of the mesh.
 *
 * Axes that shard the same dim cut one after another, in the order of the mesh as in DTensor, or by
 * their `order`. Each axis cuts what the axes before it left: 18 over (4, 2) is 3 2 3 2 3 2 2 1.
 * Fails with DPAR_E_ARG or DPAR_E_RANGE. Costs O(axes^2 + parts of RAGGED).
 */
DPAR_API dpar_status dpar_layout_init(dpar_layout *layout, const dpar_mesh *mesh, int32_t dims,
                                      const int64_t *extent, const dpar_placement *placement,
                                      dpar_why *why);

/* Computes the local shape of a rank and the first index that it owns in each dim.
 *
 * shape:   [dims], all 0 for a rank outside the mesh; may be NULL.
 * offset:  [dims], the extent of a dim in which the rank owns nothing, as in DTensor; may be NULL.
 *
 * Costs O(axes).
 */
DPAR_API void dpar_layout_local(const dpar_layout *layout, int32_t rank, int64_t *shape,
                                int64_t *offset);

/* Counts the elements of a rank's local array. Returns 0 for a rank outside the mesh and -1 above
 * 2^63 - 1. Costs O(axes^2). */
DPAR_API int64_t dpar_layout_count(const dpar_layout *layout, int32_t rank);

/* Finds the global index at a local index, in one dim of one rank. Returns -1 past the end.
 *
 * run:  receives how many global indices from there on are consecutive; may be NULL.
 *
 * This loop visits the runs [g, g + n):
 *
 *     for (i = 0; (g = dpar_layout_global(l, r, d, i, &n)) >= 0; i += n)
 *
 * Costs O(axes).
 */
DPAR_API int64_t dpar_layout_global(const dpar_layout *layout, int32_t rank, int32_t dim,
                                    int64_t local, int64_t *run);

/* Finds the ranks that own index i of a dim. Returns 1, or 0 if i is outside the dim.
 *
 * coord:  [mesh.axes]. Receives the coordinates along the axes that shard the dim; other entries
 *         keep their values. May be NULL.
 * local:  receives the local index; may be NULL.
 * run:    receives how many indices from there on are consecutive; may be NULL.
 *
 * Costs O(axes).
 */
DPAR_API int dpar_layout_locate(const dpar_layout *layout, int32_t dim, int64_t i, int32_t *coord,
                                int64_t *local, int64_t *run);

/* Finds the rank that holds copy number `copy` of an element. Returns -1 if the element or the copy
 * does not exist.
 *
 * index:  [dims], the global index of the element.
 * local:  [dims], receives the element's index in the rank's local array; may be NULL.
 *
 * Copy 0 is the primary one. Copies are counted with the axis of the smallest stride fastest. Costs
 * O(axes^2).
 */
DPAR_API int32_t dpar_layout_owner(const dpar_layout *layout, const int64_t *index, int32_t copy,
                                   int64_t *local);

/* Tests whether a rank holds copy 0 of its part, so that it writes the part to a checkpoint.
 * Returns 0 for a rank outside the mesh. Costs O(axes^2). */
DPAR_API int dpar_layout_is_primary(const dpar_layout *layout, int32_t rank);

/* The position of dpar_layout_next in a rank's boxes. Begin with an all-zero cursor. */
typedef struct dpar_box_cursor {
    int32_t begun;
    int64_t local[DPAR_MAX_DIMS];
} dpar_box_cursor;

/* Advances to the next box that a rank owns. Returns 1, or 0 when there is none left.
 *
 * box:  receives the box in global indices.
 * at:   [dims], receives the local index of the box's first element; may be NULL.
 *
 * Boxes are in order, the last dim fastest. There is one box if the rank's indices are contiguous
 * in every dim. Costs O(axes) for each box.
 */
DPAR_API int dpar_layout_next(const dpar_layout *layout, int32_t rank, dpar_box_cursor *cursor,
                              dpar_box *box, int64_t *at);

/* Computes the strides of a rank's local array, which is dense in its own shape.
 *
 * whole:   [dims], strides of the global array, whose order the local array keeps (Fortran's,
 *          channels last), as in DTensor. NULL selects C order.
 * stride:  [dims], receives the strides in elements.
 *
 * The dim with the smallest stride in `whole` is the fastest; of equal ones the later dim. Costs
 * O(dims^2).
 */
DPAR_API void dpar_layout_strides(const dpar_layout *layout, int32_t rank, const int64_t *whole,
                                  int64_t *stride);

/* ==== index/redistribute.h ==== */

/* redistribute - lists the transfers that move an array from one layout to another, on the same
 * ranks or on others. Each rank computes its own list without communication, and the lists of all
 * ranks agree.
 *
 *     dpar_redistribute_first(&w, &from, &to, rank, DPAR_TRANSFER_RECV, 0);
 *     while (dpar_redistribute_next(&w, &t)) {
 *         t.peer sends t.extent elements, which arrive at t.mine
 *     }
 *
 * dpar_redistribute of dpar_comm.h moves the array. A rank number means the same process in both
 * meshes. If the ranks of one mesh are the processes of another job, set its first_rank so that no
 * number is in both meshes. Use DPAR_REDISTRIBUTE_PRIMARY to read files that another job's ranks
 * wrote, because rank n here does not hold what rank n wrote.
 */

/* Checks whether an array can be redistributed from layout `from` to layout `to`. Fails with
 * DPAR_E_ARG if not. Costs O(axes).
 *
 * Both layouts must have the same dims and extents. There are two cases in which an axis of `to`
 * may be Partial. Either the axis is Partial in `from` too, at the same place of the same mesh and
 * with the same op, and its sums stay as they are. Or a sum begins: coordinate 0 of the axis
 * receives the array, and the others must fill theirs with zeros.
 */
DPAR_API dpar_status dpar_redistribute_check(const dpar_layout *from, const dpar_layout *to,
                                             dpar_why *why);

/* The direction of a walk. */
enum {
    DPAR_TRANSFER_RECV, /* the transfers that a rank receives */
    DPAR_TRANSFER_SEND  /* the transfers that a rank sends */
};

/* A value of `per_node`: copy 0 sends everything, which is needed for files that copy 0 wrote. */
enum { DPAR_REDISTRIBUTE_PRIMARY = -1 };

/* A walk over one rank's transfers: call dpar_redistribute_first, then dpar_redistribute_next until
 * it returns 0. It holds copies of both layouts and takes about 2 KB. */
typedef struct dpar_redistribute_cursor {
    dpar_layout mine, other; /* private, as are all fields */
    int32_t rank, me, sends, per_node, nested, state;
    int32_t copies, copy, partials, partial, combine;
    int32_t phase, fresh, node, mate, mates, taker, takers, around;
    int32_t first, line, units, left;
    int32_t now, op; /* the current transfer */
    uint32_t free_from, part_from, free_to;
    int32_t coord[DPAR_MAX_AXES], peer[DPAR_MAX_AXES], base[DPAR_MAX_AXES];
    int32_t guest[DPAR_MAX_AXES];
    int32_t grid[DPAR_MAX_DIMS], outer[DPAR_MAX_DIMS], share[DPAR_MAX_DIMS];
    int64_t into, low[DPAR_MAX_DIMS], high[DPAR_MAX_DIMS];
    int64_t at[DPAR_MAX_DIMS], begin[DPAR_MAX_DIMS], length[DPAR_MAX_DIMS], there[DPAR_MAX_DIMS];
    int64_t held[DPAR_MAX_DIMS], lead[DPAR_MAX_DIMS], cut[DPAR_MAX_DIMS], cut_length[DPAR_MAX_DIMS];
} dpar_redistribute_cursor;

/* Begins the list of the transfers that a rank receives, or of those that it sends.
 *
 * direction:  DPAR_TRANSFER_RECV or DPAR_TRANSFER_SEND.
 * per_node:   number of consecutive ranks on a node, for meshes whose strides nest, as those of the
 *             init functions do. 0 ignores nodes. DPAR_REDISTRIBUTE_PRIMARY lets copy 0 send
 *             everything.
 *
 * A rank receives each of its elements of `to` once. From Partial sources it receives each
 * contribution once, the first with DPAR_COPY and the others with the op. The k-th send from a to b
 * is the k-th receive of b from a.
 *
 * If several ranks hold a copy, the receiver takes its own. If it has none, the copies on its node
 * send, or all copies if its node has none. Copies share the sending evenly. As long as a box has
 * at least as many receivers as copies, each copy serves the same number of whole receivers;
 * several copies serve each remaining receiver, in even shares. A copy sends at most its even share
 * plus the largest box, so a box may arrive in pieces. It arrives whole if the receivers cut rows
 * (CHUNK, EVEN, FLOOR) and their number and the number of copies have a common divisor, because
 * shares then end where rows end.
 *
 * Each Partial rank sends its contribution directly. From Partial to Shard that is a
 * reduce-scatter. From Partial to Replicate each rank receives every contribution. It costs less to
 * go through a layout that shards the sums, as dpar_route_plan does.
 *
 * Fails with DPAR_E_ARG if dpar_redistribute_check refuses the layouts, per_node is below -1 or
 * there is no such direction. A step costs O(axes x dims), and a list O(its transfers). If there
 * are copies, a sender also spends O(transfers to the ranks of its node) and the time to skip
 * receivers that have a nearer copy.
 */
DPAR_API dpar_status dpar_redistribute_first(dpar_redistribute_cursor *cursor,
                                             const dpar_layout *from, const dpar_layout *to,
                                             int32_t rank, int32_t direction, int32_t per_node);

/* Advances to the next transfer of the list. Returns 1, or 0 when there is none left.
 *
 * Receives are ordered by box, the last dim fastest, and within a box by sender. Sends are ordered
 * by rank, with the ranks of the own node before all others. Costs O(axes x dims).
 */
DPAR_API int dpar_redistribute_next(dpar_redistribute_cursor *cursor, dpar_transfer *transfer);

/* ==== index/cover.h ==== */

/* cover - checks whether boxes cover an array. The check needs all boxes at once, in the
 * caller's memory.
 *
 *     dpar_box_cover(2, extent, box, n, order, &why);    DPAR_OK if each element is in one box
 */

/* Checks whether n boxes cover an array so that each element is in exactly one box. Empty boxes are
 * ignored.
 *
 * extent:  [dims], the shape of the array.
 * order:   [n], scratch.
 *
 * Fails with DPAR_E_ARG if not. The message then names a box that is outside the array, two boxes
 * that overlap, or the number of elements that are in no box and the first of them. Fails with
 * DPAR_E_RANGE if the array has more than 2^63 - 1 elements. Costs O(n log n + pairs that overlap
 * in the dim where the boxes are thinnest).
 */
DPAR_API dpar_status dpar_box_cover(int32_t dims, const int64_t *extent, const dpar_box *box,
                                    int32_t n, int32_t *order, dpar_why *why);

/* ==== index/route.h ==== */

/* route - finds the least expensive sequence of collectives that redistributes an array on one
 * mesh.
 *
 *     dpar_route_desc q = {&from, &to, NULL, 0, nodes, 1000};
 *     dpar_route_plan(&q, steps, 8, &count, &why);    such as all-gather, then all-to-all
 */

/* The kinds of steps, each along one mesh axis. R means replicated, S(d) a shard of dim d, P
 * partial. */
enum {
    DPAR_ROUTE_STEP_SLICE,      /* R -> S(to): each rank keeps its part, and nothing is sent */
    DPAR_ROUTE_STEP_TO_PARTIAL, /* R -> P: rank 0 of the axis keeps the array, the others hold zeros
                                 */
    DPAR_ROUTE_STEP_ALL_GATHER, /* S(from) -> R */
    DPAR_ROUTE_STEP_ALL_TO_ALL, /* S(from) -> S(to) */
    DPAR_ROUTE_STEP_REDUCE_SCATTER, /* P -> S(to) */
    DPAR_ROUTE_STEP_ALL_REDUCE,     /* P -> R */
    DPAR_ROUTE_STEP_SWAP, /* two axes exchange their roles: whole tiles are sent to other ranks */
    DPAR_ROUTE_STEP_PERMUTE, /* directly to the goal: whole tiles are sent to other ranks */
    DPAR_ROUTE_STEP_COUNT
};

/* Returns the name of a kind of step, "all-gather", ..., or "?" for any other number. The text is
 * static. */
DPAR_API const char *dpar_route_step_name(int32_t kind);

/* One step of a plan. */
typedef struct dpar_route_step {
    int32_t kind, axis; /* axis is -1 for PERMUTE */
    int32_t from, to;   /* dims, -1 if the step has none; for SWAP, `to` is the other axis */
    int64_t elements;   /* maximum number of elements that a rank receives */
    /* Maximum number of elements that a rank holds at one time: what it has and what it receives,
     * padded. */
    int64_t held;
} dpar_route_step;

/* A node of the search, for which the caller provides the memory. */
typedef struct dpar_route_node {
    uint64_t state; /* private, as are all fields */
    int64_t cost;
    int32_t before, heap, slot, hash;
    dpar_route_step step;
} dpar_route_node;

/* A redistribution to be planned. Zero it, then set the fields. */
typedef struct dpar_route_desc {
    const dpar_layout *from, *to; /* two layouts of one array on the same mesh */
    /* [axes], cost of an element along each mesh axis; NULL makes each cost 1 */
    const int64_t *byte_cost;
    int64_t step_cost; /* cost of a step that sends anything, 0..2^31 - 1 */
    /* [node_capacity], scratch. 1,000 nodes suffice for 4 axes and 3 dims, 20,000 for 5 axes and 4
     * dims. */
    dpar_route_node *nodes;
    int32_t node_capacity;
} dpar_route_desc;

/* Finds the least expensive sequence of collectives from one layout to another on the same mesh.
 * The result is the same on all ranks.
 *
 * steps:  [capacity], receives the steps.
 * count:  receives the number of steps.
 *
 * Shards must be CHUNK; strided ones are refused. The moves are DTensor's: the innermost cut of a
 * dim can be gathered or moved, and becomes the innermost one of its new dim. If all cuts are even
 * there are two more moves. SWAP lets two axes exchange roles if they cut the same dim or have the
 * same size. PERMUTE ends a route if both layouts have the same tiles (the collective permutes of
 * arXiv 2112.01075).
 *
 * A step costs the elements received times byte_cost[axis], plus step_cost if anything is sent.
 * SWAP and PERMUTE use the most expensive axis. Over n ranks, with padded sizes, a rank receives
 *
 *     all-gather                     (n-1) x what a rank has
 *     all-to-all, reduce-scatter     (n-1)/n of it, dim `to` padded to n equal parts
 *     all-reduce                     2 (n-1)/n of it
 *     swap, permute                  all of it
 *     slice, start of a sum          nothing
 *
 * The search is exact (Dijkstra's algorithm), so that no other sequence of these moves is less
 * expensive. Fails with DPAR_E_ROOM if there are too few steps or nodes, DPAR_E_ARG if the layouts
 * are not as described, or DPAR_E_NONE if no sequence exists.
 */
DPAR_API dpar_status dpar_route_plan(const dpar_route_desc *desc, dpar_route_step *steps,
                                     int32_t capacity, int32_t *count, dpar_why *why);

/* Computes the layout after a step of a plan, from the layout before it. It does not
 * detect a step of another plan. Fails with DPAR_E_ARG if there is no such axis or dim. Costs
 * O(axes). */
DPAR_API dpar_status dpar_route_step_apply(const dpar_layout *layout, const dpar_route_step *step,
                                           const dpar_layout *goal, dpar_layout *after,
                                           dpar_why *why);

/* ==== index/flat.h ==== */

/* flat - places arrays one after another in a buffer that ranks share: FSDP's flat parameter, and
 * the buckets of DDP and of the distributed optimizer. It also splits an interval of a flattened
 * array into boxes.
 *
 *     dpar_buckets_desc how = {0};
 *     how.params = 3;
 *     how.count = numel;                      elements of each parameter
 *     how.ranks = 4;                          one bucket, 4 equal shards
 *     how.forward = 1;
 *     dpar_buckets_init(&how, start, bucket, 1, &buckets, &why);
 *     dpar_bucket_piece(&bucket[0], 4, start[i], numel[i], rank, &piece);
 */

/* ---- buckets ---- */

/* The order of parameters in a buffer, and how the buffer is cut into buckets. Zero it, then set
 * the fields.
 *
 * For PyTorch's DDP set size to 25 MiB / bytes of an element and first to 1 MiB / bytes of an
 * element; nothing is padded. For Megatron's distributed optimizer set align to 64, multiple to 128
 * (65536 in its high-bandwidth mode) and ranks to the number of data-parallel ranks. For the flat
 * parameter of FSDP1 or ZeRO set forward, size 0, ranks and align (16 bytes, or 1), which gives one
 * bucket of equal shards, the last one padded.
 */
typedef struct dpar_buckets_desc {
    int32_t params;       /* number of parameters */
    int32_t ranks;        /* ranks that share each bucket equally; 0 selects 1 */
    const int64_t *count; /* [params], elements of each parameter */
    int64_t first; /* the first bucket ends once it has this many elements; 0 selects `size` */
    /* the other buckets end once they have this many elements; 0 puts all parameters into one
     * bucket */
    int64_t size;
    int64_t align;    /* parameters begin at multiples of this number; 0 selects 1 */
    int64_t multiple; /* buckets end at multiples of lcm(ranks, multiple); 0 selects 1 */
    /* 0 places parameters from the last to the first, the order in which gradients become ready; 1
     * places them from the first to the last. */
    int32_t forward;
} dpar_buckets_desc;

/* A bucket: a part of the buffer that holds whole parameters. */
typedef struct dpar_bucket {
    /* The bucket's range in the buffer, with padding: lo <= i < hi. Each rank has (hi - lo) / ranks
     * elements. */
    int64_t lo, hi;
    int64_t used;                   /* elements without the padding at the end: lo + used <= hi */
    int32_t first_param, end_param; /* first_param <= i < end_param */
} dpar_bucket;

/* Computes where each parameter begins and how the buffer is cut into buckets. The result is the
 * same on all ranks.
 *
 * start:    [params], receives the first element of each parameter in the buffer.
 * bucket:   [capacity], receives the buckets in the order of the buffer.
 * buckets:  receives the number of buckets, which may exceed `capacity`. Call with capacity 0
 *           to count them.
 *
 * Fails with DPAR_E_ARG or DPAR_E_RANGE. Costs O(params).
 */
DPAR_API dpar_status dpar_buckets_init(const dpar_buckets_desc *how, int64_t *start,
                                       dpar_bucket *bucket, int32_t capacity, int32_t *buckets,
                                       dpar_why *why);

/* The part of one parameter that a rank has. */
typedef struct dpar_piece {
    int64_t count;     /* number of elements */
    int64_t in_param;  /* first element, as an index in the parameter */
    int64_t in_shard;  /* first element, as an index in the rank's shard */
    int64_t in_bucket; /* first element, as an index in the bucket */
    int64_t in_buffer; /* first element, as an index in the buffer */
} dpar_piece;

/* Computes the part of a parameter that is in a rank's share of a bucket. Returns 1, or 0 if there
 * is none; *piece is then unchanged.
 *
 * ranks:         the number of equal shares of the bucket.
 * start, count:  the first element of the parameter in the buffer, and its number of elements.
 *
 * Costs O(1).
 */
DPAR_API int dpar_bucket_piece(const dpar_bucket *bucket, int32_t ranks, int64_t start,
                               int64_t count, int32_t rank, dpar_piece *piece);

/* ---- intervals of a flattened array ---- */

/* Advances to the next of the boxes that make up elements [*at, end) of a flattened array. Returns
 * 1, or 0 when there is none left.
 *
 * extent:  [dims], the shape of the array, which is in C order.
 * at:      the first element on the first call; the function moves it past the box.
 * end:     one past the last element; larger numbers mean the end of the array.
 *
 * There are at most 2 dims - 1 boxes. Also returns 0 if an extent is below 1, *at is negative, or
 * the product of the extents does not fit in 63 bits. For RaggedShard and BlockShard, split rows or
 * blocks by a dpar_split and multiply by their elements. Costs O(dims).
 */
DPAR_API int dpar_flat_next(int32_t dims, const int64_t *extent, int64_t *at, int64_t end,
                            dpar_box *box);

/* ==== index/heads.h ==== */

/* heads - computes which parts of a transformer belong to each tensor, sequence or pipeline
 * parallel rank: attention heads, rows of fused weights, rows of the vocabulary, layers.
 *
 *     dpar_heads_init(&h, 64, 8, 16, DPAR_SPLIT_EVEN, &why);    64 queries in 8 groups on 16 ranks
 *     share = dpar_heads_local(&h, rank);                 4 queries and 1 group, held by 2 ranks
 */

/* ---- attention heads ----
 *
 * Query heads share key-value heads in groups (grouped-query attention, GQA). One group is
 * multi-query attention (MQA), and as many groups as query heads is multi-head attention (MHA).
 */

/* The distribution of the heads of an attention layer, made by dpar_heads_init. */
typedef struct dpar_heads {
    int32_t queries; /* number of query heads */
    int32_t groups;  /* number of groups, which is the number of key-value heads; divides queries */
    int32_t ranks;   /* number of tensor-parallel ranks */
    /* DPAR_SPLIT_EVEN balances the shares. DPAR_SPLIT_CHUNK gives the last ranks less, as padding
     * does. DPAR_HEADS_DIVIDE requires equal shares. */
    int32_t rule;
} dpar_heads;
enum {
    DPAR_HEADS_DIVIDE = DPAR_SPLIT_RULE_COUNT
}; /* a rule: equal shares, or DPAR_E_DIVIDE as in Megatron */

/* Distributes heads over tensor-parallel ranks. If there are at least as many groups as ranks, the
 * rule splits the groups, together with their queries. If there are fewer, the ranks are split
 * among the groups, and each rank has a copy of its group's key-value head and a share of its
 * queries. The result is Megatron's wherever Megatron's sizes divide.
 *
 * Fails with DPAR_E_ARG, or DPAR_E_DIVIDE if `groups` does not divide `queries` or, with
 * DPAR_HEADS_DIVIDE, shares are not equal. Costs O(1).
 */
DPAR_API dpar_status dpar_heads_init(dpar_heads *heads, int32_t queries, int32_t groups,
                                     int32_t ranks, int32_t rule, dpar_why *why);

/* The heads that one rank has. */
typedef struct dpar_heads_share {
    int32_t first_query, queries; /* the first query head of the rank, and how many it has */
    int32_t first_group, groups;  /* the first key-value head of the rank, and how many it has */
    /* This rank is number `copy` of `copies` ranks that hold these groups. Copy 0 is primary: it
     * saves them, and the gradients of the other copies are added to its own. */
    int32_t copy, copies;
} dpar_heads_share;

/* Computes the heads that a rank has. All fields are 0 for a rank outside 0..ranks-1. A rank
 * without heads has queries 0; if there are at least as many groups as ranks, its groups and copies
 * are 0 too. Costs O(1).
 *
 * Programs that pad heads pad them to the most that any rank has. Rank 0 has the most groups and
 * the most queries, except that with fewer groups than ranks the first rank of the last group has
 * the most queries.
 */
DPAR_API dpar_heads_share dpar_heads_local(const dpar_heads *heads, int32_t rank);

/* The order of rows in the fused query-key-value weight. */
enum {
    DPAR_HEADS_QKV_BY_GROUP, /* queries, key and value of the first group, then those of the next
                          group, as in Megatron */
    DPAR_HEADS_QKV_BY_KIND   /* all queries, then all keys, then all values, as in Hugging Face and
                                vLLM */
};

/* Finds the n-th run of rows [rows[0], rows[1]) of the fused weight that a rank has. Returns 1, or
 * 0 past the last run.
 *
 * order:  DPAR_HEADS_QKV_BY_GROUP or DPAR_HEADS_QKV_BY_KIND.
 * width:  rows of a head.
 *
 * Runs are in ascending order and as long as possible; there are at most three. (For the fused gate
 * and up weight use DPAR_SPLIT_STRIDED with 2 pieces.) Costs O(1).
 */
DPAR_API int dpar_heads_rows(const dpar_heads *heads, int32_t rank, int32_t order, int64_t width,
                             int32_t n, int64_t rows[2]);

/* ---- vocabulary ---- */

/* A vocabulary whose rows are distributed over ranks, made by dpar_vocab_init. */
typedef struct dpar_vocab {
    int64_t count, added;         /* tokens of the model, and tokens added to it later */
    int64_t padded, padded_added; /* rows for each of the two, over all ranks */
    int32_t ranks;
} dpar_vocab;

/* Distributes a vocabulary over ranks. Rows are padded to whole multiples and cut into equal
 * shares. For Megatron, multiple is its divisor (128) x ranks. For vLLM, multiple is 64, applied
 * first to the model's tokens and then to all tokens together.
 *
 * Fails with DPAR_E_ARG, DPAR_E_RANGE, or DPAR_E_DIVIDE if shares are not equal. Costs O(1).
 */
DPAR_API dpar_status dpar_vocab_init(dpar_vocab *vocab, int64_t count, int64_t added,
                                     int64_t multiple, int32_t ranks, dpar_why *why);

/* Counts the rows of a rank: padded / ranks for the model's tokens, then padded_added / ranks for
 * added ones. Costs O(1). */
DPAR_API int64_t dpar_vocab_row_count(const dpar_vocab *vocab);

/* Finds the row at which a rank holds token `id`. Returns -1 if another rank holds it or there is
 * no such token; then look up row 0, set the result to zero, and sum over the ranks. Ids of added
 * tokens begin at `count`. Costs O(1). */
DPAR_API int64_t dpar_vocab_row(const dpar_vocab *vocab, int32_t rank, int64_t id);

/* Finds the token in a row of a rank. Returns -1 for padding. Costs O(1). */
DPAR_API int64_t dpar_vocab_id(const dpar_vocab *vocab, int32_t rank, int64_t row);

/* ---- layers over pipeline stages ---- */

/* A distribution of layers over pipeline stages. Zero it, then set the fields. */
typedef struct dpar_stage_layers_desc {
    int32_t layers, stages;
    int32_t chunks; /* runs of layers on a stage (interleaved schedules); 0 selects 1 */
    /* Layers of the first and of the last stage, over all chunks; 0 gives them as many as the
     * others. */
    int32_t first_layers, last_layers;
    int32_t embedding, loss; /* 1 counts it as a layer, before the first or after the last */
    /* 1 lets every second chunk run from the last stage to the first, so that stage 0 has both ends
     * of the model (V schedules). */
    int32_t v_shape;
} dpar_stage_layers_desc;

/* Computes the layers [*first, *end) of one chunk of a stage. Shares are equal; if they do not
 * divide, the first ones have one layer more. To cut by cost use dpar_split_balance. Fails with
 * DPAR_E_ARG or DPAR_E_DIVIDE. Costs O(1). */
DPAR_API dpar_status dpar_stage_layers(const dpar_stage_layers_desc *desc, int32_t stage,
                                       int32_t chunk, int32_t *first, int32_t *end, dpar_why *why);

/* ==== index/context.h ==== */

/* context - computes which tokens of a packed sequence each context-parallel rank has, if a rule
 * cuts each document. A single sequence is one document, or simply a dpar_split (DPAR_SPLIT_ZIGZAG,
 * DPAR_SPLIT_CYCLIC).
 *
 *     const int64_t ends[4] = {0, 4000, 4096, 8192};    three documents
 *     dpar_packed_init(&p, 3, ends, 8, DPAR_SPLIT_ZIGZAG, &why);
 *     dpar_packed_cursor at = {0, 0};
 *     while (dpar_packed_next(&p, rank, &at, &doc, &first, &count)) {
 *         tokens first to first + count - 1 of document doc
 *     }
 */

/* Documents laid end to end, each cut into parts for the ranks, made by dpar_packed_init. Document
 * k is tokens [ends[k], ends[k + 1]) with ends[0] = 0 (THD's cumulative lengths), and may be empty.
 * `rule` cuts each document into `ranks` parts; a rank has its parts in the order of the documents.
 *
 * ZIGZAG is torch's head-tail method, which Megatron and TransformerEngine use too. They pad each
 * document so that 2 x ranks divides its length. Here other lengths are cut unevenly and nothing is
 * padded.
 */
typedef struct dpar_packed {
    int32_t docs, ranks, rule;
    const int64_t *ends; /* [docs + 1], the caller's */
} dpar_packed;

/* Distributes documents over ranks by DPAR_SPLIT_CHUNK, DPAR_SPLIT_EVEN, DPAR_SPLIT_ZIGZAG or
 * DPAR_SPLIT_CYCLIC. `ends` must live as long as *packed. Fails with DPAR_E_ARG, or DPAR_E_RANGE
 * above 2^61 tokens. Costs O(docs).
 */
DPAR_API dpar_status dpar_packed_init(dpar_packed *packed, int32_t docs, const int64_t *ends,
                                      int32_t ranks, int32_t rule, dpar_why *why);

/* Counts the tokens of a rank. Returns 0 for a rank outside 0..ranks-1.
 *
 * local_ends:  [docs + 1], receives where each document ends in the rank's tokens: its own
 *              cumulative lengths. May be NULL.
 *
 * Costs O(docs).
 */
DPAR_API int64_t dpar_packed_rank_count(const dpar_packed *packed, int32_t rank,
                                        int64_t *local_ends);

/* The position of dpar_packed_next in the runs of a rank. Begin with an all-zero cursor. */
typedef struct dpar_packed_cursor {
    int32_t doc;
    int64_t local;
} dpar_packed_cursor;

/* Advances to the next run of a rank, tokens [*first, *first + *count) of document *doc. Returns 1,
 * or 0 when there is none left. Costs O(1) for each run, and O(docs) over all. */
DPAR_API int dpar_packed_next(const dpar_packed *packed, int32_t rank, dpar_packed_cursor *cursor,
                              int32_t *doc, int64_t *first, int64_t *count);

/* Counts the query-key pairs of a rank under causal attention inside documents, which is its share
 * of the work. The result is at most 2^63 - 1. Costs O(runs), and O(docs) for CYCLIC. */
DPAR_API int64_t dpar_packed_pairs(const dpar_packed *packed, int32_t rank);

/* ==== index/window.h ==== */

/* window - counts the outputs of operators that read windows of their inputs, along one dim. With
 * the field `window`, a dpar_halo distributes these outputs over ranks and widens the local arrays
 * by the inputs that they need.
 *
 *     dpar_window v = {0};
 *     v.kernel = 3;
 *     v.stride = 2;
 *     v.pad_low = v.pad_high = 1;
 *     dpar_window_outputs(&v, 32, &outputs, &why);    16
 */

/* The kinds of operators. */
enum {
    /* A convolution, pooling or stencil: output y reads inputs stride y - pad + dilation k. */
    DPAR_WINDOW_CONVOLUTION,
    /* A transposed convolution: input i contributes to outputs stride i - pad + dilation k. */
    DPAR_WINDOW_TRANSPOSED,
    /* An interpolation with `kernel` taps around y's position among the inputs: 1 is nearest, 2
     * linear, 4 cubic; any even number is allowed. Beyond the ends the last input is repeated. */
    DPAR_WINDOW_INTERPOLATION,
    /* Neighbourhood attention: query y reads `kernel` keys that are `dilation` (at most 4096)
     * apart. The keys are centred on the query, and moved inward at the ends of its dilation group.
     * In a periodic dim use a convolution padded by dilation (kernel / 2) instead. */
    DPAR_WINDOW_NEIGHBOURHOOD
};

/* An operator along one dim. Zero it, then set the fields. */
typedef struct dpar_window {
    int64_t kernel;           /* number of taps, at least 1 */
    int64_t stride, dilation; /* 0 selects 1 */
    /* elements of padding below and above the inputs */
    int64_t pad_low, pad_high;
    int32_t ceil_mode; /* pooling: 1 also counts a last window that begins inside but is not
                          complete */
    int32_t kind;      /* DPAR_WINDOW_x */
    /* For interpolation, as in torch. With 1 the first and last outputs are at the first and last
     * inputs; with 0 the outer edges of the first and last cells coincide. */
    int32_t align_corners;
} dpar_window;

/* Counts the outputs of an operator on `inputs` inputs, as torch and cuDNN count them. With n
 * inputs and pads = pad_low + pad_high there are
 *
 *     convolution      floor((n + pads - dilation (kernel - 1) - 1) / stride) + 1
 *     transposed       stride (n - 1) - pads + dilation (kernel - 1) + 1, no output_padding
 *     neighbourhood    n
 *
 * Fails with DPAR_E_ARG or DPAR_E_RANGE for a number out of its domain, a kernel that does not fit,
 * or an interpolation, which may have any number of outputs. Costs O(1).
 */
DPAR_API dpar_status dpar_window_outputs(const dpar_window *window, int64_t inputs,
                                         int64_t *outputs, dpar_why *why);

/* ==== index/halo.h ==== */

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
DPAR_API int dpar_halo_next(dpar_halo_cursor *cursor, dpar_transfer *transfer);

/* ==== index/sampler.h ==== */

/* sampler - computes which sample of a data set a rank reads next: as torch's DistributedSampler
 * and randperm bit for bit, or as Megatron's consecutive batches. It can also read each sample
 * exactly once, resume inside an epoch, and shuffle without memory.
 *
 *     dpar_sampler s = {0};
 *     s.count = 50000;                            samples
 *     s.ranks = 8;
 *     s.shuffle = 1;
 *     s.epoch = 3;
 *     dpar_sampler_init(&s, &why);
 *     for (k = 0; (i = dpar_sampler_at(&s, rank, k)) >= 0; k++)
 */

/* What is done with the samples that the ranks cannot share evenly. */
enum {
    DPAR_SAMPLER_PAD,  /* repeat samples from the beginning until they can, which is torch's default
                        */
    DPAR_SAMPLER_DROP, /* leave them out, as drop_last of torch and Megatron does */
    /* Read each sample exactly once, so that metrics are exact. The numbers of samples of two ranks
     * then differ by up to `run`, and collectives must stop after dpar_sampler_common_count
     * samples. */
    DPAR_SAMPLER_EXACT
};

/* A distribution of the samples of an epoch over ranks. Zero it, set the fields, and call
 * dpar_sampler_init. Positions first, first + 1, ... of the epoch's order are dealt to the ranks in
 * turn, `run` at a time.
 *
 * For torch set remainder, count and ranks. For Megatron set run to the micro-batch and remainder
 * to DPAR_SAMPLER_DROP, or DPAR_SAMPLER_EXACT for drop_last=False. To resume, set first to
 * dpar_sampler_consumed. The same number of ranks then continues exactly as it would have; another
 * number of ranks may resume, too.
 */
typedef struct dpar_sampler {
    int32_t remainder; /* DPAR_SAMPLER_PAD, ... */
    int32_t ranks;     /* ranks that read samples: the data-parallel ones */
    int64_t count;     /* samples of an epoch, 0..2^62 */
    int64_t first;     /* number of positions that all ranks together have consumed */
    /* Consecutive positions that a rank gets at a time, such as Megatron's micro-batch. With 0 or 1
     * rank r reads r, r + ranks, ..., as in torch. */
    int64_t run;
    /* With 0 dpar_sampler_at returns a position in the caller's order, which is 0, 1, 2, ... or an
     * array that dpar_sampler_shuffle filled. With 1 it returns a sample, in an order that depends
     * on `seed` and `epoch`, takes no memory and is the same on every machine (a Feistel network;
     * not for secrets). */
    int32_t shuffle;
    int32_t low, high; /* private */
    uint64_t seed, epoch;
    uint64_t key; /* private */
} dpar_sampler;

/* Checks the fields of *sampler and sets its private ones. On failure *sampler is unchanged. Fails
 * with DPAR_E_ARG or DPAR_E_RANGE. Costs O(1). */
DPAR_API dpar_status dpar_sampler_init(dpar_sampler *sampler, dpar_why *why);

/* Counts the samples that a rank reads, which are at least as many as those of a later rank.
 * Returns 0 for a rank outside 0..ranks-1. Costs O(1). */
DPAR_API int64_t dpar_sampler_rank_count(const dpar_sampler *sampler, int32_t rank);

/* Counts the samples, in whole runs, that every rank reads. Up to this number a collective for each
 * sample or batch is safe. Afterwards some ranks have a shorter batch or none, and such a
 * collective hangs. Costs O(1). */
DPAR_API int64_t dpar_sampler_common_count(const dpar_sampler *sampler);

/* Finds the k-th sample that a rank reads, 0..count-1: its position, or with `shuffle` the sample
 * at that position. Returns -1 past the rank's last sample. Costs O(1). */
DPAR_API int64_t dpar_sampler_at(const dpar_sampler *sampler, int32_t rank, int64_t k);

/* Counts the positions that are consumed when each rank has read k samples, which is the number
 * that a checkpoint must store. The result is at most count. Returns -1 if k is neither a multiple
 * of `run` nor the number of all samples of a rank. Costs O(1). */
DPAR_API int64_t dpar_sampler_consumed(const dpar_sampler *sampler, int64_t k);

/* The state of MT19937, the generator std::mt19937 of C++: scratch memory of 2.5 KB for
 * dpar_sampler_shuffle. */
typedef struct dpar_mt19937 {
    uint32_t word[624]; /* private */
    int32_t at;         /* private: index of the next word; 624 if new ones must be made */
} dpar_mt19937;

/* Computes the order of an epoch in torch, bit for bit: order[0 .. count-1] becomes
 * torch.randperm(count) on the CPU after manual_seed(seed). DistributedSampler's seed for an epoch
 * is seed + epoch. Only the low 32 bits of `seed` are used.
 *
 * Below 214748364 elements the method is Fisher-Yates with one 32-bit draw for each element; from
 * there on it works inside out with 64-bit draws. Fails with DPAR_E_ARG for a negative count. Costs
 * O(count).
 */
DPAR_API dpar_status dpar_sampler_shuffle(int64_t *order, int64_t count, uint64_t seed,
                                          dpar_mt19937 *scratch, dpar_why *why);

/* ==== index/selftest.h ==== */

/* selftest - tests whether this compiler computes for this processor what all others compute.
 *
 *     if (dpar_selftest(&why) != DPAR_OK) {
 *         puts(why.text);
 *     }
 */

/* Computes some hundred results and compares their checksums with those of all other targets:
 * 64-bit arithmetic, splits, a mesh, a layout, the transfers of a halo. All results are integers of
 * fixed widths, so that no target may differ.
 *
 * Fails with DPAR_E_MISMATCH, and the message names the first difference. The fault is then in the
 * compiler or in its library for 64-bit integers. Needs about 3 KB of stack and takes milliseconds.
 */
DPAR_API dpar_status dpar_selftest(dpar_why *why);

#elif DPAR_VERSION != 200
#error two dpar.h of different versions in one unit: take all headers from one release

#endif /* DPAR_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* Private functions that the headers above this one call. */
#ifndef DPARI_INDEX_INTERNAL_H
#define DPARI_INDEX_INTERNAL_H

/* Tells the private headers of src/ that they are pasted into one file. */
#define DPARI_PASTED
/* Set in a file that implements no header and therefore calls no private function. */
#if !defined(DPAR_IMPLEMENTATION) && !defined(DPAR_INDEX_IMPLEMENTATION) &&                        \
    !defined(DPAR_SCHEDULE_IMPLEMENTATION) && !defined(DPAR_COST_IMPLEMENTATION) &&                \
    !defined(DPAR_PROOF_IMPLEMENTATION) &&                                                         \
    !defined(DPAR_COMM_IMPLEMENTATION) && !defined(DPAR_HALO_IMPLEMENTATION) &&                    \
    !defined(DPAR_POINTS_IMPLEMENTATION) && !defined(DPAR_PENCIL_IMPLEMENTATION) &&                \
    !defined(DPAR_PARTICLES_IMPLEMENTATION) && !defined(DPAR_BLOCKS_IMPLEMENTATION) &&             \
    !defined(DPAR_EXACT_IMPLEMENTATION) && !defined(DPAR_TRAIN_IMPLEMENTATION) &&                  \
    !defined(DPAR_SPATIAL_IMPLEMENTATION) && !defined(DPAR_DEBUG_IMPLEMENTATION) &&                \
    !defined(DPAR_MPI_IMPLEMENTATION) && !defined(DPAR_NCCL_IMPLEMENTATION)
#define DPARI_NO_CODE
#endif

/* ==== base/arith.h ==== */

/* arith - private: attributes of functions, checked integer arithmetic, comparison and copying of
 * texts, and the functions that write messages. */

#include <stdarg.h>

/* `inline` as compilers spell it for themselves, because some codes compile with -Dinline=. */
#if defined(__GNUC__)
#define DPARI_INLINED __inline__
#elif defined(_MSC_VER)
#define DPARI_INLINED __inline
#else
#define DPARI_INLINED inline
#endif

/* DPARI_FN marks the small functions of private headers. In a file that implements nothing they are
 * inline, so that a compiler without optimisation leaves them out. In the implementation the
 * compiler decides itself, which makes the code 5 % smaller. */
#if !defined(DPARI_NO_CODE)
#define DPARI_FN static DPARI_UNUSED
#else
#define DPARI_FN static DPARI_INLINED DPARI_UNUSED
#endif

/* DPARI_INTERNAL marks functions that the modules of one header share, and DPARI_API those that the
 * headers above it call as well. */
#ifdef DPARI_PASTED
#define DPARI_INTERNAL static DPARI_UNUSED
#else
#define DPARI_INTERNAL extern
#endif
#define DPARI_API DPAR_API

/* Prevents inlining. That keeps a large frame off call paths that do not need it, or keeps one copy
 * of a function with many callers if a call costs little compared with what the function does. */
#if defined(__GNUC__)
#define DPARI_NOINLINE __attribute__((noinline))
#else
#define DPARI_NOINLINE
#endif
#define DPARI_STATIC_NOINLINE static DPARI_NOINLINE

/* Compiles a function for size rather than speed. It is for functions that run once per job, plan
 * or picture, or a few times per step around microseconds of work, and for the functions that only
 * they call. The compiler also treats branches that lead to such a function as unlikely, and whole
 * functions that always call it. So never use it for a function that loops over elements, or for a
 * query that is called in a loop. */
#if defined(__GNUC__) && !defined(__OPTIMIZE_SIZE__)
#define DPARI_COLD __attribute__((cold))
#else
#define DPARI_COLD
#endif

/* Lets the compiler check the arguments of a message, from argument `first` on, against its format,
 * argument `form`. It can do so where int32_t is int and int64_t is long. */
#if defined(__linux__) && defined(__LP64__)
#define DPARI_PRINTF(form, first) __attribute__((format(printf, form, first)))
#else
#define DPARI_PRINTF(form, first)
#endif

/* Marks a function with variable arguments that takes no real numbers. Without the mark such a
 * function saves the registers for real numbers on its stack, 128 bytes on x86-64. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#if __GNUC__ >= 11
#define DPARI_NO_REALS __attribute__((target("general-regs-only")))
#endif
#endif
#ifndef DPARI_NO_REALS
#define DPARI_NO_REALS
#endif

/* Inlines a function at every call. DPARI_IS_CONSTANT is true if the compiler knows that `is`
 * holds. */
#if defined(__GNUC__)
#define DPARI_ALWAYS_INLINE static DPARI_INLINED __attribute__((always_inline)) DPARI_UNUSED
#define DPARI_IS_CONSTANT(is) (__builtin_constant_p(is) && (is))
#else
#define DPARI_ALWAYS_INLINE DPARI_FN
#define DPARI_IS_CONSTANT(is) 0
#endif

/* Computes a * b for non-negative numbers. Returns 0 if the product exceeds INT64_MAX. */
DPARI_FN int dpari_mul(int64_t a, int64_t b, int64_t *product)
{
#if defined(__SIZEOF_INT128__) /* uses the overflow flag; on small targets it would be a call */
    int64_t p;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &p)) {
        return 0;
    }
    *product = p;
#else
    if (a < 0 || b < 0 || (b > 0 && a > INT64_MAX / b)) {
        return 0;
    }
    *product = a * b;
#endif
    return 1;
}

/* Returns a / b rounded up, for a >= 0 and b > 0, without overflow. */
DPARI_FN int64_t dpari_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Returns a / b rounded towards minus infinity, for b > 0, as indices that wrap around need it. */
DPARI_FN int64_t dpari_floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

/* Returns the greatest common divisor, which is a if b is 0. */
DPARI_FN int64_t dpari_gcd(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

DPARI_FN int64_t dpari_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

DPARI_FN int64_t dpari_most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Returns |a|, which must not be INT64_MIN. */
DPARI_FN int64_t dpari_size(int64_t a)
{
    return a < 0 ? -a : a;
}

DPARI_FN double dpari_leastf(double a, double b)
{
    return a < b ? a : b;
}

DPARI_FN double dpari_mostf(double a, double b)
{
    return a > b ? a : b;
}

/* True if a is above b, where NaN is below all numbers. */
DPARI_FN int dpari_higher(double a, double b)
{
    return a > b || (a == a && b != b);
}

/* True if x is neither NaN nor infinite. */
DPARI_FN int dpari_finite(double x)
{
    return x - x < 1.0 && x - x > -1.0;
}

/* True if v is 0 or 1. */
DPARI_FN int dpari_is_flag(int32_t v)
{
    return v == 0 || v == 1;
}

/* Returns the first of two errors, or DPAR_OK if there is none. */
DPARI_FN dpar_status dpari_first_error(dpar_status first, dpar_status second)
{
    return first != DPAR_OK ? first : second;
}

DPARI_FN void dpari_zero(void *at, size_t bytes)
{
    unsigned char *p = (unsigned char *)at;
    size_t i;
    for (i = 0; i < bytes; i++) {
        p[i] = 0;
    }
}

/* Returns the length of a text. Without the bound, compilers would recognise strlen and call it,
 * which small targets may not have. No text reaches the bound, which is 2 GiB or half of the
 * address space. */
DPARI_FN size_t dpari_length(const char *s)
{
    size_t n = 0;
    while (n < ((size_t)-1 / 2 & 0x7fffffff) && s[n] != 0) {
        n++;
    }
    return n;
}

/* True if two texts are equal. */
DPARI_FN int dpari_same(const char *a, const char *b)
{
    size_t i = 0;
    while (a[i] != 0 && a[i] == b[i]) {
        i++;
    }
    return a[i] == b[i];
}

/* True if the slice [s, s + n) is the text `word`. */
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

/* Returns text n of a list of texts that each end in a NUL. Such a list needs no table of pointers,
 * which would have to be relocated at load time, and less memory than rows of equal length. */
DPARI_FN const char *dpari_nth_text(const char *texts, int32_t n)
{
    for (; n > 0; n--) {
        texts += dpari_length(texts) + 1;
    }
    return texts;
}

DPARI_FN char dpari_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* True if the slice is `word`, ignoring case. `word` must be in lower case. */
DPARI_FN int dpari_spells_any_case(const char *s, size_t n, const char *word)
{
    size_t i;
    for (i = 0; i < n; i++) {
        if (word[i] == 0 || word[i] != dpari_lower(s[i])) {
            return 0;
        }
    }
    return word[n] == 0;
}

/* Computes the edit distances (Levenshtein) between a slice and the prefixes of `word`, ignoring
 * case: row[k] is the distance to the prefix of k letters. Only the first 31 letters of the slice
 * count, and `word` has at most 31. Returns the length of `word`, so that row[length] is the
 * distance between slice and word. */
DPARI_FN int32_t dpari_edits(const char *s, size_t n, const char *word, int32_t row[32])
{
    const int32_t m = (int32_t)dpari_length(word), length = n < 31 ? (int32_t)n : 31;
    int32_t i, k;
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
    return m;
}

/* Returns the bytes of a UTF-8 byte order mark at the start of a file, 3 or 0. *left receives the
 * number of bytes after it. */
DPARI_FN size_t dpari_text_mark(const char *s, size_t n, size_t *left)
{
    size_t mark = n >= 3 && s[0] == '\xEF' && s[1] == '\xBB' && s[2] == '\xBF' ? 3 : 0;
    *left = n - mark;
    return mark;
}

/* Copies at most room - 1 of n characters, up to a NUL, and appends a NUL. */
DPARI_FN void dpari_copy_text(char *to, size_t room, const char *from, size_t n)
{
    size_t i;
    for (i = 0; i + 1 < room && i < n && from[i] != 0; i++) {
        to[i] = from[i];
    }
    to[i] = 0;
}

/* The bytes of a message, including its NUL. */
enum { DPARI_WHY_TEXT = sizeof(((dpar_why *)NULL)->text) };

/* Tells the caller of a call that fails with DPAR_E_ROOM how many bytes it needs. */
DPARI_FN void dpari_needs_bytes(dpar_why *why, int64_t bytes)
{
    if (why != NULL) {
        why->bytes = bytes;
    }
}

/* Writes a message into why->text, if why is not NULL, and returns `status`, so that a check can
 * end with `return dpari_say(...)`. In the format, %d takes an int32_t, %ld an int64_t, %s a text
 * that ends in NUL, and %.*s an int32_t and a text of that length. */
DPARI_API dpar_status dpari_say(dpar_status status, dpar_why *why, const char *form, ...)
    DPARI_PRINTF(3, 4);
/* Does the same with DPAR_E_ARG, the status of most messages. */
DPARI_API dpar_status dpari_wrong(dpar_why *why, const char *form, ...) DPARI_PRINTF(2, 3);
/* A program may pass NULL for `why` everywhere, as programs for small targets do. These macros
 * leave a message and its text out of such a program where the compiler knows that `why` is NULL.
 * They are needed because functions with variable arguments are never inlined. */
#if defined(__GNUC__) && defined(__OPTIMIZE__)
DPARI_ALWAYS_INLINE int dpari_unread(const dpar_why *why)
{
    return DPARI_IS_CONSTANT(why == NULL);
}
#define dpari_say(status, why, ...)                                                                \
    (dpari_unread(why) ? (dpar_status)(status) : dpari_say(status, why, __VA_ARGS__))
#define dpari_wrong(why, ...)                                                                      \
    (dpari_unread(why) ? (dpar_status)DPAR_E_ARG : dpari_wrong(why, __VA_ARGS__))
#endif
/* Copies `text`, the message of another call, into why->text and returns `status`. `text` may be
 * why->text itself. */
DPARI_API dpar_status dpari_repeat(dpar_status status, dpar_why *why, const char *text);
/* Does what dpari_say does, for functions that take a format and its arguments themselves. */
DPARI_API dpar_status dpari_say_list(dpar_status status, dpar_why *why, const char *form,
                                     va_list *list);

/* ==== base/base_private.h ==== */

/* base_private - private: the functions of base that the other folders use. */

/* Begins a message in why->text. If `why` is NULL, the message is dropped. */
DPARI_API void dpari_text_why(dpar_text *text, dpar_why *why);
/* Append a character, at most n characters of a text, or an integer. O(length). */
DPARI_API void dpari_text_char(dpar_text *text, char c);
DPARI_API void dpari_text_slice(dpar_text *text, const char *s, size_t n);
DPARI_API void dpari_text_int(dpar_text *text, int64_t v);
/* Appends v with `decimals` (0..9) digits after the point, rounded half away from zero, or "nan" or
 * "inf". From 9e15 on it does what dpari_text_real does with 6 digits. */
DPARI_API void dpari_text_fixed(dpar_text *text, double v, int32_t decimals);
/* Appends v with `digits` (1..17) significant digits, in plain or exponential notation like %g, but
 * with exact halves rounded away from zero. */
DPARI_API void dpari_text_real(dpar_text *text, double v, int32_t digits);
/* Appends blanks until the current line has `column` UTF-8 characters. */
DPARI_API void dpari_text_column(dpar_text *text, size_t column);
/* Appends text with the format `form`, as printf does. The format may have %s, %.*s, %d for an
 * int32_t, %ld for an int64_t, %%, and %.Nf and %.Ng with one digit N, which do what
 * dpari_text_fixed and dpari_text_real do. %.NG is %.Ng for JSON: it writes 0 if the number is not
 * finite. A width puts blanks before a value to right-align it; the value may then have at most 31
 * characters. Constants for %d must be cast to int32_t, because an int may have 16 bits. */
DPARI_API void dpari_text_print(dpar_text *text, const char *form, ...) DPARI_PRINTF(2, 3);
/* Does the same for functions that take a format and its arguments themselves. */
DPARI_API void dpari_text_print_list(dpar_text *text, const char *form, va_list *list);
/* Does what dpari_text_print does, but without real numbers and with less stack. */
DPARI_API void dpari_text_say(dpar_text *text, const char *form, ...) DPARI_PRINTF(2, 3);
/* Reads a decimal number (sign, digits, point, exponent) from [s, s + n). Returns the number of
 * characters read, or 0 if there is no number. The value is never NaN. It is infinite if the number
 * is too large, which the caller must refuse. */
DPARI_API size_t dpari_text_number(const char *s, size_t n, double *value);

/* True if reductions support the type: all but TF32, F8 and F4. */
DPARI_API int32_t dpari_type_can_reduce(int32_t type);

/* True if every element of `inner` is in `outer`. An empty box is in every box with equally many
 * dims. */
DPARI_API int dpari_box_contains(const dpar_box *outer, const dpar_box *inner);

/* ==== base/real.h ==== */

/* real - private: the few functions of <math.h> that the library needs, without -lm.
 * Header-only. Relative error below 1e-12 on double targets. */

/* Returns m and sets *e such that x = m * 2^e and 1 <= m < 2, for finite x > 0. It multiplies by
 * powers of two, 2^32 at first, because it must not assume the bits of a double, which has only 32
 * on AVR. With -ffast-math an infinite x may get here: the bounds on k end the loops then, and the
 * result is useless. */
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

/* Returns sqrt(x), or 0 for x <= 0. Newton's method computes the root of the mantissa. */
DPARI_FN double dpari_sqrt(double x)
{
    int32_t e, i;
    double m, r;
    if (!(x > 0.0) || !dpari_finite(x)) {
        return x != x ? x : 0.0;
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

/* Returns log2(x) for finite x > 0, NaN for NaN, otherwise 0. It sums the atanh series of the
 * mantissa, which is within a factor of sqrt(2) of 1. */
DPARI_FN double dpari_log2(double x)
{
    int32_t e, k;
    double m, y, y2, term, sum = 0.0;
    if (!(x > 0.0) || !dpari_finite(x)) {
        return x != x ? x : 0.0;
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

/* Returns ln(x) for finite x > 0, NaN for NaN, otherwise 0. */
DPARI_FN double dpari_log(double x)
{
    return dpari_log2(x) * 0.6931471805599453;
}

/* Returns e^x with a relative error of 2e-15; 0 below -745, and e^709 above 709, near the limits of
 * a double. With x = k ln 2 + f and |f| < 0.35, e^f is a Taylor polynomial of degree 13 and 2^k is
 * computed by squaring, because the bits of a double are not known. ln 2 is given in two parts, so
 * that k times the first one is exact. There is no division and no loop over terms, because softmax
 * calls it for each element. */
DPARI_FN double dpari_exp(double x)
{
    double f, sum, power = 1.0, base = x < 0.0 ? 0.5 : 2.0;
    int32_t k;
    if (!(x > -745.0)) {
        return x < 0.0 ? 0.0 : x; /* NaN stays NaN */
    }
    x = x < 709.0 ? x : 709.0;
    k = (int32_t)((x < 0.0 ? -x : x) * 1.4426950408889634 + 0.5);
    f = x < 0.0 ? -(double)k : (double)k;
    f = (x - f * 0.693147180369123816490) - f * 1.90821492927058770002e-10;
    sum = 1.0 / 6227020800.0;
    sum = sum * f + 1.0 / 479001600.0;
    sum = sum * f + 1.0 / 39916800.0;
    sum = sum * f + 1.0 / 3628800.0;
    sum = sum * f + 1.0 / 362880.0;
    sum = sum * f + 1.0 / 40320.0;
    sum = sum * f + 1.0 / 5040.0;
    sum = sum * f + 1.0 / 720.0;
    sum = sum * f + 1.0 / 120.0;
    sum = sum * f + 1.0 / 24.0;
    sum = sum * f + 1.0 / 6.0;
    sum = sum * f + 0.5;
    sum = sum * f + 1.0;
    sum = sum * f + 1.0;
    for (; k > 0; k >>= 1) {
        power *= k % 2 != 0 ? base : 1.0;
        base *= base;
    }
    return sum * power;
}

/* Returns the least k with 2^k >= n, for n >= 1. */
DPARI_FN int32_t dpari_ceil_log2(int64_t n)
{
    int32_t k = 0;
    while (k < 62 && ((int64_t)1 << k) < n) {
        k++;
    }
    return k;
}

/* ==== index/index_private.h ==== */

/* index_private - private: the functions of index that are not public but are used by its other
 * modules or by other folders. */

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

/* ==== index/reach.h ==== */

/* reach - private: the functions about points and their owners that the walk over a halo's
 * transfers calls. */

/* Computes the coordinates of a rank's block. Returns 1, or 0 if it has none. */
DPARI_API int dpari_halo_coords(const dpar_halo *halo, int32_t rank, int32_t *coord);
/* True if every halo point is outside the block in one dim only. */
DPARI_API int dpari_halo_star(const dpar_halo *halo);
enum { DPARI_EDGE_WEST, DPARI_EDGE_EAST, DPARI_EDGE_SOUTH, DPARI_EDGE_NORTH };
/* Returns the face of a cubed sphere beyond an edge (-x, +x, -y, +y) of a face. *turn receives the
 * quarter turns by which vectors from there are rotated here (`turn` of dpar_transfer). Returns -1
 * if there is no such face or edge. */
DPARI_API int32_t dpari_halo_edge(int32_t face, int32_t edge, int32_t *turn);

/* Computes, in one dim of the rank at coord[], the points that it owns and the points in its array.
 * If it owns none, `own` is an empty range at the start of the array. Returns 1, or 0 if it has
 * neither. */
DPARI_API int dpari_halo_range(const dpar_halo *halo, const int32_t *coord, int32_t d, int64_t *own,
                               int64_t *box);

#endif /* DPARI_INDEX_INTERNAL_H */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_INDEX_IMPLEMENTATION)) && \
    !defined(DPAR_INDEX_IMPLEMENTATION_DONE)
#define DPAR_INDEX_IMPLEMENTATION_DONE

/* ==== base/base_private.h ==== */

/* Computes the intersection of two boxes. *out may be one of them. Returns 0, without writing *out,
 * if it is empty or the dims differ. O(dims). */
DPARI_INTERNAL int dpari_box_intersect(const dpar_box *a, const dpar_box *b, dpar_box *out);

/* ==== index/index_private.h ==== */

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

/* ==== index/reach.h ==== */

/* Finds the owner of point i of a dim. coord receives its coordinates on the axes that cut the dim,
 * and at[0], at[1] the range of points that it owns. */
DPARI_INTERNAL void dpari_halo_owner(const dpar_halo *halo, int32_t d, int64_t i, int32_t *coord,
                                     int64_t *at);
/* True if there are other points beyond the ends of a dim, so that it has as many faces as cells.
 */
DPARI_INTERNAL int dpari_halo_closed(const dpar_halo *halo, int32_t d);
/* Returns in how many dims at once a halo point may be outside the points that its rank owns. */
DPARI_INTERNAL int32_t dpari_halo_outside(const dpar_halo *halo);
/* Returns the number of rows beyond a pole, without the row that is held twice. */
DPARI_INTERNAL int64_t dpari_halo_behind(const dpar_halo *halo, uint32_t pole);

/* ==== base/base.c ==== */

/* Returns the texts of the statuses. They come from DPAR_STATUS_LIST, so that the list exists only
 * once. */

DPAR_API DPARI_COLD const char *dpar_status_text(dpar_status status)
{
    switch (status) {
#define DPARI_STATUS_CASE(name, value, text)                                                       \
    case DPAR_##name: return text;
        DPAR_STATUS_LIST(DPARI_STATUS_CASE)
#undef DPARI_STATUS_CASE
    default: return "unknown status";
    }
}

/* ==== base/type.c ==== */

/* Returns sizes and names of number formats, and names of collectives. dpar_type_name uses a
 * switch, because a table of pointers would have to be relocated at load time. */

DPAR_API int32_t dpar_type_bytes(int32_t type)
{
    switch (type) {
    case DPAR_F64:
    case DPAR_I64:
    case DPAR_U64: return 8;
    case DPAR_F32:
    case DPAR_TF32:
    case DPAR_I32:
    case DPAR_U32: return 4;
    case DPAR_BF16:
    case DPAR_F16: return 2;
    case DPAR_F8:
    case DPAR_I8:
    case DPAR_U8: return 1;
    default: return 0;
    }
}

DPAR_API DPARI_COLD const char *dpar_type_name(int32_t type)
{
    switch (type) {
    case DPAR_TYPE_NONE: return "none";
    case DPAR_F64: return "f64";
    case DPAR_F32: return "f32";
    case DPAR_TF32: return "tf32";
    case DPAR_BF16: return "bf16";
    case DPAR_F8: return "f8";
    case DPAR_F4: return "f4";
    case DPAR_F16: return "f16";
    case DPAR_I8: return "i8";
    case DPAR_U8: return "u8";
    case DPAR_I32: return "i32";
    case DPAR_U32: return "u32";
    case DPAR_I64: return "i64";
    case DPAR_U64: return "u64";
    default: return "?";
    }
}

DPARI_API int32_t dpari_type_can_reduce(int32_t type)
{
    return dpar_type_bytes(type) > 0 && type != DPAR_TF32 && type != DPAR_F8;
}

DPAR_API const char *dpar_call_name(int32_t kind)
{
    static const char name[DPAR_CALL_COUNT][16] = {
        "none",   "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce",
        "gather", "scatter",    "send-recv",  "barrier",        "send",       "recv"};
    return kind >= 0 && kind < DPAR_CALL_COUNT ? name[kind] : "?";
}

/* ==== base/box.c ==== */

/* Counts the elements of boxes and transfers without overflow, and compares and intersects boxes.
 * Called by layouts, redistributions and halos. */

DPAR_API int64_t dpar_box_volume(const dpar_box *box)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < box->dims; d++) { /* checked first, because the other dims of an empty box may
                                         be large */
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

DPARI_INTERNAL int dpari_box_intersect(const dpar_box *a, const dpar_box *b, dpar_box *out)
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

DPARI_API int dpari_box_contains(const dpar_box *outer, const dpar_box *inner)
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

DPAR_API int64_t dpar_transfer_volume(const dpar_transfer *transfer)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < transfer->dims; d++) {
        if (!dpari_mul(n, transfer->extent[d], &n)) {
            return -1;
        }
    }
    return n;
}

/* ==== base/text.c ==== */

/* Formats text without the C library, for all functions that draw or report, and reads numbers.
 * Real numbers are converted exactly: a double is expanded to all of its decimal digits, in limbs
 * of nine digits, and then rounded, so that the same value gives the same text on every machine. */

#include <stdarg.h>

DPAR_API DPARI_COLD void dpar_text_init(dpar_text *text, char *buffer, size_t bytes)
{
    text->buffer = buffer;
    text->capacity = bytes;
    text->used = 0;
    text->line = 0;
    text->width = 0;
    if (bytes > 0) {
        buffer[0] = 0;
    }
}

DPARI_API DPARI_COLD void dpari_text_why(dpar_text *text, dpar_why *why)
{
    if (why != NULL) {
        dpar_text_init(text, why->text, sizeof why->text);
    } else {
        dpar_text_init(text, NULL, 0);
    }
}

DPARI_API DPARI_COLD void dpari_text_char(dpar_text *text, char c)
{
    if (text->used + 1 < text->capacity) {
        text->buffer[text->used] = c;
        text->buffer[text->used + 1] = 0;
    }
    text->used++;
    text->width += ((unsigned char)c & 0xC0u) != 0x80u; /* count UTF-8 starts only */
    if (c == '\n') {
        text->line = text->used;
        text->width = 0;
    }
}

DPARI_API DPARI_COLD void dpari_text_slice(dpar_text *text, const char *s, size_t n)
{
    size_t i;
    for (i = 0; i < n && s[i] != 0; i++) {
        dpari_text_char(text, s[i]);
    }
}

DPAR_API DPARI_COLD void dpar_text_put(dpar_text *text, const char *s)
{
    for (; *s != 0; s++) {
        dpari_text_char(text, *s);
    }
}

DPARI_API void dpari_text_int(dpar_text *text, int64_t v)
{
    uint64_t rest = v < 0 ? (uint64_t)0 - (uint64_t)v : (uint64_t)v;
    char digit[20];
    int n = 0;
    do {
        digit[n++] = (char)('0' + (int)(rest % 10));
        rest /= 10;
    } while (rest != 0);
    if (v < 0) {
        dpari_text_char(text, '-');
    }
    while (n > 0) {
        dpari_text_char(text, digit[--n]);
    }
}

/* A number >= 0 in limbs of nine decimal digits, most significant first, with `whole` of them
 * before the point: the sum of limb[i] * 10^(9 (whole - 1 - i)). If `whole` is negative, zeros
 * follow the point before the first limb; if it exceeds n, zeros follow the last limb.
 *
 * Multiplications and divisions by powers of two are exact, so that the same text is printed and
 * the same number read on every target. A double has at most 767 significant digits (86 limbs).
 * Digits of a longer input that do not fit only set `lost`, which decides how a tie is rounded. */
enum { DPARI_TEXT_LIMBS = 96, DPARI_TEXT_SHIFT = 29 }; /* limb x 2^29 plus a carry fits 64 bits */
typedef struct dpari_text_decimal {
    uint32_t limb[DPARI_TEXT_LIMBS];
    int32_t n, whole, lost;
} dpari_text_decimal;

static uint32_t dpari_text_ten(int32_t power)
{
    static const uint32_t ten[9] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
    return ten[power];
}

/* Returns p / 9 rounded down. The digit at 10^p is in limb whole - 1 - p / 9. */
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

/* Removes zero limbs at both ends. */
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

/* Multiplies d by 2^k, 0 <= k <= DPARI_TEXT_SHIFT. */
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

/* Divides d by 2^k, 0 <= k <= DPARI_TEXT_SHIFT. */
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

/* Computes all digits of v > 0. The mantissa is read as an integer of 64 bits, which no double
 * exceeds. */
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

/* Returns the digit at 10^p. */
static int32_t dpari_text_digit(const dpari_text_decimal *d, int32_t p)
{
    int32_t over = dpari_text_floor9(p), i = d->whole - 1 - over;
    return i < 0 || i >= d->n ? 0 : (int32_t)(d->limb[i] / dpari_text_ten(p - 9 * over) % 10);
}

/* Returns the power of ten of the first digit of d. d is greater than 0 and has no zero limbs at
 * its ends. */
static int32_t dpari_text_first(const dpari_text_decimal *d)
{
    int32_t p = 8;
    while (p > 0 && d->limb[0] < dpari_text_ten(p)) {
        p--;
    }
    return 9 * (d->whole - 1) + p;
}

/* Writes the digits at 10^high .. 10^low as characters, rounded half up. The caller chooses `high`
 * one above the first digit of d, so that a carry has a place. */
static void dpari_text_round(const dpari_text_decimal *d, int32_t high, int32_t low, char *digit)
{
    int32_t p, carry = dpari_text_digit(d, low - 1) >= 5;
    for (p = low; p <= high; p++) {
        carry += dpari_text_digit(d, p);
        digit[high - p] = (char)('0' + carry % 10);
        carry /= 10;
    }
}

/* Appends "nan", "inf" or "-inf" and returns 1 if v is one of these. */
static int dpari_text_special(dpar_text *text, double v)
{
    if (!(v <= 0.0 || v >= 0.0)) {
        dpar_text_put(text, "nan");
        return 1;
    }
    if (!dpari_finite(v)) {
        dpar_text_put(text, v < 0.0 ? "-inf" : "inf");
        return 1;
    }
    return 0;
}

DPARI_API DPARI_COLD void dpari_text_fixed(dpar_text *text, double v, int32_t decimals)
{
    dpari_text_decimal d;
    char digit[32]; /* 16 digits below 9e15, 9 decimals, and one for the carry */
    double size = v < 0.0 ? -v : v;
    int32_t high = 0, i, zero = 1;
    if (decimals < 0) {
        decimals = 0;
    } else if (decimals > 9) {
        decimals = 9;
    }
    if (size >= 9e15 || !(size >= 0.0)) {
        dpari_text_real(text, v, 6);
        return;
    }
    d.n = d.whole = d.lost = 0;
    if (size > 0.0) {
        dpari_text_expand(&d, size);
        high = dpari_text_first(&d);
        /* at most 16 digits before the point; with -ffast-math a NaN gets here and must fit too */
        high = high < 0 ? 1 : (int32_t)dpari_least(high, 15) + 1;
    }
    dpari_text_round(&d, high, -decimals, digit);
    for (i = 0; i <= high + decimals; i++) {
        zero = zero && digit[i] == '0';
    }
    if (v < 0.0 && !zero) {
        dpari_text_char(text, '-');
    }
    for (i = high > 0 && digit[0] == '0'; i <= high + decimals; i++) {
        if (i == high + 1) {
            dpari_text_char(text, '.');
        }
        dpari_text_char(text, digit[i]);
    }
}

/* Appends n digits with a point before digit `point`, and zeros where digits are missing. */
static void dpari_text_point(dpar_text *text, const char *digit, int32_t n, int32_t point)
{
    int32_t i;
    if (point <= 0) {
        dpar_text_put(text, "0.");
        for (i = point; i < 0; i++) {
            dpari_text_char(text, '0');
        }
        point = -1;
    }
    for (i = 0; i < n; i++) {
        if (i == point) {
            dpari_text_char(text, '.');
        }
        dpari_text_char(text, digit[i]);
    }
    for (; i < point; i++) {
        dpari_text_char(text, '0');
    }
}

DPARI_API DPARI_COLD void dpari_text_real(dpar_text *text, double v, int32_t digits)
{
    dpari_text_decimal d;
    char digit[20];
    int32_t n, from, first;
    if (digits < 1) {
        digits = 1;
    } else if (digits > 17) {
        digits = 17;
    }
    if (dpari_text_special(text, v)) {
        return;
    }
    if (v < 0.0) {
        dpari_text_char(text, '-');
        v = -v;
    }
    if (v <= 0.0) {
        dpari_text_char(text, '0');
        return;
    }
    dpari_text_expand(&d, v);
    first = dpari_text_first(&d);
    dpari_text_round(&d, first + 1, first - digits + 1, digit);
    from = digit[0] == '0';
    first += 1 - from; /* 1 if rounding added a digit, as from 9.99 to 10.0 */
    n = digits;
    while (n > 1 && digit[from + n - 1] == '0') { /* no trailing zeros */
        n--;
    }
    if (first >= -4 && first < digits) {
        dpari_text_point(text, digit + from, n, first + 1);
        return;
    }
    dpari_text_point(text, digit + from, n, 1);
    dpar_text_put(text, first < 0 ? "e-" : "e+");
    first = first < 0 ? -first : first;
    if (first < 10) {
        dpari_text_char(text, '0');
    }
    dpari_text_int(text, first);
}

DPARI_API DPARI_COLD void dpari_text_column(dpar_text *text, size_t column)
{
    while (text->width < column) {
        dpari_text_char(text, ' ');
    }
}

/* Appends `cell`, of `used` characters, after blanks that fill it up to `width` characters. */
static void dpari_text_right(dpar_text *text, const char *cell, size_t used, size_t width)
{
    for (; width > used; width--) {
        dpari_text_char(text, ' ');
    }
    dpar_text_put(text, cell);
}

/* Appends the format up to its end or to the next real number, and returns that position. Real
 * numbers are handled by another function, so that texts without them need less stack. */
static DPARI_COLD const char *dpari_text_until_real(dpar_text *text, const char *form,
                                                    va_list *list)
{
    for (; *form != 0; form++) {
        const char *at = form;
        char cell[32];
        size_t width = 0;
        dpar_text c;
        if (*form != '%') {
            dpari_text_char(text, *form);
            continue;
        }
        for (form++; *form >= '0' && *form <= '9'; form++) {
            width = 10 * width + (size_t)(*form - '0');
        }
        if (*form == '.' && form[1] == '*') {
            const int32_t length = va_arg(*list, int32_t);
            dpari_text_slice(text, va_arg(*list, const char *), (size_t)length);
            form += 2;
            continue;
        }
        if (*form == '.') {
            return at;
        }
        dpar_text_init(&c, cell, sizeof cell);
        if (*form == 's') {
            dpar_text_put(width > 0 ? &c : text, va_arg(*list, const char *));
        } else if (*form == '%') {
            dpari_text_char(text, '%');
        } else {
            const int64_t v = *form == 'l' ? va_arg(*list, int64_t) : va_arg(*list, int32_t);
            form += *form == 'l';
            dpari_text_int(&c, v);
        }
        dpari_text_right(text, cell, c.used, width);
    }
    return form;
}

DPARI_API DPARI_COLD DPARI_NO_REALS void dpari_text_say(dpar_text *text, const char *form, ...)
{
    va_list list;
    va_start(list, form);
    (void)dpari_text_until_real(text, form, &list);
    va_end(list);
}

/* Messages have their own loop, without widths, because it needs less stack than the one for
 * drawings, and every check on a small target may write a message. */
DPARI_API DPARI_COLD dpar_status dpari_say_list(dpar_status status, dpar_why *why, const char *form,
                                                va_list *list)
{
    dpar_text t;
    if (why == NULL) {
        return status;
    }
    dpar_text_init(&t, why->text, sizeof why->text);
    for (; *form != 0; form++) {
        if (*form != '%') {
            dpari_text_char(&t, *form);
            continue;
        }
        form++;
        if (*form == 'd') {
            dpari_text_int(&t, va_arg(*list, int32_t));
        } else if (*form == 'l') { /* %ld */
            dpari_text_int(&t, va_arg(*list, int64_t));
            form++;
        } else if (*form == 's') {
            const char *word = va_arg(*list, const char *);
            dpar_text_put(&t, word != NULL ? word : "(none)");
        } else if (*form == '.') { /* %.*s */
            const size_t length = (size_t)va_arg(*list, int32_t);
            dpari_text_slice(&t, va_arg(*list, const char *), length);
            form += 2;
        } else {
            dpari_text_char(&t, *form); /* %% */
        }
    }
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_repeat(dpar_status status, dpar_why *why, const char *text)
{
    if (why != NULL && why->text != text) {
        dpari_copy_text(why->text, sizeof why->text, text, sizeof why->text);
    }
    return status;
}

/* The names are in parentheses because macros have the same names. */
DPARI_API DPARI_COLD DPARI_NO_REALS dpar_status(dpari_say)(dpar_status status, dpar_why *why,
                                                           const char *form, ...)
{
    va_list list;
    va_start(list, form);
    status = dpari_say_list(status, why, form, &list);
    va_end(list);
    return status;
}

DPARI_API DPARI_COLD DPARI_NO_REALS dpar_status(dpari_wrong)(dpar_why *why, const char *form, ...)
{
    dpar_status status;
    va_list list;
    va_start(list, form);
    status = dpari_say_list(DPAR_E_ARG, why, form, &list);
    va_end(list);
    return status;
}

DPARI_API DPARI_COLD void dpari_text_print_list(dpar_text *text, const char *form, va_list *list)
{
    while (*(form = dpari_text_until_real(text, form, list)) != 0) {
        /* form points to %, which a width, a point and a digit follow */
        char cell[32];
        size_t width = 0;
        int32_t digits;
        double v = va_arg(*list, double);
        dpar_text c;
        for (form++; *form != '.'; form++) {
            width = 10 * width + (size_t)(*form - '0');
        }
        digits = form[1] - '0';
        form += 2;
        dpar_text_init(&c, cell, sizeof cell);
        if (*form == 'f') {
            dpari_text_fixed(width > 0 ? &c : text, v, digits);
        } else {
            v = *form == 'g' || dpari_finite(v) ? v : 0.0;
            dpari_text_real(width > 0 ? &c : text, v, digits);
        }
        form++;
        dpari_text_right(text, cell, c.used, width);
    }
}

DPARI_API DPARI_COLD void dpari_text_print(dpar_text *text, const char *form, ...)
{
    va_list list;
    va_start(list, form);
    dpari_text_print_list(text, form, &list);
    va_end(list);
}

/* Returns m * 2^e. Each step is exact unless the result is out of the range of a double. */
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

/* Returns the whole part of d, which must be below 10^18. */
static uint64_t dpari_text_whole(const dpari_text_decimal *d)
{
    uint64_t u = 0;
    int32_t i;
    for (i = 0; i < d->whole; i++) {
        u = u * 1000000000u + (i < d->n ? d->limb[i] : 0);
    }
    return u;
}

/* Returns the double nearest to d, with ties to even. It scales d to an integer u of more than 53
 * bits with a binary exponent e, and then drops bits so that 53 are left, or fewer below 2^-1022.
 */
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
    drop = 1;
    while (u >> drop >> 53 != 0) {
        drop++;
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

/* Returns the value of n characters, digits and at most one point. The first digit is at 10^power.
 */
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
    p = power > 400 ? 400 : (int32_t)power; /* 10^400 is infinite as a double */
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
        p -= over >= d.whole - d.n; /* after the last limb p does not change any more */
    }
    dpari_text_trim(&d);
    return dpari_text_nearest(&d);
}

/* Returns the number of consecutive digits from `at` on. */
static size_t dpari_text_run(const char *s, size_t at, size_t n)
{
    size_t from = at;
    while (at < n && s[at] >= '0' && s[at] <= '9') {
        at++;
    }
    return at - from;
}

/* Reads an exponent at s. Returns its number of characters, or 0 if there is none. */
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

DPARI_API DPARI_COLD size_t dpari_text_number(const char *s, size_t n, double *value)
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

/* ==== index/mesh.c ==== */

/* Meshes. A rank is first_rank + the sum of coordinate x stride, so coordinates are the digits of a
 * number. For strides that nest, division gives the digits. For other strides, which a caller may
 * set, a depth-first search bounds each digit by the sum that the smaller strides can still reach.
 * Groups are the same sums over some of the axes. */

static void dpari_mesh_strides(dpar_mesh *mesh, int32_t order)
{
    int32_t i, stride = 1;
    for (i = 0; i < mesh->axes; i++) {
        dpar_mesh_axis *a = &mesh->axis[order == DPAR_ORDER_FIRST_FASTEST ? i : mesh->axes - 1 - i];
        a->stride = stride;
        stride *= a->size;
    }
}

static dpar_status dpari_mesh_full(dpar_why *why)
{
    return dpari_wrong(why, "a mesh has at most %d axes", (int32_t)DPAR_MAX_AXES);
}

static int dpari_mesh_between(char c)
{
    return c == ' ' || (c | 1) == '-'; /* a comma or a dash */
}

/* Moves *at to the next word of a list of names. Returns its length, or 0 if there is none. */
static size_t dpari_mesh_word(const char **at)
{
    size_t n = 0;
    while (dpari_mesh_between(**at)) {
        ++*at;
    }
    while ((*at)[n] != 0 && !dpari_mesh_between((*at)[n]) && n < 32) {
        n++;
    }
    return n;
}

/* Checks that a name has 1 to 15 characters and that no other axis has it. An axis whose name is
 * cut or repeated could not be found. */
static dpar_status dpari_mesh_name(dpar_mesh *mesh, int32_t i, const char *name, size_t n,
                                   dpar_why *why)
{
    int32_t k;
    if (n == 0 || n >= sizeof(mesh->axis[i].name)) {
        return dpari_wrong(why, "axis name '%.*s' has %ld characters: 1 to 15 are allowed",
                           (int32_t)n, name, (int64_t)n);
    }
    for (k = 0; k < i; k++) {
        if (dpari_spells(name, n, mesh->axis[k].name)) {
            return dpari_wrong(why, "axes %d and %d are both called '%.*s'", k, i, (int32_t)n,
                               name);
        }
    }
    dpari_copy_text(mesh->axis[i].name, sizeof(mesh->axis[i].name), name, n);
    return DPAR_OK;
}

/* A mesh while its axes are listed: its size is the product of the sizes that are known. */
typedef struct dpari_mesh_list {
    dpar_mesh mesh;
    int32_t ranks, unknown; /* the axis whose size is -1, or -1 */
} dpari_mesh_list;

static void dpari_mesh_start(dpari_mesh_list *l, int32_t ranks)
{
    dpari_zero(l, sizeof(*l));
    l->mesh.size = 1;
    l->ranks = ranks;
    l->unknown = -1;
}

static dpar_status dpari_mesh_append(dpari_mesh_list *l, const char *name, size_t n, int32_t size,
                                     dpar_why *why)
{
    dpar_mesh *mesh = &l->mesh;
    int64_t product = mesh->size;
    if (mesh->axes == DPAR_MAX_AXES) {
        return dpari_mesh_full(why);
    }
    if (size == -1 && l->unknown < 0 && l->ranks != 0) {
        l->unknown = mesh->axes;
    } else if (size < 1) {
        return dpari_wrong(
            why, "axis '%.*s' has size %d: must be at least 1; one may be -1 if ranks is given",
            (int32_t)n, name, size);
    } else {
        product *= size;
    }
    if (product > INT32_MAX) {
        return dpari_say(DPAR_E_RANGE, why, "the mesh has more than 2^31 - 1 ranks");
    }
    mesh->size = (int32_t)product;
    mesh->axis[mesh->axes].size = size;
    return dpari_mesh_name(mesh, mesh->axes++, name, n, why);
}

static dpar_status dpari_mesh_finish(dpari_mesh_list *l, int32_t order, dpar_mesh *mesh,
                                     dpar_why *why)
{
    dpar_mesh *m = &l->mesh;
    const int32_t ranks = l->ranks;
    if (ranks < 0) {
        return dpari_wrong(why, "ranks is %d: must be at least 0", ranks);
    }
    if (l->unknown >= 0) {
        if (ranks % m->size != 0) {
            return dpari_say(DPAR_E_DIVIDE, why,
                             "the other axes make %d ranks, which do not divide %d", m->size,
                             ranks);
        }
        m->axis[l->unknown].size = ranks / m->size;
        m->size = ranks;
    }
    if (ranks > 0 && m->size != ranks) {
        return dpari_say(DPAR_E_DIVIDE, why, "the axes make %d ranks, but there are %d", m->size,
                         ranks);
    }
    dpari_mesh_strides(m, order);
    *mesh = *m;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_mesh_init(dpar_mesh *mesh, const char *names,
                                               const int32_t *sizes, int32_t order, int32_t ranks,
                                               dpar_why *why)
{
    dpari_mesh_list l;
    dpar_status st = DPAR_OK;
    size_t n;
    dpari_mesh_start(&l, ranks);
    for (; st == DPAR_OK && (n = dpari_mesh_word(&names)) > 0; names += n) {
        st = dpari_mesh_append(&l, names, n, *sizes++, why);
    }
    return st == DPAR_OK ? dpari_mesh_finish(&l, order, mesh, why) : st;
}

DPARI_API int dpari_mesh_same(const dpar_mesh *a, const dpar_mesh *b)
{
    int32_t i;
    if (a->axes != b->axes || a->first_rank != b->first_rank) {
        return 0;
    }
    for (i = 0; i < a->axes; i++) {
        const dpar_mesh_axis *x = &a->axis[i], *y = &b->axis[i];
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

/* ---- coordinates ----------------------------------------------------------------------------- */

/* Lists the axes in `which` that have more than one rank, the largest stride first. Returns their
 * number. */
static int32_t dpari_mesh_sorted(const dpar_mesh *mesh, uint32_t which, int32_t *axis)
{
    int32_t i, k, n = 0;
    for (i = 0; i < mesh->axes; i++) {
        if ((which >> i & 1u) == 0 || mesh->axis[i].size < 2) {
            continue;
        }
        for (k = n++; k > 0 && mesh->axis[axis[k - 1]].stride < mesh->axis[i].stride; k--) {
            axis[k] = axis[k - 1];
        }
        axis[k] = i;
    }
    return n;
}

/* A search for digits: sum = digit[0] stride[0] + digit[1] stride[1] + ..., strides descending. */
typedef struct dpari_digits {
    const dpar_mesh *mesh;
    int32_t axis[DPAR_MAX_AXES], count;
    int32_t signs; /* 1 to allow digits from -(size - 1) on, and to require that they are not all
                      0 */
    int32_t digit[DPAR_MAX_AXES], low[DPAR_MAX_AXES];
    int64_t rest[DPAR_MAX_AXES + 1];
} dpari_digits;

/* Computes the range of digit k from the sum that the smaller strides can still reach, and starts
 * with the largest digit. If strides are nested, the range has one value, otherwise a few. */
static void dpari_digits_bound(dpari_digits *s, int32_t k)
{
    const dpar_mesh_axis *a = &s->mesh->axis[s->axis[k]];
    int64_t most = a->size - 1, reach = 0, rest = s->rest[k], low, high;
    int32_t i;
    for (i = k + 1; i < s->count; i++) {
        const dpar_mesh_axis *b = &s->mesh->axis[s->axis[i]];
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
    for (i = 0; s->signs && i < s->count; i++) {
        if (s->digit[i] != 0) {
            return 1;
        }
    }
    return !s->signs;
}

/* Searches depth-first. The bounds ensure that every leaf reaches the sum exactly. */
static int dpari_digits_find(dpari_digits *s, const dpar_mesh *mesh, int64_t sum, int signs)
{
    int32_t k = 0;
    s->mesh = mesh;
    s->count = dpari_mesh_sorted(mesh, UINT32_MAX, s->axis);
    s->signs = signs;
    s->rest[0] = sum;
    if (s->count == 0) {
        return sum == 0 && !signs;
    }
    dpari_digits_bound(s, 0);
    while (k >= 0) {
        if (s->digit[k] < s->low[k]) { /* no digit is left here, so lower the previous one */
            k--;
            if (k >= 0) {
                s->digit[k]--;
            }
            continue;
        }
        s->rest[k + 1] = s->rest[k] - (int64_t)s->digit[k] * mesh->axis[s->axis[k]].stride;
        if (k + 1 < s->count) {
            dpari_digits_bound(s, ++k);
        } else if (dpari_digits_done(s)) {
            return 1;
        } else {
            s->digit[k]--;
        }
    }
    return 0;
}

DPARI_API DPARI_COLD int dpari_mesh_injective(const dpar_mesh *mesh)
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
    if (rank < mesh->first_rank ||
        !dpari_digits_find(&s, mesh, (int64_t)rank - mesh->first_rank, 0)) {
        return 0;
    }
    for (i = 0; i < mesh->axes; i++) {
        coord[i] = 0;
    }
    for (i = 0; i < s.count; i++) {
        coord[s.axis[i]] = s.digit[i];
    }
    return 1;
}

DPAR_API int32_t dpar_mesh_rank(const dpar_mesh *mesh, const int32_t *coord)
{
    int32_t i, rank = mesh->first_rank;
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
    int32_t coord[DPAR_MAX_AXES], at, size;
    int64_t to;
    if (axis < 0 || axis >= mesh->axes || !dpar_mesh_coords(mesh, rank, coord)) {
        return -1;
    }
    at = coord[axis];
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

/* ---- groups ---------------------------------------------------------------------------------- */

DPAR_API int32_t dpar_mesh_group_size(const dpar_mesh *mesh, uint32_t which)
{
    int32_t i, n = 1;
    for (i = 0; i < mesh->axes; i++) {
        n *= which >> i & 1u ? mesh->axis[i].size : 1;
    }
    return n;
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
        const dpar_mesh_axis *a = &mesh->axis[axis[n]];
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

/* ---- algebra --------------------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_mesh_slice(dpar_mesh *out, const dpar_mesh *mesh,
                                                uint32_t which, int32_t rank, dpar_why *why)
{
    int32_t coord[DPAR_MAX_AXES], i;
    dpar_mesh m;
    if (!dpar_mesh_coords(mesh, rank, coord)) {
        return dpari_wrong(why, "rank %d is not in the mesh of %d ranks from %d on", rank,
                           mesh->size, mesh->first_rank);
    }
    dpari_zero(&m, sizeof(m));
    m.size = 1;
    m.first_rank = rank;
    for (i = 0; i < mesh->axes; i++) {
        const dpar_mesh_axis *a = &mesh->axis[i];
        if (which >> i & 1u) {
            m.axis[m.axes++] = *a;
            m.size *= a->size;
            m.first_rank -= coord[i] * a->stride;
        }
    }
    *out = m;
    return DPAR_OK;
}

/* Merges the axes from the first to the last one into a single axis. */
static dpar_status dpari_mesh_chain(const dpar_mesh *mesh, dpar_mesh_axis *one, dpar_why *why)
{
    int32_t axis[DPAR_MAX_AXES], n = dpari_mesh_sorted(mesh, UINT32_MAX, axis), i;
    one->size = 1;
    one->stride = n > 0 ? mesh->axis[axis[n - 1]].stride : 1;
    for (i = n - 1; i >= 0; i--) {
        const dpar_mesh_axis *a = &mesh->axis[axis[i]];
        if (a->stride != one->stride * one->size) {
            return dpari_say(
                DPAR_E_DIVIDE, why,
                "axis '%s' has stride %d, must be %d: a view needs a mesh without gaps", a->name,
                a->stride, one->stride * one->size);
        }
        one->size *= a->size;
    }
    return DPAR_OK;
}

/* ---- other functions that make a mesh -------------------------------------------------------- */

/* Returns the position of a word in a list of names, or -1. */
static int32_t dpari_mesh_named(const char *names, const char *word, size_t length)
{
    int32_t i;
    size_t n, k;
    for (i = 0; (n = dpari_mesh_word(&names)) > 0; i++, names += n) {
        for (k = 0; n == length && k < n && names[k] == word[k]; k++) {
        }
        if (n == length && k == n) {
            return i;
        }
    }
    return -1;
}

DPAR_API DPARI_COLD dpar_status dpar_mesh_init_from_order(dpar_mesh *mesh, const char *order,
                                                          const char *names, const int32_t *sizes,
                                                          int32_t ranks, dpar_why *why)
{
    const char *word;
    uint32_t used = 0;
    int32_t i;
    size_t n;
    dpari_mesh_list l;
    dpar_status st = DPAR_OK;
    dpari_mesh_start(&l, ranks);
    for (; st == DPAR_OK && (n = dpari_mesh_word(&order)) > 0; order += n) {
        i = dpari_mesh_named(names, order, n);
        if (i < 0) {
            return dpari_say(DPAR_E_UNKNOWN, why, "'%.*s' is in the order, but has no size",
                             (int32_t)n, order);
        }
        if (i >= DPAR_MAX_AXES) {
            return dpari_mesh_full(why);
        }
        if (used >> i & 1u) {
            return dpari_wrong(why, "'%.*s' is in the order twice", (int32_t)n, order);
        }
        used |= (uint32_t)1 << i;
        st = dpari_mesh_append(&l, order, n, sizes[i], why);
    }
    for (i = 0, word = names; st == DPAR_OK && (n = dpari_mesh_word(&word)) > 0; i++, word += n) {
        if (i < DPAR_MAX_AXES && (used >> i & 1u)) {
            continue;
        }
        if (sizes[i] != 1) {
            return dpari_wrong(why, "'%.*s' has size %d, but is not in the order", (int32_t)n, word,
                               sizes[i]);
        }
        st = dpari_mesh_append(&l, word, n, 1, why);
    }
    return st == DPAR_OK ? dpari_mesh_finish(&l, DPAR_ORDER_FIRST_FASTEST, mesh, why) : st;
}

/* Checks that axes with the same name in two meshes have the same groups of ranks (size, stride,
 * first rank). */
static dpar_status dpari_mesh_agree(const dpar_mesh *a, const dpar_mesh *b, dpar_why *why)
{
    int32_t i, k;
    for (i = 0; i < a->axes; i++) {
        const dpar_mesh_axis *x = &a->axis[i], *y;
        k = dpar_mesh_find(b, x->name);
        if (k < 0) {
            continue;
        }
        y = &b->axis[k];
        if (x->size != y->size || (x->size > 1 && x->stride != y->stride) ||
            a->first_rank != b->first_rank) {
            return dpari_say(DPAR_E_DIVIDE, why,
                             "axis '%s' has size %d, stride %d in the mesh, but %d, %d in the "
                             "view: their groups differ",
                             x->name, x->size, x->stride, y->size, y->stride);
        }
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_mesh_view(dpar_mesh *view, const dpar_mesh *mesh,
                                               const char *names, const int32_t *sizes,
                                               int32_t order, dpar_why *why)
{
    dpar_mesh m;
    dpar_mesh_axis one;
    int32_t i;
    dpar_status st = dpari_mesh_chain(mesh, &one, why);
    if (st == DPAR_OK) {
        st = dpar_mesh_init(&m, names, sizes, order, mesh->size, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    m.first_rank = mesh->first_rank;
    for (i = 0; i < m.axes; i++) {
        m.axis[i].stride *= one.stride;
    }
    st = dpari_mesh_agree(mesh, &m, why);
    if (st == DPAR_OK) {
        *view = m;
    }
    return st;
}

/* ==== index/cart.c ==== */

/* Process grids. Every function here works on ordered factorisations of a number of ranks, which it
 * enumerates from the prime factors. dpar_cart_dims takes the most balanced factorisation;
 * dpar_cart_choose_parts finds the one with the least cut by branch and bound; mappings to nodes
 * use the same search for bricks. Space-filling curves walk down a cube of side 2^k and skip whole
 * subcubes outside the grid, so that no table of ranks is needed. */

/* ---- prime factors and divisors ---- */

enum { DPARI_CART_PRIMES = 9 }; /* 2 * 3 * 5 * .. * 23 < 2^31 < 2 * 3 * .. * 29 */

typedef struct dpari_cart_primes {
    int32_t count;
    int32_t prime[DPARI_CART_PRIMES];
} dpari_cart_primes;

/* Lists the distinct primes of n, in ascending order. */
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

/* Returns the smallest divisor of n that is at least `least`, or 0. f has the primes of a multiple
 * of n. The exponents of the primes count like an odometer: wheel i is the power of prime i, which
 * is at most full[i]. */
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

/* Returns the largest divisor of n that is at most `most` >= 1. */
static int32_t dpari_cart_divisor_upto(const dpari_cart_primes *f, int32_t n, int32_t most)
{
    return n / dpari_cart_divisor_from(f, n, (int32_t)dpari_ceil_div(n, most));
}

/* Returns base^exponent, or any number above `limit` if it exceeds that; base, limit < 2^31. */
static int64_t dpari_cart_power(int32_t base, int32_t exponent, int32_t limit)
{
    int64_t v = 1;
    int32_t i;
    for (i = 0; i < exponent && v <= limit; i++) {
        v *= base;
    }
    return v;
}

/* Returns the smallest r with r^k >= n, for k >= 1 and n >= 1. */
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

/* Appends the sizes of a grid, as in "64 x 64 x 8". */
static DPARI_COLD void dpari_cart_put(dpar_text *text, int32_t dims, const int64_t *n)
{
    int32_t d;
    for (d = 0; d < dims; d++) {
        dpar_text_put(text, d > 0 ? " x " : "");
        dpari_text_int(text, n[d]);
    }
}

/* Appends the parts that the caller fixed, as in ", where parts[0] is 1". */
static DPARI_COLD void dpari_cart_put_fixed(dpar_text *text, int32_t dims, const int32_t *parts)
{
    const char *before = ", where ";
    int32_t d;
    for (d = 0; d < dims; d++) {
        if (parts[d] > 0) {
            dpari_text_say(text, "%sparts[%d] is %d", before, d, parts[d]);
            before = " and ";
        }
    }
}

/* Sets *open to the number of parts that are 0 (free), and *rest to ranks / product of the other
 * parts. */
static dpar_status dpari_cart_rest(int32_t ranks, int32_t dims, const int32_t *parts, int32_t *open,
                                   int32_t *rest, dpar_why *why)
{
    int64_t fixed = 1;
    int32_t d, zeros = 0;
    for (d = 0; d < dims; d++) {
        if (parts[d] < 0) {
            return dpari_wrong(why, "parts[%d] is %d: give 0 to have it chosen, or at least 1", d,
                               parts[d]);
        }
        zeros += parts[d] == 0;
        if (!dpari_mul(fixed, parts[d] > 0 ? parts[d] : 1, &fixed)) {
            fixed = INT64_MAX;
        }
    }
    if (ranks % fixed != 0) {
        return dpari_say(DPAR_E_DIVIDE, why,
                         "the fixed parts multiply to %ld, which does not divide %d ranks", fixed,
                         ranks);
    }
    if (zeros == 0 && fixed != ranks) {
        return dpari_say(DPAR_E_DIVIDE, why, "the parts multiply to %ld, but there are %d ranks",
                         fixed, ranks);
    }
    *open = zeros;
    *rest = (int32_t)(ranks / fixed);
    return DPAR_OK;
}

/* ---- MPI_Dims_create ---- */

typedef struct dpari_dims {
    dpari_cart_primes primes;
    int32_t count; /* number of parts to choose */
    int32_t gap;   /* largest - smallest part of the best solution so far */
    int32_t part[DPAR_MAX_AXES], best[DPAR_MAX_AXES], rest[DPAR_MAX_AXES];
} dpari_dims;

/* Finds the lexicographically smallest x[0] >= x[1] >= .. >= x[k - 2] >= least with product n and
 * x[0] - least < gap. The search is depth-first in ascending order, so that the first solution is
 * the smallest one. */
static int dpari_dims_above(dpari_dims *s, int32_t n, int32_t least)
{
    const int32_t last = s->count - 2;
    int32_t j = 0;
    s->rest[0] = n;
    s->part[0] = 0;
    while (j >= 0) {
        int64_t most = j > 0 ? s->part[j - 1] : (int64_t)least + s->gap - 1;
        int32_t next;
        if (j == last) {
            next = s->part[j] == 0 ? s->rest[j] : 0;
        } else {
            int32_t from = s->part[j] + 1;
            if (s->part[j] == 0) {
                from = dpari_cart_root(s->rest[j], last - j + 1);
            }
            next = dpari_cart_divisor_from(&s->primes, s->rest[j], from);
        }
        if (next == 0 || next > most ||
            dpari_cart_power(least, last - j, s->rest[j] / next) > s->rest[j] / next) {
            j--; /* larger parts leave even less to the other axes */
            continue;
        }
        s->part[j] = next;
        if (j == last) {
            return 1;
        }
        s->rest[j + 1] = s->rest[j] / next;
        s->part[++j] = 0;
    }
    return 0;
}

/* Tries the smallest part m, from the k-th root of n downwards. The largest part is at least the
 * (k-1)-th root of n / m, which grows as m falls, so that the search ends once their difference is
 * too large. */
static void dpari_dims_search(dpari_dims *s, int32_t n)
{
    int32_t i, m = dpari_cart_root(n, s->count);
    m = dpari_cart_divisor_upto(&s->primes, n, dpari_cart_power(m, s->count, n) > n ? m - 1 : m);
    while (m > 0 && dpari_cart_root(n / m, s->count - 1) - m < s->gap) {
        if (dpari_dims_above(s, n / m, m)) {
            for (i = 0; i < s->count - 1; i++) {
                s->best[i] = s->part[i];
            }
            s->best[s->count - 1] = m;
            s->gap = s->part[0] - m;
        }
        m = m > 1 ? dpari_cart_divisor_upto(&s->primes, n, m - 1) : 0;
    }
}

DPAR_API DPARI_COLD dpar_status dpar_cart_dims(int32_t ranks, int32_t dims, int32_t *parts,
                                               dpar_why *why)
{
    dpari_dims s;
    dpar_status st;
    int32_t rest, d, next = 0;
    if (ranks < 1 || dims < 0 || dims > DPAR_MAX_AXES) {
        return dpari_wrong(why, "ranks=%d must be at least 1, dims=%d must be 0 to %d", ranks, dims,
                           (int32_t)DPAR_MAX_AXES);
    }
    dpari_zero(&s, sizeof(s));
    st = dpari_cart_rest(ranks, dims, parts, &s.count, &rest, why);
    if (st != DPAR_OK) {
        return st;
    }
    s.gap = INT32_MAX;
    s.best[0] = rest;
    if (s.count > 1) {
        s.primes = dpari_cart_factor(rest);
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

DPARI_API DPARI_COLD dpar_status dpari_cart_next_parts(int32_t ranks, int32_t dims, int32_t *parts)
{
    dpari_cart_primes f;
    int32_t x[DPAR_MAX_DIMS], rest[DPAR_MAX_DIMS], j, d;
    if (ranks < 1 || dims < 1 || dims > DPAR_MAX_DIMS) {
        return DPAR_E_ARG;
    }
    f = dpari_cart_factor(ranks);
    rest[0] = ranks;
    j = parts[0] == 0 ? 0 : dims - 1; /* the last axis has only one choice, so it steps back */
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
            continue;
        }
        if (j == dims - 1) {
            break;
        }
        rest[j + 1] = rest[j] / x[j];
        x[++j] = 0;
    }
    for (d = 0; d < dims && j >= 0; d++) {
        parts[d] = x[d];
    }
    return j >= 0 ? DPAR_OK : DPAR_DONE;
}

/* ---- the least cut ---- */

typedef struct dpari_cart_grid {
    dpari_cart_primes primes;
    int32_t axes;                 /* number of free axes, which j counts */
    int32_t divides;              /* 1 if parts must divide cells */
    int32_t found;                /* 1 once best[] is set; its cost is `limit` */
    uint32_t wraps;               /* bit j: axis j is periodic */
    int32_t cells[DPAR_MAX_DIMS]; /* maximum number of parts, limited to 2^31 - 1 */
    int64_t face[DPAR_MAX_DIMS];  /* cost of one plane of the cut */
    int32_t log[DPAR_MAX_DIMS];   /* dpari_cart_log2 of face, where that is not 0 */
    int32_t part[DPAR_MAX_DIMS], best[DPAR_MAX_DIMS];
    int32_t rest[DPAR_MAX_DIMS + 1]; /* ranks that axes j, j + 1, ... must make */
    int64_t cost[DPAR_MAX_DIMS + 1]; /* cost of axes 0..j-1 and of the fixed ones */
    int64_t limit;                   /* the search looks for costs below this */
} dpari_cart_grid;

/* Returns how many planes cut an axis. The ends of a periodic axis are one more cut. */
static int64_t dpari_cart_planes(int32_t parts, uint32_t wraps)
{
    return wraps != 0 && parts > 1 ? parts : parts - 1;
}

/* Returns a * b, or INT64_MAX if it is larger. */
static int64_t dpari_cart_times(int64_t a, int64_t b)
{
    int64_t p;
    return dpari_mul(a, b, &p) ? p : INT64_MAX;
}

/* Returns log2(v) * 2^16 rounded down, at most 2 too small, for v >= 1. Each squaring gives one bit
 * of the logarithm. */
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

/* True if a choice for the axes from j on may still cost less than the limit. For z axes with faces
 * a_d > 0 that must make r ranks, sum a_d (p_d - 1) >= z (r product a_d)^(1/z) - sum a_d
 * (arithmetic and geometric mean). The two sides are compared as logarithms, rounded so that 0 is
 * always right. Axes that cost nothing get as many ranks as they have cells. */
static int dpari_grid_hopes(const dpari_cart_grid *grid, int32_t j)
{
    const int64_t slack = grid->limit - grid->cost[j]; /* above 0, because the search skips costs
                                                          from the limit on */
    int64_t room = 1, idle = 1, faces = 0;
    int32_t z = 0, logs = 0, i;
    for (i = j; i < grid->axes; i++) {
        room = dpari_cart_times(room, grid->cells[i]);
        if (grid->face[i] > 0) {
            faces += grid->face[i];
            logs += grid->log[i];
            z++;
        } else {
            idle = dpari_cart_times(idle, grid->cells[i]);
        }
    }
    if (grid->rest[j] > room) {
        return 0;
    }
    if (z == 0 || faces > INT64_MAX - slack) {
        return 1;
    }
    return dpari_cart_log2(dpari_ceil_div(grid->rest[j], idle)) + logs + z * dpari_cart_log2(z) <
           z * (dpari_cart_log2(faces + slack) + 2);
}

static int dpari_grid_fits(const dpari_cart_grid *grid, int32_t j, int32_t parts)
{
    return parts <= grid->cells[j] && (!grid->divides || grid->cells[j] % parts == 0);
}

/* Sets the next larger choice for axis j, or returns 0 if there is none. The last axis takes all
 * remaining ranks. */
static int32_t dpari_grid_advance(const dpari_cart_grid *grid, int32_t j)
{
    int32_t x = grid->part[j];
    if (j == grid->axes - 1) {
        return x == 0 && dpari_grid_fits(grid, j, grid->rest[j]) ? grid->rest[j] : 0;
    }
    do {
        x = x < grid->rest[j] ? dpari_cart_divisor_from(&grid->primes, grid->rest[j], x + 1) : 0;
    } while (x > 0 && x <= grid->cells[j] && !dpari_grid_fits(grid, j, x));
    return x <= grid->cells[j] ? x : 0;
}

/* Searches depth-first for the choice of least cost, and keeps the first one of equal cost. */
static void dpari_grid_search(dpari_cart_grid *grid)
{
    int32_t j = 0, d;
    grid->part[0] = 0;
    while (j >= 0) {
        int32_t x = dpari_grid_advance(grid, j);
        int64_t cost = grid->cost[j] +
                       grid->face[j] * (x > 0 ? dpari_cart_planes(x, grid->wraps >> j & 1u) : 0);
        if (x == 0 || cost >= grid->limit) {
            j--; /* parts ascend, so later choices cost more */
            continue;
        }
        grid->part[j] = x;
        grid->cost[j + 1] = cost;
        grid->rest[j + 1] = grid->rest[j] / x;
        if (j + 1 == grid->axes) {
            for (d = 0; d < grid->axes; d++) {
                grid->best[d] = grid->part[d];
            }
            grid->limit = cost;
            grid->found = 1;
        } else if (dpari_grid_hopes(grid, j + 1)) {
            grid->part[++j] = 0;
        }
    }
}

/* Finds a first solution, whose cost is the first limit: it gives each prime, largest first, to the
 * axis where it costs least. */
static void dpari_grid_guess(dpari_cart_grid *grid)
{
    int32_t i, j, to, n = grid->rest[0];
    int64_t cost = grid->cost[0];
    for (j = 0; j < grid->axes; j++) {
        grid->part[j] = 1;
    }
    for (i = grid->primes.count - 1; i >= 0; i--) {
        const int32_t p = grid->primes.prime[i];
        for (; n % p == 0; n /= p) {
            for (j = 0, to = -1; j < grid->axes; j++) {
                if (dpari_grid_fits(grid, j, grid->part[j] * p) &&
                    (to < 0 || grid->face[j] * grid->part[j] < grid->face[to] * grid->part[to])) {
                    to = j;
                }
            }
            if (to < 0) {
                return;
            }
            grid->part[to] *= p;
        }
    }
    for (j = 0; j < grid->axes; j++) {
        cost += grid->face[j] * dpari_cart_planes(grid->part[j], grid->wraps >> j & 1u);
    }
    grid->limit = cost + 1;
}

/* Computes the cost of one plane of the cut across an axis: its weight times the cells of the other
 * axes. */
static dpar_status dpari_grid_face(int32_t dims, const int64_t *cells, const int64_t *weight,
                                   int32_t axis, int64_t *face, dpar_why *why)
{
    dpar_text t;
    int64_t f = weight != NULL ? weight[axis] : 1;
    int32_t d;
    for (d = 0; d < dims; d++) {
        if (d != axis && !dpari_mul(f, cells[d], &f)) {
            dpari_text_why(&t, why);
            dpar_text_put(&t, "the faces of ");
            dpari_cart_put(&t, dims, cells);
            dpari_text_say(&t, " cells across dim %d exceed 2^63 - 1", axis);
            return DPAR_E_RANGE;
        }
    }
    *face = f;
    return DPAR_OK;
}

static dpar_status dpari_grid_check_dims(int32_t dims, const int64_t *cells, const int64_t *weight,
                                         const int32_t *parts, dpar_why *why)
{
    int32_t d;
    if (dims < 0 || dims > DPAR_MAX_DIMS) {
        return dpari_wrong(why, "dims must be 0 to %d, not %d", (int32_t)DPAR_MAX_DIMS, dims);
    }
    for (d = 0; d < dims; d++) {
        if (cells[d] < 1 || (weight != NULL && weight[d] < 0)) {
            return dpari_wrong(why, "dim %d: cells=%ld must be at least 1, weight=%ld at least 0",
                               d, cells[d], weight != NULL ? weight[d] : 1);
        }
        if (parts[d] > cells[d]) {
            return dpari_wrong(why, "dim %d is fixed at %d parts but has only %ld cells", d,
                               parts[d], cells[d]);
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_grid_passes(int32_t dims, const int64_t *cells, int64_t ranks,
                                     dpar_why *why)
{
    dpar_text t;
    dpari_text_why(&t, why);
    dpar_text_put(&t, "the cut of ");
    dpari_cart_put(&t, dims, cells);
    dpari_text_say(&t, " cells into %ld parts may exceed 2^63 - 1", ranks);
    return DPAR_E_RANGE;
}

/* Returns the cost that dpari_grid_face computes, after dpari_grid_bound has found that it does not
 * overflow. */
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

/* Checks that the cost of the most expensive cut does not overflow. */
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

/* Puts the free axes into g and the cost of the fixed ones into g.cost[0], and searches. The
 * arguments have been checked. Returns 0 if there is no such grid. */
DPARI_COLD DPARI_STATIC_NOINLINE int dpari_grid_best(int32_t divides, int32_t rest, int32_t dims,
                                                     const int64_t *cells, const int64_t *weight,
                                                     uint32_t periodic, int32_t *parts,
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
        g.primes = dpari_cart_factor(g.rest[0]);
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

/* Checks all arguments. *rest receives the ranks that the free axes must make. */
DPARI_STATIC_NOINLINE DPARI_COLD dpar_status dpari_grid_check(int32_t ranks, int32_t dims,
                                                              const int64_t *cells,
                                                              const int64_t *weight,
                                                              const int32_t *parts, int32_t *rest,
                                                              dpar_why *why)
{
    dpar_status st = dpari_grid_check_dims(dims, cells, weight, parts, why);
    int32_t open = 0;
    if (st == DPAR_OK) {
        st = dpari_cart_rest(ranks, dims, parts, &open, rest, why);
    }
    return st == DPAR_OK ? dpari_grid_bound(ranks, dims, cells, weight, why) : st;
}

/* Does the work of dpar_cart_choose_parts. With `divides` it finds the grid of nodes whose bricks
 * tile a grid of ranks, so the parts must divide the cells. */
static dpar_status dpari_grid_solve(int32_t divides, int32_t ranks, int32_t dims,
                                    const int64_t *cells, const int64_t *weight, uint32_t periodic,
                                    int32_t *parts, int64_t *cut, dpar_why *why)
{
    dpar_text t;
    int32_t rest = 0;
    dpar_status st = dpari_grid_check(ranks, dims, cells, weight, parts, &rest, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (!dpari_grid_best(divides, rest, dims, cells, weight, periodic, parts, cut)) {
        dpari_text_why(&t, why);
        dpari_text_say(&t, "no grid of %d ranks has at most ", ranks);
        dpari_cart_put(&t, dims, cells);
        dpar_text_put(&t, " parts");
        dpari_cart_put_fixed(&t, dims, parts);
        return DPAR_E_NONE;
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_cart_choose_parts(const dpar_cart_choose_desc *grid,
                                                       int32_t *parts, int64_t *cut, dpar_why *why)
{
    const int64_t *weight = NULL;
    int32_t d;
    if (grid->ranks < 1) {
        return dpari_wrong(why, "ranks is %d: must be at least 1", grid->ranks);
    }
    for (d = 0; d < grid->dims && d < DPAR_MAX_DIMS; d++) {
        weight = grid->weight[d] != 0 ? grid->weight : weight;
    }
    return dpari_grid_solve(0, grid->ranks, grid->dims, grid->cells, weight, grid->periodic, parts,
                            cut, why);
}

/* ---- owners in a grid ---- */

/* Returns how many ranks a grid has, or 0 if its parts are not valid. */
static int64_t dpari_cart_ranks(int32_t dims, const int64_t *cells, const int32_t *parts)
{
    int64_t ranks = 1;
    int32_t d;
    if (dims < 1 || dims > DPAR_MAX_DIMS) {
        return 0;
    }
    for (d = 0; d < dims; d++) {
        if (cells[d] < 0 || parts[d] < 1 || ranks > INT32_MAX / parts[d]) {
            return 0;
        }
        ranks *= parts[d];
    }
    return ranks;
}

DPAR_API int32_t dpar_cart_owner(int32_t dims, const int64_t *cells, const int32_t *parts,
                                 const int64_t *cell)
{
    int32_t d, rank = 0;
    if (dpari_cart_ranks(dims, cells, parts) == 0) {
        return -1;
    }
    for (d = 0; d < dims; d++) {
        if (cell[d] < 0 || cell[d] >= cells[d]) {
            return -1;
        }
        rank = rank * parts[d] + dpari_even_of(cells[d], parts[d], cell[d]);
    }
    return rank;
}

DPAR_API dpar_status dpar_cart_range(int32_t dims, const int64_t *cells, const int32_t *parts,
                                     int32_t rank, int64_t *first, int64_t *count)
{
    int32_t d;
    if (rank < 0 || rank >= dpari_cart_ranks(dims, cells, parts)) {
        return DPAR_E_ARG;
    }
    for (d = dims - 1; d >= 0; d--) {
        const int64_t c = rank % parts[d], each = cells[d] / parts[d], more = cells[d] % parts[d];
        first[d] = c * each + dpari_least(c, more);
        count[d] = each + (c < more);
        rank /= parts[d];
    }
    return DPAR_OK;
}

/* ---- Cartesian topology ---- */

DPAR_API DPARI_COLD dpar_status dpar_cart_init(dpar_cart *cart, int32_t dims, const int32_t *parts,
                                               uint32_t periodic, dpar_why *why)
{
    dpar_cart c;
    int64_t size = 1;
    int32_t d;
    if (dims < 0 || dims > DPAR_MAX_DIMS) {
        return dpari_wrong(why, "dims must be 0 to %d, not %d", (int32_t)DPAR_MAX_DIMS, dims);
    }
    dpari_zero(&c, sizeof(c));
    for (d = 0; d < dims; d++) {
        if (parts[d] < 1) {
            return dpari_wrong(why, "parts[%d] is %d: must be at least 1", d, parts[d]);
        }
        size *= parts[d];
        if (size > INT32_MAX) {
            return dpari_say(DPAR_E_RANGE, why, "axes 0 to %d make %ld ranks, more than 2^31 - 1",
                             d, size);
        }
        c.parts[d] = parts[d];
    }
    c.dims = dims;
    c.size = (int32_t)size;
    c.periodic = periodic & (((uint32_t)1 << dims) - 1);
    *cart = c;
    return DPAR_OK;
}

/* Wraps coordinate c around a periodic axis. Returns -1 if it is outside an axis that is not
 * periodic. |c| < 2^33. */
static int32_t dpari_cart_wrap(const dpar_cart *cart, int32_t axis, int64_t c)
{
    const int64_t n = cart->parts[axis];
    if (cart->periodic >> axis & 1u) {
        return (int32_t)((c % n + n) % n);
    }
    return c >= 0 && c < n ? (int32_t)c : -1;
}

static int32_t dpari_cart_three_to(int32_t dims)
{
    int32_t n = 1;
    while (dims-- > 0) {
        n *= 3;
    }
    return n;
}

/* Computes offset `index` of the box stencil, in row-major order from (-1, .., -1). Returns along
 * how many axes it moves. */
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

/* Computes the coordinate next to another one. Returns 0 if it is outside of an axis that does not
 * wrap. */
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

DPARI_API DPARI_COLD int32_t dpari_stencil_axes(int32_t shape, int32_t dims)
{
    switch (shape) {
    case DPAR_STENCIL_STAR: return dims > 1 ? 1 : dims;
    case DPAR_STENCIL_EDGES: return dims > 2 ? 2 : dims;
    case DPAR_STENCIL_BOX: return dims;
    default: return 0;
    }
}

/* ---- mapping ---- */

static dpar_status dpari_place_check(int32_t kind, int32_t per_node, dpar_why *why)
{
    if (per_node < 1 || kind < 0 || kind >= DPAR_MAPPING_COUNT) {
        return dpari_wrong(why, "kind=%d must be 0 to %d, per_node=%d at least 1", kind,
                           (int32_t)DPAR_MAPPING_COUNT - 1, per_node);
    }
    return DPAR_OK;
}

/* Makes a mapping with bricks of one rank and the last axis fastest. `grid` may be inside
 * *mapping. */
static void dpari_place_start(dpar_mapping *mapping, const dpar_cart *grid, int32_t kind,
                              int32_t per_node)
{
    int32_t d;
    mapping->grid = *grid;
    mapping->kind = kind;
    mapping->per_node = per_node;
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        mapping->brick[d] = 1;
        mapping->order[d] = d < mapping->grid.dims ? mapping->grid.dims - 1 - d : d;
    }
}

/* Finds the sides q of a node's brick, with product(q) = per_node, that leave the least surface
 * between nodes: the sum over d of weight[d] * planes[d] * product of the other parts. Of equal
 * solutions it takes the one with the fewest nodes along axis 0, then axis 1, and so on. weight
 * NULL means 1. There is a solution if per_node divides the ranks. */
static dpar_status dpari_place_bricks(dpar_mapping *place, const dpar_cart *grid, int32_t per_node,
                                      const int64_t *weight, dpar_why *why)
{
    int64_t parts[DPAR_MAX_DIMS];
    int32_t nodes[DPAR_MAX_DIMS], d;
    dpar_status st = dpari_place_check(DPAR_MAPPING_BRICKS, per_node, why);
    if (st == DPAR_OK && grid->size % per_node != 0) {
        st = dpari_say(DPAR_E_DIVIDE, why, "per_node is %d, which does not divide %d ranks",
                       per_node, grid->size);
    }
    if (st != DPAR_OK) {
        return st;
    }
    for (d = 0; d < grid->dims; d++) {
        parts[d] = grid->parts[d];
        nodes[d] = 0;
    }
    st = dpari_grid_solve(1, grid->size / per_node, grid->dims, parts, weight, grid->periodic,
                          nodes, NULL, why);
    if (st == DPAR_OK) {
        dpari_place_start(place, grid, DPAR_MAPPING_BRICKS, per_node);
    }
    for (d = 0; st == DPAR_OK && d < grid->dims; d++) {
        place->brick[d] = place->grid.parts[d] / nodes[d];
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_mapping_init(dpar_mapping *mapping, const dpar_cart *grid,
                                                  int32_t kind, int32_t ranks_per_node,
                                                  dpar_why *why)
{
    dpar_status st;
    if (kind == DPAR_MAPPING_BRICKS) {
        return dpari_place_bricks(mapping, grid, ranks_per_node, NULL, why);
    }
    st = dpari_place_check(kind, ranks_per_node, why);
    if (st == DPAR_OK) {
        dpari_place_start(mapping, grid, kind, ranks_per_node);
    }
    return st;
}

/* Returns the rank at a coordinate: nodes are numbered in their grid, and ranks within their
 * brick. */
static int32_t dpari_brick_rank(const dpar_mapping *mapping, const int32_t *coord)
{
    int32_t i, node = 0, inside = 0, volume = 1;
    for (i = mapping->grid.dims - 1; i >= 0; i--) {
        const int32_t d = mapping->order[i], q = mapping->brick[d];
        node = node * (mapping->grid.parts[d] / q) + coord[d] / q;
        inside = inside * q + coord[d] % q;
        volume *= q;
    }
    return node * volume + inside;
}

static void dpari_brick_coords(const dpar_mapping *mapping, int32_t rank, int32_t *coord)
{
    int32_t i, node, inside, volume = 1;
    for (i = 0; i < mapping->grid.dims; i++) {
        volume *= mapping->brick[i];
    }
    node = rank / volume;
    inside = rank % volume;
    for (i = 0; i < mapping->grid.dims; i++) {
        const int32_t d = mapping->order[i], q = mapping->brick[d], n = mapping->grid.parts[d] / q;
        coord[d] = node % n * q + inside % q;
        node /= n;
        inside /= q;
    }
}

/* A subcube on the way down a curve. For Hilbert's curve (C. Hamilton, "Compact Hilbert indices",
 * 2006) it has `entry`, the corner at which the curve enters, and `turn`, the axis along which it
 * leaves. */
typedef struct dpari_cart_curve {
    int32_t dims, hilbert, turn;
    uint32_t entry;
    int64_t half, low[DPAR_MAX_DIMS];
} dpari_cart_curve;

static dpari_cart_curve dpari_curve_start(const dpar_mapping *mapping)
{
    dpari_cart_curve c;
    int64_t side = 1;
    int32_t d;
    dpari_zero(&c, sizeof(c));
    for (d = 0; d < mapping->grid.dims; d++) {
        while (side < mapping->grid.parts[d]) {
            side *= 2;
        }
    }
    c.dims = mapping->grid.dims;
    c.hilbert = mapping->kind == DPAR_MAPPING_HILBERT;
    c.half = side / 2;
    return c;
}

/* Rotates the lowest `dims` bits to the left by `by` >= 0. */
static uint32_t dpari_curve_turn(const dpari_cart_curve *curve, uint32_t bits, int32_t by)
{
    by %= curve->dims;
    return (bits << by | bits >> (curve->dims - by)) & (((uint32_t)1 << curve->dims) - 1);
}

/* Returns the child that the curve visits as number w. Bit d is 1 if it is in the upper half along
 * axis d. */
static uint32_t dpari_curve_child(const dpari_cart_curve *curve, uint32_t w)
{
    return curve->hilbert ? dpari_curve_turn(curve, w ^ w >> 1, curve->turn + 1) ^ curve->entry : w;
}

/* Moves into child number w. */
static void dpari_curve_enter(dpari_cart_curve *curve, uint32_t w)
{
    const uint32_t child = dpari_curve_child(curve, w);
    uint32_t even = w > 0 ? (w - 1) & ~(uint32_t)1 : 0; /* 2 floor((w - 1) / 2) */
    uint32_t ones = w % 2 == 0 && w > 0 ? w - 1 : w;
    int32_t d, trailing = 0;
    for (d = 0; d < curve->dims; d++) {
        curve->low[d] += (child >> d & 1u) ? curve->half : 0;
    }
    for (; ones & 1u; ones >>= 1) {
        trailing++;
    }
    curve->entry ^= dpari_curve_turn(curve, even ^ even >> 1, curve->turn + 1);
    curve->turn = (curve->turn + trailing + 1) % curve->dims;
    curve->half /= 2;
}

/* Counts the ranks of the grid in child number w. */
static int32_t dpari_curve_count(const dpari_cart_curve *curve, const dpar_mapping *mapping,
                                 uint32_t w)
{
    const uint32_t child = dpari_curve_child(curve, w);
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < curve->dims; d++) {
        int64_t left =
            mapping->grid.parts[d] - curve->low[d] - ((child >> d & 1u) ? curve->half : 0);
        n *= dpari_most(0, dpari_least(left, curve->half));
    }
    return (int32_t)n;
}

static int32_t dpari_curve_rank(const dpar_mapping *mapping, const int32_t *coord)
{
    dpari_cart_curve c = dpari_curve_start(mapping);
    int32_t d, rank = 0;
    while (c.half > 0) {
        uint32_t want = 0, w;
        for (d = 0; d < c.dims; d++) {
            want |= (uint32_t)(coord[d] >= c.low[d] + c.half) << d;
        }
        for (w = 0; dpari_curve_child(&c, w) != want; w++) {
            rank += dpari_curve_count(&c, mapping, w);
        }
        dpari_curve_enter(&c, w);
    }
    return rank;
}

static void dpari_curve_coords(const dpar_mapping *mapping, int32_t rank, int32_t *coord)
{
    dpari_cart_curve c = dpari_curve_start(mapping);
    int32_t d;
    while (c.half > 0) {
        uint32_t w = 0;
        int32_t n = dpari_curve_count(&c, mapping, w);
        while (n <= rank) {
            rank -= n;
            n = dpari_curve_count(&c, mapping, ++w);
        }
        dpari_curve_enter(&c, w);
    }
    for (d = 0; d < c.dims; d++) {
        coord[d] = (int32_t)c.low[d];
    }
}

static int dpari_place_curved(const dpar_mapping *mapping)
{
    return mapping->kind == DPAR_MAPPING_MORTON || mapping->kind == DPAR_MAPPING_HILBERT;
}

DPAR_API int32_t dpar_mapping_rank(const dpar_mapping *mapping, const int32_t *coord)
{
    int32_t d;
    for (d = 0; d < mapping->grid.dims; d++) {
        if (coord[d] < 0 || coord[d] >= mapping->grid.parts[d]) {
            return DPAR_PROC_NULL;
        }
    }
    return dpari_place_curved(mapping) ? dpari_curve_rank(mapping, coord)
                                       : dpari_brick_rank(mapping, coord);
}

DPAR_API dpar_status dpar_mapping_coords(const dpar_mapping *mapping, int32_t rank, int32_t *coord)
{
    if (rank < 0 || rank >= mapping->grid.size) {
        return DPAR_E_ARG;
    }
    if (dpari_place_curved(mapping)) {
        dpari_curve_coords(mapping, rank, coord);
    } else {
        dpari_brick_coords(mapping, rank, coord);
    }
    return DPAR_OK;
}

/* Returns the weight of an offset, 0 if the stencil does not have it, or INT64_MAX if it overflows.
 */
static int64_t dpari_stencil_weight(const dpar_stencil *stencil, int32_t dims,
                                    const int32_t *offset, int32_t moves)
{
    int64_t w = stencil->bytes;
    int32_t d;
    if (moves == 0 || moves > dpari_stencil_axes(stencil->shape, dims)) {
        return 0;
    }
    if (w == 0) {
        return 1;
    }
    for (d = 0; d < dims; d++) {
        w = dpari_cart_times(w, offset[d] != 0 ? stencil->width[d] : stencil->block[d]);
    }
    return w;
}

static dpar_status dpari_stencil_check(const dpar_stencil *stencil, const dpar_cart *grid,
                                       dpar_why *why)
{
    int32_t offset[DPAR_MAX_DIMS], i, d;
    int64_t sum = 0;
    if (dpari_stencil_axes(stencil->shape, 1) == 0) {
        return dpari_wrong(why, "shape is %d, which is no DPAR_STENCIL_x", stencil->shape);
    }
    dpari_zero(offset, sizeof(offset));
    for (d = 0; d < grid->dims; d++) {
        if (stencil->block[d] < 0 || stencil->width[d] < 0 || stencil->bytes < 0) {
            return dpari_wrong(why, "axis %d: block %ld, width %ld or bytes %ld is negative", d,
                               stencil->block[d], stencil->width[d], stencil->bytes);
        }
    }
    for (i = 0; i < dpari_cart_three_to(grid->dims); i++) {
        int32_t moves = dpari_cart_offset(grid->dims, i, offset);
        int64_t w = dpari_stencil_weight(stencil, grid->dims, offset, moves);
        if (w > INT64_MAX / grid->size - sum) {
            return dpari_say(DPAR_E_RANGE, why,
                             "%d ranks send %ld bytes: the sum may exceed 2^63 - 1", grid->size, w);
        }
        sum += w;
    }
    return DPAR_OK;
}

/* For one axis of p parts in tiles of q, counts the pairs of an offset in the whole grid and inside
 * tiles, and those of the tile with the most neighbours, which is the second tile or the only one.
 */
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

/* Computes the cost of a mapping with equal bricks by counting pairs, without visiting the
 * ranks. */
static void dpari_place_cost_tiles(const dpar_mapping *mapping, const dpar_stencil *stencil,
                                   int64_t *total, int64_t *worst)
{
    int32_t offset[DPAR_MAX_DIMS], i, d;
    int64_t sum = 0, node = 0;
    for (i = 0; i < dpari_cart_three_to(mapping->grid.dims); i++) {
        int32_t moves = dpari_cart_offset(mapping->grid.dims, i, offset);
        int64_t w = dpari_stencil_weight(stencil, mapping->grid.dims, offset, moves);
        dpari_cart_pairs at = {1, 1, 1, 1};
        for (d = 0; d < mapping->grid.dims; d++) {
            dpari_cart_pairs_along(&at, mapping->grid.parts[d], mapping->brick[d], offset[d],
                                   mapping->grid.periodic >> d & 1u);
        }
        sum += w * (at.all - at.same);
        node += w * (at.tile - at.inside);
    }
    *total = sum / 2;
    *worst = node;
}

/* Computes how much a rank sends to other nodes. */
static int64_t dpari_place_sends(const dpar_mapping *mapping, const dpar_stencil *stencil,
                                 int32_t rank)
{
    int32_t coord[DPAR_MAX_DIMS], offset[DPAR_MAX_DIMS], next[DPAR_MAX_DIMS], i;
    int64_t sum = 0;
    dpar_mapping_coords(mapping, rank, coord);
    for (i = 0; i < dpari_cart_three_to(mapping->grid.dims); i++) {
        int32_t moves = dpari_cart_offset(mapping->grid.dims, i, offset);
        int64_t w = dpari_stencil_weight(stencil, mapping->grid.dims, offset, moves);
        if (w > 0 && dpari_cart_next(&mapping->grid, coord, offset, next) &&
            dpar_mapping_rank(mapping, next) / mapping->per_node != rank / mapping->per_node) {
            sum += w;
        }
    }
    return sum;
}

DPAR_API DPARI_COLD dpar_status dpar_mapping_cost(const dpar_mapping *mapping,
                                                  const dpar_stencil *stencil, int64_t *total,
                                                  int64_t *worst, dpar_why *why)
{
    int64_t sum = 0, node = 0, most = 0;
    int32_t rank, d, volume = 1;
    dpar_status st = dpari_stencil_check(stencil, &mapping->grid, why);
    if (st != DPAR_OK) {
        return st;
    }
    for (d = 0; d < mapping->grid.dims; d++) {
        volume *= mapping->brick[d];
    }
    if (volume == mapping->per_node && !dpari_place_curved(mapping)) {
        dpari_place_cost_tiles(mapping, stencil, total, worst);
        return DPAR_OK;
    }
    for (rank = 0; rank < mapping->grid.size; rank++) {
        int64_t sends = dpari_place_sends(mapping, stencil, rank);
        node = rank % mapping->per_node == 0 ? sends : node + sends;
        most = dpari_most(most, node);
        sum += sends;
    }
    *total = sum / 2;
    *worst = most;
    return DPAR_OK;
}

/* Computes how much each face of a rank carries. */
static void dpari_stencil_faces(const dpar_stencil *stencil, int32_t dims, int64_t *weight)
{
    int32_t d, e;
    for (d = 0; d < dims; d++) {
        weight[d] = stencil->bytes > 0 ? stencil->bytes : 1;
        for (e = 0; stencil->bytes > 0 && e < dims; e++) {
            weight[d] = dpari_cart_times(weight[d], e == d ? stencil->width[e] : stencil->block[e]);
        }
    }
}

/* Makes a mapping from arguments that have been checked, so that it fails only if no brick fits. */
static dpar_status dpari_place_try(dpar_mapping *mapping, const dpar_cart *grid, int32_t kind,
                                   int32_t per_node, const int64_t *weight)
{
    if (kind == DPAR_MAPPING_BRICKS) {
        return dpari_place_bricks(mapping, grid, per_node, weight, NULL);
    }
    dpari_place_start(mapping, grid, kind, per_node);
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_mapping_choose(dpar_mapping *mapping, const dpar_cart *grid,
                                                    int32_t ranks_per_node,
                                                    const dpar_stencil *stencil, dpar_why *why)
{
    int64_t weight[DPAR_MAX_DIMS], sum = 0, most = 0, least_sum = 0, least_most = -1;
    int32_t kind, best = 0;
    dpar_status st = dpari_stencil_check(stencil, grid, why);
    if (st == DPAR_OK) {
        st = dpari_place_check(DPAR_MAPPING_ROW_MAJOR, ranks_per_node, why);
    }
    if (st == DPAR_OK) {
        dpari_stencil_faces(stencil, grid->dims, weight);
    }
    for (kind = 0; st == DPAR_OK && kind < DPAR_MAPPING_COUNT; kind++) {
        if (dpari_place_try(mapping, grid, kind, ranks_per_node, weight) != DPAR_OK) {
            continue;
        }
        st = dpar_mapping_cost(mapping, stencil, &sum, &most, why);
        if (least_most < 0 || most < least_most || (most == least_most && sum < least_sum)) {
            best = kind;
            least_sum = sum;
            least_most = most;
        }
    }
    return st == DPAR_OK ? dpari_place_try(mapping, grid, best, ranks_per_node, weight) : st;
}

/* ==== index/split.c ==== */

/* Splits. Queries are called in loops, so division by the block or the number of parts is replaced
 * by multiplication with an inverse that dpar_split_init computes. Contiguous rules are described
 * by where a part begins; scattered rules by whole rounds of blocks and the elements after them. */

static const int64_t dpari_split_limit = INT64_C(1) << 62;

/* Functions that are called for single elements are inlined, unless the compiler optimises for
 * size. */
#if defined(__GNUC__) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define DPARI_HOT static __inline__ __attribute__((always_inline))
#else
#define DPARI_HOT static
#endif

/* ---- division by a constant ------------------------------------------------------------------ */

/* Returns the high 64 bits of a product. */
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

/* Returns n / by[k], for 0 <= n < 2^63. With 2^(l-1) < d <= 2^l and v = ceil(2^(63+l) / d), which
 * fits into 64 bits, n v / 2^(63+l) exceeds n / d by less than 1 / d, so that its floor is the
 * quotient. */
DPARI_HOT int64_t dpari_split_div(const dpar_split *split, int k, int64_t n, int64_t *rest)
{
    int64_t q = (int64_t)(dpari_high((uint64_t)n << 1, split->inverse[k]) >> split->shift[k]);
    *rest = n - q * split->by[k];
    return q;
}

/* Returns floor(2^127 / d) for 2^63 < d < 2^64, by long division with two digits of 32 bits. */
static uint64_t dpari_inverse(uint64_t d)
{
    uint64_t d1 = d >> 32, d0 = d & 0xffffffffu, high = (uint64_t)1 << 63, q = 0;
    int digit;
    for (digit = 0; digit < 2; digit++) {
        uint64_t guess = high / d1, rest = high % d1; /* at most 2 too large */
        while (rest <= 0xffffffffu && (guess > 0xffffffffu || guess * d0 > rest << 32)) {
            guess--;
            rest += d1;
        }
        high = (high << 32) - guess * d;
        q = q << 32 | guess;
    }
    return q;
}

/* Returns the number of bits of d > 0. */
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

/* Sets divisor number k and its inverse. */
static void dpari_split_by(dpar_split *split, int k, int64_t divisor)
{
    uint64_t d = divisor > 0 ? (uint64_t)divisor : 1;
    int bits = dpari_bits(d);
    split->by[k] = (int64_t)d;
    d <<= 64 - bits;              /* moves its highest bit to the top */
    if (d == (uint64_t)1 << 63) { /* a power of two */
        split->inverse[k] = d;
        bits--;
    } else {
        split->inverse[k] = dpari_inverse(d) + 1;
    }
    split->shift[k] = (uint8_t)bits;
}

/* ---- making ---------------------------------------------------------------------------------- */

static dpar_status dpari_split_check(int64_t count, int32_t parts, dpar_why *why)
{
    if (parts < 1) {
        return dpari_wrong(why, "%d parts: there must be at least 1", parts);
    }
    if (count < 0) {
        return dpari_wrong(why, "%ld elements: there must be 0 or more", count);
    }
    if (count > dpari_split_limit) {
        return dpari_say(DPAR_E_RANGE, why, "%ld elements: at most 2^62 can be split", count);
    }
    return DPAR_OK;
}

/* Computes the divisors of a rule, and the rest of the count after whole rounds. */
DPARI_INTERNAL void dpari_split_resize(dpar_split *split, int64_t count)
{
    int64_t blocks, parts = split->parts;
    split->count = count;
    split->rounds = count / parts;
    split->extra = count % parts;
    switch (split->rule) {
    case DPAR_SPLIT_EVEN:
        dpari_split_by(split, 0, split->rounds + 1);
        dpari_split_by(split, 1, split->rounds);
        break;
    case DPAR_SPLIT_FLOOR:
        split->tail = count <= INT64_MAX / parts; /* P N fits */
        dpari_split_by(split, 0, count);
        dpari_split_by(split, 1, parts);
        break;
    case DPAR_SPLIT_BLOCK_CYCLIC:
    case DPAR_SPLIT_CYCLIC:
        dpari_split_by(split, 0, split->block);
        dpari_split_by(split, 1, parts);
        blocks = count / split->block;
        split->tail = count % split->block;
        split->rounds = blocks / parts;
        split->extra = blocks % parts;
        break;
    case DPAR_SPLIT_STRIDED: /* by[0] elements in a piece, by[1] of them in a part */
        dpari_split_by(split, 0, dpari_ceil_div(count, split->block));
        dpari_split_by(split, 1, dpari_ceil_div(split->by[0], parts));
        split->rounds = count / split->by[0];
        split->tail = count % split->by[0];
        break;
    case DPAR_SPLIT_RAGGED: break;
    default:
        dpari_split_by(split, 0,
                       dpari_ceil_div(count, split->rule == DPAR_SPLIT_ZIGZAG ? 2 * parts : parts));
    }
}

DPAR_API dpar_status dpar_split_init(dpar_split *split, int32_t rule, int64_t count, int32_t parts,
                                     int64_t block, dpar_why *why)
{
    dpar_status st = dpari_split_check(count, parts, why);
    int32_t blocked = rule == DPAR_SPLIT_BLOCK_CYCLIC || rule == DPAR_SPLIT_STRIDED;
    if (st != DPAR_OK) {
        return st;
    }
    if (rule < 0 || rule >= DPAR_SPLIT_RULE_COUNT || rule == DPAR_SPLIT_RAGGED) {
        return dpari_wrong(why, "rule %d does not exist, or is RAGGED (use dpar_split_init_ragged)",
                           rule);
    }
    if (blocked && block < 1) {
        return dpari_wrong(why, "block is %ld: must be at least 1", block);
    }
    dpari_zero(split, sizeof(*split));
    split->rule = rule;
    split->parts = parts;
    split->block = blocked ? block : 0;
    if (rule == DPAR_SPLIT_CYCLIC) {
        split->block = 1;
    }
    dpari_split_resize(split, count);
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_split_init_ragged(dpar_split *split, int32_t parts,
                                                       const int64_t *cuts, dpar_why *why)
{
    dpar_status st = dpari_split_check(parts < 1 ? 0 : cuts[parts], parts, why);
    int32_t p;
    if (st != DPAR_OK) {
        return st;
    }
    if (cuts[0] != 0) {
        return dpari_wrong(why, "cuts[0] is %ld: must be 0", cuts[0]);
    }
    for (p = 0; p < parts; p++) {
        if (cuts[p + 1] < cuts[p]) {
            return dpari_wrong(why, "cuts[%d] is %ld, but cuts[%ld] is only %ld", p, cuts[p],
                               (int64_t)p + 1, cuts[p + 1]);
        }
    }
    dpari_zero(split, sizeof(*split));
    split->rule = DPAR_SPLIT_RAGGED;
    split->parts = parts;
    split->count = cuts[parts];
    split->cuts = cuts;
    return DPAR_OK;
}

/* Returns floor(a b / c) for a < 2^62, 0 <= b <= c < 2^31, without a product that overflows. */
static int64_t dpari_share(int64_t a, int64_t b, int64_t c)
{
    return a / c * b + a % c * b / c;
}

DPAR_API DPARI_COLD dpar_status dpar_split_weighted_cuts(int64_t *cuts, int64_t count,
                                                         int32_t parts, const int64_t *weights,
                                                         int64_t atom, dpar_why *why)
{
    dpar_status st = dpari_split_check(count, parts, why);
    int64_t all = 0, before = 0, atoms;
    int32_t p;
    if (st != DPAR_OK) {
        return st;
    }
    if (atom < 1) {
        return dpari_wrong(why, "atom is %ld: must be at least 1", atom);
    }
    for (p = 0; p < parts; p++) {
        if (weights[p] < 0) {
            return dpari_wrong(why, "weights[%d] is %ld: must be at least 0", p, weights[p]);
        }
        all = weights[p] > INT32_MAX - all ? (int64_t)INT32_MAX + 1 : all + weights[p];
        if (all > INT32_MAX) {
            return dpari_say(DPAR_E_RANGE, why, "the sum of %d weights exceeds 2^31 - 1", parts);
        }
    }
    if (all == 0) {
        return dpari_wrong(why, "all %d weights are 0", parts);
    }
    atoms = dpari_ceil_div(count, atom);
    for (p = 0; p <= parts; p++) {
        int64_t cut = dpari_share(atoms, before, all);
        cuts[p] = cut > count / atom ? count : cut * atom; /* the last atom may be short */
        before += p < parts ? weights[p] : 0;
    }
    return DPAR_OK;
}

/* Returns how many runs are needed if the cost of each is at most `most`. */
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

/* Sets cuts[p] to the earliest start of run p with which the runs from p on stay within `most`. */
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

/* Cuts from the front, each time where the run is nearest to an even share of the remaining cost.
 * No run exceeds `most`, and none is empty as long as there are enough items. */
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

DPAR_API DPARI_COLD dpar_status dpar_split_balance(int64_t *cuts, int64_t items,
                                                   const int64_t *cost, int32_t parts,
                                                   dpar_why *why)
{
    dpar_status st = dpari_split_check(items, parts, why);
    int64_t i, all = 0, low = 0, high;
    if (st != DPAR_OK) {
        return st;
    }
    for (i = 0; i < items; i++) {
        if (cost[i] < 0 || cost[i] > dpari_split_limit - all) {
            return dpari_say(cost[i] < 0 ? DPAR_E_ARG : DPAR_E_RANGE, why,
                             "cost[%ld] is %ld: each must be at least 0, their sum at most 2^62", i,
                             cost[i]);
        }
        all += cost[i];
        low = dpari_most(low, cost[i]);
    }
    for (high = all; low < high;) { /* bisection: the least maximum with `parts` runs */
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

/* ---- contiguous rules ------------------------------------------------------------------------ */

/* Returns where part p begins, 0 <= p <= P. With chunks of b elements p b <= N + P, so that no
 * product overflows. For FLOOR, floor(N p / P) = (N / P) p + (N % P) p / P, with the second product
 * below 2^62. */
DPARI_HOT int64_t dpari_split_cut(const dpar_split *split, int64_t p)
{
    int64_t rest;
    switch (split->rule) {
    case DPAR_SPLIT_CHUNK: return dpari_least(split->count, p * split->by[0]);
    case DPAR_SPLIT_EVEN: return split->rounds * p + dpari_least(p, split->extra);
    case DPAR_SPLIT_FLOOR:
        return split->rounds * p + dpari_split_div(split, 1, split->extra * p, &rest);
    default: return split->cuts[p];
    }
}

/* Finds the last part that begins at or before i and is not empty, by bisection. */
static int32_t dpari_split_search(const dpar_split *split, int64_t i)
{
    int32_t low = 0, high = split->parts; /* cut(low) <= i < cut(high) */
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (dpari_split_cut(split, middle) <= i) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

DPARI_HOT int64_t dpari_even_part(const dpar_split *split, int64_t i)
{
    int64_t rest, p = dpari_split_div(split, 0, i, &rest);
    return p < split->extra ? p : dpari_split_div(split, 1, i - split->extra, &rest);
}

/* floor(N p / P) <= i is the same as p <= (P (i + 1) - 1) / N. That division gives the part if the
 * product fits, otherwise a search does. */
DPARI_HOT int64_t dpari_floor_part(const dpar_split *split, int64_t i)
{
    int64_t rest;
    return split->tail ? dpari_split_div(split, 0, split->parts * (i + 1) - 1, &rest)
                       : dpari_split_search(split, i);
}

/* ---- scattered rules ------------------------------------------------------------------------- */

/* BLOCK_CYCLIC, 0-based (ScaLAPACK): block j belongs to (source + j) mod P. */
DPARI_HOT int64_t dpari_cyclic_find(const dpar_split *split, int64_t i, int64_t *local)
{
    int64_t in, turn, block = dpari_split_div(split, 0, i, &in);
    *local = split->block * dpari_split_div(split, 1, block, &turn) + in;
    turn += split->source;
    return turn >= split->parts ? turn - split->parts : turn;
}

/* Returns the position of a part in a round: 0 for the part that has the first block. */
DPARI_HOT int64_t dpari_cyclic_turn(const dpar_split *split, int64_t part)
{
    return part >= split->source ? part - split->source : part - split->source + split->parts;
}

/* Returns how many elements of the blocks after the full rounds a part has. */
DPARI_HOT int64_t dpari_cyclic_last(const dpar_split *split, int64_t turn)
{
    if (turn < split->extra) {
        return split->block;
    }
    return turn == split->extra ? split->tail : 0;
}

DPARI_HOT int64_t dpari_cyclic_global(const dpar_split *split, int64_t part, int64_t local)
{
    int64_t in, round = dpari_split_div(split, 0, local, &in),
                turn = dpari_cyclic_turn(split, part);
    if (round >= split->rounds && (round > split->rounds || in >= dpari_cyclic_last(split, turn))) {
        return -1;
    }
    return (round * split->parts + turn) * split->block + in;
}

/* For STRIDED, returns how many elements of a full piece part p has. */
DPARI_HOT int64_t dpari_strided_full(const dpar_split *split, int64_t p)
{
    return dpari_least(split->by[1], split->by[0] - dpari_least(split->by[0], p * split->by[1]));
}

/* Returns how many elements of the last, short piece part p has. *offset receives where they begin
 * in the piece. */
static int64_t dpari_strided_last(const dpar_split *split, int64_t p, int64_t *offset)
{
    int64_t b = dpari_ceil_div(split->tail, split->parts);
    *offset = dpari_least(split->tail, p * b);
    return dpari_least(b, split->tail - *offset);
}

DPARI_HOT int64_t dpari_strided_find(const dpar_split *split, int64_t i, int64_t *local)
{
    int64_t in, piece = dpari_split_div(split, 0, i, &in), part, rest;
    if (piece < split->rounds) {
        part = dpari_split_div(split, 1, in, &rest);
        *local = piece * dpari_least(split->by[1], split->by[0] - in + rest) + rest;
        return part;
    }
    part = in / dpari_ceil_div(split->tail, split->parts);
    (void)dpari_strided_last(split, part, &rest);
    *local = piece * dpari_strided_full(split, part) + in - rest;
    return part;
}

DPARI_HOT int64_t dpari_strided_global(const dpar_split *split, int64_t part, int64_t local)
{
    int64_t full = dpari_strided_full(split, part), piece = split->rounds, offset;
    if (full == split->by[1]) {
        piece = dpari_split_div(split, 1, local, &offset);
    } else if (full > 0) {
        piece = local / full;
    }
    if (piece < split->rounds) {
        return piece * (split->by[0] - full) + part * split->by[1] + local;
    }
    local -= split->rounds * full;
    if (local >= dpari_strided_last(split, part, &offset)) {
        return -1;
    }
    return split->rounds * split->by[0] + offset + local;
}

/* For ZIGZAG, returns where chunk c of 2 P begins. */
DPARI_HOT int64_t dpari_zigzag_cut(const dpar_split *split, int64_t c)
{
    return dpari_least(split->count, c * split->by[0]);
}

/* These functions count the elements of a part's first chunk, and of its second one. */
DPARI_HOT int64_t dpari_zigzag_first(const dpar_split *split, int64_t part)
{
    return dpari_zigzag_cut(split, part + 1) - dpari_zigzag_cut(split, part);
}

DPARI_HOT int64_t dpari_zigzag_second(const dpar_split *split, int64_t part)
{
    return dpari_zigzag_first(split, 2 * (int64_t)split->parts - 1 - part);
}

/* If the second chunk of a part has elements, the first one is full. */
DPARI_HOT int64_t dpari_zigzag_find(const dpar_split *split, int64_t i, int64_t *local)
{
    int64_t in, chunk = dpari_split_div(split, 0, i, &in);
    if (chunk < split->parts) {
        *local = in;
        return chunk;
    }
    *local = split->by[0] + in;
    return 2 * (int64_t)split->parts - 1 - chunk;
}

DPARI_HOT int64_t dpari_zigzag_global(const dpar_split *split, int64_t part, int64_t local)
{
    int64_t first = dpari_zigzag_first(split, part), chunk = 2 * (int64_t)split->parts - 1 - part;
    if (local < first) {
        return dpari_zigzag_cut(split, part) + local;
    }
    return local - first < dpari_zigzag_second(split, part)
               ? dpari_zigzag_cut(split, chunk) + (local - first)
               : -1;
}

/* ---- any rule -------------------------------------------------------------------------------- */

DPARI_HOT int dpari_split_has(const dpar_split *split, int32_t part)
{
    return part >= 0 && part < split->parts;
}

/* Finds the part that has i, 0 <= i < N, and its local index there. */
DPARI_HOT int32_t dpari_split_find(const dpar_split *split, int64_t i, int64_t *local)
{
    int64_t part;
    switch (split->rule) {
    case DPAR_SPLIT_CHUNK: return (int32_t)dpari_split_div(split, 0, i, local);
    case DPAR_SPLIT_BLOCK_CYCLIC: return (int32_t)dpari_cyclic_find(split, i, local);
    case DPAR_SPLIT_CYCLIC: *local = dpari_split_div(split, 1, i, &part); return (int32_t)part;
    case DPAR_SPLIT_STRIDED: return (int32_t)dpari_strided_find(split, i, local);
    case DPAR_SPLIT_ZIGZAG: return (int32_t)dpari_zigzag_find(split, i, local);
    case DPAR_SPLIT_EVEN: part = dpari_even_part(split, i); break;
    case DPAR_SPLIT_FLOOR: part = dpari_floor_part(split, i); break;
    default: part = dpari_split_search(split, i);
    }
    *local = i - dpari_split_cut(split, part);
    return (int32_t)part;
}

/* Returns the element at index `local` of a part that exists, or -1. */
DPARI_HOT int64_t dpari_split_global(const dpar_split *split, int32_t part, int64_t local)
{
    int64_t cut;
    switch (split->rule) {
    case DPAR_SPLIT_BLOCK_CYCLIC:
    case DPAR_SPLIT_CYCLIC: return dpari_cyclic_global(split, part, local);
    case DPAR_SPLIT_STRIDED: return dpari_strided_global(split, part, local);
    case DPAR_SPLIT_ZIGZAG: return dpari_zigzag_global(split, part, local);
    default:
        cut = dpari_split_cut(split, part);
        return local < dpari_split_cut(split, (int64_t)part + 1) - cut ? cut + local : -1;
    }
}

/* Counts the elements from i on that are consecutive in the part, where i has index `local`. */
static int64_t dpari_split_run(const dpar_split *split, int32_t part, int64_t i, int64_t local)
{
    int64_t in, left = split->count - i;
    switch (split->rule) {
    case DPAR_SPLIT_BLOCK_CYCLIC:
    case DPAR_SPLIT_CYCLIC:
        (void)dpari_split_div(split, 0, local, &in);
        return split->parts == 1 ? left : dpari_least(left, split->block - in);
    case DPAR_SPLIT_STRIDED:
        if (split->by[0] ==
            split->by[1]) { /* with pieces of one element or only one part, part 0 has everything */
            return left;
        }
        if (dpari_split_div(split, 0, i, &in) < split->rounds) {
            return part * split->by[1] + dpari_strided_full(split, part) - in;
        }
        left = dpari_strided_last(split, part, &local);
        return local + left - in;
    case DPAR_SPLIT_ZIGZAG: /* the two middle chunks are adjacent, so part P-1 has one run */
        in = dpari_zigzag_first(split, part);
        return local < in && part < split->parts - 1
                   ? in - local
                   : in + dpari_zigzag_second(split, part) - local;
    default: return dpari_split_cut(split, (int64_t)part + 1) - i;
    }
}

/* ---- queries --------------------------------------------------------------------------------- */

DPAR_API int64_t dpar_split_part_count(const dpar_split *split, int32_t part)
{
    int64_t offset;
    if (!dpari_split_has(split, part)) {
        return 0;
    }
    switch (split->rule) {
    case DPAR_SPLIT_BLOCK_CYCLIC:
    case DPAR_SPLIT_CYCLIC:
        return split->rounds * split->block +
               dpari_cyclic_last(split, dpari_cyclic_turn(split, part));
    case DPAR_SPLIT_STRIDED:
        return split->rounds * dpari_strided_full(split, part) +
               dpari_strided_last(split, part, &offset);
    case DPAR_SPLIT_ZIGZAG:
        return dpari_zigzag_first(split, part) + dpari_zigzag_second(split, part);
    default: return dpari_split_cut(split, (int64_t)part + 1) - dpari_split_cut(split, part);
    }
}

DPARI_API int dpari_split_in_order(const dpar_split *split)
{
    return split->rule == DPAR_SPLIT_CHUNK || split->rule == DPAR_SPLIT_EVEN ||
           split->rule == DPAR_SPLIT_FLOOR || split->rule == DPAR_SPLIT_RAGGED;
}

DPARI_INTERNAL int32_t dpari_even_of(int64_t n, int32_t parts, int64_t i)
{
    /* not longer * (each + 1), because each + 1 overflows if one part has 2^63 - 1 elements */
    const int64_t each = n / parts, longer = n % parts, beyond = longer * each + longer;
    return (int32_t)(i < beyond ? i / (each + 1) : longer + (i - beyond) / each);
}

DPAR_API int64_t dpar_split_part_first(const dpar_split *split, int32_t part)
{
    int64_t i = dpar_split_global(split, part, 0, NULL);
    return i < 0 ? split->count : i;
}

/* Not inlined, so that callers that need no run do not pay for it. */
DPARI_STATIC_NOINLINE int32_t dpari_split_find_run(const dpar_split *split, int64_t i,
                                                   int64_t *local, int64_t *run)
{
    int64_t at;
    int32_t part;
    if (i < 0 || i >= split->count) {
        return -1;
    }
    part = dpari_split_find(split, i, &at);
    *run = dpari_split_run(split, part, i, at);
    if (local != NULL) {
        *local = at;
    }
    return part;
}

DPAR_API int32_t dpar_split_locate(const dpar_split *split, int64_t i, int64_t *local, int64_t *run)
{
    int64_t at;
    int32_t part;
    if (run != NULL) {
        return dpari_split_find_run(split, i, local, run);
    }
    if (i < 0 || i >= split->count) {
        return -1;
    }
    part = dpari_split_find(split, i, &at);
    if (local != NULL) {
        *local = at;
    }
    return part;
}

DPAR_API int64_t dpar_split_global(const dpar_split *split, int32_t part, int64_t local,
                                   int64_t *run)
{
    int64_t i =
        dpari_split_has(split, part) && local >= 0 ? dpari_split_global(split, part, local) : -1;
    if (run != NULL && i >= 0) {
        *run = dpari_split_run(split, part, i, local);
    }
    return i;
}

/* Returns how many of `length` elements from `start` on are before i. */
static int64_t dpari_split_past(int64_t i, int64_t start, int64_t length)
{
    return i <= start ? 0 : dpari_least(i - start, length);
}

/* Counts the elements of `part` among the first i elements. The cuts are those of the whole count,
 * not of i elements. */
DPARI_INTERNAL int64_t dpari_split_before(const dpar_split *split, int32_t part, int64_t i)
{
    int64_t in, offset, piece, size, turn;
    if (!dpari_split_has(split, part) || i <= 0) {
        return 0;
    }
    i = dpari_least(i, split->count);
    switch (split->rule) {
    case DPAR_SPLIT_BLOCK_CYCLIC:
    case DPAR_SPLIT_CYCLIC:
        piece = dpari_split_div(split, 1, dpari_split_div(split, 0, i, &in), &turn) * split->block;
        offset = turn - dpari_cyclic_turn(split, part);
        if (offset > 0) {
            return piece + split->block;
        }
        return offset == 0 ? piece + in : piece;
    case DPAR_SPLIT_STRIDED:
        piece = dpari_split_div(split, 0, i, &in);
        size = dpari_strided_full(split, part);
        offset = part * split->by[1];
        turn = piece < split->rounds ? size : dpari_strided_last(split, part, &offset);
        return piece * size + dpari_split_past(in, offset, turn);
    case DPAR_SPLIT_ZIGZAG:
        size = 2 * (int64_t)split->parts - 1 - part;
        return dpari_split_past(i, dpari_zigzag_cut(split, part), dpari_zigzag_first(split, part)) +
               dpari_split_past(i, dpari_zigzag_cut(split, size), dpari_zigzag_second(split, part));
    default:
        return dpari_split_past(i, dpari_split_cut(split, part),
                                dpar_split_part_count(split, part));
    }
}

/* ---- without a split ---- */

DPAR_API int32_t dpar_split_owner(int32_t rule, int64_t count, int32_t parts, int64_t i)
{
    dpar_split s; /* made with a block of 0, which the rules that need a block refuse */
    return dpar_split_init(&s, rule, count, parts, 0, NULL) == DPAR_OK
               ? dpar_split_locate(&s, i, NULL, NULL)
               : -1;
}

DPAR_API dpar_status dpar_split_range(int32_t rule, int64_t count, int32_t parts, int32_t part,
                                      int64_t *first, int64_t *elements)
{
    dpar_split s;
    const dpar_status st = dpar_split_init(&s, rule, count, parts, 0, NULL);
    if (st < 0) {
        return st;
    }
    if (part < 0 || part >= parts || rule > DPAR_SPLIT_FLOOR) {
        return DPAR_E_ARG;
    }
    *first = dpar_split_part_first(&s, part);
    *elements = dpar_split_part_count(&s, part);
    return DPAR_OK;
}

/* ==== index/layout.c ==== */

/* Layouts. The cuts of a dim form a chain: each mesh axis that shards it splits what the axes
 * before it left, by a dpar_split. A local index becomes a global one from the innermost cut
 * outwards, and a global index is located from the outermost cut inwards. All other functions apply
 * this to each dim. */

DPAR_API dpar_placement dpar_shard_by(int32_t dim, int32_t rule, int64_t block)
{
    dpar_placement p;
    dpari_zero(&p, sizeof(p));
    p.kind = DPAR_PLACEMENT_SHARD;
    p.dim = dim;
    p.rule = rule;
    p.block = block;
    return p;
}

DPAR_API dpar_placement dpar_shard(int32_t dim)
{
    return dpar_shard_by(dim, DPAR_SPLIT_CHUNK, 0);
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
    p.kind = DPAR_PLACEMENT_PARTIAL;
    p.op = op;
    return p;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Makes the split of `count` elements by an axis. It cannot fail, because dpar_layout_init checked
 * it. */
static void dpari_axis_split(const dpar_layout *layout, int32_t axis, int64_t count,
                             dpar_split *split)
{
    const dpar_placement *placement = &layout->axis[axis];
    dpari_zero(split, sizeof(*split));
    split->rule = placement->rule;
    split->parts = layout->mesh.axis[axis].size;
    split->block = placement->rule == DPAR_SPLIT_CYCLIC ? 1 : placement->block;
    split->source = placement->rule == DPAR_SPLIT_BLOCK_CYCLIC ? placement->source : 0;
    split->cuts = placement->cuts;
    dpari_split_resize(split, count);
}

/* Returns the next axis that cuts a dim, from position k of the order on, or -1. */
static int32_t dpari_next_cut(const dpar_layout *layout, int32_t dim, int32_t k)
{
    for (; k < layout->mesh.axes; k++) {
        const dpar_placement *placement = &layout->axis[layout->order[k]];
        if (placement->kind == DPAR_PLACEMENT_SHARD && placement->dim == dim) {
            return k;
        }
    }
    return -1;
}

static dpar_status dpari_check_shard(const dpar_placement *placement, int32_t axis, int32_t size,
                                     const int64_t *extent, int32_t dims, dpar_why *why)
{
    dpar_split s;
    dpar_status st;
    int32_t dim = placement->dim + (placement->dim < 0 ? dims : 0);
    if (placement->rule != DPAR_SPLIT_RAGGED) {
        if (placement->rule == DPAR_SPLIT_BLOCK_CYCLIC &&
            (placement->source < 0 || placement->source >= size)) {
            return dpari_wrong(why, "source is %d: must be one of the %d parts", placement->source,
                               size);
        }
        return dpar_split_init(&s, placement->rule, extent[dim], size, placement->block, why);
    }
    if (placement->cuts == NULL) {
        return dpari_wrong(why, "axis %d: RAGGED needs cuts", axis);
    }
    st = dpar_split_init_ragged(&s, size, placement->cuts, why);
    if (st == DPAR_OK && s.count != extent[dim]) {
        return dpari_say(DPAR_E_DIVIDE, why, "the cuts end at %ld, but dim %d has %ld elements",
                         s.count, dim, extent[dim]);
    }
    return st;
}

static dpar_status dpari_check_axis(const dpar_placement *placement, int32_t axis, int32_t dims,
                                    dpar_why *why)
{
    if (placement->kind == DPAR_PLACEMENT_SHARD &&
        (placement->dim < -dims || placement->dim >= dims)) {
        return dpari_wrong(why, "axis %d shards dim %d, but the array has %d dims", axis,
                           placement->dim, dims);
    }
    if (placement->kind == DPAR_PLACEMENT_PARTIAL &&
        (placement->op < DPAR_SUM || placement->op >= DPAR_OP_COUNT)) {
        return dpari_wrong(why, "axis %d: op %d is not a reduction", axis, placement->op);
    }
    if (placement->kind < DPAR_PLACEMENT_REPLICATE || placement->kind > DPAR_PLACEMENT_PARTIAL) {
        return dpari_wrong(why, "axis %d: placement kind %d does not exist", axis, placement->kind);
    }
    return DPAR_OK;
}

/* Sorts the axes into the order in which they cut, and checks that RAGGED is the first cut of its
 * dim. */
static dpar_status dpari_check_order(const dpar_placement *placement, int32_t axes, int32_t dims,
                                     int8_t *order, dpar_why *why)
{
    uint32_t cut = 0;
    int32_t i, k;
    for (i = 0; i < axes; i++) {
        for (k = i; k > 0 && placement[order[k - 1]].order > placement[i].order; k--) {
            order[k] = order[k - 1];
        }
        order[k] = (int8_t)i;
    }
    for (k = 0; k < axes; k++) {
        const dpar_placement *q = &placement[order[k]];
        int32_t dim = q->dim + (q->dim < 0 ? dims : 0);
        if (q->kind != DPAR_PLACEMENT_SHARD) {
            continue;
        }
        if (q->rule == DPAR_SPLIT_RAGGED && (cut >> dim & 1u)) {
            return dpari_wrong(why, "axis %d: RAGGED must be the first cut of dim %d", order[k],
                               dim);
        }
        cut |= (uint32_t)1 << dim;
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_layout_init(dpar_layout *layout, const dpar_mesh *mesh,
                                                 int32_t dims, const int64_t *extent,
                                                 const dpar_placement *placement, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int8_t order[DPAR_MAX_AXES] = {0};
    int32_t i;
    if (mesh->size < 1 || mesh->axes < 0 || mesh->axes > DPAR_MAX_AXES) {
        return dpari_wrong(why, "the mesh has %d axes and %d ranks: use dpar_mesh_init", mesh->axes,
                           mesh->size);
    }
    if (dims < 0 || dims > DPAR_MAX_DIMS) {
        return dpari_wrong(why, "dims must be 0 to %d, not %d", (int32_t)DPAR_MAX_DIMS, dims);
    }
    for (i = 0; i < dims; i++) {
        if (extent[i] < 0 || extent[i] > INT64_C(1) << 62) {
            return dpari_say(extent[i] < 0 ? DPAR_E_ARG : DPAR_E_RANGE, why,
                             "dim %d has %ld elements: must be 0 to 2^62", i, extent[i]);
        }
    }
    for (i = 0; i < mesh->axes && st == DPAR_OK; i++) {
        st = dpari_check_axis(&placement[i], i, dims, why);
    }
    if (st == DPAR_OK) {
        st = dpari_check_order(placement, mesh->axes, dims, order, why);
    }
    for (i = 0; i < mesh->axes && st == DPAR_OK; i++) {
        if (placement[i].kind == DPAR_PLACEMENT_SHARD) {
            st = dpari_check_shard(&placement[i], i, mesh->axis[i].size, extent, dims, why);
        }
    }
    if (st != DPAR_OK) {
        return st;
    }
    layout->mesh = *mesh;
    layout->dims = dims;
    for (i = 0; i < DPAR_MAX_DIMS; i++) {
        layout->extent[i] = i < dims ? extent[i] : 0;
    }
    for (i = 0; i < mesh->axes && i < DPAR_MAX_AXES; i++) { /* gcc -O3 warns without it */
        layout->axis[i] = placement[i];
        if (placement[i].kind == DPAR_PLACEMENT_SHARD && placement[i].dim < 0) {
            layout->axis[i].dim += dims;
        }
        layout->order[i] = order[i];
    }
    for (; i < DPAR_MAX_AXES; i++) {
        dpari_zero(&layout->axis[i], sizeof(layout->axis[i]));
        layout->order[i] = 0;
    }
    return DPAR_OK;
}

/* ---- one dim --------------------------------------------------------------------------------- */

/* The cuts of one dim as one rank sees them: cut k splits the part that cut k - 1 gave it. */
typedef struct dpari_nest {
    int32_t cuts;
    int64_t size[DPAR_MAX_AXES + 1]; /* number of indices before cut k; size[cuts] is what the rank
                                        owns */
    int8_t axis[DPAR_MAX_AXES];
    dpar_split split; /* scratch for one cut: the last one after dpari_nest_of */
} dpari_nest;

/* Lists the cuts of a dim. `coord` has the rank's coordinates; NULL means that the rank is not in
 * the mesh and owns nothing. */
static void dpari_nest_of(const dpar_layout *layout, const int32_t *coord, int32_t dim,
                          dpari_nest *e)
{
    int32_t k = dpari_next_cut(layout, dim, 0);
    e->cuts = 0;
    e->size[0] = coord != NULL ? layout->extent[dim] : 0;
    for (; k >= 0 && coord != NULL; k = dpari_next_cut(layout, dim, k + 1)) {
        int32_t axis = layout->order[k];
        dpari_axis_split(layout, axis, e->size[e->cuts], &e->split);
        e->axis[e->cuts] = (int8_t)axis;
        e->size[e->cuts + 1] = dpar_split_part_count(&e->split, coord[axis]);
        e->cuts++;
    }
}

/* Converts a local index to a global one, from the innermost cut outwards. Returns -1 if the rank
 * does not have it. *run receives how many indices are consecutive from there on. */
static int64_t dpari_nest_global(const dpar_layout *layout, const int32_t *coord, dpari_nest *e,
                                 int64_t local, int64_t *run)
{
    int64_t least, here = 0;
    int32_t k;
    if (local < 0 || local >= e->size[e->cuts]) {
        return -1;
    }
    least = e->size[e->cuts] - local;
    for (k = e->cuts - 1; k >= 0; k--) {
        if (e->cuts > 1) { /* the split of the only cut was made by dpari_nest_of */
            dpari_axis_split(layout, e->axis[k], e->size[k], &e->split);
        }
        local = dpar_split_global(&e->split, coord[e->axis[k]], local, &here);
        least = dpari_least(least, here);
    }
    *run = least;
    return local;
}

static const int32_t *dpari_coords(const dpar_layout *layout, int32_t rank, int32_t *coord)
{
    return dpar_mesh_coords(&layout->mesh, rank, coord) ? coord : NULL;
}

/* Not inlined, so that its frame and that of the search for coordinates are not on the stack at the
 * same time. */
DPARI_STATIC_NOINLINE int64_t dpari_global_at(const dpar_layout *layout, const int32_t *coord,
                                              int32_t dim, int64_t local, int64_t *run)
{
    int64_t here, i;
    dpari_nest e;
    dpari_nest_of(layout, coord, dim, &e);
    i = dpari_nest_global(layout, coord, &e, local, &here);
    if (i >= 0 && run != NULL) {
        *run = here;
    }
    return i;
}

DPAR_API int64_t dpar_layout_global(const dpar_layout *layout, int32_t rank, int32_t dim,
                                    int64_t local, int64_t *run)
{
    int32_t coord[DPAR_MAX_AXES];
    if (dim < 0 || dim >= layout->dims) {
        return -1;
    }
    return dpari_global_at(layout, dpari_coords(layout, rank, coord), dim, local, run);
}

DPARI_API int dpari_layout_span(const dpar_layout *layout, const int32_t *coord, int32_t dim,
                                int64_t *lo, int64_t *hi)
{
    int64_t run;
    dpari_nest e;
    if (dim < 0 || dim >= layout->dims) {
        return 0;
    }
    dpari_nest_of(layout, coord, dim, &e);
    if (e.size[e.cuts] == 0) {
        return 0;
    }
    *lo = dpari_nest_global(layout, coord, &e, 0, &run);
    *hi = dpari_nest_global(layout, coord, &e, e.size[e.cuts] - 1, &run) + 1;
    return 1;
}

/* Counts the indices before i that the ranks at coord[] own, from the outermost cut inwards. */
DPARI_STATIC_NOINLINE int64_t dpari_before_at(const dpar_layout *layout, const int32_t *coord,
                                              int32_t dim, int64_t i)
{
    int64_t size = layout->extent[dim];
    int32_t k;
    dpar_split s;
    i = dpari_most(0, dpari_least(i, size));
    for (k = dpari_next_cut(layout, dim, 0); k >= 0; k = dpari_next_cut(layout, dim, k + 1)) {
        dpari_axis_split(layout, layout->order[k], size, &s);
        i = dpari_split_before(&s, coord[layout->order[k]], i);
        size = dpar_split_part_count(&s, coord[layout->order[k]]);
    }
    return i;
}

DPARI_INTERNAL int64_t dpari_layout_before(const dpar_layout *layout, int32_t rank, int32_t dim,
                                           int64_t i)
{
    int32_t coord[DPAR_MAX_AXES];
    if (dim < 0 || dim >= layout->dims || dpari_coords(layout, rank, coord) == NULL) {
        return 0;
    }
    return dpari_before_at(layout, coord, dim, i);
}

DPAR_API int dpar_layout_locate(const dpar_layout *layout, int32_t dim, int64_t i, int32_t *coord,
                                int64_t *local, int64_t *run)
{
    int64_t least, here, count;
    int32_t k;
    dpar_split s;
    if (dim < 0 || dim >= layout->dims || i < 0 || i >= layout->extent[dim]) {
        return 0;
    }
    count = layout->extent[dim];
    least = count - i;
    for (k = dpari_next_cut(layout, dim, 0); k >= 0; k = dpari_next_cut(layout, dim, k + 1)) {
        int32_t axis = layout->order[k];
        dpari_axis_split(layout, axis, count, &s);
        coord[axis] = dpar_split_locate(&s, i, &i, &here);
        least = dpari_least(least, here);
        count = dpar_split_part_count(&s, coord[axis]);
    }
    if (local != NULL) {
        *local = i;
    }
    if (run != NULL) {
        *run = least;
    }
    return 1;
}

/* ---- all dims -------------------------------------------------------------------------------- */

DPARI_STATIC_NOINLINE void dpari_local_at(const dpar_layout *layout, const int32_t *coord,
                                          int32_t d, int64_t *shape, int64_t *offset)
{
    int64_t run, first;
    dpari_nest e;
    dpari_nest_of(layout, coord, d, &e);
    first = dpari_nest_global(layout, coord, &e, 0, &run);
    if (shape != NULL) {
        shape[d] = e.size[e.cuts];
    }
    if (offset != NULL) {
        offset[d] = first < 0 ? layout->extent[d] : first;
    }
}

DPAR_API void dpar_layout_local(const dpar_layout *layout, int32_t rank, int64_t *shape,
                                int64_t *offset)
{
    int32_t coord[DPAR_MAX_AXES], d;
    const int32_t *at = dpari_coords(layout, rank, coord);
    for (d = 0; d < layout->dims; d++) {
        dpari_local_at(layout, at, d, shape, offset);
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

DPAR_API int64_t dpar_layout_count(const dpar_layout *layout, int32_t rank)
{
    int64_t shape[DPAR_MAX_DIMS];
    int32_t coord[DPAR_MAX_AXES];
    if (dpari_coords(layout, rank, coord) == NULL) {
        return 0; /* also for an array without dims */
    }
    dpar_layout_local(layout, rank, shape, NULL);
    return dpari_volume(layout->dims, shape);
}

DPAR_API void dpar_layout_strides(const dpar_layout *layout, int32_t rank, const int64_t *whole,
                                  int64_t *stride)
{
    int64_t shape[DPAR_MAX_DIMS];
    int32_t d, k;
    dpar_layout_local(layout, rank, shape, NULL);
    for (d = 0; d < layout->dims; d++) {
        stride[d] = 1;
        for (k = 0; k < layout->dims; k++) {
            int faster = whole == NULL || whole[k] == whole[d] ? k > d : whole[k] < whole[d];
            if (faster && !dpari_mul(stride[d], dpari_most(1, shape[k]), &stride[d])) {
                stride[d] = INT64_MAX;
            }
        }
    }
}

/* ---- copies ---------------------------------------------------------------------------------- */

static uint32_t dpari_copy_axes(const dpar_layout *layout)
{
    uint32_t set = 0;
    int32_t i;
    for (i = 0; i < layout->mesh.axes; i++) {
        set |= layout->axis[i].kind != DPAR_PLACEMENT_SHARD ? (uint32_t)1 << i : 0;
    }
    return set;
}

DPARI_API int32_t dpari_layout_copies(const dpar_layout *layout)
{
    return dpar_mesh_group_size(&layout->mesh, dpari_copy_axes(layout));
}

DPAR_API int32_t dpar_layout_owner(const dpar_layout *layout, const int64_t *index, int32_t copy,
                                   int64_t *local)
{
    int32_t coord[DPAR_MAX_AXES], d;
    int64_t at[DPAR_MAX_DIMS], run;
    if (copy < 0 || copy >= dpari_layout_copies(layout)) {
        return -1;
    }
    dpari_zero(coord, sizeof(coord));
    for (d = 0; d < layout->dims; d++) {
        if (!dpar_layout_locate(layout, d, index[d], coord, &at[d], &run)) {
            return -1;
        }
    }
    for (d = 0; d < layout->dims && local != NULL; d++) {
        local[d] = at[d];
    }
    return dpar_mesh_group_member(&layout->mesh, dpari_copy_axes(layout),
                                  dpar_mesh_rank(&layout->mesh, coord), copy);
}

DPAR_API int dpar_layout_is_primary(const dpar_layout *layout, int32_t rank)
{
    return dpar_mesh_group_index(&layout->mesh, dpari_copy_axes(layout), rank) == 0;
}

/* ---- boxes ----------------------------------------------------------------------------------- */

DPAR_API int dpar_layout_next(const dpar_layout *layout, int32_t rank, dpar_box_cursor *cursor,
                              dpar_box *box, int64_t *at)
{
    int32_t coord[DPAR_MAX_AXES], d;
    const int32_t *where = dpari_coords(layout, rank, coord);
    dpari_nest e;
    int64_t run;
    if (where == NULL || (cursor->begun && layout->dims == 0)) {
        return 0;
    }
    for (d = layout->dims - 1; d >= 0 && cursor->begun; d--) { /* the next run of the fastest dim */
        dpari_nest_of(layout, where, d, &e);
        (void)dpari_nest_global(layout, coord, &e, cursor->local[d], &run);
        cursor->local[d] += run;
        if (cursor->local[d] < e.size[e.cuts]) {
            break;
        }
        cursor->local[d] = 0;
        if (d == 0) {
            return 0;
        }
    }
    for (d = 0; d < layout->dims; d++) {
        dpari_nest_of(layout, where, d, &e);
        box->lo[d] = dpari_nest_global(layout, coord, &e, cursor->local[d], &run);
        if (box->lo[d] < 0) {
            return 0; /* an empty dim */
        }
        box->hi[d] = box->lo[d] + run;
        if (at != NULL) {
            at[d] = cursor->local[d];
        }
    }
    box->dims = layout->dims;
    cursor->begun = 1;
    return 1;
}

/* ---- comparing ------------------------------------------------------------------------------- */

DPARI_INTERNAL void dpari_layout_cut_in(dpar_layout *layout, const int8_t *order)
{
    const int64_t axes =
        dpari_least(layout->mesh.axes, DPAR_MAX_AXES); /* compilers warn without it */
    int32_t k;
    for (k = 0; k < axes; k++) {
        layout->order[k] = order[k];
        layout->axis[order[k]].order = k;
    }
}

DPARI_INTERNAL int dpari_layout_same(const dpar_layout *a, const dpar_layout *b)
{
    int32_t i, d;
    if (a->dims != b->dims || !dpari_mesh_same(&a->mesh, &b->mesh)) {
        return 0;
    }
    for (i = 0; i < a->mesh.axes; i++) {
        const dpar_placement *x = &a->axis[i], *y = &b->axis[i];
        int shard = x->kind == DPAR_PLACEMENT_SHARD;
        if (x->kind != y->kind || (x->kind == DPAR_PLACEMENT_PARTIAL && x->op != y->op) ||
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
        do { /* both layouts must cut the dim by the same axes, in the same order */
            j = dpari_next_cut(a, d, j + 1);
            k = dpari_next_cut(b, d, k + 1);
            if ((j < 0) != (k < 0) || (j >= 0 && a->order[j] != b->order[k])) {
                return 0;
            }
        } while (j >= 0);
    }
    return 1;
}

/* ==== index/reach.c ==== */

/* The walk over a halo's transfers: for a receiver, which ranks own its halo points; for a sender,
 * which receivers read its points. A receiver's points are visited in several passes, one for each
 * path to them (inside the grid, over a fold or a pole, over each edge of a cubed sphere). Within a
 * pass each dim is cut into segments with one owner, and a product of segments is one transfer. A
 * sender walks what its receivers would walk and keeps the transfers that name it. Both sides
 * therefore list the same transfers in the same order without communication. */

/* ---- where points come from ------------------------------------------------------------------ */

/* The passes over a receiver's points. Each pass visits the points on one path: in each dim it is a
 * range of points, which one map takes into one dim of the sender. */
enum {
    DPARI_PLAIN,
    DPARI_SEAM,   /* the row on a fold, its first half */
    DPARI_TWICE,  /* the second half of that row, with the images of the first */
    DPARI_FOLDED, /* beyond the fold */
    DPARI_SOUTH,  /* beyond the low pole */
    DPARI_NORTH,
    DPARI_EDGES,                      /* 24 passes, over each of the 4 edges of 6 faces */
    DPARI_BORDERS = DPARI_EDGES + 24, /* 24 passes to the border beyond an edge that a third face
                                         owns */
    DPARI_PASSES = DPARI_BORDERS + 24
};

/* How a pass finds the sender's point for a point x of the receiver, in one dim. */
typedef struct dpari_halo_map {
    int64_t lo, hi; /* for points x with lo <= x < hi */
    int64_t offset; /* the sender's point is offset + x, */
    int32_t back;   /* or offset - x if this is 1, */
    int32_t from;   /* in this dim of the sender */
    int32_t half;   /* 1 or 2 for only the columns in this half of the row on a fold; 0 for all */
} dpari_halo_map;

static const int64_t dpari_halo_far = INT64_C(1) << 62;

static int dpari_halo_has_seam(const dpar_halo *halo)
{
    return halo->folds && halo->on_row;
}

/* Returns the edge of a pass over edges. Each face has four consecutive passes. */
static int32_t dpari_halo_pass_edge(int32_t pass)
{
    return (pass - DPARI_EDGES) % 4;
}

/* Returns the kind of points along the edge of a pass, DPAR_HALO_AT_x. */
static int32_t dpari_halo_along(const dpar_halo *halo, int32_t pass)
{
    return halo->points[halo->grid.dims - (dpari_halo_pass_edge(pass) >= DPARI_EDGE_SOUTH ? 1 : 2)];
}

/* True if a pass has anything to do. */
static int dpari_halo_has_pass(const dpar_halo *halo, int32_t pass)
{
    switch (pass) {
    case DPARI_PLAIN: return 1;
    case DPARI_SEAM:
    case DPARI_TWICE: return dpari_halo_has_seam(halo);
    case DPARI_FOLDED: return halo->folds != 0;
    case DPARI_SOUTH: return (halo->poles & DPAR_HALO_POLE_LOW) != 0;
    case DPARI_NORTH: return (halo->poles & DPAR_HALO_POLE_HIGH) != 0;
    default:
        return halo->cube &&
               (pass < DPARI_BORDERS || dpari_halo_along(halo, pass) != DPAR_HALO_AT_CELLS);
    }
}

/* From an even face, east leads to the next face without a turn, and north to the face after that
 * with a turn. From an odd face, east and north are exchanged. West and south lead back. */
DPARI_API DPARI_COLD int32_t dpari_halo_edge(int32_t face, int32_t edge, int32_t *turn)
{
    int32_t along_y = edge >= DPARI_EDGE_SOUTH, step;
    if (face < 0 || face > 5 || edge < DPARI_EDGE_WEST || edge > DPARI_EDGE_NORTH) {
        return -1;
    }
    step = (edge == DPARI_EDGE_EAST) == (face % 2 == 0) ? 1 : 2;
    if (edge == DPARI_EDGE_WEST || edge == DPARI_EDGE_SOUTH) {
        step = (edge == DPARI_EDGE_SOUTH) == (face % 2 == 0) ? -1 : -2;
    } else if (edge == DPARI_EDGE_NORTH) {
        step = face % 2 == 0 ? 2 : 1;
    }
    *turn = along_y ? 1 : 3;
    if (step == 1 || step == -1) {
        *turn = 0;
    }
    return (face + step + 6) % 6;
}

/* The path of a pass: over an edge, and for borders also over a second edge to a third face. That
 * face is reached over the west or south edge of the second one, or for points at low faces over
 * its east or north edge. */
typedef struct dpari_halo_way {
    int32_t edges, face, turn; /* number of edges, 1 or 2; the last face; all quarter turns */
    int32_t edge[2], turns[2]; /* each edge and its quarter turns */
} dpari_halo_way;

static DPARI_COLD void dpari_halo_way_of(const dpar_halo *halo, int32_t pass, dpari_halo_way *w)
{
    int32_t along_x;
    w->edges = 1;
    w->edge[0] = dpari_halo_pass_edge(pass);
    w->face = dpari_halo_edge((pass - DPARI_EDGES) / 4 % 6, w->edge[0], &w->turns[0]);
    w->turn = w->turns[0];
    if (pass < DPARI_BORDERS) {
        return;
    }
    along_x = (w->edge[0] >= DPARI_EDGE_SOUTH) != (w->turn != 0);
    w->edges = 2;
    w->edge[1] = along_x ? DPARI_EDGE_WEST : DPARI_EDGE_SOUTH;
    w->edge[1] += dpari_halo_along(halo, pass) == DPAR_HALO_AT_LOW_FACES;
    w->face = dpari_halo_edge(w->face, w->edge[1], &w->turns[1]);
    w->turn = (w->turn + w->turns[1]) % 4;
}

/* Sets the range of points that a pass visits in the dim along the edge. The face beyond the edge
 * has points on both of its borders, but owns only one border: with low faces not the last one,
 * with high faces not the first one, and the reverse if the face is turned. */
static void dpari_halo_map_along(const dpar_halo *halo, int32_t pass, int32_t turn,
                                 dpari_halo_map *map)
{
    const int32_t points = dpari_halo_along(halo, pass), low = points == DPAR_HALO_AT_LOW_FACES;
    const int64_t n = halo->grid.extent[halo->grid.dims - 1];
    const int64_t first = points == DPAR_HALO_AT_HIGH_FACES ? -1 : 0;
    const int at_first = low == (turn != 0);
    const int64_t border = at_first ? first : first + n;
    if (points == DPAR_HALO_AT_CELLS) {
        return;
    }
    map->lo = pass >= DPARI_BORDERS ? border : first + at_first;
    map->hi = pass >= DPARI_BORDERS ? border + 1 : first + at_first + n;
}

/* Returns the dim in which an edge is crossed. */
static int32_t dpari_halo_across(const dpar_halo *halo, int32_t edge)
{
    return halo->grid.dims - (edge >= DPARI_EDGE_SOUTH ? 2 : 1);
}

/* Maps one of the last two dims over the edges of a path. Over an edge with a turn, the dim along
 * the edge counts backwards. */
static void dpari_halo_go_over(const dpar_halo *halo, const dpari_halo_way *w, int32_t d,
                               dpari_halo_map *map)
{
    const int64_t n = halo->grid.extent[halo->grid.dims - 1];
    int32_t k, shift = 1; /* point i of N cells becomes N - shift - i */
    if (halo->points[d] == DPAR_HALO_AT_LOW_FACES) {
        shift = 0;
    } else if (halo->points[d] == DPAR_HALO_AT_HIGH_FACES) {
        shift = 2;
    }
    for (k = 0; k < w->edges; k++) {
        const int32_t edge = w->edge[k];
        if (map->from == dpari_halo_across(halo, edge)) {
            map->offset += edge == DPARI_EDGE_EAST || edge == DPARI_EDGE_NORTH ? -n : n;
        } else if (w->turns[k] != 0) {
            map->back = !map->back;
            map->offset = n - map->offset - shift;
        }
        map->from = w->turns[k] != 0 ? 2 * halo->grid.dims - 3 - map->from : map->from;
    }
}

/* Sets the map of a pass over an edge of a face. */
static void dpari_halo_map_edge(const dpar_halo *halo, int32_t pass, int32_t d, dpari_halo_map *map)
{
    const int64_t n = halo->grid.extent[halo->grid.dims - 1];
    dpari_halo_way w;
    int up;
    dpari_halo_way_of(halo, pass, &w);
    if (d == 0) {
        map->lo = (pass - DPARI_EDGES) / 4 % 6;
        map->hi = map->lo + 1;
        map->offset = w.face - map->lo;
    }
    if (d < halo->grid.dims - 2) {
        return;
    }
    up = w.edge[0] == DPARI_EDGE_EAST || w.edge[0] == DPARI_EDGE_NORTH;
    if (d == dpari_halo_across(halo, w.edge[0])) {
        map->lo = up ? n : -n;
        map->hi = up ? 2 * n : 0;
    } else {
        dpari_halo_map_along(halo, pass, w.turns[0], map);
    }
    dpari_halo_go_over(halo, &w, d, map);
}

static void dpari_halo_map_rows(const dpar_halo *halo, int32_t pass, dpari_halo_map *map)
{
    int64_t rows = dpar_halo_points(halo, halo->fold), on = halo->on_row;
    if (pass == DPARI_SEAM || pass == DPARI_TWICE) {
        map->lo = rows - 1;
        return;
    }
    map->back = 1;
    if (pass == DPARI_SOUTH) {
        on = (halo->pole_rows & DPAR_HALO_POLE_LOW) != 0;
        map->lo = -dpari_halo_behind(halo, DPAR_HALO_POLE_LOW);
        map->hi = 0;
        map->offset = on - 1;
        return;
    }
    if (pass == DPARI_NORTH) {
        on = (halo->pole_rows & DPAR_HALO_POLE_HIGH) != 0;
    }
    map->lo = rows;
    map->hi = 2 * rows - on;
    map->offset = 2 * (rows - 1) + 1 - on;
}

static void dpari_halo_map_columns(const dpar_halo *halo, int32_t pass, dpari_halo_map *map)
{
    int64_t columns = dpar_halo_points(halo, halo->mirror);
    if (pass == DPARI_SOUTH || pass == DPARI_NORTH) {
        map->offset = columns / 2;
        return;
    }
    if (pass == DPARI_SEAM) {
        map->half = 1;
        return;
    }
    map->half = pass == DPARI_TWICE ? 2 : 0;
    map->back = 1;
    map->offset = columns - 1 + halo->shift;
}

static DPARI_COLD void dpari_halo_map_of(const dpar_halo *halo, int32_t pass, int32_t d,
                                         dpari_halo_map *map)
{
    int wraps = (int)(halo->periodic >> d & 1u);
    map->lo = wraps ? -dpari_halo_far : 0;
    map->hi = wraps ? dpari_halo_far : dpar_halo_points(halo, d);
    map->offset = 0;
    map->back = 0;
    map->from = d;
    map->half = 0;
    if (pass == DPARI_PLAIN) {
        map->hi -= dpari_halo_has_seam(halo) && d == halo->fold;
    } else if (pass >= DPARI_EDGES) {
        dpari_halo_map_edge(halo, pass, d, map);
    } else if (d == halo->fold) {
        dpari_halo_map_rows(halo, pass, map);
    } else if (d == halo->mirror) {
        dpari_halo_map_columns(halo, pass, map);
    }
}

/* Computes the columns [at[0], at[1]) of the row on the fold that are images: the later column of
 * each pair. */
static void dpari_halo_second_half(const dpar_halo *halo, int64_t *at)
{
    int64_t columns = dpar_halo_points(halo, halo->mirror);
    at[0] = halo->shift > 0 ? columns / 2 + 1 : (columns - 1 + halo->shift) / 2 + 1;
    at[1] = halo->shift > 0 ? columns : columns + halo->shift;
}

/* Wraps point i around a ring. */
static int64_t dpari_halo_ring(int64_t i, int64_t points)
{
    return i - dpari_floor_div(i, points) * points;
}

/* Returns 1 if column x is in the half of the map. *n receives for how many columns from x on the
 * answer is the same. */
static int dpari_halo_in_half(const dpar_halo *halo, const dpari_halo_map *map, int64_t x,
                              int64_t *n)
{
    int64_t columns = dpar_halo_points(halo, halo->mirror), i = dpari_halo_ring(x, columns),
            end = columns, half[2];
    int second;
    dpari_halo_second_half(halo, half);
    second = i >= half[0] && i < half[1];
    if (second) {
        end = half[1];
    } else if (i < half[0]) {
        end = half[0];
    }
    *n = dpari_least(*n, end - i);
    return second == (map->half == 2);
}

/* ---- one dim of the walk --------------------------------------------------------------------- */

/* Computes the segment at x[d]: points with one owner, on the same side of the receiver's bounds.
 * Sets n, g, source, the bits of `inside` and `reversed`, and the coordinates of the source.
 * Returns 0 if nothing arrives in these n points. */
static int dpari_halo_segment(dpar_halo_cursor *cursor, int32_t d, int32_t *coord)
{
    const dpar_halo *halo = cursor->h;
    int64_t x = cursor->x[d], lo = cursor->at[d][0], hi = cursor->at[d][1], n, to, at[2];
    int inside = x >= lo && x < hi;
    dpari_halo_map m;
    n = cursor->fill[d][1];
    if (x < lo) {
        n = lo;
    } else if (inside) {
        n = hi;
    }
    n -= x;
    cursor->inside &= ~((uint32_t)1 << d);
    cursor->inside |= (uint32_t)inside << d;
    cursor->reversed &= ~((uint32_t)1 << d);
    dpari_halo_map_of(halo, cursor->pass, d, &m);
    if (x < m.lo || x >= m.hi) {
        cursor->n[d] = x < m.lo ? dpari_least(n, m.lo - x) : n;
        return 0;
    }
    n = dpari_least(n, m.hi - x);
    if (m.half != 0 && !dpari_halo_in_half(halo, &m, x, &n)) {
        cursor->n[d] = n;
        return 0;
    }
    to = m.back ? m.offset - x : m.offset + x;
    if (halo->periodic >> m.from & 1u) {
        to = dpari_halo_ring(to, dpar_halo_points(halo, m.from));
    }
    dpari_halo_owner(halo, m.from, to, coord, at);
    n = dpari_least(n, m.back ? to - at[0] + 1 : at[1] - to);
    cursor->g[m.from] = m.back ? to - n + 1 : to;
    cursor->source[m.from] = at[0];
    cursor->reversed |= (uint32_t)m.back << d;
    cursor->n[d] = n;
    return 1;
}

/* ---- the walk over one receiver -------------------------------------------------------------- */

/* Counts in how many of the first n dims the segment is outside the receiver's own points. */
static int32_t dpari_halo_beyond(const dpar_halo_cursor *cursor, int32_t n)
{
    int32_t d, beyond = 0;
    for (d = 0; d < n; d++) {
        beyond += (int32_t)(~cursor->inside >> d & 1u);
    }
    return beyond;
}

/* True if the segments of the earlier dims are outside in as many dims as allowed, so that dim d
 * must be inside. */
static int dpari_halo_only_inside(const dpar_halo_cursor *cursor, int32_t d)
{
    return cursor->outside <= d && dpari_halo_beyond(cursor, d) >= cursor->outside;
}

/* Moves to the first segment of a dim. */
static void dpari_halo_enter(dpar_halo_cursor *cursor, int32_t d)
{
    cursor->x[d] = dpari_halo_only_inside(cursor, d) ? cursor->at[d][0] : cursor->fill[d][0];
}

/* After a segment of another rank, returns the distance to the next point that the sender owns.
 * Wide halos skip many segments with it. */
static int64_t dpari_halo_skip(const dpar_halo_cursor *cursor, int32_t d)
{
    dpari_halo_map m;
    int64_t ahead, s;
    dpari_halo_map_of(cursor->h, cursor->pass, d, &m);
    s = m.from;
    ahead =
        m.back ? cursor->g[s] + cursor->n[d] - cursor->own[s][1] : cursor->own[s][0] - cursor->g[s];
    if (ahead < 0) {
        ahead +=
            cursor->h->periodic >> s & 1u ? dpar_halo_points(cursor->h, m.from) : dpari_halo_far;
    }
    return ahead;
}

/* Moves from x[d] on to the next segment, or for a sender to the next one of which it is the
 * source. */
static int dpari_halo_seek(dpar_halo_cursor *cursor, int32_t d)
{
    int64_t end = dpari_halo_only_inside(cursor, d) ? cursor->at[d][1] : cursor->fill[d][1];
    int32_t other[DPAR_MAX_AXES];
    while (cursor->x[d] < end) {
        dpari_halo_map m;
        if (!dpari_halo_segment(cursor, d, cursor->sends ? other : cursor->peer)) {
            cursor->x[d] += cursor->n[d];
            continue;
        }
        dpari_halo_map_of(cursor->h, cursor->pass, d, &m);
        if (!cursor->sends || cursor->source[m.from] == cursor->own[m.from][0]) {
            return 1;
        }
        cursor->x[d] += dpari_halo_skip(cursor, d);
    }
    return 0;
}

/* True if the box of segments is sent. A rank's own cells are not sent to itself. */
static int dpari_halo_travels(const dpar_halo_cursor *cursor)
{
    const int32_t beyond = dpari_halo_beyond(cursor, cursor->h->grid.dims);
    return beyond == 0 ? cursor->pass == DPARI_TWICE : beyond <= cursor->outside;
}

/* Moves to the next box of segments of this receiver, or with `fresh` to its first one. */
DPARI_STATIC_NOINLINE DPARI_COLD int dpari_halo_box_next(dpar_halo_cursor *cursor, int fresh)
{
    int32_t dims = cursor->h->grid.dims, d = fresh ? 0 : dims - 1;
    if (dims == 0) {
        return 0;
    }
    if (fresh) {
        dpari_halo_enter(cursor, 0);
    } else {
        cursor->x[d] += cursor->n[d];
    }
    while (d >= 0) {
        if (!dpari_halo_seek(cursor, d)) {
            if (--d >= 0) {
                cursor->x[d] += cursor->n[d];
            }
        } else if (d < dims - 1) {
            dpari_halo_enter(cursor, ++d);
        } else if (dpari_halo_travels(cursor)) {
            return 1;
        } else {
            cursor->x[d] += cursor->n[d];
        }
    }
    return 0;
}

/* ---- the receivers of a sender --------------------------------------------------------------- */

/* Sets the points that a receiver with own points at[d] and an array `box` may receive in dim d. */
static DPARI_COLD void dpari_halo_receiver(dpar_halo_cursor *cursor, int32_t d, const int64_t *box)
{
    const dpar_halo *halo = cursor->h;
    cursor->origin[d] = box[0];
    cursor->fill[d][0] = box[0];
    cursor->fill[d][1] = box[1];
    if (cursor->mode >=
        DPAR_HALO_SYNC) { /* the faces of own cells, also the faces that other ranks own */
        cursor->fill[d][0] = cursor->at[d][0] - (halo->points[d] == DPAR_HALO_AT_HIGH_FACES);
        cursor->fill[d][1] = cursor->at[d][1] + (halo->points[d] == DPAR_HALO_AT_LOW_FACES);
        if (!dpari_halo_closed(halo, d)) {
            cursor->fill[d][0] = dpari_most(cursor->fill[d][0], 0);
            cursor->fill[d][1] = dpari_least(cursor->fill[d][1], dpar_halo_points(halo, d));
        }
    }
}

/* Returns how many blocks a dim is cut into, and computes the coordinates of number n of them, in
 * any order. */
static int64_t dpari_halo_part(const dpar_halo *halo, int32_t d, int64_t n, int32_t *coord)
{
    int64_t parts = 1;
    int32_t i;
    for (i = 0; i < halo->grid.mesh.axes; i++) {
        if (halo->grid.axis[i].kind == DPAR_PLACEMENT_SHARD && halo->grid.axis[i].dim == d) {
            int32_t size = halo->grid.mesh.axis[i].size;
            coord[i] = (int32_t)(n / parts % size);
            parts *= size;
        }
    }
    return parts;
}

/* Sets the range of receivers in dim d. With windows it is a range of blocks, which are visited one
 * by one. Otherwise it is a range of points that begins at the first point of a block; in a
 * periodic dim it continues beyond the ends. */
static void dpari_halo_reach(dpar_halo_cursor *cursor, int32_t d)
{
    const dpar_halo *halo = cursor->h;
    int64_t points = dpar_halo_points(halo, d), lo, hi, at[2];
    int32_t coord[DPAR_MAX_AXES];
    dpari_halo_map m;
    dpari_halo_map_of(halo, cursor->pass, d, &m);
    lo = cursor->own[m.from][0];
    hi = cursor->own[m.from][1];
    cursor->want[d][0] = lo = dpari_most(m.lo, m.back ? m.offset - hi + 1 : lo - m.offset);
    cursor->want[d][1] = hi =
        dpari_least(m.hi, m.back ? m.offset - cursor->own[m.from][0] + 1 : hi - m.offset);
    cursor->from[d][0] = cursor->from[d][1] = 0;
    if (hi <= lo) {
        return;
    }
    if (halo->window[d].kernel != 0) {
        cursor->from[d][1] = dpari_halo_part(halo, d, 0, coord);
        return;
    }
    lo -= halo->high[d];
    hi += halo->low[d];
    if ((halo->periodic >> d & 1u) == 0) {
        lo = dpari_most(lo, 0);
        hi = dpari_least(hi, points);
        if (hi <= lo) {
            return;
        }
    }
    dpari_halo_owner(halo, d, dpari_halo_ring(lo, points), coord, at);
    lo -= dpari_halo_ring(lo, points) - at[0];
    cursor->from[d][0] = lo;
    cursor->from[d][1] = dpari_least(hi, lo + points); /* at most once around the dim */
}

/* True if the points `want` overlap those that the receiver may receive, in a periodic dim after
 * any number of turns. */
static int dpari_halo_meets(const dpar_halo_cursor *cursor, int32_t d)
{
    int64_t lo = cursor->want[d][0], hi = cursor->want[d][1],
            points = dpar_halo_points(cursor->h, d);
    if (cursor->h->periodic >> d & 1u) {
        int64_t turns = dpari_floor_div(cursor->fill[d][0] - hi, points) + 1;
        lo += turns * points;
        hi += turns * points;
    }
    return lo < cursor->fill[d][1] && hi > cursor->fill[d][0];
}

/* Moves to the receiver at from[d][0], or to a later one if that receives nothing. Returns 1, or 0
 * if there is none. */
static int dpari_halo_find(dpar_halo_cursor *cursor, int32_t d)
{
    const dpar_halo *halo = cursor->h;
    int64_t box[2];
    for (; cursor->from[d][0] < cursor->from[d][1]; cursor->from[d][0]++) {
        if (halo->window[d].kernel == 0) {
            int64_t points = dpar_halo_points(halo, d);
            dpari_halo_owner(halo, d, dpari_halo_ring(cursor->from[d][0], points), cursor->peer,
                             cursor->at[d]);
            box[0] = cursor->at[d][0] - halo->low[d];
            box[1] = cursor->at[d][1] + halo->high[d];
            dpari_halo_receiver(cursor, d, box);
            return 1;
        }
        (void)dpari_halo_part(halo, d, cursor->from[d][0], cursor->peer);
        if (dpari_halo_range(halo, cursor->peer, d, cursor->at[d], box)) {
            dpari_halo_receiver(cursor, d, box);
            if (dpari_halo_meets(cursor, d)) {
                return 1;
            }
        }
    }
    return 0;
}

static void dpari_halo_advance(dpar_halo_cursor *cursor, int32_t d)
{
    cursor->from[d][0] +=
        cursor->h->window[d].kernel != 0 ? 1 : cursor->at[d][1] - cursor->at[d][0];
}

/* Moves to the next receiver, or with `fresh` to the first one. */
DPARI_STATIC_NOINLINE DPARI_COLD int dpari_halo_receivers(dpar_halo_cursor *cursor, int fresh)
{
    int32_t dims = cursor->h->grid.dims, d = fresh ? 0 : dims - 1;
    if (dims == 0) {
        return 0;
    }
    if (fresh) {
        dpari_halo_reach(cursor, 0);
    } else {
        dpari_halo_advance(cursor, d);
    }
    while (d >= 0) {
        if (!dpari_halo_find(cursor, d)) {
            if (--d >= 0) {
                dpari_halo_advance(cursor, d);
            }
        } else if (d == dims - 1) {
            return 1;
        } else {
            dpari_halo_reach(cursor, ++d);
        }
    }
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static DPARI_COLD dpar_status dpari_halo_may_begin(const dpar_halo *halo, int32_t rank,
                                                   int32_t direction, int32_t mode, dpar_why *why)
{
    int32_t d, i, blocks = 0;
    if ((direction != DPAR_TRANSFER_RECV && direction != DPAR_TRANSFER_SEND) ||
        mode < DPAR_HALO_FORWARD || mode > DPAR_HALO_SYNC_ADJOINT) {
        return dpari_wrong(why, "direction=%d must be 0 or 1, mode=%d must be 0 to 3", direction,
                           mode);
    }
    for (i = 0; halo->owner != NULL && i < halo->grid.mesh.size; i++) {
        blocks += halo->owner[i] == rank;
    }
    if (blocks > 1 && rank >= 0) {
        return dpari_wrong(why, "rank %d owns %d blocks, more than one", rank, blocks);
    }
    if (halo->cube && halo->partner == NULL &&
        (halo->points[halo->grid.dims - 2] != DPAR_HALO_AT_CELLS ||
         halo->points[halo->grid.dims - 1] != DPAR_HALO_AT_CELLS)) {
        return dpari_wrong(
            why, "fields on faces of a cubed sphere come in pairs (u, v), but partner is NULL");
    }
    for (d = 0; d < halo->grid.dims && mode >= DPAR_HALO_SYNC; d++) {
        if ((halo->points[d] == DPAR_HALO_AT_LOW_FACES && halo->high[d] < 1) ||
            (halo->points[d] == DPAR_HALO_AT_HIGH_FACES && halo->low[d] < 1)) {
            return dpari_wrong(
                why,
                "dim %d: SYNC needs a halo that holds the other face, but low=%ld and high=%ld", d,
                halo->low[d], halo->high[d]);
        }
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_halo_first(dpar_halo_cursor *cursor, const dpar_halo *halo,
                                                int32_t rank, int32_t direction, int32_t mode,
                                                dpar_why *why)
{
    dpar_status st = dpar_halo_check(halo, why);
    int64_t box[2];
    int32_t i, nothing = 0;
    if (st == DPAR_OK) {
        st = dpari_halo_may_begin(halo, rank, direction, mode, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(cursor, sizeof(*cursor));
    cursor->h = halo;
    cursor->rank = rank;
    cursor->mode = mode;
    cursor->outside = mode < DPAR_HALO_SYNC ? dpari_halo_outside(halo) : halo->grid.dims;
    cursor->sends = (direction == DPAR_TRANSFER_SEND) != (mode % 2 == DPAR_HALO_ADJOINT);
    cursor->pass = DPARI_PASSES; /* nothing to walk, unless the rank has points */
    if (!dpari_halo_coords(halo, rank, cursor->coord)) {
        return DPAR_OK;
    }
    for (i = 0; i < halo->grid.dims; i++) {
        if (!dpari_halo_range(halo, cursor->coord, i, cursor->own[i], box)) {
            return DPAR_OK;
        }
        nothing |= cursor->own[i][1] <= cursor->own[i][0];
        cursor->at[i][0] = cursor->own[i][0];
        cursor->at[i][1] = cursor->own[i][1];
        dpari_halo_receiver(cursor, i, box);
    }
    for (i = 0; i < halo->grid.mesh.axes;
         i++) { /* a replica exchanges only with ranks of the same replica */
        cursor->peer[i] = cursor->coord[i];
    }
    if (!cursor->sends || !nothing) {
        cursor->pass = DPARI_PLAIN;
    }
    return DPAR_OK;
}

/* Sets the dims that are exchanged in this pass, and the turn of vectors. */
static void dpari_halo_turn(const dpar_halo_cursor *cursor, dpar_transfer *t)
{
    int32_t adjoint = cursor->mode % 2, turn = cursor->pass >= DPARI_TWICE ? 2 : 0;
    if (cursor->pass >= DPARI_EDGES) {
        dpari_halo_way way;
        dpari_halo_way_of(cursor->h, cursor->pass, &way);
        turn = way.turn;
        if (turn % 2 != 0) {
            t->swap[0] = t->dims - 2;
            t->swap[1] = t->dims - 1;
        }
    }
    t->turn = adjoint ? (4 - turn) % 4 : turn;
}

DPARI_STATIC_NOINLINE DPARI_COLD void dpari_halo_fill(const dpar_halo_cursor *cursor, int32_t peer,
                                                      dpar_transfer *t)
{
    const dpar_halo *halo = cursor->h, *from = halo;
    int32_t adjoint = cursor->mode % 2, d;
    dpari_zero(t, sizeof(*t));
    t->peer = peer;
    t->dims = halo->grid.dims;
    t->op = adjoint ? DPAR_SUM : DPAR_COPY;
    dpari_halo_turn(cursor, t);
    if (halo->partner != NULL && t->turn % 2 != 0) {
        from = halo->partner;
    }
    for (d = 0; d < t->dims; d++) {
        int64_t own[2], box[2], there = cursor->x[d] - cursor->origin[d], here;
        int32_t s = t->swap[0] == t->swap[1] || d < t->dims - 2 ? d : 2 * t->dims - 3 - d;
        (void)dpari_halo_range(from, cursor->sends ? cursor->coord : cursor->peer, s, own, box);
        here = cursor->g[s] - box[0];
        t->extent[adjoint ? d : s] = cursor->n[d];
        t->flip |= (cursor->reversed >> d & 1u) << (adjoint ? s : d);
        if (cursor->sends) {
            t->mine[s] = here;
            t->theirs[d] = there;
            t->global[s] = cursor->g[s];
        } else {
            t->mine[d] = there;
            t->theirs[s] = here;
            t->global[d] = cursor->x[d];
        }
    }
}

/* Returns the rank in the communicator of the walk's peer, or -1 if the block is masked. */
static int32_t dpari_halo_peer(const dpar_halo_cursor *cursor)
{
    int32_t block = dpar_mesh_rank(&cursor->h->grid.mesh, cursor->peer);
    return cursor->h->owner == NULL ? block : cursor->h->owner[block];
}

DPAR_API int dpar_halo_next(dpar_halo_cursor *cursor, dpar_transfer *transfer)
{
    while (cursor->pass < DPARI_PASSES) {
        int fresh = cursor->state < 2;
        if (!dpari_halo_has_pass(cursor->h, cursor->pass) ||
            (cursor->sends && cursor->state == 0 && !dpari_halo_receivers(cursor, 1))) {
            cursor->pass++;
            continue;
        }
        cursor->state = 2;
        if (dpari_halo_box_next(cursor, fresh)) {
            int32_t peer = dpari_halo_peer(cursor);
            if (peer >= 0) {
                dpari_halo_fill(cursor, peer, transfer);
                return 1;
            }
            continue;
        }
        cursor->state = 1; /* continues with another receiver, or with the next pass */
        if (!cursor->sends || !dpari_halo_receivers(cursor, 0)) {
            cursor->pass++;
            cursor->state = 0;
        }
    }
    return 0;
}

/* ==== index/redistribute.c ==== */

/* The walk over a redistribution's transfers. The boxes that a rank owns under both layouts are
 * products over dims, so a transfer is a product of runs that are consecutive on both sides. If
 * several ranks hold a copy, every rank computes by the same rules which copy serves which
 * receiver: first its own, then those on its node, then shares of equal size. A sender walks the
 * receivers that it may serve as they would walk themselves, which keeps both lists in the same
 * order without communication. */

/* The phases of a sender's walk. */
enum { DPARI_TO_NODE, DPARI_TO_ALL, DPARI_TO_ONE, DPARI_TO_OTHER, DPARI_DONE };

/* ---- checking -------------------------------------------------------------------------------- */

/* True if this Partial axis of `to` is the same one in `from`. */
static DPARI_COLD int dpari_partial_stays(const dpar_layout *from, const dpar_layout *to,
                                          int32_t axis)
{
    return axis < from->mesh.axes && from->axis[axis].kind == DPAR_PLACEMENT_PARTIAL &&
           from->axis[axis].op == to->axis[axis].op &&
           from->mesh.axis[axis].size == to->mesh.axis[axis].size &&
           from->mesh.axis[axis].stride == to->mesh.axis[axis].stride &&
           from->mesh.first_rank == to->mesh.first_rank && from->mesh.axes == to->mesh.axes;
}

DPAR_API DPARI_COLD dpar_status dpar_redistribute_check(const dpar_layout *from,
                                                        const dpar_layout *to, dpar_why *why)
{
    int32_t i, op = 0;
    if (from->dims != to->dims) {
        return dpari_wrong(why, "an array of %d dims cannot become one of %d", from->dims,
                           to->dims);
    }
    for (i = 0; i < from->dims; i++) {
        if (from->extent[i] != to->extent[i]) {
            return dpari_wrong(why, "dim %d has %ld elements before and %ld after", i,
                               from->extent[i], to->extent[i]);
        }
    }
    for (i = 0; i < to->mesh.axes; i++) {
        if (to->axis[i].kind == DPAR_PLACEMENT_PARTIAL && !dpari_partial_stays(from, to, i) &&
            (to->axis[i].op != DPAR_SUM ||
             (i < from->mesh.axes && from->axis[i].kind == DPAR_PLACEMENT_PARTIAL))) {
            return dpari_wrong(
                why, "axis %d: a new partial axis must be a sum, an old one must stay the same", i);
        }
    }
    for (i = 0; i < from->mesh.axes; i++) { /* sums and maxima do not commute */
        if (from->axis[i].kind != DPAR_PLACEMENT_PARTIAL || from->mesh.axis[i].size == 1 ||
            (i < to->mesh.axes && to->axis[i].kind == DPAR_PLACEMENT_PARTIAL)) {
            continue; /* it stays partial, see above */
        }
        if (op != 0 && from->axis[i].op != op) {
            return dpari_wrong(
                why, "axis %d is partial by op %d, another by op %d: reduce one at a time", i,
                from->axis[i].op, op);
        }
        op = from->axis[i].op;
    }
    return DPAR_OK;
}

/* ---- the sets of ranks ----------------------------------------------------------------------- */

DPARI_STATIC_NOINLINE uint32_t dpari_axes_of(const dpar_layout *layout, int32_t kind)
{
    uint32_t set = 0;
    int32_t i;
    for (i = 0; i < layout->mesh.axes; i++) {
        set |= layout->axis[i].kind == kind ? (uint32_t)1 << i : 0;
    }
    return set;
}

/* True if each stride is larger than the sum that the smaller strides can reach, so that the
 * members of a group ascend. */
static int dpari_mesh_nested(const dpar_mesh *mesh)
{
    int32_t i, k;
    for (i = 0; i < mesh->axes; i++) {
        int64_t reach = 0;
        for (k = 0; k < mesh->axes; k++) {
            reach += k != i && mesh->axis[k].stride <= mesh->axis[i].stride
                         ? (int64_t)(mesh->axis[k].size - 1) * mesh->axis[k].stride
                         : 0;
        }
        if (mesh->axis[i].size > 1 && reach >= mesh->axis[i].stride) {
            return 0;
        }
    }
    return 1;
}

/* Returns the axis in `which` with the largest stride below `below`, or -1. */
static int32_t dpari_largest_axis(const dpar_mesh *mesh, uint32_t which, int64_t below)
{
    int32_t i, best = -1;
    for (i = 0; i < mesh->axes; i++) {
        const dpar_mesh_axis *a = &mesh->axis[i];
        if ((which >> i & 1u) && a->size > 1 && a->stride < below &&
            (best < 0 || a->stride > mesh->axis[best].stride)) {
            best = i;
        }
    }
    return best;
}

/* Counts the members of a group that are ranks below x. `base` is the member with coordinate 0, and
 * the mesh is nested. */
static DPARI_COLD int32_t dpari_members_below(const dpar_mesh *mesh, uint32_t which, int32_t base,
                                              int64_t x)
{
    int64_t rest = x - base, below = INT64_MAX;
    int32_t count = 0, inner = dpar_mesh_group_size(mesh, which), i;
    while (rest > 0 && (i = dpari_largest_axis(mesh, which, below)) >= 0) {
        const dpar_mesh_axis *a = &mesh->axis[i];
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

static const dpar_layout *dpari_from(const dpar_redistribute_cursor *cursor)
{
    return cursor->sends ? &cursor->mine : &cursor->other;
}

static const dpar_layout *dpari_to(const dpar_redistribute_cursor *cursor)
{
    return cursor->sends ? &cursor->other : &cursor->mine;
}

/* True if rank q holds the same elements as the ranks at `coord`, which is 0 on replicated axes. */
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

/* Finds the copies at `coord` that may send to q, which are the copies nearest to q. Returns how
 * many there are; *low receives the number of the first one. */
DPARI_STATIC_NOINLINE DPARI_COLD int32_t dpari_pool(const dpar_redistribute_cursor *cursor,
                                                    const int32_t *coord, int32_t q, int32_t *low)
{
    const dpar_mesh *mesh = &dpari_from(cursor)->mesh;
    uint32_t copies = cursor->free_from;
    int32_t base = dpar_mesh_rank(mesh, coord), n = dpar_mesh_group_size(mesh, copies), near_by;
    *low = 0;
    if (n == 1 || cursor->per_node < 0) {
        return 1;
    }
    if (dpari_holds(dpari_from(cursor), copies, coord, q)) {
        *low = dpar_mesh_group_index(mesh, copies, q);
        return 1;
    }
    if (cursor->per_node > 0 && cursor->nested) {
        int64_t node = (int64_t)(q / cursor->per_node) * cursor->per_node;
        *low = dpari_members_below(mesh, copies, base, node);
        near_by = dpari_members_below(mesh, copies, base, node + cursor->per_node) - *low;
        if (near_by > 0) {
            return near_by;
        }
        *low = 0;
    }
    return n;
}

/* Returns how many receivers of the box of q share a pool of n copies, and sets *number to the
 * number of q among them. If the pool is that of the node, they are the receivers on the node,
 * otherwise all receivers. */
DPARI_STATIC_NOINLINE DPARI_COLD int32_t dpari_takers(const dpar_redistribute_cursor *cursor,
                                                      int32_t q, int32_t n, int32_t *number)
{
    const dpar_mesh *mesh = &dpari_to(cursor)->mesh;
    int32_t takers = dpar_mesh_group_size(mesh, cursor->free_to), first, below;
    int64_t node;
    *number = dpar_mesh_group_index(mesh, cursor->free_to, q);
    if (n == cursor->copies || cursor->per_node < 1 || cursor->nested < 2) {
        return takers;
    }
    node = (int64_t)(q / cursor->per_node) * cursor->per_node;
    first = dpar_mesh_group_member(mesh, cursor->free_to, q, 0);
    below = dpari_members_below(mesh, cursor->free_to, first, node);
    *number -= below;
    return dpari_members_below(mesh, cursor->free_to, first, node + cursor->per_node) - below;
}

/* ---- how copies share the sending ------------------------------------------------------------ */

enum { DPARI_SCATTERED, DPARI_ROWS, DPARI_EVEN_ROWS };

static int32_t dpari_rows_of(int32_t rule)
{
    switch (rule) {
    case DPAR_SPLIT_CHUNK:
    case DPAR_SPLIT_EVEN:
    case DPAR_SPLIT_FLOOR: return DPARI_EVEN_ROWS;
    case DPAR_SPLIT_RAGGED: return DPARI_ROWS;
    default: return DPARI_SCATTERED;
    }
}

/* Counts the parts into which the axes of a layout cut dim d. *rows is ROWS if the indices of each
 * part are consecutive, and EVEN_ROWS if also all parts are nearly equal. Otherwise, and if nothing
 * cuts the dim, it is SCATTERED. */
static int32_t dpari_parts_of(const dpar_layout *layout, int32_t d, int32_t *rows)
{
    int32_t parts = 1, i, worst = DPARI_EVEN_ROWS;
    for (i = 0; i < layout->mesh.axes; i++) {
        const dpar_placement *placement = &layout->axis[i];
        if (placement->kind == DPAR_PLACEMENT_SHARD && placement->dim == d &&
            layout->mesh.axis[i].size > 1) {
            int32_t kind = dpari_rows_of(placement->rule);
            worst = kind < worst ? kind : worst;
            parts *= layout->mesh.axis[i].size;
        }
    }
    *rows = parts == 1 ? DPARI_SCATTERED : worst;
    return parts;
}

/* Returns the dim to cut further, or -1 if none can be cut. It prefers dims that the receivers cut
 * into rows, and among these the one with the longest parts. */
static int32_t dpari_share_dim(const dpar_redistribute_cursor *cursor)
{
    int32_t d, best = -1, best_rows = 0, rows;
    for (d = 0; d < cursor->mine.dims; d++) {
        int64_t length = cursor->held[d] / cursor->grid[d];
        (void)dpari_parts_of(dpari_to(cursor), d, &rows);
        rows = rows != DPARI_SCATTERED;
        if (cursor->grid[d] == cursor->outer[d] && length > 1 &&
            (best < 0 || rows > best_rows ||
             (rows == best_rows && length > cursor->held[best] / cursor->grid[best]))) {
            best = d;
            best_rows = rows;
        }
    }
    return best;
}

/* Chooses a grid of at most `shares` parts of the elements that the copies hold. If both sides have
 * rows, outer parts end where the receivers' boxes end; additional parts cut the outer parts
 * further. */
static void dpari_share_grid(dpar_redistribute_cursor *cursor, int32_t shares)
{
    int32_t d, rows, held, own, parts;
    for (d = 0; d < cursor->mine.dims; d++) {
        cursor->outer[d] = cursor->grid[d] = 1;
    }
    for (d = 0; d < cursor->mine.dims && shares > 1; d++) {
        own = dpari_parts_of(dpari_from(cursor), d, &held);
        parts = dpari_parts_of(dpari_to(cursor), d, &rows);
        if (rows == DPARI_EVEN_ROWS && (own == 1 || held != DPARI_SCATTERED)) {
            cursor->outer[d] = (int32_t)dpari_gcd(shares, parts / dpari_gcd(parts, own));
        }
        cursor->grid[d] = cursor->outer[d];
        shares /= cursor->outer[d];
    }
    while (shares > 1 && (d = dpari_share_dim(cursor)) >= 0) {
        int32_t more = (int32_t)dpari_least(shares, cursor->held[d] / cursor->outer[d]);
        cursor->grid[d] *= more;
        shares /= more;
    }
}

/* Returns by how many copies round `round` of takers / n is shifted. Receivers that hold a copy
 * themselves may be one round, or every n-th receiver. The shift distributes them over all
 * copies. */
static int32_t dpari_share_skew(int32_t n, int32_t takers, int32_t round)
{
    int32_t rounds = takers / n;
    return (int32_t)(round / (rounds / dpari_gcd(rounds, n)) % n);
}

/* Chooses which of n copies, the first at cursor->copy, serve receiver `number` of `takers`. As
 * long as there are at least as many receivers as copies, each copy serves one of them. The copies
 * then share the boxes of the remaining receivers: an equal number of copies for each box, or if
 * that does not divide, equal pieces of a line through all of these boxes. */
static DPARI_COLD void dpari_share_out(dpar_redistribute_cursor *cursor, int32_t n, int32_t takers,
                                       int32_t number)
{
    int32_t left = takers % n;
    int64_t which = number - (takers - left), begin = which * n, end = begin + n;
    int even = number < takers - left || n % left == 0;
    cursor->line = -1;
    cursor->units = n;
    cursor->left = left;
    if (number < takers - left) {
        cursor->first = (int32_t)(((int64_t)number + dpari_share_skew(n, takers, number / n)) % n);
    } else {
        cursor->first = (int32_t)(begin / left);
        cursor->into = begin - (int64_t)cursor->first * left;
    }
    dpari_share_grid(cursor, even && number >= takers - left ? n / left : 1);
    if (!even) {
        cursor->line = dpari_share_dim(cursor);
        if (cursor->line >= 0) {
            cursor->grid[cursor->line] = (int32_t)((end - 1) / left) - cursor->first + 1;
        }
    }
}

/* Returns where part i of n even parts begins. */
static int64_t dpari_even_start(int64_t size, int32_t n, int32_t i)
{
    return size / n * i + dpari_least(i, size % n);
}

/* Returns where outer part j of dim d begins: at an even part, moved to the nearest end of a
 * receiver's box. Both sides have rows, so local index x is global index lead + x. */
DPARI_STATIC_NOINLINE int64_t dpari_outer_start(const dpar_redistribute_cursor *cursor, int32_t d,
                                                int32_t j)
{
    int32_t coord[DPAR_MAX_AXES];
    int64_t x = dpari_even_start(cursor->held[d], cursor->outer[d], j), there, run;
    if (x <= 0 || x >= cursor->held[d]) {
        return x;
    }
    (void)dpar_layout_locate(dpari_to(cursor), d, cursor->lead[d] + x, coord, &there, &run);
    there = dpari_most(0, x - there);
    run = dpari_least(cursor->held[d], x + run);
    return x - there < run - x ? there : run;
}

/* Returns where share i of dim d begins, in local indices of the copies. */
static int64_t dpari_share_start(const dpar_redistribute_cursor *cursor, int32_t d, int32_t i)
{
    int32_t more = cursor->grid[d] / cursor->outer[d];
    int64_t low, high;
    if (cursor->grid[d] == 1) {
        return i == 0 ? 0 : cursor->held[d];
    }
    if (d == cursor->line) { /* the copies share a line through all boxes; each box has one unit per
                                copy */
        int64_t unit = (int64_t)i * cursor->left - cursor->into;
        unit = dpari_most(0, dpari_least(unit, cursor->units));
        return cursor->held[d] / cursor->units * unit +
               cursor->held[d] % cursor->units * unit / cursor->units;
    }
    low = dpari_outer_start(cursor, d, i / more);
    if (i % more == 0) {
        return low;
    }
    high = dpari_outer_start(cursor, d, i / more + 1);
    return low + dpari_even_start(high - low, more, i % more);
}

/* Returns the share of dim d that contains local index x. */
static int32_t dpari_share_of(const dpar_redistribute_cursor *cursor, int32_t d, int64_t x)
{
    int32_t more = cursor->grid[d] / cursor->outer[d], low = 0, high = cursor->grid[d], at;
    int64_t from, to;
    if (cursor->grid[d] == 1) {
        return 0;
    }
    if (d == cursor->line) {
        while (high - low > 1) {
            at = low + (high - low) / 2;
            if (dpari_share_start(cursor, d, at) <= x) {
                low = at;
            } else {
                high = at;
            }
        }
        return low;
    }
    at = dpari_even_of(cursor->held[d], cursor->outer[d], x);
    while (dpari_outer_start(cursor, d, at) > x) {
        at--;
    }
    while (dpari_outer_start(cursor, d, at + 1) <= x) {
        at++;
    }
    from = dpari_outer_start(cursor, d, at);
    to = dpari_outer_start(cursor, d, at + 1);
    return at * more + dpari_even_of(to - from, more, x - from);
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* Computes the piece of dim d that begins at at[d]. It ends where the indices of one side are no
 * longer consecutive. */
static DPARI_COLD void dpari_walk_piece(dpar_redistribute_cursor *cursor, int32_t d)
{
    int64_t here, there;
    cursor->begin[d] = dpar_layout_global(&cursor->mine, cursor->rank, d, cursor->at[d], &here);
    (void)dpar_layout_locate(&cursor->other, d, cursor->begin[d], cursor->peer, &cursor->there[d],
                             &there);
    cursor->length[d] = dpari_least(cursor->high[d] - cursor->at[d], dpari_least(here, there));
}

/* Moves to the first box of the range. Returns 0 if the range is empty. */
static DPARI_COLD int dpari_walk_first(dpar_redistribute_cursor *cursor)
{
    int32_t d;
    for (d = 0; d < cursor->mine.dims; d++) {
        if (cursor->low[d] >= cursor->high[d]) {
            return 0;
        }
    }
    for (d = 0; d < cursor->mine.dims; d++) {
        cursor->at[d] = cursor->low[d];
        dpari_walk_piece(cursor, d);
    }
    return 1;
}

/* Moves to the next box. Returns 0 at the end. */
static DPARI_COLD int dpari_walk_box(dpar_redistribute_cursor *cursor)
{
    int32_t d;
    for (d = cursor->mine.dims - 1; d >= 0; d--) {
        cursor->at[d] += cursor->length[d];
        if (cursor->at[d] < cursor->high[d]) {
            dpari_walk_piece(cursor, d);
            return 1;
        }
        cursor->at[d] = cursor->low[d];
        dpari_walk_piece(cursor, d);
    }
    return 0;
}

/* True if the rank receives anything. On a Partial axis of `to` that is not Partial in `from`, only
 * coordinate 0 receives. */
static DPARI_COLD int dpari_takes(const dpar_redistribute_cursor *cursor, int32_t rank)
{
    const dpar_layout *from = dpari_from(cursor), *to = dpari_to(cursor);
    int32_t at[DPAR_MAX_AXES], i;
    (void)dpar_mesh_coords(&to->mesh, rank, at);
    for (i = 0; i < to->mesh.axes; i++) {
        if (to->axis[i].kind == DPAR_PLACEMENT_PARTIAL && at[i] != 0 &&
            !dpari_partial_stays(from, to, i)) {
            return 0;
        }
    }
    return 1;
}

/* Sets the ranks that a sender serves one by one: itself, and the ranks of its node in `to` if not
 * all copies are on this node. */
static void dpari_walk_node(dpar_redistribute_cursor *cursor)
{
    const dpar_mesh *mesh = &cursor->mine.mesh, *to = &cursor->other.mesh;
    int64_t last = to->first_rank, node, end;
    int32_t i, base = dpar_mesh_rank(mesh, cursor->base);
    cursor->node = cursor->rank;
    cursor->mates = 1;
    if (cursor->per_node < 2 || !cursor->nested || !cursor->state) {
        return;
    }
    node = (int64_t)(cursor->rank / cursor->per_node) * cursor->per_node;
    end = node + cursor->per_node;
    if (dpari_members_below(mesh, cursor->free_from, base, end) -
            dpari_members_below(mesh, cursor->free_from, base, node) ==
        cursor->copies) {
        return;
    }
    for (i = 0; i < to->axes; i++) {
        last += (int64_t)(to->axis[i].size - 1) * to->axis[i].stride;
    }
    node = dpari_most(node, to->first_rank);
    cursor->node = (int32_t)node;
    cursor->mates = (int32_t)dpari_most(0, dpari_least(end, last + 1) - node);
}

/* Makes the walk go over the array of `rank` in the layout `mine`. */
static DPARI_COLD void dpari_walk_over(dpar_redistribute_cursor *cursor, int32_t rank)
{
    const dpar_layout *from = dpari_from(cursor), *to = dpari_to(cursor);
    int32_t i;
    cursor->rank = rank;
    cursor->state = dpar_mesh_coords(&cursor->mine.mesh, rank, cursor->coord) &&
                    (cursor->sends || dpari_takes(cursor, rank));
    for (i = 0; i < cursor->mine.mesh.axes && cursor->state;
         i++) { /* sums that stay keep the coordinate */
        int stays = i < to->mesh.axes && to->axis[i].kind == DPAR_PLACEMENT_PARTIAL &&
                    dpari_partial_stays(from, to, i);
        cursor->peer[i] = stays ? cursor->coord[i] : 0;
        cursor->base[i] = cursor->free_from >> i & 1u ? 0 : cursor->coord[i];
    }
    dpar_layout_local(&cursor->mine, rank, cursor->high, cursor->lead);
    for (i = 0; i < cursor->mine.dims; i++) {
        cursor->low[i] = 0;
        cursor->held[i] = cursor->high[i];
    }
    cursor->fresh = 1;
}

DPAR_API DPARI_COLD dpar_status dpar_redistribute_first(dpar_redistribute_cursor *cursor,
                                                        const dpar_layout *from,
                                                        const dpar_layout *to, int32_t rank,
                                                        int32_t direction, int32_t per_node)
{
    int32_t i;
    if (per_node < DPAR_REDISTRIBUTE_PRIMARY ||
        (direction != DPAR_TRANSFER_RECV && direction != DPAR_TRANSFER_SEND) ||
        dpar_redistribute_check(from, to, NULL) != DPAR_OK) {
        return DPAR_E_ARG;
    }
    dpari_zero(cursor, sizeof(*cursor));
    cursor->sends = direction == DPAR_TRANSFER_SEND;
    cursor->mine = cursor->sends ? *from : *to;
    cursor->other = cursor->sends ? *to : *from;
    cursor->per_node = per_node;
    if (dpari_mesh_nested(&from->mesh)) { /* 1 if the copies on a node are consecutive, 2 if its
                                             receivers are too */
        cursor->nested = 1 + dpari_mesh_nested(&to->mesh);
    }
    cursor->free_from = dpari_axes_of(from, DPAR_PLACEMENT_REPLICATE);
    cursor->free_to = dpari_axes_of(to, DPAR_PLACEMENT_REPLICATE);
    for (i = 0; i < from->mesh.axes; i++) { /* all ops are the same, because the check refused
                                               others */
        int stays = i < to->mesh.axes && to->axis[i].kind == DPAR_PLACEMENT_PARTIAL &&
                    dpari_partial_stays(from, to, i);
        if (from->axis[i].kind == DPAR_PLACEMENT_PARTIAL && !stays) {
            cursor->part_from |= (uint32_t)1 << i;
            cursor->combine = from->mesh.axis[i].size > 1 ? from->axis[i].op : cursor->combine;
        }
    }
    cursor->copies = dpar_mesh_group_size(&from->mesh, cursor->free_from);
    cursor->partials = dpar_mesh_group_size(&from->mesh, cursor->part_from);
    dpari_walk_over(cursor, rank);
    cursor->phase = cursor->copies == 1 || per_node < 0 ? DPARI_TO_ALL : DPARI_TO_NODE;
    cursor->me = cursor->sends ? rank : -1;
    dpari_walk_node(cursor);
    return DPAR_OK;
}

/* ---- receiving: the boxes, from each partial rank, from each copy that has a share ----------- */

/* Cuts the box to part share[] of the copies' grid. */
static void dpari_cut_box(dpar_redistribute_cursor *cursor)
{
    int32_t d;
    for (d = 0; d < cursor->mine.dims; d++) {
        int64_t from = dpari_share_start(cursor, d, cursor->share[d]);
        int64_t to = dpari_share_start(cursor, d, cursor->share[d] + 1);
        cursor->cut[d] = dpari_most(cursor->there[d], from);
        cursor->cut_length[d] =
            dpari_least(cursor->there[d] + cursor->length[d], to) - cursor->cut[d];
    }
}

/* Determines which copies of one partial rank send the box, and in how many shares. */
static DPARI_COLD void dpari_begin_shares(dpar_redistribute_cursor *cursor)
{
    const dpar_mesh *mesh = &cursor->other.mesh;
    int32_t i, n, holder, number = 0, takers = 1;
    for (i = 0; i < mesh->axes; i++) {
        cursor->base[i] = cursor->peer[i]; /* 0 on axes that do not shard */
    }
    holder = dpar_mesh_group_member(mesh, cursor->part_from, dpar_mesh_rank(mesh, cursor->base),
                                    cursor->partial);
    (void)dpar_mesh_coords(mesh, holder, cursor->base);
    n = dpari_pool(cursor, cursor->base, cursor->rank, &cursor->copy);
    if (n > 1) {
        takers = dpari_takers(cursor, cursor->rank, n, &number);
    }
    dpar_layout_local(&cursor->other, holder, cursor->held, n > 1 ? cursor->lead : NULL);
    dpari_share_out(cursor, n, takers, number);
    cursor->copy += cursor->first;
    for (i = 0; i < cursor->mine.dims; i++) {
        cursor->share[i] = dpari_share_of(cursor, i, cursor->there[i]);
    }
}

/* Moves to the next share that overlaps the box, with the last dim fastest. Returns 0 at the end.
 */
static int dpari_next_share(dpar_redistribute_cursor *cursor)
{
    int32_t d;
    for (d = cursor->mine.dims - 1; d >= 0; d--) {
        int64_t end = cursor->there[d] + cursor->length[d];
        int64_t next = dpari_share_start(cursor, d, cursor->share[d] + 1);
        if (next < end) {
            cursor->share[d] = dpari_share_of(cursor, d, next); /* skips empty ones */
            return 1;
        }
        cursor->share[d] = dpari_share_of(cursor, d, cursor->there[d]);
    }
    return 0;
}

static int dpari_next_receive(dpar_redistribute_cursor *cursor)
{
    int32_t d, number = 0;
    if (cursor->fresh) {
        cursor->fresh = 0;
        if (!dpari_walk_first(cursor)) {
            return 0;
        }
        dpari_begin_shares(cursor);
    } else if (!dpari_next_share(cursor)) {
        if (++cursor->partial == cursor->partials) {
            cursor->partial = 0;
            if (!dpari_walk_box(cursor)) {
                return 0;
            }
        }
        dpari_begin_shares(cursor);
    }
    for (d = 0; d < cursor->mine.dims; d++) {
        number = number * cursor->grid[d] + cursor->share[d];
    }
    cursor->now = dpar_mesh_group_member(&cursor->other.mesh, cursor->free_from,
                                         dpar_mesh_rank(&cursor->other.mesh, cursor->base),
                                         cursor->copy + number);
    cursor->op = cursor->partial == 0 ? DPAR_COPY : cursor->combine;
    dpari_cut_box(cursor);
    return 1;
}

/* ---- sending: to the ranks of the node one by one, then to all others ------------------------ */

/* Sets the range of the walk to the part of a box that the rank, copy `me` of n, sends to receiver
 * `number` of `takers`. Returns 1, or 0 if it sends nothing. */
static int dpari_range(dpar_redistribute_cursor *cursor, int32_t n, int32_t takers, int32_t number,
                       int32_t me)
{
    int32_t d, at;
    dpari_share_out(cursor, n, takers, number);
    at = me - cursor->first;
    if (at < 0) {
        return 0;
    }
    for (d = cursor->mine.dims - 1; d >= 0; d--) {
        int32_t i = at % cursor->grid[d];
        at /= cursor->grid[d];
        cursor->low[d] = dpari_share_start(cursor, d, i);
        cursor->high[d] = dpari_share_start(cursor, d, i + 1);
    }
    return at == 0;
}

/* Narrows the local ranges of `rank` in a layout to the indices between the first and the last one
 * of the ranks at coord[] in another layout. Returns the number of elements in them. */
static DPARI_COLD int64_t dpari_narrow(const dpar_layout *layout, int32_t rank,
                                       const dpar_layout *other, const int32_t *coord, int64_t *low,
                                       int64_t *high)
{
    int64_t size = 1, from, to;
    int32_t d;
    for (d = 0; d < layout->dims; d++) {
        if (!dpari_layout_span(other, coord, d, &from, &to)) {
            return 0;
        }
        low[d] = dpari_most(low[d], dpari_layout_before(layout, rank, d, from));
        high[d] = dpari_least(high[d], dpari_layout_before(layout, rank, d, to));
        if (low[d] >= high[d]) {
            return 0;
        }
        size = dpari_mul(size, high[d] - low[d], &size) ? size : INT64_MAX;
    }
    return size;
}

/* Turns the walk around: from a sender to the receiver `rank` of the other layout, or back. */
DPARI_STATIC_NOINLINE void dpari_turn_around(dpar_redistribute_cursor *cursor, int32_t rank)
{
    int32_t d;
    for (d = 0; d < (int32_t)sizeof(dpar_layout); d++) {
        char *mine = (char *)&cursor->mine + d, *other = (char *)&cursor->other + d, c = *mine;
        *mine = *other;
        *other = c;
    }
    cursor->sends = !cursor->sends;
    cursor->partial = 0;
    dpari_walk_over(cursor, rank);
    for (d = 0; d < cursor->mine.dims && !cursor->sends;
         d++) { /* dpari_range_to stored the range there */
        cursor->low[d] = cursor->at[d];
        cursor->high[d] = cursor->begin[d];
    }
}

/* Sets the range for rank q of the node: the part of this rank's share that overlaps the elements
 * of q. If the elements of q are scattered in it, sets taker to -1; the walk must then turn around
 * and go over the elements of q. Returns 1, or 0 if q receives nothing from this rank. */
static int dpari_range_to(dpar_redistribute_cursor *cursor, int32_t q)
{
    int32_t low, n, takers, number, me, d;
    int64_t here;
    if (!dpar_mesh_coords(&cursor->other.mesh, q, cursor->guest) || !dpari_takes(cursor, q)) {
        return 0;
    }
    n = dpari_pool(cursor, cursor->base, q, &low);
    takers = dpari_takers(cursor, q, n, &number);
    me = dpar_mesh_group_index(&cursor->mine.mesh, cursor->free_from, cursor->me) - low;
    if (!dpari_range(cursor, n, takers, number, me)) { /* also refuses q if its pool does not
                                                          include this rank */
        return 0;
    }
    here = dpari_narrow(&cursor->mine, cursor->rank, &cursor->other, cursor->guest, cursor->low,
                        cursor->high);
    dpar_layout_local(&cursor->other, q, cursor->begin, NULL);
    for (d = 0; d < cursor->mine.dims; d++) {
        cursor->at[d] = 0;
    }
    cursor->taker = dpari_narrow(&cursor->other, q, &cursor->mine, cursor->coord, cursor->at,
                                 cursor->begin) < here
                        ? -1
                        : 0;
    cursor->takers = 1;
    return here > 0;
}

/* Moves to the next rank of the node (or only this rank) that receives something. Returns 0 if
 * there is none left. */
DPARI_STATIC_NOINLINE DPARI_COLD int dpari_next_mate(dpar_redistribute_cursor *cursor)
{
    while (cursor->phase == DPARI_TO_NODE) {
        if (cursor->mate == cursor->mates) {
            cursor->phase = DPARI_TO_ALL;
        } else if (dpari_range_to(cursor, cursor->node + cursor->mate++)) {
            return 1;
        }
    }
    return 0;
}

/* Moves to the next range, which may be empty, for receivers on any node: first for all that
 * receive whole boxes, then for the one or two that receive a share. Returns 0 at the end. */
DPARI_STATIC_NOINLINE DPARI_COLD int dpari_next_phase(dpar_redistribute_cursor *cursor)
{
    int32_t me = dpar_mesh_group_index(&cursor->mine.mesh, cursor->free_from, cursor->rank);
    int32_t takers = dpar_mesh_group_size(&cursor->other.mesh, cursor->free_to), d;
    int32_t n = cursor->per_node < 0 ? 1 : cursor->copies, left = takers % n;
    if (cursor->phase == DPARI_TO_ALL) {
        cursor->phase = me < n ? DPARI_TO_ONE : DPARI_DONE;
        cursor->around = 1;
        cursor->taker = 0;
        cursor->takers = me < n ? takers / n : 0; /* every n-th receiver */
        for (d = 0; d < cursor->mine.dims; d++) {
            cursor->low[d] = 0;
            cursor->high[d] = cursor->held[d];
        }
        if (cursor->takers > 0) {
            return 1;
        }
    }
    while (left > 0 && (cursor->phase == DPARI_TO_ONE || cursor->phase == DPARI_TO_OTHER)) {
        int64_t first = (int64_t)me * left / n, last = ((int64_t)(me + 1) * left - 1) / n;
        cursor->around = 0;
        cursor->taker = takers - left + (int32_t)(cursor->phase == DPARI_TO_ONE ? first : last);
        cursor->takers = cursor->taker + 1;
        cursor->phase = cursor->phase == DPARI_TO_ONE && last > first ? DPARI_TO_OTHER : DPARI_DONE;
        if (dpari_range(cursor, n, takers, cursor->taker, me)) {
            return 1;
        }
    }
    return 0;
}

/* Returns the next receiver of the box, or -1 if it does not receive from this rank. */
static int32_t dpari_next_taker(dpar_redistribute_cursor *cursor)
{
    const dpar_mesh *mesh = &cursor->other.mesh;
    int32_t first = dpar_mesh_rank(mesh, cursor->peer), q, low,
            n; /* peer: 0 on axes that do not shard */
    int64_t number = cursor->copy++;
    if (cursor->phase == DPARI_TO_NODE) {
        q = cursor->node + cursor->mate - 1;
        return dpar_mesh_group_member(mesh, cursor->free_to, q, 0) == first ? q : -1;
    }
    if (cursor->around) { /* numbered as in dpari_share_out */
        int32_t me = dpar_mesh_group_index(&cursor->mine.mesh, cursor->free_from, cursor->rank);
        int32_t skew;
        n = cursor->per_node < 0 ? 1 : cursor->copies;
        skew = dpari_share_skew(n, dpar_mesh_group_size(mesh, cursor->free_to), (int32_t)number);
        number = number * n + (me + n - skew) % n;
    }
    q = dpar_mesh_group_member(mesh, cursor->free_to, first, (int32_t)number);
    if (cursor->copies == 1 || cursor->per_node < 0 ||
        dpari_pool(cursor, cursor->base, q, &low) == cursor->copies) {
        return q;
    }
    return -1; /* it has a nearer copy */
}

/* Moves to the next receiver that takes the box from this rank. Returns 0 at the end, and if the
 * walk must turn around. */
static int dpari_next_send(dpar_redistribute_cursor *cursor)
{
    for (;;) {
        if (cursor->fresh) {
            if ((!dpari_next_mate(cursor) && !dpari_next_phase(cursor)) || cursor->taker < 0) {
                return 0;
            }
            cursor->copy = cursor->taker;
            cursor->fresh = !dpari_walk_first(cursor);
            continue;
        }
        while (cursor->copy < cursor->takers) {
            cursor->now = dpari_next_taker(cursor);
            if (cursor->now >= 0) {
                int first =
                    dpar_mesh_group_index(&cursor->mine.mesh, cursor->part_from, cursor->rank) == 0;
                cursor->op = first ? DPAR_COPY : cursor->combine;
                return 1;
            }
        }
        cursor->copy = cursor->taker;
        cursor->fresh = !dpari_walk_box(cursor);
    }
}

/* Moves to the next transfer. A sender that walks over the elements of a receiver returns only the
 * transfers that it sends itself. */
static int dpari_walk_on(dpar_redistribute_cursor *cursor)
{
    while (cursor->state) {
        if (cursor->sends) {
            if (dpari_next_send(cursor)) {
                return 1;
            }
            cursor->state = cursor->taker < 0;
            if (cursor->state) {
                dpari_turn_around(cursor, cursor->node + cursor->mate - 1);
            }
        } else if (!dpari_next_receive(cursor)) {
            if (cursor->me < 0) {
                cursor->state = 0;
            } else {
                dpari_turn_around(cursor, cursor->me);
            }
        } else if (cursor->me < 0 || cursor->now == cursor->me) {
            return 1;
        }
    }
    return 0;
}

DPAR_API DPARI_COLD int dpar_redistribute_next(dpar_redistribute_cursor *cursor,
                                               dpar_transfer *transfer)
{
    int32_t d, turned;
    if (!dpari_walk_on(cursor)) {
        return 0;
    }
    turned = cursor->me >= 0 && !cursor->sends;
    dpari_zero(transfer, sizeof(*transfer));
    transfer->peer = turned ? cursor->rank : cursor->now;
    transfer->dims = cursor->mine.dims;
    transfer->op = cursor->op;
    for (d = 0; d < cursor->mine.dims; d++) {
        int64_t skip = cursor->sends ? 0 : cursor->cut[d] - cursor->there[d];
        transfer->extent[d] = cursor->sends ? cursor->length[d] : cursor->cut_length[d];
        transfer->mine[d] = (turned ? cursor->there[d] : cursor->at[d]) + skip;
        transfer->theirs[d] = (turned ? cursor->at[d] : cursor->there[d]) + skip;
        transfer->global[d] = cursor->begin[d] + skip;
    }
    return 1;
}

/* ==== index/cover.c ==== */

/* Checks whether boxes cover an array. The boxes are sorted along the dim in which they are
 * thinnest, so that each box is compared only with the few that begin before it ends. If none
 * overlap, the volumes show whether elements are missing. */

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

/* Sorts order[] by lo[dim]. Heap sort needs no additional memory. */
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

/* Returns the dim along which the boxes are thinnest on average. The thickness is measured in
 * thousandths of the extent. */
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

/* Finds the first element that is in no box, with the last dim fastest. If one row along the last
 * dim is covered, the same boxes cover the next rows until the first of these boxes ends. The
 * search skips these rows, and does the same in the other dims. */
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

/* Fails with a message that names the first missing element. */
static dpar_status dpari_cover_gap(int32_t dims, const int64_t *extent, const dpar_box *box,
                                   const int32_t *order, int32_t n, int64_t missing, dpar_why *why)
{
    int64_t at[DPAR_MAX_DIMS];
    at[0] = at[1] = at[2] = 0; /* for an array without dims */
    dpari_first_missing(dims, extent, box, order, n, at);
    if (dims == 1) {
        return dpari_wrong(why, "%ld elements are in no box: the first is %ld", missing, at[0]);
    }
    if (dims == 2) {
        return dpari_wrong(why, "%ld elements are in no box: the first is (%ld, %ld)", missing,
                           at[0], at[1]);
    }
    return dpari_wrong(why,
                       "%ld elements are in no box: the first is (%ld, %ld, %ld) in dims 0 to 2",
                       missing, at[0], at[1], at[2]);
}

DPAR_API DPARI_COLD dpar_status dpar_box_cover(int32_t dims, const int64_t *extent,
                                               const dpar_box *box, int32_t n, int32_t *order,
                                               dpar_why *why)
{
    dpar_box whole, both;
    int64_t left;
    int32_t d, i, j, dim, used = 0;
    if (dims < 0 || dims > DPAR_MAX_DIMS || n < 0) {
        return dpari_wrong(why, "n=%d must be at least 0, dims=%d must be 0 to %d", n, dims,
                           (int32_t)DPAR_MAX_DIMS);
    }
    dpari_zero(&whole, sizeof(whole));
    whole.dims = dims;
    for (d = 0; d < dims; d++) {
        whole.hi[d] = extent[d];
        if (extent[d] < 0) {
            return dpari_wrong(why, "extent[%d] = %ld is negative", d, extent[d]);
        }
    }
    left = dpar_box_volume(&whole);
    if (left < 0) {
        return dpari_say(DPAR_E_RANGE, why, "the array has more than 2^63 - 1 elements");
    }
    for (i = 0; i < n; i++) {
        if (box[i].dims != dims) {
            return dpari_wrong(why, "box %d has %d dims, but the array has %d", i, box[i].dims,
                               dims);
        }
        if (dpari_box_empty(&box[i])) {
            continue;
        }
        for (d = 0; d < dims; d++) {
            if (box[i].lo[d] < 0 || box[i].hi[d] > extent[d]) {
                return dpari_wrong(why,
                                   "box %d: indices %ld to %ld are not all inside a dim of %ld", i,
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
            if (dpari_box_intersect(a, &box[order[j]], &both)) {
                return dpari_wrong(why, "boxes %ld and %ld overlap in %ld elements",
                                   dpari_least(order[i], order[j]), dpari_most(order[i], order[j]),
                                   dpar_box_volume(&both));
            }
        }
    }
    return left == 0 ? DPAR_OK : dpari_cover_gap(dims, extent, box, order, used, left, why);
}

/* ==== index/route.c ==== */

/* Plans a redistribution as collectives. A layout is encoded as a 64-bit state, one byte for each
 * mesh axis, and each collective is an edge from one state to another with a cost. Dijkstra's
 * algorithm finds the least expensive path, with a hash table and a heap in the caller's nodes. */

DPAR_API DPARI_COLD const char *dpar_route_step_name(int32_t kind)
{
    switch (kind) {
    case DPAR_ROUTE_STEP_SLICE: return "slice";
    case DPAR_ROUTE_STEP_TO_PARTIAL: return "start-sum";
    case DPAR_ROUTE_STEP_ALL_GATHER: return "all-gather";
    case DPAR_ROUTE_STEP_ALL_TO_ALL: return "all-to-all";
    case DPAR_ROUTE_STEP_REDUCE_SCATTER: return "reduce-scatter";
    case DPAR_ROUTE_STEP_ALL_REDUCE: return "all-reduce";
    case DPAR_ROUTE_STEP_SWAP: return "swap";
    case DPAR_ROUTE_STEP_PERMUTE: return "permute";
    default: return "?";
    }
}

/* ---- states ---------------------------------------------------------------------------------- */

/* A state is a layout as a number, with a byte for each axis. The high half of a byte is the dim
 * that the axis cuts, or R (replicated) or P (partial). The low half is the position of the axis
 * among the cuts of that dim, with 0 for the outermost cut. */
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

/* Encodes a layout. Axes of size 1 have no effect and count as replicated. */
static dpar_status dpari_state_of(const dpar_layout *layout, uint64_t *state, dpar_why *why)
{
    uint64_t s = 0;
    int32_t k;
    for (k = 0; k < layout->mesh.axes; k++) {
        s = dpari_state_put(s, k, DPARI_STATE_R, 0);
    }
    for (k = 0; k < layout->mesh.axes; k++) {
        int32_t axis = layout->order[k];
        const dpar_placement *placement = &layout->axis[axis];
        if (layout->mesh.axis[axis].size == 1 || placement->kind == DPAR_PLACEMENT_REPLICATE) {
            continue;
        }
        if (placement->kind == DPAR_PLACEMENT_SHARD && placement->rule != DPAR_SPLIT_CHUNK) {
            return dpari_wrong(why, "axis %d shards by rule %d: routes need CHUNK", axis,
                               placement->rule);
        }
        if (placement->kind == DPAR_PLACEMENT_PARTIAL) {
            s = dpari_state_put(s, axis, DPARI_STATE_P, 0);
        } else {
            s = dpari_state_put(s, axis, placement->dim,
                                dpari_state_cuts(s, layout->mesh.axes, placement->dim));
        }
    }
    *state = s;
    return DPAR_OK;
}

/* Returns the padded elements of a dim under the cuts of a state. */
static int64_t dpari_state_extent(const dpar_layout *layout, uint64_t state, int32_t dim)
{
    int64_t n = layout->extent[dim];
    int32_t place, i;
    for (place = 0; place < layout->mesh.axes; place++) {
        for (i = 0; i < layout->mesh.axes; i++) {
            if (dpari_state_dim(state, i) == dim && dpari_state_place(state, i) == place) {
                n = dpari_ceil_div(n, layout->mesh.axis[i].size);
            }
        }
    }
    return n;
}

static int64_t dpari_state_elements(const dpar_layout *layout, uint64_t state)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < layout->dims; d++) { /* an empty dim makes the product 0, even after
                                            INT64_MAX */
        if (!dpari_mul(n, dpari_state_extent(layout, state, d), &n)) {
            n = INT64_MAX;
        }
    }
    return n;
}

/* True if both layouts are cut into equal tiles of the same shape, so that tiles only change ranks.
 */
static int dpari_state_tiles(const dpar_layout *layout, uint64_t a, uint64_t b)
{
    int32_t d, i;
    for (d = 0; d < layout->dims; d++) {
        int64_t parts_a = 1, parts_b = 1;
        for (i = 0; i < layout->mesh.axes; i++) {
            parts_a *= dpari_state_dim(a, i) == d ? layout->mesh.axis[i].size : 1;
            parts_b *= dpari_state_dim(b, i) == d ? layout->mesh.axis[i].size : 1;
        }
        if (parts_a != parts_b || layout->extent[d] % parts_a != 0) {
            return 0;
        }
    }
    for (i = 0; i < layout->mesh.axes; i++) {
        if ((dpari_state_dim(a, i) == DPARI_STATE_P) != (dpari_state_dim(b, i) == DPARI_STATE_P)) {
            return 0;
        }
    }
    return 1;
}

/* Returns the state after a step, which must be possible. */
static uint64_t dpari_state_step(uint64_t state, int32_t axes, const dpar_route_step *p,
                                 uint64_t goal)
{
    if (p->kind == DPAR_ROUTE_STEP_PERMUTE) {
        return goal;
    }
    if (p->kind == DPAR_ROUTE_STEP_SWAP) {
        uint64_t a = state >> (8 * p->axis) & 255u, b = state >> (8 * p->to) & 255u;
        return state ^ (a ^ b) << (8 * p->axis) ^ (a ^ b) << (8 * p->to);
    }
    state = dpari_state_put(
        state, p->axis, p->kind == DPAR_ROUTE_STEP_TO_PARTIAL ? DPARI_STATE_P : DPARI_STATE_R, 0);
    return p->to < 0 ? state
                     : dpari_state_put(state, p->axis, p->to, dpari_state_cuts(state, axes, p->to));
}

/* ---- search ---------------------------------------------------------------------------------- */

typedef struct dpari_route {
    const dpar_layout *layout; /* the layout from which the route starts */
    const int64_t *byte_cost;
    int64_t step_cost;
    uint64_t goal;
    dpar_route_node *node; /* [room]; the first `known` are in use */
    int32_t known, room;
    int32_t heaped; /* node[0..heaped-1].heap is a binary heap of node numbers */
} dpari_route;

/* Puts node k into slot s of the heap. */
static void dpari_heap_put(dpari_route *route, int32_t s, int32_t k)
{
    route->node[s].heap = k;
    route->node[k].slot = s;
}

static int64_t dpari_heap_cost(const dpari_route *route, int32_t s)
{
    return route->node[route->node[s].heap].cost;
}

static void dpari_heap_rise(dpari_route *route, int32_t s, int32_t k)
{
    while (s > 0 && dpari_heap_cost(route, (s - 1) / 2) > route->node[k].cost) {
        dpari_heap_put(route, s, route->node[(s - 1) / 2].heap);
        s = (s - 1) / 2;
    }
    dpari_heap_put(route, s, k);
}

static int32_t dpari_heap_pop(dpari_route *route)
{
    int32_t top = route->node[0].heap, last = route->node[--route->heaped].heap, s = 0, child;
    for (; (child = 2 * s + 1) < route->heaped; s = child) {
        if (child + 1 < route->heaped &&
            dpari_heap_cost(route, child + 1) < dpari_heap_cost(route, child)) {
            child++;
        }
        if (dpari_heap_cost(route, child) >= route->node[last].cost) {
            break;
        }
        dpari_heap_put(route, s, route->node[child].heap);
    }
    dpari_heap_put(route, s, last);
    route->node[top].slot = -1; /* settled */
    return top;
}

/* Finds the node of a state, or makes it, in a hash table with open addressing. Returns its number,
 * or -1 if there is no capacity left. */
static int32_t dpari_route_find(dpari_route *route, uint64_t state)
{
    uint64_t mixed = (state ^ state >> 29) * UINT64_C(0x9e3779b97f4a7c15);
    int32_t at = (int32_t)((mixed >> 33) % (uint64_t)(uint32_t)route->room);
    while (route->node[at].hash != 0) {
        int32_t k = route->node[at].hash - 1;
        if (route->node[k].state == state) {
            return k;
        }
        at = at + 1 < route->room ? at + 1 : 0;
    }
    if (route->known + 1 >= route->room) { /* one slot stays empty, so that a search ends */
        return -1;
    }
    route->node[at].hash = route->known + 1;
    route->node[route->known].state = state;
    route->node[route->known].cost = -1;
    return route->known++;
}

/* Returns n x each, limited to INT64_MAX / 1024, so that sums of prices do not overflow. */
static int64_t dpari_route_price(int64_t n, int64_t each)
{
    int64_t price;
    return dpari_mul(n, each, &price) && price < INT64_MAX / 1024 ? price : INT64_MAX / 1024;
}

/* Returns the padded elements that each of `size` ranks gets if a dim of the state is cut further.
 */
static int64_t dpari_state_chunk(const dpar_layout *layout, uint64_t state, int32_t dim,
                                 int64_t size)
{
    int64_t n = dpari_state_elements(layout, state),
            extent = dpari_state_extent(layout, state, dim);
    return extent > 0 ? n / extent * dpari_ceil_div(extent, size) : 0;
}

/* Returns how many elements a rank receives in a step. */
static int64_t dpari_route_moved(const dpari_route *route, uint64_t state, const dpar_route_step *p)
{
    int64_t n = dpari_state_elements(route->layout, state), size;
    if (p->kind == DPAR_ROUTE_STEP_SLICE || p->kind == DPAR_ROUTE_STEP_TO_PARTIAL) {
        return 0;
    }
    if (p->kind == DPAR_ROUTE_STEP_PERMUTE || p->kind == DPAR_ROUTE_STEP_SWAP) {
        return n;
    }
    size = route->layout->mesh.axis[p->axis].size;
    switch (p->kind) {
    case DPAR_ROUTE_STEP_ALL_GATHER: return dpari_route_price(n, size - 1);
    case DPAR_ROUTE_STEP_ALL_REDUCE: return 2 * (n - n / size);
    default:
        return dpari_route_price(dpari_state_chunk(route->layout, state, p->to, size), size - 1);
    }
}

/* Returns the cost of an element along an axis, or with -1 along the most expensive one. */
static int64_t dpari_route_each(const dpari_route *route, int32_t axis)
{
    int64_t most = 0;
    int32_t i;
    if (route->byte_cost == NULL) {
        return 1;
    }
    for (i = 0; i < route->layout->mesh.axes; i++) {
        if (route->layout->mesh.axis[i].size > 1) {
            most = dpari_most(most, route->byte_cost[i]);
        }
    }
    return axis >= 0 ? route->byte_cost[axis] : most;
}

/* Takes a step from node k. Returns 0 if there is no capacity for the node to which it leads. */
static int dpari_route_try(dpari_route *route, int32_t k, int32_t kind, int32_t axis, int32_t from,
                           int32_t to)
{
    const int64_t each = dpari_route_each(route, kind == DPAR_ROUTE_STEP_SWAP ? -1 : axis);
    dpar_route_step p;
    int64_t cost;
    int32_t next;
    p.kind = kind;
    p.axis = axis;
    p.from = from;
    p.to = to;
    p.held = 0;
    p.elements = dpari_route_moved(route, route->node[k].state, &p);
    /* costs count in sixteenths, plus one per step, so that of equally expensive routes the shorter
     * one is taken */
    cost = dpari_route_price(p.elements, each) + (p.elements > 0 ? route->step_cost : 0);
    cost = route->node[k].cost + 1 + 16 * cost;
    next = dpari_route_find(
        route, dpari_state_step(route->node[k].state, route->layout->mesh.axes, &p, route->goal));
    if (next < 0) {
        return 0;
    }
    if (route->node[next].cost >= 0 && route->node[next].cost <= cost) {
        return 1;
    }
    if (route->node[next].cost < 0) {
        route->node[next].slot = route->heaped++;
    }
    route->node[next].cost = cost;
    route->node[next].before = k;
    route->node[next].step = p;
    dpari_heap_rise(route, route->node[next].slot, next);
    return 1;
}

/* Takes all steps of one axis. */
static int dpari_route_axis(dpari_route *route, int32_t k, int32_t axis)
{
    uint64_t state = route->node[k].state;
    int32_t at = dpari_state_dim(state, axis), d, ok = 1, axes = route->layout->mesh.axes;
    int32_t kind = DPAR_ROUTE_STEP_ALL_TO_ALL;
    if (route->layout->mesh.axis[axis].size == 1) {
        return 1;
    }
    if (at < DPAR_MAX_DIMS &&
        dpari_state_place(state, axis) + 1 < dpari_state_cuts(state, axes, at)) {
        return 1; /* only the innermost cut can change */
    }
    if (at == DPARI_STATE_R) {
        kind = DPAR_ROUTE_STEP_SLICE;
    } else if (at == DPARI_STATE_P) {
        kind = DPAR_ROUTE_STEP_REDUCE_SCATTER;
    }
    for (d = 0; d < route->layout->dims && ok; d++) {
        ok = d == at || dpari_route_try(route, k, kind, axis, at < DPAR_MAX_DIMS ? at : -1, d);
    }
    if (at == DPARI_STATE_P) {
        ok = ok && dpari_route_try(route, k, DPAR_ROUTE_STEP_ALL_REDUCE, axis, -1, -1);
    } else if (at != DPARI_STATE_R) {
        ok = ok && dpari_route_try(route, k, DPAR_ROUTE_STEP_ALL_GATHER, axis, at, -1);
    } else if (dpari_state_dim(route->goal, axis) == DPARI_STATE_P) {
        ok = ok && dpari_route_try(route, k, DPAR_ROUTE_STEP_TO_PARTIAL, axis, -1, -1);
    }
    return ok;
}

/* True if a dim has equal tiles under a state. Replication, which is not a dim, counts as equal. */
static int dpari_state_even(const dpar_layout *layout, uint64_t state, int32_t dim)
{
    int64_t parts = 1;
    int32_t i;
    for (i = 0; i < layout->mesh.axes; i++) {
        parts *= dpari_state_dim(state, i) == dim ? layout->mesh.axis[i].size : 1;
    }
    return dim >= DPAR_MAX_DIMS || layout->extent[dim] % parts == 0;
}

/* Takes the steps that exchange an axis with a later one. */
static int dpari_route_swaps(dpari_route *route, int32_t k, int32_t axis)
{
    uint64_t state = route->node[k].state;
    int32_t a = dpari_state_dim(state, axis), b, i, ok = 1;
    for (i = axis + 1; i < route->layout->mesh.axes && ok; i++) {
        b = dpari_state_dim(state, i);
        if ((a == b && a < DPAR_MAX_DIMS) ||
            (a != b && route->layout->mesh.axis[axis].size == route->layout->mesh.axis[i].size &&
             a != DPARI_STATE_P && b != DPARI_STATE_P)) {
            ok = !dpari_state_even(route->layout, state, a) ||
                 !dpari_state_even(route->layout, state, b) ||
                 dpari_route_try(route, k, DPAR_ROUTE_STEP_SWAP, axis, a < DPAR_MAX_DIMS ? a : -1,
                                 i);
        }
    }
    return ok;
}

static dpar_status dpari_route_search(dpari_route *route, uint64_t start, int32_t *end)
{
    int32_t k = dpari_route_find(route, start), axis;
    route->node[k].cost = 0;
    route->node[k].before = -1;
    route->node[k].slot = route->heaped++;
    dpari_heap_put(route, 0, k);
    while (route->heaped > 0) {
        k = dpari_heap_pop(route);
        if (route->node[k].state == route->goal) {
            *end = k;
            return DPAR_OK;
        }
        if (dpari_state_tiles(route->layout, route->node[k].state, route->goal) &&
            !dpari_route_try(route, k, DPAR_ROUTE_STEP_PERMUTE, -1, -1, -1)) {
            return DPAR_E_ROOM;
        }
        for (axis = 0; axis < route->layout->mesh.axes; axis++) {
            if (!dpari_route_axis(route, k, axis) || !dpari_route_swaps(route, k, axis)) {
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
    if (!dpari_mesh_same(&from->mesh, &to->mesh) || from->dims != to->dims) {
        return dpari_wrong(why, "from and to must have the same mesh and number of dims");
    }
    for (i = 0; i < from->dims; i++) {
        if (from->extent[i] != to->extent[i]) {
            return dpari_wrong(why, "dim %d has %ld elements before and %ld after", i,
                               from->extent[i], to->extent[i]);
        }
    }
    st = dpari_state_of(from, start, why);
    return st == DPAR_OK ? dpari_state_of(to, goal, why) : st;
}

static int64_t dpari_route_sum(int64_t a, int64_t b)
{
    return a > INT64_MAX - b ? INT64_MAX : a + b;
}

DPAR_API DPARI_COLD dpar_status dpar_route_plan(const dpar_route_desc *desc, dpar_route_step *steps,
                                                int32_t capacity, int32_t *count, dpar_why *why)
{
    dpar_route_node *nodes = desc->nodes;
    dpari_route r;
    uint64_t start;
    int32_t k, end = 0, n = 0;
    dpar_status st;
    dpari_zero(&r, sizeof(r));
    st = dpari_route_ends(desc->from, desc->to, &start, &r.goal, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (desc->node_capacity < 2 || desc->step_cost < 0 || desc->step_cost > INT32_MAX) {
        return dpari_wrong(
            why, "node_capacity=%d must be at least 2, step_cost=%ld must be 0 to 2^31 - 1",
            desc->node_capacity, desc->step_cost);
    }
    r.layout = desc->from;
    r.byte_cost = desc->byte_cost;
    r.step_cost = desc->step_cost;
    r.node = nodes;
    r.room = desc->node_capacity;
    dpari_zero(nodes, (size_t)desc->node_capacity * sizeof(*nodes));
    st = dpari_route_search(&r, start, &end);
    if (st != DPAR_OK) {
        if (st == DPAR_E_ROOM) {
            dpari_needs_bytes(why, 0);
            return dpari_say(st, why, "node_capacity %d is too small for this search",
                             desc->node_capacity);
        }
        return dpari_say(st, why, "no sequence of collectives makes that layout");
    }
    for (k = end; nodes[k].before >= 0; k = nodes[k].before) {
        n++;
    }
    if (n > capacity) {
        dpari_needs_bytes(why, 0);
        return dpari_say(DPAR_E_ROOM, why, "the plan has %d steps, but capacity is %d", n,
                         capacity);
    }
    *count = n;
    for (k = end; nodes[k].before >= 0; k = nodes[k].before) {
        steps[--n] = nodes[k].step;
        steps[n].held = dpari_state_elements(r.layout, nodes[k].state);
        steps[n].held = dpari_route_sum(
            steps[n].held, dpari_state_elements(r.layout, nodes[nodes[k].before].state));
    }
    return DPAR_OK;
}

/* ---- applying -------------------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_route_step_apply(const dpar_layout *layout,
                                                      const dpar_route_step *step,
                                                      const dpar_layout *goal, dpar_layout *after,
                                                      dpar_why *why)
{
    dpar_placement *placement;
    int8_t order[DPAR_MAX_AXES];
    int32_t axis = step->axis, k, n;
    if (step->kind == DPAR_ROUTE_STEP_PERMUTE) {
        *after = *goal;
        return DPAR_OK;
    }
    if (step->kind == DPAR_ROUTE_STEP_SWAP && axis >= 0 && axis < layout->mesh.axes &&
        step->to >= 0 && step->to < layout->mesh.axes) {
        *after = *layout;
        after->axis[axis] = layout->axis[step->to];
        after->axis[step->to] = layout->axis[axis];
        for (k = 0; k < layout->mesh.axes; k++) {
            order[k] = layout->order[k];
            if (layout->order[k] == axis) {
                order[k] = (int8_t)step->to;
            } else if (layout->order[k] == step->to) {
                order[k] = (int8_t)axis;
            }
        }
        dpari_layout_cut_in(after, order);
        return DPAR_OK;
    }
    if (axis < 0 || axis >= layout->mesh.axes || step->to >= layout->dims) {
        return dpari_wrong(why, "the step's axis %d or dim %d does not exist", axis, step->to);
    }
    *after = *layout;
    placement = &after->axis[axis];
    if (step->kind == DPAR_ROUTE_STEP_TO_PARTIAL) {
        *placement = goal->axis[axis];
    } else {
        *placement = step->to < 0 ? dpar_replicate() : dpar_shard(step->to);
    }
    for (k = 0, n = 0; k < layout->mesh.axes; k++) { /* the axis of the step cuts last */
        if (layout->order[k] != axis) {
            order[n++] = layout->order[k];
        }
    }
    order[n] = (int8_t)axis;
    dpari_layout_cut_in(after, order);
    return DPAR_OK;
}

/* ==== index/flat.c ==== */

/* Flat buffers. Parameters are placed one after another, each at a multiple of the alignment. A
 * bucket ends once it is full, and its end is rounded up to a whole multiple. The part of a
 * parameter on a rank is the intersection of two intervals. dpar_train.h calls this for DDP and
 * FSDP. */

static const int64_t dpari_flat_limit = INT64_C(1) << 62;

/* ---- placing parameters ---------------------------------------------------------------------- */

/* Rounds a up to a multiple of m. Returns 0 if that exceeds 2^62. */
static int dpari_round_up(int64_t a, int64_t m, int64_t *up)
{
    int64_t rest = a % m, add = rest == 0 ? 0 : m - rest;
    if (a > dpari_flat_limit || add > dpari_flat_limit - a) {
        return 0;
    }
    *up = a + add;
    return 1;
}

/* Places a parameter of n elements at the next multiple of `align`, and moves *end to its end. */
static dpar_status dpari_flat_place(int32_t i, int64_t n, int64_t align, int64_t *end,
                                    int64_t *start, dpar_why *why)
{
    int64_t at;
    if (n < 0) {
        return dpari_wrong(why, "parameter %d has a negative count, %ld", i, n);
    }
    if (!dpari_round_up(*end, align, &at) || n > dpari_flat_limit - at) {
        return dpari_say(DPAR_E_RANGE, why, "parameter %d of %ld elements ends past 2^62", i, n);
    }
    *start = at;
    *end = at + n;
    return DPAR_OK;
}

DPARI_API DPARI_COLD dpar_status dpari_flat_init(dpari_flat *flat, int32_t params,
                                                 const int64_t *numel, int64_t align, int32_t ranks,
                                                 int64_t *start, dpar_why *why)
{
    int64_t end = 0, padded;
    int32_t i;
    if (params < 0 || align < 1 || ranks < 1) {
        return dpari_wrong(why, "params %d must be at least 0, align %ld and ranks %d at least 1",
                           params, align, ranks);
    }
    for (i = 0; i < params; i++) {
        int64_t at;
        dpar_status st = dpari_flat_place(i, numel[i], align, &end, &at, why);
        if (st != DPAR_OK) {
            return st;
        }
    }
    if (!dpari_round_up(end, ranks, &padded)) {
        return dpari_say(DPAR_E_RANGE, why, "%ld elements, padded for %d ranks, exceed 2^62", end,
                         ranks);
    }
    flat->ranks = ranks;
    flat->total = end;
    flat->shard = padded / ranks;
    for (i = 0, end = 0; i < params; i++) {
        (void)dpari_flat_place(i, numel[i], align, &end, &start[i], NULL);
    }
    return DPAR_OK;
}

/* Computes the piece of a parameter that is in [lo, hi) of a buffer. Returns 0 if there is none. */
static int dpari_flat_cut(int64_t lo, int64_t hi, int64_t start, int64_t numel, dpar_piece *piece)
{
    int64_t from = dpari_most(lo, start), to;
    if (start < 0 || numel > INT64_MAX - start) {
        return 0;
    }
    to = dpari_least(hi, start + numel);
    if (to <= from) { /* also if numel is negative */
        return 0;
    }
    piece->count = to - from;
    piece->in_param = from - start;
    piece->in_shard = from - lo;
    piece->in_bucket = from;
    piece->in_buffer = from;
    return 1;
}

DPARI_API int dpari_flat_piece(const dpari_flat *flat, int64_t start, int64_t numel, int32_t rank,
                               dpar_piece *piece)
{
    return rank >= 0 && rank < flat->ranks &&
           dpari_flat_cut(rank * flat->shard, rank * flat->shard + flat->shard, start, numel,
                          piece);
}

/* ---- buckets --------------------------------------------------------------------------------- */

DPARI_API dpar_buckets_desc dpari_bucketing_ddp(int64_t element_bytes)
{
    dpar_buckets_desc how;
    dpari_zero(&how, sizeof(how));
    how.first = dpari_ceil_div(INT64_C(1) << 20, dpari_most(1, element_bytes));
    how.size = dpari_ceil_div(INT64_C(25) << 20, dpari_most(1, element_bytes));
    return how;
}

/* Places one parameter after the other and ends a bucket once it is full. `start` and `bucket` are
 * filled unless they are NULL. */
static dpar_status dpari_buckets_walk(const dpar_buckets_desc *how, int64_t unit, int64_t *start,
                                      dpar_bucket *bucket, int32_t room, int32_t *buckets,
                                      dpar_why *why)
{
    int64_t align = dpari_most(1, how->align), lo = 0, end = 0, at = 0;
    int32_t i, k, begun = 0, n = 0;
    for (k = 0; k < how->params; k++) {
        int64_t limit = n == 0 && how->first > 0 ? how->first : how->size;
        dpar_status st;
        i = how->forward ? k : how->params - 1 - k;
        st = dpari_flat_place(i, how->count[i], align, &end, &at, why);
        if (st != DPAR_OK) {
            return st;
        }
        if (start != NULL) {
            start[i] = at;
        }
        if (k + 1 < how->params && (limit == 0 || end - lo < limit)) {
            continue;
        }
        at = end;
        if (!dpari_round_up(end, unit, &end)) {
            return dpari_say(DPAR_E_RANGE, why, "bucket %d ends past 2^62", n);
        }
        if (bucket != NULL && n < room) {
            bucket[n].lo = lo;
            bucket[n].hi = end;
            bucket[n].used = at - lo;
            bucket[n].first_param = how->forward ? begun : i;
            bucket[n].end_param = how->forward ? k + 1 : how->params - begun;
        }
        n++;
        lo = end;
        begun = k + 1;
    }
    *buckets = n;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_buckets_init(const dpar_buckets_desc *how, int64_t *start,
                                                  dpar_bucket *bucket, int32_t capacity,
                                                  int32_t *buckets, dpar_why *why)
{
    int64_t ranks = how->ranks > 0 ? how->ranks : 1, unit = dpari_most(1, how->multiple);
    int32_t n = 0;
    dpar_status st;
    if (how->params < 0 || how->first < 0 || how->size < 0 || how->ranks < 0 || how->align < 0 ||
        how->multiple < 0) {
        return dpari_wrong(
            why,
            "params=%d, first=%ld, size=%ld, ranks=%d, align=%ld, multiple=%ld: none "
            "may be negative",
            how->params, how->first, how->size, how->ranks, how->align, how->multiple);
    }
    if (!dpari_mul(unit / dpari_gcd(unit, ranks), ranks, &unit)) {
        return dpari_say(DPAR_E_RANGE, why, "lcm(multiple %ld, ranks %ld) exceeds 2^63",
                         how->multiple, ranks);
    }
    st = dpari_buckets_walk(how, unit, NULL, NULL, 0, &n, why);
    return st != DPAR_OK ? st
                         : dpari_buckets_walk(how, unit, start, bucket, capacity, buckets, why);
}

DPAR_API int dpar_bucket_piece(const dpar_bucket *bucket, int32_t ranks, int64_t start,
                               int64_t count, int32_t rank, dpar_piece *piece)
{
    int64_t shard, lo;
    if (rank < 0 || rank >= ranks) {
        return 0;
    }
    shard = (bucket->hi - bucket->lo) / ranks;
    lo = bucket->lo + rank * shard;
    if (!dpari_flat_cut(lo, lo + shard, start, count, piece)) {
        return 0;
    }
    piece->in_bucket -= bucket->lo;
    return 1;
}

/* ---- intervals ------------------------------------------------------------------------------- */

DPAR_API int dpar_flat_next(int32_t dims, const int64_t *extent, int64_t *at, int64_t end,
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
    for (d = dims - 1; d > 0; d--) { /* the dims that the box has whole */
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

/* Divides a transformer's heads, vocabulary and layers over ranks, by closed formulas in O(1). */

/* ---- heads ----------------------------------------------------------------------------------- */

/* Returns where part p of n items begins by the rule CHUNK or EVEN. 0 <= p <= parts. */
static int32_t dpari_heads_cut(int32_t rule, int32_t n, int32_t parts, int32_t p)
{
    int64_t each = n / parts;
    if (rule == DPAR_SPLIT_CHUNK) {
        return (int32_t)dpari_least(n, dpari_ceil_div(n, parts) * p);
    }
    return (int32_t)(each * p + dpari_least(p, n - each * parts));
}

DPAR_API DPARI_COLD dpar_status dpar_heads_init(dpar_heads *heads, int32_t queries, int32_t groups,
                                                int32_t ranks, int32_t rule, dpar_why *why)
{
    const int strict = rule == DPAR_HEADS_DIVIDE;
    if (queries < 1 || groups < 1 || ranks < 1 ||
        (rule != DPAR_SPLIT_EVEN && rule != DPAR_SPLIT_CHUNK && !strict)) {
        return dpari_wrong(
            why,
            "queries %d, groups %d and ranks %d must be at least 1, rule %d CHUNK, EVEN or DIVIDE",
            queries, groups, ranks, rule);
    }
    if (queries % groups != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "%d key-value heads do not divide %d query heads",
                         groups, queries);
    }
    if (strict && (groups >= ranks ? groups % ranks != 0 : ranks % groups != 0)) {
        return dpari_say(DPAR_E_DIVIDE, why,
                         "%d key-value heads and tp=%d: one must be a multiple of the other",
                         groups, ranks);
    }
    if (strict && queries % ranks != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "tp=%d does not divide %d attention heads", ranks,
                         queries);
    }
    heads->queries = queries;
    heads->groups = groups;
    heads->ranks = ranks;
    heads->rule = strict ? DPAR_SPLIT_EVEN : rule;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_heads_share dpar_heads_local(const dpar_heads *heads, int32_t rank)
{
    dpar_heads_share s;
    int32_t each = heads->queries / heads->groups, first, among;
    dpari_zero(&s, sizeof(s));
    if (rank < 0 || rank >= heads->ranks) {
        return s;
    }
    if (heads->groups >= heads->ranks) {
        s.first_group = dpari_heads_cut(heads->rule, heads->groups, heads->ranks, rank);
        s.groups =
            dpari_heads_cut(heads->rule, heads->groups, heads->ranks, rank + 1) - s.first_group;
        s.first_query = s.first_group * each;
        s.queries = s.groups * each;
        s.copies = s.groups > 0;
    } else { /* ranks are dealt to groups by EVEN, so that each group has some */
        s.first_group = dpari_even_of(heads->ranks, heads->groups, rank);
        s.groups = 1;
        first = dpari_heads_cut(DPAR_SPLIT_EVEN, heads->ranks, heads->groups, s.first_group);
        among = dpari_heads_cut(DPAR_SPLIT_EVEN, heads->ranks, heads->groups, s.first_group + 1) -
                first;
        s.copy = rank - first;
        s.copies = among;
        s.first_query = dpari_heads_cut(heads->rule, each, among, s.copy);
        s.queries = dpari_heads_cut(heads->rule, each, among, s.copy + 1) - s.first_query;
        s.first_query += s.first_group * each;
    }
    return s;
}

/* ---- fused weights --------------------------------------------------------------------------- */

DPAR_API DPARI_COLD int dpar_heads_rows(const dpar_heads *heads, int32_t rank, int32_t order,
                                        int64_t width, int32_t n, int64_t rows[2])
{
    dpar_heads_share s = dpar_heads_local(heads, rank);
    int64_t each = heads->queries / heads->groups,
            all = (int64_t)heads->queries + 2 * (int64_t)heads->groups;
    int64_t run[3][2];
    int32_t i, runs = 0;
    if (s.groups == 0 || width < 1 || width > INT64_MAX / all || n < 0) {
        return 0;
    }
    if (order == DPAR_HEADS_QKV_BY_KIND) {
        for (i = 0; i < 3; i++) {
            run[i][0] = i == 0 ? s.first_query
                               : heads->queries + (i - 1) * (int64_t)heads->groups + s.first_group;
            run[i][1] = run[i][0] + (i == 0 ? s.queries : s.groups);
        }
    } else { /* a rank with several groups has all queries of these groups */
        run[0][0] = s.first_group * (each + 2) + (s.first_query - s.first_group * each);
        run[0][1] = run[0][0] + s.queries;
        run[1][0] = s.first_group * (each + 2) + each;
        run[1][1] = (s.first_group + s.groups) * (each + 2);
        if (s.groups > 1) {
            run[0][1] = run[1][0];
        }
        run[2][0] = run[2][1] = run[1][1];
    }
    for (i = 0; i < 3; i++) { /* ranges that touch become one */
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
    rows[0] = run[n][0] * width;
    rows[1] = run[n][1] * width;
    return 1;
}

DPARI_API DPARI_COLD dpar_status dpari_ulysses_counts(const dpar_split *seq,
                                                      const dpar_split *heads, int32_t rank,
                                                      int64_t width, int64_t *send,
                                                      int64_t *send_at, int64_t *receive,
                                                      int64_t *receive_at, dpar_why *why)
{
    int64_t all, tokens, mine, sent = 0, received = 0;
    int32_t q;
    if (seq->parts != heads->parts || rank < 0 || rank >= seq->parts || width < 1) {
        return dpari_wrong(why,
                           "rank=%d is not one of %d parts of the sequence, the heads have %d "
                           "parts, or width=%ld is below 1",
                           rank, seq->parts, heads->parts, width);
    }
    if (!dpari_mul(seq->count, heads->count, &all) || !dpari_mul(all, width, &all)) {
        return dpari_say(DPAR_E_RANGE, why, "%ld tokens x %ld heads x %ld exceed 2^63", seq->count,
                         heads->count, width);
    }
    tokens = dpar_split_part_count(seq, rank);
    mine = dpar_split_part_count(heads, rank);
    for (q = 0; q < seq->parts; q++) {
        int64_t out = tokens * dpar_split_part_count(heads, q) * width;
        int64_t in = dpar_split_part_count(seq, q) * mine * width;
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

/* ---- vocabulary ------------------------------------------------------------------------------ */

DPAR_API DPARI_COLD dpar_status dpar_vocab_init(dpar_vocab *vocab, int64_t count, int64_t added,
                                                int64_t multiple, int32_t ranks, dpar_why *why)
{
    const int64_t limit = INT64_C(1) << 61;
    int64_t padded, all;
    if (count < 0 || added < 0 || multiple < 1 || ranks < 1) {
        return dpari_wrong(
            why, "count %ld and added %ld must be at least 0, multiple %ld and ranks %d at least 1",
            count, added, multiple, ranks);
    }
    if (count > limit || added > limit || multiple > limit / 4) {
        return dpari_say(DPAR_E_RANGE, why,
                         "count=%ld and added=%ld must be at most 2^61, multiple=%ld at most 2^59",
                         count, added, multiple);
    }
    padded = dpari_ceil_div(count, multiple) * multiple;
    all = dpari_ceil_div(padded + added, multiple) * multiple;
    if (padded % ranks != 0 || (all - padded) % ranks != 0) {
        return dpari_say(
            DPAR_E_DIVIDE, why,
            "%ld and %ld rows do not split evenly over %d ranks: choose another multiple", padded,
            all - padded, ranks);
    }
    vocab->count = count;
    vocab->added = added;
    vocab->padded = padded;
    vocab->padded_added = all - padded;
    vocab->ranks = ranks;
    return DPAR_OK;
}

DPAR_API int64_t dpar_vocab_row_count(const dpar_vocab *vocab)
{
    return vocab->padded / vocab->ranks + vocab->padded_added / vocab->ranks;
}

DPAR_API int64_t dpar_vocab_row(const dpar_vocab *vocab, int32_t rank, int64_t id)
{
    int64_t each = vocab->padded / vocab->ranks, more = vocab->padded_added / vocab->ranks, row;
    if (id < 0 || id >= vocab->count + vocab->added || rank < 0 || rank >= vocab->ranks) {
        return -1;
    }
    if (id < vocab->count) {
        row = id - rank * each;
        return row >= 0 && row < each ? row : -1;
    }
    row = id - vocab->count - rank * more;
    return row >= 0 && row < more ? each + row : -1;
}

DPAR_API int64_t dpar_vocab_id(const dpar_vocab *vocab, int32_t rank, int64_t row)
{
    int64_t each = vocab->padded / vocab->ranks, more = vocab->padded_added / vocab->ranks, id;
    if (row < 0 || row >= each + more || rank < 0 || rank >= vocab->ranks) {
        return -1;
    }
    if (row < each) {
        id = rank * each + row;
        return id < vocab->count ? id : -1;
    }
    id = rank * more + row - each;
    return id < vocab->added ? vocab->count + id : -1;
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* Counts the layers before position v of the pipeline, whose positions are the chunks of all stages
 * in order. `rest` is the number of layers that first_layers and last_layers do not fix, embedding
 * and loss included if they count as layers. */
static int64_t dpari_stage_before(const dpar_stage_layers_desc *s, int32_t chunks, int64_t rest,
                                  int64_t v)
{
    int64_t round = v / s->stages, in = v % s->stages, others = s->stages, plain, before = 0;
    others -= (s->first_layers > 0) + (s->last_layers > 0);
    plain = round * others + dpari_most(0, in - (s->first_layers > 0)); /* chunks before v of the
                                                                           stages that are not
                                                                           fixed */
    if (others > 0) {
        before = rest / (others * chunks) * plain + dpari_least(plain, rest % (others * chunks));
    }
    if (s->first_layers > 0) {
        before += s->first_layers / chunks * (round + (in > 0));
    }
    return before + s->last_layers / chunks * round;
}

static dpar_status dpari_stages_check(const dpar_stage_layers_desc *s, int32_t chunks, int64_t rest,
                                      dpar_why *why)
{
    int32_t given = (s->first_layers > 0) + (s->last_layers > 0);
    if (s->layers < 0 || s->stages < 1 || chunks < 1 || s->first_layers < 0 || s->last_layers < 0) {
        return dpari_wrong(
            why,
            "layers=%d, first_layers=%d and last_layers=%d must be at least 0, stages=%d "
            "and chunks=%d at least 1",
            s->layers, s->first_layers, s->last_layers, s->stages, chunks);
    }
    if (s->embedding < 0 || s->embedding > 1 || s->loss < 0 || s->loss > 1 || s->v_shape < 0 ||
        s->v_shape > 1) {
        return dpari_wrong(why, "embedding=%d, loss=%d, v_shape=%d: each must be 0 or 1",
                           s->embedding, s->loss, s->v_shape);
    }
    if (given > 0 && (s->v_shape || s->embedding || s->loss)) {
        return dpari_wrong(why,
                           "first_layers=%d, last_layers=%d exclude embedding, loss and v_shape",
                           s->first_layers, s->last_layers);
    }
    if (given > s->stages || rest < 0 || (given == s->stages && rest > 0)) {
        return dpari_say(DPAR_E_DIVIDE, why,
                         "first_layers=%d and last_layers=%d do not fit %d layers on %d stages",
                         s->first_layers, s->last_layers, s->layers, s->stages);
    }
    if (s->first_layers % chunks != 0 || s->last_layers % chunks != 0) {
        return dpari_say(DPAR_E_DIVIDE, why,
                         "%d chunks do not divide first_layers=%d and last_layers=%d", chunks,
                         s->first_layers, s->last_layers);
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_stage_layers(const dpar_stage_layers_desc *desc, int32_t stage,
                                                  int32_t chunk, int32_t *first, int32_t *end,
                                                  dpar_why *why)
{
    int32_t chunks = desc->chunks == 0 ? 1 : desc->chunks;
    int64_t rest = (int64_t)desc->layers + desc->embedding + desc->loss - desc->first_layers -
                   desc->last_layers,
            v, from, to;
    dpar_status st = dpari_stages_check(desc, chunks, rest, why);
    if (st == DPAR_OK && (stage < 0 || stage >= desc->stages || chunk < 0 || chunk >= chunks)) {
        st = dpari_wrong(why, "chunk %d of stage %d: there are %d chunks and %d stages", chunk,
                         stage, chunks, desc->stages);
    }
    if (st != DPAR_OK) {
        return st;
    }
    v = (int64_t)chunk * desc->stages +
        (desc->v_shape && chunk % 2 ? desc->stages - 1 - stage : stage);
    from = dpari_stage_before(desc, chunks, rest, v) - desc->embedding;
    to = dpari_stage_before(desc, chunks, rest, v + 1) - desc->embedding;
    *first = (int32_t)dpari_most(0, dpari_least(from, desc->layers));
    *end = (int32_t)dpari_most(0, dpari_least(to, desc->layers));
    return DPAR_OK;
}

/* ==== index/context.c ==== */

/* Context parallelism. Each document is a dpar_split that is made when it is needed, so that memory
 * does not grow with the number of documents. */

/* Checks the ends of packed documents, of which ends[0] is the start of the first one. */
static dpar_status dpari_context_ends(int32_t docs, const int64_t *ends, int32_t ranks,
                                      dpar_why *why)
{
    int32_t k;
    if (docs < 0 || ranks < 1 || ends[0] != 0) {
        return dpari_wrong(why,
                           "docs=%d must be at least 0, ends[0]=%ld must be 0, ranks=%d at least 1",
                           docs, docs < 0 ? 0 : ends[0], ranks);
    }
    for (k = 0; k < docs; k++) {
        if (ends[k + 1] < ends[k]) {
            return dpari_wrong(why, "document %d ends at %ld, before it begins at %ld", k,
                               ends[k + 1], ends[k]);
        }
    }
    if (ends[docs] > INT64_C(1) << 61) {
        return dpari_say(DPAR_E_RANGE, why, "%ld tokens exceed 2^61", ends[docs]);
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_packed_init(dpar_packed *packed, int32_t docs,
                                                 const int64_t *ends, int32_t ranks, int32_t rule,
                                                 dpar_why *why)
{
    dpar_status st = dpari_context_ends(docs, ends, ranks, why);
    if (st == DPAR_OK && rule != DPAR_SPLIT_CHUNK && rule != DPAR_SPLIT_EVEN &&
        rule != DPAR_SPLIT_ZIGZAG && rule != DPAR_SPLIT_CYCLIC) {
        st = dpari_wrong(why, "rule is %d: documents need CHUNK, EVEN, ZIGZAG or CYCLIC", rule);
    }
    if (st == DPAR_OK) {
        packed->docs = docs;
        packed->ranks = ranks;
        packed->rule = rule;
        packed->ends = ends;
    }
    return st;
}

/* Makes the split of document k. It cannot fail, because dpar_packed_init checked the numbers. */
static void dpari_packed_split(const dpar_packed *packed, int32_t k, dpar_split *split)
{
    (void)dpar_split_init(split, packed->rule, packed->ends[k + 1] - packed->ends[k], packed->ranks,
                          1, NULL);
}

DPAR_API int64_t dpar_packed_rank_count(const dpar_packed *packed, int32_t rank,
                                        int64_t *local_ends)
{
    int64_t size = 0;
    int32_t k;
    dpar_split s;
    for (k = 0; k < packed->docs; k++) {
        if (local_ends != NULL) {
            local_ends[k] = size;
        }
        dpari_packed_split(packed, k, &s);
        size += dpar_split_part_count(&s, rank);
    }
    if (local_ends != NULL) {
        local_ends[k] = size;
    }
    return size;
}

DPAR_API int dpar_packed_next(const dpar_packed *packed, int32_t rank, dpar_packed_cursor *cursor,
                              int32_t *doc, int64_t *first, int64_t *count)
{
    dpar_split s;
    for (; cursor->doc < packed->docs; cursor->doc++, cursor->local = 0) {
        int64_t at, run;
        dpari_packed_split(packed, cursor->doc, &s);
        at = dpar_split_global(&s, rank, cursor->local, &run);
        if (at >= 0) {
            *doc = cursor->doc;
            *first = packed->ends[cursor->doc] + at;
            *count = run;
            cursor->local += run;
            return 1;
        }
    }
    return 0;
}

/* Counts the query-key pairs of n tokens of a document from `first` on, which see first + 1, ...,
 * first + n keys. */
static int64_t dpari_causal_pairs(int64_t first, int64_t n)
{
    int64_t most, last = n % 2 == 0 ? n / 2 : n;
    int64_t half = n % 2 == 0 ? n + 1 : (n + 1) / 2;
    if (!dpari_mul(first, n, &most) || !dpari_mul(last, half, &last) || last > INT64_MAX - most) {
        return INT64_MAX;
    }
    return most + last;
}

/* Counts the query-key pairs of a stripe, whose tokens rank, rank + ranks, ... see rank + 1, rank +
 * 1 + ranks, ... keys. */
static int64_t dpari_stripe_pairs(const dpar_packed *packed, int32_t doc, int32_t rank)
{
    dpar_split s;
    int64_t n, steps, half, sum;
    dpari_packed_split(packed, doc, &s);
    n = dpar_split_part_count(&s, rank);
    steps = n % 2 == 0 ? n - 1 : n; /* n (n - 1) / 2 without an overflow of n (n - 1) */
    half = n % 2 == 0 ? n / 2 : (n - 1) / 2;
    if (n < 1) {
        return 0;
    }
    if (!dpari_mul(steps, half, &steps) || !dpari_mul(steps, packed->ranks, &steps) ||
        !dpari_mul(n, (int64_t)rank + 1, &sum) || sum > INT64_MAX - steps) {
        return INT64_MAX;
    }
    return sum + steps;
}

DPAR_API DPARI_COLD int64_t dpar_packed_pairs(const dpar_packed *packed, int32_t rank)
{
    dpar_packed_cursor cursor;
    int64_t pairs = 0, first, n, more;
    int32_t doc;
    for (doc = 0; packed->rule == DPAR_SPLIT_CYCLIC && doc < packed->docs; doc++) {
        more = dpari_stripe_pairs(packed, doc, rank);
        pairs = more > INT64_MAX - pairs ? INT64_MAX : pairs + more;
    }
    if (packed->rule == DPAR_SPLIT_CYCLIC) {
        return pairs;
    }
    dpari_zero(&cursor, sizeof(cursor));
    while (dpar_packed_next(packed, rank, &cursor, &doc, &first, &n)) {
        more = dpari_causal_pairs(first - packed->ends[doc], n);
        pairs = more > INT64_MAX - pairs ? INT64_MAX : pairs + more;
    }
    return pairs;
}

/* ==== index/window.c ==== */

/* Operators that read windows. For each kind it computes the inputs that a range of outputs reads,
 * and the outputs that read only a given range of inputs. halo.c uses both to size the local arrays
 * and to find what can be computed before an exchange. */

static const int64_t dpari_window_limit = INT64_C(1) << 60;

static int64_t dpari_window_stride(const dpar_window *window)
{
    return window->stride > 0 ? window->stride : 1;
}

static int64_t dpari_window_dilation(const dpar_window *window)
{
    return window->dilation > 0 ? window->dilation : 1;
}

/* Returns the distance from the first element of the kernel to the last one. */
static int64_t dpari_window_reach(const dpar_window *window)
{
    return dpari_window_dilation(window) * (window->kernel - 1);
}

/* Checks what holds for every kind of window. */
static dpar_status dpari_window_check_fields(const dpar_window *window, int64_t inputs,
                                             dpar_why *why)
{
    const int64_t limit = INT64_C(1) << 30;
    if (window->kernel < 1 || window->stride < 0 || window->dilation < 0 || window->pad_low < 0 ||
        window->pad_high < 0) {
        return dpari_wrong(
            why,
            "kernel=%ld must be at least 1, stride=%ld, dilation=%ld, pad_low=%ld and "
            "pad_high=%ld at least 0",
            window->kernel, window->stride, window->dilation, window->pad_low, window->pad_high);
    }
    if (window->kernel > limit || window->stride > limit || window->dilation > limit ||
        window->pad_low > limit || window->pad_high > limit || inputs < 0 ||
        inputs > dpari_window_limit) {
        return dpari_say(DPAR_E_RANGE, why,
                         "%ld inputs must be 0 to 2^60, kernel=%ld, stride=%ld, dilation=%ld, "
                         "pad_low=%ld and pad_high=%ld at most 2^30",
                         inputs, window->kernel, window->stride, window->dilation, window->pad_low,
                         window->pad_high);
    }
    if (window->kind < DPAR_WINDOW_CONVOLUTION || window->kind > DPAR_WINDOW_NEIGHBOURHOOD) {
        return dpari_wrong(why, "window kind %d does not exist", window->kind);
    }
    if (window->kind == DPAR_WINDOW_NEIGHBOURHOOD && window->dilation > 4096) {
        return dpari_say(DPAR_E_RANGE, why,
                         "a neighbourhood's dilation is %ld: must be at most 4096",
                         window->dilation);
    }
    return DPAR_OK;
}

static dpar_status dpari_window_transposed_outputs(const dpar_window *window, int64_t inputs,
                                                   int64_t *outputs, dpar_why *why)
{
    int64_t s = dpari_window_stride(window), cut = window->pad_low + window->pad_high, m;
    if (inputs > dpari_window_limit / s) {
        return dpari_say(DPAR_E_RANGE, why, "%ld inputs times stride %ld exceeds 2^60", inputs, s);
    }
    m = s * (inputs - 1) + dpari_window_reach(window) + 1 - cut;
    if (inputs == 0 || m < 1) {
        return dpari_wrong(why, "no outputs are left: %ld inputs, stride %ld, %ld of padding",
                           inputs, s, cut);
    }
    *outputs = m;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_window_outputs(const dpar_window *window, int64_t inputs,
                                                    int64_t *outputs, dpar_why *why)
{
    int64_t room, s = dpari_window_stride(window), m;
    dpar_status st = dpari_window_check_fields(window, inputs, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (window->kind == DPAR_WINDOW_INTERPOLATION) {
        return dpari_wrong(why, "outputs must be set for an interpolation");
    }
    if (window->kind == DPAR_WINDOW_TRANSPOSED) {
        return dpari_window_transposed_outputs(window, inputs, outputs, why);
    }
    if (window->kind == DPAR_WINDOW_NEIGHBOURHOOD) {
        if (inputs / dpari_window_dilation(window) < window->kernel) {
            return dpari_wrong(why, "%ld inputs with dilation %ld have fewer than %ld keys", inputs,
                               dpari_window_dilation(window), window->kernel);
        }
        *outputs = inputs;
        return DPAR_OK;
    }
    room = inputs + window->pad_low + window->pad_high - dpari_window_reach(window) - 1;
    if (room < 0) {
        return dpari_wrong(
            why, "the kernel spans %ld elements, more than %ld inputs and %ld of padding",
            dpari_window_reach(window) + 1, inputs, window->pad_low + window->pad_high);
    }
    m = room / s + 1;
    if (window->ceil_mode && room % s != 0 && m * s < inputs + window->pad_low) {
        m++; /* as in torch, which leaves out a window that would begin in the right padding */
    }
    *outputs = m;
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_window_check(const dpar_window *window, int64_t inputs,
                                                         int64_t outputs, dpar_why *why)
{
    int64_t least = 0, more = 0;
    dpar_status st = dpari_window_check_fields(window, inputs, why);
    if (st == DPAR_OK && window->kind == DPAR_WINDOW_INTERPOLATION) {
        const int64_t limit = INT64_C(1) << 30;
        if (window->kernel > 1 && window->kernel % 2 != 0) {
            return dpari_wrong(why, "an interpolation's kernel is %ld: must be 1 or even",
                               window->kernel);
        }
        if (inputs >= 1 && inputs <= limit && outputs >= 1 && outputs <= limit) {
            return DPAR_OK;
        }
        return dpari_say(DPAR_E_RANGE, why,
                         "%ld inputs, %ld outputs: an interpolation has 1 to 2^30 of each", inputs,
                         outputs);
    }
    if (st == DPAR_OK) {
        st = dpar_window_outputs(window, inputs, &least, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    if (window->kind == DPAR_WINDOW_TRANSPOSED) {
        more = dpari_most(dpari_window_stride(window), window->dilation) - 1;
    }
    if (outputs < least || outputs > least + more) {
        return dpari_wrong(why, "%ld outputs of %ld inputs: must be %ld to %ld", outputs, inputs,
                           least, least + more);
    }
    return DPAR_OK;
}

/* Returns the first output that belongs to the inputs from i on. */
static int64_t dpari_window_first(const dpar_window *window, int64_t inputs, int64_t outputs,
                                  int64_t i)
{
    int64_t s = dpari_window_stride(window), y = i;
    if (window->kind == DPAR_WINDOW_TRANSPOSED) {
        y = i > outputs / s ? outputs : i * s;
    } else if (window->kind == DPAR_WINDOW_INTERPOLATION) {
        y = dpari_ceil_div(i * outputs, inputs);
    } else if (window->kind == DPAR_WINDOW_CONVOLUTION) {
        y = dpari_ceil_div(i, s);
    }
    return dpari_least(outputs, y);
}

DPARI_API DPARI_COLD void dpari_window_owned(const dpar_window *window, int64_t inputs,
                                             int64_t outputs, int64_t lo, int64_t hi, int64_t *y0,
                                             int64_t *y1)
{
    int64_t first, last;
    lo = dpari_most(0, dpari_least(lo, inputs));
    first = dpari_window_first(window, inputs, outputs, lo);
    last = hi >= inputs ? outputs : dpari_window_first(window, inputs, outputs, dpari_most(0, hi));
    *y0 = first;
    *y1 = hi > lo ? dpari_most(first, last) : first;
}

/* Computes the first key that queries [y0, y1) read, and one past the last. */
static DPARI_COLD void dpari_window_keys(const dpar_window *window, int64_t inputs, int64_t y0,
                                         int64_t y1, int64_t *lo, int64_t *hi)
{
    int64_t d = dpari_window_dilation(window), y;
    *lo = dpari_window_start(window, inputs, y0);
    *hi = dpari_window_start(window, inputs, y1 - 1);
    for (y = y0 + 1; y < y1 && y < y0 + d;
         y++) { /* first over the first query of each dilation group, then over the last */
        *lo = dpari_least(*lo, dpari_window_start(window, inputs, y));
    }
    for (y = y1 - 2; y >= y0 && y >= y1 - d; y--) {
        *hi = dpari_most(*hi, dpari_window_start(window, inputs, y));
    }
    *hi += dpari_window_reach(window) + 1;
}

/* Computes the inputs that output y reads. For bisection, neither end may decrease as y grows.
 * Therefore the keys of a query are joined with the keys of the other dilation groups before and
 * after it. */
static DPARI_COLD void dpari_window_span(const dpar_window *window, int64_t inputs, int64_t outputs,
                                         int64_t y, int64_t *lo, int64_t *hi)
{
    int64_t s = dpari_window_stride(window), reach = dpari_window_reach(window), at, other;
    if (window->kind == DPAR_WINDOW_NEIGHBOURHOOD) {
        int64_t d = dpari_window_dilation(window);
        dpari_window_keys(window, inputs, y, dpari_least(inputs, y + d), lo, &other);
        dpari_window_keys(window, inputs, dpari_most(0, y - d + 1), y + 1, &other, hi);
        return;
    }
    if (window->kind == DPAR_WINDOW_CONVOLUTION) {
        *lo = s * y - window->pad_low;
        *hi = *lo + reach + 1;
        return;
    }
    if (window->kind == DPAR_WINDOW_TRANSPOSED) {
        at = y + window->pad_low;
        *lo = dpari_most(0, dpari_least(inputs, -dpari_floor_div(reach - at, s)));
        *hi = dpari_least(inputs, dpari_floor_div(at, s) + 1);
        return;
    }
    if (window->kernel == 1) {
        at = y * inputs / outputs;
    } else if (window->align_corners) {
        at = outputs > 1 ? y * (inputs - 1) / (outputs - 1) : 0;
    } else {
        at = dpari_floor_div((2 * y + 1) * inputs - outputs, 2 * outputs);
    }
    at -= dpari_most(0, window->kernel / 2 - 1);
    *lo = dpari_most(0, dpari_least(at, inputs - 1));
    *hi = dpari_most(1, dpari_least(at + window->kernel, inputs));
}

DPARI_API int dpari_window_reads(const dpar_window *window, int64_t inputs, int64_t outputs,
                                 int64_t y0, int64_t y1, int64_t *lo, int64_t *hi)
{
    int64_t first, last, other;
    if (y0 < 0 || y1 <= y0 || y1 > outputs) {
        return 0;
    }
    if (window->kind == DPAR_WINDOW_NEIGHBOURHOOD) {
        dpari_window_keys(window, inputs, y0, y1, &first, &last);
    } else {
        dpari_window_span(window, inputs, outputs, y0, &first, &other);
        dpari_window_span(window, inputs, outputs, y1 - 1, &other, &last);
    }
    if (last <= first) {
        return 0;
    }
    *lo = first;
    *hi = last;
    return 1;
}

DPARI_INTERNAL void dpari_window_whole(const dpar_window *window, int64_t inputs, int64_t outputs,
                                       int64_t lo, int64_t hi, int64_t *y0, int64_t *y1)
{
    int64_t first = *y0, last = *y1, end, a, b;
    for (end = last; first < end;) { /* bisection for the first output that reads nothing below
                                        lo */
        int64_t y = first + (end - first) / 2;
        dpari_window_span(window, inputs, outputs, y, &a, &b);
        if (a >= lo) {
            end = y;
        } else {
            first = y + 1;
        }
    }
    for (end = first; end < last;) { /* from there on, for the first output that reads something
                                        above hi */
        int64_t y = end + (last - end) / 2;
        dpari_window_span(window, inputs, outputs, y, &a, &b);
        if (b > hi) {
            last = y;
        } else {
            end = y + 1;
        }
    }
    *y0 = first;
    *y1 = end;
}

DPARI_INTERNAL int64_t dpari_window_start(const dpar_window *window, int64_t inputs, int64_t i)
{
    int64_t d = dpari_window_dilation(window), group, members, first;
    if (i < 0 || i >= inputs || window->kernel < 1) {
        return -1;
    }
    group = i % d;
    members = (inputs - group - 1) / d + 1;
    if (members < window->kernel) {
        return -1;
    }
    first = dpari_most(0, dpari_least(i / d - window->kernel / 2, members - window->kernel));
    return first * d + group;
}

/* ==== index/halo.c ==== */

/* Checks descriptions of halos and computes their boxes: which points a rank owns, holds, computes,
 * and can compute before an exchange. Each box is a product of ranges, one for each dim, so that
 * every dim is computed separately. The transfers are in reach.c. */

/* ---- checks ---------------------------------------------------------------------------------- */

/* The limit of extents and widths. The sum of a dim and both of its halos then fits into 64
 * bits. */
static const int64_t dpari_halo_limit = INT64_C(1) << 60;

static int dpari_halo_in_one_piece(const dpar_placement *placement)
{
    return placement->kind != DPAR_PLACEMENT_SHARD || placement->rule == DPAR_SPLIT_CHUNK ||
           placement->rule == DPAR_SPLIT_EVEN || placement->rule == DPAR_SPLIT_FLOOR ||
           placement->rule == DPAR_SPLIT_RAGGED;
}

static DPARI_COLD dpar_status dpari_halo_check_dim(const dpar_halo *halo, int32_t d, dpar_why *why)
{
    int32_t i;
    if (halo->low[d] < 0 || halo->high[d] < 0 || halo->low[d] > dpari_halo_limit ||
        halo->high[d] > dpari_halo_limit) {
        return dpari_say(DPAR_E_RANGE, why,
                         "dim %d has halos of %ld and %ld: each must be 0 to 2^60", d, halo->low[d],
                         halo->high[d]);
    }
    if (halo->grid.extent[d] < 0 || halo->grid.extent[d] > dpari_halo_limit) {
        return dpari_say(DPAR_E_RANGE, why, "dim %d has %ld cells: must be 0 to 2^60", d,
                         halo->grid.extent[d]);
    }
    if ((halo->periodic >> d & 1u) != 0 && halo->grid.extent[d] > 0 &&
        dpari_most(halo->low[d], halo->high[d]) / 16 >= halo->grid.extent[d]) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "dim %d has halos of %ld and %ld: must be less than 16 times its %ld points", d,
            halo->low[d], halo->high[d], halo->grid.extent[d]);
    }
    if (halo->points[d] < DPAR_HALO_AT_CELLS || halo->points[d] > DPAR_HALO_AT_HIGH_FACES) {
        return dpari_wrong(why, "points[%d] is %d, which is no DPAR_HALO_AT_x", d, halo->points[d]);
    }
    for (i = 0; i < halo->grid.mesh.axes; i++) {
        const dpar_placement *placement = &halo->grid.axis[i];
        if (placement->dim == d && !dpari_halo_in_one_piece(placement)) {
            return dpari_wrong(why,
                               "axis %d cuts dim %d by rule %d: a halo needs contiguous blocks "
                               "(CHUNK, EVEN, FLOOR, RAGGED)",
                               i, d, placement->rule);
        }
    }
    return DPAR_OK;
}

static DPARI_COLD dpar_status dpari_halo_check_fold(const dpar_halo *halo, dpar_why *why)
{
    if (halo->fold < 0 || halo->mirror >= halo->grid.dims || halo->mirror <= halo->fold) {
        return dpari_wrong(why, "fold is %d, mirror is %d: need 0 <= fold < mirror < %d",
                           halo->fold, halo->mirror, halo->grid.dims);
    }
    if ((halo->periodic >> halo->mirror & 1u) == 0 || (halo->periodic >> halo->fold & 1u) != 0) {
        return dpari_wrong(why,
                           "fold=%d must not be periodic, mirror=%d must be a later, periodic dim",
                           halo->fold, halo->mirror);
    }
    if (halo->on_row < 0 || halo->on_row > 1 || halo->shift < -1 || halo->shift > 1) {
        return dpari_wrong(why, "on_row=%d must be 0 or 1, shift=%d must be -1 to 1", halo->on_row,
                           halo->shift);
    }
    if (halo->high[halo->fold] > dpar_halo_points(halo, halo->fold) - halo->on_row) {
        return dpari_say(DPAR_E_RANGE, why,
                         "a halo over the fold or a pole needs %ld rows, but there are %ld",
                         halo->high[halo->fold], dpar_halo_points(halo, halo->fold) - halo->on_row);
    }
    return DPAR_OK;
}

/* Returns the number of rows beyond a pole, without the row that is held twice. */
DPARI_INTERNAL int64_t dpari_halo_behind(const dpar_halo *halo, uint32_t pole)
{
    return dpar_halo_points(halo, halo->fold) - ((halo->pole_rows & pole) != 0) -
           (halo->folds && halo->on_row);
}

static DPARI_COLD dpar_status dpari_halo_check_pole(const dpar_halo *halo, uint32_t pole,
                                                    dpar_why *why)
{
    int64_t rows = dpari_halo_behind(halo, pole);
    int64_t width = pole == DPAR_HALO_POLE_LOW ? halo->low[halo->fold] : halo->high[halo->fold];
    if ((halo->poles & pole) != 0 && width > rows) {
        return dpari_say(DPAR_E_RANGE, why,
                         "a halo over the fold or a pole needs %ld rows, but there are %ld", width,
                         rows);
    }
    return DPAR_OK;
}

static DPARI_COLD dpar_status dpari_halo_check_poles(const dpar_halo *halo, dpar_why *why)
{
    dpar_status st;
    if (halo->poles > 3 || (halo->pole_rows & ~halo->poles) != 0) {
        return dpari_wrong(
            why, "poles=%ld must be 0 to 3, and pole_rows=%ld may only have bits of poles",
            (int64_t)halo->poles, (int64_t)halo->pole_rows);
    }
    if (halo->folds && (halo->poles & DPAR_HALO_POLE_HIGH) != 0) {
        return dpari_wrong(why, "dim %d has both a fold and a pole at its high end", halo->fold);
    }
    if (halo->fold < 0 || halo->mirror >= halo->grid.dims || halo->mirror <= halo->fold ||
        (halo->periodic >> halo->mirror & 1u) == 0 || (halo->periodic >> halo->fold & 1u) != 0) {
        return dpari_wrong(why,
                           "fold=%d must not be periodic, mirror=%d must be a later, periodic dim",
                           halo->fold, halo->mirror);
    }
    if (halo->grid.extent[halo->mirror] % 2 != 0) {
        return dpari_wrong(why, "%ld columns around a pole: the number must be even",
                           halo->grid.extent[halo->mirror]);
    }
    st = dpari_halo_check_pole(halo, DPAR_HALO_POLE_LOW, why);
    return st == DPAR_OK ? dpari_halo_check_pole(halo, DPAR_HALO_POLE_HIGH, why) : st;
}

static DPARI_COLD dpar_status dpari_halo_check_cube(const dpar_halo *halo, dpar_why *why)
{
    int32_t y = halo->grid.dims - 2, d;
    if (y < 1 || halo->grid.extent[0] != 6 || halo->grid.extent[y] != halo->grid.extent[y + 1]) {
        return dpari_wrong(
            why, "a cubed sphere has %d dims, but needs at least 3, with extents 6, ..., N, N",
            halo->grid.dims);
    }
    if (halo->folds || halo->poles != 0) {
        return dpari_wrong(why, "a cubed sphere cannot have folds or poles");
    }
    if (halo->points[0] != DPAR_HALO_AT_CELLS ||
        (halo->points[y] != DPAR_HALO_AT_CELLS && halo->points[y + 1] != DPAR_HALO_AT_CELLS)) {
        return dpari_wrong(why,
                           "a cubed sphere with points %d in dim 0, %d in y, %d in x: must be "
                           "AT_CELLS in dim 0 and in y or x (two corners have no owner)",
                           halo->points[0], halo->points[y], halo->points[y + 1]);
    }
    for (d = 0; d < halo->grid.dims; d += d == 0 ? y : 1) {
        int64_t most = d == 0 ? 0 : halo->grid.extent[d];
        if ((halo->periodic >> d & 1u) != 0 || halo->window[d].kernel != 0 || halo->low[d] > most ||
            halo->high[d] > most) {
            return dpari_wrong(
                why,
                "dim %d of a cubed sphere cannot be periodic, have windows or halos wider than %ld",
                d, most);
        }
    }
    return DPAR_OK;
}

/* Checks the partner field as far as a walk over `halo` reads it. */
static DPARI_COLD dpar_status dpari_halo_check_partner(const dpar_halo *halo, dpar_why *why)
{
    const dpar_halo *p = halo->partner;
    const int32_t y = halo->grid.dims - 2;
    int32_t d;
    if (!halo->cube || !p->cube || !dpari_layout_same(&halo->grid, &p->grid) ||
        halo->owner != p->owner || halo->periodic != p->periodic) {
        return dpari_wrong(
            why, "partner must be on the same cubed sphere: same grid, periodic and owner");
    }
    for (d = 0; d < halo->grid.dims; d++) {
        const int32_t other = d < y ? d : 2 * y + 1 - d;
        dpar_status st = dpari_halo_check_dim(p, d, why);
        if (st != DPAR_OK) {
            return st;
        }
        if (halo->window[d].kernel != 0 || p->window[d].kernel != 0) {
            return dpari_wrong(why, "dim %d has a window, which excludes a partner", d);
        }
        if (halo->points[d] != p->points[other]) {
            return dpari_wrong(
                why,
                "points is %d in dim %d, but the partner's is %d in dim %d: they must be equal",
                halo->points[d], d, p->points[other], other);
        }
    }
    return DPAR_OK;
}

/* Checks the list of owners. The ranks of the mesh, 0, 1, ..., are then the numbers of blocks. */
static DPARI_COLD dpar_status dpari_halo_check_owner(const dpar_halo *halo, dpar_why *why)
{
    const dpar_mesh *mesh = &halo->grid.mesh;
    int64_t last = mesh->first_rank;
    int32_t i;
    for (i = 0; i < mesh->axes; i++) {
        last += (int64_t)(mesh->axis[i].size - 1) * mesh->axis[i].stride;
    }
    if (mesh->first_rank != 0 || last != mesh->size - 1) {
        return dpari_wrong(why, "owner needs a mesh of ranks 0, 1, ..., not of %d to %ld",
                           mesh->first_rank, last);
    }
    for (i = 0; i < mesh->size; i++) {
        if (halo->owner[i] < -1) {
            return dpari_wrong(why, "owner[%d] is %d: must be a rank or -1", i, halo->owner[i]);
        }
    }
    return DPAR_OK;
}

static DPARI_COLD int dpari_halo_windows(const dpar_halo *halo)
{
    int32_t d, any = 0;
    for (d = 0; d < halo->grid.dims; d++) {
        any |= halo->window[d].kernel != 0;
    }
    return any;
}

static DPARI_COLD dpar_status dpari_halo_check_outputs(const dpar_halo *halo, dpar_why *why)
{
    const dpar_layout *o = halo->outputs, *g = &halo->grid;
    int32_t i;
    if (o->dims != g->dims || !dpari_mesh_same(&o->mesh, &g->mesh)) {
        return dpari_wrong(why,
                           "outputs has %d dims, grid has %d, or their meshes are not the same",
                           o->dims, g->dims);
    }
    for (i = 0; i < g->mesh.axes; i++) {
        const dpar_placement *a = &o->axis[i], *b = &g->axis[i];
        if (a->kind != b->kind || (a->kind == DPAR_PLACEMENT_SHARD && a->dim != b->dim) ||
            o->order[i] != g->order[i] || !dpari_halo_in_one_piece(a)) {
            return dpari_wrong(
                why, "axis %d must cut the same dim of outputs and grid, into contiguous blocks",
                i);
        }
    }
    return DPAR_OK;
}

static DPARI_COLD dpar_status dpari_halo_check_window(const dpar_halo *halo, int32_t d,
                                                      dpar_why *why)
{
    int64_t n = halo->grid.extent[d], m = 0;
    dpar_status st;
    if (halo->points[d] != DPAR_HALO_AT_CELLS) {
        return dpari_wrong(why, "dim %d has a window: points must be AT_CELLS", d);
    }
    if (halo->window[d].kind == DPAR_WINDOW_NEIGHBOURHOOD && (halo->periodic >> d & 1u) != 0) {
        return dpari_wrong(why, "a neighbourhood in periodic dim %d: use a convolution instead", d);
    }
    if (halo->outputs == NULL) {
        st = dpar_window_outputs(&halo->window[d], n, &m, why);
    } else {
        st = dpari_window_check(&halo->window[d], n, halo->outputs->extent[d], why);
    }
    if (st == DPAR_OK && halo->window[d].kind == DPAR_WINDOW_CONVOLUTION &&
        (halo->periodic >> d & 1u) != 0) {
        int64_t k = halo->window[d].kernel - 1, by = dpari_most(halo->window[d].dilation, 1);
        int64_t reach =
            dpari_most(k * by, dpari_most(halo->window[d].pad_low, halo->window[d].pad_high));
        if (reach / 16 >= n) {
            return dpari_say(
                DPAR_E_RANGE, why,
                "dim %d: windows reach %ld points: must be less than 16 times its %ld points", d,
                reach, n);
        }
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_halo_check(const dpar_halo *halo, dpar_why *why)
{
    int32_t d;
    dpar_status st = DPAR_OK;
    if (!halo) {
        return dpari_wrong(why, "the halo is NULL");
    }
    if (halo->grid.dims < 0 || halo->grid.dims > DPAR_MAX_DIMS || halo->grid.mesh.size < 1 ||
        halo->grid.mesh.axes < 0 || halo->grid.mesh.axes > DPAR_MAX_AXES) {
        return dpari_wrong(why, "grid has %d dims, %d ranks and %d axes: use dpar_layout_init",
                           halo->grid.dims, halo->grid.mesh.size, halo->grid.mesh.axes);
    }
    if (dpari_stencil_axes(halo->shape, 1) == 0) {
        return dpari_wrong(why, "shape is %d, which is no DPAR_STENCIL_x", halo->shape);
    }
    if (halo->periodic >> halo->grid.dims != 0) {
        return dpari_wrong(why, "periodic is %ld, but the grid has only %d dims",
                           (int64_t)halo->periodic, halo->grid.dims);
    }
    if (((halo->folds | halo->cube) & ~1) != 0) {
        return dpari_wrong(why, "folds is %d, cube is %d: each must be 0 or 1", halo->folds,
                           halo->cube);
    }
    for (d = 0; d < halo->grid.dims && st == DPAR_OK; d++) {
        st = dpari_halo_check_dim(halo, d, why);
    }
    if (st == DPAR_OK && halo->folds) {
        st = dpari_halo_check_fold(halo, why);
    }
    if (st == DPAR_OK && (halo->poles != 0 || halo->pole_rows != 0)) {
        st = dpari_halo_check_poles(halo, why);
    }
    if (st == DPAR_OK && halo->cube) {
        st = dpari_halo_check_cube(halo, why);
    }
    if (st == DPAR_OK && halo->partner != NULL) {
        st = dpari_halo_check_partner(halo, why);
    }
    if (st == DPAR_OK && halo->owner != NULL) {
        st = dpari_halo_check_owner(halo, why);
    }
    if (st == DPAR_OK && halo->outputs != NULL) {
        st = dpari_halo_check_outputs(halo, why);
    }
    for (d = 0; d < halo->grid.dims && st == DPAR_OK; d++) {
        if (halo->window[d].kernel != 0 && halo->grid.extent[d] != 0) {
            st = dpari_halo_check_window(halo, d, why);
        }
    }
    return st;
}

/* ---- points and their owners ----------------------------------------------------------------- */

/* True if there are other points beyond the ends of a dim. */
DPARI_INTERNAL int dpari_halo_closed(const dpar_halo *halo, int32_t d)
{
    return (halo->periodic >> d & 1u) != 0 || (halo->cube && d >= halo->grid.dims - 2);
}

/* Returns 1 if the dim has one more point than cells, otherwise 0. */
static int dpari_halo_more(const dpar_halo *halo, int32_t d)
{
    return halo->points[d] != DPAR_HALO_AT_CELLS && !dpari_halo_closed(halo, d);
}

DPAR_API int64_t dpar_halo_points(const dpar_halo *halo, int32_t dim)
{
    int64_t cells = halo->grid.extent[dim];
    return cells > 0 ? cells + dpari_halo_more(halo, dim) : 0;
}

/* Turns the cells [at[0], at[1]) into the points that they own. */
static DPARI_COLD void dpari_halo_of_cells(const dpar_halo *halo, int32_t d, int64_t *at)
{
    if (!dpari_halo_more(halo, d)) {
        return;
    }
    if (halo->points[d] == DPAR_HALO_AT_LOW_FACES) {
        at[1] += at[1] == halo->grid.extent[d];
    } else {
        at[0] += at[0] > 0;
        at[1] += 1;
    }
}

/* Finds the owner of point i. coord receives its coordinates on the axes that cut the dim, and
 * at[0], at[1] the range of points that it owns. */
DPARI_INTERNAL void dpari_halo_owner(const dpar_halo *halo, int32_t d, int64_t i, int32_t *coord,
                                     int64_t *at)
{
    int64_t local = 0, run = 0, cell = i;
    if (dpari_halo_more(halo, d)) {
        cell = halo->points[d] == DPAR_HALO_AT_LOW_FACES ? dpari_least(i, halo->grid.extent[d] - 1)
                                                         : dpari_most(i - 1, 0);
    }
    (void)dpar_layout_locate(&halo->grid, d, cell, coord, &local, &run);
    at[0] = cell - local;
    at[1] = cell + run;
    dpari_halo_of_cells(halo, d, at);
}

/* Returns the number of outputs of a dim. */
static int64_t dpari_halo_all(const dpar_halo *halo, int32_t d)
{
    int64_t all = 0;
    if (halo->outputs != NULL) {
        return halo->outputs->extent[d];
    }
    (void)dpar_window_outputs(&halo->window[d], halo->grid.extent[d], &all, NULL);
    return all;
}

/* Returns the layout whose blocks say which outputs a rank computes: that of the outputs, or that
 * of the inputs to which the outputs belong. It is not stored, because small targets have little
 * stack. */
static const dpar_layout *dpari_halo_computers(const dpar_halo *halo)
{
    return halo->outputs != NULL ? halo->outputs : &halo->grid;
}

/* Turns the block [y[0], y[1]) of that layout into its outputs. Returns 0 if there are none. */
static DPARI_COLD int dpari_halo_computes(const dpar_halo *halo, int32_t d, int64_t *y)
{
    if (halo->outputs == NULL) {
        dpari_window_owned(&halo->window[d], halo->grid.extent[d], dpari_halo_all(halo, d), y[0],
                           y[1], &y[0], &y[1]);
    }
    return y[1] > y[0] && halo->grid.extent[d] > 0;
}

/* Computes, in one dim of one rank, the points that it owns and the points in its array. If it owns
 * none, `own` is an empty range at the start of the array. Returns 1, or 0 if it has neither. */
DPARI_API int dpari_halo_range(const dpar_halo *halo, const int32_t *coord, int32_t d, int64_t *own,
                               int64_t *box)
{
    int has, reads;
    reads = halo->window[d].kernel != 0 &&
            dpari_layout_span(dpari_halo_computers(halo), coord, d, &box[0], &box[1]) &&
            dpari_halo_computes(halo, d, box) &&
            dpari_window_reads(&halo->window[d], halo->grid.extent[d], dpari_halo_all(halo, d),
                               box[0], box[1], &box[0], &box[1]);
    has = dpari_layout_span(&halo->grid, coord, d, &own[0], &own[1]);
    if (!has && !reads) {
        return 0;
    }
    if (has) {
        dpari_halo_of_cells(halo, d, own);
        box[0] = reads ? dpari_least(own[0], box[0]) : own[0];
        box[1] = reads ? dpari_most(own[1], box[1]) : own[1];
    }
    box[0] -= halo->low[d];
    box[1] += halo->high[d];
    if (!has) {
        own[0] = own[1] = box[0];
    }
    return 1;
}

/* Returns the block of a rank, or -1 if it has none. */
static int32_t dpari_halo_block(const dpar_halo *halo, int32_t rank)
{
    int32_t i;
    for (i = 0; halo->owner != NULL && i < halo->grid.mesh.size; i++) {
        if (halo->owner[i] == rank && rank >= 0) {
            return i;
        }
    }
    return halo->owner == NULL ? rank : -1;
}

/* Computes the coordinates of a rank's block. Returns 0 if it has none. */
DPARI_API int dpari_halo_coords(const dpar_halo *halo, int32_t rank, int32_t *coord)
{
    return dpar_mesh_coords(&halo->grid.mesh, dpari_halo_block(halo, rank), coord);
}

/* ---- boxes ----------------------------------------------------------------------------------- */

/* True if nothing is ever received from beyond the low (0) or high (1) end of a dim. */
static int dpari_halo_open(const dpar_halo *halo, int32_t d, int side)
{
    if (dpari_halo_closed(halo, d)) {
        return 0;
    }
    if (d == halo->fold && (halo->poles >> side & 1u) != 0) {
        return 0;
    }
    return !(halo->folds && d == halo->fold && side);
}

/* Computes the core of the own points [own[0], own[1]) in a dim, which excludes the points that
 * read what an exchange receives. */
static void dpari_halo_shrink(const dpar_halo *halo, int32_t d, const int64_t *own, int64_t *core)
{
    int64_t end = dpar_halo_points(halo, d);
    core[0] = own[0] + (own[0] > 0 || !dpari_halo_open(halo, d, 0) ? halo->low[d] : 0);
    core[1] = own[1] - (own[1] < end || !dpari_halo_open(halo, d, 1) ? halo->high[d] : 0);
    if (halo->folds && halo->fold == d && halo->on_row && own[1] == end) {
        core[1] = dpari_least(core[1], end - 1 - halo->high[d]); /* the row that is held twice is
                                                                    received too */
    }
    core[0] = dpari_least(core[0], own[1]);
    core[1] = dpari_most(core[1], core[0]);
}

/* Sets out[] to the points that a rank computes in a dim, and core[] to their core. Returns 1, or 0
 * if there are none. */
DPARI_STATIC_NOINLINE DPARI_COLD int dpari_halo_work(const dpar_halo *halo, const int32_t *coord,
                                                     int32_t d, int64_t *out, int64_t *core)
{
    int64_t own[2] = {0, 0}, n = halo->grid.extent[d];
    int has = dpari_layout_span(&halo->grid, coord, d, &own[0], &own[1]);
    if (halo->window[d].kernel == 0) {
        if (has) {
            dpari_halo_of_cells(halo, d, own);
            out[0] = own[0];
            out[1] = own[1];
            dpari_halo_shrink(halo, d, own, core);
        }
        return has;
    }
    if (!dpari_layout_span(dpari_halo_computers(halo), coord, d, &out[0], &out[1]) ||
        !dpari_halo_computes(halo, d, out)) {
        return 0;
    }
    core[0] = core[1] = out[0];
    if (has) { /* a rank without own points has no core */
        core[1] = out[1];
        own[0] = own[0] > 0 || !dpari_halo_open(halo, d, 0) ? own[0] : INT64_MIN;
        own[1] = own[1] < n || !dpari_halo_open(halo, d, 1) ? own[1] : INT64_MAX;
        dpari_window_whole(&halo->window[d], n, dpari_halo_all(halo, d), own[0], own[1], &core[0],
                           &core[1]);
    }
    return 1;
}

/* The two pairs of boxes, one inside the other: the own points in the local array, and the core in
 * the points that a rank computes. They are computed dim by dim, which needs little stack. */
enum { DPARI_ARRAY, DPARI_WORK };

static int dpari_halo_pair(const dpar_halo *halo, const int32_t *coord, int32_t d, int kind,
                           int64_t *inner, int64_t *outer)
{
    return kind == DPARI_ARRAY ? dpari_halo_range(halo, coord, d, inner, outer)
                               : dpari_halo_work(halo, coord, d, outer, inner);
}

/* Computes the inner or the outer box of a pair. Returns 0 if it is empty or does not exist. */
DPARI_STATIC_NOINLINE DPARI_COLD int dpari_halo_get(const dpar_halo *halo, int32_t rank, int kind,
                                                    int want_outer, dpar_box *box)
{
    int32_t coord[DPAR_MAX_AXES], i, dims = halo->grid.dims;
    int64_t inner[2], outer[2];
    if (!dpari_halo_coords(halo, rank, coord)) {
        return 0;
    }
    for (i = 0; i < 2 * dims; i++) { /* the first pass over the dims checks, the second one
                                        writes */
        const int64_t *from = want_outer ? outer : inner;
        int32_t d = i % dims;
        if (!dpari_halo_pair(halo, coord, d, kind, inner, outer) || from[1] <= from[0]) {
            return 0;
        }
        if (i >= dims) {
            box->lo[d] = from[0];
            box->hi[d] = from[1];
        }
    }
    box->dims = dims;
    return 1;
}

DPAR_API int dpar_halo_owned(const dpar_halo *halo, int32_t rank, dpar_box *box)
{
    return dpari_halo_get(halo, rank, DPARI_ARRAY, 0, box);
}

DPAR_API int dpar_halo_box(const dpar_halo *halo, int32_t rank, dpar_box *box)
{
    return dpari_halo_get(halo, rank, DPARI_ARRAY, 1, box);
}

DPAR_API int dpar_halo_outputs(const dpar_halo *halo, int32_t rank, dpar_box *box)
{
    return dpari_halo_get(halo, rank, DPARI_WORK, 1, box);
}

DPAR_API int dpar_halo_interior(const dpar_halo *halo, int32_t rank, dpar_box *box)
{
    return dpari_halo_get(halo, rank, DPARI_WORK, 0, box);
}

/* Finds slab n of the outer box without the inner one. Slabs are counted dim by dim, the one below
 * the inner box before the one above. Returns its dim, with *side 0 (below) or 1 (above), or -1 if
 * there are fewer slabs. */
static int32_t dpari_halo_nth_slab(const dpar_halo *halo, const int32_t *coord, int kind, int32_t n,
                                   int32_t *side)
{
    int64_t inner[2], outer[2];
    int32_t d, k, found = -1, around = 1;
    if (n < 0) {
        return -1;
    }
    for (d = 0; d < halo->grid.dims; d++) {
        if (!dpari_halo_pair(halo, coord, d, kind, inner, outer)) {
            return -1;
        }
        for (k = 0; k < 2 && found < 0 && around; k++) {
            if ((k ? outer[1] > inner[1] : inner[0] > outer[0]) && n-- == 0) {
                found = d;
                *side = k;
            }
        }
        around = around && inner[1] > inner[0]; /* if the inner range is empty, later dims have no
                                                   slabs */
    }
    return found;
}

/* Computes the box of slab n. In dims before the slab's dim it is as wide as the inner box; in
 * later dims it is as wide as the outer box, or for a star as the inner one. */
static DPARI_COLD int dpari_halo_slab_of(const dpar_halo *halo, int32_t rank, int kind, int star,
                                         int32_t n, dpar_box *box)
{
    int32_t coord[DPAR_MAX_AXES], d, at, side = 0;
    int64_t inner[2], outer[2];
    if (!dpari_halo_coords(halo, rank, coord)) {
        return 0;
    }
    at = dpari_halo_nth_slab(halo, coord, kind, n, &side);
    if (at < 0) {
        return 0;
    }
    box->dims = halo->grid.dims;
    for (d = 0; d < box->dims; d++) {
        const int64_t *lo = &outer[0], *hi = &outer[1];
        (void)dpari_halo_pair(halo, coord, d, kind, inner, outer);
        if (d < at || (star && d > at)) {
            lo = &inner[0];
            hi = &inner[1];
        } else if (d == at && side) {
            lo = &inner[1];
        } else if (d == at) {
            hi = &inner[0];
        }
        box->lo[d] = *lo;
        box->hi[d] = *hi;
    }
    return 1;
}

DPAR_API int dpar_halo_boundary(const dpar_halo *halo, int32_t rank, int32_t n, dpar_box *box)
{
    return dpari_halo_slab_of(halo, rank, DPARI_WORK, 0, n, box);
}

DPARI_INTERNAL int32_t dpari_halo_outside(const dpar_halo *halo)
{
    return dpari_halo_windows(halo) ? halo->grid.dims
                                    : dpari_stencil_axes(halo->shape, halo->grid.dims);
}

DPARI_API int dpari_halo_star(const dpar_halo *halo)
{
    return halo->shape == DPAR_STENCIL_STAR && !dpari_halo_windows(halo);
}

DPAR_API int dpar_halo_slab(const dpar_halo *halo, int32_t rank, int32_t n, dpar_box *box)
{
    return dpari_halo_slab_of(halo, rank, DPARI_ARRAY, dpari_halo_star(halo), n, box);
}

/* Returns a + b c, or -1 if that exceeds 2^63 - 1 or an argument is -1. */
static int64_t dpari_halo_add(int64_t a, int64_t b, int64_t c)
{
    int64_t more;
    if (a < 0 || b < 0 || c < 0 || !dpari_mul(b, c, &more) || a > INT64_MAX - more) {
        return -1;
    }
    return a + more;
}

DPAR_API DPARI_COLD int64_t dpar_halo_slab_points(const dpar_halo *halo, int32_t rank)
{
    int32_t coord[DPAR_MAX_AXES], d, star = dpari_halo_star(halo);
    int64_t own[2], box[2];
    int64_t inside = 1, around = 0; /* own points and slab points of the dims so far */
    if (!dpari_halo_coords(halo, rank, coord)) {
        return 0;
    }
    for (d = 0; d < halo->grid.dims; d++) {
        int64_t n, wide;
        if (!dpari_halo_range(halo, coord, d, own, box)) {
            return 0;
        }
        n = own[1] - own[0];
        wide = box[1] - box[0];
        if (around != 0) {
            around = dpari_halo_add(0, around, star ? n : wide);
        }
        around = dpari_halo_add(around, inside, wide - n);
        inside = inside == 0 || n == 0 ? 0 : dpari_halo_add(0, inside, n);
    }
    return around;
}

/* ==== index/sampler.c ==== */

/* Samplers. Positions are dealt to ranks by arithmetic only, without tables. Shuffling without
 * memory is a Feistel network on just enough bits for the count, applied again until the result is
 * below the count. dpar_sampler_shuffle repeats torch's generator and algorithm bit for bit. */

/* ---- the samples of a rank ------------------------------------------------------------------- */

static void dpari_permutation_set(dpar_sampler *sampler);
static int64_t dpari_permutation_walk(const dpar_sampler *sampler, int64_t x);

DPAR_API DPARI_COLD dpar_status dpar_sampler_init(dpar_sampler *sampler, dpar_why *why)
{
    const int64_t most = INT64_C(1) << 62;
    if (sampler->remainder < DPAR_SAMPLER_PAD || sampler->remainder > DPAR_SAMPLER_EXACT) {
        return dpari_wrong(why, "remainder is %d: must be 0 (pad), 1 (drop) or 2 (exact)",
                           sampler->remainder);
    }
    if (sampler->ranks < 1 || sampler->run < 0) {
        return dpari_wrong(why, "ranks=%d must be at least 1, run=%ld at least 0", sampler->ranks,
                           sampler->run);
    }
    if (sampler->count < 0 || sampler->count > most || sampler->run > most / sampler->ranks) {
        return dpari_say(sampler->count < 0 ? DPAR_E_ARG : DPAR_E_RANGE, why,
                         "count is %ld, ranks %d x run %ld: each must be 0 to 2^62", sampler->count,
                         sampler->ranks, sampler->run);
    }
    if (sampler->first < 0 || sampler->first > sampler->count) {
        return dpari_wrong(why, "first is %ld: must be 0 to count, %ld", sampler->first,
                           sampler->count);
    }
    sampler->run = sampler->run > 0 ? sampler->run : 1;
    dpari_permutation_set(sampler);
    return DPAR_OK;
}

/* Returns the number of whole rounds, in each of which every rank reads one run, in the remaining
 * samples. *after receives the number of samples after these rounds. */
static int64_t dpari_sampler_rounds(const dpar_sampler *sampler, int64_t *after)
{
    int64_t left = sampler->count - sampler->first, round = sampler->run * sampler->ranks;
    *after = left % round;
    return left / round;
}

DPAR_API int64_t dpar_sampler_rank_count(const dpar_sampler *sampler, int32_t rank)
{
    int64_t after, rounds = dpari_sampler_rounds(sampler, &after);
    if (rank < 0 || rank >= sampler->ranks) {
        return 0;
    }
    if (sampler->remainder == DPAR_SAMPLER_PAD) {
        return (rounds + (after > 0)) * sampler->run;
    }
    if (sampler->remainder == DPAR_SAMPLER_DROP) {
        return rounds * sampler->run;
    }
    return rounds * sampler->run +
           dpari_most(0, dpari_least(sampler->run, after - rank * sampler->run));
}

DPAR_API int64_t dpar_sampler_common_count(const dpar_sampler *sampler)
{
    return dpar_sampler_rank_count(sampler, sampler->ranks - 1) / sampler->run * sampler->run;
}

DPAR_API int64_t dpar_sampler_at(const dpar_sampler *sampler, int32_t rank, int64_t k)
{
    int64_t at;
    if (k < 0 || k >= dpar_sampler_rank_count(sampler, rank)) {
        return -1;
    }
    at = sampler->first + k / sampler->run * (sampler->run * sampler->ranks) + rank * sampler->run +
         k % sampler->run;
    at = at < sampler->count ? at : at % sampler->count; /* padding repeats the list, as in torch */
    return sampler->shuffle ? dpari_permutation_walk(sampler, at) : at;
}

DPAR_API int64_t dpar_sampler_consumed(const dpar_sampler *sampler, int64_t k)
{
    int64_t most = dpar_sampler_rank_count(sampler, 0);
    if (k < 0 || k > most || (k % sampler->run != 0 && k != most)) {
        return -1;
    }
    return k == most && sampler->remainder != DPAR_SAMPLER_DROP
               ? sampler->count
               : sampler->first + k * sampler->ranks;
}

/* ---- MT19937 --------------------------------------------------------------------------------- */

/* The generator of Matsumoto and Nishimura (1998), with their initialisation of 2002. */
static void dpari_mt19937_init(dpar_mt19937 *g, uint64_t seed)
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
        const uint32_t next = g->word[i < 623 ? i + 1 : 0];
        const uint32_t both = (g->word[i] & 0x80000000u) | (next & 0x7fffffffu);
        const uint32_t odd = (both & 1u) != 0 ? 0x9908b0dfu : 0;
        g->word[i] = g->word[i < 227 ? i + 397 : i - 227] ^ both >> 1 ^ odd;
    }
    g->at = 0;
}

static uint32_t dpari_mt19937_next(dpar_mt19937 *g)
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
        int64_t j = i + (int64_t)(dpari_mt19937_next(g) % (uint64_t)(n - i)), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

static void dpari_randperm_inside_out(dpar_mt19937 *g, int64_t n, int64_t *order)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        uint64_t high = dpari_mt19937_next(g), draw = high << 32 | dpari_mt19937_next(g);
        int64_t j = (int64_t)(draw % (uint64_t)(i + 1));
        order[i] = i;
        order[i] = order[j];
        order[j] = i;
    }
}

DPAR_API dpar_status dpar_sampler_shuffle(int64_t *order, int64_t count, uint64_t seed,
                                          dpar_mt19937 *scratch, dpar_why *why)
{
    if (count < 0) {
        return dpari_wrong(why, "count is %ld: must be at least 0", count);
    }
    dpari_mt19937_init(scratch, seed);
    if (count < (int64_t)(UINT32_MAX / 20)) {
        dpari_randperm_forward(scratch, count, order);
    } else {
        dpari_randperm_inside_out(scratch, count, order);
    }
    return DPAR_OK;
}

/* ---- Feistel --------------------------------------------------------------------------------- */

/* Mixes x so that each bit of it affects every bit of the result. It is the finaliser of splitmix64
 * (Steele, Lea, Flood 2014; variant 13 of Stafford's mixers). */
static uint64_t dpari_mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* The function of a round. Multiples of 2^64 / golden ratio make the keys of the rounds different.
 */
static uint64_t dpari_round(const dpar_sampler *sampler, uint64_t half, uint32_t round)
{
    return dpari_mix(half + dpari_mix(sampler->key + (round + 1) * UINT64_C(0x9e3779b97f4a7c15)));
}

enum { DPARI_ROUNDS = 6 }; /* a round changes both halves */

static uint64_t dpari_feistel(const dpar_sampler *sampler, uint64_t x)
{
    const uint64_t low_mask = ((uint64_t)1 << sampler->low) - 1,
                   high_mask = ((uint64_t)1 << sampler->high) - 1;
    uint64_t low = x & low_mask, high = x >> sampler->low;
    uint32_t i;
    for (i = 0; i < DPARI_ROUNDS; i++) {
        high ^= dpari_round(sampler, low, 2 * i) & high_mask;
        low ^= dpari_round(sampler, high, 2 * i + 1) & low_mask;
    }
    return high << sampler->low | low;
}

static void dpari_permutation_set(dpar_sampler *sampler)
{
    int32_t bits = 2;
    while (bits < 62 && (INT64_C(1) << bits) < sampler->count) {
        bits++;
    }
    sampler->key = dpari_mix(dpari_mix(sampler->seed) + sampler->epoch);
    sampler->low = bits / 2;
    sampler->high = bits - bits / 2;
}

/* Returns the sample at position x, or -1 outside of 0..count-1. It needs fewer than two steps on
 * average. */
static int64_t dpari_permutation_walk(const dpar_sampler *sampler, int64_t x)
{
    if (x < 0 || x >= sampler->count) {
        return -1;
    }
    do { /* x is on a cycle of the permutation, so the loop returns into the range */
        x = (int64_t)dpari_feistel(sampler, (uint64_t)x);
    } while (x >= sampler->count);
    return x;
}

/* ==== index/selftest.c ==== */

/* Computes many results of this header, mixes them into checksums and compares these with constants
 * that were computed on other targets. */

DPARI_API DPARI_COLD uint32_t dpari_digest(uint32_t sum, int64_t v)
{
    const uint32_t prime = UINT32_C(16777619); /* FNV-1a over the two halves of v */
    sum = (sum ^ (uint32_t)(v & INT64_C(0xffffffff))) * prime;
    return (sum ^ (uint32_t)((uint64_t)v >> 32)) * prime;
}

DPARI_API DPARI_COLD dpar_status dpari_differs(uint32_t sum, uint32_t right, const char *what,
                                               dpar_why *why)
{
    if (sum == right) {
        return DPAR_OK;
    }
    return dpari_say(DPAR_E_MISMATCH, why,
                     "%s differ here (checksum %ld, not %ld): a fault of the compiler", what,
                     (int64_t)sum, (int64_t)right);
}

/* Division, products and shifts of 64 bits, which small processors leave to the compiler's library.
 * The dividend is `volatile`, so that no compiler computes the results beforehand. */
static DPARI_COLD uint32_t dpari_prove_arithmetic(void)
{
    volatile int64_t dividend = INT64_C(-7000000000000000001);
    uint32_t sum = 0;
    int64_t by;
    for (by = 3; by < INT64_MAX / 2000; by = by * 1291 + 7) {
        sum = dpari_digest(sum, dividend / by);
        sum = dpari_digest(sum, (int64_t)((uint64_t)dividend % (uint64_t)by >> (by & 31)));
    }
    return sum;
}

static DPARI_COLD uint32_t dpari_prove_splits(void)
{
    dpar_split s;
    uint32_t sum = 0;
    int64_t i, local;
    int32_t rule;
    for (rule = 0; rule < DPAR_SPLIT_RULE_COUNT; rule++) {
        /* refuses RAGGED, so that the split before it is used again */
        dpar_split_init(&s, rule, INT64_C(100000000019), 7, 3, NULL);
        for (i = 1; i < s.count; i *= 9) {
            sum = dpari_digest(sum, dpar_split_locate(&s, i, &local, NULL));
            sum = dpari_digest(sum, local);
        }
    }
    return sum;
}

/* 11 x 13 cells on 2 x 3 ranks, a ring in x, folded in the north. The grid is made in place,
 * because this must run in 4 KB. */
static DPARI_COLD uint32_t dpari_prove_halos(void)
{
    static const int32_t sizes[2] = {2, 3};
    dpar_halo h;
    dpar_layout *layout = &h.grid;
    dpar_halo_cursor walk;
    dpar_transfer t;
    uint32_t sum = 0;
    int32_t i;
    dpari_zero(&h, sizeof(h));
    h.folds = h.mirror = 1;
    h.periodic = 2;
    for (i = 0; i < 2; i++) {
        layout->extent[i] = 11 + 2 * i;
        layout->axis[i].kind = DPAR_PLACEMENT_SHARD;
        layout->axis[i].dim = i;
        h.low[i] = h.high[i] = 2;
    }
    dpar_mesh_init(&layout->mesh, "y x", sizes, DPAR_ORDER_LAST_FASTEST, 0, NULL);
    dpar_layout_init(layout, &layout->mesh, 2, layout->extent, layout->axis, NULL);
    for (i = 0; i < 6; i++) {
        dpar_halo_first(&walk, &h, i, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, NULL);
        while (dpar_halo_next(&walk, &t)) {
            sum = dpari_digest(sum, t.peer * t.mine[0] + t.theirs[1]);
        }
    }
    return sum;
}

/* The checksums come from x86-64; tests/embedded/golden.txt has more detailed ones of all
 * targets. */
DPAR_API DPARI_COLD dpar_status dpar_selftest(dpar_why *why)
{
    dpar_status st =
        dpari_differs(dpari_prove_arithmetic(), UINT32_C(1066461148), "64-bit divisions", why);
    if (st == DPAR_OK) {
        st = dpari_differs(dpari_prove_splits(), UINT32_C(1507437185), "splits", why);
    }
    if (st == DPAR_OK) {
        st = dpari_differs(dpari_prove_halos(), UINT32_C(2509784167), "halos", why);
    }
    return st;
}

#endif /* DPAR_INDEX_IMPLEMENTATION */
