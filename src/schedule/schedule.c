/* SPDX-License-Identifier: MIT-0 */
/* Places a schedule in the caller's memory, and reads and writes it as PyTorch's CSV. Reading takes
 * two passes over the text: the first counts ranks, stages and actions, the second writes the
 * actions. */
#include "schedule.h"

#include "../base/base_private.h"
#include "action.h"
#include "needed_bytes.h"

/* ---- maps and memory ------------------------------------------------------------------------- */

DPARI_INTERNAL int64_t dpari_schedule_bytes(int32_t ranks, int32_t stages, int64_t actions)
{
    if (ranks < 1 || ranks > DPAR_MAX_STAGES || stages < 1 || stages > DPAR_MAX_STAGES ||
        actions < 0 || actions > INT64_MAX / 16) {
        return -1;
    }
    return 8 * ((int64_t)ranks + 1) + 8 * actions + dpari_whole_words(2 * (int64_t)stages);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_schedule_empty(dpar_schedule *schedule, int32_t ranks,
                                                           int32_t stages, int64_t actions,
                                                           void *mem, int64_t bytes, dpar_why *why)
{
    int64_t needed = dpari_schedule_bytes(ranks, stages, actions);
    if (needed < 0) {
        return dpari_wrong(why,
                           "the schedule has %d ranks, %d stages and %ld actions; 1 to 65535 ranks "
                           "and stages and 0 or more actions are allowed",
                           ranks, stages, actions);
    }
    if (bytes < needed) {
        dpari_needs_bytes(why, needed);
        return dpari_say(DPAR_E_ROOM, why,
                         "a schedule of %ld actions on %d ranks needs %ld bytes, got %ld", actions,
                         ranks, needed, bytes);
    }
    schedule->ranks = ranks;
    schedule->stages = stages;
    schedule->micro_batches = 0;
    schedule->chain = stages;
    schedule->slices = 1;
    schedule->begin = (int64_t *)mem;
    schedule->action = (dpar_action *)(void *)(schedule->begin + ranks + 1);
    schedule->rank_of = (uint16_t *)(void *)(schedule->action + actions);
    dpari_zero(schedule->begin, 8 * ((size_t)ranks + 1));
    return DPAR_OK;
}

DPAR_API dpar_status dpar_schedule_init(dpar_schedule *schedule, int64_t actions, void *mem,
                                        int64_t bytes, dpar_why *why)
{
    return dpari_schedule_empty(schedule, schedule->ranks, schedule->stages, actions, mem, bytes,
                                why);
}

DPAR_API int32_t dpar_schedule_partner(const dpar_schedule *schedule, int32_t kind, int32_t stage)
{
    switch (kind) {
    case DPAR_ACTION_FORWARD:
    case DPAR_ACTION_SEND_F:
    case DPAR_ACTION_RECV_B: return dpari_schedule_behind(schedule, stage);
    case DPAR_ACTION_BACKWARD:
    case DPAR_ACTION_INPUT:
    case DPAR_ACTION_SEND_B:
    case DPAR_ACTION_RECV_F: return dpari_schedule_before(schedule, stage);
    default: return -1;
    }
}

DPARI_INTERNAL int64_t dpari_schedule_longest(const dpar_schedule *schedule)
{
    int64_t most = 0;
    int32_t r;
    for (r = 0; r < schedule->ranks; r++) {
        most = dpari_most(most, schedule->begin[r + 1] - schedule->begin[r]);
    }
    return most;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_schedule_check_ranks(const dpar_schedule *schedule,
                                                                 dpar_why *why)
{
    int32_t i;
    for (i = 0; i < schedule->stages; i++) {
        if (schedule->rank_of[i] >= schedule->ranks) {
            return dpari_wrong(why, "rank_of[%d] is %d, but there are only %d ranks", i,
                               (int32_t)schedule->rank_of[i], schedule->ranks);
        }
    }
    return DPAR_OK;
}

/* ---- names ----------------------------------------------------------------------------------- */

DPARI_INTERNAL void dpari_action_put(const dpar_action *action, dpar_text *text)
{
    if (action->kind == DPAR_ACTION_IDLE || action->kind >= DPAR_ACTION_COUNT) {
        return;
    }
    dpari_text_int(text, action->stage); /* not dpari_text_say, which takes more stack */
    dpar_text_put(text, dpari_action_name(action->kind));
    if (dpari_action_has_micro(action->kind)) {
        dpari_text_int(text, action->micro_batch);
    }
}

DPAR_API DPARI_COLD void dpar_action_write(const dpar_action *action, dpar_text *text)
{
    if (action->joined) {
        dpari_text_char(text, '(');
    }
    dpari_action_put(action, text);
    if (action->joined) {
        dpari_text_char(text, ';');
        dpari_action_put(action + 1, text);
        dpar_text_put(text, ")OVERLAP_F_B");
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A position in a text, and what was counted so far. */
typedef struct dpari_csv {
    const char *s; /* the text, of n bytes */
    size_t n, at, line_start;
    int64_t line, actions;
    int32_t rows, stages, micros;
} dpari_csv;

/* Returns the byte at the position, or -1 at the end of the text. */
static int dpari_csv_peek(const dpari_csv *csv)
{
    return csv->at < csv->n ? (unsigned char)csv->s[csv->at] : -1;
}

/* Writes a message like "line 2, column 14: expected a stage's number, not 'F0xyz'". */
static dpar_status dpari_csv_say(const dpari_csv *csv, const char *expected, dpar_why *why)
{
    dpar_text t;
    size_t end = csv->at;
    while (end < csv->n && end < csv->at + 24 && csv->s[end] >= ' ' && csv->s[end] != ',') {
        end++;
    }
    if (why != NULL) {
        dpari_text_why(&t, why);
        dpar_text_put(&t, "line ");
        dpari_text_int(&t, csv->line);
        dpar_text_put(&t, ", column ");
        dpari_text_int(&t, (int64_t)(csv->at - csv->line_start) + 1);
        dpar_text_put(&t, ": expected ");
        dpar_text_put(&t, expected);
        if (end > csv->at) {
            dpar_text_put(&t, ", not '");
            dpari_text_slice(&t, csv->s + csv->at, end - csv->at);
            dpar_text_put(&t, "'");
        }
    }
    return DPAR_E_PARSE;
}

/* Reads a number, 0 to 65534. */
static dpar_status dpari_csv_number(dpari_csv *csv, const char *what, uint16_t *value,
                                    dpar_why *why)
{
    dpari_csv start = *csv;
    int32_t v = 0;
    while (dpari_csv_peek(csv) >= '0' && dpari_csv_peek(csv) <= '9' && v < DPAR_MAX_STAGES) {
        v = 10 * v + (dpari_csv_peek(csv) - '0');
        csv->at++;
    }
    if (csv->at == start.at) {
        return dpari_csv_say(csv, what, why);
    }
    if (v >= DPAR_MAX_STAGES) {
        return dpari_csv_say(&start, "a number of 0 to 65534", why);
    }
    *value = (uint16_t)v;
    return DPAR_OK;
}

/* Reads the name of a kind, the longest one that matches. Returns DPAR_ACTION_IDLE if none does. */
static uint8_t dpari_csv_kind(dpari_csv *csv)
{
    size_t most = 0;
    int kind, best = DPAR_ACTION_IDLE;
    for (kind = DPAR_ACTION_FORWARD; kind < DPAR_ACTION_COUNT; kind++) {
        size_t n = dpari_length(dpari_action_name(kind));
        if (n > most && n <= csv->n - csv->at &&
            dpari_spells(csv->s + csv->at, n, dpari_action_name(kind))) {
            most = n;
            best = kind;
        }
    }
    csv->at += most;
    return (uint8_t)best;
}

static dpar_status dpari_csv_action(dpari_csv *csv, dpar_action *action, dpar_why *why)
{
    dpar_status st;
    dpari_zero(action, sizeof(*action));
    st = dpari_csv_number(csv, "a stage's number", &action->stage, why);
    if (st != DPAR_OK) {
        return st;
    }
    action->kind = dpari_csv_kind(csv);
    if (action->kind == DPAR_ACTION_IDLE) {
        return dpari_csv_say(csv,
                             "F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, "
                             "REDUCE_GRAD, WAIT_REDUCE_GRAD, RECOMPUTE, OFFLOAD or RELOAD",
                             why);
    }
    if (dpari_action_has_micro(action->kind)) {
        st = dpari_csv_number(csv, "a micro-batch's number", &action->micro_batch, why);
        csv->micros = (int32_t)dpari_most(csv->micros, (int32_t)action->micro_batch + 1);
    }
    csv->stages = (int32_t)dpari_most(csv->stages, (int32_t)action->stage + 1);
    return st;
}

/* Reads a fixed text. */
static dpar_status dpari_csv_word(dpari_csv *csv, const char *word, dpar_why *why)
{
    size_t n = dpari_length(word);
    if (n > csv->n - csv->at || !dpari_spells(csv->s + csv->at, n, word)) {
        return dpari_csv_say(csv, word, why);
    }
    csv->at += n;
    return DPAR_OK;
}

static void dpari_csv_blanks(dpari_csv *csv)
{
    while (dpari_csv_peek(csv) == ' ' || dpari_csv_peek(csv) == '\t') {
        csv->at++;
    }
}

/* Reads the rest of (<F>;<B or I>)OVERLAP_F_B after the "(". */
static dpar_status dpari_csv_joined(dpari_csv *csv, dpar_action *action, dpar_why *why)
{
    dpari_csv start = *csv;
    dpar_status st = dpari_csv_action(csv, action, why);
    action->joined = 1;
    if (st == DPAR_OK && action->kind != DPAR_ACTION_FORWARD) {
        return dpari_csv_say(&start, "an F, which a B or I overlaps", why);
    }
    if (st == DPAR_OK) {
        st = dpari_csv_word(csv, ";", why);
    }
    if (st == DPAR_OK) {
        start = *csv;
        st = dpari_csv_action(csv, action + 1, why);
        if (st == DPAR_OK && !dpari_action_is_gradient(action[1].kind)) {
            return dpari_csv_say(&start, "a B or I, which overlaps the F", why);
        }
    }
    return st == DPAR_OK ? dpari_csv_word(csv, ")OVERLAP_F_B", why) : st;
}

/* True at the end of a line. Moves past the CR of a CRLF. */
static int dpari_csv_line_ends(dpari_csv *csv)
{
    if (csv->n - csv->at > 1 && csv->s[csv->at] == '\r' && csv->s[csv->at + 1] == '\n') {
        csv->at++;
    }
    return dpari_csv_peek(csv) == '\n' || dpari_csv_peek(csv) == -1;
}

/* Reads a cell, which has one action or a joined pair. The position is then at the comma, the end
 * of the line or the end of the text. */
static dpar_status dpari_csv_cell(dpari_csv *csv, dpar_action a[2], int *count, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int next;
    *count = 1;
    dpari_csv_blanks(csv);
    next = dpari_csv_peek(csv);
    dpari_zero(a, 2 * sizeof(*a));
    if (next == '(') {
        csv->at++;
        *count = 2;
        st = dpari_csv_joined(csv, a, why);
    } else if (next == '"') {
        st = dpari_csv_word(csv, "\"\"", why);
    } else if (next != ',' && next != '\r' && next != '\n' && next != -1) {
        st = dpari_csv_action(csv, a, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    dpari_csv_blanks(csv);
    if (!dpari_csv_line_ends(csv) && dpari_csv_peek(csv) != ',') {
        return dpari_csv_say(csv, "a comma or the end of the line", why);
    }
    return DPAR_OK;
}

/* Skips a comment up to the end of its line. Returns 1 if there was one. */
static int dpari_csv_comment(dpari_csv *csv)
{
    int comment = dpari_csv_peek(csv) == '#';
    while (comment && csv->at < csv->n && csv->s[csv->at] != '\n') {
        csv->at++;
    }
    return comment;
}

/* Reads a line, which is the list of a rank. If `schedule` is not NULL, the actions are written to
 * it. */
static dpar_status dpari_csv_line(dpari_csv *csv, dpar_schedule *schedule, dpar_why *why)
{
    dpar_action a[2];
    dpari_csv start = *csv;
    int count, k, more = !dpari_csv_line_ends(csv);
    while (more) {
        dpar_status st = dpari_csv_cell(csv, a, &count, why);
        if (st != DPAR_OK) {
            return st;
        }
        for (k = 0; k < count && schedule != NULL; k++) {
            schedule->action[csv->actions + k] = a[k];
        }
        csv->actions += count;
        more = dpari_csv_peek(csv) == ',';
        csv->at += (size_t)more;
    }
    if (++csv->rows > DPAR_MAX_STAGES) {
        return dpari_csv_say(&start, "at most 65535 ranks", why);
    }
    return DPAR_OK;
}

/* Reads the whole text. */
static DPARI_COLD dpar_status dpari_csv_walk(dpari_csv *csv, const char *text, size_t n,
                                             dpar_schedule *schedule, dpar_why *why)
{
    dpari_zero(csv, sizeof(*csv));
    csv->s = text;
    csv->n = n;
    for (csv->line = 1; csv->at < n; csv->line++) {
        csv->line_start = csv->at;
        if (!dpari_csv_comment(csv)) {
            dpar_status st = dpari_csv_line(csv, schedule, why);
            if (st != DPAR_OK) {
                return st;
            }
            if (schedule != NULL) {
                schedule->begin[csv->rows] = csv->actions;
            }
        }
        csv->at += (size_t)(csv->at < n); /* past the line's end */
    }
    return DPAR_OK;
}

/* Sets rank_of: a stage is on the rank whose line names it. Each stage must be on one rank. */
static dpar_status dpari_csv_ranks(dpar_schedule *schedule, dpar_why *why)
{
    const uint16_t nobody = 65535;
    int32_t r, i;
    int64_t k;
    for (i = 0; i < schedule->stages; i++) {
        schedule->rank_of[i] = nobody;
    }
    for (r = 0; r < schedule->ranks; r++) {
        for (k = schedule->begin[r]; k < schedule->begin[r + 1]; k++) {
            const dpar_action *action = &schedule->action[k];
            if (action->kind == DPAR_ACTION_IDLE) {
                continue;
            }
            if (schedule->rank_of[action->stage] != nobody &&
                schedule->rank_of[action->stage] != r) {
                return dpari_wrong(why, "stage %d is on rank %d and on rank %d",
                                   (int32_t)action->stage,
                                   (int32_t)schedule->rank_of[action->stage], r);
            }
            schedule->rank_of[action->stage] = (uint16_t)r;
        }
    }
    for (i = 0; i < schedule->stages; i++) {
        if (schedule->rank_of[i] == nobody) {
            return dpari_wrong(why, "stage %d has no action, but stage %d is on rank %d", i,
                               schedule->stages - 1,
                               (int32_t)schedule->rank_of[schedule->stages - 1]);
        }
    }
    return DPAR_OK;
}

/* Sets the peers of messages. */
static dpar_status dpari_csv_peers(dpar_schedule *schedule, dpar_why *why)
{
    int64_t k;
    for (k = 0; k < schedule->begin[schedule->ranks]; k++) {
        dpar_action *action = &schedule->action[k];
        int32_t other;
        if (!dpari_action_is_message(action->kind)) {
            continue;
        }
        other = dpar_schedule_partner(schedule, action->kind, action->stage);
        if (other < 0) {
            return dpari_wrong(why, "%d%s%d has no partner, because stage %d ends its chain",
                               (int32_t)action->stage, dpari_action_name(action->kind),
                               (int32_t)action->micro_batch, (int32_t)action->stage);
        }
        if (schedule->rank_of[other] == schedule->rank_of[action->stage]) {
            return dpari_wrong(why, "%d%s%d is not needed, because stage %d is on the same rank",
                               (int32_t)action->stage, dpari_action_name(action->kind),
                               (int32_t)action->micro_batch, other);
        }
        action->peer = schedule->rank_of[other];
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_schedule_read(dpar_schedule *schedule,
                                                   const dpar_schedule_read_desc *in, void *mem,
                                                   int64_t bytes, dpar_why *why)
{
    dpari_csv c;
    dpar_schedule got;
    dpar_status st = dpari_csv_walk(&c, in->text, in->bytes, NULL, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (in->chain < 0 || (in->chain > 0 && c.stages % in->chain != 0)) {
        return dpari_wrong(why, "chains of %d stages do not divide %d stages", in->chain, c.stages);
    }
    if (c.rows < 1 || c.stages < 1) {
        return dpari_say(DPAR_E_PARSE, why,
                         "the text has %d ranks and %d stages; a schedule has 1 or more of each",
                         c.rows, c.stages);
    }
    st = dpari_schedule_empty(&got, c.rows, c.stages, c.actions, mem, bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    got.chain = in->chain > 0 ? in->chain : c.stages;
    got.micro_batches = c.micros;
    (void)dpari_csv_walk(&c, in->text, in->bytes, &got, NULL);
    st = dpari_csv_ranks(&got, why);
    if (st == DPAR_OK) {
        st = dpari_csv_peers(&got, why);
    }
    if (st == DPAR_OK) {
        *schedule = got;
    }
    return st;
}

/* ---- writing --------------------------------------------------------------------------------- */

DPAR_API DPARI_COLD void dpar_schedule_write(const dpar_schedule *schedule, const char *end,
                                             dpar_text *text)
{
    int32_t r;
    int64_t k;
    for (r = 0; r < schedule->ranks; r++) {
        if (schedule->begin[r + 1] == schedule->begin[r] + 1 &&
            schedule->action[schedule->begin[r]].kind == DPAR_ACTION_IDLE) {
            dpar_text_put(text, "\"\"");
        }
        for (k = schedule->begin[r]; k < schedule->begin[r + 1];
             k += 1 + schedule->action[k].joined) {
            if (k > schedule->begin[r]) {
                dpari_text_char(text, ',');
            }
            dpar_action_write(&schedule->action[k], text);
        }
        dpar_text_put(text, end);
    }
}
