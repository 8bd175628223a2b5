/* SPDX-License-Identifier: MIT-0 */
/* kernels: compares each operation of dpar_cuda.h's tables with the host's (dpar_mem_host and
 * dpar_mem_host_layers, which tests/host/mem.c and tests/host/layers.c compare with scalar loops),
 * on random numbers of all types: odd sizes, unaligned pointers, NaN and Inf, sizes of 0, outputs
 * between guards. Bits must be equal where mem.h and layers.h guarantee it; otherwise results must
 * agree within some units in the last place of f64, or of f32 for results in f32. Then tests the
 * kernels for known types and alignment (aligned.h), index math past 2^31 as pure functions,
 * errors, launch counts, and graphs.
 *
 *   g++ -std=c++17 -Itests/gpu/fake -Itests/lib -I. tests/gpu/kernels.cc -Lbuild/gpu -lcudart -ldl
 *   nvcc -x cu -std=c++17 -arch=sm_90 -Itests/lib -I. tests/gpu/kernels.cc -o kernels -ldl
 *
 * Arguments: a seed; "few": an eighth of the random cases; "big": only arrays of more than 2^31
 * elements (big.h; 35 GB are enough for all) or, with an exponent after it, of more than 2 to that
 * power. */
#define DPAR_IMPLEMENTATION
#define DPAR_CUDA_IMPLEMENTATION
#include "dpar_cost.h"
#include "dpar_train.h"
#include "dpar_cuda.h"

#include "check.h"
#include "random_bits.h"
#include "optimizers.h"
#include "../../helpers/gpu_samples.h"

#include <functional>
#include <stdlib.h>

typedef std::vector<unsigned char> bytes_of;

/* Share of the random cases of each operation: all on a device, fewer on a stand-in, where a thread
 * is slow, and with "few". */
#if defined(__CUDACC__)
static int rounds = 8;
#else
static int rounds = 1;
#endif

static dpar_cuda gpu, fast;
static dpar_mem host, device, quick;
static dpar_mem_layers host_layers, device_layers, quick_layers;

static int64_t below(int64_t n)
{
    return (int64_t)(random_bits() % (uint64_t)n);
}

static const int32_t floats[4] = {DPAR_F64, DPAR_F32, DPAR_BF16, DPAR_F16};

/* ---- memory on both sides ---- */

enum { GUARD = 64 };

/* An array in host memory and one in device memory with the same content, `odd` bytes after a
 * multiple of 256, with guards before and after. */
struct twin {
    bytes_of here;
    unsigned char *there;
    int64_t bytes, odd;
    twin(int64_t n, int64_t shift)
        : here((size_t)(n + 2 * GUARD), POISON), there(NULL), bytes(n), odd(shift)
    {
        void *at = NULL;
        CHECK(cudaMalloc(&at, (size_t)(n + 2 * GUARD + 256)) == cudaSuccess);
        there = (unsigned char *)at + shift;
        give();
    }
    ~twin()
    {
        cudaFree(there - odd);
    }
    twin(const twin &) = delete;
    twin &operator=(const twin &) = delete;
    void give()
    {
        CHECK(cudaMemcpy(there, here.data(), here.size(), cudaMemcpyHostToDevice) == cudaSuccess);
    }
    void *h()
    {
        return here.data() + GUARD;
    }
    void *d()
    {
        return there + GUARD;
    }
    void *at(int on_device)
    {
        return on_device ? d() : h();
    }
    bytes_of taken()
    {
        bytes_of made(here.size());
        CHECK(cudaStreamSynchronize(gpu.stream) == cudaSuccess);
        CHECK(cudaMemcpy(made.data(), there, made.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
        return made;
    }
    void fill(int32_t type, int wild);
    int same(int32_t type, double relative);
};

static void write_at(void *at, int64_t i, int32_t type, double v)
{
    switch (type) {
    case DPAR_F64: ((double *)at)[i] = v; break;
    case DPAR_F32: ((float *)at)[i] = (float)v; break;
    case DPAR_BF16: ((uint16_t *)at)[i] = dpari_cuda_to_bf16((float)v); break;
    default: ((uint16_t *)at)[i] = dpari_cuda_to_f16((float)v); break;
    }
}

/* Fills with numbers in -2 .. 2; if wild, each eighth has random bits. */
void twin::fill(int32_t type, int wild)
{
    const int64_t width = dpar_type_bytes(type);
    for (int64_t i = 0; i < bytes / width; i++) {
        if (!is_float(type) || (wild && below(8) == 0)) {
            const uint64_t any = random_bits();
            memcpy((unsigned char *)h() + i * width, &any, (size_t)width);
        } else {
            write_at(h(), i, type, (double)(random_bits() >> 11) / 2251799813685248.0 - 2.0);
        }
    }
    give();
}

/* Returns 1 if device and host have the same, as `alike` compares, guards included; otherwise 0. */
int twin::same(int32_t type, double relative)
{
    const bytes_of made = taken();
    if (memcmp(made.data(), here.data(), GUARD) != 0 ||
        memcmp(made.data() + GUARD + bytes, here.data() + GUARD + bytes, GUARD) != 0) {
        printf("a guard was written\n");
        return 0;
    }
    return alike(made.data() + GUARD, h(), bytes / dpar_type_bytes(type), type, relative);
}

/* Runs a task of both tables on the arrays of each side, which place() puts into it. */
template <class Task, class Place>
static void on_both(dpar_status (*dpar_mem::*run)(void *, const Task *), Task *task, Place place)
{
    place(1);
    CHECK_INT((device.*run)(device.ctx, task), DPAR_OK);
    place(0);
    CHECK_INT((host.*run)(host.ctx, task), DPAR_OK);
}

template <class Task, class Place>
static void on_both(dpar_status (*dpar_mem_layers::*run)(void *, const Task *), Task *task,
                    Place place)
{
    place(1);
    CHECK_INT((device_layers.*run)(device.ctx, task), DPAR_OK);
    place(0);
    CHECK_INT((host_layers.*run)(host.ctx, task), DPAR_OK);
}

static int64_t odd_place(int32_t type)
{
    return below(9) * dpar_type_bytes(type);
}

static int64_t some_count(void)
{
    static const int64_t counts[] = {0, 1, 2, 3, 4, 5, 7, 8, 15, 31, 63, 257, 1023, 1025, 4099};
    return counts[below(15)];
}

/* ---- conversions: the device's bits compared with the host's ---- */

static void test_numbers(void)
{
    for (int32_t i = 0; i < 65536; i++) { /* all 16-bit values, in both directions */
        const uint16_t h = (uint16_t)i;
        float f, expected;
        dpari_kern_convert(&expected, DPAR_F32, &h, DPAR_F16, 1);
        f = dpari_cuda_from_f16(h);
        if (memcmp(&f, &expected, 4) != 0 || (f == f && dpari_cuda_to_f16(f) != h)) {
            CHECK_INT(i, -1);
            return;
        }
        dpari_kern_convert(&expected, DPAR_F32, &h, DPAR_BF16, 1);
        f = dpari_cuda_from_bf16(h);
        if (memcmp(&f, &expected, 4) != 0 || (f == f && dpari_cuda_to_bf16(f) != h)) {
            CHECK_INT(i, -1);
            return;
        }
    }
    for (int32_t i = 0; i < 200000; i++) {
        const uint32_t any = (uint32_t)random_bits();
        uint16_t a, b;
        float f;
        memcpy(&f, &any, 4);
        dpari_kern_convert(&a, DPAR_F16, &f, DPAR_F32, 1);
        dpari_kern_convert(&b, DPAR_BF16, &f, DPAR_F32, 1);
        if (a != dpari_cuda_to_f16(f) || b != dpari_cuda_to_bf16(f)) {
            CHECK_INT(any, -1);
            return;
        }
    }
    for (int32_t i = 0; i < 200000; i++) { /* the range that cross_entropy of F32 logits uses */
        const double x =
            (double)(int64_t)random_bits() * (i % 2 ? 0x1p-53 : 0x1p-63) * (i % 2 ? 0.683 : 0.5);
        if (!(fabs(dpari_cuda_exp_short(x) / exp(x) - 1.0) < 0x1p-39)) {
            CHECK_NEAR(x, 0.0, -1.0);
            return;
        }
    }
    CHECK(1);
}

/* ---- random numbers and dropout in kernels of a user ---- */

struct draw {
    dpar_cuda_dropout dropout;
    uint64_t first; /* a multiple of four */
    int64_t count;
    const float *x;
    double *uniform;   /* computed one at a time */
    float *one, *four; /* dropout one at a time, and four at a time */
};

static __global__ void draw_kernel(const draw s)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < s.count; i += step) {
        const uint64_t at = s.first + (uint64_t)i;
        const uint32_t word = dpari_cuda_random_word(s.dropout.seed, s.dropout.stream, at);
        s.uniform[i] = ((double)word + 0.5) * (1.0 / 4294967296.0); /* as dpar_random_uniform */
        s.one[i] = dpar_cuda_dropout_one(&s.dropout, at, s.x[i]);
        if (i % 4 == 0) {
            dpar_cuda_dropout_four(&s.dropout, at / 4, s.x + i, s.four + i);
        }
    }
}

/* Compares with the host's numbers, and dropout with its definition in random.h; two launches
 * each. */
static void test_draws(void)
{
    static const uint64_t places[] = {0, 4, UINT64_C(0xfffffff0), UINT64_C(0x100000000),
                                      UINT64_C(0xfffffffffffffe00)};
    static const double shares[] = {0.0,           0.1,   0.5, 0x1p-33, 0x1.8p-32,
                                    1.0 - 0x1p-33, 0.999, 1.0, 0x1p-32, 1.0 / 3.0};
    enum { COUNT = 256 };
    for (int turn = 0; turn < 30 + rounds * 10; turn++) {
        const uint64_t any = random_bits();
        const uint64_t at = turn % 6 < 5 ? places[turn % 6] : (random_bits() & ~UINT64_C(1023));
        const double p = shares[turn % 10];
        twin x(COUNT * 4, 0), uniform(COUNT * 8, 0), one(COUNT * 4, 0), four(COUNT * 4, 0);
        draw s;
        void *list[1] = {&s};
        int wrong = 0;
        x.fill(DPAR_F32, 0);
        memset(&s, 0, sizeof s);
        dpar_cuda_dropout_init(&s.dropout, any, turn % 3 == 0 ? 5 : ~any, p);
        s.first = at;
        s.count = COUNT;
        s.x = (const float *)x.d();
        s.uniform = (double *)uniform.d();
        s.one = (float *)one.d();
        s.four = (float *)four.d();
        for (int i = 0; i < COUNT; i++) {
            const double u = dpar_random_uniform(any, s.dropout.stream, at + (uint64_t)i);
            const float v = ((const float *)x.h())[i], y = u < p ? 0.0f : v / (float)(1.0 - p);
            ((double *)uniform.h())[i] = u;
            ((float *)one.h())[i] = ((float *)four.h())[i] = y;
            /* the same function on the host */
            wrong += dpar_cuda_dropout_one(&s.dropout, at + (uint64_t)i, v) != y;
        }
        CHECK_INT(wrong, 0);
        for (unsigned way = 0; way < 2; way++) { /* the bits must not depend on the launch */
            CHECK(cudaLaunchKernel(draw_kernel, dim3(1 + 6 * way), dim3(way == 0 ? 64 : 32), list,
                                   0, gpu.stream) == cudaSuccess);
            CHECK(uniform.same(DPAR_F64, -1.0));
            CHECK(one.same(DPAR_F32, -1.0));
            CHECK(four.same(DPAR_F32, -1.0));
        }
    }
}

/* ---- index math past 2^31: pure functions, no memory ---- */

static void test_places(void)
{
    static const uint32_t divisors[] = {1,     2,     3,       5,        7,          641,
                                        65535, 65536, 1000003, 1u << 30, 2147483647u};
    for (uint32_t d : divisors) {
        uint32_t magic;
        uint8_t shift;
        dpari_cuda_magic(d, &magic, &shift);
        for (int k = 0; k < 3000; k++) {
            const uint32_t n = k < 8 ? (uint32_t)k : (uint32_t)(random_bits() >> 33);
            const uint32_t edge = n / d * d;
            if (dpari_cuda_over(n, magic, shift) != n / d ||
                dpari_cuda_over(edge, magic, shift) != edge / d ||
                (edge > 0 && dpari_cuda_over(edge - 1, magic, shift) != (edge - 1) / d)) {
                CHECK_INT(n, -1);
                return;
            }
        }
    }
    /* Boxes of up to 2^40 elements: pieces cover each unit once. Some addresses are compared with a
     * plain division of the unit's number. The pointers are never dereferenced. */
    for (int turn = 0; turn < 200; turn++) {
        dpar_mem_box box;
        dpari_cuda_cut cut;
        memset(&box, 0, sizeof box);
        box.to_type = box.from_type = box.round_type = DPAR_F32;
        box.dims = 3;
        box.extent[0] = 1 + below(turn % 2 != 0 ? 5 : 3000);
        box.extent[1] = 1 + below(700);
        box.extent[2] = 1 + below(1 << 20);
        box.to = (void *)(uintptr_t)0x100000000000;
        box.from = (void *)(uintptr_t)0x500000000000;
        box.to_stride[2] = 1;
        box.to_stride[1] = box.extent[2];
        box.to_stride[0] = box.extent[2] * box.extent[1];
        box.from_stride[2] = 1;
        box.from_stride[1] = box.extent[2] + 4 * below(3);
        box.from_stride[0] = box.from_stride[1] * (box.extent[1] + below(3));
        const int made = dpari_cuda_prepare(&box, &cut);
        if (made < 0) {
            continue; /* more than 2^30 before the last dim: it is halved, see test_boxes_cut */
        }
        CHECK_INT(made, 1);
        int64_t units = 0;
        for (int64_t k = 0; k < cut.pieces; k++) {
            dpari_cuda_box p;
            dpari_cuda_piece(&cut, k, &p);
            CHECK(p.units <= (1u << 30));
            for (int probe = 0; probe < 20 && k % (1 + cut.pieces / 20) == 0; probe++) {
                const uint32_t u = probe == 0 ? p.units - 1 : (uint32_t)below(p.units);
                const int64_t each = p.width / 4, e = (units + u) * each;
                const int64_t x = e % box.extent[2], y = e / box.extent[2] % box.extent[1];
                const int64_t z = e / box.extent[2] / box.extent[1];
                int64_t to, from;
                dpari_cuda_where(&p, u, &to, &from);
                const int64_t at = x + y * box.from_stride[1] + z * box.from_stride[0];
                CHECK_INT((uintptr_t)p.to + (uintptr_t)to, (uintptr_t)box.to + (uintptr_t)(4 * e));
                CHECK_INT((uintptr_t)p.from + (uintptr_t)from,
                          (uintptr_t)box.from + (uintptr_t)(4 * at));
            }
            units += p.units;
        }
        CHECK_INT(units * (cut.piece.width / 4), box.extent[0] * box.extent[1] * box.extent[2]);
    }
    for (int64_t head = 0; head < 4; head++) { /* units of four cover [0, count) once */
        for (int64_t count = 0; count < 40; count++) {
            int64_t covered = 0;
            for (int64_t u = 0; u < dpari_cuda_fours(count, head); u++) {
                const int64_t i = dpari_cuda_first(u, head);
                covered += std::max<int64_t>(0, std::min(count, i + 4) - std::max<int64_t>(0, i));
            }
            CHECK_INT(covered, count);
        }
    }
    { /* rows: chunks have each unit of each row once, also past 2^31 units */
        const dpari_cuda_rows r = dpari_cuda_rows_of(INT64_C(5000000000), 3);
        int64_t row, unit;
        CHECK_INT(r.chunks, (INT64_C(5000000000) + r.rows - 1) / r.rows);
        CHECK(dpari_cuda_rows_at(r, INT64_C(5000000000), r.chunks - 1, 0, &row, &unit));
        CHECK_INT(row, (r.chunks - 1) * r.rows);
        const dpari_cuda_rows w = dpari_cuda_rows_of(7, INT64_C(6000000001));
        CHECK(dpari_cuda_rows_at(w, 7, w.chunks - 1, 0, &row, &unit));
        CHECK_INT(row, 6);
        CHECK_INT(unit, (w.slices - 1) * w.each);
        CHECK(!dpari_cuda_rows_at(w, 7, w.chunks - 1, (uint32_t)(w.units - unit), &row, &unit));
    }
}

/* ---- boxes ---- */

struct some_box {
    dpar_mem_box box;
    int64_t to_size, from_size, to_at, from_at; /* in elements; *_at is the offset of index 0 */
};

/* Returns a box of one to four dims in any order, some backward, with gaps. */
static some_box any_box(int32_t to_type, int32_t from_type)
{
    some_box s;
    int64_t to_step = 1, from_step = 1;
    int32_t order[4] = {0, 1, 2, 3};
    memset(&s, 0, sizeof s);
    s.box.to_type = to_type;
    s.box.from_type = from_type;
    s.box.dims = (int32_t)below(5);
    const int plain = below(2) == 0;
    for (int32_t d = s.box.dims - 1; d >= 0; d--) {
        s.box.extent[d] = below(20) == 0 ? 0 : 1 + below(d == s.box.dims - 1 ? 40 : 5);
    }
    for (int32_t d = s.box.dims - 1; d > 0 && !plain; d--) {
        std::swap(order[d], order[below(d + 1)]);
    }
    for (int32_t k = s.box.dims - 1; k >= 0; k--) {
        const int32_t d = k, o = plain ? k : order[k];
        const int64_t to_room = plain ? 4 * below(2) : below(3), from_room = below(3);
        const int back = !plain && below(3) == 0, from_back = !plain && below(3) == 0;
        s.box.to_stride[d] = back ? -to_step : to_step;
        s.to_at += back ? std::max<int64_t>(0, s.box.extent[d] - 1) * to_step : 0;
        to_step = to_step * std::max<int64_t>(1, s.box.extent[d]) + to_room;
        s.box.from_stride[o] = from_back ? -from_step : from_step;
        s.from_at += from_back ? std::max<int64_t>(0, s.box.extent[o] - 1) * from_step : 0;
        from_step = from_step * std::max<int64_t>(1, s.box.extent[o]) + from_room;
    }
    s.to_size = to_step + 8;
    s.from_size = from_step + 8;
    if (below(12) == 0) { /* one element is read everywhere */
        memset(s.box.from_stride, 0, sizeof s.box.from_stride);
    }
    return s;
}

static const int32_t box_types[][3] = {
    /* to, from, through */
    {DPAR_F64, DPAR_F64, DPAR_F64},    {DPAR_F32, DPAR_F32, DPAR_F32},
    {DPAR_BF16, DPAR_BF16, DPAR_BF16}, {DPAR_F16, DPAR_F16, DPAR_F16},
    {DPAR_I8, DPAR_I8, DPAR_I8},       {DPAR_U8, DPAR_U8, DPAR_U8},
    {DPAR_I32, DPAR_I32, DPAR_I32},    {DPAR_U32, DPAR_U32, DPAR_U32},
    {DPAR_I64, DPAR_I64, DPAR_I64},    {DPAR_U64, DPAR_U64, DPAR_U64},
    {DPAR_F64, DPAR_F32, DPAR_F32},    {DPAR_F32, DPAR_F64, DPAR_F32},
    {DPAR_F32, DPAR_BF16, DPAR_BF16},  {DPAR_BF16, DPAR_F32, DPAR_BF16},
    {DPAR_F32, DPAR_F16, DPAR_F16},    {DPAR_F16, DPAR_F32, DPAR_F16},
    {DPAR_F64, DPAR_F64, DPAR_F32},    {DPAR_F32, DPAR_F32, DPAR_BF16}};

static void test_boxes(void)
{
    static const int32_t ops[4] = {DPAR_COPY, DPAR_SUM, DPAR_MAX, DPAR_MIN};
    for (int turn = 0; turn < rounds * 80; turn++) {
        const int32_t *t = box_types[turn % 18];
        some_box s = any_box(t[0], t[1]);
        twin to(s.to_size * dpar_type_bytes(t[0]), odd_place(t[0]));
        twin from(s.from_size * dpar_type_bytes(t[1]), odd_place(t[1]));
        s.box.round_type = t[2];
        s.box.op = below(2) == 0 ? DPAR_COPY : ops[below(4)];
        s.box.negate = below(4) == 0;
        s.box.clear = below(4) == 0 && s.box.from_stride[0] != 0;
        to.fill(t[0], 1);
        from.fill(t[1], 1);
        s.box.to = (unsigned char *)to.d() + s.to_at * dpar_type_bytes(t[0]);
        s.box.from = (unsigned char *)from.d() + s.from_at * dpar_type_bytes(t[1]);
        CHECK_INT(device.move(device.ctx, &s.box, 1), DPAR_OK);
        s.box.to = (unsigned char *)to.h() + s.to_at * dpar_type_bytes(t[0]);
        s.box.from = (unsigned char *)from.h() + s.from_at * dpar_type_bytes(t[1]);
        dpari_mem_move_box(&s.box);
        CHECK(to.same(t[0], -1.0));
        CHECK(from.same(t[1], -1.0));
    }
}

/* Tests many boxes of one array that overlap in `to`: sums must be in order. Also checks the number
 * of launches: 1 for copies. */
static void test_box_batches(void)
{
    enum { SIDE = 12, BOXES = 60 };
    for (int turn = 0; turn < 12; turn++) {
        const int sums = turn % 3 != 0, backward = turn % 2;
        const int64_t count = SIDE * SIDE * SIDE;
        twin to(count * 8, 8 * below(3)), from(count * BOXES * 8, 0);
        dpar_mem_box box[2][BOXES];
        to.fill(DPAR_F64, 0);
        from.fill(DPAR_F64, 0);
        memset(box, 0, sizeof box);
        for (int k = 0; k < BOXES; k++) {
            dpar_mem_box *b = &box[0][k];
            int64_t at = 0, step = 1, dense = 1;
            b->to_type = b->from_type = b->round_type = DPAR_F64;
            b->op = sums ? DPAR_SUM : DPAR_COPY;
            b->dims = 3;
            for (int d = 2; d >= 0; d--) {
                /* Copies: slab k % 12 of dim 0, cut in five parts along dim 1 that do not
                 * overlap. */
                const int64_t lo = sums     ? below(SIDE)
                                   : d == 0 ? k % SIDE
                                   : d == 1 ? k / SIDE * 2
                                            : below(3);
                const int64_t n = sums ? 1 + below(SIDE - lo) : d == 0 ? 1 : d == 1 ? 2 : SIDE - 2;
                b->extent[d] = n;
                b->to_stride[d] = step;
                at += lo * step;
                step *= SIDE;
                b->from_stride[d] = dense;
                dense *= n;
            }
            if (backward) { /* the same box from its other end */
                at += (b->extent[2] - 1) * b->to_stride[2];
                b->to_stride[2] = -b->to_stride[2];
            }
            box[1][k] = *b;
            b->to = (double *)to.d() + at;
            b->from = (double *)from.d() + k * count;
            box[1][k].to = (double *)to.h() + at;
            box[1][k].from = (double *)from.h() + k * count;
        }
        gpu.launches = 0;
        CHECK_INT(device.move(device.ctx, box[0], BOXES), DPAR_OK);
        if (sums) {
            CHECK(gpu.launches <= BOXES);
        } else {
            CHECK_INT(gpu.launches, 1);
        }
        CHECK_INT(host.move(host.ctx, box[1], BOXES), DPAR_OK);
        CHECK(to.same(DPAR_F64, -1.0));
    }
    { /* two columns that interleave in memory, or overlap: one launch */
        twin to(4096 * 4, 0), from(4096 * 4, 0);
        dpar_mem_box box[2];
        memset(box, 0, sizeof box);
        to.fill(DPAR_F32, 0);
        from.fill(DPAR_F32, 0);
        for (int turn = 0; turn < 4; turn++) {
            for (int k = 0; k < 2; k++) {
                const int64_t at = turn < 2 ? k : k * 64 * 15;
                box[k].to = (float *)(turn % 2 ? to.h() : to.d()) + at;
                box[k].from = (float *)(turn % 2 ? from.h() : from.d()) + 2000 * k;
                box[k].to_type = box[k].from_type = box[k].round_type = DPAR_F32;
                box[k].op = DPAR_SUM;
                box[k].dims = 2;
                box[k].extent[0] = 30;
                box[k].extent[1] = 20;
                box[k].to_stride[0] = 64;
                box[k].to_stride[1] = 2;
                box[k].from_stride[0] = 20;
                box[k].from_stride[1] = 1;
            }
            gpu.launches = 0;
            if (turn % 2 == 0) {
                CHECK_INT(device.move(device.ctx, box, 2), DPAR_OK);
                CHECK_INT(gpu.launches, 1);
            } else {
                CHECK_INT(host.move(host.ctx, box, 2), DPAR_OK);
                CHECK(to.same(DPAR_F32, -1.0));
            }
        }
    }
}

/* A block with halos of `low` and `high` layers in each dim. Its cells get the halos of neighbours,
 * one box for each of the 3^dims - 1 directions, from staging memory, or from its own halos
 * (periodic, a single rank), which become 0. Components are last or first. Folded: the neighbour's
 * index runs the other way. Strides of `to` are in elements; the array begins at 0. */
struct block {
    int32_t dims, components, first, own, fold;
    int64_t n, low, high;
};

static int64_t block_cells(const block &b)
{
    int64_t cells = b.components;
    for (int32_t d = 0; d < b.dims; d++) {
        cells *= b.n + b.low + b.high;
    }
    return cells;
}

static void adjoint_boxes(const block &b, int32_t type, void *array, void *staging,
                          std::vector<dpar_mem_box> *boxes, int64_t *staged)
{
    const int64_t width = dpar_type_bytes(type), side = b.n + b.low + b.high;
    int directions = 1;
    int64_t stride[DPAR_MEM_DIMS], step = b.first ? 1 : b.components;
    for (int32_t d = b.dims - 1; d >= 0; d--) {
        stride[d] = step;
        step *= side;
        directions *= 3;
    }
    for (int k = 0; k < directions; k++) {
        dpar_mem_box x;
        int64_t to = 0, from = 0, dense = 1;
        int rest = k, some = 0;
        memset(&x, 0, sizeof x);
        x.dims = b.dims + 1;
        x.to_type = x.from_type = x.round_type = type;
        x.extent[b.dims] = b.components;
        x.to_stride[b.dims] = b.first ? step : 1;
        x.from_stride[b.dims] = b.own ? x.to_stride[b.dims] : 1;
        dense = b.components;
        for (int32_t d = b.dims - 1; d >= 0; d--, rest /= 3) {
            const int way = rest % 3 - 1; /* to its first cells, all, or the last ones */
            const int64_t layers = way < 0 ? b.high : way > 0 ? b.low : b.n;
            some |= way != 0;
            x.extent[d] = layers;
            x.to_stride[d] = stride[d];
            to += (b.low + (way > 0 ? b.n - b.low : 0)) * stride[d];
            x.from_stride[d] = b.own ? stride[d] : dense;
            from += (way == 0 ? b.low : way < 0 ? b.low + b.n : 0) * stride[d];
            dense *= layers;
            if (b.fold && d == 0 && !b.own) { /* from the other end */
                to += (layers - 1) * stride[d];
                x.to_stride[d] = -stride[d];
            }
        }
        if (!some) {
            continue;
        }
        x.op = DPAR_SUM;
        x.negate = b.fold;
        x.clear = b.own;
        x.to = (unsigned char *)array + to * width;
        x.from = b.own ? (unsigned char *)array + from * width
                       : (unsigned char *)staging + *staged * width;
        *staged += dense;
        boxes->push_back(x);
    }
}

/* Tests the adjoint of a halo exchange: one launch, whatever overlaps, if its description fits. */
static void test_joint(void)
{
    static const block blocks[] = {
        /* dims components first own fold n low high */
        {3, 1, 0, 0, 0, 6, 1, 1}, {3, 1, 0, 1, 0, 5, 2, 1}, {3, 3, 0, 0, 1, 4, 1, 2},
        {3, 2, 1, 1, 0, 4, 1, 1}, {2, 1, 0, 0, 1, 7, 3, 2}, {1, 1, 0, 1, 0, 9, 2, 2},
        {4, 1, 0, 1, 0, 3, 1, 1}, {4, 2, 0, 0, 0, 3, 1, 1}, {2, 5, 1, 0, 0, 1, 1, 1},
        /* the last one is so much work that a thread does several elements */
        {3, 1, 0, 0, 0, 24, 2, 2}};
    static const int32_t types[] = {DPAR_F64, DPAR_F32, DPAR_BF16, DPAR_F16, DPAR_I32, DPAR_U8};
    for (int turn = 0; turn < rounds * 30; turn++) {
        const block &b = blocks[turn % 10];
        const int32_t type = types[turn % 6];
        const int fields = b.dims > 3 ? 1 : turn < 2 ? 8 : 1 + (int)below(3);
        const int64_t width = dpar_type_bytes(type), cells = block_cells(b);
        twin array(fields * cells * width, odd_place(type)), staging(fields * 8 * cells * width, 0);
        std::vector<dpar_mem_box> boxes[2];
        array.fill(type, 0);
        staging.fill(type, 0);
        for (int k = 0; k < 2; k++) {
            int64_t staged = 0;
            for (int f = 0; f < fields; f++) {
                adjoint_boxes(b, type,
                              (unsigned char *)(k ? array.h() : array.d()) + f * cells * width,
                              k ? staging.h() : staging.d(), &boxes[k], &staged);
            }
            CHECK(staged <= fields * 8 * cells);
        }
        gpu.launches = 0;
        CHECK_INT(device.move(device.ctx, boxes[0].data(), (int32_t)boxes[0].size()), DPAR_OK);
        CHECK_INT(gpu.launches, 1);
        CHECK_INT(host.move(host.ctx, boxes[1].data(), (int32_t)boxes[1].size()), DPAR_OK);
        CHECK(array.same(type, -1.0));
        CHECK(staging.same(type, -1.0));
    }
    /* more fields than the description of a launch can hold: several launches */
    for (int old = 0; old < 2; old++) {
        const block b = {3, 1, 0, 0, 0, 3, 1, 1};
        const int32_t arguments = gpu.arguments;
        twin array(9 * block_cells(b) * 8, 0), staging(9 * 8 * block_cells(b) * 8, 0);
        std::vector<dpar_mem_box> boxes[2];
        array.fill(DPAR_F64, 0);
        staging.fill(DPAR_F64, 0);
        for (int k = 0; k < 2; k++) {
            int64_t staged = 0;
            for (int f = 0; f < 9; f++) {
                adjoint_boxes(b, DPAR_F64,
                              (double *)(k ? array.h() : array.d()) + f * block_cells(b),
                              k ? staging.h() : staging.d(), &boxes[k], &staged);
            }
        }
        gpu.launches = 0;
        gpu.arguments = old ? 4096 : arguments; /* an old driver: seven sums overlap in a corner */
        CHECK_INT(device.move(device.ctx, boxes[0].data(), 9 * 26), DPAR_OK);
        CHECK(old ? gpu.launches >= 7 : gpu.launches == 2);
        gpu.arguments = arguments;
        CHECK_INT(host.move(host.ctx, boxes[1].data(), 9 * 26), DPAR_OK);
        CHECK(array.same(DPAR_F64, -1.0));
    }
    /* Boxes that are no halo, some of which read what others wrote: they must run in order. */
    for (int turn = 0; turn < 8; turn++) {
        twin to(400 * 4, 4 * below(4)), from(400 * 4, 0);
        dpar_mem_box box[2][12];
        memset(box, 0, sizeof box);
        to.fill(DPAR_F32, 0);
        from.fill(DPAR_F32, 0);
        for (int k = 0; k < 12; k++) {
            dpar_mem_box *b = &box[0][k];
            const int64_t at = below(200); /* of at most 190 elements */
            b->to_type = b->from_type = b->round_type = DPAR_F32;
            b->op = below(4) == 0 ? DPAR_MAX : DPAR_SUM;
            b->dims = 2;
            b->extent[0] = 1 + below(9);
            b->extent[1] = 1 + below(9);
            b->to_stride[0] = turn % 2 ? 17 : 9 + below(12);
            b->to_stride[1] = 1;
            b->from_stride[0] = 9;
            b->from_stride[1] = 1;
            box[1][k] = *b;
            /* Reads 81 elements of its own array next to the box, or of another one. */
            const int inside = turn % 4 > 1;
            const int64_t away = !inside ? below(300) : at < 100 ? at + 190 + below(29) : at % 20;
            b->to = (float *)to.d() + at;
            b->from = (float *)(inside ? to.d() : from.d()) + away;
            box[1][k].to = (float *)to.h() + at;
            box[1][k].from = (float *)(inside ? to.h() : from.h()) + away;
        }
        CHECK_INT(device.move(device.ctx, box[0], 12), DPAR_OK);
        CHECK_INT(host.move(host.ctx, box[1], 12), DPAR_OK);
        CHECK(to.same(DPAR_F32, -1.0));
    }
}

/* Tests as many boxes as are considered together, all with one target, of four dims and of five:
 * the sum of each element has its order. */
static void test_joint_crowd(void)
{
    enum { BOXES = 300, VOLUME = 32 };
    for (int32_t dims = 4; dims < 6; dims++) {
        const int64_t count = INT64_C(1) << dims;
        twin to(VOLUME * 4, 4), from(BOXES * VOLUME * 4, 0);
        std::vector<dpar_mem_box> box[2];
        to.fill(DPAR_F32, 0);
        from.fill(DPAR_F32, 0);
        for (int k = 0; k < 2 * BOXES; k++) {
            dpar_mem_box b;
            memset(&b, 0, sizeof b);
            b.to_type = b.from_type = b.round_type = DPAR_F32;
            b.op = DPAR_SUM;
            b.to = k % 2 ? to.h() : to.d();
            b.from = (float *)(k % 2 ? from.h() : from.d()) + k / 2 * count;
            b.dims = dims;
            for (int32_t d = 0; d < dims; d++) {
                b.extent[d] = 2;
                b.to_stride[d] = b.from_stride[d] = INT64_C(1) << d;
            }
            box[k % 2].push_back(b);
        }
        CHECK_INT(device.move(device.ctx, box[0].data(), BOXES), DPAR_OK);
        CHECK_INT(host.move(host.ctx, box[1].data(), BOXES), DPAR_OK);
        CHECK(to.same(DPAR_F32, -1.0));
    }
}

/* ---- spans ---- */

static void test_spans(void)
{
    static const int32_t others[] = {DPAR_I8, DPAR_U8, DPAR_I32, DPAR_I64, DPAR_F8};
    static const double scales[] = {1.0, 0.5, 1.0 / 3.0, -1e-3};
    for (int turn = 0; turn < rounds * 53; turn++) {
        const int32_t to_type = turn % 20 < 16 ? floats[turn % 4] : others[below(5)];
        const int32_t from_type = turn % 20 < 16 ? floats[turn / 4 % 4] : to_type;
        const int64_t count = some_count();
        twin to(count * dpar_type_bytes(to_type), odd_place(to_type));
        twin from(count * dpar_type_bytes(from_type), odd_place(from_type));
        dpar_mem_span span;
        memset(&span, 0, sizeof span);
        to.fill(to_type, 1);
        from.fill(from_type, 1);
        span.count = count;
        span.to_type = to_type;
        span.from_type = from_type;
        span.scale = is_float(to_type) ? scales[below(4)] : 1.0;
        span.accumulate = is_float(to_type) && below(3) == 0;
        span.to = to.d();
        span.from = from.d();
        const int fill = below(6) == 0;
        if (fill) {
            span.from = NULL;
            span.scale = is_float(to_type) ? span.scale : 0.0;
        }
        CHECK_INT(device.span(device.ctx, &span, 1), DPAR_OK);
        span.to = to.h();
        span.from = fill ? NULL : from.h();
        CHECK_INT(host.span(host.ctx, &span, 1), DPAR_OK);
        CHECK(to.same(to_type, -1.0));
        CHECK(from.same(from_type, -1.0));
    }
    for (int turn = 0; turn < rounds * 12; turn++) { /* rounded up or down by random numbers */
        const int32_t type = floats[turn % 4];
        const int64_t count = some_count();
        twin to(count * 2, odd_place(DPAR_BF16)),
            from(count * dpar_type_bytes(type), odd_place(type));
        dpar_mem_round round;
        memset(&round, 0, sizeof round);
        to.fill(DPAR_BF16, 1);
        from.fill(type, 1);
        round.count = count;
        round.from_type = type;
        round.seed = random_bits();
        round.stream = random_bits();
        round.index = random_bits() >> 20;
        on_both(&dpar_mem_layers::round, &round, [&](int on_device) {
            round.to = on_device ? to.d() : to.h();
            round.from = on_device ? from.d() : from.h();
        });
        CHECK(to.same(DPAR_BF16, -1.0));
        CHECK(from.same(type, -1.0));
    }
    /* Copies a bucket of many arrays there, in one launch, and back. */
    enum { MANY = 300 };
    dpar_mem_span there[MANY];
    twin bucket(MANY * 40 * 2, 2), arrays(MANY * 40 * 4, 0);
    int64_t at = 0;
    memset(there, 0, sizeof there);
    bucket.fill(DPAR_BF16, 0);
    arrays.fill(DPAR_F32, 0);
    for (int k = 0; k < MANY; k++) {
        there[k].count = below(40);
        there[k].to_type = DPAR_BF16;
        there[k].from_type = DPAR_F32;
        there[k].scale = 1.0;
        there[k].to = (uint16_t *)bucket.d() + at;
        there[k].from = (float *)arrays.d() + 40 * k;
        at += there[k].count;
    }
    gpu.launches = 0;
    CHECK_INT(device.span(device.ctx, there, MANY), DPAR_OK);
    CHECK_INT(gpu.launches, 1);
    for (int k = 0; k < MANY; k++) {
        there[k].to = (uint16_t *)bucket.h() + ((uint16_t *)there[k].to - (uint16_t *)bucket.d());
        there[k].from = (float *)arrays.h() + 40 * k;
    }
    CHECK_INT(host.span(host.ctx, there, MANY), DPAR_OK);
    CHECK(bucket.same(DPAR_BF16, -1.0));
}

/* ---- sums of parts, NaN, squares ---- */

static void test_reduce(void)
{
    for (int turn = 0; turn < rounds * 32; turn++) {
        const int32_t to_type = floats[turn % 4], from_type = floats[turn / 4 % 4];
        const int64_t count = some_count(), parts = 1 + below(9);
        const int64_t stride = count + below(2) * below(9);
        const int wide = to_type == DPAR_F64 || from_type == DPAR_F64;
        twin to(count * dpar_type_bytes(to_type), odd_place(to_type));
        twin from(std::max<int64_t>(0, (parts - 1) * stride + count) * dpar_type_bytes(from_type),
                  odd_place(from_type));
        dpar_mem_reduce r;
        memset(&r, 0, sizeof r);
        to.fill(to_type, 1);
        from.fill(from_type, 1);
        r.count = count;
        r.parts = parts;
        r.stride = stride;
        r.to_type = to_type;
        r.from_type = from_type;
        r.sum_type = wide || below(2) == 0 ? DPAR_F64 : DPAR_F32;
        r.op = DPAR_SUM + (int32_t)below(5);
        r.accumulate = (int32_t)below(2);
        r.scale = below(2) == 0 ? 1.0 : 1.0 / 3.0;
        on_both(&dpar_mem::reduce, &r, [&](int on_device) {
            r.to = to.at(on_device);
            r.from = from.at(on_device);
        });
        CHECK(to.same(to_type, to_type == DPAR_F32 ? 0.0 : -1.0)); /* NaN payloads may differ */
    }
}

/* Tests integers with random bits, so that sums and products wrap; arrays in units of 16 bytes, and
 * others; into one of the parts. */
static void test_reduce_ints(void)
{
    static const int32_t types[6] = {DPAR_I8, DPAR_U8, DPAR_I32, DPAR_U32, DPAR_I64, DPAR_U64};
    for (int turn = 0; turn < 90 + rounds * 30; turn++) {
        const int32_t type = types[turn % 6], width = dpar_type_bytes(type);
        const int64_t count = some_count(), parts = 1 + below(turn % 7 == 0 ? 300 : 9);
        const int even = turn / 6 % 3 != 0, inside = turn % 5 == 0;
        const int64_t stride = even ? (count + 15) / 16 * 16 : count + below(9);
        const int64_t size = std::max<int64_t>(0, (parts - 1) * stride + count) * width;
        twin to(count * width, even ? 0 : odd_place(type)), from(size, even ? 0 : odd_place(type));
        const int64_t own = inside ? below(parts) * stride * width : 0;
        dpar_mem_reduce r;
        memset(&r, 0, sizeof r);
        to.fill(type, 0);
        from.fill(type, 0);
        r.count = count;
        r.parts = parts;
        r.stride = stride;
        r.to_type = r.from_type = r.sum_type = type;
        r.op = DPAR_SUM + turn / 6 % 5;
        r.scale = 1.0;
        on_both(&dpar_mem::reduce, &r, [&](int on_device) {
            r.from = from.at(on_device);
            r.to = inside ? (unsigned char *)from.at(on_device) + own : to.at(on_device);
        });
        CHECK(to.same(type, -1.0));
        CHECK(from.same(type, -1.0));
        r.accumulate = 1; /* not allowed for integers */
        CHECK_INT(device.reduce(device.ctx, &r), DPAR_E_ARG);
        CHECK_INT(host.reduce(host.ctx, &r), DPAR_E_ARG);
        r.accumulate = 0;
        r.sum_type = DPAR_F64;
        CHECK_INT(device.reduce(device.ctx, &r), DPAR_E_ARG);
        CHECK_INT(host.reduce(host.ctx, &r), DPAR_E_ARG);
    }
}

static void test_finite(void)
{
    for (int turn = 0; turn < rounds * 20; turn++) {
        const int32_t type = floats[turn % 4];
        const int64_t count = some_count();
        twin in(count * dpar_type_bytes(type), odd_place(type)), found(8, 0);
        dpar_mem_finite f;
        in.fill(type, 0);
        for (int64_t k = below(3); k > 0 && count > 0; k--) {
            write_at(in.h(), below(count), type, k == 1 ? (double)NAN : -(double)INFINITY);
        }
        in.give();
        memset(&f, 0, sizeof f);
        f.count = count;
        f.first = 1000;
        f.type = type;
        f.keep_found = (int32_t)below(2);
        *(int64_t *)found.h() = below(2) == 0 ? -1 : 77;
        found.give();
        on_both(&dpar_mem::finite, &f, [&](int on_device) {
            f.in = in.at(on_device);
            f.found = (int64_t *)found.at(on_device);
        });
        CHECK(found.same(DPAR_I64, -1.0));
    }
}

/* Tests sums of squares. The bits must not depend on the number of blocks or the address. */
static void test_squares(void)
{
    for (int turn = 0; turn < rounds * 20; turn++) {
        const int32_t type = floats[turn % 4];
        const int64_t count = turn < 8 ? 9001 + turn : some_count();
        twin in(count * dpar_type_bytes(type), 0), shifted(count * dpar_type_bytes(type), 8);
        twin sum(8, 0), again(8, 0);
        dpar_mem_squares q;
        in.fill(type, 0);
        memcpy(shifted.h(), in.h(), (size_t)in.bytes);
        shifted.give();
        memset(&q, 0, sizeof q);
        q.count = count;
        q.type = type;
        q.accumulate = (int32_t)below(2);
        *(double *)sum.h() = *(double *)again.h() = 0.75;
        sum.give();
        again.give();
        q.in = in.d();
        q.sum = (double *)sum.d();
        CHECK_INT(device_layers.squares(device.ctx, &q), DPAR_OK);
        q.in = shifted.d();
        q.sum = (double *)again.d();
        gpu.max_blocks = 3;
        CHECK_INT(device_layers.squares(device.ctx, &q), DPAR_OK);
        gpu.max_blocks = 0;
        CHECK(sum.taken() == again.taken());
        q.in = in.h();
        q.sum = (double *)sum.h();
        CHECK_INT(host_layers.squares(host.ctx, &q), DPAR_OK);
        CHECK(sum.same(DPAR_F64, 1e-13));
    }
    for (int turn = 0; turn < 6; turn++) {
        static const double squares[6] = {4.0, 1e-30, 0.0, (double)INFINITY, (double)NAN, 25.0};
        twin s(8, 0), factor(8, 0);
        dpar_mem_clip c;
        *(double *)s.h() = squares[turn];
        s.give();
        c.limit = turn == 5 ? 0.0 : 1.5;
        c.scale = 0.5;
        on_both(&dpar_mem_layers::clip, &c, [&](int on_device) {
            c.squares = (const double *)s.at(on_device);
            c.factor = (double *)factor.at(on_device);
        });
        CHECK(factor.same(DPAR_F64, 1e-15));
    }
}

/* ---- optimizers ---- */

static void test_optimize(void)
{
    for (int turn = 0; turn < rounds * 40; turn++) {
        const int32_t wt = floats[turn % 4], gt = floats[turn / 4 % 4];
        const int narrow = wt != DPAR_F64 && turn / 16 % 2 == 0; /* moments of BF16 */
        const int32_t st = wt == DPAR_F64 ? DPAR_F64 : narrow ? DPAR_BF16 : DPAR_F32;
        const int32_t ct = turn % 3 == 0 ? DPAR_BF16 : turn % 3 == 1 ? DPAR_F16 : DPAR_F32;
        const int many = turn % 3 == 2; /* one block does more elements than it has threads */
        const int64_t n = many ? 2100 + turn : some_count();
        const int quickly = below(3) == 0;
        twin w(n * dpar_type_bytes(wt), odd_place(wt)), g(n * dpar_type_bytes(gt), odd_place(gt));
        twin m(n * dpar_type_bytes(st), odd_place(st)), v(n * dpar_type_bytes(st), odd_place(st));
        twin copy(n * dpar_type_bytes(ct), odd_place(ct)), rest(n * 2, odd_place(DPAR_BF16));
        twin factor(8, 0);
        dpar_optimizer o = below(3) > 0 ? adamw() : sgd(below(2) == 0 ? 0.0 : 0.9);
        dpar_optimizer_piece piece[2];
        dpar_mem_optimize x[2];
        const int has_rest = wt == DPAR_BF16 && below(2) == 0,
                  has_copy = !has_rest && below(2) == 0;
        o.nesterov = (int32_t)below(2);
        o.decay = 0.1;
        o.stochastic = !has_rest && below(2) == 0;
        o.seed = random_bits();
        o.moment_type = narrow ? DPAR_BF16 : 0;
        w.fill(wt, 0);
        g.fill(gt, 0);
        m.fill(st, 0);
        v.fill(st, 0);
        copy.fill(ct, 0);
        for (int64_t i = 0; i < n; i++) {
            write_at(v.h(), i, st, fabs(read_at(v.h(), i, st)));
            ((int16_t *)rest.h())[i] = (int16_t)random_bits();
        }
        v.give();
        rest.give();
        const int dead = below(5) == 0; /* a factor of 0, whatever the gradients are */
        if (dead && n > 0) {
            write_at(g.h(), n / 2, gt, (double)NAN);
            g.give();
        }
        *(double *)factor.h() = dead ? 0.0 : 0.7;
        factor.give();
        memset(piece, 0, sizeof piece);
        memset(x, 0, sizeof x);
        for (int k = 0; k < 2; k++) {
            piece[k].weight = k ? w.h() : w.d();
            piece[k].gradient = k ? g.h() : g.d();
            piece[k].m = k ? m.h() : m.d();
            piece[k].v = k ? v.h() : v.d();
            piece[k].weight_type = wt;
            piece[k].gradient_type = gt;
            piece[k].count = n;
            piece[k].index = 12345 + (uint64_t)turn;
            x[k].optimizer = &o;
            x[k].piece = &piece[k];
            x[k].step = 1 + turn % 5;
            x[k].rate = 0.01;
            x[k].factor = 0.5;
            x[k].factor_at = (const double *)(k ? factor.h() : factor.d());
            x[k].copy = has_copy ? k ? copy.h() : copy.d() : NULL;
            x[k].copy_type = ct;
            x[k].remainder = has_rest ? (int16_t *)(k ? rest.h() : rest.d()) : NULL;
        }
        /* 16 bits: a double that differs in its last bit may be on the other side of a limit of
         * rounding, so that the result differs by one unit. The same holds for f32. */
        const double one = wt == DPAR_F64    ? 1e-14
                           : wt == DPAR_F32  ? 1.3e-7
                           : wt == DPAR_BF16 ? 8e-3
                                             : 1e-3;
        const int f32 = quickly && wt != DPAR_F64 && gt != DPAR_F64;
        gpu.max_blocks = fast.max_blocks = many;
        CHECK_INT(quickly ? quick_layers.optimize(quick.ctx, &x[0])
                          : device_layers.optimize(device.ctx, &x[0]),
                  DPAR_OK);
        CHECK_INT(device.wait(device.ctx), DPAR_OK);
        gpu.max_blocks = fast.max_blocks = 0;
        CHECK_INT(host_layers.optimize(host.ctx, &x[1]), DPAR_OK);
        const int moments = moments_of(&o);
        within = f32 ? 1.0 : 1e-2; /* weights cancel */
        CHECK(w.same(wt, f32 && wt == DPAR_F32 ? 1e-6 : one));
        /* Moments have no roots: in BF16 the bits are the same, in f32 at most one unit differs. */
        const double of_m = narrow           ? f32 ? 8e-3 : -1.0
                            : f32            ? 1e-5
                            : st == DPAR_F64 ? 1e-14
                                             : 1.3e-7;
        const double of_v = narrow ? of_m : f32 ? 1e-6 : of_m;
        CHECK(m.same(st, moments > 0 ? of_m : -1.0));
        CHECK(v.same(st, moments > 1 ? of_v : -1.0));
        const double of_copy = ct == DPAR_F32 ? 1e-6 : ct == DPAR_BF16 ? 8e-3 : 1e-3;
        /* rounded from a weight compared above */
        CHECK(copy.same(ct, has_copy ? std::max(of_copy, one) : -1.0));
        if (has_rest && n > 0) { /* both halves together are an f32 */
            const bytes_of high = w.taken(), low = rest.taken();
            for (int64_t i = 0; i < n; i++) {
                const double made = (double)whole_of(high.data() + GUARD, low.data() + GUARD, i);
                const double expected = (double)whole_of(w.h(), rest.h(), i);
                if (!near_enough(made, expected, f32 ? 1e-6 : 1.3e-7)) {
                    CHECK_NEAR(made, expected, 1e-6);
                    break;
                }
            }
        }
        within = 1e-30;
    }
}

/* ---- rows ---- */

/* Returns an index of `n` rows of `have` in a twin, some of them below 0 or outside of the
 * windows. */
static dpar_mem_index any_index(twin *at, int64_t n, int64_t have, int wide, int windows)
{
    dpar_mem_index x;
    memset(&x, 0, sizeof x);
    x.type = wide ? DPAR_I64 : DPAR_I32;
    x.windows = windows;
    for (int w = 0; w < windows; w++) {
        x.lo[w] = 100 * w;
        x.hi[w] = x.lo[w] + have / windows;
        x.row[w] = w * (have / windows);
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t k = below(5) == 0 ? -1 - below(3) : below(have);
        if (windows > 0 && k >= 0) {
            k = below(windows) * 100 + below(have / windows + 2);
        }
        if (wide) {
            ((int64_t *)at->h())[i] = k;
        } else {
            ((int32_t *)at->h())[i] = (int32_t)k;
        }
    }
    at->give();
    return x;
}

static void test_gather(void)
{
    for (int turn = 0; turn < rounds * 20; turn++) {
        const int64_t rows = some_count() % 300, have = 4 + below(40), unit = 1 << below(5);
        const int64_t bytes = unit * below(turn % 8 == 0 ? 700 : 12);
        const int64_t to_step = bytes + unit * below(3);
        const int64_t from_step = below(7) == 0 ? 0 : bytes + unit * below(3);
        const int wide = (int)below(2), windows = (int)below(3);
        twin to(rows * to_step, unit * below(4)),
            from((have - 1) * from_step + bytes, unit * below(4));
        twin at(rows * 8, 0);
        dpar_mem_gather g;
        to.fill(DPAR_U8, 0);
        from.fill(DPAR_U8, 0);
        memset(&g, 0, sizeof g);
        g.index = any_index(&at, rows, have, wide, windows);
        g.rows = rows;
        g.bytes = bytes;
        g.to_step = to_step;
        g.from_step = from_step;
        on_both(&dpar_mem_layers::gather, &g, [&](int on_device) {
            g.to = to.at(on_device);
            g.from = from.at(on_device);
            g.index.at = at.at(on_device);
        });
        CHECK(to.same(DPAR_U8, -1.0));
    }
}

/* Runs the operation with both tables on the arrays of each side. */
static void scatter_both(dpar_mem_scatter s, twin &to, twin &from, twin &at, double relative)
{
    on_both(&dpar_mem_layers::scatter, &s, [&](int on_device) {
        s.to = to.at(on_device);
        s.from = from.at(on_device);
        s.index.at = at.at(on_device);
    });
    CHECK(to.same(s.type, relative));
}

static void test_scatter(void)
{
    for (int turn = 0; turn < rounds * 10; turn++) {
        const int32_t type = turn % 2 ? DPAR_F64 : DPAR_F32;
        const int64_t rows = turn < 2 ? 0 : 1 + below(60), have = 1 + below(20), width = below(300);
        twin to(have * width * dpar_type_bytes(type), odd_place(type));
        twin from(rows * width * dpar_type_bytes(type), odd_place(type)), at(rows * 8, 0);
        dpar_mem_scatter s;
        to.fill(type, 1);
        from.fill(type, 1);
        memset(&s, 0, sizeof s);
        s.index = any_index(&at, rows, have, turn % 3 == 0, 0);
        s.rows = rows;
        s.width = width;
        s.type = type;
        scatter_both(s, to, from, at, type == DPAR_F32 ? 0.0 : -1.0); /* NaN payloads may differ */
    }
}

/* Tests merged runs, windows, targets of many rows, and row numbers at the ends of their range. The
 * bits depend on the order of the rows. */
static void test_scatter_order(void)
{
    const int64_t bytes = gpu.scratch_bytes;
    for (int turn = 0; turn < 8; turn++) {
        static const int64_t counts[8] = {2048, 2049, 4096, 5000, 6200, 9000, 3000, 700};
        const int64_t rows = counts[turn], have = turn % 4 == 3 ? 3 : 1 + rows / 3;
        const int64_t width = turn % 4 == 3 ? 4 * turn + 32 : 1 + turn % 3 * 3; /* two tiles */
        const int32_t type = turn == 3 ? DPAR_F64 : DPAR_F32, size = dpar_type_bytes(type);
        twin to(have * width * size, size * (turn % 3)), from(rows * width * size, size);
        twin at(rows * 8, 0);
        dpar_mem_scatter s;
        int64_t launches = 0;
        to.fill(type, 0);
        from.fill(type, 0);
        memset(&s, 0, sizeof s);
        s.index.type = DPAR_I64;
        for (int64_t i = 0; i < rows; i++) {
            ((int64_t *)at.h())[i] = turn == 6 ? rows / 3 - i / 3
                                     : below(9) == 0
                                         ? below(2) ? INT64_MIN + below(9) : -1 - below(9)
                                     : turn % 4 == 3 ? below(3) * (below(8) != 0)
                                                     : below(have);
        }
        at.give();
        s.rows = rows;
        s.width = width;
        s.type = type;
        gpu.scratch_bytes = turn % 2 ? bytes : 16 * 2500; /* windows of 2500 rows */
        for (int64_t left = rows; left > 0; left -= gpu.scratch_bytes / 16) {
            const int64_t now = std::min(left, gpu.scratch_bytes / 16);
            launches += 2 + (now > 1024) + (now >= 32); /* also searches for targets of many rows */
        }
        gpu.launches = 0;
        scatter_both(s, to, from, at, -1.0);
        CHECK_INT(gpu.launches, launches);
    }
    gpu.scratch_bytes = bytes;
}

static void test_combine_and_dot(void)
{
    for (int turn = 0; turn < rounds * 16; turn++) {
        const int32_t tt = floats[turn % 4], ft = floats[turn / 4 % 4];
        const int32_t wt = turn % 3 ? DPAR_F32 : DPAR_F64;
        const int64_t rows = below(40), k = 1 + below(4), have = 4 + below(20), width = below(90);
        twin to(rows * width * dpar_type_bytes(tt), odd_place(tt));
        twin from(have * width * dpar_type_bytes(ft), odd_place(ft)), at(rows * k * 8, 0);
        twin weight(rows * k * dpar_type_bytes(wt), 0), sums(rows * dpar_type_bytes(wt), 0);
        twin left((rows + k) * width * dpar_type_bytes(ft), 0);
        dpar_mem_combine m;
        dpar_mem_dot d;
        to.fill(tt, 0);
        from.fill(ft, 0);
        weight.fill(wt, 0);
        left.fill(ft, 0);
        memset(&m, 0, sizeof m);
        m.index = any_index(&at, rows * k, have, turn % 2, turn % 5 == 0);
        m.rows = rows;
        m.choices = k;
        m.width = width;
        m.to_type = tt;
        m.from_type = ft;
        m.weight_type = wt;
        on_both(&dpar_mem_layers::combine, &m, [&](int on_device) {
            m.to = to.at(on_device);
            m.from = from.at(on_device);
            m.weight = turn % 7 ? weight.at(on_device) : NULL;
            m.index.at = at.at(on_device);
        });
        CHECK(to.same(tt, -1.0));
        memset(&d, 0, sizeof d);
        d.index = m.index;
        d.rows = rows;
        d.choices = k;
        d.width = width;
        d.to_type = wt;
        d.type = ft;
        on_both(&dpar_mem_layers::dot, &d, [&](int on_device) {
            d.to = sums.at(on_device);
            d.a = left.at(on_device);
            d.b = from.at(on_device);
            d.index.at = at.at(on_device);
        });
        within = 100.0; /* products of up to 4 that cancel */
        CHECK(sums.same(wt, wt == DPAR_F64 ? 1e-15 : 1e-7));
        within = 1e-30;
    }
}

/* ---- cross-entropy ---- */

static void test_cross_entropy(void)
{
    for (int turn = 0; turn < rounds * 12; turn++) {
        const int32_t type = turn % 2 ? DPAR_F64 : DPAR_F32;
        const int64_t tokens = turn == 0 ? 0 : 1 + below(40),
                      rows = 8 + below(turn % 5 ? 90 : 2100);
        const int32_t ranks = 1 + (int32_t)below(3);
        const int64_t width = dpar_type_bytes(type);
        const int quickly = turn % 4 == 0;
        const dpar_mem *table = quickly ? &quick : &device;
        const dpar_mem_layers *layers = quickly ? &quick_layers : &device_layers;
        const double one = type == DPAR_F64 ? 1e-13 : quickly ? 1e-5 : 3e-7;
        twin logits(tokens * rows * width, odd_place(type)), own(tokens * 3 * width, 0);
        twin all(ranks * tokens * 3 * width, 0), lse(tokens * 8, 0), loss(tokens * 8, 0);
        twin target(tokens * 8, 0), sum((int64_t)sizeof(dpar_cross_entropy_sum), 0);
        dpar_mem_cross_entropy x[2];
        logits.fill(type, 0);
        all.fill(type, 0);
        for (int64_t i = 0; i < ranks * tokens; i++) { /* sums of exponentials are never negative */
            const double s = read_at(all.h(), 3 * i + 1, type);
            write_at(all.h(), 3 * i + 1, type, below(6) == 0 ? 0.0 : fabs(s) + 0.1);
        }
        all.give();
        if (turn % 3 == 0 && tokens > 2) { /* a row of -infinity, and single ones */
            for (int64_t c = 0; c < rows; c++) {
                write_at(logits.h(), rows + c, type, -(double)INFINITY);
            }
            write_at(logits.h(), 3, type, -(double)INFINITY);
            logits.give();
        }
        memset(x, 0, sizeof x);
        x[0].target = any_index(&target, tokens, rows / 2 - 1, turn % 2, 0);
        x[0].type = type;
        x[0].tokens = tokens;
        x[0].rows = rows;
        x[0].hi[0] = rows / 2 - 1;
        x[0].lo[1] = rows / 2 + 1;
        x[0].hi[1] = rows / 2 + 1 + below(rows / 2 - 1);
        x[0].vocabulary = 3 * rows;
        if (turn % 4 == 3 || turn % 8 == 4) { /* all columns belong to the vocabulary */
            x[0].hi[0] = x[0].lo[1] = x[0].hi[1] = rows;
        }
        x[0].ignore = below(2) == 0 ? 0 : 3;
        x[0].smoothing = turn % 3 == 1 ? 0.1 : 0.0;
        x[0].z_loss = below(2) == 0 ? 0.0 : 1e-4;
        x[0].ranks = ranks;
        x[0].scale = 0.25;
        x[1] = x[0];
        for (int k = 0; k < 2; k++) {
            x[k].target.at = k ? target.h() : target.d();
            x[k].logits = k ? logits.h() : logits.d();
            x[k].partial = k ? own.h() : own.d();
            x[k].all = k ? all.h() : all.d();
            x[k].lse = (double *)(k ? lse.h() : lse.d());
            x[k].loss = turn % 5 ? (double *)(k ? loss.h() : loss.d()) : NULL;
            x[k].sum = (dpar_cross_entropy_sum *)(k ? sum.h() : sum.d());
        }
        for (int phase = 0; phase < 3; phase++) {
            x[0].phase = x[1].phase = phase;
            CHECK_INT(layers->cross_entropy(table->ctx, &x[0]), DPAR_OK);
            CHECK_INT(table->wait(table->ctx), DPAR_OK);
            CHECK_INT(host_layers.cross_entropy(host.ctx, &x[1]), DPAR_OK);
        }
        within = 1.0;
        CHECK(own.same(type, one));
        CHECK(lse.same(DPAR_F64, 1e-13));
        CHECK(loss.same(DPAR_F64, 1e-13));
        CHECK(logits.same(type, one));
        within = 100.0;
        const bytes_of made = sum.taken();
        dpar_cross_entropy_sum a, b;
        memcpy(&a, made.data() + GUARD, sizeof a);
        memcpy(&b, sum.h(), sizeof b);
        CHECK_INT(a.tokens, b.tokens);
        CHECK(near_enough(a.loss, b.loss, 1e-13) && near_enough(a.z_loss, b.z_loss, 1e-13));
        within = 1e-30;
    }
}

/* ---- merging, moments ---- */

static void test_merge(void)
{
    for (int turn = 0; turn < rounds * 12; turn++) {
        const int32_t type = turn % 2 ? DPAR_F64 : DPAR_F32;
        const int64_t rows = turn == 0 ? 0 : 1 + below(400), values = below(turn % 6 ? 40 : 5000);
        const int64_t some = values > 100 ? 1 + rows % 7 : rows;
        twin out(some * values * dpar_type_bytes(type), odd_place(type));
        twin more(some * values * dpar_type_bytes(type), odd_place(type));
        twin lse(some * dpar_type_bytes(type), 0), more_lse(some * dpar_type_bytes(type), 0);
        dpar_mem_attention_merge m;
        out.fill(type, 0);
        more.fill(type, 0);
        lse.fill(type, 0);
        more_lse.fill(type, 0);
        for (int64_t i = 0; i < some; i += 1 + below(4)) {
            static const double odd[3] = {-1e30, -(double)INFINITY, 80.0};
            write_at(below(2) ? lse.h() : more_lse.h(), i, type, odd[below(3)]);
        }
        lse.give();
        more_lse.give();
        memset(&m, 0, sizeof m);
        m.type = type;
        m.rows = some;
        m.values = values;
        on_both(&dpar_mem_layers::attention_merge, &m, [&](int on_device) {
            m.out = out.at(on_device);
            m.lse = lse.at(on_device);
            m.more = more.at(on_device);
            m.more_lse = more_lse.at(on_device);
        });
        within = 1.0;
        CHECK(out.same(type, type == DPAR_F64 ? 1e-14 : 2e-7));
        CHECK(lse.same(type, type == DPAR_F64 ? 1e-14 : 2e-7));
        within = 1e-30;
    }
}

static void test_moments(void)
{
    for (int turn = 0; turn < rounds * 20; turn++) {
        const int32_t type = floats[turn % 4];
        const int32_t channels = 1 + (int32_t)below(6), samples = 1 + (int32_t)below(3);
        dpar_mem_moments m;
        int64_t step = 1, sets;
        memset(&m, 0, sizeof m);
        m.type = type;
        m.dims = (int32_t)below(4);
        for (int32_t d = m.dims - 1; d >= 0; d--) {
            m.extent[d] = below(15) == 0 ? 0 : 1 + below(turn % 8 == 0 ? 40 : 9);
            m.stride[d] = step;
            step = step * std::max<int64_t>(1, m.extent[d]) + below(2) * below(3);
        }
        if (turn % 5 < 2) { /* dense planes in units of four; slices of a set */
            m.dims = 2;
            m.extent[0] = turn % 5 ? 2000 : 1 + below(60);
            m.extent[1] = turn % 2 ? 4 : 8;
            m.stride[1] = 1;
            step = m.stride[0] = m.extent[1];
            step *= m.extent[0];
        }
        m.planes = (int64_t)channels * samples;
        m.channels = channels;
        m.groups = below(3) == 0 ? 0 : channels % 2 == 0 ? channels / 2 : channels;
        m.step = step + (turn % 5 < 2 ? 4 * below(2) : below(3));
        m.accumulate = (int32_t)below(2);
        sets = m.groups > 0 ? (int64_t)samples * m.groups : channels;
        twin x(m.step * m.planes * dpar_type_bytes(type), odd_place(type)), to(sets * 24, 0);
        x.fill(type, 0);
        for (int64_t i = 0; i < sets; i++) {
            ((double *)to.h())[3 * i] = (double)below(4);
            ((double *)to.h())[3 * i + 1] = 0.5;
            ((double *)to.h())[3 * i + 2] = 2.0;
        }
        to.give();
        on_both(&dpar_mem_layers::moments, &m, [&](int on_device) {
            m.x = x.at(on_device);
            m.to = (double *)to.at(on_device);
        });
        within = 1.0;
        CHECK(to.same(DPAR_F64, 1e-13));
        within = 1e-30;
    }
}

/* Draws planes of points of `dims` dims: dense or with gaps, planes outermost or innermost. */
static int64_t any_planes(const dpar_mem_norm *m, dpar_mem_planes *p)
{
    const int last = (int)below(3) == 0;
    int64_t step = last ? m->planes + below(2) : 1;
    for (int32_t d = m->dims - 1; d >= 0; d--) {
        p->stride[d] = step;
        step = step * std::max<int64_t>(1, m->extent[d]) + below(3) * below(2);
    }
    p->step = last ? 1 : step + below(3);
    return last ? std::max(step, m->planes) : p->step * m->planes;
}

static void norm_takes(dpar_mem_norm *m, int32_t phase, int there, twin *const *t)
{
    void *at[10];
    for (int i = 0; i < 10; i++) {
        at[i] = t[i] == NULL ? NULL : there ? t[i]->d() : t[i]->h();
    }
    m->phase = phase;
    m->x.data = at[0];
    m->dy.data = at[1];
    m->to.data = at[2];
    m->scale = at[3];
    m->shift = at[4];
    m->all = (const double *)at[5];
    m->saved = (double *)at[6];
    m->sums = (double *)at[7];
    m->total = (double *)at[8];
    m->scale_gradient = (double *)at[9];
    m->shift_gradient = at[9] == NULL ? NULL : (double *)at[9] + m->channels;
}

/* Tests all phases, each from the host's results of the phase before. */
static void test_norm(void)
{
    for (int turn = 0; turn < rounds * 20; turn++) {
        const int32_t type = turn % 2 ? DPAR_F64 : DPAR_F32;
        const int32_t samples = 1 + (int32_t)below(3), ranks = 1 + (int32_t)below(5);
        const int64_t width = dpar_type_bytes(type);
        const double fine = type == DPAR_F64 ? 1e-13 : 2e-7;
        dpar_mem_norm m;
        memset(&m, 0, sizeof m);
        m.type = type;
        m.channels = turn % 7 == 0 ? 300 : 1 + (int32_t)below(6);
        m.planes = (int64_t)m.channels * samples;
        m.groups = below(3) == 0 ? 0 : m.channels % 2 == 0 ? m.channels / 2 : m.channels;
        m.ranks = ranks;
        m.dims = turn % 8 == 1 ? 2 : (int32_t)below(4);
        m.epsilon = 1e-5;
        for (int32_t d = 0; d < m.dims; d++) {
            m.extent[d] = below(15) == 0 ? 0 : 1 + below(turn % 8 == 1 && m.planes < 10 ? 200 : 7);
        }
        const int64_t sets = m.groups > 0 ? (int64_t)samples * m.groups : m.channels;
        twin x(any_planes(&m, &m.x) * width, odd_place(type));
        twin dy(any_planes(&m, &m.dy) * width, odd_place(type));
        twin to(any_planes(&m, &m.to) * width, odd_place(type));
        twin scale(m.channels * width, odd_place(type)), shift(m.channels * width, 0);
        twin all(ranks * sets * 24, 0), saved(sets * 16, 0), sums(m.planes * 16, 0);
        twin total(sets * 24, 0), gradient(m.channels * 16, 0);
        twin *t[10] = {&x, &dy, &to, &scale, &shift, &all, &saved, &sums, &total, &gradient};
        for (int i = 0; i < 5; i++) {
            t[i]->fill(type, 0);
        }
        gradient.fill(DPAR_F64, 0);
        for (int64_t i = 0; i < ranks * sets; i++) {
            double *one = (double *)all.h() + 3 * i;
            one[0] = (double)below(9);
            one[1] = (double)below(5) - 2.0;
            one[2] = one[0] * (1.0 + (double)below(3));
        }
        all.give();
        t[3] = turn % 5 == 0 ? NULL : t[3];
        t[4] = turn % 5 < 2 ? NULL : t[4];
        t[9] = turn % 6 == 0 ? NULL : t[9];
        within = 1.0;
        for (int32_t phase = DPAR_MEM_NORM_MERGE; phase <= DPAR_MEM_NORM_GRADIENT; phase++) {
            norm_takes(&m, phase, 1, t);
            CHECK_INT(device_layers.norm(device.ctx, &m), DPAR_OK);
            norm_takes(&m, phase, 0, t);
            CHECK_INT(host_layers.norm(host.ctx, &m), DPAR_OK);
            CHECK(to.same(type, fine));
            CHECK(saved.same(DPAR_F64, 1e-13));
            CHECK(sums.same(DPAR_F64, 1e-12) && total.same(DPAR_F64, 1e-12));
            CHECK(gradient.same(DPAR_F64, 1e-12));
            saved.give();
            total.give();
        }
        within = 1e-30;
        m.phase = 7;
        CHECK_INT(device_layers.norm(device.ctx, &m), DPAR_E_ARG);
        CHECK_INT(host_layers.norm(host.ctx, &m), DPAR_E_ARG);
    }
}

/* ---- 8 bits ---- */

static void test_quantize(void)
{
    for (int turn = 0; turn < rounds * 21; turn++) {
        const int32_t type = floats[turn % 4], code_type = turn / 4 % 2 ? DPAR_I8 : DPAR_F8;
        const int64_t count = some_count();
        const int64_t block = turn % 9 == 0   ? 3000
                              : turn % 9 == 4 ? 128 << below(3)
                                              : 1 + below(turn % 2 ? 600 : 64);
        const int64_t blocks = (count + block - 1) / block;
        const int beside = (int)below(2);
        const int64_t step = beside ? (block + 3) / 4 * 4 + 4 : block + below(3);
        twin x(count * dpar_type_bytes(type), odd_place(type));
        twin back(count * dpar_type_bytes(type), odd_place(type));
        twin code(blocks * step + 8, beside ? 0 : below(4)), scale(blocks * 4, 0);
        dpar_mem_quantize q;
        x.fill(type, turn % 5 == 0);
        back.fill(type, 0);
        if (turn % 3 == 0 && count > 0) {
            write_at(x.h(), below(count), type, turn % 2 ? (double)NAN : -(double)INFINITY);
        }
        for (int64_t i = 0; i < count && turn % 7 == 0; i++) { /* tiny values */
            write_at(x.h(), i, type, 1e-37 * read_at(x.h(), i, type));
        }
        x.give();
        memset(&q, 0, sizeof q);
        q.count = count;
        q.block = block;
        q.type = type;
        q.code_type = code_type;
        q.code_step = step;
        q.scale_step = beside ? step : 4;
        q.x = x.d();
        q.code = code.d();
        q.scale = beside ? (unsigned char *)code.d() + step - 4 : scale.d();
        CHECK_INT(device_layers.quantize(device.ctx, &q), DPAR_OK);
        q.accumulate = (int32_t)below(2);
        q.x = back.d();
        CHECK_INT(device_layers.dequantize(device.ctx, &q), DPAR_OK);
        const int32_t add = q.accumulate;
        q.accumulate = 0;
        q.x = x.h();
        q.code = code.h();
        q.scale = beside ? (unsigned char *)code.h() + step - 4 : scale.h();
        CHECK_INT(host_layers.quantize(host.ctx, &q), DPAR_OK);
        q.accumulate = add;
        q.x = back.h();
        CHECK_INT(host_layers.dequantize(host.ctx, &q), DPAR_OK);
        CHECK(code.same(DPAR_U8, -1.0));
        CHECK(scale.same(DPAR_U8, -1.0));
        CHECK(back.same(type, -1.0));
    }
}

/* ---- errors, streams, graphs ---- */

/* Tests the formats of tensor cores, rounded to nearest and stochastically. */
static void test_quantize_formats(void)
{
    for (int turn = 0; turn < 48 + rounds * 24; turn++) {
        const int32_t type = floats[turn / 4 % 4], format = DPAR_MEM_MXFP8 + turn % 4;
        const int64_t block = format == DPAR_MEM_NVFP4 ? 16 : 32;
        const int64_t bytes = format < DPAR_MEM_MXFP4 ? 32 : block / 2;
        const int64_t count = some_count(), blocks = (count + block - 1) / block;
        const int beside = (int)below(3); /* scales after their codes */
        const int64_t step = beside == 0 ? bytes : bytes + 1 + below(3);
        const int64_t place = turn % 3 == 0 ? 0 : odd_place(type);
        twin x(count * dpar_type_bytes(type), place), back(count * dpar_type_bytes(type), place);
        twin code(blocks * step + 8, turn % 3 == 1 ? below(4) : 0), scale(blocks, 0), tensor(4, 0);
        dpar_mem_quantize q;
        x.fill(type, turn % 5 == 0);
        back.fill(type, 0);
        /* blocks of many magnitudes, one with NaN or infinity */
        for (int64_t i = 0; i < count; i++) {
            const double v = read_at(x.h(), i, type);
            const int64_t b = i / block;
            if (b % 3 == 1) {
                write_at(x.h(), i, type, v * (turn % 2 ? 1e-3 : 3e4) * (i % 7 == 0 ? 1e-2 : 1.0));
            } else if (b % 5 == 2) {
                write_at(x.h(), i, type, i % 3 == 0 ? v * 1e-38 : 0.0);
            }
        }
        if (turn % 4 == 3 && count > 0) {
            write_at(x.h(), below(count), type, turn % 8 == 3 ? (double)NAN : (double)INFINITY);
        }
        x.give();
        *(float *)tensor.h() = turn % 3 == 0 ? 0.01f : 0.7f;
        tensor.give();
        memset(&q, 0, sizeof q);
        q.count = count;
        q.type = type;
        q.format = format;
        q.code_step = step;
        q.scale_step = beside ? step : 1;
        q.stochastic = (int32_t)below(2);
        q.seed = random_bits();
        q.stream = random_bits();
        q.index = turn % 2 ? random_bits() : UINT64_C(0x400000000) - 4 * (uint64_t)below(9);
        const int by_tensor = format == DPAR_MEM_NVFP4 && below(2) != 0;
        const int32_t add = (int32_t)below(2);
        for (int pass = 0; pass < 2; pass++) {
            q.accumulate = pass == 0 ? 0 : add;
            on_both(pass == 0 ? &dpar_mem_layers::quantize : &dpar_mem_layers::dequantize, &q,
                    [&](int there) {
                        q.x = pass == 0 ? x.at(there) : back.at(there);
                        q.code = code.at(there);
                        q.scale = beside ? (unsigned char *)code.at(there) + bytes
                                         : (unsigned char *)scale.at(there);
                        q.tensor = by_tensor ? (const float *)tensor.at(there) : NULL;
                    });
        }
        CHECK(code.same(DPAR_U8, -1.0));
        CHECK(scale.same(DPAR_U8, -1.0));
        CHECK(back.same(type, -1.0));
        /* Also tests all codes and scales that quantize does not make. */
        code.fill(DPAR_U8, 0);
        scale.fill(DPAR_U8, 0);
        q.accumulate = 0;
        on_both(&dpar_mem_layers::dequantize, &q, [&](int there) {
            q.x = back.at(there);
            q.code = code.at(there);
            q.scale =
                beside ? (unsigned char *)code.at(there) + bytes : (unsigned char *)scale.at(there);
            q.tensor = by_tensor ? (const float *)tensor.at(there) : NULL;
        });
        CHECK(back.same(type, -1.0));
        q.code_step = bytes - 1;
        CHECK_INT(device_layers.dequantize(device.ctx, &q), DPAR_E_ARG);
        q.code_step = step;
        q.format = DPAR_MEM_NVFP4 + 1;
        CHECK_INT(device_layers.quantize(device.ctx, &q), DPAR_E_ARG);
    }
}

static void test_errors(void)
{
    dpar_cuda bad;
    dpar_cuda_desc options;
    dpar_why why;
    dpar_mem_span span;
    dpar_mem_squares q;
    memset(&options, 0, sizeof options);
    options.device = 1000;
    CHECK(dpar_cuda_make(&bad, &options, &why) == DPAR_E_SYSTEM && strlen(why.text) > 10);
    (void)cudaGetLastError();
    CHECK_INT(dpar_cuda_make(NULL, NULL, &why), DPAR_E_ARG);
    memset(&span, 0, sizeof span);
    span.count = 1;
    span.to_type = span.from_type = DPAR_F32;
    CHECK_INT(device.span(device.ctx, &span, 1), DPAR_E_ARG); /* to is NULL */
    CHECK(strlen(gpu.why.text) > 10);
    memset(&q, 0, sizeof q);
    CHECK_INT(device_layers.squares(device.ctx, &q), DPAR_E_ARG);
    dpar_optimizer o = adamw();
    dpar_optimizer_piece none;
    dpar_mem_optimize step;
    memset(&none, 0, sizeof none);
    memset(&step, 0, sizeof step);
    o.moment_type = DPAR_BF16;
    none.weight_type = none.gradient_type = DPAR_F32;
    step.optimizer = &o;
    step.piece = &none;
    step.step = 1;
    CHECK_INT(device_layers.optimize(device.ctx, &step), DPAR_OK);
    none.weight_type = DPAR_F64; /* moments are BF16 */
    CHECK_INT(device_layers.optimize(device.ctx, &step), DPAR_E_ARG);
    /* an earlier error of other code is not reported as the launch's */
    CHECK(cudaSetDevice(1000) != cudaSuccess);
    twin one(4, 0);
    span.to = one.d();
    span.from = NULL;
    CHECK_INT(device.span(device.ctx, &span, 1), DPAR_OK);
    CHECK_INT(device.wait(device.ctx), DPAR_OK);
    (void)cudaGetLastError();
}

static int reached(const void *at)
{
    struct cudaPointerAttributes about;
    CHECK(cudaPointerGetAttributes(&about, at) == cudaSuccess);
    return about.type != cudaMemoryTypeUnregistered;
}

/* Tests pinning: pages are registered while a pin needs them: scalars of two owners in one page,
 * overlapping ranges, and memory that others have registered. */
static void test_pins(void)
{
    void *memory = NULL;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    CHECK_INT(posix_memalign(&memory, page, 8 * page), 0);
    unsigned char *at = (unsigned char *)memory;
    CHECK_INT(device.pin(device.ctx, at + 8, 8), DPAR_OK);
    CHECK_INT(device.pin(device.ctx, at + 64, 8), DPAR_OK); /* the same page */
    CHECK_INT(gpu.held_n, 1);
    CHECK_INT(device.unpin(device.ctx, at + 8), DPAR_OK);
    CHECK(reached(at + 64) && reached(at + 8));
    CHECK_INT(device.pin(device.ctx, at + 100, (int64_t)(3 * page)), DPAR_OK); /* pages 0 to 3 */
    CHECK(reached(at + 3 * page) && !reached(at + 4 * page));
    CHECK_INT(device.pin(device.ctx, at + 2 * page, (int64_t)(4 * page)), DPAR_OK); /* 2 to 5 */
    CHECK_INT(gpu.held_n, 3);
    CHECK_INT(device.unpin(device.ctx, at + 64), DPAR_OK);
    CHECK(reached(at));
    CHECK_INT(device.unpin(device.ctx, at + 100), DPAR_OK);
    CHECK(!reached(at) && reached(at + 3 * page) && reached(at + 6 * page - 1));
    { /* a kernel accesses it */
        dpar_mem_span span;
        memset(&span, 0, sizeof span);
        span.to = at + 3 * page;
        span.count = (int64_t)(3 * page / 8);
        span.to_type = DPAR_F64;
        span.scale = 2.5;
        CHECK_INT(device.span(device.ctx, &span, 1), DPAR_OK);
        CHECK_INT(device.wait(device.ctx), DPAR_OK);
        CHECK(((double *)(void *)at)[6 * page / 8 - 1] == 2.5);
    }
    CHECK_INT(device.unpin(device.ctx, at + 2 * page), DPAR_OK);
    CHECK_INT(device.unpin(device.ctx, at + 2 * page), DPAR_OK); /* pinned no more */
    CHECK(!reached(at + 2 * page) && gpu.held_n == 0 && gpu.pins == 0);
    /* registered by others: remains theirs */
    CHECK(cudaHostRegister(at, 2 * page, 0) == cudaSuccess);
    CHECK_INT(device.pin(device.ctx, at + 8, 8), DPAR_OK);
    CHECK_INT(device.unpin(device.ctx, at + 8), DPAR_OK);
    CHECK(reached(at + 8));
    /* half registered */
    CHECK_INT(device.pin(device.ctx, at + page, (int64_t)(2 * page)), DPAR_E_SYSTEM);
    CHECK(strlen(gpu.why.text) > 10 && gpu.held_n == 0 && gpu.pins == 0);
    CHECK(cudaHostUnregister(at) == cudaSuccess);
    /* device memory is not registered */
    CHECK_INT(device.pin(device.ctx, gpu.scratch, 4096), DPAR_OK);
    CHECK_INT(gpu.held_n, 0);
    /* also with an address below pages that are registered */
    CHECK_INT(device.pin(device.ctx, &memory, 8), DPAR_OK);
    CHECK((uintptr_t)gpu.scratch < (uintptr_t)&memory);
    CHECK_INT(device.pin(device.ctx, gpu.scratch, 4096), DPAR_OK);
    CHECK_INT(gpu.held_n, 1);
    CHECK_INT(device.unpin(device.ctx, &memory), DPAR_OK);
    CHECK_INT(gpu.held_n, 0);
    for (int k = 0; k < DPARI_CUDA_PINS; k++) {
        CHECK_INT(device.pin(device.ctx, at + 8 * k, 8), DPAR_OK);
    }
    CHECK_INT(device.pin(device.ctx, at, 8), DPAR_E_MEMORY);
    for (int k = 0; k < DPARI_CUDA_PINS; k++) {
        CHECK_INT(device.unpin(device.ctx, at + 8 * k), DPAR_OK);
    }
    CHECK(!reached(at));
    free(memory);
}

/* Another thread has another device current: stream 0 of this one is used. */
static void test_devices(void)
{
    int devices = 0, now = -1;
    dpar_cuda other;
    dpar_cuda_desc options;
    dpar_mem mem;
    dpar_mem_span span;
    double *host_at = NULL;
    CHECK(cudaGetDeviceCount(&devices) == cudaSuccess);
    if (devices < 2) {
        return;
    }
    memset(&options, 0, sizeof options);
    options.device = 1 + 1;
    CHECK_INT(dpar_cuda_make(&other, &options, NULL), DPAR_OK);
    dpar_cuda_mem(&other, &mem);
    CHECK(cudaMallocHost((void **)&host_at, 8000) == cudaSuccess);
    CHECK(cudaSetDevice(gpu.device) == cudaSuccess);
    memset(&span, 0, sizeof span);
    span.to = host_at;
    span.count = 1000;
    span.to_type = DPAR_F64;
    span.scale = 1.5;
    host_at[999] = 0.0;
    CHECK_INT(mem.span(mem.ctx, &span, 1), DPAR_OK);
    CHECK_INT(mem.wait(mem.ctx), DPAR_OK);
    CHECK(host_at[999] == 1.5);
    CHECK(cudaGetDevice(&now) == cudaSuccess && now == gpu.device);
    CHECK_INT(dpar_cuda_free(&other), DPAR_OK);
    CHECK(cudaFreeHost(host_at) == cudaSuccess);
}

/* Captures once and replays twice: the work is the same and uses the current contents of the
 * arrays. */
static void test_graph(void)
{
    cudaStream_t stream = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t again = NULL;
    dpar_cuda_desc options;
    dpar_cuda own;
    dpar_mem mem;
    const dpar_mem_layers *layers = NULL;
    twin a(4000, 0), b(4000, 4), sum(8, 0);
    dpar_mem_span span;
    dpar_mem_squares q;
    memset(&options, 0, sizeof options);
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    options.stream = stream;
    CHECK_INT(dpar_cuda_make(&own, &options, NULL), DPAR_OK);
    dpar_cuda_mem(&own, &mem);
    layers = (const dpar_mem_layers *)mem.layers;
    a.fill(DPAR_F32, 0);
    b.fill(DPAR_F32, 0);
    memset(&span, 0, sizeof span);
    span.to = b.d();
    span.from = a.d();
    span.count = 1000;
    span.to_type = span.from_type = DPAR_F32;
    span.scale = 0.5;
    span.accumulate = 1;
    memset(&q, 0, sizeof q);
    q.in = b.d();
    q.count = 1000;
    q.type = DPAR_F32;
    q.sum = (double *)sum.d();
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK_INT(mem.span(mem.ctx, &span, 1), DPAR_OK);
    CHECK_INT(layers->squares(mem.ctx, &q), DPAR_OK);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    CHECK(cudaGraphInstantiate(&again, graph, 0) == cudaSuccess);
    CHECK(cudaGraphLaunch(again, stream) == cudaSuccess);
    CHECK(cudaGraphLaunch(again, stream) == cudaSuccess);
    CHECK_INT(mem.wait(mem.ctx), DPAR_OK);
    span.to = b.h();
    span.from = a.h();
    CHECK_INT(host.span(host.ctx, &span, 1), DPAR_OK);
    CHECK_INT(host.span(host.ctx, &span, 1), DPAR_OK);
    q.in = b.h();
    q.sum = (double *)sum.h();
    CHECK_INT(host_layers.squares(host.ctx, &q), DPAR_OK);
    CHECK(b.same(DPAR_F32, -1.0));
    CHECK(sum.same(DPAR_F64, 1e-13));
    cudaGraphExecDestroy(again);
    cudaGraphDestroy(graph);
    CHECK_INT(dpar_cuda_free(&own), DPAR_OK);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

/* A product for the measurement. Times on a stand-in mean nothing, but the planner must be able to
 * read the file. */
static dpar_status no_gemm(void *user, dpar_cuda_stream stream, const void *a, const void *b,
                           void *c, int32_t n)
{
    (void)stream;
    ++*(int *)user;
    return a != NULL && b != NULL && c != NULL && n == 64 ? DPAR_OK : DPAR_E_ARG;
}

static void test_measure(void)
{
    dpar_cuda_measure_desc probe;
    dpar_cuda_measurement made;
    char text[1000], all[1100];
    dpar_cluster cluster;
    dpar_why why;
    int calls = 0;
    memset(&probe, 0, sizeof probe);
    memset(&made, 0, sizeof made);
    probe.bytes = 1 << 16;
    probe.matrix_size = 64;
    probe.gemm = no_gemm;
    probe.user = &calls;
    CHECK_INT(dpar_cuda_measure(&gpu, &probe, &made, &why), DPAR_OK);
    CHECK_INT(calls, DPARI_CUDA_TIMES + 1);
    CHECK(made.multiprocessors == gpu.multiprocessors && made.launch_s > 0.0);
    memset(&made, 0, sizeof made);
    strcpy(made.name, "a chip");
    strcpy(made.gemm_library, "a library");
    made.copy_Bps = 4.3e12;
    made.gemm_flops = 7.8e14;
    made.launch_s = 3e-6;
    const int64_t n = dpar_cuda_measurement_write(&made, 4.8e12, 9.9e14, 4.5e11, text, sizeof text);
    CHECK_INT(n, (int64_t)strlen(text));
    snprintf(all, sizeof all, "1x8:h200\n%s", text);
    CHECK_INT(dpar_cluster_read(&cluster, all, strlen(all), &why), DPAR_OK);
    CHECK_NEAR(cluster.cal.value[DPAR_CAL_HBM], 4.3 / 4.8, 1e-3);
    CHECK_NEAR(cluster.cal.value[DPAR_CAL_GEMM], 7.8 / 9.9, 1e-3);
    CHECK_NEAR(cluster.cal.value[DPAR_CAL_LAUNCH_S], 3e-6, 1e-3);
    char small[10];
    CHECK_INT(dpar_cuda_measurement_write(&made, 4.8e12, 9.9e14, 4.5e11, small, sizeof small), n);
    CHECK_INT(strlen(small), 9);
}

#include "aligned.h"
#include "big.h"

/* A kernel faults while no call waits for it: dpar_cuda_free reports it. Must be the last test,
 * because the device is lost then. */
static void test_last_fault()
{
#ifdef FAKE_CUDA
    dpar_mem_span span;
    dpar_cuda lost;
    dpar_mem table;
    twin there(64 * 4, 0);
    CHECK_INT(dpar_cuda_make(&lost, NULL, NULL), DPAR_OK);
    dpar_cuda_mem(&lost, &table);
    memset(&span, 0, sizeof span);
    span.to = there.d();
    span.to_type = span.from_type = DPAR_F32;
    span.count = 64;
    fake_cuda_fail("kernel:1");
    (void)table.span(table.ctx, &span, 1); /* reports the fault already if it ran at once */
    CHECK_INT(dpar_cuda_free(&lost), DPAR_E_SYSTEM);
#endif
}

static void test_all(void)
{
    test_numbers();
    test_draws();
    test_places();
    test_boxes();
    test_box_batches();
    test_joint();
    test_joint_crowd();
    test_spans();
    test_reduce();
    test_reduce_ints();
    test_finite();
    test_squares();
    test_optimize();
    test_gather();
    test_scatter();
    test_scatter_order();
    test_combine_and_dot();
    test_cross_entropy();
    test_merge();
    test_moments();
    test_norm();
    test_quantize();
    test_quantize_formats();
    test_aligned();
    test_errors();
    test_pins();
    test_devices();
    test_graph();
    test_measure();
}

int main(int argc, char **argv)
{
    dpar_cuda_desc options;
    dpar_why why;
    int big = 0; /* the exponent */
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "big") == 0) {
            big = i + 1 < argc ? atoi(argv[++i]) : 31;
        } else if (strcmp(argv[i], "few") == 0) {
            rounds = 1;
        } else {
            random_state = random_state * 31 + strtoull(argv[i], NULL, 10) * 2 + 1;
        }
    }
    memset(&options, 0, sizeof options);
    if (dpar_cuda_make(&gpu, NULL, &why) != DPAR_OK) {
        printf("%s\n", why.text);
        return 77;
    }
    options.fast_math = 1;
    CHECK_INT(dpar_cuda_make(&fast, &options, NULL), DPAR_OK);
    dpar_cuda_mem(&gpu, &device);
    dpar_cuda_mem(&fast, &quick);
    host = dpar_mem_host();
    host_layers = dpar_mem_host_layers();
    device_layers = *(const dpar_mem_layers *)device.layers;
    quick_layers = *(const dpar_mem_layers *)quick.layers;
    if (big > 0) {
        test_big((INT64_C(1) << big) + 12345);
    } else {
        test_all();
    }
    CHECK_INT(dpar_cuda_free(&fast), DPAR_OK);
    CHECK_INT(dpar_cuda_free(&gpu), DPAR_OK);
    CHECK_INT(dpar_cuda_free(&gpu), DPAR_OK);
    test_last_fault();
    return CHECK_DONE();
}
