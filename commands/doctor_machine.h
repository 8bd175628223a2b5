/* SPDX-License-Identifier: MIT-0 */
/* doctor_machine - what the doctor finds on a machine that does not concern dpar itself: network
 * interfaces, what NCCL and Slingshot need, locked memory, sockets, and other programs that use the
 * cores. Collecting the facts is separate from checking them, so that tests can present any
 * machine. */
#ifndef DPAR_COMMANDS_DOCTOR_MACHINE_H
#define DPAR_COMMANDS_DOCTOR_MACHINE_H

#include "dpar_comm.h"

#include <glob.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

/* A text of lines "WRONG: ... -> what to do" and others, and how many are WRONG. It is cut where
 * the buffer ends. */
typedef struct doctor_lines {
    char *text;
    size_t room, used;
    int wrong;
} doctor_lines;

enum {
    DOCTOR_LINES = 24
}; /* the most lines WRONG of a report, and lines about nodes: one screen */

enum { MACHINE_LINKS = 32, MACHINE_CPUS = 1024 };

/* A network interface. */
typedef struct machine_link {
    char name[24];
    int up;
    long speed; /* Mb/s; 0 if unknown */
} machine_link;

typedef struct machine_facts {
    int ranks;  /* of the job on this node */
    int beside; /* ranks in other containers on this machine */
    int spread; /* 1 if ranks of the job are on other nodes too */
    int kind;   /* of the launcher, DPAR_LAUNCHER_x */
    int cores;
    int allowed;      /* cores that this process may use */
    long long memory; /* bytes; 0 if unknown */
    int runnable;     /* threads that run or wait for a core; -1 if unknown */
    char load[16];    /* load of the last minute as text; "" if unknown */
    int sockets;      /* sockets of the machine; 0 if unknown */
    int socket;       /* socket of the allowed cores; -1 if on several */
    long long shm;    /* bytes of /dev/shm; -1 if there is none */
    char huge[24];    /* setting of huge pages for shared memory; "" if unknown */
    long long locked; /* ulimit -l in bytes; -1 if unlimited */
    int gpus;         /* NVIDIA GPUs of the machine */
    int infiniband;   /* 1 if the machine has such a card */
    int slingshot;
    int count; /* number of interfaces */
    machine_link link[MACHINE_LINKS];
} machine_facts;

static const char *machine_root = ""; /* precedes paths; tests set it */

static inline void doctor_lines_init(doctor_lines *lines, char *text, size_t room)
{
    lines->text = text;
    lines->room = room;
    lines->used = 0;
    lines->wrong = 0;
    text[0] = 0;
}

static inline void doctor_put(doctor_lines *lines, const char *form, va_list list)
{
    const size_t left = lines->room - lines->used;
    const int n = vsnprintf(lines->text + lines->used, left, form, list);
    if (n > 0) {
        lines->used += (size_t)n < left ? (size_t)n : left - 1;
    }
}

/* Counts a line WRONG. Returns 0 if there are so many that it is only counted. */
static inline int doctor_count(doctor_lines *lines)
{
    return lines->wrong++ < DOCTOR_LINES;
}

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline void
doctor_print(doctor_lines *lines, const char *form, ...)
{
    va_list list;
    va_start(list, form);
    doctor_put(lines, form, list);
    va_end(list);
}

/* Writes a line about something that is wrong. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline void
doctor_wrong(doctor_lines *lines, const char *form, ...)
{
    va_list list;
    if (doctor_count(lines)) {
        doctor_print(lines, "WRONG: ");
        va_start(list, form);
        doctor_put(lines, form, list);
        va_end(list);
        doctor_print(lines, "\n");
    }
}

/* ---- reading the machine --------------------------------------------------------------------- */

/* Reads the first line of a file. Returns 0 if there is none. */
static inline int machine_read(const char *path, char *text, size_t room)
{
    char full[400];
    FILE *file;
    text[0] = 0;
    snprintf(full, sizeof full, "%s%s", machine_root, path);
    file = fopen(full, "r");
    if (file == NULL) {
        return 0;
    }
    if (fgets(text, (int)room, file) == NULL) {
        text[0] = 0;
    }
    fclose(file);
    return text[0] != 0;
}

/* Finds the files of a pattern, which the caller frees with globfree. Returns how many there are.
 */
static inline size_t machine_glob(const char *pattern, glob_t *found)
{
    char full[400];
    memset(found, 0, sizeof *found);
    snprintf(full, sizeof full, "%s%s", machine_root, pattern);
    return glob(full, 0, NULL, found) == 0 ? found->gl_pathc : 0;
}

static inline int machine_count(const char *pattern)
{
    glob_t found;
    const size_t count = machine_glob(pattern, &found);
    globfree(&found);
    return (int)count;
}

static inline void machine_read_links(machine_facts *facts)
{
    glob_t found;
    const size_t count = machine_glob("/sys/class/net/*", &found);
    size_t i;
    facts->count = count < MACHINE_LINKS ? (int)count : MACHINE_LINKS;
    for (i = 0; i < (size_t)facts->count; i++) {
        const char *name = strrchr(found.gl_pathv[i], '/') + 1;
        machine_link *link = &facts->link[i];
        char path[96], text[16];
        snprintf(link->name, sizeof link->name, "%s", name);
        snprintf(path, sizeof path, "/sys/class/net/%.60s/operstate", name);
        link->up = machine_read(path, text, sizeof text) &&
                   (strncmp(text, "up", 2) == 0 || strncmp(text, "unknown", 7) == 0);
        snprintf(path, sizeof path, "/sys/class/net/%.60s/speed", name);
        link->speed = machine_read(path, text, sizeof text) ? atol(text) : 0;
        link->speed = link->speed > 0 ? link->speed : 0; /* -1: the driver does not know it */
        facts->slingshot |= strncmp(name, "hsn", 3) == 0;
    }
    globfree(&found);
    facts->slingshot |= machine_count("/sys/class/cxi/*") > 0;
    facts->infiniband = machine_count("/sys/class/infiniband/*") > 0;
}

/* Counts the sockets, and finds the socket of the CPUs i with mine[i] == 1. */
static inline void machine_read_sockets(machine_facts *facts, const char *mine)
{
    static const char form[] = "/sys/devices/system/cpu/cpu%d/topology/physical_package_id";
    glob_t found;
    const size_t count =
        machine_glob("/sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id", &found);
    int seen[64], own = -1, several = 0;
    size_t i;
    facts->sockets = 0;
    for (i = 0; i < count; i++) {
        const char *path = found.gl_pathv[i] + strlen(machine_root);
        char text[16];
        int cpu = 0, socket, k = 0;
        if (sscanf(path, form, &cpu) != 1 || !machine_read(path, text, sizeof text)) {
            continue;
        }
        socket = atoi(text);
        while (k < facts->sockets && seen[k] != socket) {
            k++;
        }
        if (k == facts->sockets && k < 64) {
            seen[facts->sockets++] = socket;
        }
        if (cpu < MACHINE_CPUS && mine[cpu]) {
            several |= own >= 0 && own != socket;
            own = socket;
        }
    }
    globfree(&found);
    facts->socket = several ? -1 : own;
}

/* Returns the threads of the machine that run or wait for a core, including this one: the 3 in
 * "0.41 0.50 0.37 3/911 4023". Returns -1 if unknown. */
static inline int machine_runnable(char *load)
{
    char text[96];
    int runnable = -1;
    load[0] = 0;
    if (machine_read("/proc/loadavg", text, sizeof text) &&
        sscanf(text, "%15s %*s %*s %d", load, &runnable) != 2) {
        runnable = -1;
    }
    return runnable;
}

/* Takes the least of five readings within 20 ms, so that brief activity does not count. */
static inline void machine_read_load(machine_facts *facts)
{
    const struct timespec pause = {0, 5000000};
    int turn;
    facts->runnable = machine_runnable(facts->load);
    for (turn = 1; turn < 5 && facts->runnable > 0; turn++) {
        int runnable;
        nanosleep(&pause, NULL);
        runnable = machine_runnable(facts->load);
        facts->runnable = runnable < facts->runnable ? runnable : facts->runnable;
    }
}

/* Sets the facts that are read from files: all but those about the job, the process and its limits.
 */
static inline void machine_read_files(machine_facts *facts)
{
    char text[128];
    machine_read_links(facts);
    machine_read_load(facts);
    facts->gpus = machine_count("/proc/driver/nvidia/gpus/*");
    if (facts->gpus == 0) {
        facts->gpus = machine_count("/dev/nvidia[0-9]*");
    }
    facts->huge[0] = 0;
    if (machine_read("/sys/kernel/mm/transparent_hugepage/shmem_enabled", text, sizeof text)) {
        sscanf(text, "%*[^[][%23[^]]", facts->huge); /* the word in brackets: "always [never]" */
    }
}

/* Collects the facts about the machine, and about the job as its launcher describes it. */
static inline void machine_look(machine_facts *facts)
{
    char mine[MACHINE_CPUS];
    dpar_launcher_info job;
    struct statvfs shm;
    struct rlimit limit;
    memset(mine, 0, sizeof mine);
    memset(facts, 0, sizeof *facts);
    machine_read_files(facts);
#if defined(_SC_NPROCESSORS_ONLN)
    facts->cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
#endif
#if defined(_SC_PHYS_PAGES)
    facts->memory = (long long)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
#endif
#if defined(__linux__) && defined(CPU_SET)
    {
        cpu_set_t allowed;
        int cpu;
        CPU_ZERO(&allowed);
        (void)sched_getaffinity(0, sizeof allowed, &allowed);
        for (cpu = 0; cpu < MACHINE_CPUS && cpu < CPU_SETSIZE; cpu++) {
            mine[cpu] = CPU_ISSET(cpu, &allowed) != 0;
            facts->allowed += mine[cpu];
        }
    }
#endif
    machine_read_sockets(facts, mine);
    facts->shm = -1;
    if (statvfs("/dev/shm", &shm) == 0) {
        facts->shm = (long long)shm.f_blocks * (long long)shm.f_frsize;
    }
    facts->locked = -1;
#if defined(RLIMIT_MEMLOCK)
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        facts->locked = (long long)limit.rlim_cur;
    }
#else
    (void)limit;
#endif
    facts->ranks = 1;
    facts->kind = DPAR_LAUNCHER_NONE;
    if (dpar_launcher_detect(&job, NULL) == DPAR_OK) {
        facts->kind = job.kind;
        facts->ranks = job.local_size > 0 ? job.local_size : job.size;
        facts->spread = job.local_size > 0 && job.local_size < job.size;
    }
}

/* Sets text to "47.2 GiB", or "unlimited" for a negative number. */
static inline const char *machine_bytes(long long bytes, char text[32])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int k = 0;
    while (value >= 1024.0 && k < 4) {
        value /= 1024.0;
        k++;
    }
    snprintf(text, 32, bytes < 0 ? "unlimited" : "%.*f %s", k > 0, value, unit[k]);
    return text;
}

/* Writes the facts, a line for each subject. */
static inline void machine_say(const machine_facts *facts, doctor_lines *out)
{
    const char *list = getenv("NCCL_SOCKET_IFNAME");
    char locked[32];
    int i;
    if (facts->runnable >= 0) {
        doctor_print(
            out,
            "load       %d runnable on %d cores (including this one), %s over the last minute\n",
            facts->runnable, facts->cores, facts->load);
    }
    doctor_print(out, "pages      %ld B, huge ones for shared memory: %s; locked memory %s\n",
                 sysconf(_SC_PAGESIZE), facts->huge[0] != 0 ? facts->huge : "unknown",
                 machine_bytes(facts->locked, locked));
    doctor_print(out, "network    ");
    for (i = 0; i < facts->count; i++) {
        doctor_print(out, "%s%s%s", i > 0 ? ", " : "", facts->link[i].name,
                     facts->link[i].up ? "" : " (down)");
    }
    doctor_print(out, list != NULL ? "; NCCL_SOCKET_IFNAME=%s" : "; NCCL_SOCKET_IFNAME is not set",
                 list);
    doctor_print(out, "%s%s\n", facts->slingshot ? "; Slingshot" : "",
                 facts->infiniband ? "; InfiniBand" : "");
}

/* ---- what is wrong --------------------------------------------------------------------------- */

/* True if a name begins with one of these words, which end with NULL. */
static inline int machine_begins(const char *name, const char *const *words)
{
    while (*words != NULL && strncmp(name, *words, strlen(*words)) != 0) {
        words++;
    }
    return *words != NULL;
}

/* True if the interface connects this machine to others: it is up and not a bridge or tunnel of
 * this machine. NCCL could take such an interface for the network. */
static inline int machine_is_network(const machine_link *link)
{
    static const char *const local[] = {"docker", "veth", "virbr",   "br-",
                                        "ifb",    "cali", "flannel", NULL};
    return link->up && strcmp(link->name, "lo") != 0 && !machine_begins(link->name, local);
}

/* True if NCCL_SOCKET_IFNAME selects an interface. It is a list of prefixes of names. "^" before
 * the list selects all others, and "=" makes them whole names. */
static inline int machine_takes(const char *list, const char *name)
{
    const int others = list[0] == '^', whole = list[others] == '=';
    list += others + whole;
    for (;;) {
        const size_t n = strcspn(list, ",");
        if (n > 0 && strncmp(name, list, n) == 0 && (!whole || name[n] == 0)) {
            return !others;
        }
        if (list[n] == 0) {
            return others;
        }
        list += n + 1;
    }
}

static inline void machine_check_network(const machine_facts *facts, doctor_lines *out)
{
    const char *list = getenv("NCCL_SOCKET_IFNAME"), *first = "";
    int i, networks = 0, taken = 0, loops = 0;
    for (i = 0; i < facts->count; i++) {
        const char *name = facts->link[i].name;
        if (machine_is_network(&facts->link[i])) {
            first = networks++ == 0 ? name : first;
        }
        if (list != NULL && machine_takes(list, name)) {
            taken++;
            loops += strcmp(name, "lo") == 0;
        }
    }
    if (list != NULL && list[0] != 0 && taken == 0) {
        doctor_wrong(out,
                     "NCCL_SOCKET_IFNAME=%s names no interface of this machine -> name one of "
                     "those under \"network\" above",
                     list);
    } else if (loops > 0 && taken == loops && facts->spread) {
        doctor_wrong(out,
                     "NCCL_SOCKET_IFNAME=%s is this machine's own loopback, but the job has ranks "
                     "on other nodes -> name the interface between the nodes",
                     list);
    } else if (list == NULL && networks > 1 && facts->gpus > 0 && facts->spread &&
               !facts->slingshot) {
        doctor_wrong(out,
                     "%d network interfaces are up and NCCL_SOCKET_IFNAME does not say which joins "
                     "the nodes -> export NCCL_SOCKET_IFNAME=%s (or another)",
                     networks, first);
    }
}

/* The settings with which sites run NCCL on HPE Slingshot 11 (Derecho, Isambard-AI). */
static const struct {
    const char *name;
    const char *want;   /* the beginning of a correct value; "" accepts any */
    const char *advice; /* the value to export */
    int mpi;            /* 1 if only Cray's MPI needs it */
} machine_settings[] = {
    {"NCCL_SOCKET_IFNAME", "hsn", "hsn (otherwise NCCL uses Ethernet, which is slow or hangs)", 0},
    {"NCCL_NET", "AWS Libfabric",
     "\"AWS Libfabric\" (otherwise NCCL uses sockets and does not report it)", 0},
    {"FI_CXI_DISABLE_HOST_REGISTER", "1", "1", 0},
    {"FI_MR_CACHE_MONITOR", "userfaultfd", "userfaultfd (the default deadlocks NCCL)", 0},
    {"FI_CXI_DEFAULT_CQ_SIZE", "", "131072", 0},
    {"NCCL_CROSS_NIC", "1", "1", 0},
    {"NCCL_NET_GDR_LEVEL", "", "PHB", 0},
    {"MPICH_GPU_SUPPORT_ENABLED", "1", "1", 1},
    {"MPICH_OFI_NIC_POLICY", "GPU", "GPU", 1}};

static inline void machine_check_slingshot(const machine_facts *facts, doctor_lines *out)
{
    /* PALS_APID shows Cray's MPI, also under Slurm and Flux */
    const int mpi = facts->kind == DPAR_LAUNCHER_PALS || getenv("PALS_APID") != NULL;
    size_t i;
    for (i = 0; i < sizeof machine_settings / sizeof *machine_settings; i++) {
        const char *name = machine_settings[i].name, *want = machine_settings[i].want;
        const char *text = getenv(name);
        if ((machine_settings[i].mpi && !mpi) ||
            (text != NULL && strncmp(text, want, strlen(want)) == 0)) {
            continue;
        }
        doctor_wrong(out, "on Slingshot with GPUs, %s is %s -> export %s=%s", name,
                     text != NULL ? text : "not set", name, machine_settings[i].advice);
    }
}

/* Containers have a /dev/shm of at least 64 MiB by default. */
static inline void machine_check_shm(const machine_facts *facts, doctor_lines *out)
{
    if (facts->ranks > 1 && facts->shm >= 0 && facts->shm < 1LL << 30) {
        doctor_wrong(out,
                     "/dev/shm holds %lld MiB and NCCL keeps its buffers between GPUs there -> "
                     "docker run --shm-size=1g or more",
                     facts->shm >> 20);
    } else if (facts->shm < 64LL << 20) {
        doctor_print(out,
                     "note: /dev/shm holds %lld KiB; NCCL between GPUs and the data loaders of "
                     "torch keep buffers there -> docker run --shm-size=1g or more\n",
                     facts->shm < 0 ? 0 : facts->shm >> 10);
    }
}

/* Writes a line "WRONG: ... -> ..." for each thing that is wrong, or "note: ...". */
static inline void machine_judge(const machine_facts *facts, doctor_lines *out)
{
    const int ranks = facts->ranks + facts->beside;
    if (facts->gpus > 0) {
        machine_check_shm(facts, out);
    }
    if (facts->runnable - ranks >= facts->cores) {
        doctor_wrong(out,
                     "%d threads want a core besides %s and there are %d cores, so that messages "
                     "wait for a core -> end the other programs",
                     facts->runnable - ranks, ranks > 1 ? "those of the ranks" : "this one",
                     facts->cores);
    }
    if (facts->locked >= 0 && (facts->infiniband || facts->slingshot)) {
        doctor_wrong(out,
                     "ulimit -l is %lld KiB, too little for network cards that access memory "
                     "directly -> ulimit -l unlimited",
                     facts->locked >> 10);
    }
    if (facts->ranks > 1 && facts->sockets > 1 && facts->socket < 0) {
        doctor_wrong(out,
                     "not bound, and may move away from their memory to another of %d sockets -> "
                     "mpirun --bind-to core, srun --cpu-bind=cores",
                     facts->sockets);
    }
    machine_check_network(facts, out);
    if (facts->slingshot && facts->gpus > 0) {
        machine_check_slingshot(facts, out);
    }
}

#endif
