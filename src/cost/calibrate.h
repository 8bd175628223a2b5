/* SPDX-License-Identifier: MIT-0 */
/* calibrate - fits the constants of a machine to a user's own measurements, with error bars. */
#ifndef DPARI_COST_CALIBRATE_H
#define DPARI_COST_CALIBRATE_H

#include "step.h"

/* One measured step: what ran, how, and how long it took. */
typedef struct dpar_measurement {
    const dpar_workload *work;
    const dpar_cluster *cluster; /* its own cal is ignored: the fitted one is used */
    dpar_recipe recipe;
    dpar_strategy strategy;
    double seconds; /* of one step, > 0 */
    double weight;  /* 1 for most; how much the row counts */
} dpar_measurement;

/* Fits the constants whose bits are set in `which` (bit i = DPAR_CAL_i) so that the mean absolute
 * log ratio of predicted to measured time is least; the others stay as *cal has them. Constants
 * stay within physical bounds (shares in (0.05, 1], times in [1e-8, 1] s). A weak pull towards the
 * start keeps constants that the rows do not determine where they were. Error bars: the relative
 * change of a constant that worsens the mean by one standard error of the residuals; 1 where the
 * rows say nothing. *mean_error (may be NULL) gets the mean |predicted/measured - 1|.
 * Deterministic; about 2000 step evaluations a row. E_ARG for no rows, a time that is not positive
 * and finite, a weight that is not positive, or no constants; *cal is written only on success.
 * Never judge with rows that were used here. */
DPAR_API dpar_status dpar_calibration_fit(dpar_calibration *cal, const dpar_measurement *rows,
                                          int32_t n, uint32_t which, double *mean_error,
                                          dpar_why *why);

#endif
