/* SPDX-License-Identifier: MIT-0 */
/* llama_plain - the reference of apps/llama.c: prints the tokens that a checkpoint of llama2.c
 * generates, most likely token first, computed by the definition in f64. It keeps no keys and
 * values: each token passes the whole text through all layers again. It trusts its input. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int width, hidden, layers, heads, groups, vocab, length, head;
static const float *embedding, *norm_attention, *query, *key, *value, *projection, *norm_mlp, *gate,
    *down, *up, *norm_last, *last;

static double *numbers(int64_t count)
{
    double *x = (double *)calloc((size_t)count, sizeof *x);
    if (x == NULL) {
        exit(1);
    }
    return x;
}

/* Returns the next tensor of the file. */
static const float *next_tensor(const float **at, int64_t count)
{
    const float *tensor = *at;
    *at += count;
    return tensor;
}

static void multiply(const float *w, int rows, int columns, const double *x, double *y)
{
    int i, j;
    for (i = 0; i < rows; i++) {
        y[i] = 0.0;
        for (j = 0; j < columns; j++) {
            y[i] += (double)w[(int64_t)i * columns + j] * x[j];
        }
    }
}

static void normalise(const float *weight, const double *x, double *y)
{
    double square = 0.0;
    int i;
    for (i = 0; i < width; i++) {
        square += x[i] * x[i];
    }
    for (i = 0; i < width; i++) {
        y[i] = weight[i] * x[i] / sqrt(square / width + 1e-5);
    }
}

static void rotate(int count, int position, double *x)
{
    int i;
    for (i = 0; i < count * head; i += 2) {
        const double angle = position * pow(10000.0, -(double)(i % head) / head);
        const double first = x[i], second = x[i + 1];
        x[i] = first * cos(angle) - second * sin(angle);
        x[i + 1] = first * sin(angle) + second * cos(angle);
    }
}

static void layer(int l, int count, double *x)
{
    const int kv = groups * head;
    double *y = numbers(width), *q = numbers((int64_t)count * width),
           *k = numbers((int64_t)count * kv);
    double *v = numbers((int64_t)count * kv), *out = numbers(width), *score = numbers(count);
    double *open = numbers(hidden), *through = numbers(hidden);
    int t, h, s, i;
    for (t = 0; t < count; t++) {
        normalise(norm_attention + l * width, x + t * width, y);
        multiply(query + (int64_t)l * width * width, width, width, y, q + t * width);
        multiply(key + (int64_t)l * kv * width, kv, width, y, k + t * kv);
        multiply(value + (int64_t)l * kv * width, kv, width, y, v + t * kv);
        rotate(heads, t, q + t * width);
        rotate(groups, t, k + t * kv);
    }
    for (t = 0; t < count; t++) {
        memset(out, 0, (size_t)width * sizeof *out);
        for (h = 0; h < heads; h++) {
            const int group = h / (heads / groups);
            double sum = 0.0;
            for (s = 0; s <= t; s++) {
                score[s] = 0.0;
                for (i = 0; i < head; i++) {
                    score[s] += q[t * width + h * head + i] * k[s * kv + group * head + i];
                }
                score[s] = exp(score[s] / sqrt(head));
                sum += score[s];
            }
            for (s = 0; s <= t; s++) {
                for (i = 0; i < head; i++) {
                    out[h * head + i] += score[s] / sum * v[s * kv + group * head + i];
                }
            }
        }
        multiply(projection + (int64_t)l * width * width, width, width, out, y);
        for (i = 0; i < width; i++) {
            x[t * width + i] += y[i];
        }
        normalise(norm_mlp + l * width, x + t * width, y);
        multiply(gate + (int64_t)l * hidden * width, hidden, width, y, open);
        multiply(up + (int64_t)l * hidden * width, hidden, width, y, through);
        for (i = 0; i < hidden; i++) {
            open[i] *= through[i] / (1.0 + exp(-open[i]));
        }
        multiply(down + (int64_t)l * width * hidden, width, hidden, open, y);
        for (i = 0; i < width; i++) {
            x[t * width + i] += y[i];
        }
    }
    free(y);
    free(q);
    free(k);
    free(v);
    free(out);
    free(score);
    free(open);
    free(through);
}

int main(int argc, char **argv)
{
    int32_t size[7];
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    int64_t bytes;
    float *all;
    const float *at;
    int untied, count, l, i, text[4096] = {1};
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        return 1;
    }
    bytes = ftell(file) - (int64_t)sizeof size;
    rewind(file);
    all = (float *)malloc((size_t)bytes);
    if (fread(size, sizeof size, 1, file) != 1 ||
        fread(all, 1, (size_t)bytes, file) != (size_t)bytes) {
        return 1;
    }
    fclose(file);
    width = size[0];
    hidden = size[1];
    layers = size[2];
    heads = size[3];
    groups = size[4];
    untied = size[5] < 0;
    vocab = abs(size[5]);
    length = size[6];
    head = width / heads;
    at = all;
    embedding = next_tensor(&at, (int64_t)vocab * width);
    norm_attention = next_tensor(&at, layers * width);
    query = next_tensor(&at, (int64_t)layers * width * width);
    key = next_tensor(&at, (int64_t)layers * groups * head * width);
    value = next_tensor(&at, (int64_t)layers * groups * head * width);
    projection = next_tensor(&at, (int64_t)layers * width * width);
    norm_mlp = next_tensor(&at, layers * width);
    gate = next_tensor(&at, (int64_t)layers * hidden * width);
    down = next_tensor(&at, (int64_t)layers * hidden * width);
    up = next_tensor(&at, (int64_t)layers * hidden * width);
    norm_last = next_tensor(&at, width);
    (void)next_tensor(&at, (int64_t)length * head);
    last = untied ? next_tensor(&at, (int64_t)vocab * width) : embedding;
    if (at != all + bytes / (int64_t)sizeof *all) {
        return 1;
    }
    printf("1");
    for (count = 1; count <= length; count++) {
        double *x = numbers((int64_t)count * width), *logits = numbers(vocab);
        int best = 0;
        for (i = 0; i < count * width; i++) {
            x[i] = embedding[(int64_t)text[i / width] * width + i % width];
        }
        for (l = 0; l < layers; l++) {
            layer(l, count, x);
        }
        normalise(norm_last, x + (count - 1) * width, x);
        multiply(last, vocab, width, x, logits);
        for (i = 1; i < vocab; i++) {
            best = logits[i] > logits[best] ? i : best;
        }
        free(x);
        free(logits);
        text[count] = best;
        printf(" %d", best);
        if (best == 1) {
            break;
        }
    }
    printf("\n");
    free(all);
    return 0;
}
