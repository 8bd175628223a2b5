/* SPDX-License-Identifier: MIT-0 */
/* pipeline - makes, checks, times and draws pipeline schedules.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. commands/pipeline.c -o pipeline
 *   ./pipeline --schedule zb-h1 --stages 4 --micro 8
 *
 *   zb-h1
 *   4 ranks, 4 stages, 8 micro-batches, makespan 27; 54 columns = 27
 *   rank 0 |F0F1F2F3......I0W0F4I1W1F5I2W2F6I3W3F7I4W4I5W5I6W6I7W7|
 *   rank 1 |..F0F1F2....I0F3I1W0F4I2W1F5I3W2F6I4W3F7I5W4I6W5I7W6W7|
 *   rank 2 |....F0F1..I0F2I1F3I2W0F4I3W1F5I4W2F6I5W3F7I6W4I7W5W6W7|
 *   rank 3 |......F0I0F1I1F2I2F3I3W0F4I4W1F5I5W2F6I6W3F7I7W4W5W6W7|
 *   time    0         5         10        15        20
 *   F forward  I input gradient  W weight gradient  . idle
 *   makespan 27, span 27; idle 11.1 % of the makespan, 12.5 % of the work, 11.1 % of the span
 *   activations at most 4 4 4 4; closed form: m v (F + I + W) + (p - 1) (F + I - W) = 27
 *
 * ./pipeline --compare --stages 8 --micro 32 --latency 0.2 --memory 8 compares all schedules.
 * The list of actions is made by dpar_schedule_generate or dpar_schedule_optimize, or read by
 * dpar_schedule_read. It is completed by dpar_schedule_lower, checked by dpar_schedule_check, timed
 * by dpar_schedule_simulate and drawn by dpar_schedule_draw.
 *
 * --help lists the options. Exit code: 0 done, 1 an invalid schedule or one that does not fit, 2
 * bad input (one message on stderr). */
#include "dpar_schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char program[] = "pipeline";
static const char help[] =
    "pipeline: makes, checks, times and draws pipeline schedules\n"
    "\n"
    "  pipeline --schedule NAME --stages P --micro M [options]     make one schedule\n"
    "  pipeline --compare --stages P --micro M [options]           compare all, the fastest first\n"
    "  pipeline --check FILE.csv [--transport T] [options]         check a list of actions\n"
    "\n"
    "The schedule\n"
    "  --schedule NAME    --list shows the names; \"auto\" makes one that suits the times and "
    "memory\n"
    "  --stages P         ranks; each has --virtual stages\n"
    "  --virtual V        stages per rank, if the schedule leaves that open\n"
    "  --micro M          micro-batches\n"
    "  --group N          micro-batches of a group (interleaved)\n"
    "  --slices S         slices of the sequence (seq1f1b)\n"
    "  --lifo             gpipe: run the backward passes from the last micro-batch to the first\n"
    "  --map R,R,..       the rank of each stage; with auto also loop (0,1,0,1) or v (0,1,1,0)\n"
    "  --whole            auto: do not split the backward\n"
    "  --objective KIND   auto: minimise makespan or span\n"
    "  --nodes N          auto: search for the optimum of tiny schedules, with at most N nodes\n"
    "  --chain C          --check: stages of a chain, for lists that run in two directions\n"
    "Times and memory\n"
    "  --fwd T            time of the forward of a stage (1); a list T,T,.. has one per stage\n"
    "  --bwd T            time of the whole backward; alone it is split in half\n"
    "  --bwd-input T, --bwd-weight T   time of its parts (1, 1), which need not add up to it\n"
    "  --overlap T        time of a forward and a backward that overlap (their sum)\n"
    "  --stage-times FILE a line per stage: forward, input, weight\n"
    "  --latency T        time of a message between ranks (0); a list: stage 0 to 1, 1 to 2, ..\n"
    "  --bytes N          bytes of a message (a list as for --latency); together with\n"
    "  --bandwidth B      bytes per unit of time: a message then takes N / B longer\n"
    "  --links KIND       what messages share: own (each message has its own link), pair (those "
    "from "
    "one\n"
    "                     rank to one other take turns), rank (all that leave a rank take turns)\n"
    "  --send KIND        buffered (a send never waits), async (a message is sent when both ends\n"
    "                     have posted it), blocking (as async, and both ends wait for it)\n"
    "  --hold F,I,W       bytes that F, I and W of a stage add to what its rank holds, as "
    "10,-4,-6\n"
    "  --memory A         the most that a rank may hold: activations, where 1 is one micro-batch\n"
    "                     through all layers of the rank, for example 4.5; bytes with --hold\n"
    "  --transport T      check that the schedule does not deadlock over blocking, rank, dir, "
    "pair,\n"
    "                     edge or eager (with buffers of --room N messages), and time it. rank\n"
    "                     is one NCCL communicator. The default of --check is pair\n"
    "  --order KIND       order of the messages: data (as their data are made) or turns "
    "(PyTorch's)\n"
    "Output\n"
    "  --format F         ascii, csv (PyTorch's), svg, trace (Perfetto), json\n"
    "  --lowered          csv with messages\n"
    "  --shards           csv with messages and UNSHARD, RESHARD and REDUCE_GRAD\n"
    "  --width N          width of the ascii chart (80)\n"
    "  -o FILE            write to FILE instead of stdout, which \"-\" stands for\n"
    "  --svg FILE         also draw a picture\n"
    "  --list             list the names of the schedules\n"
    "  -h, --help         show this text\n"
    "  --version          show the version of dpar\n"
    "\n"
    "Times are numbers of 0 to 1000000 with up to 6 decimals, all in one unit. They are computed "
    "exactly;\n"
    "only N / B is rounded up to 6 decimals. In a trace one unit is a microsecond. With\n"
    "--compare, the times and --hold are those of all layers of a rank together; a schedule with "
    "V\n"
    "chunks gives each chunk 1/V of them. If the sequence has S slices, a message has an S-th of\n"
    "its --bytes.\n"
    "Exit code: 0 done, 1 invalid or does not fit, 2 bad input (one message on stderr)\n"
    "\n"
    "examples\n"
    "  pipeline --schedule zbv --stages 4 --micro 8 --latency 0.25 --svg zbv.svg\n"
    "  pipeline --compare --stages 8 --micro 32 --latency 0.2 --memory 9 --virtual 4\n"
    "  pipeline --schedule 1f1b --stages 4 --micro 8 --format csv -o 1f1b.csv\n"
    "  pipeline --check 1f1b.csv --transport pair\n";

#include "../helpers/options.h"

static void fail(int code, const char *what, const char *why)
{
    fprintf(stderr, "pipeline: %s%s%s\n", what, why[0] != 0 ? ": " : "", why);
    exit(code);
}

/* Ends the program with "--links: takes own, pair or rank, not 'bus'". */
static void fail_value(const char *name, const char *takes, const char *value)
{
    char text[300];
    snprintf(text, sizeof text, "takes %s, not '%.60s'", takes, value);
    fail(2, name, text);
}

static void *room(int64_t bytes)
{
    void *memory = bytes < 0 || (uint64_t)bytes > (size_t)-1 / 2 ? NULL : malloc((size_t)bytes + 8);
    if (memory == NULL) {
        char text[60];
        snprintf(text, sizeof text, "%.3g GB are needed at once", (double)bytes * 1e-9);
        fail(2, "not enough memory", text);
    }
    return memory;
}

/* ---- numbers ----------------------------------------------------------------------------------
 *
 * A decimal is kept as a whole number of ten-millionths. Input has at most six decimals; the
 * seventh keeps half of such a number exact, for --bwd. */
enum { DECIMALS = 7 };
#define MOST_BYTES (INT64_C(1) << 40)

typedef struct series {
    int32_t count; /* numbers: 0 if not given, 1 for all stages */
    int64_t *values;
} series;

/* Reads "0.25". Returns the text that follows, or NULL if it is not a number in the range. */
static const char *decimal(const char *text, int64_t *value)
{
    int64_t total = 0;
    int whole = 0, places = 0, i;
    while (*text >= '0' && *text <= '9' && total <= 1000000) {
        total = 10 * total + (*text - '0');
        text++;
        whole++;
    }
    if (*text == '.') {
        text++;
        while (*text >= '0' && *text <= '9' && places < 6) {
            total = 10 * total + (*text - '0');
            text++;
            places++;
        }
    }
    for (i = places; i < DECIMALS; i++) {
        total *= 10;
    }
    *value = total;
    if (whole + places == 0 || (*text >= '0' && *text <= '9') || total > INT64_C(10000000000000)) {
        return NULL;
    }
    return text;
}

static int64_t number(const char *name, const char *value)
{
    int64_t total = 0;
    const char *text = decimal(value, &total);
    if (text == NULL || *text != 0) {
        fail_value(name, "a number of 0 to 1000000 with at most 6 decimals", value);
    }
    return total;
}

static series numbers(const char *name, const char *value)
{
    series list;
    const char *scan, *text = value;
    int32_t n = 1;
    for (scan = text; *scan != 0; scan++) {
        n += *scan == ',';
    }
    list.values = (int64_t *)room(8 * (int64_t)n);
    for (list.count = 0; list.count < n; list.count++) {
        text = decimal(text, &list.values[list.count]);
        if (text == NULL || *text != (list.count + 1 < n ? ',' : 0)) {
            fail_value(name, "numbers of 0 to 1000000 with at most 6 decimals, separated by commas",
                       value);
        }
        text += *text == ',';
    }
    return list;
}

/* Reads whole numbers from `least` to 2^40, separated by commas. `least` is 0 or -2^40. */
static series wholes(const char *name, const char *value, int64_t least)
{
    series list;
    const char *scan, *text = value;
    int32_t n = 1;
    for (scan = text; *scan != 0; scan++) {
        n += *scan == ',';
    }
    list.values = (int64_t *)room(8 * (int64_t)n);
    for (list.count = 0; list.count < n; list.count++) {
        int minus = *text == '-', digits = 0;
        int64_t total = 0;
        text += minus;
        while (*text >= '0' && *text <= '9' && total <= MOST_BYTES) {
            total = 10 * total + (*text - '0');
            text++;
            digits++;
        }
        list.values[list.count] = minus ? -total : total;
        if (digits == 0 || total > MOST_BYTES || list.values[list.count] < least ||
            *text != (list.count + 1 < n ? ',' : 0)) {
            fail_value(name,
                       least < 0 ? "whole numbers of -2^40 to 2^40, separated by commas"
                                 : "whole numbers of 0 to 2^40, separated by commas",
                       value);
        }
        text += *text == ',';
    }
    return list;
}

/* Returns ticks / unit as text with at most six decimals, rounded. The last eight texts stay valid,
 * so that one printf can show several. */
static const char *shown(int64_t ticks, int64_t unit)
{
    static char text[8][48];
    static int next;
    char *digits = text[next++ & 7];
    int64_t size = ticks < 0 ? -ticks : ticks;
    int64_t whole = size / unit, rest = size % unit * 1000000;
    size_t n;
    rest = rest / unit + (rest % unit * 2 >= unit);
    snprintf(digits, 48, "%s%lld.%06lld", ticks < 0 ? "-" : "", (long long)(whole + rest / 1000000),
             (long long)(rest % 1000000));
    n = strlen(digits);
    while (digits[n - 1] == '0') {
        digits[--n] = 0;
    }
    if (digits[n - 1] == '.') {
        digits[--n] = 0;
    }
    return digits;
}

/* Returns a ratio in millionths, rounded; 0 if the whole is 0. */
static int64_t millionths(dpar_ratio ratio)
{
    return ratio.whole < 1 ? 0 : (int64_t)(1e6 * (double)ratio.part / (double)ratio.whole + 0.5);
}

/* Returns a ratio in per cent with one decimal. */
static const char *percent(dpar_ratio ratio)
{
    return shown((millionths(ratio) + 500) / 1000, 10);
}

/* ---- settings -------------------------------------------------------------------------------- */

/* Names by DPAR_TRANSPORT_*. */
static const char *const transports[] = {"none", "blocking", "rank", "dir",
                                         "pair", "edge",     "eager"};

typedef struct settings {
    const char *schedule, *check, *format, *output, *svg, *stage_times, *memory;
    const char **given; /* the options that were given */
    int32_t givens;
    int32_t compare, ranks, chunks, micros, group, slices, lifo, chain, lowered, shards, sends;
    int32_t transport, buffers, width, map, whole, span, links, nodes, turns;
    int32_t timed; /* 1 if the times include the transport that --transport names */
    series forward, backward, input, weight, overlap, latency, bytes, hold, ranks_of;
    int64_t bandwidth, cap; /* cap in ten-millionths, with --hold in bytes; -1 if there is none */
} settings;

static int given(const settings *options, const char *name)
{
    int32_t i;
    for (i = 0; i < options->givens; i++) {
        const size_t n = strlen(name);
        if (strncmp(options->given[i], name, n) == 0 &&
            (options->given[i][n] == 0 || options->given[i][n] == '=')) {
            return 1;
        }
    }
    return 0;
}

static char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    size_t size = 0, got;
    char *text = NULL;
    if (file == NULL) {
        fail(2, path, "cannot be read");
    }
    do {
        char *more = (char *)realloc(text, size + 65537);
        if (more == NULL) {
            fail(2, path, "not enough memory");
        }
        text = more;
        got = fread(text + size, 1, 65536, file);
        size += got;
        if (size > (size_t)1 << 30) {
            fail(2, path, "more than 1 GiB");
        }
    } while (got > 0);
    if (ferror(file) != 0) {
        fail(2, path, "cannot be read");
    }
    fclose(file);
    text[size] = 0;
    *bytes = size;
    return text;
}

/* Reads a file with three numbers per line: forward, input, weight. */
static void read_stage_times(settings *options)
{
    series *column[3];
    size_t bytes;
    char *text = read_file(options->stage_times, &bytes);
    const char *at = text;
    int32_t lines = 1, k;
    column[0] = &options->forward;
    column[1] = &options->input;
    column[2] = &options->weight;
    for (k = 0; text[k] != 0; k++) {
        lines += text[k] == '\n';
    }
    for (k = 0; k < 3; k++) {
        column[k]->count = 0;
        column[k]->values = (int64_t *)room(8 * (int64_t)lines);
    }
    while (*at != 0) {
        at += strspn(at, " \t\r\n");
        if (*at == '#') {
            at += strcspn(at, "\n");
            continue;
        }
        for (k = 0; k < 3 && *at != 0; k++) {
            at = decimal(at, &column[k]->values[column[k]->count]);
            column[k]->count++;
            if (at == NULL || strchr(" \t\r\n", *at) == NULL || (k < 2 && *at == 0)) {
                fail(2, options->stage_times,
                     "each line has three numbers: forward, input, weight");
            }
            at += strspn(at, " \t");
        }
        if (k == 3 && *at != 0 && *at != '\r' && *at != '\n') {
            fail(2, options->stage_times, "each line has three numbers and no more");
        }
    }
    if (column[0]->count == 0) {
        fail(2, options->stage_times, "has no times");
    }
    free(text);
}

/* Completes the times of the two parts of the backward: --bwd 3 --bwd-input 2 gives a weight of 1.
 */
static void complete(settings *options)
{
    int32_t i;
    if (options->forward.count == 0) {
        options->forward = numbers("--fwd", "1");
    }
    if (options->input.count == 0 && options->weight.count == 0 && options->backward.count > 0) {
        options->input.count = options->weight.count = options->backward.count;
        options->input.values = (int64_t *)room(8 * (int64_t)options->backward.count);
        options->weight.values = (int64_t *)room(8 * (int64_t)options->backward.count);
        for (i = 0; i < options->backward.count; i++) {
            options->input.values[i] = options->weight.values[i] = options->backward.values[i] / 2;
        }
    } else if (options->backward.count > 0 &&
               (options->input.count == 0 || options->weight.count == 0)) {
        series *known = options->input.count > 0 ? &options->input : &options->weight;
        series *missing = options->input.count > 0 ? &options->weight : &options->input;
        if (known->count != options->backward.count) {
            fail(2, "--bwd and its parts", "have different numbers of stages");
        }
        missing->count = known->count;
        missing->values = (int64_t *)room(8 * (int64_t)known->count);
        for (i = 0; i < known->count; i++) {
            missing->values[i] = options->backward.values[i] - known->values[i];
            if (missing->values[i] < 0) {
                fail(2, "--bwd", "is less than one of its parts");
            }
        }
    }
    if (options->input.count == 0) {
        options->input = numbers("--bwd-input", "1");
    }
    if (options->weight.count == 0) {
        options->weight = numbers("--bwd-weight", "1");
    }
}

/* Returns the position of a value in a list of words, or ends the program with the words. */
static int32_t word(const char *name, const char *value, const char *const *list, int32_t n)
{
    char takes[160];
    int32_t i;
    size_t at = 0;
    for (i = 0; i < n; i++) {
        const char *between = i + 1 < n ? ", " : " or ";
        if (strcmp(value, list[i]) == 0) {
            return i;
        }
        at +=
            (size_t)snprintf(takes + at, sizeof takes - at, "%s%s", i == 0 ? "" : between, list[i]);
    }
    fail_value(name, takes, value);
    return -1;
}

static void close_output(FILE *file, const char *path)
{
    if (fflush(file) != 0 || ferror(file) != 0 || (file != stdout && fclose(file) != 0)) {
        fail(2, path == NULL ? "stdout" : path, "cannot be written");
    }
}

/* Lists the names of the schedules with `between` in between; the last is auto. */
static void list_schedules(FILE *file, const char *between)
{
    int32_t i;
    for (i = 1; i < DPAR_SCHEDULE_END; i++) {
        fprintf(file, "%s%s", dpar_schedule_name(i), between);
    }
    fputs("auto\n", file);
}

static void find_schedule(dpar_schedule_desc *order, const char *name)
{
    if (dpar_schedule_find(order, name, NULL) != DPAR_OK) {
        fprintf(stderr, "pipeline: --schedule: no schedule '%s'; there are ", name);
        list_schedules(stderr, ", ");
        exit(2);
    }
}

/* Reads loop, v, or the rank of each stage. */
static void read_map(settings *options, const char *value)
{
    int32_t i;
    options->ranks_of.count = 0;
    options->map = strcmp(value, "v") == 0 ? DPAR_STAGE_MAP_V : DPAR_STAGE_MAP_LOOP;
    if (options->map == DPAR_STAGE_MAP_V || strcmp(value, "loop") == 0) {
        return;
    }
    if (*value < '0' || *value > '9') {
        fail_value("--map",
                   "the rank of each stage, separated by commas (with auto also loop or v)", value);
    }
    options->ranks_of = wholes("--map", value, 0);
    for (i = 0; i < options->ranks_of.count; i++) {
        if (options->ranks_of.values[i] >= DPAR_MAX_STAGES) {
            fail_value("--map", "ranks of 0 to 65534", value);
        }
    }
    if (options->ranks_of.count > DPAR_MAX_STAGES) {
        fail(2, "--map", "has at most 65535 stages");
    }
}

/* The options whose values are read in a second step; the value is NULL if it was not given. */
enum {
    FORWARD,
    BACKWARD,
    INPUT,
    WEIGHT,
    OVERLAP,
    LATENCY,
    BANDWIDTH,
    BYTES,
    HOLD,
    FORMAT,
    SEND,
    LINKS,
    OBJECTIVE,
    TRANSPORT,
    MAP,
    ORDER,
    RAWS
};
static const char *const raw_name[RAWS] = {
    "--fwd",       "--bwd",       "--bwd-input", "--bwd-weight", "--overlap", "--latency",
    "--bandwidth", "--bytes",     "--hold",      "--format",     "--send",    "--links",
    "--objective", "--transport", "--map",       "--order"};

static void read_raw(settings *options, int which, const char *value)
{
    static const char *const formats[] = {"ascii", "csv", "svg", "trace", "json"};
    static const char *const sends[] = {"buffered", "async", "blocking"};
    static const char *const objectives[] = {"makespan", "span"};
    static const char *const links[] = {"own", "pair", "rank"};
    static const char *const orders[] = {"data", "turns"};
    series *const of[] = {&options->forward, &options->backward, &options->input,
                          &options->weight,  &options->overlap,  &options->latency};
    const char *name = raw_name[which];
    switch (which) {
    case BANDWIDTH: options->bandwidth = number(name, value); break;
    case BYTES: options->bytes = wholes(name, value, 0); break;
    case HOLD: options->hold = wholes(name, value, -MOST_BYTES); break;
    case FORMAT: options->format = formats[word(name, value, formats, 5)]; break;
    case SEND: options->sends = word(name, value, sends, 3); break;
    case LINKS: options->links = word(name, value, links, 3); break;
    case OBJECTIVE: options->span = word(name, value, objectives, 2); break;
    case TRANSPORT:
        options->transport = 1 + word(name, value, transports + 1, DPAR_TRANSPORT_COUNT - 1);
        break;
    case MAP: read_map(options, value); break;
    case ORDER: options->turns = word(name, value, orders, 2); break;
    default: *of[which] = numbers(name, value); break;
    }
}

/* Returns -1 to go on, or the exit code. */
static int read_options(settings *options, int argc, char **argv)
{
    const char *raw[RAWS] = {NULL};
    int listed = 0, code, k, n;
    dpar_schedule_desc order;
    option list[40] = {{"--list", OPTION_FLAG, &listed, 0, 0},
                       {"--compare", OPTION_FLAG, &options->compare, 0, 0},
                       {"--lowered", OPTION_FLAG, &options->lowered, 0, 0},
                       {"--shards", OPTION_FLAG, &options->shards, 0, 0},
                       {"--lifo", OPTION_FLAG, &options->lifo, 0, 0},
                       {"--whole", OPTION_FLAG, &options->whole, 0, 0},
                       {"--schedule", OPTION_WORD, &options->schedule, 0, 0},
                       {"--check", OPTION_WORD, &options->check, 0, 0},
                       {"--stage-times", OPTION_WORD, &options->stage_times, 0, 0},
                       {"--svg", OPTION_WORD, &options->svg, 0, 0},
                       {"-o", OPTION_WORD, &options->output, 0, 0},
                       {"--memory", OPTION_WORD, &options->memory, 0, 0},
                       {"--stages", OPTION_INT, &options->ranks, 1, 65535},
                       {"--virtual", OPTION_INT, &options->chunks, 1, 64},
                       {"--micro", OPTION_INT, &options->micros, 1, 65535},
                       {"--group", OPTION_INT, &options->group, 1, 65535},
                       {"--slices", OPTION_INT, &options->slices, 1, 65535},
                       {"--chain", OPTION_INT, &options->chain, 1, 65535},
                       {"--room", OPTION_INT, &options->buffers, 1, 1000000},
                       {"--width", OPTION_INT, &options->width, 32, 4096},
                       {"--nodes", OPTION_INT, &options->nodes, 0, 1000000000}};
    n = 0;
    while (list[n].name != NULL) {
        n++;
    }
    for (k = 0; k < RAWS; k++) {
        list[n].name = raw_name[k];
        list[n].kind = OPTION_WORD;
        list[n].to = &raw[k];
        n++;
    }
    options->given = (const char **)room((int64_t)sizeof *options->given * argc);
    for (k = 1; k < argc; k++) {
        options->given[options->givens++] = argv[k];
    }
    code = options_read(argc, argv, list, n, NULL, 0);
    if (code < 0 && listed) {
        list_schedules(stdout, "\n");
        return options_finish(0);
    }
    options->lowered = options->lowered || options->shards;
    if (code < 0 && options->schedule != NULL && strcmp(options->schedule, "auto") != 0) {
        find_schedule(&order, options->schedule);
    }
    for (k = 0; code < 0 && k < RAWS; k++) {
        if (raw[k] != NULL) {
            read_raw(options, k, raw[k]);
        }
    }
    return code;
}

/* ---- one schedule ---------------------------------------------------------------------------- */

typedef struct job {
    const settings *options;
    dpar_schedule_desc order; /* rule: -1 for auto, -2 if read from a file */
    int32_t share;            /* with --compare, a stage has 1 / share of a rank's layers */
    int32_t mult;             /* factor of times and bytes that keeps shares whole */
    int32_t *parts;   /* [ranks]: activations of a stage that make one of all the rank's layers */
    int64_t unit;     /* ticks in one unit of time */
    void *memory[32]; /* all that was allocated */
    int used;
    char title[160];
    dpar_schedule list, lowered;
    dpar_schedule_times times;
    dpar_timing timing;
    dpar_rank_timing *rank;
    dpar_slot_counts *slots;
    int64_t *start, *end;
} job;

static void *keep(job *task, int64_t bytes)
{
    void *memory = room(bytes);
    task->memory[task->used] = memory;
    task->used++;
    return memory;
}

static void drop(job *task)
{
    while (task->used > 0) {
        free(task->memory[--task->used]);
    }
}

/* Reduces *power to the largest power of ten that divides all numbers of a list. */
static void divide(const series *list, int64_t *power)
{
    int32_t i;
    for (i = 0; i < list->count; i++) {
        while (list->values[i] % *power != 0) {
            *power /= 10;
        }
    }
}

/* Spreads a list over the edges between stages. The list has one number for all edges, or one for
 * each stage, where the last stage may be left out. The stages are those of the schedule or of one
 * chain. Each number is multiplied by `by`. */
static dpar_status edges(job *task, const char *name, const series *list, int64_t power, int64_t by,
                         dpar_stage_values *each, dpar_why *why)
{
    const dpar_schedule *schedule = &task->list;
    int32_t i;
    int32_t per = list->count == schedule->stages || list->count == schedule->stages - 1
                      ? schedule->stages
                      : schedule->chain;
    int64_t *values;
    for (i = 0; i < list->count; i++) {
        if (by > 0 && list->values[i] / power > INT64_MAX / by) {
            snprintf(why->text, sizeof why->text, "%s: the numbers are too large for exact times",
                     name);
            return DPAR_E_RANGE;
        }
    }
    if (list->count <= 1) {
        each->all = list->count == 0 ? 0 : list->values[0] / power * by;
        return DPAR_OK;
    }
    if (list->count != per && list->count != per - 1) {
        snprintf(why->text, sizeof why->text, "%s has %d numbers, but the schedule has %d stage%s",
                 name, (int)list->count, (int)schedule->stages,
                 options_plural(schedule->stages, "s"));
        return DPAR_E_ARG;
    }
    each->each = values = (int64_t *)keep(task, 8 * (int64_t)schedule->stages);
    for (i = 0; i < schedule->stages; i++) {
        values[i] = i % per < list->count ? list->values[i % per] / power * by : 0;
    }
    return DPAR_OK;
}

/* A message takes --bytes / --bandwidth units of time, that is --bytes * unit / --bandwidth ticks.
 * The simulator computes bytes * 10^9 / bandwidth. It therefore gets --bytes * unit and --bandwidth
 * * 10^9, both divided by their common factors. options->bandwidth is in ten-millionths, so that
 * only a factor of 100 is left. */
static dpar_status set_links(job *task, dpar_why *why)
{
    const settings *options = task->options;
    int64_t slices =
        task->mult > 1 && task->order.rule == DPAR_SCHEDULE_SEQ1F1B ? task->list.slices : 1;
    int64_t wide = options->bandwidth, a = task->unit, b;
    if (wide == 0) {
        return DPAR_OK;
    }
    task->times.links = options->links;
    if (wide > INT64_MAX / 100 / slices) {
        snprintf(why->text, sizeof why->text, "--bandwidth: too large for so many slices");
        return DPAR_E_RANGE;
    }
    wide *= 100 * slices;
    for (b = wide; b > 0;) { /* the greatest common divisor */
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    task->times.bandwidth.all = wide / a;
    return edges(task, "--bytes", &options->bytes, 1, task->unit / a, &task->times.bytes, why);
}

/* Sets the bytes that a stage holds: a share of the given ones, in units of 1 / mult bytes. */
static void set_hold(job *task)
{
    const series *hold = &task->options->hold;
    if (hold->count == 3) {
        task->times.hold_forward.all = hold->values[0] * (task->mult / task->share);
        task->times.hold_input.all = hold->values[1] * (task->mult / task->share);
        task->times.hold_weight.all = hold->values[2] * (task->mult / task->share);
    }
}

/* Computes the ticks of each stage. A list has one value for each stage, for each stage of a chain,
 * or, with --compare, one for every `share` consecutive stages, which each get 1 / share of it. */
static dpar_status spread(job *task, const char *name, const series *list, int64_t power,
                          dpar_stage_values *each, dpar_why *why)
{
    const dpar_schedule *schedule = &task->list;
    int32_t i, of_share = task->mult > 1 && list->count == schedule->chain / task->share;
    int64_t *values;
    if (list->count <= 1) {
        each->all = list->count == 0 ? 0 : list->values[0] / power * (task->mult / task->share);
        return DPAR_OK;
    }
    if (list->count != schedule->stages && list->count != schedule->chain && !of_share) {
        snprintf(why->text, sizeof why->text, "%s has %d numbers, but the schedule has %d stage%s",
                 name, (int)list->count, (int)schedule->stages,
                 options_plural(schedule->stages, "s"));
        return DPAR_E_ARG;
    }
    each->each = values = (int64_t *)keep(task, 8 * (int64_t)schedule->stages);
    for (i = 0; i < schedule->stages; i++) {
        int32_t at = list->count == schedule->stages ? i : i % schedule->chain;
        values[i] =
            list->values[of_share ? at / task->share : at] / power * (task->mult / task->share);
    }
    return DPAR_OK;
}

/* Computes the times of the simulation in whole ticks. A tick is the largest power of ten that
 * divides all given numbers, so that small numbers stay far from overflow. */
static dpar_status set_times(job *task, dpar_why *why)
{
    const settings *options = task->options;
    dpar_schedule_times *times = &task->times;
    const struct {
        const char *name;
        const series *from;
        dpar_stage_values *to;
    } list[] = {{"--fwd", &options->forward, &times->forward},
                {"--bwd", &options->backward, &times->backward},
                {"--bwd-input", &options->input, &times->input},
                {"--bwd-weight", &options->weight, &times->weight},
                {"--overlap", &options->overlap, &times->overlap}};
    int64_t power = 10000000;
    dpar_status st;
    int i;
    memset(times, 0, sizeof *times);
    divide(&options->forward, &power);
    divide(&options->backward, &power);
    divide(&options->input, &power);
    divide(&options->weight, &power);
    divide(&options->overlap, &power);
    divide(&options->latency, &power);
    power =
        options->bandwidth > 0 && power > 10 ? 10 : power; /* times of messages have six decimals */
    task->unit = 10000000 / power * task->mult;
    for (i = 0; i < 5; i++) {
        st = spread(task, list[i].name, list[i].from, power, list[i].to, why);
        if (st != DPAR_OK) {
            return st;
        }
    }
    st = edges(task, "--latency", &options->latency, power, task->mult, &times->latency, why);
    if (st == DPAR_OK) {
        st = set_links(task, why);
    }
    set_hold(task);
    times->sends = options->sends;
    times->transport = options->timed ? options->transport : DPAR_TRANSPORT_NONE;
    times->capacity = options->buffers;
    return st;
}

static int bidirectional(int32_t rule)
{
    return rule == DPAR_SCHEDULE_DUALPIPE || rule == DPAR_SCHEDULE_CHIMERA;
}

static dpar_status make_order(job *task, dpar_why *why)
{
    const dpar_status st = dpar_schedule_generate(&task->list, &task->order, NULL, 0, why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    return dpar_schedule_generate(&task->list, &task->order, keep(task, why->bytes), why->bytes,
                                  why);
}

/* Sets parts[rank], the number of a stage's activations that one micro-batch has in all layers of
 * the rank. That is its stages x slices, but 1 if the list runs in two directions, because a
 * micro-batch then uses only one of them. */
static void set_parts(job *task)
{
    const dpar_schedule *schedule = &task->list;
    int32_t i;
    task->parts = (int32_t *)keep(task, 4 * (int64_t)schedule->ranks);
    for (i = 0; i < schedule->ranks; i++) {
        task->parts[i] = 0;
    }
    for (i = 0; i < schedule->stages; i++) {
        task->parts[schedule->rank_of[i]]++;
    }
    for (i = 0; i < schedule->ranks; i++) {
        int both = bidirectional(task->order.rule) || schedule->chain < schedule->stages;
        task->parts[i] = both || task->parts[i] == 0 ? 1 : task->parts[i] * schedule->slices;
    }
}

/* Returns the cap in the simulator's units: activations of a stage, or 1 / mult bytes; -1 if there
 * is none. */
static int64_t cap_of(const job *task, int32_t rank)
{
    const int64_t cap = task->options->cap, one = 10000000;
    if (cap < 0 || task->options->hold.count > 0) {
        return cap < 0 ? -1 : cap * task->mult;
    }
    return cap / one * task->parts[rank] + cap % one * task->parts[rank] / one;
}

/* Returns the user's map in the type of the library, or NULL if there is none. */
static const uint16_t *map_of(job *task)
{
    const series *list = &task->options->ranks_of;
    uint16_t *map;
    int32_t i;
    if (list->count == 0) {
        return NULL;
    }
    map = (uint16_t *)keep(task, 2 * (int64_t)list->count);
    for (i = 0; i < list->count; i++) {
        map[i] = (uint16_t)list->values[i];
    }
    return map;
}

/* Returns the rank of a stage in the library's maps: loop 0 1 0 1, v 0 1 1 0. */
static int32_t usual_rank(const dpar_schedule_optimize_desc *desc, int32_t stage)
{
    int32_t at = stage % desc->ranks;
    return desc->map == DPAR_STAGE_MAP_V && stage / desc->ranks % 2 == 1 ? desc->ranks - 1 - at
                                                                         : at;
}

/* Checks that each rank has a stage. */
static dpar_status check_ranks(const dpar_schedule_optimize_desc *desc, const uint16_t *rank_of,
                               dpar_why *why)
{
    char *used = (char *)room(desc->ranks);
    int32_t i, empty = 0;
    memset(used, 0, (size_t)desc->ranks);
    for (i = 0; i < desc->stages; i++) {
        used[rank_of[i]] = 1;
    }
    while (empty < desc->ranks && used[empty]) {
        empty++;
    }
    free(used);
    if (empty == desc->ranks) {
        return DPAR_OK;
    }
    snprintf(why->text, sizeof why->text,
             "--map puts no stage on rank %d: each rank needs at least one", (int)empty);
    return DPAR_E_ARG;
}

/* Lays the stages out. The times and parts, which auto needs, depend on that. */
static dpar_status lay_auto(job *task, dpar_schedule_optimize_desc *desc, dpar_why *why)
{
    int32_t i, n = task->options->ranks_of.count;
    int64_t stages = n > 0 ? n : (int64_t)task->order.ranks * task->order.chunks;
    uint16_t *rank_of;
    desc->ranks = task->order.ranks;
    desc->micro_batches = task->order.micro_batches;
    desc->map = task->options->map;
    desc->rank_of = map_of(task);
    if (stages > DPAR_MAX_STAGES) {
        snprintf(why->text, sizeof why->text, "%lld stages are more than 65535", (long long)stages);
        return DPAR_E_RANGE;
    }
    desc->stages = (int32_t)stages;
    task->list.ranks = desc->ranks;
    task->list.stages = desc->stages;
    if (dpar_schedule_init(&task->list, 0, NULL, 0, why) != DPAR_E_ROOM ||
        dpar_schedule_init(&task->list, 0, keep(task, why->bytes), why->bytes, why) != DPAR_OK) {
        return DPAR_E_ARG;
    }
    if (n > 0 && n < desc->ranks) {
        snprintf(why->text, sizeof why->text,
                 "--map has %d stage%s for %d ranks: each rank needs at least one", (int)n,
                 options_plural(n, "s"), (int)desc->ranks);
        return DPAR_E_ARG;
    }
    rank_of = task->list.rank_of;
    for (i = 0; i < desc->stages; i++) {
        int32_t rank = n > 0 ? desc->rank_of[i] : usual_rank(desc, i);
        if (rank < 0 || rank >= desc->ranks) {
            snprintf(why->text, sizeof why->text,
                     "stage %d is on rank %d, but there %s only %d rank%s", (int)i, (int)rank,
                     desc->ranks == 1 ? "is" : "are", (int)desc->ranks,
                     options_plural(desc->ranks, "s"));
            return DPAR_E_ARG;
        }
        rank_of[i] = (uint16_t)rank;
    }
    return check_ranks(desc, rank_of, why);
}

static dpar_status make_auto(job *task, dpar_why *why)
{
    dpar_schedule_optimize_desc desc;
    dpar_schedule_optimize_result result;
    int64_t bytes, *cap;
    int32_t rank;
    dpar_status st;
    memset(&desc, 0, sizeof desc);
    if (lay_auto(task, &desc, why) != DPAR_OK || set_times(task, why) != DPAR_OK) {
        return DPAR_E_ARG;
    }
    set_parts(task);
    desc.split = !task->options->whole;
    desc.objective = task->options->span ? DPAR_OBJECTIVE_SPAN : DPAR_OBJECTIVE_MAKESPAN;
    desc.times = &task->times;
    desc.cap.each = cap = (int64_t *)keep(task, 8 * (int64_t)desc.ranks);
    for (rank = 0; rank < desc.ranks; rank++) {
        cap[rank] = cap_of(task, rank);
        if (cap[rank] == 0) { /* 0 means no limit to the library */
            snprintf(why->text, sizeof why->text, "--memory: not even one activation fits");
            return DPAR_E_MEMORY;
        }
        cap[rank] = cap[rank] < 0 ? 0 : cap[rank];
    }
    desc.nodes = task->options->nodes;
    st = dpar_schedule_optimize(&task->list, &desc, &result, NULL, 0, why);
    if (st == DPAR_E_ROOM) {
        bytes = why->bytes;
        if (desc.nodes > 0) {
            bytes += INT64_C(32) << 20; /* the search's table */
        }
        st = dpar_schedule_optimize(&task->list, &desc, &result, keep(task, bytes), bytes, why);
    }
    return st == DPAR_MORE ? DPAR_OK : st;
}

/* Checks that the user's map has as many stages as the rule, unless the rule takes any number. */
static dpar_status set_map(job *task, dpar_why *why)
{
    int32_t n = task->options->ranks_of.count, rule = task->order.rule;
    if (n == 0) {
        return DPAR_OK;
    }
    if ((rule == DPAR_SCHEDULE_BREADTH_FIRST || rule == DPAR_SCHEDULE_FORWARD_ONLY) &&
        task->order.chunks == 0) {
        task->order.stages = n;
    } else {
        job bare = *task;
        bare.used = 0;
        if (make_order(&bare, why) != DPAR_OK) {
            drop(&bare);
            return DPAR_E_ARG;
        }
        drop(&bare);
        if (bare.list.stages != n) {
            snprintf(why->text, sizeof why->text, "--map has %d stage%s, but the schedule has %d",
                     (int)n, options_plural(n, "s"), (int)bare.list.stages);
            return DPAR_E_ARG;
        }
    }
    task->order.rank_of = map_of(task);
    return DPAR_OK;
}

static dpar_status make(job *task, dpar_why *why)
{
    dpar_status st;
    if (task->order.rule < 0) {
        return make_auto(task, why);
    }
    st = set_map(task, why);
    if (st == DPAR_OK) {
        st = make_order(task, why);
    }
    if (st == DPAR_OK) {
        st = set_times(task, why);
    }
    if (st == DPAR_OK) {
        set_parts(task);
    }
    return st;
}

static int has_messages(const dpar_schedule *schedule)
{
    int64_t k;
    for (k = 0; k < schedule->begin[schedule->ranks]; k++) {
        if (schedule->action[k].kind >= DPAR_ACTION_SEND_F &&
            schedule->action[k].kind <= DPAR_ACTION_RECV_B) {
            return 1;
        }
    }
    return 0;
}

static dpar_status lower_into(job *task, const dpar_schedule *in,
                              const dpar_schedule_lower_desc *how, dpar_why *why)
{
    const dpar_status st = dpar_schedule_lower(&task->lowered, in, how, NULL, 0, why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    return dpar_schedule_lower(&task->lowered, in, how, keep(task, why->bytes), why->bytes, why);
}

static dpar_status check_list(job *task, const dpar_schedule *schedule,
                              const dpar_schedule_check_desc *how, dpar_why *why)
{
    const dpar_status st = dpar_schedule_check(schedule, how, NULL, 0, why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    return dpar_schedule_check(schedule, how, keep(task, why->bytes), why->bytes, why);
}

/* Puts messages into the list. If a receive holds its rank (blocking and eager),
 * receives are placed as late as possible. */
static dpar_status lower_list(job *task, dpar_why *why)
{
    const settings *options = task->options;
    dpar_schedule_lower_desc how;
    dpar_schedule early;
    dpar_status st;
    memset(&how, 0, sizeof how);
    how.passes = DPAR_LOWER_MESSAGES;
    if (options->shards) {
        how.passes |= DPAR_LOWER_SHARDS | DPAR_LOWER_REDUCE;
    }
    if (options->turns) {
        how.passes |= DPAR_LOWER_TURNS;
    }
    how.times = &task->times;
    st = lower_into(task, &task->list, &how, why);
    if (st != DPAR_OK || options->turns ||
        (options->transport != DPAR_TRANSPORT_BLOCKING &&
         options->transport != DPAR_TRANSPORT_EAGER)) {
        return st;
    }
    early = task->lowered;
    how.passes = DPAR_LOWER_LATE_RECV;
    how.channel = DPAR_CHANNEL_ANY;
    return lower_into(task, &early, &how, why);
}

/* Lowers the list unless it is lowered, checks it, runs it on the transport, and computes slots and
 * times. */
static dpar_status run_list(job *task, dpar_why *why)
{
    dpar_schedule_check_desc run;
    dpar_schedule_slots_desc slots;
    dpar_schedule_simulate_desc sim;
    dpar_schedule *schedule = &task->lowered;
    int64_t actions;
    dpar_status st = check_list(task, &task->list, NULL, why);
    if (st != DPAR_OK) {
        return st;
    }
    task->lowered = task->list;
    if (!has_messages(&task->list)) {
        st = lower_list(task, why);
    } else if (task->options->shards || given(task->options, "--order")) {
        fail(2, task->options->shards ? "--shards" : "--order", "the list already has messages");
    }
    if (st == DPAR_OK &&
        !has_messages(schedule)) { /* all stages are on one rank: nothing is sent */
        task->times.sends = DPAR_SEND_MODE_BUFFERED;
        task->times.links = DPAR_CONTENTION_NONE;
        task->times.transport = DPAR_TRANSPORT_NONE;
    }
    if (st == DPAR_OK && task->options->transport != DPAR_TRANSPORT_NONE) {
        memset(&run, 0, sizeof run);
        run.transport = task->options->transport;
        run.capacity = task->options->buffers;
        st = check_list(task, schedule, &run, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    actions = schedule->begin[schedule->ranks];
    task->slots =
        (dpar_slot_counts *)keep(task, (int64_t)sizeof(dpar_slot_counts) * schedule->ranks);
    memset(&slots, 0, sizeof slots);
    slots.counts = task->slots;
    st = dpar_schedule_slots(schedule, &slots, NULL, 0, why);
    if (st == DPAR_E_ROOM) {
        st = dpar_schedule_slots(schedule, &slots, keep(task, why->bytes), why->bytes, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    task->start = (int64_t *)keep(task, 8 * actions);
    task->end = (int64_t *)keep(task, 8 * actions);
    task->rank =
        (dpar_rank_timing *)keep(task, (int64_t)sizeof(dpar_rank_timing) * schedule->ranks);
    if (task->options->cap >= 0) {
        int64_t *cap = (int64_t *)keep(task, 8 * (int64_t)schedule->ranks);
        int32_t rank;
        for (rank = 0; rank < schedule->ranks; rank++) {
            cap[rank] = cap_of(task, rank);
        }
        task->times.cap.each = cap;
    }
    memset(&sim, 0, sizeof sim);
    sim.times = &task->times;
    sim.start = task->start;
    sim.end = task->end;
    sim.rank = task->rank;
    st = dpar_schedule_simulate(schedule, &sim, &task->timing, NULL, 0, why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    return dpar_schedule_simulate(schedule, &sim, &task->timing, keep(task, why->bytes), why->bytes,
                                  why);
}

/* Returns 1 if no rank holds more than the cap, otherwise 0 with a message in *why. */
static int fits(const job *task, dpar_why *why)
{
    int32_t rank, bytes = task->options->hold.count > 0;
    for (rank = 0; rank < task->lowered.ranks && task->options->cap >= 0; rank++) {
        int64_t held = bytes ? task->rank[rank].peak_bytes : task->rank[rank].peak_count;
        if (held > cap_of(task, rank)) {
            const char *what = bytes ? "bytes" : "activations";
            const char *all = shown(held, bytes ? task->mult : task->parts[rank]);
            const char *cap = shown(task->options->cap, bytes ? 1 : 10000000);
            snprintf(why->text, sizeof why->text, "rank %d holds %s %s, the cap is %s", (int)rank,
                     all, what, cap);
            return 0;
        }
    }
    return 1;
}

/* ---- output ---------------------------------------------------------------------------------- */

static FILE *open_output(const char *path)
{
    FILE *file = path == NULL ? stdout : fopen(path, "wb");
    if (file == NULL) {
        fail(2, path, "cannot be written");
    }
    return file;
}

static void picture(const job *task, const char *format, FILE *file)
{
    dpar_schedule_draw_desc desc;
    dpar_text out;
    dpar_why why;
    char *text = NULL;
    int pass;
    desc.schedule = &task->lowered;
    desc.start = task->start;
    desc.end = task->end;
    desc.unit = task->unit;
    desc.title = task->title;
    desc.width = task->options->width;
    for (pass = 0; pass < 2; pass++) { /* count, then write */
        dpar_status st = DPAR_OK;
        dpar_text_init(&out, text, pass == 0 ? 0 : out.used + 1);
        switch (format[0]) {
        case 'a': st = dpar_schedule_draw(&out, &desc, DPAR_SCHEDULE_DRAW_TEXT, &why); break;
        case 's': st = dpar_schedule_draw(&out, &desc, DPAR_SCHEDULE_DRAW_SVG, &why); break;
        case 't': st = dpar_schedule_draw(&out, &desc, DPAR_SCHEDULE_DRAW_TRACE, &why); break;
        default:
            dpar_schedule_write(task->options->lowered ? &task->lowered : &task->list, "\n", &out);
            break;
        }
        if (st != DPAR_OK) {
            fail(2, format, why.text);
        }
        text = pass == 0 ? (char *)room((int64_t)out.used + 1) : text;
    }
    fwrite(text, 1, out.used, file);
    free(text);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_text(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text != 0; text++) {
        if (*text == '"' || *text == '\\') {
            fputc('\\', file);
        }
        fputc(*text >= ' ' ? *text : '?', file);
    }
    fputc('"', file);
}

static void json_ratio(FILE *file, const char *name, dpar_ratio ratio, const char *end)
{
    fprintf(file, "\"%s\": %s%s", name, shown(millionths(ratio), 1000000), end);
}

static int64_t simulated(const job *task, int32_t what, int32_t rank)
{
    switch (what) {
    case DPAR_FORMULA_MAKESPAN: return task->timing.makespan;
    case DPAR_FORMULA_SPAN: return task->timing.span;
    case DPAR_FORMULA_IDLE: return task->timing.bubble_worst;
    default: return task->rank[rank].peak_count;
    }
}

/* Computes a closed form. If there is none, *why says why. */
static dpar_status closed(const job *task, int32_t what, int32_t rank, dpar_formula *formula,
                          dpar_why *why)
{
    const char *not_for = NULL;
    if (task->order.rule < 0) {
        not_for = "no published schedule, no formula";
    } else if (task->options->sends != DPAR_SEND_MODE_BUFFERED || task->options->timed) {
        not_for = "the formulas are for buffered messages";
    } else if (task->order.rank_of != NULL) {
        not_for = "the formulas are for the rule's own map";
    }
    if (not_for != NULL) {
        snprintf(why->text, sizeof why->text, "%s", not_for);
        return DPAR_E_NONE;
    }
    return dpar_schedule_closed_form(&task->order, &task->times, what, rank, formula, why);
}

/* Writes the closed form next to the simulated value; "applies" is false if it does not hold. */
static void json_closed(FILE *file, const job *task, const char *name, int32_t what, int32_t rank)
{
    dpar_formula formula;
    dpar_why why;
    int64_t unit = what == DPAR_FORMULA_PEAK ? 1 : task->unit;
    dpar_status st = closed(task, what, rank, &formula, &why);
    fprintf(file, "    {\"of\": \"%s\", \"rank\": %d, \"simulated\": %s, \"applies\": %s, ", name,
            (int)rank, shown(simulated(task, what, rank), unit), st == DPAR_OK ? "true" : "false");
    if (st == DPAR_OK) {
        fprintf(file, "\"value\": %s, \"formula\": ", shown(formula.value, unit));
        json_text(file, formula.text);
    } else {
        fprintf(file, "\"why\": ");
        json_text(file, why.text);
    }
    fputc('}', file);
}

static void json_peaks(FILE *file, const job *task, int32_t count, int64_t bytes, int32_t rank)
{
    fprintf(file, "\"peak_activations\": %d, \"peak_full_stage\": %s, \"peak_bytes\": %s",
            (int)count, shown(task->rank[rank].peak_count, task->parts[rank]),
            task->options->hold.count > 0 ? shown(bytes, task->mult) : "null");
}

static void json_slots(FILE *file, const dpar_slot_counts *slots)
{
    fprintf(file, "\"slots\": {\"receive\": %d, \"send\": %d, \"activation\": %d, \"weight\": %d}",
            (int)slots->receive, (int)slots->send, (int)slots->activation, (int)slots->weight);
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* Writes the maxima over all ranks, which may come from different ranks. */
static void json_most(FILE *file, const job *task)
{
    dpar_slot_counts most = {0, 0, 0, 0};
    int32_t rank, full = 0;
    for (rank = 0; rank < task->lowered.ranks; rank++) {
        const dpar_slot_counts *slots = &task->slots[rank];
        most.receive = larger(most.receive, slots->receive);
        most.send = larger(most.send, slots->send);
        most.activation = larger(most.activation, slots->activation);
        most.weight = larger(most.weight, slots->weight);
        if ((int64_t)task->rank[rank].peak_count * task->parts[full] >
            (int64_t)task->rank[full].peak_count * task->parts[rank]) {
            full = rank;
        }
    }
    fprintf(file, "  ");
    json_peaks(file, task, task->timing.peak_count, task->timing.peak_bytes, full);
    fprintf(file, ",\n  ");
    json_slots(file, &most);
    fprintf(file, ",\n");
}

static void json_rank(FILE *file, const job *task, int32_t rank)
{
    const dpar_rank_timing *timing = &task->rank[rank];
    const dpar_slot_counts *slots = &task->slots[rank];
    fprintf(file, "    {\"rank\": %d, \"first\": %s, \"last\": %s, \"busy\": %s, ", (int)rank,
            shown(timing->first, task->unit), shown(timing->last, task->unit),
            shown(timing->busy, task->unit));
    fprintf(file, "\"idle\": {\"warm_up\": %s, \"dependency\": %s, \"communication\": %s, ",
            shown(timing->warm_up, task->unit), shown(timing->dependency, task->unit),
            shown(timing->communication, task->unit));
    fprintf(file, "\"memory\": %s, \"drain\": %s},\n     ", shown(timing->memory, task->unit),
            shown(timing->drain, task->unit));
    json_peaks(file, task, timing->peak_count, timing->peak_bytes, rank);
    fprintf(file, ",\n     ");
    json_slots(file, slots);
    fprintf(file, "}");
}

static void print_json(FILE *file, const job *task, int ok, const char *sentence)
{
    static const char *const sends[] = {"buffered", "async", "blocking"};
    const dpar_schedule *schedule = &task->lowered;
    const dpar_timing *timing = &task->timing;
    int32_t rank;
    fprintf(file, "{\n  \"schedule\": ");
    json_text(file, task->title);
    fprintf(file,
            ", \"ranks\": %d, \"stages\": %d, \"micros\": %d, \"chain\": %d, \"slices\": %d,\n",
            (int)schedule->ranks, (int)schedule->stages, (int)schedule->micro_batches,
            (int)schedule->chain, (int)schedule->slices);
    fprintf(file, "  \"sends\": \"%s\", \"transport\": \"%s\", ", sends[task->options->sends],
            transports[task->options->timed ? task->options->transport : DPAR_TRANSPORT_NONE]);
    fprintf(file, "\"makespan\": %s, \"span\": %s,\n  \"bubble\": {",
            shown(timing->makespan, task->unit), shown(timing->span, task->unit));
    json_ratio(file, "of_makespan", timing->bubble_of_makespan, ", ");
    json_ratio(file, "of_work", timing->bubble_of_work, ", ");
    json_ratio(file, "of_span", timing->bubble_of_span, ", ");
    fprintf(file, "\"worst_rank_idle\": %s, \"first_rank_idle\": %s},\n",
            shown(timing->bubble_worst, task->unit), shown(timing->bubble_first, task->unit));
    fprintf(file,
            "  \"critical_path\": {\"actions\": %lld, \"compute\": %s, \"communication\": %s},\n",
            (long long)timing->path_actions, shown(timing->path_compute, task->unit),
            shown(timing->path_communication, task->unit));
    json_most(file, task);
    fprintf(file, "  \"fits\": %s, \"why_not\": ", ok ? "true" : "false");
    json_text(file, sentence);
    fprintf(file, ",\n  \"rank\": [\n");
    for (rank = 0; rank < schedule->ranks; rank++) {
        json_rank(file, task, rank);
        fprintf(file, rank + 1 < schedule->ranks ? ",\n" : "\n  ],\n  \"closed_forms\": [\n");
    }
    json_closed(file, task, "makespan", DPAR_FORMULA_MAKESPAN, 0);
    fprintf(file, ",\n");
    json_closed(file, task, "span", DPAR_FORMULA_SPAN, 0);
    fprintf(file, ",\n");
    json_closed(file, task, "worst_rank_idle", DPAR_FORMULA_IDLE, 0);
    for (rank = 0; rank < schedule->ranks; rank++) {
        fprintf(file, ",\n");
        json_closed(file, task, "peak_activations", DPAR_FORMULA_PEAK, rank);
    }
    fprintf(file, "\n  ]\n}\n");
}

/* Prints the lines below a chart. */
static void print_figures(FILE *file, const job *task)
{
    const dpar_timing *timing = &task->timing;
    dpar_formula formula;
    dpar_why why;
    int32_t rank;
    fprintf(file, "makespan %s, span %s; idle %s %% of the makespan,",
            shown(timing->makespan, task->unit), shown(timing->span, task->unit),
            percent(timing->bubble_of_makespan));
    fprintf(file, " %s %% of the work, %s %% of the span\n", percent(timing->bubble_of_work),
            percent(timing->bubble_of_span));
    fprintf(file, "activations at most");
    for (rank = 0; rank < task->lowered.ranks && rank < 64; rank++) {
        fprintf(file, " %d", (int)task->rank[rank].peak_count);
    }
    if (task->order.rule >= 0) {
        if (closed(task, DPAR_FORMULA_MAKESPAN, 0, &formula, &why) == DPAR_OK) {
            fprintf(file, "; closed form: %s = %s", formula.text, shown(formula.value, task->unit));
        } else {
            fprintf(file, "; no closed form: %s", why.text);
        }
    }
    fprintf(file, "\n");
    if (task->options->hold.count > 0) {
        fprintf(file, "bytes at most");
        for (rank = 0; rank < task->lowered.ranks && rank < 64; rank++) {
            fprintf(file, " %s", shown(task->rank[rank].peak_bytes, task->mult));
        }
        fprintf(file, "\n");
    }
}

/* Refuses --overlap if no forward of the schedule runs together with a backward. */
static void check_overlap(const job *task)
{
    const dpar_schedule *schedule = &task->list;
    int64_t k = 0;
    char text[240];
    if (!given(task->options, "--overlap")) {
        return;
    }
    while (k < schedule->begin[schedule->ranks] && !schedule->action[k].joined) {
        k++;
    }
    if (k == schedule->begin[schedule->ranks]) {
        snprintf(text, sizeof text,
                 "does not apply to %.100s: in this schedule no forward overlaps a backward",
                 task->title);
        fail(2, "--overlap", text);
    }
}

static void save_svg(const job *task)
{
    if (task->options->svg != NULL) {
        FILE *file = open_output(task->options->svg);
        picture(task, "svg", file);
        close_output(file, task->options->svg);
    }
}

static void print_job(const job *task, int ok, const char *sentence)
{
    const char *format = task->options->format != NULL ? task->options->format : "ascii";
    FILE *file;
    save_svg(task); /* first, so that stdout stays empty if it cannot be written */
    file = open_output(task->options->output);
    if (strcmp(format, "json") == 0) {
        print_json(file, task, ok, sentence);
    } else {
        if (strcmp(format, "ascii") == 0 && task->options->svg != NULL) {
            fprintf(file, "picture: %s\n", task->options->svg);
        }
        picture(task, format, file);
        if (strcmp(format, "ascii") == 0) {
            print_figures(file, task);
        }
    }
    close_output(file, task->options->output);
}

/* ---- the three commands ---------------------------------------------------------------------- */

static void describe(job *task, const settings *options)
{
    memset(task, 0, sizeof *task);
    task->options = options;
    task->mult = task->share = 1;
    task->order.rule = -1;
    task->order.ranks = options->ranks;
    task->order.micro_batches = options->micros;
    task->order.chunks = options->chunks;
    task->order.group = options->group;
    task->order.slices = options->slices;
    task->order.lifo = options->lifo;
}

/* Replaces the first `old` in a message. */
static void rename_in(dpar_why *why, const char *old, const char *other)
{
    const char *at = strstr(why->text, old);
    char text[sizeof why->text];
    if (at == NULL) {
        return;
    }
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - why->text), why->text, other,
             at + strlen(old));
    memcpy(why->text, text, sizeof text);
}

/* Names the options of the command line in place of the fields of dpar_schedule_desc. */
static void name_options(dpar_why *why)
{
    rename_in(why, "chunks=", "--virtual ");
    rename_in(why, "group=", "--group ");
    rename_in(why, "leave it 0", "leave it out");
    rename_in(why, "lifo=1;", "--lifo:");
    rename_in(why, "allows 0 or 1, the other rules only 0", "allows it, the other rules do not");
    rename_in(why, "slices=", "--slices ");
    rename_in(why, "micro_batches=", "--micro ");
    rename_in(why, "rank_of", "--map");
}

static int one_schedule(const settings *options)
{
    job task;
    dpar_why why;
    dpar_status st;
    int ok;
    describe(&task, options);
    if (strcmp(options->schedule, "auto") != 0) {
        find_schedule(&task.order, options->schedule);
        task.order.lifo |= options->lifo;
        if (given(options, "--map") && options->ranks_of.count == 0) {
            fail(2, "--map", "takes the rank of each stage; loop and v are for auto");
        }
    } else {
        task.order.chunks = options->map == DPAR_STAGE_MAP_V ? 2 : 1;
        if (options->chunks > 0) {
            task.order.chunks = options->chunks;
        }
    }
    snprintf(task.title, sizeof task.title, "%s",
             task.order.rule < 0 ? "auto" : dpar_schedule_name(task.order.rule));
    why.text[0] = 0;
    st = make(&task, &why);
    if (st != DPAR_OK) {
        name_options(&why);
        fail(st == DPAR_E_MEMORY ? 1 : 2, options->schedule, why.text);
    }
    check_overlap(&task);
    if (run_list(&task, &why) != DPAR_OK) {
        fail(1, options->schedule, why.text);
    }
    ok = fits(&task, &why);
    print_job(&task, ok, ok ? "" : why.text);
    if (!ok) {
        fprintf(stderr, "pipeline: %s does not fit: %s\n", options->schedule, why.text);
    }
    drop(&task);
    return ok ? 0 : 1;
}

static void print_ok(const job *task, int32_t messages)
{
    const settings *options = task->options;
    FILE *file = open_output(options->output);
    fprintf(file, "ok %d rank%s, %d stage%s, %d micro-batch%s, %s; makespan %s, span %s, ",
            (int)task->list.ranks, options_plural(task->list.ranks, "s"), (int)task->list.stages,
            options_plural(task->list.stages, "s"), (int)task->list.micro_batches,
            options_plural(task->list.micro_batches, "es"),
            messages ? "messages matched" : "messages added",
            shown(task->timing.makespan, task->unit), shown(task->timing.span, task->unit));
    fprintf(file, "%s %% idle, at most %d activation%s", percent(task->timing.bubble_of_makespan),
            (int)task->timing.peak_count, options_plural(task->timing.peak_count, "s"));
    if (options->hold.count > 0) {
        fprintf(file, ", %s bytes", shown(task->timing.peak_bytes, 1));
    }
    fprintf(file, "; no deadlock over %s\n", transports[options->transport]);
    close_output(file, options->output);
    save_svg(task);
}

static int check_file(settings *options)
{
    job task;
    dpar_why why;
    dpar_schedule_read_desc in;
    char *text = read_file(options->check, &in.bytes);
    int32_t messages;
    int ok;
    describe(&task, options);
    task.order.rule = -2;
    in.text = text;
    in.chain = options->chain;
    if (dpar_schedule_read(&task.list, &in, NULL, 0, &why) != DPAR_E_ROOM ||
        dpar_schedule_read(&task.list, &in, keep(&task, why.bytes), why.bytes, &why) != DPAR_OK) {
        fail(1, options->check, why.text);
    }
    free(text);
    task.list.slices = options->slices > 0 ? options->slices : 1;
    messages = has_messages(&task.list);
    if (options->transport == DPAR_TRANSPORT_NONE) {
        options->transport = DPAR_TRANSPORT_PAIR;
    }
    snprintf(task.title, sizeof task.title, "%s", options->check);
    if (set_times(&task, &why) != DPAR_OK) {
        fail(2, options->check, why.text);
    }
    set_parts(&task);
    check_overlap(&task);
    if (run_list(&task, &why) != DPAR_OK) {
        fail(1, options->check, why.text);
    }
    ok = fits(&task, &why);
    if (!ok) {
        fprintf(stderr, "pipeline: %s does not fit: %s\n", options->check, why.text);
    }
    if (options->format != NULL) {
        print_job(&task, ok, ok ? "" : why.text);
    } else if (ok) {
        print_ok(&task, messages);
    }
    drop(&task);
    return ok ? 0 : 1;
}

/* ---- all schedules --------------------------------------------------------------------------- */

enum { CANDIDATES = 96 };

typedef struct candidate {
    char name[48];
    int32_t rank_count, ok;                    /* ok: 1 it fits, 0 it does not, -1 not legal */
    int64_t makespan, span, unit, bytes, mult; /* bytes: -1 without --hold */
    dpar_ratio bubble;
    int32_t peak, share;
    dpar_why why;
} candidate;

/* Compares two candidates for qsort: by what is possible, makespan, activations and name. */
static int better(const void *a, const void *b)
{
    const candidate *first = (const candidate *)a, *second = (const candidate *)b;
    int64_t first_peak = (int64_t)first->peak * second->share;
    int64_t second_peak = (int64_t)second->peak * first->share;
    if (first->ok != second->ok) {
        return first->ok > second->ok ? -1 : 1;
    }
    if (first->ok >= 0 && first->makespan != second->makespan) {
        return first->makespan < second->makespan ? -1 : 1;
    }
    if (first->ok >= 0 && first_peak != second_peak) {
        return first_peak < second_peak ? -1 : 1;
    }
    return strcmp(first->name, second->name);
}

/* Makes and runs one candidate. `mult` keeps its shares of the times whole. */
static void try_one(candidate *made, const settings *options, int32_t rule, int32_t chunks,
                    int32_t group, int32_t mult)
{
    job task;
    settings mine = *options;
    describe(&task, &mine);
    memset(made, 0, sizeof *made);
    task.order.rule = rule;
    task.order.chunks = chunks;
    task.order.group = group;
    task.order.lifo = rule == DPAR_SCHEDULE_GPIPE ? options->lifo : 0;
    task.order.slices = rule == DPAR_SCHEDULE_SEQ1F1B ? options->slices : 0;
    task.mult = mult;
    task.share = chunks > 0 && !bidirectional(rule) ? chunks : 1;
    if (rule == DPAR_SCHEDULE_ZBV || rule == DPAR_SCHEDULE_V_HALF || rule == DPAR_SCHEDULE_V_MIN ||
        rule == DPAR_SCHEDULE_DUALPIPEV || rule == DPAR_SCHEDULE_1F1B_V) {
        task.share = 2;
    } else if (rule == DPAR_SCHEDULE_SEQ1F1B) {
        task.share = options->slices > 0 ? options->slices : 2;
    }
    if (rule < 0) {
        mine.map = chunks == 2 ? DPAR_STAGE_MAP_V : DPAR_STAGE_MAP_LOOP;
        snprintf(made->name, sizeof made->name, chunks == 2 ? "auto on a V" : "auto");
    } else {
        size_t n = (size_t)snprintf(made->name, sizeof made->name, "%s", dpar_schedule_name(rule));
        if (chunks > 1) {
            n += (size_t)snprintf(made->name + n, sizeof made->name - n, " v=%d", (int)chunks);
        }
        if (group > 0) {
            snprintf(made->name + n, sizeof made->name - n, " group=%d", (int)group);
        }
    }
    if (make(&task, &made->why) != DPAR_OK || run_list(&task, &made->why) != DPAR_OK) {
        made->ok = -1;
    } else {
        made->ok = fits(&task, &made->why);
        made->makespan = task.timing.makespan;
        made->span = task.timing.span;
        made->bubble = task.timing.bubble_of_makespan;
        made->peak = task.timing.peak_count;
        made->share = task.share;
        made->unit = task.unit;
        made->bytes = options->hold.count > 0 ? task.timing.peak_bytes : -1;
        made->mult = mult;
    }
    drop(&task);
}

static void compare_json(FILE *file, const candidate *list, int32_t n)
{
    int32_t i;
    fprintf(file, "[\n");
    for (i = 0; i < n; i++) {
        const char *legal = list[i].ok < 0 ? "false" : "true";
        const char *fit = list[i].ok > 0 ? "true" : "false";
        fprintf(file, "  {\"schedule\": \"%s\", \"legal\": %s, \"fits\": %s", list[i].name, legal,
                fit);
        if (list[i].ok >= 0) {
            fprintf(file, ", \"makespan\": %s, \"span\": %s, \"bubble_of_makespan\": %s",
                    shown(list[i].makespan, list[i].unit), shown(list[i].span, list[i].unit),
                    shown(millionths(list[i].bubble), 1000000));
            fprintf(file, ", \"peak_full_stage\": %s, \"peak_bytes\": %s",
                    shown(list[i].peak, list[i].share),
                    list[i].bytes < 0 ? "null" : shown(list[i].bytes, list[i].mult));
        }
        if (list[i].ok <= 0) {
            fprintf(file, ", \"why\": ");
            json_text(file, list[i].why.text);
        }
        fprintf(file, i + 1 < n ? "},\n" : "}\n");
    }
    fprintf(file, "]\n");
}

/* Prints the best schedule, and why it won. */
static void compare_first(FILE *file, const candidate *list, int32_t n)
{
    int32_t i, out = 0;
    if (list[0].ok <= 0) {
        return;
    }
    fprintf(file, "best: %s: makespan %s, %s %% idle, %s activations per rank\n", list[0].name,
            shown(list[0].makespan, list[0].unit), percent(list[0].bubble),
            shown(list[0].peak, list[0].share));
    for (i = 1; i < n; i++) {
        out += list[i].ok <= 0;
    }
    fprintf(file, "why:  ");
    if (n > 1 && list[1].ok > 0) {
        /* all have the same unit, because the shares of --compare's times are whole */
        const double longer = 100.0 * ((double)list[1].makespan / (double)list[0].makespan - 1.0);
        fprintf(file, longer < 0.05 ? "%s takes as long" : "%s takes %.1f %% longer", list[1].name,
                longer);
        fprintf(file, longer < 0.05 && (int64_t)list[1].peak * list[0].share >
                                           (int64_t)list[0].peak * list[1].share
                          ? " and holds more; "
                          : "; ");
    }
    fprintf(file, "%d of %d schedules do not fit or are not legal for these numbers\n\n", (int)out,
            (int)n);
}

static void compare_table(FILE *file, const candidate *list, int32_t n)
{
    int32_t i;
    compare_first(file, list, n);
    fprintf(file, "  # %-28s %12s %12s %8s %12s%s\n", "schedule", "makespan", "span", "idle %",
            "activations", list[0].ok >= 0 && list[0].bytes >= 0 ? "        bytes" : "");
    for (i = 0; i < n; i++) {
        if (list[i].ok > 0) {
            fprintf(file, "%3d %-28s %12s %12s %8s %12s", (int)i + 1, list[i].name,
                    shown(list[i].makespan, list[i].unit), shown(list[i].span, list[i].unit),
                    percent(list[i].bubble), shown(list[i].peak, list[i].share));
            if (list[i].bytes >= 0) {
                fprintf(file, " %12s", shown(list[i].bytes, list[i].mult));
            }
            fprintf(file, "\n");
        } else {
            fprintf(file, "  - %-28s %s: %s\n", list[i].name,
                    list[i].ok == 0 ? "does not fit" : "not legal", list[i].why.text);
        }
    }
    fprintf(file,
            "activations: the most that a rank holds, in micro-batches of all its layers; dualpipe "
            "and chimera hold the parameters twice\n");
}

static int compare(const settings *options)
{
    static candidate list[CANDIDATES];
    const double since = now();
    int32_t rule, n = 0, k, per_rank = options->chunks > 0 ? options->chunks : 1, chunks[3];
    int32_t slices = options->slices > 0 ? options->slices : 2, mult;
    FILE *file;
    if ((int64_t)per_rank * slices > 65536) {
        fail(2, "--compare", "--virtual times --slices must be at most 65536");
    }
    mult = 4 * per_rank *
           slices; /* so that each share of a time is whole; 10^13 * mult fits in 64 bits */
    chunks[0] = 2;
    chunks[1] = 4;
    chunks[2] = per_rank != 2 && per_rank != 4 ? per_rank : 0;
    for (rule = 1; rule < DPAR_SCHEDULE_FORWARD_ONLY; rule++) {
        int grouped = rule == DPAR_SCHEDULE_INTERLEAVED || rule == DPAR_SCHEDULE_INTERLEAVED_ZB;
        options_progress(since, (double)rule / (DPAR_SCHEDULE_FORWARD_ONLY + 2),
                         dpar_schedule_name(rule));
        if (!grouped && rule != DPAR_SCHEDULE_BREADTH_FIRST) {
            try_one(&list[n++], options, rule, 0, 0, mult);
            continue;
        }
        for (k = 0; k < 3; k++) {
            if (chunks[k] < 2) {
                continue;
            }
            try_one(&list[n++], options, rule, chunks[k], 0, mult);
            if (grouped && 2 * (int64_t)options->ranks <= options->micros) {
                try_one(&list[n++], options, rule, chunks[k], 2 * options->ranks, mult);
            }
            if (grouped && options->group > options->ranks &&
                options->group != 2 * options->ranks) {
                try_one(&list[n++], options, rule, chunks[k], options->group, mult);
            }
        }
    }
    options_progress(since, (double)rule / (DPAR_SCHEDULE_FORWARD_ONLY + 2), "auto");
    try_one(&list[n++], options, -1, 1, 0, mult);
    try_one(&list[n++], options, -1, 2, 0, mult);
    options_progress(since, 1.0, NULL);
    qsort(list, (size_t)n, sizeof list[0], better);
    file = open_output(options->output);
    if (options->format != NULL && strcmp(options->format, "json") == 0) {
        compare_json(file, list, n);
    } else {
        compare_table(file, list, n);
    }
    close_output(file, options->output);
    if (list[0].ok <= 0) {
        fail(1, "--compare", "no schedule is legal and fits");
    }
    return 0;
}

/* ---- which options apply --------------------------------------------------------------------- */

/* Refuses options that would be ignored. */
static void applies(const settings *options)
{
    enum { RULE = 1, AUTO = 2, COMPARE = 4, CHECK = 8 };
    static const struct {
        const char *name;
        int of; /* the commands that it applies to; options not listed apply to all */
    } uses[] = {{"--stages", RULE | AUTO | COMPARE},
                {"--micro", RULE | AUTO | COMPARE},
                {"--virtual", RULE | AUTO | COMPARE},
                {"--group", RULE | COMPARE},
                {"--slices", RULE | COMPARE | CHECK},
                {"--lifo", RULE | COMPARE},
                {"--chain", CHECK},
                {"--map", RULE | AUTO},
                {"--whole", AUTO | COMPARE},
                {"--objective", AUTO | COMPARE},
                {"--nodes", AUTO | COMPARE},
                {"--lowered", RULE | AUTO | CHECK},
                {"--shards", RULE | AUTO | CHECK},
                {"--svg", RULE | AUTO | CHECK},
                {"--width", RULE | AUTO | CHECK}};
    const char *command = "--schedule ", *schedule = "";
    int what = RULE;
    char why[80];
    size_t i;
    if (options->compare) {
        what = COMPARE;
        command = "--compare";
    } else if (options->check != NULL) {
        what = CHECK;
        command = "--check";
    } else {
        schedule = options->schedule;
        what = strcmp(schedule, "auto") == 0 ? AUTO : RULE;
    }
    snprintf(why, sizeof why, "does not apply to %s%.40s", command, schedule);
    for (i = 0; i < sizeof uses / sizeof uses[0]; i++) {
        if (given(options, uses[i].name) && (uses[i].of & what) == 0) {
            fail(2, uses[i].name, why);
        }
    }
}

/* Refuses options that need another one which is missing. */
static void belongs(const settings *options)
{
    const char *format = options->check != NULL ? "" : "ascii";
    if (options->format != NULL) {
        format = options->format;
    }
    if (given(options, "--room") && options->transport != DPAR_TRANSPORT_EAGER) {
        fail(2, "--room", "needs --transport eager");
    }
    if (given(options, "--width") && strcmp(format, "ascii") != 0) {
        fail(2, "--width", "needs --format ascii");
    }
    if (given(options, "--lowered") && strcmp(format, "csv") != 0) {
        fail(2, "--lowered", "needs --format csv");
    }
    if (given(options, "--bytes") != given(options, "--bandwidth")) {
        fail(2, "--bytes and --bandwidth", "must be given together");
    }
    if (given(options, "--bandwidth") && options->bandwidth == 0) {
        fail(2, "--bandwidth", "must be more than 0");
    }
    if (given(options, "--links") && !given(options, "--bandwidth")) {
        fail(2, "--links", "needs --bytes and --bandwidth");
    }
    if (options->links != DPAR_CONTENTION_NONE && options->sends != DPAR_SEND_MODE_BUFFERED) {
        fail(2, "--links pair and rank", "need --send buffered");
    }
    if (given(options, "--hold") && options->hold.count != 3) {
        fail(2, "--hold", "takes three numbers: for F, I and W");
    }
    if (options->ranks_of.count > 0 && options->schedule != NULL &&
        strcmp(options->schedule, "auto") == 0 && given(options, "--virtual")) {
        fail(2, "--virtual", "is already given by --map");
    }
    if (given(options, "--stage-times") &&
        (given(options, "--fwd") || given(options, "--bwd-input") ||
         given(options, "--bwd-weight"))) {
        fail(2, "--stage-times", "replaces --fwd, --bwd-input and --bwd-weight");
    }
}

/* Refuses a command line with none or several of --schedule, --compare and --check. */
static void one_command(const settings *options)
{
    const char *said[3];
    char text[120];
    int n = 0;
    if (options->schedule != NULL) {
        said[n++] = "--schedule";
    }
    if (options->compare) {
        said[n++] = "--compare";
    }
    if (options->check != NULL) {
        said[n++] = "--check";
    }
    if (n == 0) {
        fail(2, "one of --schedule NAME, --compare and --check FILE is needed (--help)", "");
    }
    if (n > 1) {
        snprintf(text, sizeof text, n > 2 ? "you gave all three" : "you gave %s and %s", said[0],
                 said[1]);
        fail(2, "only one of --schedule, --compare and --check may be given", text);
    }
}

int main(int argc, char **argv)
{
    static settings options;
    int code;
    options.buffers = 1;
    options.width = 80;
    options.cap = -1;
    if (argc == 1) {
        fputs("usage: pipeline --schedule NAME|--compare|--check FILE.csv [options]; "
              "see pipeline --help\n",
              stderr);
        return 2;
    }
    code = read_options(&options, argc, argv);
    if (code >= 0) {
        return code;
    }
    one_command(&options);
    if (options.check == NULL && (options.ranks == 0 || options.micros == 0)) {
        fail(2, "--stages and --micro are needed (--help)", "");
    }
    if (options.compare && options.format != NULL && strcmp(options.format, "ascii") != 0 &&
        strcmp(options.format, "json") != 0) {
        fail(2, "--compare", "prints ascii or json");
    }
    if (options.output != NULL && strcmp(options.output, "-") == 0) {
        options.output = NULL;
    }
    if (options.svg != NULL && strcmp(options.svg, "-") == 0) {
        fail(2, "--svg", "needs the name of a file, not '-'; --format svg writes to stdout");
    }
    applies(&options);
    belongs(&options);
    options.timed = options.transport != DPAR_TRANSPORT_NONE && !given(&options, "--send") &&
                    !given(&options, "--links");
    if (options.memory != NULL) {
        series bytes;
        if (options.hold.count > 0) {
            bytes = wholes("--memory", options.memory, 0);
            options.cap = bytes.values[0];
            if (bytes.count > 1) {
                fail(2, "--memory", "takes one number");
            }
        } else {
            options.cap = number("--memory", options.memory);
        }
    }
    if (options.stage_times != NULL) {
        read_stage_times(&options);
    }
    complete(&options);
    if (options.check != NULL) {
        return check_file(&options);
    }
    return options.compare ? compare(&options) : one_schedule(&options);
}
