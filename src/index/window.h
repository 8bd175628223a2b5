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
    DPAR_WINDOW_NEIGHBOURHOOD  /* attention: the keys of query y, dpar_window_start; dilation
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
 * does not fit, and for an interpolation, which has as many as one likes. */
DPAR_API dpar_status dpar_window_outputs(const dpar_window *v, int64_t inputs, int64_t *outputs,
                                         dpar_why *why);
/* Can v have so many outputs? Those of dpar_window_outputs; transposed: up to the larger of stride
 * and dilation, less 1, more; interpolation: any, inputs and outputs 1..2^30. O(1). */
DPAR_API dpar_status dpar_window_check(const dpar_window *v, int64_t inputs, int64_t outputs,
                                       dpar_why *why);
/* Below, v is one that dpar_window_check takes. The outputs that go with inputs [lo, hi) of n:
 * those whose stride y falls inside (the last inputs take what is beyond); transposed: y / stride,
 * interpolation: y n / outputs. Small halos; balanced outputs are a dpar_split of them instead. */
DPAR_API void dpar_window_owned(const dpar_window *v, int64_t inputs, int64_t outputs, int64_t lo,
                                int64_t hi, int64_t *y0, int64_t *y1);
/* Inputs [*lo, *hi) from the first to the last that outputs [y0, y1) read, of any kind; of a
 * convolution with padding, which lies outside 0..inputs-1. 0, nothing written, when there are none
 * or y0 < 0 or y1 > outputs. O(1), neighbourhood O(dilation). */
DPAR_API int dpar_window_reads(const dpar_window *v, int64_t inputs, int64_t outputs, int64_t y0,
                               int64_t y1, int64_t *lo, int64_t *hi);
/* Of outputs [*y0, *y1) those that read nothing outside of inputs [lo, hi): what can be computed of
 * them alone; of a neighbourhood with dilation, where these lie in between others, without those
 * that do. lo = INT64_MIN, hi = INT64_MAX: nothing is missing on that side. O(log(outputs)) times
 * dpar_window_reads. */
DPAR_API void dpar_window_whole(const dpar_window *v, int64_t inputs, int64_t outputs, int64_t lo,
                                int64_t hi, int64_t *y0, int64_t *y1);
/* dpar_window_reads of a convolution alone, padding too: [stride y0 - pad, stride (y1 - 1) +
 * dilation (kernel - 1) - pad + 1). 0, nothing written, when y1 <= y0, y0 < 0 or
 * y1 - 1 > 2^61 / stride. */
DPAR_API int dpar_window_needs(const dpar_window *v, int64_t y0, int64_t y1, int64_t *lo,
                               int64_t *hi);
/* The same for the transposed convolution: [ceil((y0 + pad - dilation (kernel - 1)) / stride),
 * floor((y1 - 1 + pad) / stride) + 1), within 0..inputs. 0 when that is empty, y0 < 0 or
 * y1 - 1 > 2^61. */
DPAR_API int dpar_window_transposed(const dpar_window *v, int64_t inputs, int64_t y0, int64_t y1,
                                    int64_t *lo, int64_t *hi);
/* How far those needs reach beyond a block [own_lo, own_hi) of n inputs: negative when not even the
 * block is needed. Padding is nobody's: outside 0..n-1 is cut off unless periodic. Without outputs
 * both are 0. 0 <= own_lo <= own_hi <= inputs. */
DPAR_API void dpar_window_halo(const dpar_window *v, int64_t inputs, int periodic, int64_t own_lo,
                               int64_t own_hi, int64_t y0, int64_t y1, int64_t *low, int64_t *high);
/* Neighbourhood attention: the first of the `kernel` keys, `dilation` apart, that query i of n
 * sees: centred, moved inward at the ends of its dilation group. -1 when the group is shorter than
 * the kernel or i is outside. Only keys and values need a halo. */
DPAR_API int64_t dpar_window_start(const dpar_window *v, int64_t inputs, int64_t i);

#endif
