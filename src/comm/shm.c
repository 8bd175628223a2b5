/* SPDX-License-Identifier: MIT-0 */
/* The shared-memory engine: what is posted where, who waits how, what happens when a rank does not
 * come. The collectives themselves are coll.c, messages p2p.c.
 *
 * A member (a rank's part of a communicator) is never given back to the heap: a slow peer may still
 * look at its words after the last operation. It waits for the next communicator of its rank, which
 * counts on from where the members of its ranks have stopped, so that words still only grow. */
#include "shm.h"

#include "../base/arith.h"

/* ---- locks: only with a progress thread -------------------------------------------------------
 */

static void dpari_lock(dpari_world *w)
{
    uint32_t free_now = 0;
    if (!DPARI_LOAD(&w->progress)) {
        return;
    }
    while (!DPARI_CLAIM(&w->lock, &free_now, 1U)) {
        free_now = 0;
        dpari_os_pause();
        sched_yield();
    }
}

static void dpari_unlock(dpari_world *w)
{
    if (DPARI_LOAD(&w->progress)) {
        DPARI_STORE(&w->lock, 0U);
    }
}

/* ---- how a communicator breaks ----------------------------------------------------------------
 */

static dpari_shm *dpari_shm_of(dpar_comm *c)
{
    return (dpari_shm *)(void *)c;
}

static void dpari_why_set(dpar_why *why, const char *text)
{
    dpar_text t;
    dpar_text_init(&t, why->text, sizeof why->text);
    dpar_text_put(&t, text);
}

DPARI_API dpar_status dpari_shm_broken(dpari_shm *s)
{
    const dpari_abort *record = &s->member[0]->abort;
    if (s->comm.status == DPAR_OK && DPARI_LOAD(&record->state) == DPARI_ABORT_SET) {
        dpari_why_set(&s->comm.why, record->text);
        s->broken_from = record->from;
        s->comm.status = record->status;
    }
    return s->comm.status;
}

DPARI_API dpar_status dpari_shm_break(dpari_shm *s, dpar_status status, const char *text)
{
    dpari_abort *record = &s->member[0]->abort;
    uint32_t none = DPARI_ABORT_NONE;
    if (s->comm.status != DPAR_OK) {
        return s->comm.status;
    }
    if (DPARI_CLAIM(&record->state, &none, (uint32_t)DPARI_ABORT_CLAIMED)) {
        dpar_text t;
        dpar_text_init(&t, record->text, sizeof record->text);
        dpar_text_put(&t, text);
        record->status = status;
        record->from = s->first ? s->first->sequence : s->sequence + 1;
        DPARI_STORE(&record->state, (uint32_t)DPARI_ABORT_SET);
        dpari_ring_all(&s->world->segment);
    }
    /* another was first; if it died over it, this rank's own finding stands */
    for (int32_t i = 0; i < 1000 && dpari_shm_broken(s) == DPAR_OK; i++) {
        dpari_os_sleep(100e-6);
    }
    if (s->comm.status == DPAR_OK) {
        dpari_why_set(&s->comm.why, text);
        s->comm.status = status;
    }
    return s->comm.status;
}

DPARI_API int dpari_segment_broke(const dpari_segment *s, dpar_why *why)
{
    const dpari_world_head *h = (const dpari_world_head *)(const void *)s->base;
    const dpari_rank *first = (const dpari_rank *)(const void *)(s->base + sizeof *h);
    const uint64_t ref = DPARI_LOAD(&first->member);
    const char *at = h->threads ? (const char *)(uintptr_t)ref : s->base + ref;
    const dpari_abort *record = &((const dpari_member *)(const void *)at)->abort;
    if (ref == 0 || DPARI_LOAD(&record->state) != DPARI_ABORT_SET) {
        return 0;
    }
    dpari_why_set(why, record->text);
    return 1;
}

/* ---- sentences --------------------------------------------------------------------------------
 */

static void dpari_put_end(dpar_text *t, const dpari_rank *r)
{
    int32_t ending = __atomic_load_n(&r->ending, __ATOMIC_RELAXED);
    uint32_t state = DPARI_LOAD(&r->state);
    if (state == DPARI_RANK_LEFT) {
        dpar_text_put(t, " has left");
    } else if (ending < 0) {
        dpar_text_put(t, " was killed by signal ");
        dpar_text_int(t, -(int64_t)ending);
    } else {
        dpar_text_put(t, " has ended");
        if (ending > 0) {
            dpar_text_put(t, " with status ");
            dpar_text_int(t, ending);
        }
    }
}

DPARI_API void dpari_put_ending(dpar_text *t, const dpari_shm *s, int32_t world_rank)
{
    const dpari_rank *r = &s->world->rank[world_rank];
    /* its lock is gone at once; how it ended, whoever started it knows a moment later */
    for (int32_t i = 0; i < 20 && DPARI_LOAD(&r->state) == DPARI_RANK_DEAD &&
                        __atomic_load_n(&r->ending, __ATOMIC_RELAXED) == 0;
         i++) {
        dpari_os_sleep(1e-3);
    }
    dpari_put_end(t, r);
}

static void dpari_put_flight(dpar_text *t, const dpari_flight *f)
{
    dpar_text_put(t, f->state == DPARI_FLIGHT_DONE     ? " (last done: "
                     : f->state == DPARI_FLIGHT_FAILED ? " (failed: "
                                                       : " (in ");
    dpari_flight_text(t, f);
    if (f->comm != 0) {
        dpar_text_put(t, " of group ");
        dpar_text_int(t, f->comm);
    }
    dpar_text_char(t, ')');
}

static void dpari_put_last(dpar_text *t, dpari_world *w, int32_t world_rank)
{
    dpari_flight f;
    if (dpari_flight_find(w, world_rank, 0, DPARI_FLIGHT_LAST, &f)) {
        dpari_put_flight(t, &f);
    } else {
        dpar_text_put(t, " (it did nothing yet)");
    }
}

DPARI_API void dpari_put_failed(dpar_text *t, const dpari_shm *s, int32_t world_rank)
{
    dpari_flight f;
    if (dpari_flight_find(s->world, world_rank, 0, DPARI_FLIGHT_LAST_FAILED, &f)) {
        dpari_put_flight(t, &f);
    }
}

DPARI_API void dpari_put_rank(dpar_text *t, const dpari_shm *s, int32_t rank)
{
    dpar_text_put(t, "rank ");
    dpar_text_int(t, rank);
    if (s->world_rank[rank] != rank) {
        dpar_text_put(t, " (");
        dpar_text_int(t, s->world_rank[rank]);
        dpar_text_put(t, " in the world)");
    }
}

static int dpari_work_misses(const dpari_shm *s, const dpar_work *k, int32_t rank)
{
    return k->call.kind < DPAR_COLLECTIVES ? dpari_coll_missing(s, k, rank) : rank == k->call.root;
}

DPARI_API void dpari_put_work(dpar_text *t, const dpari_shm *s, const dpar_work *k)
{
    dpari_flight f;
    memset(&f, 0, sizeof f);
    f.sequence = k->sequence;
    f.count = k->call.count;
    f.kind = k->call.kind;
    f.type = k->call.type;
    f.op = k->call.op;
    f.root = k->call.root;
    f.tag = k->call.tag;
    f.varies = k->call.varies;
    dpari_flight_text(t, &f);
    dpar_text_put(t, " of ");
    if (s->id != 0) {
        dpar_text_put(t, "group ");
        dpar_text_int(t, s->id);
        dpar_text_put(t, " of ");
    }
    dpar_text_int(t, s->comm.size);
    dpar_text_put(t, " ranks: ");
}

enum { DPARI_NAMED = 8 }; /* ranks that a sentence names */

/* When several died, the first that is missed may not be the one to look for. */
static void dpari_put_others_dead(dpar_text *t, const dpari_shm *s, int32_t rank)
{
    int32_t dead = 1;
    for (int32_t r = 0; r < s->comm.size; r++) {
        if (r != rank && dpari_rank_state(s->world, s->world_rank[r]) == DPARI_RANK_DEAD &&
            dead++ < DPARI_NAMED) {
            dpar_text_put(t, dead > 2 ? ", " : "; gone too: ");
            dpari_put_rank(t, s, r);
        }
    }
    if (dead > DPARI_NAMED) {
        dpar_text_put(t, " and ");
        dpar_text_int(t, dead - DPARI_NAMED);
        dpar_text_put(t, " more");
    }
}

DPARI_API dpar_status dpari_fail_peer(dpari_shm *s, const dpar_work *k, int32_t rank)
{
    dpar_why why;
    dpar_text t;
    dpar_text_init(&t, why.text, sizeof why.text);
    dpari_put_work(&t, s, k);
    dpari_put_rank(&t, s, rank);
    dpari_put_ending(&t, s, s->world_rank[rank]);
    dpari_put_last(&t, s->world, s->world_rank[rank]);
    dpari_put_others_dead(&t, s, rank);
    return dpari_shm_break(s, DPAR_E_PEER, why.text);
}

static int32_t dpari_shm_rank(const dpari_shm *s, int32_t world_rank)
{
    int32_t r;
    for (r = 0; r < s->comm.size && s->world_rank[r] != world_rank; r++) {
    }
    return r < s->comm.size ? r : -1;
}

DPARI_API int32_t dpari_shm_culprit(const dpari_shm *s, int32_t world_rank, double now,
                                    double quiet, int32_t *links)
{
    const dpari_rank *r = s->world->rank;
    int32_t who = world_rank, n;
    for (n = 0; n < s->world->size && dpari_beat_age(DPARI_LOAD(&r[who].beat), now) <= quiet; n++) {
        const int32_t next = DPARI_LOAD(&r[who].needs);
        if (next == s->world->me || next == world_rank || dpari_shm_rank(s, next) < 0) {
            break;
        }
        who = next;
    }
    *links = n;
    return who;
}

DPARI_API double dpari_quiet(double timeout)
{
    const double least = 0.06; /* a sleeper says so each 0.02 s */
    return dpari_mostf(least, dpari_leastf(timeout / 4.0, 1.0));
}

/* The first that is missing because it waits for a rank that has come to k, and for whom. */
static void dpari_put_behind(dpar_text *t, const dpari_shm *s, const dpar_work *k)
{
    const double now = dpari_os_now(), quiet = dpari_quiet(s->comm.timeout_s);
    for (int32_t r = 0; r < s->comm.size; r++) {
        int32_t links = 0, who;
        if (!dpari_work_misses(s, k, r)) {
            continue;
        }
        who = dpari_shm_rank(s, dpari_shm_culprit(s, s->world_rank[r], now, quiet, &links));
        if (links > 0 && !dpari_work_misses(s, k, who)) {
            dpar_text_put(t, ", ");
            dpari_put_rank(t, s, r);
            dpar_text_put(t, links > 1 ? " waits for others, they for " : " waits for ");
            dpari_put_rank(t, s, who);
            return;
        }
    }
}

static dpar_status dpari_fail_late(dpari_shm *s, const dpar_work *k, double waited)
{
    int32_t missing = 0;
    dpar_why why;
    dpar_text t;
    for (int32_t r = 0; r < s->comm.size; r++) {
        missing += dpari_work_misses(s, k, r);
    }
    dpar_text_init(&t, why.text, sizeof why.text);
    dpari_put_work(&t, s, k);
    dpar_text_int(&t, missing);
    dpar_text_put(&t, " did not come in ");
    dpar_text_fixed(&t, waited, 1);
    dpar_text_put(&t, " s");
    dpari_put_behind(&t, s, k);
    dpar_text_put(&t, ": ");
    for (int32_t r = 0, named = 0; r < s->comm.size && t.used + 60 < t.room; r++) {
        if (dpari_work_misses(s, k, r)) {
            dpar_text_put(&t, named++ ? ", " : "");
            dpari_put_rank(&t, s, r);
            dpari_put_last(&t, s->world, s->world_rank[r]);
        }
    }
    return dpari_shm_break(s, DPAR_E_TIMEOUT, why.text);
}

/* What k really waits for: a collective waits for those posted before it. */
static const dpar_work *dpari_awaited(const dpari_shm *s, const dpar_work *k)
{
    return k->call.kind < DPAR_COLLECTIVES && s->first ? s->first : k;
}

/* After an error elsewhere a close waits for nobody: others may have seen that error before they
 * had this communicator at all. It ends with that error here, too. */
static int dpari_close_in_vain(dpari_shm *s)
{
    for (dpari_shm *other = s->world->comms; other && s->closing; other = other->next) {
        if (dpari_shm_broken(other) != DPAR_OK) {
            dpari_shm_break(s, other->comm.status, other->comm.why.text);
            return 1;
        }
    }
    return 0;
}

/* Time has passed: does it still make sense to wait? OK: yes; E_PEER: *rank is gone; E_TIMEOUT. */
static dpar_status dpari_shm_look(dpari_shm *s, const dpar_work *k, double began, int32_t *rank)
{
    const dpar_work *awaited = dpari_awaited(s, k);
    int32_t missing = 0;
    uint32_t gone = 0;
    if (dpari_shm_broken(s) != DPAR_OK || dpari_close_in_vain(s)) {
        return s->comm.status;
    }
    for (int32_t r = 0; r < s->comm.size && gone != DPARI_RANK_DEAD; r++) {
        uint32_t state;
        if (!dpari_work_misses(s, awaited, r)) {
            continue;
        }
        missing++;
        state = dpari_rank_state(s->world, s->world_rank[r]);
        /* one that died before one that left: others leave because of it */
        if (state == DPARI_RANK_DEAD || (state == DPARI_RANK_LEFT && !gone)) {
            gone = state;
            *rank = r;
        }
    }
    if (gone) {
        return DPAR_E_PEER;
    }
    return missing > 0 && s->comm.timeout_s > 0.0 && dpari_os_now() - began > s->comm.timeout_s
               ? DPAR_E_TIMEOUT
               : DPAR_OK;
}

/* ---- progress ---------------------------------------------------------------------------------
 */

static void dpari_work_done(dpari_shm *s, dpar_work *k, dpar_status status)
{
    for (dpar_work **link = &s->finished; *link; link = &(*link)->behind) {
        if (*link == k) {
            *link = k->behind;
            break;
        }
    }
    s->world->posted--;
    dpari_flight_end(s->world, k->record,
                     status == DPAR_OK ? DPARI_FLIGHT_DONE : DPARI_FLIGHT_FAILED);
    k->status = status;
    DPARI_STORE(&k->comm, NULL); /* last: from here on it is the user's */
}

/* The collectives of one communicator, in order, until one has to wait. */
static void dpari_queue_progress(dpari_shm *s)
{
    while (s->first) {
        dpar_work *k = s->first;
        const dpar_status broken = s->comm.status;
        dpar_status status = broken;
        /* what all had done before it broke has all its words: it ends well everywhere */
        if (broken == DPAR_OK || k->sequence < s->broken_from) {
            status = dpari_coll_advance(s, k);
        }
        if (status == DPAR_MORE && broken == DPAR_OK) {
            return;
        }
        status = status == DPAR_MORE ? broken : status;
        s->first = k->next;
        s->last = s->first ? s->last : NULL;
        dpari_work_done(s, k, status);
    }
}

static void dpari_step(dpari_shm *s, dpar_work *k)
{
    if (k->call.kind < DPAR_COLLECTIVES) {
        dpari_queue_progress(s);
    } else {
        dpar_status status = s->comm.status;
        if (status == DPAR_OK) {
            status = dpari_p2p_advance(s, k);
        } else {
            dpari_p2p_forget(s);
        }
        if (status != DPAR_MORE) {
            dpari_work_done(s, k, status);
        }
    }
}

static void dpari_progress_all(dpari_world *w)
{
    for (dpari_shm *s = w->comms; s; s = s->next) {
        dpari_queue_progress(s);
    }
    dpari_p2p_progress(w);
}

DPARI_API void dpari_shm_progress_all(dpari_shm *s)
{
    if (s->world->posted > 0) {
        dpari_lock(s->world);
        dpari_progress_all(s->world);
        dpari_unlock(s->world);
    }
}

/* Gives up what cannot end any more. */
static void dpari_give_up(dpari_shm *s, dpar_work *k, dpar_status status)
{
    if (!k->comm) {
        return;
    }
    if (k->call.kind < DPAR_COLLECTIVES) {
        dpari_queue_progress(s); /* fails all of them: the communicator is broken */
    } else {
        dpari_p2p_forget(s);
        dpari_work_done(s, k, status);
    }
}

/* Has the operation come further since the last look? The deadline is for waits without news. */
static int dpari_gets_on(dpari_world *w, const dpar_work *k)
{
    uint64_t seen = (uint64_t)k->sequence * 31 + (uint64_t)k->phase;
    uint64_t before = w->seen;
    for (int32_t i = 0; i < 16; i++) {
        seen = (seen ^ (uint64_t)k->state[i]) * UINT64_C(0x9e3779b97f4a7c15);
    }
    w->seen = seen;
    return seen != before;
}

/* Looks at everything, and gives up where nobody will come. */
static void dpari_shm_judge(dpari_shm *s, dpar_work *k, double *began)
{
    dpar_status status;
    int32_t rank = 0;
    dpari_progress_all(s->world);
    if (k->comm) {
        dpari_step(s, k);
    }
    if (!k->comm) {
        return;
    }
    if (dpari_gets_on(s->world, dpari_awaited(s, k))) {
        *began = dpari_os_now();
    }
    status = dpari_shm_look(s, k, *began, &rank);
    if (status == DPAR_OK) {
        return;
    }
    dpari_step(s, k); /* the last words of a rank that is gone may have come just before */
    if (!k->comm) {
        return;
    }
    if (status == DPAR_E_PEER && s->comm.status == DPAR_OK) {
        status = dpari_fail_peer(s, dpari_awaited(s, k), rank);
    } else if (status == DPAR_E_TIMEOUT && s->comm.status == DPAR_OK) {
        status = dpari_fail_late(s, dpari_awaited(s, k), dpari_os_now() - *began);
    }
    dpari_give_up(s, k, status);
}

enum { DPARI_ALL_EVERY = 64 }; /* turns after which a wait looks at everything */

/* Until k is done. The caller holds the lock. */
static dpar_status dpari_shm_await(dpari_shm *s, dpar_work *k)
{
    dpari_world *w = s->world;
    dpari_wait t = {0, 0, 0, 0, 0.0};
    int32_t turn = 0;
    for (;;) {
        int32_t peer, needs;
        dpar_status passed;
        dpari_step(s, k);
        needs = k->call.kind == DPAR_SEND || k->call.kind == DPAR_RECV ? s->world_rank[k->call.root]
                                                                       : w->blocker;
        peer = w->posted > 1 ? -1 : w->blocker;
        if (k->comm && (w->posted > 1 || ++turn % DPARI_ALL_EVERY == 0)) {
            dpari_progress_all(w);
        }
        if (!k->comm) {
            break;
        }
        dpari_unlock(w);
        passed = dpari_wait_turn(w, &t, peer);
        dpari_lock(w);
        if (passed == DPAR_MORE && k->comm) {
            dpari_wait_says(w, needs);
            dpari_shm_judge(s, k, &t.began);
        }
        if (!k->comm) {
            break;
        }
    }
    dpari_wait_end(w, &t);
    /* who waited long may have come when the others had given it up */
    if (k->status == DPAR_OK && t.began > 0.0 && k->call.kind < DPAR_COLLECTIVES &&
        dpari_shm_broken(s) != DPAR_OK && k->sequence >= s->broken_from) {
        k->status = s->comm.status;
    }
    return k->status;
}

/* ---- the engine's functions -------------------------------------------------------------------
 */

static int64_t dpari_flights_of(const dpari_world *w)
{
    return (int64_t)w->rank[w->me].flights + 1;
}

/* Posts it; OK when it was done at once. */
static void dpari_shm_begin(dpari_shm *s, const dpar_call *call, dpar_work *k)
{
    dpari_world *w = s->world;
    const int is_message = call->kind >= DPAR_COLLECTIVES;
    dpar_status status;
    k->comm = k->home = &s->comm;
    k->status = DPAR_MORE;
    k->phase = 0;
    k->call = *call;
    k->began = 0.0;
    k->next = NULL;
    k->sequence = is_message ? dpari_flights_of(w) : ++s->sequence;
    k->record = dpari_flight_begin(w, s->id, k->sequence, call);
    w->posted++;
    status = dpari_shm_broken(s); /* too late: the others have given it up */
    if (status != DPAR_OK) {
        dpari_work_done(s, k, status);
        return;
    }
    if (is_message) {
        status = dpari_p2p_start(s, call, k);
        if (status != DPAR_MORE) {
            dpari_work_done(s, k, status);
        }
        return;
    }
    if (s->last) {
        s->last->next = k;
    } else {
        s->first = k;
    }
    s->last = k;
}

static dpar_status dpari_shm_run(dpar_comm *c, const dpar_call *call)
{
    dpari_shm *s = dpari_shm_of(c);
    dpar_work k;
    dpar_status status;
    dpari_lock(s->world);
    DPARI_STORE(&s->world->waiting, 1U);
    dpari_shm_begin(s, call, &k);
    status = k.comm ? dpari_shm_await(s, &k) : k.status;
    DPARI_STORE(&s->world->waiting, 0U);
    dpari_unlock(s->world);
    return status;
}

static dpar_status dpari_shm_post(dpar_comm *c, const dpar_call *call, dpar_work *k)
{
    dpari_shm *s = dpari_shm_of(c);
    dpari_lock(s->world);
    dpari_shm_begin(s, call, k);
    if (k->comm) {
        dpari_step(s, k);
    }
    dpari_unlock(s->world);
    return DPAR_OK;
}

static dpar_status dpari_shm_wait(dpar_work *k)
{
    dpari_shm *s = dpari_shm_of(k->home);
    dpari_world *w = s->world;
    dpar_status status;
    dpari_lock(w);
    DPARI_STORE(&w->waiting, 1U);
    status = k->comm ? dpari_shm_await(s, k) : k->status;
    DPARI_STORE(&w->waiting, 0U);
    dpari_unlock(w);
    return status;
}

enum { DPARI_TESTS_CROWDED = 16 }; /* tests between two offers of the core to who needs it */
#define DPARI_LOOK_EVERY 10e-3     /* seconds between two looks at peers and deadline */

static dpar_status dpari_shm_test(dpar_work *k)
{
    dpari_shm *s = dpari_shm_of(k->home);
    dpari_world *w = s->world;
    dpar_status status;
    dpari_lock(w);
    dpari_progress_all(w);
    if (k->comm) {
        dpari_step(s, k);
    }
    if (k->comm) {
        const double now = dpari_os_now();
        k->began = k->began > 0.0 ? k->began : now;
        w->tests++;
        if (now - w->looked > DPARI_LOOK_EVERY) {
            w->looked = now;
            dpari_shm_judge(s, k, &k->began);
        }
    }
    status = k->comm ? DPAR_MORE : k->status;
    dpari_unlock(w);
    if (status == DPAR_MORE && w->crowded && w->tests % DPARI_TESTS_CROWDED == 0) {
        dpari_os_sleep(10e-6); /* a yield would come back at once, or after another's whole slice */
    }
    return status;
}

enum { DPARI_BATCH = 12 }; /* works that fit on the stack */

/* Receives first: what arrives then goes straight to its place. */
static dpar_status dpari_shm_batch(dpar_comm *c, const dpar_call *calls, int32_t n,
                                   dpar_work *works)
{
    dpar_work few[DPARI_BATCH];
    dpar_work *k = works;
    int64_t bytes = n * (int64_t)sizeof *k;
    dpar_status status = DPAR_OK;
    if (!works) {
        k = n <= DPARI_BATCH ? few : (dpar_work *)dpari_os_pages(bytes);
        if (!k) {
            dpari_why_set(&c->why, "batch: no memory for so many calls");
            return DPAR_E_MEMORY;
        }
    }
    for (int32_t pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < n; i++) {
            if ((calls[i].kind == DPAR_SEND) == pass) {
                dpari_shm_post(c, &calls[i], &k[i]);
            }
        }
    }
    if (!works) {
        status = dpar_wait_all(k, n);
        if (k != few) {
            dpari_os_unmap(k, bytes);
        }
    }
    return status;
}

static void dpari_alloc_why(const dpari_world *w, int64_t bytes, dpar_why *why)
{
    int64_t used = 0;
    dpar_text t;
    for (int32_t i = 0; i < w->used_count; i++) {
        used += w->used[i].bytes;
    }
    dpar_text_init(&t, why->text, sizeof why->text);
    dpar_text_put(&t, "no shared memory for ");
    dpar_text_int(&t, bytes);
    dpar_text_put(&t, " more bytes: this rank has ");
    dpar_text_int(&t, used);
    dpar_text_put(&t, " of at most ");
    dpar_text_int(&t, w->head->heap_bytes);
    dpar_text_put(&t, " in use, in ");
    dpar_text_int(&t, w->used_count);
    dpar_text_put(&t, " of at most 65536 pieces (");
    dpari_os_error(&t, w->number);
    dpar_text_char(&t, ')');
}

static dpar_status dpari_shm_alloc(dpar_comm *c, int64_t bytes, void **memory)
{
    dpari_world *w = dpari_shm_of(c)->world;
    dpar_status status;
    dpari_lock(w);
    status = dpari_heap_alloc(w, bytes, memory);
    dpari_unlock(w);
    if (status != DPAR_OK) {
        dpari_alloc_why(w, bytes, &c->why);
    }
    return status;
}

static void dpari_shm_release(dpar_comm *c, void *memory)
{
    dpari_world *w = dpari_shm_of(c)->world;
    dpari_lock(w);
    dpari_heap_release(w, memory);
    dpari_unlock(w);
}

static void dpari_shm_abort(dpar_comm *c, dpar_status status, const char *text)
{
    dpari_shm_break(dpari_shm_of(c), status, text);
}

/* ---- the progress thread ----------------------------------------------------------------------
 */

static void *dpari_progress_main(void *arg)
{
    dpari_world *w = (dpari_world *)arg;
    int32_t idle = 0;
    while (DPARI_LOAD(&w->progress) == 1) {
        int32_t posted = 0;
        /* the user's thread makes progress while it waits; two would be in each other's way */
        if (!DPARI_LOAD(&w->waiting)) {
            dpari_lock(w);
            dpari_progress_all(w);
            posted = w->posted;
            dpari_unlock(w);
        }
        idle = posted ? idle + 1 : 1000;
        if (idle > 100) {
            dpari_os_sleep(posted ? 20e-6 : 100e-6);
        } else {
            dpari_os_pause();
        }
    }
    return NULL;
}

static dpar_status dpari_shm_progress(dpar_comm *c, int32_t on)
{
    dpari_world *w = dpari_shm_of(c)->world;
    if (on && !w->progress) {
        DPARI_STORE(&w->progress, 1U);
        if (dpari_os_thread(&w->thread, dpari_progress_main, w) != 0) {
            DPARI_STORE(&w->progress, 0U);
            dpari_why_set(&c->why, "no thread could be started for progress");
            return DPAR_E_SYSTEM;
        }
    } else if (!on && w->progress) {
        DPARI_STORE(&w->progress, 2U); /* it still takes the lock, once */
        dpari_os_join(w->thread);
        DPARI_STORE(&w->progress, 0U);
    }
    return DPAR_OK;
}

/* ---- report -----------------------------------------------------------------------------------
 */

enum { DPARI_REPORTED = 4 }; /* operations a rank */

static void dpari_report_rank(dpari_world *w, int32_t rank, dpar_text *out)
{
    const dpari_rank *r = &w->rank[rank];
    uint64_t n = DPARI_LOAD(&r->flights), k = n < DPARI_REPORTED ? 0 : n - DPARI_REPORTED;
    dpar_text_put(out, "rank ");
    dpar_text_int(out, rank);
    dpar_text_put(out, " (process ");
    dpar_text_int(out, r->pid);
    dpar_text_char(out, ')');
    if (dpari_rank_state(w, rank) != DPARI_RANK_HERE) {
        dpari_put_end(out, r);
    }
    dpar_text_put(out, n ? "" : ": nothing yet");
    for (; k < n; k++) {
        union {
            dpari_flight f;
            uint64_t word[sizeof(dpari_flight) / sizeof(uint64_t)];
        } now;
        dpari_flight_copy(now.word, (const uint64_t *)(const void *)&r->flight[k % DPARI_FLIGHTS]);
        dpar_text_put(out, "\n    ");
        dpari_flight_text(out, &now.f);
        dpar_text_put(out, now.f.state == DPARI_FLIGHT_DONE     ? " done"
                           : now.f.state == DPARI_FLIGHT_FAILED ? " failed"
                                                                : " not done");
        if (now.f.comm) {
            dpar_text_put(out, ", group ");
            dpar_text_int(out, now.f.comm);
        }
    }
    dpar_text_char(out, '\n');
}

static void dpari_shm_report(dpar_comm *c, dpar_text *out)
{
    dpari_shm *s = dpari_shm_of(c);
    for (int32_t r = 0; r < c->size; r++) {
        dpari_report_rank(s->world, s->world_rank[r], out);
    }
}

/* ---- making and ending ------------------------------------------------------------------------
 */

DPARI_API dpar_status dpari_member_make(dpari_world *w, uint64_t *ref, int64_t *sequence)
{
    dpari_member *m;
    void *memory = NULL;
    dpar_status status;
    if (w->spare) {
        m = (dpari_member *)dpari_at(w, w->spare);
        *ref = w->spare;
        w->spare = m->next;
        *sequence = m->counted;
        memset(&m->abort, 0, sizeof m->abort);
        return DPAR_OK;
    }
    status = dpari_heap_alloc(
        w, (int64_t)sizeof *m + 2 * dpari_table_bytes(w) + 2 * w->head->slot_bytes, &memory);
    if (status == DPAR_OK) {
        *ref = dpari_ref(w, memory, 1);
        *sequence = 0;
    }
    return status;
}

static void dpari_member_spare(dpari_shm *s)
{
    dpari_member *m = s->member[s->comm.rank];
    m->counted = s->sequence;
    m->next = s->world->spare;
    s->world->spare = s->member_ref;
}

/* Works that nobody waited for end here; where one was not done, the others must not wait either.
 */
static int32_t dpari_shm_lost(dpari_shm *s)
{
    int32_t lost = dpari_p2p_forget(s);
    dpar_text t;
    dpar_why why;
    for (dpar_work *k = s->first; k; k = k->next) {
        lost++;
    }
    if (lost > 0) {
        dpar_text_init(&t, why.text, sizeof why.text);
        dpari_put_rank(&t, s, s->comm.rank);
        dpar_text_put(&t, " closed the communicator without waiting for ");
        dpar_text_int(&t, lost);
        dpar_text_put(&t, lost == 1 ? " operation" : " operations");
        dpari_shm_break(s, DPAR_E_ARG, why.text);
    }
    while (s->finished) {
        dpari_work_done(s, s->finished, s->finished->status);
    }
    if (lost > 0) {
        dpari_queue_progress(s); /* fails them all: it is broken */
    }
    return lost;
}

/* Out of the world's list, and gone. */
static void dpari_shm_drop(dpari_shm *s)
{
    dpari_shm **link = &s->world->comms;
    while (*link && *link != s) {
        link = &(*link)->next;
    }
    *link = s->next;
    dpari_os_unmap(s, s->bytes);
}

static dpar_status dpari_shm_close(dpar_comm *c)
{
    dpari_shm *s = dpari_shm_of(c);
    dpari_world *w = s->world;
    const int last = s->id == 0;
    dpar_status status = DPAR_OK;
    int32_t lost;
    if (last && w->lent) {
        dpari_why_set(&c->why, "close: dpar_launch closes this communicator itself");
        return DPAR_E_ARG;
    }
    dpari_lock(w);
    s->closing = 1;
    lost = dpari_shm_lost(s);
    dpari_unlock(w);
    if (c->status == DPAR_OK && !dpari_close_in_vain(s)) {
        dpar_call leave;
        memset(&leave, 0, sizeof leave);
        leave.kind = DPAR_BARRIER;
        leave.root = DPARI_CLOSE;
        status = dpari_shm_run(c, &leave);
    }
    if (last) {
        dpari_shm_progress(c, 0);
        while (w->comms) {
            w->comms->closing = 1;
            dpari_shm_lost(w->comms);
            dpari_shm_drop(w->comms);
        }
        dpari_world_close(w);
    } else {
        dpari_lock(w);
        if (c->status == DPAR_OK) {
            dpari_member_spare(s);
        }
        dpari_shm_drop(s);
        dpari_unlock(w);
    }
    return lost ? DPAR_E_ARG : status;
}

static dpar_status dpari_shm_split(dpar_comm *c, int32_t color, int32_t key, dpar_comm **out);

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
    e->alloc = dpari_shm_alloc;
    e->release = dpari_shm_release;
    e->progress = dpari_shm_progress;
    e->abort = dpari_shm_abort;
    e->report = dpari_shm_report;
    e->close = dpari_shm_close;
}

DPARI_API dpari_world *dpari_world_of(const dpar_comm *c)
{
    return c->engine.run == dpari_shm_run ? ((const dpari_shm *)(const void *)c)->world : NULL;
}

DPARI_API dpar_status dpari_shm_make(dpari_world *w, int32_t size, const int32_t *world_rank,
                                     const uint64_t *member, int32_t rank, uint32_t id,
                                     int64_t sequence, dpari_shm **out)
{
    const int64_t pointers = size * (int64_t)sizeof(void *);
    const int64_t bytes = (int64_t)sizeof(dpari_shm) + 3 * pointers + (int64_t)sizeof(void *) +
                          size * (int64_t)sizeof(int32_t);
    dpari_shm *s = (dpari_shm *)dpari_os_pages(bytes);
    if (!s) {
        return DPAR_E_MEMORY;
    }
    s->bytes = bytes;
    s->world = w;
    s->id = id;
    s->sequence = sequence;
    s->slot_bytes = w->head->slot_bytes;
    s->member = (dpari_member **)(void *)(s + 1);
    s->in = (const void **)(void *)(s->member + size);
    s->out = (void **)(void *)(s->in + size);
    s->world_rank = (int32_t *)(void *)(s->out + size + 1); /* a result, and where others take it */
    for (int32_t r = 0; r < size; r++) {
        s->member[r] = (dpari_member *)dpari_at(w, member[r]);
        s->world_rank[r] = world_rank[r];
    }
    s->member_ref = member[rank];
    s->comm.rank = rank;
    s->comm.size = size;
    s->comm.timeout_s = w->timeout_s;
    dpari_engine_shm(&s->comm.engine);
    s->next = w->comms;
    w->comms = s;
    *out = s;
    return DPAR_OK;
}

/* What each rank says of itself in a split. */
typedef struct dpari_card {
    int32_t color, key, world_rank, good;
    uint64_t member;
    int64_t sequence, id;
} dpari_card;

static int dpari_card_before(const dpari_card *a, int32_t i, const dpari_card *b, int32_t j)
{
    return a->key != b->key ? a->key < b->key : i < j;
}

/* Picks those of this rank's color, in order; the place of this rank in *rank. */
static int32_t dpari_split_members(const dpari_card *card, int32_t n, int32_t me,
                                   int32_t *world_rank, uint64_t *member, int32_t *rank)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t place = 0;
        if (card[i].color != card[me].color) {
            continue;
        }
        for (int32_t j = 0; j < n; j++) {
            place += card[j].color == card[me].color && j != i &&
                     dpari_card_before(&card[j], j, &card[i], i);
        }
        world_rank[place] = card[i].world_rank;
        member[place] = card[i].member;
        *rank = i == me ? place : *rank;
        count++;
    }
    return count;
}

static dpar_status dpari_split_failed(dpari_shm *s, int32_t rank)
{
    dpar_text t;
    dpar_text_init(&t, s->comm.why.text, sizeof s->comm.why.text);
    dpar_text_put(&t, "split: rank ");
    dpar_text_int(&t, rank);
    dpar_text_put(&t, " has no memory for a communicator");
    return DPAR_E_MEMORY;
}

static dpar_status dpari_split_make(dpari_shm *s, const dpari_card *card, uint64_t *member,
                                    dpar_comm **out)
{
    const int32_t n = s->comm.size, me = s->comm.rank;
    int32_t *world_rank = (int32_t *)(void *)(member + n);
    int32_t rank = 0, size = dpari_split_members(card, n, me, world_rank, member, &rank);
    int64_t sequence = 0, id = 0;
    dpari_shm *made = NULL;
    dpar_status status;
    for (int32_t i = 0; i < n; i++) {
        if (card[i].color == card[me].color) {
            sequence = card[i].sequence > sequence ? card[i].sequence : sequence;
            id = card[i].id > id ? card[i].id : id;
        }
    }
    status =
        dpari_shm_make(s->world, size, world_rank, member, rank, (uint32_t)id, sequence, &made);
    if (status != DPAR_OK) {
        return dpari_split_failed(s, me);
    }
    made->comm.timeout_s = s->comm.timeout_s;
    s->world->highest = (uint32_t)id; /* so no two groups of the same two ranks share a name */
    *out = &made->comm;
    return DPAR_OK;
}

/* An all-gather with a name of its own. */
static dpar_status dpari_split_gather(dpar_comm *c, const dpari_card *mine, dpari_card *card)
{
    dpar_call call;
    memset(&call, 0, sizeof call);
    call.kind = DPAR_ALL_GATHER;
    call.root = DPARI_SPLIT;
    call.type = DPAR_U8;
    call.count = (int64_t)sizeof *mine;
    call.in = mine;
    call.out = card;
    return dpari_shm_run(c, &call);
}

static dpar_status dpari_shm_split(dpar_comm *c, int32_t color, int32_t key, dpar_comm **out)
{
    dpari_shm *s = dpari_shm_of(c);
    dpari_world *w = s->world;
    const int32_t n = c->size;
    const int64_t cards = n * (int64_t)sizeof(dpari_card);
    const int64_t bytes = cards + n * (int64_t)(sizeof(uint64_t) + sizeof(int32_t));
    dpari_card mine;
    dpari_card *card = (dpari_card *)dpari_os_pages(bytes);
    dpar_status status;
    memset(&mine, 0, sizeof mine);
    mine.color = color;
    mine.key = key;
    mine.world_rank = w->me;
    dpari_lock(w);
    mine.good = color < 0 || dpari_member_make(w, &mine.member, &mine.sequence) == DPAR_OK;
    dpari_unlock(w);
    mine.id = (int64_t)w->highest + 1;
    if (!card) {
        return dpari_split_failed(s, c->rank); /* the others wait in vain, and say so */
    }
    status = dpari_split_gather(c, &mine, card);
    for (int32_t r = 0; r < n && status == DPAR_OK; r++) {
        status = card[r].good ? DPAR_OK : dpari_split_failed(s, r);
    }
    if (status == DPAR_OK && color >= 0) {
        dpari_lock(w);
        status = dpari_split_make(s, card, (uint64_t *)(void *)(card + n), out);
        dpari_unlock(w);
    } else if (status == DPAR_OK) {
        *out = NULL;
    }
    dpari_os_unmap(card, bytes);
    return status;
}
