/* SPDX-License-Identifier: MIT-0 */
/* Tells the ranks of a large group that all have arrived, by levels. gate.h has the idea and the
 * protocol; collectives.c calls it while it waits for words.
 *
 * One line of each kind is enough, or two by parity, as for the entries of collectives.c:
 *
 * `up` of k + 1 is written once the leader's cluster has entered k + 1, while another leader may
 * still read `up` of k. Therefore there are two. `up` of k + 2 is written once all have entered k +
 * 1, which each rank does after it is done with k.
 *
 * `down` of k + 1 is written once all have entered k + 1 and so are done with `down` of k.
 *
 * A word that is ahead of the target implies the target, because its leader has passed this gate.
 * After a barrier that closes a communicator, words may be ahead because their rank has reused its
 * member for another communicator. A barrier carries no data, so that does no harm. */
#include "gate.h"

#include "../base/inner.h"
#include "engine.h"
#include "kernel.h"
#include "options.h"

enum {
    DPARI_LEVELS_FROM = 17,  /* fewer ranks can look at all words within a microsecond */
    DPARI_LEVELS_LOOKS = 512 /* looks by levels before a rank looks at all words */
};

DPARI_INTERNAL const uint64_t *dpari_word_of(const dpari_group *g, const dpar_work *k, int32_t rank,
                                             int32_t which)
{
    const dpari_member *m = g->member[rank];
    switch (which) {
    case DPARI_WORD_ENTRY: return &m->entry[k->sequence & 1].word;
    case DPARI_WORD_A: return &m->a.word;
    case DPARI_WORD_B: return &m->b.word;
    default: return &m->c.word;
    }
}

/* ---- clusters ---------------------------------------------------------------------------------
 */

DPARI_INTERNAL int64_t dpari_gate_bytes(int32_t size)
{
    return 3 * size * (int64_t)sizeof(int32_t);
}

/* Returns the leader of the cluster that rank r joins: the last cluster with the same cache that
 * has fewer than `most` ranks. Returns r itself if there is none. */
static int32_t dpari_cluster_of(const dpari_group *g, int32_t r, int32_t *members, int32_t most)
{
    const dpari_levels *l = &g->levels;
    const int32_t cache = g->world->rank[g->world_rank[r]].cache;
    for (int32_t c = l->clusters - 1; c >= 0; c--) {
        const int32_t lead = l->leaders[c];
        if (g->world->rank[g->world_rank[lead]].cache == cache && members[lead] < most) {
            return lead;
        }
    }
    return r;
}

DPARI_INTERNAL void dpari_gate_cut(dpari_group *g, void *tables)
{
    dpari_levels *l = &g->levels;
    const int32_t size = g->comm.size;
    const int asked = (g->world->head->plain & DPAR_WORLD_NO_FLAT) != 0;
    /* the sizes of the clusters by leader, in memory that `place` takes over below */
    int32_t *members = (int32_t *)tables;
    l->clusters = 0;
    /* levels are slow for ranks that share a core, because each level costs a switch of ranks */
    if (asked ? size < 3 : size < DPARI_LEVELS_FROM || g->world->crowded) {
        return;
    }
    l->most = size < DPARI_LEVELS_FROM ? 2 : DPARI_CLUSTER;
    l->place = (int32_t *)tables;
    l->leader = l->place + size;
    l->leaders = l->leader + size;
    for (int32_t r = 0; r < size; r++) {
        const int32_t lead = dpari_cluster_of(g, r, members, l->most);
        members[r] = 0;
        members[lead]++;
        l->leader[r] = lead;
        if (lead == r) {
            l->leaders[l->clusters++] = r;
        }
    }
    for (int32_t c = 0; c < l->clusters; c++) {
        int32_t n = 0;
        for (int32_t r = l->leaders[c]; r < size; r++) {
            if (l->leader[r] == l->leaders[c]) {
                if (l->leaders[c] == l->leader[g->comm.rank]) {
                    l->own = c;
                    l->mine[n] = r;
                    l->count = n + 1;
                }
                l->place[r] = n++;
            }
        }
    }
}

/* ---- data in `up` and `down` ------------------------------------------------------------------
 */

/* Returns the bytes of input of each rank that `up` carries in this collective, or 0 if it carries
 * none. */
static int64_t dpari_gate_carries(const dpari_group *g, const dpar_work *k)
{
    const int64_t bytes = k->call.count * dpar_type_bytes(dpari_kern_stored(k->call.type));
    const int all = k->call.kind == DPAR_CALL_ALL_REDUCE || k->call.kind == DPAR_CALL_ALL_GATHER;
    return all && !k->call.variable_counts && bytes <= DPARI_INLINE / g->levels.most ? bytes : 0;
}

DPARI_INTERNAL const void *dpari_gate_given(const dpari_group *g, const dpar_work *k, int32_t rank,
                                            uint64_t target)
{
    const dpari_levels *l = &g->levels;
    const int64_t bytes = l->clusters > 0 ? dpari_gate_carries(g, k) : 0;
    const dpari_entry *up = bytes > 0 ? &g->member[l->leader[rank]]->up[k->sequence & 1] : NULL;
    if (!up || DPARI_LOAD(&up->word) != target) {
        return g->member[rank]->entry[k->sequence & 1].payload;
    }
    return (const char *)(const void *)up->payload + l->place[rank] * bytes;
}

DPARI_INTERNAL const void *dpari_gate_result(const dpari_group *g, const dpari_watch *at)
{
    const int32_t lead = at->stage == DPARI_BY_LEVELS ? g->levels.leader[g->comm.rank] : -1;
    return lead < 0 || lead == g->comm.rank ? NULL : g->member[lead]->down.payload;
}

/* ---- words ------------------------------------------------------------------------------------
 */

static uint64_t *dpari_gate_up(const dpari_group *g, const dpar_work *k, int32_t rank,
                               int32_t which)
{
    dpari_member *m = g->member[rank];
    return which == DPARI_WORD_ENTRY ? &m->up[k->sequence & 1].word : &m->up_last.word;
}

static uint64_t *dpari_gate_down(const dpari_group *g, int32_t rank, int32_t which)
{
    dpari_member *m = g->member[rank];
    return which == DPARI_WORD_ENTRY ? &m->down.word : &m->down_last.word;
}

/* Returns 1 if the word has reached the target, 0 if not yet, and -1 if it is an entry with the
 * same number but another fingerprint. */
static int dpari_gate_came(const uint64_t *at, int32_t which, uint64_t target)
{
    const uint64_t word = DPARI_LOAD(at);
    const int32_t ahead = (int32_t)((uint32_t)(word >> 32) - (uint32_t)(target >> 32));
    if (ahead == 0 && word != target && which == DPARI_WORD_ENTRY) {
        return -1;
    }
    return (int64_t)(word - target) >= 0;
}

/* Publishes to the other leaders that this cluster has arrived, together with its small input. */
static void dpari_gate_tell_leaders(dpari_group *g, const dpar_work *k, int32_t which,
                                    uint64_t target)
{
    const dpari_levels *l = &g->levels;
    const size_t bytes = (size_t)(which == DPARI_WORD_ENTRY ? dpari_gate_carries(g, k) : 0);
    char *to = (char *)(void *)g->member[g->comm.rank]->up[k->sequence & 1].payload;
    for (int32_t i = 0; i < l->count && bytes > 0; i++) {
        memcpy(to + (size_t)i * bytes, g->member[l->mine[i]]->entry[k->sequence & 1].payload,
               bytes);
    }
    dpari_publish(g->world, dpari_gate_up(g, k, g->comm.rank, which), target);
}

static int dpari_gate_cluster_came(const dpari_group *g, const dpar_work *k, dpari_watch *at,
                                   int32_t which, uint64_t target)
{
    int came = 1;
    if (at->cursor == 0) {
        at->cursor = 1; /* the leader itself has arrived */
    }
    for (; at->cursor < g->levels.count; at->cursor++) {
        came =
            dpari_gate_came(dpari_word_of(g, k, g->levels.mine[at->cursor], which), which, target);
        if (came != 1) {
            break;
        }
    }
    return came;
}

static int dpari_gate_leaders_came(const dpari_group *g, const dpar_work *k, dpari_watch *at,
                                   int32_t which, uint64_t target)
{
    const dpari_levels *l = &g->levels;
    int came = 1;
    /* each leader begins with the next one, so that not all read the same line at once */
    for (; at->cursor < l->clusters - 1; at->cursor++) {
        const int32_t c = (l->own + 1 + at->cursor) % l->clusters;
        came = dpari_gate_came(dpari_gate_up(g, k, l->leaders[c], which), which, target);
        if (came != 1) {
            break;
        }
    }
    return came;
}

DPARI_INTERNAL int dpari_gate_look(dpari_group *g, const dpar_work *k, dpari_watch *at,
                                   int32_t which, uint64_t target)
{
    const int32_t me = g->comm.rank;
    int came = 1;
    if (g->levels.clusters == 0 || g->levels.doubt || g->comm.status != DPAR_OK ||
        at->stage == DPARI_AT_ALL) {
        at->cursor = at->stage == DPARI_AT_ALL ? at->cursor : 0;
        at->stage = DPARI_AT_ALL;
        return -1;
    }
    if (g->levels.leader[me] != me) {
        came = dpari_gate_came(dpari_gate_down(g, g->levels.leader[me], which), which, target);
    } else if (at->stage == DPARI_AT_CLUSTER) {
        came = dpari_gate_cluster_came(g, k, at, which, target);
        if (came == 1) {
            dpari_gate_tell_leaders(g, k, which, target);
            at->stage = DPARI_AT_LEADERS;
            at->cursor = 0;
        }
    }
    if (came == 1 && at->stage == DPARI_AT_LEADERS) {
        came = dpari_gate_leaders_came(g, k, at, which, target);
    }
    if (came == 1) {
        at->stage = DPARI_BY_LEVELS;
    } else if (came < 0 || ++at->looks >= DPARI_LEVELS_LOOKS) {
        at->stage = DPARI_AT_ALL; /* the words themselves show which rank is missing or differs */
        at->cursor = 0;
        return -1;
    }
    g->blocker = -1;
    return came;
}

DPARI_INTERNAL void dpari_gate_tell(dpari_group *g, const dpar_work *k, const dpari_watch *at,
                                    int32_t which, uint64_t target, const void *result,
                                    int64_t bytes)
{
    const int32_t me = g->comm.rank;
    if (g->levels.clusters == 0 || g->levels.leader[me] != me) {
        return;
    }
    if (at->stage == DPARI_AT_ALL &&
        DPARI_LOAD(dpari_gate_up(g, k, me, which)) != target) { /* only this rank writes it */
        dpari_gate_tell_leaders(g, k, which, target);
    }
    if (bytes > 0) {
        memcpy(g->member[me]->down.payload, result, (size_t)bytes);
    }
    dpari_publish(g->world, dpari_gate_down(g, me, which), target);
}
