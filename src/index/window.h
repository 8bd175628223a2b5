/* SPDX-License-Identifier: MIT-0 */
/* window - counts the outputs of operators that read windows of their inputs, along one dim. With
 * the field `window`, a dpar_halo distributes these outputs over ranks and widens the local arrays
 * by the inputs that they need.
 *
 *     dpar_window v = {0};
 *     v.kernel = 3;
 *     v.stride = 2;
 *     v.pad_low = v.pad_high = 1;
 *     dpar_window_outputs(&v, 32, &outputs, &why);    16
 */
#ifndef DPARI_INDEX_WINDOW_H
#define DPARI_INDEX_WINDOW_H

#include "../base/base.h"

/* The kinds of operators. */
enum {
    /* A convolution, pooling or stencil: output y reads inputs stride y - pad + dilation k. */
    DPAR_WINDOW_CONVOLUTION,
    /* A transposed convolution: input i contributes to outputs stride i - pad + dilation k. */
    DPAR_WINDOW_TRANSPOSED,
    /* An interpolation with `kernel` taps around y's position among the inputs: 1 is nearest, 2
     * linear, 4 cubic; any even number is allowed. Beyond the ends the last input is repeated. */
    DPAR_WINDOW_INTERPOLATION,
    /* Neighbourhood attention: query y reads `kernel` keys that are `dilation` (at most 4096)
     * apart. The keys are centred on the query, and moved inward at the ends of its dilation group.
     * In a periodic dim use a convolution padded by dilation (kernel / 2) instead. */
    DPAR_WINDOW_NEIGHBOURHOOD
};

/* An operator along one dim. Zero it, then set the fields. */
typedef struct dpar_window {
    int64_t kernel;           /* number of taps, at least 1 */
    int64_t stride, dilation; /* 0 selects 1 */
    /* elements of padding below and above the inputs */
    int64_t pad_low, pad_high;
    int32_t ceil_mode; /* pooling: 1 also counts a last window that begins inside but is not
                          complete */
    int32_t kind;      /* DPAR_WINDOW_x */
    /* For interpolation, as in torch. With 1 the first and last outputs are at the first and last
     * inputs; with 0 the outer edges of the first and last cells coincide. */
    int32_t align_corners;
} dpar_window;

/* Counts the outputs of an operator on `inputs` inputs, as torch and cuDNN count them. With n
 * inputs and pads = pad_low + pad_high there are
 *
 *     convolution      floor((n + pads - dilation (kernel - 1) - 1) / stride) + 1
 *     transposed       stride (n - 1) - pads + dilation (kernel - 1) + 1, no output_padding
 *     neighbourhood    n
 *
 * Fails with DPAR_E_ARG or DPAR_E_RANGE for a number out of its domain, a kernel that does not fit,
 * or an interpolation, which may have any number of outputs. Costs O(1).
 */
DPAR_API dpar_status dpar_window_outputs(const dpar_window *window, int64_t inputs,
                                         int64_t *outputs, dpar_why *why);

#endif
