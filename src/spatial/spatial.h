/* SPDX-License-Identifier: MIT-0 */
/* spatial - layers of networks on a field that ranks share: convolution, transposed convolution,
 * pooling, interpolation, neighbourhood attention, Group- and BatchNorm. dpar finds which outputs a
 * rank computes and which inputs these read. It moves the halos, pads, and brings gradients back.
 * The arithmetic is your kernel. It sees global indices, so it is the kernel of one rank:
 *
 *     dpar_spatial_desc layer;                        zeroed, then:
 *     layer.kind = DPAR_SPATIAL_CONVOLUTION;
 *     layer.in = field;                          who has which inputs (dpar_layout)
 *     layer.window[0].kernel = 3; ...            as dpar_window_outputs takes it
 *     layer.type = DPAR_F32; layer.planes = 16;  channels, times samples
 *     layer.forward = convolve; ...
 *     dpar_spatial_bytes(c, &layer, &bytes, &why);
 *     dpar_spatial_init(memory, bytes, c, &layer, &plan, &why);
 *     arrays.in[0] = planes of dpar_box_volume(&plan->in_box);  own points and around them
 *     dpar_spatial_forward(plan, &arrays);                      every step
 *     dpar_spatial_backward(plan, &arrays);
 *     next.in = plan->out;                                      the next layer follows
 *
 * Any kernel, stride, dilation and padding will do, uneven and empty blocks, and halos that reach
 * past the neighbour: what a rank reads is found from its outputs. An output has the same bits on
 * any number of ranks when the kernel's result does not depend on the tile. Input gradients at the
 * ends of blocks are sums of parts of several ranks, always in the same order. They are rounded in
 * other places than on one rank.
 *
 * Where comm->mem is a device's, so are the arrays of a step. Halos travel and padding is made
 * there, and kernels enqueue on the stream of comm->mem and return. The thread waits for nothing
 * where that stream orders what is sent (dpar_nccl.h). The plan is the host's. */
#ifndef DPARI_SPATIAL_SPATIAL_H
#define DPARI_SPATIAL_SPATIAL_H

#include "../halo/halo_exchange.h"
#include "../train/layers.h"

enum { DPAR_SPATIAL_MAX_TENSORS = 4 };

/* What reads what, along each dim. dpar_spatial_taps says it of one output. */
enum {
    DPAR_SPATIAL_CONVOLUTION = 1, /* pooling too */
    DPAR_SPATIAL_TRANSPOSED,      /* (n - 1) stride - pads + dilation (kernel - 1) + 1 outputs */
    DPAR_SPATIAL_INTERPOLATION,   /* window.kernel taps: 1 nearest, 2 linear, 4 cubic */
    DPAR_SPATIAL_NEIGHBOURHOOD /* attention: `in` are keys and values; queries go by `user`, cut as
                          the outputs. stride and pads do not count; DPAR_SPATIAL_PAD_WRAP: round a
                          ring. Keys that no query of a rank sees stay where they are, except keys
                          between others that it sees, of a block of fewer queries than the dilation
                        */
};

/* What lies beyond the ends of a dim. */
enum {
    DPAR_SPATIAL_PAD_ZERO,
    DPAR_SPATIAL_PAD_WRAP,      /* the other end: longitudes */
    DPAR_SPATIAL_PAD_REFLECT,   /* without the end itself; pads must be below the extent */
    DPAR_SPATIAL_PAD_REPLICATE, /* the end; interpolation has this for DPAR_SPATIAL_PAD_ZERO too */
    DPAR_SPATIAL_PAD_LOWEST     /* minus infinity: max pooling. Integers: the least one. Not f8 */
};

/* Who computes the outputs. */
enum {
    DPAR_SPATIAL_OUTPUTS_BALANCED, /* cut by DPAR_SPLIT_EVEN over the same mesh axes */
    DPAR_SPATIAL_OUTPUTS_FOLLOW, /* near their inputs: small halos; only for dims that are cut once
                                  */
    DPAR_SPATIAL_OUTPUTS_GIVEN   /* layer.given: dims cut by the same mesh axes as those of `in` */
};

/* A piece of a field in memory. Indices are global, as all here. Point i, j, ... of plane p is
 * data[origin + p * plane + i * stride[0] + j * stride[1] + ...]. */
typedef struct dpar_tile {
    void *data;
    int64_t origin, plane, planes;
    int64_t stride[DPAR_MAX_DIMS];
    dpar_box box; /* what to compute, or all that this reads, padding too */
} dpar_tile;

typedef struct dpar_spatial_desc dpar_spatial_desc;

/* What a kernel gets. Tiles have no data where a step does not use them. in[].box is exactly what
 * the outputs of out.box read. It reaches beyond 0 and the extent where padding is read, so a
 * routine without padding (im2col, cuDNN) can take it as it is. */
typedef struct dpar_spatial_call {
    const dpar_spatial_desc *layer;
    dpar_tile in[DPAR_SPATIAL_MAX_TENSORS];
    dpar_tile in_gradient[DPAR_SPATIAL_MAX_TENSORS];
    dpar_tile out, out_gradient;
    void *user;
} dpar_spatial_call;
typedef void (*dpar_spatial_kernel)(const dpar_spatial_call *call);

/* A layer. Zero it and fill in what differs. A dim whose kernel is 0 is not touched (a batch). */
struct dpar_spatial_desc {
    int32_t kind;                      /* DPAR_SPATIAL_CONVOLUTION, ... */
    int32_t outputs;                   /* DPAR_SPATIAL_OUTPUTS_BALANCED, ... */
    dpar_layout in;                    /* of one plane of the inputs; blocks as halo.h has them */
    dpar_layout given;                 /* DPAR_SPATIAL_OUTPUTS_GIVEN */
    dpar_window window[DPAR_MAX_DIMS]; /* kernel, stride, dilation, pads, ceil_mode */
    int32_t padding[DPAR_MAX_DIMS];    /* DPAR_SPATIAL_PAD_x */
    int64_t extent[DPAR_MAX_DIMS]; /* outputs of a dim; 0: as many as there are. Interpolation: must
                                      be said. Transposed: with torch's output padding */
    int32_t corners;               /* interpolation: 1: align_corners */
    int32_t type; /* DPAR_F32, ... of inputs and outputs; with gradients dpar_type_reduces must take
                     it */
    int32_t tensors; /* inputs of one shape (keys, values); 0: 1; at most 4 */
    int32_t last;    /* 1: planes are innermost (NHWC) */
    int32_t whole;   /* 1: the kernel runs once, when all halos are there. 0: on the inner outputs
                        while halos travel, then on at most 2 boxes a dim of the others */
    int64_t planes, out_planes; /* channels times samples, of each input and of the output; 0: 1,
                                   and as many as the inputs */
    dpar_box in_box; /* box of this rank's arrays, where it is larger than the layer needs (two
                        layers read them); dims 0: as dpar_spatial_check. At most 2^60 elements, as
                        the outputs (E_RANGE) */
    dpar_spatial_kernel forward;         /* writes out at out.box from in */
    dpar_spatial_kernel input_gradient;  /* ADDS to in_gradient what out_gradient at out.box gives;
                                            in and out are as forward left them */
    dpar_spatial_kernel weight_gradient; /* from in and out_gradient; runs while gradients travel.
                                            The sum over ranks (dpar_all_reduce) is yours */
    void *user;
    /* How halos travel, not which fields; NULL: the defaults, and boxes are packed wherever arrays
     * lie. With way DPAR_HALO_DIRECT peers read long runs where they lie: in and in_gradient are
     * then memory of dpar_comm_alloc in each step, on all ranks (E_ARG). */
    const dpar_halo_plan_desc *options;
};

/* ---- one dim; local ---- */

/* What output y reads: inputs first, first + step, ..., count of them, padding too. Of a transposed
 * convolution input i meets tap (y + pad_low - i stride) / dilation where that divides. */
typedef struct dpar_spatial_tap_range {
    int64_t first, step, count;
    int64_t inside;  /* of these within 0 .. extent - 1: for averages without padded cells */
    int64_t padded;  /* of these within the padding too: for averages with padded cells (ceil_mode
                        windows end there) */
    double fraction; /* interpolation: how far y lies behind the tap that is at or before it */
} dpar_spatial_tap_range;
/* What output y of a dim reads. `layer` is one that dpar_spatial_check takes. E_ARG, without a
 * sentence: no such dim or output. Local, O(taps). */
DPAR_API dpar_status dpar_spatial_taps(const dpar_spatial_desc *layer, int32_t dim, int64_t y,
                                       dpar_spatial_tap_range *taps);
/* What a layer gives, and what a rank has of it. Boxes without points have dims 0. */
typedef struct dpar_spatial_boxes {
    int64_t extent[DPAR_MAX_DIMS]; /* outputs of each dim */
    dpar_box in;  /* what its input arrays must hold at least: own points, halos, padding */
    dpar_box out; /* the outputs that it computes */
} dpar_spatial_boxes;
/* Judges a layer, and says what is known of it without planning (boxes NULL: not wanted). Where
 * several layers read one array, its box is the least that holds the boxes `in` of all of them.
 * E_ARG, E_RANGE with a sentence. Local, O(dims x axes). */
DPAR_API dpar_status dpar_spatial_check(const dpar_spatial_desc *layer, int32_t rank,
                                        dpar_spatial_boxes *boxes, dpar_why *why);
/* The tile of an array that holds `box` densely, planes outermost or innermost (last). Local,
 * O(dims). */
DPAR_API void dpar_tile_init(dpar_tile *tile, void *data, const dpar_box *box, int64_t planes,
                             int32_t last);

/* ---- layers ---- */

/* A plan of a layer; these fields are to be read. Boxes without points have dims 0. */
typedef struct dpar_spatial_plan {
    dpar_spatial_desc layer;
    dpar_layout out;    /* who has which outputs: `in` of the next layer */
    dpar_box in_box;    /* box of the input arrays, which are dense */
    dpar_box in_own;    /* the rank's own inputs in it: what the layer before writes */
    dpar_box out_own;   /* the outputs that the rank computes */
    int64_t halo_bytes; /* bytes that this rank sends to others in a forward exchange */
} dpar_spatial_plan;

/* The memory of one step: any that the CPU reaches, or a device's where comm->mem is. A rank
 * without points gives NULLs. */
typedef struct dpar_spatial_arrays {
    void *in[DPAR_SPATIAL_MAX_TENSORS]; /* in_box. Forward reads own points and fills the others.
                                       Backward: as forward left it; NULL if no kernel reads it */
    void *in_gradient[DPAR_SPATIAL_MAX_TENSORS]; /* in_box. Backward writes own points; the others
                                                become 0 */
    void *out;                                   /* out_box */
    void *out_gradient;                          /* out_box */
    dpar_box out_box;   /* box of out and out_gradient: in_box of the next layer; dims 0: out_own */
    int32_t accumulate; /* 1: adds to in_gradient's own points (another layer read it too) */
} dpar_spatial_arrays;

/* Bytes of memory for a plan of a layer on this rank. Takes and gives back some pages of the
 * system. Errors as init, of this rank alone. Local. As init up to O(outputs x taps) of each
 * dim. */
DPAR_API dpar_status dpar_spatial_bytes(dpar_comm *c, const dpar_spatial_desc *layer,
                                        int64_t *bytes, dpar_why *why);
/* Plans a layer in your memory (aligned to 64). Rank n of the mesh is rank n of c. COLLECTIVE: all
 * ranks give the same layer, but for in_box, whole, kernels and user; all have an input_gradient or
 * none. One all-reduce besides the exchange's. Cost as dpar_spatial_bytes.
 *
 * E_MISMATCH: layers differ. E_ROOM, and errors as dpar_spatial_check and dpar_halo_plan_init.
 * What fails on one rank fails on all. */
DPAR_API dpar_status dpar_spatial_init(void *memory, int64_t bytes, dpar_comm *c,
                                       const dpar_spatial_desc *layer, dpar_spatial_plan **plan,
                                       dpar_why *why);
/* Outputs from inputs: halos come, padding is filled, the kernel runs. COLLECTIVE. Sends
 * plan->halo_bytes.
 *
 * E_ARG: arrays are missing or out_box does not hold the rank's outputs. That breaks the
 * communicator, so that the other ranks hear of it. Else errors as dpar_halo_plan_exchange. The
 * sentence is in the communicator's why. E_ARG without one: plan or a is NULL. */
DPAR_API dpar_status dpar_spatial_forward(dpar_spatial_plan *plan, const dpar_spatial_arrays *a);
/* Input gradients from output gradients, and weight gradients meanwhile. COLLECTIVE. The kernel
 * runs on all outputs of the rank. What it put on padding goes back to where the padding came from
 * (of zeros: nowhere), what it put on halos to their owners, in a fixed order.
 *
 * Without input_gradient or in_gradient[0] only weight gradients are computed, and nothing travels.
 * That must be so on all ranks that have points, or on none. Errors and bytes as forward, of
 * gradients. The sentence is in the communicator's why. */
DPAR_API dpar_status dpar_spatial_backward(dpar_spatial_plan *plan, const dpar_spatial_arrays *a);
/* Ends a plan of a layer. COLLECTIVE. NULL is fine. Errors as dpar_halo_plan_close; the
 * sentence is in the communicator's why. */
DPAR_API dpar_status dpar_spatial_close(dpar_spatial_plan *plan);

/* ---- normalisation: by (count, mean, M2), never by sums of squares ----
 *
 * Where comm->mem is a device's, so are the norm's arrays: tiles, scale, shift, saved, scratch,
 * gradients. All is enqueued, the thread waits for nothing. */

/* A norm: y = (x - mean) / sqrt(variance + epsilon) * scale[channel] + shift[channel]. plane =
 * sample * channels + channel. The variance divides by the count. */
typedef struct dpar_norm {
    int32_t type; /* DPAR_F32 or DPAR_F64, also of scale and shift */
    int32_t samples, channels;
    int32_t groups; /* GroupNorm: channels / groups of a sample together. 1: LayerNorm's way,
                       channels: InstanceNorm. 0: BatchNorm: a channel of all samples */
    double epsilon; /* 0 to 1e300 */
    const void *scale, *shift; /* [channels]; NULL: 1 and 0 */
} dpar_norm;
/* Tiles of one step, with dims in any order. dpar_norm_sizes says the sizes. */
typedef struct dpar_norm_arrays {
    const dpar_tile *x;  /* the rank's points (box; may be empty, the same in all tiles) */
    const dpar_tile *y;  /* forward writes; may be x */
    const dpar_tile *dy; /* backward reads */
    const dpar_tile *dx; /* backward writes; may be dy */
    double *saved;       /* mean and inverse deviation of each set, one set after the other: forward
                            writes, backward reads */
    /* [channels]: backward ADDS this rank's part; NULL: not wanted. The sum over ranks is yours,
     * with the other weights. */
    double *scale_gradient, *shift_gradient;
    double *scratch;
} dpar_norm_arrays;
/* How many doubles saved and scratch have; NULL: not wanted. Local. O(1). */
DPAR_API void dpar_norm_sizes(const dpar_comm *c, const dpar_norm *n, int64_t *saved,
                              int64_t *scratch);
/* y from x. c: the ranks that share the sets: the tiles of a sample, of BatchNorm those of all
 * samples. Sums are in f64. COLLECTIVE: one all-gather. 24 bytes a set travel; O(points).
 *
 * E_ARG: the sentence is in c->why, where c is one. Points without data break the communicator, so
 * that the others hear of it. E_MISMATCH: ranks give another type, samples, channels, groups or
 * epsilon, on engines that compare calls (shared memory, MPI with check). */
DPAR_API dpar_status dpar_norm_forward(dpar_comm *c, const dpar_norm *n, const dpar_norm_arrays *a);
/* dx from dy and x. COLLECTIVE: one all-reduce. Errors as forward. 24 bytes a set travel;
 * O(points). */
DPAR_API dpar_status dpar_norm_backward(dpar_comm *c, const dpar_norm *n,
                                        const dpar_norm_arrays *a);

#endif
