/* SPDX-License-Identifier: MIT-0 */
/* Tests what reductions guarantee bit by bit: rank order where requested, NaN in MAX and MIN, a
 * single rounding of 16-bit floats. */
#include "dpar_mpi.h"
#include "check.h"
#include "bf16.h"
#include "f16.h"
#include <stdlib.h>

static dpar_comm *c;

/* Returns numbers of very different magnitudes, whose sum depends on the order. */
static float uneven(int64_t rank, int64_t i)
{
    uint32_t h = (uint32_t)(rank * 7919 + i) * 2654435761u;
    float x = (float)(h >> 8) / 16777216.0f + 0.25f;
    return (h & 1 ? x : -x) * (h & 2 ? 1e6f : 1e-3f);
}

/* Compares a reduction with the serial sum in rank order, which is the definition. */
static void rank_order(int64_t n, int32_t kind)
{
    int64_t all = kind == DPAR_CALL_REDUCE_SCATTER ? n * c->size : n, bad = 0, i;
    int64_t first = kind == DPAR_CALL_REDUCE_SCATTER ? n * c->rank : 0;
    float *in = (float *)malloc((size_t)(all + 1) * sizeof *in);
    float *out = (float *)malloc((size_t)(n + 1) * sizeof *out);
    for (i = 0; i < all; i++) {
        in[i] = uneven(c->rank, i);
    }
    if (kind == DPAR_CALL_ALL_REDUCE) {
        CHECK_INT(dpar_all_reduce(c, in, out, n, DPAR_F32, DPAR_SUM, NULL), DPAR_OK);
    } else if (kind == DPAR_CALL_REDUCE) {
        CHECK_INT(dpar_reduce(c, in, out, n, DPAR_F32, DPAR_SUM, c->size - 1, NULL), DPAR_OK);
    } else {
        CHECK_INT(dpar_reduce_scatter(c, in, out, n, DPAR_F32, DPAR_SUM, NULL), DPAR_OK);
    }
    for (i = 0; i < n && (kind != DPAR_CALL_REDUCE || c->rank == c->size - 1); i++) {
        float sum = uneven(0, first + i);
        for (int32_t r = 1; r < c->size; r++) {
            sum += uneven(r, first + i);
        }
        bad += memcmp(&sum, &out[i], sizeof sum) != 0;
    }
    CHECK_INT(bad, 0);
    free(in);
    free(out);
}

/* Tests MAX and MIN of n floats, where each rank has one NaN at another position. */
static void nans(int32_t op, int32_t type, int64_t n)
{
    double *d = (double *)calloc((size_t)n, 8);
    float *f = (float *)d;
    uint16_t *h = (uint16_t *)d;
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++) {
        float x = i % c->size == c->rank && i < 2 * c->size ? (float)NAN : (float)(c->rank + i % 7);
        if (type == DPAR_F64) {
            d[i] = (double)x;
        } else if (type == DPAR_F32) {
            f[i] = x;
        } else {
            h[i] = type == DPAR_F16 ? f16_of(x) : bf16_of(x);
        }
    }
    CHECK_INT(dpar_all_reduce(c, d, d, n, type, op, NULL), DPAR_OK);
    for (int64_t i = 0; i < n; i++) {
        double x = type == DPAR_F64   ? d[i]
                   : type == DPAR_F32 ? (double)f[i]
                   : type == DPAR_F16 ? (double)f16_value(h[i])
                                      : (double)bf16_value(h[i]);
        double want = (double)((op == DPAR_MAX ? c->size - 1 : 0) + i % 7);
        wrong += i < 2 * c->size ? x == x : x != want;
    }
    CHECK_INT(wrong, 0);
    free(d);
}

/* Sums 1 + k * 2^-8, where each summand is exact in bf16 and the sum is rounded once. With a
 * rounding after each step 256 + 1 + 1 would remain 256; in f32 it is 258, which is exact in
 * bf16. */
static void one_rounding(void)
{
    uint16_t x[5], y[5];
    for (int i = 0; i < 5; i++) {
        x[i] = bf16_of(c->rank == 0 ? 256.0f : 1.0f);
    }
    CHECK_INT(dpar_all_reduce(c, x, y, 5, DPAR_BF16, DPAR_SUM, NULL), DPAR_OK);
    for (int i = 0; i < 5; i++) {
        CHECK_INT(y[i], bf16_of((float)(255 + c->size)));
    }
    if (c->size == 3) {
        CHECK_INT(y[0], 0x4381); /* 258 = 1.0078125 * 2^8 */
    }
}

int main(int argc, char **argv)
{
    static const int64_t sizes[] = {1, 5, 100, 5000, (1 << 20) + 12345};
    static const int32_t kinds[] = {DPAR_CALL_ALL_REDUCE, DPAR_CALL_REDUCE,
                                    DPAR_CALL_REDUCE_SCATTER};
    dpar_mpi_desc options;
    dpar_why why;
    int failed;
    MPI_Init(&argc, &argv);
    memset(&options, 0, sizeof options);
    options.timeout_s = 60;
    for (int k = 0; k < 2; k++) {
        options.rank_order = k == 0;
        if (dpar_mpi_make(MPI_COMM_WORLD, &options, &c, &why) < 0) {
            puts(why.text);
            return 1;
        }
        for (int i = 0; i < 15 && options.rank_order; i++) {
            int64_t n = sizes[i / 3];
            rank_order(i == 14 ? n / c->size : n, kinds[i % 3]);
        }
        for (int type = 0; type < 4; type++) {
            static const int32_t types[] = {DPAR_F64, DPAR_F32, DPAR_F16, DPAR_BF16};
            nans(DPAR_MAX, types[type], 40);
            nans(DPAR_MIN, types[type], 40);
            nans(DPAR_MAX, types[type], 20000);
        }
        one_rounding();
        CHECK_INT(dpar_comm_free(c), DPAR_OK);
    }
    failed = CHECK_DONE();
    MPI_Finalize();
    return failed;
}
