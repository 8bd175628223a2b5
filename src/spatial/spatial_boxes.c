/* SPDX-License-Identifier: MIT-0 */
/* Computes, dim by dim, what a layer reads. The blocks of outputs decide which inputs a rank reads,
 * and these inputs decide its halo and padding. The halo has windows and widths that cover both, so
 * that halo_exchange.h does the communication. */
#include "spatial_boxes.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../index/index_private.h"

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
