/* SPDX-License-Identifier: MIT-0 */
/* Checks with Frama-C's Eva (tests/compile/proof.sh) that dpari_split_by, dpari_bits and
 * dpari_inverse compute nothing undefined for every divisor, taking together the divisors of b
 * bits. */
#define DPAR_IMPLEMENTATION
#include "dpar.h"

#include <__fc_builtin.h>

int main(void)
{
    dpar_split s;
    int b, k;
    for (k = 0; k < 2; k++) {
        dpari_split_by(&s, k, Frama_C_long_interval(INT64_MIN, 0));
        for (b = 0; b < 63; b++) {
            const int64_t least = INT64_C(1) << b;
            dpari_split_by(&s, k, Frama_C_long_interval(least, least - 1 + least));
        }
    }
    return 0;
}
