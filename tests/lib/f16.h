/* SPDX-License-Identifier: MIT-0 */
/* f16: IEEE half precision, by its definition. */
#ifndef F16_H
#define F16_H

#include <math.h>
#include <stdint.h>

static inline float f16_value(uint16_t h)
{
    const double m = (double)(h & 1023u) / 1024.0, sign = h & 0x8000u ? -1.0 : 1.0;
    const int e = (int)(h >> 10 & 31u);
    if (e == 31) {
        return h & 1023u ? (float)NAN : (float)(sign * (double)INFINITY);
    }
    return (float)(sign * (e == 0 ? ldexp(m, -14) : ldexp(1.0 + m, e - 15)));
}

/* Rounds to nearest, ties to even. */
static inline uint16_t f16_of(float x)
{
    const uint32_t sign = x < 0 ? 0x8000u : 0;
    double v = fabs((double)x);
    int e;
    if (x != x) {
        return 0x7e00;
    }
    if (v >= 65520.0) {
        return (uint16_t)(sign | 0x7c00u);
    }
    (void)frexp(v, &e);
    e = e < -13 ? -13 : e; /* below 2^-14 the last bit is 2^-24 */
    return (uint16_t)(sign |
                      ((uint32_t)rint(ldexp(v, 11 - e)) + ((uint32_t)(v > 0 ? e + 13 : 0) << 10)));
}

#endif
