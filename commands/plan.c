/* SPDX-License-Identifier: MIT-0 */
/* plan - finds how to spread a model over a cluster, whether it fits, how fast it is, and why.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. commands/plan.c -o plan
 *   ./plan llama-3-70b --cluster 8x8:a100-80
 *
 * prints the fastest strategies that fit, each with its memory and time as bars. ./plan --help
 * lists the options. Exit code: 0 done, 1 nothing fits, 2 bad input (one message on stderr).
 *
 * The command reads files and options, runs dpar_plan_query_read and the function that the options
 * select, simulates the first plans, and prints the report of dpar_plan_draw. If nothing fits, it
 * lists changes with which the job would fit. */
#if !defined(_POSIX_C_SOURCE) && (defined(__unix__) || defined(__APPLE__))
#define _POSIX_C_SOURCE 200809L
#endif
#include "dpar_cost.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__unix__) || defined(__APPLE__)
#include <sys/stat.h>
#endif

static const char program[] = "plan";
static const char help[] =
    "plan: how to spread a model over a cluster, whether it fits, how fast it is, and why\n"
    "\n"
    "  plan MODEL --cluster MACHINE [options]\n"
    "\n"
    "MODEL    a preset (llama-3-70b; --list shows all), a preset with changes\n"
    "         \"llama-3-8b,seq=32768\", a Hugging Face config.json or its folder (also Meta's\n"
    "         params.json), such a file with changes \"model/config.json,mtp=1\", a text\n"
    "         \"gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048\", or a grid\n"
    "         \"grid:1440x720x100,fields=5\"\n"
    "MACHINE  a preset (derecho, dgx-h100), \"16xdgx-h100\", nodes x GPUs with settings\n"
    "         \"8x8:h100-80,nvlink=450,nic=8x50\" (GB/s in one direction), or a file with one "
    "such\n"
    "         setting per line. For a GPU that is not listed, change the numbers of a listed one:\n"
    "         \"1x4:l40s,memory=24,hbm=1008,tflops=165,nvlink=25\" (GB, GB/s, dense bf16); other\n"
    "         settings are pcie, host (GB), nvme, switched, nvls, sharp, taper\n"
    "\n"
    "  --gpus N            use N GPUs: whole nodes, or a part of one; N may exceed the machine\n"
    "  --seq S             tokens per sample\n"
    "  --batch B           samples per step of all GPUs; 0 lets the search choose\n"
    "  --precision R       megatron (= bf16, 18 bytes per parameter; the default), zero (= fp16),\n"
    "                      deepspeed, fp32, pure-bf16, adam8, no-master, fsdp, fp8, fsdp-fp8,\n"
    "                      bf16-moments, bf16-grad16, fp8-grad32, mxfp8, nvfp4 (--list has all)\n"
    "  --fix tp=8,pp=2     search only strategies with these values\n"
    "  --evaluate \"tp=8,pp=12,dp=4,mbs=1,m=64\"   price only this strategy\n"
    "  --stack S           assume this software: megatron | core | torch | compiled, or a "
    "generation\n"
    "                      of one: llm-foundry (2023) | torchtitan | nanotron | nemo | deepep |\n"
    "                      maxtext; S@YEAR is the software of that year (core@2024)\n"
    "  --attention A       unfused | flash1 | flash\n"
    "  --top K             show K plans, 1 to 64 (default 8)\n"
    "  --whole             search every divisor and option, which can be millions of strategies;\n"
    "                      Ctrl-C stops the search and prints the best plans found so far\n"
    "  --min-gpus          find the smallest number of GPUs of this kind on which the model fits\n"
    "  --recommend         recommend one strategy in words, with reasons and warnings; with --fix\n"
    "                      also what would be recommended without it\n"
    "  --explain           show the first plan term by term, and why its neighbours are worse\n"
    "  --memory            show what each pipeline stage of the first plan holds, and when most\n"
    "  --json              print everything as one JSON object on stdout\n"
    "  --svg FILE, --csv FILE   write a picture, a table\n"
    "  --list              list the presets of models, GPUs, machines and precisions, and the\n"
    "                      settings of a machine\n"
    "  --quiet             show no progress\n"
    "  -h, --help          show this text\n"
    "  --version           show the version of dpar\n"
    "\n"
    "A strategy is a list of: tp, sp, cp, dp, shard, pp, vp, ep, etp, mbs, m and recompute_layers, "
    "which\n"
    "  are numbers; zero = 0 to 3; tiles = 2x4; cp_kind = ring | ulysses | gather;\n"
    "  recompute = none | selective | full | alternate (keep every second product), or\n"
    "  norm + activation + experts; schedule = gpipe | 1f1b | interleaved | breadth-first | zb-h1 "
    "|\n"
    "  zb-2p | zbv | v-half | v-min | dualpipe | dualpipev;\n"
    "  offload = none | optimizer + weights + activations; overlap = default | none | dp + tp + pp "
    "+ ep\n"
    "Exit code: 0 done, 1 nothing fits, 2 bad input (one message on stderr)\n"
    "\n"
    "examples\n"
    "  plan llama-3-70b --cluster 8x8:a100-80 --batch 512 --explain --svg plan.svg\n"
    "  plan unet-0.25deg --cluster derecho --gpus 16\n"
    "  plan gpt3-175b --cluster selene --gpus 1024 --batch 1536 --evaluate tp=8,pp=8,vp=2,mbs=1\n"
    "  plan grid:1440x720x100,fields=5 --cluster derecho --gpus 64\n";

#include "../helpers/options.h"

#include "machine.h"

/* ---- options --------------------------------------------------------------------------------- */

typedef struct options {
    const char *model, *cluster, *precision, *fix, *evaluate, *svg, *csv, *stack, *attention;
    const char *gpus, *seq, *batch;
    int top, whole, min_gpus, recommend, explain, memory, json, list, quiet;
} options;

/* Returns -1 to go on, or the exit code. */
static int read_options(options *settings, int argc, char **argv)
{
    const option list[] = {{"--cluster", OPTION_WORD, &settings->cluster, 0, 0},
                           {"--precision", OPTION_WORD, &settings->precision, 0, 0},
                           {"--fix", OPTION_WORD, &settings->fix, 0, 0},
                           {"--evaluate", OPTION_WORD, &settings->evaluate, 0, 0},
                           {"--svg", OPTION_WORD, &settings->svg, 0, 0},
                           {"--csv", OPTION_WORD, &settings->csv, 0, 0},
                           {"--stack", OPTION_WORD, &settings->stack, 0, 0},
                           {"--attention", OPTION_WORD, &settings->attention, 0, 0},
                           {"--gpus", OPTION_WORD, &settings->gpus, 0, 0},
                           {"--seq", OPTION_WORD, &settings->seq, 0, 0},
                           {"--batch", OPTION_WORD, &settings->batch, 0, 0},
                           {"--top", OPTION_INT, &settings->top, 1, 64},
                           {"--whole", OPTION_FLAG, &settings->whole, 0, 0},
                           {"--min-gpus", OPTION_FLAG, &settings->min_gpus, 0, 0},
                           {"--recommend", OPTION_FLAG, &settings->recommend, 0, 0},
                           {"--explain", OPTION_FLAG, &settings->explain, 0, 0},
                           {"--memory", OPTION_FLAG, &settings->memory, 0, 0},
                           {"--json", OPTION_FLAG, &settings->json, 0, 0},
                           {"--list", OPTION_FLAG, &settings->list, 0, 0},
                           {"--quiet", OPTION_FLAG, &settings->quiet, 0, 0}};
    memset(settings, 0, sizeof *settings);
    settings->top = 8;
    return options_read(argc, argv, list, sizeof list / sizeof *list, &settings->model, 1);
}

/* The options that dpar_plan_query_read knows as its words. */
enum { WORDS = 8 };
static const char *const word_name[WORDS] = {"gpus",  "seq",       "batch", "precision",
                                             "stack", "attention", "fix",   "evaluate"};

/* Sets value[i] to the value of the option word_name[i], NULL if it was not given. */
static void word_values(const options *settings, const char **value)
{
    value[0] = settings->gpus;
    value[1] = settings->seq;
    value[2] = settings->batch;
    value[3] = settings->precision;
    value[4] = settings->stack;
    value[5] = settings->attention;
    value[6] = settings->fix;
    value[7] = settings->evaluate;
}

/* Reports the first setting of a strategy that has no value, as in --fix tp. Returns 0, or 2 after
 * a message. */
static int refuse_bare(const char *name, const char *strategy)
{
    while (strategy != NULL && *strategy != 0) {
        const size_t n = strcspn(strategy, ",");
        if (n > 0 && memchr(strategy, '=', n) == NULL) {
            char what[160];
            snprintf(what, sizeof what,
                     "%s: this setting lacks a value, write name=value, such as tp=8: '%.*s'", name,
                     n < 60 ? (int)n : 60, strategy);
            return complain(what, NULL);
        }
        strategy += n + (strategy[n] == ',');
    }
    return 0;
}

/* Changes a message that begins with a word of dpar_plan_query_read, "gpus=0 needs ...", to name
 * the option that the user wrote, "--gpus 0 needs ...". */
static void name_option(const options *settings, char *text, size_t room)
{
    const char *value[WORDS];
    int i;
    word_values(settings, value);
    for (i = 0; i < WORDS; i++) {
        const size_t n = strlen(word_name[i]);
        char said[40];
        if (value[i] == NULL || strncmp(text, word_name[i], n) != 0 ||
            (text[n] != '=' && text[n] != ' ')) {
            continue;
        }
        text[n] = ' ';
        snprintf(said, sizeof said, "--%s", word_name[i]);
        machine_replace(text, room, word_name[i], said);
        return;
    }
}

/* Writes the options that dpar_plan_query_read knows as its words. Returns 1, or 0 after a message
 * if a value has a blank. */
static int words_of(const options *settings, char *text, size_t room)
{
    const char *value[WORDS];
    size_t i, n = 0;
    word_values(settings, value);
    text[0] = 0;
    for (i = 0; i < WORDS; i++) {
        if (value[i] != NULL && strpbrk(value[i], " \t\n") != NULL) {
            char what[60];
            snprintf(what, sizeof what, "--%s takes a value without blanks, not", word_name[i]);
            complain(what, value[i]);
            return 0;
        }
        if (value[i] != NULL) {
            n += (size_t)snprintf(text + n, room - n, " %s=%s", word_name[i], value[i]);
        }
    }
    snprintf(text + n, room - n, "%s", settings->whole ? " whole" : "");
    return 1;
}

/* ---- files ----------------------------------------------------------------------------------- */

enum { FILE_LIMIT = 64 * 1024 * 1024 };

/* Returns 1 if the file can be read. */
static int is_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file != NULL) {
        fclose(file);
    }
    return file != NULL;
}

/* Reads a whole file. Returns NULL after a message on stderr. */
static char *read_file(const char *path)
{
    FILE *file;
    char *text;
    size_t n;
#if defined(__unix__) || defined(__APPLE__)
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        complain("a folder, not a file:", path);
        return NULL;
    }
#endif
    file = fopen(path, "rb");
    text = file != NULL ? (char *)malloc((size_t)FILE_LIMIT + 1) : NULL;
    if (text == NULL) {
        complain("cannot read", path);
        if (file != NULL) {
            fclose(file);
        }
        return NULL;
    }
    n = fread(text, 1, (size_t)FILE_LIMIT + 1, file);
    if (ferror(file) || n > FILE_LIMIT || memchr(text, 0, n) != NULL) {
        complain(n > FILE_LIMIT ? "this file has more than 64 MB:" : "cannot read", path);
        free(text);
        fclose(file);
        return NULL;
    }
    fclose(file);
    text[n] = 0;
    return text;
}

static int ends_in(const char *text, const char *tail)
{
    size_t n = strlen(text), k = strlen(tail);
    return n >= k && strcmp(text + n - k, tail) == 0;
}

/* Returns the first n characters of a path followed by a name, or NULL if there is no memory. */
static char *path_of(const char *path, size_t n, const char *name)
{
    char *whole = (char *)malloc(n + strlen(name) + 1);
    if (whole != NULL) {
        memcpy(whole, path, n);
        strcpy(whole + n, name);
    }
    return whole;
}

/* Returns the path of the configuration in a model's folder, or NULL if there is none. The caller
 * frees it. */
static char *in_folder(const char *path)
{
    const char *const name[] = {"/config.json", "/params.json"};
    int i;
    for (i = 0; i < 2 && (strchr(path, '/') != NULL || path[0] == '.'); i++) {
        char *file = path_of(path, strlen(path), name[i]);
        if (file != NULL && is_file(file)) {
            return file;
        }
        free(file);
    }
    return NULL;
}

/* Returns a file's text without blanks at its end, followed by settings, and frees the text. */
static char *joined(char *text, const char *settings)
{
    size_t n = strlen(text);
    char *both = (char *)malloc(n + strlen(settings) + 1);
    while (n > 0 && strchr(" \t\r\n", text[n - 1]) != NULL) {
        n--;
    }
    if (both != NULL) {
        memcpy(both, text, n);
        strcpy(both + n, settings);
    }
    free(text);
    return both;
}

/* The notes below the plans, one per line: up to 400 characters for each of 64 plans, and a few of
 * up to 600 about the search. */
static char note[64 * 400 + 4000];

static void add_note(const char *text)
{
    const size_t used = strlen(note);
    snprintf(note + used, sizeof note - used, "%s%s", used > 0 ? "\n" : "", text);
}

/* Reads the request. *model and *machine get the texts of files, or NULL; the caller frees them.
 * Returns 0, or 2 after a message. */
static int read_query(const options *settings, const char *words, dpar_plan_query *query,
                      char **model, char **machine)
{
    dpar_why why;
    char *inside;
    const char *of, *on; /* the model and the machine: names, or texts of files */
    const char *more = strstr(settings->model, ".json,");
    *model = *machine = NULL;
    inside = more != NULL ? path_of(settings->model, (size_t)(more + 5 - settings->model), "")
                          : in_folder(settings->model);
    if (inside != NULL) {
        *model = read_file(inside);
        free(inside);
        if (*model != NULL && more != NULL) {
            *model = joined(*model, more + 5);
        }
        if (*model == NULL) {
            return 2;
        }
    } else if (ends_in(settings->model, ".json") ||
               (strchr(settings->model, '/') != NULL && is_file(settings->model))) {
        *model = read_file(settings->model);
        if (*model == NULL) {
            return 2;
        }
    }
    if (is_file(settings->cluster)) {
        *machine = read_file(settings->cluster);
        if (*machine == NULL) {
            return 2;
        }
    }
    of = *model != NULL ? *model : settings->model;
    on = *machine != NULL ? *machine : settings->cluster;
    if (dpar_plan_query_read(of, on, words, query, &why) != DPAR_OK) {
        machine_message(why.text, sizeof why.text, ", and no such file;");
        name_option(settings, why.text, sizeof why.text);
        return complain(why.text, NULL);
    }
    if (query->machine_gpus > 0) {
        const int gpus = query->cluster.nodes * query->cluster.gpus_per_node;
        snprintf(note, sizeof note, "%d GPU%s of the kind of %s, which has %d", gpus,
                 options_plural(gpus, "s"), query->cluster.name, query->machine_gpus);
    }
    return 0;
}

/* ---- output ---------------------------------------------------------------------------------- */

/* Writes a report of any length: draws it once to measure it, and again to fill the buffer. */
static int write_report(FILE *to, int32_t format, const dpar_plan_draw_desc *report)
{
    dpar_text text;
    char *buffer;
    size_t room;
    dpar_text_init(&text, NULL, 0);
    dpar_plan_draw(&text, report, format, NULL);
    room = text.used + 64;
    buffer = (char *)malloc(room);
    if (buffer == NULL) {
        return complain("out of memory", NULL);
    }
    dpar_text_init(&text, buffer, room);
    dpar_plan_draw(&text, report, format, NULL);
    fputs(buffer, to);
    free(buffer);
    return 0;
}

/* Refuses "-", which is stdout elsewhere, as a file: stdout gets the report. */
static int refuse_stdout(const char *name, const char *path)
{
    char what[100];
    if (path == NULL || strcmp(path, "-") != 0) {
        return 0;
    }
    snprintf(what, sizeof what, "%s needs the name of a file, as stdout gets the report, not",
             name);
    return complain(what, path);
}

static int write_file(const char *path, int32_t format, const dpar_plan_draw_desc *report)
{
    FILE *file = fopen(path, "wb");
    int bad;
    if (file == NULL) {
        return complain("cannot write", path);
    }
    bad = write_report(file, format, report) != 0 || ferror(file);
    bad = fclose(file) != 0 || bad;
    return bad ? complain("cannot write", path) : 0;
}

/* Writes the files before anything is printed, so that stdout stays empty if one cannot be written.
 */
static int write_files(const options *settings, dpar_plan_draw_desc *report)
{
    int bad = 0;
    report->colour = 0;
    if (settings->svg != NULL) {
        bad = write_file(settings->svg, DPAR_PLAN_DRAW_SVG, report);
    }
    if (settings->csv != NULL && bad == 0) {
        bad = write_file(settings->csv, DPAR_PLAN_DRAW_CSV, report);
    }
    return bad;
}

static int show_report(const options *settings, dpar_plan_draw_desc *report)
{
    int bad;
    if (report->note == NULL && note[0] != 0) {
        report->note = note;
    }
    report->colour = options_terminal(1) && getenv("NO_COLOR") == NULL;
    bad = write_report(stdout, settings->json ? DPAR_PLAN_DRAW_JSON : DPAR_PLAN_DRAW_TEXT, report);
    if (settings->explain && !settings->json && bad == 0) {
        bad = write_report(stdout, DPAR_PLAN_DRAW_EXPLAIN, report);
    }
    return bad;
}

static int show_all(const options *settings, dpar_plan_draw_desc *report)
{
    return write_files(settings, report) != 0 ? 2 : show_report(settings, report);
}

static int show_list(void)
{
    int i;
    printf("models:\n");
    for (i = 0; dpar_model_name(i) != NULL; i++) {
        printf("  %s\n", dpar_model_name(i));
    }
    printf("machines:\n");
    for (i = 0; dpar_cluster_name(i) != NULL; i++) {
        dpar_cluster cluster;
        if (dpar_cluster_find(&cluster, dpar_cluster_name(i), NULL) == DPAR_OK) {
            printf("  %-14s %d x %d %s: %s\n", dpar_cluster_name(i), cluster.nodes,
                   cluster.gpus_per_node, cluster.gpu.name, cluster.source);
        }
    }
    printf("GPUs:\n");
    for (i = 0; dpar_gpu_name(i) != NULL; i++) {
        char one[32];
        dpar_cluster cluster;
        int n = snprintf(one, sizeof one, "1:%s", dpar_gpu_name(i));
        if (dpar_cluster_read(&cluster, one, (size_t)n, NULL) == DPAR_OK) {
            printf("  %-14s %.0f GB, %.2f TB/s, %.0f TFLOP/s bf16: %s\n", cluster.gpu.name,
                   cluster.gpu.memory_bytes * 1e-9, cluster.gpu.memory_Bps * 1e-12,
                   cluster.gpu.flops[DPAR_BF16] * 1e-12, cluster.gpu.source);
        }
    }
    printf("precisions:");
    for (i = 0; dpar_recipe_name(i) != NULL; i++) {
        printf(" %s", dpar_recipe_name(i));
    }
    printf("\nsettings: nodes gpus gpu nvlink switched nvls nic sharp taper memory hbm tflops pcie "
           "host nvme");
    for (i = 0; dpar_calibration_name(i) != NULL; i++) {
        printf("%s%s", i % 12 == 0 ? "\n  " : " ", dpar_calibration_name(i));
    }
    printf(
        "\n  measured by doctor --cluster: stream tflops32 tflops64 halo_copy halo_run halo_peer\n"
        "  halo_msg halo_nic halo_cache halo_far link_reduce link_send net_reduce net_send\n");
    return 0;
}

/* ---- searching ------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

static void show_progress(const options *settings, const dpar_planner *planner, double since)
{
    char what[60];
    snprintf(what, sizeof what, "%.1f M configurations", (double)planner->walked * 1e-6);
    if (!settings->quiet) {
        options_progress(since, planner->progress, what);
    }
}

/* Prints the smallest number of GPUs and the best plan on them. */
static int show_smallest(const options *settings, const dpar_job *job,
                         const dpar_planner_desc *desc, int most)
{
    dpar_plan plan;
    dpar_plan_draw_desc report;
    dpar_cluster cluster = *job->cluster;
    dpar_job smaller = *job;
    dpar_why why;
    int gpus;
    if (dpar_plan_smallest(job, desc, most, &plan, &why) != DPAR_OK) {
        fprintf(stderr, "plan: %s%s\n", why.text,
                settings->whole ? ""
                                : " (--whole also searches tp across nodes, offload and more)");
        return 1;
    }
    gpus = dpar_strategy_ranks(&plan.strategy);
    cluster.nodes = gpus < cluster.gpus_per_node ? 1 : gpus / cluster.gpus_per_node;
    cluster.gpus_per_node = gpus / cluster.nodes;
    smaller.cluster = &cluster;
    memset(&report, 0, sizeof report);
    report.job = &smaller;
    report.plan = &plan;
    report.plan_count = 1;
    report.global_batch = desc->global_batch;
    report.evaluated = 1;
    if (!settings->json) {
        printf("smallest number of GPUs that hold it: %d\n\n", gpus);
    }
    return show_all(settings, &report);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int gpus_of(const dpar_job *job)
{
    return job->cluster->nodes * job->cluster->gpus_per_node;
}

static int same_memory(const dpar_memory_usage *first, const dpar_memory_usage *second)
{
    return memcmp(first->term, second->term, sizeof first->term) == 0 &&
           first->moment == second->moment;
}

/* Prints the memory of each stage in GB, with one line for adjacent stages with equal memory. */
static void show_memory(const options *settings, const dpar_job *job, const dpar_plan *plan)
{
    const dpar_strategy *strategy = &plan->strategy;
    dpar_memory_usage memory, next;
    int32_t rank, from, i;
    if (!settings->memory || settings->json) {
        return;
    }
    printf("\nmemory of a GPU by pipeline stage in GB; stage %d needs the most, %s\n",
           (int)plan->memory.worst,
           plan->memory.moment == DPAR_MEMORY_PEAK_LOSS ? "at the loss" : "in a layer's backward");
    for (rank = from = 0; rank < strategy->pp; rank++) {
        dpar_memory_stage(job, strategy, rank, &memory);
        if (rank + 1 < strategy->pp) {
            dpar_memory_stage(job, strategy, rank + 1, &next);
            if (same_memory(&memory, &next)) {
                continue;
            }
        }
        printf(from < rank ? "  stages %d to %d" : "  stage %d", (int)from, (int)rank);
        printf(": %.1f at most, %s: %.1f allocated", memory.total * 1e-9,
               memory.moment == DPAR_MEMORY_PEAK_LOSS ? "at the loss" : "in a layer's backward",
               memory.allocated * 1e-9);
        for (i = 0; i < DPAR_MEMORY_COUNT; i++) {
            if (i == 0) {
                printf(" (");
            }
            if (i == DPAR_MEMORY_COMM) {
                printf("); reserved in addition (");
            }
            if (memory.term[i] >= 0.05e9) {
                printf("%s%s %.1f", i > 0 && i != DPAR_MEMORY_COMM ? " " : "", dpar_memory_name(i),
                       memory.term[i] * 1e-9);
            }
        }
        printf(")\n");
        from = rank + 1;
    }
}

/* ---- changes that would fit ------------------------------------------------------------------ */

enum { CHANGES_MAX = 24 };

/* A change that makes the plan fit, and the memory that the plan then needs. */
typedef struct change {
    char text[120];
    double bytes;
} change;

typedef struct changes {
    change list[CHANGES_MAX];
    int count;
    const char *before; /* changes that all of them include */
} changes;

/* Adds a change if the changed strategy fits. The list is sorted by memory, the most first, because
 * such a change is the smallest. */
static void try_change(changes *found, const char *text, const dpar_job *job,
                       const dpar_strategy *strategy)
{
    dpar_plan plan;
    int i;
    if (found->count == CHANGES_MAX ||
        dpar_plan_price(job, strategy, 0, &plan, NULL, NULL) != DPAR_OK) {
        return;
    }
    if (plan.memory.total > job->cluster->gpu.memory_bytes) { /* it only runs at its lower bound */
        return;
    }
    for (i = found->count; i > 0 && found->list[i - 1].bytes < plan.memory.total; i--) {
        found->list[i] = found->list[i - 1];
    }
    found->count++;
    snprintf(found->list[i].text, sizeof found->list[i].text, "%s%s%s", found->before,
             found->before[0] != 0 && text[0] != 0 ? ", " : "", text);
    found->list[i].bytes = plan.memory.total;
}

/* Tries recomputation, higher ZeRO stages, smaller micro-batches and offloading. */
static void try_strategies(changes *found, const dpar_job *job, const dpar_strategy *strategy)
{
    dpar_strategy changed = *strategy;
    char text[64];
    if (strategy->recompute != DPAR_RECOMPUTE_FULL) {
        changed.recompute = DPAR_RECOMPUTE_FULL;
        try_change(found, "recompute=full", job, &changed);
        changed.recompute = DPAR_RECOMPUTE_ALTERNATE;
        try_change(found, "recompute=alternate", job, &changed);
    }
    changed = *strategy;
    while (changed.zero < 3 && changed.dp > 1) {
        changed.zero++;
        snprintf(text, sizeof text, "zero=%d", (int)changed.zero);
        try_change(found, text, job, &changed);
    }
    changed = *strategy;
    while (changed.micro_batch % 2 == 0) {
        changed.micro_batch /= 2;
        changed.micro_batches *= 2;
        snprintf(text, sizeof text, "mbs=%d", (int)changed.micro_batch);
        try_change(found, text, job, &changed);
    }
    changed = *strategy;
    if (changed.offload == 0 && changed.zero < 2 && changed.dp > 1) {
        changed.zero = 2;
    }
    changed.offload |= DPAR_OFFLOAD_OPTIMIZER;
    try_change(found, "offload=optimizer", job, &changed);
    changed.offload |= DPAR_OFFLOAD_WEIGHTS;
    try_change(found, "offload=optimizer+weights", job, &changed);
    changed.offload |= DPAR_OFFLOAD_ACTIVATIONS;
    try_change(found, "offload=optimizer+weights+activations", job, &changed);
}

/* Tries 2 to 64 times as many GPUs of the kind, with more replicas. */
static void try_gpus(changes *found, const dpar_job *job, const dpar_strategy *strategy)
{
    static dpar_cluster more;
    dpar_job wide = *job;
    dpar_strategy changed = *strategy;
    char text[64];
    int32_t times, before = found->count;
    changed.zero = changed.zero > 0 ? changed.zero : 1;
    for (times = 2; times <= 64 && found->count == before; times *= 2) {
        more = *job->cluster;
        if (more.nics == 0) { /* only the memory matters here, not the speed */
            more.nics = 1;
            more.nic_Bps = 25e9;
        }
        wide.cluster = &more;
        changed.dp = strategy->dp * times;
        if (gpus_of(job) > (1 << 24) ||
            dpar_cluster_resize(&more, gpus_of(job) * times, NULL) != DPAR_OK) {
            return;
        }
        snprintf(text, sizeof text, "%d GPUs in replicas of it%s", (int)gpus_of(&wide),
                 strategy->zero == 0 ? " and zero=1" : "");
        try_change(found, text, &wide, &changed);
    }
}

/* Tries precisions with fewer bytes per parameter. */
static void try_recipes(changes *found, const dpar_job *job, const dpar_strategy *strategy)
{
    static const char *const name[] = {"bf16-grad16", "bf16-moments", "no-master", "adam8",
                                       "pure-bf16"};
    dpar_job narrow = *job;
    char text[64];
    size_t i;
    for (i = 0; i < sizeof name / sizeof name[0]; i++) {
        if (dpar_recipe_find(&narrow.recipe, name[i], NULL) == DPAR_OK) {
            snprintf(text, sizeof text, "precision=%s", name[i]);
            try_change(found, text, &narrow, strategy);
        }
    }
}

/* Tries half and a quarter of the sequence. */
static void try_sequences(changes *found, const options *settings, const char *model,
                          const char *machine, const dpar_job *job, const dpar_strategy *strategy)
{
    static dpar_plan_query query;
    char words[9000], seq[24], text[64];
    options less = *settings;
    int parts;
    for (parts = 2; parts <= 4 && job->work->vocab > 0; parts *= 2) {
        dpar_job shorter = *job;
        snprintf(seq, sizeof seq, "%d", (int)(job->work->tokens / parts));
        less.seq = seq;
        less.evaluate = less.fix = NULL;
        if (!words_of(&less, words, sizeof words) ||
            dpar_plan_query_read(model, machine, words, &query, NULL) != DPAR_OK) {
            return;
        }
        shorter.work = &query.work;
        snprintf(text, sizeof text, "seq=%s", seq);
        try_change(found, text, &shorter, strategy);
    }
}

/* Shards everything, or then recomputes everything, or then makes micro-batches of one sample.
 * done: the last of these three steps, 0 before the first. Returns the step that it makes, or -1 if
 * none is left. */
static int next_change(dpar_strategy *strategy, int done)
{
    if (done < 1 && strategy->dp > 1 && strategy->zero < 3) {
        strategy->zero = 3;
        return 1;
    }
    if (done < 2 &&
        (strategy->recompute != DPAR_RECOMPUTE_FULL || strategy->recompute_layers > 0)) {
        strategy->recompute = DPAR_RECOMPUTE_FULL;
        strategy->recompute_layers = 0;
        return 2;
    }
    if (done < 3 && strategy->micro_batch > 1) {
        strategy->micro_batches *= strategy->micro_batch;
        strategy->micro_batch = 1;
        return 3;
    }
    return -1;
}

/* Lists the changes that would make the plan fit, the smallest first. If no single change suffices,
 * it applies the next general one and tries again. */
static void print_changes(const options *settings, const char *model, const char *machine,
                          const dpar_job *job, const dpar_strategy *strategy)
{
    static const char *const name[] = {"", "zero=3", "recompute=full", "mbs=1"};
    static changes found;
    dpar_strategy changed = *strategy;
    char before[64] = "";
    size_t used = 0;
    int done = 0, i;
    if (!job->work->trains || settings->json) {
        return;
    }
    found.count = 0;
    found.before = before;
    do {
        try_strategies(&found, job, &changed);
        try_recipes(&found, job, &changed);
        try_sequences(&found, settings, model, machine, job, &changed);
        try_gpus(&found, job, &changed);
        done = next_change(&changed, done);
        if (done > 0) {
            used += (size_t)snprintf(before + used, sizeof before - used, "%s%s",
                                     used > 0 ? ", " : "", name[done]);
        }
    } while (found.count == 0 && done > 0);
    for (i = 0; i < found.count; i++) {
        fprintf(stderr, "%s %5.1f GB with %s\n", i == 0 ? "it would fit:" : "             ",
                found.list[i].bytes * 1e-9, found.list[i].text);
    }
}

/* ---- one strategy ---------------------------------------------------------------------------- */

/* Prints why a strategy is not legal, and the nearest one that is. */
static int refuse(const dpar_job *job, const dpar_strategy *strategy, long long batch,
                  const char *reason)
{
    dpar_strategy legal;
    dpar_plan plan;
    dpar_why why;
    char text[256];
    dpar_text out;
    fprintf(stderr, "plan: %s", reason);
    if (dpar_strategy_nearest(job, strategy, batch, &legal, NULL) == DPAR_OK) {
        dpar_text_init(&out, text, sizeof text);
        dpar_strategy_write(&legal, &out);
        fprintf(stderr, "; the nearest legal configuration is %s", text);
        if (dpar_plan_price(job, &legal, batch, &plan, NULL, &why) == DPAR_E_MEMORY) {
            fprintf(stderr, ", which does not fit: it %s", why.text);
        }
    }
    fputc('\n', stderr);
    return 2;
}

/* --evaluate: prices one strategy. */
static int run_evaluate(const options *settings, const char *words, const char *model,
                        const char *machine)
{
    static dpar_plan_result result;
    dpar_plan_rejection rejected[12];
    dpar_why why;
    const dpar_status st = dpar_plan_search(model, machine, words, &result, &why);
    if (st != DPAR_OK && st != DPAR_E_MEMORY) {
        return refuse(&result.query.job, &result.query.strategy,
                      result.query.batch > 0 ? result.query.batch : 0, why.text);
    }
    result.report.rejected = rejected;
    if (settings->explain || settings->json) {
        result.report.rejected_count = dpar_plan_neighbours(
            &result.query.job, &result.plan[0], result.report.global_batch, rejected, 12);
    }
    if (show_all(settings, &result.report) != 0) {
        return 2;
    }
    show_memory(settings, &result.query.job, &result.plan[0]);
    if (st == DPAR_E_MEMORY) {
        complain(why.text, NULL);
        print_changes(settings, model, machine, &result.query.job, &result.plan[0].strategy);
    }
    return st == DPAR_OK ? 0 : 1;
}

/* ---- the search ------------------------------------------------------------------------------ */

/* Prints why nothing is legal: the rule that the fixed values break on their own if there is one,
 * otherwise the reason of the search. */
static int refuse_fixed(const options *settings, const dpar_job *job, const dpar_planner_desc *desc,
                        const char *reason)
{
    dpar_strategy strategy = desc->fixed;
    dpar_plan plan;
    dpar_why why;
    dpar_status st;
    if (settings->fix == NULL) {
        complain(reason, NULL);
        return 2;
    }
    if (strategy.vp > 1 && !(desc->fixed_fields >> DPAR_STRATEGY_FIELD_PP & 1u)) {
        /* with the default of one stage vp itself would be refused, so take the fewest stages */
        int gpus = gpus_of(job);
        strategy.pp = 2;
        while (strategy.pp < gpus && gpus % strategy.pp != 0) {
            strategy.pp++;
        }
    }
    if (dpar_strategy_complete(job, &strategy, desc->fixed_fields, desc->global_batch, &why) !=
        DPAR_OK) {
        return refuse(job, &strategy, desc->global_batch, why.text);
    }
    st = dpar_plan_price(job, &strategy, desc->global_batch, &plan, NULL, &why);
    return refuse(job, &strategy, desc->global_batch,
                  st != DPAR_OK && st != DPAR_E_MEMORY ? why.text : reason);
}

/* Marks neighbours that fit and are faster than the best plan, which means that the usual space
 * does not have them. */
static void mark_outside(dpar_plan_draw_desc *report, dpar_plan_rejection *rejected)
{
    int i;
    for (i = 0; i < report->rejected_count; i++) {
        dpar_plan_rejection *neighbour = &rejected[i];
        size_t used = strlen(neighbour->text);
        if (neighbour->rule == DPAR_STRATEGY_RULE_NONE &&
            neighbour->seconds < report->plan[0].step.total) {
            snprintf(neighbour->text + used, sizeof neighbour->text - used,
                     " (not among the usual: see --whole)");
        }
    }
}

/* Prints on how many GPUs the model would fit. */
static void print_gpus_needed(const dpar_plan_query *query)
{
    long long most = 64LL * gpus_of(&query->job);
    dpar_planner_desc desc = query->search;
    dpar_plan plan;
    desc.global_batch = query->batch > 0 ? query->batch : 0;
    desc.space = DPAR_SPACE_USUAL;
    if (dpar_plan_smallest(&query->job, &desc, most < 1 << 20 ? (int)most : 1 << 20, &plan, NULL) ==
        DPAR_OK) {
        const int gpus = (int)dpar_strategy_ranks(&plan.strategy);
        const int node = query->cluster.gpus_per_node;
        fprintf(stderr, "plan: it fits on %d such GPU%s (nodes of %d)\n", gpus,
                options_plural(gpus, "s"), gpus < node ? gpus : node);
    }
}

/* Returns the neighbour that explains best why the first plan won: of those rejected by `rule` the
 * nearest in time or in memory. A neighbour that is as fast explains nothing. */
static const dpar_plan_rejection *closest(const dpar_plan_draw_desc *report, int rule)
{
    const dpar_plan_rejection *best = NULL;
    int i;
    for (i = 0; i < report->rejected_count; i++) {
        const dpar_plan_rejection *neighbour = &report->rejected[i];
        const int explains =
            neighbour->rule == rule && (rule == DPAR_STRATEGY_RULE_MEMORY ||
                                        neighbour->seconds > 1.005 * report->plan[0].step.total);
        if (explains && (best == NULL || (rule == DPAR_STRATEGY_RULE_MEMORY
                                              ? neighbour->bytes_over < best->bytes_over
                                              : neighbour->seconds < best->seconds))) {
            best = neighbour;
        }
    }
    return best;
}

/* Prints the best plan, why it won, and where the picture is. */
static int show_first(const options *settings, const dpar_plan_draw_desc *report)
{
    const dpar_plan_rejection *slower = closest(report, DPAR_STRATEGY_RULE_NONE);
    const dpar_plan_rejection *over = closest(report, DPAR_STRATEGY_RULE_MEMORY);
    printf("best:     ");
    if (write_report(stdout, DPAR_PLAN_DRAW_LINE, report) != 0) {
        return 2;
    }
    if (slower != NULL && over != NULL) {
        printf("why:      %s; %s\n", slower->text, over->text);
    } else if (slower != NULL || over != NULL) {
        printf("why:      %s\n", slower != NULL ? slower->text : over->text);
    }
    if (settings->svg != NULL) {
        printf("picture:  %s\n", settings->svg);
    } else if (settings->csv != NULL) {
        printf("table:    %s\n", settings->csv);
    }
    putchar('\n');
    return 0;
}

/* Lists the changes with which a search would succeed. They start from a plan that is sharded over
 * all GPUs and recomputes everything, with tensor parallelism in the node if that needs less
 * memory. */
static void print_changes_to_plan(const options *settings, const char *model, const char *machine,
                                  const dpar_job *job)
{
    dpar_strategy sharded, divided;
    dpar_plan plan, other;
    dpar_status st;
    dpar_strategy_init(&sharded);
    sharded.dp = gpus_of(job);
    sharded.zero = sharded.dp > 1 ? 3 : 0;
    sharded.recompute = DPAR_RECOMPUTE_FULL;
    divided = sharded;
    divided.tp = job->cluster->gpus_per_node;
    divided.sp = divided.tp > 1;
    divided.dp = sharded.dp / divided.tp;
    divided.zero = divided.dp > 1 ? 3 : 0;
    st = dpar_plan_price(job, &sharded, 0, &plan, NULL, NULL);
    if (st != DPAR_OK && st != DPAR_E_MEMORY) {
        return;
    }
    st = dpar_plan_price(job, &divided, 0, &other, NULL, NULL);
    if ((st == DPAR_OK || st == DPAR_E_MEMORY) && other.memory.total < plan.memory.total) {
        sharded = divided;
    }
    print_changes(settings, model, machine, job, &sharded);
}

/* ---- notes ----------------------------------------------------------------------------------- */

enum { SIMULATION_BYTES = 32 * 1024 * 1024 };

/* Simulates the schedules of the n plans in `top`. A time that differs by more than 2 % from the
 * closed forms decides the order; for the first `shown` plans such times and sizes are noted. */
static void simulate(const dpar_job *job, dpar_plan *top, int n, int shown)
{
    static double rate[64], slower[64], larger[64], seconds[64], bytes[64];
    char text[400];
    dpar_text out;
    dpar_why why;
    void *memory = malloc(SIMULATION_BYTES);
    int i, k;
    for (i = 0; i < n; i++) {
        dpar_plan_simulation sim;
        dpar_plan plan = top[i];
        double total = plan.step.total, speed;
        memset(&sim, 0, sizeof sim);
        if (memory == NULL ||
            dpar_plan_simulate(job, &plan, &sim, memory, SIMULATION_BYTES, &why) != DPAR_OK) {
            sim.slower = sim.larger = 0.0;
        }
        total *= sim.slower > 0.02 || sim.slower < -0.02 ? 1.0 + sim.slower : 1.0;
        speed = plan.step.samples / total;
        for (k = i; k > 0 && speed > rate[k - 1] * (1.0 + 1e-12); k--) {
            top[k] = top[k - 1];
            rate[k] = rate[k - 1];
            slower[k] = slower[k - 1];
            larger[k] = larger[k - 1];
            seconds[k] = seconds[k - 1];
            bytes[k] = bytes[k - 1];
        }
        top[k] = plan;
        rate[k] = speed;
        slower[k] = sim.slower;
        larger[k] = sim.larger;
        seconds[k] = sim.total;
        bytes[k] = sim.memory;
    }
    free(memory);
    for (i = 0; i < n && i < shown; i++) {
        const int time = slower[i] > 0.02 || slower[i] < -0.02;
        const int size = larger[i] > 0.02 || larger[i] < -0.02;
        if (!time && !size) {
            continue;
        }
        snprintf(text, sizeof text, "%d: its schedule, simulated: ", i + 1);
        dpar_text_init(&out, text + strlen(text), sizeof text - strlen(text));
        if (time) {
            char part[80];
            snprintf(part, sizeof part, "%.4g s, %+.1f %%%s", seconds[i], 100.0 * slower[i],
                     size ? "; " : "");
            dpar_text_put(&out, part);
        }
        if (size) {
            char part[80];
            snprintf(part, sizeof part, "%.1f GB, %+.1f %%%s", bytes[i] * 1e-9, 100.0 * larger[i],
                     bytes[i] > job->cluster->gpu.memory_bytes ? ": does not fit" : "");
            dpar_text_put(&out, part);
        }
        add_note(text);
    }
}

/* Returns the tokens per second and GPU of the best plan with one more word, 0 if nothing fits, or
 * -1 if the word is not allowed. */
static double other_rate(const char *model, const char *machine, const char *words,
                         const char *more)
{
    static dpar_plan_query other;
    static dpar_planner planner;
    static char all[9100];
    dpar_plan top;
    dpar_planner_desc desc;
    dpar_status st;
    snprintf(all, sizeof all, "%s %s", words, more);
    if (dpar_plan_query_read(model, machine, all, &other, NULL) != DPAR_OK) {
        return -1.0;
    }
    desc = other.search;
    desc.space = DPAR_SPACE_USUAL;
    desc.top = &top;
    desc.top_capacity = 1;
    st = dpar_planner_init(&planner, &other.job, &desc, NULL);
    while (st == DPAR_OK || st == DPAR_MORE) {
        st = dpar_planner_run(&planner, 1 << 30, NULL);
    }
    return st == DPAR_DONE ? top.step.tokens_per_s_gpu : 0.0;
}

/* Appends an assumption and the effect of another choice: "what (other: 12 % slower)". rate and
 * now: tokens per second with the other choice and with this one; a rate below 0 appends nothing.
 */
static void add_assumption(char *text, size_t room, const char *what, const char *other,
                           double rate, double now)
{
    const size_t used = strlen(text);
    double gain;
    if (rate < 0.0) {
        return;
    }
    snprintf(text + used, room - used, "%s%s (%s: ", used > 0 ? ", " : "assumed: ", what, other);
    if (rate <= 0.0) {
        snprintf(text + strlen(text), room - strlen(text), "does not fit)");
        return;
    }
    gain = rate > now ? rate / now - 1.0 : 1.0 - now / rate;
    if (gain < 0.005 && gain > -0.005) {
        snprintf(text + strlen(text), room - strlen(text), "as fast)");
    } else if (gain < 0.0) {
        snprintf(text + strlen(text), room - strlen(text), "%.0f %% slower)", -100.0 * gain);
    } else {
        snprintf(text + strlen(text), room - strlen(text), "%.0f %% faster)", 100.0 * gain);
    }
}

/* Notes the assumptions on which the result depends, each with the effect of another choice. */
static void note_assumptions(const options *settings, const dpar_plan_query *query,
                             const char *words, const char *model, const char *machine,
                             const dpar_plan *best)
{
    /* for each DPAR_MODEL_STACK_*: another stack, another generation, and its name in words */
    static const char *const stack[DPAR_MODEL_STACK_END] = {
        "",      "core", "torch", "core", "torch", "torch", "torch",
        "torch", "core", "core",  "core", "core",  "torch"};
    static const char *const age[DPAR_MODEL_STACK_END] = {"",
                                                          "megatron@2021",
                                                          "core@2024",
                                                          "torch@2023",
                                                          "",
                                                          "torch@2025",
                                                          "",
                                                          "",
                                                          "nemo@2024",
                                                          "",
                                                          "megatron@2022",
                                                          "nemo@2025",
                                                          ""};
    static const char *const stack_name[DPAR_MODEL_STACK_END] = {
        "",
        "megatron software of 2022",
        "core software of today (2025 on)",
        "torch software of today (2024 on)",
        "compiled software of today (2024 on)",
        "llm-foundry software of 2023",
        "torchtitan software of 2025",
        "nanotron software of 2025",
        "nemo software of today (2025 on)",
        "deepep software of 2025",
        "megatron software of 2021",
        "nemo software of 2024",
        "maxtext software of 2024"};
    const dpar_workload *work = &query->work;
    char text[600], what[80], other[80];
    double now = other_rate(model, machine, words, "");
    text[0] = 0;
    if (now <= 0.0) {
        return;
    }
    if (settings->precision == NULL && work->trains) {
        const char *name =
            query->cluster.gpu.flops[DPAR_F8] > 0.0 && work->heads > 0 ? "fp8" : "zero";
        snprintf(what, sizeof what, "precision %s", query->job.recipe.name);
        snprintf(other, sizeof other, "precision=%s", name);
        add_assumption(text, sizeof text, what, name, other_rate(model, machine, words, other),
                       now);
    }
    if (settings->stack == NULL && work->heads > 0 && work->stack_version >= 1) {
        snprintf(other, sizeof other, "stack=%s", stack[work->stack_version]);
        add_assumption(text, sizeof text, stack_name[work->stack_version],
                       stack[work->stack_version], other_rate(model, machine, words, other), now);
        if (age[work->stack_version][0] != 0) {
            snprintf(other, sizeof other, "stack=%s", age[work->stack_version]);
            add_assumption(text, sizeof text, "its age", age[work->stack_version],
                           other_rate(model, machine, words, other), now);
        }
    }
    if (settings->seq == NULL && work->vocab > 0) {
        snprintf(what, sizeof what, "%.0f tokens a sample", work->tokens);
        snprintf(other, sizeof other, "seq=%.0f", 2.0 * work->tokens);
        add_assumption(text, sizeof text, what, other + 4, other_rate(model, machine, words, other),
                       now);
    }
    if (settings->batch == NULL && work->trains) {
        snprintf(what, sizeof what, "%lld samples a step", (long long)query->search.global_batch);
        snprintf(other, sizeof other, "batch=%lld", 2LL * (long long)query->search.global_batch);
        add_assumption(text, sizeof text, what, other + 6, other_rate(model, machine, words, other),
                       now);
    }
    if (best->strategy.ep > 1 && best->strategy.overlap & DPAR_OVERLAP_DEFAULT) {
        dpar_strategy bare = best->strategy;
        dpar_plan other_plan;
        bare.overlap = DPAR_OVERLAP_DP | DPAR_OVERLAP_TP | DPAR_OVERLAP_PP;
        if ((work->stack_version == DPAR_MODEL_STACK_NEMO ||
             work->stack_version == DPAR_MODEL_STACK_DEEPEP) &&
            dpar_plan_price(&query->job, &bare, 0, &other_plan, NULL, NULL) == DPAR_OK) {
            add_assumption(text, sizeof text,
                           "nine tenths of the experts' messages hidden, no measurement", "none",
                           best->step.total, other_plan.step.total);
        }
    }
    if (text[0] != 0) {
        add_note(text);
    }
}

/* Searches, and prints the best plans. */
static int run_search(const options *settings, const dpar_plan_query *query, const char *words,
                      const char *model, const char *machine)
{
    static dpar_plan top[64], front[32];
    static dpar_planner planner;
    dpar_plan_rejection rejected[12];
    dpar_planner_desc search = query->search, *desc = &search;
    const dpar_job *job = &query->job;
    dpar_plan_draw_desc report;
    dpar_why why;
    char line[100];
    double since = now();
    dpar_status st;
    desc->top = top;
    desc->top_capacity =
        settings->top < 8 ? 8 : settings->top; /* more, as the simulation may change their order */
    desc->front = front; /* costs time in the whole space, so only if it is shown */
    desc->front_capacity =
        settings->whole && !settings->explain && !settings->json && settings->svg == NULL ? 0 : 32;
    st = dpar_planner_init(&planner, job, desc, &why);
    if (st != DPAR_OK) {
        return complain(why.text, NULL);
    }
    signal(SIGINT, on_interrupt);
    do {
        st = dpar_planner_run(&planner, 100000, &why);
        show_progress(settings, &planner, since);
    } while (st == DPAR_MORE && !interrupted);
    if (!settings->quiet) {
        options_progress(since, 1.0, NULL);
    }
    if (st == DPAR_E_NONE && planner.evaluated == 0) {
        return refuse_fixed(settings, job, desc, why.text);
    }
    if (st < 0) {
        complain(why.text, NULL);
        if (st == DPAR_E_NONE && !settings->json) {
            print_gpus_needed(query);
            print_changes_to_plan(settings, model, machine, job);
        }
    }
    if (planner.top_count > 0) {
        simulate(job, top, planner.top_count, settings->top);
    }
    memset(&report, 0, sizeof report);
    report.job = job;
    report.plan = top;
    report.plan_count = planner.top_count < settings->top ? planner.top_count : settings->top;
    report.front = front;
    report.front_count = planner.front_count;
    report.rejected = rejected;
    report.rejected_count =
        planner.top_count > 0 ? dpar_plan_neighbours(job, &top[0], desc->global_batch, rejected, 12)
                              : 0;
    if (desc->space == DPAR_SPACE_USUAL) {
        mark_outside(&report, rejected);
    }
    report.rejected_by_rule = planner.rejected;
    report.global_batch = desc->global_batch;
    report.evaluated = planner.evaluated;
    report.seconds = now() - since;
    if (interrupted) {
        snprintf(line, sizeof line, "interrupted after %.0f %% of the space: the best so far",
                 100.0 * planner.progress);
        add_note(line);
    } else if (planner.cut > 0) {
        snprintf(line, sizeof line,
                 "%.3g configurations more cannot be among these: their bounds say so",
                 (double)planner.cut);
        add_note(line);
    }
    if (planner.top_count > 0 && !interrupted) {
        note_assumptions(settings, query, words, model, machine, &top[0]);
    }
    if (planner.top_count == 0) {
        report.note = why.text;
    }
    if (planner.top_count == 0 && !settings->json) {
        return 1;
    }
    if (write_files(settings, &report) != 0 ||
        (!settings->json && show_first(settings, &report) != 0)) {
        return 2;
    }
    report.rejected_count = settings->explain || settings->json ? report.rejected_count : 0;
    if (show_report(settings, &report) != 0) {
        return 2;
    }
    if (planner.top_count > 0) {
        show_memory(settings, job, &top[0]);
    }
    return planner.top_count > 0 ? 0 : 1;
}

static void show_part(const char *name, const char *text)
{
    if (text[0] != 0) {
        printf("%s%s\n", name, text);
    }
}

/* --recommend: prints one strategy and the reason for it. */
static int run_recommend(const options *settings, const dpar_plan_query *query, const char *words,
                         const char *model, const char *machine)
{
    const dpar_job *job = &query->job;
    const dpar_planner_desc *desc = &query->search;
    dpar_advice advice;
    dpar_plan_draw_desc report;
    dpar_why why;
    dpar_status st = dpar_plan_recommend(job, desc, &advice, &why);
    const char *unit = "tokens";
    if (st == DPAR_E_NONE) {
        return refuse_fixed(settings, job, desc, why.text);
    }
    if (st != DPAR_OK && st != DPAR_E_MEMORY) {
        return complain(why.text, NULL);
    }
    memset(&report, 0, sizeof report);
    report.job = job;
    report.plan = &advice.plan;
    report.plan_count = 1;
    report.global_batch = desc->global_batch;
    report.evaluated = 1;
    report.advice = &advice;
    report.note = st == DPAR_OK ? NULL : why.text;
    if (st == DPAR_OK) {
        simulate(job, &advice.plan, 1, 1);
        note_assumptions(settings, query, words, model, machine, &advice.plan);
    }
    if (job->work->dims > 0) {
        unit = job->work->tokens <= 1.0 ? "images" : "cells";
    }
    if (!settings->json) {
        printf("%s\n  why:       %s\n", advice.name, advice.why);
        printf("  step:      %.4g s, %.4g %s/s a GPU, MFU %.1f %%, %.1f GB a GPU\n",
               advice.plan.step.total, advice.plan.step.tokens_per_s_gpu, unit,
               100.0 * advice.plan.step.mfu, advice.plan.memory.total * 1e-9);
        show_part("  fastest:   ", advice.fastest);
        show_part(desc->fixed_fields == 0 ? "  simpler:   " : "  runner-up: ", advice.runner_up);
        show_part("  warning:   ", advice.warning_text);
        putchar('\n');
    }
    if (show_all(settings, &report) != 0) {
        return 2;
    }
    if (st != DPAR_OK) {
        complain(why.text, NULL);
    }
    if (st == DPAR_E_MEMORY) {
        print_changes(settings, model, machine, job, &advice.plan.strategy);
    }
    return st == DPAR_OK ? 0 : 1;
}

/* ---- main ------------------------------------------------------------------------------------ */

static int run(int argc, char **argv)
{
    static dpar_plan_query query;
    char words[9000], *model, *machine;
    const char *of, *on; /* the model and the machine: names, or texts of files */
    options settings;
    int code = read_options(&settings, argc, argv);
    if (code >= 0) {
        return code;
    }
    if (argc == 1) {
        fputs("usage: plan MODEL --cluster MACHINE [options]; see plan --help\n", stderr);
        return 2;
    }
    if (settings.list) {
        return show_list();
    }
    if (settings.model == NULL || settings.cluster == NULL) {
        return complain("a model and --cluster are needed; --help shows examples", NULL);
    }
    if (refuse_stdout("--svg", settings.svg) != 0 || refuse_stdout("--csv", settings.csv) != 0 ||
        refuse_bare("--fix", settings.fix) != 0 ||
        refuse_bare("--evaluate", settings.evaluate) != 0) {
        return 2;
    }
    if ((settings.evaluate != NULL) + (settings.min_gpus != 0) + (settings.recommend != 0) > 1 ||
        (settings.evaluate != NULL && settings.fix != NULL)) {
        return complain("--evaluate, --min-gpus and --recommend exclude each other, and so do "
                        "--evaluate and --fix",
                        NULL);
    }
    if (!words_of(&settings, words, sizeof words) ||
        read_query(&settings, words, &query, &model, &machine) != 0) {
        return 2;
    }
    of = model != NULL ? model : settings.model;
    on = machine != NULL ? machine : settings.cluster;
    if (settings.evaluate != NULL) {
        code = run_evaluate(&settings, words, of, on);
    } else if (settings.min_gpus) {
        dpar_planner_desc desc = query.search;
        /* without --batch it is free, because the default is that of the whole machine */
        desc.global_batch = query.batch > 0 ? query.batch : 0;
        code = show_smallest(&settings, &query.job, &desc, 1 << 20);
    } else {
        code = settings.recommend ? run_recommend(&settings, &query, words, of, on)
                                  : run_search(&settings, &query, words, of, on);
    }
    free(model);
    free(machine);
    return code;
}

int main(int argc, char **argv)
{
    return options_finish(run(argc, argv));
}
