/* SPDX-License-Identifier: MIT-0 */
/* dpar_spatial.h - runs layers of networks whose samples are cut into blocks over the ranks, forward and backward.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 * The layers are convolutions of any stride, dilation and padding, transposed convolutions, pooling, interpolation,
 * neighbourhood attention, norms, and attention within a window of tokens. A layer computes from the outputs of a rank
 * which inputs the rank needs, exchanges the halos and calls your kernel. Results equal those of one rank up to
 * rounding. apps/unet.c is a whole network.
 *
 * This program prints which inputs each of 4 ranks needs for a pooling of 3 with stride 2 over a row of 32 points:
 *
 *     #include "dpar_spatial.h"
 *     #include <stdio.h>
 *     int main(void)
 *     {
 *         const int32_t four[] = {4};
 *         const int64_t extent[] = {32};
 *         dpar_placement cut = dpar_shard(0);
 *         dpar_spatial_desc layer = {0};
 *         dpar_spatial_boxes boxes;
 *         dpar_mesh mesh;
 *         dpar_why why;
 *         int32_t rank;
 *         if (dpar_mesh_init(&mesh, "x", four, DPAR_ORDER_LAST_FASTEST, 4, &why) < 0 ||
 *             dpar_layout_init(&layer.in, &mesh, 1, extent, &cut, &why) < 0) {
 *             puts(why.text);
 *             return 1;
 *         }
 *         layer.kind = DPAR_SPATIAL_CONVOLUTION;                  also for pooling
 *         layer.type = DPAR_F32;
 *         layer.padding[0] = DPAR_SPATIAL_PAD_LOWEST;
 *         layer.window[0].kernel = 3;
 *         layer.window[0].stride = 2;
 *         layer.window[0].pad_low = 1;
 *         layer.window[0].pad_high = 1;
 *         for (rank = 0; rank < 4; rank++) {
 *             if (dpar_spatial_check(&layer, rank, &boxes, &why) < 0) {
 *                 puts(why.text);
 *                 return 1;
 *             }
 *             printf("rank %d: outputs %d to %d need inputs %d to %d\n", (int)rank,
 *                    (int)boxes.out.lo[0], (int)boxes.out.hi[0] - 1,
 *                    (int)boxes.in.lo[0], (int)boxes.in.hi[0] - 1);
 *         }
 *         return 0;
 *     }
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. yours.c -o yours
 *
 * To run the layer, set layer.forward to your kernel, plan the layer over a communicator with dpar_spatial_make, and
 * call dpar_spatial_forward, which exchanges the halos and calls the kernel. */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar_halo.h")
#error dpar_spatial.h needs dpar_halo.h beside it, of the same release
#endif
#endif
#include "dpar_halo.h"
#ifdef __has_include
#if !__has_include("dpar_train.h")
#error dpar_spatial.h needs dpar_train.h beside it, of the same release
#endif
#endif
#include "dpar_train.h"
#endif
#if DPAR_VERSION != 200
#error dpar_spatial.h and dpar.h are of different versions: take all headers from one release
#endif

#ifndef DPAR_SPATIAL_H
#define DPAR_SPATIAL_H

/* ==== spatial/spatial.h ==== */

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

/* ==== spatial/norm.h ==== */

/* norm - normalises fields that ranks share, forward and backward: BatchNorm, GroupNorm, LayerNorm
 * and InstanceNorm. Sums go by (count, mean, M2), never by sums of squares.
 *
 * If comm->mem is the memory of a device, the norm's arrays are in that memory: tiles, scale,
 * shift, saved, scratch and gradients. All work is enqueued, and the thread waits for nothing. */

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

/* ==== spatial/window_attention.h ==== */

/* window_attention - computes attention in a sliding window without a ring (sequence.h): each rank
 * receives the keys and values in the window around its own tokens as a halo.
 *
 *     layer.window = 4096;                  other fields as in sequence.h
 *     layer.method = dpar_attention_halo;
 *     dpar_packed_init(&layer.tokens, docs, ends, c->size, DPAR_SPLIT_EVEN, &why);
 *     dpar_attention_make(c, &layer, &plan, &why);         then as for the ring
 *
 * Each rank has a slice of the packed sequence: tokens.rule is CHUNK or EVEN, applied to the whole
 * sequence, whatever the documents. The rank receives the `window` tokens before its slice, and
 * those after it if not causal, from its neighbours or from ranks farther away. In backward, the
 * gradients of these tokens are sent back and added to those of their owners.
 *
 * Traffic. Let s be the number of this rank's tokens in the halos of other ranks, counted once for
 * each halo. Let h be the number of tokens in its own halo, without those beyond the ends of the
 * sequence, or 0 if it has no tokens. With E = groups (width + value_width) elements per token, it
 * sends
 *
 *     forward   s E bytes(type)
 *     backward  s E bytes(type) + h E bytes(sums)
 *
 * The plan holds the rank's own keys and values and those of its halo, their gradients, and partial
 * results of `out`. It also holds two halo exchanges, which dpar_attention_make plans with
 * dpar_halo_plan_make and dpar_attention_free frees. */

/* Selects halos for a sliding window. Assign it to dpar_attention_desc.method; only the plan calls
 * it. dpar_attention_make then fails with DPAR_E_ARG for a layer without window, a rule other than
 * CHUNK and EVEN, or E above 2^24. Local. O(1). */
DPAR_API void dpar_attention_halo(struct dpari_attention_method *method);

#endif /* DPAR_SPATIAL_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_SPATIAL_IMPLEMENTATION)) && \
    !defined(DPAR_SPATIAL_IMPLEMENTATION_DONE)
#define DPAR_SPATIAL_IMPLEMENTATION_DONE

/* ==== spatial/spatial_boxes.h ==== */

/* spatial_boxes - private: which inputs the outputs of a layer read, the boxes of a rank, and
 * tiles. Local. */

/* True if the layer has a window along the dim. Other dims are left as they are. */
DPARI_INTERNAL int dpari_spatial_touches(const dpar_spatial_desc *layer, int32_t d);
/* Returns how a dim is padded. Interpolation has no padding by zeros, and repeats the ends
 * instead. */
DPARI_INTERNAL int32_t dpari_spatial_padding(const dpar_spatial_desc *layer, int32_t d);
/* True if the padding of a dim is a constant. */
DPARI_INTERNAL int dpari_spatial_pads_constant(const dpar_spatial_desc *layer, int32_t d);
/* Checks a layer and sets m[] to its outputs of each dim. */
DPARI_INTERNAL dpar_status dpari_spatial_outputs(const dpar_spatial_desc *layer, int64_t *m,
                                                 dpar_why *why);
/* Lays out the outputs over the ranks.
 *
 * cuts: memory for the cuts of all axes. If it is NULL, outputs that follow are laid out like
 *       balanced ones, for callers that do not use their layout. */
DPARI_INTERNAL dpar_status dpari_spatial_layout(const dpar_spatial_desc *layer, const int64_t *m,
                                                int64_t *cuts, dpar_layout *out, dpar_why *why);
/* Describes the halo of a layer. out: the layout of its outputs. */
DPARI_INTERNAL void dpari_spatial_halo(const dpar_spatial_desc *layer, const dpar_layout *out,
                                       dpar_halo *halo);
/* Computes the boxes of a rank: its own inputs, its outputs, and the smallest box for its input
 * arrays. Boxes without points have dims 0, and so have all boxes of a rank that does not exist. */
DPARI_INTERNAL void dpari_spatial_boxes_of(const dpar_spatial_desc *layer, const int64_t *m,
                                           int32_t rank, dpar_box *own, dpar_box *out,
                                           dpar_box *in);
/* Sets `in` to the box of inputs that the outputs of `out` read. Returns 0 if they read none. */
DPARI_INTERNAL int dpari_spatial_needs(const dpar_spatial_desc *layer, const dpar_box *out,
                                       dpar_box *in);
/* Sets `core` to the outputs of a dim that read only own points and constants. */
DPARI_INTERNAL void dpari_spatial_inner(const dpar_spatial_desc *layer, int32_t d,
                                        const int64_t *own, const int64_t *out, int64_t *core);
/* Returns the offset of a point of a plane in a tile, in elements. */
DPARI_INTERNAL int64_t dpari_tile_at(const dpar_tile *tile, int64_t plane, const int64_t *point);

/* ==== spatial/spatial_boxes.c ==== */

/* Computes, dim by dim, what a layer reads. The blocks of outputs decide which inputs a rank reads,
 * and these inputs decide its halo and padding. The halo has windows and widths that cover both, so
 * that halo_exchange.h does the communication. */

/* ---- one dim: extents ------------------------------------------------------------------------ */

/* The largest extent, kernel, stride, dilation and pad. Products of two of them then fit in an
 * int64_t. */
static const int64_t dpari_spatial_limit = INT64_C(1) << 30;

DPARI_INTERNAL int dpari_spatial_touches(const dpar_spatial_desc *layer, int32_t d)
{
    return layer->window[d].kernel != 0;
}

static int64_t dpari_spatial_stride(const dpar_spatial_desc *layer, int32_t d)
{
    return layer->window[d].stride > 0 ? layer->window[d].stride : 1;
}

static int64_t dpari_spatial_dilation(const dpar_spatial_desc *layer, int32_t d)
{
    return layer->window[d].dilation > 0 ? layer->window[d].dilation : 1;
}

/* Returns the distance from the first tap to the last. */
static int64_t dpari_spatial_reach(const dpar_spatial_desc *layer, int32_t d)
{
    return dpari_spatial_dilation(layer, d) * (layer->window[d].kernel - 1);
}

DPARI_INTERNAL int32_t dpari_spatial_padding(const dpar_spatial_desc *layer, int32_t d)
{
    if (layer->kind == DPAR_SPATIAL_INTERPOLATION && layer->padding[d] == DPAR_SPATIAL_PAD_ZERO) {
        return DPAR_SPATIAL_PAD_REPLICATE;
    }
    return layer->padding[d];
}

DPARI_INTERNAL int dpari_spatial_pads_constant(const dpar_spatial_desc *layer, int32_t d)
{
    const int32_t padding = dpari_spatial_padding(layer, d);
    return padding == DPAR_SPATIAL_PAD_ZERO || padding == DPAR_SPATIAL_PAD_LOWEST;
}

/* Returns the outputs of a transposed convolution of n inputs, without output padding.
 *
 * most: receives the outputs with the largest output padding that makes sense. */
static int64_t dpari_spatial_spread(const dpar_spatial_desc *layer, int32_t d, int64_t n,
                                    int64_t *most)
{
    const int64_t least = (n - 1) * dpari_spatial_stride(layer, d) - layer->window[d].pad_low -
                          layer->window[d].pad_high + dpari_spatial_reach(layer, d) + 1;
    *most =
        least + dpari_most(dpari_spatial_stride(layer, d), dpari_spatial_dilation(layer, d)) - 1;
    return least;
}

/* Sets the window of a dim for dpar.h. Returns 0 if the layer does not touch the dim. */
static int dpari_spatial_window(const dpar_spatial_desc *layer, int32_t d, dpar_window *window)
{
    int64_t most;
    *window = layer->window[d];
    if (!dpari_spatial_touches(layer, d)) {
        return 0;
    }
    /* both lists of kinds are in the same order */
    window->kind = layer->kind - DPAR_SPATIAL_CONVOLUTION + DPAR_WINDOW_CONVOLUTION;
    window->align_corners = layer->align_corners;
    if (layer->kind == DPAR_SPATIAL_NEIGHBOURHOOD) {
        window->stride = 1;
        window->ceil_mode = 0;
        window->pad_low = 0;
        window->pad_high = 0;
    }
    if (layer->kind ==
        DPAR_SPATIAL_TRANSPOSED) { /* output padding means that less of the high pad is cut off */
        const int64_t more =
            layer->out_extent[d] - dpari_spatial_spread(layer, d, layer->in.extent[d], &most);
        window->pad_high -= dpari_least(window->pad_high, dpari_most(0, more));
    }
    if (layer->kind == DPAR_SPATIAL_NEIGHBOURHOOD && layer->padding[d] == DPAR_SPATIAL_PAD_WRAP) {
        window->kind = DPAR_WINDOW_CONVOLUTION; /* on a ring all neighbourhoods are centred */
        window->pad_low = window->kernel / 2 * dpari_spatial_dilation(layer, d);
        window->pad_high = dpari_spatial_reach(layer, d) - window->pad_low;
    }
    return 1;
}

/* Checks a dim of a layer that is not a convolution, and sets *m to its outputs. */
static dpar_status dpari_spatial_other_extent(const dpar_spatial_desc *layer, int32_t d, int64_t *m,
                                              dpar_why *why)
{
    const int64_t n = layer->in.extent[d];
    const dpar_window *window = &layer->window[d];
    int64_t most;
    if (layer->kind == DPAR_SPATIAL_NEIGHBOURHOOD) {
        dpar_window keys = *window;
        keys.kind =
            DPAR_WINDOW_NEIGHBOURHOOD; /* checked for rings, too, where no key may be seen twice */
        return dpar_window_outputs(&keys, n, m, why);
    }
    if (layer->kind == DPAR_SPATIAL_INTERPOLATION) {
        *m = layer->out_extent[d];
        if (n > dpari_spatial_limit || *m < 1 || *m > dpari_spatial_limit ||
            (window->kernel != 1 && window->kernel != 2 && window->kernel != 4)) {
            return dpari_wrong(
                why,
                "dim %d: %ld outputs are interpolated from %ld points with %ld taps; 1 to 2^30 "
                "outputs and points and 1, 2 or 4 taps are allowed",
                d, *m, n, window->kernel);
        }
        return DPAR_OK;
    }
    *m = dpari_spatial_spread(layer, d, n, &most);
    if (layer->out_extent[d] > 0) { /* dpari_spatial_extent refuses fewer outputs */
        *m = dpari_most(layer->out_extent[d], *m);
    }
    if (*m < 1 || *m > most || layer->padding[d] != DPAR_SPATIAL_PAD_ZERO) {
        return dpari_wrong(
            why,
            "dim %d: a transposed convolution has %ld outputs and padding %d; 1 to %ld outputs and "
            "padding 0 are allowed",
            d, *m, layer->padding[d], most);
    }
    return DPAR_OK;
}

/* Checks a dim of a layer and sets *m to its outputs. */
static DPARI_COLD dpar_status dpari_spatial_extent(const dpar_spatial_desc *layer, int32_t d,
                                                   int64_t *m, dpar_why *why)
{
    const dpar_window *window = &layer->window[d];
    const int64_t n = layer->in.extent[d];
    dpar_status status;
    *m = n;
    if (n < 1) {
        return dpari_wrong(why, "dim %d has %ld points, but needs at least 1", d, n);
    }
    if (!dpari_spatial_touches(layer, d)) {
        return DPAR_OK;
    }
    if (layer->padding[d] < DPAR_SPATIAL_PAD_ZERO || layer->padding[d] > DPAR_SPATIAL_PAD_LOWEST) {
        return dpari_wrong(why, "dim %d: padding is %d; 0 to 4 are allowed", d, layer->padding[d]);
    }
    if (window->kernel < 0 || window->kernel > dpari_spatial_limit || window->stride < 0 ||
        window->dilation < 0 || window->stride > dpari_spatial_limit ||
        window->dilation > dpari_spatial_limit || window->pad_low < 0 || window->pad_high < 0 ||
        window->pad_low > dpari_spatial_limit || window->pad_high > dpari_spatial_limit ||
        layer->out_extent[d] < 0 || n > dpari_spatial_limit) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "dim %d of %ld points, kernel %ld, stride %ld: one of them, or dilation, a pad or "
            "out_extent, is not in 0 to 2^30",
            d, n, window->kernel, window->stride);
    }
    if (layer->kind == DPAR_SPATIAL_CONVOLUTION) {
        status = dpar_window_outputs(window, n, m, why);
    } else {
        status = dpari_spatial_other_extent(layer, d, m, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (layer->out_extent[d] != 0 && layer->out_extent[d] != *m) {
        return dpari_wrong(why, "dim %d: out_extent is %ld, but there are %ld outputs", d,
                           layer->out_extent[d], *m);
    }
    if (layer->kind == DPAR_SPATIAL_CONVOLUTION && layer->padding[d] == DPAR_SPATIAL_PAD_REFLECT &&
        (window->pad_low >= n || window->pad_high >= n)) {
        return dpari_wrong(why, "dim %d: pads of %ld and %ld are too large to reflect %ld points",
                           d, window->pad_low, window->pad_high, n);
    }
    return DPAR_OK;
}

/* ---- one dim: what outputs read -------------------------------------------------------------- */

/* Returns the input at or before output y of an interpolation.
 *
 * fraction: receives the distance from that input to y, 0 <= fraction < 1. */
static int64_t dpari_spatial_source(const dpar_spatial_desc *layer, int32_t d, int64_t y,
                                    double *fraction)
{
    const int64_t n = layer->in.extent[d], m = layer->out_extent[d];
    int64_t over = (2 * y + 1) * n - m, under = 2 * m, first;
    if (layer->align_corners) {
        over = y * (n - 1);
        under = m > 1 ? m - 1 : 1;
    } else if (layer->window[d].kernel == 1) {
        over = y * n; /* nearest, as in PyTorch, without the half */
        under = m;
    }
    first = dpari_floor_div(over, under);
    *fraction = (double)(over - first * under) / (double)under;
    return first;
}

/* Sets [*lo, *hi) to the inputs that the outputs [y0, y1) read, padding included. Returns 0 if they
 * read none. */
static int dpari_spatial_reads(const dpar_spatial_desc *layer, int32_t d, int64_t y0, int64_t y1,
                               int64_t *lo, int64_t *hi)
{
    const int64_t k = layer->window[d].kernel;
    dpar_window window;
    double fraction;
    if (y1 <= y0) {
        return 0;
    }
    if (!dpari_spatial_window(layer, d, &window)) {
        *lo = y0;
        *hi = y1;
        return 1;
    }
    if (layer->kind == DPAR_SPATIAL_INTERPOLATION) { /* dpari_window_reads leaves padding out */
        *lo = dpari_spatial_source(layer, d, y0, &fraction) - (k == 4);
        *hi = dpari_spatial_source(layer, d, y1 - 1, &fraction) - (k == 4) + k;
        return 1;
    }
    return dpari_window_reads(&window, layer->in.extent[d], y1, y0, y1, lo, hi);
}

/* Returns how many of the taps are in [lo, hi). */
static int64_t dpari_spatial_within(const dpar_spatial_tap_range *taps, int64_t lo, int64_t hi)
{
    const int64_t a = dpari_most(0, -dpari_floor_div(-(lo - taps->first), taps->step));
    const int64_t b = dpari_least(taps->count, -dpari_floor_div(-(hi - taps->first), taps->step));
    return dpari_most(0, b - a);
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_taps(const dpar_spatial_desc *layer, int32_t dim,
                                                  int64_t y, dpar_spatial_tap_range *taps)
{
    int64_t m, lo = 0, hi = 0;
    dpar_spatial_tap_range range;
    if (layer == NULL || taps == NULL || dim < 0 || dim >= layer->in.dims || dim >= DPAR_MAX_DIMS ||
        dpari_spatial_extent(layer, dim, &m, NULL) != DPAR_OK || y < 0 || y >= m) {
        return DPAR_E_ARG;
    }
    dpari_zero(&range, sizeof range);
    range.step = 1;
    if (dpari_spatial_reads(layer, dim, y, y + 1, &lo, &hi)) {
        range.first = lo;
        range.count = hi - lo;
    }
    if (dpari_spatial_touches(layer, dim) &&
        (layer->kind == DPAR_SPATIAL_CONVOLUTION || layer->kind == DPAR_SPATIAL_NEIGHBOURHOOD)) {
        range.step = dpari_spatial_dilation(layer, dim);
        range.count = layer->window[dim].kernel;
    }
    if (dpari_spatial_touches(layer, dim) && layer->kind == DPAR_SPATIAL_INTERPOLATION) {
        (void)dpari_spatial_source(layer, dim, y, &range.fraction);
    }
    range.inside = dpari_spatial_within(&range, 0, layer->in.extent[dim]);
    range.padded = range.inside;
    if (dpari_spatial_touches(layer, dim)) {
        range.padded = dpari_spatial_within(&range, -layer->window[dim].pad_low,
                                            layer->in.extent[dim] + layer->window[dim].pad_high);
    }
    *taps = range;
    return DPAR_OK;
}

/* ---- one dim: blocks ------------------------------------------------------------------------- */

/* A block of a dim, as ranges from [0] to before [1]: own inputs, outputs, and the box of the input
 * array. Empty ranges have [1] <= [0]. */
typedef struct dpari_spatial_block {
    int64_t own[2], out[2], box[2];
} dpari_spatial_block;

/* Sets `out` to the outputs that follow the inputs [own[0], own[1]). The dim has m outputs. */
static void dpari_spatial_follow(const dpar_spatial_desc *layer, int32_t d, int64_t m,
                                 const int64_t *own, int64_t *out)
{
    dpar_window window;
    if (dpari_spatial_window(layer, d, &window)) {
        dpari_window_owned(&window, layer->in.extent[d], m, own[0], own[1], &out[0], &out[1]);
    } else {
        out[0] = own[0];
        out[1] = own[1];
    }
}

/* Sets the outputs of a block. balanced: the layout of the outputs, unless they follow the inputs.
 */
static void dpari_spatial_set_outputs(const dpar_spatial_desc *layer, const dpar_layout *balanced,
                                      int32_t d, int64_t m, const int32_t *coord,
                                      dpari_spatial_block *block)
{
    if (layer->outputs != DPAR_SPATIAL_OUTPUTS_FOLLOW) {
        (void)dpari_layout_span(balanced, coord, d, &block->out[0], &block->out[1]);
    } else if (block->own[1] > block->own[0]) {
        dpari_spatial_follow(layer, d, m, block->own, block->out);
    }
}

/* Widens a range so that it holds [lo, hi), unless [lo, hi) is empty. */
static void dpari_spatial_widen(int64_t *box, int64_t lo, int64_t hi)
{
    if (hi <= lo) {
        return;
    }
    if (box[1] <= box[0]) {
        box[0] = lo;
        box[1] = hi;
    }
    box[0] = dpari_least(box[0], lo);
    box[1] = dpari_most(box[1], hi);
}

/* Widens `box` so that it holds the points from which the padding among the inputs [lo, hi) is
 * copied. */
static void dpari_spatial_widen_sources(const dpar_spatial_desc *layer, int32_t d, int64_t lo,
                                        int64_t hi, int64_t *box)
{
    const int64_t n = layer->in.extent[d];
    const int32_t padding = dpari_spatial_padding(layer, d);
    if (padding == DPAR_SPATIAL_PAD_REPLICATE) {
        dpari_spatial_widen(box, 0, lo < 0 ? 1 : 0);
        dpari_spatial_widen(box, n - 1, hi > n ? n : n - 1);
    }
    if (padding == DPAR_SPATIAL_PAD_REFLECT && lo < 0) {
        dpari_spatial_widen(box, 1 - dpari_least(hi, 0), dpari_least(n, 1 - lo));
    }
    if (padding == DPAR_SPATIAL_PAD_REFLECT && hi > n) {
        dpari_spatial_widen(box, dpari_most(0, 2 * (n - 1) - (hi - 1)),
                            2 * (n - 1) - dpari_most(lo, n) + 1);
    }
}

/* Computes the block of a dim at the mesh coordinates `coord`. */
static void dpari_spatial_block_of(const dpar_spatial_desc *layer, const dpar_layout *balanced,
                                   int32_t d, const int32_t *coord, dpari_spatial_block *block)
{
    int64_t m, lo, hi;
    dpari_zero(block, sizeof *block);
    (void)dpari_spatial_extent(layer, d, &m, NULL);
    (void)dpari_layout_span(&layer->in, coord, d, &block->own[0], &block->own[1]);
    dpari_spatial_set_outputs(layer, balanced, d, m, coord, block);
    dpari_spatial_widen(block->box, block->own[0], block->own[1]);
    if (dpari_spatial_reads(layer, d, block->out[0], block->out[1], &lo, &hi)) {
        dpari_spatial_widen(block->box, lo, hi);
        dpari_spatial_widen_sources(layer, d, lo, hi, block->box);
    }
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Checks that the layout of the outputs has the right extents, and that the same mesh axes cut the
 * same dims as in the layout of the inputs. */
static dpar_status dpari_spatial_check_given(const dpar_spatial_desc *layer, const int64_t *m,
                                             dpar_why *why)
{
    const dpar_layout *in = &layer->in, *g = &layer->given_layout;
    int32_t i;
    for (i = 0; i < in->dims; i++) {
        if (g->dims != in->dims || g->extent[i] != m[i]) {
            return dpari_wrong(why, "the layer has %ld outputs in dim %d, but given_layout has %ld",
                               m[i], i, g->dims == in->dims ? g->extent[i] : 0);
        }
    }
    for (i = 0; i < in->mesh.axes; i++) {
        const dpar_placement *a = &in->axis[i], *b = &g->axis[i];
        if (!dpari_mesh_same(&in->mesh, &g->mesh) || a->kind != b->kind ||
            (a->kind == DPAR_PLACEMENT_SHARD && a->dim != b->dim)) {
            return dpari_wrong(why, "mesh axis %d does not cut given_layout as it cuts the inputs",
                               i);
        }
    }
    return DPAR_OK;
}

/* Checks a layer and sets m[] to its outputs of each dim. */
static dpar_status dpari_spatial_check_layer(const dpar_spatial_desc *layer, int64_t *m,
                                             dpar_why *why)
{
    int32_t d;
    if (layer->in.dims < 0 || layer->in.dims > DPAR_MAX_DIMS || layer->in.mesh.size < 1) {
        return dpari_wrong(why, "`in` has %d dims on %d ranks: make it with dpar_layout_init",
                           layer->in.dims, layer->in.mesh.size);
    }
    if (layer->kind < DPAR_SPATIAL_CONVOLUTION || layer->kind > DPAR_SPATIAL_NEIGHBOURHOOD ||
        layer->outputs < DPAR_SPATIAL_OUTPUTS_BALANCED ||
        layer->outputs > DPAR_SPATIAL_OUTPUTS_GIVEN) {
        return dpari_wrong(why,
                           "kind is %d and outputs is %d; kinds 1 to 4 and outputs 0 to 2 are "
                           "allowed",
                           layer->kind, layer->outputs);
    }
    if (layer->tensors < 0 || layer->tensors > DPAR_SPATIAL_MAX_TENSORS || layer->planes < 0 ||
        layer->planes > INT32_MAX || layer->out_planes < 0 || layer->out_planes > INT32_MAX ||
        dpar_type_bytes(layer->type) == 0) {
        return dpari_wrong(
            why,
            "the layer has %d tensors, %ld planes and %ld out_planes of type %s; 0 to 4 tensors, 0 "
            "to 2^31 - 1 planes, and types of whole bytes are allowed",
            layer->tensors, layer->planes, layer->out_planes, dpar_type_name(layer->type));
    }
    if (layer->input_gradient != NULL && !dpari_type_can_reduce(layer->type)) {
        return dpari_wrong(why, "gradients of type %s cannot be added up",
                           dpar_type_name(layer->type));
    }
    for (d = 0; d < layer->in.dims; d++) {
        const dpar_status status = dpari_spatial_extent(layer, d, &m[d], why);
        if (status != DPAR_OK) {
            return status;
        }
        if (layer->padding[d] == DPAR_SPATIAL_PAD_LOWEST && layer->type == DPAR_F8) {
            return dpari_wrong(
                why,
                "dim %d: the lowest f8 depends on the encoding, so that you must fill this padding "
                "yourself",
                d);
        }
    }
    if (layer->outputs == DPAR_SPATIAL_OUTPUTS_GIVEN) {
        return dpari_spatial_check_given(layer, m, why);
    }
    return DPAR_OK;
}

/* True if axis i is the only axis that cuts its dim. */
static int dpari_spatial_is_only_axis(const dpar_layout *layout, int32_t i)
{
    int32_t k;
    for (k = 0; k < layout->mesh.axes; k++) {
        if (k != i && layout->axis[k].kind == DPAR_PLACEMENT_SHARD &&
            layout->axis[k].dim == layout->axis[i].dim) {
            return 0;
        }
    }
    return 1;
}

/* Sets cuts[parts + 1] between the outputs that follow the inputs along axis i. */
static void dpari_spatial_cuts(const dpar_spatial_desc *layer, int32_t i, int64_t m, int64_t *cuts)
{
    int32_t coord[DPAR_MAX_AXES], p;
    dpari_zero(coord, sizeof coord);
    cuts[0] = 0;
    for (p = 0; p < layer->in.mesh.axis[i].size; p++) {
        int64_t own[2] = {0, 0}, out[2] = {0, 0};
        coord[i] = p;
        if (dpari_layout_span(&layer->in, coord, layer->in.axis[i].dim, &own[0], &own[1])) {
            dpari_spatial_follow(layer, layer->in.axis[i].dim, m, own, out);
        }
        cuts[p + 1] = dpari_most(cuts[p], out[1]);
    }
}

DPARI_INTERNAL dpar_status dpari_spatial_layout(const dpar_spatial_desc *layer, const int64_t *m,
                                                int64_t *cuts, dpar_layout *out, dpar_why *why)
{
    dpar_placement placement[DPAR_MAX_AXES];
    int32_t i;
    if (layer->outputs == DPAR_SPATIAL_OUTPUTS_GIVEN) {
        *out = layer->given_layout;
        return DPAR_OK;
    }
    for (i = 0; i < layer->in.mesh.axes; i++) {
        placement[i] = layer->in.axis[i];
        if (placement[i].kind != DPAR_PLACEMENT_SHARD ||
            !dpari_spatial_touches(layer, placement[i].dim)) {
            continue;
        }
        placement[i] = dpar_shard_by(placement[i].dim, DPAR_SPLIT_EVEN, 0);
        placement[i].order = layer->in.axis[i].order;
        if (layer->outputs == DPAR_SPATIAL_OUTPUTS_FOLLOW &&
            !dpari_spatial_is_only_axis(&layer->in, i)) {
            return dpari_wrong(
                why, "DPAR_SPATIAL_OUTPUTS_FOLLOW: dim %d is cut by more than one mesh axis",
                placement[i].dim);
        }
        if (layer->outputs == DPAR_SPATIAL_OUTPUTS_FOLLOW && cuts != NULL) {
            placement[i].rule = DPAR_SPLIT_RAGGED;
            placement[i].cuts = cuts;
            dpari_spatial_cuts(layer, i, m[placement[i].dim], cuts);
            cuts += layer->in.mesh.axis[i].size + 1;
        }
    }
    return dpar_layout_init(out, &layer->in.mesh, layer->in.dims, m, placement, why);
}

DPARI_INTERNAL dpar_status dpari_spatial_outputs(const dpar_spatial_desc *layer, int64_t *m,
                                                 dpar_why *why)
{
    dpar_layout out;
    dpar_status status;
    if (layer == NULL) {
        return dpari_wrong(why, "the layer is NULL");
    }
    status = dpari_spatial_check_layer(layer, m, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_spatial_layout(layer, m, NULL, &out, why);
}

/* ---- the boxes of a rank --------------------------------------------------------------------- */

/* Returns the number of blocks of a dim. */
static int64_t dpari_spatial_blocks(const dpar_layout *layout, int32_t d)
{
    int64_t n = 1;
    int32_t i;
    for (i = 0; i < layout->mesh.axes; i++) {
        if (layout->axis[i].kind == DPAR_PLACEMENT_SHARD && layout->axis[i].dim == d) {
            n *= layout->mesh.axis[i].size;
        }
    }
    return n;
}

/* Sets the mesh coordinates of block b of a dim. The first axis that cuts the dim varies slowest.
 */
static void dpari_spatial_coords(const dpar_layout *layout, int32_t d, int64_t b, int32_t *coord)
{
    int32_t i;
    dpari_zero(coord, DPAR_MAX_AXES * sizeof *coord);
    for (i = layout->mesh.axes - 1; i >= 0; i--) {
        const int32_t a = layout->order[i];
        if (layout->axis[a].kind == DPAR_PLACEMENT_SHARD && layout->axis[a].dim == d) {
            coord[a] = (int32_t)(b % layout->mesh.axis[a].size);
            b /= layout->mesh.axis[a].size;
        }
    }
}

/* Sets `hull` to the points that the halo's window provides to a block: its own points and those
 * that its outputs read. Interpolations that wrap, and padding whose source no output reads, need
 * more points, which the width of the halo provides. */
static void dpari_spatial_hull_of(const dpar_halo *halo, int32_t d, int64_t outputs,
                                  const dpari_spatial_block *block, int64_t *hull)
{
    int64_t lo, hi;
    hull[0] = block->own[0];
    hull[1] = block->own[1];
    if (halo->window[d].kernel != 0 &&
        dpari_window_reads(&halo->window[d], halo->grid.extent[d], outputs, block->out[0],
                           block->out[1], &lo, &hi)) {
        dpari_spatial_widen(hull, lo, hi);
    }
}

/* Sets dim d of the halo. out: the layout of the outputs; not used for outputs that follow. */
static void dpari_spatial_halo_dim(const dpar_spatial_desc *layer, const dpar_layout *out,
                                   int32_t d, dpar_halo *halo)
{
    int32_t coord[DPAR_MAX_AXES];
    dpari_spatial_block block;
    dpar_window window;
    int64_t hull[2], b;
    if (dpari_spatial_touches(layer, d) && layer->padding[d] == DPAR_SPATIAL_PAD_WRAP) {
        halo->periodic |= (uint32_t)1 << d;
    }
    if (dpari_spatial_window(layer, d, &window)) {
        halo->window[d] = window;
    }
    for (b = dpari_spatial_blocks(&layer->in, d) - 1; b >= 0; b--) {
        dpari_spatial_coords(&layer->in, d, b, coord);
        dpari_spatial_block_of(layer, out, d, coord, &block);
        dpari_spatial_hull_of(halo, d, out->extent[d], &block, hull);
        if (hull[1] > hull[0]) {
            halo->low[d] = dpari_most(halo->low[d], hull[0] - block.box[0]);
            halo->high[d] = dpari_most(halo->high[d], block.box[1] - hull[1]);
        }
    }
}

DPARI_INTERNAL void dpari_spatial_halo(const dpar_spatial_desc *layer, const dpar_layout *out,
                                       dpar_halo *halo)
{
    int32_t d;
    dpari_zero(halo, sizeof *halo);
    halo->grid = layer->in;
    halo->shape = DPAR_STENCIL_BOX;
    halo->outputs = out;
    for (d = 0; d < layer->in.dims; d++) {
        dpari_spatial_halo_dim(layer, out, d, halo);
    }
}

/* Sets dim d of a box. If the range is empty, clears the box, which then stays empty. */
static void dpari_spatial_set_range(dpar_box *box, int32_t d, const int64_t *range)
{
    if (range[1] <= range[0]) {
        dpari_zero(box, sizeof *box);
    }
    if (d < box->dims) {
        box->lo[d] = range[0];
        box->hi[d] = range[1];
    }
}

DPARI_INTERNAL void dpari_spatial_boxes_of(const dpar_spatial_desc *layer, const int64_t *m,
                                           int32_t rank, dpar_box *own, dpar_box *out, dpar_box *in)
{
    int32_t coord[DPAR_MAX_AXES], d;
    dpari_spatial_block block;
    dpar_layout balanced;
    dpar_halo halo;
    int64_t hull[2];
    dpari_zero(own, sizeof *own);
    *out = *in = *own;
    if (dpari_spatial_layout(layer, m, NULL, &balanced, NULL) != DPAR_OK ||
        !dpar_mesh_coords(&layer->in.mesh, rank, coord)) {
        return;
    }
    own->dims = out->dims = in->dims = layer->in.dims;
    dpari_spatial_halo(layer, &balanced, &halo);
    for (d = 0; d < layer->in.dims; d++) {
        dpari_spatial_block_of(layer, &balanced, d, coord, &block);
        dpari_spatial_hull_of(&halo, d, balanced.extent[d], &block, hull);
        if (hull[1] > hull[0]) {
            hull[0] -= halo.low[d];
            hull[1] += halo.high[d];
        }
        dpari_spatial_set_range(own, d, block.own);
        dpari_spatial_set_range(out, d, block.out);
        dpari_spatial_set_range(in, d, hull);
    }
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_check(const dpar_spatial_desc *layer, int32_t rank,
                                                   dpar_spatial_boxes *boxes, dpar_why *why)
{
    dpar_spatial_boxes b;
    dpar_box own;
    const dpar_status status = dpari_spatial_outputs(layer, b.extent, why);
    if (status == DPAR_OK && boxes != NULL) {
        dpari_spatial_boxes_of(layer, b.extent, rank, &own, &b.out, &b.in);
        *boxes = b;
    }
    return status;
}

DPARI_INTERNAL int dpari_spatial_needs(const dpar_spatial_desc *layer, const dpar_box *out,
                                       dpar_box *in)
{
    int32_t d;
    in->dims = out->dims;
    for (d = 0; d < out->dims; d++) {
        if (!dpari_spatial_reads(layer, d, out->lo[d], out->hi[d], &in->lo[d], &in->hi[d])) {
            return 0;
        }
    }
    return 1;
}

DPARI_INTERNAL void dpari_spatial_inner(const dpar_spatial_desc *layer, int32_t d,
                                        const int64_t *own, const int64_t *out, int64_t *core)
{
    const int constant = dpari_spatial_pads_constant(layer, d);
    const int64_t low = constant && own[0] == 0 ? INT64_MIN : own[0];
    const int64_t high = constant && own[1] == layer->in.extent[d] ? INT64_MAX : own[1];
    int64_t lo = 0, hi = 0;
    core[0] = out[0];
    core[1] = out[1];
    while (dpari_spatial_reads(layer, d, core[0], core[1], &lo, &hi) && lo < low) {
        core[0]++;
    }
    while (dpari_spatial_reads(layer, d, core[0], core[1], &lo, &hi) && hi > high) {
        core[1]--;
    }
}

/* ---- tiles ----------------------------------------------------------------------------------- */

DPARI_INTERNAL int64_t dpari_tile_at(const dpar_tile *tile, int64_t plane, const int64_t *point)
{
    int64_t at = tile->origin + plane * tile->plane;
    int32_t d;
    for (d = 0; d < tile->box.dims; d++) {
        at += point[d] * tile->stride[d];
    }
    return at;
}

DPAR_API DPARI_COLD void dpar_tile_init(dpar_tile *tile, void *data, const dpar_box *box,
                                        int64_t planes, int32_t last)
{
    int64_t step = last ? planes : 1;
    int32_t d;
    dpari_zero(tile, sizeof *tile);
    tile->data = data;
    tile->planes = planes;
    tile->box = *box;
    for (d = box->dims - 1; d >= 0; d--) {
        tile->stride[d] = step;
        tile->origin -= box->lo[d] * step;
        step *= box->hi[d] - box->lo[d];
    }
    tile->plane = last ? 1 : step;
}

/* ==== spatial/spatial.c ==== */

/* Runs layers of networks on a field that ranks share.
 *
 * The plan has a halo exchange that covers the inputs that a rank reads (spatial_boxes.h). In
 * forward the exchange begins, and the kernel runs on the core: the outputs that read only own
 * points and constants. Then the exchange ends, padding is filled dim by dim, so that corners are
 * filled from corners, and the kernel runs on the slabs around the core. Backward runs the adjoint
 * steps in reverse order: gradients of padding are added to the points from which it was copied,
 * the last dim first, and gradients of halos are added to those of their owners. */

/* A plan: the public part and the private fields. */
typedef struct dpari_spatial {
    dpar_spatial_plan head;
    dpar_comm *comm;
    dpar_box core;            /* outputs that need no halo */
    dpar_halo_plan *exchange; /* NULL if there is one rank, and it needs no own values as a halo */
    dpar_halo halo;
    dpar_halo_field field[DPAR_SPATIAL_MAX_TENSORS];
    unsigned char *constants; /* values of padding, in the memory of a device; otherwise NULL */
} dpari_spatial;

/* ---- planning -------------------------------------------------------------------------------- */

/* Returns the bytes of a plan before its halo exchange: its struct, and from a multiple of
 * DPARI_ROOM_ALIGN on the cuts of outputs that follow. */
static int64_t dpari_spatial_own_bytes(const dpar_spatial_desc *layer)
{
    int64_t cuts = 0;
    int32_t i;
    for (i = 0; i < layer->in.mesh.axes; i++) {
        cuts += layer->in.mesh.axis[i].size + 1;
    }
    return dpari_room_up((int64_t)sizeof(dpari_spatial)) + dpari_room_up(8 * cuts);
}

/* Describes the array of an input, or of its gradients, as a tile. */
static void dpari_spatial_input_tile(const dpari_spatial *plan, void *data, dpar_tile *tile)
{
    dpar_tile_init(tile, data, &plan->head.in_box, plan->head.layer.planes,
                   plan->head.layer.channels_last);
}

/* Sets the core of a plan. It stays empty if the kernel must not run before all halos have arrived.
 */
static void dpari_spatial_core(dpari_spatial *plan)
{
    dpar_box core = plan->head.out_owned;
    int32_t d;
    if (plan->head.layer.no_overlap || plan->head.in_owned.dims == 0) {
        return;
    }
    for (d = 0; d < core.dims; d++) {
        const int64_t own[2] = {plan->head.in_owned.lo[d], plan->head.in_owned.hi[d]};
        const int64_t out[2] = {plan->head.out_owned.lo[d], plan->head.out_owned.hi[d]};
        int64_t inner[2];
        dpari_spatial_inner(&plan->head.layer, d, own, out, inner);
        core.lo[d] = inner[0];
        core.hi[d] = inner[1];
        if (inner[1] <= inner[0]) {
            return;
        }
    }
    plan->core = core;
}

/* Describes the inputs as fields of a halo exchange: dense planes of in_box. least: the box of
 * their halo. */
static void dpari_spatial_fields(dpari_spatial *plan, const dpar_box *least)
{
    const dpar_spatial_desc *layer = &plan->head.layer;
    dpar_tile tile;
    int32_t i, d;
    dpari_spatial_input_tile(plan, NULL, &tile);
    for (i = 0; i < layer->tensors; i++) {
        dpar_halo_field *field = &plan->field[i];
        dpari_zero(field, sizeof *field);
        field->halo = &plan->halo;
        field->type = layer->type;
        field->components = (int32_t)layer->planes;
        field->component_stride = tile.plane;
        field->mem = plan->comm->mem;
        field->data =
            plan->head.in_box.dims > 0 ? plan : NULL; /* not NULL; each step binds its arrays */
        for (d = 0; d < plan->head.in_box.dims; d++) {
            const int64_t first =
                plan->head.in_owned.dims > 0 ? plan->head.in_owned.lo[d] : least->lo[d];
            field->stride[d] = tile.stride[d];
            field->first[d] = first - plan->head.in_box.lo[d];
        }
    }
}

/* True if an array over the box has at most 2^60 elements, and the offsets of global indices are at
 * most 2^60, too, so that their sums do not overflow. */
static int dpari_spatial_fits(const dpar_box *box, int64_t planes)
{
    const int64_t most = INT64_C(1) << 60;
    int64_t step = planes, sum = 0, reach;
    int32_t d;
    for (d = box->dims - 1; d >= 0; d--) {
        const int64_t lo = box->lo[d], hi = box->hi[d];
        if (lo < -most || hi > most || hi < lo ||
            !dpari_mul(step, dpari_most(-lo, dpari_most(hi, -hi)), &reach) || reach > most - sum ||
            !dpari_mul(step, dpari_most(hi - lo, 1), &step) || step > most) {
            return 0;
        }
        sum += reach;
    }
    return 1;
}

/* Sets the box of the input arrays: the caller's, which must contain `least`, or `least` if there
 * is none. */
static dpar_status dpari_spatial_choose_box(dpari_spatial *plan, const dpar_box *least,
                                            dpar_why *why)
{
    const dpar_box *given = &plan->head.layer.in_box;
    plan->head.in_box = *least;
    if (given->dims != 0) {
        if (given->dims != plan->head.layer.in.dims || !dpari_spatial_fits(given, 1)) {
            return dpari_wrong(
                why, "in_box has %d dims; it must have %d, with lo <= hi, and indices within 2^60",
                given->dims, plan->head.layer.in.dims);
        }
        if (least->dims > 0 || dpar_box_volume(given) > 0) {
            plan->head.in_box = *given;
        }
    }
    if (least->dims > 0 && !dpari_box_contains(&plan->head.in_box, least)) {
        return dpari_wrong(why, "rank %d: in_box does not contain the box of dpar_spatial_check",
                           plan->comm->rank);
    }
    if (!dpari_spatial_fits(&plan->head.in_box, plan->head.layer.planes) ||
        !dpari_spatial_fits(&plan->head.out_owned, plan->head.layer.out_planes)) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "%ld planes of inputs or %ld of outputs on rank %d have more than 2^60 elements",
            plan->head.layer.planes, plan->head.layer.out_planes, plan->comm->rank);
    }
    return DPAR_OK;
}

/* Sets all fields of a plan except its exchange, in dpari_spatial_own_bytes bytes. Local. */
static dpar_status dpari_spatial_set_plan(unsigned char *memory, dpar_comm *comm,
                                          const dpar_spatial_desc *layer, dpar_why *why)
{
    dpari_spatial *plan = (dpari_spatial *)(void *)memory;
    int64_t m[DPAR_MAX_DIMS];
    int64_t *cuts = (int64_t *)(void *)(memory + dpari_room_up((int64_t)sizeof *plan));
    dpar_box least;
    dpar_status status;
    dpari_zero(plan, sizeof *plan);
    plan->comm = comm;
    plan->head.layer = *layer;
    plan->head.layer.tensors = layer->tensors > 0 ? layer->tensors : 1;
    plan->head.layer.planes = layer->planes > 0 ? layer->planes : 1;
    plan->head.layer.out_planes =
        layer->out_planes > 0 ? layer->out_planes : plan->head.layer.planes;
    (void)dpari_spatial_outputs(&plan->head.layer, m, NULL);
    status = dpari_spatial_layout(&plan->head.layer, m, cuts, &plan->head.out, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_spatial_boxes_of(&plan->head.layer, m, comm->rank, &plan->head.in_owned,
                           &plan->head.out_owned, &least);
    dpari_spatial_halo(&plan->head.layer, &plan->head.out, &plan->halo);
    status = dpar_halo_check(&plan->halo, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&least, sizeof least);
    (void)dpar_halo_box(&plan->halo, comm->rank, &least);
    status = dpari_spatial_choose_box(plan, &least, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_spatial_core(plan);
    dpari_spatial_fields(plan, &least);
    return DPAR_OK;
}

/* Describes the exchange of halos of a layer. */
static DPARI_COLD void dpari_spatial_exchange_desc(const dpari_spatial *p,
                                                   const dpar_spatial_desc *layer,
                                                   dpar_halo_plan_desc *desc)
{
    dpari_zero(desc, sizeof *desc);
    if (layer->halo != NULL) {
        *desc = *layer->halo;
    }
    desc->field = p->field;
    desc->field_count = p->head.layer.tensors;
}

/* Checks a layer and counts the bytes of its plan, which is set in temporary memory for that.
 * Local. */
static DPARI_COLD dpar_status dpari_spatial_count(dpar_comm *comm, const dpar_spatial_desc *layer,
                                                  int64_t *need, dpar_why *why)
{
    void *memory;
    int64_t m[DPAR_MAX_DIMS], own, more = 0;
    dpar_status status = dpari_spatial_outputs(layer, m, why);
    if (status != DPAR_OK) {
        return status;
    }
    own = dpari_spatial_own_bytes(layer);
    memory = dpari_os_pages(own);
    if (memory == NULL) {
        return dpari_say(DPAR_E_MEMORY, why, "dpar_spatial_make: no memory for %ld temporary bytes",
                         own);
    }
    status = dpari_spatial_set_plan((unsigned char *)memory, comm, layer, why);
    if (status == DPAR_OK) {
        dpar_halo_plan_desc desc;
        dpari_spatial_exchange_desc((const dpari_spatial *)memory, layer, &desc);
        status = dpari_hx_bytes(comm, &desc, &more, why);
    }
    dpari_os_unmap(memory, own);
    *need = own + more;
    return status;
}

/* States the fields that must be equal on all ranks, in addition to those that the halo exchange
 * compares. */
static DPARI_COLD void dpari_spatial_state(dpari_facts *facts, const void *given)
{
    const dpar_spatial_desc *layer = (const dpar_spatial_desc *)given;
    int32_t d;
    dpari_fact(facts, "kind", 0, layer->kind);
    dpari_fact(facts, "outputs", 0, layer->outputs);
    dpari_fact(facts, "tensors", 0, layer->tensors);
    dpari_fact(facts, "planes", 0, layer->planes);
    dpari_fact(facts, "out_planes", 0, layer->out_planes);
    dpari_fact(facts, "align_corners", 0, layer->align_corners != 0);
    dpari_fact(facts, "channels_last", 0, layer->channels_last != 0);
    dpari_fact(facts, "input_gradient != NULL", 0, layer->input_gradient != NULL);
    dpari_fact_type(facts, "type", 0, layer->type);
    dpari_fact(facts, "in.dims", 0, layer->in.dims);
    for (d = 0; d < layer->in.dims; d++) {
        const dpar_window *window = &layer->window[d];
        dpari_fact(facts, "in.extent[#]", d, layer->in.extent[d]);
        dpari_fact(facts, "out_extent[#]", d, layer->out_extent[d]);
        dpari_fact(facts, "padding[#]", d, layer->padding[d]);
        dpari_fact(facts, "window[#].kernel", d, window->kernel);
        dpari_fact(facts, "window[#].stride", d, window->stride);
        dpari_fact(facts, "window[#].dilation", d, window->dilation);
        dpari_fact(facts, "window[#].pad_low", d, window->pad_low);
        dpari_fact(facts, "window[#].pad_high", d, window->pad_high);
        dpari_fact(facts, "window[#].ceil_mode", d, window->ceil_mode != 0);
    }
}

/* Writes the lowest number of a type: minus infinity, or the least integer. */
static void dpari_spatial_lowest(int32_t type, unsigned char *element)
{
    const uint64_t one = 1;
    uint64_t bits = 0;
    int32_t n = dpar_type_bytes(type), i;
    switch (type) {
    case DPAR_F64: bits = UINT64_C(0xfff) << 52; break;
    case DPAR_F32:
    case DPAR_TF32: bits = UINT64_C(0xff800000); break;
    case DPAR_BF16: bits = 0xff80; break;
    case DPAR_F16: bits = 0xfc00; break;
    case DPAR_I8:
    case DPAR_I32:
    case DPAR_I64: bits = one << (8 * n - 1); break;
    default: break;
    }
    for (i = 0; i < n; i++) {
        const int32_t shift = *(const unsigned char *)(const void *)&one == 1 ? i : n - 1 - i;
        element[i] = (unsigned char)(bits >> (8 * shift));
    }
}

/* The offsets of the values of padding in a device's memory: a zero, and the lowest number of the
 * type. */
enum { DPARI_SPATIAL_ZERO = 0, DPARI_SPATIAL_LOWEST = 8, DPARI_SPATIAL_CONSTANTS = 16 };

/* Allocates the values of padding and computes the lowest number. The only operation of a device
 * for that scales a span of floats, so that integers are written as floats with the same bits. */
static dpar_status dpari_spatial_constants(const dpari_spatial *plan, void **constants,
                                           dpar_why *why)
{
    const int32_t type = plan->head.layer.type;
    dpar_mem_span span;
    const dpar_status status = dpar_comm_alloc(plan->comm, DPARI_SPATIAL_CONSTANTS, constants);
    if (status != DPAR_OK) {
        *constants = NULL;
        return dpari_say(status, why, "no memory for %d bytes of padding values",
                         (int32_t)DPARI_SPATIAL_CONSTANTS);
    }
    dpari_zero(&span, sizeof span);
    span.to = (unsigned char *)*constants + DPARI_SPATIAL_LOWEST;
    span.to_type = span.from_type = type == DPAR_TF32 ? (int32_t)DPAR_F32 : type;
    span.count = 1;
    dpari_spatial_lowest(DPAR_F64, (unsigned char *)(void *)&span.scale);
    if (type == DPAR_I32 || type == DPAR_I64) { /* -0 has the bits of the least integer */
        span.to_type = span.from_type = type == DPAR_I32 ? DPAR_F32 : DPAR_F64;
        span.from = *constants;
        span.scale = -1.0;
    } else if (type == DPAR_I8) { /* as BF16, -2^-126 has two bytes 0x80, the least i8 */
        span.to_type = span.from_type = DPAR_BF16;
        span.scale = -1.1754943508222875e-38;
    } else if (!dpari_is_float(span.to_type)) { /* unsigned: the lowest number is 0 */
        return DPAR_OK;
    }
    return dpari_do_span(plan->comm, &span, 1);
}

/* Checks a layer, takes the memory of its plan, and sets the plan except its exchange. Local. */
static DPARI_COLD dpar_status dpari_spatial_prepare(dpar_comm *comm, const dpar_spatial_desc *layer,
                                                    int64_t *need, void **memory, void **constants,
                                                    dpar_why *why)
{
    dpar_status status = dpari_spatial_count(comm, layer, need, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_object_memory(comm, layer->memory, layer->bytes, *need, "spatial", memory, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_spatial_set_plan((unsigned char *)*memory, comm, layer, why);
    if (status != DPAR_OK || comm->mem == NULL) {
        return status;
    }
    return dpari_spatial_constants((const dpari_spatial *)*memory, constants, why);
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_make(dpar_comm *comm, const dpar_spatial_desc *layer,
                                                  dpar_spatial_plan **plan, dpar_why *why)
{
    dpari_spatial *spatial;
    dpari_hx_traffic traffic;
    dpar_halo_plan_desc desc;
    void *memory = NULL, *constants = NULL;
    int64_t own, need = 0;
    int32_t k;
    dpar_status status;
    if (comm == NULL) {
        return dpari_wrong(why, "the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    if (plan == NULL) {
        status = dpari_wrong(why, "the plan is NULL");
    } else {
        status = dpari_spatial_prepare(comm, layer, &need, &memory, &constants, why);
    }
    spatial = (dpari_spatial *)memory;
    status = dpari_agree_on(comm, status, "spatial", dpari_spatial_state,
                            status == DPAR_OK ? &spatial->head.layer : NULL, why);
    if (status == DPAR_OK) {
        dpari_spatial_exchange_desc(spatial, layer, &desc);
        own = dpari_spatial_own_bytes(layer);
        desc.memory = (unsigned char *)memory + own;
        desc.bytes = need - own;
        status = dpari_hx_open(comm, &desc, 1, &spatial->exchange, why);
    }
    if (status != DPAR_OK) {
        if (constants != NULL) {
            dpar_comm_release(comm, constants);
        }
        return dpari_object_failed(status, layer != NULL ? layer->memory : NULL, memory, need, why);
    }
    for (k = 0; dpari_hx_traffic_of(spatial->exchange, k, &traffic); k++) {
        if (traffic.peer != comm->rank) {
            spatial->head.halo_bytes += traffic.bytes;
        }
    }
    spatial->constants = (unsigned char *)constants;
    *plan = &spatial->head;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_free(dpar_spatial_plan *plan)
{
    dpari_spatial *spatial = (dpari_spatial *)(void *)plan;
    dpar_status status;
    if (spatial == NULL) {
        return DPAR_OK;
    }
    status = dpar_halo_plan_free(spatial->exchange);
    if (dpari_object_refused(spatial->comm, status)) {
        return status;
    }
    if (spatial->constants != NULL) {
        dpar_comm_release(spatial->comm, spatial->constants);
    }
    return dpari_object_end(status, spatial->head.layer.memory == NULL ? spatial : NULL);
}

/* ---- padding --------------------------------------------------------------------------------- */

/* Returns the point from which cell i beyond the ends of a dim is copied, or -1 if it is a
 * constant. */
static int64_t dpari_spatial_image(int32_t padding, int64_t n, int64_t i)
{
    if (padding == DPAR_SPATIAL_PAD_REPLICATE) {
        return i < 0 ? 0 : n - 1;
    }
    if (padding == DPAR_SPATIAL_PAD_REFLECT) {
        i = i < 0 ? -i : 2 * (n - 1) - i;
        return i >= 0 && i < n ? i : -1;
    }
    return -1;
}

/* Operations on slices of padding: fill them, or add their gradients to those of their sources and
 * clear them. */
enum { DPARI_SPATIAL_FILL, DPARI_SPATIAL_FOLD };

/* Slices of a tile with the same operation. They are enqueued together, up to DPARI_SPATIAL_BOXES
 * in one call. */
enum { DPARI_SPATIAL_BOXES = 16 };
typedef struct dpari_spatial_slices {
    dpar_comm *comm;
    const dpar_tile *tile;
    int32_t type;
    int32_t what;                  /* DPARI_SPATIAL_FILL or _FOLD */
    const unsigned char *constant; /* the value of cells without a source */
    unsigned char here[8];         /* holds it if the memory is the host's */
    dpar_status status;
    int32_t count;
    dpar_mem_box box[DPARI_SPATIAL_BOXES];
} dpari_spatial_slices;

/* constant: DPARI_SPATIAL_ZERO or _LOWEST. */
static void dpari_spatial_slices_begin(dpari_spatial_slices *slices, const dpari_spatial *plan,
                                       const dpar_tile *tile, int32_t what, int32_t constant)
{
    slices->comm = plan->comm;
    slices->tile = tile;
    slices->type = plan->head.layer.type;
    slices->what = what;
    dpari_zero(slices->here, sizeof slices->here);
    if (plan->constants != NULL) {
        slices->constant = plan->constants + constant;
    } else {
        slices->constant = slices->here;
        if (constant == DPARI_SPATIAL_LOWEST) {
            dpari_spatial_lowest(slices->type, slices->here);
        }
    }
    slices->status = DPAR_OK;
    slices->count = 0;
}

/* Enqueues the boxes so far. Returns the first error of all runs. */
static dpar_status dpari_spatial_slices_run(dpari_spatial_slices *slices)
{
    if (slices->count > 0 && slices->status == DPAR_OK) {
        slices->status = dpari_do_move(slices->comm, slices->box, slices->count);
    }
    slices->count = 0;
    return slices->status;
}

/* Applies the operation to the cells at index i of dim d. Boxes that add and boxes that copy are
 * enqueued separately, because one call has one operation. from: the index of their source, or -1
 * if they are constants. */
static void dpari_spatial_slice(dpari_spatial_slices *slices, int32_t d, int64_t i, int64_t from)
{
    const dpar_tile *tile = slices->tile;
    const int32_t size = dpar_type_bytes(slices->type);
    const int sums = slices->what == DPARI_SPATIAL_FOLD && from >= 0;
    unsigned char *base = (unsigned char *)tile->data, *cells, *other;
    int64_t at[DPAR_MAX_DIMS];
    dpar_mem_box *b;
    int32_t k;
    if (slices->count == DPARI_SPATIAL_BOXES ||
        (slices->count > 0 && (slices->box[0].op == DPAR_SUM) != sums)) {
        (void)dpari_spatial_slices_run(slices);
    }
    for (k = 0; k < tile->box.dims; k++) {
        at[k] = k == d ? i : tile->box.lo[k];
    }
    cells = base + dpari_tile_at(tile, 0, at) * size;
    at[d] = from;
    other = base + (from >= 0 ? dpari_tile_at(tile, 0, at) * size : 0);
    b = &slices->box[slices->count++];
    dpari_zero(b, sizeof *b);
    b->to_type = b->from_type = b->round_type = slices->type;
    b->op = sums ? (int32_t)DPAR_SUM : (int32_t)DPAR_COPY;
    b->clear = sums;
    b->to = sums ? other : cells;
    if (sums) {
        b->from = cells;
    } else if (from >= 0) {
        b->from = other;
    } else {
        b->from = (void *)(uintptr_t)slices->constant;
    }
    b->dims = tile->box.dims;
    for (k = 0; k < tile->box.dims; k++) { /* dim d of the box is the planes */
        b->extent[k] = k == d ? tile->planes : tile->box.hi[k] - tile->box.lo[k];
        b->to_stride[k] = k == d ? tile->plane : tile->stride[k];
        b->from_stride[k] = from >= 0 ? b->to_stride[k] : 0;
    }
}

/* Applies DPARI_SPATIAL_x to all padding of dim d. */
static dpar_status dpari_spatial_pad(const dpari_spatial *plan, const dpar_tile *tile, int32_t d,
                                     int32_t what)
{
    const dpar_spatial_desc *layer = &plan->head.layer;
    const int64_t n = layer->in.extent[d];
    const int32_t padding = dpari_spatial_padding(layer, d);
    const int lowest = padding == DPAR_SPATIAL_PAD_LOWEST && what == DPARI_SPATIAL_FILL;
    dpari_spatial_slices slices;
    int64_t i, from;
    dpari_spatial_slices_begin(&slices, plan, tile, what,
                               lowest ? DPARI_SPATIAL_LOWEST : DPARI_SPATIAL_ZERO);
    for (i = tile->box.lo[d]; i < tile->box.hi[d]; i++) {
        if (i >= 0 && i < n) {
            i = dpari_least(n, tile->box.hi[d]) - 1; /* skips the points of the field */
            continue;
        }
        from = dpari_spatial_image(padding, n, i);
        if (from < 0 || (from >= tile->box.lo[d] && from < tile->box.hi[d])) {
            dpari_spatial_slice(&slices, d, i, from); /* no output reads the other cells */
        }
    }
    return dpari_spatial_slices_run(&slices);
}

/* Applies DPARI_SPATIAL_x to the padding of all inputs, whose arrays are `data`. Fills dim after
 * dim, so that corners are filled from corners, and folds in the reverse order. Rings are filled by
 * the halo exchange. constants: 1 leaves out padding that is copied from the field. */
static dpar_status dpari_spatial_pad_all(const dpari_spatial *plan, void *const *data, int32_t what,
                                         int constants)
{
    const dpar_spatial_desc *layer = &plan->head.layer;
    const int32_t dims = plan->head.in_box.dims;
    dpar_tile tile;
    int32_t i, k;
    dpar_status status = DPAR_OK;
    for (i = 0; i < layer->tensors && dims > 0; i++) {
        dpari_spatial_input_tile(plan, data[i], &tile);
        for (k = 0; k < dims && status == DPAR_OK; k++) {
            const int32_t d = what == DPARI_SPATIAL_FILL ? k : dims - 1 - k;
            if (dpari_spatial_touches(layer, d) && layer->padding[d] != DPAR_SPATIAL_PAD_WRAP &&
                (!constants || dpari_spatial_pads_constant(layer, d))) {
                status = dpari_spatial_pad(plan, &tile, d, what);
            }
        }
    }
    return status;
}

/* Sets the cells around the own points in dim d to 0. */
static dpar_status dpari_spatial_clear_around(const dpari_spatial *plan, const dpar_tile *tile,
                                              int32_t d)
{
    dpari_spatial_slices slices;
    int64_t k;
    dpari_spatial_slices_begin(&slices, plan, tile, DPARI_SPATIAL_FILL, DPARI_SPATIAL_ZERO);
    for (k = tile->box.lo[d]; k < tile->box.hi[d]; k++) {
        if (k < plan->head.in_owned.lo[d] || k >= plan->head.in_owned.hi[d]) {
            dpari_spatial_slice(&slices, d, k, -1);
        }
    }
    return dpari_spatial_slices_run(&slices);
}

/* Sets input gradients to 0 before the kernel adds to them. If they accumulate, own points are left
 * as they are. */
static dpar_status dpari_spatial_clear(const dpari_spatial *plan, const dpar_spatial_arrays *arrays)
{
    const int whole = !arrays->accumulate || plan->head.in_owned.dims == 0;
    const int64_t bytes = dpar_box_volume(&plan->head.in_box) * plan->head.layer.planes *
                          dpar_type_bytes(plan->head.layer.type);
    dpar_tile tile;
    int32_t i, d;
    dpar_status status = DPAR_OK;
    for (i = 0; i < plan->head.layer.tensors && plan->head.in_box.dims > 0; i++) {
        dpari_spatial_input_tile(plan, arrays->in_gradient[i], &tile);
        if (whole && status == DPAR_OK) {
            status = dpari_do_copy(plan->comm, tile.data, NULL, bytes);
        }
        for (d = 0; d < tile.box.dims && !whole && status == DPAR_OK; d++) {
            status = dpari_spatial_clear_around(plan, &tile, d);
        }
    }
    return status;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Runs a kernel on the outputs of a box. */
static void dpari_spatial_kernel_on(const dpari_spatial *plan, const dpar_spatial_arrays *arrays,
                                    dpar_spatial_kernel kernel, const dpar_box *out)
{
    const dpar_spatial_desc *layer = &plan->head.layer;
    const dpar_box *array = arrays->out_box.dims > 0 ? &arrays->out_box : &plan->head.out_owned;
    dpar_spatial_call call;
    dpar_box in;
    int32_t i;
    if (kernel == NULL || out->dims == 0 || dpar_box_volume(out) == 0) {
        return;
    }
    if (!dpari_spatial_needs(layer, out, &in)) {
        in = plan->head.in_box; /* some outputs of a transposed convolution read nothing */
        in.hi[0] = in.lo[0];
    }
    dpari_zero(&call, sizeof call);
    call.layer = layer;
    call.user = layer->user;
    for (i = 0; i < layer->tensors; i++) {
        dpari_spatial_input_tile(plan, arrays->in[i], &call.in[i]);
        dpari_spatial_input_tile(plan, arrays->in_gradient[i], &call.in_gradient[i]);
        call.in[i].box = call.in_gradient[i].box = in;
    }
    dpar_tile_init(&call.out, arrays->out, array, layer->out_planes, layer->channels_last);
    dpar_tile_init(&call.out_gradient, arrays->out_gradient, array, layer->out_planes,
                   layer->channels_last);
    call.out.box = call.out_gradient.box = *out;
    kernel(&call);
}

/* Runs the forward kernel on the outputs around the core: two slabs for each dim, cut to the core
 * in earlier dims. */
static void dpari_spatial_boundary(const dpari_spatial *plan, const dpar_spatial_arrays *arrays)
{
    dpar_box rest = plan->head.out_owned, slab;
    int32_t d;
    if (plan->core.dims == 0) {
        dpari_spatial_kernel_on(plan, arrays, plan->head.layer.forward, &rest);
        return;
    }
    for (d = 0; d < rest.dims; d++) {
        slab = rest;
        slab.hi[d] = plan->core.lo[d];
        dpari_spatial_kernel_on(plan, arrays, plan->head.layer.forward, &slab);
        slab = rest;
        slab.lo[d] = plan->core.hi[d];
        dpari_spatial_kernel_on(plan, arrays, plan->head.layer.forward, &slab);
        rest.lo[d] = plan->core.lo[d];
        rest.hi[d] = plan->core.hi[d];
    }
}

/* Binds the arrays of a step to the halo exchange. */
static dpar_status dpari_spatial_bind(dpari_spatial *plan, void *const *data)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    for (i = 0; i < plan->head.layer.tensors && status == DPAR_OK; i++) {
        status = dpar_halo_plan_bind(plan->exchange, i, plan->head.in_box.dims > 0 ? data[i] : NULL,
                                     NULL);
    }
    return status;
}

/* Checks that a step has all arrays: in forward the inputs and the output, in backward the
 * gradients of all inputs or of none. */
static DPARI_COLD dpar_status dpari_spatial_check_arrays(const dpari_spatial *plan,
                                                         const dpar_spatial_arrays *arrays,
                                                         int forward)
{
    int32_t i, missing = 0;
    int cut; /* 1 if out_box does not hold the outputs */
    if (plan == NULL || arrays == NULL) {
        return DPAR_E_ARG;
    }
    for (i = 0; i < plan->head.layer.tensors && plan->head.in_box.dims > 0; i++) {
        const void *const data = forward ? arrays->in[i] : arrays->in_gradient[i];
        const int wanted = forward || arrays->in_gradient[0] != NULL;
        missing += wanted && data == NULL;
    }
    if (forward && plan->head.out_owned.dims > 0 && arrays->out == NULL) {
        missing++;
    }
    cut = arrays->out_box.dims != 0 &&
          (arrays->out_box.dims != plan->head.layer.in.dims ||
           !dpari_spatial_fits(&arrays->out_box, plan->head.layer.out_planes) ||
           (plan->head.out_owned.dims > 0 &&
            !dpari_box_contains(&arrays->out_box, &plan->head.out_owned)));
    if (cut) {
        const int64_t points = arrays->out_box.dims == plan->head.layer.in.dims
                                   ? dpar_box_volume(&arrays->out_box)
                                   : 0;
        return dpari_comm_wrong_all(
            plan->comm, DPAR_E_ARG,
            "rank %d: out_box, of %ld points, does not hold all %ld outputs", plan->comm->rank,
            points, dpar_box_volume(&plan->head.out_owned));
    }
    if (missing > 0) {
        return dpari_comm_wrong_all(
            plan->comm, DPAR_E_ARG,
            "rank %d has points, but %d arrays of a layer of %d inputs are NULL", plan->comm->rank,
            missing, plan->head.layer.tensors);
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_forward(dpar_spatial_plan *plan,
                                                     const dpar_spatial_arrays *arrays)
{
    dpari_spatial *spatial = (dpari_spatial *)(void *)plan;
    dpar_status status = dpari_spatial_check_arrays(spatial, arrays, 1);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_spatial_bind(spatial, arrays->in);
    if (status == DPAR_OK) {
        status = dpar_halo_plan_begin(spatial->exchange);
    }
    if (status == DPAR_OK && spatial->core.dims > 0) {
        status = dpari_spatial_pad_all(spatial, arrays->in, DPARI_SPATIAL_FILL, 1);
    }
    if (status != DPAR_OK) {
        return status;
    }
    dpari_spatial_kernel_on(spatial, arrays, spatial->head.layer.forward, &spatial->core);
    status = dpar_halo_plan_end(spatial->exchange);
    if (status == DPAR_OK) {
        status = dpari_spatial_pad_all(spatial, arrays->in, DPARI_SPATIAL_FILL, 0);
    }
    if (status == DPAR_OK) {
        dpari_spatial_boundary(spatial, arrays);
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_backward(dpar_spatial_plan *plan,
                                                      const dpar_spatial_arrays *arrays)
{
    dpari_spatial *spatial = (dpari_spatial *)(void *)plan;
    const dpar_spatial_desc *layer;
    dpar_status status = dpari_spatial_check_arrays(spatial, arrays, 0);
    if (status != DPAR_OK) {
        return status;
    }
    layer = &spatial->head.layer;
    if (layer->input_gradient == NULL || arrays->in_gradient[0] == NULL) {
        dpari_spatial_kernel_on(spatial, arrays, layer->weight_gradient, &spatial->head.out_owned);
        return DPAR_OK;
    }
    status = dpari_spatial_clear(spatial, arrays);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_spatial_kernel_on(spatial, arrays, layer->input_gradient, &spatial->head.out_owned);
    status = dpari_spatial_pad_all(spatial, arrays->in_gradient, DPARI_SPATIAL_FOLD, 0);
    if (status == DPAR_OK) {
        status = dpari_spatial_bind(spatial, arrays->in_gradient);
    }
    if (status == DPAR_OK) {
        status = dpar_halo_plan_reduce_begin(spatial->exchange, DPAR_SUM);
    }
    if (status != DPAR_OK) {
        return status;
    }
    dpari_spatial_kernel_on(spatial, arrays, layer->weight_gradient, &spatial->head.out_owned);
    return dpar_halo_plan_end(spatial->exchange);
}

/* ==== spatial/norm.c ==== */

/* Norms of fields that ranks share. The ranks exchange (count, mean, M2) of each set and merge them
 * in rank order. */

/* Returns the number of sets that have a mean and a variance of their own. */
static int64_t dpari_norm_sets(const dpar_norm *norm)
{
    return norm->groups == 0 ? norm->channels : (int64_t)norm->samples * norm->groups;
}

static int64_t dpari_norm_planes(const dpar_norm *norm)
{
    return (int64_t)norm->samples * norm->channels;
}

DPAR_API DPARI_COLD void dpar_norm_sizes(const dpar_comm *comm, const dpar_norm *norm,
                                         int64_t *saved, int64_t *scratch)
{
    const int64_t sets = dpari_norm_sets(norm);
    if (saved != NULL) {
        *saved = 2 * sets;
    }
    if (scratch != NULL) {
        *scratch = 3 * sets + dpari_most(3 * sets * comm->size, 2 * dpari_norm_planes(norm));
    }
}

/* Checks that points have data. Because only one rank may be wrong, an error breaks the
 * communicator. */
static dpar_status dpari_norm_check_data(dpar_comm *comm, const dpar_tile *x, const dpar_tile *y)
{
    const int64_t points = x->box.dims > 0 && x->planes > 0 ? dpar_box_volume(&x->box) : 0;
    if (points == 0 || (x->data != NULL && y->data != NULL)) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(comm, DPAR_E_ARG,
                                "rank %d: a tile of a norm has %ld points and no data", comm->rank,
                                points);
}

/* Checks a norm and two of its tiles. */
static DPARI_COLD dpar_status dpari_norm_check(dpar_comm *comm, const dpar_norm *norm,
                                               const dpar_tile *x, const dpar_tile *y)
{
    int32_t d;
    int fits = x->box.dims == y->box.dims && x->planes == y->planes && x->box.dims >= 0 &&
               x->box.dims <= DPAR_MAX_DIMS;
    for (d = 0; fits && d < x->box.dims; d++) {
        fits = x->box.lo[d] == y->box.lo[d] && x->box.hi[d] == y->box.hi[d];
    }
    if (!dpari_is_wide(norm->type)) {
        return dpari_comm_wrong(comm, "a norm has type %s, but only f64 and f32 are possible",
                                dpar_type_name(norm->type));
    }
    if (norm->samples < 1 || norm->channels < 1 || norm->groups < 0 ||
        (norm->groups > 0 && norm->channels % norm->groups != 0) || !fits ||
        (x->planes != 0 && x->planes != dpari_norm_planes(norm))) {
        return dpari_comm_wrong(
            comm,
            "a norm of %d samples, %d channels and %d groups does not fit %ld planes, or its tiles "
            "have different points",
            norm->samples, norm->channels, norm->groups, x->planes);
    }
    if (!(norm->epsilon >= 0.0 && norm->epsilon <= 1e300)) {
        return dpari_comm_wrong(comm, "the epsilon of a norm must be a number from 0 to 1e300");
    }
    return dpari_norm_check_data(comm, x, y);
}

/* Describes the points of a tile for layers.h. data stays NULL if the tile has no data. */
static void dpari_norm_planes_of(const dpar_tile *tile, int32_t type, dpar_mem_planes *planes)
{
    unsigned char *data = (unsigned char *)tile->data;
    int32_t d;
    planes->step = tile->plane;
    for (d = 0; d < tile->box.dims; d++) {
        planes->stride[d] = tile->stride[d];
    }
    planes->data =
        data != NULL ? data + dpari_tile_at(tile, 0, tile->box.lo) * dpar_type_bytes(type) : NULL;
}

/* Describes a norm of the points of x for layers.h. */
static void dpari_norm_describe(const dpar_norm *norm, const dpar_tile *x, double *saved,
                                dpar_mem_norm *work)
{
    int32_t d;
    dpari_zero(work, sizeof *work);
    work->type = norm->type;
    work->planes = dpari_norm_planes(norm);
    work->channels = norm->channels;
    work->groups = norm->groups;
    work->epsilon = norm->epsilon;
    work->scale = norm->scale;
    work->shift = norm->shift;
    work->saved = saved;
    work->dims = 1;
    if (x->planes > 0 && x->data != NULL && x->box.dims > 0 && dpar_box_volume(&x->box) > 0) {
        work->dims = x->box.dims;
        for (d = 0; d < work->dims; d++) {
            work->extent[d] = x->box.hi[d] - x->box.lo[d];
        }
        dpari_norm_planes_of(x, norm->type, &work->x);
    }
}

/* True if the last two dims are adjacent in memory. */
static int dpari_norm_joins(const dpar_mem_norm *work, const dpar_mem_planes *planes)
{
    const int32_t last = work->dims - 1;
    return planes->stride[last - 1] == planes->stride[last] * work->extent[last];
}

/* Joins the last dims as long as they are adjacent in all tiles, so that rows are long. */
static void dpari_norm_join(dpar_mem_norm *work)
{
    while (work->dims > 1 && dpari_norm_joins(work, &work->x) &&
           dpari_norm_joins(work, &work->dy) && dpari_norm_joins(work, &work->to)) {
        const int32_t to = work->dims - 2;
        work->extent[to] *= work->extent[to + 1];
        work->x.stride[to] = work->x.stride[to + 1];
        work->dy.stride[to] = work->dy.stride[to + 1];
        work->to.stride[to] = work->to.stride[to + 1];
        work->dims--;
    }
}

/* Runs a collective of `count` numbers, in which engines compare the norms of all ranks. */
static dpar_status dpari_norm_post(dpar_comm *comm, const dpar_norm *norm, int32_t kind,
                                   const double *in, double *out, int64_t count)
{
    uint64_t hash =
        dpari_hash(dpari_hash(dpari_hash(3, norm->type), norm->samples), norm->channels);
    dpar_call call;
    hash = dpari_hash_real(dpari_hash(hash, norm->groups), norm->epsilon);
    dpari_zero(&call, sizeof call);
    call.kind = kind;
    call.type = DPAR_F64;
    call.op = kind == DPAR_CALL_ALL_REDUCE ? DPAR_SUM : DPAR_COPY;
    call.in = in;
    call.out = out;
    call.count = count;
    return dpari_post_alike(comm, &call, hash, "a norm: type, samples, channels, groups or epsilon",
                            NULL);
}

DPAR_API DPARI_COLD dpar_status dpar_norm_forward(dpar_comm *comm, const dpar_norm *norm,
                                                  const dpar_norm_arrays *arrays)
{
    dpar_mem_moments own;
    dpar_mem_norm work;
    dpar_status status;
    int64_t sets;
    int32_t d;
    if (comm == NULL || norm == NULL || arrays == NULL || arrays->x == NULL || arrays->y == NULL ||
        arrays->saved == NULL || arrays->scratch == NULL) {
        return comm == NULL ? DPAR_E_ARG
                            : dpari_comm_wrong(
                                  comm, "dpar_norm_forward: norm, x, y, saved or scratch is NULL");
    }
    status = dpari_norm_check(comm, norm, arrays->x, arrays->y);
    if (status != DPAR_OK) {
        return status;
    }
    sets = dpari_norm_sets(norm);
    dpari_norm_describe(norm, arrays->x, arrays->saved, &work);
    dpari_norm_planes_of(arrays->y, norm->type, &work.to);
    dpari_zero(&own, sizeof own);
    own.x = work.x.data;
    own.type = work.type;
    own.dims = work.dims;
    own.planes = work.planes;
    own.step = work.x.step;
    own.channels = work.channels;
    own.groups = work.groups;
    own.to = arrays->scratch;
    for (d = 0; d < work.dims; d++) {
        own.extent[d] = work.extent[d];
        own.stride[d] = work.x.stride[d];
    }
    status = dpari_do_moments(comm, &own);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_norm_post(comm, norm, DPAR_CALL_ALL_GATHER, arrays->scratch,
                             arrays->scratch + 3 * sets, 3 * sets);
    if (status != DPAR_OK) {
        return status;
    }
    work.phase = DPAR_MEM_NORM_MERGE;
    work.all = arrays->scratch + 3 * sets;
    work.ranks = comm->size;
    dpari_norm_join(&work);
    status = dpari_do_norm(comm, &work);
    if (status != DPAR_OK) {
        return status;
    }
    work.phase = DPAR_MEM_NORM_APPLY;
    return dpari_do_norm(comm, &work);
}

DPAR_API DPARI_COLD dpar_status dpar_norm_backward(dpar_comm *comm, const dpar_norm *norm,
                                                   const dpar_norm_arrays *arrays)
{
    dpar_mem_norm work;
    dpar_status status;
    int64_t sets;
    if (comm == NULL || norm == NULL || arrays == NULL || arrays->x == NULL || arrays->dy == NULL ||
        arrays->dx == NULL || arrays->saved == NULL || arrays->scratch == NULL) {
        return comm == NULL
                   ? DPAR_E_ARG
                   : dpari_comm_wrong(
                         comm, "dpar_norm_backward: norm, x, dy, dx, saved or scratch is NULL");
    }
    status = dpari_norm_check(comm, norm, arrays->x, arrays->dy);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_norm_check(comm, norm, arrays->x, arrays->dx);
    if (status != DPAR_OK) {
        return status;
    }
    sets = dpari_norm_sets(norm);
    dpari_norm_describe(norm, arrays->x, arrays->saved, &work);
    dpari_norm_planes_of(arrays->dy, norm->type, &work.dy);
    dpari_norm_planes_of(arrays->dx, norm->type, &work.to);
    dpari_norm_join(&work);
    work.total = arrays->scratch;
    work.sums = arrays->scratch + 3 * sets;
    work.scale_gradient = arrays->scale_gradient;
    work.shift_gradient = arrays->shift_gradient;
    work.phase = DPAR_MEM_NORM_SUMS;
    status = dpari_do_norm(comm, &work);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_norm_post(comm, norm, DPAR_CALL_ALL_REDUCE, work.total, work.total, 3 * sets);
    if (status != DPAR_OK) {
        return status;
    }
    work.phase = DPAR_MEM_NORM_GRADIENT;
    return dpari_do_norm(comm, &work);
}

/* ==== spatial/window_attention.c ==== */

/* Computes attention in a sliding window. The tokens of the packed sequence are a grid of one dim
 * with a halo as wide as the window, so that one halo exchange brings keys and values, and its
 * adjoint returns their gradients. Queries are computed on own keys while the exchange is in
 * progress.
 *
 * dpar_attention_halo sets the functions of a plan (attention_private.h); sequence.c calls them. */

/* ---- planning -------------------------------------------------------------------------------- */

/* The private part of a plan. The fields are keys, values, gradients of keys, and gradients of
 * values. */
typedef struct dpari_windows {
    dpar_halo halo;
    dpar_halo_field field[4];
    dpar_halo_plan *exchange[2]; /* of keys and values, and of their gradients */
    void *memory[2];             /* of the exchanges */
    int64_t bytes[2];
    void *own[4], *beside[4]; /* own tokens and halo of each field */
    int64_t points;           /* tokens of the halo */
    int64_t sent;             /* bytes that forward's exchange sends */
} dpari_windows;

/* Counts the tokens of [lo, hi) in the halo of a rank: those within the window around its slice. */
static int64_t dpari_windows_beside(const dpar_attention_desc *layer, int32_t rank, int64_t lo,
                                    int64_t hi)
{
    int64_t begin, end, before, behind = 0;
    dpari_seq_slice(layer, rank, &begin, &end);
    if (begin == end) {
        return 0;
    }
    before =
        dpari_least(begin, hi) - dpari_most(layer->window < begin ? begin - layer->window : 0, lo);
    if (!layer->causal) {
        const int64_t left = layer->tokens.ends[layer->tokens.docs] - end;
        behind = dpari_least(end + dpari_least(left, layer->window), hi) - dpari_most(end, lo);
    }
    return dpari_most(0, before) + dpari_most(0, behind);
}

/* Checks that the layer has a window, and a rule and sizes that this method supports. */
static DPARI_COLD dpar_status dpari_windows_check(const dpar_attention_desc *layer, dpar_why *why)
{
    const int64_t each = (int64_t)layer->groups * ((int64_t)layer->width + layer->value_width);
    if (layer->window < 1 ||
        (layer->tokens.rule != DPAR_SPLIT_CHUNK && layer->tokens.rule != DPAR_SPLIT_EVEN) ||
        each > 1 << 24) {
        return dpari_wrong(
            why,
            "dpar_attention_halo: window is %ld, rule is %d and a token has %ld elements; 1 or "
            "more, CHUNK or EVEN, and at most 2^24 are allowed",
            layer->window, layer->tokens.rule, each);
    }
    return DPAR_OK;
}

static dpari_windows *dpari_windows_of(const dpari_attention *plan)
{
    return (dpari_windows *)plan->of_way;
}

/* Describes the halo of this rank's tokens, and the fields in it. */
static dpar_status dpari_windows_halo(const dpari_attention *plan, const dpar_comm *comm,
                                      dpari_windows *windows, dpar_why *why)
{
    const dpar_attention_desc *layer = &plan->head.layer;
    const int64_t all = layer->tokens.ends[layer->tokens.docs];
    const dpar_placement cut = dpar_shard_by(0, layer->tokens.rule, 0);
    dpar_mesh mesh;
    int32_t i;
    dpar_status status =
        dpar_mesh_init(&mesh, "tokens", &comm->size, DPAR_ORDER_LAST_FASTEST, 0, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpar_layout_init(&windows->halo.grid, &mesh, 1, &all, &cut, why);
    if (status != DPAR_OK) {
        return status;
    }
    windows->halo.low[0] = dpari_most(dpari_least(layer->window, all - 1), 0);
    windows->halo.high[0] = layer->causal ? 0 : windows->halo.low[0];
    for (i = 0; i < 4; i++) {
        windows->field[i].halo = &windows->halo;
        windows->field[i].type = i < 2 ? layer->type : plan->sums;
        windows->field[i].mem = comm->mem;
        windows->field[i].components =
            (int32_t)((int64_t)layer->groups * (i % 2 == 0 ? layer->width : layer->value_width));
    }
    return dpar_halo_check(&windows->halo, why);
}

/* Takes the memory of the fields and of partial results. Only counts bytes if buffers->at is NULL.
 */
static void dpari_windows_buffers(dpari_attention *plan, const dpar_comm *comm,
                                  dpari_windows *windows, dpari_room *buffers)
{
    const dpar_attention_desc *layer = &plan->head.layer;
    const int64_t sum = dpar_type_bytes(plan->sums);
    int64_t lo, hi, heads;
    int32_t i;
    windows->points = dpar_halo_slab_points(&windows->halo, comm->rank);
    dpari_seq_slice(layer, comm->rank, &lo, &hi);
    plan->head.tokens = hi - lo;
    heads = plan->head.tokens * layer->heads;
    for (i = 0; i < 4; i++) {
        const int64_t each =
            windows->field[i].components * (int64_t)dpar_type_bytes(windows->field[i].type);
        windows->own[i] = dpari_room_take(buffers, plan->head.tokens * each, 1);
        windows->beside[i] = dpari_room_take(buffers, windows->points * each, 1);
        if (plan->head.tokens > 0) {
            /* While bytes are counted, any address will do. */
            const int counts = buffers->at == NULL;
            windows->field[i].data = counts ? (void *)windows : windows->own[i];
            if (windows->points > 0) {
                windows->field[i].compact_halo = counts ? (void *)windows : windows->beside[i];
            }
        }
    }
    plan->part = dpari_room_take(buffers, heads * layer->value_width * sum, 1);
    plan->part_lse = dpari_room_take(buffers, heads * sum, 1);
    plan->delta = dpari_room_take(buffers, heads * sum, 1);
    if (layer->type != plan->sums) {
        plan->out = dpari_room_take(buffers, heads * layer->value_width * sum, 1);
        plan->q_gradient = dpari_room_take(buffers, heads * layer->width * sum, 1);
    }
}

/* Takes all memory of a plan: its struct and exchanges from `behind`, its fields from `buffers`. */
static DPARI_COLD dpar_status dpari_windows_lay(dpari_attention *plan, const dpar_comm *comm,
                                                dpari_room *behind, dpari_room *buffers,
                                                dpar_why *why)
{
    dpari_windows counted, *w = (dpari_windows *)dpari_room_take(behind, 1, sizeof *w);
    dpar_halo_plan_desc desc;
    int32_t i;
    dpar_status status;
    plan->of_way = w;
    w = w != NULL ? w : &counted;
    dpari_zero(w, sizeof *w);
    dpari_zero(&desc, sizeof desc);
    status = dpari_windows_halo(plan, comm, w, why);
    if (status == DPAR_OK) {
        dpari_windows_buffers(plan, comm, w, buffers);
    }
    for (i = 0; i < 2 && status == DPAR_OK; i++) {
        desc.field = &w->field[2 * i];
        desc.field_count = 2;
        status = dpari_hx_bytes(comm, &desc, &w->bytes[i], why);
        w->memory[i] = status == DPAR_OK ? dpari_room_take(behind, w->bytes[i], 1) : NULL;
    }
    return status;
}

/* Plans both exchanges. */
static DPARI_COLD dpar_status dpari_windows_init(dpari_attention *plan, dpar_why *why)
{
    dpari_windows *windows = dpari_windows_of(plan);
    dpar_halo_plan_desc desc;
    dpari_hx_traffic traffic;
    int32_t i;
    dpar_status status = DPAR_OK;
    dpari_zero(&desc, sizeof desc);
    for (i = 0; i < 2 && status == DPAR_OK; i++) {
        desc.tag = plan->head.layer.tag + 2 * i;
        desc.field = &windows->field[2 * i];
        desc.field_count = 2;
        desc.memory = windows->memory[i];
        desc.bytes = windows->bytes[i];
        status = dpar_halo_plan_make(plan->comm, &desc, &windows->exchange[i], why);
    }
    if (status != DPAR_OK) { /* then it failed on all ranks, and all free the first exchange */
        (void)dpar_halo_plan_free(windows->exchange[0]);
        return status;
    }
    for (i = 0; dpari_hx_traffic_of(windows->exchange[0], i, &traffic); i++) {
        if (traffic.peer != plan->comm->rank) {
            windows->sent += traffic.bytes;
        }
    }
    return status;
}

static DPARI_COLD dpar_status dpari_windows_close(dpari_attention *plan)
{
    dpari_windows *windows = dpari_windows_of(plan);
    const dpar_status status = dpar_halo_plan_free(windows->exchange[0]);
    return dpari_first_error(status, dpar_halo_plan_free(windows->exchange[1]));
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Advances the exchange while the caller computes. */
static void dpari_windows_push(dpari_attention *plan)
{
    (void)dpar_halo_plan_test(dpari_windows_of(plan)->exchange[0]);
}

/* Describes the keys and values (field 0) of own tokens, or their gradients (field 2). */
static dpari_seq_block dpari_windows_own(const dpari_attention *plan, int32_t field)
{
    const dpari_windows *windows = dpari_windows_of(plan);
    dpari_seq_block block;
    block.rank = plan->comm->rank;
    block.own = 1;
    block.tokens = plan->head.tokens;
    dpari_seq_slice(&plan->head.layer, block.rank, &block.lo, &block.hi);
    block.k = block.to_k = windows->own[field];
    block.v = block.to_v = windows->own[field + 1];
    return block;
}

/* Describes piece n of the rank's halo, without the part beyond the ends of the sequence. Returns 0
 * if there is no such piece. */
static DPARI_COLD int dpari_windows_slab(const dpari_attention *plan, int32_t n, int32_t field,
                              dpari_seq_block *block)
{
    const dpari_windows *windows = dpari_windows_of(plan);
    const dpar_halo_field *k = &windows->field[field], *v = &windows->field[field + 1];
    int64_t at = 0;
    dpar_box box;
    int32_t i;
    for (i = 0; i <= n; i++) {
        at += i > 0 ? box.hi[0] - box.lo[0] : 0;
        if (!dpar_halo_slab(&windows->halo, plan->comm->rank, i, &box)) {
            return 0;
        }
    }
    dpari_zero(block, sizeof *block);
    block->rank = plan->comm->rank;
    block->lo = dpari_most(0, box.lo[0]);
    block->hi = dpari_least(windows->halo.grid.extent[0], box.hi[0]);
    at += block->lo - box.lo[0];
    block->k = block->to_k = dpari_seq_at(windows->beside[field], at * k->components, k->type);
    block->v = block->to_v = dpari_seq_at(windows->beside[field + 1], at * v->components, v->type);
    return 1;
}

/* Copies the rank's keys and values to the fields of the exchange, and begins the exchange. */
static dpar_status dpari_windows_begin(dpari_attention *plan, const dpar_attention_arrays *arrays)
{
    dpari_windows *windows = dpari_windows_of(plan);
    const int64_t bytes = plan->head.tokens * dpar_type_bytes(plan->head.layer.type);
    dpar_status status =
        dpari_do_copy(plan->comm, windows->own[0], arrays->k, bytes * windows->field[0].components);
    if (status == DPAR_OK) {
        status = dpari_do_copy(plan->comm, windows->own[1], arrays->v,
                               bytes * windows->field[1].components);
    }
    plan->head.sent_bytes += windows->sent;
    if (status != DPAR_OK) {
        return status;
    }
    return dpar_halo_plan_begin(windows->exchange[0]);
}

/* Computes on own keys first, while the keys of the halo are in transit. */
static dpar_status dpari_windows_forward(dpari_attention *plan, const dpar_attention_arrays *arrays)
{
    dpari_seq_block block = dpari_windows_own(plan, 0);
    int32_t n;
    dpar_status status = dpari_windows_begin(plan, arrays);
    if (status == DPAR_OK) {
        status = dpari_seq_attend(plan, arrays, &block);
        status = dpari_first_error(status, dpar_halo_plan_end(dpari_windows_of(plan)->exchange[0]));
    }
    for (n = 0; status == DPAR_OK && dpari_windows_slab(plan, n, 0, &block); n++) {
        status = dpari_seq_attend(plan, arrays, &block);
    }
    return status;
}

/* Exchanges keys and values once more, computes gradients of own tokens and of the halo, and adds
 * those of the halo to the gradients of their owners. */
static dpar_status dpari_windows_backward(dpari_attention *plan,
                                          const dpar_attention_arrays *arrays, void *dq,
                                          dpari_seq_block *home)
{
    dpari_windows *windows = dpari_windows_of(plan);
    const int64_t sum = dpar_type_bytes(plan->sums), all = windows->halo.grid.extent[0];
    dpari_seq_block block = dpari_windows_own(plan, 0), g;
    int32_t n;
    dpar_status status = dpari_windows_begin(plan, arrays);
    if (status != DPAR_OK) {
        return status;
    }
    *home = dpari_windows_own(plan, 2);
    for (n = 2; n < 4 && status == DPAR_OK; n++) {
        status = dpari_do_copy(plan->comm, windows->own[n], NULL,
                               plan->head.tokens * windows->field[n].components * sum);
        if (status == DPAR_OK) {
            status = dpari_do_copy(plan->comm, windows->beside[n], NULL,
                                   windows->points * windows->field[n].components * sum);
        }
    }
    if (status == DPAR_OK) {
        status = dpari_seq_delta(plan, arrays);
    }
    dpari_seq_attend_back(plan, arrays, &block, home, dq);
    status = dpari_first_error(status, dpar_halo_plan_end(windows->exchange[0]));
    for (n = 0; status == DPAR_OK && dpari_windows_slab(plan, n, 0, &block); n++) {
        (void)dpari_windows_slab(plan, n, 2, &g);
        dpari_seq_attend_back(plan, arrays, &block, &g, dq);
    }
    plan->head.sent_bytes += dpari_windows_beside(&plan->head.layer, plan->comm->rank, 0, all) *
                             sum * (windows->field[2].components + windows->field[3].components);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpar_halo_plan_reduce_begin(windows->exchange[1], DPAR_SUM);
    if (status != DPAR_OK) {
        return status;
    }
    return dpar_halo_plan_end(windows->exchange[1]);
}

DPAR_API void dpar_attention_halo(struct dpari_attention_method *method)
{
    method->number = 1;
    method->check = dpari_windows_check;
    method->lay = dpari_windows_lay;
    method->init = dpari_windows_init;
    method->push = dpari_windows_push;
    method->forward = dpari_windows_forward;
    method->backward = dpari_windows_backward;
    method->close = dpari_windows_close;
}

#endif /* DPAR_SPATIAL_IMPLEMENTATION */
