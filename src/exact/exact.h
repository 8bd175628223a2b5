/* SPDX-License-Identifier: MIT-0 */
/* exact - computes sums, dot products and norms that do not depend on the number of ranks. Each
 * result is the exact sum, rounded once. Its bits are therefore the same for any number of ranks or
 * threads, for any cut and order of the data, and with every compiler and CPU.
 *
 *     dpar_exact_sum(comm, u, n, DPAR_F64, &total);           over all ranks
 *     dpar_exact_dot(comm, r, z, n, DPAR_F64, &rz);
 *     dpar_exact_norm(comm, r, n, DPAR_F64, &norm);
 *
 * Several results share one collective, as in a step of conjugate gradients:
 *
 *     terms[0] = dpar_exact_dot_of(r, z, n, DPAR_F64);
 *     terms[1] = dpar_exact_norm_of(r, n, DPAR_F64);
 *     dpar_exact_many(comm, terms, 2, result);                result[2]
 *
 * dpar_exact_grid_x (exact_grid.h) sums over the own cells of a grid, and dpar_exact_points_x
 * (exact_points.h) over the own values of a mesh.
 *
 * Below these calls is a value, dpar_exact, that needs no ranks: a number in fixed point that is
 * wide enough for any sum of floats and of products of two floats. Threads may each add to a value
 * of their own, and merge them in any order:
 *
 *     dpar_exact sum = {0};
 *     dpar_exact_add(&sum, u, n, DPAR_F64);
 *     dpar_exact_merge(&sum, &other);
 *     total = dpar_exact_result(&sum, DPAR_F64);
 *
 * Results. Sums are rounded to nearest, ties to even. Neither the rounding mode, nor flushing to
 * zero, nor -ffast-math changes a bit. Nothing overflows in between: 1e308 + 1e308 - 1e308 is
 * 1e308. A sum that exceeds the largest number of
 * the type when it is rounded is infinite. Products of a dot product are exact, as is the sum of
 * squares of a norm, whose root is rounded once. As IEEE 754 demands, a NaN makes a sum NaN (the
 * quiet one without sign and payload), and so do inf and -inf together, or 0 times inf. Otherwise
 * an inf makes it that inf. A norm with an inf is inf, unless there is a NaN. A sum that is exactly
 * zero is +0, even if all terms are -0, as in a loop that starts at 0.0.
 *
 * Types are F64, F32, BF16 and F16. Sums are rounded to the type of the elements, and returned as
 * double, which is exact. */
#ifndef DPARI_EXACT_EXACT_H
#define DPARI_EXACT_EXACT_H

#include "../comm/comm.h"
#include "../host/mem.h"

/* What a term computes. */
enum {
    DPAR_EXACT_SUM,  /* the sum of x[i] */
    DPAR_EXACT_DOT,  /* the sum of x[i] * y[i] */
    DPAR_EXACT_NORM, /* the square root of the sum of x[i] * x[i] */
    DPAR_EXACT_KIND_COUNT
};

enum {
    DPAR_EXACT_DIGITS = 136,                  /* digits of 32 bits; digit 68 has weight 1 */
    DPAR_EXACT_WORDS = DPAR_EXACT_DIGITS + 3, /* the digits, and numbers of NaN, inf and -inf */
    DPAR_EXACT_TERMS = 8                      /* most terms that share one collective */
};

/* An exact sum. Zero it before use. It is the sum of word[d] * 2^(32 * (d - 68)) over the digits d,
 * which may have any sign and exceed 32 bits. word[136], word[137] and word[138] count the NaNs,
 * the infs and the -infs that were added.
 *
 * To combine sums by your own means, call dpar_exact_normalize on each of up to 2^28 of them and
 * add their words, for example with MPI:
 *
 *     dpar_exact_normalize(&sum);
 *     MPI_Allreduce(MPI_IN_PLACE, sum.word, DPAR_EXACT_WORDS, MPI_INT64_T, MPI_SUM, mpi);
 *     total = dpar_exact_result(&sum, DPAR_F64);
 */
typedef struct dpar_exact {
    int64_t word[DPAR_EXACT_WORDS];
    int64_t pending; /* private: limits the size of digits */
} dpar_exact;

/* The elements of a sum, dot product or norm. Zero it, then set the fields that you need, or use
 * dpar_exact_sum_of, dpar_exact_dot_of and dpar_exact_norm_of for contiguous arrays. */
typedef struct dpar_exact_term {
    int32_t kind;  /* DPAR_EXACT_SUM, _DOT or _NORM */
    int32_t type;  /* DPAR_F64, DPAR_F32, DPAR_BF16 or DPAR_F16; no default */
    const void *x; /* aligned to the type; may be NULL if there are no elements */
    const void *y; /* of DPAR_EXACT_DOT; may be the same as x */
    int64_t count; /* number of elements if dims is 0; both arrays are then contiguous */
    int32_t dims;  /* 0..DPAR_MEM_DIMS: a box with `extent` elements in each dim */
    int64_t extent[DPAR_MEM_DIMS];
    int64_t x_stride[DPAR_MEM_DIMS]; /* in elements, of either sign */
    int64_t y_stride[DPAR_MEM_DIMS];
    const uint64_t *skip; /* private; NULL */
} dpar_exact_term;

/* ---- without ranks ---- */

/* Adds the elements of a contiguous array to a sum. Local. Fails with DPAR_E_ARG, without a
 * message, if `sum` is NULL, `x` is NULL but count is not 0, count is negative, or type is not one
 * of the four. Nothing is added then. Costs about as much as a loop that adds the elements. */
DPAR_API dpar_status dpar_exact_add(dpar_exact *sum, const void *x, int64_t count, int32_t type);
/* Adds the products x[i] * y[i] to a sum. Everything else is as for dpar_exact_add. */
DPAR_API dpar_status dpar_exact_add_dot(dpar_exact *sum, const void *x, const void *y,
                                        int64_t count, int32_t type);
/* Adds the elements, products or squares of a term. Everything else is as for dpar_exact_add. */
DPAR_API dpar_status dpar_exact_add_term(dpar_exact *sum, const dpar_exact_term *term);
/* Adds the sum `other` to `sum`. They may be the same. Local. Costs 0.1 us. */
DPAR_API void dpar_exact_merge(dpar_exact *sum, const dpar_exact *other);
/* Carries, so that each digit but the last is -2^31 to 2^31 - 1. This form is unique, so that equal
 * sums have equal words. Local. Costs 0.2 us. */
DPAR_API void dpar_exact_normalize(dpar_exact *sum);
/* Returns a sum, rounded to a type. Returns NaN if the type is not one of the four. Local. Costs
 * 0.3 us. */
DPAR_API double dpar_exact_result(const dpar_exact *sum, int32_t type);
/* Returns the square root of a sum, rounded once to a type; NaN if the sum is negative or the type
 * is not one of the four. Local. Costs 0.5 us. */
DPAR_API double dpar_exact_root(const dpar_exact *sum, int32_t type);

/* Return the term of a contiguous array. Local. */
DPAR_API dpar_exact_term dpar_exact_sum_of(const void *x, int64_t count, int32_t type);
DPAR_API dpar_exact_term dpar_exact_dot_of(const void *x, const void *y, int64_t count,
                                           int32_t type);
DPAR_API dpar_exact_term dpar_exact_norm_of(const void *x, int64_t count, int32_t type);

/* ---- over the ranks of a communicator ----
 *
 * These functions are collective. The number of elements may differ from rank to rank, and may be
 * 0. Arrays are in the host's memory. All ranks receive the result, with the same bits. If a rank
 * passes a wrong value, all ranks get DPAR_E_ARG and a message that names the rank and the value.
 * They get DPAR_E_MISMATCH if kinds, types or numbers of terms differ, and other errors as
 * dpar_all_reduce does. Results are written only on success. The message is in comm->why.
 *
 * Cost: a pass over the elements, and one all-reduce. It sends 0.6 KB for each sum of DPAR_F64, and
 * 1.1 KB for each dot product and norm of DPAR_F64. Terms of other types have at most 0.2 KB. */

/* Computes the sum of x[count] of all ranks. */
DPAR_API dpar_status dpar_exact_sum(dpar_comm *comm, const void *x, int64_t count, int32_t type,
                                    double *sum);
/* Computes the dot product of x[count] and y[count] of all ranks. */
DPAR_API dpar_status dpar_exact_dot(dpar_comm *comm, const void *x, const void *y, int64_t count,
                                    int32_t type, double *dot);
/* Computes the square root of the sum of squares of x[count] of all ranks. */
DPAR_API dpar_status dpar_exact_norm(dpar_comm *comm, const void *x, int64_t count, int32_t type,
                                     double *norm);
/* Computes several results with one all-reduce for each DPAR_EXACT_TERMS terms.
 *
 * terms:   [count] the elements of this rank.
 * results: [count] receives the results. */
DPAR_API dpar_status dpar_exact_many(dpar_comm *comm, const dpar_exact_term *terms, int32_t count,
                                     double *results);
/* Adds sums[count] of all ranks elementwise, so that all ranks have the same normalized sums. Costs
 * one all-reduce of 1.1 KB for each sum. */
DPAR_API dpar_status dpar_exact_all_reduce(dpar_comm *comm, dpar_exact *sums, int32_t count);

#endif
