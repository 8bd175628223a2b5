/* SPDX-License-Identifier: MIT-0 */
/* Compares the lists of all units. That no send is left over follows from counting: each receive
 * has been matched with a different send, so that there are as many sends as receives only if every
 * send has been matched. */
#include "proof_lists.h"

#include "../base/base_private.h"

/* ---- records --------------------------------------------------------------------------------- */

/* The positions of the small fields in the first word of a record, whose upper half is the peer. A
 * flip has 6 bits, a dim and the number of dims 3. */
enum { DPARI_PROVE_SWAP = 8, DPARI_PROVE_TURN = 16, DPARI_PROVE_OP = 20, DPARI_PROVE_DIMS = 24 };

static int64_t dpari_prove_words(const dpari_prove_source *source)
{
    return 1 + 3 * (int64_t)source->dims;
}

DPARI_INTERNAL int64_t dpari_prove_word(const int64_t *record, int32_t field, int32_t d)
{
    return record[1 + 3 * d + field];
}

DPARI_INTERNAL uint32_t dpari_prove_flip(const int64_t *record)
{
    return (uint32_t)record[0] & 0x3fu;
}

DPARI_INTERNAL int32_t dpari_prove_turn(const int64_t *record)
{
    return (int32_t)(record[0] >> DPARI_PROVE_TURN) & 3;
}

DPARI_INTERNAL int32_t dpari_prove_op(const int64_t *record)
{
    return (int32_t)(record[0] >> DPARI_PROVE_OP) & 0xf;
}

DPARI_INTERNAL int32_t dpari_prove_from(const int64_t *record, int32_t d)
{
    const int32_t a = (int32_t)(record[0] >> DPARI_PROVE_SWAP) & 7;
    const int32_t b = (int32_t)(record[0] >> (DPARI_PROVE_SWAP + 3)) & 7;
    if (d == a) {
        return b;
    }
    return d == b ? a : d;
}

DPARI_INTERNAL int64_t dpari_prove_volume(const dpari_prove_source *source, const int64_t *record)
{
    int64_t volume = 1;
    int32_t d;
    for (d = 0; d < source->dims; d++) {
        if (!dpari_mul(volume, dpari_prove_word(record, DPARI_PROVE_EXTENT, d), &volume)) {
            return -1;
        }
    }
    return volume;
}

/* Writes a transfer as a record. */
static void dpari_prove_pack(const dpari_prove_source *source, const dpar_transfer *t,
                             int64_t *record)
{
    const int swaps = t->swap[0] != t->swap[1];
    const int32_t a = swaps ? (int32_t)dpari_least(t->swap[0], t->swap[1]) : 0;
    const int32_t b = swaps ? t->swap[0] + t->swap[1] - a : 0;
    int32_t d;
    record[0] = (int64_t)t->peer << 32 | (int64_t)t->flip | (int64_t)a << DPARI_PROVE_SWAP |
                (int64_t)b << (DPARI_PROVE_SWAP + 3) | (int64_t)t->turn << DPARI_PROVE_TURN |
                (int64_t)t->op << DPARI_PROVE_OP | (int64_t)t->dims << DPARI_PROVE_DIMS;
    for (d = 0; d < source->dims; d++) {
        const int used = d < t->dims;
        record[1 + 3 * d + DPARI_PROVE_EXTENT] = used ? t->extent[d] : 1;
        record[1 + 3 * d + DPARI_PROVE_MINE] = used ? t->mine[d] : 0;
        record[1 + 3 * d + DPARI_PROVE_THEIRS] = used ? t->theirs[d] : 0;
    }
}

DPARI_INTERNAL const int64_t *dpari_prove_record(const dpari_prove_source *source,
                                                 const dpari_prove_list *list, int64_t k,
                                                 int32_t *peer)
{
    *peer = (int32_t)(list->key[k] >> 32);
    return list->record + (list->key[k] & INT64_C(0xffffffff)) * dpari_prove_words(source);
}

/* ---- messages -------------------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD void dpari_prove_put_point(dpar_text *out, int32_t dims,
                                                     const int64_t *at)
{
    int32_t d;
    for (d = 0; d < dims; d++) {
        dpari_text_say(out, d == 0 ? "(%ld" : ", %ld", at[d]);
    }
    dpar_text_put(out, dims > 0 ? ")" : "()");
}

DPARI_INTERNAL DPARI_COLD void dpari_prove_put_unit(dpar_text *out,
                                                    const dpari_prove_source *source, int32_t unit)
{
    if (source->owner != NULL) {
        dpari_text_say(out, "block %d of rank %d", unit, source->owner[unit]);
        return;
    }
    dpari_text_say(out, "rank %d", unit);
}

DPARI_INTERNAL DPARI_COLD void dpari_prove_refute(dpar_text *out, dpar_why *why, const char *what)
{
    dpari_text_why(out, why);
    dpar_text_put(out, what);
}

/* Appends a field of a record, such as "4 x 8" or "(0, 1)". */
static DPARI_COLD void dpari_prove_put_field(dpar_text *out, const int64_t *record, int32_t field)
{
    const int32_t dims = (int32_t)(record[0] >> DPARI_PROVE_DIMS) & 7;
    int64_t value[DPAR_MAX_DIMS];
    int32_t d;
    for (d = 0; d < dims; d++) {
        value[d] = dpari_prove_word(record, field, d);
        if (field == DPARI_PROVE_EXTENT) {
            dpari_text_say(out, d == 0 ? "%ld" : " x %ld", value[d]);
        }
    }
    if (field != DPARI_PROVE_EXTENT) {
        dpari_prove_put_point(out, dims, value);
    }
}

/* Appends "send 3 of rank 0 to rank 2". */
static DPARI_COLD void dpari_prove_put_send(dpar_text *out, const dpari_prove_source *source,
                                            int64_t number, int32_t from, int32_t to)
{
    dpari_text_say(out, "send %ld of ", number);
    dpari_prove_put_unit(out, source, from);
    dpar_text_put(out, " to ");
    dpari_prove_put_unit(out, source, to);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_prove_no_room(dpar_why *why, int64_t has,
                                                          int64_t needed)
{
    dpari_needs_bytes(why, needed);
    return dpari_say(DPAR_E_ROOM, why,
                     "a proof with %ld bytes of memory cannot hold its lists: try %ld bytes", has,
                     needed);
}

/* ---- sorting and counting -------------------------------------------------------------------- */

/* Moves the key at `i` down to its place in a heap whose root is the largest key. */
static void dpari_prove_sift(int64_t *key, int64_t i, int64_t count)
{
    const int64_t moved = key[i];
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= count) {
            break;
        }
        child += child + 1 < count && key[child + 1] > key[child];
        if (key[child] <= moved) {
            break;
        }
        key[i] = key[child];
        i = child;
    }
    key[i] = moved;
}

DPARI_INTERNAL void dpari_prove_sort(int64_t *key, int64_t count)
{
    int64_t i;
    for (i = count / 2 - 1; i >= 0; i--) {
        dpari_prove_sift(key, i, count);
    }
    for (i = count - 1; i > 0; i--) {
        const int64_t largest = key[0];
        key[0] = key[i];
        key[i] = largest;
        dpari_prove_sift(key, 0, i);
    }
}

/* Adds b to *a. Returns 0 if the sum exceeds 2^63 - 1. */
static int dpari_prove_add(int64_t *a, int64_t b)
{
    if (*a > INT64_MAX - b) {
        return 0;
    }
    *a += b;
    return 1;
}

DPARI_INTERNAL int dpari_prove_count(dpar_proof_range *range, int32_t rank, int64_t value)
{
    if (rank == 0 || value < range->least) {
        range->least = value;
        range->least_rank = rank;
    }
    if (rank == 0 || value > range->most) {
        range->most = value;
        range->most_rank = rank;
    }
    return dpari_prove_add(&range->total, value);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_prove_advance(const dpar_proof_desc *desc, int64_t done,
                                                          int64_t total)
{
    if (desc->progress != NULL && desc->progress(desc->context, done, total) != 0) {
        return DPAR_MORE;
    }
    return DPAR_OK;
}

/* ---- the state of a proof -------------------------------------------------------------------- */

/* Bytes that a rank exchanges with a peer; several entries with the same peer are added. */
typedef struct dpari_prove_flow {
    int64_t peer, out, in;
} dpari_prove_flow;
enum { DPARI_PROVE_FLOW = 3 }; /* its words */

typedef struct dpari_prove_state {
    const dpari_prove_source *source;
    const dpar_proof_desc *desc;
    int64_t point_bytes;
    int32_t *first, *unit; /* with owners: [ranks + 1] and [units], the units of each rank */
    int64_t *slot;         /* [slots] 1 + the position of a list in the log */
    int64_t slots;
    int64_t *area; /* the receives of a unit from below, the flows of a rank from above */
    int64_t area_words, area_used; /* of these, words used by the receives */
    dpari_prove_flow *flow;        /* [flows], in the area, the newest first */
    int64_t flows;
    int64_t *log;
    int64_t log_words, end; /* positions in the log never decrease; `end` is that of the next */
    int64_t sends, receives, points;
    dpar_why *why;
} dpari_prove_state;

/* The words in front of each list in the log: its unit and its count. */
enum { DPARI_PROVE_FRONT = 2 };

/* Divides the memory. An eighth of it or less goes to tables. */
static DPARI_COLD dpar_status dpari_prove_divide(dpari_prove_state *state)
{
    const dpari_prove_source *source = state->source;
    int64_t words = state->desc->bytes / 8, tables = 0, needed;
    int64_t *at = (int64_t *)state->desc->memory;
    if (source->owner != NULL) {
        tables = ((int64_t)source->ranks + source->units) / 2 + 2;
    }
    needed = tables + 64 * (source->head + 2 * dpari_prove_words(source)) + 1024;
    if (at == NULL || words < needed) {
        return dpari_prove_no_room(state->why, state->desc->bytes, 8 * needed);
    }
    if (source->owner != NULL) {
        state->first = (int32_t *)(void *)at;
        state->unit = state->first + source->ranks + 1;
        at += tables;
        words -= tables;
    }
    state->slot = at;
    state->slots = dpari_least(words / 32, source->units) + 1;
    dpari_zero(state->slot, (size_t)state->slots * 8);
    state->area = at + state->slots;
    state->area_words = words / 4;
    state->flow = (dpari_prove_flow *)(void *)(state->area + state->area_words);
    state->log = state->area + state->area_words;
    state->log_words = words - state->slots - state->area_words;
    return DPAR_OK;
}

/* Sorts the units by their ranks. */
static DPARI_COLD dpar_status dpari_prove_group(dpari_prove_state *state)
{
    const dpari_prove_source *source = state->source;
    int32_t i;
    if (source->owner == NULL) {
        return DPAR_OK;
    }
    dpari_zero(state->first, ((size_t)source->ranks + 1) * 4);
    for (i = 0; i < source->units; i++) {
        if (source->owner[i] < -1 || source->owner[i] >= source->ranks) {
            return dpari_wrong(state->why, "owner[%d] is %d, but must be -1 to %d", i,
                               source->owner[i], source->ranks - 1);
        }
        if (source->owner[i] >= 0) {
            state->first[source->owner[i] + 1]++;
        }
    }
    for (i = 0; i < source->ranks; i++) {
        state->first[i + 1] += state->first[i];
    }
    for (i = source->units - 1; i >= 0; i--) { /* uses first[rank + 1] as the place of the next */
        if (source->owner[i] >= 0) {
            state->unit[--state->first[source->owner[i] + 1]] = i;
        }
    }
    for (i = 0; i < source->ranks; i++) { /* first[rank + 1] is now where the rank begins */
        state->first[i] = state->first[i + 1];
    }
    state->first[source->ranks] = 0;
    for (i = 0; i < source->units; i++) {
        state->first[source->ranks] += source->owner[i] >= 0;
    }
    return DPAR_OK;
}

/* Returns the rank that owns a unit. */
static int32_t dpari_prove_rank(const dpari_prove_source *source, int32_t unit)
{
    return source->owner == NULL ? unit : source->owner[unit];
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Checks what a list of the caller may have wrong. */
static DPARI_COLD dpar_status dpari_prove_invalid(const dpari_prove_state *state, int32_t unit,
                                                  int32_t direction, int64_t number,
                                                  const dpar_transfer *t)
{
    dpar_text out;
    dpari_text_why(&out, state->why);
    dpari_prove_put_unit(&out, state->source, unit);
    dpari_text_say(&out,
                   direction == DPAR_TRANSFER_SEND ? ", send %ld: " : ", receive %ld: ", number);
    dpari_text_say(&out,
                   "peer is %d of %d, dims is %d of at most %d, flip is %ld, swap is %d and %d, "
                   "turn is %d, op is %d, ",
                   t->peer, state->source->units, t->dims, state->source->dims, (int64_t)t->flip,
                   t->swap[0], t->swap[1], t->turn, t->op);
    dpar_text_put(&out, "or an extent is below 1 or an index below 0");
    return DPAR_E_ARG;
}

static DPARI_COLD int dpari_prove_is_valid(const dpari_prove_source *source, const dpar_transfer *t)
{
    int32_t d;
    if (t->peer < 0 || t->peer >= source->units || t->dims < 0 || t->dims > source->dims ||
        t->flip >> source->dims != 0 || t->turn < 0 || t->turn > 3 || t->op < 0 ||
        t->op >= DPAR_OP_COUNT || dpari_prove_rank(source, t->peer) < 0) {
        return 0;
    }
    for (d = 0; d < 2; d++) {
        if (t->swap[d] < 0 || (t->swap[d] > 0 && t->swap[d] >= source->dims)) {
            return 0;
        }
    }
    for (d = 0; d < t->dims; d++) {
        if (t->extent[d] < 1 || t->mine[d] < 0 || t->theirs[d] < 0) {
            return 0;
        }
    }
    return 1;
}

/* Walks a list into `words` words from `at` on. Returns DPAR_E_ROOM without a message if it does
 * not fit. */
static dpar_status dpari_prove_load(const dpari_prove_state *state, int32_t unit, int32_t direction,
                                    int64_t *at, int64_t words, dpari_prove_list *list)
{
    const dpari_prove_source *source = state->source;
    const int64_t step = dpari_prove_words(source);
    int64_t *record = at + source->head, *key, n = 0, k;
    dpar_transfer t;
    dpar_status status;
    words -= source->head;
    if (words < 0) {
        return DPAR_E_ROOM;
    }
    if (source->describe != NULL) {
        source->describe(source->of, unit, at);
    }
    status = source->first(source->of, unit, direction, state->why);
    if (status != DPAR_OK) {
        return status;
    }
    for (n = 0; (status = source->next(source->of, &t, state->why)) == DPAR_MORE; n++) {
        if (n == INT32_MAX || (n + 1) * (step + 1) > words) {
            return DPAR_E_ROOM;
        }
        if (!dpari_prove_is_valid(source, &t)) {
            return dpari_prove_invalid(state, unit, direction, n, &t);
        }
        dpari_prove_pack(source, &t, record + n * step);
    }
    key = record + n * step; /* keys follow the records, because their number was not known */
    for (k = 0; k < n; k++) {
        key[k] = (record[k * step] >> 32 << 32) | k;
    }
    dpari_prove_sort(key, n);
    list->unit = unit;
    list->count = n;
    list->head = at;
    list->key = key;
    list->record = record;
    return status;
}

/* Returns the sends of a unit, from the log if they are there. */
static DPARI_COLD dpar_status dpari_prove_sends(dpari_prove_state *state, int32_t unit,
                                                dpari_prove_list *list)
{
    const dpari_prove_source *source = state->source;
    int64_t *slot = &state->slot[unit % state->slots], place = *slot - 1, *at;
    int32_t turn;
    if (*slot > 0 && state->end - place <= state->log_words) {
        at = state->log + place % state->log_words;
        if (at[0] == unit) {
            list->unit = unit;
            list->count = at[1];
            list->head = at + DPARI_PROVE_FRONT;
            list->record = list->head + source->head;
            list->key = list->record + list->count * dpari_prove_words(source);
            return DPAR_OK;
        }
    }
    for (turn = 0; turn < 2; turn++) { /* at the end of the log a list may need the second turn */
        const int64_t left = state->log_words - state->end % state->log_words;
        dpar_status status = DPAR_E_ROOM;
        at = state->log + state->end % state->log_words;
        if (left > DPARI_PROVE_FRONT) {
            status = dpari_prove_load(state, unit, DPAR_TRANSFER_SEND, at + DPARI_PROVE_FRONT,
                                      left - DPARI_PROVE_FRONT, list);
        }
        if (status == DPAR_OK) {
            at[0] = unit;
            at[1] = list->count;
            *slot = state->end + 1;
            state->end +=
                DPARI_PROVE_FRONT + source->head + list->count * (dpari_prove_words(source) + 1);
            return DPAR_OK;
        }
        if (status != DPAR_E_ROOM) {
            return status;
        }
        state->end += left;
    }
    return dpari_prove_no_room(state->why, state->desc->bytes, 2 * state->desc->bytes);
}

/* Walks the receives of a unit. */
static DPARI_COLD dpar_status dpari_prove_receives(dpari_prove_state *state, int32_t unit,
                                                   dpari_prove_list *list)
{
    const dpar_status status =
        dpari_prove_load(state, unit, DPAR_TRANSFER_RECV, state->area,
                         state->area_words - DPARI_PROVE_FLOW * state->flows, list);
    if (status == DPAR_E_ROOM) {
        return dpari_prove_no_room(state->why, state->desc->bytes, 2 * state->desc->bytes);
    }
    state->area_used = state->source->head + list->count * (dpari_prove_words(state->source) + 1);
    return status;
}

/* Returns the index of the first key with at least this peer. */
static int64_t dpari_prove_find(const dpari_prove_list *list, int64_t peer)
{
    int64_t low = 0, high = list->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (list->key[middle] >> 32 < peer) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* ---- fact 1: every message has its partner --------------------------------------------------- */

/* Writes that transfer `number` between two units has no partner. */
static DPARI_COLD dpar_status dpari_prove_alone(const dpari_prove_state *state, int is_send,
                                                int64_t number, int32_t from, int32_t to,
                                                const int64_t *record)
{
    dpar_text out;
    dpari_prove_refute(&out, state->why, "partner: ");
    if (is_send) {
        dpari_prove_put_send(&out, state->source, number, from, to);
    } else {
        dpari_text_say(&out, "receive %ld of ", number);
        dpari_prove_put_unit(&out, state->source, to);
        dpar_text_put(&out, " from ");
        dpari_prove_put_unit(&out, state->source, from);
    }
    dpar_text_put(&out, " (");
    dpari_prove_put_field(&out, record, DPARI_PROVE_EXTENT);
    dpar_text_put(&out, is_send ? " points) has no receive" : " points) has no send");
    return DPAR_E_MISMATCH;
}

/* Compares send number `number` of a pair of units with the receive of the same number. */
static dpar_status dpari_prove_pair(const dpari_prove_state *state, int64_t number, int32_t from,
                                    int32_t to, const int64_t *send, const int64_t *receive)
{
    static const char begins[3][24] = {" has ", " reads from ", " writes to "};
    static const char ends[3][32] = {" points, but its receive has ", ", but its receive expects ",
                                     ", but its receive writes to "};
    dpar_text out;
    int32_t field, d, differs = -1;
    for (field = 2; field >= 0; field--) {
        const int32_t other = field == 0 ? field : 3 - field;
        for (d = 0; d < state->source->dims; d++) {
            if (dpari_prove_word(send, field, d) != dpari_prove_word(receive, other, d)) {
                differs = field;
            }
        }
    }
    if (differs < 0 && (uint32_t)send[0] == (uint32_t)receive[0]) {
        return DPAR_OK;
    }
    dpari_prove_refute(&out, state->why, "partner: ");
    dpari_prove_put_send(&out, state->source, number, from, to);
    if (differs < 0) {
        dpar_text_put(&out, " has other dims, flip, swap, turn or op than its receive");
        return DPAR_E_MISMATCH;
    }
    dpar_text_put(&out, begins[differs]);
    dpari_prove_put_field(&out, send, differs);
    dpar_text_put(&out, ends[differs]);
    dpari_prove_put_field(&out, receive, differs == 0 ? 0 : 3 - differs);
    return DPAR_E_MISMATCH;
}

/* Adds the bytes of a transfer to the flows of a rank. */
static dpar_status dpari_prove_add_flow(dpari_prove_state *state, int32_t peer,
                                        const int64_t *record, int sends)
{
    int64_t bytes = dpari_prove_volume(state->source, record);
    dpari_prove_flow *flow = state->flow;
    if (state->flows == 0 || flow->peer != peer) {
        const int64_t left =
            state->area_words - state->area_used - DPARI_PROVE_FLOW * (state->flows + 1);
        if (left < 0) {
            return dpari_prove_no_room(state->why, state->desc->bytes, 2 * state->desc->bytes);
        }
        flow = --state->flow;
        state->flows++;
        flow->peer = peer;
        flow->out = flow->in = 0;
    }
    if (!dpari_mul(bytes, state->point_bytes, &bytes) ||
        !dpari_prove_add(sends ? &flow->out : &flow->in, bytes)) {
        return dpari_say(DPAR_E_RANGE, state->why, "messages with rank %d exceed 2^63 - 1 bytes",
                         peer);
    }
    return DPAR_OK;
}

/* Compares the receives of a unit from one peer, which begin at key `k`, with that peer's sends.
 * Sets *points to their elements. */
static dpar_status dpari_prove_group_of(dpari_prove_state *state, const dpari_prove_list *mine,
                                        int64_t *k, int64_t *points)
{
    const dpari_prove_source *source = state->source;
    dpari_prove_list theirs;
    int32_t peer = (int32_t)(mine->key[*k] >> 32), other;
    int64_t at, number;
    dpar_status status = dpari_prove_sends(state, peer, &theirs);
    if (status != DPAR_OK) {
        return status;
    }
    at = dpari_prove_find(&theirs, mine->unit);
    for (number = 0; *k < mine->count && mine->key[*k] >> 32 == peer; number++, (*k)++) {
        const int64_t *receive = dpari_prove_record(source, mine, *k, &other), *send;
        if (at + number >= theirs.count || theirs.key[at + number] >> 32 != mine->unit) {
            return dpari_prove_alone(state, 0, number, peer, mine->unit, receive);
        }
        send = dpari_prove_record(source, &theirs, at + number, &other);
        status = dpari_prove_pair(state, number, peer, mine->unit, send, receive);
        if (status == DPAR_OK && source->check != NULL) {
            status = source->check(source->of, mine, &theirs, receive, state->why);
        }
        if (status == DPAR_OK) {
            status = dpari_prove_add_flow(state, dpari_prove_rank(source, peer), receive, 0);
        }
        if (status != DPAR_OK) {
            return status;
        }
        if (!dpari_prove_add(points, dpari_prove_volume(source, receive))) {
            return dpari_say(DPAR_E_RANGE, state->why, "rank %d receives more than 2^63 - 1 points",
                             dpari_prove_rank(source, mine->unit));
        }
    }
    if (at + number < theirs.count && theirs.key[at + number] >> 32 == mine->unit) {
        const int64_t *send = dpari_prove_record(source, &theirs, at + number, &other);
        return dpari_prove_alone(state, 1, number, peer, mine->unit, send);
    }
    return DPAR_OK;
}

/* Finds a send that has no receive. There is one, because there are more sends than receives. */
static DPARI_COLD dpar_status dpari_prove_left_over(dpari_prove_state *state)
{
    const dpari_prove_source *source = state->source;
    dpari_prove_list sends, receives;
    int32_t unit, peer, other;
    int64_t k;
    state->flows = 0;
    for (unit = 0; unit < source->units; unit++) {
        for (k = 0;; k++) {
            dpar_status status = DPAR_OK;
            if (dpari_prove_rank(source, unit) >= 0) {
                status = dpari_prove_sends(state, unit, &sends);
            } else {
                sends.count = 0;
            }
            if (status != DPAR_OK || k >= sends.count) {
                if (status != DPAR_OK) {
                    return status;
                }
                break;
            }
            (void)dpari_prove_record(source, &sends, k, &peer);
            status = dpari_prove_receives(state, peer, &receives);
            if (status != DPAR_OK) {
                return status;
            }
            other = unit;
            if (dpari_prove_find(&receives, other) ==
                dpari_prove_find(&receives, (int64_t)other + 1)) {
                const int64_t *record = dpari_prove_record(source, &sends, k, &peer);
                return dpari_prove_alone(state, 1, 0, unit, peer, record);
            }
        }
    }
    return dpari_say(DPAR_E_MISMATCH, state->why, "partner: the lists of a rank change");
}

/* ---- fact 2: nothing is written twice -------------------------------------------------------- */

/* True if the boxes that two receives write have an element in common. */
static int dpari_prove_meet(const dpari_prove_source *source, const int64_t *a, const int64_t *b)
{
    int32_t d;
    for (d = 0; d < source->dims; d++) {
        const int64_t a0 = dpari_prove_word(a, DPARI_PROVE_MINE, d);
        const int64_t b0 = dpari_prove_word(b, DPARI_PROVE_MINE, d);
        const int64_t a1 = a0 + dpari_prove_word(a, DPARI_PROVE_EXTENT, dpari_prove_from(a, d));
        const int64_t b1 = b0 + dpari_prove_word(b, DPARI_PROVE_EXTENT, dpari_prove_from(b, d));
        if (a1 <= b0 || b1 <= a0) {
            return 0;
        }
    }
    return 1;
}

static dpar_status dpari_prove_twice(const dpari_prove_state *state, const dpari_prove_list *mine,
                                     int64_t i, int64_t j)
{
    const dpari_prove_source *source = state->source;
    int32_t peer[2], op[2], d;
    int64_t at[DPAR_MAX_DIMS];
    const int64_t *a = dpari_prove_record(source, mine, i, &peer[0]);
    const int64_t *b = dpari_prove_record(source, mine, j, &peer[1]);
    dpar_text out;
    if (!dpari_prove_meet(source, a, b)) {
        return DPAR_OK;
    }
    op[0] = dpari_prove_op(a);
    op[1] = dpari_prove_op(b);
    if (source->may_overlap == NULL ? op[0] != DPAR_COPY || op[1] != DPAR_COPY
                                    : source->may_overlap(source->of, peer, op)) {
        return DPAR_OK;
    }
    for (d = 0; d < source->dims; d++) {
        at[d] = dpari_most(dpari_prove_word(a, DPARI_PROVE_MINE, d),
                           dpari_prove_word(b, DPARI_PROVE_MINE, d));
    }
    dpari_prove_refute(&out, state->why, "twice: index ");
    dpari_prove_put_point(&out, source->dims, at);
    dpar_text_put(&out, " of the array of ");
    dpari_prove_put_unit(&out, source, mine->unit);
    dpar_text_put(&out, " is received from ");
    dpari_prove_put_unit(&out, source, peer[0]);
    dpar_text_put(&out, " and from ");
    dpari_prove_put_unit(&out, source, peer[1]);
    return DPAR_E_MISMATCH;
}

/* Lists of at most this length are compared pair by pair, without sorting. */
enum { DPARI_PROVE_FEW = 64 };

/* Returns the dim in which the receives begin at the largest distance, in units of their extents,
 * so that few of them overlap in it. *least and *shift receive the first index, and by how many
 * bits a distance is shifted to the right to fit into 31 bits. */
static DPARI_COLD int32_t dpari_prove_longest(const dpari_prove_source *source,
                                              const dpari_prove_list *mine, int64_t *least,
                                              int32_t *shift)
{
    int64_t best = -1, k;
    int32_t d, longest = 0, peer;
    for (d = 0; d < source->dims; d++) {
        int64_t first = INT64_MAX, last = 0, extent = 1;
        for (k = 0; k < mine->count; k++) {
            const int64_t *record = dpari_prove_record(source, mine, k, &peer);
            const int64_t at = dpari_prove_word(record, DPARI_PROVE_MINE, d);
            first = dpari_least(first, at);
            last = dpari_most(last, at);
            extent = dpari_most(
                extent, dpari_prove_word(record, DPARI_PROVE_EXTENT, dpari_prove_from(record, d)));
        }
        if ((last - first) / extent > best) {
            best = (last - first) / extent;
            longest = d;
            *least = first;
            *shift = 0;
            while ((last - first) >> *shift > INT32_MAX) {
                (*shift)++;
            }
        }
    }
    return longest;
}

/* Checks that no two receives of a unit write the same element. Long lists are sorted along a dim,
 * and each receive is compared with those that begin before it ends. */
static DPARI_COLD dpar_status dpari_prove_disjoint(const dpari_prove_state *state,
                                                   const dpari_prove_list *mine)
{
    const dpari_prove_source *source = state->source;
    int64_t *key = state->area + state->area_used, i, j, least = 0;
    int32_t shift = 0, d, peer;
    dpar_status status = DPAR_OK;
    if (mine->count <= DPARI_PROVE_FEW) {
        for (i = 0; i < mine->count; i++) {
            for (j = i + 1; j < mine->count && status == DPAR_OK; j++) {
                status = dpari_prove_twice(state, mine, i, j);
            }
        }
        return status;
    }
    if (state->area_used + mine->count > state->area_words - DPARI_PROVE_FLOW * state->flows) {
        return dpari_prove_no_room(state->why, state->desc->bytes, 2 * state->desc->bytes);
    }
    d = dpari_prove_longest(source, mine, &least, &shift);
    for (i = 0; i < mine->count; i++) {
        const int64_t *record = dpari_prove_record(source, mine, i, &peer);
        key[i] = (dpari_prove_word(record, DPARI_PROVE_MINE, d) - least) >> shift << 32 | i;
    }
    dpari_prove_sort(key, mine->count);
    for (i = 0; i < mine->count; i++) {
        const int64_t mine_i = key[i] & INT64_C(0xffffffff);
        const int64_t *record = dpari_prove_record(source, mine, mine_i, &peer);
        const int64_t last =
            dpari_prove_word(record, DPARI_PROVE_MINE, d) - least +
            dpari_prove_word(record, DPARI_PROVE_EXTENT, dpari_prove_from(record, d)) - 1;
        for (j = i + 1; j < mine->count && key[j] >> 32 <= last >> shift; j++) {
            status = dpari_prove_twice(state, mine, mine_i, key[j] & INT64_C(0xffffffff));
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    return status;
}

/* ---- lists of the caller --------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_prove_caller_first(void *of, int32_t unit,
                                                               int32_t direction, dpar_why *why)
{
    dpari_prove_caller *caller = (dpari_prove_caller *)of;
    (void)why;
    caller->unit = unit;
    caller->direction = direction;
    caller->number = 0;
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_prove_caller_next(void *of, dpar_transfer *transfer,
                                                              dpar_why *why)
{
    dpari_prove_caller *caller = (dpari_prove_caller *)of;
    (void)why;
    dpari_zero(transfer, sizeof *transfer);
    if (caller->next(caller->lists, caller->unit, caller->direction, caller->number, transfer)) {
        caller->number++;
        return DPAR_MORE;
    }
    return DPAR_OK;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

/* Proves the lists of one unit. */
static dpar_status dpari_prove_unit(dpari_prove_state *state, int32_t unit)
{
    const dpari_prove_source *source = state->source;
    dpari_prove_list mine, sends;
    int64_t k = 0, points = 0;
    int32_t peer;
    dpar_status status = dpari_prove_receives(state, unit, &mine);
    while (status == DPAR_OK && k < mine.count) {
        status = dpari_prove_group_of(state, &mine, &k, &points);
    }
    if (status == DPAR_OK) {
        status = dpari_prove_disjoint(state, &mine);
    }
    if (status == DPAR_OK && source->complete != NULL) {
        status = source->complete(source->of, &mine, points, state->why);
    }
    if (status == DPAR_OK) {
        status = dpari_prove_sends(state, unit, &sends);
    }
    for (k = 0; status == DPAR_OK && k < sends.count; k++) {
        const int64_t *record = dpari_prove_record(source, &sends, k, &peer);
        status = dpari_prove_add_flow(state, dpari_prove_rank(source, peer), record, 1);
    }
    if (status != DPAR_OK) {
        return status;
    }
    state->receives += mine.count;
    state->sends += sends.count;
    if (!dpari_prove_add(&state->points, points)) {
        return dpari_say(DPAR_E_RANGE, state->why, "all ranks receive more than 2^63 - 1 points");
    }
    return DPAR_OK;
}

/* Adds the flows of a rank to the report, those with the same peer together. */
static DPARI_COLD dpar_status dpari_prove_report_rank(dpari_prove_state *state, int32_t rank,
                                                      dpar_proof_report *report)
{
    const int64_t lines = 128; /* two cache lines, to which plans round up */
    int64_t *key = state->area, i, j, sent = 0, received = 0, copied = 0, staging = 0;
    int64_t messages = 0, peers = 0;
    int fits = 1;
    if (state->flows * (DPARI_PROVE_FLOW + 1) > state->area_words) {
        return dpari_prove_no_room(state->why, state->desc->bytes, 2 * state->desc->bytes);
    }
    for (i = 0; i < state->flows; i++) {
        key[i] = state->flow[i].peer << 32 | i;
    }
    dpari_prove_sort(key, state->flows);
    for (i = 0; i < state->flows; i = j) {
        const int64_t peer = key[i] >> 32;
        int64_t out = 0, in = 0, most;
        for (j = i; j < state->flows && key[j] >> 32 == peer; j++) {
            const dpari_prove_flow *flow = &state->flow[key[j] & INT64_C(0xffffffff)];
            fits &= dpari_prove_add(&out, flow->out) & dpari_prove_add(&in, flow->in);
        }
        if (peer == rank) {
            copied = out;
            continue;
        }
        peers++;
        messages += out > 0;
        most = dpari_most(out, in);
        fits &= dpari_prove_add(&sent, out) & dpari_prove_add(&received, in);
        fits &=
            most <= INT64_MAX / 4 && dpari_prove_add(&staging, (most + lines - 1) / lines * lines);
    }
    fits &= staging <= INT64_MAX / 3;
    fits &= dpari_prove_count(&report->messages, rank, messages) &
            dpari_prove_count(&report->peers, rank, peers) &
            dpari_prove_count(&report->sent, rank, sent) &
            dpari_prove_count(&report->received, rank, received) &
            dpari_prove_count(&report->copied, rank, copied);
    if (!fits || !dpari_prove_count(&report->staging, rank, 3 * staging)) {
        return dpari_say(DPAR_E_RANGE, state->why, "the bytes of ranks 0 to %d exceed 2^63 - 1",
                         rank);
    }
    state->flow += state->flows;
    state->flows = 0;
    return DPAR_OK;
}

/* Calls the caller's function after this many units. */
enum { DPARI_PROVE_EVERY = 4096 };

static DPARI_COLD dpar_status dpari_prove_all(dpari_prove_state *state, dpar_proof_report *report)
{
    const dpari_prove_source *source = state->source;
    int32_t rank, last = 0;
    int64_t k;
    for (rank = 0; rank < source->ranks; rank++) {
        const int64_t first = source->owner == NULL ? rank : state->first[rank];
        const int64_t end = source->owner == NULL ? (int64_t)rank + 1 : state->first[rank + 1];
        dpar_status status = DPAR_OK;
        for (k = first; k < end && status == DPAR_OK; k++) {
            const int32_t unit = source->owner == NULL ? rank : state->unit[k];
            status = dpari_prove_unit(state, unit);
        }
        report->blocks += end - first;
        if (status == DPAR_OK) {
            status = dpari_prove_report_rank(state, rank, report);
        }
        if (status == DPAR_OK && rank + 1 - last >= DPARI_PROVE_EVERY) {
            last = rank + 1;
            status = dpari_prove_advance(state->desc, last, source->ranks);
        }
        if (status != DPAR_OK) {
            return status;
        }
    }
    if (state->sends != state->receives) {
        return dpari_prove_left_over(state);
    }
    return dpari_prove_advance(state->desc, source->ranks, source->ranks);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_prove_run(const dpari_prove_source *source,
                                                      const dpar_proof_desc *desc,
                                                      dpar_proof_report *report, dpar_why *why)
{
    dpari_prove_state state;
    dpar_proof_report result;
    dpar_status status;
    dpari_zero(&state, sizeof state);
    dpari_zero(&result, sizeof result);
    if (desc->point_bytes < 0 || desc->bytes < 0 || source->ranks < 1) {
        return dpari_wrong(why,
                           "desc has point_bytes %ld, bytes %ld and %d ranks: must be at least 0, "
                           "0 and 1",
                           desc->point_bytes, desc->bytes, source->ranks);
    }
    state.source = source;
    state.desc = desc;
    state.why = why;
    state.point_bytes = desc->point_bytes > 0 ? desc->point_bytes : 8;
    status = dpari_prove_divide(&state);
    if (status == DPAR_OK) {
        status = dpari_prove_group(&state);
    }
    if (status == DPAR_OK) {
        status = dpari_prove_all(&state, &result);
    }
    if (status != DPAR_OK) {
        return status;
    }
    result.ranks = source->ranks;
    result.owners = source->owners;
    result.transfers = state.sends;
    result.points = state.points;
    *report = result;
    return DPAR_OK;
}
