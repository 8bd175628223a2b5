/* SPDX-License-Identifier: MIT-0 */
/* ddp_llm_kernels - the model of ddp_llm.cu, which knows nothing of ranks. It predicts the next
 * byte of a text from the WINDOW bytes before it. Their embeddings, one after the other, are x;
 * blocks compute x += tanh(W x + b); then follows a head. The kernels are plain: a thread computes
 * one result, with sums in a fixed order. ddp_llm.cu includes this file after gpu_start.h. */
#ifndef DDP_LLM_KERNELS_H
#define DDP_LLM_KERNELS_H

enum { WINDOW = 8, EMBED = 8, WIDTH = WINDOW * EMBED, VOCABULARY = 256 };

/* The samples of a rank: those from number `first` on of a step. */
struct samples {
    const unsigned char *text;
    int64_t count; /* bytes of the text */
    int64_t step, first, rows;
};

/* A sample: WINDOW bytes and the byte after them. */
__device__ static const unsigned char *sample(const samples &from, int64_t row)
{
    uint64_t z = (uint64_t)from.step * 0x9e3779b97f4a7c15u + (uint64_t)(from.first + row) + 1u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return from.text + (z ^ z >> 31) % (uint64_t)(from.count - WINDOW);
}

__device__ static float wide(float weight)
{
    return weight;
}

__device__ static float wide(uint16_t weight) /* bf16 */
{
    return __uint_as_float((unsigned)weight << 16);
}

/* W is the type of the weights, float or bf16. */
template <class W> struct embedding {
    samples from;
    const W *table;
    float *x;
};

template <class W> __global__ static void embed(const embedding<W> args)
{
    for (EACH(i, args.from.rows * WIDTH)) {
        const int64_t row = i / WIDTH, at = i % WIDTH;
        args.x[i] = wide(args.table[sample(args.from, row)[at / EMBED] * EMBED + at % EMBED]);
    }
}

/* Computes y = W x + b for each row. If next is not NULL, y is the tanh of that, and next = x + y.
 */
template <class W> struct linear {
    const W *weight, *bias;
    const float *x;
    float *y, *next;
    int64_t rows, outs;
};

template <class W> __global__ static void forward(const linear<W> args)
{
    for (EACH(i, args.rows * args.outs)) {
        const float *x = args.x + i / args.outs * WIDTH;
        const W *weight = args.weight + i % args.outs * WIDTH;
        float sum = wide(args.bias[i % args.outs]);
        for (int k = 0; k < WIDTH; k++) {
            sum += wide(weight[k]) * x[k];
        }
        args.y[i] = args.next != NULL ? tanhf(sum) : sum;
        if (args.next != NULL) {
            args.next[i] = args.x[i] + args.y[i];
        }
    }
}

/* Each warp has a row. Replaces the logits by their gradient times scale, and sets loss[row] to
 * scale (-log p). */
struct guess {
    samples from;
    float *logits, *loss, scale;
};

__global__ static void cross_entropy(const guess args)
{
    const int64_t row = (int64_t)blockIdx.y;
    float *x = args.logits + row * VOCABULARY, most = x[threadIdx.x], sum = 0.0f;
    const int target = sample(args.from, row)[WINDOW];
    const float right_one = x[target];
    for (int k = (int)threadIdx.x; k < VOCABULARY; k += 32) {
        most = fmaxf(most, x[k]);
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lanes));
    }
    for (int k = (int)threadIdx.x; k < VOCABULARY; k += 32) {
        sum += expf(x[k] - most);
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    }
    for (int k = (int)threadIdx.x; k < VOCABULARY; k += 32) {
        x[k] = args.scale * (expf(x[k] - most) / sum - (k == target ? 1.0f : 0.0f));
    }
    if ((int)threadIdx.x == target % 32) {
        args.loss[row] = args.scale * (most + logf(sum) - right_one);
    }
}

struct total {
    const float *loss;
    float *to;
    int64_t rows;
};

/* One thread adds in order. */
__global__ static void add_losses(const total args)
{
    for (int64_t row = 0; row < args.rows; row++) {
        *args.to += args.loss[row];
    }
}

/* Backward of linear, which adds to the gradients. If y is NULL dy is d; otherwise d is the
 * gradient of the tanh y, and dy = d (1 - y y). */
template <class W> struct backward {
    const W *weight;
    const float *x, *d, *y;
    float *weight_gradient, *bias_gradient, *dx;
    int64_t rows, outs;
};

template <class W> __device__ static float slope(const backward<W> &args, int64_t i)
{
    return args.y != NULL ? args.d[i] * (1.0f - args.y[i] * args.y[i]) : args.d[i];
}

template <class W> __global__ static void to_weights(const backward<W> args)
{
    for (EACH(i, args.outs * (WIDTH + 1))) { /* the last one of each row is the bias */
        const int64_t out = i / (WIDTH + 1), in = i % (WIDTH + 1);
        float sum = 0.0f;
        for (int64_t row = 0; row < args.rows; row++) {
            sum +=
                slope(args, row * args.outs + out) * (in < WIDTH ? args.x[row * WIDTH + in] : 1.0f);
        }
        *(in < WIDTH ? &args.weight_gradient[out * WIDTH + in] : &args.bias_gradient[out]) += sum;
    }
}

/* Computes dx = W^T dy, and adds d if there is y, because x is also added to the output of a block.
 */
template <class W> __global__ static void to_input(const backward<W> args)
{
    for (EACH(i, args.rows * WIDTH)) {
        float sum = args.y != NULL ? args.d[i] : 0.0f;
        for (int64_t out = 0; out < args.outs; out++) {
            sum += slope(args, i / WIDTH * args.outs + out) *
                   wide(args.weight[out * WIDTH + i % WIDTH]);
        }
        args.dx[i] = sum;
    }
}

/* The thread of each number of the table searches the samples for its byte, which gives a fixed
 * order without atomics. */
struct to_table {
    samples from;
    const float *dx;
    float *gradient;
};

__global__ static void embed_backward(const to_table args)
{
    for (EACH(i, VOCABULARY * EMBED)) {
        float sum = 0.0f;
        for (int64_t row = 0; row < args.from.rows; row++) {
            const unsigned char *bytes = sample(args.from, row);
            for (int place = 0; place < WINDOW; place++) {
                sum += bytes[place] == i / EMBED ? args.dx[row * WIDTH + place * EMBED + i % EMBED]
                                                 : 0.0f;
            }
        }
        args.gradient[i] += sum;
    }
}

#endif
