/* SPDX-License-Identifier: MIT-0 */
/* Tells the ranks of a large group that all have arrived, by levels. arrival.h has the idea and the
 * protocol; collectives.c calls it while it waits for words.
 *
 * One cache line of `down` is enough, and two lines of `up`, used alternately like the entries of
 * collectives.c, for these reasons:
 *
 * `up` of k + 1 is written once the leader's cluster has entered k + 1, while another leader may
 * still read `up` of k. Therefore there are two lines. `up` of k + 2 is written once all have
 * entered k + 1, which each rank does after it is done with k.
 *
 * `down` of k + 1 is written once all have entered k + 1 and so are done with `down` of k.
 *
 * A word that is ahead of the target implies the target, because its leader has passed this gate.
 * After a barrier that closes a communicator, words may be ahead because their rank has reused its
 * member for another communicator. A barrier carries no data, so that does no harm. */
#include "arrival.h"

#include "../base/base_private.h"
#include "../host/kernel.h"
#include "engine.h"
#include "options.h"
#include "wait.h"

enum {
    DPARI_LEVELS_FROM = 17,  /* fewer ranks can look at all words within a microsecond */
    DPARI_LEVELS_LOOKS = 512 /* looks by levels before a rank looks at all words */
};

DPARI_INTERNAL const uint64_t *dpari_word_of(const dpari_group *group, const dpar_work *work,
                                             int32_t rank, int32_t which)
{
    const dpari_member *member = group->member[rank];
    switch (which) {
    case DPARI_WORD_ENTRY: return &member->entry[work->sequence & 1].word;
    case DPARI_WORD_A: return &member->a.word;
    case DPARI_WORD_B: return &member->b.word;
    default: return &member->c.word;
    }
}

/* ---- clusters -------------------------------------------------------------------------------- */

DPARI_INTERNAL int64_t dpari_gate_bytes(int32_t size)
{
    return 3 * size * (int64_t)sizeof(int32_t);
}

/* Returns the leader of the cluster that rank r joins: the last cluster with the same cache that
 * has fewer than `most` ranks. Returns r itself if there is none. */
static int32_t dpari_cluster_of(const dpari_group *group, int32_t r, int32_t *members, int32_t most)
{
    const dpari_levels *levels = &group->levels;
    const int32_t cache = group->world->rank[group->world_rank[r]].cache;
    for (int32_t c = levels->clusters - 1; c >= 0; c--) {
        const int32_t lead = levels->leaders[c];
        if (group->world->rank[group->world_rank[lead]].cache == cache && members[lead] < most) {
            return lead;
        }
    }
    return r;
}

DPARI_INTERNAL void dpari_gate_cut(dpari_group *group, void *tables)
{
    dpari_levels *levels = &group->levels;
    const int32_t size = group->comm.size;
    const int asked = (group->world->head->plain & DPAR_WORLD_NO_FLAT) != 0;
    /* the sizes of the clusters by leader, in memory that `place` takes over below */
    int32_t *members = (int32_t *)tables;
    levels->clusters = 0;
    /* levels are slow for ranks that share a core, because each level costs a context switch */
    if (asked ? size < 3 : size < DPARI_LEVELS_FROM || group->world->crowded) {
        return;
    }
    levels->most = size < DPARI_LEVELS_FROM ? 2 : DPARI_CLUSTER;
    levels->place = (int32_t *)tables;
    levels->leader = levels->place + size;
    levels->leaders = levels->leader + size;
    for (int32_t r = 0; r < size; r++) {
        const int32_t lead = dpari_cluster_of(group, r, members, levels->most);
        members[r] = 0;
        members[lead]++;
        levels->leader[r] = lead;
        if (lead == r) {
            levels->leaders[levels->clusters++] = r;
        }
    }
    for (int32_t c = 0; c < levels->clusters; c++) {
        int32_t n = 0;
        for (int32_t r = levels->leaders[c]; r < size; r++) {
            if (levels->leader[r] == levels->leaders[c]) {
                if (levels->leaders[c] == levels->leader[group->comm.rank]) {
                    levels->own = c;
                    levels->mine[n] = r;
                    levels->count = n + 1;
                }
                levels->place[r] = n++;
            }
        }
    }
}

/* ---- data in `up` and `down` ----------------------------------------------------------------- */

/* Returns the bytes of input of each rank that `up` carries in this collective, or 0 if it carries
 * none. */
static int64_t dpari_gate_carries(const dpari_group *group, const dpar_work *work)
{
    const int64_t bytes = work->call.count * dpar_type_bytes(dpari_kern_stored(work->call.type));
    const int all =
        work->call.kind == DPAR_CALL_ALL_REDUCE || work->call.kind == DPAR_CALL_ALL_GATHER;
    return all && !work->call.variable_counts && bytes <= DPARI_INLINE / group->levels.most ? bytes
                                                                                            : 0;
}

DPARI_INTERNAL const void *dpari_gate_given(const dpari_group *group, const dpar_work *work,
                                            int32_t rank, uint64_t target)
{
    const dpari_levels *levels = &group->levels;
    const int64_t bytes = levels->clusters > 0 ? dpari_gate_carries(group, work) : 0;
    const dpari_entry *up =
        bytes > 0 ? &group->member[levels->leader[rank]]->up[work->sequence & 1] : NULL;
    if (!up || DPARI_LOAD(&up->word) != target) {
        return group->member[rank]->entry[work->sequence & 1].payload;
    }
    return (const char *)(const void *)up->payload + levels->place[rank] * bytes;
}

DPARI_INTERNAL const void *dpari_gate_result(const dpari_group *group, const dpari_watch *at)
{
    const int32_t lead = at->stage == DPARI_BY_LEVELS ? group->levels.leader[group->comm.rank] : -1;
    return lead < 0 || lead == group->comm.rank ? NULL : group->member[lead]->down.payload;
}

/* ---- words ----------------------------------------------------------------------------------- */

static uint64_t *dpari_gate_up(const dpari_group *group, const dpar_work *work, int32_t rank,
                               int32_t which)
{
    dpari_member *member = group->member[rank];
    return which == DPARI_WORD_ENTRY ? &member->up[work->sequence & 1].word : &member->up_last.word;
}

static uint64_t *dpari_gate_down(const dpari_group *group, int32_t rank, int32_t which)
{
    dpari_member *member = group->member[rank];
    return which == DPARI_WORD_ENTRY ? &member->down.word : &member->down_last.word;
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
static void dpari_gate_tell_leaders(dpari_group *group, const dpar_work *work, int32_t which,
                                    uint64_t target)
{
    const dpari_levels *levels = &group->levels;
    const size_t bytes = (size_t)(which == DPARI_WORD_ENTRY ? dpari_gate_carries(group, work) : 0);
    char *to = (char *)(void *)group->member[group->comm.rank]->up[work->sequence & 1].payload;
    for (int32_t i = 0; i < levels->count && bytes > 0; i++) {
        memcpy(to + (size_t)i * bytes,
               group->member[levels->mine[i]]->entry[work->sequence & 1].payload, bytes);
    }
    dpari_publish(group->world, dpari_gate_up(group, work, group->comm.rank, which), target);
}

static int dpari_gate_cluster_came(const dpari_group *group, const dpar_work *work, dpari_watch *at,
                                   int32_t which, uint64_t target)
{
    int came = 1;
    if (at->cursor == 0) {
        at->cursor = 1; /* the leader itself has arrived */
    }
    for (; at->cursor < group->levels.count; at->cursor++) {
        came = dpari_gate_came(dpari_word_of(group, work, group->levels.mine[at->cursor], which),
                               which, target);
        if (came != 1) {
            break;
        }
    }
    return came;
}

static int dpari_gate_leaders_came(const dpari_group *group, const dpar_work *work, dpari_watch *at,
                                   int32_t which, uint64_t target)
{
    const dpari_levels *levels = &group->levels;
    int came = 1;
    /* each leader begins with the next one, so that not all read the same line at once */
    for (; at->cursor < levels->clusters - 1; at->cursor++) {
        const int32_t c = (levels->own + 1 + at->cursor) % levels->clusters;
        came =
            dpari_gate_came(dpari_gate_up(group, work, levels->leaders[c], which), which, target);
        if (came != 1) {
            break;
        }
    }
    return came;
}

DPARI_INTERNAL int dpari_gate_look(dpari_group *group, const dpar_work *work, dpari_watch *at,
                                   int32_t which, uint64_t target)
{
    const int32_t me = group->comm.rank;
    int came = 1;
    if (group->levels.clusters == 0 || group->levels.doubt || group->comm.status != DPAR_OK ||
        at->stage == DPARI_AT_ALL) {
        at->cursor = at->stage == DPARI_AT_ALL ? at->cursor : 0;
        at->stage = DPARI_AT_ALL;
        return -1;
    }
    if (group->levels.leader[me] != me) {
        came =
            dpari_gate_came(dpari_gate_down(group, group->levels.leader[me], which), which, target);
    } else if (at->stage == DPARI_AT_CLUSTER) {
        came = dpari_gate_cluster_came(group, work, at, which, target);
        if (came == 1) {
            dpari_gate_tell_leaders(group, work, which, target);
            at->stage = DPARI_AT_LEADERS;
            at->cursor = 0;
        }
    }
    if (came == 1 && at->stage == DPARI_AT_LEADERS) {
        came = dpari_gate_leaders_came(group, work, at, which, target);
    }
    if (came == 1) {
        at->stage = DPARI_BY_LEVELS;
    } else if (came < 0 || ++at->looks >= DPARI_LEVELS_LOOKS) {
        at->stage = DPARI_AT_ALL; /* the words themselves show which rank is missing or differs */
        at->cursor = 0;
        return -1;
    }
    group->blocker = -1;
    return came;
}

DPARI_INTERNAL void dpari_gate_tell(dpari_group *group, const dpar_work *work,
                                    const dpari_watch *at, int32_t which, uint64_t target,
                                    const void *result, int64_t bytes)
{
    const int32_t me = group->comm.rank;
    if (group->levels.clusters == 0 || group->levels.leader[me] != me) {
        return;
    }
    if (at->stage == DPARI_AT_ALL && DPARI_LOAD(dpari_gate_up(group, work, me, which)) !=
                                         target) { /* only this rank writes it */
        dpari_gate_tell_leaders(group, work, which, target);
    }
    if (bytes > 0) {
        memcpy(group->member[me]->down.payload, result, (size_t)bytes);
    }
    dpari_publish(group->world, dpari_gate_down(group, me, which), target);
}
