/* SPDX-License-Identifier: MIT-0 */
/* gpu_kernels: what share of the device's copy bandwidth each operation of dpar_cuda.h reaches, in
 * one run: bytes that it must read and write, over the time of a cudaMemcpy of as many of them.
 * Random numbers, the median of repetitions by events, several sets of arrays in turn so that
 * nothing lies in the cache from the time before. One line an operation:
 *     name, MB moved, us, GB/s, % of the copy, launches
 *
 *     nvcc -x cu -std=c++17 -O3 -arch=sm_90 -I. bench/gpu_kernels.cu -o gpu_kernels -ldl
 *
 * Arguments: MiB of the largest array (256); "csv": one line each for bench/gpu_peer.py. Compile
 * with -DSMALL and the stand-in to see that it runs: the times then say nothing. */
#ifndef DPAR_APART /* dpar.h and dpar_cuda.h are objects of their own */
#define DPAR_IMPLEMENTATION
#define DPAR_CUDA_IMPLEMENTATION
#endif
#define DPAR_NO_SHOW
#if defined(__CUDACC__)
#pragma nv_diag_suppress 550 /* of dpar.h: variables that are set and kept for symmetry */
#endif
#include "dpar_cuda.h"

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
static dpar_mem mem;
static int csv;
static double copy_Bps;
static cudaEvent_t before, behind;

static void fine(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        printf("%s: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

static void well(dpar_status st)
{
    if (st != DPAR_OK) {
        printf("%s\n", gpu.why.text);
        exit(1);
    }
}

/* SETS arrays of `bytes`, of random numbers in -1 .. 1 of a type. */
struct arrays {
    std::vector<unsigned char *> at;
    arrays(int32_t type, double least) : at(SETS)
    {
        const int64_t n = bytes / dpar_type_bytes(type), some = std::min<int64_t>(n, 1 << 20);
        std::vector<float> numbers((size_t)some);
        for (int64_t i = 0; i < some; i++) {
            const double x = 2.0 * dpar_random_uniform(7, 1, (uint64_t)i) - 1.0;
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

static void row(const char *name, double moved, const std::function<void(int)> &once)
{
    gpu.launches = 0;
    const double us = timed(once);
    const double launches = (double)gpu.launches / (TIMES + 2), share = moved / us * 1e6 / copy_Bps;
    if (csv) {
        printf("%s,%.0f,%.3f\n", name, moved, us);
        return;
    }
    printf("%-38s %9.1f MB %10.1f us %8.1f GB/s %6.1f %%  %4.1f launches\n", name, moved * 1e-6, us,
           moved / us * 1e-3, 100.0 * share, launches);
}

static void copies(const arrays &a, const arrays &b)
{
    const double us = timed([&](int k) {
        fine(cudaMemcpyAsync(b.at[k], a.at[k], (size_t)bytes, cudaMemcpyDeviceToDevice, gpu.stream),
             "cudaMemcpyAsync");
    });
    copy_Bps = 2.0 * (double)bytes / us * 1e6;
    row("cudaMemcpyAsync", 2.0 * (double)bytes, [&](int k) {
        fine(cudaMemcpyAsync(b.at[k], a.at[k], (size_t)bytes, cudaMemcpyDeviceToDevice, gpu.stream),
             "cudaMemcpyAsync");
    });
}

/* A face of a cube of doubles, `wide` planes along dim `d`, packed. */
static void faces(const arrays &a, const arrays &b)
{
    int64_t side = 8;
    while ((side + 8) * (side + 8) * (side + 8) * 8 <= bytes) {
        side += 8;
    }
    for (int d = 0; d < 3; d++) {
        for (int64_t wide = 1; wide <= 4; wide += 3) {
            char name[64];
            dpar_mem_box x;
            memset(&x, 0, sizeof x);
            x.to_type = x.from_type = x.through = DPAR_F64;
            x.dims = 3;
            int64_t dense = 1, step = 1, n = 1;
            for (int e = 2; e >= 0; e--) {
                x.extent[e] = e == d ? wide : side;
                x.from_stride[e] = step;
                x.to_stride[e] = dense;
                step *= side;
                dense *= x.extent[e];
                n *= x.extent[e];
            }
            snprintf(name, sizeof name, "pack %lld^3 f64, dim %d, %lld planes", (long long)side, d,
                     (long long)wide);
            /* what the memory moves: whole sectors of 32 bytes of a short run */
            const double read =
                d == 2 ? (wide * 8 < 32 ? 32.0 : (double)wide * 8.0) / (double)wide : 8.0;
            row(name, (double)n * (8.0 + read), [&](int k) {
                x.to = b.at[k];
                x.from = a.at[k];
                well(mem.move(mem.ctx, &x, 1));
            });
        }
    }
}

/* 26 boxes of 4 fields, packed, and their adjoint, sums that meet in edges and corners: one launch
 * each. */
static void halo(const arrays &a, const arrays &b)
{
    int64_t side = 8;
    while (4 * (side + 8) * (side + 8) * (side + 8) * 8 <= bytes && side < 512) {
        side += 8;
    }
    std::vector<dpar_mem_box> all;
    int64_t used = 0, n = 0;
    for (int f = 0; f < 4; f++) {
        for (int dir = 0; dir < 27; dir++) {
            const int at[3] = {dir / 9 - 1, dir / 3 % 3 - 1, dir % 3 - 1};
            dpar_mem_box x;
            int64_t dense = 1, step = 1, from = f * side * side * side;
            if (dir == 13) {
                continue;
            }
            memset(&x, 0, sizeof x);
            x.to_type = x.from_type = x.through = DPAR_F64;
            x.dims = 3;
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
            n += dense;
            all.push_back(x);
        }
    }
    std::vector<dpar_mem_box> now = all;
    char name[64];
    snprintf(name, sizeof name, "halo of 4 fields, %lld^3 f64, 26 boxes", (long long)side);
    row(name, 16.0 * (double)n, [&](int k) {
        for (size_t i = 0; i < all.size(); i++) {
            now[i].to = b.at[k] + (uintptr_t)all[i].to;
            now[i].from = a.at[k] + (uintptr_t)all[i].from;
        }
        well(mem.move(mem.ctx, now.data(), (int32_t)now.size()));
    });
    snprintf(name, sizeof name, "its adjoint, sums");
    row(name, 24.0 * (double)n, [&](int k) {
        for (size_t i = 0; i < all.size(); i++) {
            now[i].to = a.at[k] + (uintptr_t)all[i].from;
            now[i].from = b.at[k] + (uintptr_t)all[i].to;
            now[i].op = DPAR_SUM;
            memcpy(now[i].to_stride, all[i].from_stride, sizeof now[i].to_stride);
            memcpy(now[i].from_stride, all[i].to_stride, sizeof now[i].from_stride);
        }
        well(mem.move(mem.ctx, now.data(), (int32_t)now.size()));
    });
}

static void spans(const arrays &a, const arrays &b, const arrays &h)
{
    dpar_mem_span s;
    memset(&s, 0, sizeof s);
    s.scale = 1.0;
    s.to_type = s.from_type = DPAR_F32;
    s.count = bytes / 4;
    row("span f32", 2.0 * (double)bytes, [&](int k) {
        s.to = b.at[k];
        s.from = a.at[k];
        well(mem.span(mem.ctx, &s, 1));
    });
    s.scale = 0.5;
    row("span f32, scaled", 2.0 * (double)bytes, [&](int k) {
        s.to = b.at[k];
        s.from = a.at[k];
        well(mem.span(mem.ctx, &s, 1));
    });
    s.scale = 1.0;
    s.add = 1;
    row("span f32, added", 3.0 * (double)bytes, [&](int k) {
        s.to = b.at[k];
        s.from = a.at[k];
        well(mem.span(mem.ctx, &s, 1));
    });
    s.add = 0;
    s.from_type = DPAR_BF16;
    row("span bf16 to f32", 1.5 * (double)bytes, [&](int k) {
        s.to = b.at[k];
        s.from = h.at[k];
        well(mem.span(mem.ctx, &s, 1));
    });
    s.from_type = DPAR_F32;
    s.to_type = DPAR_BF16;
    row("span f32 to bf16", 1.5 * (double)bytes, [&](int k) {
        s.to = b.at[k];
        s.from = a.at[k];
        well(mem.span(mem.ctx, &s, 1));
    });
    s.stochastic = 1;
    row("span f32 to bf16, stochastic", 1.5 * (double)bytes, [&](int k) {
        s.to = b.at[k];
        s.from = a.at[k];
        well(mem.span(mem.ctx, &s, 1));
    });
    enum { MANY = 200 }; /* arrays into one bucket */
    std::vector<dpar_mem_span> many(MANY);
    row("flatten of 200 arrays, f32", 2.0 * (double)bytes, [&](int k) {
        const int64_t each = bytes / 4 / MANY;
        for (int i = 0; i < MANY; i++) {
            memset(&many[i], 0, sizeof many[i]);
            many[i].to = (float *)(void *)b.at[k] + i * each;
            many[i].from = (float *)(void *)a.at[k] + i * each;
            many[i].count = each;
            many[i].to_type = many[i].from_type = DPAR_F32;
            many[i].scale = 1.0;
        }
        well(mem.span(mem.ctx, many.data(), MANY));
    });
}

static void sums(const arrays &a, const arrays &b, const arrays &h)
{
    dpar_mem_reduce r;
    dpar_mem_finite f;
    dpar_mem_squares q;
    void *out = NULL;
    fine(cudaMalloc(&out, 64), "cudaMalloc");
    memset(&r, 0, sizeof r);
    r.parts = 8;
    r.count = r.stride = bytes / 2 / 8;
    r.to_type = r.from_type = DPAR_BF16;
    r.sums = DPAR_F32;
    r.op = DPAR_SUM;
    r.scale = 1.0;
    row("reduce 8 parts, bf16", 1.125 * (double)bytes, [&](int k) {
        r.to = b.at[k];
        r.from = h.at[k];
        well(mem.reduce(mem.ctx, &r));
    });
    memset(&f, 0, sizeof f);
    f.count = bytes / 4;
    f.type = DPAR_F32;
    f.found = (int64_t *)out;
    row("finite, f32", (double)bytes, [&](int k) {
        f.in = a.at[k];
        well(mem.finite(mem.ctx, &f));
    });
    memset(&q, 0, sizeof q);
    q.count = bytes / 4;
    q.type = DPAR_F32;
    q.sum = (double *)out + 1;
    row("squares, f32", (double)bytes, [&](int k) {
        q.in = a.at[k];
        well(mem.squares(mem.ctx, &q));
    });
    q.count = bytes / 2;
    q.type = DPAR_BF16;
    row("squares, bf16", (double)bytes, [&](int k) {
        q.in = h.at[k];
        well(mem.squares(mem.ctx, &q));
    });
    cudaFree(out);
}

/* random 1: stochastic, 2: with moments in bf16. */
static void step(const char *name, int32_t wt, int32_t gt, int copy, int rest, int random,
                 const arrays &w, const arrays &g, const arrays &m, const arrays &v,
                 const arrays &c)
{
    const int64_t n = bytes / 4;
    dpar_optimizer o = dpar_optimizer_adamw();
    dpar_optimizer_piece p;
    dpar_mem_optimize x;
    memset(&p, 0, sizeof p);
    memset(&x, 0, sizeof x);
    o.stochastic = random > 0;
    o.moment_type = random > 1 ? (int32_t)DPAR_BF16 : 0;
    p.weight_type = wt;
    p.gradient_type = gt;
    p.count = n;
    x.optimizer = &o;
    x.piece = &p;
    x.t = 10;
    x.rate = 1e-5;
    x.factor = 1.0;
    x.copy_type = DPAR_BF16;
    const double each = 2.0 * dpar_type_bytes(wt) + dpar_type_bytes(gt) + (random > 1 ? 8.0 : 16.0) +
                        2.0 * copy + 4.0 * rest;
    for (int fast = 0; fast < 2; fast++) {
        char line[64];
        snprintf(line, sizeof line, "%s%s", name, fast ? ", in f32" : "");
        gpu.fast = fast;
        row(line, each * (double)n, [&](int k) {
            p.weight = w.at[k];
            p.gradient = g.at[k];
            p.m = m.at[k];
            p.v = v.at[k];
            x.copy = copy ? c.at[k] : NULL;
            x.rest = rest ? (int16_t *)(void *)c.at[k] : NULL;
            well(mem.optimize(mem.ctx, &x));
        });
    }
    gpu.fast = 0;
}

static void rows(const arrays &a, const arrays &b)
{
    const int64_t width = 4096, n = std::max<int64_t>(1, bytes / 2 / width / 2);
    std::vector<int64_t> order((size_t)n);
    void *index = NULL;
    dpar_mem_gather g;
    dpar_mem_combine m;
    for (int64_t i = 0; i < n; i++) {
        order[(size_t)i] = (int64_t)((uint64_t)i * 7919u % (uint64_t)n);
    }
    fine(cudaMalloc(&index, (size_t)n * 8), "cudaMalloc");
    fine(cudaMemcpy(index, order.data(), (size_t)n * 8, cudaMemcpyHostToDevice), "copy");
    memset(&g, 0, sizeof g);
    g.rows = n;
    g.bytes = g.to_step = g.from_step = 2 * width;
    g.index.at = index;
    g.index.type = DPAR_I64;
    row("gather of rows of 8 KB", 4.0 * (double)(n * width), [&](int k) {
        g.to = b.at[k];
        g.from = a.at[k];
        well(mem.gather(mem.ctx, &g));
    });
    memset(&m, 0, sizeof m);
    m.rows = n / 2;
    m.k = 2;
    m.width = width;
    m.to_type = m.from_type = DPAR_BF16;
    m.index = g.index;
    row("combine of 2 rows of 4096 bf16", 3.0 * (double)(n * width), [&](int k) {
        m.to = b.at[k];
        m.from = a.at[k];
        well(mem.combine(mem.ctx, &m));
    });
    {
        dpar_mem_dot d;
        memset(&d, 0, sizeof d);
        d.rows = n;
        d.k = 1;
        d.width = width;
        d.to_type = DPAR_F32;
        d.type = DPAR_BF16;
        d.index = g.index;
        row("dot of rows of 4096 bf16", 4.0 * (double)(n * width), [&](int k) {
            d.a = a.at[k];
            d.b = b.at[k];
            d.to = b.at[k] + 2 * n * width;
            well(mem.dot(mem.ctx, &d));
        });
    }
    /* the gradient of an embedding: tokens by Zipf's law, of which the first is one in ten */
    dpar_mem_scatter s;
    memset(&s, 0, sizeof s);
    s.width = 1024;
    s.rows = std::max<int64_t>(1, bytes / 4 / s.width / 2);
    s.type = DPAR_F32;
    s.index.type = DPAR_I64;
    for (int turn = 0; turn < 2; turn++) {
        std::vector<int64_t> target((size_t)s.rows), seen((size_t)s.rows);
        int64_t kinds = 0;
        void *at = NULL;
        for (int64_t i = 0; i < s.rows; i++) {
            const double u = dpar_random_uniform(11, 3, (uint64_t)i);
            const int64_t zipf = (int64_t)(exp(u * log((double)s.rows + 1.0)) - 1.0);
            const int64_t row = turn ? zipf : (int64_t)((uint64_t)i * 7919u % (uint64_t)s.rows);
            target[(size_t)i] = std::min(row, s.rows - 1);
            kinds += seen[(size_t)target[(size_t)i]]++ == 0;
        }
        fine(cudaMalloc(&at, (size_t)s.rows * 8), "cudaMalloc");
        fine(cudaMemcpy(at, target.data(), (size_t)s.rows * 8, cudaMemcpyHostToDevice), "copy");
        s.index.at = at;
        row(turn ? "scatter of rows of 4 KB, Zipf" : "scatter of rows of 4 KB",
            4.0 * (double)s.width * (double)(s.rows + 2 * kinds), [&](int k) {
                s.to = b.at[k];
                s.from = b.at[k] + 4 * s.rows * s.width;
                well(mem.scatter(mem.ctx, &s));
            });
        cudaFree(at);
    }
    cudaFree(index);
}

static void others(const arrays &a, const arrays &b)
{
    const int64_t vocabulary = std::min<int64_t>(50304, bytes / 64),
                  tokens = bytes / 4 / vocabulary;
    std::vector<int32_t> ids((size_t)tokens);
    void *target = NULL, *lse = NULL, *own = NULL, *moments = NULL;
    dpar_mem_xent x;
    dpar_mem_merge m;
    dpar_mem_moments o;
    dpar_mem_quantize q;
    for (int64_t i = 0; i < tokens; i++) {
        ids[(size_t)i] = (int32_t)(i * 7919 % vocabulary);
    }
    fine(cudaMalloc(&target, (size_t)tokens * 4), "cudaMalloc");
    fine(cudaMalloc(&lse, (size_t)tokens * 8), "cudaMalloc");
    fine(cudaMalloc(&own, (size_t)tokens * 12), "cudaMalloc");
    fine(cudaMalloc(&moments, 24 * 64), "cudaMalloc");
    fine(cudaMemcpy(target, ids.data(), (size_t)tokens * 4, cudaMemcpyHostToDevice), "copy");
    fine(cudaMemset(lse, 0, (size_t)tokens * 8), "cudaMemset");
    memset(&x, 0, sizeof x);
    x.type = DPAR_F32;
    x.tokens = tokens;
    x.rows = x.hi[0] = x.vocabulary = vocabulary;
    x.target.at = target;
    x.target.type = DPAR_I32;
    x.own = own;
    x.lse = (double *)lse;
    x.scale = 1e-3;
    for (int fast = 0; fast < 2; fast++) {
        gpu.fast = fast;
        x.phase = DPAR_MEM_XENT_PART;
        row(fast ? "xent, part, in f32" : "xent, part", 4.0 * (double)(tokens * vocabulary),
            [&](int k) {
                x.logits = a.at[k];
                well(mem.xent(mem.ctx, &x));
            });
        x.phase = DPAR_MEM_XENT_GRADIENT;
        row(fast ? "xent, gradient, in f32" : "xent, gradient", 8.0 * (double)(tokens * vocabulary),
            [&](int k) {
                x.logits = b.at[k];
                well(mem.xent(mem.ctx, &x));
            });
    }
    gpu.fast = 0;
    memset(&m, 0, sizeof m);
    m.type = DPAR_F32;
    m.values = 128;
    m.rows = bytes / 4 / 130;
    row("merge of rows of 128", 12.0 * (double)(m.rows * 128), [&](int k) {
        m.out = b.at[k];
        m.lse = b.at[k] + 4 * m.rows * 128;
        m.more = a.at[k];
        m.more_lse = a.at[k] + 4 * m.rows * 128;
        well(mem.merge(mem.ctx, &m));
    });
    memset(&o, 0, sizeof o);
    o.type = DPAR_F32;
    o.dims = 1;
    o.planes = o.channels = o.groups = 64;
    o.groups = 32;
    o.step = o.extent[0] = bytes / 4 / 64;
    o.stride[0] = 1;
    o.to = (double *)moments;
    row("moments of 32 groups", (double)bytes, [&](int k) {
        o.x = a.at[k];
        well(mem.moments(mem.ctx, &o));
    });
    memset(&q, 0, sizeof q);
    q.count = bytes / 4 / 128 * 128;
    q.block = q.code_step = 128;
    q.scale_step = 4;
    q.type = DPAR_F32;
    for (int type = 0; type < 2; type++) {
        q.code_type = type ? DPAR_I8 : DPAR_F8;
        row(type ? "quantize to i8, blocks of 128" : "quantize to f8, blocks of 128",
            (double)q.count * (5.0 + 4.0 / 128.0), [&](int k) {
                q.x = a.at[k];
                q.code = b.at[k];
                q.scale = b.at[k] + q.count;
                well(mem.quantize(mem.ctx, &q));
            });
        row(type ? "dequantize of i8" : "dequantize of f8", (double)q.count * (5.0 + 4.0 / 128.0),
            [&](int k) {
                q.x = a.at[k];
                q.code = b.at[k];
                q.scale = b.at[k] + q.count;
                well(mem.dequantize(mem.ctx, &q));
            });
    }
    cudaFree(target);
    cudaFree(lse);
    cudaFree(own);
    cudaFree(moments);
}

/* The device as dpar_cuda_measure finds it, and as settings of a machine of such devices. */
static void measured(void)
{
    static const char *const known[][2] = {
        {"H200", "1x8:h200"}, {"H100", "1x8:h100-80"}, {"A100", "1x8:a100-80"}};
    dpar_cuda_measured m;
    dpar_why why;
    if (dpar_cuda_measure(&gpu, NULL, &m, &why) != DPAR_OK) {
        printf("%s\n", why.text);
        exit(1);
    }
    printf("%s: copy %.1f GB/s, product %.1f TFLOP/s (%s), launch %.2f us, link %.1f GB/s, from the "
           "host %.1f GB/s (0: not measured)\n",
           m.name, m.copy_Bps * 1e-9, m.gemm_flops * 1e-12, m.gemm_by, m.launch_s * 1e6,
           m.link_Bps * 1e-9, m.pcie_Bps * 1e-9);
    for (const char *const *k : known) {
        dpar_cluster c;
        char text[1000];
        if (strstr(m.name, k[0]) != NULL &&
            dpar_cluster_parse(&c, k[1], strlen(k[1]), &why) == DPAR_OK) {
            (void)dpar_cuda_measured_text(&m, c.gpu.memory_Bps, c.gpu.flops[DPAR_BF16], c.link_Bps,
                                          text, sizeof text);
            printf("%s\n%s", k[1], text);
        }
    }
}

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
    fine(cudaEventCreate(&before), "cudaEventCreate");
    fine(cudaEventCreate(&behind), "cudaEventCreate");
    {
        const arrays a(DPAR_F32, 1e-3), b(DPAR_F32, 1e-3), h(DPAR_BF16, 1e-3);
        const arrays m(DPAR_F32, 1e-3), v(DPAR_BF16, 1e-3), c(DPAR_BF16, 1e-3);
        copies(a, b);
        spans(a, b, h);
        halo(a, b);
        faces(a, b);
        sums(a, b, h);
        rows(h, c);
        for (int k = 0; k < SETS; k++) { /* v: squares are not below 0 */
            fine(cudaMemset(v.at[k], 0, (size_t)bytes), "cudaMemset");
        }
        step("adamw all bf16, 14 bytes", DPAR_BF16, DPAR_BF16, 0, 0, 2, a, h, c, v, c);
        step("adamw f32", DPAR_F32, DPAR_F32, 0, 0, 0, a, b, m, v, c);
        step("adamw f32, bf16 gradient and copy", DPAR_F32, DPAR_BF16, 1, 0, 0, a, h, m, v, c);
        step("adamw bf16 and rest", DPAR_BF16, DPAR_BF16, 0, 1, 0, a, h, m, v, c);
        step("adamw bf16, stochastic", DPAR_BF16, DPAR_BF16, 0, 0, 1, a, h, m, v, c);
    }
    {
        const arrays a(DPAR_F32, 1e-3), b(DPAR_F32, 1e-3);
        others(a, b);
    }
    if (!csv) {
        printf("on %s: %d units, copies at %.1f GB/s (read and written)\n", "this device",
               gpu.units, copy_Bps * 1e-9);
#if !defined(SMALL)
        measured();
#endif
    }
    well(dpar_cuda_close(&gpu));
    return 0;
}
