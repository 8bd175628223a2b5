/* SPDX-License-Identifier: MIT-0 */
/* calibrate - fits the constants of a machine to your own measurements, with error bars.
 *
 *     rows[0].work = &work;                                the job and its strategy
 *     rows[0].cluster = &cluster;
 *     rows[0].recipe = recipe;
 *     rows[0].strategy = strategy;
 *     rows[0].seconds = 4.31;
 *     rows[0].weight = 1;
 *     which = 1u << DPAR_CAL_GEMM | 1u << DPAR_CAL_NET_SHARE;
 *     dpar_calibration_fit(&cluster.cal, rows, n, which, &error, &why); */
#ifndef DPARI_COST_CALIBRATE_H
#define DPARI_COST_CALIBRATE_H

#include "step.h"

/* One measured step: the model, the machine, the plan and the time. */
typedef struct dpar_measurement {
    const dpar_workload *work;
    const dpar_cluster *cluster; /* the machine; the constants to fit replace its `cal` */
    dpar_recipe recipe;
    dpar_strategy strategy;
    double seconds; /* measured time of one step, > 0 */
    double weight;  /* weight of this row in the fit, > 0; usually 1 */
} dpar_measurement;

/* Fits chosen constants of a machine to measured step times. The fit minimises the mean absolute
 * logarithm of predicted over measured time.
 *
 * cal:        on entry the starting values, on success the fitted constants and their errors.
 *             Constants that are not fitted keep their values. Unchanged on failure.
 * rows:       [n] the measurements; n is at least 1.
 * which:      bit i selects constant i (DPAR_CAL_*).
 * mean_error: receives the mean of |predicted / measured - 1|; may be NULL.
 *
 * Constants stay within physical bounds: shares in (0.05, 1], times in [1e-8, 1] s. A weak pull
 * towards the starting values keeps a constant where it was if the rows do not determine it. The
 * error of a constant is the relative change that worsens the mean by one standard error of the
 * residuals. It is 1 if the rows say nothing about the constant.
 *
 * To test the fitted constants, use measurements that were not fitted. The result is deterministic.
 * Costs about 2000 predictions of a step per row. Fails with DPAR_E_ARG if there are no rows or no
 * constants, if a time is not positive and finite, or if a weight is not positive. */
DPAR_API dpar_status dpar_calibration_fit(dpar_calibration *cal, const dpar_measurement *rows,
                                          int32_t n, uint32_t which, double *mean_error,
                                          dpar_why *why);

#endif
