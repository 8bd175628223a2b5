/* SPDX-License-Identifier: MIT-0 */
/* random: compares the generator with the known answers of Random123 (kat_vectors, philox4x32 10)
 * and the inverse of the normal distribution with erfc, and checks statistics of a stream. */
#include "dpar_train.h"

#include "check.h"

static void known(uint64_t seed, uint64_t stream, uint64_t block, uint32_t a, uint32_t b,
                  uint32_t c, uint32_t d)
{
    uint32_t w[4];
    dpari_random_block(seed, stream, block, w);
    CHECK(w[0] == a && w[1] == b && w[2] == c && w[3] == d);
}

static void test_known_answers(void)
{
    const uint64_t all = ~UINT64_C(0);
    known(0, 0, 0, 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u);
    known(all, all, all, 0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu);
    known(UINT64_C(0x299f31d0a4093822), UINT64_C(0x0370734413198a2e), UINT64_C(0x85a308d3243f6a88),
          0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u);
}

static void test_words(void)
{
    uint32_t w[4];
    uint64_t i;
    for (i = 0; i < 64; i++) {
        dpari_random_block(7, 9, i / 4, w);
        CHECK(dpari_random_word(7, 9, i) == w[i % 4]);
        CHECK_NEAR(dpar_random_uniform(7, 9, i), (w[i % 4] + 0.5) / 4294967296.0, 0);
    }
}

/* Checks that the normal distribution function at each number is the uniform one that the number
 * was made from. erfc is libm's. */
static void test_normal(void)
{
    double sum = 0.0, square = 0.0, least = 0.0;
    uint64_t i;
    for (i = 0; i < 100000; i++) {
        const double p = dpar_random_uniform(1, 2, i), z = dpar_random_normal(1, 2, i);
        const double tail = p < 0.5 ? p : 1.0 - p;
        CHECK_NEAR(0.5 * erfc((z < 0.0 ? -z : z) / sqrt(2.0)), tail, 1e-12);
        CHECK((z < 0.0) == (p < 0.5));
        sum += z;
        square += z * z;
        least = z < least ? z : least;
    }
    CHECK(fabs(sum / 100000.0) < 0.01 && fabs(square / 100000.0 - 1.0) < 0.02);
    CHECK(least < -3.5);
}

int main(void)
{
    test_known_answers();
    test_words();
    test_normal();
    return CHECK_DONE();
}
