/* SPDX-License-Identifier: MIT-0 */
/* Fuzzes halos: checks any descriptor and, if it is accepted, walks through every rank's transfers
 * in all modes. Each box must be inside both arrays, and what a sends to b must be what b receives
 * from a, in the same order. Has libFuzzer's entry, and with -DDPAR_FUZZ_MAIN a main that feeds
 * argv[1] fixed pseudo-random inputs. Run with: tests/compile/fuzz.sh. */
#include "dpar.h"

#include <stdlib.h>
#include <string.h>

#include "layout_bytes.h"

enum { MOST = 20000, RANKS = 24 };

typedef struct entry {
    int32_t from, to;
    dpar_transfer t;
} entry;
static entry sent[MOST], got[MOST];

static void take_halo(bytes *b, dpar_halo *h)
{
    int32_t d, kind;
    h->shape = take(b, 4);
    h->periodic = (uint32_t)take(b, 8);
    for (d = 0; d < 3; d++) {
        h->low[d] = take(b, 5) - (take(b, 32) == 0);
        h->high[d] = take(b, 5);
        kind = take(b, 12);
        h->points[d] = kind < 4 ? kind - (take(b, 16) == 0) : 0;
        if (take(b, 8) == 0) {
            h->window[d].kind = take(b, 5);
            h->window[d].kernel = take(b, 6);
            h->window[d].stride = take(b, 4);
            h->window[d].dilation = take(b, 3);
            h->window[d].pad_low = take(b, 3);
            h->window[d].pad_high = take(b, 3);
        }
    }
    kind = take(b, 8);
    h->folds = kind == 0;
    h->poles = kind == 1 ? (uint32_t)take(b, 5) : 0;
    h->cube = kind == 2;
    h->fold = take(b, 3);
    h->mirror = take(b, 4);
    h->on_row = take(b, 2);
    h->shift = take(b, 3) - 1;
    h->pole_rows = (uint32_t)take(b, 4);
}

/* Checks that a box is inside the box that the rank holds, with the extents of two swapped dims
 * exchanged. */
static void inside(const dpar_halo *h, int32_t rank, const dpar_transfer *t, const int64_t *at,
                   int receiver)
{
    dpar_box box;
    int32_t d;
    must(dpar_halo_box(h, rank, &box));
    for (d = 0; d < t->dims; d++) {
        int32_t of = receiver && t->swap[0] != t->swap[1] && d == t->swap[0]   ? t->swap[1]
                     : receiver && t->swap[0] != t->swap[1] && d == t->swap[1] ? t->swap[0]
                                                                               : d;
        must(at[d] >= 0 && t->extent[of] >= 1 && at[d] + t->extent[of] <= box.hi[d] - box.lo[d]);
    }
}

static int list_all(const dpar_halo *h, int direction, int mode, entry *list)
{
    static dpar_halo_cursor w;
    dpar_transfer t;
    dpar_why why;
    int rank, n = 0;
    for (rank = 0; rank < RANKS; rank++) {
        why.text[0] = 0;
        if (dpar_halo_first(&w, h, rank, direction, mode, &why) != DPAR_OK) {
            must(why.text[0] != 0);
            return -1;
        }
        while (dpar_halo_next(&w, &t)) {
            must(n < MOST && t.peer >= 0 && t.peer < RANKS && dpar_transfer_volume(&t) > 0);
            list[n].from = direction == DPAR_TRANSFER_SEND ? rank : t.peer;
            list[n].to = direction == DPAR_TRANSFER_SEND ? t.peer : rank;
            list[n++].t = t;
            inside(h, rank, &t, t.mine, direction == DPAR_TRANSFER_RECV);
        }
    }
    return n;
}

/* Checks that the k-th send from a to b matches the k-th receive of b from a. */
static void check_pairs(int sends, int receives)
{
    static int next[RANKS][RANKS];
    int k;
    must(sends == receives);
    memset(next, 0, sizeof next);
    for (k = 0; k < sends; k++) {
        int *at = &next[sent[k].from][sent[k].to], d;
        while (*at < receives && (got[*at].from != sent[k].from || got[*at].to != sent[k].to)) {
            ++*at;
        }
        must(*at < receives);
        for (d = 0; d < sent[k].t.dims; d++) {
            must(sent[k].t.extent[d] == got[*at].t.extent[d]);
            must(sent[k].t.mine[d] == got[*at].t.theirs[d]);
            must(sent[k].t.theirs[d] == got[*at].t.mine[d]);
        }
        must(sent[k].t.flip == got[*at].t.flip && sent[k].t.turn == got[*at].t.turn);
        ++*at;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static dpar_halo h;
    bytes in;
    dpar_mesh mesh;
    dpar_why why;
    int64_t extent[DPAR_MAX_DIMS] = {0}, cuts[DPAR_MAX_AXES][8];
    int32_t dims, mode, owner[RANKS], i;
    in.data = data;
    in.left = size;
    memset(&h, 0, sizeof h);
    mesh = take_mesh(&in, 12);
    dims = take_extents(&in, extent, 13);
    if (take(&in, 4) == 0) { /* a cube needs six square faces */
        extent[0] = 6;
        extent[2] = extent[1];
        dims = 3;
    }
    if (take_layout(&in, &h.grid, &mesh, dims, extent, cuts) != DPAR_OK) {
        return 0;
    }
    take_halo(&in, &h);
    if (take(&in, 6) == 0 && mesh.first_rank == 0) {
        for (i = 0; i < RANKS; i++) {
            owner[i] = take(&in, 16) - 2;
        }
        h.owner = owner;
    }
    why.text[0] = 0;
    if (dpar_halo_check(&h, &why) != DPAR_OK) {
        must(why.text[0] != 0);
        return 0;
    }
    for (mode = DPAR_HALO_FORWARD; mode <= DPAR_HALO_SYNC_ADJOINT; mode++) {
        int receives = list_all(&h, DPAR_TRANSFER_RECV, mode, got);
        int sends = list_all(&h, DPAR_TRANSFER_SEND, mode, sent);
        if (receives >= 0 && sends >= 0) {
            check_pairs(sends, receives);
        }
    }
    return 0;
}

#ifdef DPAR_FUZZ_MAIN
int main(int argc, char **argv)
{
    return feed_random(argc > 1 ? atol(argv[1]) : 100000);
}
#endif
