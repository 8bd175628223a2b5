/* SPDX-License-Identifier: MIT-0 */
/* Draws schedules as text, as SVG and as a Chrome trace. dpari_gantt_x functions serve all three,
 * dpari_chart_x draws text, dpari_figure_x SVG, and dpari_trace_x traces. All positions are
 * computed in integers, so that pictures are the same on every machine. */
#include "schedule_show.h"

#include "../base/base_private.h"
#include "action.h"

/* ---- for all three formats ------------------------------------------------------------------- */

/* True for computations, which are drawn on the rank's main lane. All other actions are messages,
 * collectives and copies. */
static int dpari_gantt_is_work(int32_t kind)
{
    return (kind >= DPAR_ACTION_FORWARD && kind <= DPAR_ACTION_WEIGHT) ||
           kind == DPAR_ACTION_RECOMPUTE;
}

/* True if the action occupies its rank, as computations, collectives and copies do. */
static int dpari_gantt_holds(int32_t kind)
{
    return kind != DPAR_ACTION_IDLE && !dpari_action_is_message(kind);
}

DPARI_STATIC_NOINLINE dpar_status dpari_gantt_check_action(const dpar_schedule_draw_desc *desc,
                                                           int64_t k, int32_t rank, dpar_why *why)
{
    const dpar_schedule *schedule = desc->schedule;
    const dpar_action *action = &schedule->action[k];
    if (action->kind >= DPAR_ACTION_COUNT || action->stage >= schedule->stages ||
        action->peer >= schedule->ranks) {
        return dpari_wrong(
            why,
            "action %ld of rank %d has kind %d and stage %d; kind, stage or peer is out of range",
            k - schedule->begin[rank], rank, (int32_t)action->kind, (int32_t)action->stage);
    }
    if (desc->start[k] < 0 ||
        desc->end[k] < (dpari_action_is_message(action->kind) ? 0 : desc->start[k])) {
        return dpari_wrong(
            why, "action %ld of rank %d runs from %ld to %ld; 0 <= start <= end must hold",
            k - schedule->begin[rank], rank, desc->start[k], desc->end[k]);
    }
    if (action->joined &&
        (k + 1 >= schedule->begin[rank + 1] || action[1].joined ||
         action->kind != DPAR_ACTION_FORWARD || !dpari_action_is_gradient(action[1].kind))) {
        return dpari_wrong(why,
                           "action %ld of rank %d is joined, but it is not an F that a B or I "
                           "follows",
                           k - schedule->begin[rank], rank);
    }
    return DPAR_OK;
}

/* Checks all values that are read. *last receives the end of the last action. */
static dpar_status dpari_gantt_check(const dpar_schedule_draw_desc *desc, int64_t *last,
                                     dpar_why *why)
{
    const dpar_schedule *schedule = desc->schedule;
    dpar_status st = DPAR_OK;
    int32_t r;
    int64_t k;
    if (schedule->ranks < 1 || schedule->ranks > DPAR_MAX_STAGES || desc->unit < 1 ||
        desc->unit > INT64_C(1000000000000)) {
        return dpari_wrong(why, "%d ranks and unit=%ld; 1 to 65535 and 1 to 1e12 are allowed",
                           schedule->ranks, desc->unit);
    }
    *last = 0;
    for (r = 0; r < schedule->ranks; r++) {
        if (schedule->begin[r] < 0 || schedule->begin[r + 1] < schedule->begin[r]) {
            return dpari_wrong(why, "the list of rank %d begins at action %ld and ends at %ld", r,
                               schedule->begin[r], schedule->begin[r + 1]);
        }
        for (k = schedule->begin[r]; k < schedule->begin[r + 1] && st == DPAR_OK; k++) {
            st = dpari_gantt_check_action(desc, k, r, why);
            *last = dpari_most(*last, desc->end[k]);
        }
    }
    return st;
}

/* Returns ticks x width / last, rounded down, for 0 <= ticks <= last. If the product would
 * overflow, ticks and last are halved first, which is less exact. */
DPARI_STATIC_NOINLINE int64_t dpari_gantt_at(int64_t ticks, int64_t last, int64_t width)
{
    while (last > INT64_MAX / width) {
        last /= 2;
        ticks /= 2;
    }
    return last < 1 ? 0 : dpari_least(ticks, last) * width / last;
}

/* Writes ticks / unit with at most `decimals` digits after the point, without trailing zeros. */
static void dpari_gantt_time(dpar_text *text, int64_t ticks, int64_t unit, int32_t decimals)
{
    int64_t rest = ticks % unit;
    dpari_text_int(text, ticks / unit);
    if (rest > 0) {
        char digit[16];
        size_t n = 0, kept = 0;
        for (; rest > 0 && n < (size_t)decimals; n++) {
            rest *= 10;
            digit[n] = (char)('0' + (int)(rest / unit));
            kept = digit[n] != '0' ? n + 1 : kept;
            rest %= unit;
        }
        dpar_text_put(text, kept > 0 ? "." : "");
        dpari_text_slice(text, digit, kept);
    }
}

/* Returns the smallest of 1, 2, 5, 10, 20, ... that is not below `least`. */
static int64_t dpari_gantt_round(int64_t least)
{
    int64_t v = 1;
    while (v < least && v <= INT64_MAX / 10) {
        if (2 * v >= least) {
            return 2 * v;
        }
        if (5 * v >= least) {
            return 5 * v;
        }
        v *= 10;
    }
    return dpari_most(v, least);
}

/* Returns the chunk of a stage: the number of earlier stages on the same rank. */
static int32_t dpari_gantt_chunk(const dpar_schedule *schedule, int32_t stage)
{
    int32_t i, n = 0;
    for (i = 0; i < stage; i++) {
        n += schedule->rank_of[i] == schedule->rank_of[stage];
    }
    return n;
}

DPARI_STATIC_NOINLINE int32_t dpari_gantt_digits(int64_t v)
{
    int32_t n = 1;
    for (; v > 9; v /= 10) {
        n++;
    }
    return n;
}

/* Returns the length of the shortest computation that takes time, or `last` if there is none.
 * *common receives the greatest common divisor of all starts and ends of actions that occupy a
 * rank. *kinds receives a bit for each kind in the schedule, and bit 31 for an overlapped pair. */
static int64_t dpari_gantt_survey(const dpar_schedule_draw_desc *desc, int64_t last,
                                  int64_t *common, uint32_t *kinds)
{
    const dpar_schedule *schedule = desc->schedule;
    int64_t k, shortest = last;
    *common = last;
    *kinds = 0;
    for (k = schedule->begin[0]; k < schedule->begin[schedule->ranks]; k++) {
        int64_t length = desc->end[k] - desc->start[k];
        *kinds |= UINT32_C(1) << schedule->action[k].kind | (uint32_t)schedule->action[k].joined
                                                                << 31;
        if (!dpari_gantt_holds(schedule->action[k].kind) || length < 1) {
            continue;
        }
        if (dpari_gantt_is_work(schedule->action[k].kind)) {
            shortest =
                dpari_least(shortest, schedule->action[k].joined ? (length + 1) / 2 : length);
        }
        *common = dpari_gcd(dpari_gcd(*common, desc->start[k]), desc->end[k]);
    }
    return shortest;
}

/* "4 ranks, 8 stages, 16 micro-batches, makespan 51". */
static void dpari_gantt_numbers(dpar_text *text, const dpar_schedule_draw_desc *desc, int64_t last)
{
    dpari_text_say(text, "%d ranks, %d stages, %d micro-batches, makespan ", desc->schedule->ranks,
                   desc->schedule->stages, desc->schedule->micro_batches);
    dpari_gantt_time(text, last, desc->unit, 6);
}

/* The index at which the other half of the last message was found, for each kind of message and for
 * two peers. The half of the next message is usually close to it, so that the search takes a few
 * steps. Zero it at the start of a list. */
typedef struct dpari_seek {
    int64_t at[4][2];
} dpari_seek;

/* Returns the index of the other half of a message in the peer's list, or -1 if it is missing. */
static int64_t dpari_gantt_partner(const dpar_schedule *schedule, const dpar_action *action,
                                   dpari_seek *seek)
{
    int32_t stage = dpar_schedule_partner(schedule, action->kind, action->stage);
    int32_t kind = dpari_action_is_send(action->kind) ? action->kind + 1 : action->kind - 1;
    int64_t first = schedule->begin[action->peer], n = schedule->begin[action->peer + 1] - first, k;
    /* bit 1 of the peer distinguishes the usual two peers of rank r, r - 1 and r + 1 */
    int64_t *at = &seek->at[action->kind - DPAR_ACTION_SEND_F][action->peer >> 1 & 1];
    int64_t from = *at >= first && *at < first + n ? *at - first : 0;
    for (k = 0; k < n; k++) {
        int64_t there = first + (from + k < n ? from + k : from + k - n);
        const dpar_action *b = &schedule->action[there];
        if (b->kind == kind && b->stage == stage && b->micro_batch == action->micro_batch) {
            *at = there;
            return there;
        }
    }
    return -1;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* The layout of a chart. */
typedef struct dpari_chart {
    int64_t ticks;   /* time of all columns: the makespan, rounded up to whole steps */
    int64_t columns; /* columns between the bars */
    int32_t named;   /* 1 writes names like "B3--", 0 a mark in each column */
    int32_t label;   /* characters before the first column */
    int32_t exact;   /* 1 if every start and end is at a column, 0 if times are rounded */
} dpari_chart;

/* Returns the column whose left edge is nearest to a time. */
static int64_t dpari_chart_column(const dpari_chart *chart, int64_t ticks)
{
    return (dpari_gantt_at(ticks, chart->ticks, 2 * chart->columns) + 1) / 2;
}

/* Chooses the layout. If all steps of `common` ticks fit into the width, each gets the same number
 * of columns, and enough for names if possible. Otherwise times are scaled to the width. */
static void dpari_chart_layout(dpari_chart *chart, const dpar_schedule_draw_desc *desc,
                               int64_t last, int32_t width, uint32_t *kinds)
{
    int64_t common, shortest = dpari_gantt_survey(desc, last, &common, kinds);
    int64_t name = 1 + dpari_gantt_digits(dpari_most(desc->schedule->micro_batches - 1, 0)), room,
            steps;
    chart->label = 7 + dpari_gantt_digits(desc->schedule->ranks - 1);
    room = width - chart->label - 1;
    common = dpari_most(common, 1);
    steps = dpari_most(dpari_ceil_div(last, common), 1);
    chart->exact = steps <= room;
    chart->named = 0;
    chart->columns = chart->exact ? steps : room;
    chart->ticks = chart->exact ? steps * common : last;
    if (chart->exact && shortest > 0) {
        int64_t each = dpari_ceil_div(name, dpari_most(shortest / common, 1));
        chart->named = each <= room / steps;
        chart->columns = chart->named ? steps * each : steps;
    }
}

/* Returns the mark of an action for one column. */
static char dpari_chart_mark(const dpar_action *action)
{
    switch (action->kind) {
    case DPAR_ACTION_FORWARD: return (char)('0' + action->micro_batch % 10);
    case DPAR_ACTION_BACKWARD: return (char)('A' + action->micro_batch % 26);
    case DPAR_ACTION_INPUT: return (char)('a' + action->micro_batch % 26);
    case DPAR_ACTION_WEIGHT: return '+';
    case DPAR_ACTION_RECOMPUTE: return '%';
    default: return '~';
    }
}

/* Returns the letter of a named action, in lower case for odd chunks. */
static char dpari_chart_letter(const dpar_schedule *schedule, const dpar_action *action)
{
    char c = action->kind == DPAR_ACTION_RECOMPUTE ? 'R' : dpari_action_name(action->kind)[0];
    return dpari_gantt_chunk(schedule, action->stage) % 2 == 1 ? (char)(c + ('a' - 'A')) : c;
}

DPARI_STATIC_NOINLINE void dpari_chart_repeat(dpar_text *text, char c, int64_t n)
{
    for (; n > 0; n--) {
        dpari_text_char(text, c);
    }
}

/* Draws an action over `columns` columns. */
static void dpari_chart_slice(dpar_text *text, const dpari_chart *chart,
                              const dpar_schedule *schedule, const dpar_action *action,
                              int64_t columns, char dash)
{
    int64_t name = 1 + dpari_gantt_digits(action->micro_batch);
    if (!chart->named || columns < name || !dpari_gantt_is_work(action->kind)) {
        dpari_chart_repeat(text, dpari_chart_mark(action), columns);
        return;
    }
    dpari_text_char(text, dpari_chart_letter(schedule, action));
    dpari_text_int(text, action->micro_batch);
    dpari_chart_repeat(text, dash, columns - name);
}

/* Draws the line of a rank. A joined pair shares its columns, half for each action. */
static void dpari_chart_rank(dpar_text *text, const dpari_chart *chart,
                             const dpar_schedule_draw_desc *desc, int32_t rank)
{
    const dpar_schedule *schedule = desc->schedule;
    int64_t k, at = 0;
    dpar_text_put(text, "rank ");
    dpari_chart_repeat(text, ' ', chart->label - 7 - dpari_gantt_digits(rank));
    dpari_text_say(text, "%d |", rank);
    for (k = schedule->begin[rank]; k < schedule->begin[rank + 1];
         k += 1 + schedule->action[k].joined) {
        const dpar_action *action = &schedule->action[k];
        int64_t from = dpari_most(dpari_chart_column(chart, desc->start[k]), at), half;
        int64_t to = dpari_most(dpari_chart_column(chart, desc->end[k]), from);
        if (!dpari_gantt_holds(action->kind)) {
            continue;
        }
        dpari_chart_repeat(text, '.', from - at);
        half = action->joined ? from + (to - from + 1) / 2 : to;
        dpari_chart_slice(text, chart, schedule, action, half - from, action->joined ? '*' : '-');
        if (action->joined) {
            dpari_chart_slice(text, chart, schedule, action + 1, to - half, '*');
        }
        at = to;
    }
    dpari_chart_repeat(text, '.', chart->columns - at);
    dpar_text_put(text, "|\n");
}

/* Draws the axis with times at round ticks, at least 10 columns apart. */
static void dpari_chart_axis(dpar_text *text, const dpari_chart *chart,
                             const dpar_schedule_draw_desc *desc)
{
    int64_t every, at, tick;
    every = chart->ticks > INT64_MAX / 10 ? INT64_MAX
                                          : dpari_ceil_div(10 * chart->ticks, chart->columns);
    every = dpari_gantt_round(every);
    dpar_text_put(text, "time");
    dpari_chart_repeat(text, ' ', chart->label - 4);
    at = 0;
    for (tick = 0;; tick += every) {
        size_t before;
        int64_t column = dpari_chart_column(chart, tick);
        dpari_chart_repeat(text, ' ', column - at);
        before = text->used;
        dpari_gantt_time(text, tick, desc->unit, 3);
        at = dpari_most(column, at) + (int64_t)(text->used - before);
        if (tick > chart->ticks - every ||
            dpari_chart_column(chart, tick + every) + 6 > chart->columns) {
            break;
        }
    }
    dpari_text_char(text, '\n');
}

static void dpari_chart_head(dpar_text *text, const dpari_chart *chart,
                             const dpar_schedule_draw_desc *desc, int64_t last)
{
    if (desc->title != NULL) {
        dpari_text_say(text, "%s\n", desc->title);
    }
    dpari_gantt_numbers(text, desc, last);
    dpari_text_say(text, "%s%ld columns = ", chart->exact ? "; " : "; scaled: ", chart->columns);
    dpari_gantt_time(text, chart->ticks, desc->unit, 6);
    dpari_text_char(text, '\n');
}

/* Sets of kinds. KINDS_APART are collectives and copies, which are drawn below the lane. */
#define DPARI_KIND(kind) (UINT32_C(1) << (kind))
#define DPARI_KINDS_APART                                                                          \
    (DPARI_KIND(DPAR_ACTION_UNSHARD) | DPARI_KIND(DPAR_ACTION_RESHARD) |                           \
     DPARI_KIND(DPAR_ACTION_REDUCE_GRAD) | DPARI_KIND(DPAR_ACTION_OFFLOAD) |                       \
     DPARI_KIND(DPAR_ACTION_RELOAD) | DPARI_KIND(DPAR_ACTION_WAIT_REDUCE))

/* Explains the letters and marks that the chart uses. */
static void dpari_chart_legend(dpar_text *text, const dpari_chart *chart, uint32_t kinds,
                               int32_t chunks)
{
    static const struct {
        uint32_t kinds;
        char named[24], marked[24];
    } word[] = {{DPARI_KIND(DPAR_ACTION_FORWARD), "F forward  ", "0-9 forward  "},
                {DPARI_KIND(DPAR_ACTION_BACKWARD), "B backward  ", "A-Z backward  "},
                {DPARI_KIND(DPAR_ACTION_INPUT), "I input gradient  ", "a-z input gradient  "},
                {DPARI_KIND(DPAR_ACTION_WEIGHT), "W weight gradient  ", "+ weight gradient  "},
                {DPARI_KIND(DPAR_ACTION_RECOMPUTE), "R recompute  ", "% recompute  "},
                {DPARI_KINDS_APART, "~ collective  ", "~ collective  "},
                {DPARI_KIND(31), "* overlapped  ", ""}};
    size_t i;
    for (i = 0; i < sizeof(word) / sizeof(word[0]); i++) {
        if (kinds & word[i].kinds) {
            dpar_text_put(text, chart->named ? word[i].named : word[i].marked);
        }
    }
    dpar_text_put(text, ". idle\n");
    if (!chart->named) {
        dpar_text_put(text, "digits and letters: the micro-batch, from 0 and A, round and round\n");
    } else if (chunks > 1) {
        dpar_text_put(text, "lower case: a rank's odd chunks\n");
    }
}

static void dpari_chart_draw(dpar_text *text, const dpar_schedule_draw_desc *desc, int64_t last)
{
    dpari_chart c;
    uint32_t kinds;
    int32_t r;
    dpari_chart_layout(&c, desc, last, desc->width != 0 ? desc->width : 80, &kinds);
    dpari_chart_head(text, &c, desc, last);
    for (r = 0; r < desc->schedule->ranks; r++) {
        dpari_chart_rank(text, &c, desc, r);
    }
    dpari_chart_axis(text, &c, desc);
    dpari_chart_legend(text, &c, kinds, desc->schedule->stages / desc->schedule->ranks);
}

/* ---- SVG ------------------------------------------------------------------------------------- */

/* All lengths are integers in tenths of a pixel. LANE is the height of a lane, the others are
 * margins. */
enum { DPARI_SVG_LEFT = 720, DPARI_SVG_TOP = 840, DPARI_SVG_LANE = 300, DPARI_SVG_RIGHT = 1000 };

typedef struct dpari_figure {
    const dpar_schedule_draw_desc *g;
    int64_t last;   /* the makespan */
    int64_t width;  /* width of the lanes */
    int64_t pitch;  /* distance between lanes */
    uint32_t kinds; /* kinds in the schedule, as dpari_gantt_survey sets them */
} dpari_figure;

static void dpari_figure_number(dpar_text *text, const char *name, int64_t tenths)
{
    dpari_text_say(text, " %s=\"", name);
    dpari_gantt_time(text, tenths, 10, 1);
    dpari_text_char(text, '"');
}

static void dpari_figure_rect(dpar_text *text, const char *style, int32_t level, int64_t x,
                              int64_t y, int64_t w, int64_t h)
{
    dpari_text_say(text, "<rect class=\"%s", style);
    if (level >= 0) {
        dpari_text_int(text, level);
    }
    dpari_text_char(text, '"');
    dpari_figure_number(text, "x", x);
    dpari_figure_number(text, "y", y);
    dpari_figure_number(text, "width", w);
    dpari_figure_number(text, "height", h);
    dpar_text_put(text, "/>");
}

static void dpari_figure_open(dpar_text *text, const char *style, int64_t x, int64_t y)
{
    dpari_text_say(text, "<text class=\"%s\"", style);
    dpari_figure_number(text, "x", x);
    dpari_figure_number(text, "y", y);
    dpari_text_char(text, '>');
}

static void dpari_figure_text(dpar_text *text, const char *style, int64_t x, int64_t y,
                              const char *s)
{
    dpari_figure_open(text, style, x, y);
    dpari_text_say(text, "%s</text>\n", s);
}

/* Writes the title so that both XML and JSON can contain it: their special characters become
 * apostrophes, and characters other than printable ASCII become question marks. */
static void dpari_gantt_title(dpar_text *text, const char *s)
{
    for (; *s != 0; s++) {
        char c = *s >= ' ' && *s < 127 ? *s : '?';
        dpari_text_char(text, c == '&' || c == '<' || c == '>' || c == '"' || c == '\\' ? '\'' : c);
    }
}

static int64_t dpari_figure_x(const dpari_figure *figure, int64_t ticks)
{
    return DPARI_SVG_LEFT + dpari_gantt_at(ticks, figure->last, figure->width);
}

static int64_t dpari_figure_y(const dpari_figure *figure, int32_t rank)
{
    return DPARI_SVG_TOP + rank * figure->pitch;
}

static void dpari_figure_head(dpar_text *text, const dpari_figure *figure)
{
    int64_t wide = DPARI_SVG_LEFT + figure->width + DPARI_SVG_RIGHT;
    int64_t high = dpari_figure_y(figure, figure->g->schedule->ranks) + 300;
    dpari_text_say(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %ld %ld\">\n<style>text{font:12px "
        "sans-serif;fill:#222}.h{font-size:18px;font-weight:600}"
        ".s,.a,.p{fill:#555}.e{text-anchor:end}.a,.n,.q{text-anchor:middle}.n{font-size:11px}"
        ".q{font-size:8px}.p{font-size:11px}"
        ".F0{fill:#6ea6d8}.F1{fill:#b3d1ec}.F2{fill:#dbe9f6}"
        ".B0{fill:#f09a4a}.B1{fill:#f8c595}.B2{fill:#fce3cb}"
        ".I0{fill:#f4c542}.I1{fill:#f9df93}.I2{fill:#fdf1cd}"
        ".W0{fill:#76b97a}.W1{fill:#b2d9b5}.W2{fill:#dcefdd}"
        ".R0{fill:#b49ad2}.R1{fill:#d3c5e5}.R2{fill:#e9e1f2}"
        ".U{fill:#8c6bb1}.X{fill:#bbb}.G{fill:#3a8f86}.O{fill:#a0522d}"
        ".F0,.F1,.F2,.B0,.B1,.B2,.I0,.I1,.I2,.W0,.W1,.W2,.R0,.R1,.R2"
        "{stroke:#555;stroke-width:.4}.g{stroke:#ddd}.z{fill:url(#dpar-idle)}"
        ".f,.b{stroke-width:.9;opacity:.75}.f{stroke:#1f5f99}.b{stroke:#b3560b}"
        ".y{stroke-dasharray:3 2;opacity:.45}</style>\n"
        "<defs><pattern id=\"dpar-idle\" width=\"6\" height=\"6\" "
        "patternUnits=\"userSpaceOnUse\"><rect width=\"6\" height=\"6\" fill=\"#f6f6f6\"/>"
        "<path d=\"M0 6L6 0\" stroke=\"#ccc\" stroke-width=\".8\"/></pattern>"
        "<marker id=\"dpar-f\" viewBox=\"0 0 6 6\" refX=\"6\" refY=\"3\" markerWidth=\"5\" "
        "markerHeight=\"5\" orient=\"auto\"><path d=\"M0 0L6 3L0 6z\" fill=\"#1f5f99\"/></marker>"
        "<marker id=\"dpar-b\" viewBox=\"0 0 6 6\" refX=\"6\" refY=\"3\" markerWidth=\"5\" "
        "markerHeight=\"5\" orient=\"auto\"><path d=\"M0 0L6 3L0 6z\" fill=\"#b3560b\"/></marker>"
        "</defs>\n<title>",
        wide / 10, high / 10);
    dpari_gantt_title(text, figure->g->title != NULL ? figure->g->title : "pipeline schedule");
    dpar_text_put(text, "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    dpari_figure_open(text, "h", 200, 300);
    dpari_gantt_title(text, figure->g->title != NULL ? figure->g->title : "pipeline schedule");
    dpar_text_put(text, "</text>\n");
    dpari_figure_open(text, "s", 200, 500);
    dpari_gantt_numbers(text, figure->g, figure->last);
    dpari_text_say(text, "; numbers: micro-batches%s",
                   figure->g->schedule->stages > figure->g->schedule->ranks
                       ? "; paler: later chunks of the rank</text>\n"
                       : "</text>\n");
}

/* Returns the style of a kind that is drawn on the strip below the lane, or NULL for the others. */
static const char *dpari_figure_strip(int32_t kind)
{
    switch (kind) {
    case DPAR_ACTION_UNSHARD: return "U";
    case DPAR_ACTION_RESHARD: return "X";
    case DPAR_ACTION_REDUCE_GRAD:
    case DPAR_ACTION_WAIT_REDUCE: return "G";
    case DPAR_ACTION_OFFLOAD:
    case DPAR_ACTION_RELOAD: return "O";
    default: return NULL;
    }
}

/* Draws the legend: the meaning of each colour that the picture uses. */
static void dpari_figure_legend(dpar_text *text, const dpari_figure *figure)
{
    static const struct {
        uint32_t kinds;
        char style[3], word[18];
    } entry[] = {
        {DPARI_KIND(DPAR_ACTION_FORWARD), "F0", "F forward"},
        {DPARI_KIND(DPAR_ACTION_BACKWARD), "B0", "B backward"},
        {DPARI_KIND(DPAR_ACTION_INPUT), "I0", "I input gradient"},
        {DPARI_KIND(DPAR_ACTION_WEIGHT), "W0", "W weight gradient"},
        {DPARI_KIND(DPAR_ACTION_RECOMPUTE), "R0", "R recompute"},
        {DPARI_KIND(DPAR_ACTION_IDLE) | DPARI_KIND(DPAR_ACTION_FORWARD), "z", "idle"},
        {DPARI_KIND(DPAR_ACTION_UNSHARD), "U", "unshard"},
        {DPARI_KIND(DPAR_ACTION_RESHARD), "X", "reshard"},
        {DPARI_KIND(DPAR_ACTION_REDUCE_GRAD), "G", "reduce gradients"},
        {DPARI_KIND(DPAR_ACTION_OFFLOAD) | DPARI_KIND(DPAR_ACTION_RELOAD), "O", "offload, reload"}};
    int64_t x = 200;
    size_t i;
    for (i = 0; i < sizeof(entry) / sizeof(entry[0]); i++) {
        if (figure->kinds & entry[i].kinds) {
            dpari_figure_rect(text, entry[i].style, -1, x, 600, 120, 120);
            dpari_figure_text(text, "s", x + 170, 705, entry[i].word);
            x += 400 + 66 * (int64_t)dpari_length(entry[i].word);
        }
    }
}

/* Draws vertical lines at round times, at least about 70 pixels apart. */
static void dpari_figure_axis(dpar_text *text, const dpari_figure *figure)
{
    int64_t bottom = dpari_figure_y(figure, figure->g->schedule->ranks), tick, every;
    every = figure->last > INT64_MAX / 700 ? figure->last / figure->width * 700
                                           : dpari_ceil_div(figure->last * 700, figure->width);
    every = dpari_gantt_round(dpari_most(every, 1));
    for (tick = 0; tick <= figure->last; tick += every) {
        int64_t x = dpari_figure_x(figure, tick);
        dpar_text_put(text, "<path class=\"g\" d=\"M");
        dpari_gantt_time(text, x, 10, 1);
        dpar_text_put(text, " 78V");
        dpari_gantt_time(text, bottom, 10, 1);
        dpar_text_put(text, "\"/>");
        dpari_figure_open(text, "a", x, bottom + 150);
        dpari_gantt_time(text, tick, figure->g->unit, 6);
        dpar_text_put(text, "</text>\n");
        if (tick > INT64_MAX - every) {
            break;
        }
    }
    dpari_figure_text(text, "s", 200, bottom + 150, "time");
}

/* Opens a group with a tooltip like "3F12 on rank 3, 10 to 11". */
static void dpari_figure_tip(dpar_text *text, const dpari_figure *figure, int64_t k, int32_t rank)
{
    dpar_text_put(text, "<g><title>");
    dpar_action_write(&figure->g->schedule->action[k], text);
    dpari_text_say(text, " on rank %d, ", rank);
    dpari_gantt_time(text, figure->g->start[k], figure->g->unit, 6);
    dpar_text_put(text, " to ");
    dpari_gantt_time(text, figure->g->end[k], figure->g->unit, 6);
    dpar_text_put(text, "</title>");
}

/* Draws a computation, or one half of a joined pair, with its micro-batch if the number fits. */
static void dpari_figure_slice(dpar_text *text, const dpar_schedule *schedule,
                               const dpar_action *action, int64_t x, int64_t y, int64_t w,
                               int64_t h)
{
    int32_t digits = dpari_gantt_digits(action->micro_batch);
    int64_t big = h >= 200 && w >= 64 * digits + 30;
    const char *name =
        action->kind == DPAR_ACTION_RECOMPUTE ? "R" : dpari_action_name(action->kind);
    dpari_figure_rect(text, name,
                      (int32_t)dpari_least(dpari_gantt_chunk(schedule, action->stage), 2), x, y, w,
                      h);
    if (big || w >= 46 * digits + 8) {
        const int64_t below = big ? 40 : 29; /* from the middle to the base line */
        dpari_figure_open(text, big ? "n" : "q", x + w / 2, y + h / 2 + below);
        dpari_text_say(text, "%d</text>", (int32_t)action->micro_batch);
    }
}

static void dpari_figure_action(dpar_text *text, const dpari_figure *figure, int64_t k,
                                int32_t rank)
{
    const dpar_schedule *schedule = figure->g->schedule;
    const dpar_action *action = &schedule->action[k];
    const char *strip = dpari_figure_strip(action->kind);
    int64_t x = dpari_figure_x(figure, figure->g->start[k]), y = dpari_figure_y(figure, rank);
    int64_t w = dpari_figure_x(figure, figure->g->end[k]) - x;
    if (strip == NULL && (!dpari_gantt_is_work(action->kind) || w < 1)) {
        return;
    }
    dpari_figure_tip(text, figure, k, rank);
    if (strip != NULL) {
        dpari_figure_rect(text, strip, -1, x, y + DPARI_SVG_LANE + 10, dpari_most(w, 15), 60);
    } else if (action->joined) {
        dpari_figure_slice(text, schedule, action, x, y, w, DPARI_SVG_LANE / 2);
        dpari_figure_slice(text, schedule, action + 1, x, y + DPARI_SVG_LANE / 2, w,
                           DPARI_SVG_LANE / 2);
    } else {
        dpari_figure_slice(text, schedule, action, x, y, w, DPARI_SVG_LANE);
    }
    dpar_text_put(text, "</g>\n");
}

static void dpari_figure_rank(dpar_text *text, const dpari_figure *figure, int32_t rank)
{
    const dpar_schedule *schedule = figure->g->schedule;
    int64_t y = dpari_figure_y(figure, rank), k, busy = 0;
    dpari_figure_open(text, "e", DPARI_SVG_LEFT - 90, y + 195);
    dpari_text_say(text, "rank %d</text>\n", rank);
    dpari_figure_rect(text, "z", -1, DPARI_SVG_LEFT, y, figure->width, DPARI_SVG_LANE);
    for (k = schedule->begin[rank]; k < schedule->begin[rank + 1];
         k += 1 + schedule->action[k].joined) {
        dpari_figure_action(text, figure, k, rank);
        if (dpari_gantt_holds(schedule->action[k].kind)) {
            busy += dpari_least(figure->g->end[k] - figure->g->start[k], figure->last - busy);
        }
    }
    dpari_figure_open(text, "p", DPARI_SVG_LEFT + figure->width + 80, y + 190);
    dpari_gantt_time(text, (dpari_gantt_at(figure->last - busy, figure->last, 2000) + 1) / 2, 10,
                     1);
    dpar_text_put(text, " % idle</text>\n");
}

/* Draws an arrow from the lane of the sender, at the time of the SEND, to the lane of the receiver,
 * at the time of arrival. */
static void dpari_figure_arrow(dpar_text *text, const dpari_figure *figure, int64_t k, int32_t rank,
                               dpari_seek *seek)
{
    const dpar_action *action = &figure->g->schedule->action[k];
    int64_t to = dpari_gantt_partner(figure->g->schedule, action, seek);
    int32_t down = action->peer > rank;
    const char *style = action->kind == DPAR_ACTION_SEND_F ? "f" : "b";
    if (to < 0) {
        return;
    }
    dpari_text_say(text, "<line class=\"%s%s", style,
                   action->peer - rank > 1 || rank - action->peer > 1 ? " y\"" : "\"");
    dpari_figure_number(text, "x1", dpari_figure_x(figure, figure->g->start[k]));
    dpari_figure_number(text, "y1", dpari_figure_y(figure, rank) + (down ? DPARI_SVG_LANE : 0));
    dpari_figure_number(text, "x2", dpari_figure_x(figure, figure->g->end[to]));
    dpari_figure_number(text, "y2",
                        dpari_figure_y(figure, action->peer) + (down ? 0 : DPARI_SVG_LANE));
    dpari_text_say(text, " marker-end=\"url(#dpar-%s)\"/>\n", style);
}

static void dpari_figure_draw(dpar_text *text, const dpar_schedule_draw_desc *desc, int64_t last)
{
    const dpar_schedule *schedule = desc->schedule;
    dpari_figure f;
    dpari_seek seek;
    int64_t common, shortest, k;
    int32_t r;
    f.g = desc;
    f.last = last;
    shortest = dpari_most(dpari_gantt_survey(desc, f.last, &common, &f.kinds), 1);
    f.width = dpari_least(dpari_most(f.last / shortest, 44) * 180,
                          28000); /* 18 pixels for the shortest action, 2800 in all at most */
    f.pitch = DPARI_SVG_LANE + (f.kinds & DPARI_KINDS_APART ? 220 : 140);
    dpari_figure_head(text, &f);
    dpari_figure_legend(text, &f);
    dpari_figure_axis(text, &f);
    for (r = 0; r < schedule->ranks; r++) {
        dpari_figure_rank(text, &f, r);
    }
    for (r = 0; r < schedule->ranks; r++) {
        dpari_zero(&seek, sizeof(seek));
        for (k = schedule->begin[r]; k < schedule->begin[r + 1]; k++) {
            if (dpari_action_is_send(schedule->action[k].kind)) {
                dpari_figure_arrow(text, &f, k, r, &seek);
            }
        }
    }
    dpar_text_put(text, "</svg>\n");
}

/* ---- Chrome trace ---------------------------------------------------------------------------- */

/* The threads of a process, which is a rank. Slices of one thread must not overlap partially. Each
 * kind of message therefore has its own threads (lanes), one for each of up to 8 messages that are
 * in flight at once. */
enum {
    DPARI_TRACE_WORK,
    DPARI_TRACE_SEND_F,
    DPARI_TRACE_RECV_F,
    DPARI_TRACE_SEND_B,
    DPARI_TRACE_RECV_B,
    DPARI_TRACE_REST,
    DPARI_TRACES,
    DPARI_TRACE_LANES = 8
};

static int32_t dpari_trace_thread(int32_t kind)
{
    if (dpari_action_is_message(kind)) {
        return kind - DPAR_ACTION_SEND_F + DPARI_TRACE_SEND_F;
    }
    return dpari_gantt_is_work(kind) ? DPARI_TRACE_WORK : DPARI_TRACE_REST;
}

static void dpari_trace_open(dpar_text *text, const char *phase, int32_t rank, int32_t thread)
{
    dpari_text_say(text, ",\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d", phase, rank, thread);
}

static void dpari_trace_name(dpar_text *text, const char *what, int32_t rank, int32_t thread,
                             const char *name, int64_t number)
{
    dpari_trace_open(text, "M", rank, thread);
    dpari_text_say(text, ",\"name\":\"%s\",\"args\":{\"name\":\"%s", what, name);
    if (number >= 0) {
        dpari_text_int(text, number);
    }
    dpar_text_put(text, "\"}}");
}

static void dpari_trace_time(dpar_text *text, const char *name, int64_t ticks, int64_t unit)
{
    dpari_text_say(text, ",\"%s\":", name);
    dpari_gantt_time(text, ticks, unit, 6);
}

/* Writes a complete event for an action. For a joined pair this is a slice that contains those of
 * both halves. */
static void dpari_trace_slice(dpar_text *text, const dpar_schedule_draw_desc *desc,
                              const dpar_action *action, int32_t rank, int32_t lane, int64_t start,
                              int64_t end)
{
    int32_t thread = dpari_trace_thread(action->kind);
    dpari_trace_open(text, "X", rank, thread + lane * DPARI_TRACES);
    dpari_trace_time(text, "ts", start, desc->unit);
    dpari_trace_time(text, "dur", end - start, desc->unit);
    dpar_text_put(text, ",\"name\":\"");
    dpar_action_write(action, text);
    dpari_text_say(text, "\",\"cat\":\"%s\",\"args\":{\"stage\":%d",
                   thread == DPARI_TRACE_WORK ? "compute" : "communication",
                   (int32_t)action->stage);
    if (dpari_action_has_micro(action->kind)) {
        dpari_text_say(text, ",\"micro\":%d", (int32_t)action->micro_batch);
    }
    if (dpari_action_is_message(action->kind)) {
        dpari_text_say(text, ",\"peer\":%d", (int32_t)action->peer);
    }
    dpar_text_put(text, "}}");
}

static void dpari_trace_work(dpar_text *text, const dpar_schedule_draw_desc *desc, int64_t k,
                             int32_t rank)
{
    const dpar_action *action = &desc->schedule->action[k];
    dpar_action forward = *action;
    dpari_trace_slice(text, desc, action, rank, 0, desc->start[k], desc->end[k]);
    if (action->joined) {
        forward.joined = 0;
        dpari_trace_slice(text, desc, &forward, rank, 0, desc->start[k], desc->end[k]);
        dpari_trace_slice(text, desc, action + 1, rank, 0, desc->start[k], desc->end[k]);
    }
}

/* Writes one end of an arrow. Both ends have the same id, made of the edge between the stages, the
 * micro-batch and the direction. */
static void dpari_trace_flow(dpar_text *text, const dpar_schedule_draw_desc *desc,
                             const dpar_action *action, int32_t rank, int32_t lane, int64_t at)
{
    int32_t sent = dpari_action_is_send(action->kind);
    int64_t edge = (int64_t)action->stage +
                   (action->kind == DPAR_ACTION_SEND_F || action->kind == DPAR_ACTION_RECV_B);
    dpari_trace_open(text, sent ? "s" : "f", rank,
                     dpari_trace_thread(action->kind) + lane * DPARI_TRACES);
    dpari_trace_time(text, "ts", at, desc->unit);
    dpari_text_say(text, "%s,\"name\":\"message\",\"cat\":\"communication\",\"id\":%ld}",
                   sent ? "" : ",\"bp\":\"e\"",
                   (edge * 65536 + action->micro_batch) * 2 + dpari_message_way(action->kind));
}

static void dpari_trace_thread_name(dpar_text *text, int32_t rank, int32_t thread, int32_t lane)
{
    static const char name[DPARI_TRACES][18] = {
        "compute", "send forward", "receive forward", "send backward", "receive backward", "other"};
    dpari_trace_name(text, "thread_name", rank, thread + lane * DPARI_TRACES, name[thread],
                     lane > 0 ? lane + 1 : -1); /* "send forward2" */
}

/* Writes a message, a collective or a copy in the first free lane. until[lane] is the time up to
 * which a lane is in use, or -1 if it has no name yet. If all lanes are in use, the slice starts
 * when the first one becomes free. */
static void dpari_trace_rest(dpar_text *text, const dpar_schedule_draw_desc *desc, int64_t k,
                             int32_t rank, int64_t *until, dpari_seek *seek)
{
    const dpar_action *action = &desc->schedule->action[k];
    int64_t start = desc->start[k], other = -1;
    int32_t lane = 0, i;
    if (dpari_action_is_message(action->kind)) {
        other = dpari_gantt_partner(desc->schedule, action, seek);
        if (other >= 0 && dpari_action_is_receive(action->kind)) {
            start = dpari_most(start, desc->start[other]); /* before that the receive only waits */
        }
    }
    start = dpari_least(start, desc->end[k]);
    for (i = DPARI_TRACE_LANES - 1; i >= 0; i--) {
        lane = until[i] <= start || until[i] < until[lane] ? i : lane;
    }
    if (until[lane] < 0) {
        dpari_trace_thread_name(text, rank, dpari_trace_thread(action->kind), lane);
    }
    start = dpari_least(dpari_most(start, until[lane]), desc->end[k]);
    until[lane] = dpari_most(until[lane], desc->end[k]);
    dpari_trace_slice(text, desc, action, rank, lane, start, desc->end[k]);
    if (other >= 0) {
        dpari_trace_flow(text, desc, action, rank, lane, start);
    }
}

static DPARI_COLD void dpari_trace_rank(dpar_text *text, const dpar_schedule_draw_desc *desc,
                                        int32_t rank)
{
    const dpar_schedule *schedule = desc->schedule;
    int64_t k, until[DPARI_TRACES * DPARI_TRACE_LANES];
    dpari_seek seek;
    int32_t i;
    dpari_zero(&seek, sizeof(seek));
    dpari_trace_name(text, "process_name", rank, 0, "rank ", rank);
    for (i = 0; i < DPARI_TRACES; i++) {
        dpari_trace_thread_name(text, rank, i, 0);
    }
    for (i = 0; i < DPARI_TRACES * DPARI_TRACE_LANES; i++) {
        until[i] = i % DPARI_TRACE_LANES == 0 ? 0 : -1;
    }
    for (k = schedule->begin[rank]; k < schedule->begin[rank + 1];
         k += 1 + schedule->action[k].joined) {
        int32_t kind = schedule->action[k].kind;
        if (dpari_gantt_is_work(kind)) {
            dpari_trace_work(text, desc, k, rank);
        } else if (kind != DPAR_ACTION_IDLE) {
            dpari_trace_rest(text, desc, k, rank,
                             &until[dpari_trace_thread(kind) * DPARI_TRACE_LANES], &seek);
        }
    }
}

static void dpari_trace_draw(dpar_text *text, const dpar_schedule_draw_desc *desc)
{
    int32_t r;
    dpar_text_put(text, "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"title\":\"");
    dpari_gantt_title(text, desc->title != NULL ? desc->title : "pipeline schedule");
    dpar_text_put(text, "\"},\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":0,\"tid\":0,"
                        "\"name\":\"process_labels\",\"args\":{\"labels\":\"dpar\"}}");
    for (r = 0; r < desc->schedule->ranks; r++) {
        dpari_trace_rank(text, desc, r);
    }
    dpar_text_put(text, "\n]}\n");
}

/* ---- the call -------------------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_schedule_draw(dpar_text *text,
                                                   const dpar_schedule_draw_desc *desc,
                                                   int32_t format, dpar_why *why)
{
    int64_t last = 0;
    dpar_status st = dpari_gantt_check(desc, &last, why);
    if (st != DPAR_OK) {
        return st;
    }
    switch (format) {
    case DPAR_SCHEDULE_DRAW_TEXT:
        if (desc->width != 0 && (desc->width < 32 || desc->width > 4096)) {
            return dpari_wrong(why, "width=%d; 32 to 4096 characters are allowed", desc->width);
        }
        dpari_chart_draw(text, desc, last);
        return DPAR_OK;
    case DPAR_SCHEDULE_DRAW_SVG: dpari_figure_draw(text, desc, last); return DPAR_OK;
    case DPAR_SCHEDULE_DRAW_TRACE: dpari_trace_draw(text, desc); return DPAR_OK;
    default: return dpari_wrong(why, "format=%d; 0 to 2 are allowed", format);
    }
}
