/* SPDX-License-Identifier: MIT-0 */
/* limits: tests what the shared-memory engine accepts and refuses under limits of memory. The
 * limits are set here (setrlimit, and a directory that imitates /sys/fs/cgroup), and the expected
 * numbers follow from them by hand. Address space is read from the system (VmSize), core files as
 * the system wrote them. */
#include "dpar_comm.h"

#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (INT64_C(1) << 20)

static dpar_why why;

/* ---- control groups ---- */

static char root[64];

static void put(const char *name, const char *text)
{
    char path[2048];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", root, name);
    f = fopen(path, "w");
    CHECK(f != NULL);
    if (f != NULL) {
        fputs(text, f);
        fclose(f);
    }
}

static void folder(const char *name)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", root, name);
    CHECK_INT(mkdir(path, 0700), 0);
}

static void group_is(const char *text, int64_t machine, int64_t bytes, int64_t most,
                     const char *name)
{
    dpari_available a;
    memset(&a, 0, sizeof a);
    a.bytes = machine;
    dpari_limits_groups(&a, text, root);
    CHECK_INT(a.bytes, bytes);
    CHECK_INT(a.most, most);
    CHECK_TEXT(a.group, name);
}

static void limit_is(const char *text, int64_t bytes, int64_t most)
{
    dpari_available a;
    memset(&a, 0, sizeof a);
    a.bytes = INT64_MAX;
    dpari_limits_groups(&a, text, root);
    CHECK_INT(a.bytes, bytes);
    CHECK_INT(a.most, most);
}

static void quota_is(const char *text, int32_t cpus, int32_t hundredths)
{
    dpari_available a;
    memset(&a, 0, sizeof a);
    a.bytes = INT64_MAX;
    a.cpus = a.hundredths = INT32_MAX;
    dpari_limits_groups(&a, text, root);
    CHECK_INT(a.cpus, cpus);
    CHECK_INT(a.hundredths, hundredths);
}

/* Checks the number of processors, whole ones (at least 1) and hundredths: the least quota over its
 * period of the group and all enclosing ones. */
static void test_quotas(void)
{
    char remove_all[128];
    strcpy(root, "/tmp/dpar.limits.XXXXXX");
    CHECK(mkdtemp(root) != NULL);
    folder("a");
    folder("a/b");
    put("a/cpu.max", "350000 100000\n");
    put("a/b/cpu.max", "max 100000\n");
    quota_is("0::/a/b\n", 3, 350);
    quota_is("0::/a\n", 3, 350);
    quota_is("0::/\n", INT32_MAX, INT32_MAX);
    put("a/b/cpu.max", "50000 100000\n");
    quota_is("0::/a/b\n", 1, 50);
    folder("cpu");
    folder("cpu/job");
    put("cpu/cpu.cfs_quota_us", "-1\n");
    put("cpu/cpu.cfs_period_us", "100000\n");
    put("cpu/job/cpu.cfs_quota_us", "225000\n");
    put("cpu/job/cpu.cfs_period_us", "100000\n");
    quota_is("1:cpu:/job\n", 2, 225);
    quota_is("3:cpu,cpuacct:/job\n", 2, 225);
    quota_is("3:cpuset:/job\n2:memory:/job\n", INT32_MAX, INT32_MAX);
    quota_is("1:cpu:/\n", INT32_MAX, INT32_MAX);
    (void)snprintf(remove_all, sizeof remove_all, "rm -rf %s", root);
    CHECK_INT(system(remove_all), 0);
}

static void test_groups(void)
{
    char remove_all[128];
    strcpy(root, "/tmp/dpar.limits.XXXXXX");
    CHECK(mkdtemp(root) != NULL);
    folder("a");
    folder("a/b");
    put("a/memory.max", "1000000\n");
    put("a/memory.current", "900000\n");
    put("a/memory.stat", "anon 800000\ninactive_file 50000\nactive_file 20000\n");
    put("a/b/memory.max", "max\n");
    put("a/b/memory.current", "10\n");
    put("a/b/memory.stat", "anon 10\n");
    /* The limit of an enclosing group counts: 100000 are free and 70000 are page cache. */
    group_is("0::/a/b\n", 1 << 30, 170000, 1000000, "/a");
    group_is("0::/a\n", 1 << 30, 170000, 1000000, "/a");
    group_is("0::/a/b\n", 5000, 5000, 0, ""); /* the machine has less */
    group_is("0::/\n", 1 << 30, 1 << 30, 0, "");
    put("a/b/memory.max", "100\n");
    group_is("0::/a/b\n", 1 << 30, 90, 100, "/a/b");
    /* in a container the path is that of the host, and the root is the group itself */
    put("memory.max", "64\n");
    put("memory.current", "60\n");
    group_is("0::/docker/0123\n", 1 << 30, 4, 64, "/");
    put("memory.current", "70\n"); /* the limit was lowered below the usage */
    group_is("0::/docker/0123\n", 1 << 30, 0, 64, "/");
    { /* a path of 1,000 characters, as in nested containers */
        char path[1024] = "a", line[1100];
        int k;
        for (k = 0; k < 4; k++) {
            (void)snprintf(path + strlen(path), sizeof path - strlen(path), "/%0249d", k);
            folder(path);
        }
        (void)snprintf(line, sizeof line, "%s/memory.max", path);
        put(line, "700\n");
        (void)snprintf(line, sizeof line, "%s/memory.current", path);
        put(line, "697\n");
        put("memory.max", "max\n");
        (void)snprintf(line, sizeof line, "0::/%s\n", path);
        limit_is(line, 3, 700);
    }
    folder("memory");
    folder("memory/c");
    put("memory/c/memory.limit_in_bytes", "5000\n");
    put("memory/c/memory.usage_in_bytes", "4000\n");
    put("memory/c/memory.stat", "cache 1\ninactive_file 1\nactive_file 2\n"
                                "total_inactive_file 300\ntotal_active_file 200\n");
    group_is("9:name=systemd:/\n4:cpu,memory:/c\n3:cpuset:/c", 1 << 30, 1500, 5000, "/memory/c");
    group_is("4:hugememory:/c\n4:memory\nnonsense\n\n", 1 << 30, 1 << 30, 0, "");
    /* no limit, and a usage below the page cache, because the system counts them separately */
    put("memory/c/memory.limit_in_bytes", "9223372036854771712\n");
    put("memory/c/memory.usage_in_bytes", "400\n");
    group_is("4:memory:/c\n", 1 << 30, 1 << 30, 0, "");
    limit_is("4:memory:/c\n", INT64_MAX, 0);
    snprintf(remove_all, sizeof remove_all, "rm -r %s", root);
    CHECK_INT(system(remove_all), 0);
}

/* ---- heap_bytes ---- */

static int one_page(dpar_comm *c, void *arg)
{
    const int64_t page = sysconf(_SC_PAGESIZE);
    void *one = NULL, *more = NULL;
    dpar_comm *part = NULL;
    (void)arg;
    CHECK_INT(dpar_comm_alloc(c, page + 1, &more), DPAR_E_MEMORY);
    CHECK_INT(dpar_comm_alloc(c, page, &one), DPAR_OK);
    CHECK_INT(dpar_comm_alloc(c, 1, &more), DPAR_E_MEMORY);
    CHECK(strstr(c->why.text, "no shared memory for 1 more bytes: this rank has ") != NULL);
    CHECK(strstr(c->why.text, "dpar_world_desc.heap_bytes is the limit") != NULL);
    CHECK(strstr(c->why.text, page == 4096 ? "4096 of at most 4096 in use" : "") != NULL);
    /* memory of the library itself does not count */
    CHECK_INT(dpar_comm_split(c, 0, 0, &part), DPAR_OK);
    CHECK_INT(dpar_comm_free(part), DPAR_OK);
    dpar_comm_release(c, one);
    CHECK_INT(dpar_comm_alloc(c, 1, &more), DPAR_OK);
    dpar_comm_release(c, more);
    return checks_failed != 0;
}

static void test_heap_bytes(void)
{
    dpar_world_desc o;
    memset(&o, 0, sizeof o);
    o.heap_bytes = 1;
    CHECK_INT(dpar_launch(2, one_page, NULL, &o, &why), DPAR_OK);
    o.threads = 1;
    CHECK_INT(dpar_launch(2, one_page, NULL, &o, &why), DPAR_OK);
}

/* ---- addresses ---- */

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

/* Limits the address space to `more` bytes above the current use. Returns 0 if no limit can be set
 * here. */
static int limit_to(int64_t more)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_AS, &r) != 0) {
        return 0;
    }
    r.rlim_cur = (rlim_t)(addresses() + more);
    return setrlimit(RLIMIT_AS, &r) == 0;
}

enum { ARRAYS = 12 };

/* Allocates arrays in several extents. Each rank fills its own; sums are in place. */
static int in_extents(dpar_comm *c, void *arg)
{
    const int64_t began = *(const int64_t *)arg;
    double *array[ARRAYS];
    void *big = NULL;
    int64_t i, n, k, had = addresses();
    int wrong = 0;
    /* A rank's first extent is 4 MiB; nothing here reserves the machine's memory. */
    CHECK(had < began + 64 * MIB);
    for (k = 0; k < ARRAYS; k++) {
        n = 100000 << (k % 5);
        CHECK_INT(dpar_comm_alloc(c, n * 8, (void **)&array[k]), DPAR_OK);
        for (i = 0; i < n; i++) {
            array[k][i] = (double)(i + k + c->rank);
        }
    }
    for (k = 0; k < ARRAYS; k++) {
        n = 100000 << (k % 5);
        CHECK_INT(dpar_all_reduce(c, array[k], array[k], n, DPAR_F64, DPAR_SUM, NULL), DPAR_OK);
        for (i = 0; i < n; i++) { /* ranks 0, 1 and 2: three times the value plus 0 + 1 + 2 */
            wrong += array[k][i] != (double)(3 * (i + k) + 3);
        }
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(dpar_comm_alloc(c, 100 * MIB, &big), DPAR_OK);
    had = addresses();
    for (k = 0; k < ARRAYS; k++) {
        dpar_comm_release(c, array[k]);
    }
    /* an array larger than what is kept leaves an empty extent, which is unmapped */
    dpar_comm_release(c, big);
    CHECK(addresses() <= had - 100 * MIB);
    CHECK_INT(dpar_comm_alloc(c, 8 * MIB, (void **)&array[0]), DPAR_OK);
    for (i = 0; i < MIB; i++) { /* zeroed */
        wrong += array[0][i] != 0.0;
    }
    CHECK_INT(wrong, 0);
    return checks_failed != 0;
}

/* Allocates an array on rank 1 that rank 0 has no address space to map. */
static int no_addresses(dpar_comm *c, void *arg)
{
    const int64_t n = 64 * MIB;
    char *array = NULL, *own = (char *)malloc((size_t)n);
    int64_t i, wrong = 0;
    (void)arg;
    CHECK(own != NULL);
    memset(own, 1, (size_t)n);
    if (c->rank == 1) {
        CHECK_INT(dpar_comm_alloc(c, n, (void **)&array), DPAR_OK);
        memset(array, 7, (size_t)n);
    } else {
        CHECK(limit_to(8 * MIB));
        CHECK_INT(dpar_comm_alloc(c, n, (void **)&array), DPAR_E_MEMORY);
        CHECK(strstr(c->why.text, "out of addresses (ulimit -v is ") != NULL);
        CHECK_INT(dpar_comm_alloc(c, MIB, (void **)&array), DPAR_OK);
    }
    /* A message is sent as if from private memory. */
    if (c->rank == 1) {
        CHECK_INT(dpar_send(c, array, n, DPAR_U8, 0, 5, NULL), DPAR_OK);
    } else {
        CHECK_INT(dpar_recv(c, own, n, DPAR_U8, 1, 5, NULL), DPAR_OK);
        for (i = 0; i < n; i++) {
            wrong += own[i] != 7;
        }
    }
    CHECK_INT(wrong, 0);
    /* A collective fails: all ranks get the reason. */
    CHECK_INT(dpar_broadcast(c, c->rank == 1 ? array : own, n, DPAR_U8, 1, NULL), DPAR_E_MEMORY);
    CHECK(strstr(c->why.text, "rank 0: mapping ") != NULL);
    CHECK(strstr(c->why.text, " bytes of rank 1's memory: out of addresses (ulimit -v is ") !=
          NULL);
    free(own);
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
    CHECK_INT(dpar_launch(3, in_extents, &began, NULL, &why), DPAR_OK);
    CHECK_INT(dpar_launch(2, no_addresses, NULL, NULL, &why), DPAR_OK);
}

/* ---- core files ---- */

static int crashes(dpar_comm *c, void *arg)
{
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    char *array = NULL;
    (void)arg;
    CHECK_INT(dpar_comm_alloc(c, c->rank == 0 ? 256 * MIB : 16 * MIB, (void **)&array), DPAR_OK);
    memset(array, 3, (size_t)(c->rank == 0 ? 256 * MIB : 16 * MIB));
    CHECK_INT(dpar_broadcast(c, array, 16 * MIB, DPAR_U8, 0, NULL), DPAR_OK); /* rank 1 maps it */
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    if (c->rank == 1) {
        (void)setrlimit(RLIMIT_CORE, &all);
        (void)signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    CHECK_INT(dpar_barrier(c, NULL), DPAR_E_PEER);
    CHECK(strstr(c->why.text, "rank 1 was killed by signal ") != NULL ||
          strstr(c->why.text, "rank 1 has crashed and is writing a core file") != NULL);
    return checks_failed != 0;
}

/* Checks that the core file of rank 1 contains its own 16 MiB, and not the 256 MiB of rank 0. */
static void test_core(void)
{
    char pattern[64] = "", here[512], dir[] = "/tmp/dpar.limits.XXXXXX", path[128];
    struct stat about;
    FILE *f = fopen("/proc/sys/kernel/core_pattern", "r");
    if (f != NULL) {
        (void)!fscanf(f, "%63s", pattern);
        fclose(f);
    }
    if (strcmp(pattern, "core") != 0 || getcwd(here, sizeof here) == NULL) {
        puts("core files: core_pattern is not \"core\", skipped");
        return;
    }
    CHECK(mkdtemp(dir) != NULL && chdir(dir) == 0);
    CHECK_INT(dpar_launch(2, crashes, NULL, NULL, &why), DPAR_E_PEER);
    CHECK(strstr(why.text, "rank 1 was killed by signal 11") != NULL);
    snprintf(path, sizeof path, "%s/core", dir);
    if (stat(path, &about) == 0) {
        CHECK((int64_t)about.st_size > 16 * MIB && (int64_t)about.st_size < 128 * MIB);
    } else {
        puts("core files: none was written, skipped");
    }
    CHECK_INT(chdir(here), 0);
    snprintf(path, sizeof path, "rm -r %s", dir);
    CHECK_INT(system(path), 0);
}

int main(void)
{
    test_groups();
    test_quotas();
    test_heap_bytes();
    test_addresses();
    test_core();
    return CHECK_DONE();
}
