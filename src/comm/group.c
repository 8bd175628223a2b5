/* SPDX-License-Identifier: MIT-0 */
/* Implements groups: the ranks of a world that share a communicator.
 *
 * A group finds the memory of each member, breaks on all ranks if one fails, and decides which
 * ranks continue when it shrinks. Most of the file writes error messages: which rank is missing,
 * where each rank waits, and which rank is the cause. Called by collectives.c, p2p.c, shm.c and
 * ../exchange. */
#include "group.h"

#include "../base/base_private.h"
#include "engine.h"
#include "flight.h"
#include "heap.h"
#include "os.h"
#include "wait.h"
#include "world.h"

/* ---- the memory that follows a member -------------------------------------------------------- */

static int64_t dpari_table_bytes(const dpari_world *world)
{
    int64_t bytes = world->size * (int64_t)sizeof(dpari_piece);
    return (bytes + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
}

DPARI_INTERNAL int64_t dpari_member_bytes(const dpari_world *world)
{
    return (int64_t)sizeof(dpari_member) + 2 * dpari_table_bytes(world) +
           2 * world->head->slot_bytes;
}

DPARI_INTERNAL dpari_piece *dpari_table(const dpari_group *group, int32_t rank, int64_t parity)
{
    char *behind = (char *)(group->member[rank] + 1);
    return (dpari_piece *)(void *)(behind + (parity & 1) * dpari_table_bytes(group->world));
}

DPARI_INTERNAL char *dpari_staging(const dpari_group *group, int32_t rank)
{
    char *behind = (char *)(group->member[rank] + 1);
    return behind + 2 * dpari_table_bytes(group->world);
}

/* ---- how it breaks --------------------------------------------------------------------------- */

DPARI_API dpar_status dpari_group_broken(dpari_group *group)
{
    const dpari_abort *record = &group->member[0]->abort;
    if (group->comm.status == DPAR_OK && DPARI_LOAD(&record->state) == DPARI_ABORT_SET) {
        /* so that a rank that sees what this rank writes from here on also sees the record
         * (tests/model/order.c) */
        __atomic_thread_fence(__ATOMIC_RELEASE);
        (void)dpari_repeat(record->status, &group->comm.why, record->text);
        group->broken_from = record->from;
        group->comm.status = record->status;
    }
    return group->comm.status;
}

DPARI_API DPARI_COLD dpar_status dpari_group_break(dpari_group *group, dpar_status status,
                                                   const char *text)
{
    dpari_abort *record = &group->member[0]->abort;
    uint32_t none = DPARI_ABORT_NONE;
    if (group->comm.status != DPAR_OK) {
        return group->comm.status;
    }
    if (DPARI_CLAIM(&record->state, &none, (uint32_t)DPARI_ABORT_CLAIMED)) {
        dpar_text t;
        dpar_text_init(&t, record->text, sizeof record->text);
        dpar_text_put(&t, text);
        record->status = status;
        record->from = group->first ? group->first->sequence : group->sequence + 1;
        DPARI_STORE(&record->state, (uint32_t)DPARI_ABORT_SET);
        dpari_ring_all(&group->world->segment);
    }
    /* Another rank may have claimed the record first: wait up to 0.1 s until it has filled the
     * record in. If it has died before that, this rank's own status and text count here. */
    for (int32_t i = 0; i < 1000 && dpari_group_broken(group) == DPAR_OK; i++) {
        dpari_os_sleep(100e-6);
    }
    if (group->comm.status == DPAR_OK) {
        group->comm.status = dpari_repeat(status, &group->comm.why, text);
    }
    return group->comm.status;
}

DPARI_INTERNAL DPARI_COLD int dpari_segment_broke(const dpari_segment *segment, dpar_why *why)
{
    const uint64_t ref = DPARI_LOAD(&dpari_segment_ranks(segment)->member);
    dpari_abort record;
    if (ref == 0 ||
        !dpari_segment_copy(segment, ref + offsetof(dpari_member, abort), &record, sizeof record) ||
        record.state != DPARI_ABORT_SET) {
        return 0;
    }
    (void)dpari_repeat(record.status, why, record.text);
    return 1;
}

/* ---- which ranks continue (dpari_vote) ------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD void dpari_vote_cast(dpari_group *group, uint64_t word)
{
    dpari_publish(group->world, &group->member[group->comm.rank]->vote.word, word);
}

static DPARI_COLD int dpari_vote_is_gone(const dpari_group *group, int32_t rank)
{
    const uint32_t state = dpari_rank_state(group->world, group->world_rank[rank]);
    return state == DPARI_RANK_DEAD || state == DPARI_RANK_LEFT;
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_vote_known(const dpari_group *group, int look)
{
    int32_t r, n = 0;
    for (r = 0; r < group->comm.size; r++) {
        n += DPARI_LOAD(&group->member[r]->vote.word) != DPARI_VOTE_NONE ||
             (look && dpari_vote_is_gone(group, r));
    }
    return n;
}

DPARI_INTERNAL DPARI_COLD int dpari_vote_is_decided(const dpari_group *group)
{
    return DPARI_LOAD(&group->member[0]->vote.decided) != 0;
}

DPARI_INTERNAL DPARI_COLD const uint64_t *dpari_vote_decide(dpari_group *group)
{
    uint64_t *stay = group->member[group->comm.rank]->vote.stay;
    uint32_t none = 0, *decided = &group->member[0]->vote.decided;
    int32_t r;
    for (r = 0; r < group->comm.size && !dpari_vote_is_decided(group); r++) {
        if (DPARI_LOAD(&group->member[r]->vote.word) == DPARI_VOTE_STAYS &&
            !dpari_vote_is_gone(group, r)) {
            stay[r / 64] |= UINT64_C(1) << r % 64;
        }
    }
    if (!dpari_vote_is_decided(group) &&
        DPARI_CLAIM(decided, &none, (uint32_t)group->comm.rank + 1U)) {
        dpari_ring_all(&group->world->segment);
    }
    return group->member[DPARI_LOAD(decided) - 1U]->vote.stay;
}

DPARI_INTERNAL DPARI_COLD int dpari_vote_stays(const uint64_t *stay, int32_t rank)
{
    return (int)(stay[rank / 64] >> rank % 64 & 1U);
}

/* ---- messages -------------------------------------------------------------------------------- */

DPARI_API DPARI_COLD void dpari_put_place(dpar_text *text, const dpari_group *group)
{
    if (group->place != NULL) {
        dpari_text_print(text, " on %s", group->place);
    }
}

DPARI_INTERNAL DPARI_COLD void dpari_put_rank(dpar_text *text, const dpari_group *group,
                                              int32_t rank)
{
    dpar_text_put(text, "rank ");
    if (group->called != NULL) {
        dpari_text_int(text, group->called[rank]);
        dpari_put_place(text, group);
        return;
    }
    dpari_text_int(text, rank);
    if (group->world_rank[rank] != rank) {
        dpari_text_print(text, " (%d in the world)", group->world_rank[rank]);
    }
}

DPARI_API void dpari_group_call(dpar_comm *comm, const int32_t *number, const char *place)
{
    dpari_group_of(comm)->called = number;
    dpari_group_of(comm)->place = place;
}

DPARI_INTERNAL DPARI_COLD void dpari_put_flight_of(dpar_text *text, const dpari_group *group,
                                                   const dpari_flight *flight)
{
    dpari_flight shown = *flight;
    if (group->called != NULL && flight->kind != DPAR_CALL_BARRIER && flight->root >= 0 &&
        flight->root < group->comm.size) {
        shown.root = group->called[flight->root];
    }
    dpari_flight_text(text, &shown);
}

DPARI_INTERNAL DPARI_COLD void dpari_put_work(dpar_text *text, const dpari_group *group,
                                              const dpar_work *work)
{
    const dpari_flight f = dpari_flight_of(&work->call, work->sequence);
    dpari_put_flight_of(text, group, &f);
    if (group->called != NULL) {
        dpari_text_print(text, " in the memory of %s: ", group->place);
        return;
    }
    dpar_text_put(text, " of ");
    if (group->id != 0) {
        dpari_text_print(text, "group %ld of ", (int64_t)group->id);
    }
    dpari_text_print(text, "%d ranks: ", group->comm.size);
}

enum { DPARI_NAMED = 8 }; /* the most ranks that a message names */

/* Appends the other ranks that died, because the one that was noticed first need not be the cause.
 */
static DPARI_COLD void dpari_put_others_dead(dpar_text *text, const dpari_group *group,
                                             int32_t rank)
{
    int32_t dead = 1;
    for (int32_t r = 0; r < group->comm.size; r++) {
        if (r != rank && dpari_rank_state(group->world, group->world_rank[r]) == DPARI_RANK_DEAD &&
            dead++ < DPARI_NAMED) {
            dpar_text_put(text, dead > 2 ? ", " : "; also ended: ");
            dpari_put_rank(text, group, r);
        }
    }
    if (dead > DPARI_NAMED) {
        dpari_text_print(text, " and %d more", dead - DPARI_NAMED);
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_fail_peer(dpari_group *group, const dpar_work *work,
                                                      int32_t rank)
{
    dpar_why why;
    dpar_text t;
    dpari_text_why(&t, &why);
    dpari_put_work(&t, group, work);
    dpari_put_rank(&t, group, rank);
    if (dpari_rank_state(group->world, group->world_rank[rank]) == DPARI_RANK_HERE) {
        dpar_text_put(&t, " closed the communicator or returned");
        dpari_put_failed(&t, group->world, group->world_rank[rank]); /* most likely the reason */
    } else {
        dpari_put_ending(&t, group->world, group->world_rank[rank]);
        dpari_put_last(&t, group->world, group->world_rank[rank]);
    }
    dpari_put_others_dead(&t, group, rank);
    return dpari_group_break(group, DPAR_E_PEER, why.text);
}

DPARI_API DPARI_COLD dpar_status dpari_group_unmapped(dpari_group *group, const dpar_work *work,
                                                      uint64_t ref)
{
    dpar_why why;
    dpar_text t;
    dpari_text_why(&t, &why);
    if (work) {
        dpari_put_work(&t, group, work);
    }
    dpari_put_rank(&t, group, group->comm.rank);
    dpar_text_put(&t, ": ");
    dpari_put_unmapped(&t, group->world, ref);
    return dpari_group_break(group, DPAR_E_MEMORY, why.text);
}

DPARI_API DPARI_COLD int dpari_group_ended(dpar_comm *comm, dpar_text *text)
{
    const dpari_group *group = dpari_group_of(comm);
    int32_t r = 0;
    while (r < comm->size &&
           dpari_rank_state(group->world, group->world_rank[r]) != DPARI_RANK_DEAD) {
        r++;
    }
    if (r == comm->size) {
        return 0;
    }
    dpari_put_rank(text, group, r);
    dpari_put_ending(text, group->world, group->world_rank[r]);
    dpari_put_last(text, group->world, group->world_rank[r]);
    dpari_put_others_dead(text, group, r);
    return 1;
}

/* A rank that closes the communicator sends nothing new on it. If its `owes` is 0 afterwards, all
 * that it had to report is in the channels, so the caller needs only one more look at them. */
DPARI_API DPARI_COLD int dpari_group_closes(const dpari_group *group, int32_t world_rank)
{
    dpari_flight f;
    return dpari_flight_find(group->world, world_rank, 0, DPARI_FLIGHT_LAST, &f) &&
           f.kind == DPAR_CALL_BARRIER && f.root == DPARI_CLOSE && f.comm == group->id &&
           DPARI_LOAD(&group->world->rank[world_rank].owes) == 0;
}

DPARI_API DPARI_COLD int dpari_group_crossed(const dpari_group *group, int32_t world_rank,
                                             double quiet, int64_t *sequence)
{
    dpari_world *world = group->world;
    const dpari_rank *record = &world->rank[world_rank];
    dpari_flight f, mine;
    if (DPARI_LOAD(&record->needs) != world->me || dpari_beat_age(world, world_rank) > quiet ||
        !dpari_flight_find(world, world_rank, 0, DPARI_FLIGHT_LAST, &f) ||
        f.state != DPARI_FLIGHT_POSTED || f.kind >= DPAR_CALL_COLLECTIVE_COUNT ||
        f.comm != group->id || dpari_flight_find(world, world->me, group->id, f.sequence, &mine)) {
        return 0;
    }
    *sequence = f.sequence;
    return 1;
}

DPARI_API DPARI_COLD void dpari_put_crossed(dpar_text *text, const dpari_group *group,
                                            int32_t world_rank, int64_t sequence)
{
    dpari_flight f;
    dpar_text_put(text, " called ");
    if (dpari_flight_find(group->world, world_rank, group->id, sequence, &f)) {
        dpari_put_flight_of(text, group, &f);
    }
}

DPARI_INTERNAL int32_t dpari_group_rank(const dpari_group *group, int32_t world_rank)
{
    int32_t r;
    for (r = 0; r < group->comm.size; r++) {
        if (group->world_rank[r] == world_rank) {
            return r;
        }
    }
    return -1;
}

DPARI_API DPARI_COLD int32_t dpari_group_culprit(const dpari_group *group, int32_t world_rank,
                                                 double quiet, int32_t *links)
{
    const dpari_rank *record = group->world->rank;
    int32_t who = world_rank, n;
    for (n = 0; n < group->world->size && dpari_beat_age(group->world, who) <= quiet; n++) {
        const int32_t next = DPARI_LOAD(&record[who].needs);
        if (next == group->world->me || next == world_rank || dpari_group_rank(group, next) < 0) {
            break;
        }
        who = next;
    }
    *links = n;
    return who;
}

DPARI_API DPARI_COLD double dpari_quiet(double timeout)
{
    const double least = 0.06; /* a rank that sleeps reports every 0.02 s */
    return dpari_mostf(least, dpari_leastf(timeout / 4.0, 1.0));
}
