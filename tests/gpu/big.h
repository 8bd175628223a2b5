/* SPDX-License-Identifier: MIT-0 */
/* big: the tests that kernels.cc runs with the argument "big": each operation on arrays of more
 * than 2^31 elements, whose offsets need more than 32 bits. Numbers are hashes of their indices, so
 * that a truncated index finds other numbers. Results are compared with the host's on samples
 * (gpu_samples.h). Sums over all elements are compared with sums that the host computes chunk by chunk,
 * which are exact in f64.
 *
 * "big 20" uses a little more than 2^20 elements, to test these checks without a device. A part for
 * which there is not enough memory is skipped and prints what it needs: n elements of so many
 * bytes. */

/* ---- numbers by index ---- */

struct big_fill {
    void *to;
    int64_t count;
    uint64_t salt;
    int32_t type;
    int32_t squares; /* 1: squares, none of which is negative */
};

/* Returns one of -2, -1.984375, ... 1.984375, which are exact in all float types; sums of their
 * products are exact too. */
DPARI_CUDA_FN double big_value(uint64_t salt, int64_t i)
{
    uint64_t x = ((uint64_t)i ^ salt << 56) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 32) * UINT64_C(0xD6E8FEB86659FD93);
    return (double)((int32_t)(x >> 56) - 128) / 64.0;
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    big_fill_kernel(DPARI_CUDA_ARGS big_fill s)
{
    int64_t i = (int64_t)blockIdx.x * DPARI_CUDA_THREADS + threadIdx.x;
    for (; i < s.count; i += (int64_t)gridDim.x * DPARI_CUDA_THREADS) {
        const double v = big_value(s.salt, i), x = s.squares ? v * v : v;
        switch (s.type) {
        case DPAR_F64: ((double *)s.to)[i] = x; break;
        case DPAR_F32: ((float *)s.to)[i] = (float)x; break;
        case DPAR_BF16: ((uint16_t *)s.to)[i] = dpari_cuda_to_bf16((float)x); break;
        default: ((uint8_t *)s.to)[i] = (uint8_t)(int32_t)(64.0 * v + 128.0); break;
        }
    }
}

struct big_index {
    int64_t *to;
    int64_t count, have, twins;
};

/* Returns the row of index i: `twins` consecutive indices have the same row, the next ones are far
 * away. */
DPARI_CUDA_FN int64_t big_row(int64_t i, int64_t have, int64_t twins)
{
    return (i / twins * 7919 + 13) % have;
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    big_index_kernel(DPARI_CUDA_ARGS big_index s)
{
    int64_t i = (int64_t)blockIdx.x * DPARI_CUDA_THREADS + threadIdx.x;
    for (; i < s.count; i += (int64_t)gridDim.x * DPARI_CUDA_THREADS) {
        s.to[i] = big_row(i, s.have, s.twins);
    }
}

/* The arrays of one part, filled with poison at first. */
struct big_arrays {
    std::vector<void *> all;
    uint64_t salt = 0;
    big_arrays() = default;
    ~big_arrays()
    {
        for (void *at : all) {
            cudaFree(at);
        }
    }
    big_arrays(const big_arrays &) = delete;
    big_arrays &operator=(const big_arrays &) = delete;
    void *empty(int64_t count, int32_t type)
    {
        const size_t bytes = (size_t)(count * dpar_type_bytes(type));
        void *at = NULL;
        CHECK(cudaMalloc(&at, bytes) == cudaSuccess);
        CHECK(cudaMemset(at, POISON, bytes) == cudaSuccess);
        all.push_back(at);
        return at;
    }
    void refill(void *at, int64_t count, int32_t type, int32_t squares = 0)
    {
        const big_fill s = {at, count, ++salt, type, squares};
        CHECK_INT(dpari_cuda_launch(&gpu, "fill", big_fill_kernel, s,
                                    dpari_cuda_units_blocks(&gpu, count)),
                  DPAR_OK);
    }
    void *filled(int64_t count, int32_t type, int32_t squares = 0)
    {
        void *at = empty(count, type);
        refill(at, count, type, squares);
        return at;
    }
    dpar_mem_index index(int64_t count, int64_t have, int64_t twins)
    {
        dpar_mem_index x;
        memset(&x, 0, sizeof x);
        x.at = empty(count, DPAR_I64);
        x.type = DPAR_I64;
        const big_index s = {(int64_t *)const_cast<void *>(x.at), count, have, twins};
        CHECK_INT(dpari_cuda_launch(&gpu, "index", big_index_kernel, s,
                                    dpari_cuda_units_blocks(&gpu, count)),
                  DPAR_OK);
        return x;
    }
};

/* Returns the same index as a function for the host. */
static row_of big_rows(int64_t have, int64_t twins)
{
    return [have, twins](int64_t i) { return big_row(i, have, twins); };
}

/* Reads device memory chunk by chunk as doubles. */
static void big_chunks(const void *base, int64_t count, int32_t type,
                       const std::function<void(const double *chunk, int64_t n)> &each)
{
    const int64_t most = 1 << 20, width = dpar_type_bytes(type);
    std::vector<unsigned char> chunk((size_t)(std::min(count, most) * width));
    std::vector<double> wide((size_t)std::min(count, most));
    for (int64_t i = 0; i < count; i += most) {
        const int64_t n = std::min(most, count - i);
        CHECK(cudaMemcpy(chunk.data(), (const unsigned char *)base + i * width, (size_t)(n * width),
                         cudaMemcpyDeviceToHost) == cudaSuccess);
        read_all(chunk.data(), n, type, wide.data());
        each(wide.data(), n);
    }
}

static double big_double(const double *at)
{
    double x = 0.0;
    CHECK(cudaMemcpy(&x, at, 8, cudaMemcpyDeviceToHost) == cudaSuccess);
    return x;
}

/* ---- the operations ---- */

/* Tests spans with arithmetic, a cast, and a copy. */
static void big_span(int64_t n)
{
    static const struct {
        int32_t to;
        double scale;
    } turns[3] = {{DPAR_F32, 3.0}, {DPAR_F32, 1.0}, {DPAR_BF16, 1.0}};
    big_arrays arrays;
    dpar_mem_span s;
    memset(&s, 0, sizeof s);
    s.from = arrays.filled(n, DPAR_BF16);
    s.to = arrays.empty(n, DPAR_F32);
    s.from_type = DPAR_BF16;
    s.count = n;
    for (const auto &turn : turns) {
        samples x;
        s.to_type = turn.to;
        s.scale = turn.scale;
        expect_span(x, s);
        CHECK_INT(device.span(device.ctx, &s, 1), DPAR_OK);
        CHECK(x.same());
    }
}

static void big_squares(int64_t n)
{
    big_arrays arrays;
    dpar_mem_squares q;
    double sum = 0.0;
    memset(&q, 0, sizeof q);
    q.in = arrays.filled(n, DPAR_BF16);
    q.sum = (double *)arrays.empty(1, DPAR_F64);
    q.count = n;
    q.type = DPAR_BF16;
    CHECK_INT(device_layers.squares(device.ctx, &q), DPAR_OK);
    big_chunks(q.in, n, DPAR_BF16, [&](const double *chunk, int64_t m) {
        for (int64_t i = 0; i < m; i++) {
            const double v = chunk[i];
            sum += v * v; /* multiples of 2^-12, below 2^33: exact */
        }
    });
    CHECK(sum > (double)n && big_double(q.sum) == sum); /* squares are 4 / 3 on average */
}

static void big_finite(int64_t n)
{
    const uint16_t nan = 0x7fc0;
    big_arrays arrays;
    dpar_mem_finite f;
    memset(&f, 0, sizeof f);
    uint16_t *in = (uint16_t *)arrays.filled(n, DPAR_BF16);
    f.in = in;
    f.found = (int64_t *)arrays.empty(1, DPAR_I64);
    f.count = n;
    f.type = DPAR_BF16;
    for (int64_t at : {n, n - 3, n / 2}) { /* n: no such element */
        int64_t found = 0;
        CHECK(at == n ||
              cudaMemcpy(in + at, &nan, sizeof nan, cudaMemcpyHostToDevice) == cudaSuccess);
        CHECK_INT(device.finite(device.ctx, &f), DPAR_OK);
        CHECK(cudaMemcpy(&found, f.found, 8, cudaMemcpyDeviceToHost) == cudaSuccess);
        CHECK_INT(found, at == n ? -1 : at);
    }
}

/* Returns a box of n consecutive elements. */
static dpar_mem_box big_box(void *to, int32_t to_type, const void *from, int32_t from_type,
                            int64_t n)
{
    dpar_mem_box x;
    memset(&x, 0, sizeof x);
    x.to = to;
    x.from = const_cast<void *>(from);
    x.to_type = to_type;
    x.from_type = from_type;
    x.round_type = to_type == DPAR_BF16 ? to_type : from_type;
    x.dims = 1;
    x.extent[0] = n;
    x.to_stride[0] = x.from_stride[0] = 1;
    return x;
}

/* Runs boxes with the same target. turned: the last element comes first. */
static void big_boxes(std::vector<dpar_mem_box> boxes, int turned)
{
    const dpar_mem_box &first = boxes[0];
    const int64_t n = first.extent[0], width = dpar_type_bytes(first.to_type);
    samples x;
    for (stretch p : stretches(n, 1)) {
        const stretch at = {turned ? n - p.first - p.count : p.first, p.count};
        std::vector<dpar_mem_box> part = boxes;
        void *from = x.in(first.from, p, first.from_type);
        void *to = first.op == DPAR_COPY ? x.out(first.to, at, first.to_type, -1.0)
                                         : x.both(first.to, at, first.to_type, -1.0);
        for (dpar_mem_box &b : part) {
            b.from = from;
            b.to = (unsigned char *)to + (turned ? (p.count - 1) * width : 0);
            b.to_stride[0] = turned ? -1 : 1;
            b.extent[0] = p.count;
        }
        CHECK_INT(host.move(host.ctx, part.data(), (int32_t)part.size()), DPAR_OK);
    }
    for (dpar_mem_box &b : boxes) {
        b.to = (unsigned char *)b.to + (turned ? (n - 1) * width : 0);
        b.to_stride[0] = turned ? -1 : 1;
    }
    CHECK_INT(device.move(device.ctx, boxes.data(), (int32_t)boxes.size()), DPAR_OK);
    CHECK(x.same());
}

/* Tests a reversed cast, one in units of four, a copy, a sum in vectors, and two overlapping
 * boxes. */
static void big_move(int64_t n)
{
    big_arrays arrays;
    void *half = arrays.empty(n, DPAR_BF16), *wide = arrays.filled(n, DPAR_F32);
    void *other = arrays.empty(n, DPAR_F32);
    big_boxes({big_box(half, DPAR_BF16, wide, DPAR_F32, n)}, 1);
    big_boxes({big_box(half, DPAR_BF16, wide, DPAR_F32, n / 4 * 4)}, 0);
    big_boxes({big_box(other, DPAR_F32, wide, DPAR_F32, n)}, 0);
    dpar_mem_box sum = big_box(other, DPAR_F32, wide, DPAR_F32, n / 4 * 4);
    sum.op = DPAR_SUM;
    big_boxes({sum}, 0);
    dpar_mem_box least = big_box(other, DPAR_F32, half, DPAR_BF16, n);
    least.op = DPAR_MIN;
    dpar_mem_box most = least;
    most.op = DPAR_MAX;
    most.negate = 1;
    big_boxes({least, most}, 0);
}

/* Tests AdamW in bf16 with stochastic rounding, whose random numbers have indices above 2^31; in
 * bf16 with 16 bits of rest; SGD in f32 with a copy, also stochastic. */
static void big_optimize(int64_t n, int turn)
{
    const int32_t wt = turn == 2 ? DPAR_F32 : DPAR_BF16;
    big_arrays arrays;
    dpar_optimizer o = turn == 2 ? sgd(0.9) : adamw();
    dpar_optimizer_piece piece;
    dpar_mem_optimize s;
    samples x;
    o.stochastic = turn != 1;
    o.seed = 5;
    memset(&piece, 0, sizeof piece);
    memset(&s, 0, sizeof s);
    piece.weight = arrays.filled(n, wt);
    piece.gradient = arrays.filled(n, DPAR_BF16);
    piece.m = arrays.filled(n, DPAR_F32);
    piece.v = turn == 2 ? NULL : arrays.filled(n, DPAR_F32, 1);
    piece.weight_type = wt;
    piece.gradient_type = DPAR_BF16;
    piece.count = n;
    s.optimizer = &o;
    s.piece = &piece;
    s.step = 3;
    s.rate = 0.05;
    s.factor = 1.0;
    s.remainder = turn == 1 ? (int16_t *)arrays.filled(n, DPAR_BF16) : NULL;
    s.copy = turn == 2 ? arrays.empty(n, DPAR_BF16) : NULL;
    s.copy_type = DPAR_BF16;
    expect_step(x, s, 0);
    CHECK_INT(device_layers.optimize(device.ctx, &s), DPAR_OK);
    CHECK(x.same());
}

static void big_adamw(int64_t n)
{
    big_optimize(n, 0);
}

static void big_adamw_rest(int64_t n)
{
    big_optimize(n, 1);
}

static void big_sgd(int64_t n)
{
    big_optimize(n, 2);
}

static void big_reduce(int64_t n)
{
    enum { PARTS = 3 };
    big_arrays arrays;
    dpar_mem_reduce r;
    samples x;
    memset(&r, 0, sizeof r);
    uint16_t *from = (uint16_t *)arrays.filled(PARTS * n, DPAR_BF16);
    r.from = from;
    r.to = arrays.empty(n, DPAR_BF16);
    r.count = r.stride = n;
    r.parts = PARTS;
    r.to_type = r.from_type = DPAR_BF16;
    r.sum_type = DPAR_F32;
    r.op = DPAR_AVG;
    r.scale = 1.0;
    expect_reduce(x, r);
    CHECK_INT(device.reduce(device.ctx, &r), DPAR_OK);
    CHECK(x.same());
}

enum { BIG_WIDTH = 1024 };

/* Tests rows whose offsets need more than 32 bits, and more rows of one byte than 32 bits can
 * count. */
static void big_gather_rows(int64_t rows, int64_t bytes)
{
    big_arrays arrays;
    dpar_mem_gather g;
    samples x;
    memset(&g, 0, sizeof g);
    g.from = arrays.filled(rows * bytes, DPAR_U8);
    g.to = arrays.empty(rows * bytes, DPAR_U8);
    g.index = arrays.index(rows, rows, 1);
    g.rows = rows;
    g.bytes = g.to_step = g.from_step = bytes;
    expect_gather(x, g, big_rows(rows, 1));
    CHECK_INT(device_layers.gather(device.ctx, &g), DPAR_OK);
    CHECK(x.same());
}

static void big_gather(int64_t n)
{
    big_gather_rows(n / BIG_WIDTH, 2 * BIG_WIDTH);
}

static void big_gather_bytes(int64_t n)
{
    big_gather_rows(n, 1);
}

/* Two consecutive rows have the same target. */
static void big_scatter(int64_t n)
{
    const int64_t rows = n / BIG_WIDTH / 2 * 2;
    big_arrays arrays;
    dpar_mem_scatter s;
    samples x;
    memset(&s, 0, sizeof s);
    s.from = arrays.filled(rows * BIG_WIDTH, DPAR_F32);
    s.to = arrays.filled(rows * BIG_WIDTH, DPAR_F32);
    s.index = arrays.index(rows, rows, 2);
    s.rows = rows;
    s.width = BIG_WIDTH;
    s.type = DPAR_F32;
    for (stretch p : stretches(rows / 2, 1, 1)) {
        const stretch target = {big_row(2 * p.first, rows, 2), 1};
        const int64_t none[2] = {0, 0};
        dpar_mem_scatter part = s;
        part.from = x.in(s.from, rows_of({2 * p.first, 2}, BIG_WIDTH), DPAR_F32);
        part.to = x.both(s.to, rows_of(target, BIG_WIDTH), DPAR_F32, -1.0);
        part.index.at = none;
        part.rows = 2;
        CHECK_INT(host_layers.scatter(host.ctx, &part), DPAR_OK);
    }
    CHECK_INT(device_layers.scatter(device.ctx, &s), DPAR_OK);
    CHECK(x.same());
}

/* Also tests products of the results with input rows. */
static void big_combine(int64_t n)
{
    const int64_t rows = n / BIG_WIDTH;
    big_arrays arrays;
    dpar_mem_combine m;
    dpar_mem_dot d;
    samples combined, multiplied;
    memset(&m, 0, sizeof m);
    memset(&d, 0, sizeof d);
    m.from = arrays.filled(rows * BIG_WIDTH, DPAR_BF16);
    m.to = arrays.empty(rows * BIG_WIDTH, DPAR_BF16);
    m.weight = arrays.filled(2 * rows, DPAR_F32);
    m.index = arrays.index(2 * rows, rows, 1);
    m.rows = rows;
    m.choices = 2;
    m.width = BIG_WIDTH;
    m.to_type = m.from_type = DPAR_BF16;
    m.weight_type = DPAR_F32;
    expect_combine(combined, m, big_rows(rows, 1));
    CHECK_INT(device_layers.combine(device.ctx, &m), DPAR_OK);
    CHECK(combined.same());
    d.a = m.to;
    d.b = m.from;
    d.to = arrays.empty(rows, DPAR_F64);
    d.index = m.index;
    d.rows = rows;
    d.choices = 1;
    d.width = BIG_WIDTH;
    d.to_type = DPAR_F64;
    d.type = DPAR_BF16;
    /* exact: products of 8 bits times 8, 1024 of them */
    expect_dot(multiplied, d, big_rows(rows, 1), 0.0);
    CHECK_INT(device_layers.dot(device.ctx, &d), DPAR_OK);
    CHECK(multiplied.same());
}

static void big_cross_entropy(int64_t n)
{
    enum { VOCABULARY = 50257 };
    const int64_t tokens = n / VOCABULARY + 1;
    big_arrays arrays;
    dpar_mem_cross_entropy s;
    memset(&s, 0, sizeof s);
    s.logits = arrays.filled(tokens * VOCABULARY, DPAR_F32);
    s.partial = arrays.empty(3 * tokens, DPAR_F32);
    s.lse = (double *)arrays.filled(tokens, DPAR_F64);
    s.target = arrays.index(tokens, VOCABULARY, 1);
    s.type = DPAR_F32;
    s.tokens = tokens;
    s.rows = s.vocabulary = s.hi[0] = s.lo[1] = s.hi[1] = VOCABULARY;
    s.scale = 0.25;
    for (int32_t phase : {DPAR_MEM_CROSS_ENTROPY_PART, DPAR_MEM_CROSS_ENTROPY_GRADIENT}) {
        samples x;
        s.phase = phase;
        expect_cross_entropy(x, s, big_rows(VOCABULARY, 1), 0);
        CHECK_INT(device_layers.cross_entropy(device.ctx, &s), DPAR_OK);
        CHECK(x.same());
    }
}

static void big_merge(int64_t n)
{
    enum { VALUES = 128 };
    const int64_t rows = n / VALUES;
    big_arrays arrays;
    dpar_mem_attention_merge m;
    samples x;
    memset(&m, 0, sizeof m);
    m.type = DPAR_F32;
    m.rows = rows;
    m.values = VALUES;
    m.out = arrays.filled(rows * VALUES, DPAR_F32);
    m.more = arrays.filled(rows * VALUES, DPAR_F32);
    m.lse = arrays.filled(rows, DPAR_F32);
    m.more_lse = arrays.filled(rows, DPAR_F32);
    expect_merge(x, m);
    CHECK_INT(device_layers.attention_merge(device.ctx, &m), DPAR_OK);
    CHECK(x.same());
}

/* The last block is shorter. */
static void big_quantize(int64_t n)
{
    enum { BLOCK = 128 };
    const int64_t blocks = (n + BLOCK - 1) / BLOCK;
    big_arrays arrays;
    dpar_mem_quantize q;
    void *numbers = arrays.filled(n, DPAR_BF16), *back = arrays.empty(n, DPAR_BF16);
    memset(&q, 0, sizeof q);
    q.code = arrays.empty(blocks * BLOCK, DPAR_U8);
    q.scale = arrays.empty(blocks, DPAR_F32);
    q.count = n;
    q.block = q.code_step = BLOCK;
    q.scale_step = 4;
    q.type = DPAR_BF16;
    q.code_type = DPAR_I8;
    for (int turn = 0; turn < 2; turn++) {
        samples x;
        q.x = turn == 0 ? numbers : back;
        expect_quantize(x, q, turn);
        CHECK_INT(turn == 0 ? device_layers.quantize(device.ctx, &q)
                            : device_layers.dequantize(device.ctx, &q),
                  DPAR_OK);
        CHECK(x.same());
    }
}

/* Tests sets of two planes, or one set of one plane. With a gap after planes elements are read one
 * by one. */
static void big_moments_of(int64_t n, int64_t planes, int64_t gap)
{
    const int64_t points = n / planes / 4 * 4 + 4, groups = (planes + 1) / 2, per = planes / groups;
    big_arrays arrays;
    dpar_mem_moments m;
    std::vector<double> made((size_t)(3 * groups));
    memset(&m, 0, sizeof m);
    m.x = arrays.filled(planes * (points + gap), DPAR_BF16);
    m.to = (double *)arrays.empty(3 * groups, DPAR_F64);
    m.type = DPAR_BF16;
    m.planes = planes;
    m.channels = (int32_t)planes;
    m.groups = (int32_t)groups;
    m.extent[0] = points;
    m.step = points + gap;
    m.stride[0] = 1;
    m.dims = 1;
    CHECK_INT(device_layers.moments(device.ctx, &m), DPAR_OK);
    CHECK(cudaMemcpy(made.data(), m.to, made.size() * 8, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int64_t set = 0; set < groups; set++) {
        const int64_t count = per * points;
        double sum = 0.0, squares = 0.0; /* multiples of 2^-12: exact */
        for (int64_t plane = set * per; plane < (set + 1) * per; plane++) {
            big_chunks((const uint16_t *)m.x + plane * m.step, points, DPAR_BF16,
                       [&](const double *chunk, int64_t some) {
                           for (int64_t i = 0; i < some; i++) {
                               const double v = chunk[i];
                               sum += v;
                               squares += v * v;
                           }
                       });
        }
        const double *three = &made[(size_t)(3 * set)], mean = sum / (double)count;
        CHECK(three[0] == (double)count);
        CHECK(fabs(three[1] - mean) <= 1e-12);
        CHECK_NEAR(three[2], squares - sum * mean, 1e-12);
    }
}

static void big_moments(int64_t n)
{
    big_moments_of(n, 1, 0);
    big_moments_of(n, 64, 0);
    big_moments_of(n, 64, 1);
}

/* Planes of rows of 1000 points, which are 1001 apart in dy, so that dims cannot be merged. */
enum { BIG_ROW = 1000, BIG_STEP = 1001 };

/* Computes the sums of all planes on the host: of dy, and of dy (x - mean), in multiples of 2^-12:
 * exact. */
static void big_norm_sums(const dpar_mem_norm *m, int64_t rows)
{
    const int64_t most = 1024;
    std::vector<double> made((size_t)(2 * m->planes)), saved(made.size());
    std::vector<double> wide_x((size_t)(most * BIG_ROW)), wide_dy((size_t)(most * BIG_STEP));
    const int64_t width = dpar_type_bytes(m->type);
    bytes_of x((size_t)(most * BIG_ROW * width)), dy((size_t)(most * BIG_STEP * width));
    const size_t bytes = made.size() * 8;
    CHECK(cudaMemcpy(made.data(), m->sums, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(cudaMemcpy(saved.data(), m->saved, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int64_t plane = 0; plane < m->planes; plane++) {
        const double mean = saved[(size_t)(2 * plane)], inverse = saved[(size_t)(2 * plane + 1)];
        double of_dy = 0.0, of_both = 0.0;
        for (int64_t r = 0; r < rows; r += most) {
            const int64_t n = std::min(most, rows - r), at = plane * rows + r;
            CHECK(cudaMemcpy(x.data(), (const unsigned char *)m->x.data + at * BIG_ROW * width,
                             (size_t)(n * BIG_ROW * width), cudaMemcpyDeviceToHost) == cudaSuccess);
            CHECK(cudaMemcpy(dy.data(), (const unsigned char *)m->dy.data + at * BIG_STEP * width,
                             (size_t)(n * BIG_STEP * width),
                             cudaMemcpyDeviceToHost) == cudaSuccess);
            read_all(x.data(), n * BIG_ROW, m->type, wide_x.data());
            read_all(dy.data(), n * BIG_STEP, m->type, wide_dy.data());
            for (int64_t i = 0; i < n * BIG_ROW; i++) {
                const double g = wide_dy[(size_t)(i / BIG_ROW * BIG_STEP + i % BIG_ROW)];
                of_dy += g;
                of_both += g * (wide_x[(size_t)i] - mean);
            }
        }
        CHECK(made[(size_t)(2 * plane)] == of_dy && of_dy != 0.0);
        CHECK(made[(size_t)(2 * plane + 1)] == of_both * inverse && of_both != 0.0);
    }
}

/* Tests all phases that read the planes, with sets of one plane each; sums are exact. */
static void big_norm_of(int64_t n, int64_t planes, int32_t type)
{
    const int64_t rows = n / planes / BIG_ROW + 1, points = rows * BIG_ROW;
    const double fine = type == DPAR_F64 ? 1e-13 : 2e-7;
    big_arrays arrays;
    dpar_mem_norm m;
    memset(&m, 0, sizeof m);
    m.x.data = arrays.filled(planes * points, type);
    m.dy.data = m.to.data = arrays.empty(planes * rows * BIG_STEP, type);
    m.saved = (double *)arrays.filled(2 * planes, DPAR_F64);
    m.sums = (double *)arrays.empty(2 * planes, DPAR_F64);
    m.total = (double *)arrays.filled(3 * planes, DPAR_F64);
    m.scale = arrays.filled(planes, type);
    m.shift = arrays.filled(planes, type);
    m.type = type;
    m.planes = planes;
    m.channels = m.groups = (int32_t)planes;
    m.dims = 2;
    m.extent[0] = rows;
    m.extent[1] = BIG_ROW;
    m.x.step = points;
    m.dy.step = m.to.step = rows * BIG_STEP;
    m.x.stride[0] = BIG_ROW;
    m.dy.stride[0] = m.to.stride[0] = BIG_STEP;
    m.x.stride[1] = m.dy.stride[1] = m.to.stride[1] = 1;
    for (int32_t phase = DPAR_MEM_NORM_APPLY; phase <= DPAR_MEM_NORM_GRADIENT; phase++) {
        samples x;
        m.phase = phase;
        if (phase == DPAR_MEM_NORM_SUMS) {
            arrays.refill(m.dy.data, planes * rows * BIG_STEP, type);
            CHECK_INT(device_layers.norm(device.ctx, &m), DPAR_OK);
            big_norm_sums(&m, rows);
            continue;
        }
        within = 1.0;
        for (stretch p : stretches(planes * rows, 1, 1)) { /* a row of a plane */
            const stretch plane = {p.first / rows, 1}, at = {p.first * BIG_STEP, BIG_ROW};
            dpar_mem_norm part = m;
            part.planes = part.channels = part.groups = part.dims = 1;
            part.extent[0] = BIG_ROW;
            part.x.stride[0] = part.dy.stride[0] = part.to.stride[0] = 1;
            part.x.data = x.in(m.x.data, rows_of(p, BIG_ROW), type);
            part.to.data = part.dy.data = phase == DPAR_MEM_NORM_APPLY
                                              ? x.out(m.to.data, at, type, fine)
                                              : x.both(m.to.data, at, type, fine);
            part.saved = (double *)x.in(m.saved, rows_of(plane, 2), DPAR_F64);
            part.total = (double *)x.in(m.total, rows_of(plane, 3), DPAR_F64);
            part.scale = x.in(m.scale, plane, type);
            part.shift = x.in(m.shift, plane, type);
            CHECK_INT(host_layers.norm(host.ctx, &part), DPAR_OK);
        }
        within = 1e-30;
        CHECK_INT(device_layers.norm(device.ctx, &m), DPAR_OK);
        CHECK(x.same());
    }
}

static void big_norm(int64_t n)
{
    big_norm_of(n, 1, DPAR_F32);
    big_norm_of(n, 64, DPAR_F32);
}

static void big_norm_wide(int64_t n)
{
    big_norm_of(n, 1, DPAR_F64);
}

static void test_big(int64_t n)
{
    static const struct {
        const char *name;
        double bytes; /* per element, of all arrays; the test needs 1 % more */
        void (*test)(int64_t n);
    } parts[] = {{"span", 6.0, big_span},
                 {"squares", 2.0, big_squares},
                 {"finite", 2.0, big_finite},
                 {"move", 10.0, big_move},
                 {"AdamW of bf16", 12.0, big_adamw},
                 {"AdamW of bf16 and rest", 14.0, big_adamw_rest},
                 {"SGD", 12.0, big_sgd},
                 {"reduce", 8.0, big_reduce},
                 {"gather of rows", 4.0, big_gather},
                 {"gather of bytes", 10.0, big_gather_bytes},
                 {"scatter", 8.0, big_scatter},
                 {"combine and dot", 4.0, big_combine},
                 {"cross_entropy", 4.0, big_cross_entropy},
                 {"merge", 8.0625, big_merge},
                 {"quantize and dequantize", 5.03125, big_quantize},
                 {"moments", 2.0, big_moments},
                 {"norm", 8.008, big_norm},
                 {"norm of f64", 16.016, big_norm_wide}};
    for (const auto &part : parts) {
        const double needs = 1.01 * part.bytes * (double)n;
        size_t left = 0, all = 0;
        CHECK(cudaMemGetInfo(&left, &all) == cudaSuccess);
        if ((double)left < needs) {
            printf("big, %s: skipped, needs %.1f GB, %.1f are free\n", part.name, needs * 1e-9,
                   (double)left * 1e-9);
            continue;
        }
        const int failed = checks_failed;
        part.test(n);
        printf("big, %s: %s\n", part.name, checks_failed == failed ? "fine" : "FAILED");
    }
}
