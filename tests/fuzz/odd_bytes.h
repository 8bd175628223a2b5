/* SPDX-License-Identifier: MIT-0 */
/* odd_bytes - makes numbers from a fuzzer's bytes: small ones, and those at which sums and products
 * overflow. */
#ifndef DPAR_ODD_BYTES_H
#define DPAR_ODD_BYTES_H

#include "layout_bytes.h"

static inline int64_t odd64(bytes *b)
{
    static const int64_t some[] = {
        -1,        INT32_MAX,        (int64_t)INT32_MAX + 1, INT64_C(1) << 40,
        INT64_MAX, INT64_C(1) << 61, (INT64_C(1) << 62) - 1, INT64_C(1) << 62,
        INT64_MIN, INT64_C(1) << 53, INT64_C(46341),         INT64_C(3037000500)};
    int k = take(b, 16);
    return k < 14 ? take(b, 9) : some[take(b, 12)];
}

static inline int32_t odd32(bytes *b)
{
    static const int32_t some[] = {-1, INT32_MAX, INT32_MIN, 65535, 65536, 46341, 1 << 24, 4097};
    int k = take(b, 16);
    return k < 14 ? take(b, 9) : some[take(b, 8)];
}

static inline double odd_real(bytes *b)
{
    static const double some[] = {0.0, 1.0, -1.0, 0.5, 1e308, 1e-308, 0.95, 2.0};
    int k = take(b, 10);
    double zero = 0.0;
    return k < 8 ? some[k] : k == 8 ? 1.0 / zero : zero / zero;
}

#endif
