/* SPDX-License-Identifier: MIT-0 */
/* gpt_products - the matrix product of gpt_host.h for vectors of GPT_BYTES. gpt_loops.h includes it
 * once per width.
 *
 * c is computed in tiles of GPT_ROWS_OF_TILE rows and GPT_LANES_OF_TILE vectors of columns. The
 * sums of a tile stay in registers while k runs: each step loads the vectors of a row of b once,
 * for all rows of the tile, and each number of a once, for all its columns. So a step of 8 rows and
 * 2 vectors has 16 multiply-adds for 10 loads, and the CPU is limited by the former.
 *
 * The columns of b that a tile needs are first copied ("packed") side by side, for at most
 * GPT_DEEP values of k. That is 16 or 32 KiB, which stay in the first-level cache for all tiles
 * above each other. a is read where it is: from its rows, or along its columns if it is transposed.
 * A number of c is always the sum over k in ascending order, GPT_DEEP at a time, whatever its place
 * in a tile. */

/* A vector of the model's numbers, and integers of the same size. */
#if GPT_BYTES > 0
typedef gpt_real GPT_NAME(gpt_lanes) __attribute__((vector_size(GPT_BYTES)));
#else
typedef gpt_real GPT_NAME(gpt_lanes);
#endif
enum {
    GPT_NAME(GPT_LANES) = (int)(sizeof(GPT_NAME(gpt_lanes)) / sizeof(gpt_real)),
    GPT_NAME(GPT_COLUMNS) = GPT_LANES_OF_TILE * GPT_NAME(GPT_LANES) /* of a tile */
};

#ifndef GPT_PRODUCTS_H
#define GPT_PRODUCTS_H
enum {
    GPT_DEEP = 1024 / (int)sizeof(gpt_real), /* values of k that are summed at a time */
    GPT_AHEAD = 8 /* rows of k by which a transposed a and b are prefetched (measured, AVX-512) */
};

#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)
#define GPT_SHUFFLES 1
typedef gpt_real gpt_four __attribute__((vector_size(4 * sizeof(gpt_real))));
#else
#define GPT_SHUFFLES 0
#endif

/* Prefetches element i, which may be beyond the end of the array. */
#if defined(__GNUC__)
#define gpt_prefetch(array, i)                                                                     \
    __builtin_prefetch((const void *)((uintptr_t)(array) + (uintptr_t)(i) * sizeof *(array)))
#else
#define gpt_prefetch(array, i) ((void)(i))
#endif
#endif

/* to[d][j] = from[j][d] for four d and four j. The lines of `from` are `line` apart, and those of
 * `to` as long as a tile. */
GPT_INLINE GPT_TARGET void GPT_NAME(gpt_transpose)(const gpt_real *from, int64_t line, gpt_real *to)
{
#if GPT_SHUFFLES
    gpt_four row[4], low[2], high[2];
    int i;
    GPT_UNROLL
    for (i = 0; i < 4; i++) {
        memcpy(&row[i], from + i * line, sizeof row[i]);
    }
    GPT_UNROLL
    for (i = 0; i < 2; i++) {
        low[i] = __builtin_shufflevector(row[2 * i], row[2 * i + 1], 0, 4, 1, 5);
        high[i] = __builtin_shufflevector(row[2 * i], row[2 * i + 1], 2, 6, 3, 7);
    }
    row[0] = __builtin_shufflevector(low[0], low[1], 0, 1, 4, 5);
    row[1] = __builtin_shufflevector(low[0], low[1], 2, 3, 6, 7);
    row[2] = __builtin_shufflevector(high[0], high[1], 0, 1, 4, 5);
    row[3] = __builtin_shufflevector(high[0], high[1], 2, 3, 6, 7);
    GPT_UNROLL
    for (i = 0; i < 4; i++) {
        memcpy(to + i * GPT_NAME(GPT_COLUMNS), &row[i], sizeof row[i]);
    }
#else
    int d, j;
    for (d = 0; d < 4; d++) {
        for (j = 0; j < 4; j++) {
            to[d * GPT_NAME(GPT_COLUMNS) + j] = from[j * line + d];
        }
    }
#endif
}

/* Packs to[d][j] = op(b)[k + d][first + j] for d < deep, with 0 for columns that do not exist. */
static GPT_TARGET void GPT_NAME(gpt_pack)(const dpar_matmul *product, int64_t k, int64_t deep,
                                          int64_t first, gpt_real *to)
{
    const int64_t wide = GPT_NAME(GPT_COLUMNS), line = product->ldb;
    const int64_t n = product->n - first < wide ? product->n - first : wide;
    const gpt_real *b = (const gpt_real *)product->b;
    int64_t d, j;
    if (!product->transpose_b) {
        b += k * line + first;
        for (d = 0; d < deep && n == wide; d++) {
            gpt_prefetch(b, (d + GPT_AHEAD) * line);
            memcpy(to + d * wide, b + d * line, sizeof(gpt_real) * GPT_NAME(GPT_COLUMNS));
        }
        for (d = 0; d < deep && n < wide; d++) {
            memset(to + d * wide, 0, sizeof(gpt_real) * GPT_NAME(GPT_COLUMNS));
            memcpy(to + d * wide, b + d * line, sizeof(gpt_real) * (size_t)n);
        }
        return;
    }
    b += first * line + k;
    for (j = 0; j < wide; j += 4) {
        for (d = 0; d < deep; d += 4) {
            int64_t x, y;
            if (d + 4 <= deep && j + 4 <= n) {
                GPT_NAME(gpt_transpose)(b + j * line + d, line, to + d * wide + j);
                continue;
            }
            for (x = d; x < deep && x < d + 4; x++) {
                for (y = j; y < wide && y < j + 4; y++) {
                    to[x * wide + y] = y < n ? b[y * line + x] : (gpt_real)0;
                }
            }
        }
    }
}

/* Computes the sums of a tile. Row i of a begins at row[i], and its numbers are `step` apart. */
GPT_INLINE GPT_TARGET void GPT_NAME(gpt_tile)(const gpt_real *const *row, int64_t step,
                                              const gpt_real *packed, int64_t deep,
                                              GPT_NAME(gpt_lanes) * to)
{
    enum { LINES = GPT_ROWS_OF_TILE, EACH = GPT_LANES_OF_TILE };
    const GPT_NAME(gpt_lanes) none = {0};
    GPT_NAME(gpt_lanes) sum[LINES * EACH], right[EACH];
    int64_t d, at = 0;
    int i, j;
    GPT_UNROLL
    for (i = 0; i < LINES * EACH; i++) {
        sum[i] = none;
    }
    for (d = 0; d < deep; d++) {
        GPT_UNROLL
        for (j = 0; j < EACH; j++) {
            memcpy(&right[j], packed + j * GPT_NAME(GPT_LANES), sizeof right[j]);
        }
        GPT_UNROLL
        for (i = 0; i < LINES; i++) {
            const gpt_real left = row[i][at];
            GPT_UNROLL
            for (j = 0; j < EACH; j++) {
                sum[i * EACH + j] += left * right[j];
            }
        }
        gpt_prefetch(row[0], at + GPT_AHEAD * step);
        at += step;
        packed += GPT_NAME(GPT_COLUMNS);
    }
    GPT_UNROLL
    for (i = 0; i < LINES * EACH; i++) {
        to[i] = sum[i];
    }
}

/* Stores a row of sums: c = alpha sum, or c = alpha sum + beta c unless `fresh`. */
GPT_INLINE GPT_TARGET void GPT_NAME(gpt_store)(const GPT_NAME(gpt_lanes) * sum, gpt_real alpha,
                                               gpt_real beta, int fresh, gpt_real *c,
                                               int64_t columns)
{
    gpt_real some[GPT_NAME(GPT_COLUMNS)];
    int64_t j;
    int i;
    if (columns == GPT_NAME(GPT_COLUMNS)) {
        for (i = 0; i < GPT_LANES_OF_TILE; i++) {
            gpt_real *to = c + i * GPT_NAME(GPT_LANES);
            GPT_NAME(gpt_lanes) x = alpha * sum[i], before;
            if (!fresh) {
                memcpy(&before, to, sizeof before);
                x += beta * before;
            }
            memcpy(to, &x, sizeof x);
        }
        return;
    }
    memcpy(some, sum, sizeof some);
    for (j = 0; j < columns; j++) {
        c[j] = fresh ? alpha * some[j] : alpha * some[j] + beta * c[j];
    }
}

/* Computes the columns first, first + 1, ... of a tile's width of c, from the packed columns of b:
 * the products for k, k + 1, ..., k + deep - 1 are added to those for smaller k. */
static GPT_TARGET void GPT_NAME(gpt_panel)(const dpar_matmul *product, int64_t k, int64_t deep,
                                           int64_t first, const gpt_real *packed)
{
    enum { LINES = GPT_ROWS_OF_TILE, EACH = GPT_LANES_OF_TILE, WIDE = GPT_NAME(GPT_COLUMNS) };
    const int64_t columns = product->n - first < WIDE ? product->n - first : (int64_t)WIDE;
    const int64_t along = product->transpose_a ? 1 : product->lda;
    const int64_t step = product->transpose_a ? product->lda : 1;
    const gpt_real *a = (const gpt_real *)product->a + k * step, *row[LINES];
    const gpt_real alpha = (gpt_real)product->alpha;
    const gpt_real beta = k > 0 ? (gpt_real)1 : (gpt_real)product->beta;
    const int fresh = k == 0 && !(product->beta < 0.0 || product->beta > 0.0);
    gpt_real *c = (gpt_real *)product->c + first;
    GPT_NAME(gpt_lanes) sum[LINES * EACH];
    int64_t i;
    int line;
    for (i = 0; i < product->m; i += LINES) {
        const int64_t lines = product->m - i < LINES ? product->m - i : (int64_t)LINES;
        for (line = 0; line < LINES; line++) { /* the last row replaces missing ones */
            const int64_t there = i + (line < lines ? line : lines - 1);
            row[line] = a + there * along;
            gpt_prefetch(c, there * product->ldc);
            gpt_prefetch(c, there * product->ldc + WIDE - 1);
        }
        GPT_NAME(gpt_tile)(row, step, packed, deep, sum);
        for (line = 0; line < lines; line++) {
            GPT_NAME(gpt_store)
            (sum + line * EACH, alpha, beta, fresh, c + (i + line) * product->ldc, columns);
        }
    }
}

/* Computes c = alpha op(a) op(b) + beta c. c is not read if beta is 0. */
static GPT_TARGET void GPT_NAME(gpt_product)(const dpar_matmul *product)
{
    gpt_real packed[GPT_DEEP * GPT_NAME(GPT_COLUMNS)];
    int64_t k = 0, j;
    do {
        const int64_t deep = product->k - k < GPT_DEEP ? product->k - k : (int64_t)GPT_DEEP;
        for (j = 0; j < product->n; j += GPT_NAME(GPT_COLUMNS)) {
            GPT_NAME(gpt_pack)(product, k, deep, j, packed);
            GPT_NAME(gpt_panel)(product, k, deep, j, packed);
        }
        k += deep;
    } while (k < product->k);
}
