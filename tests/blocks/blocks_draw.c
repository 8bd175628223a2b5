/* SPDX-License-Identifier: MIT-0 */
/* Tests pictures of owners: text literally, and SVG by the area that each rank covers. Run with:
 * tests/run test blocks. */
#include "dpar_blocks.h"

#include "check.h"
#include "random.h"
#include "refused.h"

#include <stdlib.h>

static char page[400000];
static dpar_text text;
static dpar_why why;
static dpar_blocks_assign_desc grid;
static dpar_blocks_draw_desc picture;
static int32_t owner[4096];

/* Draws and returns the text. */
static const char *drawn(int32_t format)
{
    dpar_text_init(&text, page, sizeof page);
    CHECK_INT(dpar_blocks_draw(&text, &picture, format, &why), DPAR_OK);
    CHECK(text.used < sizeof page);
    return page;
}

static void start(int32_t dims, int64_t a, int64_t b, int64_t c)
{
    memset(&grid, 0, sizeof grid);
    memset(&picture, 0, sizeof picture);
    grid.dims = dims;
    grid.ranks = 70;
    grid.cells[0] = a;
    grid.cells[1] = b;
    grid.cells[2] = c;
    picture.blocks = &grid;
    picture.owner = owner;
}

static void texts(void)
{
    static const int32_t small[2][4] = {{0, 25, 26, 51}, {52, 61, -1, 62}};
    static const int32_t before[2][4] = {{0, 0, 0, 0}, {1, 1, -1, 1}};
    dpar_blocks_stats stats;
    int i;
    memcpy(owner, small, sizeof small);
    start(2, 2, 4, 0);
    CHECK_TEXT(drawn(DPAR_BLOCKS_DRAW_TEXT), "2 x 4 blocks on 70 ranks\n\nAZaz\n09.A\n");
    memset(&stats, 0, sizeof stats);
    stats.imbalance = 1.25;
    stats.blocks = 7;
    stats.blocks_most = 2;
    stats.cut = 12;
    picture.stats = &stats;
    picture.title = "a < b";
    picture.before = before[0];
    picture.upward = 1;
    CHECK_TEXT(
        drawn(DPAR_BLOCKS_DRAW_TEXT),
        "a ' b\nbefore\nBB.B\nAAAA\nafter: imbalance 1.250, 0 to 2 of 7 blocks per rank, cut 12 "
        "cells\n09.A\nAZaz\n");
    for (i = 0; i < 24; i++) {
        owner[i] = i;
    }
    start(3, 2, 3, 4);
    picture.layer[0] = 1;
    CHECK_TEXT(drawn(DPAR_BLOCKS_DRAW_TEXT),
               "2 x 3 x 4 blocks on 70 ranks\nlayer 1 of 2 in dim 0\nMNOP\nQRST\nUVWX\n");
    start(3, 2, 3, 4);
    grid.block[2] = 4; /* one block along dim 2: the first two dims are drawn */
    CHECK_TEXT(drawn(DPAR_BLOCKS_DRAW_TEXT), "2 x 3 x 1 blocks on 70 ranks\n\nABC\nDEF\n");
    start(1, 5, 0, 0);
    CHECK_TEXT(drawn(DPAR_BLOCKS_DRAW_TEXT), "5 blocks on 70 ranks\n\nABCDE\n");
    start(2, 1, 1, 0);
    CHECK_TEXT(drawn(DPAR_BLOCKS_DRAW_TEXT), "1 x 1 blocks on 70 ranks\n\nA\n");
}

/* Reads the number after `name` in a tag. */
static long number(const char *tag, const char *name)
{
    const char *at = strstr(tag, name);
    return at != NULL ? atol(at + strlen(name)) : -1;
}

/* Checks that the rectangles of each rank cover its blocks, each once. Returns their side. */
static long check_areas(const char *svg, int32_t rows, int32_t columns, const int32_t *owns)
{
    static int covered[4096];
    const char *at = svg, *tip;
    long side = 0, top = 0;
    int32_t i;
    memset(covered, 0, sizeof covered);
    while ((at = strstr(at, "<rect x=\"")) != NULL) {
        const long x = number(at, "x=\""), y = number(at, " y=\"");
        const long wide = number(at, "width=\""), high = number(at, "height=\"");
        if (strncmp(strchr(at, '>') - 12, "fill=\"#ccc\"/>", 13) == 0) { /* the background */
            side = wide / columns;
            top = y;
            CHECK_INT(high, side * rows);
            at++;
            continue;
        }
        tip = strstr(at, "<title>rank ");
        CHECK(tip != NULL && side > 0);
        for (i = 0; i < wide / side && tip != NULL; i++) {
            const long block = (y - top) / side * columns + (x - 20) / side + i;
            CHECK(block >= 0 && block < (long)rows * columns);
            CHECK_INT(owns[block], atoi(tip + 12));
            covered[block]++;
        }
        at++;
    }
    for (i = 0; i < rows * columns; i++) {
        CHECK_INT(covered[i], owns[i] >= 0);
    }
    return side;
}

static int times(const char *s, const char *word)
{
    int n = 0;
    for (s = strstr(s, word); s != NULL; s = strstr(s + 1, word)) {
        n++;
    }
    return n;
}

static void pictures(void)
{
    dpar_text none;
    int32_t turn, i;
    random_seed = 1;
    for (turn = 0; turn < 100; turn++) {
        const int32_t rows = random_int(2, 40), columns = random_int(2, 40);
        const char *svg;
        start(2, rows, columns, 0);
        for (i = 0; i < rows * columns; i++) {
            owner[i] = random_int(-1, random_int(0, 69));
        }
        svg = drawn(DPAR_BLOCKS_DRAW_SVG);
        check_areas(svg, rows, columns, owner);
        CHECK_INT(times(svg, "<title>"), times(svg, "</title>"));
        CHECK_INT(times(svg, "<text "), times(svg, "</text>"));
        CHECK_INT(times(svg, "<rect "), times(svg, "</rect>") + times(svg, "/>"));
        CHECK(strncmp(svg, "<svg xmlns=", 11) == 0 && times(svg, "</svg>\n") == 1);
    }
    start(2, 2, 2, 0);
    owner[0] = 0;
    owner[1] = 1;
    owner[2] = -1;
    owner[3] = 69;
    picture.before = owner;
    picture.title = "a & b";
    CHECK_INT(times(drawn(DPAR_BLOCKS_DRAW_SVG), "a ' b"), 2);
    CHECK_INT(times(page, ">before</text>"), 1);
    CHECK_INT(times(page, ">after</text>"), 1);
    CHECK_INT(times(page, "<title>rank 69</title>"), 2);
    CHECK_INT(check_areas(strstr(page, ">after<"), 2, 2, owner), 24);
    CHECK_INT(number(strstr(page, ">after<"), " y=\""),
              20 + 24 + 24 + 48 + 24); /* below the other */
    dpar_text_init(&none, NULL, 0);    /* counts the bytes */
    CHECK_INT(dpar_blocks_draw(&none, &picture, DPAR_BLOCKS_DRAW_SVG, &why), DPAR_OK);
    CHECK_INT(none.used, strlen(page));
}

static void refusals(void)
{
    start(3, 2, 3, 4);
    dpar_text_init(&text, page, sizeof page);
#define DRAW(format, status, words)                                                                \
    REFUSED(dpar_blocks_draw(&text, &picture, format, &why), status, words)
    DRAW(2, DPAR_E_ARG, "format 2 is neither");
    DRAW(-1, DPAR_E_ARG, "format -1 is neither");
    REFUSED(dpar_blocks_draw(NULL, &picture, 0, &why), DPAR_E_ARG, "is NULL");
    REFUSED(dpar_blocks_draw(&text, NULL, 0, &why), DPAR_E_ARG, "is NULL");
    picture.layer[0] = 2;
    DRAW(0, DPAR_E_ARG, "layer is 2 in dim 0, but must be 0 to 1");
    picture.layer[0] = -1;
    DRAW(0, DPAR_E_ARG, "layer is -1 in dim 0");
    picture.owner = NULL;
    DRAW(0, DPAR_E_ARG, "owner is NULL");
    picture.owner = owner;
    grid.cells[0] = 0;
    DRAW(0, DPAR_E_ARG, "dim 0: cells is 0");
    picture.blocks = NULL;
    DRAW(0, DPAR_E_ARG, "dims is 0");
    CHECK_INT(text.used, 0);
}

int main(void)
{
    texts();
    pictures();
    refusals();
    return CHECK_DONE();
}
