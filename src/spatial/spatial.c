/* SPDX-License-Identifier: MIT-0 */
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
#include "spatial.h"

#include "../base/arith.h"
#include "../base/inner.h"
#include "../base/real.h"
#include "../comm/agree.h"
#include "../comm/elements.h"
#include "../comm/kernel.h"
#include "../comm/mem_private.h"
#include "../comm/os.h"
#include "../halo/halo_open.h"
#include "../halo/halo_traffic.h"
#include "../index/inner.h"
#include "../train/layers_private.h"
#include "../train/made_memory.h"

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

static int dpari_spatial_touches(const dpar_spatial_desc *layer, int32_t d)
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

/* The distance from the first tap to the last. */
static int64_t dpari_spatial_reach(const dpar_spatial_desc *layer, int32_t d)
{
    return dpari_spatial_dilation(layer, d) * (layer->window[d].kernel - 1);
}

/* How a dim is filled beyond its ends. */
static int32_t dpari_spatial_padding(const dpar_spatial_desc *layer, int32_t d)
{
    return layer->kind == DPAR_SPATIAL_INTERPOLATION && layer->padding[d] == DPAR_SPATIAL_PAD_ZERO
               ? DPAR_SPATIAL_PAD_REPLICATE
               : layer->padding[d];
}

/* A transposed convolution of n inputs; *most: with all the output padding that makes sense. */
static int64_t dpari_spatial_spread(const dpar_spatial_desc *layer, int32_t d, int64_t n,
                                    int64_t *most)
{
    const int64_t least = (n - 1) * dpari_spatial_stride(layer, d) - layer->window[d].pad_low -
                          layer->window[d].pad_high + dpari_spatial_reach(layer, d) + 1;
    *most =
        least + dpari_most(dpari_spatial_stride(layer, d), dpari_spatial_dilation(layer, d)) - 1;
    return least;
}

/* The window of a dim as dpar.h knows it; 0: the layer does not touch the dim. */
static int dpari_spatial_window(const dpar_spatial_desc *layer, int32_t d, dpar_window *window)
{
    int64_t most;
    *window = layer->window[d];
    if (!dpari_spatial_touches(layer, d)) {
        return 0;
    }
    window->kind = layer->kind == DPAR_SPATIAL_TRANSPOSED      ? DPAR_WINDOW_TRANSPOSED
                   : layer->kind == DPAR_SPATIAL_INTERPOLATION ? DPAR_WINDOW_INTERPOLATION
                   : layer->kind == DPAR_SPATIAL_NEIGHBOURHOOD ? DPAR_WINDOW_NEIGHBOURHOOD
                                                               : DPAR_WINDOW_CONVOLUTION;
    window->align_corners = layer->align_corners;
    if (layer->kind == DPAR_SPATIAL_NEIGHBOURHOOD) {
        window->stride = 1;
        window->ceil_mode = 0;
        window->pad_low = 0;
        window->pad_high = 0;
    }
    if (layer->kind == DPAR_SPATIAL_TRANSPOSED) { /* output padding is less padding cut off */
        const int64_t more =
            layer->out_extent[d] - dpari_spatial_spread(layer, d, layer->in.extent[d], &most);
        window->pad_high -= dpari_least(window->pad_high, dpari_most(0, more));
    }
    if (layer->kind == DPAR_SPATIAL_NEIGHBOURHOOD && layer->padding[d] == DPAR_SPATIAL_PAD_WRAP) {
        window->kind = DPAR_WINDOW_CONVOLUTION; /* round a ring all neighbourhoods are centred */
        window->pad_low = window->kernel / 2 * dpari_spatial_dilation(layer, d);
        window->pad_high = dpari_spatial_reach(layer, d) - window->pad_low;
    }
    return 1;
}

static dpar_status dpari_spatial_other(const dpar_spatial_desc *layer, int32_t d, int64_t *m,
                                       dpar_why *why)
{
    const int64_t n = layer->in.extent[d];
    const dpar_window *window = &layer->window[d];
    int64_t most;
    if (layer->kind == DPAR_SPATIAL_NEIGHBOURHOOD) {
        dpar_window keys = *window;
        keys.kind = DPAR_WINDOW_NEIGHBOURHOOD; /* round a ring too: no key is to be seen twice */
        return dpar_window_outputs(&keys, n, m, why);
    }
    if (layer->kind == DPAR_SPATIAL_INTERPOLATION) {
        *m = layer->out_extent[d];
        if (n > dpari_spatial_limit || *m < 1 || *m > dpari_spatial_limit ||
            (window->kernel != 1 && window->kernel != 2 && window->kernel != 4)) {
            return dpari_wrong(
                why, "dim %d: %ld points from %ld by %ld taps: 1, 2 or 4, and extents of 1 to 2^30",
                d, *m, n, window->kernel);
        }
        return DPAR_OK;
    }
    *m = dpari_spatial_spread(layer, d, n, &most);
    *m = layer->out_extent[d] > 0 ? dpari_most(layer->out_extent[d], *m)
                                  : *m; /* fewer are refused below */
    if (*m < 1 || *m > most || layer->padding[d] != DPAR_SPATIAL_PAD_ZERO) {
        return dpari_wrong(
            why, "dim %d: %ld transposed outputs, %ld at most, at least 1; padding %d (zero alone)",
            d, *m, most, layer->padding[d]);
    }
    return DPAR_OK;
}

/* Outputs of a dim. */
static DPARI_COLD dpar_status dpari_spatial_extent(const dpar_spatial_desc *layer, int32_t d,
                                                   int64_t *m, dpar_why *why)
{
    const dpar_window *window = &layer->window[d];
    const int64_t n = layer->in.extent[d];
    dpar_status status;
    *m = n;
    if (n < 1) {
        return dpari_wrong(why, "dim %d has %ld points: at least 1", d, n);
    }
    if (!dpari_spatial_touches(layer, d)) {
        return DPAR_OK;
    }
    if (layer->padding[d] < DPAR_SPATIAL_PAD_ZERO || layer->padding[d] > DPAR_SPATIAL_PAD_LOWEST) {
        return dpari_wrong(why, "dim %d: padding %d does not exist", d, layer->padding[d]);
    }
    if (window->kernel < 0 || window->kernel > dpari_spatial_limit || window->stride < 0 ||
        window->dilation < 0 || window->stride > dpari_spatial_limit ||
        window->dilation > dpari_spatial_limit || window->pad_low < 0 || window->pad_high < 0 ||
        window->pad_low > dpari_spatial_limit || window->pad_high > dpari_spatial_limit ||
        layer->out_extent[d] < 0 || n > dpari_spatial_limit) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "dim %d of %ld points, kernel %ld, stride %ld: from 0 (dilation, pads, extent too) "
            "to 2^30",
            d, n, window->kernel, window->stride);
    }
    status = layer->kind == DPAR_SPATIAL_CONVOLUTION ? dpar_window_outputs(window, n, m, why)
                                                     : dpari_spatial_other(layer, d, m, why);
    if (status == DPAR_OK && layer->out_extent[d] != 0 && layer->out_extent[d] != *m) {
        status = dpari_wrong(why, "dim %d: %ld outputs are said, there are %ld", d,
                             layer->out_extent[d], *m);
    }
    if (status == DPAR_OK && layer->kind == DPAR_SPATIAL_CONVOLUTION &&
        layer->padding[d] == DPAR_SPATIAL_PAD_REFLECT &&
        (window->pad_low >= n || window->pad_high >= n)) {
        status =
            dpari_wrong(why, "dim %d: pads of %ld and %ld are reflected in %ld points: too few", d,
                        window->pad_low, window->pad_high, n);
    }
    return status;
}

/* ---- one dim: what outputs read -------------------------------------------------------------- */

/* The tap of y that is at or before it, and how far behind it y lies. */
static int64_t dpari_spatial_source(const dpar_spatial_desc *layer, int32_t d, int64_t y,
                                    double *fraction)
{
    const int64_t n = layer->in.extent[d], m = layer->out_extent[d];
    int64_t over = (2 * y + 1) * n - m, under = 2 * m, first;
    if (layer->align_corners) {
        over = y * (n - 1);
        under = m > 1 ? m - 1 : 1;
    } else if (layer->window[d].kernel == 1) {
        over = y * n; /* nearest, as torch: no half */
        under = m;
    }
    first = dpari_floor_div(over, under);
    *fraction = (double)(over - first * under) / (double)under;
    return first;
}

/* Inputs [*lo, *hi) that outputs [y0, y1) read, padding too. 0: none. */
static int dpari_spatial_reads(const dpar_spatial_desc *layer, int32_t d, int64_t y0, int64_t y1,
                               int64_t *lo, int64_t *hi)
{
    const int64_t n = layer->in.extent[d], k = layer->window[d].kernel;
    dpar_window keys;
    double fraction;
    if (y1 <= y0) {
        return 0;
    }
    if (!dpari_spatial_touches(layer, d)) {
        *lo = y0;
        *hi = y1;
        return 1;
    }
    switch (layer->kind) {
    case DPAR_SPATIAL_CONVOLUTION: return dpari_window_needs(&layer->window[d], y0, y1, lo, hi);
    case DPAR_SPATIAL_TRANSPOSED:
        return dpari_window_transposed(&layer->window[d], n, y0, y1, lo, hi);
    case DPAR_SPATIAL_INTERPOLATION:
        *lo = dpari_spatial_source(layer, d, y0, &fraction) - (k == 4);
        *hi = dpari_spatial_source(layer, d, y1 - 1, &fraction) - (k == 4) + k;
        return 1;
    default: break;
    }
    (void)dpari_spatial_window(layer, d, &keys);
    return dpari_window_reads(&keys, n, n, y0, y1, lo, hi);
}

/* How many of first, first + step, ... (count of them) lie in [lo, hi). */
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

/* One block of a dim. What is empty has hi <= lo. */
typedef struct dpari_spatial_block {
    int64_t own[2], out[2], box[2];
} dpari_spatial_block;

/* The outputs that stay with the inputs [own[0], own[1]) of n; m in all. */
static void dpari_spatial_follow(const dpar_spatial_desc *layer, int32_t d, int64_t m,
                                 const int64_t *own, int64_t *out)
{
    const int64_t n = layer->in.extent[d];
    int32_t side;
    if (layer->kind == DPAR_SPATIAL_CONVOLUTION && dpari_spatial_touches(layer, d)) {
        dpari_window_owned(&layer->window[d], n, m, own[0], own[1], &out[0], &out[1]);
        return;
    }
    for (side = 0; side < 2; side++) {
        int64_t at = own[side];
        if (dpari_spatial_touches(layer, d) && layer->kind == DPAR_SPATIAL_TRANSPOSED) {
            at = dpari_least(m, at * dpari_spatial_stride(layer, d));
        } else if (dpari_spatial_touches(layer, d) && layer->kind == DPAR_SPATIAL_INTERPOLATION) {
            at = dpari_ceil_div(at * m, n);
        }
        out[side] = own[side] == n ? m : at;
    }
}

/* `balanced`: the layout of the outputs, where they do not follow. */
static void dpari_spatial_outs(const dpar_spatial_desc *layer, const dpar_layout *balanced,
                               int32_t d, int64_t m, const int32_t *coord,
                               dpari_spatial_block *block)
{
    if (layer->outputs != DPAR_SPATIAL_OUTPUTS_FOLLOW) {
        (void)dpari_layout_span(balanced, coord, d, &block->out[0], &block->out[1]);
    } else if (block->own[1] > block->own[0]) {
        dpari_spatial_follow(layer, d, m, block->own, block->out);
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
static void dpari_spatial_sources(const dpar_spatial_desc *layer, int32_t d, int64_t lo, int64_t hi,
                                  int64_t *box)
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

static void dpari_spatial_block_of(const dpar_spatial_desc *layer, const dpar_layout *balanced,
                                   int32_t d, const int32_t *coord, dpari_spatial_block *block)
{
    int64_t m, lo, hi;
    dpari_zero(block, sizeof *block);
    (void)dpari_spatial_extent(layer, d, &m, NULL);
    (void)dpari_layout_span(&layer->in, coord, d, &block->own[0], &block->own[1]);
    dpari_spatial_outs(layer, balanced, d, m, coord, block);
    dpari_spatial_widen(block->box, block->own[0], block->own[1]);
    if (dpari_spatial_reads(layer, d, block->out[0], block->out[1], &lo, &hi)) {
        dpari_spatial_widen(block->box, lo, hi);
        dpari_spatial_sources(layer, d, lo, hi, block->box);
    }
}

/* ---- judging --------------------------------------------------------------------------------- */

/* True if the same mesh axes cut the same dims of both layouts. */
static dpar_status dpari_spatial_given(const dpar_spatial_desc *layer, const int64_t *m,
                                       dpar_why *why)
{
    const dpar_layout *in = &layer->in, *g = &layer->given_layout;
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

static dpar_status dpari_spatial_layer(const dpar_spatial_desc *layer, int64_t *m, dpar_why *why)
{
    dpar_status status = DPAR_OK;
    int32_t d;
    if (layer->in.dims < 0 || layer->in.dims > DPAR_MAX_DIMS || layer->in.mesh.size < 1) {
        return dpari_wrong(why, "inputs of %d dims on %d ranks: dpar_layout_init makes it",
                           layer->in.dims, layer->in.mesh.size);
    }
    if (layer->kind < DPAR_SPATIAL_CONVOLUTION || layer->kind > DPAR_SPATIAL_NEIGHBOURHOOD ||
        layer->outputs < DPAR_SPATIAL_OUTPUTS_BALANCED ||
        layer->outputs > DPAR_SPATIAL_OUTPUTS_GIVEN) {
        return dpari_wrong(why, "kind %d, outputs %d: there are 1 to 4 and 0 to 2", layer->kind,
                           layer->outputs);
    }
    if (layer->tensors < 0 || layer->tensors > DPAR_SPATIAL_MAX_TENSORS || layer->planes < 0 ||
        layer->planes > INT32_MAX || layer->out_planes < 0 || layer->out_planes > INT32_MAX ||
        dpar_type_bytes(layer->type) == 0) {
        return dpari_wrong(why, "%d tensors (at most 4) of %ld and %ld planes, type %s",
                           layer->tensors, layer->planes, layer->out_planes,
                           dpar_type_name(layer->type));
    }
    if (layer->input_gradient != NULL && !dpari_type_can_reduce(layer->type)) {
        return dpari_wrong(why, "gradients of type %s cannot be added on their way back",
                           dpar_type_name(layer->type));
    }
    for (d = 0; d < layer->in.dims && status == DPAR_OK; d++) {
        status = dpari_spatial_extent(layer, d, &m[d], why);
        if (status == DPAR_OK && layer->padding[d] == DPAR_SPATIAL_PAD_LOWEST &&
            layer->type == DPAR_F8) {
            status = dpari_wrong(
                why, "dim %d: the least number of f8 depends on its encoding: pad it yourself", d);
        }
    }
    return status == DPAR_OK && layer->outputs == DPAR_SPATIAL_OUTPUTS_GIVEN
               ? dpari_spatial_given(layer, m, why)
               : status;
}

/* True if axis i is the only axis that cuts its dim. */
static int dpari_spatial_alone(const dpar_layout *layout, int32_t i)
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

/* Cuts of the following outputs along axis i; parts + 1 of them. */
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

/* Lays out the outputs over the ranks. cuts: room for those of all axes (NULL: following ones as
 * balanced ones, for callers that need only the others). */
static dpar_status dpari_spatial_layout(const dpar_spatial_desc *layer, const int64_t *m,
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
        if (layer->outputs == DPAR_SPATIAL_OUTPUTS_FOLLOW && !dpari_spatial_alone(&layer->in, i)) {
            return dpari_wrong(why, "outputs that follow: dim %d is cut by more than one mesh axis",
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

/* Checks a layer and computes its outputs of each dim. */
static dpar_status dpari_spatial_outputs(const dpar_spatial_desc *layer, int64_t *m, dpar_why *why)
{
    dpar_layout out;
    dpar_status status =
        layer ? dpari_spatial_layer(layer, m, why) : dpari_wrong(why, "no layer: NULL");
    return status == DPAR_OK ? dpari_spatial_layout(layer, m, NULL, &out, why) : status;
}

/* ---- the boxes of a rank --------------------------------------------------------------------- */

/* Blocks of a dim. */
static int64_t dpari_spatial_blocks(const dpar_layout *layout, int32_t d)
{
    int64_t n = 1;
    int32_t i;
    for (i = 0; i < layout->mesh.axes; i++) {
        n *= layout->axis[i].kind == DPAR_PLACEMENT_SHARD && layout->axis[i].dim == d
                 ? layout->mesh.axis[i].size
                 : 1;
    }
    return n;
}

/* The coordinates of block b of a dim: the axes in the order in which they cut, the first major. */
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

/* What the windows of the halo give a block: the hull of its own points and those that its outputs
 * read. What it needs more comes by a width: of interpolations that wrap, of padding whose source
 * no output reads. */
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

/* Dim d of the halo of a layer whose outputs are laid out as `out` (those that follow: any). */
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

static void dpari_spatial_halo(const dpar_spatial_desc *layer, const dpar_layout *out,
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

enum { DPARI_SPATIAL_OWN, DPARI_SPATIAL_OUT, DPARI_SPATIAL_BOX };

/* What a rank holds of dim d. */
static void dpari_spatial_part(const dpar_spatial_desc *layer, const dpar_halo *halo, int32_t d,
                               const int32_t *coord, int32_t which, int64_t *part)
{
    dpari_spatial_block block;
    dpari_spatial_block_of(layer, halo->outputs, d, coord, &block);
    if (which == DPARI_SPATIAL_BOX) {
        dpari_spatial_hull_of(halo, d, halo->outputs->extent[d], &block, part);
        part[0] -= part[1] > part[0] ? halo->low[d] : 0;
        part[1] += part[1] > part[0] ? halo->high[d] : 0;
    } else {
        part[0] = which == DPARI_SPATIAL_OWN ? block.own[0] : block.out[0];
        part[1] = which == DPARI_SPATIAL_OWN ? block.own[1] : block.out[1];
    }
}

static int dpari_spatial_box_of(const dpar_spatial_desc *layer, int32_t rank, int32_t which,
                                dpar_box *box)
{
    int64_t m[DPAR_MAX_DIMS];
    int32_t coord[DPAR_MAX_AXES], d;
    dpar_layout balanced;
    dpar_halo halo;
    dpar_box b;
    if (dpari_spatial_layer(layer, m, NULL) != DPAR_OK ||
        dpari_spatial_layout(layer, m, NULL, &balanced, NULL) != DPAR_OK ||
        !dpar_mesh_coords(&layer->in.mesh, rank, coord)) {
        return 0;
    }
    dpari_zero(&b, sizeof b);
    b.dims = layer->in.dims;
    dpari_spatial_halo(layer, &balanced, &halo);
    for (d = 0; d < b.dims; d++) {
        int64_t part[2];
        dpari_spatial_part(layer, &halo, d, coord, which, part);
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
    const dpar_status status = dpari_spatial_outputs(layer, b.extent, why);
    if (status == DPAR_OK && boxes != NULL) {
        dpari_zero(&b.in, sizeof b.in);
        dpari_zero(&b.out, sizeof b.out);
        (void)dpari_spatial_box_of(layer, rank, DPARI_SPATIAL_BOX, &b.in);
        (void)dpari_spatial_box_of(layer, rank, DPARI_SPATIAL_OUT, &b.out);
        *boxes = b;
    }
    return status;
}

/* The inputs that the outputs of `out` read. 0: none. */
static int dpari_spatial_needs(const dpar_spatial_desc *layer, const dpar_box *out, dpar_box *in)
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

/* Outputs [core[0], core[1]) of [out[0], out[1]) of a dim that read own points and constants. */
static void dpari_spatial_inner(const dpar_spatial_desc *layer, int32_t d, const int64_t *own,
                                const int64_t *out, int64_t *core)
{
    const int32_t padding = dpari_spatial_padding(layer, d);
    const int constant = padding == DPAR_SPATIAL_PAD_ZERO || padding == DPAR_SPATIAL_PAD_LOWEST;
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

/* ---- planning -------------------------------------------------------------------------------- */

/* Memory of a plan: itself, cuts of following outputs, the exchange. */
typedef struct dpari_spatial_memory {
    int64_t cuts, exchange; /* where they begin, bytes */
} dpari_spatial_memory;

static void dpari_spatial_parts(const dpar_spatial_desc *layer, dpari_spatial_memory *at)
{
    int64_t cuts = 0;
    int32_t i;
    for (i = 0; i < layer->in.mesh.axes; i++) {
        cuts += layer->in.mesh.axis[i].size + 1;
    }
    at->cuts = dpari_room_up((int64_t)sizeof(dpari_spatial));
    at->exchange = at->cuts + dpari_room_up(8 * cuts);
}

/* The field of each input: planes of in_box, dense; `least`: the box of its halo. */
static void dpari_spatial_fields(dpari_spatial *plan, const dpar_box *least)
{
    const dpar_spatial_desc *layer = &plan->head.layer;
    dpar_tile tile;
    int32_t i, d;
    dpar_tile_init(&tile, NULL, &plan->head.in_box, layer->planes, layer->channels_last);
    for (i = 0; i < layer->tensors; i++) {
        dpar_halo_field *field = &plan->field[i];
        dpari_zero(field, sizeof *field);
        field->halo = &plan->halo;
        field->type = layer->type;
        field->components = (int32_t)layer->planes;
        field->component_stride = tile.plane;
        field->mem = plan->comm->mem;
        field->data = plan->head.in_box.dims > 0 ? plan : NULL; /* until the first step */
        for (d = 0; d < plan->head.in_box.dims; d++) {
            const int64_t first =
                plan->head.in_owned.dims > 0 ? plan->head.in_owned.lo[d] : least->lo[d];
            field->stride[d] = tile.stride[d];
            field->first[d] = first - plan->head.in_box.lo[d];
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
static dpar_status dpari_spatial_choose_box(dpari_spatial *plan, const dpar_box *least,
                                            dpar_why *why)
{
    const dpar_box *given = &plan->head.layer.in_box;
    const int none = given->dims == 0;
    if (!none && (given->dims != plan->head.layer.in.dims || !dpari_spatial_has_room(given, 1))) {
        return dpari_wrong(
            why, "in_box of %d dims for inputs of %d, or not a box of lo <= hi within 2^60",
            given->dims, plan->head.layer.in.dims);
    }
    plan->head.in_box = none || (least->dims == 0 && dpar_box_volume(given) == 0) ? *least : *given;
    if (least->dims > 0 && !dpari_box_contains(&plan->head.in_box, least)) {
        return dpari_wrong(why, "in_box does not hold what dpar_spatial_check says");
    }
    if (!dpari_spatial_has_room(&plan->head.in_box, plan->head.layer.planes) ||
        !dpari_spatial_has_room(&plan->head.out_owned, plan->head.layer.out_planes)) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "%ld planes of inputs or %ld of outputs on rank %d: more than 2^60 elements",
            plan->head.layer.planes, plan->head.layer.out_planes, plan->comm->rank);
    }
    return DPAR_OK;
}

/* All of a plan but its exchange. */
static dpar_status dpari_spatial_plan_in(unsigned char *memory, dpar_comm *comm,
                                         const dpar_spatial_desc *layer, dpar_why *why)
{
    dpari_spatial *plan = (dpari_spatial *)(void *)memory;
    dpari_spatial_memory at;
    int64_t m[DPAR_MAX_DIMS];
    dpar_box least;
    dpar_status status;
    dpari_spatial_parts(layer, &at);
    dpari_zero(plan, sizeof *plan);
    plan->comm = comm;
    plan->head.layer = *layer;
    plan->head.layer.tensors = layer->tensors > 0 ? layer->tensors : 1;
    plan->head.layer.planes = layer->planes > 0 ? layer->planes : 1;
    plan->head.layer.out_planes =
        layer->out_planes > 0 ? layer->out_planes : plan->head.layer.planes;
    (void)dpari_spatial_layer(&plan->head.layer, m, NULL);
    status = dpari_spatial_layout(&plan->head.layer, m, (int64_t *)(void *)(memory + at.cuts),
                                  &plan->head.out, why);
    if (status != DPAR_OK) {
        return status;
    }
    (void)dpari_spatial_box_of(&plan->head.layer, comm->rank, DPARI_SPATIAL_OUT,
                               &plan->head.out_owned);
    (void)dpari_spatial_box_of(&plan->head.layer, comm->rank, DPARI_SPATIAL_OWN,
                               &plan->head.in_owned);
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

/* Checks a layer and counts the bytes of its plan, which it lays out in pages that it gives back.
 * exchange: set to where the plan of the halo exchange begins. */
static DPARI_COLD dpar_status dpari_spatial_count(dpar_comm *comm, const dpar_spatial_desc *layer,
                                                  int64_t *exchange, int64_t *need, dpar_why *why)
{
    dpari_spatial_memory at;
    void *memory;
    int64_t m[DPAR_MAX_DIMS], more = 0;
    dpar_status status;
    if (layer == NULL) {
        return dpari_wrong(why, "the layer is NULL");
    }
    status = dpari_spatial_outputs(layer, m, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_spatial_parts(layer, &at);
    memory = dpari_os_pages(at.exchange);
    if (memory == NULL) {
        return dpari_say(DPAR_E_MEMORY, why, "no %ld bytes to plan a layer in", at.exchange);
    }
    status = dpari_spatial_plan_in((unsigned char *)memory, comm, layer, why);
    if (status == DPAR_OK) {
        const dpari_spatial *plan = (const dpari_spatial *)memory;
        dpar_halo_plan_desc desc;
        dpari_zero(&desc, sizeof desc);
        desc = layer->halo != NULL ? *layer->halo : desc;
        desc.field = plan->field;
        desc.field_count = plan->head.layer.tensors;
        status = dpar_halo_plan_bytes(comm, &desc, &more, why);
    }
    dpari_os_unmap(memory, at.exchange);
    *exchange = at.exchange;
    *need = at.exchange + more;
    return status;
}

/* What all ranks must give alike besides what their exchange compares: layouts, types. */
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
static dpar_status dpari_spatial_constants(const dpari_spatial *plan, void **constants,
                                           dpar_why *why)
{
    const int32_t type = plan->head.layer.type;
    dpar_mem_span span;
    dpar_status status;
    status = dpar_comm_alloc(plan->comm, DPARI_SPATIAL_CONSTANTS, constants);
    if (status != DPAR_OK) {
        *constants = NULL;
        return dpari_say(status, why, "no %d bytes for what padding is filled with",
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
    } else if (type == DPAR_I8) { /* -2^-126: both bytes 0x80 */
        span.to_type = span.from_type = DPAR_BF16;
        span.scale = -1.1754943508222875e-38;
    } else if (!dpari_is_float(span.to_type)) { /* no sign: 0 */
        return DPAR_OK;
    }
    return dpari_do_span(plan->comm, &span, 1);
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_make(dpar_comm *comm, const dpar_spatial_desc *layer,
                                                  dpar_spatial_plan **plan, dpar_why *why)
{
    dpari_spatial *spatial;
    dpari_hx_traffic traffic;
    void *memory = NULL, *constants = NULL;
    int64_t exchange = 0, need = 0;
    int32_t k;
    dpar_status status;
    if (comm == NULL) {
        return dpari_wrong(why, "the communicator is NULL");
    }
    status = plan == NULL ? dpari_wrong(why, "the plan is NULL")
                          : dpari_spatial_count(comm, layer, &exchange, &need, why);
    if (status == DPAR_OK) {
        status =
            dpari_made_memory(comm, layer->memory, layer->bytes, need, "spatial", &memory, why);
    }
    spatial = (dpari_spatial *)memory;
    if (status == DPAR_OK) {
        status = dpari_spatial_plan_in((unsigned char *)memory, comm, layer, why);
    }
    if (status == DPAR_OK && comm->mem != NULL) {
        status = dpari_spatial_constants(spatial, &constants, why);
    }
    status = dpari_agree_on(comm, status, "spatial", dpari_spatial_state,
                            status == DPAR_OK ? &spatial->head.layer : NULL, why);
    if (status == DPAR_OK) {
        status =
            dpari_hx_open((unsigned char *)memory + exchange, need - exchange, comm, spatial->field,
                          spatial->head.layer.tensors, layer->halo, 1, &spatial->exchange, why);
    }
    if (status != DPAR_OK) {
        if (constants != NULL) {
            dpar_comm_release(comm, constants);
        }
        return dpari_made_failed(status, layer != NULL ? layer->memory : NULL, memory, need, why);
    }
    for (k = 0; dpari_hx_traffic_of(spatial->exchange, k, &traffic); k++) {
        spatial->head.halo_bytes += traffic.peer != comm->rank ? traffic.bytes : 0;
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
    status = dpar_halo_plan_close(spatial->exchange);
    if (dpari_made_refused(spatial->comm, status)) {
        return status;
    }
    if (spatial->constants != NULL) {
        dpar_comm_release(spatial->comm, spatial->constants);
    }
    return dpari_made_end(status, spatial->head.layer.memory == NULL ? spatial : NULL);
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

static void dpari_spatial_rows_begin(dpari_spatial_rows *rows, const dpar_tile *tile, int32_t skip)
{
    int32_t d;
    rows->row = tile->plane == 1 && tile->planes > 1 ? -1
                : tile->box.dims - 1 == skip         ? -2
                                                     : tile->box.dims - 1;
    rows->count = rows->row == -1   ? tile->planes
                  : rows->row == -2 ? 1
                                    : tile->box.hi[rows->row] - tile->box.lo[rows->row];
    rows->plane = 0;
    for (d = 0; d < tile->box.dims; d++) {
        rows->at[d] = tile->box.lo[d];
    }
}

/* The next row; 0 at the end. */
static int dpari_spatial_rows_next(dpari_spatial_rows *rows, const dpar_tile *tile, int32_t skip)
{
    int32_t d;
    for (d = tile->box.dims - 1; d >= 0; d--) {
        if (d == skip || d == rows->row) {
            continue;
        }
        if (++rows->at[d] < tile->box.hi[d]) {
            return 1;
        }
        rows->at[d] = tile->box.lo[d];
    }
    return rows->row != -1 && ++rows->plane < tile->planes;
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
static DPARI_COLD void dpari_spatial_slice(const dpar_tile *tile, int32_t type, int32_t d,
                                           int64_t i, int64_t from, int32_t what,
                                           const unsigned char *element)
{
    const int32_t size = dpar_type_bytes(type);
    unsigned char *base = (unsigned char *)tile->data;
    unsigned char zero[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    dpari_spatial_rows rows;
    if (tile->planes < 1) {
        return;
    }
    dpari_spatial_rows_begin(&rows, tile, d);
    do {
        unsigned char *to, *other;
        rows.at[d] = i;
        to = base + dpari_tile_at(tile, rows.plane, rows.at) * size;
        rows.at[d] = from;
        other = from >= 0 ? base + dpari_tile_at(tile, rows.plane, rows.at) * size : NULL;
        if (what == DPARI_SPATIAL_FILL && other != NULL) {
            dpari_kern_copy(to, other, rows.count * size, 0);
        } else if (what == DPARI_SPATIAL_FILL) {
            dpari_spatial_set(to, rows.count, element, size);
        } else {
            if (what == DPARI_SPATIAL_FOLD && other != NULL) {
                const void *in[2];
                void *out = other;
                in[0] = other;
                in[1] = to;
                dpari_kern_reduce(&out, 1, in, 2, rows.count, type, DPAR_SUM, 0);
            }
            dpari_spatial_set(to, rows.count, zero, size);
        }
    } while (dpari_spatial_rows_next(&rows, tile, d));
}

/* Boxes of a device's memory that go there together. */
enum { DPARI_SPATIAL_BOXES = 16 };
typedef struct dpari_spatial_boxes {
    dpar_comm *comm;
    const unsigned char *constants;
    dpar_status status;
    int32_t count;
    dpar_mem_box box[DPARI_SPATIAL_BOXES];
} dpari_spatial_boxes;

static void dpari_spatial_boxes_begin(dpari_spatial_boxes *boxes, const dpari_spatial *plan)
{
    boxes->comm = plan->comm;
    boxes->constants = plan->constants;
    boxes->status = DPAR_OK;
    boxes->count = 0;
}

static dpar_status dpari_spatial_boxes_go(dpari_spatial_boxes *boxes)
{
    if (boxes->count > 0 && boxes->status == DPAR_OK) {
        boxes->status = dpari_do_move(boxes->comm, boxes->box, boxes->count);
    }
    boxes->count = 0;
    return boxes->status;
}

/* dpari_spatial_slice as a box. */
static void dpari_spatial_slice_there(dpari_spatial_boxes *boxes, const dpar_tile *tile,
                                      int32_t type, int32_t d, int64_t i, int64_t from,
                                      int32_t what, int32_t constant)
{
    const int32_t size = dpar_type_bytes(type);
    const int sums = what == DPARI_SPATIAL_FOLD && from >= 0;
    unsigned char *base = (unsigned char *)tile->data, *cells, *other;
    int64_t at[DPAR_MAX_DIMS];
    dpar_mem_box *b;
    int32_t k;
    if (boxes->count == DPARI_SPATIAL_BOXES ||
        (boxes->count > 0 && (boxes->box[0].op == DPAR_SUM) != sums)) {
        (void)dpari_spatial_boxes_go(boxes);
    }
    for (k = 0; k < tile->box.dims; k++) {
        at[k] = k == d ? i : tile->box.lo[k];
    }
    cells = base + dpari_tile_at(tile, 0, at) * size;
    at[d] = from;
    other = base + (from >= 0 ? dpari_tile_at(tile, 0, at) * size : 0);
    b = &boxes->box[boxes->count++];
    dpari_zero(b, sizeof *b);
    b->to_type = b->from_type = b->round_type = type;
    b->op = sums ? (int32_t)DPAR_SUM : (int32_t)DPAR_COPY;
    b->clear = sums;
    b->to = sums ? other : cells;
    b->from = sums ? cells : from >= 0 ? other : (void *)(uintptr_t)(boxes->constants + constant);
    b->dims = tile->box.dims;
    for (k = 0; k < tile->box.dims; k++) { /* the planes in place of d */
        b->extent[k] = k == d ? tile->planes : tile->box.hi[k] - tile->box.lo[k];
        b->to_stride[k] = k == d ? tile->plane : tile->stride[k];
        b->from_stride[k] = from >= 0 ? b->to_stride[k] : 0;
    }
}

/* All padding of dim d. */
static dpar_status dpari_spatial_pad(const dpari_spatial *plan, const dpar_tile *tile, int32_t d,
                                     int32_t what)
{
    const dpar_spatial_desc *layer = &plan->head.layer;
    const int64_t n = layer->in.extent[d];
    const int32_t padding = dpari_spatial_padding(layer, d);
    const int there = plan->comm->mem != NULL, lowest = padding == DPAR_SPATIAL_PAD_LOWEST;
    unsigned char element[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    dpari_spatial_boxes boxes;
    int64_t i, from;
    dpari_spatial_boxes_begin(&boxes, plan);
    if (lowest) {
        dpari_spatial_lowest(layer->type, element);
    }
    for (i = tile->box.lo[d]; i < tile->box.hi[d]; i++) {
        if (i >= 0 && i < n) {
            i = dpari_least(n, tile->box.hi[d]) - 1;
            continue;
        }
        from = dpari_spatial_image(padding, n, i);
        if (from >= 0 && (from < tile->box.lo[d] || from >= tile->box.hi[d])) {
            continue; /* beyond what any output reads */
        }
        if (there) {
            dpari_spatial_slice_there(&boxes, tile, layer->type, d, i, from, what,
                                      lowest && what == DPARI_SPATIAL_FILL
                                          ? (int32_t)DPARI_SPATIAL_LOWEST
                                          : (int32_t)DPARI_SPATIAL_ZERO);
        } else {
            dpari_spatial_slice(tile, layer->type, d, i, from, what, element);
        }
    }
    return dpari_spatial_boxes_go(&boxes);
}

static int dpari_spatial_pads(const dpari_spatial *plan, int32_t d)
{
    return dpari_spatial_touches(&plan->head.layer, d) &&
           plan->head.layer.padding[d] != DPAR_SPATIAL_PAD_WRAP;
}

/* Dim after dim, so that corners come from corners. */
static dpar_status dpari_spatial_fill(const dpari_spatial *plan, const dpar_spatial_arrays *arrays,
                                      int constants)
{
    dpar_status status = DPAR_OK;
    dpar_tile tile;
    int32_t i, d;
    for (i = 0; i < plan->head.layer.tensors && plan->head.in_box.dims > 0; i++) {
        dpar_tile_init(&tile, arrays->in[i], &plan->head.in_box, plan->head.layer.planes,
                       plan->head.layer.channels_last);
        for (d = 0; d < tile.box.dims && status == DPAR_OK; d++) {
            const int32_t padding = dpari_spatial_padding(&plan->head.layer, d);
            if (dpari_spatial_pads(plan, d) && (!constants || padding == DPAR_SPATIAL_PAD_ZERO ||
                                                padding == DPAR_SPATIAL_PAD_LOWEST)) {
                status = dpari_spatial_pad(plan, &tile, d, DPARI_SPATIAL_FILL);
            }
        }
    }
    return status;
}

/* The other way: the last dim first. */
static dpar_status dpari_spatial_fold(const dpari_spatial *plan, const dpar_spatial_arrays *arrays)
{
    dpar_status status = DPAR_OK;
    dpar_tile tile;
    int32_t i, d;
    for (i = 0; i < plan->head.layer.tensors && plan->head.in_box.dims > 0; i++) {
        dpar_tile_init(&tile, arrays->in_gradient[i], &plan->head.in_box, plan->head.layer.planes,
                       plan->head.layer.channels_last);
        for (d = tile.box.dims - 1; d >= 0 && status == DPAR_OK; d--) {
            if (dpari_spatial_pads(plan, d)) {
                status = dpari_spatial_pad(plan, &tile, d, DPARI_SPATIAL_FOLD);
            }
        }
    }
    return status;
}

/* What lies around the own points in dim d becomes 0. */
static dpar_status dpari_spatial_clear_around(const dpari_spatial *plan, const dpar_tile *tile,
                                              int32_t d)
{
    dpari_spatial_boxes boxes;
    int64_t k;
    dpari_spatial_boxes_begin(&boxes, plan);
    for (k = tile->box.lo[d]; k < tile->box.hi[d]; k++) {
        if (k >= plan->head.in_owned.lo[d] && k < plan->head.in_owned.hi[d]) {
            continue;
        }
        if (plan->comm->mem != NULL) {
            dpari_spatial_slice_there(&boxes, tile, plan->head.layer.type, d, k, -1,
                                      DPARI_SPATIAL_CLEAR, DPARI_SPATIAL_ZERO);
        } else {
            dpari_spatial_slice(tile, plan->head.layer.type, d, k, -1, DPARI_SPATIAL_CLEAR, NULL);
        }
    }
    return dpari_spatial_boxes_go(&boxes);
}

/* Gradients begin at 0: all, or those around the own points. */
static dpar_status dpari_spatial_clear(const dpari_spatial *plan, const dpar_spatial_arrays *arrays)
{
    dpar_status status = DPAR_OK;
    dpar_tile tile;
    int32_t i, d;
    for (i = 0; i < plan->head.layer.tensors && plan->head.in_box.dims > 0; i++) {
        const int64_t bytes = dpar_box_volume(&plan->head.in_box) * plan->head.layer.planes *
                              dpar_type_bytes(plan->head.layer.type);
        dpar_tile_init(&tile, arrays->in_gradient[i], &plan->head.in_box, plan->head.layer.planes,
                       plan->head.layer.channels_last);
        if (!arrays->accumulate || plan->head.in_owned.dims == 0) {
            if (plan->comm->mem == NULL) {
                dpari_zero(tile.data, (size_t)bytes);
            } else if (status == DPAR_OK) {
                status = dpari_do_copy(plan->comm, tile.data, NULL, bytes);
            }
            continue;
        }
        for (d = 0; d < tile.box.dims && status == DPAR_OK; d++) {
            status = dpari_spatial_clear_around(plan, &tile, d);
        }
    }
    return status;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void dpari_spatial_tile(dpar_tile *tile, void *data, const dpar_box *array, int64_t planes,
                               int32_t last, const dpar_box *box)
{
    dpar_tile_init(tile, data, array, planes, last);
    tile->box = *box;
}

/* Runs a kernel on the outputs of a box. */
static void dpari_spatial_kernel_on(const dpari_spatial *plan, const dpar_spatial_arrays *arrays,
                                    dpar_spatial_kernel kernel, const dpar_box *out)
{
    const dpar_spatial_desc *layer = &plan->head.layer;
    const dpar_box *array = arrays->out_box.dims > 0 ? &arrays->out_box : &plan->head.out_owned;
    dpar_spatial_call call;
    dpar_box in;
    int32_t i;
    if (kernel == NULL || out->dims == 0) {
        return;
    }
    if (!dpari_spatial_needs(layer, out, &in)) {
        in = plan->head.in_box; /* outputs that read nothing: transposed, far out */
        in.hi[0] = in.lo[0];
    }
    dpari_zero(&call, sizeof call);
    call.layer = layer;
    call.user = layer->user;
    for (i = 0; i < layer->tensors; i++) {
        dpari_spatial_tile(&call.in[i], arrays->in[i], &plan->head.in_box, layer->planes,
                           layer->channels_last, &in);
        dpari_spatial_tile(&call.in_gradient[i], arrays->in_gradient[i], &plan->head.in_box,
                           layer->planes, layer->channels_last, &in);
    }
    dpari_spatial_tile(&call.out, arrays->out, array, layer->out_planes, layer->channels_last, out);
    dpari_spatial_tile(&call.out_gradient, arrays->out_gradient, array, layer->out_planes,
                       layer->channels_last, out);
    kernel(&call);
}

/* The outputs around the core: slabs dim by dim, earlier dims cut to the core. */
static void dpari_spatial_rim(const dpari_spatial *plan, const dpar_spatial_arrays *arrays)
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
        if (slab.hi[d] > slab.lo[d]) {
            dpari_spatial_kernel_on(plan, arrays, plan->head.layer.forward, &slab);
        }
        slab = rest;
        slab.lo[d] = plan->core.hi[d];
        if (slab.hi[d] > slab.lo[d]) {
            dpari_spatial_kernel_on(plan, arrays, plan->head.layer.forward, &slab);
        }
        rest.lo[d] = plan->core.lo[d];
        rest.hi[d] = plan->core.hi[d];
    }
}

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
static DPARI_COLD dpar_status dpari_spatial_given_arrays(const dpari_spatial *plan,
                                                         const dpar_spatial_arrays *arrays,
                                                         int forward)
{
    int32_t i, missing = 0, cut;
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
           !dpari_spatial_has_room(&arrays->out_box, plan->head.layer.out_planes) ||
           (plan->head.out_owned.dims > 0 &&
            !dpari_box_contains(&arrays->out_box, &plan->head.out_owned)));
    if (missing > 0 || cut) {
        dpar_why why;
        (void)dpari_wrong(
            &why,
            cut ? "rank %d: out_box, of %ld points, does not hold all %ld outputs"
                : "rank %d: %ld arrays of a layer of %ld inputs are NULL, though there are "
                  "points",
            plan->comm->rank,
            !cut                                               ? missing
            : arrays->out_box.dims == plan->head.layer.in.dims ? dpar_box_volume(&arrays->out_box)
                                                               : 0,
            cut ? dpar_box_volume(&plan->head.out_owned) : plan->head.layer.tensors);
        return dpari_comm_wrong_all(plan->comm, DPAR_E_ARG, &why);
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_forward(dpar_spatial_plan *plan,
                                                     const dpar_spatial_arrays *arrays)
{
    dpari_spatial *spatial = (dpari_spatial *)(void *)plan;
    dpar_status status = dpari_spatial_given_arrays(spatial, arrays, 1);
    status = status == DPAR_OK ? dpari_spatial_bind(spatial, arrays->in) : status;
    status = status == DPAR_OK ? dpar_halo_plan_begin(spatial->exchange) : status;
    if (status != DPAR_OK) {
        return status;
    }
    if (spatial->core.dims > 0) {
        status = dpari_spatial_fill(spatial, arrays, 1);
        if (status != DPAR_OK) {
            return status;
        }
        dpari_spatial_kernel_on(spatial, arrays, spatial->head.layer.forward, &spatial->core);
    }
    status = dpar_halo_plan_end(spatial->exchange);
    status = status == DPAR_OK ? dpari_spatial_fill(spatial, arrays, 0) : status;
    if (status == DPAR_OK) {
        dpari_spatial_rim(spatial, arrays);
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_backward(dpar_spatial_plan *plan,
                                                      const dpar_spatial_arrays *arrays)
{
    dpari_spatial *spatial = (dpari_spatial *)(void *)plan;
    dpar_status status = dpari_spatial_given_arrays(spatial, arrays, 0);
    const dpar_spatial_desc *layer;
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
    status = dpari_spatial_fold(spatial, arrays);
    status = status == DPAR_OK ? dpari_spatial_bind(spatial, arrays->in_gradient) : status;
    status = status == DPAR_OK ? dpar_halo_plan_reduce_begin(spatial->exchange, DPAR_SUM) : status;
    if (status != DPAR_OK) {
        return status;
    }
    dpari_spatial_kernel_on(spatial, arrays, layer->weight_gradient, &spatial->head.out_owned);
    return dpar_halo_plan_end(spatial->exchange);
}

/* ---- normalisation --------------------------------------------------------------------------- */

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

/* Points without data: of one rank alone, so that the others must hear of it. */
static dpar_status dpari_norm_check_data(dpar_comm *comm, const dpar_tile *x, const dpar_tile *y)
{
    const int64_t points = x->box.dims > 0 && x->planes > 0 ? dpar_box_volume(&x->box) : 0;
    dpar_why why;
    if (points == 0 || (x->data != NULL && y->data != NULL)) {
        return DPAR_OK;
    }
    (void)dpari_wrong(&why, "rank %d: a tile of a norm has %ld points and no data", comm->rank,
                      points);
    return dpari_comm_wrong_all(comm, DPAR_E_ARG, &why);
}

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
        return dpari_comm_wrong(comm, "a norm of type %s: f64 or f32", dpar_type_name(norm->type));
    }
    if (norm->samples < 1 || norm->channels < 1 || norm->groups < 0 ||
        (norm->groups > 0 && norm->channels % norm->groups != 0) || !fits ||
        (x->planes != 0 && x->planes != dpari_norm_planes(norm))) {
        return dpari_comm_wrong(
            comm,
            "a norm of %d samples, %d channels, %d groups over %ld planes, the same points "
            "in both tiles: does not fit",
            norm->samples, norm->channels, norm->groups, x->planes);
    }
    if (!(norm->epsilon >= 0.0 && norm->epsilon <= 1e300)) {
        return dpari_comm_wrong(comm, "the epsilon of a norm is a number from 0 to 1e300");
    }
    return dpari_norm_check_data(comm, x, y);
}

/* ---- normalisation: over the ranks ----------------------------------------------------------- */

/* A tile's points for layers.h; none where it has none. */
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

static int dpari_norm_joins(const dpar_mem_norm *work, const dpar_mem_planes *planes)
{
    const int32_t last = work->dims - 1;
    return planes->stride[last - 1] == planes->stride[last] * work->extent[last];
}

/* Rows that follow each other in all tiles become one. */
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

static dpar_status dpari_norm_missing(dpar_comm *comm, const char *what)
{
    return comm == NULL ? DPAR_E_ARG : dpari_comm_wrong(comm, "%s", what);
}

/* A collective of `count` numbers in which ranks must have given n alike. */
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
        return dpari_norm_missing(comm, "a norm, forward: n, x, y, saved or scratch is NULL");
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
    if (status == DPAR_OK) {
        status = dpari_norm_post(comm, norm, DPAR_CALL_ALL_GATHER, arrays->scratch,
                                 arrays->scratch + 3 * sets, 3 * sets);
    }
    work.phase = DPAR_MEM_NORM_MERGE;
    work.all = arrays->scratch + 3 * sets;
    work.ranks = comm->size;
    dpari_norm_join(&work);
    status = status == DPAR_OK ? dpari_do_norm(comm, &work) : status;
    work.phase = DPAR_MEM_NORM_APPLY;
    return status == DPAR_OK ? dpari_do_norm(comm, &work) : status;
}

DPAR_API DPARI_COLD dpar_status dpar_norm_backward(dpar_comm *comm, const dpar_norm *norm,
                                                   const dpar_norm_arrays *arrays)
{
    dpar_mem_norm work;
    dpar_status status;
    int64_t sets;
    if (comm == NULL || norm == NULL || arrays == NULL || arrays->x == NULL || arrays->dy == NULL ||
        arrays->dx == NULL || arrays->saved == NULL || arrays->scratch == NULL) {
        return dpari_norm_missing(comm, "a norm, backward: n, x, dy, dx, saved or scratch is NULL");
    }
    status = dpari_norm_check(comm, norm, arrays->x, arrays->dy);
    status = status == DPAR_OK ? dpari_norm_check(comm, norm, arrays->x, arrays->dx) : status;
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
    if (status == DPAR_OK) {
        status =
            dpari_norm_post(comm, norm, DPAR_CALL_ALL_REDUCE, work.total, work.total, 3 * sets);
    }
    work.phase = DPAR_MEM_NORM_GRADIENT;
    return status == DPAR_OK ? dpari_do_norm(comm, &work) : status;
}
