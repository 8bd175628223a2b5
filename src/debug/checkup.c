/* SPDX-License-Identifier: MIT-0 */
/* Collects facts about this process and machine for dpar_doctor, mostly from /proc and /sys, and
 * decides in a second step what is wrong with them (dpari_doctor_judge). The steps are separate so
 * that tests can present any machine. Called by doctor.c. */
#include "checkup.h"

#include "../base/base_private.h"
#include "../base/text.h"
#include "../comm/job.h"
#include "../comm/limits.h"
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

/* Counts the names in a directory that consist of `begins`, a digit and any other characters. */
static DPARI_COLD int32_t dpari_doctor_count(const dpari_site *site, const char *path,
                                             const char *begins)
{
    const size_t length = strlen(begins);
    char full[256];
    dpar_text t;
    DIR *at;
    struct dirent *entry;
    int32_t count = 0;
    dpar_text_init(&t, full, sizeof full);
    dpari_text_print(&t, "%s%s", site->root, path);
    at = opendir(full);
    if (at == NULL) {
        return 0;
    }
    while ((entry = readdir(at)) != NULL) {
        const char *name = entry->d_name;
        count += strncmp(name, begins, length) == 0 && name[length] >= '0' && name[length] <= '9';
    }
    closedir(at);
    return count;
}

/* Returns the number of GPUs. A container may have only their devices: "nvidia0", but not
 * "nvidiactl". */
static int32_t dpari_doctor_gpus(const dpari_site *site)
{
    const int32_t count = dpari_doctor_count(site, "/proc/driver/nvidia/gpus", "");
    return count > 0 ? count : dpari_doctor_count(site, "/dev", "nvidia");
}

/* Returns the number of devices in `list`, the value of CUDA_VISIBLE_DEVICES, or `gpus` if it is
 * NULL. */
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

/* Finds the GPU that the rank would use, which is number local_rank of those that it sees. */
static void dpari_doctor_own_gpu(const dpari_site *site, dpari_checkup *checkup)
{
    const char *list = dpari_site_env(site, "CUDA_VISIBLE_DEVICES");
    int32_t visible = dpari_doctor_visible(list, checkup->gpus), skip;
    dpar_text t;
    dpar_text_init(&t, checkup->gpu, sizeof checkup->gpu);
    if (checkup->gpus == 0 || visible == 0) {
        return;
    }
    skip = 0;
    if (checkup->job_status == DPAR_OK && checkup->job.local_rank > 0) {
        skip = checkup->job.local_rank % visible;
    }
    if (list == NULL) {
        dpari_text_int(&t, skip);
        return;
    }
    for (; skip > 0; list++) {
        skip -= *list == ',';
    }
    dpari_text_slice(&t, list, strcspn(list, ","));
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
            if (strncmp(name, "libmpi.", 7) == 0 || strncmp(name, "libmpich", 8) == 0 ||
                strncmp(name, "libmpi_cray", 11) == 0 || strncmp(name, "libmpi_gnu", 10) == 0) {
                dpari_copy_text(checkup->mpi, sizeof checkup->mpi, name, (size_t)(i - begin));
            }
            begin = i + 1;
        }
    }
    dpari_os_unmap(text, room);
}

/* Sets the facts that are read from files. */
static void dpari_doctor_files(const dpari_site *site, dpari_checkup *checkup)
{
    char text[24];
    checkup->yama = 0;
    if (dpari_site_read(site, "/proc/sys/kernel/yama/ptrace_scope", text, sizeof text) > 0) {
        checkup->yama = text[0] - '0';
    }
    checkup->gpus = dpari_doctor_gpus(site);
    dpari_doctor_own_gpu(site, checkup);
    dpari_doctor_mpi(site, checkup);
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
    const int64_t limit = dpari_os_limit(which);
    return limit < INT64_MAX ? limit : -1;
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

/* Sets the facts about the memory of the machine and of the cgroup. */
static void dpari_doctor_room(dpari_checkup *checkup)
{
    dpari_available available;
    struct statvfs shm;
    dpari_limits_find(&available);
    checkup->quota = available.hundredths;
    checkup->memory = dpari_os_memory();
    checkup->memory_free = available.bytes < INT64_MAX ? available.bytes : 0;
    checkup->memory_limit = available.most;
    checkup->shm = checkup->shm_free = -1;
    if (statvfs("/dev/shm", &shm) == 0) {
        checkup->shm = (int64_t)shm.f_blocks * (int64_t)shm.f_frsize;
        checkup->shm_free = (int64_t)shm.f_bavail * (int64_t)shm.f_frsize;
    }
}

DPARI_INTERNAL void dpari_doctor_look(const dpari_site *site, dpari_checkup *checkup)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int fd = -1;
    dpari_zero(checkup, sizeof *checkup);
    checkup->job_status = dpari_job_here(&checkup->job, &checkup->nodes, &checkup->job_why);
    checkup->here = dpari_doctor_here(checkup);
    dpari_doctor_files(site, checkup);
    dpari_os_cpus(checkup->cpus);
    checkup->allowed = dpari_doctor_bits(checkup->cpus);
    checkup->cores = cores > checkup->allowed ? (int32_t)cores : checkup->allowed;
    dpari_doctor_room(checkup);
#if defined(__linux__) && defined(SYS_memfd_create)
    fd = (int)syscall(SYS_memfd_create, "dpar", 1U);
#endif
    checkup->memfd = fd >= 0;
    if (fd >= 0) {
        close(fd);
    }
    checkup->cma = dpari_doctor_try_cma();
    checkup->addresses = dpari_doctor_ulimit((int)RLIMIT_AS);
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

/* ---- the facts ------------------------------------------------------------------------------- */

/* Appends a number, or "unknown" if it is negative. */
static void dpari_doctor_known(dpar_text *out, int32_t number)
{
    if (number < 0) {
        dpar_text_put(out, "unknown");
    } else {
        dpari_text_int(out, number);
    }
}

static void dpari_doctor_say_job(const dpari_checkup *checkup, dpar_text *out)
{
    const dpar_launcher_info *j = &checkup->job;
    dpari_doctor_head(out, "launcher");
    if (checkup->job_status != DPAR_OK) {
        dpar_text_put(out, "its numbers contradict each other, see below\n");
        return;
    }
    dpari_text_print(out, "%s: rank %d of %d, local rank ", dpari_launcher_name(j->kind), j->rank,
                     j->size);
    dpari_doctor_known(out, j->local_rank);
    dpar_text_put(out, " of ");
    dpari_doctor_known(out, j->local_size);
    dpari_text_print(out, ", job %s\n", j->id);
}

static void dpari_doctor_say_memory(const dpari_checkup *checkup, dpar_text *out)
{
    dpari_doctor_head(out, "cores");
    dpari_text_print(out, "%d, this process may use %d", checkup->cores, checkup->allowed);
    if (checkup->quota < INT32_MAX) {
        dpari_text_print(out, ", its cgroup grants %.2f", checkup->quota / 100.0);
    }
    dpari_text_char(out, '\n');
    dpari_doctor_head(out, "memory");
    dpari_doctor_bytes(out, checkup->memory);
    dpar_text_put(out, ", free ");
    dpari_doctor_bytes(out, checkup->memory_free);
    if (checkup->memory_limit > 0) {
        dpar_text_put(out, ", its cgroup grants ");
        dpari_doctor_bytes(out, checkup->memory_limit);
    }
    dpari_text_char(out, '\n');
}

static void dpari_doctor_say_limits(const dpari_checkup *checkup, dpar_text *out)
{
    dpari_doctor_head(out, "limits");
    dpar_text_put(out, "addresses ");
    dpari_doctor_bytes(out, checkup->addresses);
    dpari_text_print(out, ", open files %ld, files ", checkup->open_files);
    dpari_doctor_bytes(out, checkup->file_bytes);
    dpar_text_put(out, "; /dev/shm ");
    if (checkup->shm < 0) {
        dpar_text_put(out, "does not exist");
    } else {
        dpari_doctor_bytes(out, checkup->shm);
        dpar_text_put(out, ", free ");
        dpari_doctor_bytes(out, checkup->shm_free);
    }
    dpari_text_char(out, '\n');
}

/* True if ranks of the job are on other nodes too. */
static int dpari_doctor_spread(const dpari_checkup *checkup)
{
    return checkup->job.size > 1 &&
           (checkup->nodes > 1 ||
            (checkup->job.local_size > 0 && checkup->job.local_size < checkup->job.size));
}

static void dpari_doctor_say_use(const dpari_checkup *checkup, const dpar_comm *world,
                                 dpar_text *out)
{
    dpari_doctor_head(out, "will use");
    if (world != NULL) {
        dpari_text_print(out, "engine %s (as this communicator does); ", world->engine.name);
    } else if (checkup->job_status != DPAR_OK) {
        dpar_text_put(out, "nothing as long as the launcher's numbers contradict each other; ");
    } else if (dpari_doctor_spread(checkup)) {
        dpar_text_put(out, "engine mpi (dpar_mpi.h), because shared memory joins only one node; ");
    } else {
        dpar_text_put(out, checkup->here > 1 ? "engine shm; " : "engine shm, one rank; ");
    }
    dpar_text_put(out, checkup->memfd ? "nameless memory (memfd); " : "files in /dev/shm; ");
    if (checkup->cma == 0) {
        dpar_text_put(out, "reads other ranks' memory (CMA); ");
    } else {
        dpar_text_put(out, "cannot read other ranks' memory (");
        if (checkup->yama > 0) {
            dpari_text_print(out, "yama ptrace_scope is %d", checkup->yama);
        } else {
            dpari_os_error(out, checkup->cma);
            dpar_text_put(out, checkup->cma == EPERM ? ": seccomp or another user?" : "");
        }
        dpar_text_put(out, "); ");
    }
    dpar_text_put(out, checkup->here > checkup->allowed && checkup->here > 1
                           ? "waits spin, yield, then sleep\n"
                           : "waits spin, then sleep\n");
}

DPARI_INTERNAL void dpari_doctor_say(const dpari_site *site, const dpari_checkup *checkup,
                                     const dpar_comm *world, dpar_text *out)
{
    const char *list = dpari_site_env(site, "CUDA_VISIBLE_DEVICES");
    char host[256];
    dpari_doctor_host(host);
    dpari_text_print(out, "dpar %d.%d.%d on %s\n", DPAR_VERSION_MAJOR, DPAR_VERSION_MINOR,
                     DPAR_VERSION_PATCH, host);
    dpari_doctor_say_job(checkup, out);
    dpari_doctor_say_memory(checkup, out);
    dpari_doctor_say_limits(checkup, out);
    dpari_doctor_head(out, "GPUs");
    dpari_text_int(out, checkup->gpus);
    if (list != NULL) {
        dpari_text_print(out, "; CUDA_VISIBLE_DEVICES=%s", list);
    }
    dpari_text_char(out, '\n');
    dpari_doctor_say_use(checkup, world, out);
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
            checkup->shm < 0 ? 0 : checkup->shm >> 20, checkup->mpi, DPARI_DOCTOR_MPI >> 20,
            checkup->here);
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
                           checkup->addresses >> 20, checkup->here);
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
    if (checkup->here > checkup->cores) {
        dpari_doctor_wrong(doctor,
                           "%d ranks run on %d cores, so that they wait for cores, not for data -> "
                           "start at most %d here",
                           checkup->here, checkup->cores, checkup->cores);
    } else if (checkup->quota / 100.0 < checkup->here) {
        dpari_doctor_wrong(doctor,
                           "the cgroup grants %d hundredths of a core to %d ranks, which are then "
                           "stopped part of the time -> raise its CPU limit, or start fewer",
                           checkup->quota, checkup->here);
    }
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
    return d.wrong;
}
