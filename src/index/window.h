/* SPDX-License-Identifier: MIT-0 */
/* window - operators whose outputs read windows of their inputs, along one dim: how many outputs
 * there are. dpar_halo.window says who computes them and which inputs they need.
 *
 *     dpar_window v = {0};
 *     v.kernel = 3;
 *     v.stride = 2;
 *     v.pad_low = v.pad_high = 1;
 *     dpar_window_outputs(&v, 32, &outputs, &why);    16 */
#ifndef DPARI_INDEX_WINDOW_H
#define DPARI_INDEX_WINDOW_H

#include "../base/base.h"

enum {
    DPAR_WINDOW_CONVOLUTION,   /* pooling and stencils too: output y reads inputs stride y - pad +
                                  dilation k */
    DPAR_WINDOW_TRANSPOSED,    /* input i goes to outputs stride i - pad + dilation k */
    DPAR_WINDOW_INTERPOLATION, /* `kernel` taps around y's place among the inputs: 1 nearest, 2
                                  linear, 4 cubic, any even number. Beyond the ends the last input
                                  counts */
    DPAR_WINDOW_NEIGHBOURHOOD  /* attention: query y sees `kernel` keys, `dilation` (to 4096) apart.
                                  They are centred, and moved inward at the ends of its dilation
                                  group. In a periodic dim it is a convolution padded by dilation
                                  (kernel / 2) */
};

/* An operator along one dim. Zero it and fill it in. */
typedef struct dpar_window {
    int64_t kernel;           /* taps, at least 1 */
    int64_t stride, dilation; /* 0 means 1 */
    int64_t pad_low, pad_high;
    int32_t ceil_mode;     /* pooling: a last window that begins inside counts */
    int32_t kind;          /* DPAR_WINDOW_x */
    int32_t align_corners; /* interpolation, torch's word. 1: the first and last outputs lie on the
                              first and last inputs. 0: the ends of the cells coincide */
} dpar_window;

/* How many outputs n inputs have; as torch and cuDNN. pads = pad_low + pad_high.
 *
 *     convolution      floor((n + pads - dilation (kernel - 1) - 1) / stride) + 1
 *     transposed       stride (n - 1) - pads + dilation (kernel - 1) + 1, no output_padding
 *     neighbourhood    n
 *
 * E_ARG or E_RANGE with a sentence: a number out of its domain, a kernel that does not fit, or an
 * interpolation, which may have any number. *outputs is written on success only. O(1). */
DPAR_API dpar_status dpar_window_outputs(const dpar_window *v, int64_t inputs, int64_t *outputs,
                                         dpar_why *why);

#endif
