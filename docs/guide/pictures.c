/* SPDX-License-Identifier: MIT-0 */
/* The pictures of README and guide, each by dpar's own drawing: pictures halo | pipeline | memory > NAME.svg. */
#include "dpar_cost.h"
#include <stdio.h>
#include <string.h>

static char text[1 << 17];

/* 24 x 36 cells on 2 x 2 ranks, round in x: rank 0 and its halo of 2. */
static int halo(dpar_text *t, dpar_why *why)
{
    static const int32_t parts[] = {2, 2};
    static const int64_t cells[] = {24, 36};
    dpar_placement cut[2];
    dpar_halo h = {0};
    dpar_halo_picture p = {0};
    dpar_mesh mesh;
    cut[0] = dpar_shard(0), cut[1] = dpar_shard(1);
    h.shape = DPAR_STENCIL_BOX;
    h.low[0] = h.low[1] = h.high[0] = h.high[1] = 2;
    h.periodic = 2;
    p.halo = &h, p.bytes = 8, p.title = "a grid on 2 x 2 ranks";
    return dpar_mesh_init(&mesh, "y x", parts, DPAR_LAST_FASTEST, 4, why) < 0 ||
           dpar_layout_init(&h.grid, &mesh, 2, cells, cut, why) < 0 || dpar_halo_check(&h, why) < 0 ||
           dpar_halo_draw(t, &p, DPAR_HALO_SVG, why) < 0;
}

/* Zero bubble on a V: 4 ranks, 8 micro-batches. */
static int pipeline(dpar_text *t, dpar_why *why)
{
    static int64_t memory[4096], work[4096], start[512], end[512];
    dpar_order order = {0};
    dpar_times times = {0};
    dpar_simulation how = {0};
    dpar_schedule s;
    dpar_timing timing;
    dpar_gantt g = {0};
    order.rule = DPAR_ZBV, order.ranks = 4, order.micros = 8;
    times.forward.all = times.input.all = times.weight.all = 1;
    how.times = &times, how.start = start, how.end = end;
    g.schedule = &s, g.start = start, g.end = end, g.unit = 1, g.title = "a pipeline of 4 ranks";
    return dpar_schedule_generate(&s, &order, memory, sizeof memory, why) < 0 ||
           dpar_schedule_simulate(&s, &how, &timing, work, sizeof work, why) < 0 ||
           dpar_schedule_draw(t, &g, DPAR_GANTT_SVG, why) < 0;
}

/* What the terms of a plan's memory are drawn as. */
enum { WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, REST, BARS };
static int bar_of(int term)
{
    switch (term) {
    case DPAR_MEM_WEIGHTS: return WEIGHTS;
    case DPAR_MEM_GRADIENTS: return GRADIENTS;
    case DPAR_MEM_MASTER:
    case DPAR_MEM_OPTIMIZER: return OPTIMIZER;
    case DPAR_MEM_ACTIVATIONS: return ACTIVATIONS;
    default: return REST;
    }
}

static void rect(dpar_text *t, int x, int y, int wide, const char *colour)
{
    char line[200];
    snprintf(line, sizeof line, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"20\" fill=\"%s\"/>\n", x, y, wide, colour);
    dpar_text_put(t, line);
}

static void word(dpar_text *t, int x, int y, const char *s)
{
    char line[200];
    snprintf(line, sizeof line, "<text x=\"%d\" y=\"%d\">%s</text>\n", x, y, s);
    dpar_text_put(t, line);
}

/* Llama 3 8B on 8 GPUs of 80 GB: the memory of one, by term, as ZeRO cuts more and more. */
static int memory(dpar_text *t, dpar_why *why)
{
    static const char *const colour[] = {"#0072B2", "#E69F00", "#009E73", "#56B4E9", "#999999"};
    static const char *const name[] = {"weights", "gradients", "optimizer", "activations", "rest"};
    static dpar_workload work;
    dpar_cluster c;
    dpar_job job;
    dpar_model m;
    dpar_plan plan;
    dpar_strategy s;
    char line[100];
    int zero, k, x;
    job.work = &work, job.cluster = &c;
    if (dpar_model_find(&m, "llama-3-8b", why) < 0 || dpar_workload_init(&work, &m, 0, why) < 0 ||
        dpar_cluster_find(&c, "dgx-h100", why) < 0 || dpar_recipe_find(&job.recipe, "bf16", why) < 0) {
        return 1;
    }
    dpar_text_put(t, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 240\">\n"
                     "<style>text{font:13px sans-serif;fill:#222}.h{font-size:18px;font-weight:600}</style>\n"
                     "<rect width=\"860\" height=\"240\" fill=\"#fff\"/>\n"
                     "<text class=\"h\" x=\"16\" y=\"26\">the memory of one GPU of 8: Llama 3 8B</text>\n");
    for (k = 0; k < BARS; k++) {
        rect(t, 80 + 110 * k, 42, 20, colour[k]);
        word(t, 106 + 110 * k, 57, name[k]);
    }
    dpar_text_put(t, "<line x1=\"320\" x2=\"320\" y1=\"78\" y2=\"230\" stroke=\"#222\" stroke-dasharray=\"4 3\"/>\n");
    word(t, 326, 84, "80 GB");
    dpar_strategy_init(&s);
    s.dp = 8;
    for (zero = 0; zero < 4; zero++) {
        const int y = 90 + 36 * zero;
        double gb[BARS] = {0};
        dpar_status st;
        s.zero = zero;
        st = dpar_plan_price(&job, &s, 0, &plan, NULL, why);
        if (st < 0 && st != DPAR_E_MEMORY) {
            return 1;
        }
        for (k = 0; k < DPAR_MEMS; k++) {
            gb[bar_of(k)] += plan.memory.term[k] * 1e-9;
        }
        for (k = 0, x = 80; k < BARS; k++) { /* 3 pixels a GB */
            rect(t, x, y, (int)(3 * gb[k] + 0.5), colour[k]);
            x += (int)(3 * gb[k] + 0.5);
        }
        snprintf(line, sizeof line, "ZeRO-%d", zero);
        word(t, 16, y + 15, line);
        snprintf(line, sizeof line, "%.0f GB%s", plan.memory.total * 1e-9, plan.fits ? "" : ": does not fit");
        word(t, 690, y + 15, line);
    }
    dpar_text_put(t, "</svg>\n");
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc == 2 ? argv[1] : "";
    dpar_why why = {"pictures: halo, pipeline or memory"};
    dpar_text t;
    int bad = 1;
    dpar_text_init(&t, text, sizeof text);
    if (strcmp(what, "halo") == 0) {
        bad = halo(&t, &why);
    } else if (strcmp(what, "pipeline") == 0) {
        bad = pipeline(&t, &why);
    } else if (strcmp(what, "memory") == 0) {
        bad = memory(&t, &why);
    }
    if (bad || t.used >= sizeof text) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    fputs(text, stdout);
    return 0;
}
