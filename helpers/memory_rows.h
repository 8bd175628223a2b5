/* SPDX-License-Identifier: MIT-0 */
/* memory_rows - reads published training runs from the tables in tests/data/cost: the job of each
 * run, and its memory or time per step, or that it ran out of memory. Predicts their memory. */
#ifndef DPAR_HELPERS_MEMORY_ROWS_H
#define DPAR_HELPERS_MEMORY_ROWS_H

#include "dpar_cost.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a measured number is compared with. */
enum { RAN, ALLOCATED, RESERVED, DRIVER, REFUSED };

typedef struct memory_row {
    char table[24], name[96];
    char model[320], machine[64], recipe[16], strategy[160];
    int what;       /* RAN: it ran, but its memory is not known; REFUSED: it ran out of memory */
    double gib;     /* for ALLOCATED, RESERVED, DRIVER */
    int rank;       /* rank of the pipeline; -1 for the largest */
    double seconds; /* per step; 0 if not known, or if bench/accuracy reads it itself */
    double flops;   /* in place of seconds: FLOP/s of all GPUs, counted with full attention */
    int calibrates; /* 1 if the row was used to set constants, so it is not a test */
    double release; /* of the container of the run */
} memory_row;

typedef void memory_visit(const memory_row *row, void *context);

/* ---- tables ---------------------------------------------------------------------------------- */

typedef struct memory_table {
    FILE *file;
    int columns;
    char head[24][32], cell[24][336];
} memory_table;

static int memory_split(const char *line, char (*cell)[336])
{
    int n = 0, k = 0, quoted = 0;
    for (; *line != 0 && *line != '\n' && *line != '\r'; line++) {
        if (*line == '"') {
            quoted = !quoted;
        } else if (*line == ',' && !quoted) {
            cell[n][k] = 0;
            k = 0;
            n += n < 23;
        } else if (k < 335) {
            cell[n][k++] = *line;
        }
    }
    cell[n][k] = 0;
    return n + 1;
}

static int memory_line(memory_table *t)
{
    char line[1024];
    int i;
    for (i = 0; i < 24; i++) {
        t->cell[i][0] = 0;
    }
    do {
        if (fgets(line, sizeof line, t->file) == NULL) {
            fclose(t->file);
            return 0;
        }
    } while (line[0] == '#');
    return memory_split(line, t->cell);
}

static int memory_open(memory_table *t, const char *dir, const char *name)
{
    char path[512];
    int i;
    snprintf(path, sizeof path, "%s/%s.csv", dir, name);
    t->file = fopen(path, "r");
    if (t->file == NULL) {
        return 0;
    }
    t->columns = memory_line(t);
    for (i = 0; i < t->columns; i++) {
        snprintf(t->head[i], sizeof t->head[i], "%.31s", t->cell[i]);
    }
    return 1;
}

static const char *memory_text(const memory_table *t, const char *column)
{
    int i;
    for (i = 0; i < t->columns; i++) {
        if (strcmp(t->head[i], column) == 0) {
            return t->cell[i];
        }
    }
    return "";
}

static int memory_count(const memory_table *t, const char *column, int otherwise)
{
    const char *s = memory_text(t, column);
    return s[0] >= '0' && s[0] <= '9' ? atoi(s) : otherwise;
}

static int memory_is(const memory_table *t, const char *column, const char *value)
{
    return strcmp(memory_text(t, column), value) == 0;
}

static memory_row memory_begin(const char *table, const char *name)
{
    memory_row r;
    memset(&r, 0, sizeof r);
    snprintf(r.table, sizeof r.table, "%s", table);
    snprintf(r.name, sizeof r.name, "%s", name);
    r.rank = -1;
    return r;
}

static void memory_machine(memory_row *r, int gpus, const char *gpu)
{
    snprintf(r->machine, sizeof r->machine, "%dx%d:%s", gpus < 8 ? 1 : gpus / 8,
             gpus < 8 ? gpus : 8, gpu);
}

/* Returns the number of micro-batches that a global batch gives each replica. */
static int memory_batches(int gbs, int dp, int mbs)
{
    return gbs / (dp * mbs) > 0 ? gbs / (dp * mbs) : 1;
}

/* ---- Megatron's GPTs ------------------------------------------------------------------------- */

static void memory_megatron(const memory_table *t, const char *table, int selective,
                            memory_visit *visit, void *context)
{
    char name[96];
    memory_row r;
    int gpus = memory_count(t, "gpus", 1), tp = memory_count(t, "tp", 1);
    int pp = memory_count(t, "pp", 1), vp = memory_count(t, "vp", 1);
    int dp = gpus / (tp * pp), mbs = memory_count(t, "mbs", 1);
    int zero3 = memory_is(t, "scheme", "ZeRO-3"), single = strcmp(table, "vtrain-single") == 0;
    int vocab = memory_count(t, "vocab", (50257 + 128 * tp - 1) / (128 * tp) * 128 * tp);
    const char *gpu = strstr(memory_text(t, "system"), "V100") != NULL ? "v100-32" : "a100-80";
    snprintf(name, sizeof name, "%sB h %s L %s on %d tp%d pp%d vp%d mbs%d%s",
             memory_text(t, "params_b"), memory_text(t, "hidden"), memory_text(t, "layers"), gpus,
             tp, pp, vp, mbs, selective ? " selective" : "");
    r = memory_begin(table, name);
    memory_machine(&r, gpus, gpu);
    snprintf(r.model, sizeof r.model, "gpt:layers=%s,hidden=%s,heads=%s,vocab=%d,seq=%d,tied=1",
             memory_text(t, "layers"), memory_text(t, "hidden"), memory_text(t, "heads"), vocab,
             memory_count(t, "seq", 1024));
    snprintf(r.recipe, sizeof r.recipe, "fp16");
    snprintf(r.strategy, sizeof r.strategy, "dp=%d,tp=%d,sp=%d,pp=%d,vp=%d,mbs=%d,m=%d,zero=%d%s",
             dp, tp, selective, pp, vp, mbs, memory_batches(memory_count(t, "gbs", 1), dp, mbs),
             zero3 ? 3 : 0,
             single      ? ""
             : selective ? ",recompute=selective"
                         : ",recompute=full");
    visit(&r, context);
}

static void memory_megatrons(const char *dir, memory_visit *visit, void *context)
{
    static const char *const table[][2] = {
        {"sc21", "megatron_sc21_table1"},      {"sc21-2", "megatron_sc21_table2"},
        {"korthikanti", "korthikanti_a100"},   {"mt-nlg", "mt_nlg_530b"},
        {"vtrain-multi", "vtrain_a100_multi"}, {"vtrain-single", "vtrain_a100_single"}};
    memory_table t;
    size_t i;
    for (i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (!memory_open(&t, dir, table[i][1])) {
            continue;
        }
        while (memory_line(&t)) {
            memory_megatron(&t, table[i][0], 0, visit, context);
            if (i == 2) {
                memory_megatron(&t, table[i][0], 1, visit, context);
            }
        }
    }
}

/* ---- llm-foundry ----------------------------------------------------------------------------- */

static void memory_foundry(const char *dir, const char *file, memory_visit *visit, void *context)
{
    memory_table t;
    char name[96];
    int line = 0, hopper = strstr(file, "h100") != NULL;
    if (!memory_open(&t, dir, file)) {
        return;
    }
    while (memory_line(&t)) {
        int gpus = memory_count(&t, "gpus", 8), mbs = memory_count(&t, "mbs", 1);
        const char *gpu = memory_text(&t, "gpu");
        memory_row r;
        snprintf(name, sizeof name, "%s s%s on %d %s mbs%d%s", memory_text(&t, "model"),
                 memory_text(&t, "seq"), gpus, gpu, mbs,
                 memory_is(&t, "act_ckpt", "True") ? " ckpt" : "");
        r = memory_begin(hopper ? "llm-foundry-h100" : "llm-foundry-a100", name);
        r.flops = hopper ? gpus * 989e12 * atof(memory_text(&t, "mfu_pct")) / 100.0 : 0.0;
        if (hopper && strstr(memory_text(&t, "precision"), "fp8") != NULL) {
            r.flops *= 1979.0 / 989.0;
        }
        r.calibrates = line++ % 3 == 0;
        memory_machine(&r, gpus,
                       strstr(gpu, "h100") != NULL   ? "h100-80"
                       : strstr(gpu, "40gb") != NULL ? "a100-40"
                                                     : "a100-80");
        snprintf(r.model, sizeof r.model, "mpt-%s,seq=%s", memory_text(&t, "model"),
                 memory_text(&t, "seq"));
        snprintf(r.recipe, sizeof r.recipe, "%s",
                 strstr(memory_text(&t, "precision"), "fp8") != NULL ? "fsdp-fp8" : "fsdp");
        snprintf(r.strategy, sizeof r.strategy, "dp=%d,zero=%d,mbs=%d,m=%d%s", gpus,
                 memory_is(&t, "sharding", "FULL_SHARD") ? 3 : 2, mbs,
                 memory_batches(memory_count(&t, "gbs", 1), gpus, mbs),
                 memory_is(&t, "act_ckpt", "True") ? ",recompute=full" : "");
        visit(&r, context);
    }
}

/* ---- torchtitan ------------------------------------------------------------------------------ */

static void memory_torchtitan(const char *dir, const char *file, memory_visit *visit, void *context)
{
    memory_table t;
    char name[96];
    if (!memory_open(&t, dir, file)) {
        return;
    }
    while (memory_line(&t)) {
        int tp = memory_count(&t, "tp", 1), cp = memory_count(&t, "cp", 1);
        int dp = memory_count(&t, "dp_shard", 1), compiled = memory_is(&t, "compile", "yes");
        int full = memory_is(&t, "act_ckpt", "full"),
            early = strcmp(memory_text(&t, "date"), "2025-03") < 0;
        memory_row r;
        snprintf(name, sizeof name, "%s %s GPUs tp%d cp%d s%d %s fp8 %s", memory_text(&t, "model"),
                 memory_text(&t, "gpus"), tp, cp, memory_count(&t, "seq", 8192),
                 compiled ? "compiled" : "eager", memory_text(&t, "fp8"));
        r = memory_begin("torchtitan", name);
        memory_machine(&r, memory_count(&t, "gpus", 8),
                       memory_is(&t, "gpu", "H200") ? "h200" : "h100-96");
        /* Until 2025 the loss was not compiled together with the layers. */
        snprintf(r.model, sizeof r.model, "llama-3-%s,seq=%d,stack=%s%s",
                 strstr(memory_text(&t, "model"), "70B") != NULL ? "70b" : "8b",
                 memory_count(&t, "seq", 8192), compiled ? "torchtitan" : "torch",
                 early ? ",loss=eager" : "");
        snprintf(r.recipe, sizeof r.recipe, "%s",
                 memory_is(&t, "fp8", "none")      ? "fsdp"
                 : memory_is(&t, "fp8", "rowwise") ? "fsdp-fp8-row"
                                                   : "fsdp-fp8");
        snprintf(r.strategy, sizeof r.strategy,
                 "dp=%d,tp=%d,sp=%d,cp=%d,zero=%d,mbs=%d,recompute=%s,overlap=dp%s", dp, tp, tp > 1,
                 cp, dp * cp > 1 ? 3 : 0, memory_count(&t, "local_batch", 1),
                 full ? "full" : "alternate", memory_is(&t, "async_tp", "yes") ? "+tp" : "");
        r.gib = atof(memory_text(&t, "peak_gib"));
        r.what = r.gib > 0.0 ? RESERVED : RAN;
        if (strstr(file, "70b") != NULL) {
            r.seconds =
                8192.0 * memory_count(&t, "local_batch", 1) * dp /
                (atof(memory_text(&t, "tokens_per_s_per_gpu")) * memory_count(&t, "gpus", 8));
            r.calibrates = memory_is(&t, "fp8", "none");
        }
        visit(&r, context);
    }
}

/* ---- Megatron-Core --------------------------------------------------------------------------- */

static void memory_dgxc(const char *dir, memory_visit *visit, void *context)
{
    memory_table t;
    char name[96];
    if (!memory_open(&t, dir, "dgxc_h100")) {
        return;
    }
    while (memory_line(&t)) {
        int llama = strstr(memory_text(&t, "model"), "Llama") != NULL;
        int tp = memory_count(&t, "tp", 1);
        memory_row r;
        snprintf(name, sizeof name, "%s %s on %s", memory_text(&t, "model"),
                 memory_text(&t, "precision"), memory_text(&t, "gpus"));
        r = memory_begin("dgxc", name);
        memory_machine(&r, memory_count(&t, "gpus", 8), "h100-80");
        snprintf(r.model, sizeof r.model, "%s,seq=%s",
                 llama ? "llama-3-8b"
                       : "gpt:layers=32,hidden=6144,heads=48,kv_heads=8,ffn=24576,vocab=256000,"
                         "rotary=1,biases=-1,stack=core,attention=flash",
                 memory_text(&t, "seq"));
        snprintf(r.recipe, sizeof r.recipe, "%s",
                 memory_is(&t, "precision", "FP8") ? "fp8" : "megatron");
        snprintf(r.strategy, sizeof r.strategy, "dp=%s,tp=%d,sp=%d,cp=%s,zero=1,mbs=%s,m=%s",
                 memory_text(&t, "dp"), tp, tp > 1, memory_text(&t, "cp"), memory_text(&t, "mbs"),
                 memory_text(&t, "ga"));
        r.seconds = atof(memory_text(&t, "step_s"));
        r.calibrates = llama;
        visit(&r, context);
    }
}

/* Returns 26.04.01 as 260401. */
static double memory_release(const char *text)
{
    int year = 0, month = 0, patch = 0;
    (void)sscanf(text, "%d.%d.%d", &year, &month, &patch);
    return 10000.0 * year + 100.0 * month + patch;
}

/* Visits pre-training rows whose shape is given. Recomputation is not stated, so none is
 * assumed. */
static void memory_bridge(const char *dir, memory_visit *visit, void *context)
{
    static const char *const model[][2] = {
        {"LLAMA3_70B", "llama-3-70b"},
        {"LLAMA3_8B", "llama-3-8b"},
        {"Qwen3_30B_a3B",
         "llama:layers=48,hidden=2048,heads=32,kv_heads=4,head_width=128,ffn=6144,vocab=151936,"
         "experts=128,topk=8,expert_ffn=768"}};
    static const char *const machine[][2] = {{"DGX-H100", "h100-80"},
                                             {"DGX-B200", "b200"},
                                             {"DGX-GB200", "gb200"},
                                             {"DGX-B300", "b300"},
                                             {"DGX-GB300", "gb300"}};
    static const char *const recipe[][2] = {{"BF16", "bf16-grad16"}, {"FP8", "fp8"},
                                            {"FP8-CS", "fp8"},       {"MXFP8", "mxfp8"},
                                            {"FP8-MX", "mxfp8"},     {"NVFP4", "nvfp4"}};
    memory_table t;
    char name[96];
    if (!memory_open(&t, dir, "megatron_bridge")) {
        return;
    }
    while (memory_line(&t)) {
        int m, c, p, gpus = memory_count(&t, "#-GPUs", 0), tp = memory_count(&t, "TP", 1);
        int pp = memory_count(&t, "PP", 1), cp = memory_count(&t, "CP", 1);
        int vp = memory_count(&t, "VP", 1), ep = memory_count(&t, "EP", 1), shard, old;
        const char *heading;
        int mbs = memory_count(&t, "MBS", 1), dp = gpus / (tp * pp * cp);
        memory_row r;
        /* Until 25.11 the heading contains the machine; "FP8-CS (FP8-MX)" has two types in a
         * cell. */
        heading = memory_text(&t, "heading");
        old = strncmp(heading, "sys  ", 5) == 0;
        for (m = 0; m < 3 && !memory_is(&t, old ? "Model" : "heading", model[m][0]); m++) {
        }
        for (c = 0;
             c < 5 && strcmp(old ? heading + 5 : memory_text(&t, "System"), machine[c][0]) != 0;
             c++) {
        }
        for (p = 0; p < 6 && (strncmp(memory_text(&t, "Precision"), recipe[p][0],
                                      strlen(recipe[p][0])) != 0 ||
                              memory_text(&t, "Precision")[strlen(recipe[p][0])] > ' ');
             p++) {
        }
        if (m == 3 || c == 5 || p == 6 || gpus < 1 ||
            !memory_is(&t, "kind", "Pre-Training Performance")) {
            continue;
        }
        shard = memory_count(&t, "FSDP", 0);
        snprintf(name, sizeof name, "%s %s %s on %d tp%d pp%d ep%d mbs%d fsdp%d", machine[c][0],
                 model[m][0], recipe[p][1], gpus, tp, pp, ep, mbs, shard);
        r = memory_begin("megatron-bridge", name);
        memory_machine(&r, gpus, machine[c][1]);
        snprintf(r.model, sizeof r.model, "%s,stack=nemo,seq=%s", model[m][1],
                 memory_text(&t, "Sequence Length"));
        snprintf(r.recipe, sizeof r.recipe, "%s", recipe[p][1]);
        snprintf(r.strategy, sizeof r.strategy,
                 "dp=%d,tp=%d,sp=%d,pp=%d,vp=%d,cp=%d,ep=%d,zero=%d,mbs=%d,m=%d", dp, tp, tp > 1,
                 pp, pp > 1 ? vp : 1, cp, ep, shard > 0 ? 3 : 1, mbs,
                 memory_batches(memory_count(&t, "GBS", 1), dp, mbs));
        r.release = memory_release(memory_text(&t, "release"));
        r.seconds = atof(memory_text(&t, "Sequence Length")) * memory_count(&t, "GBS", 1) /
                    (gpus * atof(memory_text(&t, "Tokens / sec / GPU")));
        visit(&r, context);
    }
}

/* Visits runs of one sample on many GPUs, with up to 1,048,576 tokens. */
static void memory_long(const char *dir, memory_visit *visit, void *context)
{
    memory_table t;
    char name[96];
    if (!memory_open(&t, dir, "nemo_long")) {
        return;
    }
    while (memory_line(&t)) {
        const int gpus = memory_count(&t, "gpus", 8), tp = memory_count(&t, "tp", 1);
        const int pp = memory_count(&t, "pp", 1), cp = memory_count(&t, "cp", 1);
        const int dp = memory_count(&t, "dp", 1), seq = memory_count(&t, "seq_k", 8);
        const double tokens = atof(memory_text(&t, "tokens_s_gpu"));
        const int h100 = memory_is(&t, "machine", "h100"), gbs = memory_count(&t, "gbs", 1);
        memory_row r;
        snprintf(name, sizeof name, "%s on %d %s, %dk tp%d pp%d cp%d", memory_text(&t, "model"),
                 gpus, memory_text(&t, "machine"), seq, tp, pp, cp);
        r = memory_begin("nemo-long", name);
        memory_machine(&r, gpus, h100 ? "h100-80" : "b200");
        snprintf(r.model, sizeof r.model, "%s,stack=nemo@20%.2s,seq=%dk", memory_text(&t, "model"),
                 memory_text(&t, "release"), seq);
        r.calibrates = h100 && (seq == 4 || seq == 1024);
        snprintf(r.recipe, sizeof r.recipe, "fp8");
        snprintf(r.strategy, sizeof r.strategy, "dp=%d,tp=%d,sp=%d,pp=%d,cp=%d,zero=1,mbs=1,m=%d",
                 dp, tp, tp > 1, pp, cp, gbs / dp);
        if (h100) {
            r.seconds = 1024.0 * seq * gbs / (gpus * tokens);
        } else {
            r.flops = 1e12 * gpus * atof(memory_text(&t, "tflops_gpu"));
        }
        visit(&r, context);
    }
}

static const char *memory_simumax_model(const char *name)
{
    static const char *const shape[][2] = {
        {"llama3-70b", "llama:hidden=8192,heads=64,kv_heads=8,ffn=28672,vocab=128256"},
        {"llama3-405b", "llama:hidden=16384,heads=128,kv_heads=16,ffn=53248,vocab=128256"},
        {"deepseekv2",
         "llama:hidden=5120,heads=128,ffn=12288,vocab=102400,kv_lora=512,q_lora=1536,rope_width=64,"
         "qk_width=128,v_width=128,experts=160,topk=6,expert_ffn=1536,shared_ffn=3072,"
         "dense_layers=1"},
        {"deepseekv3",
         "llama:hidden=7168,heads=128,ffn=18432,vocab=129280,kv_lora=512,q_lora=1536,rope_width=64,"
         "qk_width=128,v_width=128,experts=256,topk=8,expert_ffn=2048,shared_ffn=2048,"
         "dense_layers=1"}};
    size_t i;
    for (i = 0; i + 1 < sizeof shape / sizeof shape[0] && strcmp(shape[i][0], name) != 0; i++) {
    }
    return shape[i][1];
}

static void memory_simumax(const char *dir, memory_visit *visit, void *context)
{
    memory_table t;
    if (!memory_open(&t, dir, "simumax_b200_odd")) {
        return;
    }
    while (memory_line(&t)) {
        int tp = memory_count(&t, "tp", 1), pass;
        memory_row r = memory_begin("simumax", memory_text(&t, "case"));
        memory_machine(&r, 8, "b200");
        snprintf(r.model, sizeof r.model, "%s,layers=%s,seq=%s,stack=core",
                 memory_simumax_model(memory_text(&t, "model")), memory_text(&t, "layers"),
                 memory_text(&t, "seq"));
        snprintf(r.recipe, sizeof r.recipe, "megatron");
        snprintf(r.strategy, sizeof r.strategy,
                 "dp=%s,tp=%d,sp=%d,cp=%s,cp_kind=ulysses,ep=%s,pp=%s,zero=1,mbs=1,m=%s",
                 memory_text(&t, "dp"), tp, tp > 1, memory_text(&t, "cp"), memory_text(&t, "ep"),
                 memory_text(&t, "pp"), memory_text(&t, "micro_batches"));
        for (pass = 0; pass < 2; pass++) {
            r.what = pass ? RESERVED : ALLOCATED;
            snprintf(r.table, sizeof r.table, pass ? "simumax-reserved" : "simumax");
            r.gib = atof(memory_text(&t, pass ? "real_reserved_gib" : "real_alloc_gib"));
            visit(&r, context);
        }
    }
}

/* Visits shapes that have the stated number of parameters: 16 layers of 2048 with tied embeddings,
 * and Llama-8B with all heads. */
static void memory_nanotron(const char *dir, memory_visit *visit, void *context)
{
    memory_table t;
    char name[96];
    if (!memory_open(&t, dir, "nanotron_grid_h100")) {
        return;
    }
    while (memory_line(&t)) {
        int small = memory_is(&t, "model_B", "1.34"), tp = memory_count(&t, "tp", 1);
        memory_row r;
        snprintf(name, sizeof name, "%sB on %s dp%s tp%d pp%s mbs%s zero%s",
                 memory_text(&t, "model_B"), memory_text(&t, "gpus"), memory_text(&t, "dp"), tp,
                 memory_text(&t, "pp"), memory_text(&t, "mbs"), memory_text(&t, "zero"));
        r = memory_begin("nanotron", name);
        snprintf(r.machine, sizeof r.machine, "p5,nodes=%d", memory_count(&t, "gpus", 8) / 8);
        snprintf(r.model, sizeof r.model,
                 "llama:%s,vocab=131072,seq=4096,stack=nanotron,loss=parallel",
                 small ? "layers=16,hidden=2048,heads=32,ffn=8192,tied=1"
                       : "layers=32,hidden=4096,heads=32,ffn=14336");
        snprintf(r.recipe, sizeof r.recipe, "megatron");
        snprintf(r.strategy, sizeof r.strategy, "dp=%s,tp=%d,sp=%d,pp=%s,zero=%s,mbs=%s,m=%s",
                 memory_text(&t, "dp"), tp, tp > 1, memory_text(&t, "pp"), memory_text(&t, "zero"),
                 memory_text(&t, "mbs"), memory_text(&t, "gas"));
        r.what = RESERVED;
        r.gib = atof(memory_text(&t, "mem_GB"));
        r.flops = memory_count(&t, "gpus", 8) * 989e12 * atof(memory_text(&t, "mfu_pct")) / 100.0;
        visit(&r, context);
    }
}

/* Visits runs as people report them, in the words of the command. */
static void memory_real(const char *dir, memory_visit *visit, void *context)
{
    static const char *const word[] = {"ran", "allocated", "reserved", "driver", "out of memory"};
    memory_table t;
    if (!memory_open(&t, dir, "real_runs_memory")) {
        return;
    }
    while (memory_line(&t)) {
        memory_row r = memory_begin("real-runs", memory_text(&t, "run"));
        snprintf(r.machine, sizeof r.machine, "%.60s", memory_text(&t, "machine"));
        snprintf(r.model, sizeof r.model, "%.300s", memory_text(&t, "model"));
        snprintf(r.recipe, sizeof r.recipe, "%.15s", memory_text(&t, "recipe"));
        snprintf(r.strategy, sizeof r.strategy, "%.150s", memory_text(&t, "strategy"));
        r.rank = memory_count(&t, "rank", -1);
        r.gib = atof(memory_text(&t, "gib"));
        while (r.what < REFUSED && !memory_is(&t, "measured", word[r.what])) {
            r.what++;
        }
        visit(&r, context);
    }
}

static void memory_rows(const char *dir, memory_visit *visit, void *context)
{
    memory_megatrons(dir, visit, context);
    memory_foundry(dir, "llmfoundry_fsdp_a100", visit, context);
    memory_foundry(dir, "llmfoundry_fsdp_h100", visit, context);
    memory_torchtitan(dir, "torchtitan_8b", visit, context);
    memory_torchtitan(dir, "torchtitan_70b", visit, context);
    memory_dgxc(dir, visit, context);
    memory_bridge(dir, visit, context);
    memory_long(dir, visit, context);
    memory_simumax(dir, visit, context);
    memory_nanotron(dir, visit, context);
    memory_real(dir, visit, context);
}

/* ---- predictions for a row ------------------------------------------------------------------- */

typedef struct memory_said {
    dpar_status status; /* of the prediction: DPAR_OK, DPAR_E_MEMORY, or an error */
    dpar_memory_usage memory;
    double capacity;
    double gib; /* the prediction to compare with the row's number */
    dpar_why why;
} memory_said;

static memory_said memory_say(const memory_row *r)
{
    static dpar_workload work;
    static dpar_cluster machine;
    static char last[320];
    memory_said said;
    dpar_model m;
    dpar_job job;
    dpar_strategy s;
    dpar_plan plan;
    memset(&said, 0, sizeof said);
    said.status = DPAR_OK;
    if (strcmp(last, r->model) != 0) {
        last[0] = 0;
        said.status = dpar_model_read(&m, r->model, strlen(r->model), &said.why);
        if (said.status == DPAR_OK) {
            said.status = dpar_workload_init(&work, &m, 0, &said.why);
        }
        if (said.status == DPAR_OK) {
            snprintf(last, sizeof last, "%s", r->model);
        }
    }
    job.work = &work;
    job.cluster = &machine;
    dpar_strategy_init(&s);
    if (said.status == DPAR_OK) {
        said.status = dpar_cluster_read(&machine, r->machine, strlen(r->machine), &said.why);
    }
    if (said.status == DPAR_OK) {
        said.status = dpar_recipe_find(&job.recipe, r->recipe, &said.why);
    }
    if (said.status == DPAR_OK) {
        said.status = dpar_strategy_read(&s, r->strategy, strlen(r->strategy), NULL, &said.why);
    }
    if (said.status != DPAR_OK) {
        return said;
    }
    said.status = dpar_plan_price(&job, &s, 0, &plan, NULL, &said.why);
    said.capacity = machine.gpu.memory_bytes;
    said.memory = plan.memory;
    if (r->rank >= 0) {
        dpar_memory_stage(&job, &s, r->rank, &said.memory);
    }
    said.gib = (r->what == ALLOCATED ? said.memory.allocated
                : r->what == DRIVER
                    ? said.memory.total
                    : said.memory.allocated + said.memory.term[DPAR_MEMORY_FRAGMENTATION]) /
               1073741824.0;
    return said;
}

#endif
