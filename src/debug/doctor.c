/* SPDX-License-Identifier: MIT-0 */
#include "doctor.h"

#include "../base/inner.h"
#include "../base/text.h"
#include "../comm/comm.h"
#include "../comm/job.h"
#include "../comm/os.h"
#include "checkup.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#if !defined(MAP_ANONYMOUS) /* as in os.h: -std=c99 has hidden it */
#error strict C hides POSIX: define DPAR_IMPLEMENTATION and include dpar before any other header, \
    or compile with -D_GNU_SOURCE
#endif

/* ---- reading the machine ----------------------------------------------------------------------
 */

static int dpari_doctor_begins(const char *s, const char *with)
{
    size_t i = 0;
    while (with[i] != 0 && s[i] == with[i]) {
        i++;
    }
    return with[i] == 0;
}

/* The number at s after blanks; -1 where there is none, as in "max". */
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

/* The number in a file; -1: no file, or no number in it. */
static int64_t dpari_doctor_file(const dpari_site *s, const char *path)
{
    char text[64];
    return dpari_site_read(s, path, text, sizeof text) > 0 ? dpari_doctor_number(text) : -1;
}

/* The number after `key` in a text of lines "key: number kB", in bytes; 0: it is not there. */
static int64_t dpari_doctor_line(const char *text, const char *key)
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

static void dpari_doctor_list(const dpari_site *s, const char *path, dpari_names *names)
{
    char full[256];
    dpar_text t;
    DIR *at;
    struct dirent *entry;
    names->count = 0;
    dpar_text_init(&t, full, sizeof full);
    dpar_text_put(&t, s->root);
    dpar_text_put(&t, path);
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

/* Does the comma list [s, s + n) hold the word? */
static int dpari_doctor_lists(const char *s, size_t n, const char *word)
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

/* The path of this process in the hierarchy of a controller (version 2: ""); 0: in none. The file
 * holds lines "4:cpu,cpuacct:/a/b". */
static int dpari_doctor_group(const dpari_site *s, const char *controller, char *path, size_t room)
{
    char text[2048];
    size_t i = 0, a, b, end;
    if (dpari_site_read(s, "/proc/self/cgroup", text, sizeof text) <= 0) {
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

/* Reads `file` of the group and of each group above it; the least `value` gives, 0: none says. */
static double dpari_doctor_least(const dpari_site *s, const char *base, const char *group,
                                 double (*value)(const dpari_site *s, const char *folder))
{
    char path[512], folder[640];
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
        dpar_text_put(&t, base);
        dpar_text_put(&t, path);
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

static int64_t dpari_doctor_in(const dpari_site *s, const char *folder, const char *name,
                               char *text, size_t room)
{
    char path[700];
    dpar_text t;
    dpar_text_init(&t, path, sizeof path);
    dpar_text_put(&t, folder);
    dpar_text_put(&t, name);
    return dpari_site_read(s, path, text, room);
}

static double dpari_doctor_cpu_2(const dpari_site *s, const char *folder)
{
    char text[64];
    int64_t quota, period = -1;
    size_t i = 0;
    if (dpari_doctor_in(s, folder, "/cpu.max", text, sizeof text) <= 0) {
        return 0.0;
    }
    quota = dpari_doctor_number(text);
    while (text[i] != 0 && text[i] != ' ') {
        i++;
    }
    period = dpari_doctor_number(text + i);
    return quota > 0 && period > 0 ? (double)quota / (double)period : 0.0;
}

static double dpari_doctor_cpu_1(const dpari_site *s, const char *folder)
{
    char text[64];
    int64_t quota = -1, period = -1;
    if (dpari_doctor_in(s, folder, "/cpu.cfs_quota_us", text, sizeof text) > 0) {
        quota = dpari_doctor_number(text);
    }
    if (dpari_doctor_in(s, folder, "/cpu.cfs_period_us", text, sizeof text) > 0) {
        period = dpari_doctor_number(text);
    }
    return quota > 0 && period > 0 ? (double)quota / (double)period : 0.0;
}

static double dpari_doctor_memory_2(const dpari_site *s, const char *folder)
{
    char text[64];
    int64_t n = dpari_doctor_in(s, folder, "/memory.max", text, sizeof text);
    return n > 0 ? (double)dpari_doctor_number(text) : 0.0;
}

static double dpari_doctor_memory_1(const dpari_site *s, const char *folder)
{
    char text[64];
    int64_t n = dpari_doctor_in(s, folder, "/memory.limit_in_bytes", text, sizeof text);
    return n > 0 ? (double)dpari_doctor_number(text) : 0.0;
}

DPARI_API double dpari_doctor_quota(const dpari_site *s)
{
    char group[512];
    double one = 0.0, two = 0.0;
    if (dpari_doctor_group(s, "cpu", group, sizeof group)) {
        one = dpari_doctor_least(s, "/sys/fs/cgroup/cpu", group, dpari_doctor_cpu_1);
    }
    if (dpari_doctor_group(s, "", group, sizeof group)) {
        two = dpari_doctor_least(s, "/sys/fs/cgroup", group, dpari_doctor_cpu_2);
    }
    return one > 0.0 && two > 0.0 ? dpari_leastf(one, two) : dpari_mostf(one, two);
}

DPARI_API int64_t dpari_doctor_memory_limit(const dpari_site *s)
{
    char group[512];
    double one = 0.0, two = 0.0, least;
    if (dpari_doctor_group(s, "memory", group, sizeof group)) {
        one = dpari_doctor_least(s, "/sys/fs/cgroup/memory", group, dpari_doctor_memory_1);
    }
    if (dpari_doctor_group(s, "", group, sizeof group)) {
        two = dpari_doctor_least(s, "/sys/fs/cgroup", group, dpari_doctor_memory_2);
    }
    least = one > 0.0 && two > 0.0 ? dpari_leastf(one, two) : dpari_mostf(one, two);
    return least > 0.0 && least < 4e18 ? (int64_t)least : 0; /* version 1 says 2^63 for none */
}

/* The word in brackets of "always [never] force". */
static void dpari_doctor_choice(const dpari_site *s, const char *path, char *word, size_t room)
{
    char text[128];
    size_t a = 0, b;
    word[0] = 0;
    if (dpari_site_read(s, path, text, sizeof text) <= 0) {
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

static int32_t dpari_doctor_gpus(const dpari_site *s)
{
    dpari_names names;
    int32_t i, n = 0;
    dpari_doctor_list(s, "/proc/driver/nvidia/gpus", &names);
    if (names.count > 0) {
        return names.count;
    }
    dpari_doctor_list(s, "/dev", &names); /* "nvidia0", not "nvidiactl" */
    for (i = 0; i < names.count; i++) {
        n += dpari_doctor_begins(names.name[i], "nvidia") && names.name[i][6] >= '0' &&
             names.name[i][6] <= '9';
    }
    return n;
}

static void dpari_doctor_links(const dpari_site *s, dpari_checkup *c)
{
    dpari_names cards;
    int32_t i;
    dpari_doctor_list(s, "/sys/class/net", &c->links);
    for (i = 0; i < c->links.count; i++) {
        char path[96], state[16];
        dpar_text t;
        dpar_text_init(&t, path, sizeof path);
        dpar_text_put(&t, "/sys/class/net/");
        dpar_text_put(&t, c->links.name[i]);
        dpar_text_put(&t, "/operstate");
        if (dpari_site_read(s, path, state, sizeof state) > 0 &&
            (dpari_doctor_begins(state, "up") || dpari_doctor_begins(state, "unknown"))) {
            c->up |= (uint32_t)1 << i;
        }
        c->slingshot = c->slingshot || dpari_doctor_begins(c->links.name[i], "hsn");
    }
    dpari_doctor_list(s, "/sys/class/cxi", &cards);
    c->slingshot = c->slingshot || cards.count > 0;
    dpari_doctor_list(s, "/sys/class/infiniband", &cards);
    c->infiniband = cards.count > 0;
}

/* Threads of the machine that run or wait for a core, this one with them: of "0.41 0.50 0.37 3/911
 * 4023" the 3. -1: not known. */
static int32_t dpari_doctor_runnable(const dpari_site *s, char *load, size_t room)
{
    char text[96];
    size_t i, blanks = 0;
    load[0] = 0;
    if (dpari_site_read(s, "/proc/loadavg", text, sizeof text) <= 0) {
        return -1;
    }
    for (i = 0; text[i] != 0 && blanks < 3; i++) {
        if (text[i] == ' ' && blanks++ == 0) {
            dpari_copy_text(load, room, text, i);
        }
    }
    return (int32_t)dpari_least(dpari_doctor_number(text + i), INT64_C(1) << 20);
}

/* The least of five looks in 20 ms: what comes and goes does not count. */
static void dpari_doctor_load(const dpari_site *s, dpari_checkup *c)
{
    int32_t look;
    c->runnable = dpari_doctor_runnable(s, c->load, sizeof c->load);
    for (look = 1; look < 5 && c->runnable > 0; look++) {
        int32_t now;
        dpari_os_sleep(5e-3);
        now = dpari_doctor_runnable(s, c->load, sizeof c->load);
        c->runnable = now < c->runnable ? now : c->runnable;
    }
}

DPARI_API void dpari_doctor_files(const dpari_site *s, dpari_checkup *c)
{
    char text[4096];
    if (dpari_site_read(s, "/proc/meminfo", text, sizeof text) > 0) {
        c->memory = dpari_doctor_line(text, "MemTotal:");
        c->memory_free = dpari_doctor_line(text, "MemAvailable:");
    }
    c->quota = dpari_doctor_quota(s);
    c->memory_limit = dpari_doctor_memory_limit(s);
    c->yama = (int32_t)dpari_doctor_file(s, "/proc/sys/kernel/yama/ptrace_scope");
    dpari_doctor_choice(s, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", c->huge,
                        sizeof c->huge);
    c->gpus = dpari_doctor_gpus(s);
    dpari_doctor_links(s, c);
    dpari_doctor_load(s, c);
}

/* ---- asking the system ------------------------------------------------------------------------
 */

static int32_t dpari_doctor_bits(const uint64_t *mask)
{
    int32_t i, n = 0;
    for (i = 0; i < 64 * DPARI_CPU_WORDS; i++) {
        n += (int32_t)(mask[i / 64] >> (i % 64) & 1);
    }
    return n;
}

/* A limit in bytes or files; -1: there is none. */
static int64_t dpari_doctor_ulimit(int which)
{
    struct rlimit limit;
    /* the type of `which` is glibc's own */
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

/* May a process read a sibling's memory? Tried by a child that reads this process, for that is the
 * harder direction where rules differ. 0, or the error. */
static int32_t dpari_doctor_try_cma(void)
{
    int32_t *answer =
        (int32_t *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t probe = UINT64_C(0x6470617264706172), word = 0;
    int32_t got = ENOSYS;
    pid_t parent = getpid(), child;
    if ((void *)answer == MAP_FAILED) {
        return ENOMEM;
    }
    *answer = ENOSYS;
    child = fork();
    if (child == 0) {
        int fine = dpari_os_read_peer((int32_t)parent, &word, (uint64_t)(uintptr_t)&probe, 8) == 0;
        *answer = fine && word == probe ? 0 : errno != 0 ? errno : EPERM;
        _exit(0);
    }
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR) {
    }
    got = child > 0 ? *answer : EAGAIN;
    munmap(answer, 4096);
    return got;
}

static void dpari_doctor_look(const dpari_site *s, dpari_checkup *c)
{
    uint64_t cpus[DPARI_CPU_WORDS];
    struct statvfs shm;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int fd;
    dpari_zero(c, sizeof *c);
    c->job_status = dpari_job_here(&c->job, &c->nodes, &c->job_why);
    c->here = c->job_status != DPAR_OK ? 1
              : c->job.local_size > 0  ? c->job.local_size
              : c->nodes <= 1          ? c->job.size
                                       : 1;
    dpari_doctor_files(s, c);
    dpari_os_cpus(cpus);
    c->allowed = dpari_doctor_bits(cpus);
    c->cores = cores > c->allowed ? (int32_t)cores : c->allowed;
    c->memory = c->memory > 0 ? c->memory : dpari_os_memory();
    c->shm = c->shm_free = -1;
    if (statvfs("/dev/shm", &shm) == 0) {
        c->shm = (int64_t)shm.f_blocks * (int64_t)shm.f_frsize;
        c->shm_free = (int64_t)shm.f_bavail * (int64_t)shm.f_frsize;
    }
#if defined(__linux__) && defined(SYS_memfd_create)
    fd = (int)syscall(SYS_memfd_create, "dpar", 1U);
#else
    fd = -1;
#endif
    c->memfd = fd >= 0;
    if (fd >= 0) {
        close(fd);
    }
    c->cma = dpari_doctor_try_cma();
    c->page = dpari_os_page();
    c->addresses = dpari_doctor_ulimit((int)RLIMIT_AS);
#if defined(RLIMIT_MEMLOCK)
    c->locked = dpari_doctor_ulimit((int)RLIMIT_MEMLOCK);
#else
    c->locked = -1;
#endif
    c->open_files = dpari_doctor_ulimit((int)RLIMIT_NOFILE);
    c->file_bytes = dpari_doctor_ulimit((int)RLIMIT_FSIZE);
}

/* ---- what is wrong ----------------------------------------------------------------------------
 */

typedef struct dpari_doctor {
    const dpari_site *site;
    const dpari_checkup *c;
    dpar_text *out;
    int32_t wrong;
} dpari_doctor;

/* One line; '#' and '@' as in dpari_say_word. */
static void dpari_doctor_wrong(dpari_doctor *d, const char *form, const char *word, int64_t a,
                               int64_t b, int64_t c)
{
    dpar_why line;
    dpari_say_word(DPAR_OK, &line, form, word, dpari_length(word), a, b, c, 0);
    dpar_text_put(d->out, "WRONG: ");
    dpar_text_put(d->out, line.text);
    dpari_text_char(d->out, '\n');
    d->wrong++;
}

/* Bytes in whole MiB, for sentences. */
static int64_t dpari_doctor_mib(int64_t bytes)
{
    return bytes >> 20;
}

/* Ranks of the job on other nodes too? */
static int dpari_doctor_spread(const dpari_checkup *c)
{
    return c->job.size > 1 &&
           (c->nodes > 1 || (c->job.local_size > 0 && c->job.local_size < c->job.size));
}

/* What NCCL_SOCKET_IFNAME means for one interface: a list of beginnings, "^" before it: all others,
 * "=" before it: whole names. */
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

/* An interface that NCCL could take for the network: up, and no bridge or tunnel of this machine.
 */
static int dpari_doctor_is_network(const dpari_checkup *c, int32_t i)
{
    const char *name = c->links.name[i];
    return (c->up >> i & 1) && !dpari_same(name, "lo") && !dpari_doctor_begins(name, "docker") &&
           !dpari_doctor_begins(name, "veth") && !dpari_doctor_begins(name, "virbr") &&
           !dpari_doctor_begins(name, "br-") && !dpari_doctor_begins(name, "ifb") &&
           !dpari_doctor_begins(name, "cali") && !dpari_doctor_begins(name, "flannel");
}

static void dpari_doctor_network(dpari_doctor *d)
{
    const char *list = dpari_site_env(d->site, "NCCL_SOCKET_IFNAME");
    int32_t i, networks = 0, taken = 0, taken_networks = 0, loop = 0;
    const char *first = "";
    for (i = 0; i < d->c->links.count; i++) {
        const char *name = d->c->links.name[i];
        int takes = list != NULL && dpari_doctor_takes(list, name);
        if (dpari_doctor_is_network(d->c, i)) {
            first = networks++ == 0 ? name : first;
        }
        taken += takes;
        loop += takes && dpari_same(name, "lo");
        taken_networks += takes && !dpari_same(name, "lo");
    }
    if (list != NULL && list[0] != 0 && taken == 0) {
        dpari_doctor_wrong(d,
                           "NCCL_SOCKET_IFNAME=@ names no interface of this machine -> name one "
                           "of those under \"network\" above",
                           list, 0, 0, 0);
    } else if (loop > 0 && taken_networks == 0 && dpari_doctor_spread(d->c)) {
        dpari_doctor_wrong(d,
                           "NCCL_SOCKET_IFNAME=@ is this machine's own loop, the job has ranks "
                           "on other nodes -> name the interface between the nodes",
                           list, 0, 0, 0);
    } else if (list == NULL && networks > 1 && d->c->gpus > 0 && dpari_doctor_spread(d->c) &&
               !d->c->slingshot) {
        dpari_doctor_wrong(d,
                           "# network interfaces are up and NCCL_SOCKET_IFNAME does not say "
                           "which joins the nodes -> export NCCL_SOCKET_IFNAME=@ (or another)",
                           first, networks, 0, 0);
    }
}

/* One setting that Slingshot needs: `want` is how its value must begin; "" accepts any. */
static void dpari_doctor_setting(dpari_doctor *d, const char *name, const char *want,
                                 const char *advice)
{
    const char *text = dpari_site_env(d->site, name);
    dpar_text t;
    char line[200];
    if (text != NULL && dpari_doctor_begins(text, want)) {
        return;
    }
    dpar_text_init(&t, line, sizeof line);
    dpar_text_put(&t, name);
    dpar_text_put(&t, text != NULL ? " is " : " is not set");
    dpar_text_put(&t, text != NULL ? text : "");
    dpar_text_put(&t, " -> export ");
    dpar_text_put(&t, name);
    dpari_text_char(&t, '=');
    dpar_text_put(&t, advice);
    dpari_doctor_wrong(d, "on Slingshot with GPUs, @", line, 0, 0, 0);
}

/* facts of sites that run NCCL on HPE Slingshot 11 (Derecho, Isambard-AI) */
static void dpari_doctor_slingshot(dpari_doctor *d)
{
    if (!d->c->slingshot || d->c->gpus == 0) {
        return;
    }
    dpari_doctor_setting(d, "NCCL_SOCKET_IFNAME", "hsn", "hsn (else Ethernet: slow, or a hang)");
    dpari_doctor_setting(d, "NCCL_NET", "AWS Libfabric",
                         "\"AWS Libfabric\" (else sockets, in silence)");
    dpari_doctor_setting(d, "FI_CXI_DISABLE_HOST_REGISTER", "1", "1");
    dpari_doctor_setting(d, "FI_MR_CACHE_MONITOR", "userfaultfd",
                         "userfaultfd (the default deadlocks NCCL)");
    dpari_doctor_setting(d, "FI_CXI_DEFAULT_CQ_SIZE", "", "131072");
    dpari_doctor_setting(d, "NCCL_CROSS_NIC", "1", "1");
    dpari_doctor_setting(d, "NCCL_NET_GDR_LEVEL", "", "PHB");
    if (d->c->job.launcher == DPAR_LAUNCHER_PALS) {
        dpari_doctor_setting(d, "MPICH_GPU_SUPPORT_ENABLED", "1", "1");
        dpari_doctor_setting(d, "MPICH_OFI_NIC_POLICY", "GPU", "GPU");
    }
}

/* Devices that CUDA_VISIBLE_DEVICES leaves; all where it is not set. */
static int32_t dpari_doctor_visible(const char *list, int32_t gpus)
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

static void dpari_doctor_devices(dpari_doctor *d)
{
    const dpari_checkup *c = d->c;
    const char *list = dpari_site_env(d->site, "CUDA_VISIBLE_DEVICES");
    int32_t visible = dpari_doctor_visible(list, c->gpus);
    if (c->gpus == 0 || c->job_status != DPAR_OK) {
        return;
    }
    if (c->job.size > 1 && c->job.local_rank < 0) {
        dpari_doctor_wrong(d,
                           "@ does not say the local rank, so no rank knows which of # GPUs is "
                           "its own -> start with a launcher that does, or set DPAR_LOCAL_RANK "
                           "beside DPAR_RANK and DPAR_SIZE",
                           dpari_launcher_name(c->job.launcher), c->gpus, 0, 0);
    }
    /* a single visible one may be another for each rank */
    if (c->here > visible && (visible > 1 || (list == NULL && visible == 1))) {
        dpari_doctor_wrong(d,
                           "# ranks of this node see # GPUs@: some share one -> start # ranks a "
                           "node, or show each rank its own",
                           list != NULL ? " (CUDA_VISIBLE_DEVICES)" : "", c->here, visible,
                           visible);
    }
    if (c->here > 1 && c->shm >= 0 && c->shm < INT64_C(1) << 30) {
        dpari_doctor_wrong(d,
                           "/dev/shm holds # MiB@ and NCCL keeps its buffers between GPUs "
                           "there -> docker run --shm-size=1g or more",
                           "", dpari_doctor_mib(c->shm), 0, 0);
    }
}

/* Ranks that will share memory here: a process that is alone may still launch some, two at least.
 */
static int32_t dpari_doctor_ranks(const dpari_checkup *c)
{
    return c->here > 1 ? c->here : 2;
}

/* Shared memory of a rank before it allocates any: staging of 2 * 256 KiB in its first communicator
 * and at most 80 KiB of tables (1024 ranks). The same with what its process takes for itself. */
#define DPARI_DOCTOR_SHARED (INT64_C(640) << 10)
#define DPARI_DOCTOR_RANK (INT64_C(2) << 20)

/* Addresses of a rank in the shared file where a limit forbids as many as there is memory: those
 * are halved, but not below 64 MiB. With a rank's lines, in the table of all ranks too. */
static int64_t dpari_doctor_addresses(const dpari_checkup *c)
{
    const int64_t least = INT64_C(64) << 20;
    int64_t heap = c->memory > least ? (c->memory + 65535) / 65536 * 65536 : least;
    while (heap / 2 / 65536 * 65536 >= least) {
        heap = heap / 2 / 65536 * 65536;
    }
    return heap + 16384;
}

static void dpari_doctor_memory(dpari_doctor *d)
{
    const dpari_checkup *c = d->c;
    const int64_t ranks = dpari_doctor_ranks(c), shared = ranks * DPARI_DOCTOR_SHARED + 65536;
    const int64_t file = ranks * dpari_doctor_addresses(c) + 65536;
    if (!c->memfd && c->shm_free < shared) {
        dpari_doctor_wrong(d,
                           "/dev/shm has # KiB free@, # ranks share memory through it and take # "
                           "KiB to begin with -> make it larger (docker run --shm-size=1g)",
                           "", c->shm_free < 0 ? 0 : c->shm_free >> 10, ranks, shared >> 10);
    }
    if (c->file_bytes >= 0 && c->file_bytes < file) {
        dpari_doctor_wrong(d,
                           "ulimit -f is # KiB@: the memory that # ranks share counts as a file "
                           "of # KiB, however little of it is used -> ulimit -f unlimited",
                           "", c->file_bytes >> 10, ranks, file >> 10);
    }
    if (c->memory_limit > 0 && c->memory_limit < c->here * DPARI_DOCTOR_RANK) {
        dpari_doctor_wrong(d,
                           "the cgroup grants # KiB@ to # ranks, which take # KiB each to begin "
                           "with -> raise its memory limit",
                           "", c->memory_limit >> 10, c->here, DPARI_DOCTOR_RANK >> 10);
    }
    if (c->addresses >= 0 && c->addresses / (c->here + 1) < c->memory) {
        dpari_doctor_wrong(d,
                           "ulimit -v is # MiB@: shared memory takes addresses for all # ranks, "
                           "and gets fewer -> ulimit -v unlimited",
                           "", dpari_doctor_mib(c->addresses), c->here, 0);
    }
    if (c->locked >= 0 && (c->infiniband || c->slingshot)) {
        dpari_doctor_wrong(d,
                           "ulimit -l is # KiB@, too little for network cards that read memory "
                           "by themselves -> ulimit -l unlimited",
                           "", c->locked >> 10, 0, 0);
    }
    if (c->open_files >= 0 && c->open_files < 2 * (int64_t)c->here + 64) {
        dpari_doctor_wrong(d, "ulimit -n is #@: # ranks meet through files and need # -> raise it",
                           "", c->open_files, c->here, 2 * (int64_t)c->here + 64);
    }
}

static void dpari_doctor_cores(dpari_doctor *d)
{
    const dpari_checkup *c = d->c;
    if (c->here > c->cores) {
        dpari_doctor_wrong(d,
                           "# ranks run on # cores@, so most wait for a core, not for data -> "
                           "start at most # here",
                           "", c->here, c->cores, c->cores);
    } else if (c->quota > 0.0 && c->quota < (double)c->here) {
        dpari_doctor_wrong(d,
                           "the cgroup grants # hundredths of a core@ to # ranks, which then "
                           "stand still part of the time -> raise its CPU limit, or start fewer",
                           "", (int64_t)(c->quota * 100.0 + 0.5), c->here, 0);
    }
    if (c->runnable - c->here >= c->cores) {
        dpari_doctor_wrong(d,
                           "# threads want a core besides @ and there are # cores: each message "
                           "then waits for turns -> end what else runs",
                           c->here > 1 ? "those of the ranks" : "this one", c->runnable - c->here,
                           c->cores, 0);
    }
}

/* The least that containers give by default is 64 MiB. */
DPARI_API void dpari_doctor_note(const dpari_checkup *c, dpar_text *out)
{
    const int complained = c->here > 1 && c->shm >= 0 && c->job_status == DPAR_OK;
    if (c->gpus == 0 || c->shm >= INT64_C(64) << 20 || complained) {
        return;
    }
    dpar_text_put(out, "note: /dev/shm holds ");
    dpari_text_int(out, c->shm < 0 ? 0 : c->shm >> 10);
    dpar_text_put(out, " KiB; NCCL between GPUs and torch's loaders of data keep buffers there -> "
                       "docker run --shm-size=1g or more\n");
}

DPARI_API int32_t dpari_doctor_judge(const dpari_site *site, const dpari_checkup *c, dpar_text *out)
{
    dpari_doctor d;
    d.site = site;
    d.c = c;
    d.out = out;
    d.wrong = 0;
    if (c->job_status != DPAR_OK) {
        dpari_doctor_wrong(&d, "@ -> dpar_init will fail with this sentence", c->job_why.text, 0, 0,
                           0);
    }
    dpari_doctor_cores(&d);
    dpari_doctor_memory(&d);
    dpari_doctor_devices(&d);
    dpari_doctor_network(&d);
    dpari_doctor_slingshot(&d);
    return d.wrong;
}

/* ---- the ranks together -----------------------------------------------------------------------
 */

/* Ranks below `me` that have the same local rank, or would take the same device: said once, by the
 * later one. */
static void dpari_doctor_twins(dpari_doctor *d, const dpari_doctor_chart *charts, int32_t n)
{
    int32_t i, k;
    for (i = 0; i < n; i++) {
        for (k = 0; k < i; k++) {
            const dpari_doctor_chart *a = &charts[k], *b = &charts[i];
            if (a->host != b->host) {
                continue;
            }
            if (a->local_rank >= 0 && a->local_rank == b->local_rank) {
                dpari_doctor_wrong(d,
                                   "ranks # and # are on one node and both are local rank #@ -> "
                                   "start them with one launcher",
                                   "", k, i, a->local_rank);
            }
            if (b->gpu[0] != 0 && dpari_same(a->gpu, b->gpu)) {
                dpari_doctor_wrong(d,
                                   "ranks # and # take the same GPU (@) -> one rank a GPU: local "
                                   "ranks 0, 1, ... or CUDA_VISIBLE_DEVICES of their own",
                                   b->gpu, k, i, 0);
            }
            if (d->wrong >= 16) {
                return; /* the picture is clear */
            }
        }
    }
}

DPARI_API int32_t dpari_doctor_compare(const dpari_doctor_chart *charts, int32_t n, int32_t me,
                                       int32_t cores, dpar_text *out)
{
    dpari_doctor d;
    uint64_t any[DPARI_CPU_WORDS];
    int32_t i, k, here = 0, allowed;
    dpari_zero(any, sizeof any);
    d.site = NULL;
    d.c = NULL;
    d.out = out;
    d.wrong = 0;
    for (i = 0; i < n; i++) {
        here += charts[i].host == charts[me].host;
        for (k = 0; k < DPARI_CPU_WORDS && charts[i].host == charts[me].host; k++) {
            any[k] |= charts[i].cpus[k];
        }
    }
    allowed = dpari_doctor_bits(any);
    if (allowed < here && allowed < cores) {
        dpari_doctor_wrong(&d,
                           "the # ranks of this node may use # of its # cores@ -> let the "
                           "launcher bind each to its own (mpirun --bind-to core, srun "
                           "--cpu-bind=cores), or to none",
                           "", here, allowed, cores);
    }
    dpari_doctor_twins(&d, charts, n);
    return d.wrong;
}

/* The device that a rank would take: the local rank'th of those that it sees. */
static void dpari_doctor_own_gpu(const dpari_site *s, const dpari_checkup *c,
                                 dpari_doctor_chart *chart)
{
    const char *list = dpari_site_env(s, "CUDA_VISIBLE_DEVICES");
    int32_t visible = dpari_doctor_visible(list, c->gpus), skip;
    dpar_text t;
    if (c->gpus == 0 || visible == 0) {
        return;
    }
    skip = c->job.local_rank > 0 ? c->job.local_rank % visible : 0;
    dpar_text_init(&t, chart->gpu, sizeof chart->gpu);
    if (list == NULL) {
        dpari_text_int(&t, skip);
        return;
    }
    for (; skip > 0; list++) {
        skip -= *list == ',';
    }
    while (*list != 0 && *list != ',') {
        dpari_text_char(&t, *list++);
    }
}

static void dpari_doctor_host(char name[256])
{
    name[0] = 0;
    gethostname(name, 255);
    name[255] = 0;
}

static int32_t dpari_doctor_together(const dpari_site *s, const dpari_checkup *c, dpar_comm *world,
                                     dpar_text *out)
{
    const int64_t bytes = world->size * (int64_t)sizeof(dpari_doctor_chart);
    dpari_doctor_chart *charts = (dpari_doctor_chart *)dpari_os_pages(bytes), *mine;
    char name[256];
    int32_t wrong = 0;
    size_t i;
    dpar_status status = charts != NULL ? DPAR_OK : DPAR_E_SYSTEM;
    if (status == DPAR_OK) {
        mine = &charts[world->rank];
        dpari_doctor_host(name);
        mine->host = UINT64_C(14695981039346656037);
        for (i = 0; name[i] != 0; i++) {
            mine->host = (mine->host ^ (unsigned char)name[i]) * UINT64_C(1099511628211);
        }
        dpari_os_cpus(mine->cpus);
        mine->local_rank = c->job.size > 1 ? c->job.local_rank : -1;
        dpari_doctor_own_gpu(s, c, mine);
        status = dpar_all_gather(world, mine, charts, (int64_t)sizeof *mine, DPAR_U8, NULL);
    }
    if (status == DPAR_OK) {
        wrong = dpari_doctor_compare(charts, world->size, world->rank, c->cores, out);
    } else {
        dpar_text_put(out, "WRONG: the ranks cannot be compared: ");
        dpar_text_put(out, charts != NULL ? world->why.text : "no memory");
        dpar_text_put(out, " -> see dpar_comm_report\n");
        wrong = 1;
    }
    dpari_os_unmap(charts, bytes);
    return wrong;
}

/* ---- what it sees -----------------------------------------------------------------------------
 */

static void dpari_doctor_head(dpar_text *out, const char *title)
{
    dpar_text_put(out, title);
    dpari_text_column(out, 11);
}

/* "47.2 GiB". */
static void dpari_doctor_bytes(dpar_text *out, int64_t bytes)
{
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
    dpar_text_put(out, k == 0   ? " B"
                       : k == 1 ? " KiB"
                       : k == 2 ? " MiB"
                       : k == 3 ? " GiB"
                                : " TiB");
}

static void dpari_doctor_say_job(const dpari_checkup *c, dpar_text *out)
{
    const dpar_start *j = &c->job;
    dpari_doctor_head(out, "launcher");
    if (c->job_status != DPAR_OK) {
        dpar_text_put(out, "its numbers do not fit together, see below\n");
        return;
    }
    dpar_text_put(out, dpari_launcher_name(j->launcher));
    dpar_text_put(out, ": rank ");
    dpari_text_int(out, j->rank);
    dpar_text_put(out, " of ");
    dpari_text_int(out, j->size);
    dpar_text_put(out, ", local rank ");
    if (j->local_rank >= 0) {
        dpari_text_int(out, j->local_rank);
    } else {
        dpar_text_put(out, "not said");
    }
    dpar_text_put(out, " of ");
    if (j->local_size >= 0) {
        dpari_text_int(out, j->local_size);
    } else {
        dpar_text_put(out, "not said");
    }
    dpar_text_put(out, ", job ");
    dpar_text_put(out, j->id);
    dpari_text_char(out, '\n');
}

static void dpari_doctor_say_memory(const dpari_checkup *c, dpar_text *out)
{
    dpari_doctor_head(out, "cores");
    dpari_text_int(out, c->cores);
    dpar_text_put(out, ", this process may use ");
    dpari_text_int(out, c->allowed);
    if (c->quota > 0.0) {
        dpar_text_put(out, ", its cgroup grants ");
        dpari_text_fixed(out, c->quota, 2);
    }
    dpari_text_char(out, '\n');
    if (c->runnable >= 0) {
        dpari_doctor_head(out, "load");
        dpari_text_int(out, c->runnable);
        dpar_text_put(out, " runnable on ");
        dpari_text_int(out, c->cores);
        dpar_text_put(out, " cores (this one counted), ");
        dpar_text_put(out, c->load);
        dpar_text_put(out, " over the last minute\n");
    }
    dpari_doctor_head(out, "memory");
    dpari_doctor_bytes(out, c->memory);
    dpar_text_put(out, ", free ");
    dpari_doctor_bytes(out, c->memory_free);
    if (c->memory_limit > 0) {
        dpar_text_put(out, ", its cgroup grants ");
        dpari_doctor_bytes(out, c->memory_limit);
    }
    dpar_text_put(out, "; pages of ");
    dpari_text_int(out, c->page);
    dpar_text_put(out, " B, huge ones for shared memory: ");
    dpar_text_put(out, c->huge[0] != 0 ? c->huge : "not known");
    dpari_text_char(out, '\n');
}

static void dpari_doctor_say_limits(const dpari_checkup *c, dpar_text *out)
{
    dpari_doctor_head(out, "limits");
    dpar_text_put(out, "addresses ");
    dpari_doctor_bytes(out, c->addresses);
    dpar_text_put(out, ", locked ");
    dpari_doctor_bytes(out, c->locked);
    dpar_text_put(out, ", open files ");
    dpari_text_int(out, c->open_files);
    dpar_text_put(out, ", files ");
    dpari_doctor_bytes(out, c->file_bytes);
    dpar_text_put(out, "; /dev/shm ");
    if (c->shm < 0) {
        dpar_text_put(out, "is not there");
    } else {
        dpari_doctor_bytes(out, c->shm);
        dpar_text_put(out, ", free ");
        dpari_doctor_bytes(out, c->shm_free);
    }
    dpari_text_char(out, '\n');
}

static void dpari_doctor_say_network(const dpari_site *s, const dpari_checkup *c, dpar_text *out)
{
    const char *text;
    int32_t i;
    dpari_doctor_head(out, "network");
    for (i = 0; i < c->links.count; i++) {
        dpar_text_put(out, i > 0 ? ", " : "");
        dpar_text_put(out, c->links.name[i]);
        dpar_text_put(out, (c->up >> i & 1) ? "" : " (down)");
    }
    text = dpari_site_env(s, "NCCL_SOCKET_IFNAME");
    dpar_text_put(out, text != NULL ? "; NCCL_SOCKET_IFNAME=" : "; NCCL_SOCKET_IFNAME is not set");
    dpar_text_put(out, text != NULL ? text : "");
    dpar_text_put(out, c->slingshot ? "; Slingshot" : "");
    dpar_text_put(out, c->infiniband ? "; InfiniBand\n" : "\n");
    dpari_doctor_head(out, "GPUs");
    dpari_text_int(out, c->gpus);
    text = dpari_site_env(s, "CUDA_VISIBLE_DEVICES");
    dpar_text_put(out, text != NULL ? "; CUDA_VISIBLE_DEVICES=" : "");
    dpar_text_put(out, text != NULL ? text : "");
    dpari_text_char(out, '\n');
}

static void dpari_doctor_say_use(const dpari_checkup *c, const dpar_comm *world, dpar_text *out)
{
    dpari_doctor_head(out, "will use");
    if (world != NULL) {
        dpar_text_put(out, "engine ");
        dpar_text_put(out, world->engine.name);
        dpar_text_put(out, " (as this communicator does); ");
    } else if (c->job_status != DPAR_OK) {
        dpar_text_put(out, "nothing before the launcher's numbers fit together; ");
    } else if (dpari_doctor_spread(c)) {
        dpar_text_put(out, "engine mpi (dpar_mpi.h): shared memory joins one node only; ");
    } else {
        dpar_text_put(out, c->here > 1 ? "engine shm; " : "engine shm, one rank; ");
    }
    dpar_text_put(out, c->memfd ? "memory without a name (memfd); " : "files in /dev/shm; ");
    if (c->cma == 0) {
        dpar_text_put(out, "reads other ranks' memory (CMA); ");
    } else {
        dpar_text_put(out, "no reading of other ranks' memory (");
        if (c->yama > 0) {
            dpar_text_put(out, "yama ptrace_scope is ");
            dpari_text_int(out, c->yama);
        } else {
            dpari_os_error(out, c->cma);
            dpar_text_put(out, c->cma == EPERM ? ": seccomp or another user?" : "");
        }
        dpar_text_put(out, "); ");
    }
    dpar_text_put(out, c->here > c->allowed && c->here > 1 ? "waits spin, yield, then sleep\n"
                                                           : "waits spin, then sleep\n");
}

DPAR_API DPARI_COLD int32_t dpar_doctor(dpar_comm *world, dpar_text *out)
{
    dpari_site here;
    dpari_checkup *c = (dpari_checkup *)dpari_os_pages((int64_t)sizeof *c);
    char host[256];
    int32_t wrong;
    if (c == NULL) {
        dpar_text_put(out, "WRONG: not a page of memory is left -> end something\n");
        return 1;
    }
    dpari_site_here(&here);
    dpari_doctor_look(&here, c);
    dpari_doctor_host(host);
    dpar_text_put(out, "dpar ");
    dpari_text_int(out, DPAR_VERSION_MAJOR);
    dpari_text_char(out, '.');
    dpari_text_int(out, DPAR_VERSION_MINOR);
    dpari_text_char(out, '.');
    dpari_text_int(out, DPAR_VERSION_PATCH);
    dpar_text_put(out, " on ");
    dpar_text_put(out, host);
    dpari_text_char(out, '\n');
    dpari_doctor_say_job(c, out);
    dpari_doctor_say_memory(c, out);
    dpari_doctor_say_limits(c, out);
    dpari_doctor_say_network(&here, c, out);
    dpari_doctor_say_use(c, world, out);
    dpari_doctor_note(c, out);
    wrong = dpari_doctor_judge(&here, c, out);
    if (world != NULL) {
        wrong += dpari_doctor_together(&here, c, world, out);
    }
    dpar_text_put(out, wrong == 0 ? "nothing is wrong" : wrong == 1 ? "1 thing is wrong" : "");
    if (wrong > 1) {
        dpari_text_int(out, wrong);
        dpar_text_put(out, " things are wrong");
    }
    dpari_text_char(out, '\n');
    dpari_os_unmap(c, (int64_t)sizeof *c);
    return wrong;
}
