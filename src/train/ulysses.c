/* SPDX-License-Identifier: MIT-0 */
/* Attention by exchanging tokens for heads. The exchange of an array has two implementations: each
 * rank reads its part directly from the arrays of the other ranks (peer_arrays.h), or the parts are
 * packed and sent with an all-to-all-v. Both give the same bits. Ranks read directly if the arrays
 * of all ranks are in memory that the others can read. From heads to tokens, copies of a group are
 * added in rank order.
 *
 * dpar_attention_ulysses fills in the functions of a plan (attention_private.h); sequence.c calls
 * them. */
#include "ulysses.h"

#include "../base/arith.h"
#include "../comm/agree.h"
#include "../comm/memory_calls.h"
#include "../comm/peer_arrays.h"
#include "../host/elements.h"
#include "../host/kernel.h"
#include "../index/index_private.h"
#include "attention_private.h"

/* ---- one array ------------------------------------------------------------------------------- */

enum { DPARI_ULYSSES_ARRAYS = 4 };

/* Describes the exchange of one array: its tokens and heads. */
typedef struct dpari_ulysses_layer {
    /* If ranks do not have consecutive tokens in rank order (ZIGZAG, CYCLIC, BLOCK_CYCLIC,
     * STRIDED), the all-to-all needs one more copy. */
    dpar_split tokens;
    dpar_heads heads;
    int32_t of_groups; /* 1 for heads of keys and values, 0 for heads of queries */
    int32_t type;
    int64_t width; /* elements per token and head */
} dpari_ulysses_layer;

/* The exchange of one array on this rank. */
typedef struct dpari_ulysses {
    dpari_ulysses_layer layer;
    int64_t tokens, whole; /* number of tokens of this rank, and of all ranks */
    /* number of heads of the array, which before the exchange is [tokens][heads][width] */
    int32_t heads;
    /* first head and number of heads of this rank; after the exchange the array is
     * [whole][mine][width] */
    int32_t first, mine;
    dpar_comm *comm;
    int64_t *send, *send_at, *receive, *receive_at; /* [ranks] for the all-to-all, in elements */
    int64_t *cuts; /* [ranks + 1] number of heads of all lower ranks, counting each copy */
    /* [ranks] address of each rank's part, followed by [ranks] addresses of copies that are added
     */
    const void **piece;
    dpari_peer *peer; /* [ranks] */
    int32_t tag;      /* even number from a hash of the layer, to which the direction is added */
    void *packed;     /* parts that are sent to or received from other ranks */
    void *ordered;    /* all tokens sorted by rank; NULL if that is their own order */
} dpari_ulysses;

/* Returns the number of heads of a rank. Sets *first to its first head unless first is NULL. */
static int32_t dpari_ulysses_heads(const dpari_ulysses_layer *u, int32_t rank, int32_t *first)
{
    const dpar_heads_share share = dpar_heads_local(&u->heads, rank);
    if (first != NULL) {
        *first = u->of_groups ? share.first_group : share.first_query;
    }
    return u->of_groups ? share.groups : share.queries;
}

/* Returns the number of heads of the array. */
static int32_t dpari_ulysses_all(const dpari_ulysses_layer *u)
{
    return u->of_groups ? u->heads.groups : u->heads.queries;
}

/* Returns the number of heads of all ranks, counting each copy. */
static int64_t dpari_ulysses_held(const dpari_ulysses_layer *u)
{
    int64_t held = 0;
    int32_t i;
    for (i = 0; i < u->tokens.parts; i++) {
        held += dpari_ulysses_heads(u, i, NULL);
    }
    return held;
}

/* Checks that the sizes in bytes of an exchange do not overflow. */
static dpar_status dpari_ulysses_fits(const dpari_ulysses_layer *u, dpar_why *why)
{
    int64_t room;
    if (!dpari_mul(u->tokens.count, dpari_ulysses_held(u), &room) ||
        !dpari_mul(room, u->width, &room) || !dpari_mul(room, 64, &room)) {
        return dpari_say(DPAR_E_RANGE, why,
                         "ulysses: %ld tokens, %ld heads and width %ld are too large together",
                         u->tokens.count, dpari_ulysses_held(u), u->width);
    }
    return DPAR_OK;
}

/* Describes in u how an array of a layer is exchanged. The defaults of the layer are filled in. */
static DPARI_COLD dpar_status dpari_ulysses_of(const dpar_attention_desc *layer, int32_t array,
                                               dpari_ulysses_layer *u, dpar_why *why)
{
    const int64_t all = layer->tokens.ends[layer->tokens.docs];
    dpar_status st;
    dpari_zero(u, sizeof *u);
    u->of_groups = array == DPAR_ATTENTION_K || array == DPAR_ATTENTION_V;
    u->type = layer->type;
    u->width =
        array == DPAR_ATTENTION_Q || array == DPAR_ATTENTION_K ? layer->width : layer->value_width;
    st = dpar_heads_init(&u->heads, layer->heads, layer->groups, layer->tokens.ranks,
                         layer->heads_chunked ? DPAR_SPLIT_CHUNK : DPAR_SPLIT_EVEN, why);
    if (st == DPAR_OK && layer->token_split == NULL) {
        st = dpar_split_init(&u->tokens, layer->tokens.rule, all, layer->tokens.ranks, 1, why);
    } else if (st == DPAR_OK) {
        u->tokens = *layer->token_split;
        if (u->tokens.count != all || u->tokens.parts != layer->tokens.ranks) {
            st = dpari_wrong(why,
                             "ulysses: token_split has %ld tokens in %d parts, but the layer has "
                             "%ld tokens on %d ranks",
                             u->tokens.count, u->tokens.parts, all, layer->tokens.ranks);
        }
    }
    return st;
}

static DPARI_COLD dpar_status dpari_ulysses_check(const dpar_attention_desc *layer, dpar_why *why)
{
    dpari_ulysses_layer u;
    int32_t i;
    dpar_status st = DPAR_OK;
    for (i = 0; i < DPARI_ULYSSES_ARRAYS && st == DPAR_OK; i++) {
        st = dpari_ulysses_of(layer, i, &u, why);
        if (st == DPAR_OK) {
            st = dpari_ulysses_fits(&u, why);
        }
    }
    return st;
}

/* Returns the number of bytes that this rank sends to heads, or to tokens if back is 1. */
static int64_t dpari_ulysses_sent(const dpari_ulysses *ulysses, int back)
{
    const dpari_ulysses_layer *u = &ulysses->layer;
    const int64_t each = u->width * dpar_type_bytes(u->type);
    if (back) {
        return each * ulysses->mine * (ulysses->whole - ulysses->tokens);
    }
    return each * ulysses->tokens * (dpari_ulysses_held(u) - ulysses->mine);
}

/* Assigns memory to an exchange: `buffers` for arrays of elements, `behind` for all other arrays.
 */
static void dpari_ulysses_lay_one(dpari_ulysses *ulysses, const dpar_comm *comm, dpari_room *behind,
                                  dpari_room *buffers)
{
    const dpari_ulysses_layer *u = &ulysses->layer;
    const int64_t counts = 8 * (int64_t)comm->size, each = u->width * dpar_type_bytes(u->type);
    ulysses->tokens = dpar_split_part_count(&u->tokens, comm->rank);
    ulysses->whole = u->tokens.count;
    ulysses->heads = dpari_ulysses_all(u);
    ulysses->mine = dpari_ulysses_heads(u, comm->rank, &ulysses->first);
    ulysses->send = (int64_t *)dpari_room_take(behind, counts, 1);
    ulysses->send_at = (int64_t *)dpari_room_take(behind, counts, 1);
    ulysses->receive = (int64_t *)dpari_room_take(behind, counts, 1);
    ulysses->receive_at = (int64_t *)dpari_room_take(behind, counts, 1);
    ulysses->cuts = (int64_t *)dpari_room_take(behind, counts + 8, 1);
    ulysses->piece = (const void **)dpari_room_take(behind, 2 * comm->size, sizeof *ulysses->piece);
    ulysses->peer = (dpari_peer *)dpari_room_take(behind, comm->size, sizeof *ulysses->peer);
    ulysses->packed = dpari_room_take(buffers, ulysses->tokens * dpari_ulysses_held(u) * each, 1);
    if (!dpari_split_in_order(&u->tokens)) {
        ulysses->ordered = dpari_room_take(buffers, ulysses->whole * ulysses->mine * each, 1);
    }
}

/* Computes the counts of the all-to-all. If several ranks hold a copy of a head, each copy counts
 * as a separate head. */
static dpar_status dpari_ulysses_count(dpari_ulysses *ulysses, dpar_why *why)
{
    const dpari_ulysses_layer *u = &ulysses->layer;
    dpar_split held;
    int32_t i;
    dpar_status st;
    ulysses->cuts[0] = 0;
    for (i = 0; i < u->tokens.parts; i++) {
        ulysses->cuts[i + 1] = ulysses->cuts[i] + dpari_ulysses_heads(u, i, NULL);
    }
    st = dpar_split_init_ragged(&held, u->tokens.parts, ulysses->cuts, why);
    if (st == DPAR_OK) {
        st = dpari_ulysses_counts(&u->tokens, &held, ulysses->comm->rank, u->width, ulysses->send,
                                  ulysses->send_at, ulysses->receive, ulysses->receive_at, why);
    }
    ulysses->send[ulysses->comm->rank] = 0; /* the rank's own piece is copied, not sent */
    ulysses->receive[ulysses->comm->rank] = 0;
    return st;
}

/* Lists how the tokens are divided, which must be equal on all ranks. */
static DPARI_COLD void dpari_ulysses_state_tokens(dpari_facts *facts, const dpari_ulysses_layer *u)
{
    int32_t i;
    dpari_fact(facts, "the rule of the cut", 0, u->tokens.rule);
    dpari_fact(facts, "the block of the cut", 0, u->tokens.block);
    for (i = 0; i < u->tokens.parts; i++) {
        dpari_fact(facts, "the first token of rank #", i, dpar_split_part_first(&u->tokens, i));
        dpari_fact(facts, "the number of tokens of rank #", i,
                   dpar_split_part_count(&u->tokens, i));
    }
}

/* Lists the values that describe an exchange. The tag is made from their hash. */
static DPARI_COLD void dpari_ulysses_state_one(dpari_facts *facts, const void *given)
{
    const dpari_ulysses_layer *u = (const dpari_ulysses_layer *)given;
    dpari_ulysses_state_tokens(facts, u);
    dpari_fact(facts, "tokens.count", 0, u->tokens.count);
    dpari_fact(facts, "heads.queries", 0, u->heads.queries);
    dpari_fact(facts, "heads.groups", 0, u->heads.groups);
    dpari_fact(facts, "heads.rule", 0, u->heads.rule);
    dpari_fact(facts, "of_groups", 0, u->of_groups != 0);
    dpari_fact(facts, "width", 0, u->width);
    dpari_fact_type(facts, "type", 0, u->type);
}

/* Checks that the arrays are not NULL (in and out are 1). Otherwise breaks the communicator, so
 * that the other ranks do not wait for this one. */
static dpar_status dpari_ulysses_given(const dpari_ulysses *ulysses, int in, int out)
{
    if (in && out) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(
        ulysses->comm, DPAR_E_ARG,
        "rank %d: in or out of an exchange of %ld tokens and %d heads is NULL", ulysses->comm->rank,
        ulysses->whole, ulysses->heads);
}

/* Copies rows of `bytes` bytes. The steps are the bytes from one row to the next. */
static void dpari_ulysses_rows(void *to, int64_t to_step, const void *from, int64_t from_step,
                               int64_t bytes, int64_t rows, int32_t stream)
{
    unsigned char *t = (unsigned char *)to;
    const unsigned char *f = (const unsigned char *)from;
    int64_t i;
    for (i = 0; i < rows && bytes > 0; i++) {
        const unsigned char *next = i + 1 < rows ? f + from_step : f;
        dpari_kern_row(t, f, next, bytes, stream);
        t += i + 1 < rows ? to_step : 0;
        f = next;
    }
}

/* Copies all tokens from the order of ranks to the order of the sequence, or with `back` from the
 * order of the sequence to that of ranks. */
static DPARI_COLD dpar_status dpari_ulysses_order(const dpari_ulysses *ulysses, void *to,
                                                  const void *from, int back)
{
    const int64_t row = ulysses->mine * ulysses->layer.width;
    const int32_t type = ulysses->layer.type;
    int64_t at = 0, local, i, run;
    dpar_status st = DPAR_OK;
    int32_t rank;
    for (rank = 0; rank < ulysses->comm->size && row > 0; rank++) {
        for (local = 0; st == DPAR_OK; local += run) {
            int64_t to_token, from_token;
            i = dpar_split_global(&ulysses->layer.tokens, rank, local, &run);
            if (i < 0) {
                break;
            }
            to_token = back ? at : i;
            from_token = back ? i : at;
            st = dpari_do_copy(ulysses->comm, dpari_seq_at(to, to_token * row, type),
                               dpari_seq_in(from, from_token * row, type),
                               run * row * dpar_type_bytes(type));
            at += run;
        }
    }
    return st;
}

/* Packs this rank's tokens, sorted by the ranks of their heads. Copies the rank's own piece
 * directly to its place in `to`. */
static dpar_status dpari_ulysses_cut(const dpari_ulysses *ulysses, const void *in, void *to)
{
    const int64_t width = ulysses->layer.width;
    dpar_status st = DPAR_OK;
    int32_t rank, first;
    for (rank = 0; rank < ulysses->comm->size && ulysses->tokens > 0 && st == DPAR_OK; rank++) {
        const int64_t heads = dpari_ulysses_heads(&ulysses->layer, rank, &first);
        const int own = rank == ulysses->comm->rank;
        void *piece =
            own ? dpari_seq_at(to, ulysses->receive_at[rank], ulysses->layer.type)
                : dpari_seq_at(ulysses->packed, ulysses->send_at[rank], ulysses->layer.type);
        const void *from = dpari_seq_in(in, first * width, ulysses->layer.type);
        st = dpari_do_rows(ulysses->comm, piece, heads * width, from, ulysses->heads * width,
                           heads * width, ulysses->tokens, ulysses->layer.type, DPAR_COPY);
    }
    return st;
}

/* Reads this rank's heads of all tokens directly from the arrays of the other ranks. Each rank
 * begins with its own array, so that the ranks do not all read from the same rank at once. */
static void dpari_ulysses_take(const dpari_ulysses *ulysses, const dpari_peers *peers, void *out)
{
    const int64_t width = ulysses->layer.width, bytes = dpar_type_bytes(ulysses->layer.type);
    const int64_t row = ulysses->mine * width, wide = ulysses->heads * width;
    const int32_t stream = dpari_peers_stream(peers, ulysses->whole * row * bytes);
    int64_t local, i, run;
    int32_t k;
    for (k = 0; k < ulysses->comm->size && row > 0; k++) {
        const int32_t rank = (ulysses->comm->rank + k) % ulysses->comm->size;
        const void *in = dpari_peers_at(peers, rank, 0);
        for (local = 0;; local += run) {
            i = dpar_split_global(&ulysses->layer.tokens, rank, local, &run);
            if (i < 0) {
                break;
            }
            dpari_ulysses_rows(
                dpari_seq_at(out, i * row, ulysses->layer.type), row * bytes,
                dpari_seq_in(in, local * wide + ulysses->first * width, ulysses->layer.type),
                wide * bytes, row * bytes, run, stream);
        }
    }
    dpari_kern_rows_end(stream);
}

/* Publishes the array of this rank, and finds out whether all ranks can read each other's arrays
 * directly (peers->direct). */
static dpar_status dpari_ulysses_open(dpari_ulysses *ulysses, const void *in, int64_t elements,
                                      int backward, dpari_peers *peers)
{
    dpari_peers_array a;
    a.at = in;
    a.bytes = elements * dpar_type_bytes(ulysses->layer.type);
    return dpari_peers_open(peers, ulysses->comm, (int32_t)(ulysses->tag ^ (backward != 0)), &a, 1,
                            ulysses->peer);
}

/* Ends the direct reads: waits until all ranks have read. counts: [ranks] number of elements that
 * each other rank read from this rank. */
static dpar_status dpari_ulysses_end(const dpari_ulysses *ulysses, const dpari_peers *peers,
                                     const int64_t *counts)
{
    int64_t n = 0;
    int32_t i;
    for (i = 0; i < ulysses->comm->size; i++) {
        n += counts[i]; /* the count of this rank is 0 */
    }
    return dpari_peers_close(peers, n * dpar_type_bytes(ulysses->layer.type));
}

/* Exchanges tokens for heads: computes out[whole][mine][width] from in[tokens][heads][width]. */
static DPARI_COLD dpar_status dpari_ulysses_there(dpari_ulysses *plan, const void *in, void *out)
{
    dpar_status st =
        dpari_ulysses_given(plan, plan->tokens == 0 || in != NULL, plan->mine == 0 || out != NULL);
    dpari_peers peers;
    void *to;
    if (st == DPAR_OK) {
        st =
            dpari_ulysses_open(plan, in, plan->tokens * plan->heads * plan->layer.width, 0, &peers);
    }
    if (st != DPAR_OK) {
        return st;
    }
    if (peers.direct) {
        dpari_ulysses_take(plan, &peers, out);
        return dpari_ulysses_end(plan, &peers, plan->send);
    }
    to = plan->ordered != NULL ? plan->ordered : out;
    st = dpari_ulysses_cut(plan, in, to);
    if (st == DPAR_OK) {
        st = dpar_all_to_all_v(plan->comm, plan->packed, plan->send, plan->send_at, to,
                               plan->receive, plan->receive_at, plan->layer.type, NULL);
    }
    return st == DPAR_OK && to != out ? dpari_ulysses_order(plan, out, to, 0) : st;
}

/* Adds the copies of head h in rank order, for `run` tokens, which begin at token `local` of this
 * rank and at row `at` of each piece[rank]. If heads have copies, each rank holds at most one head,
 * so that a row of a piece is a row of that head. */
static void dpari_ulysses_unite(const dpari_ulysses *ulysses, int32_t h, int64_t local, int64_t at,
                                int64_t run, void *out)
{
    const dpari_ulysses_layer *u = &ulysses->layer;
    const int64_t step = u->width * dpar_type_bytes(u->type);
    const void **row = ulysses->piece + ulysses->comm->size;
    int32_t rank, first, n = 0;
    int64_t i;
    for (rank = 0; rank < ulysses->comm->size; rank++) {
        if (dpari_ulysses_heads(u, rank, &first) > 0 && first == h) {
            row[n++] = dpari_seq_in(ulysses->piece[rank], at * u->width, u->type);
        }
    }
    for (i = 0; i < run; i++) {
        void *to[1];
        to[0] = dpari_seq_at(out, ((local + i) * ulysses->heads + h) * u->width, u->type);
        dpari_kern_reduce(to, 1, row, n, u->width, u->type, DPAR_SUM, 0);
        for (rank = 0; rank < n && i + 1 < run; rank++) {
            row[rank] = (const unsigned char *)row[rank] + step;
        }
    }
}

/* Computes this rank's tokens with all heads directly from piece[rank] of each rank, which has all
 * tokens with the heads of that rank. */
static void dpari_ulysses_join(const dpari_ulysses *ulysses, void *out, int32_t stream)
{
    const int32_t type = ulysses->layer.type, size = ulysses->comm->size, me = ulysses->comm->rank;
    const int64_t width = ulysses->layer.width, each = width * dpar_type_bytes(type);
    int64_t local, i, run;
    int32_t k, first;
    for (local = 0;; local += run) {
        i = dpar_split_global(&ulysses->layer.tokens, me, local, &run);
        if (i < 0) {
            break;
        }
        if (ulysses->cuts[size] > ulysses->heads) { /* several ranks hold a head: add the copies */
            for (k = 0; k < ulysses->heads; k++) {
                dpari_ulysses_unite(ulysses, k, local, i, run, out);
            }
            continue;
        }
        for (k = 0; k < size; k++) {
            const int32_t rank = (me + k) % size;
            const int64_t heads = dpari_ulysses_heads(&ulysses->layer, rank, &first);
            dpari_ulysses_rows(dpari_seq_at(out, (local * ulysses->heads + first) * width, type),
                               ulysses->heads * each,
                               dpari_seq_in(ulysses->piece[rank], i * heads * width, type),
                               heads * each, heads * each, run, stream);
        }
    }
    dpari_kern_rows_end(stream);
}

/* Adds the n copies of a head that ranks `rank` .. rank + n - 1 hold, for this rank's tokens. The
 * sum replaces the first copy in ulysses->packed. */
static dpar_status dpari_ulysses_add_packed(const dpari_ulysses *ulysses, int32_t rank, int32_t n)
{
    const dpari_ulysses_layer *u = &ulysses->layer;
    const int64_t count = ulysses->tokens * u->width;
    const int32_t me = ulysses->comm->rank;
    dpar_status st = DPAR_OK;
    dpar_mem_reduce r;
    /* this rank's own copy was not received into `packed`, where the other copies are */
    if (me >= rank && me < rank + n) {
        st = dpari_do_copy(ulysses->comm,
                           dpari_seq_at(ulysses->packed, ulysses->send_at[me], u->type),
                           ulysses->piece[me], count * dpar_type_bytes(u->type));
    }
    dpari_zero(&r, sizeof r);
    r.to = dpari_seq_at(ulysses->packed, ulysses->send_at[rank], u->type);
    r.from = r.to;
    r.count = r.stride = count;
    r.parts = n;
    r.to_type = r.from_type = u->type;
    r.sum_type = dpari_wide_type(u->type);
    r.op = DPAR_SUM;
    r.scale = 1.0;
    return st == DPAR_OK && count > 0 ? dpari_do_reduce(ulysses->comm, &r) : st;
}

/* Does what dpari_ulysses_join does, from pieces that have only the tokens of this rank. */
static dpar_status dpari_ulysses_join_packed(const dpari_ulysses *ulysses, void *out)
{
    const dpari_ulysses_layer *u = &ulysses->layer;
    dpar_status st = DPAR_OK;
    int32_t rank, first, next, n;
    for (rank = 0; rank < ulysses->comm->size && st == DPAR_OK; rank += n) {
        const int64_t heads = dpari_ulysses_heads(u, rank, &first) * u->width;
        const void *from = ulysses->piece[rank];
        for (n = 1; heads > 0 && rank + n < ulysses->comm->size; n++) {
            if (dpari_ulysses_heads(u, rank + n, &next) == 0 || next != first) {
                break;
            }
        }
        if (n > 1) {
            st = dpari_ulysses_add_packed(ulysses, rank, n);
            from = dpari_seq_in(ulysses->packed, ulysses->send_at[rank], u->type);
        }
        if (st == DPAR_OK) {
            st = dpari_do_rows(ulysses->comm, dpari_seq_at(out, first * u->width, u->type),
                               ulysses->heads * u->width, from, heads, heads, ulysses->tokens,
                               u->type, DPAR_COPY);
        }
    }
    return st;
}

/* Exchanges heads for tokens: computes out[tokens][heads][width] from in[whole][mine][width].
 * Copies of a head are added. */
static DPARI_COLD dpar_status dpari_ulysses_back(dpari_ulysses *plan, const void *in, void *out)
{
    dpar_status st =
        dpari_ulysses_given(plan, plan->mine == 0 || in != NULL, plan->tokens == 0 || out != NULL);
    dpari_peers peers;
    int32_t i, stream;
    if (st == DPAR_OK) {
        st = dpari_ulysses_open(plan, in, plan->whole * plan->mine * plan->layer.width, 1, &peers);
    }
    if (st != DPAR_OK) {
        return st;
    }
    if (peers.direct) {
        for (i = 0; i < plan->comm->size; i++) {
            plan->piece[i] = dpari_peers_at(&peers, i, 0);
        }
        stream = dpari_peers_stream(&peers, plan->tokens * plan->heads * plan->layer.width *
                                                dpar_type_bytes(plan->layer.type));
        dpari_ulysses_join(plan, out, stream);
        return dpari_ulysses_end(plan, &peers, plan->receive);
    }
    if (plan->ordered != NULL) {
        st = dpari_ulysses_order(plan, plan->ordered, in, 1);
        in = plan->ordered;
    }
    if (st != DPAR_OK) {
        return st;
    }
    st = dpar_all_to_all_v(plan->comm, in, plan->receive, plan->receive_at, plan->packed,
                           plan->send, plan->send_at, plan->layer.type, NULL);
    if (st == DPAR_OK) {
        for (i = 0; i < plan->comm->size; i++) { /* the rank's own piece is in `in` */
            if (i == plan->comm->rank) {
                plan->piece[i] = dpari_seq_in(in, plan->receive_at[i], plan->layer.type);
            } else {
                plan->piece[i] = dpari_seq_in(plan->packed, plan->send_at[i], plan->layer.type);
            }
        }
        st = dpari_ulysses_join_packed(plan, out);
    }
    return st;
}

/* ---- a layer --------------------------------------------------------------------------------- */

/* The state of the method in a plan. */
typedef struct dpari_ulysses_state {
    /* attention on this rank, with all tokens and the heads of this rank */
    dpari_attention one;
    /* the exchange of each array; if values are as wide as keys, V uses that of K, and OUT that of
     * Q */
    dpari_ulysses *of[DPARI_ULYSSES_ARRAYS];
    void *out_gradient; /* of this rank's heads */
    /* gradients of q, k and v in the type of sums, and in the layer's type; the same memory if the
     * types are equal */
    void *sums[3], *gradient[3];
} dpari_ulysses_state;

static dpari_ulysses_state *dpari_ulysses_state_of(const dpari_attention *plan)
{
    return (dpari_ulysses_state *)plan->of_way;
}

/* Returns the number of elements of q, k, v or out, with all tokens and this rank's heads. */
static int64_t dpari_ulysses_elements(const dpari_attention *one, int32_t array)
{
    const dpar_attention_desc *layer = &one->head.layer;
    const int64_t rows = one->head.tokens;
    switch (array) {
    case DPAR_ATTENTION_Q: return rows * layer->heads * layer->width;
    case DPAR_ATTENTION_K: return rows * layer->groups * layer->width;
    case DPAR_ATTENTION_V: return rows * layer->groups * layer->value_width;
    default: return rows * layer->heads * layer->value_width;
    }
}

/* Sets the pointers in x to the arrays in `memory` (arrays.saved) that forward saves for backward.
 * Returns their size in bytes. If memory is NULL, only computes the size. */
static int64_t dpari_ulysses_kept(const dpari_attention *one, void *memory,
                                  dpar_attention_arrays *x)
{
    const dpar_attention_desc *layer = &one->head.layer;
    const size_t each = (size_t)dpar_type_bytes(layer->type);
    dpari_room r = dpari_room_of(memory);
    dpari_zero(x, sizeof *x);
    x->q = dpari_room_take(&r, dpari_ulysses_elements(one, DPAR_ATTENTION_Q), each);
    x->k = dpari_room_take(&r, dpari_ulysses_elements(one, DPAR_ATTENTION_K), each);
    x->v = dpari_room_take(&r, dpari_ulysses_elements(one, DPAR_ATTENTION_V), each);
    x->out = dpari_room_take(&r, dpari_ulysses_elements(one, DPAR_ATTENTION_OUT), each);
    x->lse =
        dpari_room_take(&r, one->head.tokens * layer->heads, (size_t)dpar_type_bytes(one->sums));
    return r.used;
}

/* Fills in the plan of attention with all tokens and this rank's heads, and assigns memory to its
 * buffers. */
static dpar_status dpari_ulysses_lay_here(const dpari_attention *plan, const dpari_ulysses_layer *q,
                                          const dpar_comm *comm, dpari_ulysses_state *s,
                                          dpari_room *buffers, dpar_why *why)
{
    const dpar_heads_share share = dpar_heads_local(&q->heads, comm->rank);
    const dpar_packed *t = &plan->head.layer.tokens;
    const size_t type = (size_t)dpar_type_bytes(plan->head.layer.type);
    const size_t sum = (size_t)dpar_type_bytes(plan->sums);
    dpari_attention *one = &s->one;
    dpar_attention_desc *layer = &one->head.layer;
    int32_t i;
    *layer = plan->head.layer;
    layer->method = NULL;
    layer->heads = share.queries;
    layer->groups = share.groups;
    one->comm = plan->comm;
    one->sums = plan->sums;
    one->head.tokens = q->tokens.count;
    one->delta = dpari_room_take(buffers, one->head.tokens * layer->heads, sum);
    s->out_gradient =
        dpari_room_take(buffers, dpari_ulysses_elements(one, DPAR_ATTENTION_OUT), type);
    for (i = 0; i < 3; i++) {
        const int64_t n = dpari_ulysses_elements(one, i);
        s->sums[i] = dpari_room_take(buffers, n, sum);
        s->gradient[i] = type == sum ? s->sums[i] : dpari_room_take(buffers, n, type);
    }
    if (type != sum) {
        one->out = dpari_room_take(buffers, dpari_ulysses_elements(one, DPAR_ATTENTION_OUT), sum);
    }
    return dpar_packed_init(&layer->tokens, t->docs, t->ends, 1, DPAR_SPLIT_CHUNK, why);
}

/* Assigns memory to the state of this method. If behind->at is NULL, only counts bytes, and uses
 * local variables in place of the state. */
static DPARI_COLD dpar_status dpari_ulysses_lay(dpari_attention *plan, const dpar_comm *comm,
                                                dpari_room *behind, dpari_room *buffers,
                                                dpar_why *why)
{
    const int narrow =
        plan->head.layer.value_width == plan->head.layer.width ? 2 : DPARI_ULYSSES_ARRAYS;
    dpari_ulysses_state counted, *s = (dpari_ulysses_state *)dpari_room_take(behind, 1, sizeof *s);
    dpar_attention_arrays x;
    dpari_ulysses_layer q;
    int32_t i;
    dpar_status st = dpari_ulysses_of(&plan->head.layer, DPAR_ATTENTION_Q, &q, why);
    plan->of_way = s;
    s = s != NULL ? s : &counted;
    dpari_zero(s, sizeof *s);
    for (i = 0; i < narrow && st == DPAR_OK; i++) {
        dpari_ulysses none, *e = (dpari_ulysses *)dpari_room_take(behind, 1, sizeof *e);
        s->of[i] = e;
        e = e != NULL ? e : &none;
        dpari_zero(e, sizeof *e);
        e->comm = plan->comm;
        st = dpari_ulysses_of(&plan->head.layer, i, &e->layer, why);
        if (st == DPAR_OK) {
            dpari_ulysses_lay_one(e, comm, behind, buffers);
        }
    }
    if (narrow == 2) {
        s->of[DPAR_ATTENTION_V] = s->of[DPAR_ATTENTION_K];
        s->of[DPAR_ATTENTION_OUT] = s->of[DPAR_ATTENTION_Q];
    }
    if (st == DPAR_OK) {
        st = dpari_ulysses_lay_here(plan, &q, comm, s, buffers, why);
    }
    if (st == DPAR_OK) {
        plan->head.tokens = dpar_split_part_count(&q.tokens, comm->rank);
        plan->head.saved_bytes = dpari_ulysses_kept(&s->one, NULL, &x);
    }
    return st;
}

/* Lists the values of this method that must be equal on all ranks, in addition to the layer's. */
static DPARI_COLD void dpari_ulysses_facts(dpari_facts *facts, const dpar_attention_desc *layer)
{
    dpari_ulysses_layer u;
    if (dpari_ulysses_of(layer, DPAR_ATTENTION_Q, &u, NULL) == DPAR_OK) {
        dpari_ulysses_state_tokens(facts, &u);
        dpari_fact(facts, "heads_chunked", 0, layer->heads_chunked != 0);
    }
}

/* Computes the tags and counts of the exchanges, once all ranks have agreed on the layer. */
static DPARI_COLD dpar_status dpari_ulysses_init(dpari_attention *plan, dpar_why *why)
{
    dpari_ulysses_state *s = dpari_ulysses_state_of(plan);
    int32_t i;
    dpar_status st = DPAR_OK;
    for (i = 0; i < DPARI_ULYSSES_ARRAYS && st == DPAR_OK; i++) {
        dpari_ulysses *e = s->of[i];
        e->tag = (int32_t)(dpari_facts_hash("ulysses", dpari_ulysses_state_one, &e->layer) >> 40);
        st = dpari_ulysses_count(e, why);
    }
    return st;
}

/* Exchanges one array and counts the bytes sent. */
static dpar_status dpari_ulysses_exchange(dpari_attention *plan, int32_t array, int back,
                                          const void *in, void *out)
{
    dpari_ulysses *e = dpari_ulysses_state_of(plan)->of[array];
    const dpar_status st = back ? dpari_ulysses_back(e, in, out) : dpari_ulysses_there(e, in, out);
    if (st == DPAR_OK) {
        plan->head.sent_bytes += dpari_ulysses_sent(e, back);
    }
    return st;
}

DPAR_API dpar_status dpar_attention_exchange(dpar_attention_plan *plan, int32_t array, int back,
                                             const void *in, void *out)
{
    dpari_attention *p = (dpari_attention *)(void *)plan;
    if (p == NULL) {
        return DPAR_E_ARG;
    }
    if (p->head.layer.method != dpar_attention_ulysses || array < DPAR_ATTENTION_Q ||
        array > DPAR_ATTENTION_OUT) {
        return dpari_comm_wrong(
            p->comm,
            "dpar_attention_exchange: array is %d, but must be 0 to %d, with method "
            "dpar_attention_ulysses",
            array, (int32_t)DPAR_ATTENTION_OUT);
    }
    return dpari_ulysses_exchange(p, array, back, in, out);
}

/* Returns a block with the keys and values of all tokens, or with the arrays for their
 * gradients. */
static dpari_seq_block dpari_ulysses_block(const dpari_attention *one, const void *k, const void *v,
                                           void *to_k, void *to_v)
{
    dpari_seq_block b;
    dpari_zero(&b, sizeof b);
    b.own = 1;
    b.hi = b.tokens = one->head.tokens;
    b.k = k;
    b.v = v;
    b.to_k = to_k;
    b.to_v = to_v;
    return b;
}

static DPARI_COLD dpar_status dpari_ulysses_forward(dpari_attention *plan,
                                                    const dpar_attention_arrays *arrays)
{
    dpari_attention *one = &dpari_ulysses_state_of(plan)->one;
    dpar_attention_arrays x;
    dpar_status st;
    (void)dpari_ulysses_kept(one, arrays->saved, &x);
    st = dpari_ulysses_exchange(plan, DPAR_ATTENTION_Q, 0, arrays->q, (void *)(uintptr_t)x.q);
    if (st == DPAR_OK) {
        st = dpari_ulysses_exchange(plan, DPAR_ATTENTION_K, 0, arrays->k, (void *)(uintptr_t)x.k);
    }
    if (st == DPAR_OK) {
        st = dpari_ulysses_exchange(plan, DPAR_ATTENTION_V, 0, arrays->v, (void *)(uintptr_t)x.v);
    }
    if (st == DPAR_OK && one->head.layer.heads > 0) {
        const dpari_seq_block all = dpari_ulysses_block(one, x.k, x.v, NULL, NULL);
        st = dpari_seq_attend(one, &x, &all);
        plan->head.pairs += one->head.pairs;
        one->head.pairs = 0;
        if (st == DPAR_OK && one->out != NULL) {
            st = dpari_seq_round(one, x.out, one->out,
                                 dpari_ulysses_elements(one, DPAR_ATTENTION_OUT));
        }
    }
    if (st == DPAR_OK) {
        st = dpari_ulysses_exchange(plan, DPAR_ATTENTION_OUT, 1, x.out, arrays->out);
    }
    return st;
}

/* Computes the gradients of this rank's heads. */
static dpar_status dpari_ulysses_attend_back(dpari_ulysses_state *s, dpar_attention_arrays *x)
{
    dpari_attention *one = &s->one;
    const dpari_seq_block all = dpari_ulysses_block(one, x->k, x->v, NULL, NULL);
    const dpari_seq_block to = dpari_ulysses_block(one, NULL, NULL, s->sums[1], s->sums[2]);
    int32_t i;
    dpar_status st = DPAR_OK;
    x->out_gradient = s->out_gradient;
    for (i = 0; i < 3 && st == DPAR_OK; i++) {
        st = dpari_do_copy(one->comm, s->sums[i], NULL,
                           dpari_ulysses_elements(one, i) * dpar_type_bytes(one->sums));
    }
    /* a rank without query heads still holds a copy of a group, whose gradient is then 0 */
    if (st == DPAR_OK && one->head.layer.heads > 0) {
        st = dpari_seq_delta(one, x);
        dpari_seq_attend_back(one, x, &all, &to, s->sums[0]);
    }
    for (i = 0; i < 3 && st == DPAR_OK; i++) {
        st = dpari_seq_round(one, s->gradient[i], s->sums[i], dpari_ulysses_elements(one, i));
    }
    return st;
}

static DPARI_COLD dpar_status dpari_ulysses_backward(dpari_attention *plan,
                                                     const dpar_attention_arrays *arrays, void *dq,
                                                     dpari_seq_block *home)
{
    dpari_ulysses_state *s = dpari_ulysses_state_of(plan);
    void *const to[3] = {arrays->q_gradient, arrays->k_gradient, arrays->v_gradient};
    dpar_attention_arrays x;
    int32_t i;
    dpar_status st;
    (void)dq;
    (void)home;
    (void)dpari_ulysses_kept(&s->one, arrays->saved, &x);
    st = dpari_ulysses_exchange(plan, DPAR_ATTENTION_OUT, 0, arrays->out_gradient, s->out_gradient);
    if (st == DPAR_OK) {
        st = dpari_ulysses_attend_back(s, &x);
    }
    for (i = 0; i < 3 && st == DPAR_OK; i++) {
        st = dpari_ulysses_exchange(plan, i, 1, s->gradient[i], to[i]);
    }
    return st;
}

DPAR_API void dpar_attention_ulysses(struct dpari_attention_method *method)
{
    method->number = 2;
    method->whole = 1;
    method->check = dpari_ulysses_check;
    method->state = dpari_ulysses_facts;
    method->lay = dpari_ulysses_lay;
    method->init = dpari_ulysses_init;
    method->forward = dpari_ulysses_forward;
    method->backward = dpari_ulysses_backward;
}
