/* SPDX-License-Identifier: MIT-0 */
/* An unstructured mesh: 10 x 7 nodes, each owned by the rank whose seed is nearest; the ghosts of
 * rank 0; and how many values each rank sends to each rank. */
#include "pictures.h"
#include "dpar_points.h"
#include <stdio.h>

enum { RANKS = 4, WIDE = 10, HIGH = 7, NODES = WIDE * HIGH, MOST = 9 * NODES };

/* For each rank: how many nodes it owns, its ghosts, and what it sends. */
static struct {
    int64_t own, ghost[NODES];
    int64_t ghosts;
    int64_t sends[RANKS];
} part[RANKS];

static int owner(int64_t id)
{
    static const int seed[RANKS][2] = {{2, 2}, {7, 1}, {1, 6}, {6, 5}};
    const int x = (int)(id % WIDE), y = (int)(id / WIDE);
    int best = 0, r, distance[RANKS];
    for (r = 0; r < RANKS; r++) {
        const int dx = x - seed[r][0], dy = y - seed[r][1];
        distance[r] = dx * dx + dy * dy;
        best = distance[r] < distance[best] ? r : best;
    }
    return best;
}

/* The nodes of other ranks that are neighbours of a node of `rank`, diagonals included. */
static int64_t beside(int rank, int64_t *ghost)
{
    int64_t n = 0;
    int x, y, dx, dy;
    for (y = 0; y < HIGH; y++) {
        for (x = 0; x < WIDE; x++) {
            int near = 0;
            for (dy = -1; dy <= 1; dy++) {
                for (dx = -1; dx <= 1; dx++) {
                    near |= x + dx >= 0 && x + dx < WIDE && y + dy >= 0 && y + dy < HIGH &&
                            owner((y + dy) * WIDE + x + dx) == rank;
                }
            }
            if (near && owner(y * WIDE + x) != rank) {
                ghost[n++] = y * WIDE + x;
            }
        }
    }
    return n;
}

/* Ranks are threads, so that all can fill `part`. */
static int mesh(dpar_comm *world, void *unused)
{
    const int me = (int)world->rank;
    int64_t own[NODES], id;
    dpar_points_traffic t;
    dpar_points_desc desc = {0};
    dpar_points *p = NULL;
    int32_t k;
    (void)unused;
    for (id = 0; id < NODES; id++) {
        if (owner(id) == me) {
            own[part[me].own++] = id;
        }
    }
    part[me].ghosts = beside(me, part[me].ghost);
    desc.own_count = part[me].own;
    desc.own_id = own;
    desc.ghost_count = part[me].ghosts;
    desc.ghost_id = part[me].ghost;
    if (dpar_points_make(world, &desc, &p, NULL) < 0) {
        return 1;
    }
    for (k = 0; dpar_points_peer(p, k, &t); k++) {
        part[me].sends[t.rank] = t.send_count;
    }
    return dpar_points_free(p) < 0;
}

static void draw_nodes(dpar_text *t, int x, int y, int step)
{
    char line[200];
    int64_t id;
    for (id = 0; id < NODES; id++) {
        const int cx = x + step * (int)(id % WIDE), cy = y + step * (int)(id / WIDE);
        put(t, "<circle cx=\"%d\" cy=\"%d\" r=\"13\" fill=\"%s\"/>\n", cx, cy, pale[owner(id)]);
        snprintf(line, sizeof line, "%d", (int)id);
        centred(t, cx, cy + 4, 1, line);
    }
    for (id = 0; id < part[0].ghosts; id++) {
        const int64_t g = part[0].ghost[id];
        put(t, "<circle class=\"o\" cx=\"%d\" cy=\"%d\" r=\"13\"/>\n", x + step * (int)(g % WIDE),
            y + step * (int)(g / WIDE));
    }
    snprintf(line, sizeof line, "rank 0 owns %d nodes; the %d with a ring are its ghosts",
             (int)part[0].own, (int)part[0].ghosts);
    word(t, x - 13, y + step * HIGH, line);
}

static void draw_matrix(dpar_text *t, int x, int y, int cell)
{
    char line[40];
    int from, to;
    word(t, x, y - 30, "values sent by each rank (row) to each rank (column)");
    for (from = 0; from < RANKS; from++) {
        snprintf(line, sizeof line, "%d", from);
        centred(t, x - 14, y + cell * from + cell / 2 + 5, 0, line);
        centred(t, x + cell * from + cell / 2, y - 8, 0, line);
        for (to = 0; to < RANKS; to++) {
            const int n = (int)part[from].sends[to];
            box(t, x + cell * to + 1, y + cell * from + 1, cell - 2, cell - 2,
                n > 0 ? pale[from] : "#eee");
            snprintf(line, sizeof line, "%d", n);
            centred(t, x + cell * to + cell / 2, y + cell * from + cell / 2 + 5, 0,
                    n > 0 ? line : "");
        }
    }
}

int draw_points(dpar_text *t, dpar_why *why)
{
    dpar_world_desc o = {0};
    o.threads = 1;
    if (dpar_launch(RANKS, mesh, NULL, &o, why) < 0) {
        return 1;
    }
    page(t, 780, 310, "a mesh of 70 nodes on 4 ranks");
    draw_nodes(t, 33, 66, 33);
    draw_matrix(t, 430, 96, 44);
    return 0;
}
