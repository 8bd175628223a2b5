/* SPDX-License-Identifier: MIT-0 */
/* Tests that a fit recovers the constants with which its measurements were made. Run with:
 * tests/run test cost. */
#include "dpar_cost.h"

#include "check.h"
#include "plan_calls.h"
#include "plan_job.h"

/* Makes measurements by the model with other constants, and checks that the fit recovers those. */
static void test_fit(void)
{
    static dpar_measurement m[24];
    dpar_calibration cal, truth;
    dpar_why why;
    double error = 1.0;
    int i;
    set("llama-3-8b", "1x8:a100-80", "megatron");
    dpar_calibration_init(&cal, DPAR_GEN_AMPERE);
    truth = cal;
    truth.value[DPAR_CAL_GEMM] = 0.6;
    truth.value[DPAR_CAL_HBM] = 0.65;
    for (i = 0; i < 24; i++) {
        dpar_cluster machine = c;
        dpar_job j = job;
        dpar_step_cost t;
        machine.cal = truth;
        j.cluster = &machine;
        m[i].work = &w;
        m[i].cluster = &c;
        m[i].recipe = job.recipe;
        m[i].strategy = plain_strategy();
        m[i].strategy.tp = 1 << i % 4;
        m[i].strategy.dp = 8 >> i % 4;
        m[i].strategy.micro_batch = 1 << i / 4 % 3;
        m[i].strategy.recompute = i / 12 ? DPAR_RECOMPUTE_FULL : DPAR_RECOMPUTE_NONE;
        dpari_step_of(&j, &m[i].strategy, &t);
        m[i].seconds = t.total;
        m[i].weight = 1.0;
    }
    CHECK_INT(
        dpar_calibration_fit(&cal, m, 24, 1u << DPAR_CAL_GEMM | 1u << DPAR_CAL_HBM, &error, &why),
        DPAR_OK);
    CHECK_NEAR(cal.value[DPAR_CAL_GEMM], 0.6, 0.02);
    CHECK_NEAR(cal.value[DPAR_CAL_HBM], 0.65, 0.1); /* memory-bound work is the smaller part */
    CHECK(error < 0.01);
    CHECK_INT(cal.rows, 24);
    CHECK(cal.error[DPAR_CAL_GEMM] < 0.1);
    cal.value[DPAR_CAL_HBM] = 1.5; /* outside the fit's range; stays because it is not fitted */
    CHECK_INT(dpar_calibration_fit(&cal, m, 24, 1u << DPAR_CAL_GEMM, NULL, &why), DPAR_OK);
    CHECK_NEAR(cal.value[DPAR_CAL_HBM], 1.5, 0.0);
    CHECK_INT(dpar_calibration_fit(&cal, m, 0, 1, &error, &why), DPAR_E_ARG);
    CHECK_INT(dpar_calibration_fit(&cal, m, 1, 0, &error, &why), DPAR_E_ARG);
    m[3].seconds = HUGE_VAL - HUGE_VAL;
    CHECK_INT(dpar_calibration_fit(&cal, m, 24, 1, &error, &why), DPAR_E_ARG);
}

int main(void)
{
    test_fit();
    return CHECK_DONE();
}
