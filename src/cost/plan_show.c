/* SPDX-License-Identifier: MIT-0 */
/* Writes plans as a table, in full, as CSV, JSON and SVG. All formats are appended to a dpar_text,
 * which counts what does not fit, so a caller can measure a report and then allocate it. */
#include "plan_show.h"

#include "../base/inner.h"
#include "terms.h"

/* ---- pieces --------------------------------------------------------------------------------- */

/* Appends a time in s, ms or us. */
static void dpari_show_seconds(dpar_text *t, double s)
{
    if (s >= 1.0) {
        dpari_text_print(t, s >= 100.0 ? "%.0f s" : "%.2f s", s);
    } else if (s >= 1e-3) {
        dpari_text_print(t, "%.1f ms", s * 1e3);
    } else {
        dpari_text_print(t, "%.1f us", s * 1e6);
    }
}

/* Appends a number in a readable size: 1.2k, 3.4M, 5.6G. */
static void dpari_show_count(dpar_text *t, double v)
{
    static const char unit[6][2] = {"", "k", "M", "G", "T", "P"};
    int32_t i = 0;
    while (v >= 1000.0 && i < 5) {
        v /= 1000.0;
        i++;
    }
    dpari_text_print(t, "%.3g%s", v, unit[i]);
}

/* Returns the name of what the workload counts as tokens. */
DPARI_STATIC_NOINLINE const char *dpari_show_unit(const dpar_job *job)
{
    const dpar_workload *w = job->work;
    if (w->dims == 0) {
        return "tokens";
    }
    return w->tokens <= 1.0 ? "images" : "cells";
}

/* ---- the table ------------------------------------------------------------------------------ */

/* A letter and an ANSI colour for each time term. */
static const char dpari_term_letter[DPAR_TIME_COUNT + 1] = "FBRTCEHPbidOoh";
static const int8_t dpari_term_colour[DPAR_TIME_COUNT] = {34, 36, 96, 31, 91, 35, 95,
                                                          33, 90, 37, 32, 92, 93, 97};

/* Switches to an ANSI colour, or back with 0, if the report has colours. */
DPARI_STATIC_NOINLINE void dpari_show_colour(dpar_text *t, const dpar_plan_draw_desc *r,
                                             int32_t colour)
{
    if (r->colour) {
        dpari_text_print(t, "\x1b[%dm", colour);
    }
}

/* Appends a bar of the memory against the GPU's: green, yellow from 90 % on, red beyond it. */
static int32_t dpari_show_memory_bar(dpar_text *t, const dpar_plan_draw_desc *r, double bytes,
                                     int32_t width)
{
    double share = bytes / r->job->cluster->gpu.memory_bytes;
    int32_t i, full = (int32_t)(share * width + 0.5), colour = 32;
    full = full > width ? width : full;
    if (share > 1.0) {
        colour = 31;
    } else if (share > 0.9) {
        colour = 33;
    }
    dpari_show_colour(t, r, colour);
    for (i = 0; i < width; i++) {
        dpari_text_char(t, i < full ? '#' : '.');
    }
    dpari_show_colour(t, r, 0);
    return width;
}

/* Appends a bar with a letter for each share of the longest step that a term takes. Ends are
 * rounded, so the letters add up. *shown gets the bits of the terms in it. Returns its width. */
static int32_t dpari_show_time_bar(dpar_text *t, const dpar_plan_draw_desc *r,
                                   const dpar_step_cost *s, double longest, int32_t width,
                                   uint32_t *shown)
{
    double sum = 0.0;
    int32_t i, at = 0;
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        int32_t end;
        sum += s->term[i];
        end = (int32_t)(sum / longest * width + 0.5);
        if (end > at) {
            dpari_show_colour(t, r, dpari_term_colour[i]);
            *shown |= 1u << i;
            for (; at < end && at < width; at++) {
                dpari_text_char(t, dpari_term_letter[i]);
            }
        }
    }
    dpari_show_colour(t, r, 0);
    return at;
}

static void dpari_show_blank(dpar_text *t, int32_t n)
{
    for (; n > 0; n--) {
        dpari_text_char(t, ' ');
    }
}

/* Appends the notes of the model, one line each. */
static void dpari_show_notes(dpar_text *t, const char *note)
{
    int first = 1;
    for (; *note != 0; note++) {
        dpar_text_put(t, first ? "note: " : "");
        dpari_text_char(t, *note);
        first = *note == '\n';
    }
    dpar_text_put(t, first ? "" : "\n");
}

/* Appends the lines above the table: model, machine, batch, software, notes. */
static void dpari_show_head(dpar_text *t, const dpar_plan_draw_desc *r)
{
    const dpar_workload *w = r->job->work;
    const dpar_cluster *c = r->job->cluster;
    dpari_text_print(t, "%s  ", w->name);
    if (w->params > 0.0) {
        dpari_show_count(t, w->params);
        dpar_text_put(t, " parameters, ");
    }
    dpari_show_count(t, w->tokens);
    dpari_text_print(
        t,
        " %s a sample\non  %d x %s (%d node%s of %d, %.0f GB/s inside, %.0f GB/s a node "
        "outside)\nglobal batch ",
        dpari_show_unit(r->job), dpari_cluster_gpus(c), c->gpu.name, c->nodes,
        c->nodes == 1 ? "" : "s", c->gpus_per_node, c->link_Bps * 1e-9,
        c->nics * c->nic_Bps * 1e-9);
    if (r->global_batch > 0) {
        dpari_text_int(t, r->global_batch);
    } else {
        dpar_text_put(t, "free");
    }
    dpari_text_print(t, ", %s precision, %s software", r->job->recipe.name,
                     dpari_stack_name(w->stack_version));
    if (w->heads > 0) {
        dpari_text_print(t, ", %s attention", dpari_attention_name(w->attention));
    }
    if (w->vocab > 0 && w->trains) {
        dpari_text_print(t, ", %s loss", dpari_loss_name(w->loss));
    }
    dpari_text_char(t, '\n');
    dpari_show_notes(t, w->note);
    dpari_text_char(t, '\n');
}

/* Appends the i-th plan: memory and its bar, time and its bar, rate, MFU, strategy. */
static void dpari_show_row(dpar_text *t, const dpar_plan_draw_desc *r, int32_t i, double longest,
                           uint32_t *shown)
{
    const dpar_plan *p = &r->plan[i];
    char cell[96];
    dpar_text c;
    dpari_text_print(t, "%3d  %6.1f GB ", i + 1, p->memory.total * 1e-9);
    (void)dpari_show_memory_bar(t, r, p->memory.total, 12);
    dpar_text_init(&c, cell, sizeof(cell));
    dpari_show_seconds(&c, p->step.total);
    dpari_text_print(t, "%10s ", cell);
    dpari_show_blank(t, 37 - dpari_show_time_bar(t, r, &p->step, longest, 36, shown));
    dpar_text_init(&c, cell, sizeof(cell));
    dpari_show_count(&c, p->step.tokens_per_s_gpu);
    dpari_text_print(t, "%6s/s %5.1f%%  ", cell, 100.0 * p->step.mfu);
    dpar_strategy_write(&p->strategy, t);
    dpar_text_put(t, p->fits ? "\n" : "  DOES NOT FIT\n");
}

/* Appends the meaning of the bars: of the letters that occur, and of the capacity. */
static void dpari_show_legend(dpar_text *t, const dpar_plan_draw_desc *r, uint32_t shown)
{
    int32_t i;
    dpar_text_put(t, "\ntime bar:");
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        if ((shown >> i & 1u) != 0) {
            dpari_text_char(t, ' ');
            dpari_show_colour(t, r, dpari_term_colour[i]);
            dpari_text_char(t, dpari_term_letter[i]);
            dpari_show_colour(t, r, 0);
            dpari_text_print(t, " %s", dpar_time_name(i));
        }
    }
    dpari_text_print(t, "\nmemory bar: share of %.0f GB; MFU: %s\n",
                     r->job->cluster->gpu.memory_bytes * 1e-9,
                     r->job->work->heads > 0 ? "attention counted in full, vocabulary counted, "
                                               "recomputation not, of the dense peak"
                                             : "of the dense matrix peak");
}

static void dpari_report_text(dpar_text *t, const dpar_plan_draw_desc *r)
{
    double longest = 1e-30;
    uint32_t shown = 0;
    int32_t i;
    dpari_show_head(t, r);
    for (i = 0; i < r->plan_count; i++) {
        longest = dpari_mostf(longest, r->plan[i].step.total);
    }
    dpari_text_print(
        t, "  #     memory a GPU           step time                                     %s%s",
        dpari_show_unit(r->job),
        r->job->work->dims > 0 ? "/GPU    MFU  strategy\n" : "/GPU   MFU  strategy\n");
    for (i = 0; i < r->plan_count; i++) {
        dpari_show_row(t, r, i, longest, &shown);
    }
    dpari_show_legend(t, r, shown);
    if (r->note != NULL) {
        dpari_text_print(t, "%s\n", r->note);
    }
    if (r->seconds > 0.0) {
        dpari_show_count(t, (double)r->evaluated);
        dpar_text_put(t, " configurations priced in ");
        dpari_show_seconds(t, r->seconds);
        dpari_text_char(t, '\n');
    }
    for (i = 0; i < r->rejected_count; i++) {
        dpari_text_print(t, "%s  %s\n", i == 0 ? "\nwhy not its neighbours?\n" : "",
                         r->rejected[i].text);
    }
}

static void dpari_report_line(dpar_text *t, const dpar_plan_draw_desc *r)
{
    const dpar_plan *p = &r->plan[0];
    const char *verdict = "";
    if (r->plan_count < 1) {
        dpar_text_put(t, "nothing fits\n");
        return;
    }
    if (!p->fits) {
        verdict = ": does not fit";
    } else if (p->memory.upper > r->job->cluster->gpu.memory_bytes) {
        verdict = ": close";
    }
    dpar_strategy_write(&p->strategy, t);
    dpar_text_put(t, ": ");
    dpari_show_seconds(t, p->step.total);
    dpar_text_put(t, " a step, ");
    dpari_show_count(t, p->step.tokens_per_s_gpu);
    dpari_text_print(t, " %s/s a GPU, MFU %.1f %%, %.1f of %.1f GB%s\n", dpari_show_unit(r->job),
                     100.0 * p->step.mfu, p->memory.total * 1e-9,
                     r->job->cluster->gpu.memory_bytes * 1e-9, verdict);
}

/* ---- one plan in full ----------------------------------------------------------------------- */

/* Appends a term with its share of the whole and a bar, unless the share is below 0.05 %. */
static void dpari_show_term(dpar_text *t, const char *name, double v, double whole, double unit,
                            const char *unit_name)
{
    int32_t i;
    if (!(v > 0.0005 * whole || v < -0.0005 * whole)) {
        return;
    }
    dpari_text_print(t, "  %s", name);
    dpari_text_column(t, 18);
    dpari_text_print(t, v / unit < 10.0 ? "%10.3f %s%7.1f %% " : "%10.1f %s%7.1f %% ", v / unit,
                     unit_name, 100.0 * v / whole);
    for (i = 0; i < (int32_t)(40.0 * v / whole + 0.5) && i < 40; i++) {
        dpari_text_char(t, '#');
    }
    dpari_text_char(t, '\n');
}

/* Appends the first plans of the front of time against memory, the fastest first. */
static void dpari_show_front(dpar_text *t, const dpar_plan_draw_desc *r)
{
    int32_t i;
    for (i = 0; i < r->front_count && i < 8; i++) {
        dpari_text_print(t, "%s  %.1f GB  ",
                         i == 0 ? "\nless memory, more time (nothing is both faster and smaller)\n"
                                : "",
                         r->front[i].memory.total * 1e-9);
        dpari_show_seconds(t, r->front[i].step.total);
        dpar_text_put(t, "  ");
        dpar_strategy_write(&r->front[i].strategy, t);
        dpari_text_char(t, '\n');
    }
}

static void dpari_report_explain(dpar_text *t, const dpar_plan_draw_desc *r)
{
    const dpar_plan *p = &r->plan[0];
    int32_t i;
    if (r->plan_count < 1) {
        return;
    }
    dpari_show_front(t, r);
    dpar_text_put(t, "\nthe first plan in full: ");
    dpar_strategy_write(&p->strategy, t);
    dpari_text_print(t, "\n\nmemory of pipeline rank %d, the worst, %s\n", p->memory.worst,
                     p->memory.moment == DPAR_MEMORY_PEAK_LOSS ? "at the loss"
                                                               : "in a layer's backward");
    for (i = 0; i < DPAR_MEMORY_COUNT; i++) {
        dpari_show_term(t, dpar_memory_name(i), p->memory.term[i], p->memory.total, 1e9, "GB");
    }
    dpari_show_term(t, "total", p->memory.total, p->memory.total, 1e9, "GB");
    dpari_text_print(t,
                     "  between %.1f and %.1f GB (allocator 3 to 10 %%); first stage %.1f, last "
                     "%.1f GB\n\ntime of a step\n",
                     p->memory.lower * 1e-9, p->memory.upper * 1e-9, p->memory.first * 1e-9,
                     p->memory.last * 1e-9);
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        dpari_show_term(t, dpar_time_name(i), p->step.term[i], p->step.total, 1e-3, "ms");
    }
    dpari_show_term(t, "total", p->step.total, p->step.total, 1e-3, "ms");
    dpari_text_print(t,
                     "\nsent by a GPU in a step: %.2f GB over in-node links, %.2f GB over the "
                     "network (%.2f GB of it all by data parallelism); ",
                     p->step.link_bytes * 1e-9, p->step.nic_bytes * 1e-9, p->step.dp_bytes * 1e-9);
    dpari_show_seconds(t, p->step.dp_hidden_s);
    dpar_text_put(t, " of communication hidden behind compute\n");
}

/* ---- JSON ----------------------------------------------------------------------------------- */

/* Appends a JSON string: in quotes, with escapes. */
static void dpari_json_text(dpar_text *t, const char *s)
{
    static const char hex[17] = "0123456789abcdef";
    dpari_text_char(t, '"');
    for (; *s != 0; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 0x20u) {
            dpar_text_put(t, "\\u00");
            dpari_text_char(t, hex[c >> 4]);
            dpari_text_char(t, hex[c & 15u]);
        } else {
            dpar_text_put(t, c == '"' || c == '\\' ? "\\" : "");
            dpari_text_char(t, *s);
        }
    }
    dpari_text_char(t, '"');
}

/* Appends all terms of memory or of time, in GB or in seconds. */
static void dpari_json_terms(dpar_text *t, const char *(*name)(int32_t i), const double *term,
                             int32_t terms, double unit)
{
    int32_t i;
    for (i = 0; i < terms; i++) {
        dpari_text_print(t, "\"%s\": %.9G, ", name(i), term[i] * unit);
    }
}

/* Appends a name, its string and the text `then`. */
static void dpari_json_word_of(dpar_text *t, const char *name, const char *v, const char *then)
{
    dpari_text_print(t, "\"%s\": ", name);
    dpari_json_text(t, v);
    dpar_text_put(t, then);
}

static void dpari_json_strategy(dpar_text *t, const dpar_strategy *s)
{
    char recompute[48], offload[48], overlap[48], tiles[48];
    dpar_text w;
    dpar_text_init(&w, recompute, sizeof(recompute));
    dpari_write_recompute(&w, s->recompute);
    dpar_text_init(&w, offload, sizeof(offload));
    dpari_write_bits(&w, "", s->offload, 1);
    dpar_text_init(&w, overlap, sizeof(overlap));
    if (s->overlap & DPAR_OVERLAP_DEFAULT) {
        dpar_text_put(&w, "default");
    } else {
        dpari_write_bits(&w, "", s->overlap, 0);
    }
    dpar_text_init(&w, tiles, sizeof(tiles));
    dpari_write_tiles(&w, s->tiles);
    dpari_text_print(
        t,
        "{\"dp\": %d, \"shard\": %d, \"zero\": %d, \"tp\": %d, \"sp\": %d, \"cp\": %d, "
        "\"cp_kind\": \"%s\", \"pp\": %d, \"vp\": %d, \"ep\": %d, \"etp\": %d, \"micro_batch\": "
        "%d, "
        "\"micro_batches\": %d, \"recompute\": \"%s\", \"recompute_layers\": %d, "
        "\"schedule\": \"%s\", \"offload\": \"%s\", \"overlap\": \"%s\", \"tiles\": \"%s\"}",
        s->dp, s->shard > 0 ? s->shard : s->dp, s->zero, s->tp, s->sp, s->cp,
        dpari_cp_name(s->cp_kind), s->pp, s->vp, s->ep, s->etp, s->micro_batch, s->micro_batches,
        recompute, s->recompute_layers, dpar_schedule_name(s->schedule), offload, overlap, tiles);
}

/* Appends two strings, which name the largest terms of memory and of time. */
static void dpari_json_reasons(dpar_text *t, const dpar_plan_draw_desc *r, const dpar_plan *p)
{
    int32_t i, most_time = 0, most_memory = 0;
    for (i = 1; i < DPAR_TIME_COUNT; i++) {
        most_time = p->step.term[i] > p->step.term[most_time] ? i : most_time;
    }
    for (i = 1; i < DPAR_MEMORY_COUNT; i++) {
        most_memory = p->memory.term[i] > p->memory.term[most_memory] ? i : most_memory;
    }
    dpari_text_print(
        t,
        "\"%.0f %% of the GPU's memory at worst, mostly %s\", \"%.0f %% of the step is "
        "%s, the bubble %.1f %%\"",
        100.0 * p->memory.upper / r->job->cluster->gpu.memory_bytes, dpar_memory_name(most_memory),
        100.0 * p->step.term[most_time] / p->step.total, dpar_time_name(most_time),
        100.0 * p->step.term[DPAR_TIME_BUBBLE] / p->step.total);
}

/* Appends the memory of one pipeline rank by term. */
static void dpari_json_stage(dpar_text *t, const dpar_job *job, const dpar_plan *p,
                             const char *name, int32_t rank)
{
    dpar_memory_usage m;
    dpar_memory_stage(job, &p->strategy, rank, &m);
    dpari_text_print(t, "     \"%s\": {", name);
    dpari_json_terms(t, dpar_memory_name, m.term, DPAR_MEMORY_COUNT, 1e-9);
    dpari_text_print(t, "\"total\": %.9G},\n", m.total * 1e-9);
}

static void dpari_json_plan(dpar_text *t, const dpar_plan_draw_desc *r, const dpar_plan *p)
{
    const dpar_step_cost *s = &p->step;
    const dpar_memory_usage *m = &p->memory;
    int32_t i;
    dpar_text_put(t, "    {\"strategy\": ");
    dpari_json_strategy(t, &p->strategy);
    dpar_text_put(t, ",\n     \"memory_gb\": {");
    dpari_json_terms(t, dpar_memory_name, m->term, DPAR_MEMORY_COUNT, 1e-9);
    dpari_text_print(t, "\"total\": %.9G},\n", m->total * 1e-9);
    if (p->strategy.pp > 1) {
        dpari_json_stage(t, r->job, p, "memory_first_stage_gb", 0);
        dpari_json_stage(t, r->job, p, "memory_last_stage_gb", p->strategy.pp - 1);
    }
    dpari_text_print(t,
                     "     \"memory_peak\": {\"stage\": %d, \"moment\": \"%s\"},\n     "
                     "\"memory_stages_gb\": [",
                     m->worst, m->moment == DPAR_MEMORY_PEAK_LOSS ? "loss" : "layer");
    for (i = 0; i < p->strategy.pp; i++) {
        dpar_memory_usage stage;
        dpar_memory_stage(r->job, &p->strategy, i, &stage);
        dpari_text_print(t, "%s%.9g", i > 0 ? ", " : "", stage.total * 1e-9);
    }
    dpari_text_print(t,
                     "],\n     \"memory_range_gb\": {\"allocated\": %.9G, \"lower\": %.9G, "
                     "\"upper\": %.9G, \"first_stage\": %.9G, \"last_stage\": %.9G, "
                     "\"host\": %.9G},\n     \"time_s\": {",
                     m->allocated * 1e-9, m->lower * 1e-9, m->upper * 1e-9, m->first * 1e-9,
                     m->last * 1e-9, m->host * 1e-9);
    dpari_json_terms(t, dpar_time_name, s->term, DPAR_TIME_COUNT, 1.0);
    dpari_text_print(
        t,
        "\"total\": %.9G},\n     \"tokens_per_s_per_gpu\": %.9G, \"samples_per_step\": %.9G, "
        "\"tflops_per_gpu\": %.9G, \"mfu\": %.9G, \"mfu_causal\": %.9G, \"hfu\": %.9G, "
        "\"bubble\": %.9G, \"link_gb\": %.9G, \"nic_gb\": %.9G, \"fits\": %s, \"reasons\": [",
        s->total, s->tokens_per_s_gpu, s->samples, s->tflops_gpu, s->mfu, s->mfu_causal, s->hfu,
        s->bubble, s->link_bytes * 1e-9, s->nic_bytes * 1e-9, p->fits ? "true" : "false");
    dpari_json_reasons(t, r, p);
    dpar_text_put(t, "]}");
}

static void dpari_json_rejected(dpar_text *t, const dpar_plan_draw_desc *r)
{
    int32_t i;
    dpar_text_put(t, "  \"rejected\": [");
    for (i = 0; i < r->rejected_count; i++) {
        dpar_text_put(t, i > 0 ? ",\n    {" : "\n    {");
        dpari_json_word_of(t, "rule", dpar_strategy_rule_name(r->rejected[i].rule), ", ");
        dpari_json_word_of(t, "text", r->rejected[i].text, ", ");
        dpari_text_print(t, "\"time_s\": %.9G, \"gb_over\": %.9G, \"strategy\": ",
                         r->rejected[i].seconds, r->rejected[i].bytes_over * 1e-9);
        dpari_json_strategy(t, &r->rejected[i].strategy);
        dpar_text_put(t, "}");
    }
    dpar_text_put(t, "],\n  \"rejected_by_rule\": {");
    for (i = 1; i < DPAR_STRATEGY_RULE_COUNT && r->rejected_by_rule != NULL; i++) {
        dpari_text_print(t, "\"%s\": %ld%s", dpar_strategy_rule_name(i), r->rejected_by_rule[i],
                         i + 1 < DPAR_STRATEGY_RULE_COUNT ? ", " : "");
    }
    dpar_text_put(t, "},\n");
}

/* Appends the error of a constant. It is known if the constant is a default; `points` is the number
 * of measured points that replace it. */
static DPARI_COLD void dpari_json_error(dpar_text *t, double error, int32_t points)
{
    if (points > 0 || !(error > 0.0)) {
        dpar_text_put(t, points > 0 ? " none: measured" : " not known: as given");
    } else {
        dpari_text_print(t, " %.0f %%", 100.0 * error);
    }
}

/* Appends what is assumed: software, precision, machine, calibration, notes, definitions. */
static void dpari_json_assumptions(dpar_text *t, const dpar_plan_draw_desc *r)
{
    const dpar_workload *w = r->job->work;
    const dpar_cluster *c = r->job->cluster;
    const dpar_recipe *recipe = &r->job->recipe;
    char line[400];
    dpar_text l;
    dpar_text_init(&l, line, sizeof(line));
    dpari_text_print(&l, "machine: %s, %s; GPU %s, %s", c->name, c->source, c->gpu.name,
                     c->gpu.source);
    dpari_text_print(t,
                     "  \"assumptions\": [\n    \"software: %s, attention: %s, loss: %s\",\n    "
                     "\"precision %s: bytes a parameter = weight %.3g + gradient %.3g + master "
                     "%.3g + moments %.3g\",\n    ",
                     dpari_stack_name(w->stack_version), dpari_attention_name(w->attention),
                     dpari_loss_name(w->loss), recipe->name, recipe->weight, recipe->gradient,
                     recipe->master, recipe->moments);
    dpari_json_text(t, line);
    dpar_text_put(t, ",\n    ");
    dpar_text_init(&l, line, sizeof(line));
    dpari_text_print(&l, "calibration: %s; one standard deviation of products", c->cal.source);
    dpari_json_error(&l, c->cal.error[DPAR_CAL_GEMM], 0);
    dpar_text_put(&l, ", of links");
    dpari_json_error(&l, c->cal.error[DPAR_CAL_LINK_SHARE], c->curve[DPAR_CURVE_LINK].count);
    dpar_text_put(&l, ", of the network");
    dpari_json_error(&l, c->cal.error[DPAR_CAL_NET_SHARE], c->curve[DPAR_CURVE_NET].count);
    dpari_text_print(&l, "; activations of %d bytes", w->element);
    dpari_json_text(t, line);
    if (w->note[0] != 0) {
        dpar_text_put(t, ",\n    ");
        dpari_json_text(t, w->note);
    }
    dpar_text_put(t, ",\n    \"mfu: full attention, vocabulary counted, recomputation not, of the "
                     "dense peak of the matrix format; mfu_causal: causal attention at half; hfu: "
                     "with recomputation; GB = 1e9 bytes\"\n  ]\n");
}

/* Appends the front of time against memory: no other plan is both faster and smaller. Fastest
 * first. */
static void dpari_json_front(dpar_text *t, const dpar_plan_draw_desc *r)
{
    int32_t i;
    dpar_text_put(t, "  \"pareto\": [");
    for (i = 0; i < r->front_count; i++) {
        dpari_text_print(t,
                         "%s    {\"time_s\": %.9G, \"memory_gb\": %.9G, \"gpus\": %d, "
                         "\"strategy\": ",
                         i > 0 ? ",\n" : "\n", r->front[i].step.total,
                         r->front[i].memory.total * 1e-9, dpari_cluster_gpus(r->job->cluster));
        dpari_json_strategy(t, &r->front[i].strategy);
        dpari_text_char(t, '}');
    }
    dpar_text_put(t, "],\n");
}

static void dpari_json_advice(dpar_text *t, const dpar_advice *a)
{
    dpar_text_put(t, "  \"recommendation\": {");
    dpari_json_word_of(t, "name", a->name, ",\n    ");
    dpari_json_word_of(t, "why", a->why, ",\n    ");
    dpari_json_word_of(t, "runner_up", a->runner_up, ",\n    ");
    dpari_json_word_of(t, "fastest", a->fastest, ",\n    ");
    dpari_text_print(t, "\"slower\": %.9G,\n    ", a->slower);
    dpari_json_word_of(t, "warnings", a->warning_text, "},\n");
}

static void dpari_report_json(dpar_text *t, const dpar_plan_draw_desc *r)
{
    int32_t i;
    dpar_text_put(t, "{\n  ");
    dpari_json_word_of(t, "model", r->job->work->name, ", ");
    dpari_text_print(t,
                     "\"parameters\": %ld, \"gpus\": %d, \"global_batch\": %ld,\n  \"plans\": [\n",
                     (int64_t)dpari_leastf(r->job->work->params, 9e18),
                     dpari_cluster_gpus(r->job->cluster), r->global_batch);
    for (i = 0; i < r->plan_count; i++) {
        dpari_json_plan(t, r, &r->plan[i]);
        dpar_text_put(t, i + 1 < r->plan_count ? ",\n" : "\n");
    }
    dpar_text_put(t, "  ],\n");
    dpari_json_front(t, r);
    if (r->advice != NULL) {
        dpari_json_advice(t, r->advice);
    }
    if (r->note != NULL) {
        dpar_text_put(t, "  ");
        dpari_json_word_of(t, "message", r->note, ",\n");
    }
    dpari_json_rejected(t, r);
    dpari_text_print(t, "  \"evaluated\": %ld, \"seconds\": %.9G,\n", r->evaluated, r->seconds);
    dpari_json_assumptions(t, r);
    dpar_text_put(t, "}\n");
}

/* ---- CSV ------------------------------------------------------------------------------------ */

static void dpari_report_csv(dpar_text *t, const dpar_plan_draw_desc *r)
{
    int32_t i, k;
    dpar_text_put(t, "rank,strategy,fits");
    for (k = 0; k < DPAR_MEMORY_COUNT; k++) {
        dpari_text_print(t, ",%s_gb", dpar_memory_name(k));
    }
    dpar_text_put(t, ",total_gb,upper_gb");
    for (k = 0; k < DPAR_TIME_COUNT; k++) {
        dpari_text_print(t, ",%s_s", dpar_time_name(k));
    }
    dpar_text_put(t, ",total_s,tokens_per_s_per_gpu,tflops_per_gpu,mfu\n");
    for (i = 0; i < r->plan_count; i++) {
        const dpar_plan *p = &r->plan[i];
        dpari_text_print(t, "%d,\"", i + 1);
        dpar_strategy_write(&p->strategy, t);
        dpar_text_put(t, p->fits ? "\",1" : "\",0");
        for (k = 0; k < DPAR_MEMORY_COUNT; k++) {
            dpari_text_print(t, ",%.7g", p->memory.term[k] * 1e-9);
        }
        dpari_text_print(t, ",%.7g,%.7g", p->memory.total * 1e-9, p->memory.upper * 1e-9);
        for (k = 0; k < DPAR_TIME_COUNT; k++) {
            dpari_text_print(t, ",%.7g", p->step.term[k]);
        }
        dpari_text_print(t, ",%.7g,%.7g,%.5g,%.5g\n", p->step.total, p->step.tokens_per_s_gpu,
                         p->step.tflops_gpu, p->step.mfu);
    }
}

/* ---- SVG ------------------------------------------------------------------------------------ */

/* Okabe and Ito's colours, which can be distinguished with any colour vision, and tints of them. */
static const char dpari_svg_colour[DPAR_TIME_COUNT][8] = {
    "#0072B2", "#56B4E9", "#9AD1F0", "#D55E00", "#E8935A", "#CC79A7", "#E3AFCC",
    "#F0E442", "#BBBBBB", "#777777", "#009E73", "#E69F00", "#F4CE7F", "#333333"};

DPARI_STATIC_NOINLINE void dpari_svg_rect(dpar_text *t, double x, double y, double w, double h,
                                          const char *fill)
{
    dpari_text_print(t,
                     "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
                     x, y, w, h, fill);
}

/* Opens a text; the caller appends the text and "</text>". */
DPARI_STATIC_NOINLINE void dpari_svg_open(dpar_text *t, double x, double y, const char *style)
{
    dpari_text_print(t, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, style);
}

/* Appends a text with &, < and > as entities. */
static void dpari_svg_escaped(dpar_text *t, const char *s)
{
    for (; *s != 0; s++) {
        if (*s == '&') {
            dpar_text_put(t, "&amp;");
        } else if (*s == '<') {
            dpar_text_put(t, "&lt;");
        } else if (*s == '>') {
            dpar_text_put(t, "&gt;");
        } else {
            dpari_text_char(t, *s);
        }
    }
}

static void dpari_svg_text(dpar_text *t, double x, double y, const char *style, const char *s)
{
    dpari_svg_open(t, x, y, style);
    dpari_svg_escaped(t, s);
    dpar_text_put(t, "</text>\n");
}

static void dpari_svg_head(dpar_text *t, const dpar_plan_draw_desc *r, double height)
{
    const dpar_cluster *c = r->job->cluster;
    dpari_text_print(
        t,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1120 %.0f\" width=\"1120\" "
        "height=\"%.0f\">\n<style>text{font-family:system-ui,Helvetica,Arial,sans-serif;fill:#222}"
        ".h{font-size:20px;font-weight:600}.s{font-size:13px;fill:#555}"
        ".l{font-size:12px}.m{font-size:12px;font-family:ui-monospace,Menlo,monospace}"
        ".e{font-size:12px;text-anchor:end}.c{font-size:12px;text-anchor:middle}"
        "</style>\n",
        height, height);
    dpari_svg_rect(t, 0, 0, 1120, height, "#ffffff");
    dpari_svg_open(t, 24, 36, "h");
    dpari_svg_escaped(t, r->job->work->name);
    dpari_text_print(t, " on %d x ", dpari_cluster_gpus(c));
    dpari_svg_escaped(t, c->gpu.name);
    dpar_text_put(t, "</text>\n");
    dpari_svg_open(t, 24, 58, "s");
    dpari_show_count(t, r->job->work->params);
    dpari_text_print(t, " parameters, %d nodes of %d, global batch %ld, ", c->nodes,
                     c->gpus_per_node, r->global_batch);
    dpari_svg_escaped(t, r->job->recipe.name);
    dpar_text_put(t, " precision. Predicted by dpar.</text>\n");
}

/* Draws the colour and the name of each term that takes at least 0.4 % of some plan's step. */
static void dpari_svg_legend(dpar_text *t, const dpar_plan_draw_desc *r, double y)
{
    double x = 24;
    int32_t i, k;
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        int32_t seen = 0;
        for (k = 0; k < r->plan_count; k++) {
            seen = seen || r->plan[k].step.term[i] > 0.004 * r->plan[k].step.total;
        }
        if (seen) {
            dpari_svg_rect(t, x, y - 10, 12, 12, dpari_svg_colour[i]);
            dpari_svg_text(t, x + 17, y, "l", dpar_time_name(i));
            x += 34.0 + 7.2 * (double)dpari_length(dpar_time_name(i));
        }
    }
}

/* Draws one plan: its name, the time by term, the memory against the capacity. */
static void dpari_svg_plan(dpar_text *t, const dpar_plan_draw_desc *r, int32_t i, double y,
                           double longest)
{
    const dpar_plan *p = &r->plan[i];
    double x = 24, capacity = r->job->cluster->gpu.memory_bytes, share;
    int32_t k;
    dpari_svg_open(t, x, y, "m");
    dpari_text_print(t, "%d  ", i + 1);
    dpar_strategy_write(&p->strategy, t);
    dpar_text_put(t, "</text>\n");
    for (k = 0; k < DPAR_TIME_COUNT; k++) {
        double w = 600.0 * p->step.term[k] / longest;
        if (w > 0.3) {
            dpari_svg_rect(t, x, y + 7, w, 18, dpari_svg_colour[k]);
            x += w;
        }
    }
    dpari_svg_open(t, x + 8, y + 21, "l");
    dpari_show_seconds(t, p->step.total);
    dpar_text_put(t, "</text>\n");
    share = p->memory.total / capacity;
    dpari_svg_rect(t, 760, y + 7, 200, 18, "#eeeeee");
    dpari_svg_rect(t, 760, y + 7, 200.0 * (share < 1.0 ? share : 1.0), 18,
                   p->fits ? "#009E73" : "#D55E00");
    dpari_svg_open(t, 970, y + 21, "l");
    dpari_text_print(t, "%.1f GB   MFU %.1f %%</text>\n", p->memory.total * 1e-9,
                     100.0 * p->step.mfu);
}

static void dpari_svg_axis(dpar_text *t, double x, double y, double v, const char *style)
{
    dpari_svg_open(t, x, y, style);
    dpari_text_print(t, "%.3g</text>\n", v);
}

/* Draws step time over memory. No other plan is better than a point in both. */
static void dpari_svg_front(dpar_text *t, const dpar_plan_draw_desc *r, double top)
{
    double x0 = 90, y0 = top + 40, w = 900, h = 200, most = 0.0, capacity, px = 0.0, py = 0.0;
    int32_t i;
    capacity = r->job->cluster->gpu.memory_bytes;
    for (i = 0; i < r->front_count; i++) {
        most = dpari_mostf(most, r->front[i].step.total / r->front[i].step.samples);
    }
    dpari_svg_text(t, 24, top + 18, "s",
                   "Pareto front: no configuration is both faster and smaller than a point here");
    dpari_svg_rect(t, x0, y0, w, h, "#f7f7f7");
    for (i = 0; i <= 4; i++) {
        dpari_svg_rect(t, x0, y0 + h * i / 4.0, w, 0.7, "#cccccc");
        dpari_svg_axis(t, x0 - 8, y0 + h * (1.0 - i / 4.0) + 4, 1e3 * most * i / 4.0, "e");
        dpari_svg_axis(t, x0 + w * i / 4.0, y0 + h + 18, capacity * 1e-9 * i / 4.0, "c");
    }
    for (i = 0; i < r->front_count; i++) {
        double x = x0 + w * r->front[i].memory.total / capacity;
        double y = y0 + h - h * r->front[i].step.total / r->front[i].step.samples / most;
        if (i > 0) {
            dpari_text_print(
                t,
                "<line stroke=\"#0072B2\" stroke-width=\"1.5\" x1=\"%.1f\" y1=\"%.1f\" "
                "x2=\"%.1f\" y2=\"%.1f\"/>\n",
                px, py, x, y);
        }
        px = x;
        py = y;
        dpari_text_print(t, "<circle r=\"4.5\" fill=\"#0072B2\" cx=\"%.1f\" cy=\"%.1f\"><title>", x,
                         y);
        dpar_strategy_write(&r->front[i].strategy, t);
        dpar_text_put(t, "</title></circle>\n");
    }
    dpari_svg_text(t, x0 + w / 2.0, y0 + h + 36, "c", "memory a GPU, GB (right edge: what it has)");
    dpari_svg_text(t, 24, y0 - 8, "l", "ms a sample");
}

static void dpari_report_svg(dpar_text *t, const dpar_plan_draw_desc *r)
{
    double longest = 1e-30, y = 132, height;
    int32_t i;
    for (i = 0; i < r->plan_count; i++) {
        longest = dpari_mostf(longest, r->plan[i].step.total);
    }
    height = y + 46.0 * r->plan_count + (r->front_count > 1 ? 310.0 : 10.0);
    dpari_svg_head(t, r, height);
    dpari_svg_legend(t, r, 86);
    dpari_svg_text(t, 24, 110, "s", "step time by term");
    dpari_svg_open(t, 760, 110, "s");
    dpari_text_print(t, "memory of %.0f GB</text>\n", r->job->cluster->gpu.memory_bytes * 1e-9);
    for (i = 0; i < r->plan_count; i++) {
        dpari_svg_plan(t, r, i, y, longest);
        y += 46.0;
    }
    if (r->front_count > 1) {
        dpari_svg_front(t, r, y);
    }
    dpar_text_put(t, "</svg>\n");
}

/* ---- the call ------------------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_plan_draw(dpar_text *t, const dpar_plan_draw_desc *r,
                                               int32_t format, dpar_why *why)
{
    switch (format) {
    case DPAR_PLAN_DRAW_TEXT: dpari_report_text(t, r); break;
    case DPAR_PLAN_DRAW_EXPLAIN: dpari_report_explain(t, r); break;
    case DPAR_PLAN_DRAW_CSV: dpari_report_csv(t, r); break;
    case DPAR_PLAN_DRAW_JSON: dpari_report_json(t, r); break;
    case DPAR_PLAN_DRAW_SVG: dpari_report_svg(t, r); break;
    case DPAR_PLAN_DRAW_LINE: dpari_report_line(t, r); break;
    default: return dpari_wrong(why, "format=%d must be 0 to 5 (DPAR_PLAN_DRAW_*)", format);
    }
    return DPAR_OK;
}
