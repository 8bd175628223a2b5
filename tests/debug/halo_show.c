/* SPDX-License-Identifier: MIT-0 */
/* Tests halo_show, the picture of a halo: counts its rectangles and its table against the transfer
 * list. Keeps the picture of a tripolar grid as build/halo.svg for people to look at. Run with:
 * tests/run test debug. */
#include "dpar_debug.h"

#include "axes.h"
#include "check.h"
#include "refused.h"

static char text[2000000];

static int32_t times(const char *what)
{
    int32_t n = 0;
    const char *at = text;
    while ((at = strstr(at, what)) != NULL) {
        n++;
        at += strlen(what);
    }
    return n;
}

/* Checks that the text is valid enough: every < is closed, and every element that opens also
 * closes. */
static void looks_like_xml(void)
{
    int32_t depth = 0;
    const char *at;
    for (at = text; *at != 0; at++) {
        if (*at == '<') {
            const char *end = strchr(at, '>');
            CHECK(end != NULL && memchr(at + 1, '<', (size_t)(end - at - 1)) == NULL);
            depth += at[1] == '/' ? -1 : end[-1] == '/' ? 0 : 1;
            CHECK(depth >= 0);
            at = end;
        }
    }
    CHECK_INT(depth, 0);
    CHECK(strstr(text, "NaN") == NULL && strstr(text, "nan") == NULL);
}

static void halo_of(dpar_halo *h, int32_t dims, const int64_t *extent, const int32_t *parts)
{
    dpar_mesh mesh;
    dpar_placement cut[3];
    int32_t d;
    memset(h, 0, sizeof *h);
    for (d = 0; d < dims; d++) {
        cut[d] = dpar_shard_by(d, DPAR_SPLIT_EVEN, 0);
        h->low[d] = h->high[d] = 2;
    }
    CHECK_INT(dpar_mesh_init(&mesh, axis_names(dims), parts, DPAR_ORDER_LAST_FASTEST, 0, NULL),
              DPAR_OK);
    CHECK_INT(dpar_layout_init(&h->grid, &mesh, dims, extent, cut, NULL), DPAR_OK);
    h->shape = DPAR_STENCIL_BOX;
}

static void pictures(const dpar_halo *h, int32_t blocks_drawn)
{
    dpar_halo_draw_desc p;
    dpar_halo_cursor w;
    dpar_transfer r;
    dpar_box mine, theirs;
    dpar_text t;
    dpar_why why;
    int32_t rank, ranks = dpar_mesh_group_size(&h->grid.mesh, ~(uint32_t)0);
    CHECK_INT(dpar_halo_check(h, &why), DPAR_OK);
    for (rank = 0; rank < ranks; rank++) {
        int32_t pieces = 0, peers = 0, moved = 0, d, away, seen[64] = {0};
        memset(&p, 0, sizeof p);
        p.halo = h;
        p.rank = rank;
        p.bytes = 8;
        p.title = "a <halo> & more";
        dpar_text_init(&t, text, sizeof text);
        CHECK_INT(dpar_halo_draw(&t, &p, DPAR_HALO_SVG, &why), DPAR_OK);
        CHECK(t.used < sizeof text);
        looks_like_xml();
        CHECK_INT(dpar_halo_first(&w, h, rank, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, NULL),
                  DPAR_OK);
        while (dpar_halo_next(&w, &r)) {
            pieces++;
            peers += seen[r.peer]++ == 0;
            dpar_halo_box(h, rank, &mine);
            dpar_halo_box(h, r.peer, &theirs);
            for (d = away = 0; d < r.dims; d++) {
                away |= d >= r.dims - 2 && mine.lo[d] + r.mine[d] != theirs.lo[d] + r.theirs[d];
            }
            moved += away;
        }
        CHECK_INT(times("class=\"in\""), pieces);
        CHECK_INT(times("class=\"out\""), pieces);
        CHECK_INT(times("class=\"w\""), moved); /* none where the piece is its own source */
        CHECK_INT(times(": receives"), peers);
        CHECK_INT(times("class=\"b\"") + times("class=\"me\""), blocks_drawn);
    }
}

/* Checks that the page is as large as its contents: no text or box is outside, and the space beyond
 * the last one is less than the table's longest line. */
static void page_of(const char *svg)
{
    double wide = 0, high = 0, right = 0, low = 0;
    const char *at;
    CHECK_INT(sscanf(strstr(svg, "viewBox"), "viewBox=\"0 0 %lf %lf\"", &wide, &high), 2);
    for (at = strstr(svg, " x=\""); at != NULL; at = strstr(at + 1, " x=\"")) {
        double x = 0, y = 0;
        CHECK_INT(sscanf(at, " x=\"%lf\" y=\"%lf\"", &x, &y), 2);
        right = x > right ? x : right;
        low = y > low ? y : low;
    }
    CHECK(right > 0 && right < wide && wide < right + 600);
    CHECK(low > 0 && low < high && high < low + 300);
}

/* Makes a halo of n x n cells on parts x parts ranks, one cell wide. */
static dpar_halo square_of(int32_t parts, int64_t n)
{
    dpar_halo h;
    int64_t extent[2];
    int32_t size[2];
    extent[0] = extent[1] = n;
    size[0] = size[1] = parts;
    halo_of(&h, 2, extent, size);
    h.low[0] = h.low[1] = h.high[0] = h.high[1] = 1;
    h.shape = DPAR_STENCIL_STAR;
    return h;
}

/* Makes a halo of six faces of n x n cells, each in one block. */
static dpar_halo cube_of(int64_t n)
{
    dpar_halo h;
    dpar_mesh m;
    dpar_placement p = dpar_shard(0);
    int64_t extent[3];
    int32_t six = 6;
    extent[0] = 6, extent[1] = extent[2] = n;
    memset(&h, 0, sizeof h);
    CHECK_INT(dpar_mesh_init(&m, "a", &six, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&h.grid, &m, 3, extent, &p, NULL), DPAR_OK);
    h.low[1] = h.low[2] = h.high[1] = h.high[2] = 1;
    h.cube = 1;
    return h;
}

/* Tests what dpar_halo_draw refuses, and rare pictures. */
static void test_refusals(void)
{
    static int32_t owner[6] = {0, 1, 2, 3, 4, 5};
    dpar_halo h = square_of(2, 8), u, v, many;
    dpar_halo_draw_desc p;
    dpar_text t;
    dpar_why why;
    int32_t k;
    memset(&p, 0, sizeof p);
    dpar_text_init(&t, text, sizeof text);
    p.halo = &h;
    REFUSED(dpar_halo_draw(NULL, &p, DPAR_HALO_SVG, &why), DPAR_E_ARG, "is NULL");
    REFUSED(dpar_halo_draw(&t, NULL, DPAR_HALO_SVG, &why), DPAR_E_ARG, "is NULL");
    p.halo = NULL;
    REFUSED(dpar_halo_draw(&t, &p, DPAR_HALO_SVG, &why), DPAR_E_ARG, "is NULL");
    p.halo = &h;
    REFUSED(dpar_halo_draw(&t, &p, 1, &why), DPAR_E_ARG, "format is 1");
    for (k = 0; k < 4; k++) {
        static const int32_t wrong[4][2] = {{-1, 0}, {2, 0}, {0, -1}, {0, 2}};
        p.across = wrong[k][0], p.down = wrong[k][1];
        REFUSED(dpar_halo_draw(&t, &p, DPAR_HALO_SVG, &why), DPAR_E_ARG, "but the grid has 2 dims");
    }
    p.across = p.down = 0;
    h.grid.dims = 0;
    CHECK_INT(dpar_halo_draw(&t, &p, DPAR_HALO_SVG, &why), DPAR_E_ARG);
    h.grid.dims = 2;
    p.title = "a < b & c > d \x01\x7f";
    p.bytes = INT64_MAX; /* saturates */
    CHECK_INT(dpar_halo_draw(&t, &p, DPAR_HALO_SVG, &why), DPAR_OK);
    CHECK(strstr(text, "a ? b ? c ? d ??: rank 0") != NULL);
    CHECK(strstr(text, "9223372036854775807 bytes in") != NULL);
    p.title = NULL, p.bytes = 0;
    t.used = t.line = t.width = 0;
    CHECK_INT(dpar_halo_draw(&t, &p, DPAR_HALO_SVG, &why), DPAR_OK);
    CHECK(strstr(text, "Halo of rank 0") != NULL);
    /* a masked block is not drawn */
    h.owner = owner;
    owner[3] = -1;
    t.used = 0;
    CHECK_INT(dpar_halo_draw(&t, &p, DPAR_HALO_SVG, &why), DPAR_OK);
    CHECK(strstr(text, ">3</text>") == NULL && strstr(text, ">2</text>") != NULL);
    owner[3] = 3;
    { /* ranks without points: one cell, on the first rank */
        dpar_halo little = square_of(2, 1);
        p.halo = &little;
        t.used = 0;
        CHECK_INT(dpar_halo_draw(&t, &p, DPAR_HALO_SVG, &why), DPAR_OK);
        CHECK(strstr(text, ">0</text>") != NULL && strstr(text, ">1</text>") == NULL);
    }
    /* a cube, whose halos arrive with dims swapped; and a pair of fields on its faces */
    u = cube_of(8);
    v = u;
    p.halo = &u;
    t.used = 0;
    CHECK_INT(dpar_halo_draw(&t, &p, DPAR_HALO_SVG, &why), DPAR_OK);
    u.points[1] = DPAR_HALO_AT_LOW_FACES, v.points[2] = DPAR_HALO_AT_LOW_FACES;
    u.partner = &v;
    t.used = 0;
    CHECK_INT(dpar_halo_draw(&t, &p, DPAR_HALO_SVG, &why), DPAR_OK);
    CHECK(t.used > 1000 && strstr(text, "</svg>") != NULL);
    /* more peers than the table has lines, and more blocks than are drawn */
    many = square_of(80, 80);
    many.low[0] = many.low[1] = many.high[0] = many.high[1] = 4;
    many.shape = DPAR_STENCIL_BOX;
    p.halo = &many, p.rank = 40 * 80 + 40;
    t.used = 0;
    CHECK_INT(dpar_halo_draw(&t, &p, DPAR_HALO_SVG, &why), DPAR_OK);
    CHECK(strstr(text, "and others") != NULL);
}

int main(void)
{
    static const int64_t extent[3] = {12, 20, 9}, low[2] = {2, 200};
    static const int32_t one[3] = {3, 1, 1}, two[3] = {2, 3, 1}, three[3] = {2, 2, 2},
                         row[2] = {1, 20};
    static const int32_t twice[6] = {0, 0, 1, 2, 3, 4};
    dpar_halo h;
    dpar_halo_draw_desc p;
    dpar_text t;
    dpar_why why;
    FILE *f;
    halo_of(&h, 1, extent, one);
    pictures(&h, 3);
    h.periodic = 1;
    pictures(&h, 3);
    halo_of(&h, 3, extent, three);
    h.periodic = 7;
    pictures(&h, 4); /* only those of the rank's own level */
    halo_of(&h, 2, extent, two);
    pictures(&h, 6);
    h.periodic = 2;
    h.folds = 1;
    h.mirror = 1;
    pictures(&h, 6);
    memset(&p, 0, sizeof p);
    p.halo = &h;
    p.rank = 4;
    p.title = "Tripolar, 12 x 20";
    dpar_text_init(&t, text, sizeof text);
    CHECK_INT(dpar_halo_draw(&t, &p, DPAR_HALO_SVG, &why), DPAR_OK);
    CHECK(strncmp(text, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", 53) == 0);
    CHECK(strstr(text, "<text class=\"h\" x=\"30.0\" y=\"35.0\">") != NULL); /* tenths of a pixel */
    page_of(text);
    f = fopen("build/halo.svg", "w");
    if (f != NULL) {
        CHECK(fputs(text, f) >= 0);
        fclose(f);
    }
    halo_of(&h, 2, low, row); /* blocks of 10, a halo of 40: the table is taller than the grid */
    h.low[1] = h.high[1] = 40;
    p.rank = 10;
    dpar_text_init(&t, text, sizeof text);
    CHECK_INT(dpar_halo_draw(&t, &p, DPAR_HALO_SVG, &why), DPAR_OK);
    CHECK_INT(times(": receives"), 8);
    page_of(text);
    halo_of(&h, 2, extent, two);
    h.periodic = 2;
    h.folds = 1;
    h.mirror = 1;
    p.rank = 6;
    t.used = 0;
    CHECK_INT(dpar_halo_draw(&t, &p, DPAR_HALO_SVG, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "rank 6 owns no points") != NULL);
    p.rank = 0;
    p.across = 2;
    CHECK_INT(dpar_halo_draw(&t, &p, DPAR_HALO_SVG, &why), DPAR_E_ARG);
    CHECK_INT(t.used, 0);
    p.across = 0;
    h.owner = twice;
    CHECK_INT(dpar_halo_draw(&t, &p, DPAR_HALO_SVG, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "rank 0 owns 2 blocks") != NULL);
    CHECK_INT(t.used, 0);
    test_refusals();
    return CHECK_DONE();
}
