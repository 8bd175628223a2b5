/* SPDX-License-Identifier: MIT-0 */
/* Implements the shared-memory engine: its table of functions, posted work, waiting, and what
 * happens if a rank does not arrive. The collectives are in collectives.c, messages in p2p.c, and
 * how a communicator breaks in group.c.
 *
 * Operations are state machines that never block (collectives.c, p2p.c), and this file advances
 * them. Collectives of a communicator run in the order in which they were posted. Between two looks
 * at its operation a waiting rank spins, and later sleeps. Now and then it checks whether the
 * others are alive and whether the deadline has passed.
 *
 * A member (a rank's part of a communicator) is never returned to the heap, because a slow peer may
 * still read its words after the last operation. It is kept for the next communicator of its rank,
 * whose sequence numbers continue where those of its members ended, so that words still only
 * grow. */
#include "shm.h"

#include "../base/base_private.h"
#include "collectives.h"
#include "comm.h"
#include "engine.h"
#include "arrival.h"
#include "flight.h"
#include "group.h"
#include "heap.h"
#include "os.h"
#include "p2p.h"
#include "wait.h"
#include "world.h"

/* A communicator of this rank. */
typedef struct dpari_shm {
    dpari_group group; /* must be first: dpari_shm_of casts a dpar_comm of this engine */
    struct dpari_node *node;
    struct dpari_shm *next; /* in the list of open communicators */
    int64_t bytes;          /* bytes allocated for this struct and its tables */
    int32_t closing;        /* 1 while the barrier that closes it is in progress */
    int32_t voted;          /* 1 if this rank has shrunk it, or tried to */
    int32_t generation;     /* how many times the world was shrunk to get this communicator */
} dpari_shm;

/* What all communicators of this rank share, in private memory. */
typedef struct dpari_node {
    dpari_world *world;
    dpari_p2p *p2p;
    dpari_shm *open; /* list of open communicators */
    dpari_ended closed;
    uint64_t spare;    /* ref of an unused member, the head of a list; 0 if none */
    uint32_t highest;  /* the highest id of a communicator that this rank was in */
    int32_t lent;      /* 1 if dpar_launch closes the world's communicator, not the user */
    int32_t posted;    /* number of works in progress */
    uint32_t tests;    /* calls of dpar_test so far that found nothing done */
    double looked;     /* when dpar_test last checked peers and deadlines */
    double suspended;  /* s between these checks that do not count (dpari_os_suspended) */
    uint64_t seen;     /* hash of the state at the last check of a wait's progress */
    uint32_t lock;     /* protects this struct and its communicators from the progress thread */
    uint32_t progress; /* 1 while there is a progress thread, 2 while it must end */
    dpari_thread thread;
} dpari_node;

static dpari_shm *dpari_shm_of(dpar_comm *comm)
{
    return (dpari_shm *)(void *)comm;
}

/* ---- locks: only with a progress thread ------------------------------------------------------ */

DPARI_STATIC_NOINLINE void dpari_lock_shared(dpari_node *node)
{
    uint32_t free_now = 0;
    while (!DPARI_CLAIM(&node->lock, &free_now, 1U)) {
        free_now = 0;
        dpari_os_pause();
        sched_yield();
    }
}

static void dpari_lock(dpari_node *node)
{
    if (DPARI_LOAD(&node->progress)) {
        dpari_lock_shared(node);
    }
}

static void dpari_unlock(dpari_node *node)
{
    if (DPARI_LOAD(&node->progress)) {
        DPARI_STORE(&node->lock, 0U);
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

/* True if the operation waits for this rank. */
static int dpari_work_misses(const dpari_group *group, const dpar_work *work, int32_t rank)
{
    return work->call.kind < DPAR_CALL_COLLECTIVE_COUNT ? dpari_coll_missing(group, work, rank)
                                                        : rank == work->call.root;
}

/* Appends the first missing rank that itself waits for a rank that has arrived at the operation,
 * and the name of the latter. */
static void dpari_put_behind(dpar_text *text, const dpari_group *group, const dpar_work *work)
{
    const double quiet = dpari_quiet(group->comm.timeout_s);
    for (int32_t r = 0; r < group->comm.size; r++) {
        int32_t links = 0, who;
        if (!dpari_work_misses(group, work, r)) {
            continue;
        }
        who = dpari_group_rank(group,
                               dpari_group_culprit(group, group->world_rank[r], quiet, &links));
        if (links > 0 && !dpari_work_misses(group, work, who)) {
            dpar_text_put(text, ", ");
            dpari_put_rank(text, group, r);
            dpar_text_put(text, links > 1 ? " waits for others, they for " : " waits for ");
            dpari_put_rank(text, group, who);
            return;
        }
    }
}

/* Breaks the communicator because its deadline has passed. The message names the missing ranks with
 * the last operation of each. */
static DPARI_COLD dpar_status dpari_fail_late(dpari_group *group, const dpar_work *work,
                                              double waited)
{
    int32_t missing = 0;
    dpar_why why;
    dpar_text t;
    for (int32_t r = 0; r < group->comm.size; r++) {
        missing += dpari_work_misses(group, work, r);
    }
    dpari_text_why(&t, &why);
    dpari_put_work(&t, group, work);
    dpari_text_print(&t, "%d did not arrive within %.1f s", missing, waited);
    dpari_put_behind(&t, group, work);
    dpar_text_put(&t, ": ");
    for (int32_t r = 0, named = 0; r < group->comm.size && t.used + 60 < t.capacity; r++) {
        if (dpari_work_misses(group, work, r)) {
            dpar_text_put(&t, named++ ? ", " : "");
            dpari_put_rank(&t, group, r);
            dpari_put_last(&t, group->world, group->world_rank[r]);
        }
    }
    return dpari_group_break(group, DPAR_E_TIMEOUT, why.text);
}

/* Returns the operation that `work` waits for: if it is a collective, the first one in the queue,
 * because collectives run in the order of posting, otherwise `work`. */
static const dpar_work *dpari_awaited(const dpari_group *group, const dpar_work *work)
{
    return work->call.kind < DPAR_CALL_COLLECTIVE_COUNT && group->first ? group->first : work;
}

/* True if closing this communicator must not wait because another communicator of this rank is
 * broken: the other ranks may have seen that error before they even made this communicator. It is
 * then broken by the same error. Communicators of earlier generations do not count, because all
 * ranks that shrank them have seen their errors. */
static int dpari_close_in_vain(dpari_shm *shm)
{
    dpari_group *group = &shm->group;
    for (dpari_shm *other = shm->node->open; other && shm->closing; other = other->next) {
        if (other->generation >= shm->generation && dpari_group_broken(&other->group) != DPAR_OK) {
            dpari_group_break(group, other->group.comm.status, other->group.comm.why.text);
            return 1;
        }
    }
    return 0;
}

/* Checks whether a wait can still succeed. Waits call it now and then. Returns DPAR_OK if it can,
 * DPAR_E_PEER if *rank has ended or left, DPAR_E_TIMEOUT if the deadline has passed, or the status
 * of a broken communicator. */
static dpar_status dpari_shm_look(dpari_shm *shm, const dpar_work *work, double began,
                                  int32_t *rank)
{
    dpari_group *group = &shm->group;
    const dpar_work *awaited = dpari_awaited(group, work);
    int32_t missing = 0;
    uint32_t gone = 0;
    group->levels.doubt = 1;
    if (dpari_group_broken(group) != DPAR_OK || dpari_close_in_vain(shm)) {
        return group->comm.status;
    }
    for (int32_t r = 0; r < group->comm.size && gone != DPARI_RANK_DEAD; r++) {
        uint32_t state;
        if (!dpari_work_misses(group, awaited, r)) {
            continue;
        }
        missing++;
        state = dpari_rank_state(group->world, group->world_rank[r]);
        if (state == DPARI_RANK_HERE && awaited->call.kind >= DPAR_CALL_COLLECTIVE_COUNT &&
            dpari_group_closes(group, group->world_rank[r])) {
            state = DPARI_RANK_LEFT;
        }
        /* a rank that died counts before one that left, because ranks leave when another dies */
        if (state == DPARI_RANK_DEAD || (state == DPARI_RANK_LEFT && !gone)) {
            gone = state;
            *rank = r;
        }
    }
    if (gone) {
        return DPAR_E_PEER;
    }
    if (missing > 0 && group->comm.timeout_s > 0.0 &&
        dpari_os_now() - began > group->comm.timeout_s) {
        return DPAR_E_TIMEOUT;
    }
    return DPAR_OK;
}

/* ---- progress -------------------------------------------------------------------------------- */

/* Ends an operation with this status. */
static void dpari_work_done(dpari_shm *shm, dpar_work *work, dpar_status status)
{
    dpari_group *group = &shm->group;
    for (dpar_work **link = &group->finished; *link; link = &(*link)->behind) {
        if (*link == work) {
            *link = work->behind;
            break;
        }
    }
    shm->node->posted--;
    dpari_flight_end(group->world, work->record,
                     status == DPAR_OK ? DPARI_FLIGHT_DONE : DPARI_FLIGHT_FAILED);
    work->status = status;
    DPARI_STORE(&work->comm, NULL); /* last, because from here on the user may reuse it */
}

/* Advances the collectives of one communicator in order, until one must wait. If the communicator
 * is broken, fails those that cannot end any more. */
static void dpari_queue_progress(dpari_shm *shm)
{
    dpari_group *group = &shm->group;
    while (group->first) {
        dpar_work *work = group->first;
        const dpar_status broken = group->comm.status;
        dpar_status status = broken;
        /* a collective before the first failed one succeeds on all ranks, because all its words are
         * published */
        if (broken == DPAR_OK || work->sequence < group->broken_from) {
            status = dpari_coll_advance(group, work);
        }
        /* If this rank was stopped for long, the collective may have failed on the others, which
         * may have written to memory that this rank has just read. They break the communicator
         * before they write, hence this second check. */
        if (status == DPAR_OK) {
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            status = dpari_group_broken(group);
            status = work->sequence < group->broken_from ? (dpar_status)DPAR_OK : status;
        }
        if (status == DPAR_MORE && broken == DPAR_OK) {
            return;
        }
        status = status == DPAR_MORE ? broken : status;
        group->first = work->next;
        group->last = group->first ? group->last : NULL;
        dpari_work_done(shm, work, status);
    }
}

/* Advances one operation, a collective together with those before it in the queue. */
static void dpari_step(dpari_shm *shm, dpar_work *work)
{
    dpari_group *group = &shm->group;
    if (work->call.kind < DPAR_CALL_COLLECTIVE_COUNT) {
        dpari_queue_progress(shm);
    } else {
        dpar_status status = group->comm.status;
        if (status == DPAR_OK) {
            status = dpari_p2p_advance(shm->node->p2p, group, work);
        } else {
            dpari_p2p_forget(shm->node->p2p, group);
        }
        if (status != DPAR_MORE) {
            dpari_work_done(shm, work, status);
        }
    }
}

static void dpari_progress_all(dpari_node *node)
{
    for (dpari_shm *shm = node->open; shm; shm = shm->next) {
        dpari_queue_progress(shm);
    }
    dpari_p2p_progress(node->p2p);
}

DPARI_API void dpari_shm_progress_all(dpar_comm *comm)
{
    dpari_node *node = dpari_shm_of(comm)->node;
    if (node->posted > 0) {
        dpari_lock(node);
        dpari_progress_all(node);
        dpari_unlock(node);
    }
}

/* Fails an operation that can no longer complete. */
static void dpari_fail_work(dpari_shm *shm, dpar_work *work, dpar_status status)
{
    dpari_group *group = &shm->group;
    if (!work->comm) {
        return;
    }
    if (work->call.kind < DPAR_CALL_COLLECTIVE_COUNT) {
        dpari_queue_progress(shm); /* fails all collectives, because the communicator is broken */
    } else {
        dpari_p2p_forget(shm->node->p2p, group);
        dpari_work_done(shm, work, status);
    }
}

/* True if the operation has made progress since the last call, that is, if the hash of its state
 * has changed. The deadline limits only waits without progress. */
static int dpari_has_progressed(dpari_node *node, const dpar_work *work)
{
    uint64_t seen = (uint64_t)work->sequence * 31 + (uint64_t)work->phase;
    uint64_t before = node->seen;
    for (int32_t i = 0; i < 16; i++) {
        seen = (seen ^ (uint64_t)work->state[i]) * UINT64_C(0x9e3779b97f4a7c15);
    }
    node->seen = seen;
    return seen != before;
}

/* Checks the deadline of an operation and the ranks that it waits for. Fails it if one of them will
 * not arrive. */
static DPARI_COLD void dpari_shm_check(dpari_shm *shm, dpar_work *work, double *began)
{
    dpari_group *group = &shm->group;
    dpar_status status;
    int32_t rank = 0;
    dpari_progress_all(shm->node);
    if (work->comm) {
        dpari_step(shm, work);
    }
    if (!work->comm) {
        return;
    }
    if (dpari_has_progressed(shm->node, dpari_awaited(group, work))) {
        *began = dpari_os_now();
    }
    status = dpari_shm_look(shm, work, *began, &rank);
    if (status == DPAR_OK) {
        return;
    }
    dpari_step(shm, work); /* a rank that has ended may have published its part just before */
    if (!work->comm) {
        return;
    }
    if (status == DPAR_E_PEER && group->comm.status == DPAR_OK) {
        status = dpari_fail_peer(group, dpari_awaited(group, work), rank);
    } else if (status == DPAR_E_TIMEOUT && group->comm.status == DPAR_OK) {
        status = dpari_fail_late(group, dpari_awaited(group, work), dpari_os_now() - *began);
    }
    dpari_fail_work(shm, work, status);
}

enum { DPARI_ALL_EVERY = 64 }; /* turns after which a wait advances all communicators */

/* Waits until an operation is done and returns its status. The caller holds the lock, which is
 * released during each turn of the wait. */
static dpar_status dpari_shm_await(dpari_shm *shm, dpar_work *work)
{
    dpari_group *group = &shm->group;
    dpari_world *world = group->world;
    dpari_node *node = shm->node;
    dpari_wait t;
    int32_t turn = 0;
    memset(&t, 0, sizeof t);
    for (;;) {
        int32_t peer, needs;
        dpar_status passed;
        dpari_step(shm, work);
        needs = work->call.kind == DPAR_CALL_SEND || work->call.kind == DPAR_CALL_RECV
                    ? group->world_rank[work->call.root]
                    : group->blocker;
        peer = node->posted > 1 ? -1 : group->blocker;
        if (work->comm && (node->posted > 1 || ++turn % DPARI_ALL_EVERY == 0)) {
            dpari_progress_all(node);
        }
        if (!work->comm) {
            break;
        }
        dpari_unlock(node);
        passed = dpari_wait_turn(world, &t, peer);
        dpari_lock(node);
        if (passed == DPAR_MORE && work->comm) {
            dpari_wait_says(world, needs);
            dpari_shm_check(shm, work, &t.began);
        }
        if (!work->comm) {
            break;
        }
    }
    dpari_wait_end(world, &t);
    return work->status;
}

/* ---- the engine's functions ------------------------------------------------------------------ */

/* Starts an operation in `work`. work->comm is NULL afterwards if it is done already. */
static void dpari_shm_begin(dpari_shm *shm, const dpar_call *call, dpar_work *work)
{
    dpari_group *group = &shm->group;
    dpari_world *world = group->world;
    const int is_message = call->kind >= DPAR_CALL_COLLECTIVE_COUNT;
    dpar_status status;
    work->comm = work->home = &group->comm;
    work->self = work;
    work->status = DPAR_MORE;
    work->phase = 0;
    work->call = *call;
    work->began = 0.0;
    work->next = NULL;
    /* a message has the number of this rank's operation */
    work->sequence = is_message ? (int64_t)world->rank[world->me].flights + 1 : ++group->sequence;
    work->record = dpari_flight_begin(world, group->id, work->sequence, call);
    shm->node->posted++;
    status = dpari_group_broken(group); /* if so, the others do not wait for this operation */
    if (status != DPAR_OK) {
        dpari_work_done(shm, work, status);
        return;
    }
    if (is_message) {
        status = dpari_p2p_start(shm->node->p2p, group, call, work);
        if (status != DPAR_MORE) {
            dpari_work_done(shm, work, status);
        }
        return;
    }
    if (group->last) {
        group->last->next = work;
    } else {
        group->first = work;
    }
    group->last = work;
}

static dpar_status dpari_shm_run(dpar_comm *comm, const dpar_call *call)
{
    dpari_shm *shm = dpari_shm_of(comm);
    dpari_world *world = shm->node->world;
    dpar_work k;
    dpar_status status;
    dpari_lock(shm->node);
    DPARI_STORE(&world->waiting, 1U);
    dpari_shm_begin(shm, call, &k);
    status = k.comm ? dpari_shm_await(shm, &k) : k.status;
    DPARI_STORE(&world->waiting, 0U);
    dpari_unlock(shm->node);
    return status;
}

static dpar_status dpari_shm_post(dpar_comm *comm, const dpar_call *call, dpar_work *work)
{
    dpari_shm *shm = dpari_shm_of(comm);
    dpari_lock(shm->node);
    dpari_shm_begin(shm, call, work);
    if (work->comm) {
        dpari_step(shm, work);
    }
    dpari_unlock(shm->node);
    return DPAR_OK;
}

static dpar_status dpari_shm_wait(dpar_work *work)
{
    dpari_shm *shm = dpari_shm_of(work->home);
    dpari_world *world = shm->node->world;
    dpar_status status;
    dpari_lock(shm->node);
    DPARI_STORE(&world->waiting, 1U);
    status = work->comm ? dpari_shm_await(shm, work) : work->status;
    DPARI_STORE(&world->waiting, 0U);
    dpari_unlock(shm->node);
    return status;
}

enum { DPARI_TESTS_CROWDED = 16 }; /* tests after which a rank sleeps briefly if cores are shared */
#define DPARI_LOOK_EVERY 10e-3     /* seconds between two checks of peers and deadline */

static dpar_status dpari_shm_test(dpar_work *work)
{
    dpari_shm *shm = dpari_shm_of(work->home);
    dpari_node *node = shm->node;
    dpar_status status;
    dpari_lock(node);
    dpari_progress_all(node);
    if (work->comm) {
        dpari_step(shm, work);
    }
    if (work->comm) {
        const double now = dpari_os_now();
        const int look = now - node->looked > DPARI_LOOK_EVERY;
        if (look) {
            node->suspended += dpari_os_suspended(&node->looked, now);
        }
        if (!(work->began > 0.0)) {
            work->began = now - node->suspended;
        }
        node->tests++;
        if (look) {
            double began = work->began + node->suspended;
            dpari_shm_check(shm, work, &began);
            work->began = began - node->suspended;
        }
    }
    status = work->comm ? DPAR_MORE : work->status;
    dpari_unlock(node);
    if (status == DPAR_MORE && node->world->crowded && node->tests % DPARI_TESTS_CROWDED == 0) {
        dpari_os_sleep(10e-6); /* a yield would return at once or only after a whole time slice */
    }
    return status;
}

enum { DPARI_BATCH = 12 }; /* the most works that are kept on the stack */

/* Posts receives first, so that messages are copied directly to their destination. */
static dpar_status dpari_shm_batch(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                   dpar_work *works)
{
    dpar_work few[DPARI_BATCH];
    dpar_work *work = works;
    int64_t bytes = n * (int64_t)sizeof *work;
    dpar_status status = DPAR_OK;
    if (!works) {
        work = n <= DPARI_BATCH ? few : (dpar_work *)dpari_os_pages(bytes);
        if (!work) {
            return dpari_say(DPAR_E_MEMORY, &comm->why, "batch: no memory for %d calls", n);
        }
    }
    for (int32_t pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < n; i++) {
            if ((calls[i].kind == DPAR_CALL_SEND) == pass) {
                dpari_shm_post(comm, &calls[i], &work[i]);
            }
        }
    }
    if (!works) {
        status = dpar_wait_all(work, n);
        if (work != few) {
            dpari_os_unmap(work, bytes);
        }
    }
    return status;
}

static DPARI_COLD dpar_status dpari_shm_alloc(dpar_comm *comm, int64_t bytes, void **memory)
{
    dpari_node *node = dpari_shm_of(comm)->node;
    const dpari_world *world = node->world;
    dpar_status status;
    dpar_text t;
    dpari_lock(node);
    status = dpari_heap_alloc(node->world, bytes, DPARI_HEAP_USER, memory);
    dpari_unlock(node);
    if (status != DPAR_OK) {
        dpari_text_why(&t, &comm->why);
        dpari_text_print(&t,
                         "no shared memory for %ld more bytes: this rank has %ld of at most %ld in "
                         "use, in %d of at most 65536 allocations (",
                         bytes, world->users, world->head->heap_bytes, world->used_count);
        dpari_put_lack(&t, world);
        dpari_text_char(&t, ')');
    }
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_shm_scratch(dpar_comm *comm, int64_t bytes, void **memory)
{
    dpar_comm *here = comm->node ? comm->node : comm;
    if (dpari_world_of(here)) {
        dpari_node *node = dpari_shm_of(here)->node;
        dpar_status status;
        dpari_lock(node);
        status = dpari_heap_alloc(node->world, bytes, DPARI_HEAP_SCRATCH, memory);
        dpari_unlock(node);
        if (status == DPAR_OK) {
            return DPAR_OK;
        }
    }
    return dpar_comm_alloc(comm, bytes, memory); /* which also writes the message */
}

static DPARI_COLD void dpari_shm_release(dpar_comm *comm, void *memory)
{
    dpari_node *node = dpari_shm_of(comm)->node;
    dpari_lock(node);
    dpari_heap_release(node->world, memory);
    dpari_unlock(node);
}

static void dpari_shm_abort(dpar_comm *comm, dpar_status status, const char *text)
{
    dpari_group_break(dpari_group_of(comm), status, text);
}

/* ---- the progress thread --------------------------------------------------------------------- */

static void *dpari_progress_main(void *arg)
{
    dpari_node *node = (dpari_node *)arg;
    int32_t idle = 0;
    while (DPARI_LOAD(&node->progress) == 1) {
        int32_t posted = 0;
        /* while the user's thread waits, it makes progress itself, and this thread would only
         * compete with it */
        if (!DPARI_LOAD(&node->world->waiting)) {
            dpari_lock(node);
            dpari_progress_all(node);
            posted = node->posted;
            dpari_unlock(node);
        }
        idle = posted ? idle + 1 : 1000;
        if (idle > 100) { /* spins at first, then naps; naps at once if nothing is posted */
            dpari_os_sleep(posted ? 20e-6 : 100e-6);
        } else {
            dpari_os_pause();
        }
    }
    return NULL;
}

static dpar_status dpari_shm_progress(dpar_comm *comm, int32_t on)
{
    dpari_node *node = dpari_shm_of(comm)->node;
    if (on && !node->progress) {
        DPARI_STORE(&node->progress, 1U);
        if (dpari_os_thread(&node->thread, dpari_progress_main, node) != 0) {
            DPARI_STORE(&node->progress, 0U);
            return dpari_say(DPAR_E_SYSTEM, &comm->why, "no thread could be started for progress");
        }
    } else if (!on && node->progress) {
        DPARI_STORE(&node->progress,
                    2U); /* not 0, because the thread may take the lock once more */
        dpari_os_join(node->thread);
        DPARI_STORE(&node->progress, 0U);
    }
    return DPAR_OK;
}

/* ---- report ---------------------------------------------------------------------------------- */

enum { DPARI_REPORTED = 4 }; /* operations that a report shows of each rank */

static void dpari_report_rank(dpari_world *world, int32_t rank, dpar_text *out)
{
    const dpari_rank *record = &world->rank[rank];
    uint64_t n = DPARI_LOAD(&record->flights), k = n < DPARI_REPORTED ? 0 : n - DPARI_REPORTED;
    dpari_text_print(out, "rank %d (process %d)", rank, record->pid);
    if (dpari_rank_state(world, rank) != DPARI_RANK_HERE) {
        dpari_put_end(out, record);
    }
    dpar_text_put(out, n ? "" : ": nothing yet");
    for (; k < n; k++) {
        const dpari_flight f = dpari_flight_read(record, k);
        dpar_text_put(out, "\n    ");
        dpari_flight_text(out, &f);
        if (f.state == DPARI_FLIGHT_DONE) {
            dpar_text_put(out, " done");
        } else {
            dpar_text_put(out, f.state == DPARI_FLIGHT_FAILED ? " failed" : " not done");
        }
        if (f.comm) {
            dpari_text_print(out, ", group %ld", (int64_t)f.comm);
        }
    }
    dpari_text_char(out, '\n');
}

static DPARI_COLD void dpari_shm_report(dpar_comm *comm, dpar_text *out)
{
    dpari_shm *shm = dpari_shm_of(comm);
    dpari_group *group = &shm->group;
    for (int32_t r = 0; r < comm->size; r++) {
        dpari_report_rank(group->world, group->world_rank[r], out);
    }
}

static DPARI_COLD void dpari_shm_describe(dpar_comm *comm, dpar_text *out)
{
    dpari_world *world = dpari_group_of(comm)->world;
    int32_t reads;
    if (world->size == 1) {
        return;
    }
    if (world->threads) {
        dpar_text_put(out, ", threads of one process");
        return;
    }
    reads = DPARI_LOAD(&world->rank[world->me].reads);
    dpar_text_put(out, " of one node; memory of dpar_comm_alloc is read in place, other ");
    if (reads == 0) {
        dpar_text_put(out, "memory is copied twice: process_vm_readv is not allowed here");
        return;
    }
    dpar_text_put(out, reads > 1 ? "memory by process_vm_readv" : "memory is copied twice");
    dpari_put_unread(out, world);
}

/* ---- making and closing communicators -------------------------------------------------------- */

/* Takes an unused member, or allocates one with its tables and slots in this rank's heap. *sequence
 * is the last sequence number that the member has used. */
static dpar_status dpari_member_make(dpari_node *node, uint64_t *ref, int64_t *sequence)
{
    dpari_world *world = node->world;
    void *memory = NULL;
    dpar_status status;
    if (node->spare) {
        dpari_member *member = (dpari_member *)dpari_at(world, node->spare);
        *ref = node->spare;
        node->spare = member->next;
        *sequence = member->counted;
        memset(&member->abort, 0, sizeof member->abort);
        return DPAR_OK;
    }
    status = dpari_heap_alloc(world, dpari_member_bytes(world), DPARI_HEAP_LIBRARY, &memory);
    if (status == DPAR_OK) {
        *ref = dpari_ref(world, memory, 1);
        *sequence = 0;
    }
    return status;
}

/* Ends the works that the user has not waited for, and returns how many of them were not done. If
 * there are any, the communicator is broken, so that the other ranks do not wait for them. */
static int32_t dpari_shm_lost(dpari_shm *shm)
{
    dpari_group *group = &shm->group;
    int32_t lost = dpari_p2p_forget(shm->node->p2p, group);
    dpar_text t;
    dpar_why why;
    for (dpar_work *work = group->first; work; work = work->next) {
        lost++;
    }
    if (lost > 0) {
        dpari_text_why(&t, &why);
        dpari_put_rank(&t, group, group->comm.rank);
        dpari_text_print(&t, " closed the communicator without waiting for %d%s", lost,
                         lost == 1 ? " operation" : " operations");
        dpari_group_break(group, DPAR_E_ARG, why.text);
    }
    while (group->finished) {
        dpari_work_done(shm, group->finished, group->finished->status);
    }
    if (lost > 0) {
        dpari_queue_progress(shm); /* fails all collectives, because the communicator is broken */
    }
    return lost;
}

static dpari_node *dpari_node_make(const dpari_segment *segment, int32_t me, int32_t own,
                                   const dpar_world_desc *options)
{
    dpari_node *node = (dpari_node *)dpari_os_pages((int64_t)sizeof *node);
    dpari_world *world = node ? dpari_world_make(segment, me, own, options) : NULL;
    dpari_p2p *p2p = world ? dpari_p2p_open(world) : NULL;
    if (!p2p) {
        if (world) {
            world->owns = DPARI_OWNS_NOTHING;
            dpari_world_close(world);
        }
        dpari_os_unmap(node, (int64_t)sizeof *node);
        return NULL;
    }
    node->world = world;
    node->p2p = p2p;
    return node;
}

static void dpari_shm_free(dpar_comm *comm)
{
    if (comm) {
        dpari_os_unmap(comm, dpari_shm_of(comm)->bytes);
    }
}

static void dpari_node_close(dpari_node *node)
{
    dpar_comm *comm;
    while ((comm = dpari_ended_take(&node->closed)) != NULL) {
        dpari_shm_free(comm);
    }
    dpari_p2p_close(node->p2p);
    dpari_world_close(node->world);
    dpari_os_unmap(node, (int64_t)sizeof *node);
}

/* Moves a communicator from the list of open ones to the closed ones. */
static void dpari_shm_drop(dpari_shm *shm)
{
    dpari_shm **link = &shm->node->open;
    while (*link && *link != shm) {
        link = &(*link)->next;
    }
    *link = shm->next;
    dpari_shm_free(dpari_ended_keep(&shm->node->closed, &shm->group.comm));
}

static DPARI_COLD dpar_status dpari_shm_close(dpar_comm *comm)
{
    dpari_shm *shm = dpari_shm_of(comm);
    dpari_node *node = shm->node;
    const int last = shm->group.id == 0;
    dpar_status status = DPAR_OK;
    int32_t lost;
    if (last && node->lent) {
        return dpari_wrong(&comm->why, "close: dpar_launch closes this communicator itself");
    }
    dpari_lock(node);
    shm->closing = 1;
    lost = dpari_shm_lost(shm);
    if (!shm->voted && dpari_group_broken(&shm->group) != DPAR_OK) {
        /* so that ranks that shrink the communicator do not wait for this rank */
        dpari_vote_cast(&shm->group, DPARI_VOTE_LEAVES);
    }
    dpari_unlock(node);
    if (comm->status == DPAR_OK && !dpari_close_in_vain(shm)) {
        dpar_call leave = dpari_call(DPAR_CALL_BARRIER, NULL, NULL, 0, 0);
        leave.root = DPARI_CLOSE;
        status = dpari_shm_run(comm, &leave);
    }
    if (last) {
        dpari_shm_progress(comm, 0);
        while (node->open) {
            node->open->closing = 1;
            dpari_shm_lost(node->open);
            dpari_shm_drop(node->open);
        }
        dpari_node_close(node);
    } else {
        dpari_lock(node);
        if (comm->status == DPAR_OK) { /* a later communicator uses the member again */
            dpari_member *member = shm->group.member[comm->rank];
            member->counted = shm->group.sequence;
            member->next = node->spare;
            node->spare = shm->group.member_ref;
        }
        dpari_shm_drop(shm);
        dpari_unlock(node);
    }
    return lost ? DPAR_E_ARG : status;
}

static void dpari_engine_shm(dpar_engine *e); /* at the end of this file */

DPARI_API dpari_world *dpari_world_of(const dpar_comm *comm)
{
    return comm->engine.run == dpari_shm_run ? ((const dpari_group *)(const void *)comm)->world
                                             : NULL;
}

DPARI_API DPARI_COLD int dpari_shm_speaks(dpar_comm *comm)
{
    const dpari_shm *shm = dpari_shm_of(comm);
    return dpari_world_speaks(shm->group.world, (uint32_t)shm->generation + 1);
}

DPARI_INTERNAL DPARI_COLD void dpari_shm_lend(dpar_comm *world, int32_t lent)
{
    dpari_shm_of(world)->node->lent = lent;
}

/* A rank of a new communicator. */
typedef struct dpari_card {
    int32_t color, key; /* of a split; in a shrink, the key is the rank in the old communicator */
    int32_t world_rank;
    int32_t good;     /* 1 if it has memory for its member */
    uint64_t member;  /* ref of its member */
    int64_t sequence; /* the last sequence number that this member has used */
    int64_t id;       /* the smallest id that the communicator may have */
} dpari_card;

/* Makes a communicator of the ranks card[size], of which this one is number `rank`. from: the one
 * that it is split from or shrunk from; NULL for the world's. */
static dpar_status dpari_shm_make(dpari_node *node, const dpari_shm *from, const dpari_card *card,
                                  int32_t size, int32_t rank, dpar_comm **out)
{
    dpari_world *world = node->world;
    const int64_t pointers = size * (int64_t)sizeof(void *);
    const int64_t bytes = (int64_t)sizeof(dpari_shm) + 3 * pointers + (int64_t)sizeof(void *) +
                          size * (int64_t)sizeof(int32_t) + dpari_gate_bytes(size);
    dpari_shm *shm = (dpari_shm *)dpari_os_pages(bytes);
    dpari_group *group;
    if (!shm) {
        return DPAR_E_MEMORY;
    }
    group = &shm->group;
    shm->node = node;
    shm->bytes = bytes;
    group->world = world;
    group->slot_bytes = world->head->slot_bytes;
    group->member = (dpari_member **)(void *)(shm + 1);
    group->in = (const void **)(void *)(group->member + size);
    group->out = (void **)(void *)(group->in + size);
    /* `out` has size + 1 elements: a rank's own result and the places from which the others take
     * it */
    group->world_rank = (int32_t *)(void *)(group->out + size + 1);
    for (int32_t r = 0; r < size; r++) {
        group->member[r] = (dpari_member *)dpari_at(world, card[r].member);
        group->world_rank[r] = card[r].world_rank;
        group->sequence = dpari_most(group->sequence, card[r].sequence);
        group->id = (uint32_t)dpari_most(group->id, card[r].id);
        if (!group->member[r]) {
            world->lacks = DPARI_LACKS_ADDRESSES;
            dpari_os_unmap(shm, bytes);
            return DPAR_E_MEMORY;
        }
    }
    group->member_ref = card[rank].member;
    group->comm.rank = rank;
    group->comm.size = size;
    group->comm.timeout_s = from ? from->group.comm.timeout_s : world->timeout_s;
    shm->generation = from ? from->generation : 0;
    dpari_gate_cut(group, group->world_rank + size);
    dpari_engine_shm(&group->comm.engine);
    shm->next = node->open;
    node->open = shm;
    node->highest = group->id; /* so that no two groups that have two ranks in common have the same
                                  id */
    *out = &group->comm;
    return DPAR_OK;
}

/* Makes the world's communicator from the members that all ranks have published. */
static dpar_status dpari_shm_make_first(dpari_node *node, dpar_comm **out)
{
    const dpari_world *world = node->world;
    const int64_t bytes = world->size * (int64_t)sizeof(dpari_card);
    dpari_card *card = (dpari_card *)dpari_os_pages(bytes);
    dpar_status st;
    if (!card) {
        return DPAR_E_MEMORY;
    }
    for (int32_t i = 0; i < world->size; i++) {
        card[i].member = world->rank[i].member;
        card[i].world_rank = i;
    }
    st = dpari_shm_make(node, NULL, card, world->size, world->me, out);
    dpari_os_unmap(card, bytes);
    return st;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_shm_join(const dpari_segment *segment, int32_t me,
                                                     int32_t own, const dpar_world_desc *options,
                                                     dpar_comm **comm, dpar_why *why)
{
    dpari_node *node = dpari_node_make(segment, me, own, options);
    uint64_t member = 0;
    int64_t none = 0;
    dpar_text t;
    dpar_status status = node ? dpari_member_make(node, &member, &none) : DPAR_E_MEMORY;
    dpar_status entered = status == DPAR_OK ? dpari_world_enter(node->world, member, why) : DPAR_OK;
    if (status == DPAR_OK && entered == DPAR_OK) {
        status = dpari_shm_make_first(node, comm);
    }
    if (status != DPAR_OK) {
        dpari_text_why(&t, why);
        dpar_text_put(&t, "memory for this rank: ");
        dpari_put_lack(&t, node ? node->world : NULL);
    }
    if (!node) { /* so that the other ranks do not wait for this one */
        dpari_segment_ended(segment, me, 1);
    }
    if (status == DPAR_OK) {
        status = entered;
    }
    if (status != DPAR_OK && node) {
        node->world->owns = DPARI_OWNS_NOTHING;
        dpari_node_close(node);
    }
    return status;
}

/* Copies the cards of this rank's color to `mates`, ordered by key and then by rank. *rank is the
 * position of this rank. Returns how many there are. */
static int32_t dpari_split_mates(const dpari_card *card, int32_t n, int32_t me, dpari_card *mates,
                                 int32_t *rank)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t place = 0;
        if (card[i].color != card[me].color) {
            continue;
        }
        for (int32_t j = 0; j < n; j++) {
            const int before = card[j].key < card[i].key || (card[j].key == card[i].key && j < i);
            place += card[j].color == card[me].color && before;
        }
        mates[place] = card[i];
        *rank = i == me ? place : *rank;
        count++;
    }
    return count;
}

static dpar_status dpari_split_failed(dpar_comm *comm, int32_t rank)
{
    dpar_text t;
    dpari_text_why(&t, &comm->why);
    dpari_text_print(&t, "split: rank %d has no memory for a communicator", rank);
    if (rank == comm->rank) {
        dpar_text_put(&t, ": ");
        dpari_put_lack(&t, dpari_group_of(comm)->world);
    }
    return DPAR_E_MEMORY;
}

static DPARI_COLD dpar_status dpari_shm_split(dpar_comm *comm, int32_t color, int32_t key,
                                              dpar_comm **out)
{
    dpari_shm *shm = dpari_shm_of(comm);
    dpari_node *node = shm->node;
    const int64_t bytes = 2 * comm->size * (int64_t)sizeof(dpari_card);
    dpari_card mine;
    dpari_card *card = (dpari_card *)dpari_os_pages(bytes);
    dpar_call call;
    dpar_status status;
    memset(&mine, 0, sizeof mine);
    mine.color = color;
    mine.key = key;
    mine.world_rank = node->world->me;
    dpari_lock(node);
    mine.good = color < 0 || dpari_member_make(node, &mine.member, &mine.sequence) == DPAR_OK;
    dpari_unlock(node);
    mine.id = (int64_t)node->highest + 1;
    if (!card) {
        return dpari_split_failed(comm, comm->rank); /* the others fail with a timeout */
    }
    call = dpari_call(DPAR_CALL_ALL_GATHER, &mine, card, (int64_t)sizeof mine, DPAR_U8);
    call.root = DPARI_SPLIT; /* so that it does not match an all-gather of the user */
    status = dpari_shm_run(comm, &call);
    for (int32_t r = 0; r < comm->size && status == DPAR_OK; r++) {
        status = card[r].good ? DPAR_OK : dpari_split_failed(comm, r);
    }
    if (status == DPAR_OK && color >= 0) {
        dpari_card *mates = card + comm->size;
        int32_t rank = 0;
        const int32_t size = dpari_split_mates(card, comm->size, comm->rank, mates, &rank);
        dpari_lock(node);
        status = dpari_shm_make(node, shm, mates, size, rank, out);
        dpari_unlock(node);
        if (status != DPAR_OK) {
            status = dpari_split_failed(comm, comm->rank);
        }
    } else if (status == DPAR_OK) {
        *out = NULL;
    }
    dpari_os_unmap(card, bytes);
    return status;
}

/* ---- shrinking --------------------------------------------------------------------------------
 *
 * The new communicator belongs to the same world and has members that the ranks which are left
 * behind do not know. Such a rank may only be stopped, in the middle of a copy into memory of its
 * operation. The memory that this rank's heap has used so far is therefore not allocated again,
 * unless all ranks that are left behind are dead. */

/* Waits until all ranks have voted or the deadline has passed. */
static void dpari_shrink_wait(dpari_shm *shm)
{
    dpari_group *group = &shm->group;
    dpari_world *world = group->world;
    dpari_wait t;
    int32_t known = 0, before = 0;
    int late = 0;
    memset(&t, 0, sizeof t);
    while (!late && known < group->comm.size && !dpari_vote_is_decided(group)) {
        dpar_status passed;
        dpari_unlock(shm->node);
        passed = dpari_wait_turn(world, &t, -1);
        dpari_lock(shm->node);
        known = dpari_vote_known(group, passed == DPAR_MORE);
        if (passed == DPAR_MORE) {
            const double now = dpari_os_now();
            dpari_wait_says(world, -1);
            dpari_progress_all(shm->node);
            t.began = known != before ? now : t.began;
            late = group->comm.timeout_s > 0.0 && now - t.began > group->comm.timeout_s;
            before = known;
        }
    }
    dpari_wait_end(world, &t);
}

/* Appends the ranks that stay: "rank 1, 3". */
static void dpari_put_stayers(dpar_text *text, const dpari_group *group, const uint64_t *stay)
{
    int32_t named = 0;
    for (int32_t r = 0; r < group->comm.size && text->used + 40 < text->capacity; r++) {
        if (dpari_vote_stays(stay, r)) {
            dpari_text_print(text, "%s%d", named++ ? ", " : "rank ", r);
        }
    }
}

static dpar_status dpari_shrink_late(const dpari_group *group, const uint64_t *stay, dpar_why *why)
{
    dpar_text t;
    dpari_text_why(&t, why);
    dpar_text_put(&t, "shrink: ");
    dpari_put_rank(&t, group, group->comm.rank);
    dpar_text_put(&t, " arrived too late: the others continue without it: ");
    dpari_put_stayers(&t, group, stay);
    return DPAR_E_TIMEOUT;
}

/* Marks the ranks that are left behind, for the launcher. If all of them are dead, this rank's heap
 * may be allocated again from floor_before on. */
static void dpari_shrink_leave(const dpari_group *group, const uint64_t *stay, int64_t floor_before)
{
    dpari_world *world = group->world;
    int alive = 0;
    for (int32_t r = 0; r < group->comm.size; r++) {
        if (!dpari_vote_stays(stay, r)) {
            DPARI_STORE(&world->rank[group->world_rank[r]].behind, 1U);
            alive |= dpari_rank_state(world, group->world_rank[r]) == DPARI_RANK_HERE;
        }
    }
    world->floor = alive ? world->floor : floor_before;
}

static dpar_status dpari_shrink_make(dpari_shm *shm, const uint64_t *stay, dpar_comm **out,
                                     int32_t *was)
{
    dpari_group *group = &shm->group;
    const int64_t bytes = group->comm.size * (int64_t)sizeof(dpari_card);
    dpari_card *card = (dpari_card *)dpari_os_pages(bytes);
    int32_t size = 0, rank = 0;
    dpar_status status;
    if (!card) {
        return DPAR_E_MEMORY;
    }
    for (int32_t r = 0; r < group->comm.size; r++) {
        const dpari_vote *v = &group->member[r]->vote;
        if (dpari_vote_stays(stay, r)) {
            rank = r == group->comm.rank ? size : rank;
            card[size].key = r;
            card[size].world_rank = group->world_rank[r];
            card[size].member = v->member;
            card[size].sequence = v->sequence;
            card[size++].id = v->id;
        }
    }
    status = dpari_shm_make(shm->node, shm, card, size, rank, out);
    if (status == DPAR_OK) {
        dpari_shm_of(*out)->generation++;
        for (int32_t r = 0; r < size && was; r++) {
            was[r] = card[r].key;
        }
    }
    dpari_os_unmap(card, bytes);
    return status;
}

/* Fails all operations that are posted on the communicator, on all ranks. */
static void dpari_shrink_break(dpari_shm *shm)
{
    dpari_group *group = &shm->group;
    dpar_why why;
    dpar_text t;
    if (dpari_group_broken(group) == DPAR_OK) {
        dpari_text_why(&t, &why);
        dpari_put_rank(&t, group, group->comm.rank);
        dpar_text_put(&t, " shrinks this communicator");
        dpari_group_break(group, DPAR_E_PEER, why.text);
    }
    dpari_shm_lost(shm);
}

/* Publishes this rank's vote, with a member for its next communicator. */
static dpar_status dpari_shrink_vote(dpari_shm *shm, dpar_why *why)
{
    dpari_group *group = &shm->group;
    dpari_node *node = shm->node;
    dpari_vote *v = &group->member[group->comm.rank]->vote;
    dpar_status status;
    shm->voted = 1;
    dpari_shrink_break(shm);
    node->world->floor = node->world->fresh;
    status = dpari_member_make(node, &v->member, &v->sequence);
    v->id = (int64_t)node->highest + 1;
    dpari_vote_cast(group, status == DPAR_OK ? DPARI_VOTE_STAYS : DPARI_VOTE_LEAVES);
    if (status != DPAR_OK) {
        return dpari_say(status, why, "shrink: rank %d has no memory for a communicator",
                         group->comm.rank);
    }
    return DPAR_OK;
}

static DPARI_COLD dpar_status dpari_shm_shrink(dpar_comm *comm, dpar_comm **out, int32_t *was,
                                               dpar_why *why)
{
    dpari_shm *shm = dpari_shm_of(comm);
    dpari_group *group = &shm->group;
    const int64_t floor_before = shm->node->world->floor;
    const uint64_t *stay;
    dpar_status status;
    if (shm->voted) {
        return dpari_wrong(why, "shrink: rank %d has shrunk this communicator before", comm->rank);
    }
    dpari_lock(shm->node);
    status = dpari_shrink_vote(shm, why);
    if (status == DPAR_OK) {
        dpari_shrink_wait(shm);
        stay = dpari_vote_decide(group);
        if (!dpari_vote_stays(stay, comm->rank)) {
            status = dpari_shrink_late(group, stay, why);
        } else {
            dpari_shrink_leave(group, stay, floor_before);
            status = dpari_shrink_make(shm, stay, out, was);
            if (status != DPAR_OK) {
                (void)dpari_say(status, why, "shrink: rank %d has no memory for a communicator",
                                comm->rank);
            }
        }
    }
    dpari_unlock(shm->node);
    return status;
}

/* ---- the engine ------------------------------------------------------------------------------ */

static void dpari_engine_shm(dpar_engine *e)
{
    memset(e, 0, sizeof *e);
    memcpy(e->name, "shm", 4);
    e->run = dpari_shm_run;
    e->post = dpari_shm_post;
    e->test = dpari_shm_test;
    e->wait = dpari_shm_wait;
    e->batch = dpari_shm_batch;
    e->split = dpari_shm_split;
    e->shrink = dpari_shm_shrink;
    e->alloc = dpari_shm_alloc;
    e->release = dpari_shm_release;
    e->progress = dpari_shm_progress;
    e->abort = dpari_shm_abort;
    e->report = dpari_shm_report;
    e->describe = dpari_shm_describe;
    e->close = dpari_shm_close;
}
