/* SPDX-License-Identifier: MIT-0 */
/* Tests checked integers at their limits (arith.h), and real functions against libm (real.h). Run
 * with: tests/run test index. */
#include "dpar.h"

#include "check.h"

static void test_arithmetic(void)
{
    int64_t p = -1;
    double x;
    CHECK(dpari_mul(INT64_C(3037000499), INT64_C(3037000499), &p));
    CHECK_INT(p, INT64_C(9223372030926249001));
    CHECK(!dpari_mul(INT64_C(3037000500), INT64_C(3037000500), &p));
    CHECK(dpari_mul(INT64_MAX, 1, &p) && dpari_mul(0, INT64_MAX, &p));
    CHECK(!dpari_mul(-1, 2, &p) && !dpari_mul(2, -1, &p));
    p = 5;
    CHECK(!dpari_mul(INT64_MAX, 2, &p) && p == 5); /* written on success only */
    CHECK(!dpari_mul(2, INT64_MAX / 2 + 1, &p) && dpari_mul(2, INT64_MAX / 2, &p));
    CHECK_INT(dpari_ceil_div(INT64_MAX, 2), INT64_C(4611686018427387904));
    CHECK(dpari_finite(1e308) && !dpari_finite(HUGE_VAL) && !dpari_finite(HUGE_VAL - HUGE_VAL));
    for (x = 1e-300; x < 1e300; x *= 1.37) {
        CHECK_NEAR(dpari_sqrt(x), sqrt(x), 1e-13);
        CHECK(fabs(dpari_log2(x) - log2(x)) < 1e-12 * (1.0 + fabs(log2(x))));
    }
    for (x = 0.9; x < 1.1; x += 0.0007) { /* log2 near its zero keeps its relative error */
        CHECK_NEAR(dpari_log2(x), log2(x), 1e-12);
        CHECK_NEAR(dpari_log(x), log(x), 1e-12);
    }
    for (x = -700.0; x < 709.0; x += 0.0371) {
        CHECK_NEAR(dpari_exp(x), exp(x), 2e-15);
        CHECK(x < -1.0 || x > 1.0 || fabs(dpari_exp(x / 700.0) - exp(x / 700.0)) < 1e-15);
    }
    CHECK_NEAR(dpari_exp(-745.5), 0.0, 0);
    CHECK_NEAR(dpari_exp(-1e300), 0.0, 0);
    CHECK_NEAR(dpari_exp(800.0), exp(709.0), 2e-15);
    CHECK_NEAR(dpari_exp(0.0), 1.0, 0);
    CHECK_NEAR(dpari_sqrt(-1.0), 0.0, 0);
    CHECK_NEAR(dpari_sqrt(144.0), 12.0, 0);
    CHECK_NEAR(dpari_log2(0.0), 0.0, 0);
    CHECK(dpari_log2((double)NAN) != dpari_log2((double)NAN) && dpari_log((double)NAN) != 0.0);
    CHECK_NEAR(dpari_log2(1024.0), 10.0, 0);
    CHECK_INT(dpari_ceil_log2(1), 0);
    CHECK_INT(dpari_ceil_log2(1025), 11);
}

int main(void)
{
    test_arithmetic();
    return CHECK_DONE();
}
