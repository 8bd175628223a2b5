/* SPDX-License-Identifier: MIT-0 */
/* What a run costs: the memory of a GPU, the time of a step, gradients sent during the backward. */
#include "pictures.h"
#include <stdio.h>
#include <string.h>

/* ---- memory ---- */

/* Fills `job` with a model on a machine. Returns 0, or 1 if one of them is unknown. */
static int job_of(dpar_job *job, const char *model, int32_t layers, const char *machine,
                  dpar_why *why)
{
    static dpar_workload work;
    static dpar_cluster cluster;
    dpar_model m;
    job->work = &work;
    job->cluster = &cluster;
    if (dpar_model_find(&m, model, why) < 0) {
        return 1;
    }
    m.layers = layers > 0 ? layers : m.layers;
    return dpar_workload_init(&work, &m, 0, why) < 0 ||
           dpar_cluster_read(&cluster, machine, strlen(machine), why) < 0 ||
           dpar_recipe_find(&job->recipe, "bf16", why) < 0;
}

/* The bar that shows a term of a plan's memory. */
enum { WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, REST, BARS };
static int bar_of(int term)
{
    switch (term) {
    case DPAR_MEMORY_WEIGHTS: return WEIGHTS;
    case DPAR_MEMORY_GRADIENTS: return GRADIENTS;
    case DPAR_MEMORY_MASTER:
    case DPAR_MEMORY_OPTIMIZER: return OPTIMIZER;
    case DPAR_MEMORY_ACTIVATIONS: return ACTIVATIONS;
    default: return REST;
    }
}

/* Llama 3 8B on 8 GPUs of 80 GB: the memory of one GPU by term, for ZeRO-0 to 3; 3 pixels per GB.
 */
int draw_memory(dpar_text *t, dpar_why *why)
{
    static const char *const colour[] = {"#0072B2", "#E69F00", "#009E73", "#56B4E9", "#999999"};
    static const char *const name[] = {"weights", "gradients", "optimizer", "activations", "other"};
    dpar_strategy s;
    dpar_plan plan;
    dpar_job job;
    char line[100];
    int zero, k, x = 80;
    if (job_of(&job, "llama-3-8b", 0, "dgx-h100", why)) {
        return 1;
    }
    page(t, 860, 240, "the memory of one GPU of 8: Llama 3 8B");
    for (k = 0; k < BARS; k++) {
        x = key(t, x, 42, colour[k], name[k]);
    }
    put(t, "<path stroke=\"#222\" stroke-dasharray=\"4 3\" d=\"M320 78v152\"/>\n");
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
        for (k = 0; k < DPAR_MEMORY_COUNT; k++) {
            gb[bar_of(k)] += plan.memory.term[k] * 1e-9;
        }
        for (k = 0, x = 80; k < BARS; k++) {
            box(t, x, y, (int)(3 * gb[k] + 0.5), 20, colour[k]);
            x += (int)(3 * gb[k] + 0.5);
        }
        snprintf(line, sizeof line, "ZeRO-%d", zero);
        word(t, 16, y + 15, line);
        snprintf(line, sizeof line, "%.0f GB%s", plan.memory.total * 1e-9,
                 plan.fits ? "" : ": does not fit");
        word(t, 690, y + 15, line);
    }
    return 0;
}

/* ---- time ---- */

/* The span that shows a term of a step's time. */
enum { FORWARD, BACKWARD, TENSOR, MESSAGES, BUBBLE, IMBALANCE, DATA, OTHERS, SPANS };
static int span_of(int term)
{
    switch (term) {
    case DPAR_TIME_FORWARD: return FORWARD;
    case DPAR_TIME_BACKWARD: return BACKWARD;
    case DPAR_TIME_TP: return TENSOR;
    case DPAR_TIME_PP: return MESSAGES;
    case DPAR_TIME_BUBBLE: return BUBBLE;
    case DPAR_TIME_IMBALANCE: return IMBALANCE;
    case DPAR_TIME_DP: return DATA;
    default: return OTHERS;
    }
}

/* GPT-3 on 1024 A100 with three strategies: the terms of a step, 22 pixels per second. */
int draw_time(dpar_text *t, dpar_why *why)
{
    static const char *const name[] = {"forward", "backward",  "tp", "pp",
                                       "bubble",  "imbalance", "dp", "host, optimizer"};
    static const char *const way[] = {"tp=8,sp=1,pp=16,dp=8,m=192",
                                      "tp=8,sp=1,pp=16,vp=6,schedule=interleaved,dp=8,m=192",
                                      "tp=16,sp=1,pp=8,dp=8,m=192"};
    static const char *const words[] = {"16 stages", "16 stages of 6 chunks",
                                        "8 stages, tp across two nodes"};
    dpar_strategy s;
    dpar_plan plan;
    dpar_job job;
    char line[200];
    int i, k, x = 16;
    if (job_of(&job, "gpt3-175b", 0, "128xdgx-a100", why)) {
        return 1;
    }
    page(t, 860, 262, "a step of GPT-3 175B on 1024 A100, three strategies");
    for (k = 0; k < SPANS; k++) {
        x = key(t, x, 42, full[k], name[k]);
    }
    for (i = 0; i < 3; i++) {
        const int y = 92 + 56 * i;
        double span[SPANS] = {0}, end = 0.0;
        dpar_strategy_init(&s);
        if (dpar_strategy_read(&s, way[i], strlen(way[i]), NULL, why) < 0 ||
            dpar_plan_price(&job, &s, 1536, &plan, NULL, why) < 0) {
            return 1;
        }
        for (k = 0; k < DPAR_TIME_COUNT; k++) {
            span[span_of(k)] += plan.step.term[k];
        }
        snprintf(line, sizeof line, "%s: %s", words[i], way[i]);
        word(t, 16, y, line);
        for (k = 0; k < SPANS; k++) {
            x = 16 + (int)(22.0 * end + 0.5);
            end += span[k];
            box(t, x, y + 8, 16 + (int)(22.0 * end + 0.5) - x, 20, full[k]);
        }
        snprintf(line, sizeof line, "%.1f s, MFU %.0f %%", plan.step.total, 100.0 * plan.step.mfu);
        word(t, 640, y + 23, line);
    }
    return 0;
}

/* ---- training ---- */

/* The layers of a model and their gradient arrays, in the order of the forward. */
typedef struct net {
    int32_t layers, arrays;
    double seconds[32]; /* of the backward of each layer */
    int64_t numel[200];
    int32_t layer_of[200];
} net;

/* The backward of one block takes the time by which one more block lengthens a step. The remaining
 * time is divided equally between the layers before the blocks and those after them. */
static int net_of(net *n, dpar_job *job, const char *model, int32_t blocks, const char *machine,
                  dpar_why *why)
{
    const dpar_workload_layer *layer;
    dpar_strategy s;
    dpar_plan plan;
    double back[2];
    int32_t k, i, o;
    dpar_strategy_init(&s);
    s.dp = 8;
    s.micro_batch = 64;
    for (k = 0; k < 2; k++) {
        if (job_of(job, model, blocks - 1 + k, machine, why) ||
            dpar_plan_price(job, &s, 0, &plan, NULL, why) < 0) {
            return 1;
        }
        back[k] = plan.step.term[DPAR_TIME_BACKWARD];
    }
    memset(n, 0, sizeof *n);
    for (k = 0; k < job->work->layers; k++) {
        layer = &job->work->layer[k];
        for (i = 0; i < layer->count; i++, n->layers++) {
            n->seconds[n->layers] = layer->kind == DPAR_LAYER_BLOCK
                                        ? back[1] - back[0]
                                        : (back[1] - blocks * (back[1] - back[0])) / 2.0;
            for (o = layer->first; o < layer->first + layer->ops; o++) {
                if (job->work->op[o].params > 0.0) {
                    n->layer_of[n->arrays] = n->layers;
                    n->numel[n->arrays++] = (int64_t)job->work->op[o].params;
                }
            }
        }
    }
    return 0;
}

static void span(dpar_text *t, double from, double to, int y, const char *colour)
{
    const int x = 94 + (int)(2200.0 * from + 0.5); /* 2.2 pixels per millisecond */
    box(t, x, y, 94 + (int)(2200.0 * to + 0.5) - x, 20, colour);
}

/* Draws a backward and its buckets; the first has `first` elements and the others `size` (0: one
 * bucket). A bucket is sent once all its gradients are computed and the previous bucket has been
 * sent. Computation is slower by a fixed share while a bucket is being sent. */
static int backward(dpar_text *t, int y, const net *n, const dpar_job *job, int64_t first,
                    int64_t size, const char *what, dpar_why *why)
{
    const double loses = job->cluster->cal.value[DPAR_CAL_CONTENTION];
    static int64_t start[200];
    static dpar_bucket bucket[64];
    dpar_buckets_desc how = {0};
    dpar_collective_cost cost;
    dpar_cluster_group g;
    double now = 0.0, sent = 0.0;
    char line[200];
    int32_t layer, buckets, b = 0;
    how.params = n->arrays;
    how.count = n->numel;
    how.first = first;
    how.size = size;
    if (dpar_buckets_init(&how, start, bucket, 64, &buckets, why) < 0) {
        return 1;
    }
    dpar_cluster_group_init(&g, job->cluster, 8, 1);
    for (layer = n->layers - 1; layer >= 0; layer--) {
        const double work = n->seconds[layer], from = now;
        double beside = sent > now ? sent - now : 0.0;
        beside = beside < work / (1.0 - loses) ? beside : work / (1.0 - loses);
        now += work + loses * beside;
        span(t, from, now, y + 8, full[layer % 2]);
        for (; b < buckets && n->layer_of[bucket[b].first_param] >= layer; b++) {
            const double at = sent > now ? sent : now;
            dpar_collective_predict(job->cluster, &g, DPAR_CALL_ALL_REDUCE,
                                    job->recipe.reduced * (double)bucket[b].used, &cost);
            sent = at + cost.seconds;
            span(t, at, sent, y + 32, full[2 + b % 2]);
        }
    }
    snprintf(line, sizeof line, "%s: %.0f ms", what, 1e3 * sent);
    word(t, 94, y, line);
    word(t, 16, y + 23, "backward");
    word(t, 16, y + 47, "all-reduce");
    return 0;
}

/* ViT-L on eight GPUs of one machine: the time that buckets save. */
int draw_training(dpar_text *t, dpar_why *why)
{
    static net n;
    dpar_job job;
    char line[100];
    int ms;
    page(t, 860, 248, "gradients of ViT-L, 64 images on each of 8 RTX 4090");
    if (net_of(&n, &job, "vit-l", 24, "rtx-4090-8", why) ||
        backward(t, 60, &n, &job, 0, 0, "all gradients after the backward", why) ||
        backward(t, 144, &n, &job, 1 << 18, 25 << 18,
                 "in buckets of 25 MiB, each sent when its layers are done", why)) {
        return 1;
    }
    for (ms = 0; ms <= 300; ms += 100) {
        snprintf(line, sizeof line, "%d ms", ms);
        put(t, "<path stroke=\"#222\" d=\"M%d 208v6\"/>\n", 94 + ms * 22 / 10);
        centred(t, 94 + ms * 22 / 10, 230, 1, line);
    }
    return 0;
}
