/* SPDX-License-Identifier: MIT-0 */
/* pipeline - which pipeline schedule, how long does it take, what does it hold, is this list right?
 *
 *   cc -DDPAR_IMPLEMENTATION -I. examples/pipeline.c -o pipeline
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
 * ./pipeline --compare --stages 8 --micro 32 --latency 0.2 --memory 8 ranks all of them; --help has
 * more. Exit code: 0 fine, 1 an invalid schedule or one that does not fit, 2 bad input; one
 * sentence on stderr. */
#include "dpar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "pipeline: makes, checks, times and draws pipeline schedules\n"
    "\n"
    "  pipeline --schedule NAME --stages P --micro M [options]     one schedule\n"
    "  pipeline --compare --stages P --micro M [options]           all of them, the fastest first\n"
    "  pipeline --check FILE.csv [--transport T] [options]         is this list right?\n"
    "\n"
    "  --schedule NAME    --list has the names; \"auto\" makes one for the times and the memory\n"
    "  --stages P         ranks (each has --virtual stages)\n"
    "  --virtual V        stages a rank, where the schedule leaves that open\n"
    "  --micro M          micro-batches\n"
    "  --group N          micro-batches of a group (interleaved), --slices S of the sequence\n"
    "                     (seq1f1b), --lifo: gpipe's backwards from the last micro-batch\n"
    "  --fwd T            time of one stage's forward (1); a list T,T,.. is one for each stage\n"
    "  --bwd T            of the whole backward; alone: input and weight take half each\n"
    "  --bwd-input T, --bwd-weight T   of its parts (1, 1), which need not add up to it\n"
    "  --overlap T        of a forward and a backward that overlap (their sum)\n"
    "  --stage-times FILE a line a stage: forward, input, weight\n"
    "  --latency T        of a message between ranks (0)\n"
    "  --send KIND        buffered (sends wait for nobody), async (a message leaves when both "
    "ends\n"
    "                     are posted), blocking (and each holds its rank)\n"
    "  --memory A         cap: activations on a rank, in micro-batches of all its layers (4.5)\n"
    "  --format F         ascii, csv (PyTorch's), svg, trace (Perfetto), json\n"
    "  --lowered          csv with messages; --shards: with UNSHARD, RESHARD, REDUCE_GRAD too\n"
    "  --transport T      blocking, rank, dir, pair, edge or eager (--room N messages): does it\n"
    "                     come to its end? --check without it: pair\n"
    "  --chain C          --check: stages of a chain, for lists in two directions\n"
    "  --width N          of the ascii chart (80)\n"
    "  -o FILE            there instead of stdout; --svg FILE: the picture too\n"
    "  auto: --map loop|v, --whole (B in one piece), --objective makespan|span, --nodes N (of the\n"
    "        search for the optimum of tiny ones)\n"
    "  --list, --help\n"
    "\n"
    "Times are numbers of 0 to 1000000 with up to 6 decimals, all in one unit, computed exactly; "
    "in\n"
    "a trace one unit is one microsecond. --compare takes them as those of all layers of a rank: "
    "of\n"
    "V chunks each takes a V-th. --memory counts so everywhere.\n"
    "Exit code: 0 fine, 1 invalid or does not fit, 2 bad input.\n";

static void fail(int code, const char *what, const char *why)
{
    fprintf(stderr, "pipeline: %s%s%s\n", what, why[0] != 0 ? ": " : "", why);
    exit(code);
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
 * A decimal is kept as a whole number of ten-millionths: six decimals, and half of them. */
enum { DECIMALS = 7 };

typedef struct series {
    int32_t n; /* 0: not given; 1: for all stages */
    int64_t *v;
} series;

/* Reads "0.25"; returns what follows, NULL when that is no number that we take. */
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
    return whole + places == 0 || (*s >= '0' && *s <= '9') || v > INT64_C(10000000000000) ? NULL
                                                                                          : s;
}

static int64_t number(const char *option, const char *s)
{
    int64_t v = 0;
    s = decimal(s, &v);
    if (s == NULL || *s != 0) {
        fail(2, option, "takes a number of 0 to 1000000 with at most 6 decimals");
    }
    return v;
}

static series numbers(const char *option, const char *s)
{
    series l;
    const char *c;
    int32_t n = 1;
    for (c = s; *c != 0; c++) {
        n += *c == ',';
    }
    l.v = (int64_t *)room(8 * (int64_t)n);
    for (l.n = 0; l.n < n; l.n++) {
        s = decimal(s, &l.v[l.n]);
        if (s == NULL || *s != (l.n + 1 < n ? ',' : 0)) {
            fail(2, option,
                 "takes numbers of 0 to 1000000 with at most 6 decimals, commas between");
        }
        s += *s == ',';
    }
    return l;
}

static int32_t count(const char *option, const char *s, int32_t least, int32_t most)
{
    char *end, why[80];
    long v = strtol(s, &end, 10);
    if (*s < '0' || *s > '9' || *end != 0 || v < least || v > most) {
        snprintf(why, sizeof why, "takes a whole number of %ld to %ld", (long)least, (long)most);
        fail(2, option, why);
    }
    return (int32_t)v;
}

/* ticks / unit with at most six decimals, rounded. */
static const char *shown(int64_t ticks, int64_t unit)
{
    static char text[8][48];
    static int next;
    char *s = text[next++ & 7];
    int64_t whole = ticks / unit, rest = ticks % unit * 1000000;
    rest = rest / unit + (rest % unit * 2 >= unit);
    snprintf(s, 48, "%lld.%06lld", (long long)(whole + rest / 1000000),
             (long long)(rest % 1000000));
    {
        size_t n = strlen(s);
        while (s[n - 1] == '0') {
            s[--n] = 0;
        }
        if (s[n - 1] == '.') {
            s[--n] = 0;
        }
    }
    return s;
}

/* In percent with one decimal. */
static const char *percent(dpar_ratio r)
{
    return shown((dpar_ratio_millionths(r) + 500) / 1000, 10);
}

/* ---- what was asked for -----------------------------------------------------------------------
 */

typedef struct settings {
    const char *schedule, *check, *format, *output, *svg, *stage_times;
    int32_t compare, ranks, chunks, micros, group, slices, lifo, chain, lowered, shards, sends;
    int32_t transport, buffers, width, map, whole, span;
    int64_t nodes;
    series forward, backward, input, weight, overlap;
    int64_t latency, cap; /* cap: -1: none */
} settings;

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
    } while (got > 0 && size < (size_t)1 << 30);
    if (ferror(f) != 0) {
        fail(2, path, "cannot be read");
    }
    fclose(f);
    text[size] = 0;
    *n = size;
    return text;
}

/* "F I W" a line. */
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
        fail(2, o->stage_times, "has no stage's times");
    }
    free(text);
}

/* The halves of a backward; what is missing of them; E.g. --bwd 3 --bwd-input 2: weight 1. */
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

static int32_t word(const char *option, const char *value, const char *const *list, int32_t n)
{
    char why[160];
    int32_t i;
    size_t at = (size_t)snprintf(why, sizeof why, "takes");
    for (i = 0; i < n; i++) {
        if (strcmp(value, list[i]) == 0) {
            return i;
        }
        at += (size_t)snprintf(why + at, sizeof why - at, " %s", list[i]);
    }
    fail(2, option, why);
    return -1;
}

static void list_schedules(void)
{
    int32_t i;
    for (i = 0; i < DPAR_ORDERS; i++) {
        puts(dpar_order_name(i));
    }
    puts("auto");
}

/* An option without a value: 1 when it was one. */
static int flag(settings *o, const char *name)
{
    if (strcmp(name, "--help") == 0) {
        fputs(help, stdout);
        exit(0);
    }
    if (strcmp(name, "--list") == 0) {
        list_schedules();
        exit(0);
    }
    if (strcmp(name, "--compare") == 0) {
        return o->compare = 1;
    }
    if (strcmp(name, "--lowered") == 0) {
        return o->lowered = 1;
    }
    if (strcmp(name, "--shards") == 0) {
        return o->shards = o->lowered = 1;
    }
    if (strcmp(name, "--lifo") == 0) {
        return o->lifo = 1;
    }
    if (strcmp(name, "--whole") == 0) {
        return o->whole = 1;
    }
    return 0;
}

static void option(settings *o, const char *name, const char *value)
{
    static const char *const formats[] = {"ascii", "csv", "svg", "trace", "json"};
    static const char *const sends[] = {"buffered", "async", "blocking"};
    static const char *const maps[] = {"loop", "v"}, *const objectives[] = {"makespan", "span"};
    const struct {
        const char *name;
        const char **text;
        int32_t *whole, least, most;
        series *list;
        int64_t *decimal;
    } known[] = {{"--schedule", &o->schedule, NULL, 0, 0, NULL, NULL},
                 {"--check", &o->check, NULL, 0, 0, NULL, NULL},
                 {"--stage-times", &o->stage_times, NULL, 0, 0, NULL, NULL},
                 {"--svg", &o->svg, NULL, 0, 0, NULL, NULL},
                 {"-o", &o->output, NULL, 0, 0, NULL, NULL},
                 {"--stages", NULL, &o->ranks, 1, 65535, NULL, NULL},
                 {"--virtual", NULL, &o->chunks, 1, 64, NULL, NULL},
                 {"--micro", NULL, &o->micros, 1, 65535, NULL, NULL},
                 {"--group", NULL, &o->group, 1, 65535, NULL, NULL},
                 {"--slices", NULL, &o->slices, 1, 65535, NULL, NULL},
                 {"--chain", NULL, &o->chain, 1, 65535, NULL, NULL},
                 {"--room", NULL, &o->buffers, 1, 1000000, NULL, NULL},
                 {"--width", NULL, &o->width, 32, 4096, NULL, NULL},
                 {"--fwd", NULL, NULL, 0, 0, &o->forward, NULL},
                 {"--bwd", NULL, NULL, 0, 0, &o->backward, NULL},
                 {"--bwd-input", NULL, NULL, 0, 0, &o->input, NULL},
                 {"--bwd-weight", NULL, NULL, 0, 0, &o->weight, NULL},
                 {"--overlap", NULL, NULL, 0, 0, &o->overlap, NULL},
                 {"--latency", NULL, NULL, 0, 0, NULL, &o->latency},
                 {"--memory", NULL, NULL, 0, 0, NULL, &o->cap}};
    size_t i;
    for (i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(name, known[i].name) != 0) {
            continue;
        }
        if (known[i].text != NULL) {
            *known[i].text = value;
        } else if (known[i].whole != NULL) {
            *known[i].whole = count(name, value, known[i].least, known[i].most);
        } else if (known[i].list != NULL) {
            free(known[i].list->v);
            *known[i].list = numbers(name, value);
        } else {
            *known[i].decimal = number(name, value);
        }
        return;
    }
    if (strcmp(name, "--format") == 0) {
        o->format = formats[word(name, value, formats, 5)];
    } else if (strcmp(name, "--send") == 0) {
        o->sends = word(name, value, sends, 3);
    } else if (strcmp(name, "--map") == 0) {
        o->map = word(name, value, maps, 2);
    } else if (strcmp(name, "--objective") == 0) {
        o->span = word(name, value, objectives, 2);
    } else if (strcmp(name, "--nodes") == 0) {
        o->nodes = count(name, value, 0, 1000000000);
    } else if (strcmp(name, "--transport") == 0) {
        o->transport = dpar_transport_find(value);
        if (o->transport < 0) {
            fail(2, name, "takes blocking, rank, dir, pair, edge or eager");
        }
    } else {
        fail(2, name, "no such option (--help)");
    }
}

/* ---- one schedule, made and run ---------------------------------------------------------------
 */

typedef struct job {
    const settings *o;
    dpar_order order; /* rule -1: auto, -2: read from a file */
    int32_t share;    /* a stage has this part of a rank's layers: 1 / share */
    int32_t mult;     /* times are multiplied with that, so that shares stay whole */
    int64_t unit;     /* ticks */
    void *memory[16]; /* all that was allocated */
    int used;
    char title[160];
    dpar_schedule list, lowered;
    dpar_times times;
    dpar_timing timing;
    dpar_rank_timing *rank;
    dpar_slot_counts *slots;
    int64_t *start, *end;
    void *work; /* of the simulation */
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

/* The largest power of ten, up to a unit, that divides all of a list. */
static void divide(const series *l, int64_t *power)
{
    int32_t i;
    for (i = 0; i < l->n; i++) {
        while (l->v[i] % *power != 0) {
            *power /= 10;
        }
    }
}

/* Ticks of each stage. A list has a value for each stage, or for each of a chain or of the ranks:
 * then a stage has its share of the rank that has its layers. */
static dpar_status spread(job *j, const char *name, const series *l, int64_t power, dpar_each *each,
                          dpar_why *why)
{
    const dpar_schedule *s = &j->list;
    int32_t i, of_share = j->mult > 1 && l->n == s->chain / j->share;
    int64_t *v;
    if (l->n <= 1) {
        each->all = l->n == 0 ? 0 : l->v[0] / power * (j->mult / j->share);
        return DPAR_OK;
    }
    if (l->n != s->stages && l->n != s->chain && !of_share) {
        snprintf(why->text, sizeof why->text, "%s has %d numbers, the schedule %d stages", name,
                 (int)l->n, (int)s->stages);
        return DPAR_E_ARG;
    }
    each->of = v = (int64_t *)keep(j, 8 * (int64_t)s->stages);
    for (i = 0; i < s->stages; i++) {
        int32_t at = l->n == s->stages ? i : i % s->chain;
        v[i] = l->v[of_share ? at / j->share : at] / power * (j->mult / j->share);
    }
    return DPAR_OK;
}

static dpar_status set_times(job *j, dpar_why *why)
{
    const settings *o = j->o;
    dpar_times *t = &j->times;
    int64_t power = 10000000;
    int64_t late = o->latency;
    series latency;
    dpar_status st;
    latency.n = 1;
    latency.v = &late;
    memset(t, 0, sizeof *t);
    divide(&o->forward, &power);
    divide(&o->backward, &power);
    divide(&o->input, &power);
    divide(&o->weight, &power);
    divide(&o->overlap, &power);
    divide(&latency, &power);
    j->unit = 10000000 / power * j->mult;
    st = spread(j, "--fwd", &o->forward, power, &t->forward, why);
    st = st ? st : spread(j, "--bwd", &o->backward, power, &t->backward, why);
    st = st ? st : spread(j, "--bwd-input", &o->input, power, &t->input, why);
    st = st ? st : spread(j, "--bwd-weight", &o->weight, power, &t->weight, why);
    st = st ? st : spread(j, "--overlap", &o->overlap, power, &t->overlap, why);
    t->latency.all = o->latency / power * j->mult;
    t->sends = o->sends;
    return st;
}

static int bidirectional(int32_t rule)
{
    return rule == DPAR_DUALPIPE || rule == DPAR_CHIMERA;
}

/* An activation of auto's stages is a 1 / chunks of a rank's. */
static dpar_status make_auto(job *j, dpar_why *why)
{
    dpar_pipe_job p;
    dpar_pipe_result result;
    int64_t bytes, work, actions;
    void *mem, *scratch;
    memset(&p, 0, sizeof p);
    p.ranks = j->order.ranks;
    p.stages = p.ranks * j->order.chunks;
    p.micros = j->order.micros;
    p.map = j->o->map == 1 ? DPAR_MAP_V : DPAR_MAP_LOOP;
    p.split = !j->o->whole;
    p.objective = j->o->span ? DPAR_LEAST_SPAN : DPAR_LEAST_MAKESPAN;
    j->list.stages = j->list.chain = p.stages; /* for the times, which come first here */
    if (set_times(j, why) != DPAR_OK) {
        return DPAR_E_ARG;
    }
    p.times = &j->times;
    p.cap.all = j->o->cap < 0 ? 0 : j->o->cap * j->order.chunks / 10000000;
    if (p.cap.all == 0 && j->o->cap >= 0) {
        snprintf(why->text, sizeof why->text, "--memory: not one activation fits");
        return DPAR_E_MEMORY;
    }
    work = dpar_auto_bytes(&p);
    if (work < 0) {
        dpar_status st = dpar_pipe_check(&p, why);
        return st == DPAR_OK ? DPAR_E_RANGE : st;
    }
    work += j->o->nodes > 0 ? INT64_C(32) << 20 : 0;
    actions = dpar_pipe_actions(&p);
    bytes = dpar_schedule_bytes(p.ranks, p.stages, actions);
    mem = keep(j, bytes);
    scratch = keep(j, work);
    {
        dpar_status st =
            dpar_auto_schedule(&p, j->o->nodes, &j->list, mem, bytes, &result, scratch, work, why);
        return st == DPAR_MORE ? DPAR_OK : st;
    }
}

static dpar_status make(job *j, dpar_why *why)
{
    int64_t bytes;
    dpar_status st;
    if (j->order.rule < 0) {
        return make_auto(j, why);
    }
    bytes = dpar_order_bytes(&j->order, why);
    if (bytes < 0) {
        return DPAR_E_ARG;
    }
    st = dpar_order_make(&j->list, &j->order, keep(j, bytes), bytes, why);
    return st == DPAR_OK ? set_times(j, why) : st;
}

static int has_messages(const dpar_schedule *s)
{
    int64_t k;
    for (k = 0; k < s->begin[s->ranks]; k++) {
        if (s->action[k].kind >= DPAR_SEND_F && s->action[k].kind <= DPAR_RECV_B) {
            return 1;
        }
    }
    return 0;
}

/* Lowers (what is not), checks, runs on the transport, gives slots and times. */
static dpar_status run_list(job *j, dpar_why *why)
{
    dpar_lowering how;
    dpar_schedule *s = &j->lowered;
    int64_t bytes, actions;
    dpar_status st;
    how.passes = DPAR_LOWER_MESSAGES | (j->o->shards ? DPAR_LOWER_SHARDS | DPAR_LOWER_REDUCE : 0);
    how.max_active = 0;
    bytes = dpar_schedule_check_bytes(&j->list);
    st = dpar_schedule_check(&j->list, 0, keep(j, bytes > 0 ? bytes : 0), bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    j->lowered = j->list;
    if (!has_messages(&j->list)) {
        bytes = dpar_schedule_lower_bytes(&j->list, &how, why);
        st = bytes < 0 ? DPAR_E_ARG
                       : dpar_schedule_lower(s, &j->list, &how, keep(j, bytes), bytes, why);
    }
    if (st == DPAR_OK && j->o->transport >= 0) {
        bytes = dpar_schedule_run_bytes(s);
        st = dpar_schedule_run_check(s, j->o->transport, j->o->buffers, NULL,
                                     keep(j, bytes > 0 ? bytes : 0), bytes, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    actions = s->begin[s->ranks];
    j->slots = (dpar_slot_counts *)keep(j, (int64_t)sizeof(dpar_slot_counts) * s->ranks);
    bytes = dpar_schedule_slots_bytes(s);
    st = dpar_schedule_slots(s, 0, NULL, j->slots, keep(j, bytes > 0 ? bytes : 0), bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    j->start = (int64_t *)keep(j, 8 * actions);
    j->end = (int64_t *)keep(j, 8 * actions);
    j->rank = (dpar_rank_timing *)keep(j, (int64_t)sizeof(dpar_rank_timing) * s->ranks);
    bytes = dpar_simulate_bytes(s, &j->times);
    j->work = keep(j, bytes > 0 ? bytes : 0);
    return dpar_simulate(s, &j->times, j->start, j->end, &j->timing, j->rank, j->work, bytes, why);
}

/* Does it hold less than the cap? Else the sentence. */
static int fits(const job *j, dpar_why *why)
{
    int32_t r, per = j->share;
    for (r = 0; r < j->lowered.ranks && j->o->cap >= 0; r++) {
        if (j->rank[r].peak_count * INT64_C(10000000) > j->o->cap * per) {
            snprintf(why->text, sizeof why->text, "rank %d holds %s activations, the cap is %s",
                     (int)r, shown(j->rank[r].peak_count, per), shown(j->o->cap, 10000000));
            return 0;
        }
    }
    return 1;
}

/* ---- what is printed --------------------------------------------------------------------------
 */

static FILE *open_output(const char *path)
{
    FILE *f = path == NULL ? stdout : fopen(path, "wb");
    if (f == NULL) {
        fail(2, path, "cannot be written");
    }
    return f;
}

static void close_output(FILE *f, const char *path)
{
    if (fflush(f) != 0 || ferror(f) != 0 || (f != stdout && fclose(f) != 0)) {
        fail(2, path == NULL ? "stdout" : path, "cannot be written");
    }
}

static void picture(const job *j, const char *format, FILE *f)
{
    dpar_gantt g;
    dpar_text t;
    dpar_why why;
    char *text = NULL;
    int pass;
    g.schedule = &j->lowered;
    g.start = j->start;
    g.end = j->end;
    g.unit = j->unit;
    g.title = j->title;
    for (pass = 0; pass < 2; pass++) { /* count, then write */
        dpar_status st = DPAR_OK;
        dpar_text_init(&t, text, pass == 0 ? 0 : t.used + 1);
        switch (format[0]) {
        case 'a': st = dpar_show_schedule_text(&t, &g, j->o->width, &why); break;
        case 's': st = dpar_show_schedule_svg(&t, &g, &why); break;
        case 't': st = dpar_show_schedule_trace(&t, &g, &why); break;
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

/* ---- JSON -------------------------------------------------------------------------------------
 */

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
    fprintf(f, "\"%s\": %s%s", name, shown(dpar_ratio_millionths(r), 1000000), end);
}

static int64_t simulated(const job *j, int32_t what, int32_t rank)
{
    switch (what) {
    case DPAR_CLOSED_MAKESPAN: return j->timing.makespan;
    case DPAR_CLOSED_SPAN: return j->timing.span;
    case DPAR_CLOSED_IDLE: return j->timing.bubble_worst;
    default: return j->rank[rank].peak_count;
    }
}

/* A formula beside the simulation; "applies" false, and why, where it does not hold. */
static void json_closed(FILE *f, const job *j, const char *name, int32_t what, int32_t rank)
{
    const char *formula = "";
    dpar_why why;
    int64_t value, unit = what == DPAR_CLOSED_PEAK ? 1 : j->unit;
    dpar_status st;
    if (j->order.rule < 0) {
        st = DPAR_E_NONE;
        snprintf(why.text, sizeof why.text, "no published schedule, no formula");
    } else if (j->o->sends != DPAR_SENDS_BUFFERED) {
        st = DPAR_E_NONE;
        snprintf(why.text, sizeof why.text, "the formulas are for buffered messages");
    } else {
        st = dpar_closed_form(&j->order, &j->times, what, rank, &value, &formula, &why);
    }
    fprintf(f, "    {\"of\": \"%s\", \"rank\": %d, \"simulated\": %s, \"applies\": %s, ", name,
            (int)rank, shown(simulated(j, what, rank), unit), st == DPAR_OK ? "true" : "false");
    if (st == DPAR_OK) {
        fprintf(f, "\"value\": %s, \"formula\": ", shown(value, unit));
        json_text(f, formula);
    } else {
        fprintf(f, "\"why\": ");
        json_text(f, why.text);
    }
    fputc('}', f);
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
    fprintf(f, "\"peak_activations\": %d, \"peak_full_stage\": %s, ", (int)t->peak_count,
            shown(t->peak_count, j->share));
    fprintf(f, "\"slots\": {\"receive\": %d, \"send\": %d, \"activation\": %d, \"weight\": %d}}",
            (int)c->receive, (int)c->send, (int)c->activation, (int)c->weight);
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
            (int)s->ranks, (int)s->stages, (int)s->micros, (int)s->chain, (int)s->slices);
    fprintf(f, "  \"sends\": \"%s\", \"makespan\": %s, \"span\": %s,\n  \"bubble\": {",
            sends[j->o->sends], shown(t->makespan, j->unit), shown(t->span, j->unit));
    json_ratio(f, "of_makespan", t->bubble_of_makespan, ", ");
    json_ratio(f, "of_work", t->bubble_of_work, ", ");
    json_ratio(f, "of_span", t->bubble_of_span, ", ");
    fprintf(f, "\"worst_rank_idle\": %s, \"first_rank_idle\": %s},\n",
            shown(t->bubble_worst, j->unit), shown(t->bubble_first, j->unit));
    fprintf(f,
            "  \"critical_path\": {\"actions\": %lld, \"compute\": %s, \"communication\": %s},\n",
            (long long)t->path_actions, shown(t->path_compute, j->unit),
            shown(t->path_communication, j->unit));
    fprintf(f, "  \"peak_activations\": %d, \"peak_full_stage\": %s,\n", (int)t->peak_count,
            shown(t->peak_count, j->share));
    fprintf(f, "  \"fits\": %s, \"why_not\": ", ok ? "true" : "false");
    json_text(f, sentence);
    fprintf(f, ",\n  \"rank\": [\n");
    for (r = 0; r < s->ranks; r++) {
        json_rank(f, j, r);
        fprintf(f, r + 1 < s->ranks ? ",\n" : "\n  ],\n  \"closed_forms\": [\n");
    }
    json_closed(f, j, "makespan", DPAR_CLOSED_MAKESPAN, 0);
    fprintf(f, ",\n");
    json_closed(f, j, "span", DPAR_CLOSED_SPAN, 0);
    fprintf(f, ",\n");
    json_closed(f, j, "worst_rank_idle", DPAR_CLOSED_IDLE, 0);
    for (r = 0; r < s->ranks; r++) {
        fprintf(f, ",\n");
        json_closed(f, j, "peak_activations", DPAR_CLOSED_PEAK, r);
    }
    fprintf(f, "\n  ]\n}\n");
}

/* The lines below a chart. */
static void print_figures(FILE *f, const job *j)
{
    const dpar_timing *t = &j->timing;
    const char *formula = "";
    dpar_why why;
    int64_t value;
    int32_t r;
    fprintf(f, "makespan %s, span %s; idle %s %% of the makespan,", shown(t->makespan, j->unit),
            shown(t->span, j->unit), percent(t->bubble_of_makespan));
    fprintf(f, " %s %% of the work, %s %% of the span\n", percent(t->bubble_of_work),
            percent(t->bubble_of_span));
    fprintf(f, "activations at most");
    for (r = 0; r < j->lowered.ranks && r < 64; r++) {
        fprintf(f, " %d", (int)j->rank[r].peak_count);
    }
    if (j->order.rule >= 0 && j->o->sends == DPAR_SENDS_BUFFERED) {
        if (dpar_closed_form(&j->order, &j->times, DPAR_CLOSED_MAKESPAN, 0, &value, &formula,
                             &why) == DPAR_OK) {
            fprintf(f, "; closed form: %s = %s", formula, shown(value, j->unit));
        } else {
            fprintf(f, "; no closed form: %s", why.text);
        }
    }
    fprintf(f, "\n");
}

static void print_job(const job *j, int ok, const char *sentence)
{
    const char *format = j->o->format != NULL ? j->o->format : "ascii";
    FILE *f = open_output(j->o->output);
    if (strcmp(format, "json") == 0) {
        print_json(f, j, ok, sentence);
    } else {
        picture(j, format, f);
        if (strcmp(format, "ascii") == 0) {
            print_figures(f, j);
        }
    }
    close_output(f, j->o->output);
    if (j->o->svg != NULL) {
        f = open_output(j->o->svg);
        picture(j, "svg", f);
        close_output(f, j->o->svg);
    }
}

/* ---- the three commands -----------------------------------------------------------------------
 */

static void describe(job *j, const settings *o)
{
    memset(j, 0, sizeof *j);
    j->o = o;
    j->mult = j->share = 1;
    j->order.rule = -1;
    j->order.ranks = o->ranks;
    j->order.micros = o->micros;
    j->order.chunks = o->chunks;
    j->order.group = o->group;
    j->order.slices = o->slices;
    j->order.lifo = o->lifo;
}

/* How many stages share what a rank has of the layers: for the cap. */
static int32_t share_of(const job *j)
{
    int32_t chunks = j->list.stages / j->list.ranks;
    return bidirectional(j->order.rule) ? 1 : (chunks > 1 ? chunks : 1) * j->list.slices;
}

static int one_schedule(const settings *o)
{
    job j;
    dpar_why why;
    dpar_status st;
    int ok;
    describe(&j, o);
    if (strcmp(o->schedule, "auto") != 0) {
        if (dpar_order_find(&j.order, o->schedule, &why) != DPAR_OK) {
            fail(2, "--schedule", why.text);
        }
        j.order.lifo |= o->lifo;
    } else {
        j.order.chunks = o->chunks > 0 ? o->chunks : o->map == 1 ? 2 : 1;
    }
    snprintf(j.title, sizeof j.title, "%s",
             j.order.rule < 0 ? "auto" : dpar_order_name(j.order.rule));
    why.text[0] = 0;
    st = make(&j, &why);
    if (st != DPAR_OK) {
        fail(st == DPAR_E_MEMORY ? 1 : 2, o->schedule, why.text);
    }
    j.share = share_of(&j);
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

static int check_file(settings *o)
{
    job j;
    dpar_why why;
    size_t n;
    char *text = read_file(o->check, &n);
    int64_t bytes = dpar_schedule_read_bytes(text, n, &why);
    int32_t messages;
    int ok;
    describe(&j, o);
    j.order.rule = -2;
    if (bytes < 0 || dpar_schedule_read(&j.list, text, n, o->chain, keep(&j, bytes), bytes, &why)) {
        fail(1, o->check, why.text);
    }
    free(text);
    j.list.slices = o->slices > 0 ? o->slices : 1;
    messages = has_messages(&j.list);
    if (o->transport < 0) {
        o->transport = DPAR_TRANSPORT_PAIR;
    }
    snprintf(j.title, sizeof j.title, "%s", o->check);
    if (set_times(&j, &why) != DPAR_OK) {
        fail(2, o->check, why.text);
    }
    j.share = j.list.chain < j.list.stages ? 1 : share_of(&j);
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
        printf("ok %d ranks, %d stages, %d micro-batches, %s; makespan %s, span %s, ",
               (int)j.list.ranks, (int)j.list.stages, (int)j.list.micros,
               messages ? "messages matched" : "messages as lowered",
               shown(j.timing.makespan, j.unit), shown(j.timing.span, j.unit));
        printf("%s %% idle, at most %d activations; no deadlock over %s\n",
               percent(j.timing.bubble_of_makespan), (int)j.timing.peak_count,
               dpar_transport_name(o->transport));
    }
    drop(&j);
    return ok ? 0 : 1;
}

/* ---- all of them ------------------------------------------------------------------------------
 */

enum { CANDIDATES = 96 };

typedef struct candidate {
    char name[48];
    int32_t rank_count, ok; /* ok 0: does not fit, -1: there is none */
    int64_t makespan, span, unit;
    dpar_ratio bubble;
    int32_t peak, share;
    dpar_why why;
} candidate;

static int better(const void *a, const void *b)
{
    const candidate *x = (const candidate *)a, *y = (const candidate *)b;
    int64_t p = (int64_t)x->peak * y->share, q = (int64_t)y->peak * x->share;
    if (x->ok != y->ok) {
        return x->ok > y->ok ? -1 : 1;
    }
    if (x->ok < 0 || x->makespan != y->makespan) {
        return x->ok < 0 ? strcmp(x->name, y->name) : x->makespan < y->makespan ? -1 : 1;
    }
    return p != q ? (p < q ? -1 : 1) : strcmp(x->name, y->name);
}

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
    j.mult = mult;
    j.share = bidirectional(rule) ? 1 : chunks > 0 ? chunks : 1;
    if (rule == DPAR_ZBV || rule == DPAR_V_HALF || rule == DPAR_V_MIN || rule == DPAR_DUALPIPEV ||
        rule == DPAR_1F1B_V) {
        j.share = 2;
    } else if (rule == DPAR_SEQ1F1B) {
        j.share = o->slices > 0 ? o->slices : 2;
    }
    if (rule < 0) {
        mine.map = chunks == 2 ? 1 : 0;
        snprintf(c->name, sizeof c->name, chunks == 2 ? "auto on a V" : "auto");
    } else {
        size_t n = (size_t)snprintf(c->name, sizeof c->name, "%s", dpar_order_name(rule));
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
                    shown(dpar_ratio_millionths(c[i].bubble), 1000000));
            fprintf(f, ", \"peak_full_stage\": %s", shown(c[i].peak, c[i].share));
        }
        if (c[i].ok <= 0) {
            fprintf(f, ", \"why\": ");
            json_text(f, c[i].why.text);
        }
        fprintf(f, i + 1 < n ? "},\n" : "}\n");
    }
    fprintf(f, "]\n");
}

static void compare_table(FILE *f, const candidate *c, int32_t n)
{
    int32_t i;
    fprintf(f, "  # %-28s %12s %12s %8s %12s\n", "schedule", "makespan", "span", "idle %",
            "activations");
    for (i = 0; i < n; i++) {
        if (c[i].ok > 0) {
            fprintf(f, "%3d %-28s %12s %12s %8s %12s\n", (int)i + 1, c[i].name,
                    shown(c[i].makespan, c[i].unit), shown(c[i].span, c[i].unit),
                    percent(c[i].bubble), shown(c[i].peak, c[i].share));
        } else {
            fprintf(f, "  - %-28s %s: %s\n", c[i].name, c[i].ok == 0 ? "does not fit" : "none",
                    c[i].why.text);
        }
    }
    fprintf(f,
            "activations: most on a rank, in micro-batches of all its layers; dualpipe and chimera "
            "hold parameters twice\n");
}

static int compare(const settings *o)
{
    static candidate list[CANDIDATES];
    int32_t rule, n = 0, k, v = o->chunks > 0 ? o->chunks : 1, chunks[3];
    int32_t slices = o->slices > 0 ? o->slices : 2, mult;
    FILE *f;
    if ((int64_t)v * slices > 65536) {
        fail(2, "--compare", "takes --virtual times --slices up to 65536");
    }
    mult = 4 * v * slices; /* so that every share of a time is whole: 10^13 times that fits */
    chunks[0] = 2;
    chunks[1] = 4;
    chunks[2] = v != 2 && v != 4 ? v : 0;
    for (rule = 0; rule < DPAR_FORWARD_ONLY; rule++) {
        int grouped = rule == DPAR_INTERLEAVED || rule == DPAR_INTERLEAVED_ZB;
        if (!grouped && rule != DPAR_BREADTH_FIRST) {
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
    try_one(&list[n++], o, -1, 1, 0, mult);
    try_one(&list[n++], o, -1, 2, 0, mult);
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

int main(int argc, char **argv)
{
    static settings o;
    int i;
    o.transport = -1;
    o.buffers = 1;
    o.width = 80;
    o.cap = -1;
    for (i = 1; i < argc; i++) {
        if (flag(&o, argv[i])) {
            continue;
        }
        if (i + 1 >= argc) {
            fail(2, argv[i], "no such option, or its value is missing (--help)");
        }
        option(&o, argv[i], argv[i + 1]);
        i++;
    }
    if ((o.schedule != NULL) + (o.check != NULL) + o.compare != 1) {
        fail(2, "one of --schedule NAME, --compare and --check FILE is needed (--help)", "");
    }
    if (o.check == NULL && (o.ranks == 0 || o.micros == 0)) {
        fail(2, "--stages and --micro are needed (--help)", "");
    }
    if (o.compare &&
        ((o.format != NULL && strcmp(o.format, "ascii") != 0 && strcmp(o.format, "json") != 0) ||
         o.svg != NULL)) {
        fail(2, "--compare", "prints ascii or json");
    }
    if (o.stage_times != NULL) {
        read_stage_times(&o);
    }
    complete(&o);
    return o.check != NULL ? check_file(&o) : o.compare ? compare(&o) : one_schedule(&o);
}
