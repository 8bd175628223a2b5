/* SPDX-License-Identifier: MIT-0 */
/* window - operators whose outputs read windows of their inputs, along one dim: how many outputs,
 * who computes them, which inputs they need. */
#ifndef DPARI_INDEX_WINDOW_H
#define DPARI_INDEX_WINDOW_H

#include "../base/base.h"

enum {
    DPAR_WINDOW_CONVOLUTION, /* and pooling, stencils: output y reads stride y - pad + dilation k */
    DPAR_WINDOW_TRANSPOSED,  /* input i goes to outputs stride i - pad + dilation k */
    DPAR_WINDOW_INTERPOLATION, /* `kernel` taps around y's place among the inputs: 1 nearest, 2
                                  linear, 4 cubic, any even number; beyond the ends the last input
                                */
    DPAR_WINDOW_NEIGHBOURHOOD  /* attention: query y sees `kernel` keys, `dilation` apart,
                                   centred, moved inward at the ends of its dilation group; dilation
                                   to 4096. Round a periodic
                                  dim it is a convolution padded by dilation (kernel / 2) */
};

typedef struct dpar_window {
    int64_t kernel;           /* taps, at least 1 */
    int64_t stride, dilation; /* 0 means 1 */
    int64_t pad_low, pad_high;
    int32_t ceil_mode;     /* pooling: a last window that begins inside counts */
    int32_t kind;          /* DPAR_WINDOW_x */
    int32_t align_corners; /* interpolation: the first and last outputs lie on the first and last
                              inputs (torch's word); else the ends of the cells coincide */
} dpar_window;

/* *outputs = floor((n + pads - dilation (kernel - 1) - 1) / stride) + 1 of n inputs, as torch and
 * cuDNN; transposed: stride (n - 1) - pads + dilation (kernel - 1) + 1, without torch's
 * output_padding; neighbourhood: as many. E_ARG or E_RANGE with a sentence, also when the kernel
 * does not fit, and for an interpolation, which has as many as one likes.
 * *outputs is written on success only. O(1). */
DPAR_API dpar_status dpar_window_outputs(const dpar_window *v, int64_t inputs, int64_t *outputs,
                                         dpar_why *why);

#endif
