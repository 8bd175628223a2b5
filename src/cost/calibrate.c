/* SPDX-License-Identifier: MIT-0 */
/* Fits calibration constants by coordinate descent. It multiplies and divides each constant by a
 * factor, and shrinks the factor when no trial improves the score. The score is the mean error of
 * the predicted times plus a weak pull towards the starting values. Programs that measured steps on
 * a machine call dpar_calibration_fit. */
#include "calibrate.h"

#include "../base/real.h"
#include "terms.h"

/* Limits a constant to the range in which it has a physical meaning. */
static double dpari_cal_clip(int32_t which, double v)
{
    double low;
    switch (which) {
    case DPAR_CAL_LAUNCH_S:
    case DPAR_CAL_LINK_S:
    case DPAR_CAL_NET_S:
    case DPAR_CAL_BASE_S:
    case DPAR_CAL_STEP_S:
    case DPAR_CAL_HOP_S: low = 1e-8; break;
    case DPAR_CAL_CONTENTION:
    case DPAR_CAL_SKEW: low = 1e-4; break; /* these two may be almost 0 */
    default: low = 0.05; break;
    }
    return dpari_leastf(1.0, dpari_mostf(low, v));
}

static double dpari_absolute(double x)
{
    return x < 0.0 ? -x : x;
}

/* Returns |e|, smoothed below 2 %, because a search along one constant at a time gets stuck in the
 * kinks of the plain absolute value. */
static double dpari_cal_rounded(double e)
{
    return dpari_sqrt(e * e + 4e-4) - 0.02;
}

/* Returns the weighted mean of |predicted / measured - 1| if `relative`, otherwise that of
 * |ln(predicted / measured)|. The logarithm treats a time that is too long by a factor like one
 * that is too short by that factor. */
static double dpari_cal_error(const dpar_calibration *cal, const dpar_measurement *rows, int32_t n,
                              int relative)
{
    double sum = 0.0, weights = 0.0;
    int32_t i;
    for (i = 0; i < n; i++) {
        dpar_cluster machine = *rows[i].cluster;
        dpar_job job;
        dpar_step_cost t;
        double ratio, error;
        machine.cal = *cal;
        job.work = rows[i].work;
        job.cluster = &machine;
        job.recipe = rows[i].recipe;
        dpari_step_of(&job, &rows[i].strategy, &t);
        ratio = t.total / rows[i].seconds;
        error = relative ? dpari_absolute(ratio - 1.0)
                         : dpari_cal_rounded(dpari_log2(ratio) * 0.6931471805599453); /* ln 2 */
        weights += rows[i].weight;
        sum += rows[i].weight * error;
    }
    return sum / weights;
}

/* Returns the penalty for constants that differ from their starting values. A change by a factor of
 * e costs as much as 0.3 % of error, so a constant moves only if the rows depend on it. */
static double dpari_cal_pull(const dpar_calibration *cal, const dpar_calibration *start,
                             uint32_t which)
{
    double sum = 0.0;
    int32_t i;
    for (i = 0; i < DPAR_CAL_COUNT; i++) {
        if (which >> i & 1u) {
            double x = dpari_log2(cal->value[i] / start->value[i]);
            sum += x * x;
        }
    }
    return 0.0015 * sum;
}

static double dpari_cal_score(const dpar_calibration *cal, const dpar_calibration *start,
                              const dpar_measurement *rows, int32_t n, uint32_t which)
{
    return dpari_cal_error(cal, rows, n, 0) + dpari_cal_pull(cal, start, which);
}

/* Multiplies one constant by `factor`, then divides it by `factor`, and keeps the first value that
 * improves the score. Returns 1 if it kept one, otherwise 0. */
static int dpari_cal_try(dpar_calibration *cal, const dpar_calibration *start,
                         const dpar_measurement *rows, int32_t n, uint32_t which, int32_t i,
                         double factor, double *best)
{
    int32_t down;
    for (down = 0; down < 2; down++) {
        dpar_calibration next = *cal;
        double score;
        next.value[i] = dpari_cal_clip(i, down ? cal->value[i] / factor : cal->value[i] * factor);
        score = dpari_cal_score(&next, start, rows, n, which);
        if (score < *best - 1e-9) {
            *best = score;
            *cal = next;
            return 1;
        }
    }
    return 0;
}

/* Sets the error of each fitted constant to the relative change, up or down, that worsens the mean
 * error by one standard error of the residuals. The error is 1 if no change up to a factor of 2
 * worsens it as much. */
static void dpari_cal_bars(dpar_calibration *cal, const dpar_measurement *rows, int32_t n,
                           uint32_t which)
{
    double base = dpari_cal_error(cal, rows, n, 0), worse = base * (1.0 + 1.0 / dpari_sqrt(n));
    int32_t i;
    for (i = 0; i < DPAR_CAL_COUNT; i++) {
        double bar;
        if (!(which >> i & 1u)) {
            continue;
        }
        for (bar = 0.005; bar < 1.0; bar *= 1.5) {
            dpar_calibration up = *cal, down = *cal;
            up.value[i] *= 1.0 + bar;
            down.value[i] /= 1.0 + bar;
            if (dpari_cal_error(&up, rows, n, 0) > worse &&
                dpari_cal_error(&down, rows, n, 0) > worse) {
                break;
            }
        }
        cal->error[i] = dpari_leastf(1.0, bar);
    }
}

DPAR_API DPARI_COLD dpar_status dpar_calibration_fit(dpar_calibration *cal,
                                                     const dpar_measurement *rows, int32_t n,
                                                     uint32_t which, double *mean_error,
                                                     dpar_why *why)
{
    dpar_calibration fit = *cal;
    double factor = 1.5, best;
    int32_t i, moved;
    which &= ((uint32_t)1 << DPAR_CAL_COUNT) - 1u;
    if (n < 1 || which == 0) {
        return dpari_wrong(why,
                           "n=%d, which=%ld: a fit needs at least one measurement and one bit "
                           "1 << DPAR_CAL_*",
                           n, (int64_t)which);
    }
    for (i = 0; i < n; i++) {
        if (!(rows[i].seconds > 0.0) || !dpari_finite(rows[i].seconds) || !(rows[i].weight > 0.0)) {
            return dpari_wrong(
                why, "measurement %d: seconds must be positive and finite, weight positive", i);
        }
    }
    for (i = 0; i < DPAR_CAL_COUNT; i++) {
        if (which >> i & 1u) {
            fit.value[i] = dpari_cal_clip(i, fit.value[i]);
        }
    }
    best = dpari_cal_score(&fit, cal, rows, n, which);
    while (factor > 1.004) {
        moved = 0;
        for (i = 0; i < DPAR_CAL_COUNT; i++) {
            if (which >> i & 1u) {
                moved |= dpari_cal_try(&fit, cal, rows, n, which, i, factor, &best);
            }
        }
        if (!moved) {
            factor = 1.0 + 0.6 * (factor - 1.0);
        }
    }
    dpari_cal_bars(&fit, rows, n, which);
    fit.rows = n;
    if (mean_error != NULL) {
        *mean_error = dpari_cal_error(&fit, rows, n, 1);
    }
    *cal = fit;
    return DPAR_OK;
}
