/* SPDX-License-Identifier: MIT-0 */
#include "world.h"

#include "../base/inner.h"
#include "engine.h"
#include "kernel.h"

#define DPARI_MAGIC UINT64_C(0x31646c726f775064)
enum { DPARI_VERSION = 3 };

/* What the shared clock begins with: beats that are 0 are older than any deadline's quiet time. */
enum { DPARI_CLOCK_FIRST = 1 << 20 };

static int64_t dpari_in_units(int64_t bytes, int64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* ---- segments ---------------------------------------------------------------------------------
 */

static dpari_world_head *dpari_segment_head(const dpari_segment *s)
{
    return (dpari_world_head *)(void *)s->base;
}

static dpari_rank *dpari_segment_ranks(const dpari_segment *s)
{
    return (dpari_rank *)(void *)(s->base + sizeof(dpari_world_head));
}

static int64_t dpari_heap_begin(int64_t ranks)
{
    int64_t table = ranks * ranks * (int64_t)sizeof(uint64_t);
    int64_t bytes = (int64_t)sizeof(dpari_world_head) + ranks * (int64_t)sizeof(dpari_rank) + table;
    return dpari_in_units(bytes, INT64_C(65536)); /* the largest page in use */
}

DPARI_APART dpar_status dpari_segment_options(int32_t ranks, const dpar_options *o, dpar_why *why)
{
    const char *what = NULL;
    dpar_text t;
    if (ranks < 1 || ranks > DPARI_MAX_RANKS) {
        what = "ranks of one node are 1 .. 1024";
    } else if (o && (o->heap_bytes < 0 || o->heap_bytes > INT64_C(1) << 50)) {
        what = "heap_bytes is 0 .. 2^50";
    } else if (o && o->slot_bytes != 0 &&
               (o->slot_bytes < 4096 || o->slot_bytes > INT64_C(16) << 20 ||
                (o->slot_bytes & (o->slot_bytes - 1)) != 0)) {
        what = "slot_bytes is a power of two from 4096 to 2^24";
    } else if (o && (o->plain < 0 || o->plain >= 2 * DPAR_WITHOUT_MOVES)) {
        what = "plain has bits that mean nothing";
    }
    if (what && why) {
        dpar_text_init(&t, why->text, sizeof why->text);
        dpari_text_print(&t, "%s, not %ld", what,
                         ranks < 1 || ranks > DPARI_MAX_RANKS ? ranks
                         : what[0] == 'h'                     ? o->heap_bytes
                         : what[0] == 's'                     ? o->slot_bytes
                                                              : o->plain);
    }
    return what ? DPAR_E_ARG : DPAR_OK;
}

/* Maps `bytes`; where others must reach it, as a file. */
static int dpari_segment_map(dpari_segment *s, int64_t bytes, int alone, int without_memfd)
{
    s->bytes = bytes;
    s->fd = alone ? -1 : dpari_os_segment(bytes, without_memfd);
    if (!alone && s->fd < 0) {
        return errno ? errno : ENOSYS;
    }
    s->base = (char *)(alone ? dpari_os_pages(bytes) : dpari_os_map(s->fd, bytes));
    if (!s->base) {
        int number = errno;
        if (s->fd >= 0) {
            close(s->fd);
        }
        return number ? number : ENOMEM;
    }
    return 0;
}

DPARI_API DPARI_COLD dpar_status dpari_segment_make(dpari_segment *s, int32_t ranks,
                                                    const dpar_options *options, dpar_why *why)
{
    const int64_t least = INT64_C(64) << 20, begin = dpari_heap_begin(ranks);
    const int32_t plain = options ? options->plain : 0, threads = options ? options->threads : 0;
    dpar_status status = dpari_segment_options(ranks, options, why);
    int64_t heap = options && options->heap_bytes > 0 ? options->heap_bytes : dpari_os_memory();
    int number = ENOMEM;
    dpari_world_head *h;
    if (status != DPAR_OK) {
        return status;
    }
    heap = dpari_in_units(heap < least ? least : heap, INT64_C(65536));
    /* only addresses are taken here: where a limit forbids so many, fewer do */
    for (; number != 0 && heap >= least; heap = number ? heap / 2 / 65536 * 65536 : heap) {
        if ((uint64_t)heap < (uint64_t)SIZE_MAX / 4 / (uint64_t)ranks) {
            number = dpari_segment_map(s, begin + ranks * heap, ranks == 1 || threads,
                                       plain & DPAR_WITHOUT_MEMFD);
        }
        if (number == 0) {
            break;
        }
    }
    if (number == 0 && s->fd >= 0) {
        number = dpari_os_reserve(s->fd, 0, begin);
        if (number != 0) {
            dpari_segment_close(s);
        }
    }
    if (number != 0) {
        return dpari_os_why(why, "shared memory of ", begin + ranks * least, number);
    }
    h = dpari_segment_head(s);
    h->version = DPARI_VERSION;
    h->ranks = (uint32_t)ranks;
    h->bytes = s->bytes;
    h->heap_bytes = heap;
    h->heap_begin = begin;
    h->slot_bytes = options && options->slot_bytes ? options->slot_bytes : INT64_C(256) << 10;
    while (h->slot_bytes < 256 * (int64_t)ranks) { /* a chunk has a line for each rank at least */
        h->slot_bytes *= 2;
    }
    h->plain = plain;
    h->threads = threads || ranks == 1;
    h->nonce = dpari_os_random();
    h->clock = DPARI_CLOCK_FIRST;
    DPARI_STORE(&h->magic, DPARI_MAGIC); /* last: what is before it is whole */
    return DPAR_OK;
}

static int dpari_head_is_sound(const dpari_world_head *h, int64_t bytes)
{
    return DPARI_LOAD(&h->magic) == DPARI_MAGIC && h->version == DPARI_VERSION &&
           h->bytes == bytes && h->ranks >= 1 && h->ranks <= DPARI_MAX_RANKS &&
           h->heap_begin == dpari_heap_begin((int64_t)h->ranks) && h->heap_bytes > 0 &&
           h->heap_bytes <= (bytes - h->heap_begin) / (int64_t)h->ranks;
}

DPARI_API DPARI_COLD dpar_status dpari_segment_open(dpari_segment *s, int fd, dpar_why *why)
{
    struct stat about;
    dpar_text t;
    if (fstat(fd, &about) != 0) {
        return dpari_os_why(why, "the shared memory that was handed over", 0, errno);
    }
    s->fd = fd;
    s->bytes = (int64_t)about.st_size;
    s->base =
        s->bytes >= (int64_t)sizeof(dpari_world_head) ? (char *)dpari_os_map(fd, s->bytes) : NULL;
    if (s->base && dpari_head_is_sound(dpari_segment_head(s), s->bytes)) {
        return DPAR_OK;
    }
    if (s->base) {
        dpari_os_unmap(s->base, s->bytes);
        s->base = NULL;
    }
    close(fd);
    s->fd = -1;
    if (why) {
        dpar_text_init(&t, why->text, sizeof why->text);
        dpari_text_print(
            &t, "the shared memory that was handed over (%ld bytes) is not of this version of dpar",
            s->bytes);
    }
    return DPAR_E_ARG;
}

DPARI_API DPARI_COLD void dpari_segment_close(dpari_segment *s)
{
    dpari_os_unmap(s->base, s->bytes);
    s->base = NULL;
    if (s->fd >= 0) {
        close(s->fd);
    }
    s->fd = -1;
}

/* ---- sleeping and waking ----------------------------------------------------------------------
 */

/* Takes a rank off the count of sleepers; whoever succeeds does it, once. */
static int dpari_untell(dpari_world_head *h, dpari_rank *r)
{
    uint32_t asleep = 1;
    if (!DPARI_CLAIM(&r->asleep, &asleep, 0U)) {
        return 0;
    }
    DPARI_ADD(&h->sleepers, (uint32_t)-1);
    return 1;
}

static void dpari_ring(dpari_world_head *h, dpari_rank *r)
{
    if (dpari_untell(h, r)) {
        DPARI_ADD(&r->bell, 1U);
        dpari_os_futex_wake(&r->bell, h->threads);
    }
}

DPARI_API void dpari_ring_all(const dpari_segment *s)
{
    dpari_world_head *h = dpari_segment_head(s);
    for (uint32_t i = 0; i < h->ranks; i++) {
        dpari_ring(h, &dpari_segment_ranks(s)[i]);
    }
}

/* Kept out of the way: a publisher seldom finds someone asleep. */
static void dpari_ring_sleepers(dpari_world *w)
{
    for (int32_t i = 0; i < w->size; i++) {
        dpari_rank *r = &w->rank[i];
        if (DPARI_LOAD_SEQ(&r->asleep)) {
            int32_t peer = DPARI_LOAD(&r->waits_for);
            if (peer < 0 || peer == w->me) {
                dpari_ring(w->head, r);
            }
        }
    }
}

DPARI_DOOR void dpari_publish(dpari_world *w, uint64_t *word, uint64_t value)
{
    DPARI_STORE_SEQ(word, value);
    if (DPARI_LOAD_SEQ(&w->head->sleepers)) {
        dpari_ring_sleepers(w);
    }
}

enum {
    DPARI_SPINS = 8192,        /* about 0.1 ms: what a sleep and its wake-up cost */
    DPARI_SPINS_SHARED = 8,    /* the core is better given to the rank that is waited for */
    DPARI_SPINS_BLIND = 64,    /* 1 to 3 us; then a wait looks on which CPU its peer is */
    DPARI_SPINS_MORE = 1024,   /* then the clock is looked at */
    DPARI_SPINS_SLEEPY = 1024, /* cores for all, but busy with something else */
    DPARI_VAIN = 3,            /* waits in a row that spin in vain before that is believed */
    DPARI_SLEEPY = 1000,       /* waits for which one dear yield is remembered; twice as many when */
    DPARI_SLEEPY_MOST = 64000, /* the next is dear again, to so many */
    DPARI_SLEEPY_LOST = 64     /* waits for which the loss of a slice is remembered */
};
#define DPARI_SPIN_FOR                                                                             \
    1e-3 /* a sleep and its wake-up cost a tenth of that, and more when cores doze */
#define DPARI_YIELD_FOR 2e-3
#define DPARI_YIELD_IS_DEAR 500e-6 /* less than a slice, more than what passes by */
#define DPARI_SLEEP_FOR 20e-3
#define DPARI_MOVE_EVERY 2e-3 /* a rank that moved stays so long at least: half a slice */
#define DPARI_SLICE_LOST 2e-3 /* between two looks at the clock in a spin: another process ran here */

/* Looks at the clock. The time for which this process was suspended does not count. Returns the
 * seconds since the last look. */
static double dpari_wait_look_at_clock(dpari_wait *t, double now)
{
    const double since = t->looked > 0.0 ? now - t->looked : 0.0;
    const double suspended = dpari_os_suspended(&t->looked, now);
    if (suspended > 0.0) {
        t->resumed++;
        t->began += t->began > 0.0 ? suspended : 0.0;
    }
    return since;
}

/* Publishes on which CPU this rank runs, and looks whether the peer was last seen on the same one.
 * Then the peer cannot get on while this rank spins. peer -1: any of the ranks. */
static DPARI_COLD void dpari_wait_look_around(dpari_world *w, dpari_wait *t, int32_t peer)
{
    const int32_t cpu = dpari_os_cpu();
    const int32_t first = peer < 0 ? 0 : peer, end = peer < 0 ? w->size : peer + 1;
    t->shares = 0;
    if (cpu != w->cpu) {
        w->cpu = cpu;
        DPARI_STORE(&w->rank[w->me].cpu, cpu);
    }
    for (int32_t i = first; i < end && cpu >= 0; i++) {
        if (i != w->me && DPARI_LOAD(&w->rank[i].cpu) == cpu) {
            t->shares = i + 1;
            return;
        }
    }
}

/* Two ranks share a CPU although there is one for each. The system often leaves them there for long,
 * because each of them sleeps or yields while the other one runs. So the one with the higher rank
 * moves to a CPU on which no rank was seen last. If another program runs there, then it shares that
 * CPU with one rank in place of the first CPU with both. */
static DPARI_COLD void dpari_wait_move_away(dpari_world *w, dpari_wait *t, int32_t peer)
{
    uint64_t is_free[DPARI_CPU_WORDS];
    int32_t cpu = 0;
    if (t->shares > w->me || t->looked - w->moved < DPARI_MOVE_EVERY ||
        (w->head->plain & DPAR_WITHOUT_MOVES)) {
        return;
    }
    w->moved = t->looked;
    dpari_os_cpus(is_free);
    for (int32_t i = 0; i < w->size; i++) {
        const int32_t taken = DPARI_LOAD(&w->rank[i].cpu);
        if (taken >= 0 && taken < 64 * DPARI_CPU_WORDS) {
            is_free[taken / 64] &= ~(UINT64_C(1) << (taken % 64));
        }
    }
    while (cpu < 64 * DPARI_CPU_WORDS && (is_free[cpu / 64] >> (cpu % 64) & 1) == 0) {
        cpu++;
    }
    if (cpu < 64 * DPARI_CPU_WORDS && dpari_os_move_to(cpu)) {
        dpari_wait_look_around(w, t, peer);
    }
}

static dpar_status dpari_wait_asleep(dpari_world *w, dpari_wait *t)
{
    dpari_rank *r = &w->rank[w->me];
    dpari_os_futex_wait(&r->bell, t->bell, DPARI_SLEEP_FOR, w->threads);
    (void)dpari_wait_look_at_clock(t, dpari_os_now());
    t->told = 0;
    dpari_untell(w->head, r);
    /* Cores for all, and yet it spun in vain again and again: something else runs on them, perhaps
     * on the one that the peer needs. Then spin less for a while; unless waits then last, again and
     * again, as long as work does, for which a spin would have been enough. */
    if (w->crowded || t->shares) {
        return DPAR_MORE;
    }
    if (w->sleepy > 0) {
        const double waited = dpari_os_now() - t->began;
        w->worked = waited > DPARI_SPIN_FOR / 10 && waited < DPARI_SPIN_FOR ? w->worked + 1 : 0;
        if (w->worked >= DPARI_VAIN) {
            w->sleepy = w->vain = w->worked = 0;
        }
    } else if (t->turns >= DPARI_SPINS && ++w->vain >= DPARI_VAIN) {
        w->sleepy = DPARI_SLEEPY >> (w->vain < 2 * DPARI_VAIN ? 2 * DPARI_VAIN - w->vain : 0);
    }
    return DPAR_MORE;
}

/* Nobody needs to wake it. */
static void dpari_wait_untell(dpari_world *w, dpari_wait *t)
{
    if (t->told) {
        t->told = 0;
        dpari_untell(w->head, &w->rank[w->me]);
    } else if (t->turns < DPARI_SPINS && w->sleepy == 0) {
        w->vain = 0;
    }
}

DPARI_DOOR void dpari_wait_end(dpari_world *w, dpari_wait *t)
{
    if (t->began > 0.0) { /* who follows the chain of waits must not go on from here */
        DPARI_STORE(&w->rank[w->me].needs, -1);
    }
    dpari_wait_untell(w, t);
}

/* Gives the core to whoever needs it. If this rank is away for long, then something else wants the
 * core and gets a whole slice at each yield: sleeping is better for the waits to come. */
static void dpari_wait_yield(dpari_world *w, dpari_wait *t, double now)
{
    double back;
    sched_yield();
    back = dpari_os_now();
    (void)dpari_wait_look_at_clock(t, back);
    if (back - now <= DPARI_YIELD_IS_DEAR) {
        w->dear -= w->dear > 0;
        return;
    }
    if (!w->crowded) { /* the two may be apart again soon */
        w->sleepy = DPARI_SLEEPY_LOST;
        return;
    }
    if (w->dear < DPARI_SLEEPY) {
        w->dear = DPARI_SLEEPY;
    } else if (w->dear < DPARI_SLEEPY_MOST) {
        w->dear *= 2;
    }
    w->sleepy = w->dear;
}

static DPARI_COLD dpar_status dpari_wait_slow(dpari_world *w, dpari_wait *t, int32_t peer)
{
    dpari_rank *r = &w->rank[w->me];
    double now, since;
    if (t->told && (t->peer == peer || t->peer < 0)) {
        return dpari_wait_asleep(w, t);
    }
    dpari_wait_untell(w, t); /* the news that it had asked for has come; now it needs another's */
    if (!w->crowded) { /* the system may have moved one of the two since the last look */
        dpari_wait_look_around(w, t, peer);
    }
    now = dpari_os_now();
    since = dpari_wait_look_at_clock(t, now);
    if (!(t->began > 0.0)) {
        t->began = now;
        w->sleepy -= w->sleepy > 0;
    }
    if (t->shares && !w->crowded) {
        dpari_wait_move_away(w, t, peer);
        if (!t->shares) {
            return DPAR_OK;
        }
    }
    if (!w->crowded && !t->shares && since > DPARI_SLICE_LOST && w->sleepy < DPARI_SLEEPY_LOST) {
        w->sleepy = DPARI_SLEEPY_LOST;
    }
    if (!w->crowded && !t->shares && w->sleepy == 0 && now - t->began < DPARI_SPIN_FOR) {
        t->turns -= DPARI_SPINS_MORE; /* nobody else needs this core, as far as is known */
        return DPAR_OK;
    }
    if ((w->crowded || t->shares) && w->sleepy == 0 && now - t->began < DPARI_YIELD_FOR) {
        dpari_wait_yield(w, t, now);
        return DPAR_OK;
    }
    if (w->head->plain & DPAR_WITHOUT_FUTEX) {
        dpari_os_sleep(20e-6);
        (void)dpari_wait_look_at_clock(t, dpari_os_now());
        return DPAR_MORE;
    }
    /* counted first: whoever takes it off the count must find it there. The fence, so that the look
     * that follows cannot be moved before the exchange: an exchange alone does not forbid it on
     * POWER (tests/model/order.c). */
    t->bell = DPARI_LOAD_SEQ(&r->bell);
    t->told = 1;
    t->peer = peer;
    DPARI_ADD(&w->head->sleepers, 1U);
    DPARI_STORE(&r->waits_for, peer);
    __atomic_exchange_n(&r->asleep, 1U, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return DPAR_OK;
}

DPARI_DOOR dpar_status dpari_wait_turn(dpari_world *w, dpari_wait *t, int32_t peer)
{
    int32_t spins = w->sleepy ? DPARI_SPINS_SLEEPY : DPARI_SPINS;
    if (w->crowded || t->shares) {
        spins = DPARI_SPINS_SHARED;
    }
    if (t->turns >= spins) {
        return dpari_wait_slow(w, t, peer);
    }
    t->turns++;
    if (t->turns == DPARI_SPINS_BLIND) {
        dpari_wait_look_around(w, t, peer);
    }
    dpari_os_pause();
    return DPAR_OK;
}

/* The time that all ranks share. CLOCK_MONOTONIC differs between time namespaces, so nobody reads
 * the clock of another: a rank that finds the shared one as it was when it last looked sets it
 * forward by what has passed since, and one that finds it changed takes it as it is. So it runs
 * while somebody waits, at most as fast as time, and no faster for many. */
static uint32_t dpari_clock(dpari_world *w)
{
    const double now = dpari_os_now();
    const double passed = (now - w->clock_at) * 1000.0;
    uint32_t seen = DPARI_LOAD(&w->head->clock);
    if (seen != w->clock) {
        w->clock = seen;
        w->clock_at = now;
        return seen;
    }
    if (passed >= 1.0) {
        const uint32_t next = seen + (uint32_t)dpari_leastf(passed, 1e9);
        w->clock = DPARI_CLAIM(&w->head->clock, &seen, next) ? next : seen;
        w->clock_at = now;
    }
    return w->clock;
}

DPARI_API DPARI_COLD double dpari_beat_age(dpari_world *w, int32_t rank)
{
    const uint32_t beat = DPARI_LOAD(&w->rank[rank].beat);
    return (double)(dpari_clock(w) - beat) / 1000.0;
}

DPARI_DOOR DPARI_COLD void dpari_wait_says(dpari_world *w, int32_t needs)
{
    dpari_rank *r = &w->rank[w->me];
    DPARI_STORE(&r->needs, needs);
    DPARI_STORE(&r->beat, dpari_clock(w));
}

/* ---- life and death ---------------------------------------------------------------------------
 */

static void dpari_rank_is_dead(const dpari_segment *s, int32_t rank, int32_t ending)
{
    dpari_rank *r = &dpari_segment_ranks(s)[rank];
    uint32_t state = DPARI_LOAD(&r->state);
    if (state == DPARI_RANK_LEFT) {
        return;
    }
    if (ending != 0) { /* a peer may have noticed first, and does not know how it ended */
        __atomic_store_n(&r->ending, ending, __ATOMIC_RELAXED);
    }
    if (state != DPARI_RANK_DEAD && DPARI_CLAIM(&r->state, &state, (uint32_t)DPARI_RANK_DEAD)) {
        dpari_untell(dpari_segment_head(s), r);
        dpari_ring_all(s);
    }
}

DPARI_API DPARI_COLD void dpari_segment_ended(const dpari_segment *s, int32_t rank, int32_t ending)
{
    dpari_rank_is_dead(s, rank, ending);
}

DPARI_DOOR DPARI_COLD int dpari_world_speaks(dpari_world *w, uint32_t turn)
{
    uint32_t said = DPARI_LOAD(&w->head->said);
    while (said < turn) {
        if (DPARI_CLAIM(&w->head->said, &said, turn)) {
            return 1;
        }
    }
    return 0;
}

DPARI_API DPARI_COLD int dpari_segment_said(const dpari_segment *s)
{
    return DPARI_LOAD(&dpari_segment_head(s)->said) != 0;
}

DPARI_API DPARI_COLD int dpari_segment_has_left(const dpari_segment *s, int32_t rank)
{
    return DPARI_LOAD(&dpari_segment_ranks(s)[rank].state) == DPARI_RANK_LEFT;
}

DPARI_API DPARI_COLD int dpari_segment_is_behind(const dpari_segment *s, int32_t rank)
{
    return DPARI_LOAD(&dpari_segment_ranks(s)[rank].behind) != 0;
}

DPARI_API DPARI_COLD uint64_t dpari_segment_pulse(const dpari_segment *s, int32_t rank)
{
    const dpari_rank *r = &dpari_segment_ranks(s)[rank];
    return DPARI_LOAD(&r->flights) + ((uint64_t)DPARI_LOAD(&r->beat) << 32);
}

DPARI_DOOR uint32_t dpari_rank_state(dpari_world *w, int32_t rank)
{
    uint32_t state = DPARI_LOAD(&w->rank[rank].state);
    if (state != DPARI_RANK_HERE || w->threads || rank == w->me ||
        dpari_os_is_held(w->segment.fd, rank)) {
        return state;
    }
    state = DPARI_LOAD(&w->rank[rank].state); /* it says that it leaves before it lets go */
    if (state == DPARI_RANK_HERE) {
        dpari_rank_is_dead(&w->segment, rank, 0);
    }
    return DPARI_LOAD(&w->rank[rank].state);
}

DPARI_API DPARI_COLD void dpari_put_end(dpar_text *t, const dpari_rank *r)
{
    int32_t ending = __atomic_load_n(&r->ending, __ATOMIC_RELAXED);
    uint32_t state = DPARI_LOAD(&r->state);
    if (state == DPARI_RANK_LEFT) {
        dpar_text_put(t, " has left");
    } else if (ending < 0) {
        dpari_text_print(t, " was killed by signal %ld", -(int64_t)ending);
    } else {
        dpar_text_put(t, " has ended");
        if (ending > 0) {
            dpari_text_print(t, " with status %d", ending);
        }
    }
}

DPARI_DOOR DPARI_COLD void dpari_put_ending(dpar_text *t, const dpari_world *w, int32_t rank)
{
    const dpari_rank *r = &w->rank[rank];
    /* its lock is gone at once; how it ended, whoever started it knows a moment later */
    for (int32_t i = 0; i < 20 && DPARI_LOAD(&r->state) == DPARI_RANK_DEAD &&
                        __atomic_load_n(&r->ending, __ATOMIC_RELAXED) == 0;
         i++) {
        dpari_os_sleep(1e-3);
    }
    dpari_put_end(t, r);
}

/* ---- the heap of this rank --------------------------------------------------------------------
 */

DPARI_DOOR void *dpari_at(const dpari_world *w, uint64_t ref)
{
    return w->threads ? (void *)(uintptr_t)ref : (void *)(w->segment.base + ref);
}

DPARI_DOOR uint64_t dpari_ref(const dpari_world *w, const void *at, int64_t bytes)
{
    const uint64_t base = (uint64_t)(uintptr_t)w->segment.base, p = (uint64_t)(uintptr_t)at;
    if (w->threads) {
        return p;
    }
    if (p < base + (uint64_t)w->head->heap_begin || p > base + (uint64_t)w->segment.bytes ||
        (uint64_t)bytes > base + (uint64_t)w->segment.bytes - p) {
        return 0;
    }
    return p - base;
}

#define DPARI_ASK_FROM (INT64_C(64) << 20) /* bytes from which it is asked what there is */

/* The first gap of `bytes` that begins at a multiple of `unit`: where, and the place in the list;
 * -1: there is none. */
static DPARI_COLD int64_t dpari_heap_gap(const dpari_world *w, int64_t bytes, int64_t unit,
                                         int32_t *place)
{
    const int64_t begin = w->head->heap_begin + w->me * w->head->heap_bytes;
    const int64_t end = begin + w->head->heap_bytes;
    int64_t at = dpari_in_units(dpari_most(begin, w->floor), unit);
    int32_t i;
    for (i = 0; i < w->used_count && w->used[i].begin - at < bytes; i++) {
        at = dpari_most(at, dpari_in_units(w->used[i].begin + w->used[i].bytes, unit));
    }
    *place = i;
    return end - at >= bytes && w->used_count < DPARI_MAX_USED ? at : -1;
}

DPARI_API DPARI_COLD dpar_status dpari_heap_alloc(dpari_world *w, int64_t bytes, void **memory)
{
    const int64_t page = dpari_os_page();
    int32_t place = 0;
    int64_t at, take = bytes < 1 ? 1 : bytes;
    if (take > w->head->heap_bytes) {
        w->number = ENOMEM;
        return DPAR_E_MEMORY;
    }
    take = dpari_in_units(take, page);
    at = take >= DPARI_OS_LARGE ? dpari_heap_gap(w, take, DPARI_OS_LARGE, &place) : -1;
    at = at >= 0 ? at : dpari_heap_gap(w, take, page, &place);
    w->number = at < 0 ? ENOMEM : 0;
    if (at >= 0 && take >= DPARI_ASK_FROM && take > dpari_os_available()) {
        w->number = ENOMEM; /* the system would end some process instead of saying no */
    } else if (at >= 0 && w->segment.fd >= 0) {
        w->number = dpari_os_reserve(w->segment.fd, at, take);
        if (w->number == 0) { /* elements of a box a page apart miss the table of pages at each */
            dpari_os_large_pages(w->segment.base + at, take);
        }
    }
    if (w->number != 0) {
        return DPAR_E_MEMORY;
    }
    if (at < w->fresh) {
        int64_t old = w->fresh - at < take ? w->fresh - at : take;
        memset(w->segment.base + at, 0, (size_t)old);
    }
    w->fresh = at + take > w->fresh ? at + take : w->fresh;
    memmove(&w->used[place + 1], &w->used[place],
            (size_t)(w->used_count - place) * sizeof w->used[0]);
    w->used[place].begin = at;
    w->used[place].bytes = take;
    w->used_count++;
    *memory = w->segment.base + at;
    return DPAR_OK;
}

/* The first allocation that begins at `at` of the mapping or later. */
static int32_t dpari_heap_find(const dpari_world *w, int64_t at)
{
    int32_t low = 0, high = w->used_count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (w->used[middle].begin < at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

DPARI_DOOR int dpari_heap_holds(const dpari_world *w, int64_t low, int64_t high, int64_t *within)
{
    const int64_t heap = w->head->heap_begin + w->me * w->head->heap_bytes;
    const dpari_used *u;
    int32_t i;
    low -= (int64_t)(uintptr_t)w->segment.base;
    high -= (int64_t)(uintptr_t)w->segment.base;
    *within = 0;
    if (low >= high || high <= heap || low >= heap + w->head->heap_bytes) {
        return 1;
    }
    i = dpari_heap_find(w, low + 1);
    u = i > 0 ? &w->used[i - 1] : NULL;
    if (u == NULL || low >= u->begin + u->bytes) {
        return 0;
    }
    *within = u->bytes;
    return high <= u->begin + u->bytes;
}

DPARI_API void dpari_heap_release(dpari_world *w, void *memory)
{
    const int64_t at = (int64_t)((uintptr_t)memory - (uintptr_t)w->segment.base);
    const int32_t low = dpari_heap_find(w, at);
    if (low == w->used_count || w->used[low].begin != at) {
        return;
    }
#if defined(__linux__) && defined(MADV_REMOVE)
    if (w->segment.fd >= 0 && w->used[low].bytes >= INT64_C(1) << 20) {
        madvise(memory, (size_t)w->used[low].bytes, MADV_REMOVE);
    }
#endif
    w->used_count--;
    memmove(&w->used[low], &w->used[low + 1], (size_t)(w->used_count - low) * sizeof w->used[0]);
}

/* ---- joining ----------------------------------------------------------------------------------
 */

DPARI_API DPARI_COLD void dpari_world_close(dpari_world *w)
{
    DPARI_STORE(&w->rank[w->me].state, (uint32_t)DPARI_RANK_LEFT);
    dpari_ring_all(&w->segment);
    dpari_os_unmap(w->used, DPARI_MAX_USED * (int64_t)sizeof(dpari_used));
    dpari_os_unmap(w->probe, dpari_os_page());
    if (w->owns) {
        w->segment.base = w->owns == DPARI_OWNS_FILE ? NULL : w->segment.base;
        dpari_segment_close(&w->segment);
    }
    dpari_os_unmap(w, (int64_t)sizeof *w);
}

DPARI_API DPARI_COLD dpari_world *dpari_world_make(const dpari_segment *s, int32_t me, int32_t own,
                                                   const dpar_options *options)
{
    dpari_world_head *h = dpari_segment_head(s);
    dpari_world *w = (dpari_world *)dpari_os_pages((int64_t)sizeof *w);
    if (!w) {
        return NULL;
    }
    w->segment = *s;
    w->head = h;
    w->rank = dpari_segment_ranks(s);
    w->channel = (uint64_t *)(void *)(w->rank + h->ranks);
    w->me = me;
    w->size = (int32_t)h->ranks;
    w->threads = h->threads;
    w->owns = own;
    w->timeout_s = options && options->timeout_s < 0.0   ? 0.0
                   : options && options->timeout_s > 0.0 ? options->timeout_s
                                                         : 300.0;
    w->used = (dpari_used *)dpari_os_pages(DPARI_MAX_USED * (int64_t)sizeof(dpari_used));
    w->fresh = h->heap_begin + me * h->heap_bytes;
    w->clock = DPARI_LOAD(&h->clock);
    w->clock_at = dpari_os_now();
    w->probe = dpari_os_own_page();
    if (!w->used || !w->probe) {
        dpari_os_unmap(w->used, DPARI_MAX_USED * (int64_t)sizeof(dpari_used));
        dpari_os_unmap(w->probe, dpari_os_page());
        dpari_os_unmap(w, (int64_t)sizeof *w);
        return NULL;
    }
    return w;
}

/* Who has not come; the sentence. */
static dpar_status dpari_join_missing(dpari_world *w, double waited, dpar_why *why)
{
    dpar_status status = DPAR_E_TIMEOUT;
    int32_t named = 0;
    dpar_text t;
    dpar_text_init(&t, why ? why->text : NULL, why ? sizeof why->text : 0);
    dpar_text_put(&t, "start: ");
    for (int32_t i = 0; i < w->size; i++) {
        uint32_t state = dpari_rank_state(w, i);
        if (DPARI_LOAD(&w->rank[i].member) != 0) {
            continue;
        }
        status = state == DPARI_RANK_AWAY ? status : DPAR_E_PEER;
        if (named++ < 8) {
            dpari_text_print(&t, "%s%d%s", named > 1 ? ", rank " : "rank ", i,
                             state == DPARI_RANK_AWAY ? " has not come" : " has ended");
        }
    }
    dpari_text_print(&t, " (%d of %d ranks) after %.1f s", named, w->size, waited);
    return status;
}

static dpar_status dpari_join_all(dpari_world *w, dpar_why *why)
{
    dpari_wait t;
    memset(&t, 0, sizeof t);
    for (int32_t i = 0; i < w->size; i++) {
        /* one that came and left again has come */
        while (DPARI_LOAD(&w->rank[i].member) == 0) {
            if (dpari_wait_turn(w, &t, -1) != DPAR_MORE) {
                continue;
            }
            double waited = dpari_os_now() - t.began;
            uint32_t state = dpari_rank_state(w, i);
            int late = w->timeout_s > 0.0 && waited > w->timeout_s;
            if ((late || state == DPARI_RANK_DEAD || state == DPARI_RANK_LEFT) &&
                DPARI_LOAD(&w->rank[i].member) == 0) {
                dpari_wait_end(w, &t);
                return dpari_join_missing(w, waited, why);
            }
        }
    }
    dpari_wait_end(w, &t);
    return DPAR_OK;
}

static int32_t dpari_cpu_bits(uint64_t v)
{
    int32_t n = 0;
    for (; v; v &= v - 1) {
        n++;
    }
    return n;
}

/* ---- whose memory can be read -----------------------------------------------------------------
 *
 * process_vm_readv takes a pid, and whether it may depends on both processes: their users and
 * namespaces, seccomp, Yama, whether they can be dumped. None of that is asked for. Each rank keeps
 * a word in its private memory that no other process has, and whoever reads from it reads that
 * word, too, in the same call. On entering each rank tries all others and shows which it has read,
 * so that ranks choose together what all of them can do. */

/* The word of a rank. */
static uint64_t dpari_world_word(const dpari_world *w, int32_t rank)
{
    uint64_t h = w->head->nonce + (uint64_t)(rank + 1) * UINT64_C(0x9e3779b97f4a7c15);
    h = (h ^ h >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ h >> 27) * UINT64_C(0x94d049bb133111eb);
    return h ^ h >> 31;
}

static int dpari_world_fetch(const dpari_world *w, int32_t rank, void *to, uint64_t from,
                             int64_t bytes)
{
    dpari_os_target target;
    target.pid = w->rank[rank].pid;
    target.at = w->rank[rank].probe;
    target.word = dpari_world_word(w, rank);
    return dpari_os_read_peer(&target, to, from, bytes);
}

DPARI_API int dpari_world_reads(const dpari_world *w, int32_t reader, int32_t rank)
{
    const dpari_rank *r = &w->rank[reader];
    const int32_t count = DPARI_LOAD(&r->reads);
    if (count == 0 || count == w->size) {
        return count != 0;
    }
    return (int)(__atomic_load_n(&r->can_read[rank / 64], __ATOMIC_RELAXED) >> rank % 64 & 1U);
}

DPARI_API int dpari_world_read(dpari_world *w, int32_t rank, void *to, uint64_t from, int64_t bytes)
{
    dpari_rank *r = &w->rank[w->me];
    const uint64_t bit = UINT64_C(1) << rank % 64;
    if (bytes == 0) {
        return 0;
    }
    if (dpari_world_fetch(w, rank, to, from, bytes) == 0) {
        return 0;
    }
    if (r->can_read[rank / 64] & bit) {
        __atomic_store_n(&r->can_read[rank / 64], r->can_read[rank / 64] & ~bit, __ATOMIC_RELAXED);
        DPARI_STORE(&r->reads, r->reads - 1);
    }
    return -1;
}

static DPARI_COLD void dpari_world_prove(dpari_world *w)
{
    dpari_rank *r = &w->rank[w->me];
    int32_t count = 1;
    if (w->threads || w->size == 1 || (w->head->plain & DPAR_WITHOUT_CMA)) {
        return;
    }
    memset(r->can_read, 0, sizeof r->can_read);
    r->can_read[w->me / 64] = UINT64_C(1) << w->me % 64;
    for (int32_t i = 1; i < w->size; i++) { /* not all of them the same rank at once */
        const int32_t peer = (w->me + i) % w->size;
        if (dpari_world_fetch(w, peer, NULL, 0, 0) == 0) {
            r->can_read[peer / 64] |= UINT64_C(1) << peer % 64;
            count++;
        } else if (errno == ENOSYS) {
            break;
        }
    }
    DPARI_STORE(&r->reads, count);
}

/* Why this rank cannot read that one, as far as it is known. */
static DPARI_COLD const char *dpari_unread_why(const dpari_world *w, int32_t rank)
{
    const dpari_rank *mine = &w->rank[w->me], *theirs = &w->rank[rank];
    if (dpari_world_fetch(w, rank, NULL, 0, 0) == 0) {
        return "a read failed before";
    }
    if (errno == ENOSYS) {
        return "this system has no such call, or seccomp hides it";
    }
    if (mine->pid_space != theirs->pid_space) {
        return "another PID namespace";
    }
    if (mine->user_space != theirs->user_space) {
        return "another user namespace";
    }
    if (errno == EPERM || errno == EACCES) {
        return "not permitted: another user, seccomp, or Yama's ptrace_scope";
    }
    return "it is not found by its pid";
}

DPARI_API DPARI_COLD void dpari_put_unread(dpar_text *t, dpari_world *w)
{
    int32_t first = -1, count = 0;
    for (int32_t i = 0; i < w->size; i++) {
        if (i == w->me || dpari_world_reads(w, w->me, i)) {
            continue;
        }
        first = first < 0 ? i : first;
        count++;
    }
    if (count > 0) {
        dpari_text_print(t, "; %d of %d other ranks cannot be read: rank %d (%s)", count,
                         w->size - 1, first, dpari_unread_why(w, first));
        dpar_text_put(t, count > 1 ? ", ..." : "");
    }
}

/* What can be known only when all are here: cores for all, and whose memory can be read. */
static void dpari_world_look(dpari_world *w)
{
    int32_t cores = 0;
    for (int32_t k = 0; k < DPARI_CPU_WORDS; k++) {
        uint64_t any = 0;
        for (int32_t i = 0; i < w->size; i++) {
            any |= w->rank[i].cpus[k];
        }
        cores += dpari_cpu_bits(any);
    }
    w->crowded = cores < w->size;
    dpari_world_prove(w);
}

DPARI_API DPARI_COLD dpar_status dpari_world_enter(dpari_world *w, uint64_t member, dpar_why *why)
{
    dpari_rank *r = &w->rank[w->me];
    dpar_status status;
    if (w->segment.fd >= 0 && dpari_os_hold(w->segment.fd, w->me) != 0) {
        return dpari_os_why(why, "joining: a rank's lock", 0, errno);
    }
    r->pid = (int32_t)getpid();
    r->probe = (uint64_t)(uintptr_t)&w->probe;
    r->cpu = w->cpu = dpari_os_cpu();
    *w->probe = dpari_world_word(w, w->me);
    r->probe = (uint64_t)(uintptr_t)w->probe;
    r->pid_space = dpari_os_namespace("pid");
    r->user_space = dpari_os_namespace("user");
    dpari_os_cpus(r->cpus);
    r->cache = dpari_os_cache(r->cpus);
    DPARI_STORE(&r->state, (uint32_t)DPARI_RANK_HERE);
    dpari_publish(w, &r->member, member);
    status = dpari_join_all(w, why);
    if (status == DPAR_OK) {
        dpari_world_look(w);
    }
    return status;
}

/* ---- flight recorder --------------------------------------------------------------------------
 */

/* Records are read while they may be written: word by word, so that no half of one tears. */
DPARI_API void dpari_flight_copy(uint64_t *to, const uint64_t *from)
{
    for (uint32_t i = 0; i < sizeof(dpari_flight) / sizeof(uint64_t); i++) {
        uint64_t v = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
        __atomic_store_n(&to[i], v, __ATOMIC_RELAXED);
    }
}

DPARI_API int64_t dpari_flight_begin(dpari_world *w, uint32_t comm, int64_t sequence,
                                     const dpar_call *call)
{
    dpari_rank *r = &w->rank[w->me];
    uint64_t number = r->flights;
    union {
        dpari_flight f;
        uint64_t word[sizeof(dpari_flight) / sizeof(uint64_t)];
    } now;
    dpari_flight *slot = &r->flight[number % DPARI_FLIGHTS];
    now.f.sequence = sequence;
    now.f.count = call->count;
    now.f.comm = comm;
    now.f.kind = call->kind;
    now.f.type = call->type;
    now.f.op = call->op;
    now.f.root = call->root;
    now.f.tag = call->tag;
    now.f.state = DPARI_FLIGHT_POSTED;
    now.f.varies = call->varies;
    now.f.room[0] = now.f.room[1] = 0;
    dpari_flight_copy((uint64_t *)(void *)slot, now.word);
    DPARI_STORE(&r->flights, number + 1);
    return (int64_t)number;
}

DPARI_API void dpari_flight_end(dpari_world *w, int64_t number, int32_t state)
{
    dpari_rank *r = &w->rank[w->me];
    if (r->flights - (uint64_t)number <= DPARI_FLIGHTS) {
        __atomic_store_n(&r->flight[(uint64_t)number % DPARI_FLIGHTS].state, state,
                         __ATOMIC_RELAXED);
    }
}

DPARI_API int dpari_flight_find(const dpari_world *w, int32_t rank, uint32_t comm, int64_t sequence,
                                dpari_flight *out)
{
    const dpari_rank *r = &w->rank[rank];
    uint64_t n = DPARI_LOAD(&r->flights), k;
    union {
        dpari_flight f;
        uint64_t word[sizeof(dpari_flight) / sizeof(uint64_t)];
    } now;
    for (k = n; k > 0 && n - k < DPARI_FLIGHTS; k--) {
        dpari_flight_copy(now.word,
                          (const uint64_t *)(const void *)&r->flight[(k - 1) % DPARI_FLIGHTS]);
        if (sequence == DPARI_FLIGHT_LAST ||
            (sequence == DPARI_FLIGHT_LAST_FAILED && now.f.state == DPARI_FLIGHT_FAILED) ||
            (now.f.comm == comm && now.f.sequence == sequence && now.f.kind < DPAR_COLLECTIVES)) {
            *out = now.f;
            return 1;
        }
    }
    return 0;
}

DPARI_API DPARI_COLD void dpari_flight_text(dpar_text *t, const dpari_flight *f)
{
    const int own = f->root == DPARI_CLOSE || f->root == DPARI_SPLIT;
    if (dpari_planning_text(t, f->kind, f->sequence, f->tag)) {
        return;
    }
    dpari_text_print(t, "%s #%ld",
                     f->root == DPARI_CLOSE   ? "close"
                     : f->root == DPARI_SPLIT ? "split"
                                              : dpar_collective_name(f->kind),
                     f->sequence);
    if (f->kind == DPAR_BARRIER || own) {
        return;
    }
    dpar_text_put(t, " (");
    if (f->varies) {
        dpar_text_put(t, "pieces of ");
    } else {
        dpari_text_print(t, "%ld ", f->count);
    }
    dpar_text_put(t, dpar_type_name(dpari_kern_stored(f->type)));
    if (f->type >= DPAR_TYPES) {
        dpari_text_print(t, " as %s", dpar_type_name(dpari_kern_wire(f->type)));
    }
    if (f->op != DPAR_COPY) {
        dpari_text_print(t, ", %s", dpari_op_name(f->op));
    }
    if (f->kind >= DPAR_COLLECTIVES) {
        dpari_text_print(t, "%s%d, tag %d", f->kind == DPAR_SEND ? ", to rank " : ", from rank ",
                         f->root, f->tag);
    } else if (f->kind == DPAR_BROADCAST || f->kind == DPAR_REDUCE || f->kind == DPAR_GATHER ||
               f->kind == DPAR_SCATTER) {
        dpari_text_print(t, ", root %d", f->root);
    }
    if (f->kind < DPAR_COLLECTIVES && f->tag != 0) {
        dpari_text_print(t, ", tag %d", f->tag);
    }
    dpari_text_char(t, ')');
}

static void dpari_put_flight(dpar_text *t, const dpari_flight *f)
{
    dpar_text_put(t, f->state == DPARI_FLIGHT_DONE     ? " (last done: "
                     : f->state == DPARI_FLIGHT_FAILED ? " (failed: "
                                                       : " (in ");
    dpari_flight_text(t, f);
    if (f->comm != 0) {
        dpari_text_print(t, " of group %ld", (int64_t)f->comm);
    }
    dpari_text_char(t, ')');
}

DPARI_API DPARI_COLD void dpari_put_last(dpar_text *t, const dpari_world *w, int32_t rank)
{
    dpari_flight f;
    if (dpari_flight_find(w, rank, 0, DPARI_FLIGHT_LAST, &f)) {
        dpari_put_flight(t, &f);
    } else {
        dpar_text_put(t, " (it did nothing yet)");
    }
}

DPARI_DOOR DPARI_COLD void dpari_put_failed(dpar_text *t, const dpari_world *w, int32_t rank)
{
    dpari_flight f;
    if (dpari_flight_find(w, rank, 0, DPARI_FLIGHT_LAST_FAILED, &f)) {
        dpari_put_flight(t, &f);
    }
}
