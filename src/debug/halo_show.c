/* SPDX-License-Identifier: MIT-0 */
/* Draws an exchange of halos as SVG. The picture is built from the same walk over transfers that an
 * exchange uses, so that it shows the transfers that are really sent. */
#include "halo_show.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/box.h"
#include "../index/mesh.h"
#include "../index/redistribute.h"

/* Lengths are in tenths of a pixel. */
enum {
    DPARI_HSHOW_WIDE = 7200, /* length of the longer side of the grid */
    DPARI_HSHOW_LEFT = 300,
    DPARI_HSHOW_TOP = 800,
    DPARI_HSHOW_TABLE = 3400,
    DPARI_HSHOW_ROW = 190,
    DPARI_HSHOW_ROWS = 40,    /* maximum number of peers in the table */
    DPARI_HSHOW_BLOCKS = 4096 /* maximum number of blocks that are drawn */
};

typedef struct dpari_hshow {
    const dpar_halo_draw_desc *desc;
    int32_t dim[2];       /* down, across; -1 if the grid has one dim */
    dpar_box own, box;    /* points that the rank owns, and those of its array */
    int64_t lo[2], hi[2]; /* range of points that is drawn */
    int64_t scale;        /* tenths of a pixel per point, times 1024 */
    int64_t peers;        /* number of rows of the table */
} dpari_hshow;

/* ---- elements -------------------------------------------------------------------------------- */

static void dpari_hshow_number(dpar_text *text, const char *name, int64_t tenths)
{
    dpari_text_print(text, " %s=\"%.1f\"", name, (double)tenths / 10);
}

static void dpari_hshow_text(dpar_text *text, const char *style, int64_t x, int64_t y)
{
    dpari_text_print(text, "<text class=\"%s\"", style);
    dpari_hshow_number(text, "x", x);
    dpari_hshow_number(text, "y", y);
    dpari_text_char(text, '>');
}

/* Gives ranks with consecutive numbers colours that are far apart, by the golden angle. */
static void dpari_hshow_colour(dpar_text *text, int32_t peer)
{
    dpari_text_print(text, "hsl(%ld,62%%,55%%)", ((int64_t)peer * 13751 + 20000) / 100 % 360);
}

/* Returns where point v of dim k (0 down, 1 across) begins in the picture. */
DPARI_STATIC_NOINLINE int64_t dpari_hshow_at(const dpari_hshow *show, int32_t k, int64_t v)
{
    return (k ? DPARI_HSHOW_LEFT : DPARI_HSHOW_TOP) + (v - show->lo[k]) * show->scale / 1024;
}

/* Draws a box of points. `style` is a CSS class; without a peer (-1) it also gives the colour. */
static void dpari_hshow_rect(dpar_text *text, const dpari_hshow *show, const char *style,
                             const int64_t *lo, const int64_t *hi, int32_t peer)
{
    int64_t x = dpari_hshow_at(show, 1, lo[1]), y = dpari_hshow_at(show, 0, lo[0]);
    dpari_text_print(text, "<rect class=\"%s\"", style);
    dpari_hshow_number(text, "x", x);
    dpari_hshow_number(text, "y", y);
    dpari_hshow_number(text, "width", dpari_hshow_at(show, 1, hi[1]) - x);
    dpari_hshow_number(text, "height", dpari_hshow_at(show, 0, hi[0]) - y);
    if (peer >= 0) {
        dpar_text_put(text, " fill=\"");
        dpari_hshow_colour(text, peer);
        dpari_text_char(text, '"');
    }
    dpar_text_put(text, "/>\n");
}

/* Takes the two dims that are drawn out of the box [lo, hi). */
static void dpari_hshow_flat(const dpari_hshow *show, const int64_t *lo, const int64_t *hi,
                             int64_t (*to)[2])
{
    int32_t k;
    for (k = 0; k < 2; k++) {
        to[0][k] = show->dim[k] < 0 ? 0 : lo[show->dim[k]];
        to[1][k] = show->dim[k] < 0 ? 1 : hi[show->dim[k]];
    }
}

/* ---- what is drawn --------------------------------------------------------------------------- */

static dpar_status dpari_hshow_begin(dpari_hshow *show, const dpar_halo_draw_desc *p, dpar_why *why)
{
    const int32_t dims = p->halo->grid.dims;
    int64_t flat[2][2], span = 1;
    int32_t k;
    dpar_halo_cursor w;
    dpar_status st;
    show->desc = p;
    show->dim[0] = p->across == p->down ? dims - 2 : p->down;
    show->dim[1] = p->across == p->down ? dims - 1 : p->across;
    if (dims < 1 || p->across < 0 || p->across >= dims || p->down < 0 || p->down >= dims) {
        return dpari_wrong(why, "down is %d, across is %d, but the grid has %d dims", p->down,
                           p->across, dims);
    }
    if (!dpar_halo_owned(p->halo, p->rank, &show->own)) {
        return dpari_wrong(why, "rank %d owns no points", p->rank);
    }
    st = dpar_halo_first(&w, p->halo, p->rank, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, why);
    if (st != DPAR_OK) {
        return st;
    }
    (void)dpar_halo_box(p->halo, p->rank, &show->box);
    dpari_hshow_flat(show, show->box.lo, show->box.hi, flat);
    for (k = 0; k < 2; k++) {
        int64_t points = show->dim[k] < 0 ? 1 : dpar_halo_points(p->halo, show->dim[k]);
        show->lo[k] = dpari_least(0, flat[0][k]);
        show->hi[k] = dpari_most(points, flat[1][k]);
        span = dpari_most(span, show->hi[k] - show->lo[k]);
    }
    show->scale = dpari_most(1, (int64_t)DPARI_HSHOW_WIDE * 1024 / span);
    show->scale = dpari_least(show->scale, INT64_C(400) * 1024);
    return DPAR_OK;
}

/* True if the block and the rank's block overlap in the dims that are not drawn. */
static int dpari_hshow_level(const dpari_hshow *show, const dpar_box *b)
{
    int32_t d;
    for (d = 0; d < b->dims; d++) {
        if (d != show->dim[0] && d != show->dim[1] &&
            (b->lo[d] >= show->own.hi[d] || b->hi[d] <= show->own.lo[d])) {
            return 0;
        }
    }
    return 1;
}

static void dpari_hshow_block(dpar_text *text, const dpari_hshow *show, int32_t rank)
{
    int64_t flat[2][2];
    dpar_box b;
    if (rank < 0 || !dpar_halo_owned(show->desc->halo, rank, &b) || !dpari_hshow_level(show, &b)) {
        return;
    }
    dpari_hshow_flat(show, b.lo, b.hi, flat);
    dpari_hshow_rect(text, show, rank == show->desc->rank ? "me" : "b", flat[0], flat[1], -1);
    dpari_hshow_text(
        text, "n", (dpari_hshow_at(show, 1, flat[0][1]) + dpari_hshow_at(show, 1, flat[1][1])) / 2,
        (dpari_hshow_at(show, 0, flat[0][0]) + dpari_hshow_at(show, 0, flat[1][0])) / 2 + 40);
    dpari_text_print(text, "%d</text>\n", rank);
}

static void dpari_hshow_blocks(dpar_text *text, const dpari_hshow *show)
{
    const dpar_halo *halo = show->desc->halo;
    const dpar_mesh *mesh = &halo->grid.mesh;
    int32_t coord[DPAR_MAX_AXES] = {0}, a, drawn;
    for (drawn = 0; drawn < DPARI_HSHOW_BLOCKS; drawn++) {
        const int32_t block = dpar_mesh_rank(mesh, coord);
        dpari_hshow_block(text, show, halo->owner ? halo->owner[block] : block);
        for (a = mesh->axes - 1; a >= 0 && coord[a] == mesh->axis[a].size - 1; a--) {
            coord[a] = 0;
        }
        if (a < 0) {
            return;
        }
        coord[a]++;
    }
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Draws a piece that is received: where it arrives, where its cells are in the grid, and an arrow
 * between the two. */
static void dpari_hshow_piece(dpar_text *text, const dpari_hshow *show, const dpar_transfer *r)
{
    const dpar_halo *halo = show->desc->halo;
    int64_t there[2][2], here[2][2], lo[DPAR_MAX_DIMS], hi[DPAR_MAX_DIMS];
    int32_t d, k;
    dpar_box from;
    for (d = 0; d < r->dims; d++) {
        int32_t mine = d;
        if (r->swap[0] != r->swap[1] && d == r->swap[0]) {
            mine = r->swap[1];
        } else if (r->swap[0] != r->swap[1] && d == r->swap[1]) {
            mine = r->swap[0];
        }
        lo[d] = show->box.lo[d] + r->mine[d];
        hi[d] = lo[d] + r->extent[mine];
    }
    dpari_hshow_flat(show, lo, hi, here);
    dpari_hshow_rect(text, show, "in", here[0], here[1], r->peer);
    halo = halo->partner != NULL && r->turn % 2 != 0 ? halo->partner : halo;
    if (!dpar_halo_box(halo, r->peer, &from)) {
        return;
    }
    for (d = 0; d < r->dims; d++) {
        lo[d] = from.lo[d] + r->theirs[d];
        hi[d] = lo[d] + r->extent[d];
    }
    dpari_hshow_flat(show, lo, hi, there);
    dpari_hshow_rect(text, show, "out", there[0], there[1], r->peer);
    if (here[0][0] == there[0][0] && here[0][1] == there[0][1]) {
        return; /* no arrow, because the piece is drawn at its source */
    }
    dpar_text_put(text, "<path class=\"w\" stroke=\"");
    dpari_hshow_colour(text, r->peer);
    dpar_text_put(text, "\" d=\"");
    for (k = 0; k < 2; k++) {
        int64_t(*at)[2] = k ? here : there;
        dpari_text_print(
            text, "%s%.1f %.1f", k ? "L" : "M",
            (double)(dpari_hshow_at(show, 1, at[0][1]) + dpari_hshow_at(show, 1, at[1][1])) / 20,
            (double)(dpari_hshow_at(show, 0, at[0][0]) + dpari_hshow_at(show, 0, at[1][0])) / 20);
    }
    dpar_text_put(text, "\"/>\n");
}

static void dpari_hshow_pieces(dpar_text *text, const dpari_hshow *show)
{
    dpar_halo_cursor w;
    dpar_transfer r;
    (void)dpar_halo_first(&w, show->desc->halo, show->desc->rank, DPAR_TRANSFER_RECV,
                          DPAR_HALO_FORWARD, NULL);
    while (dpar_halo_next(&w, &r)) {
        dpari_hshow_piece(text, show, &r);
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

typedef struct dpari_hshow_sum {
    int64_t pieces, points;
} dpari_hshow_sum;

/* Counts the pieces and points that are exchanged with `peer` in one direction. *next becomes the
 * least peer above `after`, unless it is already smaller. */
static dpari_hshow_sum dpari_hshow_count(const dpari_hshow *show, int32_t direction, int32_t peer,
                                         int32_t after, int32_t *next)
{
    dpari_hshow_sum sum = {0, 0};
    dpar_halo_cursor w;
    dpar_transfer r;
    (void)dpar_halo_first(&w, show->desc->halo, show->desc->rank, direction, DPAR_HALO_FORWARD,
                          NULL);
    while (dpar_halo_next(&w, &r)) {
        if (r.peer == peer) {
            sum.pieces++;
            sum.points += dpar_transfer_volume(&r);
        }
        if (r.peer > after && (*next < 0 || r.peer < *next)) {
            *next = r.peer;
        }
    }
    return sum;
}

static void dpari_hshow_amount(dpar_text *text, const dpari_hshow *show, dpari_hshow_sum sum)
{
    const int64_t unit = dpari_most(1, show->desc->bytes);
    const int64_t amount = sum.points <= INT64_MAX / unit ? sum.points * unit : INT64_MAX;
    dpari_text_print(text, "%ld%s%ld", amount, show->desc->bytes > 0 ? " bytes in " : " points in ",
                     sum.pieces);
}

static void dpari_hshow_table(dpar_text *text, const dpari_hshow *show)
{
    const int64_t x = dpari_hshow_at(show, 1, show->hi[1]) + 300;
    int64_t y = DPARI_HSHOW_TOP + 100;
    int32_t peer = -1, row;
    for (row = 0; row < DPARI_HSHOW_ROWS; row++, y += DPARI_HSHOW_ROW) {
        int32_t next = -1;
        dpari_hshow_count(show, DPAR_TRANSFER_RECV, -1, peer, &next);
        dpari_hshow_count(show, DPAR_TRANSFER_SEND, -1, peer, &next);
        if (next < 0) {
            return;
        }
        peer = next;
        dpar_text_put(text, "<rect class=\"k\" fill=\"");
        dpari_hshow_colour(text, peer);
        dpari_text_char(text, '"');
        dpari_hshow_number(text, "x", x);
        dpari_hshow_number(text, "y", y - 90);
        dpar_text_put(text, " width=\"10\" height=\"10\"/>");
        dpari_hshow_text(text, "t", x + 150, y);
        dpar_text_put(text, peer == show->desc->rank ? "itself" : "rank ");
        if (peer != show->desc->rank) {
            dpari_text_int(text, peer);
        }
        dpar_text_put(text, ": receives ");
        dpari_hshow_amount(text, show,
                           dpari_hshow_count(show, DPAR_TRANSFER_RECV, peer, INT32_MAX, &next));
        dpar_text_put(text, ", sends ");
        dpari_hshow_amount(text, show,
                           dpari_hshow_count(show, DPAR_TRANSFER_SEND, peer, INT32_MAX, &next));
        dpar_text_put(text, "</text>\n");
    }
    dpari_hshow_text(text, "t", x + 150, y);
    dpar_text_put(text, "and others</text>\n");
}

/* ---- the picture ----------------------------------------------------------------------------- */

static void dpari_hshow_title(dpar_text *text, const dpari_hshow *show)
{
    const char *c = show->desc->title;
    for (; c != NULL && *c != 0; c++) {
        const int plain = *c >= ' ' && *c < 127 && *c != '&' && *c != '<' && *c != '>';
        dpari_text_char(text, plain ? *c : '?');
    }
    dpari_text_print(text, "%s%d", c != NULL ? ": rank " : "Halo of rank ", show->desc->rank);
}

static void dpari_hshow_head(dpar_text *text, const dpari_hshow *show)
{
    const int64_t wide = dpari_hshow_at(show, 1, show->hi[1]) + DPARI_HSHOW_TABLE + 300;
    const int64_t high = dpari_most(dpari_hshow_at(show, 0, show->hi[0]),
                                    DPARI_HSHOW_TOP + show->peers * DPARI_HSHOW_ROW) +
                         300;
    dpari_text_print(text,
                     "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %ld "
                     "%ld\">\n<style>text{font:12px sans-serif;fill:#222}.h{font-size:18px;"
                     "font-weight:600}.n{text-anchor:middle;font-size:11px;fill:#666}"
                     ".b{fill:#f4f4f4;stroke:#999;stroke-width:.6}"
                     ".me{fill:#fff;stroke:#222;stroke-width:1.6}"
                     ".in{stroke:#222;stroke-width:.7;stroke-dasharray:3 2;fill-opacity:.75}"
                     ".out{stroke:#222;stroke-width:.5;fill-opacity:.4}"
                     ".w{fill:none;stroke-width:1.2;marker-end:url(#dpar-tip)}</style>\n"
                     "<defs><marker id=\"dpar-tip\" viewBox=\"0 0 6 6\" refX=\"5\" refY=\"3\" "
                     "markerWidth=\"6\" markerHeight=\"6\" orient=\"auto\">"
                     "<path d=\"M0 0L6 3L0 6z\" fill=\"#444\"/></marker></defs>\n"
                     "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                     wide / 10, high / 10);
    dpari_hshow_text(text, "h", DPARI_HSHOW_LEFT, 350);
    dpari_hshow_title(text, show);
    dpar_text_put(text, "</text>\n");
    dpari_hshow_text(text, "s", DPARI_HSHOW_LEFT, 560);
    dpar_text_put(text, "dashed: its halo; paler: the cells that it is a copy of</text>\n");
}

DPAR_API DPARI_COLD dpar_status dpar_halo_draw(dpar_text *text, const dpar_halo_draw_desc *desc,
                                               int32_t format, dpar_why *why)
{
    dpari_hshow s;
    int32_t peer = -1, next;
    dpar_status status;
    if (!text || !desc || !desc->halo) {
        return dpari_wrong(why, "the text, the desc or its halo is NULL");
    }
    if (format != DPAR_HALO_SVG) {
        return dpari_wrong(why, "format is %d: must be DPAR_HALO_SVG", format);
    }
    status = dpari_hshow_begin(&s, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (s.peers = 0; s.peers <= DPARI_HSHOW_ROWS; s.peers++, peer = next) {
        next = -1;
        dpari_hshow_count(&s, DPAR_TRANSFER_RECV, -1, peer, &next);
        dpari_hshow_count(&s, DPAR_TRANSFER_SEND, -1, peer, &next);
        if (next < 0) {
            break;
        }
    }
    dpari_hshow_head(text, &s);
    dpari_hshow_blocks(text, &s);
    dpari_hshow_pieces(text, &s);
    dpari_hshow_table(text, &s);
    dpar_text_put(text, "</svg>\n");
    return DPAR_OK;
}
