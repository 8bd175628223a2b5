/* SPDX-License-Identifier: MIT-0 */
/* Tests the number formats: their widths (IEEE 754, bfloat16, OCP FP8), and that all names differ.
 * Run with: tests/run test index. */
#include "dpar.h"

#include "check.h"

int main(void)
{
    static const int bytes[DPAR_TYPE_COUNT] = {0, 8, 4, 4, 2, 1, 0, 2, 1, 1, 4, 4, 8, 8};
    for (int32_t t = 0; t < DPAR_TYPE_COUNT; t++) {
        CHECK_INT(dpar_type_bytes(t), bytes[t]);
        CHECK_INT(dpari_type_can_reduce(t),
                  t != DPAR_TYPE_NONE && t != DPAR_TF32 && t != DPAR_F8 && t != DPAR_F4);
        for (int32_t u = 0; u < t; u++) {
            CHECK(strcmp(dpar_type_name(t), dpar_type_name(u)) != 0);
        }
    }
    CHECK_INT(DPAR_TYPE_NONE, 0); /* the value in a zeroed struct */
    CHECK_TEXT(dpar_type_name(DPAR_TYPE_NONE), "none");
    CHECK_INT(dpar_type_bytes(-1), 0);
    CHECK_INT(dpar_type_bytes(DPAR_TYPE_COUNT), 0);
    CHECK_INT(dpari_type_can_reduce(DPAR_TYPE_COUNT), 0);
    CHECK(strcmp(dpar_type_name(-1), "?") == 0);
    for (int32_t k = 0; k < DPAR_CALL_COUNT; k++) {
        for (int32_t u = 0; u < k; u++) {
            CHECK(strcmp(dpar_call_name(k), dpar_call_name(u)) != 0);
        }
    }
    CHECK(strcmp(dpar_call_name(-1), "?") == 0);
    CHECK(strcmp(dpar_call_name(DPAR_CALL_COUNT), "?") == 0);
    return CHECK_DONE();
}
