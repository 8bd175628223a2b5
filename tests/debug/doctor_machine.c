/* SPDX-License-Identifier: MIT-0 */
/* Tests what the doctor says about a machine (commands/doctor_machine.h): each complaint is made if
 * and only if its cause is there, on machines made up here; files of /proc and /sys are from this
 * test's own folder. Run with: tests/run test debug. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* CPU_SET */
#endif
#include "dpar_comm.h"

#include "../../commands/doctor_machine.h"

#include "check.h"

#include <sys/stat.h>

static char root[64], text[16384];

/* Sets the variables "A=1", ..., NULL, and removes all others that the doctor reads. */
static void set(const char *const *list)
{
    static const char *const read[] = {"NCCL_SOCKET_IFNAME",           "NCCL_NET",
                                       "FI_CXI_DISABLE_HOST_REGISTER", "FI_MR_CACHE_MONITOR",
                                       "FI_CXI_DEFAULT_CQ_SIZE",       "NCCL_CROSS_NIC",
                                       "NCCL_NET_GDR_LEVEL",           "MPICH_GPU_SUPPORT_ENABLED",
                                       "MPICH_OFI_NIC_POLICY",         "PALS_APID"};
    size_t i;
    for (i = 0; i < sizeof read / sizeof *read; i++) {
        unsetenv(read[i]);
    }
    for (; *list != NULL; list++) {
        char name[64];
        const char *value = strchr(*list, '=') + 1;
        snprintf(name, sizeof name, "%.*s", (int)(value - *list - 1), *list);
        setenv(name, value, 1);
    }
}

/* Makes a node without faults: 4 ranks of one node on 8 cores with 4 GPUs. */
static machine_facts healthy(void)
{
    machine_facts c;
    memset(&c, 0, sizeof c);
    c.kind = DPAR_LAUNCHER_OPENMPI;
    c.ranks = 4;
    c.cores = 8;
    c.sockets = 1;
    c.shm = 32LL << 30;
    c.locked = -1;
    c.runnable = 5; /* the 4 ranks and another process */
    c.gpus = 4;
    c.count = 2;
    strcpy(c.link[0].name, "lo");
    strcpy(c.link[1].name, "eth0");
    c.link[0].up = c.link[1].up = 1;
    return c;
}

/* Checks the number of complaints, and that one of them contains `word`. Each is one line with a
 * remedy. */
static void judge(const machine_facts *c, int wrong, const char *word, int line)
{
    doctor_lines out;
    const char *at;
    int lines = 0;
    doctor_lines_init(&out, text, sizeof text);
    machine_judge(c, &out);
    CHECK_INT(out.wrong, wrong);
    CHECK(out.used + 1 < sizeof text);
    for (at = text; *at != 0; lines++) {
        const char *end = strchr(at, '\n'), *remedy = strstr(at, " -> ");
        CHECK(strncmp(at, "WRONG: ", 7) == 0);
        CHECK(end != NULL && remedy != NULL && remedy < end);
        if (end == NULL) {
            break;
        }
        at = end + 1;
    }
    CHECK_INT(lines, wrong);
    if (strstr(text, word) == NULL || (wrong == 0 && text[0] != 0)) {
        printf("line %d: no \"%s\" in: %s\n", line, word, text);
        CHECK(0);
    }
}
#define JUDGE(c, wrong, word) judge(&(c), wrong, word, __LINE__)

static void test_load(void)
{
    machine_facts c = healthy();
    c.runnable = 4 + 7; /* the ranks, and others on all cores except one */
    JUDGE(c, 0, "");
    c.runnable++;
    JUDGE(c, 1, "8 threads want a core besides those of the ranks and there are 8 cores, so");
    c.beside = 1; /* one of them is a rank of another container */
    JUDGE(c, 0, "");
    c.runnable = -1;
    JUDGE(c, 0, "");
}

/* Checks what is said about /dev/shm: WRONG if ranks share GPUs' buffers through less than 1 GiB,
 * otherwise a note if there are GPUs and it is below 64 MiB. */
static void test_shm(void)
{
    machine_facts c = healthy();
    static const struct {
        int gpus, ranks, says;
        long long shm;
    } row[] = {{4, 1, 1, 65536},    {4, 1, 1, (64 << 20) - 1},
               {4, 1, 0, 64 << 20}, {0, 1, 0, 65536},
               {4, 4, 0, 65536}, /* WRONG in that case */
               {4, 1, 1, -1},       {4, 4, 1, -1}};
    size_t i;
    for (i = 0; i < sizeof row / sizeof row[0]; i++) {
        doctor_lines out;
        c.gpus = row[i].gpus;
        c.ranks = row[i].ranks;
        c.shm = row[i].shm;
        doctor_lines_init(&out, text, sizeof text);
        machine_judge(&c, &out);
        CHECK_INT(strncmp(text, "note: /dev/shm holds ", 21) == 0, row[i].says);
        CHECK_INT(out.wrong, row[i].ranks == 4 && row[i].shm > 0);
    }
    c = healthy();
    c.shm = 64 << 20;
    JUDGE(c, 1, "/dev/shm holds 64 MiB and NCCL keeps its buffers");
    c.gpus = 0;
    JUDGE(c, 0, "");
    c.shm = -1;
    JUDGE(c, 0, "");
}

static void test_locked(void)
{
    machine_facts c = healthy();
    c.locked = 8 << 20;
    JUDGE(c, 0, "");
    c.infiniband = 1;
    JUDGE(c, 1, "ulimit -l is 8192 KiB");
}

static void test_unbound(void)
{
    machine_facts c = healthy();
    c.sockets = 2;
    c.socket = 0;
    JUDGE(c, 0, "");
    c.socket = -1;
    JUDGE(c, 1, "not bound, and may move away from their memory to another of 2 sockets -> ");
    c.ranks = 1;
    JUDGE(c, 0, "");
}

/* Makes a job of 2 such nodes. */
static machine_facts spread(void)
{
    machine_facts c = healthy();
    c.spread = 1;
    return c;
}

static void test_network(void)
{
    static const char *const none[] = {NULL}, *const lo[] = {"NCCL_SOCKET_IFNAME=lo", NULL},
                             *const eth[] = {"NCCL_SOCKET_IFNAME=eth", NULL},
                             *const not_lo[] = {"NCCL_SOCKET_IFNAME=^docker,lo", NULL},
                             *const exact[] = {"NCCL_SOCKET_IFNAME==eth", NULL},
                             *const absent[] = {"NCCL_SOCKET_IFNAME=ib,hsn", NULL};
    machine_facts c = spread();
    set(none);
    JUDGE(c, 0, "");
    c.count = 4;
    strcpy(c.link[2].name, "eth1");
    strcpy(c.link[3].name, "docker0");
    c.link[2].up = c.link[3].up = 1;
    JUDGE(c, 1, "2 network interfaces are up and NCCL_SOCKET_IFNAME does not say");
    c.link[2].up = 0; /* eth1 is down */
    JUDGE(c, 0, "");
    c.link[2].up = 1;
    c.spread = 0; /* does not matter on one node */
    JUDGE(c, 0, "");
    c = spread();
    c.count = 3;
    strcpy(c.link[2].name, "eth1");
    c.link[2].up = 1;
    c.gpus = 0; /* nor without NCCL */
    JUDGE(c, 0, "");
    c.gpus = 4;
    set(eth);
    JUDGE(c, 0, "");
    set(not_lo);
    JUDGE(c, 0, "");
    set(lo);
    JUDGE(c, 1, "NCCL_SOCKET_IFNAME=lo is this machine's own loopback");
    set(exact);
    JUDGE(c, 1, "NCCL_SOCKET_IFNAME==eth names no interface");
    set(absent);
    JUDGE(c, 1, "NCCL_SOCKET_IFNAME=ib,hsn names no interface");
    c.spread = 0;
    JUDGE(c, 1, "names no interface");
    set(lo);
    JUDGE(c, 0, "");
    CHECK_INT(machine_takes("eth0,ib", "ib3"), 1);
    CHECK_INT(machine_takes("eth0,ib", "eth01"), 1); /* the beginning of a name is enough */
    CHECK_INT(machine_takes("=eth0,ib0", "eth01"), 0);
    CHECK_INT(machine_takes("=eth0,ib0", "ib0"), 1);
    CHECK_INT(machine_takes("^eth0,ib", "ib3"), 0);
    CHECK_INT(machine_takes("^eth0,ib", "hsn0"), 1);
    CHECK_INT(machine_takes("", "eth0"), 0);
}

static void test_slingshot(void)
{
    /* what Derecho's and HPE's pages ask for */
    static const char *const all[] = {
        "NCCL_SOCKET_IFNAME=hsn",         "NCCL_NET=AWS Libfabric",
        "FI_CXI_DISABLE_HOST_REGISTER=1", "FI_MR_CACHE_MONITOR=userfaultfd",
        "FI_CXI_DEFAULT_CQ_SIZE=131072",  "NCCL_CROSS_NIC=1",
        "NCCL_NET_GDR_LEVEL=PHB",         "MPICH_GPU_SUPPORT_ENABLED=1",
        "MPICH_OFI_NIC_POLICY=GPU",       NULL};
    const char *less[10];
    machine_facts c = spread();
    int i, skip;
    c.slingshot = 1;
    c.kind = DPAR_LAUNCHER_PALS;
    strcpy(c.link[0].name, "hsn0");
    c.count = 3;
    strcpy(c.link[2].name, "hsn1");
    c.link[2].up = 1;
    set(all);
    JUDGE(c, 0, "");
    for (skip = 0; skip < 9; skip++) {
        char name[40];
        int n = 0;
        for (i = 0; i < 9; i++) {
            if (i != skip) {
                less[n++] = all[i];
            }
        }
        less[n] = NULL;
        snprintf(name, sizeof name, "%.*s is not set -> export ", (int)strcspn(all[skip], "="),
                 all[skip]);
        set(less);
        JUDGE(c, 1, name);
    }
    c.kind = DPAR_LAUNCHER_SLURM; /* not Cray's MPI */
    less[7] = NULL;
    set(less);
    JUDGE(c, 0, "");
    less[7] = "PALS_APID=42.0"; /* but this is: srun --mpi=cray_shasta */
    less[8] = NULL;
    set(less);
    JUDGE(c, 2, "MPICH_OFI_NIC_POLICY is not set -> export ");
    c.kind = DPAR_LAUNCHER_PALS;
    less[7] = all[7];
    less[8] = "NCCL_NET_GDR_LEVEL=PHB";
    for (i = 0; i < 8; i++) {
        less[i] = all[i == 6 ? 8 : i];
    }
    less[0] = "NCCL_SOCKET_IFNAME=eth0";
    less[9] = NULL;
    set(less);
    JUDGE(c, 1, "NCCL_SOCKET_IFNAME is eth0 -> export NCCL_SOCKET_IFNAME=hsn");
    less[0] = NULL;
    set(less);
    JUDGE(c, 9, "AWS Libfabric");
    c.kind = DPAR_LAUNCHER_TORCHRUN; /* no MPI */
    JUDGE(c, 7, "AWS Libfabric");
    c.gpus = 0;
    JUDGE(c, 0, "");
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Writes a file below root, with its folders. */
static void put(const char *path, const char *content)
{
    char full[256];
    size_t i;
    FILE *f;
    snprintf(full, sizeof full, "%s%s", root, path);
    for (i = 1; full[i] != 0; i++) {
        if (full[i] == '/') {
            full[i] = 0;
            mkdir(full, 0700);
            full[i] = '/';
        }
    }
    f = fopen(full, "w");
    CHECK(f != NULL);
    if (f != NULL) {
        fputs(content, f);
        fclose(f);
    }
}

/* Checks two sockets of four CPUs each, of which one is turned off. */
static void test_sockets(void)
{
    static const int8_t socket[] = {0, 0, 36, 36, 0, -1, 36, 36};
    char mine[MACHINE_CPUS];
    machine_facts c;
    int i;
    memset(&c, 0, sizeof c);
    memset(mine, 0, sizeof mine);
    machine_read_sockets(&c, mine); /* no files */
    CHECK_INT(c.sockets, 0);
    CHECK_INT(c.socket, -1);
    for (i = 0; i < 8; i++) {
        char path[96], value[8];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id",
                 i);
        snprintf(value, sizeof value, "%d\n", socket[i]);
        if (socket[i] >= 0) {
            put(path, value);
        }
    }
    mine[2] = mine[7] = 1;
    machine_read_sockets(&c, mine);
    CHECK_INT(c.sockets, 2);
    CHECK_INT(c.socket, 36);
    mine[0] = 1;
    machine_read_sockets(&c, mine);
    CHECK_INT(c.socket, -1);
}

static void test_files(void)
{
    machine_facts c;
    int i, up = 0;
    memset(&c, 0, sizeof c);
    machine_read_files(&c); /* no files */
    CHECK_INT(c.gpus, 0);
    CHECK_INT(c.runnable, -1);
    CHECK(c.load[0] == 0);
    CHECK(c.count == 0 && !c.slingshot && !c.infiniband && c.huge[0] == 0);
    put("/proc/loadavg", "11.29 8.15 6.02 13/807 29121\n");
    put("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "always within_size advise [never] deny force\n");
    put("/proc/driver/nvidia/gpus/0000:01:00.0/information", "");
    put("/proc/driver/nvidia/gpus/0000:02:00.0/information", "");
    put("/dev/nvidia0", "");
    put("/sys/class/net/lo/operstate", "unknown\n");
    put("/sys/class/net/hsn0/operstate", "up\n");
    put("/sys/class/net/hsn0/speed", "200000\n");
    put("/sys/class/net/lo/speed", "-1\n"); /* drivers write this for unknown */
    put("/sys/class/net/eth1/operstate", "down\n");
    put("/sys/class/infiniband/mlx5_0/x", "");
    machine_read_files(&c);
    CHECK_INT(c.runnable, 13);
    CHECK_TEXT(c.load, "11.29");
    CHECK_TEXT(c.huge, "never");
    CHECK_INT(c.gpus, 2);
    CHECK_INT(c.count, 3);
    for (i = 0; i < c.count; i++) {
        up += c.link[i].up;
        CHECK_INT(c.link[i].speed, strcmp(c.link[i].name, "hsn0") == 0 ? 200000 : 0);
    }
    CHECK_INT(up, 2);
    CHECK_INT(c.slingshot, 1);
    CHECK_INT(c.infiniband, 1);
}

static void test_devices_of_a_container(void)
{
    machine_facts c;
    char path[160];
    memset(&c, 0, sizeof c);
    snprintf(path, sizeof path, "rm -rf '%s/proc/driver'", root);
    CHECK_INT(system(path), 0);
    put("/dev/nvidia1", "");
    put("/dev/nvidiactl", "");
    put("/dev/nvidia-uvm", "");
    machine_read_files(&c);
    CHECK_INT(c.gpus, 2);
}

static void test_bytes(void)
{
    char word[32];
    CHECK_TEXT(machine_bytes(-1, word), "unlimited");
    CHECK_TEXT(machine_bytes(1000, word), "1000 B");
    CHECK_TEXT(machine_bytes(64 << 20, word), "64.0 MiB");
}

/* Checks the lines about the real machine. */
static void test_here(void)
{
    static const char *const none[] = {NULL};
    machine_facts c;
    doctor_lines out;
    set(none);
    machine_look(&c);
    CHECK(c.cores > 0 && c.ranks > 0 && c.allowed > 0 && c.memory > 0);
    doctor_lines_init(&out, text, sizeof text);
    machine_say(&c, &out);
    CHECK(strstr(text, "pages      ") != NULL && strstr(text, "\nnetwork    ") != NULL);
    CHECK(strstr(text, "; NCCL_SOCKET_IFNAME is not set") != NULL);
}

int main(void)
{
    char command[96];
    strcpy(root, "/tmp/dpar_test_XXXXXX");
    CHECK(mkdtemp(root) != NULL);
    test_load();
    test_shm();
    test_locked();
    test_unbound();
    test_network();
    test_slingshot();
    test_bytes();
    test_here();
    machine_root = root;
    test_files();
    test_sockets();
    test_devices_of_a_container();
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    CHECK_INT(system(command), 0);
    return CHECK_DONE();
}
