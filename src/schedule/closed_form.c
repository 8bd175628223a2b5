/* SPDX-License-Identifier: MIT-0 */
/* Evaluates published formulas under the conditions for which simulation agrees with them. A
 * function for each formula sets its text, adds up its value and notes the first condition that is
 * not met. */
#include "closed_form.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "order.h"

/* The numbers in the formulas, named as in closed_form.h, and the value so far. */
typedef struct dpari_closed {
    int64_t p, v, m, s; /* m counts slices, m s in the formulas */
    int64_t f, b, i, w, fb, c;
    int64_t sum;         /* the value of the formula */
    const char *formula; /* its text */
    const char *unmet;   /* the first condition that is not met, or NULL */
    int32_t rule;
    int32_t over; /* 1 if the sum exceeds INT64_MAX */
} dpari_closed;

/* Adds count x time to the sum. Both are 0 or more. */
static void dpari_closed_add(dpari_closed *closed, int64_t count, int64_t time)
{
    int64_t product;
    if (!dpari_mul(count, time, &product) || product > INT64_MAX - closed->sum) {
        closed->over = 1;
        return;
    }
    closed->sum += product;
}

/* Sets the text of the formula and adds count x time. */
static void dpari_closed_term(dpari_closed *closed, const char *formula, int64_t count,
                              int64_t time)
{
    closed->formula = formula;
    dpari_closed_add(closed, count, time);
}

/* Notes a condition if it does not hold and none was noted before. An empty condition means that
 * there is no formula. Returns `holds`. */
DPARI_STATIC_NOINLINE int dpari_closed_need(dpari_closed *closed, int holds, const char *condition)
{
    if (!holds && closed->unmet == NULL) {
        closed->unmet = condition;
    }
    return holds;
}

/* Sets the text of the formula and adds count x (F + B). */
static void dpari_closed_pair(dpari_closed *closed, const char *formula, int64_t count)
{
    dpari_closed_term(closed, formula, count, closed->f);
    dpari_closed_add(closed, count, closed->b);
}

/* Computes the work of a rank, which is the same in every order. */
static void dpari_closed_work(dpari_closed *closed, int64_t *work)
{
    dpari_closed only = *closed;
    int64_t count = closed->m * closed->v;
    only.sum = 0;
    if (closed->rule == DPAR_SCHEDULE_DUALPIPE || closed->rule == DPAR_SCHEDULE_CHIMERA) {
        count /= 2; /* each stage has half of the micro-batches */
    }
    dpari_closed_pair(&only, NULL, count);
    closed->over |= only.over;
    *work = only.sum;
}

/* ---- the formulas ---------------------------------------------------------------------------- */

static void dpari_closed_zero_bubble(dpari_closed *closed)
{
    const int64_t p = closed->p, m = closed->m, f = closed->f, i = closed->i, w = closed->w;
    if (!dpari_closed_need(closed, w <= i && w <= f, "W <= I and W <= F") ||
        !dpari_closed_need(closed, m >= p, "m >= p")) {
        return;
    }
    dpari_closed_pair(closed, "m v (F + I + W) + (p - 1) (F + I - W)", m * closed->v);
    dpari_closed_add(closed, p - 1, f);
    dpari_closed_add(closed, p - 1, i - w);
}

/* Adds 3 v m F for ZB-2P and ZBV, and for the makespan (p - 1) F more. */
static void dpari_closed_no_bubble(dpari_closed *closed, int span)
{
    if (closed->rule == DPAR_SCHEDULE_ZBV) {
        closed->formula = span ? "6 m F" : "6 m F + (p - 1) F";
    } else {
        closed->formula = span ? "3 m F" : "3 m F + (p - 1) F";
    }
    (void)dpari_closed_need(closed,
                            closed->f == closed->i && closed->i == closed->w && closed->c == 0,
                            "F = I = W, no latency");
    (void)dpari_closed_need(closed, closed->m >= 2 * closed->p - 1, "m >= 2 p - 1");
    dpari_closed_add(closed, 3 * closed->v * closed->m + (span ? 0 : closed->p - 1), closed->f);
}

static void dpari_closed_dual_idle(dpari_closed *closed)
{
    const int64_t f = closed->f, b = closed->b, w = closed->w, fb = closed->fb;
    int64_t h = closed->rule == DPAR_SCHEDULE_DUALPIPE ? closed->p / 2 : closed->p;
    dpari_closed with = *closed;
    closed->formula = closed->rule == DPAR_SCHEDULE_DUALPIPE ? "(p / 2 - 1) (FB + B - 3 W)"
                                                             : "(p - 1) (FB + B - 3 W)";
    with.sum = 0;
    dpari_closed_add(&with, 1, fb);
    dpari_closed_add(&with, 1, b);
    if (with.over || !dpari_closed_need(closed, f == closed->i, "F = I") ||
        !dpari_closed_need(closed, fb >= f && fb >= b, "FB >= F and FB >= B") ||
        !dpari_closed_need(closed, fb - f <= b, "FB <= F + B") ||
        !dpari_closed_need(closed, w <= closed->i, "W <= I")) {
        closed->over |= with.over;
        return;
    }
    dpari_closed_add(closed, h - 1, with.sum - 3 * w);
}

static void dpari_closed_dual(dpari_closed *closed)
{
    int64_t work;
    dpari_closed_dual_idle(closed);
    dpari_closed_work(closed, &work);
    closed->formula = closed->rule == DPAR_SCHEDULE_DUALPIPE
                          ? "m (F + B) + (p / 2 - 1) (FB + B - 3 W)"
                          : "2 m (F + B) + (p - 1) (FB + B - 3 W)";
    (void)dpari_closed_need(closed, closed->fb - closed->f == closed->b, "FB = F + B");
    dpari_closed_add(closed, 1, work);
}

static void dpari_closed_chimera(dpari_closed *closed)
{
    int twice = closed->b / 2 == closed->f && closed->b % 2 == 0 && closed->b > 0;
    (void)dpari_closed_need(closed, closed->b == closed->f || twice, "B = F or B = 2 F");
    (void)dpari_closed_need(closed, !twice || closed->m == closed->p, "m = p, if B = 2 F");
    (void)dpari_closed_need(closed, closed->m % closed->p == 0, "p divides m");
    dpari_closed_pair(closed, twice ? "m (F + B) + 2 (p - 2) F" : "m (F + B) + (p - 2) F",
                      closed->m);
    dpari_closed_add(closed, (twice ? 2 : 1) * (closed->p - 2), closed->f);
}

static void dpari_closed_overlapped(dpari_closed *closed)
{
    (void)dpari_closed_need(closed, closed->v == 1, "v = 1");
    (void)dpari_closed_need(closed, closed->fb >= closed->b && closed->fb >= closed->f,
                            "FB >= F and FB >= B");
    dpari_closed_pair(closed, "p (F + B) + (m - 1) FB", closed->p);
    dpari_closed_add(closed, closed->m - 1, closed->fb);
}

static void dpari_closed_makespan(dpari_closed *closed)
{
    const int64_t p = closed->p, m = closed->m, v = closed->v;
    switch (closed->rule) {
    case DPAR_SCHEDULE_INTERLEAVED:
    case DPAR_SCHEDULE_BREADTH_FIRST:
        (void)dpari_closed_need(closed, v == 1 || m >= p, "m >= p, or v = 1");
        dpari_closed_pair(closed, "(m v + p - 1) (F + B)", m * v + p - 1);
        break;
    case DPAR_SCHEDULE_GPIPE:
    case DPAR_SCHEDULE_1F1B:
    case DPAR_SCHEDULE_EAGER_1F1B:
        dpari_closed_pair(closed, "(m + p - 1) (F + B)", m + p - 1);
        break;
    case DPAR_SCHEDULE_SEQ1F1B:
        dpari_closed_pair(closed, "(m s + p - 1) (F + B)", m + p - 1);
        break;
    case DPAR_SCHEDULE_FORWARD_ONLY:
        (void)dpari_closed_need(closed, v == 1 || m >= p, "m >= p, or v = 1");
        dpari_closed_term(closed, "(m v + p - 1) F", m * v + p - 1, closed->f);
        break;
    case DPAR_SCHEDULE_ZB_H1:
    case DPAR_SCHEDULE_INTERLEAVED_ZB: dpari_closed_zero_bubble(closed); break;
    case DPAR_SCHEDULE_ZB_2P:
    case DPAR_SCHEDULE_ZBV: dpari_closed_no_bubble(closed, 0); break;
    case DPAR_SCHEDULE_DUALPIPE:
    case DPAR_SCHEDULE_DUALPIPEV: dpari_closed_dual(closed); break;
    case DPAR_SCHEDULE_CHIMERA: dpari_closed_chimera(closed); break;
    case DPAR_SCHEDULE_MOE_OVERLAP: dpari_closed_overlapped(closed); break;
    default: (void)dpari_closed_need(closed, 0, ""); break;
    }
}

static void dpari_closed_latency(dpari_closed *closed)
{
    const int64_t p = closed->p, m = closed->m, f = closed->f, b = closed->b, c = closed->c;
    switch (closed->rule) {
    case DPAR_SCHEDULE_GPIPE:
    case DPAR_SCHEDULE_EAGER_1F1B:
        (void)dpari_closed_need(closed, closed->rule == DPAR_SCHEDULE_GPIPE || c <= f + b - c,
                                "2 c <= F + B");
        dpari_closed_term(closed, "2 (p - 1) c", 2 * (p - 1), c);
        break;
    case DPAR_SCHEDULE_1F1B:
        (void)dpari_closed_need(closed, m % p == 0, "p divides m");
        dpari_closed_term(closed, "(2 (p - 2) + 2 m (p - 1) / p) c",
                          p > 1 ? 2 * (p - 2) + 2 * (m / p) * (p - 1) : 0, c);
        break;
    case DPAR_SCHEDULE_INTERLEAVED:
        (void)dpari_closed_need(closed, m % p == 0, "p divides m");
        (void)dpari_closed_need(closed, c <= f && c <= b, "c <= F and c <= B");
        dpari_closed_term(closed, "2 (p v - 1) c", p > 1 ? 2 * (p * closed->v - 1) : 0, c);
        break;
    case DPAR_SCHEDULE_ZB_H1:
        (void)dpari_closed_need(closed, f == closed->i && closed->i == closed->w, "F = I = W");
        (void)dpari_closed_need(closed, c <= f / 4, "4 c <= F");
        (void)dpari_closed_need(closed, m >= 2 * p, "m >= 2 p");
        dpari_closed_term(closed, "4 (p - 1) c", 4 * (p - 1), c);
        break;
    case DPAR_SCHEDULE_FORWARD_ONLY:
        (void)dpari_closed_need(closed, closed->v == 1, "v = 1");
        dpari_closed_term(closed, "(p - 1) c", p - 1, c);
        break;
    default: (void)dpari_closed_need(closed, 0, ""); break;
    }
}

static void dpari_closed_span(dpari_closed *closed)
{
    if (closed->rule == DPAR_SCHEDULE_ZB_2P || closed->rule == DPAR_SCHEDULE_ZBV) {
        dpari_closed_no_bubble(closed, 1);
    } else if (closed->rule == DPAR_SCHEDULE_FORWARD_ONLY) {
        (void)dpari_closed_need(closed, closed->v == 1, "v = 1");
        dpari_closed_term(closed, "m F", closed->m, closed->f);
    } else { /* rank 0 starts first and ends last, so that its span is the makespan */
        dpari_closed_makespan(closed);
        if (closed->c > 0) {
            dpari_closed_latency(closed);
        }
    }
}

DPARI_STATIC_NOINLINE void dpari_closed_idle(dpari_closed *closed)
{
    int64_t work;
    (void)dpari_closed_need(closed, closed->c == 0, "no latency");
    if (closed->rule == DPAR_SCHEDULE_DUALPIPE || closed->rule == DPAR_SCHEDULE_DUALPIPEV) {
        dpari_closed_dual_idle(closed);
        return;
    }
    (void)dpari_closed_need(
        closed, closed->rule != DPAR_SCHEDULE_MOE_OVERLAP || closed->fb - closed->f == closed->b,
        "FB = F + B");
    dpari_closed_makespan(closed);
    if (closed->rule == DPAR_SCHEDULE_FORWARD_ONLY) {
        closed->b = 0;
    }
    dpari_closed_work(closed, &work);
    closed->sum -= closed->unmet == NULL && !closed->over ? work : 0;
}

/* ---- activations ----------------------------------------------------------------------------- */

/* Adds the peak of a rule on a V or in two directions. */
static void dpari_closed_peak_folded(dpari_closed *closed, int64_t r)
{
    const int64_t p = closed->p;
    switch (closed->rule) {
    case DPAR_SCHEDULE_ZBV:
        (void)dpari_closed_need(closed, closed->m >= 2 * p - 1, "m >= 2 p - 1");
        dpari_closed_term(closed, "2 p", 2 * p, 1);
        break;
    case DPAR_SCHEDULE_V_HALF:
        dpari_closed_term(closed, "2 floor((p + 2) / 2)", 2 * ((p + 2) / 2), 1);
        break;
    case DPAR_SCHEDULE_V_MIN:
        dpari_closed_term(
            closed, r == 0 && p % 3 == 2 ? "2 floor((p + 4) / 3) - 1" : "2 floor((p + 4) / 3)",
            2 * ((p + 4) / 3) - (r == 0 && p % 3 == 2), 1);
        break;
    case DPAR_SCHEDULE_DUALPIPE: dpari_closed_term(closed, "p + 1", p + 1, 1); break;
    case DPAR_SCHEDULE_DUALPIPEV: dpari_closed_term(closed, "2 p + 1", 2 * p + 1, 1); break;
    case DPAR_SCHEDULE_CHIMERA:
        (void)dpari_closed_need(closed, closed->m % p == 0, "p divides m");
        dpari_closed_term(closed, "p / 2 + 1 + min(r, p - 1 - r)",
                          p / 2 + 1 + dpari_least(r, p - 1 - r), 1);
        break;
    default: (void)dpari_closed_need(closed, 0, ""); break;
    }
    if (closed->rule == DPAR_SCHEDULE_V_HALF || closed->rule == DPAR_SCHEDULE_V_MIN) {
        (void)dpari_closed_need(closed, p >= 2 && p <= 12 && closed->m >= 2 * p,
                                "2 <= p <= 12, m >= 2 p");
    }
}

DPARI_STATIC_NOINLINE void dpari_closed_peak(dpari_closed *closed, int64_t r)
{
    const int64_t p = closed->p, m = closed->m, v = closed->v;
    switch (closed->rule) {
    case DPAR_SCHEDULE_GPIPE:
    case DPAR_SCHEDULE_BREADTH_FIRST:
    case DPAR_SCHEDULE_FORWARD_ONLY: dpari_closed_term(closed, "m v", m * v, 1); break;
    case DPAR_SCHEDULE_1F1B:
        dpari_closed_term(closed, "min(p - r, m)", dpari_least(p - r, m), 1);
        break;
    case DPAR_SCHEDULE_EAGER_1F1B:
        dpari_closed_term(closed, "min(2 (p - r) - 1, m)", dpari_least(2 * (p - r) - 1, m), 1);
        break;
    case DPAR_SCHEDULE_INTERLEAVED:
        (void)dpari_closed_need(closed, m % p == 0, "p divides m");
        dpari_closed_term(closed, "min((v - 1) p + 2 (p - 1 - r) + 1, m v)",
                          dpari_least((v - 1) * p + 2 * (p - 1 - r) + 1, m * v), 1);
        break;
    case DPAR_SCHEDULE_ZB_H1: dpari_closed_term(closed, "min(p, m)", dpari_least(p, m), 1); break;
    case DPAR_SCHEDULE_ZB_2P:
        dpari_closed_term(closed, "min(2 p - 1, m)", dpari_least(2 * p - 1, m), 1);
        break;
    case DPAR_SCHEDULE_INTERLEAVED_ZB:
        (void)dpari_closed_need(closed, m % p == 0, "p divides m");
        dpari_closed_term(closed, "p v", p * v, 1);
        break;
    case DPAR_SCHEDULE_SEQ1F1B:
        dpari_closed_term(closed, "min(p - 1 - r + s, m s)", dpari_least(p - 1 - r + closed->s, m),
                          1);
        break;
    case DPAR_SCHEDULE_MOE_OVERLAP:
        (void)dpari_closed_need(closed, v == 1, "v = 1");
        dpari_closed_term(closed, "min(2 (p - r), m)", dpari_least(2 * (p - r), m), 1);
        break;
    default: dpari_closed_peak_folded(closed, r); return;
    }
}

/* ---- the call -------------------------------------------------------------------------------- */

/* Checks the order and the times, and sets the numbers of the formulas. */
static dpar_status dpari_closed_read(dpari_closed *closed, const dpar_schedule_desc *order,
                                     const dpar_schedule_times *times, dpar_why *why)
{
    dpar_status status = dpari_order_check(order, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(closed, sizeof(*closed));
    closed->rule = order->rule;
    closed->p = order->ranks;
    closed->v = dpari_order_chunks(order);
    closed->s = dpari_order_slices(order);
    closed->m = (int64_t)order->micro_batches * closed->s;
    closed->f = times->forward.all;
    closed->i = times->input.all;
    closed->w = times->weight.all;
    closed->b = times->backward.all;
    closed->c = times->latency.all;
    closed->fb = times->overlap.all;
    if (closed->f < 0 || closed->i < 0 || closed->w < 0 || closed->b < 0 || closed->c < 0 ||
        closed->fb < 0) {
        return dpari_wrong(
            why, "forward=%ld, input=%ld, weight=%ld, latency=%ld; all times must be 0 or more",
            closed->f, closed->i, closed->w, closed->c);
    }
    if (closed->i > INT64_MAX / 4 || closed->w > INT64_MAX / 4 || closed->f > INT64_MAX / 4 ||
        closed->b > INT64_MAX / 4 || closed->fb > INT64_MAX / 4) {
        return dpari_say(DPAR_E_RANGE, why,
                         "forward=%ld, input=%ld, weight=%ld; times must be at most INT64_MAX / 4",
                         closed->f, closed->i, closed->w);
    }
    closed->b = closed->b == 0 ? closed->i + closed->w : closed->b;
    closed->fb = closed->fb == 0 ? closed->f + closed->b : closed->fb;
    (void)dpari_closed_need(closed, order->rank_of == NULL, "rank_of is NULL");
    (void)dpari_closed_need(closed, order->group == 0 || order->group == order->ranks,
                            "groups have p micro-batches");
    return DPAR_OK;
}

/* True if all stages take the same times, and messages are buffered and have only a latency. */
static int dpari_closed_plain(const dpar_schedule_times *times)
{
    return times->forward.each == NULL && times->input.each == NULL && times->weight.each == NULL &&
           times->backward.each == NULL && times->overlap.each == NULL &&
           times->latency.each == NULL && times->bandwidth.each == NULL &&
           times->bandwidth.all == 0 && times->sends == DPAR_SEND_MODE_BUFFERED;
}

/* Evaluates the formula `what`. */
DPARI_STATIC_NOINLINE void dpari_closed_value(dpari_closed *closed,
                                              const dpar_schedule_times *times, int32_t what,
                                              int32_t rank)
{
    const int split = closed->rule == DPAR_SCHEDULE_ZB_H1 || closed->rule == DPAR_SCHEDULE_ZB_2P ||
                      closed->rule == DPAR_SCHEDULE_INTERLEAVED_ZB ||
                      closed->rule == DPAR_SCHEDULE_ZBV || closed->rule == DPAR_SCHEDULE_DUALPIPE ||
                      closed->rule == DPAR_SCHEDULE_DUALPIPEV;
    if (what == DPAR_FORMULA_PEAK) {
        dpari_closed_peak(closed, rank);
        return;
    }
    (void)dpari_closed_need(closed, dpari_closed_plain(times),
                            "all stages alike, and messages buffered with a latency only");
    (void)dpari_closed_need(closed, !split || closed->b == closed->i + closed->w, "B = I + W");
    if (what == DPAR_FORMULA_LATENCY) {
        dpari_closed_latency(closed);
    } else if (what == DPAR_FORMULA_SPAN) {
        dpari_closed_span(closed);
    } else if (what == DPAR_FORMULA_IDLE) {
        dpari_closed_idle(closed);
    } else {
        if (closed->c > 0) {
            dpari_closed_latency(closed);
        }
        dpari_closed_makespan(closed);
    }
}

/* Writes a message like "zbv: no formula gives the makespan, unless m >= 2 p - 1". */
static dpar_status dpari_closed_say(const dpari_closed *closed, const char *what, dpar_why *why)
{
    dpar_text t;
    if (why != NULL) {
        dpari_text_why(&t, why);
        dpari_text_say(&t, "%s: no formula gives the %s%s%s", dpar_schedule_name(closed->rule),
                       what, closed->unmet[0] != 0 ? ", unless " : "", closed->unmet);
    }
    return DPAR_E_NONE;
}

/* Returns the text of the makespan's formula with its latency term. */
static const char *dpari_closed_late(int32_t rule)
{
    switch (rule) {
    case DPAR_SCHEDULE_1F1B: return "(m + p - 1) (F + B) + (2 (p - 2) + 2 m (p - 1) / p) c";
    case DPAR_SCHEDULE_INTERLEAVED: return "(m v + p - 1) (F + B) + 2 (p v - 1) c";
    case DPAR_SCHEDULE_ZB_H1: return "m (F + I + W) + (p - 1) (F + I - W) + 4 (p - 1) c";
    case DPAR_SCHEDULE_FORWARD_ONLY: return "(m v + p - 1) F + (p - 1) c";
    default: return "(m + p - 1) (F + B) + 2 (p - 1) c"; /* gpipe, eager-1f1b */
    }
}

static const char *dpari_closed_name(int32_t what)
{
    switch (what) {
    case DPAR_FORMULA_MAKESPAN: return "makespan";
    case DPAR_FORMULA_SPAN: return "span";
    case DPAR_FORMULA_LATENCY: return "latency term";
    case DPAR_FORMULA_IDLE: return "idle time";
    default: return "peak";
    }
}

DPAR_API DPARI_COLD dpar_status dpar_schedule_closed_form(const dpar_schedule_desc *desc,
                                                          const dpar_schedule_times *times,
                                                          int32_t what, int32_t rank,
                                                          dpar_formula *formula, dpar_why *why)
{
    dpari_closed q;
    int late;
    dpar_status status = dpari_closed_read(&q, desc, times, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (what < 0 || what >= DPAR_FORMULA_COUNT || rank < 0 || rank >= desc->ranks) {
        return dpari_wrong(why, "formula %d of rank %d; formulas are 0 to %d and ranks 0 to %d",
                           what, rank, (int32_t)DPAR_FORMULA_COUNT - 1, desc->ranks - 1);
    }
    dpari_closed_value(&q, times, what, rank);
    if (q.unmet != NULL) {
        return dpari_closed_say(&q, dpari_closed_name(what), why);
    }
    if (q.over) {
        return dpari_say(DPAR_E_RANGE, why,
                         "%d micro-batches on %d ranks: the value exceeds INT64_MAX",
                         desc->micro_batches, desc->ranks);
    }
    late = what == DPAR_FORMULA_MAKESPAN ||
           (what == DPAR_FORMULA_SPAN && q.rule != DPAR_SCHEDULE_FORWARD_ONLY);
    formula->value = q.sum;
    formula->text = late && q.c > 0 ? dpari_closed_late(q.rule) : q.formula;
    return DPAR_OK;
}
