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
    "  --list              list the presets of models, GPUs, machines and precisions\n"
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

#include "options.h"

/* ---- options --------------------------------------------------------------------------------- */

typedef struct options {
    const char *model, *cluster, *precision, *fix, *evaluate, *svg, *csv, *stack, *attention;
    const char *gpus, *seq, *batch;
    int top, whole, min_gpus, recommend, explain, memory, json, list, quiet;
} options;

/* Returns -1 to go on, or the exit code. */
static int read_options(options *o, int argc, char **argv)
{
    const option list[] = {{"--cluster", OPTION_WORD, &o->cluster, 0, 0},
                           {"--precision", OPTION_WORD, &o->precision, 0, 0},
                           {"--fix", OPTION_WORD, &o->fix, 0, 0},
                           {"--evaluate", OPTION_WORD, &o->evaluate, 0, 0},
                           {"--svg", OPTION_WORD, &o->svg, 0, 0},
                           {"--csv", OPTION_WORD, &o->csv, 0, 0},
                           {"--stack", OPTION_WORD, &o->stack, 0, 0},
                           {"--attention", OPTION_WORD, &o->attention, 0, 0},
                           {"--gpus", OPTION_WORD, &o->gpus, 0, 0},
                           {"--seq", OPTION_WORD, &o->seq, 0, 0},
                           {"--batch", OPTION_WORD, &o->batch, 0, 0},
                           {"--top", OPTION_INT, &o->top, 1, 64},
                           {"--whole", OPTION_FLAG, &o->whole, 0, 0},
                           {"--min-gpus", OPTION_FLAG, &o->min_gpus, 0, 0},
                           {"--recommend", OPTION_FLAG, &o->recommend, 0, 0},
                           {"--explain", OPTION_FLAG, &o->explain, 0, 0},
                           {"--memory", OPTION_FLAG, &o->memory, 0, 0},
                           {"--json", OPTION_FLAG, &o->json, 0, 0},
                           {"--list", OPTION_FLAG, &o->list, 0, 0},
                           {"--quiet", OPTION_FLAG, &o->quiet, 0, 0}};
    memset(o, 0, sizeof *o);
    o->top = 8;
    return options_read(argc, argv, list, sizeof list / sizeof *list, &o->model, 1);
}

/* Writes the options that dpar_plan_query_read knows as its words. Returns 1, or 0 after a message
 * if a value has a blank. */
static int words_of(const options *o, char *text, size_t room)
{
    const char *const name[] = {"gpus",  "seq",       "batch", "precision",
                                "stack", "attention", "fix",   "evaluate"};
    const char *const value[] = {o->gpus,  o->seq,       o->batch, o->precision,
                                 o->stack, o->attention, o->fix,   o->evaluate};
    size_t i, n = 0;
    text[0] = 0;
    for (i = 0; i < sizeof name / sizeof *name; i++) {
        if (value[i] != NULL && strpbrk(value[i], " \t\n") != NULL) {
            char what[60];
            snprintf(what, sizeof what, "--%s takes a value without blanks, not", name[i]);
            complain(what, value[i]);
            return 0;
        }
        if (value[i] != NULL) {
            n += (size_t)snprintf(text + n, room - n, " %s=%s", name[i], value[i]);
        }
    }
    snprintf(text + n, room - n, "%s", o->whole ? " whole" : "");
    return 1;
}

/* ---- files ----------------------------------------------------------------------------------- */

enum { FILE_LIMIT = 64 * 1024 * 1024 };

/* Returns 1 if the file can be read. */
static int is_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f != NULL) {
        fclose(f);
    }
    return f != NULL;
}

/* Reads a whole file. Returns NULL after a message on stderr. */
static char *read_file(const char *path)
{
    FILE *f;
    char *text;
    size_t n;
#if defined(__unix__) || defined(__APPLE__)
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        complain("a folder, not a file:", path);
        return NULL;
    }
#endif
    f = fopen(path, "rb");
    text = f != NULL ? (char *)malloc((size_t)FILE_LIMIT + 1) : NULL;
    if (text == NULL) {
        complain("cannot read", path);
        if (f != NULL) {
            fclose(f);
        }
        return NULL;
    }
    n = fread(text, 1, (size_t)FILE_LIMIT + 1, f);
    if (ferror(f) || n > FILE_LIMIT || memchr(text, 0, n) != NULL) {
        complain(n > FILE_LIMIT ? "this file has more than 64 MB:" : "cannot read", path);
        free(text);
        fclose(f);
        return NULL;
    }
    fclose(f);
    text[n] = 0;
    return text;
}

static int ends_in(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
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
static int read_query(const options *o, const char *words, dpar_plan_query *query, char **model,
                      char **machine)
{
    dpar_why why;
    char *inside;
    const char *settings = strstr(o->model, ".json,");
    *model = *machine = NULL;
    inside = settings != NULL ? path_of(o->model, (size_t)(settings + 5 - o->model), "")
                              : in_folder(o->model);
    if (inside != NULL) {
        *model = read_file(inside);
        free(inside);
        if (*model != NULL && settings != NULL) {
            *model = joined(*model, settings + 5);
        }
        if (*model == NULL) {
            return 2;
        }
    } else if (ends_in(o->model, ".json") || (strchr(o->model, '/') != NULL && is_file(o->model))) {
        *model = read_file(o->model);
        if (*model == NULL) {
            return 2;
        }
    }
    if (is_file(o->cluster)) {
        *machine = read_file(o->cluster);
        if (*machine == NULL) {
            return 2;
        }
    }
    if (dpar_plan_query_read(*model != NULL ? *model : o->model,
                             *machine != NULL ? *machine : o->cluster, words, query,
                             &why) != DPAR_OK) {
        return complain(why.text, NULL);
    }
    if (query->machine_gpus > 0) {
        snprintf(note, sizeof note, "%d GPUs of the kind of %s, which has %d",
                 query->cluster.nodes * query->cluster.gpus_per_node, query->cluster.name,
                 query->machine_gpus);
    }
    return 0;
}

/* ---- output ---------------------------------------------------------------------------------- */

/* Writes a report of any length: draws it once to measure it, and again to fill the buffer. */
static int write_report(FILE *to, int32_t format, const dpar_plan_draw_desc *r)
{
    dpar_text t;
    char *buffer;
    size_t room;
    dpar_text_init(&t, NULL, 0);
    dpar_plan_draw(&t, r, format, NULL);
    room = t.used + 64;
    buffer = (char *)malloc(room);
    if (buffer == NULL) {
        return complain("out of memory", NULL);
    }
    dpar_text_init(&t, buffer, room);
    dpar_plan_draw(&t, r, format, NULL);
    fputs(buffer, to);
    free(buffer);
    return 0;
}

static int write_file(const char *path, int32_t format, const dpar_plan_draw_desc *r)
{
    FILE *f = fopen(path, "wb");
    int bad;
    if (f == NULL) {
        return complain("cannot write", path);
    }
    bad = write_report(f, format, r) != 0 || ferror(f);
    bad = fclose(f) != 0 || bad;
    return bad ? complain("cannot write", path) : 0;
}

/* Writes the files before anything is printed, so that stdout stays empty if one cannot be written.
 */
static int write_files(const options *o, dpar_plan_draw_desc *r)
{
    int bad = 0;
    r->colour = 0;
    if (o->svg != NULL) {
        bad = write_file(o->svg, DPAR_PLAN_DRAW_SVG, r);
    }
    if (o->csv != NULL && bad == 0) {
        bad = write_file(o->csv, DPAR_PLAN_DRAW_CSV, r);
    }
    return bad;
}

static int show_report(const options *o, dpar_plan_draw_desc *r)
{
    int bad;
    if (r->note == NULL && note[0] != 0) {
        r->note = note;
    }
    r->colour = options_terminal(1) && getenv("NO_COLOR") == NULL;
    bad = write_report(stdout, o->json ? DPAR_PLAN_DRAW_JSON : DPAR_PLAN_DRAW_TEXT, r);
    if (o->explain && !o->json && bad == 0) {
        bad = write_report(stdout, DPAR_PLAN_DRAW_EXPLAIN, r);
    }
    return bad;
}

static int show_all(const options *o, dpar_plan_draw_desc *r)
{
    return write_files(o, r) != 0 ? 2 : show_report(o, r);
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
        dpar_cluster c;
        if (dpar_cluster_find(&c, dpar_cluster_name(i), NULL) == DPAR_OK) {
            printf("  %-14s %d x %d %s: %s\n", dpar_cluster_name(i), c.nodes, c.gpus_per_node,
                   c.gpu.name, c.source);
        }
    }
    printf("GPUs:\n");
    for (i = 0; dpar_gpu_name(i) != NULL; i++) {
        char one[32];
        dpar_cluster c;
        int n = snprintf(one, sizeof one, "1:%s", dpar_gpu_name(i));
        if (dpar_cluster_read(&c, one, (size_t)n, NULL) == DPAR_OK) {
            printf("  %-14s %.0f GB, %.2f TB/s, %.0f TFLOP/s bf16: %s\n", c.gpu.name,
                   c.gpu.memory_bytes * 1e-9, c.gpu.memory_Bps * 1e-12,
                   c.gpu.flops[DPAR_BF16] * 1e-12, c.gpu.source);
        }
    }
    printf("precisions:");
    for (i = 0; dpar_recipe_name(i) != NULL; i++) {
        printf(" %s", dpar_recipe_name(i));
    }
    printf("\n");
    return 0;
}

/* ---- searching ------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

static void show_progress(const options *o, const dpar_planner *p, double since)
{
    char what[60];
    snprintf(what, sizeof what, "%.1f M configurations", (double)p->walked * 1e-6);
    if (!o->quiet) {
        options_progress(since, p->progress, what);
    }
}

/* Prints the smallest number of GPUs and the best plan on them. */
static int show_smallest(const options *o, const dpar_job *job, const dpar_planner_desc *q,
                         int most)
{
    dpar_plan plan;
    dpar_plan_draw_desc r;
    dpar_cluster c = *job->cluster;
    dpar_job smaller = *job;
    dpar_why why;
    int gpus;
    if (dpar_plan_smallest(job, q, most, &plan, &why) != DPAR_OK) {
        fprintf(stderr, "plan: %s%s\n", why.text,
                o->whole ? "" : " (--whole also searches tp across nodes, offload and more)");
        return 1;
    }
    gpus = dpar_strategy_ranks(&plan.strategy);
    c.nodes = gpus < c.gpus_per_node ? 1 : gpus / c.gpus_per_node;
    c.gpus_per_node = gpus / c.nodes;
    smaller.cluster = &c;
    memset(&r, 0, sizeof r);
    r.job = &smaller;
    r.plan = &plan;
    r.plan_count = 1;
    r.global_batch = q->global_batch;
    r.evaluated = 1;
    if (!o->json) {
        printf("smallest number of GPUs that hold it: %d\n\n", gpus);
    }
    return show_all(o, &r);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int gpus_of(const dpar_job *job)
{
    return job->cluster->nodes * job->cluster->gpus_per_node;
}

static int same_memory(const dpar_memory_usage *a, const dpar_memory_usage *b)
{
    return memcmp(a->term, b->term, sizeof a->term) == 0 && a->moment == b->moment;
}

/* Prints the memory of each stage in GB, with one line for adjacent stages with equal memory. */
static void show_memory(const options *o, const dpar_job *job, const dpar_plan *plan)
{
    const dpar_strategy *s = &plan->strategy;
    dpar_memory_usage m, next;
    int32_t rank, from, i;
    if (!o->memory || o->json) {
        return;
    }
    printf("\nmemory of a GPU by pipeline stage in GB; stage %d needs the most, %s\n",
           (int)plan->memory.worst,
           plan->memory.moment == DPAR_MEMORY_PEAK_LOSS ? "at the loss" : "in a layer's backward");
    for (rank = from = 0; rank < s->pp; rank++) {
        dpar_memory_stage(job, s, rank, &m);
        if (rank + 1 < s->pp) {
            dpar_memory_stage(job, s, rank + 1, &next);
            if (same_memory(&m, &next)) {
                continue;
            }
        }
        printf(from < rank ? "  stages %d to %d" : "  stage %d", (int)from, (int)rank);
        printf(": %.1f at most, %s: %.1f allocated", m.total * 1e-9,
               m.moment == DPAR_MEMORY_PEAK_LOSS ? "at the loss" : "in a layer's backward",
               m.allocated * 1e-9);
        for (i = 0; i < DPAR_MEMORY_COUNT; i++) {
            if (i == 0) {
                printf(" (");
            }
            if (i == DPAR_MEMORY_COMM) {
                printf("); reserved in addition (");
            }
            if (m.term[i] >= 0.05e9) {
                printf("%s%s %.1f", i > 0 && i != DPAR_MEMORY_COMM ? " " : "", dpar_memory_name(i),
                       m.term[i] * 1e-9);
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
static void try_change(changes *w, const char *text, const dpar_job *job, const dpar_strategy *s)
{
    dpar_plan plan;
    int i;
    if (w->count == CHANGES_MAX || dpar_plan_price(job, s, 0, &plan, NULL, NULL) != DPAR_OK) {
        return;
    }
    if (plan.memory.total > job->cluster->gpu.memory_bytes) { /* it only runs at its lower bound */
        return;
    }
    for (i = w->count; i > 0 && w->list[i - 1].bytes < plan.memory.total; i--) {
        w->list[i] = w->list[i - 1];
    }
    w->count++;
    snprintf(w->list[i].text, sizeof w->list[i].text, "%s%s%s", w->before,
             w->before[0] != 0 && text[0] != 0 ? ", " : "", text);
    w->list[i].bytes = plan.memory.total;
}

/* Tries recomputation, higher ZeRO stages, smaller micro-batches and offloading. */
static void try_strategies(changes *w, const dpar_job *job, const dpar_strategy *s)
{
    dpar_strategy v = *s;
    char text[64];
    if (s->recompute != DPAR_RECOMPUTE_FULL) {
        v.recompute = DPAR_RECOMPUTE_FULL;
        try_change(w, "recompute=full", job, &v);
        v.recompute = DPAR_RECOMPUTE_ALTERNATE;
        try_change(w, "recompute=alternate", job, &v);
    }
    v = *s;
    while (v.zero < 3 && v.dp > 1) {
        v.zero++;
        snprintf(text, sizeof text, "zero=%d", (int)v.zero);
        try_change(w, text, job, &v);
    }
    v = *s;
    while (v.micro_batch % 2 == 0) {
        v.micro_batch /= 2;
        v.micro_batches *= 2;
        snprintf(text, sizeof text, "mbs=%d", (int)v.micro_batch);
        try_change(w, text, job, &v);
    }
    v = *s;
    if (v.offload == 0 && v.zero < 2 && v.dp > 1) {
        v.zero = 2;
    }
    v.offload |= DPAR_OFFLOAD_OPTIMIZER;
    try_change(w, "offload=optimizer", job, &v);
    v.offload |= DPAR_OFFLOAD_WEIGHTS;
    try_change(w, "offload=optimizer+weights", job, &v);
    v.offload |= DPAR_OFFLOAD_ACTIVATIONS;
    try_change(w, "offload=optimizer+weights+activations", job, &v);
}

/* Tries 2 to 64 times as many GPUs of the kind, with more replicas. */
static void try_gpus(changes *w, const dpar_job *job, const dpar_strategy *s)
{
    static dpar_cluster more;
    dpar_job wide = *job;
    dpar_strategy v = *s;
    char text[64];
    int32_t times, before = w->count;
    v.zero = v.zero > 0 ? v.zero : 1;
    for (times = 2; times <= 64 && w->count == before; times *= 2) {
        more = *job->cluster;
        if (more.nics == 0) { /* only the memory matters here, not the speed */
            more.nics = 1;
            more.nic_Bps = 25e9;
        }
        wide.cluster = &more;
        v.dp = s->dp * times;
        if (gpus_of(job) > (1 << 24) ||
            dpar_cluster_resize(&more, gpus_of(job) * times, NULL) != DPAR_OK) {
            return;
        }
        snprintf(text, sizeof text, "%d GPUs in replicas of it%s", (int)gpus_of(&wide),
                 s->zero == 0 ? " and zero=1" : "");
        try_change(w, text, &wide, &v);
    }
}

/* Tries precisions with fewer bytes per parameter. */
static void try_recipes(changes *w, const dpar_job *job, const dpar_strategy *s)
{
    static const char *const name[] = {"bf16-grad16", "bf16-moments", "no-master", "adam8",
                                       "pure-bf16"};
    dpar_job narrow = *job;
    char text[64];
    size_t i;
    for (i = 0; i < sizeof name / sizeof name[0]; i++) {
        if (dpar_recipe_find(&narrow.recipe, name[i], NULL) == DPAR_OK) {
            snprintf(text, sizeof text, "precision=%s", name[i]);
            try_change(w, text, &narrow, s);
        }
    }
}

/* Tries half and a quarter of the sequence. */
static void try_sequences(changes *w, const options *o, const char *model, const char *machine,
                          const dpar_job *job, const dpar_strategy *s)
{
    static dpar_plan_query query;
    char words[9000], seq[24], text[64];
    options less = *o;
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
        try_change(w, text, &shorter, s);
    }
}

/* Shards everything, or then recomputes everything, or then makes micro-batches of one sample.
 * done: the last of these three steps, 0 before the first. Returns the step that it makes, or -1 if
 * none is left. */
static int next_change(dpar_strategy *s, int done)
{
    if (done < 1 && s->dp > 1 && s->zero < 3) {
        s->zero = 3;
        return 1;
    }
    if (done < 2 && (s->recompute != DPAR_RECOMPUTE_FULL || s->recompute_layers > 0)) {
        s->recompute = DPAR_RECOMPUTE_FULL;
        s->recompute_layers = 0;
        return 2;
    }
    if (done < 3 && s->micro_batch > 1) {
        s->micro_batches *= s->micro_batch;
        s->micro_batch = 1;
        return 3;
    }
    return -1;
}

/* Lists the changes that would make the plan fit, the smallest first. If no single change suffices,
 * it applies the next general one and tries again. */
static void print_changes(const options *o, const char *model, const char *machine,
                          const dpar_job *job, const dpar_strategy *strategy)
{
    static const char *const name[] = {"", "zero=3", "recompute=full", "mbs=1"};
    static changes w;
    dpar_strategy s = *strategy;
    char before[64] = "";
    size_t used = 0;
    int done = 0, i;
    if (!job->work->trains || o->json) {
        return;
    }
    w.count = 0;
    w.before = before;
    do {
        try_strategies(&w, job, &s);
        try_recipes(&w, job, &s);
        try_sequences(&w, o, model, machine, job, &s);
        try_gpus(&w, job, &s);
        done = next_change(&s, done);
        if (done > 0) {
            used += (size_t)snprintf(before + used, sizeof before - used, "%s%s",
                                     used > 0 ? ", " : "", name[done]);
        }
    } while (w.count == 0 && done > 0);
    for (i = 0; i < w.count; i++) {
        fprintf(stderr, "%s %5.1f GB with %s\n", i == 0 ? "it would fit:" : "             ",
                w.list[i].bytes * 1e-9, w.list[i].text);
    }
}

/* ---- one strategy ---------------------------------------------------------------------------- */

/* Prints why a strategy is not legal, and the nearest one that is. */
static int refuse(const dpar_job *job, const dpar_strategy *s, long long batch, const char *reason)
{
    dpar_strategy legal;
    dpar_plan plan;
    dpar_why why;
    char text[256];
    dpar_text t;
    fprintf(stderr, "plan: %s", reason);
    if (dpar_strategy_nearest(job, s, batch, &legal, NULL) == DPAR_OK) {
        dpar_text_init(&t, text, sizeof text);
        dpar_strategy_write(&legal, &t);
        fprintf(stderr, "; the nearest legal configuration is %s", text);
        if (dpar_plan_price(job, &legal, batch, &plan, NULL, &why) == DPAR_E_MEMORY) {
            fprintf(stderr, ", which does not fit: it %s", why.text);
        }
    }
    fputc('\n', stderr);
    return 2;
}

/* --evaluate: prices one strategy. */
static int run_evaluate(const options *o, const char *words, const char *model, const char *machine)
{
    static dpar_plan_result p;
    dpar_plan_rejection rejected[12];
    dpar_why why;
    const dpar_status st = dpar_plan_search(model, machine, words, &p, &why);
    if (st != DPAR_OK && st != DPAR_E_MEMORY) {
        return refuse(&p.query.job, &p.query.strategy, p.query.batch > 0 ? p.query.batch : 0,
                      why.text);
    }
    p.report.rejected = rejected;
    if (o->explain || o->json) {
        p.report.rejected_count =
            dpar_plan_neighbours(&p.query.job, &p.plan[0], p.report.global_batch, rejected, 12);
    }
    if (show_all(o, &p.report) != 0) {
        return 2;
    }
    show_memory(o, &p.query.job, &p.plan[0]);
    if (st == DPAR_E_MEMORY) {
        complain(why.text, NULL);
        print_changes(o, model, machine, &p.query.job, &p.plan[0].strategy);
    }
    return st == DPAR_OK ? 0 : 1;
}

/* ---- the search ------------------------------------------------------------------------------ */

/* Prints why nothing is legal: the rule that the fixed values break on their own if there is one,
 * otherwise the reason of the search. */
static int refuse_fixed(const options *o, const dpar_job *job, const dpar_planner_desc *q,
                        const char *reason)
{
    dpar_strategy s = q->fixed;
    dpar_plan plan;
    dpar_why why;
    dpar_status st;
    if (o->fix == NULL) {
        complain(reason, NULL);
        return 2;
    }
    if (s.vp > 1 && !(q->fixed_fields >> DPAR_STRATEGY_FIELD_PP & 1u)) {
        /* with the default of one stage vp itself would be refused, so take the fewest stages */
        int gpus = gpus_of(job);
        for (s.pp = 2; s.pp < gpus && gpus % s.pp != 0; s.pp++) {
        }
    }
    if (dpar_strategy_complete(job, &s, q->fixed_fields, q->global_batch, &why) != DPAR_OK) {
        return refuse(job, &s, q->global_batch, why.text);
    }
    st = dpar_plan_price(job, &s, q->global_batch, &plan, NULL, &why);
    return refuse(job, &s, q->global_batch,
                  st != DPAR_OK && st != DPAR_E_MEMORY ? why.text : reason);
}

/* Marks neighbours that fit and are faster than the best plan, which means that the usual space
 * does not have them. */
static void mark_outside(dpar_plan_draw_desc *r, dpar_plan_rejection *rejected)
{
    int i;
    for (i = 0; i < r->rejected_count; i++) {
        dpar_plan_rejection *x = &rejected[i];
        size_t used = strlen(x->text);
        if (x->rule == DPAR_STRATEGY_RULE_NONE && x->seconds < r->plan[0].step.total) {
            snprintf(x->text + used, sizeof x->text - used, " (not among the usual: see --whole)");
        }
    }
}

/* Prints on how many GPUs the model would fit. */
static void print_gpus_needed(const dpar_plan_query *query)
{
    long long most = 64LL * gpus_of(&query->job);
    dpar_planner_desc q = query->search;
    dpar_plan plan;
    q.global_batch = query->batch > 0 ? query->batch : 0;
    q.space = DPAR_SPACE_USUAL;
    if (dpar_plan_smallest(&query->job, &q, most < 1 << 20 ? (int)most : 1 << 20, &plan, NULL) ==
        DPAR_OK) {
        const int gpus = (int)dpar_strategy_ranks(&plan.strategy);
        const int node = query->cluster.gpus_per_node;
        fprintf(stderr, "plan: it fits on %d such GPUs (nodes of %d)\n", gpus,
                gpus < node ? gpus : node);
    }
}

/* Returns the neighbour that explains best why the first plan won: of those rejected by `rule` the
 * nearest in time or in memory. A neighbour that is as fast explains nothing. */
static const dpar_plan_rejection *closest(const dpar_plan_draw_desc *r, int rule)
{
    const dpar_plan_rejection *best = NULL;
    int i;
    for (i = 0; i < r->rejected_count; i++) {
        const dpar_plan_rejection *x = &r->rejected[i];
        const int explains = x->rule == rule && (rule == DPAR_STRATEGY_RULE_MEMORY ||
                                                 x->seconds > 1.005 * r->plan[0].step.total);
        if (explains &&
            (best == NULL || (rule == DPAR_STRATEGY_RULE_MEMORY ? x->bytes_over < best->bytes_over
                                                                : x->seconds < best->seconds))) {
            best = x;
        }
    }
    return best;
}

/* Prints the best plan, why it won, and where the picture is. */
static int show_first(const options *o, const dpar_plan_draw_desc *r)
{
    const dpar_plan_rejection *slower = closest(r, DPAR_STRATEGY_RULE_NONE),
                              *over = closest(r, DPAR_STRATEGY_RULE_MEMORY);
    printf("best:     ");
    if (write_report(stdout, DPAR_PLAN_DRAW_LINE, r) != 0) {
        return 2;
    }
    if (slower != NULL || over != NULL) {
        printf("why:      %s%s%s\n", slower != NULL ? slower->text : "",
               slower != NULL && over != NULL ? "; " : "", over != NULL ? over->text : "");
    }
    if (o->svg != NULL || o->csv != NULL) {
        printf("%-10s%s\n",
               o->svg != NULL ? "picture:" : "table:", o->svg != NULL ? o->svg : o->csv);
    }
    putchar('\n');
    return 0;
}

/* Lists the changes with which a search would succeed. They start from a plan that is sharded over
 * all GPUs and recomputes everything, with tensor parallelism in the node if that needs less
 * memory. */
static void print_changes_to_plan(const options *o, const char *model, const char *machine,
                                  const dpar_job *job)
{
    dpar_strategy s, t;
    dpar_plan plan, other;
    dpar_status st;
    dpar_strategy_init(&s);
    s.dp = gpus_of(job);
    s.zero = s.dp > 1 ? 3 : 0;
    s.recompute = DPAR_RECOMPUTE_FULL;
    t = s;
    t.tp = job->cluster->gpus_per_node;
    t.sp = t.tp > 1;
    t.dp = s.dp / t.tp;
    t.zero = t.dp > 1 ? 3 : 0;
    st = dpar_plan_price(job, &s, 0, &plan, NULL, NULL);
    if (st != DPAR_OK && st != DPAR_E_MEMORY) {
        return;
    }
    st = dpar_plan_price(job, &t, 0, &other, NULL, NULL);
    if ((st == DPAR_OK || st == DPAR_E_MEMORY) && other.memory.total < plan.memory.total) {
        s = t;
    }
    print_changes(o, model, machine, job, &s);
}

/* ---- notes ----------------------------------------------------------------------------------- */

enum { SIMULATION_BYTES = 32 * 1024 * 1024 };

/* Simulates the schedules of the n plans in `top`. A time that differs by more than 2 % from the
 * closed forms decides the order; for the first `shown` plans such times and sizes are noted. */
static void simulate(const dpar_job *job, dpar_plan *top, int n, int shown)
{
    static double rate[64], slower[64], larger[64], seconds[64], bytes[64];
    char text[400];
    dpar_text t;
    dpar_why why;
    void *memory = malloc(SIMULATION_BYTES);
    int i, k;
    for (i = 0; i < n; i++) {
        dpar_plan_simulation sim;
        dpar_plan plan = top[i];
        double total = plan.step.total, r;
        memset(&sim, 0, sizeof sim);
        if (memory == NULL ||
            dpar_plan_simulate(job, &plan, &sim, memory, SIMULATION_BYTES, &why) != DPAR_OK) {
            sim.slower = sim.larger = 0.0;
        }
        total *= sim.slower > 0.02 || sim.slower < -0.02 ? 1.0 + sim.slower : 1.0;
        r = plan.step.samples / total;
        for (k = i; k > 0 && r > rate[k - 1] * (1.0 + 1e-12); k--) {
            top[k] = top[k - 1];
            rate[k] = rate[k - 1];
            slower[k] = slower[k - 1];
            larger[k] = larger[k - 1];
            seconds[k] = seconds[k - 1];
            bytes[k] = bytes[k - 1];
        }
        top[k] = plan;
        rate[k] = r;
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
        dpar_text_init(&t, text + strlen(text), sizeof text - strlen(text));
        if (time) {
            char part[80];
            snprintf(part, sizeof part, "%.4g s, %+.1f %%%s", seconds[i], 100.0 * slower[i],
                     size ? "; " : "");
            dpar_text_put(&t, part);
        }
        if (size) {
            char part[80];
            snprintf(part, sizeof part, "%.1f GB, %+.1f %%%s", bytes[i] * 1e-9, 100.0 * larger[i],
                     bytes[i] > job->cluster->gpu.memory_bytes ? ": does not fit" : "");
            dpar_text_put(&t, part);
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
    static dpar_planner p;
    static char all[9100];
    dpar_plan top;
    dpar_planner_desc q;
    dpar_status st;
    snprintf(all, sizeof all, "%s %s", words, more);
    if (dpar_plan_query_read(model, machine, all, &other, NULL) != DPAR_OK) {
        return -1.0;
    }
    q = other.search;
    q.space = DPAR_SPACE_USUAL;
    q.top = &top;
    q.top_capacity = 1;
    st = dpar_planner_init(&p, &other.job, &q, NULL);
    while (st == DPAR_OK || st == DPAR_MORE) {
        st = dpar_planner_run(&p, 1 << 30, NULL);
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
    } else {
        snprintf(text + strlen(text), room - strlen(text), "%.0f %% %s)",
                 100.0 * (gain < 0.0 ? -gain : gain), gain < 0.0 ? "slower" : "faster");
    }
}

/* Notes the assumptions on which the result depends, each with the effect of another choice. */
static void note_assumptions(const options *o, const dpar_plan_query *query, const char *words,
                             const char *model, const char *machine, const dpar_plan *best)
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
    const dpar_workload *w = &query->work;
    char text[600], what[80], other[80];
    double now = other_rate(model, machine, words, "");
    text[0] = 0;
    if (now <= 0.0) {
        return;
    }
    if (o->precision == NULL && w->trains) {
        const char *name = query->cluster.gpu.flops[DPAR_F8] > 0.0 && w->heads > 0 ? "fp8" : "zero";
        snprintf(what, sizeof what, "precision %s", query->job.recipe.name);
        snprintf(other, sizeof other, "precision=%s", name);
        add_assumption(text, sizeof text, what, name, other_rate(model, machine, words, other),
                       now);
    }
    if (o->stack == NULL && w->heads > 0 && w->stack_version >= 1) {
        snprintf(other, sizeof other, "stack=%s", stack[w->stack_version]);
        add_assumption(text, sizeof text, stack_name[w->stack_version], stack[w->stack_version],
                       other_rate(model, machine, words, other), now);
        if (age[w->stack_version][0] != 0) {
            snprintf(other, sizeof other, "stack=%s", age[w->stack_version]);
            add_assumption(text, sizeof text, "its age", age[w->stack_version],
                           other_rate(model, machine, words, other), now);
        }
    }
    if (o->seq == NULL && w->vocab > 0) {
        snprintf(what, sizeof what, "%.0f tokens a sample", w->tokens);
        snprintf(other, sizeof other, "seq=%.0f", 2.0 * w->tokens);
        add_assumption(text, sizeof text, what, other + 4, other_rate(model, machine, words, other),
                       now);
    }
    if (o->batch == NULL && w->trains) {
        snprintf(what, sizeof what, "%lld samples a step", (long long)query->search.global_batch);
        snprintf(other, sizeof other, "batch=%lld", 2LL * (long long)query->search.global_batch);
        add_assumption(text, sizeof text, what, other + 6, other_rate(model, machine, words, other),
                       now);
    }
    if (best->strategy.ep > 1 && best->strategy.overlap & DPAR_OVERLAP_DEFAULT) {
        dpar_strategy bare = best->strategy;
        dpar_plan other_plan;
        bare.overlap = DPAR_OVERLAP_DP | DPAR_OVERLAP_TP | DPAR_OVERLAP_PP;
        if ((w->stack_version == DPAR_MODEL_STACK_NEMO ||
             w->stack_version == DPAR_MODEL_STACK_DEEPEP) &&
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
static int run_search(const options *o, const dpar_plan_query *query, const char *words,
                      const char *model, const char *machine)
{
    static dpar_plan top[64], front[32];
    static dpar_planner p;
    dpar_plan_rejection rejected[12];
    dpar_planner_desc search = query->search, *q = &search;
    const dpar_job *job = &query->job;
    dpar_plan_draw_desc r;
    dpar_why why;
    char line[100];
    double since = options_now();
    dpar_status st;
    q->top = top;
    q->top_capacity = o->top < 8 ? 8 : o->top; /* more, as the simulation may change their order */
    q->front = front; /* costs time in the whole space, so only if it is shown */
    q->front_capacity = o->whole && !o->explain && !o->json && o->svg == NULL ? 0 : 32;
    st = dpar_planner_init(&p, job, q, &why);
    if (st != DPAR_OK) {
        return complain(why.text, NULL);
    }
    signal(SIGINT, on_interrupt);
    do {
        st = dpar_planner_run(&p, 100000, &why);
        show_progress(o, &p, since);
    } while (st == DPAR_MORE && !interrupted);
    if (!o->quiet) {
        options_progress(since, 1.0, NULL);
    }
    if (st == DPAR_E_NONE && p.evaluated == 0) {
        return refuse_fixed(o, job, q, why.text);
    }
    if (st < 0) {
        complain(why.text, NULL);
        if (st == DPAR_E_NONE && !o->json) {
            print_gpus_needed(query);
            print_changes_to_plan(o, model, machine, job);
        }
    }
    if (p.top_count > 0) {
        simulate(job, top, p.top_count, o->top);
    }
    memset(&r, 0, sizeof r);
    r.job = job;
    r.plan = top;
    r.plan_count = p.top_count < o->top ? p.top_count : o->top;
    r.front = front;
    r.front_count = p.front_count;
    r.rejected = rejected;
    r.rejected_count =
        p.top_count > 0 ? dpar_plan_neighbours(job, &top[0], q->global_batch, rejected, 12) : 0;
    if (q->space == DPAR_SPACE_USUAL) {
        mark_outside(&r, rejected);
    }
    r.rejected_by_rule = p.rejected;
    r.global_batch = q->global_batch;
    r.evaluated = p.evaluated;
    r.seconds = options_now() - since;
    if (interrupted) {
        snprintf(line, sizeof line, "interrupted after %.0f %% of the space: the best so far",
                 100.0 * p.progress);
        add_note(line);
    } else if (p.cut > 0) {
        snprintf(line, sizeof line,
                 "%.3g configurations more cannot be among these: their bounds say so",
                 (double)p.cut);
        add_note(line);
    }
    if (p.top_count > 0 && !interrupted) {
        note_assumptions(o, query, words, model, machine, &top[0]);
    }
    if (p.top_count == 0) {
        r.note = why.text;
    }
    if (p.top_count == 0 && !o->json) {
        return 1;
    }
    if (write_files(o, &r) != 0 || (!o->json && show_first(o, &r) != 0)) {
        return 2;
    }
    r.rejected_count = o->explain || o->json ? r.rejected_count : 0;
    if (show_report(o, &r) != 0) {
        return 2;
    }
    if (p.top_count > 0) {
        show_memory(o, job, &top[0]);
    }
    return p.top_count > 0 ? 0 : 1;
}

static void show_part(const char *name, const char *text)
{
    if (text[0] != 0) {
        printf("%s%s\n", name, text);
    }
}

/* --recommend: prints one strategy and the reason for it. */
static int run_recommend(const options *o, const dpar_plan_query *query, const char *words,
                         const char *model, const char *machine)
{
    const dpar_job *job = &query->job;
    const dpar_planner_desc *q = &query->search;
    dpar_advice a;
    dpar_plan_draw_desc r;
    dpar_why why;
    dpar_status st = dpar_plan_recommend(job, q, &a, &why);
    const char *unit = "tokens";
    if (st == DPAR_E_NONE) {
        return refuse_fixed(o, job, q, why.text);
    }
    if (st != DPAR_OK && st != DPAR_E_MEMORY) {
        return complain(why.text, NULL);
    }
    memset(&r, 0, sizeof r);
    r.job = job;
    r.plan = &a.plan;
    r.plan_count = 1;
    r.global_batch = q->global_batch;
    r.evaluated = 1;
    r.advice = &a;
    r.note = st == DPAR_OK ? NULL : why.text;
    if (st == DPAR_OK) {
        simulate(job, &a.plan, 1, 1);
        note_assumptions(o, query, words, model, machine, &a.plan);
    }
    if (job->work->dims > 0) {
        unit = job->work->tokens <= 1.0 ? "images" : "cells";
    }
    if (!o->json) {
        printf("%s\n  why:       %s\n", a.name, a.why);
        printf("  step:      %.4g s, %.4g %s/s a GPU, MFU %.1f %%, %.1f GB a GPU\n",
               a.plan.step.total, a.plan.step.tokens_per_s_gpu, unit, 100.0 * a.plan.step.mfu,
               a.plan.memory.total * 1e-9);
        show_part("  fastest:   ", a.fastest);
        show_part(q->fixed_fields == 0 ? "  simpler:   " : "  runner-up: ", a.runner_up);
        show_part("  warning:   ", a.warning_text);
        putchar('\n');
    }
    if (show_all(o, &r) != 0) {
        return 2;
    }
    if (st != DPAR_OK) {
        complain(why.text, NULL);
    }
    if (st == DPAR_E_MEMORY) {
        print_changes(o, model, machine, job, &a.plan.strategy);
    }
    return st == DPAR_OK ? 0 : 1;
}

/* ---- main ------------------------------------------------------------------------------------ */

static int run(int argc, char **argv)
{
    static dpar_plan_query query;
    char words[9000], *model, *machine;
    options o;
    int code = read_options(&o, argc, argv);
    if (code >= 0) {
        return code;
    }
    if (argc == 1) {
        fputs("usage: plan MODEL --cluster MACHINE [options]; see plan --help\n", stderr);
        return 2;
    }
    if (o.list) {
        return show_list();
    }
    if (o.model == NULL || o.cluster == NULL) {
        return complain("a model and --cluster are needed; --help shows examples", NULL);
    }
    if ((o.evaluate != NULL) + (o.min_gpus != 0) + (o.recommend != 0) > 1 ||
        (o.evaluate != NULL && o.fix != NULL)) {
        return complain("--evaluate, --min-gpus and --recommend exclude each other, and so do "
                        "--evaluate and --fix",
                        NULL);
    }
    if (!words_of(&o, words, sizeof words) ||
        read_query(&o, words, &query, &model, &machine) != 0) {
        return 2;
    }
    if (o.evaluate != NULL) {
        code = run_evaluate(&o, words, model != NULL ? model : o.model,
                            machine != NULL ? machine : o.cluster);
    } else if (o.min_gpus) {
        dpar_planner_desc q = query.search;
        /* without --batch it is free, because the default is that of the whole machine */
        q.global_batch = query.batch > 0 ? query.batch : 0;
        code = show_smallest(&o, &query.job, &q, 1 << 20);
    } else {
        const char *of = model != NULL ? model : o.model;
        const char *on = machine != NULL ? machine : o.cluster;
        code = o.recommend ? run_recommend(&o, &query, words, of, on)
                           : run_search(&o, &query, words, of, on);
    }
    free(model);
    free(machine);
    return code;
}

int main(int argc, char **argv)
{
    return options_finish(run(argc, argv));
}
