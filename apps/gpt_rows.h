/* SPDX-License-Identifier: MIT-0 */
/* gpt_rows - the loops of gpt_host.h over rows, for vectors of GPT_BYTES: norms, activations and
 * softmax. gpt_loops.h includes it once per width, after gpt_products.h.
 *
 * Numbers that do not fill the last vector are completed to one, so that a number's result does not
 * depend on its place. Sums have one chain for each number of a vector; after GPT_CHAIN vectors the
 * chains are added to a sum in f64, so that their rounding does not grow with the row. */

#ifndef GPT_ROWS_H
#define GPT_ROWS_H
enum { GPT_CHAIN = 16 };
#endif

#if GPT_BYTES > 0 && !defined(GPT_DOUBLE)
#define GPT_POLYNOMIAL 1
typedef uint32_t GPT_NAME(gpt_bits) __attribute__((vector_size(GPT_BYTES)));
#else
#define GPT_POLYNOMIAL 0
#endif

/* ---- vectors --------------------------------------------------------------------------------- */

/* A vector of equal numbers. */
GPT_INLINE GPT_TARGET GPT_NAME(gpt_lanes) GPT_NAME(gpt_all)(gpt_real x)
{
    const GPT_NAME(gpt_lanes) none = {0};
    return none + x;
}

/* Numbers i, i + 1, ... of x[n], as many as a vector has, and `fill` for those that x lacks. */
GPT_INLINE GPT_TARGET GPT_NAME(gpt_lanes)
    GPT_NAME(gpt_get)(const gpt_real *x, int64_t i, int64_t n, gpt_real fill)
{
    GPT_NAME(gpt_lanes) v;
    if (n - i >= GPT_NAME(GPT_LANES)) {
        memcpy(&v, x + i, sizeof v);
        return v;
    }
    v = GPT_NAME(gpt_all)(fill);
    memcpy(&v, x + i, (size_t)(n - i) * sizeof *x);
    return v;
}

/* Stores the opposite of gpt_get. */
GPT_INLINE GPT_TARGET void GPT_NAME(gpt_set)(gpt_real *x, int64_t i, int64_t n,
                                             GPT_NAME(gpt_lanes) v)
{
    if (n - i >= GPT_NAME(GPT_LANES)) {
        memcpy(x + i, &v, sizeof v);
    } else {
        memcpy(x + i, &v, (size_t)(n - i) * sizeof *x);
    }
}

/* The sum of a vector's numbers. Halves are added, so that few sums wait for others. */
GPT_INLINE GPT_TARGET double GPT_NAME(gpt_fold)(GPT_NAME(gpt_lanes) v)
{
    enum { LANES = GPT_NAME(GPT_LANES) };
    gpt_real x[LANES];
    double sum[LANES];
    int i, half;
    memcpy(x, &v, sizeof x);
    GPT_UNROLL
    for (i = 0; i < LANES; i++) {
        sum[i] = (double)x[i];
    }
    GPT_UNROLL
    for (half = LANES / 2; half > 0; half /= 2) {
        GPT_UNROLL
        for (i = 0; i < half; i++) {
            sum[i] += sum[i + half];
        }
    }
    return sum[0];
}

/* The largest of a vector's numbers. */
GPT_INLINE GPT_TARGET gpt_real GPT_NAME(gpt_largest)(GPT_NAME(gpt_lanes) v)
{
    enum { LANES = GPT_NAME(GPT_LANES) };
    gpt_real x[LANES];
    int i, half;
    memcpy(x, &v, sizeof x);
    GPT_UNROLL
    for (half = LANES / 2; half > 0; half /= 2) {
        GPT_UNROLL
        for (i = 0; i < half; i++) {
            x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
        }
    }
    return x[0];
}

/* The larger number of each pair. */
GPT_INLINE GPT_TARGET GPT_NAME(gpt_lanes)
    GPT_NAME(gpt_larger)(GPT_NAME(gpt_lanes) a, GPT_NAME(gpt_lanes) b)
{
#if GPT_POLYNOMIAL
    const GPT_NAME(gpt_bits) above = (GPT_NAME(gpt_bits))(a > b);
    return (GPT_NAME(gpt_lanes))(((GPT_NAME(gpt_bits))a & above) |
                                 ((GPT_NAME(gpt_bits))b & ~above));
#else
    gpt_real x[GPT_NAME(GPT_LANES)], y[GPT_NAME(GPT_LANES)];
    int i;
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (i = 0; i < GPT_NAME(GPT_LANES); i++) {
        y[i] = x[i] > y[i] ? x[i] : y[i];
    }
    memcpy(&b, y, sizeof b);
    return b;
#endif
}

/* Computes e^x: in f64 and without vectors by libm. For vectors in f32 x is split into k ln 2 + f,
 * where k is an integer, which adding 1.5 2^23 leaves in the last bits. ln 2 is stored in two
 * parts, the first with so few digits that k times it is exact. e^f for |f| < 0.347 is a Taylor sum
 * of degree 7 with an error below 7.1e-9, and 2^k is made from its bits. The relative error is
 * below 1.2e-7 (two units in the last place). Below -87 the result is 0, and above 88 it is e^88.
 * NaN remains NaN. */
GPT_INLINE GPT_TARGET GPT_NAME(gpt_lanes) GPT_NAME(gpt_exp)(GPT_NAME(gpt_lanes) x)
{
#if GPT_POLYNOMIAL
    const GPT_NAME(gpt_lanes) most = GPT_NAME(gpt_all)(88.0f);
    const GPT_NAME(gpt_lanes) least = GPT_NAME(gpt_all)(-87.0f);
    const GPT_NAME(gpt_bits) over = (GPT_NAME(gpt_bits))(x > most);
    const GPT_NAME(gpt_bits) under = (GPT_NAME(gpt_bits))(x < least);
    const GPT_NAME(gpt_lanes) y =
        (GPT_NAME(gpt_lanes))(((GPT_NAME(gpt_bits))x & ~over) | ((GPT_NAME(gpt_bits))most & over));
    const GPT_NAME(gpt_lanes) turned = y * 1.44269504f + 12582912.0f;
    const GPT_NAME(gpt_lanes) k = turned - 12582912.0f;
    const GPT_NAME(gpt_lanes) f = (y - k * 0.693359375f) + k * 2.12194440e-4f;
    const GPT_NAME(gpt_bits) power = ((GPT_NAME(gpt_bits))turned << 23) + (127u << 23);
    const GPT_NAME(gpt_lanes) square = f * f;
    const GPT_NAME(gpt_lanes) low = (f * (1.0f / 6.0f) + 0.5f) * square + f;
    const GPT_NAME(gpt_lanes) high =
        (f * (1.0f / 5040.0f) + 1.0f / 720.0f) * square + (f * (1.0f / 120.0f) + 1.0f / 24.0f);
    const GPT_NAME(gpt_lanes) sum = high * (square * square) + low + 1.0f;
    return (GPT_NAME(gpt_lanes))((GPT_NAME(gpt_bits))(sum * (GPT_NAME(gpt_lanes))power) & ~under);
#else
    gpt_real y[GPT_NAME(GPT_LANES)];
    int i;
    memcpy(y, &x, sizeof y);
    for (i = 0; i < GPT_NAME(GPT_LANES); i++) {
        y[i] = (gpt_real)exp((double)y[i]);
    }
    memcpy(&x, y, sizeof x);
    return x;
#endif
}

/* ---- sums and activations -------------------------------------------------------------------- */

/* to = a + b */
static GPT_TARGET void GPT_NAME(gpt_sum_of)(int64_t n, const gpt_real *a, const gpt_real *b,
                                            gpt_real *to)
{
    int64_t i;
    for (i = 0; i < n; i += GPT_NAME(GPT_LANES)) {
        GPT_NAME(gpt_set)
        (to, i, n, GPT_NAME(gpt_get)(a, i, n, 0) + GPT_NAME(gpt_get)(b, i, n, 0));
    }
}

/* The exponent of GELU's sigmoid, as GPT-2 has it: 2 sqrt(2 / pi) (x + 0.044715 x^3). */
GPT_INLINE GPT_TARGET GPT_NAME(gpt_lanes) GPT_NAME(gpt_bend)(GPT_NAME(gpt_lanes) x)
{
    return (x + (gpt_real)GPT_GELU_D * x * x * x) * (gpt_real)(2 * GPT_GELU_C);
}

GPT_INLINE GPT_TARGET GPT_NAME(gpt_lanes) GPT_NAME(gpt_logistic)(GPT_NAME(gpt_lanes) x)
{
    return 1 / (1 + GPT_NAME(gpt_exp)(-x));
}

/* act = gate sigmoid(gate) up (SwiGLU), or without a gate up sigmoid(bend(up)) (GELU). */
static GPT_TARGET void GPT_NAME(gpt_activate)(int64_t n, const gpt_real *gate, const gpt_real *up,
                                              gpt_real *act)
{
    int64_t i;
    for (i = 0; i < n; i += GPT_NAME(GPT_LANES)) {
        const GPT_NAME(gpt_lanes) u = GPT_NAME(gpt_get)(up, i, n, 0);
        if (gate != NULL) {
            const GPT_NAME(gpt_lanes) x = GPT_NAME(gpt_get)(gate, i, n, 0);
            GPT_NAME(gpt_set)(act, i, n, x * GPT_NAME(gpt_logistic)(x) * u);
        } else {
            GPT_NAME(gpt_set)(act, i, n, u * GPT_NAME(gpt_logistic)(GPT_NAME(gpt_bend)(u)));
        }
    }
}

/* Computes the gradients of gate and up from that of act. */
static GPT_TARGET void GPT_NAME(gpt_activate_back)(int64_t n, const gpt_real *gate,
                                                   const gpt_real *up, const gpt_real *dact,
                                                   gpt_real *dgate, gpt_real *dup)
{
    const gpt_real slope = (gpt_real)(2 * GPT_GELU_C), cube = (gpt_real)(3 * GPT_GELU_D);
    int64_t i;
    for (i = 0; i < n; i += GPT_NAME(GPT_LANES)) {
        const GPT_NAME(gpt_lanes) u = GPT_NAME(gpt_get)(up, i, n, 0);
        const GPT_NAME(gpt_lanes) d = GPT_NAME(gpt_get)(dact, i, n, 0);
        if (gate != NULL) {
            const GPT_NAME(gpt_lanes) x = GPT_NAME(gpt_get)(gate, i, n, 0);
            const GPT_NAME(gpt_lanes) s = GPT_NAME(gpt_logistic)(x);
            GPT_NAME(gpt_set)(dgate, i, n, d * u * s * (1 + x * (1 - s)));
            GPT_NAME(gpt_set)(dup, i, n, d * x * s);
        } else {
            const GPT_NAME(gpt_lanes) s = GPT_NAME(gpt_logistic)(GPT_NAME(gpt_bend)(u));
            GPT_NAME(gpt_set)
            (dup, i, n, d * s * (1 + u * (1 - s) * slope * (1 + cube * u * u)));
        }
    }
}

/* ---- softmax --------------------------------------------------------------------------------- */

/* x = exp(x - less) */
static GPT_TARGET void GPT_NAME(gpt_exps)(int64_t n, gpt_real less, gpt_real *x)
{
    int64_t i;
    for (i = 0; i < n; i += GPT_NAME(GPT_LANES)) {
        GPT_NAME(gpt_set)(x, i, n, GPT_NAME(gpt_exp)(GPT_NAME(gpt_get)(x, i, n, 0) - less));
    }
}

/* x = softmax(x). Returns the logarithm of the sum of e^x, or -1e30 if n is 0. */
static GPT_TARGET double GPT_NAME(gpt_softmax)(int64_t n, gpt_real *x)
{
    const gpt_real lowest = (gpt_real)-1e30;
    GPT_NAME(gpt_lanes) large = GPT_NAME(gpt_all)(lowest);
    gpt_real most;
    double sum = 0.0;
    int64_t i, end;
    for (i = 0; i < n; i += GPT_NAME(GPT_LANES)) {
        large = GPT_NAME(gpt_larger)(GPT_NAME(gpt_get)(x, i, n, lowest), large);
    }
    most = GPT_NAME(gpt_largest)(large);
    for (i = 0; i < n; i = end) {
        GPT_NAME(gpt_lanes) part = {0};
        end = i + GPT_CHAIN * GPT_NAME(GPT_LANES) < n ? i + GPT_CHAIN * GPT_NAME(GPT_LANES) : n;
        for (; i < end; i += GPT_NAME(GPT_LANES)) {
            const GPT_NAME(gpt_lanes) power =
                GPT_NAME(gpt_exp)(GPT_NAME(gpt_get)(x, i, n, lowest) - most);
            GPT_NAME(gpt_set)(x, i, n, power);
            part += power;
        }
        sum += GPT_NAME(gpt_fold)(part);
    }
    for (i = 0; i < n; i += GPT_NAME(GPT_LANES)) {
        GPT_NAME(gpt_set)(x, i, n, GPT_NAME(gpt_get)(x, i, n, 0) * (gpt_real)(1.0 / sum));
    }
    return n > 0 ? (double)most + log(sum) : (double)lowest;
}

/* x = p (x - less): the gradient of the scores of a row with probabilities p. */
static GPT_TARGET void GPT_NAME(gpt_slope)(int64_t n, gpt_real less, const gpt_real *p, gpt_real *x)
{
    int64_t i;
    for (i = 0; i < n; i += GPT_NAME(GPT_LANES)) {
        GPT_NAME(gpt_set)
        (x, i, n, GPT_NAME(gpt_get)(p, i, n, 0) * (GPT_NAME(gpt_get)(x, i, n, 0) - less));
    }
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* Returns the sum of x. */
GPT_INLINE GPT_TARGET double GPT_NAME(gpt_total)(int64_t n, const gpt_real *x)
{
    double sum = 0.0;
    int64_t i, end;
    for (i = 0; i < n; i = end) {
        GPT_NAME(gpt_lanes) part = {0};
        end = i + GPT_CHAIN * GPT_NAME(GPT_LANES) < n ? i + GPT_CHAIN * GPT_NAME(GPT_LANES) : n;
        for (; i < end; i += GPT_NAME(GPT_LANES)) {
            part += GPT_NAME(gpt_get)(x, i, n, 0);
        }
        sum += GPT_NAME(gpt_fold)(part);
    }
    return sum;
}

/* Returns the sum of (x - mean)^2. */
GPT_INLINE GPT_TARGET double GPT_NAME(gpt_squares)(int64_t n, const gpt_real *x, gpt_real mean)
{
    double sum = 0.0;
    int64_t i, end;
    for (i = 0; i < n; i = end) {
        GPT_NAME(gpt_lanes) part = {0};
        end = i + GPT_CHAIN * GPT_NAME(GPT_LANES) < n ? i + GPT_CHAIN * GPT_NAME(GPT_LANES) : n;
        for (; i < end; i += GPT_NAME(GPT_LANES)) {
            const GPT_NAME(gpt_lanes) d = GPT_NAME(gpt_get)(x, i, n, mean) - mean;
            part += d * d;
        }
        sum += GPT_NAME(gpt_fold)(part);
    }
    return sum;
}

/* Computes to = (x - mean) / deviation * scale + bias of a row. stat[2]: mean, which is 0 unless
 * `centred`, and 1 / deviation. */
static GPT_TARGET void GPT_NAME(gpt_norm)(int64_t n, int centred, const gpt_real *x,
                                          const gpt_real *scale, const gpt_real *bias, double *stat,
                                          gpt_real *to)
{
    const double mean = centred ? GPT_NAME(gpt_total)(n, x) / (double)n : 0.0;
    const gpt_real less = (gpt_real)mean;
    const double square = GPT_NAME(gpt_squares)(n, x, less);
    gpt_real inverse;
    int64_t i;
    stat[0] = mean;
    stat[1] = 1.0 / sqrt(square / (double)n + 1e-5);
    inverse = (gpt_real)stat[1];
    for (i = 0; i < n; i += GPT_NAME(GPT_LANES)) {
        GPT_NAME(gpt_lanes) y = (GPT_NAME(gpt_get)(x, i, n, 0) - less) * inverse;
        y *= GPT_NAME(gpt_get)(scale, i, n, 0);
        if (bias != NULL) {
            y += GPT_NAME(gpt_get)(bias, i, n, 0);
        }
        GPT_NAME(gpt_set)(to, i, n, y);
    }
}

/* Computes the gradient of a row of the norm: dx = add + ..., or without `add` that alone. */
GPT_INLINE GPT_TARGET void GPT_NAME(gpt_norm_back_row)(int64_t n, int centred, const gpt_real *x,
                                                       const gpt_real *scale, const double *stat,
                                                       const gpt_real *dh, const gpt_real *add,
                                                       gpt_real *dx)
{
    const gpt_real mean = (gpt_real)stat[0], inverse = (gpt_real)stat[1];
    double along = 0.0, level = 0.0;
    gpt_real tilt, shift;
    int64_t i, end;
    for (i = 0; i < n; i = end) {
        GPT_NAME(gpt_lanes) tilts = {0}, shifts = {0};
        end = i + GPT_CHAIN * GPT_NAME(GPT_LANES) < n ? i + GPT_CHAIN * GPT_NAME(GPT_LANES) : n;
        for (; i < end; i += GPT_NAME(GPT_LANES)) {
            const GPT_NAME(gpt_lanes) d =
                GPT_NAME(gpt_get)(dh, i, n, 0) * GPT_NAME(gpt_get)(scale, i, n, 0);
            tilts += d * ((GPT_NAME(gpt_get)(x, i, n, 0) - mean) * inverse);
            shifts += d;
        }
        along += GPT_NAME(gpt_fold)(tilts);
        level += GPT_NAME(gpt_fold)(shifts);
    }
    tilt = (gpt_real)(along / (double)n);
    shift = centred ? (gpt_real)(level / (double)n) : (gpt_real)0;
    for (i = 0; i < n; i += GPT_NAME(GPT_LANES)) {
        const GPT_NAME(gpt_lanes) unit = (GPT_NAME(gpt_get)(x, i, n, 0) - mean) * inverse;
        GPT_NAME(gpt_lanes) d = GPT_NAME(gpt_get)(dh, i, n, 0) * GPT_NAME(gpt_get)(scale, i, n, 0);
        d = (d - shift - unit * tilt) * inverse;
        if (add != NULL) {
            d += GPT_NAME(gpt_get)(add, i, n, 0);
        }
        GPT_NAME(gpt_set)(dx, i, n, d);
    }
}

/* Computes dx of all rows, and adds the gradients of scale and bias to sum[2][n]. */
static GPT_TARGET void GPT_NAME(gpt_norm_back)(int64_t rows, int64_t n, int centred,
                                               const gpt_real *x, const gpt_real *scale,
                                               const double *stat, const gpt_real *dh,
                                               const gpt_real *add, gpt_real *dx, double *sum)
{
    int64_t i, j, first, end;
    for (i = 0; i < rows; i++) {
        GPT_NAME(gpt_norm_back_row)
        (n, centred, x + i * n, scale, stat + 2 * i, dh + i * n, add != NULL ? add + i * n : NULL,
         dx + i * n);
    }
    for (first = 0; first < rows; first = end) {
        end = first + GPT_CHAIN < rows ? first + GPT_CHAIN : rows;
        for (j = 0; j < n; j += GPT_NAME(GPT_LANES)) {
            GPT_NAME(gpt_lanes) scales = {0}, biases = {0};
            gpt_real some[2][GPT_NAME(GPT_LANES)];
            int64_t lane;
            for (i = first; i < end; i++) {
                const gpt_real mean = (gpt_real)stat[2 * i], inverse = (gpt_real)stat[2 * i + 1];
                const GPT_NAME(gpt_lanes) d = GPT_NAME(gpt_get)(dh + i * n, j, n, 0);
                scales += d * ((GPT_NAME(gpt_get)(x + i * n, j, n, 0) - mean) * inverse);
                biases += d;
            }
            memcpy(some[0], &scales, sizeof some[0]);
            memcpy(some[1], &biases, sizeof some[1]);
            for (lane = 0; lane < GPT_NAME(GPT_LANES) && j + lane < n; lane++) {
                sum[j + lane] += (double)some[0][lane];
                sum[n + j + lane] += (double)some[1][lane];
            }
        }
    }
}

static const gpt_loops GPT_NAME(gpt_loops) = {
    GPT_NAME(gpt_product),       GPT_NAME(gpt_sum_of), GPT_NAME(gpt_activate),
    GPT_NAME(gpt_activate_back), GPT_NAME(gpt_norm),   GPT_NAME(gpt_norm_back),
    GPT_NAME(gpt_softmax),       GPT_NAME(gpt_exps),   GPT_NAME(gpt_slope)};
#undef GPT_POLYNOMIAL
