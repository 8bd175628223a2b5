/* SPDX-License-Identifier: MIT-0 */
/* closed_form - evaluates the published formulas for pipeline schedules. A formula is given only
 * where simulation agrees with it; otherwise the call fails, and the message names the condition
 * that is not met.
 *
 *     dpar_schedule_closed_form(&order, &times, DPAR_FORMULA_MAKESPAN, 0, &formula, &why);
 *     formula.text                                     "(m + p - 1) (F + B)"
 */
#ifndef DPARI_SCHEDULE_CLOSED_FORM_H
#define DPARI_SCHEDULE_CLOSED_FORM_H

#include "generate.h"
#include "simulate.h"

/* The quantities that a formula may give, in the units of dpar_schedule_times. The times of a stage
 * are those of 1/v of a rank's layers. Activations are counted in stages x micro-batches. */
enum {
    DPAR_FORMULA_MAKESPAN, /* the makespan, with the latency term if there is a latency */
    DPAR_FORMULA_SPAN,     /* the longest time from a rank's first start to its last end */
    DPAR_FORMULA_LATENCY,  /* the time that the latency adds to the makespan */
    DPAR_FORMULA_IDLE,     /* the longest idle time of a rank */
    DPAR_FORMULA_PEAK,     /* the most activations that `rank` holds at one time */
    DPAR_FORMULA_COUNT
};

/* A formula and its value. */
typedef struct dpar_formula {
    int64_t value;
    const char *text; /* static text, such as "(m + p - 1) (F + B)" */
} dpar_formula;

/* Evaluates a formula for p ranks, v stages per rank, m micro-batches and s slices. All stages must
 * take the same times: F, B, I, W and FB (a joined pair). Messages are buffered and have a latency
 * c, and groups have p micro-batches.
 *
 * rank: 0 to p - 1; r in the formulas of DPAR_FORMULA_PEAK, otherwise without effect.
 *
 * MAKESPAN (if c > 0, LATENCY is added)
 *     gpipe, 1f1b, eager-1f1b      (m + p - 1) (F + B)
 *     interleaved, breadth-first   (m v + p - 1) (F + B)                    m >= p or v = 1
 *     zb-h1                        m (F + I + W) + (p - 1) (F + I - W)      W <= I, F; m >= p
 *     interleaved-zb               m v (F + I + W) + (p - 1) (F + I - W)    W <= I, F; m >= p
 *     zb-2p                        3 m F + (p - 1) F                        F = I = W, m >= 2p - 1
 *     zbv                          6 m F + (p - 1) F                        F = I = W, m >= 2p - 1
 *     dualpipe, dualpipev          m (F + B) + IDLE, 2 m (F + B) + IDLE     W <= I = F, FB = F + B
 *     seq1f1b                      (m s + p - 1) (F + B)
 *     chimera                      m (F + B) + (p - 2) F                    B = F, p divides m
 *                                  m (F + B) + 2 (p - 2) F                  B = 2 F, m = p
 *     moe-overlap, v = 1           p (F + B) + (m - 1) FB                   FB >= F, FB >= B
 *     forward-only                 (m v + p - 1) F                          m >= p or v = 1
 * SPAN
 *     zb-2p, zbv                   3 m F, 6 m F                             F = I = W, m >= 2p - 1
 *     forward-only, v = 1          m F
 *     the others                   MAKESPAN
 * LATENCY
 *     gpipe                        2 (p - 1) c
 *     eager-1f1b                   2 (p - 1) c                              2 c <= F + B
 *     1f1b                         (2 (p - 2) + 2 m (p - 1) / p) c          p divides m
 *     interleaved                  2 (p v - 1) c                            p divides m; c <= F, B
 *     zb-h1                        4 (p - 1) c              F = I = W, 4 c <= F, m >= 2p
 *     forward-only, v = 1          (p - 1) c
 * IDLE
 *     dualpipe, dualpipev          (h - 1) (FB + B - 3 W), h = p / 2, p  W <= I = F; B <= FB <= F+B
 *     the others, c = 0            MAKESPAN less the work of a rank
 * PEAK
 *     gpipe                        m
 *     breadth-first, forward-only  m v
 *     1f1b                         min(p - r, m)
 *     eager-1f1b                   min(2 (p - r) - 1, m)
 *     moe-overlap, v = 1           min(2 (p - r), m)
 *     interleaved                  min((v - 1) p + 2 (p - 1 - r) + 1, m v)  p divides m
 *     interleaved-zb               p v                                      p divides m
 *     zb-h1, zb-2p                 min(p, m), min(2p - 1, m)
 *     zbv                          2p                                       m >= 2p - 1
 *     v-half                       2 floor((p + 2) / 2)                     m >= 2p, 2 <= p <= 12
 *     v-min                        2 floor((p + 4) / 3)                     as v-half; rank 0 holds
 *                                                                           1 less if p mod 3 = 2
 *     dualpipe, dualpipev          p + 1, 2p + 1
 *     seq1f1b                      min(p - 1 - r + s, m s)
 *     chimera                      p / 2 + 1 + min(r, p - 1 - r)            p divides m
 *
 * Sources: Huang 2019, Narayanan 2021, Lamy-Poirier 2022, Qi 2023 and 2024, Li 2021, DeepSeek's
 * DualPipe, Victarry's visualiser for moe-overlap, Sun 2024. The conditions were found by
 * simulation.
 *
 * Fails with DPAR_E_NONE if no formula holds, or DPAR_E_ARG, DPAR_E_DIVIDE or DPAR_E_RANGE if there
 * is no such order, a time is negative, or a value exceeds INT64_MAX. Costs O(stages), for the
 * check of the order.
 */
DPAR_API dpar_status dpar_schedule_closed_form(const dpar_schedule_desc *desc,
                                               const dpar_schedule_times *times, int32_t what,
                                               int32_t rank, dpar_formula *formula, dpar_why *why);

#endif
