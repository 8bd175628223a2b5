/* SPDX-License-Identifier: MIT-0 */
/* Philox4x32-10, and what is made from its words: uniform and normal numbers, and the stochastic
 * rounding of F32 to BF16. There is no state, so a number depends only on seed, stream and index.
 * dpar_cuda.h has the same functions for kernels. */
#include "random.h"

#include "../base/arith.h"
#include "../base/real.h"
#include "elements.h"
#include "random_private.h"

DPARI_INTERNAL void dpari_random_block(uint64_t seed, uint64_t stream, uint64_t block,
                                       uint32_t *words)
{
    uint32_t a = (uint32_t)block, b = (uint32_t)(block >> 32), c = (uint32_t)stream;
    uint32_t d = (uint32_t)(stream >> 32), low = (uint32_t)seed, high = (uint32_t)(seed >> 32);
    int32_t round;
    for (round = 0; round < 10; round++) {
        const uint64_t x = (uint64_t)a * UINT64_C(0xD2511F53),
                       y = (uint64_t)c * UINT64_C(0xCD9E8D57);
        a = (uint32_t)(y >> 32) ^ b ^ low;
        b = (uint32_t)y;
        c = (uint32_t)(x >> 32) ^ d ^ high;
        d = (uint32_t)x;
        low += UINT32_C(0x9E3779B9);
        high += UINT32_C(0xBB67AE85);
    }
    words[0] = a;
    words[1] = b;
    words[2] = c;
    words[3] = d;
}

/* Returns word `index` of a stream. */
static uint32_t dpari_random_word(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t words[4];
    dpari_random_block(seed, stream, index / 4, words);
    return words[index % 4];
}

DPARI_INTERNAL void dpari_random_round(void *to, const void *from, int64_t count, uint64_t seed,
                                       uint64_t stream, uint64_t index, int32_t shift)
{
    uint32_t words[4], x;
    uint16_t h;
    int64_t i;
    for (i = 0; i < count; i++) {
        const uint64_t at = index + (uint64_t)i;
        if (i == 0 || at % 4 == 0) {
            dpari_random_block(seed, stream, at / 4, words);
        }
        dpari_elements_bits(&x, (const unsigned char *)from + 4 * i, 4);
        if ((x & 0x7f800000u) != 0x7f800000u) {
            x += words[at % 4] >> shift & 0xffffu;
        } else {
            /* sets a high bit of a NaN, so that it remains NaN without its low bits */
            x |= (x & 0x7fffffu) != 0 ? 0x400000u : 0u;
        }
        h = (uint16_t)(x >> 16);
        dpari_elements_bits((unsigned char *)to + 2 * i, &h, 2);
    }
}

/* Maps a word to a number above 0 and below 1: the middle of one of 2^32 equal intervals. */
static double dpari_random_between(uint32_t word)
{
    return ((double)word + 0.5) * (1.0 / 4294967296.0);
}

DPAR_API double dpar_random_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    return dpari_random_between(dpari_random_word(seed, stream, index));
}

/* Returns the ratio of two polynomials of degree 7 in r. */
static double dpari_random_ratio(const double *over, const double *under, double r)
{
    double a = over[7], b = under[7];
    int32_t i;
    for (i = 6; i >= 0; i--) {
        a = a * r + over[i];
        b = b * r + under[i];
    }
    return a / b;
}

/* Returns the x for which a normal variable is below x with probability p. Uses PPND16 of Wichura,
 * Applied Statistics 37 (1988): a rational function of p near 1/2, and one of sqrt(-ln p) in the
 * tails. */
static double dpari_random_inverse(double p)
{
    static const double middle[2][8] = {
        {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
         1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
         3.3430575583588128105e4, 2.5090809287301226727e3},
        {1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
         2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
         5.2264952788528545610e3}};
    static const double tail[2][8] = {
        {1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
         3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
         2.27238449892691845833e-2, 7.74545014278341407640e-4},
        {1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
         1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
         1.05075007164441684324e-9}};
    const double q = p - 0.5;
    double r, z;
    if (q >= -0.425 && q <= 0.425) {
        return q * dpari_random_ratio(middle[0], middle[1], 0.180625 - q * q);
    }
    /* r is below 5, up to which these coefficients are valid, because p is at least 1e-10 */
    r = dpari_sqrt(-dpari_log(q < 0.0 ? p : 1.0 - p));
    z = dpari_random_ratio(tail[0], tail[1], r - 1.6);
    return q < 0.0 ? -z : z;
}

DPAR_API double dpar_random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    return dpari_random_inverse(dpar_random_uniform(seed, stream, index));
}
