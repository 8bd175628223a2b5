/* SPDX-License-Identifier: MIT-0 */
/* Fuzzes dpar.h near its limits: 2^31 - 1 ranks, 2^62 elements, halos of 2^60, zero and negative
 * numbers. The result must be a status with a message or right, never undefined behaviour; it is
 * checked by mapping there and back. Has libFuzzer's entry, and with -DDPAR_FUZZ_MAIN a main that
 * feeds argv[1] fixed pseudo-random inputs. Run with: tests/compile/fuzz.sh. */
#include "dpar.h"

#include <stdlib.h>
#include <string.h>

#include "layout_bytes.h"

static int64_t take_large(bytes *b)
{
    static const int64_t some[] = {0,
                                   1,
                                   2,
                                   3,
                                   7,
                                   1000,
                                   46341,
                                   INT64_C(1) << 31,
                                   INT64_C(1) << 60,
                                   INT64_C(1) << 61,
                                   (INT64_C(1) << 62) - 1,
                                   INT64_C(1) << 62,
                                   INT64_MAX,
                                   -1,
                                   INT64_MIN};
    int64_t v = some[take(b, 15)];
    int add = take(b, 4);
    return v > 0 && v <= INT64_MAX - add ? v + add : v;
}

static int large_mesh(bytes *b, dpar_mesh *m)
{
    static const int32_t some[] = {1, 2, 3, 1000, 46341, 1 << 20, INT32_MAX, 0};
    int32_t size[3], axes = 1 + take(b, 3), i;
    for (i = 0; i < axes; i++) {
        size[i] = some[take(b, 8)];
    }
    return dpar_mesh_init(m, axis_names(axes), size, take(b, 2), 0, NULL) == DPAR_OK;
}

static int large_layout(bytes *b, dpar_layout *l, const dpar_mesh *m, int32_t dims,
                        const int64_t *extent)
{
    dpar_placement p[DPAR_MAX_AXES];
    dpar_why why;
    dpar_status st;
    int32_t i;
    for (i = 0; i < m->axes; i++) {
        p[i] = take(b, 3) == 0
                   ? dpar_replicate()
                   : dpar_shard_by(take(b, 4) - 1, take(b, DPAR_SPLIT_RULE_COUNT), take_large(b));
        p[i].source = take(b, 3);
    }
    st = dpar_layout_init(l, m, dims, extent, p, &why);
    must(st == DPAR_OK || why.text[0] != 0);
    return st == DPAR_OK;
}

/* Maps the first, the last and a given element there and back. */
static void check_dim(const dpar_layout *l, int32_t rank, int32_t d, int64_t i)
{
    int64_t shape[DPAR_MAX_DIMS], run = 0, local, g, k;
    int32_t coord[DPAR_MAX_AXES], found[DPAR_MAX_AXES];
    dpar_layout_local(l, rank, shape, NULL);
    must(dpar_mesh_coords(&l->mesh, rank, coord));
    for (k = 0; k < 3; k++) {
        local = k == 0 ? 0 : k == 1 ? shape[d] - 1 : i;
        g = dpar_layout_global(l, rank, d, local, &run);
        must((g >= 0) == (local >= 0 && local < shape[d]));
        if (g >= 0) {
            must(g < l->extent[d] && run > 0 && run <= shape[d] - local);
            must(dpari_layout_before(l, rank, d, g) == local);
            memcpy(found, coord, sizeof found);
            must(dpar_layout_locate(l, d, g, found, &local, &run));
            must(memcmp(found, coord, (size_t)l->mesh.axes * sizeof found[0]) == 0);
        }
    }
    must(dpari_layout_before(l, rank, d, INT64_MAX) == shape[d]);
    must(dpari_layout_before(l, rank, d, INT64_MIN) == 0);
}

static void walk(const dpar_layout *from, const dpar_layout *to, int32_t rank, int direction,
                 int32_t node)
{
    static dpar_redistribute_cursor w;
    dpar_transfer t;
    int n;
    if (dpar_redistribute_first(&w, from, to, rank, direction, node) != DPAR_OK ||
        (direction == DPAR_TRANSFER_SEND && dpari_layout_copies(from) > 1)) {
        return; /* a sender skips the boxes of its copies, which may take long */
    }
    for (n = 0; n < 40 && dpar_redistribute_next(&w, &t); n++) {
        must(t.peer >= 0 && dpar_transfer_volume(&t) != 0);
    }
}

static void window_of(bytes *b, dpar_window *v)
{
    v->kernel = take_large(b);
    v->stride = take_large(b);
    v->dilation = take_large(b);
    v->pad_low = take_large(b);
    v->pad_high = take_large(b);
    v->ceil_mode = take(b, 2);
    v->kind = take(b, 5);
    v->align_corners = take(b, 2);
}

static void walk_halo(bytes *b, const dpar_layout *grid, int32_t rank)
{
    enum { ROOM = 32 };
    int32_t owner[ROOM];
    dpar_layout outputs;
    dpar_halo h;
    dpar_halo_cursor w;
    dpar_transfer t;
    dpar_box box;
    int32_t d, n, direction = take(b, 2);
    memset(&h, 0, sizeof h);
    h.grid = *grid;
    h.shape = take(b, 3);
    h.periodic = (uint32_t)take(b, 8);
    for (d = 0; d < grid->dims; d++) {
        h.low[d] = take_large(b);
        h.high[d] = take_large(b);
        h.points[d] = take(b, 3);
    }
    h.folds = take(b, 2);
    h.mirror = 1;
    h.on_row = take(b, 2);
    h.shift = take(b, 3) - 1;
    if (take(b, 2)) {
        h.poles = (uint32_t)take(b, 5);
        h.pole_rows = (uint32_t)take(b, 4);
        h.cube = take(b, 3) == 0;
    }
    for (n = 0; n < ROOM; n++) {
        owner[n] = take(b, 4) - 1 + n;
    }
    h.owner = grid->mesh.size <= ROOM && take(b, 2) ? owner : NULL;
    if (grid->mesh.size <= 1 << 16 && take(b, 2)) { /* windows: O(ranks) */
        outputs = *grid;
        for (d = 0; d < grid->dims; d++) {
            if (take(b, 2)) {
                window_of(b, &h.window[d]);
                outputs.extent[d] = take(b, 2) ? take_large(b) : outputs.extent[d];
            }
        }
        h.outputs = take(b, 2) ? &outputs : NULL;
    }
    if (dpar_halo_first(&w, &h, rank, direction, take(b, 4), NULL) != DPAR_OK) {
        return;
    }
    for (n = 0; n < 40 && dpar_halo_next(&w, &t); n++) {
        must(t.peer >= 0 && dpar_transfer_volume(&t) != 0);
        for (d = 0; d < t.dims; d++) {
            must(t.extent[d] > 0 && t.mine[d] >= 0 && t.theirs[d] >= 0);
        }
    }
    (void)dpar_halo_box(&h, rank, &box);
    (void)dpar_halo_outputs(&h, rank, &box);
    for (n = 0; n < 7; n++) {
        (void)dpar_halo_slab(&h, rank, n, &box);
    }
    (void)dpar_halo_slab_points(&h, rank);
    (void)dpar_halo_interior(&h, rank, &box);
    for (n = 0; n < 7; n++) {
        (void)dpar_halo_boundary(&h, rank, n, &box);
    }
}

static void small_ones(bytes *b)
{
    int64_t out, lo, hi, at = take_large(b), end = take_large(b), extent[3];
    dpar_window v;
    dpar_sampler s;
    dpar_box box;
    int n;
    window_of(b, &v);
    if (dpar_window_outputs(&v, (lo = take_large(b)), &out, NULL) == DPAR_OK) {
        int64_t first = 0, last = out, a;
        must(out > 0 && (v.kind != DPAR_WINDOW_CONVOLUTION ||
                         (dpari_window_reads(&v, lo, out, out - 1, out, &a, &hi) && hi > a)));
        must(dpari_window_check(&v, lo, out, NULL) == DPAR_OK);
        if (dpari_window_reads(&v, lo, out, out - 1, out, &a, &hi)) {
            must(hi > a && (v.kind == DPAR_WINDOW_CONVOLUTION || (a >= 0 && hi <= lo)));
        }
        dpari_window_whole(&v, lo, out, lo / 3, lo / 2, &first, &last);
        must(first >= 0 && last >= first && last <= out);
    }
    memset(&s, 0, sizeof s);
    s.remainder = take(b, 4);
    s.count = take_large(b);
    s.ranks = (int32_t)(take_large(b) % INT32_MAX);
    s.run = take_large(b);
    s.first = take_large(b);
    s.shuffle = take(b, 2);
    if (dpar_sampler_init(&s, NULL) == DPAR_OK) {
        out = dpar_sampler_rank_count(&s, s.ranks - 1);
        must(dpar_sampler_at(&s, s.ranks - 1, out) == -1);
        must(out == 0 || dpar_sampler_at(&s, s.ranks - 1, out - 1) < s.count);
        (void)dpar_sampler_consumed(&s, dpar_sampler_common_count(&s));
    }
    s.count = take_large(b);
    s.ranks = s.shuffle = 1;
    s.run = s.first = 0;
    if (dpar_sampler_init(&s, NULL) == DPAR_OK && s.count > 0) {
        int64_t v = dpari_permutation_walk(&s, s.count - 1);
        must(v >= 0 && v < s.count);
    }
    extent[0] = 1 + take(b, 3);
    extent[1] = INT64_C(1) << take(b, 30);
    extent[2] = INT64_C(1) << take(b, 30);
    out = extent[0] * extent[1] * extent[2];
    at = at < 0 ? 0 : at % out;
    end = end < 0 ? 0 : end % (out + 1);
    for (n = 0; dpar_flat_next(3, extent, &at, end, &box); n++) {
        must(n < 5 && dpar_box_volume(&box) > 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bytes in;
    dpar_mesh m, k;
    dpar_layout from, to;
    int64_t extent[DPAR_MAX_DIMS] = {0};
    int32_t dims, d, n, node;
    in.data = data;
    in.left = size;
    small_ones(&in);
    if (!large_mesh(&in, &m) || !large_mesh(&in, &k)) {
        return 0;
    }
    dims = take(&in, 4);
    for (d = 0; d < dims; d++) {
        extent[d] = take_large(&in);
    }
    if (!large_layout(&in, &from, &m, dims, extent) || !large_layout(&in, &to, &k, dims, extent)) {
        return 0;
    }
    node = take(&in, 2) ? (int32_t)(take_large(&in) & INT32_MAX) : 0;
    for (n = 0; n < 3; n++) {
        int32_t rank = n == 0 ? 0 : n == 1 ? m.size - 1 : (int32_t)(take_large(&in) % m.size);
        rank = rank < 0 ? 0 : rank;
        for (d = 0; d < dims; d++) {
            check_dim(&from, rank, d, take_large(&in));
        }
        (void)dpar_layout_count(&from, rank);
        walk(&from, &to, rank, DPAR_TRANSFER_RECV, node);
        walk(&from, &to, rank, DPAR_TRANSFER_SEND, node);
        walk_halo(&in, &from, rank);
    }
    return 0;
}

#ifdef DPAR_FUZZ_MAIN
int main(int argc, char **argv)
{
    return feed_random(argc > 1 ? atol(argv[1]) : 100000);
}
#endif
