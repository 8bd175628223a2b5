/* SPDX-License-Identifier: MIT-0 */
/* The pictures of README and guide: pictures NAME > NAME.svg. */
#include "pictures.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- drawing primitives ---- */

void put(dpar_text *t, const char *format, ...)
{
    char line[400];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    dpar_text_put(t, line);
}

/* Classes: h is the title, c centred, s small and centred, o an outline, i lines inside a box. */
void page(dpar_text *t, int wide, int high, const char *title)
{
    put(t, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\">\n", wide, high);
    put(t, "<style>text{font:13px sans-serif;fill:#222}.h{font-size:18px;font-weight:600}"
           ".c,.s{text-anchor:middle}.s{font-size:11px}.o{fill:none;stroke:#222;stroke-width:2}"
           ".i{fill:none;stroke:#fff}</style>\n");
    put(t, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", wide, high);
    put(t, "<text class=\"h\" x=\"16\" y=\"26\">%s</text>\n", title);
}

void box(dpar_text *t, int x, int y, int wide, int high, const char *colour)
{
    put(t, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/>\n", x, y, wide, high,
        colour);
}

void outline(dpar_text *t, int x, int y, int wide, int high)
{
    put(t, "<rect class=\"o\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", x, y, wide, high);
}

void word(dpar_text *t, int x, int y, const char *s)
{
    put(t, "<text x=\"%d\" y=\"%d\">%s</text>\n", x, y, s);
}

void centred(dpar_text *t, int x, int y, int small, const char *s)
{
    put(t, "<text class=\"%c\" x=\"%d\" y=\"%d\">%s</text>\n", small ? 's' : 'c', x, y, s);
}

int key(dpar_text *t, int x, int y, const char *colour, const char *name)
{
    box(t, x, y, 20, 20, colour);
    word(t, x + 26, y + 15, name);
    return x + 48 + 8 * (int)strlen(name);
}

const char *const pale[8] = {"#9BD0F5", "#F7C873", "#8FD3B6", "#F5EE9E",
                             "#E8A6C8", "#F2A07B", "#C9C9C9", "#B9B3E6"};
const char *const full[8] = {"#0072B2", "#56B4E9", "#D55E00", "#E8935A",
                             "#F0E442", "#CC79A7", "#009E73", "#999999"};

/* ---- pictures that dpar draws itself ---- */

/* 24 x 36 cells on 2 x 2 ranks, periodic in x: rank 0 and its halo of 2 cells. */
static int draw_halo(dpar_text *t, dpar_why *why)
{
    static const int32_t parts[] = {2, 2};
    static const int64_t cells[] = {24, 36};
    dpar_placement cut[2];
    dpar_halo h = {0};
    dpar_halo_draw_desc p = {0};
    dpar_mesh mesh;
    cut[0] = dpar_shard(0);
    cut[1] = dpar_shard(1);
    h.shape = DPAR_STENCIL_BOX;
    h.low[0] = h.low[1] = h.high[0] = h.high[1] = 2;
    h.periodic = 2;
    p.halo = &h;
    p.bytes = 8;
    p.title = "a grid on 2 x 2 ranks";
    return dpar_mesh_init(&mesh, "y x", parts, DPAR_ORDER_LAST_FASTEST, 4, why) < 0 ||
           dpar_layout_init(&h.grid, &mesh, 2, cells, cut, why) < 0 ||
           dpar_halo_check(&h, why) < 0 || dpar_halo_draw(t, &p, DPAR_HALO_SVG, why) < 0;
}

/* Zero bubble on a V: 4 ranks, 8 micro-batches. */
static int draw_pipeline(dpar_text *t, dpar_why *why)
{
    static int64_t memory[4096], work[4096], start[512], end[512];
    dpar_schedule_desc order = {0};
    dpar_schedule_times times = {0};
    dpar_schedule_simulate_desc how = {0};
    dpar_schedule s;
    dpar_timing timing;
    dpar_schedule_draw_desc g = {0};
    order.rule = DPAR_SCHEDULE_ZBV;
    order.ranks = 4;
    order.micro_batches = 8;
    times.forward.all = 1;
    times.input.all = 1;
    times.weight.all = 1;
    how.times = &times;
    how.start = start;
    how.end = end;
    g.schedule = &s;
    g.start = start;
    g.end = end;
    g.unit = 1;
    g.title = "a pipeline of 4 ranks";
    return dpar_schedule_generate(&s, &order, memory, sizeof memory, why) < 0 ||
           dpar_schedule_simulate(&s, &how, &timing, work, sizeof work, why) < 0 ||
           dpar_schedule_draw(t, &g, DPAR_SCHEDULE_DRAW_SVG, why) < 0;
}

/* ---- all of them ---- */

static char text[1 << 17];

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*draw)(dpar_text *t, dpar_why *why);
    } picture[] = {
        {"halo", draw_halo},     {"pipeline", draw_pipeline},   {"layouts", draw_layouts},
        {"meshes", draw_meshes}, {"moving", draw_moving},       {"memory", draw_memory},
        {"time", draw_time},     {"training", draw_training},   {"trouble", draw_trouble},
        {"points", draw_points}, {"partition", draw_partition}, {"blocks", draw_blocks}};
    enum { PICTURES = sizeof picture / sizeof *picture };
    dpar_why why = {"usage: pictures NAME, where docs/guide/NAME.svg is a picture", 0};
    dpar_text t;
    int i = 0;
    while (i < PICTURES && (argc != 2 || strcmp(argv[1], picture[i].name) != 0)) {
        i++;
    }
    dpar_text_init(&t, text, sizeof text);
    if (i == PICTURES || picture[i].draw(&t, &why) || t.used >= sizeof text) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    printf("%s%s", text, strstr(text, "</svg>") != NULL ? "" : "</svg>\n");
    return 0;
}
