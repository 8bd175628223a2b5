/* SPDX-License-Identifier: MIT-0 */
/* Fuzzes redistributions: executes every rank's lists and compares what arrives with the lists of
 * owned indices of both layouts. Has libFuzzer's entry, and with -DDPAR_FUZZ_MAIN a main that feeds
 * argv[1] fixed pseudo-random inputs. Run with: tests/compile/fuzz.sh. */
#include "dpar.h"

#include <stdlib.h>
#include <string.h>

#include "layout_oracle.h"
#include "layout_bytes.h"

enum { RANKS = 16, MOST = 12, LISTS = 20000 };

/* The owners of all indices, by brute force. */
typedef struct world {
    const dpar_layout *l;
    int n[RANKS][3], index[RANKS][3][MOST];
} world;

static void list_world(world *w, const dpar_layout *l)
{
    int rank, d;
    int32_t coord[DPAR_MAX_AXES];
    memset(w, 0, sizeof *w);
    w->l = l;
    for (rank = 0; rank < RANKS; rank++) {
        for (d = 0; d < l->dims && dpar_mesh_coords(&l->mesh, rank, coord); d++) {
            w->n[rank][d] = owned(l, coord, d, w->index[rank][d]);
        }
    }
}

typedef struct entry {
    int from, to;
    dpar_transfer t;
} entry;
static entry sent[LISTS], got[LISTS];

static int list_all(const dpar_layout *from, const dpar_layout *to, int per_node, int direction,
                    entry *list)
{
    static dpar_redistribute_cursor w;
    dpar_transfer t;
    int rank, n = 0;
    for (rank = 0; rank < RANKS; rank++) {
        must(dpar_redistribute_first(&w, from, to, rank, direction, per_node) == DPAR_OK);
        while (dpar_redistribute_next(&w, &t)) {
            must(n < LISTS && t.peer >= 0 && t.peer < RANKS);
            list[n].from = direction == DPAR_TRANSFER_SEND ? rank : t.peer;
            list[n].to = direction == DPAR_TRANSFER_SEND ? t.peer : rank;
            list[n++].t = t;
        }
    }
    return n;
}

/* For each element of each rank of `to`: how often it arrived as a copy, and in all. */
static int copied[RANKS][MOST * MOST * MOST], arrived[RANKS][MOST * MOST * MOST];

/* Finds element j of the transfer on both sides and checks that it is the same one. */
static void deliver(const world *from, const world *to, const entry *e, const int64_t *j)
{
    int64_t at = 0;
    int d;
    for (d = 0; d < e->t.dims; d++) {
        int64_t mine = e->t.mine[d] + j[d], theirs = e->t.theirs[d] + j[d];
        must(mine >= 0 && mine < to->n[e->to][d]);
        must(theirs >= 0 && theirs < from->n[e->from][d]);
        must(to->index[e->to][d][mine] == from->index[e->from][d][theirs]);
        must(to->index[e->to][d][mine] == e->t.global[d] + j[d]);
        at = at * MOST + mine;
    }
    copied[e->to][at] += e->t.op == DPAR_COPY;
    arrived[e->to][at]++;
}

static void deliver_all(const world *from, const world *to, const entry *list, int n)
{
    int k, d;
    memset(copied, 0, sizeof copied);
    memset(arrived, 0, sizeof arrived);
    for (k = 0; k < n; k++) {
        int64_t j[3] = {0, 0, 0};
        must(from->l->dims == 0 || dpar_transfer_volume(&list[k].t) > 0);
        do {
            deliver(from, to, &list[k], j);
            for (d = list[k].t.dims - 1; d >= 0 && ++j[d] == list[k].t.extent[d]; d--) {
                j[d] = 0;
            }
        } while (d >= 0);
    }
}

/* Checks that partial axes of `from` which are reduced contribute once each, and that others
 * deliver once. */
static void check_times(const world *from, const world *to)
{
    int rank, times = 1;
    int32_t i;
    for (i = 0; i < from->l->mesh.axes; i++) {
        int stays = i < to->l->mesh.axes && to->l->axis[i].kind == DPAR_PLACEMENT_PARTIAL;
        times *= from->l->axis[i].kind == DPAR_PLACEMENT_PARTIAL && !stays
                     ? from->l->mesh.axis[i].size
                     : 1;
    }
    for (rank = 0; rank < RANKS; rank++) {
        int a, b, c, takes = mesh_coord(&to->l->mesh, rank, 0) >= 0 || to->l->mesh.axes == 0;
        if (to->l->mesh.axes == 0) {
            takes = rank == to->l->mesh.first_rank;
        }
        for (i = 0; i < to->l->mesh.axes; i++) { /* a sum that begins: coordinate 0 gets it */
            int begins =
                to->l->axis[i].kind == DPAR_PLACEMENT_PARTIAL &&
                !(i < from->l->mesh.axes && from->l->axis[i].kind == DPAR_PLACEMENT_PARTIAL);
            takes = takes && !(begins && mesh_coord(&to->l->mesh, rank, i) > 0);
        }
        for (a = 0; a < (to->l->dims > 0 ? to->n[rank][0] : 1); a++) {
            for (b = 0; b < (to->l->dims > 1 ? to->n[rank][1] : 1); b++) {
                for (c = 0; c < (to->l->dims > 2 ? to->n[rank][2] : 1); c++) {
                    int at = to->l->dims > 2   ? (a * MOST + b) * MOST + c
                             : to->l->dims > 1 ? a * MOST + b
                                               : a;
                    must(copied[rank][at] == takes);
                    must(arrived[rank][at] == (takes ? times : 0));
                }
            }
        }
    }
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
            must(sent[k].t.global[d] == got[*at].t.global[d]);
        }
        must(sent[k].t.op == got[*at].t.op);
        ++*at;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static world a, b;
    bytes in;
    dpar_mesh mesh[2];
    dpar_layout from, to;
    int64_t extent[DPAR_MAX_DIMS], cuts[2][DPAR_MAX_AXES][8];
    int32_t dims;
    int per_node, same, receives;
    dpar_why why;
    in.data = data;
    in.left = size;
    per_node = take(&in, 6) - 1;
    same = take(&in, 2);
    mesh[0] = take_mesh(&in, 12);
    mesh[1] = same ? mesh[0] : take_mesh(&in, 12);
    dims = take_extents(&in, extent, MOST);
    if (take_layout(&in, &from, &mesh[0], dims, extent, cuts[0]) != DPAR_OK ||
        take_layout(&in, &to, &mesh[1], dims, extent, cuts[1]) != DPAR_OK) {
        return 0;
    }
    if (dpar_redistribute_check(&from, &to, &why) != DPAR_OK) {
        must(why.text[0] != 0);
        return 0;
    }
    list_world(&a, &from);
    list_world(&b, &to);
    receives = list_all(&from, &to, per_node, DPAR_TRANSFER_RECV, got);
    deliver_all(&a, &b, got, receives);
    check_times(&a, &b);
    check_pairs(list_all(&from, &to, per_node, DPAR_TRANSFER_SEND, sent), receives);
    return 0;
}

#ifdef DPAR_FUZZ_MAIN
int main(int argc, char **argv)
{
    return feed_random(argc > 1 ? atol(argv[1]) : 100000);
}
#endif
