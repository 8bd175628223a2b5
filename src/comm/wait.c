/* SPDX-License-Identifier: MIT-0 */
/* Implements waiting: a rank that waits polls, then yields, then sleeps on a futex until another
 * rank wakes it. wait.h has the loop of a wait.
 *
 * A rank goes to sleep in this order: it counts itself in head->sleepers, sets `asleep`, and tests
 * its condition once more. A rank that publishes a word stores it first and then reads `sleepers`.
 * All these accesses are sequentially consistent, so that either the sleeper sees the word or the
 * publisher sees the sleeper and wakes it. */
#include "wait.h"

DPARI_INTERNAL int dpari_uncount(dpari_world_head *head, dpari_rank *record)
{
    uint32_t asleep = 1;
    if (!DPARI_CLAIM(&record->asleep, &asleep, 0U)) {
        return 0;
    }
    DPARI_ADD(&head->sleepers, (uint32_t)-1);
    return 1;
}

static void dpari_ring(dpari_world_head *head, dpari_rank *record)
{
    if (dpari_uncount(head, record)) {
        DPARI_ADD(&record->bell, 1U);
        dpari_os_futex_wake(&record->bell, head->threads);
    }
}

DPARI_INTERNAL void dpari_ring_all(const dpari_segment *segment)
{
    dpari_world_head *head = dpari_segment_head(segment);
    for (uint32_t i = 0; i < head->ranks; i++) {
        dpari_ring(head, &dpari_segment_ranks(segment)[i]);
    }
}

/* Wakes the ranks that sleep until this one publishes something. It is a function of its own
 * because dpari_publish seldom finds a rank asleep. */
static void dpari_ring_sleepers(dpari_world *world)
{
    for (int32_t i = 0; i < world->size; i++) {
        dpari_rank *record = &world->rank[i];
        if (DPARI_LOAD_SEQ(&record->asleep)) {
            int32_t peer = DPARI_LOAD(&record->waits_for);
            if (peer < 0 || peer == world->me) {
                dpari_ring(world->head, record);
            }
        }
    }
}

DPARI_API void dpari_publish(dpari_world *world, uint64_t *word, uint64_t value)
{
    DPARI_STORE_SEQ(word, value);
    if (DPARI_LOAD_SEQ(&world->head->sleepers)) {
        dpari_ring_sleepers(world);
    }
}

enum {
    DPARI_SPINS = 8192,        /* about 0.1 ms, as long as a sleep and its wake-up take */
    DPARI_SPINS_SHARED = 8,    /* if the peer needs this core, which spinning keeps from it */
    DPARI_SPINS_BLIND = 64,    /* 1 to 3 us, after which a wait checks on which CPU its peer is */
    DPARI_SPINS_MORE = 1024,   /* spins until a wait looks at the clock again */
    DPARI_SPINS_SLEEPY = 1024, /* if there are cores for all, but other programs keep them busy */
    DPARI_VAIN = 3,            /* consecutive waits that spin without success before waits spin
                                  less */
    DPARI_SLEEPY = 1000,       /* waits for which one slow yield is remembered */
    DPARI_SLEEPY_MOST = 64000, /* the most such waits; each further slow yield doubles their
                                  number */
    DPARI_SLEEPY_LOST = 64     /* waits for which the loss of a time slice is remembered */
};
/* All in seconds. */
#define DPARI_SPIN_FOR 1e-3 /* ten times as long as a sleep and its wake-up on an active core */
#define DPARI_YIELD_FOR 2e-3
#define DPARI_YIELD_IS_SLOW 500e-6 /* less than a time slice, more than a brief interruption */
#define DPARI_SLEEP_FOR 20e-3
#define DPARI_MOVE_EVERY 2e-3 /* the least time between two moves of a rank, half a time slice */
#define DPARI_SLICE_LOST 2e-3 /* from such a gap between two looks on, another program ran */

/* Looks at the clock. Time for which this process was suspended does not count as waiting. Returns
 * the seconds since the last look. */
static double dpari_wait_look_at_clock(dpari_wait *waiting, double now)
{
    const double since = waiting->looked > 0.0 ? now - waiting->looked : 0.0;
    const double suspended = dpari_os_suspended(&waiting->looked, now);
    if (suspended > 0.0) {
        waiting->resumed++;
        waiting->began += waiting->began > 0.0 ? suspended : 0.0;
    }
    return since;
}

/* Publishes on which CPU this rank runs, and checks whether the peer (any rank if -1) was last seen
 * on the same CPU. In that case the peer cannot make progress while this rank spins. */
static DPARI_COLD void dpari_wait_look_around(dpari_world *world, dpari_wait *waiting, int32_t peer)
{
    const int32_t cpu = dpari_os_cpu();
    const int32_t first = peer < 0 ? 0 : peer;
    const int32_t end = peer < 0 ? world->size : peer + 1;
    waiting->shares = 0;
    if (cpu != world->cpu) {
        world->cpu = cpu;
        DPARI_STORE(&world->rank[world->me].cpu, cpu);
    }
    for (int32_t i = first; i < end && cpu >= 0; i++) {
        if (i != world->me && DPARI_LOAD(&world->rank[i].cpu) == cpu) {
            waiting->shares = i + 1;
            return;
        }
    }
}

/* Moves this rank to another CPU if it shares its CPU with a lower rank, although there are enough
 * CPUs for all ranks. The system often leaves two such ranks there for long, because each of them
 * sleeps or yields while the other one runs. The new CPU is one on which no rank was last seen. If
 * another program runs there, that program slows down one rank instead of two. */
static DPARI_COLD void dpari_wait_move_away(dpari_world *world, dpari_wait *waiting, int32_t peer)
{
    uint64_t is_free[DPARI_CPU_WORDS];
    int32_t cpu = 0;
    if (waiting->shares > world->me || waiting->looked - world->moved < DPARI_MOVE_EVERY ||
        (world->head->plain & DPAR_WORLD_NO_MIGRATION)) {
        return;
    }
    world->moved = waiting->looked;
    dpari_os_cpus(is_free);
    for (int32_t i = 0; i < world->size; i++) {
        const int32_t taken = DPARI_LOAD(&world->rank[i].cpu);
        if (taken >= 0 && taken < 64 * DPARI_CPU_WORDS) {
            is_free[taken / 64] &= ~(UINT64_C(1) << (taken % 64));
        }
    }
    while (cpu < 64 * DPARI_CPU_WORDS && (is_free[cpu / 64] >> (cpu % 64) & 1) == 0) {
        cpu++;
    }
    if (cpu < 64 * DPARI_CPU_WORDS && dpari_os_move_to(cpu)) {
        dpari_wait_look_around(world, waiting, peer);
    }
}

/* Sleeps until the rank is woken or DPARI_SLEEP_FOR has passed. Then adapts how long the next waits
 * spin before they sleep. */
static dpar_status dpari_wait_asleep(dpari_world *world, dpari_wait *waiting)
{
    dpari_rank *record = &world->rank[world->me];
    dpari_os_futex_wait(&record->bell, waiting->bell, DPARI_SLEEP_FOR, world->threads);
    (void)dpari_wait_look_at_clock(waiting, dpari_os_now());
    waiting->counted = 0;
    dpari_uncount(world->head, record);
    if (world->crowded || world->thrifty || waiting->shares) {
        return DPAR_MORE;
    }
    /* There are cores for all ranks. If waits nevertheless spin without success again and again,
     * another program runs on these cores, perhaps on the one that the peer needs. In that case
     * this rank spins less for a while. It spins as before once several consecutive waits were
     * short enough that a spin would have been sufficient. */
    if (world->sleepy > 0) {
        const double waited = dpari_os_now() - waiting->began;
        world->worked =
            waited > DPARI_SPIN_FOR / 10 && waited < DPARI_SPIN_FOR ? world->worked + 1 : 0;
        if (world->worked >= DPARI_VAIN) {
            world->sleepy = world->vain = world->worked = 0;
        }
    } else if (waiting->turns >= DPARI_SPINS && ++world->vain >= DPARI_VAIN) {
        world->sleepy =
            DPARI_SLEEPY >> (world->vain < 2 * DPARI_VAIN ? 2 * DPARI_VAIN - world->vain : 0);
    }
    return DPAR_MORE;
}

/* Takes this rank off the count of sleepers, because it need not be woken any more. */
static void dpari_wait_uncount(dpari_world *world, dpari_wait *waiting)
{
    if (waiting->counted) {
        waiting->counted = 0;
        dpari_uncount(world->head, &world->rank[world->me]);
    } else if (waiting->turns < DPARI_SPINS && world->sleepy == 0) {
        world->vain = 0;
    }
}

DPARI_API void dpari_wait_end(dpari_world *world, dpari_wait *waiting)
{
    if (waiting->began > 0.0) { /* so that dpari_group_culprit, which follows the chain of waits,
                                   stops at this rank */
        DPARI_STORE(&world->rank[world->me].needs, -1);
    }
    dpari_wait_uncount(world, waiting);
}

/* Yields the core to another rank. If the yield takes long, another program wants the core and gets
 * a whole time slice at each yield, so the next waits sleep instead. */
static void dpari_wait_yield(dpari_world *world, dpari_wait *waiting, double now)
{
    double back;
    sched_yield();
    back = dpari_os_now();
    (void)dpari_wait_look_at_clock(waiting, back);
    if (back - now <= DPARI_YIELD_IS_SLOW) {
        world->slow_yield -= world->slow_yield > 0;
        return;
    }
    if (!world->crowded) { /* this rank and its peer may soon run on different CPUs */
        world->sleepy = DPARI_SLEEPY_LOST;
        return;
    }
    if (world->slow_yield < DPARI_SLEEPY) {
        world->slow_yield = DPARI_SLEEPY;
    } else if (world->slow_yield < DPARI_SLEEPY_MOST) {
        world->slow_yield *= 2;
    }
    world->sleepy = world->slow_yield;
}

/* A turn of a wait that has spun long enough. It spins more, moves to another CPU, yields, or
 * sleeps, depending on whether other ranks need this core. */
static DPARI_COLD dpar_status dpari_wait_slow(dpari_world *world, dpari_wait *waiting, int32_t peer)
{
    dpari_rank *record = &world->rank[world->me];
    double now, since;
    if (waiting->counted && (waiting->peer == peer || waiting->peer < 0)) {
        return dpari_wait_asleep(world, waiting);
    }
    /* if it was counted, it was for another peer, which has published by now */
    dpari_wait_uncount(world, waiting);
    if (!world->crowded) { /* the system may have moved one of the two since the last look */
        dpari_wait_look_around(world, waiting, peer);
    }
    now = dpari_os_now();
    since = dpari_wait_look_at_clock(waiting, now);
    if (!(waiting->began > 0.0)) {
        waiting->began = now;
        world->sleepy -= world->sleepy > 0;
    }
    if (waiting->shares && !world->crowded) {
        dpari_wait_move_away(world, waiting, peer);
        if (!waiting->shares) {
            return DPAR_OK;
        }
    }
    if (!world->crowded && !waiting->shares && since > DPARI_SLICE_LOST &&
        world->sleepy < DPARI_SLEEPY_LOST) {
        world->sleepy = DPARI_SLEEPY_LOST;
    }
    if (!world->crowded && !world->thrifty && !waiting->shares && world->sleepy == 0 &&
        now - waiting->began < DPARI_SPIN_FOR) {
        waiting->turns -= DPARI_SPINS_MORE; /* as far as this rank knows, nothing else needs this
                                               core */
        return DPAR_OK;
    }
    if ((world->crowded || waiting->shares) && world->sleepy == 0 &&
        now - waiting->began < DPARI_YIELD_FOR) {
        dpari_wait_yield(world, waiting, now);
        return DPAR_OK;
    }
    if (world->head->plain & DPAR_WORLD_NO_FUTEX) {
        dpari_os_sleep(20e-6);
        (void)dpari_wait_look_at_clock(waiting, dpari_os_now());
        return DPAR_MORE;
    }
    /* The rank is counted before it sets `asleep`, because the rank that clears `asleep` decrements
     * the count. The fence keeps the caller's next test of its condition from moving before the
     * exchange. On POWER the exchange does not prevent that by itself (tests/model/order.c). */
    waiting->bell = DPARI_LOAD_SEQ(&record->bell);
    waiting->counted = 1;
    waiting->peer = peer;
    DPARI_ADD(&world->head->sleepers, 1U);
    DPARI_STORE(&record->waits_for, peer);
    __atomic_exchange_n(&record->asleep, 1U, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return DPAR_OK;
}

DPARI_API dpar_status dpari_wait_turn(dpari_world *world, dpari_wait *waiting, int32_t peer)
{
    int32_t spins = world->sleepy || world->thrifty ? DPARI_SPINS_SLEEPY : DPARI_SPINS;
    if (world->crowded || waiting->shares) {
        spins = DPARI_SPINS_SHARED;
    }
    if (waiting->turns >= spins) {
        return dpari_wait_slow(world, waiting, peer);
    }
    waiting->turns++;
    if (waiting->turns == DPARI_SPINS_BLIND) {
        dpari_wait_look_around(world, waiting, peer);
    }
    dpari_os_pause();
    return DPAR_OK;
}

/* Advances the clock that all ranks share and returns it, in ms. Ranks cannot compare their
 * CLOCK_MONOTONIC, because it differs between time namespaces. A rank that finds the shared clock
 * unchanged since its last look sets it forward by the time that has passed since then. A rank that
 * finds it changed takes the new value. The shared clock therefore runs while at least one rank
 * waits, and never faster than real time, even if many ranks wait. */
static uint32_t dpari_clock(dpari_world *world)
{
    const double now = dpari_os_now();
    const double passed = (now - world->clock_at) * 1000.0;
    uint32_t seen = DPARI_LOAD(&world->head->clock);
    if (seen != world->clock) {
        world->clock = seen;
        world->clock_at = now;
        return seen;
    }
    if (passed >= 1.0) {
        const uint32_t next = seen + (uint32_t)dpari_leastf(passed, 1e9);
        world->clock = DPARI_CLAIM(&world->head->clock, &seen, next) ? next : seen;
        world->clock_at = now;
    }
    return world->clock;
}

DPARI_INTERNAL DPARI_COLD double dpari_beat_age(dpari_world *world, int32_t rank)
{
    const uint32_t beat = DPARI_LOAD(&world->rank[rank].beat);
    return (double)(dpari_clock(world) - beat) / 1000.0;
}

DPARI_API DPARI_COLD void dpari_wait_says(dpari_world *world, int32_t needs)
{
    dpari_rank *record = &world->rank[world->me];
    DPARI_STORE(&record->needs, needs);
    DPARI_STORE(&record->beat, dpari_clock(world));
}
