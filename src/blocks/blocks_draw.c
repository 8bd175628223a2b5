/* SPDX-License-Identifier: MIT-0 */
/* Draws owners of blocks, as text with a character per block and as SVG with a rectangle for each
 * run of blocks with the same owner. */
#include "blocks_draw.h"

#include "../base/base_private.h"
#include "blocks_curve.h"

enum {
    DPARI_BD_WIDTH = 960,  /* pixels of the widest picture */
    DPARI_BD_LARGEST = 24, /* pixels of a block at most */
    DPARI_BD_MARGIN = 20,  /* pixels around the pictures */
    DPARI_BD_LINE = 24     /* pixels of a line of text */
};

/* A picture while it is being drawn. */
typedef struct dpari_bd {
    dpar_text *text;
    const dpar_blocks_draw_desc *desc;
    int32_t parts[DPAR_MAX_DIMS];
    int32_t x, y;          /* the dims that run to the right and down; y is -1 if there is none */
    int32_t columns, rows; /* blocks along them */
    int64_t first;         /* number of the first block of the layer */
    int64_t stride_x, stride_y;
    int64_t side, top; /* SVG: pixels of a block, and where the present layer begins */
} dpari_bd;

/* Finds the dims to draw, and the layer. */
static DPARI_COLD dpar_status dpari_bd_open(dpari_bd *picture, dpar_why *why)
{
    const dpar_blocks_draw_desc *desc = picture->desc;
    const int32_t dims = desc->blocks->dims;
    int64_t stride = 1;
    int32_t d;
    picture->x = dims - 1;
    for (d = 0; d < dims; d++) {
        if (picture->parts[d] > 1) {
            picture->x = d;
        }
    }
    picture->y = -1;
    for (d = 0; d < dims; d++) {
        if (d != picture->x && picture->parts[d] > 1) {
            picture->y = d;
        }
    }
    picture->rows = 1;
    for (d = dims - 1; d >= 0; d--) {
        if (d == picture->x) {
            picture->columns = picture->parts[d];
            picture->stride_x = stride;
        } else if (d == picture->y) {
            picture->rows = picture->parts[d];
            picture->stride_y = stride;
        } else if (desc->layer[d] < 0 || desc->layer[d] >= picture->parts[d]) {
            return dpari_wrong(why, "layer is %ld in dim %d, but must be 0 to %d", desc->layer[d],
                               d, picture->parts[d] - 1);
        } else {
            picture->first += desc->layer[d] * stride;
        }
        stride *= picture->parts[d];
    }
    return DPAR_OK;
}

/* Returns the owner of a block of the layer, counted from the left and from the top. */
static int32_t dpari_bd_owner(const dpari_bd *picture, const int32_t *owner, int32_t row,
                              int32_t column)
{
    const int32_t from_top = picture->desc->upward ? picture->rows - 1 - row : row;
    return owner[picture->first + from_top * picture->stride_y + column * picture->stride_x];
}

/* Writes the title, or the sizes of the grid if there is none. */
static void dpari_bd_title(const dpari_bd *picture)
{
    const char *s = picture->desc->title;
    int32_t d;
    if (s == NULL) {
        for (d = 0; d < picture->desc->blocks->dims; d++) {
            dpari_text_say(picture->text, "%s%d", d > 0 ? " x " : "", picture->parts[d]);
        }
        dpari_text_say(picture->text, " blocks on %d ranks", picture->desc->blocks->ranks);
        return;
    }
    for (; *s != 0; s++) { /* without characters that have a meaning in XML */
        const char c = *s >= ' ' && *s < 127 ? *s : '?';
        dpari_text_char(picture->text, c == '&' || c == '<' || c == '>' ? '\'' : c);
    }
}

/* Writes what a layer shows: the statistics, and the layer if there are others. */
static void dpari_bd_caption(const dpari_bd *picture, const char *name,
                             const dpar_blocks_stats *stats)
{
    const char *separator = name[0] != 0 ? ": " : "";
    int32_t d;
    dpar_text_put(picture->text, name);
    if (stats != NULL) {
        dpari_text_print(picture->text,
                         "%simbalance %.3f, %ld to %ld of %ld blocks per rank, cut %ld cells",
                         separator, stats->imbalance, stats->blocks_least, stats->blocks_most,
                         stats->blocks, stats->cut);
        separator = ", ";
    }
    for (d = 0; d < picture->desc->blocks->dims; d++) {
        if (d != picture->x && d != picture->y && picture->parts[d] > 1) {
            dpari_text_say(picture->text, "%slayer %ld of %d in dim %d", separator,
                           picture->desc->layer[d], picture->parts[d], d);
            separator = ", ";
        }
    }
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Returns the character of a rank. */
static char dpari_bd_letter(int32_t rank)
{
    const int32_t n = rank % 62;
    if (rank < 0) {
        return '.';
    }
    if (n < 26) {
        return (char)('A' + n);
    }
    return (char)(n < 52 ? 'a' + n - 26 : '0' + n - 52);
}

static void dpari_bd_letters(const dpari_bd *picture, const int32_t *owner, const char *name,
                             const dpar_blocks_stats *stats)
{
    int32_t row, column;
    dpari_bd_caption(picture, name, stats);
    dpar_text_put(picture->text, "\n");
    for (row = 0; row < picture->rows; row++) {
        for (column = 0; column < picture->columns; column++) {
            dpari_text_char(picture->text,
                            dpari_bd_letter(dpari_bd_owner(picture, owner, row, column)));
        }
        dpar_text_put(picture->text, "\n");
    }
}

/* ---- SVG ------------------------------------------------------------------------------------- */

/* Draws a run of blocks of one rank. Hues of successive ranks are 137 degrees apart, the golden
 * angle, so that few of them are similar; three degrees of lightness tell similar ones apart. */
static void dpari_bd_run(const dpari_bd *picture, int32_t rank, int32_t row, int32_t column,
                         int32_t count)
{
    const int64_t side = picture->side;
    dpari_text_say(picture->text, "<rect x=\"%ld\" y=\"%ld\" width=\"%ld\" height=\"%ld\" ",
                   DPARI_BD_MARGIN + column * side, picture->top + row * side, count * side, side);
    dpari_text_say(picture->text, "fill=\"hsl(%d,%d%%,%d%%)\"><title>rank %d</title></rect>\n",
                   (int32_t)((int64_t)rank * 137 % 360), (int32_t)(60 + rank % 2 * 20),
                   (int32_t)(48 + rank % 3 * 12), rank);
}

/* Draws a layer below its caption. */
static void dpari_bd_layer(dpari_bd *picture, const int32_t *owner, const char *name,
                           const dpar_blocks_stats *stats)
{
    int32_t row, column;
    picture->top += DPARI_BD_LINE;
    dpari_text_say(picture->text, "<text x=\"%d\" y=\"%ld\">", (int32_t)DPARI_BD_MARGIN,
                   picture->top - 8);
    dpari_bd_caption(picture, name, stats);
    dpari_text_say(
        picture->text,
        "</text>\n<rect x=\"%d\" y=\"%ld\" width=\"%ld\" height=\"%ld\" fill=\"#ccc\"/>\n",
        (int32_t)DPARI_BD_MARGIN, picture->top, picture->columns * picture->side,
        picture->rows * picture->side);
    for (row = 0; row < picture->rows; row++) {
        for (column = 0; column < picture->columns;) {
            const int32_t rank = dpari_bd_owner(picture, owner, row, column);
            const int32_t from = column;
            while (column < picture->columns &&
                   dpari_bd_owner(picture, owner, row, column) == rank) {
                column++;
            }
            if (rank >= 0) {
                dpari_bd_run(picture, rank, row, from, column - from);
            }
        }
    }
    picture->top += picture->rows * picture->side;
}

/* Draws the whole SVG. */
static void dpari_bd_svg(dpari_bd *picture)
{
    const dpar_blocks_draw_desc *desc = picture->desc;
    const int64_t layers = desc->before != NULL ? 2 : 1;
    int64_t wide, high;
    picture->side = dpari_most(1, dpari_least(DPARI_BD_LARGEST, DPARI_BD_WIDTH / picture->columns));
    /* The caption needs about 600 pixels. */
    wide = 2 * DPARI_BD_MARGIN + dpari_most(picture->columns * picture->side, 600);
    high =
        2 * DPARI_BD_MARGIN + DPARI_BD_LINE * (1 + layers) + layers * picture->rows * picture->side;
    dpari_text_say(picture->text,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %ld %ld\">\n"
                   "<style>text{font:13px sans-serif;fill:#222}.h{font-size:18px;font-weight:600}"
                   "rect{shape-rendering:crispEdges}</style>\n<title>",
                   wide, high);
    dpari_bd_title(picture);
    dpar_text_put(picture->text,
                  "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    picture->top = DPARI_BD_MARGIN + DPARI_BD_LINE;
    dpari_text_say(picture->text, "<text class=\"h\" x=\"%d\" y=\"%ld\">", (int32_t)DPARI_BD_MARGIN,
                   picture->top - 8);
    dpari_bd_title(picture);
    dpar_text_put(picture->text, "</text>\n");
    if (desc->before != NULL) {
        dpari_bd_layer(picture, desc->before, "before", desc->stats_before);
    }
    dpari_bd_layer(picture, desc->owner, desc->before != NULL ? "after" : "", desc->stats);
    dpar_text_put(picture->text, "</svg>\n");
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_draw(dpar_text *text, const dpar_blocks_draw_desc *desc,
                                                 int32_t format, dpar_why *why)
{
    dpari_bd picture;
    int32_t blocks;
    dpar_status status;
    if (text == NULL || desc == NULL || desc->owner == NULL || format < DPAR_BLOCKS_DRAW_TEXT ||
        format > DPAR_BLOCKS_DRAW_SVG) {
        return dpari_wrong(why,
                           "dpar_blocks_draw: text, desc or owner is NULL, or format %d is neither "
                           "DPAR_BLOCKS_DRAW_TEXT nor DPAR_BLOCKS_DRAW_SVG",
                           format);
    }
    dpari_zero(&picture, sizeof picture);
    picture.text = text;
    picture.desc = desc;
    status = dpari_blocks_parts(desc->blocks, picture.parts, &blocks, why);
    if (status == DPAR_OK) {
        status = dpari_bd_open(&picture, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (format == DPAR_BLOCKS_DRAW_SVG) {
        dpari_bd_svg(&picture);
        return DPAR_OK;
    }
    dpari_bd_title(&picture);
    dpar_text_put(text, "\n");
    if (desc->before != NULL) {
        dpari_bd_letters(&picture, desc->before, "before", desc->stats_before);
    }
    dpari_bd_letters(&picture, desc->owner, desc->before != NULL ? "after" : "", desc->stats);
    return DPAR_OK;
}
