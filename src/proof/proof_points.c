/* SPDX-License-Identifier: MIT-0 */
/* Proves exchanges by index lists. A bit per ghost marks those that have been received. */
#include "proof_points.h"

#include "../base/base_private.h"
#include "proof_lists.h"

typedef struct dpari_prove_points_state {
    const dpar_proof_desc *desc;
    int32_t named; /* 1 if all values that were compared have ids */
    int64_t bytes,
        sends; /* bytes of a value; number of messages whose receive is not yet checked */
    dpar_why *why;
} dpari_prove_points_state;

/* Checks the counts of the lists of a rank. */
static DPARI_COLD dpar_status dpari_prove_index_check(const dpari_prove_points_state *state,
                                                      int32_t rank, const dpar_proof_index *index)
{
    int32_t i;
    if (index->peer_count > 0 &&
        (index->peer == NULL || index->send_count == NULL || index->receive_count == NULL)) {
        return dpari_wrong(state->why,
                           "rank %d: peer, send_count or receive_count is NULL, but it has %d "
                           "peers",
                           rank, index->peer_count);
    }
    if (index->own_count < 0 || index->ghost_count < 0 || index->peer_count < 0 ||
        index->own_count > INT32_MAX || index->ghost_count > INT32_MAX - index->own_count) {
        return dpari_wrong(state->why,
                           "rank %d has %ld own values, %ld ghosts and %d peers: must be at least "
                           "0, and together at most 2^31 - 1",
                           rank, index->own_count, index->ghost_count, index->peer_count);
    }
    for (i = 0; i < index->peer_count; i++) {
        if (index->peer[i] < 0 || index->peer[i] >= state->desc->ranks ||
            index->send_count[i] < 0 || index->receive_count[i] < 0) {
            return dpari_wrong(state->why,
                               "rank %d: peer %d of %d ranks, %ld sent and %ld received values: "
                               "no such rank, or a count below 0",
                               rank, index->peer[i], state->desc->ranks, index->send_count[i],
                               index->receive_count[i]);
        }
        if (index->send_count[i] > 0 && index->send_index == NULL) {
            return dpari_wrong(state->why,
                               "rank %d: send_index is NULL, but %ld values are sent to rank %d",
                               rank, index->send_count[i], index->peer[i]);
        }
    }
    return DPAR_OK;
}

/* Finds a peer in the lists of a rank. Returns its number or -1, and sets *first to the number of
 * values that the rank sends to the peers before it. */
static DPARI_COLD int32_t dpari_prove_peer(const dpar_proof_index *index, int32_t rank,
                                           int64_t *first)
{
    int32_t i;
    *first = 0;
    for (i = 0; i < index->peer_count; i++) {
        if (index->peer[i] == rank) {
            return i;
        }
        *first += index->send_count[i];
    }
    return -1;
}

/* Returns the local index of receive number k of a rank. */
static DPARI_COLD int64_t dpari_prove_ghost(const dpar_proof_index *index, int64_t k)
{
    return index->receive_index != NULL ? index->receive_index[k] : index->own_count + k;
}

/* Checks value k of a message: its ghost is a ghost that has not been received, its source is an
 * own value of the sender, and both have the same id. */
static DPARI_COLD dpar_status dpari_prove_value(dpari_prove_points_state *state,
                                                const int32_t *rank, const dpar_proof_index *mine,
                                                const dpar_proof_index *theirs, int64_t ghost,
                                                int64_t source)
{
    unsigned char *mark = (unsigned char *)state->desc->memory;
    const int64_t bit = ghost - mine->own_count;
    if (source < 0 || source >= theirs->own_count) {
        return dpari_say(DPAR_E_MISMATCH, state->why,
                         "owner: rank %d sends its local index %ld to rank %d, but owns only 0 to "
                         "%ld",
                         rank[1], source, rank[0], theirs->own_count - 1);
    }
    if (bit < 0 || bit >= mine->ghost_count) {
        return dpari_say(DPAR_E_MISMATCH, state->why,
                         "owner: rank %d receives local index %ld from rank %d, but its ghosts "
                         "are %ld to %ld",
                         rank[0], ghost, rank[1], mine->own_count,
                         mine->own_count + mine->ghost_count - 1);
    }
    if ((mark[bit / 8] >> bit % 8 & 1) != 0) {
        return dpari_say(DPAR_E_MISMATCH, state->why,
                         "twice: rank %d receives local index %ld a second time, from rank %d",
                         rank[0], ghost, rank[1]);
    }
    mark[bit / 8] = (unsigned char)(mark[bit / 8] | 1 << bit % 8);
    if (mine->id == NULL || theirs->id == NULL) {
        state->named = 0;
        return DPAR_OK;
    }
    if (mine->id[ghost] != theirs->id[source]) {
        return dpari_say(DPAR_E_MISMATCH, state->why,
                         "owner: rank %d receives id %ld from rank %d into local index %ld, which "
                         "has id %ld",
                         rank[0], theirs->id[source], rank[1], ghost, mine->id[ghost]);
    }
    return DPAR_OK;
}

/* Checks that a peer is listed once. */
static DPARI_COLD dpar_status dpari_prove_once(const dpari_prove_points_state *state, int32_t rank,
                                               const dpar_proof_index *index)
{
    int32_t i, k;
    for (i = 0; i < index->peer_count; i++) {
        for (k = 0; k < i; k++) {
            if (index->peer[k] == index->peer[i]) {
                return dpari_wrong(state->why, "rank %d lists peer %d twice", rank, index->peer[i]);
            }
        }
    }
    return DPAR_OK;
}

/* Checks the receives of a rank against the sends of its peers. */
static DPARI_COLD dpar_status dpari_prove_points_rank(dpari_prove_points_state *state, int32_t rank,
                                                      const dpar_proof_index *mine)
{
    const int64_t marks = mine->ghost_count / 8 + 1;
    int64_t at = 0, k, first;
    int32_t i, pair[2];
    dpar_status status = dpari_prove_once(state, rank, mine);
    if (status != DPAR_OK) {
        return status;
    }
    if (state->desc->memory == NULL || state->desc->bytes < marks) {
        return dpari_prove_no_room(state->why, state->desc->bytes, marks);
    }
    dpari_zero(state->desc->memory, (size_t)marks);
    pair[0] = rank;
    for (i = 0; i < mine->peer_count; i++) {
        dpar_proof_index theirs;
        int64_t sent = 0;
        int32_t number;
        pair[1] = mine->peer[i];
        dpari_zero(&theirs, sizeof theirs);
        state->desc->index_of(state->desc->lists, pair[1], &theirs);
        status = dpari_prove_index_check(state, pair[1], &theirs);
        if (status != DPAR_OK) {
            return status;
        }
        number = dpari_prove_peer(&theirs, rank, &first);
        sent = number >= 0 ? theirs.send_count[number] : 0;
        if (sent != mine->receive_count[i]) {
            return dpari_say(DPAR_E_MISMATCH, state->why,
                             "partner: rank %d receives %ld values from rank %d, which sends %ld",
                             rank, mine->receive_count[i], pair[1], sent);
        }
        state->sends -= sent > 0;
        for (k = 0; k < sent && status == DPAR_OK; k++) {
            status = dpari_prove_value(state, pair, mine, &theirs, dpari_prove_ghost(mine, at + k),
                                       theirs.send_index[first + k]);
        }
        if (status != DPAR_OK) {
            return status;
        }
        at += sent;
    }
    for (k = 0; k < mine->ghost_count && !mine->unsent_ghosts; k++) {
        if ((((unsigned char *)state->desc->memory)[k / 8] >> k % 8 & 1) == 0) {
            return dpari_say(DPAR_E_MISMATCH, state->why,
                             "missing: rank %d does not receive local index %ld", rank,
                             mine->own_count + k);
        }
    }
    return DPAR_OK;
}

/* Adds the messages of a rank to the report. Returns 0 if a sum exceeds 2^63 - 1. */
static DPARI_COLD int dpari_prove_points_add(dpari_prove_points_state *state, int32_t rank,
                                             const dpar_proof_index *mine,
                                             dpar_proof_report *report)
{
    const int64_t bytes = state->bytes, limit = INT64_MAX / 8 / bytes;
    int64_t sent = 0, received = 0, copied = 0, messages = 0, peers = 0, staging = 0;
    int32_t i;
    for (i = 0; i < mine->peer_count; i++) {
        const int64_t out = mine->send_count[i], in = mine->receive_count[i];
        report->transfers += out > 0;
        state->sends += out > 0;
        if (out > limit || in > limit || report->points > INT64_MAX - in) {
            return 0;
        }
        report->points += in;
        if (mine->peer[i] == rank) {
            copied += out * bytes;
            continue;
        }
        peers += out > 0 || in > 0;
        messages += out > 0;
        sent += out * bytes;
        received += in * bytes;
        staging += 3 * ((dpari_most(out, in) * bytes + 127) / 128 * 128);
        if (sent > INT64_MAX / 8 || received > INT64_MAX / 8) {
            return 0;
        }
    }
    return dpari_prove_count(&report->messages, rank, messages) &
           dpari_prove_count(&report->peers, rank, peers) &
           dpari_prove_count(&report->sent, rank, sent) &
           dpari_prove_count(&report->received, rank, received) &
           dpari_prove_count(&report->copied, rank, copied) &
           dpari_prove_count(&report->staging, rank, staging);
}

/* Finds a message that no rank receives. */
static DPARI_COLD dpar_status dpari_prove_unreceived(const dpari_prove_points_state *state)
{
    dpar_proof_index mine, theirs;
    int64_t first;
    int32_t rank, i;
    for (rank = 0; rank < state->desc->ranks; rank++) {
        dpari_zero(&mine, sizeof mine);
        state->desc->index_of(state->desc->lists, rank, &mine);
        for (i = 0; i < mine.peer_count; i++) {
            dpari_zero(&theirs, sizeof theirs);
            state->desc->index_of(state->desc->lists, mine.peer[i], &theirs);
            if (mine.send_count[i] > 0 && dpari_prove_peer(&theirs, rank, &first) < 0) {
                return dpari_say(DPAR_E_MISMATCH, state->why,
                                 "partner: rank %d sends %ld values to rank %d, which receives "
                                 "none",
                                 rank, mine.send_count[i], mine.peer[i]);
            }
        }
    }
    return dpari_say(DPAR_E_MISMATCH, state->why, "partner: the lists of a rank change");
}

DPAR_API DPARI_COLD dpar_status dpar_proof_points(const dpar_proof_desc *desc,
                                                  dpar_proof_report *report, dpar_why *why)
{
    dpari_prove_points_state state;
    dpar_proof_report result;
    dpar_status status = DPAR_OK;
    int32_t rank;
    if (desc == NULL || desc->index_of == NULL || report == NULL || desc->ranks < 1 ||
        desc->point_bytes < 0) {
        return dpari_wrong(why,
                           "dpar_proof_points: desc, desc->index_of and report must be set, and "
                           "desc->ranks and desc->point_bytes be at least 1 and 0");
    }
    dpari_zero(&state, sizeof state);
    dpari_zero(&result, sizeof result);
    state.desc = desc;
    state.why = why;
    state.named = 1;
    state.bytes = desc->point_bytes > 0 ? desc->point_bytes : 8;
    for (rank = 0; rank < desc->ranks && status == DPAR_OK; rank++) {
        dpar_proof_index mine;
        dpari_zero(&mine, sizeof mine);
        desc->index_of(desc->lists, rank, &mine);
        status = dpari_prove_index_check(&state, rank, &mine);
        if (status == DPAR_OK && !dpari_prove_points_add(&state, rank, &mine, &result)) {
            status =
                dpari_say(DPAR_E_RANGE, why, "ranks 0 to %d exchange more than 2^60 bytes", rank);
        }
        if (status == DPAR_OK) {
            status = dpari_prove_points_rank(&state, rank, &mine);
        }
        if (status == DPAR_OK && (rank % 1024 == 1023 || rank == desc->ranks - 1)) {
            status = dpari_prove_advance(desc, (int64_t)rank + 1, desc->ranks);
        }
    }
    if (status == DPAR_OK && state.sends != 0) {
        status = dpari_prove_unreceived(&state);
    }
    if (status != DPAR_OK) {
        return status;
    }
    result.ranks = desc->ranks;
    result.owners = state.named;
    result.blocks = desc->ranks;
    *report = result;
    return DPAR_OK;
}
