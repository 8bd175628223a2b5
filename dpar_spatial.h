/* SPDX-License-Identifier: MIT-0 */
/* dpar_spatial.h - runs layers of networks whose samples are cut into blocks over the ranks, forward and backward.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: change it there.
 *
 * The layers are convolutions of any stride, dilation and padding, transposed convolutions, pooling, interpolation,
 * neighbourhood attention, norms, and attention within a window of tokens. From the outputs of a rank, a layer
 * computes which inputs the rank needs, exchanges the halos and calls your kernel. Results equal those of one rank
 * up to rounding. apps/unet.c is a whole network.
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
 *         layer.kind = DPAR_SPATIAL_CONVOLUTION;                  for pooling too
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
 * convolution, pooling, interpolation, neighbourhood attention, GroupNorm and BatchNorm. dpar finds
 * which outputs a rank computes and which inputs they read. It exchanges the halos, pads, and sends
 * gradients back. The arithmetic is your kernel. Because it gets global indices, it is the kernel
 * that you would write for one rank:
 *
 *     dpar_spatial_desc layer;                        zeroed, then:
 *     layer.kind = DPAR_SPATIAL_CONVOLUTION;
 *     layer.in = field;                          which rank has which inputs (dpar_layout)
 *     layer.window[0].kernel = 3; ...            as dpar_window_outputs takes it
 *     layer.type = DPAR_F32; layer.planes = 16;  channels, times samples
 *     layer.forward = convolve; ...
 *     dpar_spatial_make(c, &layer, &plan, &why);
 *     arrays.in[0] = planes of dpar_box_volume(&plan->in_box);  own points and around them
 *     dpar_spatial_forward(plan, &arrays);                      every step
 *     dpar_spatial_backward(plan, &arrays);
 *     next.in = plan->out;                                      the next layer follows
 *     dpar_spatial_free(plan);
 *
 * Any kernel, stride, dilation and padding is allowed, and so are uneven and empty blocks, and
 * halos that reach past the neighbour, because dpar computes what a rank reads from its outputs. An
 * output has the same bits on any number of ranks if the kernel's result does not depend on the
 * tile. Input gradients near the ends of blocks are sums of parts from several ranks, always in the
 * same order, but rounded differently than on one rank.
 *
 * If comm->mem is the memory of a device, the arrays of a step are in that memory. Halos and
 * padding are handled there, and kernels enqueue on the stream of comm->mem and return. The thread
 * waits for nothing if that stream also orders what is sent (dpar_nccl.h). The plan is in the
 * memory of the host. */

/* The most inputs that a layer has. */
enum { DPAR_SPATIAL_MAX_TENSORS = 4 };

/* Kinds of layers: which inputs an output reads, along each dim. dpar_spatial_taps gives it for one
 * output. */
enum {
    DPAR_SPATIAL_CONVOLUTION = 1, /* also pooling */
    DPAR_SPATIAL_TRANSPOSED,      /* (n - 1) stride - pads + dilation (kernel - 1) + 1 outputs */
    DPAR_SPATIAL_INTERPOLATION,   /* window.kernel taps: 1 nearest, 2 linear, 4 cubic */
    /* Neighbourhood attention: `in` are keys and values; queries are passed in `user` and cut like
     * the outputs. stride and pads are ignored; DPAR_SPATIAL_PAD_WRAP makes the dim a ring. Keys
     * that no query of a rank sees are not sent to it, except keys between others that it sees, if
     * its block has fewer queries than the dilation. */
    DPAR_SPATIAL_NEIGHBOURHOOD
};

/* Values beyond the ends of a dim. */
enum {
    DPAR_SPATIAL_PAD_ZERO,
    DPAR_SPATIAL_PAD_WRAP,      /* the points of the other end, as for longitudes */
    DPAR_SPATIAL_PAD_REFLECT,   /* mirrored without the end itself; pads must be below the extent */
    DPAR_SPATIAL_PAD_REPLICATE, /* the end; interpolation also uses it for DPAR_SPATIAL_PAD_ZERO */
    DPAR_SPATIAL_PAD_LOWEST     /* minus infinity, or the least integer, for max pooling; not f8 */
};

/* Rules for which rank computes which outputs. */
enum {
    DPAR_SPATIAL_OUTPUTS_BALANCED, /* cut by DPAR_SPLIT_EVEN over the mesh axes of the inputs */
    DPAR_SPATIAL_OUTPUTS_FOLLOW,   /* near their inputs, for small halos; only for dims that are cut
                                      by one mesh axis */
    DPAR_SPATIAL_OUTPUTS_GIVEN /* layer.given_layout, whose dims are cut by the same mesh axes as
                                  those of `in` */
};

/* A piece of a field in memory, with global indices. Point i, j, ... of plane p is
 * data[origin + p * plane + i * stride[0] + j * stride[1] + ...]. */
typedef struct dpar_tile {
    void *data;
    int64_t origin, plane, planes; /* elements, elements, number of planes */
    int64_t stride[DPAR_MAX_DIMS]; /* elements */
    dpar_box box; /* what to compute, or all that this computation reads, padding included */
} dpar_tile;

typedef struct dpar_spatial_desc dpar_spatial_desc;

/* Describes the work of a kernel. Tiles that a step does not use have no data. in[].box is exactly
 * what the outputs of out.box read. It extends below 0 and beyond the extent where padding is read,
 * so that a routine without padding (im2col, cuDNN) can use it as it is. */
typedef struct dpar_spatial_call {
    const dpar_spatial_desc *layer;
    dpar_tile in[DPAR_SPATIAL_MAX_TENSORS];
    dpar_tile in_gradient[DPAR_SPATIAL_MAX_TENSORS];
    dpar_tile out, out_gradient;
    void *user; /* that of the layer */
} dpar_spatial_call;
/* Computes outputs or gradients on a tile: a callback of yours. */
typedef void (*dpar_spatial_kernel)(const dpar_spatial_call *call);

/* Describes a layer. Zero it and fill in what differs from the defaults. A dim whose kernel is 0 is
 * left as it is, such as a batch. */
struct dpar_spatial_desc {
    int32_t kind;                      /* DPAR_SPATIAL_CONVOLUTION, ... */
    int32_t outputs;                   /* DPAR_SPATIAL_OUTPUTS_BALANCED, ... */
    dpar_layout in;                    /* of one plane of the inputs; blocks as in halo.h */
    dpar_layout given_layout;          /* for DPAR_SPATIAL_OUTPUTS_GIVEN */
    dpar_window window[DPAR_MAX_DIMS]; /* kernel, stride, dilation, pads, ceil_mode */
    int32_t padding[DPAR_MAX_DIMS];    /* DPAR_SPATIAL_PAD_ZERO, ... */
    /* Outputs of each dim; 0 selects as many as there are. Required for interpolation. For a
     * transposed convolution it may include PyTorch's output padding. */
    int64_t out_extent[DPAR_MAX_DIMS];
    int32_t align_corners; /* interpolation: 1 selects align_corners */
    int32_t type;    /* of inputs and outputs: DPAR_F32, ...; with gradients reductions must
                        accept it */
    int32_t tensors; /* inputs of one shape (keys, values), at most 4; 0 selects 1 */
    int32_t channels_last; /* 1 if planes are innermost (NHWC) */
    /* 1 calls the kernel once, when all halos have arrived. 0 calls it on the inner outputs while
     * halos are under way, then on the others as at most 2 boxes for each dim. */
    int32_t no_overlap;
    int64_t planes, out_planes; /* channels times samples of each input, and of the output; 0
                                   selects 1, and as many as the inputs have */
    /* Box of this rank's arrays, if it is larger than the layer needs because two layers read them.
     * dims 0 selects the box of dpar_spatial_check. At most 2^60 elements, as the outputs, or it is
     * DPAR_E_RANGE. */
    dpar_box in_box;
    dpar_spatial_kernel forward;         /* writes out at out.box from in */
    dpar_spatial_kernel input_gradient;  /* adds to in_gradient the gradient from out_gradient at
                                            out.box; in and out are as forward left them */
    dpar_spatial_kernel weight_gradient; /* uses in and out_gradient; called while gradients are
                                            under way. Summing over ranks (dpar_all_reduce) is up to
                                            you */
    void *user;                          /* passed to the kernels */
    /* How halos are exchanged; `field` and `field_count` are ignored. NULL selects the defaults,
     * with which boxes are packed wherever arrays are. With method DPAR_HALO_DIRECT, peers read
     * long runs directly from the arrays. Then in and in_gradient must be memory of dpar_comm_alloc
     * in every step, on all ranks; otherwise it is DPAR_E_ARG. */
    const dpar_halo_plan_desc *halo;
    /* Memory of yours for the plan, on the host, aligned to 64, as long as the plan exists. NULL
     * with bytes 0: dpar_spatial_make allocates it. Too few bytes are DPAR_E_ROOM, and why->bytes
     * tells how many are needed; to ask, set memory NULL and bytes 1. */
    void *memory;
    int64_t bytes;
};

/* ---- one dim; local ---- */

/* The inputs that an output y reads: first, first + step, ..., which are `count`, padding included.
 * In a transposed convolution, input i meets tap (y + pad_low - i stride) / dilation if that is a
 * whole number. */
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
/* The outputs of a layer, and what a rank has of it. Boxes without points have dims 0. */
typedef struct dpar_spatial_boxes {
    int64_t extent[DPAR_MAX_DIMS]; /* outputs of each dim */
    dpar_box in;  /* the least that its input arrays must hold: own points, halos, padding */
    dpar_box out; /* outputs that it computes */
} dpar_spatial_boxes;
/* Checks a layer and computes its boxes on a rank without planning it. If several layers read one
 * array, its box is the smallest that holds the boxes `in` of all of them.
 *
 * boxes: set to the boxes. May be NULL.
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

/* Arrays of one step, in memory that the CPU reaches, or in that of the device of comm->mem. A rank
 * without points gives NULLs. */
typedef struct dpar_spatial_arrays {
    /* Over in_box. Forward reads the rank's own points and fills in the others. Backward uses it as
     * forward left it; it may be NULL if no kernel reads it. */
    void *in[DPAR_SPATIAL_MAX_TENSORS];
    /* Over in_box. Backward writes the rank's own points; the others become 0. */
    void *in_gradient[DPAR_SPATIAL_MAX_TENSORS];
    void *out;          /* over out_box */
    void *out_gradient; /* over out_box */
    dpar_box out_box;   /* box of out and out_gradient: in_box of the next layer; dims 0 selects
                           out_owned */
    int32_t accumulate; /* 1 adds to the own points of in_gradient, because another layer read the
                           inputs too */
} dpar_spatial_arrays;

/* Plans a layer. Rank n of the mesh is rank n of c.
 *
 * Collective: all ranks give the same layer, except in_box, no_overlap, kernels, user, memory and
 * bytes; either all or none have an input_gradient. Costs O(outputs x taps) of each dim, one
 * all-reduce, and the planning of the halo exchange. Fails on all ranks with DPAR_E_MISMATCH if
 * layers differ, DPAR_E_ROOM, DPAR_E_MEMORY, or as dpar_spatial_check and dpar_halo_plan_make do.
 */
DPAR_API dpar_status dpar_spatial_make(dpar_comm *c, const dpar_spatial_desc *layer,
                                       dpar_spatial_plan **plan, dpar_why *why);
/* Computes outputs from inputs: exchanges halos, fills the padding, and calls the kernel.
 *
 * Collective. Sends plan->halo_bytes. Fails with DPAR_E_ARG if arrays are missing or out_box does
 * not hold the rank's outputs, which breaks the communicator so that the other ranks notice. Other
 * errors are those of dpar_halo_plan_exchange. The message is in the communicator's why, except for
 * DPAR_E_ARG because plan or a is NULL. */
DPAR_API dpar_status dpar_spatial_forward(dpar_spatial_plan *plan, const dpar_spatial_arrays *a);
/* Computes input gradients from output gradients, and weight gradients meanwhile. The kernel runs
 * on all outputs of the rank. What it adds to padding is moved to the points that the padding came
 * from (for zeros: nowhere), and what it adds to halos is sent to their owners, in a fixed order.
 *
 * Without input_gradient or in_gradient[0] only weight gradients are computed, and nothing is sent.
 * This must be so on all ranks that have points, or on none.
 *
 * Collective. Sends as much as dpar_spatial_forward, in gradients, and fails as it does. */
DPAR_API dpar_status dpar_spatial_backward(dpar_spatial_plan *plan, const dpar_spatial_arrays *a);
/* Frees a plan of a layer. NULL is allowed. Collective. Fails as dpar_halo_plan_free does; the
 * message is in the communicator's why. */
DPAR_API dpar_status dpar_spatial_free(dpar_spatial_plan *plan);

/* ---- normalisation: by (count, mean, M2), never by sums of squares ----
 *
 * If comm->mem is the memory of a device, the norm's arrays are in that memory: tiles, scale,
 * shift, saved, scratch and gradients. All work is enqueued, and the thread waits for nothing. */

/* Describes a norm: y = (x - mean) / sqrt(variance + epsilon) * scale[channel] + shift[channel],
 * where plane = sample * channels + channel. The variance is divided by the count. */
typedef struct dpar_norm {
    int32_t type; /* also of scale and shift: DPAR_F32 or DPAR_F64 */
    int32_t samples, channels;
    int32_t groups; /* sets of a sample, of channels / groups channels each (GroupNorm). 1 is a
                       LayerNorm of all channels, `channels` is InstanceNorm. 0 is BatchNorm: a set
                       is one channel of all samples */
    double epsilon; /* 0 to 1e300 */
    const void *scale, *shift; /* [channels]; NULL selects 1 and 0 */
} dpar_norm;
/* Arrays of one step of a norm. Tiles may have their dims in any order. dpar_norm_sizes gives the
 * sizes of saved and scratch. */
typedef struct dpar_norm_arrays {
    const dpar_tile *x;  /* the rank's points; the box is the same in all tiles and may be empty */
    const dpar_tile *y;  /* forward writes it; may be x */
    const dpar_tile *dy; /* backward reads it */
    const dpar_tile *dx; /* backward writes it; may be dy */
    double *saved;       /* mean and inverse deviation of each set, one set after the other; forward
                            writes it, backward reads it */
    /* [channels]; backward adds this rank's part. NULL if not wanted. Summing over ranks is up to
     * you, as for other weights. */
    double *scale_gradient, *shift_gradient;
    double *scratch;
} dpar_norm_arrays;
/* Computes the numbers of doubles in saved and scratch. Each may be NULL. Local. O(1). */
DPAR_API void dpar_norm_sizes(const dpar_comm *c, const dpar_norm *n, int64_t *saved,
                              int64_t *scratch);
/* Computes y from x, with sums in f64.
 *
 * c: the ranks that share the sets: those with tiles of the same sample, for BatchNorm those with
 *    tiles of any sample.
 *
 * Collective: one all-gather of 24 bytes a set. O(points). Fails with DPAR_E_ARG; the message is in
 * c->why unless c is NULL. Points without data break the communicator so that the other ranks
 * notice. Fails with DPAR_E_MISMATCH if ranks give a different type, samples, channels, groups or
 * epsilon, on engines that compare calls: shared memory, and MPI with check. */
DPAR_API dpar_status dpar_norm_forward(dpar_comm *c, const dpar_norm *n, const dpar_norm_arrays *a);
/* Computes dx from dy and x. Collective: one all-reduce of 24 bytes a set. O(points). Fails as
 * dpar_norm_forward does. */
DPAR_API dpar_status dpar_norm_backward(dpar_comm *c, const dpar_norm *n,
                                        const dpar_norm_arrays *a);

/* ==== spatial/window_attention.h ==== */

/* window_attention - computes attention in a sliding window without a ring (sequence.h): each rank
 * gets the keys and values in the window around its own tokens as a halo.
 *
 *     layer.window = 4096;                  layer: as sequence.h says
 *     layer.method = dpar_attention_halo;
 *     dpar_packed_init(&layer.tokens, docs, ends, c->size, DPAR_SPLIT_EVEN, &why);
 *     dpar_attention_make(c, &layer, &plan, &why);         and on, as for the ring
 *
 * Each rank has a slice of the packed sequence: tokens.rule is CHUNK or EVEN, applied to the whole
 * sequence, whatever the documents. The rank receives the `window` tokens before its slice, and
 * those after it if not causal, from its neighbours or from ranks farther away. In backward, the
 * gradients of these tokens are sent back and added to those of their owners.
 *
 * Traffic. Let s be the number of this rank's tokens in the halos of other ranks, counted once for
 * each halo. Let h be the number of tokens in its own halo, without those beyond the ends of the
 * sequence, or 0 if it has no tokens. With E = groups (width + value_width) elements a token, it
 * sends
 *
 *     forward   s E bytes(type)
 *     backward  s E bytes(type) + h E bytes(sums)
 *
 * The plan holds the rank's own keys and values and those of its halo, their gradients, and a part
 * of an out. It also holds two halo exchanges, which dpar_attention_make plans with
 * dpar_halo_plan_make and dpar_attention_free frees. */

/* Selects halos for a sliding window: a value for dpar_attention_desc.method. Do not call it. With
 * it, dpar_attention_make fails with DPAR_E_ARG for a layer without window, a rule that is not
 * CHUNK or EVEN, or E above 2^24. Local. O(1). */
DPAR_API void dpar_attention_halo(struct dpari_attention_method *way);

#endif /* DPAR_SPATIAL_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_SPATIAL_IMPLEMENTATION)) && \
    !defined(DPAR_SPATIAL_IMPLEMENTATION_DONE)
#define DPAR_SPATIAL_IMPLEMENTATION_DONE

/* ==== spatial/spatial.c ==== */

/* Layers on a field that ranks share. Planning goes dim by dim. From the blocks of outputs follow
 * the inputs that they read, and from these the halo of the rank and the padding. Windows of a halo
 * exchange cover both, so that halo_exchange.h does the communication.
 *
 * Forward: the exchange begins, the kernel runs on the core (outputs that read only own points and
 * constants), the exchange ends, padding is filled dim by dim so that corners are filled from
 * corners, and the kernel runs on the slabs around the core. Backward runs the same steps in
 * reverse: padding is added to the points it was copied from, the last dim first, and halos are
 * added to their owners.
 *
 * Norms exchange (count, mean, M2) of each set and merge them in rank order. */

/* A plan, and what is behind its head. */
typedef struct dpari_spatial {
    dpar_spatial_plan head;
    dpar_comm *comm;
    dpar_box core;            /* outputs that need no halo */
    dpar_halo_plan *exchange; /* NULL: one rank that needs nothing from itself */
    dpar_halo halo;
    dpar_halo_field field[DPAR_SPATIAL_MAX_TENSORS];
    unsigned char *constants; /* on a device */
} dpari_spatial;

/* ---- one dim: extents ------------------------------------------------------------------------ */

static const int64_t dpari_spatial_limit = INT64_C(1) << 30; /* of interpolated extents */

static int dpari_spatial_touches(const dpar_spatial_desc *s, int32_t d)
{
    return s->window[d].kernel != 0;
}

static int64_t dpari_spatial_stride(const dpar_spatial_desc *s, int32_t d)
{
    return s->window[d].stride > 0 ? s->window[d].stride : 1;
}

static int64_t dpari_spatial_dilation(const dpar_spatial_desc *s, int32_t d)
{
    return s->window[d].dilation > 0 ? s->window[d].dilation : 1;
}

/* The distance from the first tap to the last. */
static int64_t dpari_spatial_reach(const dpar_spatial_desc *s, int32_t d)
{
    return dpari_spatial_dilation(s, d) * (s->window[d].kernel - 1);
}

/* How a dim is filled beyond its ends. */
static int32_t dpari_spatial_padding(const dpar_spatial_desc *s, int32_t d)
{
    return s->kind == DPAR_SPATIAL_INTERPOLATION && s->padding[d] == DPAR_SPATIAL_PAD_ZERO
               ? DPAR_SPATIAL_PAD_REPLICATE
               : s->padding[d];
}

/* A transposed convolution of n inputs; *most: with all the output padding that makes sense. */
static int64_t dpari_spatial_spread(const dpar_spatial_desc *s, int32_t d, int64_t n, int64_t *most)
{
    const int64_t least = (n - 1) * dpari_spatial_stride(s, d) - s->window[d].pad_low -
                          s->window[d].pad_high + dpari_spatial_reach(s, d) + 1;
    *most = least + dpari_most(dpari_spatial_stride(s, d), dpari_spatial_dilation(s, d)) - 1;
    return least;
}

/* The window of a dim as dpar.h knows it; 0: the layer does not touch the dim. */
static int dpari_spatial_window(const dpar_spatial_desc *s, int32_t d, dpar_window *v)
{
    int64_t most;
    *v = s->window[d];
    if (!dpari_spatial_touches(s, d)) {
        return 0;
    }
    v->kind = s->kind == DPAR_SPATIAL_TRANSPOSED      ? DPAR_WINDOW_TRANSPOSED
              : s->kind == DPAR_SPATIAL_INTERPOLATION ? DPAR_WINDOW_INTERPOLATION
              : s->kind == DPAR_SPATIAL_NEIGHBOURHOOD ? DPAR_WINDOW_NEIGHBOURHOOD
                                                      : DPAR_WINDOW_CONVOLUTION;
    v->align_corners = s->align_corners;
    if (s->kind == DPAR_SPATIAL_NEIGHBOURHOOD) {
        v->stride = 1;
        v->ceil_mode = 0;
        v->pad_low = 0;
        v->pad_high = 0;
    }
    if (s->kind == DPAR_SPATIAL_TRANSPOSED) { /* output padding is less padding cut off */
        const int64_t more = s->out_extent[d] - dpari_spatial_spread(s, d, s->in.extent[d], &most);
        v->pad_high -= dpari_least(v->pad_high, dpari_most(0, more));
    }
    if (s->kind == DPAR_SPATIAL_NEIGHBOURHOOD && s->padding[d] == DPAR_SPATIAL_PAD_WRAP) {
        v->kind = DPAR_WINDOW_CONVOLUTION; /* round a ring all neighbourhoods are centred */
        v->pad_low = v->kernel / 2 * dpari_spatial_dilation(s, d);
        v->pad_high = dpari_spatial_reach(s, d) - v->pad_low;
    }
    return 1;
}

static dpar_status dpari_spatial_other(const dpar_spatial_desc *s, int32_t d, int64_t *m,
                                       dpar_why *why)
{
    const int64_t n = s->in.extent[d];
    const dpar_window *v = &s->window[d];
    int64_t most;
    if (s->kind == DPAR_SPATIAL_NEIGHBOURHOOD) {
        dpar_window keys = *v;
        keys.kind = DPAR_WINDOW_NEIGHBOURHOOD; /* round a ring too: no key is to be seen twice */
        return dpar_window_outputs(&keys, n, m, why);
    }
    if (s->kind == DPAR_SPATIAL_INTERPOLATION) {
        *m = s->out_extent[d];
        if (n > dpari_spatial_limit || *m < 1 || *m > dpari_spatial_limit ||
            (v->kernel != 1 && v->kernel != 2 && v->kernel != 4)) {
            return dpari_wrong(
                why, "dim %d: %ld points from %ld by %ld taps: 1, 2 or 4, and extents of 1 to 2^30",
                d, *m, n, v->kernel);
        }
        return DPAR_OK;
    }
    *m = dpari_spatial_spread(s, d, n, &most);
    *m = s->out_extent[d] > 0 ? dpari_most(s->out_extent[d], *m) : *m; /* fewer are refused below */
    if (*m < 1 || *m > most || s->padding[d] != DPAR_SPATIAL_PAD_ZERO) {
        return dpari_wrong(
            why, "dim %d: %ld transposed outputs, %ld at most, at least 1; padding %d (zero alone)",
            d, *m, most, s->padding[d]);
    }
    return DPAR_OK;
}

/* Outputs of a dim. */
static DPARI_COLD dpar_status dpari_spatial_extent(const dpar_spatial_desc *s, int32_t d,
                                                   int64_t *m, dpar_why *why)
{
    const dpar_window *v = &s->window[d];
    const int64_t n = s->in.extent[d];
    dpar_status st;
    *m = n;
    if (n < 1) {
        return dpari_wrong(why, "dim %d has %ld points: at least 1", d, n);
    }
    if (!dpari_spatial_touches(s, d)) {
        return DPAR_OK;
    }
    if (s->padding[d] < DPAR_SPATIAL_PAD_ZERO || s->padding[d] > DPAR_SPATIAL_PAD_LOWEST) {
        return dpari_wrong(why, "dim %d: padding %d does not exist", d, s->padding[d]);
    }
    if (v->kernel < 0 || v->kernel > dpari_spatial_limit || v->stride < 0 || v->dilation < 0 ||
        v->stride > dpari_spatial_limit || v->dilation > dpari_spatial_limit || v->pad_low < 0 ||
        v->pad_high < 0 || v->pad_low > dpari_spatial_limit || v->pad_high > dpari_spatial_limit ||
        s->out_extent[d] < 0 || n > dpari_spatial_limit) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "dim %d of %ld points, kernel %ld, stride %ld: from 0 (dilation, pads, extent too) "
            "to 2^30",
            d, n, v->kernel, v->stride);
    }
    st = s->kind == DPAR_SPATIAL_CONVOLUTION ? dpar_window_outputs(v, n, m, why)
                                             : dpari_spatial_other(s, d, m, why);
    if (st == DPAR_OK && s->out_extent[d] != 0 && s->out_extent[d] != *m) {
        st = dpari_wrong(why, "dim %d: %ld outputs are said, there are %ld", d, s->out_extent[d],
                         *m);
    }
    if (st == DPAR_OK && s->kind == DPAR_SPATIAL_CONVOLUTION &&
        s->padding[d] == DPAR_SPATIAL_PAD_REFLECT && (v->pad_low >= n || v->pad_high >= n)) {
        st = dpari_wrong(why, "dim %d: pads of %ld and %ld are reflected in %ld points: too few", d,
                         v->pad_low, v->pad_high, n);
    }
    return st;
}

/* ---- one dim: what outputs read -------------------------------------------------------------- */

/* The tap of y that is at or before it, and how far behind it y lies. */
static int64_t dpari_spatial_source(const dpar_spatial_desc *s, int32_t d, int64_t y,
                                    double *fraction)
{
    const int64_t n = s->in.extent[d], m = s->out_extent[d];
    int64_t over = (2 * y + 1) * n - m, under = 2 * m, first;
    if (s->align_corners) {
        over = y * (n - 1);
        under = m > 1 ? m - 1 : 1;
    } else if (s->window[d].kernel == 1) {
        over = y * n; /* nearest, as torch: no half */
        under = m;
    }
    first = dpari_floor_div(over, under);
    *fraction = (double)(over - first * under) / (double)under;
    return first;
}

/* Inputs [*lo, *hi) that outputs [y0, y1) read, padding too. 0: none. */
static int dpari_spatial_reads(const dpar_spatial_desc *s, int32_t d, int64_t y0, int64_t y1,
                               int64_t *lo, int64_t *hi)
{
    const int64_t n = s->in.extent[d], k = s->window[d].kernel;
    dpar_window keys;
    double fraction;
    if (y1 <= y0) {
        return 0;
    }
    if (!dpari_spatial_touches(s, d)) {
        *lo = y0;
        *hi = y1;
        return 1;
    }
    switch (s->kind) {
    case DPAR_SPATIAL_CONVOLUTION: return dpari_window_needs(&s->window[d], y0, y1, lo, hi);
    case DPAR_SPATIAL_TRANSPOSED: return dpari_window_transposed(&s->window[d], n, y0, y1, lo, hi);
    case DPAR_SPATIAL_INTERPOLATION:
        *lo = dpari_spatial_source(s, d, y0, &fraction) - (k == 4);
        *hi = dpari_spatial_source(s, d, y1 - 1, &fraction) - (k == 4) + k;
        return 1;
    default: break;
    }
    (void)dpari_spatial_window(s, d, &keys);
    return dpari_window_reads(&keys, n, n, y0, y1, lo, hi);
}

/* How many of first, first + step, ... (count of them) lie in [lo, hi). */
static int64_t dpari_spatial_within(const dpar_spatial_tap_range *t, int64_t lo, int64_t hi)
{
    const int64_t a = dpari_most(0, -dpari_floor_div(-(lo - t->first), t->step));
    const int64_t b = dpari_least(t->count, -dpari_floor_div(-(hi - t->first), t->step));
    return dpari_most(0, b - a);
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_taps(const dpar_spatial_desc *layer, int32_t dim,
                                                  int64_t y, dpar_spatial_tap_range *taps)
{
    int64_t m, lo = 0, hi = 0;
    dpar_spatial_tap_range t;
    if (layer == NULL || taps == NULL || dim < 0 || dim >= layer->in.dims || dim >= DPAR_MAX_DIMS ||
        dpari_spatial_extent(layer, dim, &m, NULL) != DPAR_OK || y < 0 || y >= m) {
        return DPAR_E_ARG;
    }
    dpari_zero(&t, sizeof t);
    t.step = 1;
    if (dpari_spatial_reads(layer, dim, y, y + 1, &lo, &hi)) {
        t.first = lo;
        t.count = hi - lo;
    }
    if (dpari_spatial_touches(layer, dim) &&
        (layer->kind == DPAR_SPATIAL_CONVOLUTION || layer->kind == DPAR_SPATIAL_NEIGHBOURHOOD)) {
        t.step = dpari_spatial_dilation(layer, dim);
        t.count = layer->window[dim].kernel;
    }
    if (dpari_spatial_touches(layer, dim) && layer->kind == DPAR_SPATIAL_INTERPOLATION) {
        (void)dpari_spatial_source(layer, dim, y, &t.fraction);
    }
    t.inside = dpari_spatial_within(&t, 0, layer->in.extent[dim]);
    t.padded = t.inside;
    if (dpari_spatial_touches(layer, dim)) {
        t.padded = dpari_spatial_within(&t, -layer->window[dim].pad_low,
                                        layer->in.extent[dim] + layer->window[dim].pad_high);
    }
    *taps = t;
    return DPAR_OK;
}

/* ---- one dim: blocks ------------------------------------------------------------------------- */

/* One block of a dim. What is empty has hi <= lo. */
typedef struct dpari_spatial_block {
    int64_t own[2], out[2], box[2];
} dpari_spatial_block;

/* The outputs that stay with the inputs [own[0], own[1]) of n; m in all. */
static void dpari_spatial_follow(const dpar_spatial_desc *s, int32_t d, int64_t m,
                                 const int64_t *own, int64_t *out)
{
    const int64_t n = s->in.extent[d];
    int32_t side;
    if (s->kind == DPAR_SPATIAL_CONVOLUTION && dpari_spatial_touches(s, d)) {
        dpari_window_owned(&s->window[d], n, m, own[0], own[1], &out[0], &out[1]);
        return;
    }
    for (side = 0; side < 2; side++) {
        int64_t at = own[side];
        if (dpari_spatial_touches(s, d) && s->kind == DPAR_SPATIAL_TRANSPOSED) {
            at = dpari_least(m, at * dpari_spatial_stride(s, d));
        } else if (dpari_spatial_touches(s, d) && s->kind == DPAR_SPATIAL_INTERPOLATION) {
            at = dpari_ceil_div(at * m, n);
        }
        out[side] = own[side] == n ? m : at;
    }
}

/* `balanced`: the layout of the outputs, where they do not follow. */
static void dpari_spatial_outs(const dpar_spatial_desc *s, const dpar_layout *balanced, int32_t d,
                               int64_t m, const int32_t *coord, dpari_spatial_block *b)
{
    if (s->outputs != DPAR_SPATIAL_OUTPUTS_FOLLOW) {
        (void)dpari_layout_span(balanced, coord, d, &b->out[0], &b->out[1]);
    } else if (b->own[1] > b->own[0]) {
        dpari_spatial_follow(s, d, m, b->own, b->out);
    }
}

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

/* Where reads [lo, hi) of a dim get their padding from. */
static void dpari_spatial_sources(const dpar_spatial_desc *s, int32_t d, int64_t lo, int64_t hi,
                                  int64_t *box)
{
    const int64_t n = s->in.extent[d];
    const int32_t padding = dpari_spatial_padding(s, d);
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

static void dpari_spatial_block_of(const dpar_spatial_desc *s, const dpar_layout *balanced,
                                   int32_t d, const int32_t *coord, dpari_spatial_block *b)
{
    int64_t m, lo, hi;
    dpari_zero(b, sizeof *b);
    (void)dpari_spatial_extent(s, d, &m, NULL);
    (void)dpari_layout_span(&s->in, coord, d, &b->own[0], &b->own[1]);
    dpari_spatial_outs(s, balanced, d, m, coord, b);
    dpari_spatial_widen(b->box, b->own[0], b->own[1]);
    if (dpari_spatial_reads(s, d, b->out[0], b->out[1], &lo, &hi)) {
        dpari_spatial_widen(b->box, lo, hi);
        dpari_spatial_sources(s, d, lo, hi, b->box);
    }
}

/* ---- judging --------------------------------------------------------------------------------- */

/* True if the same mesh axes cut the same dims of both layouts. */
static dpar_status dpari_spatial_given(const dpar_spatial_desc *s, const int64_t *m, dpar_why *why)
{
    const dpar_layout *in = &s->in, *g = &s->given_layout;
    int32_t i;
    for (i = 0; i < in->dims; i++) {
        if (g->dims != in->dims || g->extent[i] != m[i]) {
            return dpari_wrong(why, "the layer has %ld outputs in dim %d, its layout %ld", m[i], i,
                               g->dims == in->dims ? g->extent[i] : 0);
        }
    }
    for (i = 0; i < in->mesh.axes; i++) {
        const dpar_placement *a = &in->axis[i], *b = &g->axis[i];
        if (!dpari_mesh_same(&in->mesh, &g->mesh) || a->kind != b->kind ||
            (a->kind == DPAR_PLACEMENT_SHARD && a->dim != b->dim)) {
            return dpari_wrong(
                why, "mesh axis %d does something else with the outputs than with the inputs", i);
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_spatial_layer(const dpar_spatial_desc *s, int64_t *m, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int32_t d;
    if (s->in.dims < 0 || s->in.dims > DPAR_MAX_DIMS || s->in.mesh.size < 1) {
        return dpari_wrong(why, "inputs of %d dims on %d ranks: dpar_layout_init makes it",
                           s->in.dims, s->in.mesh.size);
    }
    if (s->kind < DPAR_SPATIAL_CONVOLUTION || s->kind > DPAR_SPATIAL_NEIGHBOURHOOD ||
        s->outputs < DPAR_SPATIAL_OUTPUTS_BALANCED || s->outputs > DPAR_SPATIAL_OUTPUTS_GIVEN) {
        return dpari_wrong(why, "kind %d, outputs %d: there are 1 to 4 and 0 to 2", s->kind,
                           s->outputs);
    }
    if (s->tensors < 0 || s->tensors > DPAR_SPATIAL_MAX_TENSORS || s->planes < 0 ||
        s->planes > INT32_MAX || s->out_planes < 0 || s->out_planes > INT32_MAX ||
        dpar_type_bytes(s->type) == 0) {
        return dpari_wrong(why, "%d tensors (at most 4) of %ld and %ld planes, type %s", s->tensors,
                           s->planes, s->out_planes, dpar_type_name(s->type));
    }
    if (s->input_gradient != NULL && !dpari_type_can_reduce(s->type)) {
        return dpari_wrong(why, "gradients of type %s cannot be added on their way back",
                           dpar_type_name(s->type));
    }
    for (d = 0; d < s->in.dims && st == DPAR_OK; d++) {
        st = dpari_spatial_extent(s, d, &m[d], why);
        if (st == DPAR_OK && s->padding[d] == DPAR_SPATIAL_PAD_LOWEST && s->type == DPAR_F8) {
            st = dpari_wrong(
                why, "dim %d: the least number of f8 depends on its encoding: pad it yourself", d);
        }
    }
    return st == DPAR_OK && s->outputs == DPAR_SPATIAL_OUTPUTS_GIVEN
               ? dpari_spatial_given(s, m, why)
               : st;
}

/* True if axis i is the only axis that cuts its dim. */
static int dpari_spatial_alone(const dpar_layout *l, int32_t i)
{
    int32_t k;
    for (k = 0; k < l->mesh.axes; k++) {
        if (k != i && l->axis[k].kind == DPAR_PLACEMENT_SHARD && l->axis[k].dim == l->axis[i].dim) {
            return 0;
        }
    }
    return 1;
}

/* Cuts of the following outputs along axis i; parts + 1 of them. */
static void dpari_spatial_cuts(const dpar_spatial_desc *s, int32_t i, int64_t m, int64_t *cuts)
{
    int32_t coord[DPAR_MAX_AXES], p;
    dpari_zero(coord, sizeof coord);
    cuts[0] = 0;
    for (p = 0; p < s->in.mesh.axis[i].size; p++) {
        int64_t own[2] = {0, 0}, out[2] = {0, 0};
        coord[i] = p;
        if (dpari_layout_span(&s->in, coord, s->in.axis[i].dim, &own[0], &own[1])) {
            dpari_spatial_follow(s, s->in.axis[i].dim, m, own, out);
        }
        cuts[p + 1] = dpari_most(cuts[p], out[1]);
    }
}

/* Lays out the outputs over the ranks. cuts: room for those of all axes (NULL: following ones as
 * balanced ones, for callers that need only the others). */
static dpar_status dpari_spatial_layout(const dpar_spatial_desc *s, const int64_t *m, int64_t *cuts,
                                        dpar_layout *out, dpar_why *why)
{
    dpar_placement placement[DPAR_MAX_AXES];
    int32_t i;
    if (s->outputs == DPAR_SPATIAL_OUTPUTS_GIVEN) {
        *out = s->given_layout;
        return DPAR_OK;
    }
    for (i = 0; i < s->in.mesh.axes; i++) {
        placement[i] = s->in.axis[i];
        if (placement[i].kind != DPAR_PLACEMENT_SHARD ||
            !dpari_spatial_touches(s, placement[i].dim)) {
            continue;
        }
        placement[i] = dpar_shard_by(placement[i].dim, DPAR_SPLIT_EVEN, 0);
        placement[i].order = s->in.axis[i].order;
        if (s->outputs == DPAR_SPATIAL_OUTPUTS_FOLLOW && !dpari_spatial_alone(&s->in, i)) {
            return dpari_wrong(why, "outputs that follow: dim %d is cut by more than one mesh axis",
                               placement[i].dim);
        }
        if (s->outputs == DPAR_SPATIAL_OUTPUTS_FOLLOW && cuts != NULL) {
            placement[i].rule = DPAR_SPLIT_RAGGED;
            placement[i].cuts = cuts;
            dpari_spatial_cuts(s, i, m[placement[i].dim], cuts);
            cuts += s->in.mesh.axis[i].size + 1;
        }
    }
    return dpar_layout_init(out, &s->in.mesh, s->in.dims, m, placement, why);
}

/* Checks a layer and computes its outputs of each dim. */
static dpar_status dpari_spatial_outputs(const dpar_spatial_desc *layer, int64_t *m, dpar_why *why)
{
    dpar_layout out;
    dpar_status st =
        layer ? dpari_spatial_layer(layer, m, why) : dpari_wrong(why, "no layer: NULL");
    return st == DPAR_OK ? dpari_spatial_layout(layer, m, NULL, &out, why) : st;
}

/* ---- the boxes of a rank --------------------------------------------------------------------- */

/* Blocks of a dim. */
static int64_t dpari_spatial_blocks(const dpar_layout *l, int32_t d)
{
    int64_t n = 1;
    int32_t i;
    for (i = 0; i < l->mesh.axes; i++) {
        n *= l->axis[i].kind == DPAR_PLACEMENT_SHARD && l->axis[i].dim == d ? l->mesh.axis[i].size
                                                                            : 1;
    }
    return n;
}

/* The coordinates of block b of a dim: the axes in the order in which they cut, the first major. */
static void dpari_spatial_coords(const dpar_layout *l, int32_t d, int64_t b, int32_t *coord)
{
    int32_t i;
    dpari_zero(coord, DPAR_MAX_AXES * sizeof *coord);
    for (i = l->mesh.axes - 1; i >= 0; i--) {
        const int32_t a = l->order[i];
        if (l->axis[a].kind == DPAR_PLACEMENT_SHARD && l->axis[a].dim == d) {
            coord[a] = (int32_t)(b % l->mesh.axis[a].size);
            b /= l->mesh.axis[a].size;
        }
    }
}

/* What the windows of the halo give a block: the hull of its own points and those that its outputs
 * read. What it needs more comes by a width: of interpolations that wrap, of padding whose source
 * no output reads. */
static void dpari_spatial_hull_of(const dpar_halo *h, int32_t d, int64_t outputs,
                                  const dpari_spatial_block *k, int64_t *hull)
{
    int64_t lo, hi;
    hull[0] = k->own[0];
    hull[1] = k->own[1];
    if (h->window[d].kernel != 0 && dpari_window_reads(&h->window[d], h->grid.extent[d], outputs,
                                                       k->out[0], k->out[1], &lo, &hi)) {
        dpari_spatial_widen(hull, lo, hi);
    }
}

/* Dim d of the halo of a layer whose outputs are laid out as `out` (those that follow: any). */
static void dpari_spatial_halo_dim(const dpar_spatial_desc *s, const dpar_layout *out, int32_t d,
                                   dpar_halo *h)
{
    int32_t coord[DPAR_MAX_AXES];
    dpari_spatial_block k;
    dpar_window v;
    int64_t hull[2], b;
    if (dpari_spatial_touches(s, d) && s->padding[d] == DPAR_SPATIAL_PAD_WRAP) {
        h->periodic |= (uint32_t)1 << d;
    }
    if (dpari_spatial_window(s, d, &v)) {
        h->window[d] = v;
    }
    for (b = dpari_spatial_blocks(&s->in, d) - 1; b >= 0; b--) {
        dpari_spatial_coords(&s->in, d, b, coord);
        dpari_spatial_block_of(s, out, d, coord, &k);
        dpari_spatial_hull_of(h, d, out->extent[d], &k, hull);
        if (hull[1] > hull[0]) {
            h->low[d] = dpari_most(h->low[d], hull[0] - k.box[0]);
            h->high[d] = dpari_most(h->high[d], k.box[1] - hull[1]);
        }
    }
}

static void dpari_spatial_halo(const dpar_spatial_desc *s, const dpar_layout *out, dpar_halo *h)
{
    int32_t d;
    dpari_zero(h, sizeof *h);
    h->grid = s->in;
    h->shape = DPAR_STENCIL_BOX;
    h->outputs = out;
    for (d = 0; d < s->in.dims; d++) {
        dpari_spatial_halo_dim(s, out, d, h);
    }
}

enum { DPARI_SPATIAL_OWN, DPARI_SPATIAL_OUT, DPARI_SPATIAL_BOX };

/* What a rank holds of dim d. */
static void dpari_spatial_part(const dpar_spatial_desc *s, const dpar_halo *h, int32_t d,
                               const int32_t *coord, int32_t which, int64_t *part)
{
    dpari_spatial_block k;
    dpari_spatial_block_of(s, h->outputs, d, coord, &k);
    if (which == DPARI_SPATIAL_BOX) {
        dpari_spatial_hull_of(h, d, h->outputs->extent[d], &k, part);
        part[0] -= part[1] > part[0] ? h->low[d] : 0;
        part[1] += part[1] > part[0] ? h->high[d] : 0;
    } else {
        part[0] = which == DPARI_SPATIAL_OWN ? k.own[0] : k.out[0];
        part[1] = which == DPARI_SPATIAL_OWN ? k.own[1] : k.out[1];
    }
}

static int dpari_spatial_box_of(const dpar_spatial_desc *s, int32_t rank, int32_t which,
                                dpar_box *box)
{
    int64_t m[DPAR_MAX_DIMS];
    int32_t coord[DPAR_MAX_AXES], d;
    dpar_layout balanced;
    dpar_halo h;
    dpar_box b;
    if (dpari_spatial_layer(s, m, NULL) != DPAR_OK ||
        dpari_spatial_layout(s, m, NULL, &balanced, NULL) != DPAR_OK ||
        !dpar_mesh_coords(&s->in.mesh, rank, coord)) {
        return 0;
    }
    dpari_zero(&b, sizeof b);
    b.dims = s->in.dims;
    dpari_spatial_halo(s, &balanced, &h);
    for (d = 0; d < b.dims; d++) {
        int64_t part[2];
        dpari_spatial_part(s, &h, d, coord, which, part);
        if (part[1] <= part[0]) {
            return 0;
        }
        b.lo[d] = part[0];
        b.hi[d] = part[1];
    }
    *box = b;
    return 1;
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_check(const dpar_spatial_desc *layer, int32_t rank,
                                                   dpar_spatial_boxes *boxes, dpar_why *why)
{
    dpar_spatial_boxes b;
    const dpar_status st = dpari_spatial_outputs(layer, b.extent, why);
    if (st == DPAR_OK && boxes != NULL) {
        dpari_zero(&b.in, sizeof b.in);
        dpari_zero(&b.out, sizeof b.out);
        (void)dpari_spatial_box_of(layer, rank, DPARI_SPATIAL_BOX, &b.in);
        (void)dpari_spatial_box_of(layer, rank, DPARI_SPATIAL_OUT, &b.out);
        *boxes = b;
    }
    return st;
}

/* The inputs that the outputs of `out` read. 0: none. */
static int dpari_spatial_needs(const dpar_spatial_desc *s, const dpar_box *out, dpar_box *in)
{
    int32_t d;
    in->dims = out->dims;
    for (d = 0; d < out->dims; d++) {
        if (!dpari_spatial_reads(s, d, out->lo[d], out->hi[d], &in->lo[d], &in->hi[d])) {
            return 0;
        }
    }
    return 1;
}

/* Outputs [core[0], core[1]) of [out[0], out[1]) of a dim that read own points and constants. */
static void dpari_spatial_inner(const dpar_spatial_desc *s, int32_t d, const int64_t *own,
                                const int64_t *out, int64_t *core)
{
    const int32_t padding = dpari_spatial_padding(s, d);
    const int constant = padding == DPAR_SPATIAL_PAD_ZERO || padding == DPAR_SPATIAL_PAD_LOWEST;
    const int64_t low = constant && own[0] == 0 ? INT64_MIN : own[0];
    const int64_t high = constant && own[1] == s->in.extent[d] ? INT64_MAX : own[1];
    int64_t lo = 0, hi = 0;
    core[0] = out[0];
    core[1] = out[1];
    while (dpari_spatial_reads(s, d, core[0], core[1], &lo, &hi) && lo < low) {
        core[0]++;
    }
    while (dpari_spatial_reads(s, d, core[0], core[1], &lo, &hi) && hi > high) {
        core[1]--;
    }
}

static void dpari_spatial_core(dpari_spatial *p)
{
    dpar_box core = p->head.out_owned;
    int32_t d;
    if (p->head.layer.no_overlap || p->head.in_owned.dims == 0) {
        return;
    }
    for (d = 0; d < core.dims; d++) {
        const int64_t own[2] = {p->head.in_owned.lo[d], p->head.in_owned.hi[d]};
        const int64_t out[2] = {p->head.out_owned.lo[d], p->head.out_owned.hi[d]};
        int64_t inner[2];
        dpari_spatial_inner(&p->head.layer, d, own, out, inner);
        core.lo[d] = inner[0];
        core.hi[d] = inner[1];
        if (inner[1] <= inner[0]) {
            return;
        }
    }
    p->core = core;
}

/* ---- planning -------------------------------------------------------------------------------- */

/* Memory of a plan: itself, cuts of following outputs, the exchange. */
typedef struct dpari_spatial_memory {
    int64_t cuts, exchange; /* where they begin, bytes */
} dpari_spatial_memory;

static void dpari_spatial_parts(const dpar_spatial_desc *s, dpari_spatial_memory *at)
{
    int64_t cuts = 0;
    int32_t i;
    for (i = 0; i < s->in.mesh.axes; i++) {
        cuts += s->in.mesh.axis[i].size + 1;
    }
    at->cuts = dpari_room_up((int64_t)sizeof(dpari_spatial));
    at->exchange = at->cuts + dpari_room_up(8 * cuts);
}

/* The field of each input: planes of in_box, dense; `least`: the box of its halo. */
static void dpari_spatial_fields(dpari_spatial *p, const dpar_box *least)
{
    const dpar_spatial_desc *s = &p->head.layer;
    dpar_tile t;
    int32_t i, d;
    dpar_tile_init(&t, NULL, &p->head.in_box, s->planes, s->channels_last);
    for (i = 0; i < s->tensors; i++) {
        dpar_halo_field *f = &p->field[i];
        dpari_zero(f, sizeof *f);
        f->halo = &p->halo;
        f->type = s->type;
        f->components = (int32_t)s->planes;
        f->component_stride = t.plane;
        f->mem = p->comm->mem;
        f->data = p->head.in_box.dims > 0 ? p : NULL; /* until the first step */
        for (d = 0; d < p->head.in_box.dims; d++) {
            const int64_t first = p->head.in_owned.dims > 0 ? p->head.in_owned.lo[d] : least->lo[d];
            f->stride[d] = t.stride[d];
            f->first[d] = first - p->head.in_box.lo[d];
        }
    }
}

/* True if the elements of an array over the box, and their global indices, are far below 2^63. */
static int dpari_spatial_has_room(const dpar_box *box, int64_t planes)
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

/* The box of the input arrays: the caller's, if there is one, which must hold the least. */
static dpar_status dpari_spatial_choose_box(dpari_spatial *p, const dpar_box *least, dpar_why *why)
{
    const dpar_box *given = &p->head.layer.in_box;
    const int none = given->dims == 0;
    if (!none && (given->dims != p->head.layer.in.dims || !dpari_spatial_has_room(given, 1))) {
        return dpari_wrong(
            why, "in_box of %d dims for inputs of %d, or not a box of lo <= hi within 2^60",
            given->dims, p->head.layer.in.dims);
    }
    p->head.in_box = none || (least->dims == 0 && dpar_box_volume(given) == 0) ? *least : *given;
    if (least->dims > 0 && !dpari_box_contains(&p->head.in_box, least)) {
        return dpari_wrong(why, "in_box does not hold what dpar_spatial_check says");
    }
    if (!dpari_spatial_has_room(&p->head.in_box, p->head.layer.planes) ||
        !dpari_spatial_has_room(&p->head.out_owned, p->head.layer.out_planes)) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "%ld planes of inputs or %ld of outputs on rank %d: more than 2^60 elements",
            p->head.layer.planes, p->head.layer.out_planes, p->comm->rank);
    }
    return DPAR_OK;
}

/* All of a plan but its exchange. */
static dpar_status dpari_spatial_plan_in(unsigned char *memory, dpar_comm *c,
                                         const dpar_spatial_desc *layer, dpar_why *why)
{
    dpari_spatial *p = (dpari_spatial *)(void *)memory;
    dpari_spatial_memory at;
    int64_t m[DPAR_MAX_DIMS];
    dpar_box least;
    dpar_status st;
    dpari_spatial_parts(layer, &at);
    dpari_zero(p, sizeof *p);
    p->comm = c;
    p->head.layer = *layer;
    p->head.layer.tensors = layer->tensors > 0 ? layer->tensors : 1;
    p->head.layer.planes = layer->planes > 0 ? layer->planes : 1;
    p->head.layer.out_planes = layer->out_planes > 0 ? layer->out_planes : p->head.layer.planes;
    (void)dpari_spatial_layer(&p->head.layer, m, NULL);
    st = dpari_spatial_layout(&p->head.layer, m, (int64_t *)(void *)(memory + at.cuts),
                              &p->head.out, why);
    if (st != DPAR_OK) {
        return st;
    }
    (void)dpari_spatial_box_of(&p->head.layer, c->rank, DPARI_SPATIAL_OUT, &p->head.out_owned);
    (void)dpari_spatial_box_of(&p->head.layer, c->rank, DPARI_SPATIAL_OWN, &p->head.in_owned);
    dpari_spatial_halo(&p->head.layer, &p->head.out, &p->halo);
    st = dpar_halo_check(&p->halo, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(&least, sizeof least);
    (void)dpar_halo_box(&p->halo, c->rank, &least);
    st = dpari_spatial_choose_box(p, &least, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_spatial_core(p);
    dpari_spatial_fields(p, &least);
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

/* Checks a layer and counts the bytes of its plan, which it lays out in pages that it gives back.
 * exchange: set to where the plan of the halo exchange begins. */
static DPARI_COLD dpar_status dpari_spatial_count(dpar_comm *c, const dpar_spatial_desc *layer,
                                                  int64_t *exchange, int64_t *need, dpar_why *why)
{
    dpari_spatial_memory at;
    void *memory;
    int64_t m[DPAR_MAX_DIMS], more = 0;
    dpar_status st;
    if (layer == NULL) {
        return dpari_wrong(why, "the layer is NULL");
    }
    st = dpari_spatial_outputs(layer, m, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_spatial_parts(layer, &at);
    memory = dpari_os_pages(at.exchange);
    if (memory == NULL) {
        return dpari_say(DPAR_E_MEMORY, why, "no %ld bytes to plan a layer in", at.exchange);
    }
    st = dpari_spatial_plan_in((unsigned char *)memory, c, layer, why);
    if (st == DPAR_OK) {
        dpar_halo_plan_desc o;
        dpari_spatial_exchange_desc((const dpari_spatial *)memory, layer, &o);
        st = dpari_hx_bytes(c, &o, &more, why);
    }
    dpari_os_unmap(memory, at.exchange);
    *exchange = at.exchange;
    *need = at.exchange + more;
    return st;
}

/* What all ranks must give alike besides what their exchange compares: layouts, types. */
static DPARI_COLD void dpari_spatial_state(dpari_facts *f, const void *given)
{
    const dpar_spatial_desc *s = (const dpar_spatial_desc *)given;
    int32_t d;
    dpari_fact(f, "kind", 0, s->kind);
    dpari_fact(f, "outputs", 0, s->outputs);
    dpari_fact(f, "tensors", 0, s->tensors);
    dpari_fact(f, "planes", 0, s->planes);
    dpari_fact(f, "out_planes", 0, s->out_planes);
    dpari_fact(f, "align_corners", 0, s->align_corners != 0);
    dpari_fact(f, "channels_last", 0, s->channels_last != 0);
    dpari_fact(f, "input_gradient != NULL", 0, s->input_gradient != NULL);
    dpari_fact_type(f, "type", 0, s->type);
    dpari_fact(f, "in.dims", 0, s->in.dims);
    for (d = 0; d < s->in.dims; d++) {
        const dpar_window *v = &s->window[d];
        dpari_fact(f, "in.extent[#]", d, s->in.extent[d]);
        dpari_fact(f, "out_extent[#]", d, s->out_extent[d]);
        dpari_fact(f, "padding[#]", d, s->padding[d]);
        dpari_fact(f, "window[#].kernel", d, v->kernel);
        dpari_fact(f, "window[#].stride", d, v->stride);
        dpari_fact(f, "window[#].dilation", d, v->dilation);
        dpari_fact(f, "window[#].pad_low", d, v->pad_low);
        dpari_fact(f, "window[#].pad_high", d, v->pad_high);
        dpari_fact(f, "window[#].ceil_mode", d, v->ceil_mode != 0);
    }
}

/* The least number of a type, one element: minus infinity where there is one. */
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

/* On a device, what padding is filled with there: a zero, and the least number of the type. */
enum { DPARI_SPATIAL_ZERO = 0, DPARI_SPATIAL_LOWEST = 8, DPARI_SPATIAL_CONSTANTS = 16 };
static dpar_status dpari_spatial_constants(const dpari_spatial *p, void **constants, dpar_why *why)
{
    const int32_t type = p->head.layer.type;
    dpar_mem_span s;
    dpar_status st;
    st = dpar_comm_alloc(p->comm, DPARI_SPATIAL_CONSTANTS, constants);
    if (st != DPAR_OK) {
        *constants = NULL;
        return dpari_say(st, why, "no %d bytes for what padding is filled with",
                         (int32_t)DPARI_SPATIAL_CONSTANTS);
    }
    dpari_zero(&s, sizeof s);
    s.to = (unsigned char *)*constants + DPARI_SPATIAL_LOWEST;
    s.to_type = s.from_type = type == DPAR_TF32 ? (int32_t)DPAR_F32 : type;
    s.count = 1;
    dpari_spatial_lowest(DPAR_F64, (unsigned char *)(void *)&s.scale);
    if (type == DPAR_I32 || type == DPAR_I64) { /* -0 has the bits of the least integer */
        s.to_type = s.from_type = type == DPAR_I32 ? DPAR_F32 : DPAR_F64;
        s.from = *constants;
        s.scale = -1.0;
    } else if (type == DPAR_I8) { /* -2^-126: both bytes 0x80 */
        s.to_type = s.from_type = DPAR_BF16;
        s.scale = -1.1754943508222875e-38;
    } else if (!dpari_is_float(s.to_type)) { /* no sign: 0 */
        return DPAR_OK;
    }
    return dpari_do_span(p->comm, &s, 1);
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_make(dpar_comm *c, const dpar_spatial_desc *layer,
                                                  dpar_spatial_plan **plan, dpar_why *why)
{
    dpari_spatial *p;
    dpari_hx_traffic t;
    dpar_halo_plan_desc desc;
    void *memory = NULL, *constants = NULL;
    int64_t exchange = 0, need = 0;
    int32_t k;
    dpar_status st;
    if (c == NULL) {
        return dpari_wrong(why, "the communicator is NULL");
    }
    st = plan == NULL ? dpari_wrong(why, "the plan is NULL")
                      : dpari_spatial_count(c, layer, &exchange, &need, why);
    if (st == DPAR_OK) {
        st = dpari_made_memory(c, layer->memory, layer->bytes, need, "spatial", &memory, why);
    }
    p = (dpari_spatial *)memory;
    if (st == DPAR_OK) {
        st = dpari_spatial_plan_in((unsigned char *)memory, c, layer, why);
    }
    if (st == DPAR_OK && c->mem != NULL) {
        st = dpari_spatial_constants(p, &constants, why);
    }
    st = dpari_agree_on(c, st, "spatial", dpari_spatial_state,
                        st == DPAR_OK ? &p->head.layer : NULL, why);
    if (st == DPAR_OK) {
        dpari_spatial_exchange_desc(p, layer, &desc);
        desc.memory = (unsigned char *)memory + exchange;
        desc.bytes = need - exchange;
        st = dpari_hx_open(c, &desc, 1, &p->exchange, why);
    }
    if (st != DPAR_OK) {
        if (constants != NULL) {
            dpar_comm_release(c, constants);
        }
        return dpari_made_failed(st, layer != NULL ? layer->memory : NULL, memory, need, why);
    }
    for (k = 0; dpari_hx_traffic_of(p->exchange, k, &t); k++) {
        p->head.halo_bytes += t.peer != c->rank ? t.bytes : 0;
    }
    p->constants = (unsigned char *)constants;
    *plan = &p->head;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_free(dpar_spatial_plan *plan)
{
    dpari_spatial *p = (dpari_spatial *)(void *)plan;
    dpar_status st;
    if (p == NULL) {
        return DPAR_OK;
    }
    st = dpar_halo_plan_free(p->exchange);
    if (dpari_made_refused(p->comm, st)) {
        return st;
    }
    if (p->constants != NULL) {
        dpar_comm_release(p->comm, p->constants);
    }
    return dpari_made_end(st, p->head.layer.memory == NULL ? p : NULL);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Where a point of a plane lies in a tile. */
static int64_t dpari_tile_at(const dpar_tile *tile, int64_t plane, const int64_t *point)
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

/* A walk over rows of elements in a box of a tile: planes and dims but the row's; `skip` is a dim
 * at one index (-1: none). Planes are the row where they are innermost, else the last dim. */
typedef struct dpari_spatial_rows {
    int32_t row; /* the dim of the row; -1: the planes; -2: single elements */
    int64_t count;
    int64_t plane, at[DPAR_MAX_DIMS];
} dpari_spatial_rows;

static void dpari_spatial_rows_begin(dpari_spatial_rows *r, const dpar_tile *t, int32_t skip)
{
    int32_t d;
    r->row = t->plane == 1 && t->planes > 1 ? -1 : t->box.dims - 1 == skip ? -2 : t->box.dims - 1;
    r->count = r->row == -1 ? t->planes : r->row == -2 ? 1 : t->box.hi[r->row] - t->box.lo[r->row];
    r->plane = 0;
    for (d = 0; d < t->box.dims; d++) {
        r->at[d] = t->box.lo[d];
    }
}

/* The next row; 0 at the end. */
static int dpari_spatial_rows_next(dpari_spatial_rows *r, const dpar_tile *t, int32_t skip)
{
    int32_t d;
    for (d = t->box.dims - 1; d >= 0; d--) {
        if (d == skip || d == r->row) {
            continue;
        }
        if (++r->at[d] < t->box.hi[d]) {
            return 1;
        }
        r->at[d] = t->box.lo[d];
    }
    return r->row != -1 && ++r->plane < t->planes;
}

/* ---- padding --------------------------------------------------------------------------------- */

/* Where cell i beyond the ends of a dim comes from; -1: from nowhere. */
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

static void dpari_spatial_set(unsigned char *to, int64_t count, const unsigned char *element,
                              int32_t size)
{
    int64_t k;
    for (k = 0; k < count; k++) {
        dpari_kern_copy(to + k * size, element, size, 0);
    }
}

/* Operations on a layer of padding: fill it, add its gradients to their source, or clear it. */
enum { DPARI_SPATIAL_FILL, DPARI_SPATIAL_FOLD, DPARI_SPATIAL_CLEAR };

/* Cells at index i of dim d: filled from index `from` (-1: with `element`); or their gradients
 * added there, and cleared. */
static DPARI_COLD void dpari_spatial_slice(const dpar_tile *t, int32_t type, int32_t d, int64_t i,
                                           int64_t from, int32_t what, const unsigned char *element)
{
    const int32_t size = dpar_type_bytes(type);
    unsigned char *base = (unsigned char *)t->data;
    unsigned char zero[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    dpari_spatial_rows r;
    if (t->planes < 1) {
        return;
    }
    dpari_spatial_rows_begin(&r, t, d);
    do {
        unsigned char *to, *other;
        r.at[d] = i;
        to = base + dpari_tile_at(t, r.plane, r.at) * size;
        r.at[d] = from;
        other = from >= 0 ? base + dpari_tile_at(t, r.plane, r.at) * size : NULL;
        if (what == DPARI_SPATIAL_FILL && other != NULL) {
            dpari_kern_copy(to, other, r.count * size, 0);
        } else if (what == DPARI_SPATIAL_FILL) {
            dpari_spatial_set(to, r.count, element, size);
        } else {
            if (what == DPARI_SPATIAL_FOLD && other != NULL) {
                const void *in[2];
                void *out = other;
                in[0] = other;
                in[1] = to;
                dpari_kern_reduce(&out, 1, in, 2, r.count, type, DPAR_SUM, 0);
            }
            dpari_spatial_set(to, r.count, zero, size);
        }
    } while (dpari_spatial_rows_next(&r, t, d));
}

/* Boxes of a device's memory that go there together. */
enum { DPARI_SPATIAL_BOXES = 16 };
typedef struct dpari_spatial_boxes {
    dpar_comm *c;
    const unsigned char *constants;
    dpar_status status;
    int32_t n;
    dpar_mem_box box[DPARI_SPATIAL_BOXES];
} dpari_spatial_boxes;

static void dpari_spatial_boxes_begin(dpari_spatial_boxes *b, const dpari_spatial *p)
{
    b->c = p->comm;
    b->constants = p->constants;
    b->status = DPAR_OK;
    b->n = 0;
}

static dpar_status dpari_spatial_boxes_go(dpari_spatial_boxes *b)
{
    if (b->n > 0 && b->status == DPAR_OK) {
        b->status = dpari_do_move(b->c, b->box, b->n);
    }
    b->n = 0;
    return b->status;
}

/* dpari_spatial_slice as a box. */
static void dpari_spatial_slice_there(dpari_spatial_boxes *boxes, const dpar_tile *t, int32_t type,
                                      int32_t d, int64_t i, int64_t from, int32_t what,
                                      int32_t constant)
{
    const int32_t size = dpar_type_bytes(type);
    const int sums = what == DPARI_SPATIAL_FOLD && from >= 0;
    unsigned char *base = (unsigned char *)t->data, *cells, *other;
    int64_t at[DPAR_MAX_DIMS];
    dpar_mem_box *b;
    int32_t k;
    if (boxes->n == DPARI_SPATIAL_BOXES ||
        (boxes->n > 0 && (boxes->box[0].op == DPAR_SUM) != sums)) {
        (void)dpari_spatial_boxes_go(boxes);
    }
    for (k = 0; k < t->box.dims; k++) {
        at[k] = k == d ? i : t->box.lo[k];
    }
    cells = base + dpari_tile_at(t, 0, at) * size;
    at[d] = from;
    other = base + (from >= 0 ? dpari_tile_at(t, 0, at) * size : 0);
    b = &boxes->box[boxes->n++];
    dpari_zero(b, sizeof *b);
    b->to_type = b->from_type = b->round_type = type;
    b->op = sums ? (int32_t)DPAR_SUM : (int32_t)DPAR_COPY;
    b->clear = sums;
    b->to = sums ? other : cells;
    b->from = sums ? cells : from >= 0 ? other : (void *)(uintptr_t)(boxes->constants + constant);
    b->dims = t->box.dims;
    for (k = 0; k < t->box.dims; k++) { /* the planes in place of d */
        b->extent[k] = k == d ? t->planes : t->box.hi[k] - t->box.lo[k];
        b->to_stride[k] = k == d ? t->plane : t->stride[k];
        b->from_stride[k] = from >= 0 ? b->to_stride[k] : 0;
    }
}

/* All padding of dim d. */
static dpar_status dpari_spatial_pad(const dpari_spatial *p, const dpar_tile *t, int32_t d,
                                     int32_t what)
{
    const dpar_spatial_desc *s = &p->head.layer;
    const int64_t n = s->in.extent[d];
    const int32_t padding = dpari_spatial_padding(s, d);
    const int there = p->comm->mem != NULL, lowest = padding == DPAR_SPATIAL_PAD_LOWEST;
    unsigned char element[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    dpari_spatial_boxes boxes;
    int64_t i, from;
    dpari_spatial_boxes_begin(&boxes, p);
    if (lowest) {
        dpari_spatial_lowest(s->type, element);
    }
    for (i = t->box.lo[d]; i < t->box.hi[d]; i++) {
        if (i >= 0 && i < n) {
            i = dpari_least(n, t->box.hi[d]) - 1;
            continue;
        }
        from = dpari_spatial_image(padding, n, i);
        if (from >= 0 && (from < t->box.lo[d] || from >= t->box.hi[d])) {
            continue; /* beyond what any output reads */
        }
        if (there) {
            dpari_spatial_slice_there(&boxes, t, s->type, d, i, from, what,
                                      lowest && what == DPARI_SPATIAL_FILL
                                          ? (int32_t)DPARI_SPATIAL_LOWEST
                                          : (int32_t)DPARI_SPATIAL_ZERO);
        } else {
            dpari_spatial_slice(t, s->type, d, i, from, what, element);
        }
    }
    return dpari_spatial_boxes_go(&boxes);
}

static int dpari_spatial_pads(const dpari_spatial *p, int32_t d)
{
    return dpari_spatial_touches(&p->head.layer, d) &&
           p->head.layer.padding[d] != DPAR_SPATIAL_PAD_WRAP;
}

/* Dim after dim, so that corners come from corners. */
static dpar_status dpari_spatial_fill(const dpari_spatial *p, const dpar_spatial_arrays *a,
                                      int constants)
{
    dpar_status st = DPAR_OK;
    dpar_tile t;
    int32_t i, d;
    for (i = 0; i < p->head.layer.tensors && p->head.in_box.dims > 0; i++) {
        dpar_tile_init(&t, a->in[i], &p->head.in_box, p->head.layer.planes,
                       p->head.layer.channels_last);
        for (d = 0; d < t.box.dims && st == DPAR_OK; d++) {
            const int32_t padding = dpari_spatial_padding(&p->head.layer, d);
            if (dpari_spatial_pads(p, d) && (!constants || padding == DPAR_SPATIAL_PAD_ZERO ||
                                             padding == DPAR_SPATIAL_PAD_LOWEST)) {
                st = dpari_spatial_pad(p, &t, d, DPARI_SPATIAL_FILL);
            }
        }
    }
    return st;
}

/* The other way: the last dim first. */
static dpar_status dpari_spatial_fold(const dpari_spatial *p, const dpar_spatial_arrays *a)
{
    dpar_status st = DPAR_OK;
    dpar_tile t;
    int32_t i, d;
    for (i = 0; i < p->head.layer.tensors && p->head.in_box.dims > 0; i++) {
        dpar_tile_init(&t, a->in_gradient[i], &p->head.in_box, p->head.layer.planes,
                       p->head.layer.channels_last);
        for (d = t.box.dims - 1; d >= 0 && st == DPAR_OK; d--) {
            if (dpari_spatial_pads(p, d)) {
                st = dpari_spatial_pad(p, &t, d, DPARI_SPATIAL_FOLD);
            }
        }
    }
    return st;
}

/* What lies around the own points in dim d becomes 0. */
static dpar_status dpari_spatial_clear_around(const dpari_spatial *p, const dpar_tile *t, int32_t d)
{
    dpari_spatial_boxes boxes;
    int64_t k;
    dpari_spatial_boxes_begin(&boxes, p);
    for (k = t->box.lo[d]; k < t->box.hi[d]; k++) {
        if (k >= p->head.in_owned.lo[d] && k < p->head.in_owned.hi[d]) {
            continue;
        }
        if (p->comm->mem != NULL) {
            dpari_spatial_slice_there(&boxes, t, p->head.layer.type, d, k, -1, DPARI_SPATIAL_CLEAR,
                                      DPARI_SPATIAL_ZERO);
        } else {
            dpari_spatial_slice(t, p->head.layer.type, d, k, -1, DPARI_SPATIAL_CLEAR, NULL);
        }
    }
    return dpari_spatial_boxes_go(&boxes);
}

/* Gradients begin at 0: all, or those around the own points. */
static dpar_status dpari_spatial_clear(const dpari_spatial *p, const dpar_spatial_arrays *a)
{
    dpar_status st = DPAR_OK;
    dpar_tile t;
    int32_t i, d;
    for (i = 0; i < p->head.layer.tensors && p->head.in_box.dims > 0; i++) {
        const int64_t bytes = dpar_box_volume(&p->head.in_box) * p->head.layer.planes *
                              dpar_type_bytes(p->head.layer.type);
        dpar_tile_init(&t, a->in_gradient[i], &p->head.in_box, p->head.layer.planes,
                       p->head.layer.channels_last);
        if (!a->accumulate || p->head.in_owned.dims == 0) {
            if (p->comm->mem == NULL) {
                dpari_zero(t.data, (size_t)bytes);
            } else if (st == DPAR_OK) {
                st = dpari_do_copy(p->comm, t.data, NULL, bytes);
            }
            continue;
        }
        for (d = 0; d < t.box.dims && st == DPAR_OK; d++) {
            st = dpari_spatial_clear_around(p, &t, d);
        }
    }
    return st;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void dpari_spatial_tile(dpar_tile *t, void *data, const dpar_box *array, int64_t planes,
                               int32_t last, const dpar_box *box)
{
    dpar_tile_init(t, data, array, planes, last);
    t->box = *box;
}

/* Runs a kernel on the outputs of a box. */
static void dpari_spatial_kernel_on(const dpari_spatial *p, const dpar_spatial_arrays *a,
                                    dpar_spatial_kernel kernel, const dpar_box *out)
{
    const dpar_spatial_desc *s = &p->head.layer;
    const dpar_box *array = a->out_box.dims > 0 ? &a->out_box : &p->head.out_owned;
    dpar_spatial_call call;
    dpar_box in;
    int32_t i;
    if (kernel == NULL || out->dims == 0) {
        return;
    }
    if (!dpari_spatial_needs(s, out, &in)) {
        in = p->head.in_box; /* outputs that read nothing: transposed, far out */
        in.hi[0] = in.lo[0];
    }
    dpari_zero(&call, sizeof call);
    call.layer = s;
    call.user = s->user;
    for (i = 0; i < s->tensors; i++) {
        dpari_spatial_tile(&call.in[i], a->in[i], &p->head.in_box, s->planes, s->channels_last,
                           &in);
        dpari_spatial_tile(&call.in_gradient[i], a->in_gradient[i], &p->head.in_box, s->planes,
                           s->channels_last, &in);
    }
    dpari_spatial_tile(&call.out, a->out, array, s->out_planes, s->channels_last, out);
    dpari_spatial_tile(&call.out_gradient, a->out_gradient, array, s->out_planes, s->channels_last,
                       out);
    kernel(&call);
}

/* The outputs around the core: slabs dim by dim, earlier dims cut to the core. */
static void dpari_spatial_rim(const dpari_spatial *p, const dpar_spatial_arrays *a)
{
    dpar_box rest = p->head.out_owned, slab;
    int32_t d;
    if (p->core.dims == 0) {
        dpari_spatial_kernel_on(p, a, p->head.layer.forward, &rest);
        return;
    }
    for (d = 0; d < rest.dims; d++) {
        slab = rest;
        slab.hi[d] = p->core.lo[d];
        if (slab.hi[d] > slab.lo[d]) {
            dpari_spatial_kernel_on(p, a, p->head.layer.forward, &slab);
        }
        slab = rest;
        slab.lo[d] = p->core.hi[d];
        if (slab.hi[d] > slab.lo[d]) {
            dpari_spatial_kernel_on(p, a, p->head.layer.forward, &slab);
        }
        rest.lo[d] = p->core.lo[d];
        rest.hi[d] = p->core.hi[d];
    }
}

static dpar_status dpari_spatial_bind(dpari_spatial *p, void *const *data)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    for (i = 0; i < p->head.layer.tensors && st == DPAR_OK; i++) {
        st = dpar_halo_plan_bind(p->exchange, i, p->head.in_box.dims > 0 ? data[i] : NULL, NULL);
    }
    return st;
}

/* Checks that a step has all arrays: in forward the inputs and the output, in backward the
 * gradients of all inputs or of none. */
static DPARI_COLD dpar_status dpari_spatial_given_arrays(const dpari_spatial *p,
                                                         const dpar_spatial_arrays *a, int forward)
{
    int32_t i, missing = 0, cut;
    if (p == NULL || a == NULL) {
        return DPAR_E_ARG;
    }
    for (i = 0; i < p->head.layer.tensors && p->head.in_box.dims > 0; i++) {
        const void *const data = forward ? a->in[i] : a->in_gradient[i];
        const int wanted = forward || a->in_gradient[0] != NULL;
        missing += wanted && data == NULL;
    }
    if (forward && p->head.out_owned.dims > 0 && a->out == NULL) {
        missing++;
    }
    cut = a->out_box.dims != 0 &&
          (a->out_box.dims != p->head.layer.in.dims ||
           !dpari_spatial_has_room(&a->out_box, p->head.layer.out_planes) ||
           (p->head.out_owned.dims > 0 && !dpari_box_contains(&a->out_box, &p->head.out_owned)));
    if (missing > 0 || cut) {
        dpar_why why;
        (void)dpari_wrong(
            &why,
            cut ? "rank %d: out_box, of %ld points, does not hold all %ld outputs"
                : "rank %d: %ld arrays of a layer of %ld inputs are NULL, though there are "
                  "points",
            p->comm->rank,
            !cut                                       ? missing
            : a->out_box.dims == p->head.layer.in.dims ? dpar_box_volume(&a->out_box)
                                                       : 0,
            cut ? dpar_box_volume(&p->head.out_owned) : p->head.layer.tensors);
        return dpari_comm_wrong_all(p->comm, DPAR_E_ARG, &why);
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_forward(dpar_spatial_plan *plan,
                                                     const dpar_spatial_arrays *a)
{
    dpari_spatial *p = (dpari_spatial *)(void *)plan;
    dpar_status st = dpari_spatial_given_arrays(p, a, 1);
    st = st == DPAR_OK ? dpari_spatial_bind(p, a->in) : st;
    st = st == DPAR_OK ? dpar_halo_plan_begin(p->exchange) : st;
    if (st != DPAR_OK) {
        return st;
    }
    if (p->core.dims > 0) {
        st = dpari_spatial_fill(p, a, 1);
        if (st != DPAR_OK) {
            return st;
        }
        dpari_spatial_kernel_on(p, a, p->head.layer.forward, &p->core);
    }
    st = dpar_halo_plan_end(p->exchange);
    st = st == DPAR_OK ? dpari_spatial_fill(p, a, 0) : st;
    if (st == DPAR_OK) {
        dpari_spatial_rim(p, a);
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_backward(dpar_spatial_plan *plan,
                                                      const dpar_spatial_arrays *a)
{
    dpari_spatial *p = (dpari_spatial *)(void *)plan;
    dpar_status st = dpari_spatial_given_arrays(p, a, 0);
    const dpar_spatial_desc *s;
    if (st != DPAR_OK) {
        return st;
    }
    s = &p->head.layer;
    if (s->input_gradient == NULL || a->in_gradient[0] == NULL) {
        dpari_spatial_kernel_on(p, a, s->weight_gradient, &p->head.out_owned);
        return DPAR_OK;
    }
    st = dpari_spatial_clear(p, a);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_spatial_kernel_on(p, a, s->input_gradient, &p->head.out_owned);
    st = dpari_spatial_fold(p, a);
    st = st == DPAR_OK ? dpari_spatial_bind(p, a->in_gradient) : st;
    st = st == DPAR_OK ? dpar_halo_plan_reduce_begin(p->exchange, DPAR_SUM) : st;
    if (st != DPAR_OK) {
        return st;
    }
    dpari_spatial_kernel_on(p, a, s->weight_gradient, &p->head.out_owned);
    return dpar_halo_plan_end(p->exchange);
}

/* ---- normalisation --------------------------------------------------------------------------- */

static int64_t dpari_norm_sets(const dpar_norm *n)
{
    return n->groups == 0 ? n->channels : (int64_t)n->samples * n->groups;
}

static int64_t dpari_norm_planes(const dpar_norm *n)
{
    return (int64_t)n->samples * n->channels;
}

DPAR_API DPARI_COLD void dpar_norm_sizes(const dpar_comm *c, const dpar_norm *n, int64_t *saved,
                                         int64_t *scratch)
{
    const int64_t sets = dpari_norm_sets(n);
    if (saved != NULL) {
        *saved = 2 * sets;
    }
    if (scratch != NULL) {
        *scratch = 3 * sets + dpari_most(3 * sets * c->size, 2 * dpari_norm_planes(n));
    }
}

/* Points without data: of one rank alone, so that the others must hear of it. */
static dpar_status dpari_norm_check_data(dpar_comm *c, const dpar_tile *x, const dpar_tile *y)
{
    const int64_t points = x->box.dims > 0 && x->planes > 0 ? dpar_box_volume(&x->box) : 0;
    dpar_why why;
    if (points == 0 || (x->data != NULL && y->data != NULL)) {
        return DPAR_OK;
    }
    (void)dpari_wrong(&why, "rank %d: a tile of a norm has %ld points and no data", c->rank,
                      points);
    return dpari_comm_wrong_all(c, DPAR_E_ARG, &why);
}

static DPARI_COLD dpar_status dpari_norm_check(dpar_comm *c, const dpar_norm *n, const dpar_tile *x,
                                               const dpar_tile *y)
{
    int32_t d;
    int fits = x->box.dims == y->box.dims && x->planes == y->planes && x->box.dims >= 0 &&
               x->box.dims <= DPAR_MAX_DIMS;
    for (d = 0; fits && d < x->box.dims; d++) {
        fits = x->box.lo[d] == y->box.lo[d] && x->box.hi[d] == y->box.hi[d];
    }
    if (!dpari_is_wide(n->type)) {
        return dpari_comm_wrong(c, "a norm of type %s: f64 or f32", dpar_type_name(n->type));
    }
    if (n->samples < 1 || n->channels < 1 || n->groups < 0 ||
        (n->groups > 0 && n->channels % n->groups != 0) || !fits ||
        (x->planes != 0 && x->planes != dpari_norm_planes(n))) {
        return dpari_comm_wrong(
            c,
            "a norm of %d samples, %d channels, %d groups over %ld planes, the same points "
            "in both tiles: does not fit",
            n->samples, n->channels, n->groups, x->planes);
    }
    if (!(n->epsilon >= 0.0 && n->epsilon <= 1e300)) {
        return dpari_comm_wrong(c, "the epsilon of a norm is a number from 0 to 1e300");
    }
    return dpari_norm_check_data(c, x, y);
}

/* ---- normalisation: over the ranks ----------------------------------------------------------- */

/* A tile's points for layers.h; none where it has none. */
static void dpari_norm_planes_of(const dpar_tile *t, int32_t type, dpar_mem_planes *p)
{
    unsigned char *data = (unsigned char *)t->data;
    int32_t d;
    p->step = t->plane;
    for (d = 0; d < t->box.dims; d++) {
        p->stride[d] = t->stride[d];
    }
    p->data = data != NULL ? data + dpari_tile_at(t, 0, t->box.lo) * dpar_type_bytes(type) : NULL;
}

static void dpari_norm_describe(const dpar_norm *n, const dpar_tile *x, double *saved,
                                dpar_mem_norm *m)
{
    int32_t d;
    dpari_zero(m, sizeof *m);
    m->type = n->type;
    m->planes = dpari_norm_planes(n);
    m->channels = n->channels;
    m->groups = n->groups;
    m->epsilon = n->epsilon;
    m->scale = n->scale;
    m->shift = n->shift;
    m->saved = saved;
    m->dims = 1;
    if (x->planes > 0 && x->data != NULL && x->box.dims > 0 && dpar_box_volume(&x->box) > 0) {
        m->dims = x->box.dims;
        for (d = 0; d < m->dims; d++) {
            m->extent[d] = x->box.hi[d] - x->box.lo[d];
        }
        dpari_norm_planes_of(x, n->type, &m->x);
    }
}

static int dpari_norm_joins(const dpar_mem_norm *m, const dpar_mem_planes *p)
{
    const int32_t last = m->dims - 1;
    return p->stride[last - 1] == p->stride[last] * m->extent[last];
}

/* Rows that follow each other in all tiles become one. */
static void dpari_norm_join(dpar_mem_norm *m)
{
    while (m->dims > 1 && dpari_norm_joins(m, &m->x) && dpari_norm_joins(m, &m->dy) &&
           dpari_norm_joins(m, &m->to)) {
        const int32_t to = m->dims - 2;
        m->extent[to] *= m->extent[to + 1];
        m->x.stride[to] = m->x.stride[to + 1];
        m->dy.stride[to] = m->dy.stride[to + 1];
        m->to.stride[to] = m->to.stride[to + 1];
        m->dims--;
    }
}

static dpar_status dpari_norm_missing(dpar_comm *c, const char *what)
{
    return c == NULL ? DPAR_E_ARG : dpari_comm_wrong(c, "%s", what);
}

/* A collective of `count` numbers in which ranks must have given n alike. */
static dpar_status dpari_norm_post(dpar_comm *c, const dpar_norm *n, int32_t kind, const double *in,
                                   double *out, int64_t count)
{
    uint64_t hash = dpari_hash(dpari_hash(dpari_hash(3, n->type), n->samples), n->channels);
    dpar_call call;
    hash = dpari_hash_real(dpari_hash(hash, n->groups), n->epsilon);
    dpari_zero(&call, sizeof call);
    call.kind = kind;
    call.type = DPAR_F64;
    call.op = kind == DPAR_CALL_ALL_REDUCE ? DPAR_SUM : DPAR_COPY;
    call.in = in;
    call.out = out;
    call.count = count;
    return dpari_post_alike(c, &call, hash, "a norm: type, samples, channels, groups or epsilon",
                            NULL);
}

DPAR_API DPARI_COLD dpar_status dpar_norm_forward(dpar_comm *c, const dpar_norm *n,
                                                  const dpar_norm_arrays *a)
{
    dpar_mem_moments own;
    dpar_mem_norm m;
    dpar_status st;
    int64_t sets;
    int32_t d;
    if (c == NULL || n == NULL || a == NULL || a->x == NULL || a->y == NULL || a->saved == NULL ||
        a->scratch == NULL) {
        return dpari_norm_missing(c, "a norm, forward: n, x, y, saved or scratch is NULL");
    }
    st = dpari_norm_check(c, n, a->x, a->y);
    if (st != DPAR_OK) {
        return st;
    }
    sets = dpari_norm_sets(n);
    dpari_norm_describe(n, a->x, a->saved, &m);
    dpari_norm_planes_of(a->y, n->type, &m.to);
    dpari_zero(&own, sizeof own);
    own.x = m.x.data;
    own.type = m.type;
    own.dims = m.dims;
    own.planes = m.planes;
    own.step = m.x.step;
    own.channels = m.channels;
    own.groups = m.groups;
    own.to = a->scratch;
    for (d = 0; d < m.dims; d++) {
        own.extent[d] = m.extent[d];
        own.stride[d] = m.x.stride[d];
    }
    st = dpari_do_moments(c, &own);
    if (st == DPAR_OK) {
        st = dpari_norm_post(c, n, DPAR_CALL_ALL_GATHER, a->scratch, a->scratch + 3 * sets,
                             3 * sets);
    }
    m.phase = DPAR_MEM_NORM_MERGE;
    m.all = a->scratch + 3 * sets;
    m.ranks = c->size;
    dpari_norm_join(&m);
    st = st == DPAR_OK ? dpari_do_norm(c, &m) : st;
    m.phase = DPAR_MEM_NORM_APPLY;
    return st == DPAR_OK ? dpari_do_norm(c, &m) : st;
}

DPAR_API DPARI_COLD dpar_status dpar_norm_backward(dpar_comm *c, const dpar_norm *n,
                                                   const dpar_norm_arrays *a)
{
    dpar_mem_norm m;
    dpar_status st;
    int64_t sets;
    if (c == NULL || n == NULL || a == NULL || a->x == NULL || a->dy == NULL || a->dx == NULL ||
        a->saved == NULL || a->scratch == NULL) {
        return dpari_norm_missing(c, "a norm, backward: n, x, dy, dx, saved or scratch is NULL");
    }
    st = dpari_norm_check(c, n, a->x, a->dy);
    st = st == DPAR_OK ? dpari_norm_check(c, n, a->x, a->dx) : st;
    if (st != DPAR_OK) {
        return st;
    }
    sets = dpari_norm_sets(n);
    dpari_norm_describe(n, a->x, a->saved, &m);
    dpari_norm_planes_of(a->dy, n->type, &m.dy);
    dpari_norm_planes_of(a->dx, n->type, &m.to);
    dpari_norm_join(&m);
    m.total = a->scratch;
    m.sums = a->scratch + 3 * sets;
    m.scale_gradient = a->scale_gradient;
    m.shift_gradient = a->shift_gradient;
    m.phase = DPAR_MEM_NORM_SUMS;
    st = dpari_do_norm(c, &m);
    if (st == DPAR_OK) {
        st = dpari_norm_post(c, n, DPAR_CALL_ALL_REDUCE, m.total, m.total, 3 * sets);
    }
    m.phase = DPAR_MEM_NORM_GRADIENT;
    return st == DPAR_OK ? dpari_do_norm(c, &m) : st;
}

/* ==== spatial/window_attention.c ==== */

/* Attention in a sliding window. The tokens of the packed sequence are a one-dimensional grid with
 * a halo as wide as the window, so that one halo exchange brings keys and values, and its adjoint
 * returns their gradients. Queries are computed on own keys while the exchange is under way.
 *
 * dpar_attention_halo fills in the functions of a plan (attention_way.h); sequence.c calls them. */

/* ---- planning -------------------------------------------------------------------------------- */

/* The fields are keys, values, gradients of keys, and gradients of values. */
typedef struct dpari_windows {
    dpar_halo halo;
    dpar_halo_field field[4];
    dpar_halo_plan *exchange[2]; /* keys and values come; their gradients go back */
    void *memory[2];             /* of these */
    int64_t bytes[2];
    void *own[4], *beside[4];
    int64_t points; /* of the halo */
    int64_t lent;   /* bytes that forward's exchange sends */
} dpari_windows;

/* Counts the tokens of [lo, hi) that are next to the slice of a rank, within the window. */
static int64_t dpari_windows_beside(const dpar_attention_desc *a, int32_t rank, int64_t lo,
                                    int64_t hi)
{
    int64_t begin, end, before, behind = 0;
    dpari_seq_slice(a, rank, &begin, &end);
    if (begin == end) {
        return 0;
    }
    before = dpari_least(begin, hi) - dpari_most(a->window < begin ? begin - a->window : 0, lo);
    if (!a->causal) {
        const int64_t room = a->tokens.ends[a->tokens.docs] - end;
        behind = dpari_least(end + dpari_least(room, a->window), hi) - dpari_most(end, lo);
    }
    return dpari_most(0, before) + dpari_most(0, behind);
}

/* Checks that the layer has a window, and a rule and sizes that this method supports. */
static DPARI_COLD dpar_status dpari_windows_check(const dpar_attention_desc *a, dpar_why *why)
{
    const int64_t each = (int64_t)a->groups * ((int64_t)a->width + a->value_width);
    if (a->window < 1 ||
        (a->tokens.rule != DPAR_SPLIT_CHUNK && a->tokens.rule != DPAR_SPLIT_EVEN) ||
        each > 1 << 24) {
        return dpari_wrong(
            why,
            "a halo for a window of %ld tokens (at least 1), cut by rule %d (CHUNK or "
            "EVEN), of %ld elements a token (at most 2^24)",
            a->window, a->tokens.rule, each);
    }
    return DPAR_OK;
}

static dpari_windows *dpari_windows_of(const dpari_attention *p)
{
    return (dpari_windows *)p->of_way;
}

/* Describes the halo of this rank's tokens, and the fields in it. */
static dpar_status dpari_windows_halo(const dpari_attention *p, const dpar_comm *c,
                                      dpari_windows *w, dpar_why *why)
{
    const dpar_attention_desc *a = &p->head.layer;
    const int64_t all = a->tokens.ends[a->tokens.docs];
    const dpar_placement cut = dpar_shard_by(0, a->tokens.rule, 0);
    dpar_mesh mesh;
    int32_t i;
    dpar_status st = dpar_mesh_init(&mesh, "tokens", &c->size, DPAR_ORDER_LAST_FASTEST, 0, why);
    if (st == DPAR_OK) {
        st = dpar_layout_init(&w->halo.grid, &mesh, 1, &all, &cut, why);
    }
    w->halo.low[0] = dpari_most(dpari_least(a->window, all - 1), 0);
    w->halo.high[0] = a->causal ? 0 : w->halo.low[0];
    for (i = 0; i < 4; i++) {
        w->field[i].halo = &w->halo;
        w->field[i].type = i < 2 ? a->type : p->sums;
        w->field[i].mem = c->mem;
        w->field[i].components =
            (int32_t)((int64_t)a->groups * (i % 2 == 0 ? a->width : a->value_width));
    }
    return st == DPAR_OK ? dpar_halo_check(&w->halo, why) : st;
}

static void dpari_windows_buffers(dpari_attention *p, const dpar_comm *c, dpari_windows *w,
                                  dpari_room *buffers)
{
    const dpar_attention_desc *a = &p->head.layer;
    const int64_t sum = dpar_type_bytes(p->sums);
    int64_t lo, hi, heads;
    int32_t i;
    w->points = dpar_halo_slab_points(&w->halo, c->rank);
    dpari_seq_slice(a, c->rank, &lo, &hi);
    p->head.tokens = hi - lo;
    heads = p->head.tokens * a->heads;
    for (i = 0; i < 4; i++) {
        const int64_t each = w->field[i].components * (int64_t)dpar_type_bytes(w->field[i].type);
        w->own[i] = dpari_room_take(buffers, p->head.tokens * each, 1);
        w->beside[i] = dpari_room_take(buffers, w->points * each, 1);
        if (p->head.tokens > 0) { /* while bytes are counted: anywhere */
            w->field[i].data = buffers->at != NULL ? w->own[i] : (void *)w;
            w->field[i].compact_halo = w->points == 0        ? NULL
                                       : buffers->at != NULL ? w->beside[i]
                                                             : (void *)w;
        }
    }
    p->part = dpari_room_take(buffers, heads * a->value_width * sum, 1);
    p->part_lse = dpari_room_take(buffers, heads * sum, 1);
    p->delta = dpari_room_take(buffers, heads * sum, 1);
    if (a->type != p->sums) {
        p->out = dpari_room_take(buffers, heads * a->value_width * sum, 1);
        p->q_gradient = dpari_room_take(buffers, heads * a->width * sum, 1);
    }
}

static DPARI_COLD dpar_status dpari_windows_lay(dpari_attention *p, const dpar_comm *c,
                                                dpari_room *behind, dpari_room *buffers,
                                                dpar_why *why)
{
    dpari_windows counted, *w = (dpari_windows *)dpari_room_take(behind, 1, sizeof *w);
    dpar_halo_plan_desc o;
    int32_t i;
    dpar_status st;
    p->of_way = w;
    w = w != NULL ? w : &counted;
    dpari_zero(w, sizeof *w);
    dpari_zero(&o, sizeof o);
    st = dpari_windows_halo(p, c, w, why);
    if (st == DPAR_OK) {
        dpari_windows_buffers(p, c, w, buffers);
    }
    for (i = 0; i < 2 && st == DPAR_OK; i++) {
        o.field = &w->field[2 * i];
        o.field_count = 2;
        st = dpari_hx_bytes(c, &o, &w->bytes[i], why);
        w->memory[i] = st == DPAR_OK ? dpari_room_take(behind, w->bytes[i], 1) : NULL;
    }
    return st;
}

/* Plans both exchanges. */
static DPARI_COLD dpar_status dpari_windows_init(dpari_attention *p, dpar_why *why)
{
    dpari_windows *w = dpari_windows_of(p);
    dpar_halo_plan_desc o;
    dpari_hx_traffic t;
    int32_t i;
    dpar_status st = DPAR_OK;
    dpari_zero(&o, sizeof o);
    for (i = 0; i < 2 && st == DPAR_OK; i++) {
        o.tag = p->head.layer.tag + 2 * i;
        o.field = &w->field[2 * i];
        o.field_count = 2;
        o.memory = w->memory[i];
        o.bytes = w->bytes[i];
        st = dpar_halo_plan_make(p->comm, &o, &w->exchange[i], why);
    }
    if (st != DPAR_OK) { /* on all ranks: the first of them is closed again */
        (void)dpar_halo_plan_free(w->exchange[0]);
        return st;
    }
    for (i = 0; dpari_hx_traffic_of(w->exchange[0], i, &t); i++) {
        w->lent += t.peer != p->comm->rank ? t.bytes : 0;
    }
    return st;
}

static DPARI_COLD dpar_status dpari_windows_close(dpari_attention *p)
{
    dpari_windows *w = dpari_windows_of(p);
    const dpar_status st = dpar_halo_plan_free(w->exchange[0]);
    const dpar_status other = dpar_halo_plan_free(w->exchange[1]);
    return st != DPAR_OK ? st : other;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void dpari_windows_push(dpari_attention *p)
{
    (void)dpar_halo_plan_test(dpari_windows_of(p)->exchange[0]);
}

static void *dpari_windows_at(void *base, int64_t token, const dpar_halo_field *f)
{
    return base != NULL
               ? (unsigned char *)base + token * f->components * (int64_t)dpar_type_bytes(f->type)
               : NULL;
}

/* The keys and values (field 0), or their gradients (2), of this rank's own tokens. */
static dpari_seq_block dpari_windows_own(const dpari_attention *p, int32_t field)
{
    const dpari_windows *w = dpari_windows_of(p);
    dpari_seq_block b;
    b.rank = p->comm->rank;
    b.own = 1;
    b.tokens = p->head.tokens;
    dpari_seq_slice(&p->head.layer, b.rank, &b.lo, &b.hi);
    b.k = b.to_k = w->own[field];
    b.v = b.to_v = w->own[field + 1];
    return b;
}

/* Describes the n-th piece of the rank's halo, without what is beyond the ends of the sequence.
 * Returns 0 if there is none. */
static int dpari_windows_slab(const dpari_attention *p, int32_t n, int32_t field,
                              dpari_seq_block *b)
{
    const dpari_windows *w = dpari_windows_of(p);
    int64_t at = 0;
    dpar_box box;
    int32_t i;
    for (i = 0; i <= n; i++) {
        at += i > 0 ? box.hi[0] - box.lo[0] : 0;
        if (!dpar_halo_slab(&w->halo, p->comm->rank, i, &box)) {
            return 0;
        }
    }
    dpari_zero(b, sizeof *b);
    b->rank = p->comm->rank;
    b->lo = dpari_most(0, box.lo[0]);
    b->hi = dpari_least(w->halo.grid.extent[0], box.hi[0]);
    at += b->lo - box.lo[0];
    b->k = b->to_k = dpari_windows_at(w->beside[field], at, &w->field[field]);
    b->v = b->to_v = dpari_windows_at(w->beside[field + 1], at, &w->field[field + 1]);
    return 1;
}

/* Copies the rank's keys and values to the fields of the exchange, and begins the exchange. */
static dpar_status dpari_windows_lend(dpari_attention *p, const dpar_attention_arrays *a)
{
    dpari_windows *w = dpari_windows_of(p);
    const int64_t bytes = p->head.tokens * dpar_type_bytes(p->head.layer.type);
    dpar_status st = dpari_do_copy(p->comm, w->own[0], a->k, bytes * w->field[0].components);
    if (st == DPAR_OK) {
        st = dpari_do_copy(p->comm, w->own[1], a->v, bytes * w->field[1].components);
    }
    p->head.sent_bytes += w->lent;
    return st == DPAR_OK ? dpar_halo_plan_begin(w->exchange[0]) : st;
}

static dpar_status dpari_windows_forward(dpari_attention *p, const dpar_attention_arrays *a)
{
    dpari_seq_block b = dpari_windows_own(p, 0);
    int32_t n;
    dpar_status st = dpari_windows_lend(p, a), ended;
    if (st == DPAR_OK) {
        st = dpari_seq_attend(p, a, &b);
        ended = dpar_halo_plan_end(dpari_windows_of(p)->exchange[0]);
        st = st == DPAR_OK ? ended : st;
    }
    for (n = 0; st == DPAR_OK && dpari_windows_slab(p, n, 0, &b); n++) {
        st = dpari_seq_attend(p, a, &b);
    }
    return st;
}

static dpar_status dpari_windows_backward(dpari_attention *p, const dpar_attention_arrays *a,
                                          void *dq, dpari_seq_block *home)
{
    dpari_windows *w = dpari_windows_of(p);
    const int64_t sum = dpar_type_bytes(p->sums), all = w->halo.grid.extent[0];
    dpari_seq_block b = dpari_windows_own(p, 0), g;
    int32_t n;
    dpar_status st = dpari_windows_lend(p, a), ended;
    if (st != DPAR_OK) {
        return st;
    }
    *home = dpari_windows_own(p, 2);
    for (n = 2; n < 4 && st == DPAR_OK; n++) {
        st = dpari_do_copy(p->comm, w->own[n], NULL, p->head.tokens * w->field[n].components * sum);
        if (st == DPAR_OK) {
            st = dpari_do_copy(p->comm, w->beside[n], NULL,
                               w->points * w->field[n].components * sum);
        }
    }
    st = st == DPAR_OK ? dpari_seq_delta(p, a) : st;
    dpari_seq_attend_back(p, a, &b, home, dq);
    ended = dpar_halo_plan_end(w->exchange[0]);
    st = st == DPAR_OK ? ended : st;
    for (n = 0; st == DPAR_OK && dpari_windows_slab(p, n, 0, &b); n++) {
        (void)dpari_windows_slab(p, n, 2, &g);
        dpari_seq_attend_back(p, a, &b, &g, dq);
    }
    p->head.sent_bytes += dpari_windows_beside(&p->head.layer, p->comm->rank, 0, all) * sum *
                          (w->field[2].components + w->field[3].components);
    st = st == DPAR_OK ? dpar_halo_plan_reduce_begin(w->exchange[1], DPAR_SUM) : st;
    return st == DPAR_OK ? dpar_halo_plan_end(w->exchange[1]) : st;
}

DPAR_API void dpar_attention_halo(struct dpari_attention_method *way)
{
    way->number = 1;
    way->check = dpari_windows_check;
    way->lay = dpari_windows_lay;
    way->init = dpari_windows_init;
    way->push = dpari_windows_push;
    way->forward = dpari_windows_forward;
    way->backward = dpari_windows_backward;
    way->close = dpari_windows_close;
}

#endif /* DPAR_SPATIAL_IMPLEMENTATION */
