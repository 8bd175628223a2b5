/* SPDX-License-Identifier: MIT-0 */
/* Collects facts about this process and machine for dpar_doctor, mostly from /proc and /sys, and
 * decides in a second step what is wrong with them (dpari_doctor_judge). The steps are separate so
 * that tests can present any machine. doctor.c and doctor_ranks.c write the reports. */
#include "checkup.h"

#include "../base/base_private.h"
#include "../base/text.h"
#include "../comm/job.h"
#include "../comm/os.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#if !defined(MAP_ANONYMOUS) /* as in os.h: -std=c99 has hidden it */
#error strict C hides POSIX: define DPAR_IMPLEMENTATION and include dpar before any other header, \
    or compile with -D_GNU_SOURCE
#endif

/* ---- reading the machine --------------------------------------------------------------------- */

DPARI_STATIC_NOINLINE int dpari_doctor_begins(const char *s, const char *with)
{
    size_t i = 0;
    while (with[i] != 0 && s[i] == with[i]) {
        i++;
    }
    return with[i] == 0;
}

/* Returns the number at s, after blanks, or -1 if there is none, as in "max". */
static int64_t dpari_doctor_number(const char *s)
{
    int64_t v = 0;
    while (*s == ' ' || *s == '\t') {
        s++;
    }
    if (*s < '0' || *s > '9') {
        return -1;
    }
    for (; *s >= '0' && *s <= '9'; s++) {
        v = v < INT64_MAX / 10 - 10 ? v * 10 + (*s - '0') : INT64_MAX;
        if (v == INT64_MAX) {
            break;
        }
    }
    return v;
}

/* Returns the number in a file, or -1 if there is no file or no number. */
static int64_t dpari_doctor_file(const dpari_site *site, const char *path)
{
    char text[64];
    return dpari_site_read(site, path, text, sizeof text) > 0 ? dpari_doctor_number(text) : -1;
}

/* Returns the number after `key` in a text of lines "key: number kB", in bytes, or 0 if there is
 * none. */
static DPARI_COLD int64_t dpari_doctor_line(const char *text, const char *key)
{
    size_t i, n = dpari_length(key);
    for (i = 0; text[i] != 0; i++) {
        if ((i == 0 || text[i - 1] == '\n') && dpari_doctor_begins(text + i, key)) {
            int64_t v = dpari_doctor_number(text + i + n);
            return v > 0 ? v * 1024 : 0;
        }
    }
    return 0;
}

/* Lists the names in a directory. */
static DPARI_COLD void dpari_doctor_list(const dpari_site *site, const char *path,
                                         dpari_names *names)
{
    char full[256];
    dpar_text t;
    DIR *at;
    struct dirent *entry;
    names->count = 0;
    dpar_text_init(&t, full, sizeof full);
    dpari_text_print(&t, "%s%s", site->root, path);
    at = opendir(full);
    while (at != NULL && names->count < DPARI_DOCTOR_NAMES && (entry = readdir(at)) != NULL) {
        if (entry->d_name[0] != '.') {
            dpari_copy_text(names->name[names->count++], DPARI_DOCTOR_NAME, entry->d_name,
                            DPARI_DOCTOR_NAME);
        }
    }
    if (at != NULL) {
        closedir(at);
    }
}

/* True if the comma-separated list [s, s + n) contains the word. */
static DPARI_COLD int dpari_doctor_lists(const char *s, size_t n, const char *word)
{
    size_t i = 0, k;
    for (k = 0; k <= n; k++) {
        if (k == n || s[k] == ',') {
            if (dpari_spells(s + i, k - i, word)) {
                return 1;
            }
            i = k + 1;
        }
    }
    return 0;
}

/* The longest path of a group and the longest list of groups, in bytes. The path of a container in
 * Kubernetes has about 250 characters, and version 1 lists one for each of 13 controllers.
 * dpari_site_read takes paths of 511 characters. If a path is longer, only groups above it are
 * checked.
 */
enum { DPARI_DOCTOR_PATH = 512 - 64, DPARI_DOCTOR_GROUPS = 16 * 512 };

/* Finds the path of this process in the hierarchy of a controller ("" for version 2), in a file
 * with lines "4:cpu,cpuacct:/a/b". Returns 0 if there is none. */
static DPARI_COLD int dpari_doctor_group(const dpari_site *site, const char *controller, char *path,
                                         size_t room)
{
    char text[DPARI_DOCTOR_GROUPS];
    size_t i = 0, a, b, end;
    if (dpari_site_read(site, "/proc/self/cgroup", text, sizeof text) <= 0) {
        return 0;
    }
    while (text[i] != 0) {
        for (a = i; text[a] != 0 && text[a] != ':' && text[a] != '\n';) {
            a++;
        }
        for (b = a + (text[a] == ':'); text[b] != 0 && text[b] != ':' && text[b] != '\n';) {
            b++;
        }
        for (end = b; text[end] != 0 && text[end] != '\n';) {
            end++;
        }
        if (text[a] == ':' && text[b] == ':' &&
            (controller[0] == 0 ? b == a + 1
                                : dpari_doctor_lists(text + a + 1, b - a - 1, controller))) {
            dpari_copy_text(path, room, text + b + 1, end - b - 1);
            return 1;
        }
        i = end + (text[end] == '\n');
    }
    return 0;
}

/* Calls `value` for a group and for each group above it. Returns the least positive result, or 0 if
 * there is none. */
static DPARI_COLD double
dpari_doctor_least(const dpari_site *s, const char *base, const char *group,
                   double (*value)(const dpari_site *s, const char *folder))
{
    char path[DPARI_DOCTOR_PATH], folder[DPARI_DOCTOR_PATH + 32];
    double least = 0.0, v;
    size_t n;
    dpar_text t;
    dpari_copy_text(path, sizeof path, group, sizeof path);
    n = dpari_length(path);
    for (;;) {
        while (n > 0 && path[n - 1] == '/') {
            path[--n] = 0;
        }
        dpar_text_init(&t, folder, sizeof folder);
        dpari_text_print(&t, "%s%s", base, path);
        v = value(s, folder);
        least = v > 0.0 && (least <= 0.0 || v < least) ? v : least;
        if (n == 0) {
            return least;
        }
        while (n > 0 && path[n - 1] != '/') {
            path[--n] = 0;
        }
    }
}

/* Reads the file `name` in a folder. Returns the bytes, or -1. */
static DPARI_COLD int64_t dpari_doctor_in(const dpari_site *site, const char *folder,
                                          const char *name, char *text, size_t room)
{
    char path[DPARI_DOCTOR_PATH + 64];
    dpar_text t;
    dpar_text_init(&t, path, sizeof path);
    dpari_text_print(&t, "%s%s", folder, name);
    return dpari_site_read(site, path, text, room);
}

/* Return the limits of one group on cores and memory, in cgroups of version 2 and 1, or 0 if there
 * is none. */
static DPARI_COLD double dpari_doctor_cpu_2(const dpari_site *site, const char *folder)
{
    char text[64];
    int64_t quota, period = -1;
    size_t i = 0;
    if (dpari_doctor_in(site, folder, "/cpu.max", text, sizeof text) <= 0) {
        return 0.0;
    }
    quota = dpari_doctor_number(text);
    while (text[i] != 0 && text[i] != ' ') {
        i++;
    }
    period = dpari_doctor_number(text + i);
    return quota > 0 && period > 0 ? (double)quota / (double)period : 0.0;
}

static DPARI_COLD double dpari_doctor_cpu_1(const dpari_site *site, const char *folder)
{
    char text[64];
    int64_t quota = -1, period = -1;
    if (dpari_doctor_in(site, folder, "/cpu.cfs_quota_us", text, sizeof text) > 0) {
        quota = dpari_doctor_number(text);
    }
    if (dpari_doctor_in(site, folder, "/cpu.cfs_period_us", text, sizeof text) > 0) {
        period = dpari_doctor_number(text);
    }
    return quota > 0 && period > 0 ? (double)quota / (double)period : 0.0;
}

static DPARI_COLD double dpari_doctor_memory_2(const dpari_site *site, const char *folder)
{
    char text[64];
    int64_t n = dpari_doctor_in(site, folder, "/memory.max", text, sizeof text);
    return n > 0 ? (double)dpari_doctor_number(text) : 0.0;
}

static DPARI_COLD double dpari_doctor_memory_1(const dpari_site *site, const char *folder)
{
    char text[64];
    int64_t n = dpari_doctor_in(site, folder, "/memory.limit_in_bytes", text, sizeof text);
    return n > 0 ? (double)dpari_doctor_number(text) : 0.0;
}

DPARI_INTERNAL DPARI_COLD double dpari_doctor_quota(const dpari_site *site)
{
    char group[DPARI_DOCTOR_PATH];
    double one = 0.0, two = 0.0;
    if (dpari_doctor_group(site, "cpu", group, sizeof group)) {
        one = dpari_doctor_least(site, "/sys/fs/cgroup/cpu", group, dpari_doctor_cpu_1);
    }
    if (dpari_doctor_group(site, "", group, sizeof group)) {
        two = dpari_doctor_least(site, "/sys/fs/cgroup", group, dpari_doctor_cpu_2);
    }
    return one > 0.0 && two > 0.0 ? dpari_leastf(one, two) : dpari_mostf(one, two);
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_doctor_memory_limit(const dpari_site *site)
{
    char group[DPARI_DOCTOR_PATH];
    double one = 0.0, two = 0.0, least;
    if (dpari_doctor_group(site, "memory", group, sizeof group)) {
        one = dpari_doctor_least(site, "/sys/fs/cgroup/memory", group, dpari_doctor_memory_1);
    }
    if (dpari_doctor_group(site, "", group, sizeof group)) {
        two = dpari_doctor_least(site, "/sys/fs/cgroup", group, dpari_doctor_memory_2);
    }
    least = one > 0.0 && two > 0.0 ? dpari_leastf(one, two) : dpari_mostf(one, two);
    return least > 0.0 && least < 4e18 ? (int64_t)least : 0; /* version 1 has 2^63 for no limit */
}

/* Sets `word` to the word in brackets in a file like "always [never] force". */
static void dpari_doctor_choice(const dpari_site *site, const char *path, char *word, size_t room)
{
    char text[128];
    size_t a = 0, b;
    word[0] = 0;
    if (dpari_site_read(site, path, text, sizeof text) <= 0) {
        return;
    }
    while (text[a] != 0 && text[a] != '[') {
        a++;
    }
    for (b = a; text[b] != 0 && text[b] != ']'; b++) {
        ;
    }
    if (text[b] == ']') {
        dpari_copy_text(word, room, text + a + 1, b - a - 1);
    }
}

static int32_t dpari_doctor_gpus(const dpari_site *site)
{
    dpari_names names;
    int32_t i, n = 0;
    dpari_doctor_list(site, "/proc/driver/nvidia/gpus", &names);
    if (names.count > 0) {
        return names.count;
    }
    dpari_doctor_list(site, "/dev", &names); /* "nvidia0", not "nvidiactl" */
    for (i = 0; i < names.count; i++) {
        n += dpari_doctor_begins(names.name[i], "nvidia") && names.name[i][6] >= '0' &&
             names.name[i][6] <= '9';
    }
    return n;
}

/* Reads a file of a network interface. Returns the bytes, or -1. */
static int64_t dpari_doctor_link_file(const dpari_site *site, const char *link, const char *file,
                                      char *text, size_t room)
{
    char path[96];
    dpar_text t;
    dpar_text_init(&t, path, sizeof path);
    dpari_text_print(&t, "/sys/class/net/%s%s", link, file);
    return dpari_site_read(site, path, text, room);
}

static void dpari_doctor_links(const dpari_site *site, dpari_checkup *checkup)
{
    dpari_names cards;
    int32_t i;
    dpari_doctor_list(site, "/sys/class/net", &checkup->links);
    for (i = 0; i < checkup->links.count; i++) {
        char text[16];
        if (dpari_doctor_link_file(site, checkup->links.name[i], "/operstate", text, sizeof text) >
                0 &&
            (dpari_doctor_begins(text, "up") || dpari_doctor_begins(text, "unknown"))) {
            checkup->up |= (uint32_t)1 << i;
        }
        /* "-1" or an error if the driver does not know the speed */
        if (dpari_doctor_link_file(site, checkup->links.name[i], "/speed", text, sizeof text) > 0) {
            checkup->speed[i] = dpari_most(dpari_doctor_number(text), 0);
        }
        checkup->slingshot =
            checkup->slingshot || dpari_doctor_begins(checkup->links.name[i], "hsn");
    }
    dpari_doctor_list(site, "/sys/class/cxi", &cards);
    checkup->slingshot = checkup->slingshot || cards.count > 0;
    dpari_doctor_list(site, "/sys/class/infiniband", &cards);
    checkup->infiniband = cards.count > 0;
}

/* Returns the threads of the machine that run or wait for a core, including this one: the 3 in
 * "0.41 0.50 0.37 3/911 4023". Returns -1 if unknown. */
static int32_t dpari_doctor_runnable(const dpari_site *site, char *load, size_t room)
{
    char text[96];
    size_t i, blanks = 0;
    load[0] = 0;
    if (dpari_site_read(site, "/proc/loadavg", text, sizeof text) <= 0) {
        return -1;
    }
    for (i = 0; text[i] != 0 && blanks < 3; i++) {
        if (text[i] == ' ' && blanks++ == 0) {
            dpari_copy_text(load, room, text, i);
        }
    }
    return (int32_t)dpari_least(dpari_doctor_number(text + i), INT64_C(1) << 20);
}

/* Takes the least of five readings within 20 ms, so that brief activity does not count. */
static void dpari_doctor_load(const dpari_site *site, dpari_checkup *checkup)
{
    int32_t look;
    checkup->runnable = dpari_doctor_runnable(site, checkup->load, sizeof checkup->load);
    for (look = 1; look < 5 && checkup->runnable > 0; look++) {
        int32_t now;
        dpari_os_sleep(5e-3);
        now = dpari_doctor_runnable(site, checkup->load, sizeof checkup->load);
        checkup->runnable = now < checkup->runnable ? now : checkup->runnable;
    }
}

/* Returns the socket of a CPU, or -1 if unknown. */
static int32_t dpari_doctor_socket(const dpari_site *site, int32_t cpu)
{
    char path[96];
    dpar_text t;
    dpar_text_init(&t, path, sizeof path);
    dpari_text_print(&t, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id", cpu);
    return (int32_t)dpari_least(dpari_doctor_file(site, path), INT32_MAX);
}

/* The numbers of CPUs have gaps if some CPUs are turned off, which ends the search after 2 x cores.
 */
DPARI_INTERNAL void dpari_doctor_sockets(const dpari_site *site, const uint64_t *cpus,
                                         dpari_checkup *checkup)
{
    int32_t seen[64], cpu, k, found = 0, own = -1, several = 0;
    checkup->sockets = 0;
    for (cpu = 0; cpu < 64 * DPARI_CPU_WORDS && found < checkup->cores; cpu++) {
        const int32_t socket = dpari_doctor_socket(site, cpu);
        if (socket < 0) {
            if (cpu >= 2 * checkup->cores) {
                break;
            }
            continue;
        }
        found++;
        for (k = 0; k < checkup->sockets && seen[k] != socket; k++) {
            ;
        }
        if (k == checkup->sockets && k < 64) {
            seen[checkup->sockets++] = socket;
        }
        if (cpus[cpu / 64] >> (cpu % 64) & 1) {
            several = several || (own >= 0 && own != socket);
            own = socket;
        }
    }
    checkup->socket = several ? -1 : own;
}

/* Finds the file of the MPI that this process has loaded, whose name ends with its version.
 * /proc/self/maps has lines "7f7a41101000-7f7a411c8000 r-xp 00029000 fe:00 14884988
 * /usr/lib/libmpi.so.40.30.4". Bindings (libmpi_mpifh.so) do not count. */
static void dpari_doctor_mpi(const dpari_site *site, dpari_checkup *checkup)
{
    const int64_t room = INT64_C(1) << 18;
    char *text = (char *)dpari_os_pages(room);
    int64_t i, begin = 0, bytes;
    checkup->mpi[0] = 0;
    if (text == NULL) {
        return;
    }
    bytes = dpari_site_read(site, "/proc/self/maps", text, (size_t)room);
    for (i = 0; i < bytes && checkup->mpi[0] == 0; i++) {
        const char *name = text + begin;
        if (text[i] == '/') {
            begin = i + 1;
        } else if (text[i] == '\n') {
            if ((dpari_doctor_begins(name, "libmpi.") || dpari_doctor_begins(name, "libmpich") ||
                 dpari_doctor_begins(name, "libmpi_cray") ||
                 dpari_doctor_begins(name, "libmpi_gnu"))) {
                dpari_copy_text(checkup->mpi, sizeof checkup->mpi, name, (size_t)(i - begin));
            }
            begin = i + 1;
        }
    }
    dpari_os_unmap(text, room);
}

DPARI_INTERNAL void dpari_doctor_files(const dpari_site *site, dpari_checkup *checkup)
{
    char text[4096];
    if (dpari_site_read(site, "/proc/meminfo", text, sizeof text) > 0) {
        checkup->memory = dpari_doctor_line(text, "MemTotal:");
        checkup->memory_free = dpari_doctor_line(text, "MemAvailable:");
    }
    checkup->quota = dpari_doctor_quota(site);
    checkup->memory_limit = dpari_doctor_memory_limit(site);
    checkup->yama = (int32_t)dpari_doctor_file(site, "/proc/sys/kernel/yama/ptrace_scope");
    dpari_doctor_choice(site, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", checkup->huge,
                        sizeof checkup->huge);
    checkup->gpus = dpari_doctor_gpus(site);
    dpari_doctor_links(site, checkup);
    dpari_doctor_mpi(site, checkup);
    dpari_doctor_load(site, checkup);
}

/* ---- querying the system --------------------------------------------------------------------- */

DPARI_INTERNAL int32_t dpari_doctor_bits(const uint64_t *mask)
{
    int32_t i, n = 0;
    for (i = 0; i < 64 * DPARI_CPU_WORDS; i++) {
        n += (int32_t)(mask[i / 64] >> (i % 64) & 1);
    }
    return n;
}

/* Returns a limit in bytes or files, or -1 if there is none. */
static int64_t dpari_doctor_ulimit(int which)
{
    struct rlimit limit;
    /* glibc has a type of its own for `which` */
#if defined(__GLIBC__) && !defined(__cplusplus)
    int got = getrlimit((__rlimit_resource_t)which, &limit);
#elif defined(__GLIBC__)
    int got = getrlimit(static_cast<__rlimit_resource_t>(which), &limit);
#else
    int got = getrlimit(which, &limit);
#endif
    return got != 0 || limit.rlim_cur == RLIM_INFINITY || (uint64_t)limit.rlim_cur > INT64_MAX
               ? -1
               : (int64_t)limit.rlim_cur;
}

/* Checks whether a process may read a sibling's memory: a child tries to read this process, which
 * is the direction that stricter rules forbid. Returns 0, or the error. */
static int32_t dpari_doctor_try_cma(void)
{
    int32_t *answer =
        (int32_t *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t probe = UINT64_C(0x6470617264706172);
    int32_t got = ENOSYS;
    pid_t parent = getpid(), child;
    if ((void *)answer == MAP_FAILED) {
        return ENOMEM;
    }
    *answer = ENOSYS;
    child = fork();
    if (child == 0) {
        dpari_os_target target;
        target.pid = (int32_t)parent;
        target.at = (uint64_t)(uintptr_t)&probe;
        target.word = probe;
        probe = 0; /* only the memory of the parent still has the word */
        *answer = 0;
        if (dpari_os_read_peer(&target, NULL, 0, 0) != 0) {
            *answer = errno != 0 ? errno : EPERM;
        }
        _exit(0);
    }
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR) {
    }
    got = child > 0 ? *answer : EAGAIN;
    munmap(answer, 4096);
    return got;
}

DPARI_INTERNAL void dpari_doctor_host(char name[256])
{
    name[0] = 0;
    gethostname(name, 255);
    name[255] = 0;
}

/* Returns the number of ranks of the job on this node, as the launcher reports it, or 1 if unknown.
 */
static int32_t dpari_doctor_here(const dpari_checkup *checkup)
{
    if (checkup->job_status != DPAR_OK) {
        return 1;
    }
    if (checkup->job.local_size > 0) {
        return checkup->job.local_size;
    }
    return checkup->nodes <= 1 ? checkup->job.size : 1;
}

DPARI_INTERNAL void dpari_doctor_look(const dpari_site *site, dpari_checkup *checkup)
{
    uint64_t cpus[DPARI_CPU_WORDS];
    struct statvfs shm;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int fd;
    dpari_zero(checkup, sizeof *checkup);
    checkup->job_status = dpari_job_here(&checkup->job, &checkup->nodes, &checkup->job_why);
    checkup->here = dpari_doctor_here(checkup);
    dpari_doctor_files(site, checkup);
    dpari_os_cpus(cpus);
    checkup->allowed = dpari_doctor_bits(cpus);
    checkup->cores = cores > checkup->allowed ? (int32_t)cores : checkup->allowed;
    dpari_doctor_sockets(site, cpus, checkup);
    checkup->memory = checkup->memory > 0 ? checkup->memory : dpari_os_memory();
    checkup->shm = checkup->shm_free = -1;
    if (statvfs("/dev/shm", &shm) == 0) {
        checkup->shm = (int64_t)shm.f_blocks * (int64_t)shm.f_frsize;
        checkup->shm_free = (int64_t)shm.f_bavail * (int64_t)shm.f_frsize;
    }
#if defined(__linux__) && defined(SYS_memfd_create)
    fd = (int)syscall(SYS_memfd_create, "dpar", 1U);
#else
    fd = -1;
#endif
    checkup->memfd = fd >= 0;
    if (fd >= 0) {
        close(fd);
    }
    checkup->cma = dpari_doctor_try_cma();
    checkup->page = dpari_os_page();
    checkup->addresses = dpari_doctor_ulimit((int)RLIMIT_AS);
#if defined(RLIMIT_MEMLOCK)
    checkup->locked = dpari_doctor_ulimit((int)RLIMIT_MEMLOCK);
#else
    checkup->locked = -1;
#endif
    checkup->open_files = dpari_doctor_ulimit((int)RLIMIT_NOFILE);
    checkup->file_bytes = dpari_doctor_ulimit((int)RLIMIT_FSIZE);
}

/* ---- text ------------------------------------------------------------------------------------ */

DPARI_INTERNAL void dpari_doctor_head(dpar_text *out, const char *title)
{
    dpari_text_print(out, "%s ", title);
    dpari_text_column(out, 11);
}

DPARI_INTERNAL void dpari_doctor_bytes(dpar_text *out, int64_t bytes)
{
    static const char unit[5][5] = {" B", " KiB", " MiB", " GiB", " TiB"};
    double v = (double)bytes;
    int32_t k = 0;
    if (bytes < 0) {
        dpar_text_put(out, "unlimited");
        return;
    }
    for (; v >= 1024.0 && k < 4; k++) {
        v /= 1024.0;
    }
    dpari_text_fixed(out, v, k > 0 ? 1 : 0);
    dpar_text_put(out, unit[k]);
}

/* ---- what is wrong --------------------------------------------------------------------------- */

typedef struct dpari_doctor {
    const dpari_site *site;
    const dpari_checkup *c;
    dpar_text *out;
    int32_t wrong; /* number of lines so far */
} dpari_doctor;

/* Writes a line about something that is wrong. */
static DPARI_PRINTF(2, 3) void dpari_doctor_wrong(dpari_doctor *doctor, const char *form, ...)
{
    va_list list;
    dpar_text_put(doctor->out, "WRONG: ");
    va_start(list, form);
    dpari_text_print_list(doctor->out, form, &list);
    va_end(list);
    dpar_text_put(doctor->out, "\n");
    doctor->wrong++;
}

/* Converts bytes to whole MiB. */
static int64_t dpari_doctor_mib(int64_t bytes)
{
    return bytes >> 20;
}

/* True if ranks of the job are on other nodes too. */
DPARI_INTERNAL int dpari_doctor_spread(const dpari_checkup *checkup)
{
    return checkup->job.size > 1 &&
           (checkup->nodes > 1 ||
            (checkup->job.local_size > 0 && checkup->job.local_size < checkup->job.size));
}

/* True if NCCL_SOCKET_IFNAME selects an interface. It is a list of prefixes of names. "^" before
 * the list selects all others, and "=" makes them whole names. */
static int dpari_doctor_takes(const char *list, const char *link)
{
    const int not_these = list[0] == '^', whole = list[not_these] == '=';
    size_t begin = (size_t)(not_these + whole), k;
    for (k = begin;; k++) {
        if (list[k] == ',' || list[k] == 0) {
            size_t n = k - begin, i = 0;
            while (i < n && link[i] == list[begin + i]) {
                i++;
            }
            if (n > 0 && i == n && (!whole || link[n] == 0)) {
                return !not_these;
            }
            begin = k + 1;
        }
        if (list[k] == 0) {
            return not_these;
        }
    }
}

/* NCCL could take such an interface for the network. */
DPARI_INTERNAL int dpari_doctor_is_network(const dpari_checkup *checkup, int32_t i)
{
    const char *name = checkup->links.name[i];
    return (checkup->up >> i & 1) && !dpari_same(name, "lo") &&
           !dpari_doctor_begins(name, "docker") && !dpari_doctor_begins(name, "veth") &&
           !dpari_doctor_begins(name, "virbr") && !dpari_doctor_begins(name, "br-") &&
           !dpari_doctor_begins(name, "ifb") && !dpari_doctor_begins(name, "cali") &&
           !dpari_doctor_begins(name, "flannel");
}

static void dpari_doctor_network(dpari_doctor *doctor)
{
    const char *list = dpari_site_env(doctor->site, "NCCL_SOCKET_IFNAME");
    int32_t i, networks = 0, taken = 0, taken_networks = 0, loop = 0;
    const char *first = "";
    for (i = 0; i < doctor->c->links.count; i++) {
        const char *name = doctor->c->links.name[i];
        int takes = list != NULL && dpari_doctor_takes(list, name);
        if (dpari_doctor_is_network(doctor->c, i)) {
            first = networks++ == 0 ? name : first;
        }
        taken += takes;
        loop += takes && dpari_same(name, "lo");
        taken_networks += takes && !dpari_same(name, "lo");
    }
    if (list != NULL && list[0] != 0 && taken == 0) {
        dpari_doctor_wrong(doctor,
                           "NCCL_SOCKET_IFNAME=%s names no interface of this machine -> name one "
                           "of those under \"network\" above",
                           list);
    } else if (loop > 0 && taken_networks == 0 && dpari_doctor_spread(doctor->c)) {
        dpari_doctor_wrong(doctor,
                           "NCCL_SOCKET_IFNAME=%s is this machine's own loopback, but the job has "
                           "ranks on other nodes -> name the interface between the nodes",
                           list);
    } else if (list == NULL && networks > 1 && doctor->c->gpus > 0 &&
               dpari_doctor_spread(doctor->c) && !doctor->c->slingshot) {
        dpari_doctor_wrong(doctor,
                           "%d network interfaces are up and NCCL_SOCKET_IFNAME does not say "
                           "which joins the nodes -> export NCCL_SOCKET_IFNAME=%s (or another)",
                           networks, first);
    }
}

/* Checks one setting that Slingshot needs. want: the beginning of a correct value; "" accepts any.
 * advice: the value to export. */
static void dpari_doctor_setting(dpari_doctor *doctor, const char *name, const char *want,
                                 const char *advice)
{
    const char *text = dpari_site_env(doctor->site, name);
    dpar_text t;
    char line[200];
    if (text != NULL && dpari_doctor_begins(text, want)) {
        return;
    }
    dpar_text_init(&t, line, sizeof line);
    dpar_text_put(&t, name);
    if (text != NULL) {
        dpari_text_print(&t, " is %s", text);
    } else {
        dpar_text_put(&t, " is not set");
    }
    dpari_text_print(&t, " -> export %s=%s", name, advice);
    dpari_doctor_wrong(doctor, "on Slingshot with GPUs, %s", line);
}

/* Checks the settings with which sites run NCCL on HPE Slingshot 11 (Derecho, Isambard-AI). */
static void dpari_doctor_slingshot(dpari_doctor *doctor)
{
    if (!doctor->c->slingshot || doctor->c->gpus == 0) {
        return;
    }
    dpari_doctor_setting(doctor, "NCCL_SOCKET_IFNAME", "hsn",
                         "hsn (otherwise NCCL uses Ethernet, which is slow or hangs)");
    dpari_doctor_setting(doctor, "NCCL_NET", "AWS Libfabric",
                         "\"AWS Libfabric\" (otherwise NCCL uses sockets and does not report it)");
    dpari_doctor_setting(doctor, "FI_CXI_DISABLE_HOST_REGISTER", "1", "1");
    dpari_doctor_setting(doctor, "FI_MR_CACHE_MONITOR", "userfaultfd",
                         "userfaultfd (the default deadlocks NCCL)");
    dpari_doctor_setting(doctor, "FI_CXI_DEFAULT_CQ_SIZE", "", "131072");
    dpari_doctor_setting(doctor, "NCCL_CROSS_NIC", "1", "1");
    dpari_doctor_setting(doctor, "NCCL_NET_GDR_LEVEL", "", "PHB");
    /* PALS_APID shows Cray's MPI, also under Slurm and Flux */
    if (doctor->c->job.kind == DPAR_LAUNCHER_PALS ||
        dpari_site_env(doctor->site, "PALS_APID") != NULL) {
        dpari_doctor_setting(doctor, "MPICH_GPU_SUPPORT_ENABLED", "1", "1");
        dpari_doctor_setting(doctor, "MPICH_OFI_NIC_POLICY", "GPU", "GPU");
    }
}

DPARI_INTERNAL int32_t dpari_doctor_visible(const char *list, int32_t gpus)
{
    int32_t n = 1, i;
    if (list == NULL) {
        return gpus;
    }
    for (i = 0; list[i] != 0; i++) {
        n += list[i] == ',';
    }
    return i == 0 ? 0 : n;
}

static void dpari_doctor_devices(dpari_doctor *doctor)
{
    const dpari_checkup *checkup = doctor->c;
    const char *list = dpari_site_env(doctor->site, "CUDA_VISIBLE_DEVICES");
    int32_t visible = dpari_doctor_visible(list, checkup->gpus);
    if (checkup->gpus == 0 || checkup->job_status != DPAR_OK) {
        return;
    }
    if (checkup->job.size > 1 && checkup->job.local_rank < 0) {
        dpari_doctor_wrong(doctor,
                           "%s does not say the local rank, so no rank knows which of %d GPUs is "
                           "its own -> start with a launcher that does, or set DPAR_LOCAL_RANK in "
                           "addition to DPAR_RANK and DPAR_SIZE",
                           dpari_launcher_name(checkup->job.kind), checkup->gpus);
    }
    /* if only one is visible, it may be a different one for each rank */
    if (checkup->here > visible && (visible > 1 || (list == NULL && visible == 1))) {
        dpari_doctor_wrong(
            doctor,
            "%d ranks of this node see %d GPUs%s: some share one -> start %d ranks per "
            "node, or show each rank its own",
            checkup->here, visible, list != NULL ? " (CUDA_VISIBLE_DEVICES)" : "", visible);
    }
    if (checkup->here > 1 && checkup->shm >= 0 && checkup->shm < INT64_C(1) << 30) {
        dpari_doctor_wrong(doctor,
                           "/dev/shm holds %ld MiB and NCCL keeps its buffers between GPUs "
                           "there -> docker run --shm-size=1g or more",
                           dpari_doctor_mib(checkup->shm));
    }
}

/* Returns the number of ranks that will share memory on this node. A single process may still
 * launch ranks, so it counts as two. */
static int32_t dpari_doctor_ranks(const dpari_checkup *checkup)
{
    return checkup->here > 1 ? checkup->here : 2;
}

/* Bytes of shared memory that a rank uses before it allocates any: 2 * 256 KiB of staging memory in
 * its first communicator, and at most 80 KiB of tables (1024 ranks). */
#define DPARI_DOCTOR_SHARED (INT64_C(640) << 10)
/* Bytes of memory that a rank uses at the start: shared memory, and the private memory of its
 * process. */
#define DPARI_DOCTOR_RANK (INT64_C(2) << 20)
/* Bytes of /dev/shm that MPI uses per rank: Open MPI 4.1 has files of 4 MiB, MPICH 4 over UCX of
 * 4.2 MiB. */
#define DPARI_DOCTOR_MPI (INT64_C(4) << 20)

/* Returns the least bytes of the shared file for one rank. Its part of the file is as large as the
 * memory; if a limit forbids that, the part is halved until it fits, but not below 64 MiB. The
 * bytes of the rank's record are added. */
static int64_t dpari_doctor_addresses(const dpari_checkup *checkup)
{
    const int64_t least = INT64_C(64) << 20;
    int64_t heap = checkup->memory > least ? (checkup->memory + 65535) / 65536 * 65536 : least;
    while (heap / 2 / 65536 * 65536 >= least) {
        heap = heap / 2 / 65536 * 65536;
    }
    return heap + 16384;
}

static void dpari_doctor_memory(dpari_doctor *doctor)
{
    const dpari_checkup *checkup = doctor->c;
    const int64_t ranks = dpari_doctor_ranks(checkup), shared = ranks * DPARI_DOCTOR_SHARED + 65536;
    const int64_t file = ranks * dpari_doctor_addresses(checkup) + 65536;
    if (!checkup->memfd && checkup->shm_free < shared) {
        dpari_doctor_wrong(
            doctor,
            "/dev/shm has %ld KiB free, %ld ranks share memory through it and take %ld "
            "KiB at the start -> make it larger (docker run --shm-size=1g)",
            checkup->shm_free < 0 ? 0 : checkup->shm_free >> 10, ranks, shared >> 10);
    }
    if (checkup->mpi[0] != 0 && checkup->here > 1 &&
        checkup->shm < 2 * checkup->here * DPARI_DOCTOR_MPI) {
        dpari_doctor_wrong(
            doctor,
            "/dev/shm holds %ld MiB, and %s takes some %ld MiB of it for each of %d ranks "
            "before the first message -> make it larger (docker run --shm-size=1g)",
            checkup->shm < 0 ? 0 : dpari_doctor_mib(checkup->shm), checkup->mpi,
            dpari_doctor_mib(DPARI_DOCTOR_MPI), checkup->here);
    }
    if (checkup->file_bytes >= 0 && checkup->file_bytes < file) {
        dpari_doctor_wrong(doctor,
                           "ulimit -f is %ld KiB: the memory that %ld ranks share counts as a file "
                           "of %ld KiB, however little of it is used -> ulimit -f unlimited",
                           checkup->file_bytes >> 10, ranks, file >> 10);
    }
    if (checkup->memory_limit > 0 && checkup->memory_limit < checkup->here * DPARI_DOCTOR_RANK) {
        dpari_doctor_wrong(
            doctor,
            "the cgroup grants %ld KiB to %d ranks, which take %ld KiB each to begin "
            "with -> raise its memory limit",
            checkup->memory_limit >> 10, checkup->here, DPARI_DOCTOR_RANK >> 10);
    }
    if (checkup->addresses >= 0 && checkup->addresses / (checkup->here + 1) < checkup->memory) {
        dpari_doctor_wrong(doctor,
                           "ulimit -v is %ld MiB: shared memory takes addresses for all %d ranks, "
                           "and gets fewer -> ulimit -v unlimited",
                           dpari_doctor_mib(checkup->addresses), checkup->here);
    }
    if (checkup->locked >= 0 && (checkup->infiniband || checkup->slingshot)) {
        dpari_doctor_wrong(doctor,
                           "ulimit -l is %ld KiB, too little for network cards that access memory "
                           "directly -> ulimit -l unlimited",
                           checkup->locked >> 10);
    }
    if (checkup->open_files >= 0 && checkup->open_files < 2 * (int64_t)checkup->here + 64) {
        dpari_doctor_wrong(doctor,
                           "ulimit -n is %ld: %d ranks meet through files and need %ld -> raise it",
                           checkup->open_files, checkup->here, 2 * (int64_t)checkup->here + 64);
    }
}

static void dpari_doctor_cores(dpari_doctor *doctor)
{
    const dpari_checkup *checkup = doctor->c;
    const int32_t ranks = checkup->here + checkup->beside;
    if (checkup->here > checkup->cores) {
        dpari_doctor_wrong(doctor,
                           "%d ranks run on %d cores, so that they wait for cores, not for data -> "
                           "start at most %d here",
                           checkup->here, checkup->cores, checkup->cores);
    } else if (checkup->quota > 0.0 && checkup->quota < (double)checkup->here) {
        dpari_doctor_wrong(doctor,
                           "the cgroup grants %ld hundredths of a core to %d ranks, which are then "
                           "stopped part of the time -> raise its CPU limit, or start fewer",
                           (int64_t)(checkup->quota * 100.0 + 0.5), checkup->here);
    }
    if (checkup->runnable - ranks >= checkup->cores) {
        dpari_doctor_wrong(doctor,
                           "%d threads want a core besides %s and there are %d cores, so that "
                           "messages wait for a core -> end the other programs",
                           checkup->runnable - ranks, ranks > 1 ? "those of the ranks" : "this one",
                           checkup->cores);
    }
}

/* Containers have a /dev/shm of at least 64 MiB by default. */
DPARI_INTERNAL void dpari_doctor_note(const dpari_checkup *checkup, dpar_text *out)
{
    const int complained = checkup->here > 1 && checkup->shm >= 0 && checkup->job_status == DPAR_OK;
    if (checkup->gpus == 0 || checkup->shm >= INT64_C(64) << 20 || complained) {
        return;
    }
    dpari_text_print(out,
                     "note: /dev/shm holds %ld KiB; NCCL between GPUs and the data loaders of "
                     "torch keep buffers there -> docker run --shm-size=1g or more\n",
                     checkup->shm < 0 ? 0 : checkup->shm >> 10);
}

DPARI_INTERNAL int32_t dpari_doctor_judge(const dpari_site *site, const dpari_checkup *checkup,
                                          dpar_text *out)
{
    dpari_doctor d;
    d.site = site;
    d.c = checkup;
    d.out = out;
    d.wrong = 0;
    if (checkup->job_status != DPAR_OK) {
        dpari_doctor_wrong(&d, "%s -> dpar_init will fail with this message",
                           checkup->job_why.text);
    }
    dpari_doctor_cores(&d);
    dpari_doctor_memory(&d);
    dpari_doctor_devices(&d);
    dpari_doctor_network(&d);
    dpari_doctor_slingshot(&d);
    return d.wrong;
}
