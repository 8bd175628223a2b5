/* SPDX-License-Identifier: MIT-0 */
/* Implements the world: the segment that ranks share, their heaps, sleeping and waking, and signs
 * of life. world.h has the memory layout.
 *
 * Segment: a memfd or an unlinked file that each rank maps. Sleeping: a waiting rank polls, then
 * yields, then sleeps on a futex until another rank wakes it. Life: each rank holds a lock on the
 * file. When the rank dies, the system releases the lock, and the others notice. A waiting rank
 * also publishes when it last checked its wait. Heap: each rank allocates from its own extents,
 * without locks. The flight recorder keeps the last operations of each rank for messages and
 * dpar_comm_report. Called by all other modules of the shared-memory engine. */
#include "world.h"

#include "../base/base_private.h"
#include "../host/kernel.h"
#include "engine.h"

#define DPARI_MAGIC UINT64_C(0x31646c726f775064) /* "dPworld1" */
enum { DPARI_VERSION = 3 };                      /* of the layout of the segment */

/* The first value of the shared clock, in ms. It is large, so that a beat of 0, of a rank that has
 * not reported a wait yet, counts as older than any quiet time that a deadline allows. */
enum { DPARI_CLOCK_FIRST = 1 << 20 };

static int64_t dpari_in_units(int64_t bytes, int64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* ---- segments -------------------------------------------------------------------------------- */

static dpari_world_head *dpari_segment_head(const dpari_segment *segment)
{
    return (dpari_world_head *)(void *)segment->base;
}

static dpari_rank *dpari_segment_ranks(const dpari_segment *segment)
{
    return (dpari_rank *)(void *)(segment->base + sizeof(dpari_world_head));
}

/* Returns the bytes of the part of the segment that every rank maps: everything before the
 * heaps. */
static int64_t dpari_head_bytes(int64_t ranks)
{
    int64_t table = ranks * ranks * (int64_t)sizeof(uint64_t);
    int64_t bytes = (int64_t)sizeof(dpari_world_head) + ranks * (int64_t)sizeof(dpari_rank) + table;
    return dpari_in_units(bytes, INT64_C(65536)); /* the largest base page that systems use */
}

static int64_t dpari_heap_begin(int64_t ranks)
{
    return dpari_in_units(dpari_head_bytes(ranks), DPARI_OS_LARGE);
}

DPARI_STATIC_NOINLINE dpar_status dpari_segment_options(int32_t ranks, const dpar_world_desc *o,
                                                        dpar_why *why)
{
    if (ranks < 1 || ranks > DPARI_MAX_RANKS) {
        return dpari_wrong(why, "a node has 1 to 1024 ranks, not %d", ranks);
    }
    if (!o) {
        return DPAR_OK;
    }
    if (o->heap_bytes < 0 || o->heap_bytes > INT64_C(1) << 50) {
        return dpari_wrong(why, "heap_bytes must be 0 to 2^50, not %ld", o->heap_bytes);
    }
    if (o->slot_bytes != 0 && (o->slot_bytes < 4096 || o->slot_bytes > INT64_C(16) << 20 ||
                               (o->slot_bytes & (o->slot_bytes - 1)) != 0)) {
        return dpari_wrong(why, "slot_bytes must be a power of two from 4096 to 2^24, not %ld",
                           o->slot_bytes);
    }
    if (o->disable < 0 || o->disable >= 2 * DPAR_WORLD_NO_DONTDUMP) {
        return dpari_wrong(why, "disable must be a sum of DPAR_WORLD_NO_x, not %d", o->disable);
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD double dpari_world_timeout(const dpar_world_desc *options)
{
    if (options && options->timeout_s < 0.0) {
        return 0.0;
    }
    return options && options->timeout_s > 0.0 ? options->timeout_s : 300.0;
}

/* Makes a file of `bytes` and maps its first `head` bytes. If `is_private` is set, the segment is
 * private to this process and there is no file. Returns 0 or an errno value. */
static int dpari_segment_map(dpari_segment *segment, int64_t head, int64_t bytes, int is_private,
                             int without_memfd)
{
    segment->bytes = head;
    segment->fd = is_private ? -1 : dpari_os_segment(bytes, without_memfd);
    if (!is_private && segment->fd < 0) {
        return errno ? errno : ENOSYS;
    }
    segment->base =
        (char *)(is_private ? dpari_os_pages(head) : dpari_os_map(segment->fd, 0, head));
    if (!segment->base) {
        int number = errno;
        dpari_os_close(segment->fd);
        return number ? number : ENOMEM;
    }
    return 0;
}

/* Returns the most bytes that a file may have (off_t and ulimit -f). */
static int64_t dpari_file_most(void)
{
    return dpari_least(dpari_os_limit(RLIMIT_FSIZE), sizeof(off_t) < 8 ? INT32_MAX : INT64_MAX / 2);
}

/* Makes the file. Each rank's part of it is twice what the users may have in use, so that gaps
 * between allocations do not matter, plus what the library itself needs. The file may be this large
 * because it is sparse: its unused parts take neither memory nor addresses. If a limit on files
 * makes the parts smaller, *heap becomes what a part still has for the users. */
static int dpari_segment_size(dpari_segment *segment, int32_t ranks, int64_t *heap, int64_t *part,
                              int is_private, int without_memfd)
{
    /* a channel to each other rank has about 270 KiB; 8 MiB are enough for a few communicators */
    const int64_t begin = dpari_heap_begin(ranks), channels = ranks * (INT64_C(512) << 10);
    const int64_t library = (INT64_C(8) << 20) + channels;
    const int64_t least = dpari_in_units(library + 1, DPARI_OS_LARGE);
    const int64_t bound = is_private ? INT64_MAX / 2 : dpari_file_most();
    const int64_t most = (bound - begin) / ranks / DPARI_OS_LARGE * DPARI_OS_LARGE;
    int number = EFBIG;
    *part = dpari_in_units(2 * *heap + (INT64_C(4) << 30) + channels, DPARI_OS_LARGE);
    *part = dpari_most(dpari_least(*part, most), least);
    while (*part <= most) {
        number = dpari_segment_map(segment, dpari_head_bytes(ranks), begin + ranks * *part,
                                   is_private, without_memfd);
        if (number == 0 || *part == least) {
            break;
        }
        *part = dpari_most(dpari_in_units(*part / 2, DPARI_OS_LARGE), least);
    }
    *heap = dpari_least(*heap, *part - library);
    return number;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_segment_make(dpari_segment *segment, int32_t ranks,
                                                         const dpar_world_desc *options,
                                                         dpar_why *why)
{
    const int32_t plain = options ? options->disable : 0;
    const int32_t threads = options ? options->threads : 0;
    dpar_status status = dpari_segment_options(ranks, options, why);
    int64_t heap = options && options->heap_bytes > 0 ? options->heap_bytes : dpari_os_memory();
    int64_t part = 0;
    int number;
    dpari_world_head *head;
    if (status != DPAR_OK) {
        return status;
    }
    heap = dpari_in_units(heap > 0 ? heap : INT64_C(64) << 20, dpari_os_page());
    number = dpari_segment_size(segment, ranks, &heap, &part, ranks == 1 || threads,
                                plain & DPAR_WORLD_NO_MEMFD);
    if (number == 0 && segment->fd >= 0) {
        number = dpari_os_reserve(segment->fd, 0, segment->bytes);
        if (number != 0) {
            dpari_segment_close(segment);
        }
    }
    if (number != 0) {
        const int64_t file = dpari_heap_begin(ranks) + ranks * part;
        return dpari_os_why(why, "shared memory of ",
                            number == EFBIG ? file : dpari_head_bytes(ranks), number);
    }
    head = dpari_segment_head(segment);
    head->version = DPARI_VERSION;
    head->ranks = (uint32_t)ranks;
    head->bytes = dpari_heap_begin(ranks) + ranks * part;
    head->heap_bytes = heap;
    head->part_bytes = part;
    head->heap_begin = dpari_heap_begin(ranks);
    head->slot_bytes = options && options->slot_bytes ? options->slot_bytes : INT64_C(256) << 10;
    /* so that a chunk, which is half a slot, has at least DPARI_LINE bytes for each rank */
    while (head->slot_bytes < 256 * (int64_t)ranks) {
        head->slot_bytes *= 2;
    }
    head->plain = plain;
    head->threads = threads || ranks == 1;
    head->nonce = dpari_os_random();
    head->clock = DPARI_CLOCK_FIRST;
    for (int32_t i = 0; i < ranks; i++) {
        dpari_segment_ranks(segment)[i].cpu = -1; /* 0 would be a CPU */
    }
    DPARI_STORE(&head->magic, DPARI_MAGIC); /* last: all the fields above are complete */
    return DPAR_OK;
}

/* True if the head belongs to a segment of this version and its sizes fit a file of `bytes`. */
static int dpari_head_is_sound(const dpari_world_head *head, int64_t bytes)
{
    return head->magic == DPARI_MAGIC && head->version == DPARI_VERSION && head->bytes == bytes &&
           head->ranks >= 1 && head->ranks <= DPARI_MAX_RANKS &&
           head->heap_begin == dpari_heap_begin((int64_t)head->ranks) && head->part_bytes > 0 &&
           head->heap_bytes > 0 &&
           head->part_bytes <= (bytes - head->heap_begin) / (int64_t)head->ranks;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_segment_open(dpari_segment *segment, int fd,
                                                         dpar_why *why)
{
    struct stat about;
    dpari_world_head head;
    dpar_status status;
    if (fstat(fd, &about) != 0) {
        return dpari_os_why(why, "the shared memory passed to this rank", 0, errno);
    }
    segment->fd = fd;
    segment->base = NULL;
    if (pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head &&
        dpari_head_is_sound(&head, (int64_t)about.st_size)) {
        segment->bytes = dpari_head_bytes((int64_t)head.ranks);
        segment->base = (char *)dpari_os_map(fd, 0, segment->bytes);
        if (segment->base) {
            return DPAR_OK;
        }
        status = dpari_os_why(why, "shared memory of ", segment->bytes, errno);
    } else {
        status = dpari_wrong(why,
                             "the shared memory passed to this rank (%ld bytes) is not of this "
                             "version of dpar",
                             (int64_t)about.st_size);
    }
    close(fd);
    segment->fd = -1;
    return status;
}

/* Frees the heaps of ranks that are threads. Such heaps are memory of this process and are released
 * together with the segment. */
static void dpari_segment_unmap_heaps(const dpari_segment *segment)
{
    const dpari_world_head *head = dpari_segment_head(segment);
    for (uint32_t r = 0; r < head->ranks; r++) {
        const dpari_rank *rank = &dpari_segment_ranks(segment)[r];
        for (uint32_t e = 1; e <= rank->extents; e++) {
            dpari_os_unmap((void *)(uintptr_t)rank->extent[e].begin, rank->extent[e].bytes);
        }
    }
}

DPARI_INTERNAL DPARI_COLD int dpari_segment_copy(const dpari_segment *segment, uint64_t ref,
                                                 void *to, int64_t bytes)
{
    const dpari_world_head *head = dpari_segment_head(segment);
    const uint32_t rank = (uint32_t)(ref >> (DPARI_REF_BITS + 6));
    const uint32_t extent = (uint32_t)(ref >> DPARI_REF_BITS) % DPARI_EXTENTS;
    int64_t at;
    if (ref == 0) {
        return 0;
    }
    if (head->threads) {
        memcpy(to, (const void *)(uintptr_t)ref, (size_t)bytes);
        return 1;
    }
    if (rank >= head->ranks || extent == 0) {
        return 0;
    }
    at =
        dpari_segment_ranks(segment)[rank].extent[extent].begin + (int64_t)(ref & DPARI_REF_OFFSET);
    return pread(segment->fd, to, (size_t)bytes, (off_t)at) == (ssize_t)bytes;
}

DPARI_INTERNAL DPARI_COLD void dpari_segment_close(dpari_segment *segment)
{
    if (segment->base && segment->fd < 0) {
        dpari_segment_unmap_heaps(segment);
    }
    dpari_os_unmap(segment->base, segment->bytes);
    segment->base = NULL;
    dpari_os_close(segment->fd);
    segment->fd = -1;
}

/* ---- sleeping and waking ----------------------------------------------------------------------
 *
 * A rank goes to sleep in this order: it counts itself in head->sleepers, sets `asleep`, and tests
 * its condition once more. A rank that publishes a word stores it first and then reads `sleepers`.
 * All these accesses are sequentially consistent, so that either the sleeper sees the word or the
 * publisher sees the sleeper and wakes it. */

/* Takes a rank off the count of sleepers. Several ranks may try this at once, but only one of them
 * succeeds. Returns 1 for that one, otherwise 0. */
static int dpari_uncount(dpari_world_head *head, dpari_rank *record)
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

/* ---- life and death -------------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD void dpari_segment_ended(const dpari_segment *segment, int32_t rank,
                                                   int32_t ending)
{
    dpari_rank *record = &dpari_segment_ranks(segment)[rank];
    uint32_t state = DPARI_LOAD(&record->state);
    if (state == DPARI_RANK_LEFT) {
        return;
    }
    if (ending == DPARI_ENDING_DUMPS) { /* must not replace an exit status that the launcher has
                                           reported */
        int32_t none = 0;
        (void)DPARI_CLAIM(&record->ending, &none, ending);
    } else if (ending != 0) { /* a peer may have noticed the death first, without the status */
        __atomic_store_n(&record->ending, ending, __ATOMIC_RELAXED);
    }
    if (state != DPARI_RANK_DEAD &&
        DPARI_CLAIM(&record->state, &state, (uint32_t)DPARI_RANK_DEAD)) {
        dpari_uncount(dpari_segment_head(segment), record);
        dpari_ring_all(segment);
    }
}

DPARI_API DPARI_COLD int dpari_world_speaks(dpari_world *world, uint32_t turn)
{
    uint32_t said = DPARI_LOAD(&world->head->said);
    while (said < turn) {
        if (DPARI_CLAIM(&world->head->said, &said, turn)) {
            return 1;
        }
    }
    return 0;
}

DPARI_INTERNAL DPARI_COLD int dpari_segment_said(const dpari_segment *segment)
{
    return DPARI_LOAD(&dpari_segment_head(segment)->said) != 0;
}

DPARI_INTERNAL DPARI_COLD int dpari_segment_has_left(const dpari_segment *segment, int32_t rank)
{
    return DPARI_LOAD(&dpari_segment_ranks(segment)[rank].state) == DPARI_RANK_LEFT;
}

DPARI_INTERNAL DPARI_COLD int dpari_segment_is_behind(const dpari_segment *segment, int32_t rank)
{
    return DPARI_LOAD(&dpari_segment_ranks(segment)[rank].behind) != 0;
}

DPARI_INTERNAL DPARI_COLD uint64_t dpari_segment_pulse(const dpari_segment *segment, int32_t rank)
{
    const dpari_rank *record = &dpari_segment_ranks(segment)[rank];
    return DPARI_LOAD(&record->flights) + ((uint64_t)DPARI_LOAD(&record->beat) << 32);
}

/* A rank that reported within the last DPARI_BEAT_FRESH seconds that it waits has not crashed. This
 * saves reading /proc. */
#define DPARI_BEAT_FRESH 0.1

/* True if the rank has crashed and is writing a core file. It keeps its lock until that is done,
 * which may take minutes. */
static int dpari_rank_dumps(dpari_world *world, int32_t rank)
{
    const dpari_rank *record = &world->rank[rank];
    return record->pids != 0 && record->pids == world->rank[world->me].pids &&
           dpari_beat_age(world, rank) > DPARI_BEAT_FRESH && dpari_os_dumps(record->pid);
}

DPARI_API uint32_t dpari_rank_state(dpari_world *world, int32_t rank)
{
    uint32_t state = DPARI_LOAD(&world->rank[rank].state);
    if (state != DPARI_RANK_HERE || world->threads || rank == world->me) {
        return state;
    }
    if (dpari_os_is_held(world->segment.fd, rank)) {
        if (dpari_rank_dumps(world, rank)) {
            dpari_segment_ended(&world->segment, rank, DPARI_ENDING_DUMPS);
        }
        return DPARI_LOAD(&world->rank[rank].state);
    }
    /* a rank that leaves sets its state before it releases its lock: so read the state again */
    state = DPARI_LOAD(&world->rank[rank].state);
    if (state == DPARI_RANK_HERE) {
        dpari_segment_ended(&world->segment, rank, 0);
    }
    return DPARI_LOAD(&world->rank[rank].state);
}

DPARI_INTERNAL DPARI_COLD void dpari_put_end(dpar_text *text, const dpari_rank *record)
{
    int32_t ending = __atomic_load_n(&record->ending, __ATOMIC_RELAXED);
    uint32_t state = DPARI_LOAD(&record->state);
    if (state == DPARI_RANK_LEFT) {
        dpar_text_put(text, " has left");
    } else if (ending == DPARI_ENDING_DUMPS) {
        dpar_text_put(text, " has crashed and is writing a core file");
    } else if (ending < 0) {
        dpari_text_print(text, " was killed by signal %ld", -(int64_t)ending);
    } else {
        dpar_text_put(text, " has ended");
        if (ending > 0) {
            dpari_text_print(text, " with status %d", ending);
        }
    }
}

DPARI_API DPARI_COLD void dpari_put_ending(dpar_text *text, const dpari_world *world, int32_t rank)
{
    const dpari_rank *record = &world->rank[rank];
    /* The lock of a dead rank is released at once, but the process that started the rank reports a
     * moment later how it ended. */
    for (int32_t i = 0; i < 20; i++) {
        if (DPARI_LOAD(&record->state) != DPARI_RANK_DEAD ||
            __atomic_load_n(&record->ending, __ATOMIC_RELAXED) != 0) {
            break;
        }
        dpari_os_sleep(1e-3);
    }
    dpari_put_end(text, record);
}

/* ---- extents --------------------------------------------------------------------------------- */

static int64_t dpari_part_begin(const dpari_world *world)
{
    return world->head->heap_begin + world->me * world->head->part_bytes;
}

/* Maps an extent, or allocates memory for it if the ranks are threads. */
static char *dpari_extent_map(const dpari_world *world, int64_t begin, int64_t bytes)
{
    char *at;
    if (world->segment.fd < 0) {
        return (uint64_t)bytes > (uint64_t)SIZE_MAX / 4 ? NULL : (char *)dpari_os_pages(bytes);
    }
    at = (char *)dpari_os_map(world->segment.fd, begin, bytes);
    if (at && !(world->head->plain & DPAR_WORLD_NO_DONTDUMP)) {
        dpari_os_dump(at, bytes, 0);
    }
    return at;
}

/* Maps the extent that belongs at view[index], unless another thread has just done so. Returns its
 * address, or NULL if this process has no addresses left. */
static DPARI_COLD char *dpari_view_make(const dpari_world *world, uint64_t index)
{
    const uint64_t rank = index / DPARI_EXTENTS, number = index % DPARI_EXTENTS;
    const dpari_extent *e;
    char *at, *none = NULL;
    if (rank >= (uint64_t)world->size || number == 0) {
        return NULL;
    }
    e = &world->rank[rank].extent[number];
    at = dpari_extent_map(world, e->begin, e->bytes);
    if (!at) {
        return DPARI_LOAD(&world->view[index]);
    }
    if (!DPARI_CLAIM(&world->view[index], &none, at)) {
        dpari_os_unmap(at, e->bytes);
        return none;
    }
    return at;
}

DPARI_API DPARI_NOINLINE void *dpari_at(const dpari_world *world, uint64_t ref)
{
    char *view;
    if (world->threads) {
        return (void *)(uintptr_t)ref;
    }
    view = DPARI_LOAD(&world->view[ref >> DPARI_REF_BITS]);
    if (!view) {
        view = dpari_view_make(world, ref >> DPARI_REF_BITS);
    }
    return view ? (void *)(view + (ref & DPARI_REF_OFFSET)) : NULL;
}

DPARI_API DPARI_COLD void dpari_put_unmapped(dpar_text *text, const dpari_world *world,
                                             uint64_t ref)
{
    const uint64_t index = ref >> DPARI_REF_BITS;
    const int32_t rank = (int32_t)(index / DPARI_EXTENTS);
    if (rank < world->size) {
        dpari_text_print(text, "mapping %ld bytes of rank %d's memory: ",
                         world->rank[rank].extent[index % DPARI_EXTENTS].bytes, rank);
    }
    dpari_os_put_addresses(text);
}

/* Returns the address at which this rank has mapped an extent of its own heap. */
static char *dpari_own_view(const dpari_world *world, int32_t number)
{
    return DPARI_LOAD(&world->view[world->me * DPARI_EXTENTS + number]);
}

/* Finds the extent of this rank's heap that holds `address`. Returns its number and sets *offset to
 * the address's offset in it, or returns 0 if no extent holds it. */
static int32_t dpari_own_find(const dpari_world *world, uint64_t address, uint64_t *offset)
{
    const int32_t n = DPARI_LOAD(&world->owns_extents);
    for (int32_t i = 1; i <= n; i++) {
        const char *view = dpari_own_view(world, i);
        *offset = address - (uint64_t)(uintptr_t)view;
        if (view && *offset < (uint64_t)world->own[i].bytes) {
            return i;
        }
    }
    return 0;
}

DPARI_API uint64_t dpari_ref(const dpari_world *world, const void *at, int64_t bytes)
{
    const uint64_t address = (uint64_t)(uintptr_t)at;
    uint64_t offset;
    int32_t i;
    if (world->threads) {
        return address;
    }
    i = dpari_own_find(world, address, &offset);
    if (i == 0 || (uint64_t)bytes > (uint64_t)world->own[i].bytes - offset) {
        return 0;
    }
    return ((uint64_t)world->me * DPARI_EXTENTS + (uint64_t)i) << DPARI_REF_BITS | offset;
}

/* Computes the size of the next extent: that of all extents so far, which keeps their number small.
 * If the process has a limit on addresses, it is only a quarter of that, because the program needs
 * the other addresses. */
static int64_t dpari_extent_want(const dpari_world *world, int64_t least, int64_t left)
{
    const int64_t first = INT64_C(4) << 20, most = INT64_C(1) << 46;
    const int64_t total = left < world->head->part_bytes ? world->head->part_bytes - left : 0;
    int64_t want = dpari_os_limit(RLIMIT_AS) < INT64_MAX ? total / 4 : total;
    want = dpari_in_units(dpari_most(want, first), DPARI_OS_LARGE);
    want = dpari_least(dpari_least(want, left), most);
    return dpari_most(want, least);
}

/* Makes a new extent that can hold an allocation of `bytes`. Returns its number, or 0 if there can
 * be none; world->lacks has the reason. */
static DPARI_COLD int32_t dpari_extent_make(dpari_world *world, int64_t bytes)
{
    dpari_rank *record = &world->rank[world->me];
    const int32_t n = world->owns_extents;
    const int64_t begin =
        n > 0 ? world->own[n].begin + world->own[n].bytes : dpari_part_begin(world);
    const int64_t left = dpari_part_begin(world) + world->head->part_bytes - begin;
    const int64_t least = dpari_in_units(bytes, DPARI_OS_LARGE);
    int64_t want;
    char *at;
    if (least > left || n + 1 == DPARI_EXTENTS) {
        world->lacks = DPARI_LACKS_PLACE;
        return 0;
    }
    want = dpari_extent_want(world, least, left);
    at = dpari_extent_map(world, begin, want);
    while (!at && want > least) { /* there are too few addresses: try a smaller extent */
        want = dpari_most(dpari_in_units(want / 2, DPARI_OS_LARGE), least);
        at = dpari_extent_map(world, begin, want);
    }
    if (!at) {
        world->lacks = DPARI_LACKS_ADDRESSES;
        return 0;
    }
    world->own[n + 1].begin = world->own[n + 1].fresh = begin;
    world->own[n + 1].bytes = want;
    record->extent[n + 1].begin = world->segment.fd < 0 ? (int64_t)(uintptr_t)at : begin;
    record->extent[n + 1].bytes = want;
    DPARI_STORE(&world->view[world->me * DPARI_EXTENTS + n + 1], at);
    DPARI_STORE(&record->extents, (uint32_t)n + 1U);
    DPARI_STORE(&world->owns_extents, n + 1); /* another thread may look for an address */
    return n + 1;
}

/* ---- the heap of this rank ------------------------------------------------------------------- */

/* Allocations from this size on check the free memory. */
#define DPARI_ASK_FROM (INT64_C(4) << 20)
enum { DPARI_TAKING = 20000 }; /* ms for which such an allocation waits for those of other ranks */

/* Returns the index of the first allocation that begins at `at` or later. */
static int32_t dpari_heap_find(const dpari_world *world, int64_t at)
{
    int32_t low = 0, high = world->used_count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (world->used[middle].begin < at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Finds the first gap of `bytes` in extent `number`; the gap must begin at a multiple of `unit`.
 * Returns where it begins, or -1 if there is none. *place is the index in `used` for a new
 * allocation there. */
static int64_t dpari_extent_gap(const dpari_world *world, int32_t number, int64_t bytes,
                                int64_t unit, int32_t *place)
{
    const dpari_own *e = &world->own[number];
    const int64_t end = e->begin + e->bytes;
    int64_t at = dpari_in_units(dpari_most(e->begin, world->floor), unit);
    int32_t i = dpari_heap_find(world, e->begin);
    for (; i < world->used_count && world->used[i].begin < end && world->used[i].begin - at < bytes;
         i++) {
        at = dpari_most(at, dpari_in_units(world->used[i].begin + world->used[i].bytes, unit));
    }
    *place = i;
    return end - at >= bytes ? at : -1;
}

/* Finds a gap in any of this rank's extents and maps that extent if necessary. Returns where the
 * gap begins and sets *number to the extent, or returns -1; see world->lacks. */
static DPARI_COLD int64_t dpari_heap_gap(dpari_world *world, int64_t bytes, int64_t unit,
                                         int32_t *place, int32_t *number)
{
    int64_t at = -1;
    for (int32_t i = 1; i <= world->owns_extents; i++) {
        char **view = &world->view[world->me * DPARI_EXTENTS + i];
        at = dpari_extent_gap(world, i, bytes, unit, place);
        if (at < 0) {
            continue;
        }
        if (!*view) { /* the extent was unmapped when it became empty */
            DPARI_STORE(view, dpari_extent_map(world, world->own[i].begin, world->own[i].bytes));
        }
        if (*view) {
            *number = i;
            return at;
        }
        world->lacks = DPARI_LACKS_ADDRESSES;
    }
    return -1;
}

/* Finds a place for `take` bytes. Large allocations begin at a large page, in a new extent if
 * necessary. With small pages, elements of a box that are a page apart would each cause a TLB miss.
 */
static DPARI_COLD int64_t dpari_heap_place(dpari_world *world, int64_t take, int32_t *place,
                                           int32_t *number)
{
    const int64_t page = dpari_os_page();
    int64_t unit = take >= DPARI_OS_LARGE ? (int64_t)DPARI_OS_LARGE : page;
    int64_t at = dpari_heap_gap(world, take, unit, place, number);
    if (at < 0 && dpari_extent_make(world, take) > 0) {
        at = dpari_heap_gap(world, take, unit, place, number);
    }
    return at >= 0 || unit == page ? at : dpari_heap_gap(world, take, page, place, number);
}

/* True if there is not enough memory. The allocation must then be refused, because the system would
 * kill some process instead. Ranks often allocate at the same time, and each sees the memory that
 * is free before the others have taken theirs. They therefore announce allocations, and if the
 * memory is not enough for all, a rank waits until earlier allocations are done. If the result is
 * 0, the caller must end the announcement by dpari_heap_took. */
static DPARI_COLD int dpari_heap_is_short(dpari_world *world, int64_t take)
{
    dpari_available now;
    int64_t before = 1;
    for (int32_t i = 0; i < DPARI_TAKING && before > 0; i++) {
        before = DPARI_ADD(&world->head->taking, take);
        dpari_os_available(&now);
        if (before + take <= now.bytes) {
            return 0;
        }
        DPARI_ADD(&world->head->taking, -take);
        dpari_os_sleep(before > 0 ? 1e-3 : 0.0);
    }
    return 1;
}

/* Ends the announcement of dpari_heap_is_short. */
static void dpari_heap_took(dpari_world *world, int64_t take)
{
    if (take >= DPARI_ASK_FROM) {
        DPARI_ADD(&world->head->taking, -take);
    }
}

/* Unmaps an extent if it is empty, which frees its addresses. The extent keeps its range of the
 * file. The first extent stays mapped because it is seldom empty. Heaps of ranks that are threads
 * stay mapped because other threads may still read them. */
static void dpari_extent_rest(dpari_world *world, int32_t number)
{
    const dpari_own *e = &world->own[number];
    const int32_t i = dpari_heap_find(world, e->begin);
    char **view = &world->view[world->me * DPARI_EXTENTS + number];
    char *at = *view;
    if (number == 1 || world->segment.fd < 0 ||
        (i < world->used_count && world->used[i].begin < e->begin + e->bytes)) {
        return;
    }
    DPARI_STORE(view, (char *)NULL);
    dpari_os_unmap(at, e->bytes);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_heap_alloc(dpari_world *world, int64_t bytes, int users,
                                                       void **memory)
{
    int32_t place = 0, number = 0;
    int64_t at = -1, take = bytes < 1 ? 1 : bytes;
    dpari_own *e;
    char *address;
    world->number = ENOMEM;
    world->lacks = DPARI_LACKS_HEAP;
    if (take > world->head->part_bytes) {
        return DPAR_E_MEMORY;
    }
    take = dpari_in_units(take, dpari_os_page());
    if (users && take > world->head->heap_bytes - world->users) {
        return DPAR_E_MEMORY;
    }
    world->lacks = DPARI_LACKS_PIECES;
    if (world->used_count == DPARI_MAX_USED) {
        return DPAR_E_MEMORY;
    }
    world->lacks = DPARI_LACKS_MEMORY;
    if (take >= DPARI_ASK_FROM && dpari_heap_is_short(world, take)) {
        return DPAR_E_MEMORY;
    }
    at = dpari_heap_place(world, take, &place, &number);
    if (at >= 0) {
        world->number = world->segment.fd >= 0 ? dpari_os_reserve(world->segment.fd, at, take) : 0;
    }
    dpari_heap_took(world, take);
    if (at < 0) {
        return DPAR_E_MEMORY;
    }
    if (world->number != 0) {
        world->lacks = DPARI_LACKS_FILE;
        dpari_extent_rest(world, number);
        return DPAR_E_MEMORY;
    }
    e = &world->own[number];
    address = dpari_own_view(world, number) + (at - e->begin);
    world->lacks = DPARI_LACKS_NOTHING;
    if (world->segment.fd >= 0) {
        dpari_os_large_pages(address, take);
        if (users && world->used_count < DPARI_DUMPED) {
            dpari_os_dump(address, take, 1);
        }
    }
    if (at < e->fresh) {
        memset(address, 0, (size_t)dpari_least(e->fresh - at, take));
    }
    e->fresh = dpari_most(e->fresh, at + take);
    world->fresh = dpari_most(world->fresh, at + take);
    memmove(&world->used[place + 1], &world->used[place],
            (size_t)(world->used_count - place) * sizeof world->used[0]);
    world->used[place].begin = at;
    world->used[place].bytes = take;
    world->used[place].users = users ? take : 0;
    world->users += world->used[place].users;
    world->used_count++;
    *memory = address;
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD void dpari_put_lack(dpar_text *text, const dpari_world *world)
{
    const int32_t lacks = world ? world->lacks : DPARI_LACKS_NOTHING;
    dpari_available now;
    switch (lacks) {
    case DPARI_LACKS_HEAP:
        dpar_text_put(text, "dpar_world_desc.heap_bytes is the limit");
        if (dpari_os_limit(RLIMIT_FSIZE) < INT64_MAX) {
            dpar_text_put(text, ", reduced to what ulimit -f allows");
        }
        return;
    case DPARI_LACKS_PLACE: dpar_text_put(text, "no gap in the heap is large enough"); return;
    case DPARI_LACKS_PIECES: dpar_text_put(text, "too many allocations (65536)"); return;
    case DPARI_LACKS_ADDRESSES: dpari_os_put_addresses(text); return;
    case DPARI_LACKS_FILE: dpari_os_error(text, world->number); return;
    default: break;
    }
    if (lacks == DPARI_LACKS_NOTHING && dpari_os_limit(RLIMIT_AS) < INT64_MAX) {
        dpari_os_put_addresses(text); /* this limit is the most likely reason why private memory was
                                         refused */
        return;
    }
    dpari_os_available(&now);
    dpar_text_put(text, "out of memory");
    if (lacks == DPARI_LACKS_MEMORY && now.most > 0) {
        dpari_text_print(text, ": %ld left of %ld of control group %s", now.bytes, now.most,
                         now.group);
    } else if (lacks == DPARI_LACKS_MEMORY && now.bytes < INT64_MAX) {
        dpari_text_print(text, ": %ld are available on this machine", now.bytes);
    }
}

DPARI_API DPARI_COLD int dpari_heap_holds(const dpari_world *world, int64_t low, int64_t high,
                                          int64_t *within)
{
    *within = 0;
    for (int32_t i = 1; i <= world->owns_extents && low < high; i++) {
        const dpari_own *e = &world->own[i];
        const int64_t view = (int64_t)(uintptr_t)dpari_own_view(world, i);
        const dpari_used *u;
        int64_t at;
        int32_t k;
        if (view == 0 || high <= view || low >= view + e->bytes) {
            continue;
        }
        at = low - view + e->begin;
        k = low < view ? 0 : dpari_heap_find(world, at + 1);
        u = k > 0 ? &world->used[k - 1] : NULL;
        if (u == NULL || at >= u->begin + u->bytes) {
            return 0;
        }
        *within = u->bytes;
        return high - view + e->begin <= u->begin + u->bytes;
    }
    return 1;
}

DPARI_INTERNAL void dpari_heap_release(dpari_world *world, void *memory)
{
    uint64_t offset = 0;
    const int32_t number = dpari_own_find(world, (uint64_t)(uintptr_t)memory, &offset);
    const int64_t at = world->own[number].begin + (int64_t)offset;
    const int32_t low = number > 0 ? dpari_heap_find(world, at) : world->used_count;
    if (low == world->used_count || world->used[low].begin != at) {
        return;
    }
    if (world->segment.fd >= 0 && world->used[low].users > 0 &&
        !(world->head->plain & DPAR_WORLD_NO_DONTDUMP)) {
        dpari_os_dump(memory, world->used[low].bytes, 0);
    }
#if defined(__linux__) && defined(MADV_REMOVE)
    if (world->segment.fd >= 0 && world->used[low].bytes >= INT64_C(1) << 20) {
        madvise(memory, (size_t)world->used[low].bytes, MADV_REMOVE);
    }
#endif
    world->users -= world->used[low].users;
    world->used_count--;
    memmove(&world->used[low], &world->used[low + 1],
            (size_t)(world->used_count - low) * sizeof world->used[0]);
    dpari_extent_rest(world, number);
}

/* ---- joining --------------------------------------------------------------------------------- */

static int64_t dpari_view_bytes(const dpari_world *world)
{
    return world->size * (int64_t)DPARI_EXTENTS * (int64_t)sizeof(char *);
}

/* Unmaps all extents that this rank has mapped, its own and those of other ranks. */
static void dpari_world_unmap(dpari_world *world)
{
    for (int32_t i = 0; i < world->size * DPARI_EXTENTS; i++) {
        if (world->view[i]) {
            dpari_os_unmap(world->view[i],
                           world->rank[i / DPARI_EXTENTS].extent[i % DPARI_EXTENTS].bytes);
        }
    }
}

/* Frees the private memory of a world. */
static void dpari_world_free(dpari_world *world)
{
    dpari_os_unmap(world->used, DPARI_MAX_USED * (int64_t)sizeof(dpari_used));
    dpari_os_unmap(world->view, dpari_view_bytes(world));
    dpari_os_unmap(world->probe, dpari_os_page());
    dpari_os_unmap(world, (int64_t)sizeof *world);
}

DPARI_INTERNAL DPARI_COLD void dpari_world_close(dpari_world *world)
{
    DPARI_STORE(&world->rank[world->me].state, (uint32_t)DPARI_RANK_LEFT);
    dpari_ring_all(&world->segment);
    if (!world->threads && world->owns != DPARI_OWNS_FILE) {
        dpari_world_unmap(world);
    }
    if (world->owns) {
        world->segment.base = world->owns == DPARI_OWNS_FILE ? NULL : world->segment.base;
        dpari_segment_close(&world->segment);
    }
    dpari_world_free(world);
}

DPARI_INTERNAL DPARI_COLD dpari_world *dpari_world_make(const dpari_segment *segment, int32_t me,
                                                        int32_t own, const dpar_world_desc *options)
{
    dpari_world_head *head = dpari_segment_head(segment);
    dpari_world *world = (dpari_world *)dpari_os_pages((int64_t)sizeof *world);
    if (!world) {
        return NULL;
    }
    world->segment = *segment;
    world->head = head;
    world->rank = dpari_segment_ranks(segment);
    world->channel = (uint64_t *)(void *)(world->rank + head->ranks);
    world->me = me;
    world->size = (int32_t)head->ranks;
    world->threads = head->threads;
    world->owns = own;
    world->timeout_s = dpari_world_timeout(options);
    world->used = (dpari_used *)dpari_os_pages(DPARI_MAX_USED * (int64_t)sizeof(dpari_used));
    world->view = (char **)dpari_os_pages(dpari_view_bytes(world));
    world->fresh = dpari_part_begin(world);
    world->clock = DPARI_LOAD(&head->clock);
    world->clock_at = dpari_os_now();
    world->probe = dpari_os_own_page();
    if (!world->used || !world->view || !world->probe) {
        dpari_world_free(world);
        return NULL;
    }
    return world;
}

/* Writes the message that names the ranks that have not arrived. Returns DPAR_E_PEER if one of them
 * has ended, otherwise DPAR_E_TIMEOUT. */
static dpar_status dpari_join_missing(dpari_world *world, double waited, dpar_why *why)
{
    dpar_status status = DPAR_E_TIMEOUT;
    int32_t named = 0;
    dpar_text t;
    dpari_text_why(&t, why);
    dpar_text_put(&t, "start: ");
    for (int32_t i = 0; i < world->size; i++) {
        uint32_t state = dpari_rank_state(world, i);
        if (DPARI_LOAD(&world->rank[i].member) != 0) {
            continue;
        }
        if (state != DPARI_RANK_AWAY) {
            status = DPAR_E_PEER;
        }
        if (named++ < 8) {
            dpar_text_put(&t, named > 1 ? ", rank " : "rank ");
            dpari_text_int(&t, i);
            dpar_text_put(&t, state == DPARI_RANK_AWAY ? " has not arrived" : " has ended");
        }
    }
    dpari_text_print(&t, " (%d of %d ranks) after %.1f s", named, world->size, waited);
    return status;
}

/* Waits until every rank has published its `member`. */
static dpar_status dpari_join_all(dpari_world *world, dpar_why *why)
{
    dpari_wait t;
    memset(&t, 0, sizeof t);
    for (int32_t i = 0; i < world->size; i++) {
        /* a rank that arrived and has left again has set `member`, so it counts */
        while (DPARI_LOAD(&world->rank[i].member) == 0) {
            if (dpari_wait_turn(world, &t, -1) != DPAR_MORE) {
                continue;
            }
            double waited = dpari_os_now() - t.began;
            uint32_t state = dpari_rank_state(world, i);
            int late = world->timeout_s > 0.0 && waited > world->timeout_s;
            if ((late || state == DPARI_RANK_DEAD || state == DPARI_RANK_LEFT) &&
                DPARI_LOAD(&world->rank[i].member) == 0) {
                dpari_wait_end(world, &t);
                return dpari_join_missing(world, waited, why);
            }
        }
    }
    dpari_wait_end(world, &t);
    return DPAR_OK;
}

/* ---- reading the memory of other ranks --------------------------------------------------------
 *
 * process_vm_readv takes a pid. Whether it is permitted depends on both processes: on their users
 * and namespaces, on seccomp, on Yama, and on whether they can be dumped. dpar checks none of these
 * but tries the call. Each rank keeps a word in its private memory that no other process has. A
 * rank that reads from it reads this word in the same call, which proves that the pid is that of
 * the right process. When a rank enters, it tries to read from all others and publishes from which
 * it could, so that the ranks can agree on a method that works for all of them. */

/* Computes the word of a rank, a hash of the world's nonce and the rank (splitmix64). */
static uint64_t dpari_world_word(const dpari_world *world, int32_t rank)
{
    uint64_t h = world->head->nonce + (uint64_t)(rank + 1) * UINT64_C(0x9e3779b97f4a7c15);
    h = (h ^ h >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ h >> 27) * UINT64_C(0x94d049bb133111eb);
    return h ^ h >> 31;
}

static int dpari_world_fetch(const dpari_world *world, int32_t rank, void *to, uint64_t from,
                             int64_t bytes)
{
    dpari_os_target target;
    target.pid = world->rank[rank].pid;
    target.at = world->rank[rank].probe;
    target.word = dpari_world_word(world, rank);
    return dpari_os_read_peer(&target, to, from, bytes);
}

DPARI_INTERNAL int dpari_world_reads(const dpari_world *world, int32_t reader, int32_t rank)
{
    const dpari_rank *record = &world->rank[reader];
    const int32_t count = DPARI_LOAD(&record->reads);
    if (count == 0 || count == world->size) {
        return count != 0;
    }
    return (int)(__atomic_load_n(&record->can_read[rank / 64], __ATOMIC_RELAXED) >> rank % 64 & 1U);
}

DPARI_INTERNAL int dpari_world_read(dpari_world *world, int32_t rank, void *to, uint64_t from,
                                    int64_t bytes)
{
    dpari_rank *record = &world->rank[world->me];
    const uint64_t bit = UINT64_C(1) << rank % 64;
    if (bytes == 0) {
        return 0;
    }
    if (dpari_world_fetch(world, rank, to, from, bytes) == 0) {
        return 0;
    }
    if (record->can_read[rank / 64] & bit) {
        __atomic_store_n(&record->can_read[rank / 64], record->can_read[rank / 64] & ~bit,
                         __ATOMIC_RELAXED);
        DPARI_STORE(&record->reads, record->reads - 1);
    }
    return -1;
}

/* Tries to read from each other rank and publishes from which ranks that works. */
static DPARI_COLD void dpari_world_prove(dpari_world *world)
{
    dpari_rank *record = &world->rank[world->me];
    int32_t count = 1;
    if (world->threads || world->size == 1 || (world->head->plain & DPAR_WORLD_NO_CMA)) {
        return;
    }
    memset(record->can_read, 0, sizeof record->can_read);
    record->can_read[world->me / 64] = UINT64_C(1) << world->me % 64;
    for (int32_t i = 1; i < world->size;
         i++) { /* each rank starts at the next one, to spread the reads */
        const int32_t peer = (world->me + i) % world->size;
        if (dpari_world_fetch(world, peer, NULL, 0, 0) == 0) {
            record->can_read[peer / 64] |= UINT64_C(1) << peer % 64;
            count++;
        } else if (errno == ENOSYS) {
            break;
        }
    }
    DPARI_STORE(&record->reads, count);
}

/* Returns why this rank cannot read another one's memory, as far as that is known. */
static DPARI_COLD const char *dpari_unread_why(const dpari_world *world, int32_t rank)
{
    const dpari_rank *mine = &world->rank[world->me], *theirs = &world->rank[rank];
    if (dpari_world_fetch(world, rank, NULL, 0, 0) == 0) {
        return "a read failed before";
    }
    if (errno == ENOSYS) {
        return "process_vm_readv does not exist, or seccomp hides it";
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
    return "no process has its pid";
}

DPARI_INTERNAL DPARI_COLD void dpari_put_unread(dpar_text *text, dpari_world *world)
{
    int32_t first = -1, count = 0;
    for (int32_t i = 0; i < world->size; i++) {
        if (i == world->me || dpari_world_reads(world, world->me, i)) {
            continue;
        }
        first = first < 0 ? i : first;
        count++;
    }
    if (count > 0) {
        dpari_text_print(text, "; %d of %d other ranks cannot be read: rank %d (%s)", count,
                         world->size - 1, first, dpari_unread_why(world, first));
        dpar_text_put(text, count > 1 ? ", ..." : "");
    }
}

/* True if the control group of this rank may use fewer processors than it has ranks. */
static int dpari_world_quota_is_short(const dpari_world *world)
{
    const dpari_rank *record = &world->rank[world->me];
    int32_t together = 0;
    if (record->quota >= world->size) {
        return 0;
    }
    for (int32_t i = 0; i < world->size; i++) {
        together += world->rank[i].group == record->group;
    }
    return record->quota < together;
}

/* Determines what is known only once all ranks have arrived: whether there are cores for all of
 * them, and which ranks' memory this rank can read. */
static void dpari_world_look(dpari_world *world)
{
    uint64_t any[DPARI_CPU_WORDS] = {0};
    for (int32_t i = 0; i < world->size * DPARI_CPU_WORDS; i++) {
        any[i % DPARI_CPU_WORDS] |= world->rank[i / DPARI_CPU_WORDS].cpus[i % DPARI_CPU_WORDS];
    }
    world->crowded = dpari_os_cpu_count(any) < world->size;
    world->thrifty = dpari_world_quota_is_short(world);
    dpari_world_prove(world);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_world_enter(dpari_world *world, uint64_t member,
                                                        dpar_why *why)
{
    dpari_rank *record = &world->rank[world->me];
    dpari_available available;
    dpar_status status;
    if (world->segment.fd >= 0 && dpari_os_hold(world->segment.fd, world->me) != 0) {
        return dpari_os_why(why, "start: taking the lock of this rank", 0, errno);
    }
    record->pid = (int32_t)getpid();
    record->pids = dpari_os_pids();
    world->cpu = dpari_os_cpu();
    DPARI_STORE(&record->cpu, world->cpu); /* ranks that arrived before look at it */
    *world->probe = dpari_world_word(world, world->me);
    record->probe = (uint64_t)(uintptr_t)world->probe;
    dpari_os_available(&available);
    record->quota = available.cpus;
    record->group = available.who;
    record->pid_space = dpari_os_namespace("pid");
    record->user_space = dpari_os_namespace("user");
    dpari_os_cpus(record->cpus);
    record->cache = dpari_os_cache(record->cpus);
    DPARI_STORE(&record->state, (uint32_t)DPARI_RANK_HERE);
    dpari_publish(world, &record->member, member);
    status = dpari_join_all(world, why);
    if (status == DPAR_OK) {
        dpari_world_look(world);
    }
    return status;
}

/* ---- flight recorder ------------------------------------------------------------------------- */

/* A record as words. */
typedef union dpari_flight_words {
    dpari_flight f;
    uint64_t word[sizeof(dpari_flight) / sizeof(uint64_t)];
} dpari_flight_words;

/* Copies a record that another rank may be writing or reading at the same time. The copy is made
 * word by word with atomic accesses, so that no word is half old and half new. */
static void dpari_flight_copy(uint64_t *to, const uint64_t *from)
{
    for (uint32_t i = 0; i < sizeof(dpari_flight) / sizeof(uint64_t); i++) {
        uint64_t v = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
        __atomic_store_n(&to[i], v, __ATOMIC_RELAXED);
    }
}

DPARI_INTERNAL dpari_flight dpari_flight_read(const dpari_rank *record, uint64_t number)
{
    const dpari_flight *from = &record->flight[number % DPARI_FLIGHTS];
    dpari_flight_words now;
    dpari_flight_copy(now.word, (const uint64_t *)(const void *)from);
    return now.f;
}

DPARI_INTERNAL dpari_flight dpari_flight_of(const dpar_call *call, int64_t sequence)
{
    dpari_flight f;
    f.sequence = sequence;
    f.count = call->count;
    f.comm = 0;
    f.kind = call->kind;
    f.type = call->type;
    f.op = call->op;
    f.root = call->root;
    f.tag = call->tag;
    f.state = DPARI_FLIGHT_POSTED;
    f.varies = call->variable_counts;
    f.padding[0] = 0;
    f.padding[1] = 0;
    return f;
}

DPARI_INTERNAL int64_t dpari_flight_begin(dpari_world *world, uint32_t comm, int64_t sequence,
                                          const dpar_call *call)
{
    dpari_rank *record = &world->rank[world->me];
    uint64_t number = record->flights;
    dpari_flight_words now;
    dpari_flight *slot = &record->flight[number % DPARI_FLIGHTS];
    now.f = dpari_flight_of(call, sequence);
    now.f.comm = comm;
    dpari_flight_copy((uint64_t *)(void *)slot, now.word);
    DPARI_STORE(&record->flights, number + 1);
    return (int64_t)number;
}

DPARI_INTERNAL void dpari_flight_end(dpari_world *world, int64_t number, int32_t state)
{
    dpari_rank *record = &world->rank[world->me];
    if (record->flights - (uint64_t)number <= DPARI_FLIGHTS) {
        __atomic_store_n(&record->flight[(uint64_t)number % DPARI_FLIGHTS].state, state,
                         __ATOMIC_RELAXED);
    }
}

DPARI_INTERNAL int dpari_flight_find(const dpari_world *world, int32_t rank, uint32_t comm,
                                     int64_t sequence, dpari_flight *out)
{
    const dpari_rank *record = &world->rank[rank];
    uint64_t n = DPARI_LOAD(&record->flights), k;
    for (k = n; k > 0 && n - k < DPARI_FLIGHTS; k--) {
        const dpari_flight f = dpari_flight_read(record, k - 1);
        if (sequence == DPARI_FLIGHT_LAST ||
            (sequence == DPARI_FLIGHT_LAST_FAILED && f.state == DPARI_FLIGHT_FAILED) ||
            (f.comm == comm && f.sequence == sequence && f.kind < DPAR_CALL_COLLECTIVE_COUNT)) {
            *out = f;
            return 1;
        }
    }
    return 0;
}

DPARI_INTERNAL DPARI_COLD void dpari_flight_text(dpar_text *text, const dpari_flight *flight)
{
    const int own = flight->root == DPARI_CLOSE || flight->root == DPARI_SPLIT;
    const char *name = dpar_call_name(flight->kind);
    if (dpari_planning_text(text, flight->kind, flight->sequence, flight->tag)) {
        return;
    }
    if (own) {
        name = flight->root == DPARI_CLOSE ? "close" : "split";
    }
    dpari_text_print(text, "%s #%ld", name, flight->sequence);
    if (flight->kind == DPAR_CALL_BARRIER || own) {
        return;
    }
    dpar_text_put(text, " (");
    if (flight->varies) {
        dpar_text_put(text, "pieces of ");
    } else {
        dpari_text_print(text, "%ld ", flight->count);
    }
    dpar_text_put(text, dpar_type_name(dpari_kern_stored(flight->type)));
    if (flight->type >= DPAR_TYPE_COUNT) {
        dpari_text_print(text, " as %s", dpar_type_name(dpari_kern_wire(flight->type)));
    }
    if (flight->op != DPAR_COPY) {
        dpari_text_print(text, ", %s", dpari_op_name(flight->op));
    }
    if (flight->kind >= DPAR_CALL_COLLECTIVE_COUNT) {
        dpari_text_print(text, "%s%d, tag %d",
                         flight->kind == DPAR_CALL_SEND ? ", to rank " : ", from rank ",
                         flight->root, flight->tag);
    } else if (flight->kind == DPAR_CALL_BROADCAST || flight->kind == DPAR_CALL_REDUCE ||
               flight->kind == DPAR_CALL_GATHER || flight->kind == DPAR_CALL_SCATTER) {
        dpari_text_print(text, ", root %d", flight->root);
    }
    if (flight->kind < DPAR_CALL_COLLECTIVE_COUNT && flight->tag != 0) {
        dpari_text_print(text, ", tag %d", flight->tag);
    }
    dpari_text_char(text, ')');
}

static void dpari_put_flight(dpar_text *text, const dpari_flight *flight)
{
    const char *state = " (in ";
    if (flight->state == DPARI_FLIGHT_DONE) {
        state = " (last done: ";
    } else if (flight->state == DPARI_FLIGHT_FAILED) {
        state = " (failed: ";
    }
    dpar_text_put(text, state);
    dpari_flight_text(text, flight);
    if (flight->comm != 0) {
        dpari_text_print(text, " of group %ld", (int64_t)flight->comm);
    }
    dpari_text_char(text, ')');
}

DPARI_INTERNAL DPARI_COLD void dpari_put_last(dpar_text *text, const dpari_world *world,
                                              int32_t rank)
{
    dpari_flight f;
    if (dpari_flight_find(world, rank, 0, DPARI_FLIGHT_LAST, &f)) {
        dpari_put_flight(text, &f);
    } else {
        dpar_text_put(text, " (it has begun no operation yet)");
    }
}

DPARI_API DPARI_COLD void dpari_put_failed(dpar_text *text, const dpari_world *world, int32_t rank)
{
    dpari_flight f;
    if (dpari_flight_find(world, rank, 0, DPARI_FLIGHT_LAST_FAILED, &f)) {
        dpari_put_flight(text, &f);
    }
}
