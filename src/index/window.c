/* SPDX-License-Identifier: MIT-0 */
/* Operators that read windows. For each kind it computes the inputs that a range of outputs reads,
 * and the outputs that read only a given range of inputs. halo.c uses both to size the local arrays
 * and to find what can be computed before an exchange. */
#include "window.h"

#include "index_private.h"

static const int64_t dpari_window_limit = INT64_C(1) << 60;

static int64_t dpari_window_stride(const dpar_window *window)
{
    return window->stride > 0 ? window->stride : 1;
}

static int64_t dpari_window_dilation(const dpar_window *window)
{
    return window->dilation > 0 ? window->dilation : 1;
}

/* Returns the distance from the first element of the kernel to the last one. */
static int64_t dpari_window_reach(const dpar_window *window)
{
    return dpari_window_dilation(window) * (window->kernel - 1);
}

/* Checks what holds for every kind of window. */
static dpar_status dpari_window_check_fields(const dpar_window *window, int64_t inputs,
                                             dpar_why *why)
{
    const int64_t limit = INT64_C(1) << 30;
    if (window->kernel < 1 || window->stride < 0 || window->dilation < 0 || window->pad_low < 0 ||
        window->pad_high < 0) {
        return dpari_wrong(
            why,
            "kernel=%ld must be at least 1, stride=%ld, dilation=%ld, pad_low=%ld and "
            "pad_high=%ld at least 0",
            window->kernel, window->stride, window->dilation, window->pad_low, window->pad_high);
    }
    if (window->kernel > limit || window->stride > limit || window->dilation > limit ||
        window->pad_low > limit || window->pad_high > limit || inputs < 0 ||
        inputs > dpari_window_limit) {
        return dpari_say(DPAR_E_RANGE, why,
                         "%ld inputs must be 0 to 2^60, kernel=%ld, stride=%ld, dilation=%ld, "
                         "pad_low=%ld and pad_high=%ld at most 2^30",
                         inputs, window->kernel, window->stride, window->dilation, window->pad_low,
                         window->pad_high);
    }
    if (window->kind < DPAR_WINDOW_CONVOLUTION || window->kind > DPAR_WINDOW_NEIGHBOURHOOD) {
        return dpari_wrong(why, "window kind %d does not exist", window->kind);
    }
    if (window->kind == DPAR_WINDOW_NEIGHBOURHOOD && window->dilation > 4096) {
        return dpari_say(DPAR_E_RANGE, why,
                         "a neighbourhood's dilation is %ld: must be at most 4096",
                         window->dilation);
    }
    return DPAR_OK;
}

static dpar_status dpari_window_transposed_outputs(const dpar_window *window, int64_t inputs,
                                                   int64_t *outputs, dpar_why *why)
{
    int64_t s = dpari_window_stride(window), cut = window->pad_low + window->pad_high, m;
    if (inputs > dpari_window_limit / s) {
        return dpari_say(DPAR_E_RANGE, why, "%ld inputs times stride %ld exceeds 2^60", inputs, s);
    }
    m = s * (inputs - 1) + dpari_window_reach(window) + 1 - cut;
    if (inputs == 0 || m < 1) {
        return dpari_wrong(why, "no outputs are left: %ld inputs, stride %ld, %ld of padding",
                           inputs, s, cut);
    }
    *outputs = m;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_window_outputs(const dpar_window *window, int64_t inputs,
                                                    int64_t *outputs, dpar_why *why)
{
    int64_t room, s = dpari_window_stride(window), m;
    dpar_status st = dpari_window_check_fields(window, inputs, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (window->kind == DPAR_WINDOW_INTERPOLATION) {
        return dpari_wrong(why, "outputs must be set for an interpolation");
    }
    if (window->kind == DPAR_WINDOW_TRANSPOSED) {
        return dpari_window_transposed_outputs(window, inputs, outputs, why);
    }
    if (window->kind == DPAR_WINDOW_NEIGHBOURHOOD) {
        if (inputs / dpari_window_dilation(window) < window->kernel) {
            return dpari_wrong(why, "%ld inputs with dilation %ld have fewer than %ld keys", inputs,
                               dpari_window_dilation(window), window->kernel);
        }
        *outputs = inputs;
        return DPAR_OK;
    }
    room = inputs + window->pad_low + window->pad_high - dpari_window_reach(window) - 1;
    if (room < 0) {
        return dpari_wrong(
            why, "the kernel spans %ld elements, more than %ld inputs and %ld of padding",
            dpari_window_reach(window) + 1, inputs, window->pad_low + window->pad_high);
    }
    m = room / s + 1;
    if (window->ceil_mode && room % s != 0 && m * s < inputs + window->pad_low) {
        m++; /* as in torch, which leaves out a window that would begin in the right padding */
    }
    *outputs = m;
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_window_check(const dpar_window *window, int64_t inputs,
                                                         int64_t outputs, dpar_why *why)
{
    int64_t least = 0, more = 0;
    dpar_status st = dpari_window_check_fields(window, inputs, why);
    if (st == DPAR_OK && window->kind == DPAR_WINDOW_INTERPOLATION) {
        const int64_t limit = INT64_C(1) << 30;
        if (window->kernel > 1 && window->kernel % 2 != 0) {
            return dpari_wrong(why, "an interpolation's kernel is %ld: must be 1 or even",
                               window->kernel);
        }
        if (inputs >= 1 && inputs <= limit && outputs >= 1 && outputs <= limit) {
            return DPAR_OK;
        }
        return dpari_say(DPAR_E_RANGE, why,
                         "%ld inputs, %ld outputs: an interpolation has 1 to 2^30 of each", inputs,
                         outputs);
    }
    if (st == DPAR_OK) {
        st = dpar_window_outputs(window, inputs, &least, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    if (window->kind == DPAR_WINDOW_TRANSPOSED) {
        more = dpari_most(dpari_window_stride(window), window->dilation) - 1;
    }
    if (outputs < least || outputs > least + more) {
        return dpari_wrong(why, "%ld outputs of %ld inputs: must be %ld to %ld", outputs, inputs,
                           least, least + more);
    }
    return DPAR_OK;
}

/* Returns the first output that belongs to the inputs from i on. */
static int64_t dpari_window_first(const dpar_window *window, int64_t inputs, int64_t outputs,
                                  int64_t i)
{
    int64_t s = dpari_window_stride(window), y = i;
    if (window->kind == DPAR_WINDOW_TRANSPOSED) {
        y = i > outputs / s ? outputs : i * s;
    } else if (window->kind == DPAR_WINDOW_INTERPOLATION) {
        y = dpari_ceil_div(i * outputs, inputs);
    } else if (window->kind == DPAR_WINDOW_CONVOLUTION) {
        y = dpari_ceil_div(i, s);
    }
    return dpari_least(outputs, y);
}

DPARI_API DPARI_COLD void dpari_window_owned(const dpar_window *window, int64_t inputs,
                                             int64_t outputs, int64_t lo, int64_t hi, int64_t *y0,
                                             int64_t *y1)
{
    int64_t first, last;
    lo = dpari_most(0, dpari_least(lo, inputs));
    first = dpari_window_first(window, inputs, outputs, lo);
    last = hi >= inputs ? outputs : dpari_window_first(window, inputs, outputs, dpari_most(0, hi));
    *y0 = first;
    *y1 = hi > lo ? dpari_most(first, last) : first;
}

/* Computes the first key that queries [y0, y1) read, and one past the last. */
static DPARI_COLD void dpari_window_keys(const dpar_window *window, int64_t inputs, int64_t y0,
                                         int64_t y1, int64_t *lo, int64_t *hi)
{
    int64_t d = dpari_window_dilation(window), y;
    *lo = dpari_window_start(window, inputs, y0);
    *hi = dpari_window_start(window, inputs, y1 - 1);
    for (y = y0 + 1; y < y1 && y < y0 + d;
         y++) { /* first over the first query of each dilation group, then over the last */
        *lo = dpari_least(*lo, dpari_window_start(window, inputs, y));
    }
    for (y = y1 - 2; y >= y0 && y >= y1 - d; y--) {
        *hi = dpari_most(*hi, dpari_window_start(window, inputs, y));
    }
    *hi += dpari_window_reach(window) + 1;
}

/* Computes the inputs that output y reads. For bisection, neither end may decrease as y grows.
 * Therefore the keys of a query are joined with the keys of the other dilation groups before and
 * after it. */
static DPARI_COLD void dpari_window_span(const dpar_window *window, int64_t inputs, int64_t outputs,
                                         int64_t y, int64_t *lo, int64_t *hi)
{
    int64_t s = dpari_window_stride(window), reach = dpari_window_reach(window), at, other;
    if (window->kind == DPAR_WINDOW_NEIGHBOURHOOD) {
        int64_t d = dpari_window_dilation(window);
        dpari_window_keys(window, inputs, y, dpari_least(inputs, y + d), lo, &other);
        dpari_window_keys(window, inputs, dpari_most(0, y - d + 1), y + 1, &other, hi);
        return;
    }
    if (window->kind == DPAR_WINDOW_CONVOLUTION) {
        *lo = s * y - window->pad_low;
        *hi = *lo + reach + 1;
        return;
    }
    if (window->kind == DPAR_WINDOW_TRANSPOSED) {
        at = y + window->pad_low;
        *lo = dpari_most(0, dpari_least(inputs, -dpari_floor_div(reach - at, s)));
        *hi = dpari_least(inputs, dpari_floor_div(at, s) + 1);
        return;
    }
    if (window->kernel == 1) {
        at = y * inputs / outputs;
    } else if (window->align_corners) {
        at = outputs > 1 ? y * (inputs - 1) / (outputs - 1) : 0;
    } else {
        at = dpari_floor_div((2 * y + 1) * inputs - outputs, 2 * outputs);
    }
    at -= dpari_most(0, window->kernel / 2 - 1);
    *lo = dpari_most(0, dpari_least(at, inputs - 1));
    *hi = dpari_most(1, dpari_least(at + window->kernel, inputs));
}

DPARI_API int dpari_window_reads(const dpar_window *window, int64_t inputs, int64_t outputs,
                                 int64_t y0, int64_t y1, int64_t *lo, int64_t *hi)
{
    int64_t first, last, other;
    if (y0 < 0 || y1 <= y0 || y1 > outputs) {
        return 0;
    }
    if (window->kind == DPAR_WINDOW_NEIGHBOURHOOD) {
        dpari_window_keys(window, inputs, y0, y1, &first, &last);
    } else {
        dpari_window_span(window, inputs, outputs, y0, &first, &other);
        dpari_window_span(window, inputs, outputs, y1 - 1, &other, &last);
    }
    if (last <= first) {
        return 0;
    }
    *lo = first;
    *hi = last;
    return 1;
}

DPARI_INTERNAL void dpari_window_whole(const dpar_window *window, int64_t inputs, int64_t outputs,
                                       int64_t lo, int64_t hi, int64_t *y0, int64_t *y1)
{
    int64_t first = *y0, last = *y1, end, a, b;
    for (end = last; first < end;) { /* bisection for the first output that reads nothing below
                                        lo */
        int64_t y = first + (end - first) / 2;
        dpari_window_span(window, inputs, outputs, y, &a, &b);
        if (a >= lo) {
            end = y;
        } else {
            first = y + 1;
        }
    }
    for (end = first; end < last;) { /* from there on, for the first output that reads something
                                        above hi */
        int64_t y = end + (last - end) / 2;
        dpari_window_span(window, inputs, outputs, y, &a, &b);
        if (b > hi) {
            last = y;
        } else {
            end = y + 1;
        }
    }
    *y0 = first;
    *y1 = end;
}

DPARI_INTERNAL int64_t dpari_window_start(const dpar_window *window, int64_t inputs, int64_t i)
{
    int64_t d = dpari_window_dilation(window), group, members, first;
    if (i < 0 || i >= inputs || window->kernel < 1) {
        return -1;
    }
    group = i % d;
    members = (inputs - group - 1) / d + 1;
    if (members < window->kernel) {
        return -1;
    }
    first = dpari_most(0, dpari_least(i / d - window->kernel / 2, members - window->kernel));
    return first * d + group;
}
