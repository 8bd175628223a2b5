/* SPDX-License-Identifier: MIT-0 */
/* Encodes and decodes the 8-bit codes of an optimizer's moments.
 *
 * The codes are chosen so that integer operations on the bits of F32 are enough. A code without its
 * sign has 3 bits of fraction, below which are 20 bits of an F32's fraction, and 4 or 5 bits of
 * exponent. The scale is a power of two with the biased exponent `unit`, so
 *
 *     bits of the value = (code << 20) + (unit << 23)
 *
 * Adding 20 random bits before the last 20 bits are cut off rounds stochastically. Because scales
 * are powers of two, a value that was decoded is encoded exactly again under another scale, unless
 * it is too small for that. A piece that ends inside of a block may therefore encode the whole
 * block. Infinities and NaNs need no special case: their bits, too, have such codes.
 *
 * Code e of a block is not byte e of the record. Byte k of the word 8 g + l (32 bits) has element
 * 32 g + 8 k + l, so that vectors of 8 words need neither be packed nor shuffled. */
#include "moment_codes.h"

#include "../base/type.h"
#include "elements.h"
#include "random_private.h"
#include "vectors.h"

DPARI_INTERNAL int64_t dpari_moment_whole(int32_t type, int64_t n)
{
    return type == DPAR_F8 ? dpari_ceil_div(n, DPARI_MOMENT_BLOCK) * DPARI_MOMENT_BLOCK : n;
}

DPARI_INTERNAL int64_t dpari_moment_bytes(int32_t type, int64_t n)
{
    return type == DPAR_F8 ? dpari_ceil_div(n, DPARI_MOMENT_BLOCK) * DPARI_MOMENT_RECORD
                           : n * dpar_type_bytes(type);
}

DPARI_INTERNAL int64_t dpari_moment_at(int32_t type, uint64_t index, int64_t i)
{
    const int64_t skip = (int64_t)(index % DPARI_MOMENT_BLOCK);
    return type == DPAR_F8 ? (skip + i) / DPARI_MOMENT_BLOCK * DPARI_MOMENT_RECORD
                           : i * dpar_type_bytes(type);
}

#if DPARI_LANES_VECTOR
#define DPARI_MOMENT_INLINE DPARI_LANES_INLINE
#else
#define DPARI_MOMENT_INLINE static
#endif

/* The numbers that encode and decode codes with `bits` bits below the sign. */
typedef struct dpari_moment_code {
    uint32_t mask, sign;  /* of the code without sign, and of its sign */
    uint32_t scale, base; /* unit << 23 and unit << 3 */
    uint32_t least;       /* bits of the smallest value above 0 */
    int32_t shift;        /* of the random word */
    float tiny;           /* the smallest value / 2^16 for m, which may round to 0, or 0 for v */
} dpari_moment_code;

/* Returns these numbers for a block with a scale. */
DPARI_MOMENT_INLINE dpari_moment_code dpari_moment_code_of(int32_t bits, uint32_t scale)
{
    dpari_moment_code code;
    code.mask = ((uint32_t)1 << bits) - 1;
    code.sign = 0x80u & ~code.mask;
    code.scale = scale;
    code.base = scale >> 20;
    code.least = scale + ((uint32_t)1 << 20);
    code.shift = bits == DPARI_MOMENT_BITS ? 16 : 0;
    dpari_elements_bits(&code.tiny, &code.least, 4);
    code.tiny *= bits == DPARI_MOMENT_BITS ? 1.0f / 65536.0f : 0.0f;
    return code;
}

/* Stores the scale of a block in its record. top: bits of its largest |x| plus 0xfffff, which
 * rounds it up to the next code. */
DPARI_MOMENT_INLINE dpari_moment_code dpari_moment_scale(unsigned char *record, int32_t bits,
                                                         uint32_t top)
{
    const uint32_t most = ((uint32_t)1 << (bits - 3)) - 1, exponent = top >> 23;
    const uint32_t scale = exponent > most ? (exponent - most) << 23 : 0;
    dpari_elements_bits(record + DPARI_MOMENT_BLOCK, &scale, 4);
    return dpari_moment_code_of(bits, scale);
}

enum { DPARI_MOMENT_LANES = 8 }; /* generators of random words, and words of a group of 32 codes */

/* ---- vectors --------------------------------------------------------------------------------- */

#if DPARI_LANES_VECTOR
/* Computes a random word for each element of a block, by 8 generators (xorshift32, Marsaglia 2003)
 * that begin with random numbers. A word is therefore as evenly distributed as these. */
DPARI_LANES_INLINE void dpari_moment_words_8(uint32_t *words, const uint32_t *seeds)
{
    dpari_lanes_u8 x;
    int32_t i;
    dpari_lanes_get(&x, seeds);
    for (i = 0; i < DPARI_MOMENT_BLOCK; i += DPARI_MOMENT_LANES) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        dpari_lanes_put(words + i, &x);
    }
}

/* Sets most to the larger one of most and a. */
DPARI_LANES_INLINE void dpari_moment_larger_8(dpari_lanes_i8 *most, const dpari_lanes_i8 *a,
                                              int wide)
{
    dpari_lanes_i8 above;
#if DPARI_LANES_ASM
    if (wide) {
        __asm__("vpmaxsd %1, %0, %0" : "+x"(*most) : "x"(*a));
        return;
    }
#endif
    (void)wide;
    above = (dpari_lanes_i8)(*a > *most);
    *most = (*a & above) | (*most & ~above);
}

/* Returns the bits of the largest |x| plus 0xfffff. Overwrites room[32]. A local array in its place
 * would make gcc keep `most` in memory. */
DPARI_LANES_INLINE uint32_t dpari_moment_top_8(unsigned char *room, const float *x, int wide)
{
    dpari_lanes_i8 most = DPARI_LANES_ALL8(0), a;
    uint32_t one, top = 0;
    int32_t i;
    for (i = 0; i < DPARI_MOMENT_BLOCK; i += DPARI_MOMENT_LANES) {
        dpari_lanes_get(&a, x + i);
        a = (a & 0x7fffffff) + 0xfffff;
        dpari_moment_larger_8(&most, &a, wide);
    }
    dpari_lanes_put(room, &most);
    for (i = 0; i < DPARI_MOMENT_LANES; i++) {
        dpari_elements_bits(&one, room + 4 * i, 4);
        top = one > top ? one : top;
    }
    return top;
}

/* Adds the codes of 8 elements as byte k of each word of `all`. */
DPARI_LANES_INLINE void dpari_moment_codes_8(dpari_lanes_u8 *all, const float *x,
                                             const uint32_t *words, const dpari_moment_code *by,
                                             int k)
{
    dpari_lanes_u8 a, r, code, few, many;
    dpari_lanes_get(&a, x);
    dpari_lanes_get(&r, words);
    *all |= (a >> 24 & by->sign) << 8 * k;
    a &= 0x7fffffffu;
    r = r >> by->shift & 0xffffu;
    code = ((a + (r << 4)) >> 20) - by->base;
    few = (dpari_lanes_u8)((dpari_lanes_f8)a >
                           __builtin_convertvector((dpari_lanes_i8)r, dpari_lanes_f8) * by->tiny);
    many = (dpari_lanes_u8)((dpari_lanes_i8)a > (int32_t)by->least - 1);
    *all |= ((code & many) | (few & 1u & ~many)) << 8 * k;
}

DPARI_LANES_INLINE void dpari_moment_encode_8(unsigned char *record, const float *x,
                                              const uint32_t *words, int32_t bits, int wide)
{
    const dpari_moment_code by =
        dpari_moment_scale(record, bits, dpari_moment_top_8(record, x, wide));
    int32_t g;
    for (g = 0; g < DPARI_MOMENT_BLOCK; g += 32) {
        dpari_lanes_u8 all = DPARI_LANES_ALL8(0);
        DPARI_FOUR(dpari_moment_codes_8(&all, x + g + 8 * q, words + g + 8 * q, &by, q));
        dpari_lanes_put(record + g, &all);
    }
}

/* Computes the values of 8 elements, whose codes are byte k of each word of `codes`. */
DPARI_LANES_INLINE void dpari_moment_values_8(float *x, const dpari_lanes_u8 *codes,
                                              const dpari_moment_code *by, int k)
{
    const dpari_lanes_u8 code = *codes >> 8 * k;
    const dpari_lanes_u8 size = code & by->mask;
    dpari_lanes_u8 a = (size << 20) + by->scale;
    a = (a & (dpari_lanes_u8)((dpari_lanes_i8)size > 0)) | (code & by->sign) << 24;
    dpari_lanes_put(x, &a);
}

DPARI_LANES_INLINE void dpari_moment_decode_8(float *x, const unsigned char *record,
                                              const dpari_moment_code *by)
{
    int32_t g;
    for (g = 0; g < DPARI_MOMENT_BLOCK; g += 32) {
        dpari_lanes_u8 all;
        dpari_lanes_get(&all, record + g);
        DPARI_FOUR(dpari_moment_values_8(x + g + 8 * q, &all, by, q));
    }
}
#endif

/* ---- the same, one element after another ----------------------------------------------------- */

#if !DPARI_LANES_VECTOR || DPARI_LANES_ASKED
/* Returns the byte of a record that holds the code of element i. */
static int32_t dpari_moment_byte(int32_t i)
{
    return i / 32 * 32 + i % 8 * 4 + i / 8 % 4;
}

static void dpari_moment_words_1(uint32_t *words, const uint32_t *seeds)
{
    int32_t i;
    for (i = 0; i < DPARI_MOMENT_BLOCK; i++) {
        uint32_t x = i < DPARI_MOMENT_LANES ? seeds[i] : words[i - DPARI_MOMENT_LANES];
        x ^= x << 13;
        x ^= x >> 17;
        words[i] = x ^ x << 5;
    }
}

static void dpari_moment_encode_1(unsigned char *record, const float *x, const uint32_t *words,
                                  int32_t bits)
{
    dpari_moment_code by;
    uint32_t a, code, top = 0;
    float size;
    int32_t i;
    for (i = 0; i < DPARI_MOMENT_BLOCK; i++) {
        dpari_elements_bits(&a, x + i, 4);
        a = (a & 0x7fffffffu) + 0xfffffu;
        top = a > top ? a : top;
    }
    by = dpari_moment_scale(record, bits, top);
    for (i = 0; i < DPARI_MOMENT_BLOCK; i++) {
        const uint32_t r = words[i] >> by.shift & 0xffffu;
        dpari_elements_bits(&a, x + i, 4);
        code = a >> 24 & by.sign;
        a &= 0x7fffffffu;
        dpari_elements_bits(&size, &a, 4);
        code |= a >= by.least ? ((a + (r << 4)) >> 20) - by.base : size > (float)r * by.tiny;
        record[dpari_moment_byte(i)] = (unsigned char)code;
    }
}

static void dpari_moment_decode_1(float *x, const unsigned char *record,
                                  const dpari_moment_code *by)
{
    int32_t i;
    for (i = 0; i < DPARI_MOMENT_BLOCK; i++) {
        const uint32_t code = record[dpari_moment_byte(i)], size = code & by->mask;
        const uint32_t a = (size > 0 ? (size << 20) + by->scale : 0) | (code & by->sign) << 24;
        dpari_elements_bits(x + i, &a, 4);
    }
}
#endif

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Defines a function that decodes the moments of a block, or encodes them if seeds is not NULL. */
#define DPARI_MOMENT_CONVERT(name, lanes, ...)                                                     \
    static void name(dpari_moment_block *block, const uint32_t *seeds)                             \
    {                                                                                              \
        uint32_t words[DPARI_MOMENT_BLOCK], scale;                                                 \
        int32_t k;                                                                                 \
        if (seeds != NULL) {                                                                       \
            dpari_moment_words_##lanes(words, seeds);                                              \
        }                                                                                          \
        for (k = 0; k < block->moments; k++) {                                                     \
            const int32_t bits = DPARI_MOMENT_BITS + k;                                            \
            if (seeds != NULL) {                                                                   \
                dpari_moment_encode_##lanes(block->record[k], block->x[k], words, __VA_ARGS__);    \
            } else {                                                                               \
                dpari_moment_code by;                                                              \
                dpari_elements_bits(&scale, block->record[k] + DPARI_MOMENT_BLOCK, 4);             \
                by = dpari_moment_code_of(bits, scale);                                            \
                dpari_moment_decode_##lanes(block->x[k], block->record[k], &by);                   \
            }                                                                                      \
        }                                                                                          \
    }
#if DPARI_LANES_ASKED
__attribute__((target("avx2"))) DPARI_MOMENT_CONVERT(dpari_moment_wide, 8, bits, 1)
#endif
#if DPARI_LANES_VECTOR && !DPARI_LANES_ASKED
DPARI_MOMENT_CONVERT(dpari_moment_usual, 8, bits, 0)
#else
DPARI_MOMENT_CONVERT(dpari_moment_usual, 1, bits)
#endif

static void dpari_moment_convert(dpari_moment_block *block, const uint32_t *seeds, int wide)
{
#if DPARI_LANES_ASKED
    if (wide) {
        dpari_moment_wide(block, seeds);
        return;
    }
#endif
    (void)wide;
    dpari_moment_usual(block, seeds);
}

DPARI_INTERNAL void dpari_moment_load(dpari_moment_block *block, int wide)
{
    dpari_moment_convert(block, NULL, wide);
}

DPARI_INTERNAL void dpari_moment_store(dpari_moment_block *block, uint64_t seed, uint64_t stream,
                                       uint64_t number, int wide)
{
    uint32_t seeds[DPARI_MOMENT_LANES];
    dpari_random_block(seed, stream, 2 * number, seeds);
    dpari_random_block(seed, stream, 2 * number + 1, seeds + 4);
    dpari_moment_convert(block, seeds, wide);
}
