/* SPDX-License-Identifier: MIT-0 */
/* calibrate - fits the constants of a machine to your own measurements, with error bars.
 *
 *     rows[0].work = &work;                                what ran, where, how
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

/* One measured step: what ran, how, and how long it took. */
typedef struct dpar_measurement {
    const dpar_workload *work;
    const dpar_cluster *cluster; /* its own cal does not count: the fitted one does */
    dpar_recipe recipe;
    dpar_strategy strategy;
    double seconds; /* of one step, > 0 */
    double weight;  /* how much the row counts, > 0; 1 for most */
} dpar_measurement;

/* Fits the constants whose bits are set in `which` (bit i = DPAR_CAL_i); the others stay as *cal
 * has them. It makes the mean absolute log ratio of predicted to measured time least. *mean_error
 * (may be NULL) gets the mean |predicted/measured - 1|. Never judge a model with rows that were
 * used here. Deterministic; about 2000 step evaluations a row.
 *
 * Constants stay within physical bounds: shares in (0.05, 1], times in [1e-8, 1] s. A weak pull
 * towards the start keeps constants where they were that the rows do not determine. An error bar is
 * the relative change of a constant that worsens the mean by one standard error of the residuals; 1
 * where the rows say nothing.
 *
 * E_ARG: no rows, no constants, a time that is not positive and finite, or a weight that is not
 * positive. *cal is written on success only. */
DPAR_API dpar_status dpar_calibration_fit(dpar_calibration *cal, const dpar_measurement *rows,
                                          int32_t n, uint32_t which, double *mean_error,
                                          dpar_why *why);

#endif
