/* SPDX-License-Identifier: MIT-0 */
/* Implements the world: the segment that ranks share, their heaps, sleeping and waking, and signs
 * of life. world.h has the memory layout.
 *
 * Segment: a memfd or an unlinked file that each rank maps. Sleeping: a rank that waits polls, then
 * yields, then sleeps on a futex that other ranks wake. Life: each rank holds a lock on the file.
 * When the rank dies, the system releases the lock, and the others notice. A rank that waits also
 * publishes when it last did so. Heap: each rank allocates from its own extents, without locks. The
 * flight recorder keeps the last operations of each rank for messages and dpar_comm_report. Called
 * by all other modules of the shared-memory engine. */
#include "world.h"

#include "../base/inner.h"
#include "engine.h"
#include "kernel.h"

#define DPARI_MAGIC UINT64_C(0x31646c726f775064) /* "dPworld1" */
enum { DPARI_VERSION = 3 };                      /* of the layout of the segment */

/* The first value of the shared clock, in ms. It is large, so that a beat of 0, of a rank that has
 * not reported a wait yet, counts as older than any quiet time that a deadline allows. */
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

/* Bytes of the part of the segment that every rank maps: everything before the heaps. */
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
    const char *what = NULL;
    int64_t got = 0;
    dpar_text t;
    if (ranks < 1 || ranks > DPARI_MAX_RANKS) {
        what = "a node has 1 to 1024 ranks";
        got = ranks;
    } else if (o && (o->heap_bytes < 0 || o->heap_bytes > INT64_C(1) << 50)) {
        what = "heap_bytes must be 0 to 2^50";
        got = o->heap_bytes;
    } else if (o && o->slot_bytes != 0 &&
               (o->slot_bytes < 4096 || o->slot_bytes > INT64_C(16) << 20 ||
                (o->slot_bytes & (o->slot_bytes - 1)) != 0)) {
        what = "slot_bytes must be a power of two from 4096 to 2^24";
        got = o->slot_bytes;
    } else if (o && (o->disable < 0 || o->disable >= 2 * DPAR_WORLD_NO_DONTDUMP)) {
        what = "disable must be a sum of DPAR_WORLD_NO_x";
        got = o->disable;
    }
    if (!what) {
        return DPAR_OK;
    }
    if (why) {
        dpar_text_init(&t, why->text, sizeof why->text);
        dpari_text_print(&t, "%s, not %ld", what, got);
    }
    return DPAR_E_ARG;
}

/* Makes a file of `bytes` and maps its first `head` bytes. If `is_private` is set, the segment is
 * private to this process and there is no file. Returns 0 or an errno value. */
static int dpari_segment_map(dpari_segment *s, int64_t head, int64_t bytes, int is_private,
                             int without_memfd)
{
    s->bytes = head;
    s->fd = is_private ? -1 : dpari_os_segment(bytes, without_memfd);
    if (!is_private && s->fd < 0) {
        return errno ? errno : ENOSYS;
    }
    s->base = (char *)(is_private ? dpari_os_pages(head) : dpari_os_map(s->fd, 0, head));
    if (!s->base) {
        int number = errno;
        if (s->fd >= 0) {
            close(s->fd);
        }
        return number ? number : ENOMEM;
    }
    return 0;
}

/* Returns the most bytes that a file may have (off_t and ulimit -f). */
static int64_t dpari_file_most(void)
{
    const int64_t most = sizeof(off_t) < 8 ? INT32_MAX : INT64_MAX / 2;
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        (uint64_t)limit.rlim_cur > (uint64_t)most) {
        return most;
    }
    return (int64_t)limit.rlim_cur;
}

/* Makes the file. Each rank's part of it is twice what the users may have in use, so that gaps
 * between allocations do not matter, plus what the library itself needs. The file may be this large
 * because it is sparse: its unused parts take neither memory nor addresses. If a limit on files
 * makes the parts smaller, *heap becomes what a part still has for the users. */
static int dpari_segment_size(dpari_segment *s, int32_t ranks, int64_t *heap, int64_t *part,
                              int is_private, int without_memfd)
{
    const int64_t begin = dpari_heap_begin(ranks), channels = ranks * (INT64_C(512) << 10);
    const int64_t library = (INT64_C(8) << 20) + channels;
    const int64_t least = dpari_in_units(library + 1, DPARI_OS_LARGE);
    const int64_t bound = is_private ? INT64_MAX / 2 : dpari_file_most();
    const int64_t most = (bound - begin) / ranks / DPARI_OS_LARGE * DPARI_OS_LARGE;
    int number = EFBIG;
    *part = dpari_in_units(2 * *heap + (INT64_C(4) << 30) + channels, DPARI_OS_LARGE);
    *part = dpari_most(dpari_least(*part, most), least);
    while (*part <= most) {
        number = dpari_segment_map(s, dpari_head_bytes(ranks), begin + ranks * *part, is_private,
                                   without_memfd);
        if (number == 0 || *part == least) {
            break;
        }
        *part = dpari_most(dpari_in_units(*part / 2, DPARI_OS_LARGE), least);
    }
    *heap = dpari_least(*heap, *part - library);
    return number;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_segment_make(dpari_segment *s, int32_t ranks,
                                                         const dpar_world_desc *options,
                                                         dpar_why *why)
{
    const int32_t plain = options ? options->disable : 0;
    const int32_t threads = options ? options->threads : 0;
    dpar_status status = dpari_segment_options(ranks, options, why);
    int64_t heap = options && options->heap_bytes > 0 ? options->heap_bytes : dpari_os_memory();
    int64_t part = 0;
    int number;
    dpari_world_head *h;
    if (status != DPAR_OK) {
        return status;
    }
    heap = dpari_in_units(heap > 0 ? heap : INT64_C(64) << 20, dpari_os_page());
    number = dpari_segment_size(s, ranks, &heap, &part, ranks == 1 || threads,
                                plain & DPAR_WORLD_NO_MEMFD);
    if (number == 0 && s->fd >= 0) {
        number = dpari_os_reserve(s->fd, 0, s->bytes);
        if (number != 0) {
            dpari_segment_close(s);
        }
    }
    if (number != 0) {
        const int64_t file = dpari_heap_begin(ranks) + ranks * part;
        return dpari_os_why(why, "shared memory of ",
                            number == EFBIG ? file : dpari_head_bytes(ranks), number);
    }
    h = dpari_segment_head(s);
    h->version = DPARI_VERSION;
    h->ranks = (uint32_t)ranks;
    h->bytes = dpari_heap_begin(ranks) + ranks * part;
    h->heap_bytes = heap;
    h->part_bytes = part;
    h->heap_begin = dpari_heap_begin(ranks);
    h->slot_bytes = options && options->slot_bytes ? options->slot_bytes : INT64_C(256) << 10;
    /* so that a chunk, which is half a slot, has at least DPARI_LINE bytes for each rank */
    while (h->slot_bytes < 256 * (int64_t)ranks) {
        h->slot_bytes *= 2;
    }
    h->plain = plain;
    h->threads = threads || ranks == 1;
    h->nonce = dpari_os_random();
    h->clock = DPARI_CLOCK_FIRST;
    for (int32_t i = 0; i < ranks; i++) {
        dpari_segment_ranks(s)[i].cpu = -1; /* 0 would be a CPU */
    }
    DPARI_STORE(&h->magic, DPARI_MAGIC); /* last: all the fields above are complete */
    return DPAR_OK;
}

/* True if the head belongs to a segment of this version and its sizes fit a file of `bytes`. */
static int dpari_head_is_sound(const dpari_world_head *h, int64_t bytes)
{
    return h->magic == DPARI_MAGIC && h->version == DPARI_VERSION && h->bytes == bytes &&
           h->ranks >= 1 && h->ranks <= DPARI_MAX_RANKS &&
           h->heap_begin == dpari_heap_begin((int64_t)h->ranks) && h->part_bytes > 0 &&
           h->heap_bytes > 0 && h->part_bytes <= (bytes - h->heap_begin) / (int64_t)h->ranks;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_segment_open(dpari_segment *s, int fd, dpar_why *why)
{
    struct stat about;
    dpari_world_head head;
    dpar_status status = DPAR_E_ARG;
    dpar_text t;
    if (fstat(fd, &about) != 0) {
        return dpari_os_why(why, "the shared memory passed to this rank", 0, errno);
    }
    s->fd = fd;
    s->base = NULL;
    if (pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head &&
        dpari_head_is_sound(&head, (int64_t)about.st_size)) {
        s->bytes = dpari_head_bytes((int64_t)head.ranks);
        s->base = (char *)dpari_os_map(fd, 0, s->bytes);
        if (s->base) {
            return DPAR_OK;
        }
        status = dpari_os_why(why, "shared memory of ", s->bytes, errno);
    } else if (why) {
        dpar_text_init(&t, why->text, sizeof why->text);
        dpari_text_print(
            &t, "the shared memory passed to this rank (%ld bytes) is not of this version of dpar",
            (int64_t)about.st_size);
    }
    close(fd);
    s->fd = -1;
    return status;
}

/* Frees the heaps of ranks that are threads. Such heaps are memory of this process and are released
 * together with the segment. */
static void dpari_segment_unmap_heaps(const dpari_segment *s)
{
    const dpari_world_head *h = dpari_segment_head(s);
    for (uint32_t r = 0; r < h->ranks; r++) {
        const dpari_rank *rank = &dpari_segment_ranks(s)[r];
        for (uint32_t e = 1; e <= rank->extents; e++) {
            dpari_os_unmap((void *)(uintptr_t)rank->extent[e].begin, rank->extent[e].bytes);
        }
    }
}

DPARI_INTERNAL DPARI_COLD int dpari_segment_copy(const dpari_segment *s, uint64_t ref, void *to,
                                                 int64_t bytes)
{
    const dpari_world_head *h = dpari_segment_head(s);
    const uint32_t rank = (uint32_t)(ref >> (DPARI_REF_BITS + 6));
    const uint32_t extent = (uint32_t)(ref >> DPARI_REF_BITS) % DPARI_EXTENTS;
    int64_t at;
    if (ref == 0) {
        return 0;
    }
    if (h->threads) {
        memcpy(to, (const void *)(uintptr_t)ref, (size_t)bytes);
        return 1;
    }
    if (rank >= h->ranks || extent == 0) {
        return 0;
    }
    at = dpari_segment_ranks(s)[rank].extent[extent].begin + (int64_t)(ref & DPARI_REF_OFFSET);
    return pread(s->fd, to, (size_t)bytes, (off_t)at) == (ssize_t)bytes;
}

DPARI_INTERNAL DPARI_COLD void dpari_segment_close(dpari_segment *s)
{
    if (s->base && s->fd < 0) {
        dpari_segment_unmap_heaps(s);
    }
    dpari_os_unmap(s->base, s->bytes);
    s->base = NULL;
    if (s->fd >= 0) {
        close(s->fd);
    }
    s->fd = -1;
}

/* ---- sleeping and waking ----------------------------------------------------------------------
 *
 * A rank goes to sleep in this order: it counts itself in head->sleepers, sets `asleep`, and tests
 * its condition once more. A rank that publishes a word stores it first and then reads `sleepers`.
 * All these accesses are sequentially consistent, so that either the sleeper sees the word or the
 * publisher sees the sleeper and wakes it. */

/* Takes a rank off the count of sleepers. Several ranks may try this at once, but only one of them
 * succeeds. Returns 1 for that one, otherwise 0. */
static int dpari_uncount(dpari_world_head *h, dpari_rank *r)
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
    if (dpari_uncount(h, r)) {
        DPARI_ADD(&r->bell, 1U);
        dpari_os_futex_wake(&r->bell, h->threads);
    }
}

DPARI_INTERNAL void dpari_ring_all(const dpari_segment *s)
{
    dpari_world_head *h = dpari_segment_head(s);
    for (uint32_t i = 0; i < h->ranks; i++) {
        dpari_ring(h, &dpari_segment_ranks(s)[i]);
    }
}

/* Wakes the ranks that sleep until this one publishes something. It is a function of its own
 * because dpari_publish seldom finds a rank asleep. */
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

DPARI_API void dpari_publish(dpari_world *w, uint64_t *word, uint64_t value)
{
    DPARI_STORE_SEQ(word, value);
    if (DPARI_LOAD_SEQ(&w->head->sleepers)) {
        dpari_ring_sleepers(w);
    }
}

enum {
    DPARI_SPINS = 8192,        /* about 0.1 ms, as long as a sleep and its wake-up take */
    DPARI_SPINS_SHARED = 8,    /* if the peer needs this core, spinning only delays the peer */
    DPARI_SPINS_BLIND = 64,    /* 1 to 3 us; then a wait looks on which CPU its peer is */
    DPARI_SPINS_MORE = 1024,   /* spins until a wait looks at the clock again */
    DPARI_SPINS_SLEEPY = 1024, /* if there are cores for all, but other programs keep them busy */
    DPARI_VAIN = 3,            /* consecutive waits that spin in vain before waits spin less */
    DPARI_SLEEPY = 1000,       /* waits for which one slow yield is remembered */
    DPARI_SLEEPY_MOST = 64000, /* the most such waits; each further slow yield doubles them */
    DPARI_SLEEPY_LOST = 64     /* waits for which the loss of a time slice is remembered */
};
/* All in seconds. */
#define DPARI_SPIN_FOR 1e-3 /* ten times what a sleep and its wake-up take on an active core */
#define DPARI_YIELD_FOR 2e-3
#define DPARI_YIELD_IS_SLOW 500e-6 /* less than a time slice, more than a brief interruption */
#define DPARI_SLEEP_FOR 20e-3
#define DPARI_MOVE_EVERY 2e-3 /* the least time between two moves of a rank, half a time slice */
#define DPARI_SLICE_LOST 2e-3 /* if a spin takes so long between two looks, another program ran */

/* Looks at the clock. Time for which this process was suspended does not count as waiting. Returns
 * the seconds since the last look. */
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

/* Publishes on which CPU this rank runs, and looks whether the peer (any rank if -1) was last seen
 * on the same CPU. If it was, it cannot make progress while this rank spins. */
static DPARI_COLD void dpari_wait_look_around(dpari_world *w, dpari_wait *t, int32_t peer)
{
    const int32_t cpu = dpari_os_cpu();
    const int32_t first = peer < 0 ? 0 : peer;
    const int32_t end = peer < 0 ? w->size : peer + 1;
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

/* Moves this rank to another CPU if it shares one with a lower rank although there is a CPU for
 * each. The system often leaves two such ranks there for long, because each of them sleeps or
 * yields while the other one runs. The new CPU is one on which no rank was last seen. If another
 * program runs there, that program slows down one rank instead of two. */
static DPARI_COLD void dpari_wait_move_away(dpari_world *w, dpari_wait *t, int32_t peer)
{
    uint64_t is_free[DPARI_CPU_WORDS];
    int32_t cpu = 0;
    if (t->shares > w->me || t->looked - w->moved < DPARI_MOVE_EVERY ||
        (w->head->plain & DPAR_WORLD_NO_MIGRATION)) {
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

/* Sleeps until the rank is woken or DPARI_SLEEP_FOR has passed. Then adapts for how long coming
 * waits spin before they sleep. */
static dpar_status dpari_wait_asleep(dpari_world *w, dpari_wait *t)
{
    dpari_rank *r = &w->rank[w->me];
    dpari_os_futex_wait(&r->bell, t->bell, DPARI_SLEEP_FOR, w->threads);
    (void)dpari_wait_look_at_clock(t, dpari_os_now());
    t->counted = 0;
    dpari_uncount(w->head, r);
    if (w->crowded || w->thrifty || t->shares) {
        return DPAR_MORE;
    }
    /* There are cores for all ranks. If waits nevertheless spin in vain again and again, another
     * program runs on these cores, perhaps on the one that the peer needs. In that case this rank
     * spins less for a while. It spins as before once several consecutive waits were short enough
     * that a spin would have been sufficient. */
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

/* Takes this rank off the count of sleepers, because it need not be woken any more. */
static void dpari_wait_uncount(dpari_world *w, dpari_wait *t)
{
    if (t->counted) {
        t->counted = 0;
        dpari_uncount(w->head, &w->rank[w->me]);
    } else if (t->turns < DPARI_SPINS && w->sleepy == 0) {
        w->vain = 0;
    }
}

DPARI_API void dpari_wait_end(dpari_world *w, dpari_wait *t)
{
    if (t->began > 0.0) { /* a search along the chain of waits must stop at this rank */
        DPARI_STORE(&w->rank[w->me].needs, -1);
    }
    dpari_wait_uncount(w, t);
}

/* Yields the core to another rank. If the yield takes long, another program wants the core and gets
 * a whole time slice at each yield, so that coming waits do better to sleep. */
static void dpari_wait_yield(dpari_world *w, dpari_wait *t, double now)
{
    double back;
    sched_yield();
    back = dpari_os_now();
    (void)dpari_wait_look_at_clock(t, back);
    if (back - now <= DPARI_YIELD_IS_SLOW) {
        w->slow_yield -= w->slow_yield > 0;
        return;
    }
    if (!w->crowded) { /* this rank and its peer may soon run on different CPUs */
        w->sleepy = DPARI_SLEEPY_LOST;
        return;
    }
    if (w->slow_yield < DPARI_SLEEPY) {
        w->slow_yield = DPARI_SLEEPY;
    } else if (w->slow_yield < DPARI_SLEEPY_MOST) {
        w->slow_yield *= 2;
    }
    w->sleepy = w->slow_yield;
}

/* A turn of a wait that has spun long enough. It spins more, moves to another CPU, yields, or
 * sleeps, depending on whether other ranks need this core. */
static DPARI_COLD dpar_status dpari_wait_slow(dpari_world *w, dpari_wait *t, int32_t peer)
{
    dpari_rank *r = &w->rank[w->me];
    double now, since;
    if (t->counted && (t->peer == peer || t->peer < 0)) {
        return dpari_wait_asleep(w, t);
    }
    /* if it was counted, then for another peer, which has published by now */
    dpari_wait_uncount(w, t);
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
    if (!w->crowded && !w->thrifty && !t->shares && w->sleepy == 0 &&
        now - t->began < DPARI_SPIN_FOR) {
        t->turns -= DPARI_SPINS_MORE; /* as far as is known, nothing else needs this core */
        return DPAR_OK;
    }
    if ((w->crowded || t->shares) && w->sleepy == 0 && now - t->began < DPARI_YIELD_FOR) {
        dpari_wait_yield(w, t, now);
        return DPAR_OK;
    }
    if (w->head->plain & DPAR_WORLD_NO_FUTEX) {
        dpari_os_sleep(20e-6);
        (void)dpari_wait_look_at_clock(t, dpari_os_now());
        return DPAR_MORE;
    }
    /* The rank is counted before it sets `asleep`, because the rank that clears `asleep` decrements
     * the count. The fence keeps the caller's next test of its condition from moving before the
     * exchange. On POWER the exchange does not prevent that by itself (tests/model/order.c). */
    t->bell = DPARI_LOAD_SEQ(&r->bell);
    t->counted = 1;
    t->peer = peer;
    DPARI_ADD(&w->head->sleepers, 1U);
    DPARI_STORE(&r->waits_for, peer);
    __atomic_exchange_n(&r->asleep, 1U, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return DPAR_OK;
}

DPARI_API dpar_status dpari_wait_turn(dpari_world *w, dpari_wait *t, int32_t peer)
{
    int32_t spins = w->sleepy || w->thrifty ? DPARI_SPINS_SLEEPY : DPARI_SPINS;
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

/* Advances the clock that all ranks share and returns it, in ms. Ranks cannot compare their
 * CLOCK_MONOTONIC, because it differs between time namespaces. A rank that finds the shared clock
 * unchanged since its last look sets it forward by the time that has passed since then. A rank that
 * finds it changed takes the new value. The shared clock therefore runs while at least one rank
 * waits, and never faster than real time, even if many ranks wait. */
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

DPARI_INTERNAL DPARI_COLD double dpari_beat_age(dpari_world *w, int32_t rank)
{
    const uint32_t beat = DPARI_LOAD(&w->rank[rank].beat);
    return (double)(dpari_clock(w) - beat) / 1000.0;
}

DPARI_API DPARI_COLD void dpari_wait_says(dpari_world *w, int32_t needs)
{
    dpari_rank *r = &w->rank[w->me];
    DPARI_STORE(&r->needs, needs);
    DPARI_STORE(&r->beat, dpari_clock(w));
}

/* ---- life and death ---------------------------------------------------------------------------
 */

/* Marks a rank as dead and wakes all others. ending: how it ended, 0 if unknown. */
static void dpari_rank_is_dead(const dpari_segment *s, int32_t rank, int32_t ending)
{
    dpari_rank *r = &dpari_segment_ranks(s)[rank];
    uint32_t state = DPARI_LOAD(&r->state);
    if (state == DPARI_RANK_LEFT) {
        return;
    }
    if (ending == DPARI_ENDING_DUMPS) { /* must not replace the exit status from the launcher */
        int32_t none = 0;
        (void)DPARI_CLAIM(&r->ending, &none, ending);
    } else if (ending != 0) { /* a peer may have noticed the death first, without the status */
        __atomic_store_n(&r->ending, ending, __ATOMIC_RELAXED);
    }
    if (state != DPARI_RANK_DEAD && DPARI_CLAIM(&r->state, &state, (uint32_t)DPARI_RANK_DEAD)) {
        dpari_uncount(dpari_segment_head(s), r);
        dpari_ring_all(s);
    }
}

DPARI_INTERNAL DPARI_COLD void dpari_segment_ended(const dpari_segment *s, int32_t rank,
                                                   int32_t ending)
{
    dpari_rank_is_dead(s, rank, ending);
}

DPARI_API DPARI_COLD int dpari_world_speaks(dpari_world *w, uint32_t turn)
{
    uint32_t said = DPARI_LOAD(&w->head->said);
    while (said < turn) {
        if (DPARI_CLAIM(&w->head->said, &said, turn)) {
            return 1;
        }
    }
    return 0;
}

DPARI_INTERNAL DPARI_COLD int dpari_segment_said(const dpari_segment *s)
{
    return DPARI_LOAD(&dpari_segment_head(s)->said) != 0;
}

DPARI_INTERNAL DPARI_COLD int dpari_segment_has_left(const dpari_segment *s, int32_t rank)
{
    return DPARI_LOAD(&dpari_segment_ranks(s)[rank].state) == DPARI_RANK_LEFT;
}

DPARI_INTERNAL DPARI_COLD int dpari_segment_is_behind(const dpari_segment *s, int32_t rank)
{
    return DPARI_LOAD(&dpari_segment_ranks(s)[rank].behind) != 0;
}

DPARI_INTERNAL DPARI_COLD uint64_t dpari_segment_pulse(const dpari_segment *s, int32_t rank)
{
    const dpari_rank *r = &dpari_segment_ranks(s)[rank];
    return DPARI_LOAD(&r->flights) + ((uint64_t)DPARI_LOAD(&r->beat) << 32);
}

/* A rank that reported within so many seconds that it waits has not crashed. This saves a look into
 * /proc. */
#define DPARI_BEAT_FRESH 0.1

/* True if the rank has crashed and is writing a core file. It keeps its lock until that is done,
 * which may take minutes. */
static int dpari_rank_dumps(dpari_world *w, int32_t rank)
{
    const dpari_rank *r = &w->rank[rank];
    return r->pids != 0 && r->pids == w->rank[w->me].pids &&
           dpari_beat_age(w, rank) > DPARI_BEAT_FRESH && dpari_os_dumps(r->pid);
}

DPARI_API uint32_t dpari_rank_state(dpari_world *w, int32_t rank)
{
    uint32_t state = DPARI_LOAD(&w->rank[rank].state);
    if (state != DPARI_RANK_HERE || w->threads || rank == w->me) {
        return state;
    }
    if (dpari_os_is_held(w->segment.fd, rank)) {
        if (dpari_rank_dumps(w, rank)) {
            dpari_rank_is_dead(&w->segment, rank, DPARI_ENDING_DUMPS);
        }
        return DPARI_LOAD(&w->rank[rank].state);
    }
    /* a rank that leaves sets its state before it releases its lock: so read the state again */
    state = DPARI_LOAD(&w->rank[rank].state);
    if (state == DPARI_RANK_HERE) {
        dpari_rank_is_dead(&w->segment, rank, 0);
    }
    return DPARI_LOAD(&w->rank[rank].state);
}

DPARI_INTERNAL DPARI_COLD void dpari_put_end(dpar_text *t, const dpari_rank *r)
{
    int32_t ending = __atomic_load_n(&r->ending, __ATOMIC_RELAXED);
    uint32_t state = DPARI_LOAD(&r->state);
    if (state == DPARI_RANK_LEFT) {
        dpar_text_put(t, " has left");
    } else if (ending == DPARI_ENDING_DUMPS) {
        dpar_text_put(t, " has crashed and is writing a core file");
    } else if (ending < 0) {
        dpari_text_print(t, " was killed by signal %ld", -(int64_t)ending);
    } else {
        dpar_text_put(t, " has ended");
        if (ending > 0) {
            dpari_text_print(t, " with status %d", ending);
        }
    }
}

DPARI_API DPARI_COLD void dpari_put_ending(dpar_text *t, const dpari_world *w, int32_t rank)
{
    const dpari_rank *r = &w->rank[rank];
    /* The lock of a dead rank is released at once, but the process that started the rank reports a
     * moment later how it ended. */
    for (int32_t i = 0; i < 20; i++) {
        if (DPARI_LOAD(&r->state) != DPARI_RANK_DEAD ||
            __atomic_load_n(&r->ending, __ATOMIC_RELAXED) != 0) {
            break;
        }
        dpari_os_sleep(1e-3);
    }
    dpari_put_end(t, r);
}

/* ---- extents ----------------------------------------------------------------------------------
 */

static int64_t dpari_part_begin(const dpari_world *w)
{
    return w->head->heap_begin + w->me * w->head->part_bytes;
}

/* Maps the extent that belongs at view[index], unless another thread has just done so. Returns its
 * address, or NULL if this process has no addresses left. */
static DPARI_COLD char *dpari_view_make(const dpari_world *w, uint64_t index)
{
    const uint64_t rank = index / DPARI_EXTENTS, number = index % DPARI_EXTENTS;
    const dpari_extent *e;
    char *at, *none = NULL;
    if (rank >= (uint64_t)w->size || number == 0) {
        return NULL;
    }
    e = &w->rank[rank].extent[number];
    at = (char *)dpari_os_map(w->segment.fd, e->begin, e->bytes);
    if (!at) {
        return DPARI_LOAD(&w->view[index]);
    }
    if (!(w->head->plain & DPAR_WORLD_NO_DONTDUMP)) {
        dpari_os_dump(at, e->bytes, 0);
    }
    if (!DPARI_CLAIM(&w->view[index], &none, at)) {
        dpari_os_unmap(at, e->bytes);
        return none;
    }
    return at;
}

DPARI_API DPARI_NOINLINE void *dpari_at(const dpari_world *w, uint64_t ref)
{
    char *view;
    if (w->threads) {
        return (void *)(uintptr_t)ref;
    }
    view = DPARI_LOAD(&w->view[ref >> DPARI_REF_BITS]);
    if (!view) {
        view = dpari_view_make(w, ref >> DPARI_REF_BITS);
    }
    return view ? (void *)(view + (ref & DPARI_REF_OFFSET)) : NULL;
}

DPARI_API DPARI_COLD void dpari_put_unmapped(dpar_text *t, const dpari_world *w, uint64_t ref)
{
    const uint64_t index = ref >> DPARI_REF_BITS;
    const int32_t rank = (int32_t)(index / DPARI_EXTENTS);
    if (rank < w->size) {
        dpari_text_print(t, "mapping %ld bytes of rank %d's memory: ",
                         w->rank[rank].extent[index % DPARI_EXTENTS].bytes, rank);
    }
    dpari_os_put_addresses(t);
}

/* Returns where this rank has mapped an extent of its own. */
static char *dpari_own_view(const dpari_world *w, int32_t number)
{
    return DPARI_LOAD(&w->view[w->me * DPARI_EXTENTS + number]);
}

/* Finds the extent of this rank's heap that holds `address`. Returns its number and sets *offset to
 * the address's offset in it, or returns 0 if no extent holds it. */
static int32_t dpari_own_find(const dpari_world *w, uint64_t address, uint64_t *offset)
{
    const int32_t n = DPARI_LOAD(&w->owns_extents);
    for (int32_t i = 1; i <= n; i++) {
        const char *view = dpari_own_view(w, i);
        *offset = address - (uint64_t)(uintptr_t)view;
        if (view && *offset < (uint64_t)w->own[i].bytes) {
            return i;
        }
    }
    return 0;
}

DPARI_API uint64_t dpari_ref(const dpari_world *w, const void *at, int64_t bytes)
{
    const uint64_t address = (uint64_t)(uintptr_t)at;
    uint64_t offset;
    int32_t i;
    if (w->threads) {
        return address;
    }
    i = dpari_own_find(w, address, &offset);
    if (i == 0 || (uint64_t)bytes > (uint64_t)w->own[i].bytes - offset) {
        return 0;
    }
    return ((uint64_t)w->me * DPARI_EXTENTS + (uint64_t)i) << DPARI_REF_BITS | offset;
}

/* Maps an extent of this rank, or allocates memory for it if the ranks are threads. */
static char *dpari_own_map(const dpari_world *w, int64_t begin, int64_t bytes)
{
    char *at;
    if (w->segment.fd < 0) {
        return (uint64_t)bytes > (uint64_t)SIZE_MAX / 4 ? NULL : (char *)dpari_os_pages(bytes);
    }
    at = (char *)dpari_os_map(w->segment.fd, begin, bytes);
    if (at && !(w->head->plain & DPAR_WORLD_NO_DONTDUMP)) {
        dpari_os_dump(at, bytes, 0);
    }
    return at;
}

/* Computes the bytes that the next extent should have. They are as many as all extents have so far,
 * which keeps the number of extents small. If the process has a limit on addresses, they are only a
 * quarter of that, because the program needs the rest of the addresses. */
static int64_t dpari_extent_want(const dpari_world *w, int64_t least, int64_t left)
{
    const int64_t first = INT64_C(4) << 20, most = INT64_C(1) << 46;
    const int64_t total = left < w->head->part_bytes ? w->head->part_bytes - left : 0;
    int64_t want = dpari_os_addresses() < INT64_MAX ? total / 4 : total;
    want = dpari_in_units(dpari_most(want, first), DPARI_OS_LARGE);
    want = dpari_least(dpari_least(want, left), most);
    return dpari_most(want, least);
}

/* Makes a new extent that can hold an allocation of `bytes`. Returns its number, or 0 if there can
 * be none; w->lacks has the reason. */
static DPARI_COLD int32_t dpari_extent_make(dpari_world *w, int64_t bytes)
{
    dpari_rank *r = &w->rank[w->me];
    const int32_t n = w->owns_extents;
    const int64_t begin = n > 0 ? w->own[n].begin + w->own[n].bytes : dpari_part_begin(w);
    const int64_t left = dpari_part_begin(w) + w->head->part_bytes - begin;
    const int64_t least = dpari_in_units(bytes, DPARI_OS_LARGE);
    int64_t want;
    char *at;
    if (least > left || n + 1 == DPARI_EXTENTS) {
        w->lacks = DPARI_LACKS_PLACE;
        return 0;
    }
    want = dpari_extent_want(w, least, left);
    at = dpari_own_map(w, begin, want);
    while (!at && want > least) { /* there are too few addresses: try a smaller extent */
        want = dpari_most(dpari_in_units(want / 2, DPARI_OS_LARGE), least);
        at = dpari_own_map(w, begin, want);
    }
    if (!at) {
        w->lacks = DPARI_LACKS_ADDRESSES;
        return 0;
    }
    w->own[n + 1].begin = w->own[n + 1].fresh = begin;
    w->own[n + 1].bytes = want;
    r->extent[n + 1].begin = w->segment.fd < 0 ? (int64_t)(uintptr_t)at : begin;
    r->extent[n + 1].bytes = want;
    DPARI_STORE(&w->view[w->me * DPARI_EXTENTS + n + 1], at);
    DPARI_STORE(&r->extents, (uint32_t)n + 1U);
    DPARI_STORE(&w->owns_extents, n + 1); /* another thread may look for an address */
    return n + 1;
}

/* ---- the heap of this rank --------------------------------------------------------------------
 */

#define DPARI_ASK_FROM (INT64_C(4) << 20) /* allocations from this size on check the free memory */
enum { DPARI_TAKING = 20000 };            /* ms for which such an allocation waits for others */

/* The first allocation that begins at `at` or later. */
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

/* Finds the first gap of `bytes` in extent `number`; the gap must begin at a multiple of `unit`.
 * Returns where it begins, or -1 if there is none. *place is the index in `used` for a new
 * allocation there. */
static int64_t dpari_extent_gap(const dpari_world *w, int32_t number, int64_t bytes, int64_t unit,
                                int32_t *place)
{
    const dpari_own *e = &w->own[number];
    const int64_t end = e->begin + e->bytes;
    int64_t at = dpari_in_units(dpari_most(e->begin, w->floor), unit);
    int32_t i = dpari_heap_find(w, e->begin);
    for (; i < w->used_count && w->used[i].begin < end && w->used[i].begin - at < bytes; i++) {
        at = dpari_most(at, dpari_in_units(w->used[i].begin + w->used[i].bytes, unit));
    }
    *place = i;
    return end - at >= bytes ? at : -1;
}

/* Finds a gap in any of this rank's extents and maps that extent if necessary. Returns where the
 * gap begins and sets *number to the extent, or returns -1; see w->lacks. */
static DPARI_COLD int64_t dpari_heap_gap(dpari_world *w, int64_t bytes, int64_t unit,
                                         int32_t *place, int32_t *number)
{
    int64_t at = -1;
    for (int32_t i = 1; i <= w->owns_extents; i++) {
        char **view = &w->view[w->me * DPARI_EXTENTS + i];
        at = dpari_extent_gap(w, i, bytes, unit, place);
        if (at < 0) {
            continue;
        }
        if (!*view) { /* the extent was unmapped when it became empty */
            DPARI_STORE(view, dpari_own_map(w, w->own[i].begin, w->own[i].bytes));
        }
        if (*view) {
            *number = i;
            return at;
        }
        w->lacks = DPARI_LACKS_ADDRESSES;
    }
    return -1;
}

/* Finds a place for `take` bytes. Large allocations begin at a large page, in a new extent if
 * necessary. With small pages, elements of a box that are a page apart would each cause a TLB miss.
 */
static DPARI_COLD int64_t dpari_heap_place(dpari_world *w, int64_t take, int32_t *place,
                                           int32_t *number)
{
    const int64_t page = dpari_os_page();
    int64_t unit = take >= DPARI_OS_LARGE ? (int64_t)DPARI_OS_LARGE : page;
    int64_t at = dpari_heap_gap(w, take, unit, place, number);
    if (at < 0 && dpari_extent_make(w, take) > 0) {
        at = dpari_heap_gap(w, take, unit, place, number);
    }
    return at >= 0 || unit == page ? at : dpari_heap_gap(w, take, page, place, number);
}

/* True if there is not enough memory, so that the system would kill some process rather than refuse
 * it. Ranks often allocate at the same time, and each sees the memory that is free before the
 * others have taken theirs. They therefore announce allocations, and if there is not enough for
 * all, a rank waits for those before it. If the result is 0, dpari_heap_took ends the
 * announcement. */
static DPARI_COLD int dpari_heap_is_short(dpari_world *w, int64_t take)
{
    dpari_available now;
    int64_t before = 1;
    for (int32_t i = 0; i < DPARI_TAKING && before > 0; i++) {
        before = DPARI_ADD(&w->head->taking, take);
        dpari_os_available(&now);
        if (before + take <= now.bytes) {
            return 0;
        }
        DPARI_ADD(&w->head->taking, -take);
        dpari_os_sleep(before > 0 ? 1e-3 : 0.0);
    }
    return 1;
}

/* Ends the announcement of dpari_heap_is_short. */
static void dpari_heap_took(dpari_world *w, int64_t take)
{
    if (take >= DPARI_ASK_FROM) {
        DPARI_ADD(&w->head->taking, -take);
    }
}

/* Unmaps an extent if it is empty, so that its addresses are free again; it keeps its range of the
 * file. The first extent stays mapped because it is seldom empty. Heaps of ranks that are threads
 * stay mapped because other threads may still read them. */
static void dpari_extent_rest(dpari_world *w, int32_t number)
{
    const dpari_own *e = &w->own[number];
    const int32_t i = dpari_heap_find(w, e->begin);
    char **view = &w->view[w->me * DPARI_EXTENTS + number];
    char *at = *view;
    if (number == 1 || w->segment.fd < 0 ||
        (i < w->used_count && w->used[i].begin < e->begin + e->bytes)) {
        return;
    }
    DPARI_STORE(view, (char *)NULL);
    dpari_os_unmap(at, e->bytes);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_heap_alloc(dpari_world *w, int64_t bytes, int users,
                                                       void **memory)
{
    int32_t place = 0, number = 0;
    int64_t at = -1, take = bytes < 1 ? 1 : bytes;
    dpari_own *e;
    char *address;
    w->number = ENOMEM;
    w->lacks = DPARI_LACKS_HEAP;
    if (take > w->head->part_bytes) {
        return DPAR_E_MEMORY;
    }
    take = dpari_in_units(take, dpari_os_page());
    if (users && take > w->head->heap_bytes - w->users) {
        return DPAR_E_MEMORY;
    }
    w->lacks = DPARI_LACKS_PIECES;
    if (w->used_count == DPARI_MAX_USED) {
        return DPAR_E_MEMORY;
    }
    w->lacks = DPARI_LACKS_MEMORY;
    if (take >= DPARI_ASK_FROM && dpari_heap_is_short(w, take)) {
        return DPAR_E_MEMORY;
    }
    at = dpari_heap_place(w, take, &place, &number);
    if (at >= 0) {
        w->number = w->segment.fd >= 0 ? dpari_os_reserve(w->segment.fd, at, take) : 0;
    }
    dpari_heap_took(w, take);
    if (at < 0) {
        return DPAR_E_MEMORY;
    }
    if (w->number != 0) {
        w->lacks = DPARI_LACKS_FILE;
        dpari_extent_rest(w, number);
        return DPAR_E_MEMORY;
    }
    e = &w->own[number];
    address = dpari_own_view(w, number) + (at - e->begin);
    w->lacks = DPARI_LACKS_NOTHING;
    if (w->segment.fd >= 0) {
        dpari_os_large_pages(address, take);
        if (users && w->used_count < DPARI_DUMPED) {
            dpari_os_dump(address, take, 1);
        }
    }
    if (at < e->fresh) {
        memset(address, 0, (size_t)dpari_least(e->fresh - at, take));
    }
    e->fresh = dpari_most(e->fresh, at + take);
    w->fresh = dpari_most(w->fresh, at + take);
    memmove(&w->used[place + 1], &w->used[place],
            (size_t)(w->used_count - place) * sizeof w->used[0]);
    w->used[place].begin = at;
    w->used[place].bytes = take;
    w->used[place].users = users ? take : 0;
    w->users += w->used[place].users;
    w->used_count++;
    *memory = address;
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD void dpari_put_lack(dpar_text *t, const dpari_world *w)
{
    const int32_t lacks = w ? w->lacks : DPARI_LACKS_NOTHING;
    dpari_available now;
    struct rlimit file;
    switch (lacks) {
    case DPARI_LACKS_HEAP:
        dpar_text_put(t, "dpar_world_desc.heap_bytes is the limit");
        if (getrlimit(RLIMIT_FSIZE, &file) == 0 && file.rlim_cur != RLIM_INFINITY) {
            dpar_text_put(t, ", reduced to what ulimit -f allows");
        }
        return;
    case DPARI_LACKS_PLACE: dpar_text_put(t, "no gap in the heap is large enough"); return;
    case DPARI_LACKS_PIECES: dpar_text_put(t, "too many allocations (65536)"); return;
    case DPARI_LACKS_ADDRESSES: dpari_os_put_addresses(t); return;
    case DPARI_LACKS_FILE: dpari_os_error(t, w->number); return;
    default: break;
    }
    if (lacks == DPARI_LACKS_NOTHING && dpari_os_addresses() < INT64_MAX) {
        dpari_os_put_addresses(t); /* most likely this limit is why private memory was refused */
        return;
    }
    dpari_os_available(&now);
    dpar_text_put(t, "out of memory");
    if (lacks == DPARI_LACKS_MEMORY && now.most > 0) {
        dpari_text_print(t, ": %ld left of %ld of control group %s", now.bytes, now.most,
                         now.group);
    } else if (lacks == DPARI_LACKS_MEMORY && now.bytes < INT64_MAX) {
        dpari_text_print(t, ": %ld are available on this machine", now.bytes);
    }
}

DPARI_API int dpari_heap_holds(const dpari_world *w, int64_t low, int64_t high, int64_t *within)
{
    *within = 0;
    for (int32_t i = 1; i <= w->owns_extents && low < high; i++) {
        const dpari_own *e = &w->own[i];
        const int64_t view = (int64_t)(uintptr_t)dpari_own_view(w, i);
        const dpari_used *u;
        int64_t at;
        int32_t k;
        if (view == 0 || high <= view || low >= view + e->bytes) {
            continue;
        }
        at = low - view + e->begin;
        k = low < view ? 0 : dpari_heap_find(w, at + 1);
        u = k > 0 ? &w->used[k - 1] : NULL;
        if (u == NULL || at >= u->begin + u->bytes) {
            return 0;
        }
        *within = u->bytes;
        return high - view + e->begin <= u->begin + u->bytes;
    }
    return 1;
}

DPARI_INTERNAL void dpari_heap_release(dpari_world *w, void *memory)
{
    uint64_t offset = 0;
    const int32_t number = dpari_own_find(w, (uint64_t)(uintptr_t)memory, &offset);
    const int64_t at = w->own[number].begin + (int64_t)offset;
    const int32_t low = number > 0 ? dpari_heap_find(w, at) : w->used_count;
    if (low == w->used_count || w->used[low].begin != at) {
        return;
    }
    if (w->segment.fd >= 0 && w->used[low].users > 0 &&
        !(w->head->plain & DPAR_WORLD_NO_DONTDUMP)) {
        dpari_os_dump(memory, w->used[low].bytes, 0);
    }
#if defined(__linux__) && defined(MADV_REMOVE)
    if (w->segment.fd >= 0 && w->used[low].bytes >= INT64_C(1) << 20) {
        madvise(memory, (size_t)w->used[low].bytes, MADV_REMOVE);
    }
#endif
    w->users -= w->used[low].users;
    w->used_count--;
    memmove(&w->used[low], &w->used[low + 1], (size_t)(w->used_count - low) * sizeof w->used[0]);
    dpari_extent_rest(w, number);
}

/* ---- joining ----------------------------------------------------------------------------------
 */

static int64_t dpari_view_bytes(const dpari_world *w)
{
    return w->size * (int64_t)DPARI_EXTENTS * (int64_t)sizeof(char *);
}

/* Unmaps all extents that this rank has mapped, its own and those of other ranks. */
static void dpari_world_unmap(dpari_world *w)
{
    for (int32_t i = 0; i < w->size * DPARI_EXTENTS; i++) {
        if (w->view[i]) {
            dpari_os_unmap(w->view[i],
                           w->rank[i / DPARI_EXTENTS].extent[i % DPARI_EXTENTS].bytes);
        }
    }
}

DPARI_INTERNAL DPARI_COLD void dpari_world_close(dpari_world *w)
{
    DPARI_STORE(&w->rank[w->me].state, (uint32_t)DPARI_RANK_LEFT);
    dpari_ring_all(&w->segment);
    if (!w->threads && w->owns != DPARI_OWNS_FILE) {
        dpari_world_unmap(w);
    }
    dpari_os_unmap(w->view, dpari_view_bytes(w));
    dpari_os_unmap(w->used, DPARI_MAX_USED * (int64_t)sizeof(dpari_used));
    dpari_os_unmap(w->probe, dpari_os_page());
    if (w->owns) {
        w->segment.base = w->owns == DPARI_OWNS_FILE ? NULL : w->segment.base;
        dpari_segment_close(&w->segment);
    }
    dpari_os_unmap(w, (int64_t)sizeof *w);
}

DPARI_INTERNAL DPARI_COLD dpari_world *dpari_world_make(const dpari_segment *s, int32_t me,
                                                        int32_t own, const dpar_world_desc *options)
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
    w->timeout_s = 300.0; /* the default, as dpar_world_desc says */
    if (options && options->timeout_s < 0.0) {
        w->timeout_s = 0.0;
    } else if (options && options->timeout_s > 0.0) {
        w->timeout_s = options->timeout_s;
    }
    w->used = (dpari_used *)dpari_os_pages(DPARI_MAX_USED * (int64_t)sizeof(dpari_used));
    w->view = (char **)dpari_os_pages(dpari_view_bytes(w));
    w->fresh = dpari_part_begin(w);
    w->clock = DPARI_LOAD(&h->clock);
    w->clock_at = dpari_os_now();
    w->probe = dpari_os_own_page();
    if (!w->used || !w->view || !w->probe) {
        dpari_os_unmap(w->used, DPARI_MAX_USED * (int64_t)sizeof(dpari_used));
        dpari_os_unmap(w->view, dpari_view_bytes(w));
        dpari_os_unmap(w->probe, dpari_os_page());
        dpari_os_unmap(w, (int64_t)sizeof *w);
        return NULL;
    }
    return w;
}

/* Writes the message that names the ranks that have not arrived. Returns DPAR_E_PEER if one of them
 * has ended, otherwise DPAR_E_TIMEOUT. */
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
                             state == DPARI_RANK_AWAY ? " has not arrived" : " has ended");
        }
    }
    dpari_text_print(&t, " (%d of %d ranks) after %.1f s", named, w->size, waited);
    return status;
}

/* Waits until every rank has published its `member`. */
static dpar_status dpari_join_all(dpari_world *w, dpar_why *why)
{
    dpari_wait t;
    memset(&t, 0, sizeof t);
    for (int32_t i = 0; i < w->size; i++) {
        /* a rank that arrived and has left again has set `member`, so it counts */
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

/* ---- reading the memory of other ranks --------------------------------------------------------
 *
 * process_vm_readv takes a pid. Whether it is permitted depends on both processes: on their users
 * and namespaces, on seccomp, on Yama, and on whether they can be dumped. dpar checks none of these
 * but tries the call. Each rank keeps a word in its private memory that no other process has. A
 * rank that reads from it reads this word in the same call, which proves that the pid is that of
 * the right process. When a rank enters, it tries to read from all others and publishes from which
 * it could, so that the ranks can agree on a method that works for all of them. */

/* Computes the word of a rank, a hash of the world's nonce and the rank (splitmix64). */
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

DPARI_INTERNAL int dpari_world_reads(const dpari_world *w, int32_t reader, int32_t rank)
{
    const dpari_rank *r = &w->rank[reader];
    const int32_t count = DPARI_LOAD(&r->reads);
    if (count == 0 || count == w->size) {
        return count != 0;
    }
    return (int)(__atomic_load_n(&r->can_read[rank / 64], __ATOMIC_RELAXED) >> rank % 64 & 1U);
}

DPARI_INTERNAL int dpari_world_read(dpari_world *w, int32_t rank, void *to, uint64_t from,
                                    int64_t bytes)
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

/* Tries to read from each other rank and publishes from which ranks that works. */
static DPARI_COLD void dpari_world_prove(dpari_world *w)
{
    dpari_rank *r = &w->rank[w->me];
    int32_t count = 1;
    if (w->threads || w->size == 1 || (w->head->plain & DPAR_WORLD_NO_CMA)) {
        return;
    }
    memset(r->can_read, 0, sizeof r->can_read);
    r->can_read[w->me / 64] = UINT64_C(1) << w->me % 64;
    for (int32_t i = 1; i < w->size; i++) { /* each starts at its next rank, to spread the reads */
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

/* Returns why this rank cannot read another one's memory, as far as that is known. */
static DPARI_COLD const char *dpari_unread_why(const dpari_world *w, int32_t rank)
{
    const dpari_rank *mine = &w->rank[w->me], *theirs = &w->rank[rank];
    if (dpari_world_fetch(w, rank, NULL, 0, 0) == 0) {
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

DPARI_INTERNAL DPARI_COLD void dpari_put_unread(dpar_text *t, dpari_world *w)
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

/* True if the control group of this rank may use fewer processors than it has ranks. */
static int dpari_world_quota_is_short(const dpari_world *w)
{
    const dpari_rank *r = &w->rank[w->me];
    int32_t together = 0;
    if (r->quota >= w->size) {
        return 0;
    }
    for (int32_t i = 0; i < w->size; i++) {
        together += w->rank[i].group == r->group;
    }
    return r->quota < together;
}

/* Finds out what can be known only once all ranks have arrived: whether there are cores for all of
 * them, and which ranks' memory this rank can read. */
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
    w->thrifty = dpari_world_quota_is_short(w);
    dpari_world_prove(w);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_world_enter(dpari_world *w, uint64_t member,
                                                        dpar_why *why)
{
    dpari_rank *r = &w->rank[w->me];
    dpari_available available;
    dpar_status status;
    if (w->segment.fd >= 0 && dpari_os_hold(w->segment.fd, w->me) != 0) {
        return dpari_os_why(why, "start: taking the lock of this rank", 0, errno);
    }
    r->pid = (int32_t)getpid();
    r->pids = dpari_os_pids();
    w->cpu = dpari_os_cpu();
    DPARI_STORE(&r->cpu, w->cpu); /* ranks that arrived before look at it */
    *w->probe = dpari_world_word(w, w->me);
    r->probe = (uint64_t)(uintptr_t)w->probe;
    dpari_os_available(&available);
    r->quota = available.cpus;
    r->group = available.who;
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

/* Copies a record that another rank may be writing or reading at the same time. The copy is made
 * word by word with atomic accesses, so that no word is half old and half new. */
DPARI_INTERNAL void dpari_flight_copy(uint64_t *to, const uint64_t *from)
{
    for (uint32_t i = 0; i < sizeof(dpari_flight) / sizeof(uint64_t); i++) {
        uint64_t v = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
        __atomic_store_n(&to[i], v, __ATOMIC_RELAXED);
    }
}

DPARI_INTERNAL int64_t dpari_flight_begin(dpari_world *w, uint32_t comm, int64_t sequence,
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
    now.f.varies = call->variable_counts;
    now.f.padding[0] = 0;
    now.f.padding[1] = 0;
    dpari_flight_copy((uint64_t *)(void *)slot, now.word);
    DPARI_STORE(&r->flights, number + 1);
    return (int64_t)number;
}

DPARI_INTERNAL void dpari_flight_end(dpari_world *w, int64_t number, int32_t state)
{
    dpari_rank *r = &w->rank[w->me];
    if (r->flights - (uint64_t)number <= DPARI_FLIGHTS) {
        __atomic_store_n(&r->flight[(uint64_t)number % DPARI_FLIGHTS].state, state,
                         __ATOMIC_RELAXED);
    }
}

DPARI_INTERNAL int dpari_flight_find(const dpari_world *w, int32_t rank, uint32_t comm,
                                     int64_t sequence, dpari_flight *out)
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
            (now.f.comm == comm && now.f.sequence == sequence &&
             now.f.kind < DPAR_CALL_COLLECTIVE_COUNT)) {
            *out = now.f;
            return 1;
        }
    }
    return 0;
}

DPARI_INTERNAL DPARI_COLD void dpari_flight_text(dpar_text *t, const dpari_flight *f)
{
    const int own = f->root == DPARI_CLOSE || f->root == DPARI_SPLIT;
    const char *name = dpar_call_name(f->kind);
    if (dpari_planning_text(t, f->kind, f->sequence, f->tag)) {
        return;
    }
    if (own) {
        name = f->root == DPARI_CLOSE ? "close" : "split";
    }
    dpari_text_print(t, "%s #%ld", name, f->sequence);
    if (f->kind == DPAR_CALL_BARRIER || own) {
        return;
    }
    dpar_text_put(t, " (");
    if (f->varies) {
        dpar_text_put(t, "pieces of ");
    } else {
        dpari_text_print(t, "%ld ", f->count);
    }
    dpar_text_put(t, dpar_type_name(dpari_kern_stored(f->type)));
    if (f->type >= DPAR_TYPE_COUNT) {
        dpari_text_print(t, " as %s", dpar_type_name(dpari_kern_wire(f->type)));
    }
    if (f->op != DPAR_COPY) {
        dpari_text_print(t, ", %s", dpari_op_name(f->op));
    }
    if (f->kind >= DPAR_CALL_COLLECTIVE_COUNT) {
        dpari_text_print(t, "%s%d, tag %d",
                         f->kind == DPAR_CALL_SEND ? ", to rank " : ", from rank ", f->root,
                         f->tag);
    } else if (f->kind == DPAR_CALL_BROADCAST || f->kind == DPAR_CALL_REDUCE ||
               f->kind == DPAR_CALL_GATHER || f->kind == DPAR_CALL_SCATTER) {
        dpari_text_print(t, ", root %d", f->root);
    }
    if (f->kind < DPAR_CALL_COLLECTIVE_COUNT && f->tag != 0) {
        dpari_text_print(t, ", tag %d", f->tag);
    }
    dpari_text_char(t, ')');
}

static void dpari_put_flight(dpar_text *t, const dpari_flight *f)
{
    const char *state = " (in ";
    if (f->state == DPARI_FLIGHT_DONE) {
        state = " (last done: ";
    } else if (f->state == DPARI_FLIGHT_FAILED) {
        state = " (failed: ";
    }
    dpar_text_put(t, state);
    dpari_flight_text(t, f);
    if (f->comm != 0) {
        dpari_text_print(t, " of group %ld", (int64_t)f->comm);
    }
    dpari_text_char(t, ')');
}

DPARI_INTERNAL DPARI_COLD void dpari_put_last(dpar_text *t, const dpari_world *w, int32_t rank)
{
    dpari_flight f;
    if (dpari_flight_find(w, rank, 0, DPARI_FLIGHT_LAST, &f)) {
        dpari_put_flight(t, &f);
    } else {
        dpar_text_put(t, " (it has begun no operation yet)");
    }
}

DPARI_API DPARI_COLD void dpari_put_failed(dpar_text *t, const dpari_world *w, int32_t rank)
{
    dpari_flight f;
    if (dpari_flight_find(w, rank, 0, DPARI_FLIGHT_LAST_FAILED, &f)) {
        dpari_put_flight(t, &f);
    }
}
