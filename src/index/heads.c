/* SPDX-License-Identifier: MIT-0 */
/* Divides a transformer's heads, vocabulary and layers over ranks, by closed formulas in O(1). */
#include "heads.h"

#include "index_private.h"

/* ---- heads ----------------------------------------------------------------------------------- */

/* Returns where part p of n items begins by the rule CHUNK or EVEN. 0 <= p <= parts. */
static int32_t dpari_heads_cut(int32_t rule, int32_t n, int32_t parts, int32_t p)
{
    int64_t each = n / parts;
    if (rule == DPAR_SPLIT_CHUNK) {
        return (int32_t)dpari_least(n, dpari_ceil_div(n, parts) * p);
    }
    return (int32_t)(each * p + dpari_least(p, n - each * parts));
}

DPAR_API DPARI_COLD dpar_status dpar_heads_init(dpar_heads *heads, int32_t queries, int32_t groups,
                                                int32_t ranks, int32_t rule, dpar_why *why)
{
    const int strict = rule == DPAR_HEADS_DIVIDE;
    if (queries < 1 || groups < 1 || ranks < 1 ||
        (rule != DPAR_SPLIT_EVEN && rule != DPAR_SPLIT_CHUNK && !strict)) {
        return dpari_wrong(
            why,
            "queries %d, groups %d and ranks %d must be at least 1, rule %d CHUNK, EVEN or DIVIDE",
            queries, groups, ranks, rule);
    }
    if (queries % groups != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "%d key-value heads do not divide %d query heads",
                         groups, queries);
    }
    if (strict && (groups >= ranks ? groups % ranks != 0 : ranks % groups != 0)) {
        return dpari_say(DPAR_E_DIVIDE, why,
                         "%d key-value heads and tp=%d: one must be a multiple of the other",
                         groups, ranks);
    }
    if (strict && queries % ranks != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "tp=%d does not divide %d attention heads", ranks,
                         queries);
    }
    heads->queries = queries;
    heads->groups = groups;
    heads->ranks = ranks;
    heads->rule = strict ? DPAR_SPLIT_EVEN : rule;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_heads_share dpar_heads_local(const dpar_heads *heads, int32_t rank)
{
    dpar_heads_share s;
    int32_t each = heads->queries / heads->groups, first, among;
    dpari_zero(&s, sizeof(s));
    if (rank < 0 || rank >= heads->ranks) {
        return s;
    }
    if (heads->groups >= heads->ranks) {
        s.first_group = dpari_heads_cut(heads->rule, heads->groups, heads->ranks, rank);
        s.groups =
            dpari_heads_cut(heads->rule, heads->groups, heads->ranks, rank + 1) - s.first_group;
        s.first_query = s.first_group * each;
        s.queries = s.groups * each;
        s.copies = s.groups > 0;
    } else { /* ranks are dealt to groups by EVEN, so that each group has some */
        s.first_group = dpari_even_of(heads->ranks, heads->groups, rank);
        s.groups = 1;
        first = dpari_heads_cut(DPAR_SPLIT_EVEN, heads->ranks, heads->groups, s.first_group);
        among = dpari_heads_cut(DPAR_SPLIT_EVEN, heads->ranks, heads->groups, s.first_group + 1) -
                first;
        s.copy = rank - first;
        s.copies = among;
        s.first_query = dpari_heads_cut(heads->rule, each, among, s.copy);
        s.queries = dpari_heads_cut(heads->rule, each, among, s.copy + 1) - s.first_query;
        s.first_query += s.first_group * each;
    }
    return s;
}

/* ---- fused weights --------------------------------------------------------------------------- */

DPAR_API DPARI_COLD int dpar_heads_rows(const dpar_heads *heads, int32_t rank, int32_t order,
                                        int64_t width, int32_t n, int64_t rows[2])
{
    dpar_heads_share s = dpar_heads_local(heads, rank);
    int64_t each = heads->queries / heads->groups,
            all = (int64_t)heads->queries + 2 * (int64_t)heads->groups;
    int64_t run[3][2];
    int32_t i, runs = 0;
    if (s.groups == 0 || width < 1 || width > INT64_MAX / all || n < 0) {
        return 0;
    }
    if (order == DPAR_HEADS_QKV_BY_KIND) {
        for (i = 0; i < 3; i++) {
            run[i][0] = i == 0 ? s.first_query
                               : heads->queries + (i - 1) * (int64_t)heads->groups + s.first_group;
            run[i][1] = run[i][0] + (i == 0 ? s.queries : s.groups);
        }
    } else { /* a rank with several groups has all queries of these groups */
        run[0][0] = s.first_group * (each + 2) + (s.first_query - s.first_group * each);
        run[0][1] = run[0][0] + s.queries;
        run[1][0] = s.first_group * (each + 2) + each;
        run[1][1] = (s.first_group + s.groups) * (each + 2);
        if (s.groups > 1) {
            run[0][1] = run[1][0];
        }
        run[2][0] = run[2][1] = run[1][1];
    }
    for (i = 0; i < 3; i++) { /* ranges that touch become one */
        if (runs > 0 && run[runs - 1][1] == run[i][0]) {
            run[runs - 1][1] = run[i][1];
        } else if (run[i][1] > run[i][0]) {
            run[runs][0] = run[i][0];
            run[runs++][1] = run[i][1];
        }
    }
    if (n >= runs) {
        return 0;
    }
    rows[0] = run[n][0] * width;
    rows[1] = run[n][1] * width;
    return 1;
}

DPARI_API DPARI_COLD dpar_status dpari_ulysses_counts(const dpar_split *seq,
                                                      const dpar_split *heads, int32_t rank,
                                                      int64_t width, int64_t *send,
                                                      int64_t *send_at, int64_t *receive,
                                                      int64_t *receive_at, dpar_why *why)
{
    int64_t all, tokens, mine, sent = 0, received = 0;
    int32_t q;
    if (seq->parts != heads->parts || rank < 0 || rank >= seq->parts || width < 1) {
        return dpari_wrong(why,
                           "rank=%d is not one of %d parts of the sequence, the heads have %d "
                           "parts, or width=%ld is below 1",
                           rank, seq->parts, heads->parts, width);
    }
    if (!dpari_mul(seq->count, heads->count, &all) || !dpari_mul(all, width, &all)) {
        return dpari_say(DPAR_E_RANGE, why, "%ld tokens x %ld heads x %ld exceed 2^63", seq->count,
                         heads->count, width);
    }
    tokens = dpar_split_part_count(seq, rank);
    mine = dpar_split_part_count(heads, rank);
    for (q = 0; q < seq->parts; q++) {
        int64_t out = tokens * dpar_split_part_count(heads, q) * width;
        int64_t in = dpar_split_part_count(seq, q) * mine * width;
        if (send != NULL) {
            send[q] = out;
        }
        if (send_at != NULL) {
            send_at[q] = sent;
        }
        if (receive != NULL) {
            receive[q] = in;
        }
        if (receive_at != NULL) {
            receive_at[q] = received;
        }
        sent += out;
        received += in;
    }
    return DPAR_OK;
}

/* ---- vocabulary ------------------------------------------------------------------------------ */

DPAR_API DPARI_COLD dpar_status dpar_vocab_init(dpar_vocab *vocab, int64_t count, int64_t added,
                                                int64_t multiple, int32_t ranks, dpar_why *why)
{
    const int64_t limit = INT64_C(1) << 61;
    int64_t padded, all;
    if (count < 0 || added < 0 || multiple < 1 || ranks < 1) {
        return dpari_wrong(
            why, "count %ld and added %ld must be at least 0, multiple %ld and ranks %d at least 1",
            count, added, multiple, ranks);
    }
    if (count > limit || added > limit || multiple > limit / 4) {
        return dpari_say(DPAR_E_RANGE, why,
                         "count=%ld and added=%ld must be at most 2^61, multiple=%ld at most 2^59",
                         count, added, multiple);
    }
    padded = dpari_ceil_div(count, multiple) * multiple;
    all = dpari_ceil_div(padded + added, multiple) * multiple;
    if (padded % ranks != 0 || (all - padded) % ranks != 0) {
        return dpari_say(
            DPAR_E_DIVIDE, why,
            "%ld and %ld rows do not split evenly over %d ranks: choose another multiple", padded,
            all - padded, ranks);
    }
    vocab->count = count;
    vocab->added = added;
    vocab->padded = padded;
    vocab->padded_added = all - padded;
    vocab->ranks = ranks;
    return DPAR_OK;
}

DPAR_API int64_t dpar_vocab_row_count(const dpar_vocab *vocab)
{
    return vocab->padded / vocab->ranks + vocab->padded_added / vocab->ranks;
}

DPAR_API int64_t dpar_vocab_row(const dpar_vocab *vocab, int32_t rank, int64_t id)
{
    int64_t each = vocab->padded / vocab->ranks, more = vocab->padded_added / vocab->ranks, row;
    if (id < 0 || id >= vocab->count + vocab->added || rank < 0 || rank >= vocab->ranks) {
        return -1;
    }
    if (id < vocab->count) {
        row = id - rank * each;
        return row >= 0 && row < each ? row : -1;
    }
    row = id - vocab->count - rank * more;
    return row >= 0 && row < more ? each + row : -1;
}

DPAR_API int64_t dpar_vocab_id(const dpar_vocab *vocab, int32_t rank, int64_t row)
{
    int64_t each = vocab->padded / vocab->ranks, more = vocab->padded_added / vocab->ranks, id;
    if (row < 0 || row >= each + more || rank < 0 || rank >= vocab->ranks) {
        return -1;
    }
    if (row < each) {
        id = rank * each + row;
        return id < vocab->count ? id : -1;
    }
    id = rank * more + row - each;
    return id < vocab->added ? vocab->count + id : -1;
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* Counts the layers before position v of the pipeline, whose positions are the chunks of all stages
 * in order. `rest` is the number of layers that first_layers and last_layers do not fix, embedding
 * and loss included if they count as layers. */
static int64_t dpari_stage_before(const dpar_stage_layers_desc *s, int32_t chunks, int64_t rest,
                                  int64_t v)
{
    int64_t round = v / s->stages, in = v % s->stages, others = s->stages, plain, before = 0;
    others -= (s->first_layers > 0) + (s->last_layers > 0);
    plain = round * others + dpari_most(0, in - (s->first_layers > 0)); /* chunks before v of the
                                                                           stages that are not
                                                                           fixed */
    if (others > 0) {
        before = rest / (others * chunks) * plain + dpari_least(plain, rest % (others * chunks));
    }
    if (s->first_layers > 0) {
        before += s->first_layers / chunks * (round + (in > 0));
    }
    return before + s->last_layers / chunks * round;
}

static dpar_status dpari_stages_check(const dpar_stage_layers_desc *s, int32_t chunks, int64_t rest,
                                      dpar_why *why)
{
    int32_t given = (s->first_layers > 0) + (s->last_layers > 0);
    if (s->layers < 0 || s->stages < 1 || chunks < 1 || s->first_layers < 0 || s->last_layers < 0) {
        return dpari_wrong(
            why,
            "layers=%d, first_layers=%d and last_layers=%d must be at least 0, stages=%d "
            "and chunks=%d at least 1",
            s->layers, s->first_layers, s->last_layers, s->stages, chunks);
    }
    if (s->embedding < 0 || s->embedding > 1 || s->loss < 0 || s->loss > 1 || s->v_shape < 0 ||
        s->v_shape > 1) {
        return dpari_wrong(why, "embedding=%d, loss=%d, v_shape=%d: each must be 0 or 1",
                           s->embedding, s->loss, s->v_shape);
    }
    if (given > 0 && (s->v_shape || s->embedding || s->loss)) {
        return dpari_wrong(why,
                           "first_layers=%d, last_layers=%d exclude embedding, loss and v_shape",
                           s->first_layers, s->last_layers);
    }
    if (given > s->stages || rest < 0 || (given == s->stages && rest > 0)) {
        return dpari_say(DPAR_E_DIVIDE, why,
                         "first_layers=%d and last_layers=%d do not fit %d layers on %d stages",
                         s->first_layers, s->last_layers, s->layers, s->stages);
    }
    if (s->first_layers % chunks != 0 || s->last_layers % chunks != 0) {
        return dpari_say(DPAR_E_DIVIDE, why,
                         "%d chunks do not divide first_layers=%d and last_layers=%d", chunks,
                         s->first_layers, s->last_layers);
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_stage_layers(const dpar_stage_layers_desc *desc, int32_t stage,
                                                  int32_t chunk, int32_t *first, int32_t *end,
                                                  dpar_why *why)
{
    int32_t chunks = desc->chunks == 0 ? 1 : desc->chunks;
    int64_t rest = (int64_t)desc->layers + desc->embedding + desc->loss - desc->first_layers -
                   desc->last_layers,
            v, from, to;
    dpar_status st = dpari_stages_check(desc, chunks, rest, why);
    if (st == DPAR_OK && (stage < 0 || stage >= desc->stages || chunk < 0 || chunk >= chunks)) {
        st = dpari_wrong(why, "chunk %d of stage %d: there are %d chunks and %d stages", chunk,
                         stage, chunks, desc->stages);
    }
    if (st != DPAR_OK) {
        return st;
    }
    v = (int64_t)chunk * desc->stages +
        (desc->v_shape && chunk % 2 ? desc->stages - 1 - stage : stage);
    from = dpari_stage_before(desc, chunks, rest, v) - desc->embedding;
    to = dpari_stage_before(desc, chunks, rest, v + 1) - desc->embedding;
    *first = (int32_t)dpari_most(0, dpari_least(from, desc->layers));
    *end = (int32_t)dpari_most(0, dpari_least(to, desc->layers));
    return DPAR_OK;
}
