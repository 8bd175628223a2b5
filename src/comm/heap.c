/* SPDX-License-Identifier: MIT-0 */
/* Implements the heaps: each rank allocates from its own extents, without locks, and maps those of
 * other ranks when it needs an address in them. world.h has the memory layout.
 *
 * Memory that users release is kept, up to world->kept_most bytes. It stays mapped and allocated
 * from the system, so that the next allocation only has to clear it. Clearing takes about 0.05 ms
 * per MB, and taking memory from the system 1 ms per MB. Kept pieces have elements in world->used,
 * because new memory must not be placed there. If an allocation fails, or a released piece would
 * exceed the limit, all kept memory is returned to the system. */
#include "heap.h"

#include "../base/base_private.h"
#include "limits.h"

/* ---- extents --------------------------------------------------------------------------------- */

DPARI_INTERNAL int64_t dpari_part_begin(const dpari_world *world)
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
        dpari_limits_find(&now);
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

/* ---- memory that is kept --------------------------------------------------------------------- */

/* Makes room for an element at `index` of world->used, and zeroes it. */
static DPARI_COLD dpari_used *dpari_used_insert(dpari_world *world, int32_t index)
{
    dpari_used *u = &world->used[index];
    memmove(u + 1, u, (size_t)(world->used_count - index) * sizeof *u);
    world->used_count++;
    memset(u, 0, sizeof *u);
    return u;
}

static DPARI_COLD void dpari_used_remove(dpari_world *world, int32_t index)
{
    dpari_used *u = &world->used[index];
    world->used_count--;
    memmove(u, u + 1, (size_t)(world->used_count - index) * sizeof *u);
}

/* Returns the extent that holds the offset `at`. */
static DPARI_COLD int32_t dpari_extent_of(const dpari_world *world, int64_t at)
{
    int32_t i = 1;
    while (at >= world->own[i].begin + world->own[i].bytes) {
        i++;
    }
    return i;
}

/* Returns the memory of a range to the system, unless it is smaller than 1 MiB. */
static DPARI_COLD void dpari_heap_drop(const dpari_world *world, int64_t at, int64_t bytes)
{
#if defined(__linux__) && defined(MADV_REMOVE)
    if (world->segment.fd >= 0 && bytes >= INT64_C(1) << 20) {
        const int32_t number = dpari_extent_of(world, at);
        char *address = dpari_own_view(world, number) + (at - world->own[number].begin);
        madvise(address, (size_t)bytes, MADV_REMOVE);
    }
#else
    (void)world;
    (void)at;
    (void)bytes;
#endif
}

/* Returns all kept memory to the system. */
static DPARI_COLD void dpari_kept_drop(dpari_world *world)
{
    int32_t n = 0;
    for (int32_t i = 0; i < world->used_count; i++) {
        if (world->used[i].kept) {
            dpari_heap_drop(world, world->used[i].begin, world->used[i].bytes);
        } else {
            world->used[n++] = world->used[i];
        }
    }
    world->used_count = n;
    world->kept = 0;
    for (int32_t i = 1; i <= world->owns_extents; i++) {
        dpari_extent_rest(world, i);
    }
}

/* Finds the smallest kept piece that has `take` bytes at a multiple of `unit`. Returns where they
 * begin, as close to the end of the piece as possible, and sets *index to its element. Returns -1
 * if there is no such piece. */
static DPARI_COLD int64_t dpari_kept_find(const dpari_world *world, int64_t take, int64_t unit,
                                          int32_t *index)
{
    int64_t least = INT64_MAX, found = -1;
    for (int32_t i = 0; i < world->used_count; i++) {
        const dpari_used *u = &world->used[i];
        if (u->kept && u->bytes >= take && u->bytes < least) {
            const int64_t at = (u->begin + u->bytes - take) / unit * unit;
            if (at >= dpari_most(u->begin, world->floor)) {
                least = u->bytes;
                found = at;
                *index = i;
            }
        }
    }
    return found;
}

/* Takes [at, at + take) out of a kept piece and returns its element. The parts of the piece before
 * and after it stay kept. */
static DPARI_COLD dpari_used *dpari_kept_take(dpari_world *world, int32_t index, int64_t at,
                                              int64_t take)
{
    const dpari_used piece = world->used[index];
    const int64_t after = piece.begin + piece.bytes - (at + take);
    dpari_used *u = &world->used[index];
    world->kept -= take;
    if (after > 0) {
        *dpari_used_insert(world, index + 1) = piece;
        u[1].begin = at + take;
        u[1].bytes = after;
    }
    if (at > piece.begin) {
        u->bytes = at - piece.begin;
        u = dpari_used_insert(world, index + 1);
    }
    *u = piece;
    u->begin = at;
    u->bytes = take;
    u->kept = 0;
    return u;
}

/* Keeps an allocation, and joins it to kept pieces directly before and after it. Pieces with large
 * pages are not joined to others, because large pages would have to be requested again for all. */
static DPARI_COLD void dpari_kept_add(dpari_world *world, int32_t index, const dpari_own *e)
{
    dpari_used *u = &world->used[index];
    u->kept = 1;
    u->users = 0;
    world->kept += u->bytes;
    /* the first round joins the piece that follows, the second the piece that precedes */
    for (int32_t i = index; i >= index - 1 && i >= 0; i--) {
        u = &world->used[i];
        if (i + 1 < world->used_count && u[0].kept && u[1].kept && u[0].large == u[1].large &&
            u->begin + u->bytes == u[1].begin && u->begin >= e->begin &&
            u[1].begin < e->begin + e->bytes) {
            u->bytes += u[1].bytes;
            dpari_used_remove(world, i + 1);
        }
    }
}

/* True if an allocation is kept when it is released. If the process has a limit on addresses, no
 * part of an extent larger than DPARI_KEPT_MOST is kept, so that the extent is unmapped once it is
 * empty. */
static DPARI_COLD int dpari_is_kept(const dpari_world *world, const dpari_used *u,
                                    const dpari_own *e)
{
    return world->segment.fd >= 0 && u->users > 0 && u->bytes <= world->kept_most &&
           (e->bytes <= DPARI_KEPT_MOST || dpari_os_limit(RLIMIT_AS) == INT64_MAX);
}

/* ---- allocations ----------------------------------------------------------------------------- */

/* Takes memory for an allocation from the system. Returns its element, or NULL; see world->lacks.
 */
static DPARI_COLD dpari_used *dpari_heap_new(dpari_world *world, int64_t take)
{
    int32_t place = 0, number = 0;
    int64_t at;
    dpari_used *u;
    world->lacks = DPARI_LACKS_MEMORY;
    if (take >= DPARI_ASK_FROM && dpari_heap_is_short(world, take)) {
        return NULL;
    }
    at = dpari_heap_place(world, take, &place, &number);
    if (at >= 0) {
        world->number = world->segment.fd >= 0 ? dpari_os_reserve(world->segment.fd, at, take) : 0;
    }
    dpari_heap_took(world, take);
    if (at < 0) {
        return NULL;
    }
    if (world->number != 0) {
        world->lacks = DPARI_LACKS_FILE;
        dpari_extent_rest(world, number);
        return NULL;
    }
    u = dpari_used_insert(world, place);
    u->begin = at;
    u->bytes = take;
    return u;
}

/* Allocates `take` bytes, which are whole pages. Returns the element, or NULL; see world->lacks. */
static DPARI_COLD dpari_used *dpari_heap_find_or_new(dpari_world *world, int64_t take, int purpose)
{
    const int64_t unit = take >= DPARI_OS_LARGE ? (int64_t)DPARI_OS_LARGE : dpari_os_page();
    const int64_t rest = world->head->heap_bytes - world->users;
    int32_t index = 0;
    int64_t at;
    if (purpose != DPARI_HEAP_LIBRARY && take > rest) {
        world->lacks = DPARI_LACKS_HEAP;
        return NULL;
    }
    if (world->used_count >= DPARI_MAX_USED) {
        world->lacks = DPARI_LACKS_PIECES;
        return NULL;
    }
    if (purpose != DPARI_HEAP_LIBRARY && world->kept > 0) {
        at = dpari_kept_find(world, take, unit, &index);
        if (at >= 0) {
            return dpari_kept_take(world, index, at, take);
        }
        if (take > rest - world->kept) {
            return NULL; /* the caller tries again without kept memory */
        }
    }
    return dpari_heap_new(world, take);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_heap_alloc(dpari_world *world, int64_t bytes,
                                                       int purpose, void **memory)
{
    int64_t take = bytes < 1 ? 1 : bytes;
    dpari_used *u;
    dpari_own *e;
    char *address;
    world->number = ENOMEM;
    world->lacks = DPARI_LACKS_HEAP;
    if (take > world->head->part_bytes) {
        return DPAR_E_MEMORY;
    }
    take = dpari_in_units(take, dpari_os_page());
    u = dpari_heap_find_or_new(world, take, purpose);
    if (!u && world->kept > 0) {
        dpari_kept_drop(world);
        u = dpari_heap_find_or_new(world, take, purpose);
    }
    if (!u) {
        return DPAR_E_MEMORY;
    }
    e = &world->own[dpari_extent_of(world, u->begin)];
    address = dpari_own_view(world, (int32_t)(e - world->own)) + (u->begin - e->begin);
    world->lacks = DPARI_LACKS_NOTHING;
    if (world->segment.fd >= 0) {
        if (!u->large) {
            dpari_os_large_pages(address, take);
            u->large = take >= DPARI_OS_LARGE;
        }
        u->dumped = purpose == DPARI_HEAP_USER && world->used_count <= DPARI_DUMPED;
        if (u->dumped) {
            dpari_os_dump(address, take, 1);
        }
    }
    if (u->begin < e->fresh && purpose != DPARI_HEAP_SCRATCH) {
        memset(address, 0, (size_t)dpari_least(e->fresh - u->begin, take));
    }
    e->fresh = dpari_most(e->fresh, u->begin + take);
    world->fresh = dpari_most(world->fresh, u->begin + take);
    u->users = purpose != DPARI_HEAP_LIBRARY ? take : 0;
    world->users += u->users;
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
    dpari_limits_find(&now);
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
        if (u == NULL || u->kept || at >= u->begin + u->bytes) {
            return 0;
        }
        *within = u->bytes;
        return high - view + e->begin <= u->begin + u->bytes;
    }
    return 1;
}

DPARI_INTERNAL DPARI_COLD void dpari_heap_release(dpari_world *world, void *memory)
{
    uint64_t offset = 0;
    const int32_t number = dpari_own_find(world, (uint64_t)(uintptr_t)memory, &offset);
    const dpari_own *e = &world->own[number];
    const int64_t at = e->begin + (int64_t)offset;
    int32_t low = number > 0 ? dpari_heap_find(world, at) : world->used_count;
    dpari_used *u = &world->used[low];
    if (low == world->used_count || u->begin != at || u->kept) {
        return;
    }
    if (u->dumped && !(world->head->plain & DPAR_WORLD_NO_DONTDUMP)) {
        dpari_os_dump(memory, u->bytes, 0);
    }
    world->users -= u->users;
    if (dpari_is_kept(world, u, e)) {
        if (world->kept + u->bytes > world->kept_most) {
            dpari_kept_drop(world);
            low = dpari_heap_find(world, at);
        }
        dpari_kept_add(world, low, e);
        return;
    }
    dpari_heap_drop(world, at, u->bytes);
    dpari_used_remove(world, low);
    dpari_extent_rest(world, number);
}
