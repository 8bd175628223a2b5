/* SPDX-License-Identifier: MIT-0 */
/* Exchanges the rows of experts: dispatch, combine and their backward (expert.h).
 *
 * An expert's rows are in the order of ranks and tokens, and results are summed in the order of
 * choices. There are three implementations with the same bits: direct reads from the arrays of the
 * other ranks (peer_arrays.h), packing around an all-to-all-v, and gathers and sums on a device. */
#include "expert_private.h"

#include "../comm/agree.h"
#include "../comm/memory_calls.h"
#include "../host/elements.h"
#include "../host/kernel.h"
#include "layer_calls.h"

/* ---- rows ------------------------------------------------------------------------------------ */

/* Returns the address of a row. */
static void *dpari_expert_at(void *rows, const dpar_experts_desc *layer, int64_t row)
{
    return (unsigned char *)rows + row * layer->width * dpar_type_bytes(layer->type);
}

static const void *dpari_expert_in(const void *rows, const dpar_experts_desc *layer, int64_t row)
{
    return (const unsigned char *)rows + row * layer->width * dpar_type_bytes(layer->type);
}

/* Returns the size of a row in bytes. */
static int64_t dpari_expert_row(const dpar_experts_desc *layer)
{
    return layer->width * dpar_type_bytes(layer->type);
}

/* Computes to = by x from for one row. 16-bit floats are scaled as f32. */
static void dpari_expert_scale(void *to, const void *from, const dpar_experts_desc *layer,
                               double by)
{
    float x[DPARI_ELEMENTS];
    int64_t at, n, i;
    for (at = 0; at < layer->width; at += n) {
        unsigned char *t = (unsigned char *)to + at * dpar_type_bytes(layer->type);
        const unsigned char *f = (const unsigned char *)from + at * dpar_type_bytes(layer->type);
        n = dpari_least(layer->width - at, DPARI_ELEMENTS);
        if (layer->type == DPAR_F64) {
            for (i = 0; i < n; i++) {
                ((double *)to)[at + i] = ((const double *)from)[at + i] * by;
            }
        } else if (layer->type == DPAR_F32) {
            dpari_kern_scale(t, f, by, n);
        } else {
            dpari_kern_convert(x, DPAR_F32, f, layer->type, n);
            dpari_kern_scale(x, x, by, n);
            dpari_kern_convert(t, layer->type, x, DPAR_F32, n);
        }
    }
}

/* The `count` rows that are added for one token, and their weights. */
typedef struct dpari_expert_terms {
    const void **row;
    double *by;
    int32_t count;
} dpari_expert_terms;

/* Computes out = sum of by[j] x row[j], in f64 in the order of j, rounded once. Prefetches the rows
 * of the next token. */
static void dpari_expert_add(const dpar_experts_desc *layer, const dpari_expert_terms *z,
                             const dpari_expert_terms *next, void *out, int32_t stream)
{
    double sum[DPARI_ELEMENTS], x[DPARI_ELEMENTS] = {0.0};
    int64_t at, n, i;
    int32_t j;
    if (layer->type == DPAR_F32 || layer->type == DPAR_F64) {
        dpari_kern_mix(out, z->row, z->by, z->count, next->row, next->count, layer->width,
                       layer->type, stream);
        return;
    }
    for (at = 0; at < layer->width; at += n) {
        n = dpari_least(layer->width - at, DPARI_ELEMENTS);
        dpari_zero(sum, sizeof sum);
        for (j = 0; j < z->count; j++) {
            dpari_elements_load(x, z->row[j], at, n, layer->type);
            for (i = 0; i < DPARI_ELEMENTS; i++) {
                sum[i] += z->by[j] * x[i];
            }
        }
        dpari_elements_store(out, sum, at, n, layer->type);
    }
}

/* Sets z to the rows of the kept choices of a token, which plan->from and plan->fill locate, and to
 * their weights, which are 1 if weight is NULL. Even and odd tokens use different halves of the
 * memory for z, because dpari_expert_sums also needs the next token. */
static void dpari_expert_find(const dpari_experts *plan, const dpari_routing *routing,
                              int64_t token, const void *weight, dpari_expert_terms *z)
{
    const int32_t k = plan->head.layer.choices;
    int64_t i;
    z->row = plan->from + plan->head.layer.experts.count + token % 2 * k;
    z->by = plan->by + token % 2 * k;
    z->count = 0;
    for (i = token * k; i < (token + 1) * k && token < routing->head.tokens; i++) {
        if (routing->head.position[i] >= 0) {
            const int32_t e = routing->expert[i];
            z->row[z->count] = dpari_expert_in(plan->from[e], &plan->head.layer,
                                               routing->head.position[i] + plan->fill[e]);
            z->by[z->count++] =
                weight != NULL
                    ? dpari_element_get(weight, dpari_wide_type(plan->head.layer.type), i)
                    : 1.0;
        }
    }
}

/* Copies the rows of z into `kept`, where backward reads them, and makes z point to the copies. */
static void dpari_expert_keep(const dpari_experts *plan, const dpari_routing *routing,
                              int64_t token, void *kept, dpari_expert_terms *z)
{
    const int32_t k = plan->head.layer.choices;
    int32_t j, n = 0;
    for (j = 0; j < k; j++) {
        const int64_t place = routing->head.position[token * k + j];
        if (place >= 0) {
            void *to = dpari_expert_at(kept, &plan->head.layer, place);
            dpari_kern_row(to, z->row[n], z->row[n], dpari_expert_row(&plan->head.layer), 0);
            z->row[n++] = to;
        }
    }
}

/* Computes out[token], the weighted sum of the token's rows, for all tokens. kept: where the rows
 * are saved; NULL if they are not wanted or already saved. */
static void dpari_expert_sums(const dpari_experts *plan, const dpari_routing *routing,
                              const void *weight, void *kept, void *out, int32_t stream)
{
    dpari_expert_terms z, next;
    int64_t t;
    dpari_expert_find(plan, routing, 0, weight, &next);
    for (t = 0; t < routing->head.tokens; t++) {
        z = next;
        dpari_expert_find(plan, routing, t + 1, weight, &next);
        if (kept != NULL) {
            dpari_expert_keep(plan, routing, t, kept, &z);
        }
        dpari_expert_add(&plan->head.layer, &z, &next, dpari_expert_at(out, &plan->head.layer, t),
                         stream);
    }
    dpari_kern_rows_end(stream);
}

/* Describes a copy of bytes for the device in s. Returns 1, or 0 if there are no bytes, so that the
 * caller can use s for the next copy. */
static int32_t dpari_expert_span(dpar_mem_span *s, void *to, const void *from, int64_t bytes)
{
    dpari_zero(s, sizeof *s);
    s->to = to;
    s->from = from;
    s->count = bytes;
    s->to_type = s->from_type = DPAR_U8;
    s->scale = 1.0;
    return bytes > 0;
}

/* Copies rows from the order of ranks, then experts, to the order of experts, then ranks. With
 * `back`, copies them in the opposite direction. */
static dpar_status dpari_expert_group(const dpari_experts *plan, const dpari_routing *routing,
                                      void *to, const void *from, int back)
{
    const dpar_experts_desc *layer = &plan->head.layer;
    int64_t at = 0;
    int32_t rank, e, n = 0;
    for (rank = 0; rank < plan->comm->size; rank++) {
        for (e = 0; e < plan->head.count; e++) {
            const int64_t piece = rank * (int64_t)plan->head.count + e, row = routing->row[piece];
            void *t = dpari_expert_at(to, layer, back ? at : row);
            const void *f = dpari_expert_in(from, layer, back ? row : at);
            const int64_t bytes = routing->piece[piece] * dpari_expert_row(layer);
            if (plan->comm->mem == NULL) {
                dpari_kern_copy(t, f, bytes, 0);
            } else {
                n += dpari_expert_span(&plan->span[n], t, f, bytes);
            }
            at += routing->piece[piece];
        }
    }
    return n > 0 ? dpari_do_span(plan->comm, plan->span, n) : DPAR_OK;
}

/* Computes the numbers of elements that are sent to and received from each rank. */
static void dpari_expert_sizes(dpari_experts *plan, const dpari_routing *routing)
{
    int32_t rank;
    for (rank = 0; rank < plan->comm->size; rank++) {
        plan->send[rank] = routing->send[rank] * plan->head.layer.width;
        plan->receive[rank] = routing->take[rank] * plan->head.layer.width;
    }
}

/* ---- direct reads of other ranks' arrays ----------------------------------------------------- */

/* The four exchanges, which have different tags. */
enum {
    DPARI_EXPERT_DISPATCH,
    DPARI_EXPERT_COMBINE,
    DPARI_EXPERT_COMBINE_BACK,
    DPARI_EXPERT_DISPATCH_BACK
};
/* The arrays that ranks read from each other. */
enum { DPARI_EXPERT_ROUTING, DPARI_EXPERT_ROWS, DPARI_EXPERT_WEIGHTS };

/* Publishes the arrays of this rank, and finds out whether all ranks can read each other's arrays
 * directly (peers->direct). rows: `count` rows that other ranks read. weight: read by other ranks
 * only in combine_backward. */
static DPARI_COLD dpar_status dpari_expert_open(dpari_experts *plan, const dpari_routing *routing,
                                                int32_t what, const void *rows, int64_t count,
                                                const void *weight, dpari_peers *peers)
{
    dpari_peers_array a[3];
    a[DPARI_EXPERT_ROUTING].at = routing;
    a[DPARI_EXPERT_ROUTING].bytes = plan->head.routing_bytes;
    a[DPARI_EXPERT_ROWS].at = rows;
    a[DPARI_EXPERT_ROWS].bytes = count * dpari_expert_row(&plan->head.layer);
    a[DPARI_EXPERT_WEIGHTS].at = weight;
    a[DPARI_EXPERT_WEIGHTS].bytes = 0;
    if (what == DPARI_EXPERT_COMBINE_BACK) {
        a[DPARI_EXPERT_WEIGHTS].bytes = dpari_expert_choices(plan, routing) *
                                        dpar_type_bytes(dpari_wide_type(plan->head.layer.type));
    }
    return dpari_peers_open(peers, plan->comm, routing->tag + what, a, 3, plan->peer);
}

/* Returns the array of another rank's routing that corresponds to the array `mine` of this rank's
 * routing. Only for the arrays that have the same offsets on all ranks. */
static const void *dpari_expert_theirs(const dpari_peers *peers, int32_t rank,
                                       const dpari_routing *routing, const void *mine)
{
    return (const unsigned char *)dpari_peers_at(peers, rank, DPARI_EXPERT_ROUTING) +
           ((const unsigned char *)mine - (const unsigned char *)(const void *)routing);
}

/* Checks that each rank has as many rows for this rank as this rank expects. The numbers may differ
 * if the ranks use routings of different calls. back: 1 if rows are sent from experts to tokens. */
static dpar_status dpari_expert_fits(const dpari_experts *plan, const dpari_routing *routing,
                                     const dpari_peers *peers, int back)
{
    dpar_comm *comm = plan->comm;
    const int64_t *take = back ? routing->send : routing->take;
    const int64_t *give = back ? routing->take : routing->send;
    int32_t rank;
    for (rank = 0; rank < comm->size; rank++) {
        const int64_t *theirs = (const int64_t *)dpari_expert_theirs(peers, rank, routing, give);
        if (theirs[comm->rank] != take[rank]) {
            return dpari_comm_wrong_all(
                comm, DPAR_E_MISMATCH,
                "experts: rank %d sends %ld rows to rank %d, which expects %ld; their routings "
                "must be from the same call of dpar_experts_route",
                rank, theirs[comm->rank], comm->rank, take[rank]);
        }
    }
    return DPAR_OK;
}

/* Ends the direct reads: waits until all ranks have read, and counts the bytes that other ranks
 * read from this rank. rows: [ranks] rows of this rank that each rank read. */
static dpar_status dpari_expert_close(dpari_experts *plan, const dpari_peers *peers,
                                      const int64_t *rows)
{
    const int64_t sent = dpari_expert_away(plan->comm, rows) * dpari_expert_row(&plan->head.layer);
    const dpar_status st = dpari_peers_close(peers, sent);
    plan->head.sent_bytes += st == DPAR_OK ? sent : 0;
    return st;
}

/* Returns a number of another rank's routing, or 0 if it is not 0 .. n - 1. If the other ranks
 * timed out while this rank was late (comm.h), they may have overwritten the routing. The results
 * are then lost in any case, but this rank must not read outside of the arrays before it notices
 * the error. */
static int64_t dpari_expert_limit(int64_t i, int64_t n)
{
    return i >= 0 && i < n ? i : 0;
}

/* Copies the rows of the tokens of n choices, multiplied by their weights unless weight is NULL.
 * Prefetches the next row. */
static void dpari_expert_copy(const dpar_experts_desc *layer, void *to, const void *from,
                              const int32_t *choice, int64_t n, const void *weight, int32_t stream)
{
    const int64_t most = layer->max_tokens * layer->choices;
    int64_t i, mine = n > 0 ? dpari_expert_limit(choice[0], most) : 0, then;
    for (i = 0; i < n; i++) {
        const void *row = dpari_expert_in(from, layer, mine / layer->choices), *next;
        void *at = dpari_expert_at(to, layer, i);
        then = i + 1 < n ? dpari_expert_limit(choice[i + 1], most) : mine;
        next = dpari_expert_in(from, layer, then / layer->choices);
        if (weight != NULL) {
            dpari_kern_ask(next, dpari_expert_row(layer));
            dpari_expert_scale(at, row, layer,
                               dpari_element_get(weight, dpari_wide_type(layer->type), mine));
        } else {
            dpari_kern_row(at, row, next, dpari_expert_row(layer), stream);
        }
        mine = then;
    }
}

/* Reads the rows for this rank's experts from the ranks that have the tokens. */
static void dpari_expert_take(dpari_experts *plan, const dpari_routing *routing,
                              const dpari_peers *peers, void *rows)
{
    const int32_t stream =
        dpari_peers_stream(peers, routing->head.rows * dpari_expert_row(&plan->head.layer));
    const int64_t most = plan->head.layer.max_tokens * plan->head.layer.choices + 1;
    int64_t *at = plan->receive; /* [ranks] the next kept choice of each rank to be read */
    int32_t rank, e;
    for (rank = 0; rank < plan->comm->size; rank++) {
        const int64_t *send =
            (const int64_t *)dpari_expert_theirs(peers, rank, routing, routing->send);
        at[rank] = 0;
        for (e = 0; e < plan->comm->rank; e++) {
            at[rank] = dpari_expert_limit(at[rank] + dpari_expert_limit(send[e], most), most);
        }
    }
    for (e = 0; e < plan->head.count; e++) {
        for (rank = 0; rank < plan->comm->size; rank++) {
            const int64_t piece = rank * (int64_t)plan->head.count + e;
            dpari_expert_copy(
                &plan->head.layer, dpari_expert_at(rows, &plan->head.layer, routing->row[piece]),
                dpari_peers_at(peers, rank, DPARI_EXPERT_ROWS),
                (const int32_t *)dpari_expert_theirs(peers, rank, routing, routing->choice) +
                    at[rank],
                routing->piece[piece], dpari_peers_at(peers, rank, DPARI_EXPERT_WEIGHTS), stream);
            at[rank] += routing->piece[piece];
        }
    }
    dpari_kern_rows_end(stream);
}

/* Locates the results in the arrays of the experts' ranks. The result of kept choice i of this
 * rank, which is for expert e, is row i + plan->fill[e] of the array plan->from[e]. */
static void dpari_expert_locate(dpari_experts *plan, const dpari_routing *routing,
                                const dpari_peers *peers)
{
    const int64_t most =
        plan->comm->size * plan->head.layer.max_tokens * plan->head.layer.choices + 1;
    int32_t rank, e = 0, i;
    for (rank = 0; rank < plan->comm->size; rank++) {
        const int32_t own = (int32_t)dpar_split_part_count(&plan->head.layer.experts, rank);
        const int64_t *row =
            (const int64_t *)dpari_expert_theirs(peers, rank, routing, routing->row);
        for (i = 0; i < own; i++) {
            plan->from[e] = dpari_peers_at(peers, rank, DPARI_EXPERT_ROWS);
            plan->fill[e] = dpari_expert_limit(row[plan->comm->rank * (int64_t)own + i], most) -
                            routing->start[e];
            e++;
        }
    }
}

/* ---- in a device's memory -------------------------------------------------------------------- */

/* Copies three arrays of the routing to the device, unless the last operation used the same
 * routing. */
static dpar_status dpari_expert_index(dpari_experts *plan, const dpari_routing *routing)
{
    int32_t n = 0;
    dpar_status st = DPAR_OK;
    if (plan->indexed == routing && plan->indexed_tag == routing->tag) {
        return DPAR_OK;
    }
    n += dpari_expert_span(&plan->span[n], plan->place, routing->head.position,
                           4 * dpari_expert_choices(plan, routing));
    n += dpari_expert_span(&plan->span[n], plan->token, routing->token, 4 * routing->head.kept);
    n += dpari_expert_span(&plan->span[n], plan->choice, routing->choice, 4 * routing->head.kept);
    st = n > 0 ? dpari_do_span(plan->comm, plan->span, n) : DPAR_OK;
    plan->indexed = routing;
    plan->indexed_tag = routing->tag;
    return st;
}

/* Copies to[i] = from[index[i]], elements of `bytes` bytes. */
static dpar_status dpari_expert_gather(dpari_experts *plan, void *to, const void *from,
                                       const int32_t *index, int64_t rows, int64_t bytes)
{
    dpar_mem_gather g;
    dpari_zero(&g, sizeof g);
    g.to = to;
    g.from = from;
    g.rows = rows;
    g.bytes = g.to_step = g.from_step = bytes;
    g.index.at = index;
    g.index.type = DPAR_I32;
    return rows > 0 ? dpari_do_gather(plan->comm, &g) : DPAR_OK;
}

/* Computes to[i] = the sum of the rows from[index[i][k]], each times its weight. */
static dpar_status dpari_expert_combine(dpari_experts *plan, void *to, const void *from,
                                        const void *weight, const int32_t *index, int64_t rows,
                                        int64_t k)
{
    dpar_mem_combine m;
    dpari_zero(&m, sizeof m);
    m.to = to;
    m.from = from;
    m.weight = weight;
    m.rows = rows;
    m.choices = k;
    m.width = plan->head.layer.width;
    m.to_type = m.from_type = plan->head.layer.type;
    m.weight_type = dpari_wide_type(plan->head.layer.type);
    m.index.at = index;
    m.index.type = DPAR_I32;
    return rows > 0 ? dpari_do_combine(plan->comm, &m) : DPAR_OK;
}

/* Does what dpari_expert_pack does, on a device. */
static dpar_status dpari_expert_pack_on_device(dpari_experts *plan, const dpari_routing *routing,
                                               const void *from, const void *weight)
{
    dpar_status st = dpari_expert_index(plan, routing);
    if (st == DPAR_OK && weight == NULL) {
        return dpari_expert_gather(plan, plan->packed, from, plan->token, routing->head.kept,
                                   dpari_expert_row(&plan->head.layer));
    }
    if (st == DPAR_OK) {
        st = dpari_expert_gather(plan, plan->weight, weight, plan->choice, routing->head.kept,
                                 dpar_type_bytes(dpari_wide_type(plan->head.layer.type)));
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_combine(plan, plan->packed, from, plan->weight, plan->token,
                                routing->head.kept, 1);
}

/* Computes dweight[tokens][k] = dy . result, or 0 for choices that were dropped. */
static dpar_status dpari_expert_dots(dpari_experts *plan, const dpari_routing *routing,
                                     const void *dy, const void *kept, void *dweight)
{
    const int32_t type = dpari_wide_type(plan->head.layer.type), there = plan->comm->mem != NULL;
    const dpar_status st = there ? dpari_expert_index(plan, routing) : DPAR_OK;
    dpar_mem_dot d;
    if (st != DPAR_OK) {
        return st;
    }
    if (routing->head.kept == 0) {
        return dpari_do_copy(plan->comm, dweight, NULL,
                             dpari_expert_choices(plan, routing) * dpar_type_bytes(type));
    }
    dpari_zero(&d, sizeof d);
    d.to = dweight;
    d.a = dy;
    d.b = kept;
    d.rows = dpari_expert_choices(plan, routing);
    d.choices = plan->head.layer.choices;
    d.width = plan->head.layer.width;
    d.to_type = type;
    d.type = plan->head.layer.type;
    d.index.at = there ? plan->place : routing->head.position;
    d.index.type = DPAR_I32;
    return dpari_do_dot(plan->comm, &d);
}

/* ---- dispatch and combine -------------------------------------------------------------------- */

/* Packs the rows of the kept choices in the order in which they are sent, multiplied by their
 * weights unless weight is NULL. */
static dpar_status dpari_expert_pack(dpari_experts *plan, const dpari_routing *routing,
                                     const void *from, const void *weight)
{
    int64_t i;
    if (plan->comm->mem != NULL) {
        return dpari_expert_pack_on_device(plan, routing, from, weight);
    }
    for (i = 0; i < routing->head.kept; i++) {
        dpari_expert_copy(&plan->head.layer, dpari_expert_at(plan->packed, &plan->head.layer, i),
                          from, routing->choice + i, 1, weight, 0);
    }
    return DPAR_OK;
}

/* Computes the weighted sum of the received rows of each token. */
static dpar_status dpari_expert_unite(dpari_experts *plan, const dpari_routing *routing,
                                      const void *came, const void *weight, void *out)
{
    int64_t e;
    if (plan->comm->mem != NULL) {
        const dpar_status st = dpari_expert_index(plan, routing);
        if (st != DPAR_OK) {
            return st;
        }
        return dpari_expert_combine(plan, out, came, weight, plan->place, routing->head.tokens,
                                    plan->head.layer.choices);
    }
    for (e = 0; e < plan->head.layer.experts.count; e++) {
        plan->from[e] = came;
        plan->fill[e] = 0;
    }
    dpari_expert_sums(plan, routing, weight, NULL, out, 0);
    return DPAR_OK;
}

/* Sends the rows of tokens to their experts, multiplied by their weights unless weight is NULL. */
static dpar_status dpari_expert_out(dpari_experts *plan, const dpari_routing *routing, int32_t what,
                                    const void *from, const void *weight, void *rows)
{
    void *to = plan->staged != NULL ? plan->staged : rows;
    dpari_peers peers;
    dpar_status st =
        dpari_expert_open(plan, routing, what, from, routing->head.tokens, weight, &peers);
    if (st == DPAR_OK && peers.direct) {
        st = dpari_expert_fits(plan, routing, &peers, 0);
        if (st == DPAR_OK) {
            dpari_expert_take(plan, routing, &peers, rows);
            st = dpari_expert_close(plan, &peers, routing->send);
        }
        return st;
    }
    if (st == DPAR_OK) {
        st = dpari_expert_pack(plan, routing, from, weight);
    }
    dpari_expert_sizes(plan, routing);
    if (st == DPAR_OK) {
        st = dpari_expert_send(plan, plan->packed, plan->send, to, plan->receive,
                               plan->head.layer.type);
    }
    if (st == DPAR_OK && to != rows) {
        st = dpari_expert_group(plan, routing, rows, to, 0);
    }
    return st;
}

/* Sends the rows of experts back to their tokens and adds them. kept: where dpar_experts_combine
 * saves the received rows; NULL if they are not wanted. */
static dpar_status dpari_expert_back(dpari_experts *plan, const dpari_routing *routing,
                                     int32_t what, const void *rows, const void *weight, void *kept,
                                     void *out)
{
    void *came = kept != NULL ? kept : plan->packed;
    dpari_peers peers;
    dpar_status st = dpari_expert_open(plan, routing, what, rows, routing->head.rows, NULL, &peers);
    if (st == DPAR_OK && peers.direct) {
        st = dpari_expert_fits(plan, routing, &peers, 1);
        if (st == DPAR_OK) {
            dpari_expert_locate(plan, routing, &peers);
            dpari_expert_sums(plan, routing, weight, kept, out,
                              dpari_peers_stream(&peers, routing->head.tokens *
                                                             dpari_expert_row(&plan->head.layer)));
            st = dpari_expert_close(plan, &peers, routing->take);
        }
        return st;
    }
    if (st == DPAR_OK && plan->staged != NULL) {
        st = dpari_expert_group(plan, routing, plan->staged, rows, 1);
        rows = plan->staged;
    }
    dpari_expert_sizes(plan, routing);
    if (st == DPAR_OK) {
        st = dpari_expert_send(plan, rows, plan->receive, came, plan->send, plan->head.layer.type);
    }
    if (st == DPAR_OK) {
        st = dpari_expert_unite(plan, routing, came, weight, out);
    }
    return st;
}

/* Checks that no array that has elements is NULL. tokens, rows: 1 if the arrays with one row per
 * token, or with one row per row of an expert, are not NULL. */
static dpar_status dpari_expert_arrays(const dpari_experts *plan, const dpari_routing *routing,
                                       const dpar_experts_arrays *arrays, int tokens, int rows)
{
    const int64_t token_count = routing != NULL ? routing->head.tokens : 0;
    const int64_t row_count = routing != NULL ? routing->head.rows : 0;
    if (plan == NULL) {
        return DPAR_E_ARG;
    }
    if (routing != NULL && arrays != NULL && (tokens || token_count == 0) &&
        (rows || row_count == 0)) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(
        plan->comm, DPAR_E_ARG,
        "rank %d: experts: an array that this call needs for %ld tokens or %ld rows is NULL",
        plan->comm->rank, token_count, row_count);
}

DPAR_API dpar_status dpar_experts_dispatch(dpar_experts_plan *plan,
                                           const dpar_experts_routing *routing,
                                           const dpar_experts_arrays *arrays)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    const dpari_routing *r = (const dpari_routing *)(const void *)routing;
    dpar_status st;
    st = dpari_expert_arrays(p, r, arrays, arrays != NULL && arrays->x != NULL,
                             arrays != NULL && arrays->rows != NULL);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_out(p, r, DPARI_EXPERT_DISPATCH, arrays->x, NULL, arrays->rows);
}

DPAR_API dpar_status dpar_experts_combine(dpar_experts_plan *plan,
                                          const dpar_experts_routing *routing,
                                          const dpar_experts_arrays *arrays)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    const dpari_routing *r = (const dpari_routing *)(const void *)routing;
    dpar_status st;
    st = dpari_expert_arrays(p, r, arrays,
                             arrays != NULL && arrays->weight != NULL && arrays->y != NULL,
                             arrays != NULL && arrays->results != NULL);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_back(p, r, DPARI_EXPERT_COMBINE, arrays->results, arrays->weight,
                             arrays->saved, arrays->y);
}

DPAR_API dpar_status dpar_experts_combine_backward(dpar_experts_plan *plan,
                                                   const dpar_experts_routing *routing,
                                                   const dpar_experts_arrays *arrays)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    const dpari_routing *r = (const dpari_routing *)(const void *)routing;
    int there;
    dpar_status st;
    there = arrays != NULL && arrays->dy != NULL && arrays->weight != NULL &&
            (arrays->dweight == NULL || arrays->saved != NULL || (r != NULL && r->head.kept == 0));
    st = dpari_expert_arrays(p, r, arrays, there, arrays != NULL && arrays->dresults != NULL);
    if (st == DPAR_OK && arrays->dweight != NULL) {
        st = dpari_expert_dots(p, r, arrays->dy, arrays->saved, arrays->dweight);
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_out(p, r, DPARI_EXPERT_COMBINE_BACK, arrays->dy, arrays->weight,
                            arrays->dresults);
}

DPAR_API dpar_status dpar_experts_dispatch_backward(dpar_experts_plan *plan,
                                                    const dpar_experts_routing *routing,
                                                    const dpar_experts_arrays *arrays)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    const dpari_routing *r = (const dpari_routing *)(const void *)routing;
    dpar_status st;
    st = dpari_expert_arrays(p, r, arrays, arrays != NULL && arrays->dx != NULL,
                             arrays != NULL && arrays->drows != NULL);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_back(p, r, DPARI_EXPERT_DISPATCH_BACK, arrays->drows, NULL, NULL,
                             arrays->dx);
}
