/* SPDX-License-Identifier: MIT-0 */
/* spatial - runs layers of networks on a field that ranks share: convolution, transposed
 * convolution, pooling, interpolation, neighbourhood attention, GroupNorm and BatchNorm. dpar
 * determines which outputs a rank computes and which inputs they read. It exchanges the halos,
 * fills the padding, and sends gradients back. The arithmetic is your kernel. Because it gets
 * global indices, it is the kernel that you would write for one rank:
 *
 *     dpar_spatial_desc layer;                   zeroed, then:
 *     layer.kind = DPAR_SPATIAL_CONVOLUTION;
 *     layer.in = field;                          which rank has which inputs (dpar_layout)
 *     layer.window[0].kernel = 3; ...            as dpar_window_outputs reads it
 *     layer.type = DPAR_F32; layer.planes = 16;  channels times samples
 *     layer.forward = convolve; ...
 *     dpar_spatial_make(c, &layer, &plan, &why);
 *     arrays.in[0] = planes of dpar_box_volume(&plan->in_box);  own points, halos and padding
 *     dpar_spatial_forward(plan, &arrays);                      every step
 *     dpar_spatial_backward(plan, &arrays);
 *     next.in = plan->out;                                      the next layer follows
 *     dpar_spatial_free(plan);
 *
 * Any kernel, stride, dilation and padding is allowed, and so are uneven and empty blocks, and
 * halos that reach past the neighbour, because dpar computes from the outputs of a rank what it
 * reads. An output has the same bits on any number of ranks if the kernel's result does not depend
 * on the tile. Input gradients near the ends of blocks are sums of parts from several ranks, always
 * in the same order, but rounded differently than on one rank.
 *
 * If comm->mem is the memory of a device, the arrays of a step are in that memory. Halos and
 * padding are handled there, and kernels enqueue their work on the stream of comm->mem and return.
 * The thread waits for nothing if messages are also ordered by that stream (dpar_nccl.h). The plan
 * is in the memory of the host. */
#ifndef DPARI_SPATIAL_SPATIAL_H
#define DPARI_SPATIAL_SPATIAL_H

#include "../halo/halo_exchange.h"
#include "../host/layers.h"

/* The most inputs that a layer has. */
enum { DPAR_SPATIAL_MAX_TENSORS = 4 };

/* Kinds of layers: which inputs an output reads along each dim. dpar_spatial_taps computes them for
 * one output. */
enum {
    DPAR_SPATIAL_CONVOLUTION = 1, /* also pooling */
    DPAR_SPATIAL_TRANSPOSED,      /* (n - 1) stride - pads + dilation (kernel - 1) + 1 outputs */
    DPAR_SPATIAL_INTERPOLATION,   /* window.kernel taps: 1 nearest, 2 linear, 4 cubic */
    /* Neighbourhood attention: `in` are keys and values; queries are passed in `user` and cut like
     * the outputs. stride and pads are ignored; DPAR_SPATIAL_PAD_WRAP makes the dim a ring. A rank
     * receives only keys that its queries see. If its block has fewer queries than the dilation, it
     * also receives the keys between them. */
    DPAR_SPATIAL_NEIGHBOURHOOD
};

/* Values beyond the ends of a dim. */
enum {
    DPAR_SPATIAL_PAD_ZERO,
    DPAR_SPATIAL_PAD_WRAP,      /* the points of the other end, as for longitudes */
    DPAR_SPATIAL_PAD_REFLECT,   /* mirrored without the end point; pads must be below the extent */
    DPAR_SPATIAL_PAD_REPLICATE, /* the end point; interpolation also uses it for PAD_ZERO */
    DPAR_SPATIAL_PAD_LOWEST     /* minus infinity, or the least integer, for max pooling; not f8 */
};

/* Rules for which rank computes which outputs. */
enum {
    DPAR_SPATIAL_OUTPUTS_BALANCED, /* cut by DPAR_SPLIT_EVEN over the mesh axes of the inputs */
    DPAR_SPATIAL_OUTPUTS_FOLLOW,   /* each rank computes the outputs near its inputs, which makes
                                      halos small; a dim may then be cut by one mesh axis only */
    DPAR_SPATIAL_OUTPUTS_GIVEN /* as in layer.given_layout, whose dims are cut by the same mesh axes
                                  as those of `in` */
};

/* A piece of a field in memory, with global indices. Point i, j, ... of plane p is
 * data[origin + p * plane + i * stride[0] + j * stride[1] + ...]. */
typedef struct dpar_tile {
    void *data;
    int64_t origin;                /* offset of the point with all indices 0, in elements */
    int64_t plane;                 /* distance of planes, in elements */
    int64_t planes;                /* number of planes */
    int64_t stride[DPAR_MAX_DIMS]; /* elements */
    dpar_box box; /* the points to compute, or all points that this computation reads, padding
                     included */
} dpar_tile;

typedef struct dpar_spatial_desc dpar_spatial_desc;

/* Describes the work of a kernel. Tiles that a step does not use have no data. in[].box has exactly
 * the inputs that the outputs of out.box read. It extends below 0 and beyond the extent where
 * padding is read, so that a routine without padding (im2col, cuDNN) can use it as it is. */
typedef struct dpar_spatial_call {
    const dpar_spatial_desc *layer;
    dpar_tile in[DPAR_SPATIAL_MAX_TENSORS];
    dpar_tile in_gradient[DPAR_SPATIAL_MAX_TENSORS];
    dpar_tile out, out_gradient;
    void *user; /* layer->user */
} dpar_spatial_call;
/* Computes outputs or gradients on a tile: your callback. */
typedef void (*dpar_spatial_kernel)(const dpar_spatial_call *call);

/* Describes a layer. Zero it and fill in what differs from the defaults. A dim whose kernel is 0 is
 * left as it is, such as a batch. */
struct dpar_spatial_desc {
    int32_t kind;                      /* DPAR_SPATIAL_CONVOLUTION, ... */
    int32_t outputs;                   /* DPAR_SPATIAL_OUTPUTS_BALANCED, ... */
    dpar_layout in;                    /* layout of one plane of the inputs; blocks as in halo.h */
    dpar_layout given_layout;          /* for DPAR_SPATIAL_OUTPUTS_GIVEN */
    dpar_window window[DPAR_MAX_DIMS]; /* kernel, stride, dilation, pads, ceil_mode */
    int32_t padding[DPAR_MAX_DIMS];    /* DPAR_SPATIAL_PAD_ZERO, ... */
    /* Outputs of each dim; 0 selects the number that the window gives. Required for interpolation.
     * For a transposed convolution it may include PyTorch's output padding. */
    int64_t out_extent[DPAR_MAX_DIMS];
    int32_t align_corners; /* interpolation: 1 selects align_corners */
    int32_t type;          /* of inputs and outputs: DPAR_F32, ...; with input gradients, a type
                              that reductions accept */
    int32_t tensors;       /* inputs of one shape (keys, values), at most 4; 0 selects 1 */
    int32_t channels_last; /* 1 if planes are innermost (NHWC) */
    /* 1 calls the kernel once, when all halos have arrived. 0 calls it on the inner outputs while
     * halos are in transit, then on the others, in at most 2 boxes per dim. */
    int32_t no_overlap;
    int64_t planes, out_planes; /* channels times samples of each input, and of the output; 0
                                   selects 1, and for the output as many as an input has */
    /* Box of this rank's arrays, if it is larger than the layer needs because two layers read them.
     * dims 0 selects the box of dpar_spatial_check. Inputs and outputs may have at most 2^60
     * elements, otherwise it is DPAR_E_RANGE. */
    dpar_box in_box;
    dpar_spatial_kernel forward;         /* writes out at out.box from in */
    dpar_spatial_kernel input_gradient;  /* adds to in_gradient the gradient from out_gradient at
                                            out.box; in and out are as forward left them */
    dpar_spatial_kernel weight_gradient; /* uses in and out_gradient; called while input gradients
                                            are in transit. Summing over ranks (dpar_all_reduce) is
                                            up to you */
    void *user;                          /* passed to the kernels */
    /* How halos are exchanged; `field` and `field_count` are ignored. NULL selects the defaults,
     * with which boxes are packed whatever memory the arrays are in. With method DPAR_HALO_DIRECT,
     * peers read long runs directly from the arrays. in and in_gradient must then be in memory of
     * dpar_comm_alloc in every step, on all ranks; otherwise it is DPAR_E_ARG. */
    const dpar_halo_plan_desc *halo;
    /* Your memory for the plan, on the host and aligned to 64; keep it as long as the plan exists.
     * With NULL and 0 bytes dpar_spatial_make allocates it. Too few bytes are DPAR_E_ROOM, and
     * why->bytes is how many it needs; to query that, set memory NULL and bytes 1. */
    void *memory;
    int64_t bytes;
};

/* ---- one dim; local ---- */

/* The inputs that an output y reads: `count` inputs first, first + step, ..., padding included. In
 * a transposed convolution, input i belongs to tap (y + pad_low - i stride) / dilation, if that is
 * a whole number. */
typedef struct dpar_spatial_tap_range {
    int64_t first, step, count;
    int64_t inside;  /* how many are within 0 .. extent - 1, for averages without padded cells */
    int64_t padded;  /* how many are within the padding too, for averages with padded cells
                        (ceil_mode windows end there) */
    double fraction; /* interpolation: distance of y from the tap at or before it, in taps */
} dpar_spatial_tap_range;
/* Computes the inputs that output y of a dim reads, for a layer that dpar_spatial_check accepts.
 * Local. O(taps). Fails with DPAR_E_ARG, without a message, if there is no such dim or output. */
DPAR_API dpar_status dpar_spatial_taps(const dpar_spatial_desc *layer, int32_t dim, int64_t y,
                                       dpar_spatial_tap_range *taps);
/* The extent of a layer's outputs, and the boxes of a rank. Boxes without points have dims 0. */
typedef struct dpar_spatial_boxes {
    int64_t extent[DPAR_MAX_DIMS]; /* outputs of each dim */
    dpar_box in;  /* the smallest box for its input arrays: own points, halos, padding */
    dpar_box out; /* outputs that it computes */
} dpar_spatial_boxes;
/* Checks a layer and computes its boxes on a rank without planning it. If several layers read one
 * array, its box is the smallest that holds the boxes `in` of all of them.
 *
 * boxes: receives the boxes; may be NULL.
 *
 * Local. O(dims x axes). Fails with DPAR_E_ARG or DPAR_E_RANGE. */
DPAR_API dpar_status dpar_spatial_check(const dpar_spatial_desc *layer, int32_t rank,
                                        dpar_spatial_boxes *boxes, dpar_why *why);
/* Describes a dense array that holds `box` as a tile.
 *
 * last: 1 if planes are innermost, 0 if they are outermost.
 *
 * Local. O(dims). */
DPAR_API void dpar_tile_init(dpar_tile *tile, void *data, const dpar_box *box, int64_t planes,
                             int32_t last);

/* ---- layers ---- */

/* A plan of a layer, whose fields you may read. Boxes without points have dims 0. */
typedef struct dpar_spatial_plan {
    dpar_spatial_desc layer;
    dpar_layout out;    /* which rank has which outputs: `in` of the next layer */
    dpar_box in_box;    /* box of the input arrays, which are dense */
    dpar_box in_owned;  /* the rank's own inputs in it, which the previous layer writes */
    dpar_box out_owned; /* outputs that the rank computes */
    int64_t halo_bytes; /* bytes that this rank sends to others in a forward exchange */
} dpar_spatial_plan;

/* Arrays of one step, in memory that the CPU can access, or in that of the device of comm->mem. A
 * rank without points passes NULLs. */
typedef struct dpar_spatial_arrays {
    /* Inputs over in_box. Forward reads the rank's own points and writes the others. Backward uses
     * them as forward left them; they may be NULL if no kernel of backward reads them. */
    void *in[DPAR_SPATIAL_MAX_TENSORS];
    /* Input gradients over in_box. Backward writes the rank's own points; the others become 0. */
    void *in_gradient[DPAR_SPATIAL_MAX_TENSORS];
    void *out;          /* over out_box */
    void *out_gradient; /* over out_box */
    dpar_box out_box;   /* box of out and out_gradient: in_box of the next layer; dims 0 selects
                           out_owned */
    int32_t accumulate; /* 1 adds to the own points of in_gradient, because another layer reads the
                           inputs, too */
} dpar_spatial_arrays;

/* Plans a layer. Rank n of the mesh is rank n of comm.
 *
 * Collective: all ranks pass the same layer, except for in_box, no_overlap, kernels, user, memory
 * and bytes; either all or none have an input_gradient. Costs O(outputs x taps) of each dim, one
 * all-reduce, and the planning of the halo exchange. Fails on all ranks with DPAR_E_MISMATCH if
 * layers differ, DPAR_E_ROOM, DPAR_E_MEMORY, or as dpar_spatial_check and dpar_halo_plan_make do.
 */
DPAR_API dpar_status dpar_spatial_make(dpar_comm *comm, const dpar_spatial_desc *layer,
                                       dpar_spatial_plan **plan, dpar_why *why);
/* Computes outputs from inputs: exchanges halos, fills the padding, and calls the kernel.
 *
 * Collective. Sends plan->halo_bytes. Fails with DPAR_E_ARG if arrays are missing or out_box does
 * not hold the rank's outputs, which breaks the communicator so that the other ranks notice. Other
 * errors are those of dpar_halo_plan_exchange. The message is in the communicator's why; there is
 * none if plan or arrays is NULL. */
DPAR_API dpar_status dpar_spatial_forward(dpar_spatial_plan *plan,
                                          const dpar_spatial_arrays *arrays);
/* Computes input gradients from output gradients, and weight gradients while input gradients are in
 * transit. Both kernels run on all outputs of the rank. Gradients of padding are added to the
 * points from which the padding was copied (those of constants are dropped), and gradients of halos
 * are sent to their owners, which add them in a fixed order.
 *
 * Without input_gradient or in_gradient[0] only weight gradients are computed, and nothing is sent.
 * That must be the case on all ranks that have points, or on none.
 *
 * Collective. Sends as much as dpar_spatial_forward, in gradients, and fails as it does. */
DPAR_API dpar_status dpar_spatial_backward(dpar_spatial_plan *plan,
                                           const dpar_spatial_arrays *arrays);
/* Frees a plan of a layer. NULL is allowed. Collective: a barrier over the communicator. Fails as
 * dpar_halo_plan_free does; the message is in the communicator's why. */
DPAR_API dpar_status dpar_spatial_free(dpar_spatial_plan *plan);

#endif
