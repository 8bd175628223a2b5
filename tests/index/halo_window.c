/* SPDX-License-Identifier: MIT-0 */
/* Tests halo with windows: the sweep of facts/halo.md 4.8, with every input of a rank present once
 * and every output equal to that over the whole line; transposed convolutions, interpolation,
 * attention; ranks without inputs; several dims, with poles and masks. Run with:
 * tests/run test index. */
#include "dpar.h"

#include "axes.h"
#include "check.h"
#include "random.h"

enum { RANKS = 12, MOST = 3000, LISTS = 20000, TAPS = 64 };

#include "halo_world.h"

static int image(const dpar_halo *h, int64_t *x, int *turn)
{
    int64_t rows = dpar_halo_points(h, h->fold);
    if ((h->poles & DPAR_HALO_POLE_HIGH) != 0 && x[h->fold] >= rows) {
        x[h->fold] = 2 * rows - 1 - x[h->fold]; /* half a cell away */
        x[h->mirror] += dpar_halo_points(h, h->mirror) / 2;
        *turn = 2;
    }
    return wrapped(h, x);
}

/* Lists the inputs of output y by the definitions, including a convolution's padding. */
static int taps(const dpar_window *v, int64_t n, int64_t m, int64_t y, int64_t *list)
{
    int64_t s = v->stride > 0 ? v->stride : 1, d = v->dilation > 0 ? v->dilation : 1, i, k;
    int count = 0;
    if (v->kind == DPAR_WINDOW_CONVOLUTION) {
        for (k = 0; k < v->kernel; k++) {
            list[count++] = s * y - v->pad_low + d * k;
        }
    } else if (v->kind == DPAR_WINDOW_TRANSPOSED) {
        for (i = 0; i < n; i++) { /* the span of its kernel, whether or not a tap hits an input */
            int64_t first = s * i - v->pad_low;
            if (first <= y && y <= first + d * (v->kernel - 1)) {
                list[count++] = i;
            }
        }
    } else if (v->kind == DPAR_WINDOW_INTERPOLATION) {
        /* the position of y times `whole`: (y + 1/2) n/m - 1/2, or y (n - 1)/(m - 1), or y n/m */
        int64_t whole = v->kernel == 1 ? m : v->align_corners ? (m > 1 ? m - 1 : 1) : 2 * m;
        int64_t at = v->kernel == 1     ? y * n
                     : v->align_corners ? (m > 1 ? y * (n - 1) : 0)
                                        : (2 * y + 1) * n - m;
        int64_t middle = -2;
        while ((middle + 1) * whole <= at) {
            middle++;
        }
        for (k = 0; k < v->kernel; k++) {
            i = middle + k - (v->kernel > 1 ? v->kernel / 2 - 1 : 0);
            list[count++] = i < 0 ? 0 : i >= n ? n - 1 : i;
        }
    } else {
        for (k = 0; k < v->kernel; k++) {
            list[count++] = dpari_window_start(v, n, y) + d * k; /* tested in halo.c */
        }
    }
    CHECK(count <= TAPS);
    return count;
}

static int64_t outputs_of(const dpar_halo *h, int32_t d)
{
    int64_t m = 0;
    if (h->window[d].kernel == 0) {
        return dpar_halo_points(h, d);
    }
    if (h->outputs != NULL) {
        return h->outputs->extent[d];
    }
    CHECK_INT(dpar_window_outputs(&h->window[d], h->grid.extent[d], &m, NULL), DPAR_OK);
    return m;
}

/* Checks one dim of one rank with outputs `out`: the local array has exactly the points that its
 * outputs read, as the functions report. */
static void check_hull(const dpar_halo *h, int rank, int32_t d, const dpar_box *out)
{
    int64_t lo = INT64_MAX, hi = INT64_MIN, y, end, list[TAPS], m = outputs_of(h, d);
    int32_t coord[DPAR_MAX_AXES], block = rank;
    int k, n;
    while (h->owner != NULL && h->owner[block % h->grid.mesh.size] != rank) {
        block++; /* this rank has a block, and so an array */
    }
    CHECK(dpar_mesh_coords(&h->grid.mesh, block % h->grid.mesh.size, coord));
    if (dpari_layout_span(&h->grid, coord, d, &y, &end)) { /* its own, whatever the other dims */
        lo = y;
        hi = end;
    }
    for (y = out->lo[d]; h->window[d].kernel != 0 && y < out->hi[d]; y++) {
        int64_t a = 0, b = 0;
        n = taps(&h->window[d], h->grid.extent[d], m, y, list);
        CHECK_INT(dpari_window_reads(&h->window[d], h->grid.extent[d], m, y, y + 1, &a, &b), n > 0);
        for (k = 0; k < n; k++) {
            lo = list[k] < lo ? list[k] : lo;
            hi = list[k] >= hi ? list[k] + 1 : hi;
            CHECK(list[k] >= a && list[k] < b);
        }
    }
    CHECK_INT(held[rank].lo[d], lo - h->low[d]);
    CHECK_INT(held[rank].hi[d], hi + h->high[d]);
}

/* Returns 1 if output y of a rank reads something in dim d that an exchange brings. */
static int waits(const dpar_halo *h, int rank, int32_t d, int64_t y)
{
    int64_t list[TAPS], i;
    int n, k, late = 0;
    if (h->window[d].kernel == 0) {
        for (i = y - h->low[d]; i <= y + h->high[d]; i++) {
            int end = i < 0 || (i >= h->grid.extent[d] && !(h->poles != 0 && d == h->fold));
            late |= (i < mine[rank].lo[d] || i >= mine[rank].hi[d]) &&
                    ((h->periodic >> d & 1u) != 0 || !end);
        }
        return late;
    }
    n = taps(&h->window[d], h->grid.extent[d], outputs_of(h, d), y, list);
    for (k = 0; k < n; k++) {
        int end = list[k] < 0 || (list[k] >= h->grid.extent[d] && !(h->poles != 0 && d == h->fold));
        late |= (list[k] < mine[rank].lo[d] || list[k] >= mine[rank].hi[d]) &&
                ((h->periodic >> d & 1u) != 0 || !end);
    }
    return late;
}

/* Checks that core and boundary together are the outputs, each once, and that the core is the
 * outputs that wait for nothing (for dilated neighbourhoods and similar windows, at most these). */
static void check_core_of_outputs(const dpar_halo *h, int rank, const dpar_box *out)
{
    dpar_box core, slab;
    int64_t y[6];
    int cores = has[rank] && dpar_halo_interior(h, rank, &core), n, exact = 1, d;
    for (d = 0; d < h->grid.dims; d++) {
        const dpar_window *v = &h->window[d]; /* single outputs that read nothing, or padding and a
                                               * gap, may be in the boundary */
        exact = exact && v->kind != DPAR_WINDOW_NEIGHBOURHOOD && v->dilation < 2 &&
                (v->kind != DPAR_WINDOW_TRANSPOSED || v->stride <= v->kernel) &&
                (v->kernel == 0 || (v->pad_low < v->kernel && v->pad_high < v->kernel));
    }
    CHECK(has[rank] || !dpar_halo_interior(h, rank, &core));
    memcpy(y, out->lo, sizeof y);
    do {
        int in_core = cores, in = 0, late = !has[rank], idle = 0;
        int64_t list[TAPS];
        for (d = 0; d < h->grid.dims; d++) {
            in_core = in_core && y[d] >= core.lo[d] && y[d] < core.hi[d];
            late = late || waits(h, rank, d, y[d]);
            idle = idle || (h->window[d].kernel != 0 && taps(&h->window[d], h->grid.extent[d],
                                                             outputs_of(h, d), y[d], list) == 0);
        }
        for (n = 0; dpar_halo_boundary(h, rank, n, &slab); n++) {
            int all = 1;
            for (d = 0; d < h->grid.dims; d++) {
                all = all && y[d] >= slab.lo[d] && y[d] < slab.hi[d];
            }
            in += all;
        }
        CHECK_INT(in, !in_core);
        CHECK(!late || !in_core);
        CHECK(in_core || late || idle || !exact);
        CHECK(n <= 2 * h->grid.dims);
    } while (next_point(out, y));
}

/* Checks one dim: computes each rank's outputs from its own array and compares them with those of
 * the whole line. */
static void check_line(const dpar_halo *h)
{
    int64_t n = h->grid.extent[0], m = outputs_of(h, 0), list[TAPS], y;
    int rank, k, count;
    for (rank = 0; rank < RANKS; rank++) {
        dpar_box out;
        if (!dpar_halo_outputs(h, rank, &out)) {
            continue;
        }
        for (y = out.lo[0]; y < out.hi[0]; y++) {
            int64_t whole = 0, here = 0;
            count = taps(&h->window[0], n, m, y, list);
            for (k = 0; k < count; k++) {
                int64_t i = list[k], in = i >= 0 && i < n ? i + 1 : 0;
                whole += (k + 1) * (h->periodic ? ring(i, n) + 1 : in);
                here += (k + 1) * array[rank][i - held[rank].lo[0]];
            }
            CHECK_INT(here, whole);
        }
    }
}

/* Checks for windows everything that check_halo checks. */
static void check_windows(const dpar_halo *h)
{
    static int64_t computed[MOST];
    int rank, n, d;
    int64_t y[6], total = 1, k;
    CHECK_INT(dpar_halo_check(h, NULL), DPAR_OK);
    fill(h);
    n = list_all(h, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, got);
    deliver(got, n);
    check_values(h);
    check_slabs(h, n);
    check_pairs(list_all(h, DPAR_TRANSFER_SEND, DPAR_HALO_FORWARD, sent), n);
    for (d = 0; d < h->grid.dims; d++) {
        total *= outputs_of(h, d);
    }
    CHECK(total <= MOST);
    memset(computed, 0, sizeof computed);
    for (rank = 0; rank < RANKS; rank++) {
        dpar_box out;
        if (!dpar_halo_outputs(h, rank, &out)) {
            CHECK(!dpar_halo_boundary(h, rank, 0, &out));
            continue;
        }
        for (d = 0; d < h->grid.dims && holds[rank]; d++) {
            check_hull(h, rank, d, &out);
        }
        memcpy(y, out.lo, sizeof y);
        do {
            int64_t at = 0;
            for (d = 0; d < h->grid.dims; d++) {
                CHECK(y[d] >= 0 && y[d] < outputs_of(h, d));
                at = at * outputs_of(h, d) + y[d];
            }
            computed[at]++;
        } while (next_point(&out, y));
        check_core_of_outputs(h, rank, &out);
    }
    for (k = 0; k < total && h->owner == NULL; k++) { /* every output has exactly one rank */
        CHECK_INT(computed[k], 1);
    }
    if (h->grid.dims == 1) {
        check_line(h);
    }
    check_adjoint(h, DPAR_HALO_ADJOINT);
}

static void line_of(dpar_halo *h, int64_t n, int32_t parts, int32_t rule, const int64_t *cuts)
{
    dpar_placement p = dpar_shard_by(0, rule, 0);
    dpar_mesh m;
    memset(h, 0, sizeof *h);
    p.cuts = cuts;
    CHECK_INT(dpar_mesh_init(&m, "a", &parts, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&h->grid, &m, 1, &n, &p, NULL), DPAR_OK);
}

/* Makes a layout of m outputs on the mesh of h. */
static void outputs_on(const dpar_halo *h, dpar_layout *out, int64_t m, int32_t rule)
{
    dpar_placement p = dpar_shard_by(0, rule, 0);
    CHECK_INT(dpar_layout_init(out, &h->grid.mesh, 1, &m, &p, NULL), DPAR_OK);
}

static int64_t cases, hops;

/* Counts needs that reach beyond the next rank's block. */
static int64_t far_away(const dpar_halo *h)
{
    int64_t far = 0;
    int rank;
    for (rank = 0; rank < h->grid.mesh.size; rank++) {
        int64_t low = rank > 0 && has[rank - 1] ? mine[rank - 1].lo[0] : 0;
        int next = rank + 1 < RANKS && has[rank + 1];
        int64_t high = next ? mine[rank + 1].hi[0] : h->grid.extent[0];
        far += holds[rank] && (held[rank].lo[0] < low || held[rank].hi[0] > high) &&
               !(held[rank].lo[0] < 0 || held[rank].hi[0] > h->grid.extent[0]);
    }
    return far;
}

static void check_line_all(dpar_halo *h)
{
    int64_t m = outputs_of(h, 0);
    static const int32_t rules[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_CHUNK, DPAR_SPLIT_FLOOR};
    dpar_layout out;
    int way;
    for (way = 0; way < 2; way++) { /* outputs follow their inputs, or are balanced */
        outputs_on(h, &out, m, rules[cases % 3]);
        h->outputs = way ? &out : NULL;
        if (way == 0 && h->window[0].kind == DPAR_WINDOW_INTERPOLATION) {
            continue;
        }
        check_windows(h);
        hops += far_away(h);
        cases++;
    }
    h->outputs = NULL;
}

/* Runs the sweep: n 8, 11 .. 32; 2 to 4 ranks; kernel 1 to 7; stride 1 to 4; dilation 1, 2; padding
 * up to half the reach; even, chunked and uneven cuts. There are 4632 cases and more, and none may
 * be refused. */
static void test_sweep(void)
{
    int64_t n;
    int32_t parts, rule;
    for (n = 8; n <= 32; n += 3) {
        for (parts = 2; parts <= 4; parts++) {
            int64_t uneven[5] = {0, 1, 2, 5, 0};
            uneven[parts] = n;
            for (rule = 0; rule < 3; rule++) {
                dpar_halo h;
                dpar_window *v = &h.window[0];
                line_of(&h, n, parts,
                        rule == 0   ? DPAR_SPLIT_EVEN
                        : rule == 1 ? DPAR_SPLIT_CHUNK
                                    : DPAR_SPLIT_RAGGED,
                        uneven);
                for (v->kernel = 1; v->kernel <= 7; v->kernel++) {
                    for (v->stride = 1; v->stride <= 4; v->stride++) {
                        for (v->dilation = 1; v->dilation <= 2; v->dilation++) {
                            int64_t reach = v->dilation * (v->kernel - 1) + 1, pad;
                            for (pad = 0; pad <= reach / 2; pad++) {
                                v->pad_low = pad;
                                v->pad_high = below(2) ? pad : reach / 2 - pad;
                                v->ceil_mode = below(2);
                                h.periodic = below(4) == 0;
                                if (n + v->pad_low + v->pad_high < reach) {
                                    continue; /* impossible */
                                }
                                check_line_all(&h);
                            }
                        }
                    }
                }
            }
        }
    }
    CHECK(cases > 4632);
    CHECK(hops > 1000);
}

/* Checks transposed convolutions, interpolation and attention, also with few inputs for many
 * ranks. */
static void test_other_kinds(void)
{
    static const int32_t rules[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_CHUNK, DPAR_SPLIT_FLOOR};
    int64_t nothing = 0;
    int trial;
    for (trial = 0; trial < 6000; trial++) {
        dpar_halo h;
        dpar_window *v = &h.window[0];
        dpar_layout out;
        int64_t m = 0;
        line_of(&h, 1 + below(12), 1 + below(6), rules[below(3)], NULL);
        v->kind = 1 + below(3);
        v->kernel = 1 + below(5);
        v->stride = below(4);
        v->dilation = below(3);
        v->pad_low = below(3);
        v->pad_high = below(3);
        h.low[0] = below(3) == 0;
        h.high[0] = below(3) == 0;
        if (v->kind == DPAR_WINDOW_INTERPOLATION) {
            v->kernel = 1 << below(3);
            v->align_corners = below(2);
            m = 1 + below(30);
        } else if (dpar_window_outputs(v, h.grid.extent[0], &m, NULL) != DPAR_OK) {
            continue;
        }
        if (v->kind == DPAR_WINDOW_TRANSPOSED && (v->stride > 1 || v->dilation > 1)) {
            m += below(2); /* torch's output_padding */
        }
        outputs_on(&h, &out, m, rules[below(3)]);
        h.outputs = v->kind == DPAR_WINDOW_INTERPOLATION || below(2) ? &out : NULL;
        h.periodic = v->kind == DPAR_WINDOW_TRANSPOSED && below(2);
        check_windows(&h);
        for (m = 0; m < RANKS; m++) {
            nothing += holds[m] && !has[m];
        }
    }
    CHECK(nothing > 100); /* ranks with outputs and without inputs */
}

/* Checks two and three dims, some with windows and some with halos; poles; masks; nested cuts. */
static void test_dims(void)
{
    static const int32_t rules[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_CHUNK, DPAR_SPLIT_FLOOR};
    int trial, checked = 0;
    for (trial = 0; trial < 1500; trial++) {
        int32_t dims = 2 + below(2), parts[4], owner[RANKS], axes, d, i, left = RANKS;
        int64_t extent[3], outs[3], held_most = 1;
        dpar_placement in[4], to[4];
        dpar_layout out;
        dpar_mesh mesh;
        dpar_halo h;
        int fits = 1, poles = below(3) == 0;
        memset(&h, 0, sizeof h);
        axes = dims + (dims < 3);
        for (i = 0; i < axes; i++) {
            parts[i] = 1 + below(left < 3 ? left : 3);
            left /= parts[i];
            in[i] = i < dims ? dpar_shard_by(i, rules[below(3)], 0)
                             : dpar_shard_by(below(dims), DPAR_SPLIT_EVEN, 0);
            to[i] = in[i];
            to[i].rule = rules[below(3)];
        }
        for (d = 0; d < dims; d++) {
            dpar_window *v = &h.window[d];
            extent[d] = 1 + below(dims == 2 ? 9 : 5);
            extent[d] += extent[d] % 2;
            outs[d] = extent[d];
            if (below(3)) {
                v->kernel = 1 + below(3);
                v->stride = 1 + below(2);
                v->pad_low = below(2);
                v->pad_high = below(2);
                v->kind = below(2);
                fits = fits && dpar_window_outputs(v, extent[d], &outs[d], NULL) == DPAR_OK;
            }
            h.low[d] = below(2);
            h.high[d] = below(2);
            held_most *= extent[d] + 8;
        }
        if (!fits || held_most > MOST) {
            continue;
        }
        CHECK_INT(dpar_mesh_init(&mesh, axis_names(axes), parts, DPAR_ORDER_LAST_FASTEST, 0, NULL),
                  DPAR_OK);
        CHECK_INT(dpar_layout_init(&h.grid, &mesh, dims, extent, in, NULL), DPAR_OK);
        CHECK_INT(dpar_layout_init(&out, &mesh, dims, outs, to, NULL), DPAR_OK);
        h.shape = DPAR_STENCIL_BOX; /* corners count in any case: */
        for (d = 0, i = 0; d < dims; d++) {
            i |= h.window[d].kernel != 0;
        }
        if (!i) {
            check_halo(&h);
            continue;
        }
        h.periodic = (uint32_t)below(1 << dims);
        if (poles) {
            h.poles = DPAR_HALO_POLE_HIGH;
            h.mirror = 1;
            h.periodic = (h.periodic | 2u) & ~1u;
        }
        for (d = 0; d < dims; d++) { /* dims without a window keep their cut */
            for (i = 0; i < axes; i++) {
                to[i] = to[i].dim == d && h.window[d].kernel == 0 ? in[i] : to[i];
            }
        }
        CHECK_INT(dpar_layout_init(&out, &mesh, dims, outs, to, NULL), DPAR_OK);
        h.outputs = below(2) ? &out : NULL;
        if (below(4) == 0) {
            for (i = 0; i < mesh.size; i++) {
                owner[i] = below(4) ? mesh.size - 1 - i : -1;
            }
            h.owner = owner;
        }
        check_windows(&h);
        h.shape = DPAR_STENCIL_STAR;
        for (i = 0; i < RANKS; i++) {
            dpar_box box;
            CHECK(!dpar_halo_slab(&h, i, 0, &box) || dpar_halo_slab_points(&h, i) > 0);
        }
        i = list_all(&h, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, sent);
        h.shape = DPAR_STENCIL_BOX;
        CHECK_INT(i, list_all(&h, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, got));
        checked++;
    }
    CHECK(checked > 500);
}

/* Checks results of torch for ConvTranspose1d(stride 2, kernel 4, padding 1) and bilinear x 2. */
static void test_by_hand(void)
{
    dpar_window v;
    int64_t m = 0, lo = 0, hi = 0, y0 = 0, y1 = 10;
    memset(&v, 0, sizeof v);
    v.kind = DPAR_WINDOW_TRANSPOSED;
    v.kernel = 4;
    v.stride = 2;
    v.pad_low = v.pad_high = 1;
    CHECK_INT(dpar_window_outputs(&v, 5, &m, NULL), DPAR_OK);
    CHECK_INT(m, 10);
    CHECK(dpari_window_reads(&v, 5, 10, 3, 4, &lo, &hi) && lo == 1 && hi == 3); /* y = 2i-1+k */
    dpari_window_whole(&v, 5, 10, 1, 4, &y0, &y1); /* without inputs 0 and 4 */
    CHECK(y0 == 3 && y1 == 7);
    v.kind = DPAR_WINDOW_INTERPOLATION;
    v.kernel = 2;
    CHECK(dpari_window_reads(&v, 5, 10, 0, 1, &lo, &hi) && lo == 0 && hi == 1); /* at -1/4 */
    CHECK(dpari_window_reads(&v, 5, 10, 1, 3, &lo, &hi) && lo == 0 && hi == 2); /* 1/4, 3/4 */
    CHECK(dpari_window_reads(&v, 5, 10, 9, 10, &lo, &hi) && lo == 4 && hi == 5);
    CHECK(!dpari_window_reads(&v, 5, 10, 9, 11, &lo, &hi));
    CHECK(!dpari_window_reads(&v, 5, 10, -1, 1, &lo, &hi));
    CHECK(!dpari_window_reads(&v, 5, 10, 3, 3, &lo, &hi));
}

/* Checks 8 x 4 points on 2 x 2 blocks with outputs of 3 rows and one window across (columns 0 to
 * 2): the blocks on the right have no outputs and so no boundary, although their rows need the
 * neighbours'. */
static void test_no_outputs(void)
{
    static const int64_t extent[] = {8, 4};
    static const int32_t parts[] = {2, 2}, rule[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN};
    dpar_halo h;
    dpar_box box;
    grid_of(&h, 2, extent, parts, rule);
    h.window[0].kernel = h.window[1].kernel = 3;
    h.window[0].pad_low = h.window[0].pad_high = 1;
    h.window[1].stride = 4;
    CHECK(dpar_halo_boundary(&h, 0, 0, &box));
    CHECK(!dpar_halo_outputs(&h, 1, &box));
    CHECK(!dpar_halo_boundary(&h, 1, 0, &box));
    CHECK(!dpar_halo_boundary(&h, 3, 0, &box));
}

/* Checks that inputs without extent belong to no rank, whichever rank has the outputs. */
static void test_no_inputs(void)
{
    dpar_halo h;
    dpar_layout out;
    dpar_box box;
    line_of(&h, 0, 2, DPAR_SPLIT_EVEN, NULL);
    h.window[0].kernel = 3;
    outputs_on(&h, &out, 4, DPAR_SPLIT_EVEN);
    h.outputs = &out;
    CHECK_INT(dpar_halo_check(&h, NULL), DPAR_OK);
    CHECK(!dpar_halo_box(&h, 0, &box) && !dpar_halo_box(&h, 1, &box));
}

/* Checks that ranks which hold the same block behave as each would alone: 3 blocks, each held
 * twice. */
static void test_copies(void)
{
    static const int32_t parts[] = {3, 2};
    const int64_t n = 12;
    dpar_placement p[2];
    dpar_halo one, both;
    dpar_mesh m;
    int32_t rank, copy, direction;
    line_of(&one, n, 3, DPAR_SPLIT_EVEN, NULL);
    one.window[0].kernel = 5;
    one.window[0].pad_low = one.window[0].pad_high = 2;
    both = one;
    p[0] = dpar_shard_by(0, DPAR_SPLIT_EVEN, 0), p[1] = dpar_replicate();
    CHECK_INT(dpar_mesh_init(&m, "a b", parts, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&both.grid, &m, 1, &n, p, NULL), DPAR_OK);
    for (rank = 0; rank < 3; rank++) {
        for (copy = 0; copy < 2; copy++) {
            for (direction = 0; direction < 2; direction++) {
                static dpar_halo_cursor a, b;
                dpar_transfer t, u;
                int lists = 0;
                CHECK_INT(dpar_halo_first(&a, &one, rank, direction, DPAR_HALO_FORWARD, NULL),
                          DPAR_OK);
                CHECK_INT(
                    dpar_halo_first(&b, &both, 2 * rank + copy, direction, DPAR_HALO_FORWARD, NULL),
                    DPAR_OK);
                for (; dpar_halo_next(&a, &t); lists++) {
                    CHECK(dpar_halo_next(&b, &u));
                    CHECK_INT(u.peer, 2 * t.peer + copy);
                    CHECK(u.extent[0] == t.extent[0] && u.mine[0] == t.mine[0] &&
                          u.theirs[0] == t.theirs[0]);
                }
                CHECK(!dpar_halo_next(&b, &u));
                CHECK_INT(lists, rank == 1 ? 2 : 1);
            }
        }
    }
}

static void test_refusals(void)
{
    static const int64_t extent[] = {6, 8};
    static const int32_t parts[] = {2, 3}, rule[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN};
    dpar_layout out;
    dpar_window v;
    dpar_halo h, good;
    dpar_why why;
    int64_t m = 0;
    grid_of(&good, 2, extent, parts, rule);
    out = good.grid;
    good.outputs = &out;
    good.window[1].kernel = 3;
    good.window[1].pad_low = good.window[1].pad_high = 1;
    CHECK_INT(dpar_halo_check(&good, NULL), DPAR_OK);
#define REFUSED(change, sentence)                                                                  \
    do {                                                                                           \
        h = good;                                                                                  \
        out = good.grid;                                                                           \
        change;                                                                                    \
        CHECK_INT(dpar_halo_check(&h, &why), DPAR_E_ARG);                                          \
        CHECK_TEXT(why.text, sentence);                                                            \
    } while (0)
    REFUSED(h.window[1].pad_low = 0, "8 outputs of 8 inputs: must be 7 to 7");
    REFUSED(out.extent[1] = 9, "9 outputs of 8 inputs: must be 8 to 8");
    REFUSED(out.dims = 1, "outputs has 1 dims, grid has 2, or their meshes are not the same");
    REFUSED(out.mesh.axis[0].size = 1,
            "outputs has 2 dims, grid has 2, or their meshes are not the same");
    REFUSED(out.axis[0].dim = 1,
            "axis 0 must cut the same dim of outputs and grid, into contiguous blocks");
    REFUSED(out.axis[1].rule = DPAR_SPLIT_CYCLIC,
            "axis 1 must cut the same dim of outputs and grid, into contiguous blocks");
    REFUSED(out.axis[1].kind = DPAR_PLACEMENT_REPLICATE,
            "axis 1 must cut the same dim of outputs and grid, into contiguous blocks");
    REFUSED(h.points[1] = 1, "dim 1 has a window: points must be AT_CELLS");
    REFUSED(h.window[1].kind = DPAR_WINDOW_NEIGHBOURHOOD;
            h.periodic = 2, "a neighbourhood in periodic dim 1: use a convolution instead");
    REFUSED(h.window[1].kind = 4, "window kind 4 does not exist");
    REFUSED(h.outputs = NULL; h.window[1].kind = DPAR_WINDOW_INTERPOLATION,
                              "outputs must be set for an interpolation");
    REFUSED(h.window[1].kind = DPAR_WINDOW_INTERPOLATION,
            "an interpolation's kernel is 3: must be 1 or even");
    REFUSED(h.outputs = NULL; h.grid.extent[1] = 1;
            h.window[1].pad_low = h.window[1].pad_high = 0,
            "the kernel spans 3 elements, more than 1 inputs and 0 of padding");
    h = good;
    h.outputs = NULL;
    h.periodic = 2;
    h.window[1].pad_low = 127;
    CHECK_INT(dpar_halo_check(&h, &why), DPAR_OK);
    h.window[1].dilation = 0; /* 0 means 1: 100 taps reach 99, not 198 */
    h.window[1].kernel = 100;
    CHECK_INT(dpar_halo_check(&h, &why), DPAR_OK);
    h.window[1] = good.window[1];
    h.window[1].pad_low = 128;
    CHECK_INT(dpar_halo_check(&h, &why), DPAR_E_RANGE);
    CHECK_TEXT(why.text,
               "dim 1: windows reach 128 points: must be less than 16 times its 8 points");
    h.window[1].pad_low = 0;
    h.window[1].dilation = 64;
    h.window[1].pad_high = 127;
    CHECK_INT(dpar_halo_check(&h, &why), DPAR_E_RANGE);
    memset(&v, 0, sizeof v);
    v.kernel = 2;
    v.kind = DPAR_WINDOW_TRANSPOSED;
    v.stride = 3;
    CHECK_INT(dpari_window_check(&v, 4, 11, NULL), DPAR_OK);
    CHECK_INT(dpari_window_check(&v, 4, 13, NULL), DPAR_OK);
    CHECK_INT(dpari_window_check(&v, 4, 14, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "14 outputs of 4 inputs: must be 11 to 13");
    CHECK_INT(dpari_window_check(&v, 4, 10, &why), DPAR_E_ARG);
    CHECK_INT(dpar_window_outputs(&v, 0, &m, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "no outputs are left: 0 inputs, stride 3, 0 of padding");
    CHECK_INT(dpar_window_outputs(&v, INT64_C(1) << 60, &m, &why), DPAR_E_RANGE);
    v.kind = DPAR_WINDOW_INTERPOLATION;
    CHECK_INT(dpari_window_check(&v, 4, 0, &why), DPAR_E_RANGE);
    CHECK_TEXT(why.text, "4 inputs, 0 outputs: an interpolation has 1 to 2^30 of each");
    CHECK_INT(dpari_window_check(&v, 4, (INT64_C(1) << 30) + 1, &why), DPAR_E_RANGE);
    v.kind = DPAR_WINDOW_NEIGHBOURHOOD;
    v.dilation = 2;
    CHECK_INT(dpar_window_outputs(&v, 3, &m, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "3 inputs with dilation 2 have fewer than 2 keys");
    v.dilation = 4097;
    CHECK_INT(dpar_window_outputs(&v, 9000, &m, &why), DPAR_E_RANGE);
    CHECK_TEXT(why.text, "a neighbourhood's dilation is 4097: must be at most 4096");
    v.dilation = 4096;
    CHECK_INT(dpar_window_outputs(&v, 9000, &m, &why), DPAR_OK);
    v.dilation = 2;
    CHECK_INT(dpar_window_outputs(&v, 4, &m, &why), DPAR_OK);
    CHECK_INT(m, 4);
}

/* Checks the largest and smallest values that can occur, by window.h's formulas for outputs and for
 * outputs that follow inputs: y / stride, y n / outputs. */
static void test_limits(void)
{
    const int64_t huge = INT64_C(1) << 60, most = INT64_C(1) << 30;
    dpar_window v;
    int64_t m = 0, y0 = 0, y1 = 0;
    memset(&v, 0, sizeof v);
    v.kind = DPAR_WINDOW_TRANSPOSED;
    v.kernel = 1;
    CHECK_INT(dpar_window_outputs(&v, 1, &m, NULL), DPAR_OK);
    CHECK_INT(m, 1);
    CHECK_INT(dpar_window_outputs(&v, huge, &m, NULL), DPAR_OK);
    CHECK_INT(m, huge);
    v.kernel = 5;
    CHECK_INT(dpar_window_outputs(&v, 0, &m, NULL), DPAR_E_ARG);
    v.kernel = 1;
    v.stride = most;
    CHECK_INT(dpar_window_outputs(&v, most, &m, NULL), DPAR_OK);
    CHECK_INT(m, huge - most + 1);
    dpari_window_owned(&v, most, m, 1, 2, &y0, &y1);
    CHECK(y0 == most && y1 == 2 * most);
    v.kind = DPAR_WINDOW_INTERPOLATION;
    v.stride = 1;
    CHECK_INT(dpari_window_check(&v, most, 5, NULL), DPAR_OK);
    CHECK_INT(dpari_window_check(&v, 5, most, NULL), DPAR_OK);
    dpari_window_owned(&v, 4, 8, 1, 3, &y0, &y1); /* y / 2 */
    CHECK(y0 == 2 && y1 == 6);
    dpari_window_owned(&v, 3, 7, 1, 2, &y0, &y1); /* 3 y / 7 */
    CHECK(y0 == 3 && y1 == 5);
    memset(&v, 0, sizeof v);
    v.kernel = 1;
    v.kind = DPAR_WINDOW_TRANSPOSED;
    v.stride = 4; /* 4 i = y, y1 up to 2^61 */
    CHECK(dpari_window_reads(&v, huge, 2 * huge, 2 * huge - 4, 2 * huge, &y0, &y1));
    CHECK(y0 == huge / 2 - 1 && y1 == huge / 2);
    CHECK(!dpari_window_reads(&v, huge, 2 * huge, 2 * huge, 2 * huge + 2, &y0, &y1));
}

/* Runs the quick tests first, because tests/mutate.sh stops at the first failure. */
int main(void)
{
    random_seed = 3;
    test_refusals();
    test_by_hand();
    test_no_outputs();
    test_no_inputs();
    test_copies();
    test_limits();
    test_sweep();
    test_other_kinds();
    test_dims();
    return CHECK_DONE();
}
