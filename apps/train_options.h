/* SPDX-License-Identifier: MIT-0 */
/* train_options - the options of train_gpt.c, and the text that it trains on. train_gpt.c includes
 * it after gpt.h. */
#ifndef TRAIN_OPTIONS_H
#define TRAIN_OPTIONS_H

static const char program[] = "train_gpt";
static const char help[] =
    "train_gpt: trains a small GPT on a text, byte by byte\n"
    "\n"
    "  train_gpt [--ranks N] [--pp P] [--dp D] [--cp C] [--tp T] [--ep E] [options]\n"
    "  mpirun -np N train_gpt ...     built with -DUSE_MPI\n"
    "\n"
    "Ranks: pp x dp x cp x tp; a --dp that is not given is what is left\n"
    "  --ranks N        1 to 64\n"
    "  --pp P           stages of the pipeline; --schedule NAME: 1f1b (default), gpipe,\n"
    "                   interleaved, zb-h1, zbv, dualpipe, ... (pipeline --list names all);\n"
    "                   --chunks V: stages a rank, where the schedule leaves that open\n"
    "  --dp D           data parallel; --zero Z: 0 whole state on each (DDP), 1 optimizer's state\n"
    "                   cut, 2 gradients too, 3 weights too; --replicas R: D is R copies of\n"
    "                   D / R shards; --prefetch K: layers that ZeRO-3 gathers ahead (default 1)\n"
    "  --cp C           tokens of a sample cut: by ring attention, or --ulysses\n"
    "  --tp T           matrices cut; --sp: activations between them, too\n"
    "  --ep E           experts spread over E of the ranks of dp x cp\n"
    "Model\n"
    "  --blocks N (4) --width N (64) --heads N (4) --groups N (of keys; as heads)\n"
    "  --hidden N (of the MLP; 4 width) --length N (of a sample; 64) --untied\n"
    "  --gelu (else SwiGLU) --layer-norm (else RMS)\n"
    "  --experts N (0) --choices K (2): every second block has experts; --balance A (0.01)\n"
    "  --shared-experts N: hidden features of one that all tokens use, beside them (0)\n"
    "  --capacity F     an expert takes F even shares at most, later tokens are dropped (all)\n"
    "Training\n"
    "  --text FILE      default: README.md and docs of the directory\n"
    "  --batch N        samples a step, all ranks (16); --micro N: of a micro-batch (2)\n"
    "  --steps N (100) --rate R (0.001) --warmup N (steps / 10) --clip C (1) --decay D (0.1)\n"
    "  --seed N (1)     of the first weights and of the samples\n"
    "  --bf16           weights rounded to bf16 for compute and travel, masters f32 (zero 1 to 3)\n"
    "  --pure-bf16      weights and moments bf16, rounded stochastically, no masters (zero 1 to "
    "3)\n"
    "  --save FILE      a checkpoint at the end, and with --every N each N steps\n"
    "  --resume FILE    goes on from one, on any mesh; the model and text must be the same\n"
    "  --check          the same on one rank first; losses and weights are to agree to 1e-5\n"
    "  --trace FILE     what ran in the last step, for ui.perfetto.dev\n"
    "  --kill STEP:RANK that rank dies there, to see what happens\n"
    "  --overflow STEP  some gradients are infinite there: all ranks skip the step as a whole\n"
    "  --quiet          no plan and no steps; --help, -h\n"
    "Exit code: 0 fine, 1 an error under way, or --check found another result, 2 bad input\n"
    "\n"
    "examples\n"
    "  train_gpt --ranks 4 --pp 2 --dp 2 --check\n"
    "  train_gpt --ranks 4 --tp 2 --sp --zero 3 --steps 200 --save model\n"
    "  train_gpt --ranks 2 --cp 2 --resume model --steps 300\n";

#include "../helpers/options.h"

typedef struct settings {
    double ranks, pp, dp, replicas, cp, tp, ep, zero, chunks, prefetch;
    double blocks, width, heads, groups, hidden, length, experts, choices, balance, shared,
        capacity;
    double batch, micro, steps, rate, warmup, clip, decay, seed, every, overflow;
    int sp, ulysses, untied, gelu, layer_norm, bf16, pure, check, quiet;
    const char *schedule, *text, *save, *resume, *trace, *kill;
    int kill_step, kill_rank, micros; /* micros: micro-batches of a data-parallel rank */
    unsigned char *bytes;             /* the text */
    int64_t count;
    uint64_t hash;
} settings;

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = a * UINT64_C(0x9e3779b97f4a7c15) + b + 1;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* Appends a file to the text. A file that does not exist is an error only with `must`. Returns 2
 * after a message, otherwise 0. */
static int append(settings *options, const char *path, int must)
{
    FILE *file = fopen(path, "rb");
    size_t got = 1;
    if (file == NULL) {
        return must ? complain(strerror(errno), path) : 0;
    }
    while (got > 0) {
        unsigned char *more =
            (unsigned char *)realloc(options->bytes, (size_t)options->count + 65536);
        if (more == NULL || options->count > INT64_C(1) << 32) {
            fclose(file);
            return complain("no memory for the text, or more than 4 GiB:", path);
        }
        options->bytes = more;
        got = fread(options->bytes + options->count, 1, 65536, file);
        options->count += (int64_t)got;
    }
    got = (size_t)ferror(file);
    fclose(file);
    return got != 0 ? complain("cannot be read:", path) : 0;
}

/* Reads the text: a file, or the project's own pages. */
static int read_text(settings *options)
{
    static const char *const pages[] = {"README.md", "docs/conventions.md", "docs/vendoring.md",
                                        "docs/records/performance.md"};
    int64_t i;
    int bad = options->text != NULL ? append(options, options->text, 1) : 0;
    for (i = 0; i < 4 && options->text == NULL && !bad; i++) {
        bad = append(options, pages[i], i == 0);
    }
    if (!bad && options->count < (int64_t)options->length + 2) {
        return complain("the text is shorter than --length", options->text);
    }
    for (i = 0; i < options->count; i++) {
        options->hash = mix(options->hash, options->bytes[i]);
    }
    return bad;
}

/* Reads the command line. Returns -1 to continue, otherwise the exit code. */
static int read_words(int argc, char **argv, settings *options)
{
    const option list[] = {{"--ranks", OPTION_WHOLE, &options->ranks, 1, 64},
                           {"--pp", OPTION_WHOLE, &options->pp, 1, 64},
                           {"--dp", OPTION_WHOLE, &options->dp, 1, 64},
                           {"--replicas", OPTION_WHOLE, &options->replicas, 1, 64},
                           {"--cp", OPTION_WHOLE, &options->cp, 1, 64},
                           {"--tp", OPTION_WHOLE, &options->tp, 1, 64},
                           {"--ep", OPTION_WHOLE, &options->ep, 1, 64},
                           {"--zero", OPTION_WHOLE, &options->zero, 0, 3},
                           {"--chunks", OPTION_WHOLE, &options->chunks, 1, 16},
                           {"--prefetch", OPTION_WHOLE, &options->prefetch, 0, 8},
                           {"--blocks", OPTION_WHOLE, &options->blocks, 1, 128},
                           {"--width", OPTION_WHOLE, &options->width, 2, 8192},
                           {"--heads", OPTION_WHOLE, &options->heads, 1, 256},
                           {"--groups", OPTION_WHOLE, &options->groups, 1, 256},
                           {"--hidden", OPTION_WHOLE, &options->hidden, 1, 65536},
                           {"--length", OPTION_WHOLE, &options->length, 1, 65536},
                           {"--experts", OPTION_WHOLE, &options->experts, 0, 256},
                           {"--choices", OPTION_WHOLE, &options->choices, 1, 16},
                           {"--balance", OPTION_REAL, &options->balance, 0, 10},
                           {"--shared-experts", OPTION_WHOLE, &options->shared, 0, 65536},
                           {"--capacity", OPTION_REAL, &options->capacity, 0.01, 256},
                           {"--batch", OPTION_WHOLE, &options->batch, 1, 65536},
                           {"--micro", OPTION_WHOLE, &options->micro, 1, 4096},
                           {"--steps", OPTION_WHOLE, &options->steps, 1, 1e7},
                           {"--rate", OPTION_REAL, &options->rate, 0, 1},
                           {"--warmup", OPTION_WHOLE, &options->warmup, 0, 1e7},
                           {"--clip", OPTION_REAL, &options->clip, 0, 1e9},
                           {"--decay", OPTION_REAL, &options->decay, 0, 1},
                           {"--seed", OPTION_WHOLE, &options->seed, 0, 1e15},
                           {"--every", OPTION_WHOLE, &options->every, 1, 1e7},
                           {"--overflow", OPTION_WHOLE, &options->overflow, 0, 1e7},
                           {"--schedule", OPTION_WORD, &options->schedule, 0, 0},
                           {"--text", OPTION_WORD, &options->text, 0, 0},
                           {"--save", OPTION_WORD, &options->save, 0, 0},
                           {"--resume", OPTION_WORD, &options->resume, 0, 0},
                           {"--trace", OPTION_WORD, &options->trace, 0, 0},
                           {"--kill", OPTION_WORD, &options->kill, 0, 0},
                           {"--sp", OPTION_FLAG, &options->sp, 0, 0},
                           {"--ulysses", OPTION_FLAG, &options->ulysses, 0, 0},
                           {"--untied", OPTION_FLAG, &options->untied, 0, 0},
                           {"--gelu", OPTION_FLAG, &options->gelu, 0, 0},
                           {"--layer-norm", OPTION_FLAG, &options->layer_norm, 0, 0},
                           {"--bf16", OPTION_FLAG, &options->bf16, 0, 0},
                           {"--pure-bf16", OPTION_FLAG, &options->pure, 0, 0},
                           {"--check", OPTION_FLAG, &options->check, 0, 0},
                           {"--quiet", OPTION_FLAG, &options->quiet, 0, 0}};
    options_last = 1;
    return options_read(argc, argv, list, sizeof list / sizeof *list, NULL, 0);
}

/* Sets the degrees of parallelism and checks that their product is the number of ranks. ranks:
 * those that a launcher has started, or 0. Returns 2 after a message, otherwise 0. */
static int settle_ranks(settings *options, int ranks)
{
    char text[200];
    double others;
    if (ranks > 0 && options->ranks > 0 && (int)options->ranks != ranks) {
        return complain("the launcher sets the number of ranks: leave --ranks out", NULL);
    }
    options->ranks = ranks > 0 ? ranks : options->ranks;
    options->pp = options->pp > 0 ? options->pp : 1;
    options->cp = options->cp > 0 ? options->cp : 1;
    options->tp = options->tp > 0 ? options->tp : 1;
    options->replicas = options->replicas > 0 ? options->replicas : 1;
    options->ep = options->ep > 0 ? options->ep : 1;
    others = options->pp * options->cp * options->tp;
    if (options->dp < 1) {
        options->dp = options->ranks > others ? floor(options->ranks / others) : 1;
    }
    options->ranks = options->ranks > 0 ? options->ranks : others * options->dp;
    if (others * options->dp != options->ranks || options->ranks > 64) {
        snprintf(text, sizeof text,
                 "pp %d x dp %d x cp %d x tp %d is %.0f ranks, not %.0f (64 at most)",
                 (int)options->pp, (int)options->dp, (int)options->cp, (int)options->tp,
                 others * options->dp, options->ranks);
        return complain(text, NULL);
    }
    if ((int)options->dp % (int)options->replicas != 0) {
        snprintf(text, sizeof text, "--replicas %d does not divide --dp %d", (int)options->replicas,
                 (int)options->dp);
        return complain(text, NULL);
    }
    if ((int)(options->dp * options->cp) % (int)options->ep != 0) {
        snprintf(text, sizeof text, "--ep %d does not divide dp %d x cp %d", (int)options->ep,
                 (int)options->dp, (int)options->cp);
        return complain(text, NULL);
    }
    return 0;
}

/* Checks the other options, and reads the text. Returns 2 after a message, otherwise 0. */
static int settle(settings *options)
{
    char text[200];
    const double each = options->dp * options->micro;
    if ((int)options->batch % (int)each != 0) {
        snprintf(text, sizeof text, "--batch %d is no multiple of dp %d x --micro %d",
                 (int)options->batch, (int)options->dp, (int)options->micro);
        return complain(text, NULL);
    }
    options->micros = (int)(options->batch / each);
    options->warmup = options->warmup >= 0 ? options->warmup : floor(options->steps / 10);
    options->bf16 = options->bf16 || options->pure; /* both compute with bf16 weights */
    if (options->bf16 && (options->zero < 1 || sizeof(gpt_real) > 4)) {
        return complain("--bf16 and --pure-bf16 need --zero 1, 2 or 3, and a program that is "
                        "compiled with floats",
                        NULL);
    }
    if (options->ep > 1 && options->experts < 1) {
        return complain("--ep needs --experts", NULL);
    }
    if (options->experts < 1 && (options->shared > 0 || options->capacity > 0)) {
        return complain("--shared-experts and --capacity need --experts", NULL);
    }
    if (options->check && options->capacity > 0 &&
        (options->cp > 1 || options->ep != options->dp)) {
        return complain(
            "--check with --capacity needs --cp 1 and an --ep as large as --dp, because "
            "otherwise other tokens are dropped than on one rank",
            NULL);
    }
    if (options->experts > 0 && options->choices > options->experts) {
        return complain("--choices must not exceed --experts", NULL);
    }
    if (options->every > 0 && options->save == NULL) {
        return complain("--every needs --save", NULL);
    }
    if (options->kill != NULL &&
        sscanf(options->kill, "%d:%d", &options->kill_step, &options->kill_rank) != 2) {
        return complain("--kill takes STEP:RANK, not", options->kill);
    }
    if (options->check && options->resume != NULL) {
        return complain("--check begins at the first step: leave --resume out", NULL);
    }
    return read_text(options);
}

static settings defaults(void)
{
    settings options;
    memset(&options, 0, sizeof options);
    options.blocks = 4;
    options.width = 64;
    options.heads = 4;
    options.length = 64;
    options.choices = 2;
    options.balance = 0.01;
    options.batch = 16;
    options.micro = 2;
    options.steps = 100;
    options.rate = 0.001;
    options.warmup = options.overflow = -1;
    options.clip = 1.0;
    options.decay = 0.1;
    options.seed = 1;
    options.prefetch = 1;
    options.schedule = "1f1b";
    options.kill_step = -1;
    return options;
}

#endif
