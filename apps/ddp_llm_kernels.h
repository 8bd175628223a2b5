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
__device__ static const unsigned char *sample(const samples &s, int64_t row)
{
    uint64_t z = (uint64_t)s.step * 0x9e3779b97f4a7c15u + (uint64_t)(s.first + row) + 1u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return s.text + (z ^ z >> 31) % (uint64_t)(s.count - WINDOW);
}

__device__ static float wide(float w)
{
    return w;
}

__device__ static float wide(uint16_t w) /* bf16 */
{
    return __uint_as_float((unsigned)w << 16);
}

/* W is the type of the weights, float or bf16. */
template <class W> struct embedding {
    samples s;
    const W *table;
    float *x;
};

template <class W> __global__ static void embed(const embedding<W> a)
{
    for (EACH(i, a.s.rows * WIDTH)) {
        const int64_t row = i / WIDTH, at = i % WIDTH;
        a.x[i] = wide(a.table[sample(a.s, row)[at / EMBED] * EMBED + at % EMBED]);
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

template <class W> __global__ static void forward(const linear<W> a)
{
    for (EACH(i, a.rows * a.outs)) {
        const float *x = a.x + i / a.outs * WIDTH;
        const W *w = a.weight + i % a.outs * WIDTH;
        float sum = wide(a.bias[i % a.outs]);
        for (int k = 0; k < WIDTH; k++) {
            sum += wide(w[k]) * x[k];
        }
        a.y[i] = a.next != NULL ? tanhf(sum) : sum;
        if (a.next != NULL) {
            a.next[i] = a.x[i] + a.y[i];
        }
    }
}

/* Each warp has a row. Replaces the logits by their gradient times scale, and sets loss[row] to
 * scale (-log p). */
struct guess {
    samples s;
    float *logits, *loss, scale;
};

__global__ static void cross_entropy(const guess a)
{
    const int64_t row = (int64_t)blockIdx.y;
    float *x = a.logits + row * VOCABULARY, most = x[threadIdx.x], sum = 0.0f;
    const int target = sample(a.s, row)[WINDOW];
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
        x[k] = a.scale * (expf(x[k] - most) / sum - (k == target ? 1.0f : 0.0f));
    }
    if ((int)threadIdx.x == target % 32) {
        a.loss[row] = a.scale * (most + logf(sum) - right_one);
    }
}

struct total {
    const float *loss;
    float *to;
    int64_t rows;
};

/* One thread adds in order. */
__global__ static void add_losses(const total a)
{
    for (int64_t row = 0; row < a.rows; row++) {
        *a.to += a.loss[row];
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

template <class W> __device__ static float slope(const backward<W> &a, int64_t i)
{
    return a.y != NULL ? a.d[i] * (1.0f - a.y[i] * a.y[i]) : a.d[i];
}

template <class W> __global__ static void to_weights(const backward<W> a)
{
    for (EACH(i, a.outs * (WIDTH + 1))) { /* the last one of each row is the bias */
        const int64_t out = i / (WIDTH + 1), in = i % (WIDTH + 1);
        float sum = 0.0f;
        for (int64_t row = 0; row < a.rows; row++) {
            sum += slope(a, row * a.outs + out) * (in < WIDTH ? a.x[row * WIDTH + in] : 1.0f);
        }
        *(in < WIDTH ? &a.weight_gradient[out * WIDTH + in] : &a.bias_gradient[out]) += sum;
    }
}

/* Computes dx = W^T dy, and adds d if there is y, because x is also added to the output of a block.
 */
template <class W> __global__ static void to_input(const backward<W> a)
{
    for (EACH(i, a.rows * WIDTH)) {
        float sum = a.y != NULL ? a.d[i] : 0.0f;
        for (int64_t out = 0; out < a.outs; out++) {
            sum += slope(a, i / WIDTH * a.outs + out) * wide(a.weight[out * WIDTH + i % WIDTH]);
        }
        a.dx[i] = sum;
    }
}

/* The thread of each number of the table searches the samples for its byte, which gives a fixed
 * order without atomics. */
struct to_table {
    samples s;
    const float *dx;
    float *gradient;
};

__global__ static void embed_backward(const to_table a)
{
    for (EACH(i, VOCABULARY * EMBED)) {
        float sum = 0.0f;
        for (int64_t row = 0; row < a.s.rows; row++) {
            const unsigned char *bytes = sample(a.s, row);
            for (int t = 0; t < WINDOW; t++) {
                sum += bytes[t] == i / EMBED ? a.dx[row * WIDTH + t * EMBED + i % EMBED] : 0.0f;
            }
        }
        a.gradient[i] += sum;
    }
}

#endif
