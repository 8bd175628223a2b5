/* SPDX-License-Identifier: MIT-0 */
/* gpu_kernels: what share of the device's copy bandwidth each operation of dpar_cuda.h reaches, in
 * one run: bytes that it must read and write, over the time of a cudaMemcpy of as many of them.
 * Random numbers, the median of repetitions by events, several sets of arrays in turn so that
 * nothing lies in the cache from the time before. One line an operation:
 *     name, MB moved, us, GB/s, % of the copy, launches
 *
 * Before an operation is timed it is done once and compared with what the host's table makes of
 * parts of its arrays (tests/gpu/samples.h): one that is wrong is said, and the program exits 1.
 *
 *     nvcc -x cu -std=c++17 -O3 -arch=sm_90 -I. bench/gpu_kernels.cu -o gpu_kernels -ldl
 *
 * Arguments: MiB of the largest array (256); "csv": one line each for bench/gpu_peer.py. Compiled
 * with -DSMALL over the stand-in (tests/gpu/run.sh) it shows that results are right: the times then
 * say nothing. */
#ifndef DPAR_APART /* dpar.h and dpar_cuda.h are objects of their own */
#define DPAR_IMPLEMENTATION
#define DPAR_CUDA_IMPLEMENTATION
#endif
#if defined(__CUDACC__)
#pragma nv_diag_suppress 550 /* of dpar.h: variables that are set and kept for symmetry */
#endif
#include "dpar_cost.h"
#include "dpar_train.h"
#include "dpar_cuda.h"

#include "tests/gpu/samples.h"

#include <algorithm>
#include <functional>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

#if defined(SMALL)
enum { TIMES = 2, SETS = 1 };
static int64_t bytes = 1 << 14;
#else
enum { TIMES = 15, SETS = 3 };
static int64_t bytes = INT64_C(256) << 20;
#endif

static dpar_cuda gpu;
static dpar_mem mem, host;
static dpar_mem_layers layers, host_layers;
static int csv, wrong;
static double copy_Bps;
static cudaEvent_t before, behind;

static void fine(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "gpu_kernels: %s: CUDA says: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

static void well(dpar_status st)
{
    if (st != DPAR_OK) {
        fprintf(stderr, "gpu_kernels: %s\n",
                gpu.why.text[0] != 0 ? gpu.why.text : dpar_status_text(st));
        exit(1);
    }
}

/* SETS arrays of `bytes`, of random numbers in -1 .. 1 of a type, not the same as those before. */
struct arrays {
    std::vector<unsigned char *> at;
    arrays(int32_t type, double least) : at(SETS)
    {
        static uint64_t stream = 0;
        stream++;
        const int64_t n = bytes / dpar_type_bytes(type), some = std::min<int64_t>(n, 1 << 20);
        std::vector<float> numbers((size_t)some);
        for (int64_t i = 0; i < some; i++) {
            const double x = 2.0 * dpar_random_uniform(7, stream, (uint64_t)i) - 1.0;
            numbers[(size_t)i] = (float)(x < 0.0 ? std::min(x, -least) : std::max(x, least));
        }
        void *seed = NULL;
        fine(cudaMalloc(&seed, (size_t)some * 4), "cudaMalloc");
        fine(cudaMemcpy(seed, numbers.data(), (size_t)some * 4, cudaMemcpyHostToDevice), "copy");
        for (int k = 0; k < SETS; k++) {
            void *made = NULL;
            fine(cudaMalloc(&made, (size_t)bytes), "cudaMalloc");
            at[(size_t)k] = (unsigned char *)made;
            for (int64_t i = 0; i < n; i += some) {
                dpar_mem_span s;
                memset(&s, 0, sizeof s);
                s.to = at[(size_t)k] + i * dpar_type_bytes(type);
                s.from = seed;
                s.count = std::min(some, n - i);
                s.to_type = type;
                s.from_type = DPAR_F32;
                s.scale = 1.0;
                well(mem.span(mem.ctx, &s, 1));
            }
        }
        well(mem.wait(mem.ctx));
        cudaFree(seed);
    }
    ~arrays()
    {
        for (unsigned char *p : at) {
            cudaFree(p);
        }
    }
    arrays(const arrays &) = delete;
    arrays &operator=(const arrays &) = delete;
};

/* The median us of `once(set)`. */
static double timed(const std::function<void(int)> &once)
{
    std::vector<double> us;
    for (int i = -2; i < TIMES; i++) {
        float ms = 0.0f;
        fine(cudaEventRecord(before, gpu.stream), "cudaEventRecord");
        once((i + 2) % SETS);
        fine(cudaEventRecord(behind, gpu.stream), "cudaEventRecord");
        fine(cudaEventSynchronize(behind), "cudaEventSynchronize");
        fine(cudaEventElapsedTime(&ms, before, behind), "cudaEventElapsedTime");
        if (i >= 0) {
            us.push_back(1000.0 * (double)ms);
        }
    }
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
}

/* `once` does the operation on set k of its arrays. `expected`, which comes before it, takes
 * samples of those of set 0 and has the host's table do the same to them. */
static void row(const char *name, double moved, const std::function<void(int)> &once,
                const std::function<void(samples &)> &expected)
{
    samples x;
    expected(x);
    once(0);
    if (!x.same()) {
        printf("%s: not what the host's table makes of it\n", name);
        wrong++;
    }
    gpu.launches = 0;
    const double us = timed(once);
    const double launches = (double)gpu.launches / (TIMES + 2), share = moved / us * 1e6 / copy_Bps;
    if (csv) {
        printf("\"%s\",%.0f,%.3f\n", name, moved, us); /* names have commas */
        return;
    }
    printf("%-38s %9.1f MB %10.1f us %8.1f GB/s %6.1f %%  %4.1f launches\n", name, moved * 1e-6, us,
           moved / us * 1e-3, 100.0 * share, launches);
}

static void copies(const arrays &a, const arrays &b)
{
    const auto once = [&](int k) {
        fine(cudaMemcpyAsync(b.at[k], a.at[k], (size_t)bytes, cudaMemcpyDeviceToDevice, gpu.stream),
             "cudaMemcpyAsync");
    };
    copy_Bps = 2.0 * (double)bytes / timed(once) * 1e6;
    row("cudaMemcpyAsync", 2.0 * (double)bytes, once, [&](samples &x) {
        for (stretch p : stretches(bytes, 1)) {
            memcpy(x.out(b.at[0], p, DPAR_U8, -1.0), x.in(a.at[0], p, DPAR_U8), (size_t)p.count);
        }
    });
}

/* ---- boxes ---- */

/* Boxes of one array into another one; their pointers are bytes from where these begin. */
static void move_row(const char *name, double moved, const std::vector<dpar_mem_box> &boxes,
                     const arrays &to, const arrays &from)
{
    std::vector<dpar_mem_box> now = boxes;
    const auto put = [&](const dpar_mem &table, void *to_base, void *from_base) {
        for (size_t i = 0; i < boxes.size(); i++) {
            now[i].to = (unsigned char *)to_base + (uintptr_t)boxes[i].to;
            now[i].from = (unsigned char *)from_base + (uintptr_t)boxes[i].from;
        }
        well(table.move(table.ctx, now.data(), (int32_t)now.size()));
    };
    row(
        name, moved, [&](int k) { put(mem, to.at[k], from.at[k]); },
        [&](samples &x) {
            const stretch all = {0, bytes};
            void *made = x.both(to.at[0], all, DPAR_U8, -1.0);
            put(host, made, x.in(from.at[0], all, DPAR_U8));
        });
}

/* The longest side of cubes of so many fields of f64, a multiple of 8. */
static int64_t side_of(int64_t fields, int64_t most)
{
    int64_t side = 8;
    while (fields * (side + 8) * (side + 8) * (side + 8) * 8 <= bytes && side < most) {
        side += 8;
    }
    return side;
}

/* A box of type `type`, of 3 dims, its extents not yet known. */
static dpar_mem_box box_of(int32_t to_type, int32_t from_type, int32_t op)
{
    dpar_mem_box x;
    memset(&x, 0, sizeof x);
    x.to_type = to_type;
    x.from_type = from_type;
    x.round_type = dpar_type_bytes(to_type) < dpar_type_bytes(from_type) ? to_type : from_type;
    x.op = op;
    x.dims = 3;
    return x;
}

/* A face of a cube of doubles, `wide` planes along dim `d`, packed. */
static void faces(const arrays &a, const arrays &b)
{
    const int64_t side = side_of(1, INT64_MAX);
    for (int d = 0; d < 3; d++) {
        for (int64_t wide = 1; wide <= 4; wide += 3) {
            char name[64];
            dpar_mem_box x = box_of(DPAR_F64, DPAR_F64, DPAR_COPY);
            int64_t dense = 1, step = 1;
            for (int e = 2; e >= 0; e--) {
                x.extent[e] = e == d ? wide : side;
                x.from_stride[e] = step;
                x.to_stride[e] = dense;
                step *= side;
                dense *= x.extent[e];
            }
            snprintf(name, sizeof name, "pack %lld^3 f64, dim %d, %lld planes", (long long)side, d,
                     (long long)wide);
            /* what the memory moves: whole sectors of 32 bytes of a short run */
            const double read =
                d == 2 ? (wide * 8 < 32 ? 32.0 : (double)wide * 8.0) / (double)wide : 8.0;
            move_row(name, (double)dense * (8.0 + read), {x}, b, a);
        }
    }
}

/* All of a cube but its first four columns: casts, and sums, maxima, minima with what is there. */
static void cubes(const arrays &a, const arrays &b)
{
    static const struct {
        const char *name;
        int32_t to, from, op;
    } rows[] = {{"move of a box, f64 to f32", DPAR_F32, DPAR_F64, DPAR_COPY},
                {"move of a box, f32 to bf16", DPAR_BF16, DPAR_F32, DPAR_COPY},
                {"move of a box with sum, f32", DPAR_F32, DPAR_F32, DPAR_SUM},
                {"move of a box with max, f32", DPAR_F32, DPAR_F32, DPAR_MAX},
                {"move of a box with min, f32", DPAR_F32, DPAR_F32, DPAR_MIN},
                {"move of a box with sum, f64", DPAR_F64, DPAR_F64, DPAR_SUM}};
    const int64_t side = side_of(1, INT64_MAX);
    for (const auto &r : rows) {
        dpar_mem_box x = box_of(r.to, r.from, r.op);
        const int64_t width = dpar_type_bytes(r.to), from_width = dpar_type_bytes(r.from);
        int64_t step = 1;
        for (int e = 2; e >= 0; e--) {
            x.extent[e] = e == 2 ? side - 4 : side;
            x.to_stride[e] = x.from_stride[e] = step;
            step *= side;
        }
        x.to = (void *)(uintptr_t)(4 * width);
        x.from = (void *)(uintptr_t)(4 * from_width);
        move_row(r.name,
                 (double)(side * side * (side - 4)) *
                     (double)(from_width + width * (r.op == DPAR_COPY ? 1 : 2)),
                 {x}, b, a);
    }
}

/* 26 boxes of 4 fields, packed, and their adjoint, sums that meet in edges and corners: one launch
 * each. */
static void halo(const arrays &a, const arrays &b)
{
    const int64_t side = side_of(4, 512);
    std::vector<dpar_mem_box> pack, adjoint;
    int64_t used = 0;
    for (int f = 0; f < 4; f++) {
        for (int dir = 0; dir < 27; dir++) {
            const int at[3] = {dir / 9 - 1, dir / 3 % 3 - 1, dir % 3 - 1};
            dpar_mem_box x = box_of(DPAR_F64, DPAR_F64, DPAR_COPY);
            int64_t dense = 1, step = 1, from = f * side * side * side;
            if (dir == 13) {
                continue;
            }
            for (int e = 2; e >= 0; e--) {
                x.extent[e] = at[e] == 0 ? side : 1;
                x.from_stride[e] = step;
                x.to_stride[e] = dense;
                from += at[e] > 0 ? (side - 1) * step : 0;
                step *= side;
                dense *= x.extent[e];
            }
            x.to = (void *)(uintptr_t)(8 * used);
            x.from = (void *)(uintptr_t)(8 * from);
            used += dense;
            pack.push_back(x);
            x.op = DPAR_SUM;
            std::swap(x.to, x.from);
            std::swap(x.to_stride, x.from_stride);
            adjoint.push_back(x);
        }
    }
    char name[64];
    snprintf(name, sizeof name, "halo of 4 fields, %lld^3 f64, 26 boxes", (long long)side);
    move_row(name, 16.0 * (double)used, pack, b, a);
    move_row("its adjoint, sums", 24.0 * (double)used, adjoint, a, b);
}

/* ---- elements one after the other ---- */

static void span_row(const char *name, double each, dpar_mem_span s, const arrays &to,
                     const arrays &from)
{
    const auto put = [&](int k) {
        s.to = to.at[k];
        s.from = from.at[k];
    };
    row(
        name, each * (double)s.count,
        [&](int k) {
            put(k);
            well(mem.span(mem.ctx, &s, 1));
        },
        [&](samples &x) {
            put(0);
            expect_span(x, s);
        });
}

static dpar_mem_span span_of(int32_t to_type, int32_t from_type)
{
    dpar_mem_span s;
    memset(&s, 0, sizeof s);
    s.scale = 1.0;
    s.to_type = to_type;
    s.from_type = from_type;
    s.count = bytes / 4;
    return s;
}

static void spans(const arrays &a, const arrays &b, const arrays &h)
{
    dpar_mem_span s = span_of(DPAR_F32, DPAR_F32);
    span_row("span f32", 8.0, s, b, a);
    s.scale = 0.5;
    span_row("span f32, scaled", 8.0, s, b, a);
    s.scale = 1.0;
    s.accumulate = 1;
    span_row("span f32, added", 12.0, s, b, a);
    s.scale = 0.5;
    span_row("span f32, scaled and added", 12.0, s, b, a);
    span_row("span bf16 to f32", 6.0, span_of(DPAR_F32, DPAR_BF16), b, h);
    s = span_of(DPAR_BF16, DPAR_F32);
    span_row("span f32 to bf16", 6.0, s, b, a);
    dpar_mem_round r;
    memset(&r, 0, sizeof r);
    r.count = s.count;
    r.from_type = DPAR_F32;
    row(
        "round f32 to bf16, stochastic", 6.0 * (double)r.count,
        [&](int k) {
            r.to = b.at[k];
            r.from = a.at[k];
            well(layers.round(mem.ctx, &r));
        },
        [&](samples &x) {
            r.to = b.at[0];
            r.from = a.at[0];
            expect_round(x, r);
        });
    enum { MANY = 200 }; /* arrays into one bucket */
    std::vector<dpar_mem_span> many(MANY);
    const auto put = [&](int k) {
        const int64_t each = bytes / 4 / MANY;
        for (int i = 0; i < MANY; i++) {
            many[i] = span_of(DPAR_F32, DPAR_F32);
            many[i].to = (float *)(void *)b.at[k] + i * each;
            many[i].from = (float *)(void *)a.at[k] + i * each;
            many[i].count = each;
        }
    };
    row(
        "flatten of 200 arrays, f32", 2.0 * (double)bytes,
        [&](int k) {
            put(k);
            well(mem.span(mem.ctx, many.data(), MANY));
        },
        [&](samples &x) {
            put(0);
            for (const dpar_mem_span &one : many) {
                expect_span(x, one);
            }
        });
}

/* ---- sums ---- */

static void reduce_row(const char *name, int32_t type, const arrays &a, const arrays &b)
{
    enum { PARTS = 8 };
    const int64_t width = dpar_type_bytes(type);
    dpar_mem_reduce r;
    memset(&r, 0, sizeof r);
    r.parts = PARTS;
    r.count = r.stride = bytes / width / PARTS;
    r.to_type = r.from_type = type;
    r.sum_type = type == DPAR_F64 ? DPAR_F64 : DPAR_F32;
    r.op = DPAR_SUM;
    r.scale = 1.0;
    row(
        name, 1.125 * (double)bytes,
        [&](int k) {
            r.to = b.at[k];
            r.from = a.at[k];
            well(mem.reduce(mem.ctx, &r));
        },
        [&](samples &x) {
            r.to = b.at[0];
            r.from = a.at[0];
            expect_reduce(x, r);
        });
}

/* The sum of squares of set 0, by the host: sums of 65536 of them, so that 1e-11 is due. */
static void squares_expected(samples &x, const dpar_mem_squares &q)
{
    const int64_t width = dpar_type_bytes(q.type);
    const unsigned char *in = (const unsigned char *)x.in(q.in, {0, q.count}, q.type);
    dpar_mem_squares part = q;
    part.sum = (double *)x.out(q.sum, {0, 1}, DPAR_F64, 1e-11);
    for (int64_t i = 0; i < q.count; i += 65536) {
        part.in = in + i * width;
        part.count = std::min<int64_t>(65536, q.count - i);
        part.accumulate = i > 0;
        well(host_layers.squares(host.ctx, &part));
    }
}

/* And, where `clip` is given, the factor that comes of it. */
static void squares_row(const char *name, int32_t type, const arrays &a, double *sum,
                        dpar_mem_clip *clip)
{
    dpar_mem_squares q;
    memset(&q, 0, sizeof q);
    q.count = bytes / dpar_type_bytes(type);
    q.type = type;
    q.sum = sum;
    row(
        name, (double)bytes,
        [&](int k) {
            q.in = a.at[k];
            well(layers.squares(mem.ctx, &q));
            if (clip != NULL) {
                well(layers.clip(mem.ctx, clip));
            }
        },
        [&](samples &x) {
            q.in = a.at[0];
            squares_expected(x, q);
            if (clip != NULL) {
                dpar_mem_clip one = *clip;
                one.squares = (double *)(void *)x.parts.back().here.data();
                one.factor = (double *)x.out(clip->factor, {0, 1}, DPAR_F64, 1e-11);
                well(host_layers.clip(host.ctx, &one));
            }
        });
}

static void sums(const arrays &a, const arrays &b, const arrays &h)
{
    dpar_mem_finite f;
    dpar_mem_clip c;
    void *out = NULL;
    fine(cudaMalloc(&out, 64), "cudaMalloc");
    reduce_row("reduce 8 parts, bf16", DPAR_BF16, h, b);
    reduce_row("reduce 8 parts, f32", DPAR_F32, a, b);
    reduce_row("reduce 8 parts, f64", DPAR_F64, a, b);
    memset(&f, 0, sizeof f);
    f.count = bytes / 4;
    f.type = DPAR_F32;
    f.found = (int64_t *)out;
    row(
        "finite, f32", (double)bytes,
        [&](int k) {
            f.in = a.at[k];
            well(mem.finite(mem.ctx, &f));
        },
        [&](samples &x) {
            dpar_mem_finite one = f;
            one.in = x.in(a.at[0], {0, f.count}, f.type);
            one.found = (int64_t *)x.out(out, {0, 1}, DPAR_I64, -1.0);
            well(host.finite(host.ctx, &one));
            wrong += *one.found >= 0; /* it would end early */
        });
    memset(&c, 0, sizeof c);
    c.squares = (double *)out + 1;
    c.factor = (double *)out + 2;
    c.limit = 1.0;
    c.scale = 1.0;
    squares_row("squares, f32", DPAR_F32, a, (double *)out + 1, NULL);
    squares_row("squares, bf16", DPAR_BF16, h, (double *)out + 1, NULL);
    squares_row("squares and clip, f32", DPAR_F32, a, (double *)out + 1, &c);
    cudaFree(out);
}

/* ---- optimizers ---- */

/* `put`: whose arrays x has, those of set k. */
static void step_row(const char *name, double each, const dpar_mem_optimize &x,
                     const std::function<void(int)> &put)
{
    row(
        name, each * (double)x.piece->count,
        [&](int k) {
            put(k);
            well(layers.optimize(mem.ctx, &x));
        },
        [&](samples &all) {
            put(0);
            expect_step(all, x, gpu.fast_math);
        });
}

/* random 1: stochastic, 2: with moments in bf16. */
static void step(const char *name, int32_t wt, int32_t gt, int copy, int rest, int random,
                 const arrays &w, const arrays &g, const arrays &m, const arrays &v,
                 const arrays &c)
{
    const int64_t n = bytes / 4;
    dpar_optimizer o;
    dpar_optimizer_piece p;
    dpar_mem_optimize x;
    dpar_optimizer_init(&o, DPAR_OPTIMIZER_ADAMW);
    memset(&p, 0, sizeof p);
    memset(&x, 0, sizeof x);
    o.stochastic = random > 0;
    o.moment_type = random > 1 ? (int32_t)DPAR_BF16 : 0;
    p.weight_type = wt;
    p.gradient_type = gt;
    p.count = n;
    x.optimizer = &o;
    x.piece = &p;
    x.step = 10;
    x.rate = 1e-3;
    x.factor = 1.0;
    x.copy_type = DPAR_BF16;
    const double each = 2.0 * dpar_type_bytes(wt) + dpar_type_bytes(gt) + (random > 1 ? 8.0 : 16.0) +
                        2.0 * copy + 4.0 * rest;
    for (int fast = 0; fast < 2; fast++) {
        char line[64];
        snprintf(line, sizeof line, "%s%s", name, fast ? ", in f32" : "");
        gpu.fast_math = fast;
        const auto put = [&](int k) {
            p.weight = w.at[k];
            p.gradient = g.at[k];
            p.m = m.at[k];
            p.v = v.at[k];
            x.copy = copy ? c.at[k] : NULL;
            x.remainder = rest ? (int16_t *)(void *)c.at[k] : NULL;
        };
        step_row(line, each, x, put);
    }
    gpu.fast_math = 0;
}

/* SGD with momentum, all in f32. */
static void sgd(const arrays &w, const arrays &g, const arrays &m)
{
    dpar_optimizer o;
    dpar_optimizer_piece p;
    dpar_mem_optimize x;
    dpar_optimizer_init(&o, DPAR_OPTIMIZER_SGD);
    o.momentum = 0.9;
    memset(&p, 0, sizeof p);
    memset(&x, 0, sizeof x);
    p.weight_type = p.gradient_type = DPAR_F32;
    p.count = bytes / 4;
    x.optimizer = &o;
    x.piece = &p;
    x.step = 10;
    x.rate = 1e-3;
    x.factor = 1.0;
    step_row("sgd with momentum, f32", 20.0, x, [&](int k) {
        p.weight = w.at[k];
        p.gradient = g.at[k];
        p.m = m.at[k];
    });
}

/* ---- rows ---- */

/* An index in the device's memory, with the host's of the same numbers. */
struct rows_index {
    std::vector<int64_t> here;
    dpar_mem_index there;
    explicit rows_index(std::vector<int64_t> numbers) : here(std::move(numbers))
    {
        void *at = NULL;
        fine(cudaMalloc(&at, here.size() * 8), "cudaMalloc");
        fine(cudaMemcpy(at, here.data(), here.size() * 8, cudaMemcpyHostToDevice), "copy");
        memset(&there, 0, sizeof there);
        there.at = at;
        there.type = DPAR_I64;
    }
    ~rows_index()
    {
        cudaFree(const_cast<void *>(there.at));
    }
    rows_index(const rows_index &) = delete;
    rows_index &operator=(const rows_index &) = delete;
    row_of row() const
    {
        return [this](int64_t i) { return here[(size_t)i]; };
    }
};

static void gathers(const arrays &a, const arrays &b, const rows_index &index, int64_t n,
                    int64_t width)
{
    dpar_mem_gather g;
    memset(&g, 0, sizeof g);
    g.rows = n;
    g.bytes = g.to_step = g.from_step = 2 * width;
    g.index = index.there;
    const auto put = [&](int k) {
        g.to = b.at[k];
        g.from = a.at[k];
    };
    row(
        "gather of rows of 8 KB", 4.0 * (double)(n * width),
        [&](int k) {
            put(k);
            well(layers.gather(mem.ctx, &g));
        },
        [&](samples &x) {
            put(0);
            expect_gather(x, g, index.row());
        });
}

static void combines(const arrays &a, const arrays &b, const rows_index &index, int64_t n,
                     int64_t width)
{
    dpar_mem_combine m;
    memset(&m, 0, sizeof m);
    m.rows = n / 2;
    m.choices = 2;
    m.width = width;
    m.to_type = m.from_type = DPAR_BF16;
    m.index = index.there;
    const auto put = [&](int k) {
        m.to = b.at[k];
        m.from = a.at[k];
    };
    row(
        "combine of 2 rows of 4096 bf16", 3.0 * (double)(n * width),
        [&](int k) {
            put(k);
            well(layers.combine(mem.ctx, &m));
        },
        [&](samples &x) {
            put(0);
            expect_combine(x, m, index.row());
        });
}

static void dots(const arrays &a, const arrays &b, const rows_index &index, int64_t n,
                 int64_t width)
{
    const int64_t past = 2 * n * width; /* of b: where sums go */
    dpar_mem_dot d;
    memset(&d, 0, sizeof d);
    d.rows = n;
    d.choices = 1;
    d.width = width;
    d.to_type = DPAR_F32;
    d.type = DPAR_BF16;
    d.index = index.there;
    const auto put = [&](int k) {
        d.a = a.at[k];
        d.b = b.at[k];
        d.to = b.at[k] + past;
    };
    row(
        "dot of rows of 4096 bf16", 4.0 * (double)(n * width),
        [&](int k) {
            put(k);
            well(layers.dot(mem.ctx, &d));
        },
        [&](samples &x) {
            put(0);
            within = (double)width; /* products of up to 1, which cancel */
            expect_dot(x, d, index.row(), 1e-7);
            within = 1e-30;
        });
}

/* The gradient of an embedding: tokens by Zipf's law, of which the first is one in ten; or a target
 * a row. */
static void scatters(const arrays &b, int zipf)
{
    dpar_mem_scatter s;
    memset(&s, 0, sizeof s);
    s.width = 1024;
    s.rows = std::max<int64_t>(1, bytes / 4 / s.width / 2);
    s.type = DPAR_F32;
    std::vector<int64_t> target((size_t)s.rows), seen((size_t)s.rows);
    int64_t kinds = 0;
    for (int64_t i = 0; i < s.rows; i++) {
        const double u = dpar_random_uniform(11, 3, (uint64_t)i);
        const int64_t token = (int64_t)(exp(u * log((double)s.rows + 1.0)) - 1.0);
        const int64_t one = zipf ? token : (int64_t)((uint64_t)i * 7919u % (uint64_t)s.rows);
        target[(size_t)i] = std::min(one, s.rows - 1);
        kinds += seen[(size_t)target[(size_t)i]]++ == 0;
    }
    const rows_index index(target);
    const int64_t half = s.rows * s.width;
    s.index = index.there;
    row(
        zipf ? "scatter of rows of 4 KB, Zipf" : "scatter of rows of 4 KB",
        4.0 * (double)s.width * (double)(s.rows + 2 * kinds),
        [&](int k) {
            s.to = b.at[k];
            s.from = b.at[k] + 4 * half;
            well(layers.scatter(mem.ctx, &s));
        },
        [&](samples &x) {
            dpar_mem_scatter all = s;
            all.from = x.in(b.at[0], {half, half}, DPAR_F32);
            all.to = x.both(b.at[0], {0, half}, DPAR_F32, -1.0);
            all.index.at = target.data();
            well(host_layers.scatter(host.ctx, &all));
        });
}

static void rows(const arrays &a, const arrays &b)
{
    const int64_t width = bytes < 1 << 20 ? 512 : 4096; /* of a stand-in */
    const int64_t n = std::max<int64_t>(2, bytes / 2 / width / 2);
    std::vector<int64_t> order((size_t)n);
    for (int64_t i = 0; i < n; i++) {
        order[(size_t)i] = (int64_t)((uint64_t)i * 7919u % (uint64_t)n);
    }
    const rows_index index(order);
    gathers(a, b, index, n, width);
    combines(a, b, index, n, width);
    dots(a, b, index, n, width);
    scatters(b, 0);
    scatters(b, 1);
}

/* ---- cross-entropy, attention, 8 bits ---- */

static void entropies(const arrays &a, const arrays &b)
{
    const int64_t vocabulary = std::min<int64_t>(50304, bytes / 64);
    const int64_t tokens = bytes / 4 / vocabulary;
    std::vector<int64_t> ids((size_t)tokens);
    void *lse = NULL, *own = NULL;
    dpar_mem_cross_entropy x;
    for (int64_t i = 0; i < tokens; i++) {
        ids[(size_t)i] = i * 7919 % vocabulary;
    }
    const rows_index index(ids);
    fine(cudaMalloc(&lse, (size_t)tokens * 8), "cudaMalloc");
    fine(cudaMalloc(&own, (size_t)tokens * 12), "cudaMalloc");
    fine(cudaMemset(lse, 0, (size_t)tokens * 8), "cudaMemset");
    memset(&x, 0, sizeof x);
    x.type = DPAR_F32;
    x.tokens = tokens;
    x.rows = x.hi[0] = x.lo[1] = x.hi[1] = x.vocabulary = vocabulary;
    x.target = index.there;
    x.partial = own;
    x.lse = (double *)lse;
    for (int turn = 0; turn < 4; turn++) {
        static const char *const names[] = {"cross_entropy, part", "cross_entropy, gradient", "cross_entropy, part, in f32",
                                            "cross_entropy, gradient, in f32"};
        const int gradient = turn % 2;
        const arrays &logits = gradient ? b : a;
        gpu.fast_math = turn / 2;
        x.scale = 1e-3 * (turn + 1); /* again and again in place: that ends where nothing changes */
        x.phase = gradient ? DPAR_MEM_CROSS_ENTROPY_GRADIENT : DPAR_MEM_CROSS_ENTROPY_PART;
        row(
            names[turn], (gradient ? 8.0 : 4.0) * (double)(tokens * vocabulary),
            [&](int k) {
                x.logits = logits.at[k];
                well(layers.cross_entropy(mem.ctx, &x));
            },
            [&](samples &all) {
                x.logits = logits.at[0];
                expect_cross_entropy(all, x, index.row(), gpu.fast_math);
            });
    }
    gpu.fast_math = 0;
    cudaFree(lse);
    cudaFree(own);
}

static void merges(const arrays &a, const arrays &b)
{
    dpar_mem_attention_merge m;
    memset(&m, 0, sizeof m);
    m.type = DPAR_F32;
    m.values = 128;
    m.rows = bytes / 4 / 130;
    const int64_t past = 4 * m.rows * m.values; /* the lse of each row */
    const auto put = [&](int k) {
        m.out = b.at[k];
        m.lse = b.at[k] + past;
        m.more = a.at[k];
        m.more_lse = a.at[k] + past;
    };
    row(
        "merge of rows of 128", 12.0 * (double)(m.rows * m.values),
        [&](int k) {
            put(k);
            well(layers.attention_merge(mem.ctx, &m));
        },
        [&](samples &x) {
            put(0);
            expect_merge(x, m);
        });
}

static void quantizes(const arrays &a, const arrays &b, int32_t code_type)
{
    enum { BLOCK = 128 };
    dpar_mem_quantize q;
    memset(&q, 0, sizeof q);
    q.count = bytes / 4 / BLOCK * BLOCK;
    q.block = q.code_step = BLOCK;
    q.scale_step = 4;
    q.type = DPAR_F32;
    q.code_type = code_type;
    const auto put = [&](int k) {
        q.x = a.at[k];
        q.code = b.at[k];
        q.scale = b.at[k] + q.count;
    };
    for (int back = 0; back < 2; back++) {
        static const char *const names[] = {"quantize to f8, blocks of 128", "dequantize of f8",
                                            "quantize to i8, blocks of 128", "dequantize of i8"};
        row(
            names[2 * (code_type == DPAR_I8) + back], (double)q.count * (5.0 + 4.0 / (double)BLOCK),
            [&](int k) {
                put(k);
                well(back ? layers.dequantize(mem.ctx, &q) : layers.quantize(mem.ctx, &q));
            },
            [&](samples &x) {
                put(0);
                expect_quantize(x, q, back);
            });
    }
}

/* ---- norms ---- */

enum { CHANNELS = 64, GROUPS = 32 };

/* One sample of planes as long as they can be; sets of two channels. */
static void moments(const arrays &a, double *to)
{
    dpar_mem_moments o;
    memset(&o, 0, sizeof o);
    o.type = DPAR_F32;
    o.dims = 1;
    o.planes = o.channels = CHANNELS;
    o.groups = GROUPS;
    o.step = o.extent[0] = bytes / 4 / CHANNELS;
    o.stride[0] = 1;
    o.to = to;
    row(
        "moments of 32 groups", 4.0 * (double)(o.planes * o.step),
        [&](int k) {
            o.x = a.at[k];
            well(layers.moments(mem.ctx, &o));
        },
        [&](samples &x) {
            for (int64_t set = 0; set < GROUPS; set += GROUPS - 1) {
                dpar_mem_moments one = o;
                one.planes = one.channels = CHANNELS / GROUPS;
                one.groups = 1;
                one.x = x.in(a.at[0], rows_of({set * one.planes, one.planes}, o.step), DPAR_F32);
                within = 1.0;
                one.to = (double *)x.out(to, {3 * set, 3}, DPAR_F64, 1e-11);
                within = 1e-30;
                well(host_layers.moments(host.ctx, &one));
            }
        });
}

/* What a norm has beside its planes, in one array: offsets in doubles. */
enum {
    NORM_SAVED = 0,
    NORM_TOTAL = NORM_SAVED + 2 * GROUPS,
    NORM_SUMS = NORM_TOTAL + 3 * GROUPS,
    NORM_SCALE_GRADIENT = NORM_SUMS + 2 * CHANNELS,
    NORM_SHIFT_GRADIENT = NORM_SCALE_GRADIENT + CHANNELS,
    NORM_SCALE = NORM_SHIFT_GRADIENT + CHANNELS, /* of f32: twice as many as there are */
    NORM_SHIFT = NORM_SCALE + CHANNELS,
    NORM_ALL = NORM_SHIFT + CHANNELS
};

static dpar_mem_norm norm_of(int32_t phase, double *small)
{
    dpar_mem_norm m;
    memset(&m, 0, sizeof m);
    m.phase = phase;
    m.type = DPAR_F32;
    m.planes = m.channels = CHANNELS;
    m.groups = GROUPS;
    m.dims = 1;
    m.extent[0] = m.x.step = m.dy.step = m.to.step = bytes / 4 / CHANNELS;
    m.x.stride[0] = m.dy.stride[0] = m.to.stride[0] = 1;
    m.saved = small + NORM_SAVED;
    m.total = small + NORM_TOTAL;
    m.sums = small + NORM_SUMS;
    m.scale_gradient = small + NORM_SCALE_GRADIENT;
    m.shift_gradient = small + NORM_SHIFT_GRADIENT;
    m.scale = small + NORM_SCALE;
    m.shift = small + NORM_SHIFT;
    return m;
}

/* The host's part of the sums of one set: whole planes. */
static void norm_sums_expected(samples &x, const dpar_mem_norm &m, int64_t set)
{
    const int64_t per = CHANNELS / GROUPS;
    const stretch planes = {set * per, per}, points = rows_of(planes, m.x.step);
    dpar_mem_norm one = m;
    one.planes = per;
    one.channels = (int32_t)per;
    one.groups = 1;
    one.x.data = x.in(m.x.data, points, DPAR_F32);
    one.dy.data = x.in(m.dy.data, points, DPAR_F32);
    one.scale = x.in(m.scale, planes, DPAR_F32);
    one.saved = (double *)x.in(m.saved, {2 * set, 2}, DPAR_F64);
    within = (double)points.count; /* terms of up to 1, which cancel */
    one.sums = (double *)x.out(m.sums, rows_of(planes, 2), DPAR_F64, 1e-14);
    one.total = (double *)x.out(m.total, {3 * set, 3}, DPAR_F64, 1e-14);
    one.scale_gradient = (double *)x.both(m.scale_gradient, planes, DPAR_F64, 1e-14);
    one.shift_gradient = (double *)x.both(m.shift_gradient, planes, DPAR_F64, 1e-14);
    within = 1e-30;
    well(host_layers.norm(host.ctx, &one));
}

/* Of apply and gradient: stretches of a plane. */
static void norm_points_expected(samples &x, const dpar_mem_norm &m, int64_t plane)
{
    const int64_t set = plane / (CHANNELS / GROUPS);
    dpar_mem_norm one = m;
    one.planes = one.channels = one.groups = 1;
    one.scale = x.in(m.scale, {plane, 1}, DPAR_F32);
    one.shift = x.in(m.shift, {plane, 1}, DPAR_F32);
    one.saved = (double *)x.in(m.saved, {2 * set, 2}, DPAR_F64);
    one.total = (double *)x.in(m.total, {3 * set, 3}, DPAR_F64);
    within = 1.0;
    for (stretch p : stretches(m.x.step, 1)) {
        p.first += plane * m.x.step;
        one.extent[0] = p.count;
        one.x.data = x.in(m.x.data, p, DPAR_F32);
        one.dy.data = m.phase == DPAR_MEM_NORM_GRADIENT ? x.in(m.dy.data, p, DPAR_F32) : NULL;
        one.to.data = x.out(m.to.data, p, DPAR_F32, 2e-7);
        well(host_layers.norm(host.ctx, &one));
    }
    within = 1e-30;
}

static void norm_row(const char *name, double each, dpar_mem_norm m, const arrays &a,
                     const arrays &b, const arrays &c)
{
    const auto put = [&](int k) {
        m.x.data = a.at[k];
        m.dy.data = b.at[k];
        m.to.data = c.at[k];
    };
    row(
        name, each * (double)(m.planes * m.x.step),
        [&](int k) {
            put(k);
            well(layers.norm(mem.ctx, &m));
        },
        [&](samples &x) {
            put(0);
            if (m.phase == DPAR_MEM_NORM_SUMS) {
                norm_sums_expected(x, m, 0);
                norm_sums_expected(x, m, GROUPS - 1);
            } else {
                norm_points_expected(x, m, 0);
                norm_points_expected(x, m, CHANNELS - 1);
            }
        });
}

static void norms(const arrays &a, const arrays &b, const arrays &c)
{
    void *at = NULL;
    std::vector<double> here(NORM_ALL);
    for (size_t i = 0; i < here.size(); i++) {
        here[i] = 0.5 + dpar_random_uniform(13, 5, (uint64_t)i);
    }
    float *f32 = (float *)(void *)&here[NORM_SCALE];
    for (size_t i = 0; i < 2 * (NORM_ALL - NORM_SCALE); i++) {
        f32[i] = (float)dpar_random_uniform(13, 6, (uint64_t)i) - 0.5f;
    }
    fine(cudaMalloc(&at, here.size() * 8), "cudaMalloc");
    fine(cudaMemcpy(at, here.data(), here.size() * 8, cudaMemcpyHostToDevice), "copy");
    double *small = (double *)at;
    moments(a, small + NORM_TOTAL);
    norm_row("norm of 32 groups, apply", 8.0, norm_of(DPAR_MEM_NORM_APPLY, small), a, b, c);
    norm_row("norm of 32 groups, sums", 8.0, norm_of(DPAR_MEM_NORM_SUMS, small), a, b, c);
    norm_row("norm of 32 groups, gradient", 12.0, norm_of(DPAR_MEM_NORM_GRADIENT, small), a, b, c);
    cudaFree(at);
}

#if !defined(SMALL)
/* The device as dpar_cuda_measure finds it, and as settings of a machine of such devices. */
static void measured(void)
{
    static const char *const known[][2] = {
        {"H200", "1x8:h200"}, {"H100", "1x8:h100-80"}, {"A100", "1x8:a100-80"}};
    dpar_cuda_measurement m;
    dpar_why why;
    if (dpar_cuda_measure(&gpu, NULL, &m, &why) != DPAR_OK) {
        fprintf(stderr, "gpu_kernels: the device was not measured: %s\n", why.text);
        exit(1);
    }
    printf("%s: copy %.1f GB/s, product %.1f TFLOP/s (%s), launch %.2f us, link %.1f GB/s, from the "
           "host %.1f GB/s (0: not measured)\n",
           m.name, m.copy_Bps * 1e-9, m.gemm_flops * 1e-12, m.gemm_library, m.launch_s * 1e6,
           m.link_Bps * 1e-9, m.pcie_Bps * 1e-9);
    for (const char *const *k : known) {
        dpar_cluster c;
        char text[1000];
        if (strstr(m.name, k[0]) != NULL &&
            dpar_cluster_read(&c, k[1], strlen(k[1]), &why) == DPAR_OK) {
            (void)dpar_cuda_measurement_write(&m, c.gpu.memory_Bps, c.gpu.flops[DPAR_BF16],
                                              c.link_Bps, text, sizeof text);
            printf("%s\n%s", k[1], text);
        }
    }
}
#endif

int main(int argc, char **argv)
{
    dpar_why why;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "csv") == 0) {
            csv = 1;
        } else {
            bytes = std::max<int64_t>(1, atoll(argv[i])) << 20;
        }
    }
    if (dpar_cuda_open(&gpu, NULL, &why) != DPAR_OK) {
        printf("%s\n", why.text);
        return 77;
    }
    dpar_cuda_mem(&gpu, &mem);
    host = dpar_mem_host();
    layers = *(const dpar_mem_layers *)mem.layers;
    host_layers = dpar_mem_host_layers();
    fine(cudaEventCreate(&before), "cudaEventCreate");
    fine(cudaEventCreate(&behind), "cudaEventCreate");
    {
        const arrays a(DPAR_F32, 1e-3), b(DPAR_F32, 1e-3), h(DPAR_BF16, 1e-3);
        copies(a, b);
        spans(a, b, h);
        halo(a, b);
        faces(a, b);
        cubes(a, b);
    }
    { /* others: sums of f64, as f32, may be NaN */
        const arrays a(DPAR_F32, 1e-3), b(DPAR_F32, 1e-3), h(DPAR_BF16, 1e-3), c(DPAR_BF16, 1e-3);
        sums(a, b, h);
        rows(h, c);
    }
    {
        const arrays a(DPAR_F32, 1e-3), b(DPAR_F32, 1e-3), h(DPAR_BF16, 1e-3);
        const arrays m(DPAR_F32, 1e-3), v(DPAR_BF16, 1e-3), c(DPAR_BF16, 1e-3);
        for (int k = 0; k < SETS; k++) { /* v: squares are not below 0 */
            fine(cudaMemset(v.at[k], 0, (size_t)bytes), "cudaMemset");
        }
        step("adamw all bf16, 14 bytes", DPAR_BF16, DPAR_BF16, 0, 0, 2, a, h, c, v, c);
        step("adamw f32", DPAR_F32, DPAR_F32, 0, 0, 0, a, b, m, v, c);
        step("adamw f32, bf16 gradient and copy", DPAR_F32, DPAR_BF16, 1, 0, 0, a, h, m, v, c);
        step("adamw bf16 and rest", DPAR_BF16, DPAR_BF16, 0, 1, 0, a, h, m, v, c);
        step("adamw bf16, stochastic", DPAR_BF16, DPAR_BF16, 0, 0, 1, a, h, m, v, c);
        sgd(a, b, m);
    }
    {
        const arrays a(DPAR_F32, 1e-3), b(DPAR_F32, 1e-3);
        entropies(a, b);
        merges(a, b);
        quantizes(a, b, DPAR_F8);
        quantizes(a, b, DPAR_I8);
    }
    {
        const arrays a(DPAR_F32, 1e-3), b(DPAR_F32, 1e-3), c(DPAR_F32, 1e-3);
        norms(a, b, c);
    }
    if (!csv) {
        printf("on %s: %d units, copies at %.1f GB/s (read and written)\n", "this device",
               gpu.multiprocessors, copy_Bps * 1e-9);
#if !defined(SMALL)
        measured();
#endif
    }
    well(dpar_cuda_close(&gpu));
    return wrong > 0;
}
