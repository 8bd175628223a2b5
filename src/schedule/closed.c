/* SPDX-License-Identifier: MIT-0 */
/* Evaluates published formulas under the conditions for which simulation agrees with them. The
 * function of a formula sets its text, adds up its value and notes the first condition that is not
 * met. */
#include "closed.h"

#include "../base/arith.h"
#include "../base/inner.h"
#include "order.h"

/* The numbers in the formulas, named as in closed.h, and the value so far. */
typedef struct dpari_closed {
    int64_t p, v, m, s; /* m counts slices, m s in the formulas */
    int64_t f, b, i, w, fb, c;
    int64_t sum;         /* the value of the formula */
    const char *formula; /* its text */
    const char *unmet;   /* the first condition that is not met, or NULL */
    int32_t rule;
    int32_t over; /* 1 if the sum exceeds INT64_MAX */
} dpari_closed;

/* Adds count x time, which are both 0 or more. */
static void dpari_closed_add(dpari_closed *q, int64_t count, int64_t time)
{
    int64_t product;
    if (!dpari_mul(count, time, &product) || product > INT64_MAX - q->sum) {
        q->over = 1;
        return;
    }
    q->sum += product;
}

/* Notes a condition if it does not hold and no other one was noted. An empty condition means that
 * there is no formula. Returns `holds`. */
DPARI_STATIC_NOINLINE int dpari_closed_need(dpari_closed *q, int holds, const char *condition)
{
    if (!holds && q->unmet == NULL) {
        q->unmet = condition;
    }
    return holds;
}

/* Adds count x (F + B). */
static void dpari_closed_pair(dpari_closed *q, int64_t count)
{
    dpari_closed_add(q, count, q->f);
    dpari_closed_add(q, count, q->b);
}

/* Computes the work of a rank, which is the same in every order. */
static void dpari_closed_work(dpari_closed *q, int64_t *work)
{
    dpari_closed only = *q;
    int64_t count = q->m * q->v;
    only.sum = 0;
    if (q->rule == DPAR_SCHEDULE_DUALPIPE || q->rule == DPAR_SCHEDULE_CHIMERA) {
        count /= 2; /* each stage has half of the micro-batches */
    }
    dpari_closed_pair(&only, count);
    q->over |= only.over;
    *work = only.sum;
}

/* ---- the formulas ---------------------------------------------------------------------------- */

static void dpari_closed_zero_bubble(dpari_closed *q)
{
    q->formula = "m v (F + I + W) + (p - 1) (F + I - W)";
    if (!dpari_closed_need(q, q->w <= q->i && q->w <= q->f, "W <= I and W <= F") ||
        !dpari_closed_need(q, q->m >= q->p, "m >= p")) {
        return;
    }
    dpari_closed_pair(q, q->m * q->v);
    dpari_closed_add(q, q->p - 1, q->f);
    dpari_closed_add(q, q->p - 1, q->i - q->w);
}

/* ZB-2P and ZBV: 3 v m F, and for the makespan (p - 1) F more. */
static void dpari_closed_no_bubble(dpari_closed *q, int span)
{
    if (q->rule == DPAR_SCHEDULE_ZBV) {
        q->formula = span ? "6 m F" : "6 m F + (p - 1) F";
    } else {
        q->formula = span ? "3 m F" : "3 m F + (p - 1) F";
    }
    (void)dpari_closed_need(q, q->f == q->i && q->i == q->w && q->c == 0, "F = I = W, no latency");
    (void)dpari_closed_need(q, q->m >= 2 * q->p - 1, "m >= 2 p - 1");
    dpari_closed_add(q, 3 * q->v * q->m + (span ? 0 : q->p - 1), q->f);
}

static void dpari_closed_dual_idle(dpari_closed *q)
{
    int64_t h = q->rule == DPAR_SCHEDULE_DUALPIPE ? q->p / 2 : q->p;
    dpari_closed with = *q;
    q->formula =
        q->rule == DPAR_SCHEDULE_DUALPIPE ? "(p / 2 - 1) (FB + B - 3 W)" : "(p - 1) (FB + B - 3 W)";
    with.sum = 0;
    dpari_closed_add(&with, 1, q->fb);
    dpari_closed_add(&with, 1, q->b);
    if (with.over || !dpari_closed_need(q, q->f == q->i, "F = I") ||
        !dpari_closed_need(q, q->fb >= q->f && q->fb >= q->b, "FB >= F and FB >= B") ||
        !dpari_closed_need(q, q->fb - q->f <= q->b, "FB <= F + B") ||
        !dpari_closed_need(q, q->w <= q->i, "W <= I")) {
        q->over |= with.over;
        return;
    }
    dpari_closed_add(q, h - 1, with.sum - 3 * q->w);
}

static void dpari_closed_dual(dpari_closed *q)
{
    int64_t work;
    dpari_closed_dual_idle(q);
    dpari_closed_work(q, &work);
    q->formula = q->rule == DPAR_SCHEDULE_DUALPIPE ? "m (F + B) + (p / 2 - 1) (FB + B - 3 W)"
                                                   : "2 m (F + B) + (p - 1) (FB + B - 3 W)";
    (void)dpari_closed_need(q, q->fb - q->f == q->b, "FB = F + B");
    dpari_closed_add(q, 1, work);
}

static void dpari_closed_chimera(dpari_closed *q)
{
    int twice = q->b / 2 == q->f && q->b % 2 == 0 && q->b > 0;
    q->formula = twice ? "m (F + B) + 2 (p - 2) F" : "m (F + B) + (p - 2) F";
    (void)dpari_closed_need(q, q->b == q->f || twice, "B = F or B = 2 F");
    (void)dpari_closed_need(q, !twice || q->m == q->p, "m = p, if B = 2 F");
    (void)dpari_closed_need(q, q->m % q->p == 0, "p divides m");
    dpari_closed_pair(q, q->m);
    dpari_closed_add(q, (twice ? 2 : 1) * (q->p - 2), q->f);
}

static void dpari_closed_overlapped(dpari_closed *q)
{
    q->formula = "p (F + B) + (m - 1) FB";
    (void)dpari_closed_need(q, q->v == 1, "v = 1");
    (void)dpari_closed_need(q, q->fb >= q->b && q->fb >= q->f, "FB >= F and FB >= B");
    dpari_closed_pair(q, q->p);
    dpari_closed_add(q, q->m - 1, q->fb);
}

static void dpari_closed_makespan(dpari_closed *q)
{
    switch (q->rule) {
    case DPAR_SCHEDULE_INTERLEAVED:
    case DPAR_SCHEDULE_BREADTH_FIRST:
        q->formula = "(m v + p - 1) (F + B)";
        (void)dpari_closed_need(q, q->v == 1 || q->m >= q->p, "m >= p, or v = 1");
        dpari_closed_pair(q, q->m * q->v + q->p - 1);
        break;
    case DPAR_SCHEDULE_GPIPE:
    case DPAR_SCHEDULE_1F1B:
    case DPAR_SCHEDULE_EAGER_1F1B:
        q->formula = "(m + p - 1) (F + B)";
        dpari_closed_pair(q, q->m + q->p - 1);
        break;
    case DPAR_SCHEDULE_SEQ1F1B:
        q->formula = "(m s + p - 1) (F + B)";
        dpari_closed_pair(q, q->m + q->p - 1);
        break;
    case DPAR_SCHEDULE_FORWARD_ONLY:
        q->formula = "(m v + p - 1) F";
        (void)dpari_closed_need(q, q->v == 1 || q->m >= q->p, "m >= p, or v = 1");
        dpari_closed_add(q, q->m * q->v + q->p - 1, q->f);
        break;
    case DPAR_SCHEDULE_ZB_H1:
    case DPAR_SCHEDULE_INTERLEAVED_ZB: dpari_closed_zero_bubble(q); break;
    case DPAR_SCHEDULE_ZB_2P:
    case DPAR_SCHEDULE_ZBV: dpari_closed_no_bubble(q, 0); break;
    case DPAR_SCHEDULE_DUALPIPE:
    case DPAR_SCHEDULE_DUALPIPEV: dpari_closed_dual(q); break;
    case DPAR_SCHEDULE_CHIMERA: dpari_closed_chimera(q); break;
    case DPAR_SCHEDULE_MOE_OVERLAP: dpari_closed_overlapped(q); break;
    default: (void)dpari_closed_need(q, 0, ""); break;
    }
}

static void dpari_closed_latency(dpari_closed *q)
{
    switch (q->rule) {
    case DPAR_SCHEDULE_GPIPE:
    case DPAR_SCHEDULE_EAGER_1F1B:
        q->formula = "2 (p - 1) c";
        (void)dpari_closed_need(q, q->rule == DPAR_SCHEDULE_GPIPE || q->c <= q->f + q->b - q->c,
                                "2 c <= F + B");
        dpari_closed_add(q, 2 * (q->p - 1), q->c);
        break;
    case DPAR_SCHEDULE_1F1B:
        q->formula = "(2 (p - 2) + 2 m (p - 1) / p) c";
        (void)dpari_closed_need(q, q->m % q->p == 0, "p divides m");
        if (q->p > 1) {
            dpari_closed_add(q, 2 * (q->p - 2) + 2 * (q->m / q->p) * (q->p - 1), q->c);
        }
        break;
    case DPAR_SCHEDULE_INTERLEAVED:
        q->formula = "2 (p v - 1) c";
        (void)dpari_closed_need(q, q->m % q->p == 0, "p divides m");
        (void)dpari_closed_need(q, q->c <= q->f && q->c <= q->b, "c <= F and c <= B");
        dpari_closed_add(q, q->p > 1 ? 2 * (q->p * q->v - 1) : 0, q->c);
        break;
    case DPAR_SCHEDULE_ZB_H1:
        q->formula = "4 (p - 1) c";
        (void)dpari_closed_need(q, q->f == q->i && q->i == q->w, "F = I = W");
        (void)dpari_closed_need(q, q->c <= q->f / 4, "4 c <= F");
        (void)dpari_closed_need(q, q->m >= 2 * q->p, "m >= 2 p");
        dpari_closed_add(q, 4 * (q->p - 1), q->c);
        break;
    case DPAR_SCHEDULE_FORWARD_ONLY:
        q->formula = "(p - 1) c";
        (void)dpari_closed_need(q, q->v == 1, "v = 1");
        dpari_closed_add(q, q->p - 1, q->c);
        break;
    default: (void)dpari_closed_need(q, 0, ""); break;
    }
}

static void dpari_closed_span(dpari_closed *q)
{
    if (q->rule == DPAR_SCHEDULE_ZB_2P || q->rule == DPAR_SCHEDULE_ZBV) {
        dpari_closed_no_bubble(q, 1);
    } else if (q->rule == DPAR_SCHEDULE_FORWARD_ONLY) {
        q->formula = "m F";
        (void)dpari_closed_need(q, q->v == 1, "v = 1");
        dpari_closed_add(q, q->m, q->f);
    } else { /* rank 0 starts first and ends last, so that its span is the makespan */
        dpari_closed_makespan(q);
        if (q->c > 0) {
            dpari_closed_latency(q);
        }
    }
}

DPARI_STATIC_NOINLINE void dpari_closed_idle(dpari_closed *q)
{
    int64_t work;
    (void)dpari_closed_need(q, q->c == 0, "no latency");
    if (q->rule == DPAR_SCHEDULE_DUALPIPE || q->rule == DPAR_SCHEDULE_DUALPIPEV) {
        dpari_closed_dual_idle(q);
        return;
    }
    (void)dpari_closed_need(q, q->rule != DPAR_SCHEDULE_MOE_OVERLAP || q->fb - q->f == q->b,
                            "FB = F + B");
    dpari_closed_makespan(q);
    if (q->rule == DPAR_SCHEDULE_FORWARD_ONLY) {
        q->b = 0;
    }
    dpari_closed_work(q, &work);
    q->sum -= q->unmet == NULL && !q->over ? work : 0;
}

/* ---- activations ----------------------------------------------------------------------------- */

/* Rules on a V or in two directions. */
static void dpari_closed_peak_folded(dpari_closed *q, int64_t r)
{
    const int64_t p = q->p;
    int64_t peak = 0;
    switch (q->rule) {
    case DPAR_SCHEDULE_ZBV:
        (void)dpari_closed_need(q, q->m >= 2 * p - 1, "m >= 2 p - 1");
        q->formula = "2 p";
        peak = 2 * p;
        break;
    case DPAR_SCHEDULE_V_HALF:
        q->formula = "2 floor((p + 2) / 2)";
        peak = 2 * ((p + 2) / 2);
        break;
    case DPAR_SCHEDULE_V_MIN:
        q->formula = r == 0 && p % 3 == 2 ? "2 floor((p + 4) / 3) - 1" : "2 floor((p + 4) / 3)";
        peak = 2 * ((p + 4) / 3) - (r == 0 && p % 3 == 2);
        break;
    case DPAR_SCHEDULE_DUALPIPE:
        q->formula = "p + 1";
        peak = p + 1;
        break;
    case DPAR_SCHEDULE_DUALPIPEV:
        q->formula = "2 p + 1";
        peak = 2 * p + 1;
        break;
    case DPAR_SCHEDULE_CHIMERA:
        (void)dpari_closed_need(q, q->m % p == 0, "p divides m");
        q->formula = "p / 2 + 1 + min(r, p - 1 - r)";
        peak = p / 2 + 1 + dpari_least(r, p - 1 - r);
        break;
    default: (void)dpari_closed_need(q, 0, ""); break;
    }
    if (q->rule == DPAR_SCHEDULE_V_HALF || q->rule == DPAR_SCHEDULE_V_MIN) {
        (void)dpari_closed_need(q, p >= 2 && p <= 12 && q->m >= 2 * p, "2 <= p <= 12, m >= 2 p");
    }
    dpari_closed_add(q, 1, peak);
}

DPARI_STATIC_NOINLINE void dpari_closed_peak(dpari_closed *q, int64_t r)
{
    const int64_t p = q->p, m = q->m, v = q->v;
    int64_t peak = 0;
    switch (q->rule) {
    case DPAR_SCHEDULE_GPIPE:
    case DPAR_SCHEDULE_BREADTH_FIRST:
    case DPAR_SCHEDULE_FORWARD_ONLY:
        q->formula = "m v";
        peak = m * v;
        break;
    case DPAR_SCHEDULE_1F1B:
        q->formula = "min(p - r, m)";
        peak = dpari_least(p - r, m);
        break;
    case DPAR_SCHEDULE_EAGER_1F1B:
        q->formula = "min(2 (p - r) - 1, m)";
        peak = dpari_least(2 * (p - r) - 1, m);
        break;
    case DPAR_SCHEDULE_INTERLEAVED:
        (void)dpari_closed_need(q, m % p == 0, "p divides m");
        q->formula = "min((v - 1) p + 2 (p - 1 - r) + 1, m v)";
        peak = dpari_least((v - 1) * p + 2 * (p - 1 - r) + 1, m * v);
        break;
    case DPAR_SCHEDULE_ZB_H1:
        q->formula = "min(p, m)";
        peak = dpari_least(p, m);
        break;
    case DPAR_SCHEDULE_ZB_2P:
        q->formula = "min(2 p - 1, m)";
        peak = dpari_least(2 * p - 1, m);
        break;
    case DPAR_SCHEDULE_INTERLEAVED_ZB:
        (void)dpari_closed_need(q, m % p == 0, "p divides m");
        q->formula = "p v";
        peak = p * v;
        break;
    case DPAR_SCHEDULE_SEQ1F1B:
        q->formula = "min(p - 1 - r + s, m s)";
        peak = dpari_least(p - 1 - r + q->s, m);
        break;
    case DPAR_SCHEDULE_MOE_OVERLAP:
        (void)dpari_closed_need(q, v == 1, "v = 1");
        q->formula = "min(2 (p - r), m)";
        peak = dpari_least(2 * (p - r), m);
        break;
    default: dpari_closed_peak_folded(q, r); return;
    }
    dpari_closed_add(q, 1, peak);
}

/* ---- the call -------------------------------------------------------------------------------- */

/* Fills the numbers of the formulas after checking the order and the times. */
static dpar_status dpari_closed_read(dpari_closed *q, const dpar_schedule_desc *order,
                                     const dpar_schedule_times *t, dpar_why *why)
{
    dpar_status status = dpari_order_check(order, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(q, sizeof(*q));
    q->rule = order->rule;
    q->p = order->ranks;
    q->v = dpari_order_chunks(order);
    q->s = dpari_order_slices(order);
    q->m = (int64_t)order->micro_batches * q->s;
    q->f = t->forward.all;
    q->i = t->input.all;
    q->w = t->weight.all;
    q->b = t->backward.all;
    q->c = t->latency.all;
    q->fb = t->overlap.all;
    if (q->f < 0 || q->i < 0 || q->w < 0 || q->b < 0 || q->c < 0 || q->fb < 0) {
        return dpari_wrong(
            why, "forward=%ld, input=%ld, weight=%ld, latency=%ld; all times must be 0 or more",
            q->f, q->i, q->w, q->c);
    }
    if (q->i > INT64_MAX / 4 || q->w > INT64_MAX / 4 || q->f > INT64_MAX / 4 ||
        q->b > INT64_MAX / 4 || q->fb > INT64_MAX / 4) {
        return dpari_say(DPAR_E_RANGE, why,
                         "forward=%ld, input=%ld, weight=%ld; times must be at most INT64_MAX / 4",
                         q->f, q->i, q->w);
    }
    q->b = q->b == 0 ? q->i + q->w : q->b;
    q->fb = q->fb == 0 ? q->f + q->b : q->fb;
    (void)dpari_closed_need(q, order->rank_of == NULL, "rank_of is NULL");
    (void)dpari_closed_need(q, order->group == 0 || order->group == order->ranks,
                            "groups have p micro-batches");
    return DPAR_OK;
}

/* True if all stages are alike and messages are buffered and have a latency only. */
static int dpari_closed_plain(const dpar_schedule_times *t)
{
    return t->forward.each == NULL && t->input.each == NULL && t->weight.each == NULL &&
           t->backward.each == NULL && t->overlap.each == NULL && t->latency.each == NULL &&
           t->bandwidth.each == NULL && t->bandwidth.all == 0 &&
           t->sends == DPAR_SEND_MODE_BUFFERED;
}

/* Evaluates the formula `what`. */
DPARI_STATIC_NOINLINE void dpari_closed_value(dpari_closed *q, const dpar_schedule_times *t,
                                              int32_t what, int32_t rank)
{
    const int split = q->rule == DPAR_SCHEDULE_ZB_H1 || q->rule == DPAR_SCHEDULE_ZB_2P ||
                      q->rule == DPAR_SCHEDULE_INTERLEAVED_ZB || q->rule == DPAR_SCHEDULE_ZBV ||
                      q->rule == DPAR_SCHEDULE_DUALPIPE || q->rule == DPAR_SCHEDULE_DUALPIPEV;
    if (what == DPAR_FORMULA_PEAK) {
        dpari_closed_peak(q, rank);
        return;
    }
    (void)dpari_closed_need(q, dpari_closed_plain(t),
                            "all stages alike, and messages buffered with a latency only");
    (void)dpari_closed_need(q, !split || q->b == q->i + q->w, "B = I + W");
    if (what == DPAR_FORMULA_LATENCY) {
        dpari_closed_latency(q);
    } else if (what == DPAR_FORMULA_SPAN) {
        dpari_closed_span(q);
    } else if (what == DPAR_FORMULA_IDLE) {
        dpari_closed_idle(q);
    } else {
        if (q->c > 0) {
            dpari_closed_latency(q);
        }
        dpari_closed_makespan(q);
    }
}

/* "zbv: no formula gives the makespan, unless m >= 2 p - 1". */
static dpar_status dpari_closed_say(const dpari_closed *q, const char *what, dpar_why *why)
{
    dpar_text t;
    if (why != NULL) {
        dpar_text_init(&t, why->text, sizeof(why->text));
        dpari_text_say(&t, "%s: no formula gives the %s%s%s", dpar_schedule_name(q->rule), what,
                       q->unmet[0] != 0 ? ", unless " : "", q->unmet);
    }
    return DPAR_E_NONE;
}

/* The text of the makespan's formula with its latency term. */
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

DPAR_API DPARI_COLD dpar_status dpar_schedule_closed_form(const dpar_schedule_desc *order,
                                                          const dpar_schedule_times *t,
                                                          int32_t what, int32_t rank,
                                                          dpar_formula *formula, dpar_why *why)
{
    dpari_closed q;
    int late;
    dpar_status status = dpari_closed_read(&q, order, t, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (what < 0 || what >= DPAR_FORMULA_COUNT || rank < 0 || rank >= order->ranks) {
        return dpari_wrong(why, "formula %d of rank %d; formulas are 0 to %d and ranks 0 to %d",
                           what, rank, (int32_t)DPAR_FORMULA_COUNT - 1, order->ranks - 1);
    }
    dpari_closed_value(&q, t, what, rank);
    if (q.unmet != NULL) {
        return dpari_closed_say(&q, dpari_closed_name(what), why);
    }
    if (q.over) {
        return dpari_say(DPAR_E_RANGE, why,
                         "%d micro-batches on %d ranks: the value exceeds INT64_MAX",
                         order->micro_batches, order->ranks);
    }
    late = what == DPAR_FORMULA_MAKESPAN ||
           (what == DPAR_FORMULA_SPAN && q.rule != DPAR_SCHEDULE_FORWARD_ONLY);
    formula->value = q.sum;
    formula->text = late && q.c > 0 ? dpari_closed_late(q.rule) : q.formula;
    return DPAR_OK;
}
