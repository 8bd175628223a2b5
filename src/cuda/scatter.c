/* SPDX-License-Identifier: MIT-0 */
/* Adds rows to rows that an index selects: dpar_mem_layers.scatter.
 *
 * Rows are added in windows, one after the other. Each row of a window has a key, which consists of
 * its target and its number in the window. Each block sorts a run of keys in shared memory, and the
 * place of a key among all keys is the sum of its places in all runs, which binary searches find.
 * Then the thread of a target's first key adds all rows of the target in order, which gives the
 * same bits whatever the launch. Targets of many rows, which are called hot, are processed
 * separately: several blocks fetch their rows, each for some of the columns, and add them in
 * order. */
#include "operations.h"

#include "block_sums.h"
#include "four.h"
#include "rows.h"

enum {
    DPARI_CUDA_SORT = 1024,   /* keys that a block sorts */
    DPARI_CUDA_ROW_BITS = 15, /* bits of a key for the row's number; the other 49 bits hold any
                                 target */
    DPARI_CUDA_HOT = 32,      /* length of a group of keys; a target that fills a group is hot */
    DPARI_CUDA_STAGE = 128,   /* rows of a hot target that are fetched at a time */
    DPARI_CUDA_TILE = 8       /* fours of columns that a block of threads has: one column for each
                                 lane of a warp */
};

struct dpari_cuda_scatter {
    dpar_mem_scatter s;
    uint64_t *key, *merged;
    int64_t first, n; /* first row, and number of rows, of the window */
    dpari_cuda_rows r;
    int32_t span; /* keys that a block sorts, a power of two */
    int32_t even; /* 1: rows can be accessed as vectors */
};

/* The key of a row without a target is greater than all others. */
DPARI_CUDA_FN uint64_t dpari_cuda_key(int64_t target, int64_t i)
{
    return (uint64_t)(target < 0 ? -1 : target) << DPARI_CUDA_ROW_BITS | (uint64_t)i;
}

DPARI_CUDA_FN int dpari_cuda_bound(uint64_t key)
{
    return key < UINT64_C(1) << 63; /* a negative target makes the key negative */
}

/* Bitonic sort: compares pairs of keys `step` apart, and sorts stretches of `size` keys in
 * alternating directions. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_sort_kernel(DPARI_CUDA_ARGS dpari_cuda_scatter s)
{
    __shared__ uint64_t key[DPARI_CUDA_SORT];
    for (int64_t c = (int64_t)blockIdx.x * s.span; c < s.n; c += (int64_t)gridDim.x * s.span) {
        __syncthreads();
        for (int32_t k = (int32_t)threadIdx.x; k < s.span; k += DPARI_CUDA_THREADS) {
            key[k] = UINT64_MAX;
            if (c + k < s.n) {
                key[k] = dpari_cuda_key(dpari_cuda_row(s.s.index, s.first + c + k), c + k);
            }
        }
        for (int32_t size = 2; size <= s.span; size *= 2) {
            for (int32_t step = size / 2; step > 0; step /= 2) {
                __syncthreads();
                for (int32_t k = (int32_t)threadIdx.x; k < s.span / 2; k += DPARI_CUDA_THREADS) {
                    const int32_t i = 2 * k - (k & (step - 1));
                    const uint64_t a = key[i], b = key[i + step];
                    if ((a > b) == ((i & size) == 0)) {
                        key[i] = b;
                        key[i + step] = a;
                    }
                }
            }
        }
        __syncthreads();
        for (int32_t k = (int32_t)threadIdx.x; k < s.span && c + k < s.n; k += DPARI_CUDA_THREADS) {
            s.key[c + k] = key[k];
        }
    }
}

/* Computes the places of the keys. Each thread has a key. The runs are loaded into shared memory
 * one after the other, the next run while the current one is searched. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_sort_rank_kernel(DPARI_CUDA_ARGS dpari_cuda_scatter s)
{
    enum { PER = DPARI_CUDA_SORT / DPARI_CUDA_THREADS };
    __shared__ uint64_t run[DPARI_CUDA_SORT];
    const int64_t step = (int64_t)gridDim.x * DPARI_CUDA_THREADS;
    for (int64_t c = (int64_t)blockIdx.x * DPARI_CUDA_THREADS; c < s.n; c += step) {
        const uint64_t key = c + threadIdx.x < s.n ? s.key[c + threadIdx.x] : 0;
        uint64_t next[PER];
        int64_t below = 0;
        for (int64_t r = -DPARI_CUDA_SORT; r < s.n; r += DPARI_CUDA_SORT) {
            __syncthreads();
            DPARI_CUDA_UNROLL
            for (int j = 0; j < PER; j++) {
                const int32_t k = j * DPARI_CUDA_THREADS + (int32_t)threadIdx.x;
                const int64_t at = r + DPARI_CUDA_SORT + k;
                if (r >= 0) {
                    run[k] = next[j];
                }
                next[j] = at < s.n ? s.key[at] : UINT64_MAX;
            }
            __syncthreads();
            int32_t lo = 0;
            for (int32_t half = DPARI_CUDA_SORT / 2; half > 0 && r >= 0; half /= 2) {
                lo += run[lo + half - 1] < key ? half : 0;
            }
            below += r >= 0 ? lo + (run[lo] < key) : 0;
        }
        if (c + threadIdx.x < s.n) {
            s.merged[below] = key;
        }
    }
}

/* True if the target of key p fills the first complete group of DPARI_CUDA_HOT keys from p on. */
__device__ static inline int dpari_cuda_hot(const dpari_cuda_scatter &s, int64_t p)
{
    const int64_t last =
        (p + DPARI_CUDA_HOT - 1) / DPARI_CUDA_HOT * DPARI_CUDA_HOT + DPARI_CUDA_HOT - 1;
    return last < s.n && s.key[last] >> DPARI_CUDA_ROW_BITS == s.key[p] >> DPARI_CUDA_ROW_BITS;
}

/* Normalises the NaNs in results of sums, which have kept their sign and payload. */
template <typename W>
__device__ static inline void dpari_cuda_scatter_store(const dpari_cuda_scatter &s, W *to,
                                                       int64_t at, W *sum)
{
    const int32_t width = (int32_t)sizeof(W);
    dpari_cuda_four made;
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        sum[e] = dpari_cuda_plain(sum[e]);
    }
    dpari_cuda_narrow(&made, width == 8 ? DPAR_F64 : DPAR_F32, sum);
    dpari_cuda_store<0>(&made, to, at, s.s.width, width, s.even);
}

/* Loads four elements of a key's row. */
template <typename W>
__device__ static inline void dpari_cuda_scatter_load(const dpari_cuda_scatter &s, uint64_t key,
                                                      int64_t at, dpari_cuda_four *v)
{
    const int64_t i = s.first + (int64_t)(key & ((1u << DPARI_CUDA_ROW_BITS) - 1));
    dpari_cuda_load<0, sizeof(W) == 8>(v, (const W *)s.s.from + i * s.s.width, at, s.s.width,
                                       (int32_t)sizeof(W), s.even);
}

/* Adds four elements of the rows of `key`, which is key number p, and of the following keys with
 * the same target, to the target. */
template <typename W>
__device__ static inline void dpari_cuda_scatter_unit(const dpari_cuda_scatter &s, int64_t p,
                                                      uint64_t key, int64_t at)
{
    enum { AHEAD = 4 };
    const int32_t width = (int32_t)sizeof(W), type = width == 8 ? DPAR_F64 : DPAR_F32;
    const uint64_t target = key >> DPARI_CUDA_ROW_BITS;
    W *to = (W *)s.s.to + (int64_t)target * s.s.width;
    dpari_cuda_four v[AHEAD], made;
    W sum[4], x[4];
    int32_t some = AHEAD;
    dpari_cuda_load<0, sizeof(W) == 8>(&made, to, at, s.s.width, width, s.even);
    dpari_cuda_widen(&made, type, sum);
    for (; some == AHEAD && p < s.n; p += AHEAD) {
        some = 0;
        DPARI_CUDA_UNROLL
        for (int j = 0; j < AHEAD; j++) {
            const uint64_t next = p + j < s.n ? s.key[p + j] : UINT64_MAX;
            if (next >> DPARI_CUDA_ROW_BITS == target) {
                dpari_cuda_scatter_load<W>(s, next, at, &v[j]);
                some++;
            }
        }
        DPARI_CUDA_UNROLL
        for (int j = 0; j < AHEAD; j++) {
            if (j < some) {
                dpari_cuda_widen(&v[j], type, x);
                DPARI_CUDA_UNROLL
                for (int e = 0; e < 4; e++) {
                    sum[e] = dpari_cuda_add(sum[e], x[e]);
                }
            }
        }
    }
    dpari_cuda_scatter_store(s, to, at, sum);
}

/* Processes the targets that are not hot, each in the thread of its first key. */
template <typename W>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_scatter_kernel(DPARI_CUDA_ARGS dpari_cuda_scatter s)
{
    for (int64_t c = blockIdx.x; c < s.r.chunks; c += gridDim.x) {
        for (uint32_t local = threadIdx.x; local < 4 * DPARI_CUDA_THREADS;
             local += DPARI_CUDA_THREADS) {
            int64_t p, unit;
            if (!dpari_cuda_rows_at(s.r, s.n, c, local, &p, &unit)) {
                continue;
            }
            const uint64_t key = s.key[p], before = p > 0 ? s.key[p - 1] : UINT64_MAX;
            if (dpari_cuda_bound(key) &&
                key >> DPARI_CUDA_ROW_BITS != before >> DPARI_CUDA_ROW_BITS &&
                !dpari_cuda_hot(s, p)) {
                dpari_cuda_scatter_unit<W>(s, p, key, 4 * unit);
            }
        }
    }
}

template <typename W> struct alignas(16) dpari_cuda_units_of {
    W x[4];
};

/* Adds the rows of keys [begin, end) to one target, in TILE fours of columns from `first` on. A
 * thread fetches the same four of every 32nd row. While the first warp adds the rows of one stage
 * in order, a column in each lane, the rows of the next stage and the keys of the stage after it
 * are being loaded. Rows beyond the end are -0, which changes no sum. */
template <typename W>
__device__ static inline void dpari_cuda_scatter_run(const dpari_cuda_scatter &s, int64_t begin,
                                                     int64_t end, int64_t first)
{
    enum {
        STAGE = DPARI_CUDA_STAGE,
        TILE = DPARI_CUDA_TILE,
        APART = DPARI_CUDA_THREADS / TILE,
        PER = STAGE / APART,
        AHEAD = 16
    };
    __shared__ dpari_cuda_units_of<W> stage[STAGE][TILE];
    const int32_t width = (int32_t)sizeof(W), type = width == 8 ? DPAR_F64 : DPAR_F32;
    const int32_t lane = (int32_t)threadIdx.x % TILE, row = (int32_t)threadIdx.x / TILE;
    const int64_t column = first + 4 * lane, own = first + (int64_t)threadIdx.x;
    const int adds = threadIdx.x < 4 * TILE && own < s.s.width;
    W *to = (W *)s.s.to + (int64_t)(s.key[begin] >> DPARI_CUDA_ROW_BITS) * s.s.width;
    W sum = adds ? to[own] : (W)0;
    uint64_t key[PER];
    dpari_cuda_four v[PER];
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        const int64_t at = begin + row + j * APART;
        key[j] = at < end ? s.key[at] : UINT64_MAX;
    }
    for (int64_t p = begin - STAGE; p < end; p += STAGE) {
        const int64_t left = end - p < STAGE ? end - p : (int64_t)STAGE;
        const int64_t now = p < begin ? 0 : left;
        __syncthreads();
        DPARI_CUDA_UNROLL
        for (int j = 0; j < PER && p >= begin; j++) {
            W *x = stage[row + j * APART][lane].x;
            if (row + j * APART < now && column < s.s.width) {
                dpari_cuda_widen(&v[j], type, x);
            } else {
                x[0] = x[1] = x[2] = x[3] = (W)-0.0;
            }
        }
        __syncthreads();
        DPARI_CUDA_UNROLL
        for (int j = 0; j < PER; j++) {
            const int64_t at = p + 2 * STAGE + row + j * APART;
            if (key[j] != UINT64_MAX && column < s.s.width) {
                dpari_cuda_scatter_load<W>(s, key[j], column, &v[j]);
            }
            key[j] = at < end ? s.key[at] : UINT64_MAX;
        }
        for (int64_t k = 0; k < now && adds; k += AHEAD) {
            W x[AHEAD];
            DPARI_CUDA_UNROLL
            for (int j = 0; j < AHEAD; j++) {
                x[j] = stage[k + j][threadIdx.x / 4].x[threadIdx.x % 4];
            }
            DPARI_CUDA_UNROLL
            for (int j = 0; j < AHEAD; j++) {
                sum = dpari_cuda_add(sum, x[j]);
            }
        }
    }
    if (adds) {
        to[own] = dpari_cuda_plain(sum);
    }
}

/* Finds the keys of the hot target whose first complete group of DPARI_CUDA_HOT keys begins at p.
 * Each thread compares some keys, because a binary search would wait for one load after the
 * other. */
__device__ static inline void dpari_cuda_scatter_keys(const dpari_cuda_scatter &s, int64_t p,
                                                      int64_t *begin, int64_t *end)
{
    enum { BLOCKS = (1 << DPARI_CUDA_ROW_BITS) / DPARI_CUDA_HOT };
    const uint64_t target = s.key[p] >> DPARI_CUDA_ROW_BITS;
    const int32_t t = (int32_t)threadIdx.x;
    int64_t before = 0, blocks = 0, behind = 0, last;
    double both;
    if (t > 0 && t < DPARI_CUDA_HOT && t <= p) {
        before = s.key[p - t] >> DPARI_CUDA_ROW_BITS == target;
    }
    DPARI_CUDA_UNROLL
    for (int32_t k = t; k < BLOCKS; k += DPARI_CUDA_THREADS) {
        const int64_t at = p + (int64_t)k * DPARI_CUDA_HOT;
        blocks += at < s.n && s.key[at] >> DPARI_CUDA_ROW_BITS == target;
    }
    both = dpari_cuda_block_sum((double)(before * 2 * BLOCKS + blocks));
    before = (int64_t)both / (2 * BLOCKS);
    blocks = (int64_t)both % (2 * BLOCKS);
    last = p + (blocks - 1) * DPARI_CUDA_HOT;
    if (t > 0 && t < DPARI_CUDA_HOT && last + t < s.n) {
        behind = s.key[last + t] >> DPARI_CUDA_ROW_BITS == target;
    }
    *begin = p - before;
    *end = last + 1 + (int64_t)dpari_cuda_block_sum((double)behind);
}

/* Processes all hot targets. Each block finds them itself, which takes only a few loads, and
 * processes its share of their tiles of columns. */
template <typename W>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_scatter_hot_kernel(DPARI_CUDA_ARGS dpari_cuda_scatter s)
{
    enum { WORDS = (1 << DPARI_CUDA_ROW_BITS) / DPARI_CUDA_HOT / 32 };
    __shared__ uint32_t hot[WORDS]; /* a bit for each group of keys: 1 for the first group of a hot
                                       target */
    const int64_t tiles = (s.s.width + 4 * DPARI_CUDA_TILE - 1) / (4 * DPARI_CUDA_TILE);
    int64_t item = blockIdx.x; /* tiles are counted through all hot targets */
    for (int32_t k = (int32_t)threadIdx.x; k < 32 * WORDS; k += DPARI_CUDA_THREADS) {
        const int64_t p = (int64_t)k * DPARI_CUDA_HOT;
        const int is = p < s.n && dpari_cuda_bound(s.key[p]) && dpari_cuda_hot(s, p) &&
                       (k == 0 || s.key[p - DPARI_CUDA_HOT] >> DPARI_CUDA_ROW_BITS !=
                                      s.key[p] >> DPARI_CUDA_ROW_BITS);
        const uint32_t bits = __ballot_sync(0xffffffffu, is);
        if (k % 32 == 0) {
            hot[k / 32] = bits;
        }
    }
    __syncthreads();
    for (int32_t k = 0; k < 32 * WORDS; k++) {
        const int64_t p = (int64_t)k * DPARI_CUDA_HOT;
        if (hot[k / 32] >> (k % 32) == 0) { /* no more bits in this word */
            k |= 31;
        } else if (hot[k / 32] >> (k % 32) & 1u) {
            if (item < tiles) {
                int64_t begin, end;
                dpari_cuda_scatter_keys(s, p, &begin, &end);
                for (; item < tiles; item += gridDim.x) {
                    dpari_cuda_scatter_run<W>(s, begin, end, item * 4 * DPARI_CUDA_TILE);
                }
            }
            item -= tiles;
        }
    }
}

/* Adds the rows of one window. */
static dpar_status dpari_cuda_scatter_now(dpar_cuda *gpu, dpari_cuda_scatter *s)
{
    const int64_t most = (s->n + DPARI_CUDA_SORT - 1) / DPARI_CUDA_SORT;
    dpar_status st;
    s->span = 2;
    while (s->span < s->n && s->span < DPARI_CUDA_SORT) {
        s->span *= 2;
    }
    st = dpari_cuda_launch(gpu, "scatter", dpari_cuda_sort_kernel, *s, dpari_cuda_wave(gpu, most));
    if (st == DPAR_OK && s->n > s->span) {
        uint64_t *key = s->merged;
        st = dpari_cuda_launch(gpu, "scatter", dpari_cuda_sort_rank_kernel, *s,
                               dpari_cuda_units_blocks(gpu, s->n));
        s->merged = s->key;
        s->key = key;
    }
    if (st == DPAR_OK && s->n >= DPARI_CUDA_HOT) {
        st = dpari_cuda_launch(gpu, "scatter",
                               s->s.type == DPAR_F64 ? dpari_cuda_scatter_hot_kernel<double>
                                                     : dpari_cuda_scatter_hot_kernel<float>,
                               *s, dpari_cuda_wave(gpu, 4 * (int64_t)gpu->multiprocessors));
    }
    s->r = dpari_cuda_rows_of(s->n, (s->s.width + 3) / 4);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_cuda_launch(gpu, "scatter",
                             s->s.type == DPAR_F64 ? dpari_cuda_scatter_kernel<double>
                                                   : dpari_cuda_scatter_kernel<float>,
                             *s, dpari_cuda_each(gpu, s->r.chunks));
}

DPARI_INTERNAL dpar_status dpari_cuda_scatter_add(void *ctx, const dpar_mem_scatter *scatter)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    dpari_cuda_scatter s;
    int64_t window = gpu->scratch_bytes / 16;
    dpar_status st = DPAR_OK;
    if (scatter->rows < 0 || scatter->width < 0 ||
        (scatter->type != DPAR_F64 && scatter->type != DPAR_F32) ||
        !dpari_cuda_index_fine(&scatter->index, scatter->rows) ||
        (scatter->rows > 0 && scatter->width > 0 &&
         (scatter->to == NULL || scatter->from == NULL))) {
        return dpari_cuda_wrong(gpu, "scatter");
    }
    if (scatter->width == 0) {
        return DPAR_OK;
    }
    memset(&s, 0, sizeof s);
    s.s = *scatter;
    s.key = (uint64_t *)gpu->scratch;
    window = window < (1 << DPARI_CUDA_ROW_BITS) ? window : (int64_t)1 << DPARI_CUDA_ROW_BITS;
    s.merged = s.key + window;
    s.even = scatter->width % 4 == 0 &&
             dpari_cuda_even(scatter->to, 0, dpari_cuda_width(scatter->type)) &&
             dpari_cuda_even(scatter->from, 0, dpari_cuda_width(scatter->type));
    for (; s.first < scatter->rows && st == DPAR_OK; s.first += window) {
        s.n = scatter->rows - s.first < window ? scatter->rows - s.first : window;
        st = dpari_cuda_scatter_now(gpu, &s);
    }
    return st;
}
