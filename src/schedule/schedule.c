/* SPDX-License-Identifier: MIT-0 */
/* Places a schedule in the caller's memory, and reads and writes it as PyTorch's CSV. Reading takes
 * two passes over the text: the first one counts, the second one writes. */
#include "schedule.h"

#include "../base/inner.h"
#include "action.h"
#include "inner.h"

/* ---- maps and memory ------------------------------------------------------------------------ */

static int dpari_schedule_fits(int32_t ranks, int32_t stages, int64_t actions)
{
    return ranks >= 1 && ranks <= DPAR_MAX_STAGES && stages >= 1 && stages <= DPAR_MAX_STAGES &&
           actions >= 0 && actions <= INT64_MAX / 16;
}

DPARI_INTERNAL int64_t dpari_schedule_bytes(int32_t ranks, int32_t stages, int64_t actions)
{
    if (!dpari_schedule_fits(ranks, stages, actions)) {
        return -1;
    }
    return 8 * ((int64_t)ranks + 1) + 8 * actions + dpari_whole_words(2 * (int64_t)stages);
}

DPARI_INTERNAL dpar_status dpari_schedule_empty(dpar_schedule *s, int32_t ranks, int32_t stages,
                                                int64_t actions, void *mem, int64_t bytes,
                                                dpar_why *why)
{
    int64_t needed = dpari_schedule_bytes(ranks, stages, actions);
    int32_t r;
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
    s->ranks = ranks;
    s->stages = stages;
    s->micro_batches = 0;
    s->chain = stages;
    s->slices = 1;
    s->begin = (int64_t *)mem;
    s->action = (dpar_action *)(void *)(s->begin + ranks + 1);
    s->rank_of = (uint16_t *)(void *)(s->action + actions);
    for (r = 0; r <= ranks; r++) {
        s->begin[r] = 0;
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_schedule_init(dpar_schedule *s, int64_t actions, void *mem, int64_t bytes,
                                        dpar_why *why)
{
    return dpari_schedule_empty(s, s->ranks, s->stages, actions, mem, bytes, why);
}

DPAR_API int32_t dpar_schedule_partner(const dpar_schedule *s, int32_t kind, int32_t stage)
{
    switch (kind) {
    case DPAR_ACTION_FORWARD:
    case DPAR_ACTION_SEND_F:
    case DPAR_ACTION_RECV_B: return dpari_schedule_behind(s, stage);
    case DPAR_ACTION_BACKWARD:
    case DPAR_ACTION_INPUT:
    case DPAR_ACTION_SEND_B:
    case DPAR_ACTION_RECV_F: return dpari_schedule_before(s, stage);
    default: return -1;
    }
}

/* ---- names ---------------------------------------------------------------------------------- */

/* Writes an action, but not the other half of a joined pair. */
static void dpari_action_put(const dpar_action *a, dpar_text *t)
{
    if (a->kind == DPAR_ACTION_IDLE || a->kind >= DPAR_ACTION_COUNT) {
        return;
    }
    dpari_text_int(t, a->stage); /* not dpari_text_say, which takes more stack */
    dpar_text_put(t, dpari_action_name(a->kind));
    if (dpari_action_has_micro(a->kind)) {
        dpari_text_int(t, a->micro_batch);
    }
}

DPAR_API DPARI_COLD void dpar_action_write(const dpar_action *a, dpar_text *t)
{
    if (a->joined) {
        dpari_text_char(t, '(');
    }
    dpari_action_put(a, t);
    if (a->joined) {
        dpari_text_char(t, ';');
        dpari_action_put(a + 1, t);
        dpar_text_put(t, ")OVERLAP_F_B");
    }
}

/* ---- reading -------------------------------------------------------------------------------- */

/* A position in a text, and what was counted so far. */
typedef struct dpari_csv {
    const char *s; /* the text, of n bytes */
    size_t n, at, line_start;
    int64_t line, actions;
    int32_t rows, stages, micros;
} dpari_csv;

/* Returns the byte at the position, or -1 at the end of the text. */
static int dpari_csv_peek(const dpari_csv *c)
{
    return c->at < c->n ? (unsigned char)c->s[c->at] : -1;
}

/* "line 2, column 14: expected a stage's number, not 'F0xyz'". */
static dpar_status dpari_csv_say(const dpari_csv *c, const char *expected, dpar_why *why)
{
    dpar_text t;
    size_t end = c->at;
    while (end < c->n && end < c->at + 24 && c->s[end] >= ' ' && c->s[end] != ',') {
        end++;
    }
    if (why != NULL) {
        dpar_text_init(&t, why->text, sizeof(why->text));
        dpar_text_put(&t, "line ");
        dpari_text_int(&t, c->line);
        dpar_text_put(&t, ", column ");
        dpari_text_int(&t, (int64_t)(c->at - c->line_start) + 1);
        dpar_text_put(&t, ": expected ");
        dpar_text_put(&t, expected);
        if (end > c->at) {
            dpar_text_put(&t, ", not '");
            dpari_text_slice(&t, c->s + c->at, end - c->at);
            dpar_text_put(&t, "'");
        }
    }
    return DPAR_E_PARSE;
}

/* Reads a number, 0 to 65534. */
static dpar_status dpari_csv_number(dpari_csv *c, const char *what, uint16_t *value, dpar_why *why)
{
    dpari_csv start = *c;
    int32_t v = 0;
    while (dpari_csv_peek(c) >= '0' && dpari_csv_peek(c) <= '9' && v < DPAR_MAX_STAGES) {
        v = 10 * v + (dpari_csv_peek(c) - '0');
        c->at++;
    }
    if (c->at == start.at) {
        return dpari_csv_say(c, what, why);
    }
    if (v >= DPAR_MAX_STAGES) {
        return dpari_csv_say(&start, "a number of 0 to 65534", why);
    }
    *value = (uint16_t)v;
    return DPAR_OK;
}

/* Reads the name of a kind, the longest one that matches. Returns DPAR_ACTION_IDLE if none does. */
static uint8_t dpari_csv_kind(dpari_csv *c)
{
    size_t most = 0;
    int kind, best = DPAR_ACTION_IDLE;
    for (kind = DPAR_ACTION_FORWARD; kind < DPAR_ACTION_COUNT; kind++) {
        size_t n = dpari_length(dpari_action_name(kind));
        if (n > most && n <= c->n - c->at &&
            dpari_spells(c->s + c->at, n, dpari_action_name(kind))) {
            most = n;
            best = kind;
        }
    }
    c->at += most;
    return (uint8_t)best;
}

static dpar_status dpari_csv_action(dpari_csv *c, dpar_action *a, dpar_why *why)
{
    dpar_status st;
    dpari_zero(a, sizeof(*a));
    st = dpari_csv_number(c, "a stage's number", &a->stage, why);
    if (st != DPAR_OK) {
        return st;
    }
    a->kind = dpari_csv_kind(c);
    if (a->kind == DPAR_ACTION_IDLE) {
        return dpari_csv_say(c,
                             "F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, "
                             "REDUCE_GRAD, WAIT_REDUCE_GRAD, RECOMPUTE, OFFLOAD or RELOAD",
                             why);
    }
    if (dpari_action_has_micro(a->kind)) {
        st = dpari_csv_number(c, "a micro-batch's number", &a->micro_batch, why);
        c->micros = (int32_t)dpari_most(c->micros, (int32_t)a->micro_batch + 1);
    }
    c->stages = (int32_t)dpari_most(c->stages, (int32_t)a->stage + 1);
    return st;
}

/* Reads a fixed text. */
static dpar_status dpari_csv_word(dpari_csv *c, const char *word, dpar_why *why)
{
    size_t n = dpari_length(word);
    if (n > c->n - c->at || !dpari_spells(c->s + c->at, n, word)) {
        return dpari_csv_say(c, word, why);
    }
    c->at += n;
    return DPAR_OK;
}

static void dpari_csv_blanks(dpari_csv *c)
{
    while (dpari_csv_peek(c) == ' ' || dpari_csv_peek(c) == '\t') {
        c->at++;
    }
}

/* Reads the rest of (<F>;<B or I>)OVERLAP_F_B after the "(". */
static dpar_status dpari_csv_joined(dpari_csv *c, dpar_action *a, dpar_why *why)
{
    dpari_csv start = *c;
    dpar_status st = dpari_csv_action(c, a, why);
    a->joined = 1;
    if (st == DPAR_OK && a->kind != DPAR_ACTION_FORWARD) {
        return dpari_csv_say(&start, "an F, which a B or I overlaps", why);
    }
    if (st == DPAR_OK) {
        st = dpari_csv_word(c, ";", why);
    }
    if (st == DPAR_OK) {
        start = *c;
        st = dpari_csv_action(c, a + 1, why);
        if (st == DPAR_OK && a[1].kind != DPAR_ACTION_BACKWARD && a[1].kind != DPAR_ACTION_INPUT) {
            return dpari_csv_say(&start, "a B or I, which overlaps the F", why);
        }
    }
    return st == DPAR_OK ? dpari_csv_word(c, ")OVERLAP_F_B", why) : st;
}

/* True at the end of a line. Moves past the CR of a CRLF. */
static int dpari_csv_line_ends(dpari_csv *c)
{
    if (c->n - c->at > 1 && c->s[c->at] == '\r' && c->s[c->at + 1] == '\n') {
        c->at++;
    }
    return dpari_csv_peek(c) == '\n' || dpari_csv_peek(c) == -1;
}

/* Reads a cell, which has one action or a joined pair. The position is then at the comma, the end
 * of the line or the end of the text. */
static dpar_status dpari_csv_cell(dpari_csv *c, dpar_action a[2], int *count, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int next;
    *count = 1;
    dpari_csv_blanks(c);
    next = dpari_csv_peek(c);
    dpari_zero(a, 2 * sizeof(*a));
    if (next == '(') {
        c->at++;
        *count = 2;
        st = dpari_csv_joined(c, a, why);
    } else if (next == '"') {
        st = dpari_csv_word(c, "\"\"", why);
    } else if (next != ',' && next != '\r' && next != '\n' && next != -1) {
        st = dpari_csv_action(c, a, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    dpari_csv_blanks(c);
    if (!dpari_csv_line_ends(c) && dpari_csv_peek(c) != ',') {
        return dpari_csv_say(c, "a comma or the end of the line", why);
    }
    return DPAR_OK;
}

/* Skips a comment up to the end of its line. Returns 1 if there was one. */
static int dpari_csv_comment(dpari_csv *c)
{
    int comment = dpari_csv_peek(c) == '#';
    while (comment && c->at < c->n && c->s[c->at] != '\n') {
        c->at++;
    }
    return comment;
}

/* Reads a line, which is the list of a rank. If s is not NULL, its actions are written to s. */
static dpar_status dpari_csv_line(dpari_csv *c, dpar_schedule *s, dpar_why *why)
{
    dpar_action a[2];
    dpari_csv start = *c;
    int count, k, more = !dpari_csv_line_ends(c);
    while (more) {
        dpar_status st = dpari_csv_cell(c, a, &count, why);
        if (st != DPAR_OK) {
            return st;
        }
        for (k = 0; k < count && s != NULL; k++) {
            s->action[c->actions + k] = a[k];
        }
        c->actions += count;
        more = dpari_csv_peek(c) == ',';
        c->at += (size_t)more;
    }
    if (++c->rows > DPAR_MAX_STAGES) {
        return dpari_csv_say(&start, "at most 65535 ranks", why);
    }
    return DPAR_OK;
}

/* Reads the whole text. */
static DPARI_COLD dpar_status dpari_csv_walk(dpari_csv *c, const char *text, size_t n,
                                             dpar_schedule *s, dpar_why *why)
{
    dpari_zero(c, sizeof(*c));
    c->s = text;
    c->n = n;
    for (c->line = 1; c->at < n; c->line++) {
        c->line_start = c->at;
        if (!dpari_csv_comment(c)) {
            dpar_status st = dpari_csv_line(c, s, why);
            if (st != DPAR_OK) {
                return st;
            }
            if (s != NULL) {
                s->begin[c->rows] = c->actions;
            }
        }
        c->at += (size_t)(c->at < n); /* past the line's end */
    }
    return DPAR_OK;
}

DPARI_INTERNAL int64_t dpari_schedule_read_bytes(const dpar_schedule_read_desc *in, dpar_why *why)
{
    dpari_csv c;
    if (dpari_csv_walk(&c, in->text, in->bytes, NULL, why) != DPAR_OK) {
        return -1;
    }
    if (c.rows < 1 || c.stages < 1) {
        (void)dpari_say(DPAR_E_PARSE, why,
                        "the text has %d ranks and %d stages; a schedule has 1 or more of each",
                        c.rows, c.stages);
        return -1;
    }
    return dpari_schedule_bytes(c.rows, c.stages, c.actions);
}

/* Fills rank_of: a stage is on the rank whose line names it. Each stage must be on one rank. */
static dpar_status dpari_csv_ranks(dpar_schedule *s, dpar_why *why)
{
    const uint16_t nobody = 65535;
    int32_t r, i;
    int64_t k;
    for (i = 0; i < s->stages; i++) {
        s->rank_of[i] = nobody;
    }
    for (r = 0; r < s->ranks; r++) {
        for (k = s->begin[r]; k < s->begin[r + 1]; k++) {
            const dpar_action *a = &s->action[k];
            if (a->kind == DPAR_ACTION_IDLE) {
                continue;
            }
            if (s->rank_of[a->stage] != nobody && s->rank_of[a->stage] != r) {
                return dpari_wrong(why, "stage %d is on rank %d and on rank %d", (int32_t)a->stage,
                                   (int32_t)s->rank_of[a->stage], r);
            }
            s->rank_of[a->stage] = (uint16_t)r;
        }
    }
    for (i = 0; i < s->stages; i++) {
        if (s->rank_of[i] == nobody) {
            return dpari_wrong(why, "stage %d has no action, but stage %d is on rank %d", i,
                               s->stages - 1, (int32_t)s->rank_of[s->stages - 1]);
        }
    }
    return DPAR_OK;
}

/* Fills the peers of messages. */
static dpar_status dpari_csv_peers(dpar_schedule *s, dpar_why *why)
{
    int64_t k;
    for (k = 0; k < s->begin[s->ranks]; k++) {
        dpar_action *a = &s->action[k];
        int32_t other;
        if (a->kind < DPAR_ACTION_SEND_F || a->kind > DPAR_ACTION_RECV_B) {
            continue;
        }
        other = dpar_schedule_partner(s, a->kind, a->stage);
        if (other < 0 || s->rank_of[other] == s->rank_of[a->stage]) {
            return dpari_wrong(why,
                               other < 0 ? "%d%s%d has no partner, because stage %d ends its chain"
                                         : "%d%s%d is not needed, because stage %d is on the same "
                                           "rank",
                               (int32_t)a->stage, dpari_action_name(a->kind),
                               (int32_t)a->micro_batch, other < 0 ? a->stage : other);
        }
        a->peer = s->rank_of[other];
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_schedule_read(dpar_schedule *s,
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
        *s = got;
    }
    return st;
}

/* ---- writing -------------------------------------------------------------------------------- */

DPAR_API DPARI_COLD void dpar_schedule_write(const dpar_schedule *s, const char *end, dpar_text *t)
{
    int32_t r;
    int64_t k;
    for (r = 0; r < s->ranks; r++) {
        if (s->begin[r + 1] == s->begin[r] + 1 && s->action[s->begin[r]].kind == DPAR_ACTION_IDLE) {
            dpar_text_put(t, "\"\"");
        }
        for (k = s->begin[r]; k < s->begin[r + 1]; k += 1 + s->action[k].joined) {
            if (k > s->begin[r]) {
                dpari_text_char(t, ',');
            }
            dpar_action_write(&s->action[k], t);
        }
        dpar_text_put(t, end);
    }
}
