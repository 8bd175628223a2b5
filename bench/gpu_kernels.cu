/* SPDX-License-Identifier: MIT-0 */
/* gpu_kernels - measures what share of the device's copy bandwidth each operation of dpar_cuda.h
 * reaches: the bytes that it has to read and write a second, over those of cudaMemcpyAsync in the
 * same run. 100 % is as fast as a copy. Times are medians by events. The arrays hold random
 * numbers, and several sets of them take turns, so that no operation finds its data in the cache.
 * One line for each operation: name, MB moved, us, GB/s, % of the copy, launches
 *
 * Before an operation is timed, its result is compared with what the host's table makes of parts of
 * the same arrays (helpers/gpu_samples.h).
 *
 *     nvcc -x cu -std=c++17 -O3 -arch=sm_90 -I. bench/gpu_kernels.cu -o gpu_kernels -ldl
 *
 *     ./gpu_kernels [MIB] [csv]      of the largest array, 1 to 65536 (default 256); csv for
 *                                    bench/gpu_peer.py
 *
 * Compiled with -DSMALL over the stand-in of a device (tests/gpu/run.sh) it checks results, and its
 * times mean nothing.
 *
 * Exit codes: 0 done; 1 a wrong result, or a call failed; 2 wrong arguments; 77 no device. */
#ifndef DPAR_APART /* dpar.h and dpar_cuda.h are objects of their own */
#define DPAR_IMPLEMENTATION
#define DPAR_CUDA_IMPLEMENTATION
#endif
#if defined(__CUDACC__)
#pragma nv_diag_suppress 550 /* dpar.h has variables that are set and never read */
#endif
#include "dpar_cost.h"
#include "dpar_train.h"
#include "dpar_cuda.h"

#include "../helpers/gpu_samples.h"

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

/* Ends the program if a call of CUDA failed. */
static void fine(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "gpu_kernels: %s failed: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

/* Ends the program if a call of dpar failed. */
static void well(dpar_status st)
{
    if (st != DPAR_OK) {
        fprintf(stderr, "gpu_kernels: %s\n",
                gpu.why.text[0] != 0 ? gpu.why.text : dpar_status_text(st));
        exit(1);
    }
}

/* SETS arrays of `bytes` of random numbers from -1 to 1, of which none is closer to 0 than `least`.
 * Each object has other numbers. */
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
                dpar_mem_span span;
                memset(&span, 0, sizeof span);
                span.to = at[(size_t)k] + i * dpar_type_bytes(type);
                span.from = seed;
                span.count = std::min(some, n - i);
                span.to_type = type;
                span.from_type = DPAR_F32;
                span.scale = 1.0;
                well(mem.span(mem.ctx, &span, 1));
            }
        }
        well(mem.wait(mem.ctx));
        cudaFree(seed);
    }
    ~arrays()
    {
        for (unsigned char *memory : at) {
            cudaFree(memory);
        }
    }
    arrays(const arrays &) = delete;
    arrays &operator=(const arrays &) = delete;
};

/* Returns the median us of `once(set)`, which does an operation on a set of arrays. */
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

/* Checks an operation, measures it, and prints its line. `once` does it on set k of its arrays.
 * `expected`, which is called first, takes samples of set 0 and has the host's table do the same to
 * them. moved: bytes that have to be read and written. */
static void row(const char *name, double moved, const std::function<void(int)> &once,
                const std::function<void(samples &)> &expected)
{
    samples taken;
    expected(taken);
    once(0);
    if (!taken.same()) {
        printf("gpu_kernels: %s: the result differs from that of the host's table\n", name);
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

static void copies(const arrays &first, const arrays &second)
{
    const auto once = [&](int k) {
        fine(cudaMemcpyAsync(second.at[k], first.at[k], (size_t)bytes, cudaMemcpyDeviceToDevice,
                             gpu.stream),
             "cudaMemcpyAsync");
    };
    copy_Bps = 2.0 * (double)bytes / timed(once) * 1e6;
    row("cudaMemcpyAsync", 2.0 * (double)bytes, once, [&](samples &taken) {
        for (stretch part : stretches(bytes, 1)) {
            memcpy(taken.out(second.at[0], part, DPAR_U8, -1.0),
                   taken.in(first.at[0], part, DPAR_U8), (size_t)part.count);
        }
    });
}

/* ---- boxes ---- */

/* A row that moves boxes of one array into another. Their pointers are offsets in bytes. */
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
        [&](samples &taken) {
            const stretch all = {0, bytes};
            void *made = taken.both(to.at[0], all, DPAR_U8, -1.0);
            put(host, made, taken.in(from.at[0], all, DPAR_U8));
        });
}

/* Returns the side, a multiple of 8, of the largest cubes of so many fields of f64 that fit. */
static int64_t side_of(int64_t fields, int64_t most)
{
    int64_t side = 8;
    while (fields * (side + 8) * (side + 8) * (side + 8) * 8 <= bytes && side < most) {
        side += 8;
    }
    return side;
}

/* Returns a box of 3 dims whose extents are still 0. */
static dpar_mem_box box_of(int32_t to_type, int32_t from_type, int32_t op)
{
    dpar_mem_box box;
    memset(&box, 0, sizeof box);
    box.to_type = to_type;
    box.from_type = from_type;
    box.round_type = dpar_type_bytes(to_type) < dpar_type_bytes(from_type) ? to_type : from_type;
    box.op = op;
    box.dims = 3;
    return box;
}

/* Packs faces of a cube of doubles, 1 and 4 planes wide, along each dim. */
static void faces(const arrays &first, const arrays &second)
{
    const int64_t side = side_of(1, INT64_MAX);
    for (int d = 0; d < 3; d++) {
        for (int64_t wide = 1; wide <= 4; wide += 3) {
            char name[64];
            dpar_mem_box box = box_of(DPAR_F64, DPAR_F64, DPAR_COPY);
            int64_t dense = 1, step = 1;
            for (int e = 2; e >= 0; e--) {
                box.extent[e] = e == d ? wide : side;
                box.from_stride[e] = step;
                box.to_stride[e] = dense;
                step *= side;
                dense *= box.extent[e];
            }
            snprintf(name, sizeof name, "pack %lld^3 f64, dim %d, %lld planes", (long long)side, d,
                     (long long)wide);
            /* short runs: the memory moves whole sectors of 32 bytes */
            double read = 8.0;
            if (d == 2) {
                read = std::max(32.0, (double)wide * 8.0) / (double)wide;
            }
            move_row(name, (double)dense * (8.0 + read), {box}, second, first);
        }
    }
}

/* Moves a cube without its first four columns: casts, and sums, maxima, minima with the target. */
static void cubes(const arrays &first, const arrays &second)
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
    for (const auto &entry : rows) {
        dpar_mem_box box = box_of(entry.to, entry.from, entry.op);
        const int64_t width = dpar_type_bytes(entry.to), from_width = dpar_type_bytes(entry.from);
        int64_t step = 1;
        for (int e = 2; e >= 0; e--) {
            box.extent[e] = e == 2 ? side - 4 : side;
            box.to_stride[e] = box.from_stride[e] = step;
            step *= side;
        }
        box.to = (void *)(uintptr_t)(4 * width);
        box.from = (void *)(uintptr_t)(4 * from_width);
        move_row(entry.name,
                 (double)(side * side * (side - 4)) *
                     (double)(from_width + width * (entry.op == DPAR_COPY ? 1 : 2)),
                 {box}, second, first);
    }
}

/* Packs the 26 boxes of the halos of 4 fields, and adds them back, which adds several values to the
 * cells of edges and corners. Each is one launch. */
static void halo(const arrays &first, const arrays &second)
{
    const int64_t side = side_of(4, 512);
    std::vector<dpar_mem_box> pack, adjoint;
    int64_t used = 0;
    for (int f = 0; f < 4; f++) {
        for (int dir = 0; dir < 27; dir++) {
            const int at[3] = {dir / 9 - 1, dir / 3 % 3 - 1, dir % 3 - 1};
            dpar_mem_box box = box_of(DPAR_F64, DPAR_F64, DPAR_COPY);
            int64_t dense = 1, step = 1, from = f * side * side * side;
            if (dir == 13) {
                continue;
            }
            for (int e = 2; e >= 0; e--) {
                box.extent[e] = at[e] == 0 ? side : 1;
                box.from_stride[e] = step;
                box.to_stride[e] = dense;
                from += at[e] > 0 ? (side - 1) * step : 0;
                step *= side;
                dense *= box.extent[e];
            }
            box.to = (void *)(uintptr_t)(8 * used);
            box.from = (void *)(uintptr_t)(8 * from);
            used += dense;
            pack.push_back(box);
            box.op = DPAR_SUM;
            std::swap(box.to, box.from);
            std::swap(box.to_stride, box.from_stride);
            adjoint.push_back(box);
        }
    }
    char name[64];
    snprintf(name, sizeof name, "halo of 4 fields, %lld^3 f64, 26 boxes", (long long)side);
    move_row(name, 16.0 * (double)used, pack, second, first);
    move_row("its adjoint, sums", 24.0 * (double)used, adjoint, first, second);
}

/* ---- elements one after the other ---- */

static void span_row(const char *name, double each, dpar_mem_span span, const arrays &to,
                     const arrays &from)
{
    const auto put = [&](int k) {
        span.to = to.at[k];
        span.from = from.at[k];
    };
    row(
        name, each * (double)span.count,
        [&](int k) {
            put(k);
            well(mem.span(mem.ctx, &span, 1));
        },
        [&](samples &taken) {
            put(0);
            expect_span(taken, span);
        });
}

static dpar_mem_span span_of(int32_t to_type, int32_t from_type)
{
    dpar_mem_span span;
    memset(&span, 0, sizeof span);
    span.scale = 1.0;
    span.to_type = to_type;
    span.from_type = from_type;
    span.count = bytes / 4;
    return span;
}

static void spans(const arrays &first, const arrays &second, const arrays &half)
{
    dpar_mem_span span = span_of(DPAR_F32, DPAR_F32);
    span_row("span f32", 8.0, span, second, first);
    span.scale = 0.5;
    span_row("span f32, scaled", 8.0, span, second, first);
    span.scale = 1.0;
    span.accumulate = 1;
    span_row("span f32, added", 12.0, span, second, first);
    span.scale = 0.5;
    span_row("span f32, scaled and added", 12.0, span, second, first);
    span_row("span bf16 to f32", 6.0, span_of(DPAR_F32, DPAR_BF16), second, half);
    span = span_of(DPAR_BF16, DPAR_F32);
    span_row("span f32 to bf16", 6.0, span, second, first);
    dpar_mem_round rounding;
    memset(&rounding, 0, sizeof rounding);
    rounding.count = span.count;
    rounding.from_type = DPAR_F32;
    row(
        "round f32 to bf16, stochastic", 6.0 * (double)rounding.count,
        [&](int k) {
            rounding.to = second.at[k];
            rounding.from = first.at[k];
            well(layers.round(mem.ctx, &rounding));
        },
        [&](samples &taken) {
            rounding.to = second.at[0];
            rounding.from = first.at[0];
            expect_round(taken, rounding);
        });
    enum { MANY = 200 }; /* arrays into one bucket */
    std::vector<dpar_mem_span> many(MANY);
    const auto put = [&](int k) {
        const int64_t each = bytes / 4 / MANY;
        for (int i = 0; i < MANY; i++) {
            many[i] = span_of(DPAR_F32, DPAR_F32);
            many[i].to = (float *)(void *)second.at[k] + i * each;
            many[i].from = (float *)(void *)first.at[k] + i * each;
            many[i].count = each;
        }
    };
    row(
        "flatten of 200 arrays, f32", 2.0 * (double)bytes,
        [&](int k) {
            put(k);
            well(mem.span(mem.ctx, many.data(), MANY));
        },
        [&](samples &taken) {
            put(0);
            for (const dpar_mem_span &one : many) {
                expect_span(taken, one);
            }
        });
}

/* ---- sums ---- */

static void reduce_row(const char *name, int32_t type, const arrays &first, const arrays &second)
{
    enum { PARTS = 8 };
    const int64_t width = dpar_type_bytes(type);
    dpar_mem_reduce work;
    memset(&work, 0, sizeof work);
    work.parts = PARTS;
    work.count = work.stride = bytes / width / PARTS;
    work.to_type = work.from_type = type;
    work.sum_type = type == DPAR_F64 ? DPAR_F64 : DPAR_F32;
    work.op = DPAR_SUM;
    work.scale = 1.0;
    row(
        name, 1.125 * (double)bytes,
        [&](int k) {
            work.to = second.at[k];
            work.from = first.at[k];
            well(mem.reduce(mem.ctx, &work));
        },
        [&](samples &taken) {
            work.to = second.at[0];
            work.from = first.at[0];
            expect_reduce(taken, work);
        });
}

/* Adds the squares of set 0 on the host, 65536 at a time, so that the sum is exact to 1e-11. */
static void squares_expected(samples &taken, const dpar_mem_squares &work)
{
    const int64_t width = dpar_type_bytes(work.type);
    const unsigned char *in = (const unsigned char *)taken.in(work.in, {0, work.count}, work.type);
    dpar_mem_squares part = work;
    part.sum = (double *)taken.out(work.sum, {0, 1}, DPAR_F64, 1e-11);
    for (int64_t i = 0; i < work.count; i += 65536) {
        part.in = in + i * width;
        part.count = std::min<int64_t>(65536, work.count - i);
        part.accumulate = i > 0;
        well(host_layers.squares(host.ctx, &part));
    }
}

/* Sums of squares, and with `clip` also the factor that follows from them. */
static void squares_row(const char *name, int32_t type, const arrays &first, double *sum,
                        dpar_mem_clip *clip)
{
    dpar_mem_squares work;
    memset(&work, 0, sizeof work);
    work.count = bytes / dpar_type_bytes(type);
    work.type = type;
    work.sum = sum;
    row(
        name, (double)bytes,
        [&](int k) {
            work.in = first.at[k];
            well(layers.squares(mem.ctx, &work));
            if (clip != NULL) {
                well(layers.clip(mem.ctx, clip));
            }
        },
        [&](samples &taken) {
            work.in = first.at[0];
            squares_expected(taken, work);
            if (clip != NULL) {
                dpar_mem_clip one = *clip;
                one.squares = (double *)(void *)taken.parts.back().here.data();
                one.factor = (double *)taken.out(clip->factor, {0, 1}, DPAR_F64, 1e-11);
                well(host_layers.clip(host.ctx, &one));
            }
        });
}

static void sums(const arrays &first, const arrays &second, const arrays &half)
{
    dpar_mem_finite finite;
    dpar_mem_clip clip;
    void *out = NULL;
    fine(cudaMalloc(&out, 64), "cudaMalloc");
    reduce_row("reduce 8 parts, bf16", DPAR_BF16, half, second);
    reduce_row("reduce 8 parts, f32", DPAR_F32, first, second);
    reduce_row("reduce 8 parts, f64", DPAR_F64, first, second);
    memset(&finite, 0, sizeof finite);
    finite.count = bytes / 4;
    finite.type = DPAR_F32;
    finite.found = (int64_t *)out;
    row(
        "finite, f32", (double)bytes,
        [&](int k) {
            finite.in = first.at[k];
            well(mem.finite(mem.ctx, &finite));
        },
        [&](samples &taken) {
            dpar_mem_finite one = finite;
            one.in = taken.in(first.at[0], {0, finite.count}, finite.type);
            one.found = (int64_t *)taken.out(out, {0, 1}, DPAR_I64, -1.0);
            well(host.finite(host.ctx, &one));
            wrong += *one.found >= 0; /* it would end early */
        });
    memset(&clip, 0, sizeof clip);
    clip.squares = (double *)out + 1;
    clip.factor = (double *)out + 2;
    clip.limit = 1.0;
    clip.scale = 1.0;
    squares_row("squares, f32", DPAR_F32, first, (double *)out + 1, NULL);
    squares_row("squares, bf16", DPAR_BF16, half, (double *)out + 1, NULL);
    squares_row("squares and clip, f32", DPAR_F32, first, (double *)out + 1, &clip);
    cudaFree(out);
}

/* ---- optimizers ---- */

/* put(k) sets the arrays of `work` to those of set k. */
static void step_row(const char *name, double each, const dpar_mem_optimize &work,
                     const std::function<void(int)> &put)
{
    row(
        name, each * (double)work.piece->count,
        [&](int k) {
            put(k);
            well(layers.optimize(mem.ctx, &work));
        },
        [&](samples &all) {
            put(0);
            expect_step(all, work, gpu.fast_math);
        });
}

/* AdamW. copy: 1 to write the weights in bf16 as well; rest: 1 to keep the lower half of f32
 * weights; random: 1 for stochastic rounding, 2 also for moments in bf16. */
static void step(const char *name, int32_t wt, int32_t gt, int copy, int rest, int random,
                 const arrays &weights, const arrays &gradients, const arrays &momentum,
                 const arrays &variance, const arrays &third)
{
    const int64_t n = bytes / 4;
    dpar_optimizer optimizer;
    dpar_optimizer_piece piece;
    dpar_mem_optimize work;
    dpar_optimizer_init(&optimizer, DPAR_OPTIMIZER_ADAMW);
    memset(&piece, 0, sizeof piece);
    memset(&work, 0, sizeof work);
    optimizer.stochastic = random > 0;
    optimizer.moment_type = random > 1 ? (int32_t)DPAR_BF16 : 0;
    piece.weight_type = wt;
    piece.gradient_type = gt;
    piece.count = n;
    work.optimizer = &optimizer;
    work.piece = &piece;
    work.step = 10;
    work.rate = 1e-3;
    work.factor = 1.0;
    work.copy_type = DPAR_BF16;
    const double each = 2.0 * dpar_type_bytes(wt) + dpar_type_bytes(gt) +
                        (random > 1 ? 8.0 : 16.0) + 2.0 * copy + 4.0 * rest;
    for (int fast = 0; fast < 2; fast++) {
        char line[64];
        snprintf(line, sizeof line, "%s%s", name, fast ? ", in f32" : "");
        gpu.fast_math = fast;
        const auto put = [&](int k) {
            piece.weight = weights.at[k];
            piece.gradient = gradients.at[k];
            piece.m = momentum.at[k];
            piece.v = variance.at[k];
            work.copy = copy ? third.at[k] : NULL;
            work.remainder = rest ? (int16_t *)(void *)third.at[k] : NULL;
        };
        step_row(line, each, work, put);
    }
    gpu.fast_math = 0;
}

/* SGD with momentum, all in f32. */
static void sgd(const arrays &weights, const arrays &gradients, const arrays &momentum)
{
    dpar_optimizer optimizer;
    dpar_optimizer_piece piece;
    dpar_mem_optimize work;
    dpar_optimizer_init(&optimizer, DPAR_OPTIMIZER_SGD);
    optimizer.momentum = 0.9;
    memset(&piece, 0, sizeof piece);
    memset(&work, 0, sizeof work);
    piece.weight_type = piece.gradient_type = DPAR_F32;
    piece.count = bytes / 4;
    work.optimizer = &optimizer;
    work.piece = &piece;
    work.step = 10;
    work.rate = 1e-3;
    work.factor = 1.0;
    step_row("sgd with momentum, f32", 20.0, work, [&](int k) {
        piece.weight = weights.at[k];
        piece.gradient = gradients.at[k];
        piece.m = momentum.at[k];
    });
}

/* ---- rows ---- */

/* An index in the memory of the device, with a copy on the host. */
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

static void gathers(const arrays &first, const arrays &second, const rows_index &index, int64_t n,
                    int64_t width)
{
    dpar_mem_gather work;
    memset(&work, 0, sizeof work);
    work.rows = n;
    work.bytes = work.to_step = work.from_step = 2 * width;
    work.index = index.there;
    const auto put = [&](int k) {
        work.to = second.at[k];
        work.from = first.at[k];
    };
    row(
        "gather of rows of 8 KB", 4.0 * (double)(n * width),
        [&](int k) {
            put(k);
            well(layers.gather(mem.ctx, &work));
        },
        [&](samples &taken) {
            put(0);
            expect_gather(taken, work, index.row());
        });
}

static void combines(const arrays &first, const arrays &second, const rows_index &index, int64_t n,
                     int64_t width)
{
    dpar_mem_combine work;
    memset(&work, 0, sizeof work);
    work.rows = n / 2;
    work.choices = 2;
    work.width = width;
    work.to_type = work.from_type = DPAR_BF16;
    work.index = index.there;
    const auto put = [&](int k) {
        work.to = second.at[k];
        work.from = first.at[k];
    };
    row(
        "combine of 2 rows of 4096 bf16", 3.0 * (double)(n * width),
        [&](int k) {
            put(k);
            well(layers.combine(mem.ctx, &work));
        },
        [&](samples &taken) {
            put(0);
            expect_combine(taken, work, index.row());
        });
}

static void dots(const arrays &first, const arrays &second, const rows_index &index, int64_t n,
                 int64_t width)
{
    const int64_t past = 2 * n * width; /* of b: where sums go */
    dpar_mem_dot work;
    memset(&work, 0, sizeof work);
    work.rows = n;
    work.choices = 1;
    work.width = width;
    work.to_type = DPAR_F32;
    work.type = DPAR_BF16;
    work.index = index.there;
    const auto put = [&](int k) {
        work.a = first.at[k];
        work.b = second.at[k];
        work.to = second.at[k] + past;
    };
    row(
        "dot of rows of 4096 bf16", 4.0 * (double)(n * width),
        [&](int k) {
            put(k);
            well(layers.dot(mem.ctx, &work));
        },
        [&](samples &taken) {
            put(0);
            within = (double)width; /* products of up to 1, which cancel */
            expect_dot(taken, work, index.row(), 1e-7);
            within = 1e-30;
        });
}

/* The gradient of an embedding: tokens by Zipf's law, of which the first is one in ten; or a target
 * a row. */
static void scatters(const arrays &second, int zipf)
{
    dpar_mem_scatter work;
    memset(&work, 0, sizeof work);
    work.width = 1024;
    work.rows = std::max<int64_t>(1, bytes / 4 / work.width / 2);
    work.type = DPAR_F32;
    std::vector<int64_t> target((size_t)work.rows), seen((size_t)work.rows);
    int64_t kinds = 0;
    for (int64_t i = 0; i < work.rows; i++) {
        const double uniform = dpar_random_uniform(11, 3, (uint64_t)i);
        const int64_t token = (int64_t)(exp(uniform * log((double)work.rows + 1.0)) - 1.0);
        const int64_t one = zipf ? token : (int64_t)((uint64_t)i * 7919u % (uint64_t)work.rows);
        target[(size_t)i] = std::min(one, work.rows - 1);
        kinds += seen[(size_t)target[(size_t)i]]++ == 0;
    }
    const rows_index index(target);
    const int64_t half = work.rows * work.width;
    work.index = index.there;
    row(
        zipf ? "scatter of rows of 4 KB, Zipf" : "scatter of rows of 4 KB",
        4.0 * (double)work.width * (double)(work.rows + 2 * kinds),
        [&](int k) {
            work.to = second.at[k];
            work.from = second.at[k] + 4 * half;
            well(layers.scatter(mem.ctx, &work));
        },
        [&](samples &taken) {
            dpar_mem_scatter all = work;
            all.from = taken.in(second.at[0], {half, half}, DPAR_F32);
            all.to = taken.both(second.at[0], {0, half}, DPAR_F32, -1.0);
            all.index.at = target.data();
            well(host_layers.scatter(host.ctx, &all));
        });
}

static void rows(const arrays &first, const arrays &second)
{
    const int64_t width = bytes < 1 << 20 ? 512 : 4096; /* of a stand-in */
    const int64_t n = std::max<int64_t>(2, bytes / 2 / width / 2);
    std::vector<int64_t> order((size_t)n);
    for (int64_t i = 0; i < n; i++) {
        order[(size_t)i] = (int64_t)((uint64_t)i * 7919u % (uint64_t)n);
    }
    const rows_index index(order);
    gathers(first, second, index, n, width);
    combines(first, second, index, n, width);
    dots(first, second, index, n, width);
    scatters(second, 0);
    scatters(second, 1);
}

/* ---- cross-entropy, attention, 8 bits ---- */

static void entropies(const arrays &first, const arrays &second)
{
    const int64_t vocabulary = std::min<int64_t>(50304, bytes / 64);
    const int64_t tokens = bytes / 4 / vocabulary;
    std::vector<int64_t> ids((size_t)tokens);
    void *lse = NULL, *own = NULL;
    dpar_mem_cross_entropy work;
    for (int64_t i = 0; i < tokens; i++) {
        ids[(size_t)i] = i * 7919 % vocabulary;
    }
    const rows_index index(ids);
    fine(cudaMalloc(&lse, (size_t)tokens * 8), "cudaMalloc");
    fine(cudaMalloc(&own, (size_t)tokens * 12), "cudaMalloc");
    fine(cudaMemset(lse, 0, (size_t)tokens * 8), "cudaMemset");
    memset(&work, 0, sizeof work);
    work.type = DPAR_F32;
    work.tokens = tokens;
    work.rows = work.hi[0] = work.lo[1] = work.hi[1] = work.vocabulary = vocabulary;
    work.target = index.there;
    work.partial = own;
    work.lse = (double *)lse;
    for (int turn = 0; turn < 4; turn++) {
        static const char *const names[] = {"cross_entropy, part", "cross_entropy, gradient",
                                            "cross_entropy, part, in f32",
                                            "cross_entropy, gradient, in f32"};
        const int gradient = turn % 2;
        const arrays &logits = gradient ? second : first;
        gpu.fast_math = turn / 2;
        work.scale =
            1e-3 * (turn + 1); /* again and again in place: that ends where nothing changes */
        work.phase = gradient ? DPAR_MEM_CROSS_ENTROPY_GRADIENT : DPAR_MEM_CROSS_ENTROPY_PART;
        row(
            names[turn], (gradient ? 8.0 : 4.0) * (double)(tokens * vocabulary),
            [&](int k) {
                work.logits = logits.at[k];
                well(layers.cross_entropy(mem.ctx, &work));
            },
            [&](samples &all) {
                work.logits = logits.at[0];
                expect_cross_entropy(all, work, index.row(), gpu.fast_math);
            });
    }
    gpu.fast_math = 0;
    cudaFree(lse);
    cudaFree(own);
}

static void merges(const arrays &first, const arrays &second)
{
    dpar_mem_attention_merge work;
    memset(&work, 0, sizeof work);
    work.type = DPAR_F32;
    work.values = 128;
    work.rows = bytes / 4 / 130;
    const int64_t past = 4 * work.rows * work.values; /* the lse of each row */
    const auto put = [&](int k) {
        work.out = second.at[k];
        work.lse = second.at[k] + past;
        work.more = first.at[k];
        work.more_lse = first.at[k] + past;
    };
    row(
        "merge of rows of 128", 12.0 * (double)(work.rows * work.values),
        [&](int k) {
            put(k);
            well(layers.attention_merge(mem.ctx, &work));
        },
        [&](samples &taken) {
            put(0);
            expect_merge(taken, work);
        });
}

static void quantizes(const arrays &first, const arrays &second, int32_t code_type)
{
    enum { BLOCK = 128 };
    dpar_mem_quantize work;
    memset(&work, 0, sizeof work);
    work.count = bytes / 4 / BLOCK * BLOCK;
    work.block = work.code_step = BLOCK;
    work.scale_step = 4;
    work.type = DPAR_F32;
    work.code_type = code_type;
    const auto put = [&](int k) {
        work.x = first.at[k];
        work.code = second.at[k];
        work.scale = second.at[k] + work.count;
    };
    for (int back = 0; back < 2; back++) {
        static const char *const names[] = {"quantize to f8, blocks of 128", "dequantize of f8",
                                            "quantize to i8, blocks of 128", "dequantize of i8"};
        row(
            names[2 * (code_type == DPAR_I8) + back],
            (double)work.count * (5.0 + 4.0 / (double)BLOCK),
            [&](int k) {
                put(k);
                well(back ? layers.dequantize(mem.ctx, &work) : layers.quantize(mem.ctx, &work));
            },
            [&](samples &taken) {
                put(0);
                expect_quantize(taken, work, back);
            });
    }
}

/* ---- norms ---- */

enum { CHANNELS = 64, GROUPS = 32 };

/* Moments of one sample with planes as long as the array allows, in groups of two channels. */
static void moments(const arrays &first, double *to)
{
    dpar_mem_moments work;
    memset(&work, 0, sizeof work);
    work.type = DPAR_F32;
    work.dims = 1;
    work.planes = work.channels = CHANNELS;
    work.groups = GROUPS;
    work.step = work.extent[0] = bytes / 4 / CHANNELS;
    work.stride[0] = 1;
    work.to = to;
    row(
        "moments of 32 groups", 4.0 * (double)(work.planes * work.step),
        [&](int k) {
            work.x = first.at[k];
            well(layers.moments(mem.ctx, &work));
        },
        [&](samples &taken) {
            for (int64_t set = 0; set < GROUPS; set += GROUPS - 1) {
                dpar_mem_moments one = work;
                one.planes = one.channels = CHANNELS / GROUPS;
                one.groups = 1;
                one.x = taken.in(first.at[0], rows_of({set * one.planes, one.planes}, work.step),
                                 DPAR_F32);
                within = 1.0;
                one.to = (double *)taken.out(to, {3 * set, 3}, DPAR_F64, 1e-11);
                within = 1e-30;
                well(host_layers.moments(host.ctx, &one));
            }
        });
}

/* Everything of a norm but its planes is in one array: offsets in doubles. */
enum {
    NORM_SAVED = 0,
    NORM_TOTAL = NORM_SAVED + 2 * GROUPS,
    NORM_SUMS = NORM_TOTAL + 3 * GROUPS,
    NORM_SCALE_GRADIENT = NORM_SUMS + 2 * CHANNELS,
    NORM_SHIFT_GRADIENT = NORM_SCALE_GRADIENT + CHANNELS,
    NORM_SCALE = NORM_SHIFT_GRADIENT + CHANNELS, /* f32, so that half of its doubles are unused */
    NORM_SHIFT = NORM_SCALE + CHANNELS,
    NORM_ALL = NORM_SHIFT + CHANNELS
};

static dpar_mem_norm norm_of(int32_t phase, double *small)
{
    dpar_mem_norm work;
    memset(&work, 0, sizeof work);
    work.phase = phase;
    work.type = DPAR_F32;
    work.planes = work.channels = CHANNELS;
    work.groups = GROUPS;
    work.dims = 1;
    work.extent[0] = work.x.step = work.dy.step = work.to.step = bytes / 4 / CHANNELS;
    work.x.stride[0] = work.dy.stride[0] = work.to.stride[0] = 1;
    work.saved = small + NORM_SAVED;
    work.total = small + NORM_TOTAL;
    work.sums = small + NORM_SUMS;
    work.scale_gradient = small + NORM_SCALE_GRADIENT;
    work.shift_gradient = small + NORM_SHIFT_GRADIENT;
    work.scale = small + NORM_SCALE;
    work.shift = small + NORM_SHIFT;
    return work;
}

/* What the host expects of the sums of one group, over whole planes. */
static void norm_sums_expected(samples &taken, const dpar_mem_norm &work, int64_t set)
{
    const int64_t per = CHANNELS / GROUPS;
    const stretch planes = {set * per, per}, points = rows_of(planes, work.x.step);
    dpar_mem_norm one = work;
    one.planes = per;
    one.channels = (int32_t)per;
    one.groups = 1;
    one.x.data = taken.in(work.x.data, points, DPAR_F32);
    one.dy.data = taken.in(work.dy.data, points, DPAR_F32);
    one.scale = taken.in(work.scale, planes, DPAR_F32);
    one.saved = (double *)taken.in(work.saved, {2 * set, 2}, DPAR_F64);
    within = (double)points.count; /* terms of up to 1, which cancel */
    one.sums = (double *)taken.out(work.sums, rows_of(planes, 2), DPAR_F64, 1e-14);
    one.total = (double *)taken.out(work.total, {3 * set, 3}, DPAR_F64, 1e-14);
    one.scale_gradient = (double *)taken.both(work.scale_gradient, planes, DPAR_F64, 1e-14);
    one.shift_gradient = (double *)taken.both(work.shift_gradient, planes, DPAR_F64, 1e-14);
    within = 1e-30;
    well(host_layers.norm(host.ctx, &one));
}

/* What the host expects of apply and gradient, for stretches of a plane. */
static void norm_points_expected(samples &taken, const dpar_mem_norm &work, int64_t plane)
{
    const int64_t set = plane / (CHANNELS / GROUPS);
    dpar_mem_norm one = work;
    one.planes = one.channels = one.groups = 1;
    one.scale = taken.in(work.scale, {plane, 1}, DPAR_F32);
    one.shift = taken.in(work.shift, {plane, 1}, DPAR_F32);
    one.saved = (double *)taken.in(work.saved, {2 * set, 2}, DPAR_F64);
    one.total = (double *)taken.in(work.total, {3 * set, 3}, DPAR_F64);
    within = 1.0;
    for (stretch part : stretches(work.x.step, 1)) {
        part.first += plane * work.x.step;
        one.extent[0] = part.count;
        one.x.data = taken.in(work.x.data, part, DPAR_F32);
        one.dy.data =
            work.phase == DPAR_MEM_NORM_GRADIENT ? taken.in(work.dy.data, part, DPAR_F32) : NULL;
        one.to.data = taken.out(work.to.data, part, DPAR_F32, 2e-7);
        well(host_layers.norm(host.ctx, &one));
    }
    within = 1e-30;
}

static void norm_row(const char *name, double each, dpar_mem_norm work, const arrays &first,
                     const arrays &second, const arrays &third)
{
    const auto put = [&](int k) {
        work.x.data = first.at[k];
        work.dy.data = second.at[k];
        work.to.data = third.at[k];
    };
    row(
        name, each * (double)(work.planes * work.x.step),
        [&](int k) {
            put(k);
            well(layers.norm(mem.ctx, &work));
        },
        [&](samples &taken) {
            put(0);
            if (work.phase == DPAR_MEM_NORM_SUMS) {
                norm_sums_expected(taken, work, 0);
                norm_sums_expected(taken, work, GROUPS - 1);
            } else {
                norm_points_expected(taken, work, 0);
                norm_points_expected(taken, work, CHANNELS - 1);
            }
        });
}

static void norms(const arrays &first, const arrays &second, const arrays &third)
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
    moments(first, small + NORM_TOTAL);
    norm_row("norm of 32 groups, apply", 8.0, norm_of(DPAR_MEM_NORM_APPLY, small), first, second,
             third);
    norm_row("norm of 32 groups, sums", 8.0, norm_of(DPAR_MEM_NORM_SUMS, small), first, second,
             third);
    norm_row("norm of 32 groups, gradient", 12.0, norm_of(DPAR_MEM_NORM_GRADIENT, small), first,
             second, third);
    cudaFree(at);
}

#if !defined(SMALL)
/* Prints what dpar_cuda_measure measures, also as settings for a machine of such devices. */
static void measured(void)
{
    static const char *const known[][2] = {
        {"H200", "1x8:h200"}, {"H100", "1x8:h100-80"}, {"A100", "1x8:a100-80"}};
    dpar_cuda_measurement m;
    dpar_why why;
    if (dpar_cuda_measure(&gpu, NULL, &m, &why) != DPAR_OK) {
        fprintf(stderr, "gpu_kernels: dpar_cuda_measure failed: %s\n", why.text);
        exit(1);
    }
    printf(
        "%s: copy %.1f GB/s, product %.1f TFLOP/s (%s), launch %.2f us, link %.1f GB/s, from the "
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
        const int64_t mib = atoll(argv[i]);
        if (strcmp(argv[i], "csv") == 0) {
            csv = 1;
        } else if (mib >= 1 && mib <= 65536) {
            bytes = mib << 20;
        } else {
            fprintf(stderr,
                    "gpu_kernels: argument '%s': expected csv, or the MiB of the largest array, "
                    "1 to 65536\n",
                    argv[i]);
            return 2;
        }
    }
    if (dpar_cuda_make(&gpu, NULL, &why) != DPAR_OK) {
        printf("gpu_kernels: no device: %s\n", why.text);
        return 77;
    }
    dpar_cuda_mem(&gpu, &mem);
    host = dpar_mem_host();
    layers = *(const dpar_mem_layers *)mem.layers;
    host_layers = dpar_mem_host_layers();
    fine(cudaEventCreate(&before), "cudaEventCreate");
    fine(cudaEventCreate(&behind), "cudaEventCreate");
    {
        const arrays first(DPAR_F32, 1e-3), second(DPAR_F32, 1e-3), half(DPAR_BF16, 1e-3);
        copies(first, second);
        spans(first, second, half);
        halo(first, second);
        faces(first, second);
        cubes(first, second);
    }
    { /* new arrays, because sums of f64 may be NaN if they are read as f32 */
        const arrays first(DPAR_F32, 1e-3), second(DPAR_F32, 1e-3), half(DPAR_BF16, 1e-3),
            third(DPAR_BF16, 1e-3);
        sums(first, second, half);
        rows(half, third);
    }
    {
        const arrays first(DPAR_F32, 1e-3), second(DPAR_F32, 1e-3), half(DPAR_BF16, 1e-3);
        const arrays momentum(DPAR_F32, 1e-3), variance(DPAR_BF16, 1e-3), third(DPAR_BF16, 1e-3);
        for (int k = 0; k < SETS; k++) { /* the variance must not be below 0 */
            fine(cudaMemset(variance.at[k], 0, (size_t)bytes), "cudaMemset");
        }
        step("adamw all bf16, 14 bytes", DPAR_BF16, DPAR_BF16, 0, 0, 2, first, half, third,
             variance, third);
        step("adamw f32", DPAR_F32, DPAR_F32, 0, 0, 0, first, second, momentum, variance, third);
        step("adamw f32, bf16 gradient and copy", DPAR_F32, DPAR_BF16, 1, 0, 0, first, half,
             momentum, variance, third);
        step("adamw bf16 and rest", DPAR_BF16, DPAR_BF16, 0, 1, 0, first, half, momentum, variance,
             third);
        step("adamw bf16, stochastic", DPAR_BF16, DPAR_BF16, 0, 0, 1, first, half, momentum,
             variance, third);
        sgd(first, second, momentum);
    }
    {
        const arrays first(DPAR_F32, 1e-3), second(DPAR_F32, 1e-3);
        entropies(first, second);
        merges(first, second);
        quantizes(first, second, DPAR_F8);
        quantizes(first, second, DPAR_I8);
    }
    {
        const arrays first(DPAR_F32, 1e-3), second(DPAR_F32, 1e-3), third(DPAR_F32, 1e-3);
        norms(first, second, third);
    }
    if (!csv) {
        printf("on %s: %d units, copies at %.1f GB/s (read and written)\n", "this device",
               gpu.multiprocessors, copy_Bps * 1e-9);
#if !defined(SMALL)
        measured();
#endif
    }
    well(dpar_cuda_free(&gpu));
    return wrong > 0;
}
