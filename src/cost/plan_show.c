/* SPDX-License-Identifier: MIT-0 */
/* Writes plans as a table, in full, as CSV, JSON and SVG. All formats are appended to a dpar_text,
 * which counts what does not fit, so a caller can measure a report and then allocate it. */
#include "plan_show.h"

#include "../base/base_private.h"
#include "terms.h"

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Appends a time in s, ms or us. */
static void dpari_show_seconds(dpar_text *text, double s)
{
    if (s >= 1.0) {
        dpari_text_print(text, s >= 100.0 ? "%.0f s" : "%.2f s", s);
    } else if (s >= 1e-3) {
        dpari_text_print(text, "%.1f ms", s * 1e3);
    } else {
        dpari_text_print(text, "%.1f us", s * 1e6);
    }
}

/* Appends a number with a unit prefix: 1.2k, 3.4M, 5.6G. */
static void dpari_show_count(dpar_text *text, double v)
{
    static const char unit[6][2] = {"", "k", "M", "G", "T", "P"};
    int32_t i = 0;
    while (v >= 1000.0 && i < 5) {
        v /= 1000.0;
        i++;
    }
    dpari_text_print(text, "%.3g%s", v, unit[i]);
}

/* Returns the name of what the workload counts as tokens. */
DPARI_STATIC_NOINLINE const char *dpari_show_unit(const dpar_job *job)
{
    const dpar_workload *work = job->work;
    if (work->dims == 0) {
        return "tokens";
    }
    return work->tokens <= 1.0 ? "images" : "cells";
}

/* ---- the table ------------------------------------------------------------------------------- */

/* A letter and an ANSI colour for each time term. */
static const char dpari_term_letter[DPAR_TIME_COUNT + 1] = "FBRTCEHPbidOoh";
static const int8_t dpari_term_colour[DPAR_TIME_COUNT] = {34, 36, 96, 31, 91, 35, 95,
                                                          33, 90, 37, 32, 92, 93, 97};

/* Switches to an ANSI colour, or back with 0, if the report has colours. */
DPARI_STATIC_NOINLINE void dpari_show_colour(dpar_text *text, const dpar_plan_draw_desc *desc,
                                             int32_t colour)
{
    if (desc->colour) {
        dpari_text_print(text, "\x1b[%dm", colour);
    }
}

/* Appends a bar that shows the share of the GPU's memory: green, yellow from 90 % on, red above 100
 * %. Returns its width. */
static int32_t dpari_show_memory_bar(dpar_text *text, const dpar_plan_draw_desc *desc, double bytes,
                                     int32_t width)
{
    double share = bytes / desc->job->cluster->gpu.memory_bytes;
    int32_t i, full = (int32_t)(share * width + 0.5), colour = 32;
    full = full > width ? width : full;
    if (share > 1.0) {
        colour = 31;
    } else if (share > 0.9) {
        colour = 33;
    }
    dpari_show_colour(text, desc, colour);
    for (i = 0; i < width; i++) {
        dpari_text_char(text, i < full ? '#' : '.');
    }
    dpari_show_colour(text, desc, 0);
    return width;
}

/* Appends a bar in which each term has letters for its share of the longest step. The ends of the
 * terms are rounded, so that the letters add up. *shown receives the bits of the terms in the bar.
 * Returns its width. */
static int32_t dpari_show_time_bar(dpar_text *text, const dpar_plan_draw_desc *desc,
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
            dpari_show_colour(text, desc, dpari_term_colour[i]);
            *shown |= 1u << i;
            for (; at < end && at < width; at++) {
                dpari_text_char(text, dpari_term_letter[i]);
            }
        }
    }
    dpari_show_colour(text, desc, 0);
    return at;
}

static void dpari_show_blank(dpar_text *text, int32_t n)
{
    for (; n > 0; n--) {
        dpari_text_char(text, ' ');
    }
}

/* Appends the notes of the model, one line each. */
static void dpari_show_notes(dpar_text *text, const char *note)
{
    int first = 1;
    for (; *note != 0; note++) {
        dpar_text_put(text, first ? "note: " : "");
        dpari_text_char(text, *note);
        first = *note == '\n';
    }
    dpar_text_put(text, first ? "" : "\n");
}

/* Appends the lines above the table: model, machine, batch, software, notes. */
static void dpari_show_head(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    const dpar_workload *work = desc->job->work;
    const dpar_cluster *cluster = desc->job->cluster;
    dpari_text_print(text, "%s  ", work->name);
    if (work->params > 0.0) {
        dpari_show_count(text, work->params);
        dpar_text_put(text, " parameters, ");
    }
    dpari_show_count(text, work->tokens);
    dpari_text_print(
        text,
        " %s a sample\non  %d x %s (%d node%s of %d, %.0f GB/s inside, %.0f GB/s a node "
        "outside)\nglobal batch ",
        dpari_show_unit(desc->job), dpari_cluster_gpus(cluster), cluster->gpu.name, cluster->nodes,
        cluster->nodes == 1 ? "" : "s", cluster->gpus_per_node, cluster->link_Bps * 1e-9,
        cluster->nics * cluster->nic_Bps * 1e-9);
    if (desc->global_batch > 0) {
        dpari_text_int(text, desc->global_batch);
    } else {
        dpar_text_put(text, "free");
    }
    dpari_text_print(text, ", %s precision, %s software", desc->job->recipe.name,
                     dpari_stack_name(work->stack_version));
    if (work->heads > 0) {
        dpari_text_print(text, ", %s attention", dpari_attention_name(work->attention));
    }
    if (work->vocab > 0 && work->trains) {
        dpari_text_print(text, ", %s loss", dpari_loss_name(work->loss));
    }
    dpari_text_char(text, '\n');
    dpari_show_notes(text, work->note);
    dpari_text_char(text, '\n');
}

/* Appends the i-th plan: memory and its bar, time and its bar, rate, MFU, strategy. */
static void dpari_show_row(dpar_text *text, const dpar_plan_draw_desc *desc, int32_t i,
                           double longest, uint32_t *shown)
{
    const dpar_plan *plan = &desc->plan[i];
    char cell[96];
    dpar_text c;
    dpari_text_print(text, "%3d  %6.1f GB ", i + 1, plan->memory.total * 1e-9);
    (void)dpari_show_memory_bar(text, desc, plan->memory.total, 12);
    dpar_text_init(&c, cell, sizeof(cell));
    dpari_show_seconds(&c, plan->step.total);
    dpari_text_print(text, "%10s ", cell);
    dpari_show_blank(text, 37 - dpari_show_time_bar(text, desc, &plan->step, longest, 36, shown));
    dpar_text_init(&c, cell, sizeof(cell));
    dpari_show_count(&c, plan->step.tokens_per_s_gpu);
    dpari_text_print(text, "%6s/s %5.1f%%  ", cell, 100.0 * plan->step.mfu);
    dpar_strategy_write(&plan->strategy, text);
    dpar_text_put(text, plan->fits ? "\n" : "  DOES NOT FIT\n");
}

/* Appends the meaning of the letters that occur in the bars, and the capacity. */
static void dpari_show_legend(dpar_text *text, const dpar_plan_draw_desc *desc, uint32_t shown)
{
    int32_t i;
    dpar_text_put(text, "\ntime bar:");
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        if ((shown >> i & 1u) != 0) {
            dpari_text_char(text, ' ');
            dpari_show_colour(text, desc, dpari_term_colour[i]);
            dpari_text_char(text, dpari_term_letter[i]);
            dpari_show_colour(text, desc, 0);
            dpari_text_print(text, " %s", dpar_time_name(i));
        }
    }
    dpari_text_print(text, "\nmemory bar: share of %.0f GB; MFU: %s\n",
                     desc->job->cluster->gpu.memory_bytes * 1e-9,
                     desc->job->work->heads > 0 ? "attention counted in full, vocabulary counted, "
                                                  "recomputation not, of the dense peak"
                                                : "of the dense matrix peak");
}

static void dpari_report_text(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    double longest = 1e-30;
    uint32_t shown = 0;
    int32_t i;
    dpari_show_head(text, desc);
    for (i = 0; i < desc->plan_count; i++) {
        longest = dpari_mostf(longest, desc->plan[i].step.total);
    }
    dpari_text_print(
        text, "  #     memory a GPU           step time                                     %s%s",
        dpari_show_unit(desc->job),
        desc->job->work->dims > 0 ? "/GPU    MFU  strategy\n" : "/GPU   MFU  strategy\n");
    for (i = 0; i < desc->plan_count; i++) {
        dpari_show_row(text, desc, i, longest, &shown);
    }
    dpari_show_legend(text, desc, shown);
    if (desc->note != NULL) {
        dpari_text_print(text, "%s\n", desc->note);
    }
    if (desc->seconds > 0.0) {
        dpari_show_count(text, (double)desc->evaluated);
        dpar_text_put(text, " configurations priced in ");
        dpari_show_seconds(text, desc->seconds);
        dpari_text_char(text, '\n');
    }
    for (i = 0; i < desc->rejected_count; i++) {
        dpari_text_print(text, "%s  %s\n", i == 0 ? "\nwhy not its neighbours?\n" : "",
                         desc->rejected[i].text);
    }
}

static void dpari_report_line(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    const dpar_plan *plan = &desc->plan[0];
    const char *verdict = "";
    if (desc->plan_count < 1) {
        dpar_text_put(text, "nothing fits\n");
        return;
    }
    if (!plan->fits) {
        verdict = ": does not fit";
    } else if (plan->memory.upper > desc->job->cluster->gpu.memory_bytes) {
        verdict = ": close";
    }
    dpar_strategy_write(&plan->strategy, text);
    dpar_text_put(text, ": ");
    dpari_show_seconds(text, plan->step.total);
    dpar_text_put(text, " a step, ");
    dpari_show_count(text, plan->step.tokens_per_s_gpu);
    dpari_text_print(text, " %s/s a GPU, MFU %.1f %%, %.1f of %.1f GB%s\n",
                     dpari_show_unit(desc->job), 100.0 * plan->step.mfu, plan->memory.total * 1e-9,
                     desc->job->cluster->gpu.memory_bytes * 1e-9, verdict);
}

/* ---- one plan in full ------------------------------------------------------------------------ */

/* Appends a term with its share of the whole and a bar, unless the share is below 0.05 %. */
static void dpari_show_term(dpar_text *text, const char *name, double v, double whole, double unit,
                            const char *unit_name)
{
    int32_t i;
    if (!(v > 0.0005 * whole || v < -0.0005 * whole)) {
        return;
    }
    dpari_text_print(text, "  %s", name);
    dpari_text_column(text, 18);
    dpari_text_print(text, v / unit < 10.0 ? "%10.3f %s%7.1f %% " : "%10.1f %s%7.1f %% ", v / unit,
                     unit_name, 100.0 * v / whole);
    for (i = 0; i < (int32_t)(40.0 * v / whole + 0.5) && i < 40; i++) {
        dpari_text_char(text, '#');
    }
    dpari_text_char(text, '\n');
}

/* Appends the first plans of the front of time against memory, the fastest first. */
static void dpari_show_front(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    int32_t i;
    for (i = 0; i < desc->front_count && i < 8; i++) {
        dpari_text_print(text, "%s  %.1f GB  ",
                         i == 0 ? "\nless memory, more time (nothing is both faster and smaller)\n"
                                : "",
                         desc->front[i].memory.total * 1e-9);
        dpari_show_seconds(text, desc->front[i].step.total);
        dpar_text_put(text, "  ");
        dpar_strategy_write(&desc->front[i].strategy, text);
        dpari_text_char(text, '\n');
    }
}

static void dpari_report_explain(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    const dpar_plan *plan = &desc->plan[0];
    int32_t i;
    if (desc->plan_count < 1) {
        return;
    }
    dpari_show_front(text, desc);
    dpar_text_put(text, "\nthe first plan in full: ");
    dpar_strategy_write(&plan->strategy, text);
    dpari_text_print(text, "\n\nmemory of pipeline rank %d, the worst, %s\n", plan->memory.worst,
                     plan->memory.moment == DPAR_MEMORY_PEAK_LOSS ? "at the loss"
                                                                  : "in a layer's backward");
    for (i = 0; i < DPAR_MEMORY_COUNT; i++) {
        dpari_show_term(text, dpar_memory_name(i), plan->memory.term[i], plan->memory.total, 1e9,
                        "GB");
    }
    dpari_show_term(text, "total", plan->memory.total, plan->memory.total, 1e9, "GB");
    dpari_text_print(text,
                     "  between %.1f and %.1f GB (allocator 3 to 10 %%); first stage %.1f, last "
                     "%.1f GB\n\ntime of a step\n",
                     plan->memory.lower * 1e-9, plan->memory.upper * 1e-9,
                     plan->memory.first * 1e-9, plan->memory.last * 1e-9);
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        dpari_show_term(text, dpar_time_name(i), plan->step.term[i], plan->step.total, 1e-3, "ms");
    }
    dpari_show_term(text, "total", plan->step.total, plan->step.total, 1e-3, "ms");
    dpari_text_print(text,
                     "\nsent by a GPU in a step: %.2f GB over in-node links, %.2f GB over the "
                     "network (%.2f GB of it all by data parallelism); ",
                     plan->step.link_bytes * 1e-9, plan->step.nic_bytes * 1e-9,
                     plan->step.dp_bytes * 1e-9);
    dpari_show_seconds(text, plan->step.dp_hidden_s);
    dpar_text_put(text, " of communication hidden behind compute\n");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Appends a JSON string: in quotes, with escapes. */
static void dpari_json_text(dpar_text *text, const char *s)
{
    static const char hex[17] = "0123456789abcdef";
    dpari_text_char(text, '"');
    for (; *s != 0; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 0x20u) {
            dpar_text_put(text, "\\u00");
            dpari_text_char(text, hex[c >> 4]);
            dpari_text_char(text, hex[c & 15u]);
        } else {
            dpar_text_put(text, c == '"' || c == '\\' ? "\\" : "");
            dpari_text_char(text, *s);
        }
    }
    dpari_text_char(text, '"');
}

/* Appends all terms of memory or of time, in GB or in seconds. */
static void dpari_json_terms(dpar_text *text, const char *(*name)(int32_t i), const double *term,
                             int32_t terms, double unit)
{
    int32_t i;
    for (i = 0; i < terms; i++) {
        dpari_text_print(text, "\"%s\": %.9G, ", name(i), term[i] * unit);
    }
}

/* Appends a name, its string and the text `then`. */
static void dpari_json_word_of(dpar_text *text, const char *name, const char *v, const char *then)
{
    dpari_text_print(text, "\"%s\": ", name);
    dpari_json_text(text, v);
    dpar_text_put(text, then);
}

static void dpari_json_strategy(dpar_text *text, const dpar_strategy *strategy)
{
    char recompute[48], offload[48], overlap[48], tiles[48];
    dpar_text w;
    dpar_text_init(&w, recompute, sizeof(recompute));
    dpari_write_recompute(&w, strategy->recompute);
    dpar_text_init(&w, offload, sizeof(offload));
    dpari_write_bits(&w, "", strategy->offload, 1);
    dpar_text_init(&w, overlap, sizeof(overlap));
    if (strategy->overlap & DPAR_OVERLAP_DEFAULT) {
        dpar_text_put(&w, "default");
    } else {
        dpari_write_bits(&w, "", strategy->overlap, 0);
    }
    dpar_text_init(&w, tiles, sizeof(tiles));
    dpari_write_tiles(&w, strategy->tiles);
    dpari_text_print(
        text,
        "{\"dp\": %d, \"shard\": %d, \"zero\": %d, \"tp\": %d, \"sp\": %d, \"cp\": %d, "
        "\"cp_kind\": \"%s\", \"pp\": %d, \"vp\": %d, \"ep\": %d, \"etp\": %d, \"micro_batch\": "
        "%d, "
        "\"micro_batches\": %d, \"recompute\": \"%s\", \"recompute_layers\": %d, "
        "\"schedule\": \"%s\", \"offload\": \"%s\", \"overlap\": \"%s\", \"tiles\": \"%s\"}",
        strategy->dp, strategy->shard > 0 ? strategy->shard : strategy->dp, strategy->zero,
        strategy->tp, strategy->sp, strategy->cp, dpari_cp_name(strategy->cp_kind), strategy->pp,
        strategy->vp, strategy->ep, strategy->etp, strategy->micro_batch, strategy->micro_batches,
        recompute, strategy->recompute_layers, dpar_schedule_name(strategy->schedule), offload,
        overlap, tiles);
}

/* Appends two strings, which name the largest terms of memory and of time. */
static void dpari_json_reasons(dpar_text *text, const dpar_plan_draw_desc *desc,
                               const dpar_plan *plan)
{
    int32_t i, most_time = 0, most_memory = 0;
    for (i = 1; i < DPAR_TIME_COUNT; i++) {
        most_time = plan->step.term[i] > plan->step.term[most_time] ? i : most_time;
    }
    for (i = 1; i < DPAR_MEMORY_COUNT; i++) {
        most_memory = plan->memory.term[i] > plan->memory.term[most_memory] ? i : most_memory;
    }
    dpari_text_print(
        text,
        "\"%.0f %% of the GPU's memory at worst, mostly %s\", \"%.0f %% of the step is "
        "%s, the bubble %.1f %%\"",
        100.0 * plan->memory.upper / desc->job->cluster->gpu.memory_bytes,
        dpar_memory_name(most_memory), 100.0 * plan->step.term[most_time] / plan->step.total,
        dpar_time_name(most_time), 100.0 * plan->step.term[DPAR_TIME_BUBBLE] / plan->step.total);
}

/* Appends the memory of one pipeline rank by term. */
static void dpari_json_stage(dpar_text *text, const dpar_job *job, const dpar_plan *plan,
                             const char *name, int32_t rank)
{
    dpar_memory_usage m;
    dpar_memory_stage(job, &plan->strategy, rank, &m);
    dpari_text_print(text, "     \"%s\": {", name);
    dpari_json_terms(text, dpar_memory_name, m.term, DPAR_MEMORY_COUNT, 1e-9);
    dpari_text_print(text, "\"total\": %.9G},\n", m.total * 1e-9);
}

static void dpari_json_plan(dpar_text *text, const dpar_plan_draw_desc *desc, const dpar_plan *plan)
{
    const dpar_step_cost *s = &plan->step;
    const dpar_memory_usage *memory = &plan->memory;
    int32_t i;
    dpar_text_put(text, "    {\"strategy\": ");
    dpari_json_strategy(text, &plan->strategy);
    dpar_text_put(text, ",\n     \"memory_gb\": {");
    dpari_json_terms(text, dpar_memory_name, memory->term, DPAR_MEMORY_COUNT, 1e-9);
    dpari_text_print(text, "\"total\": %.9G},\n", memory->total * 1e-9);
    if (plan->strategy.pp > 1) {
        dpari_json_stage(text, desc->job, plan, "memory_first_stage_gb", 0);
        dpari_json_stage(text, desc->job, plan, "memory_last_stage_gb", plan->strategy.pp - 1);
    }
    dpari_text_print(text,
                     "     \"memory_peak\": {\"stage\": %d, \"moment\": \"%s\"},\n     "
                     "\"memory_stages_gb\": [",
                     memory->worst, memory->moment == DPAR_MEMORY_PEAK_LOSS ? "loss" : "layer");
    for (i = 0; i < plan->strategy.pp; i++) {
        dpar_memory_usage stage;
        dpar_memory_stage(desc->job, &plan->strategy, i, &stage);
        dpari_text_print(text, "%s%.9g", i > 0 ? ", " : "", stage.total * 1e-9);
    }
    dpari_text_print(text,
                     "],\n     \"memory_range_gb\": {\"allocated\": %.9G, \"lower\": %.9G, "
                     "\"upper\": %.9G, \"first_stage\": %.9G, \"last_stage\": %.9G, "
                     "\"host\": %.9G},\n     \"time_s\": {",
                     memory->allocated * 1e-9, memory->lower * 1e-9, memory->upper * 1e-9,
                     memory->first * 1e-9, memory->last * 1e-9, memory->host * 1e-9);
    dpari_json_terms(text, dpar_time_name, s->term, DPAR_TIME_COUNT, 1.0);
    dpari_text_print(
        text,
        "\"total\": %.9G},\n     \"tokens_per_s_per_gpu\": %.9G, \"samples_per_step\": %.9G, "
        "\"tflops_per_gpu\": %.9G, \"mfu\": %.9G, \"mfu_causal\": %.9G, \"hfu\": %.9G, "
        "\"bubble\": %.9G, \"link_gb\": %.9G, \"nic_gb\": %.9G, \"fits\": %s, \"reasons\": [",
        s->total, s->tokens_per_s_gpu, s->samples, s->tflops_gpu, s->mfu, s->mfu_causal, s->hfu,
        s->bubble, s->link_bytes * 1e-9, s->nic_bytes * 1e-9, plan->fits ? "true" : "false");
    dpari_json_reasons(text, desc, plan);
    dpar_text_put(text, "]}");
}

static void dpari_json_rejected(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    int32_t i;
    dpar_text_put(text, "  \"rejected\": [");
    for (i = 0; i < desc->rejected_count; i++) {
        dpar_text_put(text, i > 0 ? ",\n    {" : "\n    {");
        dpari_json_word_of(text, "rule", dpar_strategy_rule_name(desc->rejected[i].rule), ", ");
        dpari_json_word_of(text, "text", desc->rejected[i].text, ", ");
        dpari_text_print(text, "\"time_s\": %.9G, \"gb_over\": %.9G, \"strategy\": ",
                         desc->rejected[i].seconds, desc->rejected[i].bytes_over * 1e-9);
        dpari_json_strategy(text, &desc->rejected[i].strategy);
        dpar_text_put(text, "}");
    }
    dpar_text_put(text, "],\n  \"rejected_by_rule\": {");
    for (i = 1; i < DPAR_STRATEGY_RULE_COUNT && desc->rejected_by_rule != NULL; i++) {
        dpari_text_print(text, "\"%s\": %ld%s", dpar_strategy_rule_name(i),
                         desc->rejected_by_rule[i], i + 1 < DPAR_STRATEGY_RULE_COUNT ? ", " : "");
    }
    dpar_text_put(text, "},\n");
}

/* Appends the error of a constant. The error is known only if the constant is a default; `points`
 * is the number of measured points that replace the constant. */
static DPARI_COLD void dpari_json_error(dpar_text *text, double error, int32_t points)
{
    if (points > 0 || !(error > 0.0)) {
        dpar_text_put(text, points > 0 ? " none: measured" : " not known: as given");
    } else {
        dpari_text_print(text, " %.0f %%", 100.0 * error);
    }
}

/* Appends what is assumed: software, precision, machine, calibration, notes, definitions. */
static void dpari_json_assumptions(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    const dpar_workload *work = desc->job->work;
    const dpar_cluster *cluster = desc->job->cluster;
    const dpar_recipe *recipe = &desc->job->recipe;
    char line[400];
    dpar_text l;
    dpar_text_init(&l, line, sizeof(line));
    dpari_text_print(&l, "machine: %s, %s; GPU %s, %s", cluster->name, cluster->source,
                     cluster->gpu.name, cluster->gpu.source);
    dpari_text_print(text,
                     "  \"assumptions\": [\n    \"software: %s, attention: %s, loss: %s\",\n    "
                     "\"precision %s: bytes a parameter = weight %.3g + gradient %.3g + master "
                     "%.3g + moments %.3g\",\n    ",
                     dpari_stack_name(work->stack_version), dpari_attention_name(work->attention),
                     dpari_loss_name(work->loss), recipe->name, recipe->weight, recipe->gradient,
                     recipe->master, recipe->moments);
    dpari_json_text(text, line);
    dpar_text_put(text, ",\n    ");
    dpar_text_init(&l, line, sizeof(line));
    dpari_text_print(&l, "calibration: %s; one standard deviation of products",
                     cluster->cal.source);
    dpari_json_error(&l, cluster->cal.error[DPAR_CAL_GEMM], 0);
    dpar_text_put(&l, ", of links");
    dpari_json_error(&l, cluster->cal.error[DPAR_CAL_LINK_SHARE],
                     cluster->curve[DPAR_CURVE_LINK].count);
    dpar_text_put(&l, ", of the network");
    dpari_json_error(&l, cluster->cal.error[DPAR_CAL_NET_SHARE],
                     cluster->curve[DPAR_CURVE_NET].count);
    dpari_text_print(&l, "; activations of %d bytes", work->element);
    dpari_json_text(text, line);
    if (work->note[0] != 0) {
        dpar_text_put(text, ",\n    ");
        dpari_json_text(text, work->note);
    }
    dpar_text_put(text,
                  ",\n    \"mfu: full attention, vocabulary counted, recomputation not, of the "
                  "dense peak of the matrix format; mfu_causal: causal attention at half; hfu: "
                  "with recomputation; GB = 1e9 bytes\"\n  ]\n");
}

/* Appends the front of time against memory: no other plan is both faster and smaller. Fastest
 * first. */
static void dpari_json_front(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    int32_t i;
    dpar_text_put(text, "  \"pareto\": [");
    for (i = 0; i < desc->front_count; i++) {
        dpari_text_print(text,
                         "%s    {\"time_s\": %.9G, \"memory_gb\": %.9G, \"gpus\": %d, "
                         "\"strategy\": ",
                         i > 0 ? ",\n" : "\n", desc->front[i].step.total,
                         desc->front[i].memory.total * 1e-9,
                         dpari_cluster_gpus(desc->job->cluster));
        dpari_json_strategy(text, &desc->front[i].strategy);
        dpari_text_char(text, '}');
    }
    dpar_text_put(text, "],\n");
}

static void dpari_json_advice(dpar_text *text, const dpar_advice *advice)
{
    dpar_text_put(text, "  \"recommendation\": {");
    dpari_json_word_of(text, "name", advice->name, ",\n    ");
    dpari_json_word_of(text, "why", advice->why, ",\n    ");
    dpari_json_word_of(text, "runner_up", advice->runner_up, ",\n    ");
    dpari_json_word_of(text, "fastest", advice->fastest, ",\n    ");
    dpari_text_print(text, "\"slower\": %.9G,\n    ", advice->slower);
    dpari_json_word_of(text, "warnings", advice->warning_text, "},\n");
}

static void dpari_report_json(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    int32_t i;
    dpar_text_put(text, "{\n  ");
    dpari_json_word_of(text, "model", desc->job->work->name, ", ");
    dpari_text_print(text,
                     "\"parameters\": %ld, \"gpus\": %d, \"global_batch\": %ld,\n  \"plans\": [\n",
                     (int64_t)dpari_leastf(desc->job->work->params, 9e18),
                     dpari_cluster_gpus(desc->job->cluster), desc->global_batch);
    for (i = 0; i < desc->plan_count; i++) {
        dpari_json_plan(text, desc, &desc->plan[i]);
        dpar_text_put(text, i + 1 < desc->plan_count ? ",\n" : "\n");
    }
    dpar_text_put(text, "  ],\n");
    dpari_json_front(text, desc);
    if (desc->advice != NULL) {
        dpari_json_advice(text, desc->advice);
    }
    if (desc->note != NULL) {
        dpar_text_put(text, "  ");
        dpari_json_word_of(text, "message", desc->note, ",\n");
    }
    dpari_json_rejected(text, desc);
    dpari_text_print(text, "  \"evaluated\": %ld, \"seconds\": %.9G,\n", desc->evaluated,
                     desc->seconds);
    dpari_json_assumptions(text, desc);
    dpar_text_put(text, "}\n");
}

/* ---- CSV ------------------------------------------------------------------------------------- */

static void dpari_report_csv(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    int32_t i, k;
    dpar_text_put(text, "rank,strategy,fits");
    for (k = 0; k < DPAR_MEMORY_COUNT; k++) {
        dpari_text_print(text, ",%s_gb", dpar_memory_name(k));
    }
    dpar_text_put(text, ",total_gb,upper_gb");
    for (k = 0; k < DPAR_TIME_COUNT; k++) {
        dpari_text_print(text, ",%s_s", dpar_time_name(k));
    }
    dpar_text_put(text, ",total_s,tokens_per_s_per_gpu,tflops_per_gpu,mfu\n");
    for (i = 0; i < desc->plan_count; i++) {
        const dpar_plan *plan = &desc->plan[i];
        dpari_text_print(text, "%d,\"", i + 1);
        dpar_strategy_write(&plan->strategy, text);
        dpar_text_put(text, plan->fits ? "\",1" : "\",0");
        for (k = 0; k < DPAR_MEMORY_COUNT; k++) {
            dpari_text_print(text, ",%.7g", plan->memory.term[k] * 1e-9);
        }
        dpari_text_print(text, ",%.7g,%.7g", plan->memory.total * 1e-9, plan->memory.upper * 1e-9);
        for (k = 0; k < DPAR_TIME_COUNT; k++) {
            dpari_text_print(text, ",%.7g", plan->step.term[k]);
        }
        dpari_text_print(text, ",%.7g,%.7g,%.5g,%.5g\n", plan->step.total,
                         plan->step.tokens_per_s_gpu, plan->step.tflops_gpu, plan->step.mfu);
    }
}

/* ---- SVG ------------------------------------------------------------------------------------- */

/* Okabe and Ito's colours, which can be distinguished with any colour vision, and tints of them. */
static const char dpari_svg_colour[DPAR_TIME_COUNT][8] = {
    "#0072B2", "#56B4E9", "#9AD1F0", "#D55E00", "#E8935A", "#CC79A7", "#E3AFCC",
    "#F0E442", "#BBBBBB", "#777777", "#009E73", "#E69F00", "#F4CE7F", "#333333"};

DPARI_STATIC_NOINLINE void dpari_svg_rect(dpar_text *text, double x, double y, double w, double h,
                                          const char *fill)
{
    dpari_text_print(text,
                     "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
                     x, y, w, h, fill);
}

/* Opens a text; the caller appends the text and "</text>". */
DPARI_STATIC_NOINLINE void dpari_svg_open(dpar_text *text, double x, double y, const char *style)
{
    dpari_text_print(text, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, style);
}

/* Appends a text with &, < and > as entities. */
static void dpari_svg_escaped(dpar_text *text, const char *s)
{
    for (; *s != 0; s++) {
        if (*s == '&') {
            dpar_text_put(text, "&amp;");
        } else if (*s == '<') {
            dpar_text_put(text, "&lt;");
        } else if (*s == '>') {
            dpar_text_put(text, "&gt;");
        } else {
            dpari_text_char(text, *s);
        }
    }
}

static void dpari_svg_text(dpar_text *text, double x, double y, const char *style, const char *s)
{
    dpari_svg_open(text, x, y, style);
    dpari_svg_escaped(text, s);
    dpar_text_put(text, "</text>\n");
}

static void dpari_svg_head(dpar_text *text, const dpar_plan_draw_desc *desc, double height)
{
    const dpar_cluster *cluster = desc->job->cluster;
    dpari_text_print(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1120 %.0f\" width=\"1120\" "
        "height=\"%.0f\">\n<style>text{font-family:system-ui,Helvetica,Arial,sans-serif;fill:#222}"
        ".h{font-size:20px;font-weight:600}.s{font-size:13px;fill:#555}"
        ".l{font-size:12px}.m{font-size:12px;font-family:ui-monospace,Menlo,monospace}"
        ".e{font-size:12px;text-anchor:end}.c{font-size:12px;text-anchor:middle}"
        "</style>\n",
        height, height);
    dpari_svg_rect(text, 0, 0, 1120, height, "#ffffff");
    dpari_svg_open(text, 24, 36, "h");
    dpari_svg_escaped(text, desc->job->work->name);
    dpari_text_print(text, " on %d x ", dpari_cluster_gpus(cluster));
    dpari_svg_escaped(text, cluster->gpu.name);
    dpar_text_put(text, "</text>\n");
    dpari_svg_open(text, 24, 58, "s");
    dpari_show_count(text, desc->job->work->params);
    dpari_text_print(text, " parameters, %d nodes of %d, global batch %ld, ", cluster->nodes,
                     cluster->gpus_per_node, desc->global_batch);
    dpari_svg_escaped(text, desc->job->recipe.name);
    dpar_text_put(text, " precision. Predicted by dpar.</text>\n");
}

/* Draws the colour and the name of each term that takes at least 0.4 % of some plan's step. */
static void dpari_svg_legend(dpar_text *text, const dpar_plan_draw_desc *desc, double y)
{
    double x = 24;
    int32_t i, k;
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        int32_t seen = 0;
        for (k = 0; k < desc->plan_count; k++) {
            seen = seen || desc->plan[k].step.term[i] > 0.004 * desc->plan[k].step.total;
        }
        if (seen) {
            dpari_svg_rect(text, x, y - 10, 12, 12, dpari_svg_colour[i]);
            dpari_svg_text(text, x + 17, y, "l", dpar_time_name(i));
            x += 34.0 + 7.2 * (double)dpari_length(dpar_time_name(i));
        }
    }
}

/* Draws one plan: its name, the time by term, the memory against the capacity. */
static void dpari_svg_plan(dpar_text *text, const dpar_plan_draw_desc *desc, int32_t i, double y,
                           double longest)
{
    const dpar_plan *plan = &desc->plan[i];
    double x = 24, capacity = desc->job->cluster->gpu.memory_bytes, share;
    int32_t k;
    dpari_svg_open(text, x, y, "m");
    dpari_text_print(text, "%d  ", i + 1);
    dpar_strategy_write(&plan->strategy, text);
    dpar_text_put(text, "</text>\n");
    for (k = 0; k < DPAR_TIME_COUNT; k++) {
        double w = 600.0 * plan->step.term[k] / longest;
        if (w > 0.3) {
            dpari_svg_rect(text, x, y + 7, w, 18, dpari_svg_colour[k]);
            x += w;
        }
    }
    dpari_svg_open(text, x + 8, y + 21, "l");
    dpari_show_seconds(text, plan->step.total);
    dpar_text_put(text, "</text>\n");
    share = dpari_leastf(plan->memory.total / capacity, 1.0);
    dpari_svg_rect(text, 760, y + 7, 200, 18, "#eeeeee");
    dpari_svg_rect(text, 760, y + 7, 200.0 * share, 18, plan->fits ? "#009E73" : "#D55E00");
    dpari_svg_open(text, 970, y + 21, "l");
    dpari_text_print(text, "%.1f GB   MFU %.1f %%</text>\n", plan->memory.total * 1e-9,
                     100.0 * plan->step.mfu);
}

static void dpari_svg_axis(dpar_text *text, double x, double y, double v, const char *style)
{
    dpari_svg_open(text, x, y, style);
    dpari_text_print(text, "%.3g</text>\n", v);
}

/* Draws step time over memory. No other plan is better in both than a plan that is drawn. */
static void dpari_svg_front(dpar_text *text, const dpar_plan_draw_desc *desc, double top)
{
    double x0 = 90, y0 = top + 40, w = 900, h = 200, most = 0.0, capacity, px = 0.0, py = 0.0;
    int32_t i;
    capacity = desc->job->cluster->gpu.memory_bytes;
    for (i = 0; i < desc->front_count; i++) {
        most = dpari_mostf(most, desc->front[i].step.total / desc->front[i].step.samples);
    }
    dpari_svg_text(text, 24, top + 18, "s",
                   "Pareto front: no configuration is both faster and smaller than a point here");
    dpari_svg_rect(text, x0, y0, w, h, "#f7f7f7");
    for (i = 0; i <= 4; i++) {
        dpari_svg_rect(text, x0, y0 + h * i / 4.0, w, 0.7, "#cccccc");
        dpari_svg_axis(text, x0 - 8, y0 + h * (1.0 - i / 4.0) + 4, 1e3 * most * i / 4.0, "e");
        dpari_svg_axis(text, x0 + w * i / 4.0, y0 + h + 18, capacity * 1e-9 * i / 4.0, "c");
    }
    for (i = 0; i < desc->front_count; i++) {
        double x = x0 + w * desc->front[i].memory.total / capacity;
        double y = y0 + h - h * desc->front[i].step.total / desc->front[i].step.samples / most;
        if (i > 0) {
            dpari_text_print(
                text,
                "<line stroke=\"#0072B2\" stroke-width=\"1.5\" x1=\"%.1f\" y1=\"%.1f\" "
                "x2=\"%.1f\" y2=\"%.1f\"/>\n",
                px, py, x, y);
        }
        px = x;
        py = y;
        dpari_text_print(text, "<circle r=\"4.5\" fill=\"#0072B2\" cx=\"%.1f\" cy=\"%.1f\"><title>",
                         x, y);
        dpar_strategy_write(&desc->front[i].strategy, text);
        dpar_text_put(text, "</title></circle>\n");
    }
    dpari_svg_text(text, x0 + w / 2.0, y0 + h + 36, "c",
                   "memory a GPU, GB (right edge: what it has)");
    dpari_svg_text(text, 24, y0 - 8, "l", "ms a sample");
}

static void dpari_report_svg(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    double longest = 1e-30, y = 132, height;
    int32_t i;
    for (i = 0; i < desc->plan_count; i++) {
        longest = dpari_mostf(longest, desc->plan[i].step.total);
    }
    height = y + 46.0 * desc->plan_count + (desc->front_count > 1 ? 310.0 : 10.0);
    dpari_svg_head(text, desc, height);
    dpari_svg_legend(text, desc, 86);
    dpari_svg_text(text, 24, 110, "s", "step time by term");
    dpari_svg_open(text, 760, 110, "s");
    dpari_text_print(text, "memory of %.0f GB</text>\n",
                     desc->job->cluster->gpu.memory_bytes * 1e-9);
    for (i = 0; i < desc->plan_count; i++) {
        dpari_svg_plan(text, desc, i, y, longest);
        y += 46.0;
    }
    if (desc->front_count > 1) {
        dpari_svg_front(text, desc, y);
    }
    dpar_text_put(text, "</svg>\n");
}

/* ---- the call -------------------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_plan_draw(dpar_text *text, const dpar_plan_draw_desc *desc,
                                               int32_t format, dpar_why *why)
{
    switch (format) {
    case DPAR_PLAN_DRAW_TEXT: dpari_report_text(text, desc); break;
    case DPAR_PLAN_DRAW_EXPLAIN: dpari_report_explain(text, desc); break;
    case DPAR_PLAN_DRAW_CSV: dpari_report_csv(text, desc); break;
    case DPAR_PLAN_DRAW_JSON: dpari_report_json(text, desc); break;
    case DPAR_PLAN_DRAW_SVG: dpari_report_svg(text, desc); break;
    case DPAR_PLAN_DRAW_LINE: dpari_report_line(text, desc); break;
    default: return dpari_wrong(why, "format=%d must be 0 to 5 (DPAR_PLAN_DRAW_*)", format);
    }
    return DPAR_OK;
}
