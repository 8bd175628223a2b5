/* SPDX-License-Identifier: MIT-0 */
/* Tests halo_show, the picture of a halo: counts its rectangles and its table against the transfer
 * list. Keeps the picture of a tripolar grid as build/halo.svg for people to look at. Run with:
 * tests/run test index. */
#include "dpar.h"

#include "axes.h"
#include "check.h"

static char text[1 << 20];

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
    return CHECK_DONE();
}
