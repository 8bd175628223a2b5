/* SPDX-License-Identifier: MIT-0 */
/* Who owns what: a layout by three rules, a mesh and its groups, pieces that move. */
#include "pictures.h"
#include <stdio.h>

/* ---- layouts ---- */

/* Draws a box of rows x columns cells. */
static void cells(dpar_text *t, int x, int y, int rows, int columns, int cell, const char *colour)
{
    int k;
    box(t, x, y, columns * cell, rows * cell, colour);
    put(t, "<path class=\"i\" d=\"");
    for (k = 1; k < columns; k++) {
        put(t, "M%d %dv%d", x + k * cell, y, rows * cell);
    }
    for (k = 1; k < rows; k++) {
        put(t, "M%d %dh%d", x, y + k * cell, columns * cell);
    }
    put(t, "\"/>\n");
}

/* 7 x 13 elements on 2 x 3 ranks, divided by one rule: each box is contiguous on its rank. */
static int layout(dpar_text *t, int x, int32_t rule, const char *name, dpar_why *why)
{
    enum { Y = 66, CELL = 20 };
    static const int32_t parts[] = {2, 3};
    static const int64_t extent[] = {7, 13};
    dpar_placement cut[2];
    dpar_mesh mesh;
    dpar_layout l;
    dpar_box b;
    int64_t most[2], least[2];
    char line[100];
    int32_t rank;
    cut[0] = dpar_shard_by(0, rule, 2);
    cut[1] = dpar_shard_by(1, rule, 2);
    if (dpar_mesh_init(&mesh, "y x", parts, DPAR_ORDER_LAST_FASTEST, 6, why) < 0 ||
        dpar_layout_init(&l, &mesh, 2, extent, cut, why) < 0) {
        return 1;
    }
    for (rank = 0; rank < mesh.size; rank++) {
        dpar_box_cursor cursor = {0};
        while (dpar_layout_next(&l, rank, &cursor, &b, NULL)) {
            const int left = x + CELL * (int)b.lo[1], top = Y + CELL * (int)b.lo[0];
            const int rows = (int)(b.hi[0] - b.lo[0]), columns = (int)(b.hi[1] - b.lo[1]);
            cells(t, left, top, rows, columns, CELL, pale[rank]);
            snprintf(line, sizeof line, "%d", (int)rank);
            centred(t, left + CELL * columns / 2, top + CELL * rows / 2 + 5, 0, line);
        }
    }
    dpar_layout_local(&l, 0, most, NULL);
    dpar_layout_local(&l, 5, least, NULL);
    word(t, x, Y - 10, name);
    snprintf(line, sizeof line, "rank 0 has %d x %d, rank 5 has %d x %d", (int)most[0],
             (int)most[1], (int)least[0], (int)least[1]);
    word(t, x, Y + 7 * CELL + 20, line);
    return 0;
}

int draw_layouts(dpar_text *t, dpar_why *why)
{
    page(t, 860, 240, "7 x 13 elements on 2 x 3 ranks, by three rules");
    return layout(t, 16, DPAR_SPLIT_CHUNK, "CHUNK, as in PyTorch", why) ||
           layout(t, 300, DPAR_SPLIT_EVEN, "EVEN, as in NumPy and PETSc", why) ||
           layout(t, 584, DPAR_SPLIT_BLOCK_CYCLIC, "BLOCK_CYCLIC, 2 x 2, as in ScaLAPACK", why);
}

/* ---- meshes ---- */

/* Draws one line: the group of rank 6 along an axis, in the axis' colour, and its purpose. */
static void group(dpar_text *t, const dpar_mesh *mesh, const char *axis, int y, const char *what)
{
    const uint32_t which = 1u << dpar_mesh_find(mesh, axis);
    char line[200];
    int32_t i, n = dpar_mesh_group_size(mesh, which);
    size_t at = (size_t)snprintf(line, sizeof line, "its %s group: ranks", axis);
    for (i = 0; i < n; i++) {
        at += (size_t)snprintf(line + at, sizeof line - at, " %d",
                               (int)dpar_mesh_group_member(mesh, which, 6, i));
    }
    snprintf(line + at, sizeof line - at, "; %s", what);
    key(t, 66, y, pale[dpar_mesh_find(mesh, axis)], line);
}

/* 2 x 2 x 4 ranks on 2 nodes of 8; a rank's colour is the axis along which it differs from 6. */
int draw_meshes(dpar_text *t, dpar_why *why)
{
    enum { WIDE = 82, HIGH = 50, NODE = 8 };
    static const int32_t sizes[] = {2, 2, 4};
    dpar_mesh mesh;
    char line[100];
    int32_t rank, axis, at[3], of[3];
    if (dpar_mesh_init(&mesh, "pp dp tp", sizes, DPAR_ORDER_LAST_FASTEST, 16, why) < 0) {
        return 1;
    }
    page(t, 860, 330, "pp 2, dp 2, tp 4: 16 ranks on 2 nodes of 8");
    dpar_mesh_coords(&mesh, 6, of);
    for (rank = 0; rank < mesh.size; rank++) {
        const char *colour = "#EEEEEE";
        int x, y, differ = 0, last = 0;
        dpar_mesh_coords(&mesh, rank, at);
        x = 66 + 394 * (rank / NODE) + WIDE * at[2];
        y = 84 + HIGH * at[1];
        for (axis = 0; axis < mesh.axes; axis++) {
            differ += at[axis] != of[axis];
            last = at[axis] != of[axis] ? axis : last;
        }
        if (differ < 2) {
            colour = differ == 0 ? "#F5EE9E" : pale[last];
        }
        box(t, x + 2, y + 2, WIDE - 4, HIGH - 4, colour);
        snprintf(line, sizeof line, "%d", (int)rank);
        centred(t, x + WIDE / 2, y + HIGH / 2 + 5, 0, line);
        if (at[1] == 0) {
            snprintf(line, sizeof line, "tp %d", (int)at[2]);
            centred(t, x + WIDE / 2, 74, 1, line);
        }
        if (at[2] == 0 && at[0] == 0) {
            snprintf(line, sizeof line, "dp %d", (int)at[1]);
            word(t, 16, y + HIGH / 2 + 5, line);
        }
        if (rank % NODE == 0) {
            snprintf(line, sizeof line, "node %d: pp %d", (int)(rank / NODE), (int)at[0]);
            word(t, x, 56, line);
            outline(t, x - 3, y - 3, 4 * WIDE + 6, 2 * HIGH + 6);
        }
    }
    key(t, 66, 210, "#F5EE9E", "rank 6");
    group(t, &mesh, "tp", 238, "they share every layer and communicate most, inside a node");
    group(t, &mesh, "dp", 266, "they average their gradients once per step");
    group(t, &mesh, "pp", 294, "they pass activations from node to node");
    return 0;
}

/* ---- moving ---- */

enum { CELL = 7, LEFT = 70, RIGHT = 490, TOP = 66 }; /* of both arrays */

static void name_rank(dpar_text *t, int x, int64_t row, int32_t rank)
{
    char line[20];
    snprintf(line, sizeof line, "rank %d", (int)rank);
    word(t, x, TOP + CELL * (int)row + 5, line);
}

/* Draws the rank's part of the new layout, each piece in the colour of the rank that sends it.
 * Returns the bytes that it receives from other ranks. */
static int64_t pieces(dpar_text *t, const dpar_layout *from, const dpar_layout *to, int32_t rank)
{
    static dpar_redistribute_cursor walk;
    int64_t shape[2], first[2], others = 0;
    dpar_transfer p;
    char line[40];
    dpar_redistribute_first(&walk, from, to, rank, DPAR_TRANSFER_RECV, 0);
    while (dpar_redistribute_next(&walk, &p)) {
        const int x = RIGHT + CELL * (int)p.global[1], y = TOP + CELL * (int)p.global[0];
        const int wide = CELL * (int)p.extent[1], high = CELL * (int)p.extent[0];
        const int64_t bytes = 4 * dpar_transfer_volume(&p);
        box(t, x, y, wide, high, pale[p.peer]);
        others += p.peer != rank ? bytes : 0;
        if (p.peer != rank) {
            snprintf(line, sizeof line, "%d: %d bytes", (int)p.peer, (int)bytes);
        } else {
            snprintf(line, sizeof line, "%d bytes stay", (int)bytes);
        }
        centred(t, x + wide / 2, y + high / 2 + 4, 1, line);
    }
    dpar_layout_local(to, rank, shape, first);
    outline(t, RIGHT + CELL * (int)first[1], TOP + CELL * (int)first[0], CELL * (int)shape[1],
            CELL * (int)shape[0]);
    name_rank(t, first[1] > 0 ? RIGHT + CELL * 40 + 8 : RIGHT - 52, first[0] + shape[0] / 2, rank);
    return others;
}

/* 48 x 40 floats move from 6 ranks to 8. */
int draw_moving(dpar_text *t, dpar_why *why)
{
    static const int64_t extent[] = {48, 40};
    static const int32_t bands[] = {6, 1}, blocks[] = {4, 2};
    const dpar_placement cut[] = {dpar_shard(0), dpar_shard(1)};
    int64_t shape[2], first[2], travel = 0;
    dpar_layout six, eight;
    dpar_mesh mesh;
    char line[100];
    int32_t rank;
    if (dpar_mesh_init(&mesh, "y x", bands, DPAR_ORDER_LAST_FASTEST, 6, why) < 0 ||
        dpar_layout_init(&six, &mesh, 2, extent, cut, why) < 0 ||
        dpar_mesh_init(&mesh, "y x", blocks, DPAR_ORDER_LAST_FASTEST, 8, why) < 0 ||
        dpar_layout_init(&eight, &mesh, 2, extent, cut, why) < 0) {
        return 1;
    }
    page(t, 860, 440, "48 x 40 floats move from 6 ranks to 8");
    word(t, LEFT, 54, "before: bands of rows");
    word(t, RIGHT, 54, "after: blocks, with the rank that sends each piece");
    for (rank = 0; rank < 6; rank++) {
        dpar_layout_local(&six, rank, shape, first);
        box(t, LEFT, TOP + CELL * (int)first[0], CELL * (int)shape[1], CELL * (int)shape[0],
            pale[rank]);
        outline(t, LEFT, TOP + CELL * (int)first[0], CELL * (int)shape[1], CELL * (int)shape[0]);
        name_rank(t, LEFT - 54, first[0] + shape[0] / 2, rank);
    }
    for (rank = 0; rank < 8; rank++) {
        travel += pieces(t, &six, &eight, rank);
    }
    snprintf(line, sizeof line, "%d of %d bytes are sent; the others are on the right rank already",
             (int)travel, 48 * 40 * 4);
    word(t, LEFT, TOP + CELL * 48 + 26, line);
    return 0;
}
