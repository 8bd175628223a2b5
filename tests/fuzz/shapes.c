/* SPDX-License-Identifier: MIT-0 */
/* Fuzzes what checks a shape: meshes by names, orders and views, grids of ranks and their
 * placement, windows, buckets, vocabularies, layers on stages, packed documents, samplers. A
 * refusal must have a message; what is accepted is used at its limits. Has libFuzzer's entry, and
 * with -DDPAR_FUZZ_MAIN a main that feeds argv[1] fixed pseudo-random inputs. Run with:
 * tests/compile/fuzz.sh. */
#include "dpar.h"

#include <stdlib.h>
#include <string.h>

#include "odd_bytes.h"

static dpar_why why;

/* Returns 1 for OK, 0 for a refusal, which must have a message. */
static int fine(dpar_status st)
{
    must(st == DPAR_OK || why.text[0] != 0);
    must(memchr(why.text, 0, sizeof why.text) != NULL);
    return st == DPAR_OK;
}

static void take_name(bytes *b, char *text, size_t room)
{
    static const char some[] = "ab  ,-c";
    size_t i, n = (size_t)take(b, (int)room - 1);
    for (i = 0; i < n; i++) {
        text[i] = some[take(b, 7)];
    }
    text[n] = 0;
}

static void meshes(bytes *b)
{
    dpar_mesh m, other;
    char names[40], order[40];
    int32_t size[40], coord[DPAR_MAX_AXES], i;
    for (i = 0; i < 40; i++) {
        size[i] = odd32(b);
    }
    take_name(b, names, sizeof names);
    take_name(b, order, sizeof order);
    if (fine(dpar_mesh_init_from_order(&m, order, names, size, odd32(b), &why))) {
        must(dpar_mesh_coords(&m, m.size - 1, coord) && dpar_mesh_rank(&m, coord) == m.size - 1);
    }
    if (fine(dpar_mesh_init(&m, names, size, take(b, 2), odd32(b), &why))) {
        must(dpar_mesh_coords(&m, m.size - 1, coord) && dpar_mesh_rank(&m, coord) == m.size - 1);
        must(!dpar_mesh_coords(&m, m.size, coord) && !dpar_mesh_coords(&m, -1, coord));
        for (i = -1; i <= m.axes; i++) {
            (void)dpar_mesh_shift(&m, odd32(b), i, odd64(b), take(b, 2));
        }
        if (fine(dpar_mesh_view(&other, &m, order, size, take(b, 2), &why))) {
            must(other.size == m.size);
        }
    }
}

static void carts(bytes *b)
{
    dpar_cart_choose_desc g;
    dpar_cart cart;
    dpar_mapping place;
    dpar_stencil s;
    int32_t parts[DPAR_MAX_DIMS], coord[DPAR_MAX_DIMS], d, rank;
    int64_t cut, first[DPAR_MAX_DIMS], count[DPAR_MAX_DIMS], total, worst;
    memset(&g, 0, sizeof g);
    memset(&s, 0, sizeof s);
    g.ranks = take(b, 4) ? 1 + take(b, 64) : odd32(b);
    g.dims = take(b, 5) - (take(b, 16) == 0);
    g.periodic = (uint32_t)take(b, 16);
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        g.cells[d] = take(b, 2) ? 1 + take(b, 100) : odd64(b);
        g.weight[d] = odd64(b);
        parts[d] = take(b, 4) ? 0 : odd32(b);
        s.block[d] = odd64(b);
        s.width[d] = odd64(b);
    }
    if (fine(dpar_cart_choose_parts(&g, parts, &cut, &why))) {
        int64_t product = 1;
        for (d = 0; d < g.dims; d++) {
            must(parts[d] >= 1);
            product *= parts[d];
        }
        must(product == g.ranks);
        rank = take(b, 64);
        if (dpar_cart_range(g.dims, g.cells, parts, rank, first, count) == DPAR_OK) {
            for (d = 0; d < g.dims && count[d] > 0; d++) {
            }
            must(d < g.dims || dpar_cart_owner(g.dims, g.cells, parts, first) == rank);
        }
    }
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        parts[d] = 1 + take(b, 5);
    }
    if (!fine(dpar_cart_init(&cart, take(b, 4), parts, g.periodic, &why))) {
        return;
    }
    s.shape = take(b, 5);
    s.bytes = odd64(b);
    if (fine(dpar_mapping_choose(&place, &cart, 1 + take(b, 9), &s, &why))) {
        must(dpar_mapping_cost(&place, &s, &total, &worst, &why) == DPAR_OK && worst <= 2 * total);
    }
    if (fine(dpar_mapping_init(&place, &cart, take(b, 6) - 1, odd32(b), &why))) {
        for (rank = 0; rank < cart.size; rank++) {
            must(dpar_mapping_coords(&place, rank, coord) == DPAR_OK);
            must(dpar_mapping_rank(&place, coord) == rank);
        }
    }
}

static void lists(bytes *b)
{
    dpar_buckets_desc how;
    dpar_bucket bucket[8];
    dpar_vocab v;
    dpar_stage_layers_desc st;
    dpar_packed p;
    dpar_window w;
    int64_t numel[6], start[6], ends[6], outputs, i;
    int32_t n, lo, hi, rank;
    memset(&how, 0, sizeof how);
    for (n = 0; n < 6; n++) {
        numel[n] = odd64(b);
        ends[n] = (n ? ends[n - 1] : 0) + (n ? take(b, 20) : 0);
    }
    if (take(b, 8) == 0) {
        ends[take(b, 6)] = odd64(b);
    }
    how.params = take(b, 7) - (take(b, 16) == 0), how.count = numel, how.ranks = odd32(b);
    how.first = odd64(b), how.size = odd64(b), how.align = odd64(b), how.multiple = odd64(b);
    how.forward = take(b, 2);
    if (fine(dpar_buckets_init(&how, start, bucket, 8, &n, &why))) {
        for (i = 0; i < n && i < 8; i++) {
            must(bucket[i].lo <= bucket[i].hi && bucket[i].used <= bucket[i].hi - bucket[i].lo);
        }
    }
    if (fine(dpar_vocab_init(&v, odd64(b), odd64(b), odd64(b), odd32(b), &why)) && v.count > 0) {
        for (rank = 0, n = 0; rank < v.ranks && rank < 64; rank++) {
            n += dpar_vocab_row(&v, rank, 0) >= 0;
        }
        must(n == 1);
    }
    memset(&st, 0, sizeof st);
    st.layers = odd32(b), st.stages = odd32(b), st.chunks = odd32(b), st.first_layers = odd32(b);
    st.last_layers = odd32(b), st.embedding = take(b, 2), st.loss = take(b, 2),
    st.v_shape = take(b, 2);
    if (fine(dpar_stage_layers(&st, odd32(b), odd32(b), &lo, &hi, &why))) {
        must(0 <= lo && lo <= hi && hi <= st.layers);
    }
    if (fine(dpar_packed_init(&p, 5, ends, odd32(b), take(b, DPAR_SPLIT_RULE_COUNT + 1), &why))) {
        int64_t all = 0;
        for (rank = 0; rank < p.ranks && p.ranks < 64; rank++) {
            all += dpar_packed_rank_count(&p, rank, NULL);
            (void)dpar_packed_pairs(&p, rank);
        }
        must(p.ranks >= 64 || all == ends[5]);
    }
    memset(&w, 0, sizeof w);
    w.kind = take(b, 6) - 1, w.kernel = odd64(b), w.stride = odd64(b), w.dilation = odd64(b);
    w.pad_low = odd64(b), w.pad_high = odd64(b), w.ceil_mode = take(b, 2);
    if (fine(dpar_window_outputs(&w, odd64(b), &outputs, &why))) {
        must(outputs >= 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bytes in;
    in.data = data;
    in.left = size;
    why.text[0] = 0;
    switch (take(&in, 3)) {
    case 0: meshes(&in); break;
    case 1: carts(&in); break;
    default: lists(&in); break;
    }
    return 0;
}

#ifdef DPAR_FUZZ_MAIN
int main(int argc, char **argv)
{
    return feed_random(argc > 1 ? atol(argv[1]) : 100000);
}
#endif
