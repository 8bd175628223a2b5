/* SPDX-License-Identifier: MIT-0 */
/* dpar_exact.h - sums, dot products and norms whose bits do not depend on the number of ranks.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 * Each result is the exact sum, rounded once. This program prints the same line for any number of ranks:
 *
 *     #include "dpar_exact.h"
 *     #include <stdio.h>
 *     static int add(dpar_comm *world, void *unused)
 *     {
 *         double x[100], sum;
 *         int64_t count = 0;
 *         int i;
 *         (void)unused;
 *         for (i = world->rank; i < 100; i += world->size) {    every rank has some of the 100 elements
 *             x[count] = i % 3 == 0 ? 1e100 / (i + 1) : i % 3 == 1 ? -1e100 / i : 0.1 * i;
 *             count++;
 *         }
 *         if (dpar_exact_sum(world, x, count, DPAR_F64, &sum) < 0) {
 *             return dpar_fail(world, NULL);
 *         }
 *         if (world->rank == 0) {
 *             printf("%.17g\n", sum);
 *         }
 *         return 0;
 *     }
 *     int main(int argc, char **argv)
 *     {
 *         return dpar_launch_main(argc, argv, add, NULL);       --ranks 4, or under mpiexec, srun, torchrun
 *     }
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. yours.c -o yours && ./yours --ranks 4
 *
 * For sums over grids and meshes, include dpar_halo.h and dpar_points.h before. */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar_comm.h")
#error dpar_exact.h needs dpar_comm.h beside it, of the same release
#endif
#endif
#include "dpar_comm.h"
#endif
#if DPAR_VERSION != 200
#error dpar_exact.h and dpar.h are of different versions: take all headers from one release
#endif

#ifndef DPAR_EXACT_H
#define DPAR_EXACT_H

/* ==== exact/exact.h ==== */

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

#endif /* DPAR_EXACT_H */

#if defined(DPAR_HALO_H) && !defined(DPAR_EXACT_GRID_H)
#define DPAR_EXACT_GRID_H

/* ==== exact/exact_grid.h ==== */

/* exact_grid - computes exact sums over the own points of a grid. Available if dpar_halo.h was
 * included before dpar_exact.h.
 *
 *     dpar_exact_grid_sum(grid, h, DPAR_F64, NULL, &mass);
 *     dpar_exact_grid_norm(grid, residual, DPAR_F64, NULL, &norm);
 *
 * Halo cells do not count, and a face that two blocks share counts once. Arrays need not be
 * attached. Their address is that of the first own point or, with desc.array_start, of the first
 * element, as in all calls of the grid; a rank without points may pass NULL. Arrays are in the
 * host's memory.
 *
 * field: where the points are, and how many components each has; NULL for cells with one component,
 *        dense in C order with the halo of the grid.
 *
 * Unless they say local, these functions are collective. Errors and cost are those of
 * dpar_exact_many; a field that the grid does not allow is DPAR_E_ARG too. */

/* Computes the sum of the own points of all ranks, for each component.
 *
 * sums: [field->components], or 1 if field is NULL, receives the sums. */
DPAR_API dpar_status dpar_exact_grid_sum(dpar_grid *grid, const void *x, int32_t type,
                                         const dpar_grid_field *field, double *sums);
/* Computes the dot product of two arrays with the same points, over all components. */
DPAR_API dpar_status dpar_exact_grid_dot(dpar_grid *grid, const void *x, const void *y,
                                         int32_t type, const dpar_grid_field *field, double *dot);
/* Computes the square root of the sum of squares, over all components. */
DPAR_API dpar_status dpar_exact_grid_norm(dpar_grid *grid, const void *x, int32_t type,
                                          const dpar_grid_field *field, double *norm);
/* Describes the own points of an array as a term with all components, for dpar_exact_many. Set
 * term->kind and, for a dot product, term->y_stride to x_stride and term->y to the address of the
 * other array's first own point. Local. Fails with DPAR_E_ARG or DPAR_E_RANGE, without a message,
 * if the grid does not allow the field. */
DPAR_API dpar_status dpar_exact_grid_term(const dpar_grid *grid, const void *x, int32_t type,
                                          const dpar_grid_field *field, dpar_exact_term *term);

#endif /* DPAR_HALO_H */

#if defined(DPAR_POINTS_H) && !defined(DPAR_EXACT_POINTS_H)
#define DPAR_EXACT_POINTS_H

/* ==== exact/exact_points.h ==== */

/* exact_points - computes exact sums over the own values of a plan of points. Available if
 * dpar_points.h was included before dpar_exact.h.
 *
 *     dpar_exact_points_dot(points, &r, &z, &rz);             r and z: dpar_points_field
 *
 * Ghosts do not count. In a mixed array, the places that an exchange receives do not count. Plans
 * of shared ids have no owners, and are refused with DPAR_E_ARG.
 *
 * Unless they say local, these functions are collective. Errors and cost are those of
 * dpar_exact_many. */

/* Computes the sum of the own values of all ranks, for each component.
 *
 * sums: [x->components], or 1 if that is 0, receives the sums. */
DPAR_API dpar_status dpar_exact_points_sum(dpar_points *points, const dpar_points_field *x,
                                           double *sums);
/* Computes the dot product of two vectors of the same type, over all components. */
DPAR_API dpar_status dpar_exact_points_dot(dpar_points *points, const dpar_points_field *x,
                                           const dpar_points_field *y, double *dot);
/* Computes the square root of the sum of squares, over all components. */
DPAR_API dpar_status dpar_exact_points_norm(dpar_points *points, const dpar_points_field *x,
                                            double *norm);
/* Describes own values as a term with all components, for dpar_exact_many. Set term->kind.
 *
 * y: the second vector of a dot product, of the same type and components; may be NULL.
 *
 * Local. Fails with DPAR_E_ARG if the plan has shared ids, or types or components differ. */
DPAR_API dpar_status dpar_exact_points_term(const dpar_points *points, const dpar_points_field *x,
                                            const dpar_points_field *y, dpar_exact_term *term,
                                            dpar_why *why);

#endif /* DPAR_POINTS_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_EXACT_IMPLEMENTATION)) && \
    !defined(DPAR_EXACT_IMPLEMENTATION_DONE)
#define DPAR_EXACT_IMPLEMENTATION_DONE

/* ==== exact/exact_bins.h ==== */

/* exact_bins - private: adds floats and products to the digits of a sum, and rounds sums. It uses
 * integers only, so that no compiler option and no mode of the CPU changes a result. */

enum {
    DPARI_EX_BASE = 2176,             /* bit of digit 0 with weight 2^-2176; 32 * 68 */
    DPARI_EX_NAN = DPAR_EXACT_DIGITS, /* the words that count what is not finite */
    DPARI_EX_INF,
    DPARI_EX_MINUS_INF
};
/* A sum is normalized after this number of additions. Each adds less than 2^33 to a digit. */
#define DPARI_EX_PENDING (INT64_C(1) << 28)

/* The bits of a type of floats. */
typedef struct dpari_ex_format {
    int32_t bytes, fraction; /* bits of the fraction */
    int32_t exponents;       /* bits of the exponent */
    int32_t lowest;          /* the smallest positive number is 2^lowest */
} dpari_ex_format;

/* Returns the format of a type; its bytes are 0 if the type is not one of the four. */
DPARI_ALWAYS_INLINE dpari_ex_format dpari_ex_format_of(int32_t type)
{
    dpari_ex_format format = {0, 0, 0, 0};
    if (type == DPAR_F64) {
        format.bytes = 8;
        format.fraction = 52;
        format.exponents = 11;
    } else if (type == DPAR_F32) {
        format.bytes = 4;
        format.fraction = 23;
        format.exponents = 8;
    } else if (type == DPAR_BF16) {
        format.bytes = 2;
        format.fraction = 7;
        format.exponents = 8;
    } else if (type == DPAR_F16) {
        format.bytes = 2;
        format.fraction = 10;
        format.exponents = 5;
    }
    if (format.bytes > 0) {
        format.lowest = 2 - (1 << (format.exponents - 1)) - format.fraction;
    }
    return format;
}

/* Checks a term. */
DPARI_INTERNAL dpar_status dpari_ex_check(const dpar_exact_term *term, dpar_why *why);

/* Add count elements, or count products. */
DPARI_INTERNAL void dpari_ex_add_each(dpar_exact *sum, const void *x, int64_t count, int32_t type);
DPARI_INTERNAL void dpari_ex_add_products(dpar_exact *sum, const void *x, const void *y,
                                          int64_t count, int32_t type);

/* The words that a sum of a type, or of products of a type, may change: first to last - 1. */
DPARI_INTERNAL void dpari_ex_range(int32_t type, int products, int32_t *first, int32_t *last);

/* Carries from digits first to last - 2 to the next one. */
DPARI_INTERNAL void dpari_ex_carry(int64_t *word, int32_t first, int32_t last);

/* ==== exact/exact_loops.h ==== */

/* exact_loops - private: adds a block of elements exactly with vectors of doubles, if the exponents
 * of its elements are close enough. */

enum {
    DPARI_EX_BLOCK = 512, /* most elements of a block */
    DPARI_EX_STEP = 16,   /* the elements of a block are a multiple of this number */
    DPARI_EX_PARTS = 6
};

/* Returns 1 if this CPU has the vectors and rounds to nearest. */
DPARI_INTERNAL int dpari_ex_has_vectors(void);

/* Sets part[] to doubles whose exact sum is that of n elements, or of the products x[i] * y[i] if y
 * is not NULL. type is F64 or F32. Returns their number, or -1 if the block has an element that is
 * not finite, or exponents that are too different, too large or too small. */
DPARI_INTERNAL int32_t dpari_ex_block(double *part, const void *x, const void *y, int64_t n,
                                      int32_t type);

/* ==== exact/exact_ranks.h ==== */

/* exact_ranks - private: computes terms over the ranks of a communicator, for the calls on arrays,
 * grids and points. */

/* Does what dpar_exact_many does. If this rank has found a wrong argument, it passes DPAR_E_ARG as
 * `status` and a message, and all ranks fail with it.
 *
 * kinds: [count] terms with the kind and type that all ranks must pass; read even if status is
 *        negative. */
DPARI_INTERNAL dpar_status dpari_ex_many(dpar_comm *comm, dpar_status status, dpar_why *why,
                                         const dpar_exact_term *terms, int32_t count,
                                         double *results);

/* ==== exact/exact_bins.c ==== */

/* Adds floats and products to the digits of a sum, carries, and rounds sums and their roots. An
 * element is an integer of at most 53 bits times a power of two, a product one of at most 106 bits.
 * It is shifted by less than 32 bits, cut into pieces of 32 bits and added to three to five digits.
 * Digits are signed and have 64 bits, so that 2^28 elements can be added before carries. */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_ex_check(const dpar_exact_term *term, dpar_why *why)
{
    int64_t elements = term->dims > 0 ? 1 : term->count;
    int32_t d;
    if (term->kind < 0 || term->kind >= DPAR_EXACT_KIND_COUNT) {
        return dpari_wrong(why, "exact: kind is %d, but must be DPAR_EXACT_SUM, _DOT or _NORM",
                           term->kind);
    }
    if (dpari_ex_format_of(term->type).bytes == 0) {
        return dpari_wrong(why, "exact: type is %s (%d), but must be f64, f32, bf16 or f16",
                           dpar_type_name(term->type), term->type);
    }
    if (term->dims < 0 || term->dims > DPAR_MEM_DIMS || term->count < 0) {
        return dpari_wrong(
            why,
            "exact: count is %ld and dims %d, but count must be 0 or more and dims 0 "
            "to %d",
            term->count, term->dims, (int32_t)DPAR_MEM_DIMS);
    }
    for (d = 0; d < term->dims; d++) {
        if (term->extent[d] < 0) {
            return dpari_wrong(why, "exact: extent[%d] is %ld, but must be 0 or more", d,
                               term->extent[d]);
        }
        elements = term->extent[d] == 0 ? 0 : elements;
    }
    if (elements != 0 && (!term->x || (term->kind == DPAR_EXACT_DOT && !term->y))) {
        return dpari_wrong(why, "exact: %s is NULL, but there are elements", term->x ? "y" : "x");
    }
    return DPAR_OK;
}

/* ---- elements -------------------------------------------------------------------------------- */

/* What an element is if it is not a finite number other than zero. */
enum { DPARI_EX_IS_FINITE, DPARI_EX_IS_ZERO, DPARI_EX_IS_INF, DPARI_EX_IS_NAN };

/* An element: mantissa * 2^(lowest + shift), with a sign. */
typedef struct dpari_ex_element {
    uint64_t mantissa;
    int32_t shift, negative, kind;
} dpari_ex_element;

/* Reads element i. */
DPARI_ALWAYS_INLINE void dpari_ex_read(dpari_ex_element *element, const void *x, int64_t i,
                                       dpari_ex_format format)
{
    const unsigned char *at = (const unsigned char *)x + i * format.bytes;
    const int32_t top = (1 << format.exponents) - 1;
    uint64_t bits;
    int32_t exponent;
    if (format.bytes == 8) {
        dpari_elements_bits(&bits, at, 8);
    } else if (format.bytes == 4) {
        uint32_t word;
        dpari_elements_bits(&word, at, 4);
        bits = word;
    } else {
        uint16_t word;
        dpari_elements_bits(&word, at, 2);
        bits = word;
    }
    exponent = (int32_t)(bits >> format.fraction) & top;
    element->mantissa = bits & ((UINT64_C(1) << format.fraction) - 1);
    element->negative = (int32_t)(bits >> (format.fraction + format.exponents)) & 1;
    element->shift = exponent > 0 ? exponent - 1 : 0;
    element->kind = DPARI_EX_IS_FINITE;
    if (exponent == top) {
        element->kind = element->mantissa == 0 ? DPARI_EX_IS_INF : DPARI_EX_IS_NAN;
    } else if (exponent > 0) {
        element->mantissa |= UINT64_C(1) << format.fraction;
    } else if (element->mantissa == 0) {
        element->kind = DPARI_EX_IS_ZERO;
    }
}

/* Counts an element or product that is not finite. */
static void dpari_ex_count(dpar_exact *sum, int is_nan, int negative)
{
    if (is_nan) {
        sum->word[DPARI_EX_NAN]++;
    } else {
        sum->word[negative ? DPARI_EX_MINUS_INF : DPARI_EX_INF]++;
    }
}

/* Prevents gcc from combining additions to neighbouring digits into one of vectors. The next one
 * would wait for such a store, which overlaps what it loads. */
#if defined(__GNUC__)
#define DPARI_EX_APART() __asm__ volatile("" : : : "memory")
#else
#define DPARI_EX_APART() ((void)0)
#endif

/* Adds an integer of n pieces of 32 bits, whose lowest bit is bit `shift` of digit 0, to n + 1
 * digits. sign: 0 or -1. */
DPARI_ALWAYS_INLINE void dpari_ex_add_limbs(int64_t *digit, const uint64_t *limb, int32_t n,
                                            int32_t shift, int64_t sign)
{
    uint64_t carry = 0;
    int32_t k;
    for (k = 0; k < n; k++) {
        const uint64_t shifted = limb[k] << shift;
        digit[k] += ((int64_t)(carry + (shifted & UINT32_MAX)) ^ sign) - sign;
        carry = shifted >> 32;
        DPARI_EX_APART();
    }
    digit[n] += ((int64_t)carry ^ sign) - sign;
}

/* Notes that n elements are to be added, and carries before digits may overflow. Returns how many
 * of them may be added now. */
static int64_t dpari_ex_take(dpar_exact *sum, int64_t n)
{
    const int64_t some = dpari_least(n, DPARI_EX_PENDING);
    if (sum->pending + some > DPARI_EX_PENDING) {
        dpar_exact_normalize(sum);
    }
    sum->pending += some;
    return some;
}

/* Adds n elements of one format, which the compiler knows. */
DPARI_ALWAYS_INLINE void dpari_ex_add_format(dpar_exact *sum, const void *x, int64_t n,
                                             dpari_ex_format format)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        dpari_ex_element element;
        uint64_t limb[2];
        uint32_t bit;
        dpari_ex_read(&element, x, i, format);
        if (element.kind >= DPARI_EX_IS_INF) {
            dpari_ex_count(sum, element.kind == DPARI_EX_IS_NAN, element.negative);
            continue;
        }
        bit = (uint32_t)(DPARI_EX_BASE + format.lowest + element.shift);
        limb[0] = element.mantissa & UINT32_MAX;
        limb[1] = element.mantissa >> 32;
        dpari_ex_add_limbs(sum->word + bit / 32, limb, format.fraction >= 32 ? 2 : 1,
                           (int32_t)(bit % 32), -(int64_t)element.negative);
    }
}

/* Adds the product of two finite numbers. bit: position of its lowest bit. */
static void dpari_ex_add_product(dpar_exact *sum, uint64_t a, uint64_t b, uint32_t bit,
                                 int64_t sign)
{
    const uint64_t low = (a & UINT32_MAX) * (b & UINT32_MAX);
    const uint64_t middle =
        (low >> 32) + (a & UINT32_MAX) * (b >> 32) + (a >> 32) * (b & UINT32_MAX);
    const uint64_t high = (middle >> 32) + (a >> 32) * (b >> 32);
    uint64_t limb[4];
    limb[0] = low & UINT32_MAX;
    limb[1] = middle & UINT32_MAX;
    limb[2] = high & UINT32_MAX;
    limb[3] = high >> 32;
    dpari_ex_add_limbs(sum->word + bit / 32, limb, 4, (int32_t)(bit % 32), sign);
}

DPARI_INTERNAL void dpari_ex_add_each(dpar_exact *sum, const void *x, int64_t count, int32_t type)
{
    const dpari_ex_format format = dpari_ex_format_of(type);
    while (count > 0) {
        const int64_t n = dpari_ex_take(sum, count);
        if (type == DPAR_F64) {
            dpari_ex_add_format(sum, x, n, dpari_ex_format_of(DPAR_F64));
        } else {
            dpari_ex_add_format(sum, x, n, format);
        }
        x = (const unsigned char *)x + n * format.bytes;
        count -= n;
    }
}

/* Adds n products of one format, which the compiler knows. */
DPARI_ALWAYS_INLINE void dpari_ex_add_product_format(dpar_exact *sum, const void *x, const void *y,
                                                     int64_t n, dpari_ex_format format)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        dpari_ex_element a, b;
        int32_t negative, largest, zero;
        dpari_ex_read(&a, x, i, format);
        dpari_ex_read(&b, y, i, format);
        negative = a.negative ^ b.negative;
        largest = a.kind > b.kind ? a.kind : b.kind;
        zero = a.kind == DPARI_EX_IS_ZERO || b.kind == DPARI_EX_IS_ZERO;
        if (largest >= DPARI_EX_IS_INF) {
            dpari_ex_count(sum, largest == DPARI_EX_IS_NAN || zero, negative);
        } else if (!zero) {
            dpari_ex_add_product(sum, a.mantissa, b.mantissa,
                                 (uint32_t)(DPARI_EX_BASE + 2 * format.lowest + a.shift + b.shift),
                                 -(int64_t)negative);
        }
    }
}

DPARI_INTERNAL void dpari_ex_add_products(dpar_exact *sum, const void *x, const void *y,
                                          int64_t count, int32_t type)
{
    const dpari_ex_format format = dpari_ex_format_of(type);
    while (count > 0) {
        const int64_t n = dpari_ex_take(sum, count);
        if (type == DPAR_F64) {
            dpari_ex_add_product_format(sum, x, y, n, dpari_ex_format_of(DPAR_F64));
        } else {
            dpari_ex_add_product_format(sum, x, y, n, format);
        }
        x = (const unsigned char *)x + n * format.bytes;
        y = (const unsigned char *)y + n * format.bytes;
        count -= n;
    }
}

/* ---- carries --------------------------------------------------------------------------------- */

DPARI_INTERNAL void dpari_ex_range(int32_t type, int products, int32_t *first, int32_t *last)
{
    const dpari_ex_format format = dpari_ex_format_of(type);
    const int32_t times = products ? 2 : 1;
    const int32_t highest = 1 << (format.exponents - 1); /* all elements are below 2^highest */
    *first = (DPARI_EX_BASE + times * format.lowest) / 32;
    /* a sum of 2^63 elements needs 63 bits more, and a sign */
    *last = (DPARI_EX_BASE + times * highest + 64) / 32 + 1;
}

/* Digits become -2^31 to 2^31 - 1, so that a carry soon ends in sums of either sign. */
DPARI_INTERNAL void dpari_ex_carry(int64_t *word, int32_t first, int32_t last)
{
    int32_t d;
    while (first < last && word[first] == 0) {
        first++;
    }
    for (d = first; d < last - 1; d++) {
        /* rounds to nearest; gcc, clang and MSVC shift negative numbers arithmetically */
        const int64_t carry = (word[d] + (INT64_C(1) << 31)) >> 32;
        word[d] -= carry * (INT64_C(1) << 32);
        word[d + 1] += carry;
    }
}

DPAR_API void dpar_exact_normalize(dpar_exact *sum)
{
    if (sum) {
        dpari_ex_carry(sum->word, 0, DPAR_EXACT_DIGITS);
        sum->pending = 0;
    }
}

DPAR_API void dpar_exact_merge(dpar_exact *sum, const dpar_exact *other)
{
    int32_t i;
    if (!sum || !other) {
        return;
    }
    dpar_exact_normalize(sum);
    for (i = 0; i < DPAR_EXACT_WORDS; i++) {
        sum->word[i] += other->word[i];
    }
    dpar_exact_normalize(sum);
}

/* ---- results --------------------------------------------------------------------------------- */

/* A sum as a sign and 32-bit digits without sign. */
typedef struct dpari_ex_number {
    uint32_t digit[DPAR_EXACT_DIGITS + 3]; /* the last two are 0, for dpari_ex_bits */
    int32_t negative, top;                 /* top: position of its highest bit; -1 if it is zero */
} dpari_ex_number;

/* Returns a bit; bits below bit 0 are zero. */
static uint32_t dpari_ex_bit(const dpari_ex_number *number, int32_t bit)
{
    return bit < 0 ? 0 : number->digit[bit / 32] >> bit % 32 & 1;
}

/* Returns the 64 bits from bit `low` on. */
static uint64_t dpari_ex_bits(const dpari_ex_number *number, int32_t low)
{
    const uint32_t *digit = number->digit + low / 32;
    const int32_t shift = low % 32;
    const uint64_t bits = (uint64_t)digit[1] << 32 | digit[0];
    return shift == 0 ? bits : bits >> shift | (uint64_t)digit[2] << (64 - shift);
}

/* True if any bit below `bit` is set. */
static int dpari_ex_below(const dpari_ex_number *number, int32_t bit)
{
    int32_t d;
    for (d = 0; d < bit / 32; d++) {
        if (number->digit[d] != 0) {
            return 1;
        }
    }
    return bit > 0 && (number->digit[d] & ((UINT32_C(1) << bit % 32) - 1)) != 0;
}

static DPARI_COLD void dpari_ex_split(dpari_ex_number *number, const dpar_exact *sum)
{
    dpar_exact copy = *sum;
    int64_t borrow = 0;
    int32_t d, sign = 1, top = DPAR_EXACT_DIGITS - 1;
    dpar_exact_normalize(&copy);
    while (top > 0 && copy.word[top] == 0) {
        top--;
    }
    if (copy.word[top] < 0) {
        sign = -1;
    }
    for (d = 0; d < DPAR_EXACT_DIGITS; d++) {
        const int64_t digit = sign * copy.word[d] + borrow;
        number->digit[d] = (uint32_t)((uint64_t)digit & UINT32_MAX);
        borrow = (digit - (int64_t)number->digit[d]) / (INT64_C(1) << 32);
    }
    number->digit[DPAR_EXACT_DIGITS] =
        (uint32_t)borrow; /* of the last digit, which may be larger */
    number->negative = sign < 0;
    number->digit[DPAR_EXACT_DIGITS + 1] = number->digit[DPAR_EXACT_DIGITS + 2] = 0;
    top = DPAR_EXACT_DIGITS;
    while (top >= 0 && number->digit[top] == 0) {
        top--;
    }
    number->top = 32 * top + 31;
    while (number->top >= 0 && !dpari_ex_bit(number, number->top)) {
        number->top--;
    }
}

/* Returns the double with these bits. */
static double dpari_ex_double(int negative, uint64_t bits)
{
    double value;
    bits |= (uint64_t)(negative != 0) << 63;
    dpari_elements_bits(&value, &bits, 8);
    return value;
}

static double dpari_ex_infinity(int negative)
{
    return dpari_ex_double(negative, UINT64_C(0x7ff) << 52);
}

static double dpari_ex_not_a_number(void)
{
    return dpari_ex_double(0, UINT64_C(0xfff) << 51);
}

/* Returns mantissa * 2^exponent as a double. `mantissa` is rounded to the type, at most 2^53. */
static double dpari_ex_scaled(int negative, uint64_t mantissa, int32_t exponent,
                              dpari_ex_format format)
{
    int32_t top = 0;
    if (mantissa == 0) {
        return dpari_ex_double(negative, 0);
    }
    while (mantissa >> top > 1) {
        top++;
    }
    if (top + exponent >= 1 << (format.exponents - 1)) {
        return dpari_ex_infinity(negative);
    }
    if (top + exponent < -1022) { /* a subnormal double: exponent is -1074 */
        return dpari_ex_double(negative, mantissa);
    }
    mantissa = top > 52 ? mantissa >> (top - 52) : mantissa << (52 - top); /* 2^53 loses no bit */
    mantissa &= (UINT64_C(1) << 52) - 1;
    return dpari_ex_double(negative, mantissa | (uint64_t)(top + exponent + 1023) << 52);
}

/* Returns the result if the sum has a NaN or an inf, or the type is wrong. */
static int dpari_ex_is_special(const dpar_exact *sum, int32_t type, double *result)
{
    const int64_t *word = sum->word;
    if (dpari_ex_format_of(type).bytes == 0 || word[DPARI_EX_NAN] != 0 ||
        (word[DPARI_EX_INF] != 0 && word[DPARI_EX_MINUS_INF] != 0)) {
        *result = dpari_ex_not_a_number();
        return 1;
    }
    if (word[DPARI_EX_INF] == 0 && word[DPARI_EX_MINUS_INF] == 0) {
        return 0;
    }
    *result = dpari_ex_infinity(word[DPARI_EX_MINUS_INF] != 0);
    return 1;
}

DPAR_API DPARI_COLD double dpar_exact_result(const dpar_exact *sum, int32_t type)
{
    const dpari_ex_format format = dpari_ex_format_of(type);
    dpari_ex_number number;
    uint64_t mantissa;
    double result = 0.0;
    int32_t low;
    if (!sum || dpari_ex_is_special(sum, type, &result)) {
        return result;
    }
    dpari_ex_split(&number, sum);
    /* the lowest bit that the type keeps */
    low = (int32_t)dpari_most(number.top - format.fraction, DPARI_EX_BASE + format.lowest);
    mantissa = dpari_ex_bits(&number, low);
    if (dpari_ex_bit(&number, low - 1) &&
        ((mantissa & 1) != 0 || dpari_ex_below(&number, low - 1))) {
        mantissa++;
    }
    return dpari_ex_scaled(number.negative, mantissa, low - DPARI_EX_BASE, format);
}

/* Computes the root bit by bit, from two bits of the number each, as by hand. */
DPAR_API DPARI_COLD double dpar_exact_root(const dpar_exact *sum, int32_t type)
{
    const dpari_ex_format format = dpari_ex_format_of(type);
    dpari_ex_number number;
    uint64_t root = 0, rest = 0;
    double result = 0.0;
    int32_t low, bit;
    if (!sum) {
        return 0.0;
    }
    if (dpari_ex_is_special(sum, type, &result)) {
        return sum->word[DPARI_EX_MINUS_INF] != 0 ? dpari_ex_not_a_number() : result;
    }
    dpari_ex_split(&number, sum);
    if (number.top < 0) {
        return 0.0;
    }
    if (number.negative) {
        return dpari_ex_not_a_number();
    }
    /* Bit b of the root comes from bits 2 b and 2 b + 1; the bit below `low` rounds. */
    low = (int32_t)dpari_most(number.top / 2 - format.fraction, DPARI_EX_BASE / 2 + format.lowest);
    for (bit = number.top / 2; bit >= low - 1; bit--) {
        const uint64_t trial = root << 2 | 1;
        rest = rest << 2 | dpari_ex_bit(&number, 2 * bit + 1) << 1 | dpari_ex_bit(&number, 2 * bit);
        root <<= 1;
        if (rest >= trial) {
            rest -= trial;
            root |= 1;
        }
    }
    if ((root & 1) != 0 && ((root & 2) != 0 || rest != 0 || dpari_ex_below(&number, 2 * low - 2))) {
        root += 2;
    }
    return dpari_ex_scaled(0, root >> 1, low - DPARI_EX_BASE / 2, format);
}

/* ==== exact/exact_loops.c ==== */

/* Adds blocks of elements exactly with vectors of doubles.
 *
 * A first pass finds the largest exponent E of a block, and the smallest exponent e of its elements
 * that are not zero. All elements are then below 2^(E + 1) and multiples of 2^(e - 52). With
 * M = 1.5 * 2^(E + 9), the difference high = (x + M) - M is x rounded to a multiple of
 * u = 2^(E - 43), and low = x - high, at most u, is exact. The sum of 512 values of `high` is at
 * most 2^53 u, so that every partial sum is exact. So is every sum of values of `low`, at most
 * 2^(E - 34), if these are multiples of 2^(E - 87): if E - e is 35 or less. Otherwise `low` is cut
 * once more in the same manner, 44 bits below, which suffices if E - e is 79 or less. No result is
 * subnormal, so that flushing to zero changes nothing. All other blocks, and all blocks if the CPU
 * does not round to nearest, are left to the integers of exact_bins.c.
 *
 * The fraction of an f32 has 23 bits. Its sum in doubles is exact if E - e is 20 or less, otherwise
 * it is cut as above. A product of two f32 is exact in f64. A product of two f64 is the rounded
 * product and its error, which a fused multiplication gives exactly; both are cut, the error 53
 * bits below.
 *
 * DPARI_EX_KEEP hides a value from the compiler, which might otherwise simplify (x + M) - M to x
 * with -ffast-math. */

#if defined(__GNUC__) && (defined(__clang__) || __GNUC__ >= 9) && !defined(DPARI_NO_VECTOR) &&     \
    !defined(__CUDACC__) &&                                                                        \
    (defined(__x86_64__) || (defined(__aarch64__) && defined(__AARCH64EL__)))
#define DPARI_EX_VECTOR 1
#else
#define DPARI_EX_VECTOR 0
#endif

#if DPARI_EX_VECTOR

#if defined(__x86_64__)
enum { DPARI_EX_BYTES = 32 }; /* of a vector */
#define DPARI_EX_TARGET __attribute__((target("avx2,fma"), noinline))
#define DPARI_EX_KEEP(v) __asm__("" : "+x"(v))
#define DPARI_EX_MAX(to, v) __asm__("vpmaxud %1, %0, %0" : "+x"(to) : "x"(v))
#define DPARI_EX_MIN(to, v) __asm__("vpminud %1, %0, %0" : "+x"(to) : "x"(v))
/* minus becomes a * b + minus, rounded once */
#define DPARI_EX_FUSED(minus, a, b) __asm__("vfmadd231pd %2, %1, %0" : "+x"(minus) : "x"(a), "x"(b))
#else
enum { DPARI_EX_BYTES = 16 };
#define DPARI_EX_TARGET __attribute__((noinline))
#define DPARI_EX_KEEP(v) __asm__("" : "+w"(v))
#define DPARI_EX_MAX(to, v) __asm__("umax %0.4s, %0.4s, %1.4s" : "+w"(to) : "w"(v))
#define DPARI_EX_MIN(to, v) __asm__("umin %0.4s, %0.4s, %1.4s" : "+w"(to) : "w"(v))
#define DPARI_EX_FUSED(minus, a, b)                                                                \
    __asm__("fmla %0.2d, %1.2d, %2.2d" : "+w"(minus) : "w"(a), "w"(b))
#endif

typedef double dpari_ex_reals __attribute__((vector_size(DPARI_EX_BYTES)));
typedef float dpari_ex_floats __attribute__((vector_size(DPARI_EX_BYTES / 2)));
typedef uint64_t dpari_ex_longs __attribute__((vector_size(DPARI_EX_BYTES)));
typedef uint32_t dpari_ex_words __attribute__((vector_size(DPARI_EX_BYTES)));
enum {
    DPARI_EX_LANES = DPARI_EX_BYTES / 8,
    DPARI_EX_AHEAD = 4096 /* bytes by which the next block is prefetched */
};

/* A vector and its elements. (With memcpy, gcc would keep the vector in memory during a loop.) */
typedef union dpari_ex_lanes {
    dpari_ex_reals reals;
    dpari_ex_words words;
    double real[DPARI_EX_LANES];
    uint32_t word[DPARI_EX_BYTES / 4];
} dpari_ex_lanes;

/* The exponents of a block, without bias. */
typedef struct dpari_ex_exponents {
    int32_t most, least; /* least: of the elements that are not zero */
    int32_t usable;      /* 0 if an element is not finite, or subnormal */
    int32_t zero;        /* 1 if all elements are zero */
} dpari_ex_exponents;

/* Scans two vectors. `size` clears signs, and `one` is 1. Zero minus 1 has the largest exponent, so
 * that zeros do not count as least. */
#define DPARI_EX_SCAN(vector, size, one)                                                           \
    do {                                                                                           \
        vector a, b;                                                                               \
        __builtin_memcpy(&a, at, sizeof a);                                                        \
        __builtin_memcpy(&b, at + sizeof a, sizeof b);                                             \
        a &= size;                                                                                 \
        b &= size;                                                                                 \
        DPARI_EX_MAX(most, a);                                                                     \
        DPARI_EX_MAX(other_most, b);                                                               \
        a -= one;                                                                                  \
        b -= one;                                                                                  \
        DPARI_EX_MIN(least, a);                                                                    \
        DPARI_EX_MIN(other_least, b);                                                              \
    } while (0)

/* Finds the exponents of a block. Only the words that contain an exponent are of use. */
DPARI_EX_TARGET static void dpari_ex_scan(dpari_ex_exponents *found, const void *x, int64_t n,
                                          int32_t type)
{
    const dpari_ex_words none = {0};
    dpari_ex_words most = none, other_most = none, least = ~none, other_least = ~none;
    const unsigned char *at = (const unsigned char *)x;
    const unsigned char *const end = at + n * (type == DPAR_F64 ? 8 : 4);
    const int32_t skip = type == DPAR_F64 ? 2 : 1, fraction = type == DPAR_F64 ? 20 : 23;
    const int32_t bias = type == DPAR_F64 ? 1023 : 127;
    dpari_ex_lanes highest, lowest;
    uint32_t high = 0, low = UINT32_MAX;
    int32_t i;
    if (type == DPAR_F64) {
        const dpari_ex_longs one = ((dpari_ex_longs)none - 1) >> 63, size = ~(one << 63);
        for (; at < end; at += 2 * sizeof one) {
            DPARI_EX_SCAN(dpari_ex_longs, size, one);
        }
    } else {
        const dpari_ex_words one = (none - 1) >> 31, size = ~(one << 31);
        for (; at < end; at += 2 * sizeof one) {
            DPARI_EX_SCAN(dpari_ex_words, size, one);
        }
    }
    DPARI_EX_MAX(most, other_most);
    DPARI_EX_MIN(least, other_least);
    highest.words = most;
    lowest.words = least;
    for (i = skip - 1; i < DPARI_EX_BYTES / 4; i += skip) {
        high = highest.word[i] > high ? highest.word[i] : high;
        low = lowest.word[i] < low ? lowest.word[i] : low;
    }
    found->zero = low == UINT32_MAX;
    high >>= fraction;
    low >>= fraction;
    found->usable = high <= (uint32_t)(2 * bias) && low > 0;
    found->most = (int32_t)high - bias;
    found->least = (int32_t)low - bias;
}

/* Adds v, cut by M, to the sums `high` and `low`. If `wide`, what is left is cut by N before. */
#define DPARI_EX_CUT(v, M, high)                                                                   \
    do {                                                                                           \
        dpari_ex_reals cut = (v) + (M);                                                            \
        DPARI_EX_KEEP(cut);                                                                        \
        cut -= (M);                                                                                \
        DPARI_EX_KEEP(cut);                                                                        \
        (high) += cut;                                                                             \
        (v) -= cut;                                                                                \
        DPARI_EX_KEEP(v);                                                                          \
    } while (0)
#define DPARI_EX_ADD(v, M, N, high, middle, low)                                                   \
    do {                                                                                           \
        DPARI_EX_CUT(v, M, high);                                                                  \
        if (wide) {                                                                                \
            DPARI_EX_CUT(v, N, middle);                                                            \
        }                                                                                          \
        (low) += (v);                                                                              \
    } while (0)

/* Loads a vector of doubles, from f64 or f32. */
#define DPARI_EX_LOAD(v, at) __builtin_memcpy(&(v), at, sizeof(v))
#if defined(__x86_64__)
#define DPARI_EX_WIDEN(v, at)                                                                      \
    do {                                                                                           \
        dpari_ex_floats narrow;                                                                    \
        __builtin_memcpy(&narrow, at, sizeof narrow);                                              \
        __asm__("vcvtps2pd %1, %0" : "=x"(v) : "x"(narrow));                                       \
    } while (0)
#else
#define DPARI_EX_WIDEN(v, at)                                                                      \
    do {                                                                                           \
        dpari_ex_floats narrow;                                                                    \
        __builtin_memcpy(&narrow, at, sizeof narrow);                                              \
        (v) = __builtin_convertvector(narrow, dpari_ex_reals);                                     \
    } while (0)
#endif

/* Adds the lanes of two vectors, exactly. */
#define DPARI_EX_FOLD(to, a, b)                                                                    \
    do {                                                                                           \
        dpari_ex_lanes both;                                                                       \
        int32_t lane;                                                                              \
        both.reals = (a) + (b);                                                                    \
        (to) = 0.0;                                                                                \
        for (lane = 0; lane < DPARI_EX_LANES; lane++) {                                            \
            (to) += both.real[lane];                                                               \
        }                                                                                          \
    } while (0)

#define DPARI_EX_PREFETCH(at) __builtin_prefetch((const char *)(at) + DPARI_EX_AHEAD)

/* Returns 1.5 * 2^exponent. */
static double dpari_ex_large(int32_t exponent)
{
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52 | UINT64_C(1) << 51;
    double large;
    dpari_elements_bits(&large, &bits, 8);
    return large;
}

/* Adds f64 in two or three parts. most: the largest exponent. */
DPARI_EX_TARGET static void dpari_ex_sum_64(double *part, const double *x, int64_t n, int32_t most,
                                            int wide)
{
    const dpari_ex_reals zero = {0};
    const dpari_ex_reals M = zero + dpari_ex_large(most + 9), N = zero + dpari_ex_large(most - 35);
    dpari_ex_reals high = zero, middle = zero, low = zero, other_high = zero, other_low = zero;
    int64_t i;
    for (i = 0; i < n; i += 2 * DPARI_EX_LANES) {
        dpari_ex_reals a, b;
        DPARI_EX_PREFETCH(x + i);
        DPARI_EX_LOAD(a, x + i);
        DPARI_EX_LOAD(b, x + i + DPARI_EX_LANES);
        DPARI_EX_ADD(a, M, N, high, middle, low);
        DPARI_EX_ADD(b, M, N, other_high, middle, other_low);
    }
    DPARI_EX_FOLD(part[0], high, other_high);
    DPARI_EX_FOLD(part[1], low, other_low);
    DPARI_EX_FOLD(part[2], middle, zero);
}

/* Adds f32 in one part. */
DPARI_EX_TARGET static void dpari_ex_sum_32(double *part, const float *x, int64_t n)
{
    const dpari_ex_reals zero = {0};
    dpari_ex_reals sum[4] = {zero, zero, zero, zero};
    int64_t i;
    for (i = 0; i < n; i += 4 * DPARI_EX_LANES) {
        dpari_ex_reals v[4];
        DPARI_EX_PREFETCH(x + i);
        DPARI_FOUR(DPARI_EX_WIDEN(v[q], x + i + (int)q * (int)DPARI_EX_LANES));
        DPARI_FOUR(sum[q] += v[q]);
    }
    sum[0] += sum[2];
    sum[1] += sum[3];
    DPARI_EX_FOLD(part[0], sum[0], sum[1]);
}

/* Adds f32, or products of f32, in two or three parts. */
DPARI_EX_TARGET static void dpari_ex_cut_32(double *part, const float *x, const float *y, int64_t n,
                                            int32_t most, int wide)
{
    const dpari_ex_reals zero = {0};
    const dpari_ex_reals M = zero + dpari_ex_large(most + 9), N = zero + dpari_ex_large(most - 35);
    dpari_ex_reals high = zero, middle = zero, low = zero, other_high = zero, other_low = zero;
    int64_t i;
    for (i = 0; i < n; i += 2 * DPARI_EX_LANES) {
        dpari_ex_reals a, b;
        DPARI_EX_PREFETCH(x + i);
        DPARI_EX_WIDEN(a, x + i);
        DPARI_EX_WIDEN(b, x + i + DPARI_EX_LANES);
        if (y) {
            dpari_ex_reals c, d;
            DPARI_EX_PREFETCH(y + i);
            DPARI_EX_WIDEN(c, y + i);
            DPARI_EX_WIDEN(d, y + i + DPARI_EX_LANES);
            a *= c;
            b *= d;
            DPARI_EX_KEEP(a);
            DPARI_EX_KEEP(b);
        }
        DPARI_EX_ADD(a, M, N, high, middle, low);
        DPARI_EX_ADD(b, M, N, other_high, middle, other_low);
    }
    DPARI_EX_FOLD(part[0], high, other_high);
    DPARI_EX_FOLD(part[1], low, other_low);
    DPARI_EX_FOLD(part[2], middle, zero);
}

/* Adds products of f64 in four or six parts. */
DPARI_EX_TARGET static void dpari_ex_dot_64(double *part, const double *x, const double *y,
                                            int64_t n, int32_t most, int wide)
{
    const dpari_ex_reals zero = {0};
    const dpari_ex_reals M = zero + dpari_ex_large(most + 9), N = zero + dpari_ex_large(most - 35);
    const dpari_ex_reals error_M = zero + dpari_ex_large(most - 44);
    const dpari_ex_reals error_N = zero + dpari_ex_large(most - 88);
    dpari_ex_reals high = zero, middle = zero, low = zero;
    dpari_ex_reals error_high = zero, error_middle = zero, error_low = zero;
    int64_t i;
    for (i = 0; i < n; i += DPARI_EX_LANES) {
        dpari_ex_reals a, b, product, error;
        DPARI_EX_PREFETCH(x + i);
        DPARI_EX_PREFETCH(y + i);
        DPARI_EX_LOAD(a, x + i);
        DPARI_EX_LOAD(b, y + i);
        product = a * b;
        DPARI_EX_KEEP(product);
        error = -product;
        DPARI_EX_FUSED(error, a, b);
        DPARI_EX_ADD(product, M, N, high, middle, low);
        DPARI_EX_ADD(error, error_M, error_N, error_high, error_middle, error_low);
    }
    DPARI_EX_FOLD(part[0], high, zero);
    DPARI_EX_FOLD(part[1], low, zero);
    DPARI_EX_FOLD(part[2], error_high, zero);
    DPARI_EX_FOLD(part[3], error_low, zero);
    DPARI_EX_FOLD(part[4], middle, zero);
    DPARI_EX_FOLD(part[5], error_middle, zero);
}

DPARI_INTERNAL int dpari_ex_has_vectors(void)
{
    double one = 1.0, little = dpari_ex_large(-60), above, below;
    DPARI_EX_KEEP(one);
    DPARI_EX_KEEP(little);
    above = one + little;
    below = one - little;
    DPARI_EX_KEEP(above);
    DPARI_EX_KEEP(below);
    if (above != one || below != one) { /* the CPU does not round to nearest */
        return 0;
    }
#if defined(__x86_64__) && !(defined(__AVX2__) && defined(__FMA__))
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}

DPARI_INTERNAL int32_t dpari_ex_block(double *part, const void *x, const void *y, int64_t n,
                                      int32_t type)
{
    dpari_ex_exponents a, b;
    int32_t most, spread;
    int wide;
    dpari_ex_scan(&a, x, n, type);
    most = a.most;
    spread = a.most - a.least;
    if (y) {
        b = a;
        if (y != x) {
            dpari_ex_scan(&b, y, n, type);
        }
        if (!b.usable) {
            return -1;
        }
        a.zero |= b.zero;
        most += b.most + 1;
        spread += b.most - b.least + 1;
    }
    if (!a.usable) {
        return -1;
    }
    if (a.zero) {
        return 0;
    }
    if (type == DPAR_F32) {
        const int32_t narrow = y ? 41 : 64;
        if (!y && spread <= 20) {
            dpari_ex_sum_32(part, (const float *)x, n);
            return 1;
        }
        if (spread > narrow + 44) {
            return -1;
        }
        dpari_ex_cut_32(part, (const float *)x, (const float *)y, n, most, spread > narrow);
        return spread > narrow ? 3 : 2;
    }
    if (spread > 79 || most > 1000 || most < (y ? -830 : -890)) {
        return -1;
    }
    wide = spread > 35;
    if (y) {
        dpari_ex_dot_64(part, (const double *)x, (const double *)y, n, most, wide);
        return wide ? 6 : 4;
    }
    dpari_ex_sum_64(part, (const double *)x, n, most, wide);
    return wide ? 3 : 2;
}

#else

DPARI_INTERNAL int dpari_ex_has_vectors(void)
{
    return 0;
}

DPARI_INTERNAL int32_t dpari_ex_block(double *part, const void *x, const void *y, int64_t n,
                                      int32_t type)
{
    (void)part;
    (void)x;
    (void)y;
    (void)n;
    (void)type;
    return -1;
}

#endif

/* ==== exact/exact.c ==== */

/* Adds arrays to exact sums, block by block, and combines the sums of all ranks. A block is added
 * with vectors (exact_loops.c) if the exponents of its elements allow that, otherwise element by
 * element (exact_bins.c). Both are exact, so that it does not matter where blocks begin. Boxes are
 * packed into blocks if their rows are short or not contiguous, and so are 16-bit floats, which
 * become f32. */

/* ---- arrays and boxes ------------------------------------------------------------------------ */

/* Where elements are added. */
typedef struct dpari_ex_adder {
    dpar_exact *sum;
    int32_t type, bytes;
    int vectors;    /* 1 if this CPU has them */
    int64_t packed; /* elements in `x` and `y` */
    int32_t both;   /* 1 for products */
    double x[DPARI_EX_BLOCK], y[DPARI_EX_BLOCK];
} dpari_ex_adder;

/* Adds up to DPARI_EX_BLOCK elements of F64 or F32. y: NULL for sums. */
static void dpari_ex_add_block(const dpari_ex_adder *adder, const void *x, const void *y, int64_t n,
                               int32_t type)
{
    const int64_t bytes = type == DPAR_F64 ? 8 : 4;
    int64_t whole = adder->vectors ? n - n % DPARI_EX_STEP : 0;
    if (whole > 0) {
        double part[DPARI_EX_PARTS];
        const int32_t parts = dpari_ex_block(part, x, y, whole, type);
        if (parts >= 0) {
            dpari_ex_add_each(adder->sum, part, parts, DPAR_F64);
        } else {
            whole = 0;
        }
    }
    x = (const unsigned char *)x + whole * bytes;
    if (y) {
        y = (const unsigned char *)y + whole * bytes;
        dpari_ex_add_products(adder->sum, x, y, n - whole, type);
    } else {
        dpari_ex_add_each(adder->sum, x, n - whole, type);
    }
}

/* Adds n contiguous elements. y: NULL for sums. */
static void dpari_ex_add_run(const dpari_ex_adder *adder, const void *x, const void *y, int64_t n)
{
    const unsigned char *a = (const unsigned char *)x, *b = (const unsigned char *)y;
    const int32_t bytes = adder->bytes;
    /* vectors that cross cache lines are slow, so that the first block ends where a line does */
    const int64_t before = n < 4 * DPARI_EX_BLOCK ? 0 : (int64_t)((uintptr_t)a % 64) / bytes;
    int64_t some = before > 0 ? 64 / bytes - before : (int64_t)DPARI_EX_BLOCK;
    for (; n > 0; some = DPARI_EX_BLOCK) {
        some = dpari_least(n, some);
        if (bytes > 2) {
            dpari_ex_add_block(adder, a, b, some, adder->type);
        } else {
            float wide_x[DPARI_EX_BLOCK], wide_y[DPARI_EX_BLOCK];
            dpari_kern_convert(wide_x, DPAR_F32, a, adder->type, some);
            if (b) {
                dpari_kern_convert(wide_y, DPAR_F32, b, adder->type, some);
            }
            dpari_ex_add_block(adder, wide_x, b ? wide_y : NULL, some, DPAR_F32);
        }
        a += some * bytes;
        b = b ? b + some * bytes : NULL;
        n -= some;
    }
}

/* Adds the elements that are packed. */
static void dpari_ex_flush(dpari_ex_adder *adder)
{
    dpari_ex_add_run(adder, adder->x, adder->both ? adder->y : NULL, adder->packed);
    adder->packed = 0;
}

/* Copies n elements with a stride. */
static void dpari_ex_pack(void *to, const unsigned char *from, int64_t stride, int64_t n,
                          int32_t bytes)
{
    int64_t i;
    if (stride == bytes) {
        dpari_kern_copy(to, from, n * bytes, 0);
    } else if (bytes == 8) {
        for (i = 0; i < n; i++) {
            dpari_elements_bits((uint64_t *)to + i, from + i * stride, 8);
        }
    } else if (bytes == 4) {
        for (i = 0; i < n; i++) {
            dpari_elements_bits((uint32_t *)to + i, from + i * stride, 4);
        }
    } else {
        for (i = 0; i < n; i++) {
            dpari_elements_bits((uint16_t *)to + i, from + i * stride, 2);
        }
    }
}

/* Adds a row of n elements. Strides are in bytes. */
static void dpari_ex_add_row(dpari_ex_adder *adder, const unsigned char *x, int64_t x_stride,
                             const unsigned char *y, int64_t y_stride, int64_t n)
{
    const int32_t bytes = adder->bytes;
    if (n >= DPARI_EX_BLOCK / 2 && x_stride == bytes && (!y || y_stride == bytes)) {
        dpari_ex_add_run(adder, x, y, n);
        return;
    }
    while (n > 0) {
        const int64_t some = dpari_least(n, DPARI_EX_BLOCK - adder->packed);
        dpari_ex_pack((unsigned char *)adder->x + adder->packed * bytes, x, x_stride, some, bytes);
        x += some * x_stride;
        if (y) {
            dpari_ex_pack((unsigned char *)adder->y + adder->packed * bytes, y, y_stride, some,
                          bytes);
            y += some * y_stride;
        }
        adder->packed += some;
        n -= some;
        if (adder->packed == DPARI_EX_BLOCK) {
            dpari_ex_flush(adder);
        }
    }
}

/* The dims of a box, in the order in which they are walked. Strides are in bytes. */
typedef struct dpari_ex_box {
    int32_t dims;
    int64_t extent[DPAR_MEM_DIMS], x_stride[DPAR_MEM_DIMS], y_stride[DPAR_MEM_DIMS];
} dpari_ex_box;

/* Adds a dim to a box, before dims of smaller strides. */
static void dpari_ex_box_add(dpari_ex_box *box, int64_t extent, int64_t x_stride, int64_t y_stride)
{
    int32_t d = box->dims++;
    for (; d > 0 && dpari_size(box->x_stride[d - 1]) < dpari_size(x_stride); d--) {
        box->extent[d] = box->extent[d - 1];
        box->x_stride[d] = box->x_stride[d - 1];
        box->y_stride[d] = box->y_stride[d - 1];
    }
    box->extent[d] = extent;
    box->x_stride[d] = x_stride;
    box->y_stride[d] = y_stride;
}

/* Merges a dim into the next one where both arrays allow it, so that rows get longer. */
static void dpari_ex_box_merge(dpari_ex_box *box)
{
    int32_t d, n = 0;
    for (d = 1; d < box->dims; d++) {
        if (box->x_stride[n] == box->extent[d] * box->x_stride[d] &&
            box->y_stride[n] == box->extent[d] * box->y_stride[d]) {
            box->extent[n] *= box->extent[d];
        } else {
            n++;
            box->extent[n] = box->extent[d];
        }
        box->x_stride[n] = box->x_stride[d];
        box->y_stride[n] = box->y_stride[d];
    }
    box->dims = n + 1;
}

/* Adds a box, row by row along its last dim. y: NULL for sums. */
static void dpari_ex_add_box(dpari_ex_adder *adder, const dpari_ex_box *box, const unsigned char *x,
                             const unsigned char *y)
{
    const int32_t last = box->dims - 1;
    int64_t at[DPAR_MEM_DIMS] = {0};
    int32_t d;
    do {
        dpari_ex_add_row(adder, x, box->x_stride[last], y, box->y_stride[last], box->extent[last]);
        for (d = last - 1; d >= 0; d--) { /* the next row */
            int64_t steps = 1;
            at[d]++;
            if (at[d] == box->extent[d]) {
                steps = 1 - at[d];
                at[d] = 0;
            }
            x += steps * box->x_stride[d];
            if (y) {
                y += steps * box->y_stride[d];
            }
            if (at[d] > 0) {
                break;
            }
        }
    } while (d >= 0);
}

/* Adds the points of dim 0 that `skip` has no bit for, each with the elements of dim 1. */
static void dpari_ex_add_points(dpari_ex_adder *adder, const dpar_exact_term *term,
                                const unsigned char *x, const unsigned char *y,
                                const int64_t *y_stride)
{
    const int32_t bytes = adder->bytes;
    int64_t i;
    for (i = 0; i < term->extent[0]; i++) {
        if ((term->skip[i / 64] >> i % 64 & 1) == 0) {
            dpari_ex_add_row(adder, x + i * term->x_stride[0] * bytes, term->x_stride[1] * bytes,
                             y ? y + i * y_stride[0] * bytes : NULL, y_stride[1] * bytes,
                             term->extent[1]);
        }
    }
}

/* Adds the elements of a checked term. */
static void dpari_ex_add_checked(dpar_exact *sum, const dpar_exact_term *term)
{
    const int squares = term->kind == DPAR_EXACT_NORM;
    const unsigned char *x = (const unsigned char *)term->x;
    const unsigned char *y = (const unsigned char *)(squares ? term->x : term->y);
    const int64_t *y_stride = squares ? term->x_stride : term->y_stride;
    dpari_ex_adder adder;
    dpari_ex_box box;
    int32_t d;
    adder.sum = sum;
    adder.type = term->type;
    adder.bytes = dpar_type_bytes(term->type);
    adder.vectors = dpari_ex_has_vectors();
    adder.packed = 0;
    adder.both = term->kind != DPAR_EXACT_SUM;
    if (!adder.both) {
        y = NULL;
    }
    if (term->dims == 0) {
        dpari_ex_add_run(&adder, x, y, term->count);
        return;
    }
    box.dims = 0;
    for (d = 0; d < term->dims; d++) {
        if (term->extent[d] == 0) {
            return;
        }
        if (term->extent[d] > 1 || box.dims + term->dims == d + 1) { /* a box has a dim */
            dpari_ex_box_add(&box, term->extent[d], term->x_stride[d] * adder.bytes,
                             (y ? y_stride[d] : term->x_stride[d]) * adder.bytes);
        }
    }
    if (term->skip) {
        dpari_ex_add_points(&adder, term, x, y, y ? y_stride : term->x_stride);
    } else {
        dpari_ex_box_merge(&box);
        dpari_ex_add_box(&adder, &box, x, y);
    }
    dpari_ex_flush(&adder);
}

DPAR_API DPARI_COLD DPARI_NOINLINE dpar_exact_term dpar_exact_sum_of(const void *x, int64_t count,
                                                                     int32_t type)
{
    dpar_exact_term term;
    dpari_zero(&term, sizeof term);
    term.type = type;
    term.x = x;
    term.count = count;
    return term;
}

DPAR_API DPARI_COLD DPARI_NOINLINE dpar_exact_term dpar_exact_dot_of(const void *x, const void *y,
                                                                     int64_t count, int32_t type)
{
    dpar_exact_term term = dpar_exact_sum_of(x, count, type);
    term.kind = DPAR_EXACT_DOT;
    term.y = y;
    return term;
}

DPAR_API DPARI_COLD DPARI_NOINLINE dpar_exact_term dpar_exact_norm_of(const void *x, int64_t count,
                                                                      int32_t type)
{
    dpar_exact_term term = dpar_exact_sum_of(x, count, type);
    term.kind = DPAR_EXACT_NORM;
    return term;
}

DPAR_API dpar_status dpar_exact_add_term(dpar_exact *sum, const dpar_exact_term *term)
{
    if (!sum || !term || dpari_ex_check(term, NULL) != DPAR_OK) {
        return DPAR_E_ARG;
    }
    dpari_ex_add_checked(sum, term);
    return DPAR_OK;
}

DPAR_API dpar_status dpar_exact_add(dpar_exact *sum, const void *x, int64_t count, int32_t type)
{
    const dpar_exact_term term = dpar_exact_sum_of(x, count, type);
    return dpar_exact_add_term(sum, &term);
}

DPAR_API dpar_status dpar_exact_add_dot(dpar_exact *sum, const void *x, const void *y,
                                        int64_t count, int32_t type)
{
    const dpar_exact_term term = dpar_exact_dot_of(x, y, count, type);
    return dpar_exact_add_term(sum, &term);
}

/* ==== exact/exact_ranks.c ==== */

/* Computes terms over the ranks of a communicator. Each rank adds its elements to sums of its own,
 * normalizes them, and an all-reduce of integers adds the words that the types can reach. A last
 * word counts the ranks that found a wrong argument, so that all ranks fail then. */

enum { DPARI_EX_SPECIAL = DPAR_EXACT_WORDS - DPAR_EXACT_DIGITS };

/* The words of several sums, and the number of ranks that have failed. */
typedef struct dpari_ex_message {
    int64_t word[DPAR_EXACT_TERMS * DPAR_EXACT_WORDS + 1];
    int64_t words;
    uint64_t hash; /* of what all ranks must pass */
} dpari_ex_message;

/* Copies words between a sum and a message, from digit `first` to the one before `last`. */
static void dpari_ex_copy(dpar_exact *sum, dpari_ex_message *message, int32_t first, int32_t last,
                          int into_message)
{
    int32_t d;
    for (d = first; d < DPAR_EXACT_WORDS; d++) {
        d = d == last ? DPAR_EXACT_DIGITS : d;
        if (into_message) {
            message->word[message->words++] = sum->word[d];
        } else {
            sum->word[d] = message->word[message->words++];
        }
    }
}

/* Adds a message over all ranks. If a rank has failed, all ranks return an error. */
static DPARI_COLD dpar_status dpari_ex_reduce(dpar_comm *comm, dpari_ex_message *message,
                                              dpar_status status, dpar_why *why)
{
    dpar_call call;
    dpar_status posted;
    message->word[message->words++] = status < 0;
    dpari_zero(&call, sizeof call);
    call.kind = DPAR_CALL_ALL_REDUCE;
    call.type = DPAR_I64;
    call.op = DPAR_SUM;
    call.in = message->word;
    call.out = message->word;
    call.count = message->words;
    posted = dpari_post_alike(comm, &call, message->hash,
                              "exact: kinds, types or numbers of terms differ", NULL);
    if (posted < 0) {
        return posted;
    }
    if (message->word[message->words - 1] != 0) {
        status = dpari_agree(comm, status, why);
        return dpari_repeat(status, &comm->why, why->text);
    }
    return DPAR_OK;
}

/* Computes at most DPAR_EXACT_TERMS terms. Returns their number in *done. */
static DPARI_COLD dpar_status dpari_ex_some(dpar_comm *comm, dpar_status status, dpar_why *why,
                                            const dpar_exact_term *terms, int32_t count,
                                            double *results)
{
    dpari_ex_message message;
    dpar_exact sum;
    int32_t i, first, last;
    message.words = 0;
    message.hash = dpari_hash(0, count);
    for (i = 0; i < count; i++) {
        const dpar_exact_term *term = &terms[i];
        message.hash = dpari_hash(dpari_hash(message.hash, term->kind), term->type);
        if (dpari_ex_format_of(term->type).bytes == 0) {
            continue; /* this rank has failed */
        }
        dpari_zero(&sum, sizeof sum);
        if (status == DPAR_OK) {
            dpar_exact_add_term(&sum, term);
        }
        dpari_ex_range(term->type, term->kind != DPAR_EXACT_SUM, &first, &last);
        dpari_ex_carry(sum.word, first, last);
        dpari_ex_copy(&sum, &message, first, last, 1);
    }
    status = dpari_ex_reduce(comm, &message, status, why);
    if (status < 0) {
        return status;
    }
    message.words = 0;
    for (i = 0; i < count; i++) {
        const dpar_exact_term *term = &terms[i];
        dpari_ex_range(term->type, term->kind != DPAR_EXACT_SUM, &first, &last);
        dpari_zero(&sum, sizeof sum);
        dpari_ex_copy(&sum, &message, first, last, 0);
        results[i] = term->kind == DPAR_EXACT_NORM ? dpar_exact_root(&sum, term->type)
                                                   : dpar_exact_result(&sum, term->type);
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_ex_many(dpar_comm *comm, dpar_status status,
                                                    dpar_why *why, const dpar_exact_term *terms,
                                                    int32_t count, double *results)
{
    int32_t i;
    if (!terms || count < 0) {
        count = 0;
    }
    for (i = 0; i < count && status == DPAR_OK; i++) {
        status = dpari_ex_check(&terms[i], why);
    }
    if (status == DPAR_OK && !results) {
        status = dpari_wrong(why, "exact: the address of the results is NULL");
    }
    i = 0;
    do {
        const int32_t some = (int32_t)dpari_least(count - i, DPAR_EXACT_TERMS);
        status = dpari_ex_some(comm, status, why, terms + i, some, results + i);
        i += some;
    } while (status == DPAR_OK && i < count);
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_exact_many(dpar_comm *comm, const dpar_exact_term *terms,
                                                int32_t count, double *results)
{
    dpar_status status = DPAR_OK;
    dpar_why why;
    if (!comm) {
        return DPAR_E_ARG;
    }
    if (count < 0 || (count > 0 && !terms)) {
        status =
            dpari_wrong(&why, "exact: %d terms at %s: count must be 0 or more, and terms not NULL",
                        count, terms ? "an address" : "NULL");
    }
    return dpari_ex_many(comm, status, &why, terms, count, results);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_sum(dpar_comm *comm, const void *x, int64_t count,
                                               int32_t type, double *sum)
{
    const dpar_exact_term term = dpar_exact_sum_of(x, count, type);
    return dpar_exact_many(comm, &term, 1, sum);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_dot(dpar_comm *comm, const void *x, const void *y,
                                               int64_t count, int32_t type, double *dot)
{
    const dpar_exact_term term = dpar_exact_dot_of(x, y, count, type);
    return dpar_exact_many(comm, &term, 1, dot);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_norm(dpar_comm *comm, const void *x, int64_t count,
                                                int32_t type, double *norm)
{
    const dpar_exact_term term = dpar_exact_norm_of(x, count, type);
    return dpar_exact_many(comm, &term, 1, norm);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_all_reduce(dpar_comm *comm, dpar_exact *sums,
                                                      int32_t count)
{
    dpar_status status = DPAR_OK;
    dpar_why why;
    int32_t i, at = 0;
    if (!comm) {
        return DPAR_E_ARG;
    }
    if (count < 0 || (count > 0 && !sums)) {
        status =
            dpari_wrong(&why, "exact: %d sums at %s: count must be 0 or more, and sums not NULL",
                        count, sums ? "an address" : "NULL");
        count = 0;
    }
    do {
        const int32_t some = (int32_t)dpari_least(count - at, DPAR_EXACT_TERMS);
        dpari_ex_message message;
        message.words = 0;
        message.hash = dpari_hash(1, count);
        for (i = at; i < at + some; i++) {
            dpar_exact_normalize(&sums[i]);
            dpari_ex_copy(&sums[i], &message, 0, DPAR_EXACT_DIGITS, 1);
        }
        status = dpari_ex_reduce(comm, &message, status, &why);
        message.words = 0;
        for (i = at; i < at + some && status == DPAR_OK; i++) {
            dpari_ex_copy(&sums[i], &message, 0, DPAR_EXACT_DIGITS, 0);
            dpar_exact_normalize(&sums[i]);
        }
        at += some;
    } while (status == DPAR_OK && at < count);
    return status;
}

#endif /* DPAR_EXACT_IMPLEMENTATION */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_EXACT_IMPLEMENTATION)) && \
    defined(DPAR_HALO_H) && !defined(DPAR_EXACT_GRID_DONE)
#define DPAR_EXACT_GRID_DONE

/* ==== exact/exact_grid.c ==== */

/* Describes the own points of an array of a grid as a box, whose last dim is for components. */

/* Describes the points of x, and of y if it is not NULL. first: first component, of `count`. */
static DPARI_COLD dpar_status dpari_ex_grid_box(const dpar_grid *grid, const dpar_grid_field *field,
                                                int32_t first, int32_t count, dpar_exact_term *term)
{
    dpar_grid_part part;
    int64_t start = 0;
    int32_t d;
    const dpar_status status = dpar_grid_block(grid, field, &part);
    if (status < 0) {
        return status;
    }
    term->dims = grid->dims + 1;
    for (d = 0; d < grid->dims; d++) {
        term->extent[d] = part.count[d];
        term->x_stride[d] = term->y_stride[d] = part.stride[d];
        start += part.local_start[d] * part.stride[d];
    }
    term->extent[d] = count;
    term->x_stride[d] = term->y_stride[d] = part.component_stride;
    if (!dpari_gx_desc_of(grid)->array_start) {
        start = 0;
    }
    start = (start + first * part.component_stride) * dpar_type_bytes(term->type);
    if (term->x) {
        term->x = (const unsigned char *)term->x + start;
    }
    if (term->y) {
        term->y = (const unsigned char *)term->y + start;
    }
    return DPAR_OK;
}

static int32_t dpari_ex_components(const dpar_grid_field *field)
{
    return field && field->components > 0 ? field->components : 1;
}

/* Computes one term over all components. */
static DPARI_COLD dpar_status dpari_ex_grid_one(dpar_grid *grid, dpar_exact_term term,
                                                const dpar_grid_field *field, double *result)
{
    dpar_status status;
    dpar_why why;
    if (!grid || !grid->comm) {
        return DPAR_E_ARG;
    }
    status = dpari_ex_grid_box(grid, field, 0, dpari_ex_components(field), &term);
    if (status < 0) {
        (void)dpari_say(status, &why, "exact: the grid does not allow this field");
    }
    return dpari_ex_many(grid->comm, status, &why, &term, 1, result);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_grid_sum(dpar_grid *grid, const void *x, int32_t type,
                                                    const dpar_grid_field *field, double *sums)
{
    const int32_t components = dpari_ex_components(field);
    dpar_exact_term terms[DPAR_EXACT_TERMS];
    dpar_status status = DPAR_OK;
    dpar_why why;
    int32_t first, i;
    if (!grid || !grid->comm) {
        return DPAR_E_ARG;
    }
    for (first = 0; first < components && status == DPAR_OK; first += DPAR_EXACT_TERMS) {
        const int32_t count = (int32_t)dpari_least(components - first, DPAR_EXACT_TERMS);
        for (i = 0; i < count; i++) {
            dpar_status boxed;
            terms[i] = dpar_exact_sum_of(x, 0, type);
            boxed = dpari_ex_grid_box(grid, field, first + i, 1, &terms[i]);
            if (boxed < 0) {
                status = dpari_say(boxed, &why, "exact: the grid does not allow this field");
            }
        }
        status = dpari_ex_many(grid->comm, status, &why, terms, count, sums ? sums + first : NULL);
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_exact_grid_dot(dpar_grid *grid, const void *x, const void *y,
                                                    int32_t type, const dpar_grid_field *field,
                                                    double *dot)
{
    return dpari_ex_grid_one(grid, dpar_exact_dot_of(x, y, 0, type), field, dot);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_grid_norm(dpar_grid *grid, const void *x, int32_t type,
                                                     const dpar_grid_field *field, double *norm)
{
    return dpari_ex_grid_one(grid, dpar_exact_norm_of(x, 0, type), field, norm);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_grid_term(const dpar_grid *grid, const void *x,
                                                     int32_t type, const dpar_grid_field *field,
                                                     dpar_exact_term *term)
{
    dpar_exact_term made = dpar_exact_sum_of(x, 0, type);
    const dpar_status status =
        term ? dpari_ex_grid_box(grid, field, 0, dpari_ex_components(field), &made) : DPAR_E_ARG;
    if (status == DPAR_OK) {
        *term = made;
    }
    return status;
}

#endif /* DPAR_HALO_H */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_EXACT_IMPLEMENTATION)) && \
    defined(DPAR_POINTS_H) && !defined(DPAR_EXACT_POINTS_DONE)
#define DPAR_EXACT_POINTS_DONE

/* ==== exact/exact_points.c ==== */

/* Describes the own values of a vector as a box of points and components. In a mixed array the box
 * has all places, and the term skips those that an exchange receives. */

static void dpari_ex_points_strides(const dpar_points_field *field, int64_t *stride)
{
    stride[0] = dpari_pt_stride(field);
    stride[1] = dpari_most(field->component_stride, 1);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_points_term(const dpar_points *points,
                                                       const dpar_points_field *x,
                                                       const dpar_points_field *y,
                                                       dpar_exact_term *term, dpar_why *why)
{
    dpari_points *plan;
    if (!points || !x || !term) {
        return dpari_wrong(why, "exact: points, x or term is NULL");
    }
    plan = dpari_pt_of(points);
    if (plan->shared.memory) {
        return dpari_wrong(why, "exact: a plan of shared ids has no own values");
    }
    if (x->components < 0) {
        return dpari_wrong(why, "exact: components is %d, but must not be negative", x->components);
    }
    if (y && (y->type != x->type || dpari_pt_components(y) != dpari_pt_components(x))) {
        return dpari_wrong(
            why,
            "exact: x has %d components of %s, y has %d of %s, but these must be the "
            "same",
            x->components, dpar_type_name(x->type), y->components, dpar_type_name(y->type));
    }
    *term = dpar_exact_sum_of(x->data, 0, x->type);
    term->dims = 2;
    term->extent[0] = points->own_count;
    term->extent[1] = dpari_pt_components(x);
    dpari_ex_points_strides(x, term->x_stride);
    if (y) {
        term->y = y->data;
        dpari_ex_points_strides(y, term->y_stride);
    }
    if (plan->mixed) {
        term->extent[0] += points->ghost_count;
        term->skip = plan->received;
    }
    return DPAR_OK;
}

/* Computes one term over all components. */
static DPARI_COLD dpar_status dpari_ex_points_one(dpar_points *points, const dpar_points_field *x,
                                                  const dpar_points_field *y, int32_t kind,
                                                  double *result)
{
    dpar_exact_term term = dpar_exact_sum_of(NULL, 0, x ? x->type : DPAR_TYPE_NONE);
    dpar_status status;
    dpar_why why;
    if (!points || !points->comm) {
        return DPAR_E_ARG;
    }
    status = dpar_exact_points_term(points, x, y, &term, &why);
    term.kind = kind;
    if (status == DPAR_OK && kind == DPAR_EXACT_DOT && !y) {
        status = dpari_wrong(&why, "exact: y is NULL");
    }
    return dpari_ex_many(points->comm, status, &why, &term, 1, result);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_points_sum(dpar_points *points,
                                                      const dpar_points_field *x, double *sums)
{
    const int32_t components = x ? dpari_pt_components(x) : 1;
    dpar_exact_term terms[DPAR_EXACT_TERMS];
    dpar_exact_term all = dpar_exact_sum_of(NULL, 0, x ? x->type : DPAR_TYPE_NONE);
    dpar_status status;
    dpar_why why;
    int32_t first = 0, i;
    if (!points || !points->comm) {
        return DPAR_E_ARG;
    }
    status = dpar_exact_points_term(points, x, NULL, &all, &why);
    do {
        const int32_t count = (int32_t)dpari_least(components - first, DPAR_EXACT_TERMS);
        for (i = 0; i < count; i++) {
            terms[i] = all;
            terms[i].extent[1] = 1;
            if (all.x) {
                terms[i].x = (const unsigned char *)all.x +
                             (first + i) * all.x_stride[1] * dpar_type_bytes(all.type);
            }
        }
        status =
            dpari_ex_many(points->comm, status, &why, terms, count, sums ? sums + first : NULL);
        first += count;
    } while (status == DPAR_OK && first < components);
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_exact_points_dot(dpar_points *points,
                                                      const dpar_points_field *x,
                                                      const dpar_points_field *y, double *dot)
{
    return dpari_ex_points_one(points, x, y, DPAR_EXACT_DOT, dot);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_points_norm(dpar_points *points,
                                                       const dpar_points_field *x, double *norm)
{
    return dpari_ex_points_one(points, x, NULL, DPAR_EXACT_NORM, norm);
}

#endif /* DPAR_POINTS_H */
