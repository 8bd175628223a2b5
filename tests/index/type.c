/* SPDX-License-Identifier: MIT-0 */
/* The number formats: widths (IEEE 754, bfloat16, OCP FP8), names all different. */
#include "dpar.h"

#include "check.h"

int main(void)
{
    static const int bytes[DPAR_TYPES] = {0, 8, 4, 4, 2, 1, 0, 2, 1, 1, 4, 4, 8, 8};
    for (int32_t t = 0; t < DPAR_TYPES; t++) {
        CHECK_INT(dpar_type_bytes(t), bytes[t]);
        CHECK_INT(dpar_type_reduces(t),
                  t != DPAR_NO_TYPE && t != DPAR_TF32 && t != DPAR_F8 && t != DPAR_F4);
        for (int32_t u = 0; u < t; u++) {
            CHECK(strcmp(dpar_type_name(t), dpar_type_name(u)) != 0);
        }
    }
    CHECK_INT(DPAR_NO_TYPE, 0); /* what a zeroed struct says */
    CHECK_TEXT(dpar_type_name(DPAR_NO_TYPE), "none");
    CHECK_INT(dpar_type_bytes(-1), 0);
    CHECK_INT(dpar_type_bytes(DPAR_TYPES), 0);
    CHECK_INT(dpar_type_reduces(DPAR_TYPES), 0);
    CHECK(strcmp(dpar_type_name(-1), "?") == 0);
    for (int32_t k = 0; k < DPAR_CALLS; k++) {
        for (int32_t u = 0; u < k; u++) {
            CHECK(strcmp(dpar_collective_name(k), dpar_collective_name(u)) != 0);
        }
    }
    CHECK(strcmp(dpar_collective_name(-1), "?") == 0);
    CHECK(strcmp(dpar_collective_name(DPAR_CALLS), "?") == 0);
    return CHECK_DONE();
}
