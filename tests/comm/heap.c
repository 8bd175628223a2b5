/* SPDX-License-Identifier: MIT-0 */
/* heap: tests the memory of dpar_comm_alloc when it is used again after a release. The bytes of
 * every block have a value of its own, so that two blocks in the same place are noticed. Which
 * allocations must succeed follows from heap_bytes and the sizes of the live blocks. What is given
 * back is read from the system: the blocks of the shared file, page faults, and VmSize. */
#include "dpar_comm.h"

#include "check.h"
#include "random.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (INT64_C(1) << 20)

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#if !defined(SANITIZED)
#define SANITIZED 0
#endif

static dpar_why why;

/* Checks the order of the heap's elements, and the sums that it keeps of them. */
static void sound(const dpari_world *world)
{
    int64_t kept = 0, users = 0, end = 0;
    int32_t i, wrong = 0;
    for (i = 0; i < world->used_count; i++) {
        const dpari_used *u = &world->used[i];
        wrong += u->begin < end || u->bytes <= 0 || u->bytes % sysconf(_SC_PAGESIZE) != 0;
        wrong += u->kept && (u->users != 0 || u->begin + u->bytes > world->fresh);
        kept += u->kept ? u->bytes : 0;
        users += u->users;
        end = u->begin + u->bytes;
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(world->kept, kept);
    CHECK_INT(world->users, users);
    CHECK(kept <= world->kept_most && kept + users <= world->head->heap_bytes);
}

/* ---- random blocks ---- */

enum { BLOCKS = 24, STEPS = 300 };

typedef struct block {
    unsigned char *at;
    int64_t bytes;
    int mark; /* the value of all of its bytes */
} block;

/* Counts bytes that differ from `mark`: all of them near the ends, others every 509 bytes. */
static int64_t differ(const unsigned char *at, int64_t bytes, int mark)
{
    int64_t i, wrong = 0;
    for (i = 0; i < bytes; i += i < 64 || i >= bytes - 600 ? 1 : 509) {
        wrong += at[i] != mark;
    }
    return wrong;
}

static int64_t in_pages(int64_t bytes)
{
    const int64_t page = sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* Returns a random size. Most are small, some are several MiB. */
static int64_t some_bytes(void)
{
    const int most[] = {1, 100, 5000, 70000, 1 << 20, 3 << 20, 9 << 20};
    return random_int(1, most[below(7)]);
}

/* Fills or empties a block. Returns the bytes, in whole pages, that are live more than before. */
static int64_t change(dpar_comm *c, block *one, int64_t rest, int mark)
{
    const int64_t had = in_pages(one->bytes), bytes = some_bytes();
    const int scratch = below(4) == 0;
    void *at = NULL;
    dpar_status st;
    if (one->at != NULL) {
        CHECK_INT(differ(one->at, one->bytes, one->mark), 0);
        dpar_comm_release(c, one->at);
        one->at = NULL;
        return -had;
    }
    st = scratch ? dpari_shm_scratch(c, bytes, &at) : dpar_comm_alloc(c, bytes, &at);
    CHECK_INT(st, in_pages(bytes) <= rest ? DPAR_OK : DPAR_E_MEMORY);
    if (st != DPAR_OK) {
        CHECK(strstr(c->why.text, "dpar_world_desc.heap_bytes is the limit") != NULL);
        return 0;
    }
    one->at = (unsigned char *)at;
    one->bytes = bytes;
    one->mark = mark;
    if (!scratch) {
        CHECK_INT(differ(one->at, in_pages(bytes), 0), 0);
    }
    memset(one->at, mark, (size_t)bytes);
    return in_pages(bytes);
}

/* All ranks read a block of rank `root`. */
static void others_read(dpar_comm *c, const block *one, int32_t root)
{
    int64_t about[2];
    unsigned char *own;
    about[0] = one->at != NULL ? one->bytes : 0;
    about[1] = one->mark;
    CHECK_INT(dpar_broadcast(c, about, 2, DPAR_I64, root, NULL), DPAR_OK);
    own = (unsigned char *)malloc((size_t)about[0] + 1);
    CHECK(own != NULL);
    CHECK_INT(dpar_broadcast(c, c->rank == root && about[0] > 0 ? one->at : own, about[0], DPAR_U8,
                             root, NULL),
              DPAR_OK);
    if (c->rank != root) {
        CHECK_INT(differ(own, about[0], (int)about[1]), 0);
    }
    free(own);
}

static int random_blocks(dpar_comm *c, void *arg)
{
    const dpari_world *world = dpari_world_of(c);
    const int64_t heap = *(const int64_t *)arg;
    block b[BLOCKS];
    int64_t live = 0;
    int step, k;
    memset(b, 0, sizeof b);
    random_seed = 77u + (uint32_t)c->rank;
    for (step = 0; step < STEPS; step++) {
        k = below(BLOCKS);
        live += change(c, &b[k], heap - live, 1 + step % 200);
        sound(world);
        if (step % 20 == 0) {
            others_read(c, &b[k], step / 20 % c->size);
        }
    }
    for (k = 0; k < BLOCKS; k++) {
        if (b[k].at != NULL) {
            live += change(c, &b[k], 0, 0);
        }
    }
    CHECK_INT(live, 0);
    CHECK_INT(world->users, 0);
    sound(world);
    return checks_failed != 0;
}

static void test_random(void)
{
    const int64_t heaps[] = {200 * MIB, 24 * MIB}; /* only the second is too small at times */
    dpar_world_desc o;
    int k;
    memset(&o, 0, sizeof o);
    for (k = 0; k < 2; k++) {
        int64_t heap = heaps[k];
        o.heap_bytes = heap;
        CHECK_INT(dpar_launch(3, random_blocks, &heap, &o, &why), DPAR_OK);
        CHECK_INT(dpar_launch(1, random_blocks, &heap, &o, &why), DPAR_OK);
    }
}

/* ---- what is kept, and what is given back ---- */

/* Returns the bytes that the system has allocated for the shared file, of all ranks. */
static int64_t file_bytes(const dpari_world *world)
{
    struct stat about;
    CHECK_INT(fstat(world->segment.fd, &about), 0);
    return (int64_t)about.st_blocks * 512;
}

static int64_t faults(void)
{
    struct rusage usage;
    CHECK_INT(getrusage(RUSAGE_SELF, &usage), 0);
    return (int64_t)usage.ru_minflt;
}

/* Allocates, uses and releases blocks of one size several times. */
static void again(dpar_comm *c, int64_t bytes)
{
    const dpari_world *world = dpari_world_of(c);
    int64_t began = 0;
    int k;
    for (k = 0; k < 12; k++) {
        void *at = NULL;
        began = k == 2 ? faults() : began;
        CHECK_INT(dpar_comm_alloc(c, bytes, &at), DPAR_OK);
        memset(at, 1, (size_t)bytes);
        dpar_comm_release(c, at);
    }
    if (!SANITIZED) {
        CHECK(faults() - began < 16);
    }
    CHECK(world->kept >= bytes);
}

static int keeps(dpar_comm *c, void *arg)
{
    const dpari_world *world = dpari_world_of(c);
    int64_t most = world->kept_most, before, bytes;
    void *at[8], *all = NULL;
    int k;
    (void)arg;
    if (most < 64 * MIB) {
        puts("kept memory: this machine has too little memory, skipped");
        return 0;
    }
    CHECK_INT(most, 64 * MIB);
    for (bytes = 4096; bytes <= 16 * MIB; bytes *= 4) {
        again(c, bytes);
    }
    /* 8 blocks of 15 MiB are more than is kept: some are given back, and what is kept is within the
     * bound */
    for (k = 0; k < 8; k++) {
        CHECK_INT(dpar_comm_alloc(c, 15 * MIB, &at[k]), DPAR_OK);
    }
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    before = file_bytes(world);
    CHECK(before >= 2 * 8 * 15 * MIB);
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    for (k = 0; k < 8; k++) {
        dpar_comm_release(c, at[k]);
        sound(world);
    }
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    CHECK(file_bytes(world) <= before - 2 * (8 * 15 - 64) * MIB);
    CHECK(world->kept > 0);
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    /* larger blocks are not kept */
    CHECK_INT(dpar_comm_alloc(c, 65 * MIB, &all), DPAR_OK);
    before = world->kept;
    dpar_comm_release(c, all);
    CHECK_INT(world->kept, before);
    /* a released block is not one that holds addresses, and releasing it again does nothing */
    CHECK_INT(dpar_comm_alloc(c, 15 * MIB, &all), DPAR_OK);
    dpar_comm_release(c, all);
    before = world->kept;
    CHECK_INT(dpari_heap_holds(world, (int64_t)(intptr_t)all, (int64_t)(intptr_t)all + 8, &bytes),
              0);
    CHECK_INT(bytes, 0);
    dpar_comm_release(c, all);
    CHECK_INT(world->kept, before);
    return checks_failed != 0;
}

/* True if the last message counts `more` allocations more than there were at first. */
static int counts(const dpar_comm *c, int32_t had, int32_t more)
{
    char text[64];
    (void)snprintf(text, sizeof text, "in %d of at most 65536 allocations", (int)(had + more));
    return strstr(c->why.text, text) != NULL;
}

/* The heap may be used up by one block after it was used up by others. */
static int fills(dpar_comm *c, void *arg)
{
    const dpari_world *world = dpari_world_of(c);
    const int32_t had = world->used_count; /* of the library */
    void *at[9];
    int k;
    (void)arg;
    for (k = 0; k < 8; k++) {
        CHECK_INT(dpar_comm_alloc(c, 4 * MIB, &at[k]), DPAR_OK);
    }
    CHECK_INT(dpar_comm_alloc(c, 1, &at[8]), DPAR_E_MEMORY);
    CHECK(counts(c, had, 8));
    for (k = 0; k < 8; k += 2) {
        dpar_comm_release(c, at[k]);
    }
    CHECK_INT(dpar_comm_alloc(c, 16 * MIB, &at[0]), DPAR_OK); /* no kept block is large enough */
    CHECK_INT(world->kept, 0);
    CHECK_INT(dpar_comm_alloc(c, 1, &at[8]), DPAR_E_MEMORY);
    CHECK(counts(c, had, 5));
    dpar_comm_release(c, at[0]);
    for (k = 1; k < 8; k += 2) {
        dpar_comm_release(c, at[k]);
    }
    CHECK_INT(dpar_comm_alloc(c, 32 * MIB, &at[0]), DPAR_OK);
    dpar_comm_release(c, at[0]);
    sound(world);
    return checks_failed != 0;
}

static void test_kept(void)
{
    dpar_world_desc o;
    CHECK_INT(dpar_launch(2, keeps, NULL, NULL, &why), DPAR_OK);
    memset(&o, 0, sizeof o);
    o.disable = DPAR_WORLD_NO_MEMFD; /* in /dev/shm */
    CHECK_INT(dpar_launch(2, keeps, NULL, &o, &why), DPAR_OK);
    o.disable = 0;
    o.heap_bytes = 32 * MIB;
    CHECK_INT(dpar_launch(2, fills, NULL, &o, &why), DPAR_OK);
    o.threads = 1;
    CHECK_INT(dpar_launch(2, fills, NULL, &o, &why), DPAR_OK);
}

/* ---- a limit on addresses ---- */

static int64_t addresses(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f != NULL) {
        pages = fscanf(f, "%ld", &pages) == 1 ? pages : 0;
        fclose(f);
    }
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

/* Under a limit of 340 MiB more than a rank has, arrays of 100 MiB leave the rest to malloc. They
 * are unmapped when they are released, also after a small block was allocated in the same extent.
 */
static int limited(dpar_comm *c, void *arg)
{
    const int64_t began = *(const int64_t *)arg;
    void *big = NULL, *small = NULL, *own;
    int64_t had = addresses();
    struct rlimit r;
    int k;
    CHECK(had < began + 32 * MIB); /* a communicator takes few addresses */
    CHECK_INT(getrlimit(RLIMIT_AS, &r), 0);
    r.rlim_cur = (rlim_t)(had + 340 * MIB);
    CHECK_INT(setrlimit(RLIMIT_AS, &r), 0);
    if (c->rank == 1) {
        for (k = 0; k < 2; k++) {
            CHECK_INT(dpar_comm_alloc(c, 100 * MIB, &big), DPAR_OK);
            CHECK(addresses() < had + 130 * MIB);
            own = malloc((size_t)(200 * MIB));
            CHECK(own != NULL);
            free(own);
            dpar_comm_release(c, big);
            CHECK_INT(dpar_comm_alloc(c, 9 * MIB, &small), DPAR_OK);
            dpar_comm_release(c, small);
            CHECK(addresses() < had + 32 * MIB);
            own = malloc((size_t)(300 * MIB));
            CHECK(own != NULL);
            free(own);
        }
        /* kept memory never makes an allocation fail */
        CHECK_INT(dpar_comm_alloc(c, 170 * MIB, &big), DPAR_OK);
        CHECK_INT(dpar_comm_alloc(c, 100 * MIB, &small), DPAR_OK);
        CHECK_INT(dpar_comm_alloc(c, 100 * MIB, &own), DPAR_E_MEMORY);
        CHECK(strstr(c->why.text, "out of addresses (ulimit -v is ") != NULL);
        dpar_comm_release(c, big);
        dpar_comm_release(c, small);
    }
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    return checks_failed != 0;
}

static void test_addresses(void)
{
    int64_t began = addresses();
    /* /proc is missing, or a sanitizer maps its shadow memory */
    if (began == 0 || began > INT64_C(1) << 40) {
        puts("addresses: not counted here, skipped");
        return;
    }
    CHECK_INT(dpar_launch(2, limited, &began, NULL, &why), DPAR_OK);
}

int main(void)
{
    test_random();
    test_kept();
    test_addresses();
    return CHECK_DONE();
}
