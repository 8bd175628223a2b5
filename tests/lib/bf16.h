/* SPDX-License-Identifier: MIT-0 */
/* bf16: the upper half of a float's bits, by its definition. */
#ifndef BF16_H
#define BF16_H

#include <stdint.h>
#include <string.h>

static inline float bf16_value(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* Rounds to nearest, ties to even. All NaN give the same one. */
static inline uint16_t bf16_of(float x)
{
    uint32_t bits, high, low;
    memcpy(&bits, &x, 4);
    high = bits >> 16;
    low = bits & 0xFFFFu;
    if (x != x) {
        return 0x7FC0;
    }
    if (low > 0x8000u || (low == 0x8000u && (high & 1u) != 0)) {
        high++;
    }
    return (uint16_t)high;
}

#endif
