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
    "  -o FILE            write to FILE instead of stdout\n"
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

#include "options.h"

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
    void *p = bytes < 0 || (uint64_t)bytes > (size_t)-1 / 2 ? NULL : malloc((size_t)bytes + 8);
    if (p == NULL) {
        fail(2, "not enough memory", "");
    }
    return p;
}

/* ---- numbers ----------------------------------------------------------------------------------
 *
 * A decimal is kept as a whole number of ten-millionths. Input has at most six decimals; the
 * seventh keeps half of such a number exact, for --bwd. */
enum { DECIMALS = 7 };
#define MOST_BYTES (INT64_C(1) << 40)

typedef struct series {
    int32_t n; /* numbers: 0 if not given, 1 for all stages */
    int64_t *v;
} series;

/* Reads "0.25". Returns the text that follows, or NULL if it is not a number in the range. */
static const char *decimal(const char *s, int64_t *value)
{
    int64_t v = 0;
    int whole = 0, places = 0, i;
    for (; *s >= '0' && *s <= '9' && v <= 1000000; s++, whole++) {
        v = 10 * v + (*s - '0');
    }
    if (*s == '.') {
        for (s++; *s >= '0' && *s <= '9' && places < 6; s++, places++) {
            v = 10 * v + (*s - '0');
        }
    }
    for (i = places; i < DECIMALS; i++) {
        v *= 10;
    }
    *value = v;
    if (whole + places == 0 || (*s >= '0' && *s <= '9') || v > INT64_C(10000000000000)) {
        return NULL;
    }
    return s;
}

static int64_t number(const char *name, const char *value)
{
    int64_t v = 0;
    const char *s = decimal(value, &v);
    if (s == NULL || *s != 0) {
        fail_value(name, "a number of 0 to 1000000 with at most 6 decimals", value);
    }
    return v;
}

static series numbers(const char *name, const char *value)
{
    series l;
    const char *c, *s = value;
    int32_t n = 1;
    for (c = s; *c != 0; c++) {
        n += *c == ',';
    }
    l.v = (int64_t *)room(8 * (int64_t)n);
    for (l.n = 0; l.n < n; l.n++) {
        s = decimal(s, &l.v[l.n]);
        if (s == NULL || *s != (l.n + 1 < n ? ',' : 0)) {
            fail_value(name, "numbers of 0 to 1000000 with at most 6 decimals, separated by commas",
                       value);
        }
        s += *s == ',';
    }
    return l;
}

/* Reads whole numbers from `least` to 2^40, separated by commas. `least` is 0 or -2^40. */
static series wholes(const char *name, const char *value, int64_t least)
{
    series l;
    const char *c, *s = value;
    int32_t n = 1;
    for (c = s; *c != 0; c++) {
        n += *c == ',';
    }
    l.v = (int64_t *)room(8 * (int64_t)n);
    for (l.n = 0; l.n < n; l.n++) {
        int minus = *s == '-', digits = 0;
        int64_t v = 0;
        for (s += minus; *s >= '0' && *s <= '9' && v <= MOST_BYTES; s++, digits++) {
            v = 10 * v + (*s - '0');
        }
        l.v[l.n] = minus ? -v : v;
        if (digits == 0 || v > MOST_BYTES || l.v[l.n] < least || *s != (l.n + 1 < n ? ',' : 0)) {
            fail_value(name,
                       least < 0 ? "whole numbers of -2^40 to 2^40, separated by commas"
                                 : "whole numbers of 0 to 2^40, separated by commas",
                       value);
        }
        s += *s == ',';
    }
    return l;
}

/* Returns ticks / unit as text with at most six decimals, rounded. The last eight texts stay valid,
 * so that one printf can show several. */
static const char *shown(int64_t ticks, int64_t unit)
{
    static char text[8][48];
    static int next;
    char *s = text[next++ & 7];
    int64_t size = ticks < 0 ? -ticks : ticks;
    int64_t whole = size / unit, rest = size % unit * 1000000;
    size_t n;
    rest = rest / unit + (rest % unit * 2 >= unit);
    snprintf(s, 48, "%s%lld.%06lld", ticks < 0 ? "-" : "", (long long)(whole + rest / 1000000),
             (long long)(rest % 1000000));
    n = strlen(s);
    while (s[n - 1] == '0') {
        s[--n] = 0;
    }
    if (s[n - 1] == '.') {
        s[--n] = 0;
    }
    return s;
}

/* Returns a ratio in millionths, rounded; 0 if the whole is 0. */
static int64_t millionths(dpar_ratio r)
{
    return r.whole < 1 ? 0 : (int64_t)(1e6 * (double)r.part / (double)r.whole + 0.5);
}

/* Returns a ratio in per cent with one decimal. */
static const char *percent(dpar_ratio r)
{
    return shown((millionths(r) + 500) / 1000, 10);
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

static int given(const settings *o, const char *name)
{
    int32_t i;
    for (i = 0; i < o->givens; i++) {
        const size_t n = strlen(name);
        if (strncmp(o->given[i], name, n) == 0 && (o->given[i][n] == 0 || o->given[i][n] == '=')) {
            return 1;
        }
    }
    return 0;
}

static char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    size_t size = 0, got;
    char *text = NULL;
    if (f == NULL) {
        fail(2, path, "cannot be read");
    }
    do {
        char *more = (char *)realloc(text, size + 65537);
        if (more == NULL) {
            fail(2, path, "not enough memory");
        }
        text = more;
        got = fread(text + size, 1, 65536, f);
        size += got;
        if (size > (size_t)1 << 30) {
            fail(2, path, "more than 1 GiB");
        }
    } while (got > 0);
    if (ferror(f) != 0) {
        fail(2, path, "cannot be read");
    }
    fclose(f);
    text[size] = 0;
    *n = size;
    return text;
}

/* Reads a file with three numbers per line: forward, input, weight. */
static void read_stage_times(settings *o)
{
    series *column[3];
    size_t n;
    char *text = read_file(o->stage_times, &n);
    const char *s = text;
    int32_t lines = 1, k;
    column[0] = &o->forward;
    column[1] = &o->input;
    column[2] = &o->weight;
    for (k = 0; text[k] != 0; k++) {
        lines += text[k] == '\n';
    }
    for (k = 0; k < 3; k++) {
        column[k]->n = 0;
        column[k]->v = (int64_t *)room(8 * (int64_t)lines);
    }
    while (*s != 0) {
        s += strspn(s, " \t\r\n");
        if (*s == '#') {
            s += strcspn(s, "\n");
            continue;
        }
        for (k = 0; k < 3 && *s != 0; k++) {
            s = decimal(s, &column[k]->v[column[k]->n++]);
            if (s == NULL || strchr(" \t\r\n", *s) == NULL || (k < 2 && *s == 0)) {
                fail(2, o->stage_times, "each line has three numbers: forward, input, weight");
            }
            s += strspn(s, " \t");
        }
        if (k == 3 && *s != 0 && *s != '\r' && *s != '\n') {
            fail(2, o->stage_times, "each line has three numbers and no more");
        }
    }
    if (column[0]->n == 0) {
        fail(2, o->stage_times, "has no times");
    }
    free(text);
}

/* Completes the times of the two parts of the backward: --bwd 3 --bwd-input 2 gives a weight of 1.
 */
static void complete(settings *o)
{
    int32_t i;
    if (o->forward.n == 0) {
        o->forward = numbers("--fwd", "1");
    }
    if (o->input.n == 0 && o->weight.n == 0 && o->backward.n > 0) {
        o->input.n = o->weight.n = o->backward.n;
        o->input.v = (int64_t *)room(8 * (int64_t)o->backward.n);
        o->weight.v = (int64_t *)room(8 * (int64_t)o->backward.n);
        for (i = 0; i < o->backward.n; i++) {
            o->input.v[i] = o->weight.v[i] = o->backward.v[i] / 2;
        }
    } else if (o->backward.n > 0 && (o->input.n == 0 || o->weight.n == 0)) {
        series *known = o->input.n > 0 ? &o->input : &o->weight;
        series *missing = o->input.n > 0 ? &o->weight : &o->input;
        if (known->n != o->backward.n) {
            fail(2, "--bwd and its parts", "have different numbers of stages");
        }
        missing->n = known->n;
        missing->v = (int64_t *)room(8 * (int64_t)known->n);
        for (i = 0; i < known->n; i++) {
            missing->v[i] = o->backward.v[i] - known->v[i];
            if (missing->v[i] < 0) {
                fail(2, "--bwd", "is less than one of its parts");
            }
        }
    }
    if (o->input.n == 0) {
        o->input = numbers("--bwd-input", "1");
    }
    if (o->weight.n == 0) {
        o->weight = numbers("--bwd-weight", "1");
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

static void close_output(FILE *f, const char *path)
{
    if (fflush(f) != 0 || ferror(f) != 0 || (f != stdout && fclose(f) != 0)) {
        fail(2, path == NULL ? "stdout" : path, "cannot be written");
    }
}

/* Lists the names of the schedules with `between` in between; the last is auto. */
static void list_schedules(FILE *f, const char *between)
{
    int32_t i;
    for (i = 1; i < DPAR_SCHEDULE_END; i++) {
        fprintf(f, "%s%s", dpar_schedule_name(i), between);
    }
    fputs("auto\n", f);
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
static void read_map(settings *o, const char *value)
{
    int32_t i;
    o->ranks_of.n = 0;
    o->map = strcmp(value, "v") == 0 ? DPAR_STAGE_MAP_V : DPAR_STAGE_MAP_LOOP;
    if (o->map == DPAR_STAGE_MAP_V || strcmp(value, "loop") == 0) {
        return;
    }
    if (*value < '0' || *value > '9') {
        fail_value("--map",
                   "the rank of each stage, separated by commas (with auto also loop or v)", value);
    }
    o->ranks_of = wholes("--map", value, 0);
    for (i = 0; i < o->ranks_of.n; i++) {
        if (o->ranks_of.v[i] >= DPAR_MAX_STAGES) {
            fail_value("--map", "ranks of 0 to 65534", value);
        }
    }
    if (o->ranks_of.n > DPAR_MAX_STAGES) {
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

static void read_raw(settings *o, int which, const char *value)
{
    static const char *const formats[] = {"ascii", "csv", "svg", "trace", "json"};
    static const char *const sends[] = {"buffered", "async", "blocking"};
    static const char *const objectives[] = {"makespan", "span"};
    static const char *const links[] = {"own", "pair", "rank"};
    static const char *const orders[] = {"data", "turns"};
    series *const of[] = {&o->forward, &o->backward, &o->input,
                          &o->weight,  &o->overlap,  &o->latency};
    const char *name = raw_name[which];
    switch (which) {
    case BANDWIDTH: o->bandwidth = number(name, value); break;
    case BYTES: o->bytes = wholes(name, value, 0); break;
    case HOLD: o->hold = wholes(name, value, -MOST_BYTES); break;
    case FORMAT: o->format = formats[word(name, value, formats, 5)]; break;
    case SEND: o->sends = word(name, value, sends, 3); break;
    case LINKS: o->links = word(name, value, links, 3); break;
    case OBJECTIVE: o->span = word(name, value, objectives, 2); break;
    case TRANSPORT:
        o->transport = 1 + word(name, value, transports + 1, DPAR_TRANSPORT_COUNT - 1);
        break;
    case MAP: read_map(o, value); break;
    case ORDER: o->turns = word(name, value, orders, 2); break;
    default: *of[which] = numbers(name, value); break;
    }
}

/* Returns -1 to go on, or the exit code. */
static int read_options(settings *o, int argc, char **argv)
{
    const char *raw[RAWS] = {NULL};
    int listed = 0, code, k, n;
    dpar_schedule_desc order;
    option list[40] = {{"--list", OPTION_FLAG, &listed, 0, 0},
                       {"--compare", OPTION_FLAG, &o->compare, 0, 0},
                       {"--lowered", OPTION_FLAG, &o->lowered, 0, 0},
                       {"--shards", OPTION_FLAG, &o->shards, 0, 0},
                       {"--lifo", OPTION_FLAG, &o->lifo, 0, 0},
                       {"--whole", OPTION_FLAG, &o->whole, 0, 0},
                       {"--schedule", OPTION_WORD, &o->schedule, 0, 0},
                       {"--check", OPTION_WORD, &o->check, 0, 0},
                       {"--stage-times", OPTION_WORD, &o->stage_times, 0, 0},
                       {"--svg", OPTION_WORD, &o->svg, 0, 0},
                       {"-o", OPTION_WORD, &o->output, 0, 0},
                       {"--memory", OPTION_WORD, &o->memory, 0, 0},
                       {"--stages", OPTION_INT, &o->ranks, 1, 65535},
                       {"--virtual", OPTION_INT, &o->chunks, 1, 64},
                       {"--micro", OPTION_INT, &o->micros, 1, 65535},
                       {"--group", OPTION_INT, &o->group, 1, 65535},
                       {"--slices", OPTION_INT, &o->slices, 1, 65535},
                       {"--chain", OPTION_INT, &o->chain, 1, 65535},
                       {"--room", OPTION_INT, &o->buffers, 1, 1000000},
                       {"--width", OPTION_INT, &o->width, 32, 4096},
                       {"--nodes", OPTION_INT, &o->nodes, 0, 1000000000}};
    for (n = 0; list[n].name != NULL; n++) {
    }
    for (k = 0; k < RAWS; k++, n++) {
        list[n].name = raw_name[k];
        list[n].kind = OPTION_WORD;
        list[n].to = &raw[k];
    }
    o->given = (const char **)room((int64_t)sizeof *o->given * argc);
    for (k = 1; k < argc; k++) {
        o->given[o->givens++] = argv[k];
    }
    code = options_read(argc, argv, list, n, NULL, 0);
    if (code < 0 && listed) {
        list_schedules(stdout, "\n");
        return options_finish(0);
    }
    o->lowered = o->lowered || o->shards;
    if (code < 0 && o->schedule != NULL && strcmp(o->schedule, "auto") != 0) {
        find_schedule(&order, o->schedule);
    }
    for (k = 0; code < 0 && k < RAWS; k++) {
        if (raw[k] != NULL) {
            read_raw(o, k, raw[k]);
        }
    }
    return code;
}

/* ---- one schedule ---------------------------------------------------------------------------- */

typedef struct job {
    const settings *o;
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

static void *keep(job *j, int64_t bytes)
{
    return j->memory[j->used++] = room(bytes);
}

static void drop(job *j)
{
    while (j->used > 0) {
        free(j->memory[--j->used]);
    }
}

/* Reduces *power to the largest power of ten that divides all numbers of a list. */
static void divide(const series *l, int64_t *power)
{
    int32_t i;
    for (i = 0; i < l->n; i++) {
        while (l->v[i] % *power != 0) {
            *power /= 10;
        }
    }
}

/* Spreads a list over the edges between stages. The list has one number for all edges, or one for
 * each stage, where the last stage may be left out. The stages are those of the schedule or of one
 * chain. Each number is multiplied by `by`. */
static dpar_status edges(job *j, const char *name, const series *l, int64_t power, int64_t by,
                         dpar_stage_values *each, dpar_why *why)
{
    const dpar_schedule *s = &j->list;
    int32_t i, per = l->n == s->stages || l->n == s->stages - 1 ? s->stages : s->chain;
    int64_t *v;
    for (i = 0; i < l->n; i++) {
        if (by > 0 && l->v[i] / power > INT64_MAX / by) {
            snprintf(why->text, sizeof why->text, "%s: the numbers are too large for exact times",
                     name);
            return DPAR_E_RANGE;
        }
    }
    if (l->n <= 1) {
        each->all = l->n == 0 ? 0 : l->v[0] / power * by;
        return DPAR_OK;
    }
    if (l->n != per && l->n != per - 1) {
        snprintf(why->text, sizeof why->text, "%s has %d numbers, but the schedule has %d stages",
                 name, (int)l->n, (int)s->stages);
        return DPAR_E_ARG;
    }
    each->each = v = (int64_t *)keep(j, 8 * (int64_t)s->stages);
    for (i = 0; i < s->stages; i++) {
        v[i] = i % per < l->n ? l->v[i % per] / power * by : 0;
    }
    return DPAR_OK;
}

/* A message takes --bytes / --bandwidth units of time, that is --bytes * unit / --bandwidth ticks.
 * The simulator computes bytes * 10^9 / bandwidth. It therefore gets --bytes * unit and --bandwidth
 * * 10^9, both divided by their common factors. o->bandwidth is in ten-millionths, so that only a
 * factor of 100 is left. */
static dpar_status set_links(job *j, dpar_why *why)
{
    const settings *o = j->o;
    int64_t slices = j->mult > 1 && j->order.rule == DPAR_SCHEDULE_SEQ1F1B ? j->list.slices : 1;
    int64_t wide = o->bandwidth, a = j->unit, b;
    if (wide == 0) {
        return DPAR_OK;
    }
    j->times.links = o->links;
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
    j->times.bandwidth.all = wide / a;
    return edges(j, "--bytes", &o->bytes, 1, j->unit / a, &j->times.bytes, why);
}

/* Sets the bytes that a stage holds: a share of the given ones, in units of 1 / mult bytes. */
static void set_hold(job *j)
{
    const series *h = &j->o->hold;
    if (h->n == 3) {
        j->times.hold_forward.all = h->v[0] * (j->mult / j->share);
        j->times.hold_input.all = h->v[1] * (j->mult / j->share);
        j->times.hold_weight.all = h->v[2] * (j->mult / j->share);
    }
}

/* Computes the ticks of each stage. A list has one value for each stage, for each stage of a chain,
 * or, with --compare, one for every `share` consecutive stages, which each get 1 / share of it. */
static dpar_status spread(job *j, const char *name, const series *l, int64_t power,
                          dpar_stage_values *each, dpar_why *why)
{
    const dpar_schedule *s = &j->list;
    int32_t i, of_share = j->mult > 1 && l->n == s->chain / j->share;
    int64_t *v;
    if (l->n <= 1) {
        each->all = l->n == 0 ? 0 : l->v[0] / power * (j->mult / j->share);
        return DPAR_OK;
    }
    if (l->n != s->stages && l->n != s->chain && !of_share) {
        snprintf(why->text, sizeof why->text, "%s has %d numbers, but the schedule has %d stages",
                 name, (int)l->n, (int)s->stages);
        return DPAR_E_ARG;
    }
    each->each = v = (int64_t *)keep(j, 8 * (int64_t)s->stages);
    for (i = 0; i < s->stages; i++) {
        int32_t at = l->n == s->stages ? i : i % s->chain;
        v[i] = l->v[of_share ? at / j->share : at] / power * (j->mult / j->share);
    }
    return DPAR_OK;
}

/* Computes the times of the simulation in whole ticks. A tick is the largest power of ten that
 * divides all given numbers, so that small numbers stay far from overflow. */
static dpar_status set_times(job *j, dpar_why *why)
{
    const settings *o = j->o;
    dpar_schedule_times *t = &j->times;
    const struct {
        const char *name;
        const series *from;
        dpar_stage_values *to;
    } list[] = {{"--fwd", &o->forward, &t->forward},
                {"--bwd", &o->backward, &t->backward},
                {"--bwd-input", &o->input, &t->input},
                {"--bwd-weight", &o->weight, &t->weight},
                {"--overlap", &o->overlap, &t->overlap}};
    int64_t power = 10000000;
    dpar_status st;
    int i;
    memset(t, 0, sizeof *t);
    divide(&o->forward, &power);
    divide(&o->backward, &power);
    divide(&o->input, &power);
    divide(&o->weight, &power);
    divide(&o->overlap, &power);
    divide(&o->latency, &power);
    power = o->bandwidth > 0 && power > 10 ? 10 : power; /* times of messages have six decimals */
    j->unit = 10000000 / power * j->mult;
    for (i = 0; i < 5; i++) {
        st = spread(j, list[i].name, list[i].from, power, list[i].to, why);
        if (st != DPAR_OK) {
            return st;
        }
    }
    st = edges(j, "--latency", &o->latency, power, j->mult, &t->latency, why);
    if (st == DPAR_OK) {
        st = set_links(j, why);
    }
    set_hold(j);
    t->sends = o->sends;
    t->transport = o->timed ? o->transport : DPAR_TRANSPORT_NONE;
    t->capacity = o->buffers;
    return st;
}

static int bidirectional(int32_t rule)
{
    return rule == DPAR_SCHEDULE_DUALPIPE || rule == DPAR_SCHEDULE_CHIMERA;
}

static dpar_status make_order(job *j, dpar_why *why)
{
    const dpar_status st = dpar_schedule_generate(&j->list, &j->order, NULL, 0, why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    return dpar_schedule_generate(&j->list, &j->order, keep(j, why->bytes), why->bytes, why);
}

/* Sets parts[rank], the number of a stage's activations that one micro-batch has in all layers of
 * the rank. That is its stages x slices, but 1 if the list runs in two directions, because a
 * micro-batch then uses only one of them. */
static void set_parts(job *j)
{
    const dpar_schedule *s = &j->list;
    int32_t i;
    j->parts = (int32_t *)keep(j, 4 * (int64_t)s->ranks);
    for (i = 0; i < s->ranks; i++) {
        j->parts[i] = 0;
    }
    for (i = 0; i < s->stages; i++) {
        j->parts[s->rank_of[i]]++;
    }
    for (i = 0; i < s->ranks; i++) {
        int both = bidirectional(j->order.rule) || s->chain < s->stages;
        j->parts[i] = both || j->parts[i] == 0 ? 1 : j->parts[i] * s->slices;
    }
}

/* Returns the cap in the simulator's units: activations of a stage, or 1 / mult bytes; -1 if there
 * is none. */
static int64_t cap_of(const job *j, int32_t rank)
{
    const int64_t cap = j->o->cap, one = 10000000;
    if (cap < 0 || j->o->hold.n > 0) {
        return cap < 0 ? -1 : cap * j->mult;
    }
    return cap / one * j->parts[rank] + cap % one * j->parts[rank] / one;
}

/* Returns the user's map in the type of the library, or NULL if there is none. */
static const uint16_t *map_of(job *j)
{
    const series *l = &j->o->ranks_of;
    uint16_t *map;
    int32_t i;
    if (l->n == 0) {
        return NULL;
    }
    map = (uint16_t *)keep(j, 2 * (int64_t)l->n);
    for (i = 0; i < l->n; i++) {
        map[i] = (uint16_t)l->v[i];
    }
    return map;
}

/* Returns the rank of a stage in the library's maps: loop 0 1 0 1, v 0 1 1 0. */
static int32_t usual_rank(const dpar_schedule_optimize_desc *p, int32_t stage)
{
    int32_t at = stage % p->ranks;
    return p->map == DPAR_STAGE_MAP_V && stage / p->ranks % 2 == 1 ? p->ranks - 1 - at : at;
}

/* Lays the stages out. The times and parts, which auto needs, depend on that. */
static dpar_status lay_auto(job *j, dpar_schedule_optimize_desc *p, dpar_why *why)
{
    int32_t i, n = j->o->ranks_of.n;
    int64_t stages = n > 0 ? n : (int64_t)j->order.ranks * j->order.chunks;
    uint16_t *rank_of;
    p->ranks = j->order.ranks;
    p->micro_batches = j->order.micro_batches;
    p->map = j->o->map;
    p->rank_of = map_of(j);
    if (stages > DPAR_MAX_STAGES) {
        snprintf(why->text, sizeof why->text, "%lld stages are more than 65535", (long long)stages);
        return DPAR_E_RANGE;
    }
    p->stages = (int32_t)stages;
    j->list.ranks = p->ranks;
    j->list.stages = p->stages;
    if (dpar_schedule_init(&j->list, 0, NULL, 0, why) != DPAR_E_ROOM ||
        dpar_schedule_init(&j->list, 0, keep(j, why->bytes), why->bytes, why) != DPAR_OK) {
        return DPAR_E_ARG;
    }
    rank_of = j->list.rank_of;
    for (i = 0; i < p->stages; i++) {
        int32_t r = n > 0 ? p->rank_of[i] : usual_rank(p, i);
        if (r < 0 || r >= p->ranks) {
            snprintf(why->text, sizeof why->text,
                     "stage %d is on rank %d, but there are only %d ranks", (int)i, (int)r,
                     (int)p->ranks);
            return DPAR_E_ARG;
        }
        rank_of[i] = (uint16_t)r;
    }
    return DPAR_OK;
}

static dpar_status make_auto(job *j, dpar_why *why)
{
    dpar_schedule_optimize_desc p;
    dpar_schedule_optimize_result result;
    int64_t bytes, *cap;
    int32_t r;
    dpar_status st;
    memset(&p, 0, sizeof p);
    if (lay_auto(j, &p, why) != DPAR_OK || set_times(j, why) != DPAR_OK) {
        return DPAR_E_ARG;
    }
    set_parts(j);
    p.split = !j->o->whole;
    p.objective = j->o->span ? DPAR_OBJECTIVE_SPAN : DPAR_OBJECTIVE_MAKESPAN;
    p.times = &j->times;
    p.cap.each = cap = (int64_t *)keep(j, 8 * (int64_t)p.ranks);
    for (r = 0; r < p.ranks; r++) {
        cap[r] = cap_of(j, r);
        if (cap[r] == 0) { /* 0 means no limit to the library */
            snprintf(why->text, sizeof why->text, "--memory: not even one activation fits");
            return DPAR_E_MEMORY;
        }
        cap[r] = cap[r] < 0 ? 0 : cap[r];
    }
    p.nodes = j->o->nodes;
    st = dpar_schedule_optimize(&j->list, &p, &result, NULL, 0, why);
    if (st == DPAR_E_ROOM) {
        bytes = why->bytes;
        if (p.nodes > 0) {
            bytes += INT64_C(32) << 20; /* the search's table */
        }
        st = dpar_schedule_optimize(&j->list, &p, &result, keep(j, bytes), bytes, why);
    }
    return st == DPAR_MORE ? DPAR_OK : st;
}

/* Checks that the user's map has as many stages as the rule, unless the rule takes any number. */
static dpar_status set_map(job *j, dpar_why *why)
{
    int32_t n = j->o->ranks_of.n, rule = j->order.rule;
    if (n == 0) {
        return DPAR_OK;
    }
    if ((rule == DPAR_SCHEDULE_BREADTH_FIRST || rule == DPAR_SCHEDULE_FORWARD_ONLY) &&
        j->order.chunks == 0) {
        j->order.stages = n;
    } else {
        job bare = *j;
        bare.used = 0;
        if (make_order(&bare, why) != DPAR_OK) {
            drop(&bare);
            return DPAR_E_ARG;
        }
        drop(&bare);
        if (bare.list.stages != n) {
            snprintf(why->text, sizeof why->text, "--map has %d stages, but the schedule has %d",
                     (int)n, (int)bare.list.stages);
            return DPAR_E_ARG;
        }
    }
    j->order.rank_of = map_of(j);
    return DPAR_OK;
}

static dpar_status make(job *j, dpar_why *why)
{
    dpar_status st;
    if (j->order.rule < 0) {
        return make_auto(j, why);
    }
    st = set_map(j, why);
    if (st == DPAR_OK) {
        st = make_order(j, why);
    }
    if (st == DPAR_OK) {
        st = set_times(j, why);
    }
    if (st == DPAR_OK) {
        set_parts(j);
    }
    return st;
}

static int has_messages(const dpar_schedule *s)
{
    int64_t k;
    for (k = 0; k < s->begin[s->ranks]; k++) {
        if (s->action[k].kind >= DPAR_ACTION_SEND_F && s->action[k].kind <= DPAR_ACTION_RECV_B) {
            return 1;
        }
    }
    return 0;
}

static dpar_status lower_into(job *j, const dpar_schedule *in, const dpar_schedule_lower_desc *how,
                              dpar_why *why)
{
    const dpar_status st = dpar_schedule_lower(&j->lowered, in, how, NULL, 0, why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    return dpar_schedule_lower(&j->lowered, in, how, keep(j, why->bytes), why->bytes, why);
}

static dpar_status check_list(job *j, const dpar_schedule *s, const dpar_schedule_check_desc *how,
                              dpar_why *why)
{
    const dpar_status st = dpar_schedule_check(s, how, NULL, 0, why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    return dpar_schedule_check(s, how, keep(j, why->bytes), why->bytes, why);
}

/* Puts messages into the list. If a receive holds its rank (blocking and eager),
 * receives are placed as late as possible. */
static dpar_status lower_list(job *j, dpar_why *why)
{
    const settings *o = j->o;
    dpar_schedule_lower_desc how;
    dpar_schedule early;
    dpar_status st;
    memset(&how, 0, sizeof how);
    how.passes = DPAR_LOWER_MESSAGES;
    if (o->shards) {
        how.passes |= DPAR_LOWER_SHARDS | DPAR_LOWER_REDUCE;
    }
    if (o->turns) {
        how.passes |= DPAR_LOWER_TURNS;
    }
    how.times = &j->times;
    st = lower_into(j, &j->list, &how, why);
    if (st != DPAR_OK || o->turns ||
        (o->transport != DPAR_TRANSPORT_BLOCKING && o->transport != DPAR_TRANSPORT_EAGER)) {
        return st;
    }
    early = j->lowered;
    how.passes = DPAR_LOWER_LATE_RECV;
    how.channel = DPAR_CHANNEL_ANY;
    return lower_into(j, &early, &how, why);
}

/* Lowers the list unless it is lowered, checks it, runs it on the transport, and computes slots and
 * times. */
static dpar_status run_list(job *j, dpar_why *why)
{
    dpar_schedule_check_desc run;
    dpar_schedule_slots_desc slots;
    dpar_schedule_simulate_desc sim;
    dpar_schedule *s = &j->lowered;
    int64_t actions;
    dpar_status st = check_list(j, &j->list, NULL, why);
    if (st != DPAR_OK) {
        return st;
    }
    j->lowered = j->list;
    if (!has_messages(&j->list)) {
        st = lower_list(j, why);
    } else if (j->o->shards || given(j->o, "--order")) {
        fail(2, j->o->shards ? "--shards" : "--order", "the list already has messages");
    }
    if (st == DPAR_OK && !has_messages(s)) { /* all stages are on one rank: nothing is sent */
        j->times.sends = DPAR_SEND_MODE_BUFFERED;
        j->times.links = DPAR_CONTENTION_NONE;
        j->times.transport = DPAR_TRANSPORT_NONE;
    }
    if (st == DPAR_OK && j->o->transport != DPAR_TRANSPORT_NONE) {
        memset(&run, 0, sizeof run);
        run.transport = j->o->transport;
        run.capacity = j->o->buffers;
        st = check_list(j, s, &run, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    actions = s->begin[s->ranks];
    j->slots = (dpar_slot_counts *)keep(j, (int64_t)sizeof(dpar_slot_counts) * s->ranks);
    memset(&slots, 0, sizeof slots);
    slots.counts = j->slots;
    st = dpar_schedule_slots(s, &slots, NULL, 0, why);
    if (st == DPAR_E_ROOM) {
        st = dpar_schedule_slots(s, &slots, keep(j, why->bytes), why->bytes, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    j->start = (int64_t *)keep(j, 8 * actions);
    j->end = (int64_t *)keep(j, 8 * actions);
    j->rank = (dpar_rank_timing *)keep(j, (int64_t)sizeof(dpar_rank_timing) * s->ranks);
    if (j->o->cap >= 0) {
        int64_t *cap = (int64_t *)keep(j, 8 * (int64_t)s->ranks);
        int32_t r;
        for (r = 0; r < s->ranks; r++) {
            cap[r] = cap_of(j, r);
        }
        j->times.cap.each = cap;
    }
    memset(&sim, 0, sizeof sim);
    sim.times = &j->times;
    sim.start = j->start;
    sim.end = j->end;
    sim.rank = j->rank;
    st = dpar_schedule_simulate(s, &sim, &j->timing, NULL, 0, why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    return dpar_schedule_simulate(s, &sim, &j->timing, keep(j, why->bytes), why->bytes, why);
}

/* Returns 1 if no rank holds more than the cap, otherwise 0 with a message in *why. */
static int fits(const job *j, dpar_why *why)
{
    int32_t r, bytes = j->o->hold.n > 0;
    for (r = 0; r < j->lowered.ranks && j->o->cap >= 0; r++) {
        int64_t held = bytes ? j->rank[r].peak_bytes : j->rank[r].peak_count;
        if (held > cap_of(j, r)) {
            snprintf(why->text, sizeof why->text, "rank %d holds %s %s, the cap is %s", (int)r,
                     shown(held, bytes ? j->mult : j->parts[r]), bytes ? "bytes" : "activations",
                     shown(j->o->cap, bytes ? 1 : 10000000));
            return 0;
        }
    }
    return 1;
}

/* ---- output ---------------------------------------------------------------------------------- */

static FILE *open_output(const char *path)
{
    FILE *f = path == NULL ? stdout : fopen(path, "wb");
    if (f == NULL) {
        fail(2, path, "cannot be written");
    }
    return f;
}

static void picture(const job *j, const char *format, FILE *f)
{
    dpar_schedule_draw_desc g;
    dpar_text t;
    dpar_why why;
    char *text = NULL;
    int pass;
    g.schedule = &j->lowered;
    g.start = j->start;
    g.end = j->end;
    g.unit = j->unit;
    g.title = j->title;
    g.width = j->o->width;
    for (pass = 0; pass < 2; pass++) { /* count, then write */
        dpar_status st = DPAR_OK;
        dpar_text_init(&t, text, pass == 0 ? 0 : t.used + 1);
        switch (format[0]) {
        case 'a': st = dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_TEXT, &why); break;
        case 's': st = dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_SVG, &why); break;
        case 't': st = dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_TRACE, &why); break;
        default: dpar_schedule_write(j->o->lowered ? &j->lowered : &j->list, "\n", &t); break;
        }
        if (st != DPAR_OK) {
            fail(2, format, why.text);
        }
        text = pass == 0 ? (char *)room((int64_t)t.used + 1) : text;
    }
    fwrite(text, 1, t.used, f);
    free(text);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_text(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s != 0; s++) {
        if (*s == '"' || *s == '\\') {
            fputc('\\', f);
        }
        fputc(*s >= ' ' ? *s : '?', f);
    }
    fputc('"', f);
}

static void json_ratio(FILE *f, const char *name, dpar_ratio r, const char *end)
{
    fprintf(f, "\"%s\": %s%s", name, shown(millionths(r), 1000000), end);
}

static int64_t simulated(const job *j, int32_t what, int32_t rank)
{
    switch (what) {
    case DPAR_FORMULA_MAKESPAN: return j->timing.makespan;
    case DPAR_FORMULA_SPAN: return j->timing.span;
    case DPAR_FORMULA_IDLE: return j->timing.bubble_worst;
    default: return j->rank[rank].peak_count;
    }
}

/* Computes a closed form. If there is none, *why says why. */
static dpar_status closed(const job *j, int32_t what, int32_t rank, dpar_formula *formula,
                          dpar_why *why)
{
    const char *not_for = NULL;
    if (j->order.rule < 0) {
        not_for = "no published schedule, no formula";
    } else if (j->o->sends != DPAR_SEND_MODE_BUFFERED || j->o->timed) {
        not_for = "the formulas are for buffered messages";
    } else if (j->order.rank_of != NULL) {
        not_for = "the formulas are for the rule's own map";
    }
    if (not_for != NULL) {
        snprintf(why->text, sizeof why->text, "%s", not_for);
        return DPAR_E_NONE;
    }
    return dpar_schedule_closed_form(&j->order, &j->times, what, rank, formula, why);
}

/* Writes the closed form next to the simulated value; "applies" is false if it does not hold. */
static void json_closed(FILE *f, const job *j, const char *name, int32_t what, int32_t rank)
{
    dpar_formula formula;
    dpar_why why;
    int64_t unit = what == DPAR_FORMULA_PEAK ? 1 : j->unit;
    dpar_status st = closed(j, what, rank, &formula, &why);
    fprintf(f, "    {\"of\": \"%s\", \"rank\": %d, \"simulated\": %s, \"applies\": %s, ", name,
            (int)rank, shown(simulated(j, what, rank), unit), st == DPAR_OK ? "true" : "false");
    if (st == DPAR_OK) {
        fprintf(f, "\"value\": %s, \"formula\": ", shown(formula.value, unit));
        json_text(f, formula.text);
    } else {
        fprintf(f, "\"why\": ");
        json_text(f, why.text);
    }
    fputc('}', f);
}

static void json_peaks(FILE *f, const job *j, int32_t count, int64_t bytes, int32_t rank)
{
    fprintf(f, "\"peak_activations\": %d, \"peak_full_stage\": %s, \"peak_bytes\": %s", (int)count,
            shown(j->rank[rank].peak_count, j->parts[rank]),
            j->o->hold.n > 0 ? shown(bytes, j->mult) : "null");
}

static void json_slots(FILE *f, const dpar_slot_counts *c)
{
    fprintf(f, "\"slots\": {\"receive\": %d, \"send\": %d, \"activation\": %d, \"weight\": %d}",
            (int)c->receive, (int)c->send, (int)c->activation, (int)c->weight);
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* Writes the maxima over all ranks, which may come from different ranks. */
static void json_most(FILE *f, const job *j)
{
    dpar_slot_counts most = {0, 0, 0, 0};
    int32_t r, full = 0;
    for (r = 0; r < j->lowered.ranks; r++) {
        const dpar_slot_counts *c = &j->slots[r];
        most.receive = larger(most.receive, c->receive);
        most.send = larger(most.send, c->send);
        most.activation = larger(most.activation, c->activation);
        most.weight = larger(most.weight, c->weight);
        if ((int64_t)j->rank[r].peak_count * j->parts[full] >
            (int64_t)j->rank[full].peak_count * j->parts[r]) {
            full = r;
        }
    }
    fprintf(f, "  ");
    json_peaks(f, j, j->timing.peak_count, j->timing.peak_bytes, full);
    fprintf(f, ",\n  ");
    json_slots(f, &most);
    fprintf(f, ",\n");
}

static void json_rank(FILE *f, const job *j, int32_t r)
{
    const dpar_rank_timing *t = &j->rank[r];
    const dpar_slot_counts *c = &j->slots[r];
    fprintf(f, "    {\"rank\": %d, \"first\": %s, \"last\": %s, \"busy\": %s, ", (int)r,
            shown(t->first, j->unit), shown(t->last, j->unit), shown(t->busy, j->unit));
    fprintf(f, "\"idle\": {\"warm_up\": %s, \"dependency\": %s, \"communication\": %s, ",
            shown(t->warm_up, j->unit), shown(t->dependency, j->unit),
            shown(t->communication, j->unit));
    fprintf(f, "\"memory\": %s, \"drain\": %s},\n     ", shown(t->memory, j->unit),
            shown(t->drain, j->unit));
    json_peaks(f, j, t->peak_count, t->peak_bytes, r);
    fprintf(f, ",\n     ");
    json_slots(f, c);
    fprintf(f, "}");
}

static void print_json(FILE *f, const job *j, int ok, const char *sentence)
{
    static const char *const sends[] = {"buffered", "async", "blocking"};
    const dpar_schedule *s = &j->lowered;
    const dpar_timing *t = &j->timing;
    int32_t r;
    fprintf(f, "{\n  \"schedule\": ");
    json_text(f, j->title);
    fprintf(f, ", \"ranks\": %d, \"stages\": %d, \"micros\": %d, \"chain\": %d, \"slices\": %d,\n",
            (int)s->ranks, (int)s->stages, (int)s->micro_batches, (int)s->chain, (int)s->slices);
    fprintf(f, "  \"sends\": \"%s\", \"transport\": \"%s\", ", sends[j->o->sends],
            transports[j->o->timed ? j->o->transport : DPAR_TRANSPORT_NONE]);
    fprintf(f, "\"makespan\": %s, \"span\": %s,\n  \"bubble\": {", shown(t->makespan, j->unit),
            shown(t->span, j->unit));
    json_ratio(f, "of_makespan", t->bubble_of_makespan, ", ");
    json_ratio(f, "of_work", t->bubble_of_work, ", ");
    json_ratio(f, "of_span", t->bubble_of_span, ", ");
    fprintf(f, "\"worst_rank_idle\": %s, \"first_rank_idle\": %s},\n",
            shown(t->bubble_worst, j->unit), shown(t->bubble_first, j->unit));
    fprintf(f,
            "  \"critical_path\": {\"actions\": %lld, \"compute\": %s, \"communication\": %s},\n",
            (long long)t->path_actions, shown(t->path_compute, j->unit),
            shown(t->path_communication, j->unit));
    json_most(f, j);
    fprintf(f, "  \"fits\": %s, \"why_not\": ", ok ? "true" : "false");
    json_text(f, sentence);
    fprintf(f, ",\n  \"rank\": [\n");
    for (r = 0; r < s->ranks; r++) {
        json_rank(f, j, r);
        fprintf(f, r + 1 < s->ranks ? ",\n" : "\n  ],\n  \"closed_forms\": [\n");
    }
    json_closed(f, j, "makespan", DPAR_FORMULA_MAKESPAN, 0);
    fprintf(f, ",\n");
    json_closed(f, j, "span", DPAR_FORMULA_SPAN, 0);
    fprintf(f, ",\n");
    json_closed(f, j, "worst_rank_idle", DPAR_FORMULA_IDLE, 0);
    for (r = 0; r < s->ranks; r++) {
        fprintf(f, ",\n");
        json_closed(f, j, "peak_activations", DPAR_FORMULA_PEAK, r);
    }
    fprintf(f, "\n  ]\n}\n");
}

/* Prints the lines below a chart. */
static void print_figures(FILE *f, const job *j)
{
    const dpar_timing *t = &j->timing;
    dpar_formula formula;
    dpar_why why;
    int32_t r;
    fprintf(f, "makespan %s, span %s; idle %s %% of the makespan,", shown(t->makespan, j->unit),
            shown(t->span, j->unit), percent(t->bubble_of_makespan));
    fprintf(f, " %s %% of the work, %s %% of the span\n", percent(t->bubble_of_work),
            percent(t->bubble_of_span));
    fprintf(f, "activations at most");
    for (r = 0; r < j->lowered.ranks && r < 64; r++) {
        fprintf(f, " %d", (int)j->rank[r].peak_count);
    }
    if (j->order.rule >= 0) {
        if (closed(j, DPAR_FORMULA_MAKESPAN, 0, &formula, &why) == DPAR_OK) {
            fprintf(f, "; closed form: %s = %s", formula.text, shown(formula.value, j->unit));
        } else {
            fprintf(f, "; no closed form: %s", why.text);
        }
    }
    fprintf(f, "\n");
    if (j->o->hold.n > 0) {
        fprintf(f, "bytes at most");
        for (r = 0; r < j->lowered.ranks && r < 64; r++) {
            fprintf(f, " %s", shown(j->rank[r].peak_bytes, j->mult));
        }
        fprintf(f, "\n");
    }
}

static void save_svg(const job *j)
{
    if (j->o->svg != NULL) {
        FILE *f = open_output(j->o->svg);
        picture(j, "svg", f);
        close_output(f, j->o->svg);
    }
}

static void print_job(const job *j, int ok, const char *sentence)
{
    const char *format = j->o->format != NULL ? j->o->format : "ascii";
    FILE *f;
    save_svg(j); /* first, so that stdout stays empty if it cannot be written */
    f = open_output(j->o->output);
    if (strcmp(format, "json") == 0) {
        print_json(f, j, ok, sentence);
    } else {
        if (strcmp(format, "ascii") == 0 && j->o->svg != NULL) {
            fprintf(f, "picture: %s\n", j->o->svg);
        }
        picture(j, format, f);
        if (strcmp(format, "ascii") == 0) {
            print_figures(f, j);
        }
    }
    close_output(f, j->o->output);
}

/* ---- the three commands ---------------------------------------------------------------------- */

static void describe(job *j, const settings *o)
{
    memset(j, 0, sizeof *j);
    j->o = o;
    j->mult = j->share = 1;
    j->order.rule = -1;
    j->order.ranks = o->ranks;
    j->order.micro_batches = o->micros;
    j->order.chunks = o->chunks;
    j->order.group = o->group;
    j->order.slices = o->slices;
    j->order.lifo = o->lifo;
}

static int one_schedule(const settings *o)
{
    job j;
    dpar_why why;
    dpar_status st;
    int ok;
    describe(&j, o);
    if (strcmp(o->schedule, "auto") != 0) {
        find_schedule(&j.order, o->schedule);
        j.order.lifo |= o->lifo;
        if (given(o, "--map") && o->ranks_of.n == 0) {
            fail(2, "--map", "takes the rank of each stage; loop and v are for auto");
        }
    } else {
        j.order.chunks = o->map == DPAR_STAGE_MAP_V ? 2 : 1;
        if (o->chunks > 0) {
            j.order.chunks = o->chunks;
        }
    }
    snprintf(j.title, sizeof j.title, "%s",
             j.order.rule < 0 ? "auto" : dpar_schedule_name(j.order.rule));
    why.text[0] = 0;
    st = make(&j, &why);
    if (st != DPAR_OK) {
        fail(st == DPAR_E_MEMORY ? 1 : 2, o->schedule, why.text);
    }
    if (run_list(&j, &why) != DPAR_OK) {
        fail(1, o->schedule, why.text);
    }
    ok = fits(&j, &why);
    print_job(&j, ok, ok ? "" : why.text);
    if (!ok) {
        fprintf(stderr, "pipeline: %s does not fit: %s\n", o->schedule, why.text);
    }
    drop(&j);
    return ok ? 0 : 1;
}

static void print_ok(const job *j, int32_t messages)
{
    const settings *o = j->o;
    FILE *f = open_output(o->output);
    fprintf(f, "ok %d rank%s, %d stage%s, %d micro-batch%s, %s; makespan %s, span %s, ",
            (int)j->list.ranks, j->list.ranks == 1 ? "" : "s", (int)j->list.stages,
            j->list.stages == 1 ? "" : "s", (int)j->list.micro_batches,
            j->list.micro_batches == 1 ? "" : "es",
            messages ? "messages matched" : "messages added", shown(j->timing.makespan, j->unit),
            shown(j->timing.span, j->unit));
    fprintf(f, "%s %% idle, at most %d activation%s", percent(j->timing.bubble_of_makespan),
            (int)j->timing.peak_count, j->timing.peak_count == 1 ? "" : "s");
    if (o->hold.n > 0) {
        fprintf(f, ", %s bytes", shown(j->timing.peak_bytes, 1));
    }
    fprintf(f, "; no deadlock over %s\n", transports[o->transport]);
    close_output(f, o->output);
    save_svg(j);
}

static int check_file(settings *o)
{
    job j;
    dpar_why why;
    dpar_schedule_read_desc in;
    char *text = read_file(o->check, &in.bytes);
    int32_t messages;
    int ok;
    describe(&j, o);
    j.order.rule = -2;
    in.text = text;
    in.chain = o->chain;
    if (dpar_schedule_read(&j.list, &in, NULL, 0, &why) != DPAR_E_ROOM ||
        dpar_schedule_read(&j.list, &in, keep(&j, why.bytes), why.bytes, &why) != DPAR_OK) {
        fail(1, o->check, why.text);
    }
    free(text);
    j.list.slices = o->slices > 0 ? o->slices : 1;
    messages = has_messages(&j.list);
    if (o->transport == DPAR_TRANSPORT_NONE) {
        o->transport = DPAR_TRANSPORT_PAIR;
    }
    snprintf(j.title, sizeof j.title, "%s", o->check);
    if (set_times(&j, &why) != DPAR_OK) {
        fail(2, o->check, why.text);
    }
    set_parts(&j);
    if (run_list(&j, &why) != DPAR_OK) {
        fail(1, o->check, why.text);
    }
    ok = fits(&j, &why);
    if (!ok) {
        fprintf(stderr, "pipeline: %s does not fit: %s\n", o->check, why.text);
    }
    if (o->format != NULL) {
        print_job(&j, ok, ok ? "" : why.text);
    } else if (ok) {
        print_ok(&j, messages);
    }
    drop(&j);
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
    const candidate *x = (const candidate *)a, *y = (const candidate *)b;
    int64_t p = (int64_t)x->peak * y->share, q = (int64_t)y->peak * x->share;
    if (x->ok != y->ok) {
        return x->ok > y->ok ? -1 : 1;
    }
    if (x->ok >= 0 && x->makespan != y->makespan) {
        return x->makespan < y->makespan ? -1 : 1;
    }
    if (x->ok >= 0 && p != q) {
        return p < q ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

/* Makes and runs one candidate. `mult` keeps its shares of the times whole. */
static void try_one(candidate *c, const settings *o, int32_t rule, int32_t chunks, int32_t group,
                    int32_t mult)
{
    job j;
    settings mine = *o;
    describe(&j, &mine);
    memset(c, 0, sizeof *c);
    j.order.rule = rule;
    j.order.chunks = chunks;
    j.order.group = group;
    j.order.lifo = rule == DPAR_SCHEDULE_GPIPE ? o->lifo : 0;
    j.order.slices = rule == DPAR_SCHEDULE_SEQ1F1B ? o->slices : 0;
    j.mult = mult;
    j.share = chunks > 0 && !bidirectional(rule) ? chunks : 1;
    if (rule == DPAR_SCHEDULE_ZBV || rule == DPAR_SCHEDULE_V_HALF || rule == DPAR_SCHEDULE_V_MIN ||
        rule == DPAR_SCHEDULE_DUALPIPEV || rule == DPAR_SCHEDULE_1F1B_V) {
        j.share = 2;
    } else if (rule == DPAR_SCHEDULE_SEQ1F1B) {
        j.share = o->slices > 0 ? o->slices : 2;
    }
    if (rule < 0) {
        mine.map = chunks == 2 ? DPAR_STAGE_MAP_V : DPAR_STAGE_MAP_LOOP;
        snprintf(c->name, sizeof c->name, chunks == 2 ? "auto on a V" : "auto");
    } else {
        size_t n = (size_t)snprintf(c->name, sizeof c->name, "%s", dpar_schedule_name(rule));
        if (chunks > 1) {
            n += (size_t)snprintf(c->name + n, sizeof c->name - n, " v=%d", (int)chunks);
        }
        if (group > 0) {
            snprintf(c->name + n, sizeof c->name - n, " group=%d", (int)group);
        }
    }
    if (make(&j, &c->why) != DPAR_OK || run_list(&j, &c->why) != DPAR_OK) {
        c->ok = -1;
    } else {
        c->ok = fits(&j, &c->why);
        c->makespan = j.timing.makespan;
        c->span = j.timing.span;
        c->bubble = j.timing.bubble_of_makespan;
        c->peak = j.timing.peak_count;
        c->share = j.share;
        c->unit = j.unit;
        c->bytes = o->hold.n > 0 ? j.timing.peak_bytes : -1;
        c->mult = mult;
    }
    drop(&j);
}

static void compare_json(FILE *f, const candidate *c, int32_t n)
{
    int32_t i;
    fprintf(f, "[\n");
    for (i = 0; i < n; i++) {
        fprintf(f, "  {\"schedule\": \"%s\", \"legal\": %s, \"fits\": %s", c[i].name,
                c[i].ok < 0 ? "false" : "true", c[i].ok > 0 ? "true" : "false");
        if (c[i].ok >= 0) {
            fprintf(f, ", \"makespan\": %s, \"span\": %s, \"bubble_of_makespan\": %s",
                    shown(c[i].makespan, c[i].unit), shown(c[i].span, c[i].unit),
                    shown(millionths(c[i].bubble), 1000000));
            fprintf(f, ", \"peak_full_stage\": %s, \"peak_bytes\": %s",
                    shown(c[i].peak, c[i].share),
                    c[i].bytes < 0 ? "null" : shown(c[i].bytes, c[i].mult));
        }
        if (c[i].ok <= 0) {
            fprintf(f, ", \"why\": ");
            json_text(f, c[i].why.text);
        }
        fprintf(f, i + 1 < n ? "},\n" : "}\n");
    }
    fprintf(f, "]\n");
}

/* Prints the best schedule, and why it won. */
static void compare_first(FILE *f, const candidate *c, int32_t n)
{
    int32_t i, out = 0;
    if (c[0].ok <= 0) {
        return;
    }
    fprintf(f, "best: %s: makespan %s, %s %% idle, %s activations per rank\n", c[0].name,
            shown(c[0].makespan, c[0].unit), percent(c[0].bubble), shown(c[0].peak, c[0].share));
    for (i = 1; i < n; i++) {
        out += c[i].ok <= 0;
    }
    fprintf(f, "why:  ");
    if (n > 1 && c[1].ok > 0) {
        /* all have the same unit, because the shares of --compare's times are whole */
        const double longer = 100.0 * ((double)c[1].makespan / (double)c[0].makespan - 1.0);
        fprintf(f, longer < 0.05 ? "%s takes as long" : "%s takes %.1f %% longer", c[1].name,
                longer);
        fprintf(f,
                longer < 0.05 && (int64_t)c[1].peak * c[0].share > (int64_t)c[0].peak * c[1].share
                    ? " and holds more; "
                    : "; ");
    }
    fprintf(f, "%d of %d schedules do not fit or are not legal for these numbers\n\n", (int)out,
            (int)n);
}

static void compare_table(FILE *f, const candidate *c, int32_t n)
{
    int32_t i;
    compare_first(f, c, n);
    fprintf(f, "  # %-28s %12s %12s %8s %12s%s\n", "schedule", "makespan", "span", "idle %",
            "activations", c[0].ok >= 0 && c[0].bytes >= 0 ? "        bytes" : "");
    for (i = 0; i < n; i++) {
        if (c[i].ok > 0) {
            fprintf(f, "%3d %-28s %12s %12s %8s %12s", (int)i + 1, c[i].name,
                    shown(c[i].makespan, c[i].unit), shown(c[i].span, c[i].unit),
                    percent(c[i].bubble), shown(c[i].peak, c[i].share));
            if (c[i].bytes >= 0) {
                fprintf(f, " %12s", shown(c[i].bytes, c[i].mult));
            }
            fprintf(f, "\n");
        } else {
            fprintf(f, "  - %-28s %s: %s\n", c[i].name, c[i].ok == 0 ? "does not fit" : "not legal",
                    c[i].why.text);
        }
    }
    fprintf(f,
            "activations: the most that a rank holds, in micro-batches of all its layers; dualpipe "
            "and chimera hold the parameters twice\n");
}

static int compare(const settings *o)
{
    static candidate list[CANDIDATES];
    const double since = options_now();
    int32_t rule, n = 0, k, v = o->chunks > 0 ? o->chunks : 1, chunks[3];
    int32_t slices = o->slices > 0 ? o->slices : 2, mult;
    FILE *f;
    if ((int64_t)v * slices > 65536) {
        fail(2, "--compare", "--virtual times --slices must be at most 65536");
    }
    mult = 4 * v * slices; /* so that each share of a time is whole; 10^13 * mult fits in 64 bits */
    chunks[0] = 2;
    chunks[1] = 4;
    chunks[2] = v != 2 && v != 4 ? v : 0;
    for (rule = 1; rule < DPAR_SCHEDULE_FORWARD_ONLY; rule++) {
        int grouped = rule == DPAR_SCHEDULE_INTERLEAVED || rule == DPAR_SCHEDULE_INTERLEAVED_ZB;
        options_progress(since, (double)rule / (DPAR_SCHEDULE_FORWARD_ONLY + 2),
                         dpar_schedule_name(rule));
        if (!grouped && rule != DPAR_SCHEDULE_BREADTH_FIRST) {
            try_one(&list[n++], o, rule, 0, 0, mult);
            continue;
        }
        for (k = 0; k < 3; k++) {
            if (chunks[k] < 2) {
                continue;
            }
            try_one(&list[n++], o, rule, chunks[k], 0, mult);
            if (grouped && 2 * (int64_t)o->ranks <= o->micros) {
                try_one(&list[n++], o, rule, chunks[k], 2 * o->ranks, mult);
            }
            if (grouped && o->group > o->ranks && o->group != 2 * o->ranks) {
                try_one(&list[n++], o, rule, chunks[k], o->group, mult);
            }
        }
    }
    options_progress(since, (double)rule / (DPAR_SCHEDULE_FORWARD_ONLY + 2), "auto");
    try_one(&list[n++], o, -1, 1, 0, mult);
    try_one(&list[n++], o, -1, 2, 0, mult);
    options_progress(since, 1.0, NULL);
    qsort(list, (size_t)n, sizeof list[0], better);
    f = open_output(o->output);
    if (o->format != NULL && strcmp(o->format, "json") == 0) {
        compare_json(f, list, n);
    } else {
        compare_table(f, list, n);
    }
    close_output(f, o->output);
    if (list[0].ok <= 0) {
        fail(1, "--compare", "no schedule is legal and fits");
    }
    return 0;
}

/* ---- which options apply --------------------------------------------------------------------- */

/* Refuses options that would be ignored. */
static void applies(const settings *o)
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
    if (o->compare) {
        what = COMPARE;
        command = "--compare";
    } else if (o->check != NULL) {
        what = CHECK;
        command = "--check";
    } else {
        schedule = o->schedule;
        what = strcmp(schedule, "auto") == 0 ? AUTO : RULE;
    }
    snprintf(why, sizeof why, "does not apply to %s%.40s", command, schedule);
    for (i = 0; i < sizeof uses / sizeof uses[0]; i++) {
        if (given(o, uses[i].name) && (uses[i].of & what) == 0) {
            fail(2, uses[i].name, why);
        }
    }
}

/* Refuses options that need another one which is missing. */
static void belongs(const settings *o)
{
    const char *format = o->check != NULL ? "" : "ascii";
    if (o->format != NULL) {
        format = o->format;
    }
    if (given(o, "--room") && o->transport != DPAR_TRANSPORT_EAGER) {
        fail(2, "--room", "needs --transport eager");
    }
    if (given(o, "--width") && strcmp(format, "ascii") != 0) {
        fail(2, "--width", "needs --format ascii");
    }
    if (given(o, "--lowered") && strcmp(format, "csv") != 0) {
        fail(2, "--lowered", "needs --format csv");
    }
    if (given(o, "--bytes") != given(o, "--bandwidth")) {
        fail(2, "--bytes and --bandwidth", "must be given together");
    }
    if (given(o, "--bandwidth") && o->bandwidth == 0) {
        fail(2, "--bandwidth", "must be more than 0");
    }
    if (given(o, "--links") && !given(o, "--bandwidth")) {
        fail(2, "--links", "needs --bytes and --bandwidth");
    }
    if (o->links != DPAR_CONTENTION_NONE && o->sends != DPAR_SEND_MODE_BUFFERED) {
        fail(2, "--links pair and rank", "need --send buffered");
    }
    if (given(o, "--hold") && o->hold.n != 3) {
        fail(2, "--hold", "takes three numbers: for F, I and W");
    }
    if (o->ranks_of.n > 0 && o->schedule != NULL && strcmp(o->schedule, "auto") == 0 &&
        given(o, "--virtual")) {
        fail(2, "--virtual", "is already given by --map");
    }
    if (given(o, "--stage-times") &&
        (given(o, "--fwd") || given(o, "--bwd-input") || given(o, "--bwd-weight"))) {
        fail(2, "--stage-times", "replaces --fwd, --bwd-input and --bwd-weight");
    }
}

int main(int argc, char **argv)
{
    static settings o;
    int code;
    o.buffers = 1;
    o.width = 80;
    o.cap = -1;
    if (argc == 1) {
        fputs("usage: pipeline --schedule NAME|--compare|--check FILE.csv [options]; "
              "see pipeline --help\n",
              stderr);
        return 2;
    }
    code = read_options(&o, argc, argv);
    if (code >= 0) {
        return code;
    }
    if ((o.schedule != NULL) + (o.check != NULL) + o.compare != 1) {
        fail(2, "one of --schedule NAME, --compare and --check FILE is needed (--help)", "");
    }
    if (o.check == NULL && (o.ranks == 0 || o.micros == 0)) {
        fail(2, "--stages and --micro are needed (--help)", "");
    }
    if (o.compare && o.format != NULL && strcmp(o.format, "ascii") != 0 &&
        strcmp(o.format, "json") != 0) {
        fail(2, "--compare", "prints ascii or json");
    }
    applies(&o);
    belongs(&o);
    o.timed = o.transport != DPAR_TRANSPORT_NONE && !given(&o, "--send") && !given(&o, "--links");
    if (o.memory != NULL) {
        series bytes;
        if (o.hold.n > 0) {
            bytes = wholes("--memory", o.memory, 0);
            o.cap = bytes.v[0];
            if (bytes.n > 1) {
                fail(2, "--memory", "takes one number");
            }
        } else {
            o.cap = number("--memory", o.memory);
        }
    }
    if (o.stage_times != NULL) {
        read_stage_times(&o);
    }
    complete(&o);
    if (o.check != NULL) {
        return check_file(&o);
    }
    return o.compare ? compare(&o) : one_schedule(&o);
}
