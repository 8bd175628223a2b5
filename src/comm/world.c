/* SPDX-License-Identifier: MIT-0 */
/* Implements the world: the segment that ranks share, how they join it, and signs of life. world.h
 * has the memory layout.
 *
 * Segment: a memfd or an unlinked file that each rank maps. Life: each rank holds a lock on the
 * file. When the rank dies, the system releases the lock, and the others notice. Called by all
 * other modules of the shared-memory engine. */
#include "world.h"

#include "../base/base_private.h"
#include "heap.h"
#include "limits.h"
#include "wait.h"

#define DPARI_MAGIC UINT64_C(0x31646c726f775064) /* "dPworld1" */
enum { DPARI_VERSION = 3 };                      /* of the layout of the segment */

/* The first value of the shared clock, in ms. It is large, so that a beat of 0, of a rank that has
 * not reported a wait yet, counts as older than any quiet time that a deadline allows. */
enum { DPARI_CLOCK_FIRST = 1 << 20 };

/* ---- segments -------------------------------------------------------------------------------- */

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

#define DPARI_USED_BYTES ((DPARI_MAX_USED + 2) * (int64_t)sizeof(dpari_used))

/* Frees the private memory of a world. */
static void dpari_world_free(dpari_world *world)
{
    dpari_os_unmap(world->used, DPARI_USED_BYTES);
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
    world->used = (dpari_used *)dpari_os_pages(DPARI_USED_BYTES);
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

/* Returns the most bytes of released memory that this rank may keep. Where the file is in /dev/shm,
 * that may be much smaller than the memory. */
static int64_t dpari_world_keeps(const dpari_world *world, int64_t available)
{
    struct statvfs place;
    if (world->segment.fd >= 0 && fstatvfs(world->segment.fd, &place) == 0 && place.f_blocks > 0) {
        available = dpari_least(available, (int64_t)place.f_bavail * (int64_t)place.f_frsize);
    }
    return dpari_least(DPARI_KEPT_MOST, available / DPARI_KEPT_SHARE / world->size);
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
    dpari_limits_find(&available);
    world->kept_most = dpari_world_keeps(world, available.bytes);
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
