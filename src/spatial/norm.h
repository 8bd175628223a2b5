/* SPDX-License-Identifier: MIT-0 */
/* norm - normalises fields that ranks share, forward and backward: BatchNorm, GroupNorm, LayerNorm
 * and InstanceNorm. Sums go by (count, mean, M2), never by sums of squares.
 *
 * If comm->mem is the memory of a device, the norm's arrays are in that memory: tiles, scale,
 * shift, saved, scratch and gradients. All work is enqueued, and the thread waits for nothing. */
#ifndef DPARI_SPATIAL_NORM_H
#define DPARI_SPATIAL_NORM_H

#include "spatial.h"

/* Describes a norm: y = (x - mean) / sqrt(variance + epsilon) * scale[channel] + shift[channel],
 * where plane = sample * channels + channel. The variance is divided by the count. */
typedef struct dpar_norm {
    int32_t type; /* also of scale and shift: DPAR_F32 or DPAR_F64 */
    int32_t samples, channels;
    int32_t groups; /* sets of a sample, each with channels / groups channels (GroupNorm). 1 is a
                       LayerNorm over all channels, `channels` is InstanceNorm. 0 is BatchNorm: a
                       set is one channel of all samples */
    double epsilon; /* 0 to 1e300 */
    const void *scale, *shift; /* [channels]; NULL selects 1 and 0 */
} dpar_norm;
/* Arrays of one step of a norm. Tiles may have their dims in any order. dpar_norm_sizes computes
 * the sizes of saved and scratch. */
typedef struct dpar_norm_arrays {
    const dpar_tile *x;  /* the rank's points; the box is the same in all tiles and may be empty */
    const dpar_tile *y;  /* forward writes it; may be x */
    const dpar_tile *dy; /* backward reads it */
    const dpar_tile *dx; /* backward writes it; may be dy */
    double *saved;       /* mean and inverse deviation of each set, one set after the other; forward
                            writes it, backward reads it */
    /* [channels], to which backward adds this rank's part; may be NULL. Summing over ranks is up to
     * you, as for other weights. */
    double *scale_gradient, *shift_gradient;
    double *scratch;
} dpar_norm_arrays;
/* Computes the numbers of doubles in saved and scratch. Each may be NULL. Local. O(1). */
DPAR_API void dpar_norm_sizes(const dpar_comm *comm, const dpar_norm *norm, int64_t *saved,
                              int64_t *scratch);
/* Computes y from x, with sums in f64.
 *
 * comm: the ranks that share sets, which are those with tiles of the same sample, and for BatchNorm
 *       those with tiles of any sample.
 *
 * Collective: one all-gather of 24 bytes per set. O(points). Fails with DPAR_E_ARG; the message is
 * in comm->why unless comm is NULL. A tile with points but without data breaks the communicator, so
 * that the other ranks notice. Fails with DPAR_E_MISMATCH if ranks pass a different type, samples,
 * channels, groups or epsilon, on engines that compare calls: shared memory, and MPI with check. */
DPAR_API dpar_status dpar_norm_forward(dpar_comm *comm, const dpar_norm *norm,
                                       const dpar_norm_arrays *arrays);
/* Computes dx from dy and x. Collective: one all-reduce of 24 bytes per set. O(points). Fails as
 * dpar_norm_forward does. */
DPAR_API dpar_status dpar_norm_backward(dpar_comm *comm, const dpar_norm *norm,
                                        const dpar_norm_arrays *arrays);

#endif
