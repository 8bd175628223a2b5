/* SPDX-License-Identifier: MIT-0 */
/* plan - how should I spread this model over this cluster, will it fit, how fast, and why?
 *
 *   cc -DDPAR_IMPLEMENTATION -I. commands/plan.c -o plan
 *   ./plan llama-3-70b --cluster 8x8:a100-80
 *
 * prints the fastest strategies that fit, each with its memory and time as bars; ./plan --help has
 * more. Exit code: 0 fine, 1 nothing fits, 2 bad input (one sentence on stderr). */
#if !defined(_POSIX_C_SOURCE) && (defined(__unix__) || defined(__APPLE__))
#define _POSIX_C_SOURCE 200809L
#endif
#include "dpar_cost.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__unix__) || defined(__APPLE__)
#include <sys/stat.h>
#include <unistd.h>
#endif

static const char help[] =
    "plan: how to spread a model over a cluster, whether it fits, how fast it is, and why\n"
    "\n"
    "  plan MODEL --cluster MACHINE [options]\n"
    "\n"
    "MODEL    a preset (llama-3-70b; --list shows all), a Hugging Face config.json, a text form\n"
    "         \"gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048\", a preset with changes\n"
    "         \"llama-3-8b,seq=32768\", or a grid \"grid:1440x720x100,fields=5\"\n"
    "MACHINE  a preset (derecho, dgx-h100), \"8x8:h100-80,nvlink=450,nic=8x50\" (nodes x GPUs; "
    "GB/s in\n"
    "         one direction), \"16xdgx-h100\", or a file of such settings, one a line. Another GPU "
    "is a\n"
    "         listed one with its own numbers: "
    "\"1x4:l40s,memory=24,hbm=1008,tflops=165,nvlink=25\" "
    "(GB,\n"
    "         GB/s, dense bf16); also pcie, host (GB), nvme, switched, nvls, sharp, taper\n"
    "\n"
    "  --gpus N            N GPUs: whole nodes, or part of one; more than the machine has: said\n"
    "  --seq S             tokens a sample\n"
    "  --batch B           samples a step, all GPUs (0: free)\n"
    "  --precision R       megatron (= bf16, 18 B a parameter; default), zero (= fp16), "
    "deepspeed,\n"
    "                      fp32, pure-bf16, adam8, no-master, fsdp, fp8, fsdp-fp8, bf16-moments\n"
    "  --fix tp=8,pp=2     search only strategies with these values\n"
    "  --evaluate \"tp=8,pp=12,dp=4,mbs=1,m=64\"   price this one configuration\n"
    "  --stack S           megatron | core | torch | compiled: the software assumed\n"
    "  --attention A       unfused | flash1 | flash\n"
    "  --top K             how many plans to show, 1 to 64 (default 8)\n"
    "  --whole             search every divisor and option (millions of configurations)\n"
    "  --min-gpus          the fewest GPUs of this kind on which it fits\n"
    "  --recommend         one strategy in words, with why and warnings (--fix: judged, not "
    "followed)\n"
    "  --explain           the first plan in full, term by term, and why not its neighbours\n"
    "  --json              everything as one JSON object on stdout\n"
    "  --svg FILE, --csv FILE   a picture, a table\n"
    "  --list              the presets of models, GPUs, machines and precisions\n"
    "  --quiet             no progress line\n"
    "  -h, --help          this text\n"
    "  --version           which dpar this is\n"
    "\n"
    "Strategies: tp sp cp dp shard pp vp ep etp mbs m recompute_layers = numbers, zero = 0 to 3,\n"
    "  tiles = 2x4, cp_kind = ring | ulysses | gather, recompute = none | selective | full,\n"
    "  schedule = gpipe | 1f1b | interleaved | breadth-first | zb-h1 | zb-2p | zbv | v-half |\n"
    "  v-min | dualpipe | dualpipev, offload = none | optimizer + weights + activations,\n"
    "  overlap = default | none | dp + tp + pp\n"
    "Exit code: 0 done, 1 nothing fits, 2 bad input (one sentence on stderr)\n"
    "\n"
    "examples\n"
    "  plan llama-3-70b --cluster 8x8:a100-80 --batch 512 --explain --svg plan.svg\n"
    "  plan unet-0.25deg --cluster derecho --gpus 16\n"
    "  plan gpt3-175b --cluster selene --gpus 1024 --batch 1536 --evaluate tp=8,pp=8,vp=2,mbs=1\n"
    "  plan grid:1440x720x100,fields=5 --cluster derecho --gpus 64\n";

/* ---- options -------------------------------------------------------------------------------- */

typedef struct options {
    const char *model, *cluster, *precision, *fix, *evaluate, *svg, *csv, *stack, *attention;
    int gpus, seq, top;
    long long batch;
    int whole, min_gpus, recommend, explain, json, list, quiet, help, version;
} options;

static int complain(const char *what)
{
    fprintf(stderr, "plan: %s\n", what);
    return 2;
}

static int complain_of(const char *what, const char *word)
{
    fprintf(stderr, "plan: %s '%s'\n", what, word);
    return 2;
}

/* A whole number of at least `least` that is all of the word. */
static int whole_number(const char *word, long long least, long long most, long long *value)
{
    char *end;
    *value = strtoll(word, &end, 10);
    return *word != 0 && *end == 0 && *value >= least && *value <= most;
}

static const char flag_name[][12] = {"--whole", "--min-gpus", "--recommend", "--explain", "--json",
                                     "--list",  "--quiet",    "--help",      "--version"};
static const char word_name[][12] = {"--cluster", "--precision", "--fix",   "--evaluate",
                                     "--svg",     "--csv",       "--stack", "--attention"};
static const char number_name[][12] = {"--gpus", "--seq", "--batch", "--top"};

static int set_flag(options *o, const char *name)
{
    int *const flag[] = {&o->whole, &o->min_gpus, &o->recommend, &o->explain, &o->json,
                         &o->list,  &o->quiet,    &o->help,      &o->version};
    size_t i;
    for (i = 0; i < sizeof flag / sizeof flag[0]; i++) {
        if (strcmp(name, flag_name[i]) == 0) {
            *flag[i] = 1;
            return 1;
        }
    }
    return 0;
}

static int set_word(options *o, const char *name, const char *value)
{
    const char **const word[] = {&o->cluster, &o->precision, &o->fix,   &o->evaluate,
                                 &o->svg,     &o->csv,       &o->stack, &o->attention};
    size_t i;
    for (i = 0; i < sizeof word / sizeof word[0]; i++) {
        if (strcmp(name, word_name[i]) == 0) {
            *word[i] = value;
            return 1;
        }
    }
    return 0;
}

/* 1 set, 0 no such option, -1 a bad number: said. */
static int set_number(options *o, const char *name, const char *value)
{
    const long long least[] = {1, 1, 0, 1}, most[] = {100000000, 100000000, 1LL << 40, 64};
    long long v = 0;
    size_t i;
    for (i = 0; i < 4 && strcmp(name, number_name[i]) != 0; i++) {
    }
    if (i == 4) {
        return 0;
    }
    if (value == NULL || !whole_number(value, least[i], most[i], &v)) {
        fprintf(stderr, "plan: %s needs a whole number of %lld to %lld, not '%s'\n", name, least[i],
                most[i], value != NULL ? value : "");
        return -1;
    }
    if (i == 2) {
        o->batch = v;
    } else {
        *(i == 0 ? &o->gpus : i == 1 ? &o->seq : &o->top) = (int)v;
    }
    return 1;
}

/* Was the i-th word, an option, there before? Of two the last would count, unseen. */
static int said_before(char **argv, int i)
{
    int k;
    for (k = 1; k < i && strcmp(argv[k], argv[i]) != 0; k++) {
    }
    return k < i;
}

static int read_options(options *o, int argc, char **argv)
{
    int i;
    memset(o, 0, sizeof *o);
    o->precision = "megatron";
    o->top = 8;
    o->batch = -1;
    for (i = 1; i < argc; i++) {
        /* what begins as an option does is no value: --svg --json would write a file "--json" */
        const char *value = i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0 ? argv[i + 1] : NULL;
        int number;
        if (set_flag(o, strcmp(argv[i], "-h") == 0 ? "--help" : argv[i])) {
            continue;
        }
        if (strncmp(argv[i], "--", 2) == 0 && said_before(argv, i)) {
            return complain_of("given twice:", argv[i]);
        }
        number = set_number(o, argv[i], value);
        if (number < 0) {
            return 2;
        }
        if (number > 0 || (value != NULL && set_word(o, argv[i], value))) {
            i++;
        } else if (argv[i][0] == '-' && argv[i][1] != 0) {
            return complain_of("unknown option, or its value is missing:", argv[i]);
        } else if (o->model != NULL) {
            return complain_of("a second model:", argv[i]);
        } else {
            o->model = argv[i];
        }
    }
    return 0;
}

/* ---- files ---------------------------------------------------------------------------------- */

enum { FILE_LIMIT = 64 * 1024 * 1024 };

static int is_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f != NULL) {
        fclose(f);
    }
    return f != NULL;
}

/* The whole file, NULL with a sentence on stderr. */
static char *read_file(const char *path, size_t *bytes)
{
    FILE *f;
    char *text;
    size_t n;
#if defined(__unix__) || defined(__APPLE__)
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        complain_of("this is a folder, a file was expected:", path);
        return NULL;
    }
#endif
    f = fopen(path, "rb");
    text = f != NULL ? (char *)malloc((size_t)FILE_LIMIT + 1) : NULL;
    if (text == NULL) {
        complain_of("cannot read", path);
        if (f != NULL) {
            fclose(f);
        }
        return NULL;
    }
    n = fread(text, 1, (size_t)FILE_LIMIT + 1, f);
    if (ferror(f) || n > FILE_LIMIT) {
        complain_of(n > FILE_LIMIT ? "more than 64 MB:" : "cannot read", path);
        free(text);
        fclose(f);
        return NULL;
    }
    fclose(f);
    *bytes = n;
    return text;
}

static int ends_in(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

static int read_model(const options *o, const dpar_recipe *r, dpar_workload *w)
{
    static const char *const stacks[] = {"megatron", "core", "torch", "compiled"};
    static const char *const attentions[] = {"unfused", "flash1", "flash"};
    dpar_model m;
    dpar_why why;
    dpar_status st;
    int i;
    memset(&m, 0, sizeof m);
    if (ends_in(o->model, ".json") || (strchr(o->model, '/') != NULL && is_file(o->model))) {
        size_t bytes = 0;
        char *text = read_file(o->model, &bytes);
        if (text == NULL) {
            return 2;
        }
        st = dpar_model_read(&m, text, bytes, &why);
        free(text);
    } else {
        st = dpar_model_read(&m, o->model, strlen(o->model), &why);
    }
    for (i = 0; o->stack != NULL && i < 4 && strcmp(o->stack, stacks[i]) != 0; i++) {
    }
    if (i == 4) {
        return complain_of("--stack is megatron, core, torch or compiled, not", o->stack);
    }
    m.stack = o->stack != NULL && st == DPAR_OK ? DPAR_STACK_MEGATRON + i : m.stack;
    for (i = 0; o->attention != NULL && i < 3 && strcmp(o->attention, attentions[i]) != 0; i++) {
    }
    if (i == 3) {
        return complain_of("--attention is unfused, flash1 or flash, not", o->attention);
    }
    m.attention = o->attention != NULL && st == DPAR_OK ? DPAR_ATTENTION_UNFUSED + i : m.attention;
    if (m.element == 0 && m.family != DPAR_FAMILY_GRID && r->compute <= DPAR_TF32) {
        m.element = 4; /* activations of fp32 training are fp32 */
    }
    if (o->seq > 0 && st == DPAR_OK && m.family != DPAR_FAMILY_GPT &&
        m.family != DPAR_FAMILY_LLAMA && m.family != DPAR_FAMILY_T5) {
        return complain("--seq is the tokens of a language model's sample: this model has none");
    }
    if (st == DPAR_OK) {
        st = dpar_workload_init(w, &m, o->seq, &why);
    }
    return st == DPAR_OK ? 0 : complain(why.text);
}

/* What the report says beside the plans. */
static char note[160];

static int read_cluster(const options *o, dpar_cluster *c)
{
    dpar_why why;
    dpar_status st;
    if (is_file(o->cluster)) {
        size_t bytes = 0;
        char *text = read_file(o->cluster, &bytes);
        if (text == NULL) {
            return 2;
        }
        st = dpar_cluster_read(c, text, bytes, &why);
        free(text);
    } else {
        st = dpar_cluster_read(c, o->cluster, strlen(o->cluster), &why);
    }
    if (st == DPAR_OK && o->gpus > 0) {
        int had = c->nodes * c->gpus_per_node;
        st = dpar_cluster_resize(c, o->gpus, &why);
        if (st == DPAR_OK && o->gpus > had) {
            snprintf(note, sizeof note, "%d GPUs of the kind of %s, which has %d", o->gpus, c->name,
                     had);
        }
    }
    return st == DPAR_OK ? 0 : complain(why.text);
}

/* ---- output --------------------------------------------------------------------------------- */

/* Writes the report, however long: once to measure, once to fill. */
static int write_report(FILE *to, int32_t format, const dpar_report *r)
{
    dpar_text t;
    char *buffer;
    size_t room;
    dpar_text_init(&t, NULL, 0);
    dpar_plan_draw(&t, r, format, NULL);
    room = t.used + 64;
    buffer = (char *)malloc(room);
    if (buffer == NULL) {
        return complain("out of memory");
    }
    dpar_text_init(&t, buffer, room);
    dpar_plan_draw(&t, r, format, NULL);
    fputs(buffer, to);
    free(buffer);
    return 0;
}

static int write_file(const char *path, int32_t format, const dpar_report *r)
{
    FILE *f = fopen(path, "wb");
    int bad;
    if (f == NULL) {
        return complain_of("cannot write", path);
    }
    bad = write_report(f, format, r) != 0 || ferror(f);
    bad = fclose(f) != 0 || bad;
    return bad ? complain_of("cannot write", path) : 0;
}

static int on_terminal(int file)
{
#if defined(__unix__) || defined(__APPLE__)
    return isatty(file);
#else
    (void)file;
    return 0;
#endif
}

/* Files first: where one cannot be written, stdout stays empty. */
static int show_all(const options *o, dpar_report *r)
{
    int bad = 0;
    r->colour = 0;
    r->note = r->note != NULL ? r->note : note[0] != 0 ? note : NULL;
    if (o->svg != NULL) {
        bad = write_file(o->svg, DPAR_REPORT_SVG, r);
    }
    if (o->csv != NULL && bad == 0) {
        bad = write_file(o->csv, DPAR_REPORT_CSV, r);
    }
    r->colour = on_terminal(1) && getenv("NO_COLOR") == NULL;
    if (bad == 0) {
        bad = write_report(stdout, o->json ? DPAR_REPORT_JSON : DPAR_REPORT_TEXT, r);
    }
    if (o->explain && !o->json && bad == 0) {
        bad = write_report(stdout, DPAR_REPORT_EXPLAIN, r);
    }
    return bad;
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

/* ---- searching ------------------------------------------------------------------------------ */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

static double now(void)
{
#if defined(__unix__) || defined(__APPLE__)
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#else
    return (double)clock() / CLOCKS_PER_SEC;
#endif
}

/* About four million tokens a step for language models, 16 samples a GPU for the rest; a power of
 * two times the GPUs, so that every data-parallel degree and micro-batch divides it. */
static long long usual_batch(const dpar_workload *w, int gpus)
{
    double wanted = w->vocab > 0 ? 4194304.0 / w->tokens : 16.0 * gpus;
    long long batch = gpus;
    while (w->trains && (double)batch < 0.75 * wanted) {
        batch *= 2;
    }
    return w->trains ? batch : 1;
}

static void show_progress(const options *o, const dpar_planner *p, double since)
{
    double share = p->progress, spent = now() - since;
    if (!o->quiet && spent > 0.3 && on_terminal(2)) {
        fprintf(stderr, "\r%3.0f %%  %.1f M configurations, %.0f s left   ", 100.0 * share,
                (double)p->walked * 1e-6, share > 0.01 ? spent * (1.0 - share) / share : 0.0);
    }
}

static int show_smallest(const options *o, const dpar_job *job, const dpar_search *q, int most)
{
    dpar_plan plan;
    dpar_report r;
    dpar_cluster c = *job->cluster;
    dpar_job smaller = *job;
    dpar_why why;
    int gpus;
    if (dpar_plan_smallest(job, q, most, &plan, &why) != DPAR_OK) {
        fprintf(stderr, "plan: %s%s\n", why.text,
                o->whole ? "" : " (--whole searches tp across nodes, offload and more)");
        return 1;
    }
    gpus = dpar_strategy_ranks(&plan.strategy);
    c.nodes = gpus < c.gpus_per_node ? 1 : gpus / c.gpus_per_node;
    c.gpus_per_node = gpus / c.nodes;
    smaller.cluster = &c;
    memset(&r, 0, sizeof r);
    r.job = &smaller;
    r.plan = &plan;
    r.plans = 1;
    r.global_batch = q->global_batch;
    r.evaluated = 1;
    if (!o->json) {
        printf("the fewest GPUs that hold it: %d\n\n", gpus);
    }
    return show_all(o, &r);
}

/* ---- one configuration ---------------------------------------------------------------------- */

static int gpus_of(const dpar_job *job)
{
    return job->cluster->nodes * job->cluster->gpus_per_node;
}

/* What was not named follows from the GPUs and the batch; 0 with a sentence where it cannot. */
static int infer(const dpar_job *job, dpar_strategy *s, uint32_t named, long long batch,
                 dpar_why *why)
{
    int gpus = gpus_of(job);
    dpar_strategy one = *s;
    long long model;
    one.dp = 1;
    model = dpar_strategy_ranks(&one); /* 0: more than 2^31 - 1, or a degree below 1 */
    if (!(named >> DPAR_FIELD_DP & 1u) && model > 0) {
        if (gpus % model != 0) {
            snprintf(why->text, sizeof why->text,
                     "tp x cp x pp x tiles = %lld ranks do not divide the cluster's %d GPUs", model,
                     gpus);
            return 0;
        }
        s->dp = (int)(gpus / model);
    }
    if (!(named >> DPAR_FIELD_MICRO_BATCHES & 1u) && batch > 0 && s->dp > 0 && s->micro_batch > 0) {
        long long m = batch / ((long long)s->dp * s->micro_batch);
        s->micro_batches = m > 0 && m < 2147483647 ? (int)m : 1;
    }
    return 1;
}

/* Why a strategy is illegal is known; what would be legal instead? */
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

static int run_evaluate(const options *o, const dpar_job *job, long long batch)
{
    dpar_strategy s;
    dpar_rejected rejected[12];
    dpar_report r;
    dpar_plan plan;
    dpar_why why;
    uint32_t named = 0;
    dpar_status st;
    dpar_strategy_init(&s);
    st = dpar_strategy_read(&s, o->evaluate, strlen(o->evaluate), &named, &why);
    if (st != DPAR_OK) {
        return complain(why.text);
    }
    if (!infer(job, &s, named, batch, &why)) {
        return refuse(job, &s, o->batch > 0 ? o->batch : 0, why.text);
    }
    if (o->batch < 0 || (named >> DPAR_FIELD_MICRO_BATCHES & 1u)) {
        double samples = (double)s.dp * s.micro_batch * s.micro_batches; /* or more than fit */
        batch = o->batch > 0     ? o->batch
                : samples < 9e18 ? (long long)s.dp * s.micro_batch * s.micro_batches
                                 : 0;
    }
    st = dpar_plan_price(job, &s, batch, &plan, NULL, &why);
    if (st != DPAR_OK && st != DPAR_E_MEMORY) {
        return refuse(job, &s, o->batch > 0 ? o->batch : 0, why.text);
    }
    memset(&r, 0, sizeof r);
    r.job = job;
    r.plan = &plan;
    r.plans = 1;
    r.rejected = rejected;
    r.rejects = o->explain || o->json ? dpar_plan_neighbours(job, &plan, batch, rejected, 12) : 0;
    r.global_batch = batch;
    r.evaluated = 1;
    if (show_all(o, &r) != 0) {
        return 2;
    }
    if (st == DPAR_E_MEMORY) {
        fprintf(stderr, "plan: %s\n", why.text);
    }
    return st == DPAR_OK ? 0 : 1;
}

/* ---- the search ----------------------------------------------------------------------------- */

/* Nothing is legal: the rule that what was fixed breaks, if it breaks one alone. */
static int refuse_fixed(const options *o, const dpar_job *job, const dpar_search *q,
                        const char *reason)
{
    dpar_strategy s = q->fixed;
    dpar_plan plan;
    dpar_why why;
    dpar_status st;
    if (o->fix == NULL) {
        complain(reason);
        return 2;
    }
    if (s.vp > 1 && !(q->fixed_fields >> DPAR_FIELD_PP & 1u)) {
        /* its reason is not that the default has one stage: the fewest that there can be */
        int gpus = gpus_of(job);
        for (s.pp = 2; s.pp < gpus && gpus % s.pp != 0; s.pp++) {
        }
    }
    if (!infer(job, &s, q->fixed_fields, q->global_batch, &why)) {
        return refuse(job, &s, q->global_batch, why.text);
    }
    st = dpar_plan_price(job, &s, q->global_batch, &plan, NULL, &why);
    return refuse(job, &s, q->global_batch,
                  st != DPAR_OK && st != DPAR_E_MEMORY ? why.text : reason);
}

/* A neighbour that fits and is faster than the best lies outside the space that was searched. */
static void mark_outside(dpar_report *r, dpar_rejected *rejected)
{
    int i;
    for (i = 0; i < r->rejects; i++) {
        dpar_rejected *x = &rejected[i];
        size_t used = strlen(x->text);
        if (x->rule == DPAR_RULE_NONE && x->seconds < r->plan[0].step.total) {
            snprintf(x->text + used, sizeof x->text - used, " (not among the usual: see --whole)");
        }
    }
}

/* On how many GPUs it would fit. */
static void say_enough(const options *o, const dpar_job *job, const dpar_search *search)
{
    long long most = 64LL * gpus_of(job);
    dpar_search q = *search;
    dpar_plan plan;
    q.global_batch = o->batch > 0 ? o->batch : 0;
    q.space = DPAR_SPACE_USUAL;
    if (dpar_plan_smallest(job, &q, most < 1 << 20 ? (int)most : 1 << 20, &plan, NULL) == DPAR_OK) {
        fprintf(stderr, "plan: it fits on %d such GPUs\n",
                (int)dpar_strategy_ranks(&plan.strategy));
    }
}

static int run_search(const options *o, const dpar_job *job, const dpar_search *asked)
{
    static dpar_plan top[64], front[32];
    static dpar_planner p;
    dpar_rejected rejected[12];
    dpar_search search = *asked, *q = &search;
    dpar_report r;
    dpar_why why;
    double since = now();
    dpar_status st;
    q->top = top;
    q->top_room = o->top;
    q->front = front;
    q->front_room = 32;
    st = dpar_planner_init(&p, job, q, &why);
    if (st != DPAR_OK) {
        return complain(why.text);
    }
    signal(SIGINT, on_interrupt);
    do {
        st = dpar_planner_run(&p, 100000, &why);
        show_progress(o, &p, since);
    } while (st == DPAR_MORE && !interrupted);
    if (!o->quiet && now() - since > 0.3 && on_terminal(2)) {
        fprintf(stderr, "\r%60s\r", "");
    }
    if (st == DPAR_E_NONE && p.evaluated == 0) {
        return refuse_fixed(o, job, q, why.text);
    }
    if (st < 0) {
        fprintf(stderr, "plan: %s\n", why.text);
        if (st == DPAR_E_NONE && !o->json) {
            say_enough(o, job, q);
        }
    }
    memset(&r, 0, sizeof r);
    r.job = job;
    r.plan = top;
    r.plans = p.tops;
    r.front = front;
    r.fronts = p.fronts;
    r.rejected = rejected;
    r.rejects = p.tops > 0 && (o->explain || o->json)
                    ? dpar_plan_neighbours(job, &top[0], q->global_batch, rejected, 12)
                    : 0;
    if (q->space == DPAR_SPACE_USUAL) {
        mark_outside(&r, rejected);
    }
    r.rejected_by_rule = p.rejected;
    r.global_batch = q->global_batch;
    r.evaluated = p.evaluated;
    r.seconds = now() - since;
    r.note = interrupted ? "the search was interrupted: the best so far" : r.note;
    if (p.tops == 0) {
        r.note = why.text;
    }
    if (p.tops == 0 && !o->json) {
        return 1;
    }
    if (show_all(o, &r) != 0) {
        return 2;
    }
    return p.tops > 0 ? 0 : 1;
}

static int run_recommend(const options *o, const dpar_job *job, const dpar_search *q)
{
    dpar_advice a;
    dpar_report r;
    dpar_why why;
    dpar_strategy fixed = q->fixed;
    dpar_status st = DPAR_OK;
    if (o->fix != NULL) { /* judged, not followed: it must be legal, not fit */
        st = infer(job, &fixed, q->fixed_fields, 0, &why)
                 ? dpar_plan_price(job, &fixed, 0, &a.plan, NULL, &why)
                 : DPAR_E_DIVIDE;
    }
    if (st != DPAR_OK && st != DPAR_E_MEMORY) {
        return refuse(job, &fixed, 0, why.text);
    }
    st = dpar_plan_recommend(job, q, &a, &why);
    if (st != DPAR_OK && st != DPAR_E_MEMORY) {
        return complain(why.text);
    }
    memset(&r, 0, sizeof r);
    r.job = job;
    r.plan = &a.plan;
    r.plans = 1;
    r.global_batch = q->global_batch;
    r.evaluated = 1;
    r.advice = &a;
    r.note = st == DPAR_OK ? NULL : why.text;
    if (show_all(o, &r) != 0) {
        return 2;
    }
    if (st != DPAR_OK) {
        fprintf(stderr, "plan: %s\n", why.text);
    }
    if (o->json) {
        return st == DPAR_OK ? 0 : 1;
    }
    printf("\n%s\n  why:       %s\n", a.name, a.why);
    printf("  step:      %.4g s, %.4g /s a GPU, MFU %.1f %%, %.1f GB a GPU\n", a.plan.step.total,
           a.plan.step.tokens_per_s_gpu, 100.0 * a.plan.step.mfu, a.plan.memory.total * 1e-9);
    if (a.runner_up[0] != 0) {
        printf("  runner-up: %s\n", a.runner_up);
    }
    if (a.warning_text[0] != 0) {
        printf("  mind:      %s\n", a.warning_text);
    }
    return st == DPAR_OK ? 0 : 1;
}

/* ---- main ----------------------------------------------------------------------------------- */

static int run(int argc, char **argv)
{
    static dpar_workload work;
    options o;
    dpar_cluster cluster;
    dpar_job job;
    dpar_search q;
    dpar_why why;
    if (read_options(&o, argc, argv) != 0) {
        return 2;
    }
    if (argc == 1) {
        fputs("usage: plan MODEL --cluster MACHINE [options]; plan --help says more\n", stderr);
        return 2;
    }
    if (o.help) {
        fputs(help, stdout);
        return 0;
    }
    if (o.version) {
        printf("plan, dpar %d.%d.%d\n", DPAR_VERSION_MAJOR, DPAR_VERSION_MINOR, DPAR_VERSION_PATCH);
        return 0;
    }
    if (o.list) {
        return show_list();
    }
    if (o.model == NULL || o.cluster == NULL) {
        return complain("a model and --cluster are needed; --help shows examples");
    }
    if (dpar_recipe_find(&job.recipe, o.precision, &why) != DPAR_OK) {
        return complain(why.text);
    }
    if (read_model(&o, &job.recipe, &work) != 0 || read_cluster(&o, &cluster) != 0) {
        return 2;
    }
    job.work = &work;
    job.cluster = &cluster;
    memset(&q, 0, sizeof q);
    q.global_batch =
        o.batch >= 0 ? o.batch : usual_batch(&work, cluster.nodes * cluster.gpus_per_node);
    q.space = o.whole ? DPAR_SPACE_WHOLE : DPAR_SPACE_USUAL;
    dpar_strategy_init(&q.fixed);
    if (o.fix != NULL &&
        dpar_strategy_read(&q.fixed, o.fix, strlen(o.fix), &q.fixed_fields, &why) != DPAR_OK) {
        return complain(why.text);
    }
    if (o.fix != NULL && o.fix[0] == 0) {
        return complain("--fix needs name=value, as in --fix tp=8");
    }
    if ((o.evaluate != NULL) + (o.min_gpus != 0) + (o.recommend != 0) > 1 ||
        (o.evaluate != NULL && o.fix != NULL)) {
        return complain("--evaluate, --min-gpus and --recommend exclude each other, and --fix "
                        "goes with a search only");
    }
    if (o.evaluate != NULL) {
        return run_evaluate(&o, &job, q.global_batch);
    }
    if (o.min_gpus) {
        q.global_batch = o.batch > 0 ? o.batch : 0; /* the usual one is for the whole machine */
        return show_smallest(&o, &job, &q, 1 << 20);
    }
    return o.recommend ? run_recommend(&o, &job, &q) : run_search(&o, &job, &q);
}

int main(int argc, char **argv)
{
    int code = run(argc, argv);
    return fflush(stdout) != 0 || ferror(stdout) ? complain("stdout cannot be written") : code;
}
