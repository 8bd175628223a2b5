/* SPDX-License-Identifier: MIT-0 */
#include "agree.h"

#include "../base/arith.h"
#include "../index/layout.h"
#include "comm.h"

DPARI_API uint64_t dpari_hash(uint64_t h, int64_t v)
{
    h = (h ^ (uint64_t)v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

DPARI_API uint64_t dpari_hash_layout(uint64_t h, const dpar_layout *l)
{
    int32_t i, k;
    h = dpari_hash(h, l->dims + 16 * l->mesh.axes);
    h = dpari_hash(h, l->mesh.offset);
    for (i = 0; i < l->dims; i++) {
        h = dpari_hash(h, l->extent[i]);
    }
    for (i = 0; i < l->mesh.axes; i++) {
        const dpar_placement *p = &l->axis[i];
        h = dpari_hash(h, l->mesh.axis[i].size);
        h = dpari_hash(h, l->mesh.axis[i].stride);
        h = dpari_hash(h, p->kind + 16 * l->order[i]);
        if (p->kind == DPAR_PARTIAL) {
            h = dpari_hash(h, p->op);
        }
        if (p->kind == DPAR_SHARD) {
            h = dpari_hash(h, p->dim + 64 * p->rule);
            h = dpari_hash(h, p->block);
            h = dpari_hash(h, p->source);
            for (k = 0; p->rule == DPAR_RAGGED && k <= l->mesh.axis[i].size; k++) {
                h = dpari_hash(h, p->cuts[k]);
            }
        }
    }
    return h;
}

/* Rank `who` has failed with `worst`: those that have not themselves hear its sentence. */
static dpar_status dpari_hear(dpar_comm *c, dpar_status mine, dpar_status worst, int32_t who,
                              dpar_why *why)
{
    dpar_why said;
    dpar_status s;
    dpari_zero(&said, sizeof said);
    if (why != NULL && c->rank == who) {
        said = *why;
    }
    s = dpar_broadcast(c, said.text, sizeof said.text, DPAR_U8, who, NULL);
    if (mine != DPAR_OK) {
        return mine;
    }
    if (s != DPAR_OK) {
        return dpari_say_word(s, why, "@", c->why.text, sizeof c->why.text, 0, 0, 0, 0);
    }
    if (said.text[0] == 0) {
        return dpari_say_word(worst, why, "rank #: @", dpar_status_text(worst), 80, who, 0, 0, 0);
    }
    return dpari_say_word(worst, why, "rank #: @", said.text, sizeof said.text, who, 0, 0, 0);
}

DPARI_API dpar_status dpari_agree_pair(dpar_comm *c, dpar_status st, uint64_t hash, int32_t *who,
                                       dpar_why *why)
{
    const int64_t unit = INT64_C(1) << 32, ranks = INT64_C(1) << 20;
    int64_t in[3], out[3] = {0, 0, 0}, rank[2];
    dpar_status run, worst;
    int32_t i, none = 0;
    in[0] = st * unit + c->rank;
    in[1] = (int64_t)(hash >> 22) * ranks + c->rank;
    in[2] = -in[1];
    who[0] = who[1] = -1;
    run = dpar_all_reduce(c, in, out, 3, DPAR_I64, DPAR_MIN, NULL);
    if (run != DPAR_OK) {
        return dpari_say_word(run, why, "@", c->why.text, sizeof c->why.text, 0, 0, 0, 0);
    }
    for (i = 0; i < 3; i++) {
        none |= out[i] > in[i] || out[i] == INT64_MIN;
        out[i] = none ? 0 : out[i];
    }
    worst = (dpar_status)dpari_floor_div(out[0], unit);
    rank[0] = worst != DPAR_OK ? out[0] - worst * unit : out[1] % ranks;
    rank[1] = worst != DPAR_OK ? rank[0] : -out[2] % ranks;
    none |= out[1] / ranks != -out[2] / ranks && worst == DPAR_OK && rank[0] == rank[1];
    if (none || worst > 0 || rank[0] < 0 || rank[0] >= c->size || rank[1] < 0 ||
        rank[1] >= c->size) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "rank #: a smallest number of # ranks came back that is none of theirs: "
                         "another rank called another operation",
                         c->rank, c->size, 0, 0);
    }
    if (worst != DPAR_OK) {
        return dpari_hear(c, st, worst, (int32_t)rank[0], why);
    }
    if (out[1] / ranks == -out[2] / ranks) {
        return DPAR_OK;
    }
    who[0] = (int32_t)dpari_least(rank[0], rank[1]);
    who[1] = (int32_t)dpari_most(rank[0], rank[1]);
    return DPAR_E_MISMATCH;
}

DPARI_API dpar_status dpari_agree(dpar_comm *c, dpar_status st, uint64_t hash, const char *differ,
                                  dpar_why *why)
{
    int32_t who[2];
    st = dpari_agree_pair(c, st, hash, who, why);
    return who[0] == who[1] ? st : dpari_say(st, why, differ, who[0], who[1], 0, 0);
}

DPARI_API void *dpari_room_take(dpari_room *r, int64_t n, size_t bytes)
{
    int64_t at = r->used;
    r->used += dpari_room_up(n * (int64_t)bytes);
    return r->at != NULL ? r->at + at : NULL;
}

DPARI_API dpar_status dpari_room_check(const void *memory, int64_t bytes, int64_t need,
                                       const char *module, dpar_why *why)
{
    const int64_t past = (int64_t)((uintptr_t)memory % DPARI_ROOM_ALIGN);
    if (memory != NULL && bytes >= need && past == 0) {
        return DPAR_OK;
    }
    return dpari_say_word(DPAR_E_ROOM, why,
                          "@: # bytes for a plan of #, # past a multiple of 64: dpar_@_bytes",
                          module, dpari_length(module), memory == NULL ? 0 : bytes, need, past, 0);
}
